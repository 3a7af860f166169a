/* Worlds: the same rank function as threads over the simulator, or as processes over sockets. */
#ifndef WORLDS_H
#define WORLDS_H

#include "conformance.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif
#ifndef TEST_SANITIZED
#define TEST_SANITIZED 0
#endif

typedef void (*rank_main)(mesh_transport *t, void *ctx);

enum { SIM, SIM_FREE, TCP, UNIX, SHARED, BACKENDS };
static const char *const backend_names[] = {"sim", "sim_free", "tcp", "unix", "shared"};

static mesh_sim_desc sim_desc(int ranks) {
    mesh_sim_desc d = MESH_ZERO;
    d.ranks = ranks;
    d.seed = test_seed;
    d.jitter_ns = 3000;
    return d;
}

/* A listening socket on a free loopback port: rank 0 inherits it. */
static int listen_loopback(int family, int *port) {
    struct sockaddr_storage a;
    socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    int fd = socket(family, SOCK_STREAM, 0);
    memset(&a, 0, sizeof a);
    a.ss_family = (sa_family_t)family;
    if (family == AF_INET)
        ((struct sockaddr_in *)&a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        ((struct sockaddr_in6 *)&a)->sin6_addr = in6addr_loopback;
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, length) || listen(fd, 1024) ||
        getsockname(fd, (struct sockaddr *)&a, &length)) {
        if (fd >= 0) close(fd);
        return -1;
    }
    *port = ntohs(family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port : ((struct sockaddr_in6 *)&a)->sin6_port);
    return fd;
}

static mesh_socket_desc socket_desc(int rank, int ranks, int port, int fd) {
    mesh_socket_desc d = MESH_ZERO;
    d.rank = rank;
    d.size = ranks;
    d.address = "127.0.0.1";
    d.port = port;
    d.secret = "tests";
    d.listen_fd = rank == 0 ? fd : 0;
    d.open_timeout_ns = INT64_C(20000000000);
    return d;
}

static int world_threaded; /* ranks over sockets have progress threads */

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define TEST_TSAN 1
#endif
#ifndef TEST_TSAN
#define TEST_TSAN 0
#endif

/* Threads of this process; 0: unknown. */
static int world_tasks(void) {
    DIR *tasks = opendir("/proc/self/task");
    int n = 0;
    while (tasks && readdir(tasks)) n++;
    if (tasks) closedir(tasks);
    return n;
}

static void socket_child(int backend, int rank, int ranks, int port, int fd, rank_main f, void *ctx) {
    mesh_socket net;
    mesh_error err;
    mesh_socket_desc d = socket_desc(rank, ranks, port, fd);
    int tasks = world_tasks();
    d.lanes = backend == TCP ? MESH_SOCKET_TCP : backend == UNIX ? MESH_SOCKET_UNIX : MESH_SOCKET_AUTO;
    d.progress_thread = world_threaded;
    test_failures = conformance_failures = 0;
    if (rank) close(fd);
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (net.impl) {
        f(&net.base, ctx);
        mesh_socket_close(&net);
        if (world_threaded) { /* its thread ends */
            double end = test_now() + 20;
            tasks += TEST_TSAN; /* which starts one of its own with the first */
            while (world_tasks() > tasks && test_now() < end) test_sleep(0.001);
            CHECK(world_tasks() <= tasks);
        }
    }
    fflush(NULL);
    exit(test_failures || conformance_failures ? 1 : 0);
}

/* Counts between the processes of a test: one adds to them, another waits. Of those forked after world_quiet. */
enum { WORLD_WORDS = 8 };
static int *world_word;
static void world_quiet(void) {
    int zero = open("/dev/zero", O_RDWR);
    if (!world_word)
        world_word = (int *)mmap(NULL, WORLD_WORDS * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED, zero, 0);
    if (world_word == (int *)MAP_FAILED) test_fail(__FILE__, __LINE__, "no shared memory"), exit(1);
    memset(world_word, 0, WORLD_WORDS * sizeof(int));
    close(zero);
}
static void world_say(int which) { __sync_add_and_fetch(&world_word[which], 1); }
static void world_await(int which, int count) {
    double end = test_now() + 60;
    while (__sync_add_and_fetch(&world_word[which], 0) < count && test_now() < end) test_sleep(0.0005);
    CHECK(__sync_add_and_fetch(&world_word[which], 0) >= count);
}
static double world_limit_s = 240;

#ifdef MESH_TEST_ONE_MAPPING
/* Ranks that share memory are threads, with one mapping of it (one_mapping.h). */
typedef struct world_thread {
    pthread_t id;
    int rank, ranks, port, fd;
    rank_main f;
    void *ctx;
} world_thread;

static void *world_thread_run(void *p) {
    const world_thread *w = (const world_thread *)p;
    mesh_socket net;
    mesh_error err;
    mesh_socket_desc d = socket_desc(w->rank, w->ranks, w->port, w->fd);
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (!net.impl) return NULL;
    w->f(&net.base, w->ctx);
    mesh_socket_close(&net);
    return NULL;
}

static void run_threads(int ranks, rank_main f, void *ctx) {
    static world_thread thread[64];
    int i, port = 0, fd = listen_loopback(AF_INET, &port);
    CHECK(fd >= 0 && ranks <= 64);
    for (i = 0; i < ranks; i++) {
        world_thread w = {0, i, ranks, port, fd, f, ctx};
        thread[i] = w;
        CHECK_INT(pthread_create(&thread[i].id, NULL, world_thread_run, &thread[i]), 0);
    }
    for (i = 0; i < ranks; i++) pthread_join(thread[i].id, NULL);
    test_failures += conformance_failures;
}
#endif

