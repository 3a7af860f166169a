/* mesh/kernels.h - what a CPU does for transports without: reductions, conversions, strided copies, byte order. Part of mesh.h 0.1.0. MIT licence.

   Includes vector.h. Knows no operation.
*/
#if !defined(MESH_KERNELS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_KERNELS_IMPLEMENTED))
#include "vector.h"
#define MESH_KERNELS_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_KERNELS_IMPLEMENTED)
#define MESH_KERNELS_IMPLEMENTED

/* ---- // >>reductions: dst = dst op src, on the CPU ------------------------------------------------------------------------- */

MESH__PRIVATE float mesh__float_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
MESH__PRIVATE uint32_t mesh__bits_of_float(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Conversions by bits, so that they hold under -Ofast too. Rounding: to nearest, ties to even. */
MESH__PRIVATE float mesh__f32_of_bf16(uint16_t h) { return mesh__float_of_bits((uint32_t)h << 16); }
MESH__PRIVATE uint16_t mesh__bf16_of_f32(float f) {
    uint32_t u = mesh__bits_of_float(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40); /* a quiet NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
MESH__PRIVATE float mesh__f32_of_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return mesh__float_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return mesh__float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    if (!mantissa) return mesh__float_of_bits(sign);
    for (exponent = 113; !(mantissa & 0x400); exponent--) mantissa <<= 1;
    return mesh__float_of_bits(sign | exponent << 23 | (mantissa & 0x3ff) << 13);
}
MESH__PRIVATE uint16_t mesh__f16_of_f32(float f) {
    uint32_t u = mesh__bits_of_float(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffffu, exponent, mantissa,
             dropped, half, rest;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* 65520 and more round to infinity */
    if (magnitude < 0x33000001u) return (uint16_t)sign;             /* 2^-25 and less round to zero */
    exponent = magnitude >> 23;
    mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    dropped = exponent >= 113 ? 13 : 13 + 113 - exponent;
    half = exponent >= 113 ? ((exponent - 112) << 10) + (mantissa >> 13 & 0x3ff) : mantissa >> dropped;
    rest = mantissa & ((1u << dropped) - 1);
    if (rest > 1u << (dropped - 1) || (rest == 1u << (dropped - 1) && (half & 1))) half++;
    return (uint16_t)(sign | half);
}

MESH__PRIVATE int mesh__is_integer(int d) { return d >= MESH_I8 && d <= MESH_U64; }
MESH__PRIVATE int mesh__is_float(int d) { return d >= MESH_F32 && d <= MESH_BF16; }
MESH__PRIVATE int mesh__is_complex(int d) { return d == MESH_C64 || d == MESH_C128; }

MESH__PRIVATE int mesh__is_loc(int op) { return op == MESH_MINLOC || op == MESH_MAXLOC; }

MESH__PRIVATE int mesh__reducible(int d, int op) {
    switch (op) {
    case MESH_MINLOC:
    case MESH_MAXLOC:
        return d == MESH_F32 || d == MESH_F64 || d == MESH_I32 || d == MESH_U32 || d == MESH_I64 || d == MESH_U64 ||
               d == MESH_F64_I32;
    case MESH_SUM:
    case MESH_PROD:
        return mesh__is_integer(d) || mesh__is_float(d) || mesh__is_complex(d);
    case MESH_AVG:
        return mesh__is_float(d) || mesh__is_complex(d);
    case MESH_MIN:
    case MESH_MAX:
        return mesh__is_integer(d) || mesh__is_float(d);
    case MESH_AND:
    case MESH_OR:
    case MESH_XOR:
        return mesh__is_integer(d);
    default:
        return 0;
    }
}

/* Numbers lie where the caller has them, aligned or not. */
#if defined(__GNUC__)
#define MESH__LOOSE __attribute__((aligned(1), may_alias))
#else
#define MESH__LOOSE
#endif
#define MESH__EACH(T, expression)                           \
    {                                                       \
        typedef T each MESH__LOOSE;                         \
        each *d = (each *)dst;                              \
        const each *s = (const each *)src;                  \
        for (i = 0; i < count; i++) d[i] = (T)(expression); \
    }                                                       \
    return
#define MESH__ORDERED(T)                          \
    switch (op) {                                 \
    case MESH_MIN:                                \
        MESH__EACH(T, s[i] < d[i] ? s[i] : d[i]); \
    default:                                      \
        MESH__EACH(T, s[i] > d[i] ? s[i] : d[i]); \
    }
/* Floats are compared as bits: the result does not depend on which operand comes first (every rank ends with the same), nor on -Ofast.
   A NaN makes the result a NaN; -0 is less than +0. U: an unsigned type as wide; inf: the bits of infinity. */
#define MESH__FLOAT_ORDERED(U, inf)                                                                               \
    {                                                                                                             \
        const U sign = (U)((U)1 << (sizeof(U) * 8 - 1));                                                          \
        unsigned char *d = (unsigned char *)dst;                                                                  \
        const unsigned char *s = (const unsigned char *)src;                                                      \
        for (i = 0; i < count; i++) {                                                                             \
            U a, b, ka, kb, least, most;                                                                          \
            memcpy(&a, d + i * sizeof a, sizeof a);                                                               \
            memcpy(&b, s + i * sizeof b, sizeof b);                                                               \
            ka = (U)(a ^ (a & sign ? (U) ~(U)0 : sign));                                                          \
            kb = (U)(b ^ (b & sign ? (U) ~(U)0 : sign));                                                          \
            least = ka < kb ? a : b;                                                                              \
            most = ka < kb ? b : a;                                                                               \
            a = (U)(a & (U)~sign) > (U)(inf) || (U)(b & (U)~sign) > (U)(inf) ? (U)((U)(inf) | (U)((U)(inf) >> 1)) \
                : op == MESH_MIN                                             ? least                              \
                                                                             : most;                                                                          \
            memcpy(d + i * sizeof a, &a, sizeof a);                                                               \
        }                                                                                                         \
    }                                                                                                             \
    return
#define MESH__REAL(T, U, inf)        \
    switch (op) {                    \
    case MESH_SUM:                   \
    case MESH_AVG:                   \
        MESH__EACH(T, d[i] + s[i]);  \
    case MESH_PROD:                  \
        MESH__EACH(T, d[i] * s[i]);  \
    default:                         \
        MESH__FLOAT_ORDERED(U, inf); \
    }
/* Sums and products of signed integers are those of the unsigned ones, without undefined overflow; W is at least unsigned int. */
#define MESH__INTEGER(S, U, W)            \
    switch (op) {                         \
    case MESH_SUM:                        \
        MESH__EACH(U, (W)d[i] + (W)s[i]); \
    case MESH_PROD:                       \
        MESH__EACH(U, (W)d[i] * (W)s[i]); \
    case MESH_AND:                        \
        MESH__EACH(U, d[i] & s[i]);       \
    case MESH_OR:                         \
        MESH__EACH(U, d[i] | s[i]);       \
    case MESH_XOR:                        \
        MESH__EACH(U, d[i] ^ s[i]);       \
    default:                              \
        MESH__ORDERED(S)                  \
    }
#define MESH__HALF(widen, narrow, inf)                           \
    switch (op) {                                                \
    case MESH_SUM:                                               \
    case MESH_AVG:                                               \
        MESH__EACH(uint16_t, narrow(widen(d[i]) + widen(s[i]))); \
    case MESH_PROD:                                              \
        MESH__EACH(uint16_t, narrow(widen(d[i]) * widen(s[i]))); \
    default:                                                     \
        MESH__FLOAT_ORDERED(uint16_t, inf);                      \
    }
#define MESH__COMPLEX(T)                                                                                             \
    if (op == MESH_PROD) {                                                                                           \
        typedef T each MESH__LOOSE;                                                                                  \
        each *d = (each *)dst;                                                                                       \
        const each *s = (const each *)src;                                                                           \
        for (i = 0; i < count; i++) { /* the operands in one order, or a fused multiply-add would tell them apart */ \
            int swap = d[2 * i] > s[2 * i] || (d[2 * i] == s[2 * i] && d[2 * i + 1] > s[2 * i + 1]);                 \
            T a = swap ? s[2 * i] : d[2 * i], b = swap ? s[2 * i + 1] : d[2 * i + 1];                                \
            T x = swap ? d[2 * i] : s[2 * i], y = swap ? d[2 * i + 1] : s[2 * i + 1];                                \
            d[2 * i] = a * x - b * y;                                                                                \
            d[2 * i + 1] = a * y + b * x;                                                                            \
        }                                                                                                            \
        return;                                                                                                      \
    }                                                                                                                \
    count *= 2;                                                                                                      \
    MESH__EACH(T, d[i] + s[i])

/* minloc, maxloc: pairs {value, index}. The key orders values as unsigned integers; a NaN wins, as in min and max; equal values leave the
   lower index. */
MESH__PRIVATE uint64_t mesh__key(int dtype, uint64_t v, int op) {
    int wide = mesh_dtype_bytes((mesh_dtype)dtype) == 8;
    uint64_t sign = wide ? UINT64_C(1) << 63 : UINT64_C(1) << 31, all = sign | (sign - 1);
    uint64_t inf = wide ? UINT64_C(0x7ff0000000000000) : UINT64_C(0x7f800000);
    if (dtype == MESH_U32 || dtype == MESH_U64) return v;
    if (!mesh__is_float(dtype)) return v ^ sign;
    if ((v & ~sign) > inf) return op == MESH_MINLOC ? 0 : all;
    return v & sign ? ~v & all : v | sign;
}

/* A number of 4 or 8 bytes, signed where it is an index. */
MESH__PRIVATE uint64_t mesh__loc_number(const unsigned char *p, size_t width, int is_index) {
    uint64_t v = 0;
    uint32_t u;
    if (width == 8) {
        memcpy(&v, p, 8);
        return v;
    }
    memcpy(&u, p, 4);
    return is_index ? (uint64_t)(int64_t)(int32_t)u : u;
}

/* Bytes of a pair. */
MESH__PRIVATE size_t mesh__pair_bytes(int dtype) {
    return mesh_dtype_bytes((mesh_dtype)dtype) * (dtype == MESH_F64_I32 ? 1 : 2);
}

MESH__PRIVATE void mesh__reduce_loc(int op, int dtype, unsigned char *dst, const unsigned char *src, size_t count) {
    size_t pair = mesh__pair_bytes(dtype), value = pair / 2, index = dtype == MESH_F64_I32 ? 4 : value, i;
    int numbers = dtype == MESH_F64_I32 ? (int)MESH_F64 : dtype;
    for (i = 0; i < count; i++, dst += pair, src += pair) {
        uint64_t a = mesh__key(numbers, mesh__loc_number(dst, value, 0), op),
                 b = mesh__key(numbers, mesh__loc_number(src, value, 0), op);
        int64_t of_a = (int64_t)mesh__loc_number(dst + value, index, 1),
                of_b = (int64_t)mesh__loc_number(src + value, index, 1);
        if (a == b ? of_b < of_a : op == MESH_MINLOC ? b < a : b > a) memcpy(dst, src, pair);
    }
}

/* Number by number. */
MESH__PRIVATE void mesh__reduce_plain(int op, int dtype, void *dst, const void *src, size_t count) {
    size_t i;
    if (mesh__is_loc(op)) {
        mesh__reduce_loc(op, dtype, (unsigned char *)dst, (const unsigned char *)src, count);
        return;
    }
    switch (dtype) {
    case MESH_F32:
        MESH__REAL(float, uint32_t, 0x7f800000)
    case MESH_F64:
        MESH__REAL(double, uint64_t, UINT64_C(0x7ff0000000000000))
    case MESH_F16:
        MESH__HALF(mesh__f32_of_f16, mesh__f16_of_f32, 0x7c00)
    case MESH_BF16:
        MESH__HALF(mesh__f32_of_bf16, mesh__bf16_of_f32, 0x7f80)
    case MESH_I8:
        MESH__INTEGER(int8_t, uint8_t, unsigned)
    case MESH_U8:
        MESH__INTEGER(uint8_t, uint8_t, unsigned)
    case MESH_I16:
        MESH__INTEGER(int16_t, uint16_t, unsigned)
    case MESH_U16:
        MESH__INTEGER(uint16_t, uint16_t, unsigned)
    case MESH_I32:
        MESH__INTEGER(int32_t, uint32_t, uint32_t)
    case MESH_U32:
        MESH__INTEGER(uint32_t, uint32_t, uint32_t)
    case MESH_I64:
        MESH__INTEGER(int64_t, uint64_t, uint64_t)
    case MESH_U64:
        MESH__INTEGER(uint64_t, uint64_t, uint64_t)
    case MESH_C64:
        MESH__COMPLEX(float);
    case MESH_C128:
        MESH__COMPLEX(double);
    default:
        MESH_ASSERT(0);
    }
}

/* dst = dst op src: equal, or apart. */
MESH__PRIVATE void mesh__reduce(int op, int dtype, void *dst, const void *src, size_t count) {
    const void *both[2];
    mesh__pass p;
    if (count >= MESH__BLOCK / 8) { /* fewer are no block of any dtype */
        mesh__pass_for(&p, op, dtype);
        both[0] = dst;
        both[1] = src;
        p.dst = &dst;
        p.src = both;
        p.ndst = 1;
        p.nsrc = 2;
        p.stream = 0;
        p.at = p.skip = 0;
        p.to = p.loop ? count * p.elem : 0;
        if (mesh__pass_run(&p, mesh__widest())) return;
    }
    mesh__reduce_plain(op, dtype, dst, src, count);
}

/* dst = dst / n: what makes an average of a sum. */
MESH__PRIVATE void mesh__divide(int dtype, void *dst, size_t count, int n) {
    const void *src = dst;
    size_t i;
    switch (dtype) {
    case MESH_C64:
        count *= 2; /* fall through */
    case MESH_F32:
        MESH__EACH(float, s[i] / (float)n);
    case MESH_C128:
        count *= 2; /* fall through */
    case MESH_F64:
        MESH__EACH(double, s[i] / (double)n);
    case MESH_F16:
        MESH__EACH(uint16_t, mesh__f16_of_f32(mesh__f32_of_f16(s[i]) / (float)n));
    case MESH_BF16:
        MESH__EACH(uint16_t, mesh__bf16_of_f32(mesh__f32_of_bf16(s[i]) / (float)n));
    default:
        MESH_ASSERT(0);
    }
}

#undef MESH__EACH
#undef MESH__ORDERED
#undef MESH__REAL
#undef MESH__FLOAT_ORDERED
#undef MESH__INTEGER
#undef MESH__HALF
#undef MESH__COMPLEX

/* ---- // >>strided bytes, and numbers in either byte order ---- */

/* Numbers travel little-endian, so that ranks of both byte orders agree. A big-endian rank turns what it sends into that order, keeps it
   so while the operation lasts, and turns what has arrived back at its end. (MESH_TEST_SWAP makes every host do so, for the tests.) */
MESH__PRIVATE int mesh__is_little(void) {
#ifdef MESH_TEST_SWAP
    return 0;
#else
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
#endif
}

enum { MESH__SWAP_PAIR = 12 }; /* as a width: numbers of 8 and of 4 bytes, and 4 that are nothing */

/* Bytes of the numbers that have to be turned: 0 on little-endian hosts, and for bytes, which have no order. */
MESH__PRIVATE size_t mesh__swap_width(const mesh_call *c) {
    size_t width = mesh_dtype_bytes((mesh_dtype)c->dtype);
    if (mesh__is_little() || c->dtype == MESH_BYTES || width == 1) return 0;
    if (c->dtype == MESH_F64_I32) return MESH__SWAP_PAIR;
    return mesh__is_complex(c->dtype) ? width / 2 : width;
}

MESH__PRIVATE void mesh__swap(void *dst, const void *src, size_t nbytes, size_t width) {
    unsigned char *d = (unsigned char *)dst, number[16];
    const unsigned char *s = (const unsigned char *)src;
    size_t i, k;
    for (i = 0; i < nbytes && width == MESH__SWAP_PAIR; i += 16) {
        memcpy(number, s + i, 16);
        for (k = 0; k < 16; k++) d[i + k] = number[k < 8 ? 7 - k : k < 12 ? 19 - k : k];
    }
    for (i = 0; i < nbytes && width != MESH__SWAP_PAIR; i += width) {
        memcpy(number, s + i, width);
        for (k = 0; k < width; k++) d[i + k] = number[width - 1 - k];
    }
}

MESH__PRIVATE void mesh__swap_xfer(const mesh_xfer *x, size_t width) {
    uint64_t at, n;
    for (at = 0; at < x->nbytes; at += n) {
        void *p = mesh_xfer_at(x, at, &n);
        mesh__swap(p, p, (size_t)n, width);
    }
}

/* A walk over the runs of a strided block: p and left, the bytes from there to the end of the run. */
typedef struct mesh__cursor {
    const mesh_xfer *x;
    unsigned char *p, *row;
    uint64_t left;
    int64_t at[MESH_MAX_DIMS];
} mesh__cursor;

MESH__PRIVATE mesh__cursor mesh__cursor_on(const mesh_xfer *x) {
    mesh__cursor c;
    int k;
    c.x = x;
    c.p = c.row = (unsigned char *)x->base;
    c.left = x->block ? x->block->run : x->nbytes;
    for (k = 0; k < MESH_MAX_DIMS; k++) c.at[k] = 0;
    return c;
}

/* The same from an offset on, below nbytes. */
MESH__PRIVATE mesh__cursor mesh__cursor_at(const mesh_xfer *x, uint64_t offset) {
    mesh__cursor c = mesh__cursor_on(x);
    const mesh_block *b = x->block;
    uint64_t run = c.left, index = offset / run, count;
    int k;
    for (k = b ? b->ndim - 1 : -1; k >= 0; k--) {
        count = (uint64_t)b->dim[k].count;
        c.at[k] = (int64_t)(index % count);
        c.row += c.at[k] * b->dim[k].stride;
        index /= count;
    }
    c.p = c.row + offset % run;
    c.left = run - offset % run;
    return c;
}

MESH__PRIVATE void mesh__cursor_move(mesh__cursor *c, uint64_t n) {
    const mesh_block *b = c->x->block;
    int k;
    c->p += n;
    c->left -= n;
    if (c->left || !b) return;
    for (k = b->ndim - 1; k >= 0; k--) {
        c->row += b->dim[k].stride;
        if (++c->at[k] < b->dim[k].count) break;
        c->row -= b->dim[k].stride * b->dim[k].count;
        c->at[k] = 0;
    }
    c->p = c->row;
    c->left = b->run;
}

/* Runs of len bytes that begin where a walk stands and follow each other at one distance: how many, and the distance. */
MESH__INLINE uint64_t mesh__cursor_rows(const mesh__cursor *c, uint64_t len, int64_t *stride) {
    const mesh_block *b = c->x->block;
    *stride = (int64_t)len;
    if (!b || !b->ndim || len < c->left) return c->left / len;
    if (len < b->run) return 1; /* what is left of one */
    *stride = b->dim[b->ndim - 1].stride;
    return (uint64_t)(b->dim[b->ndim - 1].count - c->at[b->ndim - 1]);
}

/* Behind so many of them. */
MESH__INLINE void mesh__cursor_skip(mesh__cursor *c, uint64_t len, uint64_t rows) {
    int last = c->x->block ? c->x->block->ndim - 1 : -1;
    if (last >= 0 && len == c->left && rows > 1) {
        c->row += c->x->block->dim[last].stride * (int64_t)(rows - 1);
        c->at[last] += (int64_t)(rows - 1);
        rows = 1;
    }
    mesh__cursor_move(c, len * rows);
}

/* Rows of len bytes. A length that the compiler knows is a move or two, where a call costs more than what it copies. */
MESH__PRIVATE void mesh__copy_rows(unsigned char *d, int64_t to, const unsigned char *s, int64_t from, size_t len,
                                   uint64_t rows) {
#define MESH__ROWS_OF(n)                                          \
    case n:                                                       \
        for (; rows; rows--, d += to, s += from) memcpy(d, s, n); \
        return
    switch (len) {
        MESH__ROWS_OF(1);
        MESH__ROWS_OF(2);
        MESH__ROWS_OF(4);
        MESH__ROWS_OF(8);
        MESH__ROWS_OF(16);
        MESH__ROWS_OF(32);
    default:
        for (; rows; rows--, d += to, s += from) mesh__copy_bytes(d, s, len);
    }
#undef MESH__ROWS_OF
}

/* n bytes from one walk to another; both go behind them. */
MESH__PRIVATE void mesh__cursor_copy(mesh__cursor *src, mesh__cursor *dst, uint64_t n) {
    while (n) {
        uint64_t len = src->left < dst->left ? src->left : dst->left, rows, most;
        int64_t from, to;
        if (len > n) len = n;
        rows = mesh__cursor_rows(src, len, &from);
        most = mesh__cursor_rows(dst, len, &to);
        if (rows > most) rows = most;
        if (rows > n / len) rows = n / len;
        mesh__copy_rows(dst->p, to, src->p, from, (size_t)len, rows);
        mesh__cursor_skip(src, len, rows);
        mesh__cursor_skip(dst, len, rows);
        n -= len * rows;
    }
}

/* Strided bytes from one block to another of the same length. */
MESH__PRIVATE void mesh__move(const mesh_xfer *from, const mesh_xfer *to) {
    mesh__cursor src = mesh__cursor_on(from), dst = mesh__cursor_on(to);
    mesh__cursor_copy(&src, &dst, from->nbytes);
}

/* n bytes of what may be strided, from an offset on, to memory in one piece, and back. */
MESH__PRIVATE void mesh__pack(const mesh_xfer *from, uint64_t offset, void *to, size_t n) {
    mesh_xfer flat = MESH_ZERO;
    mesh__cursor src, dst;
    if (!n) return;
    flat.base = to;
    flat.nbytes = n;
    src = mesh__cursor_at(from, offset);
    dst = mesh__cursor_on(&flat);
    mesh__cursor_copy(&src, &dst, n);
}

MESH__PRIVATE void mesh__unpack(const mesh_xfer *to, uint64_t offset, const void *from, size_t n) {
    mesh_xfer flat = MESH_ZERO;
    mesh__cursor src, dst;
    if (!n) return;
    flat.base = (void *)(uintptr_t)from;
    flat.nbytes = n;
    src = mesh__cursor_on(&flat);
    dst = mesh__cursor_at(to, offset);
    mesh__cursor_copy(&src, &dst, n);
}

MESH__PRIVATE void mesh__zero(const mesh_xfer *x) {
    mesh__cursor c = mesh__cursor_on(x);
    uint64_t left, n;
    for (left = x->nbytes; left; left -= n) {
        n = c.left;
        memset(c.p, 0, (size_t)n);
        mesh__cursor_move(&c, n);
    }
}

/* dst = dst op src in the host's byte order; divide: dst = dst / n instead. */
MESH__PRIVATE void mesh__combine(const mesh_call *c, void *dst, void *src, size_t count, size_t elem, int src_first,
                                 int divide) {
    if (divide) {
        mesh__divide(c->dtype, dst, count, divide);
    } else if (c->user_op && src_first) {
        c->user_op(dst, src, count, c->user_ctx);
    } else if (c->user_op) {
        c->user_op(src, dst, count, c->user_ctx);
        memcpy(dst, src, count * elem);
    } else {
        mesh__reduce(c->op, c->dtype, dst, src, count);
    }
}

/* ---- // >>floats of two dtypes ---- */

/* The dtype in which floats of two are added: the wider, f32 where neither holds the other's values. */
MESH__PRIVATE mesh_dtype mesh__wide_of(mesh_dtype a, mesh_dtype b) {
    if (a == b) return a;
    return a == MESH_F64 || b == MESH_F64 ? MESH_F64 : MESH_F32;
}

/* Can one be made of the other? */
MESH__PRIVATE int mesh__converts(mesh_dtype d) {
    return d == MESH_F16 || d == MESH_BF16 || d == MESH_F32 || d == MESH_F64;
}

/* A double rounded to odd: what is rounded again, to fewer bits, comes out as if it had been rounded once. */
MESH__PRIVATE float mesh__f32_odd(double v) {
    float f = (float)v;
    uint32_t u = mesh__bits_of_float(f);
    double back = (double)f;
    if (back == v || v != v) return f;
    if ((back < 0 ? -back : back) > (v < 0 ? -v : v)) u--;
    return mesh__float_of_bits(u | 1);
}

/* n floats as f32 or f64, whichever `wide` is; and back. */
MESH__PRIVATE void mesh__widen(mesh_dtype wide, void *out, mesh_dtype from, const void *in, size_t n) {
    typedef uint16_t half_at MESH__LOOSE;
    const half_at *half = (const half_at *)in;
    size_t i;
    if (from == wide) {
        memcpy(out, in, n * mesh_dtype_bytes(wide));
        return;
    }
    for (i = 0; i < n; i++) {
        float f = from == MESH_F32   ? ((const float *)in)[i]
                  : from == MESH_F16 ? mesh__f32_of_f16(half[i])
                                     : mesh__f32_of_bf16(half[i]);
        if (wide == MESH_F64)
            ((double *)out)[i] = (double)f;
        else
            ((float *)out)[i] = f;
    }
}
MESH__PRIVATE void mesh__narrow(mesh_dtype to, void *out, mesh_dtype wide, const void *in, size_t n) {
    typedef uint16_t half_at MESH__LOOSE;
    half_at *half = (half_at *)out;
    size_t i;
    if (to == wide) {
        memcpy(out, in, n * mesh_dtype_bytes(wide));
        return;
    }
    for (i = 0; i < n; i++) {
        if (to == MESH_F32) {
            ((float *)out)[i] = (float)((const double *)in)[i];
        } else {
            float f = wide == MESH_F64 ? mesh__f32_odd(((const double *)in)[i]) : ((const float *)in)[i];
            half[i] = to == MESH_F16 ? mesh__f16_of_f32(f) : mesh__bf16_of_f32(f);
        }
    }
}

/* dst = src as dst's dtype (op below 0), or dst = dst op src; computed in the wider, and rounded once. */
MESH__PRIVATE void mesh__convert(mesh_dtype to, void *dst, mesh_dtype from, const void *src, size_t count, int op) {
    double a[128], b[128]; /* aligned for both */
    mesh_dtype wide = mesh__wide_of(to, from);
    unsigned char *d = (unsigned char *)dst;
    const unsigned char *s = (const unsigned char *)src;
    size_t n;
    for (; count; count -= n, d += n * mesh_dtype_bytes(to), s += n * mesh_dtype_bytes(from)) {
        n = count < 128 ? count : 128;
        mesh__widen(wide, a, from, s, n);
        if (op < 0) {
            mesh__narrow(to, d, wide, a, n);
            continue;
        }
        mesh__widen(wide, b, to, d, n);
        mesh__reduce(op, (int)wide, b, a, n);
        mesh__narrow(to, d, wide, b, n);
    }
}

/* mesh__combine where memory holds the other order: a little at a time in the host's. */
MESH__PRIVATE void mesh__combine_swapped(const mesh_call *c, void *dst, void *src, size_t count, size_t elem,
                                         int src_first, int divide, size_t width) {
    uint64_t a[128], b[128]; /* aligned for every dtype */
    unsigned char *d = (unsigned char *)dst, *s = (unsigned char *)src;
    size_t most = sizeof a / elem, n;
    for (; count; count -= n, d += n * elem, s += n * elem) {
        n = count < most ? count : most;
        mesh__swap(a, d, n * elem, width);
        mesh__swap(b, s, n * elem, width);
        mesh__combine(c, a, b, n, elem, src_first, divide);
        mesh__swap(d, a, n * elem, width);
    }
}

/* ---- // >>many: n inputs in one pass over memory ---- */

enum {
    MESH__TILE =
        4096,      /* bytes of a piece that stays in the nearest cache; no element of a reduction of many is larger */
    MESH__FEW = 32 /* bytes that are not worth a loop */
};

/* A sum or product of halves: of f32 that are rounded once. */
MESH__PRIVATE int mesh__sums_halves(const mesh_call *c, int nsrc) {
    return !c->user_op && nsrc > 1 && (c->dtype == MESH_F16 || c->dtype == MESH_BF16) &&
           (c->op == MESH_SUM || c->op == MESH_AVG || c->op == MESH_PROD);
}

/* n elements from byte `at` of every source, combined: in a or in b, which are tiles. */
MESH__PRIVATE void *mesh__reduce_tile(const mesh_call *c, const void *const *src, int nsrc, size_t at, size_t n,
                                      size_t elem, void *a, void *b) {
    int halves = mesh__sums_halves(c, nsrc), dtype = halves ? (int)MESH_F32 : c->dtype, k;
    for (k = 0; k < nsrc; k++) {
        const unsigned char *s = (const unsigned char *)src[k] + at;
        void *in = k ? b : a;
        if (halves)
            mesh__widen(MESH_F32, in, (mesh_dtype)c->dtype, s, n);
        else if (k == 0 || c->user_op)
            mesh__copy_bytes(in, s, n * elem);
        if (k && c->user_op) { /* b = a op b: what came before is `in` */
            c->user_op(b, a, n, c->user_ctx);
            b = a;
            a = in;
        } else if (k) {
            mesh__reduce_plain(c->op, dtype, a, halves ? b : s, n);
        }
    }
    if (!halves) return a;
    mesh__narrow((mesh_dtype)c->dtype, b, MESH_F32, a, n);
    return b;
}

/* A pass tile by tile. */
MESH__PRIVATE void mesh__reduce_tiles(const mesh_call *c, mesh__pass *p, size_t elem) {
    uint64_t room[(2 * MESH__TILE + 64) / 8];
    unsigned char *a = (unsigned char *)(((uintptr_t)room + 63) & ~(uintptr_t)63);
    size_t most = MESH__TILE / (elem < 4 ? 4 : elem), n;
    int k;
    MESH_ASSERT(elem <= MESH__TILE);
    for (; p->at < p->to; p->at += n * elem) {
        const void *result;
        n = (p->to - p->at) / elem < most ? (p->to - p->at) / elem : most;
        result = mesh__reduce_tile(c, p->src, p->nsrc, p->at, n, elem, a, a + MESH__TILE);
        for (k = 0; k < p->ndst; k++) {
            unsigned char *d = (unsigned char *)p->dst[k] + p->at;
            if (p->stream)
                mesh__stream_bytes(d, result, n * elem);
            else
                mesh__copy_bytes(d, result, n * elem);
        }
    }
}

/* A few elements, which need no loop of their own: less than a register's bytes. Returns 0 where that is not so. */
MESH__PRIVATE int mesh__reduce_few(const mesh_call *c, void *const *dst, int ndst, const void *const *src, int nsrc,
                                   size_t count, size_t elem) {
    uint64_t few[MESH__FEW / 8];
    size_t nbytes = count * elem;
    int k;
    if (count > (size_t)MESH__FEW || nbytes > (size_t)MESH__FEW || c->user_op || mesh__sums_halves(c, nsrc)) return 0;
    mesh__copy_few(few, src[0], nbytes);
    for (k = 1; k < nsrc; k++) mesh__reduce_plain(c->op, c->dtype, few, src[k], count);
    for (k = 0; k < ndst; k++) mesh__copy_few(dst[k], few, nbytes);
    return 1;
}

/* mesh__reduce_many with registers of at most `width` bytes. */
MESH__PRIVATE void mesh__reduce_wide(mesh__width width, const mesh_call *c, void *const *dst, int ndst,
                                     const void *const *src, int nsrc, size_t count, size_t elem, int stream) {
    mesh__pass p;
    mesh__pass_for(&p, c->user_op || nsrc < 2 ? -1 : c->op, c->dtype);
    p.dst = dst;
    p.src = src;
    p.ndst = ndst;
    p.nsrc = nsrc;
    p.stream = stream;
    p.at = p.skip = 0;
    p.to = count * elem;
    if (!mesh__pass_run(&p, width)) mesh__reduce_tiles(c, &p, elem);
    if (stream) mesh__stream_end();
}

/* Every dst = src[0] op src[1] op ..., from the left, in one pass: count elements of `elem` bytes, at most MESH__TILE, in the host's byte order. Halves
   add up as f32 and are rounded once; an average is not divided. A destination may be a source, and overlaps none in another way; nothing need be
   aligned (a user's op gets copies that are). stream: stores go past the caches, for results larger than these, and are in order before later ones. */
MESH__PRIVATE void mesh__reduce_many(const mesh_call *c, void *const *dst, int ndst, const void *const *src, int nsrc,
                                     size_t count, size_t elem, int stream) {
    if (mesh__reduce_few(c, dst, ndst, src, nsrc, count, elem)) return;
    mesh__reduce_wide(mesh__widest(), c, dst, ndst, src, nsrc, count, elem, stream);
}

#undef MESH__LOOSE
#endif /* MESH_KERNELS_IMPLEMENTED */
