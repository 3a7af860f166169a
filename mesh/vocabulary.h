/* mesh/vocabulary.h - a vocabulary over ranks: cross-entropy of sharded logits, rows of a sharded table. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh_collectives.h, layout.h and functions.h. Host memory.

DO THIS
    Nothing: mesh_parallel.h includes it.

EXAMPLE
    mesh_lookup words = MESH_ZERO;                      table: "tp:S(0)": what comes out is "tp:P(sum)"; redistribute it to tp:I, or to a part of the sequence
    words.table = &table, words.ids = ids, words.nids = n, words.out = x;
    mesh_embedding(&words, rank, &err);
    ...
    mesh_loss loss = MESH_ZERO;                         logits: "dp:S(0) tp:S(1)"
    loss.logits = &logits, loss.targets = next, loss.scale = 1.0f / (float)rows_of_all, loss.loss = per_row, loss.gradient = logits.data;
    mesh_cross_entropy(&comm, &loss);

    As Megatron-LM's vocab-parallel layers (Shoeybi et al. 2019): the logits are never gathered. Per row a maximum, then a sum and the target's logit
    together, travel along the axes that shard the vocabulary, and the gradient needs nothing.
*/
#if !defined(MESH_VOCABULARY_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_VOCABULARY_IMPLEMENTED))
#include "../mesh_collectives.h"
#include "layout.h"
#include "functions.h"
#endif

#ifndef MESH_VOCABULARY_H
#define MESH_VOCABULARY_H

#ifdef __cplusplus
extern "C" {
#endif

/* Cross-entropy of rows x vocabulary. The loss lies as the rows do, and is invariant along the axes that shard the vocabulary: the same bits there. */
typedef struct mesh_loss {
    /* f16, bf16 or f32 (computed in f32), on the comm's mesh: any axes on the rows, any on the vocabulary, which then have to be an open group. */
    const mesh_tensor *logits;
    /* Real columns: those beyond are padding, of no probability and gradient 0. 0: all are real. */
    int64_t vocabulary;
    /* Global ids of this rank's rows, the same along the axes that shard the vocabulary. Negative: the row is ignored, its loss and gradient are 0. */
    const int32_t *targets;
    /* Label smoothing in [0, 1): so much of a target's weight is spread over all real columns evenly (Szegedy et al. 2016). */
    float smoothing;
    /* Of the gradient: dL/d(loss of a row), as 1 / all rows that count in all ranks and micro-batches. 0: 1. */
    float scale;
    /* The same per row, times scale. NULL: 1. */
    const float *row_scale;
    /* Per row of this rank, not scaled. NULL: not wanted. */
    float *loss;
    /* Of the logits' dtype and strides, and may be their data. NULL: not wanted. */
    void *gradient;
    /* This rank's rows that were not ignored. NULL. */
    int64_t *counted;
} mesh_loss;
/* A logit that is no number or +infinity makes the loss and gradient of its row, where that counts, no number, and so does a row of nothing but -infinity.
   One all_reduce (max) of a float per row and 4, then one (sum) of two; three where smoothed. ARGUMENT: what does not fit the above; a target that is no real
   column (named). STATE: the group is not open. UNSUPPORTED: another dtype, memory that is not the host's. MISMATCH: the ranks along the axes that
   shard the vocabulary have other layouts, dtypes, vocabularies, smoothings or targets. Every rank fails, nothing is written. */
MESH_API mesh_status mesh_cross_entropy(mesh_comm *c, const mesh_loss *l);

/* Rows of a table, and back. Local: along axes that shard its rows the result is P(sum) (zero where the row is elsewhere), its gradient R there. Along axes
   that shard its columns both are S(last). */
typedef struct mesh_lookup {
    const mesh_tensor *table; /* vocabulary x width, of any dtype */
    const int32_t *ids;       /* negative: a row of zeros */
    int64_t nids;
    void *out; /* nids x local width, dense, of the table's dtype */
    /* Of mesh_embedding_backward, as out. */
    const void *grad_out;
    /* Of the table's part and strides, in grad_dtype; added to, in the order of the ids, each sum rounded. */
    void *grad_table;
    mesh_dtype grad_dtype;
} mesh_lookup;
/* ARGUMENT: a table that is no matrix, or partial; what is NULL; an id outside the vocabulary (named). Nothing is written then. A rank outside the
   table's mesh does nothing. */
MESH_API mesh_status mesh_embedding(const mesh_lookup *l, int rank, mesh_error *err);
/* The same; both dtypes one of f16, bf16, f32, f64. */
MESH_API mesh_status mesh_embedding_backward(const mesh_lookup *l, int rank, mesh_error *err);

#ifdef __cplusplus
}
#endif
#endif /* MESH_VOCABULARY_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_VOCABULARY_IMPLEMENTED)
#define MESH_VOCABULARY_IMPLEMENTED

