/* mesh/norm.h - the norm of tensors in any layouts, every element once; clipping. Part of mesh.h 0.1.0. MIT licence.

   Includes alike.h, layout.h and functions.h.

DO THIS
    Nothing: mesh_parallel.h includes it.
*/
#if !defined(MESH_NORM_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_NORM_IMPLEMENTED))
#include "alike.h"
#include "layout.h"
#include "functions.h"
#endif

#ifndef MESH_NORM_H
#define MESH_NORM_H

#ifdef __cplusplus
extern "C" {
#endif

/* The 2-norm of all tensors of all ranks' lists, every element of the whole once, whatever its layout: what is replicated counts on one rank. Lists may
   differ (stages, experts): a tensor stands in the list of every rank of its mesh, whose ranks are the comm's. f16, bf16, f32 and f64, in
   the transport's memory; squares are added in f64, of very large and very small f64 apart: none overflows. One all_reduce of five numbers over the whole
   comm. On GPUs it comes after what is on the caller's stream, and the host waits for it, and the scaling of mesh_clip comes on that stream.
   ARGUMENT: an axis that is partial (reduce first), another dtype, data that is NULL; then every rank fails. STATE: the stream is being captured.
   UNSUPPORTED: a transport whose memory is not the host's, without kernels for it. MISMATCH: other ranks have called mesh_clip, or that with another max. */
MESH_API mesh_status mesh_norm(mesh_comm *c, const mesh_tensor *list, int n, double *norm);
/* The same, and where it is above `max` every element of this rank's parts, replicas too, is scaled by max / norm. norm may be NULL. A norm that is
   infinite or no number scales nothing: look at it. ARGUMENT too: a max that is not above 0. */
MESH_API mesh_status mesh_clip(mesh_comm *c, const mesh_tensor *list, int n, double max, double *norm);

#ifdef __cplusplus
}
#endif
#endif /* MESH_NORM_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_NORM_IMPLEMENTED)
#define MESH_NORM_IMPLEMENTED

/* This rank's part of a tensor, run by run: what lies one after the other in memory. */
typedef struct mesh__runs {
    const mesh_tensor *t;
    mesh_box box;
    int64_t at[MESH_MAX_DIMS], stride[MESH_MAX_DIMS];
    int64_t count; /* elements of a run */
    int outer, over;
    unsigned char *p; /* the run */
} mesh__runs;

/* Returns 0 if this rank holds nothing. */
MESH__PRIVATE int mesh__runs_start(mesh__runs *r, const mesh_tensor *t, int rank) {
    int d, ndim = t->layout.ndim;
    r->t = t;
    r->over = mesh_layout_box(&t->layout, rank, &r->box) <= 0;
    if (r->over) return 0;
    for (d = ndim - 1; d >= 0; d--) {
        r->stride[d] = t->strides ? t->strides[d] : d == ndim - 1 ? 1 : r->stride[d + 1] * r->box.shape[d + 1];
        r->at[d] = 0;
    }
    r->count = 1;
    for (d = ndim; d > 0 && (r->box.shape[d - 1] == 1 || r->stride[d - 1] == r->count); d--)
        r->count *= r->box.shape[d - 1];
    r->outer = d;
    r->p = (unsigned char *)t->data;
    return 1;
}

/* To the next run; 0: there is none. */
MESH__PRIVATE int mesh__runs_next(mesh__runs *r) {
    int64_t place = 0;
    int d;
    for (d = r->outer - 1; d >= 0 && ++r->at[d] == r->box.shape[d]; d--) r->at[d] = 0;
    if (d < 0) return 0;
    for (d = 0; d < r->outer; d++) place += r->at[d] * r->stride[d];
    r->p = (unsigned char *)r->t->data + place * mesh__tensor_elem(r->t);
    return 1;
}

/* Sums of squares: of numbers whose squares are neither too large nor too small for an f64, of the larger ones over 2^600, of the smaller ones
   times it, each squared then (J. L. Blue 1978). */
