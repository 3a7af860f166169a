/* mesh/host_bytes.h - collectives of the host's bytes over any comm: where memory is a device's, by way of it. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh_collectives.h. Knows nothing of what the bytes are.

DO THIS
    Nothing: mesh_collectives.h includes it.
*/
#if !defined(MESH_HOST_BYTES_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_HOST_BYTES_IMPLEMENTED))
#include "../mesh_collectives.h"
#endif

#ifndef MESH_HOST_BYTES_H
#define MESH_HOST_BYTES_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_HOST_BYTES_IMPLEMENTED)
#define MESH_HOST_BYTES_IMPLEMENTED

/* All of these: every rank of the group calls, from inside of a call, and waits on the host. What fails on one rank fails on every one. */

MESH__PRIVATE int mesh__by_device(const mesh_comm *c) { return (c->transport->caps & MESH_CAP_DEVICE) != 0; }

/* From inside of mesh_NAME: what is enqueued next in the comm's first group comes on the caller's stream. STATE, and the comm stays, while that is being
   captured: every rank asks before anything else. */
MESH__PRIVATE mesh_status mesh__on_stream(mesh_comm *c) {
    mesh_transport *t = c->transport;
    void *group = mesh__impl(c)->group[0]->handle;
    mesh_status status = MESH_OK;
    mesh_ticket ticket;
    mesh_post mark;
    if (!mesh__by_device(c)) return MESH_OK;
    memset(&mark, 0, sizeof mark);
    mark.group = group;
    if (MESH__HAS(t->ops, fence)) status = t->ops->fence(t, group, mesh__impl(c)->stream, MESH_FENCE_ON);
    if (status == MESH_OK) status = t->ops->post(t, &mark, &ticket);
    if (status != MESH_OK)
        return mesh__comm_broken(c, status, t->rank, "mesh_%s: the caller's stream: %s", t->inside.call,
                                 mesh_status_text(status));
    if (ticket.id == MESH_TICKET_CAPTURED)
        return mesh__fail(
            &c->error, MESH_ERR_STATE, t->rank,
            "mesh_%s: the caller's stream is being captured, and this waits on the host; call it outside of the capture",
            t->inside.call);
    return MESH_OK;
}

/* The device's scratch, for one rank. After a failure of the comm the device may still write there: it stays the transport's. */
MESH__PRIVATE mesh_status mesh__scratch_of(mesh_comm *c, uint64_t nbytes, void **p) {
    mesh_transport *t = c->transport;
    *p = NULL;
    if (!MESH__HAS(t->ops, alloc) || !MESH__HAS(t->ops, free) || !MESH__HAS(t->ops, copy)) return MESH_ERR_UNSUPPORTED;
    return t->ops->alloc(t, nbytes ? nbytes : 1, 0, p);
}
MESH__PRIVATE void mesh__scratch_give(mesh_comm *c, void *p) {
    if (p && !c->failed) c->transport->ops->free(c->transport, p);
}

/* Without it every rank fails. */
MESH__PRIVATE mesh_status mesh__scratch_take(mesh_comm *c, uint64_t nbytes, void **p) {
    mesh_status status = mesh__scratch_of(c, nbytes, p);
    if (status == MESH_OK) return status;
    if (status == MESH_ERR_UNSUPPORTED)
        return mesh__comm_broken(c, status, c->transport->rank,
                                 "mesh_%s: the transport (%s) has device memory, and no alloc, free or copy for it",
                                 c->transport->inside.call, c->transport->ops->name);
    return mesh__comm_broken(c, status, c->transport->rank, "mesh_%s: no memory of the device for %u bytes; free some",
                             c->transport->inside.call, nbytes);
}

/* mesh_copy, whose failure is everybody's. */
MESH__PRIVATE mesh_status mesh__host_copy(mesh_comm *c, void *dst, const void *src, size_t nbytes) {
    mesh_status status = mesh_copy(c, dst, src, nbytes);
    mesh_error why;
    if (status == MESH_OK || c->failed) return status;
    why = c->error;
    return mesh__comm_broken(c, status, why.rank < 0 ? c->transport->rank : why.rank, "mesh_%s: %s",
                             c->transport->inside.call, why.text);
}

/* A started operation, on the host: its own errors, who is awaited among them, and memory that nothing writes any more. */
MESH__PRIVATE mesh_status mesh__host_wait(mesh_status started, const mesh_request *r) {
    return started == MESH_OK ? mesh_wait_host(*r) : started;
}

