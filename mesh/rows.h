/* mesh/rows.h - work on rows of numbers, wherever their memory is: moved, added up, multiplied, merged; the steps of a cross-entropy. Part of mesh.h 0.1.0.
   MIT licence.

   Includes host_bytes.h and functions.h. Knows nothing of what the rows are for. What each op does stands in transport.h, above mesh_rows.

DO THIS
    Nothing: mesh_parallel.h includes it.
*/
#if !defined(MESH_ROWS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_ROWS_IMPLEMENTED))
#include "host_bytes.h"
#include "functions.h"
#endif

#ifndef MESH_ROWS_H
#define MESH_ROWS_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_ROWS_IMPLEMENTED)
#define MESH_ROWS_IMPLEMENTED

/* ---- // >>matrices ---- */

/* Rows of `width` elements, one after the other. */
MESH__PRIVATE mesh_matrix mesh__matrix(const void *base, mesh_dtype dtype, int64_t width) {
    mesh_matrix m;
    memset(&m, 0, sizeof m);
    m.base = (void *)(uintptr_t)base;
    m.dtype = (int)dtype;
    m.step = (int64_t)mesh_dtype_bytes(dtype);
    m.count[0] = m.count[1] = 1;
    m.stride[2] = width * m.step;
    return m;
}

MESH__INLINE unsigned char *mesh__row_at(const mesh_matrix *m, int64_t row) {
    unsigned char *base = (unsigned char *)m->base;
    int64_t next;
    if (m->count[0] == 1 && m->count[1] == 1) return base + row * m->stride[2];
    next = row < INT32_MAX && m->count[0] < INT32_MAX ? (int64_t)((uint32_t)row / (uint32_t)m->count[0])
                                                      : row / m->count[0];
    if (m->count[1] == 1) return base + (row - next * m->count[0]) * m->stride[0] + next * m->stride[2];
    return base + (row - next * m->count[0]) * m->stride[0] + next % m->count[1] * m->stride[1] +
           next / m->count[1] * m->stride[2];
}

/* ---- // >>here: in the host's memory ---- */

enum { MESH__ROW_PIECE = 128 }; /* elements at a time */

MESH__INLINE int mesh__is_dense(const mesh_matrix *m, int64_t nbytes) {
    return m->count[0] == 1 && m->count[1] == 1 && m->stride[2] == nbytes;
}

/* Rows of 4 bytes, side by side. */
MESH__PRIVATE void mesh__words_move(const mesh_rows *r) {
    unsigned char *to = (unsigned char *)r->to.base;
    const unsigned char *from = (const unsigned char *)r->from.base;
    int64_t row;
    for (row = 0; row < r->rows; row++) {
        uint32_t word = 0;
        if (r->index[row] >= 0) memcpy(&word, from + 4 * r->index[row], 4);
        memcpy(to + 4 * row, &word, 4);
    }
}

/* How many rows from `row` on lie side by side on both sides. */
MESH__INLINE int64_t mesh__rows_run(const mesh_rows *r, int64_t row, int dense) {
    int64_t n = 1;
    if (!dense) return 1;
    if (!r->index) return r->rows - row;
    while (row + n < r->rows && r->index[row + n] == r->index[row] + n) n++;
    return n;
}

MESH__PRIVATE void mesh__rows_move(const mesh_rows *r) {
    int64_t nbytes = r->width * (int64_t)mesh_dtype_bytes((mesh_dtype)r->to.dtype), row, n;
    int dense = mesh__is_dense(&r->to, nbytes) && mesh__is_dense(&r->from, nbytes);
    if (nbytes == 4 && r->index && r->from.base && dense) {
        mesh__words_move(r);
        return;
    }
    for (row = 0; row < r->rows; row += n) {
        int64_t from = r->index ? r->index[row] : row;
        n = 1;
        if (from < 0 || !r->from.base) {
            memset(mesh__row_at(&r->to, row), 0, (size_t)nbytes);
            continue;
        }
        n = mesh__rows_run(r, row, dense);
        mesh__copy_bytes(mesh__row_at(&r->to, row), mesh__row_at(&r->from, from), (size_t)(n * nbytes));
    }
}

