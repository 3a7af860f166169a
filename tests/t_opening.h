/* How a rank of the socket transport finds its job: the environment, addresses, opening. Uses t_sockets.h's ranks. */
#ifndef T_OPENING_H
#define T_OPENING_H
#include <sys/ioctl.h>

/* ---- the environment: every launcher's variables, and what comes before what ---- */

/* "A=1 B=x": and nothing else that a launcher, or a user, could have said. */
static void law_environment(const char *text) {
    static const char *const more[] = {
        "MPI_LOCALRANKID", "MPI_LOCALNRANKS",  "PMIX_NAMESPACE", "PMI_JOBID",  "TORCHELASTIC_RUN_ID",
        "MESH_TIMEOUT",    "MESH_SECRET_FILE", "MESH_TUNING",    "MESH_TRACE", "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MESH_OPEN_TIMEOUT", "MESH_PROGRESS_THREAD"};
    char copy[512], *p, *equals;
    size_t i;
    clear_environment();
    for (i = 0; i < sizeof more / sizeof more[0]; i++) unsetenv(more[i]);
    snprintf(copy, sizeof copy, "%s", text);
    for (p = strtok(copy, " "); p; p = strtok(NULL, " "))
        if ((equals = strchr(p, '=')) != NULL) *equals = 0, setenv(p, equals + 1, 1);
}
typedef struct place_case {
    const char *environment;
    int given; /* of the description: 0 nothing; else rank 2 of 5, local rank 3, and bits: 2 a port, 4 an address */
    int rank, size, local_rank, port;
    const char *address, *error;
} place_case;
static void test_places(void) {
    static const place_case cases[] = {
        {"", 0, 0, 1, -1, 29400, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4", 0, 1, 4, -1, 29400, "127.0.0.1", NULL},
        {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=h MASTER_PORT=1", 0, 0, 1, 0, 1, "h", NULL},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=3 SLURM_PROCID=7 SLURM_NTASKS=9 SLURM_LOCALID=5 SLURM_STEP_ID=0", 0, 1, 4, 3,
         29400, "127.0.0.1", NULL},
        {"OMPI_COMM_WORLD_RANK=6 OMPI_COMM_WORLD_SIZE=7 OMPI_COMM_WORLD_LOCAL_RANK=2 PMI_RANK=1 PMI_SIZE=2 MESH_PORT=1",
         0, 6, 7, 2, 1, "127.0.0.1", NULL},
        {"PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=1 MASTER_PORT=65535", 0, 2, 3, 1, 65535, "127.0.0.1", NULL},
        {"SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_LOCALID=1 SLURM_STEP_ID=4 SLURM_STEP_NODELIST=n[2-3] MESH_PORT=9", 0, 2,
         3, 1, 9, "n2", NULL},
        {"SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_STEP_ID=4 SLURM_STEP_NODELIST=n[2-3] MASTER_ADDR=a MESH_PORT=9", 0, 2, 3,
         -1, 9, "a", NULL},
        {"SLURM_PROCID=2 SLURM_STEP_ID=4", 0, 0, 1, -1, 29400, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 SLURM_STEP_NODELIST=n[2-3]", 0, 1, 4, -1, 29400, "127.0.0.1", NULL},
        {"RANK= WORLD_SIZE= MESH_PORT= MASTER_PORT=3 MASTER_ADDR= PMI_RANK=0 PMI_SIZE=2", 0, 0, 2, -1, 3, "127.0.0.1",
         NULL},
        {"RANK=1 WORLD_SIZE=4 MESH_PORT=65535", 0, 1, 4, -1, 65535, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=100 TORCHELASTIC_USE_AGENT_STORE=True", 0, 1, 4, -1, 101, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=100 TORCHELASTIC_USE_AGENT_STORE=False", 0, 1, 4, -1, 100, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=100 MESH_PORT=7 TORCHELASTIC_USE_AGENT_STORE=True", 0, 1, 4, -1, 7,
         "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 TORCHELASTIC_RUN_ID=none", 0, 1, 4, -1, 29400, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MESH_PORT=7", 1, 2, 5, 3, 7, "a", NULL},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MESH_PORT=7 MASTER_PORT=8", 1 | 2, 2, 5, 3, 4321, "a", NULL},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MESH_PORT=7", 1 | 4, 2, 5, 3, 7, "given", NULL},
        {"RANK=x WORLD_SIZE=4", 1 | 2 | 4, 2, 5, 3, 4321, "given", NULL},
        {"RANK=2147483647 WORLD_SIZE=4", 0, 0, 0, 0, 0, NULL, "rank 2147483647 of a world of 4 (from RANK)"},
        {"RANK=2147483648 WORLD_SIZE=4", 0, 0, 0, 0, 0, NULL, "RANK is \"2147483648\", which is no number"},
        {"RANK=4294967297 WORLD_SIZE=4", 0, 0, 0, 0, 0, NULL, "RANK is \"4294967297\", which is no number"},
        {"RANK=-1 WORLD_SIZE=4", 0, 0, 0, 0, 0, NULL, "RANK is \"-1\", which is no number"},
        {"RANK=0 WORLD_SIZE=0", 0, 0, 0, 0, 0, NULL, "a world of 0 ranks (from the size beside RANK)"},
        {"WORLD_SIZE=4 PMI_RANK=1 PMI_SIZE=2", 0, 0, 0, 0, 0, NULL, "WORLD_SIZE is set, but RANK is not"},
        {"OMPI_COMM_WORLD_RANK=1", 0, 0, 0, 0, 0, NULL, "OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not"},
        {"RANK=1 WORLD_SIZE=4 MESH_PORT=0", 0, 0, 0, 0, 0, NULL, "port 0;"},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=0", 0, 0, 0, 0, 0, NULL, "port 0;"},
        {"RANK=1 WORLD_SIZE=4 MESH_PORT=65536", 0, 0, 0, 0, 0, NULL, "port 65536;"},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True", 0, 0, 0, 0, 0, NULL, "port 65536;"},
        {"RANK=1 WORLD_SIZE=4 MESH_PORT=x MASTER_PORT=7", 0, 0, 0, 0, 0, NULL, "MESH_PORT is \"x\""},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=7.", 0, 0, 0, 0, 0, NULL, "MASTER_PORT is \"7.\""},
    };
    size_t i;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const place_case *c = &cases[i];
        int failed = test_failures;
        mesh_socket_desc d = MESH_ZERO;
        mesh_env w;
        mesh_error err;
        mesh_status status;
        if (c->given) d.rank = 2, d.size = 5, d.local_rank = 3;
        if (c->given & 2) d.port = 4321;
        if (c->given & 4) d.address = "given";
        law_environment(c->environment);
        err.text[0] = 0;
        status = mesh_socket__who(&d, &w, &err);
        CHECK_INT(status, c->error ? MESH_ERR_ARGUMENT : MESH_OK);
        if (c->error) {
            CHECK_HAS(err.text, c->error);
        } else {
            CHECK_INT(w.rank, c->rank);
            CHECK_INT(w.size, c->size);
            CHECK_INT(w.local_rank, c->local_rank);
            CHECK_INT(w.port, c->port);
            CHECK_STR(w.address, c->address);
        }
        if (test_failures != failed) test_fail(__FILE__, __LINE__, "with \"%s\"", c->environment);
    }
}