/* A call that sends `in` bytes of the host's and receives `out`: from scratch to scratch. */
MESH__PRIVATE mesh_status mesh__by_way(mesh_comm *c, const char *axes, mesh_call *call, uint64_t in, uint64_t out) {
    const void *from = call->send;
    void *to = call->recv, *p;
    uint64_t at = from == to ? 0 : (in + 15) & ~UINT64_C(15);
    mesh_request r;
    mesh_status status = mesh__scratch_take(c, at + out, &p);
    call->send = p;
    call->recv = to ? (unsigned char *)p + at : NULL;
    if (status == MESH_OK && in) status = mesh__host_copy(c, p, from, (size_t)in);
    if (status == MESH_OK) status = mesh__host_wait(mesh__call_start(c, axes, call, &r), &r);
    if (status == MESH_OK && out) status = mesh__host_copy(c, to, call->recv, (size_t)out);
    mesh__scratch_give(c, p);
    return status;
}

MESH__PRIVATE mesh_status mesh__host_all_reduce(mesh_comm *c, void *v, size_t count, mesh_dtype d, mesh_op op) {
    mesh_call call = mesh__call(MESH_CALL_ALL_REDUCE, v, v, count, d, op, 0);
    uint64_t nbytes = (uint64_t)count * mesh_dtype_bytes(d);
    if (!mesh__by_device(c)) return mesh_all_reduce(c, NULL, v, v, count, d, op);
    return mesh__by_way(c, NULL, &call, nbytes, nbytes);
}

MESH__PRIVATE mesh_status mesh__host_broadcast(mesh_comm *c, const char *axes, void *v, size_t count, mesh_dtype d,
                                               int root) {
    mesh_call call = mesh__call(MESH_CALL_BROADCAST, v, v, count, d, MESH_SUM, root);
    uint64_t nbytes = (uint64_t)count * mesh_dtype_bytes(d);
    if (!mesh__by_device(c)) return mesh_broadcast(c, axes, v, v, count, d, root);
    return mesh__by_way(c, axes, &call, nbytes, nbytes);
}

/* Every rank of a group of n gets the `count` of each. */
MESH__PRIVATE mesh_status mesh__host_all_gather(mesh_comm *c, const char *axes, int n, const void *mine, void *all,
                                                size_t count, mesh_dtype d) {
    mesh_call call = mesh__call(MESH_CALL_ALL_GATHER, mine, all, count, d, MESH_SUM, 0);
    uint64_t nbytes = (uint64_t)count * mesh_dtype_bytes(d);
    if (!mesh__by_device(c)) return mesh_all_gather(c, axes, mine, all, count, d);
    return mesh__by_way(c, axes, &call, nbytes, nbytes * (uint64_t)n);
}

/* `count` of each rank of a group of n to each. */
MESH__PRIVATE mesh_status mesh__host_all_to_all(mesh_comm *c, const char *axes, int n, const void *send, void *recv,
                                                size_t count, mesh_dtype d) {
    mesh_call call = mesh__call(MESH_CALL_ALL_TO_ALL, send, recv, count, d, MESH_SUM, 0);
    uint64_t nbytes = (uint64_t)n * count * mesh_dtype_bytes(d);
    if (!mesh__by_device(c)) return mesh_all_to_all(c, axes, send, recv, count, d);
    return mesh__by_way(c, axes, &call, nbytes, nbytes);
}

/* Every rank of the comm gets the counts[i] of index i, one rank's after the other's. */
MESH__PRIVATE mesh_status mesh__host_all_gather_v(mesh_comm *c, const void *mine, void *all, const size_t *counts,
                                                  mesh_dtype d) {
    mesh_call call = mesh__call(MESH_CALL_ALL_GATHER_V, mine, all, 0, d, MESH_SUM, 0);
    uint64_t total = 0, elem = mesh_dtype_bytes(d);
    int i;
    if (!mesh__by_device(c)) return mesh_all_gather_v(c, NULL, mine, all, counts, NULL, d);
    call.recv_counts = counts;
    for (i = 0; i < c->on.size; i++) total += counts[i] * elem;
    return mesh__by_way(c, NULL, &call, counts[mesh_index_of(&c->on, c->transport->rank)] * elem, total);
}

