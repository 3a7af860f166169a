/* mesh/vector.h - loops over wide registers: n inputs combined in one pass, and copies that leave the caches alone. Part of mesh.h 0.1.0. MIT licence.

   Includes transport.h. The loops are written once, with the vector types of gcc and clang (vectors at any -O, whatever the compiler would make of a loop), and made
   for registers of 16 bytes, which the target has (SSE2, NEON), and on x86 of 32 and 64 (AVX2, AVX-512), for CPUs that have them. What they give is
   what the plain loops of kernels.h give, bit for bit; those do all else: other ops, other dtypes, other targets, less than a block.

OPTIONS
    #define MESH_NO_SIMD    plain loops only
*/
#if !defined(MESH_VECTOR_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_VECTOR_IMPLEMENTED))
#include "transport.h"
#define MESH_VECTOR_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_VECTOR_IMPLEMENTED)
#define MESH_VECTOR_IMPLEMENTED

/* i386 without SSE2 adds in registers of 80 bits: there all of a program does. */
#if !defined(MESH_NO_SIMD) && defined(__GNUC__) && (defined(__SSE2__) || defined(__aarch64__))
#define MESH__SIMD
#ifdef __SSE2__
#define MESH__SIMD_X86
#endif
#endif

/* Bytes of a loop's registers. */
typedef enum mesh__width { MESH__PLAIN = 0, MESH__WIDE_16 = 16, MESH__WIDE_32 = 32, MESH__WIDE_64 = 64 } mesh__width;

/* The widest that this CPU has. Costs some loads: the compiler's library has asked the CPU before main. In cache AVX-512 sums a third faster than AVX2
   and finds maxima two thirds faster; out of it they are as good as each other (bench_kernels). */
MESH__PRIVATE mesh__width mesh__widest(void) {
#ifdef MESH__SIMD_X86
    if (__builtin_cpu_supports("avx512bw")) return MESH__WIDE_64;
    if (__builtin_cpu_supports("avx2")) return MESH__WIDE_32;
#endif
#ifdef MESH__SIMD
    return MESH__WIDE_16;
#else
    return MESH__PLAIN;
#endif
}

/* The loops that there are. */
typedef enum mesh__loop {
    MESH__NO_LOOP,
    MESH__SUM_32, /* of integers */
    MESH__SUM_64,
    MESH__SUM_F32,
    MESH__SUM_F64,
    MESH__SUM_F16,
    MESH__SUM_BF16,
    MESH__LEAST_32, /* of integers: signed, once their bits are turned */
    MESH__LEAST_64,
    MESH__LEAST_F16, /* of f16 and bf16 */
    MESH__LEAST_F32,
    MESH__LEAST_F64
} mesh__loop;

/* Bytes `at` to `to` of every source, s0 op s1 op ..., into all destinations, which begin at byte `skip`. A destination may be a source, and overlaps
   none in another way. Nothing need be aligned. A loop moves `at` behind its last whole block. */
typedef struct mesh__pass {
    mesh__loop loop;
    size_t elem;
    int64_t turn; /* LEAST: turns the bits of numbers, or of their keys, so that the one sought is the least */
    int64_t inf;  /* LEAST: the bits of infinity */
    void *const *dst;
    const void *const *src;
    int ndst, nsrc;
    int stream; /* stores go past the caches, where dst is aligned */
    size_t at, to, skip;
} mesh__pass;

