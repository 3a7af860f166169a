/* mesh/base.h - what every room speaks: status and errors, element types and reductions, bounded text. Part of mesh.h 0.1.0. MIT licence.

   Includes nothing of the library, and of C what a freestanding compiler has. Knows no mesh.
*/

#ifndef MESH_BASE_H
#define MESH_BASE_H

#if defined(__APPLE__) || defined(__FreeBSD__) || defined(__NetBSD__) || defined(__OpenBSD__) || defined(__DragonFly__)
/* Where it is not defined all is visible; where it is, much is hidden. */
#elif defined(MESH_IMPLEMENTATION) && defined(__STRICT_ANSI__) && !defined(__cplusplus) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L /* for the transports; under -std=c99 nothing of POSIX is visible otherwise */
#endif
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#define MESH_VERSION "0.1.0"

#if defined(MESH_IMPLEMENATION) || defined(MESH_IMPLEMENT) || defined(MESH_IMPL) || defined(MESH_H_IMPLEMENTATION)
#error "mesh.h: the macro is spelt MESH_IMPLEMENTATION"
#endif

#ifndef MESH_API
#ifdef MESH_STATIC
#if defined(__GNUC__) || defined(__clang__)
#define MESH_API __attribute__((unused)) static
#else
#define MESH_API static
#endif
#else
#define MESH_API extern
#endif
#endif

/* Functions of the implementation's own; a program may use none of a room. RARE: what runs once, or when something has failed: compiled for
   size and kept out of the way of what runs often. */
#define MESH__INLINE static inline /* small, and on the way of every call */
#if defined(__GNUC__) || defined(__clang__)
#define MESH__FOLDED static inline __attribute__((always_inline)) /* of constants, by which most of it goes away */
#define MESH__PRIVATE static __attribute__((unused))
#define MESH__RARE static __attribute__((unused, cold))
#else
#define MESH__FOLDED static inline
#define MESH__PRIVATE static inline
#define MESH__RARE static inline
#endif

#ifndef MESH_ASSERT
#ifdef assert
#define MESH_ASSERT(x) assert(x)
#else
#define MESH_ASSERT(x) ((void)0)
#endif
#endif

#ifdef __cplusplus
#define MESH_ZERO \
    {}
#else
#define MESH_ZERO \
    { 0 }
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- limits: part of the ABI ------------------------------------------------------------------------------------ */

enum {
    MESH_MAX_AXES = 16,
    MESH_MAX_DIMS = 8,    /* of a tensor */
    MESH_MAX_MODES = 30,  /* 2^30 < INT_MAX < 2^31: more factors of 2 cannot occur */
    MESH_NAME_BYTES = 16, /* an axis name with its terminator */
    MESH_ERROR_BYTES = 504
};

/* ---- status ------------------------------------------------------------------------------------------------------ */

#define MESH_STATUSES(X)                         \
    X(MESH_OK, 0, "ok")                          \
    X(MESH_IN_PROGRESS, 1, "in progress")        \
    X(MESH_ERR_ARGUMENT, -1, "bad argument")     \
    X(MESH_ERR_STATE, -2, "wrong state")         \
    X(MESH_ERR_MEMORY, -3, "out of memory")      \
    X(MESH_ERR_UNSUPPORTED, -4, "not supported") \
    X(MESH_ERR_MISMATCH, -5, "ranks disagree")   \
    X(MESH_ERR_TIMEOUT, -6, "deadline passed")   \
    X(MESH_ERR_PEER, -7, "peer lost")            \
    X(MESH_ERR_CANCELED, -8, "canceled")         \
    X(MESH_ERR_TRANSPORT, -9, "transport failed")

#define MESH_X(name, code, text) name = code,
typedef enum mesh_status { MESH_STATUSES(MESH_X) MESH_STATUS_FORCE_INT = 0x7fffffff } mesh_status;
#undef MESH_X

typedef struct mesh_error {
    int status; /* a mesh_status */
    int rank;   /* the rank at fault, or -1 */
    char text[MESH_ERROR_BYTES];
} mesh_error;

/* The status in words: "peer lost". Never NULL. */
MESH_API const char *mesh_status_text(mesh_status status);

/* ---- element types and reductions ---------------------------------------------------------------------------------- */

