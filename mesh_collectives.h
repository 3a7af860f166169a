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
    request     an operation under way. Every operation has a _start form that returns one; the blocking form is start + wait. mesh_keep
                makes it persistent: mesh_restart starts the same call again from the schedule that is there.
    algorithm   how a call is served: chosen by call, ranks and bytes from a tuning table, the first rank's for all (see below).

CONVENTIONS
    Arguments: comm, axes, send, recv, count, dtype, op, root. `count` is elements PER RANK. root, to, from: indices in the group.
    Zero counts are legal and still synchronise like any other. In place: send == recv; for all_gather send == recv + index*count
    and for reduce_scatter recv == send + index*count elements; for their v-forms and those of gather and scatter the own block is at its
    offset (the sum of the counts before it where there are none), all_to_all_v has no in-place form. Buffers that overlap in any other
    way are refused.
    A started operation moves while the program is in the library: on sockets not behind its back. Between start and wait call mesh_test
    now and then (on any request) where computing is to overlap; NCCL's go on by themselves.
    Put the implementation in a file of its own: it adds seconds to what compiles it. -Ofast makes the compiler's start-up code flush
    subnormal numbers in the whole program, reductions included.
    Ranks of a group call its operations in the same order. Different groups may be served in any order, as long as no cycle of
    waiting ranks arises. avg divides the sum by the group's size. f16 and bf16 accumulate in f32, rounded once per hop.
    On CPU transports a reduction has the same bits on every rank of the group and from run to run (NaN payloads excepted). min and max
    of a NaN are a NaN. Buffers are aligned to their dtype. Numbers travel little-endian, MESH_BYTES as they are.

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
    One thread at a time per transport: who comes while another thread is inside, or calls from a user's op, gets MESH_ERR_STATE with both
    calls named, and has done nothing. (What only reads, mesh_comm_size and its like, is not watched.) A comm is not copied or moved while
    it is open.
*/
#ifndef MESH_H
#error "mesh_collectives.h: include mesh.h first"
#endif
#include "mesh_comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- groups ---- */

/* Open a group of several axes; every rank of the mesh calls it in the same order. OK if it is open already. */
MESH_API mesh_status mesh_group_open(mesh_comm *c, const char *axes);

/* Show nbytes at p to the other ranks, so that they reach them without copies (NCCL: in a window, from 2.27 on; best of mesh_alloc's memory). Every
   rank of the comm calls it, with memory of its own and the same nbytes; for each group that is open it is registered on all its ranks or on none.
   *handle is NULL where there is nothing to give back. From then on a collective gets registered memory on all its ranks, or on none. MISMATCH:
   other bytes elsewhere. ARGUMENT, MEMORY: the comm fails, as the others wait. */
MESH_API mesh_status mesh_register(mesh_comm *c, void *p, size_t nbytes, void **handle);
/* Each rank by itself, when nothing is under way in it. Closing the comm does it too. NULL is fine; ARGUMENT: it is not a handle of this comm. */
MESH_API mesh_status mesh_unregister(mesh_comm *c, void *handle);

/* Bytes whose number the receivers do not know. */
typedef struct mesh_object {
    void *data;
    size_t nbytes;
    size_t room; /* of memory that is the transport's; 0: data is the caller's */
} mesh_object;

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
   zero, or as an object received before, whose memory is used again; memory is the transport's. Host memory only. Cannot be kept
   (mesh_keep: UNSUPPORTED): its schedule is not known before it runs. */
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

/* ---- halos: N-d arrays divided over the mesh, each rank with a border of its neighbours' cells ---- */

typedef struct mesh_halo {
    int ndim;                     /* of the local array, at most MESH_MAX_DIMS; the last dim is contiguous */
    int corners;                  /* 0: faces only (a star stencil); 1: edges and corners too (a box stencil) */
    int64_t shape[MESH_MAX_DIMS]; /* elements of the local array, halo included */
    int64_t low[MESH_MAX_DIMS],
        high[MESH_MAX_DIMS]; /* width of the halo before and after the dim's interior; the same on every rank */
    const char
        *axis[MESH_MAX_DIMS]; /* the mesh axis that divides the dim; NULL: none, the dim is whole on every rank */
    int periodic
        [MESH_MAX_DIMS]; /* 1: the first and last rank are neighbours (without an axis: the dim wraps onto itself) */
} mesh_halo;

/* Fill the halo with the neighbours' interior cells, straight from and to the array. Where there is no neighbour it is left as it is.
   ARGUMENT: an axis that is none or divides two dims, an interior thinner than the neighbour's halo. */
MESH_API mesh_status mesh_halo_exchange(mesh_comm *c, const mesh_halo *h, void *array, mesh_dtype d);
MESH_API mesh_status mesh_halo_exchange_start(mesh_comm *c, const mesh_halo *h, void *array, mesh_dtype d,
                                              mesh_request *r);

/* ---- algorithms ---- */

#define MESH_ALGORITHMS(X)                                                                      \
    X(MESH_ALGORITHM_NONE, "none")                                                              \
    X(MESH_ALGORITHM_DOUBLING, "doubling") /* all_reduce, scan, all_gather: log2 n rounds */    \
    X(MESH_ALGORITHM_HALVING, "halving")   /* all_reduce (Rabenseifner's), reduce_scatter */    \
    X(MESH_ALGORITHM_RING, "ring")         /* all_reduce, all_gather */                         \
    X(MESH_ALGORITHM_DIRECT, "direct")     /* all with all, in segments */                      \
    X(MESH_ALGORITHM_BINOMIAL, "binomial") /* a tree: broadcast, reduce, gather, scatter */     \
    X(MESH_ALGORITHM_SCATTER, "scatter")   /* broadcast: scatter, then gather */                \
    X(MESH_ALGORITHM_CHAIN, "chain")       /* broadcast, scan: in segments from rank to rank */ \
    X(MESH_ALGORITHM_BRUCK, "bruck")       /* all_gather, all_to_all: log2 n rounds */

#define MESH_X(name, text) name,
typedef enum mesh_algorithm { MESH_ALGORITHMS(MESH_X) MESH_ALGORITHM_COUNT } mesh_algorithm;
#undef MESH_X

/* Is there such an algorithm for this kind of call? Many-buffer forms use the single form's rows, v-forms none. */
MESH_API int mesh_algorithm_serves(mesh_algorithm algorithm, int call);
/* A tuning table from text (see mesh_tuning_row; '#' begins a comment), and back. ARGUMENT: names the line and what is wrong in it. */
MESH_API mesh_status mesh_tuning_parse(mesh_tuning *t, const char *text, mesh_error *err);
MESH_API size_t mesh_tuning_format(const mesh_tuning *t, char *buf, size_t cap);

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

/* ---- // >>views: where the elements of an operation lie ---- */

typedef struct mesh__part { /* one of the arrays */
    unsigned char *base;
    size_t count, start; /* elements; start: those of the parts before */
} mesh__part;

enum {
    MESH__CHUNKS, /* one logical array of `total` elements, block i a chunk of it as torch.chunk has it */
    MESH__BLOCKS, /* block i follows block i-1; a list of arrays holds a piece of every block each */
    MESH__COUNTS  /* block i has counts[i] elements at offsets[i] */
};

typedef struct mesh__view {
    const mesh__part *part;
    int nparts, kind;
    size_t total, each; /* CHUNKS: of the whole, of a block (the last ones have less); BLOCKS: both of a block */
    const size_t *counts, *offsets;
} mesh__view;

typedef struct mesh__range {
    int block;
    size_t at, count;
} mesh__range;

static inline mesh__view mesh__view_of(const mesh__part *part, int nparts, int kind, int chunks) {
    mesh__view v;
    memset(&v, 0, sizeof v);
    v.part = part;
    v.nparts = nparts;
    v.kind = kind;
    v.total = v.each = part[nparts - 1].start + part[nparts - 1].count;
    if (kind == MESH__CHUNKS) v.each = (v.total + (size_t)chunks - 1) / (size_t)chunks;
    return v;
}

static inline mesh__part mesh__part_of(const void *base, size_t count) {
    mesh__part p;
    p.base = (unsigned char *)(uintptr_t)base;
    p.count = count;
    p.start = 0;
    return p;
}

static inline mesh__range mesh__range_of(int block, size_t at, size_t count) {
    mesh__range r;
    r.block = block;
    r.at = at;
    r.count = count;
    return r;
}

static inline mesh__range mesh__block_of(const mesh__view *v, int i) {
    size_t at = v->each * (size_t)i;
    if (v->kind == MESH__BLOCKS) return mesh__range_of(i, 0, v->total);
    if (v->kind == MESH__COUNTS) return mesh__range_of(i, 0, v->counts[i]);
    if (at > v->total) at = v->total;
    return mesh__range_of(0, at, v->total - at < v->each ? v->total - at : v->each);
}

/* Blocks a .. b-1 of a view of chunks. */
static inline mesh__range mesh__blocks_of(const mesh__view *v, int a, int b) {
    mesh__range first = mesh__block_of(v, a), last = mesh__block_of(v, b);
    return mesh__range_of(0, first.at, last.at - first.at);
}

/* Piece j of a range cut into pieces of `segment` elements; how many pieces there are: at least one. */
static inline mesh__range mesh__segment_of(mesh__range r, size_t segment, size_t j) {
    size_t at = segment * j;
    if (at > r.count) at = r.count;
    return mesh__range_of(r.block, r.at + at, r.count - at < segment ? r.count - at : segment);
}
static inline size_t mesh__segments(mesh__range r, size_t segment) {
    return r.count ? (r.count + segment - 1) / segment : 1;
}

/* The first contiguous run of a range; the range goes on behind it. Its elements are returned (0 for an empty range), *p is where they are. */
static inline size_t mesh__run(const mesh__op *op, const mesh__view *v, mesh__range *r, unsigned char **p) {
    int low = 0, high = v->nparts - 1;
    const mesh__part *part;
    size_t inside, n;
    if (v->kind == MESH__COUNTS) {
        *p = v->part->base + (v->offsets[r->block] + r->at) * op->elem_bytes;
        n = r->count;
        r->at += n;
        r->count = 0;
        return n;
    }
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (v->part[middle].start <= r->at)
            low = middle;
        else
            high = middle - 1;
    }
    part = &v->part[low];
    inside = r->at - part->start;
    n = part->count - inside < r->count ? part->count - inside : r->count;
    if (v->kind == MESH__BLOCKS) inside += (size_t)r->block * part->count;
    *p = part->base ? part->base + inside * op->elem_bytes : NULL;
    r->at += n;
    r->count -= n;
    return n;
}

/* The xfers of a range to or from a peer, a message for every part it touches; with `flat`, the data lie there one after another. */
static inline void mesh__add_range(mesh__engine *e, mesh__op *op, int direction, int index, const mesh__view *v,
                                   mesh__range r, unsigned char *flat) {
    do {
        unsigned char *p;
        size_t nbytes = mesh__run(op, v, &r, &p) * op->elem_bytes;
        mesh__add_xfer(e, op, direction, index, flat ? flat : p, nbytes);
        if (flat) flat += nbytes;
    } while (r.count);
}

/* Copy or reduce a range of one view to the same elements of another, or from flat memory. */
static inline void mesh__add_ranges(mesh__engine *e, mesh__op *op, int kind, const mesh__view *to, mesh__range r,
                                    const mesh__view *from, mesh__range s, const unsigned char *flat, int src_first) {
    while (r.count) {
        unsigned char *dst, *src;
        mesh__range r2 = r, s2 = s;
        size_t n = mesh__run(op, to, &r2, &dst), m = n;
        if (flat)
            src = (unsigned char *)(uintptr_t)flat;
        else
            m = mesh__run(op, from, &s2, &src);
        if (m < n) n = m;
        if (kind == MESH__COPY)
            mesh__add_copy(e, op, dst, src, n * op->elem_bytes);
        else
            mesh__add_reduce(e, op, dst, src, n, src_first);
        r.at += n, r.count -= n;
        s.at += n, s.count -= n;
        if (flat) flat += n * op->elem_bytes;
    }
}

static inline void mesh__add_copies(mesh__engine *e, mesh__op *op, const mesh__view *to, mesh__range r,
                                    const mesh__view *from, mesh__range s) {
    mesh__add_ranges(e, op, MESH__COPY, to, r, from, s, NULL, 0);
}
static inline void mesh__add_reduces(mesh__engine *e, mesh__op *op, const mesh__view *to, mesh__range r,
                                     const unsigned char *flat, int src_first) {
    mesh__add_ranges(e, op, MESH__REDUCE, to, r, NULL, r, flat, src_first);
}
static inline void mesh__add_divides(mesh__engine *e, mesh__op *op, const mesh__view *v, mesh__range r) {
    while (r.count) {
        unsigned char *p;
        size_t n = mesh__run(op, v, &r, &p);
        mesh__add_divide(e, op, p, n);
    }
}

/* What every builder is given: what is sent, where it arrives, and how many elements go in one step of a pipeline. */
typedef struct mesh__layout {
    mesh__view send, recv;
    int root;
    size_t segment;
} mesh__layout;

/* A user's op that does not commute? */
static inline int mesh__is_ordered(const mesh__op *op) {
    int k = op->call.op - MESH__USER_OP;
    return k >= 0 && k < mesh__impl(op->comm)->nuser_ops && mesh__impl(op->comm)->user_op[k].ordered;
}

static inline mesh__range mesh__all_of(const mesh__view *v) { return mesh__range_of(0, 0, v->total); }

/* Partners served at once: more would meet at one rank. After every MESH__ROUND of them comes a wait. */
static inline void mesh__add_round(mesh__engine *e, mesh__op *op, int k) {
    if (k % MESH__ROUND != 1) return;
    if (k > 1) mesh__add_wait(e, op);
    mesh__add_post(e, op);
}

/* ---- // >>schedules: what an operation does, built at its start ---- */

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

