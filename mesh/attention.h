/* mesh/attention.h - ring attention: a sequence over ranks, keys and values travelling round. Part of mesh.h 0.1.0. MIT licence.

   Includes alike.h, rows.h, p2p.h and layout.h. Memory is the comm's: the host's, or a GPU's.

DO THIS
    Nothing: mesh_parallel.h includes it.

CONCEPTS
    ring    Each rank of a group holds a part of the sequence. In as many steps as there are ranks each computes its queries with the keys and values that it has,
            while those go on to the next rank (Liu, Zaharia, Abbeel 2023). What two parts give is merged by the logarithms of their sums of exp: the whole
            row's is lse = log(e^lse_1 + e^lse_2), and out = e^(lse_1 - lse) out_1 + e^(lse_2 - lse) out_2. Going back the gradients of keys and values travel
            with them, and home at the end.
    block   What computes a part is the caller's: a flash attention kernel has these arguments. Each part is a run of queries by a run of keys, wholly seen
            or on the diagonal, never wholly masked.
    zigzag  With a causal mask the first ranks of a plain cut have little to do. Rank r of n instead holds chunks r and 2n - 1 - r of 2n: every rank does the same.

EXAMPLE
    mesh_attention a = MESH_ZERO;
    a.batch = 4, a.heads = 16, a.kv_heads = 4, a.width = 64, a.sequence = 65536, a.dtype = MESH_F32, a.causal = 1;
    a.q = q, a.k = k, a.v = v, a.out = out, a.lse = lse;              batch x heads x positions x width, of this rank's positions
    a.forward = my_block, a.backward = my_block_backward;
    mesh_ring_attention(&comm, "cp", &a);
*/
#if !defined(MESH_ATTENTION_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_ATTENTION_IMPLEMENTED))
#include "alike.h"
#include "rows.h"
#include "p2p.h"
#include "layout.h"
#endif

#ifndef MESH_ATTENTION_H
#define MESH_ATTENTION_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mesh_sequence_order {
    MESH_SEQUENCE_PLAIN = 0, /* rank r of n holds chunk r of n, by the rule of layouts */
    /* Chunks r and 2n - 1 - r of 2n, one after the other: a permutation of the whole sequence made when data are loaded. 2n divides the sequence. */
    MESH_SEQUENCE_ZIGZAG
} mesh_sequence_order;

struct mesh_attention_part;
/* Computes with one part. Between two of them the transfers move on; it must call nothing of the library itself. On a GPU it puts that on the comm's stream
   (mesh_comm_desc.stream), and waits for nothing. */
typedef void (*mesh_attention_block)(void *ctx, const struct mesh_attention_part *part);

typedef struct mesh_attention {
    int batch, heads, kv_heads, width; /* kv_heads divides heads; width of a head */
    int64_t sequence;                  /* the whole of it */
    mesh_dtype dtype;                  /* of q, k, v, out and their gradients: f16, bf16 or f32. Sums are f32 */
    int order;                         /* mesh_sequence_order */
    int causal;
    int64_t q_stride[3],
        kv_stride[3];      /* batch, head, position, in elements; the width is contiguous. All 0: dense in that order */
    const void *q, *k, *v; /* this rank's positions, all its heads */
    void *out;             /* as q */
    float *lse;            /* batch x heads x positions. The caller keeps it and out for the backward */
    const void *grad_out;  /* backward: as q */
    void *grad_q, *grad_k, *grad_v; /* backward: written, as q and k */
    mesh_attention_block forward, backward;
    /* out and lse become those of both parts; rows of `width` floats. NULL: the library's. */
    void (*merge)(void *ctx, float *out, float *lse, const float *out_part, const float *lse_part, int64_t rows,
                  int width);
    void *ctx;
} mesh_attention;

