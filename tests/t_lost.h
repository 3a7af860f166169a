/* Lost and closed ranks, deadlines: every one ends with a cause on every rank, none hangs. Uses t_faults.h. */
#ifndef T_LOST_H
#define T_LOST_H

/* ---- lost and closed ranks ---- */

enum { KILL_CASES = 28, VICTIM = 2 };

/* One operation of every kind, large enough that nobody can finish without the victim. */
static mesh_status some_operation(mesh_comm *c, int what, float *a, float *b, mesh_request kept_request,
                                  mesh_request *r) {
    static const size_t counts[4] = {30000, 30000, 30000, 30000};
    static mesh_object object;
    size_t n = 120000;
    int me = mesh_comm_index(c, NULL);
    mesh_buffer list[3];
    mesh_halo halo = MESH_ZERO;
    mesh_tensor src = MESH_ZERO, dst;
    list[0].send = a, list[0].recv = b, list[0].count = n / 2;
    list[1].send = a + n / 2, list[1].recv = b + n / 2, list[1].count = 5;
    list[2].send = a + n / 2 + 50, list[2].recv = b + n / 2 + 50, list[2].count = n / 4;
    halo.ndim = 1;
    halo.shape[0] = (int64_t)n;
    halo.low[0] = halo.high[0] = (int64_t)n / 4;
    halo.axis[0] = "x";
    halo.periodic[0] = 1;
    src.data = a, src.layout.ndim = 2, src.layout.shape[0] = src.layout.shape[1] = 300, src.layout.on = &c->on;
    mesh_spec_parse(&src.layout.spec, &c->on, what == 25 ? "x:S(0)" : "x:P(sum)", 2, NULL);
    dst = src, dst.data = b;
    mesh_spec_parse(&dst.layout.spec, &c->on, "x:S(1)", 2, NULL);
    switch (what) {
    case 0:
        return mesh_all_reduce_start(c, NULL, a, b, n, MESH_F32, MESH_SUM, r);
    case 1:
        return mesh_all_reduce_start(c, NULL, a, b, 1, MESH_F32, MESH_SUM, r);
    case 2:
        return mesh_reduce_start(c, NULL, a, b, n, MESH_F32, MESH_SUM, 0, r);
    case 3:
        return mesh_broadcast_start(c, NULL, a, b, n, MESH_F32, VICTIM, r);
    case 4:
        return mesh_all_gather_start(c, NULL, a, b, n / 4, MESH_F32, r);
    case 5:
        return mesh_all_gather_v_start(c, NULL, a, b, counts, NULL, MESH_F32, r);
    case 6:
        return mesh_reduce_scatter_start(c, NULL, a, b, n / 4, MESH_F32, MESH_MAX, r);
    case 7:
        return mesh_all_to_all_start(c, NULL, a, b, n / 4, MESH_F32, r);
    case 8:
        return mesh_all_to_all_v_start(c, NULL, a, counts, NULL, b, counts, NULL, MESH_F32, r);
    case 9:
        return mesh_barrier_start(c, NULL, r);
    case 10:
        return mesh_shift_start(c, NULL, 1, 1, a, b, n, MESH_F32, r);
    case 11:
        return mesh_sendrecv_start(c, NULL, (me + 2) % 4, a, n, (me + 2) % 4, b, n, MESH_F32, r);
    case 12:
        return mesh_gather_start(c, NULL, a, b, n / 4, MESH_F32, 1, r);
    case 13:
        return mesh_gather_v_start(c, NULL, a, n / 4, b, counts, NULL, MESH_F32, 1, r);
    case 14:
        return mesh_scatter_start(c, NULL, a, b, n / 4, MESH_F32, VICTIM, r);
    case 15:
        return mesh_scatter_v_start(c, NULL, a, counts, NULL, b, n / 4, MESH_F32, VICTIM, r);
    case 16:
        return mesh_scan_start(c, NULL, a, b, n, MESH_F32, MESH_SUM, r);
    case 17:
        return mesh_exscan_start(c, NULL, a, b, 1, MESH_F32, MESH_SUM, r);
    case 18:
        return mesh_broadcast_object_start(c, NULL, &object, VICTIM, r);
    case 19:
        return mesh_all_reduce_many_start(c, NULL, list, 3, MESH_F32, MESH_SUM, r);
    case 20:
        return mesh_broadcast_many_start(c, NULL, list, 3, MESH_F32, VICTIM, r);
    case 21:
        list[0].count = list[2].count = n / 16;
        return mesh_all_gather_many_start(c, NULL, list, 2, MESH_F32, r);
    case 22:
        list[0].count = list[2].count = n / 16;
        return mesh_reduce_scatter_many_start(c, NULL, list, 2, MESH_F32, MESH_SUM, r);
    case 23:
        return mesh_all_reduce_start(c, NULL, a, b, n / 2, MESH_F32, MESH_MINLOC, r);
    case 24:
        return mesh_halo_exchange_start(c, &halo, a, MESH_F32, r);
    case 25:
    case 26:
        return mesh_redistribute_start(c, &src, &dst, r);
    default: { /* a kept request, started again: all are alive the first time */
        mesh_status status = mesh_restart(kept_request);
        *r = kept_request;
        return status;
    }
    }
}

