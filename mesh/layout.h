/* mesh/layout.h - layouts: a spec, its mesh and a tensor's shape; boxes, slices, tensors. Part of mesh.h 0.1.0. MIT licence.

   Includes spec.h. Knows no plan, no transport, and no memory but what it is given.

DO THIS
    Nothing: mesh.h includes it.

EXAMPLE
    int64_t shape[2] = {4096, 1024};
    mesh_layout rows;
    mesh_box box;
    mesh_layout_parse(&rows, &m, "dp:S(0) tp:S(-1)", 2, shape, &err);     rows over dp, columns over tp
    mesh_layout_box(&rows, rank, &box);                                   this rank's part: box.offset, box.shape

CONCEPTS
    layout  a mesh, a spec on it and the whole tensor's shape: how a tensor lies. What nearly every function takes.
    box     offset and shape within the whole tensor. Each rank's part of a tensor is one box.
    tensor  a layout, a dtype and this rank's data.

CONVENTIONS
    An empty shard has shape 0 and its offset is the dim's size. Tensors have 0 to 8 dims, row-major.
    Layouts are values; the mesh they are on stays the caller's, alive and where it is.
*/
#if !defined(MESH_LAYOUT_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_LAYOUT_IMPLEMENTED))
#include "spec.h"
#endif

#ifndef MESH_LAYOUT_H
#define MESH_LAYOUT_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- layouts ------------------------------------------------------------------------------------------------------ */

typedef struct mesh_layout {
    const mesh *on;
    mesh_spec spec;
    int ndim;
    int64_t shape[MESH_MAX_DIMS]; /* of the whole tensor */
} mesh_layout;

/* A layout from a spec as text, as mesh_spec_parse reads it, or per dim where it begins with "[". ARGUMENT: what mesh_spec_parse refuses, a
   negative size, a shape whose elements overflow 63 bits, with strict a dim that its shards do not divide. */
MESH_API mesh_status mesh_layout_parse(mesh_layout *l, const mesh *on, const char *spec, int ndim, const int64_t *shape,
                                       mesh_error *err);
/* The same from a spec; NULL: all replicated. */
MESH_API mesh_status mesh_layout_make(mesh_layout *l, const mesh *on, const mesh_spec *spec, int ndim,
                                      const int64_t *shape, mesh_error *err);
/* Give one axis another place. mesh_shard(dim) cuts what the axes that shard the dim already have left: it is innermost; mesh_shard_at(dim, k)
   comes to be number k of them, and the others keep their order. ARGUMENT as mesh_layout_parse, and an unknown axis. */
MESH_API mesh_status mesh_layout_set(mesh_layout *l, const char *axis, mesh_place place, mesh_error *err);
/* What the above refuse, of a layout that was made by hand. All below, and plans, expect it to hold. */
MESH_API mesh_status mesh_layout_check(const mesh_layout *l, mesh_error *err);
/* 1 if they are one by another name: the same ranks, each with the same box, and the same ranks' summands are added by the same op (of no elements: some op
   alike, or none). (So nothing has to move; two meshes may be two factorings of one set of ranks.) O(axes) where mesh and spec are the same, else
   O(ranks * axes). */
MESH_API int mesh_layout_equal(const mesh_layout *a, const mesh_layout *b);

/* ---- boxes ------------------------------------------------------------------------------------------------------- */

typedef struct mesh_box {
    int ndim, zero;
    int64_t offset[MESH_MAX_DIMS], shape[MESH_MAX_DIMS];
} mesh_box;

/* A rank's part of the tensor; box.shape is its local shape. Returns its elements; -1: the rank is not in the mesh. */
MESH_API int64_t mesh_layout_box(const mesh_layout *l, int rank, mesh_box *box);
/* Elements in a box. */
MESH_API int64_t mesh_box_count(const mesh_box *box);
/* What two boxes share. Returns 1, or 0 (result empty) if they share nothing. */
MESH_API int mesh_box_intersect(mesh_box *result, const mesh_box *a, const mesh_box *b);
/* How many ranks hold each element (replicas and partial summands). */
MESH_API int mesh_layout_holders(const mesh_layout *l);
/* The k-th rank, in the mesh's order, that holds the element at an index (one per dim); -1: index or k outside. */
MESH_API int mesh_layout_owner(const mesh_layout *l, const int64_t *index, int k);
/* What the v-forms take to gather a rank's group along axes, or to scatter to it: per member how many elements it holds, and where they begin in what
   the group holds together (a dense array, the box that the rank would have if these axes sharded nothing). offsets may be NULL.
   ARGUMENT: bad axes or rank; they are not, in this order, the innermost that shard one dim; parts that are not one piece of the whole
   each, as a dim before the sharded one is longer than 1 (mesh_redistribute moves those). */
