/* nccl/calls.h - NCCL's own collectives, compared before their launch where that is asked for. Part of mesh.h 0.1.0. MIT licence.

   Includes comms.h, bytes.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_NCCL_CALLS_IMPLEMENTED)
#define MESH_NCCL_CALLS_IMPLEMENTED
#include "comms.h"
#include "bytes.h"

/* ---- // >>debug: compare a call before it is launched ---- */

/* All ranks of a group's comm. together: a call of the whole group, that needs each of its ranks. */
MESH__PRIVATE mesh_nccl__party mesh_nccl__everyone(const mesh_nccl__state *s, const mesh_nccl__group *g, int together) {
    const mesh_nccl__group *first = s->group;
    mesh_nccl__party p;
    while (first && first->id != (g->id & ~255u)) first = first->next;
    if (!first) first = g;
    p = mesh_nccl__party_of(first->c->rank, first->c->size, 1);
    p.needs = g->c->rank;
    p.nneeds = together ? g->c->size : 0;
    return p;
}

/* Memory that a device does not reach is told, not handed to NCCL. */
MESH__PRIVATE mesh_status mesh_nccl__check_memory(mesh_nccl__state *s, const void *p, const char *which,
                                                  mesh_error *why);

/* Every rank of the group waits for all (dissemination), each message carrying the call's check. */
MESH__PRIVATE mesh_status mesh_nccl__compare_group(mesh_nccl__state *s, const mesh_nccl__group *g, uint64_t channel,
                                                   uint64_t check, mesh_error *why) {
    const mesh_nccl__comm *c = g->c;
    mesh_nccl__party party = mesh_nccl__everyone(s, g, 1);
    int64_t deadline = mesh_nccl__now(s) + g->timeout;
    mesh_status status = MESH_OK;
    int k;
    for (k = 1; k < c->size && status == MESH_OK; k *= 2) {
        int to = c->rank[(c->index + k) % c->size], from = c->rank[(c->index - k + c->size) % c->size];
        status = mesh_nccl__talk(s, &party, MESH_SEND, to, channel, check, NULL, 0, deadline, why);
        if (status == MESH_OK)
            status = mesh_nccl__talk(s, &party, MESH_RECV, from, channel, check, NULL, 0, deadline, why);
    }
    return status;
}

/* Point to point: both ends of every message compare its length. */
MESH__PRIVATE mesh_status mesh_nccl__compare_post(mesh_nccl__state *s, const mesh_nccl__group *g, const mesh_post *p,
                                                  mesh_error *why) {
    int64_t deadline = mesh_nccl__now(s) + g->timeout;
    mesh_nccl__party party = mesh_nccl__everyone(s, g, 0);
    mesh_status status = MESH_OK;
    int i, direction;
    for (i = 0; i < p->count && status == MESH_OK; i++)
        if (p->xfer[i].nbytes) status = mesh_nccl__check_memory(s, p->xfer[i].base, "a buffer", why);
    for (direction = MESH_SEND; direction <= MESH_RECV; direction++)
        for (i = 0; i < p->count && status == MESH_OK; i++)
            if (p->xfer[i].direction == direction)
                status = mesh_nccl__talk(s, &party, direction, p->xfer[i].rank, p->channel,
                                         mesh__mix(p->check, p->xfer[i].nbytes), NULL, 0, deadline, why);
    return status;
}

