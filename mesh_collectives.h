/* mesh_collectives.h - collectives over the axes of a mesh, on any transport. Part of mesh.h 0.1.0. MIT licence. */
#ifndef MESH_COLLECTIVES_H
#define MESH_COLLECTIVES_H
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
    request     an operation under way. Every operation has a _start form that returns one; the blocking form is start + wait.

CONVENTIONS
    Arguments: comm, axes, send, recv, count, dtype, op, root. `count` is elements PER RANK. root, to, from: indices in the group.
    Zero counts are legal and still synchronise like any other. In place: send == recv; for all_gather send == recv + index*count
    and for reduce_scatter recv == send + index*count elements. Buffers that overlap in any other way are refused.
    Ranks of a group call its operations in the same order. Different groups may be served in any order, as long as no cycle of
    waiting ranks arises. avg divides the sum by the group's size. f16 and bf16 accumulate in f32, rounded once per hop.
    On CPU transports a reduction has the same bits on every rank of the group and from run to run (NaN payloads excepted). min and max
    of a NaN are a NaN. Buffers are aligned to their dtype.

ERRORS
    Every call returns a mesh_status; the text is in comm->error. Whatever ends an operation badly fails the comm, on every rank of it:
    operations under way end with the cause, later ones return it at once, and the remedy is to close the comm. Other comms go on.
        MISMATCH    ranks called different things in one group: the text names rank, axis, sequence and both calls; or ranks wait
                    for each other in a cycle: the text lists who waits for whom, in what. (Cycles are found among ranks that
                    are blocked; a rank that polls with mesh_test may still do something else, so there the deadline decides.)
        PEER        a rank was lost, or has closed its transport while it was still needed: the text names it.
        TIMEOUT     the deadline (mesh_comm_desc.timeout_ns) passed: the text names the ranks still awaited.
        ARGUMENT, UNSUPPORTED, MEMORY, STATE (a group that is not open): a start that one rank got wrong. The others would wait for it,
                    so they get the same status, with "rank r failed: ..." in front of its text.
    Two do not fail the comm: STATE of a request that was waited for already, and of a comm that is not open.

MEMORY
    From the transport's allocator. Buffers of an operation belong to it from start until wait or test returns something other
    than MESH_IN_PROGRESS; after that, errors included, they are never touched.

THREADS
    One thread at a time per transport. A comm is not copied or moved while it is open.
*/
#ifndef MESH_H
#error "mesh_collectives.h: include mesh.h first"
#endif
#include "mesh_transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- groups ---- */

/* Open a group of several axes; every rank of the mesh calls it in the same order. OK if it is open already. */
MESH_API mesh_status mesh_group_open(mesh_comm *c, const char *axes);

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
   What i sends me must be what I receive from i: MISMATCH else. Not in place. */
MESH_API mesh_status mesh_all_to_all_v(mesh_comm *c, const char *axes, const void *send, const size_t *send_counts,
                                       const size_t *send_offsets, void *recv, const size_t *recv_counts,
                                       const size_t *recv_offsets, mesh_dtype d);
MESH_API mesh_status mesh_all_to_all_v_start(mesh_comm *c, const char *axes, const void *send,
                                             const size_t *send_counts, const size_t *send_offsets, void *recv,
                                             const size_t *recv_counts, const size_t *recv_offsets, mesh_dtype d,
                                             mesh_request *r);
/* No rank returns before every rank has called. */
MESH_API mesh_status mesh_barrier(mesh_comm *c, const char *axes);
MESH_API mesh_status mesh_barrier_start(mesh_comm *c, const char *axes, mesh_request *r);

/* ---- point to point: in the order posted per pair of ranks and group; lengths and dtypes must agree ------------------------ */

MESH_API mesh_status mesh_send(mesh_comm *c, const char *axes, int to, const void *p, size_t count, mesh_dtype d);
MESH_API mesh_status mesh_send_start(mesh_comm *c, const char *axes, int to, const void *p, size_t count, mesh_dtype d,
                                     mesh_request *r);
MESH_API mesh_status mesh_recv(mesh_comm *c, const char *axes, int from, void *p, size_t count, mesh_dtype d);
MESH_API mesh_status mesh_recv_start(mesh_comm *c, const char *axes, int from, void *p, size_t count, mesh_dtype d,
                                     mesh_request *r);
/* Both at once, to and from any two ranks (or oneself). to or from -1: that half is left out. */
MESH_API mesh_status mesh_sendrecv(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                   int from, void *recv, size_t recv_count, mesh_dtype d);
MESH_API mesh_status mesh_sendrecv_start(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                         int from, void *recv, size_t recv_count, mesh_dtype d, mesh_request *r);
/* Send to index + displacement and receive from index - displacement of the group; periodic wraps, else the ranks at the edge send or
   receive nothing and their recv is left as it is. Not in place. */
MESH_API mesh_status mesh_shift(mesh_comm *c, const char *axes, int displacement, int periodic, const void *send,
                                void *recv, size_t count, mesh_dtype d);
MESH_API mesh_status mesh_shift_start(mesh_comm *c, const char *axes, int displacement, int periodic, const void *send,
                                      void *recv, size_t count, mesh_dtype d, mesh_request *r);
/* Any set of sends and receives at once, strided blocks included (a column of a matrix goes without packing). In each xfer `rank` is an
   index in the group. Sends to oneself match receives from oneself in the same call, in order. Blocks are read during the call only. */
MESH_API mesh_status mesh_exchange(mesh_comm *c, const char *axes, const mesh_xfer *xfers, int count);
MESH_API mesh_status mesh_exchange_start(mesh_comm *c, const char *axes, const mesh_xfer *xfers, int count,
                                         mesh_request *r);