/* n elements of a row of to, from element `at` on; is_wide: sums are f64. */
MESH__PRIVATE void mesh__row_sum(const mesh_rows *r, int64_t row, int64_t at, int n, int is_wide) {
    mesh_dtype dtype = (mesh_dtype)r->from.dtype, wide = is_wide ? MESH_F64 : MESH_F32;
    double sum64[MESH__ROW_PIECE], v64[MESH__ROW_PIECE];
    float *sum32 = (float *)(void *)sum64, *v32 = (float *)(void *)v64;
    unsigned char *to = mesh__row_at(&r->to, row) + at * r->to.step;
    int64_t k;
    int i, some = r->add;
    if (some) mesh__widen(wide, sum64, (mesh_dtype)r->to.dtype, to, (size_t)n);
    for (k = row * r->terms; k < (row + 1) * r->terms; k++) {
        int64_t from = r->index ? r->index[k] : k;
        float w = r->weight ? r->weight[k] : 1;
        if (from < 0) continue;
        mesh__widen(wide, v64, dtype, mesh__row_at(&r->from, from) + at * r->from.step, (size_t)n);
        if (is_wide)
            for (i = 0; i < n; i++) sum64[i] = some ? sum64[i] + (double)w * v64[i] : (double)w * v64[i];
        else
            for (i = 0; i < n; i++) sum32[i] = some ? sum32[i] + w * v32[i] : w * v32[i];
        some = 1;
    }
    if (!some) memset(sum64, 0, (size_t)n * sizeof *sum64);
    mesh__narrow((mesh_dtype)r->to.dtype, to, wide, sum64, (size_t)n);
}

MESH__PRIVATE void mesh__rows_sum(const mesh_rows *r) {
    int is_wide = r->to.dtype == MESH_F64 || r->from.dtype == MESH_F64, n;
    int64_t row, at;
    for (row = 0; row < r->rows; row++)
        for (at = 0; at < r->width; at += n) {
            n = r->width - at < MESH__ROW_PIECE ? (int)(r->width - at) : MESH__ROW_PIECE;
            mesh__row_sum(r, row, at, n, is_wide);
        }
}

MESH__PRIVATE void mesh__rows_dot(const mesh_rows *r) {
    double a[MESH__ROW_PIECE], b[MESH__ROW_PIECE];
    int64_t row, at, n, i;
    for (row = 0; row < r->rows; row++) {
        int64_t from = r->index ? r->index[row] : row;
        const unsigned char *x = mesh__row_at(&r->from, from), *y = mesh__row_at(&r->with, row);
        double dot[4] = {0, 0, 0, 0};
        for (at = 0; at < r->width; at += n) {
            n = r->width - at < MESH__ROW_PIECE ? r->width - at : (int64_t)MESH__ROW_PIECE;
            mesh__widen(MESH_F64, a, (mesh_dtype)r->from.dtype, x + at * r->from.step, (size_t)n);
            mesh__widen(MESH_F64, b, (mesh_dtype)r->with.dtype, y + at * r->with.step, (size_t)n);
            for (i = 0; i < n; i++) dot[i & 3] += a[i] * b[i];
        }
        r->word[row] = (float)(dot[0] + dot[1] + (dot[2] + dot[3]));
    }
}

MESH__PRIVATE void mesh__row_merge(float *out, float *lse, const float *out_part, float lse_part, int64_t width) {
    static const uint32_t nothing = 0xff800000u; /* -infinity: a part that sees no keys */
    double a = (double)*lse, b = (double)lse_part, most = a > b ? a : b, ea = mesh__exp(a - most),
           eb = mesh__exp(b - most), sum = ea + eb;
    float wa = (float)(ea / sum), wb = (float)(eb / sum);
    int64_t i;
    if (!memcmp(&lse_part, &nothing, 4)) return;
    if (!memcmp(lse, &nothing, 4)) {
        memcpy(out, out_part, (size_t)width * sizeof *out);
        *lse = lse_part;
        return;
    }
    for (i = 0; i < width; i++) out[i] = wa * out[i] + wb * out_part[i];
    *lse = (float)(most + mesh__ln(sum));
}

MESH__PRIVATE void mesh__rows_merge(const mesh_rows *r) {
    int64_t row;
    for (row = 0; row < r->rows; row++)
        mesh__row_merge((float *)(void *)mesh__row_at(&r->to, row), &r->word[row],
                        (const float *)(const void *)mesh__row_at(&r->from, row), r->weight[row], r->width);
}

/* ---- cross-entropy ---- */

#define MESH__LOGITS ((int64_t)256) /* columns at a time */

