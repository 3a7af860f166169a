/* Meshes from text, and a line for each transform: "split dp a=2,b=-1". After every one of them its post-condition is looked at. */

enum { FUZZ_RANKS = 64 /* looked at, of a larger mesh spread over it */ };

static int fuzz_looks(const mesh *m) { return m->size < FUZZ_RANKS ? m->size : FUZZ_RANKS; }
static int fuzz_look(const mesh *m, int k) {
    return m->size <= FUZZ_RANKS ? k : (int)((int64_t)k * (m->size - 1) / (FUZZ_RANKS - 1));
}

static void fuzz_mesh_shown(const mesh *m) {
    char *text;
    FUZZ_SHOWN(text, mesh_draw(m, buf, cap));
    free(text);
    FUZZ_SHOWN(text, mesh_format_rank(m, mesh_rank_at(m, m->size - 1), buf, cap));
    free(text);
    if (m->size > 32) return;
    FUZZ_SHOWN(text, mesh_dot(m, buf, cap));
    free(text);
    FUZZ_SHOWN(text, mesh_svg(m, buf, cap));
    free(text);
}

/* What holds for every mesh. */
static void fuzz_mesh_laws(const mesh *m) {
    int64_t product = 1;
    int k, i;
    mesh again, group;
    mesh_error err;
    char *text;
    for (i = 0; i < m->naxes; i++) {
        product *= m->axis[i].size;
        CHECK_INT(mesh_axis_find(m, m->axis[i].name), i);
    }
    CHECK_INT(product, m->size);
    CHECK_INT(mesh_rank_at(m, -1), -1);
    CHECK_INT(mesh_rank_at(m, m->size), -1);
    for (k = 0; k < fuzz_looks(m); k++) {
        int index = fuzz_look(m, k), rank = mesh_rank_at(m, index), coords[MESH_MAX_AXES], row = 0;
        CHECK(rank >= 0);
        CHECK_INT(mesh_index_of(m, rank), index);
        CHECK_INT(mesh_coords_of(m, NULL, rank, coords), m->naxes);
        CHECK_INT(mesh_rank_at_coords(m, coords), rank);
        CHECK_INT(mesh_local_index(m, NULL, rank), index);
        for (i = 0; i < m->naxes; i++) {
            row = row * m->axis[i].size + coords[i];
            CHECK_INT(mesh_coord_of(m, m->axis[i].name, rank), coords[i]);
        }
        CHECK_INT(row, index);
    }
    for (i = 0; i < m->naxes && m->size <= 1024; i++) { /* the groups of an axis divide the mesh */
        int number, count = mesh_group_count(m, m->axis[i].name);
        CHECK_INT(count, m->size / m->axis[i].size);
        for (number = 0; number < count && number < 16; number++) {
            CHECK_OK(mesh_group_at(&group, m, m->axis[i].name, number, &err), err);
            for (k = 0; k < group.size && k < 16; k++) {
                int rank = mesh_rank_at(&group, k);
                CHECK_INT(mesh_group_of(m, m->axis[i].name, rank), number);
                CHECK_INT(mesh_coord_of(m, m->axis[i].name, rank), k);
                CHECK_INT(mesh_neighbor(m, m->axis[i].name, mesh_rank_at(&group, 0), k, 0), rank);
            }
        }
    }
    FUZZ_SHOWN(text, mesh_format(m, buf, cap));
    CHECK_OK(mesh_parse(&again, text, m->size, &err), err);
    CHECK_INT(again.naxes, m->naxes);
    for (i = 0; i < m->naxes; i++) {
        CHECK_STR(again.axis[i].name, m->axis[i].name);
        CHECK_INT(again.axis[i].size, m->axis[i].size);
    }
    free(text);
    if (m->size <= 4096) fuzz_mesh_shown(m);
}

/* Next word of a line, cut off it; "" behind the last. */
static char *fuzz_word(char **line) {
    char *from = *line, *end = from + strcspn(from, " ");
    *line = *end ? end + 1 : end;
    *end = 0;
    return from;
}

