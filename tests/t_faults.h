/* Disagreements, cycles, lost ranks, deadlines, refused calls: every one ends with a cause on every rank, none hangs. */
#ifndef T_FAULTS_H
#define T_FAULTS_H

/* Time passes without a call into the library. */
static void pause_rank(mesh_transport *t, int64_t ns) {
    if (!strcmp(t->ops->name, "sim"))
        mesh_sim_sleep(t, ns);
    else
        test_sleep((double)ns * 1e-9);
}

/* ---- ranks that call different things ---- */

static void disagree_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx, odd = t->rank == 1;
    float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8];
    double wide[8] = {0};
    size_t counts[4] = {1, 1, 1, 1};
    mesh_comm c;
    mesh_status status = MESH_OK;
    if (!open_comm(t, &c, "dp=2,tp=2", NULL, 20 * SECOND)) return;
    come_together(&c);
    pause_rank(t, SECOND / 20); /* the others are through the barrier */
    switch (what) {
    case 0:
        status = mesh_all_reduce(&c, NULL, a, b, odd ? 5 : 4, MESH_F32, MESH_SUM);
        break;
    case 1:
        status = mesh_all_reduce(&c, NULL, a, b, 4, MESH_F32, odd ? MESH_MAX : MESH_SUM);
        break;
    case 2:
        status = odd ? mesh_all_reduce(&c, NULL, wide, wide, 2, MESH_F64, MESH_SUM)
                     : mesh_all_reduce(&c, NULL, a, b, 4, MESH_F32, MESH_SUM);
        break;
    case 3:
        status = odd ? mesh_barrier(&c, NULL) : mesh_all_reduce(&c, NULL, a, b, 4, MESH_F32, MESH_SUM);
        break;
    case 4:
        status = mesh_reduce(&c, NULL, a, b, 4, MESH_F32, MESH_SUM, odd ? 1 : 0);
        break;
    case 5:
        status = mesh_broadcast(&c, NULL, a, b, 4, MESH_F32, odd ? 1 : 0);
        break; /* nobody may notice before the next call */
    default:   /* counts of a v-collective: lengths alone disagree */
        if (odd) counts[2] = 2;
        status = mesh_all_gather_v(&c, NULL, a, b, counts, NULL, MESH_F32);
        break;
    }
    if (status == MESH_OK) status = mesh_barrier(&c, NULL); /* a rank may have been done before it showed */
    CHECK_INT(status, MESH_ERR_MISMATCH);
    if (what < 6) {
        CHECK_HAS(c.error.text, "rank 1 calls ");
        CHECK_HAS(c.error.text, what == 3   ? "barrier()"
                                : what >= 4 ? "root 1"
                                : what == 2 ? "2 x f64"
                                : what == 1 ? "max"
                                            : "5 x f32");
        CHECK_HAS(c.error.text, what >= 4   ? "root 0"
                                : what == 2 ? "4 x f32"
                                : what == 3 ? "4 x f32"
                                : what == 1 ? "sum"
                                            : "4 x f32");
        CHECK_HAS(c.error.text, "sequence 2");
    }
    CHECK_HAS(c.error.text, "on \"dp,tp\"");
    CHECK_INT(mesh_barrier(&c, "tp"), MESH_ERR_MISMATCH); /* failed for good */
    mesh_comm_close(&c);
}

static void disagree(int backend) {
    int what;
    for (what = 0; what < 7; what++) run_world(backend, 4, disagree_rank, &what);
}
static void test_disagree_sim(void) { disagree(SIM); }
static void test_disagree_tcp(void) { disagree(TCP); }
static void test_disagree_shared(void) { disagree(SHARED); }

static void p2p_disagree_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx;
    static float a[20000];
    mesh_comm c;
    mesh_status status;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    if (t->rank == 0)
        status = mesh_send(&c, "x", 1, a, what ? 20000 : 4, MESH_F32);
    else
        status = mesh_recv(&c, "x", 0, a, what ? 19999 : 5, MESH_F32);
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "rank 0 calls send(");
    CHECK_HAS(c.error.text, "rank 1 calls recv(");
    mesh_comm_close(&c);
}
static void test_disagree_p2p(void) {
    int what, b;
    for (b = 0; b < BACKENDS; b++)
        for (what = 0; what < 2; what++) run_world(b, 2, p2p_disagree_rank, &what);
}

/* Rank 0 called something in which it had nothing to say to rank 1, and has gone on. That is found by asking, fails the comm that it was in, and no other. */
static void called_else_rank(mesh_transport *t, void *ctx) {
    mesh_comm other, c;
    float v[1] = {1}, got[3];
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &other, "x=3", NULL, 60 * SECOND) || !open_comm(t, &c, "y=3", NULL, 60 * SECOND)) return;
    if (t->rank == 1)
        status = mesh_broadcast(&c, NULL, v, v, 1, MESH_F32, 0);
    else
        status = mesh_gather(&c, NULL, v, got, 1, MESH_F32, 2);
    if (t->rank == 0 && status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "gather");
    CHECK_INT(mesh_barrier(&other, NULL), MESH_OK);
    mesh_comm_close(&c);
    mesh_comm_close(&other);
}
static void test_called_else(void) {
    run_world(SIM, 3, called_else_rank, NULL);
    run_world(TCP, 3, called_else_rank, NULL);
}

