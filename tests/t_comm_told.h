/* Laws of comms: what they are told, by forgers, transports and openings in which many are missing. Uses t_comm_laws.h. */
#ifndef T_COMM_TOLD_H
#define T_COMM_TOLD_H

/* ---- forged messages: of any kind and length, about any comm. They crash nothing, and fail no comm but by a verdict about it ---- */

static void forged_rank(mesh_transport *t, void *ctx) {
    test_random r = random_from(720);
    mesh_comm c;
    int i, k, v = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 2) { /* while ranks 0 and 1 wait for it, and ask */
        for (i = 0; i < 3000; i++) {
            unsigned char d[MESH_CONTROL_BYTES];
            size_t n = (size_t)random_below(&r, random_below(&r, 2) ? 100 : MESH_CONTROL_BYTES + 1);
            for (k = 0; k < (int)n; k++) d[k] = (unsigned char)(random_below(&r, 3) ? random_next(&r) : 0);
            if (n >= 4 && random_below(&r, 20))
                mesh__put32(d, (uint32_t)random_below(&r, MESH__MSG_END + 2));
            else if (n >= 4)
                mesh__put32(d, (uint32_t)random_next(&r));
            if (n >= 8 && random_below(&r, 2))
                mesh__put32(d + 4, (uint32_t)random_below(&r, 40));                       /* ids that are near */
            if (n >= 8 && mesh__get32(d) == MESH__MSG_FAREWELL) mesh__put32(d + 4, 1000); /* but not of this opening */
            if (n >= 12 && random_below(&r, 2)) mesh__put32(d + 8, (uint32_t)random_below(&r, 60));
            if (n >= 36 && random_below(&r, 2))
                mesh__put64(d + (random_below(&r, 2) ? 16 : 20),
                            (uint64_t)c.id << 40 | (uint64_t)random_below(&r, 3) << 32 | (uint64_t)random_below(&r, 3));
            if (n && mesh__get32(d) == MESH__MSG_ROLL && n >= 24) mesh__put64(d + 16, (uint64_t)(c.id + 5) << 40);
            if (n && mesh__get32(d) == MESH__MSG_ASK && n >= 28)
                mesh__put64(d + 20, (uint64_t)(c.id + 5) << 40); /* one about this comm is a dispute */
            if (n) CHECK_INT(t->ops->control_send(t, random_below(&r, 2), MESH_EVENT_MESSAGE, d, n), MESH_OK);
            if (i % 50 == 0) pause_rank(t, SECOND / 100);
        }
        for (i = 0; i < 2; i++) {
            unsigned char d[MESH_CONTROL_BYTES];
            memset(d, 'x', sizeof d); /* a verdict without an end, longer than what it is told in */
            mesh__put32(d, c.id);
            mesh__put32(d + 4, (uint32_t)MESH_ERR_PEER);
            mesh__put32(d + 8, (uint32_t)-1);
            mesh__put32(d + 12, 0);
            CHECK_INT(t->ops->control_send(t, i, MESH_EVENT_ABORT, d, MESH__ABORT_HEAD - 1),
                      MESH_OK); /* too short: none */
            CHECK_INT(t->ops->control_send(t, i, MESH_EVENT_ABORT, d, sizeof d), MESH_OK);
        }
    } else {
        CHECK_INT(mesh_recv(&c, NULL, 2, &v, 1, MESH_I32), MESH_ERR_PEER);
        CHECK_INT(c.error.rank, 2); /* who says so, where nobody is named */
        CHECK_HAS(c.error.text, "rank 2 failed: xxxx");
        CHECK_INT(strlen(c.error.text), MESH_ERROR_BYTES - 1);
    }
    mesh_comm_close(&c);
}
static void test_comm_forged(void) { run_world(SIM, 3, forged_rank, NULL); }

/* ---- events of the transport: each once, LOST also after CLOSED, room for all ---- */