/* ---- // >>cross_entropy ---- */

/* This rank's part of the logits. */
typedef struct mesh__logits {
    const mesh_loss *l;
    mesh_box box;
    int64_t stride[2];
    int64_t columns; /* real ones, of this rank */
    int64_t vocabulary;
    int of_row;  /* numbers of a row that travel: sum of exp, target's logit; with smoothing the sum of logits */
    float *most; /* per row */
    float *sums; /* per row, of_row numbers */
} mesh__logits;

#define MESH__LOGITS ((int64_t)256) /* columns at a time */

/* Columns of a row, widened, or narrowed. */
MESH__PRIVATE void mesh__logits_move(const mesh__logits *g, void *data, int64_t row, int64_t column, int64_t n,
                                     float *v, int write) {
    mesh_dtype dtype = g->l->logits->dtype;
    int64_t bytes = (int64_t)mesh_dtype_bytes(dtype), i, run = g->stride[1] == 1 ? n : 1;
    unsigned char *p = (unsigned char *)data + (row * g->stride[0] + column * g->stride[1]) * bytes;
    for (i = 0; i < n; i += run, p += g->stride[1] * bytes)
        if (write)
            mesh__narrow(dtype, p, MESH_F32, v + i, (size_t)run);
        else
            mesh__widen(MESH_F32, v + i, dtype, p, (size_t)run);
}

MESH__PRIVATE int64_t mesh__logits_piece(const mesh__logits *g, int64_t row, int64_t column, float *v) {
    int64_t n = g->columns - column < MESH__LOGITS ? g->columns - column : MESH__LOGITS;
    mesh__logits_move(g, g->l->logits->data, row, column, n, v, 0);
    return n;
}

/* The target's column here; not one of them: -1 or beyond. */
MESH__PRIVATE int64_t mesh__logits_target(const mesh__logits *g, int64_t row) {
    return g->l->targets[row] - g->box.offset[1];
}

MESH__PRIVATE float mesh__logits_most(const mesh__logits *g, int64_t row) {
    float v[MESH__LOGITS], most = -3.40282346638528859812e38f;
    int64_t k, i, n;
    for (k = 0; k < g->columns; k += n) {
        n = mesh__logits_piece(g, row, k, v);
        for (i = 0; i < n; i++) most = v[i] > most ? v[i] : most;
    }
    return most;
}

MESH__PRIVATE void mesh__logits_sums(const mesh__logits *g, int64_t row) {
    float v[MESH__LOGITS], most = g->most[row], *sums = &g->sums[row * g->of_row];
    double exps = 0, logits = 0;
    int64_t k, i, n, target = mesh__logits_target(g, row);
    sums[1] = 0;
    for (k = 0; k < g->columns; k += n) {
        float e = 0, x = 0;
        n = mesh__logits_piece(g, row, k, v);
        if (target >= k && target < k + n) sums[1] = v[target - k] - most;
        for (i = 0; i < n; i++) e += mesh__exp_below(v[i] - most);
        for (i = 0; i < n && g->of_row == 3; i++) x += v[i] - most;
        exps += (double)e;
        logits += (double)x;
    }
    sums[0] = (float)exps;
    if (g->of_row == 3) sums[2] = (float)logits;
}

