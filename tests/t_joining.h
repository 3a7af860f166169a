/* Ranks that join, and what may go wrong between them: jobs told apart, strangers, secrets, lanes, broken connections, limits. */
#ifndef T_JOINING_H
#define T_JOINING_H

/* Ranks tell each other where they are by bytes in pipes: line[r] is what rank r reads. */
static int mend_line[8][2];
static void mend_lines(int n) {
    int i;
    for (i = 0; i < n; i++)
        if (pipe(mend_line[i]) != 0) test_fail(__FILE__, __LINE__, "no pipe: %s", strerror(errno));
}
static void mend_tell(int rank) { CHECK(write(mend_line[rank][1], "x", 1) == 1); }
static void mend_hear(int rank, int times) {
    char c;
    for (; times > 0; times--) CHECK(read(mend_line[rank][0], &c, 1) == 1);
}

static int heard(int rank) { /* without waiting */
    struct pollfd f;
    f.fd = mend_line[rank][0];
    f.events = POLLIN;
    if (poll(&f, 1, 0) <= 0) return 0;
    mend_hear(rank, 1);
    return 1;
}

/* One round in the library. Events stay where they are. */
static void mend_pump(mesh_transport *t) { t->ops->progress(t, t->ops->now(t) + SECOND / 100); }

/* Rounds until the condition holds; a test that waits in vain fails. */
#define PUMP_UNTIL(t, cond)                                                                        \
    do {                                                                                           \
        double end_ = test_now() + 10;                                                             \
        while (!(cond) && test_now() < end_) mend_pump(t);                                         \
        if (!(cond)) test_fail(__FILE__, __LINE__, "rank %d waits in vain: %s", (t)->rank, #cond); \
    } while (0)

/* Processes as ranks, each as f makes it; every one must exit with 0. */
static int mend_port, mend_fd, mend_inherits; /* where rank 0 listens; inherits: the socket is rank 0's alone */
static void mend_processes(int n, void (*f)(int rank, void *ctx), void *ctx) {
    pid_t pid[16];
    int i, status;
    double end = test_now() + 60;
    fflush(NULL);
    for (i = 0; i < n; i++)
        if ((pid[i] = fork()) == 0) {
            test_failures = 0;
            f(i, ctx);
            fflush(NULL);
            exit(test_failures ? 1 : 0);
        }
    if (mend_inherits) close(mend_fd);
    for (i = 0; i < n; i++) {
        if (!test_wait_child(pid[i], end, &status)) {
            test_fail(__FILE__, __LINE__, "process %d does not end", i);
            if (pid[i] > 0) kill(pid[i], SIGKILL);
            waitpid(pid[i], &status, 0);
        } else if (!WIFEXITED(status) || WEXITSTATUS(status)) {
            test_fail(__FILE__, __LINE__, "process %d: %s %d", i, WIFEXITED(status) ? "exit" : "signal",
                      WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        }
    }
}

/* ---- 11: a connection that ends between two living ranks ---- */

/* Everyone is connected to everyone; the connection of ranks 2 and 3 is reset. The comm of all fails, naming one of them; ranks 0 and 1
   give one or both up, and go on with each other. Rank 1 comes only when 2 and 3 have seen what rank 0 did. */
static int settled(mesh_transport *t) { /* no doubt is waiting for its end */
    mesh_socket__impl *s = mesh_socket__of(t);
    int i;
    for (i = 0; i < t->size; i++)
        if (s->peer[i].conn && s->peer[i].conn->deadline) return 0;
    return 1;
}
static void reset_rank(mesh_transport *t, void *ctx) {
    static const int two = 2;
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_comm all, pair;
    mesh p;
    mesh_desc d = MESH_ZERO;
    mesh_error err;
    int v[4] = {1, 1, 1, 1}, got[4], i;
    (void)ctx;
    d.shape = &two;
    d.naxes = 1;
    d.origin = t->rank & 2;
    CHECK_OK(mesh_make(&p, &d, &err), err);
    if (!open_comm(t, &all, "x=4", NULL, 8 * SECOND)) return;
    CHECK_OK(mesh_comm_open(&pair, t, &p, NULL, &err), err);
    for (i = 1; i < 4; i++)
        CHECK_INT(mesh_sendrecv(&all, NULL, t->rank ^ i, v, 1, t->rank ^ i, got, 1, MESH_I32), MESH_OK);
    for (i = 0; i < 4; i++)
        CHECK(i == t->rank || s->peer[i].conn); /* before rank 2 can leave the barrier, and reset one */
    CHECK_INT(mesh_barrier(&all, NULL), MESH_OK);
    if (t->rank == 2) { /* what a host in between does: both ends find it reset */
        struct linger at_once = {1, 0};
        int fd = s->peer[3].conn->fd, pair_fd[2];
        CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair_fd), 0);
        close(pair_fd[1]);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        CHECK(dup2(pair_fd[0], fd) == fd);
        s->peer[3].conn->interest = 0; /* the kernel has forgotten the descriptor that was there */
        mesh_socket__stir(s->peer[3].conn);
        close(pair_fd[0]);
    }
    if (t->rank == 1) mend_hear(1, 2);
    CHECK_INT(mesh_barrier(&all, NULL), MESH_ERR_PEER);
    CHECK(all.error.rank == 2 || all.error.rank == 3);
    if (t->rank >= 2) {
        while (!settled(t) || !heard(t->rank)) mend_pump(t);
        mend_pump(t), mend_pump(t);
        mend_tell(1);
        while (!heard(t->rank)) mend_pump(t);
    } else {
        PUMP_UNTIL(t, (s->peer[2].gone || s->peer[3].gone) && settled(t));
        if (t->rank == 0) mend_tell(2), mend_tell(3);
        for (i = 0; i < 5 && !pair.failed; i++)
            CHECK_OK(mesh_all_reduce(&pair, NULL, v, got, 1, MESH_I32, MESH_SUM), pair.error);
        if (!pair.failed) CHECK_INT(got[0], 2);
        if (t->rank == 1) mend_tell(2), mend_tell(3);
    }
    mesh_comm_close(&all);
    mesh_comm_close(&pair);
}
static void test_reset_tcp(void) {
    mend_lines(4);
    run_world(TCP, 4, reset_rank, NULL);
}
static void test_reset_unix(void) {
    mend_lines(4);
    run_world(UNIX, 4, reset_rank, NULL);
}

