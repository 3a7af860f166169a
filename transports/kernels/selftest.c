/* selftest.c - mesh_nccl.cu, compiled as C, against mesh__reduce, mesh__divide, mesh__narrow and memcpy. Part of mesh.h 0.1.0. MIT licence. */
/*
    cc -std=c99 -O2 -ffp-contract=off -Wall -Wextra -Wno-unused-function transports/kernels/selftest.c -o build/kernels
    build/kernels [seed]                                            the last line is "N passed, N failed"
    build/kernels --vectors [seed] | python3 transports/kernels/ptx_run.py transports/mesh_nccl_ptx.h
                                                                    the PTX itself, interpreted, on the same cases (no GPU needed)

A case is a launch over random bytes in random layouts. All of dst's memory is compared, what lies between its elements too, bit for
bit; only where a sum, a product or a quotient is a NaN any NaN will do. A batch must do what its moves do one by one.
*/
#define MESH_IMPLEMENTATION
#include "../../mesh_parallel.h"
#include "../mesh_nccl_ptx.h"
#include "mesh_nccl.cu"
#include <stdio.h>
#include <stdlib.h>

enum { ROOM = 1 << 16, MARGIN = 64 };

typedef void kernel(const void *parameter, unsigned long long thread, unsigned long long threads);
typedef enum kind { MOVE, ZERO, REDUCE, DIVIDE, SCALE, SQUARES } kind;

typedef struct job {
    const char *name;
    kernel *run;
    kind kind;
    int dtype; /* but for moves and zeros */
    uint32_t width, align;
} job;

#define JOB_MOVE(w) {"mesh_move_" #w, mesh_move_##w, MOVE, 0, w, w}, {"mesh_zero_" #w, mesh_zero_##w, ZERO, 0, w, w}
#define JOB_REDUCE(t, T, w, a) {"mesh_reduce_" #t, mesh_reduce_##t, REDUCE, MESH_##T, w, a}
#define JOB_DIVIDE(t, T, w) {"mesh_divide_" #t, mesh_divide_##t, DIVIDE, MESH_##T, w, w}
#define JOB_SCALE(t, T, w) {"mesh_scale_" #t, mesh_scale_##t, SCALE, MESH_##T, w, w}
#define JOB_SQUARES(t, T, w) {"mesh_squares_" #t, mesh_squares_##t, SQUARES, MESH_##T, w, w}
static const job jobs[] = {JOB_MOVE(1),
                           JOB_MOVE(2),
                           JOB_MOVE(4),
                           JOB_MOVE(8),
                           JOB_MOVE(16),
                           JOB_REDUCE(i8, I8, 1, 1),
                           JOB_REDUCE(u8, U8, 1, 1),
                           JOB_REDUCE(i16, I16, 2, 2),
                           JOB_REDUCE(u16, U16, 2, 2),
                           JOB_REDUCE(f16, F16, 2, 2),
                           JOB_REDUCE(bf16, BF16, 2, 2),
                           JOB_REDUCE(i32, I32, 4, 4),
                           JOB_REDUCE(u32, U32, 4, 4),
                           JOB_REDUCE(f32, F32, 4, 4),
                           JOB_REDUCE(i64, I64, 8, 8),
                           JOB_REDUCE(u64, U64, 8, 8),
                           JOB_REDUCE(f64, F64, 8, 8),
                           JOB_REDUCE(c64, C64, 8, 4),
                           JOB_REDUCE(c128, C128, 16, 8),
                           JOB_DIVIDE(f16, F16, 2),
                           JOB_DIVIDE(bf16, BF16, 2),
                           JOB_DIVIDE(f32, F32, 4),
                           JOB_DIVIDE(f64, F64, 8),
                           JOB_SCALE(f16, F16, 2),
                           JOB_SCALE(bf16, BF16, 2),
                           JOB_SCALE(f32, F32, 4),
                           JOB_SCALE(f64, F64, 8)};
enum { JOBS = sizeof jobs / sizeof *jobs };

static const job squares_jobs[] = {JOB_SQUARES(f16, F16, 2), JOB_SQUARES(bf16, BF16, 2), JOB_SQUARES(f32, F32, 4), JOB_SQUARES(f64, F64, 8)};
static const job fold_job = {"mesh_fold", mesh_fold, SQUARES, MESH_F64, 8, 8};
enum { SQUARES_JOBS = sizeof squares_jobs / sizeof *squares_jobs };

typedef struct batch_job {
    const char *name;
    kernel *run;
    unsigned words;
} batch_job;

static const batch_job batch_jobs[] = {{"mesh_move_few", mesh_move_few, MESH__BATCH_FEW}, {"mesh_move_many", mesh_move_many, MESH__BATCH_MANY}};
enum { BATCH_JOBS = sizeof batch_jobs / sizeof *batch_jobs };

/* ---- random numbers, values, layouts ------------------------------------------------------------------------------------- */

static uint64_t state = 1;
static uint64_t draw(void) { /* splitmix64 */
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
static uint64_t below(uint64_t n) { return draw() % n; }

/* A number of `bytes` (a float's if exponent, its exponent's bits, is not 0): of any bits, or one that is easily got wrong. */
static uint64_t value(uint32_t bytes, int exponent) {
    uint64_t all = bytes == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * bytes) - 1, sign = all ^ all >> 1, v = draw() & all;
    int mantissa = (int)(8 * bytes) - 1 - exponent;
    uint64_t inf = exponent ? (sign - 1) >> mantissa << mantissa : 0, one = exponent ? inf >> 1 & inf : 1;
    uint64_t ulps = draw() & 3;
    switch (below(exponent ? 12 : 4)) {
    case 0: return v;
    case 1: return (v & sign) | ulps;                                         /* zeros, the least denormals; small integers */
    case 2: return (sign - 1 + (v & 1)) ^ (exponent ? v & sign : 0);          /* the greatest NaN, or -0; the extreme integers */
    case 3: return exponent ? (v & sign) | inf : all - ulps;                  /* infinities; -1, -2 */
    case 4: return (v & sign) | inf | ulps;                                   /* signalling NaNs */
    case 5: return (v & sign) | inf | inf >> 1 | ulps;                        /* quiet NaNs */
    case 6: return (v & sign) | (inf - 1 - ulps);                             /* the greatest numbers */
    case 7: return (v & sign) | ((UINT64_C(1) << mantissa) + ulps - 2);       /* about the least normal one */
    case 8: return (v & sign) | (v & ((UINT64_C(1) << mantissa) - 1));        /* denormals */
    case 9: return (v & sign) | (one + (ulps << below((uint64_t)mantissa - 1))); /* about 1 */
    default: return (v & sign) | (one + ((v >> 3) & ((UINT64_C(8) << mantissa) - 1)) - (UINT64_C(4) << mantissa)); /* 1/16 .. 16 */
    }
}

static int exponent_bits(const job *j) {
    if (j->kind == MOVE || j->kind == ZERO) return 0;
    switch (j->dtype) {
    case MESH_F16: return 5;
    case MESH_BF16:
    case MESH_F32:
    case MESH_C64: return 8;
    case MESH_F64:
    case MESH_C128: return 11;
    default: return 0;
    }
}

static void fill(const job *j, unsigned char *p) {
    uint32_t bytes = j->align > 8 ? 8 : j->align, i;
    int exponent = exponent_bits(j);
    for (i = 0; i < ROOM; i += bytes) {
        uint64_t v = value(bytes, exponent);
        uint8_t v1 = (uint8_t)v;
        uint16_t v2 = (uint16_t)v;
        uint32_t v4 = (uint32_t)v;
        memcpy(p + i, bytes == 1 ? (void *)&v1 : bytes == 2 ? (void *)&v2 : bytes == 4 ? (void *)&v4 : (void *)&v, bytes);
    }
}

