/* mesh/redistribute.h, again: plans and schedules that are kept, and calls that are known by their tensors. */

/* Redistributions in any order, again and again: each goes by the plan that a search of its own finds, and a search is spared. Of a mesh on a
   device table of its own nothing is known by the next call. */
static void plans_kept_rank(mesh_transport *t, void *ctx) {
    static const char *const specs[] = {"a:S(0) b:R", "a:R b:S(0)", "a:S(1) b:S(0)", "a:S(0) b:S(0)", "a:R b:R", "a:S(0)@1 b:S(0)@0", "a:P(sum) b:S(1)"};
    enum { NSPECS = sizeof specs / sizeof *specs, DRAWS = 400, LIST = 150 };
    mesh_tensor list[2][LIST];
    test_random r = random_from(77);
    mesh_comm c, other;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *pages = NULL;
    int64_t last_rows = 0, nbytes;
    int i, k, draws, known = 0, made_room = 0, last_from = -1, last_to = -1, order[4], inverse[4], size = 4;
    const char *name = "x";
    const mesh__engine *e;
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=-1", NULL, 20 * SECOND)) return;
    e = mesh__impl(&c)->engine;
    desc.scratch_cap = 500;
    CHECK_OK(mesh_comm_open(&other, t, &c.on, &desc, &err), err);
    for (draws = 0; draws < DRAWS || (last_from < 0 && draws < 8 * DRAWS); draws++) { /* until the cap was met, too */
        int from = random_below(&r, NSPECS), to = random_below(&r, NSPECS - 1), add = random_below(&r, 4) == 0, capped = random_below(&r, 4) == 0;
        mesh_tensor src, dst;
        mesh_plan fresh;
        mesh_plan_desc d;
        const mesh_plan *kept;
        mesh_status status;
        mesh_comm *on = capped ? &other : &c;
        two_layouts(on, &src, &dst, specs[from], specs[to], 12 + draws % 2, 9);
        dst.add = add;
        set_part(&src, t->rank, 1);
        mesh__tensor_desc(on, &src, &dst, &d);
        kept = mesh__plan_kept(on, &d);
        known += kept != NULL;
        status = mesh_redistribute_plan(on, &fresh, &src, &dst, &err);
        if (status != MESH_OK) { /* the cap */
            CHECK(capped && add);
            last_from = from, last_to = to, last_rows = src.layout.shape[0];
        } else {
            CHECK_OK(mesh_redistribute(on, &src, &dst), on->error);
            CHECK_INT(wrong_part(&dst, t->rank, from == NSPECS - 1 ? 2 : 1), 0);
            CHECK(kept == NULL || kept->hash == fresh.hash);
            CHECK(e->ring[(e->ring_count - 1) % MESH__RING].record.count == fresh.hash);
            kept = mesh__plan_kept(on, &d);
            CHECK(kept == NULL || kept->hash == fresh.hash);
            made_room += kept == NULL; /* while its schedule, which served, stayed */
        }
        free(src.data), free(dst.data);
    }
    for (i = 0; i < LIST; i++) {
        two_layouts(&c, &list[0][i], &list[1][i], specs[i % NSPECS], specs[(i + 3) % (NSPECS - 1)], 4 + i / 2, 9);
        set_part(&list[0][i], t->rank, 1);
    }
    for (k = 0; k < 3; k++) { /* more than there is room for: what the first ones found makes room for the last ones */
        CHECK_OK(mesh_redistribute_many(&c, list[0], list[1], k == 1 ? 40 : LIST), c.error);
        for (i = 0; i < LIST; i++) CHECK_INT(wrong_part(&list[1][i], t->rank, i % NSPECS == NSPECS - 1 ? 2 : 1), 0);
    }
    for (i = 0; i < LIST; i++) free(list[0][i].data), free(list[1][i].data);
    CHECK_INT(posix_memalign(&pages, page, 6 * page), 0);
    CHECK(made_room < draws / 20);
    CHECK(known > draws / 3); /* of 84 different ones and more, in the room of 64 for each comm */
    for (i = 0; i < 6; i++) {
        mesh_tensor src, dst;
        mesh_desc turned = MESH_ZERO;
        mesh_table *table = (mesh_table *)(void *)((unsigned char *)pages + (size_t)i * page);
        mesh m;
        for (k = 0; k < 4; k++) order[k] = i % 2 ? 3 - k : (k + i / 2) % 4;
        CHECK_OK(mesh_table_make(table, order, 4, inverse, 4, &err), err);
        turned.table = table;
        turned.shape = &size, turned.names = &name, turned.naxes = 1;
        CHECK_OK(mesh_make(&m, &turned, &err), err);
        two_layouts(&c, &src, &dst, "a:S(0) b:S(0)", "a:R b:R", 64, 9);
        free(src.data), free(dst.data);
        src.layout.on = dst.layout.on = &m;
        CHECK_OK(mesh_spec_parse(&src.layout.spec, &m, "x:S(0)", 2, &err), err);
        CHECK_OK(mesh_spec_parse(&dst.layout.spec, &m, "x:S(1)", 2, &err), err);
        src.data = calloc(64 * 9, 4), dst.data = calloc(64 * 9, 4);
        set_part(&src, t->rank, 1);
        CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
        CHECK_INT(wrong_part(&dst, t->rank, 1), 0);
        free(src.data), free(dst.data);
        CHECK_INT(mprotect(table, page, PROT_NONE), 0);
    }
    CHECK(last_from >= 0);
    for (i = 0; i < 2; i++) { /* its plan is kept now, and takes more than the cap leaves beside what is added */
        mesh_tensor src, dst;
        two_layouts(&other, &src, &dst, specs[last_from], specs[last_to], last_rows, 9);
        dst.add = i;
        CHECK_INT(mesh_redistribute_scratch_bytes(&other, &src, &dst, 1, &nbytes, &err), i ? MESH_ERR_MEMORY : MESH_OK);
        free(src.data), free(dst.data);
    }
    mesh_comm_close(&other);
    mesh_comm_close(&c);
    CHECK_INT(mprotect(pages, 6 * page, PROT_READ | PROT_WRITE), 0);
    free(pages);
}
static void test_plans_kept(void) {
    run_world(SIM, 4, plans_kept_rank, NULL);
    run_world(TCP, 4, plans_kept_rank, NULL);
}