static int law_file(char *path, const char *text, size_t n) {
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    close(fd);
    return fd >= 0;
}
static void law_file_again(const char *path, const char *text, size_t n) {
    int fd = open(path, O_WRONLY | O_TRUNC);
    CHECK(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    close(fd);
}
/* A world of one, with this environment: opened, or refused with this text. */
static void law_alone(int line, const char *environment, const mesh_socket_desc *d, const char *error,
                      mesh_socket *net) {
    mesh_error err;
    mesh_status status;
    law_environment(environment);
    err.text[0] = 0;
    status = mesh_socket_open(net, d, &err);
    if (status != (error ? MESH_ERR_ARGUMENT : MESH_OK) || (error && !strstr(err.text, error)))
        test_fail(__FILE__, line, "\"%s\": %s: %s", environment, mesh_status_text(status), err.text);
}
static void test_variables(void) {
    static const int lengths[] = {1, 7, 8, 9, 63, 64, 65, 255};
    mesh_socket_desc d = MESH_ZERO;
    mesh_socket net;
    char empty[] = "/tmp/mesh-law-XXXXXX", full[] = "/tmp/mesh-law-XXXXXX", lines[] = "/tmp/mesh-law-XXXXXX", text[400],
         *long_text = (char *)malloc(16384);
    int64_t before, after;
    size_t i;
    law_alone(__LINE__, "MESH_TIMEOUT=3600", NULL, NULL, &net);
    CHECK_INT(net.base.timeout_ns, INT64_C(3600000000000));
    mesh_socket_close(&net);
    law_alone(__LINE__, "RANK=0 WORLD_SIZE=1 MASTER_ADDR=no.such.host.invalid MESH_LISTEN_FD=0", NULL, NULL,
              &net); /* it needs nobody */
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_TIMEOUT=soon", NULL, "MESH_TIMEOUT is \"soon\", which is no number of seconds from 0", &net);
    law_alone(__LINE__, "MESH_OPEN_TIMEOUT=soon", NULL, "mesh_socket_open: MESH_OPEN_TIMEOUT is \"soon\", which is no number of seconds from 0",
              &net);
    before = mesh_socket__clock();
    law_alone(__LINE__, "MESH_OPEN_TIMEOUT=3600", NULL, NULL, &net);
    after = mesh_socket__clock();
    CHECK(mesh_socket__of(&net.base)->open_deadline - before >= 3600 * SECOND);
    CHECK(mesh_socket__of(&net.base)->open_deadline - after <= 3600 * SECOND);
    CHECK_INT(net.base.timeout_ns, 0);
    mesh_socket_close(&net);
    before = mesh_socket__clock();
    law_alone(__LINE__, "MESH_SOCKET_LANES=tcp", NULL, NULL, &net);
    after = mesh_socket__clock();
    CHECK_INT(mesh_socket__of(&net.base)->lanes, MESH_SOCKET_TCP);
    CHECK(mesh_socket__of(&net.base)->open_deadline - before >= 60 * SECOND);
    CHECK(mesh_socket__of(&net.base)->open_deadline - after <= 60 * SECOND);
    CHECK_INT(net.base.timeout_ns, 0);
    mesh_socket_close(&net);
    d.lanes = MESH_SOCKET_TCP;
    d.open_timeout_ns = 5;
    before = mesh_socket__clock();
    law_alone(__LINE__, "MESH_SOCKET_LANES=auto MESH_OPEN_TIMEOUT=3600", &d, NULL, &net);
    CHECK_INT(mesh_socket__of(&net.base)->lanes, MESH_SOCKET_TCP); /* the description's word comes first */
    CHECK(mesh_socket__of(&net.base)->open_deadline - mesh_socket__clock() <= 5);
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_SOCKET_LANES=auto", NULL, NULL, &net);
    CHECK_INT(mesh_socket__of(&net.base)->lanes, MESH_SOCKET_AUTO);
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_PROGRESS_THREAD=1", NULL, NULL, &net);
    CHECK_INT(mesh_socket__of(&net.base)->threaded, 1);
    mesh_socket_close(&net);
    d.progress_thread = 1;
    law_alone(__LINE__, "MESH_PROGRESS_THREAD=0", &d, NULL, &net);
    CHECK_INT(mesh_socket__of(&net.base)->threaded, 1);
    mesh_socket_close(&net);
    d.progress_thread = 0;
    law_alone(__LINE__, "MESH_SOCKET_LANES=shm", NULL, "MESH_SOCKET_LANES is \"shm\"", &net);
    d.lanes = 9;
    law_alone(__LINE__, "", &d, "desc.lanes is 9; it is MESH_SOCKET_AUTO, _TCP or _UNIX", &net);
    d.lanes = 0;
    /* Secrets: every byte of one, where it is to be found, and what is none. */
    for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memset(text, 'a' + (int)i, sizeof text);
        text[lengths[i]] = 0;
        memset(&d, 0, sizeof d);
        d.secret = text;
        law_alone(__LINE__, "MESH_SECRET=other", &d, NULL, &net);
        CHECK_INT(mesh_socket__of(&net.base)->secret_bytes, lengths[i]);
        CHECK(!memcmp(mesh_socket__of(&net.base)->secret, text, (size_t)lengths[i]));
        mesh_socket_close(&net);
    }
    memset(text, 'b', sizeof text);
    text[256] = 0;
    law_alone(__LINE__, "", &d, "the secret has 256 bytes; at most 255", &net);
    d.secret = "";
    law_alone(__LINE__, "MESH_SECRET=other MESH_SECRET_FILE=/nowhere", &d, NULL, &net);
    CHECK_INT(mesh_socket__of(&net.base)->secret_bytes, 0);
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_SECRET=other MESH_SECRET_FILE=/nowhere", NULL, NULL, &net);
    CHECK_INT(mesh_socket__of(&net.base)->secret_bytes, 5);
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_SECRET_FILE=/nowhere", NULL, "MESH_SECRET_FILE names \"/nowhere\"", &net);
    law_alone(__LINE__, "MESH_SECRET= MESH_SECRET_FILE=/nowhere", NULL, "MESH_SECRET_FILE names \"/nowhere\"", &net);
    law_alone(__LINE__, "MESH_SECRET= MESH_SECRET_FILE=", NULL, NULL, &net);
    CHECK_INT(mesh_socket__of(&net.base)->secret_bytes, 0);
    mesh_socket_close(&net);
    if (law_file(empty, "\r\n\n", 3) && law_file(full, "two words\r\n", 11)) {
        snprintf(text, sizeof text, "MESH_SECRET_FILE=%s", empty);
        law_alone(__LINE__, text, NULL, "it is empty", &net);
        snprintf(text, sizeof text, "MESH_SECRET_FILE=%s", full);
        law_alone(__LINE__, text, NULL, NULL, &net);
        CHECK_INT(mesh_socket__of(&net.base)->secret_bytes, 9);
        mesh_socket_close(&net);
        memset(long_text, 'c', 300); /* all of it counts, or nothing does */
        law_file_again(full, "two\0words", 9);
        law_alone(__LINE__, text, NULL, "a zero byte in it", &net);
        law_file_again(full, "\0words", 6);
        law_alone(__LINE__, text, NULL, "a zero byte in it", &net);
        law_file_again(full, long_text, 256);
        law_alone(__LINE__, text, NULL, "more than 255 bytes", &net);
        long_text[255] = long_text[256] = long_text[257] = '\n'; /* what stands behind is not passed over */
        law_file_again(full, long_text, 300);
        law_alone(__LINE__, text, NULL, "more than 255 bytes", &net);
        long_text[255] = '\r', long_text[256] = '\n';
        law_file_again(full, long_text, 257);
        law_alone(__LINE__, text, NULL, NULL, &net);
        CHECK_INT(mesh_socket__of(&net.base)->secret_bytes, 255);
        mesh_socket_close(&net);
        law_file_again(full, long_text, 255);
        law_alone(__LINE__, text, NULL, NULL, &net);
        CHECK_INT(mesh_socket__of(&net.base)->secret_bytes, 255);
        mesh_socket_close(&net);
    }
    /* A tuning table is used, whole. */
    memset(long_text, '\n', 16384);
    CHECK(law_file(lines, long_text, 16383));
    snprintf(text, sizeof text, "MESH_TUNING=%s", lines);
    law_alone(__LINE__, text, NULL, "longer than 16 KiB", &net);
    CHECK_INT(truncate(lines, 0), 0);
    law_alone(__LINE__, text, NULL, NULL, &net);
    CHECK(net.base.tuning == &mesh_socket__of(&net.base)->tuning);
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_TUNING=/nowhere", NULL, "MESH_TUNING names \"/nowhere\"", &net);
    law_alone(__LINE__, "MESH_TUNING=/", NULL, "MESH_TUNING names \"/\"", &net);
    law_alone(__LINE__, "", NULL, NULL, &net);
    CHECK(net.base.tuning == NULL);
    mesh_socket_close(&net);
    unlink(empty), unlink(full), unlink(lines);
    free(long_text);
    { /* A trace that was closed is whole: an array. */
        char dir[] = "/tmp/mesh-law-XXXXXX", file[64], *last;
        FILE *f;
        size_t n = 0;
        CHECK(mkdtemp(dir) != NULL);
        snprintf(text, sizeof text, "MESH_TRACE=%s", dir);
        law_alone(__LINE__, text, NULL, NULL, &net);
        mesh_socket_close(&net);
        snprintf(file, sizeof file, "%s/rank-0.json", dir);
        if ((f = fopen(file, "r")) != NULL) {
            n = fread(text, 1, sizeof text - 1, f);
            fclose(f);
        }
        text[n] = 0;
        for (last = text + n; last > text && (last[-1] == '\n' || last[-1] == ' ');) *--last = 0;
        CHECK(text[0] == '[' && last > text && last[-1] == ']');
        unlink(file), rmdir(dir);
    }
}

