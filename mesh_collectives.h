/* mesh_collectives.h - collectives over the axes of a mesh, on any transport. Part of mesh.h 0.1.0. MIT licence. */
/*
DO THIS
    #define MESH_IMPLEMENTATION             in exactly one .c or .cc file, before including any header of the library
    #include "mesh.h"
    #include "mesh_collectives.h"
    #include "transports/mesh_socket.h"     or another transport

EXAMPLE
    mesh_error err;
    mesh_socket net;
    mesh m;
    mesh_comm comm;
    if (mesh_socket_open(&net, NULL, &err) || mesh_parse(&m, "dp=-1,tp=2", mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err)) return fail(err.text);
    if (mesh_all_reduce(&comm, "dp", grad, grad, count, MESH_F32, MESH_AVG)) return fail(comm.error.text);
    mesh_comm_close(&comm);
    mesh_socket_close(&net);

CONCEPTS
    transport   this rank's endpoint to the world, behind mesh_ops. Sockets, NCCL, MPI and the simulator are transports.
    comm        a mesh bound to a transport: where collectives are called. Opened by all ranks of the mesh together.
    group       where a call acts: the ranks that differ from me only along the axes named, "dp" or "dp,cp", numbered row-major
                in the order written. NULL: the whole mesh. Every single axis and the whole mesh are open; any other list of
                axes is named in mesh_comm_desc.groups or opened by mesh_group_open.
    request     an operation under way. Every operation has a _start form that returns one; the blocking form is start + wait. mesh_keep
                makes it persistent: mesh_restart starts the same call again from the schedule that is there.
    algorithm   how a call is served: chosen by call, ranks and bytes from a tuning table, the first rank's for all (see below).

CONVENTIONS
    Arguments: comm, axes, send, recv, count, dtype, op, root. `count` is elements PER RANK. root, to, from: indices in the group.
    Zero counts are legal and still synchronise like any other. In place: send == recv; for all_gather send == recv + index*count
    and for reduce_scatter recv == send + index*count elements; for their v-forms and those of gather and scatter the own block is at its
    offset (the sum of the counts before it where there are none), all_to_all_v has no in-place form. Buffers that overlap in any other
    way are refused, entries of one list against each other too (strided blocks of mesh_exchange are not).
    A started operation moves while the program is in the library: on sockets not behind its back. Between start and wait call mesh_progress
    (or mesh_test, on any request) now and then where computing is to overlap, or ask for a progress thread; NCCL's go on by themselves.
    Put the implementation in a file of its own: it adds seconds to what compiles it. -Ofast makes the compiler's start-up code flush
    subnormal numbers in the whole program, reductions included.
    Ranks of a group call its operations in the same order. Different groups may be served in any order, as long as no cycle of
    waiting ranks arises. avg divides the sum by the group's size. f16 and bf16 accumulate in f32, rounded once per hop: in f16 a sum above
    65504 is inf, and its average too (scale before, or use f32).
    On CPU transports a reduction has the same bits on every rank of the group and from run to run (NaN payloads excepted). min and max
    of a NaN are a NaN. Buffers are aligned to their dtype. Numbers travel little-endian, MESH_BYTES as they are.

ERRORS
    Every call returns a mesh_status; the text is in comm->error. Whatever ends an operation badly fails the comm, on every rank of it:
    operations under way end with the cause, later ones return it at once, and the remedy is to close the comm. Other comms go on.
        MISMATCH    ranks called different things in one group: the text names rank, axis, sequence and both calls; or ranks wait
                    for each other in a cycle: the text lists who waits for whom, in what. (Cycles are found among ranks that
                    are blocked, in one operation; a rank that polls with mesh_test may still do something else, and one in mesh_wait_any
                    waits for any of several: there the deadline decides.)
        PEER        a rank was lost, or has closed its transport while it was still needed: the text names it.
        TIMEOUT     the deadline (mesh_comm_desc.timeout_ns) passed: the text names the ranks still awaited.
        ARGUMENT, UNSUPPORTED, MEMORY, STATE (a group that is not open): a start that one rank got wrong. The others would wait for it,
                    so they get the same status, with "rank r failed: ..." in front of its text.
    Two do not fail the comm: STATE of a request that was waited for already, and of a comm that is not open.

MEMORY
    From the transport's allocator. Buffers of an operation belong to it from start until wait or test returns something other
    than MESH_IN_PROGRESS; after that, errors included, they are never touched
    (but of what MPI cannot take back: see mesh_mpi.h).

THREADS
    One thread at a time per transport: who comes while another thread is inside, or calls from a user's op, gets MESH_ERR_STATE with both
    calls named, and has done nothing. (What only reads, mesh_comm_size and its like, is not watched.) A comm is not copied or moved while
    it is open.

BEHIND IT
    mesh/memory.h        memory of the transport
    mesh/request.h       requests; by way of comm.h (comms, groups), control.h, waits.h, failure.h, engine.h (these included first)
    mesh/build.h         what serves a call; by way of levels.h, algorithms.h, schedule.h, kernels.h, tuning.h, transport.h
    mesh/p2p.h           send, receive, exchange, shift, halos                                                (these at the end)
    mesh/messages.h      messages of unknown length
    mesh/redistribute.h  tensors from one layout to another
*/
#if !defined(MESH_COLLECTIVES_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_COLLECTIVES_IMPLEMENTED))
#include "mesh/build.h"
#include "mesh/memory.h"
#include "mesh/request.h"
#endif

#ifndef MESH_COLLECTIVES_H
#define MESH_COLLECTIVES_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- groups ---- */

/* Open a group of several axes; every rank of the mesh calls it in the same order. OK if it is open already. */
MESH_API mesh_status mesh_group_open(mesh_comm *c, const char *axes);
/* A comm for each color: the ranks of c that give the same, ordered by key, then by their order in c, as a mesh of one axis "rank" (which mesh_reshape
   makes others of, for comms of their own). Collective over c, which stays open. A negative color: the result is all zero, and OK. desc NULL:
   deadlines and stream as c's. Errors in err; what fails on the way fails c. Where the layout is known, mesh_comm_open on meshes needs no messages. */
MESH_API mesh_status mesh_comm_split(mesh_comm *result, mesh_comm *c, int color, int key, const mesh_comm_desc *desc,
                                     mesh_error *err);

/* Show nbytes at p to the other ranks, so that they reach them without copies (NCCL: in a window, from 2.27 on; best of mesh_alloc's memory). Every
   rank of the comm calls it, with memory of its own and the same nbytes; for each group that is open it is registered on all its ranks or on none.
   *handle is NULL where there is nothing to give back. From then on a collective, and a message, gets registered memory on all its ranks, or on none.
   MISMATCH: other bytes elsewhere. ARGUMENT, MEMORY: the comm fails, as the others wait. */
MESH_API mesh_status mesh_register(mesh_comm *c, void *p, size_t nbytes, void **handle);
/* Each rank by itself, when nothing is under way in it. Closing the comm does it too. NULL is fine; ARGUMENT: it is not a handle of this comm. */
MESH_API mesh_status mesh_unregister(mesh_comm *c, void *handle);

/* ---- collectives -------------------------------------------------------------------------------------------------------- */

/* recv = the reduction of every rank's send; count elements. */
MESH_API mesh_status mesh_all_reduce(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                     mesh_dtype d, mesh_op op);
MESH_API mesh_status mesh_all_reduce_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                           mesh_dtype d, mesh_op op, mesh_request *r);
/* The same at root only; recv is not touched elsewhere (may be NULL). */
MESH_API mesh_status mesh_reduce(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                 mesh_dtype d, mesh_op op, int root);
MESH_API mesh_status mesh_reduce_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                       mesh_dtype d, mesh_op op, int root, mesh_request *r);
/* recv = root's send; send is read at root only (may be NULL elsewhere). */
MESH_API mesh_status mesh_broadcast(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                    mesh_dtype d, int root);
MESH_API mesh_status mesh_broadcast_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                          mesh_dtype d, int root, mesh_request *r);
/* recv[i*count ..] = rank i's send; recv holds size*count. */
MESH_API mesh_status mesh_all_gather(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                     mesh_dtype d);
MESH_API mesh_status mesh_all_gather_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                           mesh_dtype d, mesh_request *r);
/* recv[offsets[i] ..] = rank i's send of counts[i] elements; counts and offsets are the same on every rank. offsets NULL: one after another. */
MESH_API mesh_status mesh_all_gather_v(mesh_comm *c, const char *axes, const void *send, void *recv,
                                       const size_t *counts, const size_t *offsets, mesh_dtype d);