MESH__PRIVATE void mesh__logits_gradient(const mesh__logits *g, int64_t row) {
    const mesh_loss *l = g->l;
    float v[MESH__LOGITS], most = g->most[row], part = 1 / g->sums[row * g->of_row],
                           even = l->smoothing / (float)g->vocabulary,
                           scale = (l->scale == 0 ? 1 : l->scale) * (l->row_scale ? l->row_scale[row] : 1);
    int64_t k, i, n, target = mesh__logits_target(g, row), counts = l->targets[row] >= 0;
    for (k = 0; k < g->box.shape[1]; k += n) { /* those that are not real too */
        int real = k < g->columns && counts;
        n = g->box.shape[1] - k < MESH__LOGITS ? g->box.shape[1] - k : MESH__LOGITS;
        if (real) n = mesh__logits_piece(g, row, k, v);
        if (real)
            for (i = 0; i < n; i++) v[i] = scale * (mesh__exp_below(v[i] - most) * part - even);
        else
            for (i = 0; i < n; i++) v[i] = 0;
        if (real && target >= k && target < k + n) v[target - k] -= scale * (1 - l->smoothing);
        mesh__logits_move(g, l->gradient, row, k, n, v, 1);
    }
}

/* The loss of a row, of its sums over the whole vocabulary. */
MESH__PRIVATE double mesh__logits_loss(const mesh__logits *g, int64_t row) {
    const float *sums = &g->sums[row * g->of_row];
    double total = mesh__ln((double)sums[0]), smoothing = (double)g->l->smoothing, loss = total - (double)sums[1];
    if (g->of_row == 2) return loss;
    return (1 - smoothing) * loss + smoothing * (total - (double)sums[2] / (double)g->vocabulary);
}

MESH__PRIVATE mesh_status mesh__logits_check(mesh_comm *c, const mesh_loss *l, mesh__logits *g, mesh_error *err) {
    const mesh_tensor *t = l->logits;
    int64_t i, count;
    int k, rank = c->transport->rank;
    if (!t) return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the logits are NULL");
    if (c->transport->caps & MESH_CAP_DEVICE)
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, rank, "the logits are in memory that is not the host's");
    if (mesh__tensor_check(t, rank, err) != MESH_OK) return MESH_ERR_ARGUMENT;
    if (!mesh_equal(t->layout.on, &c->on))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the logits are on the mesh \"%s\", the comm on \"%s\"",
                          mesh__show(t->layout.on).text, mesh__show(&c->on).text);
    if (t->layout.ndim != 2)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the logits have %d dims; they are rows x vocabulary",
                          t->layout.ndim);
    if (t->dtype != MESH_F32 && t->dtype != MESH_BF16 && t->dtype != MESH_F16)
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, rank, "the logits are %s; f16, bf16 or f32 are computed with",
                          mesh_dtype_name(t->dtype));
    for (k = 0; k < c->on.naxes; k++)
        if (t->layout.spec.axis[k].kind == MESH_PARTIAL && c->on.axis[k].size > 1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "the logits are partial along \"%s\"; redistribute them first", c->on.axis[k].name);
    count = mesh_layout_box(&t->layout, rank, &g->box);
    g->vocabulary = l->vocabulary ? l->vocabulary : t->layout.shape[1];
    if (g->vocabulary < 0 || g->vocabulary > t->layout.shape[1])
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "a vocabulary of %l; the logits have %l columns", g->vocabulary,
                          t->layout.shape[1]);
    if (!(l->smoothing >= 0 && l->smoothing < 1))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "smoothing is not from 0 to less than 1");
    if ((count > 0 && !t->data) || (g->box.shape[0] > 0 && !l->targets))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the %s NULL, but rank %d holds %l rows",
                          l->targets ? "logits' data is" : "targets are", rank, g->box.shape[0]);
    for (i = 0; i < g->box.shape[0]; i++)
        if (l->targets[i] >= g->vocabulary)
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "the target of row %l of rank %d is %d, of a vocabulary of %l; negative ones are ignored",
                              i, rank, (int)l->targets[i], g->vocabulary);
    return MESH_OK;
}

