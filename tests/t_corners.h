/* Rare corners of the runtime: comms of one id, openings that were given up, buffers that a rank does not use, errors behind the first cause. */

/* X over ranks 2 and 3, Y over 0 and 1, disjoint and of one id: X is aborted while a rank of Y asks one of X's what it waits in. */
static void twins_rank(mesh_transport *t, void *ctx) {
    int64_t aborts = *(const int64_t *)ctx;
    int r = t->rank, two = 2, v = 7;
    mesh_comm all, half;
    mesh_desc d = MESH_ZERO;
    mesh_error err;
    mesh m;
    if (!open_comm(t, &all, "x=4", NULL, 60 * SECOND)) return;
    d.shape = &two, d.naxes = 1, d.origin = r / 2 * 2;
    CHECK_OK(mesh_make(&m, &d, &err), err);
    CHECK_OK(mesh_comm_open(&half, t, &m, NULL, &err), err);
    CHECK_OK(mesh_barrier(&all, NULL), all.error);
    if (r == 0) CHECK_OK(mesh_recv(&all, NULL, 2, &v, 1, MESH_I32), all.error);
    if (r == 1) mesh_sim_sleep(t, 6 * SECOND);
    if (r == 2) {
        CHECK_INT(mesh_recv(&half, NULL, 1, &v, 1, MESH_I32), MESH_ERR_CANCELED);
        CHECK_OK(mesh_send(&all, NULL, 0, &v, 1, MESH_I32), all.error);
    }
    if (r == 3) {
        mesh_sim_sleep(t, aborts);
        mesh_abort(&half, "X is over");
    }
    if (r < 2) CHECK_OK(mesh_barrier(&half, NULL), half.error);
    mesh_comm_close(&half);
    mesh_comm_close(&all);
}

/* An opening over ranks 0, 1, 2 that rank 2 gives up without memory: what the others say of it is not about the next comm, of that id, over 2 and 3. */
static __thread int left_open_after = -1;
static void *left_open_alloc(void *ctx, size_t n) {
    (void)ctx;
    return left_open_after >= 0 && left_open_after-- == 0 ? NULL : malloc(n);
}
static void left_open_free(void *ctx, void *p) {
    (void)ctx;
    free(p);
}
static void left_open_rank(mesh_transport *t, void *ctx) {
    int after = *(const int *)ctx, size = 3;
    mesh_comm a = MESH_ZERO, b;
    mesh_desc d = MESH_ZERO;
    mesh_error err;
    mesh m;
    d.shape = &size, d.naxes = 1;
    CHECK_OK(mesh_make(&m, &d, &err), err);
    if (t->rank < 3) {
        if (t->rank == 2) left_open_after = after;
        if (mesh_comm_open(&a, t, &m, NULL, &err) == MESH_OK && t->rank < 2) CHECK(mesh_barrier(&a, NULL) != MESH_OK || after < 0);
        left_open_after = -1;
    }
    mesh_sim_sleep(t, 2 * SECOND);
    mesh_progress(t, 0);
    mesh_progress(t, mesh_now(t) + SECOND / 2);
    if (t->rank >= 2) {
        size = 2, d.origin = 2;
        CHECK_OK(mesh_make(&m, &d, &err), err);
        CHECK_OK(mesh_comm_open(&b, t, &m, NULL, &err), err);
        CHECK_OK(mesh_barrier(&b, NULL), b.error);
        mesh_comm_close(&b);
    }
    mesh_comm_close(&a);
}
static void test_corner_ids(void) {
    static const int64_t aborts[] = {4 * SECOND / 5, 6 * SECOND / 5, 3 * SECOND / 2, 17 * SECOND / 10, 2 * SECOND};
    mesh_sim_desc d = sim_desc(4);
    size_t i;
    int after;
    d.latency_ns = 3 * SECOND / 10;
    for (i = 0; i < sizeof aborts / sizeof aborts[0]; i++) run_guarded(d, twins_rank, (void *)(uintptr_t)&aborts[i]);
    d = sim_desc(4);
    d.allocator.alloc = left_open_alloc, d.allocator.free = left_open_free;
    for (after = 0; after < 40; after++) {
        mesh_error err;
        CHECK_OK(mesh_sim_run(&d, left_open_rank, &after, &err), err);
    }
}

