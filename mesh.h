/* mesh.h - named N-dimensional meshes of ranks, as values. Version 0.1.0. MIT licence (see LICENSE). */
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
    table   the rank at each position, for arrangements that no strides can say. Checked once; meshes share it.
    axis    a name and a size over zero or more modes. One mode is {shape, stride}; an axis made by flattening two that
            do not coalesce holds several, outermost first. Modes of size 1 are dropped, so 30 always suffice.
    index   a mesh is also a list: index i is the i-th rank in row-major order of its axes (last axis fastest).
    group   the ranks that differ only along some axes. Axes are named in one text, "dp,cp"; a group of several axes
            numbers its ranks row-major in the order WRITTEN. NULL means every axis, "" means none (a group of one).
            Every such list, of axes, groups or an order, is read alike: "dp, cp" is "dp,cp", and so is "cp-dp": dashes
            go from the fastest axis to the slowest, as Megatron writes them. (Specs name axes with commas alone.)

CONVENTIONS
    Ranks are int, from 0. The first axis named is the slowest unless mesh_desc.first_fastest says otherwise.
    Every query and every transform costs O(axes), however many ranks the mesh holds; only mesh_table_make, mesh_ranks
    and the functions that draw are O(ranks).
    Arguments come in one order: the mesh, axes, a rank or an index, what is written to. A question about a rank answers
    a number from 0 on, or -1 where the rank is not a member (then nothing is written): that is an answer, not an error.

ERRORS
    Fallible functions return mesh_status (0 is ok) and fill a mesh_error if one is given (NULL: status only). The text
    names the function, the value and the remedy. On error the result is untouched. Those that return no
    status take meshes that were made: never NULL.

OPTIONS
    MESH_STATIC     every function static, for a library that keeps mesh.h to itself
    MESH_ASSERT(x)  our own invariants; default: assert where <assert.h> was included, else nothing
    MESH_NO_SIMD    reductions by plain loops only: the same results
    MESH_POSIX_ONLY  the socket transport without what Linux has beyond POSIX.1-2008: Unix sockets and TCP, no shared memory, no mesh_fd, no progress
                    thread (asking for one is an error). Ranks with and without it make one world
    No macro changes the layout of a struct.

BEHIND IT
    mesh/base.h     status and errors, element types: what every room speaks       (included first)
    mesh/transform.h  slices, transposed, flattened, split, joined, composed meshes (these at the end)
    mesh/degrees.h  a mesh from degrees of parallelism
    mesh/show.h     pictures of meshes
    mesh/layout.h   how tensors lie on meshes: layouts, boxes, tensors; by way of mesh/spec.h
    mesh/explain.h  plans that move them from one layout to another, as tables; by way of mesh/plan.h, cost.h, split.h, route.h, topology.h
*/
#if !defined(MESH_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_IMPLEMENTED))
#include "mesh/base.h"
#endif

#ifndef MESH_H
#define MESH_H

#ifdef __cplusplus
extern "C" {
#endif

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
    mesh_axis axis[MESH_MAX_AXES];
    mesh_mode mode[MESH_MAX_MODES];
    uint8_t order[MESH_MAX_MODES + 2]; /* the modes by stride, largest first: how a rank is taken apart */
    const struct mesh_table *table;    /* the caller's; NULL: position p is rank p */
} mesh;

/* ---- build ------------------------------------------------------------------------------------------------------- */

/* Which rank stands at each position: any arrangement at all, for any number of meshes. */
typedef struct mesh_table {
    const int *rank, *position; /* of each position; of each rank, -1: of none. The caller's memory */
    int size, ranks;            /* entries of both */
    uint64_t hash;
} mesh_table;

/* Check a list of ranks, each once, and write its inverse. Both arrays and the table are read by every query of every mesh on it: keep
   them alive. inverse_size: more than the largest rank listed. ARGUMENT: a rank twice or outside; the table is untouched then, the
   inverse is not. O(size). */