MESH_API mesh_status mesh_layout_counts(const mesh_layout *l, const char *axes, int rank, size_t *counts,
                                        size_t *offsets, mesh_error *err);

/* The shards of a layout that meet a box, in row-major order of their place: for (mesh_pieces_start(...);
   mesh_pieces_next(&p);) use p.piece, what the shard shares with the box, and p.rank, the first of mesh_layout_holders ranks that
   hold it. Costs O(axes) per piece. The layout must stay alive. */
typedef enum mesh_pieces_state { MESH_PIECES_OVER = 0, MESH_PIECES_STARTED, MESH_PIECES_UNDER_WAY } mesh_pieces_state;
typedef struct mesh_pieces {
    mesh_box piece;
    int rank;
    const mesh_layout *layout;
    mesh_box box;
    int64_t low[MESH_MAX_DIMS], high[MESH_MAX_DIMS];                  /* of the shard */
    int coord[MESH_MAX_AXES];                                         /* of the shard; 0 on axes that shard nothing */
    int state;                                                        /* mesh_pieces_state */
    uint8_t count[MESH_MAX_DIMS], axis[MESH_MAX_DIMS][MESH_MAX_AXES]; /* the axes that shard a dim, outermost first */
} mesh_pieces;
MESH_API void mesh_pieces_start(mesh_pieces *p, const mesh_layout *l, const mesh_box *box);
MESH_API int mesh_pieces_next(mesh_pieces *p);

/* ---- slices -------------------------------------------------------------------------------------------------------- */

/* Copy what two boxes share between two row-major arrays that lie at these boxes, elements of any size. */
MESH_API void mesh_box_copy(void *dst, const mesh_box *dst_box, const void *src, const mesh_box *src_box,
                            size_t elem_bytes);
/* Cut a rank's part out of the whole array, or put it back. Returns its elements; -1: the rank is not in the mesh. */
MESH_API int64_t mesh_layout_slice(const mesh_layout *l, int rank, void *local, const void *global, size_t elem_bytes);
MESH_API int64_t mesh_layout_paste(const mesh_layout *l, int rank, void *global, const void *local, size_t elem_bytes);

/* ---- tensors ------------------------------------------------------------------------------------------------------- */

typedef struct mesh_tensor {
    mesh_layout layout;
    mesh_dtype dtype;
    int add;    /* as a destination: 1 adds to what is there, 0 writes it. The same on every rank */
    void *data; /* this rank's part; NULL on a rank outside the mesh */
    /* Of the part, in elements, per dim, in any order; NULL: dense, row-major. On every rank or on none. */
    const int64_t *strides;
    const int64_t *local_shape; /* what the caller thinks its part is, for a check; NULL: none */
    int64_t elem_bytes;         /* with MESH_BYTES: bytes of an element; 0: the dtype's */
} mesh_tensor;

/* Where tensors stand in lists that differ between ranks: checkpoints, checks. */
typedef struct mesh_named {
    const char *name;
    mesh_tensor tensor;
} mesh_named;

/* A tensor without data yet: mesh_tensor_make(&t, &m, "tp:S(1)", MESH_F32, 2, shape, &err). ARGUMENT as mesh_layout_parse, and a dtype that is none. */
MESH_API mesh_status mesh_tensor_make(mesh_tensor *t, const mesh *on, const char *spec, mesh_dtype dtype, int ndim,
                                      const int64_t *shape, mesh_error *err);
/* A rank's part: its box, its elements. -1: the rank is not in the mesh. */
MESH_API int64_t mesh_tensor_box(const mesh_tensor *t, int rank, mesh_box *box);
MESH_API int64_t mesh_tensor_count(const mesh_tensor *t, int rank);
/* The same data with its dims in another order, dim k of the view being dim dims[k] of t: so a redistribution to or from it transposes on its way.
   `strides`: memory for one number per dim, that stays alive as long as the view's use. ARGUMENT: dims are not each dim once. */
MESH_API mesh_status mesh_tensor_permute(mesh_tensor *view, const mesh_tensor *t, const int *dims, int rank,
                                         int64_t *strides, mesh_error *err);
/* Lay a rank's parts of a list of tensors into one buffer, one after the other, dense, each beginning at a multiple of `align` bytes (a power of
   two; 0: 64) from its start: their data is set (NULL where the rank holds none). buffer NULL: nothing is set. Returns the bytes that it
   takes; -1: more than there can be, elements that the dtype has not, or an align that is no power of two. */
MESH_API int64_t mesh_tensors_lay(mesh_tensor *list, int n, int rank, void *buffer, size_t align);