/* Rank 2 says that 3 is lost; what 3, doubted, then says of 1 does not count. */
static void testimony_rank(mesh_transport *t, void *ctx) {
    mesh_socket__impl *s = mesh_socket__of(t);
    (void)ctx;
    if (t->rank == 0) {
        mend_tell(2);
        PUMP_UNTIL(t, s->peer[3].conn->deadline);
        mend_tell(3);
        mend_hear(0, 1);
        mend_pump(t);
        mend_pump(t);
        CHECK_INT(s->peer[1].gone, 0);
        CHECK(s->peer[1].conn != NULL);
        if (s->peer[1].conn) CHECK_INT(s->peer[1].conn->deadline, 0);
        mend_tell(1), mend_tell(2), mend_tell(3);
    } else {
        if (t->rank != 1) {
            mend_hear(t->rank, 1);
            mesh_socket__frame_send(s, s->peer[0].conn, MESH_SOCKET__F_LOST, t->rank == 2 ? 3 : 1, 0, "?", 1);
            mesh_socket__flush(s, s->peer[0].conn);
        }
        if (t->rank == 3) mend_tell(0);
        mend_hear(t->rank, 1);
    }
}
static void test_testimony(void) {
    mend_lines(4);
    run_world(TCP, 4, testimony_rank, NULL);
}

/* ---- 12 ---- */

/* An eager message that is half written when the peer leaves ends. (Over a Unix-domain socket, whose small buffer takes small pieces.) */
static void half_written_rank(mesh_transport *t, void *ctx) {
    enum { EACH = 60 << 10, MOST = 16 };
    static char buf[MOST][EACH];
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_request r[MOST];
    mesh_comm c;
    int n = 0, small = 1, v = 0, got, status = MESH_OK;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 3 * SECOND)) return;
    if (t->rank) CHECK_INT(mesh_sendrecv(&c, NULL, 3 - t->rank, &v, 1, 3 - t->rank, &got, 1, MESH_I32), MESH_OK);
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 0) {
        mend_hear(0, 1);
    } else if (t->rank == 2) {
        mend_hear(2, 1);
        CHECK_INT(mesh_socket_close((mesh_socket *)(void *)t), MESH_OK); /* takes what is under way, and leaves */
        mend_tell(1);
        return;
    } else {
        CHECK(s->peer[2].conn->is_unix);
        setsockopt(s->peer[2].conn->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        for (; n < MOST && !s->peer[2].conn->frame; n++)
            CHECK_INT(mesh_send_start(&c, NULL, 2, buf[n], EACH, MESH_BYTES, &r[n]), MESH_OK);
        CHECK(s->peer[2].conn->frame && !s->peer[2].conn->frame->id); /* eager, and half written */
        mend_tell(2);
        mend_hear(1, 1);
        while (n > 0 && !status) status = mesh_wait(r[--n]);
        CHECK_INT(status, MESH_ERR_PEER);
        CHECK_HAS(c.error.text, "rank 2");
        mend_tell(0);
    }
    mesh_comm_close(&c);
}
static void test_half_written(void) {
    mend_lines(3);
    run_world(UNIX, 3, half_written_rank, NULL);
}

/* That a rank was lost is said, though there was no memory at that moment. */
static int mend_no_memory;
static void *mend_alloc(void *ctx, size_t n) {
    (void)ctx;
    return mend_no_memory ? NULL : malloc(n);
}
static void mend_free(void *ctx, void *p) {
    (void)ctx;
    free(p);
}
static void lost_memory_rank(mesh_transport *t, void *ctx) {
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_control m;
    int said = 0;
    (void)ctx;
    if (t->rank == 1) {
        mend_hear(1, 1);
        kill(getpid(), SIGKILL);
    }
    t->allocator.alloc = mend_alloc;
    t->allocator.free = mend_free;
    mend_pump(t); /* what grows once has grown */
    mend_no_memory = 1;
    mend_tell(1);
    PUMP_UNTIL(t, s->peer[1].gone);
    mend_no_memory = 0;
    while (t->ops->control_poll(t, &m) == MESH_OK) said |= m.kind == MESH_EVENT_LOST && m.rank == 1;
    CHECK(said);
    t->allocator.alloc = NULL;
    t->allocator.free = NULL;
}
static void test_lost_without_memory(void) {
    mend_lines(2);
    run_world_but(TCP, 2, lost_memory_rank, NULL, 1);
}

/* Why one peer refused us is not what is said of another. */
static void refusal_rank(mesh_transport *t, void *ctx) {
    mesh_socket__impl *s = mesh_socket__of(t);
    char why[4][512] = {"", "", "", ""};
    mesh_control m;
    (void)ctx;
    if (t->rank == 2) {
        s->peer[1].gone = MESH_EVENT_CLOSED; /* so that it refuses rank 1 */
        mend_tell(1);
        PUMP_UNTIL(t, s->stranger[0]);
        mend_hear(2, 1);
    } else if (t->rank == 3) {
        mesh_socket_close((mesh_socket *)(void *)t);
        mend_tell(1);
    } else if (t->rank == 1) {
        int r;
        mend_hear(1, 2);
        for (r = 2; r < 4; r++) {
            t->ops->control_send(t, r, MESH_EVENT_MESSAGE, "?", 1);
            PUMP_UNTIL(t, s->peer[r].gone);
        }
        while (t->ops->control_poll(t, &m) == MESH_OK)
            if (m.rank >= 0 && m.rank < 4 && m.kind != MESH_EVENT_MESSAGE)
                memcpy(why[m.rank], m.data, m.nbytes), why[m.rank][m.nbytes] = 0;
        CHECK_HAS(why[2], "rank 1 is not waited for");
        CHECK_HAS(why[3], strerror(ECONNREFUSED));
        mend_tell(0), mend_tell(2);
    } else {
        mend_hear(0, 1);
    }
}
static void test_refusal(void) {
    mend_lines(4);
    run_world(TCP, 4, refusal_rank, NULL);
}

/* ---- 13: waiting ---- */