/* Keys of every length, messages of many; Python's hmac says the same. */
static void test_hmac_lengths(void) {
    unsigned char key[256], message[70], mac[32];
    mesh_socket__sha all;
    char text[65];
    int n, i;
    memset(message, 'm', sizeof message);
    mesh_socket__sha_start(&all);
    for (n = 0; n < 256; n++) {
        const void *piece = message;
        size_t nbytes = (size_t)(n % 70);
        for (i = 0; i < n; i++) key[i] = (unsigned char)(i * 7 + n);
        mesh_socket__hmac(key, (size_t)n, &piece, &nbytes, 1, mac);
        mesh_socket__sha_add(&all, mac, 32);
    }
    mesh_socket__sha_end(&all, mac);
    hex(mac, 32, text);
    CHECK_STR(text, "64a25fac34d9a6367ab3a0e6ddedbb1581da07a6a2bdb0da1bf0c9b979d6ad98");
}

/* ---- addresses ---- */

static void test_addresses(void) {
    static const struct {
        const char *text;
        int loopback;
    } pool[] = {{"127.0.0.1", 1},
                {"127.255.0.9", 1},
                {"128.0.0.1", 0},
                {"126.0.0.1", 0},
                {"0.0.0.0", 0},
                {"10.0.0.127", 0},
                {"::1", 1},
                {"::", 0},
                {"::2", 0},
                {"::ffff:127.0.0.1", 1},
                {"::ffff:10.0.0.1", 0},
                {"::ffff:1.127.0.1", 0},
                {"fe80::1", 0},
                {"2001:db8::127", 0}};
    static const char *const loopback[] = {"localhost", "127.0.0.1", "127.9.8.7", "::1"},
                             *const others[] = {"1.127.0.0", "127x.example", "1270.example", "localhost.example", "::2",
                                                "",          "node"};
    test_random rng = random_from(31);
    size_t i;
    int k;
    for (i = 0; i < sizeof pool / sizeof pool[0]; i++) {
        struct sockaddr_storage a;
        memset(&a, 0, sizeof a);
        a.ss_family = strchr(pool[i].text, ':') ? AF_INET6 : AF_INET;
        CHECK_INT(inet_pton(a.ss_family, pool[i].text,
                            a.ss_family == AF_INET ? (void *)&((struct sockaddr_in *)&a)->sin_addr
                                                   : (void *)&((struct sockaddr_in6 *)&a)->sin6_addr),
                  1);
        if (mesh_socket__is_loopback((struct sockaddr *)&a) != pool[i].loopback)
            test_fail(__FILE__, __LINE__, "%s: loopback or not?", pool[i].text);
    }
    for (i = 0; i < 4; i++)
        if (!mesh_socket__names_loopback(loopback[i])) test_fail(__FILE__, __LINE__, "%s is loopback", loopback[i]);
    for (i = 0; i < 7; i++)
        if (mesh_socket__names_loopback(others[i])) test_fail(__FILE__, __LINE__, "%s may be another host", others[i]);
    for (k = 0; k < 50; k++) { /* what the book says of a rank is what was written, and where it is reached */
        mesh_socket__entry e, back;
        unsigned char wire[MESH_SOCKET__ENTRY];
        struct sockaddr_storage a;
        socklen_t length = 0;
        memset(&e, 0, sizeof e), memset(&back, 0, sizeof back);
        for (i = 0; i < 16; i++) e.addr[i] = (unsigned char)random_next(&rng);
        e.port = (uint16_t)random_next(&rng), e.family = k % 2 ? 4 : 6;
        e.host = random_next(&rng), e.token = random_next(&rng), e.cores = random_next(&rng);
        e.process = random_next(&rng), e.scope = (uint32_t)random_next(&rng);
        mesh_socket__entry_write(wire, &e);
        mesh_socket__entry_read(&back, wire);
        CHECK(!memcmp(&e, &back, sizeof e));
        CHECK(wire[16] == (e.port & 255) && wire[17] == e.port >> 8 && wire[24] == (e.host & 255));
        mesh_socket__sockaddr(&e, &a, &length);
        if (e.family == 4) {
            const struct sockaddr_in *in = (struct sockaddr_in *)&a;
            CHECK(length == sizeof *in && in->sin_family == AF_INET && ntohs(in->sin_port) == e.port &&
                  !memcmp(&in->sin_addr, e.addr, 4));
        } else {
            const struct sockaddr_in6 *in = (struct sockaddr_in6 *)&a;
            CHECK(length == sizeof *in && in->sin6_family == AF_INET6 && ntohs(in->sin6_port) == e.port &&
                  !memcmp(&in->sin6_addr, e.addr, 16) && in->sin6_scope_id == e.scope);
        }
    }
}