#ifdef __cplusplus
}
#endif
#endif /* MESH_LAYOUT_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_LAYOUT_IMPLEMENTED)
#define MESH_LAYOUT_IMPLEMENTED

/* ---- // >>layouts ---- */

MESH__PRIVATE mesh_status mesh__layout_check(const mesh_layout *l, const char *function, mesh_error *err) {
    const mesh_spec *s = &l->spec;
    const mesh *m = l->on;
    const int64_t *shape = l->shape;
    mesh_spec copy = *s;
    mesh_status status;
    int ndim = l->ndim;
    int64_t total = 1;
    int d, i, empty = 0;
    if (!m) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: layout.on, its mesh, is NULL", function);
    if ((status = mesh__mesh_check(m, function, err)) != MESH_OK) return status;
    if ((status = mesh__spec_finish(&copy, m, ndim, function, err)) != MESH_OK) return status;
    if (!mesh_spec_equal(&copy, s))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: the spec was not made for tensors of %d dims; make it with mesh_spec_make or "
                          "mesh_spec_parse",
                          function, ndim);
    for (d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: dim %d has size %l; sizes are 0 or more", function, d,
                              shape[d]);
        empty |= shape[d] == 0;
    }
    for (d = 0; d < ndim; d++) {
        uint8_t list[MESH_MAX_AXES];
        int n = mesh__dim_axes(s, d, list);
        int64_t shards = 1, padded;
        if (!empty && total > INT64_MAX / shape[d])
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the shape's elements overflow at dim %d (%l)", function,
                              d, shape[d]);
        if (!empty) total *= shape[d];
        for (i = 0; i < n; i++) shards *= m->axis[list[i]].size;
        padded = shape[d] / shards < INT64_MAX / shards ? (shape[d] / shards + 1) * shards : shape[d];
        if (s->strict && shape[d] % shards)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: dim %d has %l elements, which its %l shards do not divide; pad it to %l, or "
                              "allow uneven shards (strict = 0)",
                              function, d, shape[d], shards, padded);
    }
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__layout_finish(mesh_layout *l, const mesh *on, const mesh_spec *spec, int ndim,
                                              const int64_t *shape, const char *function, mesh_error *err) {
    mesh_layout r;
    mesh_status status;
    int d;
    r.on = on;
    r.spec = *spec;
    r.ndim = ndim;
    for (d = 0; d < MESH_MAX_DIMS; d++) r.shape[d] = d < ndim ? shape[d] : 0;
    if ((status = mesh__layout_check(&r, function, err)) == MESH_OK) *l = r;
    return status;
}

MESH__RARE mesh_status mesh__layout_parse_as(mesh_layout *l, const mesh *on, const char *text, int ndim,
                                             const int64_t *shape, const char *function, mesh_error *err) {
    mesh_spec spec;
    mesh_status status;
    if (!on || !text || (ndim > 0 && !shape))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %s is NULL", function,
                          !on     ? "the mesh"
                          : !text ? "the text of the spec"
                                  : "the shape");
    status = *mesh__past_spaces(text) == '[' ? mesh__spec_parse_dims_as(&spec, on, text, ndim, function, err)
                                             : mesh__spec_parse_as(&spec, on, text, ndim, function, err);
    return status == MESH_OK ? mesh__layout_finish(l, on, &spec, ndim, shape, function, err) : status;
}

MESH_API mesh_status mesh_layout_parse(mesh_layout *l, const mesh *on, const char *spec, int ndim, const int64_t *shape,
                                       mesh_error *err) {
    return mesh__layout_parse_as(l, on, spec, ndim, shape, "mesh_layout_parse", err);
}

MESH_API mesh_status mesh_layout_make(mesh_layout *l, const mesh *on, const mesh_spec *spec, int ndim,
                                      const int64_t *shape, mesh_error *err) {
    mesh_spec replicated;
    if (!on || (ndim > 0 && !shape))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_layout_make: %s is NULL", on ? "the shape" : "the mesh");
    mesh__spec_clear(&replicated, on->naxes);
    return mesh__layout_finish(l, on, spec ? spec : &replicated, ndim, shape, "mesh_layout_make", err);
}

MESH_API mesh_status mesh_layout_check(const mesh_layout *l, mesh_error *err) {
    return mesh__layout_check(l, "mesh_layout_check", err);
}

MESH__PRIVATE int64_t mesh__tensor_elem(const mesh_tensor *t) {
    return t->elem_bytes ? t->elem_bytes : (int64_t)mesh_dtype_bytes(t->dtype);
}