/* Calls by counts: every rank gives the same (gathered or scattered over all), or each pair has its own. */
MESH__PRIVATE mesh_status mesh_nccl__compare_counts(mesh_nccl__state *s, const mesh_nccl__group *g,
                                                    const mesh_call *call, mesh_error *why) {
    const mesh_nccl__comm *c = g->c;
    mesh_nccl__party party = mesh_nccl__everyone(s, g, 1);
    int64_t deadline = mesh_nccl__now(s) + g->timeout;
    uint64_t check = call->check;
    mesh_status status = MESH_OK;
    int i, direction, kind = call->kind, root = call->root, me = c->index;
    if (kind == MESH_CALL_ALL_GATHER_V || kind == MESH_CALL_REDUCE_SCATTER_V) {
        for (i = 0; i < c->size; i++) check = mesh__mix(check, call->recv_counts[i]);
        return mesh_nccl__compare_group(s, g, call->channel, check, why);
    }
    for (direction = MESH_SEND; direction <= MESH_RECV; direction++)
        for (i = 0; i < c->size && status == MESH_OK; i++) {
            const size_t *counts = direction == MESH_SEND ? call->send_counts : call->recv_counts;
            int rooted = kind != MESH_CALL_ALL_TO_ALL_V, gives = kind == MESH_CALL_GATHER_V ? i == root : me == root,
                takes = kind == MESH_CALL_GATHER_V ? me == root : i == root;
            if (i == me || (rooted && !(direction == MESH_SEND ? gives : takes))) continue;
            if (rooted && me != root) counts = NULL;
            status = mesh_nccl__talk(s, &party, direction, c->rank[i], call->channel,
                                     mesh__mix(check, counts ? counts[i] : call->count), NULL, 0, deadline, why);
        }
    return status;
}

/* Memory that a device does not reach: malloc's, or none that CUDA knows. */
MESH__PRIVATE mesh_status mesh_nccl__check_memory(mesh_nccl__state *s, const void *p, const char *which,
                                                  mesh_error *why) {
    union {
        struct cudaPointerAttributes attributes;
        char room[512]; /* a younger library's struct is longer */
    } at;
    memset(&at, 0, sizeof at);
    if (!p) return MESH_OK;
    if (s->api.cudaPointerGetAttributes(&at.attributes, p) != cudaSuccess) s->api.cudaGetLastError();
    if (at.attributes.type != cudaMemoryTypeUnregistered) return MESH_OK;
    return mesh__fail(
        why, MESH_ERR_ARGUMENT, s->boot->rank,
        "%s is host memory (%x) that the device does not reach; use mesh_alloc, cudaMalloc or cudaMallocHost", which,
        (uint64_t)(uintptr_t)p);
}

MESH__PRIVATE mesh_status mesh_nccl__check_call(mesh_nccl__state *s, const mesh_nccl__group *g, const mesh_call *call,
                                                mesh_error *why) {
    mesh_status status = MESH_OK;
    int i;
    for (i = 0; i < call->nbuffers && status == MESH_OK; i++)
        if (call->buffers[i].count &&
            (status = mesh_nccl__check_memory(s, call->buffers[i].send, "send", why)) == MESH_OK)
            status = mesh_nccl__check_memory(s, call->buffers[i].recv, "recv", why);
    if (!call->nbuffers && (status = mesh_nccl__check_memory(s, call->send, "send", why)) == MESH_OK)
        status = mesh_nccl__check_memory(s, call->recv, "recv", why);
    if (status == MESH_OK) status = mesh_nccl__compare_group(s, g, call->channel, call->check, why);
    return status == MESH_OK && mesh__call_is(call->kind, MESH_BY_COUNTS) ? mesh_nccl__compare_counts(s, g, call, why)
                                                                          : status;
}

MESH__PRIVATE int mesh_nccl__has_ended(mesh_nccl__state *s, const mesh_nccl__comm *c) {
    int ended;
    pthread_mutex_lock(&s->lock);
    ended = c->life == MESH_NCCL__ENDED;
    pthread_mutex_unlock(&s->lock);
    return ended;
}

/* What was found wrong is told by the call's mark. */
MESH__PRIVATE void mesh_nccl__checked(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_status status,
                                      const mesh_error *why) {
    if (status == MESH_OK) return;
    pthread_mutex_lock(&s->lock);
    mesh_nccl__end(s, c, status, why->rank, "%s", why->text);
    pthread_mutex_unlock(&s->lock);
}

/* ---- // >>calls: NCCL's own ---- */