/* The schedules of before serve again, at other addresses: in any order, several at once, of two comms, with strides that differ here and there,
   in place and added between, kept and prepared. What they find there is theirs alone. */
enum { AGAIN_SPECS = 5, AGAIN_MOST = 3 };
static int rested(const mesh__engine *e) {
    const mesh__op *op = e->rested;
    int n = 0;
    for (; op; op = op->next_unused) n++;
    return n;
}
/* Of schedules together larger than there is room for, the last ones stay; one that is larger alone does not. */
static void rested_memory(mesh__engine *e) {
    static const int xfers[] = {1000, 2000, 1500, 596, 1, MESH__RESTED_XFERS, MESH__RESTED_XFERS + 1}, left[] = {1, 2, 2, 3, 3, 1, 0};
    mesh__op *rest = e->rested, *unused = e->unused, op[sizeof xfers / sizeof *xfers];
    size_t i;
    e->rested = e->unused = NULL;
    memset(op, 0, sizeof op);
    for (i = 0; i < sizeof xfers / sizeof *xfers; i++) {
        op[i].schedule.nxfers = xfers[i];
        mesh__op_rest(e, &op[i]);
        CHECK_INT(rested(e), left[i]);
        CHECK(!left[i] || e->rested == &op[i]);
    }
    for (i = 0; e->unused; e->unused = e->unused->next_unused) i++;
    CHECK_INT(i, sizeof op / sizeof *op); /* what made room is free */
    e->rested = rest, e->unused = unused;
}
static void schedules_kept_rank(mesh_transport *t, void *ctx) {
    static const char *const specs[AGAIN_SPECS] = {"a:S(0) b:S(1)", "b:S(0)", "a:S(1) b:S(0)", "a:S(0)@1 b:S(0)@0", "a:S(2) b:S(0)"};
    static const int64_t shapes[2][3] = {{9, 6, 8}, {5, 11, 4}};
    test_random same = random_from(91);
    mesh_comm c[2];
    mesh_error err;
    mesh__engine *e;
    int round, again = 0, i, k;
    (void)ctx;
    if (!open_comm(t, &c[0], "a=2,b=2", NULL, 20 * SECOND) || !open_comm(t, &c[1], "a=2,b=2", NULL, 20 * SECOND)) return;
    e = mesh__impl(&c[0])->engine;
    for (round = 0; round < 300 && !test_failures; round++) {
        uint64_t now = round % 9 < 3 ? (uint64_t)round / 9 : (uint64_t)random_below(&same, 12); /* now and then a new one, thrice */
        test_random what = random_from(now);
        mesh_comm *on = &c[random_below(&what, 2)];
        const int64_t *shape = shapes[random_below(&what, 2)];
        any_part p[AGAIN_MOST][2];
        mesh_request r[AGAIN_MOST];
        int from = random_below(&what, AGAIN_SPECS), to = random_below(&what, AGAIN_SPECS);
        int count = 1 + random_below(&same, AGAIN_MOST), add = random_below(&same, 5) == 0, kept = random_below(&same, 4);
        for (i = 0; i < count; i++) {
            test_random lay = random_from((uint64_t)random_below(&same, 2));
            for (k = 0; k < 2; k++) {
                CHECK_OK(mesh_tensor_make(&p[i][k].t, &on->on, specs[k ? to : from], MESH_F32, 3, shape, &err), err);
                any_lay(&p[i][k], &lay, t->rank);
                p[i][k].t.data = malloc((size_t)p[i][k].bytes);
                memset(p[i][k].t.data, 0, (size_t)p[i][k].bytes);
            }
            if (from == to && random_below(&same, 2)) { /* in place */
                free(p[i][1].t.data);
                p[i][1] = p[i][0];
            } else {
                p[i][1].t.add = add;
            }
            any_visit(&p[i][0], t->rank, 1, 1, 0);
        }
        for (i = 0; i < count; i++) {
            int before = rested(e);
            if (kept == 2 && i == 0) {
                CHECK_OK(mesh_prepare(on), on->error);
                CHECK_OK(mesh_redistribute_start(on, &p[i][0].t, &p[i][1].t, &r[i]), on->error);
                CHECK_OK(mesh_restart(r[i]), on->error);
            } else {
                CHECK_OK(mesh_redistribute_start(on, &p[i][0].t, &p[i][1].t, &r[i]), on->error);
            }
            again += rested(e) < before;
            if (kept == 1) CHECK_OK(mesh_keep(r[i]), on->error);
        }
        for (i = 0; i < count; i++) CHECK_OK(mesh_wait(r[i]), on->error);
        for (i = 0; i < count && kept == 1; i++) {
            if (!p[i][1].t.add) CHECK_OK(mesh_restart(r[i]), on->error);
            if (!p[i][1].t.add) CHECK_OK(mesh_wait(r[i]), on->error);
            CHECK_OK(mesh_release(r[i]), on->error);
        }
        if (kept == 2) CHECK_OK(mesh_release(r[0]), on->error);
        for (i = 0; i < count; i++) {
            CHECK_INT(any_visit(&p[i][1], t->rank, 0, 1, 0), 0);
            if (p[i][1].t.data != p[i][0].t.data) free(p[i][1].t.data);
            free(p[i][0].t.data);
        }
    }
    CHECK(again > 80); /* of some 600, by what is drawn */
    CHECK_INT(rested(e), MESH__RESTED);
    rested_memory(e);
    mesh_comm_close(&c[1]);
    for (i = 0; i < 40 && !test_failures; i++) { /* the same call, and a barrier between that does not take its slot; another comm's plans are gone */
        mesh_tensor src, dst;
        mesh_request r[2];
        memset(r, 0, sizeof r);
        if (i % 10 == 5) CHECK_OK(mesh_comm_open(&c[1], t, &c[0].on, NULL, &err), err);
        two_layouts(&c[i % 10 == 5], &src, &dst, "b:S(0)", "a:S(1) b:S(0)", 64, 9);
        set_part(&src, t->rank, 1);
        for (k = 0; k < 2; k++) {
            CHECK_OK(mesh_redistribute_start(src.layout.on == &c[0].on ? &c[0] : &c[1], &src, &dst, &r[k]), c[0].error);
            CHECK_OK(mesh_wait(r[k]), c[0].error);
            CHECK_OK(mesh_barrier(&c[0], NULL), c[0].error);
        }
        CHECK_INT(wrong_part(&dst, t->rank, 1), 0);
        if (i % 10 != 5 && i > 0) CHECK(r[0].slot == r[1].slot && r[0].generation != r[1].generation);
        free(src.data), free(dst.data);
        if (i % 10 == 5) mesh_comm_close(&c[1]);
    }
    mesh_comm_close(&c[0]);
}
static void test_schedules_kept(void) {
    run_world(SIM, 4, schedules_kept_rank, NULL);
    run_world(TCP, 4, schedules_kept_rank, NULL);
    run_world(SHARED, 4, schedules_kept_rank, NULL);
}