/* Binomial tree from the root, for data that lie in recv at the root already. Source: Thakur, Rabenseifner, Gropp 2005. */
static inline void mesh__build_tree(mesh__engine *e, mesh__op *op, const mesh__view *v, int root) {
    int n = op->group->on.size, rel = (op->group->index - root + n) % n, mask = 1;
    mesh__range all = mesh__all_of(v);
    for (; mask < n; mask *= 2)
        if (rel & mask) {
            mesh__add_post(e, op);
            mesh__add_range(e, op, MESH_RECV, (rel - mask + root) % n, v, all, NULL);
            mesh__add_wait(e, op);
            break;
        }
    mesh__add_post(e, op);
    for (mask /= 2; mask > 0; mask /= 2)
        if (rel + mask < n) mesh__add_range(e, op, MESH_SEND, (rel + mask + root) % n, v, all, NULL);
    mesh__add_wait(e, op);
}

/* Each rank hands segments on to the next: every byte crosses every link once, the last rank is n segments behind. Receives are posted two
   segments ahead. */
static inline void mesh__build_chain(mesh__engine *e, mesh__op *op, const mesh__view *v, int root, size_t segment) {
    int n = op->group->on.size, rel = (op->group->index - root + n) % n, ahead = 0;
    mesh__range all = mesh__all_of(v);
    size_t segments = mesh__segments(all, segment), j;
    int before = (rel - 1 + root + n) % n, after = (rel + 1 + root) % n;
    for (j = 0; j < 2; j++) {
        ahead = op->nsteps;
        mesh__add_post(e, op);
        if (rel && j < segments) mesh__add_range(e, op, MESH_RECV, before, v, mesh__segment_of(all, segment, j), NULL);
    }
    for (j = 0; j < segments; j++) {
        mesh__add_wait_before(e, op, ahead); /* segment j has come, segment j-2 has gone */
        ahead = op->nsteps;
        mesh__add_post(e, op);
        if (rel && j + 2 < segments)
            mesh__add_range(e, op, MESH_RECV, before, v, mesh__segment_of(all, segment, j + 2), NULL);
        if (rel + 1 < n) mesh__add_range(e, op, MESH_SEND, after, v, mesh__segment_of(all, segment, j), NULL);
    }
    mesh__add_wait(e, op);
}

/* Every rank sends its block to all and receives theirs. */
static inline void mesh__build_direct_gather(mesh__engine *e, mesh__op *op, const mesh__view *own, mesh__range mine,
                                             const mesh__view *v) {
    int n = op->group->on.size, me = op->group->index, k;
    for (k = 1; k < n; k++) {
        mesh__add_round(e, op, k);
        mesh__add_range(e, op, MESH_SEND, (me + k) % n, own, mine, NULL);
        mesh__add_range(e, op, MESH_RECV, (me - k + n) % n, v, mesh__block_of(v, (me - k + n) % n), NULL);
    }
    mesh__add_wait(e, op);
}

/* Blocks travel round a ring; my own lies in v already. */
static inline void mesh__build_ring_gather(mesh__engine *e, mesh__op *op, const mesh__view *v) {
    int n = op->group->on.size, me = op->group->index, k;
    for (k = 0; k < n - 1; k++) {
        mesh__add_post(e, op);
        mesh__add_range(e, op, MESH_SEND, (me + 1) % n, v, mesh__block_of(v, (me - k + n) % n), NULL);
        mesh__add_range(e, op, MESH_RECV, (me - 1 + n) % n, v, mesh__block_of(v, (me - k - 1 + n) % n), NULL);
        mesh__add_wait(e, op);
    }
}

/* Pairs exchange 1, 2, 4 ... neighbouring blocks, in place; for a power of two of ranks. My own lies in v already. */
static inline void mesh__build_doubling_gather(mesh__engine *e, mesh__op *op, const mesh__view *v) {
    int n = op->group->on.size, me = op->group->index, mask, i;
    for (mask = 1; mask < n; mask *= 2) {
        int mine = me & ~(mask - 1), theirs = mine ^ mask;
        mesh__add_post(e, op);
        for (i = 0; i < v->nparts; i++) { /* neighbouring blocks of a part lie together */
            size_t bytes = v->part[i].count * op->elem_bytes;
            mesh__add_xfer(e, op, MESH_SEND, me ^ mask, v->part[i].base + (size_t)mine * bytes, (size_t)mask * bytes);
            mesh__add_xfer(e, op, MESH_RECV, me ^ mask, v->part[i].base + (size_t)theirs * bytes, (size_t)mask * bytes);
        }
        mesh__add_wait(e, op);
    }
}

/* Ranks hold 1, 2, 4 ... blocks, each its own first; turned into place at the end. Source: Bruck et al. 1997. */
static inline void mesh__build_bruck_gather(mesh__engine *e, mesh__op *op, const mesh__layout *b) {
    int n = op->group->on.size, me = op->group->index, k, i;
    size_t bytes = b->recv.each * op->elem_bytes;
    unsigned char *scratch = mesh__scratch(e, op, bytes * (size_t)n);
    mesh__part part;
    mesh__view turned;
    if (!scratch) return;
    part = mesh__part_of(scratch, b->recv.each);
    turned = mesh__view_of(&part, 1, MESH__BLOCKS, 0);
    mesh__add_copies(e, op, &turned, mesh__block_of(&turned, 0), &b->send, mesh__all_of(&b->send));
    for (k = 1; k < n; k *= 2) {
        size_t some = (size_t)(k < n - k ? k : n - k) * bytes;
        mesh__add_post(e, op);
        mesh__add_xfer(e, op, MESH_SEND, (me - k + n) % n, scratch, some);
        mesh__add_xfer(e, op, MESH_RECV, (me + k) % n, scratch + (size_t)k * bytes, some);
        mesh__add_wait(e, op);
    }
    for (i = 0; i < n; i++)
        mesh__add_copies(e, op, &b->recv, mesh__block_of(&b->recv, (me + i) % n), &turned, mesh__block_of(&turned, i));
}

/* Hand segment j of my reduced block to all, and receive theirs. */
static inline void mesh__add_gather_segment(mesh__engine *e, mesh__op *op, const mesh__view *v, size_t segment,
                                            size_t j) {
    int n = op->group->on.size, me = op->group->index, k;
    mesh__range mine = mesh__block_of(v, me);
    mesh__add_post(e, op);
    for (k = 1; k < n; k++) {
        int from = (me - k + n) % n;
        mesh__range theirs = mesh__block_of(v, from);
        if (j < mesh__segments(mine, segment))
            mesh__add_range(e, op, MESH_SEND, (me + k) % n, v, mesh__segment_of(mine, segment, j), NULL);
        if (j < mesh__segments(theirs, segment))
            mesh__add_range(e, op, MESH_RECV, from, v, mesh__segment_of(theirs, segment, j), NULL);
    }
}

/* acc = everyone's contribution to my block, in the order me, me-1, me-2 ...: all exchange segments with all, the segment that is being
   reduced behind the one under way. With `gather` every reduced segment goes to all at once, which makes it an all_reduce. */
static inline void mesh__build_reduce_blocks(mesh__engine *e, mesh__op *op, const mesh__layout *b,
                                             const mesh__view *acc, mesh__range mine, int gather) {
    int n = op->group->on.size, me = op->group->index, first, last, i, k;
    int width = n - 1 < MESH__ROUND ? n - 1 : MESH__ROUND;
    size_t segment = b->segment, own = mesh__segments(mine, segment), most = 0, j;
    size_t slot = ((mine.count < segment ? mine.count : segment) * op->elem_bytes + 63) & ~(size_t)63;
    unsigned char *scratch = mesh__scratch(e, op, 2 * (size_t)width * slot);
    for (i = 0; i < n; i++)
        if (mesh__segments(mesh__block_of(&b->send, i), segment) > most)
            most = mesh__segments(mesh__block_of(&b->send, i), segment);
    for (first = 1; first < n && scratch; first = last + 1) {
        int done = 0, before = 0; /* segments posted; the last post of them */
        last = first + width - 1 < n - 1 ? first + width - 1 : n - 1;
        for (j = 0; j < most; j++) {
            mesh__range segment_mine = mesh__segment_of(mine, segment, j);
            for (; done < (int)most && done < (int)j + 2; done++) {
                before = op->nsteps;
                mesh__add_post(e, op);
                for (k = first; k <= last; k++) {
                    int to = (me + k) % n, from = (me - k + n) % n;
                    mesh__range r = mesh__block_of(&b->send, to);
                    if ((size_t)done < mesh__segments(r, segment))
                        mesh__add_range(e, op, MESH_SEND, to, &b->send, mesh__segment_of(r, segment, (size_t)done),
                                        NULL);
                    if ((size_t)done < own)
                        mesh__add_range(e, op, MESH_RECV, from, acc, mesh__segment_of(mine, segment, (size_t)done),
                                        scratch + ((size_t)(done & 1) * (size_t)width + (size_t)(k - first)) * slot);
                }
            }
            if (gather && j > 0) mesh__add_gather_segment(e, op, acc, segment, j - 1);
            mesh__add_wait_before(e, op, j + 1 < most ? before : op->nsteps);
            if (j >= own) continue;
            if (first == 1)
                mesh__add_copies(e, op, acc, segment_mine, &b->send,
                                 mesh__segment_of(mesh__block_of(&b->send, me), segment, j));
            for (k = first; k <= last; k++)
                mesh__add_reduces(e, op, acc, segment_mine,
                                  scratch + ((j & 1) * (size_t)width + (size_t)(k - first)) * slot, 1);
            if (last == n - 1) mesh__add_divides(e, op, acc, segment_mine);
        }
    }
    if (gather) mesh__add_gather_segment(e, op, acc, segment, most - 1);
    mesh__add_wait(e, op);
}

/* The same through memory for every contribution, combined in the group's order: for a user's op that does not commute. */
static inline void mesh__build_reduce_ordered(mesh__engine *e, mesh__op *op, const mesh__layout *b,
                                              const mesh__view *acc, mesh__range mine) {
    int n = op->group->on.size, me = op->group->index, k;
    size_t slot = (mine.count * op->elem_bytes + 63) & ~(size_t)63;
    unsigned char *scratch = mesh__scratch(e, op, (size_t)n * slot);
    mesh__range own = mesh__block_of(&b->send, me);
    mesh__part part;
    mesh__view last;
    if (!scratch) return;
    for (k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me - k + n) % n;
        mesh__add_round(e, op, k);
        mesh__add_range(e, op, MESH_SEND, to, &b->send, mesh__block_of(&b->send, to), NULL);
        mesh__add_range(e, op, MESH_RECV, from, acc, mine, scratch + (size_t)from * slot);
    }
    mesh__add_wait(e, op);
    part = mesh__part_of(scratch + (size_t)me * slot, mine.count);
    last = mesh__view_of(&part, 1, MESH__CHUNKS, 1);
    mesh__add_copies(e, op, &last, mesh__all_of(&last), &b->send, own);
    part = mesh__part_of(scratch + (size_t)(n - 1) * slot, mine.count);
    last = mesh__view_of(&part, 1, MESH__CHUNKS, 1);
    mesh__add_copies(e, op, acc, mine, &last, mesh__all_of(&last));
    for (k = n - 2; k >= 0; k--) mesh__add_reduces(e, op, acc, mine, scratch + (size_t)k * slot, 1);
}

/* The ranks beyond a power of two are folded onto neighbours: of ranks 2i and 2i+1 only the second takes part, in role i. */
typedef struct mesh__fold {
    int power, extra, role; /* role -1: sits out */
} mesh__fold;

static inline mesh__fold mesh__fold_of(const mesh__op *op) {
    int n = op->group->on.size, me = op->group->index;
    mesh__fold f;
    for (f.power = 1; f.power * 2 <= n;) f.power *= 2;
    f.extra = n - f.power;
    f.role = me < 2 * f.extra ? (me % 2 ? me / 2 : -1) : me - f.extra;
    return f;
}
static inline int mesh__fold_rank(const mesh__fold *f, int role) {
    return role < f->extra ? role * 2 + 1 : role + f->extra;
}
/* The first rank of those that a role stands for. */
static inline int mesh__fold_first(const mesh__fold *f, int role) {
    return role < f->extra ? role * 2 : role + f->extra;
}

/* The blocks that a range of roles ends up with, where it has them: v is cut by role or by rank. */
static inline mesh__range mesh__fold_blocks(const mesh__fold *f, const mesh__view *v, int by_rank, int first,
                                            int last) {
    return mesh__blocks_of(v, by_rank ? mesh__fold_first(f, first) : first, by_rank ? mesh__fold_first(f, last) : last);
}

/* Before: who sits out gives its data (all of v) to its neighbour. */
static inline void mesh__add_fold(mesh__engine *e, mesh__op *op, const mesh__fold *f, const mesh__view *v,
                                  mesh__range all, unsigned char *scratch) {
    int me = op->group->index;
    if (me >= 2 * f->extra) return;
    mesh__add_post(e, op);
    mesh__add_range(e, op, f->role < 0 ? MESH_SEND : MESH_RECV, f->role < 0 ? me + 1 : me - 1, v, all,
                    f->role < 0 ? NULL : scratch);
    mesh__add_wait(e, op);
    if (f->role >= 0) mesh__add_reduces(e, op, v, all, scratch, 1);
}
/* After: it is given the result. */
static inline void mesh__add_unfold(mesh__engine *e, mesh__op *op, const mesh__fold *f, const mesh__view *v,
                                    mesh__range all) {
    int me = op->group->index;
    if (me >= 2 * f->extra) return;
    mesh__add_post(e, op);
    mesh__add_range(e, op, f->role < 0 ? MESH_RECV : MESH_SEND, f->role < 0 ? me + 1 : me - 1, v, all, NULL);
    mesh__add_wait(e, op);
}

/* Recursive doubling. Same bits everywhere: both sides combine the same two values in the same order. Source: Thakur, Rabenseifner,
   Gropp 2005. */