/* Where the ranks are there already, as those of an MPI job are: who runs them. */
static void (*world_elsewhere)(int backend, int ranks, rank_main f, void *ctx);

/* Run f as every rank. victim: a rank that may die by SIGKILL, or -1. */
static void run_world_but(int backend, int ranks, rank_main f, void *ctx, int victim) {
    static pid_t pid[1024];
    int i, port = 0, fd, status;
    double deadline = test_now() + world_limit_s;
    if (world_elsewhere) {
        world_elsewhere(backend, ranks, f, ctx);
        return;
    }
    if (backend == SIM || backend == SIM_FREE) {
        mesh_sim_desc d = sim_desc(ranks);
        mesh_error err;
        d.free_running = backend == SIM_FREE;
        CHECK_OK(mesh_sim_run(&d, f, ctx, &err), err);
        test_failures += conformance_failures;
        return;
    }
    world_quiet();
#ifdef MESH_TEST_ONE_MAPPING
    if (backend == SHARED && victim < 0 && !world_threaded) {
        run_threads(ranks, f, ctx);
        return;
    }
#endif
    fd = listen_loopback(AF_INET, &port);
    CHECK(fd >= 0);
    fflush(NULL);
    for (i = 0; i < ranks; i++) {
        pid[i] = fork();
        if (pid[i] == 0) socket_child(backend, i, ranks, port, fd, f, ctx);
        if (pid[i] < 0) test_fail(__FILE__, __LINE__, "no process for rank %d of %d: %s", i, ranks, strerror(errno));
    }
    close(fd);
    for (i = 0; i < ranks; i++) {
        if (pid[i] < 0) continue;
        if (!test_wait_child(pid[i], deadline, &status)) {
            test_fail(__FILE__, __LINE__, "%s: rank %d of %d does not end", backend_names[backend], i, ranks);
            if (pid[i] > 0) kill(pid[i], SIGKILL); /* -1, where there was no fork, would be everybody */
            waitpid(pid[i], &status, 0);
        } else if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) &&
                   !(i == victim && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
            test_fail(__FILE__, __LINE__, "%s: rank %d of %d: %s %d", backend_names[backend], i, ranks,
                      WIFEXITED(status) ? "exit" : "signal",
                      WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        }
    }
}

static void run_world(int backend, int ranks, rank_main f, void *ctx) { run_world_but(backend, ranks, f, ctx, -1); }

/* Over the simulator, on these hosts. */
static void run_world_on(const int *host, int ranks, rank_main f, void *ctx) {
    mesh_sim_desc d = sim_desc(ranks);
    mesh_error err;
    d.host = host;
    CHECK_OK(mesh_sim_run(&d, f, ctx, &err), err);
    test_failures += conformance_failures;
}

#define SECOND INT64_C(1000000000)

/* Open a mesh over the whole world; ask after 100 ms so that the tests are quick. */
static int open_comm(mesh_transport *t, mesh_comm *c, const char *text, const char *groups, int64_t timeout) {
    mesh m;
    mesh_error err;
    mesh_comm_desc desc = MESH_ZERO;
    desc.groups = groups;
    desc.timeout_ns = timeout < SECOND ? 60 * SECOND : timeout; /* short ones are for what follows: a busy machine opens when it can */
    desc.ask_ns = SECOND / 10;
    CHECK_OK(mesh_parse(&m, text, t->size, &err), err);
    if (mesh_comm_open(c, t, &m, &desc, &err)) {
        test_fail(__FILE__, __LINE__, "rank %d: %s", t->rank, err.text);
        return 0;
    }
    mesh__impl(c)->timeout = timeout;
    return 1;
}

/* A barrier before what fails the comm: on a busy machine a fast rank may have come to that while this one is still in here. */
static void come_together(mesh_comm *c) { CHECK(mesh_barrier(c, NULL) == MESH_OK || c->failed); }

/* A transport that failed to open, or was closed: every call says so. */
static void check_shut(mesh_transport *t) {
    mesh m;
    mesh_comm c = MESH_ZERO;
    mesh_error err;
    int64_t wake;
    int ranks[4];
    void *p = NULL;
    CHECK(!t->ops);
    CHECK_OK(mesh_parse(&m, "x=1", 1, &err), err);
    CHECK_INT(mesh_comm_open(&c, t, &m, NULL, &err), MESH_ERR_STATE);
    CHECK_HAS(err.text, "mesh_comm_open: the transport is not open (it failed to, or was closed)");
    CHECK_INT(mesh_alloc(t, 8, &p, &err), MESH_ERR_STATE);
    CHECK_HAS(err.text, "mesh_alloc: the transport is not open");
    CHECK_INT(mesh_free(t, &p, &err), MESH_ERR_STATE);
    CHECK_INT(mesh_progress(t, 0), MESH_ERR_STATE);
    CHECK_INT(mesh_arm(t, &wake), MESH_ERR_STATE);
    CHECK_INT(mesh_fd(t), -1);
    CHECK_INT(mesh_now(t), 0);
    CHECK_INT(mesh_lost_ranks(t, ranks, 4), -1);
    CHECK_INT(mesh_transport_detach(t), MESH_OK);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}

#endif
