/* mesh_nccl.cu - what mesh_nccl.h runs on a GPU: moves, zeros, reductions, divisions, sums of squares, scaling, work on rows. Part of mesh.h 0.1.0. MIT licence. */
/*
One source, two readers. `ptx.sh` compiles it with nvcc to the PTX in ../mesh_nccl_ptx.h; nobody who uses mesh.h runs nvcc. Without
__CUDACC__ it is C99 and C++11 (gcc or clang): each kernel is then static void name(parameter, thread, threads), with a pointer to its
parameter's name_bytes bytes, so that a stand-in for CUDA on the CPU runs the same text, one call per thread.

A kernel is grid-stride: thread t of n does units t, t + n, ... (of batches: thread block t of n does chunks t, t + n, ...): any launch is
right, and neighbouring threads touch neighbouring units of a run. Every unit is written once, by one thread; no thread waits for another. Rows are
warps': 32 threads side by side, so that blocks are multiples of 32; where they add up what each has, a warp's first thread does it all on the CPU.

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
    int op;                 /* of reductions: mesh_op, but for minloc and maxloc; of squares: 0: slots are set, 1: added to; of fold: slots of dst */
    int divide;             /* of divisions: the divisor, not 0 */
    double factor;          /* of scaling */
} mesh__kernel_args;
typedef char mesh__kernel_args_are_320_bytes[sizeof(mesh__kernel_args) == 320 ? 1 : -1];

/* mesh_matrix and mesh_rows (mesh/transport.h) for kernels. */
typedef struct mesh__kernel_matrix {
    unsigned long long base;
    long long stride[3], count[2], step;
    int dtype, zero;
} mesh__kernel_matrix;

typedef struct mesh__kernel_rows {
    mesh__kernel_matrix to, from, with;
    unsigned long long index, weight, word, target, row_scale; /* device addresses */
    long long rows, width;                                     /* width of mesh_rows_move: in units */
    long long first, columns, vocabulary;
    float smoothing, scale;
    int terms, add;
    int unit, zero; /* of mesh_rows_move: log2 of a unit's bytes, 0 to 4 */
} mesh__kernel_rows;
typedef char mesh__kernel_rows_are_296_bytes[sizeof(mesh__kernel_rows) == 296 ? 1 : -1];

/* The kernels' names. A kernel's single parameter is a mesh__kernel_args, of mesh_rows_ a mesh__kernel_rows, that of mesh_move_few and mesh_move_many a mesh__batch (of which
   they read the first 4,096 and 32,760 bytes). Grids and blocks have one dim, of any size (theirs: blocks of at most 512). */
/* clang-format off */
#define MESH_KERNELS(X)                                                                                             \
    X(mesh_move_1) X(mesh_move_2) X(mesh_move_4) X(mesh_move_8) X(mesh_move_16)                                     \
    X(mesh_zero_1) X(mesh_zero_2) X(mesh_zero_4) X(mesh_zero_8) X(mesh_zero_16)                                     \
    X(mesh_reduce_i8) X(mesh_reduce_u8) X(mesh_reduce_i16) X(mesh_reduce_u16) X(mesh_reduce_f16) X(mesh_reduce_bf16) \
    X(mesh_reduce_i32) X(mesh_reduce_u32) X(mesh_reduce_f32) X(mesh_reduce_i64) X(mesh_reduce_u64) X(mesh_reduce_f64) \
    X(mesh_reduce_c64) X(mesh_reduce_c128)                                                                          \
    X(mesh_divide_f16) X(mesh_divide_bf16) X(mesh_divide_f32) X(mesh_divide_f64)                                    \
    X(mesh_squares_f16) X(mesh_squares_bf16) X(mesh_squares_f32) X(mesh_squares_f64) X(mesh_fold)                   \
    X(mesh_scale_f16) X(mesh_scale_bf16) X(mesh_scale_f32) X(mesh_scale_f64)                                        \
    X(mesh_rows_move) X(mesh_rows_sum) X(mesh_rows_dot) X(mesh_rows_merge)                                          \
    X(mesh_rows_most) X(mesh_rows_exp) X(mesh_rows_loss) X(mesh_rows_gradient)                                      \
    X(mesh_move_few) X(mesh_move_many)
/* clang-format on */

/* Many moves for one launch: begin, add, ..., end. They are done in no order: none touches what another writes. A move is cut into chunks; a
   thread block takes a chunk at a time, and finds whose it is by bisecting the table. All in words of 64 bits:
       word[0]  chunks in all; 0: nothing to do
       word[1]  moves << 32 | where the table ends
       moves    dst, src, units << 12 | from's dims << 8 | to's dims << 4 | log2 of the unit's bytes; to; from
       table    of each move, the last one first: its first chunk << 16 | where it is
   to and from have 2 words per dim: run in units, then stride and count of each dim, innermost first, but for the outermost's count.
   A move of 2 dims takes 8 words: there is room for 63 of them, and for 511. */
enum {
    MESH__BATCH_FEW = 512,    /* words of mesh_move_few: 4 KB, which every driver takes */
    MESH__BATCH_MANY = 4095,  /* words of mesh_move_many: 32 KB, which drivers take from CUDA 12.1 on (PTX 8.1) */
    MESH__BATCH_CHUNK = 1024, /* units */
    MESH__BATCH_THREADS = 256 /* of a thread block: 4 units of a chunk for each */
};

typedef struct mesh__batch {
    unsigned long long word[MESH__BATCH_MANY]; /* the kernel's */
    unsigned long long chunks;
    unsigned capacity, moves;
    unsigned used; /* words, before the end without the table, which grows from the capacity's end downwards */
} mesh__batch;

/* capacity: the most words it may have, MESH__BATCH_FEW or MESH__BATCH_MANY. */
static inline void mesh__batch_begin(mesh__batch *p, unsigned capacity) {
    p->word[0] = p->word[1] = p->chunks = 0;
    p->capacity = capacity;
    p->used = 2;
    p->moves = 0;
}

/* A block of bytes as run, stride, count, stride, count, ... innermost first; returns the dims, after runs side by side became one run and
   dims that go on at one stride one dim. */
static inline int mesh__batch_shape(unsigned long long *to, const mesh__kernel_block *b, int ndim) {
    int i, n = 0;
    to[0] = ndim ? b->run : 0;
    for (i = ndim - 1; i >= 0; i--) {
        unsigned long long count = (unsigned long long)b->count[i], stride = (unsigned long long)b->stride[i];
        if (count == 1) continue;
        if (n == 0 && stride == to[0]) {
            to[0] *= count;
        } else if (n && stride == to[2 * n - 1] * to[2 * n]) {
            to[2 * n] *= count;
        } else {
            to[++n * 2 - 1] = stride;
            to[n * 2] = count;
        }
    }
    return n;
}

