/* Gradients' layouts and local computations: goldens; and a law by brute force, that what is accepted is right on every rank, forward and backward. */
#ifndef T_LOCAL_H
#define T_LOCAL_H

/* "S(0);R" of a golden row, for the mesh's axes in turn, as our text. */
static void local_spec_text(char *out, size_t cap, const mesh *m, const char *places) {
    int i;
    size_t n = 0;
    out[0] = 0;
    for (i = 0; i < m->naxes; i++) {
        size_t length = strcspn(places, ";|");
        n += (size_t)snprintf(out + n, cap - n, "%s%s:%.*s", i ? " " : "", m->axis[i].name, (int)length, places);
        places += length + (places[length] == ';');
    }
}

static mesh_layout local_layout(const mesh *m, const char *places, int ndim, const int64_t *shape) {
    char text[200];
    mesh_layout l;
    mesh_error err;
    memset(&l, 0, sizeof l);
    local_spec_text(text, sizeof text, m, places);
    CHECK_OK(mesh_layout_parse(&l, m, text, ndim, shape, &err), err);
    return l;
}

/* What lies between the k-th and the next '|'. */
static const char *local_part(const char *list, int k) {
    while (k-- > 0) list = strchr(list, '|') + 1;
    return list;
}

static void test_local_golden(void) {
    golden_file *g = golden_start("layout_local.csv");
    int rows = 0, errors = 0;
    if (!g) return;
    for (; golden_next(g); rows++) {
        static const char *const kinds[] = {"einsum", "linear", "map"};
        mesh_layout operand[4], result;
        const mesh_layout *list[4];
        mesh_error err;
        mesh m;
        char letters[64], want[200], got[200];
        int kind, n = 1, k, refused = !strcmp(g->field[5], "error");
        const char *p;
        mesh_of_list(&m, g->field[2]);
        for (kind = 0; kind < 2 && strcmp(kinds[kind], g->field[0]); kind++) {}
        for (k = 0, p = g->field[1]; (letters[k] = *p == ';' ? ',' : *p) != 0; p++, k++) {}
        for (p = g->field[4]; *p; p++) n += *p == '|';
        for (k = 0; k < n; k++) {
            int64_t shape[MESH_MAX_DIMS];
            char sizes[64];
            const char *from = local_part(g->field[3], k);
            snprintf(sizes, sizeof sizes, "%.*s", (int)strcspn(from, "|"), from);
            operand[k] = local_layout(&m, local_part(g->field[4], k), *sizes ? (int)list64(sizes, shape, 8) : 0, shape);
            list[k] = &operand[k];
        }
        memset(&err, 0, sizeof err);
        k = mesh_layout_local(&result, (mesh_local_kind)kind, letters, list, n, &err);
        errors += refused;
        if (refused) {
            if (k != MESH_ERR_ARGUMENT || strncmp(err.text, "mesh_layout_local: ", 19))
                test_fail(__FILE__, __LINE__, "line %d: taken, or \"%s\"; expected an error: %s", g->line, err.text,
                          g->field[6]);
            continue;
        }
        if (k != MESH_OK) {
            test_fail(__FILE__, __LINE__, "line %d: %s", g->line, err.text);
            continue;
        }
        { /* as specs: a text without @ is one with it */
            mesh_layout wanted = local_layout(&m, g->field[5], result.ndim, result.shape);
            mesh_spec_format(&wanted.spec, &m, want, sizeof want);
            mesh_spec_format(&result.spec, &m, got, sizeof got);
            if (!mesh_spec_equal(&wanted.spec, &result.spec))
                test_fail(__FILE__, __LINE__, "line %d: %s, expected %s", g->line, got, want);
        }
    }
    CHECK(rows > 600 && errors > 100);
    golden_end(g);
}