/* Is a rank's part what the caller thinks it is? */
MESH__PRIVATE mesh_status mesh__local_check(const mesh_tensor *t, const char *which, int rank, const mesh_box *box,
                                            mesh_error *err) {
    int d;
    for (d = t->layout.ndim - 1; d >= 0 && t->local_shape; d--)
        if (t->local_shape[d] != box->shape[d])
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "%s: the local shape has %l in dim %d, but by its spec rank %d holds %l of %l", which,
                              t->local_shape[d], d, rank, box->shape[d], t->layout.shape[d]);
    return MESH_OK;
}

/* Strides in elements as strides in bytes. They nest, whatever their order: each is at least what the smaller ones span together. */
MESH__PRIVATE mesh_status mesh__strides_place(const int64_t *strides, const mesh_box *box, int64_t elem,
                                              int64_t *stride, const char *which, int rank, mesh_error *err) {
    int order[MESH_MAX_DIMS], n = 0, d, k;
    int64_t span = 1;
    for (d = box->ndim - 1; d >= 0; d--) {
        if (box->shape[d] == 1) continue;
        for (k = n++; k > 0 && strides[order[k - 1]] > strides[d]; k--) order[k] = order[k - 1];
        order[k] = d;
    }
    for (k = 0; k < n; k++) {
        d = order[k];
        if (strides[d] < span || strides[d] > INT64_MAX / 2 / elem / box->shape[d])
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "%s: stride %l of dim %d is %s; the dims within it span %l elements", which, strides[d],
                              d, strides[d] < span ? "too small" : "too large", span);
        stride[d] = strides[d] * elem;
        span += strides[d] * (box->shape[d] - 1);
    }
    return MESH_OK;
}

/* A dtype that there is, with its own elements, or MESH_BYTES with any. */
MESH__PRIVATE mesh_status mesh__elements_check(const mesh_tensor *t, const char *which, mesh_error *err) {
    if (mesh_dtype_bytes(t->dtype) && t->elem_bytes >= 0 &&
        (!t->elem_bytes || t->dtype == MESH_BYTES || t->elem_bytes == (int64_t)mesh_dtype_bytes(t->dtype)))
        return MESH_OK;
    return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: dtype %d with elements of %l bytes; see MESH_DTYPES", which,
                      (int)t->dtype, t->elem_bytes);
}

/* A tensor's elements and layout, and its local shape and strides where it says some. */
MESH__PRIVATE mesh_status mesh__tensor_check(const mesh_tensor *t, int rank, mesh_error *err) {
    mesh_status status = mesh_layout_check(&t->layout, err);
    int64_t stride[MESH_MAX_DIMS];
    mesh_box box;
    if (status == MESH_OK) status = mesh__elements_check(t, "the tensor", err);
    if (status != MESH_OK || mesh_layout_box(&t->layout, rank, &box) < 0) return status;
    status = mesh__local_check(t, "the tensor", rank, &box, err);
    if (status != MESH_OK || !t->strides || !mesh_box_count(&box)) return status;
    return mesh__strides_place(t->strides, &box, mesh__tensor_elem(t), stride, "the tensor", rank, err);
}

/* The axes of a dim are numbered anew from 0, without gaps. But for one axis, those from `at` on make room for it. */
MESH__PRIVATE void mesh__orders_close(mesh_spec *s, int dim, int axis, int at) {
    uint8_t list[256];
    int i, n = 0;
    for (i = 0; i < 256; i++) list[i] = 255;
    for (i = 0; i < s->naxes; i++)
        if (i != axis && s->axis[i].kind == MESH_SHARD && s->axis[i].dim == dim) list[s->axis[i].order] = (uint8_t)i;
    for (i = 0; i < 256; i++) {
        if (list[i] == 255) continue;
        s->axis[list[i]].order = (uint8_t)(n + (n >= at));
        n++;
    }
    if (axis >= 0) s->axis[axis].order = (uint8_t)(at < n ? at : n);
}

MESH_API mesh_status mesh_layout_set(mesh_layout *l, const char *axis, mesh_place place, mesh_error *err) {
    int k = l->on ? mesh_axis_find(l->on, axis) : -1, dim = (int8_t)place.dim;
    mesh_spec spec = l->spec;
    mesh_place before;
    if (k < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_layout_set: no axis \"%s\" in the mesh \"%s\"",
                          axis ? axis : "(null)", l->on ? mesh__show(l->on).text : "(null)");
    before = spec.axis[k];
    spec.axis[k] = mesh_replicate();
    if (before.kind == MESH_SHARD) mesh__orders_close(&spec, before.dim, -1, 255);
    spec.axis[k] = place;
    if (place.kind == MESH_SHARD && dim >= -l->ndim && dim < l->ndim) {
        int order = place.order, n = 0, i;
        dim = dim < 0 ? dim + l->ndim : dim;
        spec.axis[k].dim = (uint8_t)dim;
        for (i = 0; i < spec.naxes; i++) n += i != k && spec.axis[i].kind == MESH_SHARD && spec.axis[i].dim == dim;
        if (order != MESH_ORDER_DEFAULT && order > n)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_layout_set: axis \"%s\" has order %d on dim %d, which %d other axes shard; orders "
                              "are 0 (outermost) to %d",
                              axis, order, dim, n, n);
        mesh__orders_close(&spec, dim, k, order == MESH_ORDER_DEFAULT ? n : order);
    }
    return mesh__layout_finish(l, l->on, &spec, l->ndim, l->shape, "mesh_layout_set", err);
}