typedef struct mesh_attention_part {
    const mesh_attention *all;
    const void *q, *k, *v; /* the part's first elements; strides: q_stride and kv_stride here */
    int64_t q_stride[3], kv_stride[3];
    int64_t queries, keys;           /* positions in the part: a run of each */
    int64_t first_query, first_key;  /* in the whole sequence */
    int diagonal;                    /* 1: a query sees keys up to its own position; 0: all */
    float *out, *lse;                /* forward: write. batch x heads x queries (x width), dense */
    const void *grad_out;            /* backward: as q */
    const float *lse_all, *dot;      /* backward: of the whole rows: log-sum-exp; sum(out * grad_out). Dense as lse */
    float *grad_q, *grad_k, *grad_v; /* backward: add. Dense */
} mesh_attention_part;

/* Positions that rank `index` of `ranks` holds: *count runs of them (at most two), each first[i] and length[i] in the whole sequence. Returns their sum;
   -1, and no runs: there is no such rank, order or sequence. */
MESH_API int64_t mesh_sequence_runs(int64_t sequence, int order, int ranks, int index, int64_t first[2],
                                    int64_t length[2], int *count);
/* axis: an open group. Every rank of it calls with the same batch, heads, kv_heads, width, sequence, dtype, order and causal, which are compared (MISMATCH:
   the number, by name). ARGUMENT: numbers that do not fit (with those that would); NULL. UNSUPPORTED: another dtype, a transport whose memory is not the host's
   and has no kernels. MEMORY. Then every rank fails. STATE: the comm's stream is being captured; the comm stays. On a GPU the host waits for the result. Bytes sent per rank: keys and values of all others, and 64 of what is compared for each of them. */
MESH_API mesh_status mesh_ring_attention(mesh_comm *c, const char *axis, const mesh_attention *a);
/* By the out and lse of the forward. Bytes sent per rank: keys and values of all others, their gradients in f32 of all ranks, and what is compared. */
MESH_API mesh_status mesh_ring_attention_backward(mesh_comm *c, const char *axis, const mesh_attention *a);

#ifdef __cplusplus
}
#endif
#endif /* MESH_ATTENTION_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_ATTENTION_IMPLEMENTED)
#define MESH_ATTENTION_IMPLEMENTED

MESH_API int64_t mesh_sequence_runs(int64_t sequence, int order, int ranks, int index, int64_t first[2],
                                    int64_t length[2], int *count) {
    int zigzag = order == MESH_SEQUENCE_ZIGZAG, i;
    int64_t chunks = (int64_t)ranks * (1 + zigzag), size, sum = 0;
    *count = 0;
    if (sequence < 0 || ranks < 1 || index < 0 || index >= ranks || (order != MESH_SEQUENCE_PLAIN && !zigzag))
        return -1;
    size = sequence / chunks + (sequence % chunks != 0);
    *count = 1 + zigzag;
    for (i = 0; i < *count; i++) {
        int64_t chunk = i ? chunks - 1 - index : index;
        first[i] = size && chunk <= sequence / size ? chunk * size : sequence;
        length[i] = sequence - first[i] < size ? sequence - first[i] : size;
        sum += length[i];
    }
    return sum;
}

/* What a rank holds of the sequence. */
typedef struct mesh__runs_of {
    int64_t first[2], length[2], positions;
    int count;
} mesh__runs_of;

typedef struct mesh__ring {
    mesh_comm *c;
    const char *axis;
    const mesh_attention *a;
    int n, index, back;
    mesh__runs_of own;
    int64_t q_stride[3], kv_stride[3];
    int64_t rows, kv_rows; /* batch x heads, batch x kv_heads */
    int64_t most;          /* positions of the rank that has most */
    /* Keys and values of a rank: all keys, then all values; batch x kv_heads x positions x width. Those here, and those that come. */
    unsigned char *block[2];
    mesh_request moving;
    /* Run by run of this rank's: rows x positions of the run (x width). */
    float *out, *lse, *dot;
    /* Of one part; going back: nothing. */
    float *part_out, *part_lse;
    /* Gradients of a rank's keys and values, run by run: kv_rows x positions of the run x width, keys then values. */
    float *grad[3];
    mesh_request homing;
    void *memory;
} mesh__ring;