/* Counts that differ on one rank: some find that others have canceled, and then wait for the dispute's end. They sleep meanwhile. */
static void dispute_rank(mesh_transport *t, void *ctx) {
    enum { EACH = 10761, N = 6 };
    size_t counts[N], i;
    float *a = (float *)calloc(N * (EACH + 4), sizeof *a), *b = (float *)calloc(EACH + 4, sizeof *b);
    mesh_comm c;
    (void)ctx;
    for (i = 0; i < N; i++) counts[i] = EACH + i % 3 + (t->rank == 1);
    if (!open_comm(t, &c, "x=6", NULL, 60 * SECOND)) return;
    CHECK_INT(mesh_reduce_scatter_v(&c, NULL, a, b, counts, NULL, MESH_F32, MESH_MAX), MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "rank 1");
    CHECK(mesh__engine_get(t)->polls < 2000);
    mesh_comm_close(&c);
    free(a);
    free(b);
}
static void test_dispute_sleeps(void) { run_world(SIM, 6, dispute_rank, NULL); }

/* ---- order ---- */

static void order_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx, tp_first;
    float a[8] = {0}, b[8];
    mesh_comm c;
    mesh_status first, second;
    if (!open_comm(t, &c, "dp=2,tp=2", NULL, 30 * SECOND)) return;
    tp_first = what == 0 ? t->rank == 0 || t->rank == 3 : what == 1 ? t->rank != 0 : 1;
    if (what == 2 && t->rank == 2) pause_rank(t, SECOND);
    first = mesh_all_reduce(&c, tp_first ? "tp" : "dp", a, b, 8, MESH_F32, MESH_SUM);
    second = mesh_all_reduce(&c, tp_first ? "dp" : "tp", a, b, 8, MESH_F32, MESH_SUM);
    if (what == 0) {
        CHECK_INT(first, MESH_ERR_MISMATCH);
        CHECK_HAS(c.error.text, "a cycle of ranks that wait for each other: rank ");
        CHECK_HAS(c.error.text, "rank 0 waits for rank 1 in all_reduce(8 x f32, sum) on \"tp\"");
        CHECK_HAS(c.error.text, "rank 1 waits for rank 3 in all_reduce(8 x f32, sum) on \"dp\"");
    } else {
        CHECK_INT(first, MESH_OK);
        CHECK_INT(second, MESH_OK);
        CHECK_STR(c.error.text, "");
    }
    mesh_comm_close(&c);
}

static void order(int what) {
    static const int backends[] = {SIM, TCP, UNIX, SHARED};
    int b;
    for (b = 0; b < 4; b++) run_world(backends[b], 4, order_rank, &what);
}
static void test_order_cycle(void) { order(0); }
static void test_order_one_swapped(void) { order(1); }
static void test_order_asleep(void) { order(2); }

/* A cycle of blocking receives, and of a receive and a collective. */
static void p2p_cycle_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx, v[2] = {0, 0};
    mesh_comm c;
    mesh_status status;
    if (!open_comm(t, &c, "x=3", NULL, 30 * SECOND)) return;
    CHECK_INT(mesh_sendrecv(&c, "x", (t->rank + 1) % 3, v, 1, (t->rank + 2) % 3, v + 1, 1, MESH_I32), MESH_OK);
    if (what && t->rank == 2)
        status = mesh_barrier(&c, NULL);
    else
        status = mesh_recv(&c, "x", (t->rank + 2) % 3, v, 1, MESH_I32);
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "a cycle of ranks");
    CHECK_HAS(c.error.text, "in recv(1 x i32)");
    mesh_comm_close(&c);
}
static void test_order_p2p(void) {
    static const int backends[] = {SIM, TCP};
    int b, what;
    for (b = 0; b < 2; b++)
        for (what = 0; what < 2; what++) run_world(backends[b], 3, p2p_cycle_rank, &what);
}

/* Large operations on two axes, waited for in opposite orders. */
static void opposite_rank(mesh_transport *t, void *ctx) {
    size_t n = *(size_t *)ctx, i;
    float *a = (float *)malloc(n * sizeof(float)), *b = (float *)malloc(n * sizeof(float));
    mesh_request r[2];
    mesh_comm c;
    int swap = t->rank == 0 || t->rank == 3, right = 1;
    if (!open_comm(t, &c, "dp=2,tp=2", NULL, 60 * SECOND)) return;
    for (i = 0; i < n; i++) a[i] = b[i] = (float)(t->rank + 1);
    CHECK_INT(mesh_all_reduce_start(&c, swap ? "tp" : "dp", swap ? b : a, swap ? b : a, n, MESH_F32, MESH_SUM, &r[0]),
              MESH_OK);
    CHECK_INT(mesh_all_reduce_start(&c, swap ? "dp" : "tp", swap ? a : b, swap ? a : b, n, MESH_F32, MESH_SUM, &r[1]),
              MESH_OK);
    CHECK_INT(mesh_wait(r[0]), MESH_OK);
    CHECK_INT(mesh_wait(r[1]), MESH_OK);
    for (i = 0; i < n; i++) right &= a[i] == (float)(t->rank % 2 * 2 + 4) && b[i] == (float)(t->rank / 2 * 4 + 3);
    CHECK(right);
    mesh_comm_close(&c);
    free(a);
    free(b);
}
static void test_opposite_sim(void) {
    size_t n = 1 << 20;
    run_world(SIM, 4, opposite_rank, &n);
}
static void test_opposite_tcp(void) {
    size_t n = 1 << 24; /* 64 MiB */
    run_world(TCP, 4, opposite_rank, &n);
}
static void test_opposite_shared(void) {
    size_t n = 1 << 24; /* 64 MiB */
    run_world(SHARED, 4, opposite_rank, &n);
}