typedef struct eventful {
    shim s;
    mesh_control queue[64];
    int head, tail;
} eventful;
static mesh_status eventful_poll(mesh_transport *t, mesh_control *out) {
    eventful *e = (eventful *)(void *)t;
    if (e->head == e->tail) return e->s.inner->ops->control_poll(e->s.inner, out);
    *out = e->queue[e->head++];
    return MESH_OK;
}
static void eventful_say(eventful *e, int kind, int rank, const char *why) {
    mesh_control *m = &e->queue[e->tail++];
    memset(m, 0, sizeof *m);
    m->kind = kind, m->rank = rank, m->nbytes = (uint32_t)strlen(why);
    memcpy(m->data, why, strlen(why));
}
static void events_rank(mesh_transport *t, void *ctx) {
    static eventful events[4];
    eventful *e = &events[t->rank];
    mesh_comm c;
    int k, v;
    (void)ctx;
    memset(e, 0, sizeof *e);
    shim_make(&e->s, t);
    e->s.base.allocator = t->allocator;
    e->s.ops.control_poll = eventful_poll;
    if (!open_comm(&e->s.base, &c, "x=4", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 0) {
        for (k = 3; k >= 1; k--) {
            eventful_say(e, MESH_EVENT_CLOSED, k, "");
            eventful_say(e, MESH_EVENT_CLOSED, k, "");
            if (k == 2) continue;
            eventful_say(e, MESH_EVENT_LOST, k, "for a test");
            eventful_say(e, MESH_EVENT_LOST, k, "again");
        }
        CHECK_INT(mesh_recv(&c, NULL, 2, &v, 1, MESH_I32), MESH_ERR_PEER);
        CHECK_INT(((mesh__engine *)e->s.base.engine)->ngone, 5);
        CHECK(c.error.rank == 3 || c.error.rank == 1);
        CHECK_HAS(c.error.text, "was lost: for a test");
    } else {
        pause_rank(t, 2 * SECOND);
    }
    mesh_comm_close(&c);
    mesh_transport_detach(&e->s.base);
}
static void test_events(void) { run_guarded(sim_desc(4), events_rank, NULL); }

/* Of two deaths at different times each is told to the comms it concerns. */
static void two_deaths_rank(mesh_transport *t, void *ctx) {
    mesh_comm a, b, d;
    int v;
    (void)ctx;
    if (!open_some(t, &a, 0, 4, 60 * SECOND)) return;
    if (t->rank < 2 && !open_some(t, &b, 0, 2, 60 * SECOND)) return;
    if (t->rank > 0 && t->rank < 3 && !open_some(t, &d, 1, 2, 60 * SECOND)) return;
    CHECK_INT(mesh_barrier(&a, NULL), MESH_OK);
    if (t->rank == 3) mesh_sim_die(t);
    if (t->rank == 2) { /* a moment later: both are known before the first is told of */
        pause_rank(t, SECOND / 10);
        mesh_sim_die(t);
    }
    if (t->rank >= 2) {
        if (t->rank == 2) mesh_comm_close(&d);
        mesh_comm_close(&a);
        return;
    }
    CHECK_INT(mesh_barrier(&a, NULL), MESH_ERR_PEER);
    CHECK_INT(a.error.rank, 3);
    if (t->rank == 0) pause_rank(t, 2 * SECOND);
    CHECK_OK(mesh_barrier(&b, NULL), b.error);
    if (t->rank == 1) {
        int64_t start = t->ops->now(t);
        CHECK_INT(d.failed, 1); /* though nothing was called in it */
        CHECK_INT(mesh_recv(&d, NULL, 1, &v, 1, MESH_I32), MESH_ERR_PEER);
        CHECK_INT(d.error.rank, 2);
        CHECK(t->ops->now(t) - start < 5 * SECOND); /* not at the deadline */
    }
    CHECK_OK(mesh_barrier(&b, NULL), b.error); /* it has to do with neither */
    CHECK_INT(mesh_comm_close(&b), MESH_OK);
    if (t->rank == 1) mesh_comm_close(&d);
    mesh_comm_close(&a);
}
static void test_two_deaths(void) { run_world(SIM, 4, two_deaths_rank, NULL); }

/* A request that cannot be started again, in a comm that has failed: told is what the comm failed of. */
static void restart_failed_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request r;
    mesh_error first;
    int32_t v = 0, got = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    if (t->rank == 0) CHECK_INT(mesh_recv_start(&c, NULL, 1, &got, 1, MESH_I32, &r), MESH_OK);
    CHECK_INT(t->rank ? mesh_all_reduce(&c, NULL, &v, &got, 1, MESH_I32, MESH_SUM) : mesh_barrier(&c, NULL),
              MESH_ERR_MISMATCH);
    first = c.error;
    if (t->rank == 0) CHECK_INT(mesh_restart(r), MESH_ERR_MISMATCH);
    CHECK_STR(c.error.text, first.text);
    mesh_comm_close(&c);
}
static void test_restart_failed(void) { run_world(SIM, 2, restart_failed_rank, NULL); }