MESH__PRIVATE mesh__runs_of mesh__ring_runs(const mesh__ring *r, int index) {
    mesh__runs_of runs;
    runs.positions = mesh_sequence_runs(r->a->sequence, r->a->order, r->n, index, runs.first, runs.length, &runs.count);
    return runs;
}

/* Elements of the keys and values of `positions`. */
MESH__PRIVATE size_t mesh__ring_elems(const mesh__ring *r, int64_t positions) {
    return (size_t)(2 * r->kv_rows * positions * r->a->width);
}

/* Do strides of batch, heads and positions nest, so that no element lies where another does? */
MESH__PRIVATE mesh_status mesh__ring_strides(const mesh_attention *a, int of_q, int64_t positions, int rank,
                                             mesh_error *err) {
    const int64_t *given = of_q ? a->q_stride : a->kv_stride;
    int64_t strides[4], bytes[MESH_MAX_DIMS];
    mesh_box box;
    memset(&box, 0, sizeof box);
    box.ndim = 4;
    box.shape[0] = a->batch, box.shape[1] = of_q ? a->heads : a->kv_heads;
    box.shape[2] = positions, box.shape[3] = a->width;
    if (!mesh_box_count(&box) || (!given[0] && !given[1] && !given[2])) return MESH_OK;
    memcpy(strides, given, 3 * sizeof *strides);
    strides[3] = 1;
    return mesh__strides_place(strides, &box, (int64_t)mesh_dtype_bytes(a->dtype), bytes,
                               of_q ? "q_stride" : "kv_stride", rank, err);
}

MESH__PRIVATE mesh_status mesh__ring_check(const mesh_comm *c, const mesh_attention *a, int n, int index, int back,
                                           mesh_error *err) {
    int64_t limit = INT64_MAX / 64, all, batch, chunks = 2 * (int64_t)n, first[2], length[2], held;
    int rank = c->transport->rank, count;
    if (!a) return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the attention is NULL");
    if (mesh__rows_check(c, err) != MESH_OK) return MESH_ERR_UNSUPPORTED;
    if (a->dtype != MESH_F32 && a->dtype != MESH_BF16 && a->dtype != MESH_F16)
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, rank, "%s; queries, keys and values are f16, bf16 or f32",
                          mesh_dtype_name(a->dtype));
    if (a->batch < 0 || a->heads < 1 || a->kv_heads < 1 || a->width < 1 || a->sequence < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                          "a batch of %d, %d heads, %d kv_heads, width %d, sequence %l; heads and width are above 0",
                          a->batch, a->heads, a->kv_heads, a->width, a->sequence);
    if (a->heads % a->kv_heads)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%d kv_heads do not divide %d heads", a->kv_heads, a->heads);
    if (a->order != MESH_SEQUENCE_PLAIN && a->order != MESH_SEQUENCE_ZIGZAG)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "order %d is none; see mesh_sequence_order", a->order);
    all = (int64_t)a->heads * a->width;
    batch = a->batch ? a->batch : 1;
    if (all > limit / batch || (a->sequence && all * batch > limit / a->sequence))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%d x %d x %l x %d elements are too many to count", a->batch,
                          a->heads, a->sequence, a->width);
    if (a->order == MESH_SEQUENCE_ZIGZAG && a->sequence % chunks)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                          "zigzag over %d ranks cuts the sequence in %l, which %l does not divide by; %l or %l do", n,
                          chunks, a->sequence, a->sequence / chunks * chunks, (a->sequence / chunks + 1) * chunks);
    held = mesh_sequence_runs(a->sequence, a->order, n, index, first, length, &count);
    if (!(back ? a->backward : a->forward))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the function %s is NULL", back ? "backward" : "forward");
    if (held && a->batch &&
        (!a->q || !a->k || !a->v || !a->out || !a->lse ||
         (back && (!a->grad_out || !a->grad_q || !a->grad_k || !a->grad_v))))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%s NULL, but rank %d holds %l positions",
                          !a->q                ? "q is"
                          : !a->k              ? "k is"
                          : !a->v              ? "v is"
                          : !a->out || !a->lse ? "out or lse is"
                                               : "grad_out, grad_q, grad_k or grad_v is",
                          rank, held);
    if (mesh__ring_strides(a, 1, held, rank, err) != MESH_OK) return MESH_ERR_ARGUMENT;
    return mesh__ring_strides(a, 0, held, rank, err);
}

