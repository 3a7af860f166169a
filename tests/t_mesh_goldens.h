/* mesh.h against what PyTorch, JAX, CuTe and others compute (tests/golden). */
#ifndef T_MESH_GOLDENS_H
#define T_MESH_GOLDENS_H

/* PyTorch joins the names of flattened axes whatever their length; ours has 15 bytes, so the test calls those "flat". */
static void names_fit(char *names) {
    char out[256] = "";
    const char *p = names;
    for (;;) {
        size_t length = strcspn(p, ",");
        sprintf(out + strlen(out), "%s%.*s", out[0] ? "," : "", length < MESH_NAME_BYTES ? (int)length : 4,
                length < MESH_NAME_BYTES ? p : "flat");
        if (!p[length]) break;
        p += length + 1;
    }
    strcpy(names, out);
}

/* One operation of device_mesh.csv, "name(argument)", through a rank. */
static mesh_status golden_op(mesh *r, const mesh *m, const char *op, int rank, mesh_error *err) {
    char arg[128], name[32];
    const char *open = strchr(op, '(');
    snprintf(name, sizeof name, "%.*s", (int)(open - op), op);
    commas(arg, open + 1, sizeof arg);
    arg[strcspn(arg, ")")] = 0;
    if (!strcmp(name, "slice")) return mesh_group_through(r, m, arg, rank, err);
    if (!strcmp(name, "flatten")) { /* PyTorch's flatten gives the flattened axis alone; ours keeps the others too */
        return mesh_flatten(r, m, arg, strlen(arg) < MESH_NAME_BYTES ? NULL : "flat", err);
    }
    if (!strcmp(name, "unflatten")) {
        char *sizes = strchr(arg, '>');
        *sizes++ = 0;
        return mesh_split(r, m, arg, sizes, err);
    }
    if (!strcmp(name, "concat")) {
        mesh a, b;
        char *second = strchr(arg, '|');
        mesh_status status;
        *second++ = 0;
        if ((status = mesh_group_through(&a, m, arg, rank, err)) != MESH_OK) return status;
        if ((status = mesh_group_through(&b, m, second, rank, err)) != MESH_OK) return status;
        return mesh_concat(r, &a, &b, rank, err);
    }
    *r = *m;
    return MESH_OK;
}

static void golden_apply(mesh *r, const mesh *m, const char *ops, int rank, int line) {
    const char *second = strstr(ops, ")>");
    char first[128];
    mesh_error err;
    mesh_status status;
    if (!strchr(ops, '(')) {
        *r = *m;
        return;
    }
    snprintf(first, sizeof first, "%.*s", second ? (int)(second + 1 - ops) : (int)strlen(ops), ops);
    status = golden_op(r, m, first, rank, &err);
    if (!status && second) status = golden_op(r, r, second + 2, rank, &err);
    if (status) test_fail(__FILE__, __LINE__, "device_mesh.csv:%d: %s", line, err.text);
}