/* A kept request's buffers where a rank uses one of them: the other may be anything, the same, or lie anywhere. */
static void corner_rebind_rank(mesh_transport *t, void *ctx) {
    enum { N = 4 };
    int n = t->size, root, k, where, i; /* k: broadcast, scatter, reduce, gather, exscan */
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 60 * SECOND)) return;
    for (k = 0; k < 5; k++)
        for (where = 0; where < 5; where++)
            for (root = 0; root < n; root++) {
                int32_t *room = (int32_t *)calloc(1, sizeof *room * 8 * N * (size_t)n), *used = room + 3 * N * n, *old, *to = room + 6 * N * n, *from;
                mesh_request r;
                int is_root = t->rank == root, takes = k == 0 || k == 1 || (k == 4 ? t->rank > 0 : is_root), gives = k > 1 || is_root;
                int32_t want[N], *unused = room + (where == 0 ? 3 : where == 1 ? 0 : where == 2 ? 5 : 3) * N * n + (where == 3 ? N / 2 : 0);
                if (where == 4 || (k == 4 && where != 1 && where != 2)) unused = NULL; /* exscan looks at both everywhere */
                old = takes ? used : unused;        /* recv */
                from = gives ? (takes ? room : used) : unused; /* send */
                for (i = 0; i < 8 * N * n; i++) room[i] = -9;
                switch (k) {
                case 0: CHECK_OK(mesh_broadcast_start(&c, NULL, from, old, N, MESH_I32, root, &r), c.error); break;
                case 1: CHECK_OK(mesh_scatter_start(&c, NULL, from, old, N, MESH_I32, root, &r), c.error); break;
                case 2: CHECK_OK(mesh_reduce_start(&c, NULL, from, old, N, MESH_I32, MESH_SUM, root, &r), c.error); break;
                case 3: CHECK_OK(mesh_gather_start(&c, NULL, from, old, N, MESH_I32, root, &r), c.error); break;
                default: CHECK_OK(mesh_exscan_start(&c, NULL, from, old, N, MESH_I32, MESH_SUM, &r), c.error);
                }
                CHECK_OK(mesh_keep(r), c.error);
                CHECK_OK(mesh_wait(r), c.error);
                for (i = 0; i < 8 * N * n; i++) room[i] = -9;
                from = gives ? room + N * n : unused;
                for (i = 0; i < N * n && gives; i++) from[i] = 100 * t->rank + i;
                if (takes)
                    CHECK_OK(mesh_rebind(r, gives ? from : where ? unused : NULL, to), c.error);
                else
                    CHECK_OK(mesh_rebind(r, from, where == 2 ? NULL : unused), c.error);
                CHECK_OK(mesh_restart(r), c.error);
                CHECK_OK(mesh_wait(r), c.error);
                CHECK_OK(mesh_release(r), c.error);
                for (i = 0; i < N; i++)
                    want[i] = k == 0   ? 100 * root + i
                              : k == 1 ? 100 * root + N * t->rank + i
                              : k == 2 ? 100 * (n * (n - 1) / 2) + n * i
                              : k == 3 ? i
                                       : 100 * (t->rank * (t->rank - 1) / 2) + t->rank * i;
                for (i = 0; i < N && takes; i++) CHECK_INT(to[i], want[i]);
                for (i = 0; i < N * n; i++) CHECK_INT(room[3 * N * n + i], -9); /* what it was before is left alone */
                free(room);
            }
    mesh_comm_close(&c);
}
static void test_corner_rebind(void) {
    run_world(SIM, 2, corner_rebind_rank, NULL);
    run_world(SIM, 5, corner_rebind_rank, NULL);
}

/* A kept v-form moves with its buffers, wherever what is without elements lies: a rank's own part, within the other buffer; a block, behind the last. */
static void corner_rebind_empty_rank(mesh_transport *t, void *ctx) {
    static const size_t counts[3] = {2, 0, 2}, offsets[3] = {0, 9, 2};
    int32_t room[48], mine[2];
    mesh_comm c;
    mesh_request r;
    int i, k, me = t->rank;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 60 * SECOND)) return;
    for (k = 0; k < 2; k++) { /* all_gather_v, gather_v to rank 1, which gives nothing itself */
        for (i = 0; i < 48; i++) room[i] = -9;
        mine[0] = 10 * me, mine[1] = 10 * me + 1;
        if (k == 0)
            CHECK_OK(mesh_all_gather_v_start(&c, NULL, me == 1 ? room + 1 : mine, room, counts, NULL, MESH_I32, &r), c.error);
        else
            CHECK_OK(mesh_gather_v_start(&c, NULL, me == 1 ? room + 1 : mine, counts[me], room, counts, NULL, MESH_I32, 1, &r), c.error);
        CHECK_OK(mesh_keep(r), c.error);
        CHECK_OK(mesh_wait(r), c.error);
        for (i = 0; i < 48; i++) room[i] = -9;
        CHECK_OK(mesh_rebind(r, NULL, room + 20), c.error);
        CHECK_OK(mesh_restart(r), c.error);
        CHECK_OK(mesh_wait(r), c.error);
        CHECK_OK(mesh_release(r), c.error);
        for (i = 0; i < 48; i++) CHECK_INT(room[i], i < 20 || i > 23 || (k && me != 1) ? -9 : (i < 22 ? 0 : 20) + i % 2);
    }
    for (i = 0; i < 48; i++) room[i] = 0;
    CHECK_OK(mesh_reduce_scatter_v_start(&c, NULL, room + 30, room + 20, counts, offsets, MESH_I32, MESH_SUM, &r), c.error);
    CHECK_OK(mesh_keep(r), c.error);
    CHECK_OK(mesh_wait(r), c.error);
    for (i = 0; i < 4; i++) room[i] = i + 1;
    CHECK_OK(mesh_rebind(r, room, room + 4), c.error); /* one behind the other */
    CHECK_OK(mesh_restart(r), c.error);
    CHECK_OK(mesh_wait(r), c.error);
    CHECK_OK(mesh_release(r), c.error);
    for (i = 0; i < 2; i++) CHECK_INT(room[4 + i], me == 1 ? 0 : 3 * (me + i + 1));
    mesh_comm_close(&c);
}
static void test_corner_rebind_empty(void) {
    run_world(SIM, 3, corner_rebind_empty_rank, NULL);
    run_world(TCP, 3, corner_rebind_empty_rank, NULL);
}

