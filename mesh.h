/* mesh.h - named N-dimensional meshes of ranks, as values. Version 0.1.0. MIT licence (see LICENSE). */
#ifndef MESH_H
#define MESH_H
/*
DO THIS
    #define MESH_IMPLEMENTATION         in exactly one .c or .cc file, before including any header of the library
    #include "mesh.h"                   (under -std=c99 before any system header too: the transports need POSIX)

    This header alone is useful for planning and launching: it does no I/O, allocates nothing, keeps no state and needs
    nothing but a freestanding compiler (C99 or C++11). To move data add mesh_collectives.h and a transport.

EXAMPLE
    mesh m, tp;
    mesh_error err;
    if (mesh_parse(&m, "pp=2,dp=-1,tp=2", 8, &err)) return fail(err.text);     8 ranks as 2 x 2 x 2, tp fastest
    mesh_group_through(&tp, &m, "tp", 5, &err);                                the tp group of rank 5: ranks {4, 5}
    mesh_index_of(&tp, 5);                                                     1: its place in that group
    mesh_local_index(&m, "pp,dp", 5);                                          2: its place along two axes together

CONCEPTS
    mesh    a fixed-size struct, copied freely, never freed. A layout: rank = origin + sum(coordinate * stride), through
            a device table if one was given. A sub-mesh, a group, a transposed or flattened mesh is a mesh too.
    axis    a name and a size over zero or more modes. One mode is {shape, stride}; an axis made by flattening two that
            do not coalesce holds several, outermost first. Modes of size 1 are dropped, so 30 always suffice.
    index   a mesh is also a list: index i is the i-th rank in row-major order of its axes (last axis fastest).
    group   the ranks that differ only along some axes. Axes are named in one text, "dp,cp"; a group of several axes
            numbers its ranks row-major in the order WRITTEN. NULL means every axis, "" means none (a group of one).

CONVENTIONS
    Ranks are int, from 0. The first axis named is the slowest unless mesh_desc.first_fastest says otherwise.
    Every query and every transform costs O(axes), however many ranks the mesh holds; only mesh_make with a device table
    and the functions that draw are O(ranks).

ERRORS
    Fallible functions return mesh_status (0 is ok) and fill a mesh_error if one is given (NULL: status only). The text
    names the function, the value and the remedy. On error the result is untouched. Questions about a rank answer -1
    for "not a member": that is an answer, not an error. Meshes passed in are never NULL.

OPTIONS
    MESH_STATIC     every function static, for a library that keeps mesh.h to itself
    MESH_ASSERT(x)  our own invariants; default: assert where <assert.h> was included, else nothing
    No macro changes the layout of a struct.

BEHIND IT
    mesh_spec.h, which lays tensors on meshes, and mesh_plan.h, which moves them from one layout to another. Included at the end.
*/
#if defined(MESH_IMPLEMENTATION) && defined(__STRICT_ANSI__) && !defined(__cplusplus) && !defined(_POSIX_C_SOURCE)
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

#ifndef MESH_ASSERT
#ifdef assert
#define MESH_ASSERT(x) assert(x)
#else
#define MESH_ASSERT(x) ((void)0)
#endif
#endif

#ifdef __cplusplus
extern "C" {
#define MESH_ZERO \
    {}
#else
#define MESH_ZERO \
    { 0 }
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
    X(MESH_BYTES, "bytes", 1) /* moved, never reduced */

#define MESH_X(name, text, bytes) name,
typedef enum mesh_dtype { MESH_DTYPES(MESH_X) MESH_DTYPE_COUNT, MESH_DTYPE_FORCE_INT = 0x7fffffff } mesh_dtype;
#undef MESH_X

/* Which dtypes an op takes: sum and prod all numbers; avg floats and complex; min and max numbers but complex; and, or, xor integers.
   minloc and maxloc: f32, f64 and the integers of 4 and 8 bytes; an element is a pair {value, index}, the index a signed integer as wide
   as the value (struct {float value; int32_t index;}); of equal values the lower index wins. */
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

/* ---- a mesh ------------------------------------------------------------------------------------------------------ */

typedef struct mesh_mode {
    int shape, stride;
} mesh_mode;

typedef struct mesh_axis {
    char name[MESH_NAME_BYTES];
    int size;
    uint8_t first, modes; /* its modes are mesh.mode[first .. first + modes), outermost first */
    uint16_t zero;
} mesh_axis;

typedef struct mesh {
    int size;   /* ranks in the mesh: the product of the axes' sizes */
    int origin; /* position of index 0 */
    int naxes, nmodes;
    int table_size, inverse_size;
    mesh_axis axis[MESH_MAX_AXES];
    mesh_mode mode[MESH_MAX_MODES];
    uint8_t order[MESH_MAX_MODES + 2]; /* the modes by stride, largest first: how a rank is taken apart */
    const int *table, *inverse;        /* the caller's memory; NULL: position p is rank p */
    uint64_t table_hash;
} mesh;

/* ---- build ------------------------------------------------------------------------------------------------------- */

typedef struct mesh_desc {
    const int *shape;         /* sizes of the axes; one may be -1: what remains of `world` */
    const char *const *names; /* NULL: dim0, dim1, ... */
    int naxes;
    int world; /* the product the sizes must have; 0: any (and no -1) */
    int first_fastest; /* without strides: 0: the last axis varies fastest (row-major, as in C); 1: the first (as in Megatron's orders) */
    const int *strides; /* NULL: dense. They must nest: each at least the span of all the smaller ones */
    int origin;         /* position of index 0 */
    const int *table;   /* NULL: ranks are positions. Else the rank at each position: any arrangement at all */
    int table_size;     /* its entries; it must reach the last position. Read by every query: keep it alive */
    int *
        inverse; /* with a table: memory for the position of each rank, written by mesh_make (on error too); one mesh's own */
    int inverse_size; /* its entries; more than the largest rank in the table */
} mesh_desc;

/* Make a mesh from a description. ARGUMENT: a size below 1, two -1, a product that is not `world`, a name that is bad or
   given twice, overflow, strides that do not nest, a table with a rank listed twice or outside. O(axes), plus O(table). */
MESH_API mesh_status mesh_make(mesh *m, const mesh_desc *desc, mesh_error *err);

/* Make a dense mesh from text: [axis {"," axis}], axis = name "=" size, e.g. "pp=2,dp=-1,tp=4"; "": a mesh of one rank without axes.
   The inverse of mesh_format for dense meshes.
   `world`: the product the sizes must have, from which one -1 is inferred; 0: any. ARGUMENT as mesh_make. */
MESH_API mesh_status mesh_parse(mesh *m, const char *text, int world, mesh_error *err);

/* How many ways of each parallelism. 0 means 1; -1 means "what remains" (once). */
typedef struct mesh_degrees {
    int world;
    int pp, dp_replicate, dp_shard, cp, tp, ep;
    int etp;              /* expert tensor parallelism: 1 or tp */
    int devices_per_node; /* 0: unknown. A hierarchical order ("auto") keeps tp within a node */
} mesh_degrees;

/* Build the mesh that the degrees describe, in a named order of axes.
   `order` is a list of axis names, slowest first "pp,dp,tp", or Megatron's way, fastest first "tp-cp-ep-dp-pp". Known are pp
   dp_replicate dp_shard cp tp ep etp, and the products dp = batch = dp_replicate*dp_shard, fsdp = dp_shard*cp,
   loss = batch*cp, efsdp = dp_shard*cp*tp/(ep*etp). Or one of these names:
     kempner                 pp,dp_replicate,dp_shard,cp,ep,tp without axes of size 1 (KempnerForge keeps dp_shard if tp or ep > 1)
     torchtitan              pp,dp_replicate,dp_shard,cp,tp       its views: torchtitan:dense pp,dp_replicate,fsdp,tp
     torchtitan:dataloading  pp,batch,cp,tp                       torchtitan:sparse           pp,dp_replicate,efsdp,ep,etp
     ezpz                    dp,pp,cp,tp
     auto                    dp,pp,tp: tp within a node, dp outermost; of several -1, dp takes the rest (if it was not given) and the others are 1
   ep is a factor of the world where the order names it without efsdp (KempnerForge), else a view of the dense axes (torchtitan).
   ARGUMENT: a degree below -1, two -1, a product that is not the world, a degree above 1 that the order leaves out, ep that does
   not divide, etp neither 1 nor tp, with "auto" tp that crosses nodes. Source: KempnerForge, torchtitan ParallelDims, Megatron-LM RankGenerator, ezpz. */
MESH_API mesh_status mesh_from_degrees(mesh *m, const mesh_degrees *degrees, const char *order, mesh_error *err);

/* Factor `size` into `ndims` dims as close to each other as possible, non-increasing; dims given above 0 are kept.
   ARGUMENT: size < 1, a negative dim, fixed dims that do not divide size. Source: MPI_Dims_create, MPI-4.1 section 8.5.2;
   where implementations differ, the smallest largest dim wins, then the smallest second (as MPICH). */
MESH_API mesh_status mesh_dims_create(int size, int ndims, int *dims, mesh_error *err);

/* ---- ask --------------------------------------------------------------------------------------------------------- */

/* Number of the axis called `name`, or -1. */
MESH_API int mesh_axis_find(const mesh *m, const char *name);
/* The rank at an index (row-major, last axis fastest), or -1 outside [0, size). */
MESH_API int mesh_rank_at(const mesh *m, int index);
/* The index of a rank: the inverse of mesh_rank_at. -1: not a member. */
MESH_API int mesh_index_of(const mesh *m, int rank);
/* The rank at coordinates, one per axis; -1 if one is outside its axis. */
MESH_API int mesh_rank_at_coords(const mesh *m, const int *coords);
/* Write a rank's coordinates, one per axis. Returns 1, or 0 (nothing written) if it is not a member. */
MESH_API int mesh_coords_of(const mesh *m, int rank, int *coords);
/* A rank's coordinate along one axis; -1: no such axis or not a member. */
MESH_API int mesh_coord_of(const mesh *m, const char *axis, int rank);
/* A rank's linear index along several axes in the order written ("dp,cp"); -1: bad axes or not a member. */
MESH_API int mesh_local_index(const mesh *m, const char *axes, int rank);
/* The rank `displacement` steps further along an axis; periodic wraps around. -1: beyond the edge, no such axis, not a member. */
MESH_API int mesh_neighbor(const mesh *m, const char *axis, int rank, int displacement, int periodic);

/* The group through a rank: the sub-mesh of the named axes that holds it, its axes in the order written (this is also how to
   slice). ARGUMENT: unknown or repeated axis, rank not a member. */
MESH_API mesh_status mesh_group_through(mesh *group, const mesh *m, const char *axes, int rank, mesh_error *err);
/* How many groups the named axes make: size / (product of their sizes); -1: bad axes. */
MESH_API int mesh_group_count(const mesh *m, const char *axes);
/* The number of the group that holds a rank, in the order of mesh_group_at; -1: bad axes or not a member. */
MESH_API int mesh_group_of(const mesh *m, const char *axes, int rank);
/* Group number k, 0 <= k < mesh_group_count, ordered row-major over the other axes. ARGUMENT: bad axes, k outside. */
MESH_API mesh_status mesh_group_at(mesh *group, const mesh *m, const char *axes, int k, mesh_error *err);

/* 1 if both have the same axes, the same layout, and the same device table or none. */
MESH_API int mesh_equal(const mesh *a, const mesh *b);
/* A hash of all that mesh_equal compares, the same on every machine: how ranks check that they hold the same mesh. */
MESH_API uint64_t mesh_fingerprint(const mesh *m);

/* ---- transform: the result may be the source ------------------------------------------------------------------------ */

/* Drop an axis, held at an index (the last one left: a mesh of no axes and one rank). ARGUMENT: no such axis, index outside. */
MESH_API mesh_status mesh_fix(mesh *result, const mesh *m, const char *axis, int index, mesh_error *err);
/* The same ranks with the axes in another order; every axis is named once. */
MESH_API mesh_status mesh_transpose(mesh *result, const mesh *m, const char *axes, mesh_error *err);
/* Make one axis of several, adjacent or not, in any order: the first named is outermost, and where it stood stands the new one.
   `name` NULL: the names joined by "_", where that fits in 15 bytes. ARGUMENT: bad axes, a name that is bad or taken. */
MESH_API mesh_status mesh_flatten(mesh *result, const mesh *m, const char *axes, const char *name, mesh_error *err);
/* Make several axes of one: mesh_split(&r, &m, "dp", "replicate=2,shard=-1"). ARGUMENT: no such axis, sizes whose product is
   not the axis, a name taken, an axis flattened out of order whose parts the sizes would cross (remedy: a device table). */
MESH_API mesh_status mesh_split(mesh *result, const mesh *m, const char *axis, const char *text, mesh_error *err);
/* The same ranks in the same order under other axes. ARGUMENT as mesh_split. */
MESH_API mesh_status mesh_reshape(mesh *result, const mesh *m, const char *text, mesh_error *err);
/* Rename one axis. */
MESH_API mesh_status mesh_rename(mesh *result, const mesh *m, const char *axis, const char *name, mesh_error *err);
/* Drop the axes of size 1. */
MESH_API void mesh_squeeze(mesh *result, const mesh *m);
/* The mesh of a's axes followed by b's, through a rank that both hold (a, b: slices of one mesh, or any two that do not
   overlap). ARGUMENT: a name in both, rank not in both, different tables, ranks that would occur twice. */
MESH_API mesh_status mesh_concat(mesh *result, const mesh *a, const mesh *b, int rank, mesh_error *err);
/* result(i) = outer(inner(i)): inner's ranks are indices into outer. ARGUMENT: inner reaches beyond outer, has a table, or
   the composition is no layout (remedy: a device table). Layouts that only all positions together show are found up to 2^18
   ranks. Source: CuTe layout composition. */
MESH_API mesh_status mesh_compose(mesh *result, const mesh *outer, const mesh *inner, mesh_error *err);

/* ---- show: each returns the length of the whole text; at most cap - 1 bytes and a terminator are written -------------- */

/* "pp=2,dp=2,tp=2": what mesh_parse reads. Names and sizes only: how a slice or a transposed mesh lies is not in it. */
MESH_API size_t mesh_format(const mesh *m, char *buf, size_t cap);
/* One rank's line, the rank over the mesh's size - 1, then each axis as index/last, innermost first, axes of size 1 left out:
   "[ 3/23]: [cp:3/3][pp:0/1][dp:0/2]".
   A rank that is not a member: "[77/23]: not in the mesh". Source: ezpz. */
MESH_API size_t mesh_format_rank(const mesh *m, int rank, char *buf, size_t cap);
/* A table of ranks (last axis across) and each axis' groups, in ASCII; large meshes are elided. */
MESH_API size_t mesh_draw(const mesh *m, char *buf, size_t cap);
/* A Graphviz graph: a node per rank, an edge to each next neighbour, a colour per axis. At most 4,096 ranks are drawn. */
MESH_API size_t mesh_dot(const mesh *m, char *buf, size_t cap);
/* A picture as SVG: a cell per rank, nested boxes per outer axis, the last two axes as rows and columns. At most 4,096 ranks. */
MESH_API size_t mesh_svg(const mesh *m, char *buf, size_t cap);

#ifdef __cplusplus
}
#endif
#endif /* MESH_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_IMPLEMENTED)
#define MESH_IMPLEMENTED