#if MESH_SOCKET__LINUX
#include <sys/prctl.h>
#include <sys/syscall.h>
extern long syscall(long number, ...);
/* The k-th core that this process may use, or -1. */
static int mend_core(int k) {
    unsigned long mask[16] = {0};
    int i;
    if (syscall(SYS_sched_getaffinity, 0, sizeof mask, mask) < 0) return -1;
    for (i = 0; i < (int)(8 * sizeof mask); i++)
        if (mask[i / (8 * sizeof *mask)] >> i % (8 * sizeof *mask) & 1 && k-- == 0) return i;
    return -1;
}
/* Rank 0 has a core of its own, ranks 1 and 2 share another: they sleep, it spins. */
static void pinned_process(int rank, void *ctx) {
    mesh_socket_desc d = socket_desc(rank, 3, mend_port, mend_fd);
    unsigned long mask[16] = {0};
    mesh_socket net;
    mesh_error err;
    int core = mend_core(rank > 0);
    (void)ctx;
    mask[(size_t)core / (8 * sizeof *mask)] = 1ul << (size_t)core % (8 * sizeof *mask);
    CHECK_INT(syscall(SYS_sched_setaffinity, 0, sizeof mask, mask), 0);
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (!net.impl) return;
    CHECK_INT(mesh_socket__of(&net.base)->crowded, rank > 0 ? 2 : 0);
    mesh_socket_close(&net);
}
static void test_pinned(void) {
    if (mend_core(1) < 0) {
        fprintf(stderr, "    one core: not tested\n");
        return;
    }
    mend_fd = listen_loopback(AF_INET, &mend_port);
    mend_processes(3, pinned_process, NULL);
}
/* Ranks that have a core each go to it when they have met, and are bound to none; whatever they speak over. */
static void apart_process(int rank, void *ctx) {
    mesh_socket_desc d = socket_desc(rank, 2, mend_port, mend_fd);
    unsigned long mask[16] = {0}, one[16] = {0};
    int n = 0, core;
    mesh_socket net;
    mesh_error err;
    while (mend_core(n) >= 0) n++;
    core = mend_core(rank * n / 2);
    one[(size_t)core / (8 * sizeof *one)] = 1ul << (size_t)core % (8 * sizeof *one);
    CHECK(syscall(SYS_sched_getaffinity, 0, sizeof mask, mask) > 0);
    d.lanes = *(int *)ctx;
    failing_bindings = 0;
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (!net.impl) return;
    if (!mesh_socket__of(&net.base)->crowded) {
        CHECK_INT(failing_bindings, 2);
        CHECK(!memcmp(failing_cores[0], one, sizeof one));
        CHECK(!memcmp(failing_cores[1], mask, sizeof mask));
    } else
        CHECK_INT(failing_bindings, 0);
    mesh_socket_close(&net);
}
static void test_apart(void) {
    static int lanes[] = {MESH_SOCKET_TCP, MESH_SOCKET_UNIX, MESH_SOCKET_AUTO};
    int i;
    if (mend_core(1) < 0) {
        fprintf(stderr, "    one core: not tested\n");
        return;
    }
    for (i = 0; i < 3; i++) {
        mend_fd = listen_loopback(AF_INET, &mend_port);
        mend_processes(2, apart_process, &lanes[i]);
    }
}
/* Over sockets the kernel is asked where the others are, when the core was dear. Rank 1 computes on rank 0's core, then on another, then sleeps; its name
   has what a careless reader takes for the fields behind it. */