/* The loop for an op on a dtype. */
MESH__PRIVATE void mesh__pass_for(mesh__pass *p, int op, int dtype) {
    static const struct {
        int dtype;
        mesh__loop sum, least;
        int64_t turn, inf;
    } loops[] = {{MESH_F32, MESH__SUM_F32, MESH__LEAST_F32, 0, 0x7f800000},
                 {MESH_F64, MESH__SUM_F64, MESH__LEAST_F64, 0, INT64_C(0x7ff0000000000000)},
                 {MESH_F16, MESH__SUM_F16, MESH__LEAST_F16, 0, 0x7c00},
                 {MESH_BF16, MESH__SUM_BF16, MESH__LEAST_F16, 0, 0x7f80},
                 {MESH_I32, MESH__SUM_32, MESH__LEAST_32, 0, 0},
                 {MESH_U32, MESH__SUM_32, MESH__LEAST_32, INT32_MIN, 0},
                 {MESH_I64, MESH__SUM_64, MESH__LEAST_64, 0, 0},
                 {MESH_U64, MESH__SUM_64, MESH__LEAST_64, INT64_MIN, 0}};
    size_t i;
    p->loop = MESH__NO_LOOP;
    p->elem = mesh_dtype_bytes((mesh_dtype)dtype);
    p->turn = p->inf = 0;
    for (i = 0; i < sizeof loops / sizeof loops[0]; i++) {
        if (loops[i].dtype != dtype) continue;
        if (op == MESH_SUM || op == MESH_AVG) p->loop = loops[i].sum;
        if (op == MESH_MIN || op == MESH_MAX) p->loop = loops[i].least;
        p->turn = op == MESH_MAX ? ~loops[i].turn : loops[i].turn;
        p->inf = loops[i].inf;
    }
}

#ifdef MESH__SIMD

/* A store of 16, 32, 64 bytes to aligned mesh__vs *p that leaves the caches alone, where the target has one. */
#if defined(__clang__)
#define MESH__STREAM_16(p, x) __builtin_nontemporal_store((mesh__vs)(x), p)
#define MESH__STREAM_32 MESH__STREAM_16
#define MESH__STREAM_64 MESH__STREAM_16
#elif defined(MESH__SIMD_X86)
#define MESH__STREAM_16(p, x) __builtin_ia32_movntdq(p, (mesh__vs)(x))
#define MESH__STREAM_32(p, x) __builtin_ia32_movntdq256(p, (mesh__vs)(x))
#define MESH__STREAM_64(p, x) __builtin_ia32_movntdq512(p, (mesh__vs)(x))
#else
#define MESH__STREAM_16(p, x) (*(p) = (mesh__vs)(x))
#endif

/* -Ofast adds the sources in no other order. */
#ifdef MESH__SIMD_X86
#define MESH__KEEP(v) __asm__("" : "+x"(v))
#else
#define MESH__KEEP(v) __asm__("" : "+w"(v))
#endif

/* Bytes that a source is asked for beforehand: with two sources the CPU does not by itself (out of cache f16 is 2.5 times as fast, f32 a tenth). */
enum { MESH__AHEAD = 512 };

/* Four registers at a time: START declares what is kept of each, before any source; NEXT takes in x, loaded from a source; LAST makes x the result. */
#define MESH__BY_FOUR(bytes, mesh__vx, START, NEXT, LAST)                                     \
    for (; p->to - p->at >= 4 * bytes; p->at += 4 * bytes) {                                  \
        mesh__vx x, x0, x1, x2, x3;                                                           \
        START(a0, b0);                                                                        \
        START(a1, b1);                                                                        \
        START(a2, b2);                                                                        \
        START(a3, b3);                                                                        \
        for (k = 0; k < p->nsrc; k++) {                                                       \
            const mesh__vx *s = (const mesh__vx *)((const unsigned char *)p->src[k] + p->at); \
            __builtin_prefetch((const void *)((uintptr_t)s + MESH__AHEAD));                   \
            x = s[0];                                                                         \
            NEXT(a0, b0);                                                                     \
            x = s[1];                                                                         \
            NEXT(a1, b1);                                                                     \
            x = s[2];                                                                         \
            NEXT(a2, b2);                                                                     \
            x = s[3];                                                                         \
            NEXT(a3, b3);                                                                     \
        }                                                                                     \
        LAST(a0, b0);                                                                         \
        x0 = x;                                                                               \
        LAST(a1, b1);                                                                         \
        x1 = x;                                                                               \
        LAST(a2, b2);                                                                         \
        x2 = x;                                                                               \
        LAST(a3, b3);                                                                         \
        x3 = x;                                                                               \
        for (k = 0; k < p->ndst; k++) {                                                       \
            unsigned char *to = (unsigned char *)p->dst[k] + (p->at - p->skip);               \
            mesh__vx *d = (mesh__vx *)to;                                                     \
            mesh__vs *past = (mesh__vs *)to;                                                  \
            if (p->stream && ((uintptr_t)to & (bytes - 1)) == 0) {                            \
                MESH__STREAM_##bytes(past, x0);                                               \
                MESH__STREAM_##bytes(past + 1, x1);                                           \
                MESH__STREAM_##bytes(past + 2, x2);                                           \
                MESH__STREAM_##bytes(past + 3, x3);                                           \
            } else {                                                                          \
                d[0] = x0;                                                                    \
                d[1] = x1;                                                                    \
                d[2] = x2;                                                                    \
                d[3] = x3;                                                                    \
            }                                                                                 \
        }                                                                                     \
    }                                                                                         \
    break