/* ---- refused calls ---- */

static void nothing(void *inout, const void *in, size_t count, void *ctx) {
    (void)inout, (void)in, (void)count, (void)ctx;
}

static void refuse_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx;
    float a[8] = {0}, b[8];
    mesh_comm c;
    mesh_request r;
    mesh_status status = MESH_OK;
    size_t one[2] = {1, 1}, two[2] = {2, 2};
    mesh_buffer list[2];
    mesh_halo h = MESH_ZERO;
    mesh_object object = MESH_ZERO;
    mesh_user_op user = MESH_ZERO;
    mesh_op added;
    static const struct {
        mesh_status status;
        const char *text;
    } want[] = {{MESH_ERR_ARGUMENT, "no axis \"pp\""},
                {MESH_ERR_STATE, "mesh_group_open"},
                {MESH_ERR_ARGUMENT, "send is NULL with 4 elements"},
                {MESH_ERR_ARGUMENT, "recv is NULL with 4 elements"},
                {MESH_ERR_UNSUPPORTED, "avg of i32"},
                {MESH_ERR_ARGUMENT, "dtype 99"},
                {MESH_ERR_ARGUMENT, "root 2 is outside the group of 2"},
                {MESH_ERR_ARGUMENT, "overflow"},
                {MESH_ERR_ARGUMENT, "overlap"},
                {MESH_ERR_ARGUMENT, "counts is NULL"},
                {MESH_ERR_ARGUMENT, "peer 7 is outside"},
                {MESH_ERR_ARGUMENT, "oneself"},
                {MESH_ERR_ARGUMENT, "request is NULL"},
                {MESH_ERR_UNSUPPORTED, "sum of bytes"},
                {MESH_ERR_ARGUMENT, "send_counts is NULL"},
                {MESH_ERR_ARGUMENT, "what is received overlaps"},
                {MESH_ERR_ARGUMENT, "recv is NULL with 8 elements"},
                {MESH_ERR_ARGUMENT, "count is 2, but counts[1], the root's own, is 1"},
                {MESH_ERR_ARGUMENT, "counts is NULL at the root"},
                {MESH_ERR_UNSUPPORTED, "avg has no meaning in a scan"},
                {MESH_ERR_UNSUPPORTED, "minloc of f16"},
                {MESH_ERR_ARGUMENT, "is none; see MESH_REDUCTIONS and mesh_op_add"},
                {MESH_ERR_ARGUMENT, "buffer 1: send is NULL with 4 elements"},
                {MESH_ERR_ARGUMENT, "-1 buffers"},
                {MESH_ERR_ARGUMENT, "the mesh \"dp=2,tp=2\" has no axis \"pp\""},
                {MESH_ERR_ARGUMENT, "axis \"tp\" divides dims 0 and 1"},
                {MESH_ERR_ARGUMENT, "an interior of 2 cannot fill a neighbour's halo of 3"},
                {MESH_ERR_ARGUMENT, "9 dims; 1 to 8"},
                {MESH_ERR_ARGUMENT, "the object's data is NULL with 7 bytes"},
                {MESH_ERR_ARGUMENT, "the object is NULL"},
                {MESH_ERR_ARGUMENT, "user op 0 was added with elem_bytes"},
                {MESH_ERR_ARGUMENT, "shape 8 with a halo of 9223372036854775807"},
                {MESH_ERR_ARGUMENT, "what buffer 0 or 1 receives overlaps the other"},
                {MESH_ERR_ARGUMENT, "blocks overlap"}};
    list[0].send = a, list[0].recv = b, list[0].count = 4;
    list[1].send = NULL, list[1].recv = b + 4, list[1].count = 4;
    h.ndim = 1;
    h.shape[0] = 8;
    h.axis[0] = "tp";
    h.low[0] = h.high[0] = 1;
    if (!open_comm(t, &c, "dp=2,tp=2", NULL, 20 * SECOND)) return;
    come_together(&c);
    if (t->rank == 1) {
        pause_rank(t, SECOND / 20); /* the others are through the barrier */
        switch (what) {
        case 0:
            status = mesh_barrier(&c, "pp");
            break;
        case 1:
            status = mesh_barrier(&c, "tp,dp");
            break;
        case 2:
            status = mesh_all_reduce(&c, "tp", NULL, b, 4, MESH_F32, MESH_SUM);
            break;
        case 3:
            status = mesh_all_reduce(&c, "tp", a, NULL, 4, MESH_F32, MESH_SUM);
            break;
        case 4:
            status = mesh_all_reduce(&c, "tp", a, b, 4, MESH_I32, MESH_AVG);
            break;
        case 5:
            status = mesh_all_reduce(&c, "tp", a, b, 4, (mesh_dtype)99, MESH_SUM);
            break;
        case 6:
            status = mesh_broadcast(&c, "tp", a, b, 4, MESH_F32, 2);
            break;
        case 7:
            status = mesh_all_gather(&c, "tp", a, b, SIZE_MAX / 4, MESH_F32);
            break;
        case 8:
            status = mesh_all_reduce(&c, "tp", a, a + 1, 4, MESH_F32, MESH_SUM);
            break;
        case 9:
            status = mesh_all_gather_v(&c, "tp", a, b, NULL, NULL, MESH_F32);
            break;
        case 10:
            status = mesh_send(&c, "tp", 7, a, 4, MESH_F32);
            break;
        case 11:
            status = mesh_send(&c, "tp", mesh_comm_index(&c, "tp"), a, 4, MESH_F32);
            break;
        case 12:
            status = mesh_barrier_start(&c, "tp", NULL);
            break;
        case 13:
            status = mesh_all_reduce(&c, "tp", a, b, 4, MESH_BYTES, MESH_SUM);
            break;
        case 14:
            status = mesh_all_to_all_v(&c, "tp", a, NULL, NULL, b, one, NULL, MESH_F32);
            break;
        case 15:
            status = mesh_sendrecv(&c, "tp", 0, a, 4, 0, a + 2, 4, MESH_F32);
            break;
        case 16:
            status = mesh_gather(&c, "tp", a, NULL, 4, MESH_F32, 1);
            break;
        case 17:
            status = mesh_gather_v(&c, "tp", a, 2, b, one, NULL, MESH_F32, 1);
            break;
        case 18:
            status = mesh_scatter_v(&c, "tp", a, NULL, NULL, b, 1, MESH_F32, 1);
            break;
        case 19:
            status = mesh_exscan(&c, "tp", a, b, 1, MESH_F32, MESH_AVG);
            break;
        case 20:
            status = mesh_all_reduce(&c, "tp", a, b, 1, MESH_F16, MESH_MINLOC);
            break;
        case 21: /* no such op was added */
            status = mesh_all_reduce(&c, "tp", a, b, 1, MESH_F32, (mesh_op)70);
            break;
        case 22:
            status = mesh_all_reduce_many(&c, "tp", list, 2, MESH_F32, MESH_SUM);
            break;
        case 23:
            status = mesh_broadcast_many(&c, "tp", list, -1, MESH_F32, 0);
            break;
        case 24:
            h.axis[0] = "pp";
            status = mesh_halo_exchange(&c, &h, a, MESH_F32);
            break;
        case 25:
            h.ndim = 2;
            h.shape[1] = 1;
            h.axis[1] = "tp";
            status = mesh_halo_exchange(&c, &h, a, MESH_F32);
            break;
        case 26:
            h.low[0] = h.high[0] = 3;
            status = mesh_halo_exchange(&c, &h, a, MESH_F32);
            break;
        case 27:
            h.ndim = 9;
            status = mesh_halo_exchange(&c, &h, a, MESH_F32);
            break;
        case 28:
            object.nbytes = 7;
            status = mesh_broadcast_object(&c, "tp", &object, 1);
            break;
        case 29:
            status = mesh_broadcast_object(&c, "tp", NULL, 1);
            break;
        case 30: /* an op on elements of 12 bytes takes MESH_BYTES */
            user.combine = nothing;
            user.elem_bytes = 12;
            CHECK_INT(mesh_op_add(&c, &user, &added), MESH_OK);
            status = mesh_all_reduce(&c, "tp", a, b, 1, MESH_F32, added);
            break;
        case 31:
            h.low[0] = h.high[0] = INT64_MAX;
            status = mesh_halo_exchange(&c, &h, a, MESH_F32);
            break;
        case 32:
            list[1].send = a + 4, list[1].recv = b + 3;
            status = mesh_all_reduce_many(&c, "tp", list, 2, MESH_F32, MESH_SUM);
            break;
        default:
            status = mesh_all_gather_v(&c, "tp", a, b, two, one, MESH_F32);
            break;
        }
        CHECK_INT(status, want[what].status);
        CHECK_HAS(c.error.text, want[what].text);
        CHECK_HAS(c.error.text, "mesh_");
    } else {
        status = mesh_barrier_start(&c, NULL, &r);
        if (status == MESH_OK) status = mesh_wait(r);
        CHECK_INT(status, want[what].status);
        CHECK_INT(c.error.rank, 1);
        CHECK_HAS(c.error.text, "rank 1 failed: mesh_");
        CHECK_HAS(c.error.text, want[what].text);
    }
    mesh_comm_close(&c);
}
static void test_refused(void) {
    int what;
    for (what = 0; what < 34; what++) run_world(SIM, 4, refuse_rank, &what);
    for (what = 0; what < 34; what += 7) run_world(TCP, 4, refuse_rank, &what);
}