/* NCCL's type for a reduction: numbers per element, or 0: it has none. */
MESH__PRIVATE size_t mesh_nccl__type(const mesh_nccl__state *s, int dtype, int op, ncclDataType_t *type) {
    static const int types[] = {7,  8,  6, 9, 0, 1,
                                -1, -1, 2, 3, 4, 5}; /* of f32 f64 f16 bf16 i8 u8 i16 u16 i32 u32 i64 u64 */
    if (dtype == MESH_F8E4M3 || dtype == MESH_F8E5M2) {
        *type = (ncclDataType_t)(dtype == MESH_F8E4M3 ? 10 : 11);
        return s->n->base.caps & MESH_CAP_FP8 && op <= MESH_PROD && op != MESH_AVG;
    }
    if (mesh__is_complex(dtype)) {
        *type = dtype == MESH_C64 ? ncclFloat32 : ncclFloat64;
        return op == MESH_SUM || op == MESH_AVG ? 2 : 0;
    }
    if ((unsigned)dtype >= sizeof types / sizeof *types || types[dtype] < 0 || op > MESH_PROD) return 0;
    *type = (ncclDataType_t)types[dtype];
    return 1;
}

/* One call under way: what NCCL is given. */
typedef struct mesh_nccl__ask {
    mesh_nccl__state *s;
    mesh_nccl__comm *c;
    ncclComm_t comm; /* c's: the watchdog may take it away meanwhile, and gives it up later */
    const mesh_call *call;
    ncclDataType_t type; /* of reductions */
    ncclRedOp_t op;
    size_t numbers; /* of an element, in that type; or its bytes, where data only move */
    size_t elem;
    int native; /* NCCL has all_to_all, gather and scatter */
} mesh_nccl__ask;

MESH__PRIVATE ncclResult_t mesh_nccl__send(const mesh_nccl__ask *a, const void *p, size_t count, int to) {
    if (!count) return ncclSuccess; /* skipped on both sides */
    return a->s->api.ncclSend(p, count * a->elem, ncclUint8, to, a->comm, a->c->on);
}

MESH__PRIVATE ncclResult_t mesh_nccl__recv(const mesh_nccl__ask *a, void *p, size_t count, int from) {
    if (!count) return ncclSuccess;
    return a->s->api.ncclRecv(p, count * a->elem, ncclUint8, from, a->comm, a->c->on);
}

/* Where block i begins; called for 0, 1, 2 ... `at` is the sum so far. */
MESH__PRIVATE size_t mesh_nccl__at(const size_t *counts, const size_t *offsets, size_t count, int i, size_t *at) {
    size_t before = *at;
    *at += counts ? counts[i] : count;
    return counts && offsets ? offsets[i] : before;
}

/* In a buffer that is NULL where it has no element. */
MESH__PRIVATE void *mesh_nccl__place(const void *buffer, size_t nbytes) { return (void *)((uintptr_t)buffer + nbytes); }

/* Blocks between every pair, or between the root and all. Counts NULL: `count` each. */
MESH__PRIVATE ncclResult_t mesh_nccl__blocks(const mesh_nccl__ask *a, const void *send, void *recv) {
    const mesh_call *call = a->call;
    int n = a->c->size, me = a->c->index, i, root = call->root, kind = call->kind;
    int gathers = kind == MESH_CALL_GATHER || kind == MESH_CALL_GATHER_V,
        scatters = kind == MESH_CALL_SCATTER || kind == MESH_CALL_SCATTER_V;
    size_t sends = 0, receives = 0;
    ncclResult_t r = ncclSuccess;
    for (i = 0; i < n && r == ncclSuccess; i++) {
        /* To or from rank i; a rooted call's other side is one block of `count`. */
        size_t so = mesh_nccl__at(call->send_counts, call->send_offsets, call->count, i, &sends),
               ro = mesh_nccl__at(call->recv_counts, call->recv_offsets, call->count, i, &receives),
               sc = call->send_counts ? call->send_counts[i] : call->count,
               rc = call->recv_counts ? call->recv_counts[i] : call->count;
        int to_i = 1, from_i = 1;
        if (gathers) {
            to_i = i == root, so = 0, sc = call->count;
            from_i = me == root;
        }
        if (scatters) {
            to_i = me == root;
            from_i = i == root, ro = 0, rc = call->count;
        }
        if (i == me) {
            if (to_i && from_i)
                mesh_nccl__put(a->s, "a copy",
                               mesh_nccl__move(a->s, a->c, mesh_nccl__place(recv, ro * a->elem), NULL,
                                               mesh_nccl__place(send, so * a->elem), NULL, sc * a->elem));
            continue;
        }
        if (to_i) r = mesh_nccl__send(a, mesh_nccl__place(send, so * a->elem), sc, i);
        if (from_i && r == ncclSuccess) r = mesh_nccl__recv(a, mesh_nccl__place(recv, ro * a->elem), rc, i);
    }
    return r;
}