MESH_API mesh_status mesh_all_gather_v_start(mesh_comm *c, const char *axes, const void *send, void *recv,
                                             const size_t *counts, const size_t *offsets, mesh_dtype d,
                                             mesh_request *r);
/* recv = the reduction of every rank's send[index*count ..]; send holds size*count. */
MESH_API mesh_status mesh_reduce_scatter(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                         mesh_dtype d, mesh_op op);
MESH_API mesh_status mesh_reduce_scatter_start(mesh_comm *c, const char *axes, const void *send, void *recv,
                                               size_t count, mesh_dtype d, mesh_op op, mesh_request *r);
/* The same with counts[i] elements for rank i, at offsets[i] of send (NULL: one after another). */
MESH_API mesh_status mesh_reduce_scatter_v(mesh_comm *c, const char *axes, const void *send, void *recv,
                                           const size_t *counts, const size_t *offsets, mesh_dtype d, mesh_op op);
MESH_API mesh_status mesh_reduce_scatter_v_start(mesh_comm *c, const char *axes, const void *send, void *recv,
                                                 const size_t *counts, const size_t *offsets, mesh_dtype d, mesh_op op,
                                                 mesh_request *r);
/* recv[i*count ..] = rank i's send[index*count ..]; both hold size*count. In place: through scratch memory of the same size. */
MESH_API mesh_status mesh_all_to_all(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                     mesh_dtype d);
MESH_API mesh_status mesh_all_to_all_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                           mesh_dtype d, mesh_request *r);
/* send_counts[i] elements at send_offsets[i] go to rank i, recv_counts[i] from it arrive at recv_offsets[i] (NULL offsets: one after another).
   What i sends me must be what I receive from i: MISMATCH else (ARGUMENT: my own two counts of my block to myself). Not in place. */
MESH_API mesh_status mesh_all_to_all_v(mesh_comm *c, const char *axes, const void *send, const size_t *send_counts,
                                       const size_t *send_offsets, void *recv, const size_t *recv_counts,
                                       const size_t *recv_offsets, mesh_dtype d);
MESH_API mesh_status mesh_all_to_all_v_start(mesh_comm *c, const char *axes, const void *send,
                                             const size_t *send_counts, const size_t *send_offsets, void *recv,
                                             const size_t *recv_counts, const size_t *recv_offsets, mesh_dtype d,
                                             mesh_request *r);
/* root's recv[i*count ..] = rank i's send; recv is not touched elsewhere (may be NULL). In place at root: send == recv + root*count. */
MESH_API mesh_status mesh_gather(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                 mesh_dtype d, int root);
MESH_API mesh_status mesh_gather_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                       mesh_dtype d, int root, mesh_request *r);
/* The same with counts[i] elements of rank i at recv[offsets[i] ..] (NULL: one after another); counts and offsets are read at root only.
   A rank whose count is not what root expects of it: MISMATCH. */
MESH_API mesh_status mesh_gather_v(mesh_comm *c, const char *axes, const void *send, size_t count, void *recv,
                                   const size_t *counts, const size_t *offsets, mesh_dtype d, int root);
MESH_API mesh_status mesh_gather_v_start(mesh_comm *c, const char *axes, const void *send, size_t count, void *recv,
                                         const size_t *counts, const size_t *offsets, mesh_dtype d, int root,
                                         mesh_request *r);
/* recv = root's send[index*count ..]; send is read at root only (may be NULL elsewhere). In place at root: recv == send + root*count. */
MESH_API mesh_status mesh_scatter(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                  mesh_dtype d, int root);
MESH_API mesh_status mesh_scatter_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                        mesh_dtype d, int root, mesh_request *r);
/* The same with counts[i] elements at send[offsets[i] ..] for rank i; counts and offsets are read at root only. */
MESH_API mesh_status mesh_scatter_v(mesh_comm *c, const char *axes, const void *send, const size_t *counts,
                                    const size_t *offsets, void *recv, size_t count, mesh_dtype d, int root);
MESH_API mesh_status mesh_scatter_v_start(mesh_comm *c, const char *axes, const void *send, const size_t *counts,
                                          const size_t *offsets, void *recv, size_t count, mesh_dtype d, int root,
                                          mesh_request *r);
/* recv = the reduction of send over ranks 0 .. mine, in their order. No avg. */
MESH_API mesh_status mesh_scan(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count, mesh_dtype d,
                               mesh_op op);
MESH_API mesh_status mesh_scan_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                     mesh_dtype d, mesh_op op, mesh_request *r);
/* recv = the reduction over the ranks before mine; at index 0 recv is left as it is (and may be NULL). */
MESH_API mesh_status mesh_exscan(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                 mesh_dtype d, mesh_op op);
MESH_API mesh_status mesh_exscan_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                       mesh_dtype d, mesh_op op, mesh_request *r);
/* Every rank ends with root's object, whose size only root knows. At root o->data and o->nbytes are given. Elsewhere o begins as all
   zero, or as an object received before, whose memory is used again; it is memory of the host. On GPUs the host waits for it (STATE: the
   caller's stream is being captured), and there is no started form (UNSUPPORTED). Cannot be kept (mesh_keep: UNSUPPORTED): its schedule is not known before it runs. */
MESH_API mesh_status mesh_broadcast_object(mesh_comm *c, const char *axes, mesh_object *o, int root);
MESH_API mesh_status mesh_broadcast_object_start(mesh_comm *c, const char *axes, mesh_object *o, int root,
                                                 mesh_request *r);
/* Free what was received (not what root gave) and make the object zero: of a call that failed too, once it has ended; after the
   comm's close too, but before the transport's. */
MESH_API void mesh_object_free(mesh_comm *c, mesh_object *o);
/* No rank returns before every rank has called; on GPUs, come so far on its stream. The one blocking call that blocks the host there. */
MESH_API mesh_status mesh_barrier(mesh_comm *c, const char *axes);
MESH_API mesh_status mesh_barrier_start(mesh_comm *c, const char *axes, mesh_request *r);

/* ---- many buffers in one call: the gradients of many layers. As the single form on each buffer, in one operation: small ones are copied
   together, large ones go from where they are. Every rank gives a list of the same counts; the list is read during the call only. --- */

MESH_API mesh_status mesh_all_reduce_many(mesh_comm *c, const char *axes, const mesh_buffer *list, int n, mesh_dtype d,
                                          mesh_op op);
MESH_API mesh_status mesh_all_reduce_many_start(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                                mesh_dtype d, mesh_op op, mesh_request *r);
MESH_API mesh_status mesh_broadcast_many(mesh_comm *c, const char *axes, const mesh_buffer *list, int n, mesh_dtype d,
                                         int root);
MESH_API mesh_status mesh_broadcast_many_start(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                               mesh_dtype d, int root, mesh_request *r);
MESH_API mesh_status mesh_all_gather_many(mesh_comm *c, const char *axes, const mesh_buffer *list, int n, mesh_dtype d);
MESH_API mesh_status mesh_all_gather_many_start(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                                mesh_dtype d, mesh_request *r);
MESH_API mesh_status mesh_reduce_scatter_many(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                              mesh_dtype d, mesh_op op);
MESH_API mesh_status mesh_reduce_scatter_many_start(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                                    mesh_dtype d, mesh_op op, mesh_request *r);

#ifdef __cplusplus
}
#endif
#endif /* MESH_COLLECTIVES_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_COLLECTIVES_IMPLEMENTED)
#define MESH_COLLECTIVES_IMPLEMENTED

/* ---- // >>start: checks, then a schedule ---- */