static void bind_to(int core) {
    unsigned long mask[16] = {0};
    mask[(size_t)core / (8 * sizeof *mask)] = 1ul << (size_t)core % (8 * sizeof *mask);
    CHECK_INT(syscall(SYS_sched_setaffinity, 0, sizeof mask, mask), 0);
}
static int persists(mesh_socket__impl *s, int64_t spun) { /* as it is decided when a sleep and a yield have cost 1 ms each */
    s->long_waits = 1, s->crowded = 0, s->ask_at = 0;
    s->sleep_cost = s->yield_cost = 1000000;
    return mesh_socket__perseveres(s, 20, spun);
}
static void cores_process(int rank, void *ctx) {
    mesh_socket_desc d = socket_desc(rank, 2, mend_port, mend_fd);
    int here = mend_core(0), there = mend_core(1);
    double end = test_now() + 10;
    mesh_socket__impl *s;
    mesh_socket__entry *other;
    uint64_t process;
    int64_t ran;
    unsigned pid;
    mesh_socket net;
    mesh_error err;
    (void)ctx;
    d.lanes = MESH_SOCKET_TCP;
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (!net.impl) return;
    s = mesh_socket__of(&net.base);
    bind_to(here);
    if (rank == 1) {
        CHECK(prctl(PR_SET_NAME, ") S 1 (") == 0);
        mend_tell(0);
        while (!heard(1)) {}
        bind_to(there);
        mend_tell(0);
        while (!heard(1)) {}
        mend_hear(1, 1); /* asleep */
    } else {
        other = &s->book[1], process = other->process, pid = (unsigned)(process & 0xffffffffu);
        mend_hear(0, 1);
        s->waits = 7;
        CHECK_INT(mesh_socket__progress(&net.base, 0), MESH_OK);
        CHECK_INT(s->waits, 8);
        CHECK_INT(mesh_socket__core_of((unsigned)getpid()), here);
        CHECK_INT(mesh_socket__core_of(pid), here);
        CHECK_INT(mesh_socket__meets_process(s), 1);
        s->part_at = INT64_MAX;
        CHECK(persists(s, 2049999) && s->on_one_core == 1);
        CHECK(!persists(s, 2050000) && s->on_one_core == 1);
        CHECK(s->other_ran > 0);
        for (ran = 0; ran < 2; ran++) { /* a third had the core, or nobody can tell: only then they stay */
            s->long_waits = 1, s->together = 1, s->part_at = 0, s->on_one_core = 1;
            do {
                s->sleep_cost = s->yield_cost = 1000000, s->ask_at = INT64_MAX, s->together = 1;
                s->other_ran = ran ? -1 : INT64_MAX / 2;
                CHECK(mesh_socket__perseveres(s, 20, 60000));
            } while (s->ask_at && test_now() < end);
            CHECK_INT(s->on_one_core, ran);
            bind_to(here);
        }
        s->part_at = 0, s->together = MESH_SOCKET__TOGETHER - 1; /* it goes to a core of its own, and looks again */
        CHECK(persists(s, 60000) && s->on_one_core == 0 && s->ask_at == 0);
        bind_to(here);
        mend_tell(1);
        mend_hear(0, 1);
        CHECK_INT(mesh_socket__core_of(pid), there);
        CHECK_INT(mesh_socket__meets_process(s), 0);
        CHECK(persists(s, 60000) && s->on_one_core == 0 && s->yield_cost == 1000000); /* nor is a yield tried so soon */
        do CHECK(!persists(s, 2050000)); /* it is not asked again at once */
        while (s->ask_at <= mesh_socket__clock() && test_now() < end);
        CHECK(test_now() < end);
        s->on_one_core = 7, s->yield_cost = 1000000, s->ask_at = INT64_MAX; /* not asked before its time, nor where yields are cheap */
        CHECK_INT(mesh_socket__meets(s), 7);
        s->yield_cost = 1000;
        CHECK_INT(mesh_socket__meets(s), -1);
        other->process ^= UINT64_C(1) << 32; /* a number in another namespace */
        CHECK_INT(mesh_socket__meets_process(s), -1);
        CHECK(!persists(s, 60000) && s->on_one_core == -1);
        other->process = s->book[0].process; /* a thread of this process */
        CHECK_INT(mesh_socket__meets_process(s), -1);
        other->process = (process & ~UINT64_C(0xffffffff)) | 0x7fffffff; /* none has this number */
        CHECK_INT(mesh_socket__core_of(0x7fffffff), MESH_SOCKET__UNTOLD);
        CHECK_INT(mesh_socket__meets_process(s), -1);
        other->process = process;
        mend_tell(1);
        while (mesh_socket__core_of(pid) != MESH_SOCKET__ASLEEP && test_now() < end) {}
        bind_to(there);
        CHECK_INT(mesh_socket__core_of(pid), MESH_SOCKET__ASLEEP);
        CHECK_INT(mesh_socket__meets_process(s), 0);
        s->asked = 1, ran = mesh_socket__ran(pid);
        CHECK(ran > 0);
        s->other_ran = ran - 499999;
        CHECK(mesh_socket__was_third(s, 1000000));
        s->other_ran = ran - 500000;
        CHECK(!mesh_socket__was_third(s, 1000000));
        other->process = (process & ~UINT64_C(0xffffffff)) | 0x7fffffff;
        CHECK(!mesh_socket__was_third(s, 1000000));
        other->process = process;
        mend_tell(1);
    }
    mesh_socket_close(&net);
}
static void test_where_they_run(void) {
    if (mend_core(1) < 0) {
        fprintf(stderr, "    one core: not tested\n");
        return;
    }
    mend_lines(2);
    mend_fd = listen_loopback(AF_INET, &mend_port);
    mend_processes(2, cores_process, NULL);
}
/* How long a wait may last before it becomes a sleep, as the kernel says (here: a file) that the thread was without a core. */
static int pressed_after(mesh_socket__impl *s, int64_t delay) {
    char text[64];
    int n = snprintf(text, sizeof text, "123456 %lld 7\n", (long long)delay);
    CHECK_INT(pwrite(s->schedstat, text, (size_t)n, 0), n);
    s->press_at = 0;
    return mesh_socket__is_pressed(s);
}
static int outlasts(mesh_socket__impl *s, int on_one_core, int64_t spun) {
    s->on_one_core = on_one_core, s->ask_at = INT64_MAX, s->long_waits = 1, s->press_at = INT64_MAX;
    s->sleep_cost = 10000, s->yield_cost = 1000000, s->other_ran = -1;
    return mesh_socket__perseveres(s, 20, spun);
}
static void test_spun(void) {
    enum { DELAY = 1000000000 };
    FILE *file = tmpfile();
    mesh_socket__impl *s = (mesh_socket__impl *)calloc(1, sizeof *s);
    CHECK(file && s);
    CHECK(mesh_socket__number("12 345 6", 0) == 12 && mesh_socket__number("12 345 6", 1) == 345);
    CHECK(mesh_socket__number("12", 1) == -1 && mesh_socket__number("", 0) == -1 && mesh_socket__number("", 1) == -1);
    s->schedstat = fileno(file);
    CHECK(!pressed_after(s, DELAY)); /* what was before nobody asked is not counted */
    CHECK(!pressed_after(s, DELAY + MESH_SOCKET__PRESS_NS / 2));
    CHECK(!pressed_after(s, DELAY + MESH_SOCKET__PRESS_NS));
    CHECK(pressed_after(s, DELAY + MESH_SOCKET__PRESS_NS + 1));
    CHECK(pressed_after(s, DELAY + MESH_SOCKET__PRESS_NS + 1));
    s->press_from -= MESH_SOCKET__RELIEF_NS;
    CHECK(!pressed_after(s, DELAY + MESH_SOCKET__PRESS_NS + 2));
    s->press_from -= MESH_SOCKET__RELIEF_NS;
    CHECK(!pressed_after(s, DELAY + 2 * MESH_SOCKET__PRESS_NS)); /* counted anew from here */
    CHECK(!pressed_after(s, DELAY + 3 * MESH_SOCKET__PRESS_NS));
    CHECK(pressed_after(s, DELAY + 4 * MESH_SOCKET__PRESS_NS));
    s->is_pressed = 7, s->press_at = INT64_MAX; /* not asked before its time */
    CHECK_INT(mesh_socket__is_pressed(s), 7);
    s->schedstat = -2, s->press_at = 0, s->is_pressed = 0;
    CHECK_INT(mesh_socket__is_pressed(s), 1); /* the kernel does not say */

    s->is_pressed = 0, s->waits = 100, s->long_wait = 100 - MESH_SOCKET__RARELY;
    CHECK(outlasts(s, 0, 70000) && outlasts(s, 0, 1999999)); /* the same wait all along */
    CHECK(outlasts(s, 0, 2049999) && !outlasts(s, 0, 2050000));
    CHECK(outlasts(s, 1, 69999) && !outlasts(s, 1, 70000));
    CHECK(outlasts(s, -1, 49999) && !outlasts(s, -1, 50000));
    s->is_pressed = 1;
    CHECK(!outlasts(s, 0, 70000));
    s->is_pressed = 0, s->waits += MESH_SOCKET__RARELY - 1; /* such waits are usual here */
    CHECK(outlasts(s, 0, 69999) && !outlasts(s, 0, 70000) && !outlasts(s, 0, 80000));
    s->waits += MESH_SOCKET__RARELY;
    CHECK(outlasts(s, 0, 80000));
    fclose(file);
    free(s);
}
#else
static void test_pinned(void) {}
static void test_spun(void) {}
static void test_apart(void) {}
static void test_where_they_run(void) {}
#endif

/* ---- 14: lanes ---- */