#ifdef __cplusplus
extern "C" {
#endif

/* ---- // >>text: bounded text without a C library --------------------------------------------------------------------- */

typedef struct mesh__text {
    char *buf;
    size_t cap, len; /* len: of the whole text, written or not */
} mesh__text;

static inline void mesh__put_char(mesh__text *t, char c) {
    if (t->len + 1 < t->cap) {
        t->buf[t->len] = c;
        t->buf[t->len + 1] = 0;
    }
    t->len++;
}

static inline mesh__text mesh__text_on(char *buf, size_t cap) {
    mesh__text t;
    t.buf = buf;
    t.cap = buf ? cap : 0;
    t.len = 0;
    if (t.cap) t.buf[0] = 0;
    return t;
}

static inline void mesh__put_uint(mesh__text *t, uint64_t v, unsigned base, int width) {
    char digits[64];
    int n = 0;
    do {
        digits[n++] = "0123456789abcdef"[v % base];
        v /= base;
    } while (v);
    for (; width > n; width--) mesh__put_char(t, ' ');
    while (n) mesh__put_char(t, digits[--n]);
}

static inline void mesh__put_int(mesh__text *t, int64_t v, int width) {
    uint64_t magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v, rest;
    if (v < 0) {
        for (width--, rest = magnitude; rest; rest /= 10) width--;
        for (; width > 0; width--) mesh__put_char(t, ' ');
        mesh__put_char(t, '-');
    }
    mesh__put_uint(t, magnitude, 10, width);
}

static inline int mesh__digits(int v) {
    int n = 1;
    for (; v >= 10; v /= 10) n++;
    return n;
}

/* Formats: %s text, %c char, %d int, %w int width then int right-aligned, %l int64_t, %u uint64_t, %x uint64_t. */
static inline void mesh__vput(mesh__text *t, const char *format, va_list args) {
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

static inline void mesh__put(mesh__text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    mesh__vput(t, format, args);
    va_end(args);
}

static inline mesh_status mesh__vfail(mesh_error *err, mesh_status status, int rank, const char *format, va_list args) {
    mesh__text t;
    if (!err) return status;
    err->status = status;
    err->rank = rank;
    t = mesh__text_on(err->text, sizeof err->text);
    mesh__vput(&t, format, args);
    return status;
}

static inline mesh_status mesh__fail(mesh_error *err, mesh_status status, int rank, const char *format, ...) {
    va_list args;
    va_start(args, format);
    mesh__vfail(err, status, rank, format, args);
    va_end(args);
    return status;
}

static inline int mesh__same(const char *a, const char *b) {
    for (; *a && *a == *b; a++, b++) {}
    return *a == *b;
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

/* A mesh as text inside an error message. */
typedef struct mesh__shown {
    char text[120];
} mesh__shown;

static inline mesh__shown mesh__show(const mesh *m) {
    mesh__shown s;
    if (mesh_format(m, s.text, sizeof s.text) >= sizeof s.text) s.text[sizeof s.text - 2] = '~';
    return s;
}

/* ---- // >>names and lists ---------------------------------------------------------------------------------------------- */

static inline int mesh__is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static inline int mesh__is_digit(char c) { return c >= '0' && c <= '9'; }

/* Length of the name at the start of the text; 0: none. */
static inline int mesh__name_length(const char *text) {
    int n = 0;
    if (!mesh__is_letter(text[0])) return 0;
    while (mesh__is_letter(text[n]) || mesh__is_digit(text[n]) || text[n] == '_') n++;
    return n;
}

static inline mesh_status mesh__name_set(char *to, const char *name, int n, const char *function, mesh_error *err) {
    int i, named = mesh__name_length(name);
    if (named < n || n == 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: \"%s\" is no axis name: a letter, then letters, digits or _",
                          function, name);
    if (n >= MESH_NAME_BYTES)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: axis name \"%s\" is too long: at most %d bytes", function,
                          name, MESH_NAME_BYTES - 1);
    for (i = 0; i < MESH_NAME_BYTES; i++) to[i] = i < n ? name[i] : '\0';
    return MESH_OK;
}

static inline int mesh__length(const char *s) {
    int n = 0;
    while (s[n]) n++;
    return n;
}

/* The axis whose name is the n bytes at `name`, or -1. */
static inline int mesh__axis_of(const mesh *m, const char *name, int n) {
    int i, k;
    for (i = 0; i < m->naxes; i++) {
        for (k = 0; k < n && m->axis[i].name[k] == name[k]; k++) {}
        if (k == n && !m->axis[i].name[n]) return i;
    }
    return -1;
}

/* Read a list of axes "dp,cp" (NULL: all) into numbers. Returns how many, or -1 with the error filled. */
static inline int mesh__axes(const mesh *m, const char *axes, uint8_t *list, const char *function, mesh_error *err) {
    int i, n = 0;
    const char *p = axes;
    if (!axes) {
        for (; n < m->naxes && n < MESH_MAX_AXES; n++) list[n] = (uint8_t)n;
        return n;
    }
    if (!*axes) return 0;
    for (;; p++) {
        int length = 0, axis;
        while (p[length] && p[length] != ',') length++;
        axis = length > 0 && length < MESH_NAME_BYTES ? mesh__axis_of(m, p, length) : -1;
        if (axis < 0) {
            char unknown[24];
            mesh__text t = mesh__text_on(unknown, sizeof unknown);
            for (i = 0; i < length; i++) mesh__put_char(&t, p[i]);
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: no axis \"%s\" in the mesh \"%s\"; name its axes as \"a,b\"", function, unknown,
                              mesh__show(m).text),
                   -1;
        }
        for (i = 0; i < n; i++)
            if (list[i] == axis)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: axis \"%s\" occurs twice in \"%s\"; name it once",
                                  function, m->axis[axis].name, axes),
                       -1;
        list[n++] = (uint8_t)axis;
        p += length;
        if (!*p) return n;
    }
}

/* ---- // >>layout: axes over modes ---------------------------------------------------------------------------------------- */