/* ---- // >>rows: between the caller's memory and runs of floats ---- */

/* A position of a strided tensor: the address of its first element. */
MESH__PRIVATE unsigned char *mesh__ring_at(const mesh__ring *r, const void *data, const int64_t *stride,
                                           int64_t position) {
    return (unsigned char *)(uintptr_t)data + position * stride[2] * (int64_t)mesh_dtype_bytes(r->a->dtype);
}

/* The caller's tensor from position `before` on, `length` positions of it, as rows in the order batch, head, position. */
MESH__PRIVATE mesh_matrix mesh__ring_matrix(const mesh__ring *r, const void *data, const int64_t *stride, int heads,
                                            int64_t before, int64_t length) {
    mesh_matrix m = mesh__matrix(data, r->a->dtype, 0);
    m.base = (unsigned char *)m.base + before * stride[2] * m.step;
    m.count[0] = length ? length : 1, m.count[1] = heads;
    m.stride[0] = stride[2] * m.step, m.stride[1] = stride[1] * m.step, m.stride[2] = stride[0] * m.step;
    return m;
}

/* Floats run by run, as the caller's tensor. */
MESH__PRIVATE mesh_status mesh__ring_give(mesh__ring *r, void *to, const int64_t *stride, int heads,
                                          const float *from) {
    int64_t before = 0;
    int i;
    mesh_status status = MESH_OK;
    for (i = 0; i < r->own.count && status == MESH_OK; before += r->own.length[i++]) {
        mesh_rows rows = MESH_ZERO;
        rows.op = MESH_ROWS_SUM;
        rows.terms = 1;
        rows.rows = (int64_t)r->a->batch * heads * r->own.length[i], rows.width = r->a->width;
        rows.to = mesh__ring_matrix(r, to, stride, heads, before, r->own.length[i]);
        rows.from = mesh__matrix(from, MESH_F32, rows.width);
        status = mesh__rows(r->c, &rows);
        from += rows.rows * rows.width;
    }
    return status;
}

/* This rank's keys and values, one after the other, to travel. */
MESH__PRIVATE mesh_status mesh__ring_pack(mesh__ring *r) {
    int v;
    mesh_status status = MESH_OK;
    for (v = 0; v < 2 && status == MESH_OK; v++) {
        mesh_rows rows = MESH_ZERO;
        rows.op = MESH_ROWS_MOVE;
        rows.rows = r->kv_rows * r->own.positions, rows.width = r->a->width;
        rows.to = mesh__matrix(r->block[0], r->a->dtype, rows.width);
        if (v) rows.to.base = r->block[0] + rows.rows * rows.to.stride[2];
        rows.from = mesh__ring_matrix(r, v ? r->a->v : r->a->k, r->kv_stride, r->a->kv_heads, 0, r->own.positions);
        status = mesh__rows(r->c, &rows);
    }
    return status;
}

/* The log-sum-exp of each row, to the caller's order or (home 0) run by run. */
MESH__PRIVATE mesh_status mesh__ring_lse(mesh__ring *r, int home) {
    int64_t before = 0;
    int i;
    mesh_status status = MESH_OK;
    for (i = 0; i < r->own.count && status == MESH_OK; before += r->own.length[i++]) {
        mesh_matrix by_run = mesh__matrix(r->lse + before * r->rows, MESH_F32, r->own.length[i]),
                    whole = mesh__matrix(r->a->lse + before, MESH_F32, r->own.positions);
        mesh_rows rows = MESH_ZERO;
        rows.op = MESH_ROWS_MOVE;
        rows.rows = r->rows, rows.width = r->own.length[i];
        rows.to = home ? whole : by_run;
        rows.from = home ? by_run : whole;
        status = mesh__rows(r->c, &rows);
    }
    return status;
}