/* A way to lay `count` units of `width` bytes, without one byte twice; returns its extent in bytes. */
static uint64_t layout(uint64_t count, const job *j, mesh__kernel_block *b, int *ndim) {
    int order[8], k;
    uint64_t extent;
    *ndim = (int)(below(2) ? 1 + below(3) : below(9));
    b->run = count;
    for (k = 0; k < 8; k++) b->count[k] = (long long)draw(), b->stride[k] = (long long)draw(); /* unused ones are not read */
    if (*ndim == 0) {
        b->run = draw();
        return count * j->width;
    }
    for (k = 0; k < *ndim; k++) {
        uint64_t factor = 1 + below(*ndim > 3 ? 3 : 12);
        while (b->run % factor) factor--;
        b->count[k] = (long long)factor;
        b->run /= factor;
        order[k] = k;
    }
    extent = b->run * j->width + below(3) * j->align;
    for (k = 0; k < *ndim; k++) { /* from the inmost in memory, which may be any */
        int pick = k + (int)below((uint64_t)(*ndim - k)), dim = order[pick];
        order[pick] = order[k];
        b->stride[dim] = (long long)extent;
        extent = extent * (uint64_t)b->count[dim] + below(3) * j->align;
    }
    return extent;
}

/* ---- the reference -------------------------------------------------------------------------------------------------------- */

static unsigned char *unit(unsigned char *base, const mesh__kernel_block *b, int ndim, uint64_t i, uint64_t count, uint32_t width) {
    mesh_block block;
    mesh_xfer x;
    uint64_t contiguous;
    int k;
    memset(&block, 0, sizeof block);
    memset(&x, 0, sizeof x);
    block.run = ndim ? b->run * width : count * width;
    block.ndim = ndim;
    for (k = 0; k < ndim; k++) block.dim[k].count = b->count[k], block.dim[k].stride = b->stride[k];
    x.base = base;
    x.nbytes = count * width;
    x.block = &block;
    return (unsigned char *)mesh_xfer_at(&x, i * width, &contiguous);
}

static void one(const job *j, const mesh__kernel_args *a, unsigned char *dst, const unsigned char *src) {
    uint64_t d[2], s[2]; /* aligned for every dtype */
    memcpy(d, dst, j->width);
    if (src) memcpy(s, src, j->width);
    switch (j->kind) {
    case MOVE: memcpy(d, s, j->width); break;
    case ZERO: memset(d, 0, j->width); break;
    case REDUCE: mesh__reduce(a->op, j->dtype, d, s, 1); break;
    case DIVIDE: mesh__divide(j->dtype, d, 1, a->divide); break;
    default: {
        double v[1];
        mesh__widen(MESH_F64, v, (mesh_dtype)j->dtype, d, 1);
        v[0] *= a->factor;
        mesh__narrow((mesh_dtype)j->dtype, d, MESH_F64, v, 1);
    }
    }
    memcpy(dst, d, j->width);
}

/* Where any NaN will do, every NaN of the array becomes the same one. */
static void one_nan(unsigned char *p, uint32_t bytes, int exponent) {
    uint32_t i;
    for (i = 0; i < ROOM; i += bytes) {
        uint16_t v2 = 0;
        uint32_t v4 = 0;
        uint64_t v = 0, sign = UINT64_C(1) << (8 * bytes - 1), inf;
        int mantissa = (int)(8 * bytes) - 1 - exponent;
        memcpy(bytes == 2 ? (void *)&v2 : bytes == 4 ? (void *)&v4 : (void *)&v, p + i, bytes);
        if (bytes < 8) v = bytes == 2 ? v2 : v4;
        inf = (sign - 1) >> mantissa << mantissa;
        if ((v & (sign - 1)) > inf) memset(p + i, 255, bytes);
    }
}

/* ---- cases ------------------------------------------------------------------------------------------------------------------ */

static int passed, failed, vectors;
static union {
    unsigned char bytes[ROOM];
    mesh__k16 align;
} dst, src, want, before;

static void print_hex(const char *what, const void *p, size_t n) {
    const unsigned char *b = (const unsigned char *)p;
    size_t i;
    printf("%s ", what);
    for (i = 0; i < n; i++) printf("%02x", b[i]);
    printf("\n");
}

/* One line per fact; addresses are 2^44 for dst's memory, 2^45 for src's. */
static void print_vector(const job *j, const mesh__kernel_args *a, unsigned grid, unsigned block, unsigned cta, unsigned tid, int all,
                         int nan, uint64_t dst_bytes, uint64_t src_bytes) {
    mesh__kernel_args b = *a;
    b.dst = (UINT64_C(1) << 44) + (a->dst - (uintptr_t)dst.bytes);
    b.src = (UINT64_C(1) << 45) + (a->src - (uintptr_t)src.bytes);
    printf("run %s %u %u %u %u %d %d\n", j->name, grid, block, cta, tid, all, !nan ? 0 : j->kind == SQUARES ? 8 : (int)j->align);
    print_hex("args", &b, sizeof b);
    print_hex("dst", before.bytes, dst_bytes);
    print_hex("src", src.bytes, src_bytes);
    print_hex("want", want.bytes, dst_bytes);
}

static void report(const job *j, const mesh__kernel_args *a, unsigned long long threads) {
    uint32_t i;
    for (i = 0; dst.bytes[i] == want.bytes[i]; i++) {}
    printf("FAIL %s: op %s, divide %d, %llu units on %llu threads, %d dims from %d: byte %u is %02x, not %02x\n", j->name,
           mesh_op_name((mesh_op)a->op), a->divide, a->count, threads, a->to_ndim, a->from_ndim, i, dst.bytes[i], want.bytes[i]);
}

/* A launch: threads cta * block + tid of grid * block, or all of them in any order. */
static void check(const job *j, mesh__kernel_args a, unsigned grid, unsigned block, unsigned cta, unsigned tid, int all, uint64_t dst_bytes,
                  uint64_t src_bytes) {
    unsigned long long threads = (unsigned long long)grid * block, first = (unsigned long long)cta * block + tid, t, i;
    int nan = exponent_bits(j) && (j->kind == DIVIDE || j->kind == SCALE || (a.op != MESH_MIN && a.op != MESH_MAX));
    memcpy(before.bytes, dst.bytes, ROOM);
    memcpy(want.bytes, dst.bytes, ROOM);
    for (i = all ? 0 : first; i < a.count; i += all ? 1 : threads) {
        uint64_t at = a.dst - (uintptr_t)dst.bytes;
        const unsigned char *s = NULL;
        if (j->kind == MOVE || j->kind == REDUCE)
            s = unit(src.bytes + (a.src - (uintptr_t)src.bytes), &a.from, a.from_ndim, i, a.count, j->width);
        one(j, &a, unit(want.bytes + at, &a.to, a.to_ndim, i, a.count, j->width), s);
    }
    if (vectors) {
        print_vector(j, &a, grid, block, cta, tid, all, nan, dst_bytes, src_bytes);
        memcpy(dst.bytes, want.bytes, ROOM);
        return;
    }
    if (all)
        for (t = 0; t < threads; t++) j->run(&a, threads - 1 - t, threads);
    else
        j->run(&a, first, threads);
    if (nan) {
        one_nan(dst.bytes, j->align, exponent_bits(j));
        one_nan(want.bytes, j->align, exponent_bits(j));
    }
    if (memcmp(dst.bytes, want.bytes, ROOM) == 0) {
        passed++;
    } else {
        failed++;
        report(j, &a, threads);
    }
}

static mesh__kernel_args arguments(const job *j, int op) {
    static const int divisors[] = {1, 2, 3, 5, 7, 8, 10, 64, 1000, 65537, 16777217, 2147483647};
    mesh__kernel_args a;
    uint64_t factor;
    memset(&a, 0x5a, sizeof a); /* what a kernel has no use for is not read */
    a.dst = (uintptr_t)dst.bytes + MARGIN + (below(2) ? 0 : below(4) * j->align);
    a.src = (uintptr_t)src.bytes + MARGIN + (below(2) ? 0 : below(4) * j->align);
    if (below(2) && j->align < 16) a.src += below(4) * (j->align < 4 ? 4 : j->align);
    a.op = op;
    a.divide = divisors[below(sizeof divisors / sizeof *divisors)];
    factor = below(4) ? value(8, 11) : (UINT64_C(1023) << 52) - draw() % (UINT64_C(16) << 52); /* 2^-16 to 1 */
    memcpy(&a.factor, &factor, sizeof factor);
    return a;
}