static void lanes_rank(mesh_transport *t, void *ctx) {
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_comm c;
    int v = 1, got, i, want_unix = *(int *)ctx != TCP;
    if (!open_comm(t, &c, "x=4", NULL, 10 * SECOND)) return;
    for (i = 1; i < 4; i++) {
        int r = t->rank ^ i;
        CHECK_INT(mesh_sendrecv(&c, NULL, r, &v, 1, r, &got, 1, MESH_I32), MESH_OK);
        CHECK(s->peer[r].conn != NULL);
        if (s->peer[r].conn && s->peer[r].conn->is_unix != want_unix)
            test_fail(__FILE__, __LINE__, "ranks %d and %d of one host speak over %s", t->rank, r,
                      want_unix ? "TCP" : "a Unix-domain socket");
    }
    CHECK_OK(mesh_barrier(&c, NULL), c.error); /* nobody leaves before all have looked */
    mesh_comm_close(&c);
}
static void test_lanes(void) {
    int b;
    for (b = TCP; b <= SHARED; b++) run_world(b, 4, lanes_rank, &b);
}

/* ---- 15: two jobs on one host ---- */

typedef struct identity {
    const char *name[2], *ours[2], *theirs[2];
} identity;
static const identity identities[] = {{{"PMIX_NAMESPACE", ""}, {"prterun-h-1@1", ""}, {"prterun-h-2@1", ""}},
                                      {{"PMI_JOBID", ""}, {"71", ""}, {"72", ""}},
                                      {{"SLURM_JOB_ID", "SLURM_STEP_ID"}, {"9", "0"}, {"9", "1"}},
                                      {{"TORCHELASTIC_RUN_ID", ""}, {"a", ""}, {"b", ""}}};
static void mend_identity(const identity *k, int theirs) {
    int i;
    for (i = 0; i < 2; i++)
        if (k->name[i][0]) setenv(k->name[i], theirs ? k->theirs[i] : k->ours[i], 1);
}
static void mend_environment(int rank, int size, int port) {
    char text[16];
    clear_environment();
    snprintf(text, sizeof text, "%d", rank), setenv("OMPI_COMM_WORLD_RANK", text, 1);
    snprintf(text, sizeof text, "%d", size), setenv("OMPI_COMM_WORLD_SIZE", text, 1);
    snprintf(text, sizeof text, "%d", port), setenv("MESH_PORT", text, 1);
}
/* Rank 0 of ours, rank 1 of theirs on the same port, and when that has been sent away rank 1 of ours. */
static void jobs_process(int who, void *ctx) {
    mesh_socket_desc d = MESH_ZERO;
    mesh_socket net;
    mesh_error err;
    mesh_status status;
    mend_environment(who > 0, 2, mend_port);
    mend_identity((const identity *)ctx, who == 1);
    d.open_timeout_ns = 5 * SECOND;
    if (who == 0) d.listen_fd = mend_fd;
    if (who == 2) mend_hear(2, 1);
    err.text[0] = 0;
    status = mesh_socket_open(&net, &d, &err);
    if (who == 1) {
        if (status == MESH_OK)
            test_fail(__FILE__, __LINE__, "%s: rank 1 of one job met rank 0 of another",
                      ((const identity *)ctx)->name[0]);
        if (status != MESH_OK) CHECK_HAS(err.text, "another job");
        mend_tell(2);
    } else if (status != MESH_OK) {
        test_fail(__FILE__, __LINE__, "rank %d: %s", who > 0, err.text);
    }
    mesh_socket_close(&net);
}
static void test_jobs(void) {
    size_t i;
    for (i = 0; i < sizeof identities / sizeof identities[0]; i++) {
        mend_lines(3);
        mend_fd = listen_loopback(AF_INET, &mend_port);
        mend_processes(3, jobs_process, (void *)(uintptr_t)&identities[i]);
        close(mend_fd);
    }
}
#if MESH_SOCKET__LINUX
/* MPICH's mpirun names no job: each of its ranks leads a session of its own, under one hydra_pmi_proxy for each job and host. */
static void mpich_process(int who, void *ctx) {
    mesh_socket_desc d = MESH_ZERO;
    mesh_socket net;
    mesh_error err;
    mesh_status status;
    pid_t pid;
    int end = 0;
    (void)ctx;
    if (who == 1 && (pid = fork()) != 0) { /* the other job's proxy */
        waitpid(pid, &end, 0);
        CHECK(WIFEXITED(end) && WEXITSTATUS(end) == 0);
        return;
    }
    setsid();
    mend_environment(who > 0, 2, mend_port);
    setenv("PMI_RANK", getenv("OMPI_COMM_WORLD_RANK"), 1), setenv("PMI_SIZE", "2", 1);
    unsetenv("OMPI_COMM_WORLD_RANK"), unsetenv("OMPI_COMM_WORLD_SIZE");
    d.open_timeout_ns = 5 * SECOND;
    if (who == 0) d.listen_fd = mend_fd;
    if (who == 2) mend_hear(2, 1);
    err.text[0] = 0;
    status = mesh_socket_open(&net, &d, &err);
    if (who == 1) {
        CHECK(status != MESH_OK);
        CHECK_HAS(err.text, "another job");
        mend_tell(2);
    } else if (status != MESH_OK) {
        test_fail(__FILE__, __LINE__, "rank %d: %s", who > 0, err.text);
    }
    mesh_socket_close(&net);
}
static void test_jobs_mpich(void) {
    mend_lines(3);
    mend_fd = listen_loopback(AF_INET, &mend_port);
    mend_processes(3, mpich_process, NULL);
}
#else
static void test_jobs_mpich(void) {}
#endif

/* Where nobody names a port, jobs differ in it, and the ranks of one do not. */
static void test_job_ports(void) {
    size_t i;
    for (i = 0; i < sizeof identities / sizeof identities[0]; i++) {
        int port[3], k;
        for (k = 0; k < 3; k++) {
            clear_environment();
            setenv(i == 2 ? "SLURM_PROCID" : "PMI_RANK", "1", 1), setenv(i == 2 ? "SLURM_NTASKS" : "PMI_SIZE", "2", 1);
            if (i == 2) setenv("SLURM_STEP_ID", "0", 1);
            mend_identity(&identities[i], k == 2);
            port[k] = place_of().port;
        }
        CHECK_INT(port[0], port[1]);
        if (port[0] == port[2])
            test_fail(__FILE__, __LINE__, "%s%s%s: two jobs on port %d", identities[i].name[0],
                      identities[i].name[1][0] ? ", " : "", identities[i].name[1], port[0]);
        for (k = 0; k < 2; k++)
            if (identities[i].name[k][0]) unsetenv(identities[i].name[k]);
    }
    clear_environment();
}

