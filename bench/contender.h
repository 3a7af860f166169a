/* One cell of the comparison, measured in the same way by every contender: ours, the MPIs, Gloo, and the floor under all of them.
   usage: CONTENDER OP BYTES MILLISECONDS [each]
   A sample is a barrier and then a few calls in a row (one where a call takes long); its time is the slowest rank's, per call. With `each`
   there are no barriers and every call is a sample: what a busy neighbour does to calls in a row. Rank 0 prints
   "samples median_us least_us wrong mean_us cpu_us"; cpu_us, of all ranks together and per call, is 0 without `each`.
   BYTES is what nccl-tests calls size: the whole buffer of all_reduce and broadcast, all blocks together of all_gather (received),
   all_to_all and reduce_scatter (sent), one way of sendrecv. */
#ifndef CONTENDER_H
#define CONTENDER_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum {
    OP_ALL_REDUCE,
    OP_ALL_REDUCE_IN_PLACE,
    OP_ALL_GATHER,
    OP_ALL_TO_ALL,
    OP_BROADCAST,
    OP_REDUCE_SCATTER,
    OP_SENDRECV, /* rank 2k with rank 2k + 1, both ways at once */
    OP_BARRIER,
    OP_COUNT,
    OP_MOVE = OP_COUNT /* a layout of layouts.h: no operation of the command line */
};
static const char *const op_names[OP_COUNT] = {"all_reduce", "all_reduce_in_place", "all_gather", "all_to_all",
                                               "broadcast",  "reduce_scatter",      "sendrecv",   "barrier"};
enum { CONTENDER_SAMPLES = 1000, CONTENDER_EACH = 1 << 16, CONTENDER_CHUNK = 64 };

typedef struct contender {
    int rank, n;
    void (*run)(int op, const void *send, void *recv, size_t nbytes);
    void (*max)(double *values, int count); /* over ranks, in place, on every rank */
    void *(*get)(size_t nbytes);            /* memory for the buffers; NULL: malloc */
} contender;

typedef struct contender_result {
    int samples;
    double median, least, mean, cpu, wrong;
} contender_result;

static double contender_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int contender_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int contender_is_sum(int op) {
    return op == OP_ALL_REDUCE || op == OP_ALL_REDUCE_IN_PLACE || op == OP_REDUCE_SCATTER;
}

/* With whom sendrecv exchanges; -1: the odd one out. */
static int contender_partner(const contender *c) { return (c->rank ^ 1) < c->n ? c->rank ^ 1 : -1; }

/* What goes in, and a receive buffer that holds nothing right. Small integers: sums are exact. */
static void contender_fill(const contender *c, int op, void *send, void *recv, size_t nbytes) {
    size_t i;
    if (contender_is_sum(op))
        for (i = 0; i < nbytes / 4; i++) ((float *)send)[i] = (float)((c->rank + (int)(i % 5)) % 7);
    else
        for (i = 0; i < nbytes; i++) ((unsigned char *)send)[i] = (unsigned char)(c->rank * 31 + (int)(i % 253));
    memset(recv, 0xee, nbytes);
    if (op == OP_ALL_REDUCE_IN_PLACE || (op == OP_BROADCAST && c->rank == 0)) memcpy(recv, send, nbytes);
}

static size_t contender_wrong(const contender *c, int op, const void *recv, size_t nbytes) {
    size_t i, wrong = 0, block = nbytes / (size_t)c->n, first = 0, count = nbytes;
    const unsigned char *got = (const unsigned char *)recv;
    int r, partner;
    if (contender_is_sum(op)) {
        if (op == OP_REDUCE_SCATTER) first = block / 4 * (size_t)c->rank, count = block;
        for (i = 0; i < count / 4; i++) {
            float want = 0;
            for (r = 0; r < c->n; r++) want += (float)((r + (int)((first + i) % 5)) % 7);
            wrong += ((const float *)recv)[i] != want;
        }
        return wrong;
    }
    if (op == OP_BROADCAST || op == OP_SENDRECV) {
        partner = op == OP_BROADCAST ? 0 : contender_partner(c);
        for (i = 0; i < nbytes && partner >= 0; i++) wrong += got[i] != (unsigned char)(partner * 31 + (int)(i % 253));
        return wrong;
    }
    if (op == OP_ALL_TO_ALL) first = (size_t)c->rank * block;
    for (r = 0; r < c->n && op != OP_BARRIER; r++)
        for (i = 0; i < block; i++)
            wrong += got[(size_t)r * block + i] != (unsigned char)(r * 31 + (int)((first + i) % 253));
    return wrong;
}

/* Sorts the samples. */
static void contender_sum_up(double *us, int n, contender_result *r) {
    int i;
    qsort(us, (size_t)n, sizeof *us, contender_order);
    r->samples = n;
    r->median = us[n / 2];
    r->least = us[0];
    for (r->mean = 0, i = 0; i < n; i++) r->mean += us[i] / n;
}