enum { MESH__NORM_MIDDLE, MESH__NORM_LARGE, MESH__NORM_SMALL, MESH__NORM_SUMS };
/* What travels: the sums, and of a number that stands for what this rank has called the sum and the square's. */
enum { MESH__NORM_CALL = MESH__NORM_SUMS, MESH__NORM_CALL_SQUARED, MESH__NORM_TOLD };
enum { MESH__NORM_FAR = 600 }; /* the power of two */

MESH__PRIVATE void mesh__far_square(double v, double sum[MESH__NORM_SUMS]) {
    int is_large = v > 1e140 || v < -1e140;
    double size = mesh__scaled(v, is_large ? -MESH__NORM_FAR : MESH__NORM_FAR);
    sum[is_large ? MESH__NORM_LARGE : MESH__NORM_SMALL] += size * size;
}

/* Add the squares of a run, some thousand at a time: a long sum rounds each of its steps. */
MESH__PRIVATE void mesh__run_squares(mesh_dtype dtype, const unsigned char *p, int64_t count,
                                     double sum[MESH__NORM_SUMS]) {
    double v[128], part[4] = {0, 0, 0, 0};
    size_t bytes = mesh_dtype_bytes(dtype);
    int pieces = 0;
    while (count) {
        size_t n = count < 128 ? (size_t)count : 128, i;
        mesh__widen(MESH_F64, v, dtype, p, n);
        for (i = 0; i < n && dtype == MESH_F64; i++) {
            double size = v[i] < 0 ? -v[i] : v[i];
            if ((size < 1e-140 || size > 1e140) && mesh__is_finite(v[i])) mesh__far_square(v[i], sum), v[i] = 0;
        }
        for (i = 0; i < n; i++) part[i & 3] += v[i] * v[i];
        p += n * bytes;
        count -= (int64_t)n;
        if (++pieces % 64 && count) continue;
        sum[MESH__NORM_MIDDLE] += part[0] + part[1] + (part[2] + part[3]);
        part[0] = part[1] = part[2] = part[3] = 0;
    }
}

MESH__PRIVATE double mesh__norm_of(const double sum[MESH__NORM_SUMS]) {
    double middle = sum[MESH__NORM_MIDDLE], large = sum[MESH__NORM_LARGE], small = sum[MESH__NORM_SMALL];
    if (!mesh__is_finite(middle)) return middle;
    if (large > 0)
        return mesh__sqrt(large + mesh__scaled(middle, -2 * MESH__NORM_FAR)) * 4.1495155688809930e180; /* 2^600 */
    if (middle > 0) return mesh__sqrt(middle + mesh__scaled(small, -2 * MESH__NORM_FAR));
    return mesh__sqrt(small) * 2.4099198651028841e-181;
}

MESH__PRIVATE void mesh__run_scale(mesh_dtype dtype, unsigned char *p, int64_t count, double factor) {
    double v[128];
    size_t bytes = mesh_dtype_bytes(dtype);
    while (count) {
        size_t n = count < 128 ? (size_t)count : 128, i;
        mesh__widen(MESH_F64, v, dtype, p, n);
        for (i = 0; i < n; i++) v[i] *= factor;
        mesh__narrow(dtype, p, MESH_F64, v, n);
        p += n * bytes;
        count -= (int64_t)n;
    }
}

/* Is the tensors' memory the transport's, who adds up and scales there? */
MESH__PRIVATE int mesh__norm_there_is(const mesh_transport *t) {
    return t->caps & MESH_CAP_DEVICE && MESH__HAS(t->ops, squares) && MESH__HAS(t->ops, scale);
}