static inline void mesh__start(mesh *r, const mesh *like) {
    size_t i;
    unsigned char *bytes = (unsigned char *)r;
    for (i = 0; i < sizeof *r; i++) bytes[i] = 0;
    r->size = 1;
    if (!like) return;
    r->origin = like->origin;
    r->table = like->table;
    r->inverse = like->inverse;
    r->table_size = like->table_size;
    r->inverse_size = like->inverse_size;
    r->table_hash = like->table_hash;
}

/* Open a new axis; the modes that follow belong to it. The name is valid and new. */
static inline void mesh__axis_add(mesh *r, const char *name) {
    int i;
    mesh_axis *a = &r->axis[r->naxes++];
    for (i = 0; name[i]; i++) a->name[i] = name[i];
    a->size = 1;
    a->first = (uint8_t)r->nmodes;
}

/* Append a mode, inside the last one, to the last axis; coalesced where the two are one run. */
static inline void mesh__mode_add(mesh *r, int shape, int stride) {
    mesh_axis *a = &r->axis[r->naxes - 1];
    if (shape == 1) return;
    a->size *= shape;
    r->size *= shape;
    if (a->modes) {
        mesh_mode *outer = &r->mode[r->nmodes - 1];
        if (outer->stride == shape * (int64_t)stride) {
            outer->shape *= shape;
            outer->stride = stride;
            return;
        }
    }
    MESH_ASSERT(r->nmodes < MESH_MAX_MODES);
    r->mode[r->nmodes].shape = shape;
    r->mode[r->nmodes++].stride = stride;
    a->modes++;
}

/* Append an axis' modes to the last axis of r. */
static inline void mesh__modes_copy(mesh *r, const mesh *m, int axis) {
    int i;
    for (i = m->axis[axis].first; i < m->axis[axis].first + m->axis[axis].modes; i++)
        mesh__mode_add(r, m->mode[i].shape, m->mode[i].stride);
}

static inline void mesh__axis_copy(mesh *r, const mesh *m, int axis) {
    mesh__axis_add(r, m->axis[axis].name);
    mesh__modes_copy(r, m, axis);
}

/* Sort the modes by stride and check that they nest. Returns 0, or 1 where two ranks could share a position. */
static inline int mesh__finish(mesh *r) {
    int i, k;
    int64_t span = 1;
    for (i = 0; i < r->nmodes; i++) {
        for (k = i; k > 0 && r->mode[r->order[k - 1]].stride < r->mode[i].stride; k--) r->order[k] = r->order[k - 1];
        r->order[k] = (uint8_t)i;
    }
    for (i = r->nmodes - 1; i >= 0; i--) {
        mesh_mode mode = r->mode[r->order[i]];
        if (mode.stride < span) return 1;
        span += (int64_t)(mode.shape - 1) * mode.stride;
    }
    return 0;
}

static inline int64_t mesh__span(const mesh *m) {
    int i;
    int64_t span = 1;
    for (i = 0; i < m->nmodes; i++) span += (int64_t)(m->mode[i].shape - 1) * m->mode[i].stride;
    return span;
}

static inline int mesh__rank_of_position(const mesh *m, int position) {
    return m->table ? m->table[position] : position;
}

/* The mode coordinates of a rank, or 0 if it is not a member. */
static inline int mesh__take_apart(const mesh *m, int rank, int *coord) {
    int i, rest;
    if (rank < 0) return 0;
    if (m->table) {
        if (rank >= m->inverse_size) return 0;
        rank = m->inverse[rank];
    }
    rest = rank - m->origin;
    if (rest < 0) return 0;
    for (i = 0; i < m->nmodes; i++) {
        int k = m->order[i];
        coord[k] = rest / m->mode[k].stride;
        if (coord[k] >= m->mode[k].shape) return 0;
        rest -= coord[k] * m->mode[k].stride;
    }
    return rest == 0;
}

static inline int mesh__axis_coord(const mesh *m, int axis, const int *coord) {
    int i, c = 0;
    const mesh_axis *a = &m->axis[axis];
    for (i = a->first; i < a->first + a->modes; i++) c = c * m->mode[i].shape + coord[i];
    return c;
}

/* How far an index along one axis lies from its start. */
static inline int mesh__axis_offset(const mesh *m, int axis, int index) {
    int i, offset = 0;
    const mesh_axis *a = &m->axis[axis];
    for (i = a->first + a->modes - 1; i >= a->first; i--) {
        offset += index % m->mode[i].shape * m->mode[i].stride;
        index /= m->mode[i].shape;
    }
    return offset;
}

/* ---- // >>build ---------------------------------------------------------------------------------------------------------- */

static inline uint64_t mesh__mix(uint64_t h, uint64_t x) {
    h ^= x + UINT64_C(0x9e3779b97f4a7c15) + (h << 6) + (h >> 2);
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return h ^ (h >> 29);
}

/* Fill the inverse of the table and check both. */
static inline mesh_status mesh__table_check(mesh *r, const mesh_desc *d, int64_t span, const char *function,
                                            mesh_error *err) {
    int i;
    if (d->table_size < 1 || !d->inverse || d->inverse_size < 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: a device table needs table_size (%d), and memory for its inverse with inverse_size (%d)",
                          function, d->table_size, d->inverse_size);
    if (d->origin + span > d->table_size)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: the mesh reaches position %l, but the device table has %d entries", function,
                          (int64_t)d->origin + span - 1, d->table_size);
    for (i = 0; i < d->inverse_size; i++) d->inverse[i] = -1;
    r->table_hash = mesh__mix(0, (uint64_t)d->table_size);
    for (i = 0; i < d->table_size; i++) {
        int rank = d->table[i];
        if (rank < 0 || rank >= d->inverse_size)
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "%s: the device table holds rank %d at position %d, outside 0..%d", function, rank, i,
                              d->inverse_size - 1);
        if (d->inverse[rank] >= 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "%s: the device table lists rank %d twice, at positions %d and %d; list each rank once",
                              function, rank, d->inverse[rank], i);
        d->inverse[rank] = i;
        r->table_hash = mesh__mix(r->table_hash, (uint64_t)rank);
    }
    r->table = d->table;
    r->inverse = d->inverse;
    r->table_size = d->table_size;
    r->inverse_size = d->inverse_size;
    return MESH_OK;
}

/* An axis as messages name it. */
typedef struct mesh__label {
    char text[MESH_NAME_BYTES + 8];
} mesh__label;

static inline mesh__label mesh__label_of(const mesh_desc *d, int axis) {
    mesh__label l;
    mesh__text t = mesh__text_on(l.text, sizeof l.text);
    if (d->names && d->names[axis])
        mesh__put(&t, "\"%s\"", d->names[axis]);
    else
        mesh__put(&t, "%d", axis);
    return l;
}

/* Sizes with -1 inferred and checked against the world. */
static inline mesh_status mesh__sizes(const mesh_desc *d, int *shape, const char *function, mesh_error *err) {
    int i, missing = -1;
    int64_t product = 1;
    for (i = 0; i < d->naxes; i++) {
        shape[i] = d->shape[i];
        if (shape[i] == -1) {
            if (missing >= 0)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                  "%s: axes %s and %s are both -1; only one size can be inferred", function,
                                  mesh__label_of(d, missing).text, mesh__label_of(d, i).text);
            missing = i;
            continue;
        }
        if (shape[i] < 1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: axis %s has size %d; a size is at least 1, or -1 for what remains", function,
                              mesh__label_of(d, i).text, shape[i]);
        product *= shape[i];
        if (product > INT32_MAX)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: the sizes multiply to over %d ranks (overflow at axis %s)", function, INT32_MAX,
                              mesh__label_of(d, i).text);
    }
    if (missing >= 0) {
        if (d->world < 1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: axis %s is -1, but the world's size is not given",
                              function, mesh__label_of(d, missing).text);
        if (d->world % product)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: axis %s is -1, but a world of %d does not divide by the other sizes' product %l",
                              function, mesh__label_of(d, missing).text, d->world, product);
        shape[missing] = (int)(d->world / product);
    } else if (d->world > 0 && product != d->world) {
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "%s: the sizes multiply to %l%s, but the world has %d ranks; write -1 for one size to take what remains",
            function, product, d->naxes ? "" : " (no axes are given)", d->world);
    }
    return MESH_OK;
}

static inline mesh_status mesh__make_as(mesh *m, const mesh_desc *d, const char *function, mesh_error *err) {
    mesh r;
    int shape[MESH_MAX_AXES], stride[MESH_MAX_AXES];
    int i, k, dense = 1;
    int64_t span;
    mesh_status status;
    if (!m || !d || (d->naxes > 0 && !d->shape))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %s is NULL", function,
                          !m   ? "the mesh"
                          : !d ? "the description"
                               : "desc.shape");
    if (d->naxes < 0 || d->naxes > MESH_MAX_AXES)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %d axes; a mesh has 0 to %d", function, d->naxes,
                          MESH_MAX_AXES);
    if (d->origin < 0 || d->world < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %s %d is negative", function,
                          d->origin < 0 ? "origin" : "world", d->origin < 0 ? d->origin : d->world);
    if (!d->table && d->table_size)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: table_size is %d, but table is NULL", function,
                          d->table_size);
    if ((status = mesh__sizes(d, shape, function, err)) != MESH_OK) return status;

    mesh__start(&r, NULL);
    r.origin = d->origin;
    for (i = 0; i < d->naxes; i++) {
        k = d->first_fastest ? i : d->naxes - 1 - i;
        stride[k] = d->strides ? d->strides[k] : dense;
        dense = dense * shape[k];
    }
    for (i = 0; i < d->naxes; i++) {
        char name[MESH_NAME_BYTES];
        if (d->names) {
            if (!d->names[i])
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the name of axis %d is NULL", function, i);
            if ((status = mesh__name_set(name, d->names[i], mesh__length(d->names[i]), function, err)) != MESH_OK)
                return status;
        } else {
            mesh__text t = mesh__text_on(name, sizeof name);
            mesh__put(&t, "dim%d", i);
        }
        if (mesh_axis_find(&r, name) >= 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: two axes are called \"%s\"; give each its own name",
                              function, name);
        if (shape[i] > 1 && stride[i] < 1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: axis \"%s\" has stride %d; a stride is at least 1",
                              function, name, stride[i]);
        mesh__axis_add(&r, name);
        mesh__mode_add(&r, shape[i], stride[i]);
    }
    span = mesh__span(&r);
    if (d->origin + span - 1 > INT32_MAX)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: origin and strides reach rank %l (overflow); the last is %d",
                          function, (int64_t)d->origin + span - 1, INT32_MAX);
    if (mesh__finish(&r))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "%s: the strides of \"%s\" do not nest: each must be at least the span of all the smaller ones; for any "
            "other arrangement give the ranks as a device table (mesh_desc.table)",
            function, mesh__show(&r).text);
    if (d->table && (status = mesh__table_check(&r, d, span, function, err)) != MESH_OK) return status;
    *m = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_make(mesh *m, const mesh_desc *d, mesh_error *err) {
    return mesh__make_as(m, d, "mesh_make", err);
}