/* The same call again looks at nothing: it plans nothing, nor asks what was planned. One that differs in anything is looked at as the first one was. */
static int asked_anew(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst, mesh_status expected) {
    mesh__comm_impl *impl = mesh__impl(c);
    void *plans = impl->plans;
    int anew;
    impl->plans = NULL; /* what is kept of a plan is kept here */
    CHECK_INT(mesh_redistribute(c, src, dst), expected);
    anew = impl->plans != NULL;
    if (anew) mesh_transport_free(c->transport, impl->plans);
    impl->plans = plans;
    return anew;
}
static void asked_rank(mesh_transport *t, void *ctx) {
    static const int turned[4] = {2, 3, 0, 1};
    enum { ROWS = 24, COLUMNS = 8 };
    mesh_tensor src, dst, other[2];
    mesh_desc shape = MESH_ZERO;
    mesh_table table;
    int64_t strides[2];
    int sizes[2] = {2, 2}, inverse[4], i;
    const char *names[2] = {"a", "b"};
    mesh_box box;
    mesh_comm c;
    mesh_error err;
    mesh on;
    float *spare = (float *)calloc(ROWS * COLUMNS, 4);
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=2", NULL, 20 * SECOND)) return;
    on = c.on;
    two_layouts(&c, &src, &dst, "b:S(0)", "a:S(1) b:S(0)", ROWS, COLUMNS);
    src.layout.on = dst.layout.on = &on;
    set_part(&src, t->rank, 1);
    for (i = 0; i < 2; i++) CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error); /* the first plans, the second's schedule stays */
    for (i = 0; i < 3; i++) {
        memset(dst.data, 0, 4 * (size_t)mesh_tensor_count(&dst, t->rank));
        CHECK(!asked_anew(&c, &src, &dst, MESH_OK));
        CHECK_INT(wrong_part(&dst, t->rank, 1), 0);
    }
    other[0] = src, other[1] = dst; /* at other addresses, there and back */
    other[0].data = spare, other[1].data = spare + ROWS * COLUMNS / 2;
    set_part(&other[0], t->rank, 2);
    CHECK(!asked_anew(&c, &other[0], &other[1], MESH_OK));
    CHECK_INT(wrong_part(&other[1], t->rank, 2), 0);
    CHECK(!asked_anew(&c, &src, &dst, MESH_OK));
    CHECK_INT(wrong_part(&dst, t->rank, 1), 0);
    /* What differs, in memory or in what it is. */
    other[1].add = 1;
    CHECK(asked_anew(&c, &other[0], &other[1], MESH_OK));
    CHECK_INT(wrong_part(&other[1], t->rank, 4), 0);
    other[1] = dst;
    mesh_tensor_box(&dst, t->rank, &box);
    strides[0] = 1, strides[1] = box.shape[0];
    other[1].strides = strides;
    CHECK(asked_anew(&c, &src, &other[1], MESH_OK));
    CHECK_INT(((float *)dst.data)[1], (box.offset[0] + 1) * 3 + box.offset[1]);
    for (i = 0; i < 2; i++) CHECK_OK(mesh_redistribute(&c, &src, &other[1]), c.error);
    CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
    CHECK_INT(wrong_part(&dst, t->rank, 1), 0);
    other[1] = dst;
    other[0].data = src.data, other[0].dtype = MESH_I32, other[1].dtype = MESH_I32;
    CHECK(asked_anew(&c, &other[0], &other[1], MESH_OK));
    CHECK_INT(wrong_part(&dst, t->rank, 1), 0);
    other[0] = src;
    other[0].layout.shape[0] = other[1].layout.shape[0] = ROWS - 1;
    other[1].dtype = MESH_F32;
    set_part(&other[0], t->rank, 3);
    CHECK(asked_anew(&c, &other[0], &other[1], MESH_OK));
    CHECK_INT(wrong_part(&other[1], t->rank, 3), 0);
    for (i = 0; i < 2; i++) CHECK_OK(mesh_redistribute(&c, &other[0], &other[1]), c.error);
    CHECK_OK(mesh_spec_parse(&other[1].layout.spec, &on, "a:S(0)", 2, &err), err);
    other[1].data = spare;
    CHECK(asked_anew(&c, &other[0], &other[1], MESH_OK));
    CHECK_INT(wrong_part(&other[1], t->rank, 3), 0);
    set_part(&src, t->rank, 1);
    /* Another mesh stands where this one was: the ranks of its first line are those of this one's second. */
    CHECK_OK(mesh_table_make(&table, turned, 4, inverse, 4, &err), err);
    shape.shape = sizes, shape.names = names, shape.naxes = 2, shape.table = &table;
    CHECK_OK(mesh_make(&on, &shape, &err), err);
    other[0] = src, other[1] = dst;
    CHECK(!mesh_equal(&on, &c.on));
    set_part(&other[0], t->rank, 1);
    CHECK_OK(mesh_redistribute(&c, &other[0], &other[1]), c.error);
    CHECK_INT(wrong_part(&other[1], t->rank, 1), 0);
    on = c.on;
    set_part(&src, t->rank, 1);
    CHECK_INT(mesh_redistribute(&c, &src, &dst), MESH_OK);
    CHECK_INT(wrong_part(&dst, t->rank, 1), 0);
    CHECK(!asked_anew(&c, &src, &dst, MESH_OK));
    CHECK_OK(mesh_group_open(&c, "b,a"), c.error); /* a group that is open now may serve better */
    CHECK(asked_anew(&c, &src, &dst, MESH_OK));
    CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
    CHECK(!asked_anew(&c, &src, &dst, MESH_OK));
    free(src.data), free(dst.data), free(spare);
    mesh_comm_close(&c);
}
/* What cannot be. */
static void asked_refused_rank(mesh_transport *t, void *ctx) {
    static const int64_t part[2] = {1, 1};
    enum { ROWS = 24, COLUMNS = 8 };
    mesh_tensor src, dst, bad[2];
    mesh_comm c;
    int i, what = *(const int *)ctx;
    if (!open_comm(t, &c, "a=2,b=2", NULL, 20 * SECOND)) return;
    two_layouts(&c, &src, &dst, "b:S(0)", "a:S(1) b:S(0)", ROWS, COLUMNS);
    set_part(&src, t->rank, 1);
    for (i = 0; i < 2; i++) CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
    CHECK(!asked_anew(&c, &src, &dst, MESH_OK));
    come_together(&c);
    bad[0] = src, bad[1] = dst;
    if (what == 0) bad[1].data = (float *)src.data + 3;
    if (what == 1) bad[0].local_shape = part;
    if (what == 2) bad[1].data = NULL;
    if (what == 3) bad[1].layout.on = NULL;
    CHECK_INT(mesh_redistribute(&c, &bad[0], &bad[1]), MESH_ERR_ARGUMENT);
    CHECK_HAS(c.error.text, what == 0   ? "source and destination overlap in memory"
                            : what == 1 ? "source: the local shape has 1 in dim 1"
                            : what == 2 ? "destination: the data is NULL"
                                        : "destination: layout.on, its mesh, is NULL");
    free(src.data), free(dst.data);
    mesh_comm_close(&c);
}
static void test_asked(void) {
    int what;
    run_world(SIM, 4, asked_rank, NULL);
    run_world(TCP, 4, asked_rank, NULL);
    for (what = 0; what < 4; what++) run_world(SIM, 4, asked_refused_rank, &what);
}

static const test_case kept_plans_tests[] = {
    {"redistribute/schedules_kept", test_schedules_kept, 0},
    {"redistribute/asked", test_asked, 0},
    {"redistribute/plans_kept", test_plans_kept, 0},
};