/* reduce_scatter_v in place where the own block is in another one too: what is reduced would still have to be sent. Apart it is right. */
static void corner_own_rank(mesh_transport *t, void *ctx) {
    enum { S = 1 << 16 };
    const size_t counts[2] = {4 * S, 4 * S}, offsets[2] = {3 * S, 0};
    float *from = (float *)malloc(8 * S * sizeof *from), *to = (float *)malloc(4 * S * sizeof *to);
    mesh_comm c;
    int i, wrong = 0;
    (void)ctx;
    if (open_comm(t, &c, "x=2", NULL, 60 * SECOND)) {
        for (i = 0; i < 8 * S; i++) from[i] = (float)(i % 1000 + t->rank);
        CHECK_OK(mesh_reduce_scatter_v(&c, NULL, from, to, counts, offsets, MESH_F32, MESH_SUM), c.error);
        for (i = 0; i < 4 * S; i++) wrong += to[i] != (float)(2 * (((int)offsets[t->rank] + i) % 1000) + 1);
        CHECK_INT(wrong, 0);
        CHECK_INT(mesh_reduce_scatter_v(&c, NULL, from, t->rank ? to : from + offsets[0], counts, offsets, MESH_F32, MESH_SUM), MESH_ERR_ARGUMENT);
        CHECK_HAS(c.error.text, "in place, the own block overlaps block 1");
        mesh_comm_close(&c);
    }
    free(from);
    free(to);
}
static void test_corner_own(void) { run_world(SIM, 2, corner_own_rank, NULL); }

/* Blocks beyond what 65,536 segments of the usual size hold: all ranks cut them alike. */
static void corner_segments_rank(mesh_transport *t, void *ctx) {
    const size_t most = SIZE_MAX / 4 < (size_t)UINT32_MAX ? 0 : (size_t)1 << 30;
    const size_t counts[2] = {20 * most, most};
    uint64_t first[2] = {0, 0};
    int me, i, times[2] = {0, 0};
    mesh m;
    mesh_error err;
    (void)ctx;
    if (!most || t->rank) return; /* 32 bits */
    CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err);
    for (me = 0; me < 2; me++) {
        mesh__schedule s;
        memset(&s, 0, sizeof s);
        mesh__schedule_begin(&s, t);
        s.on = &m, s.index = me;
        s.call = mesh__call(MESH_CALL_REDUCE_SCATTER_V, (void *)(uintptr_t)4096, (void *)(uintptr_t)8192, 0, MESH_U8, MESH_SUM, 0);
        s.call.elem_bytes = s.elem_bytes = 1;
        s.call.recv_counts = counts;
        mesh__build(&s);
        for (i = 0; i < s.nxfers; i++)
            if (s.xfer[i].direction == (me ? MESH_SEND : MESH_RECV) && !times[me]++) first[me] = s.xfer[i].nbytes;
        mesh__schedule_free(&s);
    }
    CHECK(times[0] > 1 && times[0] == times[1] && first[0] == first[1]);
}
static void test_corner_segments(void) { run_world(SIM, 1, corner_segments_rank, NULL); }

