/* The engine when things go wrong: what is late, refused, forgotten, retired; who is named, and that everybody hears it. */
#ifndef T_ENGINE_H
#define T_ENGINE_H

#include "amiss.h"
#include <poll.h>

/* ---- point 7: a question that arrives late ---- */

/* Rank 0 asks rank 1, which sends what was asked for and closes before it reads the question, in the opening of another comm. That answers
   nothing any more: the comm of ranks 0 and 2 goes on. */
static void late_question_rank(mesh_transport *t, void *ctx) {
    int sim = !strcmp(t->ops->name, "sim"), got = 0, v = 7;
    int64_t when = 0;
    mesh_comm c, other;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 10 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 0) when = t->ops->now(t) + SECOND;
    CHECK_INT(mesh_broadcast(&c, NULL, &when, &when, sizeof when, MESH_BYTES, 0), MESH_OK);
    if (sim) pause_rank(t, when - t->ops->now(t)); /* one clock for all; a message takes 50 ms on it */
    if (t->rank == 0) {                            /* asks after 100 ms */
        CHECK_INT(mesh_recv(&c, NULL, 1, &got, 1, MESH_I32), MESH_OK);
        CHECK_INT(got, 7);
        CHECK_INT(mesh_recv(&c, NULL, 2, &got, 1, MESH_I32), MESH_OK); /* rank 2 says so when the answer is out */
        pause_rank(t, SECOND / 5);
    } else {
        pause_rank(t, sim ? SECOND / 8 : SECOND / 4);
        if (t->rank == 1) CHECK_INT(mesh_send(&c, NULL, 0, &v, 1, MESH_I32), MESH_OK);
        if (t->rank == 1) CHECK_INT(mesh_comm_close(&c), MESH_OK);
        if (!open_some(t, &other, 1, 2, 10 * SECOND)) return;
        CHECK_INT(mesh_barrier(&other, NULL), MESH_OK);
        mesh_comm_close(&other);
        if (t->rank == 2) CHECK_INT(mesh_send(&c, NULL, 0, &v, 1, MESH_I32), MESH_OK);
    }
    if (t->rank != 1) {
        CHECK_INT(mesh_sendrecv(&c, NULL, 2 - t->rank, &v, 1, 2 - t->rank, &got, 1, MESH_I32), MESH_OK);
        CHECK_STR(c.error.text, "");
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
    }
}
static void test_late_question(void) {
    mesh_sim_desc d = sim_desc(3);
    mesh_error err;
    d.latency_ns = SECOND / 20;
    CHECK_OK(mesh_sim_run(&d, late_question_rank, NULL, &err), err);
    run_world(TCP, 3, late_question_rank, NULL);
    run_world(UNIX, 3, late_question_rank, NULL);
}

/* ---- point 8: deadlines ---- */

/* The deadline passed while the program computed; what was waited for had come long before. */
static void computed_rank(mesh_transport *t, void *ctx) {
    int how = *(int *)ctx, got = 0, v = 7;
    mesh_status status;
    mesh_request r;
    mesh_comm c;
    if (!open_comm(t, &c, "x=2", NULL, SECOND / 2)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 1) {
        CHECK_INT(mesh_send(&c, NULL, 0, &v, 1, MESH_I32), MESH_OK);
        pause_rank(t, SECOND);
    } else {
        CHECK_INT(mesh_recv_start(&c, NULL, 1, &got, 1, MESH_I32, &r), MESH_OK);
        pause_rank(t, SECOND);
        if (how == 0) {
            CHECK_OK(mesh_wait(r), c.error);
            CHECK_INT(((mesh__engine *)t->engine)->roll.id, 0); /* nobody was asked for it */
        } else {
            while ((status = mesh_test(r)) == MESH_IN_PROGRESS) {}
            CHECK_OK(status, c.error);
        }
        CHECK_INT(got, 7);
    }
    CHECK_STR(c.error.text, "");
    mesh_comm_close(&c);
}
static void test_deadline_computed(void) {
    int how, b;
    for (how = 0; how < 2; how++)
        for (b = 0; b < BACKENDS; b++) run_world(b, 2, computed_rank, &how);
}

/* A time beyond the clock's end is no deadline. */
static void forever_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    int v = t->rank, got = -1;
    (void)ctx;
    desc.timeout_ns = INT64_MAX;
    desc.ask_ns = INT64_MAX;
    CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err);
    if (t->rank == 1) pause_rank(t, SECOND / 10);
    CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
    if (!c.impl) return;
    if (t->rank == 1) pause_rank(t, SECOND / 10); /* it is waited for */
    CHECK_OK(mesh_sendrecv(&c, NULL, 1 - t->rank, &v, 1, 1 - t->rank, &got, 1, MESH_I32), c.error);
    CHECK_INT(got, 1 - t->rank);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_deadline_forever(void) {
    run_world(SIM, 2, forever_rank, NULL);
    run_world(TCP, 2, forever_rank, NULL);
}

/* ---- point 9: failures nobody hears ---- */

/* Rank 1 gets a call wrong, and the transport has no memory for the announcement at first. */
static void refused_announcement_rank(mesh_transport *t, void *ctx) {
    shim s;
    mesh_comm c;
    (void)ctx;
    shim_make(&s, t);
    if (!open_comm(&s.base, &c, "x=3", NULL, 5 * SECOND)) return;
    come_together(&c);
    if (t->rank == 1) {
        pause_rank(t, SECOND / 20); /* the others are through the barrier */
        s.refuse_aborts = 2;        /* one to each */
        CHECK_INT(mesh_barrier(&c, "nowhere"), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_ARGUMENT);
    } else {
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_ARGUMENT);
        CHECK_INT(c.error.rank, 1);
        CHECK_HAS(c.error.text, "nowhere");
    }
    mesh_comm_close(&c);
    mesh_transport_detach(&s.base);
}
static void test_refused_announcement(void) { run_world(SIM, 3, refused_announcement_rank, NULL); }