/* A launch of all threads over `count` units in random layouts. */
static void whole(const job *j, int op, uint64_t count, int contiguous) {
    mesh__kernel_args a = arguments(j, op);
    uint64_t to_bytes = 0, from_bytes = 0;
    a.count = count;
    a.to_ndim = a.from_ndim = 0;
    if (!contiguous) {
        do to_bytes = layout(count, j, &a.to, &a.to_ndim);
        while (to_bytes > ROOM - 256);
        do from_bytes = layout(count, j, &a.from, &a.from_ndim);
        while (from_bytes > ROOM - 256);
    } else {
        to_bytes = from_bytes = count * j->width;
        if (j->kind == REDUCE && below(4) == 0) memcpy(src.bytes, dst.bytes, ROOM); /* equal operands */
    }
    check(j, a, (unsigned)(1 + below(8)), (unsigned)(1 + below(8)), 0, 0, 1, 2 * MARGIN + to_bytes, 2 * MARGIN + from_bytes);
}

/* One thread of very many over a block of more than 2^32 units, most of whose dims stay where they are. */
static void huge(const job *j, int op) {
    mesh__kernel_args a = arguments(j, op);
    mesh__kernel_block *b[2];
    int k, n, *ndim[2];
    uint64_t count = 1;
    b[0] = &a.to, b[1] = &a.from;
    ndim[0] = &a.to_ndim, ndim[1] = &a.from_ndim;
    for (n = 0; n < 2; n++) {
        static const long long extents[4] = {(1ll << 33) + 1, 7, 1 << 10, 5};
        int turn = (int)below(4);
        *ndim[n] = 4;
        b[n]->run = 3;
        for (k = 0, count = 3; k < 4; k++) {
            long long extent = extents[(k + turn) % 4];
            b[n]->count[k] = extent;
            b[n]->stride[k] = extent == 7 ? 3 * (long long)j->width : extent == 5 ? 21 * (long long)j->width : 0;
            count *= (uint64_t)extent;
        }
    }
    a.count = count;
    check(j, a, 2147483647u, 1024, (unsigned)below(2147483647), (unsigned)below(1024), 0, 2 * MARGIN + 105 * j->width,
          2 * MARGIN + 105 * j->width);
}

/* ---- sums of squares ---------------------------------------------------------------------------------------------------------- */

static void add_square(double sum[3], const job *j, const unsigned char *at) {
    uint64_t aligned[1];
    double v[1], size;
    memcpy(aligned, at, j->width);
    mesh__widen(MESH_F64, v, (mesh_dtype)j->dtype, aligned, 1);
    size = v[0] < 0 ? -v[0] : v[0];
    if (j->dtype != MESH_F64 || (size >= 1e-140 && size <= 1e140) || !(size - size == 0))
        sum[0] += v[0] * v[0];
    else if (size > 1)
        sum[1] += v[0] * 2.4099198651028841e-181 * (v[0] * 2.4099198651028841e-181);
    else
        sum[2] += v[0] * 4.1495155688809930e180 * (v[0] * 4.1495155688809930e180);
}

/* All threads of a launch, each with its slot. */
static void squares(const job *j, uint64_t count, int strided) {
    unsigned grid = (unsigned)(1 + below(6)), block = (unsigned)(1 + below(6)), t, k;
    uint64_t per = 16 / j->width, words, bytes = count * j->width, u;
    mesh__kernel_args a = arguments(j, (int)below(2));
    fill(j, src.bytes);
    fill(&fold_job, dst.bytes);
    if (below(3)) /* numbers whose sums are none of the extremes */
        for (u = 0; u < ROOM; u += 8) {
            double d = (double)draw() * 1e-18;
            memcpy(dst.bytes + u, &d, 8);
        }
    a.dst = (uintptr_t)dst.bytes + MARGIN + below(2) * 8;
    a.count = count;
    a.from_ndim = 0;
    if (strided) {
        do bytes = layout(count, j, &a.from, &a.from_ndim);
        while (bytes > ROOM - 256);
    }
    words = a.from_ndim || a.src % 16 ? 0 : count / per;
    memcpy(before.bytes, dst.bytes, ROOM);
    memcpy(want.bytes, dst.bytes, ROOM);
    for (t = 0; t < grid * block; t++) {
        unsigned char *slot = want.bytes + (a.dst - (uintptr_t)dst.bytes) + 24 * (uint64_t)t;
        unsigned char *from = src.bytes + (a.src - (uintptr_t)src.bytes);
        double sum[3] = {0, 0, 0}, was[3];
        for (u = t; u < count - words * per + words; u += grid * block)
            if (u < words)
                for (k = 0; k < per; k++) add_square(sum, j, from + u * 16 + k * j->width);
            else
                add_square(sum, j, unit(from, &a.from, a.from_ndim, u + words * per - words, count, j->width));
        memcpy(was, slot, sizeof was);
        for (k = 0; k < 3 && count; k++) was[k] = a.op ? was[k] + sum[k] : sum[k];
        memcpy(slot, was, sizeof was);
    }
    if (vectors) {
        print_vector(j, &a, grid, block, 0, 0, 1, 1, 2 * MARGIN + 24 * (uint64_t)grid * block, 2 * MARGIN + bytes);
        return;
    }
    for (t = grid * block; t-- > 0;) j->run(&a, t, grid * block);
    one_nan(dst.bytes, 8, 11);
    one_nan(want.bytes, 8, 11);
    if (memcmp(dst.bytes, want.bytes, ROOM)) report(j, &a, grid * block);
    *(memcmp(dst.bytes, want.bytes, ROOM) ? &failed : &passed) += 1;
}

/* One thread of very many, with the only slot that is there. */
static void huge_squares(const job *j) {
    static const long long extents[4] = {(1ll << 33) + 1, 7, 1 << 10, 5};
    unsigned cta = (unsigned)below(2147483647), tid = (unsigned)below(1024);
    uint64_t threads = UINT64_C(2147483647) * 1024, first = (uint64_t)cta * 1024 + tid, u;
    int k, turn = (int)below(4);
    double sum[3] = {0, 0, 0};
    mesh__kernel_args a = arguments(j, 0);
    fill(j, src.bytes);
    fill(&fold_job, dst.bytes);
    a.dst = (uintptr_t)dst.bytes + MARGIN - first * 24;
    a.from.run = a.count = 3;
    a.from_ndim = 4;
    for (k = 0; k < 4; k++) {
        long long extent = extents[(k + turn) % 4];
        a.from.count[k] = extent;
        a.from.stride[k] = extent == 7 ? 3 * (long long)j->width : extent == 5 ? 21 * (long long)j->width : 0;
        a.count *= (uint64_t)extent;
    }
    memcpy(before.bytes, dst.bytes, ROOM);
    memcpy(want.bytes, dst.bytes, ROOM);
    for (u = first; u < a.count; u += threads)
        add_square(sum, j, unit(src.bytes + (a.src - (uintptr_t)src.bytes), &a.from, 4, u, a.count, j->width));
    memcpy(want.bytes + MARGIN, sum, sizeof sum);
    if (vectors) {
        print_vector(j, &a, 2147483647u, 1024, cta, tid, 0, 1, 2 * MARGIN + 24, 2 * MARGIN + 105 * j->width);
        return;
    }
    j->run(&a, first, threads);
    one_nan(dst.bytes, 8, 11);
    one_nan(want.bytes, 8, 11);
    if (memcmp(dst.bytes, want.bytes, ROOM)) report(j, &a, threads);
    *(memcmp(dst.bytes, want.bytes, ROOM) ? &failed : &passed) += 1;
}