/* ---- 16 ---- */

/* The inherited socket serves one opening; the next one makes its own. */
static void twice_process(int rank, void *ctx) {
    mesh_socket_desc d = MESH_ZERO;
    mesh_socket net;
    mesh_error err;
    char text[16];
    int i;
    (void)ctx;
    mend_environment(rank, 2, mend_port);
    setenv("MESH_SECRET", "s", 1);
    snprintf(text, sizeof text, "%d", mend_fd);
    if (rank == 0)
        setenv("MESH_LISTEN_FD", text, 1);
    else
        close(mend_fd);
    d.open_timeout_ns = 40 * SECOND;
    for (i = 0; i < 2; i++) {
        if (rank == 1 && i) mend_hear(1, 1); /* rank 0 has closed the first */
        if (mesh_socket_open(&net, &d, &err))
            test_fail(__FILE__, __LINE__, "rank %d, opening %d: %s", rank, i + 1, err.text);
        mesh_socket_close(&net);
        if (rank == 0 && !i) mend_tell(1);
    }
}
static void test_opened_twice(void) {
    int on = 1;
    mend_lines(2);
    mend_fd = listen_loopback(AF_INET, &mend_port);
    CHECK_INT(setsockopt(mend_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on),
              0); /* as a launcher must: what was accepted lingers */
    mend_inherits = 1;
    mend_processes(2, twice_process, NULL);
}

/* Rank 0 of n, with a deadline, in a process of its own, that others try to reach. */
typedef struct lead {
    int ranks;
    const char *secret;
    double timeout;
} lead;
static pid_t lead_start(const lead *l) {
    pid_t pid;
    fflush(NULL);
    if ((pid = fork()) == 0) {
        mesh_socket_desc d = socket_desc(0, l->ranks, mend_port, mend_fd);
        mesh_socket net;
        mesh_error err;
        d.secret = l->secret;
        d.open_timeout_ns = (int64_t)(l->timeout * 1e9);
        mesh_socket_open(&net, &d, &err);
        mesh_socket_close(&net);
        _exit(0);
    }
    return pid;
}
static void lead_end(pid_t pid) {
    int status;
    if (pid > 0) kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}

/* Who dials proves first: a stranger gets a nonce and perhaps a refusal in words, and nothing that was made with the secret. */
static void test_dialer_first(void) {
    static const lead l = {2, "guess me", 20};
    unsigned char hello[MESH_SOCKET__C1 + 512], got[1024];
    int have = 0, fd, i, binary = 0;
    ssize_t n;
    pid_t pid;
    mend_fd = listen_loopback(AF_INET, &mend_port);
    pid = lead_start(&l);
    fd = dial(mend_port);
    memset(hello, 7, sizeof hello);
    memcpy(hello, MESH_SOCKET__MAGIC, 8);
    CHECK(send(fd, hello, MESH_SOCKET__C1, MSG_NOSIGNAL) == MESH_SOCKET__C1);
    while (have < 40 && (n = recv(fd, got + have, sizeof got - (size_t)have, 0)) > 0) have += (int)n; /* its nonce */
    CHECK(send(fd, hello + MESH_SOCKET__C1, 512, MSG_NOSIGNAL) == 512); /* no proof: it hangs up */
    while (have < (int)sizeof got && (n = recv(fd, got + have, sizeof got - (size_t)have, 0)) > 0) have += (int)n;
    CHECK(have >= 40);
    for (i = 40; i < have; i++) binary += got[i] >= 0x80; /* of 32 bytes of an HMAC, some are */
    if (binary)
        test_fail(__FILE__, __LINE__,
                  "a stranger got %d bytes beyond the nonce, of which %d are no text: an HMAC of the secret", have - 40,
                  binary);
    close(fd);
    lead_end(pid);
    close(mend_fd);
}

/* A deadline for ever is one. */
static void for_ever_process(int rank, void *ctx) {
    mesh_socket net;
    mesh_error err;
    mesh_socket_desc d = socket_desc(rank, 2, mend_port, mend_fd);
    (void)ctx;
    d.open_timeout_ns = INT64_MAX;
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    mesh_socket_close(&net);
}
static void test_for_ever(void) {
    mend_fd = listen_loopback(AF_INET, &mend_port);
    mend_processes(2, for_ever_process, NULL);
}

/* The secret may come from a file; its last newline is not part of it. */
static void secret_file_process(int rank, void *ctx) {
    mesh_socket net;
    mesh_error err;
    mesh_socket_desc d = socket_desc(rank, 2, mend_port, mend_fd);
    clear_environment();
    d.secret = NULL;
    d.open_timeout_ns = 40 * SECOND;
    setenv(rank ? "MESH_SECRET_FILE" : "MESH_SECRET", rank ? (const char *)ctx : "from a file", 1);
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    mesh_socket_close(&net);
}
static void test_secret_file(void) {
    char path[] = "/tmp/mesh-secret-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, "from a file\n", 12) == 12);
    close(fd);
    mend_fd = listen_loopback(AF_INET, &mend_port);
    mend_processes(2, secret_file_process, path);
    unlink(path);
}

/* Memory that is given back does not hold the secret. */
static int secrets_left;
static void *wiped_alloc(void *ctx, size_t n) {
    size_t *p = (size_t *)malloc(n + 16);
    (void)ctx;
    if (!p) return NULL;
    *p = n;
    return (char *)p + 16;
}
static void wiped_free(void *ctx, void *p) {
    static const char secret[] = "wipe me when done";
    char *bytes = (char *)p;
    size_t n = *(size_t *)(void *)(bytes - 16), i;
    (void)ctx;
    for (i = 0; i + sizeof secret - 1 <= n; i++) secrets_left += !memcmp(bytes + i, secret, sizeof secret - 1);
    free(bytes - 16);
}
static void test_secret_wiped(void) {
    mesh_socket_desc d = MESH_ZERO;
    mesh_socket net;
    mesh_error err;
    d.size = 1;
    d.secret = "wipe me when done";
    d.allocator.alloc = wiped_alloc;
    d.allocator.free = wiped_free;
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    CHECK_INT(mesh_socket_close(&net), MESH_OK);
    CHECK_INT(secrets_left, 0);
}