/* An announcement that was lost on the way: who asks the rank whose comm failed is told why. */
static void ask_failed_rank(mesh_transport *t, void *ctx) {
    shim s;
    mesh_comm c, other;
    int v = 0;
    (void)ctx;
    shim_make(&s, t);
    if (!open_comm(&s.base, &c, "x=3", NULL, 5 * SECOND)) return;
    if (t->rank && !open_some(&s.base, &other, 1, 2, 60 * SECOND)) return;
    if (t->rank == 0) {
        s.drop_aborts = 1;
        CHECK_INT(mesh_recv(&c, NULL, 1, &v, 1, MESH_I32), MESH_ERR_ARGUMENT);
        CHECK_INT(c.error.rank, 1);
        CHECK_HAS(c.error.text, "nowhere");
    } else if (t->rank == 1) {
        CHECK_INT(mesh_barrier(&c, "nowhere"), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_recv(&other, NULL, 1, &v, 1, MESH_I32), MESH_OK); /* it is in the library, and answers */
    } else {
        pause_rank(t, 20 * SECOND);
        CHECK_INT(mesh_send(&other, NULL, 0, &v, 1, MESH_I32), MESH_OK);
    }
    if (t->rank) mesh_comm_close(&other);
    mesh_comm_close(&c);
    mesh_transport_detach(&s.base);
}
static void test_ask_failed(void) { run_world(SIM, 3, ask_failed_rank, NULL); }

/* A rank is lost while there is no memory to remember it. */
static void lost_unremembered_rank(mesh_transport *t, void *ctx) {
    shim s;
    mesh m;
    mesh_comm c;
    mesh_error err;
    (void)ctx;
    shim_make(&s, t);
    if (!open_comm(&s.base, &c, "x=2", NULL, 5 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 1) {
        mesh_sim_die(t);
    } else {
        s.starve_lost = 1;
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
        CHECK_INT(c.error.rank, 1);
        CHECK_HAS(c.error.text, "rank 1 was lost");
        mesh_comm_close(&c);
        CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err); /* and it stays lost */
        CHECK_INT(mesh_comm_open(&c, &s.base, &m, NULL, &err), MESH_ERR_PEER);
    }
    mesh_comm_close(&c);
    mesh_transport_detach(&s.base);
}
static void test_lost_unremembered(void) { run_world(SIM, 2, lost_unremembered_rank, NULL); }

/* Rank 2 gives up the opening while its welcome is under way, and goes about other things: the others do not wait for it. */
static void gave_up_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    mesh_status status;
    (void)ctx;
    desc.timeout_ns = t->rank == 2 ? SECOND : 20 * SECOND; /* rank 2 gives up at 2 s */
    desc.ask_ns = SECOND / 10;
    CHECK_OK(mesh_parse(&m, "x=3", 3, &err), err);
    if (t->rank == 1) pause_rank(t, 3 * SECOND / 2); /* its hello comes at 1.8 s, the welcome at 2.1 s */
    status = mesh_comm_open(&c, t, &m, &desc, &err);
    if (t->rank == 2) {
        CHECK_INT(status, MESH_ERR_TIMEOUT);
        pause_rank(t, 60 * SECOND);
        return;
    }
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK(status == MESH_ERR_PEER || status == MESH_ERR_TIMEOUT);
    if (c.impl) err = c.error;
    CHECK_INT(err.rank, 2);
    if (strstr(err.text, "deadline of")) /* it was not told */
        test_fail(__FILE__, __LINE__, "rank %d: %s", t->rank, err.text);
    mesh_comm_close(&c);
}
static void test_gave_up(void) {
    mesh_sim_desc d = sim_desc(3);
    mesh_error err;
    d.latency_ns = 3 * SECOND / 10;
    CHECK_OK(mesh_sim_run(&d, gave_up_rank, NULL, &err), err);
}

/* Rank 1 gets a call wrong; every rank prints what it heard and exits, as README's program does, without a close. */
static void exits_rank(mesh_transport *t, void *ctx) {
    int stage = *(int *)ctx;
    float a[1024] = {0};
    mesh_comm c;
    mesh_status status = MESH_OK;
    if (!open_comm(t, &c, "dp=4", NULL, 10 * SECOND)) return;
    if (stage >= 1) status = mesh_barrier(&c, NULL);
    if (stage >= 2 && status == MESH_OK) status = mesh_all_reduce(&c, NULL, a, a, 1024, MESH_F32, MESH_SUM);
    if (status == MESH_OK) status = mesh_all_reduce(&c, t->rank == 1 ? "tp" : "dp", a, a, 1024, MESH_F32, MESH_AVG);
    CHECK_INT(status, MESH_ERR_ARGUMENT);
    CHECK_INT(c.error.rank, 1);
    CHECK_HAS(c.error.text, "no axis \"tp\"");
    fflush(NULL);
    _exit(test_failures ? 1 : 0);
}
static void exits(int stage, int times) {
    int i;
    for (i = 0; i < times; i++) {
        run_world(TCP, 4, exits_rank, &stage);
        run_world(UNIX, 4, exits_rank, &stage);
    }
}
static void test_exits_first(void) { exits(0, 3); } /* nobody is connected to anybody but rank 0 */
static void test_exits_after_barrier(void) { exits(1, 20); }
static void test_exits_after_some(void) { exits(2, 20); }

/* A rank is killed. The root of a gather hears it, fails, closes and leaves, in the middle of what rank 2 sends to it, which computes
   meanwhile. When rank 2 looks, all that happened lies before it: it names the rank that was killed, not the one that left for it. */
typedef struct innocent {
    int victim, root; /* of ranks 0 and 1 */
    word midway, left;
} innocent;

static void innocent_rank(mesh_transport *t, void *ctx) {
    enum { N = 16 << 20 };
    innocent *w = (innocent *)ctx;
    float *a = (float *)calloc(N, sizeof *a), *all = NULL;
    int ranks[8], through = 0;
    mesh_request r;
    mesh_comm c;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == w->victim) {
        CHECK(word_hear(&w->midway, 10000));
        kill(getpid(), SIGKILL);
    }
    if (t->rank == w->root) all = (float *)calloc(3 * (size_t)N, sizeof *all);
    CHECK_INT(mesh_gather_start(&c, NULL, a, all, N, MESH_F32, w->root, &r), MESH_OK);
    if (t->rank == 2) {
        const mesh__op *op;
        while ((op = mesh__request_op(r)) != NULL && mesh__op_pending(mesh__impl(&c)->engine, op, ranks, 8)) mesh_test(r);
        through = !op || op->state != MESH__ACTIVE; /* all of it at once, on a busy machine: there is nothing to see then */
        word_say(&w->midway);
        CHECK(word_hear(&w->left, 10000));
    }
    if (!through) {
        CHECK_INT(mesh_wait(r), MESH_ERR_PEER);
        CHECK_INT(c.error.rank, w->victim);
        CHECK_HAS(c.error.text, w->victim ? "rank 1 was lost" : "rank 0 was lost");
    }
    mesh_comm_close(&c);
    if (t->rank == w->root) {
        mesh_socket_close((mesh_socket *)(void *)t);
        word_say(&w->left);
    }
    free(a);
    free(all);
}
static void test_innocent(void) {
    int b, victim;
    for (b = TCP; b <= SHARED; b++)
        for (victim = 0; victim < 2; victim++) {
            innocent w;
            w.victim = victim;
            w.root = 1 - victim;
            word_make(&w.midway);
            word_make(&w.left);
            run_world_but(b, 3, innocent_rank, &w, victim);
        }
}