static void fold(uint64_t count, int outs) {
    unsigned grid = (unsigned)(1 + below(4)), block = (unsigned)(1 + below(4)), t, k;
    mesh__kernel_args a = arguments(&fold_job, outs);
    uint64_t i;
    fill(&fold_job, src.bytes);
    fill(&fold_job, dst.bytes);
    if (below(3))
        for (i = 0; i < ROOM; i += 8) {
            double d = (double)draw() * 1e-18;
            memcpy(src.bytes + i, &d, 8);
        }
    a.dst = (uintptr_t)dst.bytes + MARGIN;
    a.src = (uintptr_t)src.bytes + MARGIN;
    a.count = count;
    memcpy(before.bytes, dst.bytes, ROOM);
    memcpy(want.bytes, dst.bytes, ROOM);
    for (t = 0; t < (unsigned)outs; t++) {
        double sum[3] = {0, 0, 0}, slot[3];
        for (i = t; i < count; i += (unsigned)outs) {
            memcpy(slot, src.bytes + MARGIN + 24 * i, sizeof slot);
            for (k = 0; k < 3; k++) sum[k] += slot[k];
        }
        memcpy(want.bytes + MARGIN + 24 * t, sum, sizeof sum);
    }
    if (vectors) {
        print_vector(&fold_job, &a, grid, block, 0, 0, 1, 1, 2 * MARGIN + 24 * (uint64_t)outs, 2 * MARGIN + 24 * count);
        return;
    }
    for (t = grid * block; t-- > 0;) mesh_fold(&a, t, grid * block);
    one_nan(dst.bytes, 8, 11);
    one_nan(want.bytes, 8, 11);
    if (memcmp(dst.bytes, want.bytes, ROOM)) report(&fold_job, &a, grid * block);
    *(memcmp(dst.bytes, want.bytes, ROOM) ? &failed : &passed) += 1;
}

static void norms(int rounds) {
    int i, round;
    for (i = 0; i < SQUARES_JOBS; i++)
        for (round = 0; round < rounds; round++) {
            squares(&squares_jobs[i], below(vectors ? 60 : 1500), 0);
            squares(&squares_jobs[i], 1 + below(vectors ? 60 : 1500), 1);
            huge_squares(&squares_jobs[i]);
        }
    for (round = 0; round < rounds; round++) fold(1 + below(200), 1 + (int)below(40));
}

/* ---- batches ---------------------------------------------------------------------------------------------------------------- */

enum { MOVES = 600 };

static mesh__batch batch;
static mesh__kernel_args moves[MOVES]; /* of the batch: count and run in bytes */
static int nmoves;

static void expect(int holds, const char *what, int which, unsigned long long is, unsigned long long should_be) {
    if (!holds) printf("FAIL batch, %s %d: %llu, not %llu\n", what, which, is, should_be);
    *(holds ? &passed : &failed) += 1;
}

/* Units of a random layout -> bytes of one that may run backwards, or (spread: reads) stay where it is. Returns the lowest byte's place. */
static int64_t in_bytes(mesh__kernel_block *b, int ndim, uint32_t width, int spread) {
    int64_t lowest = 0;
    int k;
    if (ndim) b->run *= width;
    for (k = 0; k < ndim; k++) {
        if (spread && below(6) == 0) b->stride[k] = 0;
        if (below(4)) continue;
        b->stride[k] = -b->stride[k];
        lowest += (b->count[k] - 1) * b->stride[k];
    }
    return lowest;
}

/* One more move, of `units` of `width` bytes to what is free in dst from `at` on. Returns where the rest begins; `at`: no room. */
static uint64_t add_move(uint64_t at, uint64_t units, uint32_t width, int plain) {
    job j = {"", NULL, MOVE, 0, 0, 0};
    mesh__kernel_args a;
    uint64_t to_bytes, from_bytes, to = at, from = MARGIN;
    j.width = j.align = width;
    memset(&a, 0x5a, sizeof a);
    a.count = units * width;
    do to_bytes = layout(units, &j, &a.to, &a.to_ndim);
    while (plain && a.to_ndim > 2);
    from_bytes = layout(units, &j, &a.from, &a.from_ndim);
    if (plain) a.from_ndim = 0, from_bytes = a.count;
    to = (to + width - 1) / width * width; /* aligned for the width, or for less */
    from = below(4) ? from + below(64) * width : (ROOM - from_bytes) / width * width; /* or at the end: nothing behind it is read */
    if (below(4) == 0) to += below(width), from += below(2) * below(width);
    if (nmoves == MOVES || to + to_bytes + MARGIN > ROOM || from + from_bytes > ROOM) return at;
    a.dst = (uintptr_t)dst.bytes + to - (uint64_t)in_bytes(&a.to, a.to_ndim, width, 0);
    a.src = (uintptr_t)src.bytes + from - (uint64_t)in_bytes(&a.from, a.from_ndim, width, 1);
    if (below(8) == 0) a.src = 0;
    if (!mesh__batch_add(&batch, &a)) return at;
    moves[nmoves++] = a;
    return to + to_bytes + below(2) * below(40);
}

/* What bytes `from` to `to` of a move do to want. */
static void some_bytes(const mesh__kernel_args *a, uint64_t from, uint64_t to) {
    unsigned char *d = want.bytes + (a->dst - (uintptr_t)dst.bytes), *s = a->src ? src.bytes + (a->src - (uintptr_t)src.bytes) : NULL;
    for (; from < to; from++)
        *unit(d, &a->to, a->to_ndim, from, a->count, 1) = s ? *unit(s, &a->from, a->from_ndim, from, a->count, 1) : 0;
}

/* The chunks of one thread, in the units that the batch has chosen. */
static void one_thread(unsigned grid, unsigned block, unsigned cta, unsigned tid) {
    uint64_t first = 0, c, u;
    int m;
    for (m = 0; m < nmoves; m++) {
        const unsigned long long shape = batch.word[mesh__k_move_at(batch.word, (uint32_t)m) + 2];
        const uint64_t units = shape >> 12, width = UINT64_C(1) << (shape & 15), most = MESH__BATCH_CHUNK;
        const uint64_t behind = first + (units + most - 1) / most;
        for (c = first + (cta + grid - first % grid) % grid; c < behind; c += grid) /* those that are cta modulo grid */
            for (u = (c - first) * most + tid; u < units && u < (c - first + 1) * most; u += block)
                some_bytes(&moves[m], u * width, (u + 1) * width);
        first = behind;
    }
}

static void print_batch(const batch_job *j, unsigned grid, unsigned block, unsigned cta, unsigned tid, int all) {
    static mesh__batch b;
    uint32_t i;
    memcpy(b.word, batch.word, batch.used * sizeof *b.word);
    for (i = 0; i < batch.word[1] >> 32; i++) {
        unsigned long long *move = b.word + mesh__k_move_at(b.word, i);
        move[0] += (UINT64_C(1) << 44) - (uintptr_t)dst.bytes;
        if (move[1]) move[1] += (UINT64_C(1) << 45) - (uintptr_t)src.bytes;
    }
    printf("run %s %u %u %u %u %d 0\n", j->name, grid, block, cta, tid, all);
    print_hex("args", b.word, batch.used * sizeof *b.word);
    print_hex("dst", before.bytes, ROOM);
    print_hex("src", src.bytes, ROOM);
    print_hex("want", want.bytes, ROOM);
}