/* Of the ranks that hold the same summand of the same shard, one. */
MESH__PRIVATE int mesh__layout_first(const mesh_layout *l, int rank) {
    int coord[MESH_MAX_AXES], i;
    mesh_coords_of(l->on, NULL, rank, coord);
    for (i = 0; i < l->on->naxes; i++)
        if (l->spec.axis[i].kind == MESH_REPLICATE || l->spec.axis[i].kind == MESH_INVARIANT) coord[i] = 0;
    return mesh_rank_at_coords(l->on, coord);
}

/* The op of the partial axes that count; -1: none. */
MESH__PRIVATE int mesh__layout_op(const mesh_layout *l) {
    int i;
    for (i = 0; i < l->on->naxes; i++)
        if (l->spec.axis[i].kind == MESH_PARTIAL && l->on->axis[i].size > 1) return l->spec.axis[i].op;
    return -1;
}

MESH_API int mesh_layout_equal(const mesh_layout *a, const mesh_layout *b) {
    int i, d;
    if (a->ndim != b->ndim || a->on->size != b->on->size || mesh__layout_op(a) != mesh__layout_op(b)) return 0;
    for (d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d]) return 0;
    if (mesh_equal(a->on, b->on) && mesh_spec_equal(&a->spec, &b->spec)) return 1;
    for (i = 0; i < a->on->size; i++) {
        int rank = mesh_rank_at(a->on, i);
        mesh_box x, y;
        if (mesh_layout_box(b, rank, &y) < 0) return 0;
        mesh_layout_box(a, rank, &x);
        for (d = 0; d < a->ndim; d++)
            if (x.offset[d] != y.offset[d] || x.shape[d] != y.shape[d]) return 0;
        if (!mesh_box_count(&x)) continue; /* of nothing there are no summands */
        if (mesh__layout_first(b, mesh__layout_first(a, rank)) != mesh__layout_first(b, rank) ||
            mesh__layout_first(a, mesh__layout_first(b, rank)) != mesh__layout_first(a, rank))
            return 0;
    }
    return 1;
}

/* ---- // >>boxes ---------------------------------------------------------------------------------------------------- */

/* Part i of [*low, *high) in k parts. */
MESH__PRIVATE void mesh__part_cut(int rule, int64_t k, int64_t i, int64_t *low, int64_t *high) {
    int64_t n = *high - *low, q = n / k, r = n % k, from, to;
    if (rule == MESH_RULE_BALANCED) {
        from = q * i + (i < r ? i : r);
        to = from + q + (i < r);
    } else {
        int64_t c = q + (r != 0), whole = c ? n / c : 0; /* parts of c; from and to without overflow */
        from = i <= whole ? c * i : n;
        to = i < whole ? c * (i + 1) : n;
    }
    *high = *low + to;
    *low += from;
}

/* The part that holds x, of [*low, *high) in k parts; *low <= x < *high. */
MESH__PRIVATE int64_t mesh__part_find(int rule, int64_t k, int64_t x, int64_t *low, int64_t *high) {
    int64_t n = *high - *low, q = n / k, r = n % k, at = x - *low, i;
    if (rule == MESH_RULE_BALANCED)
        i = at < r * (q + 1) ? at / (q + 1) : r + (at - r * (q + 1)) / q;
    else
        i = at / (q + (r != 0));
    mesh__part_cut(rule, k, i, low, high);
    return i;
}

MESH_API int64_t mesh_layout_box(const mesh_layout *l, int rank, mesh_box *box) {
    int coord[MESH_MAX_AXES], d, k;
    if (mesh_coords_of(l->on, NULL, rank, coord) < 0) return -1;
    box->ndim = l->ndim;
    box->zero = 0;
    for (d = 0; d < l->ndim; d++) {
        uint8_t list[MESH_MAX_AXES];
        int n = mesh__dim_axes(&l->spec, d, list);
        int64_t low = 0, high = l->shape[d];
        for (k = 0; k < n; k++) mesh__part_cut(l->spec.rule, l->on->axis[list[k]].size, coord[list[k]], &low, &high);
        box->offset[d] = low < high ? low : l->shape[d];
        box->shape[d] = high - low;
    }
    return mesh_box_count(box);
}

