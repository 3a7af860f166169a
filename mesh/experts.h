/* mesh/experts.h - tokens to experts and back, forward and backward. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh_collectives.h and layout.h. Host memory.

DO THIS
    Nothing: mesh_parallel.h includes it.

EXAMPLE
    mesh_moe_open(&moe, &comm, "ep", &desc);                                     experts 0 .. 63 over the ranks along ep
    mesh_moe_dispatch(&moe, 0, tokens, ntokens, expert, &rows);                  rows.data: what this rank's experts get, by expert
    ... out = the experts' functions of rows.data, row by row ...
    mesh_moe_combine(&moe, 0, out, weight, tokens_out);                          each token: the sum over its experts of weight * row
    ... backward ...
    mesh_moe_combine_backward(&moe, 0, grad_tokens, out, weight, grad_out, grad_weight);
    ... grad_rows, of grad_out ...
    mesh_moe_dispatch_backward(&moe, 0, grad_rows, grad_in);

CONVENTIONS
    Tokens are this rank's own, sharded over every axis of the comm (replicas would be computed, and counted, once each: slice them first). Expert e is on
    the rank along `axes` that the chunk rule says; ranks may have none. Rows on an expert's rank lie by expert, then by the source's index, then token, then
    k: an order that no rank's speed changes. A slot holds one dispatch until its backward, or the next dispatch into it: one per layer and
    micro-batch in flight. Routing as in GShard (Lepikhin et al. 2020), without its capacity unless one is given.
*/
#if !defined(MESH_EXPERTS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_EXPERTS_IMPLEMENTED))
#include "alike.h"
#include "layout.h"
#endif

#ifndef MESH_EXPERTS_H
#define MESH_EXPERTS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mesh_moe_desc {
    int experts, top_k, width;
    mesh_dtype dtype;   /* f16, bf16, f32 or f64; sums are f32, of f64 f64 */
    int64_t max_tokens; /* of a rank, per dispatch */
    int64_t capacity;   /* rows of one expert from one rank, in token order; those beyond are dropped. 0: no limit */
    int align; /* each expert's rows begin at a multiple of it, and end at one (grouped matrix products); between are zeros. 0: 1 */
    int slots; /* 0: 1 */
} mesh_moe_desc;
typedef struct mesh_moe {
    mesh_comm *comm;
    void *impl; /* NULL: closed. From the transport's allocator */
} mesh_moe;
typedef struct mesh_moe_rows { /* the slot's memory, until it is dispatched again or the moe closed */
    void *data;                /* nrows x width */
    int64_t nrows;
    int first_expert, nexperts;   /* on this rank */
    const int64_t *start, *count; /* rows of each of them */
    int64_t dropped;              /* of this rank's tokens x k */
    const uint8_t *kept;          /* tokens x k: 0 dropped, or none was asked for */
} mesh_moe_rows;

/* axes: an open group. Every rank of it opens, with the same experts, top_k, width, dtype and capacity, which are compared. ARGUMENT, UNSUPPORTED (a dtype;
   memory that is not the host's), STATE, MEMORY, MISMATCH (the number, by name): on every rank. */
MESH_API mesh_status mesh_moe_open(mesh_moe *m, mesh_comm *c, const char *axes, const mesh_moe_desc *d);
/* Before the transport's close. OK if it is closed already. */
MESH_API mesh_status mesh_moe_close(mesh_moe *m);
/* expert: tokens x k global ids, negative: none; one may be asked for twice. Counts travel first, then rows. Memory for what comes is the slot's and grows with
   it. ARGUMENT: a slot or an id that is none, too many tokens, NULL. MEMORY. Every rank fails. */
MESH_API mesh_status mesh_moe_dispatch(mesh_moe *m, int slot, const void *tokens, int64_t ntokens,
                                       const int32_t *expert, mesh_moe_rows *rows);
/* out: what the experts made of the rows, nrows x width, the caller's. tokens: ntokens x width, the sum over k, in k's order, of weight * row, rounded once;
   dropped ones count 0. weight: tokens x k; NULL: 1. STATE: nothing was dispatched into the slot. */
MESH_API mesh_status mesh_moe_combine(mesh_moe *m, int slot, const void *out, const float *weight, void *tokens);
/* out and weight as in combine. grad_out: nrows x width, weight * the token's gradient; grad_weight: tokens x k, its dot product with out, taken where the
   rows are; 0 where dropped. Either may be NULL. STATE: nothing was combined in the slot. */
