/* mesh/spec.h: laws over every spec of small meshes, FACTS of the field, what PyTorch and JAX compute (tests/golden), every error. */

#include "layouts.h"

static int64_t list64(const char *text, int64_t *out, int cap) {
    int n = 0;
    while (*text && n < cap) {
        char *end;
        out[n++] = strtoll(text, &end, 10);
        text = *end ? end + 1 : end;
    }
    return n;
}

/* "2;3" as the mesh dim0=2,dim1=3. */
static void mesh_of_list(mesh *m, const char *sizes) {
    mesh_desc d = MESH_ZERO;
    mesh_error err;
    int shape[MESH_MAX_AXES];
    d.naxes = int_list(sizes, shape, MESH_MAX_AXES);
    d.shape = shape;
    CHECK_OK(mesh_make(m, &d, &err), err);
}

/* "S(0);R;P": a place per axis. */
static void places_of_list(mesh_place *place, const char *text) {
    for (; *text; text += strcspn(text, ";"), text += *text == ';')
        *place++ = *text == 'S' ? mesh_shard(atoi(text + 2)) : *text == 'P' ? mesh_partial(MESH_SUM) : mesh_replicate();
}

/* Every spec of a mesh for tensors of ndim dims without partial axes (with = 0), or with partial sums (1), every explicit order included.
   Calls see(spec). Returns how many. */
static int every_spec(const mesh *m, int ndim, int partial, void (*see)(const mesh_spec *, void *), void *ctx) {
    int kinds = 1 + ndim + partial, total = 1, code, i, n = 0;
    for (i = 0; i < m->naxes; i++) total *= kinds;
    for (code = 0; code < total; code++) {
        mesh_place place[MESH_MAX_AXES];
        mesh_spec s;
        int rest = code, count[MESH_MAX_DIMS] = {0}, orders = 1, o, k;
        for (i = 0; i < m->naxes; i++, rest /= kinds) {
            int kind = rest % kinds;
            place[i] = kind == 0 ? mesh_replicate() : kind <= ndim ? mesh_shard(kind - 1) : mesh_partial(MESH_SUM);
            if (place[i].kind == MESH_SHARD) count[place[i].dim]++;
        }
        for (i = 0; i < ndim; i++)
            for (k = 2; k <= count[i]; k++) orders *= k;
        for (o = 0; o < orders; o++) { /* o in factorial base says the orders */
            int rest_of = o, d;
            for (d = 0; d < ndim; d++) {
                int left[MESH_MAX_AXES], nleft = count[d];
                for (i = 0; i < nleft; i++) left[i] = i;
                for (i = 0; i < m->naxes; i++) {
                    int pick;
                    if (place[i].kind != MESH_SHARD || place[i].dim != d) continue;
                    pick = rest_of % nleft;
                    rest_of /= nleft;
                    place[i].order = (uint8_t)left[pick];
                    for (nleft--; pick < nleft; pick++) left[pick] = left[pick + 1];
                }
            }
            CHECK_INT(mesh_spec_make(&s, m, place, ndim, NULL), 0);
            see(&s, ctx);
            n++;
        }
    }
    return n;
}

/* ---- goldens ---- */

static void test_golden_shard_box(void) {
    golden_file *g = golden_start("shard_box.csv");
    int rows = 0;
    if (!g) return;
    for (; golden_next(g); rows++) {
        mesh m;
        mesh_spec s;
        mesh_box box;
        mesh_place place[MESH_MAX_AXES];
        int64_t shape[8], local[8], offset[8];
        int ndim = (int)list64(g->field[1], shape, 8), d;
        mesh_of_list(&m, g->field[0]);
        places_of_list(place, g->field[2]);
        CHECK_INT(mesh_spec_make(&s, &m, place, ndim, NULL), 0);
        list64(g->field[4], local, 8);
        list64(g->field[5], offset, 8);
        CHECK_INT(spec_box(&s, &m, ndim, shape, atoi(g->field[3]), &box), 1);
        for (d = 0; d < ndim; d++)
            if (box.shape[d] != local[d] || box.offset[d] != offset[d])
                test_fail(__FILE__, __LINE__, "line %d, dim %d: %lld at %lld, expected %lld at %lld", g->line, d,
                          (long long)box.shape[d], (long long)box.offset[d], (long long)local[d], (long long)offset[d]);
    }
    CHECK_INT(rows, 1517);
    golden_end(g);
}