/* Of each row the log-sum-exp, run by run, and sum(out * grad_out). */
MESH__PRIVATE mesh_status mesh__ring_rows(mesh__ring *r) {
    int64_t before = 0;
    int i;
    mesh_status status = mesh__ring_lse(r, 0);
    for (i = 0; i < r->own.count && status == MESH_OK; before += r->own.length[i++]) {
        const mesh_attention *a = r->a;
        mesh_rows rows = MESH_ZERO;
        rows.op = MESH_ROWS_DOT;
        rows.rows = r->rows * r->own.length[i], rows.width = a->width;
        rows.from = mesh__ring_matrix(r, a->out, r->q_stride, a->heads, before, r->own.length[i]);
        rows.with = mesh__ring_matrix(r, a->grad_out, r->q_stride, a->heads, before, r->own.length[i]);
        rows.word = r->dot + before * r->rows;
        status = mesh__rows(r->c, &rows);
    }
    return status;
}

/* A part's out and lse become one with those of the parts before it. */
MESH__PRIVATE mesh_status mesh__ring_merge(mesh__ring *r, float *out, float *lse, const mesh_attention_part *p) {
    mesh_rows rows = MESH_ZERO;
    rows.op = MESH_ROWS_MERGE;
    rows.rows = r->rows * p->queries, rows.width = r->a->width;
    rows.to = mesh__matrix(out, MESH_F32, rows.width);
    rows.from = mesh__matrix(p->out, MESH_F32, rows.width);
    rows.word = lse, rows.weight = p->lse;
    if (!r->a->merge) return mesh__rows(r->c, &rows);
    r->a->merge(r->a->ctx, out, lse, p->out, p->lse, rows.rows, r->a->width);
    return MESH_OK;
}

/* ---- // >>parts ---- */

/* Run i of this rank's queries and run j of the keys of those it has: what is computed of it. 0: nothing. */
MESH__PRIVATE int mesh__ring_part(const mesh__ring *r, const unsigned char *block, const mesh__runs_of *of, int i,
                                  int j, mesh_attention_part *p) {
    const mesh_attention *a = r->a;
    int64_t before = i ? r->own.length[0] : 0, skip = j ? of->length[0] : 0;
    size_t bytes = mesh_dtype_bytes(a->dtype), values = mesh__ring_elems(r, of->positions) / 2;
    int d;
    memset(p, 0, sizeof *p);
    if (!r->own.length[i] || !of->length[j] || !a->batch || (a->causal && of->first[j] > r->own.first[i])) return 0;
    p->all = a;
    p->queries = r->own.length[i], p->keys = of->length[j];
    p->first_query = r->own.first[i], p->first_key = of->first[j];
    p->diagonal = a->causal && p->first_key == p->first_query;
    for (d = 0; d < 3; d++) p->q_stride[d] = r->q_stride[d];
    p->kv_stride[2] = a->width;
    p->kv_stride[1] = of->positions * a->width;
    p->kv_stride[0] = a->kv_heads * p->kv_stride[1];
    p->q = mesh__ring_at(r, a->q, r->q_stride, before);
    p->k = block + (size_t)(skip * a->width) * bytes;
    p->v = block + (values + (size_t)(skip * a->width)) * bytes;
    if (r->back) {
        float *grad = r->grad[0] + skip * r->kv_rows * a->width;
        p->grad_out = mesh__ring_at(r, a->grad_out, r->q_stride, before);
        p->lse_all = r->lse + before * r->rows;
        p->dot = r->dot + before * r->rows;
        p->grad_q = r->out + before * r->rows * a->width;
        p->grad_k = grad;
        p->grad_v = grad + values;
    } else {
        p->out = r->out + before * r->rows * a->width;
        p->lse = r->lse + before * r->rows;
    }
    return 1;
}

