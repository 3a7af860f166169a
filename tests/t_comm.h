/* mesh_collectives.h on our transports: the conformance suite, mutants that must fail it, disagreements, faults, errors. */
#ifndef T_COMM_H
#define T_COMM_H

#include "conformance.h"

typedef void (*rank_main)(mesh_transport *t, void *ctx);

/* ---- worlds: the same rank function on every backend ---- */

enum { SIM, SIM_FREE, TCP, UNIX, BACKENDS };
static const char *const backend_names[] = {"sim", "sim_free", "tcp", "unix"};

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

static void socket_child(int backend, int rank, int ranks, int port, int fd, rank_main f, void *ctx) {
    mesh_socket net;
    mesh_error err;
    mesh_socket_desc d = socket_desc(rank, ranks, port, fd);
    d.lanes = backend == TCP ? MESH_SOCKET_TCP : MESH_SOCKET_AUTO;
    test_failures = conformance_failures = 0;
    if (rank) close(fd);
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (net.impl) {
        f(&net.base, ctx);
        mesh_socket_close(&net);
    }
    fflush(NULL);
    exit(test_failures || conformance_failures ? 1 : 0);
}

/* Run f as every rank. victim: a rank that may die by SIGKILL, or -1. */
static void run_world_but(int backend, int ranks, rank_main f, void *ctx, int victim) {
    static pid_t pid[1024];
    int i, port = 0, fd, status;
    double deadline = test_now() + 90;
    if (backend == SIM || backend == SIM_FREE) {
        mesh_sim_desc d = sim_desc(ranks);
        mesh_error err;
        d.free_running = backend == SIM_FREE;
        CHECK_OK(mesh_sim_run(&d, f, ctx, &err), err);
        test_failures += conformance_failures;
        return;
    }
    fd = listen_loopback(AF_INET, &port);
    CHECK(fd >= 0);
    fflush(NULL);
    for (i = 0; i < ranks; i++) {
        pid[i] = fork();
        if (pid[i] == 0) socket_child(backend, i, ranks, port, fd, f, ctx);
    }
    close(fd);
    for (i = 0; i < ranks; i++) {
        if (!test_wait_child(pid[i], deadline, &status)) {
            test_fail(__FILE__, __LINE__, "%s: rank %d of %d does not end", backend_names[backend], i, ranks);
            kill(pid[i], SIGKILL);
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

/* ---- conformance ---- */

static void conform_rank(mesh_transport *t, void *ctx) {
    size_t large = *(const size_t *)ctx;
    conformance_collectives(t, t->size == 8 ? "a=2,b=2,c=2" : "a=-1", t->size == 8 ? "c,a;b,a" : NULL, NULL, large);
    conformance_transport(t);
}

static void conform(int backend, size_t large) {
    static const int sizes[] = {1, 2, 3, 5, 8};
    int i;
    for (i = 0; i < 5; i++) run_world(backend, sizes[i], conform_rank, &large);
}

static void test_conform_sim(void) { conform(SIM, 9001); }
static void test_conform_sim_free(void) { conform(SIM_FREE, 9001); }
static void test_conform_tcp(void) { conform(TCP, 100003); }
static void test_conform_unix(void) { conform(UNIX, 100003); }

/* Any table gives the same values: tables that give every call its k-th algorithm, in short segments; the first rank's is everybody's. */
static void tables_rank(mesh_transport *t, void *ctx) {
    int k, call, a;
    (void)ctx;
    for (k = 0; k < 4; k++) {
        mesh_tuning tuning = MESH_ZERO, again;
        mesh_error err;
        char text[4096];
        for (call = 1; call < MESH_CALL_COUNT; call++) {
            int seen = 0, chosen = 0;
            for (a = 1; a < MESH_ALGORITHM_COUNT; a++)
                if (mesh_algorithm_serves((mesh_algorithm)a, call) && mesh__single_kind(call) == call && seen++ <= k)
                    chosen = a;
            if (!chosen) continue;
            tuning.row[tuning.nrows].call = (uint8_t)call;
            tuning.row[tuning.nrows].algorithm = (uint8_t)chosen;
            tuning.row[tuning.nrows].ranks = UINT16_MAX;
            tuning.row[tuning.nrows].bytes = UINT64_MAX;
            tuning.row[tuning.nrows++].segment = 400;
        }
        CHECK(mesh_tuning_format(&tuning, text, sizeof text) < sizeof text);
        CHECK_OK(mesh_tuning_parse(&again, text, &err), err);
        CHECK(!memcmp(&again, &tuning, sizeof tuning));
        conformance_collectives(t, t->size == 8 ? "a=4,b=2" : "a=-1", NULL, t->rank == 0 ? &tuning : NULL, 601);
    }
}

static void test_tables(void) {
    int n;
    for (n = 2; n <= 8; n++) run_world(SIM, n, tables_rank, NULL);
    run_world(TCP, 4, tables_rank, NULL);
}

static void test_tables_text(void) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"all_reduce ranks<=8 bytes<=16 bruck", "line 1: no algorithm \"bruck\" for \"all_reduce\""},
        {"\nall_reduc ranks<=8 bytes<=16 ring", "line 2: no algorithm \"ring\" for \"all_reduc\""},
        {"all_reduce ranks<=99999 bytes<=16 ring", "expected \"all_reduce ranks<=N"},
        {"all_reduce ranks<=8 bytes<=99999999999999999999 ring", "expected"},
        {"all_reduce ranks<=8 bytes<=16 ring segment=-1", "expected"},
        {"all_reduce", "expected \"CALL ranks<=N"},
        {"all_reduce ranks<=8 bytes<=16 ring segment=1 more", "more than five words"},
        {"all_reduce_many ranks<=8 bytes<=16 ring", "no algorithm"},
        {"barrier ranks<=8 bytes<=16 ring", "no algorithm"},
    };
    mesh_tuning t;
    mesh_error err;
    char text[64 * 64] = "", line[64];
    size_t i;
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_INT(mesh_tuning_parse(&t, bad[i].text, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, bad[i].says);
    }
    CHECK_OK(
        mesh_tuning_parse(
            &t,
            "# a comment\n\n  all_reduce\tranks<=8 bytes<=* ring # and another\r\nscan ranks<=* bytes<=7 chain segment=4000000000",
            &err),
        err);
    CHECK_INT(t.nrows, 2);
    CHECK(t.row[0].ranks == 8 && t.row[0].bytes == UINT64_MAX && t.row[1].ranks == UINT16_MAX && t.row[1].bytes == 7 &&
          t.row[1].segment == 4000000000u);
    mesh_tuning_format(&t, text, sizeof text);
    CHECK_STR(text, "all_reduce ranks<=8 bytes<=* ring\nscan ranks<=* bytes<=7 chain segment=4000000000\n");
    text[0] = 0;
    for (i = 0; i <= MESH_MAX_TUNING; i++) {
        snprintf(line, sizeof line, "all_reduce ranks<=%d bytes<=16 ring\n", (int)i + 2);
        strcat(text, line);
    }
    CHECK_INT(mesh_tuning_parse(&t, text, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "more than 48 rows");
}

static const test_case comm_tests[] = {

    {"tables/values", test_tables, 0},        {"tables/text", test_tables_text, 0},
    {"conformance/sim", test_conform_sim, 0}, {"conformance/sim_free", test_conform_sim_free, 0},
    {"conformance/tcp", test_conform_tcp, 0}, {"conformance/unix", test_conform_unix, 0},
};

#endif
