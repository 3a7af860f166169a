/* One thread at a time in a transport: who comes while another is inside is told both calls, and has touched nothing. */
#ifndef T_THREADS_H
#define T_THREADS_H

#include <pthread.h>

static int thread_word[2]; /* rank 1 comes to the barrier when it reads here */

typedef struct thread_guest {
    mesh_transport *t;
    mesh_comm *comm; /* another than the one the first thread is in */
    mesh_request started, kept;
    void *memory;
    mesh_op op;
    int refused;
} thread_guest;

static void thread_refused(thread_guest *g, mesh_status status, const char *call, const char *text) {
    char opening[64];
    snprintf(opening, sizeof opening, "mesh_%s: another thread is in mesh_barrier", call);
    CHECK_INT(status, MESH_ERR_STATE);
    CHECK_HAS(text, opening);
    g->refused++;
}

#define REFUSED(call, expression) thread_refused(g, (expression), call, g->comm->error.text)

/* Every call that goes into the transport, while the first thread sits in a barrier. */
static void *thread_come(void *ctx) {
    thread_guest *g = (thread_guest *)ctx;
    mesh_comm *c = g->comm, other;
    mesh_tensor none[1];
    mesh_user_op user;
    mesh_halo halo;
    mesh_error err;
    mesh_op op;
    mesh m;
    mesh_request r;
    void *p;
    int64_t scratch;
    int x = 1, y[4];
    double end = test_now() + 20;
    memset(none, 0, sizeof none), memset(&user, 0, sizeof user), memset(&halo, 0, sizeof halo);
    while (!MESH__LOAD(&g->t->inside.thread) && test_now() < end) {}
    REFUSED("all_reduce", mesh_all_reduce(c, NULL, &x, y, 1, MESH_I32, MESH_SUM));
    memset(&r, 0xff, sizeof r);
    REFUSED("all_reduce", mesh_all_reduce_start(c, NULL, &x, y, 1, MESH_I32, MESH_SUM, &r));
    CHECK_INT(r.generation, 0);
    REFUSED("barrier", mesh_barrier(c, NULL));
    REFUSED("all_reduce_many", mesh_all_reduce_many_start(c, NULL, NULL, 0, MESH_I32, MESH_SUM, &r));
    REFUSED("send", mesh_send(c, NULL, 1, &x, 1, MESH_I32));
    REFUSED("recv", mesh_recv_start(c, NULL, 1, &x, 1, MESH_I32, &r));
    REFUSED("shift", mesh_shift(c, NULL, 1, 1, &x, y, 1, MESH_I32));
    REFUSED("shift_start", mesh_shift_start(c, NULL, 1, 1, &x, y, 1, MESH_I32, &r));
    REFUSED("halo_exchange_start", mesh_halo_exchange_start(c, &halo, y, MESH_I32, &r));
    REFUSED("redistribute", mesh_redistribute(c, none, none));
    REFUSED("group_open", mesh_group_open(c, "x"));
    REFUSED("register", mesh_register(c, y, sizeof y, &p));
    REFUSED("unregister", mesh_unregister(c, y));
    REFUSED("wait", mesh_wait(g->started));
    REFUSED("wait_host", mesh_wait_host(g->started));
    REFUSED("test", mesh_test(g->started));
    REFUSED("keep", mesh_keep(g->started));
    REFUSED("restart", mesh_restart(g->kept));
    REFUSED("release", mesh_release(g->kept));
    REFUSED("comm_stream", mesh_comm_stream(c, NULL));
    REFUSED("comm_sync", mesh_comm_sync(c));
    REFUSED("op_add", mesh_op_add(c, &user, &op));
    REFUSED("alloc", mesh_alloc(c->transport, 8, &p, &c->error));
    REFUSED("free", mesh_free(c->transport, g->memory, &c->error));
    REFUSED("copy", mesh_copy(c, y, &x, sizeof x));
    REFUSED("comm_close", mesh_comm_close(c));
    thread_refused(g, mesh_redistribute_scratch_bytes(c, none, none, 1, &scratch, &err), "redistribute_scratch_bytes",
                   err.text);
    CHECK_OK(mesh_parse(&m, "x=-1", g->t->size, &err), err);
    thread_refused(g, mesh_comm_open(&other, g->t, &m, NULL, &err), "comm_open", err.text);
    CHECK_INT(g->t->ops->close(g->t, &err), MESH_ERR_STATE);
    CHECK(write(thread_word[1], "x", 1) == 1);
    return NULL;
}