static inline void mesh__build_doubling_reduce(mesh__engine *e, mesh__op *op, const mesh__view *v) {
    mesh__fold f = mesh__fold_of(op);
    mesh__range all = mesh__all_of(v);
    unsigned char *scratch = mesh__scratch(e, op, v->total * op->elem_bytes);
    int mask;
    if (!scratch) return;
    mesh__add_fold(e, op, &f, v, all, scratch);
    for (mask = 1; f.role >= 0 && mask < f.power; mask *= 2) {
        int partner = mesh__fold_rank(&f, f.role ^ mask);
        mesh__add_post(e, op);
        mesh__add_range(e, op, MESH_SEND, partner, v, all, NULL);
        mesh__add_range(e, op, MESH_RECV, partner, v, all, scratch);
        mesh__add_wait(e, op);
        mesh__add_reduces(e, op, v, all, scratch, (f.role & mask) != 0);
    }
    if (f.role >= 0) mesh__add_divides(e, op, v, all);
    mesh__add_unfold(e, op, &f, v, all);
}

/* Recursive halving: role r is left with its own block reduced. */
static inline void mesh__add_halving(mesh__engine *e, mesh__op *op, const mesh__fold *f, const mesh__view *v,
                                     int by_rank, unsigned char *scratch) {
    int low = 0, high = f->power, mask;
    for (mask = f->power / 2; f->role >= 0 && mask > 0; mask /= 2) {
        int partner = mesh__fold_rank(f, f->role ^ mask), middle = low + mask, upper = (f->role & mask) != 0;
        mesh__range below = mesh__fold_blocks(f, v, by_rank, low, middle),
                    above = mesh__fold_blocks(f, v, by_rank, middle, high), keep = upper ? above : below;
        mesh__add_post(e, op);
        mesh__add_range(e, op, MESH_SEND, partner, v, upper ? below : above, NULL);
        mesh__add_range(e, op, MESH_RECV, partner, v, keep, scratch);
        mesh__add_wait(e, op);
        mesh__add_reduces(e, op, v, keep, scratch, upper);
        low = upper ? middle : low;
        high = upper ? high : middle;
    }
}

/* Recursive halving, then doubling: every rank reduces a block of a power of two of them. Source: Rabenseifner 2004. */
static inline void mesh__build_halving_doubling(mesh__engine *e, mesh__op *op, const mesh__view *whole) {
    mesh__fold f = mesh__fold_of(op);
    mesh__view v = mesh__view_of(whole->part, whole->nparts, MESH__CHUNKS, f.power);
    mesh__range all = mesh__all_of(&v);
    unsigned char *scratch = mesh__scratch(e, op, v.total * op->elem_bytes);
    int low = f.role, high = f.role + 1, mask;
    if (!scratch) return;
    mesh__add_fold(e, op, &f, &v, all, scratch);
    mesh__add_halving(e, op, &f, &v, 0, scratch);
    if (f.role >= 0) mesh__add_divides(e, op, &v, mesh__blocks_of(&v, low, high));
    for (mask = 1; f.role >= 0 && mask < f.power; mask *= 2) {
        int partner = mesh__fold_rank(&f, f.role ^ mask), upper = (f.role & mask) != 0;
        int from = upper ? low - mask : high;
        mesh__add_post(e, op);
        mesh__add_range(e, op, MESH_SEND, partner, &v, mesh__blocks_of(&v, low, high), NULL);
        mesh__add_range(e, op, MESH_RECV, partner, &v, mesh__blocks_of(&v, from, from + mask), NULL);
        mesh__add_wait(e, op);
        low = upper ? low - mask : low;
        high = upper ? high : high + mask;
    }
    mesh__add_unfold(e, op, &f, &v, all);
}

/* Blocks are reduced as they travel round a ring, then travel round once more, a segment at a time: a segment is reduced and handed on
   while the next ones are under way. Source of the ring: Patarasuk, Yuan 2009. */
static inline void mesh__build_ring_reduce(mesh__engine *e, mesh__op *op, const mesh__view *v, size_t segment) {
    int n = op->group->on.size, me = op->group->index, depth;
    size_t segments = mesh__segments(mesh__block_of(v, 0), segment), most = v->each < segment ? v->each : segment;
    size_t slot = (most * op->elem_bytes + 63) & ~(size_t)63, reduced = (size_t)(n - 1) * segments, t;
    int post[3] = {0, 0, 0}; /* of items t, t-1, t-2: item t is a segment received and one sent */
    unsigned char *scratch = mesh__scratch(e, op, 3 * slot);
    if (!scratch) return;
    /* Items under way beside the one that is looked at: what item t sends is item t - segments. */
    depth = segments > 2 ? 2 : (int)segments - 1;
    for (t = 0; t < 2 * reduced + (size_t)depth; t++) {
        int k = (int)(t / segments);
        size_t j = t % segments, last = t - (size_t)depth;
        if (t < 2 * reduced) {
            mesh__range give = mesh__segment_of(mesh__block_of(v, (me - k - 1 + 2 * n) % n), segment, j);
            mesh__range take = mesh__segment_of(mesh__block_of(v, (me - k - 2 + 2 * n) % n), segment, j);
            post[2] = post[1];
            post[1] = post[0];
            post[0] = op->nsteps;
            mesh__add_post(e, op);
            /* of an empty buffer too, so that ranks meet */
            if (give.count || !v->total) mesh__add_range(e, op, MESH_SEND, (me + 1) % n, v, give, NULL);
            if (take.count || !v->total)
                mesh__add_range(e, op, MESH_RECV, (me - 1 + n) % n, v, take,
                                t < reduced ? scratch + t % 3 * slot : NULL);
        }
        if (t < (size_t)depth) continue;
        mesh__add_wait_before(e, op, t < 2 * reduced && depth ? post[depth - 1] : op->nsteps);
        if (last < reduced) {
            mesh__range r = mesh__block_of(v, (me - (int)(last / segments) - 2 + 2 * n) % n);
            r = mesh__segment_of(r, segment, last % segments);
            mesh__add_reduces(e, op, v, r, scratch + last % 3 * slot, 1);
            if (last / segments == (size_t)n - 2) mesh__add_divides(e, op, v, r);
        }
    }
}

static inline void mesh__build_all_reduce(mesh__engine *e, mesh__op *op, const mesh__layout *b, int algorithm) {
    int n = op->group->on.size;
    if (algorithm == MESH_ALGORITHM_DIRECT && n - 1 <= MESH__ROUND) {
        mesh__build_reduce_blocks(e, op, b, &b->recv, mesh__block_of(&b->recv, op->group->index), 1);
        return;
    }
    if (algorithm == MESH_ALGORITHM_DIRECT) {
        mesh__range mine = mesh__block_of(&b->recv, op->group->index);
        mesh__build_reduce_blocks(e, op, b, &b->recv, mine, 0);
        mesh__build_direct_gather(e, op, &b->recv, mine, &b->recv);
        return;
    }
    mesh__add_copies(e, op, &b->recv, mesh__all_of(&b->recv), &b->send, mesh__all_of(&b->send));
    if (algorithm == MESH_ALGORITHM_RING)
        mesh__build_ring_reduce(e, op, &b->recv, b->segment);
    else if (algorithm == MESH_ALGORITHM_HALVING)
        mesh__build_halving_doubling(e, op, &b->recv);
    else
        mesh__build_doubling_reduce(e, op, &b->recv);
}

/* A binomial tree whose inner ranks combine their children's data with their own. An op that does not commute goes to rank 0 first. */
static inline void mesh__build_tree_reduce(mesh__engine *e, mesh__op *op, const mesh__layout *b) {
    int n = op->group->on.size, me = op->group->index, mask, ordered = mesh__is_ordered(op);
    int top = ordered ? 0 : b->root, rel = (me - top + n) % n;
    size_t bytes = b->send.total * op->elem_bytes;
    unsigned char *scratch = mesh__scratch(e, op, bytes);
    unsigned char *acc = me == b->root && !rel ? b->recv.part->base : mesh__scratch(e, op, bytes);
    if (!scratch || op->out_of_memory) return;
    mesh__add_copy(e, op, acc, b->send.part->base, bytes);
    for (mask = 1; mask < n; mask *= 2) {
        mesh__add_post(e, op);
        if (rel & mask) {
            mesh__add_xfer(e, op, MESH_SEND, (rel - mask + top) % n, acc, bytes);
            mesh__add_wait(e, op);
            break;
        }
        if (rel + mask < n) {
            mesh__add_xfer(e, op, MESH_RECV, (rel + mask + top) % n, scratch, bytes);
            mesh__add_wait(e, op);
            mesh__add_reduce(e, op, acc, scratch, b->send.total, 0);
        }
    }
    if (!rel) mesh__add_divide(e, op, acc, b->send.total);
    if (top == b->root || (me != top && me != b->root)) return;
    mesh__add_post(e, op);
    mesh__add_xfer(e, op, me == top ? MESH_SEND : MESH_RECV, me == top ? b->root : top,
                   me == top ? acc : b->recv.part->base, bytes);
    mesh__add_wait(e, op);
}

/* Every rank reduces a block and hands it to the root. */
static inline void mesh__build_block_reduce(mesh__engine *e, mesh__op *op, const mesh__layout *b) {
    int n = op->group->on.size, me = op->group->index, k;
    mesh__range mine = mesh__block_of(&b->send, me);
    mesh__part part = mesh__part_of(NULL, mine.count);
    mesh__view acc;
    if (me != b->root && !(part.base = mesh__scratch(e, op, mine.count * op->elem_bytes))) return;
    acc = me == b->root ? b->recv : mesh__view_of(&part, 1, MESH__CHUNKS, 1);
    mesh__build_reduce_blocks(e, op, b, &acc, me == b->root ? mine : mesh__all_of(&acc), 0);
    if (me != b->root) {
        mesh__add_post(e, op);
        mesh__add_range(e, op, MESH_SEND, b->root, &acc, mesh__all_of(&acc), NULL);
    }
    for (k = 1; me == b->root && k < n; k++) {
        mesh__add_round(e, op, k);
        mesh__add_range(e, op, MESH_RECV, (me + k) % n, &b->recv, mesh__block_of(&b->recv, (me + k) % n), NULL);
    }
    mesh__add_wait(e, op);
}

/* The root cuts the data among the others; each hands its block to all of them, a segment behind. Source: van de Geijn's
   scatter-allgather. */
static inline void mesh__build_scatter_broadcast(mesh__engine *e, mesh__op *op, const mesh__layout *b) {
    int n = op->group->on.size, me = op->group->index, root = b->root, k, before = 0;
    mesh__view cut = mesh__view_of(b->recv.part, b->recv.nparts, MESH__CHUNKS, n - 1);
    const mesh__view *v = &cut;
    int block = (me - root - 1 + n) % n; /* mine; the root has none */
    size_t segment = b->segment, most = mesh__segments(mesh__block_of(v, 0), segment), j, done = 0;
    for (j = 0; j < most; j++) {
        for (; done < most && done < j + 2; done++) {
            before = op->nsteps;
            mesh__add_post(e, op);
            for (k = 0; k < n - 1; k++) {
                mesh__range r = mesh__block_of(v, k);
                if ((me != root && k != block) || done >= mesh__segments(r, segment)) continue;
                mesh__add_range(e, op, me == root ? MESH_SEND : MESH_RECV, me == root ? (root + 1 + k) % n : root, v,
                                mesh__segment_of(r, segment, done), NULL);
            }
        }
        mesh__add_wait_before(e, op, j + 1 < most ? before : op->nsteps);
        mesh__add_post(e, op);
        for (k = 1; k < n - 1 && me != root; k++) {
            int to = (block + k) % (n - 1), from = (block - k + n - 1) % (n - 1);
            mesh__range mine = mesh__block_of(v, block), theirs = mesh__block_of(v, from);
            if (j < mesh__segments(mine, segment))
                mesh__add_range(e, op, MESH_SEND, (root + 1 + to) % n, v, mesh__segment_of(mine, segment, j), NULL);
            if (j < mesh__segments(theirs, segment))
                mesh__add_range(e, op, MESH_RECV, (root + 1 + from) % n, v, mesh__segment_of(theirs, segment, j), NULL);
        }
    }
    mesh__add_wait(e, op);
}

static inline void mesh__build_broadcast(mesh__engine *e, mesh__op *op, const mesh__layout *b, int algorithm) {
    if (op->group->index == b->root)
        mesh__add_copies(e, op, &b->recv, mesh__all_of(&b->recv), &b->send, mesh__all_of(&b->send));
    if (algorithm == MESH_ALGORITHM_SCATTER)
        mesh__build_scatter_broadcast(e, op, b);
    else if (algorithm == MESH_ALGORITHM_CHAIN)
        mesh__build_chain(e, op, &b->recv, b->root, b->segment);
    else
        mesh__build_tree(e, op, &b->recv, b->root);
}

static inline void mesh__build_all_gather(mesh__engine *e, mesh__op *op, const mesh__layout *b, int algorithm) {
    mesh__range own = mesh__block_of(&b->recv, op->group->index), all = mesh__all_of(&b->send);
    if (algorithm == MESH_ALGORITHM_BRUCK) {
        mesh__build_bruck_gather(e, op, b);
        return;
    }
    mesh__add_copies(e, op, &b->recv, own, &b->send, all);
    if (algorithm == MESH_ALGORITHM_RING)
        mesh__build_ring_gather(e, op, &b->recv);
    else if (algorithm == MESH_ALGORITHM_DOUBLING && (op->group->on.size & (op->group->on.size - 1)) == 0)
        mesh__build_doubling_gather(e, op, &b->recv);
    else
        mesh__build_direct_gather(e, op, &b->send, all, &b->recv);
}

/* Recursive halving over blocks that are neighbours; who sits out is given its block at the end. */
static inline void mesh__build_halving_scatter(mesh__engine *e, mesh__op *op, const mesh__layout *b) {
    int n = op->group->on.size, me = op->group->index;
    mesh__fold f = mesh__fold_of(op);
    size_t total = b->send.each * (size_t)n;
    unsigned char *work = mesh__scratch(e, op, total * op->elem_bytes),
                  *scratch = mesh__scratch(e, op, total * op->elem_bytes);
    mesh__part part;
    mesh__view v;
    int k;
    if (op->out_of_memory) return;
    part = mesh__part_of(work, total);
    v = mesh__view_of(&part, 1, MESH__CHUNKS, n);
    for (k = 0; k < n; k++) mesh__add_copies(e, op, &v, mesh__block_of(&v, k), &b->send, mesh__block_of(&b->send, k));
    mesh__add_fold(e, op, &f, &v, mesh__all_of(&v), scratch);
    mesh__add_halving(e, op, &f, &v, 1, scratch);
    if (me < 2 * f.extra) {
        mesh__add_post(e, op);
        if (f.role < 0)
            mesh__add_range(e, op, MESH_RECV, me + 1, &v, mesh__block_of(&v, me), NULL);
        else
            mesh__add_range(e, op, MESH_SEND, me - 1, &v, mesh__block_of(&v, me - 1), NULL);
        mesh__add_wait(e, op);
    }
    mesh__add_copies(e, op, &b->recv, mesh__all_of(&b->recv), &v, mesh__block_of(&v, me));
    mesh__add_divides(e, op, &b->recv, mesh__all_of(&b->recv));
}