/* Every bit that a run or a stride has. */
static inline unsigned long long mesh__batch_bits(const unsigned long long *shape, int ndim) {
    unsigned long long bits = ndim ? shape[0] : 0;
    int i;
    for (i = 0; i < ndim; i++) bits |= shape[2 * i + 1];
    return bits;
}

/* What mesh_move_1 does with `a` (src 0: mesh_zero_1), in the widest units that addresses, runs and strides are multiples of. Less than 2^52
   bytes. 1: added; 0: there is no room and no operation is performed. There always is for the first. */
static inline int mesh__batch_add(mesh__batch *p, const mesh__kernel_args *a) {
    unsigned long long to[17], from[17], *word = p->word + p->used, units;
    int m = mesh__batch_shape(to, &a->to, a->to_ndim), n = mesh__batch_shape(from, &a->from, a->src ? a->from_ndim : 0);
    unsigned long long bits = a->dst | a->src | a->count | mesh__batch_bits(to, m) | mesh__batch_bits(from, n);
    unsigned size = 3 + 2 * (unsigned)(m + n);
    int i, unit = 0;
    if (!a->count) return 1;
    if (p->used + size + p->moves + 1 > p->capacity) return 0;
    while (unit < 4 && !(bits >> unit & 1)) unit++;
    units = a->count >> unit;
    to[0] >>= unit;
    from[0] >>= unit;
    word[0] = a->dst;
    word[1] = a->src;
    word[2] = units << 12 | (unsigned long long)(n << 8 | m << 4 | unit);
    for (i = 0; i < 2 * m; i++) word[3 + i] = to[i];
    for (i = 0; i < 2 * n; i++) word[3 + 2 * m + i] = from[i];
    p->word[p->capacity - ++p->moves] = p->chunks << 16 | p->used;
    p->used += size;
    p->chunks += (units + MESH__BATCH_CHUNK - 1) / MESH__BATCH_CHUNK;
    return 1;
}

/* After the last move: makes the words a kernel's parameter. Returns the chunks: as many thread blocks have work; 0: there is nothing to
   launch. */
static inline unsigned long long mesh__batch_end(mesh__batch *p) {
    unsigned i, table = p->capacity - p->moves;
    for (i = 0; i < p->moves; i++) p->word[p->used + i] = p->word[table + i];
    p->used += p->moves;
    p->word[0] = p->chunks;
    p->word[1] = (unsigned long long)p->moves << 32 | p->used;
    return p->chunks;
}

/* After the end: 1: for mesh_move_few; 0: for mesh_move_many. */
static inline int mesh__batch_few(const mesh__batch *p) { return p->used <= MESH__BATCH_FEW; }
#endif

/* ---- // >>readers: nvcc and the CPU ---------------------------------------------------------------------------------- */