MESH__PRIVATE mesh_status mesh__norm_check(const mesh_comm *c, const mesh_tensor *t, mesh_error *err) {
    int i, rank = c->transport->rank;
    mesh_box box;
    if (c->transport->caps & MESH_CAP_DEVICE && !mesh__norm_there_is(c->transport))
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, rank,
                          "the transport (%s) has memory that is not the host's, and no "
                          "kernels for it",
                          c->transport->ops->name);
    if (mesh__tensor_check(t, rank, err) != MESH_OK) return MESH_ERR_ARGUMENT;
    if (!mesh__converts(t->dtype))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "it is %s; norms are of f16, bf16, f32 and f64",
                          mesh_dtype_name(t->dtype));
    for (i = 0; i < t->layout.on->naxes; i++)
        if (t->layout.spec.axis[i].kind == MESH_PARTIAL && t->layout.on->axis[i].size > 1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "it is partial along \"%s\": squares of summands do not add up to the square of the sum; "
                              "redistribute it first",
                              t->layout.on->axis[i].name);
    for (i = 0; i < t->layout.on->size; i++)
        if (mesh_index_of(&c->on, mesh_rank_at(t->layout.on, i)) < 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, mesh_rank_at(t->layout.on, i),
                              "its mesh \"%s\" holds rank %d, which is not in the comm's",
                              mesh__show(t->layout.on).text, mesh_rank_at(t->layout.on, i));
    if (!t->data && mesh_layout_box(&t->layout, rank, &box) > 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the data is NULL, but rank %d holds %l elements", rank,
                          mesh_box_count(&box));
    return MESH_OK;
}

/* Does this rank count a tensor? */
MESH__PRIVATE int mesh__norm_counts(const mesh_tensor *t, int rank) {
    return mesh_index_of(t->layout.on, rank) >= 0 && mesh__layout_first(&t->layout, rank) == rank;
}

/* ---- in the host's memory ---- */

MESH__PRIVATE mesh_status mesh__norm_here(mesh_comm *c, const mesh_tensor *list, int n, double sum[MESH__NORM_TOLD]) {
    int i, rank = c->transport->rank;
    for (i = 0; i < n; i++) {
        mesh__runs r;
        if (mesh__norm_counts(&list[i], rank) && mesh__runs_start(&r, &list[i], rank)) do
                mesh__run_squares(list[i].dtype, r.p, r.count, sum);
            while (mesh__runs_next(&r));
    }
    return mesh_all_reduce(c, NULL, sum, sum, MESH__NORM_TOLD, MESH_F64, MESH_SUM);
}

MESH__PRIVATE void mesh__clip_here(mesh_comm *c, const mesh_tensor *list, int n, double factor) {
    int i;
    for (i = 0; i < n; i++) {
        mesh__runs r;
        if (mesh__runs_start(&r, &list[i], c->transport->rank)) do
                mesh__run_scale(list[i].dtype, r.p, r.count, factor);
            while (mesh__runs_next(&r));
    }
}

/* ---- in the transport's ---- */

/* This rank's parts; all: those that other ranks count, too. */
MESH__PRIVATE int mesh__norm_parts(const mesh_tensor *list, int n, int rank, int all, mesh_part *parts) {
    int i, d, k = 0;
    for (i = 0; i < n; i++) {
        const mesh_tensor *t = &list[i];
        int64_t elem = mesh__tensor_elem(t);
        mesh_part *p = &parts[k];
        mesh__runs r;
        if ((!all && !mesh__norm_counts(t, rank)) || !mesh__runs_start(&r, t, rank)) continue;
        memset(p, 0, sizeof *p);
        p->base = t->data;
        p->dtype = (int)t->dtype;
        p->count = (uint64_t)mesh_box_count(&r.box);
        p->block.run = (uint64_t)(r.count * elem);
        p->block.ndim = r.outer;
        for (d = 0; d < r.outer; d++)
            p->block.dim[d].count = r.box.shape[d], p->block.dim[d].stride = r.stride[d] * elem;
        k++;
    }
    return k;
}

/* What a transport says of its part, which fails everywhere. */
MESH__PRIVATE mesh_status mesh__norm_said(mesh_comm *c, mesh_status status, const char *function) {
    mesh_error why = MESH_ZERO;
    int ended = 0;
    if (status == MESH_OK) return status;
    mesh__group_settle(c, mesh__impl(c)->group[0]->handle, &why, &ended); /* why it ended the group */
    return mesh__comm_broken(c, status, c->transport->rank, "%s: the transport (%s) says: %s", function,
                             c->transport->ops->name, ended && why.text[0] ? why.text : mesh_status_text(status));
}