#ifdef __cplusplus
}
#endif
#endif /* MESH_COLLECTIVES_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_COLLECTIVES_IMPLEMENTED)
#define MESH_COLLECTIVES_IMPLEMENTED

#ifdef __cplusplus
extern "C" {
#endif

/* ---- // >>schedules: what an operation does, built at its start ----------------------------------------------------------------------------- */

/* Where block i of a group's data lies, in elements: given counts, or equal ones, or a count divided among the group as torch.chunk does. */
typedef struct mesh__blocks {
    const size_t *counts, *offsets;
    size_t each, total; /* each: of every block; total: where the last ends (0: no end) */
} mesh__blocks;

static inline mesh__blocks mesh__blocks_equal(size_t each) {
    mesh__blocks b;
    b.counts = b.offsets = NULL;
    b.each = each;
    b.total = 0;
    return b;
}
static inline mesh__blocks mesh__blocks_chunk(size_t total, int n) {
    mesh__blocks b = mesh__blocks_equal((total + (size_t)n - 1) / (size_t)n);
    b.total = total ? total : 1;
    return b;
}
static inline mesh__blocks mesh__blocks_v(const size_t *counts, const size_t *offsets) {
    mesh__blocks b = mesh__blocks_equal(0);
    b.counts = counts;
    b.offsets = offsets;
    return b;
}
static inline size_t mesh__block_offset(const mesh__blocks *b, int i) {
    size_t at = 0;
    int k;
    if (!b->counts) {
        at = b->each * (size_t)i;
        return b->total && at > b->total ? b->total : at;
    }
    if (b->offsets) return b->offsets[i];
    for (k = 0; k < i; k++) at += b->counts[k];
    return at;
}
static inline size_t mesh__block_count(const mesh__blocks *b, int i) {
    size_t at;
    if (b->counts) return b->counts[i];
    if (!b->total) return b->each;
    at = mesh__block_offset(b, i);
    return b->total - at < b->each ? b->total - at : b->each;
}

#define MESH__AT(base, elements) ((unsigned char *)(uintptr_t)(base) + (elements) * (size_t)op->elem_bytes)

/* Dissemination: in round k everyone signals the rank 2^k ahead. Source: Hensgen, Finkel, Manber 1988. */
static inline void mesh__build_barrier(mesh__engine *e, mesh__op *op) {
    int n = op->group->on.size, me = op->group->index, k;
    for (k = 1; k < n; k *= 2) {
        mesh__add_post(e, op);
        mesh__add_xfer(e, op, MESH_SEND, (me + k) % n, NULL, 0);
        mesh__add_xfer(e, op, MESH_RECV, (me - k + n) % n, NULL, 0);
        mesh__add_wait(e, op);
    }
}

/* Binomial tree from the root. Source: MPICH's MPIR_Bcast_intra_binomial, as described in Thakur, Rabenseifner, Gropp 2005. */
static inline void mesh__build_tree_broadcast(mesh__engine *e, mesh__op *op, const void *send, void *recv,
                                              size_t nbytes, int root) {
    int n = op->group->on.size, rel = (op->group->index - root + n) % n, mask = 1;
    if (rel == 0) mesh__add_copy(e, op, recv, send, nbytes);
    for (; mask < n; mask *= 2)
        if (rel & mask) {
            mesh__add_post(e, op);
            mesh__add_xfer(e, op, MESH_RECV, (rel - mask + root) % n, recv, nbytes);
            mesh__add_wait(e, op);
            break;
        }
    mesh__add_post(e, op);
    for (mask /= 2; mask > 0; mask /= 2)
        if (rel + mask < n) mesh__add_xfer(e, op, MESH_SEND, (rel + mask + root) % n, recv, nbytes);
    mesh__add_wait(e, op);
}

/* Every rank sends its block to all and receives theirs, MESH__ROUND partners at a time; `skip` (or -1) has everything already. */
static inline void mesh__build_gather_blocks(mesh__engine *e, mesh__op *op, const void *own, void *recv,
                                             const mesh__blocks *b, int skip) {
    int n = op->group->on.size, me = op->group->index, k;
    for (k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me - k + n) % n;
        if (k % MESH__ROUND == 1) {
            if (k > 1) mesh__add_wait(e, op);
            mesh__add_post(e, op);
        }
        if (to != skip) mesh__add_xfer(e, op, MESH_SEND, to, own, mesh__block_count(b, me) * (size_t)op->elem_bytes);
        if (me != skip)
            mesh__add_xfer(e, op, MESH_RECV, from, MESH__AT(recv, mesh__block_offset(b, from)),
                           mesh__block_count(b, from) * (size_t)op->elem_bytes);
    }
    mesh__add_wait(e, op);
}

/* acc += everyone else's contribution to my block, by pairwise exchange: while a round is under way the one before is reduced. */
static inline void mesh__build_reduce_blocks(mesh__engine *e, mesh__op *op, const void *send, void *acc,
                                             const mesh__blocks *b) {
    int n = op->group->on.size, me = op->group->index, k;
    size_t mine = mesh__block_count(b, me), bytes = mine * (size_t)op->elem_bytes, slot = (bytes + 63) & ~(size_t)63;
    unsigned char *scratch = mesh__scratch(e, op, 2 * slot + 64);
    for (k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me - k + n) % n;
        if (k > 1) mesh__add_wait(e, op);
        mesh__add_post(e, op);
        mesh__add_xfer(e, op, MESH_SEND, to, MESH__AT(send, mesh__block_offset(b, to)),
                       mesh__block_count(b, to) * (size_t)op->elem_bytes);
        mesh__add_xfer(e, op, MESH_RECV, from, scratch + (size_t)(k & 1) * slot, bytes);
        if (k > 1) mesh__add_reduce(e, op, acc, scratch + (size_t)((k - 1) & 1) * slot, mine);
    }
    mesh__add_wait(e, op);
    if (n > 1) mesh__add_reduce(e, op, acc, scratch + (size_t)((n - 1) & 1) * slot, mine);
    mesh__add_divide(e, op, acc, mine);
}