/* Columns of a row, widened, or narrowed. */
MESH__PRIVATE void mesh__logits_move(const mesh_matrix *m, int64_t row, int64_t column, int64_t n, float *v,
                                     int write) {
    int64_t i, run = m->step == (int64_t)mesh_dtype_bytes((mesh_dtype)m->dtype) ? n : 1;
    unsigned char *p = mesh__row_at(m, row) + column * m->step;
    for (i = 0; i < n; i += run, p += m->step)
        if (write)
            mesh__narrow((mesh_dtype)m->dtype, p, MESH_F32, v + i, (size_t)run);
        else
            mesh__widen(MESH_F32, v + i, (mesh_dtype)m->dtype, p, (size_t)run);
}

MESH__PRIVATE int64_t mesh__logits_piece(const mesh_rows *r, int64_t row, int64_t column, float *v) {
    int64_t n = r->columns - column < MESH__LOGITS ? r->columns - column : MESH__LOGITS;
    mesh__logits_move(&r->from, row, column, n, v, 0);
    return n;
}

/* The target's column here; not one of them: -1 or beyond. */
MESH__PRIVATE int64_t mesh__logits_target(const mesh_rows *r, int64_t row) { return r->target[row] - r->first; }

MESH__PRIVATE float mesh__logits_most(const mesh_rows *r, int64_t row) {
    float v[MESH__LOGITS], most = -3.40282346638528859812e38f;
    int64_t k, i, n;
    for (k = 0; k < r->columns; k += n) {
        n = mesh__logits_piece(r, row, k, v);
        for (i = 0; i < n; i++) most = v[i] > most ? v[i] : most;
    }
    return most;
}

MESH__PRIVATE void mesh__logits_sums(const mesh_rows *r, int64_t row) {
    float v[MESH__LOGITS], most = r->weight[row], *sums = &r->word[row * r->terms];
    double exps = 0, logits = 0;
    int64_t k, i, n, target = mesh__logits_target(r, row);
    sums[1] = 0;
    for (k = 0; k < r->columns; k += n) {
        float e = 0, x = 0;
        n = mesh__logits_piece(r, row, k, v);
        if (target >= k && target < k + n) sums[1] = v[target - k] - most;
        for (i = 0; i < n; i++) e += mesh__exp_below(v[i] - most);
        for (i = 0; i < n && r->terms == 3; i++) x += v[i] - most;
        exps += (double)e;
        logits += (double)x;
    }
    sums[0] = (float)exps;
    if (r->terms == 3) sums[2] = (float)logits;
}

MESH__PRIVATE float mesh__logits_loss(const mesh_rows *r, int64_t row) {
    const float *sums = &r->weight[row * r->terms];
    double total = mesh__ln((double)sums[0]), smoothing = (double)r->smoothing, loss = total - (double)sums[1];
    if (r->target[row] < 0) return 0;
    if (r->terms == 2) return (float)loss;
    return (float)((1 - smoothing) * loss + smoothing * (total - (double)sums[2] / (double)r->vocabulary));
}

MESH__PRIVATE void mesh__logits_gradient(const mesh_rows *r, int64_t row) {
    float v[MESH__LOGITS], most = r->weight[row], part = 1 / r->word[row * r->terms],
                           even = r->smoothing / (float)r->vocabulary,
                           scale = r->scale * (r->row_scale ? r->row_scale[row] : 1);
    int64_t k, i, n, target = mesh__logits_target(r, row), counts = r->target[row] >= 0;
    for (k = 0; k < r->width; k += n) { /* those that are not real too */
        int real = k < r->columns && counts;
        n = r->width - k < MESH__LOGITS ? r->width - k : MESH__LOGITS;
        if (real) n = mesh__logits_piece(r, row, k, v);
        if (real)
            for (i = 0; i < n; i++) v[i] = scale * (mesh__exp_below(v[i] - most) * part - even);
        else
            for (i = 0; i < n; i++) v[i] = 0;
        if (real && target >= k && target < k + n) v[target - k] -= scale * (1 - r->smoothing);
        mesh__logits_move(&r->to, row, k, n, v, 1);
    }
}

MESH__PRIVATE void mesh__logits_row(const mesh_rows *r, int64_t row) {
    switch (r->op) {
    case MESH_ROWS_MOST:
        r->word[row] = mesh__logits_most(r, row);
        return;
    case MESH_ROWS_EXP:
        mesh__logits_sums(r, row);
        return;
    case MESH_ROWS_LOSS:
        r->word[row] = mesh__logits_loss(r, row);
        return;
    default:
        mesh__logits_gradient(r, row);
    }
}

