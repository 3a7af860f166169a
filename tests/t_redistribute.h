/* mesh/redistribute.h on our transports: seeded problems (tests/conformance.h), lists, plans made before, scratch, refusals, disagreement. */

static void redistribute_rank(mesh_transport *t, void *ctx) {
    int problems = *(const int *)ctx;
    conformance_redistribute(t, test_seed + (uint64_t)t->size, problems, 400);
    conformance_redistribute(t, test_seed + 100 + (uint64_t)t->size, problems / 10, 200000);
}

static void redistribute_on(int backend, int problems) {
    static const int sizes[] = {1, 2, 3, 4, 6, 8};
    int i;
    for (i = 0; i < 6; i++) run_world(backend, sizes[i], redistribute_rank, &problems);
}

static void test_redistribute_sim(void) { redistribute_on(SIM, 600); }

/* The same where every message waits for its receiver: what is sent out of memory that is also received into shows. */
static void test_redistribute_late(void) {
    int ranks, problems = 100;
    for (ranks = 4; ranks <= 10; ranks += 3) {
        mesh_sim_desc d = sim_desc(ranks);
        mesh_error err;
        d.eager_bytes = 1;
        CHECK_OK(mesh_sim_run(&d, redistribute_rank, &problems, &err), err);
        test_failures += conformance_failures;
    }
}

/* Partial over all 8 ranks, to partial over 2 of the same ranks in another order, where levels make a plan of several steps: on its way a rank holds one
   half of the sums and gets the other. */
static void redistribute_summands_rank(mesh_transport *t, void *ctx) {
    uint64_t *mine = (uint64_t *)calloc(8 * 17 * 5, sizeof *mine), *got = (uint64_t *)calloc(8 * 17 * 5, sizeof *got);
    const int64_t shape[] = {8, 17, 5};
    const char *names[] = {"a", "b", "half"};
    int sizes[] = {2, 2, 2}, ranks[8], inverse[8], i, k, me = t->rank;
    test_random r = {*(uint64_t *)ctx};
    mesh_desc d = MESH_ZERO;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_topology levels;
    mesh_table table;
    mesh_tensor src, dst;
    mesh_error err;
    mesh from, to;
    mesh_comm c;
    for (i = 0; i < 8; i++) ranks[i] = i;
    for (i = 7; i > 0; i--) k = random_below(&r, i + 1), inverse[0] = ranks[i], ranks[i] = ranks[k], ranks[k] = inverse[0];
    CHECK_OK(mesh_table_make(&table, ranks, 8, inverse, 8, &err), err);
    d.shape = sizes, d.names = names, d.naxes = 3, d.table = &table, d.first_fastest = 1;
    CHECK_OK(mesh_make(&to, &d, &err), err);
    CHECK_OK(mesh_parse(&from, "all=8", 8, &err), err);
    CHECK_OK(mesh_topology_parse(&levels, "4:100us:1GB/s,8:1ms:100MB/s,*:10ms:10MB/s", &err), err);
    desc.topology = &levels;
    if (mesh_comm_open(&c, t, &from, &desc, &err)) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return;
    }
    CHECK_OK(mesh_tensor_make(&src, &from, "all:P(sum)", MESH_U64, 3, shape, &err), err);
    CHECK_OK(mesh_tensor_make(&dst, &to, "half:P(sum)", MESH_U64, 3, shape, &err), err);
    src.data = mine, dst.data = got;
    for (i = 0; i < 8 * 17 * 5; i++) mine[i] = (uint64_t)1 << 4 * me;
    CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
    memset(mine, 0, 8 * 17 * 5 * sizeof *mine);
    CHECK_OK(mesh_all_reduce(&c, NULL, got, mine, 8 * 17 * 5, MESH_U64, MESH_SUM), c.error);
    for (i = 0; i < 8 * 17 * 5; i++) CHECK(mine[i] == 4 * UINT64_C(0x11111111)); /* a summand is on 4 ranks */
    CHECK_OK(mesh_comm_close(&c), c.error);
    free(mine), free(got);
}
static void test_redistribute_summands(void) {
    uint64_t seed;
    for (seed = 1; seed <= 8; seed++) {
        mesh_sim_desc d = sim_desc(8);
        mesh_error err;
        d.eager_bytes = 1;
        CHECK_OK(mesh_sim_run(&d, redistribute_summands_rank, &seed, &err), err);
    }
}
static void test_redistribute_tcp(void) { redistribute_on(TCP, 80); }
static void test_redistribute_unix(void) { redistribute_on(UNIX, 40); }
static void test_redistribute_shared(void) { redistribute_on(SHARED, 40); }

/* Rows of a matrix of floats, to be columns; a second one of `kind`s. */
static void two_layouts(const mesh_comm *c, mesh_tensor *src, mesh_tensor *dst, const char *from, const char *to,
                        int64_t rows, int64_t columns) {
    mesh_box box;
    mesh_error err;
    memset(src, 0, sizeof *src);
    src->layout.ndim = 2, src->layout.shape[0] = rows, src->layout.shape[1] = columns, src->layout.on = &c->on;
    *dst = *src;
    CHECK_OK(mesh_spec_parse(&src->layout.spec, &c->on, from, 2, &err), err);
    CHECK_OK(mesh_spec_parse(&dst->layout.spec, &c->on, to, 2, &err), err);
    mesh_tensor_box(src, c->transport->rank, &box);
    src->data = calloc((size_t)mesh_box_count(&box) + 1, 4);
    mesh_tensor_box(dst, c->transport->rank, &box);
    dst->data = calloc((size_t)mesh_box_count(&box) + 1, 4);
}

static void set_part(const mesh_tensor *t, int rank, float times) {
    mesh_box box;
    int64_t i, k;
    mesh_tensor_box(t, rank, &box);
    for (i = 0; i < box.shape[0]; i++)
        for (k = 0; k < box.shape[1]; k++)
            ((float *)t->data)[i * box.shape[1] + k] =
                (float)((box.offset[0] + i) * 3 + (box.offset[1] + k) % 97) * times;
}
static int wrong_part(const mesh_tensor *t, int rank, float times) {
    mesh_box box;
    int64_t i, k;
    int wrong = 0;
    mesh_tensor_box(t, rank, &box);
    for (i = 0; i < box.shape[0]; i++)
        for (k = 0; k < box.shape[1]; k++)
            wrong += ((float *)t->data)[i * box.shape[1] + k] !=
                     (float)((box.offset[0] + i) * 3 + (box.offset[1] + k) % 97) * times;
    return wrong;
}

