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
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct test_case {
    const char *name;
    void (*run)(void);
    int limit_s; /* where that is more than the default */
} test_case;

static uint64_t test_seed = 1;
static int test_long;              /* --long: the sizes of scale, every pair instead of a sample */
static int test_side_by_side; /* so many at a time where --jobs does not say; 0 is by the cores */
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
/* Functions: a text in what a call returns is gone after the expression. */
static inline void test_str(const char *file, int line, const char *what, const char *got, const char *want) {
    if (strcmp(got, want)) test_fail(file, line, "%s is\n\"%s\", expected\n\"%s\"", what, got, want);
}
static inline void test_has(const char *file, int line, const char *what, const char *got, const char *fragment) {
    if (!strstr(got, fragment)) test_fail(file, line, "%s is \"%s\", which lacks \"%s\"", what, got, fragment);
}
#define CHECK_STR(got, want) test_str(__FILE__, __LINE__, #got, got, want)
#define CHECK_HAS(got, fragment) test_has(__FILE__, __LINE__, #got, got, fragment)
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

/* A golden list "a;b;c" as an axes text "a,b,c". */
static void commas(char *to, const char *from, size_t cap) {
    size_t i;
    for (i = 0; from[i] && i + 1 < cap; i++) to[i] = from[i] == ';' ? ',' : from[i];
    to[i] = 0;
}

/* And as numbers. Returns how many. */
static int int_list(const char *text, int *out, int cap) {
    int n = 0;
    while (*text && n < cap) {
        char *end;
        out[n++] = (int)strtol(text, &end, 10);
        text = *end ? end + 1 : end;
    }
    return n;
}

/* ---- running ---- */

typedef struct test_topic {
    const test_case *tests;
    size_t count;
    int alone; /* these want the machine to themselves: they run one at a time, after the others */
} test_topic;

#define TOPIC(tests) \
    { tests, sizeof tests / sizeof tests[0], 0 }
#define TOPIC_ALONE(tests) \
    { tests, sizeof tests / sizeof tests[0], 1 }

typedef struct test_options {
    int list, default_limit_s, jobs;
    const char *const *filters, *but[64];
    int nfilters, nbut;
    int part, parts, nasked; /* of the tests asked for, those whose number mod `parts` is `part` */
} test_options;

static int test_named(const test_options *o, const char *name) {
    int i;
    for (i = 0; i < o->nbut; i++)
        if (strstr(name, o->but[i])) return 0;
    for (i = 0; i < o->nfilters; i++)
        if (strstr(name, o->filters[i])) return 1;
    return o->nfilters == 0;
}

static int test_selected(test_options *o, const char *name) { return test_named(o, name) && o->nasked++ % o->parts == o->part; }

/* A test under way: a process that leads a group, so that a time-out ends the ranks it forked too. Its output goes to a file. */
typedef struct test_running {
    const test_case *test;
    pid_t pid;
    FILE *said;
    double start, limit;
} test_running;

enum { TEST_JOBS = 64 };
static test_running test_slot[TEST_JOBS];
static int test_passed, test_failed, test_stop; /* stop: at the first failure */

static void test_kill_all(void) {
    int i;
    for (i = 0; i < TEST_JOBS; i++)
        if (test_slot[i].pid > 0) kill(-test_slot[i].pid, SIGKILL);
}

static void test_interrupted(int signal_number) {
    test_kill_all();
    _exit(128 + signal_number);
}

static void test_count(int ok) {
    if (ok)
        test_passed++;
    else
        test_failed++;
    if (ok || !test_stop) return;
    test_kill_all();
    printf("%d passed, %d failed\n", test_passed, test_failed);
    exit(1);
}

static int test_start(test_running *r, const test_case *t, const test_options *o) {
    r->test = t;
    r->limit = t->limit_s > o->default_limit_s ? t->limit_s : o->default_limit_s;
    r->start = test_now();
    r->said = tmpfile();
    fflush(NULL);
    r->pid = r->said ? fork() : -1;
    if (r->pid == 0) {
        setpgid(0, 0);
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        dup2(fileno(r->said), 1);
        dup2(fileno(r->said), 2);
        t->run();
        fflush(NULL);
        exit(test_failures ? 1 : 0);
    }
    if (r->pid > 0) {
        setpgid(r->pid, r->pid); /* here too: a time-out may come before the child has done it */
        return 1;
    }
    printf("FAIL %s: not started: %s\n", t->name, strerror(errno));
    if (r->said) fclose(r->said);
    r->pid = 0;
    test_count(0);
    return 0;
}