/* Recursive doubling, the ranks beyond a power of two folded onto their neighbours. Same bits everywhere: both sides add the same two values.
   Source: Thakur, Rabenseifner, Gropp 2005. */
static inline void mesh__build_doubling_all_reduce(mesh__engine *e, mesh__op *op, void *recv, size_t count) {
    int n = op->group->on.size, me = op->group->index, power = 1, extra, role, mask;
    size_t bytes = count * (size_t)op->elem_bytes;
    unsigned char *scratch = n > 1 ? mesh__scratch(e, op, bytes + 64) : NULL;
    while (power * 2 <= n) power *= 2;
    extra = n - power;
    role = me < 2 * extra ? (me % 2 ? me / 2 : -1) : me - extra;
    if (me < 2 * extra) {
        mesh__add_post(e, op);
        mesh__add_xfer(e, op, role < 0 ? MESH_SEND : MESH_RECV, role < 0 ? me + 1 : me - 1,
                       role < 0 ? (void *)recv : (void *)scratch, bytes);
        mesh__add_wait(e, op);
        if (role >= 0) mesh__add_reduce(e, op, recv, scratch, count);
    }
    for (mask = 1; role >= 0 && mask < power; mask *= 2) {
        int partner = role ^ mask;
        partner = partner < extra ? partner * 2 + 1 : partner + extra;
        mesh__add_post(e, op);
        mesh__add_xfer(e, op, MESH_SEND, partner, recv, bytes);
        mesh__add_xfer(e, op, MESH_RECV, partner, scratch, bytes);
        mesh__add_wait(e, op);
        mesh__add_reduce(e, op, recv, scratch, count);
    }
    if (role >= 0) mesh__add_divide(e, op, recv, count);
    if (me < 2 * extra) {
        mesh__add_post(e, op);
        mesh__add_xfer(e, op, role < 0 ? MESH_RECV : MESH_SEND, role < 0 ? me + 1 : me - 1, recv, bytes);
        mesh__add_wait(e, op);
    }
}

static inline void mesh__build_all_reduce(mesh__engine *e, mesh__op *op, const mesh_call *call) {
    int n = op->group->on.size, me = op->group->index;
    mesh__blocks b = mesh__blocks_chunk(call->count, n);
    void *own = MESH__AT(call->recv, mesh__block_offset(&b, me));
    if (n == 1 || call->count * (size_t)op->elem_bytes <= MESH__SMALL || call->count < (size_t)n) {
        mesh__add_copy(e, op, call->recv, call->send, call->count * (size_t)op->elem_bytes);
        mesh__build_doubling_all_reduce(e, op, call->recv, call->count);
        return;
    }
    mesh__add_copy(e, op, own, MESH__AT(call->send, mesh__block_offset(&b, me)),
                   mesh__block_count(&b, me) * (size_t)op->elem_bytes);
    mesh__build_reduce_blocks(e, op, call->send, own, &b);
    mesh__build_gather_blocks(e, op, own, call->recv, &b, -1);
}

/* Small: a binomial tree. Large: every rank reduces a block and hands it to the root. */
static inline void mesh__build_reduce(mesh__engine *e, mesh__op *op, const mesh_call *call) {
    int n = op->group->on.size, me = op->group->index, root = call->root, rel = (me - root + n) % n, mask, i;
    size_t bytes = call->count * (size_t)op->elem_bytes, slot = (bytes + 63) & ~(size_t)63;
    if (n == 1 || bytes <= MESH__SMALL) {
        unsigned char *scratch = n > 1 ? mesh__scratch(e, op, 2 * slot + 64) : NULL,
                      *acc = rel ? scratch + slot : (unsigned char *)call->recv;
        mesh__add_copy(e, op, acc, call->send, bytes);
        for (mask = 1; mask < n; mask *= 2) {
            mesh__add_post(e, op);
            if (rel & mask) {
                mesh__add_xfer(e, op, MESH_SEND, (rel - mask + root) % n, acc, bytes);
                mesh__add_wait(e, op);
                return;
            }
            if (rel + mask < n) {
                mesh__add_xfer(e, op, MESH_RECV, (rel + mask + root) % n, scratch, bytes);
                mesh__add_wait(e, op);
                mesh__add_reduce(e, op, acc, scratch, call->count);
            }
        }
        mesh__add_divide(e, op, acc, call->count);
        return;
    }
    {
        mesh__blocks b = mesh__blocks_chunk(call->count, n);
        size_t mine = mesh__block_count(&b, me), mine_bytes = mine * (size_t)op->elem_bytes,
               mine_slot = (mine_bytes + 63) & ~(size_t)63;
        unsigned char *scratch =
            mesh__scratch(e, op, 3 * mine_slot + 64); /* two for the exchange, one for the result */
        unsigned char *acc = me == root ? MESH__AT(call->recv, mesh__block_offset(&b, me)) : scratch + 2 * mine_slot;
        mesh__add_copy(e, op, acc, MESH__AT(call->send, mesh__block_offset(&b, me)), mine_bytes);
        mesh__build_reduce_blocks(e, op, call->send, acc, &b);
        mesh__add_post(e, op);
        if (me != root) mesh__add_xfer(e, op, MESH_SEND, root, acc, mine_bytes);
        for (i = 0; me == root && i < n; i++)
            if (i != root)
                mesh__add_xfer(e, op, MESH_RECV, i, MESH__AT(call->recv, mesh__block_offset(&b, i)),
                               mesh__block_count(&b, i) * (size_t)op->elem_bytes);
        mesh__add_wait(e, op);
    }
}