static void test_gradient_golden(void) {
    golden_file *g = golden_start("layout_gradient.csv");
    mesh_topology bytes = plan_bytes_only();
    int rows = 0, refused = 0, kept = 0, moves = 0;
    if (!g) return;
    for (; golden_next(g); rows++) {
        int64_t shape[MESH_MAX_DIMS];
        mesh_layout end[4]; /* from, to; the gradients of to, from */
        mesh_error err;
        mesh_spec spec;
        mesh m;
        int ndim = (int)list64(g->field[1], shape, 8), i, side;
        mesh_of_list(&m, g->field[0]);
        for (i = 0; i < 4; i++) {
            if (i >= 2) {
                mesh_status status = mesh_spec_gradient(&spec, &end[3 - i].spec, &err);
                CHECK_INT(status, strcmp(g->field[2 + i], "error") ? MESH_OK : MESH_ERR_ARGUMENT);
                if (status != MESH_OK) {
                    CHECK_HAS(err.text, "is partial over");
                    refused++;
                    continue;
                }
            }
            end[i] = local_layout(&m, g->field[2 + i], ndim, shape);
            if (i < 2) continue;
            if (!mesh_spec_equal(&spec, &end[i].spec))
                test_fail(__FILE__, __LINE__, "line %d: gradient %d", g->line, i);
            CHECK_OK(mesh_spec_gradient(&spec, &spec, &err), err); /* its own inverse, in place too */
            CHECK(mesh_spec_equal(&spec, &end[3 - i].spec));
        }
        for (side = 0; side < 2; side++) {
            mesh_plan_desc d = MESH_ZERO;
            mesh_plan plan;
            int64_t moved;
            if (!strcmp(g->field[6 + side], "-")) continue;
            d.src = &end[2 * side], d.dst = &end[2 * side + 1], d.topology = &bytes;
            CHECK_OK(mesh_plan_make(&plan, &d, &err), err);
            CHECK(plan_interpret(&plan, &moves));
            moved = mesh_plan_measure(&plan);
            kept += moved == 0;
            if ((moved == 0) != !strcmp(g->field[6 + side], "yes"))
                test_fail(__FILE__, __LINE__, "line %d, %s: %lld bytes, free is %s:\n%s", g->line,
                          side ? "backward" : "forward", (long long)moved, g->field[6 + side], plan_text(&plan));
        }
    }
    CHECK(rows > 390 && refused >= 2 && kept > 100);
    golden_end(g);
}

/* ---- brute force ---- */

enum { LOCAL_RANKS = 8, LOCAL_OPERANDS = 3, LOCAL_LETTERS = 4, LOCAL_ELEMS = 256 };

typedef struct local_problem {
    mesh_local_kind kind;
    mesh m;
    int n, extent[128]; /* by letter, of the whole */
    char letter[LOCAL_OPERANDS + 1][LOCAL_LETTERS + 1];
    mesh_layout layout[LOCAL_OPERANDS + 1];
} local_problem;

typedef double local_array[LOCAL_ELEMS];

/* Where an index (by letter) lies in an array whose dims are these letters. */
static int local_at(const char *letters, const int *extent, const int *index) {
    int at = 0;
    for (; *letters; letters++) at = at * extent[(int)*letters] + index[(int)*letters];
    return at;
}

static int local_elems(const char *letters, const int *extent) {
    int n = 1;
    for (; *letters; letters++) n *= extent[(int)*letters];
    return n;
}

/* The next index over letters; 0 at the end. */
static int local_step(const char *letters, const int *extent, int *index) {
    int k;
    for (k = (int)strlen(letters) - 1; k >= 0; k--) {
        if (++index[(int)letters[k]] < extent[(int)letters[k]]) return 1;
        index[(int)letters[k]] = 0;
    }
    return 0;
}

/* x plus its sum along the upper-case letters: a linear function that mixes, and is its own transpose. */
static void local_mix(const char *letters, const int *extent, const double *x, double *u) {
    int index[128] = {0};
    if (!local_elems(letters, extent)) return;
    do {
        int other[128] = {0};
        double sum = 0;
        do {
            const char *c;
            for (c = letters; *c && (mesh__is_upper(*c) || other[(int)*c] == index[(int)*c]); c++) {}
            if (!*c) sum += x[local_at(letters, extent, other)];
        } while (local_step(letters, extent, other));
        u[local_at(letters, extent, index)] = x[local_at(letters, extent, index)] + sum;
    } while (local_step(letters, extent, index));
}