/* While two find out what they disagree about, a third breaks the comm: an operation's status is its comm's. */
static void other_cause_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request r;
    int32_t send[4] = {0}, recv[4];
    size_t counts[2] = {1, 1};
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &c, "x=2,y=2", NULL, 20 * SECOND)) return;
    if (t->rank >= 2) {
        if (t->rank == 2) CHECK_INT(mesh_recv_start(&c, NULL, 0, recv, 1, MESH_I32, &r), MESH_OK);
        pause_rank(t, 3 * SECOND / 10);
        mesh_comm_close(&c);
        return;
    }
    counts[0] += t->rank == 1; /* of the record no part */
    status = mesh_all_to_all_v(&c, "y", send, counts, NULL, recv, counts, NULL, MESH_I32);
    CHECK_INT(c.error.status, MESH_ERR_PEER);
    CHECK_INT(status, c.error.status);
    CHECK_HAS(c.error.text, "rank 2 closed it with 1 operation under way");
    mesh_comm_close(&c);
}
static void test_other_cause(void) { run_world(SIM, 4, other_cause_rank, NULL); }

/* Of the trips that compare the clocks the shortest says how far they are apart at most. */
typedef struct clocked {
    shim s;
    int64_t sent, shortest, within;
    int trips;
} clocked;
static mesh_status clocked_send(mesh_transport *t, int rank, int kind, const void *data, size_t n) {
    if (kind == MESH_EVENT_MESSAGE && mesh__get32((const unsigned char *)data) == MESH__MSG_CLOCK)
        ((clocked *)(void *)t)->sent = shim_now(t);
    return shim_control_send(t, rank, kind, data, n);
}
static mesh_status clocked_poll(mesh_transport *t, mesh_control *out) {
    clocked *k = (clocked *)(void *)t;
    mesh_status status = shim_control_poll(t, out);
    if (status == MESH_OK && out->kind == MESH_EVENT_MESSAGE && mesh__get32(out->data) == MESH__MSG_TIME) {
        int64_t trip = (shim_now(t) - k->sent + 1) / 2;
        if (!k->trips++ || trip < k->shortest) k->shortest = trip;
    }
    return status;
}
static void clocked_told(void *ctx, int64_t offset, int64_t within) {
    clocked *k = (clocked *)ctx;
    k->within = within;
    CHECK(offset <= within && offset >= -within); /* all read one clock */
}
static void shortest_rank(mesh_transport *t, void *ctx) {
    static clocked all[6];
    clocked *k = &all[t->rank];
    mesh_comm c;
    (void)ctx;
    memset(k, 0, sizeof *k);
    shim_make(&k->s, t);
    k->s.ops.control_send = clocked_send, k->s.ops.control_poll = clocked_poll;
    k->s.base.trace_clock = clocked_told, k->s.base.trace_ctx = k;
    if (!open_comm(&k->s.base, &c, "x=6", NULL, 20 * SECOND)) return;
    CHECK_INT(k->trips, t->rank ? MESH__CLOCK_TRIPS : 0);
    CHECK_INT(k->within, k->shortest);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    mesh_transport_detach(&k->s.base);
}
static void test_shortest(void) { run_world(SIM, 6, shortest_rank, NULL); }

