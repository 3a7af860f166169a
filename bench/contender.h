/* One cell of the comparison, measured in the same way by every contender: ours, the MPIs, Gloo.
   usage: CONTENDER OP BYTES MILLISECONDS
   A sample is a barrier and then a few calls in a row (one where a call takes long); its time is the slowest rank's, per call. Rank 0 prints
   "samples median_us min_us wrong". BYTES is what nccl-tests calls size: the whole buffer of all_reduce and broadcast, all blocks together
   of all_gather (received) and all_to_all (sent). */
#ifndef CONTENDER_H
#define CONTENDER_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OP_ALL_REDUCE, OP_ALL_GATHER, OP_ALL_TO_ALL, OP_BROADCAST, OP_REDUCE_SCATTER, OP_BARRIER, OP_COUNT };
static const char *const op_names[OP_COUNT] = {"all_reduce", "all_gather",     "all_to_all",
                                               "broadcast",  "reduce_scatter", "barrier"};

typedef struct
    contender { /* what it can do; op: as above, nbytes: of the whole buffer, a multiple of 4 n where it is reduced */
    int rank, n;
    void (*run)(int op, const void *send, void *recv, size_t nbytes);
    void (*max)(double *values, int count); /* over ranks, in place, on every rank */
} contender;

static double contender_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int contender_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Small integers: sums are exact. */
static void contender_fill(const contender *c, int op, void *send, size_t nbytes) {
    size_t i;
    if (op == OP_ALL_REDUCE || op == OP_REDUCE_SCATTER)
        for (i = 0; i < nbytes / 4; i++) ((float *)send)[i] = (float)((c->rank + (int)(i % 5)) % 7);
    else
        for (i = 0; i < nbytes; i++) ((unsigned char *)send)[i] = (unsigned char)(c->rank * 31 + (int)(i % 253));
}

static size_t contender_wrong(const contender *c, int op, const void *recv, size_t nbytes) {
    size_t i, wrong = 0, block = nbytes / (size_t)c->n, first;
    int r;
    switch (op) {
    case OP_ALL_REDUCE:
    case OP_REDUCE_SCATTER:
        first = op == OP_REDUCE_SCATTER ? block / 4 * (size_t)c->rank : 0;
        for (i = 0; i < (op == OP_REDUCE_SCATTER ? block : nbytes) / 4; i++) {
            float want = 0;
            for (r = 0; r < c->n; r++) want += (float)((r + (int)((first + i) % 5)) % 7);
            wrong += ((const float *)recv)[i] != want;
        }
        return wrong;
    case OP_BROADCAST:
        for (i = 0; i < nbytes; i++) wrong += ((const unsigned char *)recv)[i] != (unsigned char)(i % 253);
        return wrong;
    case OP_ALL_GATHER:
    case OP_ALL_TO_ALL:
        for (r = 0; r < c->n; r++)
            for (i = 0; i < block; i++)
                wrong += ((const unsigned char *)recv)[(size_t)r * block + i] !=
                         (unsigned char)(r * 31 + (int)((op == OP_ALL_GATHER ? i : (size_t)c->rank * block + i) % 253));
        return wrong;
    default:
        return 0;
    }
}

static int contender_main(int argc, char **argv, const contender *c) {
    size_t nbytes, unit;
    int op, inner, samples, i, k;
    double budget, start, *time_us, wrong;
    void *send, *recv;
    if (argc < 4) return fprintf(stderr, "usage: %s OP BYTES MILLISECONDS\n", argv[0]), 2;
    for (op = 0; op < OP_COUNT && strcmp(argv[1], op_names[op]); op++) {}
    if (op == OP_COUNT) return fprintf(stderr, "%s: no operation %s\n", argv[0], argv[1]), 2;
    nbytes = (size_t)strtoull(argv[2], NULL, 10);
    unit = op == OP_BROADCAST ? 1 : op == OP_ALL_REDUCE ? 4 : op == OP_REDUCE_SCATTER ? 4 * (size_t)c->n : (size_t)c->n;
    nbytes = nbytes < unit ? unit : nbytes / unit * unit;
    budget = atof(argv[3]) * 1e3;
    send = malloc(nbytes + 64);
    recv = malloc(nbytes + 64);
    if (!send || !recv) return 2;
    contender_fill(c, op, send, nbytes);
    memset(recv, 0xee, nbytes);
    for (i = 0; i < 3; i++) c->run(op, send, recv, nbytes); /* connections, page faults */
    start = contender_now();
    for (i = 0; i < 3; i++) c->run(op, send, recv, nbytes);
    wrong = (contender_now() - start) / 3; /* the first estimate */
    c->max(&wrong, 1);
    inner = wrong < 1000 ? 10 : 1;
    samples = (int)(budget / (wrong * inner + 50));
    if (samples > 1000) samples = 1000;
    if (samples < 7) samples = 7;
    time_us = (double *)malloc((size_t)samples * sizeof *time_us);
    if (!time_us) return 2;
    for (i = 0; i < samples; i++) {
        c->run(OP_BARRIER, NULL, NULL, 0);
        start = contender_now();
        for (k = 0; k < inner; k++) c->run(op, send, recv, nbytes);
        time_us[i] = (contender_now() - start) / inner;
    }
    c->max(time_us, samples);
    qsort(time_us, (size_t)samples, sizeof *time_us, contender_order);
    wrong = (double)contender_wrong(c, op, recv, nbytes);
    c->max(&wrong, 1);
    if (c->rank == 0) printf("%d %.2f %.2f %.0f\n", samples, time_us[samples / 2], time_us[0], wrong);
    fflush(stdout);
    free(send);
    free(recv);
    free(time_us);
    return wrong != 0;
}
#endif