/* What is added to -0 is itself. */
#define MESH__SUM_START_32(a, b) mesh__vu a = none
#define MESH__SUM_START_64(a, b) mesh__vl a = (mesh__vl)none
#define MESH__SUM_START_F32(a, b) mesh__vf a = (mesh__vf)(none + 0x80000000u)
#define MESH__SUM_START_F64(a, b) mesh__vd a = (mesh__vd)((mesh__vl)none + ((uint64_t)1 << 63))
#define MESH__SUM_NEXT(a, b) a += x
#define MESH__SUM_NEXT_F(a, b) \
    a += x;                    \
    MESH__KEEP(a)
#define MESH__SUM_LAST(a, b) x = (a)

#define MESH__LEAST_START(a, b) mesh__vx a = magnitude
#define MESH__LEAST_NEXT(a, b) \
    x ^= turn;                 \
    less = x < a;              \
    a = (x & less) | (a & ~less)
#define MESH__LEAST_LAST(a, b) x = a ^ turn

/* Floats by keys, as in kernels.h; b: where a NaN was seen. A key's key is the number. */
#define MESH__KEY_OF(x) (x ^ ((x < 0) & magnitude))
#define MESH__LEAST_START_F(a, b) mesh__vx a = magnitude, b = zero
#define MESH__LEAST_NEXT_F(a, b) \
    b |= (x & magnitude) > inf;  \
    x = MESH__KEY_OF(x);         \
    MESH__LEAST_NEXT(a, b)
#define MESH__LEAST_LAST_F(a, b) \
    a ^= turn;                   \
    x = (MESH__KEY_OF(a) & ~b) | (nan & b)

#define MESH__LEAST(bytes, mesh__vt, START, NEXT, LAST)                                            \
    {                                                                                              \
        typedef mesh__vt mesh__vx __attribute__((vector_size(bytes), aligned(1), may_alias));      \
        const mesh__vx zero = {0}, turn = zero + (mesh__vt)p->turn, inf = zero + (mesh__vt)p->inf, \
                       nan = inf | inf >> 1;                                                       \
        const mesh__vx magnitude = zero + (mesh__vt) ~((uint64_t)1 << (sizeof(mesh__vt) * 8 - 1)); \
        mesh__vx less;                                                                             \
        (void)nan;                                                                                 \
        MESH__BY_FOUR(bytes, mesh__vx, START, NEXT, LAST);                                         \
    }

/* Halves by twos, as one number of 32 bits: the lower adds up in a, the upper in b. */
#define MESH__HALVES_START(a, b) \
    MESH__SUM_START_F32(a, );    \
    MESH__SUM_START_F32(b, )

/* The bits of a sum that is a NaN do not reach below a bf16's: it is not rounded away. */
#define MESH__BF16_NARROW(f) \
    u = (mesh__vu)f;         \
    u += 0x7fffu + (u >> 16 & 1u)