/* Axes of a text into names and sizes. Returns their number, or -1 with the error filled. */
static inline int mesh__parse_axes(const char *text, char names[][MESH_NAME_BYTES], int *shape, const char *function,
                                   mesh_error *err) {
    int n = 0;
    const char *p = text;
    if (!text)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the text is NULL; write axes as \"dp=2,tp=4\"", function),
               -1;
    if (!*text) return 0;
    for (;; p++) {
        int length = mesh__name_length(p), at = (int)(p - text), negative;
        int64_t value = 0;
        if (n == MESH_MAX_AXES)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: \"%s\" has more than %d axes", function, text,
                              MESH_MAX_AXES),
                   -1;
        if (!length || p[length] != '=')
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: expected name=size at byte %d of \"%s\"", function, at,
                              text),
                   -1;
        if (length >= MESH_NAME_BYTES)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: the axis name at byte %d of \"%s\" is too long: at most %d bytes", function, at,
                              text, MESH_NAME_BYTES - 1),
                   -1;
        mesh__name_set(names[n], p, length, function, NULL);
        p += length + 1;
        negative = *p == '-';
        p += negative;
        at = (int)(p - text);
        if (!mesh__is_digit(*p))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: expected a size at byte %d of \"%s\"", function, at,
                              text),
                   -1;
        for (; mesh__is_digit(*p); p++)
            if ((value = value * 10 + (*p - '0')) > INT32_MAX) value = (int64_t)INT32_MAX + 1;
        if (value > INT32_MAX || (negative && value != 1) || value == 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: the size of \"%s\" in \"%s\" is %s; a size is 1 to %d, or -1 for what remains",
                              function, names[n], text,
                              value > INT32_MAX ? "too large (overflow)"
                              : value           ? "negative"
                                                : "zero",
                              INT32_MAX),
                   -1;
        shape[n++] = (int)(negative ? -value : value);
        if (!*p) return n;
        if (*p != ',')
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: unexpected '%c' at byte %d of \"%s\"", function, *p,
                              (int)(p - text), text),
                   -1;
    }
}

static inline mesh_status mesh__parse_as(mesh *m, const char *text, int world, const char *function, mesh_error *err) {
    char names[MESH_MAX_AXES][MESH_NAME_BYTES];
    const char *name[MESH_MAX_AXES];
    int shape[MESH_MAX_AXES], i;
    mesh_desc d = MESH_ZERO;
    d.naxes = mesh__parse_axes(text, names, shape, function, err);
    if (d.naxes < 0) return MESH_ERR_ARGUMENT;
    for (i = 0; i < d.naxes; i++) name[i] = names[i];
    d.shape = shape;
    d.names = name;
    d.world = world;
    return mesh__make_as(m, &d, function, err);
}

MESH_API mesh_status mesh_parse(mesh *m, const char *text, int world, mesh_error *err) {
    if (!m || world < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          !m ? "mesh_parse: the mesh is NULL" : "mesh_parse: a world of %d ranks", world);
    return mesh__parse_as(m, text, world, "mesh_parse", err);
}

enum { MESH__PP, MESH__DPR, MESH__DPS, MESH__CP, MESH__TP, MESH__EP, MESH__ETP, MESH__DEGREES };

static inline const char *mesh__degree_name(int k) {
    static const char *const names[] = {"pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp"};
    return names[k];
}

/* Which degrees make up a token of an order, as bits; 0: no such token. */
static inline unsigned mesh__token_degrees(const char *token) {
    enum {
        PP = 1 << MESH__PP,
        DPR = 1 << MESH__DPR,
        DPS = 1 << MESH__DPS,
        CP = 1 << MESH__CP,
        TP = 1 << MESH__TP,
        EP = 1 << MESH__EP,
        ETP = 1 << MESH__ETP
    };
    static const struct {
        const char *token;
        unsigned degrees;
    } tokens[] = {{"pp", PP},
                  {"dp_replicate", DPR},
                  {"dp_shard", DPS},
                  {"cp", CP},
                  {"tp", TP},
                  {"ep", EP},
                  {"etp", ETP},
                  {"dp", DPR | DPS},
                  {"batch", DPR | DPS},
                  {"fsdp", DPS | CP},
                  {"loss", DPR | DPS | CP},
                  {"efsdp", DPS | CP | TP}};
    size_t i;
    for (i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
        if (mesh__same(tokens[i].token, token)) return tokens[i].degrees;
    return 0;
}

enum { MESH__EXPERT_VIEW = 1, MESH__SQUEEZE = 2, MESH__HIERARCHY = 4 }; /* of a named order */

typedef struct mesh__order {
    const char *text;
    char token[MESH_MAX_AXES][MESH_NAME_BYTES]; /* slowest first */
    int n, efsdp;
    unsigned kind;    /* MESH__EXPERT_VIEW: ep and etp are another view of its axes, ... */
    unsigned covered; /* the degrees it accounts for, as bits */
    unsigned factors; /* those whose product is the world */
} mesh__order;

/* A list of tokens, "a,b" slowest first or "b-a" fastest first. */
static inline mesh_status mesh__order_split(mesh__order *o, const char *list, mesh_error *err) {
    const char *p = list;
    int dashes = 0, i;
    for (i = 0; list[i]; i++) dashes |= list[i] == '-';
    for (;; p++) {
        int length = mesh__name_length(p);
        if (!length || length >= MESH_NAME_BYTES || o->n == MESH_MAX_AXES ||
            (p[length] && p[length] != (dashes ? '-' : ',')))
            return mesh__fail(
                err, MESH_ERR_ARGUMENT, -1,
                "mesh_from_degrees: order \"%s\" is neither a known name nor a list such as \"pp,dp,tp\" (slowest first) or "
                "\"tp-dp-pp\" (fastest first)",
                o->text);
        mesh__name_set(o->token[o->n++], p, length, "", NULL);
        p += length;
        if (!*p) break;
    }
    for (i = 0; dashes && i < o->n / 2; i++) {
        char *a = o->token[i], *z = o->token[o->n - 1 - i];
        int k;
        for (k = 0; k < MESH_NAME_BYTES; k++) {
            char c = a[k];
            a[k] = z[k];
            z[k] = c;
        }
    }
    return MESH_OK;
}

static inline mesh_status mesh__order_read(mesh__order *o, const char *text, mesh_error *err) {
    static const struct {
        const char *name, *list;
        unsigned kind;
    } known[] = {{"kempner", "pp,dp_replicate,dp_shard,cp,ep,tp", MESH__SQUEEZE},
                 {"torchtitan", "pp,dp_replicate,dp_shard,cp,tp", MESH__EXPERT_VIEW},
                 {"torchtitan:dense", "pp,dp_replicate,fsdp,tp", MESH__EXPERT_VIEW},
                 {"torchtitan:dataloading", "pp,batch,cp,tp", MESH__EXPERT_VIEW},
                 {"torchtitan:sparse", "pp,dp_replicate,efsdp,ep,etp", 0},
                 {"ezpz", "dp,pp,cp,tp", 0},
                 {"auto", "dp,pp,tp", MESH__HIERARCHY}};
    const unsigned experts = 1u << MESH__EP | 1u << MESH__ETP;
    const char *list = text;
    unsigned twice = 0;
    mesh_status status;
    int i;
    o->text = text;
    o->n = o->efsdp = 0;
    o->kind = o->covered = 0;
    for (i = 0; i < (int)(sizeof known / sizeof known[0]); i++)
        if (mesh__same(known[i].name, text)) {
            list = known[i].list;
            o->kind = known[i].kind;
        }
    if ((status = mesh__order_split(o, list, err)) != MESH_OK) return status;
    for (i = 0; i < o->n; i++) {
        unsigned degrees = mesh__token_degrees(o->token[i]);
        if (!degrees)
            return mesh__fail(
                err, MESH_ERR_ARGUMENT, -1,
                "mesh_from_degrees: order \"%s\" names \"%s\"; known are pp dp dp_replicate dp_shard cp tp ep etp batch fsdp loss "
                "efsdp",
                text, o->token[i]);
        twice |= o->covered & degrees;
        o->covered |= degrees;
        o->efsdp |= mesh__same(o->token[i], "efsdp");
    }
    if (o->efsdp ? (o->covered & experts) != experts : o->covered >> MESH__ETP & 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_from_degrees: order \"%s\": efsdp goes with both ep and etp, and etp with efsdp", text);
    if (twice)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_from_degrees: order \"%s\" counts a degree twice; name each once", text);
    o->factors = o->efsdp ? o->covered & ~experts : o->covered;
    if (o->kind & MESH__EXPERT_VIEW) o->covered |= experts;
    return MESH_OK;
}

/* Infer the one degree that is -1 and check the product over `factors` (a set of degrees) against the world. */
static inline mesh_status mesh__degrees_fill(int *value, unsigned factors, int world, mesh_error *err) {
    int k, missing = -1;
    int64_t product = 1;
    for (k = 0; k < MESH__DEGREES; k++) {
        if (value[k] == 0) value[k] = 1;
        if (value[k] < -1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_from_degrees: %s is %d; a degree is at least 1, or -1 for what remains",
                              mesh__degree_name(k), value[k]);
        if (value[k] == -1) {
            if (missing >= 0)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                  "mesh_from_degrees: %s and %s are both -1; only one degree can be inferred",
                                  mesh__degree_name(missing), mesh__degree_name(k));
            if (!(factors >> k & 1))
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                  "mesh_from_degrees: %s cannot be -1 in this order: it is no factor of the world",
                                  mesh__degree_name(k));
            missing = k;
        } else if (factors >> k & 1) {
            product *= value[k];
            if (product > INT32_MAX)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_from_degrees: the degrees overflow at %s",
                                  mesh__degree_name(k));
        }
    }
    if (missing >= 0 && world % product == 0) {
        value[missing] = (int)(world / product);
    } else if (missing >= 0 || product != world) {
        char shown[160];
        mesh__text t = mesh__text_on(shown, sizeof shown);
        for (k = 0; k < MESH__DEGREES; k++)
            if (factors >> k & 1 && k != missing)
                mesh__put(&t, "%s%s(%d)", t.len ? " * " : "", mesh__degree_name(k), value[k]);
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_from_degrees: %s = %l %s the world's %d ranks%s%s", shown,
                          product, missing >= 0 ? "does not divide" : "is not", world,
                          missing >= 0 ? "; cannot infer " : "", missing >= 0 ? mesh__degree_name(missing) : "");
    }
    return MESH_OK;
}