/* Blocks move in log2 n rounds: in round k those whose distance has bit k go on by 2^k. Source: Bruck et al. 1997. */
static inline void mesh__build_bruck_all_to_all(mesh__engine *e, mesh__op *op, const mesh__layout *b) {
    int n = op->group->on.size, me = op->group->index, k, i;
    size_t bytes = b->send.each * op->elem_bytes;
    unsigned char *turned = mesh__scratch(e, op, bytes * (size_t)n), *out = mesh__scratch(e, op, bytes * (size_t)n),
                  *in = mesh__scratch(e, op, bytes * (size_t)n);
    if (op->out_of_memory) return;
    for (i = 0; i < n; i++)
        mesh__add_copy(e, op, turned + (size_t)i * bytes, b->send.part->base + (size_t)((me + i) % n) * bytes, bytes);
    for (k = 1; k < n; k *= 2) {
        size_t some = 0;
        for (i = 0; i < n; i++)
            if (i & k) mesh__add_copy(e, op, out + some++ * bytes, turned + (size_t)i * bytes, bytes);
        mesh__add_post(e, op);
        mesh__add_xfer(e, op, MESH_SEND, (me + k) % n, out, some * bytes);
        mesh__add_xfer(e, op, MESH_RECV, (me - k + n) % n, in, some * bytes);
        mesh__add_wait(e, op);
        for (i = 0, some = 0; i < n; i++)
            if (i & k) mesh__add_copy(e, op, turned + (size_t)i * bytes, in + some++ * bytes, bytes);
    }
    for (i = 0; i < n; i++)
        mesh__add_copy(e, op, b->recv.part->base + (size_t)((me - i + n) % n) * bytes, turned + (size_t)i * bytes,
                       bytes);
}

static inline void mesh__build_all_to_all(mesh__engine *e, mesh__op *op, const mesh__layout *b, int algorithm) {
    int n = op->group->on.size, me = op->group->index, k;
    mesh__view send = b->send;
    mesh__part part = *b->send.part;
    if (algorithm == MESH_ALGORITHM_BRUCK) {
        mesh__build_bruck_all_to_all(e, op, b);
        return;
    }
    send.part = &part;
    if (part.base == b->recv.part->base && part.count && n > 1) {
        size_t bytes = part.count * (size_t)n * op->elem_bytes;
        if (!(part.base = mesh__scratch(e, op, bytes))) return;
        mesh__add_copy(e, op, part.base, b->recv.part->base, bytes);
    }
    mesh__add_copies(e, op, &b->recv, mesh__block_of(&b->recv, me), &send, mesh__block_of(&send, me));
    for (k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me - k + n) % n;
        mesh__add_round(e, op, k);
        mesh__add_range(e, op, MESH_SEND, to, &send, mesh__block_of(&send, to), NULL);
        mesh__add_range(e, op, MESH_RECV, from, &b->recv, mesh__block_of(&b->recv, from), NULL);
    }
    mesh__add_wait(e, op);
}

/* gather and scatter are each other's mirror image. `all` is the root's view of blocks, `own` everyone's piece. */
static inline void mesh__build_direct_rooted(mesh__engine *e, mesh__op *op, const mesh__layout *b, int gather) {
    int n = op->group->on.size, me = op->group->index, k;
    const mesh__view *own = gather ? &b->send : &b->recv, *all = gather ? &b->recv : &b->send;
    if (me == b->root && gather)
        mesh__add_copies(e, op, all, mesh__block_of(all, me), own, mesh__all_of(own));
    else if (me == b->root)
        mesh__add_copies(e, op, own, mesh__all_of(own), all, mesh__block_of(all, me));
    for (k = 1; me == b->root && k < n; k++) {
        mesh__add_round(e, op, k);
        mesh__add_range(e, op, gather ? MESH_RECV : MESH_SEND, (me + k) % n, all, mesh__block_of(all, (me + k) % n),
                        NULL);
    }
    if (me != b->root) {
        mesh__add_post(e, op);
        mesh__add_range(e, op, gather ? MESH_SEND : MESH_RECV, b->root, own, mesh__all_of(own), NULL);
    }
    mesh__add_wait(e, op);
}

/* A binomial tree: the rank at distance d from the root deals with blocks d .. d + its lowest bit. */
static inline void mesh__build_tree_rooted(mesh__engine *e, mesh__op *op, const mesh__layout *b, int gather) {
    int n = op->group->on.size, me = op->group->index, rel = (me - b->root + n) % n, mask, below = 1, i;
    const mesh__view *own = gather ? &b->send : &b->recv, *all = gather ? &b->recv : &b->send;
    size_t bytes = own->total * op->elem_bytes;
    unsigned char *held;
    while (below < n && !(rel & below)) below *= 2;
    mask = below;
    if (below > n - rel) below = n - rel;
    held = mesh__scratch(e, op, bytes * (size_t)below);
    if (!held) return;
    if (gather) mesh__add_copy(e, op, held, own->part->base, bytes);
    for (i = 0; !gather && rel == 0 && i < n; i++)
        mesh__add_copy(e, op, held + (size_t)i * bytes, all->part->base + (size_t)((b->root + i) % n) * bytes, bytes);
    if (!gather && rel) {
        mesh__add_post(e, op);
        mesh__add_xfer(e, op, MESH_RECV, (rel - mask + b->root) % n, held, bytes * (size_t)below);
        mesh__add_wait(e, op);
    }
    mesh__add_post(e, op);
    for (mask /= 2; mask > 0; mask /= 2) {
        int child = rel + mask, count = mask < n - child ? mask : n - child;
        if (child < n)
            mesh__add_xfer(e, op, gather ? MESH_RECV : MESH_SEND, (child + b->root) % n, held + (size_t)mask * bytes,
                           bytes * (size_t)count);
    }
    mesh__add_wait(e, op);
    if (gather && rel) {
        for (mask = 1; !(rel & mask);) mask *= 2;
        mesh__add_post(e, op);
        mesh__add_xfer(e, op, MESH_SEND, (rel - mask + b->root) % n, held, bytes * (size_t)below);
        mesh__add_wait(e, op);
    }
    for (i = 0; gather && rel == 0 && i < n; i++)
        mesh__add_copy(e, op, all->part->base + (size_t)((b->root + i) % n) * bytes, held + (size_t)i * bytes, bytes);
    if (!gather) mesh__add_copy(e, op, own->part->base, held, bytes);
}

/* In round k every rank adds what the rank 2^k before has added up. Source: Hillis, Steele 1986. */
static inline void mesh__build_doubling_scan(mesh__engine *e, mesh__op *op, const mesh__layout *b, int exclusive) {
    int n = op->group->on.size, me = op->group->index, k, first = 1;
    size_t count = b->send.total, bytes = count * op->elem_bytes;
    unsigned char *result = b->recv.part->base, *scratch = mesh__scratch(e, op, bytes),
                  *sum = exclusive ? mesh__scratch(e, op, bytes) : result;
    if (op->out_of_memory) return;
    mesh__add_copy(e, op, sum, b->send.part->base, bytes);
    for (k = 1; k < n; k *= 2) {
        mesh__add_post(e, op);
        if (me + k < n) mesh__add_xfer(e, op, MESH_SEND, me + k, sum, bytes);
        if (me - k >= 0) mesh__add_xfer(e, op, MESH_RECV, me - k, scratch, bytes);
        mesh__add_wait(e, op);
        if (me - k < 0) continue;
        if (exclusive && first)
            mesh__add_copy(e, op, result, scratch, bytes);
        else if (exclusive)
            mesh__add_reduce(e, op, result, scratch, count, 1);
        mesh__add_reduce(e, op, sum, scratch, count, 1);
        first = 0;
    }
}

/* Segments pass from rank to rank, each adding its own. */
static inline void mesh__build_chain_scan(mesh__engine *e, mesh__op *op, const mesh__layout *b, int exclusive) {
    int n = op->group->on.size, me = op->group->index, post = op->nsteps;
    mesh__range all = mesh__all_of(&b->send);
    size_t segments = mesh__segments(all, b->segment), j, most = all.count < b->segment ? all.count : b->segment;
    size_t slot = (most * op->elem_bytes + 63) & ~(size_t)63;
    unsigned char *in = mesh__scratch(e, op, 2 * slot), *out = mesh__scratch(e, op, 2 * slot);
    if (op->out_of_memory) return;
    mesh__add_post(e, op);
    if (me) mesh__add_range(e, op, MESH_RECV, me - 1, &b->send, mesh__segment_of(all, b->segment, 0), in);
    for (j = 0; j < segments; j++) {
        mesh__range r = mesh__segment_of(all, b->segment, j);
        unsigned char *got = in + (j & 1) * slot, *next = out + (j & 1) * slot;
        unsigned char *result = b->recv.part->base + r.at * op->elem_bytes,
                      *mine = b->send.part->base + r.at * op->elem_bytes;
        mesh__add_wait_before(e, op, post + 1); /* segment j has come, and j-2 has gone */
        mesh__add_copy(e, op, next, mine, r.count * op->elem_bytes);
        if (me) mesh__add_reduce(e, op, next, got, r.count, 1);
        if (!exclusive) mesh__add_copy(e, op, result, next, r.count * op->elem_bytes);
        if (exclusive && me) mesh__add_copy(e, op, result, got, r.count * op->elem_bytes);
        post = op->nsteps;
        mesh__add_post(e, op);
        if (me && j + 1 < segments)
            mesh__add_range(e, op, MESH_RECV, me - 1, &b->send, mesh__segment_of(all, b->segment, j + 1),
                            in + ((j + 1) & 1) * slot);
        if (me + 1 < n) mesh__add_range(e, op, MESH_SEND, me + 1, &b->send, r, next);
    }
    mesh__add_wait(e, op);
}

/* The size of the object has come: make room, and broadcast the bytes. */
static inline void mesh__extend_object(mesh__engine *e, mesh__op *op) {
    mesh_object *o = (mesh_object *)op->extra;
    uint64_t nbytes = mesh__get64((const unsigned char *)op->step[op->at].dst);
    mesh__part part;
    mesh__view v;
    if (op->group->index != op->call.root) {
        if (nbytes > o->room || !o->data) {
            void *p = nbytes < SIZE_MAX / 2 ? mesh_transport_alloc(e->t, (size_t)nbytes + 1) : NULL;
            if (!p) {
                op->out_of_memory = 1;
                return;
            }
            if (o->room) mesh_transport_free(e->t, o->data);
            o->data = p;
            o->room = (size_t)nbytes + 1;
        }
        o->nbytes = (size_t)nbytes;
    }
    part = mesh__part_of(o->data, o->nbytes);
    v = mesh__view_of(&part, 1, MESH__CHUNKS, 1);
    if (nbytes > MESH__OBJECT_CHAIN && op->group->on.size > 2)
        mesh__build_chain(e, op, &v, op->call.root, MESH__OBJECT_CHAIN / 2);
    else if (nbytes)
        mesh__build_tree(e, op, &v, op->call.root);
}

static inline void mesh__build_object(mesh__engine *e, mesh__op *op) {
    unsigned char *head = mesh__scratch(e, op, 8);
    mesh__part part = mesh__part_of(head, 8);
    mesh__view v = mesh__view_of(&part, 1, MESH__CHUNKS, 1);
    mesh__step *s;
    op->extra = op->call.recv;
    op->extend = mesh__extend_object;
    if (!head) return;
    mesh__put64(head, ((mesh_object *)op->extra)->nbytes);
    mesh__build_tree(e, op, &v, op->call.root);
    if ((s = mesh__step_add(e, op, MESH__EXTEND)) != NULL) s->dst = head;
}

/* ---- // >>many: lists of buffers. Small neighbours are copied together, so that a thousand small arrays do not make a thousand messages. */

/* How many blocks of a group of n a buffer's send and recv hold. */
static inline int mesh__many_blocks(int kind, int n, int receive) {
    int gathers = kind == MESH_CALL_ALL_GATHER_MANY, scatters = kind == MESH_CALL_REDUCE_SCATTER_MANY;
    return (receive ? gathers : scatters) ? n : 1;
}

/* The end of the run of small buffers that begins at i. */
static inline int mesh__many_small(const mesh__op *op, int i, size_t *count) {
    const mesh_call *call = &op->call;
    for (*count = 0; i < call->nbuffers && call->buffers[i].count * op->elem_bytes <= MESH__PACKED; i++)
        *count += call->buffers[i].count;
    return i;
}

/* Copy the small buffers i .. end-1 into or out of packed memory of `blocks` blocks. */
static inline void mesh__many_copy(mesh__engine *e, mesh__op *op, int i, int end, unsigned char *packed, size_t count,
                                   int blocks, int receive) {
    int k;
    size_t at = 0;
    for (; i < end; i++) {
        const mesh_buffer *b = &op->call.buffers[i];
        size_t bytes = b->count * op->elem_bytes;
        for (k = 0; k < blocks; k++) {
            unsigned char *inside = packed + (size_t)k * count * op->elem_bytes + at;
            if (receive)
                mesh__add_copy(e, op, (unsigned char *)b->recv + (size_t)k * bytes, inside, bytes);
            else
                mesh__add_copy(e, op, inside, (const unsigned char *)b->send + (size_t)k * bytes, bytes);
        }
        at += bytes;
    }
}