static void killed_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx, sim = !strcmp(t->ops->name, "sim");
    float *a = (float *)calloc(120000, sizeof(float)), *b = (float *)calloc(120000, sizeof(float));
    mesh_request r, kept = MESH_ZERO;
    mesh_comm c;
    mesh_status status;
    if (!open_comm(t, &c, "x=4", NULL, 10 * SECOND)) return;
    if (what == KILL_CASES - 1) {
        CHECK_OK(mesh_all_reduce_start(&c, NULL, a, b, 120000, MESH_F32, MESH_SUM, &kept), c.error);
        CHECK_INT(mesh_keep(kept), MESH_OK);
        CHECK_OK(mesh_wait(kept), c.error);
    }
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == VICTIM) {
        pause_rank(t, SECOND / 20);
        if (!sim) kill(getpid(), SIGKILL);
        mesh_sim_die(t);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_TRANSPORT);
    } else {
        status = some_operation(&c, what, a, b, kept, &r);
        if (status == MESH_OK) status = mesh_wait(r);
        if (status == MESH_OK) status = mesh_barrier(&c, NULL); /* this rank did not need the victim */
        CHECK_INT(status, MESH_ERR_PEER);
        CHECK_INT(c.error.rank, VICTIM);
        CHECK_HAS(c.error.text, "rank 2");
    }
    mesh_comm_close(&c);
    free(a);
    free(b);
}
static void killed(int backend) {
    int what;
    for (what = 0; what < KILL_CASES; what++) run_world_but(backend, 4, killed_rank, &what, VICTIM);
}
static void test_killed_sim(void) { killed(SIM); }
static void test_killed_tcp(void) { killed(TCP); }
static void test_killed_unix(void) { killed(UNIX); }
static void test_killed_shared(void) { killed(SHARED); }

/* A rank that is not connected to the victim and sits behind another one hears of it too. Exactly the comms with the victim fail. */
static void bystander_rank(mesh_transport *t, void *ctx) {
    static const int two = 2;
    mesh_comm all, pair;
    mesh p;
    mesh_desc d = MESH_ZERO;
    mesh_error err;
    int v = 1, sum = 0, i;
    (void)ctx;
    d.shape = &two;
    d.naxes = 1;
    d.origin = t->rank & 2; /* {0,1} and {2,3} */
    CHECK_OK(mesh_make(&p, &d, &err), err);
    if (!open_comm(t, &all, "x=4", NULL, 10 * SECOND)) return;
    CHECK_OK(mesh_comm_open(&pair, t, &p, NULL, &err), err);
    CHECK_INT(mesh_barrier(&pair, NULL), MESH_OK);
    if (t->rank == 3) {
        if (strcmp(t->ops->name, "sim")) kill(getpid(), SIGKILL);
        mesh_sim_die(t);
        mesh_comm_close(&all); /* the simulator's thread goes on, and its comms are on this stack */
        mesh_comm_close(&pair);
        return;
    }
    CHECK_INT(mesh_barrier(&all, NULL), MESH_ERR_PEER);
    CHECK_INT(all.error.rank, 3);
    if (t->rank == 2) {
        CHECK_INT(mesh_all_reduce(&pair, NULL, &v, &sum, 1, MESH_I32, MESH_SUM), MESH_ERR_PEER);
    } else {
        for (i = 0; i < 5; i++) CHECK_INT(mesh_all_reduce(&pair, NULL, &v, &sum, 1, MESH_I32, MESH_SUM), MESH_OK);
        CHECK_INT(sum, 2);
        CHECK_INT(mesh_comm_close(&all), MESH_OK); /* and a new comm without the victim can be opened */
        mesh_comm_close(&pair);
        CHECK_OK(mesh_comm_open(&pair, t, &p, NULL, &err), err);
        CHECK_INT(mesh_barrier(&pair, NULL), MESH_OK);
    }
    mesh_comm_close(&all);
    mesh_comm_close(&pair);
}
static void test_bystanders(void) {
    run_world(SIM, 4, bystander_rank, NULL);
    run_world_but(TCP, 4, bystander_rank, NULL, 3);
    run_world_but(UNIX, 4, bystander_rank, NULL, 3);
}