/* The root of a gather takes its side back; a moment later rank 2 hears that rank 0 was lost, which is why. It names rank 0: the root is not
   blamed before the loss had its time. */
static void late_loss_rank(mesh_transport *t, void *ctx) {
    enum { N = 1 << 20 };
    word *stalled = (word *)ctx;
    float *a, *all;
    mesh_request r;
    mesh_comm c;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 0) {
        CHECK(word_hear(stalled, 10000));
        kill(getpid(), SIGKILL);
    }
    a = (float *)calloc(N, sizeof *a);
    all = (float *)calloc(3 * (size_t)N, sizeof *all);
    CHECK_INT(mesh_gather_start(&c, NULL, a, all, N, MESH_F32, 1, &r), MESH_OK);
    if (t->rank == 2) {
        mesh_error why;
        mesh__fail(&why, MESH_ERR_CANCELED, 1, "rank 1 has given the operation up");
        mesh__op_stall(mesh__impl(&c)->engine, mesh__request_op(r), MESH_ERR_CANCELED, &why);
        word_say(stalled);
    }
    CHECK_INT(mesh_wait(r), MESH_ERR_PEER);
    CHECK_INT(c.error.rank, 0);
    CHECK_HAS(c.error.text, "rank 0 was lost");
    mesh_comm_close(&c);
    free(a);
    free(all);
}
static void test_late_loss(void) {
    int b;
    for (b = TCP; b <= SHARED; b++) {
        word stalled;
        word_make(&stalled);
        run_world_but(b, 3, late_loss_rank, &stalled, 0);
    }
}

/* Rank 2 does not come (it is stopped). Rank 0 waits for rank 1, which waits for rank 2: all name rank 2. Rank 0's deadline is the first. */
enum { STOPPED_WAITS, STOPPED_TOLD };
static void stopped_in_time_rank(mesh_transport *t, void *ctx) {
    int v = 0;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 2) {
        pause_rank(t, 5 * SECOND);
    } else {
        if (t->rank == 1) pause_rank(t, SECOND / 2);
        CHECK_INT(mesh_recv(&c, NULL, t->rank + 1, &v, 1, MESH_I32), MESH_ERR_TIMEOUT);
        CHECK_INT(c.error.rank, 2);
        CHECK_HAS(c.error.text, "rank 2");
    }
    mesh_comm_close(&c);
}
/* The same among processes: rank 1 waits already, with a deadline far away, and hears it from rank 0. */
static void stopped_rank(mesh_transport *t, void *ctx) {
    int v = 0, ranks[8];
    mesh_request r;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 60 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank < 2) {
        if (t->rank == 0) world_await(STOPPED_WAITS, 1), mesh__impl(&c)->timeout = SECOND;
        CHECK_INT(mesh_recv_start(&c, NULL, t->rank + 1, &v, 1, MESH_I32, &r), MESH_OK);
        while (t->rank == 1 && !mesh__op_pending(mesh__impl(&c)->engine, mesh__request_op(r), ranks, 8)) mesh_test(r);
        if (t->rank == 1) world_say(STOPPED_WAITS);
        CHECK_INT(mesh_wait(r), MESH_ERR_TIMEOUT);
        CHECK_INT(c.error.rank, 2);
        CHECK_HAS(c.error.text, "rank 2");
        world_say(STOPPED_TOLD);
    } else {
        world_await(STOPPED_TOLD, 2);
    }
    mesh_comm_close(&c);
}
static void test_stopped(void) {
    run_world(SIM, 3, stopped_in_time_rank, NULL);
    run_world(TCP, 3, stopped_rank, NULL);
}