/* The parts of a list: as they are, or packed. Copies into packed memory are added; with `out`, those out of it instead. */
static inline int mesh__many_parts(mesh__engine *e, mesh__op *op, mesh__part *send, mesh__part *recv,
                                   unsigned char *packed, int out) {
    const mesh_call *call = &op->call;
    int i = 0, n = 0, size = op->group->on.size, me = op->group->index;
    int sb = mesh__many_blocks(call->kind, size, 0), rb = mesh__many_blocks(call->kind, size, 1);
    int silent = call->kind == MESH_CALL_BROADCAST_MANY && me != call->root; /* has nothing to send */
    size_t start = 0;
    while (i < call->nbuffers) {
        size_t count;
        int end = mesh__many_small(op, i, &count);
        send[n].start = recv[n].start = start;
        if (end - i > 1) {
            size_t bytes = count * op->elem_bytes;
            send[n].base =
                rb > 1 && bytes ? packed + (size_t)me * bytes : packed; /* in place; NULL where all are empty */
            recv[n].base = sb > 1 && bytes ? packed + (size_t)me * bytes : packed;
            if (bytes && !out && !silent) mesh__many_copy(e, op, i, end, send[n].base, count, sb, 0);
            if (bytes && out) mesh__many_copy(e, op, i, end, recv[n].base, count, rb, 1);
            if (bytes) packed += bytes * (size_t)(sb > rb ? sb : rb);
        } else {
            end = i + 1;
            count = call->buffers[i].count;
            send[n].base = (unsigned char *)(uintptr_t)call->buffers[i].send;
            recv[n].base = (unsigned char *)call->buffers[i].recv;
            if (silent) send[n].base = recv[n].base;
        }
        send[n].count = recv[n].count = count;
        start += count;
        n++;
        i = end;
    }
    return n;
}

/* Bytes that packing needs. */
static inline size_t mesh__many_packed(const mesh__op *op) {
    int i = 0, size = op->group->on.size;
    int sb = mesh__many_blocks(op->call.kind, size, 0), rb = mesh__many_blocks(op->call.kind, size, 1);
    size_t total = 0, count;
    while (i < op->call.nbuffers) {
        int end = mesh__many_small(op, i, &count);
        if (end - i > 1) total += count * op->elem_bytes * (size_t)(sb > rb ? sb : rb);
        i = end - i > 1 ? end : i + 1;
    }
    return total;
}

/* ---- // >>choice: which algorithm serves a call ---- */

static const char *const mesh__algorithm_names[] = {
#define MESH_X(name, text) text,
    MESH_ALGORITHMS(MESH_X)
#undef MESH_X
};

/* The single form of a multi-buffer call: they share algorithms. */
static inline int mesh__single_kind(int kind) {
    return kind == MESH_CALL_ALL_REDUCE_MANY       ? MESH_CALL_ALL_REDUCE
           : kind == MESH_CALL_BROADCAST_MANY      ? MESH_CALL_BROADCAST
           : kind == MESH_CALL_ALL_GATHER_MANY     ? MESH_CALL_ALL_GATHER
           : kind == MESH_CALL_REDUCE_SCATTER_MANY ? MESH_CALL_REDUCE_SCATTER
                                                   : kind;
}

/* What is used where the table says nothing: measured over TCP on 2, 4 and 8 ranks of one host (bench/RESULTS.md), and never more than a
   small factor from what the theory says of many. bytes: per rank, as a row has them. */
static inline mesh_tuning_row mesh__built_in(int kind, int n, size_t bytes) {
    size_t total = bytes <= SIZE_MAX / (size_t)n ? bytes * (size_t)n : SIZE_MAX;
    int power = (n & (n - 1)) == 0, algorithm = MESH_ALGORITHM_DIRECT;
    uint32_t segment = 256 * 1024;
    mesh_tuning_row row;
    switch (kind) {
    case MESH_CALL_ALL_REDUCE:
        if (bytes <= MESH__SMALL)
            algorithm = MESH_ALGORITHM_DOUBLING;
        else if (n > 2 && (bytes <= 4 * MESH__SMALL || (power && bytes <= 3 * (size_t)MESH__MIB / 2)))
            algorithm = MESH_ALGORITHM_HALVING;
        else if (n > 6)
            algorithm = MESH_ALGORITHM_RING, segment = MESH__MIB;
        break;
    case MESH_CALL_SCAN:
    case MESH_CALL_EXSCAN:
        algorithm = bytes <= MESH__SMALL ? MESH_ALGORITHM_DOUBLING : MESH_ALGORITHM_CHAIN;
        break;
    case MESH_CALL_REDUCE:
        if (bytes <= MESH__SMALL) algorithm = MESH_ALGORITHM_BINOMIAL;
        break;
    case MESH_CALL_BROADCAST:
        algorithm = n == 2 || bytes <= 2 * MESH__MIB ? MESH_ALGORITHM_BINOMIAL : MESH_ALGORITHM_CHAIN;
        segment = 512 * 1024;
        break;
    case MESH_CALL_GATHER:
    case MESH_CALL_SCATTER:
        if (n > 16 && bytes <= 1024) algorithm = MESH_ALGORITHM_BINOMIAL;
        break;
    case MESH_CALL_ALL_GATHER:
        if (power && total <= 2 * MESH__MIB)
            algorithm = MESH_ALGORITHM_DOUBLING;
        else if (n > 2)
            algorithm = !power && bytes <= MESH__SMALL / 2 ? MESH_ALGORITHM_BRUCK : MESH_ALGORITHM_RING;
        break;
    case MESH_CALL_REDUCE_SCATTER:
        if (n > 2 && total <= 8 * MESH__SMALL) algorithm = MESH_ALGORITHM_HALVING;
        break;
    case MESH_CALL_ALL_TO_ALL:
        if (n > 3 && bytes <= 4 * MESH__SMALL) algorithm = MESH_ALGORITHM_BRUCK;
        break;
    default:
        break;
    }
    row.call = (uint8_t)kind;
    row.algorithm = (uint8_t)algorithm;
    row.ranks = UINT16_MAX;
    row.bytes = UINT64_MAX;
    row.segment = segment;
    return row;
}

/* The algorithm of a call, and the elements its pipelines move in one step. */
static inline int mesh__choose(const mesh__op *op, int kind, size_t bytes, size_t *segment) {
    const mesh_tuning *t = &mesh__impl(op->comm)->tuning;
    int n = op->group->on.size, i;
    mesh_tuning_row chosen = mesh__built_in(kind, n, bytes);
    for (i = 0; i < t->nrows; i++) {
        const mesh_tuning_row *row = &t->row[i];
        if (row->call != kind || n > row->ranks || bytes > row->bytes ||
            !mesh_algorithm_serves((mesh_algorithm)row->algorithm, kind))
            continue;
        chosen.algorithm = row->algorithm;
        if (row->segment) chosen.segment = row->segment;
        break;
    }
    *segment = chosen.segment / op->elem_bytes ? chosen.segment / op->elem_bytes : 1;
    return chosen.algorithm;
}

/* An operation on a group of one. */
static inline void mesh__build_alone(mesh__engine *e, mesh__op *op, const mesh__layout *b) {
    if (op->call.kind == MESH_CALL_EXSCAN || mesh__is_meeting(op->call.kind)) return;
    mesh__add_copies(e, op, &b->recv, mesh__block_of(&b->recv, 0), &b->send, mesh__block_of(&b->send, 0));
}