/* A barrier, or what is called like one. It also asks whether all have called the same so far. */
MESH__PRIVATE ncclResult_t mesh_nccl__meeting(const mesh_nccl__ask *a) {
    mesh_nccl__state *s = a->s;
    mesh_nccl__comm *c = a->c;
    mesh_nccl__history *h = &c->past;
    uint32_t i = MESH_NCCL__BARRIERS;
    mesh_nccl__verdict *v;
    ncclResult_t r;
    pthread_mutex_lock(&s->lock);
    if (!c->capturing && !h->barrier[h->barriers % MESH_NCCL__BARRIERS]) {
        i = h->barriers++ % MESH_NCCL__BARRIERS;
        h->verdict[i].in[0] = h->history;
        h->verdict[i].in[1] = ~h->history;
        h->verdict[i].out[0] = h->verdict[i].out[1] = 0;
        h->barrier[i] = c->issued + 1; /* the ticket it gets */
    }
    pthread_mutex_unlock(&s->lock);
    v = &h->verdict[i];
    if (mesh_nccl__put(s, "a barrier", s->api.cudaMemcpyAsync(c->word, v->in, sizeof v->in, cudaMemcpyDefault, c->on)))
        return ncclSuccess;
    r = s->api.ncclAllReduce(c->word, c->word, 2, ncclUint64, ncclMin, a->comm, c->on);
    if (r == ncclSuccess && i < MESH_NCCL__BARRIERS)
        mesh_nccl__put(s, "a barrier",
                       s->api.cudaMemcpyAsync(v->out, c->word, sizeof v->out, cudaMemcpyDefault, c->on));
    return r;
}

/* One array of a call. */
MESH__PRIVATE ncclResult_t mesh_nccl__one(const mesh_nccl__ask *a, int kind, const void *send, void *recv,
                                          size_t count) {
    const mesh_nccl__api *api = &a->s->api;
    const mesh_call *call = a->call;
    ncclComm_t comm = a->comm;
    cudaStream_t on = a->c->on;
    size_t numbers = count * a->numbers, at = 0;
    int i, n = a->c->size, me = a->c->index;
    ncclResult_t r = ncclSuccess;
    switch (kind) {
    case MESH_CALL_ALL_REDUCE:
        return numbers ? api->ncclAllReduce(send, recv, numbers, a->type, a->op, comm, on) : r;
    case MESH_CALL_REDUCE:
        return numbers ? api->ncclReduce(send, recv, numbers, a->type, a->op, call->root, comm, on) : r;
    case MESH_CALL_REDUCE_SCATTER:
        return numbers ? api->ncclReduceScatter(send, recv, numbers, a->type, a->op, comm, on) : r;
    case MESH_CALL_BROADCAST:
        return numbers
                   ? api->ncclBroadcast(me == call->root ? send : recv, recv, numbers, ncclUint8, call->root, comm, on)
                   : r;
    case MESH_CALL_ALL_GATHER:
        return numbers ? api->ncclAllGather(send, recv, numbers, ncclUint8, comm, on) : r;
    case MESH_CALL_ALL_GATHER_V:
        for (i = 0; i < n && r == ncclSuccess; i++) {
            void *to =
                mesh_nccl__place(recv, mesh_nccl__at(call->recv_counts, call->recv_offsets, 0, i, &at) * a->elem);
            if (call->recv_counts[i])
                r = api->ncclBroadcast(i == me ? send : to, to, call->recv_counts[i] * a->elem, ncclUint8, i, comm, on);
        }
        return r;
    case MESH_CALL_REDUCE_SCATTER_V:
        for (i = 0; i < n && r == ncclSuccess; i++) {
            void *from =
                mesh_nccl__place(send, mesh_nccl__at(call->recv_counts, call->recv_offsets, 0, i, &at) * a->elem);
            if (call->recv_counts[i])
                r = api->ncclReduce(from, i == me ? recv : from, call->recv_counts[i] * a->numbers, a->type, a->op, i,
                                    comm, on);
        }
        return r;
    case MESH_CALL_ALL_TO_ALL:
        if (a->native) return numbers ? api->ncclAlltoAll(send, recv, numbers, ncclUint8, comm, on) : r;
        return mesh_nccl__blocks(a, send, recv);
    case MESH_CALL_GATHER:
        if (a->native) return numbers ? api->ncclGather(send, recv, numbers, ncclUint8, call->root, comm, on) : r;
        return mesh_nccl__blocks(a, send, recv);
    case MESH_CALL_SCATTER:
        if (a->native) return numbers ? api->ncclScatter(send, recv, numbers, ncclUint8, call->root, comm, on) : r;
        return mesh_nccl__blocks(a, send, recv);
    case MESH_CALL_ALL_TO_ALL_V:
    case MESH_CALL_GATHER_V:
    case MESH_CALL_SCATTER_V:
        return mesh_nccl__blocks(a, send, recv);
    default:
        return mesh_nccl__meeting(a);
    }
}

