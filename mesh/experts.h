/* mesh/experts.h - tokens to experts and back, forward and backward. Part of mesh.h 0.1.0. MIT licence.

   Includes alike.h and rows.h. Rows are in the comm's memory: the host's, or a GPU's.

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
    micro-batch in flight. On a GPU tokens, rows, gradients, expert and weights are in its memory, start, count and kept in the host's; dispatch waits on the
    host for the counts, the others put their work on the comm's stream. Routing as in GShard (Lepikhin et al. 2020), without its capacity unless one is given.
*/
#if !defined(MESH_EXPERTS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_EXPERTS_IMPLEMENTED))
#include "alike.h"
#include "rows.h"
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
   a transport whose memory is not the host's and has no kernels), STATE, MEMORY, MISMATCH (the number, by name): on every rank. */
MESH_API mesh_status mesh_moe_open(mesh_moe *m, mesh_comm *c, const char *axes, const mesh_moe_desc *d);
/* Before the transport's close; on a GPU before the comm's, or its memory stays the transport's until that closes. OK if it is closed already. STATE, and it
   stays open: the comm's stream is being captured. */
MESH_API mesh_status mesh_moe_close(mesh_moe *m);
/* expert: tokens x k global ids, negative: none; one may be asked for twice. Counts travel first, then rows. Memory for what comes is the slot's and grows with
   it. ARGUMENT: a slot or an id that is none, too many tokens, NULL. MEMORY. Every rank fails. STATE, here and below: the comm is another than the moe was opened
   on, or its stream is being captured; the comm stays. */
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
    mesh__room turns;       /* numbers of rows, where rows are; below: which of them */
    int64_t *asked;         /* of each row on the wire that goes: its token and k */
    int64_t *stands;        /* of each row at the experts: the row on the wire that comes; -1: none, it aligns */
    int64_t *came_of;       /* of each row on the wire that comes: the row at the experts */
    int64_t *placed;        /* place */
    int64_t *from;          /* rows that came, by source and local expert */
    int64_t *start, *count; /* of each local expert */
    int64_t *to;            /* rows that went to each rank */
    mesh__room rows;
} mesh__moe_slot;

typedef struct mesh__moe {
    mesh_transport *t;
    mesh_comm *c;
    uint32_t comm; /* the id of the comm that it was opened on: this rank's next ones have others */
    mesh_moe_desc d;
    char axes[MESH_MAX_AXES * MESH_NAME_BYTES];
    int n, per, first, experts; /* ranks; experts of a rank at most; this rank's */
    size_t row;                 /* bytes of one */
    mesh__moe_slot *slot;
    int64_t *by_expert; /* rows of this rank for each, and then where the next one goes */
    uint64_t *counts;   /* two tables of n x per */
    size_t *v[4];       /* counts and offsets both ways, of an all_to_all_v */
    mesh__room wire[2]; /* by expert and token at the tokens' rank; by source at the experts' */
    mesh__room word[4]; /* a float of each row, the same way; at the experts' products, and weights of the rows there */
    mesh__room one;     /* 1.0f: a weight */
    mesh__room here;    /* the host's, for what comes from there and goes there */
} mesh__moe;

MESH__PRIVATE mesh__moe *mesh__moe_of(const mesh_moe *m) { return (mesh__moe *)m->impl; }

/* As calls take them; "": all. */
MESH__PRIVATE const char *mesh__moe_axes(const mesh__moe *m) { return m->axes[0] ? m->axes : NULL; }

/* What is in it may be lost. Work on what was there is over before that is given back. */
MESH__PRIVATE int mesh__room_for(mesh__moe *m, mesh__room *r, size_t nbytes) {
    if (nbytes <= r->nbytes && r->p) return 1;
    if (r->p && mesh__rows_settle(m->c) != MESH_OK) return 0;
    mesh__rows_free(m->c, r->p);
    if (mesh__rows_memory(m->c, (uint64_t)nbytes + 64, &r->p) != MESH_OK) r->p = NULL;
    r->nbytes = r->p ? nbytes + 64 : 0;
    return r->p != NULL;
}