/* An orderly close fails only those who still need the rank. */
static void closed_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    int v = t->rank, got = -1;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 10 * SECOND)) return;
    if (t->rank == 0) {
        CHECK_INT(mesh_send(&c, NULL, 1, &v, 1, MESH_I32), MESH_OK);
        mesh_comm_close(&c);
        return; /* its transport closes */
    }
    pause_rank(t, SECOND / 5);
    if (t->rank == 1) {
        CHECK_INT(mesh_recv(&c, NULL, 0, &got, 1, MESH_I32), MESH_OK); /* sent before the close */
        CHECK_INT(got, 0);
    }
    CHECK_INT(mesh_sendrecv(&c, NULL, 3 - t->rank, &v, 1, 3 - t->rank, &got, 1, MESH_I32), MESH_OK);
    CHECK_INT(got, 3 - t->rank);
    CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
    CHECK_INT(c.error.rank, 0);
    CHECK_HAS(c.error.text, "rank 0 closed its transport while it was needed");
    mesh_comm_close(&c);
}
static void test_closed(void) {
    run_world(SIM, 3, closed_rank, NULL);
    run_world(TCP, 3, closed_rank, NULL);
    run_world(UNIX, 3, closed_rank, NULL);
}

/* A rank that leaves in the middle of a message ends it for the other; what it sent before is still received. */
static void leaves_rank(mesh_transport *t, void *ctx) {
    enum { BIG = 8 << 20, MANY = 60, EACH = 4096 };
    int what = *(int *)ctx, i;
    float *buf = (float *)calloc(BIG, sizeof(float));
    mesh_request r;
    mesh_comm c;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    come_together(&c);
    if (t->rank == 0) {
        pause_rank(t, SECOND / 10);
    } else if (what == 0 && t->rank == 2) { /* 32 MiB, given up half way */
        pause_rank(t, SECOND / 20);         /* the others are through the barrier */
        CHECK_INT(mesh_send_start(&c, NULL, 1, buf, BIG, MESH_F32, &r), MESH_OK);
        for (i = 0; i < 3; i++) mesh_test(r);
        CHECK_INT(mesh_comm_close(&c), MESH_ERR_STATE);
    } else if (what == 0) {
        CHECK_INT(mesh_recv(&c, NULL, 2, buf, BIG, MESH_F32), MESH_ERR_PEER);
        CHECK_INT(c.error.rank, 2);
    } else if (t->rank == 2) { /* many messages, then gone */
        for (i = 0; i < MANY; i++) {
            buf[0] = (float)i;
            CHECK_INT(mesh_send(&c, NULL, 1, buf, EACH, MESH_F32), MESH_OK);
        }
    } else {
        pause_rank(t, SECOND);
        if (what == 2)
            mesh_send(&c, NULL, 2, buf, 1, MESH_F32); /* nobody reads it: it may fail, but takes nothing with it */
        for (i = 0; i < MANY && !c.failed; i++) {
            CHECK_INT(mesh_recv(&c, NULL, 2, buf, EACH, MESH_F32), MESH_OK);
            CHECK(buf[0] == (float)i);
        }
        CHECK_STR(c.error.text, "");
    }
    mesh_comm_close(&c);
    free(buf);
}
static void test_leaves(void) {
    int what, b;
    for (what = 0; what < 3; what++)
        for (b = TCP; b <= SHARED; b++) run_world(b, 3, leaves_rank, &what);
}