/* Another user of this host does not get into a job without a secret by a Unix-domain socket. */
static void other_user_process(int rank, void *ctx) {
    mesh_socket_desc d = socket_desc(rank, 2, mend_port, mend_fd);
    mesh_socket net;
    mesh_error err;
    int status = -1, answered = -1;
    pid_t pid;
    (void)ctx;
    d.secret = "";
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (!net.impl) return;
    if (rank == 1) {
        mesh_transport *t = &net.base;
        struct sockaddr_un a;
        socklen_t length = mesh_socket__unix_address(&a, mesh_socket__of(t)->unix_token);
        if ((pid = fork()) == 0) {
            unsigned char hello[MESH_SOCKET__C1] = {0};
            int fd = socket(AF_UNIX, SOCK_STREAM, 0);
            memcpy(hello, MESH_SOCKET__MAGIC, 8);
            if (setuid(65534) || connect(fd, (struct sockaddr *)(void *)&a, length)) _exit(2);
            if (send(fd, hello, sizeof hello, MSG_NOSIGNAL) < 0) _exit(0);
            _exit(recv(fd, hello, 1, 0) > 0);
        }
        PUMP_UNTIL(t,
                   (waitpid(pid, &status, WNOHANG) == pid && (answered = WEXITSTATUS(status)) >= 0) || answered >= 0);
        CHECK_INT(answered, 0);
        mend_tell(0);
    } else {
        mend_hear(0, 1);
    }
    mesh_socket_close(&net);
}
static void test_other_user(void) {
    if (!MESH_SOCKET__LINUX || getuid() != 0) {
        fprintf(stderr, "    only root can be another user: not tested\n");
        return;
    }
    mend_lines(2);
    mend_fd = listen_loopback(AF_INET, &mend_port);
    mend_processes(2, other_user_process, NULL);
}

/* What a connection costs that has not proved itself. */
static size_t cost_now, cost_most;
static void *cost_alloc(void *ctx, size_t n) {
    size_t *p = (size_t *)malloc(n + 16);
    (void)ctx;
    if (!p) return NULL;
    *p = n;
    cost_now += n;
    if (cost_now > cost_most) cost_most = cost_now;
    return (char *)p + 16;
}
static void cost_free(void *ctx, void *p) {
    (void)ctx;
    cost_now -= *(size_t *)(void *)((char *)p - 16);
    free((char *)p - 16);
}
static long cost_of(int strangers) {
    mesh_socket_desc d = MESH_ZERO;
    mesh_socket net;
    mesh_error err;
    int fd[64], i;
    mend_fd = listen_loopback(AF_INET, &mend_port);
    for (i = 0; i < strangers; i++) fd[i] = dial(mend_port);
    d = socket_desc(0, 2, mend_port, mend_fd);
    d.open_timeout_ns = SECOND / 4;
    d.allocator.alloc = cost_alloc;
    d.allocator.free = cost_free;
    cost_now = cost_most = 0;
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_TIMEOUT); /* nobody else comes */
    for (i = 0; i < strangers; i++) close(fd[i]);
    return (long)cost_most;
}
static void test_stranger_cost(void) {
    long without = cost_of(0), each = (cost_of(40) - without) / 40;
    if (each > 4096) test_fail(__FILE__, __LINE__, "a stranger costs %ld bytes before it has proved anything", each);
}

/* However many connections say nothing, a rank gets in. */
static void silent_process(int rank, void *ctx) {
    mesh_socket_desc d = socket_desc(rank, 2, mend_port, mend_fd);
    mesh_socket net;
    mesh_error err;
    (void)ctx;
    d.open_timeout_ns = 5 * SECOND;
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    mesh_socket_close(&net);
}
static void test_silent_strangers(void) {
    int i;
    mend_fd = listen_loopback(AF_INET, &mend_port);
    for (i = 0; i < 200; i++)
        CHECK(dial(mend_port) >= 0); /* they are first in the queue, and open until the test ends */
    mend_processes(2, silent_process, NULL);
}

/* Who is waited for is said once, before the deadline's error says it: on rank 0, and on one that does not find it. */
static char hint_text[1024];
static void hint_log(void *ctx, int level, const char *text) {
    size_t used = strlen(hint_text);
    (void)ctx;
    if (level <= 1) snprintf(hint_text + used, sizeof hint_text - used, "%s\n", text);
}
static void test_hint(void) {
    int rank;
    for (rank = 0; rank < 2; rank++) {
        mesh_socket_desc d = MESH_ZERO;
        mesh_socket net;
        mesh_error err;
        char want[200];
        mend_fd = listen_loopback(AF_INET, &mend_port);
        d = socket_desc(rank, 3, mend_port, mend_fd);
        if (rank) close(mend_fd);
        d.open_timeout_ns = SECOND;
        d.log = hint_log;
        hint_text[0] = 0;
        CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_TIMEOUT);
        CHECK_HAS(err.text, "MESH_OPEN_TIMEOUT");
        snprintf(want, sizeof want,
                 rank ? "mesh_socket_open: rank 1 cannot reach rank 0 at 127.0.0.1 port %d (Connection refused)"
                      : "mesh_socket_open: at 127.0.0.1 port %d, 1 of 3 ranks have come; waiting up to ",
                 mend_port);
        CHECK_HAS(hint_text, want);
        CHECK_HAS(hint_text, rank ? "; trying up to " : " s more for ranks 1, 2");
        CHECK(strchr(hint_text, '\n') == hint_text + strlen(hint_text) - 1);
    }
}

/* Too few descriptors for the world: said at open, before anyone is waited for. */
static void few_files_process(int rank, void *ctx) {
    mesh_socket_desc d = socket_desc(rank, 8, mend_port, 0);
    struct rlimit nine = {9, 9};
    mesh_socket net;
    mesh_error err;
    mesh_status status;
    (void)ctx;
    d.open_timeout_ns = 2 * SECOND;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &nine), 0);
    status = mesh_socket_open(&net, &d, &err);
    CHECK(status != MESH_OK && status != MESH_ERR_TIMEOUT);
    CHECK_HAS(err.text, "descriptor");
    CHECK_HAS(err.text, "9");
}
static void test_few_files(void) {
    close(listen_loopback(AF_INET, &mend_port));
    mend_processes(1, few_files_process, NULL);
}