/* Lists that differ in a count, gather_v's counts, kept requests: what agrees works, what does not is named. */
static void lists_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx, k;
    float a[8] = {1, 1, 1, 1, 1, 1, 1, 1}, b[8] = {0};
    size_t counts[2] = {1, 2};
    mesh_buffer list[2];
    mesh_comm c;
    mesh_request r;
    mesh_status status = MESH_OK;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    for (k = 0; k < 2; k++) {
        list[k].send = a + 4 * k;
        list[k].recv = b + 4 * k;
        list[k].count = (size_t)(k == t->rank ? 3 : 1);
    }
    if (what == 0) {
        status = mesh_all_reduce_many(&c, NULL, list, 2, MESH_F32, MESH_SUM);
    } else if (what == 1) {
        status = mesh_gather_v(&c, NULL, a, (size_t)t->rank * 2 + 1, b, counts, NULL, MESH_F32,
                               0); /* rank 1 sends 3, root expects 2 */
        if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    } else { /* rank 0 keeps its request, rank 1 calls anew */
        CHECK_OK(mesh_all_reduce_start(&c, NULL, a, b, 8, MESH_F32, MESH_SUM, &r), c.error);
        CHECK_INT(mesh_keep(r), MESH_OK);
        CHECK_OK(mesh_wait(r), c.error);
        CHECK_INT(mesh_wait(r), MESH_ERR_STATE);
        CHECK_HAS(c.error.text, "mesh_restart");
        for (k = 0; k < 5; k++) {
            a[3] = (float)k;
            if (t->rank == 0) {
                CHECK_OK(mesh_restart(r), c.error);
                CHECK_INT(mesh_restart(r), MESH_ERR_STATE);
                CHECK_HAS(c.error.text, "under way");
                CHECK_OK(mesh_wait(r), c.error);
            } else {
                CHECK_OK(mesh_all_reduce(&c, NULL, a, b, 8, MESH_F32, MESH_SUM), c.error);
            }
            CHECK(b[3] == (float)(2 * k) && b[0] == 2);
        }
        CHECK_OK(mesh_release(r), c.error);
        CHECK_INT(mesh_release(r), MESH_ERR_STATE);
        CHECK_INT(mesh_keep(r), MESH_ERR_STATE);
        CHECK_OK(mesh_barrier_start(&c, NULL, &r), c.error);
        CHECK_INT(mesh_release(r), MESH_ERR_STATE); /* it is not kept */
        CHECK_OK(mesh_wait(r), c.error);
        CHECK_OK(mesh_comm_close(&c), c.error);
        return;
    }
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text,
              what ? "rank 1 sent 12 bytes, rank 0 expected 8" : "all_reduce_many(4 x f32, sum, buffers' counts #");
    mesh_comm_close(&c);
}
static void test_lists(void) {
    int what;
    for (what = 0; what < 3; what++) {
        run_world(SIM, 2, lists_rank, &what);
        run_world(TCP, 2, lists_rank, &what);
    }
}