static void thread_combine(void *inout, const void *in, size_t count, void *ctx) {
    mesh_comm *c = (mesh_comm *)ctx;
    *(int *)inout += *(const int *)in;
    CHECK_INT(count, 1);
    CHECK_INT(mesh_barrier(c, NULL), MESH_ERR_STATE);
    CHECK_HAS(c->error.text, "mesh_barrier: called by a mesh_user_op inside mesh_all_reduce");
}

static void thread_rank(mesh_transport *t, void *ctx) {
    mesh_comm first, second;
    mesh_user_op user;
    thread_guest g;
    pthread_t guest;
    mesh_op op;
    int x = t->rank + 1, sum = 0, kept = 0;
    char token;
    (void)ctx;
    memset(&g, 0, sizeof g), memset(&user, 0, sizeof user);
    if (!open_comm(t, &first, "x=2", NULL, 60 * SECOND) || !open_comm(t, &second, "x=2", NULL, 60 * SECOND)) return;
    CHECK_OK(mesh_all_reduce_start(&second, NULL, &x, &sum, 1, MESH_I32, MESH_SUM, &g.started), second.error);
    CHECK_OK(mesh_all_reduce_start(&second, NULL, &x, &kept, 1, MESH_I32, MESH_MAX, &g.kept), second.error);
    CHECK_OK(mesh_keep(g.kept), second.error);
    if (t->rank == 0) {
        g.t = t, g.comm = &second;
        CHECK_OK(mesh_alloc(second.transport, 64, &g.memory, &second.error), second.error);
        CHECK_INT(pthread_create(&guest, NULL, thread_come, &g), 0);
    } else {
        CHECK(read(thread_word[0], &token, 1) == 1);
    }
    CHECK_OK(mesh_barrier(&first, NULL), first.error);
    if (t->rank == 0) {
        pthread_join(guest, NULL);
        CHECK_INT(g.refused, 28);
        CHECK_OK(mesh_free(second.transport, g.memory, &second.error), second.error);
    }
    CHECK_INT(first.failed | second.failed, 0); /* nothing was touched */
    CHECK_OK(mesh_wait(g.started), second.error);
    CHECK_INT(sum, 3);
    CHECK_OK(mesh_wait(g.kept), second.error);
    CHECK_INT(kept, 2);
    CHECK_OK(mesh_release(g.kept), second.error);
    user.combine = thread_combine, user.ctx = &second;
    CHECK_OK(mesh_op_add(&first, &user, &op), first.error);
    CHECK_OK(mesh_all_reduce(&first, NULL, &x, &sum, 1, MESH_I32, op), first.error);
    CHECK_INT(sum, 3);
    CHECK_OK(mesh_comm_close(&second), second.error);
    CHECK_OK(mesh_comm_close(&first), first.error);
}

static void test_threads(void) {
    CHECK_INT(pipe(thread_word), 0);
    run_world(TCP, 2, thread_rank, NULL);
    run_world(UNIX, 2, thread_rank, NULL);
}

/* Threads that come all the time: a call does its work or is refused, and what got in was alone. */
enum { THREADS = 4, ROUNDS = 100000 };
static int thread_inside, thread_let_in, thread_sent_away;

static void *thread_alloc(void *ctx, size_t n) {
    (void)ctx;
    int i;
    CHECK_INT(__sync_add_and_fetch(&thread_inside, 1), 1);
    for (i = 0; i < 20; i++) __sync_synchronize(); /* long enough to meet */
    __sync_sub_and_fetch(&thread_inside, 1);
    return malloc(n);
}
static void thread_free(void *ctx, void *p) {
    (void)ctx;
    free(p);
}