#define MESH__BF16_NEXT(a, b)         \
    a += (mesh__vf)(x << 16);         \
    MESH__KEEP(a);                    \
    b += (mesh__vf)(x & 0xffff0000u); \
    MESH__KEEP(b)
#define MESH__BF16_LAST(a, b) \
    MESH__BF16_NARROW(a);     \
    x = u >> 16;              \
    MESH__BF16_NARROW(b);     \
    x |= u & 0xffff0000u

/* The exponent is 112 more, 224 where all its bits are set; a subnormal number is what its bits say behind 2^-14, less that. */
#define MESH__F16_WIDEN(f, h)                           \
    u = ((h)&0x7fffu) << 13;                            \
    m = u & 0x0f800000u;                                \
    n = (mesh__vu)(m == 0x0f800000u);                   \
    m = (mesh__vu)(m == 0u);                            \
    u += (112u << 23) + (n & (112u << 23));             \
    v = (mesh__vu)((mesh__vf)(u + (1u << 23)) - least); \
    f = (mesh__vf)((u & ~m) | (v & m) | ((h)&0x8000u) << 16)
/* Below 2^-14 the sum with 1/2 rounds where an f16 does. */
#define MESH__F16_NARROW(f)                                 \
    u = (mesh__vu)f & 0x7fffffffu;                          \
    m = (mesh__vu)((mesh__vi)u < (113 << 23));              \
    v = (u - (112u << 23) + 0xfffu + (u >> 13 & 1u)) >> 13; \
    n = (mesh__vu)((mesh__vf)u + half) - (mesh__vu)half;    \
    v = (n & m) | (v & ~m);                                 \
    m = (mesh__vu)((mesh__vi)u >= 0x477ff000);              \
    n = (mesh__vu)((mesh__vi)u > 0x7f800000);               \
    u = (v & ~m) | (m & 0x7c00u) | (n & 0x200u) | ((mesh__vu)f >> 16 & 0x8000u)
#define MESH__F16_NEXT(a, b)     \
    MESH__F16_WIDEN(f, x);       \
    a += f;                      \
    MESH__KEEP(a);               \
    MESH__F16_WIDEN(f, x >> 16); \
    b += f;                      \
    MESH__KEEP(b)
#define MESH__F16_LAST(a, b) \
    MESH__F16_NARROW(a);     \
    x = u;                   \
    MESH__F16_NARROW(b);     \
    x |= u << 16