/* Experts as a view of the dense axes: what they divide, and what they may be. */
static inline mesh_status mesh__experts_check(const int *value, mesh_error *err) {
    int64_t dense = (int64_t)value[MESH__DPS] * value[MESH__CP] * value[MESH__TP];
    if (value[MESH__ETP] != 1 && value[MESH__ETP] != value[MESH__TP])
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_from_degrees: etp is %d; it is 1 or tp (%d)",
                          value[MESH__ETP], value[MESH__TP]);
    if (dense % ((int64_t)value[MESH__EP] * value[MESH__ETP]))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "mesh_from_degrees: ep * etp = %d * %d does not divide dp_shard * cp * tp = %l; choose ep as a divisor of it",
            value[MESH__EP], value[MESH__ETP], dense);
    return MESH_OK;
}

/* tp stays within a node, and nodes are full. */
static inline mesh_status mesh__hierarchy_check(const int *value, int world, int per_node, mesh_error *err) {
    if (per_node <= 0) return MESH_OK;
    if (per_node % value[MESH__TP])
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_from_degrees: tp = %d does not fit within a node of %d devices; choose a divisor of it",
                          value[MESH__TP], per_node);
    if (world > per_node && world % per_node)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_from_degrees: a world of %d ranks does not fill nodes of %d devices", world, per_node);
    return MESH_OK;
}

/* Of several degrees to infer, data parallelism takes what remains, unless it was given, and the others are 1. */
static inline void mesh__hierarchy_defaults(int *value) {
    int k, missing = 0, rest = value[MESH__DPS] <= 0 && value[MESH__DPS] >= -1 ? MESH__DPS : -1;
    for (k = 0; k < MESH__DEGREES; k++) missing += value[k] == -1;
    for (k = 0; k < MESH__DEGREES && missing > 1; k++)
        if (value[k] == -1) value[k] = 1;
    if (missing > 1 && rest >= 0) value[rest] = -1;
}

MESH_API mesh_status mesh_from_degrees(mesh *m, const mesh_degrees *d, const char *order, mesh_error *err) {
    const char *names[MESH_MAX_AXES];
    int value[MESH__DEGREES], shape[MESH_MAX_AXES], i, k;
    mesh__order o;
    mesh r;
    mesh_desc desc = MESH_ZERO;
    mesh_status status;
    if (!m || !d || !order)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_from_degrees: %s is NULL",
                          !m   ? "the mesh"
                          : !d ? "the degrees"
                               : "the order");
    if (d->world < 1 || d->devices_per_node < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_from_degrees: a world of %d ranks, nodes of %d devices",
                          d->world, d->devices_per_node);
    if ((status = mesh__order_read(&o, order, err)) != MESH_OK) return status;
    value[MESH__PP] = d->pp;
    value[MESH__DPR] = d->dp_replicate;
    value[MESH__DPS] = d->dp_shard;
    value[MESH__CP] = d->cp;
    value[MESH__TP] = d->tp;
    value[MESH__EP] = d->ep;
    value[MESH__ETP] = d->etp;
    if (o.kind & MESH__HIERARCHY) mesh__hierarchy_defaults(value);
    if ((status = mesh__degrees_fill(value, o.factors, d->world, err)) != MESH_OK) return status;
    for (k = 0; k < MESH__DEGREES; k++)
        if (value[k] > 1 && !(o.covered >> k & 1))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_from_degrees: %s is %d, but the order \"%s\" leaves it out; name it or make it 1",
                              mesh__degree_name(k), value[k], order);
    if (o.efsdp || o.kind & MESH__EXPERT_VIEW)
        if ((status = mesh__experts_check(value, err)) != MESH_OK) return status;
    if (o.kind & MESH__HIERARCHY)
        if ((status = mesh__hierarchy_check(value, d->world, d->devices_per_node, err)) != MESH_OK) return status;
    for (i = 0; i < o.n; i++) {
        unsigned degrees = mesh__token_degrees(o.token[i]);
        names[i] = o.token[i];
        for (shape[i] = 1, k = 0; k < MESH__DEGREES; k++) shape[i] *= degrees >> k & 1 ? value[k] : 1;
        if (mesh__same(o.token[i], "efsdp")) shape[i] /= value[MESH__EP] * value[MESH__ETP];
    }
    desc.shape = shape;
    desc.names = names;
    desc.naxes = o.n;
    desc.world = d->world;
    if ((status = mesh_make(&r, &desc, err)) != MESH_OK) return status;
    if (o.kind & MESH__SQUEEZE) {
        mesh all = r;
        int keep = value[MESH__TP] > 1 || value[MESH__EP] > 1 || d->world == 1;
        mesh__start(&r, &all);
        for (i = 0; i < all.naxes; i++)
            if (all.axis[i].size > 1 || (keep && mesh__same(all.axis[i].name, "dp_shard")))
                mesh__axis_copy(&r, &all, i);
        mesh__finish(&r);
    }
    *m = r;
    return MESH_OK;
}

/* Factor n into k dims, none above `most`: the lexicographically smallest non-increasing list. `divisor` holds all of the size's
   divisors in ascending order. Returns 0 where there is none. */
static inline int mesh__factor(int n, int k, int most, const int *divisor, int ndivisors, int *out) {
    int i;
    if (k == 0) return n == 1;
    for (i = 0; i < ndivisors && divisor[i] <= most; i++) {
        int64_t reach = 1;
        int j;
        if (n % divisor[i]) continue;
        for (j = 0; j < k && reach < n; j++) reach *= divisor[i];
        if (reach < n) continue;
        out[0] = divisor[i];
        if (mesh__factor(n / divisor[i], k - 1, divisor[i], divisor, ndivisors, out + 1)) return 1;
    }
    return 0;
}

MESH_API mesh_status mesh_dims_create(int size, int ndims, int *dims, mesh_error *err) {
    int divisor[1600], large[800], free_dim[MESH_MAX_AXES],
        out[MESH_MAX_AXES]; /* no int has more than 1,536 divisors */
    int i, n = 0, nlarge = 0, nfree = 0, rest = size;
    if (size < 1 || ndims < 0 || ndims > MESH_MAX_AXES || (ndims > 0 && !dims))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_dims_create: size %d, %d dims%s; size is at least 1, dims 0 to %d", size, ndims,
                          ndims > 0 && !dims ? " (NULL)" : "", MESH_MAX_AXES);
    for (i = 0; i < ndims; i++) {
        if (dims[i] < 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_dims_create: dim %d is %d; a dim is 0 (free) or more",
                              i, dims[i]);
        if (dims[i] == 0) {
            free_dim[nfree++] = i;
        } else if (rest % dims[i]) {
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_dims_create: size %d does not divide by the fixed dims up to dim %d (%d)", size, i,
                              dims[i]);
        } else {
            rest /= dims[i];
        }
    }
    if (nfree == 0 && rest != 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_dims_create: the fixed dims multiply to %d, not to size %d; leave one 0", size / rest,
                          size);
    for (i = 1; (int64_t)i * i <= rest; i++) {
        if (rest % i) continue;
        divisor[n++] = i;
        if (rest / i != i) large[nlarge++] = rest / i;
    }
    while (nlarge) divisor[n++] = large[--nlarge];
    if (!mesh__factor(rest, nfree, rest, divisor, n, out))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_dims_create: no factorisation");
    for (i = 0; i < nfree; i++) dims[free_dim[i]] = out[i];
    return MESH_OK;
}

/* ---- // >>ask ------------------------------------------------------------------------------------------------------------ */

MESH_API int mesh_axis_find(const mesh *m, const char *name) {
    return name ? mesh__axis_of(m, name, mesh__length(name)) : -1;
}

MESH_API int mesh_rank_at(const mesh *m, int index) {
    int i, position = m->origin;
    if (index < 0 || index >= m->size) return -1;
    for (i = m->nmodes - 1; i >= 0; i--) {
        int outer = index / m->mode[i].shape;
        position += (index - outer * m->mode[i].shape) * m->mode[i].stride;
        index = outer;
    }
    return mesh__rank_of_position(m, position);
}

MESH_API int mesh_index_of(const mesh *m, int rank) {
    int coord[MESH_MAX_MODES], i, index = 0;
    if (!mesh__take_apart(m, rank, coord)) return -1;
    for (i = 0; i < m->nmodes; i++) index = index * m->mode[i].shape + coord[i];
    return index;
}

MESH_API int mesh_rank_at_coords(const mesh *m, const int *coords) {
    int i, position = m->origin;
    for (i = 0; i < m->naxes; i++) {
        if (coords[i] < 0 || coords[i] >= m->axis[i].size) return -1;
        position += mesh__axis_offset(m, i, coords[i]);
    }
    return mesh__rank_of_position(m, position);
}

MESH_API int mesh_coords_of(const mesh *m, int rank, int *coords) {
    int coord[MESH_MAX_MODES], i;
    if (!mesh__take_apart(m, rank, coord)) return 0;
    for (i = 0; i < m->naxes; i++) coords[i] = mesh__axis_coord(m, i, coord);
    return 1;
}

MESH_API int mesh_coord_of(const mesh *m, const char *axis, int rank) {
    int coord[MESH_MAX_MODES], k = mesh_axis_find(m, axis);
    return k >= 0 && mesh__take_apart(m, rank, coord) ? mesh__axis_coord(m, k, coord) : -1;
}

MESH_API int mesh_local_index(const mesh *m, const char *axes, int rank) {
    uint8_t list[MESH_MAX_AXES];
    int coord[MESH_MAX_MODES], i, index = 0, n = mesh__axes(m, axes, list, "", NULL);
    if (n < 0 || !mesh__take_apart(m, rank, coord)) return -1;
    for (i = 0; i < n; i++) index = index * m->axis[list[i]].size + mesh__axis_coord(m, list[i], coord);
    return index;
}

MESH_API int mesh_neighbor(const mesh *m, const char *axis, int rank, int displacement, int periodic) {
    int coords[MESH_MAX_AXES], size, k = mesh_axis_find(m, axis);
    int64_t to;
    if (k < 0 || !mesh_coords_of(m, rank, coords)) return -1;
    size = m->axis[k].size;
    to = (int64_t)coords[k] + displacement;
    if (periodic) to = (to % size + size) % size;
    if (to < 0 || to >= size) return -1;
    coords[k] = (int)to;
    return mesh_rank_at_coords(m, coords);
}

/* The sub-mesh of the listed axes with the others at coordinate 0. */
static inline void mesh__keep(mesh *r, const mesh *m, const uint8_t *list, int n) {
    int i;
    mesh__start(r, m);
    for (i = 0; i < n; i++) mesh__axis_copy(r, m, list[i]);
    mesh__finish(r);
}

