/* mesh_nccl.cu - what mesh_nccl.h runs on a GPU: moves, zeros, reductions, divisions. Part of mesh.h 0.1.0. MIT licence. */
/*
One source, two readers. `ptx.sh` compiles it with nvcc to the PTX in ../mesh_nccl_ptx.h; nobody who uses mesh.h runs nvcc. Without
__CUDACC__ it is C99 and C++11 (gcc or clang): each kernel is then static void name(args, thread, threads), so that a stand-in for CUDA on
the CPU runs the same text, one call per thread.

A kernel is grid-stride: thread t of n does units t, t + n, ...: any launch is right, and neighbouring threads touch neighbouring units
of a run. Every unit is written once, by one thread; no thread waits for another.

Results are mesh__reduce's and mesh__divide's bit for bit, but for which NaN a sum, product or quotient that is a NaN gives: the GPU has
one of its own. (min and max give one NaN on every machine.)
*/
#include "../../mesh.h" /* enum mesh_op */
#include <string.h>

/* ---- // >>args: what a kernel gets. ptx.sh copies these lines, up to the next banner, to mesh_nccl_ptx.h ------------- */

#ifndef MESH__KERNEL_ARGS
#define MESH__KERNEL_ARGS
/* mesh_block for kernels: `run` units side by side, repeated over the dims, outermost first. */
typedef struct mesh__kernel_block {
    unsigned long long run;
    long long count[8], stride[8]; /* stride in bytes */
} mesh__kernel_block;

/* A unit is an element of the kernel's dtype, or the 1 to 16 bytes in the name of a move. Addresses and strides are multiples of its width
   (complex: of one number's width). */
typedef struct mesh__kernel_args {
    unsigned long long dst, src; /* device addresses */
    unsigned long long count;    /* units in all; of a block with dims run * product of its counts */
    mesh__kernel_block to, from;
    int to_ndim, from_ndim; /* 0: contiguous, and the block is not read */
    int op;                 /* of reductions: mesh_op, but for minloc and maxloc */
    int divide;             /* of divisions: the divisor, not 0 */
} mesh__kernel_args;
typedef char mesh__kernel_args_are_312_bytes[sizeof(mesh__kernel_args) == 312 ? 1 : -1];

/* The kernels' names. A kernel's single parameter is a mesh__kernel_args; grids and blocks have one dim, of any size. */
/* clang-format off */
#define MESH_KERNELS(X)                                                                                             \
    X(mesh_move_1) X(mesh_move_2) X(mesh_move_4) X(mesh_move_8) X(mesh_move_16)                                     \
    X(mesh_zero_1) X(mesh_zero_2) X(mesh_zero_4) X(mesh_zero_8) X(mesh_zero_16)                                     \
    X(mesh_reduce_i8) X(mesh_reduce_u8) X(mesh_reduce_i16) X(mesh_reduce_u16) X(mesh_reduce_f16) X(mesh_reduce_bf16) \
    X(mesh_reduce_i32) X(mesh_reduce_u32) X(mesh_reduce_f32) X(mesh_reduce_i64) X(mesh_reduce_u64) X(mesh_reduce_f64) \
    X(mesh_reduce_c64) X(mesh_reduce_c128)                                                                          \
    X(mesh_divide_f16) X(mesh_divide_bf16) X(mesh_divide_f32) X(mesh_divide_f64)
/* clang-format on */
#endif

/* ---- // >>readers: nvcc and the CPU ---------------------------------------------------------------------------------- */

#ifdef __CUDACC__
#define MESH__K_DEVICE static __device__ __forceinline__
#define MESH__K_KERNEL(name) extern "C" __global__ void name(const mesh__kernel_args a)
#define MESH__K_ONCE _Pragma("unroll 1") /* one copy of a loop's body: small PTX */
#define MESH__K_THREAD ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x)
#define MESH__K_THREADS ((uint64_t)gridDim.x * blockDim.x)
#define MESH__K_AT(T, address) ((T *)__cvta_global_to_generic(address)) /* ld.global rather than ld */
#define MESH__K_ANY
#else
#define MESH__K_DEVICE static inline
#define MESH__K_KERNEL(name) \
    static void name(mesh__kernel_args a, unsigned long long thread, unsigned long long threads)