/* Do two blocks of a v-call share an element? */
MESH__PRIVATE int mesh__v_meets(const size_t *counts, const size_t *offsets, int i, int k) {
    return offsets && counts[i] && counts[k] && offsets[i] < offsets[k] + counts[k] &&
           offsets[k] < offsets[i] + counts[i];
}

/* Do the blocks of a v-call's receive side overlap? One after another, which is usual, is seen in one pass. */
MESH__PRIVATE int mesh__v_overlap(const size_t *counts, const size_t *offsets, int n) {
    size_t end = 0;
    int i, k, ordered = 1;
    for (i = 0; offsets && i < n; i++) {
        if (counts[i] && offsets[i] < end) ordered = 0;
        if (counts[i]) end = offsets[i] + counts[i];
    }
    for (i = 0; !ordered && i < n; i++)
        for (k = i + 1; k < n; k++)
            if (mesh__v_meets(counts, offsets, i, k)) return 1;
    return 0;
}

/* Elements that a call reads of one buffer and writes to it on this rank; SIZE_MAX: they overflow. `view`: its counts and offsets. */
MESH__PRIVATE mesh_status mesh__buffer_extents(mesh_comm *c, mesh__group *g, const mesh_call *call, size_t count,
                                               const size_t *counts, const size_t *offsets, size_t *send,
                                               size_t *recv) {
    int kind = call->kind, single = mesh__single_kind(kind), n = g->on.size, at_root = g->index == call->root;
    int gathers = mesh__gathers(single);
    size_t elem = call->elem_bytes;
    *send = *recv = count;
    switch (kind) {
    case MESH_CALL_ALL_GATHER_V:
    case MESH_CALL_REDUCE_SCATTER_V:
        if (!call->recv_counts) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, g->axes, "counts is NULL");
        *send = *recv = mesh__v_extent(call->recv_counts, call->recv_offsets, n, elem);
        *(gathers ? send : recv) = call->recv_counts[g->index];
        break;
    case MESH_CALL_GATHER_V:
    case MESH_CALL_SCATTER_V:
        if (count > SIZE_MAX / 2 / elem) *send = SIZE_MAX;
        if (!at_root) break;
        if (!counts) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, g->axes, "counts is NULL at the root");
        if (counts[g->index] != count)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, g->axes,
                                "count is %u, but counts[%d], the root's own, is %u", (uint64_t)count, g->index,
                                (uint64_t)counts[g->index]);
        *(gathers ? recv : send) = mesh__v_extent(counts, offsets, n, elem);
        break;
    case MESH_CALL_ALL_TO_ALL_V:
        if (!call->send_counts || !call->recv_counts)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, g->axes, "%s is NULL",
                                call->send_counts ? "recv_counts" : "send_counts");
        if (call->send_counts[g->index] != call->recv_counts[g->index])
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, g->axes,
                                "send_counts[%d] is %u and recv_counts[%d] %u: both are this rank's block to itself",
                                g->index, (uint64_t)call->send_counts[g->index], g->index,
                                (uint64_t)call->recv_counts[g->index]);
        *send = mesh__v_extent(call->send_counts, call->send_offsets, n, elem);
        *recv = mesh__v_extent(call->recv_counts, call->recv_offsets, n, elem);
        break;
    default:
        if ((count >> (4 * sizeof count - 1) || elem >> 2 * sizeof count || n >> (2 * sizeof count - 1)) &&
            count > SIZE_MAX / 2 / elem / (size_t)n) /* small ones are spared the divisions */
            *send = SIZE_MAX;
        else if (gathers || single == MESH_CALL_ALL_TO_ALL)
            *recv *= (size_t)n;
        if (*send != SIZE_MAX && (mesh__scatters(single) || single == MESH_CALL_ALL_TO_ALL)) *send *= (size_t)n;
        break;
    }
    return MESH_OK;
}

/* Small ones, in place or apart by all that they could be of: most are, and need no more of a check. */
MESH__INLINE int mesh__buffer_is_plain(const mesh__group *g, mesh_call *call, const void *send, const void *recv,
                                       size_t count) {
    enum {
        MESH__PLAIN_COUNT = 1 << 14,
        MESH__PLAIN_BYTES = 1 << 10,
        MESH__PLAIN_RANKS = 1 << 6
    }; /* whose product has room in 32 bits */
    size_t most = count * call->elem_bytes * (size_t)g->on.size;
    if (!send || !recv || count > (size_t)MESH__PLAIN_COUNT || call->elem_bytes > (size_t)MESH__PLAIN_BYTES ||
        g->on.size > MESH__PLAIN_RANKS || mesh__call_is(call->kind, MESH_BY_COUNTS))
        return 0;
    if (send != recv || call->kind != MESH_CALL_ALL_REDUCE) return !mesh__overlap(send, most, recv, most);
    call->in_place = count != 0;
    return 1;
}

/* One buffer of a call: NULL, overflow, overlap. `which`: for messages about a list, "" otherwise. */
MESH__PRIVATE mesh_status mesh__buffer_check(mesh_comm *c, mesh__group *g, mesh_call *call, const void *send,
                                             const void *recv, size_t count, const char *which) {
    const char *axes = g->axes;
    int kind = call->kind, single = mesh__single_kind(kind), at_root = g->index == call->root, i;
    int gathers = mesh__gathers(single), scatters = mesh__scatters(single);
    size_t elem = call->elem_bytes, send_count, recv_count, own = count * (size_t)g->index;
    const void *shared; /* where in-place data has to be */
    const size_t *counts = kind == MESH_CALL_SCATTER_V ? call->send_counts : call->recv_counts,
                 *offsets = kind == MESH_CALL_SCATTER_V ? call->send_offsets : call->recv_offsets;
    mesh_status status;
    status = mesh__buffer_extents(c, g, call, count, counts, offsets, &send_count, &recv_count);
    if (status != MESH_OK) return status;
    if (send_count == SIZE_MAX || recv_count == SIZE_MAX)
        return mesh__call_is(kind, MESH_BY_COUNTS)
                   ? mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "counts and offsets of elements of %s overflow",
                                  mesh_dtype_name((mesh_dtype)call->dtype))
                   : mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%s%u elements of %s per rank overflow", which,
                                  (uint64_t)count, mesh_dtype_name((mesh_dtype)call->dtype));
    if (((kind == MESH_CALL_ALL_GATHER_V || kind == MESH_CALL_ALL_TO_ALL_V) ||
         (kind == MESH_CALL_GATHER_V && at_root)) &&
        mesh__v_overlap(call->recv_counts, call->recv_offsets, g->on.size))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "the received blocks overlap each other; see counts and offsets");
    if (!at_root && (single == MESH_CALL_REDUCE || single == MESH_CALL_GATHER || kind == MESH_CALL_GATHER_V))
        recv_count = 0;
    if (!at_root && (single == MESH_CALL_BROADCAST || single == MESH_CALL_SCATTER || kind == MESH_CALL_SCATTER_V))
        send_count = 0;
    if (!send && send_count)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%ssend is NULL with %u elements", which,
                            (uint64_t)send_count);
    if (kind == MESH_CALL_EXSCAN && g->index == 0 && !recv) return MESH_OK; /* it is not written there */
    if (!recv && recv_count)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%srecv is NULL with %u elements", which,
                            (uint64_t)recv_count);
    /* What has no element may lie within the other; mesh_rebind is not to take the other's for its. */
    if (mesh__call_is(kind, MESH_BY_COUNTS) && !send_count) call->send = NULL;
    if (mesh__call_is(kind, MESH_BY_COUNTS) && !recv_count) call->recv = NULL;
    if (!mesh__overlap(send, send_count * elem, recv, recv_count * elem)) return MESH_OK;
    if (mesh__call_is(kind, MESH_BY_COUNTS) && counts) {
        own = offsets ? offsets[g->index] : 0;
        for (i = 0; !offsets && i < g->index; i++) own += counts[i];
    }
    if (!gathers && !scatters) own = 0;
    shared = (const char *)(gathers ? recv : send) + own * elem;
    if (kind == MESH_CALL_ALL_TO_ALL_V || (gathers ? send : recv) != shared)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            kind == MESH_CALL_ALL_TO_ALL_V
                                ? "%ssend and recv overlap; all_to_all_v has no form in place"
                                : "%ssend and recv overlap, but not as in place (see CONVENTIONS)",
                            which);
    for (i = 0; kind == MESH_CALL_REDUCE_SCATTER_V && i < g->on.size;
         i++) /* its own is written while others are sent */
        if (i != g->index && mesh__v_meets(counts, offsets, i, g->index))
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                                "in place, the own block overlaps block %d; see counts and offsets", i);
    call->in_place = 1;
    return MESH_OK;
}