MESH_API mesh_status mesh_table_make(mesh_table *t, const int *ranks, int size, int *inverse, int inverse_size,
                                     mesh_error *err);

typedef struct mesh_desc {
    const int *shape;         /* sizes of the axes; one may be -1: what remains of `world` */
    const char *const *names; /* NULL: dim0, dim1, ... */
    int naxes;
    int world; /* the product the sizes must have; 0: any (and no -1) */
    /* Without strides. 0: the last axis varies fastest (row-major, as in C). 1: the first (as in Megatron's orders) */
    int first_fastest;
    const int *strides; /* NULL: dense. They must nest: each at least the span of all the smaller ones */
    int origin;         /* position of index 0 */
    /* NULL: ranks are positions. Else it must reach the last position, and stay alive as long as the mesh and what is made of it */
    const mesh_table *table;
} mesh_desc;

/* Make a mesh from a description. ARGUMENT: a size below 1, two -1, a product that is not `world`, a name that is bad or
   given twice, overflow, strides that do not nest, a table that was not made or is too short. O(axes). */
MESH_API mesh_status mesh_make(mesh *m, const mesh_desc *desc, mesh_error *err);

/* Make a dense mesh from text: [axis {"," axis}], axis = name "=" size, e.g. "pp=2, dp=-1, tp=4"; "": a mesh of one rank without axes.
   The inverse of mesh_format for dense meshes.
   `world`: the product the sizes must have, from which one -1 is inferred; 0: any. ARGUMENT as mesh_make. */
MESH_API mesh_status mesh_parse(mesh *m, const char *text, int world, mesh_error *err);

/* ---- ask --------------------------------------------------------------------------------------------------------- */

/* Number of the axis called `name`, or -1. */
MESH_API int mesh_axis_find(const mesh *m, const char *name);
/* The rank at an index (row-major, last axis fastest), or -1 outside [0, size). */
MESH_API int mesh_rank_at(const mesh *m, int index);
/* The index of a rank: the inverse of mesh_rank_at. -1: not a member. */
MESH_API int mesh_index_of(const mesh *m, int rank);
/* The rank at coordinates, one per axis; -1 if one is outside its axis. */
MESH_API int mesh_rank_at_coords(const mesh *m, const int *coords);
/* Write a rank's coordinates along axes, in the order written (NULL: one per axis of the mesh). Returns how many; -1: bad axes or not a member. */
MESH_API int mesh_coords_of(const mesh *m, const char *axes, int rank, int *coords);
/* A rank's coordinate along one axis; -1: no such axis or not a member. */
MESH_API int mesh_coord_of(const mesh *m, const char *axis, int rank);
/* The ranks of a mesh, or a group, in its order: the first `cap` are written. Returns how many there are: its size. */
MESH_API int mesh_ranks(const mesh *m, int *ranks, int cap);
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

/* ---- as text: returns the length of the whole text; at most cap - 1 bytes and a terminator are written ---- */

/* "pp=2,dp=2,tp=2": what mesh_parse reads. Names and sizes only: how a slice or a transposed mesh lies is not in it. */
MESH_API size_t mesh_format(const mesh *m, char *buf, size_t cap);

#ifdef __cplusplus
}
#endif
#endif /* MESH_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_IMPLEMENTED)
#define MESH_IMPLEMENTED

/* A mesh as text inside an error message. */
typedef struct mesh__shown {
    char text[120];
} mesh__shown;

MESH__RARE mesh__shown mesh__show(const mesh *m) {
    mesh__shown s;
    if (mesh_format(m, s.text, sizeof s.text) >= sizeof s.text) s.text[sizeof s.text - 2] = '~';
    return s;
}

/* ---- // >>names and lists ---------------------------------------------------------------------------------------------- */

MESH__RARE int mesh__is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
MESH__PRIVATE int mesh__is_digit(char c) { return c >= '0' && c <= '9'; }

