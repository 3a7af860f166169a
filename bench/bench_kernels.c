/* bench_kernels.c - reductions of n inputs on one core, in GB/s: bytes read once and written once (n + 1 arrays) by the time it took; best of some runs.

       cc -std=c99 -O2 bench/bench_kernels.c -o bench_kernels && ./bench_kernels [bytes of an array ...]

   copy: memcpy of one array (2 arrays' bytes). passes: n - 1 of the plain loops, a copy before them. one: mesh__reduce_many, with registers of 16, 32, 64
   bytes ("-": none such, or no loop), and with the widest and stores past the caches. */
#define _POSIX_C_SOURCE 200809L
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh/kernels.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 8 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct work {
    void *dst;
    const void *src[MOST];
    mesh_call call;
    size_t nbytes, count, elem;
    int n, width, stream;
} work;

static void copy(const work *w) { memcpy(w->dst, w->src[0], w->nbytes); }
static void copy_stream(const work *w) { mesh__copy_stream(w->dst, w->src[0], w->nbytes); }
static void passes(const work *w) {
    int k;
    memcpy(w->dst, w->src[0], w->nbytes);
    for (k = 1; k < w->n; k++) mesh__reduce_plain(w->call.op, w->call.dtype, w->dst, w->src[k], w->count);
}
static void one(const work *w) {
    mesh__reduce_wide((mesh__width)w->width, &w->call, &w->dst, 1, w->src, w->n, w->count, w->elem, w->stream);
}

/* GB/s of `arrays` arrays: the best of runs that take half a second, or of three. */
static double rate(void (*run)(const work *), const work *w, int arrays) {
    double best = 1e9, all = 0, t;
    int k, i, times = w->nbytes < 1 << 22 ? (1 << 22) / (int)w->nbytes : 1;
    for (k = 0; k < 3 || (k < 40 && all < 0.5); k++) {
        t = now();
        for (i = 0; i < times; i++) run(w);
        t = (now() - t) / times;
        all += t * times;
        if (t < best) best = t;
        if (all > 3) break;
    }
    return (double)arrays * (double)w->nbytes / best * 1e-9;
}

static void row(work *w, mesh_dtype dtype, mesh_op op, int n) {
    static const int widths[] = {16, 32, 64};
    int k;
    memset(&w->call, 0, sizeof w->call);
    w->call.dtype = (int)dtype;
    w->call.op = (int)op;
    w->elem = mesh_dtype_bytes(dtype);
    w->count = w->nbytes / w->elem;
    w->n = n;
    w->stream = 0;
    printf("%-5s %-4s %d  %7.1f", mesh_dtype_name(dtype), mesh_op_name(op), n, rate(passes, w, n + 1));
    for (k = 0; k < 3; k++) {
        w->width = widths[k];
        if (w->width <= (int)mesh__widest())
            printf(" %7.1f", rate(one, w, n + 1));
        else
            printf(" %7s", "-");
    }
    w->width = (int)mesh__widest();
    w->stream = 1;
    printf(" %7.1f\n", rate(one, w, n + 1));
    fflush(stdout);
}

static void table(size_t nbytes) {
    static const mesh_dtype dtypes[] = {MESH_F32, MESH_F64, MESH_F16, MESH_BF16, MESH_I32, MESH_I64};
    static const mesh_op ops[] = {MESH_SUM, MESH_MAX};
    unsigned char *room = (unsigned char *)malloc((MOST + 1) * (nbytes + 4096) + 4096);
    uint64_t state = 1;
    size_t at;
    work w;
    int k, op, n;
    if (!room) {
        printf("no memory for %d arrays of %zu bytes\n", MOST + 1, nbytes);
        return;
    }
    memset(&w, 0, sizeof w);
    w.nbytes = nbytes;
    for (k = 0; k <= MOST;
         k++) { /* numbers near 1 of any dtype; arrays begin as malloc makes them, 16 bytes into a line */
        unsigned char *p = room + (4096 - (uintptr_t)room % 4096) + (size_t)k * (nbytes + 64 * 5) + 16;
        for (at = 0; at + 2 <= nbytes; at += 2) {
            uint16_t h = (uint16_t)(0x3800 + ((state = state * UINT64_C(6364136223846793005) + 1) >> 54));
            memcpy(p + at, &h, 2);
        }
        if (k < MOST)
            w.src[k] = p;
        else
            w.dst = p;
    }
    printf("\narrays of %zu bytes: copy %.1f, past the caches %.1f\n", nbytes, rate(copy, &w, 2),
           rate(copy_stream, &w, 2));
    printf("%-5s %-4s %s  %7s %7s %7s %7s %7s\n", "", "", "n", "passes", "one:16", "one:32", "one:64", "stream");
    for (k = 0; k < 6; k++)
        for (op = 0; op < 2; op++)
            for (n = 2; n <= MOST; n *= 2) row(&w, dtypes[k], ops[op], n);
    free(room);
}

int main(int argc, char **argv) {
    int i;
    for (i = 1; i < argc; i++) table((size_t)strtoull(argv[i], NULL, 10));
    if (argc < 2) {
        table(64 << 10);
        table(64 << 20);
    }
    return 0;
}