/* Why a rank was refused reaches those who wait for it. */
typedef struct wrong_rank {
    int rank, size;
    const char *secret, *want;
} wrong_rank;
static void refused_process(int who, void *ctx) {
    const wrong_rank *w = (const wrong_rank *)ctx;
    mesh_socket_desc d = socket_desc(who == 2 ? w->rank : who, who == 2 ? w->size : 3, mend_port, mend_fd);
    mesh_socket net;
    mesh_error err;
    mesh_status status;
    d.open_timeout_ns = who == 0 ? 2 * SECOND : 10 * SECOND;
    if (who == 2) d.secret = w->secret;
    err.text[0] = 0;
    status = mesh_socket_open(&net, &d, &err);
    CHECK(status != MESH_OK);
    if (status == MESH_ERR_TRANSPORT) CHECK_INT(err.rank, d.rank); /* who is refused is the one that is wrong */
    if (who == 2 && w->rank == 2) CHECK_INT(status, MESH_ERR_TRANSPORT);
    if (who == 1) CHECK_HAS(err.text, w->want);
}
static void test_refused_told(void) {
    static const wrong_rank wrong[] = {
        {2, 3, "wrong", "secret"}, {2, 4, "tests", "says the world has 4 ranks"}, {1, 3, "tests", "given twice"}};
    size_t i;
    for (i = 0; i < 3; i++) {
        mend_fd = listen_loopback(AF_INET, &mend_port);
        mend_processes(3, refused_process, (void *)(uintptr_t)&wrong[i]);
        close(mend_fd);
    }
}

/* Who sends more than its credit, or offers without end, is dropped before it fills this rank's memory. */
static void flooded_rank(mesh_transport *t, void *ctx) {
    enum { N = 400, EACH = 16 << 10, OFFERS = 100000 };
    static char buf[EACH];
    static mesh_request r[N];
    mesh_socket__impl *s = mesh_socket__of(t);
    int i, offers = *(int *)ctx;
    mesh_comm c;
    if (!open_comm(t, &c, "x=2", NULL, 10 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 1 && offers) {
        for (i = 0; i < OFFERS; i++) {
            CHECK(mesh_socket__frame_put(s, s->peer[0].conn, MESH_SOCKET__F_OFFER, UINT64_C(0x7000000000000000) + (unsigned)i, 0, 1 << 20,
                                         (uint64_t)(unsigned)i + 1, NULL, 0));
            if (i % 1000 == 0) mesh_socket__flush(s, s->peer[0].conn);
        }
        mesh_barrier(&c, NULL);
    } else if (t->rank == 1) {
        s->peer[0].credit = UINT64_C(1) << 40;
        for (i = 0; i < N; i++)
            if (mesh_send_start(&c, NULL, 0, buf, EACH, MESH_BYTES, &r[i])) break;
        mesh_barrier(&c, NULL);
    } else {
        mesh_status status = mesh_barrier(&c, NULL);
        mesh_socket__early *m = s->peer[1].early;
        uint64_t messages = 0, held = 0;
        for (; m; m = m->next, messages++) held += sizeof *m + (m->is_offer ? 0 : m->nbytes);
        if (status != MESH_ERR_PEER)
            test_fail(__FILE__, __LINE__, "rank 0 holds %d %s, %d KiB, of rank 1, and goes on: %s", (int)messages,
                      offers ? "offers" : "messages", (int)(held >> 10), mesh_status_text(status));
    }
    mesh_comm_close(&c);
}
static void test_credit(void) {
    int offers = 0;
    run_world(TCP, 2, flooded_rank, &offers);
}
static void test_offers(void) {
    int offers = 1;
    run_world(TCP, 2, flooded_rank, &offers);
}

/* Control messages of a peer that nobody takes are bounded. */
static void controls_rank(mesh_transport *t, void *ctx) {
    enum { N = 100000, TEXT = 100 };
    mesh_socket__impl *s = mesh_socket__of(t);
    char text[TEXT] = {0};
    int i;
    (void)ctx;
    if (t->rank == 1) {
        for (i = 0; i < N; i++)
            if (t->ops->control_send(t, 0, MESH_EVENT_MESSAGE, text, TEXT)) break;
        while (s->peer[0].conn && !s->peer[0].gone) mend_pump(t); /* until rank 0 has seen enough */
        return;
    }
    {
        long held = 0, before = -1;
        int quiet = 0;
        while (held < N && quiet < 100 && !s->peer[1].gone) {
            mesh__mail *m;
            mend_pump(t);
            for (held = 0, m = s->mail.first; m; m = m->next) held++;
            quiet = held == before ? quiet + 1 : 0;
            before = held;
        }
        if (held * (TEXT + 40) > 2 << 20)
            test_fail(__FILE__, __LINE__, "%ld control messages of one rank wait to be taken", held);
    }
}
static void test_controls(void) { run_world(TCP, 2, controls_rank, NULL); }

static const test_case joining_tests[] = {
    {"joining/reset_tcp", test_reset_tcp, 0},
    {"joining/reset_unix", test_reset_unix, 0},
    {"joining/testimony", test_testimony, 0},
    {"joining/half_written", test_half_written, 0},
    {"joining/lost_without_memory", test_lost_without_memory, 0},
    {"joining/refusal", test_refusal, 0},
    {"joining/pinned", test_pinned, 0},
    {"joining/apart", test_apart, 0},
    {"joining/where_they_run", test_where_they_run, 0},
    {"joining/spun", test_spun, 0},
    {"joining/lanes", test_lanes, 0},
    {"joining/jobs", test_jobs, 0},
    {"joining/jobs_mpich", test_jobs_mpich, 0},
    {"joining/job_ports", test_job_ports, 0},
    {"joining/opened_twice", test_opened_twice, 0},
    {"joining/dialer_first", test_dialer_first, 0},
    {"joining/secret_file", test_secret_file, 0},
    {"joining/for_ever", test_for_ever, 0},
    {"joining/secret_wiped", test_secret_wiped, 0},
    {"joining/other_user", test_other_user, 0},
    {"joining/stranger_cost", test_stranger_cost, 0},
    {"joining/silent_strangers", test_silent_strangers, 0},
    {"joining/few_files", test_few_files, 0},
    {"joining/hint", test_hint, 0},
    {"joining/refused_told", test_refused_told, 0},
    {"joining/credit", test_credit, 0},
    {"joining/offers", test_offers, 0},
    {"joining/controls", test_controls, 0},
};

#endif