/* Hundreds of small tensors are one exchange: a message per peer. Two operations at once, plans made before, kept and new ones. */
static void lists_of_tensors_rank(mesh_transport *t, void *ctx) {
    enum { MANY = 200 };
    mesh_tensor src[MANY], dst[MANY], rows, columns, summed, whole;
    mesh_comm c;
    mesh_request many, one, sum;
    mesh_plan *plans = (mesh_plan *)malloc(sizeof *plans * MANY);
    mesh_error err;
    int i, round;
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=-1", NULL, 20 * SECOND)) return;
    for (i = 0; i < MANY; i++) {
        two_layouts(&c, &src[i], &dst[i], i % 3 ? "a:S(0) b:S(1)" : "a:S(0) b:R",
                    i % 2 ? "a:R b:S(0)" : "a:S(1) b:S(0)", 5 + i % 7, 9);
        CHECK_OK(mesh_redistribute_plan(&c, &plans[i], &src[i], &dst[i], &err), err);
    }
    two_layouts(&c, &rows, &columns, "a:S(0) b:S(0)", "a:S(1) b:S(1)", 301, 203);
    two_layouts(&c, &summed, &whole, "a:P(sum) b:S(1)", "a:R b:S(1)", 301, 203);
    for (round = 0; round < 4; round++) {
        float times = (float)(round + 1);
        for (i = 0; i < MANY; i++) set_part(&src[i], t->rank, times);
        set_part(&rows, t->rank, times);
        set_part(&summed, t->rank, times);
        if (round == 0) {
            CHECK_OK(mesh_redistribute_planned_start(&c, plans, src, dst, MANY, &many), c.error);
            CHECK_INT(mesh_keep(many), MESH_OK);
        } else {
            CHECK_OK(mesh_restart(many), c.error);
        }
        CHECK_OK(mesh_redistribute_start(&c, &rows, &columns, &one), c.error);
        CHECK_OK(mesh_redistribute_start(&c, &summed, &whole, &sum), c.error);
        CHECK_OK(mesh_wait(sum), c.error);
        CHECK_OK(mesh_wait(one), c.error);
        CHECK_OK(mesh_wait(many), c.error);
        for (i = 0; i < MANY; i++) CHECK_INT(wrong_part(&dst[i], t->rank, times), 0);
        CHECK_INT(wrong_part(&columns, t->rank, times), 0);
        CHECK_INT(wrong_part(&whole, t->rank, 2 * times), 0);
    }
    CHECK_INT(mesh_release(many), MESH_OK);
    come_together(&c);
    plans[3].shape[0] += 256;       /* the same in its last byte */
    if (t->rank == 0) {             /* the plan of another tensor */
        pause_rank(t, SECOND / 20); /* the others are through the barrier */
        CHECK_INT(mesh_redistribute_planned_start(&c, plans, src, dst, MANY, &many), MESH_ERR_ARGUMENT);
        CHECK_HAS(c.error.text, "tensor 3: the plan is for other tensors; make it of these");
    }
    mesh_comm_close(&c);
    for (i = 0; i < MANY; i++) free(src[i].data), free(dst[i].data);
    free(rows.data), free(columns.data), free(summed.data), free(whole.data), free(plans);
}
static void test_lists_of_tensors(void) {
    run_world(SIM, 4, lists_of_tensors_rank, NULL);
    run_world(SIM, 6, lists_of_tensors_rank, NULL);
    run_world(TCP, 4, lists_of_tensors_rank, NULL);
}

/* ---- scratch ---- */

/* Large pieces of memory, counted. */
typedef struct counted {
    size_t now;
    struct {
        void *p;
        size_t nbytes;
    } piece[64];
} counted;
static void *counted_alloc(void *ctx, size_t nbytes) {
    counted *c = (counted *)ctx;
    void *p = malloc(nbytes);
    int i;
    for (i = 0; p && nbytes >= 1 << 20 && i < 64; i++)
        if (!c->piece[i].p) {
            c->piece[i].p = p;
            c->piece[i].nbytes = nbytes;
            c->now += nbytes;
            break;
        }
    return p;
}
static void counted_free(void *ctx, void *p) {
    counted *c = (counted *)ctx;
    int i;
    for (i = 0; p && i < 64; i++)
        if (c->piece[i].p == p) {
            c->piece[i].p = NULL;
            c->now -= c->piece[i].nbytes;
        }
    free(p);
}

/* What a start allocates in large pieces is the scratch that was said, which is within the plan's, which is within the cap. */
static void scratch_rank(mesh_transport *t, void *ctx) {
    enum { LONG = 300 };
    static const int64_t caps[] = {0, 40 << 20, 12 << 20, 6 << 20};
    static counted count;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    mesh m;
    mesh_error err;
    mesh_allocator allocator;
    mesh_tensor src, dst;
    mesh_tensor many[2][LONG];
    int k, way, i;
    (void)ctx;
    allocator.alloc = counted_alloc;
    allocator.free = counted_free;
    allocator.ctx = &count;
    t->allocator = allocator;
    CHECK_OK(mesh_parse(&m, "a=2,b=2", 4, &err), err);
    for (k = 0; k < 4; k++) {
        desc.scratch_cap = t->rank ? 0 : caps[k];
        CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
        for (way = 0; way < 3; way++) {
            static const char *const from[] = {"a:P(sum) b:P(sum)", "a:P(sum) b:S(0)", "a:P(sum) b:P(sum)"},
                                     *const to[] = {"a:S(1) b:R", "a:R b:S(1)", "a:R b:S(0)"};
            mesh_plan plan;
            mesh_request r;
            int64_t said = 0;
            size_t before;
            two_layouts(&c, &src, &dst, from[way], to[way], 2000, 1501);
            set_part(&src, t->rank, 1);
            CHECK_OK(mesh_redistribute_plan(&c, &plan, &src, &dst, &err), err);
            CHECK(caps[k] == 0 || plan.scratch <= caps[k]);
            CHECK_OK(mesh_redistribute_scratch_bytes(&c, &src, &dst, 1, &said, &err), err);
            CHECK(said <= plan.scratch);
            before = count.now;
            CHECK_OK(mesh_redistribute_start(&c, &src, &dst, &r), c.error);
            CHECK(count.now - before <= (size_t)said);
            CHECK_OK(mesh_wait(r), c.error);
            CHECK_INT(wrong_part(&dst, t->rank, way == 1 ? 2 : 4), 0);
            free(src.data), free(dst.data);
        }
        for (i = 0; i < 2; i++) { /* two that are reduced in rounds, and one that is only moved, in one call */
            two_layouts(&c, &many[0][i], &many[1][i], "a:P(sum) b:P(sum)", i ? "a:R b:S(0)" : "a:S(1) b:R", 2000, 1501);
            set_part(&many[0][i], t->rank, 1);
        }
        two_layouts(&c, &many[0][2], &many[1][2], "a:S(0) b:R", "a:R b:S(1)", 70, 1501);
        set_part(&many[0][2], t->rank, 1);
        CHECK_OK(mesh_redistribute_many(&c, many[0], many[1], 3), c.error);
        for (i = 0; i < 3; i++) {
            CHECK_INT(wrong_part(&many[1][i], t->rank, i < 2 ? 4 : 1), 0);
            free(many[0][i].data), free(many[1][i].data);
        }
        { /* a list, whose boxes are packed: as much at a time as the cap allows */
            mesh_request r;
            int64_t said = 0;
            size_t before;
            for (i = 0; i < LONG; i++) {
                two_layouts(&c, &many[0][i], &many[1][i], "a:P(sum) b:P(sum)", "a:S(0) b:S(0)", 128, 125);
                set_part(&many[0][i], t->rank, 1);
            }
            CHECK_OK(mesh_redistribute_scratch_bytes(&c, many[0], many[1], LONG, &said, &err), err);
            CHECK(said > 4 << 20 &&
                  (caps[k] == 0 || said <= caps[k])); /* more than is kept from one operation to the next */
            before = count.now;
            CHECK_OK(mesh_redistribute_many_start(&c, many[0], many[1], LONG, &r), c.error);
            CHECK((int64_t)(count.now - before) <= said &&
                  (int64_t)(count.now - before) > said - (4 << 20)); /* in place of less */
            CHECK_OK(mesh_wait(r), c.error);
            for (i = 0; i < LONG; i++) {
                CHECK_INT(wrong_part(&many[1][i], t->rank, 4), 0);
                free(many[0][i].data), free(many[1][i].data);
            }
        }
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
    }
    desc.scratch_cap = 5000; /* less than any plan needs */
    CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
    two_layouts(&c, &src, &dst, "a:P(sum) b:P(sum)", "a:S(1) b:R", 2000, 1501);
    CHECK_INT(mesh_redistribute(&c, &src, &dst), MESH_ERR_MEMORY);
    CHECK_HAS(c.error.text, "scratch_cap = 5000 bytes; the least possible is ");
    free(src.data), free(dst.data);
    mesh_comm_close(&c);
}
static void test_scratch(void) { run_world(TCP, 4, scratch_rank, NULL); }