/* The axes that are not listed, in the mesh's order. */
static inline int mesh__others(const mesh *m, const uint8_t *list, int n, uint8_t *others) {
    int i, k, count = 0;
    for (i = 0; i < m->naxes; i++) {
        for (k = 0; k < n && list[k] != i; k++) {}
        if (k == n) others[count++] = (uint8_t)i;
    }
    return count;
}

MESH_API mesh_status mesh_group_through(mesh *group, const mesh *m, const char *axes, int rank, mesh_error *err) {
    uint8_t list[MESH_MAX_AXES], others[MESH_MAX_AXES];
    int coord[MESH_MAX_MODES], i, n, count;
    mesh r;
    if ((n = mesh__axes(m, axes, list, "mesh_group_through", err)) < 0) return MESH_ERR_ARGUMENT;
    if (!mesh__take_apart(m, rank, coord))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                          "mesh_group_through: rank %d is not in the mesh \"%s\" (%d ranks)", rank, mesh__show(m).text,
                          m->size);
    mesh__keep(&r, m, list, n);
    count = mesh__others(m, list, n, others);
    for (i = 0; i < count; i++) r.origin += mesh__axis_offset(m, others[i], mesh__axis_coord(m, others[i], coord));
    *group = r;
    return MESH_OK;
}

MESH_API int mesh_group_count(const mesh *m, const char *axes) {
    uint8_t list[MESH_MAX_AXES];
    int i, size = 1, n = mesh__axes(m, axes, list, "", NULL);
    for (i = 0; i < n; i++) size *= m->axis[list[i]].size;
    return n < 0 ? -1 : m->size / size;
}

MESH_API int mesh_group_of(const mesh *m, const char *axes, int rank) {
    uint8_t list[MESH_MAX_AXES], others[MESH_MAX_AXES];
    int coord[MESH_MAX_MODES], i, count, k = 0, n = mesh__axes(m, axes, list, "", NULL);
    if (n < 0 || !mesh__take_apart(m, rank, coord)) return -1;
    count = mesh__others(m, list, n, others);
    for (i = 0; i < count; i++) k = k * m->axis[others[i]].size + mesh__axis_coord(m, others[i], coord);
    return k;
}

MESH_API mesh_status mesh_group_at(mesh *group, const mesh *m, const char *axes, int k, mesh_error *err) {
    uint8_t list[MESH_MAX_AXES], others[MESH_MAX_AXES];
    int i, n, rest = k, count = mesh_group_count(m, axes);
    mesh r;
    if ((n = mesh__axes(m, axes, list, "mesh_group_at", err)) < 0) return MESH_ERR_ARGUMENT;
    if (k < 0 || k >= count)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_group_at: group %d along \"%s\"; there are %d, from 0", k,
                          axes ? axes : "(all axes)", count);
    mesh__keep(&r, m, list, n);
    for (i = mesh__others(m, list, n, others) - 1; i >= 0; i--) {
        r.origin += mesh__axis_offset(m, others[i], rest % m->axis[others[i]].size);
        rest /= m->axis[others[i]].size;
    }
    *group = r;
    return MESH_OK;
}

static inline int mesh__same_table(const mesh *a, const mesh *b) {
    return a->table_hash == b->table_hash && a->table_size == b->table_size && !a->table == !b->table;
}

MESH_API int mesh_equal(const mesh *a, const mesh *b) {
    int i;
    if (a->size != b->size || a->origin != b->origin || a->naxes != b->naxes || a->nmodes != b->nmodes ||
        !mesh__same_table(a, b))
        return 0;
    for (i = 0; i < a->naxes; i++)
        if (a->axis[i].size != b->axis[i].size || a->axis[i].modes != b->axis[i].modes ||
            !mesh__same(a->axis[i].name, b->axis[i].name))
            return 0;
    for (i = 0; i < a->nmodes; i++)
        if (a->mode[i].shape != b->mode[i].shape || a->mode[i].stride != b->mode[i].stride) return 0;
    return 1;
}

MESH_API uint64_t mesh_fingerprint(const mesh *m) {
    int i, k;
    uint64_t h = mesh__mix(mesh__mix((uint64_t)m->naxes, (uint64_t)m->origin), m->table ? m->table_hash : 0);
    for (i = 0; i < m->naxes; i++) {
        const mesh_axis *a = &m->axis[i];
        for (k = 0; a->name[k]; k++) h = mesh__mix(h, (unsigned char)a->name[k]);
        h = mesh__mix(h, (uint64_t)a->size << 8 | a->modes);
        for (k = a->first; k < a->first + a->modes; k++)
            h = mesh__mix(h, (uint64_t)m->mode[k].shape << 32 | (uint32_t)m->mode[k].stride);
    }
    return h;
}

/* ---- // >>transform -------------------------------------------------------------------------------------------------------- */

static inline int mesh__find_or_fail(const mesh *m, const char *axis, const char *function, mesh_error *err) {
    int k = mesh_axis_find(m, axis);
    if (k < 0)
        mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: no axis \"%s\" in the mesh \"%s\"", function,
                   axis ? axis : "(null)", mesh__show(m).text);
    return k;
}

MESH_API mesh_status mesh_fix(mesh *result, const mesh *m, const char *axis, int index, mesh_error *err) {
    uint8_t list[MESH_MAX_AXES], fixed;
    int n, offset, k = mesh__find_or_fail(m, axis, "mesh_fix", err);
    mesh r;
    if (k < 0) return MESH_ERR_ARGUMENT;
    if (index < 0 || index >= m->axis[k].size)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_fix: index %d along \"%s\"; it has %d, from 0", index, axis,
                          m->axis[k].size);
    fixed = (uint8_t)k;
    n = mesh__others(m, &fixed, 1, list);
    offset = mesh__axis_offset(m, k, index);
    mesh__keep(&r, m, list, n);
    r.origin += offset;
    *result = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_transpose(mesh *result, const mesh *m, const char *axes, mesh_error *err) {
    uint8_t list[MESH_MAX_AXES];
    mesh r;
    int n = axes ? mesh__axes(m, axes, list, "mesh_transpose", err) : 0;
    if (n < 0) return MESH_ERR_ARGUMENT;
    if (n != m->naxes)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_transpose: \"%s\" names %d of the %d axes of \"%s\"; name every axis once",
                          axes ? axes : "(null)", n, m->naxes, mesh__show(m).text);
    mesh__keep(&r, m, list, n);
    *result = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_flatten(mesh *result, const mesh *m, const char *axes, const char *name, mesh_error *err) {
    uint8_t list[MESH_MAX_AXES], others[MESH_MAX_AXES];
    char joined[MESH_MAX_AXES * MESH_NAME_BYTES], checked[MESH_NAME_BYTES];
    int i, k, n = mesh__axes(m, axes, list, "mesh_flatten", err), count;
    mesh__text t = mesh__text_on(joined, sizeof joined);
    mesh r;
    mesh_status status;
    if (n < 0) return MESH_ERR_ARGUMENT;
    if (n == 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_flatten: no axes named; name those to flatten as \"dp,cp\"");
    count = mesh__others(m, list, n, others);
    for (i = 0; !name && i < n; i++) mesh__put(&t, "%s%s", i ? "_" : "", m->axis[list[i]].name);
    if (!name) name = joined;
    if ((status = mesh__name_set(checked, name, mesh__length(name), "mesh_flatten", err)) != MESH_OK) return status;
    for (i = 0; i < count; i++)
        if (mesh__same(m->axis[others[i]].name, checked))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_flatten: the mesh \"%s\" has an axis \"%s\" already",
                              mesh__show(m).text, checked);
    mesh__start(&r, m);
    for (i = 0; i < m->naxes; i++) {
        for (k = 0; k < n && list[k] != i; k++) {}
        if (k == n) mesh__axis_copy(&r, m, i);
        if (k != 0) continue;
        mesh__axis_add(&r, checked);
        for (k = 0; k < n; k++) mesh__modes_copy(&r, m, list[k]);
    }
    mesh__finish(&r);
    *result = r;
    return MESH_OK;
}

/* One mode {shape, stride} over indices of `outer` (n modes, outermost first, coalesced) as modes over positions, appended to the
   last axis of r. used[k] collects how much of outer mode k's extent is in use. Returns 0 where it is no layout. CuTe: composition. */
static inline int mesh__compose_mode(mesh *r, const mesh_mode *outer, int n, int shape, int stride, int *used) {
    mesh_mode taken[MESH_MAX_MODES];
    int k, count = 0;
    for (k = n - 1; k >= 0 && shape > 1; k--) {
        int extent = outer[k].shape, take, step = stride;
        if (used[k] + (int64_t)(shape - 1) * stride < extent) { /* it stays within this mode */
            taken[count].shape = shape;
            taken[count++].stride = outer[k].stride * stride;
            used[k] += (shape - 1) * stride;
            shape = 1;
            break;
        }
        if (stride > 1 && stride % extent == 0) {
            stride /= extent;
            continue;
        }
        if (extent % stride) return 0;
        extent /= stride;
        stride = 1;
        take = shape < extent ? shape : extent;
        if (shape % take) return 0;
        taken[count].shape = take;
        taken[count++].stride = outer[k].stride * step;
        used[k] += (take - 1) * step;
        if (used[k] >= outer[k].shape) return 0; /* it would not begin alike each time round */
        shape /= take;
    }
    if (shape > 1) return 0;
    while (count--) mesh__mode_add(r, taken[count].shape, taken[count].stride);
    return 1;
}

/* Modes first..last coalesced as one list. */
static inline int mesh__coalesce(const mesh_mode *mode, int count, mesh_mode *out) {
    int i, n = 0;
    for (i = 0; i < count; i++) {
        if (n && out[n - 1].stride == (int64_t)mode[i].shape * mode[i].stride) {
            out[n - 1].shape *= mode[i].shape;
            out[n - 1].stride = mode[i].stride;
        } else {
            out[n++] = mode[i];
        }
    }
    return n;
}

/* Append inner's axes, whose modes index `outer`, to r. Returns 0 where an axis is no layout, and names it. */
static inline int mesh__compose_axes(mesh *r, const mesh_mode *outer, int n, const mesh *inner, int *used,
                                     const char **at) {
    int i, k;
    for (i = 0; i < inner->naxes; i++) {
        const mesh_axis *a = &inner->axis[i];
        *at = a->name;
        mesh__axis_add(r, a->name);
        for (k = a->first; k < a->first + a->modes; k++)
            if (!mesh__compose_mode(r, outer, n, inner->mode[k].shape, inner->mode[k].stride, used)) return 0;
    }
    return 1;
}