/* The function on parts of these extents, and with `pull` (of the result) its backward pass into grad. */
static void local_run(const local_problem *p, const int *extent, local_array *x, double *out, const double *pull,
                      local_array *grad) {
    local_array u[LOCAL_OPERANDS];
    char all[16] = "";
    int index[128] = {0}, k, d, n = p->n, size = local_elems(p->letter[n], extent);
    for (k = 0; k < n; k++) {
        local_mix(p->letter[k], extent, x[k], u[k]);
        for (d = 0; p->letter[k][d]; d++)
            if (!strchr(all, p->letter[k][d])) strncat(all, &p->letter[k][d], 1);
        if (pull) memset(grad[k], 0, sizeof grad[k]);
    }
    for (k = 0; k < size && out; k++) out[k] = 0;
    if (!local_elems(all, extent)) return;
    do {
        double value = p->kind == MESH_LOCAL_LINEAR ? 0 : 1;
        int at = local_at(p->letter[n], extent, index);
        for (k = 0; k < n; k++) {
            double v = u[k][local_at(p->letter[k], extent, index)];
            if (p->kind == MESH_LOCAL_LINEAR)
                value += (k + 2) * v;
            else
                value *= p->kind == MESH_LOCAL_MAP ? v * v + 1 : v;
        }
        if (out) out[at] += value;
        for (k = 0; k < n && pull; k++) {
            double slope = p->kind == MESH_LOCAL_LINEAR ? k + 2 : 1;
            for (d = 0; d < n && p->kind != MESH_LOCAL_LINEAR; d++) {
                double v = u[d][local_at(p->letter[d], extent, index)];
                slope *= p->kind == MESH_LOCAL_MAP ? (d == k ? 2 * v : v * v + 1) : d == k ? 1 : v;
            }
            grad[k][local_at(p->letter[k], extent, index)] += slope * pull[at];
        }
    } while (local_step(all, extent, index));
    for (k = 0; k < n && pull; k++) {
        local_array mixed;
        local_mix(p->letter[k], extent, grad[k], mixed);
        memcpy(grad[k], mixed, sizeof mixed);
    }
}

/* What a rank holds of a whole tensor: a part, of which the summands after the first are noise that the first makes good. */
static void local_deal(const mesh_layout *l, int rank, const double *whole, unsigned salt, double *part) {
    mesh_box box;
    int64_t e, count = mesh_layout_box(l, rank, &box);
    int of, mine = plan_partial_index(l->on, &l->spec, rank, &of), k;
    for (e = 0; e < count; e++) {
        int64_t at = plan_linear_in(l->ndim, l->shape, &box, e);
        double sum = 0, own = whole[at];
        for (k = 1; k < of; k++) {
            double noise = (double)((((unsigned)(at * 7 + k * 13) * 2654435761u + salt * 40503u) >> 20) & 7) - 3;
            sum += noise;
            if (k == mine) own = noise;
        }
        part[e] = mine ? own : whole[at] - sum;
    }
}

/* Do the parts of all ranks say the whole tensor, as the layout has it? */
static int local_says(const mesh_layout *l, local_array *part, const double *whole) {
    int i, k, of;
    for (i = 0; i < l->on->size; i++) {
        int rank = mesh_rank_at(l->on, i);
        local_array sum = {0};
        mesh_box box, other;
        int64_t e, count = mesh_layout_box(l, rank, &box);
        if (plan_partial_index(l->on, &l->spec, rank, &of)) continue;
        for (k = 0; k < l->on->size; k++) { /* those that differ from it in partial axes alone */
            int coord[MESH_MAX_AXES], mine[MESH_MAX_AXES], a, same = 1, r = mesh_rank_at(l->on, k);
            mesh_coords_of(l->on, NULL, r, coord);
            mesh_coords_of(l->on, NULL, rank, mine);
            for (a = 0; a < l->on->naxes; a++) same &= l->spec.axis[a].kind == MESH_PARTIAL || coord[a] == mine[a];
            mesh_layout_box(l, r, &other);
            for (e = 0; e < count && same; e++) sum[e] += part[r][e];
        }
        for (e = 0; e < count; e++)
            if (sum[e] != whole[plan_linear_in(l->ndim, l->shape, &box, e)]) return 0;
    }
    return 1;
}