/* A rank that closed only the comm says so when it is asked; a comm is opened once. */
static void comm_closed_rank(mesh_transport *t, void *ctx) {
    mesh_comm c, other;
    mesh m;
    mesh_error err;
    int v = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 10 * SECOND) || !open_comm(t, &other, "y=3", NULL, 10 * SECOND)) return;
    CHECK_OK(mesh_parse(&m, "x=3", 3, &err), err);
    CHECK_INT(mesh_comm_open(&c, t, &m, NULL, &err), MESH_ERR_STATE);
    CHECK_HAS(err.text, "open already");
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 1) {
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
    } else {
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
        CHECK_HAS(c.error.text, "rank 1 has closed this comm");
        CHECK_INT(c.error.rank, 1);
    }
    CHECK_INT(mesh_all_reduce(&other, NULL, &v, &v, 1, MESH_I32, MESH_SUM), MESH_OK);
    mesh_comm_close(&c);
    mesh_comm_close(&other);
}
static void test_comm_closed(void) {
    run_world(SIM, 3, comm_closed_rank, NULL);
    run_world(TCP, 3, comm_closed_rank, NULL);
}

/* A flood that nobody receives stops at the credit, and arrives whole afterwards. */
static void flood_rank(mesh_transport *t, void *ctx) {
    enum { N = 3000, EACH = 256 };
    static mesh_request r[N];
    static int32_t in[EACH];
    mesh_comm c;
    int i, done = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 120 * SECOND)) return;
    if (t->rank == 0) {
        int32_t(*out)[EACH] = (int32_t(*)[EACH])calloc(N, sizeof *out);
        for (i = 0; i < N; i++) {
            out[i][0] = i;
            CHECK_INT(mesh_send_start(&c, NULL, 1, out[i], EACH, MESH_I32, &r[i]), MESH_OK);
        }
        CHECK_INT(mesh_barrier(&c, NULL), MESH_OK); /* the other is in the library, and receives nothing yet */
        for (i = 0; i < N; i++) done += mesh__request_op(r[i])->state == MESH__DONE;
        CHECK(done < 1100); /* 1 MiB of 1 KiB messages */
        for (i = 0; i < N; i++) CHECK_INT(mesh_wait(r[i]), MESH_OK);
        free(out);
    } else {
        CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
        for (i = 0; i < N; i++) {
            CHECK_INT(mesh_recv(&c, NULL, 0, in, EACH, MESH_I32), MESH_OK);
            CHECK_INT(in[0], i);
        }
    }
    mesh_comm_close(&c);
}
static void test_flood(void) {
    run_world(TCP, 2, flood_rank, NULL);
    run_world(UNIX, 2, flood_rank, NULL);
}

/* Two groups share an axis: only the one that disagrees is blamed. */
static void blame_rank(mesh_transport *t, void *ctx) {
    float a[16] = {0};
    mesh_comm c;
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &c, "pp=2,dp=2", NULL, 10 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    pause_rank(t, SECOND / 20);
    status = mesh_all_reduce(&c, "dp", a, a, t->rank == 0 ? 4 : t->rank == 1 ? 8 : 16, MESH_F32, MESH_SUM);
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "calls all_reduce(4 x f32");
    CHECK_HAS(c.error.text, "calls all_reduce(8 x f32");
    CHECK(!strstr(c.error.text, "16 x f32"));
    mesh_comm_close(&c);
}
static void test_blame(void) {
    run_world(SIM, 4, blame_rank, NULL);
    run_world(TCP, 4, blame_rank, NULL);
}

/* An opening that one rank came late for does not spoil the next. */
static void reopen_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    mesh_status status;
    (void)ctx;
    desc.timeout_ns = SECOND / 5;
    CHECK_OK(mesh_parse(&m, "x=3", 3, &err), err);
    if (t->rank == 1) pause_rank(t, SECOND / 2);
    status = mesh_comm_open(&c, t, &m, &desc, &err);
    CHECK_INT(status, MESH_ERR_TIMEOUT);
    CHECK_OK(mesh_parse(&m, "other=3", 3, &err), err);
    CHECK_OK(mesh_comm_open(&c, t, &m, NULL, &err), err);
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    mesh_comm_close(&c);
}
static void test_reopen(void) {
    run_world(SIM, 3, reopen_rank, NULL);
    run_world(TCP, 3, reopen_rank, NULL);
}