/* Does what a buffer of a list receives overlap what another receives or sends? */
MESH__PRIVATE mesh_status mesh__buffers_apart(mesh_comm *c, const mesh__group *g, const mesh_call *call) {
    size_t in = (size_t)mesh__many_blocks(call->kind, g->on.size, 1) * call->elem_bytes,
           out = (size_t)mesh__many_blocks(call->kind, g->on.size, 0) * call->elem_bytes;
    int sends = call->kind != MESH_CALL_BROADCAST_MANY || g->index == call->root, i, one, other = -1;
    mesh__extents list;
    if (call->nbuffers < 2) return MESH_OK;
    if (!mesh__extents_open(&list, c->transport, 2 * (size_t)call->nbuffers))
        return mesh__refuse(c, MESH_ERR_MEMORY, call->kind, g->axes, "no memory to compare %d buffers", call->nbuffers);
    for (i = 0; i < call->nbuffers; i++) {
        const mesh_buffer *b = &call->buffers[i];
        mesh__extents_add(&list, b->recv, b->count * in, i, 1);
        if (sends) mesh__extents_add(&list, b->send, b->count * out, i, 0);
    }
    one = mesh__extents_close(&list, c->transport, &other);
    if (one < 0) return MESH_OK;
    return mesh__refuse(c, MESH_ERR_ARGUMENT, call->kind, g->axes, "what buffer %d or %d receives overlaps the other",
                        one, other);
}

/* fp8 is reduced by transports that can, in their own collectives. */
MESH__PRIVATE int mesh__reduces_fp8(const mesh_transport *t, const mesh_call *call) {
    return t->caps & MESH_CAP_FP8 && (call->dtype == MESH_F8E4M3 || call->dtype == MESH_F8E5M2) &&
           call->op <= MESH_PROD && call->op != MESH_AVG && call->kind != MESH_CALL_SCAN &&
           call->kind != MESH_CALL_EXSCAN;
}

MESH__PRIVATE mesh_status mesh__root_check(mesh_comm *c, mesh__group *g, const mesh_call *call) {
    if (call->root >= 0 && call->root < g->on.size) return MESH_OK;
    return mesh__refuse(c, MESH_ERR_ARGUMENT, call->kind, g->axes,
                        "root %d is outside the group of %d; it is an index in the group", call->root, g->on.size);
}

MESH__PRIVATE mesh_status mesh__object_check(mesh_comm *c, mesh__group *g, const mesh_call *call) {
    const mesh_object *o = (const mesh_object *)call->recv;
    if (o && g->index == call->root && ((uint64_t)o->nbytes >> MESH__LENGTH_BITS || o->nbytes > SIZE_MAX / 2))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, call->kind, g->axes, "%u bytes: an object has less than 1 TiB",
                            (uint64_t)o->nbytes);
    if (o && (o->data || !o->nbytes || g->index != call->root)) return MESH_OK;
    return mesh__refuse(c, MESH_ERR_ARGUMENT, call->kind, g->axes,
                        o ? "the object's data is NULL with %u bytes" : "the object is NULL",
                        (uint64_t)(o ? o->nbytes : 0));
}

/* Check a collective's arguments; the comm fails if they are wrong. */
MESH__PRIVATE mesh_status mesh__call_check(mesh_comm *c, mesh__group *g, mesh_call *call) {
    const char *axes = g->axes;
    int kind = call->kind, i;
    if (mesh__is_meeting(kind)) return MESH_OK;
    if (!call->elem_bytes && call->user_op && mesh_dtype_bytes((mesh_dtype)call->dtype))
        return mesh__refuse(
            c, MESH_ERR_ARGUMENT, kind, axes,
            "user op %d was added with elem_bytes; call it with MESH_BYTES, not %s, or add it with elem_bytes 0",
            call->op - MESH__USER_OP, mesh_dtype_name((mesh_dtype)call->dtype));
    if (!call->elem_bytes)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "dtype %d is none; see MESH_DTYPES", call->dtype);
    if (mesh__call_is(kind, MESH_REDUCES) && !call->user_op && (unsigned)call->op >= MESH_OP_COUNT)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "op %d is none; see MESH_REDUCTIONS and mesh_op_add",
                            call->op);
    if (mesh__call_is(kind, MESH_REDUCES) && !call->user_op && !mesh__reducible(call->dtype, call->op) &&
        !mesh__reduces_fp8(c->transport, call))
        return mesh__refuse(c, MESH_ERR_UNSUPPORTED, kind, axes, "%s of %s is not supported; see MESH_REDUCTIONS",
                            mesh_op_name((mesh_op)call->op), mesh_dtype_name((mesh_dtype)call->dtype));
    if ((kind == MESH_CALL_SCAN || kind == MESH_CALL_EXSCAN) && call->op == MESH_AVG)
        return mesh__refuse(c, MESH_ERR_UNSUPPORTED, kind, axes, "avg has no meaning in a scan; use sum");
    if (c->transport->caps & MESH_CAP_DEVICE &&
        (call->user_op || mesh__is_loc(call->op) || kind == MESH_CALL_BROADCAST_OBJECT))
        return mesh__refuse(c, MESH_ERR_UNSUPPORTED, kind, axes,
                            "the transport (%s) has device memory, and this needs the host's", c->transport->ops->name);
    if (mesh__call_is(kind, MESH_ROOTED) && mesh__root_check(c, g, call) != MESH_OK) return MESH_ERR_ARGUMENT;
    if (kind == MESH_CALL_BROADCAST_OBJECT) return mesh__object_check(c, g, call);
    if (!call->nbuffers && mesh__buffer_is_plain(g, call, call->send, call->recv, call->count)) return MESH_OK;
    if (!call->nbuffers) return mesh__buffer_check(c, g, call, call->send, call->recv, call->count, "");
    for (i = 0; i < call->nbuffers; i++) {
        char which[32];
        mesh__text t = mesh__text_on(which, sizeof which);
        mesh_status status;
        mesh__put(&t, "buffer %d: ", i);
        status =
            mesh__buffer_check(c, g, call, call->buffers[i].send, call->buffers[i].recv, call->buffers[i].count, which);
        if (status != MESH_OK) return status;
    }
    return mesh__buffers_apart(c, g, call);
}

/* Bytes of an element: of the dtype, of a pair for minloc and maxloc, or what the user's op says. 0: none. */
MESH__PRIVATE size_t mesh__call_elem(const mesh_comm *c, mesh_call *call) {
    const mesh__comm_impl *impl = mesh__impl(c);
    size_t elem = mesh_dtype_bytes((mesh_dtype)call->dtype);
    int k = call->op - MESH__USER_OP;
    if (!mesh__call_is(call->kind, MESH_REDUCES)) return elem;
    if (k >= 0 && k < impl->nuser_ops) {
        call->user_op = impl->user_op[k].combine;
        call->user_ctx = impl->user_op[k].ctx;
        if (impl->user_op[k].elem_bytes && call->dtype == MESH_BYTES) return impl->user_op[k].elem_bytes;
        return impl->user_op[k].elem_bytes ? 0 : elem;
    }
    return mesh__is_loc(call->op) && elem ? mesh__pair_bytes(call->dtype) : elem;
}