MESH_API int64_t mesh_box_count(const mesh_box *box) {
    int64_t n = 1;
    int d;
    for (d = 0; d < box->ndim; d++)
        if (box->shape[d] == 0) return 0; /* whatever the others are */
    for (d = 0; d < box->ndim; d++) n *= box->shape[d];
    return n;
}

MESH_API int mesh_box_intersect(mesh_box *result, const mesh_box *a, const mesh_box *b) {
    int d, some = 1;
    result->ndim = a->ndim;
    result->zero = 0;
    for (d = 0; d < a->ndim; d++) {
        int64_t low = a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        int64_t in_a = a->shape[d] - (low - a->offset[d]), in_b = b->shape[d] - (low - b->offset[d]);
        int64_t n = in_a < in_b ? in_a : in_b; /* from low on: an end, offset + shape, may be beyond 63 bits */
        result->offset[d] = low;
        result->shape[d] = n > 0 ? n : 0;
        some &= n > 0;
    }
    return some;
}

MESH_API int mesh_layout_holders(const mesh_layout *l) {
    int i, n = 1;
    for (i = 0; i < l->on->naxes; i++)
        if (l->spec.axis[i].kind != MESH_SHARD) n *= l->on->axis[i].size;
    return n;
}

MESH_API void mesh_pieces_start(mesh_pieces *p, const mesh_layout *l, const mesh_box *box) {
    int d, i, ndim = l->ndim;
    p->layout = l;
    p->box = *box;
    p->piece.ndim = ndim;
    p->piece.zero = 0;
    for (d = 0; d < ndim; d++) { /* there is nothing beyond the tensor */
        int64_t low = box->offset[d], n = low < 0 ? low + box->shape[d] : box->shape[d];
        if (low < 0) low = 0;
        if (n > l->shape[d] - low) n = l->shape[d] - low;
        p->box.offset[d] = low;
        p->box.shape[d] = n > 0 ? n : 0;
    }
    p->state = mesh_box_count(&p->box) > 0 ? MESH_PIECES_STARTED : MESH_PIECES_OVER;
    for (i = 0; i < MESH_MAX_AXES; i++) p->coord[i] = 0;
    for (d = 0; d < MESH_MAX_DIMS; d++) p->count[d] = d < ndim ? (uint8_t)mesh__dim_axes(&l->spec, d, p->axis[d]) : 0;
}

/* Set the shard of a dim to the one that holds x. */
MESH__PRIVATE void mesh__pieces_seek(mesh_pieces *p, int d, int64_t x) {
    int64_t low = 0, high = p->layout->shape[d], from = p->box.offset[d], to = from + p->box.shape[d];
    int k;
    for (k = 0; k < p->count[d]; k++) {
        int axis = p->axis[d][k];
        p->coord[axis] = (int)mesh__part_find(p->layout->spec.rule, p->layout->on->axis[axis].size, x, &low, &high);
    }
    p->low[d] = low;
    p->high[d] = high;
    p->piece.offset[d] = low > from ? low : from;
    p->piece.shape[d] = (high < to ? high : to) - p->piece.offset[d];
}

MESH_API int mesh_pieces_next(mesh_pieces *p) {
    int d, ndim = p->piece.ndim;
    if (p->state == MESH_PIECES_OVER) return 0;
    if (p->state == MESH_PIECES_STARTED) {
        for (d = 0; d < ndim; d++) mesh__pieces_seek(p, d, p->box.offset[d]);
        p->state = MESH_PIECES_UNDER_WAY;
    } else {
        for (d = ndim - 1; d >= 0; d--) {
            if (p->high[d] < p->box.offset[d] + p->box.shape[d]) break;
            mesh__pieces_seek(p, d, p->box.offset[d]);
        }
        if (d < 0) {
            p->state = MESH_PIECES_OVER;
            return 0;
        }
        mesh__pieces_seek(p, d, p->high[d]);
    }
    p->rank = mesh_rank_at_coords(p->layout->on, p->coord);
    return 1;
}

MESH_API int mesh_layout_owner(const mesh_layout *l, const int64_t *index, int k) {
    mesh_pieces p;
    mesh_box box;
    int i, d;
    box.ndim = l->ndim;
    box.zero = 0;
    if (k < 0) return -1;
    for (d = 0; d < l->ndim; d++) {
        if (index[d] < 0 || index[d] >= l->shape[d]) return -1;
        box.offset[d] = index[d];
        box.shape[d] = 1;
    }
    mesh_pieces_start(&p, l, &box);
    mesh_pieces_next(&p);
    for (i = l->on->naxes - 1; i >= 0; i--) {
        if (l->spec.axis[i].kind == MESH_SHARD) continue;
        p.coord[i] = k % l->on->axis[i].size;
        k /= l->on->axis[i].size;
    }
    return k ? -1 : mesh_rank_at_coords(l->on, p.coord);
}