/* Length of the name at the start of the text; 0: none. */
MESH__PRIVATE int mesh__name_length(const char *text) {
    int n = 0;
    if (!mesh__is_letter(text[0])) return 0;
    while (mesh__is_letter(text[n]) || mesh__is_digit(text[n]) || text[n] == '_') n++;
    return n;
}

MESH__RARE mesh_status mesh__name_set(char *to, const char *name, int n, const char *function, mesh_error *err) {
    int i, named = mesh__name_length(name);
    if (named < n || n == 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %q is no axis name: a letter, then letters, digits or _",
                          function, name);
    if (n >= MESH_NAME_BYTES)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: an axis name is too long: at most %d bytes: \"%s\"",
                          function, MESH_NAME_BYTES - 1, name);
    for (i = 0; i < MESH_NAME_BYTES; i++) to[i] = i < n ? name[i] : '\0';
    return MESH_OK;
}

MESH__RARE const char *mesh__past_spaces(const char *p) {
    while (*p == ' ') p++;
    return p;
}

MESH__RARE int mesh__length(const char *s) {
    int n = 0;
    while (s[n]) n++;
    return n;
}

/* The axis whose name is the n bytes at `name`, or -1. */
MESH__PRIVATE int mesh__axis_of(const mesh *m, const char *name, int n) {
    int i, k;
    for (i = 0; i < m->naxes; i++) {
        for (k = 0; k < n && m->axis[i].name[k] == name[k]; k++) {}
        if (k == n && !m->axis[i].name[n]) return i;
    }
    return -1;
}

/* A list of names, read word by word: "a, b" outermost first, or "b-a" fastest first, as Megatron writes them. */
typedef struct mesh__list {
    const char *p; /* NULL: at its end */
    char parted;   /* by commas or dashes */
} mesh__list;

MESH__RARE mesh__list mesh__list_of(const char *text) {
    mesh__list l;
    int i;
    l.p = text;
    l.parted = ',';
    for (i = 0; text[i] && text[i] != ','; i++) {}
    if (!text[i])
        while (i-- > 0)
            if (text[i] == '-') l.parted = '-';
    if (!*mesh__past_spaces(text)) l.p = NULL;
    return l;
}

/* The length of the next word, without the spaces around it; -1: there is none. */
MESH__RARE int mesh__list_next(mesh__list *l, const char **word) {
    const char *p = l->p ? mesh__past_spaces(l->p) : NULL;
    int n = 0;
    if (!p) return -1;
    while (p[n] && p[n] != l->parted) n++;
    *word = p;
    l->p = p[n] ? p + n + 1 : NULL;
    while (n > 0 && p[n - 1] == ' ') n--;
    return n;
}

/* A mesh that was made has a rank at least. */
MESH__PRIVATE mesh_status mesh__mesh_check(const mesh *m, const char *function, mesh_error *err) {
    if (m && m->size > 0) return MESH_OK;
    return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the mesh is %s", function,
                      m ? "all zero; make it with mesh_parse or mesh_make" : "NULL");
}

/* Read a list of axes (NULL: all) into numbers, outermost first. Returns how many, or -1 with the error filled. */
MESH__PRIVATE int mesh__axes(const mesh *m, const char *axes, uint8_t *list, const char *function, mesh_error *err) {
    int i, n = 0, length;
    const char *word;
    mesh__list words;
    if (mesh__mesh_check(m, function, err) != MESH_OK) return -1;
    if (!axes) {
        for (; n < m->naxes && n < MESH_MAX_AXES; n++) list[n] = (uint8_t)n;
        return n;
    }
    words = mesh__list_of(axes);
    while ((length = mesh__list_next(&words, &word)) >= 0) {
        int axis = length > 0 && length < MESH_NAME_BYTES ? mesh__axis_of(m, word, length) : -1;
        if (axis < 0) {
            char unknown[24];
            mesh__text t = mesh__text_on(unknown, sizeof unknown);
            for (i = 0; i < length; i++) mesh__put_char(&t, word[i]);
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: no axis \"%s\" in the mesh \"%s\"; name its axes as \"a,b\"", function, unknown,
                              mesh__show(m).text),
                   -1;
        }
        for (i = 0; i < n; i++)
            if (list[i] == axis)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: axis %q occurs twice in %q; name it once", function,
                                  m->axis[axis].name, axes),
                       -1;
        list[n++] = (uint8_t)axis;
    }
    for (i = 0; i < n / 2 && words.parted == '-'; i++) {
        uint8_t outer = list[i];
        list[i] = list[n - 1 - i];
        list[n - 1 - i] = outer;
    }
    return n;
}