/* ---- pending: each rank once, no more than there is room for, whatever tickets say ---- */

static int few_pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    int n = (int)ticket->id, i;
    (void)t;
    for (i = 0; i < n && i < cap; i++)
        ranks[i] = (int)(uintptr_t)ticket->impl + i / 2; /* each twice, as a sloppy transport may */
    return n;
}
static void test_pending(void) {
    mesh_transport t;
    mesh_ops ops;
    mesh__engine *e = (mesh__engine *)calloc(1, sizeof *e);
    mesh__op op;
    mesh__step steps[4];
    int ranks[200], n, i, k, cap;
    memset(&t, 0, sizeof t), memset(&ops, 0, sizeof ops), memset(&op, 0, sizeof op), memset(steps, 0, sizeof steps);
    t.ops = &ops, e->t = &t, ops.pending = few_pending, ops.struct_size = sizeof ops;
    op.schedule.step = steps, op.schedule.nsteps = op.at = 4;
    for (i = 0; i < 4; i++) {
        steps[i].kind = i == 2 ? MESH__WAIT : MESH__POST, steps[i].open = i == 0 || i == 3;
        steps[i].ticket.impl = (void *)(uintptr_t)(10 * i + 1), steps[i].ticket.id = i == 3 ? 90 : 8;
    }
    for (cap = 0; cap <= 100; cap += 5) {
        memset(ranks, 0xff, sizeof ranks);
        n = mesh__op_pending(e, &op, ranks, cap);
        CHECK_INT(n, cap < 4 + 24 ? cap : 4 + 24); /* 4 of the first, 24 of the 48 looked at of the last */
        for (i = 0; i < n; i++)
            for (k = 0; k < i; k++) CHECK(ranks[i] != ranks[k]);
        for (i = n; i < 200; i++) CHECK_INT(ranks[i], -1);
    }
    op.oldest = 1;
    CHECK_INT(mesh__op_pending(e, &op, ranks, 48), 24);
    op.at = 3;
    CHECK_INT(mesh__op_pending(e, &op, ranks, 48), 0);
    free(e);
}

/* ---- openings in which many are missing: as many as are, the first of them blamed ---- */

static void missing_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    (void)ctx;
    desc.timeout_ns = SECOND;
    CHECK_OK(mesh_parse(&m, "x=-1", t->size, &err), err);
    if (t->rank && t->rank % 20) {
        pause_rank(t, 10 * SECOND);
        return;
    }
    CHECK_INT(mesh_comm_open(&c, t, &m, &desc, &err), MESH_ERR_TIMEOUT);
    CHECK_HAS(err.text, "3 of 60 ranks came; still missing: ranks 1, 2, 3, 4,");
    CHECK_INT(err.rank, 1);
}
static void test_missing(void) { run_world(SIM, 60, missing_rank, NULL); }

/* A rank that comes when the others have given up is told so at once. */
static void latecomer_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm c, other;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    int64_t start;
    (void)ctx;
    desc.timeout_ns = t->rank == 2 ? 60 * SECOND : SECOND;
    CHECK_OK(mesh_parse(&m, "x=3", 3, &err), err);
    if (t->rank == 2) pause_rank(t, 4 * SECOND);
    start = t->ops->now(t);
    CHECK_INT(mesh_comm_open(&c, t, &m, &desc, &err), MESH_ERR_TIMEOUT);
    CHECK(t->ops->now(t) - start < 5 * SECOND);
    if (t->rank == 2) CHECK_HAS(err.text, "rank 2 came after the others had given up waiting for it");
    if (t->rank < 2) { /* the first rank leads another opening meanwhile */
        if (t->rank == 1) pause_rank(t, 6 * SECOND);
        if (!open_some(t, &other, 0, 2, 20 * SECOND)) return;
        CHECK_INT(mesh_barrier(&other, NULL), MESH_OK);
        mesh_comm_close(&other);
    }
    if (t->rank == 2) pause_rank(t, 10 * SECOND);
    /* and with the next opening all is well */
    desc.timeout_ns = 20 * SECOND;
    CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    mesh_comm_close(&c);
}
static void test_latecomer(void) { run_world(SIM, 3, latecomer_rank, NULL); }