static void test_golden_shard_order(void) {
    golden_file *g = golden_start("shard_order.csv");
    int rows = 0;
    if (!g) return;
    for (; golden_next(g); rows++) {
        mesh m;
        mesh_spec s;
        mesh_box box;
        mesh_error err;
        char sizes[80], names[64], axes[64], text[128], want[64], got[64];
        int64_t shape = strtoll(g->field[2], NULL, 10);
        int shapes[8], n = int_list(g->field[0], shapes, 8), i;
        char *name;
        strcpy(names, g->field[1]);
        text[0] = 0;
        for (i = 0, name = strtok(names, ";"); i < n; i++, name = strtok(NULL, ";"))
            sprintf(text + strlen(text), "%s%s=%d", i ? "," : "", name, shapes[i]);
        CHECK_OK(mesh_parse(&m, text, 0, &err), err);
        commas(axes, g->field[3], sizeof axes);
        snprintf(sizes, sizeof sizes, "[%s]", axes);
        CHECK_OK(mesh_spec_parse_dims(&s, &m, sizes, 1, &err), err);
        CHECK_INT(spec_box(&s, &m, 1, &shape, atoi(g->field[4]), &box), 1);
        strcpy(want, g->field[5]);
        if (box.shape[0])
            sprintf(got, "%lld-%lld", (long long)box.offset[0], (long long)(box.offset[0] + box.shape[0] - 1));
        else
            strcpy(got, "-");
        CHECK_STR(got, want);
    }
    CHECK(rows > 1400);
    golden_end(g);
}

/* "P(cp;(tp|dp);None)" as "[cp] [tp,dp] [*]". Returns 0 for what is none. */
static int dims_of_jax(char *to, const char *spec) {
    const char *p = spec + 2;
    *to = 0;
    while (*p && *p != ')') {
        size_t n = *p == '(' ? strcspn(p, ")") + 1 : strcspn(p, ";)");
        if (!strncmp(p, "None", 4)) {
            strcat(to, "[*] ");
        } else {
            size_t i;
            char *end = to + strlen(to);
            *end++ = '[';
            for (i = *p == '('; i < n - (*p == '('); i++) *end++ = p[i] == '|' ? ',' : p[i];
            *end = 0;
            strcat(to, "] ");
        }
        p += n + (p[n] == ';');
    }
    if (*to) to[strlen(to) - 1] = 0;
    return 1;
}

static void test_golden_jax(void) {
    golden_file *g = golden_start("jax_sharding.csv");
    int rows = 0;
    if (!g) return;
    for (; golden_next(g); rows++) {
        mesh m;
        mesh_spec s;
        mesh_box box;
        mesh_error err;
        char text[128], dims[128], back[128];
        int64_t shape[8];
        int ndim = (int)list64(g->field[3], shape, 8), table[64], inverse[64], ntable, d;
        mesh_table devices;
        const char *p = g->field[5];
        commas(text, g->field[0], sizeof text);
        CHECK_OK(mesh_parse(&m, text, 0, &err), err);
        if (strcmp(g->field[1], "-")) { /* device ids by position */
            mesh_desc desc = MESH_ZERO;
            const char *names[MESH_MAX_AXES];
            int sizes[MESH_MAX_AXES], i;
            mesh dense = m;
            ntable = int_list(g->field[1], table, 64);
            for (i = 0; i < dense.naxes; i++) names[i] = dense.axis[i].name, sizes[i] = dense.axis[i].size;
            desc.shape = sizes, desc.names = names, desc.naxes = dense.naxes;
            desc.table = &devices;
            CHECK_OK(mesh_table_make(&devices, table, ntable, inverse, 64, &err), err);
            CHECK_OK(mesh_make(&m, &desc, &err), err);
        }
        dims_of_jax(dims, g->field[2]);
        CHECK_OK(mesh_spec_parse_dims(&s, &m, dims, ndim, &err), err);
        CHECK(mesh_spec_format_dims(&s, &m, ndim, back, sizeof back) >= strlen(dims));
        CHECK(!strncmp(back, dims, strlen(dims)));
        s.strict = 1; /* JAX refuses uneven sizes */
        CHECK_OK(spec_check(&s, &m, ndim, shape, &err), err);
        CHECK_INT(spec_box(&s, &m, ndim, shape, atoi(g->field[4]), &box), 1);
        for (d = 0; d < ndim; d++) {
            int64_t from = strtoll(p, (char **)&p, 10), to = strtoll(p + 1, (char **)&p, 10);
            p += *p == ';';
            if (box.offset[d] != from || box.shape[d] != to - from)
                test_fail(__FILE__, __LINE__, "line %d, dim %d: %lld at %lld, expected %lld:%lld", g->line, d,
                          (long long)box.shape[d], (long long)box.offset[d], (long long)from, (long long)to);
        }
        {
            int replicated = 1;
            for (d = 0; d < ndim; d++) replicated &= box.shape[d] == shape[d];
            mesh_layout on = layout_of(&m, &s, ndim, shape);
            if (mesh_layout_holders(&on) == m.size) CHECK(replicated);
        }
    }
    CHECK(rows > 500);
    golden_end(g);
    if ((g = golden_start("jax_sharding_errors.csv")) == NULL) return;
    for (rows = 0; golden_next(g); rows++) {
        mesh m;
        mesh_spec s;
        mesh_error err;
        int64_t shape[8];
        int ndim = (int)list64(g->field[2], shape, 8), refused;
        char dims[128];
        CHECK_OK(mesh_parse(&m, "dp=4,tp=2", 0, &err), err);
        dims_of_jax(dims, g->field[1]);
        refused = mesh_spec_parse_dims(&s, &m, dims, ndim, &err) != MESH_OK;
        if (!refused) {
            s.strict = 1;
            refused = spec_check(&s, &m, ndim, shape, &err) != MESH_OK;
        }
        if (refused != (strcmp(g->field[3], "none") != 0))
            test_fail(__FILE__, __LINE__, "line %d: %s of %s is %s", g->line, g->field[1], g->field[2],
                      refused ? err.text : "accepted");
    }
    CHECK(rows >= 9);
    golden_end(g);
}