/* Small: a binomial tree. Large: the root scatters blocks, all gather them. Source: van de Geijn's scatter-allgather. */
static inline void mesh__build_broadcast(mesh__engine *e, mesh__op *op, const mesh_call *call) {
    int n = op->group->on.size, me = op->group->index, root = call->root, i;
    size_t bytes = call->count * (size_t)op->elem_bytes;
    mesh__blocks b = mesh__blocks_chunk(call->count, n);
    void *own;
    if (n < 3 || bytes <= 4 * MESH__SMALL) {
        mesh__build_tree_broadcast(e, op, call->send, call->recv, bytes, root);
        return;
    }
    own = MESH__AT(call->recv, mesh__block_offset(&b, me));
    if (me == root) mesh__add_copy(e, op, call->recv, call->send, bytes);
    mesh__add_post(e, op);
    for (i = 0; me == root && i < n; i++)
        if (i != root)
            mesh__add_xfer(e, op, MESH_SEND, i, MESH__AT(call->send, mesh__block_offset(&b, i)),
                           mesh__block_count(&b, i) * (size_t)op->elem_bytes);
    if (me != root) mesh__add_xfer(e, op, MESH_RECV, root, own, mesh__block_count(&b, me) * (size_t)op->elem_bytes);
    mesh__add_wait(e, op);
    mesh__build_gather_blocks(e, op, own, call->recv, &b, root);
}

static inline void mesh__build_all_gather(mesh__engine *e, mesh__op *op, const mesh_call *call, const mesh__blocks *b) {
    int me = op->group->index;
    mesh__add_copy(e, op, MESH__AT(call->recv, mesh__block_offset(b, me)), call->send,
                   mesh__block_count(b, me) * (size_t)op->elem_bytes);
    mesh__build_gather_blocks(e, op, call->send, call->recv, b, -1);
}

static inline void mesh__build_reduce_scatter(mesh__engine *e, mesh__op *op, const mesh_call *call,
                                              const mesh__blocks *b) {
    int me = op->group->index;
    mesh__add_copy(e, op, call->recv, MESH__AT(call->send, mesh__block_offset(b, me)),
                   mesh__block_count(b, me) * (size_t)op->elem_bytes);
    mesh__build_reduce_blocks(e, op, call->send, call->recv, b);
}

static inline void mesh__build_all_to_all(mesh__engine *e, mesh__op *op, const mesh_call *call, const mesh__blocks *sb,
                                          const mesh__blocks *rb) {
    int n = op->group->on.size, me = op->group->index, k;
    const void *send = call->send;
    if (send == call->recv && n > 1) {
        size_t bytes = sb->each * (size_t)n * (size_t)op->elem_bytes;
        unsigned char *scratch = mesh__scratch(e, op, bytes + 1);
        mesh__add_copy(e, op, scratch, send, bytes);
        send = scratch;
    }
    mesh__add_copy(e, op, MESH__AT(call->recv, mesh__block_offset(rb, me)), MESH__AT(send, mesh__block_offset(sb, me)),
                   mesh__block_count(sb, me) * (size_t)op->elem_bytes);
    for (k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me - k + n) % n;
        if (k % MESH__ROUND == 1) {
            if (k > 1) mesh__add_wait(e, op);
            mesh__add_post(e, op);
        }
        mesh__add_xfer(e, op, MESH_SEND, to, MESH__AT(send, mesh__block_offset(sb, to)),
                       mesh__block_count(sb, to) * (size_t)op->elem_bytes);
        mesh__add_xfer(e, op, MESH_RECV, from, MESH__AT(call->recv, mesh__block_offset(rb, from)),
                       mesh__block_count(rb, from) * (size_t)op->elem_bytes);
    }
    mesh__add_wait(e, op);
}

/* ---- // >>start: checks, then a schedule ---- */

static inline int mesh__overlap(const void *a, size_t an, const void *b, size_t bn) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return an && bn && x < y + bn && y < x + an;
}

/* Elements that a v-call touches, or SIZE_MAX when they overflow. */
static inline size_t mesh__v_extent(const size_t *counts, const size_t *offsets, int n, size_t elem) {
    size_t end = 0, at = 0, limit = SIZE_MAX / 2 / elem;
    int i;
    for (i = 0; i < n; i++) {
        if (offsets) at = offsets[i];
        if (counts[i] > limit || at > limit || at + counts[i] > limit) return SIZE_MAX;
        if (counts[i] && at + counts[i] > end) end = at + counts[i];
        at += counts[i];
    }
    return end;
}

/* Do the blocks of a v-call's receive side overlap? One after another, which is usual, is seen in one pass. */
static inline int mesh__v_overlap(const size_t *counts, const size_t *offsets, int n) {
    size_t end = 0;
    int i, k, ordered = 1;
    for (i = 0; offsets && i < n; i++) {
        if (counts[i] && offsets[i] < end) ordered = 0;
        if (counts[i]) end = offsets[i] + counts[i];
    }
    for (i = 0; !ordered && i < n; i++)
        for (k = i + 1; k < n; k++)
            if (counts[i] && counts[k] && offsets[i] < offsets[k] + counts[k] && offsets[k] < offsets[i] + counts[i])
                return 1;
    return 0;
}