MESH_API mesh_status mesh_moe_combine_backward(mesh_moe *m, int slot, const void *grad_tokens, const void *out,
                                               const float *weight, void *grad_out, float *grad_weight);
/* grad_tokens: ntokens x width, the sum over k of the rows' gradients. The slot is free then. STATE: nothing was dispatched into it. */
MESH_API mesh_status mesh_moe_dispatch_backward(mesh_moe *m, int slot, const void *grad_rows, void *grad_tokens);

#ifdef __cplusplus
}
#endif
#endif /* MESH_EXPERTS_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_EXPERTS_IMPLEMENTED)
#define MESH_EXPERTS_IMPLEMENTED

typedef enum mesh__moe_state { MESH__MOE_EMPTY, MESH__MOE_DISPATCHED, MESH__MOE_COMBINED } mesh__moe_state;

typedef struct mesh__room { /* memory that grows */
    void *p;
    size_t nbytes;
} mesh__room;

typedef struct mesh__moe_slot {
    mesh__moe_state state;
    int64_t ntokens, dropped, nrows;
    int64_t sent, came; /* rows, without what aligns them */
    int64_t *place;     /* of each token and k: its row on the wire; -1: none */
    uint8_t *kept;
    int64_t *from;          /* rows that came, by source and local expert */
    int64_t *start, *count; /* of each local expert */
    int64_t *to;            /* rows that went to each rank */
    mesh__room rows;
} mesh__moe_slot;

typedef struct mesh__moe {
    mesh_transport *t;
    mesh_moe_desc d;
    char axes[MESH_MAX_AXES * MESH_NAME_BYTES];
    int n, per, first, experts; /* ranks; experts of a rank at most; this rank's */
    size_t row;                 /* bytes of one */
    mesh__moe_slot *slot;
    int64_t *by_expert; /* rows of this rank for each, and then where the next one goes */
    uint64_t *counts;   /* two tables of n x per */
    size_t *v[4];       /* counts and offsets both ways, of an all_to_all_v */
    mesh__room wire[2]; /* by expert and token at the tokens' rank; by source at the experts' */
    mesh__room word[2]; /* a float of each row, the same way */
} mesh__moe;

MESH__PRIVATE mesh__moe *mesh__moe_of(const mesh_moe *m) { return (mesh__moe *)m->impl; }

/* As calls take them; "": all. */
MESH__PRIVATE const char *mesh__moe_axes(const mesh__moe *m) { return m->axes[0] ? m->axes : NULL; }

MESH__PRIVATE int mesh__room_for(mesh__moe *m, mesh__room *r, size_t nbytes) {
    if (nbytes <= r->nbytes && r->p) return 1;
    mesh_transport_free(m->t, r->p);
    r->p = mesh_transport_alloc(m->t, nbytes + 64);
    r->nbytes = r->p ? nbytes + 64 : 0;
    return r->p != NULL;
}

/* ---- // >>open ---- */

MESH__RARE mesh_status mesh__moe_check(mesh_comm *c, const mesh_moe_desc *d, mesh_error *err) {
    int rank = c->transport->rank;
    if (!d) return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the desc is NULL");
    if (c->transport->caps & MESH_CAP_DEVICE)
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, rank, "memory that is not the host's");
    if (d->experts < 1 || d->top_k < 1 || d->width < 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%d experts, top %d, rows of %d: all are above 0", d->experts,
                          d->top_k, d->width);
    if (d->max_tokens < 0 || d->capacity < 0 || d->align < 0 || d->slots < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                          "max_tokens %l, capacity %l, align %d, slots %d: none is below 0", d->max_tokens, d->capacity,
                          d->align, d->slots);
    if (d->dtype != MESH_F16 && d->dtype != MESH_BF16 && d->dtype != MESH_F32 && d->dtype != MESH_F64)
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, rank, "%s; rows are f16, bf16, f32 or f64",
                          mesh_dtype_name(d->dtype));
    if (d->max_tokens > INT64_MAX / 64 / d->top_k / d->width)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%l tokens x %d x %d are too many to count", d->max_tokens,
                          d->top_k, d->width);
    return MESH_OK;
}

MESH__RARE void mesh__moe_free(mesh__moe *m) {
    int i;
    for (i = 0; m->slot && i < m->d.slots; i++) {
        mesh_transport_free(m->t, m->slot[i].place); /* the others lie behind it */
        mesh_transport_free(m->t, m->slot[i].rows.p);
    }
    for (i = 0; i < 2; i++) {
        mesh_transport_free(m->t, m->wire[i].p);
        mesh_transport_free(m->t, m->word[i].p);
    }
    mesh_transport_free(m->t, m->slot);
    mesh_transport_free(m->t, m->by_expert);
    mesh_transport_free(m->t, m);
}