/* The axes that shard the vocabulary, in the mesh' order, as a call's text; "": none. */
MESH__PRIVATE void mesh__logits_axes(const mesh_tensor *t, char *text, size_t cap) {
    mesh__text list = mesh__text_on(text, cap);
    int k;
    for (k = 0; k < t->layout.on->naxes; k++)
        if (t->layout.spec.axis[k].kind == MESH_SHARD && t->layout.spec.axis[k].dim == 1)
            mesh__put(&list, "%s%s", list.len ? "," : "", t->layout.on->axis[k].name);
}

/* What the ranks along the vocabulary's axes have in common, in numbers whose greatest are each rank's own where all have the same. */
enum { MESH__SAID = 4 };

MESH__PRIVATE void mesh__logits_say(const mesh__logits *g, float said[MESH__SAID]) {
    const mesh_layout *l = &g->l->logits->layout;
    uint64_t h[2] = {1, 1};
    uint32_t smoothing;
    int64_t row;
    int k;
    memcpy(&smoothing, &g->l->smoothing, sizeof smoothing);
    h[0] = mesh__mix(mesh__mix(h[0], (uint64_t)l->shape[0]), (uint64_t)l->shape[1]);
    h[0] = mesh__mix(mesh__mix(mesh__mix(h[0], (uint64_t)g->vocabulary), smoothing), (uint64_t)g->l->logits->dtype);
    for (k = 0; k < l->on->naxes; k++)
        h[0] = mesh__mix(h[0], (uint64_t)l->spec.axis[k].kind << 32 | (uint32_t)l->spec.axis[k].dim);
    for (row = 0; row < g->box.shape[0]; row++) h[1] = mesh__mix(h[1], (uint32_t)g->l->targets[row]);
    for (k = 0; k < 2; k++) {
        said[k] = (float)(h[k] >> 40); /* 24 bits are exact */
        said[2 + k] = -said[k];
    }
}