static void test_golden_device_mesh(void) {
    golden_file *g = golden_start("device_mesh.csv");
    int rows = 0;
    if (!g) return;
    while (golden_next(g)) {
        char text[256], names[256], axes[256], got[1 << 15], *p;
        int table[256], inverse[256], shape[16], nshape, i, n;
        mesh_table devices;
        mesh m, dense, r, keep;
        mesh_error err;
        mesh_desc d = MESH_ZERO;
        const char *ptr[MESH_MAX_AXES];
        int sizes[MESH_MAX_AXES];
        rows++;
        commas(text, g->field[0], sizeof text);
        CHECK_OK(mesh_parse(&dense, text, 0, &err), err);
        m = dense;
        if (strcmp(g->field[1], "-")) {
            n = int_list(g->field[1], table, 256);
            for (i = 0; i < dense.naxes; i++) ptr[i] = dense.axis[i].name, sizes[i] = dense.axis[i].size;
            d.shape = sizes, d.names = ptr, d.naxes = dense.naxes, d.table = &devices;
            CHECK_OK(mesh_table_make(&devices, table, n, inverse, 256, &err), err);
            CHECK_OK(mesh_make(&m, &d, &err), err);
        }
        commas(names, g->field[4], sizeof names);
        names_fit(names);
        nshape = int_list(g->field[5], shape, 16);
        /* the axes asked for: 'all' = those named in the result */
        commas(axes, strcmp(g->field[3], "all") ? g->field[3] : g->field[4], sizeof axes);
        names_fit(axes);
        got[0] = 0;
        {
            /* every distinct group, by first member: walk the ranks and print a group when its first listed rank is new */
            int done[4096] = {0}, smallest = 0, count = 0, guard;
            struct {
                int first, rank;
            } found[4096];
            for (i = 0; i < 4096; i++) {
                mesh group;
                if (mesh_index_of(&m, i) < 0 || done[i]) continue;
                golden_apply(&r, &m, g->field[2], i, g->line);
                if (strcmp(g->field[3], "all") || strchr(g->field[2], '('))
                    CHECK_OK(mesh_group_through(&group, &r, axes, i, &err), err);
                else
                    group = r;
                for (n = 0; n < group.size; n++) done[mesh_rank_at(&group, n)] = 1;
                found[count].first = mesh_rank_at(&group, 0);
                found[count++].rank = i;
                keep = r;
            }
            p = got;
            for (guard = 0; guard < count; guard++) {
                mesh group;
                int best = -1;
                for (i = 0; i < count; i++)
                    if (found[i].first >= smallest && (best < 0 || found[i].first < found[best].first)) best = i;
                smallest = found[best].first + 1;
                golden_apply(&r, &m, g->field[2], found[best].rank, g->line);
                if (strcmp(g->field[3], "all") || strchr(g->field[2], '('))
                    mesh_group_through(&group, &r, axes, found[best].rank, &err);
                else
                    group = r;
                for (i = 0; i < group.size; i++)
                    p += sprintf(p, "%s%d", i ? ";" : guard ? "|" : "", mesh_rank_at(&group, i));
            }
        }
        if (strcmp(got, g->field[6]))
            test_fail(__FILE__, __LINE__, "device_mesh.csv:%d: %s %s %s: got %s, expected %s", g->line, text,
                      g->field[2], axes, got, g->field[6]);
        for (i = 0, p = names; i < nshape; i++) { /* sizes of the result's axes, by name */
            size_t length = strcspn(p, ",");
            char one[32];
            int axis;
            snprintf(one, sizeof one, "%.*s", (int)length, p);
            axis = mesh_axis_find(&keep, one);
            if (axis < 0 || keep.axis[axis].size != shape[i])
                test_fail(__FILE__, __LINE__, "device_mesh.csv:%d: axis %s", g->line, one);
            p += length + (p[length] == ',');
        }
    }
    golden_end(g);
    CHECK(rows > 800);
}

/* What PyTorch refuses we refuse, save where our contract is wider; and we refuse what it lets pass wrongly. */
static void test_golden_device_mesh_errors(void) {
    golden_file *g = golden_start("device_mesh_errors.csv");
    int checked = 0;
    if (!g) return;
    while (golden_next(g)) {
        const char *op = g->field[1];
        char text[256];
        mesh m, r;
        mesh_error err;
        mesh_status status = MESH_OK;
        commas(text, g->field[0], sizeof text);
        CHECK_OK(mesh_parse(&m, text, 0, &err), err);
        err.text[0] = 0;
        if (!strncmp(op, "slice(nope", 10) || !strcmp(op, "slice(cp;cp)") || !strncmp(op, "unflatten(", 10) ||
            strstr(op, ")>slice(")) {
            if (!strcmp(g->field[2], "none") && !strstr(op, ">")) continue;
            if (!strchr(op, '=') && strstr(op, "unflatten")) continue;
            {
                const char *second = strstr(op, ")>");
                char first[128];
                snprintf(first, sizeof first, "%.*s", second ? (int)(second + 1 - op) : (int)strlen(op), op);
                status = golden_op(&r, &m, first, 0, &err);
                if (!status && second) status = golden_op(&r, &r, second + 2, 0, &err);
            }
            if (status != MESH_ERR_ARGUMENT || !err.text[0])
                test_fail(__FILE__, __LINE__, "device_mesh_errors.csv:%d: %s accepted", g->line, op);
            checked++;
        } else if (!strncmp(op, "mesh(rank", 9)) { /* a rank twice or out of the world: always refused */
            int table[64], inverse[64], i;
            mesh_table devices;
            for (i = 0; i < m.size; i++) table[i] = i;
            if (strstr(op, "twice"))
                table[op[10] - '0' == 0 ? 1 : 2] = op[10] - '0';
            else
                table[m.size - 1] = m.size;
            CHECK_INT(mesh_table_make(&devices, table, m.size, inverse, m.size, &err), MESH_ERR_ARGUMENT);
            CHECK_HAS(err.text, strstr(op, "twice") ? "twice" : "outside");
            checked++;
        } else if (!strcmp(op, "slice(tp;cp)") || !strcmp(op, "slice(tp;ep)")) { /* any order of axes is fine here */
            CHECK_OK(golden_op(&r, &m, op, 0, &err), err);
            checked++;
        }
    }
    golden_end(g);
    CHECK(checked >= 20);
}