/* ---- laws ---- */

typedef struct spec_laws {
    const mesh *m;
    int ndim;
    const int64_t *shape;
    int rule;
} spec_laws;

/* The shards of every spec partition the tensor; pieces, owners, slices and pastes agree with the boxes; text comes back. */
static void see_laws(const mesh_spec *given, void *ctx) {
    const spec_laws *l = (const spec_laws *)ctx;
    mesh_spec spec = *given, back;
    mesh_layout on;
    char text[256];
    mesh_error err;
    static unsigned char global[4096], again[4096], local[4096], held[4096][64];
    int64_t total = 1, e;
    int r, d, holders;
    spec.rule = (uint8_t)l->rule;
    for (d = 0; d < l->ndim; d++) total *= l->shape[d];
    CHECK(total <= 4096 && l->m->size <= 64);
    memset(held, 0, sizeof held);
    memset(again, 0xee, sizeof again);
    for (e = 0; e < total; e++) global[e] = (unsigned char)(e * 7 + 1);
    CHECK_OK(spec_check(&spec, l->m, l->ndim, l->shape, &err), err);
    for (d = 0; d < 2; d++) {
        spec.strict = (uint8_t)d;
        mesh_spec_format(&spec, l->m, text, sizeof text);
        CHECK_OK(mesh_spec_parse(&back, l->m, text, l->ndim, &err), err);
        CHECK(mesh_spec_equal(&back, &spec));
        mesh_spec_format_dims(&spec, l->m, l->ndim, text, sizeof text);
        CHECK_OK(mesh_spec_parse_dims(&back, l->m, text, l->ndim, &err), err);
        CHECK(mesh_spec_equal(&back, &spec));
    }
    spec.strict = 0;
    on = layout_of(l->m, &spec, l->ndim, l->shape);
    for (r = 0; r < l->m->size; r++) {
        mesh_box box;
        int64_t at[MESH_MAX_DIMS], k, n;
        n = mesh_layout_box(&on, r, &box);
        CHECK_INT(n, mesh_box_count(&box));
        CHECK_INT(mesh_layout_slice(&on, r, local, global, 1), n);
        CHECK_INT(mesh_layout_paste(&on, r, again, local, 1), n);
        for (k = 0; k < n; k++) {
            int64_t rest = k, linear = 0;
            for (d = l->ndim - 1; d >= 0; d--) at[d] = rest % box.shape[d] + box.offset[d], rest /= box.shape[d];
            for (d = 0; d < l->ndim; d++) linear = linear * l->shape[d] + at[d];
            held[linear][r] = 1;
            if (local[k] != global[linear])
                test_fail(__FILE__, __LINE__, "%s rank %d: slice differs at %lld", text, r, (long long)k);
        }
    }
    CHECK(total == 0 || !memcmp(global, again, (size_t)total));
    holders = mesh_layout_holders(&on);
    for (e = 0; e < total; e++) {
        int64_t at[MESH_MAX_DIMS], rest = e;
        int found = 0;
        for (d = l->ndim - 1; d >= 0; d--) at[d] = rest % l->shape[d], rest /= l->shape[d];
        for (r = 0; r < l->m->size; r++)
            if (held[e][r]) CHECK_INT(mesh_layout_owner(&on, at, found++), r);
        CHECK_INT(found, holders);
        CHECK_INT(mesh_layout_owner(&on, at, found), -1);
    }
    for (r = 0; r < l->m->size; r += 1 + l->m->size / 3) { /* the pieces of a rank's box under the mirrored spec */
        mesh_box box;
        mesh_pieces p;
        int64_t covered = 0;
        mesh_layout_box(&on, r, &box);
        for (d = 0; d < l->ndim; d++) /* some other box */
            if (box.shape[d] > 1) box.offset[d] = l->shape[d] - box.shape[d] - (d & 1 && box.offset[d] > 0);
        for (mesh_pieces_start(&p, &on, &box); mesh_pieces_next(&p);) {
            mesh_box of, both;
            CHECK(mesh_layout_box(&on, p.rank, &of) > 0);
            CHECK_INT(mesh_box_intersect(&both, &of, &box), 1);
            CHECK(!memcmp(both.offset, p.piece.offset, sizeof both.offset[0] * (size_t)l->ndim));
            CHECK(!memcmp(both.shape, p.piece.shape, sizeof both.shape[0] * (size_t)l->ndim));
            covered += mesh_box_count(&p.piece);
        }
        CHECK_INT(covered, mesh_box_count(&box));
    }
}