/* The number of a link is each host's own: of a link-local address it is what this rank has it as, of others what was written. */
static void test_own_link(void) {
    static const char *const text[] = {"fe80::1", "fe80::2:3", "2001:db8::1", "::1"};
    struct sockaddr_in6 a;
    struct sockaddr_storage *any = (struct sockaddr_storage *)calloc(1, sizeof *any);
    int i, rank;
    law_open(2, MESH_SOCKET_TCP);
    law_impl(0)->master.ss_family = AF_INET6;
    for (rank = 0; rank < 2; rank++)
        for (i = 0; i < 4; i++) {
            memset(&a, 0, sizeof a);
            a.sin6_family = AF_INET6, a.sin6_scope_id = 3;
            CHECK_INT(inet_pton(AF_INET6, text[i], &a.sin6_addr), 1);
            memcpy(any, &a, sizeof a);
            law_impl(1)->book[1].scope = i == 1 ? 0 : 7;
            ((struct sockaddr_in6 *)(void *)&law_impl(0)->master)->sin6_scope_id = i == 1 ? 0 : 7;
            mesh_socket__over_own_link(law_impl(rank), any);
            memcpy(&a, any, sizeof a);
            CHECK_INT(a.sin6_scope_id, i == 0 ? 7 : 3);
        }
    free(any);
    law_close();
}

/* Of ranks that came by loopback, others are told the address at which rank 0 was reached. */
static void test_outward(void) {
    static const char *const was[] = {"127.0.0.1", "10.0.0.1", "::1", "2001:db8::1"}, *const by[] = {"10.7.7.7", "fe80::7"};
    int i, k;
    for (i = 0; i < 4; i++)
        for (k = 0; k < 2; k++) {
            int moves = (i == 0 && k == 0) || (i == 2 && k == 1);
            mesh_socket__entry e = MESH_ZERO;
            struct sockaddr_storage a = MESH_ZERO;
            unsigned char before[16], want[16] = {0};
            a.ss_family = k ? AF_INET6 : AF_INET;
            CHECK_INT(inet_pton(a.ss_family, by[k], k ? (void *)&((struct sockaddr_in6 *)(void *)&a)->sin6_addr
                                                      : (void *)&((struct sockaddr_in *)(void *)&a)->sin_addr),
                      1);
            if (k) ((struct sockaddr_in6 *)(void *)&a)->sin6_scope_id = 5;
            e.family = i < 2 ? 4 : 6;
            CHECK_INT(inet_pton(i < 2 ? AF_INET : AF_INET6, was[i], e.addr), 1);
            memcpy(before, e.addr, 16);
            CHECK_INT(inet_pton(a.ss_family, by[k], want), 1);
            mesh_socket__entry_outward(&e, &a);
            CHECK(!memcmp(e.addr, moves ? want : before, i < 2 ? 4 : 16));
            CHECK_INT(e.scope, moves && k ? 5 : 0);
        }
}

/* A rank's place on its host, by the launcher's word or by who else is there; ranks that share cores are crowded. */
static void test_neighbours(void) {
    static const uint64_t hosts[4] = {5, 9, 5, 5};
    static const int places[4] = {0, 0, 1, 2};
    mesh_env w;
    uint64_t bits;
    int i, k, cores = mesh_env_cores(&bits);
    law_open(4, MESH_SOCKET_AUTO);
    for (i = 0; i < 4; i++) CHECK_INT(law[i].net.local_rank, 0); /* what the description says */
    memset(&w, 0, sizeof w);
    for (i = 0; i < 4; i++) {
        mesh_socket__entry *book = law_impl(i)->book;
        for (k = 0; k < 4; k++) book[k].host = hosts[k], book[k].cores = bits;
        w.local_rank = -1;
        mesh_socket__neighbours(law_impl(i), &w);
        CHECK_INT(law[i].net.local_rank, places[i]);
        CHECK_INT(law_impl(i)->crowded, (i == 1 ? 1 : 3) > cores ? (3 + cores - 1) / cores : 0);
        w.local_rank = 7;
        mesh_socket__neighbours(law_impl(i), &w);
        CHECK_INT(law[i].net.local_rank, 7);
    }
    law_close();
}

/* A quota of cores counts where it is less than there are: a part of one is one. */
static void test_quota(void) {
    char path[] = "/tmp/mesh-law-XXXXXX", text[64];
    uint64_t bits;
    int i, cores;
    if (!MESH__ENV_LINUX || !law_file(path, "max 100000\n", 11)) return;
    failing_quota = path, failing_quota_1 = "/nowhere";
    cores = mesh_env_cores(&bits);
    for (i = 1; i <= 2 * cores + 1; i++) { /* halves of a core */
        int want = (i + 1) / 2 < cores ? (i + 1) / 2 : cores;
        snprintf(text, sizeof text, "%d 100000\n", 50000 * i);
        law_file_again(path, text, strlen(text));
        CHECK_INT(mesh_env_cores(&bits), want);
    }
    failing_quota = failing_quota_1 = NULL;
    unlink(path);
}

/* The same of cgroup v1, whose quota and period are a file each: -1 is no quota, and without a period there is none. */
static void test_quota_1(void) {
    char quota[] = "/tmp/mesh-law-XXXXXX", period[] = "/tmp/mesh-law-XXXXXX", text[64];
    uint64_t bits;
    int i, cores;
    if (!MESH__ENV_LINUX || !law_file(quota, "-1\n", 3) || !law_file(period, "100000\n", 7)) return;
    failing_quota = "/nowhere", failing_quota_1 = quota, failing_period_1 = "/nowhere";
    cores = mesh_env_cores(&bits);
    law_file_again(quota, "100000\n", 7);
    CHECK_INT(mesh_env_cores(&bits), cores);
    failing_period_1 = period;
    law_file_again(quota, "-1\n", 3);
    CHECK_INT(mesh_env_cores(&bits), cores);
    law_file_again(quota, "99999\n", 6);
    CHECK_INT(mesh_env_cores(&bits), 1);
    for (i = 1; i <= 2 * cores + 1; i++) { /* halves of a core, of a period that is not v2's usual one */
        int want = (i + 1) / 2 < cores ? (i + 1) / 2 : cores;
        snprintf(text, sizeof text, "%d\n", 25000 * i);
        law_file_again(quota, text, strlen(text));
        law_file_again(period, "50000\n", 6);
        CHECK_INT(mesh_env_cores(&bits), want);
    }
    failing_quota = failing_quota_1 = failing_period_1 = NULL;
    unlink(quota), unlink(period);
}

