/* Laws of comms: who waits for whom, who is asked and blamed, when many faults come at once. Uses t_comm_laws.h. */
#ifndef T_COMM_WAITS_H
#define T_COMM_WAITS_H

/* ---- meshes that are not the world: verdicts, roll calls and waits go by ranks, not by indices ---- */

static void turned_rank(mesh_transport *t, void *ctx) {
    int how = *(int *)ctx, shape = 3, table[3] = {5, 1, 3}, inverse[6], v = 0; /* ranks 0, 2, 4 are others */
    mesh_table devices;
    mesh_desc d = MESH_ZERO;
    mesh_comm_desc desc = MESH_ZERO;
    mesh m;
    mesh_comm c;
    mesh_error err;
    mesh_status status;
    if (t->rank % 2 == 0) return;
    d.shape = &shape, d.naxes = 1, d.table = &devices;
    desc.timeout_ns = how == 2 ? SECOND : 20 * SECOND, desc.ask_ns = SECOND / 10;
    CHECK_OK(mesh_table_make(&devices, table, 3, inverse, 6, &err), err);
    CHECK_OK(mesh_make(&m, &d, &err), err);
    CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
    if (!c.impl) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 3 && how == 1) mesh_sim_die(t);
    if (t->rank == 3 && how == 2) pause_rank(t, 10 * SECOND);
    if (t->rank == 3 && how == 0) {
        status = mesh_barrier(&c, "nowhere");
    } else if (how == 3) {
        status = mesh_recv(&c, NULL, (mesh_comm_index(&c, NULL) + 1) % 3, &v, 1, MESH_I32);
    } else {
        status = mesh_barrier(&c, NULL);
    }
    if (t->rank != 3 || how == 0 || how == 3) {
        static const mesh_status want[] = {MESH_ERR_ARGUMENT, MESH_ERR_PEER, MESH_ERR_TIMEOUT, MESH_ERR_MISMATCH};
        CHECK_INT(status, want[how]);
        if (how < 3) CHECK_INT(c.error.rank, 3);
        if (how == 3) CHECK_HAS(c.error.text, "rank 5 waits for rank 1 in recv(1 x i32)");
    }
    mesh_comm_close(&c);
}
static void test_turned(void) {
    int how;
    for (how = 0; how < 4; how++) run_world(SIM, 6, turned_rank, &how);
}

/* ---- roll calls: a transport that cannot tell who is awaited ---- */

typedef struct roll_case {
    int ranks, odd,
        how; /* how: the odd one sleeps, is in another call, has left; or the peer of a message has not posted it */
} roll_case;

static void blind_rank(mesh_transport *t, void *ctx) {
    const roll_case *k = (const roll_case *)ctx;
    int v = 1, got, odd = t->rank == k->odd;
    mesh_comm c;
    mesh_status status;
    char name[80];
    t->caps &= ~(uint32_t)MESH_CAP_PENDING;
    if (!open_comm(t, &c, "x=-1", NULL, 2 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (odd && k->how == 0) pause_rank(t, 20 * SECOND);
    if (odd && k->how == 2) {
        mesh_transport_detach(t); /* its comm is gone with this function */
        return;
    }
    if (k->how == 1) { /* the others have called the barrier, the odd one waits for a message from the next */
        if (odd) pause_rank(t, SECOND); /* its own deadline is the later one */
        status = odd ? mesh_recv(&c, NULL, (t->rank + 1) % t->size, &got, 1, MESH_I32) : mesh_barrier(&c, NULL);
    } else if (k->how ==
               3) { /* all but the odd one post what they exchange in pairs; it has only posted the send of it */
        mesh_request r;
        int peer = t->rank ^ 1;
        if (odd) {
            CHECK_INT(mesh_send_start(&c, NULL, peer, &v, 1, MESH_I32, &r), MESH_OK);
            status = mesh_barrier(&c, NULL);
        } else {
            status = mesh_sendrecv(&c, NULL, peer, &v, 1, peer, &got, 1, MESH_I32);
            if (status == MESH_OK) status = mesh_send(&c, NULL, peer, &v, 1, MESH_I32);
            if (status == MESH_OK) status = mesh_recv(&c, NULL, peer, &got, 1, MESH_I32);
            if (status == MESH_OK) status = mesh_barrier(&c, NULL);
        }
        snprintf(name, sizeof name, "rank %d", k->odd);
        CHECK(status == MESH_ERR_TIMEOUT || status == MESH_ERR_PEER);
        mesh_comm_close(&c);
        return;
    } else {
        status = mesh_barrier(&c, NULL);
    }
    if (!odd) {
        CHECK_INT(status, k->how == 2 ? MESH_ERR_PEER : MESH_ERR_TIMEOUT);
        CHECK_INT(c.error.rank, k->odd);
        snprintf(name, sizeof name,
                 k->how == 0   ? "rank %d does not answer (it is stopped"
                 : k->how == 1 ? "rank %d has not called it (it is in recv(1 x i32)"
                               : "rank %d closed its transport while it was needed",
                 k->odd);
        CHECK_HAS(c.error.text, name);
    }
    mesh_comm_close(&c);
}
/* Who is absent waits itself, in a group that the asker is not in, for one that does not answer: that one is named, by the asker too. */
static void chased_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    float v = 1;
    int lone = *(int *)ctx; /* only the asker's deadline passes: nobody else can tell */
    if (!open_comm(t, &c, "y=2,x=3", NULL, lone && t->rank > 2 ? 60 * SECOND : SECOND)) return;
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank == 3) {
        pause_rank(t, 8 * SECOND);
    } else {
        mesh_status status = mesh_all_reduce(&c, "x", &v, &v, 1, MESH_F32, MESH_SUM);
        if (t->rank < 3) CHECK_OK(status, c.error);
        if (lone && t->rank < 2)
            pause_rank(t, 8 * SECOND);
        else if (t->rank < 3)
            status = mesh_all_reduce(&c, "y", &v, &v, 1, MESH_F32, MESH_SUM);
        if (!lone || t->rank >= 2) {
            CHECK_INT(status, MESH_ERR_TIMEOUT);
            CHECK_INT(c.error.rank, 3);
        }
        if (lone && t->rank == 2) {
            CHECK_HAS(c.error.text, "rank 5 has not called it (it is in all_reduce(1 x f32, sum) on \"x\"");
            CHECK_HAS(c.error.text, "waits for rank 3, which does not answer");
        }
    }
    mesh_comm_close(&c);
}
static void test_chased(void) {
    int lone;
    for (lone = 0; lone < 2; lone++) run_world(SIM, 6, chased_rank, &lone);
}