MESH__PRIVATE int mesh_nccl__single(int kind) {
    return kind == MESH_CALL_ALL_REDUCE_MANY       ? MESH_CALL_ALL_REDUCE
           : kind == MESH_CALL_BROADCAST_MANY      ? MESH_CALL_BROADCAST
           : kind == MESH_CALL_ALL_GATHER_MANY     ? MESH_CALL_ALL_GATHER
           : kind == MESH_CALL_REDUCE_SCATTER_MANY ? MESH_CALL_REDUCE_SCATTER
                                                   : kind;
}

/* Does NCCL serve this call? Else the core's schedule does. It depends only on what all ranks have in common: not on pointers. */
MESH__PRIVATE int mesh_nccl__serves(const mesh_nccl__state *s, const mesh_call *call, mesh_nccl__ask *a) {
    int kind = mesh_nccl__single(call->kind);
    switch (kind) {
    case MESH_CALL_ALL_REDUCE:
    case MESH_CALL_REDUCE:
    case MESH_CALL_REDUCE_SCATTER:
    case MESH_CALL_REDUCE_SCATTER_V: {
        static const ncclRedOp_t ops[] = {ncclSum, ncclAvg, ncclMin, ncclMax, ncclProd}; /* in the order of mesh_op */
        /* ncclAvg multiplies every summand by 1/n: exact for powers of two, but for f16, which has little room below. */
        int n = a->c->size, exact = (n & (n - 1)) == 0 && call->dtype != MESH_F16;
        if (call->user_op || call->op > MESH_PROD) return 0;
        a->numbers = mesh_nccl__type(s, call->dtype, call->op, &a->type);
        a->op = call->op == MESH_AVG && !exact ? ncclSum : ops[call->op];
        return a->numbers && (call->op != MESH_AVG || exact || s->has_kernels);
    }
    case MESH_CALL_ALL_TO_ALL:
    case MESH_CALL_BROADCAST:
    case MESH_CALL_ALL_GATHER:
    case MESH_CALL_ALL_GATHER_V:
    case MESH_CALL_ALL_TO_ALL_V:
    case MESH_CALL_GATHER:
    case MESH_CALL_GATHER_V:
    case MESH_CALL_SCATTER:
    case MESH_CALL_SCATTER_V:
    case MESH_CALL_BARRIER:
    case MESH_CALL_GROUP_OPEN:
    case MESH_CALL_REGISTER:
        return 1;
    default:
        return 0;
    }
}

/* Sums become averages where NCCL's own are not exact. */
MESH__PRIVATE void mesh_nccl__average(const mesh_nccl__ask *a, int kind, void *recv, size_t count) {
    const mesh_call *call = a->call;
    if (!mesh__call_is(call->kind, MESH_REDUCES) || call->op != MESH_AVG || a->op != ncclSum) return;
    if (kind == MESH_CALL_REDUCE && a->c->index != call->root) return;
    if (kind == MESH_CALL_REDUCE_SCATTER_V) count = call->recv_counts[a->c->index];
    mesh_nccl__put(a->s, "an average",
                   mesh_nccl__combine(a->s, a->c, MESH_AVG, call->dtype, recv, NULL, NULL, NULL, count, a->c->size));
}