/* Rank 1 stops in the middle of a message: it is named, though the message is matched. Rank 0 then closes without waiting for it. */
static void stopped_midway_rank(mesh_transport *t, void *ctx) {
    enum { N = 16 << 20 };
    word *w = (word *)ctx;
    float *a = (float *)calloc(N, sizeof *a);
    int ranks[8];
    mesh_request r;
    mesh_comm c;
    if (!open_comm(t, &c, "x=2", NULL, 2 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 1) {
        CHECK_INT(mesh_recv_start(&c, NULL, 0, a, N, MESH_F32, &r), MESH_OK);
        while (mesh__op_pending(mesh__impl(&c)->engine, mesh__request_op(r), ranks, 8)) mesh_test(r);
        CHECK_INT(mesh__request_op(r)->state, MESH__ACTIVE);
        CHECK(word_hear(&w[0], 15000)); /* rank 0 has timed out, */
        CHECK(word_hear(&w[0], 10000)); /* and closed, while this rank read nothing */
    } else {
        CHECK_INT(mesh_send(&c, NULL, 1, a, N, MESH_F32), MESH_ERR_TIMEOUT);
        CHECK_INT(c.error.rank, 1);
        CHECK_HAS(c.error.text, "rank 1");
        word_say(&w[0]);
        mesh_comm_close(&c);
        mesh_socket_close((mesh_socket *)(void *)t);
        word_say(&w[0]);
    }
    if (t->rank == 1) mesh_comm_close(&c);
    free(a);
}
static void test_stopped_midway(void) {
    int b;
    for (b = TCP; b <= SHARED; b++) {
        word w;
        word_make(&w);
        run_world(b, 2, stopped_midway_rank, &w);
    }
}

/* A rank is killed whose child lives on, with all its descriptors. Where a process can be watched it is lost at once; with POSIX alone its
   connections stay open, and the deadline names it. */
static void orphan_rank(mesh_transport *t, void *ctx) {
    word *w = (word *)ctx;
    mesh_comm c;
    if (!open_comm(t, &c, "x=3", NULL, 5 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 2) {
        if (fork() == 0) {
            word_hear(w, 20000); /* until the others know, or long after their deadline */
            word_hear(w, 20000);
            _exit(0);
        }
        kill(getpid(), SIGKILL);
    }
#if MESH_SOCKET__LINUX && defined(SYS_pidfd_open)
    CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
    CHECK_HAS(c.error.text, "rank 2 was lost");
#else
    CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_TIMEOUT);
    CHECK_HAS(c.error.text, "rank 2 does not answer");
#endif
    CHECK_INT(c.error.rank, 2);
    word_say(w);
    mesh_comm_close(&c);
}
static void test_orphan(void) {
    int b;
    for (b = TCP; b <= SHARED; b++) {
        word w;
        word_make(&w);
        run_world_but(b, 3, orphan_rank, &w, 2);
    }
}

/* ---- point 10 ---- */

/* A comm is closed by force over a transport whose tickets do not end, or are orphaned by that or by an error: what they have under their hands
   is nobody else's, and is not freed. */
enum { STUCK_AT_CLOSE, ORPHANED_AT_CLOSE, ORPHANED_BY_ERROR, LIVE_SCRATCHES };
typedef struct live_scratch {
    size_t count;
    int how;
} live_scratch;
static void live_scratch_rank(mesh_transport *t, void *ctx) {
    size_t n = ((live_scratch *)ctx)->count;
    int how = ((live_scratch *)ctx)->how;
    mesh_tuning tuning;
    mesh_error err;
    float *a = (float *)calloc(n, sizeof *a), *b = (float *)calloc(n, sizeof *b), *b2 = (float *)calloc(n, sizeof *b2);
    shim s;
    mesh_comm c, again;
    mesh_request r;
    shim_make(&s, t);
    CHECK_OK(mesh_tuning_parse(&tuning, "all_reduce ranks<=* bytes<=* halving", &err), err);
    s.base.tuning = &tuning; /* scratch as large as the data */
    if (!open_comm(&s.base, &c, "x=2", NULL, 20 * SECOND)) return;
    if (t->rank == 0) {
        s.stick = 1;
        CHECK_INT(mesh_all_reduce_start(&c, NULL, a, b, n, MESH_F32, MESH_SUM, &r), MESH_OK);
        CHECK(s.nstuck > 0);
        s.orphan = how != STUCK_AT_CLOSE;
        if (how == ORPHANED_BY_ERROR) {
            CHECK_INT(mesh_abort(&c, "it is enough"), MESH_OK);
            CHECK_INT(mesh_wait(r), MESH_ERR_CANCELED);
            CHECK_INT(mesh_wait(r), MESH_ERR_STATE);
            CHECK_INT(mesh_comm_close(&c), MESH_OK);
        } else {
            CHECK_INT(mesh_comm_close(&c), MESH_ERR_STATE);
        }
        s.stick = 0;
    } else {
        mesh_comm_close(&c);
    }
    if (!open_comm(&s.base, &again, "y=2", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_all_reduce(&again, NULL, a, b2, n, MESH_F32, MESH_SUM), MESH_OK);
    mesh_comm_close(&again);
    CHECK_INT(s.reused, 0);
    CHECK_INT(s.freed, 0);
    shim_unstick(&s);
    mesh_transport_detach(&s.base);
    free(a);
    free(b);
    free(b2);
}
static void test_live_scratch(void) {
    live_scratch k;
    for (k.how = 0; k.how < LIVE_SCRATCHES; k.how++)
        for (k.count = 9000; k.count <= 4 << 20; k.count *= 466) /* kept for the next operation; given back at once */
            run_world(SIM, 2, live_scratch_rank, &k);
}

/* Scratch is kept for the next operation up to MESH__SCRATCH_KEPT bytes; more is given back at once. */
static void kept_scratch_rank(mesh_transport *t, void *ctx) {
    static const size_t counts[] = {9000, 4 << 20};
    int i, k, n, kept;
    mesh_tuning tuning;
    mesh_error err;
    mesh_comm c;
    (void)ctx;
    CHECK_OK(mesh_tuning_parse(&tuning, "all_reduce ranks<=* bytes<=* halving", &err), err);
    t->tuning = &tuning; /* scratch as large as the data */
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    for (n = 0; n < 2; n++) {
        float *a = (float *)calloc(counts[n], sizeof *a), *b = (float *)calloc(counts[n], sizeof *b);
        mesh__engine *e = mesh__impl(&c)->engine;
        CHECK_OK(mesh_all_reduce(&c, NULL, a, b, counts[n], MESH_F32, MESH_SUM), c.error);
        for (i = 0, kept = 0; i < e->nops; i++)
            for (k = 0; k < MESH__SCRATCHES; k++) {
                kept += e->op[i]->schedule.scratch[k].p != NULL;
                CHECK(e->op[i]->schedule.scratch[k].nbytes <= MESH__SCRATCH_KEPT);
            }
        CHECK_INT(kept > 0, n == 0);
        free(a);
        free(b);
    }
    CHECK_OK(mesh_comm_close(&c), c.error);
    t->tuning = NULL;
}
static void test_kept_scratch(void) { run_world(SIM, 2, kept_scratch_rank, NULL); }

static void fill_stack(void) {
    volatile char junk[16384];
    size_t i;
    for (i = 0; i < sizeof junk; i++) junk[i] = 'Z';
}

/* A transport refuses a group, and does not say why: it is refused all the same, with its status, on every rank. */
static void unsaid_rank(mesh_transport *t, void *ctx) {
    int late = *(int *)ctx; /* 1: mesh_group_open; 0: in the opening of the comm */
    shim s;
    mesh m;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    mesh_status status;
    shim_make(&s, t);
    s.ops.group_open = shim_group_open;
    s.ops.group_close = shim_group_close;
    desc.timeout_ns = 5 * SECOND;
    if (t->rank == 1) s.refuse_group = late ? 4 : 2;
    CHECK_OK(mesh_parse(&m, "dp=2,tp=1", 2, &err), err);
    memset(&err, 'Z', sizeof err);
    status = mesh_comm_open(&c, &s.base, &m, &desc, &err);
    if (late) {
        CHECK_INT(status, MESH_OK);
        fill_stack();
        status = mesh_group_open(&c, "tp,dp");
        CHECK_INT(status, MESH_ERR_MEMORY);
        CHECK_INT(c.error.status, MESH_ERR_MEMORY);
        CHECK_INT(c.error.rank, 1);
        CHECK_HAS(c.error.text, "mesh_group_open(\"tp,dp\")");
        CHECK(!strstr(c.error.text, "ZZ"));
    } else if (t->rank == 1) {
        CHECK_INT(status, MESH_ERR_MEMORY);
        CHECK_INT(err.status, MESH_ERR_MEMORY);
        CHECK(err.text[0] && !strstr(err.text, "ZZ"));
    } else {
        CHECK_INT(status, MESH_OK); /* open here; it hears of rank 1's failure */
        pause_rank(t, SECOND);
        mesh__control(mesh__impl(&c)->engine); /* as every call does first */
        CHECK(c.failed);
        CHECK_INT(c.error.status, MESH_ERR_MEMORY);
        CHECK_INT(c.error.rank, 1);
        if (c.error.status)
            CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_MEMORY); /* a comm that failed with OK crashes here */
    }
    mesh_comm_close(&c);
    mesh_transport_detach(&s.base);
}
static void test_unsaid(void) {
    int late;
    for (late = 0; late < 2; late++) run_world(SIM, 2, unsaid_rank, &late);
}

/* An operation that outlives 256 others ends: the history of the one that took its place stays. */
static void ring_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request slow, next;
    int i, v = 1, got[2] = {0, 0};
    char text[65536], *last;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    if (t->rank == 0) CHECK_INT(mesh_recv_start(&c, NULL, 1, &got[0], 1, MESH_I32, &slow), MESH_OK);
    for (i = 0; i < MESH__RING - 1; i++) CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 1) CHECK_INT(mesh_send(&c, NULL, 0, &v, 1, MESH_I32), MESH_OK);
    if (t->rank == 0) {
        CHECK_INT(mesh_recv_start(&c, NULL, 1, &got[1], 1, MESH_I32, &next), MESH_OK);
        CHECK_INT(mesh_wait(slow), MESH_OK);
        CHECK(mesh_comm_history(&c, text, sizeof text) < sizeof text);
        text[strlen(text) - 1] = 0;
        last = strrchr(text, '\n');
        CHECK_HAS(last ? last : text, "recv(1 x i32)");
        CHECK_HAS(last ? last : text, "in progress");
    }
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 1) CHECK_INT(mesh_send(&c, NULL, 0, &v, 1, MESH_I32), MESH_OK);
    if (t->rank == 0) CHECK_INT(mesh_wait(next), MESH_OK);
    mesh_comm_close(&c);
}
static void test_ring(void) { run_world(SIM, 2, ring_rank, NULL); }