/* Groups along `dims` of a mesh whose first-named axis is fastest, members and groups in that order too. */
static void fastest_first_groups(const char *names, const int *shape, int n, int origin, const char *dims, char *out,
                                 size_t cap) {
    char name[16][16], group_axes[256] = "", all[256] = "";
    const char *ptr[16];
    int i;
    mesh m;
    mesh_error err;
    mesh_desc d = MESH_ZERO;
    const char *p = names;
    for (i = 0; i < n; i++) {
        size_t length = strcspn(p, ";-");
        snprintf(name[i], sizeof name[i], "%.*s", (int)length, p);
        ptr[i] = name[i];
        p += length + (p[length] != 0);
    }
    d.shape = shape, d.names = ptr, d.naxes = n, d.origin = origin, d.first_fastest = 1;
    CHECK_OK(mesh_make(&m, &d, &err), err);
    for (i = n - 1; i >= 0; i--) { /* slowest first, so that indices count with the first-named axis fastest */
        const char *at = dims;
        sprintf(all + strlen(all), "%s%s", all[0] ? "," : "", name[i]);
        for (;;) {
            size_t length = strcspn(at, ";-");
            if (length == strlen(name[i]) && !strncmp(at, name[i], length)) {
                sprintf(group_axes + strlen(group_axes), "%s%s", group_axes[0] ? "," : "", name[i]);
                break;
            }
            if (!at[length]) break;
            at += length + 1;
        }
    }
    CHECK_OK(mesh_transpose(&m, &m, all, &err), err);
    groups_text(&m, group_axes, 0, ';', out, cap);
}

static void test_golden_hyper_comm_grid(void) {
    golden_file *g = golden_start("hyper_comm_grid.csv");
    int rows = 0;
    if (!g) return;
    while (golden_next(g)) {
        int shape[16], n = int_list(g->field[0], shape, 16);
        char got[1 << 15];
        fastest_first_groups(g->field[1], shape, n, atoi(g->field[2]), g->field[3], got, sizeof got);
        if (strcmp(got, g->field[4]))
            test_fail(__FILE__, __LINE__, "hyper_comm_grid.csv:%d: got %s, expected %s", g->line, got, g->field[4]);
        rows++;
    }
    golden_end(g);
    CHECK(rows > 100);
}

static void test_golden_rank_generator(void) {
    golden_file *g = golden_start("rank_generator.csv");
    int rows = 0;
    if (!g) return;
    while (golden_next(g)) {
        static const char *const known[] = {"tp", "ep", "dp", "pp", "cp"};
        int sizes[5], shape[16], n = 0, k, i;
        char got[1 << 15];
        const char *p = g->field[4];
        char text[64];
        rows++;
        snprintf(text, sizeof text, "%s", g->field[0]);
        for (i = 0; text[i]; i++)
            if (text[i] == '-') text[i] = ';';
        int_list(text, sizes, 5);
        if (!strcmp(p, "error")) {
            mesh_degrees d = MESH_ZERO;
            mesh m;
            mesh_error err;
            d.tp = sizes[0], d.ep = sizes[1], d.dp_shard = sizes[2], d.pp = sizes[3], d.cp = sizes[4];
            d.world = sizes[0] * sizes[1] * sizes[2] * sizes[3] * sizes[4];
            if (strstr(g->field[5], "specified the order") || strstr(g->field[5], "KeyError")) {
                CHECK_INT(mesh_from_degrees(&m, &d, g->field[1], &err), MESH_ERR_ARGUMENT);
            } else if (strstr(g->field[5], "list")) { /* a token the order does not have */
                CHECK_OK(mesh_from_degrees(&m, &d, g->field[1], &err), err);
                CHECK_INT(mesh_group_count(&m, g->field[3][0] ? g->field[3] : ","), -1);
            }
            continue;
        }
        if (!strcmp(g->field[1], "tp-tp-dp")) { /* Megatron lets a repeated name pass; we refuse it */
            mesh_degrees d = MESH_ZERO;
            mesh m;
            d.world = 4, d.tp = 2, d.dp_shard = 2;
            CHECK_INT(mesh_from_degrees(&m, &d, g->field[1], NULL), MESH_ERR_ARGUMENT);
            continue;
        }
        while (*p) {
            size_t length = strcspn(p, "-");
            shape[n] = 1;
            for (k = 0; k < 5; k++)
                if (strlen(known[k]) == length && !strncmp(known[k], p, length)) shape[n] = sizes[k];
            n++;
            p += length + (p[length] != 0);
        }
        fastest_first_groups(g->field[4], shape, n, atoi(g->field[2]), g->field[3], got, sizeof got);
        if (strcmp(got, g->field[5]))
            test_fail(__FILE__, __LINE__, "rank_generator.csv:%d: got %s, expected %s", g->line, got, g->field[5]);
    }
    golden_end(g);
    CHECK(rows > 290);
}