/* A transport that can go no further ends an opening at once, the first rank's and another's, and names its own rank. */
static void halted_rank(mesh_transport *t, void *ctx) {
    int dead = *(int *)ctx;
    mesh m;
    mesh_comm c;
    mesh_error err;
    mesh_comm_desc desc = MESH_ZERO;
    int64_t start = t->ops->now(t);
    desc.timeout_ns = 600 * SECOND;
    CHECK_OK(mesh_parse(&m, "x=3", 3, &err), err);
    if (t->rank == dead) mesh_sim_die(t);
    CHECK_INT(mesh_comm_open(&c, t, &m, &desc, &err), t->rank == dead ? MESH_ERR_TRANSPORT : MESH_ERR_PEER);
    CHECK_INT(err.rank, dead);
    CHECK(t->ops->now(t) - start < 2 * SECOND);
}
static void test_halted(void) {
    int dead;
    for (dead = 0; dead < 3; dead++) run_world(SIM, 3, halted_rank, &dead);
}

/* Two ranks are gone at once: every other one comes to know both, and goes on in a comm of the rest. */
static void lost_two_rank(mesh_transport *t, void *ctx) {
    int first = *(const int *)ctx, lost[5], rest[3], inverse[5], three = 3, n = 0, k, one = 1, sum = 0;
    const char *name = "rest";
    mesh_table table;
    mesh_desc d = MESH_ZERO;
    mesh_error err;
    mesh_comm c;
    mesh m;
    int64_t end;
    CHECK_INT(mesh_lost_ranks(t, lost, 5), 0);
    CHECK_INT(mesh_lost_ranks(NULL, lost, 5), -1);
    if (!open_comm(t, &c, "x=5", NULL, 60 * SECOND)) return;
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank == first || t->rank == 3) _exit(0);
    CHECK_INT(mesh_all_reduce(&c, NULL, &one, &sum, 1, MESH_I32, MESH_SUM), MESH_ERR_PEER);
    mesh_comm_close(&c);
    end = mesh_now(t) + 60 * SECOND;
    while (mesh_lost_ranks(t, NULL, 0) < 2 && mesh_now(t) < end) mesh_progress(t, mesh_now(t) + SECOND / 100);
    CHECK_INT(mesh_lost_ranks(t, lost, 1), 2);
    CHECK_INT(mesh_lost_ranks(t, lost, 5), 2);
    CHECK(lost[0] == first && lost[1] == 3);
    for (k = 0; k < 5; k++)
        if (k != first && k != 3) rest[n++] = k;
    CHECK_OK(mesh_table_make(&table, rest, 3, inverse, 5, &err), err);
    d.shape = &three, d.names = &name, d.naxes = 1, d.table = &table;
    CHECK_OK(mesh_make(&m, &d, &err), err);
    if (mesh_comm_open(&c, t, &m, NULL, &err)) {
        test_fail(__FILE__, __LINE__, "rank %d: %s", t->rank, err.text);
        return;
    }
    CHECK_OK(mesh_all_reduce(&c, NULL, &one, &sum, 1, MESH_I32, MESH_SUM), c.error);
    CHECK_INT(sum, 3);
    mesh_comm_close(&c);
}
static void test_lost_two(void) {
    static const int backends[] = {TCP, UNIX, SHARED};
    int k, first;
    for (k = 0; k < 3; k++)
        for (first = 0; first < 2; first++) run_world_but(backends[k], 5, lost_two_rank, &first, 3);
}

/* ---- deadlines ---- */

static void late_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    float v = 0;
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, SECOND / 2)) return;
    if (t->rank == 1) {
        pause_rank(t, SECOND);
        status = mesh_all_reduce(&c, NULL, &v, &v, 1, MESH_F32, MESH_SUM);
        CHECK_INT(status, MESH_ERR_TIMEOUT); /* the others gave up, and said so */
        CHECK_HAS(c.error.text, "failed");
    } else {
        status = mesh_all_reduce(&c, NULL, &v, &v, 1, MESH_F32, MESH_SUM);
        CHECK_INT(status, MESH_ERR_TIMEOUT);
        CHECK_HAS(c.error.text, "deadline of 500 ms passed waiting for rank ");
    }
    mesh_comm_close(&c);
}
static void test_deadline(void) {
    run_world(SIM, 3, late_rank, NULL);
    run_world(TCP, 3, late_rank, NULL);
}