/* All parts of this rank's queries with the keys and values of rank `origin`. have[i]: run i of the queries has an out. */
MESH__PRIVATE mesh_status mesh__ring_compute(mesh__ring *r, const unsigned char *block, int origin, int have[2]) {
    mesh__runs_of of = mesh__ring_runs(r, origin);
    mesh_attention_part p;
    int i, j;
    mesh_status status = MESH_OK;
    for (i = 0; i < r->own.count; i++)
        for (j = 0; j < of.count && status == MESH_OK; j++) {
            float *out, *lse;
            int merges = !r->back && have[i];
            if (!mesh__ring_part(r, block, &of, i, j, &p)) continue;
            out = p.out, lse = p.lse;
            if (merges) p.out = r->part_out, p.lse = r->part_lse;
            (r->back ? r->a->backward : r->a->forward)(r->a->ctx, &p);
            if (merges) status = mesh__ring_merge(r, out, lse, &p);
            have[i] = 1;
            if (r->n > 1) mesh_progress(r->c->transport, 0);
        }
    return status;
}

/* ---- // >>rounds ---- */

/* One array for all; the parts begin at multiples of 64 bytes. */
MESH__PRIVATE mesh_status mesh__ring_memory(mesh__ring *r) {
    const mesh_attention *a = r->a;
    size_t blocks = mesh__ring_elems(r, r->most), rows = (size_t)(r->rows * r->most), each[9], sum = 64;
    unsigned char *p;
    int i;
    mesh_status status;
    each[0] = each[1] = blocks * mesh_dtype_bytes(a->dtype);
    each[2] = rows * (size_t)a->width * sizeof(float);
    each[3] = each[4] = rows * sizeof(float);
    each[5] = r->back ? 0 : each[2];
    each[6] = each[7] = each[8] = r->back ? blocks * sizeof(float) : 0;
    for (i = 0; i < 9; i++) sum += (each[i] = (each[i] + 63) / 64 * 64);
    status = mesh__rows_memory(r->c, sum, &r->memory);
    if (status != MESH_OK) return status;
    p = (unsigned char *)(((uintptr_t)r->memory + 63) / 64 * 64);
    r->block[0] = p, p += each[0];
    r->block[1] = p, p += each[1];
    r->out = (float *)(void *)p, p += each[2];
    r->lse = (float *)(void *)p, p += each[3];
    r->dot = r->part_lse = (float *)(void *)p, p += each[4];
    r->part_out = (float *)(void *)p, p += each[5];
    for (i = 0; i < 3; i++, p += each[6]) r->grad[i] = (float *)(void *)p;
    return mesh__rows_zero(r->c, r->out, each[2]);
}

/* To the next rank what is of `from`, from the one before what is of the rank before that. */
MESH__PRIVATE mesh_status mesh__ring_pass(mesh__ring *r, const void *send, void *recv, int from, mesh_dtype dtype,
                                          mesh_request *request) {
    int64_t out = mesh__ring_runs(r, from).positions, in = mesh__ring_runs(r, (from + r->n - 1) % r->n).positions;
    return mesh_sendrecv_start(r->c, r->axis, (r->index + 1) % r->n, send, mesh__ring_elems(r, out),
                               (r->index + r->n - 1) % r->n, recv, mesh__ring_elems(r, in), dtype, request);
}

/* What came of the gradients of `origin`'s keys and values is added to this rank's, and goes on. */
MESH__PRIVATE mesh_status mesh__ring_homing(mesh__ring *r, int step, int origin) {
    float *mine = r->grad[0];
    mesh_status status = MESH_OK;
    if (step > 0) {
        mesh_rows rows = MESH_ZERO;
        rows.op = MESH_ROWS_SUM;
        rows.terms = rows.add = 1;
        rows.rows = 2 * r->kv_rows * mesh__ring_runs(r, origin).positions, rows.width = r->a->width;
        rows.to = mesh__matrix(mine, MESH_F32, rows.width);
        rows.from = mesh__matrix(r->grad[2], MESH_F32, rows.width);
        if ((status = mesh_wait(r->homing)) == MESH_OK) status = mesh__rows(r->c, &rows);
    }
    if (status != MESH_OK) return status;
    r->grad[0] = r->grad[1]; /* it has been sent */
    r->grad[1] = mine;
    return mesh__ring_pass(r, mine, r->grad[2], origin, MESH_F32, &r->homing);
}