/* ---- // >>layout: axes over modes ---------------------------------------------------------------------------------------- */

MESH__PRIVATE void mesh__start(mesh *r, const mesh *like) {
    size_t i;
    unsigned char *bytes = (unsigned char *)r;
    for (i = 0; i < sizeof *r; i++) bytes[i] = 0;
    r->size = 1;
    if (!like) return;
    r->origin = like->origin;
    r->table = like->table;
}

/* Open a new axis; the modes that follow belong to it. The name is valid and new. */
MESH__PRIVATE void mesh__axis_add(mesh *r, const char *name) {
    int i;
    mesh_axis *a = &r->axis[r->naxes++];
    for (i = 0; name[i]; i++) a->name[i] = name[i];
    a->size = 1;
    a->first = (uint8_t)r->nmodes;
}

/* Append a mode, inside the last one, to the last axis; coalesced where the two are one run. */
MESH__PRIVATE void mesh__mode_add(mesh *r, int shape, int stride) {
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
MESH__PRIVATE void mesh__modes_copy(mesh *r, const mesh *m, int axis) {
    int i;
    for (i = m->axis[axis].first; i < m->axis[axis].first + m->axis[axis].modes; i++)
        mesh__mode_add(r, m->mode[i].shape, m->mode[i].stride);
}

MESH__PRIVATE void mesh__axis_copy(mesh *r, const mesh *m, int axis) {
    mesh__axis_add(r, m->axis[axis].name);
    mesh__modes_copy(r, m, axis);
}

/* Sort the modes by stride and check that they nest. Returns 0, or 1 where two ranks could share a position. */
MESH__PRIVATE int mesh__finish(mesh *r) {
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

MESH__PRIVATE int64_t mesh__span(const mesh *m) {
    int i;
    int64_t span = 1;
    for (i = 0; i < m->nmodes; i++) span += (int64_t)(m->mode[i].shape - 1) * m->mode[i].stride;
    return span;
}

MESH__PRIVATE int mesh__rank_of_position(const mesh *m, int position) {
    return m->table ? m->table->rank[position] : position;
}

/* The mode coordinates of a rank, or 0 if it is not a member. */
MESH__PRIVATE int mesh__take_apart(const mesh *m, int rank, int *coord) {
    int i, rest;
    if (rank < 0) return 0;
    if (m->table) {
        if (rank >= m->table->ranks) return 0;
        rank = m->table->position[rank];
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

MESH__PRIVATE int mesh__axis_coord(const mesh *m, int axis, const int *coord) {
    int i, c = 0;
    const mesh_axis *a = &m->axis[axis];
    for (i = a->first; i < a->first + a->modes; i++) c = c * m->mode[i].shape + coord[i];
    return c;
}

/* How far an index along one axis lies from its start. */
MESH__PRIVATE int mesh__axis_offset(const mesh *m, int axis, int index) {
    int i, offset = 0;
    const mesh_axis *a = &m->axis[axis];
    for (i = a->first + a->modes - 1; i >= a->first; i--) {
        offset += index % m->mode[i].shape * m->mode[i].stride;
        index /= m->mode[i].shape;
    }
    return offset;
}

/* ---- // >>build ---------------------------------------------------------------------------------------------------------- */

MESH__PRIVATE uint64_t mesh__mix(uint64_t h, uint64_t x) {
    h ^= x + UINT64_C(0x9e3779b97f4a7c15) + (h << 6) + (h >> 2);
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return h ^ (h >> 29);
}

MESH__RARE uint64_t mesh__hash_text(uint64_t h, const char *s) {
    for (; s && *s; s++) h = mesh__mix(h, (unsigned char)*s);
    return mesh__mix(h, 0x100);
}

MESH_API mesh_status mesh_table_make(mesh_table *t, const int *ranks, int size, int *inverse, int inverse_size,
                                     mesh_error *err) {
    mesh_table made;
    int i;
    if (!t || !ranks || !inverse)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_table_make: %s is NULL",
                          !t       ? "the table"
                          : !ranks ? "the list of ranks"
                                   : "the memory for the inverse");
    if (size < 1 || inverse_size < 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_table_make: %d entries with an inverse of %d; at least one each, and the inverse has "
                          "one more than the largest rank",
                          size, inverse_size);
    made.rank = ranks;
    made.position = inverse;
    made.size = size;
    made.ranks = inverse_size;
    made.hash = mesh__mix(0, (uint64_t)size);
    for (i = 0; i < inverse_size; i++) inverse[i] = -1;
    for (i = 0; i < size; i++) {
        int rank = ranks[i];
        if (rank < 0 || rank >= inverse_size)
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "mesh_table_make: rank %d at position %d is outside 0..%d, where its inverse ends", rank,
                              i, inverse_size - 1);
        if (inverse[rank] >= 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "mesh_table_make: rank %d is listed twice, at positions %d and %d; list each rank once",
                              rank, inverse[rank], i);
        inverse[rank] = i;
        made.hash = mesh__mix(made.hash, (uint64_t)rank);
    }
    *t = made;
    return MESH_OK;
}

/* An axis as messages name it. */
typedef struct mesh__label {
    char text[MESH_NAME_BYTES + 8];
} mesh__label;

MESH__RARE mesh__label mesh__label_of(const mesh_desc *d, int axis) {
    mesh__label l;
    mesh__text t = mesh__text_on(l.text, sizeof l.text);
    if (d->names && d->names[axis])
        mesh__put(&t, "\"%s\"", d->names[axis]);
    else
        mesh__put(&t, "%d", axis);
    return l;
}

/* Sizes with -1 inferred and checked against the world. */
MESH__RARE mesh_status mesh__sizes(const mesh_desc *d, int *shape, const char *function, mesh_error *err) {
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
            return mesh__fail(
                err, MESH_ERR_ARGUMENT, -1,
                "%s: axis %s is -1, but a world of %d does not divide by the other sizes' product %l; start a "
                "multiple of that many ranks, or choose sizes that divide %d",
                function, mesh__label_of(d, missing).text, d->world, product, d->world);
        shape[missing] = (int)(d->world / product);
    } else if (d->world > 0 && product != d->world) {
        if (d->world == 1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: the sizes multiply to %l, but the world has 1 rank; start %l with a launcher "
                              "(mesh run -n %l, mpirun -n %l)",
                              function, product, product, product, product);
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "%s: the sizes multiply to %l%s, but the world has %d ranks; write -1 for one size to take what remains",
            function, product, d->naxes ? "" : " (no axes are given)", d->world);
    }
    return MESH_OK;
}