/* ---- opening, groups, requests ---- */

static int open_word[2]; /* over sockets: the others have given up */

static void open_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx, sim = !strcmp(t->ops->name, "sim"), i;
    char word;
    mesh m;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    mesh_status status;
    mesh_ops broken;
    desc.timeout_ns = SECOND / 2;
    CHECK_OK(mesh_parse(&m, what == 0 && t->rank == 2 ? "tp=4" : "dp=2,tp=2", 4, &err), err);
    if (what == 1 && t->rank == 3) desc.groups = "tp,dp";
    if (what == 2 && t->rank == 1) return; /* never comes; its transport closes */
    if (what == 3 && t->rank == 1 && sim) pause_rank(t, SECOND);
    for (i = 0; i < 3 && what == 3 && t->rank == 1 && !sim; i++) CHECK(read(open_word[0], &word, 1) == 1);
    if (what == 4) {
        CHECK_OK(mesh_parse(&m, "x=8", 8, &err), err);
        CHECK_INT(mesh_comm_open(&c, t, &m, NULL, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "holds rank 4, but the world has 4 ranks");
        CHECK_OK(mesh_group_at(&m, &m, "", 5, &err), err); /* {5} */
        CHECK_INT(mesh_comm_open(&c, t, &m, NULL, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "is not in the mesh");
        CHECK_INT(mesh_comm_open(&c, t, NULL, NULL, &err), MESH_ERR_ARGUMENT);
        CHECK_OK(mesh_parse(&m, "x=4", 4, &err), err);
        desc.groups = "x,y";
        CHECK_INT(mesh_comm_open(&c, t, &m, &desc, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "no axis \"y\" in the mesh \"x=4\"");
        broken = *t->ops;
        broken.pending = NULL;
        {
            const mesh_ops *whole = t->ops;
            t->ops = &broken;
            CHECK_INT(mesh_comm_open(&c, t, &m, NULL, &err), MESH_ERR_ARGUMENT);
            CHECK_HAS(err.text, "lacks a required member");
            t->ops = whole;
        }
        return;
    }
    status = mesh_comm_open(&c, t, &m, &desc, &err);
    if (what == 3 && t->rank != 1 && !sim) CHECK(write(open_word[1], "x", 1) == 1);
    if (what == 3 && t->rank == 1)
        CHECK(status == MESH_ERR_PEER || status == MESH_ERR_TIMEOUT); /* too late: the others have left */
    else
        CHECK_INT(status, what < 2 ? MESH_ERR_MISMATCH : what == 2 ? MESH_ERR_PEER : MESH_ERR_TIMEOUT);
    if (what == 0) {
        CHECK_HAS(err.text, "rank 2 holds the mesh \"tp=4\"");
        CHECK_HAS(err.text, "rank 0 holds \"dp=2,tp=2\"");
    }
    if (what == 1) CHECK_HAS(err.text, "other groups");
    if (what == 3 && t->rank != 1) CHECK_HAS(err.text, sim ? "still missing: rank 1" : "still missing: rank");
    if (status == MESH_OK) mesh_comm_close(&c);
    if (what == 0) { /* and then they agree */
        desc.timeout_ns = 0;
        CHECK_OK(mesh_parse(&m, "dp=2,tp=2", 4, &err), err);
        CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
        CHECK_INT(mesh_barrier(&c, "dp"), MESH_OK);
        mesh_comm_close(&c);
    }
}
static void test_open(void) {
    int what;
    CHECK_INT(pipe(open_word), 0);
    for (what = 0; what < 5; what++) run_world(SIM, 4, open_rank, &what);
    for (what = 0; what < 4; what++) run_world(TCP, 4, open_rank, &what);
}

static void group_rank(mesh_transport *t, void *ctx) {
    mesh_comm c, other;
    mesh_request r, again;
    mesh_error err;
    mesh m;
    int v = t->rank, all[8], i;
    uint64_t sent = 0, received = 0;
    char history[4096];
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=2,c=2", "c,a", 20 * SECOND)) return;
    CHECK_INT(mesh_comm_size(&c, "c,a"), 4);
    CHECK_INT(mesh_comm_size(&c, "b,a"), -1);
    CHECK_INT(mesh_group_open(&c, "b,a"), MESH_OK);
    CHECK_INT(mesh_group_open(&c, "b,a"), MESH_OK);
    CHECK_INT(mesh_all_gather(&c, "b,a", &v, all, 1, MESH_I32), MESH_OK);
    for (i = 0; i < 4; i++) CHECK_INT(all[i], (i & 1) * 4 + (i >> 1) * 2 + (t->rank & 1));
    CHECK_INT(mesh_comm_bytes(&c, "b,a", &sent, &received), MESH_OK);
    CHECK_INT(sent, 12);
    CHECK_INT(received, 12);
    CHECK_INT(mesh_comm_bytes(&c, "x", &sent, &received), MESH_ERR_STATE);
    /* a request ends once */
    CHECK_INT(mesh_barrier_start(&c, "a", &r), MESH_OK);
    again = r;
    CHECK_INT(mesh_wait(r), MESH_OK);
    CHECK_INT(mesh_wait(again), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "waited for already");
    CHECK_INT(mesh_test(again), MESH_ERR_STATE);
    CHECK_INT(c.failed, 0);
    CHECK_INT(mesh_barrier_start(&c, "a", &r), MESH_OK);
    while ((i = mesh_test(r)) == MESH_IN_PROGRESS) {}
    CHECK_INT(i, MESH_OK);
    /* several comms on one transport, and many operations under way */
    CHECK_OK(mesh_parse(&m, "w=8", 8, &err), err);
    CHECK_OK(mesh_comm_open(&other, t, &m, NULL, &err), err);
    {
        mesh_request many[20];
        int sums[20];
        for (i = 0; i < 20; i++) {
            sums[i] = t->rank + i;
            CHECK_INT(
                mesh_all_reduce_start(i % 2 ? &c : &other, NULL, &sums[i], &sums[i], 1, MESH_I32, MESH_SUM, &many[i]),
                MESH_OK);
        }
        for (i = 19; i >= 0; i--) {
            CHECK_INT(mesh_wait(many[i]), MESH_OK);
            CHECK_INT(sums[i], 28 + 8 * i);
        }
    }
    CHECK(mesh_comm_history(&c, history, sizeof history) > 0);
    CHECK_HAS(history, "all_reduce(1 x i32, sum)");
    CHECK_INT(mesh_comm_close(&other), MESH_OK);
    CHECK_INT(mesh_comm_close(&other), MESH_OK);
    CHECK_INT(mesh_barrier(&other, NULL), MESH_ERR_STATE);
    CHECK_HAS(other.error.text, "not open");
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    /* closing cancels what is under way */
    if (t->rank == 0) {
        pause_rank(t, SECOND / 10); /* the others are through the barrier */
        CHECK_INT(mesh_recv_start(&c, NULL, 1, all, 1, MESH_I32, &r), MESH_OK);
        CHECK_INT(mesh_comm_close(&c), MESH_ERR_STATE);
        CHECK_HAS(c.error.text, "1 operation was");
        CHECK_INT(mesh_wait(r), MESH_ERR_STATE);
    } else {
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
    }
}
static void test_groups_requests(void) {
    run_world(SIM, 8, group_rank, NULL);
    run_world(UNIX, 8, group_rank, NULL);
}

/* ---- bits: a reduction of arbitrary floats is the same on every rank, and from run to run ---- */

static uint64_t bits_hash[4]; /* sim: written by rank 0 */
static void bits_rank(mesh_transport *t, void *ctx) {
    enum { N = 20000 };
    static const mesh_dtype types[] = {MESH_F32, MESH_F64, MESH_F16, MESH_BF16};
    unsigned char *a = (unsigned char *)malloc(N * 8), *all = (unsigned char *)malloc((size_t)t->size * N * 8);
    test_random rng = random_from((uint64_t)t->rank + 1000);
    mesh_comm c;
    int d, i, r;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 30 * SECOND)) return;
    for (d = 0; d < 4; d++) {
        size_t counts[2] = {7, N}, k, bytes;
        for (k = 0; k < 2; k++) {
            for (i = 0; i < N; i++) {
                double v = ((double)random_below(&rng, 2000001) - 1000000) / 777777.0;
                if (d == 0) ((float *)a)[i] = (float)v;
                if (d == 1) ((double *)a)[i] = v;
                if (d == 2) ((uint16_t *)a)[i] = mesh__f16_of_f32((float)v);
                if (d == 3) ((uint16_t *)a)[i] = mesh__bf16_of_f32((float)v);
            }
            bytes = counts[k] * mesh_dtype_bytes(types[d]);
            CHECK_INT(mesh_all_reduce(&c, NULL, a, a, counts[k], types[d], d % 2 ? MESH_AVG : MESH_SUM), MESH_OK);
            CHECK_INT(mesh_all_gather(&c, NULL, a, all, counts[k], types[d]), MESH_OK);
            for (r = 0; r < t->size; r++) CHECK(!memcmp(all + (size_t)r * bytes, a, bytes));
            for (i = 0; t->rank == 0 && i < (int)bytes; i++) bits_hash[d] = mesh__mix(bits_hash[d], a[i]);
        }
    }
    mesh_comm_close(&c);
    free(a);
    free(all);
}
static void test_bits(void) {
    uint64_t first[4];
    int run;
    for (run = 0; run < 3; run++) {
        memset(bits_hash, 0, sizeof bits_hash);
        run_world(run == 2 ? SIM_FREE : SIM, 5, bits_rank, NULL);
        if (run == 0) memcpy(first, bits_hash, sizeof first);
        CHECK(!memcmp(first, bits_hash, sizeof first));
    }
    run_world(TCP, 5, bits_rank, NULL);
}