MESH__PRIVATE mesh_status mesh__logits_run(mesh_comm *c, const mesh__logits *g, const char *axes) {
    const mesh_loss *l = g->l;
    int64_t row, rows = g->box.shape[0], counted = 0;
    mesh_status status = MESH_OK;
    for (row = 0; row < rows; row++) g->most[row] = mesh__logits_most(g, row);
    if (*axes) {
        float *said = g->most + rows;
        mesh__logits_say(g, said);
        status = mesh_all_reduce(c, axes, g->most, g->most, (size_t)rows + MESH__SAID, MESH_F32, MESH_MAX);
        if (status == MESH_OK && (said[0] != -said[2] || said[1] != -said[3]))
            status = mesh__comm_broken(
                c, MESH_ERR_MISMATCH, -1, "mesh_cross_entropy: the ranks along \"%s\" have %s; they are the same there",
                axes,
                said[0] != -said[2] ? "other layouts or dtypes of the logits, vocabularies or smoothings"
                                    : "other targets");
    }
    if (status != MESH_OK) return status;
    for (row = 0; row < rows; row++) mesh__logits_sums(g, row);
    if (*axes) status = mesh_all_reduce(c, axes, g->sums, g->sums, (size_t)(rows * g->of_row), MESH_F32, MESH_SUM);
    if (status != MESH_OK) return status;
    for (row = 0; row < rows; row++) {
        int counts = l->targets[row] >= 0;
        if (l->loss) l->loss[row] = counts ? (float)mesh__logits_loss(g, row) : 0;
        if (l->gradient) mesh__logits_gradient(g, row);
        counted += counts;
    }
    if (l->counted) *l->counted = counted;
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__cross_entropy(mesh_comm *c, const mesh_loss *l) {
    char axes[MESH_MAX_AXES * MESH_NAME_BYTES];
    mesh__logits g;
    mesh_error why;
    mesh_request none;
    mesh__group *group = NULL;
    size_t rows;
    mesh_status status = mesh__call_begin(c, NULL, MESH_CALL_ALL_REDUCE, &none, &group);
    if (status != MESH_OK) return status;
    memset(&g, 0, sizeof g);
    memset(&why, 0, sizeof why);
    g.l = l;
    status = l ? mesh__logits_check(c, l, &g, &why)
               : mesh__fail(&why, MESH_ERR_ARGUMENT, c->transport->rank, "the loss is NULL");
    if (status != MESH_OK) return mesh__comm_broken(c, status, c->transport->rank, "mesh_cross_entropy: %s", why.text);
    mesh__logits_axes(l->logits, axes, sizeof axes);
    if (*axes && !mesh__group_find(mesh__impl(c), axes))
        return mesh__comm_broken(c, MESH_ERR_STATE, c->transport->rank,
                                 "mesh_cross_entropy: \"%s\" shard the vocabulary, and are no open group; list it in "
                                 "mesh_comm_desc.groups or call mesh_group_open on every rank",
                                 axes);
    g.columns = g.vocabulary - g.box.offset[1];
    if (g.columns > g.box.shape[1]) g.columns = g.box.shape[1];
    if (g.columns < 0) g.columns = 0;
    g.stride[0] = l->logits->strides ? l->logits->strides[0] : g.box.shape[1];
    g.stride[1] = l->logits->strides ? l->logits->strides[1] : 1;
    g.of_row = l->smoothing > 0 ? 3 : 2;
    rows = (size_t)g.box.shape[0];
    g.most = (float *)mesh_transport_alloc(c->transport, (rows * 4 + MESH__SAID) * sizeof *g.most);
    if (!g.most)
        return mesh__comm_broken(c, MESH_ERR_MEMORY, c->transport->rank, "mesh_cross_entropy: no memory for %u rows",
                                 (uint64_t)rows);
    g.sums = g.most + rows + MESH__SAID;
    status = mesh__logits_run(c, &g, axes);
    mesh_transport_free(c->transport, g.most);
    return status;
}

MESH_API mesh_status mesh_cross_entropy(mesh_comm *c, const mesh_loss *l) {
    if (!c) return MESH_ERR_ARGUMENT;
    MESH__ALONE_COMPOSED(c, "cross_entropy", mesh__cross_entropy(c, l));
}

/* ---- // >>embedding ---- */

/* A rank's part of the table, checked. 1; 0: nothing to do. */
MESH__PRIVATE int mesh__lookup_check(const mesh_lookup *l, int rank, int backward, mesh_box *box, int64_t stride[2],
                                     mesh_status *status, mesh_error *err) {
    const char *function = backward ? "mesh_embedding_backward" : "mesh_embedding";
    const mesh_tensor *t = l ? l->table : NULL;
    mesh_error why;
    int64_t i, count;
    int k;
    *status = MESH_ERR_ARGUMENT;
    if (!t || (l->nids > 0 && !l->ids) || l->nids < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%s: %s NULL; %l ids", function, t ? "ids are" : "the table is",
                          t ? l->nids : 0),
               0;
    if (mesh__tensor_check(t, rank, &why) != MESH_OK)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%s: %s", function, why.text), 0;
    if (t->layout.ndim != 2)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%s: the table has %d dims; it is vocabulary x width", function,
                          t->layout.ndim),
               0;
    for (k = 0; k < t->layout.on->naxes; k++)
        if (t->layout.spec.axis[k].kind == MESH_PARTIAL && t->layout.on->axis[k].size > 1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "%s: the table is partial along \"%s\"; redistribute it first", function,
                              t->layout.on->axis[k].name),
                   0;
    if (backward && (!mesh__converts(t->dtype) || !mesh__converts(l->grad_dtype)))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%s: gradients of %s and %s; f16, bf16, f32 and f64 are added",
                          function, mesh_dtype_name(t->dtype), mesh_dtype_name(l->grad_dtype)),
               0;
    for (i = 0; i < l->nids; i++)
        if (l->ids[i] >= t->layout.shape[0])
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "%s: id %l is %d, of a vocabulary of %l; negative ones are rows of zeros", function, i,
                              (int)l->ids[i], t->layout.shape[0]),
                   0;
    count = mesh_layout_box(&t->layout, rank, box);
    *status = MESH_OK;
    if (count < 0 || !box->shape[1] || !l->nids) return 0;
    stride[0] = t->strides ? t->strides[0] : box->shape[1];
    stride[1] = t->strides ? t->strides[1] : 1;
    if ((count && !(backward ? l->grad_table : t->data)) || !(backward ? l->grad_out : l->out)) {
        *status = mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                             "%s: the %s NULL, but rank %d holds %l elements of the table", function,
                             count && !(backward ? l->grad_table : t->data)
                                 ? (backward ? "table's gradient is" : "table's data is")
                                 : (backward ? "gradient of the rows is" : "memory for the rows is"),
                             rank, count);
        return 0;
    }
    return 1;
}