/* The answer to an opening is on its way when that is given up: the next opening waits for its own. */
static void crossed_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    (void)ctx;
    CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err);
    desc.timeout_ns = t->rank ? SECOND : 20 * SECOND; /* rank 1 waits a second longer for what the leader says */
    if (t->rank == 0) pause_rank(t, 2 * SECOND - SECOND / 20);
    CHECK_INT(mesh_comm_open(&c, t, &m, &desc, &err), t->rank ? MESH_ERR_TIMEOUT : MESH_OK);
    if (t->rank == 0) {
        CHECK(mesh_barrier(&c, NULL) != MESH_OK);
        mesh_comm_close(&c);
    }
    desc.timeout_ns = 20 * SECOND;
    CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_crossed(void) {
    mesh_sim_desc d = sim_desc(2);
    mesh_error err;
    d.latency_ns = SECOND / 10;
    CHECK_OK(mesh_sim_run(&d, crossed_rank, NULL, &err), err);
}

/* A verdict that arrives before the welcome counts, one about an older comm does not. */
static void early_rank(mesh_transport *t, void *ctx) {
    mesh_comm c, d;
    (void)ctx;
    if (t->rank ==
        0) { /* it opens, fails and says so; then its messages to rank 2 overtake the welcome by way of rank 1 */
        if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
        CHECK_INT(mesh_barrier(&c, "nowhere"), MESH_ERR_ARGUMENT);
    } else if (t->rank == 1) {
        if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_ARGUMENT);
    } else {
        if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_ARGUMENT);
    }
    CHECK_INT(c.error.rank, 0);
    mesh_comm_close(&c);
    if (!open_comm(t, &d, "x=3", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_barrier(&d, NULL), d.error);
    mesh_comm_close(&d);
}
static void early_forged_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm c;
    mesh_error err;
    (void)ctx;
    CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err);
    if (t->rank == 0) { /* of comm 1, which rank 1 is about to open, and of comm 2, which is none yet */
        unsigned char d[MESH__ABORT_HEAD + 8];
        int id;
        for (id = 2; id >= 1; id--) {
            memset(d, 0, sizeof d);
            mesh__put32(d, (uint32_t)id);
            mesh__put32(d + 4, (uint32_t)MESH_ERR_MEMORY);
            mesh__put32(d + 8, 0);
            memcpy(d + MESH__ABORT_HEAD, "too soon", 8);
            CHECK_INT(t->ops->control_send(t, 1, MESH_EVENT_ABORT, d, sizeof d), MESH_OK);
        }
    }
    CHECK_OK(mesh_comm_open(&c, t, &m, NULL, &err), err);
    if (t->rank == 1) {
        CHECK_INT(c.failed, 1);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_MEMORY);
        CHECK_HAS(c.error.text, "rank 0 failed: too soon");
    }
    mesh_comm_close(&c);
}
static void test_early(void) {
    run_world(SIM, 3, early_rank, NULL);
    run_world(SIM, 2, early_forged_rank, NULL);
}

/* A failure is logged, once, with what went before it. */
static int logged[3];
static void hear_log(void *ctx, int level, const char *text) {
    (void)ctx;
    if (level >= 0 && level < 3) logged[level]++;
    if (level == 0) CHECK_HAS(text, "nowhere");
    if (level == 2) CHECK_HAS(text, "barrier() on \"x\", sequence 1: ok");
}
static void logged_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    (void)ctx;
    if (t->rank == 1) t->log = hear_log;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 0) CHECK_INT(mesh_barrier(&c, "nowhere"), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_barrier(&c, "nowhere else"), MESH_ERR_ARGUMENT);
    mesh_comm_close(&c);
}
static void test_logged(void) {
    memset(logged, 0, sizeof logged);
    run_world(SIM, 2, logged_rank, NULL);
    CHECK(logged[0] == 1 && logged[2] == 1);
}

