/* The socket transport by itself: who joins and who does not, what the environment says, strangers. */
#ifndef T_SOCKET_H
#define T_SOCKET_H

/* RFC 4231, cases 1, 2, 3 and 6, and FIPS 180-4's "abc". */
static void hex(const unsigned char *p, int n, char *out) {
    int i;
    for (i = 0; i < n; i++) sprintf(out + 2 * i, "%02x", p[i]);
}
static void check_hmac(const void *key, size_t key_bytes, const void *data, size_t nbytes, const char *want) {
    unsigned char mac[32];
    char text[65];
    mesh_socket__hmac(key, key_bytes, &data, &nbytes, 1, mac);
    hex(mac, 32, text);
    CHECK_STR(text, want);
}
static void test_hmac(void) {
    unsigned char key[131], data[50], digest[32];
    char text[65];
    mesh_socket__sha s;
    memset(key, 0x0b, 20);
    check_hmac(key, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check_hmac("Jefe", 4, "what do ya want for nothing?", 28,
               "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(data, 0xdd, 50);
    check_hmac(key, 20, data, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    check_hmac(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
               "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    mesh_socket__sha_start(&s);
    mesh_socket__sha_add(&s, "abc", 3);
    mesh_socket__sha_end(&s, digest);
    hex(digest, 32, text);
    CHECK_STR(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/* ---- environment ---- */

static void clear_environment(void) {
    static const char *const names[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "MESH_PORT",
                                        "MESH_SECRET",
                                        "MESH_LISTEN_FD",
                                        "MESH_SOCKET_LANES",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_LOCALID",
                                        "SLURM_JOB_NODELIST",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_STEP_ID",
                                        "SLURM_JOB_ID"};
    size_t i;
    for (i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
}

static mesh_env place_of(void) {
    mesh_socket_desc d = MESH_ZERO;
    mesh_env w;
    mesh_error err;
    CHECK_OK(mesh_socket__who(&d, &w, &err), err);
    return w;
}

/* What a program asks before it opens anything. */
static void test_env_read(void) {
    static const struct {
        const char *rank, *size, *local, *local_size;
        int launcher;
    } said[] = {{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", MESH_LAUNCHER_TORCHRUN},
                {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                 "OMPI_COMM_WORLD_LOCAL_SIZE", MESH_LAUNCHER_OPEN_MPI},
                {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", MESH_LAUNCHER_MPICH},
                {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, MESH_LAUNCHER_SLURM}};
    const char *source = "nobody";
    uint64_t bits;
    mesh_env e;
    mesh_error err;
    size_t i;
    clear_environment();
    CHECK_OK(mesh_env_read(&e, &err), err);
    CHECK(e.launcher == MESH_LAUNCHER_NONE && e.rank == 0 && e.size == 1 && e.local_rank == -1 && e.local_size == -1);
    CHECK(e.port == -1 && !e.address[0] && !strcmp(e.source, "nothing"));
    CHECK_INT(mesh_env_local_rank(&source), -1);
    CHECK_STR(source, "nobody");
    for (i = 4; i-- > 0;) { /* each comes before those that are set already */
        char rank[8];
        snprintf(rank, sizeof rank, "%d", (int)i);
        setenv(said[i].rank, rank, 1), setenv(said[i].size, "12", 1), setenv(said[i].local, rank, 1);
        if (said[i].local_size) setenv(said[i].local_size, "5", 1);
        if (!said[i].local_size) setenv("SLURM_STEP_ID", "0", 1), setenv("SLURM_STEP_NODELIST", "a[7-9]", 1);
        CHECK_OK(mesh_env_read(&e, &err), err);
        CHECK_INT(e.launcher, said[i].launcher);
        CHECK(e.rank == (int)i && e.size == 12 && e.local_rank == (int)i);
        CHECK_INT(e.local_size, said[i].local_size ? 5 : -1);
        CHECK_STR(e.source, said[i].rank);
        CHECK_STR(e.address, i < 2 ? "" : "a7");
        CHECK_INT(mesh_env_local_rank(&source), (int)i);
        CHECK_STR(source, said[i].local);
    }
    setenv("LOCAL_RANK", "first", 1);
    CHECK_INT(mesh_env_read(&e, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "LOCAL_RANK is \"first\", which is no number");
    CHECK_INT(mesh_env_local_rank(&source), 1);
    clear_environment();
    for (i = 0; i < 4; i++) unsetenv(said[i].local), unsetenv(said[i].local_size ? said[i].local_size : "RANK");
    CHECK(mesh_env_host() != 0 && mesh_env_host() == mesh_env_host());
    CHECK(mesh_env_cores(&bits) >= 1);
}

static void test_environment(void) {
    mesh_socket_desc d = MESH_ZERO;
    mesh_env w;
    mesh_error err;
    mesh_socket net;
    char host[64];
    clear_environment();
    CHECK_OK(mesh_socket_open(&net, NULL, &err), err); /* alone: a world of one */
    CHECK_INT(net.base.size, 1);
    CHECK_INT(mesh_socket_close(&net), MESH_OK);
    CHECK_INT(mesh_socket_close(&net), MESH_OK);
    /* torchrun: its agent holds MASTER_PORT */
    setenv("RANK", "3", 1), setenv("WORLD_SIZE", "8", 1), setenv("LOCAL_RANK", "1", 1),
        setenv("MASTER_ADDR", "10.0.0.1", 1), setenv("MASTER_PORT", "29500", 1);
    w = place_of();
    CHECK_INT(w.rank, 3);
    CHECK_INT(w.size, 8);
    CHECK_INT(w.local_rank, 1);
    CHECK_INT(w.port, 29500);
    CHECK_STR(w.address, "10.0.0.1");
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    CHECK_INT(place_of().port, 29501);
    setenv("MESH_PORT", "1234", 1);
    CHECK_INT(place_of().port, 1234);
    setenv("MESH_PORT", "70000", 1);
    CHECK_INT(mesh_socket__who(&d, &w, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "port 70000");
    setenv("MESH_PORT", "12x", 1);
    CHECK_INT(mesh_socket__who(&d, &w, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "MESH_PORT is \"12x\"");
    unsetenv("MESH_PORT");
    setenv("RANK", "8", 1);
    CHECK_INT(mesh_socket__who(&d, &w, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "rank 8 of a world of 8 (from RANK)");
    setenv("RANK", "two", 1);
    CHECK_INT(mesh_socket__who(&d, &w, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "RANK is \"two\"");
    setenv("RANK", "2", 1), unsetenv("WORLD_SIZE");
    CHECK_INT(mesh_socket__who(&d, &w, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "WORLD_SIZE is not");
    /* Open MPI, MPICH */
    clear_environment();
    setenv("OMPI_COMM_WORLD_RANK", "1", 1), setenv("OMPI_COMM_WORLD_SIZE", "4", 1),
        setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    w = place_of();
    CHECK_INT(w.rank, 1);
    CHECK_INT(w.size, 4);
    CHECK_STR(w.address, "127.0.0.1");
    clear_environment();
    setenv("PMI_RANK", "2", 1), setenv("PMI_SIZE", "3", 1);
    CHECK_INT(place_of().rank, 2);
    /* Slurm */
    clear_environment();
    setenv("SLURM_PROCID", "5", 1), setenv("SLURM_NTASKS", "16", 1), setenv("SLURM_LOCALID", "1", 1),
        setenv("SLURM_JOB_NODELIST", "a,gpu[03-05,9],x7", 1), setenv("SLURM_JOB_ID", "123456", 1);
    w = place_of(); /* a batch script, without srun */
    CHECK_INT(w.size, 1);
    setenv("SLURM_STEP_ID", "0", 1), setenv("SLURM_STEP_NODELIST", "gpu[03-05,9],x7", 1);
    w = place_of();
    CHECK_INT(w.rank, 5);
    CHECK_INT(w.local_rank, 1);
    CHECK_INT(w.port, 31945); /* of the job and its step, the same everywhere */
    CHECK_STR(w.address, "gpu03");
    setenv("SLURM_STEP_NODELIST", "gpu03", 1);
    CHECK_STR(place_of().address, "127.0.0.1"); /* one host: no secret is needed */
    setenv("PMI_RANK", "5", 1), setenv("PMI_SIZE", "16", 1), setenv("SLURM_STEP_NODELIST", "x7,gpu03", 1);
    CHECK_STR(place_of().address, "x7"); /* srun --mpi=pmi2 */
    CHECK_INT(mesh__env_first_host("a12,b[1-2]", host, sizeof host), 0);
    CHECK_STR(host, "a12");
    CHECK_INT(mesh__env_first_host("rack[7-8]-n,b", host, sizeof host), 0);
    CHECK_STR(host, "rack7-n");
    CHECK_INT(mesh__env_first_host("rack[7-8]", host, sizeof host), 0);
    CHECK_INT(mesh__env_first_host("rack[7]-n", host, sizeof host), 1);
    CHECK_INT(mesh__env_first_host("rack7", host, sizeof host), 1);
    CHECK_INT(mesh__env_first_host("rack[1-2]node[3-4],x", host, sizeof host), 0);
    CHECK_STR(host, "rack1node3");
    CHECK_INT(mesh__env_first_host("a[1]b[2]c", host, sizeof host), 1);
    CHECK_STR(host, "a1b2c");
    CHECK_INT(mesh__env_first_host("a[1-2]b[3]", host, sizeof host), 0);
    CHECK_INT(mesh__env_first_host("a[1-", host, sizeof host), 0);
    clear_environment();
}

/* ---- joining ---- */

typedef struct join {
    int rank, size, after;     /* after: it comes when that many things were said */
    const char *secret, *want; /* want: a fragment of the error; NULL: it opens */
    mesh_status status;        /* MESH_IN_PROGRESS: the first of its rank opens, another is refused */
    const char *address;
    int64_t timeout;
    int insecure;
} join;

static int join_port, join_fd, join_family = AF_INET;
static void join_child(const join *j) {
    mesh_socket net;
    mesh_error err;
    mesh_socket_desc d = socket_desc(j->rank, j->size, join_port, join_fd);
    mesh_status status;
    test_failures = 0;
    d.secret = j->secret;
    d.open_timeout_ns = j->timeout ? j->timeout : j->status == MESH_ERR_TIMEOUT ? 4 * SECOND : 40 * SECOND;
    d.insecure = j->insecure;
    if (j->address)
        d.address = j->address;
    else if (join_family == AF_INET6)
        d.address = "::1";
    err.text[0] = 0;
    world_await(0, j->after);
    status = mesh_socket_open(&net, &d, &err);
    if (status != MESH_OK) world_say(0);
    if (j->status == MESH_IN_PROGRESS ? status != MESH_OK && !strstr(err.text, j->want)
                                      : status != j->status || (j->want && !strstr(err.text, j->want)))
        test_fail(__FILE__, __LINE__, "rank %d: %s: \"%s\", expected %s: \"%s\"", j->rank, mesh_status_text(status),
                  err.text, mesh_status_text(j->status), j->want ? j->want : "");
    if (status == MESH_OK) {
        mesh_comm c;
        if (open_comm(&net.base, &c, "x=-1", NULL, 40 * SECOND)) {
            CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
            mesh_comm_close(&c);
        }
        mesh_socket_close(&net);
    }
    fflush(NULL);
    exit(test_failures ? 1 : 0);
}

static void run_joins(const join *j, int n, void (*meanwhile)(int port)) {
    pid_t pid[16];
    int i, status;
    join_fd = listen_loopback(join_family, &join_port);
    CHECK(join_fd >= 0);
    world_quiet();
    fflush(NULL);
    for (i = 0; i < n; i++)
        if ((pid[i] = fork()) == 0) {
            if (j[i].rank) close(join_fd);
            join_child(&j[i]);
        }
    close(join_fd);
    if (meanwhile) meanwhile(join_port);
    for (i = 0; i < n; i++) {
        CHECK(test_wait_child(pid[i], test_now() + 60, &status));
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void test_join_wrong_secret(void) {
    const join j[] = {{0, 2, 0, "right", "missing: rank 1 (dropped meanwhile: ", MESH_ERR_TIMEOUT, NULL, 2 * SECOND, 0},
                      {1, 2, 0, "wrong", "does not know this job's secret", MESH_ERR_TRANSPORT, NULL, 0, 0}};
    run_joins(j, 2, NULL);
}
static void test_join_missing(void) {
    const join j[] = {{0, 4, 0, "s", "missing: ranks 2, 3", MESH_ERR_TIMEOUT, NULL, SECOND, 0},
                      {1, 4, 0, "s", "missing: ranks 2, 3", MESH_ERR_TIMEOUT, NULL, 5 * SECOND, 0}};
    const join alone = {1, 2, 0, "s", "cannot reach rank 0 at 127.0.0.1 port", MESH_ERR_TIMEOUT, NULL, SECOND / 2, 0};
    run_joins(j, 2, NULL);
    run_joins(&alone, 1, NULL);
}
static void test_join_twice(void) {
    const join j[] = {{0, 3, 0, "s", NULL, MESH_OK, NULL, 0, 0},
                      {1, 3, 0, "s", "rank 1 is given twice", MESH_IN_PROGRESS, NULL, 0, 0},
                      {1, 3, 0, "s", "rank 1 is given twice", MESH_IN_PROGRESS, NULL, 0, 0},
                      {2, 3, 1, "s", NULL, MESH_OK, NULL, 0, 0}};
    run_joins(j, 4, NULL);
}
/* A world that is left in good order, and come together again at the same port, over and over. */
static void join_again_child(int rank, int size) {
    mesh_error err;
    int k;
    test_failures = 0;
    for (k = 0; k < 8 && !test_failures; k++) {
        mesh_socket net;
        mesh_socket_desc d = socket_desc(rank, size, join_port, k ? 0 : join_fd);
        mesh_comm c;
        d.open_timeout_ns = 60 * SECOND;
        CHECK_OK(mesh_socket_open(&net, &d, &err), err);
        if (!rank && !k) close(join_fd); /* from now on it listens by itself */
        if (test_failures) break;
        if (open_comm(&net.base, &c, "x=-1", NULL, 20 * SECOND)) {
            CHECK_OK(mesh_barrier(&c, NULL), c.error);
            CHECK_INT(mesh_comm_close(&c), MESH_OK);
        }
        CHECK_INT(mesh_socket_close(&net), MESH_OK);
    }
    fflush(NULL);
    exit(test_failures ? 1 : 0);
}
static void test_join_again(void) {
    enum { RANKS = 5 };
    pid_t pid[RANKS];
    int i, status;
    join_fd = listen_loopback(AF_INET, &join_port);
    CHECK(join_fd >= 0);
    fflush(NULL);
    for (i = 0; i < RANKS; i++)
        if ((pid[i] = fork()) == 0) {
            if (i) close(join_fd);
            join_again_child(i, RANKS);
        }
    close(join_fd);
    for (i = 0; i < RANKS; i++) {
        CHECK(test_wait_child(pid[i], test_now() + 200, &status));
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}
static void test_join_size(void) {
    const join j[] = {{0, 2, 0, "s", "missing: rank 1", MESH_ERR_TIMEOUT, NULL, SECOND, 0},
                      {1, 3, 0, "s", "world has 3 ranks, rank 0 says 2", MESH_ERR_TRANSPORT, NULL, 0, 0}};
    run_joins(j, 2, NULL);
}
static void test_join_ipv6(void) {
    const join j[] = {{0, 3, 0, "s", NULL, MESH_OK, NULL, 0, 0},
                      {1, 3, 0, "s", NULL, MESH_OK, NULL, 0, 0},
                      {2, 3, 0, "s", NULL, MESH_OK, NULL, 0, 0}};
    int port, fd = listen_loopback(AF_INET6, &port);
    if (fd < 0) {
        fprintf(stderr, "    this machine has no IPv6 loopback: not tested\n");
        return;
    }
    close(fd);
    join_family = AF_INET6;
    run_joins(j, 3, NULL);
}
static void test_join_no_secret(void) {
    const join inside[] = {{0, 2, 0, "", NULL, MESH_OK, NULL, 0, 0}, {1, 2, 0, "", NULL, MESH_OK, NULL, 0, 0}};
    const join beyond = {1,           2,      0, "", "beyond loopback, and there is no secret", MESH_ERR_ARGUMENT,
                         "192.0.2.1", SECOND, 0};
    run_joins(inside, 2, NULL);
    run_joins(&beyond, 1, NULL);
}
static void test_join_port_taken(void) {
    mesh_socket net;
    mesh_error err;
    int port, fd = listen_loopback(AF_INET, &port);
    mesh_socket_desc d = socket_desc(0, 2, port, 0);
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_TRANSPORT);
    CHECK_HAS(err.text, "another job or program has this port");
    CHECK_HAS(err.text, "MESH_PORT");
    d.address = "no.such.host.invalid";
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_TRANSPORT);
    CHECK_HAS(err.text, "cannot resolve rank 0's address \"no.such.host.invalid\"");
    close(fd);
}

/* ---- launchers: as torchrun and srun leave the environment; torchrun's agent listens on MASTER_PORT itself ---- */

static void launched_child(int rank, int slurm, int port) {
    mesh_socket net;
    mesh_error err;
    char number[16];
    test_failures = 0;
    clear_environment();
    snprintf(number, sizeof number, "%d", rank);
    setenv(slurm ? "SLURM_PROCID" : "RANK", number, 1);
    setenv(slurm ? "SLURM_LOCALID" : "LOCAL_RANK", number, 1);
    setenv(slurm ? "SLURM_NTASKS" : "WORLD_SIZE", "3", 1);
    snprintf(number, sizeof number, "%d", port);
    if (slurm) {
        setenv("SLURM_STEP_NODELIST", "localhost", 1);
        setenv("SLURM_STEP_ID", "0", 1);
        setenv("MESH_PORT", number, 1);
    } else {
        setenv("MASTER_ADDR", "localhost", 1);
        setenv("MASTER_PORT", number, 1);
        setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    }
    CHECK_OK(mesh_socket_open(&net, NULL, &err), err);
    if (net.impl) {
        mesh_comm c;
        CHECK_INT(net.local_rank, rank);
        if (open_comm(&net.base, &c, "x=3", NULL, 5 * SECOND)) {
            CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
            mesh_comm_close(&c);
        }
        mesh_socket_close(&net);
    }
    fflush(NULL);
    exit(test_failures ? 1 : 0);
}

static void test_launchers(void) {
    int slurm, i, status;
    for (slurm = 0; slurm < 2; slurm++) {
        pid_t pid[3];
        int port = 0, next = 0, agent = -1, probe = -1;
        struct sockaddr_in a;
        for (i = 0; i < 50 && probe < 0; i++) { /* a port for the agent whose successor is free for rank 0 */
            if (agent >= 0) close(agent);
            agent = listen_loopback(AF_INET, &port);
            next = port + 1;
            memset(&a, 0, sizeof a);
            a.sin_family = AF_INET;
            a.sin_port = htons((uint16_t)next);
            a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            probe = socket(AF_INET, SOCK_STREAM, 0);
            if (bind(probe, (struct sockaddr *)&a, sizeof a)) {
                close(probe);
                probe = -1;
            }
        }
        CHECK(probe >= 0);
        close(probe);
        fflush(NULL);
        for (i = 0; i < 3; i++)
            if ((pid[i] = fork()) == 0) launched_child(i, slurm, slurm ? next : port);
        for (i = 0; i < 3; i++) {
            CHECK(test_wait_child(pid[i], test_now() + 20, &status));
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        close(agent);
    }
}

/* ---- strangers: HTTP, noise, silence. The job goes on. (What proves itself and then sends nonsense is in t_rogue.h.) ---- */

static int dial(int port) {
    struct sockaddr_in a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_port = htons((uint16_t)port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    return -1;
}

static void talk_nonsense(int port) {
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    test_random rng = random_from(7);
    unsigned char noise[300];
    int i, k, fd;
    for (i = 0; i < 40; i++) {
        if ((fd = dial(port)) < 0) continue;
        for (k = 0; k < 300; k++) noise[k] = (unsigned char)random_next(&rng);
        if (i % 4 == 0) send(fd, http, sizeof http - 1, MSG_NOSIGNAL);
        if (i % 4 == 1) send(fd, noise, sizeof noise, MSG_NOSIGNAL);
        if (i % 4 == 2) { /* the right first bytes, then noise instead of a proof */
            memcpy(noise, MESH_SOCKET__MAGIC, 8);
            send(fd, noise, sizeof noise, MSG_NOSIGNAL);
        }
        if (i % 4 == 3) { /* silence, then gone */
            test_sleep(0.002);
        }
        if (i % 8 >= 4) {
            ssize_t n = recv(fd, noise, sizeof noise, MSG_DONTWAIT);
            (void)n;
        }
        close(fd);
        if (i % 20 == 19) world_say(0); /* a rank comes in between, another at the end */
    }
}

static void test_strangers(void) {
    const join j[] = {{0, 3, 0, "s", NULL, MESH_OK, NULL, 0, 0},
                      {1, 3, 1, "s", NULL, MESH_OK, NULL, 0, 0},
                      {2, 3, 2, "s", NULL, MESH_OK, NULL, 0, 0}};
    run_joins(j, 3, talk_nonsense);
}

/* Many ranks: everyone meets everyone. */
static void crowd_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    int v = t->rank, sum, i, all[64];
    (void)ctx;
    if (!open_comm(t, &c, "a=4,b=4,c=2", NULL, 60 * SECOND)) return;
    CHECK_INT(mesh_all_reduce(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM), MESH_OK);
    CHECK_INT(sum, 31 * 32 / 2);
    CHECK_INT(mesh_all_gather(&c, NULL, &v, all, 1, MESH_I32), MESH_OK);
    for (i = 0; i < 32; i++) CHECK_INT(all[i], i);
    for (i = 0; i < 3; i++) CHECK_INT(mesh_barrier(&c, i == 0 ? "a" : i == 1 ? "b" : "c"), MESH_OK);
    mesh_comm_close(&c);
}
static void test_crowd(void) {
    run_world(TCP, 32, crowd_rank, NULL);
    run_world(UNIX, 32, crowd_rank, NULL);
}

/* ---- scale: hundreds of ranks on one machine ---- */

static int many_axis(void) { return test_long ? 4 : 2; } /* ranks along each of four axes */

/* Every collective on every axis of 2x2x2x2 (--long: 4x4x4x4), and on the whole mesh. */
static void many_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm comm;
    mesh_error err;
    char text[64];
    int axis, i;
    (void)ctx;
    snprintf(text, sizeof text, "a=%d,b=%d,c=%d,d=%d", many_axis(), many_axis(), many_axis(), many_axis());
    CHECK_OK(mesh_parse(&m, text, t->size, &err), err);
    CHECK_OK(mesh_comm_open(&comm, t, &m, NULL, &err), err);
    for (axis = -1; axis < m.naxes && !comm.failed; axis++) {
        conf_case c;
        memset(&c, 0, sizeof c);
        c.t = t;
        c.comm = &comm;
        c.axes = axis < 0 ? NULL : m.axis[axis].name;
        c.n = mesh_comm_size(&comm, c.axes);
        c.me = mesh_comm_index(&comm, c.axes);
        c.d = MESH_F32;
        c.elem = 4;
        for (i = 0; i < c.n; i++) {
            mesh g;
            mesh_group_through(&g, &m, c.axes, t->rank, &err);
            c.seed[i] = mesh_rank_at(&g, i);
        }
        c.room = conf_room(&c, 8);
        c.send = (unsigned char *)malloc(c.room);
        c.recv = (unsigned char *)malloc(c.room);
        c.want = (unsigned char *)malloc(c.room);
        conf_moves(&c, 2);
        conf_many(&c, 2, MESH_SUM);
        conf_reductions(&c, 2, MESH_SUM);
        conf_objects(&c, 1);
        free(c.send);
        free(c.recv);
        free(c.want);
    }
    conf_halo(&comm, 0, 1);
    CHECK_OK(mesh_comm_close(&comm), comm.error);
}

static void test_many(void) { run_world(TCP, many_axis() * many_axis() * many_axis() * many_axis(), many_rank, NULL); }

static void thousand_rank(mesh_transport *t, void *ctx) {
    mesh m;
    mesh_comm comm;
    mesh_error err;
    (void)ctx;
    CHECK_OK(mesh_parse(&m, "x=-1", t->size, &err), err);
    CHECK_OK(mesh_comm_open(&comm, t, &m, NULL, &err), err);
    CHECK_OK(mesh_barrier(&comm, NULL), comm.error);
    CHECK_OK(mesh_comm_close(&comm), comm.error);
}

/* A thousand ranks come up and pass a barrier, or as many as the machine's limits allow. */
static void test_thousand(void) {
    struct rlimit files;
    int ranks = test_long ? 1000 : 100;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_max < (rlim_t)ranks + 64) ranks = (int)files.rlim_max - 64;
    run_world(UNIX, ranks, thousand_rank, NULL);
}

/* ---- silence: a host that owes an answer for 20 s; never the host that looks ---- */

#if MESH_SOCKET__LINUX
static void test_silence_figures(void) {
    static const struct {
        unsigned char retransmissions, probes;
        uint32_t ms;
        int silent;
    } figures[] = {{0, 0, 600000, 0}, {2, 2, 600000, 0}, {3, 0, 19999, 0},  {3, 0, 20000, 1},
                   {0, 3, 20000, 1},  {0, 3, 19999, 0},  {15, 0, 60000, 1}, {0, 9, 60000, 1}};
    unsigned char info[MESH_SOCKET__TCP_INFO];
    size_t i;
    for (i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        memset(info, 0, sizeof info);
        info[2] = figures[i].retransmissions;
        info[3] = figures[i].probes;
        memcpy(info + 56, &figures[i].ms, 4);
        CHECK_INT(mesh_socket__is_silence(info), figures[i].silent);
    }
}

/* Ranks of one host are near each other, and no probes are sent between them. Where the book says that a rank is elsewhere it is far, and is
   asked after; but loopback leads nowhere else. */
static void near_rank(mesh_transport *t, void *ctx) {
    mesh_socket__impl *s = mesh_socket__of(t);
    int *elsewhere = (int *)ctx, i, k, alive;
    uint64_t host = s->book[t->rank].host;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    for (i = 1; i < 3; i++)
        CHECK_INT(mesh_sendrecv(&c, NULL, (t->rank + i) % 3, &i, 1, (t->rank + 3 - i) % 3, &k, 1, MESH_I32), MESH_OK);
    CHECK_INT(s->nconns, 2);
    for (i = 0; i < s->nconns; i++) {
        mesh_socket__conn *conn = s->conn[i];
        socklen_t length = sizeof alive;
        CHECK_INT(conn->is_near, 1);
        CHECK_INT(getsockopt(conn->fd, SOL_SOCKET, SO_KEEPALIVE, &alive, &length), 0);
        CHECK_INT(alive, 0);
        conn->is_near = 0;
        s->book[conn->rank].host = *elsewhere ? host + 1 : host;
        mesh_socket__place_known(s, conn);
        CHECK_INT(conn->is_near, !*elsewhere);
        s->book[conn->rank].host = host;
        conn->is_near = 1;
    }
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    mesh_comm_close(&c);
}
static void test_silence_near(void) {
    int elsewhere;
    for (elsewhere = 0; elsewhere < 2; elsewhere++) run_world(TCP, 3, near_rank, &elsewhere);
    elsewhere = 0;
    run_world(UNIX, 3, near_rank, &elsewhere);
}
#endif

/* What ends too early says so: errno is of no call then. */
static void test_short_file(void) {
    unsigned char bytes[32];
    errno = 0;
    CHECK_INT(mesh_socket__read_file("/dev/null", bytes, sizeof bytes), 0);
    CHECK_INT(errno, MESH_SOCKET__ENDS);
    CHECK_INT(mesh_socket__read_file("/dev/null/none", bytes, sizeof bytes), 0);
    CHECK_INT(errno, ENOTDIR);
    CHECK_INT(mesh_socket__read_file("/dev/zero", bytes, sizeof bytes), 1);
    CHECK_INT(mesh_socket__random(bytes, sizeof bytes), 1);
}

static const test_case socket_tests[] = {
    {"socket/short_file", test_short_file, 0},
#if MESH_SOCKET__LINUX
    {"socket/silence_figures", test_silence_figures, 0},
    {"socket/silence_near", test_silence_near, 0},
#endif
    {"socket/many", test_many, 0},
    {"socket/thousand", test_thousand, 0},
    {"socket/hmac", test_hmac, 0},
    {"socket/env", test_env_read, 20},
    {"socket/environment", test_environment, 0},
    {"socket/join_wrong_secret", test_join_wrong_secret, 0},
    {"socket/join_missing", test_join_missing, 0},
    {"socket/join_twice", test_join_twice, 0},
    {"socket/join_again", test_join_again, 0},
    {"socket/join_size", test_join_size, 0},
    {"socket/join_ipv6", test_join_ipv6, 0},
    {"socket/join_no_secret", test_join_no_secret, 0},
    {"socket/join_port_taken", test_join_port_taken, 0},
    {"socket/launchers", test_launchers, 0},
    {"socket/strangers", test_strangers, 0},
    {"socket/crowd", test_crowd, 0},
};

#endif