MESH__PRIVATE mesh_status mesh__norm_there(mesh_comm *c, const mesh_tensor *list, int n, mesh_part *parts,
                                           double sum[MESH__NORM_TOLD], const char *function) {
    mesh_transport *t = c->transport;
    void *sums = NULL, *group = mesh__impl(c)->group[0]->handle;
    mesh_request r;
    mesh_status status = mesh__scratch_take(c, MESH_SQUARES_BYTES, &sums);
    if (status != MESH_OK) return status;
    status = mesh__norm_said(c, t->ops->squares(t, group, parts, mesh__norm_parts(list, n, t->rank, 0, parts), sums),
                             function);
    if (status == MESH_OK)
        status = mesh__host_copy(c, (double *)sums + MESH__NORM_CALL, sum + MESH__NORM_CALL, 2 * sizeof *sum);
    if (status == MESH_OK)
        status =
            mesh__host_wait(mesh_all_reduce_start(c, NULL, sums, sums, MESH__NORM_TOLD, MESH_F64, MESH_SUM, &r), &r);
    if (status == MESH_OK) status = mesh__host_copy(c, sum, sums, MESH__NORM_TOLD * sizeof *sum);
    mesh__scratch_give(c, sums);
    return status;
}

MESH__PRIVATE mesh_status mesh__clip_there(mesh_comm *c, const mesh_tensor *list, int n, mesh_part *parts,
                                           double factor, const char *function) {
    mesh_transport *t = c->transport;
    void *group = mesh__impl(c)->group[0]->handle;
    mesh_status status = mesh__on_stream(c);
    if (status != MESH_OK) return status;
    mesh__impl(c)->beside = 1;
    return mesh__norm_said(c, t->ops->scale(t, group, parts, mesh__norm_parts(list, n, t->rank, 1, parts), factor),
                           function);
}

/* ---- either ---- */

/* A number below 0, to six digits. */
MESH__RARE void mesh__put_negative(mesh__text *t, double x) {
    double size = -x;
    int64_t digits;
    int e = 0;
    mesh__put_char(t, '-');
    if (!mesh__is_finite(x)) {
        mesh__put(t, "inf");
        return;
    }
    for (; size >= 10; e++) size /= 10;
    for (; size < 1; e--) size *= 10;
    digits = (int64_t)(size * 1e5 + 0.5);
    if (digits == 1000000) digits = 100000, e++;
    mesh__put_decimal(t, digits, e > -5 && e < 6 ? 5 - e : 5);
    if (e < -4 || e > 5) mesh__put(t, "e%d", e);
}

MESH__RARE mesh_status mesh__norm_refused(mesh_comm *c, const char *function, const char *what, double max) {
    char why[64];
    mesh__text t = mesh__text_on(why, sizeof why);
    if (!what && mesh__is_number(max) && max < 0) {
        mesh__put(&t, "max is ");
        mesh__put_negative(&t, max);
        mesh__put(&t, "; give one above 0");
    } else if (!what) {
        what = mesh__is_number(max) ? "max is 0; give one above 0" : "max is no number; give one above 0";
    }
    return mesh__comm_broken(c, MESH_ERR_ARGUMENT, c->transport->rank, "%s: %s", function, what ? what : why);
}

/* What this rank has called: as a word, and as a number of 15 bits. */
MESH__PRIVATE uint64_t mesh__norm_word(const double *max) {
    uint64_t bits = 0;
    if (max) memcpy(&bits, max, sizeof bits);
    return mesh__mix(max ? 2 : 1, bits);
}
MESH__PRIVATE double mesh__norm_call(const double *max) { return (double)(mesh__norm_word(max) >> 49); }

/* Of n numbers that are the same the square of the sum is n times the sum of the squares; of no others. (Who called neither may have added anything.) */
MESH__PRIVATE int mesh__norm_alike(const double sum[MESH__NORM_TOLD], int n) {
    double all = sum[MESH__NORM_CALL], squares = sum[MESH__NORM_CALL_SQUARED], most = 32768;
    if (!mesh__is_finite(all) || !mesh__is_finite(squares)) return 0;
    if (all < 0 || all > most * n || squares < 0 || squares > most * most * n) return 0;
    return (uint64_t)all * (uint64_t)all == (uint64_t)n * (uint64_t)squares;
}