/* The arrays of sizes that are known. 0: no memory. */
MESH__RARE int mesh__moe_memory(mesh__moe *m) {
    size_t n = (size_t)m->n, per = (size_t)m->per, experts = (size_t)m->experts, e = (size_t)m->d.experts;
    size_t asked = (size_t)(m->d.max_tokens * m->d.top_k);
    uint64_t most = 16 * ((uint64_t)m->d.max_tokens * (uint64_t)m->d.top_k + (uint64_t)m->n * (uint64_t)m->per) +
                    64 * ((uint64_t)m->d.experts + (uint64_t)m->n);
    int i;
    if (most > SIZE_MAX / 2) return 0;
    m->slot = (mesh__moe_slot *)mesh_transport_alloc(m->t, (size_t)m->d.slots * sizeof *m->slot);
    m->by_expert = (int64_t *)mesh_transport_alloc(m->t, e * 8 + 2 * n * per * 8 + 4 * n * sizeof(size_t));
    if (m->slot) memset(m->slot, 0, (size_t)m->d.slots * sizeof *m->slot);
    if (!m->slot || !m->by_expert) return 0;
    m->counts = (uint64_t *)(m->by_expert + e);
    for (i = 0; i < 4; i++) m->v[i] = (size_t *)(void *)(m->counts + 2 * n * per) + (size_t)i * n;
    for (i = 0; i < m->d.slots; i++) {
        mesh__moe_slot *s = &m->slot[i];
        s->place = (int64_t *)mesh_transport_alloc(m->t, (asked + n * per + 2 * experts + n) * 8 + asked + 1);
        if (!s->place) return 0;
        s->from = s->place + asked;
        s->start = s->from + n * per;
        s->count = s->start + experts;
        s->to = s->count + experts;
        s->kept = (uint8_t *)(s->to + n);
    }
    return 1;
}

MESH__RARE mesh_status mesh__moe_alike(mesh_comm *c, const char *axes, const mesh__group *g, const mesh_moe_desc *d) {
    mesh__number said[5] = {{"experts", 0}, {"top_k", 0}, {"width", 0}, {"dtype", 0}, {"capacity", 0}};
    said[0].value = d->experts;
    said[1].value = d->top_k;
    said[2].value = d->width;
    said[3].value = (int64_t)d->dtype;
    said[4].value = d->capacity;
    return mesh__alike(c, "mesh_moe_open", axes, g, said, 5);
}

MESH__RARE mesh_status mesh__moe_open(mesh_moe *moe, mesh_comm *c, const char *axes, const mesh_moe_desc *d) {
    mesh__group *g = NULL;
    mesh_request none;
    mesh_error why;
    mesh__moe *m;
    int last;
    mesh_status status = mesh__call_begin(c, axes, MESH_CALL_ALL_TO_ALL_V, &none, &g);
    if (status != MESH_OK) return status;
    status =
        moe ? mesh__moe_check(c, d, &why) : mesh__fail(&why, MESH_ERR_ARGUMENT, c->transport->rank, "the moe is NULL");
    if (status != MESH_OK) return mesh__comm_broken(c, status, c->transport->rank, "mesh_moe_open: %s", why.text);
    if ((m = (mesh__moe *)mesh_transport_alloc(c->transport, sizeof *m)) != NULL) {
        mesh__text t;
        memset(m, 0, sizeof *m);
        t = mesh__text_on(m->axes, sizeof m->axes);
        mesh__put(&t, "%s", g->axes ? g->axes : "");
        m->t = c->transport;
        m->d = *d;
        if (!m->d.align) m->d.align = 1;
        if (!m->d.slots) m->d.slots = 1;
        m->n = g->on.size;
        m->per = (d->experts - 1) / m->n + 1;
        m->first = g->index <= d->experts / m->per ? m->per * g->index : d->experts;
        last = d->experts - m->first < m->per ? d->experts : m->first + m->per;
        m->experts = last - m->first;
        m->row = (size_t)d->width * mesh_dtype_bytes(d->dtype);
    }
    if (!m || !mesh__moe_memory(m)) {
        if (m) mesh__moe_free(m);
        return mesh__comm_broken(c, MESH_ERR_MEMORY, c->transport->rank,
                                 "mesh_moe_open: no memory for %d experts and %d slots of %l tokens", d->experts,
                                 d->slots ? d->slots : 1, d->max_tokens);
    }
    if ((status = mesh__moe_alike(c, axes, g, d)) != MESH_OK) {
        mesh__moe_free(m);
        return status;
    }
    moe->comm = c;
    moe->impl = m;
    return MESH_OK;
}