MESH__PRIVATE void mesh__rows_here(const mesh_rows *r) {
    int64_t row;
    switch (r->op) {
    case MESH_ROWS_MOVE:
        mesh__rows_move(r);
        return;
    case MESH_ROWS_SUM:
        mesh__rows_sum(r);
        return;
    case MESH_ROWS_DOT:
        mesh__rows_dot(r);
        return;
    case MESH_ROWS_MERGE:
        mesh__rows_merge(r);
        return;
    default:
        break;
    }
    for (row = 0; row < r->rows; row++) mesh__logits_row(r, row);
}

/* ---- // >>anywhere: from inside of a call. What fails on one rank fails on every one ---- */

/* Is there somebody to do it? */
MESH__PRIVATE mesh_status mesh__rows_check(const mesh_comm *c, mesh_error *err) {
    mesh_transport *t = c->transport;
    const mesh_ops *o = t->ops;
    mesh_rows none;
    if (!mesh__by_device(c)) return MESH_OK;
    if (!MESH__HAS(o, rows) || !MESH__HAS(o, alloc) || !MESH__HAS(o, free) || !MESH__HAS(o, copy))
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, t->rank,
                          "the transport (%s) has memory that is not the host's, and no kernels for it", o->name);
    memset(&none, 0, sizeof none);
    return o->rows(t, mesh__impl(c)->group[0]->handle, mesh__impl(c)->stream, &none, err);
}

/* Memory of the kind that the rows have. The caller says what fails. */
MESH__PRIVATE mesh_status mesh__rows_memory(mesh_comm *c, uint64_t nbytes, void **p) {
    if (mesh__by_device(c)) return mesh__scratch_of(c, nbytes, p);
    *p = nbytes <= SIZE_MAX ? mesh_transport_alloc(c->transport, (size_t)nbytes) : NULL;
    return *p ? MESH_OK : MESH_ERR_MEMORY;
}

/* After mesh__rows_settle. */
MESH__PRIVATE void mesh__rows_free(mesh_comm *c, void *p) {
    if (mesh__by_device(c))
        mesh__scratch_give(c, p);
    else
        mesh_transport_free(c->transport, p);
}

/* On a device: on the caller's stream. */
MESH__PRIVATE mesh_status mesh__rows(mesh_comm *c, const mesh_rows *r) {
    mesh_transport *t = c->transport;
    mesh__comm_impl *impl = mesh__impl(c);
    mesh_error why = MESH_ZERO;
    mesh_status status;
    if (!r->rows || (r->op == MESH_ROWS_MOVE && !r->width)) return MESH_OK;
    if (!mesh__by_device(c)) {
        mesh__rows_here(r);
        return MESH_OK;
    }
    if (c->failed) return (mesh_status)c->error.status;
    impl->beside = 1;
    status = t->ops->rows(t, impl->group[0]->handle, impl->stream, r, &why);
    if (status == MESH_OK) return MESH_OK;
    return mesh__comm_broken(c, status, why.rank, "mesh_%s: %s", t->inside.call,
                             why.text[0] ? why.text : mesh_status_text(status));
}

MESH__PRIVATE mesh_status mesh__rows_zero(mesh_comm *c, void *p, uint64_t nbytes) {
    mesh_rows r = MESH_ZERO;
    r.op = MESH_ROWS_MOVE;
    r.rows = 1, r.width = (int64_t)nbytes;
    r.to = mesh__matrix(p, MESH_BYTES, r.width);
    r.from = mesh__matrix(NULL, MESH_BYTES, 0);
    return mesh__rows(c, &r);
}

/* Between rows' memory and the host's; the host waits. */
MESH__PRIVATE mesh_status mesh__rows_copy(mesh_comm *c, void *dst, const void *src, size_t nbytes) {
    if (!nbytes) return MESH_OK;
    if (mesh__by_device(c)) return mesh__host_copy(c, dst, src, nbytes);
    mesh__copy_bytes(dst, src, nbytes);
    return MESH_OK;
}

/* What was put on the caller's stream is over: memory may be given back. */
MESH__PRIVATE mesh_status mesh__rows_settle(mesh_comm *c) {
    mesh_error why = MESH_ZERO;
    mesh_status status;
    int ended;
    if (!mesh__by_device(c)) return MESH_OK;
    why.rank = c->transport->rank;
    status = c->failed ? (mesh_status)c->error.status : mesh__beside_settle(c, &why, &ended);
    if (status == MESH_OK || c->failed) return c->failed ? (mesh_status)c->error.status : MESH_OK;
    return mesh__comm_broken(c, status, why.rank, "mesh_%s: %s%s%s", c->transport->inside.call,
                             mesh_status_text(status), why.text[0] ? ": " : "", why.text);
}
#endif /* MESH_ROWS_IMPLEMENTED */