/* Add axis i of a description. */
MESH__RARE mesh_status mesh__axis_from(mesh *r, const mesh_desc *d, int i, int size, int stride, const char *function,
                                       mesh_error *err) {
    char name[MESH_NAME_BYTES];
    mesh_status status;
    if (!d->names) {
        mesh__text t = mesh__text_on(name, sizeof name);
        mesh__put(&t, "dim%d", i);
    } else if (!d->names[i]) {
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the name of axis %d is NULL", function, i);
    } else if ((status = mesh__name_set(name, d->names[i], mesh__length(d->names[i]), function, err)) != MESH_OK) {
        return status;
    }
    if (mesh_axis_find(r, name) >= 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: two axes are called \"%s\"; give each its own name",
                          function, name);
    if (size > 1 && stride < 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: axis \"%s\" has stride %d; a stride is at least 1", function,
                          name, stride);
    mesh__axis_add(r, name);
    mesh__mode_add(r, size, stride);
    return MESH_OK;
}

MESH__RARE mesh_status mesh__make_as(mesh *m, const mesh_desc *d, const char *function, mesh_error *err) {
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
    if ((status = mesh__sizes(d, shape, function, err)) != MESH_OK) return status;

    mesh__start(&r, NULL);
    r.origin = d->origin;
    for (i = 0; i < d->naxes; i++) {
        k = d->first_fastest ? i : d->naxes - 1 - i;
        stride[k] = d->strides ? d->strides[k] : dense;
        dense = dense * shape[k];
    }
    for (i = 0; i < d->naxes; i++)
        if ((status = mesh__axis_from(&r, d, i, shape[i], stride[i], function, err)) != MESH_OK) return status;
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
    if (d->table && !d->table->rank)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the device table was not made; mesh_table_make it first",
                          function);
    if (d->table && d->origin + span > d->table->size)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: the mesh reaches position %l, but the device table has %d entries", function,
                          (int64_t)d->origin + span - 1, d->table->size);
    r.table = d->table;
    *m = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_make(mesh *m, const mesh_desc *d, mesh_error *err) {
    return mesh__make_as(m, d, "mesh_make", err);
}