/* The transform's post-condition. r: the result; a, b: the words of its line. */
static void fuzz_mesh_after(const char *what, const mesh *r, const mesh *m, const char *a, const char *b,
                            const mesh *other) {
    int k, i;
    if (!strcmp(what, "fix")) {
        CHECK_INT((int64_t)r->size * m->axis[mesh_axis_find(m, a)].size, m->size);
        for (k = 0; k < fuzz_looks(r); k++) CHECK_INT(mesh_coord_of(m, a, mesh_rank_at(r, fuzz_look(r, k))), atoi(b));
        return;
    }
    if (!strcmp(what, "concat") || !strcmp(what, "group")) {
        for (k = 0; k < fuzz_looks(r); k++)
            CHECK_INT(mesh_local_index(m, a, mesh_rank_at(r, fuzz_look(r, k))), fuzz_look(r, k));
        return;
    }
    if (!strcmp(what, "compose")) {
        CHECK_INT(r->size, other->size);
        for (k = 0; k < fuzz_looks(r); k++) {
            int index = fuzz_look(r, k);
            CHECK_INT(mesh_rank_at(r, index), mesh_rank_at(m, mesh_rank_at(other, index)));
        }
        return;
    }
    CHECK_INT(r->size, m->size);
    for (k = 0; k < fuzz_looks(m); k++) {
        int index = fuzz_look(m, k), rank = mesh_rank_at(m, index);
        CHECK(mesh_index_of(r, rank) >= 0);
        if (!strcmp(what, "transpose"))
            CHECK_INT(mesh_index_of(r, rank), mesh_local_index(m, a, rank));
        else if (!strcmp(what, "split") || !strcmp(what, "reshape") || !strcmp(what, "rename") ||
                 !strcmp(what, "squeeze"))
            CHECK_INT(mesh_index_of(r, rank), index);
        for (i = 0; i < m->naxes; i++) { /* axes of the same name are the same */
            int there = mesh_axis_find(r, m->axis[i].name);
            if (strcmp(what, "transpose") && strcmp(what, "flatten") && strcmp(what, "squeeze")) continue;
            if (there < 0 || (!strcmp(what, "flatten") && !strcmp(m->axis[i].name, b))) continue;
            CHECK_INT(mesh_coord_of(r, m->axis[i].name, rank), mesh_coord_of(m, m->axis[i].name, rank));
        }
        if (!strcmp(what, "flatten") && *b) CHECK_INT(mesh_coord_of(r, b, rank), mesh_local_index(m, a, rank));
        if (!strcmp(what, "rename")) CHECK_INT(mesh_coord_of(r, b, rank), mesh_coord_of(m, a, rank));
    }
}

/* The same ranks through a device table, drawn from a seed. */
static mesh_status fuzz_mesh_table(mesh *r, const mesh *m, int seed, mesh_error *err) {
    static int table[FUZZ_RANKS], inverse[FUZZ_RANKS];
    static mesh_table devices;
    int shape[MESH_MAX_AXES], i, k;
    const char *names[MESH_MAX_AXES];
    mesh_desc d = MESH_ZERO;
    uint64_t state = (uint64_t)seed * 2654435761u + 1;
    if (m->size > FUZZ_RANKS || m->table) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_make: not of this one");
    for (i = 0; i < m->naxes; i++) shape[i] = m->axis[i].size, names[i] = m->axis[i].name;
    for (i = 0; i < m->size; i++) table[i] = i;
    for (i = m->size - 1; i > 0; i--) {
        int other;
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        k = (int)((state >> 33) % (uint64_t)(i + 1));
        other = table[i], table[i] = table[k], table[k] = other;
    }
    d.shape = shape, d.names = names, d.naxes = m->naxes, d.table = &devices;
    if (mesh_table_make(&devices, table, m->size, inverse, m->size, err) != MESH_OK) return MESH_ERR_ARGUMENT;
    d.first_fastest = seed & 1;
    return mesh_make(r, &d, err);
}

static mesh_status fuzz_mesh_degrees(mesh *r, const char *order, const char *numbers, mesh_error *err) {
    mesh_degrees d = MESH_ZERO;
    int *field[] = {&d.world, &d.pp, &d.dp_replicate, &d.dp_shard, &d.cp, &d.tp, &d.ep, &d.etp, &d.devices_per_node};
    size_t i;
    for (i = 0; i < sizeof field / sizeof field[0] && *numbers; i++) {
        *field[i] = atoi(numbers);
        numbers += strcspn(numbers, ",");
        numbers += *numbers == ',';
    }
    return mesh_from_degrees(r, &d, order, err);
}

static void fuzz_mesh_dims(int size, const char *numbers) {
    int dims[8], given[8], n, i, product = 1;
    mesh_error err;
    mesh_status status;
    for (n = 0; n < 8 && *numbers; n++) {
        dims[n] = given[n] = atoi(numbers);
        numbers += strcspn(numbers, ",");
        numbers += *numbers == ',';
    }
    status = mesh_dims_create(size, n, dims, &err);
    if (status != MESH_OK) fuzz_refused(status, &err, "mesh_dims_create");
    for (i = 0; i < n; i++) {
        if (status != MESH_OK || given[i]) CHECK_INT(dims[i], given[i]);
        if (status == MESH_OK) product *= dims[i];
    }
    if (status == MESH_OK) CHECK_INT(product, size);
}