/* The limit of open files is raised as far as is needed and allowed, and never lowered. */
static void test_files(void) {
    struct rlimit limit, now;
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < 400) {
        fprintf(stderr, "    few files are allowed: not tested\n");
        return;
    }
    limit.rlim_cur = 40;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    mesh_socket__raise_files(100);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &now), 0);
    CHECK_INT(now.rlim_cur, 328);
    mesh_socket__raise_files(10);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &now), 0);
    CHECK_INT(now.rlim_cur, 328);
    limit.rlim_cur = limit.rlim_max = 350;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    mesh_socket__raise_files(10000);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &now), 0);
    CHECK_INT(now.rlim_cur, 350);
}

/* ---- opening ---- */

/* What is inherited is a socket that listens, on loopback where there is no secret. */
static void test_inherited(void) {
    mesh_socket_desc d;
    mesh_socket net;
    mesh_error err;
    struct sockaddr_in any;
    int port, fd[2], listener, insecure;
    law_environment("");
    CHECK_INT(pipe(fd), 0);
    d = socket_desc(0, 2, 1, fd[0]);
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "is no listening TCP socket");
    close(fd[0]), close(fd[1]);
    d.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "is no listening TCP socket");
    close(d.listen_fd);
    {
        struct sockaddr_un a = MESH_ZERO; /* it listens, where no rank comes */
        a.sun_family = AF_UNIX;
        snprintf(a.sun_path, sizeof a.sun_path, "/tmp/mesh-law-%ld", (long)getpid());
        unlink(a.sun_path);
        d.listen_fd = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK(!bind(d.listen_fd, (struct sockaddr *)(void *)&a, sizeof a) && !listen(d.listen_fd, 1));
        CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_ARGUMENT);
        CHECK(strstr(err.text, "is no listening TCP socket") && !strstr(err.text, "TCP socket:"));
        unlink(a.sun_path);
    }
    close(d.listen_fd);
    for (insecure = 0; insecure < 3; insecure++) { /* 2: with a secret */
        memset(&any, 0, sizeof any);
        any.sin_family = AF_INET;
        listener = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(bind(listener, (struct sockaddr *)&any, sizeof any) == 0 && listen(listener, 5) == 0);
        d.listen_fd = listener;
        d.secret = insecure == 2 ? "s" : "";
        d.insecure = insecure == 1;
        d.open_timeout_ns = 1;
        CHECK_INT(mesh_socket_open(&net, &d, &err), insecure ? MESH_ERR_TIMEOUT : MESH_ERR_ARGUMENT);
        if (!insecure) CHECK_HAS(err.text, "beyond loopback, and there is no secret");
        if (!insecure) close(listener);
    }
    listener = listen_loopback(AF_INET, &port); /* loopback needs none */
    d.listen_fd = listener;
    d.secret = "", d.insecure = 0;
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_TIMEOUT);
    check_shut(&net.base);
    d = socket_desc(0, 2, 1, 0);
    setenv("MESH_LISTEN_FD", "abc", 1);
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "MESH_LISTEN_FD");
    d = socket_desc(0, 1, 1, -1);
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    CHECK_INT(mesh_socket_close(&net), MESH_OK);
    check_shut(&net.base);
    CHECK(dup2(listen_loopback(AF_INET, &port), 99) == 99 && dup2(0, 98) == 98);
    law_alone(__LINE__, "RANK=0 WORLD_SIZE=1 MESH_LISTEN_FD=99", &d, NULL, &net); /* another world's than the launcher's */
    CHECK(fcntl(99, F_GETFD) >= 0 && getenv("MESH_LISTEN_FD"));
    mesh_socket_close(&net);
    law_alone(__LINE__, "RANK=0 WORLD_SIZE=1 MESH_LISTEN_FD=99", NULL, NULL, &net);
    CHECK(fcntl(99, F_GETFD) < 0 && !getenv("MESH_LISTEN_FD")); /* nobody comes to a world of one */
    mesh_socket_close(&net);
    law_alone(__LINE__, "RANK=0 WORLD_SIZE=1 MESH_LISTEN_FD=98", NULL, NULL, &net);
    CHECK(fcntl(98, F_GETFD) >= 0 && !getenv("MESH_LISTEN_FD"));
    mesh_socket_close(&net);
    close(98);
}

/* A rank that comes before rank 0 does tries again; the port of a connection that has just ended is free for rank 0. Somebody else on this
   host may take it in between: then once more. */
static int comes_first(void) {
    int port, fd = listen_loopback(AF_INET, &port), first, i, on = 1, have = 0;
    char hello[MESH_SOCKET__C1];
    ssize_t n;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* what was accepted has it too */
    law_n = 2;
    for (i = 0; i < 2; i++) {
        law[i].desc = socket_desc(i, 2, port, 0);
        law[i].desc.log = law_quiet;
        law[i].desc.open_timeout_ns = (i ? 3 : 20) * SECOND;
    }
    law_begin(1);
    first = accept(fd, NULL, NULL); /* somebody else, who hangs up */
    CHECK(first >= 0);
    while (have < MESH_SOCKET__C1 && (n = recv(first, hello, sizeof hello, 0)) > 0) have += (int)n;
    close(fd);
    close(first); /* with nothing unread: it lingers */
    law_begin(0);
    for (i = 0; i < 2; i++) law_end(i);
    if (law[0].status == MESH_ERR_TRANSPORT && strstr(law[0].err.text, "cannot listen")) return 0;
    for (i = 0; i < 2; i++) CHECK_OK(law[i].status, law[i].err);
    law_close();
    return 1;
}
static void test_comes_first(void) {
    int i;
    for (i = 0; i < 4; i++)
        if (comes_first()) return;
    test_fail(__FILE__, __LINE__, "rank 0 cannot listen where another connection has just ended: %s", law[0].err.text);
}

/* What a launcher has rank 0 listen at is for the world at that port; one that the description has elsewhere leaves it alone. */
static int own_port(int elsewhere) {
    int port, fd = listen_loopback(AF_INET, &port), i, other;
    char text[16];
    snprintf(text, sizeof text, "%d", fd);
    if (elsewhere) {
        other = listen_loopback(AF_INET, &port);
        close(other);
    }
    setenv("MESH_LISTEN_FD", text, 1);
    law_n = 2;
    for (i = 0; i < 2; i++) {
        law[i].desc = socket_desc(i, 2, port, 0);
        law[i].desc.log = law_quiet;
    }
    for (i = 0; i < 2; i++) law_begin(i);
    for (i = 0; i < 2; i++) law_end(i);
    if (law[0].status == MESH_ERR_TRANSPORT && strstr(law[0].err.text, "cannot listen")) return close(fd), 0;
    for (i = 0; i < 2; i++) CHECK_OK(law[i].status, law[i].err);
    CHECK_INT(getenv("MESH_LISTEN_FD") != NULL, elsewhere);
    law_close();
    CHECK_INT(fcntl(fd, F_GETFD) >= 0, elsewhere);
    if (elsewhere) close(fd);
    unsetenv("MESH_LISTEN_FD");
    return 1;
}
static void test_own_port(void) {
    int i;
    CHECK(own_port(0));
    for (i = 0; i < 4; i++)
        if (own_port(1)) return;
    test_fail(__FILE__, __LINE__, "rank 0 cannot listen: %s", law[0].err.text);
}