#define MESH_DTYPES(X)                                                               \
    X(MESH_F32, "f32", 4)                                                            \
    X(MESH_F64, "f64", 8)                                                            \
    X(MESH_F16, "f16", 2)   /* IEEE 754 binary16 */                                  \
    X(MESH_BF16, "bf16", 2) /* the upper half of an f32 */                           \
    X(MESH_I8, "i8", 1)                                                              \
    X(MESH_U8, "u8", 1)                                                              \
    X(MESH_I16, "i16", 2)                                                            \
    X(MESH_U16, "u16", 2)                                                            \
    X(MESH_I32, "i32", 4)                                                            \
    X(MESH_U32, "u32", 4)                                                            \
    X(MESH_I64, "i64", 8)                                                            \
    X(MESH_U64, "u64", 8)                                                            \
    X(MESH_C64, "complex64", 8)    /* two f32: real, imaginary */                    \
    X(MESH_C128, "complex128", 16) /* two f64 */                                     \
    X(MESH_F8E4M3, "f8e4m3", 1)    /* moved; reduced only where the transport can */ \
    X(MESH_F8E5M2, "f8e5m2", 1)                                                      \
    X(MESH_BYTES, "bytes", 1) /* moved, never reduced */                             \
    /* struct {double value; int32_t index, unused;}: MPI's double and int */        \
    X(MESH_F64_I32, "f64_i32", 16)

#define MESH_X(name, text, bytes) name,
typedef enum mesh_dtype { MESH_DTYPES(MESH_X) MESH_DTYPE_COUNT, MESH_DTYPE_FORCE_INT = 0x7fffffff } mesh_dtype;
#undef MESH_X

/* Which dtypes an op takes: sum and prod all numbers; avg floats and complex; min and max numbers but complex; and, or, xor integers.
   minloc and maxloc: f32, f64 and the integers of 4 and 8 bytes; an element is a pair {value, index}, the index a signed integer as wide
   as the value (struct {float value; int32_t index;}), or an f64_i32; of equal values the lower index wins. */
#define MESH_REDUCTIONS(X)   \
    X(MESH_SUM, "sum")       \
    X(MESH_AVG, "avg")       \
    X(MESH_MIN, "min")       \
    X(MESH_MAX, "max")       \
    X(MESH_PROD, "prod")     \
    X(MESH_AND, "and")       \
    X(MESH_OR, "or")         \
    X(MESH_XOR, "xor")       \
    X(MESH_MINLOC, "minloc") \
    X(MESH_MAXLOC, "maxloc")

#define MESH_X(name, text) name,
typedef enum mesh_op { MESH_REDUCTIONS(MESH_X) MESH_OP_COUNT, MESH_OP_FORCE_INT = 0x7fffffff } mesh_op;
#undef MESH_X

/* Bytes of one element; 0: no such dtype. */
MESH_API size_t mesh_dtype_bytes(mesh_dtype dtype);
/* "f32", "sum": never NULL. */
MESH_API const char *mesh_dtype_name(mesh_dtype dtype);
MESH_API const char *mesh_op_name(mesh_op op);

#ifdef __cplusplus
}
#endif
#endif /* MESH_BASE_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_BASE_IMPLEMENTED)
#define MESH_BASE_IMPLEMENTED

/* ---- // >>text: bounded text without a C library --------------------------------------------------------------------- */

typedef struct mesh__text {
    char *buf;
    size_t cap, len; /* len: of the whole text, written or not */
} mesh__text;

MESH__PRIVATE void mesh__put_char(mesh__text *t, char c) {
    if (t->len + 1 < t->cap) {
        t->buf[t->len] = c;
        t->buf[t->len + 1] = 0;
    }
    t->len++;
}

MESH__PRIVATE mesh__text mesh__text_on(char *buf, size_t cap) {
    mesh__text t;
    t.buf = buf;
    t.cap = buf ? cap : 0;
    t.len = 0;
    if (t.cap) t.buf[0] = 0;
    return t;
}

MESH__PRIVATE void mesh__put_uint(mesh__text *t, uint64_t v, unsigned base, int width) {
    char digits[64];
    int n = 0;
    do {
        digits[n++] = "0123456789abcdef"[v % base];
        v /= base;
    } while (v);
    for (; width > n; width--) mesh__put_char(t, ' ');
    while (n) mesh__put_char(t, digits[--n]);
}

MESH__PRIVATE void mesh__put_int(mesh__text *t, int64_t v, int width) {
    uint64_t magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v, rest;
    if (v < 0) {
        for (width--, rest = magnitude; rest; rest /= 10) width--;
        for (; width > 0; width--) mesh__put_char(t, ' ');
        mesh__put_char(t, '-');
    }
    mesh__put_uint(t, magnitude, 10, width);
}

MESH__PRIVATE int mesh__digits(int v) {
    int n = 1;
    for (; v >= 10; v /= 10) n++;
    return n;
}

