/* What the simulator promises. */
#ifndef T_SIM_H
#define T_SIM_H

/* ---- the simulator ---- */

static int64_t sim_took[3];
/* Rank 0 sends, rank 1 says when it came. */
static void cost_rank(mesh_transport *t, void *ctx) {
    uint64_t nbytes = *(const uint64_t *)ctx;
    unsigned char *p = (unsigned char *)calloc(1, (size_t)nbytes + 1);
    mesh_xfer x = conf_xfer(t->rank ? MESH_RECV : MESH_SEND, 1 - t->rank, p, nbytes, NULL);
    mesh_ticket ticket;
    if (t->rank == 0) {
        sim_took[0] = t->ops->now(t);
        CHECK_INT(conf_post(t, 0, 1, &x, 1, &ticket), MESH_OK);
    } else {
        CHECK_INT(conf_post(t, 0, 1, &x, 1, &ticket), MESH_OK);
    }
    CHECK_INT(conf_finish(t, &ticket), MESH_OK);
    if (t->rank) sim_took[1] = t->ops->now(t);
    if (!t->rank) pause_rank(t, SECOND);
    free(p);
}
static void test_sim_cost(void) {
    static const struct {
        uint64_t nbytes;
        int64_t latency, per_byte, least;
    } cases[] = {{0, 5000000, 0, 5000000},
                 {10000, 5000000, 0, 5001000},
                 {10000, 1000, 1000000, 10001000},
                 {1 << 20, 1000, 100000, 104858600},
                 {0, 0, 0, 1000}};
    size_t k;
    for (k = 0; k < sizeof cases / sizeof *cases; k++) {
        mesh_sim_desc d = sim_desc(2);
        mesh_error err;
        d.jitter_ns = 0;
        d.latency_ns = cases[k].latency, d.ps_per_byte = cases[k].per_byte;
        CHECK_OK(mesh_sim_run(&d, cost_rank, (void *)(uintptr_t)&cases[k].nbytes, &err), err);
        if (sim_took[1] - sim_took[0] < cases[k].least || sim_took[1] - sim_took[0] > cases[k].least + 20000)
            test_fail(__FILE__, __LINE__, "%d bytes took %" PRId64 " ns, expected %" PRId64, (int)cases[k].nbytes,
                      sim_took[1] - sim_took[0], cases[k].least);
    }
}

/* Hundreds of messages of a pair, whose channels are read in another order: FIFO in each, under any jitter. A send is over at once if it is
   buffered, else with its receive. */
