/* mesh/parts.h - this rank's part of a tensor, to and from a buffer of the host, wherever its memory is. Part of mesh.h 0.1.0. MIT licence.

   Includes host_bytes.h and layout.h. Knows nothing of what the elements are for.

DO THIS
    Nothing: mesh_checkpoint.h and mesh_parallel.h include it.
*/
#if !defined(MESH_PARTS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_PARTS_IMPLEMENTED))
#include "host_bytes.h"
#include "layout.h"
#endif

#ifndef MESH_PARTS_H
#define MESH_PARTS_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_PARTS_IMPLEMENTED)
#define MESH_PARTS_IMPLEMENTED

/* ---- // >>strips: elements of a box by their number in it, row-major, and where they lie ---- */

typedef struct mesh__strip {
    int ndim;
    int64_t shape[MESH_MAX_DIMS], stride[MESH_MAX_DIMS], origin;
    int64_t run; /* so many lie one after the other, from each multiple of it on */
} mesh__strip;

/* Of a box within an array of these strides; NULL: dense, of this shape. */
MESH__PRIVATE mesh__strip mesh__strip_of(const mesh_box *box, const int64_t *strides, const int64_t *dense,
                                         int from_origin) {
    mesh__strip w;
    int d, runs = 1;
    memset(&w, 0, sizeof w);
    w.ndim = box->ndim;
    w.run = 1;
    for (d = box->ndim - 1; d >= 0; d--) {
        w.shape[d] = box->shape[d];
        w.stride[d] = strides ? strides[d] : d == box->ndim - 1 ? 1 : w.stride[d + 1] * dense[d + 1];
        if (from_origin) w.origin += box->offset[d] * w.stride[d];
        runs = runs && (w.shape[d] == 1 || w.stride[d] == w.run);
        if (runs) w.run *= w.shape[d];
    }
    return w;
}

/* Where element e lies, and of how many from it on (at most `most`) the same is so, one after the other. */
MESH__PRIVATE int64_t mesh__strip_at(const mesh__strip *w, int64_t e, int64_t most, int64_t *count) {
    int64_t within = e % w->run, place = w->origin + within;
    int d;
    *count = w->run - within < most ? w->run - within : most;
    for (e -= within, d = w->ndim - 1; d >= 0 && e; d--) {
        place += e % w->shape[d] * w->stride[d];
        e /= w->shape[d];
    }
    return place;
}

/* Elements first .. first + n of this rank's part to a dense buffer, or (load) from one of a dtype `from`. */
MESH__PRIVATE void mesh__part_copy_here(const mesh_tensor *t, const mesh_box *box, int64_t first, int64_t n,
                                        void *buffer, int load, mesh_dtype from) {
    mesh__strip w = mesh__strip_of(box, t->strides, box->shape, 0);
    size_t elem = (size_t)mesh__tensor_elem(t), other = from == t->dtype ? elem : mesh_dtype_bytes(from);
    unsigned char *p = (unsigned char *)buffer;
    int64_t e, count;
    for (e = first; e < first + n; e += count, p += (size_t)count * other) {
        unsigned char *at = (unsigned char *)t->data + mesh__strip_at(&w, e, first + n - e, &count) * (int64_t)elem;
        if (!load)
            mesh__copy_bytes(p, at, (size_t)count * elem);
        else if (from == t->dtype)
            mesh__copy_bytes(at, p, (size_t)count * elem);
        else
            mesh__convert(t->dtype, at, from, p, (size_t)count, -1);
    }
}

/* ---- // >>parts in a device's memory ---- */

enum {
    MESH__SIDE_BY_SIDE =
        1 << 16, /* bytes: runs from this on are copied one by one; shorter ones are packed on the device before */
    MESH__PACKED_BYTES = 1 << 22
};

/* Elements that are packed together: some rows of a dim, all of the dims within it, at one place of those around it. */
typedef struct mesh__slab {
    mesh_block block;
    unsigned char *base;
    int64_t first, count; /* elements */
} mesh__slab;