/* Check a collective's arguments; the comm fails if they are wrong. */
static inline mesh_status mesh__call_check(mesh_comm *c, mesh__group *g, const mesh_call *call) {
    const char *axes = g->axes;
    int n = g->on.size, kind = call->kind, rooted = kind == MESH_CALL_REDUCE || kind == MESH_CALL_BROADCAST;
    int reduces = kind == MESH_CALL_ALL_REDUCE || kind == MESH_CALL_REDUCE || kind == MESH_CALL_REDUCE_SCATTER ||
                  kind == MESH_CALL_REDUCE_SCATTER_V;
    size_t elem = call->elem_bytes, send_count = call->count, recv_count = call->count, own = 0;
    const void *shared; /* where in-place data has to be */
    if (kind == MESH_CALL_BARRIER || kind == MESH_CALL_GROUP_OPEN) return MESH_OK;
    if (!elem) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "dtype %d is none; see MESH_DTYPES", call->dtype);
    if (reduces && !mesh__reducible(call->dtype, call->op))
        return mesh__refuse(c, MESH_ERR_UNSUPPORTED, kind, axes, "%s of %s is not supported; see MESH_REDUCTIONS",
                            mesh_op_name((mesh_op)call->op), mesh_dtype_name((mesh_dtype)call->dtype));
    if (rooted && (call->root < 0 || call->root >= n))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "root %d is outside the group of %d; it is an index in the group", call->root, n);
    switch (kind) {
    case MESH_CALL_ALL_GATHER_V:
    case MESH_CALL_REDUCE_SCATTER_V:
        if (!call->recv_counts) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "counts is NULL");
        send_count = recv_count = mesh__v_extent(call->recv_counts, call->recv_offsets, n, elem);
        if (kind == MESH_CALL_ALL_GATHER_V)
            send_count = call->recv_counts[g->index];
        else
            recv_count = call->recv_counts[g->index];
        break;
    case MESH_CALL_ALL_TO_ALL_V:
        if (!call->send_counts || !call->recv_counts)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%s is NULL",
                                call->send_counts ? "recv_counts" : "send_counts");
        send_count = mesh__v_extent(call->send_counts, call->send_offsets, n, elem);
        recv_count = mesh__v_extent(call->recv_counts, call->recv_offsets, n, elem);
        break;
    default:
        if (call->count > SIZE_MAX / 2 / elem / (size_t)n)
            send_count = recv_count = SIZE_MAX;
        else if (kind == MESH_CALL_ALL_GATHER || kind == MESH_CALL_ALL_TO_ALL)
            recv_count *= (size_t)n;
        if (send_count != SIZE_MAX && (kind == MESH_CALL_REDUCE_SCATTER || kind == MESH_CALL_ALL_TO_ALL))
            send_count *= (size_t)n;
        break;
    }
    if (send_count == SIZE_MAX || recv_count == SIZE_MAX)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%u elements of %s per rank overflow",
                            (uint64_t)call->count, mesh_dtype_name((mesh_dtype)call->dtype));
    if ((kind == MESH_CALL_ALL_GATHER_V || kind == MESH_CALL_ALL_TO_ALL_V) &&
        mesh__v_overlap(call->recv_counts, call->recv_offsets, n))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "the received blocks overlap each other; see counts and offsets");
    if (kind == MESH_CALL_REDUCE && g->index != call->root) recv_count = 0;
    if (kind == MESH_CALL_BROADCAST && g->index != call->root) send_count = 0;
    if (!call->send && send_count)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "send is NULL with %u elements", (uint64_t)send_count);
    if (!call->recv && recv_count)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "recv is NULL with %u elements", (uint64_t)recv_count);
    if (!mesh__overlap(call->send, send_count * elem, call->recv, recv_count * elem)) return MESH_OK;
    if (kind == MESH_CALL_ALL_GATHER_V || kind == MESH_CALL_REDUCE_SCATTER_V) {
        mesh__blocks b = mesh__blocks_v(call->recv_counts, call->recv_offsets);
        own = mesh__block_offset(&b, g->index);
    } else if (kind == MESH_CALL_ALL_GATHER || kind == MESH_CALL_REDUCE_SCATTER) {
        own = call->count * (size_t)g->index;
    }
    shared = kind == MESH_CALL_ALL_GATHER || kind == MESH_CALL_ALL_GATHER_V ? (const char *)call->recv + own * elem
                                                                            : (const char *)call->send + own * elem;
    if (kind == MESH_CALL_ALL_TO_ALL_V ||
        (kind == MESH_CALL_ALL_GATHER || kind == MESH_CALL_ALL_GATHER_V ? call->send : (const void *)call->recv) !=
            shared)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "send and recv overlap, but not as in place (see CONVENTIONS)");
    return MESH_OK;
}

static inline void mesh__build(mesh__engine *e, mesh__op *op, const mesh_call *call) {
    mesh__blocks a = mesh__blocks_equal(call->count), b = a;
    switch (call->kind) {
    case MESH_CALL_ALL_REDUCE:
        mesh__build_all_reduce(e, op, call);
        break;
    case MESH_CALL_REDUCE:
        mesh__build_reduce(e, op, call);
        break;
    case MESH_CALL_BROADCAST:
        mesh__build_broadcast(e, op, call);
        break;
    case MESH_CALL_ALL_GATHER_V:
        a = mesh__blocks_v(call->recv_counts, call->recv_offsets); /* fall through */
    case MESH_CALL_ALL_GATHER:
        mesh__build_all_gather(e, op, call, &a);
        break;
    case MESH_CALL_REDUCE_SCATTER_V:
        a = mesh__blocks_v(call->recv_counts, call->recv_offsets); /* fall through */
    case MESH_CALL_REDUCE_SCATTER:
        mesh__build_reduce_scatter(e, op, call, &a);
        break;
    case MESH_CALL_ALL_TO_ALL_V:
        a = mesh__blocks_v(call->send_counts, call->send_offsets);
        b = mesh__blocks_v(call->recv_counts, call->recv_offsets); /* fall through */
    case MESH_CALL_ALL_TO_ALL:
        mesh__build_all_to_all(e, op, call, &a, &b);
        break;
    default:
        mesh__build_barrier(e, op);
        break;
    }
}