/* Is the local computation right on every rank, forward and backward, if the result lies as layout[n] says? */
static int local_right(const local_problem *p, unsigned salt) {
    static local_array whole[LOCAL_OPERANDS + 1], out[LOCAL_RANKS], slope[LOCAL_OPERANDS],
        slopes[LOCAL_OPERANDS][LOCAL_RANKS];
    local_array pull;
    mesh_layout gradient = p->layout[p->n];
    test_random r = random_from(salt);
    mesh_error err;
    int k, i, e, n = p->n;
    for (k = 0; k < n; k++)
        for (e = 0; e < local_elems(p->letter[k], p->extent); e++) whole[k][e] = 1 + random_below(&r, 3);
    for (e = 0; e < local_elems(p->letter[n], p->extent); e++) pull[e] = 1 + random_below(&r, 3);
    local_run(p, p->extent, whole, whole[n], pull, slope);
    CHECK_OK(mesh_spec_gradient(&gradient.spec, &p->layout[n].spec, &err), err);
    for (i = 0; i < p->m.size; i++) {
        local_array mine[LOCAL_OPERANDS], pulled, made[LOCAL_OPERANDS];
        mesh_box box;
        int extent[128], d, rank = mesh_rank_at(&p->m, i);
        memset(extent, 255, sizeof extent);
        for (k = 0; k <= n; k++) {
            mesh_layout_box(&p->layout[k], rank, &box);
            for (d = 0; d < box.ndim; d++) {
                int *have = &extent[(int)p->letter[k][d]];
                if (*have >= 0 && *have != box.shape[d]) return 0; /* it does not even fit */
                *have = (int)box.shape[d];
            }
            if (k < n) local_deal(&p->layout[k], rank, whole[k], salt + (unsigned)k, mine[k]);
        }
        local_deal(&gradient, rank, pull, salt + 77, pulled);
        local_run(p, extent, mine, out[rank], pulled, made);
        for (k = 0; k < n; k++) memcpy(slopes[k][rank], made[k], sizeof made[k]);
    }
    if (!local_says(&p->layout[n], out, whole[n])) return 0;
    for (k = 0; k < n; k++) {
        gradient = p->layout[k];
        CHECK_OK(mesh_spec_gradient(&gradient.spec, &p->layout[k].spec, &err), err);
        if (!local_says(&gradient, slopes[k], slope[k])) return 0;
    }
    return 1;
}

/* Letters for operands and a result; sizes. */
static void local_draw_letters(local_problem *p, test_random *r, int even) {
    static const char lower[] = "abcd", upper[] = "ABCD";
    char used[8] = "";
    int nletters = 1 + random_below(r, LOCAL_LETTERS), k, d, i;
    char pool[8] = "";
    for (i = 0; i < nletters; i++) {
        pool[i] = random_below(r, 4) ? lower[i] : upper[i];
        p->extent[(int)pool[i]] = even                  ? p->m.size * (1 + random_below(r, 2))
                                  : random_below(r, 12) ? 1 + random_below(r, 4)
                                                        : 0;
    }
    for (k = 0; k < p->n; k++) {
        for (d = 0, i = 0; i < nletters; i++)
            if (random_below(r, 3)) p->letter[k][d++] = pool[i];
        p->letter[k][d] = 0;
        for (i = d - 1; i > 0; i--) { /* shuffled */
            int j = random_below(r, i + 1);
            char c = p->letter[k][i];
            p->letter[k][i] = p->letter[k][j], p->letter[k][j] = c;
        }
        for (i = 0; i < d; i++)
            if (!strchr(used, p->letter[k][i])) strncat(used, &p->letter[k][i], 1);
    }
    for (d = 0, i = (int)strlen(used) - 1; i >= 0; i--)
        if ((p->kind != MESH_LOCAL_EINSUM && !mesh__is_upper(used[i])) || random_below(r, 3))
            p->letter[p->n][d++] = used[i];
    p->letter[p->n][d] = 0;
}