/* Who has closed the comm answers the roll call of a deadline: the one to blame is the one outside the library. */
static void closer_rank(mesh_transport *t, void *ctx) {
    mesh_comm c, other;
    int v = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=4", NULL, SECOND) || !open_comm(t, &other, "y=4", NULL, 20 * SECOND)) return;
    if (t->rank == 3) {
        pause_rank(t, 3 * SECOND);
    } else if (t->rank) {
        CHECK_OK(mesh_comm_close(&c), c.error);
        CHECK_OK(mesh_recv(&other, NULL, 0, &v, 1, MESH_I32), other.error);
    } else {
        CHECK_INT(mesh_recv(&c, NULL, 3, &v, 1, MESH_I32), MESH_ERR_TIMEOUT);
        CHECK_INT(c.error.rank, 3);
        CHECK_HAS(c.error.text, "; rank 3 does not answer");
        CHECK_OK(mesh_send(&other, NULL, 1, &v, 1, MESH_I32), other.error);
        CHECK_OK(mesh_send(&other, NULL, 2, &v, 1, MESH_I32), other.error);
    }
    mesh_comm_close(&c);
    mesh_comm_close(&other);
}
static void test_deadline_closers(void) { run_world(SIM, 4, closer_rank, NULL); }

/* Nor does one count as silent that leaves while the roll is called. */
static void leaver_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    int v = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=4", NULL, SECOND)) return;
    if (t->rank == 0) {
        CHECK_INT(mesh_recv(&c, NULL, 3, &v, 1, MESH_I32), MESH_ERR_TIMEOUT);
        CHECK_INT(c.error.rank, 3);
        CHECK_HAS(c.error.text, "; rank 3 does not answer");
    } else {
        pause_rank(t, t->rank == 3 ? 3 * SECOND : 11 * SECOND / 10);
    }
    mesh_comm_close(&c);
}
static void test_deadline_leavers(void) { run_world(SIM, 4, leaver_rank, NULL); }

/* A message that is lost on the way ends at the deadline, not never. */
static void lossy_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    float v[4] = {1, 2, 3, 4};
    (void)ctx;
    if (!open_comm(t, &c, "x=4", NULL, SECOND)) return;
    if (mesh_all_reduce(&c, NULL, v, v, 4, MESH_F32, MESH_SUM) == MESH_OK) { /* the loss is behind this rank */
        CHECK(t->rank != 3);
        pause_rank(t, 3 * SECOND);
    } else {
        CHECK_INT(c.error.status, MESH_ERR_TIMEOUT);
    }
    mesh_comm_close(&c);
}
static void test_sim_drop(void) {
    mesh_sim_fault fault = MESH_ZERO;
    mesh_sim_desc d = sim_desc(4);
    mesh_error err;
    fault.kind = MESH_SIM_DROP;
    fault.rank = 2;
    fault.peer = 3;
    d.fault = &fault;
    d.faults = 1;
    CHECK_OK(mesh_sim_run(&d, lossy_rank, NULL, &err), err);
}

/* A message that takes ten times as long as the waiters' patience is no cycle: they ask, and go on waiting. */
static void delayed_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    float v[4] = {1, 2, 3, 4};
    (void)ctx;
    if (!open_comm(t, &c, "x=4", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_all_reduce(&c, NULL, v, v, 4, MESH_F32, MESH_SUM), MESH_OK);
    CHECK(v[3] == 16 && (t->rank != 3 || t->ops->now(t) > SECOND));
    CHECK_STR(c.error.text, "");
    mesh_comm_close(&c);
}
static void test_sim_delay(void) {
    mesh_sim_fault fault = MESH_ZERO;
    mesh_sim_desc d = sim_desc(4);
    mesh_error err;
    fault.kind = MESH_SIM_DELAY;
    fault.rank = 2;
    fault.peer = 3;
    fault.delay_ns = SECOND;
    d.fault = &fault;
    d.faults = 1;
    CHECK_OK(mesh_sim_run(&d, delayed_rank, NULL, &err), err);
}