/* A launch of the batch by both kernels, as check's; want is made, before is dst. */
static void check_batch(unsigned grid, unsigned block, unsigned cta, unsigned tid, int all) {
    unsigned long long threads = (unsigned long long)grid * block, first = (unsigned long long)cta * block + tid, t;
    uint32_t at;
    int k;
    for (k = 0; k < BATCH_JOBS; k++) {
        const batch_job *j = &batch_jobs[k];
        if (batch.used > j->words) continue;
        if (vectors) {
            print_batch(j, grid, block, cta, tid, all);
            continue;
        }
        memcpy(dst.bytes, before.bytes, ROOM);
        if (all)
            for (t = 0; t < threads; t++) j->run(batch.word, threads - 1 - t, threads);
        else
            j->run(batch.word, first, threads);
        for (at = 0; at < ROOM && dst.bytes[at] == want.bytes[at]; at++) {}
        if (at < ROOM)
            printf("FAIL %s: %d moves, %llu chunks on %u * %u threads: byte %u is %02x, not %02x\n", j->name, nmoves, batch.chunks, grid,
                   block, at, dst.bytes[at], want.bytes[at]);
        *(at == ROOM ? &passed : &failed) += 1;
    }
}

static void start_batch(unsigned capacity) {
    static const job bytes = {"", NULL, MOVE, 0, 8, 8};
    fill(&bytes, dst.bytes);
    fill(&bytes, src.bytes);
    memset(&batch, 0x5a, sizeof batch);
    mesh__batch_begin(&batch, capacity);
    nmoves = 0;
}

static void end_batch(void) {
    mesh__batch_end(&batch);
    memcpy(before.bytes, dst.bytes, ROOM);
    memcpy(want.bytes, dst.bytes, ROOM);
}

/* All threads of a launch over up to `most` random moves: large ones and small ones, or very many small ones. */
static void whole_batch(unsigned capacity, int most, int small) {
    uint64_t at = MARGIN, next;
    int m;
    start_batch(capacity);
    do {
        uint32_t width = 1u << below(small ? 3 : 5);
        uint64_t units = small || below(3) == 0 ? 1 + below(small ? 18 : 60)
                         : below(2)             ? MESH__BATCH_CHUNK * (1 + below(2)) - 1 + below(3)
                                                : 1 + below(40000 / width);
        next = add_move(at, units, width, small);
        if (next == at && small) break;
        at = next;
    } while (--most > 0);
    end_batch();
    for (m = 0; m < nmoves; m++) some_bytes(&moves[m], 0, moves[m].count);
    if (vectors)
        check_batch((unsigned)(1 + below(3)), (unsigned)(1 + below(8)), 0, 0, 1);
    else
        check_batch((unsigned)(1 + below(40)), (unsigned)(1 + below(300)), 0, 0, 1);
}

/* One thread of very many, over a move of more chunks than a grid has blocks between two small ones. */
static void huge_batch(void) {
    uint32_t width = 1u << below(4), k;
    uint64_t at;
    mesh__kernel_args a;
    unsigned cta = (unsigned)below(4) ? (unsigned)below(2147483647) : (unsigned)below(4), tid = (unsigned)below(256);
    start_batch(MESH__BATCH_MANY);
    at = add_move(MARGIN, 2500, 2, 0);
    memset(&a, 0x5a, sizeof a);
    at = (at + 15) / 16 * 16;
    a.dst = (uintptr_t)dst.bytes + at;
    a.src = (uintptr_t)src.bytes + MARGIN;
    a.count = width;
    a.to_ndim = a.from_ndim = 4;
    for (k = 0; k < 4; k++) { /* 3 * (2^33 + 1) * 7 * 1024 * 5 units, most of which stay where they are */
        static const long long extents[4] = {(1ll << 33) + 1, 7, 1 << 10, 5};
        const long long w = (long long)width, one = extents[k], two = extents[(k + 1) % 4];
        a.to.count[k] = one, a.to.stride[k] = one == 7 ? 3 * w : one == 5 ? 21 * w : 0;
        a.from.count[k] = two, a.from.stride[k] = two == 7 ? 6 * w : two == 5 ? 42 * w : 0;
        a.count *= (uint64_t)one;
    }
    a.count *= 3;
    a.to.run = a.from.run = 3 * width;
    if (mesh__batch_add(&batch, &a)) moves[nmoves++] = a;
    add_move(at + 105 * width, 1500, 4, 0);
    end_batch();
    one_thread(2147483647u, 256, cta, tid);
    check_batch(2147483647u, 256, cta, tid, 0);
}

/* What the builder makes of a block: dims and unit. */
static void shapes(void) {
    static const struct {
        unsigned long long dst, src, run;
        int ndim;
        long long count[3], stride[3];
        int dims, unit;
        unsigned long long units_of_run;
    } list[] = {
        {4096, 8192, 64, 0, {0}, {0}, 0, 4, 0},                       /* 64 bytes */
        {4096, 8192, 65, 0, {0}, {0}, 0, 0, 0},                       /* 65 bytes */
        {4096, 8192, 16384, 0, {0}, {0}, 0, 4, 0},                    /* a chunk */
        {4096, 8192, 16385 * 16, 0, {0}, {0}, 0, 4, 0},               /* 17 chunks */
        {4096, 8192, 4, 1, {16}, {4}, 0, 4, 0},                       /* runs side by side */
        {4096, 8192, 16, 2, {4, 4}, {64, 16}, 0, 4, 0},               /* twice */
        {4096, 8192, 16, 3, {1, 3, 1}, {7, 48, 9}, 1, 4, 1},          /* dims of 1 */
        {4096, 8192, 8, 2, {2, 3}, {96, 32}, 1, 3, 1},                /* one stride */
        {4096, 8192, 8, 2, {2, 3}, {-96, -32}, 1, 3, 1},              /* backwards */
        {4096, 8192, 8, 2, {2, 3}, {64, 32}, 2, 3, 1},                /* overlapping, as a source may */
        {4096, 8192, 16, 2, {3, 2}, {32, 96}, 2, 4, 1},               /* not in this order */
        {4096, 8192, 16, 3, {2, 2, 2}, {512, 48, 16}, 2, 4, 2},       /* inmost only */
        {4096, 8192, 32, 3, {2, 2, 2}, {256, 128, 48}, 2, 4, 2},      /* outer ones only */
        {4096, 8192, 12, 1, {5}, {16}, 1, 2, 3},                      /* the run decides */
        {4096, 8192, 16, 1, {5}, {18}, 1, 1, 8},                      /* a stride */
        {4096, 8192, 16, 2, {5, 2}, {1001, 32}, 2, 0, 16},            /* the outer one */
        {4104, 8192, 48, 1, {5}, {64}, 1, 3, 6},                      /* dst */
        {4096, 8194, 48, 1, {5}, {64}, 1, 1, 24},                     /* src */
        {4096, 0, 48, 1, {5}, {64}, 1, 4, 3},                         /* zeros */
        {4096, 8192, 1ull << 33, 1, {5}, {1ll << 40}, 1, 4, 1 << 29}, /* 8 GiB */
    };
    int i, k;
    for (i = 0; i < (int)(sizeof list / sizeof *list); i++) {
        int side;
        for (side = 0; side < 2; side++) { /* to, from */
            mesh__kernel_args a;
            mesh__kernel_block *b = side ? &a.from : &a.to;
            unsigned long long *w = batch.word + 2, shape, units, chunks;
            if (side && !list[i].src) continue;
            memset(&a, 0, sizeof a);
            a.dst = list[i].dst, a.src = list[i].src, a.count = b->run = list[i].run;
            if (!list[i].src) a.from_ndim = 8, memset(&a.from, 0x5a, sizeof a.from); /* not read */
            *(side ? &a.from_ndim : &a.to_ndim) = list[i].ndim;
            for (k = 0; k < list[i].ndim; k++) {
                b->count[k] = list[i].count[k], b->stride[k] = list[i].stride[k];
                a.count *= (uint64_t)b->count[k];
            }
            units = a.count >> list[i].unit;
            chunks = units / MESH__BATCH_CHUNK + (units % MESH__BATCH_CHUNK > 0);
            mesh__batch_begin(&batch, MESH__BATCH_FEW);
            expect(mesh__batch_add(&batch, &a), "room for", i, 0, 1);
            shape = w[2];
            expect((shape & 15) == (unsigned)list[i].unit, "unit of", i, shape & 15, (unsigned)list[i].unit);
            expect((shape >> (side ? 8 : 4) & 15) == (unsigned)list[i].dims, "dims of", i, shape >> 4 & 255, (unsigned)list[i].dims);
            expect(!(shape >> (side ? 4 : 8) & 15), "the other side's dims of", i, shape >> 4 & 255, 0);
            expect(shape >> 12 == units, "units of", i, shape >> 12, units);
            expect(batch.chunks == chunks, "chunks of", i, batch.chunks, chunks);
            if (list[i].dims) expect(w[3] == list[i].units_of_run, "run of", i, w[3], list[i].units_of_run);
            expect(batch.used == 5 + 2 * (unsigned)list[i].dims, "words of", i, batch.used, 5 + 2 * (unsigned)list[i].dims);
        }
    }
}

