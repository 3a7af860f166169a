/* mesh/layout.h: layouts made, changed, compared; a spec's chunks as counts; tensors in one buffer. Boxes and slices: t_spec.h. */
#ifndef T_LAYOUT_H
#define T_LAYOUT_H

/* ---- made ---- */

static void test_layout_make(void) {
    int64_t shape[2] = {13, 8}, minus[2] = {4, -1};
    mesh m;
    mesh_layout l, before, other;
    mesh_tensor t, t_before;
    mesh_spec s;
    mesh_error err;
    int i;
    CHECK_OK(mesh_parse(&m, "dp=4,tp=2", 0, &err), err);
    CHECK_OK(mesh_layout_parse(&l, &m, "dp:S(0) tp:S(-1)", 2, shape, &err), err);
    CHECK_OK(mesh_layout_parse(&other, &m, " [ dp ] [ tp ]", 2, shape, &err), err);
    CHECK(!memcmp(&l, &other, sizeof l));
    CHECK(l.on == &m && l.ndim == 2 && l.shape[0] == 13 && l.shape[1] == 8 && l.shape[2] == 0);
    CHECK_OK(mesh_layout_make(&other, &m, &l.spec, 2, shape, &err), err);
    CHECK(!memcmp(&l, &other, sizeof l));
    CHECK_OK(mesh_layout_make(&other, &m, NULL, 2, shape, &err), err);
    CHECK_INT(mesh_layout_holders(&other), 8);
    CHECK_OK(mesh_layout_make(&other, &m, NULL, 0, NULL, &err), err);
    CHECK_OK(mesh_tensor_make(&t, &m, "tp:S(1)", MESH_BF16, 2, shape, &err), err);
    CHECK(t.dtype == MESH_BF16 && !t.data && !t.strides && !t.local_shape && t.elem_bytes == 0);
    CHECK_INT(mesh_tensor_count(&t, 3), 13 * 4);
    CHECK_INT(mesh_tensor_count(&t, 8), -1);
    before = l, t_before = t;
    for (i = 0; i < 9; i++) {
        static const struct {
            const char *spec, *why;
            int ndim, mesh_null, bad_shape;
        } bad[] = {{"dp:S(2)", "shards dim 2", 2, 0, 0},   {"dp:S(0)", "dim 1 has size -1", 2, 0, 1},
                   {"dp:S(0)", "the shape is NULL", 2, 0, 2}, {NULL, "the text of the spec is NULL", 2, 0, 0},
                   {"", "the mesh is NULL", 2, 1, 0},         {"dp:S(0) strict", "pad it to 16", 2, 0, 0},
                   {"[dp] [tp] [*]", "more than the 2 dims", 2, 0, 0},
                   {"", "9 dims", 9, 0, 0},                {"[dp", "expected \"]\"", 2, 0, 0}};
        const mesh *on = bad[i].mesh_null ? NULL : &m;
        const int64_t *sizes = bad[i].bad_shape == 2 ? NULL : bad[i].bad_shape ? minus : shape;
        CHECK_INT(mesh_layout_parse(&l, on, bad[i].spec, bad[i].ndim, sizes, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, bad[i].why);
        CHECK_HAS(err.text, "mesh_layout_parse: ");
        CHECK_INT(mesh_tensor_make(&t, on, bad[i].spec, MESH_F32, bad[i].ndim, sizes, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, bad[i].why);
        CHECK_HAS(err.text, "mesh_tensor_make: ");
    }
    CHECK_INT(mesh_tensor_make(&t, &m, "", MESH_BYTES + 99, 2, shape, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "see MESH_DTYPES");
    CHECK_INT(mesh_layout_make(&l, NULL, NULL, 2, shape, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the mesh is NULL");
    CHECK_INT(mesh_layout_make(&l, &m, NULL, 1, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the shape is NULL");
    CHECK_OK(mesh_spec_parse(&s, &m, "tp:S(1)", 2, &err), err);
    CHECK_INT(mesh_layout_make(&l, &m, &s, 1, shape, &err), MESH_ERR_ARGUMENT);
    l.on = NULL;
    CHECK_INT(mesh_layout_check(&l, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "layout.on, its mesh, is NULL");
    CHECK_INT(mesh_layout_set(&l, "dp", mesh_replicate(), &err), MESH_ERR_ARGUMENT);
    l.on = &m;
    CHECK(!memcmp(&l, &before, sizeof l) && !memcmp(&t, &t_before, sizeof t));
}

/* One axis after the other gets a place: each dim's axes are a list, to which an axis is added at its end or at a number, and from which
   it goes; the others keep their order. What comes of it is what the same text says. */
static void test_layout_set(void) {
    static const char *const names[] = {"a", "b", "c", "d"};
    int64_t shape[2] = {48, 60};
    test_random r = random_from(53);
    int trial, k, i, refused = 0;
    mesh m;
    mesh_error err;
    CHECK_OK(mesh_parse(&m, "a=2,b=3,c=2,d=2", 0, &err), err);
    for (trial = 0; trial < 500; trial++) {
        int list[2][4], n[2] = {0, 0}, partial[4] = {0};
        mesh_layout l, same;
        CHECK_OK(mesh_layout_parse(&l, &m, "", 2, shape, &err), err);
        for (k = 0; k < 12; k++) {
            int axis = random_below(&r, 4), dim = random_below(&r, 3), d, at, was = -1;
            char text[100] = "";
            mesh_place place = dim < 2 ? mesh_shard(dim - 2 * random_below(&r, 2)) : mesh_replicate();
            for (d = 0; d < 2; d++)
                for (i = 0; i < n[d]; i++)
                    if (list[d][i] == axis) was = d;
            at = dim < 2 ? n[dim] - (was == dim) : 0;
            if (dim < 2 && random_below(&r, 2)) {
                at = random_below(&r, at + 2);
                place = mesh_shard_at(dim, at);
            }
            if (dim == 2 && random_below(&r, 2)) place = mesh_partial(MESH_SUM);
            if (dim < 2 && at > n[dim] - (was == dim)) {
                same = l;
                CHECK_INT(mesh_layout_set(&l, names[axis], place, &err), MESH_ERR_ARGUMENT);
                CHECK_HAS(err.text, "mesh_layout_set: axis");
                CHECK(!memcmp(&l, &same, sizeof l));
                refused++;
                continue;
            }
            CHECK_OK(mesh_layout_set(&l, names[axis], place, &err), err);
            for (d = 0; d < 2 && was >= 0; d++) { /* out of its list */
                int to = 0;
                for (i = 0; i < n[d]; i++)
                    if (list[d][i] != axis) list[d][to++] = list[d][i];
                n[d] = to;
            }
            partial[axis] = place.kind == MESH_PARTIAL;
            if (dim < 2) { /* into another */
                for (i = n[dim]++; i > at; i--) list[dim][i] = list[dim][i - 1];
                list[dim][at] = axis;
            }
            for (d = 0; d < 2; d++)
                for (i = 0; i < n[d]; i++) sprintf(text + strlen(text), "%s:S(%d)@%d ", names[list[d][i]], d, i);
            for (i = 0; i < 4; i++)
                if (partial[i]) sprintf(text + strlen(text), "%s:P(sum) ", names[i]);
            CHECK_OK(mesh_layout_parse(&same, &m, text, 2, shape, &err), err);
            CHECK(mesh_spec_equal(&l.spec, &same.spec));
            if (test_failures) return;
        }
    }
    CHECK(refused > 100);
    {
        static const struct {
            const char *axis, *why;
            int kind, dim;
        } bad[] = {{"e", "no axis \"e\"", MESH_REPLICATE, 0},
                   {NULL, "no axis \"(null)\"", MESH_REPLICATE, 0},
                   {"a", "shards dim 2", MESH_SHARD, 2},
                   {"a", "shards dim -3", MESH_SHARD, -3},
                   {"a", "unknown kind 9", 9, 0}};
        mesh_layout l, before;
        CHECK_OK(mesh_layout_parse(&l, &m, "b:S(0) c:P(max)", 2, shape, &err), err);
        before = l;
        for (i = 0; i < (int)(sizeof bad / sizeof bad[0]); i++) {
            mesh_place place = mesh_shard(bad[i].dim);
            place.kind = (uint8_t)bad[i].kind;
            CHECK_INT(mesh_layout_set(&l, bad[i].axis, place, &err), MESH_ERR_ARGUMENT);
            CHECK_HAS(err.text, bad[i].why);
            CHECK_HAS(err.text, "mesh_layout_set: ");
        }
        CHECK_INT(mesh_layout_set(&l, "a", mesh_partial(MESH_SUM), &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "one op for all partial axes");
        CHECK(!memcmp(&l, &before, sizeof l));
    }
}

/* ---- compared ---- */

enum { LAYOUTS = 2400 };
typedef struct layout_pool {
    mesh meshes[16];
    mesh_layout of[LAYOUTS];
    int nmeshes, n, ndim;
    int64_t shape[2];
} layout_pool;

static void layout_pool_add(const mesh_spec *s, void *ctx) {
    layout_pool *p = (layout_pool *)ctx;
    int rule;
    for (rule = 0; rule < 2 && p->n < LAYOUTS; rule++) {
        mesh_layout *l = &p->of[p->n++];
        *l = layout_of(&p->meshes[p->nmeshes], s, p->ndim, p->shape);
        l->spec.rule = (uint8_t)rule;
    }
}

/* By the definition: the same ranks, each with the same box; and two ranks hold the same summand in one where they do in the other. */
static int layout_same(const mesh_layout *a, const mesh_layout *b) {
    int i, k, d, op[2] = {-1, -1};
    if (a->on->size != b->on->size) return 0;
    for (i = 0; i < 2; i++) {
        const mesh_layout *l = i ? b : a;
        for (k = 0; k < l->on->naxes; k++)
            if (l->spec.axis[k].kind == MESH_PARTIAL && l->on->axis[k].size > 1) op[i] = l->spec.axis[k].op;
    }
    if (op[0] != op[1]) return 0;
    for (i = 0; i < a->on->size; i++) {
        int rank = mesh_rank_at(a->on, i);
        mesh_box x, y;
        if (mesh_layout_box(b, rank, &y) < 0) return 0;
        mesh_layout_box(a, rank, &x);
        for (d = 0; d < a->ndim; d++)
            if (x.offset[d] != y.offset[d] || x.shape[d] != y.shape[d]) return 0;
        for (k = 0; k < a->on->size && mesh_box_count(&x); k++) {
            int other = mesh_rank_at(a->on, k), alike[2], side;
            for (side = 0; side < 2; side++) {
                const mesh_layout *l = side ? b : a;
                alike[side] = 1;
                for (d = 0; d < l->on->naxes; d++)
                    if (l->spec.axis[d].kind != MESH_REPLICATE &&
                        mesh_coord_of(l->on, l->on->axis[d].name, rank) !=
                            mesh_coord_of(l->on, l->on->axis[d].name, other))
                        alike[side] = 0;
            }
            if (alike[0] != alike[1]) return 0;
        }
    }
    return 1;
}

static void test_layout_equal(void) {
    static const char *const texts[] = {"x=8", "x=2,y=4", "x=4,y=2", "x=2,y=2,z=2", "x=1,y=8"};
    static const int two_rows[] = {4, 5, 6, 7, 0, 1, 2, 3};
    static layout_pool p;
    int inverse[8], i, k, same = 0, eight = 8, ndim;
    mesh_table table;
    mesh_desc d = MESH_ZERO;
    mesh_error err;
    CHECK_OK(mesh_table_make(&table, two_rows, 8, inverse, 8, &err), err);
    for (ndim = 1; ndim <= 2; ndim++) {
        p.nmeshes = p.n = 0;
        p.ndim = ndim, p.shape[0] = ndim == 1 ? 13 : 8, p.shape[1] = 4;
        for (i = 0; i < (ndim == 1 ? 8 : 5); i++, p.nmeshes++) {
            mesh *m = &p.meshes[p.nmeshes];
            d.shape = &eight, d.naxes = 1, d.table = &table;
            if (i < 5)
                CHECK_OK(mesh_parse(m, texts[i], 0, &err), err);
            else if (i == 5)
                CHECK_OK(mesh_make(m, &d, &err), err); /* ranks in another order */
            else
                CHECK_OK(i == 6 ? mesh_transpose(m, &p.meshes[1], "y,x", &err)
                                : mesh_fix(m, &p.meshes[3], "y", 1, &err),
                         err);
            every_spec(m, ndim, 1, layout_pool_add, &p);
        }
        CHECK(p.n > 100 && p.n < LAYOUTS);
        for (i = 0; i < p.n; i++)
            for (k = 0; k < p.n; k += 1 + (ndim == 2) * (i % 7)) {
                int want = layout_same(&p.of[i], &p.of[k]);
                same += want;
                CHECK_INT(mesh_layout_equal(&p.of[i], &p.of[k]), want);
                if (test_failures) return;
            }
    }
    CHECK(same > 2 * p.n); /* not only each to itself */
    p.shape[0] = 0; /* of nothing all that is no sum is equal */
    p.of[0] = layout_of(&p.meshes[1], &p.of[0].spec, 1, p.shape);
    p.of[0].spec.axis[0] = mesh_shard_at(0, 0), p.of[0].spec.axis[1] = mesh_replicate(), p.of[1] = p.of[0];
    p.of[1].spec.axis[0] = mesh_replicate();
    CHECK_INT(mesh_layout_equal(&p.of[0], &p.of[1]), 1);
    p.of[1] = p.of[0];
    p.of[1].shape[0]++;
    CHECK_INT(mesh_layout_equal(&p.of[0], &p.of[1]), 0);
    p.of[1] = p.of[0], p.of[1].ndim--;
    CHECK_INT(mesh_layout_equal(&p.of[0], &p.of[1]), 0);
    p.of[0] = layout_of(&p.meshes[0], &p.of[0].spec, 1, p.shape), p.of[1] = p.of[0];
    p.of[0].spec.axis[0] = mesh_partial(MESH_SUM), p.of[1].spec.axis[0] = mesh_partial(MESH_MAX);
    CHECK_INT(mesh_layout_equal(&p.of[0], &p.of[1]), 0);
}

/* ---- a spec's chunks as counts: what all_gather_v gathers by them is the part that the group holds together ---- */

static void layout_counts_rank(mesh_transport *t, void *ctx) {
    static const struct {
        const char *spec, *axes, *together;
        int64_t shape[3];
    } rows[] = {{"a:S(0)", "a", "", {13, 3, 2}},
                {"b:S(0)", "b", "", {7, 1, 5}},
                {"a:S(0) b:S(0)", "a,b", "", {11, 2, 2}},
                {"a:S(0) b:S(0)", "b", "a:S(0)", {11, 2, 2}},
                {"a:S(0)@1 b:S(0)@0", "b, a", "", {9, 1, 1}},
                {"a:S(1)", "a", "", {1, 9, 4}},
                {"a:S(0) b:S(1)", "b", "a:S(0)", {2, 9, 4}}, /* one row each */
                {"a:S(0) b:S(0) balanced", "b-a", "", {14, 1, 1}},
                {"a:S(0)", "a", "", {0, 2, 2}}};
    mesh_comm c;
    mesh_error err;
    size_t k;
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=3", "a,b;b,a", 20 * SECOND)) return;
    for (k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        mesh_layout l, whole;
        mesh_box box, all;
        size_t counts[6], offsets[6], total = 0, e;
        int32_t mine[300], got[300], global[300];
        int i, n = mesh_comm_size(&c, rows[k].axes);
        CHECK_OK(mesh_layout_parse(&l, &c.on, rows[k].spec, 3, rows[k].shape, &err), err);
        CHECK_OK(mesh_layout_parse(&whole, &c.on, rows[k].together, 3, rows[k].shape, &err), err);
        whole.spec.rule = l.spec.rule;
        CHECK_OK(mesh_layout_counts(&l, rows[k].axes, t->rank, counts, offsets, &err), err);
        for (i = 0; i < n; i++) {
            CHECK_INT(offsets[i], total);
            total += counts[i];
        }
        for (e = 0; e < 300; e++) global[e] = (int32_t)e * 3 + 1;
        CHECK_INT(mesh_layout_slice(&l, t->rank, mine, global, 4), counts[mesh_comm_index(&c, rows[k].axes)]);
        mesh_layout_box(&l, t->rank, &box);
        CHECK_INT(mesh_layout_box(&whole, t->rank, &all), total);
        CHECK_OK(mesh_all_gather_v(&c, rows[k].axes, mine, got, counts, offsets, MESH_I32), c.error);
        mesh_layout_slice(&whole, t->rank, mine, global, 4);
        CHECK(!memcmp(mine, got, total * 4));
        CHECK_OK(mesh_layout_counts(&l, rows[k].axes, t->rank, counts, NULL, &err), err);
    }
    mesh_comm_close(&c);
}

static void test_layout_counts(void) {
    static const struct {
        const char *spec, *axes, *why;
        int rank;
    } bad[] = {{"a:S(0)", "b", "are not the innermost axes", 0},     {"a:S(0) b:S(0)", "a", "are not the innermost axes", 0},
               {"a:S(0) b:S(0)", "b,a", "are not the innermost", 0}, {"a:S(0) b:S(1)", "a,b", "are not the innermost", 0},
               {"a:S(1)", "a", "the 4 elements before it", 0},       {"a:S(0)", "a", "rank 6", 6},
               {"a:S(0)", "q", "no axis \"q\"", 0},                  {"a:P(sum)", "a", "are not the innermost", 0},
               {"a:S(0)", "", "are not the innermost", 0}};
    int64_t shape[2] = {4, 6};
    size_t k, counts[6];
    mesh m;
    mesh_layout l;
    mesh_error err;
    run_world(SIM, 6, layout_counts_rank, NULL);
    CHECK_OK(mesh_parse(&m, "a=2,b=3", 0, &err), err);
    for (k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        CHECK_OK(mesh_layout_parse(&l, &m, bad[k].spec, 2, shape, &err), err);
        CHECK_INT(mesh_layout_counts(&l, bad[k].axes, bad[k].rank, counts, NULL, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, bad[k].why);
    }
}

/* ---- tensors in one buffer ---- */

static void test_layout_lay(void) {
    static unsigned char buffer[1 << 16];
    test_random r = random_from(59);
    int trial, i, k, rank;
    mesh m;
    mesh_error err;
    mesh_tensor huge[2];
    int64_t most[2] = {INT64_C(1) << 31, INT64_C(1) << 31};
    CHECK_OK(mesh_parse(&m, "a=2,b=3", 0, &err), err);
    for (trial = 0; trial < 300; trial++) {
        mesh_tensor list[12];
        int n = random_below(&r, 13), align = 1 << random_below(&r, 8), used = random_below(&r, 4);
        int64_t total, end = 0;
        for (i = 0; i < n; i++) {
            static const char *const specs[] = {"", "a:S(0)", "b:S(1)", "a:S(1) b:S(0)", "b:P(sum)"};
            int64_t shape[2];
            shape[0] = random_below(&r, 6), shape[1] = random_below(&r, 9);
            CHECK_OK(mesh_tensor_make(&list[i], &m, specs[random_below(&r, 5)], random_below(&r, 2) ? MESH_F64 : MESH_BF16,
                                      2, shape, &err),
                     err);
            if (!random_below(&r, 4)) list[i].dtype = MESH_BYTES, list[i].elem_bytes = 3;
            list[i].data = &r;
        }
        rank = random_below(&r, 7);
        total = mesh_tensors_lay(list, n, rank, NULL, used ? (size_t)align : 0);
        for (i = 0; i < n; i++) CHECK(list[i].data == (void *)&r);
        CHECK_INT(mesh_tensors_lay(list, n, rank, buffer, used ? (size_t)align : 0), total);
        for (i = 0; i < n; i++) {
            int64_t count = mesh_tensor_count(&list[i], rank), at, step = used ? align : 64;
            if (count <= 0) {
                CHECK(list[i].data == NULL);
                continue;
            }
            at = (unsigned char *)list[i].data - buffer;
            CHECK(at >= end && at < end + step && at % step == 0);
            end = at + count * (list[i].elem_bytes ? list[i].elem_bytes : (int64_t)mesh_dtype_bytes(list[i].dtype));
        }
        CHECK_INT(total, end);
    }
    for (k = 0; k < 2; k++) CHECK_OK(mesh_tensor_make(&huge[k], &m, "", MESH_BYTES, 2, most, &err), err);
    CHECK_INT(mesh_tensors_lay(huge, 1, 0, NULL, 0), INT64_C(1) << 62);
    CHECK_INT(mesh_tensors_lay(huge, 2, 0, NULL, 0), -1);
    huge[0].elem_bytes = 4;
    CHECK_INT(mesh_tensors_lay(huge, 1, 0, NULL, 0), -1);
    CHECK_INT(mesh_tensors_lay(huge, 0, 0, NULL, 3), -1);
    most[0] = most[1] = 2;
    for (k = 0; k < 4; k++) { /* elements that there are not */
        static const int64_t elems[4] = {0, 0, 6, -1};
        CHECK_OK(mesh_tensor_make(&huge[0], &m, "", k < 3 ? MESH_F32 : MESH_BYTES, 2, most, &err), err);
        huge[0].elem_bytes = elems[k];
        if (k == 1) huge[0].dtype = (mesh_dtype)99;
        CHECK_INT(mesh_tensors_lay(huge, 1, 0, NULL, 0), k ? -1 : 16);
    }
    CHECK_INT(mesh_tensors_lay(huge, 0, 0, NULL, 0), 0);
}

static const test_case layout_tests[] = {
    {"layout/make", test_layout_make, 0},     {"layout/set", test_layout_set, 0}, {"layout/equal", test_layout_equal, 0},
    {"layout/counts", test_layout_counts, 0}, {"layout/lay", test_layout_lay, 0},
};
#endif