/* What a call moves at least, by a rank: for collectives of the transport's own, which do not say. */
MESH__PRIVATE void mesh__count_native(mesh__op *op, mesh__step *step) {
    const mesh_call *call = mesh__native_call(&op->schedule, step);
    int n = op->group->on.size, me = op->group->index, i, kind = mesh__single_kind(call->kind);
    size_t count = call->nbuffers ? 0 : call->count, total = 0, own, others = (size_t)n - 1, sent = 0, received = 0;
    for (i = 0; i < call->nbuffers; i++) count += call->buffers[i].count;
    for (i = 0; i < n && call->recv_counts; i++) total += call->recv_counts[i];
    own = call->recv_counts ? call->recv_counts[me] : 0;
    switch (kind) {
    case MESH_CALL_ALL_REDUCE:
        sent = received = 2 * (count - count / (size_t)n);
        break;
    case MESH_CALL_REDUCE:
        sent = me == call->root ? 0 : count;
        received = me == call->root ? count : 0;
        break;
    case MESH_CALL_BROADCAST:
        sent = me == call->root ? count : 0;
        received = me == call->root ? 0 : count;
        break;
    case MESH_CALL_ALL_GATHER:
    case MESH_CALL_REDUCE_SCATTER:
    case MESH_CALL_ALL_TO_ALL:
        sent = received = others * count;
        break;
    case MESH_CALL_ALL_GATHER_V:
        sent = others * own;
        received = total - own;
        break;
    case MESH_CALL_REDUCE_SCATTER_V:
        sent = total - own;
        received = others * own;
        break;
    case MESH_CALL_ALL_TO_ALL_V:
        for (i = 0; i < n; i++) sent += i == me ? 0 : call->send_counts[i];
        received = total - own;
        break;
    case MESH_CALL_GATHER:
    case MESH_CALL_GATHER_V:
        sent = me == call->root ? 0 : count;
        received = me != call->root ? 0 : call->recv_counts ? total - own : others * count;
        break;
    case MESH_CALL_SCATTER:
    case MESH_CALL_SCATTER_V:
        for (i = 0; i < n && me == call->root && call->send_counts; i++) sent += i == me ? 0 : call->send_counts[i];
        if (me == call->root && !call->send_counts) sent = others * count;
        received = me == call->root ? 0 : count;
        break;
    default:
        break;
    }
    step->as.call.sent = sent * op->schedule.elem_bytes;
    step->as.call.received = received * op->schedule.elem_bytes;
}

/* A native call's arrays become the operation's own: it may be kept and started again. Returns 0 without memory. */
MESH__PRIVATE int mesh__own_args(mesh__engine *e, mesh__op *op, mesh_call *call) {
    const size_t **counts[4];
    size_t n = (size_t)op->group->on.size * sizeof(size_t), total = (size_t)call->nbuffers * sizeof *call->buffers, i;
    unsigned char *at;
    if (!call->nbuffers && !mesh__call_is(call->kind, MESH_BY_COUNTS)) return 1;
    counts[0] = &call->send_counts, counts[1] = &call->send_offsets;
    counts[2] = &call->recv_counts, counts[3] = &call->recv_offsets;
    for (i = 0; i < 4; i++) total += *counts[i] ? n : 0;
    if (!total) return 1;
    if (total > INT32_MAX / 2 || !mesh__grow(e->t, &op->schedule.args, &op->schedule.args_cap, (int)total, 1)) return 0;
    at = (unsigned char *)op->schedule.args;
    if (call->nbuffers) {
        memcpy(at, call->buffers, (size_t)call->nbuffers * sizeof *call->buffers);
        call->buffers = (const mesh_buffer *)(void *)at;
        at += (size_t)call->nbuffers * sizeof *call->buffers;
    }
    for (i = 0; i < 4; i++) {
        if (!*counts[i]) continue;
        memcpy(at, *counts[i], n);
        *counts[i] = (const size_t *)(void *)at;
        at += n;
    }
    return 1;
}

/* The schedule of a call that the transport serves itself: one step. An average that it does not know is its sum, then divided. Returns 0 where the
   builders have to serve it. */
MESH__PRIVATE int mesh__build_call(mesh__engine *e, mesh__op *op) {
    mesh__schedule *s = &op->schedule;
    mesh_call *call = &s->call;
    void *group = op->group->handle;
    mesh__step *step;
    int i, composed = 0;
    if (!MESH__HAS(e->t->ops, collective)) return 0;
    if (e->t->ops->collective(e->t, group, call, NULL) == MESH_ERR_UNSUPPORTED) {
        if (call->op != MESH_AVG || !mesh__call_is(call->kind, MESH_REDUCES)) return 0;
        if (!mesh__grow(s->t, (void **)&s->native, &s->native_cap, 1, sizeof *s->native)) {
            s->out_of_memory = 1;
            return 1;
        }
        call = s->native;
        *call = s->call;
        call->op = MESH_SUM;
        if (e->t->ops->collective(e->t, group, call, NULL) == MESH_ERR_UNSUPPORTED) return 0;
        s->nnative = composed = 1;
    }
    step = mesh__step_add(s, MESH__CALL);
    if (!step || !mesh__own_args(e, op, call)) {
        s->out_of_memory = 1;
        return 1;
    }
    step->as.call.which = composed;
    mesh__count_native(op, step);
    if (!composed) return 1;
    mesh__add_wait(s);
    if (!mesh__takes(s, mesh__single_kind(call->kind))) return 1;
    if (!call->nbuffers)
        mesh__add_divide(s, call->recv,
                         call->kind == MESH_CALL_REDUCE_SCATTER_V ? call->recv_counts[s->index] : call->count);
    for (i = 0; i < call->nbuffers; i++) mesh__add_divide(s, call->buffers[i].recv, call->buffers[i].count);
    return 1;
}

MESH__PRIVATE mesh_status mesh__call_start_inside(mesh_comm *c, const char *axes, mesh_call *call, mesh_request *r) {
    mesh__group *g = NULL;
    mesh__engine *e;
    mesh__op *op;
    int i;
    mesh_status status = mesh__call_begin(c, axes, call->kind, r, &g);
    if (status != MESH_OK) return status;
    e = mesh__impl(c)->engine;
    call->elem_bytes = mesh__call_elem(c, call);
    if ((status = mesh__call_check(c, g, call)) != MESH_OK) return status;
    if (!(op = mesh__op_take(e)))
        return mesh__refuse(c, MESH_ERR_MEMORY, call->kind, axes, "no memory for the operation");
    op->schedule.call = *call;
    for (op->shape = 0, i = 0; i < call->nbuffers; i++) op->shape = mesh__mix(op->shape, call->buffers[i].count);
    mesh__op_identify(e, op, c, g);
    if (mesh__build_call(e, op)) return mesh__call_launch(c, op, r);
    mesh__build(&op->schedule);
    op->schedule.call.buffers = NULL; /* the caller's; the schedule has all it needs */
    return mesh__call_launch(c, op, r);
}

MESH__PRIVATE mesh_status mesh__call_start(mesh_comm *c, const char *axes, mesh_call *call, mesh_request *r) {
    MESH__ALONE_START(c, mesh__call_name(call->kind), r, mesh__call_start_inside(c, axes, call, r));
}

MESH__PRIVATE mesh_call mesh__call(int kind, const void *send, void *recv, size_t count, mesh_dtype d, mesh_op op,
                                   int root) {
    mesh_call call; /* field by field: compilers make of a memset what costs more than all the rest */
    call.kind = kind;
    call.dtype = (int)d;
    call.op = (int)op;
    call.root = root;
    call.send = send;
    call.recv = recv;
    call.count = count;
    call.send_counts = call.send_offsets = call.recv_counts = call.recv_offsets = NULL;
    call.user_op = NULL;
    call.user_ctx = NULL;
    call.elem_bytes = 0;
    call.channel = call.check = 0;
    call.buffers = NULL;
    call.nbuffers = call.in_place = 0;
    call.record = NULL;
    return call;
}

/* Is what starts from here on waited for at once? */
MESH__PRIVATE void mesh__blocking(mesh_comm *c, int blocking) {
    if (c && c->impl) mesh__impl(c)->blocking = blocking;
}

/* ---- // >>groups ---- */