#define MESH__LOOPS(name, TARGET, bytes)                                                                \
    TARGET MESH__PRIVATE void name(mesh__pass *p) {                                                     \
        typedef long long mesh__vs __attribute__((vector_size(bytes), may_alias));                      \
        typedef float mesh__vf __attribute__((vector_size(bytes), aligned(1), may_alias));              \
        typedef double mesh__vd __attribute__((vector_size(bytes), aligned(1), may_alias));             \
        typedef int32_t mesh__vi __attribute__((vector_size(bytes), aligned(1), may_alias));            \
        typedef uint32_t mesh__vu __attribute__((vector_size(bytes), aligned(1), may_alias));           \
        typedef uint64_t mesh__vl __attribute__((vector_size(bytes), aligned(1), may_alias));           \
        const mesh__vu none = {0};                                                                      \
        const mesh__vf least = (mesh__vf)(none + (113u << 23)), half = (mesh__vf)(none + (126u << 23)); \
        mesh__vf f;                                                                                     \
        mesh__vu u, v, m, n;                                                                            \
        int k;                                                                                          \
        switch (p->loop) {                                                                              \
        case MESH__SUM_32:                                                                              \
            MESH__BY_FOUR(bytes, mesh__vu, MESH__SUM_START_32, MESH__SUM_NEXT, MESH__SUM_LAST);         \
        case MESH__SUM_64:                                                                              \
            MESH__BY_FOUR(bytes, mesh__vl, MESH__SUM_START_64, MESH__SUM_NEXT, MESH__SUM_LAST);         \
        case MESH__SUM_F32:                                                                             \
            MESH__BY_FOUR(bytes, mesh__vf, MESH__SUM_START_F32, MESH__SUM_NEXT_F, MESH__SUM_LAST);      \
        case MESH__SUM_F64:                                                                             \
            MESH__BY_FOUR(bytes, mesh__vd, MESH__SUM_START_F64, MESH__SUM_NEXT_F, MESH__SUM_LAST);      \
        case MESH__SUM_F16:                                                                             \
            MESH__BY_FOUR(bytes, mesh__vu, MESH__HALVES_START, MESH__F16_NEXT, MESH__F16_LAST);         \
        case MESH__SUM_BF16:                                                                            \
            MESH__BY_FOUR(bytes, mesh__vu, MESH__HALVES_START, MESH__BF16_NEXT, MESH__BF16_LAST);       \
        case MESH__LEAST_32:                                                                            \
            MESH__LEAST(bytes, int32_t, MESH__LEAST_START, MESH__LEAST_NEXT, MESH__LEAST_LAST)          \
        case MESH__LEAST_64:                                                                            \
            MESH__LEAST(bytes, int64_t, MESH__LEAST_START, MESH__LEAST_NEXT, MESH__LEAST_LAST)          \
        case MESH__LEAST_F16:                                                                           \
            MESH__LEAST(bytes, int16_t, MESH__LEAST_START_F, MESH__LEAST_NEXT_F, MESH__LEAST_LAST_F)    \
        case MESH__LEAST_F32:                                                                           \
            MESH__LEAST(bytes, int32_t, MESH__LEAST_START_F, MESH__LEAST_NEXT_F, MESH__LEAST_LAST_F)    \
        case MESH__LEAST_F64:                                                                           \
            MESH__LEAST(bytes, int64_t, MESH__LEAST_START_F, MESH__LEAST_NEXT_F, MESH__LEAST_LAST_F)    \
        case MESH__NO_LOOP:                                                                             \
            break;                                                                                      \
        }                                                                                               \
    }

MESH__LOOPS(mesh__loops_16, , 16)
#ifdef MESH__SIMD_X86
MESH__LOOPS(mesh__loops_32, __attribute__((target("avx2"))), 32)
MESH__LOOPS(mesh__loops_64, __attribute__((target("avx512bw"))), 64)
#endif

#undef MESH__KEEP
#undef MESH__BY_FOUR
#undef MESH__SUM_START_32
#undef MESH__SUM_START_64
#undef MESH__SUM_START_F32
#undef MESH__SUM_START_F64
#undef MESH__SUM_NEXT
#undef MESH__SUM_NEXT_F
#undef MESH__SUM_LAST
#undef MESH__LEAST_START
#undef MESH__LEAST_NEXT
#undef MESH__LEAST_LAST
#undef MESH__KEY_OF
#undef MESH__LEAST_START_F
#undef MESH__LEAST_NEXT_F
#undef MESH__LEAST_LAST_F
#undef MESH__LEAST
#undef MESH__HALVES_START
#undef MESH__BF16_NARROW
#undef MESH__BF16_NEXT
#undef MESH__BF16_LAST
#undef MESH__F16_WIDEN
#undef MESH__F16_NARROW
#undef MESH__F16_NEXT
#undef MESH__F16_LAST
#undef MESH__LOOPS
#endif /* MESH__SIMD */

enum { MESH__BLOCK = 64 }; /* bytes: the least that the loops do */

#ifdef MESH__SIMD
/* The one block of a pass that begins at byte `at`, into `out`. */
MESH__PRIVATE void mesh__pass_block(const mesh__pass *p, size_t at, void *out) {
    void *const to = out;
    mesh__pass one;
    one.loop = p->loop;
    one.turn = p->turn;
    one.inf = p->inf;
    one.dst = &to;
    one.src = p->src;
    one.ndst = 1;
    one.nsrc = p->nsrc;
    one.stream = 0;
    one.at = one.skip = at;
    one.to = at + MESH__BLOCK;
    mesh__loops_16(&one);
}
#endif