/* nbytes of mine come to index 0, one rank's after the other's: counts[i] of index i, which are read there. */
MESH__PRIVATE mesh_status mesh__host_gather_v(mesh_comm *c, const void *mine, size_t nbytes, void *all,
                                              const size_t *counts) {
    mesh_call call = mesh__call(MESH_CALL_GATHER_V, mine, all, nbytes, MESH_BYTES, MESH_SUM, 0);
    int i, root = mesh_index_of(&c->on, c->transport->rank) == 0;
    uint64_t total = 0;
    if (!mesh__by_device(c)) return mesh_gather_v(c, NULL, mine, nbytes, all, counts, NULL, MESH_BYTES, 0);
    call.recv_counts = counts;
    for (i = 0; root && i < c->on.size; i++) total += counts[i];
    return mesh__by_way(c, NULL, &call, nbytes, total);
}

/* A number of each rank, at index 0. */
MESH__PRIVATE mesh_status mesh__host_gather(mesh_comm *c, const uint64_t *mine, uint64_t *all) {
    mesh_call call = mesh__call(MESH_CALL_GATHER, mine, all, 1, MESH_U64, MESH_SUM, 0);
    int root = mesh_index_of(&c->on, c->transport->rank) == 0;
    if (!mesh__by_device(c)) return mesh_gather(c, NULL, mine, all, 1, MESH_U64, 0);
    return mesh__by_way(c, NULL, &call, sizeof *mine, root ? (uint64_t)c->on.size * sizeof *mine : 0);
}

/* The exclusive or of all ranks', into v: gathered, for a device may have no kernel for it. */
MESH__PRIVATE mesh_status mesh__host_xor(mesh_comm *c, uint32_t *v, size_t count) {
    uint32_t *all;
    size_t i, n = (size_t)c->on.size;
    mesh_status status;
    if (!mesh__by_device(c)) return mesh_all_reduce(c, NULL, v, v, count, MESH_U32, MESH_XOR);
    all = (uint32_t *)mesh_transport_alloc(c->transport, (n * count + 1) * sizeof *all);
    if (!all)
        return mesh__comm_broken(c, MESH_ERR_MEMORY, c->transport->rank,
                                 "mesh_%s: no memory for %u numbers of %u ranks", c->transport->inside.call,
                                 (uint64_t)count, (uint64_t)n);
    status = mesh__host_all_gather(c, NULL, c->on.size, v, all, count, MESH_U32);
    memset(v, 0, count * sizeof *v);
    for (i = 0; i < n * count && status == MESH_OK; i++) v[i % count] ^= all[i];
    mesh_transport_free(c->transport, all);
    return status;
}

/* Its length, then its bytes. */
MESH__PRIVATE mesh_status mesh__host_object(mesh_comm *c, const char *axes, mesh_object *o, int root) {
    mesh__group *g = NULL;
    mesh_request none;
    uint64_t nbytes;
    mesh_status status = mesh__call_begin(c, axes, MESH_CALL_BROADCAST_OBJECT, &none, &g);
    mesh_call call = mesh__call(MESH_CALL_BROADCAST_OBJECT, NULL, o, 0, MESH_BYTES, MESH_SUM, root);
    if (status == MESH_OK) status = mesh__on_stream(c);
    if (status == MESH_OK) status = mesh__root_check(c, g, &call);
    if (status == MESH_OK) status = mesh__object_check(c, g, &call);
    if (status != MESH_OK) return status;
    nbytes = g->index == root ? (uint64_t)o->nbytes : 0;
    status = mesh__host_broadcast(c, axes, &nbytes, 1, MESH_U64, root);
    if (status == MESH_OK && g->index != root && !mesh__object_room(c->transport, o, nbytes))
        status = mesh__comm_broken(c, MESH_ERR_MEMORY, c->transport->rank,
                                   "mesh_broadcast_object: no memory for an object of %u bytes", nbytes);
    if (status == MESH_OK && nbytes) status = mesh__host_broadcast(c, axes, o->data, (size_t)nbytes, MESH_BYTES, root);
    return status;
}

MESH__PRIVATE mesh_status mesh__object_by_way(mesh_comm *c, const char *axes, mesh_object *o, int root) {
    MESH__ALONE_COMPOSED(c, "broadcast_object", mesh__host_object(c, axes, o, root));
}

MESH_API mesh_status mesh_broadcast_object(mesh_comm *c, const char *axes, mesh_object *o, int root) {
    if (c && c->impl && mesh__by_device(c)) return mesh__object_by_way(c, axes, o, root);
    MESH__BLOCKING(mesh_broadcast_object_start(c, axes, o, root, &r));
}
#endif /* MESH_HOST_BYTES_IMPLEMENTED */