/* NaN, -0 and complex products: the same bits on both sides, whoever's operand comes first. */
static void special_rank(mesh_transport *t, void *ctx) {
    static const float values[2][6] = {{0, 1, -0.0f, 5, -1, 7}, {-0.0f, 0, 0.0f, -5, 0, 8}};
    static const mesh_dtype types[] = {MESH_F32, MESH_F64, MESH_F16, MESH_BF16};
    test_random rng = random_from((uint64_t)t->rank + 50);
    union {
        unsigned char bytes[6 * 8];
        float f[12];
        double d[6];
        uint16_t h[6];
    } a, b, all[2];
    float z[200], both[400];
    mesh_comm c;
    int k, i, op;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 10 * SECOND)) return;
    for (k = 0; k < 4; k++)
        for (op = MESH_MIN; op <= MESH_MAX; op++) {
            size_t bytes = 6 * mesh_dtype_bytes(types[k]);
            for (i = 0; i < 6; i++) {
                int nan = i == 1 + t->rank * 3; /* at 1 on rank 0, at 4 on rank 1 */
                float v = nan ? mesh__float_of_bits(0x7fc00000) : values[t->rank][i];
                if (k == 0) a.f[i] = v;
                if (k == 1) a.d[i] = (double)v;
                if (k == 2) a.h[i] = mesh__f16_of_f32(v);
                if (k == 3) a.h[i] = mesh__bf16_of_f32(v);
            }
            CHECK_INT(mesh_all_reduce(&c, NULL, &a, &b, 6, types[k], (mesh_op)op), MESH_OK);
            CHECK_INT(mesh_all_gather(&c, NULL, &b, all[0].bytes, bytes, MESH_BYTES), MESH_OK);
            CHECK(!memcmp(all[0].bytes, all[0].bytes + bytes, bytes));
            for (i = 0; i < 6 && k == 0; i++) {
                uint32_t u = mesh__bits_of_float(b.f[i]);
                if (i == 1 || i == 4)
                    CHECK((u & 0x7fffffff) > 0x7f800000);
                else if (i % 2 == 0 && i < 4)
                    CHECK_INT(u, op == MESH_MIN ? 0x80000000u : 0);
                else
                    CHECK(b.f[i] == (op == MESH_MIN ? (i == 3 ? -5.0f : 7.0f) : (i == 3 ? 5.0f : 8.0f)));
            }
        }
    for (i = 0; i < 200; i++) z[i] = (float)(random_below(&rng, 2000001) - 1000000) / 777777.0f;
    CHECK_INT(mesh_all_reduce(&c, NULL, z, z, 100, MESH_C64, MESH_PROD), MESH_OK);
    CHECK_INT(mesh_all_gather(&c, NULL, z, both, 200, MESH_F32), MESH_OK);
    CHECK(!memcmp(both, both + 200, sizeof z));
    mesh_comm_close(&c);
}
static void test_special(void) { run_world(SIM, 2, special_rank, NULL); }