/* Run a pass with registers of at most `width` bytes, which the CPU has to have. Returns 0, and nothing is done, where plain loops are as good: there is
   none for it, or it is less than a block. What is before the first aligned block of dst and behind the last is taken first, before a destination is
   written that may be a source, and stored last. */
MESH__PRIVATE int mesh__pass_run(mesh__pass *p, mesh__width width) {
#ifdef MESH__SIMD
    unsigned char begin[MESH__BLOCK], end[MESH__BLOCK];
    size_t head = (MESH__BLOCK - (uintptr_t)p->dst[0] % MESH__BLOCK) % MESH__BLOCK;
    int k;
    if (!p->loop || !width || p->to < MESH__BLOCK) return 0;
#ifdef MESH__SIMD_X86
    /* SSE2 compares no numbers of 64 bits */
    if (width == MESH__WIDE_16 && (p->loop == MESH__LEAST_64 || p->loop == MESH__LEAST_F64)) return 0;
#endif
    if (p->to < 32 * MESH__BLOCK || head % p->elem) head = 0; /* it costs more than it gives, or numbers lie across */
    if (head) mesh__pass_block(p, 0, begin);
    p->at = head;
    if ((p->to - head) % MESH__BLOCK) mesh__pass_block(p, p->to - MESH__BLOCK, end);
#ifdef MESH__SIMD_X86
    if (width == MESH__WIDE_64 && p->to >= 4 * MESH__WIDE_64) mesh__loops_64(p);
    if (width >= MESH__WIDE_32 && p->to - p->at >= 4 * MESH__WIDE_32) mesh__loops_32(p);
#endif
    mesh__loops_16(p);
    for (k = 0; k < p->ndst; k++) {
        unsigned char *d = (unsigned char *)p->dst[k];
        if (head) memcpy(d, begin, MESH__BLOCK);
        if (p->at < p->to) memcpy(d + (p->to - MESH__BLOCK), end, MESH__BLOCK);
    }
    return 1;
#else
    (void)p, (void)width;
    return 0;
#endif
}

/* ---- // >>streams: what is larger than the caches need not pass through them ---- */

/* Orders streamed stores before later ones: x86 does not by itself. */
MESH__PRIVATE void mesh__stream_end(void) {
#ifdef MESH__SIMD_X86
    __builtin_ia32_sfence();
#endif
}

/* memcpy past the caches; mesh__stream_end is still to come. */
MESH__PRIVATE void mesh__stream_bytes(void *dst, const void *src, size_t nbytes) {
    unsigned char *d = (unsigned char *)dst;
    const unsigned char *s = (const unsigned char *)src;
#ifdef MESH__SIMD
    typedef long long mesh__vs __attribute__((vector_size(16), may_alias));
    typedef long long mesh__vx __attribute__((vector_size(16), aligned(1), may_alias));
    size_t head = (64 - (uintptr_t)d % 64) % 64;
    if (nbytes > head + 64) {
        memcpy(d, s, head);
        for (d += head, s += head, nbytes -= head; nbytes >= 64; d += 64, s += 64, nbytes -= 64) {
            const mesh__vx *x = (const mesh__vx *)s;
            mesh__vs *past = (mesh__vs *)d;
            MESH__STREAM_16(past, x[0]);
            MESH__STREAM_16(past + 1, x[1]);
            MESH__STREAM_16(past + 2, x[2]);
            MESH__STREAM_16(past + 3, x[3]);
        }
    }
#endif
    memcpy(d, s, nbytes);
}

/* memcpy for moves larger than the caches: what is in them stays there. */
MESH__PRIVATE void mesh__copy_stream(void *dst, const void *src, size_t nbytes) {
    mesh__stream_bytes(dst, src, nbytes);
    mesh__stream_end();
}

#undef MESH__STREAM_16
#undef MESH__STREAM_32
#undef MESH__STREAM_64
#endif /* MESH_VECTOR_IMPLEMENTED */