static void test_spec_laws(void) {
    static const char *const meshes[] = {"a=1", "a=2,b=2", "a=4,b=2", "a=3,b=2", "a=2,b=2,c=2"};
    static const int64_t shapes[][4] = {{8, 4, 2, 2}, {7, 5, 3, 1}, {13, 2, 1, 3}, {1, 3, 2, 2}, {0, 4, 2, 1}};
    mesh_error err;
    int k, ndim, seen = 0;
    size_t t;
    for (k = 0; k < 5; k++)
        for (ndim = 0; ndim <= 4; ndim++)
            for (t = 0; t < sizeof shapes / sizeof shapes[0]; t++) {
                mesh m;
                spec_laws l;
                if (k == 4 && ndim == 4 && t > 1) continue;
                CHECK_OK(mesh_parse(&m, meshes[k], 0, &err), err);
                l.m = &m;
                l.ndim = ndim;
                l.shape = shapes[t];
                l.rule = (int)(t & 1);
                seen += every_spec(&m, ndim, ndim < 3, see_laws, &l);
                if (test_failures) return;
            }
    CHECK_INT(seen, 2896);
}

static void check_runs(const char *mesh_text, const char *spec_text, int64_t n, const char *want) {
    mesh m;
    mesh_spec s;
    mesh_error err;
    char got[512] = "";
    int r;
    CHECK_OK(mesh_parse(&m, mesh_text, 0, &err), err);
    CHECK_OK(mesh_spec_parse(&s, &m, spec_text, 1, &err), err);
    for (r = 0; r < m.size; r++) {
        mesh_box box;
        spec_box(&s, &m, 1, &n, r, &box);
        sprintf(got + strlen(got), "%s%lld+%lld", r ? " " : "", (long long)box.offset[0], (long long)box.shape[0]);
    }
    CHECK_STR(got, want);
}