static double test_children_cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_CHILDREN, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* Look at one that runs: returns 1 when it has ended, counted and told. */
static int test_reap(test_running *r) {
    double cpu = test_children_cpu(), now = test_now();
    int status = 0, late = 0, c;
    pid_t got = waitpid(r->pid, &status, WNOHANG);
    if (got == 0 && now - r->start > r->limit) {
        late = 1;
        kill(-r->pid, SIGKILL);
        kill(r->pid, SIGKILL);
        waitpid(r->pid, &status, 0);
    } else if (got != r->pid) {
        return 0;
    }
    kill(-r->pid, SIGKILL); /* what a failed test left */
    rewind(r->said);
    while ((c = getc(r->said)) != EOF) putchar(c);
    fclose(r->said);
    if (late)
        printf("FAIL %s: no end after %.0f s (seed %" PRIu64 ")\n", r->test->name, r->limit, test_seed);
    else if (WIFSIGNALED(status))
        printf("FAIL %s: signal %d (seed %" PRIu64 ")\n", r->test->name, WTERMSIG(status), test_seed);
    else if (WEXITSTATUS(status))
        printf("FAIL %s (seed %" PRIu64 ")\n", r->test->name, test_seed);
    else
        printf("ok   %-48s %6.2f s, processor %6.2f s\n", r->test->name, now - r->start, test_children_cpu() - cpu);
    fflush(stdout);
    r->pid = 0;
    test_count(!late && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 1;
}

/* Until at most `most` are running. */
static void test_drain(int most) {
    double nap = 0.0005;
    for (;;) {
        int i, running = 0;
        for (i = 0; i < TEST_JOBS; i++)
            if (test_slot[i].pid > 0 && !test_reap(&test_slot[i])) running++;
        if (running <= most) return;
        test_sleep(nap);
        if (nap < 0.01) nap *= 1.5;
    }
}

static void test_run_topic(const test_topic *topic, test_options *o) {
    int jobs = topic->alone ? 1 : o->jobs, i;
    size_t k;
    if (topic->alone) test_drain(0);
    for (k = 0; k < topic->count; k++) {
        if (!test_selected(o, topic->tests[k].name)) continue;
        if (o->list) {
            puts(topic->tests[k].name);
            continue;
        }
        test_drain(jobs - 1);
        for (i = 0; test_slot[i].pid > 0; i++) {}
        test_start(&test_slot[i], &topic->tests[k], o);
    }
}

static int test_cores(void) {
#ifdef _SC_NPROCESSORS_ONLN
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > TEST_JOBS / 2 ? TEST_JOBS / 2 : (int)n;
#else
    return 1;
#endif
}

/* [--list] [--seed N] [--limit S] [--jobs N] [--long] [--stop] [--part K/N] [--but part] [part of a name ...]: runs the tests whose name holds
   one of the parts and none of those after --but, N at a time; with --part K/N (0/3) every Nth of them, from the Kth. */
static int test_main(int argc, char **argv, const char *program, const test_topic *topics, size_t ntopics) {
    test_options o;
    int i;
    size_t topic;
    memset(&o, 0, sizeof o);
    o.default_limit_s = 300;
    o.parts = 1;
    o.jobs = test_side_by_side ? test_side_by_side : 2 * test_cores(); /* many tests wait for most of their time */
    for (i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            argv[++o.nfilters] = argv[i];
        } else if (!strcmp(argv[i], "--list")) {
            o.list = 1;
        } else if (!strcmp(argv[i], "--stop")) {
            test_stop = 1;
        } else if (!strcmp(argv[i], "--long")) {
            test_long = 1;
        } else if (!strcmp(argv[i], "--but") && i + 1 < argc && o.nbut < (int)(sizeof o.but / sizeof *o.but)) {
            o.but[o.nbut++] = argv[++i];
        } else if (!strcmp(argv[i], "--part") && i + 1 < argc && sscanf(argv[i + 1], "%d/%d", &o.part, &o.parts) == 2 && o.part >= 0 &&
                   o.part < o.parts) {
            i++;
        } else if (!strcmp(argv[i], "--seed") && i + 1 < argc) {
            test_seed = strtoull(argv[++i], NULL, 10);
        } else if (!strcmp(argv[i], "--limit") && i + 1 < argc) {
            o.default_limit_s = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--jobs") && i + 1 < argc && atoi(argv[i + 1]) > 0 &&
                   atoi(argv[i + 1]) <= TEST_JOBS) {
            o.jobs = atoi(argv[++i]);
        } else {
            fprintf(
                stderr,
                "usage: %s [--list] [--seed N] [--limit SECONDS] [--jobs 1..%d] [--long] [--stop] [--part 0..N-1/N] [--but PART] [part of a test's name ...]\n",
                program, TEST_JOBS);
            return 2;
        }
    }
    o.filters = (const char *const *)(argv + 1);
    signal(SIGINT, test_interrupted);
    signal(SIGTERM, test_interrupted);
    for (topic = 0; topic < ntopics; topic++)
        if (!topics[topic].alone) test_run_topic(&topics[topic], &o);
    for (topic = 0; topic < ntopics; topic++)
        if (topics[topic].alone) test_run_topic(&topics[topic], &o);
    test_drain(0);
    if (o.list) return 0;
    if (test_passed + test_failed == 0) {
        fprintf(stderr, "%s: no test's name holds what was asked for; see --list\n", program);
        return 2;
    }
    printf("%d passed, %d failed\n", test_passed, test_failed);
    return test_failed ? 1 : 0;
}

#endif
