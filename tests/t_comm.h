/* mesh_collectives.h on our transports: the conformance suite, mutants that must fail it, disagreements, faults, errors. */
#ifndef T_COMM_H
#define T_COMM_H

#include "worlds.h"
#include <locale.h>

/* The command's merging of traces, and what it wants of tools/mesh.c. */
static int is_help(const char *arg) { return !strcmp(arg, "--help"); }
static int wrong(const char *command, const char *what, const char *value) {
    return fprintf(stderr, "%s: %s: %s\n", command, what, value ? value : ""), 2;
}
#include "../tools/trace.h"

/* ---- conformance ---- */

static void conform_rank(mesh_transport *t, void *ctx) {
    size_t large = *(const size_t *)ctx;
    if (t->size > 3) large = large / 4 + 1; /* the buffers' total is what takes the time */
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
static void test_conform_shared(void) { conform(SHARED, 100003); }

/* A transport that can do less or more: blocks are packed for it, its receives reduce. */
static void able_rank(mesh_transport *t, void *ctx) {
    conformance_redistribute(t, test_seed + 9, 40, 400);
    conform_rank(t, ctx);
}
static void test_conform_able(void) {
    static const int sizes[] = {2, 3, 8};
    size_t large = 2003;
    int i, k;
    for (k = 1; k < 4; k++)
        for (i = 0; i < 3 - (k == 3); i++) {
            mesh_sim_desc d = sim_desc(sizes[i]);
            mesh_error err;
            d.reduces = k & 1;
            d.packed = k >> 1;
            CHECK_OK(mesh_sim_run(&d, able_rank, &large, &err), err);
        }
    test_failures += conformance_failures;
}

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
    static const int sizes[] = {2, 3, 5, 8};
    int i;
    for (i = 0; i < 4; i++) run_world(SIM, sizes[i], tables_rank, NULL);
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
    mesh_tuning t, had;
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
    had = t;
    CHECK_INT(mesh_tuning_parse(&t, text, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "more than 48 rows");
    CHECK_INT(mesh_tuning_parse(&t, "scan ranks<=3 bytes<=4 chain\nscan ranks<=3 bytes<=4 ring", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "line 2: no algorithm \"ring\" for \"scan\"");
    CHECK(!memcmp(&t, &had, sizeof t)); /* what is refused leaves the table there was */
}

/* ---- traces: ranks write them on clocks of their own, and they are merged on rank 0's ---- */

enum { TRACE_RANKS = 3, TRACE_TIMES = 20 };

/* Rank 1's wall clock is three seconds behind rank 0's, rank 2's five ahead. A message goes from rank 0 by way of 1 to 2, again and again. */
static void trace_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    int k, me = t->rank, x = 7;
    (void)ctx;
    t->trace_epoch += me == 1 ? -3 * SECOND : me == 2 ? 5 * SECOND : 0;
    if (!open_comm(t, &c, "x=3", NULL, 10 * SECOND)) return;
    for (k = 0; k < TRACE_TIMES; k++) {
        CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
        if (me == 0) test_sleep(0.001); /* the others wait by now */
        if (me > 0) CHECK_INT(mesh_recv(&c, "x", me - 1, &x, 1, MESH_I32), MESH_OK);
        if (me + 1 < t->size) CHECK_INT(mesh_send(&c, "x", me + 1, &x, 1, MESH_I32), MESH_OK);
    }
    mesh_comm_close(&c);
}

static void trace_directory(char *dir, size_t cap) {
    const char *base = getenv("TMPDIR");
    snprintf(dir, cap, "%s/mesh-trace-%ld", base && *base ? base : "/tmp", (long)getpid());
}
static void trace_remove(const char *dir) {
    static const char *const names[] = {"rank-0.json", "rank-1.json", "rank-2.json",
                                        "rank-3.json", "trace.json",  "said"};
    char path[1100];
    size_t i;
    for (i = 0; i < sizeof names / sizeof names[0]; i++)
        snprintf(path, sizeof path, "%s/%s", dir, names[i]), remove(path);
    rmdir(dir);
}

/* `mesh trace dir`, and what it says. */
static int trace_said(char *dir, char *said, size_t cap) {
    char path[1100], *argv[1];
    int out = dup(1), status;
    FILE *f;
    size_t n;
    argv[0] = dir;
    fflush(stdout);
    snprintf(path, sizeof path, "%s/said", dir);
    CHECK(freopen(path, "w", stdout) != NULL);
    status = command_trace("mesh", 1, argv);
    fflush(stdout);
    dup2(out, 1);
    close(out);
    f = fopen(path, "r");
    n = f ? fread(said, 1, cap - 1, f) : 0;
    said[n] = 0;
    if (f) fclose(f);
    return status;
}

typedef struct merged_trace {
    trace_event event[64 * TRACE_RANKS];
    int n;
} merged_trace;

static void trace_load(merged_trace *m, const char *path) {
    FILE *f = fopen(path, "r");
    char line[2048];
    m->n = 0;
    while (f && fgets(line, sizeof line, f) && m->n < 64 * TRACE_RANKS)
        m->n += trace_read_line(line + (line[0] == '['), &m->event[m->n]);
    CHECK(f && fclose(f) == 0);
}

/* Number k of a rank's events of one call. */
static const trace_event *trace_find(const merged_trace *m, int rank, const char *call, int k) {
    int i;
    for (i = 0; i < m->n; i++)
        if (m->event[i].rank == rank && !strcmp(m->event[i].call, call) && k-- == 0) return &m->event[i];
    test_fail(__FILE__, __LINE__, "no such event: rank %d, %s", rank, call);
    return NULL;
}

/* The first ends after the second has begun, as far as the clocks say. */
static void trace_check_after(const trace_event *later, const trace_event *earlier, double within) {
    if (later && earlier && later->ts + later->us < earlier->ts - within)
        test_fail(__FILE__, __LINE__, "rank %d's %s ends %.1f us before rank %d's %s begins, within %.1f us",
                  later->rank, later->call, earlier->ts - later->ts - later->us, earlier->rank, earlier->call, within);
}

static void trace_clocks_on(int backend) {
    static const char *const locales[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR", "ru_RU.UTF-8"};
    char dir[512], path[1100], said[8192];
    merged_trace all;
    int64_t most = 0;
    int k, a, b;
    size_t i;
    for (i = 0; i < sizeof locales / sizeof locales[0] && !setlocale(LC_ALL, locales[i]);)
        i++; /* numbers with a comma */
    trace_directory(dir, sizeof dir);
    setenv("MESH_TRACE", dir, 1);
    run_world(backend, TRACE_RANKS, trace_rank, NULL);
    CHECK_INT(trace_said(dir, said, sizeof said), 0);
    CHECK_HAS(said, "\ntimes are rank 0's, to within ");
    CHECK(!strstr(said, "not compared"));
    for (k = 1; k < TRACE_RANKS; k++) { /* what each found out: on one host nothing but the shift */
        int64_t offset = 0, within = 0, shift = k == 1 ? -3 * SECOND : 5 * SECOND;
        FILE *f;
        snprintf(path, sizeof path, "%s/rank-%d.json", dir, k);
        f = fopen(path, "r");
        CHECK(f && trace_read_clock(f, &offset, &within));
        if (f) fclose(f);
        CHECK(within > 0 && within < SECOND);
        CHECK(offset + shift > -SECOND && offset + shift < SECOND);
        if (within > most) most = within;
    }
    snprintf(path, sizeof path, "%s/trace.json", dir);
    trace_load(&all, path);
    for (k = 0; k < TRACE_TIMES; k++) {
        double within = 2 * (double)most / 1000; /* both may be off */
        for (a = 0; a < TRACE_RANKS; a++)        /* nobody leaves a barrier before all have come */
            for (b = 0; b < TRACE_RANKS; b++)
                trace_check_after(trace_find(&all, a, "barrier", k), trace_find(&all, b, "barrier", k), within);
        for (a = 1; a < TRACE_RANKS; a++) /* nothing is received before it is sent */
            trace_check_after(trace_find(&all, a, "recv", k), trace_find(&all, a - 1, "send", k), within);
    }
    trace_remove(dir);
}
static void test_trace_clocks(void) { trace_clocks_on(TCP), trace_clocks_on(UNIX); }

/* One rank alone traces: the others neither wait for its questions nor mind them, and it is told that nobody keeps rank 0's clock. */
static void test_trace_alone(void) {
    int alone;
    for (alone = 0; alone < TRACE_RANKS; alone++) {
        char dir[512], path[1100];
        pid_t pid[TRACE_RANKS];
        int i, status, port = 0, fd = listen_loopback(AF_INET, &port);
        int64_t offset, within;
        FILE *f;
        trace_directory(dir, sizeof dir);
        fflush(NULL);
        for (i = 0; i < TRACE_RANKS; i++)
            if ((pid[i] = fork()) == 0) {
                if (i == alone) setenv("MESH_TRACE", dir, 1);
                socket_child(UNIX, i, TRACE_RANKS, port, fd, trace_rank, NULL);
            }
        close(fd);
        for (i = 0; i < TRACE_RANKS; i++) {
            CHECK(test_wait_child(pid[i], test_now() + 30, &status));
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        snprintf(path, sizeof path, "%s/rank-%d.json", dir, alone);
        f = fopen(path, "r");
        CHECK(f && !trace_read_clock(f, &offset, &within));
        if (f) fclose(f);
        trace_remove(dir);
    }
}

/* Two comms without a common rank, of one id and of names of their own: their collectives are not taken for one another's. */
static void trace_halves_rank(mesh_transport *t, void *ctx) {
    static const char *const names[] = {"prefill", "de\"co\xff........................\xc3\xa4"};
    mesh_comm c, half;
    mesh_comm_desc d = MESH_ZERO;
    mesh_error err;
    int k, x = 1, size = 2, me = t->rank;
    mesh_desc at = MESH_ZERO;
    mesh m;
    (void)ctx;
    if (!open_comm(t, &c, "x=4", NULL, 60 * SECOND)) return;
    at.shape = &size, at.naxes = 1, at.origin = me / 2 * 2;
    d.name = names[me / 2];
    CHECK_OK(mesh_make(&m, &at, &err), err);
    CHECK_OK(mesh_comm_open(&half, t, &m, &d, &err), err);
    for (k = 0; k < TRACE_TIMES + 5 * (me / 2); k++)
        CHECK_OK(mesh_all_reduce(&half, NULL, &x, &x, 1, MESH_I32, MESH_MAX), half.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    mesh_comm_close(&half);
    mesh_comm_close(&c);
}
static void test_trace_halves(void) {
    static const char *const others[] = {"rank--1", "rank-3x", "rank-99999999", "rank- 3"};
    char dir[512], path[1100], said[8192], want[120], *last;
    size_t i;
    trace_directory(dir, sizeof dir);
    setenv("MESH_TRACE", dir, 1);
    run_world(UNIX, 4, trace_halves_rank, NULL);
    for (i = 0; i < 4; i++) { /* no rank's files */
        char from[1100];
        snprintf(from, sizeof from, "%s/rank-3.json", dir);
        snprintf(path, sizeof path, "%s/%s.json", dir, others[i]);
        CHECK_INT(link(from, path), 0);
    }
    CHECK_INT(trace_said(dir, said, sizeof said), 0);
    snprintf(want, sizeof want, "\nlast to come, of %d collectives:\n", 2 * TRACE_TIMES + 5 + 1);
    CHECK_HAS(said, want);
    CHECK_HAS(said, "\nprefill ");
    CHECK_HAS(said, "\nde_co_........................ ");
    snprintf(path, sizeof path, "%s/rank-3.json", dir); /* its collectives have one rank left, and are counted apart */
    remove(path);
    CHECK_INT(trace_said(dir, said, sizeof said), 0);
    snprintf(want, sizeof want, "\nlast to come, of %d collectives (%d more are not in the files of all their ranks):\n", TRACE_TIMES,
             TRACE_TIMES + 5 + 1);
    CHECK_HAS(said, want);
    last = strstr(said, "(all_reduce on ");
    CHECK(last && strstr(last, "of prefill, sequence "));
    for (i = 0; i < 4; i++) snprintf(path, sizeof path, "%s/%s.json", dir, others[i]), remove(path);
    trace_remove(dir);
}

/* On the simulator all clocks are one, but for what trace_epoch says. Ranks learn rank 0's from the first rank of a comm, if that one knows. */
typedef struct clock_heard {
    int times;
    int64_t offset, within;
} clock_heard;

static void clock_hear(void *ctx, int64_t offset, int64_t within) {
    clock_heard *h = (clock_heard *)ctx;
    h->times++;
    h->offset = offset;
    h->within = within;
}

static void clock_chain_rank(mesh_transport *t, void *ctx) {
    /* In this order; the second time its first rank knows, which may not have opened the comm before when it was asked the first time. */
    static const int pairs[][2] = {{2, 3}, {0, 1}, {1, 2}, {1, 2}, {2, 3}, {2, 3}};
    static const int knows[] = {0, 1, 3, 5}; /* which of them makes a rank know */
    clock_heard h = {0, 0, 0};
    int k, size = 2;
    (void)ctx;
    t->trace_clock = clock_hear;
    t->trace_ctx = &h;
    t->trace_epoch = t->rank * SECOND;
    for (k = 0; k < 6; k++) {
        mesh_desc d = MESH_ZERO;
        mesh m;
        mesh_comm c;
        mesh_error err;
        d.shape = &size;
        d.naxes = 1;
        d.origin = pairs[k][0];
        CHECK_OK(mesh_make(&m, &d, &err), err);
        if (mesh_index_of(&m, t->rank) >= 0) {
            CHECK_OK(mesh_comm_open(&c, t, &m, NULL, &err), err);
            mesh_comm_close(&c);
        }
        if (k >= knows[t->rank]) CHECK_INT(h.times, t->rank > 0);
        if (k == 0) CHECK_INT(h.times, 0);
    }
    CHECK(h.offset + t->rank * SECOND <= h.within && -h.offset - t->rank * SECOND <= h.within);
    CHECK(h.within < SECOND / 100 && (t->rank == 0 || h.within > 0));
}
static void test_trace_chain(void) { run_world(SIM, 4, clock_chain_rank, NULL); }

/* A first rank that does not come, or goes, is told of as without clocks to compare: by the comm's deadline, or at once. */
static void clock_absent_rank(mesh_transport *t, void *ctx) {
    static clock_heard h;
    mesh m;
    mesh_comm c;
    mesh_error err;
    mesh_comm_desc d = MESH_ZERO;
    double start = test_now();
    int leaves = *(const int *)ctx;
    t->trace_clock = clock_hear;
    t->trace_ctx = &h;
    if (t->rank == 0) {
        if (!leaves) world_await(0, 1);
        return;
    }
    d.timeout_ns = leaves ? 30 * SECOND : SECOND / 2;
    CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err);
    CHECK_INT(mesh_comm_open(&c, t, &m, &d, &err), leaves ? MESH_ERR_PEER : MESH_ERR_TIMEOUT);
    CHECK_HAS(err.text,
              leaves ? "rank 0 has closed its transport" : "rank 0, the first of the mesh \"x=2\", has not opened it");
    CHECK(test_now() - start < (leaves ? 10 : 5));
    CHECK_INT(h.times, 0);
    world_say(0);
}
static void test_trace_absent(void) {
    int leaves;
    for (leaves = 0; leaves < 2; leaves++) run_world(TCP, 2, clock_absent_rank, &leaves);
}

static const test_case comm_tests[] = {

    {"tables/values", test_tables, 0},
    {"tables/text", test_tables_text, 0},
    {"conformance/sim", test_conform_sim, 0},
    {"conformance/sim_free", test_conform_sim_free, 0},
    {"conformance/tcp", test_conform_tcp, 0},
    {"conformance/unix", test_conform_unix, 0},
    {"conformance/shared", test_conform_shared, 0},
    {"conformance/able", test_conform_able, 0},
    {"trace/clocks", test_trace_clocks, 0},
    {"trace/alone", test_trace_alone, 0},
    {"trace/halves", test_trace_halves, 0},
    {"trace/chain", test_trace_chain, 0},
    {"trace/absent", test_trace_absent, 0},
};

#endif