static mesh_status shim_collective_none(mesh_transport *t, void *group, const mesh_call *call, mesh_ticket *ticket) {
    (void)t, (void)group, (void)call, (void)ticket;
    return MESH_ERR_UNSUPPORTED;
}

/* What a list's native collective moves at least, counted once: as its generic schedule does. One that the transport leaves to the core is
   the generic schedule, to the post. */
static void native_bytes_rank(mesh_transport *t, void *ctx) {
    static const int kinds = 4;
    shim s[3];
    mesh_comm c;
    float a[64] = {0}, b[64] = {0};
    int posts[3][4];
    uint64_t sent[3][4], received[3][4], before_sent = 0, before_received = 0;
    mesh_buffer list[2];
    int native, k;
    (void)ctx;
    for (native = 0; native < 3; native++) {
        shim_make(&s[native], t);
        if (native) s[native].ops.collective = native == 1 ? shim_collective : shim_collective_none;
        if (!open_comm(&s[native].base, &c, "x=2", NULL, 20 * SECOND)) return;
        for (k = 0; k < kinds; k++) {
            list[0].send = a, list[0].recv = b, list[0].count = 6;
            list[1].send = a + 32, list[1].recv = b + 32, list[1].count = 2;
            mesh_comm_bytes(&c, NULL, &before_sent, &before_received);
            posts[native][k] = -s[native].posts;
            CHECK_INT(k == 0   ? mesh_all_reduce_many(&c, NULL, list, 2, MESH_F32, MESH_SUM)
                      : k == 1 ? mesh_broadcast_many(&c, NULL, list, 2, MESH_F32, 0)
                      : k == 2 ? mesh_all_gather_many(&c, NULL, list, 2, MESH_F32)
                               : mesh_reduce_scatter_many(&c, NULL, list, 2, MESH_F32, MESH_SUM),
                      MESH_OK);
            mesh_comm_bytes(&c, NULL, &sent[native][k], &received[native][k]);
            posts[native][k] += s[native].posts;
            sent[native][k] -= before_sent;
            received[native][k] -= before_received;
        }
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
        mesh_transport_detach(&s[native].base);
    }
    for (k = 0; k < kinds; k++) { /* on two ranks the generic schedules move the least there is */
        CHECK_INT(sent[1][k], sent[0][k]);
        CHECK_INT(received[1][k], received[0][k]);
        CHECK_INT(sent[2][k], sent[0][k]);
        CHECK_INT(posts[2][k], posts[0][k]);
    }
}
static void test_native_bytes(void) { run_world(SIM, 2, native_bytes_rank, NULL); }