/* One line. Returns 1 and the new mesh, or 0. */
static int fuzz_mesh_step(char *line, const mesh *m, mesh *r) {
    static const char *const whats[] = {"fix",     "transpose", "flatten", "split",   "reshape", "rename",
                                        "squeeze", "group",     "concat",  "compose", "table",   "degrees"};
    char function[40], *what = fuzz_word(&line), *a = fuzz_word(&line), *b = fuzz_word(&line);
    mesh canary, other, mine;
    mesh_error err;
    mesh_status status = MESH_OK;
    size_t i;
    if (!strcmp(what, "dims")) fuzz_mesh_dims(atoi(a), b);
    for (i = 0; i < sizeof whats / sizeof whats[0] && strcmp(what, whats[i]); i++) {}
    if (i == sizeof whats / sizeof whats[0]) return 0;
    memset(&canary, 0xa5, sizeof canary);
    *r = canary;
    snprintf(function, sizeof function, "mesh_%s", what);
    switch (i) {
    case 0:
        status = mesh_fix(r, m, a, atoi(b), &err);
        break;
    case 1:
        status = mesh_transpose(r, m, a, &err);
        break;
    case 2:
        status = mesh_flatten(r, m, a, *b ? b : NULL, &err);
        break;
    case 3:
        status = mesh_split(r, m, a, b, &err);
        break;
    case 4:
        status = mesh_reshape(r, m, a, &err);
        break;
    case 5:
        status = mesh_rename(r, m, a, b, &err);
        break;
    case 6:
        mesh_squeeze(r, m);
        break;
    case 7:
        status = mesh_group_through(r, m, a, atoi(b), &err);
        strcpy(function, "mesh_group_through");
        break;
    case 8: { /* the groups of some axes and of others through a rank, as one mesh again */
        int rank = atoi(fuzz_word(&line));
        char axes[300];
        if (mesh_group_through(&mine, m, a, rank, NULL) || mesh_group_through(&other, m, b, rank, NULL)) return 0;
        status = mesh_concat(r, &mine, &other, rank, &err);
        snprintf(axes, sizeof axes, "%s%s%s", a, *a && *b ? "," : "", b);
        if (status == MESH_OK) fuzz_mesh_after(what, r, m, axes, b, NULL);
        break;
    }
    case 9:
        if (mesh_parse(&other, a, 0, NULL)) return 0;
        if (*b && !mesh_transpose(&mine, &other, b, NULL)) other = mine;
        status = mesh_compose(r, m, &other, &err);
        break;
    case 10:
        status = fuzz_mesh_table(r, m, atoi(a), &err);
        strcpy(function, "mesh_make");
        break;
    default:
        status = fuzz_mesh_degrees(r, a, b, &err);
        strcpy(function, "mesh_from_degrees");
        break;
    }
    if (status != MESH_OK) {
        fuzz_refused(status, &err, function);
        CHECK(!memcmp(r, &canary, sizeof canary));
        return 0;
    }
    if (i != 8 && i < 10) fuzz_mesh_after(what, r, m, a, b, &other);
    fuzz_mesh_laws(r);
    return 1;
}

static void fuzz_mesh(const unsigned char *data, size_t n) {
    fuzz_bytes b = fuzz_bytes_of(data, n);
    char *line = fuzz_line(&b), *text = line;
    int world = 0, steps, seen = 0, i;
    mesh m, next, old[12];
    mesh_error err;
    mesh_status status;
    if (!line) return;
    if (*line >= '0' && *line <= '9' && line[strcspn(line, " ")]) world = atoi(fuzz_word(&text));
    status = mesh_parse(&m, text, world, &err);
    if (status != MESH_OK) {
        fuzz_refused(status, &err, "mesh_parse");
    } else {
        char *shown;
        fuzz_mesh_laws(&m);
        FUZZ_SHOWN(shown, mesh_format(&m, buf, cap));
        CHECK_OK(mesh_parse(&next, shown, world, &err), err);
        CHECK(mesh_equal(&next, &m));
        free(shown);
    }
    free(line);
    for (steps = 0; status == MESH_OK && steps < 12 && (line = fuzz_line(&b)) != NULL; steps++) {
        if (fuzz_mesh_step(line, &m, &next)) {
            CHECK(mesh_equal(&next, &next));
            for (i = 0; i < seen; i++)
                CHECK_INT(mesh_equal(&old[i], &next), mesh_fingerprint(&old[i]) == mesh_fingerprint(&next));
            old[seen++] = m = next;
        }
        free(line);
    }
}