/* FACTS.md section 3. */
static void test_spec_facts(void) {
    int64_t seventeen = 17;
    mesh m;
    mesh_spec s;
    mesh_box box;
    int n, a, b, differ = 0, cases = 0, r;
    check_runs("dp=4,tp=2", "dp:S(0) tp:S(0)", 18, "0+3 3+2 5+3 8+2 10+3 13+2 15+2 17+1");
    check_runs("dp=4,tp=2", "dp:S(0) tp:S(0)", 13, "0+2 2+2 4+2 6+2 8+2 10+2 12+1 13+0");
    check_runs("dp=3,tp=2", "dp:S(0) tp:S(0)", 7, "0+2 2+1 3+2 5+1 6+1 7+0");
    check_runs("a=2,b=2", "a:S(0)@1 b:S(0)@0", 8, "0+2 4+2 2+2 6+2");
    check_runs("dp=4,tp=2", "dp:S(0)@1 tp:S(0)@0", 15, "0+2 8+2 2+2 10+2 4+2 12+2 6+2 14+1");
    for (n = 1; n <= 32; n++)
        for (a = 2; a <= 4; a++)
            for (b = 2; b <= 4; b++, cases++) { /* nested chunks beside one flat chunk */
                int shape[2], flat[1], same = 1;
                int64_t size = n;
                mesh flat_mesh;
                mesh_spec flat_spec;
                mesh_place place[2];
                mesh_desc d = MESH_ZERO;
                shape[0] = a, shape[1] = b, flat[0] = a * b;
                d.shape = shape, d.naxes = 2;
                mesh_make(&m, &d, NULL);
                d.shape = flat, d.naxes = 1;
                mesh_make(&flat_mesh, &d, NULL);
                place[0] = place[1] = mesh_shard(0);
                mesh_spec_make(&s, &m, place, 1, NULL);
                mesh_spec_make(&flat_spec, &flat_mesh, place, 1, NULL);
                for (r = 0; r < a * b; r++) {
                    mesh_box nested;
                    spec_box(&s, &m, 1, &size, r, &nested);
                    spec_box(&flat_spec, &flat_mesh, 1, &size, r, &box);
                    same &= nested.offset[0] == box.offset[0] && nested.shape[0] == box.shape[0];
                }
                differ += !same;
            }
    CHECK_INT(cases, 288);
    CHECK_INT(differ, 193);
    mesh_parse(&m, "a=4", 0, NULL);
    mesh_spec_parse(&s, &m, "a:S(0)", 1, NULL);
    for (r = 0; r < 4; r++) {
        spec_box(&s, &m, 1, &seventeen, r, &box);
        CHECK_INT(box.shape[0], r < 3 ? 5 : 2);
        s.rule = MESH_RULE_BALANCED;
        spec_box(&s, &m, 1, &seventeen, r, &box);
        CHECK_INT(box.shape[0], r < 1 ? 5 : 4);
        s.rule = MESH_RULE_CHUNK;
    }
}

/* Strided copies between boxes: element sizes that are no powers of two, and dims that are one run. */
static void test_spec_copy(void) {
    test_random random = random_from(5);
    int trial;
    for (trial = 0; trial < 400; trial++) {
        static unsigned char src[60000], dst[60000], want[60000];
        int ndim = random_below(&random, 5), d;
        size_t elem = (size_t)(1 + random_below(&random, 17));
        mesh_box a, b, both;
        int64_t na, nb, k;
        a.ndim = b.ndim = ndim;
        for (d = 0; d < ndim; d++) {
            a.offset[d] = random_below(&random, 3), b.offset[d] = random_below(&random, 3);
            a.shape[d] = 1 + random_below(&random, 6), b.shape[d] = 1 + random_below(&random, 6);
            if (random_below(&random, 2)) b.offset[d] = a.offset[d], b.shape[d] = a.shape[d];
        }
        na = mesh_box_count(&a);
        nb = mesh_box_count(&b);
        for (k = 0; k < na * (int64_t)elem; k++) src[k] = (unsigned char)random_below(&random, 256);
        memset(dst, 0xaa, sizeof dst);
        memset(want, 0xaa, sizeof want);
        if (mesh_box_intersect(&both, &a, &b))
            for (k = 0; k < nb; k++) {
                int64_t rest = k, from = 0, at[5];
                int inside = 1;
                for (d = ndim - 1; d >= 0; d--) at[d] = rest % b.shape[d] + b.offset[d], rest /= b.shape[d];
                for (d = 0; d < ndim; d++) {
                    inside &= at[d] >= a.offset[d] && at[d] < a.offset[d] + a.shape[d];
                    from = from * a.shape[d] + at[d] - a.offset[d];
                }
                if (inside) memcpy(want + k * (int64_t)elem, src + from * (int64_t)elem, elem);
            }
        mesh_box_copy(dst, &b, src, &a, elem);
        CHECK(!memcmp(dst, want, sizeof dst));
    }
}