/* Places along one axis: by the rules (returns 1), or by chance. */
static int local_draw_axis(local_problem *p, test_random *r, int axis) {
    int way = random_below(r, 6), k, d, chosen = random_below(r, p->n);
    char c = 0;
    if (way == 3 && p->letter[chosen][0]) c = p->letter[chosen][random_below(r, (int)strlen(p->letter[chosen]))];
    if (c && mesh__is_upper(c)) c = 0;
    for (k = 0; k < p->n; k++) {
        mesh_place *place = &p->layout[k].spec.axis[axis];
        *place = way == 1 ? mesh_invariant() : mesh_replicate();
        if (way == 2 && p->kind == MESH_LOCAL_EINSUM && k == chosen) *place = mesh_partial(MESH_SUM);
        if (way == 2 && p->kind == MESH_LOCAL_LINEAR) *place = mesh_partial(MESH_SUM);
        for (d = 0; c && p->letter[k][d]; d++)
            if (p->letter[k][d] == c) *place = mesh_shard(d);
        if (way < 5) continue;
        d = random_below(r, 4);
        if (d == 1) *place = mesh_invariant();
        if (d == 2) *place = mesh_partial(MESH_SUM);
        if (d == 3 && p->letter[k][0]) *place = mesh_shard(random_below(r, (int)strlen(p->letter[k])));
    }
    return way < 5;
}

/* The layouts of a problem; 1 if each axis was drawn by the rules. */
static int local_draw(local_problem *p, test_random *r, const char *const *meshes, int nmeshes, int even) {
    int i, k, d, lawful = 1, rule = even ? 0 : random_below(r, 4) == 0;
    mesh_error err;
    memset(p, 0, sizeof *p);
    CHECK_OK(mesh_parse(&p->m, meshes[random_below(r, nmeshes)], 0, &err), err);
    p->kind = (mesh_local_kind)random_below(r, 3);
    p->n = 1 + random_below(r, LOCAL_OPERANDS);
    local_draw_letters(p, r, even);
    for (i = 0; i < p->m.naxes; i++) lawful &= local_draw_axis(p, r, i);
    for (k = 0; k < p->n; k++) {
        mesh_layout *l = &p->layout[k];
        mesh_place places[MESH_MAX_AXES];
        memcpy(places, l->spec.axis, sizeof places);
        l->on = &p->m;
        l->ndim = (int)strlen(p->letter[k]);
        for (d = 0; d < l->ndim; d++) l->shape[d] = p->extent[(int)p->letter[k][d]];
        CHECK_OK(mesh_spec_make(&l->spec, &p->m, places, l->ndim, &err), err);
        l->spec.rule = (uint8_t)rule;
    }
    return lawful;
}

static void local_letters(const local_problem *p, char *text) {
    int k;
    for (*text = 0, k = 0; k < p->n; k++) strcat(strcat(text, k ? " , " : ""), p->letter[k]);
    strcat(strcat(text, "->"), p->letter[p->n]);
}

static void local_show(const local_problem *p, const char *letters) {
    int k;
    fprintf(stderr, "    kind %d, %s on %s:", (int)p->kind, letters, mesh__show(&p->m).text);
    for (k = 0; k <= p->n; k++) {
        char spec[100];
        mesh_spec_format(&p->layout[k].spec, &p->m, spec, sizeof spec);
        fprintf(stderr, " %s", spec);
    }
    fprintf(stderr, "\n");
}