static void test_rolls(void) {
    static const roll_case cases[] = {{3, 2, 0},   {3, 2, 1},   {3, 1, 2},  {3, 0, 0},
                                      {70, 69, 0}, {70, 33, 0}, {70, 1, 1}, {4, 1, 3}};
    size_t k;
    for (k = 0; k < sizeof cases / sizeof *cases; k++)
        run_world(SIM, cases[k].ranks, blind_rank, (void *)(uintptr_t)&cases[k]);
}

/* A rank that was lost is not said to have closed its transport, however often the roll is called before its loss is told. */
static void blind_lost_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    (void)ctx;
    t->caps &= ~(uint32_t)MESH_CAP_PENDING;
    if (!open_comm(t, &c, "x=3", NULL, 9 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    mesh__impl(&c)->ask = SECOND / 100;
    if (t->rank == 1) {
        mesh_sim_die(t);
    } else {
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
        CHECK_INT(c.error.rank, 1);
        CHECK_HAS(c.error.text, "rank 1 was lost");
    }
    mesh_comm_close(&c);
}
static void test_blind_lost(void) { run_world(SIM, 3, blind_lost_rank, NULL); }

/* The same: a rank has left and another sleeps; answers to an older question; messages that both have sent, or neither. */
static void blind_more_rank(mesh_transport *t, void *ctx) {
    int how = *(int *)ctx, me = t->rank, v = 0, i;
    static char big[3][2][40000];
    mesh_comm c;
    mesh_status status = MESH_OK;
    t->caps &= ~(uint32_t)MESH_CAP_PENDING;
    if (!open_comm(t, &c, "x=3", NULL, (how == 2 && me > 0) || how == 4 ? 9 * SECOND : 2 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    switch (how) {
    case 0: /* rank 2 has left: it is owed no answer; rank 1 does not give one */
        if (me == 2) {
            mesh_transport_detach(t);
            return;
        }
        if (me == 1) pause_rank(t, 20 * SECOND);
        if (me == 0) CHECK_INT(mesh_recv(&c, NULL, 1, &v, 1, MESH_I32), MESH_ERR_TIMEOUT);
        if (me == 0) CHECK_HAS(c.error.text, "; rank 1 does not answer (");
        break;
    case 1: /* rank 1 answers something else */
        if (me == 1) {
            unsigned char d[MESH__HERE_BYTES];
            memset(d, 0, sizeof d);
            mesh__put32(d, MESH__MSG_HERE), mesh__put32(d + 4, 4711), mesh__put32(d + 8, 1);
            pause_rank(t, 21 * SECOND / 10); /* while the roll is called */
            for (i = 0; i < 3; i++) CHECK_INT(t->ops->control_send(t, 0, MESH_EVENT_MESSAGE, d, sizeof d), MESH_OK);
            pause_rank(t, 20 * SECOND);
        }
        if (me == 0) CHECK_INT(mesh_recv(&c, NULL, 1, &v, 1, MESH_I32), MESH_ERR_TIMEOUT);
        if (me == 0) CHECK_HAS(c.error.text, "ranks 1, 2 do not answer");
        if (me == 2) pause_rank(t, 20 * SECOND);
        break;
    case 2: /* ranks 1 and 2 are in the library, and have not sent */
        status = mesh_recv(&c, NULL, me < 2 ? me + 1 : 1, &v, 1, MESH_I32);
        CHECK_INT(status, MESH_ERR_TIMEOUT);
        CHECK_HAS(c.error.text, "rank 1 has not called it (it is in recv(1 x i32)");
        break;
    case 3: /* each has sent, none receives: neither has called the other's half */
        if (me < 2) CHECK_INT(mesh_send(&c, NULL, 1 - me, big[me][0], sizeof big[0][0], MESH_U8), MESH_ERR_TIMEOUT);
        if (me == 2) status = mesh_barrier(&c, NULL);
        if (me < 2) CHECK_HAS(c.error.text, "has not called it (it is in send(40000 x u8)");
        if (me < 2) CHECK(c.error.rank == 0 || c.error.rank == 1);
        break;
    default: /* all is well, though it is asked about often: rank 2 has ended its part, and left the others to it */
        if (me == 2) CHECK_OK(mesh_send(&c, NULL, 1, &v, 1, MESH_I32), c.error);
        if (me == 1) pause_rank(t, SECOND);
        if (me == 1) CHECK_OK(mesh_recv(&c, NULL, 2, &v, 1, MESH_I32), c.error);
        if (me == 1) CHECK_OK(mesh_send(&c, NULL, 0, &v, 1, MESH_I32), c.error);
        if (me == 0) CHECK_OK(mesh_recv(&c, NULL, 1, &v, 1, MESH_I32), c.error);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        break;
    }
    mesh_comm_close(&c);
}
static void test_more_rolls(void) {
    int how;
    for (how = 0; how < 5; how++) run_world(SIM, 3, blind_more_rank, &how);
}

/* ---- who waits for whom ---- */

/* Each waits for the next: the last computes, for long, and then serves them all. Nobody is accused, however long the chain is. In a ring
   somebody is: found where it fits the search, else ended by the deadline. */
static void chain_rank(mesh_transport *t, void *ctx) {
    int ring = *(int *)ctx, n = t->size, v = 7, got = 0;
    mesh_comm c;
    mesh_status status;
    if (!open_comm(t, &c, "x=-1", NULL, 30 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (!ring && t->rank == n - 1) {
        pause_rank(t, 5 * SECOND);
        got = v;
    } else {
        status = mesh_recv(&c, NULL, (t->rank + 1) % n, &got, 1, MESH_I32);
        CHECK_INT(status, !ring ? MESH_OK : n <= MESH__WALK_DEPTH ? MESH_ERR_MISMATCH : MESH_ERR_TIMEOUT);
        if (ring && n <= MESH__WALK_DEPTH) CHECK_HAS(c.error.text, "a cycle of ranks");
    }
    if (!ring) {
        CHECK_INT(got, 7);
        if (t->rank) CHECK_INT(mesh_send(&c, NULL, t->rank - 1, &v, 1, MESH_I32), MESH_OK);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        CHECK_STR(c.error.text, "");
    }
    mesh_comm_close(&c);
}
static void test_chain(void) {
    int ring;
    for (ring = 0; ring < 2; ring++) {
        run_world(SIM, 12, chain_rank, &ring);
        run_world(SIM, 80, chain_rank, &ring);
    }
}

/* Many ways lead to the one that all wait for: each question is asked once, whoever else leads to it. */
static void lattice_rank(mesh_transport *t, void *ctx) {
    static noter writers[8];
    static const int first[] = {1, 3, 3, 5, 5, 7, 7},
                     waits[] = {2, 2, 2, 2, 2, 1, 1}; /* rank r waits for `waits` from `first` on */
    noter *w = &writers[t->rank];
    int me = t->rank, i, n = 0, v[8] = {0}, said;
    int64_t until;
    mesh_comm c;
    mesh_request r;
    mesh_xfer x[2];
    (void)ctx;
    noter_make(w, t);
    if (!open_comm(&w->s.base, &c, "x=8", NULL, 30 * SECOND)) return;
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    said = w->messages;
    if (me == 7) {
        CHECK_INT(mesh_recv_start(&c, NULL, 0, v, 1, MESH_I32, &r), MESH_OK);
        for (until = t->ops->now(t) + SECOND / 5; t->ops->now(t) < until;) {
            CHECK_INT(mesh_test(r), MESH_IN_PROGRESS);
            t->ops->progress(t, t->ops->now(t) + SECOND / 1000);
        }
    } else {
        for (i = 0; i < waits[me]; i++) x[i] = conf_xfer(MESH_RECV, first[me] + i, &v[i], sizeof v[0], NULL);
        CHECK_OK(mesh_exchange(&c, NULL, x, waits[me]), c.error);
    }
    if (me == 0) CHECK_INT(w->messages - said, 2 + 4 + 4 + 2);
    for (i = 0; i < 7; i++)
        if (me >= first[i] && me < first[i] + waits[i]) x[n++] = conf_xfer(MESH_SEND, i, &v[7], sizeof v[0], NULL);
    if (me) CHECK_OK(mesh_exchange(&c, NULL, x, n), c.error);
    if (me == 0) CHECK_OK(mesh_send(&c, NULL, 7, v, 1, MESH_I32), c.error);
    if (me == 7) CHECK_OK(mesh_wait(r), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    mesh_transport_detach(&w->s.base);
}
static void test_lattice(void) { run_world(SIM, 8, lattice_rank, NULL); }

/* An operation that moves gives no reason to ask. */
static void moving_rank(mesh_transport *t, void *ctx) {
    static noter writers[2];
    noter *w = &writers[t->rank];
    enum { N = 1 << 16 };
    static float a[2][N];
    mesh_tuning tuning;
    mesh_error err;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    int said;
    (void)ctx;
    noter_make(w, t);
    CHECK_OK(mesh_tuning_parse(&tuning, "broadcast ranks<=* bytes<=* chain segment=4096", &err), err);
    desc.tuning = &tuning, desc.ask_ns = SECOND / 4, desc.timeout_ns = 60 * SECOND;
    if (!open_with(&w->s.base, &c, "x=2", &desc)) return;
    said = w->messages;
    CHECK_OK(mesh_broadcast(&c, NULL, a[t->rank], a[t->rank], N, MESH_F32, 0), c.error);
    if (t->rank == 1) CHECK(t->ops->now(t) > 2 * SECOND);
    CHECK_INT(w->messages, said);
    mesh_comm_close(&c);
    mesh_transport_detach(&w->s.base);
}
static void test_moving(void) {
    mesh_sim_desc d = sim_desc(2);
    mesh_error err;
    d.latency_ns = SECOND / 10; /* 64 segments, three under way at a time */
    d.eager_bytes = 1;
    CHECK_OK(mesh_sim_run(&d, moving_rank, NULL, &err), err);
}

/* Ranks whose patience is a nanosecond ask all the time: they accuse nobody. */
static void asking_rank(mesh_transport *t, void *ctx) {
    (void)ctx;
    conf_ask_ns = 1;
    conformance_collectives(t, t->size == 4 ? "a=2,b=2" : "a=-1", NULL, NULL, t->size == 3 ? 9001 : 301);
    conformance_redistribute(t, test_seed + 5, 40, 300);
}
static void test_asking(void) {
    int n;
    for (n = 3; n <= 4; n++) run_world(SIM, n, asking_rank, NULL);
}

/* ---- faults of any kind at once: whatever a rank hears first, all it was in ends with that ---- */

static void any_fault_rank(mesh_transport *t, void *ctx) {
    int seed = *(int *)ctx, me = t->rank, i, n = 0, v = 1, got[4];
    test_random r = random_from(740 + (uint64_t)seed * 8 + (uint64_t)me);
    static float a[4][6000], b[4][6000];
    mesh_request under_way[4];
    mesh_status status = MESH_OK, first;
    mesh_comm c;
    if (!open_comm(t, &c, "x=4", NULL, 5 * SECOND)) return;
    for (i = 0; i < 3 && status == MESH_OK; i++) {
        status = mesh_recv_start(&c, NULL, (me + 1) % 4, &got[i], 1, MESH_I32, &under_way[i]);
        n += status == MESH_OK;
    }
    pause_rank(t, random_below(&r, 2) ? 0 : SECOND / 1000 * random_below(&r, 3));
    switch (random_below(&r, 7)) {
    case 0:
        status = mesh_barrier(&c, "nowhere");
        break;
    case 1:
        status = mesh_all_reduce(&c, NULL, a[me], b[me], 6000, MESH_F32, MESH_SUM);
        break;
    case 2:
        status = mesh_all_reduce(&c, NULL, a[me], b[me], 5999, MESH_F32, MESH_SUM);
        break;
    case 3:
        status = mesh_recv(&c, NULL, (me + 1) % 4, &v, 1, MESH_I32);
        break;
    case 4:
        status = mesh_send(&c, NULL, (me + 3) % 4, a[me], 2, MESH_F32);
        break;
    case 5:
        status = me == 2 ? (mesh_sim_die(t), mesh_barrier(&c, NULL)) : mesh_barrier(&c, NULL);
        break;
    default:
        pause_rank(t, 20 * SECOND);
        break;
    }
    if (status == MESH_OK) status = mesh_all_reduce(&c, NULL, a[me], b[me], 777, MESH_F32, MESH_SUM);
    if (status == MESH_OK) status = mesh_recv(&c, NULL, (me + 1) % 4, &v, 1, MESH_I32); /* never sent */
    first = (mesh_status)c.error.status;
    CHECK(status < 0 && c.failed);
    CHECK_INT(status, first);
    for (i = 0; i < n; i++) {
        mesh_status ended = mesh_wait(under_way[i]);
        if (ended != MESH_OK) CHECK_INT(ended, first);
    }
    CHECK_INT(mesh_barrier(&c, NULL), first);
    CHECK(c.error.text[0] && c.error.status == first);
    check_engine(t);
    mesh_comm_close(&c);
    check_engine(t);
}
static void test_any_fault(void) {
    int seed;
    for (seed = 0; seed < 60; seed++) run_world(SIM, 4, any_fault_rank, &seed);
}

/* The first cause of a comm's failure stays, also when the transport fails after it. */
static void first_cause_rank(mesh_transport *t, void *ctx) {
    mesh_comm a, b;
    mesh_request r;
    int v;
    (void)ctx;
    if (!open_comm(t, &a, "x=2", NULL, 20 * SECOND) || !open_comm(t, &b, "y=2", NULL, 20 * SECOND)) return;
    if (t->rank == 1) {
        CHECK_INT(mesh_barrier(&a, "nowhere"), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_recv_start(&b, NULL, 0, &v, 1, MESH_I32, &r), MESH_OK);
        mesh_sim_die(t);
        while (mesh_test(r) == MESH_IN_PROGRESS) {}
        CHECK_INT(b.error.status, MESH_ERR_TRANSPORT);
        CHECK_INT(a.error.status, MESH_ERR_ARGUMENT);
        CHECK_HAS(a.error.text, "nowhere");
    } else {
        CHECK_INT(mesh_barrier(&a, NULL), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_barrier(&b, NULL), MESH_ERR_PEER);
        CHECK_HAS(a.error.text, "nowhere");
    }
    mesh_comm_close(&a);
    mesh_comm_close(&b);
}
static void test_first_cause(void) { run_world(SIM, 2, first_cause_rank, NULL); }

/* What could not be said for want of memory is said when there is some again, without being asked. */
static void said_later_rank(mesh_transport *t, void *ctx) {
    static shim shims[3];
    shim *s = &shims[t->rank];
    mesh_comm c, other;
    mesh_comm_desc desc = MESH_ZERO;
    int64_t start;
    (void)ctx;
    shim_make(s, t);
    desc.timeout_ns = 60 * SECOND, desc.ask_ns = 50 * SECOND;
    if (!open_with(&s->base, &c, "x=3", &desc) || !open_with(&s->base, &other, "y=3", &desc)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    pause_rank(t, SECOND / 20);
    start = t->ops->now(t);
    if (t->rank == 1) {
        s->refuse_aborts = 1 << 30;
        CHECK_INT(mesh_barrier(&c, "nowhere"), MESH_ERR_ARGUMENT);
        s->refuse_aborts = 0;
    } else {
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_ARGUMENT);
        CHECK(t->ops->now(t) - start < 10 * SECOND);
    }
    CHECK_OK(mesh_barrier(&other, NULL), other.error);
    mesh_comm_close(&c);
    mesh_comm_close(&other);
    mesh_transport_detach(&s->base);
}
static void test_said_later(void) { run_world(SIM, 3, said_later_rank, NULL); }

/* Two groups along one axis disagree, each in itself: what is said is of one of them. */
static void two_disputes_rank(mesh_transport *t, void *ctx) {
    static const size_t counts[4] = {4, 16, 8, 32}; /* groups of ranks 0 and 2, 1 and 3 */
    float a[32] = {0}, b[32];
    mesh_comm c, idle; /* the last of the comms has nothing to settle */
    mesh_status status;
    int first, second;
    (void)ctx;
    if (!open_comm(t, &c, "x=2,y=2", NULL, 20 * SECOND) || !open_comm(t, &idle, "x=4", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    pause_rank(t, SECOND / 20);
    status = mesh_all_reduce(&c, "x", a, b, counts[t->rank], MESH_F32, MESH_SUM);
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK_INT(status, MESH_ERR_MISMATCH);
    first = strstr(c.error.text, "(4 x f32") || strstr(c.error.text, "(8 x f32");
    second = strstr(c.error.text, "(16 x f32") || strstr(c.error.text, "(32 x f32");
    if (first + second != 1) test_fail(__FILE__, __LINE__, "rank %d: %s", t->rank, c.error.text);
    mesh_comm_close(&c);
    mesh_comm_close(&idle);
}
static void test_two_disputes(void) {
    int k;
    for (k = 0; k < 10; k++) {
        mesh_sim_desc d = sim_desc(4);
        mesh_error err;
        d.seed = test_seed * 16 + (uint64_t)k;
        CHECK_OK(mesh_sim_run(&d, two_disputes_rank, NULL, &err), err);
    }
}

/* ---- bytes that are under way are no reason to accuse, though their sender waits for their receiver ---- */

static const uint32_t numbers_before[] = {0, 0, UINT32_MAX - 1, UINT32_C(3000000000), 0}; /* they come round behind UINT32_MAX */

static void under_way_rank(mesh_transport *t, void *ctx) {
    int how = *(int *)ctx, v = 7, got = 0, sends = how > 1 ? 2 : 1, i;
    mesh_comm pair, all;
    if (t->rank < 2 && !open_some(t, &pair, 0, 2, 60 * SECOND)) return;
    if (!open_some(t, &all, 0, 3, 60 * SECOND)) return;
    if (t->rank < 2) { /* what rank 1 sends rank 0 here takes 5 s; it has sent it, and goes on */
        if (how > 0 && how < 4) {
            mesh__stream *to = mesh__stream_of(t, mesh__impl(&pair)->group[0], 0, 1 - t->rank);
            to->count[MESH_SEND] = to->count[MESH_RECV] = numbers_before[how];
        }
        if (how == 4) mesh__impl(&pair)->group[0]->sequence = MESH__TAGGED - 2;
        for (i = 0; i < sends; i++)
            if (how == 0 || how == 4)
                CHECK_OK(mesh_broadcast(&pair, NULL, &v, &got, 1, MESH_I32, 1), pair.error);
            else if (t->rank)
                CHECK_OK(mesh_send(&pair, NULL, 0, &v, 1, MESH_I32), pair.error);
            else
                CHECK_OK(mesh_recv(&pair, NULL, 1, &got, 1, MESH_I32), pair.error);
    }
    if (t->rank == 0) { /* then it serves those who wait for it */
        CHECK_INT(got, 7);
        CHECK_OK(mesh_send(&all, NULL, 1, &v, 1, MESH_I32), all.error);
        CHECK_OK(mesh_send(&all, NULL, 2, &v, 1, MESH_I32), all.error);
    } else {
        CHECK_OK(mesh_recv(&all, NULL, 0, &got, 1, MESH_I32), all.error);
        CHECK(t->ops->now(t) > 5 * SECOND);
    }
    CHECK_OK(mesh_barrier(&all, NULL), all.error);
    if (t->rank < 2) mesh_comm_close(&pair);
    mesh_comm_close(&all);
}
static void test_under_way(void) {
    int how;
    for (how = 0; how < 5; how++) {
        mesh_sim_fault fault = MESH_ZERO;
        mesh_sim_desc d = sim_desc(3);
        mesh_error err;
        fault.kind = MESH_SIM_DELAY, fault.rank = 1, fault.peer = 0, fault.delay_ns = 5 * SECOND;
        d.fault = &fault, d.faults = 1;
        CHECK_OK(mesh_sim_run(&d, under_way_rank, &how, &err), err);
    }
}

/* A large message is under way: its sender waits for it, and its receiver, who has asked for it, for the sender's next. */
static void large_under_way_rank(mesh_transport *t, void *ctx) {
    static char big[2][100000];
    mesh_comm c, other;
    mesh_request r;
    int v = 7;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND) || !open_comm(t, &other, "y=2", NULL, 60 * SECOND)) return;
    if (t->rank == 0) {
        CHECK_OK(mesh_recv_start(&c, NULL, 1, big[0], sizeof big[0], MESH_U8, &r), c.error);
        CHECK_OK(mesh_recv(&other, NULL, 1, &v, 1, MESH_I32), other.error);
        CHECK_OK(mesh_wait(r), c.error);
    } else {
        CHECK_OK(mesh_send(&c, NULL, 0, big[1], sizeof big[1], MESH_U8), c.error);
        CHECK(t->ops->now(t) > 5 * SECOND);
        CHECK_OK(mesh_send(&other, NULL, 0, &v, 1, MESH_I32), other.error);
    }
    CHECK_STR(c.error.text, "");
    mesh_comm_close(&c);
    mesh_comm_close(&other);
}
static void test_large_under_way(void) {
    mesh_sim_fault fault = MESH_ZERO;
    mesh_sim_desc d = sim_desc(2);
    mesh_error err;
    fault.kind = MESH_SIM_DELAY, fault.rank = 1, fault.peer = 0, fault.delay_ns = 5 * SECOND;
    d.fault = &fault, d.faults = 1;
    CHECK_OK(mesh_sim_run(&d, large_under_way_rank, NULL, &err), err);
}

/* Messages that their sender took back end what waits for them; the slots of those operations serve the next ones as new. */
static void taken_back_rank(mesh_transport *t, void *ctx) {
    static char big[2][3][100000];
    mesh_comm c, d;
    mesh_request r[3];
    int i, v = 7, got;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    for (i = 0; i < 3; i++) {
        mesh_status status = t->rank ? mesh_send_start(&c, NULL, 0, big[1][i], sizeof big[1][i], MESH_U8, &r[i])
                                     : mesh_recv_start(&c, NULL, 1, big[0][i], sizeof big[0][i], MESH_U8, &r[i]);
        CHECK_OK(status, c.error);
    }
    if (t->rank) pause_rank(t, SECOND / 100); /* they are on their way: a message takes 100 ms */
    if (t->rank) CHECK_INT(mesh_barrier(&c, "nowhere"), MESH_ERR_ARGUMENT);
    for (i = 0; i < 3; i++) CHECK_INT(mesh_wait(r[i]), MESH_ERR_ARGUMENT);
    CHECK_HAS(c.error.text, "nowhere");
    CHECK_INT(c.error.rank, 1);
    mesh_comm_close(&c);
    if (!open_comm(t, &d, "y=2", NULL, 20 * SECOND)) return;
    for (i = 0; i < 4; i++)
        CHECK_OK(mesh_sendrecv(&d, NULL, 1 - t->rank, &v, 1, 1 - t->rank, &got, 1, MESH_I32), d.error);
    check_engine(t);
    mesh_comm_close(&d);
}
static void test_taken_back(void) {
    mesh_sim_desc d = sim_desc(2);
    mesh_error err;
    d.latency_ns = SECOND / 10;
    CHECK_OK(mesh_sim_run(&d, taken_back_rank, NULL, &err), err);
}

/* A rank has left that many operations did not need: the first that does is told at once, in whatever slot. */
static void gone_again_rank(mesh_transport *t, void *ctx) {
    mesh_comm pair, all;
    mesh_request r[4];
    int i, v = 7, got;
    int64_t start;
    (void)ctx;
    if (!open_some(t, &all, 0, 3, 60 * SECOND)) return;
    if (t->rank < 2 && !open_some(t, &pair, 0, 2, 60 * SECOND)) return;
    CHECK_INT(mesh_barrier(&all, NULL), MESH_OK);
    if (t->rank == 2) {
        mesh_transport_detach(t);
        return;
    }
    pause_rank(t, SECOND);
    for (i = 0; i < 4; i++) CHECK_OK(mesh_recv_start(&pair, NULL, 1 - t->rank, &got, 1, MESH_I32, &r[i]), pair.error);
    if (t->rank) pause_rank(t, SECOND);
    for (i = 0; i < 4; i++) CHECK_OK(mesh_send(&pair, NULL, 1 - t->rank, &v, 1, MESH_I32), pair.error);
    for (i = 0; i < 4; i++) CHECK_OK(mesh_wait(r[i]), pair.error);
    start = t->ops->now(t);
    CHECK_INT(mesh_recv(&all, NULL, 2, &got, 1, MESH_I32), MESH_ERR_PEER);
    CHECK_INT(all.error.rank, 2);
    CHECK(t->ops->now(t) - start < 5 * SECOND);
    CHECK_OK(mesh_sendrecv(&pair, NULL, 1 - t->rank, &v, 1, 1 - t->rank, &got, 1, MESH_I32), pair.error);
    mesh_comm_close(&all);
    mesh_comm_close(&pair);
}
static void test_gone_again(void) { run_world(SIM, 3, gone_again_rank, NULL); }

/* A message is lost on its way: who waits for it names the one it was to come from, though that one has called. */
static void lost_message_rank(mesh_transport *t, void *ctx) {
    int v = 7;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 2 * SECOND)) return;
    if (t->rank == 2) CHECK_OK(mesh_send(&c, NULL, 0, &v, 1, MESH_I32), c.error);
    if (t->rank == 0) {
        CHECK_INT(mesh_recv(&c, NULL, 2, &v, 1, MESH_I32), MESH_ERR_TIMEOUT);
        CHECK_INT(c.error.rank, 2);
    } else {
        pause_rank(t, SECOND);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_TIMEOUT);
    }
    mesh_comm_close(&c);
}
static void test_lost_message(void) {
    mesh_sim_fault fault = MESH_ZERO;
    mesh_sim_desc d = sim_desc(3);
    mesh_error err;
    fault.kind = MESH_SIM_DROP, fault.rank = 2, fault.peer = 0;
    d.fault = &fault, d.faults = 1;
    CHECK_OK(mesh_sim_run(&d, lost_message_rank, NULL, &err), err);
}

/* ---- a cycle is what two looks have seen alike: ranks 1 and 2 answer rank 0's questions by hand ---- */

enum { ALIKE, MOVED, ELSEWHERE, OTHER_CALL, NO_LONGER, STALE, FORGED, ANSWERS };

static void say_by_hand(mesh_transport *t, uint32_t id, uint64_t channel, uint32_t progress, int waits_for,
                        uint32_t n) {
    unsigned char d[MESH_CONTROL_BYTES];
    mesh__record r;
    memset(d, 0, sizeof d), memset(&r, 0, sizeof r);
    r.kind = MESH_CALL_RECV, r.channel = channel, r.count = 1, r.dtype = MESH_I32;
    memcpy(r.axes, "x", 2);
    mesh__put32(d, MESH__MSG_SAY);
    mesh__put32(d + 4, id);
    mesh__put32(d + 8, n);
    mesh__put32(d + 12, progress);
    mesh__record_write(d + 16, &r);
    mesh__put32(d + MESH__SAY_HEAD, (uint32_t)waits_for);
    mesh__put32(d + MESH__SAY_HEAD + 8, 1);
    CHECK_INT(t->ops->control_send(t, 0, MESH_EVENT_MESSAGE, d, n > 1 ? sizeof d : MESH__SAY_HEAD + 12), MESH_OK);
}
static void by_hand_rank(mesh_transport *t, void *ctx) {
    int how = *(int *)ctx, v = 7, asked = 0, waits_for = t->rank == 1 ? 2 : 0;
    mesh_comm c;
    mesh_control m;
    int64_t end;
    if (!open_comm(t, &c, "x=3", NULL, 60 * SECOND)) return;
    if (t->rank == 0) {
        mesh_status status = mesh_recv(&c, NULL, 1, &v, 1, MESH_I32);
        CHECK_INT(status, how == ALIKE ? MESH_ERR_MISMATCH : MESH_OK);
        if (how == ALIKE) CHECK_HAS(c.error.text, "rank 0 waits for rank 1 in recv(1 x i32)");
        if (how == ALIKE) CHECK_HAS(c.error.text, "rank 1 waits for rank 2 in recv(1 x i32)");
        if (how == ALIKE) CHECK_HAS(c.error.text, "rank 2 waits for rank 0 in recv(1 x i32)");
        mesh_comm_close(&c);
        return;
    }
    for (end = t->ops->now(t) + 2 * SECOND; t->ops->now(t) < end;) {
        if (t->ops->control_poll(t, &m) != MESH_OK) {
            t->ops->progress(t, end);
            continue;
        }
        if (m.kind != MESH_EVENT_MESSAGE || mesh__get32(m.data) != MESH__MSG_ASK) continue;
        asked++;
        if (how == STALE && t->rank == 2) {
            say_by_hand(t, mesh__get32(m.data + 4) - 1, (uint64_t)c.id << 40, 3, waits_for, 1);
        } else if (how == FORGED && t->rank == 2) {
            say_by_hand(t, mesh__get32(m.data + 4), (uint64_t)c.id << 40, 3, waits_for, MESH__WALK_PENDING + 20);
            say_by_hand(t, mesh__get32(m.data + 4), (uint64_t)c.id << 40, 3, waits_for, 0x80000001u);
        } else {
            int odd = t->rank == 2 && asked % 2 == 0; /* the second look at it */
            say_by_hand(t, mesh__get32(m.data + 4), (uint64_t)c.id << 40 | (uint64_t)(odd && how == OTHER_CALL ? 1 : 0),
                        (uint32_t)(odd && how == MOVED ? 4 : 3), odd && how == ELSEWHERE ? 1 : waits_for,
                        (uint32_t) !(odd && how == NO_LONGER));
        }
    }
    CHECK(asked > 0);
    if (t->rank == 1 && how != ALIKE) CHECK_OK(mesh_send(&c, NULL, 0, &v, 1, MESH_I32), c.error);
    mesh_comm_close(&c);
}
static void test_by_hand(void) {
    int how;
    for (how = 0; how < ANSWERS; how++) run_world(SIM, 3, by_hand_rank, &how);
}

/* Layers of ranks, each of which waits for all of the next: the search goes through each once. */
static void layers_rank(mesh_transport *t, void *ctx) {
    enum { WIDE = 4, LAYERS = 6 };
    static noter writers[WIDE * LAYERS];
    noter *w = &writers[t->rank];
    int layer = t->rank / WIDE, i, v[2 * WIDE] = {0};
    mesh_xfer x[2 * WIDE];
    mesh_comm c;
    (void)ctx;
    noter_make(w, t);
    if (!open_comm(&w->s.base, &c, "x=-1", NULL, 60 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    w->messages = 0;
    if (layer == LAYERS - 1) {
        pause_rank(t, SECOND / 4); /* rank 0 asks once, after 100 ms, and as it waits again */
    } else {
        for (i = 0; i < WIDE; i++) x[i] = mesh__xfer(MESH_RECV, (layer + 1) * WIDE + i, v + i, 1, MESH_I32);
        CHECK_OK(mesh_exchange(&c, NULL, x, WIDE), c.error);
    }
    if (t->rank == 0) CHECK(w->messages <= 3 * WIDE * WIDE * LAYERS);
    for (i = 0; i < WIDE && layer; i++) x[i] = mesh__xfer(MESH_SEND, (layer - 1) * WIDE + i, v, 1, MESH_I32);
    if (layer) CHECK_OK(mesh_exchange(&c, NULL, x, WIDE), c.error);
    mesh_comm_close(&c);
    mesh_transport_detach(&w->s.base);
}
static void test_layers(void) { run_world(SIM, 24, layers_rank, NULL); }

/* A rank says it has closed a comm in which it is waited for: it is asked once more, for what it sent may only be arriving. */
static void closed_early_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    int v = 7;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    if (t->rank == 1) {
        unsigned char d[MESH__ABORT_HEAD + 4];
        pause_rank(t, SECOND / 2);
        memset(d, 0, sizeof d);
        mesh__put32(d, c.id), mesh__put32(d + 4, (uint32_t)MESH_ERR_PEER), mesh__put32(d + 8, 1),
            mesh__put32(d + 12, MESH__ABORT_CLOSED);
        CHECK_INT(t->ops->control_send(t, 0, MESH_EVENT_ABORT, d, sizeof d), MESH_OK);
        pause_rank(t, SECOND / 2);
        CHECK_OK(mesh_send(&c, NULL, 0, &v, 1, MESH_I32), c.error);
    } else {
        v = 0;
        CHECK_OK(mesh_recv(&c, NULL, 1, &v, 1, MESH_I32), c.error);
        CHECK_INT(v, 7);
    }
    mesh_comm_close(&c);
}
static void test_closed_early(void) { run_world(SIM, 2, closed_early_rank, NULL); }

/* ---- numbers of messages that came round ---- */

static void came_round_rank(mesh_transport *t, void *ctx) {
    uint32_t before = *(uint32_t *)ctx;
    int i, k, v = 1, got, other = 1 - t->rank;
    mesh_comm c;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    for (i = 0; i < 4; i++) {
        CHECK_OK(mesh_sendrecv(&c, NULL, other, &v, 1, other, &got, 1, MESH_I32), c.error);
        for (k = 0; k < mesh__impl(&c)->group[0]->stream_room && !i; k++)
            if (mesh__impl(&c)->group[0]->stream[k].used) {
                mesh__impl(&c)->group[0]->stream[k].count[MESH_SEND] = before;
                mesh__impl(&c)->group[0]->stream[k].count[MESH_RECV] = before;
            }
    }
    CHECK_INT(mesh_recv(&c, NULL, other, &got, 1, MESH_I32), MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "rank 0 waits for rank 1 in recv(1 x i32)");
    mesh_comm_close(&c);
}
static void test_came_round(void) {
    uint32_t before;
    for (before = UINT32_MAX; before > UINT32_MAX - 6; before--) run_world(SIM, 2, came_round_rank, &before);
}

static const test_case comm_waits_tests[] = {
    {"comm/turned", test_turned, 0},
    {"comm/rolls", test_rolls, 0},
    {"comm/lost_while_asked", test_blind_lost, 0},
    {"comm/chased", test_chased, 0},
    {"comm/more_rolls", test_more_rolls, 0},
    {"comm/chain", test_chain, 0},
    {"comm/lattice", test_lattice, 0},
    {"comm/moving", test_moving, 0},
    {"comm/asking", test_asking, 0},
    {"comm/any_fault", test_any_fault, 0},
    {"comm/first_cause", test_first_cause, 0},
    {"comm/said_later", test_said_later, 0},
    {"comm/two_disputes", test_two_disputes, 0},
    {"comm/under_way", test_under_way, 0},
    {"comm/large_under_way", test_large_under_way, 0},
    {"comm/taken_back", test_taken_back, 0},
    {"comm/gone_again", test_gone_again, 0},
    {"comm/lost_message", test_lost_message, 0},
    {"comm/by_hand", test_by_hand, 0},
    {"comm/layers", test_layers, 0},
    {"comm/closed_early", test_closed_early, 0},
    {"comm/came_round", test_came_round, 0},
};

#endif