static inline mesh_status mesh__call_start(mesh_comm *c, const char *axes, mesh_call *call, mesh_request *r) {
    mesh__group *g = NULL;
    mesh__engine *e;
    mesh__op *op;
    mesh_status status = mesh__call_begin(c, axes, call->kind, r, &g);
    if (status != MESH_OK) return status;
    e = mesh__impl(c)->engine;
    call->elem_bytes = mesh_dtype_bytes((mesh_dtype)call->dtype);
    if ((status = mesh__call_check(c, g, call)) != MESH_OK) return status;
    if (!(op = mesh__op_take(e)))
        return mesh__refuse(c, MESH_ERR_MEMORY, call->kind, axes, "no memory for the operation");
    mesh__op_identify(e, op, c, g, call);
    call->channel = op->channel;
    call->check = op->check;
    if (e->t->ops->struct_size > offsetof(mesh_ops, collective) && e->t->ops->collective) {
        mesh__step *s = mesh__step_add(e, op, MESH__POST);
        status = s ? e->t->ops->collective(e->t, g->handle, call, &s->ticket) : MESH_ERR_MEMORY;
        if (status == MESH_OK) {
            s->open = 1;
            op->at = 1;
            return mesh__op_launch(e, op, r);
        }
        op->nsteps = 0;
        if (status != MESH_ERR_UNSUPPORTED) {
            mesh__op_end(e, op, status);
            mesh__op_release(e, op);
            return mesh__refuse(c, status, call->kind, axes, "the transport (%s) refused: %s", e->t->ops->name,
                                mesh_status_text(status));
        }
    }
    mesh__build(e, op, call);
    return mesh__op_launch(e, op, r);
}

static inline mesh_call mesh__call(int kind, const void *send, void *recv, size_t count, int d, int op, int root) {
    mesh_call call;
    memset(&call, 0, sizeof call);
    call.kind = kind;
    call.send = send;
    call.recv = recv;
    call.count = count;
    call.dtype = d;
    call.op = op;
    call.root = root;
    return call;
}

/* ---- // >>groups ---- */

MESH_API mesh_status mesh_group_open(mesh_comm *c, const char *axes) {
    mesh__group *whole = NULL;
    mesh_call call = mesh__call(MESH_CALL_GROUP_OPEN, NULL, NULL, 0, MESH_BYTES, 0, 0);
    mesh_request r;
    mesh_error why;
    mesh_status status = mesh__call_begin(c, NULL, MESH_CALL_GROUP_OPEN, &r, &whole);
    if (status != MESH_OK) return status;
    if (!axes)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, MESH_CALL_GROUP_OPEN, axes,
                            "axes is NULL; the whole mesh is always open");
    if (mesh__group_find(mesh__impl(c), axes)) return MESH_OK;
    call.count = (size_t)(mesh__hash_text(2, axes) & 0x7fffffff);
    if ((status = mesh__group_add(c, axes, strlen(axes), &why)) != MESH_OK)
        return mesh__refuse(c, status, MESH_CALL_GROUP_OPEN, axes, "%s", why.text);
    status = mesh__call_start(c, NULL, &call, &r);
    return status == MESH_OK ? mesh_wait(r) : status;
}

/* ---- // >>collectives ----------------------------------------------------------------------------------------------------------------------- */

#define MESH__BLOCKING(start)   \
    mesh_request r;             \
    mesh_status status = start; \
    return status == MESH_OK ? mesh_wait(r) : status

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
    mesh_call call = mesh__call(MESH_CALL_BROADCAST, send, recv, count, d, 0, root);
    return mesh__call_start(c, axes, &call, r);
}
MESH_API mesh_status mesh_broadcast(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                    mesh_dtype d, int root) {
    MESH__BLOCKING(mesh_broadcast_start(c, axes, send, recv, count, d, root, &r));
}

MESH_API mesh_status mesh_all_gather_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                           mesh_dtype d, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_ALL_GATHER, send, recv, count, d, 0, 0);
    return mesh__call_start(c, axes, &call, r);
}
MESH_API mesh_status mesh_all_gather(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                     mesh_dtype d) {
    MESH__BLOCKING(mesh_all_gather_start(c, axes, send, recv, count, d, &r));
}

MESH_API mesh_status mesh_all_gather_v_start(mesh_comm *c, const char *axes, const void *send, void *recv,
                                             const size_t *counts, const size_t *offsets, mesh_dtype d,
                                             mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_ALL_GATHER_V, send, recv, 0, d, 0, 0);
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
    mesh_call call = mesh__call(MESH_CALL_ALL_TO_ALL, send, recv, count, d, 0, 0);
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
    mesh_call call = mesh__call(MESH_CALL_ALL_TO_ALL_V, send, recv, 0, d, 0, 0);
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