#ifdef __CUDACC__
#define MESH__K_DEVICE static __device__ __forceinline__
#define MESH__K_ENTRY(name, arguments) extern "C" __global__ void name(const arguments a)
#define MESH__K_BATCH(name, words)      \
    struct name##_words {               \
        unsigned long long word[words]; \
    };                                  \
    extern "C" __global__ void name(const name##_words a) { mesh__k_batch(a.word, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x); }
#define MESH__K_ONCE _Pragma("unroll 1") /* one copy of a loop's body: small PTX */
#define MESH__K_EVERY _Pragma("unroll")  /* a copy for each turn: what it indexes stays in registers */
#define MESH__K_THREAD ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x)
#define MESH__K_THREADS ((uint64_t)gridDim.x * blockDim.x)
#define MESH__K_AT(T, address) ((T *)__cvta_global_to_generic(address)) /* ld.global rather than ld */
#define MESH__K_ANY
#else
#define MESH__K_DEVICE static inline
#define MESH__K_ENTRY(name, arguments)                                                                 \
    enum { name##_bytes = sizeof(arguments) };                                                         \
    static inline void name##_of(arguments a, unsigned long long thread, unsigned long long threads);  \
    static void name(const void *parameter, unsigned long long thread, unsigned long long threads) {   \
        arguments a;                                                                                   \
        memcpy(&a, parameter, sizeof a);                                                               \
        name##_of(a, thread, threads);                                                                 \
    }                                                                                                  \
    static inline void name##_of(arguments a, unsigned long long thread, unsigned long long threads)
/* Thread blocks of MESH__BATCH_THREADS, but the last one may have fewer. */
#define MESH__K_BATCH(name, words)                                                                                       \
    enum { name##_bytes = (words) * 8 };                                                                                 \
    static void name(const void *parameter, unsigned long long thread, unsigned long long threads) {                     \
        const uint64_t most = MESH__BATCH_THREADS, block = thread / most, left = threads - block * most;                 \
        mesh__k_batch((const unsigned long long *)parameter, block, (threads - 1) / most + 1, (uint32_t)(thread % most), \
                      (uint32_t)(left < most ? left : most));                                                            \
    }
#define MESH__K_ONCE
#define MESH__K_EVERY
#define MESH__K_THREAD thread
#define MESH__K_THREADS threads
#define MESH__K_AT(T, address) ((T *)(uintptr_t)(address))
#define MESH__K_ANY __attribute__((may_alias)) /* whatever type the caller stored */
#endif

#define MESH__K_KERNEL(name) MESH__K_ENTRY(name, mesh__kernel_args)
#define MESH__K_ROWS(name) MESH__K_ENTRY(name, mesh__kernel_rows)
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

/* ---- // >>batches: many moves in one launch ------------------------------------------------------------------------------------------ */

enum { MESH__K_AHEAD = 4 }; /* units that a thread reads before it writes them */

/* Where move i begins among the words; there are word[1] >> 32. A stand-in whose device addresses are not the host's changes the two words
   found there, dst and src (0: zeros). */
MESH__K_DEVICE uint32_t mesh__k_move_at(const unsigned long long *word, uint32_t i) {
    return (uint32_t)(word[(uint32_t)word[1] - 1 - i] & 0xffff);
}

/* Units i of a block of a move -> where they are, in bytes from its start: mesh__k_offset of each. */
MESH__K_DEVICE void mesh__k_offsets(const unsigned long long *b, uint32_t ndim, uint32_t unit, uint64_t *i) {
    uint64_t offset[MESH__K_AHEAD], next, run, stride, count;
    uint32_t k;
    int j;
    if (!ndim) {
        MESH__K_EVERY
        for (j = 0; j < MESH__K_AHEAD; j++) i[j] <<= unit;
        return;
    }
    run = b[0];
    MESH__K_EVERY
    for (j = 0; j < MESH__K_AHEAD; j++) {
        next = i[j] / run;
        offset[j] = (i[j] - next * run) << unit;
        i[j] = next;
    }
    MESH__K_ONCE
    for (k = 1; k < ndim; k++) {
        stride = b[2 * k - 1], count = b[2 * k];
        MESH__K_EVERY
        for (j = 0; j < MESH__K_AHEAD; j++) {
            next = i[j] / count;
            offset[j] += (i[j] - next * count) * stride;
            i[j] = next;
        }
    }
    stride = b[2 * ndim - 1];
    MESH__K_EVERY
    for (j = 0; j < MESH__K_AHEAD; j++) i[j] = offset[j] + i[j] * stride;
}

/* Of a chunk's units u, u + lanes, ...: those before `end` move; what a thread reads for the others is the last one. */
#define MESH__K_MOVE_AHEAD(T)                                                               \
    do {                                                                                    \
        T v[MESH__K_AHEAD] = MESH_ZERO;                                                     \
        if (src) {                                                                          \
            MESH__K_EVERY                                                                   \
            for (j = 0; j < MESH__K_AHEAD; j++) v[j] = *MESH__K_AT(const T, src + from[j]); \
        }                                                                                   \
        MESH__K_EVERY                                                                       \
        for (j = 0; j < MESH__K_AHEAD; j++)                                                 \
            if (u + (uint32_t)j * lanes < end) *MESH__K_AT(T, dst + to[j]) = v[j];          \
    } while (0)

/* What a thread does of a chunk. Both sides' offsets are made by one copy of the code. */
MESH__K_DEVICE void mesh__k_chunk(const unsigned long long *move, uint64_t chunk, uint32_t lane, uint32_t lanes) {
    const uint64_t dst = move[0], src = move[1], units = move[2] >> 12;
    const uint32_t shape = (uint32_t)move[2] & 0xfff, unit = shape & 15, to_ndim = shape >> 4 & 15, from_ndim = shape >> 8;
    const uint64_t most = MESH__BATCH_CHUNK, first = chunk * most;
    const uint32_t end = (uint32_t)(units - first < most ? units - first : most);
    uint32_t u;
    MESH__K_ONCE
    for (u = lane; u < end; u += MESH__K_AHEAD * lanes) {
        const unsigned long long *block = move + 3;
        uint64_t to[MESH__K_AHEAD], from[MESH__K_AHEAD] = MESH_ZERO;
        uint32_t ndim = to_ndim;
        int side, j;
        MESH__K_ONCE
        for (side = 0; side < 2; side++) {
            MESH__K_EVERY
            for (j = 0; j < MESH__K_AHEAD; j++) {
                const uint32_t at = u + (uint32_t)j * lanes;
                to[j] = from[j];
                from[j] = first + (at < end ? at : end - 1);
            }
            mesh__k_offsets(block, ndim, unit, from);
            block += 2 * ndim;
            ndim = from_ndim;
        }
        if (unit & 4) /* by bits: nvcc's code for a switch has instructions that nothing reaches */
            MESH__K_MOVE_AHEAD(mesh__k16);
        else if (unit == 3)
            MESH__K_MOVE_AHEAD(mesh__k8);
        else if (unit & 2)
            MESH__K_MOVE_AHEAD(mesh__k4);
        else if (unit & 1)
            MESH__K_MOVE_AHEAD(mesh__k2);
        else
            MESH__K_MOVE_AHEAD(mesh__k1);
    }
}

/* What a thread does: it is number `lane` of the `lanes` in thread block `block` of `blocks`. */
MESH__K_DEVICE void mesh__k_batch(const unsigned long long *word, uint64_t block, uint64_t blocks, uint32_t lane, uint32_t lanes) {
    const uint64_t chunks = word[0];
    uint64_t c;
    MESH__K_ONCE
    for (c = block; c < chunks; c += blocks) {
        uint32_t low = 0, high = (uint32_t)(word[1] >> 32), last = (uint32_t)word[1] - 1;
        MESH__K_ONCE
        while (high - low > 1) { /* the last move whose first chunk is not behind c */
            const uint32_t middle = (low + high) / 2;
            if (word[last - middle] >> 16 <= c)
                low = middle;
            else
                high = middle;
        }
        mesh__k_chunk(word + mesh__k_move_at(word, low), c - (word[last - low] >> 16), lane, lanes);
    }
}

MESH__K_BATCH(mesh_move_few, MESH__BATCH_FEW)
MESH__K_BATCH(mesh_move_many, MESH__BATCH_MANY)

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

/* Either, for elements T of 1, 2 or 4 bytes (has_src 0: x alone). Where all is contiguous a thread takes 16 bytes of dst at a time, of src as they come,
   if they come in words: first come those, then the elements before and behind them. A loop's turn moves the words on, so that each is the first once:
   one copy of the code, and nothing is indexed. */
#define MESH__K_LANES(name, T, has_src, result)                                                                   \
    MESH__K_KERNEL(name) {                                                                                        \
        const uint32_t width = sizeof(T), per = 16 / width, ones = 0xffffffffu >> (32 - 8 * width);               \
        const int strided = has_src ? a.to_ndim | a.from_ndim : a.to_ndim;                                        \
        const uint64_t head = (0 - a.dst) % 16 / width;                                                           \
        const int none = strided || a.count < head || (has_src && (a.dst ^ a.src) % 4);                           \
        const uint64_t wide = none ? 0 : (a.count - head) / per, single = wide * per - wide;                      \
        uint64_t i;                                                                                               \
        MESH__K_EACH(i, a.count - single) {                                                                       \
            const int is_wide = i < wide;                                                                         \
            const uint64_t rest = i - wide, at = is_wide ? head + i * per : rest + (rest < head ? 0 : wide * per); \
            const uint64_t to = MESH__K_TO(at, width), from = has_src ? MESH__K_FROM(at, width) : to;             \
            mesh__k16 xs = MESH_ZERO, ys = MESH_ZERO;                                                             \
            uint32_t word, lane, k;                                                                               \
            if (is_wide) {                                                                                        \
                xs = *MESH__K_AT(const mesh__k16, to);                                                            \
                if (has_src && from % 16 == 0) {                                                                  \
                    ys = *MESH__K_AT(const mesh__k16, from);                                                      \
                } else if (has_src) {                                                                             \
                    MESH__K_EVERY                                                                                 \
                    for (k = 0; k < 4; k++) ys.word[k] = *MESH__K_AT(const mesh__k4, from + 4 * k);               \
                }                                                                                                 \
            } else {                                                                                              \
                xs.word[0] = *MESH__K_AT(const T, to);                                                            \
                if (has_src) ys.word[0] = *MESH__K_AT(const T, from);                                             \
            }                                                                                                     \
            MESH__K_ONCE                                                                                          \
            for (word = 0; word < (is_wide ? 4 : 1); word++) {                                                    \
                uint32_t results = 0;                                                                             \
                MESH__K_ONCE                                                                                      \
                for (lane = 0; lane < (is_wide ? 32 : 8 * width); lane += 8 * width) {                            \
                    const uint32_t x = xs.word[0] >> lane & ones, y = ys.word[0] >> lane & ones;                  \
                    (void)y;                                                                                      \
                    const uint32_t r = (result);                                                                  \
                    results |= (r & ones) << lane;                                                                \
                }                                                                                                 \
                xs.word[0] = xs.word[1], xs.word[1] = xs.word[2], xs.word[2] = xs.word[3], xs.word[3] = results;  \
                ys.word[0] = ys.word[1], ys.word[1] = ys.word[2], ys.word[2] = ys.word[3];                        \
            }                                                                                                     \
            if (is_wide)                                                                                          \
                *MESH__K_AT(mesh__k16, to) = xs;                                                                  \
            else                                                                                                  \
                *MESH__K_AT(T, to) = (T)xs.word[3];                                                               \
        }                                                                                                         \
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
MESH__K_LANES(mesh_reduce_i32, mesh__k4, 1, mesh__k_integer32(a.op, x, y, 0x80000000u))
MESH__K_LANES(mesh_reduce_u32, mesh__k4, 1, mesh__k_integer32(a.op, x, y, 0))
MESH__K_LANES(mesh_reduce_f32, mesh__k4, 1, mesh__k_real32(a.op, x, y))
MESH__K_ELEMENTS(mesh_reduce_i64, mesh__k8, mesh__k_integer64(a.op, x, y, UINT64_C(0x8000000000000000)))
MESH__K_ELEMENTS(mesh_reduce_u64, mesh__k8, mesh__k_integer64(a.op, x, y, 0))
MESH__K_ELEMENTS(mesh_reduce_f64, mesh__k8, mesh__k_real64(a.op, x, y))
MESH__K_COMPLEX(mesh_reduce_c64, mesh__kc64, float, mesh__k_f32, mesh__k_bits32)
MESH__K_COMPLEX(mesh_reduce_c128, mesh__kc128, double, mesh__k_f64, mesh__k_bits64)

/* Quotients are rounded once, to nearest (halves: once more, to the half). */
MESH__K_LANES(mesh_divide_f16, mesh__k2, 0, mesh__k_f16_of_f32(mesh__k_f32_of_f16(x) / (float)a.divide))
MESH__K_LANES(mesh_divide_bf16, mesh__k2, 0, mesh__k_bf16_of_f32(mesh__k_f32_of_bf16(x) / (float)a.divide))
MESH__K_LANES(mesh_divide_f32, mesh__k4, 0, mesh__k_bits32(mesh__k_f32(x) / (float)a.divide))
MESH__K_ELEMENTS_ALONE(mesh_divide_f64, mesh__k8, mesh__k_bits64(mesh__k_f64(x) / (double)a.divide))

/* ---- // >>norms: sums of squares, scaling --------------------------------------------------------------------------------------- */

/* A thread's: of numbers whose squares an f64 holds, of larger ones times 2^-600, of smaller ones times 2^600; as mesh/norm.h has them. */
typedef struct MESH__K_ANY mesh__k_sums {
    uint64_t part[3];
} mesh__k_sums;

MESH__K_DEVICE void mesh__k_square(double *sum, double v, int any_f64) {
    const double size = v < 0 ? -v : v;
    if (any_f64 && (size < 1e-140 || size > 1e140) && size <= 1.7976931348623157e308) {
        const int large = size > 1;
        const double near = v * (large ? 2.4099198651028841e-181 : 4.1495155688809930e180), square = near * near;
        sum[1] += large ? square : 0;
        sum[2] += large ? 0 : square;
    } else {
        sum[0] += v * v;
    }
}

/* Number k of the 16 bytes. */
#define MESH__K_NUMBER_f16(v, k) (double)mesh__k_f32_of_f16((v).word[(k) / 2] >> 16 * ((k) % 2) & 0xffff)
#define MESH__K_NUMBER_bf16(v, k) (double)mesh__k_f32_of_bf16((v).word[(k) / 2] >> 16 * ((k) % 2) & 0xffff)
#define MESH__K_NUMBER_f32(v, k) (double)mesh__k_f32((v).word[k])
#define MESH__K_NUMBER_f64(v, k) mesh__k_f64((uint64_t)(v).word[2 * (k)] | (uint64_t)(v).word[2 * (k) + 1] << 32)

/* Slot t of dst: what thread t adds up; of no elements: nothing. Where src is contiguous and aligned a thread takes 16 bytes at a time: first come those, then the elements left
   over. */
#define MESH__K_SQUARES(name, T, any_f64)                                                                       \
    MESH__K_KERNEL(mesh_squares_##name) {                                                                       \
        const uint32_t per = 16 / sizeof(T);                                                                    \
        const uint64_t words = a.from_ndim || a.src % 16 ? 0 : a.count / per, single = words * per - words;     \
        mesh__k_sums *slot = MESH__K_AT(mesh__k_sums, a.dst + MESH__K_THREAD * sizeof(mesh__k_sums));           \
        double sum[3] = MESH_ZERO;                                                                              \
        uint64_t i;                                                                                             \
        uint32_t k;                                                                                             \
        MESH__K_EACH(i, a.count - single) {                                                                     \
            mesh__k16 v = MESH_ZERO;                                                                            \
            if (i < words) {                                                                                    \
                v = *MESH__K_AT(const mesh__k16, a.src + i * 16);                                               \
                MESH__K_EVERY                                                                                   \
                for (k = 0; k < per; k++) mesh__k_square(sum, MESH__K_NUMBER_##name(v, k), any_f64);            \
            } else {                                                                                            \
                const uint64_t x = *MESH__K_AT(const T, MESH__K_FROM(i + single, sizeof(T)));                   \
                v.word[0] = (uint32_t)x, v.word[1] = (uint32_t)(x >> 32);                                       \
                mesh__k_square(sum, MESH__K_NUMBER_##name(v, 0), any_f64);                                      \
            }                                                                                                   \
        }                                                                                                       \
        MESH__K_EVERY                                                                                           \
        for (k = 0; k < 3 && a.count; k++) slot->part[k] = mesh__k_bits64(a.op ? mesh__k_f64(slot->part[k]) + sum[k] : sum[k]); \
    }
MESH__K_SQUARES(f16, mesh__k2, 0)
MESH__K_SQUARES(bf16, mesh__k2, 0)
MESH__K_SQUARES(f32, mesh__k4, 0)
MESH__K_SQUARES(f64, mesh__k8, 1)

/* Slot t of dst = slots t, t + op, t + 2 * op, ... of the `count` of src, added up by thread t. */
MESH__K_KERNEL(mesh_fold) {
    const uint64_t outs = (uint64_t)a.op;
    uint64_t t, i;
    int j, k;
    MESH__K_EACH(t, outs) {
        mesh__k_sums *slot = MESH__K_AT(mesh__k_sums, a.dst + t * sizeof(mesh__k_sums));
        double sum[3] = MESH_ZERO;
        MESH__K_ONCE
        for (i = t; i < a.count; i += MESH__K_AHEAD * outs) {
            mesh__k_sums v[MESH__K_AHEAD];
            MESH__K_EVERY
            for (j = 0; j < MESH__K_AHEAD; j++) { /* what is read beyond the last is the thread's first, and not added */
                const uint64_t at = i + (uint64_t)j * outs;
                v[j] = *MESH__K_AT(const mesh__k_sums, a.src + (at < a.count ? at : t) * sizeof(mesh__k_sums));
            }
            MESH__K_EVERY
            for (j = 0; j < MESH__K_AHEAD; j++) {
                MESH__K_EVERY
                for (k = 0; k < 3; k++) sum[k] += i + (uint64_t)j * outs < a.count ? mesh__k_f64(v[j].part[k]) : 0;
            }
        }
        MESH__K_EVERY
        for (k = 0; k < 3; k++) slot->part[k] = mesh__k_bits64(sum[k]);
    }
}

/* Rounded to odd, so that what is rounded again, to a half, comes out as if it had been rounded once. */
MESH__K_DEVICE float mesh__k_f32_odd(double v) {
    const float f = (float)v;
    const double back = (double)f;
    const uint32_t u = mesh__k_bits32(f);
    if (back == v || v != v) return f;
    return mesh__k_f32((u - ((back < 0 ? -back : back) > (v < 0 ? -v : v))) | 1);
}

/* Products in f64, rounded once. */
MESH__K_LANES(mesh_scale_f16, mesh__k2, 0, mesh__k_f16_of_f32(mesh__k_f32_odd((double)mesh__k_f32_of_f16(x) * a.factor)))
MESH__K_LANES(mesh_scale_bf16, mesh__k2, 0, mesh__k_bf16_of_f32(mesh__k_f32_odd((double)mesh__k_f32_of_bf16(x) * a.factor)))
MESH__K_LANES(mesh_scale_f32, mesh__k4, 0, mesh__k_bits32((float)((double)mesh__k_f32(x) * a.factor)))
MESH__K_ELEMENTS_ALONE(mesh_scale_f64, mesh__k8, mesh__k_bits64(mesh__k_f64(x) * a.factor))

/* ---- // >>rows ------------------------------------------------------------------------------------------------------------------- */

enum { MESH__K_LANES_OF = 32, MESH__K_TILE = 128 /* elements of a row that a warp takes at a time */ };

MESH__K_DEVICE uint64_t mesh__k_row(const mesh__kernel_matrix *m, uint64_t row) {
    uint64_t next, last;
    if (m->count[0] == 1 && m->count[1] == 1) return m->base + row * (uint64_t)m->stride[2];
    next = row / (uint64_t)m->count[0];
    last = next / (uint64_t)m->count[1];
    return m->base + (row - next * (uint64_t)m->count[0]) * (uint64_t)m->stride[0] +
           (next - last * (uint64_t)m->count[1]) * (uint64_t)m->stride[1] + last * (uint64_t)m->stride[2];
}

MESH__K_DEVICE float mesh__k_load(uint64_t address, int dtype) {
    if (dtype == MESH_F32) return mesh__k_f32(*MESH__K_AT(const mesh__k4, address));
    if (dtype == MESH_F16) return mesh__k_f32_of_f16(*MESH__K_AT(const mesh__k2, address));
    return mesh__k_f32_of_bf16(*MESH__K_AT(const mesh__k2, address));
}
MESH__K_DEVICE void mesh__k_store(uint64_t address, int dtype, float v) {
    if (dtype == MESH_F32)
        *MESH__K_AT(mesh__k4, address) = mesh__k_bits32(v);
    else
        *MESH__K_AT(mesh__k2, address) = (mesh__k2)(dtype == MESH_F16 ? mesh__k_f16_of_f32(v) : mesh__k_bf16_of_f32(v));
}
MESH__K_DEVICE double mesh__k_load64(uint64_t address, int dtype) {
    return dtype == MESH_F64 ? mesh__k_f64(*MESH__K_AT(const mesh__k8, address)) : (double)mesh__k_load(address, dtype);
}
MESH__K_DEVICE void mesh__k_store64(uint64_t address, int dtype, double v) {
    if (dtype == MESH_F64)
        *MESH__K_AT(mesh__k8, address) = mesh__k_bits64(v);
    else
        mesh__k_store(address, dtype, dtype == MESH_F32 ? (float)v : mesh__k_f32_odd(v));
}
MESH__K_DEVICE float mesh__k_word(uint64_t address, uint64_t i) { return mesh__k_f32(*MESH__K_AT(const mesh__k4, address + i * 4)); }

/* Row k of `from`, of those that an index names; below 0: none. */
MESH__K_DEVICE int64_t mesh__k_named(const mesh__kernel_rows *a, uint64_t k) {
    return a->index ? (int64_t)*MESH__K_AT(const mesh__k8, a->index + k * 8) : (int64_t)k;
}

/* A warp takes a tile of a row at a time: `row`, and `at`, each of the tile's elements in turn. */
#define MESH__K_TILES                                                                                     \
    const uint64_t lane = MESH__K_THREAD % MESH__K_LANES_OF, warps = MESH__K_THREADS / MESH__K_LANES_OF,  \
                   tiles = ((uint64_t)a.width + MESH__K_TILE - 1) / MESH__K_TILE, all = (uint64_t)a.rows * tiles; \
    uint64_t tile, at;                                                                                    \
    MESH__K_ONCE                                                                                          \
    for (tile = MESH__K_THREAD / MESH__K_LANES_OF; tile < all; tile += warps)
#define MESH__K_TILE_OF                                                                                         \
    const uint64_t row = tile / tiles, start = (tile - row * tiles) * MESH__K_TILE, left = (uint64_t)a.width - start, \
                   end = start + (left < MESH__K_TILE ? left : MESH__K_TILE)
#define MESH__K_ELEMENTS_OF_TILE \
    MESH__K_ONCE                 \
    for (at = start + lane; at < end; at += MESH__K_LANES_OF)

#define MESH__K_MOVE_ROW(T)                                                              \
    do {                                                                                 \
        MESH__K_ELEMENTS_OF_TILE {                                                       \
            T v = MESH_ZERO;                                                             \
            if (from >= 0) v = *MESH__K_AT(const T, source + at * sizeof(T));            \
            *MESH__K_AT(T, to + at * sizeof(T)) = v;                                     \
        }                                                                                \
    } while (0)

MESH__K_ROWS(mesh_rows_move) {
    MESH__K_TILES {
        MESH__K_TILE_OF;
        const int64_t from = a.from.base ? mesh__k_named(&a, row) : -1;
        const uint64_t to = mesh__k_row(&a.to, row), source = from < 0 ? 0 : mesh__k_row(&a.from, (uint64_t)from);
        if (a.unit & 4)
            MESH__K_MOVE_ROW(mesh__k16);
        else if (a.unit == 3)
            MESH__K_MOVE_ROW(mesh__k8);
        else if (a.unit & 2)
            MESH__K_MOVE_ROW(mesh__k4);
        else if (a.unit & 1)
            MESH__K_MOVE_ROW(mesh__k2);
        else
            MESH__K_MOVE_ROW(mesh__k1);
    }
}

/* sum: of what is there, if some; load and store of T. */
#define MESH__K_SUM_ROW(T, load, store)                                                              \
    do {                                                                                             \
        MESH__K_ELEMENTS_OF_TILE {                                                                   \
            const uint64_t place = to + at * (uint64_t)a.to.step;                                    \
            uint64_t k;                                                                              \
            int some = a.add;                                                                        \
            T sum = 0;                                                                               \
            if (some) sum = load(place, a.to.dtype);                                                 \
            MESH__K_ONCE                                                                             \
            for (k = row * (uint64_t)a.terms; k < (row + 1) * (uint64_t)a.terms; k++) {              \
                const int64_t from = mesh__k_named(&a, k);                                           \
                T v;                                                                                 \
                if (from < 0) continue;                                                              \
                v = load(mesh__k_row(&a.from, (uint64_t)from) + at * (uint64_t)a.from.step, a.from.dtype); \
                if (a.weight) v = (T)mesh__k_word(a.weight, k) * v;                                  \
                sum = some ? sum + v : v;                                                            \
                some = 1;                                                                            \
            }                                                                                        \
            store(place, a.to.dtype, sum);                                                           \
        }                                                                                            \
    } while (0)

MESH__K_ROWS(mesh_rows_sum) {
    MESH__K_TILES {
        MESH__K_TILE_OF;
        const uint64_t to = mesh__k_row(&a.to, row);
        if (a.to.dtype == MESH_F64 || a.from.dtype == MESH_F64)
            MESH__K_SUM_ROW(double, mesh__k_load64, mesh__k_store64);
        else
            MESH__K_SUM_ROW(float, mesh__k_load, mesh__k_store);
    }
}

/* ---- what a warp adds up ---- */

/* A row for each warp: every thread has its part of `n` sums, they become one, and the first thread ends with it. most: the greatest. */
enum { MESH__K_PARTS = 3 };
typedef struct mesh__k_parts {
    double v[MESH__K_PARTS];
} mesh__k_parts;

MESH__K_DEVICE double mesh__k_both(double x, double y, int most) { return most ? (x > y ? x : y) : x + y; }

#ifdef __CUDACC__
MESH__K_DEVICE double mesh__k_shuffle(double x, int other) {
    const uint64_t bits = mesh__k_bits64(x);
    const uint32_t low = __shfl_xor_sync(0xffffffffu, (uint32_t)bits, other), high = __shfl_xor_sync(0xffffffffu, (uint32_t)(bits >> 32), other);
    return mesh__k_f64((uint64_t)high << 32 | low);
}
#define MESH__K_WARP(name, n, most, part, ended)                                                                   \
    MESH__K_ROWS(name) {                                                                                           \
        const uint64_t lane = MESH__K_THREAD % MESH__K_LANES_OF, warps = MESH__K_THREADS / MESH__K_LANES_OF;       \
        uint64_t row;                                                                                              \
        MESH__K_ONCE                                                                                               \
        for (row = MESH__K_THREAD / MESH__K_LANES_OF; row < (uint64_t)a.rows; row += warps) {                      \
            mesh__k_parts sum = part(&a, row, lane);                                                               \
            int other, k;                                                                                          \
            MESH__K_ONCE                                                                                           \
            for (other = MESH__K_LANES_OF / 2; other; other /= 2) {                                                \
                MESH__K_EVERY                                                                                      \
                for (k = 0; k < (n); k++) sum.v[k] = mesh__k_both(sum.v[k], mesh__k_shuffle(sum.v[k], other), most); \
            }                                                                                                      \
            if (lane == 0) ended(&a, row, &sum);                                                                   \
        }                                                                                                          \
    }
#else
#define MESH__K_WARP(name, n, most, part, ended)                                                                   \
    MESH__K_ROWS(name) {                                                                                           \
        const uint64_t warps = MESH__K_THREADS / MESH__K_LANES_OF;                                                 \
        uint64_t row;                                                                                              \
        for (row = MESH__K_THREAD / MESH__K_LANES_OF; row < (uint64_t)a.rows && MESH__K_THREAD % MESH__K_LANES_OF == 0; row += warps) { \
            mesh__k_parts sum[2][MESH__K_LANES_OF];                                                                \
            int other, k, i, now = 0;                                                                              \
            for (i = 0; i < MESH__K_LANES_OF; i++) sum[0][i] = part(&a, row, (uint64_t)i);                         \
            for (other = MESH__K_LANES_OF / 2; other; other /= 2, now ^= 1)                                        \
                for (i = 0; i < MESH__K_LANES_OF; i++)                                                             \
                    for (k = 0; k < (n); k++)                                                                      \
                        sum[!now][i].v[k] = mesh__k_both(sum[now][i].v[k], sum[now][i ^ other].v[k], most);        \
            ended(&a, row, &sum[now][0]);                                                                          \
        }                                                                                                          \
    }
#endif

MESH__K_DEVICE void mesh__k_word_is(const mesh__kernel_rows *a, uint64_t row, const mesh__k_parts *sum) {
    *MESH__K_AT(mesh__k4, a->word + row * 4) = mesh__k_bits32((float)sum->v[0]);
}

MESH__K_DEVICE mesh__k_parts mesh__k_dot(const mesh__kernel_rows *a, uint64_t row, uint64_t lane) {
    const uint64_t x = mesh__k_row(&a->from, (uint64_t)mesh__k_named(a, row)), y = mesh__k_row(&a->with, row);
    mesh__k_parts sum = MESH_ZERO;
    uint64_t at;
    MESH__K_ONCE
    for (at = lane; at < (uint64_t)a->width; at += MESH__K_LANES_OF)
        sum.v[0] += mesh__k_load64(x + at * (uint64_t)a->from.step, a->from.dtype) * mesh__k_load64(y + at * (uint64_t)a->with.step, a->with.dtype);
    return sum;
}
MESH__K_WARP(mesh_rows_dot, 1, 0, mesh__k_dot, mesh__k_word_is)

/* mesh__exp_below (mesh/functions.h), bit for bit. */
MESH__K_DEVICE float mesh__k_exp_below(float x) {
    const float at = x > -87.0f ? x : -87.0f;
    const int k = (int)(at * 1.44269504f - 0.5f);
    const float power = mesh__k_f32((uint32_t)(k + 127) << 23), r = at - (float)k * 0.693359375f + (float)k * 2.12194440e-4f;
    float sum = 1.98412698e-4f;
    sum = sum * r + 1.38888889e-3f;
    sum = sum * r + 8.33333333e-3f;
    sum = sum * r + 4.16666667e-2f;
    sum = sum * r + 1.66666667e-1f;
    sum = sum * r + 0.5f;
    sum = sum * r + 1;
    sum = sum * r + 1;
    sum = x > -87.0f ? sum * power : 0;
    return (mesh__k_bits32(x) & 0x7fffffffu) > 0x7f800000u ? x : sum;
}

/* The natural logarithm of 1 to 2, to 1e-7; no number of no number. As 2 artanh((x - 1) / (x + 1)). */
MESH__K_DEVICE float mesh__k_ln_near(float x) {
    const float s = (x - 1) / (x + 1), square = s * s;
    float sum = 1.0f / 15;
    sum = sum * square + 1.0f / 13;
    sum = sum * square + 1.0f / 11;
    sum = sum * square + 1.0f / 9;
    sum = sum * square + 1.0f / 7;
    sum = sum * square + 1.0f / 5;
    sum = sum * square + 1.0f / 3;
    sum = sum * square + 1;
    return 2 * s * sum;
}

/* A thread's elements become those of both parts; v[0]: the logarithm of the sum of both, the same of every thread. In f32, where the CPU has f64. */
MESH__K_DEVICE mesh__k_parts mesh__k_merge(const mesh__kernel_rows *a, uint64_t row, uint64_t lane) {
    const uint64_t to = mesh__k_row(&a->to, row), from = mesh__k_row(&a->from, row);
    const float x = mesh__k_word(a->word, row), y = mesh__k_word(a->weight, row), most = x > y ? x : y;
    const int none_x = mesh__k_bits32(x) == 0xff800000u, none_y = mesh__k_bits32(y) == 0xff800000u;
    const float ex = mesh__k_exp_below(x - most), ey = mesh__k_exp_below(y - most), sum = ex + ey, wx = ex / sum, wy = ey / sum;
    mesh__k_parts whole = MESH_ZERO;
    uint64_t at;
    whole.v[0] = (double)(none_y ? x : none_x ? y : most + mesh__k_ln_near(sum));
    MESH__K_ONCE
    for (at = lane; at < (uint64_t)a->width && !none_y; at += MESH__K_LANES_OF) {
        const float u = mesh__k_f32(*MESH__K_AT(const mesh__k4, to + at * 4)), v = mesh__k_f32(*MESH__K_AT(const mesh__k4, from + at * 4));
        *MESH__K_AT(mesh__k4, to + at * 4) = mesh__k_bits32(none_x ? v : wx * u + wy * v);
    }
    return whole;
}
MESH__K_WARP(mesh_rows_merge, 1, 1, mesh__k_merge, mesh__k_word_is)

/* ---- cross-entropy ---- */

/* Columns at, at + 32, ... of a row; beyond the last the thread's first. */
MESH__K_DEVICE void mesh__k_logits(const mesh__kernel_rows *a, uint64_t from, uint64_t at, uint64_t lane, float *v) {
    int j;
    MESH__K_EVERY
    for (j = 0; j < MESH__K_AHEAD; j++) {
        const uint64_t i = at + (uint64_t)(j * MESH__K_LANES_OF), place = i < (uint64_t)a->columns ? i : lane;
        v[j] = mesh__k_load(from + place * (uint64_t)a->from.step, a->from.dtype);
    }
}

MESH__K_DEVICE mesh__k_parts mesh__k_most(const mesh__kernel_rows *a, uint64_t row, uint64_t lane) {
    const uint64_t from = mesh__k_row(&a->from, row);
    mesh__k_parts sum = MESH_ZERO;
    float most = -3.40282346638528859812e38f;
    uint64_t at;
    MESH__K_ONCE
    for (at = lane; at < (uint64_t)a->columns; at += MESH__K_AHEAD * MESH__K_LANES_OF) {
        float v[MESH__K_AHEAD];
        int j;
        mesh__k_logits(a, from, at, lane, v);
        MESH__K_EVERY
        for (j = 0; j < MESH__K_AHEAD; j++) most = v[j] > most ? v[j] : most; /* what is read twice changes nothing */
    }
    sum.v[0] = (double)most;
    return sum;
}
MESH__K_WARP(mesh_rows_most, 1, 1, mesh__k_most, mesh__k_word_is)

/* The target's column here; not one of them: beyond all. */
MESH__K_DEVICE uint64_t mesh__k_target(const mesh__kernel_rows *a, uint64_t row) {
    const int32_t target = (int32_t)*MESH__K_AT(const mesh__k4, a->target + row * 4);
    return (uint64_t)((int64_t)target - a->first);
}
MESH__K_DEVICE int mesh__k_counts(const mesh__kernel_rows *a, uint64_t row) {
    return *MESH__K_AT(const mesh__k4, a->target + row * 4) < 0x80000000u;
}

MESH__K_DEVICE mesh__k_parts mesh__k_exp(const mesh__kernel_rows *a, uint64_t row, uint64_t lane) {
    const uint64_t from = mesh__k_row(&a->from, row), target = mesh__k_target(a, row);
    const float most = mesh__k_word(a->weight, row);
    mesh__k_parts sum = MESH_ZERO;
    uint64_t at;
    MESH__K_ONCE
    for (at = lane; at < (uint64_t)a->columns; at += MESH__K_AHEAD * MESH__K_LANES_OF) {
        float v[MESH__K_AHEAD];
        int j;
        mesh__k_logits(a, from, at, lane, v);
        MESH__K_EVERY
        for (j = 0; j < MESH__K_AHEAD; j++) {
            const uint64_t i = at + (uint64_t)(j * MESH__K_LANES_OF);
            const int real = i < (uint64_t)a->columns;
            const float x = v[j] - most, e = mesh__k_exp_below(x);
            sum.v[0] += real ? (double)e : 0;
            if (i == target && real) sum.v[1] = (double)x;
            sum.v[2] += real ? (double)x : 0;
        }
    }
    return sum;
}
MESH__K_DEVICE void mesh__k_exp_is(const mesh__kernel_rows *a, uint64_t row, const mesh__k_parts *sum) {
    const uint64_t word = a->word + row * (uint64_t)a->terms * 4;
    *MESH__K_AT(mesh__k4, word) = mesh__k_bits32((float)sum->v[0]);
    *MESH__K_AT(mesh__k4, word + 4) = mesh__k_bits32((float)sum->v[1]);
    if (a->terms == 3) *MESH__K_AT(mesh__k4, word + 8) = mesh__k_bits32((float)sum->v[2]);
}
MESH__K_WARP(mesh_rows_exp, 3, 0, mesh__k_exp, mesh__k_exp_is)

/* mesh__ln (mesh/functions.h) of a float, bit for bit. */
MESH__K_DEVICE double mesh__k_ln(double v) {
    const uint64_t bits = mesh__k_bits64(v), one = UINT64_C(1023) << 52;
    double x = mesh__k_f64((bits & ((UINT64_C(1) << 52) - 1)) | one), s, square, sum = 0;
    int e = (int)(bits >> 52) - 1023, k;
    if (!(bits << 1)) return mesh__k_f64(UINT64_C(0xfff) << 52);
    if (bits >= UINT64_C(0x7ff) << 52) return bits >> 63 ? mesh__k_f64((UINT64_C(0x7ff) << 52) + 1) : v;
    if (x >= 1.4142135623730951) x = x / 2, e++;
    s = (x - 1) / (x + 1);
    square = s * s;
    MESH__K_ONCE
    for (k = 21; k >= 1; k -= 2) sum = sum * square + 1.0 / (double)k;
    return 2 * s * sum + (double)e * 0.6931471805599453;
}

MESH__K_ROWS(mesh_rows_loss) {
    uint64_t row;
    MESH__K_EACH(row, (uint64_t)a.rows) {
        const uint64_t sums = row * (uint64_t)a.terms;
        const double total = mesh__k_ln((double)mesh__k_word(a.weight, sums)), smoothing = (double)a.smoothing;
        double loss = total - (double)mesh__k_word(a.weight, sums + 1);
        if (a.terms == 3) loss = (1 - smoothing) * loss + smoothing * (total - (double)mesh__k_word(a.weight, sums + 2) / (double)a.vocabulary);
        *MESH__K_AT(mesh__k4, a.word + row * 4) = mesh__k_counts(&a, row) ? mesh__k_bits32((float)loss) : 0;
    }
}

MESH__K_ROWS(mesh_rows_gradient) {
    MESH__K_TILES {
        MESH__K_TILE_OF;
        const uint64_t to = mesh__k_row(&a.to, row), from = mesh__k_row(&a.from, row), target = mesh__k_target(&a, row);
        const float most = mesh__k_word(a.weight, row), part = 1 / mesh__k_word(a.word, row * (uint64_t)a.terms);
        const float even = a.smoothing / (float)a.vocabulary, scale = a.scale * (a.row_scale ? mesh__k_word(a.row_scale, row) : 1);
        const int counts = mesh__k_counts(&a, row);
        MESH__K_ELEMENTS_OF_TILE {
            float v = 0;
            if (counts && at < (uint64_t)a.columns) {
                v = mesh__k_load(from + at * (uint64_t)a.from.step, a.from.dtype);
                v = scale * (mesh__k_exp_below(v - most) * part - even);
                if (at == target) v -= scale * (1 - a.smoothing);
            }
            mesh__k_store(to + at * (uint64_t)a.to.step, a.to.dtype, v);
        }
    }
}

#undef MESH__K_DEVICE
#undef MESH__K_ENTRY
#undef MESH__K_KERNEL
#undef MESH__K_BATCH
#undef MESH__K_ROWS
#undef MESH__K_WARP
#undef MESH__K_TILES
#undef MESH__K_TILE_OF
#undef MESH__K_ELEMENTS_OF_TILE
#undef MESH__K_MOVE_ROW
#undef MESH__K_SUM_ROW
#undef MESH__K_ONCE
#undef MESH__K_EVERY
#undef MESH__K_THREAD
#undef MESH__K_THREADS
#undef MESH__K_AT
#undef MESH__K_ANY
#undef MESH__K_EACH
#undef MESH__K_TO
#undef MESH__K_FROM
#undef MESH__K_MOVE
#undef MESH__K_MOVE_AHEAD
#undef MESH__K_INTEGER
#undef MESH__K_EXTREME
#undef MESH__K_IS_EXTREME
#undef MESH__K_ELEMENTS
#undef MESH__K_ELEMENTS_ALONE
#undef MESH__K_LANES
#undef MESH__K_COMPLEX
#undef MESH__K_SQUARES
#undef MESH__K_NUMBER_f16
#undef MESH__K_NUMBER_bf16
#undef MESH__K_NUMBER_f32
#undef MESH__K_NUMBER_f64