/* The dim that axes shard as its innermost ones, in this order; -1: they do not. */
MESH__PRIVATE int mesh__counts_dim(const mesh_spec *s, const uint8_t *axes, int n) {
    uint8_t list[MESH_MAX_AXES];
    int i, all, dim;
    if (n == 0 || s->axis[axes[0]].kind != MESH_SHARD) return -1;
    dim = s->axis[axes[0]].dim;
    all = mesh__dim_axes(s, dim, list);
    for (i = 0; i < n && n <= all; i++)
        if (list[all - n + i] != axes[i]) return -1;
    return n <= all ? dim : -1;
}

MESH_API mesh_status mesh_layout_counts(const mesh_layout *l, const char *axes, int rank, size_t *counts,
                                        size_t *offsets, mesh_error *err) {
    uint8_t list[MESH_MAX_AXES];
    mesh group;
    mesh_box box;
    mesh_error why;
    mesh_status status;
    int i, d, n, dim;
    size_t at = 0, outer = 1;
    if (!l || !counts)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_layout_counts: the %s NULL",
                          l ? "counts are" : "layout is");
    if ((status = mesh_group_through(&group, l->on, axes, rank, &why)) != MESH_OK)
        return mesh__fail(err, status, why.rank, "mesh_layout_counts: %s", why.text);
    n = mesh__axes(l->on, axes, list, "", NULL);
    if ((dim = mesh__counts_dim(&l->spec, list, n)) < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                          "mesh_layout_counts: \"%s\" are not the innermost axes that shard a dim, in this order",
                          axes ? axes : "(all)");
    mesh_layout_box(l, rank, &box);
    for (d = 0; d < dim; d++) outer *= (size_t)box.shape[d];
    if (outer > 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                          "mesh_layout_counts: dim %d is sharded, and the %l elements before it make its parts many "
                          "pieces each; use mesh_redistribute",
                          dim, (int64_t)outer);
    for (i = 0; i < group.size; i++) {
        counts[i] = (size_t)mesh_layout_box(l, mesh_rank_at(&group, i), &box);
        if (offsets) offsets[i] = at;
        at += counts[i];
    }
    return MESH_OK;
}

/* ---- // >>slices ---------------------------------------------------------------------------------------------------- */

MESH_API void mesh_box_copy(void *dst, const mesh_box *dst_box, const void *src, const mesh_box *src_box,
                            size_t elem_bytes) {
    mesh_box both;
    unsigned char *to = (unsigned char *)dst;
    const unsigned char *from = (const unsigned char *)src;
    int64_t to_stride[MESH_MAX_DIMS], from_stride[MESH_MAX_DIMS], at[MESH_MAX_DIMS];
    size_t run = elem_bytes, b;
    int d, ndim = dst_box->ndim, outer;
    if (!mesh_box_intersect(&both, dst_box, src_box)) return;
    for (d = ndim - 1; d >= 0; d--) {
        to_stride[d] = d == ndim - 1 ? (int64_t)elem_bytes : to_stride[d + 1] * dst_box->shape[d + 1];
        from_stride[d] = d == ndim - 1 ? (int64_t)elem_bytes : from_stride[d + 1] * src_box->shape[d + 1];
        to += (both.offset[d] - dst_box->offset[d]) * to_stride[d];
        from += (both.offset[d] - src_box->offset[d]) * from_stride[d];
        at[d] = 0;
    }
    for (outer = ndim; outer > 0; outer--) { /* dims from outer on are one run in both */
        run = outer == ndim ? elem_bytes : run;
        if ((int64_t)run != to_stride[outer - 1] || (int64_t)run != from_stride[outer - 1]) break;
        run *= (size_t)both.shape[outer - 1];
    }
    for (;;) {
        for (b = 0; b < run; b++) to[b] = from[b];
        for (d = outer - 1; d >= 0; d--) {
            to += to_stride[d];
            from += from_stride[d];
            if (++at[d] < both.shape[d]) break;
            to -= to_stride[d] * at[d];
            from -= from_stride[d] * at[d];
            at[d] = 0;
        }
        if (d < 0) return;
    }
}

MESH__PRIVATE mesh_box mesh__box_whole(int ndim, const int64_t *shape) {
    mesh_box box;
    int d;
    box.ndim = ndim;
    box.zero = 0;
    for (d = 0; d < ndim; d++) {
        box.offset[d] = 0;
        box.shape[d] = shape[d];
    }
    return box;
}