/* Two ranks' sums, as the transport's own collective; it knows no average. */
static mesh_status shim_sums(mesh_transport *t, void *group, const mesh_call *call, mesh_ticket *ticket) {
    mesh_transport *inner = shim_of(t)->inner;
    int i, n = call->nbuffers ? call->nbuffers : 1, me = t->rank, root = -1;
    mesh_xfer x[8];
    mesh_post p;
    (void)group;
    if (call->op != MESH_SUM || call->dtype != MESH_F32) return MESH_ERR_UNSUPPORTED;
    if (!ticket) return MESH_OK;
    memset(&p, 0, sizeof p);
    if (call->kind == MESH_CALL_REDUCE) root = call->root;
    for (i = 0; i < n; i++) {
        mesh_buffer one;
        const float *send, *mine;
        size_t count;
        one.send = call->send, one.recv = call->recv, one.count = call->count;
        if (call->nbuffers) one = call->buffers[i];
        send = mine = (const float *)one.send, count = one.count;
        if (call->kind == MESH_CALL_REDUCE_SCATTER || call->kind == MESH_CALL_REDUCE_SCATTER_MANY)
            send += (1 - me) * (int)count, mine += me * (int)count;
        if (call->kind == MESH_CALL_REDUCE_SCATTER_V) {
            send += me ? 0 : call->recv_counts[0], mine += me ? call->recv_counts[0] : 0;
            count = call->recv_counts[me];
        }
        if (root < 0 || root == 1 - me)
            x[p.count++] =
                conf_xfer(MESH_SEND, 1 - me, (void *)(uintptr_t)send,
                          4 * (call->kind == MESH_CALL_REDUCE_SCATTER_V ? call->recv_counts[1 - me] : count), NULL);
        if (root < 0 || root == me) {
            memmove(one.recv, mine, 4 * count);
            x[p.count++] = conf_xfer(MESH_REDUCE, 1 - me, one.recv, 4 * count, NULL);
        }
    }
    p.channel = call->channel, p.check = call->check;
    p.dtype = call->dtype, p.op = call->op;
    p.xfer = x;
    return inner->ops->post(inner, &p, ticket);
}