/* A rank closes a comm that others are in, and stays in the library: all of them name it, whoever asks it first. */
static void closes_rank(mesh_transport *t, void *ctx) {
    mesh_comm c, other;
    (void)ctx;
    if (!open_comm(t, &other, "x=5", NULL, 60 * SECOND) || !open_comm(t, &c, "x=5", NULL, 60 * SECOND)) return;
    if (t->rank == 3) {
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
        while (mesh_lost_ranks(t, NULL, 0) < 4) mesh_progress(t, mesh_now(t) + SECOND / 100);
    } else {
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
        CHECK_INT(c.error.rank, 3);
        CHECK_HAS(c.error.text, "rank 3 has closed this comm while it was needed");
        mesh_comm_close(&c);
    }
    mesh_comm_close(&other);
}
/* Who asks hears that ranks have closed the comm, and asks once more at once: it does not wait until the next question is due. (On the modelled clock.) */
static void reopens_rank(mesh_transport *t, void *ctx) {
    mesh_comm c, next;
    int64_t start;
    int closed = *(int *)ctx;
    if (!open_comm(t, &c, "x=4", NULL, 60 * SECOND)) return;
    start = mesh_now(t);
    if (t->rank && t->rank <= closed) {
        CHECK_INT(mesh_comm_close(&c), MESH_OK); /* it answers from the opening of the next */
    } else {
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
        CHECK_HAS(c.error.text, "has closed this comm while it was needed");
        CHECK(mesh_now(t) - start < 3 * (SECOND / 10)); /* after SECOND / 10 open_comm's comms ask first; next would be 5 such */
        mesh_comm_close(&c);
    }
    if (open_comm(t, &next, "x=4", NULL, 60 * SECOND)) mesh_comm_close(&next);
}
static void test_reopens(void) {
    int closed;
    for (closed = 1; closed < 4; closed++) run_world(SIM, 4, reopens_rank, &closed);
}
static void test_closes(void) {
    int i;
    for (i = 0; i < 3; i++) {
        run_world(SIM, 5, closes_rank, NULL);
        run_world(UNIX, 5, closes_rank, NULL);
        run_world(TCP, 5, closes_rank, NULL);
    }
}

/* A rank that is lost before a comm opens: who says hello after that is heard is told which, not only that the first rank has gone. */
static void open_lost_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh m;
    mesh_error err;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 30 * SECOND)) return;
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    if (t->rank == 2) return;
    while (t->rank == 0 && mesh_lost_ranks(t, NULL, 0) < 1) mesh_progress(t, mesh_now(t) + SECOND / 100);
    CHECK_OK(mesh_parse(&m, "x=3", 3, &err), err);
    if (t->rank == 0) world_say(0);
    if (t->rank == 1) world_await(0, 1);
    CHECK_INT(mesh_comm_open(&c, t, &m, NULL, &err), MESH_ERR_PEER);
    CHECK_INT(err.rank, 2);
    CHECK_HAS(err.text, "rank 2 has closed its transport");
}
static void test_open_lost(void) { run_world(TCP, 3, open_lost_rank, NULL); }

static const test_case comm_told_tests[] = {
    {"comm/open_lost", test_open_lost, 60},
    {"comm/closes", test_closes, 0},
    {"comm/reopens", test_reopens, 0},
    {"comm/forged", test_comm_forged, 0},
    {"comm/events", test_events, 0},
    {"comm/two_deaths", test_two_deaths, 0},
    {"comm/restart_failed", test_restart_failed, 0},
    {"comm/other_cause", test_other_cause, 0},
    {"trace/shortest", test_shortest, 0},
    {"comm/pending", test_pending, 0},
    {"comm/missing", test_missing, 0},
    {"comm/latecomer", test_latecomer, 0},
    {"comm/crossed", test_crossed, 0},
    {"comm/early", test_early, 0},
    {"comm/logged", test_logged, 0},
};

#endif