/* A place has a byte for each of its numbers: one that does not fit is not told as another. */
static void test_spec_outside(void) {
    mesh m;
    mesh_error err;
    mesh_spec s;
    mesh_place p[2];
    CHECK_OK(mesh_parse(&m, "dp=2,tp=2", 4, &err), err);
    p[0] = mesh_shard(40), p[1] = mesh_replicate();
    CHECK_INT(mesh_spec_make(&s, &m, p, 2, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "axis \"dp\" shards a dim outside of -8 to 7, which no tensor has");
    CHECK_INT(mesh_spec_make(&s, &m, p, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "shards a dim outside of -8 to 7");
    p[0] = mesh_shard_at(0, 300);
    CHECK_INT(mesh_spec_make(&s, &m, p, 2, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "has order 254 or more, or one below 0, on dim 0");
    p[0] = mesh_shard_at(0, 3);
    CHECK_INT(mesh_spec_make(&s, &m, p, 2, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "has order 3 on dim 0");
}

static void test_spec_errors(void) {
    static const struct {
        const char *spec, *fragment;
    } bad[] = {
        {"dp:S(2)", "shards dim 2 of a tensor of 2 dims; -2 to 1 are possible"},
        {"dp:S(-3)", "shards dim -3"},
        {"dp:S(99)", "\"dp:S(99)\": dim 99; a tensor has "},
        {"dp:S(-99)", "\"dp:S(-99)\": dim -99; a tensor has "},
        {"dp:S(999)", "expected a dim"},
        {"dp:S", "expected a dim, as in S(0)"},
        {"dp:S(0", "expected a dim"},
        {"dp:S(0)@", "expected an order"},
        {"dp:S(0)@-1", "expected an order"},
        {"dp:S(0)@-0", "expected an order"},
        {"dp:S(-0)", "expected a dim"},
        {"dp:S(-00)", "expected a dim"},
        {"dp:S(0)@1 tp:S(0)", "1 of them say their order; all (@) or none"},
        {"dp:S(0)@1 tp:S(0)@1", "orders are 0 (outermost) to 1, each once"},
        {"dp:S(0)@2 tp:S(0)@0", "has order 2 on dim 0, which 2 axes shard"},
        {"dp:P(mean)", "expected sum, avg, min"},
        {"dp:P", "expected an op, as in P(sum)"},
        {"dp:P(s)", "expected sum, avg, min"},
        {"dp:P(sumx)", "expected sum, avg, min"},
        {"dp:R balancedx", "has no axis \"balancedx\""},
        {"dp:R calanced", "has no axis \"calanced\""},
        {"dp:P(sum) tp:P(max)", "partial over sum and max; one op for all"},
        {"dp:Q", "expected a place"},
        {"dp", "expected \":\" and a place at the end"},
        {"ep:R", "has no axis \"ep\""},
        {"dp:R dp:S(0)", "axis \"dp\" occurs twice"},
        {"dp:Rtp:R", "expected a space"},
        {"dp:R, tp:R", "expected a space at \", tp:R\""},
        {"0:R", "expected the name of an axis"},
        {"averyveryverylongname:R", "has no axis \"averyveryverylongname\""},
    };
    static const struct {
        const char *dims, *fragment;
    } bad_dims[] = {
        {"[dp] [tp] [*]", "more than the 2 dims"},
        {"[dp,dp]", "occurs twice"},
        {"[dp] [dp]", "occurs twice"},
        {"[dp", "expected \"]\" at the end"},
        {"dp", "expected \"[\""},
        {"[]", "expected the name of an axis"},
        {"[xx]", "has no axis \"xx\""},
        {"[dp,]", "name of an axis"},
        {"[*,dp]", "expected \"]\""},
    };
    mesh m, other;
    mesh_spec s, untouched;
    mesh_layout on;
    mesh_error err;
    int64_t shape[2] = {13, 8}, huge[2] = {INT64_MAX, 2}, minus[2] = {4, -1}, empty[2] = {0, INT64_MAX};
    mesh_place place[2];
    size_t k;
    CHECK_OK(mesh_parse(&m, "dp=4,tp=2", 0, &err), err);
    CHECK_OK(mesh_parse(&other, "dp=8", 0, &err), err);
    CHECK_OK(mesh_spec_parse(&untouched, &m, "dp:S(1)", 2, &err), err);
    for (k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        s = untouched;
        CHECK_INT(mesh_spec_parse(&s, &m, bad[k].spec, 2, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, bad[k].fragment);
        CHECK_HAS(err.text, "mesh_spec_parse: ");
        CHECK_INT(err.rank, -1); /* no rank's fault */
        CHECK(mesh_spec_equal(&s, &untouched));
        CHECK_INT(mesh_spec_parse(&s, &m, bad[k].spec, 2, NULL), MESH_ERR_ARGUMENT);
    }
    for (k = 0; k < sizeof bad_dims / sizeof bad_dims[0]; k++) {
        CHECK_INT(mesh_spec_parse_dims(&s, &m, bad_dims[k].dims, 2, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, bad_dims[k].fragment);
    }
    CHECK_INT(mesh_spec_parse(&s, &m, NULL, 2, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_spec_parse_dims(&s, &m, NULL, 2, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the text is NULL");
    CHECK_INT(mesh_spec_parse(&s, &m, "", 9, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "a tensor of 9 dims; 0 to 8");
    place[0] = mesh_partial(MESH_MINLOC);
    place[1] = mesh_replicate();
    CHECK_INT(mesh_spec_make(&s, &m, place, 2, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "partial over minloc");
    place[0].kind = 7;
    CHECK_INT(mesh_spec_make(&s, &m, place, 2, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "unknown kind 7");
    CHECK_OK(mesh_spec_parse(&s, &m, "dp:S(0) tp:S(-1)", 2, &err), err);
    CHECK_INT(s.axis[1].dim, 1);
    CHECK_OK(spec_check(&s, &m, 2, shape, &err), err);
    CHECK_INT(spec_check(&s, &other, 2, shape, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the spec is for 2 axes, the mesh \"dp=8\" has 1");
    CHECK_INT(spec_check(&s, &m, 1, shape, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(spec_check(&s, &m, 2, huge, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "overflow");
    CHECK_OK(spec_check(&s, &m, 2, empty, &err), err);
    CHECK_INT(spec_check(&s, &m, 2, minus, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "dim 1 has size -1");
    s.strict = 1;
    CHECK_INT(spec_check(&s, &m, 2, shape, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "dim 0 has 13 elements, which its 4 shards do not divide; pad it to 16");
    s.strict = 0;
    s.axis[1].dim = -1;
    CHECK_INT(spec_check(&s, &m, 2, shape, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "was not made for tensors of 2 dims");
    s.axis[1].dim = 1;
    s.rule = 2;
    CHECK_INT(spec_check(&s, &m, 2, shape, &err), MESH_ERR_ARGUMENT);
    on = layout_of(&m, &untouched, 2, shape);
    CHECK_INT(mesh_layout_box(&on, 8, NULL), -1);
    CHECK_INT(mesh_layout_slice(&on, -1, NULL, NULL, 1), -1);
    CHECK_INT(mesh_layout_paste(&on, 8, NULL, NULL, 1), -1);
}

/* An axis may be called as a rule is; what reaches beyond the tensor is nobody's. */
static void test_spec_edges(void) {
    mesh m;
    mesh_spec s, back;
    mesh_error err;
    mesh_box box, part;
    mesh_pieces p;
    mesh_layout on;
    char text[64];
    int64_t shape[2] = {6, 5}, elements = 0;
    int n = 0;
    CHECK_OK(mesh_parse(&m, "strict=2,over=3", 0, &err), err);
    CHECK_OK(mesh_spec_parse(&s, &m, "strict:S(0) over:P(sum) strict", 2, &err), err);
    CHECK_INT(s.strict, 1);
    mesh_spec_format(&s, &m, text, sizeof text);
    CHECK_STR(text, "strict:S(0) over:P(sum) strict");
    mesh_spec_format_dims(&s, &m, 2, text, sizeof text);
    CHECK_STR(text, "[strict] [*] P(sum) over over strict");
    CHECK_OK(mesh_spec_parse_dims(&back, &m, text, 2, &err), err);
    CHECK(mesh_spec_equal(&s, &back));
    CHECK_INT(mesh_spec_parse(&s, &m, "strict balanced", 2, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "expected the end (strict is for all axes, behind them) at \"balanced\"");
    CHECK_INT(mesh_spec_parse(&s, &m, "strict:S(0) balanced over:S(1) balanced", 2, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "expected the end, or strict (balanced is for all axes, behind them) at \"over:S(1)");
    CHECK_INT(mesh_spec_parse_dims(&s, &m, "[strict] P(sum) strict", 2, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "\"over\" and axes");
    CHECK_INT(mesh_spec_parse_dims(&s, &m, "[strict] P(sum) over strict", 2, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "occurs twice");
    CHECK_OK(mesh_spec_parse(&s, &m, "strict:S(0) over:S(1)", 2, &err), err);
    memset(&box, 0, sizeof box);
    box.ndim = 2, box.offset[0] = -3, box.shape[0] = 20, box.offset[1] = 1, box.shape[1] = 100;
    on = layout_of(&m, &s, 2, shape);
    for (mesh_pieces_start(&p, &on, &box); mesh_pieces_next(&p) && n < 100; n++)
        elements += mesh_box_count(&p.piece);
    CHECK_INT(n, 6);
    CHECK_INT(elements, 24);
    box.offset[0] = 6, box.shape[0] = 1;
    mesh_pieces_start(&p, &on, &box);
    CHECK_INT(mesh_pieces_next(&p), 0);
    box.offset[0] = 1, box.shape[0] = box.shape[1] = INT64_MAX; /* all from (1, 1) on: its end is beyond 63 bits */
    for (n = 0, elements = 0, mesh_pieces_start(&p, &on, &box); mesh_pieces_next(&p) && n < 100; n++)
        elements += mesh_box_count(&p.piece);
    CHECK_INT(elements, (on.shape[0] - 1) * (on.shape[1] - 1));
    mesh_layout_box(&on, 0, &part);
    CHECK_INT(mesh_box_intersect(&part, &part, &box), 1);
    CHECK_INT(mesh_box_count(&part), (on.shape[0] / 2 - 1) * ((on.shape[1] + 2) / 3 - 1));
}

/* Texts of random bytes and of mutated specs: refused or read, never more. What is read comes back as it was written. */
static void test_spec_fuzz(void) {
    static const char alphabet[] = "dptpSRP()01-@:,[]* summaxoverbalancedstrict";
    test_random random = random_from(6);
    mesh m;
    int trial, read = 0;
    CHECK_INT(mesh_parse(&m, "dp=4,tp=2,p=3", 0, NULL), 0);
    for (trial = 0; trial < 200000; trial++) {
        char text[48] = "", out[128]; /* a terminator may be written over */
        mesh_spec s, again;
        mesh_error err;
        int n = random_below(&random, 40), i;
        strcpy(text, trial & 1   ? trial & 2 ? "dp:S(0)@1 tp:S(0)@0 p:P(sum)" : "dp:S(1) p:P(max) balanced strict"
                     : trial & 2 ? "[dp,tp] [*] [p]"
                                 : "[dp] P(sum) over tp,p balanced");
        if (random_below(&random, 8) == 0)
            for (i = 0; i < n; i++)
                text[i] = alphabet[random_below(&random, (int)sizeof alphabet - 1)], text[i + 1] = 0;
        for (i = random_below(&random, 4); i > 0; i--)
            text[random_below(&random, (int)strlen(text) + 1)] =
                alphabet[random_below(&random, (int)sizeof alphabet - 1)];
        text[47] = 0;
        if (!mesh_spec_parse(&s, &m, text, 3, &err)) {
            mesh_spec_format(&s, &m, out, sizeof out);
            CHECK_OK(mesh_spec_parse(&again, &m, out, 3, &err), err);
            CHECK(mesh_spec_equal(&s, &again));
            read++;
        }
        if (!mesh_spec_parse_dims(&s, &m, text, 3, &err)) {
            mesh_spec_format_dims(&s, &m, 3, out, sizeof out);
            CHECK_OK(mesh_spec_parse_dims(&again, &m, out, 3, &err), err);
            CHECK(mesh_spec_equal(&s, &again));
            read++;
        }
    }
    CHECK(read > 10000);
}

static const test_case spec_tests[] = {
    {"spec/golden/shard_box", test_golden_shard_box, 0},
    {"spec/golden/shard_order", test_golden_shard_order, 0},
    {"spec/golden/jax", test_golden_jax, 0},
    {"spec/laws", test_spec_laws, 0},
    {"spec/facts", test_spec_facts, 0},
    {"spec/copy", test_spec_copy, 0},
    {"spec/errors", test_spec_errors, 0}, {"spec/outside", test_spec_outside, 0},
    {"spec/edges", test_spec_edges, 0},
    {"spec/fuzz", test_spec_fuzz, 0},
};