/* ---- refusals ---- */

static const struct {
    mesh_status status;
    const char *text;
} refusals[] = {
    {MESH_ERR_ARGUMENT, "dim 1 is 8 in the source and 9 in the destination"},
    {MESH_ERR_ARGUMENT, "source and destination are f32 and i32; f16, bf16, f32 and f64"},
    {MESH_ERR_ARGUMENT, "source: the data is NULL, but rank 1 holds 24 elements"},
    {MESH_ERR_ARGUMENT, "source and destination overlap in memory"},
    {MESH_ERR_ARGUMENT, "destination: the local shape has 5 in dim 0, but by its spec rank 1 holds 12 of 12"},
    {MESH_ERR_ARGUMENT, "source: stride 7 of dim 0 is too small; the dims within it span 8 elements"},
    {MESH_ERR_ARGUMENT, "rank 1 is neither in the source's mesh nor in the destination's"},
    {MESH_ERR_ARGUMENT, "holds rank 4, which is not in the comm's"},
    {MESH_ERR_UNSUPPORTED, "avg of i32 is not supported"},
    {MESH_ERR_ARGUMENT, "reduce first, into a spec without partial axes"},
    {MESH_ERR_ARGUMENT, "is partial over avg, which the source is not there"},
    {MESH_ERR_ARGUMENT, "source: layout.on, its mesh, is NULL"},
    {MESH_ERR_ARGUMENT, "-1 tensors"},
    {MESH_ERR_ARGUMENT, "source and destination have 2 and 1 dims"},
    {MESH_ERR_ARGUMENT, "destination: mesh_layout_check: axis \"a\" has order 3 on dim 1, which 1 axes shard"},
    {MESH_ERR_ARGUMENT, "shape's elements overflow"},
    {MESH_ERR_ARGUMENT, "the request is NULL"},
    {MESH_ERR_ARGUMENT, "dtype 99"},
    {MESH_ERR_ARGUMENT, "source: 9 dims; 0 to 8 are possible"},
    {MESH_ERR_ARGUMENT, "source: dtype 0 with elements of 8 bytes"},
    {MESH_ERR_ARGUMENT, "elements are of 4 bytes in the source and of 8 in the destination"},
};