static void *thread_hammer(void *ctx) {
    mesh_comm *c = (mesh_comm *)ctx;
    int i;
    for (i = 0; i < ROUNDS; i++) {
        void *p;
        mesh_status status = mesh_alloc(c->transport, 100, &p, NULL);
        if (status == MESH_OK) {
            __sync_add_and_fetch(&thread_let_in, 1);
            while (mesh_free(c->transport, p, NULL) == MESH_ERR_STATE) {}
        } else {
            CHECK_INT(status, MESH_ERR_STATE);
            __sync_add_and_fetch(&thread_sent_away, 1);
        }
    }
    return NULL;
}

static void thread_alone(mesh_transport *t, void *ctx) {
    mesh_comm c[THREADS];
    pthread_t thread[THREADS];
    int i;
    (void)ctx;
    t->allocator.alloc = thread_alloc;
    t->allocator.free = thread_free;
    for (i = 0; i < THREADS; i++)
        if (!open_comm(t, &c[i], "x=1", NULL, 0)) return;
    for (i = 0; i < THREADS; i++) CHECK_INT(pthread_create(&thread[i], NULL, thread_hammer, &c[i]), 0);
    for (i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    CHECK_INT(thread_let_in + thread_sent_away, THREADS * ROUNDS);
    CHECK(thread_let_in > 0);
    for (i = 0; i < THREADS; i++) CHECK_OK(mesh_comm_close(&c[i]), c[i].error);
}

static void test_threads_hammer(void) { run_world(UNIX, 1, thread_alone, NULL); }

#if MESH_SOCKET__LINUX
/* ---- a progress thread ---- */

static volatile uintptr_t helper_main_thread;
static volatile int helper_elsewhere;
static void helper_add(void *inout, const void *in, size_t count, void *ctx) {
    int64_t *a = (int64_t *)inout;
    const int64_t *b = (const int64_t *)in;
    size_t i;
    (void)ctx;
    for (i = 0; i < count; i++) a[i] += b[i];
    if ((uintptr_t)&errno != helper_main_thread) helper_elsewhere++;
}

static int helper_ended;
static void helper_traced(void *ctx, const mesh_trace_event *event) {
    (void)ctx, (void)event;
    __sync_add_and_fetch(&helper_ended, 1);
}

/* Rank 0 starts operations and computes until they have ended: nothing of its own moves them. */
static void helper_rank(mesh_transport *t, void *ctx) {
    enum { N = 500000 };
    int64_t *a = (int64_t *)malloc(N * sizeof *a), *b = (int64_t *)malloc(N * sizeof *b);
    mesh_comm c;
    mesh_request r;
    mesh_user_op add = MESH_ZERO;
    mesh_op op;
    int k, i, bad = 0, ended;
    (void)ctx;
    helper_main_thread = (uintptr_t)&errno;
    t->trace = helper_traced;
    add.combine = helper_add;
    if (!open_comm(t, &c, "x=3", NULL, 30 * SECOND)) return;
    CHECK_OK(mesh_op_add(&c, &add, &op), c.error);
    for (k = 0; k < 6; k++) {
        size_t n = k % 2 ? N : 5;
        for (i = 0; i < (int)n; i++) a[i] = i + t->rank + k, b[i] = 0;
        ended = __sync_add_and_fetch(&helper_ended, 0);
        CHECK_INT(k < 4    ? mesh_all_reduce_start(&c, NULL, a, b, n, MESH_I64, k < 2 ? MESH_SUM : op, &r)
                  : k == 4 ? mesh_broadcast_start(&c, NULL, t->rank ? b : a, b, n, MESH_I64, 0, &r)
                           : mesh_barrier_start(&c, NULL, &r),
                  MESH_OK);
        if (t->rank == 0) { /* computes */
            double end = test_now() + 20;
            world_await(k, 2);
            while (__sync_add_and_fetch(&helper_ended, 0) == ended && test_now() < end) test_sleep(0.0005);
            CHECK(__sync_add_and_fetch(&helper_ended, 0) > ended);
            CHECK_INT(mesh_test(r), MESH_OK);
        } else {
            CHECK_OK(mesh_wait(r), c.error);
            world_say(k);
        }
        for (i = 0; i < (int)n && k < 5; i++) bad += b[i] != (k == 4 ? i + k : 3 * (i + k) + 3);
    }
    CHECK_INT(bad, 0);
    if (t->rank == 0) CHECK(helper_elsewhere > 0); /* user ops too */
    if (t->rank == 2) kill(getpid(), SIGKILL);
    CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
    CHECK_INT(c.error.rank, 2);
    mesh_comm_close(&c);
    free(a), free(b);
}
static void helper_conform_rank(mesh_transport *t, void *ctx) {
    (void)ctx;
    conformance_collectives(t, "a=-1", NULL, NULL, 3001);
    conformance_redistribute(t, test_seed + 3, 12, 400);
}
/* Opened and closed again and again, with and without a comm and something under way: its threads and descriptors go. */
static void helper_again_rank(mesh_transport *t, void *ctx) {
    static mesh_comm c; /* the transport closes it */
    mesh_request r;
    int v = 1, got;
    if (*(int *)ctx == 0) return;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_all_reduce(&c, NULL, &v, &got, 1, MESH_I32, MESH_SUM), MESH_OK);
    CHECK_INT(got, t->size);
    world_say(6);
    world_await(6, t->size); /* who leaves with something under way ends what others are in */
    if (*(int *)ctx == 2) mesh_recv_start(&c, NULL, (t->rank + 1) % t->size, &got, 1, MESH_I32, &r);
    if (*(int *)ctx == 2) mesh_comm_close(&c);
}
static void helper_await_waits(mesh_socket__helper *h) {
    double end = test_now() + 20;
    while (MESH__LOAD(&h->state) != MESH_SOCKET__WAITS && test_now() < end) test_sleep(0.001);
    CHECK_INT(MESH__LOAD(&h->state), MESH_SOCKET__WAITS);
}
/* Rank 0 has sent more than the ring holds; then it only looks in once, and computes. What is left in it goes on, and so does what others ask:
   rank 1 takes all of it before rank 0 calls anything again. */