/* A text that may be of any length: of a long one so much of its begin and of its end. */
MESH__PRIVATE void mesh__put_short(mesh__text *t, const char *text, size_t begin, size_t end) {
    size_t n = 0, i;
    while (text && text[n]) n++;
    for (i = 0; i < n; i++) {
        if (i == begin && n > begin + end + 3) {
            for (i = 0; i < 3; i++) mesh__put_char(t, '.');
            i = n - end;
        }
        mesh__put_char(t, text[i]);
    }
}

/* Formats: %s text, %q name, %c char, %d int, %w int width then int right-aligned, %l int64_t, %u uint64_t, %x uint64_t. */
MESH__PRIVATE void mesh__vput(mesh__text *t, const char *format, va_list args) {
    for (; *format; format++) {
        if (*format != '%') {
            mesh__put_char(t, *format);
            continue;
        }
        switch (*++format) {
        case 's': {
            const char *s = va_arg(args, const char *);
            for (s = s ? s : "(null)"; *s; s++) mesh__put_char(t, *s);
            break;
        }
        case 'q':
            mesh__put_char(t, '"');
            mesh__put_short(t, va_arg(args, const char *), 60, 60);
            mesh__put_char(t, '"');
            break;
        case 'c':
            mesh__put_char(t, (char)va_arg(args, int));
            break;
        case 'u':
            mesh__put_uint(t, va_arg(args, uint64_t), 10, 0);
            break;
        case 'x':
            mesh__put_uint(t, va_arg(args, uint64_t), 16, 0);
            break;
        case 'd':
        case 'w':
        case 'l': {
            int width = *format == 'w' ? va_arg(args, int) : 0;
            int64_t v = *format == 'l' ? va_arg(args, int64_t) : (int64_t)va_arg(args, int);
            mesh__put_int(t, v, width);
            break;
        }
        default:
            mesh__put_char(t, *format);
            break;
        }
    }
}

MESH__PRIVATE void mesh__put(mesh__text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    mesh__vput(t, format, args);
    va_end(args);
}

MESH__RARE mesh_status mesh__vfail(mesh_error *err, mesh_status status, int rank, const char *format, va_list args) {
    mesh__text t;
    if (!err) return status;
    err->status = status;
    err->rank = rank;
    t = mesh__text_on(err->text, sizeof err->text);
    mesh__vput(&t, format, args);
    return status;
}

MESH__RARE mesh_status mesh__fail(mesh_error *err, mesh_status status, int rank, const char *format, ...) {
    va_list args;
    va_start(args, format);
    mesh__vfail(err, status, rank, format, args);
    va_end(args);
    return status;
}

MESH__PRIVATE int mesh__same(const char *a, const char *b) {
    for (; *a && *a == *b; a++, b++) {}
    return *a == *b;
}

/* Shell's sort: `after` says of two items whether the first comes later. */
MESH__PRIVATE void mesh__sort(int *item, int n, int (*after)(const void *ctx, int a, int b), const void *ctx) {
    int gap, i, k;
    for (gap = n / 2; gap > 0; gap = gap == 2 ? 1 : (int)((int64_t)gap * 5 / 11))
        for (i = gap; i < n; i++) {
            int moved = item[i];
            for (k = i; k >= gap && after(ctx, item[k - gap], moved); k -= gap) item[k] = item[k - gap];
            item[k] = moved;
        }
}

MESH_API const char *mesh_status_text(mesh_status status) {
    switch ((int)status) {
#define MESH_X(name, code, text) \
    case code:                   \
        return text;
        MESH_STATUSES(MESH_X)
#undef MESH_X
    default:
        return "unknown status";
    }
}

MESH_API size_t mesh_dtype_bytes(mesh_dtype dtype) {
#define MESH_X(name, text, bytes) bytes,
    static const unsigned char sizes[] = {MESH_DTYPES(MESH_X)};
#undef MESH_X
    return (unsigned)dtype < MESH_DTYPE_COUNT ? sizes[dtype] : 0;
}

MESH_API const char *mesh_dtype_name(mesh_dtype dtype) {
#define MESH_X(name, text, bytes) text,
    static const char *const names[] = {MESH_DTYPES(MESH_X)};
#undef MESH_X
    return (unsigned)dtype < MESH_DTYPE_COUNT ? names[dtype] : "unknown dtype";
}

MESH_API const char *mesh_op_name(mesh_op op) {
#define MESH_X(name, text) text,
    static const char *const names[] = {MESH_REDUCTIONS(MESH_X)};
#undef MESH_X
    return (unsigned)op < MESH_OP_COUNT ? names[op] : "unknown op";
}
#endif /* MESH_BASE_IMPLEMENTED */