/* Rank 1 gets it wrong; everybody is told. */
static void refuse_tensors_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx;
    static const int64_t shape[2] = {5, 2}, strides[2] = {7, 1};
    mesh_comm c;
    mesh_tensor src, dst;
    mesh_desc d = MESH_ZERO;
    mesh other;
    mesh_error err;
    mesh_request r;
    mesh_status status;
    int two = 2;
    void *kept[2];
    if (!open_comm(t, &c, "a=4", NULL, 20 * SECOND)) return;
    two_layouts(&c, &src, &dst, "a:S(0)", "a:S(1)", 12, 8);
    kept[0] = src.data, kept[1] = dst.data;
    d.shape = &two, d.naxes = 1, d.origin = what == 7 ? 3 : 2;
    CHECK_OK(mesh_make(&other, &d, &err), err);
    come_together(&c);
    if (t->rank == 1) {
        int n = 1;
        pause_rank(t, SECOND / 20); /* the others are through the barrier */
        switch (what) {
        case 0:
            dst.layout.shape[1] = 9;
            break;
        case 1:
            dst.dtype = MESH_I32;
            break;
        case 2:
            src.data = NULL;
            break;
        case 3:
            dst.data = (char *)src.data + 8;
            break;
        case 4:
            dst.local_shape = shape;
            break;
        case 5:
            src.strides = strides;
            break;
        case 6:
        case 7:
            src.layout.on = dst.layout.on = &other;
            break;
        case 8:
            src.dtype = dst.dtype = MESH_I32;
            mesh_spec_parse(&src.layout.spec, src.layout.on, "a:P(avg)", 2, NULL);
            break;
        case 9:
            mesh_spec_parse(&src.layout.spec, src.layout.on, "a:P(sum)", 2, NULL);
            mesh_spec_parse(&dst.layout.spec, dst.layout.on, "a:P(max)", 2, NULL);
            break;
        case 10:
            mesh_spec_parse(&dst.layout.spec, dst.layout.on, "a:P(avg)", 2, NULL);
            break;
        case 11:
            src.layout.on = NULL;
            break;
        case 12:
            n = -1;
            break;
        case 13:
            dst.layout.ndim = 1;
            break;
        case 14:
            dst.layout.spec.axis[0].order = 3, dst.layout.spec.axis[0].dim = 255;
            break;
        case 15:
            src.layout.shape[0] = dst.layout.shape[0] = src.layout.shape[1] = dst.layout.shape[1] = INT64_C(1) << 40;
            break;
        case 17:
            src.dtype = dst.dtype = (mesh_dtype)99;
            break;
        case 18:
            src.layout.ndim = dst.layout.ndim = MESH_MAX_DIMS + 1;
            break;
        case 19:
            src.elem_bytes = 8;
            break;
        case 20:
            src.dtype = dst.dtype = MESH_BYTES;
            src.elem_bytes = 4, dst.elem_bytes = 8;
            break;
        default:
            break;
        }
        if (what < 12) { /* asking beforehand says the same, and fails nothing */
            mesh_plan plan;
            int64_t said;
            status = mesh_redistribute_scratch_bytes(&c, &src, &dst, 1, &said, &err);
            CHECK_INT(status, refusals[what].status);
            CHECK_HAS(err.text, "mesh_redistribute_scratch_bytes: ");
            CHECK_HAS(err.text, refusals[what].text);
            if (what < 2 || what > 5) {
                CHECK_INT(mesh_redistribute_plan(&c, &plan, &src, &dst, &err), status);
                CHECK_HAS(err.text, "mesh_redistribute_plan: ");
            }
            CHECK_INT(c.failed, 0);
        }
        status = mesh_redistribute_many_start(&c, &src, &dst, n, what == 16 ? NULL : &r);
        CHECK_INT(status, refusals[what].status);
        CHECK_HAS(c.error.text, refusals[what].text);
        CHECK_HAS(c.error.text, "mesh_redistribute_many(");
    } else {
        status = mesh_redistribute(&c, &src, &dst);
        CHECK_INT(status, refusals[what].status);
        CHECK_INT(c.error.rank, 1);
        CHECK_HAS(c.error.text, "rank 1 failed: mesh_redistribute");
        CHECK_HAS(c.error.text, refusals[what].text);
    }
    mesh_comm_close(&c);
    free(kept[0]), free(kept[1]);
}
static void test_refused_tensors(void) {
    int what, n = (int)(sizeof refusals / sizeof refusals[0]);
    for (what = 0; what < n; what++) run_world(SIM, 4, refuse_tensors_rank, &what);
    for (what = 0; what < n; what += 5) run_world(TCP, 4, refuse_tensors_rank, &what);
}

/* Ranks that give different layouts are told so, by name. */
static void differing_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx;
    mesh_comm c;
    mesh_tensor src, dst;
    mesh_status status;
    if (!open_comm(t, &c, "a=2,b=2", NULL, 20 * SECOND)) return;
    two_layouts(&c, &src, &dst, "a:S(0) b:S(0)", t->rank == 3 && what == 0 ? "a:S(1) b:S(1)" : "a:S(1) b:R", 64, 64);
    if (t->rank == 3 && what == 1) src.layout.shape[0] = dst.layout.shape[0] = 63;
    if (t->rank == 3 && what == 2) { /* another call altogether */
        float x = 1, y;
        status = mesh_all_reduce(&c, NULL, &x, &y, 1, MESH_F32, MESH_SUM);
    } else {
        status = mesh_redistribute(&c, &src, &dst);
    }
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "redistribute(f32, plan ");
    mesh_comm_close(&c);
    free(src.data), free(dst.data);
}
static void test_differing_layouts(void) {
    int what;
    for (what = 0; what < 3; what++) {
        run_world(SIM, 4, differing_rank, &what);
        run_world(TCP, 4, differing_rank, &what);
    }
}

/* Dims taken apart: hosts of 4 ranks, parts whose rows are padded, single and in a list with tensors that are not. */
static void two_hosts_rank(mesh_transport *t, void *ctx) {
    static const struct {
        const char *from, *to;
        float times; /* the sum of equal summands */
    } pairs[] = {{"dp:S(0) tp:S(0)", "", 1},
                 {"dp:S(1) tp:S(1)", "", 1},
                 {"dp:S(0) tp:S(0)", "tp:S(1)", 1},
                 {"dp:S(0) tp:S(0)", "dp:S(1) tp:S(1)", 1},
                 {"dp:P(sum) tp:P(sum)", "dp:S(0) tp:S(0)", 8},
                 {"dp:P(sum) tp:P(sum)", "dp:S(1) tp:S(1)", 8},
                 {"dp:P(sum) tp:S(1)", "dp:S(1) tp:S(0)", 2},
                 {"dp:S(0) tp:S(0)", "dp:P(sum) tp:R", 1}};
    enum { PAIRS = sizeof pairs / sizeof *pairs, ROWS = 256, COLUMNS = 192, PAD = 3 };
    mesh_topology nodes = MESH_ZERO;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_tensor src[PAIRS + 1], dst[PAIRS + 1], padded[PAIRS + 1];
    int64_t strides[PAIRS + 1][2];
    mesh_plan *plan = (mesh_plan *)malloc(sizeof *plan);
    mesh_error err;
    mesh_comm c;
    mesh m;
    int i, k, apart = 0;
    (void)ctx;
    nodes.nlevels = 2;
    nodes.level[0].ranks = 4, nodes.level[0].latency_ps = 1000, nodes.level[0].ps_per_byte_16 = 1 << 16;
    nodes.level[1].ranks = INT32_MAX, nodes.level[1].latency_ps = 10000, nodes.level[1].ps_per_byte_16 = 50 << 16;
    desc.topology = &nodes;
    CHECK_OK(mesh_parse(&m, "dp=2,tp=4", t->size, &err), err);
    CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
    for (i = 0; i <= PAIRS; i++) {
        int odd = i == PAIRS; /* uneven */
        mesh_box box;
        two_layouts(&c, &src[i], &dst[i], odd ? "dp:S(0)" : pairs[i].from, odd ? "tp:S(0)" : pairs[i].to,
                    odd ? 13 : ROWS, odd ? 7 : COLUMNS);
        set_part(&src[i], t->rank, 1);
        mesh_tensor_box(&src[i], t->rank, &box);
        strides[i][0] = box.shape[1] + PAD, strides[i][1] = 1;
        padded[i] = src[i];
        padded[i].strides = strides[i];
        padded[i].data = calloc((size_t)(box.shape[0] * strides[i][0]) + 1, 4);
        for (k = 0; k < box.shape[0]; k++)
            memcpy((float *)padded[i].data + k * strides[i][0], (float *)src[i].data + k * box.shape[1],
                   (size_t)box.shape[1] * 4);
        CHECK_OK(mesh_redistribute_plan(&c, plan, &src[i], &dst[i], &err), err);
        apart += plan->view.ndim > 2;
        CHECK_OK(mesh_redistribute(&c, i & 1 ? &padded[i] : &src[i], &dst[i]), c.error);
    }
    CHECK(apart >= 4);
    for (k = 0; k < 2; k++) {
        for (i = 0; i <= PAIRS && !c.failed; i++) {
            if (i < PAIRS && strstr(pairs[i].to, "P(")) { /* its summands come to the whole */
                mesh_tensor whole, part;
                two_layouts(&c, &part, &whole, "", "", ROWS, COLUMNS);
                CHECK_OK(mesh_redistribute(&c, &dst[i], &whole), c.error);
                CHECK_INT(wrong_part(&whole, t->rank, pairs[i].times), 0);
                free(part.data), free(whole.data);
            } else {
                CHECK_INT(wrong_part(&dst[i], t->rank, i < PAIRS ? pairs[i].times : 1), 0);
            }
            set_part(&dst[i], t->rank, 77);
        }
        if (k == 0) CHECK_OK(mesh_redistribute_many(&c, padded, dst, PAIRS + 1), c.error);
    }
    mesh_comm_close(&c);
    for (i = 0; i <= PAIRS; i++) free(src[i].data), free(dst[i].data), free(padded[i].data);
    free(plan);
}
static void test_two_hosts(void) { run_world(SIM, 8, two_hosts_rank, NULL); }