static void fifo_rank(mesh_transport *t, void *ctx) {
    enum { MESSAGES = 60, EAGER = 64 };
    static unsigned char sent[MESSAGES][EAGER + 1], got[MESSAGES][EAGER + 1];
    mesh_ticket tickets[MESSAGES];
    mesh_control m;
    mesh_error why;
    int i;
    (void)ctx;
    for (i = 0; i < MESSAGES; i++) {
        uint64_t nbytes = (uint64_t)(i % 3 == 0 ? EAGER : i % 3 == 1 ? EAGER + 1 : 5);
        int k = t->rank ? MESSAGES - 2 + i % 2 - (i / 2) * 2 : i; /* the second channel first where received */
        mesh_xfer x;
        k = t->rank ? (i < MESSAGES / 2 ? 2 * i + 1 : 2 * (i - MESSAGES / 2)) : i;
        nbytes = (uint64_t)(k % 3 == 0 ? EAGER : k % 3 == 1 ? EAGER + 1 : 5);
        memset(sent[k], k, nbytes);
        x = conf_xfer(t->rank ? MESH_RECV : MESH_SEND, 1 - t->rank, t->rank ? got[k] : sent[k], nbytes, NULL);
        CHECK_INT(conf_post(t, k % 2, 1, &x, 1, &tickets[i]), MESH_OK);
        if (!t->rank) {
            int ranks[2], n = t->ops->pending(t, &tickets[i], ranks, 2);
            CHECK_INT(n, nbytes > EAGER); /* buffered: over */
        }
    }
    for (i = 0; i < MESSAGES; i++) CHECK_INT(conf_finish(t, &tickets[i]), MESH_OK);
    if (t->rank)
        for (i = 0; i < MESSAGES; i++) CHECK(got[i][0] == i && got[i][4] == i);
    /* control messages: to another rank, of 1024 bytes at most */
    memset(&m, 0, sizeof m);
    CHECK_INT(t->ops->control_send(t, -1, MESH_EVENT_MESSAGE, m.data, 1), MESH_ERR_ARGUMENT);
    CHECK_INT(t->ops->control_send(t, 2, MESH_EVENT_MESSAGE, m.data, 1), MESH_ERR_ARGUMENT);
    CHECK_INT(t->ops->control_send(t, t->rank, MESH_EVENT_MESSAGE, m.data, 1), MESH_ERR_ARGUMENT);
    CHECK_INT(t->ops->control_send(t, 1 - t->rank, MESH_EVENT_MESSAGE, m.data, MESH_CONTROL_BYTES + 1),
              MESH_ERR_ARGUMENT);
    if (t->rank) {
        for (i = 0; i < 200; i++) {
            m.data[0] = (unsigned char)i;
            CHECK_INT(t->ops->control_send(t, 0, MESH_EVENT_MESSAGE, m.data, MESH_CONTROL_BYTES), MESH_OK);
        }
        return; /* and goodbye */
    }
    for (i = 0; i < 200;)
        if (t->ops->control_poll(t, &m) == MESH_OK) {
            CHECK(m.kind == MESH_EVENT_MESSAGE && m.nbytes == MESH_CONTROL_BYTES && m.data[0] == i && m.rank == 1);
            i++;
        } else {
            t->ops->progress(t, t->ops->now(t) + SECOND);
        }
    while (t->ops->control_poll(t, &m) != MESH_OK) t->ops->progress(t, t->ops->now(t) + SECOND);
    CHECK_INT(m.kind, MESH_EVENT_CLOSED);
    CHECK_INT(t->ops->control_send(t, 1, MESH_EVENT_MESSAGE, m.data, 1), MESH_ERR_PEER);
    (void)why;
}
static void test_sim_fifo(void) {
    int seed;
    for (seed = 0; seed < 8; seed++) {
        mesh_sim_desc d = sim_desc(2);
        d.seed = test_seed * 100 + (uint64_t)seed;
        d.jitter_ns = seed % 2 ? 100000 : 0;
        d.eager_bytes = 64;
        run_guarded(d, fifo_rank, NULL);
    }
}

/* A fault hits the one message it is for. Every other arrives, in its time. */
typedef struct hit {
    mesh_sim_fault fault;
    int64_t came[3][6];
} hit;
static void hit_rank(mesh_transport *t, void *ctx) {
    hit *h = (hit *)ctx;
    mesh_ticket out[3][6], in[6];
    static unsigned char byte[3][6];
    mesh_error why;
    int i, k, left = 6;
    for (i = 0; i < 6; i++) {
        for (k = 0; k < 3; k++)
            if (t->rank != 2 && k != t->rank && k == 2) {
                mesh_xfer x = conf_xfer(MESH_SEND, k, &byte[t->rank][i], 1, NULL);
                CHECK_INT(conf_post(t, i, 1, &x, 1, &out[k][i]), MESH_OK);
                CHECK_INT(conf_finish(t, &out[k][i]), MESH_OK);
            }
        if (t->rank == 0) { /* and to rank 1, whom no fault concerns */
            mesh_xfer x = conf_xfer(MESH_SEND, 1, &byte[0][i], 1, NULL);
            CHECK_INT(conf_post(t, 10 + i, 1, &x, 1, &out[1][i]), MESH_OK);
            CHECK_INT(conf_finish(t, &out[1][i]), MESH_OK);
        }
    }
    for (k = 0; k < t->rank; k++) {
        for (i = 0; i < 6; i++) {
            mesh_xfer x = conf_xfer(MESH_RECV, k, &byte[t->rank][i], 1, NULL);
            CHECK_INT(conf_post(t, t->rank == 1 ? 10 + i : i, 1, &x, 1, &in[i]), MESH_OK);
            h->came[k + (t->rank == 2)][i] = 0;
        }
        for (left = 6; left && t->ops->now(t) < 10 * SECOND * (k + 1);) {
            for (i = 0; i < 6; i++)
                if (!h->came[k + (t->rank == 2)][i] && t->ops->test(t, &in[i], &why) == MESH_OK)
                    h->came[k + (t->rank == 2)][i] = t->ops->now(t), left--;
            if (left) t->ops->progress(t, t->ops->now(t) + SECOND);
        }
        for (i = 0; i < 6 && left; i++)
            if (!h->came[k + (t->rank == 2)][i]) {
                t->ops->cancel(t, &in[i]);
                t->ops->test(t, &in[i], &why);
            }
    }
    if (t->rank < 2) pause_rank(t, 60 * SECOND);
}
static void test_sim_hits(void) {
    int kind, rank, at;
    for (kind = MESH_SIM_DROP; kind <= MESH_SIM_DELAY; kind++)
        for (rank = 0; rank < 2; rank++)
            for (at = 0; at < 6; at += 2) {
                hit h;
                mesh_sim_desc d = sim_desc(3);
                mesh_error err;
                int i, k;
                memset(&h, 0, sizeof h);
                h.fault.kind = kind, h.fault.rank = rank, h.fault.peer = 2, h.fault.at = at, h.fault.delay_ns = SECOND;
                d.fault = &h.fault, d.faults = 1;
                CHECK_OK(mesh_sim_run(&d, hit_rank, &h, &err), err);
                for (k = 0; k < 3; k++) /* 0 to 1, 0 to 2, 1 to 2 */
                    for (i = 0; i < 6; i++) {
                        int mine = k == rank + 1 && i == at, behind = k == rank + 1 && i > at && kind == MESH_SIM_DELAY;
                        if (mine && kind == MESH_SIM_DROP)
                            CHECK_INT(h.came[k][i], 0);
                        else if (mine || behind)
                            CHECK(h.came[k][i] >= SECOND); /* messages do not overtake */
                        else if (rank || k < 2)
                            CHECK(h.came[k][i] > 0 && (kind == MESH_SIM_DROP || h.came[k][i] < SECOND));
                    }
            }
}