#define MESH__K_ONCE
#define MESH__K_THREAD thread
#define MESH__K_THREADS threads
#define MESH__K_AT(T, address) ((T *)(uintptr_t)(address))
#define MESH__K_ANY __attribute__((may_alias)) /* whatever type the caller stored */
#endif

#define MESH__K_EACH(i, units) MESH__K_ONCE for (i = MESH__K_THREAD; i < (units); i += MESH__K_THREADS)

typedef uint8_t MESH__K_ANY mesh__k1;
typedef uint16_t MESH__K_ANY mesh__k2;
typedef uint32_t MESH__K_ANY mesh__k4;
typedef uint64_t MESH__K_ANY mesh__k8;
typedef struct MESH__K_ANY __attribute__((aligned(16))) mesh__k16 {
    uint32_t word[4];
} mesh__k16;
typedef struct MESH__K_ANY mesh__kc64 {
    uint32_t re, im;
} mesh__kc64;
typedef struct MESH__K_ANY mesh__kc128 {
    uint64_t re, im;
} mesh__kc128;

MESH__K_DEVICE float mesh__k_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
MESH__K_DEVICE double mesh__k_f64(uint64_t u) {
    double f;
    memcpy(&f, &u, sizeof f);
    return f;
}
MESH__K_DEVICE uint32_t mesh__k_bits32(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
MESH__K_DEVICE uint64_t mesh__k_bits64(double f) {
    uint64_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* ---- // >>index ---------------------------------------------------------------------------------------------------------- */

/* Where unit i of a block is, in bytes from its start. nvcc makes of each division one of 32 bits where both numbers fit, which a GPU
   does several times faster than one of 64; the outermost dim needs none. */
MESH__K_DEVICE uint64_t mesh__k_offset(const mesh__kernel_block *b, int ndim, uint64_t i, uint64_t width) {
    uint64_t next, offset;
    int k;
    if (!ndim) return i * width;
    next = i / b->run;
    offset = (i - next * b->run) * width;
    MESH__K_ONCE
    for (k = ndim - 1; k > 0; k--) {
        i = next;
        next = i / (uint64_t)b->count[k];
        offset += (i - next * (uint64_t)b->count[k]) * (uint64_t)b->stride[k];
    }
    return offset + next * (uint64_t)b->stride[0];
}

#define MESH__K_TO(i, width) (a.dst + mesh__k_offset(&a.to, a.to_ndim, i, width))
#define MESH__K_FROM(i, width) (a.src + mesh__k_offset(&a.from, a.from_ndim, i, width))

/* ---- // >>moves ---------------------------------------------------------------------------------------------------------- */

#define MESH__K_MOVE(T, width)                                                                   \
    MESH__K_KERNEL(mesh_move_##width) {                                                          \
        uint64_t i;                                                                              \
        MESH__K_EACH(i, a.count) {                                                               \
            *MESH__K_AT(T, MESH__K_TO(i, width)) = *MESH__K_AT(const T, MESH__K_FROM(i, width)); \
        }                                                                                        \
    }                                                                                            \
    MESH__K_KERNEL(mesh_zero_##width) {                                                          \
        const T zero = MESH_ZERO;                                                                \
        uint64_t i;                                                                              \
        MESH__K_EACH(i, a.count) { *MESH__K_AT(T, MESH__K_TO(i, width)) = zero; }                \
    }
MESH__K_MOVE(mesh__k1, 1)
MESH__K_MOVE(mesh__k2, 2)
MESH__K_MOVE(mesh__k4, 4)
MESH__K_MOVE(mesh__k8, 8)
MESH__K_MOVE(mesh__k16, 16)

/* ---- // >>halves: f16 and bf16, as f32 in between -------------------------------------------------------------------------- */

MESH__K_DEVICE float mesh__k_f32_of_bf16(uint32_t h) { return mesh__k_f32(h << 16); }
MESH__K_DEVICE uint32_t mesh__k_bf16_of_f32(float f) {
    uint32_t u = mesh__k_bits32(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return u >> 16 | 0x40;
    return (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}

#ifdef __CUDACC__
MESH__K_DEVICE float mesh__k_f32_of_f16(uint32_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)h));
    return f;
}
MESH__K_DEVICE uint32_t mesh__k_f16_of_f32(float f) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
#else
MESH__K_DEVICE float mesh__k_f32_of_f16(uint32_t h) {
    uint32_t sign = (h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00) return mesh__k_f32(sign | 0x7f800000u | magnitude << 13);
    if (magnitude >= 0x0400) return mesh__k_f32(sign | ((magnitude << 13) + (112u << 23)));
    return (sign ? -1.0f : 1.0f) * (float)magnitude / 16777216.0f; /* units of 2^-24 */
}
MESH__K_DEVICE uint32_t mesh__k_f16_of_f32(float f) {
    uint32_t u = mesh__k_bits32(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00; /* 65520 and more round to infinity */
    if (magnitude < 0x38800000u)                        /* less than 2^-14: to units of 2^-24, as numbers by 0.5 are */
        return sign | (mesh__k_bits32(mesh__k_f32(magnitude) + 0.5f) - 0x3f000000u);
    return sign | (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
}
#endif

/* ---- // >>operations: x op y, on bits ---------------------------------------------------------------------------------------- */

/* sign: the top bit of a signed type, 0 of an unsigned one. Above the bits of a type narrower than U, x and y have zeros and results
   anything. */
#define MESH__K_INTEGER(name, U)                                      \
    MESH__K_DEVICE U name(int op, U x, U y, U sign) {                 \
        if (op == MESH_SUM) return x + y;                             \
        if (op == MESH_PROD) return x * y;                            \
        if (op == MESH_AND) return x & y;                             \
        if (op == MESH_OR) return x | y;                              \
        if (op == MESH_XOR) return x ^ y;                             \
        return ((x ^ sign) < (y ^ sign)) == (op == MESH_MIN) ? x : y; \
    }
MESH__K_INTEGER(mesh__k_integer32, uint32_t)
MESH__K_INTEGER(mesh__k_integer64, uint64_t)

/* min and max as IEEE 754-2019's, whatever the machine's own do: a NaN wins, as one NaN; -0 is less than +0. */
#define MESH__K_EXTREME(name, U, sign)                                          \
    MESH__K_DEVICE U name(int op, U x, U y, U inf) {                            \
        U kx = x & (sign) ? ~x : x | (sign), ky = y & (sign) ? ~y : y | (sign); \
        if ((x & ~(sign)) > inf || (y & ~(sign)) > inf) return inf | inf >> 1;  \
        return (kx < ky) == (op == MESH_MIN) ? x : y;                           \
    }
MESH__K_EXTREME(mesh__k_extreme32, uint32_t, 0x80000000u)
MESH__K_EXTREME(mesh__k_extreme64, uint64_t, UINT64_C(0x8000000000000000))

#define MESH__K_IS_EXTREME(op) ((op) == MESH_MIN || (op) == MESH_MAX)

MESH__K_DEVICE uint32_t mesh__k_real32(int op, uint32_t x, uint32_t y) {
    float a = mesh__k_f32(x), b = mesh__k_f32(y);
    if (MESH__K_IS_EXTREME(op)) return mesh__k_extreme32(op, x, y, 0x7f800000u);
    return mesh__k_bits32(op == MESH_PROD ? a * b : a + b);
}
MESH__K_DEVICE uint64_t mesh__k_real64(int op, uint64_t x, uint64_t y) {
    double a = mesh__k_f64(x), b = mesh__k_f64(y);
    if (MESH__K_IS_EXTREME(op)) return mesh__k_extreme64(op, x, y, UINT64_C(0x7ff0000000000000));
    return mesh__k_bits64(op == MESH_PROD ? a * b : a + b);
}
/* A half in an f32's upper bits keeps its order. */
MESH__K_DEVICE uint32_t mesh__k_f16(int op, uint32_t x, uint32_t y) {
    float a = mesh__k_f32_of_f16(x), b = mesh__k_f32_of_f16(y);
    if (MESH__K_IS_EXTREME(op)) return mesh__k_extreme32(op, x << 16, y << 16, 0x7c000000u) >> 16;
    return mesh__k_f16_of_f32(op == MESH_PROD ? a * b : a + b);
}
MESH__K_DEVICE uint32_t mesh__k_bf16(int op, uint32_t x, uint32_t y) {
    float a = mesh__k_f32_of_bf16(x), b = mesh__k_f32_of_bf16(y);
    if (MESH__K_IS_EXTREME(op)) return mesh__k_extreme32(op, x << 16, y << 16, 0x7f800000u) >> 16;
    return mesh__k_bf16_of_f32(op == MESH_PROD ? a * b : a + b);
}

/* ---- // >>elements: reductions and divisions --------------------------------------------------------------------------------- */

/* dst = result, of x (dst's) and y (src's). */
#define MESH__K_ELEMENTS(name, T, result)                                           \
    MESH__K_KERNEL(name) {                                                          \
        uint64_t i;                                                                 \
        MESH__K_EACH(i, a.count) {                                                  \
            T *dst = MESH__K_AT(T, MESH__K_TO(i, sizeof(T)));                       \
            const T x = *dst, y = *MESH__K_AT(const T, MESH__K_FROM(i, sizeof(T))); \
            *dst = result;                                                          \
        }                                                                           \
    }

/* dst = result, of x alone. */
#define MESH__K_ELEMENTS_ALONE(name, T, result)               \
    MESH__K_KERNEL(name) {                                    \
        uint64_t i;                                           \
        MESH__K_EACH(i, a.count) {                            \
            T *dst = MESH__K_AT(T, MESH__K_TO(i, sizeof(T))); \
            const T x = *dst;                                 \
            *dst = result;                                    \
        }                                                     \
    }

/* Either, for elements T of 1 or 2 bytes (has_src 0: x alone). Where all is contiguous and aligned a thread takes a word of 4 bytes at a
   time: first come words, then the elements left over. */
#define MESH__K_LANES(name, T, has_src, result)                                                           \
    MESH__K_KERNEL(name) {                                                                                \
        const uint32_t width = sizeof(T), ones = 0xffffffffu >> (32 - 8 * width);                         \
        const uint64_t bases = has_src ? a.dst | a.src : a.dst;                                           \
        const int strided = has_src ? a.to_ndim | a.from_ndim : a.to_ndim;                                \
        const uint64_t words = strided || bases % 4 ? 0 : a.count / (4 / width);                          \
        const uint64_t single = words * (4 / width) - words; /* from unit to element, behind the words */ \
        uint64_t i;                                                                                       \
        MESH__K_EACH(i, a.count - single) {                                                               \
            const int word = i < words;                                                                   \
            const uint64_t at = word ? i * (4 / width) : i + single;                                      \
            const uint64_t to = MESH__K_TO(at, width), from = has_src ? MESH__K_FROM(at, width) : to;     \
            const uint32_t xs = word ? *MESH__K_AT(const mesh__k4, to) : *MESH__K_AT(const T, to);        \
            uint32_t ys = 0, results = 0, lane;                                                           \
            if (has_src) ys = word ? *MESH__K_AT(const mesh__k4, from) : *MESH__K_AT(const T, from);      \
            MESH__K_ONCE                                                                                  \
            for (lane = 0; lane < (word ? 32 : 8 * width); lane += 8 * width) {                           \
                const uint32_t x = xs >> lane & ones, y = ys >> lane & ones;                              \
                (void)y;                                                                                  \
                const uint32_t r = (result);                                                              \
                results |= (r & ones) << lane;                                                            \
            }                                                                                             \
            if (word)                                                                                     \
                *MESH__K_AT(mesh__k4, to) = results;                                                      \
            else                                                                                          \
                *MESH__K_AT(T, to) = (T)results;                                                          \
        }                                                                                                 \
    }

/* The operands of a product in mesh__reduce's order: one for both ranks, should a host's compiler fuse multiplication and addition. */
#define MESH__K_COMPLEX(name, E, T, number, bits)                                                           \
    MESH__K_KERNEL(name) {                                                                                  \
        uint64_t i;                                                                                         \
        MESH__K_EACH(i, a.count) {                                                                          \
            E *dst = MESH__K_AT(E, MESH__K_TO(i, sizeof(E)));                                               \
            const E *src = MESH__K_AT(const E, MESH__K_FROM(i, sizeof(E)));                                 \
            const T dr = number(dst->re), di = number(dst->im), sr = number(src->re), si = number(src->im); \
            const int swap = dr > sr || (dr == sr && di > si);                                              \
            const T p = swap ? sr : dr, q = swap ? si : di, u = swap ? dr : sr, v = swap ? di : si;         \
            dst->re = bits(a.op == MESH_PROD ? p * u - q * v : dr + sr);                                    \
            dst->im = bits(a.op == MESH_PROD ? p * v + q * u : di + si);                                    \
        }                                                                                                   \
    }

MESH__K_LANES(mesh_reduce_i8, mesh__k1, 1, mesh__k_integer32(a.op, x, y, 0x80))
MESH__K_LANES(mesh_reduce_u8, mesh__k1, 1, mesh__k_integer32(a.op, x, y, 0))
MESH__K_LANES(mesh_reduce_i16, mesh__k2, 1, mesh__k_integer32(a.op, x, y, 0x8000))
MESH__K_LANES(mesh_reduce_u16, mesh__k2, 1, mesh__k_integer32(a.op, x, y, 0))
MESH__K_LANES(mesh_reduce_f16, mesh__k2, 1, mesh__k_f16(a.op, x, y))
MESH__K_LANES(mesh_reduce_bf16, mesh__k2, 1, mesh__k_bf16(a.op, x, y))
MESH__K_ELEMENTS(mesh_reduce_i32, mesh__k4, mesh__k_integer32(a.op, x, y, 0x80000000u))
MESH__K_ELEMENTS(mesh_reduce_u32, mesh__k4, mesh__k_integer32(a.op, x, y, 0))
MESH__K_ELEMENTS(mesh_reduce_f32, mesh__k4, mesh__k_real32(a.op, x, y))
MESH__K_ELEMENTS(mesh_reduce_i64, mesh__k8, mesh__k_integer64(a.op, x, y, UINT64_C(0x8000000000000000)))
MESH__K_ELEMENTS(mesh_reduce_u64, mesh__k8, mesh__k_integer64(a.op, x, y, 0))
MESH__K_ELEMENTS(mesh_reduce_f64, mesh__k8, mesh__k_real64(a.op, x, y))
MESH__K_COMPLEX(mesh_reduce_c64, mesh__kc64, float, mesh__k_f32, mesh__k_bits32)
MESH__K_COMPLEX(mesh_reduce_c128, mesh__kc128, double, mesh__k_f64, mesh__k_bits64)

/* Quotients are rounded once, to nearest (halves: once more, to the half). */
MESH__K_LANES(mesh_divide_f16, mesh__k2, 0, mesh__k_f16_of_f32(mesh__k_f32_of_f16(x) / (float)a.divide))
MESH__K_LANES(mesh_divide_bf16, mesh__k2, 0, mesh__k_bf16_of_f32(mesh__k_f32_of_bf16(x) / (float)a.divide))
MESH__K_ELEMENTS_ALONE(mesh_divide_f32, mesh__k4, mesh__k_bits32(mesh__k_f32(x) / (float)a.divide))
MESH__K_ELEMENTS_ALONE(mesh_divide_f64, mesh__k8, mesh__k_bits64(mesh__k_f64(x) / (double)a.divide))

#undef MESH__K_DEVICE
#undef MESH__K_KERNEL
#undef MESH__K_ONCE
#undef MESH__K_THREAD
#undef MESH__K_THREADS
#undef MESH__K_AT
#undef MESH__K_ANY
#undef MESH__K_EACH
#undef MESH__K_TO
#undef MESH__K_FROM
#undef MESH__K_MOVE
#undef MESH__K_INTEGER
#undef MESH__K_EXTREME
#undef MESH__K_IS_EXTREME
#undef MESH__K_ELEMENTS
#undef MESH__K_ELEMENTS_ALONE
#undef MESH__K_LANES
#undef MESH__K_COMPLEX
