/* mesh/vocabulary.h - a vocabulary over ranks: cross-entropy of sharded logits, rows of a sharded table. Part of mesh.h 0.1.0. MIT licence.

   Includes alike.h, rows.h and layout.h. Cross-entropy wherever the comm's memory is; lookups in the host's.

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
#include "alike.h"
#include "rows.h"
#include "layout.h"
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
/* A logit that is no number or +infinity makes the loss and gradient of its row, where that counts, no number, and so does a row of nothing but -infinity. Smoothed, logits
   whose distances from the row's greatest add up to more than an f32 holds make it infinite.
   One all_reduce (max) of a float per row and 4, then one (sum) of two; three where smoothed. ARGUMENT: what does not fit the above; a target that is no real
   column (named). STATE: the group is not open; on a GPU: the comm's stream is being captured (the comm stays). UNSUPPORTED: another dtype, a transport whose
   memory is not the host's and has no kernels. MISMATCH: the ranks along the axes that shard the vocabulary have other layouts, dtypes, vocabularies,
   smoothings or targets. Every rank that shares the rows fails, and writes nothing; the others of the comm hear of it, at the latest in their next call. On a GPU all pointers but `counted` are to its memory; the comm's stream goes on behind the
   result, and the host waits for it. */
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
    int64_t vocabulary;
    const int32_t *targets; /* on the host */
    int32_t *copied;        /* the same, where l's are not there */
    mesh_rows rows;         /* what the steps have in common */
    float *most;            /* per row, then MESH__SAID */
    float *sums;            /* per row: sum of exp, target's logit; with smoothing the sum of logits */
} mesh__logits;

MESH__PRIVATE mesh_status mesh__logits_check(mesh_comm *c, const mesh_loss *l, mesh__logits *g, mesh_error *err) {
    const mesh_tensor *t = l->logits;
    int64_t count;
    int k, rank = c->transport->rank;
    if (!t) return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the logits are NULL");
    if (mesh__rows_check(c, err) != MESH_OK) return MESH_ERR_UNSUPPORTED;
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
    if (!mesh__is_number((double)l->smoothing) || l->smoothing < 0 || l->smoothing >= 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "smoothing is not from 0 to less than 1");
    if ((count > 0 && !t->data) || (g->box.shape[0] > 0 && !l->targets))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the %s NULL, but rank %d holds %l rows",
                          l->targets ? "logits' data is" : "targets are", rank, g->box.shape[0]);
    return MESH_OK;
}