MESH__PRIVATE mesh_status mesh__norm_differs(mesh_comm *c, const double *max, const char *function) {
    int rank;
    mesh_status status = mesh__alike_not(c, NULL, mesh__impl(c)->group[0], mesh__norm_word(max), &rank);
    if (status != MESH_OK) return status;
    if (rank < 0)
        return mesh__comm_broken(c, MESH_ERR_MISMATCH, -1, "%s: another rank has not called the same", function);
    return mesh__comm_broken(c, MESH_ERR_MISMATCH, rank,
                             "%s: rank %d has not called what rank %d has: one mesh_norm and the other mesh_clip, or "
                             "mesh_clip with another max; the same on every rank",
                             function, rank, mesh_rank_at(&c->on, 0));
}

MESH__PRIVATE mesh_status mesh__norm_of_parts(mesh_comm *c, const mesh_tensor *list, int n, mesh_part *parts,
                                              const double *max, double *norm, const char *function) {
    double call = mesh__norm_call(max), sum[MESH__NORM_TOLD] = {0, 0, 0, 0, 0}, whole;
    mesh_status status;
    sum[MESH__NORM_CALL] = call, sum[MESH__NORM_CALL_SQUARED] = call * call;
    status = parts ? mesh__norm_there(c, list, n, parts, sum, function) : mesh__norm_here(c, list, n, sum);
    if (status != MESH_OK) return status;
    if (!mesh__norm_alike(sum, c->on.size)) return mesh__norm_differs(c, max, function);
    whole = mesh__norm_of(sum);
    if (norm) *norm = whole;
    if (!max || !mesh__is_finite(whole) || !(whole > *max)) return MESH_OK;
    if (parts) return mesh__clip_there(c, list, n, parts, *max / whole, function);
    mesh__clip_here(c, list, n, *max / whole);
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__norm_inside(mesh_comm *c, const mesh_tensor *list, int n, const double *max,
                                            double *norm, const char *function) {
    int i, rank;
    mesh_part *parts = NULL;
    mesh__group *g = NULL;
    mesh_request none;
    mesh_status status = mesh__call_begin(c, NULL, MESH_CALL_ALL_REDUCE, &none, &g);
    if (status != MESH_OK) return status;
    if (n < 0 || (n && !list) || (max ? !mesh__is_number(*max) || *max <= 0 : !norm))
        return mesh__norm_refused(c, function,
                                  n < 0 || (n && !list) ? "the list is NULL, or of fewer than no tensors"
                                  : !max                ? "norm is NULL"
                                                        : NULL,
                                  max ? *max : 0);
    rank = c->transport->rank;
    for (i = 0; i < n; i++) {
        mesh_error why;
        if ((status = mesh__norm_check(c, &list[i], &why)) != MESH_OK)
            return mesh__comm_broken(c, status, why.rank < 0 ? rank : why.rank, "%s: tensor %d: %s", function, i,
                                     why.text);
    }
    if (mesh__norm_there_is(c->transport)) {
        if ((status = mesh__on_stream(c)) != MESH_OK) return status;
        parts = (mesh_part *)mesh_transport_alloc(c->transport, ((size_t)n + 1) * sizeof *parts);
        if (!parts) return mesh__comm_broken(c, MESH_ERR_MEMORY, rank, "%s: no memory for %d tensors", function, n);
    }
    status = mesh__norm_of_parts(c, list, n, parts, max, norm, function);
    mesh_transport_free(c->transport, parts);
    return status;
}

MESH_API mesh_status mesh_norm(mesh_comm *c, const mesh_tensor *list, int n, double *norm) {
    MESH__ALONE_COMPOSED(c, "norm", mesh__norm_inside(c, list, n, NULL, norm, "mesh_norm"));
}
MESH_API mesh_status mesh_clip(mesh_comm *c, const mesh_tensor *list, int n, double max, double *norm) {
    MESH__ALONE_COMPOSED(c, "clip", mesh__norm_inside(c, list, n, &max, norm, "mesh_clip"));
}
#endif /* MESH_NORM_IMPLEMENTED */