/* The position of an index into `outer` (n modes, outermost first). */
static inline int64_t mesh__outer_position(const mesh_mode *outer, int n, int64_t index) {
    int64_t position = 0;
    int k;
    for (k = n - 1; k >= 0; k--) {
        position += index % outer[k].shape * outer[k].stride;
        index /= outer[k].shape;
    }
    return position;
}

/* The modes of inner's axis i as its positions show them, from the innermost out: as far as steps are equal, again and again. Looks at one
   axis only. Returns 0 where its positions are no layout. */
static inline int mesh__axis_seen(mesh *r, const mesh_mode *outer, int n, const mesh *inner, int i) {
    mesh_mode seen[MESH_MAX_MODES];
    int size = inner->axis[i].size, done, count = 0, run, take;
    int64_t zero = mesh__outer_position(outer, n, inner->origin), step;
    for (done = 1; done < size; done *= take) {
        step = mesh__outer_position(outer, n, inner->origin + mesh__axis_offset(inner, i, done)) - zero;
        for (run = 2; run < size / done &&
                      mesh__outer_position(outer, n, inner->origin + mesh__axis_offset(inner, i, run * done)) - zero ==
                          run * step;
             run++) {}
        for (take = run; size / done % take; take--) {}
        if (step < 1 || take < 2 || count == MESH_MAX_MODES) return 0;
        seen[count].shape = take;
        seen[count++].stride = (int)step;
    }
    if (r->nmodes + count > MESH_MAX_MODES) return 0;
    while (count--) mesh__mode_add(r, seen[count].shape, seen[count].stride);
    return 1;
}

enum { MESH__SEEN_RANKS = 1 << 18 };

/* What the composition of single modes did not find: the axes from their positions, which are all compared. O(ranks), up to 2^18 of them,
   where there would be an error otherwise. r: the result as it was before any of inner's axes. */
static inline int mesh__compose_seen(mesh *r, const mesh_mode *outer, int n, const mesh *inner, const char **at) {
    mesh found;
    int i, k;
    if (inner->size > MESH__SEEN_RANKS) return 0;
    mesh__start(&found, NULL);
    for (i = 0; i < inner->naxes; i++) {
        *at = inner->axis[i].name;
        mesh__axis_add(&found, *at);
        if (!mesh__axis_seen(&found, outer, n, inner, i)) return 0;
    }
    if (mesh__finish(&found)) return 0;
    found.origin = (int)mesh__outer_position(outer, n, inner->origin);
    for (i = 0; i < inner->size; i++)
        if (mesh_rank_at(&found, i) != mesh__outer_position(outer, n, mesh_rank_at(inner, i))) return 0;
    for (i = 0; i < found.naxes; i++) {
        mesh__axis_add(r, found.axis[i].name);
        for (k = found.axis[i].first; k < found.axis[i].first + found.axis[i].modes; k++)
            mesh__mode_add(r, found.mode[k].shape, found.mode[k].stride);
    }
    return 1;
}

static inline mesh_status mesh__no_layout(mesh_error *err, const char *function, const char *axis) {
    return mesh__fail(
        err, MESH_ERR_ARGUMENT, -1,
        "%s: axis \"%s\" would cross parts whose strides do not fit together, which no layout can say; give the ranks as a device "
        "table (mesh_desc.table) instead",
        function, axis);
}

static inline mesh_status mesh__compose_as(mesh *result, const mesh *outer, const mesh *inner, const char *function,
                                           mesh_error *err) {
    mesh_mode modes[MESH_MAX_MODES];
    int used[MESH_MAX_MODES] = {0}, k, n, rest;
    int64_t last = (int64_t)inner->origin + mesh__span(inner) - 1;
    const char *at = "";
    mesh r, before;
    if (inner->table)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the inner mesh stands on a device table", function);
    if (last >= outer->size)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: the inner mesh reaches index %l of an outer mesh of %d ranks", function, last,
                          outer->size);
    n = mesh__coalesce(outer->mode, outer->nmodes, modes);
    mesh__start(&r, outer);
    for (rest = inner->origin, k = n - 1; k >= 0; k--) {
        used[k] = rest % modes[k].shape;
        r.origin += used[k] * modes[k].stride;
        rest /= modes[k].shape;
    }
    before = r;
    if (!mesh__compose_axes(&r, modes, n, inner, used, &at) || mesh__finish(&r)) {
        r = before;
        if (!mesh__compose_seen(&r, modes, n, inner, &at)) return mesh__no_layout(err, function, at);
        mesh__finish(&r);
    }
    *result = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_split(mesh *result, const mesh *m, const char *axis, const char *text, mesh_error *err) {
    int i, k = mesh__find_or_fail(m, axis, "mesh_split", err), used[MESH_MAX_MODES] = {0};
    const char *at = "";
    mesh r, parts;
    mesh_status status;
    if (k < 0) return MESH_ERR_ARGUMENT;
    if ((status = mesh__parse_as(&parts, text, m->axis[k].size, "mesh_split", err)) != MESH_OK) return status;
    if (m->naxes - 1 + parts.naxes > MESH_MAX_AXES)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_split: the result would have more than %d axes",
                          MESH_MAX_AXES);
    for (i = 0; i < parts.naxes; i++) {
        int taken = mesh_axis_find(m, parts.axis[i].name);
        if (taken >= 0 && taken != k)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_split: the mesh \"%s\" has an axis \"%s\" already; choose another name",
                              mesh__show(m).text, parts.axis[i].name);
    }
    mesh__start(&r, m);
    for (i = 0; i < m->naxes; i++) {
        const mesh_mode *modes = m->mode + m->axis[k].first;
        mesh before = r;
        if (i != k) {
            mesh__axis_copy(&r, m, i);
        } else if (!mesh__compose_axes(&r, modes, m->axis[k].modes, &parts, used, &at)) {
            r = before;
            if (!mesh__compose_seen(&r, modes, m->axis[k].modes, &parts, &at))
                return mesh__no_layout(err, "mesh_split", at);
        }
    }
    mesh__finish(&r);
    *result = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_reshape(mesh *result, const mesh *m, const char *text, mesh_error *err) {
    mesh shape;
    mesh_status status = mesh__parse_as(&shape, text, m->size, "mesh_reshape", err);
    return status == MESH_OK ? mesh__compose_as(result, m, &shape, "mesh_reshape", err) : status;
}

MESH_API mesh_status mesh_rename(mesh *result, const mesh *m, const char *axis, const char *name, mesh_error *err) {
    char checked[MESH_NAME_BYTES];
    int i, taken, k = mesh__find_or_fail(m, axis, "mesh_rename", err);
    mesh_status status;
    mesh r;
    if (k < 0) return MESH_ERR_ARGUMENT;
    if (!name) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_rename: the new name is NULL");
    if ((status = mesh__name_set(checked, name, mesh__length(name), "mesh_rename", err)) != MESH_OK) return status;
    taken = mesh_axis_find(m, checked);
    if (taken >= 0 && taken != k)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_rename: the mesh \"%s\" has an axis \"%s\" already",
                          mesh__show(m).text, checked);
    r = *m;
    for (i = 0; i < MESH_NAME_BYTES; i++) r.axis[k].name[i] = checked[i];
    *result = r;
    return MESH_OK;
}

MESH_API void mesh_squeeze(mesh *result, const mesh *m) {
    uint8_t list[MESH_MAX_AXES];
    int i, n = 0;
    mesh r;
    for (i = 0; i < m->naxes; i++)
        if (m->axis[i].size > 1) list[n++] = (uint8_t)i;
    mesh__keep(&r, m, list, n);
    *result = r;
}

MESH_API mesh_status mesh_concat(mesh *result, const mesh *a, const mesh *b, int rank, mesh_error *err) {
    int coord[MESH_MAX_MODES], i;
    int64_t origin, last;
    mesh r;
    for (i = 0; i < b->naxes; i++)
        if (mesh_axis_find(a, b->axis[i].name) >= 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_concat: both meshes have an axis \"%s\"; rename one",
                              b->axis[i].name);
    if (a->naxes + b->naxes > MESH_MAX_AXES)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_concat: the result would have more than %d axes",
                          MESH_MAX_AXES);
    if (!mesh__same_table(a, b))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_concat: the meshes stand on different device tables; slice both from one mesh");
    if (!mesh__take_apart(b, rank, coord) || !mesh__take_apart(a, rank, coord))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                          "mesh_concat: rank %d is not in both \"%s\" and \"%s\"; slice both through one rank", rank,
                          mesh__show(a).text, mesh__show(b).text);
    if ((int64_t)a->size * b->size > INT32_MAX)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_concat: over %d ranks (overflow)", INT32_MAX);
    origin = (int64_t)a->origin + b->origin - (a->table ? a->inverse[rank] : rank);
    mesh__start(&r, a);
    r.origin = (int)origin;
    for (i = 0; i < a->naxes; i++) mesh__axis_copy(&r, a, i);
    for (i = 0; i < b->naxes; i++) mesh__axis_copy(&r, b, i);
    if (mesh__finish(&r))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, rank,
            "mesh_concat: the strides of \"%s\" and \"%s\" do not nest (the meshes overlap, or no layout can say it); give the ranks "
            "as a device table (mesh_desc.table)",
            mesh__show(a).text, mesh__show(b).text);
    last = origin + mesh__span(&r) - 1;
    if (origin < 0 || last > INT32_MAX || (r.table && last >= r.table_size))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, rank,
            "mesh_concat: \"%s\" and \"%s\" through rank %d would reach positions %l to %l, beyond what there is",
            mesh__show(a).text, mesh__show(b).text, rank, origin, last);
    *result = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_compose(mesh *result, const mesh *outer, const mesh *inner, mesh_error *err) {
    return mesh__compose_as(result, outer, inner, "mesh_compose", err);
}

/* ---- // >>show -------------------------------------------------------------------------------------------------------------- */

static inline void mesh__put_sizes(mesh__text *t, const mesh *m) {
    int i;
    for (i = 0; i < m->naxes; i++) mesh__put(t, "%s%s=%d", i ? "," : "", m->axis[i].name, m->axis[i].size);
}

MESH_API size_t mesh_format(const mesh *m, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    mesh__put_sizes(&t, m);
    return t.len;
}

MESH_API size_t mesh_format_rank(const mesh *m, int rank, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int coords[MESH_MAX_AXES], i, last = m->size - 1;
    mesh__put(&t, "[%w/%d]: ", mesh__digits(last), rank, last);
    if (!mesh_coords_of(m, rank, coords)) {
        mesh__put(&t, "not in the mesh");
        return t.len;
    }
    for (i = m->naxes - 1; i >= 0; i--)
        if (m->axis[i].size > 1) mesh__put(&t, "[%s:%d/%d]", m->axis[i].name, coords[i], m->axis[i].size - 1);
    return t.len;
}