MESH__PRIVATE mesh_status mesh__ring_rounds(mesh__ring *r) {
    int step, have[2] = {0, 0};
    mesh_status status = mesh__ring_pack(r);
    if (status == MESH_OK && r->back) status = mesh__ring_rows(r);
    for (step = 0; step < r->n && status == MESH_OK; step++) {
        int origin = (r->index + r->n - step) % r->n, last = step + 1 == r->n;
        size_t elems = mesh__ring_elems(r, mesh__ring_runs(r, origin).positions);
        unsigned char *block = r->block[step & 1];
        if (!last) status = mesh__ring_pass(r, block, r->block[~step & 1], origin, r->a->dtype, &r->moving);
        if (status == MESH_OK && r->back) status = mesh__rows_zero(r->c, r->grad[0], elems * sizeof(float));
        if (status == MESH_OK) status = mesh__ring_compute(r, block, origin, have);
        if (!last && status == MESH_OK) status = mesh_wait(r->moving);
        if (status == MESH_OK && r->back && r->n > 1) status = mesh__ring_homing(r, step, origin);
    }
    if (status == MESH_OK && r->back && r->n > 1) return mesh_wait(r->homing);
    if (status != MESH_OK) mesh_wait(r->moving), mesh_wait(r->homing); /* the memory is theirs until then */
    return status;
}

/* What is known before anything is asked of memory: dense strides, sizes. */
MESH__PRIVATE void mesh__ring_measure(mesh__ring *r) {
    const mesh_attention *a = r->a;
    int d, q = 0, kv = 0, i;
    r->own = mesh__ring_runs(r, r->index);
    r->rows = (int64_t)a->batch * a->heads;
    r->kv_rows = (int64_t)a->batch * a->kv_heads;
    for (i = 0; i < r->n; i++) {
        int64_t held = mesh__ring_runs(r, i).positions;
        if (held > r->most) r->most = held;
    }
    for (d = 0; d < 3; d++) {
        r->q_stride[d] = a->q_stride[d], r->kv_stride[d] = a->kv_stride[d];
        q |= a->q_stride[d] != 0, kv |= a->kv_stride[d] != 0;
    }
    for (d = 2; d >= 0; d--) {
        if (!q) r->q_stride[d] = d == 2 ? a->width : r->q_stride[d + 1] * (d == 1 ? r->own.positions : a->heads);
        if (!kv) r->kv_stride[d] = d == 2 ? a->width : r->kv_stride[d + 1] * (d == 1 ? r->own.positions : a->kv_heads);
    }
}

/* All ranks compare the numbers: what one has otherwise would be computed with wrong positions, and told by nobody. */
MESH__PRIVATE mesh_status mesh__ring_alike(const mesh__ring *r, const char *function, const mesh__group *g) {
    const mesh_attention *a = r->a;
    mesh__number said[8] = {{"batch", 0},    {"heads", 0}, {"kv_heads", 0}, {"width", 0},
                            {"sequence", 0}, {"dtype", 0}, {"order", 0},    {"causal", 0}};
    said[0].value = a->batch;
    said[1].value = a->heads;
    said[2].value = a->kv_heads;
    said[3].value = a->width;
    said[4].value = a->sequence;
    said[5].value = (int64_t)a->dtype;
    said[6].value = a->order;
    said[7].value = a->causal != 0;
    return mesh__alike(r->c, function, r->axis, g, said, 8);
}

/* The group, and the numbers. */
MESH__PRIVATE mesh_status mesh__ring_begin(mesh_comm *c, const char *axis, const mesh_attention *a, mesh__ring *r,
                                           int back) {
    const char *function = back ? "mesh_ring_attention_backward" : "mesh_ring_attention";
    mesh__group *g = NULL;
    mesh_request none;
    mesh_error why;
    mesh_status status = mesh__call_begin(c, axis, MESH_CALL_SENDRECV, &none, &g);
    if (status == MESH_OK) status = mesh__on_stream(c);
    if (status != MESH_OK) return status;
    memset(r, 0, sizeof *r);
    memset(&why, 0, sizeof why);
    r->c = c, r->axis = axis, r->a = a, r->back = back;
    r->n = g->on.size, r->index = g->index;
    status = mesh__ring_check(c, a, r->n, r->index, back, &why);
    if (status != MESH_OK)
        return mesh__comm_broken(c, status, c->transport->rank, "%s(\"%s\"): %s", function, axis ? axis : "(all axes)",
                                 why.text);
    mesh__ring_measure(r);
    if ((status = mesh__ring_alike(r, function, g)) != MESH_OK) return status;
    if ((status = mesh__ring_memory(r)) != MESH_OK && !c->failed)
        return mesh__comm_broken(c, status, c->transport->rank, "%s(\"%s\"): no memory for %l positions", function,
                                 axis ? axis : "(all axes)", r->most);
    return status;
}