MESH__PRIVATE mesh_status mesh__group_open_inside(mesh_comm *c, const char *axes) {
    mesh__group *whole = NULL;
    mesh_call call = mesh__call(MESH_CALL_GROUP_OPEN, NULL, NULL, 0, MESH_BYTES, MESH_SUM, 0);
    mesh_request r;
    mesh_error why = MESH_ZERO;
    mesh_status status = mesh__call_begin(c, NULL, MESH_CALL_GROUP_OPEN, &r, &whole);
    if (status != MESH_OK) return status;
    if (!axes) return MESH_OK; /* the whole mesh always is */
    if (mesh__group_find(mesh__impl(c), axes)) return MESH_OK;
    if ((status = mesh__group_add(c, "its axes", axes, strlen(axes), &why)) != MESH_OK)
        return mesh__comm_broken(c, status, why.rank >= 0 ? why.rank : c->transport->rank,
                                 "mesh_group_open(\"%s\"): %s", axes, why.text);
    axes = mesh__impl(c)->group[mesh__impl(c)->ngroups - 1]->axes; /* however each rank has written it */
    call.count = (size_t)(mesh__hash_text(2, axes) & 0x7fffffff);
    mesh__blocking(c, 1);
    status = mesh__call_start(c, NULL, &call, &r);
    mesh__blocking(c, 0);
    return status == MESH_OK ? mesh_wait(r) : status;
}

MESH_API mesh_status mesh_group_open(mesh_comm *c, const char *axes) {
    MESH__ALONE(c, MESH__CALLER, mesh__group_open_inside(c, axes));
}

/* ---- // >>splitting ---- */

/* By key, then by index. */
MESH__PRIVATE int mesh__split_after(const void *pairs, int a, int b) {
    const int *all = (const int *)pairs;
    return all[2 * a + 1] > all[2 * b + 1] || (all[2 * a + 1] == all[2 * b + 1] && a > b);
}

/* Indices of the ranks of a color, by key, then by index: (color, key) of every rank stand in `all`. Returns how many. */
MESH__PRIVATE int mesh__split_members(const int *all, int n, int color, int *member) {
    int i, count = 0;
    for (i = 0; i < n; i++)
        if (all[2 * i] == color) member[count++] = i;
    mesh__sort(member, count, mesh__split_after, all);
    return count;
}

/* Gather every rank's color and key, in the transport's memory. */
MESH__PRIVATE mesh_status mesh__split_gather(mesh_comm *c, int color, int key, int *all) {
    size_t n = (size_t)c->on.size;
    int mine[2];
    void *there;
    mesh_error why;
    mesh_status status = mesh_alloc(c->transport, (n + 1) * sizeof mine, &there, NULL), freed;
    mine[0] = color;
    mine[1] = key;
    if (status != MESH_OK)
        return mesh__comm_broken(c, status, c->transport->rank, "mesh_comm_split: no memory for %d colors", (int)n);
    status = mesh_copy(c, there, mine, sizeof mine);
    if (status == MESH_OK) status = mesh_all_gather(c, NULL, there, (unsigned char *)there + sizeof mine, 2, MESH_I32);
    if (status == MESH_OK) status = mesh_copy(c, all, (unsigned char *)there + sizeof mine, n * sizeof mine);
    why = c->error;
    freed = mesh_free(c->transport, there, status == MESH_OK ? &why : NULL);
    if (status == MESH_OK) status = freed;
    if (status == MESH_OK || c->failed) return status;
    return mesh__comm_broken(c, status, why.rank < 0 ? c->transport->rank : why.rank, "mesh_comm_split: %s", why.text);
}

/* Of color and key to a comm over the ranks of this rank's color. memory: its table, the ranks at it, their inverse. */
MESH__PRIVATE mesh_status mesh__split_open(mesh_comm *result, mesh_comm *c, const int *all, int color,
                                           const mesh_comm_desc *desc, mesh_error *err) {
    static const char *const name = "rank";
    mesh_comm_desc d = MESH_ZERO;
    mesh_desc shape = MESH_ZERO;
    mesh m;
    mesh_status status;
    int n = c->on.size, world = c->transport->size, count, i, *rank;
    mesh_table *table =
        (mesh_table *)mesh_transport_alloc(c->transport, sizeof *table + (size_t)(n + world) * sizeof(int));
    if (!table) return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_comm_split: no memory for a table of %d ranks", n);
    rank = (int *)(void *)(table + 1);
    count = mesh__split_members(all, n, color, rank);
    for (i = 0; i < count; i++) rank[i] = mesh_rank_at(&c->on, rank[i]);
    shape.shape = &count;
    shape.names = &name;
    shape.naxes = 1;
    shape.table = table;
    d.timeout_ns = mesh__impl(c)->timeout;
    d.ask_ns = mesh__impl(c)->ask;
    d.stream = mesh__impl(c)->stream;
    status = mesh_table_make(table, rank, count, rank + n, world, err);
    if (status == MESH_OK) status = mesh_make(&m, &shape, err);
    mesh__impl(c)->engine->parent = c;
    if (status == MESH_OK) status = mesh_comm_open(result, c->transport, &m, desc ? desc : &d, err);
    mesh__impl(c)->engine->parent = NULL;
    if (status == MESH_OK)
        mesh__impl(result)->table = table;
    else
        mesh_transport_free(c->transport, table);
    return status;
}

/* What keeps this rank from taking part: the others would gather, or open theirs, and wait. A result that is not open is all zero then. */
MESH__PRIVATE mesh_status mesh__split_check(mesh_comm *result, mesh_comm *c, const mesh_comm_desc *desc, const int *all,
                                            mesh_error *why) {
    const mesh__engine *e = mesh__impl(c)->engine;
    int i;
    if (!result || result == c)
        return mesh__fail(why, MESH_ERR_ARGUMENT, -1, "mesh_comm_split: the result is %s",
                          result ? "the comm itself" : "NULL");
    for (i = 0; i < e->ncomms; i++)
        if (e->comm[i] == result)
            return mesh__fail(why, MESH_ERR_STATE, -1, "mesh_comm_split: the result is open; close it first");
    memset(result, 0, sizeof *result);
    if (!all) return mesh__fail(why, MESH_ERR_MEMORY, -1, "mesh_comm_split: no memory for colors");
    return desc ? mesh__desc_check(desc, "mesh_comm_split", why) : MESH_OK;
}

MESH__PRIVATE mesh_status mesh__comm_split_inside(mesh_comm *result, mesh_comm *c, int color, int key,
                                                  const mesh_comm_desc *desc, mesh_error *err) {
    int rank = c->transport->rank, failed = (int)c->failed;
    mesh_error why = MESH_ZERO;
    int *all = (int *)mesh_transport_alloc(c->transport, 2 * (size_t)c->on.size * sizeof *all);
    mesh_status status = mesh__split_check(result, c, desc, all, &why);
    if (status != MESH_OK) {
        mesh__comm_broken(c, status, rank, "%s", why.text);
    } else {
        status = mesh__composed(c, "comm_split", failed, mesh__split_gather(c, color, key, all));
        if (status == MESH_OK && color >= 0 &&
            (status = mesh__split_open(result, c, all, color, desc, &why)) != MESH_OK)
            mesh__comm_broken(c, status, why.rank < 0 ? rank : why.rank, "mesh_comm_split: %s", why.text);
    }
    if (status != MESH_OK) status = (mesh_status)c->error.status;
    if (status != MESH_OK && err) *err = c->error;
    mesh_transport_free(c->transport, all);
    return status;
}

MESH_API mesh_status mesh_comm_split(mesh_comm *result, mesh_comm *c, int color, int key, const mesh_comm_desc *desc,
                                     mesh_error *err) {
    mesh_status status;
    if (!c || !c->impl)
        return mesh__fail(err, c ? MESH_ERR_STATE : MESH_ERR_ARGUMENT, -1, "mesh_comm_split: the comm is %s",
                          c ? "not open" : "NULL");
    if ((status = mesh__enter(c->transport, err, "comm_split")) != MESH_OK) return status;
    status = mesh__comm_split_inside(result, c, color, key, desc, err);
    mesh__leave(c->transport);
    return status;
}

/* ---- // >>registration ---- */