/* The targets on the host, each a real column or below 0. */
MESH__PRIVATE mesh_status mesh__logits_targets(mesh_comm *c, mesh__logits *g) {
    size_t nbytes = (size_t)g->box.shape[0] * sizeof(int32_t);
    int64_t i;
    mesh_status status = MESH_OK;
    g->targets = g->l->targets;
    if (mesh__by_device(c) && nbytes) {
        g->targets = g->copied = (int32_t *)mesh_transport_alloc(c->transport, nbytes);
        if (!g->copied)
            return mesh__comm_broken(c, MESH_ERR_MEMORY, c->transport->rank,
                                     "mesh_cross_entropy: no memory for %l targets", g->box.shape[0]);
        status = mesh__rows_copy(c, g->copied, g->l->targets, nbytes);
    }
    for (i = 0; i < g->box.shape[0] && status == MESH_OK; i++)
        if (g->targets[i] >= g->vocabulary)
            status = mesh__comm_broken(c, MESH_ERR_ARGUMENT, c->transport->rank,
                                       "mesh_cross_entropy: the target of row %l of rank %d is %d, of a vocabulary of "
                                       "%l; negative ones are ignored",
                                       i, c->transport->rank, (int)g->targets[i], g->vocabulary);
    return status;
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

MESH__PRIVATE void mesh__logits_say(const mesh__logits *g, uint64_t h[2], float said[MESH__SAID]) {
    const mesh_layout *l = &g->l->logits->layout;
    uint32_t smoothing;
    int64_t row;
    int k;
    h[0] = h[1] = 1;
    memcpy(&smoothing, &g->l->smoothing, sizeof smoothing);
    h[0] = mesh__mix(mesh__mix(h[0], (uint64_t)l->shape[0]), (uint64_t)l->shape[1]);
    h[0] = mesh__mix(mesh__mix(mesh__mix(h[0], (uint64_t)g->vocabulary), smoothing), (uint64_t)g->l->logits->dtype);
    h[0] = mesh__mix(h[0], (uint64_t)l->spec.rule);
    for (k = 0; k < l->on->naxes; k++) {
        const mesh_place *p = &l->spec.axis[k];
        h[0] = mesh__mix(h[0], (uint64_t)p->kind << 40 | (uint64_t)(p->kind == MESH_SHARD ? p->order : 0) << 32 |
                                   (uint32_t)p->dim);
    }
    for (row = 0; row < g->box.shape[0]; row++) h[1] = mesh__mix(h[1], (uint32_t)g->targets[row]);
    for (k = 0; k < 2; k++) {
        said[k] = (float)(h[k] >> 40); /* 24 bits are exact */
        said[2 + k] = -said[k];
    }
}

/* They have not. */
MESH__PRIVATE mesh_status mesh__logits_differ(mesh_comm *c, const char *axes, int targets, uint64_t word) {
    const mesh__group *g = mesh__group_find(mesh__impl(c), axes);
    int rank;
    const char *what = targets ? "other targets" : "another layout or dtype of the logits, vocabulary or smoothing";
    mesh_status status = mesh__alike_not(c, axes, g, word, &rank);
    if (status != MESH_OK) return status;
    if (rank < 0)
        return mesh__comm_broken(c, MESH_ERR_MISMATCH, -1, "mesh_cross_entropy: another rank along \"%s\" has %s", axes,
                                 what);
    return mesh__comm_broken(c, MESH_ERR_MISMATCH, rank,
                             "mesh_cross_entropy: rank %d has %s than rank %d; they are the same on all ranks along "
                             "\"%s\"",
                             rank, what, mesh_rank_at(&g->on, 0), axes);
}

/* The greatest logit of each row, over all ranks; and whether these have the same. */
MESH__PRIVATE mesh_status mesh__logits_most_of_all(mesh_comm *c, const mesh__logits *g, const char *axes) {
    float said[MESH__SAID];
    uint64_t h[2];
    int targets;
    size_t rows = (size_t)g->box.shape[0];
    mesh_rows most = g->rows;
    mesh_status status;
    most.op = MESH_ROWS_MOST;
    most.word = g->most;
    status = mesh__rows(c, &most);
    if (status != MESH_OK || !*axes) return status;
    mesh__logits_say(g, h, said);
    status = mesh__rows_copy(c, g->most + rows, said, sizeof said);
    if (status == MESH_OK) status = mesh_all_reduce(c, axes, g->most, g->most, rows + MESH__SAID, MESH_F32, MESH_MAX);
    if (status == MESH_OK) status = mesh__rows_copy(c, said, g->most + rows, sizeof said);
    if (status != MESH_OK || (said[0] == -said[2] && said[1] == -said[3])) return status;
    targets = said[0] == -said[2];
    return mesh__logits_differ(c, axes, targets, h[targets]);
}

MESH__PRIVATE mesh_status mesh__logits_run(mesh_comm *c, const mesh__logits *g, const char *axes) {
    const mesh_loss *l = g->l;
    int64_t row;
    mesh_rows exps = g->rows, loss = g->rows, gradient = g->rows;
    mesh_status status = mesh__logits_most_of_all(c, g, axes);
    exps.op = MESH_ROWS_EXP;
    exps.weight = g->most, exps.word = g->sums;
    if (status == MESH_OK) status = mesh__rows(c, &exps);
    if (status == MESH_OK && *axes)
        status = mesh_all_reduce(c, axes, g->sums, g->sums, (size_t)(exps.rows * exps.terms), MESH_F32, MESH_SUM);
    loss.op = MESH_ROWS_LOSS;
    loss.weight = g->sums, loss.word = l->loss;
    if (status == MESH_OK && l->loss) status = mesh__rows(c, &loss);
    gradient.op = MESH_ROWS_GRADIENT;
    gradient.to.base = l->gradient;
    gradient.weight = g->most, gradient.word = g->sums;
    if (status == MESH_OK && l->gradient) status = mesh__rows(c, &gradient);
    if (status == MESH_OK) status = mesh__rows_settle(c);
    if (status != MESH_OK || !l->counted) return status;
    for (*l->counted = row = 0; row < exps.rows; row++) *l->counted += g->targets[row] >= 0;
    return MESH_OK;
}

/* The steps over this rank's part. */
MESH__PRIVATE void mesh__logits_rows(mesh__logits *g) {
    const mesh_loss *l = g->l;
    const mesh_tensor *t = l->logits;
    mesh_rows *r = &g->rows;
    int64_t bytes = (int64_t)mesh_dtype_bytes(t->dtype);
    r->rows = g->box.shape[0], r->width = g->box.shape[1];
    r->from = mesh__matrix(t->data, t->dtype, r->width);
    if (t->strides) r->from.stride[2] = t->strides[0] * bytes, r->from.step = t->strides[1] * bytes;
    r->to = r->from;
    r->terms = l->smoothing > 0 ? 3 : 2;
    r->target = l->targets;
    r->row_scale = l->row_scale;
    r->first = g->box.offset[1];
    r->columns = g->vocabulary - r->first;
    if (r->columns > r->width) r->columns = r->width;
    if (r->columns < 0) r->columns = 0;
    r->vocabulary = g->vocabulary;
    r->smoothing = l->smoothing;
    r->scale = mesh__is_number((double)l->scale) && l->scale == 0 ? 1 : l->scale;
}

MESH__PRIVATE mesh_status mesh__logits_with_memory(mesh_comm *c, mesh__logits *g, const char *axes) {
    uint64_t rows = (uint64_t)g->box.shape[0];
    void *p;
    mesh_status status = mesh__rows_memory(c, (rows * 4 + MESH__SAID) * sizeof(float), &p);
    if (status != MESH_OK)
        return mesh__comm_broken(c, status, c->transport->rank, "mesh_cross_entropy: no memory for %u rows", rows);
    g->most = (float *)p;
    g->sums = g->most + rows + MESH__SAID;
    status = mesh__logits_run(c, g, axes);
    mesh__rows_free(c, p);
    return status;
}

MESH__PRIVATE mesh_status mesh__cross_entropy(mesh_comm *c, const mesh_loss *l) {
    char axes[MESH_MAX_AXES * MESH_NAME_BYTES];
    mesh__logits g;
    mesh_error why;
    mesh_request none;
    mesh__group *group = NULL;
    mesh_status status = mesh__call_begin(c, NULL, MESH_CALL_ALL_REDUCE, &none, &group);
    if (status == MESH_OK) status = mesh__on_stream(c);
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
    mesh__logits_rows(&g);
    status = mesh__logits_targets(c, &g);
    if (status == MESH_OK) status = mesh__logits_with_memory(c, &g, axes);
    mesh_transport_free(c->transport, g.copied);
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
    if (l && l->nids < 0) return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%s: %l ids", function, l->nids), 0;
    if (!t || (l->nids > 0 && !l->ids))
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
            mesh__copy_bytes(out, from, (size_t)(box.shape[1] * elem));
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
        unsigned char *to;
        if (l->ids[i] < 0 || row < 0 || row >= box.shape[0]) continue;
        to = (unsigned char *)l->grad_table + row * stride[0] * to_bytes;
        from = (const unsigned char *)l->grad_out + i * box.shape[1] * from_bytes;
        for (k = 0; k < box.shape[1]; k += run)
            mesh__convert(l->grad_dtype, to + k * stride[1] * to_bytes, l->table->dtype, from + k * from_bytes,
                          (size_t)run, MESH_SUM);
    }
    return MESH_OK;
}
#endif /* MESH_VOCABULARY_IMPLEMENTED */