/* Axes of a text into names and sizes. Returns their number, or -1 with the error filled. */
MESH__RARE int mesh__parse_axes(const char *text, char names[][MESH_NAME_BYTES], int *shape, const char *function,
                                mesh_error *err) {
    int n = 0;
    const char *p = text;
    if (!text)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the text is NULL; write axes as \"dp=2,tp=4\"", function),
               -1;
    p = mesh__past_spaces(p);
    if (!*p) return 0;
    for (;; p = mesh__past_spaces(p + 1)) {
        int length = mesh__name_length(p), at = (int)(p - text), negative;
        int64_t value = 0;
        if (n == MESH_MAX_AXES)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %q has more than %d axes", function, text,
                              MESH_MAX_AXES),
                   -1;
        if (!length || p[length] != '=')
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: expected name=size at byte %d of %q", function, at,
                              text),
                   -1;
        if (length >= MESH_NAME_BYTES)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: the axis name at byte %d of %q is too long: at most %d bytes", function, at, text,
                              MESH_NAME_BYTES - 1),
                   -1;
        mesh__name_set(names[n], p, length, function, NULL);
        p += length + 1;
        negative = *p == '-';
        p += negative;
        at = (int)(p - text);
        if (!mesh__is_digit(*p))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: expected a size at byte %d of %q", function, at, text),
                   -1;
        for (; mesh__is_digit(*p); p++)
            if ((value = value * 10 + (*p - '0')) > INT32_MAX) value = (int64_t)INT32_MAX + 1;
        if (value > INT32_MAX || (negative && value != 1) || value == 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: the size of %q in %q is %s; a size is 1 to %d, or -1 for what remains", function,
                              names[n], text,
                              value > INT32_MAX ? "too large (overflow)"
                              : value           ? "negative"
                                                : "zero",
                              INT32_MAX),
                   -1;
        shape[n++] = (int)(negative ? -value : value);
        p = mesh__past_spaces(p);
        if (!*p) return n;
        if (*p != ',')
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: unexpected '%c' at byte %d of %q", function, *p,
                              (int)(p - text), text),
                   -1;
    }
}