MESH_API int64_t mesh_layout_slice(const mesh_layout *l, int rank, void *local, const void *global, size_t elem_bytes) {
    mesh_box box, whole = mesh__box_whole(l->ndim, l->shape);
    int64_t n = mesh_layout_box(l, rank, &box);
    if (n > 0) mesh_box_copy(local, &box, global, &whole, elem_bytes);
    return n;
}

MESH_API int64_t mesh_layout_paste(const mesh_layout *l, int rank, void *global, const void *local, size_t elem_bytes) {
    mesh_box box, whole = mesh__box_whole(l->ndim, l->shape);
    int64_t n = mesh_layout_box(l, rank, &box);
    if (n > 0) mesh_box_copy(global, &whole, local, &box, elem_bytes);
    return n;
}

/* ---- // >>tensors ---- */

MESH_API mesh_status mesh_tensor_make(mesh_tensor *t, const mesh *on, const char *spec, mesh_dtype dtype, int ndim,
                                      const int64_t *shape, mesh_error *err) {
    mesh_tensor r = MESH_ZERO;
    mesh_status status;
    if (!t) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_tensor_make: the tensor is NULL");
    if (!mesh_dtype_bytes(dtype))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_tensor_make: dtype %d; see MESH_DTYPES", (int)dtype);
    status = mesh__layout_parse_as(&r.layout, on, spec, ndim, shape, "mesh_tensor_make", err);
    r.dtype = dtype;
    if (status == MESH_OK) *t = r;
    return status;
}

MESH_API int64_t mesh_tensor_box(const mesh_tensor *t, int rank, mesh_box *box) {
    return mesh_layout_box(&t->layout, rank, box);
}

MESH_API int64_t mesh_tensor_count(const mesh_tensor *t, int rank) {
    mesh_box box;
    return mesh_layout_box(&t->layout, rank, &box);
}

MESH_API mesh_status mesh_tensor_permute(mesh_tensor *view, const mesh_tensor *t, const int *dims, int rank,
                                         int64_t *strides, mesh_error *err) {
    mesh_tensor r = *t;
    mesh_box box;
    int64_t dense[MESH_MAX_DIMS], span = 1;
    int d, k, i, ndim = t->layout.ndim, held = mesh_tensor_box(t, rank, &box) >= 0, to[MESH_MAX_DIMS];
    uint32_t seen = 0;
    if (ndim && !dims) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_tensor_permute: dims is NULL");
    for (k = 0; k < ndim; k++) {
        if (dims[k] < 0 || dims[k] >= ndim || (seen >> dims[k] & 1))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_tensor_permute: dims[%d] is %d; name each of the %d dims once", k, dims[k], ndim);
        seen |= UINT32_C(1) << dims[k];
        to[dims[k]] = k;
    }
    if (ndim && !strides)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_tensor_permute: the memory for %d strides is NULL", ndim);
    for (d = ndim - 1; d >= 0; d--) {
        dense[d] = span;
        if (held && box.shape[d]) /* of nothing it may wrap */
            span = (int64_t)((uint64_t)span * (uint64_t)box.shape[d]);
    }
    for (k = 0; k < ndim; k++) {
        r.layout.shape[k] = t->layout.shape[dims[k]];
        strides[k] = t->strides ? t->strides[dims[k]] : dense[dims[k]];
    }
    for (i = 0; i < r.layout.spec.naxes; i++)
        if (r.layout.spec.axis[i].kind == MESH_SHARD)
            r.layout.spec.axis[i].dim = (uint8_t)to[r.layout.spec.axis[i].dim];
    r.strides = ndim ? strides : t->strides;
    r.local_shape = NULL;
    *view = r;
    return MESH_OK;
}

MESH_API int64_t mesh_tensors_lay(mesh_tensor *list, int n, int rank, void *buffer, size_t align) {
    int64_t at = 0, step = align ? (int64_t)align : 64;
    int i;
    if (step <= 0 || (step & (step - 1))) return -1;
    for (i = 0; i < n; i++) {
        int64_t count = mesh_tensor_count(&list[i], rank), elem = mesh__tensor_elem(&list[i]);
        if (mesh__elements_check(&list[i], "", NULL) != MESH_OK) return -1;
        if (count <= 0) {
            if (buffer) list[i].data = NULL;
            continue;
        }
        if (at > INT64_MAX - step || count > (INT64_MAX - at - step) / elem) return -1;
        at = (at + step - 1) & ~(step - 1);
        if (buffer) list[i].data = (unsigned char *)buffer + at;
        at += count * elem;
    }
    return at;
}
#endif /* MESH_LAYOUT_IMPLEMENTED */