/* Who computes hears nothing meanwhile, not even messages for it; a death is known after detect_ns, no sooner; what the dead one had not
   buffered never comes, what it had does; it can do nothing any more. */
static void sim_death_rank(mesh_transport *t, void *ctx) {
    static unsigned char big[4][100000];
    mesh_ticket ticket[2];
    mesh_control m;
    mesh_error why;
    int64_t start = t->ops->now(t), noticed = *(int64_t *)ctx;
    mesh_xfer x;
    int i;
    if (t->rank == 1) {
        for (i = 0; i < 2; i++) {
            x = conf_xfer(MESH_SEND, 0, big[0], i ? 100000 : 10, NULL);
            CHECK_INT(conf_post(t, i, 1, &x, 1, &ticket[i]), MESH_OK);
        }
        CHECK_INT(t->ops->test(t, &ticket[0], &why), MESH_OK);
        mesh_sim_die(t);
        mesh_sim_die(t);
        CHECK_INT(conf_post(t, 3, 1, &x, 1, &ticket[0]), MESH_ERR_TRANSPORT);
        CHECK_INT(t->ops->test(t, &ticket[1], &why), MESH_ERR_TRANSPORT);
        CHECK_INT(t->ops->control_send(t, 0, MESH_EVENT_MESSAGE, "x", 1), MESH_ERR_TRANSPORT);
        CHECK_INT(t->ops->progress(t, 0), MESH_ERR_TRANSPORT);
        CHECK_INT(t->ops->control_poll(t, &m), MESH_IN_PROGRESS);
        return;
    }
    if (t->rank == 2) {
        for (i = 0; i < 5; i++) CHECK_INT(t->ops->control_send(t, 0, MESH_EVENT_MESSAGE, "x", 1), MESH_OK);
        return;
    }
    for (i = 0; i < 2; i++) {
        x = conf_xfer(MESH_RECV, 1, big[i + 1], i ? 100000 : 10, NULL);
        CHECK_INT(conf_post(t, i, 1, &x, 1, &ticket[i]), MESH_OK);
    }
    CHECK_INT(conf_finish(t, &ticket[0]), MESH_OK);
    for (m.kind = -1; m.kind != MESH_EVENT_LOST;)
        if (t->ops->control_poll(t, &m) != MESH_OK) t->ops->progress(t, t->ops->now(t) + 10 * SECOND);
    CHECK_INT(m.rank, 1);
    CHECK(m.nbytes == 6 && !memcmp(m.data, "killed", 6));
    CHECK(t->ops->now(t) - start >= noticed && t->ops->now(t) - start < noticed + SECOND);
    CHECK_INT(t->ops->test(t, &ticket[1], &why), MESH_IN_PROGRESS);
    CHECK_INT(t->ops->cancel(t, &ticket[1]), MESH_OK);
    CHECK_INT(t->ops->test(t, &ticket[1], &why), MESH_ERR_CANCELED);
    CHECK_INT(t->ops->control_send(t, 1, MESH_EVENT_MESSAGE, "x", 1), MESH_ERR_PEER);
    start = t->ops->now(t);
    pause_rank(t, SECOND);
    CHECK(t->ops->now(t) - start >= SECOND && t->ops->now(t) - start < SECOND + 100000);
}
static void asleep_rank(mesh_transport *t, void *ctx) {
    (void)ctx;
    if (t->rank == 0) {
        int64_t start = t->ops->now(t);
        pause_rank(t, SECOND);
        CHECK(t->ops->now(t) - start >= SECOND);
    } else {
        pause_rank(t, SECOND / 3);
        CHECK_INT(t->ops->control_send(t, 0, MESH_EVENT_MESSAGE, "x", 1), MESH_OK);
        pause_rank(t, 2 * SECOND);
    }
}
static void longest_rank(mesh_transport *t, void *ctx) {
    (void)ctx;
    mesh_sim_sleep(t, SECOND);
    mesh_sim_sleep(t, INT64_MAX); /* as long as the longest time there is */
    CHECK(mesh_now(t) >= INT64_C(1000000000000000));
}
/* The slowest network there is: times stay times. */
static void slowly_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    double v[40] = {1}, sum[40];
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, INT64_MAX / 2)) return;
    CHECK_OK(mesh_all_reduce(&c, NULL, v, sum, 40, MESH_F64, MESH_SUM), c.error);
    CHECK(sum[0] == 2 && mesh_now(t) > INT64_C(1000000000000000));
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}