/* How many moves of 2 dims there is room for, and for one of 1 dim behind them; that what has none changes nothing. */
static void room(void) {
    static const struct {
        unsigned capacity;
        int moves, full, one_more, few;
    } list[] = {{MESH__BATCH_FEW, 63, 1, 1, 1},
                {MESH__BATCH_MANY, 63, 0, 1, 1},
                {MESH__BATCH_MANY, 64, 0, 1, 0},
                {MESH__BATCH_MANY, 511, 1, 0, 0}};
    static mesh__batch before_it;
    mesh__kernel_args a;
    int i, k;
    memset(&a, 0, sizeof a);
    a.dst = 4096, a.src = 8192, a.to.run = 16;
    a.to.count[0] = 3, a.to.stride[0] = 1000, a.to.count[1] = 5, a.to.stride[1] = 32;
    for (i = 0; i < (int)(sizeof list / sizeof *list); i++) {
        mesh__batch_begin(&batch, list[i].capacity);
        a.to_ndim = 2;
        a.count = 16 * 3 * 5;
        for (k = 0; k < list[i].moves && mesh__batch_add(&batch, &a); k++) {}
        expect(k == list[i].moves, "moves of", i, (unsigned)k, (unsigned)list[i].moves);
        before_it = batch;
        if (list[i].full) expect(!mesh__batch_add(&batch, &a), "room left in", i, 1, 0);
        expect(memcmp(&before_it, &batch, sizeof batch) == 0, "words changed by what", i, 1, 0);
        a.to_ndim = 1;
        a.count = 16 * 3;
        expect(mesh__batch_add(&batch, &a) == list[i].one_more, "one more to", i, (unsigned)!list[i].one_more, (unsigned)list[i].one_more);
        k += list[i].one_more;
        expect(mesh__batch_end(&batch) == (unsigned)k, "chunks of", i, batch.chunks, (unsigned)k);
        expect(mesh__batch_few(&batch) == list[i].few, "kernel of", i, (unsigned)mesh__batch_few(&batch), (unsigned)list[i].few);
        expect(batch.used <= list[i].capacity, "words of full", i, batch.used, list[i].capacity);
    }
    mesh__batch_begin(&batch, MESH__BATCH_FEW);
    a.count = 0;
    expect(mesh__batch_add(&batch, &a), "a move of", 0, 0, 1);
    expect(mesh__batch_end(&batch) == 0 && batch.word[0] == 0, "chunks of none,", 0, batch.chunks, 0);
    mesh_move_few(&batch, 0, 1); /* does nothing */
}

static void batches(int rounds) {
    int round;
    for (round = 0; round < rounds; round++) {
        whole_batch(below(2) ? MESH__BATCH_FEW : MESH__BATCH_MANY, 1 + (int)below(20), 0);
        whole_batch(MESH__BATCH_MANY, 1, 0);
        if (!vectors || round % 2 == 0) huge_batch();
        if (round % 8 == 0) whole_batch(MESH__BATCH_FEW, MOVES, 1);
        if (round % 8 == 0) whole_batch(MESH__BATCH_MANY, MOVES, 1);
    }
}

/* ---- rows ----------------------------------------------------------------------------------------------------------------------------- */

/* Against mesh__rows_here: the bits of moves, greatest logits, losses and gradients; of sums that a warp makes in another order, and of what the CPU has in
   f64, the value. The PTX has the bits of the text here. */
typedef struct rows_job {
    const char *name;
    kernel *run;
    int op;
    double near; /* relative; 0: bit for bit */
} rows_job;

static const rows_job rows_jobs[] = {{"mesh_rows_move", mesh_rows_move, MESH_ROWS_MOVE, 0},
                                     {"mesh_rows_sum", mesh_rows_sum, MESH_ROWS_SUM, 0},
                                     {"mesh_rows_dot", mesh_rows_dot, MESH_ROWS_DOT, 1e-6},
                                     {"mesh_rows_merge", mesh_rows_merge, MESH_ROWS_MERGE, 2e-6},
                                     {"mesh_rows_most", mesh_rows_most, MESH_ROWS_MOST, 0},
                                     {"mesh_rows_exp", mesh_rows_exp, MESH_ROWS_EXP, 2e-6},
                                     {"mesh_rows_loss", mesh_rows_loss, MESH_ROWS_LOSS, 0},
                                     {"mesh_rows_gradient", mesh_rows_gradient, MESH_ROWS_GRADIENT, 0}};
enum { ROWS_JOBS = sizeof rows_jobs / sizeof *rows_jobs, ROWS_AT = MARGIN, WORDS_AT = ROOM / 2 };

/* Rows of a matrix in one of the two memories, in an order of dims drawn at random; returns where the next array may begin. */
static uint64_t rows_matrix(mesh_matrix *m, unsigned char *base, uint64_t at, int dtype, uint64_t rows, uint64_t width, int has_step) {
    int64_t elem = (int64_t)mesh_dtype_bytes((mesh_dtype)dtype), extent, gap = below(2) ? 0 : (int64_t)below(3) * elem;
    at = (at + 15) / 16 * 16 + (below(3) ? 0 : below(4) * (uint64_t)elem);
    *m = mesh__matrix(base + at, (mesh_dtype)dtype, (int64_t)width);
    if (has_step && below(2)) m->step = elem * (int64_t)(1 + below(2));
    extent = (int64_t)width * m->step + gap;
    m->stride[2] = extent;
    if (below(2) && rows) { /* count[0] x count[1] x the rest, the middle one innermost */
        m->count[0] = 1 + (int64_t)below(4), m->count[1] = 1 + (int64_t)below(3);
        m->stride[1] = extent;
        m->stride[0] = extent * m->count[1];
        m->stride[2] = m->stride[0] * m->count[0];
        extent *= m->count[1];
        return at + (uint64_t)(m->stride[2] * (((int64_t)rows - 1) / (m->count[0] * m->count[1]) + 1));
    }
    return at + (uint64_t)extent * rows;
}

static void rows_numbers(unsigned char *p, uint64_t from, uint64_t bytes, int dtype, int far) { /* -8 to 8, some `far` times as far out */
    uint64_t elem = mesh_dtype_bytes((mesh_dtype)dtype), i;
    for (i = from; i + elem <= from + bytes; i += elem) {
        double v = ((double)below(4096) / 256 - 8) * (below(40) ? 1 : far);
        float f = (float)v;
        if (dtype == MESH_F64) memcpy(p + i, &v, sizeof v);
        if (dtype == MESH_F32) memcpy(p + i, &f, sizeof f);
        if (dtype == MESH_F16 || dtype == MESH_BF16) mesh__narrow((mesh_dtype)dtype, p + i, MESH_F32, &f, 1);
    }
}

/* Memory of `bytes`, behind what there is in src. */
static void *rows_take(uint64_t *at, uint64_t bytes) {
    void *p = src.bytes + (*at + 15) / 16 * 16;
    *at = (*at + 15) / 16 * 16 + bytes;
    return p;
}

static void rows_floats(float *p, uint64_t n, double low, double high) {
    uint64_t i;
    for (i = 0; i < n; i++) p[i] = (float)(low + (high - low) * (double)below(1000) / 1000);
}