static inline void mesh__build_native(mesh__engine *e, mesh__op *op, mesh__layout *b, int kind) {
    int by_counts = mesh__call_is(kind, MESH_BY_COUNTS), algorithm;
    mesh__range mine;
    size_t bytes = (kind == MESH_CALL_REDUCE_SCATTER || kind == MESH_CALL_SCATTER ? b->recv.total : b->send.total) *
                   op->elem_bytes;
    algorithm = mesh__choose(op, kind, by_counts ? SIZE_MAX : bytes, &b->segment);
    if (op->group->on.size == 1) {
        mesh__build_alone(e, op, b);
        return;
    }
    switch (kind) {
    case MESH_CALL_ALL_REDUCE:
        mesh__build_all_reduce(e, op, b, mesh__is_ordered(op) ? MESH_ALGORITHM_DOUBLING : algorithm);
        break;
    case MESH_CALL_REDUCE:
        if (algorithm == MESH_ALGORITHM_BINOMIAL || mesh__is_ordered(op))
            mesh__build_tree_reduce(e, op, b);
        else
            mesh__build_block_reduce(e, op, b);
        break;
    case MESH_CALL_BROADCAST:
        mesh__build_broadcast(e, op, b, algorithm);
        break;
    case MESH_CALL_ALL_GATHER:
    case MESH_CALL_ALL_GATHER_V:
        mesh__build_all_gather(e, op, b, algorithm);
        break;
    case MESH_CALL_REDUCE_SCATTER:
    case MESH_CALL_REDUCE_SCATTER_V:
        mine = mesh__all_of(&b->recv);
        if (mesh__is_ordered(op))
            mesh__build_reduce_ordered(e, op, b, &b->recv, mine);
        else if (algorithm == MESH_ALGORITHM_HALVING)
            mesh__build_halving_scatter(e, op, b);
        else
            mesh__build_reduce_blocks(e, op, b, &b->recv, mine, 0);
        break;
    case MESH_CALL_ALL_TO_ALL:
    case MESH_CALL_ALL_TO_ALL_V:
        mesh__build_all_to_all(e, op, b, algorithm);
        break;
    case MESH_CALL_GATHER:
    case MESH_CALL_GATHER_V:
    case MESH_CALL_SCATTER:
    case MESH_CALL_SCATTER_V:
        if (algorithm == MESH_ALGORITHM_BINOMIAL)
            mesh__build_tree_rooted(e, op, b, kind == MESH_CALL_GATHER);
        else
            mesh__build_direct_rooted(e, op, b, kind == MESH_CALL_GATHER || kind == MESH_CALL_GATHER_V);
        break;
    case MESH_CALL_SCAN:
    case MESH_CALL_EXSCAN:
        if (algorithm == MESH_ALGORITHM_DOUBLING)
            mesh__build_doubling_scan(e, op, b, kind == MESH_CALL_EXSCAN);
        else
            mesh__build_chain_scan(e, op, b, kind == MESH_CALL_EXSCAN);
        break;
    default:
        mesh__build_barrier(e, op);
        break;
    }
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

/* Elements from a part's base to the end of what a view has there. */
static inline size_t mesh__part_extent(const mesh__op *op, const mesh__view *v, const mesh__part *p) {
    size_t extent = mesh__v_extent(v->counts, v->offsets, v->counts ? op->group->on.size : 0, 1);
    return v->kind == MESH__COUNTS   ? extent
           : v->kind == MESH__BLOCKS ? p->count * (size_t)op->group->on.size
                                     : p->count;
}

/* Does this rank give data, or take a result, in this kind of call? */
static inline int mesh__gives(const mesh__op *op, int kind) {
    int rooted = kind == MESH_CALL_BROADCAST || kind == MESH_CALL_SCATTER || kind == MESH_CALL_SCATTER_V;
    return !rooted || op->group->index == op->call.root;
}
static inline int mesh__takes(const mesh__op *op, int kind) {
    int rooted = kind == MESH_CALL_REDUCE || kind == MESH_CALL_GATHER || kind == MESH_CALL_GATHER_V;
    if (kind == MESH_CALL_EXSCAN) return op->group->index > 0;
    return !rooted || op->group->index == op->call.root;
}

/* On a big-endian host: turned copies are sent, and what has arrived is turned at the end. */
static inline void mesh__build_turned(mesh__engine *e, mesh__op *op, mesh__layout *b, int kind) {
    mesh__part *turned = (mesh__part *)mesh_transport_alloc(e->t, (size_t)b->send.nparts * sizeof *turned);
    size_t total = 0;
    unsigned char *scratch = NULL;
    int i, gives = mesh__gives(op, kind);
    for (i = 0; turned && i < b->send.nparts; i++) {
        turned[i] = b->send.part[i];
        total += (mesh__part_extent(op, &b->send, &turned[i]) * op->elem_bytes + 63) & ~(size_t)63;
    }
    if (turned && gives) scratch = mesh__scratch(e, op, total);
    if (!turned || op->out_of_memory) op->out_of_memory = 1;
    for (i = 0; gives && !op->out_of_memory && i < b->send.nparts; i++) {
        size_t nbytes = mesh__part_extent(op, &b->send, &turned[i]) * op->elem_bytes;
        if (turned[i].base) mesh__add_swap(e, op, scratch, turned[i].base, nbytes);
        turned[i].base = scratch;
        scratch += (nbytes + 63) & ~(size_t)63;
    }
    if (!op->out_of_memory) {
        b->send.part = turned;
        mesh__build_native(e, op, b, kind);
        for (i = 0; mesh__takes(op, kind) && i < (b->recv.kind == MESH__CHUNKS ? 1 : op->group->on.size); i++) {
            mesh__range r = b->recv.kind == MESH__CHUNKS ? mesh__all_of(&b->recv) : mesh__block_of(&b->recv, i);
            while (r.count) {
                unsigned char *p;
                size_t n = mesh__run(op, &b->recv, &r, &p);
                mesh__add_swap(e, op, p, p, n * op->elem_bytes);
            }
        }
    }
    mesh_transport_free(e->t, turned);
}

static inline void mesh__build_with(mesh__engine *e, mesh__op *op, mesh__layout *b, int kind) {
    int talks = !mesh__is_meeting(kind) && op->group->on.size > 1;
    if (talks && mesh__swap_width(&op->call))
        mesh__build_turned(e, op, b, kind);
    else
        mesh__build_native(e, op, b, kind);
}

/* How a call's send and recv are laid out. */
static inline mesh__layout mesh__layout_of(const mesh__op *op, const mesh__part *send, const mesh__part *recv,
                                           int nparts) {
    const mesh_call *call = &op->call;
    int n = op->group->on.size, kind = mesh__single_kind(call->kind);
    mesh__layout b;
    b.root = call->root;
    b.segment = 1;
    b.send = mesh__view_of(send, nparts, MESH__CHUNKS, n);
    b.recv = mesh__view_of(recv, nparts, MESH__CHUNKS, n);
    if (kind == MESH_CALL_REDUCE_SCATTER || kind == MESH_CALL_ALL_TO_ALL || kind == MESH_CALL_SCATTER)
        b.send = mesh__view_of(send, nparts, MESH__BLOCKS, n);
    if (kind == MESH_CALL_ALL_GATHER || kind == MESH_CALL_ALL_TO_ALL || kind == MESH_CALL_GATHER)
        b.recv = mesh__view_of(recv, nparts, MESH__BLOCKS, n);
    if (kind == MESH_CALL_REDUCE_SCATTER_V || kind == MESH_CALL_ALL_TO_ALL_V || kind == MESH_CALL_SCATTER_V) {
        int all_to_all = kind == MESH_CALL_ALL_TO_ALL_V;
        b.send.kind = MESH__COUNTS;
        b.send.counts = all_to_all || kind == MESH_CALL_SCATTER_V ? call->send_counts : call->recv_counts;
        b.send.offsets = all_to_all || kind == MESH_CALL_SCATTER_V ? call->send_offsets : call->recv_offsets;
    }
    if (kind == MESH_CALL_ALL_GATHER_V || kind == MESH_CALL_ALL_TO_ALL_V || kind == MESH_CALL_GATHER_V) {
        b.recv.kind = MESH__COUNTS;
        b.recv.counts = call->recv_counts;
        b.recv.offsets = call->recv_offsets;
    }
    return b;
}

/* Where blocks without offsets begin: summed up once, not for each. */
static inline int mesh__offsets_make(mesh__engine *e, mesh__op *op, mesh__layout *b) {
    mesh__view *view[2];
    size_t n = (size_t)op->group->on.size, *offsets, i, k, at;
    view[0] = &b->send, view[1] = &b->recv;
    if (2 * n * sizeof *offsets > INT32_MAX / 2 ||
        !mesh__grow(e->t, &op->args, &op->args_cap, (int)(2 * n * sizeof *offsets), 1))
        return 0;
    offsets = (size_t *)op->args;
    for (k = 0; k < 2; k++, offsets += n) {
        if (view[k]->kind != MESH__COUNTS || !view[k]->counts || view[k]->offsets) continue;
        for (i = at = 0; i < n; at += view[k]->counts[i++]) offsets[i] = at;
        view[k]->offsets = offsets;
    }
    return 1;
}

static inline void mesh__build(mesh__engine *e, mesh__op *op) {
    const mesh_call *call = &op->call;
    mesh__part send, recv, *list = NULL;
    mesh__layout b;
    unsigned char *packed = NULL;
    size_t packed_bytes;
    int n;
    if (call->kind == MESH_CALL_BROADCAST_OBJECT) {
        mesh__build_object(e, op);
        return;
    }
    if (!call->nbuffers) {
        send = mesh__part_of(call->send, call->count);
        recv = mesh__part_of(call->recv, call->count);
        if (call->kind == MESH_CALL_ALL_GATHER_V) send.count = call->recv_counts[op->group->index];
        if (call->kind == MESH_CALL_REDUCE_SCATTER_V) recv.count = call->recv_counts[op->group->index];
        b = mesh__layout_of(op, &send, &recv, 1);
        if ((b.send.kind == MESH__COUNTS || b.recv.kind == MESH__COUNTS) && !mesh__offsets_make(e, op, &b))
            op->out_of_memory = 1;
        else
            mesh__build_with(e, op, &b, mesh__single_kind(call->kind));
        return;
    }
    list = (mesh__part *)mesh_transport_alloc(e->t, 2 * (size_t)call->nbuffers * sizeof *list);
    packed_bytes = mesh__many_packed(op);
    if (packed_bytes) packed = mesh__scratch(e, op, packed_bytes);
    if (!list || op->out_of_memory) {
        op->out_of_memory = 1;
    } else {
        n = mesh__many_parts(e, op, list, list + call->nbuffers, packed, 0);
        b = mesh__layout_of(op, list, list + call->nbuffers, n);
        mesh__build_with(e, op, &b, mesh__single_kind(call->kind));
        mesh__many_parts(e, op, list, list + call->nbuffers, packed, 1);
    }
    mesh_transport_free(e->t, list);
}

/* ---- // >>start: checks, then a schedule ---- */

static inline int mesh__overlap(const void *a, size_t an, const void *b, size_t bn) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return an && bn && x < y + bn && y < x + an;
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

/* One buffer of a call: NULL, overflow, overlap. `which`: for messages about a list, "" otherwise. */
static inline mesh_status mesh__buffer_check(mesh_comm *c, mesh__group *g, const mesh_call *call, const void *send,
                                             const void *recv, size_t count, const char *which) {
    const char *axes = g->axes;
    int kind = call->kind, single = mesh__single_kind(kind), n = g->on.size, at_root = g->index == call->root;
    int gathers = single == MESH_CALL_ALL_GATHER || single == MESH_CALL_ALL_GATHER_V || single == MESH_CALL_GATHER ||
                  single == MESH_CALL_GATHER_V;
    int scatters = single == MESH_CALL_REDUCE_SCATTER || single == MESH_CALL_REDUCE_SCATTER_V ||
                   single == MESH_CALL_SCATTER || single == MESH_CALL_SCATTER_V;
    size_t elem = call->elem_bytes, send_count = count, recv_count = count, own = count * (size_t)g->index;
    const void *shared; /* where in-place data has to be */
    int i;
    mesh__view counts;
    memset(&counts, 0, sizeof counts);
    counts.counts = kind == MESH_CALL_SCATTER_V ? call->send_counts : call->recv_counts;
    counts.offsets = kind == MESH_CALL_SCATTER_V ? call->send_offsets : call->recv_offsets;
    switch (kind) {
    case MESH_CALL_ALL_GATHER_V:
    case MESH_CALL_REDUCE_SCATTER_V:
        if (!call->recv_counts) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "counts is NULL");
        send_count = recv_count = mesh__v_extent(call->recv_counts, call->recv_offsets, n, elem);
        *(gathers ? &send_count : &recv_count) = call->recv_counts[g->index];
        break;
    case MESH_CALL_GATHER_V:
    case MESH_CALL_SCATTER_V:
        if (count > SIZE_MAX / 2 / elem) send_count = SIZE_MAX;
        if (!at_root) break;
        if (!counts.counts) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "counts is NULL at the root");
        if (counts.counts[g->index] != count)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "count is %u, but counts[%d], the root's own, is %u",
                                (uint64_t)count, g->index, (uint64_t)counts.counts[g->index]);
        *(gathers ? &recv_count : &send_count) = mesh__v_extent(counts.counts, counts.offsets, n, elem);
        break;
    case MESH_CALL_ALL_TO_ALL_V:
        if (!call->send_counts || !call->recv_counts)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%s is NULL",
                                call->send_counts ? "recv_counts" : "send_counts");
        send_count = mesh__v_extent(call->send_counts, call->send_offsets, n, elem);
        recv_count = mesh__v_extent(call->recv_counts, call->recv_offsets, n, elem);
        break;
    default:
        if (count > SIZE_MAX / 2 / elem / (size_t)n)
            send_count = SIZE_MAX;
        else if (gathers || single == MESH_CALL_ALL_TO_ALL)
            recv_count *= (size_t)n;
        if (send_count != SIZE_MAX && (scatters || single == MESH_CALL_ALL_TO_ALL)) send_count *= (size_t)n;
        break;
    }
    if (send_count == SIZE_MAX || recv_count == SIZE_MAX)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%s%u elements of %s per rank overflow", which,
                            (uint64_t)count, mesh_dtype_name((mesh_dtype)call->dtype));
    if (((kind == MESH_CALL_ALL_GATHER_V || kind == MESH_CALL_ALL_TO_ALL_V) ||
         (kind == MESH_CALL_GATHER_V && at_root)) &&
        mesh__v_overlap(call->recv_counts, call->recv_offsets, n))
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
    if (!mesh__overlap(send, send_count * elem, recv, recv_count * elem)) return MESH_OK;
    if (mesh__call_is(kind, MESH_BY_COUNTS) && counts.counts) {
        own = counts.offsets ? counts.offsets[g->index] : 0;
        for (i = 0; !counts.offsets && i < g->index; i++) own += counts.counts[i];
    }
    if (!gathers && !scatters) own = 0;
    shared = (const char *)(gathers ? recv : send) + own * elem;
    if (kind == MESH_CALL_ALL_TO_ALL_V || (gathers ? send : recv) != shared)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "%ssend and recv overlap, but not as in place (see CONVENTIONS)", which);
    return MESH_OK;
}

/* Does what buffer i of a list receives overlap what buffer k sends or receives? */
static inline int mesh__buffers_overlap(const mesh__group *g, const mesh_call *call, int i, int k) {
    const mesh_buffer *a = &call->buffers[i], *b = &call->buffers[k];
    size_t elem = call->elem_bytes, in = (size_t)mesh__many_blocks(call->kind, g->on.size, 1) * elem,
           out = (size_t)mesh__many_blocks(call->kind, g->on.size, 0) * elem;
    int sends = call->kind != MESH_CALL_BROADCAST_MANY || g->index == call->root;
    return mesh__overlap(a->recv, a->count * in, b->recv, b->count * in) ||
           (sends && mesh__overlap(a->recv, a->count * in, b->send, b->count * out));
}

/* fp8 is reduced by transports that can, in their own collectives. */
static inline int mesh__reduces_fp8(const mesh_transport *t, const mesh_call *call) {
    return t->caps & MESH_CAP_FP8 && (call->dtype == MESH_F8E4M3 || call->dtype == MESH_F8E5M2) &&
           call->op <= MESH_PROD && call->op != MESH_AVG && call->kind != MESH_CALL_SCAN &&
           call->kind != MESH_CALL_EXSCAN;
}

/* Check a collective's arguments; the comm fails if they are wrong. */
static inline mesh_status mesh__call_check(mesh_comm *c, mesh__group *g, const mesh_call *call) {
    const char *axes = g->axes;
    int kind = call->kind, i, k;
    if (mesh__is_meeting(kind)) return MESH_OK;
    if (!call->elem_bytes && call->user_op && mesh_dtype_bytes((mesh_dtype)call->dtype))
        return mesh__refuse(
            c, MESH_ERR_ARGUMENT, kind, axes,
            "user op %d was added with elem_bytes; call it with MESH_BYTES, not %s, or add it with elem_bytes 0",
            call->op - MESH__USER_OP, mesh_dtype_name((mesh_dtype)call->dtype));
    if (!call->elem_bytes)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "dtype %d is none; see MESH_DTYPES", call->dtype);
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
    if (mesh__call_is(kind, MESH_ROOTED) && (call->root < 0 || call->root >= g->on.size))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "root %d is outside the group of %d; it is an index in the group", call->root, g->on.size);
    if (kind == MESH_CALL_BROADCAST_OBJECT) {
        const mesh_object *o = (const mesh_object *)call->recv;
        if (o && (o->data || !o->nbytes || g->index != call->root)) return MESH_OK;
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            o ? "the object's data is NULL with %u bytes" : "the object is NULL",
                            (uint64_t)(o ? o->nbytes : 0));
    }
    if (!call->nbuffers) return mesh__buffer_check(c, g, call, call->send, call->recv, call->count, "");
    for (i = 0; i < call->nbuffers; i++) {
        char which[32];
        mesh__text t = mesh__text_on(which, sizeof which);
        mesh_status status;
        mesh__put(&t, "buffer %d: ", i);
        status =
            mesh__buffer_check(c, g, call, call->buffers[i].send, call->buffers[i].recv, call->buffers[i].count, which);
        if (status != MESH_OK) return status;
        for (k = 0; k < i && call->nbuffers <= 64; k++)
            if (mesh__buffers_overlap(g, call, i, k) || mesh__buffers_overlap(g, call, k, i))
                return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                                    "what buffer %d or %d receives overlaps the other", k, i);
    }
    return MESH_OK;
}

/* Bytes of an element: of the dtype, of a pair for minloc and maxloc, or what the user's op says. 0: none. */
static inline size_t mesh__call_elem(const mesh_comm *c, mesh_call *call) {
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
    return mesh__is_loc(call->op) ? 2 * elem : elem;
}

/* What a call moves at least, by a rank: for collectives of the transport's own, which do not say. */
static inline void mesh__count_native(mesh__op *op) {
    const mesh_call *call = &op->call;
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
    op->native_sent = sent * op->elem_bytes;
    op->native_received = received * op->elem_bytes;
    op->group->sent += op->sent = op->native_sent;
    op->group->received += op->received = op->native_received;
}