/* ---- // >>open ---- */

MESH__RARE mesh_status mesh__moe_check(mesh_comm *c, const mesh_moe_desc *d, mesh_error *err) {
    int rank = c->transport->rank;
    if (!d) return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the desc is NULL");
    if (mesh__rows_check(c, err) != MESH_OK) return MESH_ERR_UNSUPPORTED;
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

/* On a device only while the comm is open: nobody knows later what is still under way in it, and it stays the transport's. */
MESH__RARE void mesh__room_free(mesh__moe *m, mesh__room *r, int is_open) {
    if (!(m->t->caps & MESH_CAP_DEVICE))
        mesh_transport_free(m->t, r->p);
    else if (is_open)
        mesh__scratch_give(m->c, r->p);
}

MESH__RARE void mesh__moe_free(mesh__moe *m, int is_open) {
    int i;
    for (i = 0; m->slot && i < m->d.slots; i++) {
        mesh_transport_free(m->t, m->slot[i].place); /* the others lie behind it */
        mesh__room_free(m, &m->slot[i].turns, is_open);
        mesh__room_free(m, &m->slot[i].rows, is_open);
    }
    for (i = 0; i < 2; i++) mesh__room_free(m, &m->wire[i], is_open);
    for (i = 0; i < 4; i++) mesh__room_free(m, &m->word[i], is_open);
    mesh__room_free(m, &m->one, is_open);
    mesh_transport_free(m->t, m->here.p);
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
    static const float one = 1;
    mesh_status status = mesh__call_begin(c, axes, MESH_CALL_ALL_TO_ALL_V, &none, &g);
    if (status == MESH_OK) status = mesh__on_stream(c);
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
        m->c = c;
        m->comm = c->id;
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
    if (!m || !mesh__moe_memory(m) || !mesh__room_for(m, &m->one, sizeof one)) {
        if (m) mesh__moe_free(m, 1);
        return mesh__comm_broken(c, MESH_ERR_MEMORY, c->transport->rank,
                                 "mesh_moe_open: no memory for %d experts and %d slots of %l tokens", d->experts,
                                 d->slots ? d->slots : 1, d->max_tokens);
    }
    if ((status = mesh__moe_alike(c, axes, g, d)) != MESH_OK ||
        (status = mesh__rows_copy(c, m->one.p, &one, sizeof one)) != MESH_OK) {
        mesh__moe_free(m, 1);
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

/* Is its comm still the one that it was opened on? Another in its place has other groups: nothing here fits them. */
MESH__PRIVATE int mesh__moe_is_of(const mesh__moe *m) {
    return m->c->impl && m->c->id == m->comm && m->c->transport == m->t;
}

/* On a device, the comm being open. */
MESH__RARE mesh_status mesh__moe_close(mesh_moe *moe) {
    mesh__moe *m = mesh__moe_of(moe);
    mesh_comm *c = moe->comm;
    mesh_status status = c->failed ? MESH_OK : mesh__on_stream(c);
    if (status != MESH_OK && !c->failed) return status;
    if (!c->failed) status = mesh__rows_settle(c);
    mesh__moe_free(m, 1);
    memset(moe, 0, sizeof *moe);
    return status;
}

MESH_API mesh_status mesh_moe_close(mesh_moe *m) {
    mesh__moe *moe = m ? mesh__moe_of(m) : NULL;
    if (!moe) return MESH_OK;
    if (moe->t->caps & MESH_CAP_DEVICE && mesh__moe_is_of(moe)) MESH__ALONE(moe->c, MESH__CALLER, mesh__moe_close(m));
    mesh__moe_free(moe, 0);
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

/* Rows of `width` elements: to = from, of those of an index. */
MESH__PRIVATE mesh_status mesh__moe_move(mesh_moe *moe, mesh_dtype dtype, int64_t width, int64_t n, void *to,
                                         const void *from, const int64_t *index) {
    mesh_rows r = MESH_ZERO;
    r.op = MESH_ROWS_MOVE;
    r.rows = n, r.width = width;
    r.to = mesh__matrix(to, dtype, width);
    r.from = mesh__matrix(from, dtype, width);
    r.index = index;
    return mesh__rows(moe->comm, &r);
}

/* Rows of tokens, to where they stand on the wire. */
MESH__PRIVATE mesh_status mesh__moe_pack(mesh_moe *moe, const mesh__moe_slot *s, const void *tokens) {
    mesh__moe *m = mesh__moe_of(moe);
    mesh_rows r = MESH_ZERO;
    r.op = MESH_ROWS_MOVE;
    r.rows = s->sent, r.width = m->d.width;
    r.to = mesh__matrix(m->wire[0].p, m->d.dtype, r.width);
    r.from = mesh__matrix(tokens, m->d.dtype, r.width);
    r.from.stride[0] = 0; /* choice k of token t is row t * top_k + k: the token's */
    r.from.count[0] = m->d.top_k;
    r.index = s->asked;
    return mesh__rows(moe->comm, &r);
}

/* Of each token the sum of its rows on the wire, times weight (NULL: 1), in k's order; rounded once. */
MESH__PRIVATE mesh_status mesh__moe_sum(mesh_moe *moe, const mesh__moe_slot *s, const float *weight, void *tokens) {
    mesh__moe *m = mesh__moe_of(moe);
    mesh_rows r = MESH_ZERO;
    r.op = MESH_ROWS_SUM;
    r.terms = m->d.top_k;
    r.rows = s->ntokens, r.width = m->d.width;
    r.to = mesh__matrix(tokens, m->d.dtype, r.width);
    r.from = mesh__matrix(m->wire[0].p, m->d.dtype, r.width);
    r.index = s->placed;
    r.weight = weight;
    return mesh__rows(moe->comm, &r);
}

/* So many bytes of the host's. */
MESH__PRIVATE void *mesh__moe_here(mesh__moe *m, size_t nbytes) {
    if (nbytes <= m->here.nbytes && m->here.p) return m->here.p;
    mesh_transport_free(m->t, m->here.p);
    m->here.p = mesh_transport_alloc(m->t, nbytes + 64);
    m->here.nbytes = m->here.p ? nbytes + 64 : 0;
    return m->here.p;
}

/* Which row is which, where rows are. 0: no memory. */
MESH__PRIVATE mesh_status mesh__moe_turns(mesh__moe *m, mesh__moe_slot *s) {
    int64_t asked = s->ntokens * m->d.top_k, total = s->sent + s->nrows + s->came + asked, i, j, wire = 0;
    size_t nbytes = (size_t)total * sizeof(int64_t);
    int64_t *p = NULL, *stands, *came_of;
    int from, e;
    if (mesh__room_for(m, &s->turns, nbytes))
        p = mesh__by_device(m->c) ? (int64_t *)mesh__moe_here(m, nbytes) : (int64_t *)s->turns.p;
    if (!p) return MESH_ERR_MEMORY;
    for (i = 0; i < asked; i++)
        if (s->place[i] >= 0) p[s->place[i]] = i;
    stands = p + s->sent;
    came_of = stands + s->nrows;
    for (i = 0; i < s->nrows; i++) stands[i] = -1;
    for (e = 0; e < m->experts; e++) m->by_expert[e] = s->start[e];
    for (from = 0; from < m->n; from++)
        for (e = 0; e < m->experts; e++)
            for (j = 0; j < s->from[from * m->per + e]; j++, wire++) {
                came_of[wire] = m->by_expert[e]++;
                stands[came_of[wire]] = wire;
            }
    for (i = 0; i < asked; i++) came_of[s->came + i] = s->place[i];
    s->asked = (int64_t *)s->turns.p;
    s->stands = s->asked + s->sent;
    s->came_of = s->stands + s->nrows;
    s->placed = s->came_of + s->came;
    return mesh__by_device(m->c) ? mesh__rows_copy(m->c, s->turns.p, p, nbytes) : MESH_OK;
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
    if (status == MESH_OK) status = mesh__on_stream(c);
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

/* The ids of experts on the host, each one that there is or below 0. */
MESH__PRIVATE mesh_status mesh__moe_expert(mesh_moe *moe, const int32_t **expert, int64_t ntokens,
                                           const char *function) {
    mesh__moe *m = mesh__moe_of(moe);
    mesh_comm *c = moe->comm;
    int64_t i, asked = ntokens * m->d.top_k;
    mesh_status status = MESH_OK;
    if (mesh__by_device(c) && asked) {
        void *here = mesh__moe_here(m, (size_t)asked * sizeof **expert);
        if (!here)
            return mesh__comm_broken(c, MESH_ERR_MEMORY, m->t->rank, "%s: no memory for %l ids of experts", function,
                                     asked);
        status = mesh__rows_copy(c, here, *expert, (size_t)asked * sizeof **expert);
        *expert = (const int32_t *)here;
    }
    for (i = 0; i < asked && status == MESH_OK; i++)
        if ((*expert)[i] >= m->d.experts)
            status = mesh__comm_broken(c, MESH_ERR_ARGUMENT, c->transport->rank,
                                       "%s: choice %d of token %l is expert %d of %d; negative ones are none", function,
                                       (int)(i % m->d.top_k), i / m->d.top_k, (int)(*expert)[i], m->d.experts);
    return status;
}

/* Rooms for what travels and stands. */
MESH__PRIVATE mesh_status mesh__moe_rooms(mesh__moe *m, mesh__moe_slot *s, const char *function) {
    mesh_status status = MESH_ERR_MEMORY;
    if (mesh__room_for(m, &m->wire[0], (size_t)s->sent * m->row) &&
        mesh__room_for(m, &m->wire[1], (size_t)s->came * m->row) &&
        mesh__room_for(m, &s->rows, (size_t)s->nrows * m->row))
        status = mesh__moe_turns(m, s);
    if (m->c->failed) return (mesh_status)m->c->error.status;
    return status == MESH_OK
               ? status
               : mesh__comm_broken(m->c, status, m->t->rank, "%s: no memory for %l rows", function, s->nrows);
}

MESH__PRIVATE mesh_status mesh__moe_dispatch(mesh_moe *moe, int slot, const void *tokens, int64_t ntokens,
                                             const int32_t *expert, mesh_moe_rows *rows) {
    static const char function[] = "mesh_moe_dispatch";
    mesh__moe *m = mesh__moe_of(moe);
    mesh_comm *c = moe->comm;
    mesh__moe_slot *s = NULL;
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
    if ((status = mesh__moe_expert(moe, &expert, ntokens, function)) != MESH_OK) return status;
    s->state = MESH__MOE_EMPTY;
    s->ntokens = ntokens;
    s->sent = mesh__moe_route(m, s, expert);
    status = mesh__host_all_to_all(c, mesh__moe_axes(m), m->n, m->counts, m->counts + m->n * m->per, (size_t)m->per,
                                   MESH_U64);
    if (status != MESH_OK) return status;
    mesh__moe_receive(m, s);
    status = mesh__moe_rooms(m, s, function);
    if (status == MESH_OK) status = mesh__moe_pack(moe, s, tokens);
    if (status == MESH_OK) status = mesh__moe_travel(moe, s, 0, m->d.dtype, m->d.width, m->wire[0].p, m->wire[1].p);
    if (status == MESH_OK)
        status = mesh__moe_move(moe, m->d.dtype, m->d.width, s->nrows, s->rows.p, m->wire[1].p, s->stands);
    if (status != MESH_OK) return status;
    s->state = MESH__MOE_DISPATCHED;
    rows->data = s->rows.p, rows->nrows = s->nrows;
    rows->first_expert = m->first, rows->nexperts = m->experts;
    rows->start = s->start, rows->count = s->count;
    rows->dropped = s->dropped, rows->kept = s->kept;
    return MESH_OK;
}

/* Rows of the experts' ranks, to the wire at the tokens'. The wires are as large as any dispatch wanted them. */
MESH__PRIVATE mesh_status mesh__moe_return(mesh_moe *moe, mesh__moe_slot *s, const void *rows) {
    mesh__moe *m = mesh__moe_of(moe);
    mesh_status status = mesh__moe_move(moe, m->d.dtype, m->d.width, s->came, m->wire[1].p, rows, s->came_of);
    if (status != MESH_OK) return status;
    return mesh__moe_travel(moe, s, 1, m->d.dtype, m->d.width, m->wire[1].p, m->wire[0].p);
}

MESH__PRIVATE mesh_status mesh__moe_combine(mesh_moe *moe, int slot, const void *out, const float *weight,
                                            void *tokens) {
    mesh__moe_slot *s = NULL;
    mesh_status status = mesh__moe_begin(moe, slot, MESH__MOE_DISPATCHED, "mesh_moe_combine", &s);
    if (status != MESH_OK) return status;
    if ((s->came && !out) || (s->ntokens && !tokens))
        return mesh__moe_null(moe, "mesh_moe_combine", s->came && !out ? "out is NULL" : "the tokens are NULL");
    status = mesh__moe_return(moe, s, out);
    if (status == MESH_OK) status = mesh__moe_sum(moe, s, weight, tokens);
    if (status == MESH_OK) s->state = MESH__MOE_COMBINED;
    return status;
}

/* The weights, to where their rows stand on the wire. */
MESH__PRIVATE mesh_status mesh__moe_weights(mesh_moe *moe, const mesh__moe_slot *s, const float *weight) {
    mesh__moe *m = mesh__moe_of(moe);
    mesh_rows r = MESH_ZERO;
    r.op = MESH_ROWS_MOVE;
    r.rows = s->sent, r.width = 1;
    r.to = mesh__matrix(m->word[0].p, MESH_F32, 1);
    r.from = mesh__matrix(weight ? weight : (const float *)m->one.p, MESH_F32, weight ? 1 : 0);
    r.index = s->asked;
    return mesh__rows(moe->comm, &r);
}

/* At the experts' rank: gradients of tokens have come, and weights. Of each row on the wire the product with out, to word[2]; of each row of the experts its
   gradient, to grad_out. */
MESH__PRIVATE mesh_status mesh__moe_gradients(mesh_moe *moe, const mesh__moe_slot *s, const void *out, void *grad_out) {
    mesh__moe *m = mesh__moe_of(moe);
    mesh_rows dot = MESH_ZERO, weigh = MESH_ZERO;
    mesh_status status;
    dot.op = MESH_ROWS_DOT;
    dot.rows = s->came, dot.width = m->d.width;
    dot.from = mesh__matrix(out, m->d.dtype, dot.width);
    dot.with = mesh__matrix(m->wire[1].p, m->d.dtype, dot.width);
    dot.index = s->came_of;
    dot.word = (float *)m->word[2].p;
    status = mesh__rows(moe->comm, &dot);
    if (status == MESH_OK && grad_out)
        status = mesh__moe_move(moe, MESH_F32, 1, s->nrows, m->word[3].p, m->word[1].p, s->stands);
    if (status != MESH_OK || !grad_out) return status;
    weigh.op = MESH_ROWS_SUM;
    weigh.terms = 1;
    weigh.rows = s->nrows, weigh.width = m->d.width;
    weigh.to = mesh__matrix(grad_out, m->d.dtype, weigh.width);
    weigh.from = dot.with;
    weigh.index = s->stands;
    weigh.weight = (const float *)m->word[3].p;
    return mesh__rows(moe->comm, &weigh);
}

MESH__PRIVATE mesh_status mesh__moe_combine_backward(mesh_moe *moe, int slot, const void *grad_tokens, const void *out,
                                                     const float *weight, void *grad_out, float *grad_weight) {
    static const char function[] = "mesh_moe_combine_backward";
    mesh__moe *m = mesh__moe_of(moe);
    mesh__moe_slot *s = NULL;
    mesh_status status = mesh__moe_begin(moe, slot, MESH__MOE_COMBINED, function, &s);
    if (status != MESH_OK) return status;
    if ((s->ntokens && !grad_tokens) || (s->came && !out))
        return mesh__moe_null(moe, function, s->came && !out ? "out is NULL" : "grad_tokens is NULL");
    if (!mesh__room_for(m, &m->word[0], (size_t)s->sent * sizeof(float)) ||
        !mesh__room_for(m, &m->word[1], (size_t)s->came * sizeof(float)) ||
        !mesh__room_for(m, &m->word[2], (size_t)s->came * sizeof(float)) ||
        !mesh__room_for(m, &m->word[3], (size_t)s->nrows * sizeof(float)))
        return mesh__comm_broken(moe->comm, MESH_ERR_MEMORY, m->t->rank, "%s: no memory for %l rows", function,
                                 s->came);
    status = mesh__moe_pack(moe, s, grad_tokens);
    if (status == MESH_OK) status = mesh__moe_weights(moe, s, weight);
    if (status == MESH_OK) status = mesh__moe_travel(moe, s, 0, m->d.dtype, m->d.width, m->wire[0].p, m->wire[1].p);
    if (status == MESH_OK) status = mesh__moe_travel(moe, s, 0, MESH_F32, 1, m->word[0].p, m->word[1].p);
    if (status == MESH_OK) status = mesh__moe_gradients(moe, s, out, grad_out);
    if (status == MESH_OK) status = mesh__moe_travel(moe, s, 1, MESH_F32, 1, m->word[2].p, m->word[0].p);
    if (status != MESH_OK || !grad_weight) return status;
    return mesh__moe_move(moe, MESH_F32, 1, s->ntokens * m->d.top_k, grad_weight, m->word[0].p, s->placed);
}

MESH__PRIVATE mesh_status mesh__moe_dispatch_backward(mesh_moe *moe, int slot, const void *grad_rows,
                                                      void *grad_tokens) {
    static const char function[] = "mesh_moe_dispatch_backward";
    mesh__moe_slot *s = NULL;
    mesh_status status = mesh__moe_begin(moe, slot, MESH__MOE_DISPATCHED, function, &s);
    if (status != MESH_OK) return status;
    if ((s->came && !grad_rows) || (s->ntokens && !grad_tokens))
        return mesh__moe_null(moe, function, s->came && !grad_rows ? "grad_rows is NULL" : "grad_tokens is NULL");
    status = mesh__moe_return(moe, s, grad_rows);
    if (status == MESH_OK) status = mesh__moe_sum(moe, s, NULL, grad_tokens);
    if (status == MESH_OK) s->state = MESH__MOE_EMPTY;
    return status;
}

/* Is it open? */
MESH__PRIVATE int mesh__moe_shut(const mesh_moe *m, const char *call) {
    mesh_comm *c = m && m->impl ? m->comm : NULL;
    if (!c) return 1;
    if (!c->impl) return mesh__fail(&c->error, MESH_ERR_STATE, -1, "mesh_%s: the comm is not open", call), 1;
    if (c->failed || mesh__moe_is_of(mesh__moe_of(m))) return 0;
    mesh__fail(&c->error, MESH_ERR_STATE, -1,
               "mesh_%s: the comm that this moe was opened on was closed, and another is open in its place; close it, "
               "and open it on that",
               call);
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