MESH_API mesh_status mesh_moe_open(mesh_moe *m, mesh_comm *c, const char *axes, const mesh_moe_desc *d) {
    if (m) memset(m, 0, sizeof *m);
    if (!c) return MESH_ERR_ARGUMENT;
    if (!c->impl) return mesh__fail(&c->error, MESH_ERR_STATE, -1, "mesh_moe_open: the comm is not open");
    MESH__ALONE_COMPOSED(c, MESH__CALLER, mesh__moe_open(m, c, axes, d));
}

MESH_API mesh_status mesh_moe_close(mesh_moe *m) {
    if (!m || !m->impl) return MESH_OK;
    mesh__moe_free(mesh__moe_of(m));
    memset(m, 0, sizeof *m);
    return MESH_OK;
}

/* ---- // >>travel ---- */

/* Something of each row from the tokens' ranks to the experts', or back: `elems` of a dtype. */
MESH__PRIVATE mesh_status mesh__moe_travel(mesh_moe *moe, mesh__moe_slot *s, int back, mesh_dtype dtype, int elems,
                                           const void *send, void *recv) {
    mesh__moe *m = mesh__moe_of(moe);
    size_t sum[2] = {0, 0};
    int i, e;
    for (i = 0; i < m->n; i++) {
        int64_t came = 0;
        for (e = 0; e < m->experts; e++) came += s->from[i * m->per + e];
        m->v[back ? 2 : 0][i] = (size_t)s->to[i] * (size_t)elems;
        m->v[back ? 0 : 2][i] = (size_t)came * (size_t)elems;
        m->v[1][i] = sum[0], sum[0] += m->v[0][i];
        m->v[3][i] = sum[1], sum[1] += m->v[2][i];
    }
    return mesh_all_to_all_v(moe->comm, mesh__moe_axes(m), send, m->v[0], m->v[1], recv, m->v[2], m->v[3], dtype);
}

/* At the experts' rank: rows as they travel (by source, then expert) and as experts have them (by expert, then source); `bytes` of each. */
MESH__PRIVATE void mesh__moe_turn(const mesh__moe *m, const mesh__moe_slot *s, unsigned char *wire, unsigned char *rows,
                                  size_t bytes, int to_rows) {
    int i, e;
    for (i = 0; i < m->n; i++)
        for (e = 0; e < m->experts; e++) {
            int64_t n = s->from[i * m->per + e], before = s->start[e];
            int k;
            for (k = 0; k < i; k++) before += s->from[k * m->per + e];
            if (to_rows)
                memcpy(rows + (size_t)before * bytes, wire, (size_t)n * bytes);
            else
                memcpy(wire, rows + (size_t)before * bytes, (size_t)n * bytes);
            wire += (size_t)n * bytes;
        }
}

/* Rows of tokens, to where they stand on the wire. */
MESH__PRIVATE void mesh__moe_pack(const mesh__moe *m, const mesh__moe_slot *s, const void *tokens) {
    const unsigned char *from = (const unsigned char *)tokens;
    unsigned char *wire = (unsigned char *)m->wire[0].p;
    int64_t i;
    for (i = 0; i < s->ntokens * m->d.top_k; i++)
        if (s->place[i] >= 0)
            memcpy(wire + (size_t)s->place[i] * m->row, from + (size_t)(i / m->d.top_k) * m->row, m->row);
}