MESH_API mesh_status mesh_barrier_start(mesh_comm *c, const char *axes, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_BARRIER, NULL, NULL, 0, MESH_BYTES, 0, 0);
    return mesh__call_start(c, axes, &call, r);
}
MESH_API mesh_status mesh_barrier(mesh_comm *c, const char *axes) { MESH__BLOCKING(mesh_barrier_start(c, axes, &r)); }

/* ---- // >>point to point ---------------------------------------------------------------------------------------------------------------------- */

/* The number of this xfer among all to or from its peer: how a waiter and its peer find out whether it is served. Returns 0 without memory. */
static inline int mesh__p2p_count(mesh__engine *e, mesh__op *op, int x, int index) {
    mesh__group *g = op->group;
    if (!g->p2p) {
        g->p2p = (uint32_t(*)[2])mesh_transport_alloc(e->t, sizeof *g->p2p * (size_t)g->on.size);
        if (!g->p2p) return 0;
        memset(g->p2p, 0, sizeof *g->p2p * (size_t)g->on.size);
    }
    if (!mesh__grow(e->t, (void **)&op->ordinal, &op->ordinal_cap, x + 1, sizeof *op->ordinal)) return 0;
    op->ordinal[x] = ++g->p2p[index][op->xfer[x].direction];
    return 1;
}

/* Memory that is received into may be in no other transfer. Of strided blocks only a stride of 0 is refused: interleaved columns are fine. */
static inline int mesh__xfers_overlap(const mesh_xfer *xfers, int count) {
    int i, k;
    for (i = 0; i < count; i++) {
        if (xfers[i].direction != MESH_RECV) continue;
        for (k = 0; xfers[i].block && k < xfers[i].block->ndim; k++)
            if (xfers[i].block->dim[k].count > 1 && xfers[i].block->dim[k].stride == 0) return 1;
        for (k = 0; k < count && count <= 64 && !xfers[i].block; k++)
            if (k != i && !xfers[k].block &&
                mesh__overlap(xfers[i].base, (size_t)xfers[i].nbytes, xfers[k].base, (size_t)xfers[k].nbytes))
                return 1;
    }
    return 0;
}

/* Sends to myself, matched in order with receives from myself. */
static inline mesh_status mesh__exchange_self(mesh_comm *c, mesh__engine *e, mesh__group *g, int kind,
                                              const mesh_xfer *xfers, int count) {
    int s = -1, r = -1;
    uint64_t at, sn, rn;
    for (;;) {
        for (s++; s < count && !(xfers[s].rank == g->index && xfers[s].direction == MESH_SEND); s++) {}
        for (r++; r < count && !(xfers[r].rank == g->index && xfers[r].direction == MESH_RECV); r++) {}
        if (s >= count && r >= count) return MESH_OK;
        if (s >= count || r >= count || xfers[s].nbytes != xfers[r].nbytes)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, g->axes,
                                "a %s oneself (index %d) needs its other half, of the same length, in the same call",
                                s < count ? "send to" : "receive from", g->index);
        if (e->t->ops->struct_size > offsetof(mesh_ops, copy) && e->t->ops->copy) {
            e->t->ops->copy(e->t, g->handle, xfers[r].base, xfers[r].block, xfers[s].base, xfers[s].block,
                            xfers[s].nbytes);
            continue;
        }
        for (at = 0; at < xfers[s].nbytes; at += sn < rn ? sn : rn) {
            void *from = mesh_xfer_at(&xfers[s], at, &sn), *to = mesh_xfer_at(&xfers[r], at, &rn);
            memmove(to, from, (size_t)(sn < rn ? sn : rn));
        }
    }
}

static inline mesh_status mesh__p2p_start(mesh_comm *c, const char *axes, int kind, const mesh_xfer *xfers, int count,
                                          size_t elements, mesh_dtype d, mesh_request *r) {
    mesh_call call = mesh__call(kind, NULL, NULL, elements, d, 0, 0);
    mesh__group *g = NULL;
    mesh__engine *e;
    mesh__op *op;
    mesh_status status = mesh__call_begin(c, axes, kind, r, &g);
    int i;
    if (status != MESH_OK) return status;
    e = mesh__impl(c)->engine;
    call.elem_bytes = mesh_dtype_bytes(d);
    if (!call.elem_bytes)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "dtype %d is none; see MESH_DTYPES", (int)d);
    if (count < 0 || (count && !xfers))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%d transfers%s", count, xfers ? "" : " (NULL)");
    for (i = 0; i < count; i++) {
        if (xfers[i].rank < 0 || xfers[i].rank >= g->on.size)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                                "peer %d is outside the group of %d; it is an index in the group", xfers[i].rank,
                                g->on.size);
        if (!xfers[i].base && xfers[i].nbytes)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "the buffer is NULL with %u bytes", xfers[i].nbytes);
        if (xfers[i].nbytes > (uint64_t)SIZE_MAX / 2)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%u bytes overflow", xfers[i].nbytes);
        if (!mesh_block_fits(xfers[i].block, xfers[i].nbytes))
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                                "transfer %d has %u bytes, but its block describes another number", i, xfers[i].nbytes);
        if (xfers[i].direction != MESH_SEND && xfers[i].direction != MESH_RECV)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "transfer %d has direction %d", i,
                                xfers[i].direction);
    }
    if (mesh__xfers_overlap(xfers, count))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "what is received overlaps what is sent or received beside it");
    if ((status = mesh__exchange_self(c, e, g, kind, xfers, count)) != MESH_OK) return status;
    if (!(op = mesh__op_take(e))) return mesh__refuse(c, MESH_ERR_MEMORY, kind, axes, "no memory for the operation");
    mesh__op_identify(e, op, c, g, &call);
    mesh__add_post(e, op);
    for (i = 0; i < count && !op->out_of_memory; i++) {
        if (xfers[i].rank == g->index) continue;
        mesh__add_xfer(e, op, xfers[i].direction, xfers[i].rank, xfers[i].base, (size_t)xfers[i].nbytes);
        if (op->out_of_memory) break;
        op->xfer[op->nxfers - 1].block = xfers[i].block;
        if (!mesh__p2p_count(e, op, op->nxfers - 1, xfers[i].rank)) op->out_of_memory = 1;
    }
    if (!op->out_of_memory && op->step[0].count == 0) op->nsteps = 0;
    return mesh__op_launch(e, op, r);
}