/* A rank that comes before rank 0 may be given the port that it goes to, and so be connected to itself: it is not rank 0, and keeps nobody from the port. */
static int mirror_port, mirror_line[2], mirror_count;
static void mirror_hook(void *ctx) {
    struct sockaddr_in a = MESH_ZERO;
    (void)ctx;
    a.sin_family = AF_INET;
    a.sin_port = htons((uint16_t)mirror_port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (mirror_count++)
        CHECK(write(mirror_line[1], "x", 1) == 1); /* it tries again */
    else
        CHECK_INT(bind(failing_connects, (struct sockaddr *)(void *)&a, sizeof a), 0);
}
static int mirrored(void) {
    failing_plan plan = MESH_ZERO;
    mesh_socket net;
    mesh_error err;
    mesh_socket_desc d;
    pid_t child;
    int fd = listen_loopback(AF_INET, &mirror_port), status = -1;
    mesh_status opened;
    char c;
    close(fd);
    CHECK_INT(pipe(mirror_line), 0);
    fflush(NULL);
    if ((child = fork()) == 0) {
        close(mirror_line[0]);
        plan.kinds = FAIL_CONNECT, plan.at = 1, plan.times = 2, plan.hook = mirror_hook;
        failing_now = &plan;
        d = socket_desc(1, 2, mirror_port, 0);
        CHECK_OK(mesh_socket_open(&net, &d, &err), err);
        mesh_socket_close(&net);
        fflush(NULL);
        _exit(test_failures ? 1 : 0);
    }
    close(mirror_line[1]);
    CHECK(read(mirror_line[0], &c, 1) == 1);
    close(mirror_line[0]);
    d = socket_desc(0, 2, mirror_port, 0);
    opened = test_failures ? MESH_ERR_STATE : mesh_socket_open(&net, &d, &err);
    if (opened == MESH_ERR_TRANSPORT && strstr(err.text, "cannot listen")) { /* somebody else has it: once more */
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return 0;
    }
    CHECK_INT(opened, MESH_OK);
    if (opened == MESH_OK) mesh_socket_close(&net);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    return 1;
}
static void test_mirror(void) {
    int i;
    for (i = 0; i < 4; i++)
        if (mirrored()) return;
    test_fail(__FILE__, __LINE__, "rank 0 cannot listen where a connection to itself has been");
}

/* Without a secret nobody goes beyond loopback: not to the second address of a name whose first is there, either. */
static void test_loopback_first(void) {
    mesh_socket_desc d;
    mesh_socket net;
    mesh_error err;
    int port, dead, fd = listen_loopback(AF_INET, &dead), far = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in any = MESH_ZERO;
    socklen_t length = sizeof any;
    close(fd);
    any.sin_family = AF_INET; /* 0.0.0.0 leads here and is not of loopback */
    CHECK(!bind(far, (struct sockaddr *)(void *)&any, sizeof any) && !listen(far, 16));
    CHECK_INT(getsockname(far, (struct sockaddr *)(void *)&any, &length), 0);
    port = ntohs(any.sin_port);
    failing_also.sin_family = AF_INET;
    failing_also.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    failing_also.sin_port = htons((uint16_t)dead);
    unsetenv("MESH_SECRET"), unsetenv("MESH_SECRET_FILE");
    d = socket_desc(1, 2, port, 0);
    d.secret = NULL, d.insecure = 0, d.address = "0.0.0.0", d.open_timeout_ns = SECOND;
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_TIMEOUT);
    CHECK(fcntl(far, F_SETFL, O_NONBLOCK) == 0 && accept(far, NULL, NULL) < 0 && errno == EAGAIN);
    close(far);
}

/* Of two addresses that rank 0's name has, one takes the connection and says nothing: the other one is tried in time. */
static void two_addresses_rank(int rank, void *ctx) {
    mesh_socket_desc d = socket_desc(rank, 2, mend_port, mend_fd);
    mesh_socket net;
    mesh_error err;
    if (rank == 1) failing_also = *(const struct sockaddr_in *)ctx;
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    mesh_socket_close(&net);
}
static void test_two_addresses(void) {
    struct sockaddr_in silent = MESH_ZERO;
    socklen_t length = sizeof silent;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    silent.sin_family = AF_INET;
    silent.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(!bind(fd, (struct sockaddr *)(void *)&silent, sizeof silent) && !listen(fd, 16));
    CHECK_INT(getsockname(fd, (struct sockaddr *)(void *)&silent, &length), 0);
    mend_fd = listen_loopback(AF_INET, &mend_port);
    mend_processes(2, two_addresses_rank, &silent);
    close(mend_fd);
    close(fd);
}

/* Another program at rank 0's port, or a forwarder in front of a rank 0 that is late: who hangs up is said and tried again, who answers otherwise ends it,
   but where the name has another address. */
enum { OTHERS_HANG_UP, OTHERS_ANSWER, OTHERS_ANSWER_BESIDE };
static void answer_others(int fd, int times, const char *words) {
    char heard[64];
    while (times-- > 0) {
        int c = accept(fd, NULL, NULL);
        CHECK(c >= 0 && recv(c, heard, sizeof heard, 0) > 0);
        if (*words) CHECK_INT(send(c, words, strlen(words), MSG_NOSIGNAL), (int64_t)strlen(words));
        close(c);
    }
}
static void others_rank(int rank, void *ctx) {
    int what = *(const int *)ctx, other, other_fd = -1;
    mesh_socket_desc d = socket_desc(rank, 2, mend_port, rank ? 0 : mend_fd);
    mesh_socket net;
    mesh_error err;
    if (what == OTHERS_ANSWER_BESIDE && rank == 1) {
        other_fd = listen_loopback(AF_INET, &other);
        failing_also.sin_family = AF_INET;
        failing_also.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        failing_also.sin_port = htons((uint16_t)other);
        fflush(NULL);
        if (fork() == 0) {
            answer_others(other_fd, 1, "HTTP/1.1 400");
            _exit(0);
        }
    }
    if (rank == 0 && what != OTHERS_ANSWER_BESIDE)
        answer_others(mend_fd, what == OTHERS_ANSWER ? 1 : 3 * MESH_SOCKET__HANGUPS,
                      what == OTHERS_ANSWER ? "HTTP/1.1 400" : "");
    hint_text[0] = 0;
    d.log = hint_log;
    d.open_timeout_ns = 60 * SECOND;
    if (what == OTHERS_ANSWER) {
        if (rank == 0) return;
        CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_TRANSPORT);
        CHECK_HAS(err.text, "it does not speak this protocol; another program listens there: set another MASTER_PORT");
        return;
    }
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (what == OTHERS_HANG_UP && rank == 1) CHECK_HAS(hint_text, "if it is another program, set another MASTER_PORT");
    mesh_socket_close(&net);
    if (other_fd >= 0) wait(NULL);
}
static void test_others(void) {
    int what;
    for (what = OTHERS_HANG_UP; what <= OTHERS_ANSWER_BESIDE; what++) {
        mend_fd = listen_loopback(AF_INET, &mend_port);
        mend_processes(2, others_rank, &what);
        close(mend_fd);
    }
}