/* Once failed, a comm's error is its first cause, whatever is asked of it then. */
static void corner_cause_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request r, kept;
    int x = 0, y, which;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    CHECK_OK(mesh_all_reduce_start(&c, NULL, &x, &y, 1, MESH_I32, MESH_SUM, &kept), c.error);
    CHECK_OK(mesh_keep(kept), c.error);
    CHECK_OK(mesh_wait(kept), c.error);
    if (t->rank == 0) {
        mesh_abort(&c, "disk full");
        mesh_sim_sleep(t, 2 * SECOND);
    } else {
        CHECK_OK(mesh_recv_start(&c, NULL, 0, &x, 1, MESH_I32, &r), c.error);
        while (!c.failed) mesh_progress(t, mesh_now(t) + SECOND / 10);
        CHECK_INT(mesh_release(r), MESH_ERR_STATE);
        CHECK_INT(mesh_rebind(r, &x, NULL), MESH_ERR_STATE);
        CHECK_INT(mesh_rebind(kept, &y, &y), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_copy(&c, NULL, &x, 4), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_wait_any(&r, 1, &which), MESH_ERR_CANCELED);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_CANCELED);
        CHECK_HAS(c.error.text, "disk full");
    }
    mesh_comm_close(&c);
}
static void test_corner_cause(void) { run_world(SIM, 2, corner_cause_rank, NULL); }

/* mesh_wait_any of one operation is a wait: cycles are found, as in mesh_wait. */
static void corner_any_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request r[2];
    int x = 0, which;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 600 * SECOND)) return;
    memset(r, 0, sizeof r);
    CHECK_OK(mesh_recv_start(&c, NULL, 1 - t->rank, &x, 1, MESH_I32, &r[1]), c.error);
    CHECK_INT(mesh_wait_any(r, 2, &which), MESH_ERR_MISMATCH);
    CHECK_INT(which, 1);
    CHECK_HAS(c.error.text, "cycle of ranks");
    CHECK(mesh_now(t) < 100 * SECOND);
    mesh_comm_close(&c);
}

typedef struct corner_arena {
    void *p[4096];
    int n;
} corner_arena;
static void *corner_alloc(void *ctx, size_t n) {
    corner_arena *a = (corner_arena *)ctx;
    return a->n < 4096 ? (a->p[a->n++] = malloc(n)) : NULL;
}
static void corner_free(void *ctx, void *p) {
    corner_arena *a = (corner_arena *)ctx;
    int i;
    for (i = 0; i < a->n && a->p[i] != p; i++) {}
    if (i < a->n) free(p), a->p[i] = NULL;
}

/* A comm that is opened once more while it is open, on another transport: closing the first one comes to its end. */
static void test_corner_any(void) {
    static corner_arena arena;
    mesh_socket_desc d = MESH_ZERO;
    mesh_socket a, b;
    mesh_comm c;
    mesh_error err;
    mesh m;
    int i;
    d.allocator.alloc = corner_alloc, d.allocator.free = corner_free, d.allocator.ctx = &arena;
    run_world(SIM, 2, corner_any_rank, NULL);
    CHECK_OK(mesh_socket_open(&a, &d, &err), err);
    CHECK_OK(mesh_socket_open(&b, NULL, &err), err);
    CHECK_OK(mesh_parse(&m, "x=1", 1, &err), err);
    CHECK_OK(mesh_comm_open(&c, &a.base, &m, NULL, &err), err);
    CHECK_OK(mesh_comm_open(&c, &b.base, &m, NULL, &err), err);
    CHECK_INT(mesh_socket_close(&b), MESH_OK);
    CHECK_INT(mesh_socket_close(&a), MESH_OK);
    for (i = 0; i < arena.n; i++) free(arena.p[i]); /* the comm that was lost */
}

/* "any number of ranks" is any. */
static void test_corner_ranks(void) {
    mesh_tuning tuning;
    mesh_error err;
    mesh__schedule s;
    size_t segment;
    memset(&s, 0, sizeof s);
    CHECK_OK(mesh_tuning_parse(&tuning, "all_reduce ranks<=* bytes<=* doubling\n", &err), err);
    s.tuning = &tuning;
    s.elem_bytes = 4;
    for (s.size = 65534; s.size < 65538; s.size++)
        CHECK_INT(mesh__choose(&s, MESH_CALL_ALL_REDUCE, 1 << 30, 1 << 28, &segment), MESH_ALGORITHM_DOUBLING);
}

static const test_case corner_tests[] = {
    {"corner/ids", test_corner_ids, 60},
    {"corner/rebind", test_corner_rebind, 60},
    {"corner/rebind_empty", test_corner_rebind_empty, 60},
    {"corner/own_block", test_corner_own, 60},
    {"corner/segments", test_corner_segments, 0},
    {"corner/first_cause", test_corner_cause, 0},
    {"corner/any", test_corner_any, 0},
    {"corner/ranks", test_corner_ranks, 0},
};