static void helper_heard_rank(mesh_transport *t, void *ctx) {
    enum { TIMES = 200, BYTES = 1024 }; /* as many are copied, and more than three rings of them */
    static unsigned char data[BYTES];
    mesh_socket__helper *h = mesh_socket__of(t)->helper;
    int i, bad = 0;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    if (t->rank == 1) mesh_socket__helper_stop(mesh_socket__of(t)); /* it would take what comes */
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    for (i = 0; i < TIMES; i++) {
        memset(data, i, BYTES);
        if (t->rank == 0) CHECK_OK(mesh_send(&c, NULL, 1, data, BYTES, MESH_U8), c.error);
    }
    if (t->rank == 0) {
        helper_await_waits(h);
        CHECK_INT(mesh_progress(t, 0), MESH_OK);
        world_say(0);
        world_await(1, 1);
        helper_await_waits(h); /* it looks a second time soon, and no third */
    } else {
        world_await(0, 1);
        for (i = 0; i < TIMES; i++) {
            CHECK_OK(mesh_recv(&c, NULL, 0, data, BYTES, MESH_U8), c.error);
            bad += data[0] != i || data[BYTES - 1] != i;
        }
        CHECK_INT(bad, 0);
        world_say(1);
    }
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    mesh_comm_close(&c);
}
/* A list is waited for while the thread ends what it names: the sanitizer sees who looks outside the library's lock. */
static void helper_lists_rank(mesh_transport *t, void *ctx) {
    enum { LIST = 8, TIMES = 200 };
    int v[LIST], sum[LIST], i, k;
    mesh_request r[LIST + 1];
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 60 * SECOND)) return;
    for (k = 0; k < TIMES; k++) {
        memset(r, 0, sizeof r);
        for (i = 0; i < LIST; i++) {
            v[i] = k + i;
            CHECK_OK(mesh_all_reduce_start(&c, NULL, &v[i], &sum[i], 1, MESH_I32, MESH_SUM, &r[i]), c.error);
        }
        CHECK_OK(mesh_wait_all(r, LIST + 1), c.error);
        for (i = 0; i < LIST; i++) CHECK(!r[i].generation && sum[i] == (k + i) * t->size);
    }
    mesh_comm_close(&c);
}