/* ---- memory in any order ---- */

static float cell_of(int64_t linear, int rank, int partial) {
    return (float)(linear % 1013 + 1) * (partial ? (float)(rank + 1) : 1);
}

/* A part in memory whose dims lie in any order, padded here and there; written, or compared with what it should be (times). */
typedef struct any_part {
    mesh_tensor t;
    mesh_box box;
    int64_t stride[MESH_MAX_DIMS], bytes;
} any_part;
static void any_lay(any_part *p, test_random *r, int rank) {
    int order[MESH_MAX_DIMS], n = p->t.layout.ndim, i, k;
    int64_t span = 1;
    memset(&p->box, 0, sizeof p->box);
    mesh_tensor_box(&p->t, rank, &p->box);
    for (i = 0; i < n; i++) order[i] = i;
    for (i = n - 1; i > 0; i--) {
        int swap = order[i];
        k = random_below(r, i + 1);
        order[i] = order[k], order[k] = swap;
    }
    for (i = 0; i < n; i++) {
        p->stride[order[i]] = span + (random_below(r, 4) == 0) * (1 + random_below(r, 3));
        if (p->box.shape[order[i]] > 1) span = p->stride[order[i]] * p->box.shape[order[i]];
    }
    p->bytes = (span + 8) * (int64_t)sizeof(float);
    p->t.strides = p->stride;
}
static int any_visit(const any_part *p, int rank, int write, float times, int partial) {
    int64_t n = mesh_box_count(&p->box), e;
    int wrong = 0, d;
    for (e = 0; e < n; e++) {
        int64_t rest = e, at = 0, linear = 0, place = 1;
        for (d = p->t.layout.ndim - 1; d >= 0; d--) {
            int64_t i = rest % p->box.shape[d];
            rest /= p->box.shape[d];
            at += i * p->stride[d];
            linear += (i + p->box.offset[d]) * place;
            place *= p->t.layout.shape[d];
        }
        if (write)
            ((float *)p->t.data)[at] = cell_of(linear, rank, partial);
        else
            wrong += ((float *)p->t.data)[at] != cell_of(linear, 0, 0) * times;
    }
    return wrong;
}

static void orders_of_dims_rank(mesh_transport *t, void *ctx) {
    static const char *const specs[] = {"", "a:S(0)", "b:S(1)", "a:S(1) b:S(0)", "a:S(0)@1 b:S(0)@0", "a:S(2) b:S(0)"};
    test_random same = random_from(73), own = random_from(79 + (uint64_t)t->rank);
    int round, k;
    mesh_comm c;
    mesh_error err;
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=2", NULL, 20 * SECOND)) return;
    for (round = 0; round < 60 && !test_failures; round++) {
        int partial = random_below(&same, 3) == 0, d;
        int64_t shape[3];
        any_part p[2];
        for (d = 0; d < 3; d++) shape[d] = 1 + random_below(&same, round % 10 ? 9 : 40);
        for (k = 0; k < 2; k++) {
            const char *spec = !k && partial ? "a:P(sum) b:S(1)" : specs[random_below(&same, 6)];
            CHECK_OK(mesh_tensor_make(&p[k].t, &c.on, spec, MESH_F32, 3, shape, &err), err);
            any_lay(&p[k], &own, t->rank);
            p[k].t.data = malloc((size_t)p[k].bytes);
            memset(p[k].t.data, 0xee, (size_t)p[k].bytes);
        }
        any_visit(&p[0], t->rank, 1, 1, partial);
        CHECK_OK(mesh_redistribute(&c, &p[0].t, &p[1].t), c.error);
        if (!partial) CHECK_INT(any_visit(&p[1], t->rank, 0, 1, 0), 0);
        if (partial) { /* element by element: its column's ranks */
            mesh_layout src = p[0].t.layout;
            int64_t n = mesh_box_count(&p[1].box), e;
            for (e = 0; e < n; e++) {
                int64_t rest = e, at = 0, index[3], linear = 0;
                float sum = 0;
                for (d = 2; d >= 0; d--) index[d] = rest % p[1].box.shape[d], rest /= p[1].box.shape[d];
                for (d = 0; d < 3; d++) at += index[d] * p[1].stride[d], index[d] += p[1].box.offset[d];
                for (d = 0; d < 3; d++) linear = linear * shape[d] + index[d];
                for (k = 0; k < 2; k++) sum += cell_of(linear, mesh_layout_owner(&src, index, k), 1);
                if (((float *)p[1].t.data)[at] != sum)
                    test_fail(__FILE__, __LINE__, "round %d: element %d", round, (int)e);
            }
        }
        free(p[0].t.data), free(p[1].t.data);
    }
    mesh_comm_close(&c);
}
static void test_orders_of_dims(void) {
    run_world(SIM, 4, orders_of_dims_rank, NULL);
    run_world(TCP, 4, orders_of_dims_rank, NULL);
}