/* Rank 0 is lost: comms without it go on, new ones open, and questions are asked without it. */
static void headless_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm all, rest;
    mesh_error err;
    mesh_status status;
    int v = 1, sum = 0, two = 2;
    mesh_desc d = MESH_ZERO;
    (void)ctx;
    if (!open_comm(t, &all, "x=3", NULL, 10 * SECOND)) return;
    CHECK_INT(mesh_barrier(&all, NULL), MESH_OK);
    if (t->rank == 0) {
        pause_rank(t, SECOND / 20);
        if (strcmp(t->ops->name, "sim")) kill(getpid(), SIGKILL);
        mesh_sim_die(t);
        mesh_comm_close(&all);
        return;
    }
    CHECK_INT(mesh_barrier(&all, NULL), MESH_ERR_PEER);
    CHECK_INT(all.error.rank, 0);
    d.shape = &two;
    d.naxes = 1;
    d.origin = 1;
    CHECK_OK(mesh_make(&m, &d, &err), err);
    CHECK_OK(mesh_comm_open(&rest, t, &m, NULL, &err), err);
    CHECK_INT(mesh_all_reduce(&rest, NULL, &v, &sum, 1, MESH_I32, MESH_SUM), MESH_OK);
    CHECK_INT(sum, 2);
    status = mesh_recv(&rest, NULL, t->rank == 1, &v, 1, MESH_I32); /* each waits for the other */
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(rest.error.text, "a cycle of ranks");
    mesh_comm_close(&all);
    mesh_comm_close(&rest);
}
static void test_headless(void) {
    run_world(SIM, 3, headless_rank, NULL);
    run_world_but(TCP, 3, headless_rank, NULL, 0);
    run_world_but(UNIX, 3, headless_rank, NULL, 0);
}

/* Two are lost, and no survivor was ever connected to the second: who opens without the first one hears of it all the same. */
static void unheard_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm rest;
    mesh_error err;
    int two = 2, lost[2];
    mesh_desc d = MESH_ZERO;
    (void)ctx;
    if (t->rank != 1) {
        world_await(0, 1); /* outside the library: it tells nobody of the other */
        _exit(0);
    }
    d.shape = &two;
    d.naxes = 1;
    d.origin = 1;
    CHECK_OK(mesh_make(&m, &d, &err), err);
    world_say(0);
    CHECK_INT(mesh_comm_open(&rest, t, &m, NULL, &err), MESH_ERR_PEER);
    CHECK_INT(err.rank, 2);
    CHECK(mesh_lost_ranks(t, lost, 2) > 0);
}
static void test_unheard(void) {
    run_world(TCP, 3, unheard_rank, NULL);
    run_world(UNIX, 3, unheard_rank, NULL);
    run_world_but(SHARED, 3, unheard_rank, NULL, 3); /* processes in any case */
}

/* Kill a rank at every one of its posts in turn: whatever it was in, the others end with its name. */
static void step_rank(mesh_transport *t, void *ctx) {
    static const size_t n = 6000;
    int i, *ended = (int *)ctx;
    float *a = (float *)calloc(n, sizeof(float));
    mesh_comm c;
    mesh_status status = MESH_OK;
    if (!open_comm(t, &c, "x=4", NULL, 20 * SECOND)) return;
    for (i = 0; i < 4 && status == MESH_OK; i++) {
        status = mesh_all_reduce(&c, NULL, a, a, n, MESH_F32, MESH_SUM);
        if (status == MESH_OK) status = mesh_all_reduce(&c, NULL, a, a, 5, MESH_F32, MESH_SUM);
        if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    }
    if (t->rank == 1)
        CHECK(status == MESH_ERR_TRANSPORT || (status == MESH_OK && *ended));
    else
        CHECK(status == MESH_ERR_PEER || status == MESH_OK);
    if (status == MESH_ERR_PEER) CHECK_INT(c.error.rank, 1);
    if (t->rank == 1 && status == MESH_OK) *ended = 2;
    mesh_comm_close(&c);
    free(a);
}
static void test_sim_kill_each_post(void) {
    int at, ended = 1;
    for (at = 0; at < 60 && ended != 2; at++) {
        mesh_sim_fault fault = MESH_ZERO;
        mesh_sim_desc d = sim_desc(4);
        mesh_error err;
        fault.kind = MESH_SIM_KILL;
        fault.rank = 1;
        fault.at = at;
        d.fault = &fault;
        d.faults = 1;
        CHECK_OK(mesh_sim_run(&d, step_rank, &ended, &err), err);
    }
    CHECK(at > 10 && ended == 2);
}