MESH__PRIVATE unsigned char *mesh_nccl__staging(mesh_nccl__state *s, mesh_nccl__comm *c, size_t nbytes);

/* A call, inside. */
MESH__PRIVATE void mesh_nccl__call(mesh_nccl__ask *a, int kind) {
    mesh_nccl__state *s = a->s;
    const mesh_call *call = a->call;
    const void *send = call->send;
    int grouped =
            call->nbuffers > 1 || mesh__call_is(kind, MESH_BY_COUNTS) ||
            (!a->native && (kind == MESH_CALL_ALL_TO_ALL || kind == MESH_CALL_GATHER || kind == MESH_CALL_SCATTER)),
        i;
    ncclResult_t r = ncclSuccess, end = ncclSuccess;
    if (kind == MESH_CALL_ALL_TO_ALL && call->send == call->recv && call->count) { /* in place: from a copy */
        size_t nbytes = (size_t)a->c->size * call->count * a->elem;
        if (!(send = mesh_nccl__staging(s, a->c, nbytes))) {
            mesh__fail(&s->trouble, MESH_ERR_MEMORY, s->boot->rank,
                       "no device memory for %u bytes of an all_to_all in place", (uint64_t)nbytes);
            return;
        }
        if (mesh_nccl__put(s, "a copy",
                           mesh_nccl__move(s, a->c, (void *)(uintptr_t)send, NULL, call->send, NULL, nbytes)))
            return;
    }
    if (grouped) r = s->api.ncclGroupStart();
    for (i = 0; i < call->nbuffers && r == ncclSuccess; i++)
        r = mesh_nccl__one(a, kind, call->buffers[i].send, call->buffers[i].recv, call->buffers[i].count);
    if (!call->nbuffers && r == ncclSuccess) r = mesh_nccl__one(a, kind, send, call->recv, call->count);
    if (grouped) end = s->api.ncclGroupEnd();
    mesh_nccl__said(s, mesh__call_name(call->kind), r != ncclSuccess ? r : end);
    for (i = 0; i < call->nbuffers && s->trouble.status == MESH_OK; i++)
        mesh_nccl__average(a, kind, call->buffers[i].recv, call->buffers[i].count);
    if (!call->nbuffers && s->trouble.status == MESH_OK) mesh_nccl__average(a, kind, call->recv, call->count);
}

MESH__PRIVATE mesh_status mesh_nccl__collective(mesh_transport *t, void *group, const mesh_call *call,
                                                mesh_ticket *ticket) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh_nccl__comm *c = g->c;
    mesh_nccl__ask a;
    mesh_error why;
    if (c->size == 1) return MESH_ERR_UNSUPPORTED;
    a.s = s;
    a.c = c;
    a.call = call;
    a.type = ncclUint8;
    a.op = ncclSum;
    a.elem = a.numbers = call->elem_bytes;
    a.native = s->api.ncclAlltoAll != NULL;
    if (!mesh_nccl__serves(s, call, &a)) return MESH_ERR_UNSUPPORTED;
    if (!ticket) return MESH_OK;
    if (s->debug && !mesh_nccl__has_ended(s, c))
        mesh_nccl__checked(s, c, mesh_nccl__check_call(s, g, call, &why), &why);
    if (!mesh_nccl__enter(s, c, call->record, mesh_nccl__now(s) + g->timeout)) {
        mesh_nccl__not_issued(c, ticket);
        return MESH_OK;
    }
    pthread_mutex_lock(&s->lock);
    a.comm = c->comm;
    s->inside_all = 1;
    pthread_mutex_unlock(&s->lock);
    mesh_nccl__call(&a, mesh_nccl__single(call->kind));
    mesh_nccl__issued(s, c, ticket);
    mesh_nccl__leave(s, c);
    return MESH_OK;
}
#endif /* MESH_NCCL_CALLS_IMPLEMENTED */