/* Of two addresses where nobody is each says why; both of them loopback's, and that is down, nothing is waited for. */
static void test_nobody_at_two(void) {
    int port, fd = listen_loopback(AF_INET, &port);
    mesh_socket_desc d = socket_desc(1, 2, port, 0);
    failing_plan plan = MESH_ZERO;
    mesh_socket net;
    mesh_error err;
    close(fd);
    failing_also.sin_family = AF_INET;
    failing_also.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    failing_also.sin_port = htons((uint16_t)port);
    d.open_timeout_ns = SECOND;
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_TIMEOUT);
    CHECK_HAS(err.text, ": 127.0.0.2: ");
    CHECK_HAS(err.text, "refused, 127.0.0.1: ");
    CHECK_HAS(err.text, "refused; is rank 0 running");
    plan.kinds = FAIL_CONNECT, plan.at = 1, plan.times = INT32_MAX, plan.error = ENETUNREACH;
    failing_now = &plan;
    d.open_timeout_ns = 60 * SECOND;
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_TRANSPORT);
    CHECK_HAS(err.text, "loopback is down here; bring it up");
    CHECK_INT(plan.failed, 2);
    failing_now = NULL;
    failing_also.sin_family = 0;
}

/* A name that is not known yet is asked for again, up to the deadline; then the text says what was the matter. */
static void unknown_yet_rank(int rank, void *ctx) {
    mesh_socket_desc d = socket_desc(rank, 2, mend_port, mend_fd);
    failing_plan plan = MESH_ZERO;
    mesh_socket net;
    mesh_error err;
    (void)ctx;
    plan.kinds = FAIL_GETADDRINFO, plan.at = 1, plan.times = 3;
    if (rank == 1) failing_now = &plan;
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (rank == 1) CHECK_INT(plan.failed, 3);
    mesh_socket_close(&net);
    if (rank == 0) return;
    plan.times = INT32_MAX;
    plan.calls = plan.failed = 0;
    d.open_timeout_ns = SECOND / 10;
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_TRANSPORT);
    CHECK_HAS(err.text, "cannot resolve rank 0's address \"127.0.0.1\": ");
    CHECK_HAS(err.text, gai_strerror(EAI_AGAIN));
    CHECK(plan.failed > 1);
    failing_now = NULL;
}
static void test_unknown_yet(void) {
    mend_fd = listen_loopback(AF_INET, &mend_port);
    mend_processes(2, unknown_yet_rank, NULL);
    close(mend_fd);
}

/* Ranks that die on the way in: an allocation of this size, for the n-th time, is the last thing that they do; or it fails. */
static size_t fatal_size;
static int fatal_left, fatal_dies;
static void *fatal_alloc(void *ctx, size_t n) {
    (void)ctx;
    if (n == fatal_size && --fatal_left == 0) {
        if (fatal_dies) _exit(0);
        return NULL;
    }
    return malloc(n);
}
static void fatal_free(void *ctx, void *p) {
    (void)ctx;
    free(p);
}
static void fatal_open(int ranks, size_t size, int times, int dies, mesh_status status, const char *want) {
    mesh_error err;
    mesh_socket net;
    int port, fd = listen_loopback(AF_INET, &port), state;
    mesh_socket_desc d = socket_desc(0, ranks, port, fd);
    int64_t deadline;
    pid_t pid;
    d.open_timeout_ns = 10 * SECOND;
    fflush(NULL);
    if ((pid = fork()) == 0) {
        mesh_socket_desc e = socket_desc(1, ranks, port, 0);
        close(fd);
        fatal_size = size, fatal_left = times, fatal_dies = dies;
        e.allocator.alloc = fatal_alloc, e.allocator.free = fatal_free;
        if (mesh_socket_open(&net, &e, &err)) _exit(1);
        mesh_socket_close(&net);
        _exit(0);
    }
    deadline = mesh_socket__clock() + d.open_timeout_ns;
    err.text[0] = 0;
    CHECK_INT(mesh_socket_open(&net, &d, &err), status);
    if (want) CHECK_HAS(err.text, want);
    CHECK(mesh_socket__clock() < deadline); /* who is gone, or stays, is not waited for to the end */
    mesh_socket_close(&net);
    CHECK(test_wait_child(pid, test_now() + 20, &state) && WIFEXITED(state) && WEXITSTATUS(state) == 0);
}
static void test_lost_early(void) {
    fatal_open(3, MESH_SOCKET__RBUF, 1, 1, MESH_ERR_PEER, "rank 1 came and was lost again before all had come");
}
static void test_lost_moving(void) { fatal_open(2, sizeof(mesh_socket__conn), 2, 1, MESH_OK, NULL); }
static void test_stays(void) { fatal_open(2, sizeof(mesh_socket__conn), 2, 0, MESH_OK, NULL); }

/* A book is what rank 0 says while this rank opens, and as long as the world: nothing else is. */
static void test_book_only(void) {
    static const uint64_t length[] = {
        0, 1, MESH_SOCKET__ENTRY, 2 * MESH_SOCKET__ENTRY - 1, 2 * MESH_SOCKET__ENTRY, 3 * MESH_SOCKET__ENTRY};
    mesh_socket__conn c;
    int opening, rank;
    size_t i;
    law_open(2, MESH_SOCKET_UNIX);
    memset(&c, 0, sizeof c);
    for (opening = 0; opening < 2; opening++)
        for (rank = 0; rank < 2; rank++)
            for (i = 0; i < 6; i++) {
                c.rx.type = MESH_SOCKET__F_BOOK, c.rx.length = (uint32_t)length[i];
                c.rank = rank;
                law_impl(1)->in_open = opening;
                CHECK_INT(mesh_socket__frame_valid(law_impl(1), &c), opening && rank == 0 && i == 4);
            }
    law_impl(1)->in_open = 0;
    law_close();
}

/* Ranks that want TCP, and ranks that do not, are one world; nobody waits for a Unix-domain socket that is not there. */
static void some_tcp(int rank, mesh_socket_desc *d) {
    d->lanes = rank % 2 ? MESH_SOCKET_TCP : MESH_SOCKET_AUTO;
    d->open_timeout_ns = 10 * SECOND;
}
static void test_mixed_lanes(void) {
    int64_t deadline = mesh_socket__clock() + 10 * SECOND;
    int a, b;
    law_open_as(4, 0, some_tcp);
    CHECK(mesh_socket__clock() < deadline);
    for (a = 0; a < 4; a++)
        for (b = 0; b < a; b++) {
            law_meet(a, b);
            CHECK_INT(law_peer(a, b)->conn->is_unix, !(a % 2) && !(b % 2));
        }
    law_balanced(__LINE__);
    law_close();
}

/* A connection over TCP: small messages do not wait. To another host, one that falls silent is found within 20 s; on this host nothing is sent
   to find out, for it is never silent to itself. */