/* Of each token the sum of its rows on the wire, times weight (NULL: 1), in k's order; rounded once. */
MESH__PRIVATE void mesh__moe_sum(const mesh__moe *m, const mesh__moe_slot *s, const float *weight, void *tokens) {
    enum { PIECE = 128 };
    mesh_dtype wide = m->d.dtype == MESH_F64 ? MESH_F64 : MESH_F32;
    size_t elem = mesh_dtype_bytes(m->d.dtype);
    double sum64[PIECE], row64[PIECE];
    float *sum32 = (float *)(void *)sum64, *row32 = (float *)(void *)row64;
    int64_t token;
    int at, k, i, n;
    for (token = 0; token < s->ntokens; token++)
        for (at = 0; at < m->d.width; at += n) {
            n = m->d.width - at < PIECE ? m->d.width - at : PIECE;
            for (i = 0; i < n; i++)
                if (wide == MESH_F64)
                    sum64[i] = 0;
                else
                    sum32[i] = 0;
            for (k = 0; k < m->d.top_k; k++) {
                int64_t asked = token * m->d.top_k + k;
                float w = weight ? weight[asked] : 1;
                if (s->place[asked] < 0) continue;
                mesh__widen(wide, row64, m->d.dtype,
                            (const unsigned char *)m->wire[0].p + (size_t)s->place[asked] * m->row + (size_t)at * elem,
                            (size_t)n);
                for (i = 0; i < n; i++)
                    if (wide == MESH_F64)
                        sum64[i] += (double)w * row64[i];
                    else
                        sum32[i] += w * row32[i];
            }
            mesh__narrow(m->d.dtype, (unsigned char *)tokens + (size_t)token * m->row + (size_t)at * elem, wide, sum64,
                         (size_t)n);
        }
}

/* ---- // >>calls ---- */