/* A distributed transpose: a view of the source with its dims in another order. */
/* What is missing is named, whichever it is. */
static void redistribute_without(mesh_comm *c, const mesh_tensor *x) {
    static mesh_plan plan;
    mesh_comm closed = MESH_ZERO;
    int64_t nbytes = 7;
    mesh_error err;
    CHECK_INT(mesh_redistribute_plan(&closed, &plan, x, x, &err), MESH_ERR_STATE);
    CHECK_HAS(err.text, "mesh_redistribute_plan: the comm is not open");
    CHECK_INT(mesh_redistribute_plan(c, NULL, x, x, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the plan is NULL");
    CHECK_INT(mesh_redistribute_plan(c, &plan, NULL, x, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the source is NULL");
    CHECK_INT(mesh_redistribute_plan(c, &plan, x, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the destination is NULL");
    CHECK_INT(mesh_redistribute_scratch_bytes(&closed, x, x, 1, &nbytes, &err), MESH_ERR_STATE);
    CHECK_HAS(err.text, "mesh_redistribute_scratch_bytes: the comm is not open");
    CHECK_INT(mesh_redistribute_scratch_bytes(c, x, x, 1, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "1 tensors, and nbytes is NULL");
    CHECK_INT(mesh_redistribute_scratch_bytes(c, x, NULL, 1, &nbytes, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_redistribute_scratch_bytes(c, x, x, -1, &nbytes, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "-1 tensors, and a list that is NULL, or fewer than none");
    CHECK_INT(nbytes, 7);
}

static void transposed_rank(mesh_transport *t, void *ctx) {
    static const char *const specs[] = {"a:S(0)", "a:S(1)", "", "b:S(2) a:S(0)", "a:S(1) b:S(1)"};
    static const int orders[][3] = {{0, 1, 2}, {1, 0, 2}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}};
    test_random same = random_from(83);
    int round, d;
    mesh_comm c;
    mesh_error err;
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=2", NULL, 20 * SECOND)) return;
    for (round = 0; round < 40 && !test_failures; round++) {
        const int *order = orders[random_below(&same, 6)];
        int64_t shape[3], turned[3], strides[3], e, n;
        mesh_tensor src, view, dst, back;
        mesh_box box;
        float *want;
        for (d = 0; d < 3; d++) shape[d] = 1 + random_below(&same, 11);
        for (d = 0; d < 3; d++) turned[d] = shape[order[d]];
        CHECK_OK(mesh_tensor_make(&src, &c.on, specs[random_below(&same, 5)], MESH_F32, 3, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&dst, &c.on, specs[random_below(&same, 5)], MESH_F32, 3, turned, &err), err);
        src.data = calloc((size_t)mesh_tensor_count(&src, t->rank) + 1, 4);
        dst.data = calloc((size_t)mesh_tensor_count(&dst, t->rank) + 1, 4);
        n = mesh_tensor_box(&src, t->rank, &box);
        want = (float *)malloc((size_t)(n + 1) * 4);
        for (e = 0; e < n; e++) {
            int64_t rest = e, index[3], linear = 0;
            for (d = 2; d >= 0; d--) index[d] = rest % box.shape[d] + box.offset[d], rest /= box.shape[d];
            for (d = 0; d < 3; d++) linear = linear * shape[d] + index[d];
            ((float *)src.data)[e] = want[e] = (float)linear;
        }
        CHECK_OK(mesh_tensor_permute(&view, &src, order, t->rank, strides, &err), err);
        CHECK_OK(mesh_redistribute(&c, &view, &dst), c.error);
        mesh_tensor_box(&dst, t->rank, &box);
        for (e = 0; e < mesh_box_count(&box); e++) {
            int64_t rest = e, index[3], linear = 0;
            for (d = 2; d >= 0; d--) index[order[d]] = rest % box.shape[d] + box.offset[d], rest /= box.shape[d];
            for (d = 0; d < 3; d++) linear = linear * shape[d] + index[d];
            if (((float *)dst.data)[e] != (float)linear) test_fail(__FILE__, __LINE__, "round %d, %d", round, (int)e);
        }
        memset(src.data, 0, (size_t)n * 4); /* and back, into the view */
        back = view;
        CHECK_OK(mesh_redistribute(&c, &dst, &back), c.error);
        CHECK(!memcmp(src.data, want, (size_t)n * 4));
        free(src.data), free(dst.data), free(want);
    }
    if (t->rank == 0) {
        static const int64_t shape[2] = {3, 4}, outer[2] = {9, 2};
        static const int twice[2] = {1, 1}, beyond[2] = {0, 2}, turn[2] = {1, 0};
        mesh_tensor x, view, before;
        int64_t strides[2];
        CHECK_OK(mesh_tensor_make(&x, &c.on, "b:S(1)@0", MESH_F32, 2, shape, &err), err);
        memset(&view, 0x5a, sizeof view);
        before = view;
        CHECK_INT(mesh_tensor_permute(&view, &x, twice, 0, strides, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "dims[1] is 1; name each of the 2 dims once");
        CHECK_INT(mesh_tensor_permute(&view, &x, beyond, 0, strides, &err), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_tensor_permute(&view, &x, NULL, 0, strides, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "dims is NULL");
        CHECK_INT(mesh_tensor_permute(&view, &x, turn, 0, NULL, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "strides is NULL");
        CHECK(!memcmp(&view, &before, sizeof view));
        redistribute_without(&c, &x);
        x.strides = outer;
        CHECK_OK(mesh_tensor_permute(&view, &x, turn, 0, strides, &err), err);
        CHECK(strides[0] == 2 && strides[1] == 9 && view.layout.shape[0] == 4 && view.layout.spec.axis[1].dim == 0);
    }
    mesh_comm_close(&c);
}
static void test_transposed(void) {
    run_world(SIM, 4, transposed_rank, NULL);
    run_world(TCP, 4, transposed_rank, NULL);
}

/* In place: wherever one of a rank's parts holds the other, they share its memory; what comes is what comes to memory of its own. */
static void shared_memory_rank(mesh_transport *t, void *ctx) {
    static const char *const specs[] = {
        "",       "a:S(0)",          "b:S(0)",   "a:S(0) b:S(0)",     "a:S(0) b:S(1)",   "a:S(0)@1 b:S(0)@0",
        "b:S(1)", "a:P(sum) b:S(1)", "a:P(sum)", "a:P(sum) b:P(sum)", "a:S(0) b:P(sum)", "b:P(sum)"};
    int cap = *(int *)ctx, round, k, shared = 0;
    test_random same = random_from(89 + (uint64_t)cap);
    mesh_comm c;
    mesh_error err;
    mesh_comm_desc desc = MESH_ZERO;
    mesh m;
    desc.scratch_cap = cap == 1 ? 400000 : 0;
    desc.timeout_ns = 20 * SECOND;
    CHECK_OK(mesh_parse(&m, "a=2,b=2", 4, &err), err);
    CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
    for (round = 0; round < (cap ? 60 : 200) && !test_failures; round++) {
        int64_t shape[2], n[2], elem = 4, i, strides[2];
        mesh_tensor x[2], y[2], *small, *big;
        mesh_box box[2];
        int large, fits = 1, d, said, mine, all;
        float *own, *own_out;
        shape[0] = 1 + random_below(&same, 20), shape[1] = 1 + random_below(&same, cap ? 9000 : 12);
        for (k = 0; k < 2; k++) {
            CHECK_OK(mesh_tensor_make(&x[k], &c.on, specs[random_below(&same, k ? 9 : 12)], MESH_F32, 2, shape, &err),
                     err);
            n[k] = mesh_tensor_box(&x[k], t->rank, &box[k]);
            y[k] = x[k];
        }
        own = (float *)malloc((size_t)(n[0] + 1) * 4), own_out = (float *)malloc((size_t)(n[1] + 1) * 4);
        for (i = 0; i < n[0]; i++) own[i] = (float)((i * 31 + t->rank * 7 + round) % 97);
        y[0].data = own, y[1].data = own_out;
        said = mesh_redistribute(&c, &y[0], &y[1]); /* apart */
        if (said != MESH_OK) {                      /* not with so little scratch */
            CHECK_INT(said, MESH_ERR_MEMORY);
            c.failed = 0, memset(&c.error, 0, sizeof c.error);
            free(own), free(own_out);
            mesh_comm_close(&c);
            CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
            continue;
        }
        large = n[1] > n[0];
        small = &x[!large], big = &x[large];
        for (d = 0; d < 2; d++)
            fits &= box[!large].offset[d] >= box[large].offset[d] &&
                    box[!large].offset[d] + box[!large].shape[d] <= box[large].offset[d] + box[large].shape[d];
        big->data = malloc((size_t)(n[large] + 1) * elem);
        if (fits && n[!large]) {
            strides[0] = box[large].shape[1], strides[1] = 1;
            x[0].strides = x[1].strides = strides;
            small->data = (float *)big->data + (box[!large].offset[0] - box[large].offset[0]) * strides[0] +
                          (box[!large].offset[1] - box[large].offset[1]);
        } else {
            fits = 0;
            small->data = malloc((size_t)(n[!large] + 1) * elem);
        }
        memset(big->data, 0xee, (size_t)(n[large] + 1) * 4);
        for (i = 0; i < n[0]; i++) {
            int64_t row = box[0].shape[1] ? i / box[0].shape[1] : 0, column = box[0].shape[1] ? i % box[0].shape[1] : 0;
            ((float *)x[0].data)[fits ? row * strides[0] + column : i] = own[i];
        }
        mine = mesh_redistribute_scratch_bytes(&c, &x[0], &x[1], 1, &i, &err) == MESH_OK;
        if (!mine) CHECK_HAS(err.text, "neither is a part of the other there");
        CHECK_OK(mesh_all_reduce(&c, NULL, &mine, &all, 1, MESH_I32, MESH_MIN), c.error);
        if (all) {
            CHECK_OK(mesh_redistribute(&c, &x[0], &x[1]), c.error);
            for (i = 0; i < n[1]; i++) {
                int64_t row = i / box[1].shape[1], column = i % box[1].shape[1];
                float got = ((float *)x[1].data)[fits ? row * strides[0] + column : i];
                if (got != own_out[i]) {
                    char from[64], to[64];
                    mesh_spec_format(&x[0].layout.spec, &c.on, from, sizeof from);
                    mesh_spec_format(&x[1].layout.spec, &c.on, to, sizeof to);
                    test_fail(__FILE__, __LINE__, "round %d, %s -> %s of %dx%d: element %d is %g, apart %g", round,
                              from, to, (int)shape[0], (int)shape[1], (int)i, got, own_out[i]);
                    break;
                }
            }
        }
        shared += all && fits;
        if (!fits) free(small->data);
        free(big->data), free(own), free(own_out);
    }
    CHECK(shared > (cap ? 20 : 100));
    mesh_comm_close(&c);
}
static void test_shared_memory(void) {
    int cap;
    for (cap = 0; cap < 3; cap++) run_world(SIM, 4, shared_memory_rank, &cap);
    for (cap = 0; cap < 3; cap++) run_world(TCP, 4, shared_memory_rank, &cap);
}

/* ---- strided parts that lie between each other's rows ---- */

static mesh__place_of place_at(unsigned char *base, int ndim, const int64_t *shape, const int64_t *stride) {
    mesh__place_of p;
    int d;
    memset(&p, 0, sizeof p);
    p.base = base;
    p.box.ndim = ndim;
    for (d = 0; d < ndim; d++) p.box.shape[d] = shape[d], p.stride[d] = stride[d];
    return p;
}

static int places_have_in_common(const mesh__place_of *a, int64_t a_elem, const mesh__place_of *b, int64_t b_elem,
                                 const unsigned char *arena) {
    static unsigned char seen[1 << 14];
    const mesh__place_of *p = a;
    int64_t elem = a_elem, i, k, j, n, at;
    int side, d, common = 0;
    memset(seen, 0, sizeof seen);
    for (side = 0; side < 2; side++, p = b, elem = b_elem) {
        for (n = 1, d = 0; d < p->box.ndim; d++) n *= p->box.shape[d];
        for (i = 0; i < n; i++) {
            for (at = p->base - arena, k = i, d = p->box.ndim - 1; d >= 0; k /= p->box.shape[d], d--)
                at += k % p->box.shape[d] * p->stride[d];
            for (j = 0; j < elem; j++) common |= seen[at + j] & 1 && side, seen[at + j] |= !side;
        }
    }
    return common;
}

/* Against every byte: what shares one is always told; of boxes of one array, padded or not, nothing else is, and of other parts little. */
static void test_interleaved_law(void) {
    static unsigned char arena[1 << 14];
    conf_random r;
    int i, d, told = 0, apart = 0, between = 0;
    r.state = test_seed * UINT64_C(0x9e3779b97f4a7c15) + 5;
    for (i = 0; i < 20000; i++) {
        mesh__place_of p[2];
        int64_t elem[2], shape[2][4], stride[2][4], whole[4], at[2] = {0, 0};
        int ndim = 1 + conf_below(&r, 3), side, boxes = conf_below(&r, 4) != 0, meet, common;
        elem[0] = elem[1] = 1 << conf_below(&r, 3);
        for (d = 0; d < ndim; d++) whole[d] = 1 + conf_below(&r, 7);
        for (side = 0; side < 2; side++) {
            int64_t span = elem[side];
            if (!boxes) elem[side] = span = 1 << conf_below(&r, 3);
            for (d = ndim - 1; d >= 0; d--) {
                int64_t first = conf_below(&r, (int)whole[d]);
                shape[side][d] = 1 + conf_below(&r, (int)(whole[d] - first));
                if (boxes && side == 0) stride[0][d] = span + elem[0] * conf_below(&r, 3);
                if (boxes && side == 1) stride[1][d] = stride[0][d];
                if (!boxes) stride[side][d] = span + conf_below(&r, 5);
                at[side] += first * stride[side][d];
                span = boxes ? whole[d] * stride[side][d] : stride[side][d] * (shape[side][d] - 1) + span;
            }
            p[side] = place_at(arena + at[side], ndim, shape[side], stride[side]);
            for (d = 0; d < ndim && side && i & 1; d++) /* columns first */
                p[1].box.shape[d] = shape[1][ndim - 1 - d], p[1].stride[d] = stride[1][ndim - 1 - d];
        }
        meet = mesh__places_meet(&p[0], elem[0], &p[1], elem[1]);
        common = places_have_in_common(&p[0], elem[0], &p[1], elem[1], arena);
        CHECK(meet || !common);
        CHECK(!boxes || meet == common);
        CHECK_INT(mesh__places_meet(&p[1], elem[1], &p[0], elem[0]), meet);
        told += meet, apart += !meet;
        between += !meet && mesh__overlap(p[0].base, mesh__place_bytes(&p[0], elem[0]), p[1].base,
                                          mesh__place_bytes(&p[1], elem[1]));
    }
    CHECK(told > 1000 && apart > 1000 && between > 1000);
}

/* Three blocks of columns of one weight (queries, keys, values) go to those of another, turned; then each to where another was. */
static void interleaved_rank(mesh_transport *t, void *ctx) {
    enum { ROWS = 12, EACH = 4, WIDE = 3 * EACH };
    static const int64_t shape[2] = {ROWS, EACH}, stride[2] = {WIDE, 1}, odd[2] = {WIDE - 1, 1};
    int32_t *from = (int32_t *)calloc(2 * ROWS * WIDE, sizeof *from), *to = from + ROWS * WIDE;
    mesh_tensor src[3], dst[3];
    mesh_comm c;
    mesh_error err;
    int i, k, row, n = t->size, rows = ROWS / n;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (i = 0; i < 3; i++) {
        CHECK_OK(mesh_tensor_make(&src[i], &c.on, "x:S(0)", MESH_I32, 2, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&dst[i], &c.on, "x:R", MESH_I32, 2, shape, &err), err);
        src[i].data = from + i * EACH, dst[i].data = to + (2 - i) * EACH;
        src[i].strides = dst[i].strides = stride;
    }
    for (row = 0; row < rows; row++)
        for (k = 0; k < WIDE; k++) from[row * WIDE + k] = (t->rank * rows + row) * 100 + k;
    CHECK_OK(mesh_redistribute_many(&c, src, dst, 3), c.error);
    for (row = 0; row < ROWS; row++)
        for (k = 0; k < WIDE; k++)
            CHECK_INT(to[row * WIDE + k], row * 100 + (2 - k / EACH) * EACH + k % EACH);
    /* Both within one array, which no element is twice in. */
    CHECK_OK(mesh_tensor_make(&src[0], &c.on, "x:S(0)", MESH_I32, 2, shape, &err), err);
    CHECK_OK(mesh_tensor_make(&dst[0], &c.on, "x:R", MESH_I32, 2, shape, &err), err);
    src[0].data = to, dst[0].data = to + EACH, src[0].strides = dst[0].strides = stride;
    for (row = 0; row < rows; row++)
        for (k = 0; k < EACH; k++) to[row * WIDE + k] = -(t->rank * rows + row) * 10 - k;
    CHECK_OK(mesh_redistribute(&c, &src[0], &dst[0]), c.error);
    for (row = 0; row < ROWS; row++)
        for (k = 0; k < EACH; k++) {
            CHECK_INT(to[row * WIDE + EACH + k], -row * 10 - k);
            CHECK_INT(to[row * WIDE + 2 * EACH + k], row * 100 + k);
        }
    src[0].data = to + 2 * EACH, dst[0].data = to; /* a schedule of before, whose ends go different ways */
    CHECK_OK(mesh_redistribute(&c, &src[0], &dst[0]), c.error);
    for (row = 0; row < ROWS; row++)
        for (k = 0; k < WIDE; k++)
            CHECK_INT(to[row * WIDE + k], k < EACH       ? row % rows * 100 + k
                                          : k < 2 * EACH ? -row * 10 - (k - EACH)
                                                         : row * 100 + k - 2 * EACH);
    src[0].data = to;
    come_together(&c);
    dst[0].data = to + (n > 2 ? EACH - 1 : 0); /* a column is in both */
    if (n > 2) {
        CHECK_INT(mesh_redistribute(&c, &src[0], &dst[0]), MESH_ERR_ARGUMENT);
        CHECK_HAS(c.error.text, "source and destination overlap in memory");
    } else {
        src[0].data = from, dst[1].strides = odd;
        CHECK_INT(mesh_redistribute_many(&c, src, dst, 2), MESH_ERR_ARGUMENT);
        CHECK_HAS(c.error.text, "what tensor 0 or 1 receives overlaps the other");
    }
    free(from);
    mesh_comm_close(&c);
}
static void test_interleaved(void) {
    run_world(SIM, 2, interleaved_rank, NULL);
    run_world(SIM, 4, interleaved_rank, NULL);
    run_world(SHARED, 3, interleaved_rank, NULL);
    run_world(TCP, 2, interleaved_rank, NULL);
}

static const test_case redistribute_tests[] = {
    {"redistribute/interleaved", test_interleaved, 60},
    {"redistribute/interleaved_law", test_interleaved_law, 60},
    {"redistribute/orders_of_dims", test_orders_of_dims, 0},
    {"redistribute/transposed", test_transposed, 0},
    {"redistribute/shared_memory", test_shared_memory, 0},
    {"redistribute/late", test_redistribute_late, 0}, {"redistribute/summands", test_redistribute_summands, 0}, {"redistribute/sim", test_redistribute_sim, 0},
    {"redistribute/tcp", test_redistribute_tcp, 0},
    {"redistribute/unix", test_redistribute_unix, 0}, {"redistribute/shared", test_redistribute_shared, 0},
    {"redistribute/lists", test_lists_of_tensors, 0},
    {"redistribute/two_hosts", test_two_hosts, 0},
    {"redistribute/scratch", test_scratch, 0},
    {"redistribute/refused", test_refused_tensors, 0},
    {"redistribute/differing", test_differing_layouts, 0},
};