/* A native call's arrays become the operation's own: it may be kept and started again. Returns 0 without memory. */
static inline int mesh__own_args(mesh__engine *e, mesh__op *op) {
    mesh_call *call = &op->call;
    const size_t **counts[4];
    size_t n = (size_t)op->group->on.size * sizeof(size_t), total = (size_t)call->nbuffers * sizeof *call->buffers, i;
    unsigned char *at;
    counts[0] = &call->send_counts, counts[1] = &call->send_offsets;
    counts[2] = &call->recv_counts, counts[3] = &call->recv_offsets;
    for (i = 0; i < 4; i++) total += *counts[i] ? n : 0;
    if (!total) return 1;
    if (total > INT32_MAX / 2 || !mesh__grow(e->t, &op->args, &op->args_cap, (int)total, 1)) return 0;
    at = (unsigned char *)op->args;
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

static inline mesh_status mesh__call_start_inside(mesh_comm *c, const char *axes, mesh_call *call, mesh_request *r) {
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
    op->call = *call;
    for (op->shape = 0, i = 0; i < call->nbuffers; i++) op->shape = mesh__mix(op->shape, call->buffers[i].count);
    mesh__op_identify(e, op, c, g);
    if (MESH__HAS(e->t->ops, collective)) {
        mesh__step *s = mesh__step_add(e, op, MESH__POST);
        status = s ? mesh__op_fence(e, op) : MESH_ERR_MEMORY;
        if (status == MESH_OK) status = e->t->ops->collective(e->t, g->handle, &op->call, &s->ticket);
        if (status == MESH_OK && !mesh__own_args(e, op)) op->out_of_memory = 1;
        if (status == MESH_OK) {
            s->open = 1;
            op->at = 1;
            op->native = 1;
            if (!op->out_of_memory) mesh__count_native(op);
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
    mesh__build(e, op);
    op->call.buffers = NULL; /* the caller's; the schedule has all it needs */
    return mesh__op_launch(e, op, r);
}
static inline mesh_status mesh__call_start(mesh_comm *c, const char *axes, mesh_call *call, mesh_request *r) {
    MESH__ALONE_START(c, mesh__call_name(call->kind), r, mesh__call_start_inside(c, axes, call, r));
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

static inline mesh_status mesh__group_open_inside(mesh_comm *c, const char *axes) {
    mesh__group *whole = NULL;
    mesh_call call = mesh__call(MESH_CALL_GROUP_OPEN, NULL, NULL, 0, MESH_BYTES, 0, 0);
    mesh_request r;
    mesh_error why = MESH_ZERO;
    mesh_status status = mesh__call_begin(c, NULL, MESH_CALL_GROUP_OPEN, &r, &whole);
    if (status != MESH_OK) return status;
    if (!axes)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, MESH_CALL_GROUP_OPEN, axes,
                            "axes is NULL; the whole mesh is always open");
    if (mesh__group_find(mesh__impl(c), axes)) return MESH_OK;
    call.count = (size_t)(mesh__hash_text(2, axes) & 0x7fffffff);
    if ((status = mesh__group_add(c, axes, strlen(axes), &why)) != MESH_OK)
        return mesh__comm_broken(c, status, why.rank >= 0 ? why.rank : c->transport->rank,
                                 "mesh_group_open(\"%s\"): %s", axes, why.text);
    status = mesh__call_start(c, NULL, &call, &r);
    return status == MESH_OK ? mesh_wait(r) : status;
}
MESH_API mesh_status mesh_group_open(mesh_comm *c, const char *axes) {
    MESH__ALONE(c, MESH__CALLER, mesh__group_open_inside(c, axes));
}

/* ---- // >>registration ---- */

static inline mesh_status mesh__register_inside(mesh_comm *c, void *p, size_t nbytes, void **handle) {
    mesh__group *whole = NULL;
    mesh_call call = mesh__call(MESH_CALL_REGISTER, NULL, NULL, nbytes, MESH_BYTES, 0, 0);
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
    status = mesh__call_start(c, NULL, &call, &r);
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
    if (c->failed) return (mesh_status)c->error.status;
    return mesh__comm_broken(c, status, why.rank, "mesh_register: %s", why.text);
}
MESH_API mesh_status mesh_register(mesh_comm *c, void *p, size_t nbytes, void **handle) {
    MESH__ALONE(c, MESH__CALLER, mesh__register_inside(c, p, nbytes, handle));
}

static inline mesh_status mesh__unregister_inside(mesh_comm *c, void *handle) {
    mesh__registration *r;
    if (!c || !c->impl) return MESH_ERR_STATE;
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

/* ---- // >>collectives ----------------------------------------------------------------------------------------------------------------------- */

static inline void mesh__blocking(mesh_comm *c, int blocking) {
    if (c && c->impl) mesh__impl(c)->blocking = blocking;
}

/* Start, and wait for it by `end`, as one call for who else may come. */
#define MESH__BLOCKING_BY(start, end)                                                      \
    mesh_request r;                                                                        \
    mesh_transport *t = c && c->impl ? c->transport : NULL;                                \
    mesh_status status = mesh__enter(t, t && !c->failed ? &c->error : NULL, MESH__CALLER); \
    if (status != MESH_OK) return status;                                                  \
    mesh__blocking(c, 1);                                                                  \
    status = start;                                                                        \
    mesh__blocking(c, 0);                                                                  \
    if (status == MESH_OK) status = end(r);                                                \
    mesh__leave(t);                                                                        \
    return status
#define MESH__BLOCKING(start) MESH__BLOCKING_BY(start, mesh_wait)

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

MESH_API mesh_status mesh_gather_start(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                       mesh_dtype d, int root, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_GATHER, send, recv, count, d, 0, root);
    return mesh__call_start(c, axes, &call, r);
}
MESH_API mesh_status mesh_gather(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                 mesh_dtype d, int root) {
    MESH__BLOCKING(mesh_gather_start(c, axes, send, recv, count, d, root, &r));
}

MESH_API mesh_status mesh_gather_v_start(mesh_comm *c, const char *axes, const void *send, size_t count, void *recv,
                                         const size_t *counts, const size_t *offsets, mesh_dtype d, int root,
                                         mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_GATHER_V, send, recv, count, d, 0, root);
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
    mesh_call call = mesh__call(MESH_CALL_SCATTER, send, recv, count, d, 0, root);
    return mesh__call_start(c, axes, &call, r);
}
MESH_API mesh_status mesh_scatter(mesh_comm *c, const char *axes, const void *send, void *recv, size_t count,
                                  mesh_dtype d, int root) {
    MESH__BLOCKING(mesh_scatter_start(c, axes, send, recv, count, d, root, &r));
}

MESH_API mesh_status mesh_scatter_v_start(mesh_comm *c, const char *axes, const void *send, const size_t *counts,
                                          const size_t *offsets, void *recv, size_t count, mesh_dtype d, int root,
                                          mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_SCATTER_V, send, recv, count, d, 0, root);
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
    mesh_call call = mesh__call(MESH_CALL_BROADCAST_OBJECT, NULL, o, 0, MESH_BYTES, 0, root);
    return mesh__call_start(c, axes, &call, r);
}
MESH_API mesh_status mesh_broadcast_object(mesh_comm *c, const char *axes, mesh_object *o, int root) {
    MESH__BLOCKING(mesh_broadcast_object_start(c, axes, o, root, &r));
}
MESH_API void mesh_object_free(mesh_comm *c, mesh_object *o) {
    if (o->room) mesh_transport_free(c->transport, o->data);
    o->data = NULL;
    o->nbytes = o->room = 0;
}

MESH_API mesh_status mesh_barrier_start(mesh_comm *c, const char *axes, mesh_request *r) {
    mesh_call call = mesh__call(MESH_CALL_BARRIER, NULL, NULL, 0, MESH_BYTES, 0, 0);
    return mesh__call_start(c, axes, &call, r);
}
MESH_API mesh_status mesh_barrier(mesh_comm *c, const char *axes) {
    MESH__BLOCKING_BY(mesh_barrier_start(c, axes, &r), mesh_wait_host);
}

/* ---- // >>many buffers ---- */

static inline mesh_status mesh__many_start_inside(mesh_comm *c, const char *axes, int kind, const mesh_buffer *list,
                                                  int n, mesh_dtype d, int op, int root, mesh_request *r) {
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
static inline mesh_status mesh__many_start(mesh_comm *c, const char *axes, int kind, const mesh_buffer *list, int n,
                                           mesh_dtype d, int op, int root, mesh_request *r) {
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
    return mesh__many_start(c, axes, MESH_CALL_BROADCAST_MANY, list, n, d, 0, root, r);
}
MESH_API mesh_status mesh_broadcast_many(mesh_comm *c, const char *axes, const mesh_buffer *list, int n, mesh_dtype d,
                                         int root) {
    MESH__BLOCKING(mesh_broadcast_many_start(c, axes, list, n, d, root, &r));
}

MESH_API mesh_status mesh_all_gather_many_start(mesh_comm *c, const char *axes, const mesh_buffer *list, int n,
                                                mesh_dtype d, mesh_request *r) {
    return mesh__many_start(c, axes, MESH_CALL_ALL_GATHER_MANY, list, n, d, 0, 0, r);
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

/* ---- // >>point to point ---------------------------------------------------------------------------------------------------------------------- */

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

/* The next xfer in a direction to or from myself, behind `i`. */
static inline int mesh__next_self(const mesh_xfer *xfers, int count, int index, int direction, int i) {
    for (i++; i < count && !(xfers[i].rank == index && xfers[i].direction == direction);) i++;
    return i;
}

static inline mesh_status mesh__self_check(mesh_comm *c, mesh__group *g, int kind, const mesh_xfer *xfers, int count) {
    int s = -1, r = -1;
    for (;;) {
        s = mesh__next_self(xfers, count, g->index, MESH_SEND, s);
        r = mesh__next_self(xfers, count, g->index, MESH_RECV, r);
        if (s >= count && r >= count) return MESH_OK;
        if (s >= count || r >= count || xfers[s].nbytes != xfers[r].nbytes)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, g->axes,
                                "a %s oneself (index %d) needs its other half, of the same length, in the same call",
                                s < count ? "send to" : "receive from", g->index);
    }
}

/* A copy of the caller's xfer, and of its block. */
static inline void mesh__add_p2p(mesh__engine *e, mesh__op *op, const mesh_xfer *x, int *nblocks) {
    mesh__add_xfer(e, op, x->direction, x->rank, x->base, (size_t)x->nbytes);
    if (op->out_of_memory || !x->block) return;
    op->block[*nblocks] = *x->block;
    op->xfer[op->nxfers - 1].block = &op->block[(*nblocks)++];
}

/* On a big-endian host: what is sent is packed and turned first, what has come is turned at the end. */
static inline void mesh__build_p2p_turned(mesh__engine *e, mesh__op *op, const mesh_xfer *xfers, int count,
                                          int *nblocks) {
    int i, index = op->group->index, first;
    size_t total = 0;
    unsigned char *scratch, *at;
    mesh__step *step;
    for (i = 0; i < count; i++)
        if (xfers[i].rank != index && xfers[i].direction == MESH_SEND)
            total += ((size_t)xfers[i].nbytes + 63) & ~(size_t)63;
    at = scratch = mesh__scratch(e, op, total);
    for (i = 0; i < count && !op->out_of_memory; i++) {
        mesh_xfer packed = xfers[i];
        if (packed.rank == index || packed.direction != MESH_SEND) continue;
        if (!(step = mesh__step_add(e, op, MESH__MOVE))) return;
        packed.rank = index; /* a move from here to here */
        mesh__add_p2p(e, op, &packed, nblocks);
        packed.base = at;
        packed.block = NULL;
        mesh__add_p2p(e, op, &packed, nblocks);
        step = &op->step[op->nsteps - 1];
        step->count = step->first + 1;
        mesh__add_swap(e, op, at, at, (size_t)packed.nbytes);
        at += ((size_t)packed.nbytes + 63) & ~(size_t)63;
    }
    mesh__add_post(e, op);
    for (first = op->nxfers, at = scratch, i = 0; i < count && !op->out_of_memory; i++) {
        mesh_xfer x = xfers[i];
        if (x.rank == index) continue;
        if (x.direction == MESH_SEND) {
            x.base = at;
            x.block = NULL;
            at += ((size_t)x.nbytes + 63) & ~(size_t)63;
        }
        mesh__add_p2p(e, op, &x, nblocks);
    }
    mesh__add_wait(e, op);
    for (; first < op->nxfers && !op->out_of_memory; first++)
        if (op->xfer[first].direction == MESH_RECV && (step = mesh__step_add(e, op, MESH__SWAP)) != NULL)
            step->first = first;
}

/* Sends to myself, matched in order with receives from myself, as moves; then everything else as one post. */
static inline void mesh__build_p2p(mesh__engine *e, mesh__op *op, const mesh_xfer *xfers, int count) {
    int i, s = -1, r = -1, nblocks = 0, index = op->group->index;
    for (i = 0; i < count; i++) nblocks += xfers[i].block != NULL;
    if (!mesh__grow(e->t, (void **)&op->block, &op->block_cap, nblocks, sizeof *op->block)) op->out_of_memory = 1;
    for (nblocks = 0; !op->out_of_memory;) {
        mesh__step *step;
        s = mesh__next_self(xfers, count, index, MESH_SEND, s);
        r = mesh__next_self(xfers, count, index, MESH_RECV, r);
        if (s >= count) break;
        if (!(step = mesh__step_add(e, op, MESH__MOVE))) return;
        mesh__add_p2p(e, op, &xfers[s], &nblocks);
        mesh__add_p2p(e, op, &xfers[r], &nblocks);
        step->count = step->first + 1;
    }
    if (mesh__swap_width(&op->call)) {
        mesh__build_p2p_turned(e, op, xfers, count, &nblocks);
        return;
    }
    mesh__add_post(e, op);
    for (i = 0; i < count && !op->out_of_memory; i++)
        if (xfers[i].rank != index) mesh__add_p2p(e, op, &xfers[i], &nblocks);
}

static inline mesh_status mesh__p2p_start_inside(mesh_comm *c, const char *axes, int kind, const mesh_xfer *xfers,
                                                 int count, size_t elements, mesh_dtype d, mesh_request *r) {
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
    if ((status = mesh__self_check(c, g, kind, xfers, count)) != MESH_OK) return status;
    if (!(op = mesh__op_take(e))) return mesh__refuse(c, MESH_ERR_MEMORY, kind, axes, "no memory for the operation");
    op->call = call;
    mesh__op_identify(e, op, c, g);
    mesh__build_p2p(e, op, xfers, count);
    return mesh__op_launch(e, op, r);
}
static inline mesh_status mesh__p2p_start(mesh_comm *c, const char *axes, int kind, const mesh_xfer *xfers, int count,
                                          size_t elements, mesh_dtype d, mesh_request *r) {
    MESH__ALONE_START(c, mesh__call_name(kind), r, mesh__p2p_start_inside(c, axes, kind, xfers, count, elements, d, r));
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

static inline mesh_status mesh__shift_start_inside(mesh_comm *c, const char *axes, int displacement, int periodic,
                                                   const void *send, void *recv, size_t count, mesh_dtype d,
                                                   mesh_request *r) {
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
MESH_API mesh_status mesh_shift_start(mesh_comm *c, const char *axes, int displacement, int periodic, const void *send,
                                      void *recv, size_t count, mesh_dtype d, mesh_request *r) {
    MESH__ALONE_START(c, MESH__CALLER, r,
                      mesh__shift_start_inside(c, axes, displacement, periodic, send, recv, count, d, r));
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

/* ---- // >>halos ---- */

/* A box of the local array as a strided xfer. */
static inline mesh_xfer mesh__box(const mesh_halo *h, void *array, size_t elem, const int64_t *from,
                                  const int64_t *extent, mesh_block *b) {
    mesh_xfer x;
    int64_t stride = (int64_t)elem, at = 0, strides[MESH_MAX_DIMS];
    int k, whole = h->ndim - 1; /* dims behind this one are covered whole: one run */
    for (k = h->ndim - 1; k >= 0; k--) {
        strides[k] = stride;
        at += from[k] * stride;
        stride *= h->shape[k];
    }
    while (whole > 0 && extent[whole] == h->shape[whole]) whole--;
    memset(b, 0, sizeof *b);
    b->run = (uint64_t)(extent[whole] * strides[whole]);
    b->ndim = whole;
    for (k = 0; k < whole; k++) {
        b->dim[k].count = extent[k];
        b->dim[k].stride = strides[k];
    }
    x.base = (char *)array + at;
    x.nbytes = b->run;
    for (k = 0; k < whole; k++) x.nbytes *= (uint64_t)extent[k];
    x.block = b;
    x.direction = MESH_SEND;
    x.rank = 0;
    return x;
}

/* Which axis of the mesh divides each dim (-1: none), after a look at everything else in the description. */
static inline mesh_status mesh__halo_check(mesh_comm *c, const mesh_halo *h, const void *array, size_t elem,
                                           int *axis) {
    int64_t total = (int64_t)elem;
    int k, j, kind = MESH_CALL_HALO;
    if (!h) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "the description is NULL");
    if (!elem) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "the dtype is none; see MESH_DTYPES");
    if (h->ndim < 1 || h->ndim > MESH_MAX_DIMS)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "%d dims; 1 to %d are possible", h->ndim,
                            (int)MESH_MAX_DIMS);
    for (k = 0; k < h->ndim; k++) {
        int64_t shape = h->shape[k], low = h->low[k], high = h->high[k], inner;
        int fits = shape >= 0 && low >= 0 && high >= 0 && low <= shape && high <= shape - low, size;
        axis[k] = h->axis[k] ? mesh_axis_find(&c->on, h->axis[k]) : -1;
        if (h->axis[k] && axis[k] < 0)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "dim %d: the mesh \"%s\" has no axis \"%s\"", k,
                                mesh__show(&c->on).text, h->axis[k]);
        for (j = 0; j < k; j++)
            if (axis[k] >= 0 && axis[j] == axis[k])
                return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "axis \"%s\" divides dims %d and %d; one at most",
                                    h->axis[k], j, k);
        if (!fits)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL,
                                "dim %d: shape %l with a halo of %l and %l; shape includes the halo", k, h->shape[k],
                                h->low[k], h->high[k]);
        inner = shape - low - high;
        size = axis[k] < 0 ? 1 : c->on.axis[axis[k]].size;
        if ((size > 1 || h->periodic[k]) && (inner < low || inner < high))
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL,
                                "dim %d: an interior of %l cannot fill a neighbour's halo of %l; use fewer ranks there",
                                k, inner, h->low[k] > h->high[k] ? h->low[k] : h->high[k]);
        if (h->shape[k] && total > INT64_MAX / h->shape[k])
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "dim %d: the array's bytes overflow", k);
        total *= h->shape[k];
    }
    if (!array && total) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "the array is NULL");
    return MESH_OK;
}