/* What the op reads besides matrices. */
static void rows_words(mesh_rows *r, uint64_t *at, uint64_t sources) {
    static const uint32_t odd[] = {0xff800000u, 0x7fc00000u, 0x7f800000u};
    uint64_t n = (uint64_t)(r->rows * r->terms), i, sums = n;
    float *weight = (float *)rows_take(at, (n + 1) * sizeof *weight);
    float *word = (float *)(void *)(dst.bytes + WORDS_AT);
    int32_t *target = (int32_t *)rows_take(at, n * sizeof *target);
    int logits = r->op >= MESH_ROWS_MOST;
    if (!logits && r->op != MESH_ROWS_MERGE && below(3)) {
        int64_t *index = (int64_t *)rows_take(at, n * sizeof *index);
        for (i = 0; i < n; i++) index[i] = below(6) || r->op == MESH_ROWS_DOT ? (int64_t)below(sources) : -1 - (int64_t)below(2);
        r->index = index;
    }
    rows_floats(weight, n, -3, 3);
    if (r->op == MESH_ROWS_LOSS) rows_floats(weight, n, 0.01, 90);
    if (r->op == MESH_ROWS_EXP || r->op == MESH_ROWS_GRADIENT) rows_floats(weight, n, 8, 12); /* as great as the greatest */
    if (r->op != MESH_ROWS_SUM || below(2)) r->weight = weight;
    if (logits) sums = (uint64_t)r->rows * (r->op == MESH_ROWS_EXP || r->op == MESH_ROWS_GRADIENT ? 3 : 1);
    rows_floats(word, sums, 0.25, 6);
    r->word = word;
    for (i = 0; i < n && r->op == MESH_ROWS_MERGE && below(2); i++) {
        if (below(4) == 0) memcpy(&weight[i], &odd[below(3)], 4);
        if (below(4) == 0) memcpy(&word[i], &odd[below(3)], 4);
    }
    for (i = 0; i < (uint64_t)r->rows; i++) target[i] = below(5) ? (int32_t)below((uint64_t)r->vocabulary) : -1 - (int32_t)below(100);
    r->target = target;
    if (r->op == MESH_ROWS_GRADIENT && below(2)) {
        float *scale = (float *)rows_take(at, n * sizeof *scale);
        rows_floats(scale, (uint64_t)r->rows, 0, 2);
        r->row_scale = scale;
    }
}

/* A call over random matrices. to and word are in dst, all else in src; ends where src is used. */
static uint64_t rows_draw(const rows_job *j, mesh_rows *r) {
    static const int floats[] = {MESH_F16, MESH_BF16, MESH_F32, MESH_F64}, any[] = {MESH_U8, MESH_F16, MESH_F32, MESH_F64, MESH_C128};
    int logits = j->op >= MESH_ROWS_MOST, far = j->op == MESH_ROWS_EXP || j->op == MESH_ROWS_GRADIENT ? 1 : 30;
    int two = j->op == MESH_ROWS_MOVE, d = j->op == MESH_ROWS_MERGE ? MESH_F32 : floats[below(logits ? 3 : 4)];
    uint64_t rows = below(9), width, at = MARGIN, sources, most;
    memset(r, 0, sizeof *r);
    if (two) d = any[below(5)];
    r->op = j->op;
    r->terms = j->op == MESH_ROWS_SUM ? 1 + (int)below(4) : logits ? 2 + (int)below(2) : 1;
    most = 20000 / ((rows * (uint64_t)(j->op == MESH_ROWS_SUM ? r->terms : 1) + 14) * (uint64_t)(two ? 16 : logits ? 8 : j->op == MESH_ROWS_MERGE ? 4 : 8));
    width = below(most + 1);
    if (logits && !width) width = 1;
    r->rows = (int64_t)rows, r->width = (int64_t)width;
    sources = rows * (uint64_t)(j->op == MESH_ROWS_SUM ? r->terms : 1) + 2;
    at = rows_matrix(&r->from, src.bytes, at, d, sources, width, logits);
    rows_numbers(src.bytes, MARGIN, at - MARGIN, two ? MESH_F32 : d, far);
    if (j->op == MESH_ROWS_DOT) {
        uint64_t start = (at + 15) / 16 * 16;
        int other = floats[below(4)];
        at = rows_matrix(&r->with, src.bytes, start, other, rows, width, 0);
        rows_numbers(src.bytes, start, at - start, other, far);
    }
    if (j->op == MESH_ROWS_SUM) d = floats[below(4)];
    rows_numbers(dst.bytes, MARGIN, WORDS_AT - MARGIN, two ? MESH_F32 : d, far);
    rows_matrix(&r->to, dst.bytes, MARGIN, d, rows, width, logits);
    r->add = j->op == MESH_ROWS_SUM && below(3) == 0;
    r->columns = (int64_t)below(width + 1);
    r->first = (int64_t)below(50);
    r->vocabulary = r->first + (int64_t)width + (int64_t)below(20);
    r->smoothing = r->terms == 3 ? 0.1f : 0;
    r->scale = below(2) ? 1 : 0.125f;
    rows_words(r, &at, sources);
    if (two && below(8) == 0) r->from.base = NULL; /* zeros */
    if (j->op == MESH_ROWS_GRADIENT && below(2)) { /* in place */
        r->from = r->to;
    } else if (j->op == MESH_ROWS_SUM && r->terms == 1 && !r->index && below(2)) {
        r->from = r->to;
    }
    return at;
}

static mesh__kernel_matrix rows_kernel_matrix(const mesh_matrix *m) {
    mesh__kernel_matrix k;
    int i;
    memset(&k, 0x5a, sizeof k);
    k.base = (uintptr_t)m->base;
    for (i = 0; i < 3; i++) k.stride[i] = m->stride[i];
    for (i = 0; i < 2; i++) k.count[i] = m->count[i];
    k.step = m->step;
    k.dtype = m->dtype;
    return k;
}

static mesh__kernel_rows rows_parameter(const mesh_rows *r) {
    mesh__kernel_rows a;
    memset(&a, 0x5a, sizeof a); /* what a kernel has no use for is not read */
    a.to = rows_kernel_matrix(&r->to), a.from = rows_kernel_matrix(&r->from), a.with = rows_kernel_matrix(&r->with);
    a.index = (uintptr_t)r->index, a.weight = (uintptr_t)r->weight, a.word = (uintptr_t)r->word;
    a.target = (uintptr_t)r->target, a.row_scale = (uintptr_t)r->row_scale;
    a.rows = r->rows, a.width = r->width, a.first = r->first, a.columns = r->columns, a.vocabulary = r->vocabulary;
    a.smoothing = r->smoothing, a.scale = r->scale, a.terms = r->terms, a.add = r->add;
    if (r->op == MESH_ROWS_MOVE) {
        uint64_t bytes = (uint64_t)r->width * mesh_dtype_bytes((mesh_dtype)r->to.dtype), bits = bytes | a.to.base | a.from.base;
        int i;
        for (i = 0; i < 3; i++) bits |= (uint64_t)a.to.stride[i] | (uint64_t)a.from.stride[i];
        for (a.unit = 0; a.unit < 4 && !(bits >> a.unit & 1); a.unit++) {}
        a.width = (long long)(bytes >> a.unit);
    }
    return a;
}

static unsigned long long rows_moved(unsigned long long p) {
    if (p >= (uintptr_t)dst.bytes && p < (uintptr_t)dst.bytes + ROOM) return (UINT64_C(1) << 44) + (p - (uintptr_t)dst.bytes);
    if (p >= (uintptr_t)src.bytes && p < (uintptr_t)src.bytes + ROOM) return (UINT64_C(1) << 45) + (p - (uintptr_t)src.bytes);
    return p;
}