/* Every f16 and bf16 converts to f32 and back unchanged; conversions round to nearest, ties to even. */
static void test_half(void) {
    uint32_t h;
    for (h = 0; h < 65536; h++) {
        int nan16 = (h & 0x7c00) == 0x7c00 && (h & 0x3ff), nanb = (h & 0x7f80) == 0x7f80 && (h & 0x7f);
        if (!nan16)
            CHECK_INT(mesh__f16_of_f32(mesh__f32_of_f16((uint16_t)h)), h);
        else
            CHECK((mesh__f16_of_f32(mesh__f32_of_f16((uint16_t)h)) & 0x7fff) > 0x7c00);
        if (!nanb) CHECK_INT(mesh__bf16_of_f32(mesh__f32_of_bf16((uint16_t)h)), h);
    }
    CHECK_INT(mesh__f16_of_f32(65519.0f), 0x7bff);
    CHECK_INT(mesh__f16_of_f32(65520.0f), 0x7c00);
    CHECK_INT(mesh__f16_of_f32(2049.0f), 0x6800); /* tie: to even */
    CHECK_INT(mesh__f16_of_f32(2051.0f), 0x6802);
    CHECK_INT(mesh__f16_of_f32(5.9604645e-8f), 1);
    CHECK_INT(mesh__f16_of_f32(2.9802322e-8f), 0);
    CHECK_INT(mesh__f16_of_f32(2.99e-8f), 1);
    CHECK_INT(mesh__bf16_of_f32(1.00390625f), 0x3f80);
    CHECK_INT(mesh__bf16_of_f32(1.01171875f), 0x3f82);
}