static void test_local_law(void) {
    static const char *const meshes[] = {"x=2", "x=3", "x=4", "x=2,y=2", "x=3,y=2", "x=2,y=2,z=2", "x=1,y=3"};
    test_random r = random_from(1501);
    int i, accepted = 0, shapes[3] = {0}, partial = 0;
    for (i = 0; i < (test_long ? 400000 : 60000) && !test_failures; i++) {
        local_problem p;
        const mesh_layout *list[LOCAL_OPERANDS] = {&p.layout[0], &p.layout[1], &p.layout[2]};
        char letters[64];
        mesh_error err;
        int lawful = local_draw(&p, &r, meshes, 7, 0);
        local_letters(&p, letters);
        if (mesh_layout_local(&p.layout[p.n], p.kind, letters, list, p.n, &err) != MESH_OK) {
            if (lawful)
                test_fail(__FILE__, __LINE__, "by the rules, and refused: %s", err.text), local_show(&p, letters);
            continue;
        }
        accepted++;
        shapes[p.kind]++;
        partial += mesh__layout_op(&p.layout[p.n]) >= 0;
        if (!local_right(&p, (unsigned)i))
            test_fail(__FILE__, __LINE__, "accepted, and wrong"), local_show(&p, letters);
    }
    CHECK(accepted > 15000 && shapes[0] > 3000 && shapes[1] > 3000 && shapes[2] > 3000 && partial > 1500);
}

/* Along one axis nothing is refused that some layout of the result would make right. */
static void test_local_refused(void) {
    static const char *const meshes[] = {"x=2", "x=3"};
    test_random r = random_from(1502);
    int i, refused = 0;
    for (i = 0; i < (test_long ? 100000 : 8000) && !test_failures; i++) {
        local_problem p;
        const mesh_layout *list[LOCAL_OPERANDS] = {&p.layout[0], &p.layout[1], &p.layout[2]};
        mesh_layout *made = &p.layout[0];
        char letters[64];
        mesh_error err;
        int way, d, lawful = local_draw(&p, &r, meshes, 2, 1), big = 0;
        for (d = 0; d <= p.n; d++) big |= local_elems(p.letter[d], p.extent) > LOCAL_ELEMS;
        if (lawful || big) continue;
        local_letters(&p, letters);
        made = &p.layout[p.n];
        if (mesh_layout_local(made, p.kind, letters, list, p.n, &err) == MESH_OK) continue;
        refused++;
        memset(made, 0, sizeof *made);
        made->on = &p.m;
        made->ndim = (int)strlen(p.letter[p.n]);
        for (d = 0; d < made->ndim; d++) made->shape[d] = p.extent[(int)p.letter[p.n][d]];
        for (way = 0; way < 3 + made->ndim; way++) {
            mesh_place place = way == 0   ? mesh_replicate()
                               : way == 1 ? mesh_invariant()
                               : way == 2 ? mesh_partial(MESH_SUM)
                                          : mesh_shard(way - 3);
            CHECK_OK(mesh_spec_make(&made->spec, &p.m, &place, made->ndim, &err), err);
            if (local_right(&p, (unsigned)i) && local_right(&p, (unsigned)i + 1000000u)) {
                mesh_layout_local(made, p.kind, letters, list, p.n, &err);
                test_fail(__FILE__, __LINE__, "refused, and way %d is right: %s", way, err.text),
                    local_show(&p, letters);
            }
        }
    }
    CHECK(refused > 300);
}