static inline mesh_xfer mesh__xfer(int direction, int index, const void *base, size_t count, mesh_dtype d) {
    mesh_xfer x;
    size_t elem = mesh_dtype_bytes(d);
    x.base = (void *)(uintptr_t)base;
    x.nbytes = elem && count > SIZE_MAX / elem ? UINT64_MAX : (uint64_t)count * elem;
    x.block = NULL;
    x.direction = direction;
    x.rank = index;
    return x;
}

MESH_API mesh_status mesh_send_start(mesh_comm *c, const char *axes, int to, const void *p, size_t count, mesh_dtype d,
                                     mesh_request *r) {
    mesh_xfer x = mesh__xfer(MESH_SEND, to, p, count, d);
    return mesh__p2p_start(c, axes, MESH_CALL_SEND, &x, 1, count, d, r);
}
MESH_API mesh_status mesh_send(mesh_comm *c, const char *axes, int to, const void *p, size_t count, mesh_dtype d) {
    MESH__BLOCKING(mesh_send_start(c, axes, to, p, count, d, &r));
}

MESH_API mesh_status mesh_recv_start(mesh_comm *c, const char *axes, int from, void *p, size_t count, mesh_dtype d,
                                     mesh_request *r) {
    mesh_xfer x = mesh__xfer(MESH_RECV, from, p, count, d);
    return mesh__p2p_start(c, axes, MESH_CALL_RECV, &x, 1, count, d, r);
}
MESH_API mesh_status mesh_recv(mesh_comm *c, const char *axes, int from, void *p, size_t count, mesh_dtype d) {
    MESH__BLOCKING(mesh_recv_start(c, axes, from, p, count, d, &r));
}

static inline mesh_status mesh__sendrecv(mesh_comm *c, const char *axes, int kind, int to, const void *send,
                                         size_t send_count, int from, void *recv, size_t recv_count, mesh_dtype d,
                                         mesh_request *r) {
    mesh_xfer x[2];
    int n = 0;
    if (to != -1) x[n++] = mesh__xfer(MESH_SEND, to, send, send_count, d);
    if (from != -1) x[n++] = mesh__xfer(MESH_RECV, from, recv, recv_count, d);
    return mesh__p2p_start(c, axes, kind, x, n, send_count, d, r);
}

MESH_API mesh_status mesh_sendrecv_start(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                         int from, void *recv, size_t recv_count, mesh_dtype d, mesh_request *r) {
    return mesh__sendrecv(c, axes, MESH_CALL_SENDRECV, to, send, send_count, from, recv, recv_count, d, r);
}
MESH_API mesh_status mesh_sendrecv(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                   int from, void *recv, size_t recv_count, mesh_dtype d) {
    MESH__BLOCKING(mesh_sendrecv_start(c, axes, to, send, send_count, from, recv, recv_count, d, &r));
}

MESH_API mesh_status mesh_shift_start(mesh_comm *c, const char *axes, int displacement, int periodic, const void *send,
                                      void *recv, size_t count, mesh_dtype d, mesh_request *r) {
    mesh__group *g = NULL;
    mesh_status status = mesh__call_begin(c, axes, MESH_CALL_SHIFT, r, &g);
    int64_t to, from, n;
    if (status != MESH_OK) return status;
    if (mesh__overlap(send, mesh__xfer(0, 0, send, count, d).nbytes, recv, mesh__xfer(0, 0, recv, count, d).nbytes))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, MESH_CALL_SHIFT, axes, "send and recv overlap");
    n = g->on.size;
    to = (int64_t)g->index + displacement;
    from = (int64_t)g->index - displacement;
    if (periodic) {
        to = (to % n + n) % n;
        from = (from % n + n) % n;
    }
    return mesh__sendrecv(c, axes, MESH_CALL_SHIFT, to >= 0 && to < n ? (int)to : -1, send, count,
                          from >= 0 && from < n ? (int)from : -1, recv, count, d, r);
}
MESH_API mesh_status mesh_shift(mesh_comm *c, const char *axes, int displacement, int periodic, const void *send,
                                void *recv, size_t count, mesh_dtype d) {
    MESH__BLOCKING(mesh_shift_start(c, axes, displacement, periodic, send, recv, count, d, &r));
}

MESH_API mesh_status mesh_exchange_start(mesh_comm *c, const char *axes, const mesh_xfer *xfers, int count,
                                         mesh_request *r) {
    uint64_t total = 0;
    int i;
    for (i = 0; xfers && i < count; i++) total += xfers[i].nbytes;
    return mesh__p2p_start(c, axes, MESH_CALL_EXCHANGE, xfers, count, (size_t)total, MESH_BYTES, r);
}
MESH_API mesh_status mesh_exchange(mesh_comm *c, const char *axes, const mesh_xfer *xfers, int count) {
    MESH__BLOCKING(mesh_exchange_start(c, axes, xfers, count, &r));
}

#undef MESH__BLOCKING
#undef MESH__AT

#ifdef __cplusplus
}
#endif
#endif /* MESH_IMPLEMENTATION */