/* The blocks are computed outside of the transport's lock: a progress thread moves what travels meanwhile. */
MESH__PRIVATE mesh_status mesh__ring_run(mesh__ring *r) {
    const mesh_attention *a = r->a;
    const float *grad = r->n > 1 ? r->grad[2] : r->grad[0];
    mesh_status status = mesh__ring_rounds(r);
    if (!r->back) {
        if (status == MESH_OK) status = mesh__ring_give(r, a->out, r->q_stride, a->heads, r->out);
        return status == MESH_OK ? mesh__ring_lse(r, 1) : status;
    }
    if (status == MESH_OK) status = mesh__ring_give(r, a->grad_q, r->q_stride, a->heads, r->out);
    if (status == MESH_OK) status = mesh__ring_give(r, a->grad_k, r->kv_stride, a->kv_heads, grad);
    grad += mesh__ring_elems(r, r->own.positions) / 2;
    return status == MESH_OK ? mesh__ring_give(r, a->grad_v, r->kv_stride, a->kv_heads, grad) : status;
}

MESH__PRIVATE mesh_status mesh__ring_start(mesh_comm *c, const char *axis, const mesh_attention *a, mesh__ring *r,
                                           int back) {
    MESH__ALONE_COMPOSED(c, back ? "ring_attention_backward" : "ring_attention", mesh__ring_begin(c, axis, a, r, back));
}

MESH__PRIVATE mesh_status mesh__ring_end(mesh_comm *c, mesh_status status, int back) {
    const char *name = back ? "ring_attention_backward" : "ring_attention";
    MESH__ALONE(c, name, mesh__composed(c, name, 0, status));
}

/* On a device all of it is one call: what is on the stream belongs to nobody else until it is over, also where something fails in between. */
MESH__PRIVATE mesh_status mesh__ring_there(mesh_comm *c, const char *axis, const mesh_attention *a, mesh__ring *r,
                                           int back) {
    mesh_status status = mesh__ring_begin(c, axis, a, r, back), settled;
    if (status != MESH_OK) return status;
    status = mesh__ring_run(r);
    settled = mesh__rows_settle(c);
    mesh__rows_free(c, r->memory);
    return status == MESH_OK ? settled : status;
}

MESH__PRIVATE mesh_status mesh__ring_call(mesh_comm *c, const char *axis, const mesh_attention *a, int back) {
    mesh__ring r;
    mesh_status status;
    if (!c) return MESH_ERR_ARGUMENT;
    if (c->impl && mesh__by_device(c))
        MESH__ALONE_COMPOSED(c, back ? "ring_attention_backward" : "ring_attention",
                             mesh__ring_there(c, axis, a, &r, back));
    if ((status = mesh__ring_start(c, axis, a, &r, back)) != MESH_OK) return status;
    status = mesh__ring_run(&r);
    mesh__rows_free(c, r.memory);
    return mesh__ring_end(c, status, back);
}

MESH_API mesh_status mesh_ring_attention(mesh_comm *c, const char *axis, const mesh_attention *a) {
    return mesh__ring_call(c, axis, a, 0);
}

MESH_API mesh_status mesh_ring_attention_backward(mesh_comm *c, const char *axis, const mesh_attention *a) {
    return mesh__ring_call(c, axis, a, 1);
}
#endif /* MESH_ATTENTION_IMPLEMENTED */