static void print_rows(const rows_job *j, mesh__kernel_rows a, unsigned grid, unsigned block, uint64_t src_bytes) {
    a.to.base = rows_moved(a.to.base), a.from.base = rows_moved(a.from.base), a.with.base = rows_moved(a.with.base);
    a.index = rows_moved(a.index), a.weight = rows_moved(a.weight), a.word = rows_moved(a.word);
    a.target = rows_moved(a.target), a.row_scale = rows_moved(a.row_scale);
    printf("run %s %u %u 0 0 1 %d\n", j->name, grid, block, j->op == MESH_ROWS_MERGE ? 4 : 0);
    print_hex("args", &a, sizeof a);
    print_hex("dst", before.bytes, ROOM);
    print_hex("src", src.bytes, src_bytes);
    print_hex("want", dst.bytes, ROOM);
}

/* Is each number near enough, and all between numbers as it was? */
static int rows_near(const rows_job *j, const mesh_rows *r) {
    uint64_t i;
    for (i = 0; i < ROOM; i += 4) {
        float has, wants;
        double d, room;
        if (!memcmp(dst.bytes + i, want.bytes + i, 4)) continue;
        memcpy(&has, dst.bytes + i, 4);
        memcpy(&wants, want.bytes + i, 4);
        if (has != has && wants != wants) continue;
        d = (double)has - (double)wants;
        room = j->near * ((wants < 0 ? -(double)wants : (double)wants) + (j->op == MESH_ROWS_DOT ? 1 : 8));
        if (i < WORDS_AT && j->op != MESH_ROWS_MERGE) return 0;
        if (!(d <= room && -d <= room)) return printf("FAIL %s: at %u %.9g, not %.9g\n", j->name, (unsigned)i, (double)has, (double)wants), 0;
    }
    return r->rows >= 0;
}

static void rows(const rows_job *j) {
    mesh_rows r;
    mesh__kernel_rows a;
    uint64_t src_bytes;
    unsigned grid = (unsigned)(1 + below(vectors ? 2 : 5)), block = 32 * (unsigned)(1 + below(vectors ? 2 : 4));
    unsigned long long threads = (unsigned long long)grid * block, t;
    memset(dst.bytes, 0x5a, ROOM);
    memset(src.bytes, 0x5a, ROOM);
    src_bytes = rows_draw(j, &r) + MARGIN;
    a = rows_parameter(&r);
    memcpy(before.bytes, dst.bytes, ROOM);
    mesh__rows_here(&r);
    memcpy(want.bytes, dst.bytes, ROOM);
    memcpy(dst.bytes, before.bytes, ROOM);
    for (t = 0; t < threads; t++) j->run(&a, threads - 1 - t, threads);
    if (vectors) {
        print_rows(j, a, grid, block, src_bytes);
    } else if (!memcmp(dst.bytes, want.bytes, ROOM) || (j->near > 0 && rows_near(j, &r))) {
        passed++;
    } else {
        uint32_t i;
        for (i = 0; dst.bytes[i] == want.bytes[i]; i++) {}
        printf("FAIL %s: %lld rows of %lld, terms %d: byte %u is %02x, not %02x\n", j->name, (long long)r.rows, (long long)r.width, r.terms, i,
               dst.bytes[i], want.bytes[i]);
        failed++;
    }
}

/* The functions on all that they are for. */
static void functions(void) {
    uint32_t wrong = 0, i;
    for (i = 0; i < 3000000; i++) {
        float x = -(float)i / 30000, y, z, ln;
        double d;
        y = mesh__k_exp_below(x), z = mesh__exp_below(x);
        wrong += memcmp(&y, &z, sizeof y) != 0;
        x = 1 + (float)i / 3000000;
        ln = mesh__k_ln_near(x);
        d = (double)ln - mesh__ln((double)x);
        wrong += !(d < 1.5e-7 && d > -1.5e-7);
        x = mesh__float_of_bits(0x00800000u + (uint32_t)(below(0x7f000000u)));
        d = mesh__k_ln((double)x);
        wrong += d != mesh__ln((double)x);
    }
    wrong += mesh__k_ln(0) > -1e300 || mesh__k_ln(-1) == mesh__k_ln(-1);
    if (wrong) printf("FAIL functions: %u results differ\n", wrong);
    *(wrong ? &failed : &passed) += 1;
}

static void rows_all(int rounds) {
    int i, k;
    if (!vectors) functions();
    for (k = 0; k < rounds; k++)
        for (i = 0; i < ROWS_JOBS; i++) rows(&rows_jobs[i]);
}

static void halves(void) {
    uint64_t wrong = 0;
    uint32_t h;
    uint64_t u;
    for (h = 0; h < 65536; h++) {
        float a = mesh__k_f32_of_f16(h), b = mesh__f32_of_f16((uint16_t)h), c = mesh__k_f32_of_bf16(h), d = mesh__f32_of_bf16((uint16_t)h);
        wrong += memcmp(&a, &b, sizeof a) != 0;
        wrong += memcmp(&c, &d, sizeof c) != 0;
    }
    for (u = below(61); u <= 0xffffffffu; u += 61) {
        float f = mesh__float_of_bits((uint32_t)u);
        wrong += mesh__k_f16_of_f32(f) != mesh__f16_of_f32(f);
        wrong += mesh__k_bf16_of_f32(f) != mesh__bf16_of_f32(f);
    }
    if (wrong) printf("FAIL halves: %llu conversions differ\n", (unsigned long long)wrong);
    *(wrong ? &failed : &passed) += 1;
}

static void text(void) {
    static char joined[MESH__PTX_BYTES + 1];
    static const char *const names[] = {
#define NAME(n) ".entry " #n "(",
        MESH_KERNELS(NAME)
#undef NAME
    };
    size_t i;
    mesh__ptx_join(joined);
    for (i = 0; i < sizeof names / sizeof *names; i++) {
        int found = strstr(joined, names[i]) != NULL;
        int tested = 0, k;
        for (k = 0; k < JOBS; k++) tested |= strncmp(jobs[k].name, names[i] + 7, strlen(jobs[k].name)) == 0;
        for (k = 0; k < SQUARES_JOBS; k++) tested |= strncmp(squares_jobs[k].name, names[i] + 7, strlen(squares_jobs[k].name)) == 0;
        tested |= strncmp(fold_job.name, names[i] + 7, strlen(fold_job.name)) == 0;
        for (k = 0; k < ROWS_JOBS; k++) tested |= strncmp(rows_jobs[k].name, names[i] + 7, strlen(rows_jobs[k].name)) == 0;
        for (k = 0; k < BATCH_JOBS; k++) tested |= strncmp(batch_jobs[k].name, names[i] + 7, strlen(batch_jobs[k].name)) == 0;
        if (!found || !tested) printf("FAIL text: \"%s\": %s\n", names[i], found ? "no test" : "not there");
        *(found && tested ? &passed : &failed) += 1;
    }
    *(strlen(joined) == MESH__PTX_BYTES ? &passed : &failed) += 1;
}

int main(int argc, char **argv) {
    int i, op, round, rounds;
    vectors = argc > 1 && strcmp(argv[1], "--vectors") == 0;
    if (argc > 1 + vectors) state = strtoull(argv[1 + vectors], NULL, 10);
    rounds = vectors ? 3 : 20;
    if (!vectors) halves();
    if (!vectors) text();
    if (!vectors) shapes();
    if (!vectors) room();
    for (i = 0; i < JOBS; i++) {
        const job *j = &jobs[i];
        for (op = 0; op < MESH_MINLOC; op++) {
            if (j->kind == REDUCE ? !mesh__reducible(j->dtype, op) : op > 0) continue;
            for (round = 0; round < (j->kind == REDUCE ? rounds : 4 * rounds); round++) {
                uint64_t most = vectors ? 60 : 1500, count = below(8) ? 1 + below(most) : below(4);
                fill(j, dst.bytes);
                fill(j, src.bytes);
                whole(j, op, count, 1);
                whole(j, op, count, 0);
                whole(j, op, vectors ? 48 : 1440, 0); /* many divisors: many dims */
                huge(j, op);
            }
        }
    }
    norms(vectors ? 8 : 400);
    batches(vectors ? 6 : 400);
    rows_all(vectors ? 36 : 1500);
    if (!vectors) printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