static void test_sim_death(void) {
    mesh_sim_desc d = sim_desc(3);
    static const struct {
        mesh_sim_fault fault;
        const char *says;
    } bad[] = {
        {{0, 0, 1, 0, 0}, "mesh_sim_run: fault 1 is of kind 0; give a mesh_sim_fault_kind"},
        {{4, 0, 1, 0, 0}, "mesh_sim_run: fault 1 is of kind 4; give a mesh_sim_fault_kind"},
        {{MESH_SIM_KILL, 2, 0, 0, 0}, "mesh_sim_run: fault 1: rank is 2; from 0 to 1"},
        {{MESH_SIM_KILL, -1, 0, 0, 0}, "mesh_sim_run: fault 1: rank is -1; from 0 to 1"},
        {{MESH_SIM_DROP, 0, 2, 0, 0}, "mesh_sim_run: fault 1: peer is 2; from 0 to 1, and not rank 0 itself"},
        {{MESH_SIM_DELAY, 1, 1, 0, 0}, "mesh_sim_run: fault 1: peer is 1; from 0 to 1, and not rank 1 itself"},
        {{MESH_SIM_DROP, 0, -1, 0, 0}, "mesh_sim_run: fault 1: peer is -1; from 0 to 1, and not rank 0 itself"},
        {{MESH_SIM_KILL, 1, 1, -1, 0}, "mesh_sim_run: fault 1: at is -1; it counts from 0"},
    };
    mesh_sim_fault faults[2] = {{MESH_SIM_DELAY, 0, 1, 0, 0}, {MESH_SIM_DELAY, 0, 1, 0, 0}};
    mesh_error err;
    size_t i;
    int64_t noticed = SECOND / 1000; /* as built in */
    run_guarded(d, sim_death_rank, &noticed);
    d.detect_ns = noticed = 3 * SECOND;
    run_guarded(d, sim_death_rank, &noticed);
    run_guarded(sim_desc(2), asleep_rank, NULL);
    run_guarded(sim_desc(1), longest_rank, NULL);
    d.ranks = 0;
    CHECK_INT(mesh_sim_run(&d, asleep_rank, NULL, &err), MESH_ERR_ARGUMENT);
    d.ranks = 1;
    CHECK_INT(mesh_sim_run(&d, NULL, NULL, &err), MESH_ERR_ARGUMENT);
    d.ranks = 2;
    d.fault = faults, d.faults = 2;
    faults[1].delay_ns = INT64_C(1000000000000001);
    CHECK_INT(mesh_sim_run(&d, asleep_rank, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "fault 1 delays by 1000000000000001 ns; from 0 to 1000000000000000");
    faults[1].delay_ns = -1;
    CHECK_INT(mesh_sim_run(&d, asleep_rank, NULL, &err), MESH_ERR_ARGUMENT);
    for (i = 0; i < sizeof bad / sizeof *bad; i++) { /* what nothing can meet */
        faults[1] = bad[i].fault;
        CHECK_INT(mesh_sim_run(&d, asleep_rank, NULL, &err), MESH_ERR_ARGUMENT);
        CHECK_STR(err.text, bad[i].says);
    }
    d.fault = NULL;
    CHECK_INT(mesh_sim_run(&d, asleep_rank, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_sim_run: 2 faults, and fault is NULL");
    d.faults = -1;
    CHECK_INT(mesh_sim_run(&d, asleep_rank, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_sim_run: -1 faults; 0 for none");
    d.faults = 0;
    d.jitter_ns = -1;
    CHECK_INT(mesh_sim_run(&d, asleep_rank, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "jitter of -1, 0 ps per byte, deaths seen after 3000000000 ns: none may be negative");
    d.jitter_ns = 0;
    CHECK_INT(mesh_sim_run(NULL, asleep_rank, NULL, &err), MESH_ERR_ARGUMENT);
    d.latency_ns = INT64_MAX;
    CHECK_INT(mesh_sim_run(&d, asleep_rank, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "at most 1000000000000000 each");
    d.latency_ns = d.ps_per_byte = INT64_C(1000000000000000);
    d.ranks = 2;
    run_guarded(d, slowly_rank, NULL);
}

/* Memory that fails at call N of a post: nothing of the post is left, and the next one does all of it. */
typedef struct rationed {
    int live, left; /* left: calls that have memory; -1: all */
} rationed;
static void *rationed_alloc(void *ctx, size_t n) {
    rationed *r = (rationed *)ctx;
    if (r->left == 0) return NULL;
    if (r->left > 0) r->left--;
    r->live++;
    return malloc(n);
}
static void rationed_free(void *ctx, void *p) {
    ((rationed *)ctx)->live--;
    free(p);
}
static void sim_memory_rank(mesh_transport *t, void *ctx) {
    rationed *r = (rationed *)ctx;
    int32_t v[3] = {0};
    mesh_xfer x[3];
    mesh_ticket ticket;
    mesh_status status = MESH_ERR_MEMORY;
    int i, n, before;
    for (i = 0; i < 3; i++) {
        if (!t->rank) v[i] = 5 + i;
        x[i] = conf_xfer(t->rank ? MESH_RECV : MESH_SEND, 1 - t->rank, &v[i], sizeof v[i], NULL);
    }
    if (t->rank) pause_rank(t, SECOND); /* alone with the memory */
    for (n = 0; t->rank == 0 && status == MESH_ERR_MEMORY && n < 20; n++) {
        before = r->live, r->left = n;
        status = conf_post(t, 1, 1, x, 3, &ticket);
        r->left = -1;
        if (status == MESH_ERR_MEMORY) CHECK_INT(r->live, before);
    }
    if (t->rank == 0) CHECK(n > 3 && status == MESH_OK);
    if (t->rank) CHECK_INT(conf_post(t, 1, 1, x, 3, &ticket), MESH_OK);
    CHECK_INT(conf_finish(t, &ticket), MESH_OK);
    for (i = 0; i < 3; i++) CHECK_INT(v[i], 5 + i);
}
static void test_sim_memory(void) {
    mesh_sim_desc d = sim_desc(2);
    rationed r;
    mesh_error err;
    r.live = 0, r.left = -1;
    d.allocator.alloc = rationed_alloc, d.allocator.free = rationed_free, d.allocator.ctx = &r;
    CHECK_OK(mesh_sim_run(&d, sim_memory_rank, &r, &err), err);
    CHECK_INT(r.live, 0);
}

/* What does not fit is told to both: sender and receiver, buffered or not, whichever came first. */
static void sim_mismatch_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx, late = what & 1, large = what >> 1 & 1, length = what >> 2 & 1;
    static unsigned char bytes[2][100000];
    uint64_t n = large ? 100000 : 100;
    mesh_xfer x = conf_xfer(t->rank ? MESH_RECV : MESH_SEND, 1 - t->rank, bytes[t->rank],
                            n - (uint64_t)(t->rank && length), NULL);
    mesh_ticket ticket;
    mesh_status status;
    if (t->rank == late) pause_rank(t, SECOND);
    memset(bytes[t->rank], t->rank ? 0xee : 1, sizeof bytes[0]);
    CHECK_INT(conf_post(t, 0, 5 + (uint64_t)(t->rank && !length), &x, 1, &ticket), MESH_OK);
    status = conf_finish(t, &ticket);
    CHECK_INT(status, t->rank || large ? MESH_ERR_MISMATCH : MESH_OK);
    if (t->rank) CHECK(bytes[1][0] == 0xee && bytes[1][n - 1] == 0xee);
    if (!t->rank) pause_rank(t, 3 * SECOND);
}
static void test_sim_mismatch(void) {
    int what;
    for (what = 0; what < 8; what++) run_guarded(sim_desc(2), sim_mismatch_rank, &what);
}

/* Another seed is another run, in what is drawn and in the jitter alone. */
static void test_sim_seeds(void) {
    int64_t clocks[6];
    int i, k, same = 0;
    for (i = 0; i < 6; i++) {
        mesh_sim_desc d = sim_desc(4);
        mesh_error err;
        d.seed = (uint64_t)(i % 5); /* the last is the first again */
        d.jitter_ns = 0;
        CHECK_OK(mesh_sim_run(&d, replay_rank, NULL, &err), err);
        clocks[i] = replay_clock;
        for (k = 0; k < i; k++) same += clocks[i] == clocks[k];
    }
    CHECK_INT(clocks[5], clocks[0]);
    CHECK(same < 5);
    {
        mesh_sim_desc d = sim_desc(4);
        mesh_error err;
        d.seed = 0, d.jitter_ns = 1000000;
        CHECK_OK(mesh_sim_run(&d, replay_rank, NULL, &err), err);
        CHECK(replay_clock > clocks[0] + 1000000); /* five operations, each of several messages */
    }
}

/* What was closed says so to whatever comes. */
static void sim_closed_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm c;
    mesh_error err;
    void *p;
    (void)ctx;
    CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err);
    CHECK_OK(mesh_alloc(t, 8, &p, &err), err);
    CHECK_INT(mesh_sim_close(t), MESH_OK);
    CHECK_INT(mesh_sim_close(t), MESH_OK);
    CHECK_INT(mesh_progress(t, 0), MESH_ERR_STATE);
    CHECK_INT(mesh_alloc(t, 8, &p, &err), MESH_ERR_STATE);
    CHECK_HAS(err.text, "mesh_alloc: the transport is not open");
    CHECK_INT(mesh_lost_ranks(t, NULL, 0), -1);
    CHECK_INT(mesh_comm_open(&c, t, &m, NULL, &err), MESH_ERR_STATE);
}
static void test_sim_closed(void) {
    mesh_sim_desc d = sim_desc(2);
    mesh_error err;
    CHECK_OK(mesh_sim_run(&d, sim_closed_rank, NULL, &err), err);
}

/* What a rank knows of each it has sent to stays right while there come more: the number of messages, for a fault, and the last one's
   arrival, which none overtakes. */
enum { SIM_PEERS = 60 };
static void sim_pairs_rank(mesh_transport *t, void *ctx) {
    static int32_t numbers[2] = {1, 2}, got[SIM_PEERS][2];
    mesh_ticket sent, came[2];
    mesh_error why;
    mesh_xfer x;
    int i, k;
    (void)ctx;
    for (k = 0; t->rank == 0 && k < 2; k++)
        for (i = 1; i < SIM_PEERS; i++) {
            x = conf_xfer(MESH_SEND, i, &numbers[k], sizeof numbers[k], NULL);
            CHECK_INT(conf_post(t, 0, 1, &x, 1, &sent), MESH_OK);
            CHECK_INT(conf_finish(t, &sent), MESH_OK);
        }
    for (k = 0; t->rank && k < 2; k++) {
        x = conf_xfer(MESH_RECV, 0, &got[t->rank][k], sizeof(int32_t), NULL);
        CHECK_INT(conf_post(t, 0, 1, &x, 1, &came[k]), MESH_OK);
    }
    for (k = 0; t->rank && k < (t->rank == 7 ? 1 : 2); k++) {
        CHECK_INT(conf_finish(t, &came[k]), MESH_OK);
        CHECK_INT(got[t->rank][k], k + 1);
    }
    if (t->rank == 7) mesh_sim_sleep(t, 10 * SECOND); /* were it not lost it would have come */
    if (t->rank == 7) CHECK_INT(t->ops->test(t, &came[1], &why), MESH_IN_PROGRESS);
    if (t->rank == 7) CHECK_INT(t->ops->cancel(t, &came[1]), MESH_OK);
    if (t->rank == 7) CHECK_INT(conf_finish(t, &came[1]), MESH_ERR_CANCELED);
}
static void test_sim_pairs(void) {
    static const mesh_sim_fault faults[2] = {{MESH_SIM_DROP, 0, 7, 1, 0}, {MESH_SIM_DELAY, 0, 5, 0, SECOND}};
    mesh_sim_desc d = sim_desc(SIM_PEERS);
    d.fault = faults, d.faults = 2;
    run_guarded(d, sim_pairs_rank, NULL);
}

/* The last thing on its way to rank 1 is lost with rank 0, which has yet to give it: what rank 2 sends behind that comes. */
static void sim_lost_last_rank(mesh_transport *t, void *ctx) {
    static unsigned char large[1 << 20];
    int32_t v = t->rank == 2 ? 77 : 0;
    mesh_xfer x;
    mesh_ticket ticket;
    (void)ctx;
    if (t->rank == 0) {
        x = conf_xfer(MESH_SEND, 1, large, sizeof large, NULL);
        CHECK_INT(conf_post(t, 0, 1, &x, 1, &ticket), MESH_OK);
        mesh_sim_die(t);
        CHECK(conf_finish(t, &ticket) != MESH_OK);
        return;
    }
    if (t->rank == 2) mesh_sim_sleep(t, 1);
    x = conf_xfer(t->rank == 2 ? MESH_SEND : MESH_RECV, 3 - t->rank, &v, sizeof v, NULL);
    CHECK_INT(conf_post(t, 0, 1, &x, 1, &ticket), MESH_OK);
    CHECK_INT(conf_finish(t, &ticket), MESH_OK);
    CHECK_INT(v, 77);
}
static void test_sim_lost_last(void) {
    mesh_sim_desc d = sim_desc(3);
    d.latency_ns = SECOND;
    run_guarded(d, sim_lost_last_rank, NULL);
}

/* Each hears of each that left, once, in the order of time: at once, without a message of its own; who is still sent something by it, behind
   that. Rank 0's message to rank 1 takes 5 s; it leaves (how: 0 closes; 1 dies, which is noticed after 3 s; 2 closes without memory; 3 closes
   and dies), then rank 3. */
typedef struct sim_left {
    int how, allocs, fail;
} sim_left;
static void *left_alloc(void *ctx, size_t n) {
    sim_left *l = (sim_left *)ctx;
    l->allocs++;
    return l->fail ? NULL : malloc(n);
}
static void left_free(void *ctx, void *p) {
    (void)ctx;
    free(p);
}
static void sim_left_rank(mesh_transport *t, void *ctx) {
    sim_left *l = (sim_left *)ctx;
    int64_t start = t->ops->now(t), came[2] = {0, 0};
    int32_t v = 5;
    mesh_xfer x = conf_xfer(t->rank ? MESH_RECV : MESH_SEND, 1 - t->rank, &v, sizeof v, NULL);
    mesh_ticket ticket;
    mesh_control m;
    mesh_error why;
    int n = 0, order[2] = {-1, -1};
    if (t->rank == 3) mesh_sim_sleep(t, 2 * SECOND);
    if (t->rank == 3) return;
    if (t->rank == 1) v = 0;
    if (t->rank < 2) CHECK_INT(conf_post(t, 0, 1, &x, 1, &ticket), MESH_OK);
    if (t->rank == 0) {
        CHECK_INT(conf_finish(t, &ticket), MESH_OK);
        CHECK_INT(t->ops->control_send(t, 2, MESH_EVENT_MESSAGE, "x", 1), MESH_OK); /* has come long before */
        mesh_sim_sleep(t, SECOND);
        l->allocs = 0, l->fail = l->how == 2;
        if (l->how == 1) mesh_sim_die(t);
        if (l->how != 1) CHECK_INT(mesh_sim_close(t), MESH_OK);
        if (l->how == 3) mesh_sim_die(t);
        l->fail = 0;
        CHECK_INT(l->allocs, 1); /* for rank 1 alone */
        return;
    }
    while (n < 2) {
        if (t->ops->control_poll(t, &m) != MESH_OK) {
            CHECK_INT(t->ops->progress(t, start + 60 * SECOND), MESH_OK);
            if (t->ops->now(t) - start >= 60 * SECOND) break;
            continue;
        }
        if (m.kind == MESH_EVENT_MESSAGE) continue;
        if (m.rank == 0 && t->rank == 1 && l->how != 2) CHECK_INT(t->ops->test(t, &ticket, &why), MESH_OK);
        CHECK_INT(m.kind, m.rank == 0 && l->how == 1 ? MESH_EVENT_LOST : MESH_EVENT_CLOSED);
        CHECK_INT(m.nbytes, m.kind == MESH_EVENT_LOST ? 6 : 0);
        if (m.kind == MESH_EVENT_LOST) CHECK(!memcmp(m.data, "killed", 6));
        came[n] = t->ops->now(t) - start;
        order[n++] = m.rank;
    }
    CHECK_INT(order[0], l->how == 1 || (t->rank == 1 && l->how != 2) ? 3 : 0);
    CHECK_INT(order[0] + order[1], 3);
    CHECK(came[0] < 3 * SECOND && came[1] < (order[1] ? 3 : 7) * SECOND);
    if (t->rank == 1) {
        if (ticket.impl) CHECK_INT(conf_finish(t, &ticket), MESH_OK);
        CHECK_INT(v, 5);
        return;
    }
    CHECK_INT(t->ops->progress(t, t->ops->now(t) + SECOND), MESH_OK); /* nothing is told twice; rank 1 may leave */
    while (t->ops->control_poll(t, &m) == MESH_OK) CHECK_INT(m.rank, 1);
    mesh_sim_sleep(t, 20 * SECOND); /* it leaves last */
}
static void test_sim_left(void) {
    static const mesh_sim_fault late = {MESH_SIM_DELAY, 0, 1, 0, 5 * SECOND};
    sim_left l;
    mesh_error err;
    int seed;
    memset(&l, 0, sizeof l);
    for (l.how = 0; l.how < 4; l.how++)
        for (seed = 0; seed < 4; seed++) {
            mesh_sim_desc d = sim_desc(4);
            d.fault = &late, d.faults = 1;
            d.seed = test_seed * 100 + (uint64_t)seed;
            d.detect_ns = 3 * SECOND;
            d.allocator.alloc = left_alloc, d.allocator.free = left_free, d.allocator.ctx = &l;
            CHECK_OK(mesh_sim_run(&d, sim_left_rank, &l, &err), err);
        }
}

/* Ranks that say nothing to each other need no memory of the transports' allocator, however many they are. */
static void mute_rank(mesh_transport *t, void *ctx) {
    (void)t;
    (void)ctx;
}
static void test_sim_mute(void) {
    mesh_sim_desc d = sim_desc(100);
    sim_left l;
    mesh_error err;
    memset(&l, 0, sizeof l);
    d.allocator.alloc = left_alloc, d.allocator.free = left_free, d.allocator.ctx = &l;
    CHECK_OK(mesh_sim_run(&d, mute_rank, NULL, &err), err);
    CHECK_INT(l.allocs, 0);
}

static const test_case sim_tests[] = {
    {"sim/cost", test_sim_cost, 0},
    {"sim/fifo", test_sim_fifo, 0},
    {"sim/hits", test_sim_hits, 0},
    {"sim/death", test_sim_death, 0},
    {"sim/closed", test_sim_closed, 0},
    {"sim/memory", test_sim_memory, 0},
    {"sim/mismatch", test_sim_mismatch, 0},
    {"sim/seeds", test_sim_seeds, 0},
    {"sim/pairs", test_sim_pairs, 0},
    {"sim/lost_last", test_sim_lost_last, 0},
    {"sim/left", test_sim_left, 0},
    {"sim/mute", test_sim_mute, 0},
};

#endif