/* Averages are made of such sums: of every form, kept and rebound too, once divided, where the result is and nowhere else. */
static void composed_rank(mesh_transport *t, void *ctx) {
    static const int forms = 6;
    shim s;
    mesh_comm c;
    int k, i, round;
    (void)ctx;
    shim_make(&s, t);
    s.ops.collective = shim_sums;
    if (!open_comm(&s.base, &c, "x=2", NULL, 20 * SECOND)) return;
    for (k = 0; k < forms; k++) {
        float in[2][8], out[2][8], want[8];
        size_t counts[2] = {3, 5}, got = k == 0 || k == 1 || k == 4 ? 8 : k == 3 ? counts[t->rank] : 4;
        size_t at = k == 0 || k == 1 || k == 4 ? 0 : k == 3 ? (size_t)(3 * t->rank) : (size_t)(4 * t->rank);
        mesh_buffer list[2];
        mesh_request r = MESH_ZERO;
        mesh__op *op;
        for (i = 0; i < 8; i++) {
            in[0][i] = (float)(i + 100 * t->rank), in[1][i] = 2 * in[0][i];
            out[0][i] = out[1][i] = want[i] = -7;
        }
        for (i = 0; i < (int)got; i++) want[i] = (float)(at + (size_t)i) + 50;
        list[0].send = in[0], list[0].recv = out[0], list[0].count = k == 4 ? 3 : 1;
        list[1].send = in[0] + (k == 4 ? 3 : 2), list[1].recv = out[0] + (k == 4 ? 3 : 1),
        list[1].count = k == 4 ? 5 : 3;
        if (k == 5) want[0] = (float)t->rank + 50;
        for (i = 0; i < 3 && k == 5; i++) want[1 + i] = (float)(2 + 3 * t->rank + i) + 50;
        if (k == 1 && t->rank != 1)
            for (i = 0; i < 8; i++) want[i] = -7;
        CHECK_INT(k == 0   ? mesh_all_reduce_start(&c, NULL, in[0], out[0], 8, MESH_F32, MESH_AVG, &r)
                  : k == 1 ? mesh_reduce_start(&c, NULL, in[0], out[0], 8, MESH_F32, MESH_AVG, 1, &r)
                  : k == 2 ? mesh_reduce_scatter_start(&c, NULL, in[0], out[0], 4, MESH_F32, MESH_AVG, &r)
                  : k == 3 ? mesh_reduce_scatter_v_start(&c, NULL, in[0], out[0], counts, NULL, MESH_F32, MESH_AVG, &r)
                  : k == 4 ? mesh_all_reduce_many_start(&c, NULL, list, 2, MESH_F32, MESH_AVG, &r)
                           : mesh_reduce_scatter_many_start(&c, NULL, list, 2, MESH_F32, MESH_AVG, &r),
                  MESH_OK);
        op = mesh__request_op(r);
        CHECK(op && op->schedule.step[0].kind == MESH__CALL);
        CHECK_INT(mesh_keep(r), MESH_OK);
        for (round = 0; round < 2 + (k == 0); round++) {
            float *to = out[round == 2];
            if (round == 2) CHECK_INT(mesh_rebind(r, in[1], out[1]), MESH_OK);
            if (round) CHECK_INT(mesh_restart(r), MESH_OK);
            CHECK_INT(mesh_wait(r), MESH_OK);
            for (i = 0; i < 8; i++) CHECK(to[i] == (round == 2 ? 2 * want[i] : want[i]));
            for (i = 0; i < 8; i++) to[i] = -7;
        }
        CHECK_INT(mesh_release(r), MESH_OK);
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    mesh_transport_detach(&s.base);
}
static void test_composed(void) {
    mesh_sim_desc d = sim_desc(2);
    mesh_error err;
    d.reduces = 1;
    CHECK_OK(mesh_sim_run(&d, composed_rank, NULL, &err), err);
}

/* Scratch is the transport's where peers can map that, and the allocator's elsewhere. */
static int shared_blocks;
static mesh_status shared_alloc(mesh_transport *t, uint64_t nbytes, unsigned flags, void **out) {
    (void)t, (void)flags;
    shared_blocks++;
    *out = malloc((size_t)nbytes);
    return *out ? MESH_OK : MESH_ERR_MEMORY;
}
static mesh_status shared_free(mesh_transport *t, void *p) {
    (void)t;
    shared_blocks -= p != NULL;
    free(p);
    return MESH_OK;
}
static void shared_scratch_rank(mesh_transport *t, void *ctx) {
    float a[600] = {0}, b[600];
    int shared;
    (void)ctx;
    for (shared = 0; shared < 2; shared++) {
        shim s;
        mesh_comm c;
        shim_make(&s, t);
        s.ops.alloc = shared_alloc;
        s.ops.free = shared_free;
        if (shared) s.base.caps |= MESH_CAP_SHARED;
        if (!open_comm(&s.base, &c, "x=2", NULL, 20 * SECOND)) return;
        CHECK_INT(mesh_all_reduce(&c, NULL, a, b, 600, MESH_F32, MESH_SUM), MESH_OK);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
        CHECK_INT(shared_blocks, 2 * shared);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
        mesh_transport_detach(&s.base);
    }
}
static void test_shared_scratch(void) {
    run_world(SIM, 2, shared_scratch_rank, NULL);
    CHECK_INT(shared_blocks, 0);
}

/* An all-to-all dependence holds with 0 elements too, whatever algorithm serves: nobody ends before the last has called. */
static int empty_calls[8];
static void empty_rank(mesh_transport *t, void *ctx) {
    static const int kinds[] = {MESH_CALL_ALL_REDUCE, MESH_CALL_ALL_GATHER, MESH_CALL_REDUCE_SCATTER,
                                MESH_CALL_ALL_TO_ALL};
    int which = *(int *)ctx, k = kinds[which / MESH_ALGORITHM_COUNT], a = which % MESH_ALGORITHM_COUNT, i;
    float x[8] = {0}, y[8] = {0};
    mesh m;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_tuning tuning = MESH_ZERO;
    mesh_error err;
    tuning.nrows = 1;
    tuning.row[0].call = (uint8_t)k;
    tuning.row[0].algorithm = (uint8_t)a;
    tuning.row[0].ranks = UINT16_MAX;
    tuning.row[0].bytes = UINT64_MAX;
    desc.tuning = &tuning;
    CHECK_OK(mesh_parse(&m, "x=-1", t->size, &err), err);
    CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
    if (t->rank == t->size - 1) pause_rank(t, SECOND);
    empty_calls[t->rank] = 1;
    CHECK_INT(k == MESH_CALL_ALL_REDUCE       ? mesh_all_reduce(&c, NULL, x, y, 0, MESH_F32, MESH_SUM)
              : k == MESH_CALL_ALL_GATHER     ? mesh_all_gather(&c, NULL, x, y, 0, MESH_F32)
              : k == MESH_CALL_REDUCE_SCATTER ? mesh_reduce_scatter(&c, NULL, x, y, 0, MESH_F32, MESH_SUM)
                                              : mesh_all_to_all(&c, NULL, x, y, 0, MESH_F32),
              MESH_OK);
    for (i = 0; i < t->size; i++)
        if (!empty_calls[i])
            test_fail(__FILE__, __LINE__, "%s of 0 elements by %s: rank %d of %d ended before rank %d had called",
                      mesh__call_name(k), mesh__algorithm_names[a], t->rank, t->size, i);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_empty(void) {
    static const int kinds[] = {MESH_CALL_ALL_REDUCE, MESH_CALL_ALL_GATHER, MESH_CALL_REDUCE_SCATTER,
                                MESH_CALL_ALL_TO_ALL};
    static const int host[] = {0, 1, 1, 0, 0}; /* for algorithms over hosts */
    int k, a, n;
    for (k = 0; k < 4; k++)
        for (a = 1; a < MESH_ALGORITHM_COUNT; a++)
            for (n = 2; n <= 5; n++) {
                int which = k * MESH_ALGORITHM_COUNT + a;
                if (!mesh_algorithm_serves((mesh_algorithm)a, kinds[k])) continue;
                memset(empty_calls, 0, sizeof empty_calls);
                run_world_on(host, n, empty_rank, &which);
            }
}

/* A rank has left in good order that no operation under way needs, of another comm or of this one: they are not asked about it again and
   again. */
static void left_behind_rank(mesh_transport *t, void *ctx) {
    enum { MANY = 200 };
    static mesh_request r[MANY];
    static int got[MANY];
    int member = *(int *)ctx, i, v = 1;
    shim s;
    mesh_comm c;
    shim_make(&s, t);
    if (t->rank < 2 || member)
        if (!open_some(&s.base, &c, 0, 2 + member, 30 * SECOND)) return;
    if (t->rank == 0) {
        for (i = 0; i < MANY; i++) CHECK_INT(mesh_recv_start(&c, NULL, 1, &got[i], 1, MESH_I32, &r[i]), MESH_OK);
        while (!mesh__impl(&c)->engine->ngone) CHECK_INT(mesh_test(r[0]), MESH_IN_PROGRESS); /* rank 2 has left */
        s.asked = 0;
        for (i = 0; i < 100; i++) CHECK_INT(mesh_test(r[0]), MESH_IN_PROGRESS);
        if (s.asked > 2 * MANY)
            test_fail(__FILE__, __LINE__,
                      "pending was asked %d times in 100 tests, of %d operations that do not need the rank that left",
                      s.asked, MANY);
        for (i = 0; i < MANY; i++) CHECK_INT(mesh_wait(r[i]), MESH_OK);
    } else if (t->rank == 1) {
        pause_rank(t, 2 * SECOND);
        for (i = 0; i < MANY; i++) CHECK_INT(mesh_send(&c, NULL, 0, &v, 1, MESH_I32), MESH_OK);
    }
    if (t->rank < 2 || member) mesh_comm_close(&c);
    mesh_transport_detach(&s.base);
}
static void test_left_behind(void) {
    int member;
    for (member = 0; member < 2; member++) run_world(SIM, 3, left_behind_rank, &member);
}

/* Who calls it as the deadline comes, and is not heard any more, has started nothing in another order. */
static void just_late_rank(mesh_transport *t, void *ctx) {
    static float v[3][60000];
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 10 * SECOND)) return;
    if (t->rank == 2) pause_rank(t, 10 * SECOND - SECOND / 2);
    if (mesh_all_reduce(&c, NULL, v[t->rank], v[t->rank], 60000, MESH_F32, MESH_SUM) != MESH_OK)
        CHECK_HAS(c.error.text, "; every rank has called it: a rank called it only as the deadline came (a longer timeout_ns waits for it), ");
    CHECK(t->rank == 2 || c.failed);
    mesh_comm_close(&c);
}
static void test_just_late(void) {
    mesh_sim_fault fault = MESH_ZERO;
    mesh_sim_desc d = MESH_ZERO;
    mesh_error err;
    fault.kind = MESH_SIM_DELAY, fault.rank = 2, fault.delay_ns = 5 * SECOND;
    d.ranks = 3, d.fault = &fault, d.faults = 1;
    CHECK_OK(mesh_sim_run(&d, just_late_rank, NULL, &err), err);
}