/* ---- memory: every allocation fails once; nothing leaks, nothing hangs, everyone gets a status ---- */

typedef struct counting {
    int calls, fail_at, live, rank;
} counting;
static counting counters;
static void *counting_alloc(void *ctx, size_t n) {
    counting *k = (counting *)ctx;
    void *p;
    if (k->calls++ == k->fail_at) return NULL;
    p = malloc(n);
    if (p) k->live++;
    return p;
}
static void counting_free(void *ctx, void *p) {
    ((counting *)ctx)->live--;
    free(p);
}

static void memory_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    static float a[2][9000], b[2][18000];
    mesh_status status;
    (void)ctx;
    desc.timeout_ns = SECOND;
    mesh_parse(&m, "x=2", 2, &err);
    if (mesh_comm_open(&c, t, &m, &desc, &err)) return;
    status = mesh_all_reduce(&c, NULL, a[t->rank], b[t->rank], 9000, MESH_F32, MESH_SUM);
    if (status == MESH_OK) status = mesh_all_gather(&c, "x", a[t->rank], b[t->rank], 9000, MESH_F32);
    if (status == MESH_OK)
        status = mesh_sendrecv(&c, "x", 1 - t->rank, a[t->rank], 5, 1 - t->rank, b[t->rank], 5, MESH_F32);
    if (status != MESH_OK) CHECK(c.error.text[0] && status == (mesh_status)c.error.status);
    mesh_comm_close(&c);
}
static void test_memory(void) {
    int n, calls = 1;
    for (n = -1; n < calls; n++) {
        mesh_sim_desc d = sim_desc(2);
        mesh_error err;
        memset(&counters, 0, sizeof counters);
        counters.fail_at = n;
        d.allocator.alloc = counting_alloc;
        d.allocator.free = counting_free;
        d.allocator.ctx = &counters;
        CHECK_OK(mesh_sim_run(&d, memory_rank, NULL, &err), err);
        CHECK_INT(counters.live, 0);
        if (n < 0) calls = counters.calls;
    }
    CHECK(calls > 25);
}

/* The same seed is the same run, to the tick of its clock; another one is another. */
static int64_t replay_clock;
static void replay_rank(mesh_transport *t, void *ctx) {
    float a[100] = {0};
    int i;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=2", NULL, 30 * SECOND)) return;
    for (i = 0; i < 5; i++) CHECK_INT(mesh_all_reduce(&c, i % 2 ? "a" : NULL, a, a, 100, MESH_F32, MESH_SUM), MESH_OK);
    if (t->rank == 0) replay_clock = t->ops->now(t);
    mesh_comm_close(&c);
}
static void test_sim_replay(void) {
    int64_t clocks[3];
    int i;
    for (i = 0; i < 3; i++) {
        mesh_sim_desc d = sim_desc(4);
        mesh_error err;
        d.seed = i == 2 ? 4711 : 42;
        CHECK_OK(mesh_sim_run(&d, replay_rank, NULL, &err), err);
        clocks[i] = replay_clock;
    }
    CHECK_INT(clocks[0], clocks[1]);
    CHECK(clocks[0] != clocks[2]);
}

static const test_case fault_tests[] = {
    {"faults/disagree_sim", test_disagree_sim, 0},
    {"faults/disagree_tcp", test_disagree_tcp, 0},
    {"faults/disagree_shared", test_disagree_shared, 0},
    {"faults/disagree_p2p", test_disagree_p2p, 0},
    {"faults/called_else", test_called_else, 0},
    {"faults/dispute_sleeps", test_dispute_sleeps, 0},
    {"faults/order_cycle", test_order_cycle, 0},
    {"faults/order_one_swapped", test_order_one_swapped, 0},
    {"faults/order_asleep", test_order_asleep, 0},
    {"faults/order_p2p", test_order_p2p, 0},
    {"faults/opposite_sim", test_opposite_sim, 0},
    {"faults/opposite_tcp", test_opposite_tcp, 0},
    {"faults/opposite_shared", test_opposite_shared, 0},
    {"collectives/special", test_special, 0},
    {"faults/lists", test_lists, 0},
    {"faults/refused", test_refused, 0},
    {"faults/open", test_open, 0},
    {"faults/memory", test_memory, 0},
    {"collectives/groups_requests", test_groups_requests, 0},
    {"collectives/bits", test_bits, 0},
    {"collectives/half", test_half, 0},
    {"sim/replay", test_sim_replay, 0},
};

#endif