static void test_golden_mpi_dims(void) {
    golden_file *g = golden_start("mpi_dims.csv");
    int rows = 0;
    if (!g) return;
    while (golden_next(g)) {
        int dims[16], want[16], n, i;
        mesh_error err;
        rows++;
        n = int_list(g->field[2], dims, 16);
        if (!strncmp(g->field[3], "error", 5)) {
            int before[16];
            memcpy(before, dims, sizeof before);
            CHECK_INT(mesh_dims_create(atoi(g->field[0]), n, dims, &err), MESH_ERR_ARGUMENT);
            CHECK(!memcmp(before, dims, (size_t)n * sizeof(int)));
            continue;
        }
        CHECK_OK(mesh_dims_create(atoi(g->field[0]), n, dims, &err), err);
        int_list(g->field[4], want, 16);
        for (i = 0; i < n; i++)
            if (dims[i] != want[i])
                test_fail(__FILE__, __LINE__, "mpi_dims.csv:%d: dim %d is %d, expected %d", g->line, i, dims[i],
                          want[i]);
    }
    golden_end(g);
    CHECK(rows > 400);
    {
        int dims[3] = {0, 0, 0};
        mesh_error err;
        CHECK_OK(mesh_dims_create(2147483647, 3, dims, &err), err); /* a prime: no loop over the size */
        CHECK_INT(dims[0], 2147483647);
        dims[0] = dims[1] = dims[2] = 0;
        CHECK_OK(mesh_dims_create(180, 3, dims, &err), err);
        CHECK_INT(dims[0], 6);
        CHECK_INT(dims[1], 6);
        CHECK_INT(dims[2], 5);
        { /* the least distance first, then the largest smallest: Open MPI 4.1.4 and MPICH 4.0.2 agree but for the last */
            static const int want[4][5] = {
                {360, 10, 6, 6}, {2160, 10, 6, 6, 6}, {3600, 10, 10, 6, 6}, {5040, 21, 16, 15}};
            int got[4], i, k;
            for (i = 0; i < 4; i++) {
                int ndims = want[i][4] ? 4 : 3;
                memset(got, 0, sizeof got);
                CHECK_OK(mesh_dims_create(want[i][0], ndims, got, &err), err);
                for (k = 0; k < ndims; k++) CHECK_INT(got[k], want[i][k + 1]);
            }
        }
        CHECK_INT(mesh_dims_create(0, 3, dims, &err), MESH_ERR_ARGUMENT);
        dims[0] = 0, dims[1] = -1;
        CHECK_INT(mesh_dims_create(8, 3, dims, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "dim 1 is -1");
    }
}

static mesh_degrees golden_degrees(char **field) {
    mesh_degrees d = MESH_ZERO;
    d.world = atoi(field[1]), d.dp_replicate = atoi(field[2]), d.dp_shard = atoi(field[3]), d.cp = atoi(field[4]);
    d.tp = atoi(field[5]), d.pp = atoi(field[6]), d.ep = atoi(field[7]), d.etp = atoi(field[8]);
    return d;
}

/* Is every name of a golden's list in ours, and every one of ours, but those of the other variant, in the golden's? */
static int same_names(const char *ours, const char *theirs, int spmd, int experts) {
    char name[32];
    int n, k, side;
    for (side = 0; side < 2; side++) {
        const char *list = side ? ours : theirs, *other = side ? theirs : ours;
        for (; *list; list += n + (list[n] != 0)) {
            const char *p = other;
            n = (int)strcspn(list, ",;");
            snprintf(name, sizeof name, "%.*s", n, list);
            if (side && !strcmp(name, spmd ? "fsdp" : "dp_shard")) continue;
            if (side && !spmd && !strcmp(name, "dp")) continue;
            if (!side && !experts && !strcmp(name, "efsdp")) continue; /* with etp it lists what it does not give */
            for (; *p; p += k + (p[k] != 0)) {
                k = (int)strcspn(p, ",;");
                if (k == n && !strncmp(p, name, (size_t)n)) break;
            }
            if (!*p) return 0;
        }
    }
    return 1;
}

static void test_golden_parallel_dims(void) {
    golden_file *g = golden_start("parallel_dims.csv");
    int rows = 0, lists = 0;
    if (!g) return;
    while (golden_next(g)) {
        mesh_degrees d = golden_degrees(g->field);
        char axes[128], got[1 << 15] = "";
        mesh_views v;
        mesh_error err;
        const mesh *m, *same;
        int found;
        CHECK_OK(mesh_views_make(&v, &d, &err), err);
        if (!strcmp(g->field[9], "enabled_1d")) {
            mesh_views_axes(&v, got, sizeof got);
            lists++;
            if (!same_names(got, g->field[11], !strcmp(g->field[0], "spmd_types"), d.ep > 1))
                test_fail(__FILE__, __LINE__, "line %d: enabled are %s, expected %s", g->line, got, g->field[11]);
            continue;
        }
        rows++;
        commas(axes, g->field[9], sizeof axes);
        found = mesh_views_get_optional(&v, axes, &m, &err);
        if (found > 0) groups_text(m, axes, 1, ';', got, sizeof got);
        if (found < 0 || !found != !strcmp(g->field[11], "absent") || (found && strcmp(got, g->field[11])))
                test_fail(__FILE__, __LINE__, "line %d: %s %s: got %s, expected %s", g->line, g->field[0], axes,
                          found < 0 ? err.text : found ? got : "absent", g->field[11]);
        CHECK_INT(mesh_views_get(&v, axes, &same, &err), found > 0 ? MESH_OK : MESH_ERR_ARGUMENT);
        CHECK(same == m);
        if (!found) CHECK_HAS(err.text, "is not enabled: its degree is 1");
    }
    golden_end(g);
    CHECK(rows > 1000 && lists > 40);
}

static void test_golden_parallel_dims_errors(void) {
    golden_file *g = golden_start("parallel_dims_errors.csv");
    int asked = 0;
    while (g && golden_next(g)) {
        mesh_degrees d = golden_degrees(g->field);
        mesh_views v;
        mesh_error err;
        const mesh *m;
        char axes[128];
        const char *open = strchr(g->field[9], '(');
        int status;
        if (!strcmp(g->field[9], "build")) {
            if (d.tp == -1 && d.dp_shard != -1) continue; /* we infer any one degree, torchtitan only dp_shard */
            if (d.ep <= 1 && d.etp > 1 && d.dp_replicate * d.dp_shard * d.cp * d.tp * d.pp == d.world)
                continue; /* without experts etp is idle */
            if (mesh_views_make(&v, &d, NULL) != MESH_ERR_ARGUMENT)
                test_fail(__FILE__, __LINE__, "parallel_dims_errors.csv:%d accepted", g->line);
            continue;
        }
        CHECK_OK(mesh_views_make(&v, &d, &err), err);
        commas(axes, open + 1, sizeof axes);
        axes[strcspn(axes, ")")] = 0;
        asked++;
        status = strncmp(g->field[9], "get_optional", 12) ? (int)mesh_views_get(&v, axes, &m, &err) : mesh_views_get_optional(&v, axes, &m, &err) < 0;
        if (!strcmp(g->field[10], "KeyError")) { /* the order of axes is the caller's choice here */
            CHECK_OK(status, err);
        } else if (!strcmp(g->field[10], "none") != (status == 0)) {
            test_fail(__FILE__, __LINE__, "line %d: %s is %d, expected %s %s", g->line, g->field[9], status, g->field[10], g->field[11]);
        }
    }
    if (g) golden_end(g);
    CHECK(asked > 20);
}

static void test_views(void) {
    mesh_degrees d = MESH_ZERO;
    mesh_views v;
    mesh_error err;
    const mesh *m;
    char text[200];
    int size, rank;
    d.world = 32, d.dp_replicate = 2, d.dp_shard = -1, d.tp = 2, d.pp = 2, d.ep = 4;
    CHECK_OK(mesh_views_make(&v, &d, &err), err);
    CHECK(v.degrees.dp_shard == 4 && v.degrees.cp == 1 && v.degrees.ep == 4 && v.degrees.etp == 1 && v.degrees.world == 32);
    CHECK_OK(mesh_views_get(&v, "ep , efsdp", &m, &err), err); /* any order, spaces */
    CHECK(m == &v.sparse && mesh__views_size(m, "efsdp") == 2);
    CHECK_INT(mesh_views_get(&v, "cp", &m, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "axis \"cp\" is not enabled");
    CHECK(m == NULL);
    CHECK_INT(mesh_views_get_optional(&v, "fsdp,ep", &m, &err), -1);
    CHECK_HAS(err.text, "mesh_views_get_optional: \"fsdp,ep\": no one view has these axes together");
    CHECK_INT(mesh_views_get_optional(&v, "loss,pp", &m, &err), -1);
    CHECK_INT(mesh_views_get_optional(&v, "tp,tp", &m, &err), -1);
    CHECK_INT(mesh_views_get_optional(&v, "nope", &m, &err), -1);
    CHECK_HAS(err.text, "no axis \"nope\"; known are pp batch loss dp_replicate fsdp cp tp ep efsdp dp_shard dp");
    CHECK_INT(mesh_views_get_optional(&v, "etp", &m, &err), -1); /* the degrees do not say it */
    CHECK_HAS(err.text, "no axis \"etp\"");
    CHECK_INT(mesh_views_get_optional(&v, "", &m, &err), -1);
    CHECK_INT(mesh_views_get_optional(&v, NULL, &m, &err), -1);
    d.ep = 1; /* nor beside one that is not enabled, whichever is named first */
    CHECK_OK(mesh_views_make(&v, &d, &err), err);
    CHECK_INT(mesh_views_get_optional(&v, "etp,ep", &m, &err), -1);
    CHECK_INT(mesh_views_get_optional(&v, "ep,etp", &m, &err), -1);
    CHECK_HAS(err.text, "no axis \"etp\"");
    d.ep = 4;
    d.etp = 1;
    CHECK_OK(mesh_views_make(&v, &d, &err), err);
    CHECK_INT(mesh_views_get_optional(&v, "etp", &m, &err), 0);
    CHECK_INT((int)mesh_views_axes(&v, text, sizeof text), (int)strlen(text));
    CHECK_STR(text, "pp,batch,loss,dp_replicate,fsdp,tp,ep,efsdp,dp_shard,dp");
    for (rank = 0; rank < 32; rank++) { /* pp outermost, then the data ranks, then tp */
        CHECK_INT(mesh_views_dp(&v, rank, &size), rank / 2 % 8);
        CHECK_INT(size, 8);
    }
    CHECK_INT(mesh_views_dp(&v, 32, &size), -1);
    d.tp = 3;
    CHECK_INT(mesh_views_make(&v, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_views_make(NULL, &d, &err), MESH_ERR_ARGUMENT);
}

static const test_case mesh_golden_tests[] = {
    {"mesh/golden/device_mesh", test_golden_device_mesh, 0},
    {"mesh/golden/device_mesh_errors", test_golden_device_mesh_errors, 0},
    {"mesh/golden/hyper_comm_grid", test_golden_hyper_comm_grid, 0},
    {"mesh/golden/rank_generator", test_golden_rank_generator, 0},
    {"mesh/golden/mpi_dims", test_golden_mpi_dims, 0},
    {"mesh/golden/parallel_dims", test_golden_parallel_dims, 0},
    {"mesh/golden/parallel_dims_errors", test_golden_parallel_dims_errors, 0},
    {"mesh/views", test_views, 0},
};

#endif
