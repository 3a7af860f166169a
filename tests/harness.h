/* The test harness: each test runs in a process of its own with a time limit; checks print both sides. */
#ifndef HARNESS_H
#define HARNESS_H

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct test_case {
    const char *name;
    void (*run)(void);
    int limit_s; /* 0: the default */
} test_case;

static uint64_t test_seed = 1;
static volatile int test_failures; /* of this process, all threads */

static void test_fail(const char *file, int line, const char *format, ...) {
    va_list args;
    const char *slash = strrchr(file, '/');
    if (__sync_add_and_fetch(&test_failures, 1) > 20) return;
    fprintf(stderr, "    %s:%d: ", slash ? slash + 1 : file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, " (seed %" PRIu64 ")\n", test_seed);
}

#define CHECK(cond)                                              \
    do {                                                         \
        if (!(cond)) test_fail(__FILE__, __LINE__, "%s", #cond); \
    } while (0)
#define CHECK_INT(got, want)                                                                                      \
    do {                                                                                                          \
        int64_t got_ = (int64_t)(got), want_ = (int64_t)(want);                                                   \
        if (got_ != want_)                                                                                        \
            test_fail(__FILE__, __LINE__, "%s is %" PRId64 ", expected %s = %" PRId64, #got, got_, #want, want_); \
    } while (0)
#define CHECK_STR(got, want)                                                                                          \
    do {                                                                                                              \
        const char *got_ = (got), *want_ = (want);                                                                    \
        if (strcmp(got_, want_)) test_fail(__FILE__, __LINE__, "%s is\n\"%s\", expected\n\"%s\"", #got, got_, want_); \
    } while (0)
/* The text holds every one of the fragments. */
#define CHECK_HAS(got, fragment)                                                                  \
    do {                                                                                          \
        const char *got_ = (got), *want_ = (fragment);                                            \
        if (!strstr(got_, want_))                                                                 \
            test_fail(__FILE__, __LINE__, "%s is \"%s\", which lacks \"%s\"", #got, got_, want_); \
    } while (0)
#define CHECK_OK(call, err)                                                                                         \
    do {                                                                                                            \
        int status_ = (int)(call);                                                                                  \
        if (status_)                                                                                                \
            test_fail(__FILE__, __LINE__, "%s: %s: %s", #call, mesh_status_text((mesh_status)status_), (err).text); \
    } while (0)

/* xorshift64*: the tests' own random numbers, the same everywhere. */
typedef struct test_random {
    uint64_t state;
} test_random;

static test_random random_from(uint64_t salt) {
    test_random r;
    r.state = (test_seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (salt + 1) * UINT64_C(0xbf58476d1ce4e5b9);
    return r;
}

static uint64_t random_next(test_random *r) {
    r->state ^= r->state >> 12;
    r->state ^= r->state << 25;
    r->state ^= r->state >> 27;
    return r->state * UINT64_C(2685821657736338717);
}

static int random_below(test_random *r, int n) { return (int)((random_next(r) >> 33) % (uint64_t)n); }

static double test_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void test_sleep(double seconds) {
    struct timespec t;
    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    while (nanosleep(&t, &t) && errno == EINTR) {}
}

/* Wait for a child until a deadline. Returns 1 and its status, or 0 when time is up. */
static int test_wait_child(pid_t pid, double deadline, int *status) {
    double nap = 0.0002;
    for (;;) {
        pid_t got = waitpid(pid, status, WNOHANG);
        if (got == pid) return 1;
        if (got < 0 && errno != EINTR) return 0;
        if (test_now() > deadline) return 0;
        test_sleep(nap);
        if (nap < 0.01) nap *= 1.5;
    }
}

/* Files of expected results (tests/golden), found beside this source or below the working directory. */
static FILE *golden_open(const char *name) {
    static const char *const beside = __FILE__;
    const char *slash = strrchr(beside, '/');
    char path[1024];
    FILE *f;
    snprintf(path, sizeof path, "%.*sgolden/%s", slash ? (int)(slash + 1 - beside) : 0, beside, name);
    if ((f = fopen(path, "r")) != NULL) return f;
    snprintf(path, sizeof path, "tests/golden/%s", name);
    if ((f = fopen(path, "r")) != NULL) return f;
    test_fail(__FILE__, __LINE__, "cannot open golden file %s: run from the repository's root", name);
    return NULL;
}

/* Read the next row into fields split at commas. Returns the number of fields, 0 at the end. Comments and the header are skipped. */
typedef struct golden_file {
    FILE *file;
    int line, header_seen;
    char text[1 << 16];
    char *field[24];
} golden_file;

static int golden_next(golden_file *g) {
    while (fgets(g->text, sizeof g->text, g->file)) {
        int n = 0;
        char *p = g->text;
        g->line++;
        p[strcspn(p, "\r\n")] = 0;
        if (*p == '#' || !*p) continue;
        if (!g->header_seen) {
            g->header_seen = 1;
            continue;
        }
        while (n < 24) {
            g->field[n++] = p;
            p = strchr(p, ',');
            if (!p) break;
            *p++ = 0;
        }
        return n;
    }
    return 0;
}

static golden_file *golden_start(const char *name) {
    golden_file *g = (golden_file *)calloc(1, sizeof *g);
    if (!g || !(g->file = golden_open(name))) {
        free(g);
        return NULL;
    }
    return g;
}

static void golden_end(golden_file *g) {
    fclose(g->file);
    free(g);
}

/* ---- running ---- */

typedef struct test_options {
    int list, verbose, default_limit_s;
    const char *const *filters;
    int nfilters;
} test_options;

static int test_selected(const test_options *o, const char *name) {
    int i;
    for (i = 0; i < o->nfilters; i++)
        if (strstr(name, o->filters[i])) return 1;
    return o->nfilters == 0;
}

static int test_run_one(const test_case *t, const test_options *o) {
    int status = 0, limit = t->limit_s ? t->limit_s : o->default_limit_s, ok;
    double start = test_now();
    pid_t pid;
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        setpgid(0, 0); /* so that a time-out ends the ranks the test forked too */
        t->run();
        fflush(NULL);
        exit(test_failures ? 1 : 0);
    }
    if (pid < 0) {
        printf("FAIL %s: fork: %s\n", t->name, strerror(errno));
        return 0;
    }
    if (!test_wait_child(pid, start + limit, &status)) {
        kill(-pid, SIGKILL);
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        printf("FAIL %s: no end after %d s\n", t->name, limit);
        return 0;
    }
    ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!ok && WIFSIGNALED(status))
        printf("FAIL %s: signal %d (seed %" PRIu64 ")\n", t->name, WTERMSIG(status), test_seed);
    else if (!ok)
        printf("FAIL %s (seed %" PRIu64 ")\n", t->name, test_seed);
    else
        printf("ok   %-48s %6.2f s\n", t->name, test_now() - start);
    return ok;
}

typedef struct test_topic {
    const test_case *tests;
    size_t count;
} test_topic;

#define TOPIC(tests) \
    { tests, sizeof tests / sizeof tests[0] }

/* [--list] [--seed N] [--limit S] [part of a name ...]: runs the tests whose name holds one of the parts. */
static int test_main(int argc, char **argv, const char *program, const test_topic *topics, size_t ntopics) {
    test_options o;
    int i, passed = 0, failed = 0;
    size_t topic, k;
    memset(&o, 0, sizeof o);
    o.default_limit_s = 120;
    for (i = 1; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--list")) {
            o.list = 1;
        } else if (!strcmp(argv[i], "--seed") && i + 1 < argc) {
            test_seed = strtoull(argv[++i], NULL, 10);
        } else if (!strcmp(argv[i], "--limit") && i + 1 < argc) {
            o.default_limit_s = atoi(argv[++i]);
        } else {
            fprintf(stderr, "usage: %s [--list] [--seed N] [--limit SECONDS] [part of a test's name ...]\n", program);
            return 2;
        }
    }
    o.filters = (const char *const *)(argv + i);
    o.nfilters = argc - i;
    for (topic = 0; topic < ntopics; topic++)
        for (k = 0; k < topics[topic].count; k++) {
            const test_case *t = &topics[topic].tests[k];
            if (!test_selected(&o, t->name)) continue;
            if (o.list)
                puts(t->name);
            else if (test_run_one(t, &o))
                passed++;
            else
                failed++;
            fflush(stdout);
        }
    if (o.list) return 0;
    if (passed + failed == 0) {
        fprintf(stderr, "%s: no test's name holds what was asked for; see --list\n", program);
        return 2;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}

#endif