/* All of a group time out together: what is said of it grows with the group, not with its square. */
static int all_late_said;
static void all_late_rank(mesh_transport *t, void *ctx) {
    shim s;
    mesh_comm c;
    float v = 0;
    int64_t when = t->rank ? 0 : t->ops->now(t) + 20 * SECOND;
    (void)ctx;
    shim_make(&s, t);
    if (!open_comm(&s.base, &c, "x=-1", NULL, 10 * SECOND)) return;
    CHECK_INT(mesh_broadcast(&c, NULL, &when, &when, sizeof when, MESH_BYTES, 0), MESH_OK);
    pause_rank(t, when - t->ops->now(t)); /* one clock for all: they begin together */
    if (t->rank == t->size - 1)
        pause_rank(t, 50 * SECOND);
    else
        CHECK_INT(mesh_all_reduce(&c, NULL, &v, &v, 1, MESH_F32, MESH_SUM), MESH_ERR_TIMEOUT);
    __sync_add_and_fetch(&all_late_said, s.announced);
    mesh_comm_close(&c);
    mesh_transport_detach(&s.base);
}
static void test_all_late(void) {
    int said[2], k;
    for (k = 0; k < 2; k++) {
        mesh_sim_desc d = sim_desc(k ? 64 : 16);
        mesh_error err;
        d.latency_ns = SECOND / 20; /* nobody hears of another's end before its own */
        all_late_said = 0;
        CHECK_OK(mesh_sim_run(&d, all_late_rank, NULL, &err), err);
        said[k] = all_late_said;
    }
    if (said[1] > 8 * said[0]) /* four times the ranks; 16 times would be the square */
        test_fail(__FILE__, __LINE__, "16 ranks that time out say so %d times, 64 ranks %d times", said[0], said[1]);
}

/* ---- what is said meanwhile, and set without code ---- */

static int waits_said;
static char waits_text[400];
static void hear_waits(void *ctx, int level, const char *text) {
    (void)ctx;
    if (level != 1) return;
    waits_said++;
    snprintf(waits_text, sizeof waits_text, "%s", text);
}
static void slow_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    (void)ctx;
    if (t->rank == 0) t->log = hear_waits;
    if (!open_comm(t, &c, "x=3", NULL, 100 * SECOND)) return;
    if (t->rank == 1) pause_rank(t, 9 * SECOND);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank == 0) CHECK_INT(waits_said, 0);
    if (t->rank == 2) pause_rank(t, 90 * SECOND);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank == 0) {
        CHECK_INT(waits_said, 4); /* after 10, 20, 40 and 80 s: whom it waits for may be another by then */
        CHECK_HAS(waits_text, "rank 0 has waited for 80 s in barrier(");
        CHECK_HAS(waits_text, "for rank");
        CHECK_HAS(waits_text, "its deadline is 100 s");
    }
    mesh_comm_close(&c);
}
static void test_says_waiting(void) {
    waits_said = 0;
    run_world(SIM, 3, slow_rank, NULL);
}

static void timeout_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh m;
    mesh_error err;
    (void)ctx;
    CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err);
    CHECK_OK(mesh_comm_open(&c, t, &m, NULL, &err), err);
    if (!c.impl) return;
    if (t->rank == 0) {
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_TIMEOUT);
        CHECK_HAS(c.error.text, "deadline of 1000 ms");
    } else {
        pause_rank(t, 2 * SECOND);
    }
    mesh_comm_close(&c);
}
static void test_timeout_variable(void) {
    mesh_socket net;
    mesh_error err;
    setenv("MESH_TIMEOUT", "1", 1);
    run_world(TCP, 2, timeout_rank, NULL);
    setenv("MESH_TIMEOUT", "soon", 1);
    CHECK_INT(mesh_socket_open(&net, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "MESH_TIMEOUT is \"soon\"");
    unsetenv("MESH_TIMEOUT");
}

/* Registering is a call of every rank, also where it gains nothing. */
static void register_memory_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    char bytes[64];
    void *handle = &c;
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 10 * SECOND)) return;
    status = mesh_register(&c, bytes, sizeof bytes, &handle);
    CHECK(handle == NULL);
    CHECK_INT(mesh_unregister(&c, handle), MESH_OK);
    if (status == MESH_OK) {
        CHECK_INT(mesh_unregister(&c, bytes), MESH_ERR_ARGUMENT);
        CHECK_HAS(c.error.text, "no handle of this comm");
    }
    if (status == MESH_OK) /* rank 2 may be here before rank 0 is through the first */
        status = mesh_register(&c, bytes, t->rank == 2 ? 63 : 64, &handle);
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "register(64 x bytes)");
    CHECK_HAS(c.error.text, "register(63 x bytes)");
    mesh_comm_close(&c);
}
static void test_register_memory(void) {
    run_world(SIM, 3, register_memory_rank, NULL);
    run_world(TCP, 3, register_memory_rank, NULL);
}

static const test_case engine_tests[] = {
    {"engine/late_question", test_late_question, 0},
    {"engine/deadline_computed", test_deadline_computed, 0},
    {"engine/deadline_forever", test_deadline_forever, 20},
    {"engine/refused_announcement", test_refused_announcement, 0},
    {"engine/ask_failed", test_ask_failed, 0},
    {"engine/lost_unremembered", test_lost_unremembered, 0},
    {"engine/gave_up", test_gave_up, 0},
    {"engine/exits_first", test_exits_first, 0},
    {"engine/exits_after_barrier", test_exits_after_barrier, 0},
    {"engine/exits_after_some", test_exits_after_some, 0},
    {"engine/innocent", test_innocent, 0},
    {"engine/late_loss", test_late_loss, 0},
    {"engine/stopped", test_stopped, 0},
    {"engine/stopped_midway", test_stopped_midway, 0},
    {"engine/orphan", test_orphan, 0},
    {"engine/kept_scratch", test_kept_scratch, 0},
    {"engine/composed", test_composed, 0},
    {"engine/shared_scratch", test_shared_scratch, 0},
    {"engine/live_scratch", test_live_scratch, 0},
    {"engine/unsaid", test_unsaid, 0},
    {"engine/ring", test_ring, 0},
    {"engine/native_bytes", test_native_bytes, 0},
    {"engine/empty", test_empty, 0},
    {"engine/left_behind", test_left_behind, 0},
    {"engine/all_late", test_all_late, 0},
    {"engine/just_late", test_just_late, 0},
    {"engine/says_waiting", test_says_waiting, 0},
    {"engine/timeout_variable", test_timeout_variable, 0},
    {"engine/register", test_register_memory, 0},
};

#endif