MESH__PRIVATE mesh_status mesh__register_inside(mesh_comm *c, void *p, size_t nbytes, void **handle) {
    mesh__group *whole = NULL;
    mesh_call call = mesh__call(MESH_CALL_REGISTER, NULL, NULL, nbytes, MESH_BYTES, MESH_SUM, 0);
    mesh__comm_impl *impl;
    mesh__registration *made;
    mesh_request r;
    mesh_error why = MESH_ZERO;
    mesh_status status = mesh__call_begin(c, NULL, MESH_CALL_REGISTER, &r, &whole);
    int i;
    if (handle) *handle = NULL;
    if (status != MESH_OK) return status;
    if (!p || !handle || !nbytes)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, MESH_CALL_REGISTER, NULL, "%s",
                            !p        ? "the memory is NULL"
                            : !handle ? "the handle is NULL"
                                      : "there are 0 bytes");
    impl = mesh__impl(c);
    made = (mesh__registration *)mesh_transport_alloc(c->transport,
                                                      sizeof *made + (size_t)impl->ngroups * sizeof made->handle[0]);
    if (!made) return mesh__refuse(c, MESH_ERR_MEMORY, MESH_CALL_REGISTER, NULL, "no memory for a handle");
    mesh__blocking(c, 1);
    status = mesh__call_start(c, NULL, &call, &r);
    mesh__blocking(c, 0);
    if (status == MESH_OK) status = mesh_wait_host(r);
    made->ngroups = 0;
    for (i = 0; i < impl->ngroups && status == MESH_OK && MESH__HAS(c->transport->ops, memory_register); i++) {
        status = c->transport->ops->memory_register(c->transport, impl->group[i]->handle, p, nbytes,
                                                    mesh__now(impl->engine) + impl->timeout, &made->handle[i], &why);
        made->ngroups++;
        if (status == MESH_OK && made->handle[i]) *handle = made;
    }
    made->next = impl->registered;
    impl->registered = made;
    if (!*handle || status != MESH_OK) mesh__unregister(c, made);
    if (status == MESH_OK) return MESH_OK;
    *handle = NULL;
    mesh__heard(impl->engine); /* another rank's cause comes first */
    mesh__cause_await(c, status);
    if (c->failed) return (mesh_status)c->error.status;
    return mesh__comm_broken(c, status, why.rank, "mesh_register: %s", why.text);
}

MESH_API mesh_status mesh_register(mesh_comm *c, void *p, size_t nbytes, void **handle) {
    MESH__ALONE(c, MESH__CALLER, mesh__register_inside(c, p, nbytes, handle));
}

MESH__PRIVATE mesh_status mesh__unregister_inside(mesh_comm *c, void *handle) {
    mesh__registration *r;
    if (!c || !c->impl) return mesh__comm_closed(c, "mesh_unregister");
    if (!handle) return MESH_OK;
    for (r = mesh__impl(c)->registered; r && r != (mesh__registration *)handle; r = r->next) {}
    if (r) mesh__unregister(c, r);
    if (!r && !c->failed)
        mesh__fail(&c->error, MESH_ERR_ARGUMENT, -1,
                   "mesh_unregister: %x is no handle of this comm; give each back once, to the comm it is from",
                   (uint64_t)(uintptr_t)handle);
    return r ? MESH_OK : MESH_ERR_ARGUMENT;
}

MESH_API mesh_status mesh_unregister(mesh_comm *c, void *handle) {
    MESH__ALONE(c, MESH__CALLER, mesh__unregister_inside(c, handle));
}

/* ---- // >>collectives ---- */

/* Start, and wait for it by `end`, as one call for who else may come. */
#define MESH__BLOCKING_BY(start, end)                                             \
    mesh_request r;                                                               \
    mesh_transport *t = c && c->impl ? c->transport : NULL;                       \
    mesh_status status = mesh__enter(t, NULL, MESH__CALLER);                      \
    if (status != MESH_OK) {                                                      \
        if (!c->failed) mesh__inside_error(t, &c->error, MESH__CALLER);           \
        return status;                                                            \
    }                                                                             \
    mesh__blocking(c, 1);                                                         \
    status = start;                                                               \
    mesh__blocking(c, 0);                                                         \
    if (status == MESH_OK && r.generation) status = end(r); /* 0: it has ended */ \
    mesh__leave(t);                                                               \
    return status
#define MESH__BLOCKING(start) MESH__BLOCKING_BY(start, mesh__wait_inside)

MESH_API mesh_status mesh_all_reduce_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                           mesh_dtype d, mesh_op op, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_ALL_REDUCE, send, recv, count, d, op, 0);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_all_reduce(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                     mesh_dtype d, mesh_op op) {
    MESH__BLOCKING(mesh_all_reduce_start(c, axes, send, recv, count, d, op, &r));
}

MESH_API mesh_status mesh_reduce_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                       mesh_dtype d, mesh_op op, int root, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_REDUCE, send, recv, count, d, op, root);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_reduce(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                 mesh_dtype d, mesh_op op, int root) {
    MESH__BLOCKING(mesh_reduce_start(c, axes, send, recv, count, d, op, root, &r));
}

MESH_API mesh_status mesh_broadcast_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                          mesh_dtype d, int root, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_BROADCAST, send, recv, count, d, MESH_SUM, root);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_broadcast(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                    mesh_dtype d, int root) {
    MESH__BLOCKING(mesh_broadcast_start(c, axes, send, recv, count, d, root, &r));
}

MESH_API mesh_status mesh_all_gather_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                           mesh_dtype d, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_ALL_GATHER, send, recv, count, d, MESH_SUM, 0);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_all_gather(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                     mesh_dtype d) {
    MESH__BLOCKING(mesh_all_gather_start(c, axes, send, recv, count, d, &r));
}

MESH_API mesh_status mesh_all_gather_v_start(mesh_comm *c, const char *axes, const void *send, void *recv,
                                             const size_t *counts, const size_t *offsets, mesh_dtype d,
                                             mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_ALL_GATHER_V, send, recv, 0, d, MESH_SUM, 0);
    call.recv_counts = counts;
    call.recv_offsets = offsets;
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_all_gather_v(mesh_comm *c, const char *axes, const void *send, void *recv,
                                       const size_t *counts, const size_t *offsets, mesh_dtype d) {
    MESH__BLOCKING(mesh_all_gather_v_start(c, axes, send, recv, counts, offsets, d, &r));
}

MESH_API mesh_status mesh_reduce_scatter_start(mesh_comm *c, const char *axes, const void *send, void *recv,
                                               size_t count, mesh_dtype d, mesh_op op, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_REDUCE_SCATTER, send, recv, count, d, op, 0);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_reduce_scatter(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                         mesh_dtype d, mesh_op op) {
    MESH__BLOCKING(mesh_reduce_scatter_start(c, axes, send, recv, count, d, op, &r));
}

MESH_API mesh_status mesh_reduce_scatter_v_start(mesh_comm *c, const char *axes, const void *send, void *recv,
                                                 const size_t *counts, const size_t *offsets, mesh_dtype d, mesh_op op,
                                                 mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_REDUCE_SCATTER_V, send, recv, 0, d, op, 0);
    call.recv_counts = counts;
    call.recv_offsets = offsets;
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_reduce_scatter_v(mesh_comm *c, const char *axes, const void *send, void *recv,
                                           const size_t *counts, const size_t *offsets, mesh_dtype d, mesh_op op) {
    MESH__BLOCKING(mesh_reduce_scatter_v_start(c, axes, send, recv, counts, offsets, d, op, &r));
}

MESH_API mesh_status mesh_all_to_all_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                           mesh_dtype d, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_ALL_TO_ALL, send, recv, count, d, MESH_SUM, 0);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_all_to_all(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                     mesh_dtype d) {
    MESH__BLOCKING(mesh_all_to_all_start(c, axes, send, recv, count, d, &r));
}