MESH__RARE mesh_status mesh__parse_as(mesh *m, const char *text, int world, const char *function, mesh_error *err) {
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

MESH_API int mesh_coords_of(const mesh *m, const char *axes, int rank, int *coords) {
    uint8_t list[MESH_MAX_AXES];
    int coord[MESH_MAX_MODES], i, n = mesh__axes(m, axes, list, "", NULL);
    if (n < 0 || !mesh__take_apart(m, rank, coord)) return -1;
    for (i = 0; i < n; i++) coords[i] = mesh__axis_coord(m, list[i], coord);
    return n;
}

MESH_API int mesh_coord_of(const mesh *m, const char *axis, int rank) {
    int coord[MESH_MAX_MODES], k = mesh_axis_find(m, axis);
    return k >= 0 && mesh__take_apart(m, rank, coord) ? mesh__axis_coord(m, k, coord) : -1;
}

MESH_API int mesh_ranks(const mesh *m, int *ranks, int cap) {
    int i;
    for (i = 0; i < m->size && i < cap; i++) ranks[i] = mesh_rank_at(m, i);
    return m->size;
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
    if (k < 0 || mesh_coords_of(m, NULL, rank, coords) < 0) return -1;
    size = m->axis[k].size;
    to = (int64_t)coords[k] + displacement;
    if (periodic) to = (to % size + size) % size;
    if (to < 0 || to >= size) return -1;
    coords[k] = (int)to;
    return mesh_rank_at_coords(m, coords);
}

/* The sub-mesh of the listed axes with the others at coordinate 0. */
MESH__PRIVATE void mesh__keep(mesh *r, const mesh *m, const uint8_t *list, int n) {
    int i;
    mesh__start(r, m);
    for (i = 0; i < n; i++) mesh__axis_copy(r, m, list[i]);
    mesh__finish(r);
}

/* The axes that are not listed, in the mesh's order. */
MESH__PRIVATE int mesh__others(const mesh *m, const uint8_t *list, int n, uint8_t *others) {
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

MESH__RARE int mesh__same_table(const mesh *a, const mesh *b) {
    if (a->table == b->table) return 1;
    return a->table && b->table && a->table->hash == b->table->hash && a->table->size == b->table->size;
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
    uint64_t h = mesh__mix(mesh__mix((uint64_t)m->naxes, (uint64_t)m->origin), m->table ? m->table->hash : 0);
    for (i = 0; i < m->naxes; i++) {
        const mesh_axis *a = &m->axis[i];
        for (k = 0; a->name[k]; k++) h = mesh__mix(h, (unsigned char)a->name[k]);
        h = mesh__mix(h, (uint64_t)a->size << 8 | a->modes);
        for (k = a->first; k < a->first + a->modes; k++)
            h = mesh__mix(h, (uint64_t)m->mode[k].shape << 32 | (uint32_t)m->mode[k].stride);
    }
    return h;
}

/* ---- // >>text ---- */

MESH__RARE void mesh__put_sizes(mesh__text *t, const mesh *m) {
    int i;
    for (i = 0; i < m->naxes; i++) mesh__put(t, "%s%s=%d", i ? "," : "", m->axis[i].name, m->axis[i].size);
}

MESH_API size_t mesh_format(const mesh *m, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    mesh__put_sizes(&t, m);
    return t.len;
}
#endif /* MESH_IMPLEMENTED */

/* ONE_ROOM: tests/rooms.py compiles each with what it includes and no more */
#if !defined(MESH__ONE_ROOM) && !defined(MESH__BEHIND) && \
    (!defined(MESH_EXPLAIN_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_EXPLAIN_IMPLEMENTED)))
#define MESH__BEHIND
#include "mesh/transform.h"
#include "mesh/degrees.h"
#include "mesh/views.h"
#include "mesh/show.h"
#include "mesh/layout.h"
#include "mesh/local.h"
#include "mesh/explain.h"
#include "mesh/retired.h"
#undef MESH__BEHIND
#endif