static void local_error(const char *mesh_text, int kind, const char *letters, const char *specs,
                        const char *const *has) {
    static const int64_t shape[MESH_MAX_DIMS] = {12, 12, 12, 12, 12, 12, 12, 12};
    mesh_layout l[MESH_MAX_OPERANDS], made;
    const mesh_layout *list[MESH_MAX_OPERANDS];
    mesh m;
    mesh_error err, own;
    int n = 0, ndim;
    const char *p = letters;
    CHECK_OK(mesh_parse(&m, mesh_text, 0, &err), err);
    for (;;) {
        char spec[100];
        size_t length = strcspn(specs, "|");
        snprintf(spec, sizeof spec, "%.*s", (int)length, specs);
        for (ndim = 0; (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z'); p++) ndim++;
        if (*p == ',') p++;
        CHECK_OK(mesh_layout_parse(&l[n], &m, spec, ndim, shape, &own), own);
        list[n] = &l[n], n++;
        if (!specs[length]) break;
        specs += length + 1;
    }
    memset(&made, 77, sizeof made);
    CHECK_INT(mesh_layout_local(&made, (mesh_local_kind)kind, letters, list, n, &err), MESH_ERR_ARGUMENT);
    CHECK(made.ndim == 77 * 0x01010101); /* nothing is half made */
    for (; *has; has++) CHECK_HAS(err.text, *has);
}

/* What is refused says where, between whom, and what to redistribute. */
static void test_local_errors(void) {
    static const struct {
        const char *mesh_text;
        int kind;
        const char *letters, *specs, *has[4];
    } cases[] = {
        {"dp=2,tp=2",
         0,
         "ik,kj->ij",
         "tp:I|tp:S(1)",
         {"axis \"tp\"", "operand 0 (\"ik\") is I", "operand 1 (\"kj\") is S(1)", "redistribute it to R"}},
        {"tp=2",
         0,
         "ik,kj->ij",
         "tp:P(sum)|tp:P(sum)",
         {"operand 0 (\"ik\") is P(sum)", "operand 1 (\"kj\") is P(sum)", "one of them to R", "tp"}},
        {"tp=2",
         0,
         "ik,kj->ij",
         "tp:P(sum)|tp:S(1)",
         {"operand 0 (\"ik\") is P(sum)", "operand 1 (\"kj\") is S(1)", "redistribute the partial one", "tp"}},
        {"tp=2", 0, "ik,kj->ij", "tp:P(max)|", {"is P(max)", "only sums", "reduce it first", "tp"}},
        {"tp=2", 2, "ij->ij", "tp:P(sum)", {"is P(sum)", "not linear", "reduce it before", "tp"}},
        {"tp=2",
         1,
         "ij,j->ij",
         "tp:P(sum)|",
         {"operand 0 (\"ij\") is P(sum)", "operand 1 (\"j\") is R", "to P(sum), which moves nothing", "tp"}},
        {"tp=2", 1, "ij,ij->ij", "tp:P(sum)|tp:S(0)", {"is P(sum)", "is S(0)", "reduce_scatter", "tp"}},
        {"tp=2",
         0,
         "i,j->ij",
         "tp:S(0)|tp:S(0)",
         {"operand 0 (\"i\") is S(0)", "operand 1 (\"j\") is S(0)", "two letters", "tp"}},
        {"tp=2",
         0,
         "ik,kj->ij",
         "tp:S(1)|",
         {"operand 0 (\"ik\") is S(1)", "operand 1 (\"kj\") is R", "which moves nothing", "tp"}},
        {"tp=2", 2, "iJ->iJ", "tp:S(1)", {"operand 0 (\"iJ\") is S(1)", "mixes along that letter", "to R", "tp"}},
        {"a=2,b=3",
         1,
         "i,i->i",
         "a:S(0) b:S(0)|a:S(0)@1 b:S(0)@0",
         {"in another order", "operand 0", "operand 1", "axis"}},
        {"tp=2",
         1,
         "i,i->i",
         "tp:S(0)|tp:S(0) balanced",
         {"operand 0 is chunked", "operand 1 balanced", "redistribute one", "size"}},
        {"tp=2", 0, "ii->i", "|", {"stands twice", "\"i\"", "", ""}},
        {"tp=2", 0, "iJ,jk->ik", "|", {"both cases", "", "", ""}},
        {"tp=2", 0, "ij->ik", "", {"in no operand", "\"k\"", "", ""}},
        {"tp=2", 1, "ij->i", "", {"write it in upper case", "\"j\"", "", ""}},
        {"tp=2", 0, "ij,jk", "|", {"\"->\"", "", "", ""}},
        {"tp=2", 0, "ij->j->i", "", {"\"->\"", "", "", ""}},
        {"tp=2", 0, "i1->i", "", {"one letter", "\"1\"", "", ""}},
    };
    size_t i;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *has[5] = {cases[i].has[0], cases[i].has[1], cases[i].has[2], cases[i].has[3], NULL};
        int failed = test_failures;
        local_error(cases[i].mesh_text, cases[i].kind, cases[i].letters, cases[i].specs, has);
        if (test_failures != failed) test_fail(__FILE__, __LINE__, "case %d: %s", (int)i, cases[i].letters);
    }
}

/* A place of its own in texts, in layouts, in plans. */
static void test_invariant(void) {
    static const char *const texts[] = {"dp:I tp:S(1)", "dp:I tp:I", "dp:R tp:I", "dp:P(sum) tp:I"},
                             *const dims[] = {"[*] [tp] I over dp", "[*] [*] I over dp,tp", "[*] [*] I over tp",
                                              "[*] [*] P(sum) over dp I over tp"};
    static const int64_t shape[2] = {6, 5};
    mesh m;
    mesh_error err;
    char text[100];
    size_t i;
    mesh_layout a, b;
    mesh_plan plan;
    mesh_plan_desc d = MESH_ZERO;
    mesh_tensor t, g;
    CHECK_OK(mesh_parse(&m, "dp=2,tp=3", 6, &err), err);
    for (i = 0; i < 4; i++) {
        mesh_spec s, again;
        CHECK_OK(mesh_spec_parse(&s, &m, texts[i], 2, &err), err);
        mesh_spec_format(&s, &m, text, sizeof text);
        CHECK_STR(text, texts[i]);
        mesh_spec_format_dims(&s, &m, 2, text, sizeof text);
        CHECK_STR(text, dims[i]);
        CHECK_OK(mesh_spec_parse_dims(&again, &m, dims[i], 2, &err), err);
        CHECK(mesh_spec_equal(&s, &again));
    }
    CHECK_OK(mesh_layout_parse(&a, &m, "dp:I tp:S(1)", 2, shape, &err), err);
    CHECK_OK(mesh_layout_parse(&b, &m, "dp:R tp:S(1)", 2, shape, &err), err);
    CHECK(!mesh_spec_equal(&a.spec, &b.spec));
    CHECK(mesh_layout_equal(&a, &b)); /* the same data on the same ranks */
    CHECK_INT(mesh_layout_holders(&a), 2);
    d.src = &a, d.dst = &b;
    CHECK_OK(mesh_plan_make(&plan, &d, &err), err);
    CHECK_STR(mesh_step_name(&plan, 0), "copy");
    CHECK_INT(mesh_plan_measure(&plan), 0);
    CHECK_OK(mesh_layout_set(&b, "dp", mesh_partial(MESH_SUM), &err), err);
    d.src = &b, d.dst = &a;
    CHECK_OK(mesh_plan_make(&plan, &d, &err), err);
    CHECK_STR(mesh_step_name(&plan, 0), "all_reduce");
    CHECK_INT(mesh_spec_parse(&a.spec, &m, "dp:I(0)", 2, &err), MESH_ERR_ARGUMENT);
    CHECK_OK(mesh_tensor_make(&t, &m, "dp:R tp:S(0)", MESH_BF16, 2, shape, &err), err);
    t.strides = shape, t.local_shape = shape, t.data = text;
    CHECK_OK(mesh_gradient_of(&g, &t, MESH_F32, &m, &err), err);
    mesh_spec_format(&g.layout.spec, &m, text, sizeof text);
    CHECK_STR(text, "dp:P(sum) tp:S(0)");
    CHECK(g.dtype == MESH_F32 && g.data == &m && !g.strides && !g.local_shape && g.layout.shape[1] == 5);
    CHECK_INT(mesh_gradient_of(&g, &t, MESH_BYTES, &m, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_gradient_of: dtype");
}

static const test_case local_tests[] = {
    {"local/invariant", test_invariant, 0},      {"local/golden", test_local_golden, 0},
    {"local/gradient", test_gradient_golden, 0}, {"local/law", test_local_law, 60},
    {"local/refused", test_local_refused, 60},   {"local/errors", test_local_errors, 0},
};

#endif