static inline void mesh__spaces(mesh__text *t, int n) {
    while (n-- > 0) mesh__put_char(t, ' ');
}

enum { MESH__DRAW_COLUMNS = 16, MESH__DRAW_ROWS = 32, MESH__DRAW_GROUPS = 8 };

/* Digits of the largest rank that is drawn. */
static inline int mesh__widest_rank(const mesh *m, int rows, int columns, int shown) {
    int row, c, widest = mesh__digits(shown - 1);
    for (row = 0; row < rows && row < MESH__DRAW_ROWS; row++)
        for (c = 0; c < shown; c++) {
            int digits = mesh__digits(mesh_rank_at(m, row * columns + c));
            if (digits > widest) widest = digits;
        }
    return widest;
}

static inline void mesh__draw_groups(mesh__text *t, const mesh *m, int axis, int name_width) {
    int g, i, count = mesh_group_count(m, m->axis[axis].name);
    mesh__put(t, "  %s", m->axis[axis].name);
    mesh__spaces(t, name_width - mesh__length(m->axis[axis].name));
    for (g = 0; g < count && g < MESH__DRAW_GROUPS; g++) {
        mesh group;
        mesh_group_at(&group, m, m->axis[axis].name, g, NULL);
        mesh__put(t, " {");
        for (i = 0; i < group.size && i < MESH__DRAW_COLUMNS; i++)
            mesh__put(t, "%s%d", i ? "," : "", mesh_rank_at(&group, i));
        mesh__put(t, group.size > MESH__DRAW_COLUMNS ? ",..}" : "}");
    }
    if (count > MESH__DRAW_GROUPS) mesh__put(t, " .. (%d groups)", count);
    mesh__put_char(t, '\n');
}

MESH_API size_t mesh_draw(const mesh *m, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int outer = m->naxes ? m->naxes - 1 : 0;
    int columns = m->naxes ? m->axis[outer].size : 1, rows = m->size / columns,
        shown = columns < MESH__DRAW_COLUMNS ? columns : MESH__DRAW_COLUMNS;
    int row, i, c, label = 0, name_width = 0, before[MESH_MAX_AXES], width = mesh__widest_rank(m, rows, columns, shown);
    mesh__put_sizes(&t, m);
    mesh__put(&t, "  %d rank%s\n\n", m->size, m->size == 1 ? "" : "s");
    for (i = 0; i < m->naxes; i++) {
        int length = mesh__length(m->axis[i].name);
        if (i < outer) label += length + 3 + mesh__digits(m->axis[i].size - 1);
        if (length > name_width) name_width = length;
        before[i] = -1;
    }
    if (m->naxes) {
        int head = mesh__length(m->axis[outer].name);
        if (label < head) label = head;
        mesh__spaces(&t, label - head);
        mesh__put(&t, "%s", m->axis[outer].name);
        for (c = 0; c < shown; c++) mesh__put(&t, " %w", width, c);
        mesh__put(&t, columns > shown ? " ..\n" : "\n");
    }
    for (row = 0; row < rows; row++) {
        int coords[MESH_MAX_AXES], rest = row, used = 0;
        if (row == MESH__DRAW_ROWS && rows > MESH__DRAW_ROWS) {
            mesh__put(&t, ".. %d rows in all\n", rows);
            break;
        }
        for (i = outer - 1; i >= 0; i--) {
            coords[i] = rest % m->axis[i].size;
            rest /= m->axis[i].size;
        }
        for (i = 0; i < outer; i++) {
            int length = mesh__length(m->axis[i].name) + 1 + mesh__digits(m->axis[i].size - 1);
            if (coords[i] != before[i]) {
                mesh__put(&t, "%s %w", m->axis[i].name, mesh__digits(m->axis[i].size - 1), coords[i]);
                for (c = i + 1; c < outer; c++) before[c] = -1;
            } else {
                mesh__spaces(&t, length);
            }
            mesh__spaces(&t, 2);
            before[i] = coords[i];
            used += length + 2;
        }
        mesh__spaces(&t, label - used);
        for (c = 0; c < shown; c++) mesh__put(&t, " %w", width, mesh_rank_at(m, row * columns + c));
        mesh__put(&t, columns > shown ? " ..\n" : "\n");
    }
    if (m->naxes) mesh__put(&t, "\ngroups\n");
    for (i = 0; i < m->naxes; i++) mesh__draw_groups(&t, m, i, name_width);
    return t.len;
}

enum { MESH__PICTURE_RANKS = 4096 };

static inline const char *mesh__color(int axis) {
    static const char *const colors[] = {"#4477aa", "#ee6677", "#228833", "#ccbb44",
                                         "#66ccee", "#aa3377", "#777777", "#dd8833"};
    return colors[axis % 8];
}

MESH_API size_t mesh_dot(const mesh *m, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int i, axis, shown = m->size < MESH__PICTURE_RANKS ? m->size : MESH__PICTURE_RANKS;
    mesh__put(&t, "graph mesh {\n  label=\"");
    mesh__put_sizes(&t, m);
    mesh__put(&t, "\";\n  node [shape=box, style=rounded, fontname=\"Helvetica\"];\n");
    for (i = 0; i < shown; i++) {
        int coords[MESH_MAX_AXES], rank = mesh_rank_at(m, i);
        mesh_coords_of(m, rank, coords);
        mesh__put(&t, "  r%d [label=\"%d\\n", rank, rank);
        for (axis = 0; axis < m->naxes; axis++) mesh__put(&t, "%s%d", axis ? "," : "", coords[axis]);
        mesh__put(&t, "\"];\n");
    }
    for (axis = 0; axis < m->naxes; axis++)
        for (i = 0; i < shown; i++) {
            int rank = mesh_rank_at(m, i), next = mesh_neighbor(m, m->axis[axis].name, rank, 1, 0);
            if (next >= 0 && mesh_index_of(m, next) < shown)
                mesh__put(&t, "  r%d -- r%d [color=\"%s\", label=\"%s\"];\n", rank, next, mesh__color(axis),
                          m->axis[axis].name);
        }
    mesh__put(&t, "}\n");
    return t.len;
}

/* Nested boxes: axes 0 .. naxes-3 alternate across and down, innermost as a grid of the last two axes. */
typedef struct mesh__frame {
    int width[MESH_MAX_AXES + 1], height[MESH_MAX_AXES + 1]; /* of the box that holds axes k.. */
    int coords[MESH_MAX_AXES];
} mesh__frame;

enum { MESH__CELL_W = 44, MESH__CELL_H = 30, MESH__PAD = 8, MESH__TITLE = 18 };

static inline int mesh__frame_across(const mesh *m, int axis) { return (m->naxes - axis) % 2 == 1; }

static inline void mesh__svg_axis(mesh__text *t, const mesh *m, mesh__frame *f, int axis, int x, int y) {
    int i, grid = axis >= m->naxes - 2;
    if (axis == m->naxes) {
        int rank = mesh_rank_at_coords(m, f->coords);
        const char *fill = mesh__color(m->naxes ? f->coords[0] : 0);
        mesh__put(
            t,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"%s\" fill-opacity=\"0.25\" stroke=\"%s\"/>\n",
            x + 2, y + 2, MESH__CELL_W - 4, MESH__CELL_H - 4, fill, fill);
        mesh__put(t, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", x + MESH__CELL_W / 2,
                  y + MESH__CELL_H / 2 + 4, rank);
        return;
    }
    for (i = 0; i < m->axis[axis].size; i++) {
        int w = f->width[axis + 1] + (grid ? 0 : 2 * MESH__PAD),
            h = f->height[axis + 1] + (grid ? 0 : MESH__PAD + MESH__TITLE);
        int left = x + (mesh__frame_across(m, axis) ? i * w : 0), top = y + (mesh__frame_across(m, axis) ? 0 : i * h);
        f->coords[axis] = i;
        if (!grid) {
            mesh__put(
                t,
                "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n",
                left + 3, top + 3, w - 6, h - 6, mesh__color(axis));
            mesh__put(t, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%s %d</text>\n", left + MESH__PAD + 2, top + 16,
                      mesh__color(axis), m->axis[axis].name, i);
            left += MESH__PAD;
            top += MESH__TITLE;
        }
        mesh__svg_axis(t, m, f, axis + 1, left, top);
    }
}

MESH_API size_t mesh_svg(const mesh *m, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    mesh__frame f;
    int k, rows = m->naxes >= 2 ? m->naxes - 2 : -1, columns = m->naxes - 1, margin = 60;
    f.width[m->naxes] = MESH__CELL_W;
    f.height[m->naxes] = MESH__CELL_H;
    for (k = m->naxes - 1; k >= 0 && m->size <= MESH__PICTURE_RANKS; k--) {
        int grid = k >= m->naxes - 2, n = m->axis[k].size;
        int w = f.width[k + 1] + (grid ? 0 : 2 * MESH__PAD), h = f.height[k + 1] + (grid ? 0 : MESH__PAD + MESH__TITLE);
        f.width[k] = mesh__frame_across(m, k) ? n * w : w;
        f.height[k] = mesh__frame_across(m, k) ? h : n * h;
    }
    if (m->size > MESH__PICTURE_RANKS) f.width[0] = 400, f.height[0] = 20;
    mesh__put(
        &t,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"Helvetica,Arial,sans-serif\" font-size=\"12\">\n",
        f.width[0] + 2 * margin, f.height[0] + margin + 20);
    mesh__put(&t,
              "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"18\" font-weight=\"bold\">",
              margin);
    mesh__put_sizes(&t, m);
    mesh__put(&t, "</text>\n");
    if (m->size > MESH__PICTURE_RANKS) {
        mesh__put(&t, "<text x=\"%d\" y=\"50\">%d ranks are too many for a picture (at most %d)</text>\n</svg>\n",
                  margin, m->size, MESH__PICTURE_RANKS);
        return t.len;
    }
    if (columns >= 0)
        mesh__put(&t, "<text x=\"%d\" y=\"%d\" fill=\"#555\">%s across</text>\n", margin, 36, m->axis[columns].name);
    if (rows >= 0)
        mesh__put(&t,
                  "<text x=\"8\" y=\"%d\" fill=\"#555\">%s</text>\n<text x=\"8\" y=\"%d\" fill=\"#555\">down</text>\n",
                  margin, m->axis[rows].name, margin + 14);
    mesh__svg_axis(&t, m, &f, 0, margin, margin - 16);
    mesh__put(&t, "</svg>\n");
    return t.len;
}

#ifdef __cplusplus
}
#endif
#endif /* MESH_IMPLEMENTATION */

#include "mesh_spec.h"
#include "mesh_plan.h"