MESH_API mesh_status mesh_all_to_all_v_start(mesh_comm *c, const char *axes, const void *send,
                                             const size_t *send_counts, const size_t *send_offsets, void *recv,
                                             const size_t *recv_counts, const size_t *recv_offsets, mesh_dtype d,
                                             mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_ALL_TO_ALL_V, send, recv, 0, d, MESH_SUM, 0);
    call.send_counts = send_counts;
    call.send_offsets = send_offsets;
    call.recv_counts = recv_counts;
    call.recv_offsets = recv_offsets;
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_all_to_all_v(mesh_comm *c, const char *axes, const void *send, const size_t *send_counts,
                                       const size_t *send_offsets, void *recv, const size_t *recv_counts,
                                       const size_t *recv_offsets, mesh_dtype d) {
    MESH__BLOCKING(
        mesh_all_to_all_v_start(c, axes, send, send_counts, send_offsets, recv, recv_counts, recv_offsets, d, &r));
}

MESH_API mesh_status mesh_gather_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                       mesh_dtype d, int root, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_GATHER, send, recv, count, d, MESH_SUM, root);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_gather(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                 mesh_dtype d, int root) {
    MESH__BLOCKING(mesh_gather_start(c, axes, send, recv, count, d, root, &r));
}

MESH_API mesh_status mesh_gather_v_start(mesh_comm *c, const char *axes, const void *send, size_t count, void *recv,
                                         const size_t *counts, const size_t *offsets, mesh_dtype d, int root,
                                         mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_GATHER_V, send, recv, count, d, MESH_SUM, root);
    call.recv_counts = counts;
    call.recv_offsets = offsets;
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_gather_v(mesh_comm *c, const char *axes, const void *send, size_t count, void *recv,
                                   const size_t *counts, const size_t *offsets, mesh_dtype d, int root) {
    MESH__BLOCKING(mesh_gather_v_start(c, axes, send, count, recv, counts, offsets, d, root, &r));
}

MESH_API mesh_status mesh_scatter_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                        mesh_dtype d, int root, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_SCATTER, send, recv, count, d, MESH_SUM, root);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_scatter(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                  mesh_dtype d, int root) {
    MESH__BLOCKING(mesh_scatter_start(c, axes, send, recv, count, d, root, &r));
}

MESH_API mesh_status mesh_scatter_v_start(mesh_comm *c, const char *axes, const void *send, const size_t *counts,
                                          const size_t *offsets, void *recv, size_t count, mesh_dtype d, int root,
                                          mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_SCATTER_V, send, recv, count, d, MESH_SUM, root);
    call.send_counts = counts;
    call.send_offsets = offsets;
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_scatter_v(mesh_comm *c, const char *axes, const void *send, const size_t *counts,
                                    const size_t *offsets, void *recv, size_t count, mesh_dtype d, int root) {
    MESH__BLOCKING(mesh_scatter_v_start(c, axes, send, counts, offsets, recv, count, d, root, &r));
}

MESH_API mesh_status mesh_scan_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                     mesh_dtype d, mesh_op op, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_SCAN, send, recv, count, d, op, 0);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_scan(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count, mesh_dtype d,
                               mesh_op op) {
    MESH__BLOCKING(mesh_scan_start(c, axes, send, recv, count, d, op, &r));
}

MESH_API mesh_status mesh_exscan_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                       mesh_dtype d, mesh_op op, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_EXSCAN, send, recv, count, d, op, 0);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_exscan(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                 mesh_dtype d, mesh_op op) {
    MESH__BLOCKING(mesh_exscan_start(c, axes, send, recv, count, d, op, &r));
}

MESH_API mesh_status mesh_broadcast_object_start(mesh_comm *c, const char *axes, mesh_object *o, int root,
                                                 mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_BROADCAST_OBJECT, NULL, o, 0, MESH_BYTES, MESH_SUM, root);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API void mesh_object_free(mesh_comm *c, mesh_object *o) {
    if (!c || !o) return;
    if (o->room) mesh_transport_free(c->transport, o->data);
    o->data = NULL;
    o->nbytes = o->room = 0;
}

MESH_API mesh_status mesh_barrier_start(mesh_comm *c, const char *axes, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_BARRIER, NULL, NULL, 0, MESH_BYTES, MESH_SUM, 0);
    return mesh__call_start(c, axes, &call, r);
}

MESH_API mesh_status mesh_barrier(mesh_comm *c, const char *axes) {
    MESH__BLOCKING_BY(mesh_barrier_start(c, axes, &r), mesh__wait_host_inside);
}

/* ---- // >>many buffers ---- */

MESH__PRIVATE mesh_status mesh__many_start_inside(mesh_comm *c, const char *axes, int kind, const mesh_buffer *list,
                                                  int n, mesh_dtype d, mesh_op op, int root, mesh_request *r) {
    mesh_call call = mesh__call(kind, NULL, NULL, 0, d, op, root);
    mesh__group *g = NULL;
    int i;
    if (n < 0 || (n && !list)) {
        mesh_status status = mesh__call_begin(c, axes, kind, r, &g);
        if (status != MESH_OK) return status;
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%d buffers%s", n, list ? "" : " (NULL)");
    }
    call.buffers = list;
    call.nbuffers = n;
    for (i = 0; i < n; i++) { /* for messages; every buffer's own count is checked */
        if (list[i].count > SIZE_MAX / 2 - call.count) call.count = SIZE_MAX / 2;
        call.count += call.count < SIZE_MAX / 2 ? list[i].count : 0;
    }
    return mesh__call_start(c, axes, &call, r);
}

MESH__PRIVATE mesh_status mesh__many_start(mesh_comm *c, const char *axes, int kind, const mesh_buffer *list, int n,
                                           mesh_dtype d, mesh_op op, int root, mesh_request *r) {
    MESH__ALONE_START(c, mesh__call_name(kind), r, mesh__many_start_inside(c, axes, kind, list, n, d, op, root, r));
}

MESH_API mesh_status mesh_all_reduce_many_start(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                                mesh_dtype d, mesh_op op, mesh_request *r) {
    return mesh__many_start(c, axes, MESH_CALL_ALL_REDUCE_MANY, list, n, d, op, 0, r);
}

MESH_API mesh_status mesh_all_reduce_many(mesh_comm *c, const char *axes, const mesh_buffer *list, int n, mesh_dtype d,
                                          mesh_op op) {
    MESH__BLOCKING(mesh_all_reduce_many_start(c, axes, list, n, d, op, &r));
}

MESH_API mesh_status mesh_broadcast_many_start(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                               mesh_dtype d, int root, mesh_request *r) {
    return mesh__many_start(c, axes, MESH_CALL_BROADCAST_MANY, list, n, d, MESH_SUM, root, r);
}

MESH_API mesh_status mesh_broadcast_many(mesh_comm *c, const char *axes, const mesh_buffer *list, int n, mesh_dtype d,
                                         int root) {
    MESH__BLOCKING(mesh_broadcast_many_start(c, axes, list, n, d, root, &r));
}

MESH_API mesh_status mesh_all_gather_many_start(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                                mesh_dtype d, mesh_request *r) {
    return mesh__many_start(c, axes, MESH_CALL_ALL_GATHER_MANY, list, n, d, MESH_SUM, 0, r);
}

MESH_API mesh_status mesh_all_gather_many(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                          mesh_dtype d) {
    MESH__BLOCKING(mesh_all_gather_many_start(c, axes, list, n, d, &r));
}

MESH_API mesh_status mesh_reduce_scatter_many_start(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                                    mesh_dtype d, mesh_op op, mesh_request *r) {
    return mesh__many_start(c, axes, MESH_CALL_REDUCE_SCATTER_MANY, list, n, d, op, 0, r);
}

MESH_API mesh_status mesh_reduce_scatter_many(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                              mesh_dtype d, mesh_op op) {
    MESH__BLOCKING(mesh_reduce_scatter_many_start(c, axes, list, n, d, op, &r));
}
#endif /* MESH_COLLECTIVES_IMPLEMENTED */

#if !defined(MESH__ONE_ROOM) && !defined(MESH__BEHIND_COLLECTIVES) && \
    (!defined(MESH_REDISTRIBUTE_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_REDISTRIBUTE_IMPLEMENTED)))
#define MESH__BEHIND_COLLECTIVES
#include "mesh/p2p.h"
#include "mesh/host_bytes.h"
#include "mesh/messages.h"
#include "mesh/redistribute.h"
#undef MESH__BEHIND_COLLECTIVES
#endif