MESH_API mesh_status mesh_embedding(const mesh_lookup *l, int rank, mesh_error *err) {
    mesh_box box;
    mesh_status status;
    int64_t i, k, stride[2], elem;
    unsigned char *out;
    if (!mesh__lookup_check(l, rank, 0, &box, stride, &status, err)) return status;
    elem = mesh__tensor_elem(l->table);
    out = (unsigned char *)l->out;
    for (i = 0; i < l->nids; i++, out += box.shape[1] * elem) {
        int64_t row = l->ids[i] - box.offset[0];
        const unsigned char *from = (const unsigned char *)l->table->data;
        if (l->ids[i] < 0 || row < 0 || row >= box.shape[0]) {
            memset(out, 0, (size_t)(box.shape[1] * elem));
            continue;
        }
        from += row * stride[0] * elem;
        if (stride[1] == 1)
            memcpy(out, from, (size_t)(box.shape[1] * elem));
        else
            for (k = 0; k < box.shape[1]; k++) memcpy(out + k * elem, from + k * stride[1] * elem, (size_t)elem);
    }
    return MESH_OK;
}

MESH_API mesh_status mesh_embedding_backward(const mesh_lookup *l, int rank, mesh_error *err) {
    mesh_box box;
    mesh_status status;
    int64_t i, k, stride[2], from_bytes, to_bytes, run;
    const unsigned char *from;
    if (!mesh__lookup_check(l, rank, 1, &box, stride, &status, err)) return status;
    from_bytes = (int64_t)mesh_dtype_bytes(l->table->dtype);
    to_bytes = (int64_t)mesh_dtype_bytes(l->grad_dtype);
    run = stride[1] == 1 ? box.shape[1] : 1;
    for (i = 0; i < l->nids; i++) {
        int64_t row = l->ids[i] - box.offset[0];
        unsigned char *to = (unsigned char *)l->grad_table + row * stride[0] * to_bytes;
        from = (const unsigned char *)l->grad_out + i * box.shape[1] * from_bytes;
        if (l->ids[i] < 0 || row < 0 || row >= box.shape[0]) continue;
        for (k = 0; k < box.shape[1]; k += run)
            mesh__convert(l->grad_dtype, to + k * stride[1] * to_bytes, l->table->dtype, from + k * from_bytes,
                          (size_t)run, MESH_SUM);
    }
    return MESH_OK;
}
#endif /* MESH_VOCABULARY_IMPLEMENTED */