static void test_tcp_options(void) {
    mesh_socket__conn *c;
    struct sockaddr_in elsewhere;
    int i, value[5] = {0, 0, 0, 0, 0};
    socklen_t length;
    memset(&elsewhere, 0, sizeof elsewhere);
    elsewhere.sin_family = AF_INET;
    law_open(2, MESH_SOCKET_TCP);
    for (i = 0; i < 2; i++) {
        c = law_peer(i, 1 - i)->conn;
        length = sizeof value[0], getsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &value[0], &length);
        CHECK(value[0] && c->is_near);
        length = sizeof value[1], getsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &value[1], &length);
        CHECK_INT(value[1], 0);
        law_impl(i)->book[1 - i].host ^= 1; /* as if it were elsewhere */
        c->is_near = 0;
        mesh_socket__tune(c->fd, (struct sockaddr *)(void *)&elsewhere);
        mesh_socket__place_known(law_impl(i), c);
        CHECK_INT(c->is_near, 0);
        length = sizeof value[1], getsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &value[1], &length);
        CHECK_INT(value[1], 1);
#if MESH_SOCKET__LINUX
        length = sizeof value[2], getsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &value[2], &length);
        length = sizeof value[3], getsockopt(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, &value[3], &length);
        length = sizeof value[4], getsockopt(c->fd, IPPROTO_TCP, TCP_KEEPCNT, &value[4], &length);
        CHECK(value[2] + value[3] * value[4] <= 20 && value[2] > 0);
#endif
        CHECK(fcntl(c->fd, F_GETFL) & O_NONBLOCK);
    }
    law_close();
}

/* A child of a rank's process: it closes there what it has from its parent, which goes on; it can do nothing else with it. */
static void forked_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    int v = 1, sum = 0, i, status = -1;
    void *p = NULL;
    mesh_error err;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 60 * SECOND)) return;
    CHECK_OK(mesh_alloc(t, 4096, &p, &err), err);
    for (i = 0; i < 3; i++) {
        pid_t child;
        CHECK_OK(mesh_all_reduce(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM), c.error);
        CHECK_INT(sum, t->size);
        if ((child = fork()) == 0) {
            int known = t->inside.alive != NULL, bad = 0;
            if (known && i) {
                bad |= mesh_all_reduce(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM) != MESH_ERR_STATE ? 1 : 0;
                bad |= !strstr(c.error.text, "mesh_all_reduce: the transport is not open in this process, a fork of") ? 2 : 0;
                bad |= mesh_progress(t, 0) != MESH_ERR_STATE || mesh_fd(t) != -1 ? 4 : 0;
                bad |= mesh_comm_close(&c) != MESH_ERR_STATE ? 8 : 0;
            }
            bad |= mesh_socket_close(mesh_socket__of(t)->net) != MESH_OK || t->ops ? 16 : 0;
            if (known && i) { /* and afterwards */
                bad |= mesh_barrier(&c, NULL) != MESH_ERR_STATE || mesh_comm_close(&c) != MESH_ERR_STATE ? 32 : 0;
                bad |= mesh_abort(&c, NULL) != MESH_ERR_STATE || mesh_copy(&c, &v, &sum, 4) != MESH_ERR_STATE ? 64 : 0;
            }
            _exit(bad);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK_INT(status, 0);
    }
    CHECK_OK(mesh_all_reduce(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM), c.error);
    CHECK_INT(sum, t->size);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_forked(void) {
    enum { NOBODY = 3 }; /* processes in any case */
    run_world_but(TCP, 3, forked_rank, NULL, NOBODY);
    run_world_but(UNIX, 3, forked_rank, NULL, NOBODY);
    run_world_but(SHARED, 3, forked_rank, NULL, NOBODY);
}

/* Where a program has closed its first descriptors no socket becomes one of them. */
static void test_standard(void) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        mesh_socket net;
        mesh_socket_desc d = socket_desc(0, 1, 1, -1);
        struct stat null, is;
        int fd, bad = 0;
        for (fd = 0; fd < 3; fd++) close(fd);
        bad |= mesh_socket_open(&net, &d, NULL) != MESH_OK ? 1 : 0;
        bad |= stat("/dev/null", &null) ? 2 : 0;
        for (fd = 0; fd < 3; fd++) bad |= fstat(fd, &is) || is.st_rdev != null.st_rdev || !S_ISCHR(is.st_mode) ? 4 << fd : 0;
        bad |= mesh_socket_close(&net) != MESH_OK ? 32 : 0;
        _exit(bad);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
}

/* A secret that comes in pieces, as from a pipe, is read to its end. */
static void test_secret_in_pieces(void) {
    char path[64], text[256];
    const char *secret = NULL;
    mesh_error err;
    int ends[2], left = 1, status = -1;
    pid_t child;
    CHECK_INT(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        double end = test_now() + 20;
        close(ends[0]);
        if (write(ends[1], "open se", 7) != 7) _exit(1);
        while (!ioctl(ends[1], FIONREAD, &left) && left && test_now() < end) test_sleep(0.001); /* the first piece is taken */
        _exit(write(ends[1], "same\n", 5) != 5);
    }
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    setenv("MESH_SECRET_FILE", path, 1);
    CHECK_OK(mesh_socket__secret_file(text, sizeof text, &secret, &err), err);
    CHECK(secret && !strcmp(secret, "open sesame"));
    unsetenv("MESH_SECRET_FILE");
    close(ends[0]);
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
}

static const test_case opening_tests[] = {
    {"sockets/places", test_places, 0},
    {"sockets/variables", test_variables, 0},
    {"sockets/hmac_lengths", test_hmac_lengths, 0},
    {"sockets/addresses", test_addresses, 0},
    {"sockets/neighbours", test_neighbours, 0},
    {"sockets/quota", test_quota, 0},
    {"sockets/quota_1", test_quota_1, 0},
    {"sockets/outward", test_outward, 0},
    {"sockets/own_link", test_own_link, 0},
    {"sockets/files", test_files, 0},
    {"sockets/inherited", test_inherited, 0},
    {"sockets/comes_first", test_comes_first, 0},
    {"sockets/own_port", test_own_port, 0},
    {"sockets/mirror", test_mirror, 0},
    {"sockets/two_addresses", test_two_addresses, 0},
    {"sockets/others", test_others, 0},
    {"sockets/nobody_at_two", test_nobody_at_two, 0},
    {"sockets/loopback_first", test_loopback_first, 0},
    {"sockets/unknown_yet", test_unknown_yet, 0},
    {"sockets/lost_early", test_lost_early, 0},
    {"sockets/lost_moving", test_lost_moving, 0},
    {"sockets/stays", test_stays, 0},
    {"sockets/book_only", test_book_only, 0},
    {"sockets/mixed_lanes", test_mixed_lanes, 0},
    {"sockets/tcp_options", test_tcp_options, 0},
    {"sockets/forked", test_forked, 0},
    {"sockets/standard", test_standard, 0},
    {"sockets/secret_in_pieces", test_secret_in_pieces, 0},
};

#endif