static double contender_cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Each call by itself, without barriers, until budget us are over. */
static void contender_each(const contender *c, int op, const void *send, void *recv, size_t nbytes, double budget,
                           contender_result *r) {
    double *us = (double *)malloc(CONTENDER_EACH * sizeof *us), *cpu = (double *)calloc((size_t)c->n, sizeof *cpu);
    double begun, over;
    int n = 0, k;
    if (!us || !cpu) exit(2);
    for (k = 0; k < 3; k++) c->run(op, send, recv, nbytes); /* connections, page faults */
    cpu[c->rank] = contender_cpu();
    begun = contender_now();
    do {
        for (k = 0; k < CONTENDER_CHUNK; k++, n++) {
            double start = contender_now();
            c->run(op, send, recv, nbytes);
            us[n] = contender_now() - start;
        }
        over = contender_now() - begun;
        c->max(&over, 1); /* all go on, or none */
    } while (over < budget && n + CONTENDER_CHUNK <= CONTENDER_EACH);
    cpu[c->rank] = (contender_cpu() - cpu[c->rank]) / n;
    c->max(us, n);
    c->max(cpu, c->n); /* where the others have 0 */
    contender_sum_up(us, n, r);
    for (r->cpu = 0, k = 0; k < c->n; k++) r->cpu += cpu[k];
    free(us);
    free(cpu);
}

/* Calls after barriers, for some budget us. */
static void contender_measure(const contender *c, int op, const void *send, void *recv, size_t nbytes, double budget,
                              contender_result *r) {
    double us[CONTENDER_SAMPLES], start, once;
    int inner, samples, i, k;
    for (i = 0; i < 3; i++) c->run(op, send, recv, nbytes); /* connections, page faults */
    start = contender_now();
    for (i = 0; i < 3; i++) c->run(op, send, recv, nbytes);
    once = (contender_now() - start) / 3;
    c->max(&once, 1);
    inner = once < 1000 ? 10 : 1;
    samples = (int)(budget / (once * inner + 50));
    samples = samples > CONTENDER_SAMPLES ? CONTENDER_SAMPLES : samples < 7 ? 7 : samples;
    for (i = 0; i < samples; i++) {
        c->run(OP_BARRIER, NULL, NULL, 0);
        start = contender_now();
        for (k = 0; k < inner; k++) c->run(op, send, recv, nbytes);
        us[i] = (contender_now() - start) / inner;
    }
    c->max(us, samples);
    contender_sum_up(us, samples, r);
}

/* Says what came out. Returns the exit status. */
static int contender_print(const contender *c, contender_result *r) {
    c->max(&r->wrong, 1);
    if (c->rank == 0)
        printf("%d %.3f %.3f %.0f %.3f %.3f\n", r->samples, r->median, r->least, r->wrong, r->mean, r->cpu);
    fflush(stdout);
    return r->wrong != 0;
}

/* What every operation's size is rounded to. */
static size_t contender_bytes(const contender *c, int op, const char *text) {
    size_t nbytes = (size_t)strtoull(text, NULL, 10);
    size_t unit = op == OP_BROADCAST || op == OP_SENDRECV ? 1
                  : op == OP_REDUCE_SCATTER               ? 4 * (size_t)c->n
                  : contender_is_sum(op)                  ? 4
                                                          : (size_t)c->n;
    return nbytes < unit ? unit : nbytes / unit * unit;
}

/* The buffers stay until the process ends, or its transport. */
static inline int contender_main(int argc, char **argv, const contender *c) {
    contender_result r = {0, 0, 0, 0, 0, 0};
    size_t nbytes;
    int op;
    void *send, *recv;
    if (argc < 4) return fprintf(stderr, "usage: %s OP BYTES MILLISECONDS [each]\n", argv[0]), 2;
    for (op = 0; op < OP_COUNT && strcmp(argv[1], op_names[op]); op++) {}
    if (op == OP_COUNT) return fprintf(stderr, "%s: no operation %s\n", argv[0], argv[1]), 2;
    nbytes = contender_bytes(c, op, argv[2]);
    send = c->get ? c->get(nbytes + 64) : malloc(nbytes + 64);
    recv = c->get ? c->get(nbytes + 64) : malloc(nbytes + 64);
    if (!send || !recv) return fprintf(stderr, "%s: no memory for 2 x %s bytes\n", argv[0], argv[2]), 2;
    contender_fill(c, op, send, recv, nbytes);
    if (argc > 4)
        contender_each(c, op, send, recv, nbytes, atof(argv[3]) * 1e3, &r);
    else
        contender_measure(c, op, send, recv, nbytes, atof(argv[3]) * 1e3, &r);
    contender_fill(c, op, send, recv, nbytes);
    c->run(op, send, recv, nbytes);
    r.wrong = (double)contender_wrong(c, op, recv, nbytes);
    return contender_print(c, &r);
}
#endif