/* Two ranks move large messages while a third makes a mistake: all hear of the mistake, not of what the others canceled for it. */
static void withdrawn_rank(mesh_transport *t, void *ctx) {
    enum { N = 1 << 22 };
    float *a = (float *)calloc(N, sizeof *a), *b = (float *)calloc(N, sizeof *b);
    mesh_request r[8];
    mesh_comm c;
    mesh_status status = MESH_OK;
    int i, n = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 1) {
        pause_rank(t, SECOND / 50);
        status = mesh_broadcast(&c, NULL, a, b, 1, MESH_F32, 9);
    } else {
        for (i = 0; i < 8 && status == MESH_OK; i++, n++)
            status = t->rank == 0 ? mesh_send_start(&c, NULL, 2, a, N, MESH_F32, &r[i])
                                  : mesh_recv_start(&c, NULL, 0, b, N, MESH_F32, &r[i]);
        for (i = 0; i < n; i++) {
            mesh_status ended = mesh_wait(r[i]);
            if (status == MESH_OK) status = ended;
        }
        if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    }
    CHECK_INT(status, MESH_ERR_ARGUMENT);
    CHECK_HAS(c.error.text, "root 9");
    mesh_comm_close(&c);
    free(a);
    free(b);
}
/* Sends taken back one after another, each before the next: none of them arrives, and the memory they were in is read no more. */
static void sent_and_taken_rank(mesh_transport *t, void *ctx) {
    enum { N = 1 << 18, TIMES = 3 };
    unsigned char *p = (unsigned char *)calloc(N, 1);
    mesh_ticket ticket;
    mesh_xfer x;
    mesh_post post;
    int k, i, left = 0;
    (void)ctx;
    memset(&x, 0, sizeof x), memset(&post, 0, sizeof post);
    x.rank = 1 - t->rank, x.nbytes = N, x.base = p, x.direction = t->rank ? MESH_RECV : MESH_SEND;
    post.channel = UINT64_C(1) << 32, post.xfer = &x, post.count = 1;
    if (t->rank) conf_hear(t, 0, MESH_EVENT_MESSAGE, 'b');
    for (k = 0; k < TIMES; k++) {
        memset(p, t->rank ? 0 : k + 1, N);
        CHECK_INT(t->ops->post(t, &post, &ticket), MESH_OK);
        if (t->rank == 0) CHECK_INT(t->ops->cancel(t, &ticket), MESH_OK);
        CHECK_INT(conf_finish(t, &ticket), MESH_ERR_CANCELED);
        if (t->rank)
            for (i = 0; i < N; i++) left += p[i] != 0;
    }
    CHECK_INT(left, 0);
    if (t->rank == 0) conf_tell(t, 1, 'b');
    free(p);
}
static void test_withdrawn(void) {
    run_world(SIM, 2, sent_and_taken_rank, NULL);
    run_world(SIM, 3, withdrawn_rank, NULL);
    run_world(TCP, 3, withdrawn_rank, NULL);
}

static const test_case lost_tests[] = {
    {"faults/lost_two", test_lost_two, 0},
    {"faults/killed_sim", test_killed_sim, 0},
    {"faults/killed_tcp", test_killed_tcp, 0},
    {"faults/killed_unix", test_killed_unix, 0},
    {"faults/killed_shared", test_killed_shared, 0},
    {"faults/bystanders", test_bystanders, 0},
    {"faults/closed", test_closed, 0},
    {"faults/leaves", test_leaves, 0},
    {"faults/comm_closed", test_comm_closed, 0},
    {"faults/flood", test_flood, 0},
    {"faults/blame", test_blame, 0},
    {"faults/reopen", test_reopen, 0},
    {"faults/halted", test_halted, 0},
    {"faults/deadline", test_deadline, 0},
    {"faults/deadline_closers", test_deadline_closers, 0},
    {"faults/deadline_leavers", test_deadline_leavers, 0},
    {"faults/sim_drop", test_sim_drop, 0},
    {"faults/sim_delay", test_sim_delay, 0},
    {"faults/headless", test_headless, 0},
    {"faults/unheard", test_unheard, 0},
    {"faults/sim_kill_each_post", test_sim_kill_each_post, 0},
    {"faults/withdrawn", test_withdrawn, 0},
};

#endif