/* The slab that holds element e: slabs cut the elements of a strip into parts of MESH__PACKED_BYTES at most. */
MESH__PRIVATE mesh__slab mesh__slab_at(const mesh__strip *w, void *data, size_t elem, int64_t e) {
    mesh__slab s;
    int64_t row = 1, rows, most = MESH__PACKED_BYTES / (int64_t)elem, in_dim, around, place = w->origin;
    int d, outer = w->ndim - 1;
    memset(&s, 0, sizeof s);
    while (outer > 0 && row * w->shape[outer] <= most) row *= w->shape[outer--];
    rows = most / row > 1 ? most / row : 1;
    in_dim = e / row % w->shape[outer] / rows * rows; /* the first row's place in its dim */
    around = e / row / w->shape[outer];
    s.first = (around * w->shape[outer] + in_dim) * row;
    for (d = outer - 1; d >= 0; d--) {
        place += around % w->shape[d] * w->stride[d];
        around /= w->shape[d];
    }
    if (rows > w->shape[outer] - in_dim) rows = w->shape[outer] - in_dim;
    s.count = rows * row;
    s.base = (unsigned char *)data + (place + in_dim * w->stride[outer]) * (int64_t)elem;
    s.block.run = elem;
    s.block.ndim = w->ndim - outer;
    for (d = outer; d < w->ndim; d++) {
        s.block.dim[d - outer].count = d == outer ? rows : w->shape[d];
        s.block.dim[d - outer].stride = w->stride[d] * (int64_t)elem;
    }
    return s;
}

/* The same, of elements that do not lie side by side: a slab at a time is packed on the device. What a load does not fill of it stays as it was. */
MESH__PRIVATE mesh_status mesh__part_copy_packed(mesh_comm *c, const mesh_tensor *t, const mesh__strip *w,
                                                 int64_t first, int64_t n, unsigned char *buffer, int load) {
    size_t elem = (size_t)mesh__tensor_elem(t);
    int64_t e, count;
    mesh_status status = MESH_OK;
    for (e = first; e < first + n && status == MESH_OK; e += count) {
        mesh__slab s = mesh__slab_at(w, t->data, elem, e);
        size_t nbytes = (size_t)s.count * elem;
        size_t some;
        unsigned char *there;
        void *p;
        count = s.first + s.count - e < first + n - e ? s.first + s.count - e : first + n - e;
        some = (size_t)count * elem;
        if ((status = mesh__scratch_of(c, nbytes, &p)) != MESH_OK)
            return mesh__fail(&c->error, status, c->transport->rank, "no memory of the device for %u bytes",
                              (uint64_t)nbytes);
        there = (unsigned char *)p + (size_t)(e - s.first) * elem;
        if (!load || count < s.count) status = mesh__copy_inside(c, p, NULL, s.base, &s.block, nbytes);
        if (status == MESH_OK) status = load ? mesh_copy(c, there, buffer, some) : mesh_copy(c, buffer, there, some);
        if (status == MESH_OK && load) status = mesh__copy_inside(c, s.base, &s.block, p, NULL, nbytes);
        if (status == MESH_OK || status == MESH_ERR_STATE) mesh__scratch_give(c, p); /* else it may still be written */
        buffer += some;
    }
    return status;
}

MESH__PRIVATE mesh_status mesh__part_copy_there(mesh_comm *c, const mesh_tensor *t, const mesh_box *box, int64_t first,
                                                int64_t n, unsigned char *buffer, int load) {
    mesh__strip w = mesh__strip_of(box, t->strides, box->shape, 0);
    size_t elem = (size_t)mesh__tensor_elem(t);
    int64_t e, count;
    mesh_status status = MESH_OK;
    if (w.run < mesh_box_count(box) && (size_t)w.run * elem < MESH__SIDE_BY_SIDE)
        return mesh__part_copy_packed(c, t, &w, first, n, buffer, load);
    for (e = first; e < first + n && status == MESH_OK; e += count) {
        unsigned char *at = (unsigned char *)t->data + mesh__strip_at(&w, e, first + n - e, &count) * (int64_t)elem;
        status = load ? mesh_copy(c, at, buffer, (size_t)count * elem) : mesh_copy(c, buffer, at, (size_t)count * elem);
        buffer += (size_t)count * elem;
    }
    return status;
}

/* Elements first .. first + n of this rank's part to a dense buffer, or (load) from one of a dtype `from`, of the host. */
MESH__PRIVATE mesh_status mesh__part_copy(mesh_comm *c, const mesh_tensor *t, const mesh_box *box, int64_t first,
                                          int64_t n, void *buffer, int load, mesh_dtype from) {
    void *converted;
    mesh_status status;
    if (!mesh__by_device(c)) {
        mesh__part_copy_here(t, box, first, n, buffer, load, from);
        return MESH_OK;
    }
    if (!load || from == t->dtype) return mesh__part_copy_there(c, t, box, first, n, (unsigned char *)buffer, load);
    converted = mesh_transport_alloc(c->transport, (size_t)n * mesh_dtype_bytes(t->dtype));
    if (!converted)
        return mesh__fail(&c->error, MESH_ERR_MEMORY, c->transport->rank, "no memory to convert %l elements", n);
    mesh__convert(t->dtype, converted, from, buffer, (size_t)n, -1);
    status = mesh__part_copy_there(c, t, box, first, n, (unsigned char *)converted, load);
    mesh_transport_free(c->transport, converted);
    return status;
}
#endif /* MESH_PARTS_IMPLEMENTED */