/* The slot of a call, and what it has to have seen. */
MESH__PRIVATE mesh_status mesh__moe_begin(mesh_moe *moe, int slot, mesh__moe_state least, const char *function,
                                          mesh__moe_slot **s) {
    static const char *const wanted[] = {"", "dispatch into it first", "combine it first"};
    mesh__moe *m = mesh__moe_of(moe);
    mesh_comm *c = moe->comm;
    mesh_request none;
    mesh__group *g = NULL;
    mesh_status status = mesh__call_begin(c, mesh__moe_axes(m), MESH_CALL_ALL_TO_ALL_V, &none, &g);
    if (status != MESH_OK) return status;
    if (slot < 0 || slot >= m->d.slots)
        return mesh__comm_broken(c, MESH_ERR_ARGUMENT, c->transport->rank, "%s: slot %d of %d", function, slot,
                                 m->d.slots);
    *s = &m->slot[slot];
    if ((*s)->state < least)
        return mesh__comm_broken(c, MESH_ERR_STATE, c->transport->rank, "%s: slot %d is %s; %s", function, slot,
                                 (*s)->state == MESH__MOE_EMPTY ? "empty" : "dispatched", wanted[least]);
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__moe_null(mesh_moe *moe, const char *function, const char *what) {
    return mesh__comm_broken(moe->comm, MESH_ERR_ARGUMENT, moe->comm->transport->rank, "%s: %s", function, what);
}

/* Where each row goes: by expert, so by rank, then token, then k. Returns how many. */
MESH__PRIVATE int64_t mesh__moe_route(mesh__moe *m, mesh__moe_slot *s, const int32_t *expert) {
    int64_t i, n = s->ntokens * m->d.top_k, sum = 0;
    int e;
    memset(m->by_expert, 0, (size_t)m->d.experts * sizeof *m->by_expert);
    memset(s->to, 0, (size_t)m->n * sizeof *s->to);
    memset(m->counts, 0, (size_t)(m->n * m->per) * sizeof *m->counts);
    s->dropped = 0;
    for (i = 0; i < n; i++) {
        int full = expert[i] >= 0 && m->d.capacity && m->by_expert[expert[i]] >= m->d.capacity;
        s->kept[i] = (uint8_t)(expert[i] >= 0 && !full);
        s->place[i] = s->kept[i] ? m->by_expert[expert[i]]++ : -1;
        s->dropped += full;
    }
    for (e = 0; e < m->d.experts; e++) { /* its number among the expert's becomes a place on the wire */
        int64_t count = m->by_expert[e];
        m->counts[e] = (uint64_t)count; /* ranks have `per` experts each, so that expert e of all is e here */
        s->to[e / m->per] += count;
        m->by_expert[e] = sum;
        sum += count;
    }
    for (i = 0; i < n; i++)
        if (s->kept[i]) s->place[i] += m->by_expert[expert[i]];
    return sum;
}

/* What comes, of the counts that came. */
MESH__PRIVATE void mesh__moe_receive(const mesh__moe *m, mesh__moe_slot *s) {
    const uint64_t *came = m->counts + m->n * m->per;
    int i, e;
    s->nrows = s->came = 0;
    for (i = 0; i < m->n * m->per; i++) s->from[i] = (int64_t)came[i];
    for (e = 0; e < m->experts; e++) {
        s->start[e] = s->nrows;
        s->count[e] = 0;
        for (i = 0; i < m->n; i++) s->count[e] += s->from[i * m->per + e];
        s->came += s->count[e];
        s->nrows += (s->count[e] + m->d.align - 1) / m->d.align * m->d.align;
    }
}

MESH__PRIVATE mesh_status mesh__moe_dispatch(mesh_moe *moe, int slot, const void *tokens, int64_t ntokens,
                                             const int32_t *expert, mesh_moe_rows *rows) {
    static const char function[] = "mesh_moe_dispatch";
    mesh__moe *m = mesh__moe_of(moe);
    mesh_comm *c = moe->comm;
    mesh__moe_slot *s = NULL;
    int64_t i;
    mesh_status status = mesh__moe_begin(moe, slot, MESH__MOE_EMPTY, function, &s);
    if (status != MESH_OK) return status;
    if (ntokens < 0 || ntokens > m->d.max_tokens)
        return mesh__comm_broken(c, MESH_ERR_ARGUMENT, c->transport->rank, "%s: %l tokens; max_tokens is %l", function,
                                 ntokens, m->d.max_tokens);
    if (!rows || (ntokens && (!tokens || !expert)))
        return mesh__moe_null(moe, function,
                              !rows    ? "rows is NULL"
                              : tokens ? "expert is NULL"
                                       : "the tokens are NULL");
    for (i = 0; i < ntokens * m->d.top_k; i++)
        if (expert[i] >= m->d.experts)
            return mesh__comm_broken(c, MESH_ERR_ARGUMENT, c->transport->rank,
                                     "%s: choice %d of token %l is expert %d of %d; negative ones are none", function,
                                     (int)(i % m->d.top_k), i / m->d.top_k, (int)expert[i], m->d.experts);
    s->state = MESH__MOE_EMPTY;
    s->ntokens = ntokens;
    s->sent = mesh__moe_route(m, s, expert);
    status = mesh_all_to_all(c, mesh__moe_axes(m), m->counts, m->counts + m->n * m->per, (size_t)m->per, MESH_U64);
    if (status != MESH_OK) return status;
    mesh__moe_receive(m, s);
    if (!mesh__room_for(m, &m->wire[0], (size_t)s->sent * m->row) ||
        !mesh__room_for(m, &m->wire[1], (size_t)s->came * m->row) ||
        !mesh__room_for(m, &s->rows, (size_t)s->nrows * m->row))
        return mesh__comm_broken(c, MESH_ERR_MEMORY, c->transport->rank, "%s: no memory for %l rows", function,
                                 s->nrows);
    mesh__moe_pack(m, s, tokens);
    status = mesh__moe_travel(moe, s, 0, m->d.dtype, m->d.width, m->wire[0].p, m->wire[1].p);
    if (status != MESH_OK) return status;
    if (m->d.align > 1) memset(s->rows.p, 0, (size_t)s->nrows * m->row);
    mesh__moe_turn(m, s, (unsigned char *)m->wire[1].p, (unsigned char *)s->rows.p, m->row, 1);
    s->state = MESH__MOE_DISPATCHED;
    rows->data = s->rows.p, rows->nrows = s->nrows;
    rows->first_expert = m->first, rows->nexperts = m->experts;
    rows->start = s->start, rows->count = s->count;
    rows->dropped = s->dropped, rows->kept = s->kept;
    return MESH_OK;
}

/* Rows of the experts' ranks, to the wire at the tokens'. */
MESH__PRIVATE mesh_status mesh__moe_return(mesh_moe *moe, mesh__moe_slot *s, const void *rows, const char *function) {
    mesh__moe *m = mesh__moe_of(moe);
    if (!mesh__room_for(m, &m->wire[0], (size_t)s->sent * m->row) ||
        !mesh__room_for(m, &m->wire[1], (size_t)s->came * m->row))
        return mesh__comm_broken(moe->comm, MESH_ERR_MEMORY, m->t->rank, "%s: no memory for %l rows", function,
                                 s->came);
    mesh__moe_turn(m, s, (unsigned char *)m->wire[1].p, (unsigned char *)(uintptr_t)rows, m->row, 0);
    return mesh__moe_travel(moe, s, 1, m->d.dtype, m->d.width, m->wire[1].p, m->wire[0].p);
}

MESH__PRIVATE mesh_status mesh__moe_combine(mesh_moe *moe, int slot, const void *out, const float *weight,
                                            void *tokens) {
    mesh__moe_slot *s = NULL;
    mesh_status status = mesh__moe_begin(moe, slot, MESH__MOE_DISPATCHED, "mesh_moe_combine", &s);
    if (status != MESH_OK) return status;
    if ((s->came && !out) || (s->ntokens && !tokens))
        return mesh__moe_null(moe, "mesh_moe_combine", s->came && !out ? "out is NULL" : "the tokens are NULL");
    if ((status = mesh__moe_return(moe, s, out, "mesh_moe_combine")) != MESH_OK) return status;
    mesh__moe_sum(mesh__moe_of(moe), s, weight, tokens);
    s->state = MESH__MOE_COMBINED;
    return MESH_OK;
}

/* Of each row its gradient times its weight, and its dot product with out. Both arrays of floats are as the wire is. */
MESH__PRIVATE void mesh__moe_weigh(const mesh__moe *m, const unsigned char *out, const unsigned char *grad,
                                   float *weight, unsigned char *grad_out, int64_t rows) {
    enum { PIECE = 128 };
    size_t elem = mesh_dtype_bytes(m->d.dtype);
    int64_t row;
    int at, i, n;
    for (row = 0; row < rows; row++) {
        double g[PIECE], o[PIECE], dot = 0;
        for (at = 0; at < m->d.width; at += n) {
            size_t place = (size_t)row * m->row + (size_t)at * elem;
            n = m->d.width - at < PIECE ? m->d.width - at : PIECE;
            mesh__widen(MESH_F64, g, m->d.dtype, grad + place, (size_t)n);
            mesh__widen(MESH_F64, o, m->d.dtype, out + place, (size_t)n);
            for (i = 0; i < n; i++) {
                dot += g[i] * o[i];
                g[i] *= (double)weight[row];
            }
            if (grad_out) mesh__narrow(m->d.dtype, grad_out + place, MESH_F64, g, (size_t)n);
        }
        weight[row] = (float)dot;
    }
}

/* At the experts' rank: weights have come, and the tokens' gradients in wire[1]. Both turn to the experts' order and back. */
MESH__PRIVATE mesh_status mesh__moe_gradients(mesh_moe *moe, mesh__moe_slot *s, const void *out, void *grad_out) {
    mesh__moe *m = mesh__moe_of(moe);
    unsigned char *grad, *weight;
    mesh__room rows = {NULL, 0}, words = {NULL, 0};
    int ok = mesh__room_for(m, &rows, (size_t)s->nrows * m->row) &&
             mesh__room_for(m, &words, (size_t)s->nrows * sizeof(float));
    grad = (unsigned char *)rows.p, weight = (unsigned char *)words.p;
    if (ok) {
        int e;
        memset(grad, 0, (size_t)s->nrows * m->row);
        mesh__moe_turn(m, s, (unsigned char *)m->wire[1].p, grad, m->row, 1);
        mesh__moe_turn(m, s, (unsigned char *)m->word[1].p, weight, sizeof(float), 1);
        if (grad_out) memset(grad_out, 0, (size_t)s->nrows * m->row);
        for (e = 0; e < m->experts; e++) {
            size_t at = (size_t)s->start[e];
            mesh__moe_weigh(m, (const unsigned char *)out + at * m->row, grad + at * m->row,
                            (float *)(void *)weight + at, grad_out ? (unsigned char *)grad_out + at * m->row : NULL,
                            s->count[e]);
        }
        mesh__moe_turn(m, s, (unsigned char *)m->word[1].p, weight, sizeof(float), 0);
    }
    mesh_transport_free(m->t, rows.p);
    mesh_transport_free(m->t, words.p);
    return ok ? MESH_OK
              : mesh__comm_broken(moe->comm, MESH_ERR_MEMORY, m->t->rank,
                                  "mesh_moe_combine_backward: no memory for %l rows", s->nrows);
}

MESH__PRIVATE mesh_status mesh__moe_combine_backward(mesh_moe *moe, int slot, const void *grad_tokens, const void *out,
                                                     const float *weight, void *grad_out, float *grad_weight) {
    static const char function[] = "mesh_moe_combine_backward";
    mesh__moe *m = mesh__moe_of(moe);
    mesh__moe_slot *s = NULL;
    int64_t i;
    mesh_status status = mesh__moe_begin(moe, slot, MESH__MOE_COMBINED, function, &s);
    if (status != MESH_OK) return status;
    if ((s->ntokens && !grad_tokens) || (s->came && !out))
        return mesh__moe_null(moe, function, s->came && !out ? "out is NULL" : "grad_tokens is NULL");
    if (!mesh__room_for(m, &m->wire[0], (size_t)s->sent * m->row) ||
        !mesh__room_for(m, &m->wire[1], (size_t)s->came * m->row) ||
        !mesh__room_for(m, &m->word[0], (size_t)s->sent * sizeof(float)) ||
        !mesh__room_for(m, &m->word[1], (size_t)s->came * sizeof(float)))
        return mesh__comm_broken(moe->comm, MESH_ERR_MEMORY, m->t->rank, "%s: no memory for %l rows", function,
                                 s->came);
    mesh__moe_pack(m, s, grad_tokens);
    for (i = 0; i < s->ntokens * m->d.top_k; i++)
        if (s->place[i] >= 0) ((float *)m->word[0].p)[s->place[i]] = weight ? weight[i] : 1;
    status = mesh__moe_travel(moe, s, 0, m->d.dtype, m->d.width, m->wire[0].p, m->wire[1].p);
    if (status == MESH_OK) status = mesh__moe_travel(moe, s, 0, MESH_F32, 1, m->word[0].p, m->word[1].p);
    if (status == MESH_OK) status = mesh__moe_gradients(moe, s, out, grad_out);
    if (status == MESH_OK) status = mesh__moe_travel(moe, s, 1, MESH_F32, 1, m->word[1].p, m->word[0].p);
    for (i = 0; status == MESH_OK && grad_weight && i < s->ntokens * m->d.top_k; i++)
        grad_weight[i] = s->place[i] < 0 ? 0 : ((float *)m->word[0].p)[s->place[i]];
    return status;
}

MESH__PRIVATE mesh_status mesh__moe_dispatch_backward(mesh_moe *moe, int slot, const void *grad_rows,
                                                      void *grad_tokens) {
    static const char function[] = "mesh_moe_dispatch_backward";
    mesh__moe_slot *s = NULL;
    mesh_status status = mesh__moe_begin(moe, slot, MESH__MOE_DISPATCHED, function, &s);
    if (status != MESH_OK) return status;
    if ((s->came && !grad_rows) || (s->ntokens && !grad_tokens))
        return mesh__moe_null(moe, function, s->came && !grad_rows ? "grad_rows is NULL" : "grad_tokens is NULL");
    if ((status = mesh__moe_return(moe, s, grad_rows, function)) != MESH_OK) return status;
    mesh__moe_sum(mesh__moe_of(moe), s, NULL, grad_tokens);
    s->state = MESH__MOE_EMPTY;
    return MESH_OK;
}

/* Is it open? */
MESH__PRIVATE int mesh__moe_shut(const mesh_moe *m, const char *call) {
    if (m && m->impl && m->comm->impl) return 0;
    if (m && m->impl) mesh__fail(&m->comm->error, MESH_ERR_STATE, -1, "mesh_%s: the comm is not open", call);
    return 1;
}

MESH_API mesh_status mesh_moe_dispatch(mesh_moe *m, int slot, const void *tokens, int64_t ntokens,
                                       const int32_t *expert, mesh_moe_rows *rows) {
    if (mesh__moe_shut(m, MESH__CALLER)) return MESH_ERR_STATE;
    MESH__ALONE_COMPOSED(m->comm, MESH__CALLER, mesh__moe_dispatch(m, slot, tokens, ntokens, expert, rows));
}
MESH_API mesh_status mesh_moe_combine(mesh_moe *m, int slot, const void *out, const float *weight, void *tokens) {
    if (mesh__moe_shut(m, MESH__CALLER)) return MESH_ERR_STATE;
    MESH__ALONE_COMPOSED(m->comm, MESH__CALLER, mesh__moe_combine(m, slot, out, weight, tokens));
}
MESH_API mesh_status mesh_moe_combine_backward(mesh_moe *m, int slot, const void *grad_tokens, const void *out,
                                               const float *weight, void *grad_out, float *grad_weight) {
    if (mesh__moe_shut(m, MESH__CALLER)) return MESH_ERR_STATE;
    MESH__ALONE_COMPOSED(m->comm, MESH__CALLER,
                         mesh__moe_combine_backward(m, slot, grad_tokens, out, weight, grad_out, grad_weight));
}
MESH_API mesh_status mesh_moe_dispatch_backward(mesh_moe *m, int slot, const void *grad_rows, void *grad_tokens) {
    if (mesh__moe_shut(m, MESH__CALLER)) return MESH_ERR_STATE;
    MESH__ALONE_COMPOSED(m->comm, MESH__CALLER, mesh__moe_dispatch_backward(m, slot, grad_rows, grad_tokens));
}
#endif /* MESH_EXPERTS_IMPLEMENTED */