/* Index in the mesh of the neighbour in a direction (-1, 0, 1 per dim); -1: none. */
static inline int mesh__halo_neighbor(const mesh_comm *c, const mesh_halo *h, const int *axis, const int *direction,
                                      int sign) {
    int at[MESH_MAX_AXES], k;
    if (!mesh_coords_of(&c->on, c->transport->rank, at)) return -1;
    for (k = 0; k < h->ndim; k++) {
        int size = axis[k] < 0 ? 1 : c->on.axis[axis[k]].size,
            to = (axis[k] < 0 ? 0 : at[axis[k]]) + sign * direction[k];
        if ((to < 0 || to >= size) && !h->periodic[k]) return -1;
        if (axis[k] >= 0) at[axis[k]] = (to + size) % size;
    }
    return mesh_index_of(&c->on, mesh_rank_at_coords(&c->on, at));
}

/* What goes out in a direction (my interior cells at that side), or comes in along it (the halo at the other). Returns 0 if nothing does. */
static inline int mesh__halo_box(const mesh_halo *h, const int *direction, int receive, int64_t *from,
                                 int64_t *extent) {
    int k;
    for (k = 0; k < h->ndim; k++) {
        int64_t low = h->low[k], high = h->high[k], shape = h->shape[k];
        extent[k] = direction[k] > 0 ? low : direction[k] < 0 ? high : shape - low - high;
        if (direction[k] == 0)
            from[k] = low;
        else if (direction[k] > 0)
            from[k] = receive ? 0 : shape - high - low;
        else
            from[k] = receive ? shape - high : low;
        if (extent[k] == 0) return 0;
    }
    return 1;
}

static inline mesh_status mesh__halo_exchange_start_inside(mesh_comm *c, const mesh_halo *h, void *array, mesh_dtype d,
                                                           mesh_request *r) {
    mesh__group *g = NULL;
    mesh_status status = mesh__call_begin(c, NULL, MESH_CALL_HALO, r, &g);
    size_t elem = mesh_dtype_bytes(d);
    int axis[MESH_MAX_DIMS], k, n = 0, directions = 1, code, receive;
    int64_t from[MESH_MAX_DIMS], extent[MESH_MAX_DIMS];
    mesh_xfer *x;
    mesh_block *blocks;
    uint64_t total = 0;
    if (status != MESH_OK) return status;
    if ((status = mesh__halo_check(c, h, array, elem, axis)) != MESH_OK) return status;
    for (k = 0; k < h->ndim; k++) directions *= 3;
    x = (mesh_xfer *)mesh_transport_alloc(c->transport, 2 * (size_t)directions * (sizeof *x + sizeof *blocks));
    if (!x) return mesh__refuse(c, MESH_ERR_MEMORY, MESH_CALL_HALO, NULL, "no memory for %d directions", directions);
    blocks = (mesh_block *)(void *)(x + 2 * directions);
    for (code = 0; code < directions;
         code++) { /* the same order on every rank: messages to one neighbour match in order */
        int direction[MESH_MAX_DIMS], moved = 0, rest = code;
        for (k = h->ndim - 1; k >= 0; k--, rest /= 3) {
            direction[k] = rest % 3 - 1;
            moved += direction[k] != 0;
        }
        if (moved == 0 || (moved > 1 && !h->corners)) continue;
        for (receive = 0; receive < 2; receive++) {
            int peer = mesh__halo_neighbor(c, h, axis, direction, receive ? -1 : 1);
            if (peer < 0 || !mesh__halo_box(h, direction, receive, from, extent)) continue;
            x[n] = mesh__box(h, array, elem, from, extent, &blocks[n]);
            x[n].direction = receive ? MESH_RECV : MESH_SEND;
            x[n].rank = peer;
            total += x[n++].nbytes;
        }
    }
    status = mesh__p2p_start(c, NULL, MESH_CALL_HALO, x, n, (size_t)(total / elem), d, r);
    mesh_transport_free(c->transport, x);
    return status;
}
MESH_API mesh_status mesh_halo_exchange_start(mesh_comm *c, const mesh_halo *h, void *array, mesh_dtype d,
                                              mesh_request *r) {
    MESH__ALONE_START(c, MESH__CALLER, r, mesh__halo_exchange_start_inside(c, h, array, d, r));
}
MESH_API mesh_status mesh_halo_exchange(mesh_comm *c, const mesh_halo *h, void *array, mesh_dtype d) {
    MESH__BLOCKING(mesh_halo_exchange_start(c, h, array, d, &r));
}

/* ---- // >>algorithms: the tuning table as text ---- */

MESH_API int mesh_algorithm_serves(mesh_algorithm algorithm, int call) {
    switch (mesh__single_kind(call)) {
    case MESH_CALL_ALL_REDUCE:
        return algorithm == MESH_ALGORITHM_DOUBLING || algorithm == MESH_ALGORITHM_HALVING ||
               algorithm == MESH_ALGORITHM_RING || algorithm == MESH_ALGORITHM_DIRECT;
    case MESH_CALL_REDUCE:
    case MESH_CALL_GATHER:
    case MESH_CALL_SCATTER:
        return algorithm == MESH_ALGORITHM_BINOMIAL || algorithm == MESH_ALGORITHM_DIRECT;
    case MESH_CALL_BROADCAST:
        return algorithm == MESH_ALGORITHM_BINOMIAL || algorithm == MESH_ALGORITHM_SCATTER ||
               algorithm == MESH_ALGORITHM_CHAIN;
    case MESH_CALL_ALL_GATHER:
        return algorithm == MESH_ALGORITHM_BRUCK || algorithm == MESH_ALGORITHM_RING ||
               algorithm == MESH_ALGORITHM_DIRECT || algorithm == MESH_ALGORITHM_DOUBLING;
    case MESH_CALL_REDUCE_SCATTER:
        return algorithm == MESH_ALGORITHM_HALVING || algorithm == MESH_ALGORITHM_DIRECT;
    case MESH_CALL_ALL_TO_ALL:
        return algorithm == MESH_ALGORITHM_BRUCK || algorithm == MESH_ALGORITHM_DIRECT;
    case MESH_CALL_SCAN:
    case MESH_CALL_EXSCAN:
        return algorithm == MESH_ALGORITHM_DOUBLING || algorithm == MESH_ALGORITHM_CHAIN;
    default:
        return 0;
    }
}

MESH_API size_t mesh_tuning_format(const mesh_tuning *t, char *buf, size_t cap) {
    mesh__text out = mesh__text_on(buf, cap);
    int i;
    for (i = 0; i < t->nrows; i++) {
        const mesh_tuning_row *row = &t->row[i];
        mesh__put(&out, "%s ranks<=", mesh__call_name(row->call));
        if (row->ranks == UINT16_MAX)
            mesh__put(&out, "*");
        else
            mesh__put(&out, "%d", row->ranks);
        mesh__put(&out, " bytes<=");
        if (row->bytes == UINT64_MAX)
            mesh__put(&out, "*");
        else
            mesh__put(&out, "%u", row->bytes);
        mesh__put(&out, " %s",
                  row->algorithm < MESH_ALGORITHM_COUNT ? mesh__algorithm_names[row->algorithm] : "unknown");
        if (row->segment) mesh__put(&out, " segment=%u", (uint64_t)row->segment);
        mesh__put(&out, "\n");
    }
    return out.len;
}

/* The next word of a line; behind it. One of cap characters or more is no word that anything begins with. */
static inline const char *mesh__word(const char *p, char *word, size_t cap) {
    size_t n = 0;
    while (*p == ' ' || *p == '\t' || *p == '\r') p++;
    for (; *p && *p != ' ' && *p != '\t' && *p != '\n' && *p != '\r' && *p != '#'; p++)
        if (n + 1 < cap)
            word[n++] = *p;
        else
            word[0] = '?';
    word[n] = 0;
    return p;
}

/* "name<=17", "name<=*", "name=17". Returns 0 if it is not that, or beyond `most`. */
static inline int mesh__limit(const char *word, const char *name, uint64_t most, uint64_t *value) {
    uint64_t v = 0;
    while (*name && *word == *name) word++, name++;
    if (*name || !*word) return 0;
    if (word[0] == '*' && !word[1]) {
        *value = UINT64_MAX;
        return 1;
    }
    for (; *word >= '0' && *word <= '9'; word++) {
        if (v > (most - (uint64_t)(*word - '0')) / 10) return 0;
        v = v * 10 + (uint64_t)(*word - '0');
    }
    *value = v;
    return !*word;
}

MESH_API mesh_status mesh_tuning_parse(mesh_tuning *t, const char *text, mesh_error *err) {
    const char *p = text ? text : "";
    int line = 1;
    memset(t, 0, sizeof *t);
    for (; *p; line++) {
        char word[5][32];
        mesh_tuning_row *row = &t->row[t->nrows];
        uint64_t ranks, bytes, segment = 0;
        int i, call = 0, algorithm = MESH_ALGORITHM_COUNT;
        for (i = 0; i < 5; i++) p = mesh__word(p, word[i], sizeof word[i]);
        while (*p == ' ' || *p == '\t' || *p == '\r') p++;
        if (*p && *p != '\n' && *p != '#')
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_tuning_parse: line %d has more than five words", line);
        while (*p && *p != '\n') p++;
        p += *p == '\n';
        if (!word[0][0]) continue;
        for (i = 1; i < MESH_CALL_COUNT; i++)
            if (mesh__same(word[0], mesh__call_name(i))) call = i;
        for (i = 1; i < MESH_ALGORITHM_COUNT; i++)
            if (mesh__same(word[3], mesh__algorithm_names[i])) algorithm = i;
        if (!word[3][0])
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_tuning_parse: line %d: expected \"CALL ranks<=N bytes<=N ALGORITHM [segment=N]\"",
                              line);
        if (!call || mesh__single_kind(call) != call || algorithm == MESH_ALGORITHM_COUNT ||
            !mesh_algorithm_serves((mesh_algorithm)algorithm, call))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_tuning_parse: line %d: no algorithm \"%s\" for \"%s\"",
                              line, word[3], word[0]);
        if (!mesh__limit(word[1], "ranks<=", UINT16_MAX - 1, &ranks) ||
            !mesh__limit(word[2], "bytes<=", UINT64_MAX - 1, &bytes) ||
            (word[4][0] && (!mesh__limit(word[4], "segment=", UINT32_MAX, &segment) || segment > UINT32_MAX)))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_tuning_parse: line %d: expected \"%s ranks<=N bytes<=N %s [segment=N]\"", line,
                              word[0], word[3]);
        if (t->nrows == MESH_MAX_TUNING)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_tuning_parse: line %d: more than %d rows", line,
                              (int)MESH_MAX_TUNING);
        row->call = (uint8_t)call;
        row->algorithm = (uint8_t)algorithm;
        row->ranks = ranks > UINT16_MAX ? UINT16_MAX : (uint16_t)ranks;
        row->bytes = bytes;
        row->segment = (uint32_t)segment;
        t->nrows++;
    }
    return MESH_OK;
}

#ifdef __cplusplus
}
#endif
#endif /* MESH_IMPLEMENTATION */

#include "mesh_redistribute.h"