/* A child that closes what it has from its parent has nothing of the thread's left, nor of its memory; the parent's goes on. */
static int helper_owned;
static void *helper_own(void *ctx, size_t n) { return (void)ctx, malloc(n); }
static void helper_disown(void *ctx, void *p) {
    (void)ctx;
    helper_owned -= p == ctx;
    free(p);
}
static void helper_forked_rank(mesh_transport *t, void *ctx) {
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_socket__helper *h = s->helper;
    int fds[4], i, v = 1, sum = 0, status = -1;
    pid_t child;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 60 * SECOND)) return;
    CHECK_INT(mesh__enter(t, NULL, "fork"), MESH_OK); /* not in the middle of a turn of the thread's */
    fds[0] = h->line[0], fds[1] = h->line[1], fds[2] = s->ended_fd[0], fds[3] = s->ended_fd[1];
    if ((child = fork()) == 0) {
        int bad = 0;
        t->inside.depth = 0, t->inside.thread = 0;
        t->allocator.alloc = helper_own, t->allocator.free = helper_disown, t->allocator.ctx = h;
        helper_owned = 1;
        bad |= mesh_socket_close(s->net) != MESH_OK ? 1 : 0;
        for (i = 0; i < 4; i++) bad |= fcntl(fds[i], F_GETFD) >= 0 ? 2 : 0;
        _exit(bad | (helper_owned ? 4 : 0));
    }
    mesh__leave(t);
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    CHECK_OK(mesh_all_reduce(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM), c.error);
    CHECK_INT(sum, t->size);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void helper_pairs(rank_main f) {
    world_threaded = 1;
    run_world(TCP, 2, f, NULL);
    run_world(SHARED, 2, f, NULL);
    world_threaded = 0;
}
static void test_helper_forked(void) { helper_pairs(helper_forked_rank); }
static void test_helper_lists(void) { helper_pairs(helper_lists_rank); }
static void test_helper_heard(void) { helper_pairs(helper_heard_rank); }
#else
static void test_helper_forked(void) {}
static void test_helper_lists(void) {}
static void test_helper_heard(void) {}
#endif
static void test_helper(void) {
#if MESH_SOCKET__LINUX
    int k;
    world_threaded = 1;
    run_world_but(TCP, 3, helper_rank, NULL, 2);
    run_world_but(UNIX, 3, helper_rank, NULL, 2);
    run_world_but(SHARED, 3, helper_rank, NULL, 2);
    run_world(TCP, 3, helper_conform_rank, NULL);
    run_world(UNIX, 5, helper_conform_rank, NULL);
    run_world(SHARED, 5, helper_conform_rank, NULL);
    for (k = 0; k < 3; k++) run_world(UNIX, 4, helper_again_rank, &k);
    for (k = 0; k < 3; k++) run_world(SHARED, 4, helper_again_rank, &k);
    run_world(UNIX, 1, helper_again_rank, &k);
    world_threaded = 0;
#endif
}

static const test_case thread_tests[] = {
    {"threads/named", test_threads, 0},
    {"threads/hammer", test_threads_hammer, 0},
    {"threads/helper", test_helper, 0},
    {"threads/lists", test_helper_lists, 0},
    {"threads/heard", test_helper_heard, 0},
    {"threads/forked", test_helper_forked, 0},
};

#endif
