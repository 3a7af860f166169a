/* mesh/transport.h - the transport struct and its contract; memory, little-endian numbers, one thread at a time. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh.h. Knows no operation, no comm, no particular transport.

DO THIS
    Nothing: mesh_collectives.h includes it. What a transport has to do stands above mesh_ops; tests/conformance.h checks that it does.
*/
#if !defined(MESH_TRANSPORT_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_TRANSPORT_IMPLEMENTED))
#include "../mesh.h"
#endif

#ifndef MESH_TRANSPORT_H
#define MESH_TRANSPORT_H

#ifndef MESH_NO_STDLIB /* declarations for where there is none; the implementation needs one */
#include <errno.h>
#include <stdlib.h>
#endif
#include <string.h>

#ifndef MESH_MALLOC
#define MESH_MALLOC(n) malloc(n)
#define MESH_FREE(p) free(p)
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { MESH_CONTROL_BYTES = 1024, MESH_ABI = 2 };

/* ---- the transport struct: what a transport provides ------------------------------------------------------------------

   A transport implements the required members; every collective then works on it. tests/conformance.h checks one.

   post      Start a set of sends and receives that progress together: all or none. Returns OK and a ticket, or an error and no
             ticket: MEMORY (nothing was posted), PEER (the peer is known to be lost; may also be said later by test), TRANSPORT.
             xfers, blocks and the post itself are read during the call only; the memory they describe belongs to the operation
             until test returns something other than IN_PROGRESS. A receive matches a send of the same peer and channel, in the
             order posted; lengths and check must agree, else both sides end with MISMATCH (where MESH_CAP_CHECK is set).
             A message of 0 bytes is a message. rank is never this rank. Peers may post in any order; a send may complete before
             it is matched. Blocks only where MESH_CAP_STRIDED is set, MESH_REDUCE only where MESH_CAP_REDUCE is.
   test      OK: all xfers are complete, the ticket is freed. IN_PROGRESS (why->status STATE: on a stream that the program has begun to capture
             since; the host is not told of the end before the capture's). Or the first error: MISMATCH, PEER, CANCELED (here, or by
             the peer, which *why then names), TRANSPORT, with *why naming the peer; then too nothing is touched any more and the ticket is freed.
             Where that cannot be promised of what is sent (a send that no longer can be taken back), the error comes with the ticket's id
             MESH_TICKET_ORPHANED: what the messages were sent from may still be read until the transport closes.
   pending   Writes up to cap ranks whose side of an xfer is not matched yet (each once) and returns how many there are. A peer
             whose bytes are under way is not pending. Exact where MESH_CAP_PENDING is set; 0 where it is not.
   cancel    Ask for an end; test says CANCELED soon, or OK if it was complete. Never waits for a peer.
   progress  Move data; return as soon as something has happened since it last returned (a xfer, a control message), or at
             deadline_ns on the transport's clock. A deadline in the past: one round without sleeping. OK, or TRANSPORT when the
             transport as a whole can go no further, or MEMORY when there is none for what a peer sent: nothing is lost, it goes on
             when there is.
   now       The transport's clock in ns, monotonic.
   control_send  A small message beside the data to any other rank: copied, reliable, FIFO per pair. nbytes <= MESH_CONTROL_BYTES.
             kind is MESSAGE or ABORT (the same to a transport, save that a watchdog may act on it). OK, or PEER, MEMORY.
   control_poll  The next control message or event: OK and *out, or IN_PROGRESS. Events of the transport's own: LOST (a rank is
             gone without goodbye) and CLOSED (orderly, or it cannot be reached: LOST may then still follow), each once per rank,
             after everything that arrived from it before.
   close     Orderly goodbye: everything posted as sent is still delivered. Called by the transport's own close function.

   Whatever returns an error and takes a `why` fills it: what, the rank at fault or -1, the remedy.

   Optional members (NULL: absent) and what the core does without them: group_open / group_close (group == NULL is the world; the
   id is the upper 32 bits of the group's channels, and after group_close nothing on them is of interest any more), collective
   (generic schedules), copy and reduce (memcpy and loops on the CPU; device memory needs them), fence, alloc / free (also where they say
   UNSUPPORTED: none left, none of theirs), squares and scale (no norms of device memory), rows (no experts, ring attention and cross-entropy there), memory_*, locality (every rank has a host of its own), arm and fd (nobody can wait for a
   descriptor).

   group_open   Called by every rank of a comm for the same list of axes: `group` is this rank's, `color` says which of those along
                the axes, `key` this rank's index in it, parent the handle of the comm's first group (NULL while that is opened). Ranks that open
                something else are told so (MISMATCH) before anything is made.
   group_abort  End everything under way in the group on this rank, soon; tickets end with CANCELED. What stands in for cancel where
                MESH_CAP_CANCEL is not set.
   control_flush  Until the control messages sent so far would arrive if this process ended now, or the deadline. OK or IN_PROGRESS. Where
                control_send does that itself it is absent.
   collective   ticket NULL: nothing is issued, it only says whether it would be: OK, or UNSUPPORTED, which is the same on every rank (it depends on
                what ranks compare, never on pointers or v-counts): the core's schedule serves it. Then it is issued. A failure of that may as
                well be left to test, which has room for why.
   copy         src NULL: zeros. Either side may be host memory.
   locality     A number that ranks of one host have in common and others do not, for any rank of the world; negative: not known. Local, and the same from
                call to call. Ranks need not agree: the core takes the first rank's answers for everybody's.
   arm          IN_PROGRESS: there is work now, call progress. OK: the descriptor that `fd` names becomes readable when there is, and *wake is when to
                call progress at the latest (INT64_MAX: no need). The descriptor is the transport's; it is waited for, never read.
   squares      The sums of the squares of a list of parts, f16, bf16, f32 or f64: of numbers whose squares are neither too large nor too small for an
                f64, of the larger ones times 2^-600, of the smaller ones times 2^600: the first three f64 of `sums`, MESH_SQUARES_BYTES of alloc's
                scratch, the rest of which it works in.
   scale        Every element of a list of parts times a factor: in f64, rounded once.
   rows         What mesh_rows_op says, on `stream` itself, behind what is there: in no group's order, so that a group's messages may be under way. What goes
                wrong later is told by the group's next marks. Of no rows: nothing is done; UNSUPPORTED where nothing can be, on every rank.
   memory_register  Every member of the group gives memory of the same size, at the same place in its order of calls. On all of them it is registered
                or on none: then *handle is NULL and that is OK. memory_unregister is each one's own.

   With MESH_CAP_ORDERED posts, copies and reductions of a group take effect in the order they were issued, and a post of no xfers
   is a mark: its ticket ends when all issued before it in the group has. (A ticket that nobody put a mark behind may end late, with the
   next one.) Tickets there hold nothing: the core drops them untested where a later one of the same group tells the same. Two more members then give operations the caller's order:
   fence        direction MESH_FENCE_AFTER: what is issued in the group from now comes after what is on `stream` now.
                MESH_FENCE_ON: it runs on `stream` itself, until the next fence.
   stream_wait  What is put on `stream` from now comes after the ticket's end; the ticket lives on.
   called       After fence: every rank of the group has called, or will call, an operation with this check and record, or has called something else (where
                messages do not carry checks). Not of messages between two ranks. */

typedef struct mesh_transport mesh_transport;

/* MESH_REDUCE: receive, and combine with what lies there, base = base op received, in one pass; of the post's dtype and op. */
typedef enum mesh_direction { MESH_SEND = 0, MESH_RECV = 1, MESH_REDUCE = 2 } mesh_direction;

typedef struct mesh_extent {
    int64_t count, stride; /* stride in bytes, >= 0 */
} mesh_extent;

/* A strided block: `run` contiguous bytes, repeated over the extents, outermost first. */
typedef struct mesh_block {
    uint64_t run;
    int ndim;
    int zero;
    mesh_extent dim[MESH_MAX_DIMS];
} mesh_block;

typedef struct mesh_xfer {
    void *base; /* only read when sending */
    uint64_t nbytes;
    const mesh_block *block; /* NULL: contiguous. Else run * product of counts == nbytes */
    int direction;           /* mesh_direction */
    int rank;                /* world rank */
    int index, zero;         /* the same rank's index in the post's group */
} mesh_xfer;

/* AWAITED: who posts waits for its end; a transport may look for that a moment before it returns. */
enum { MESH_POST_AWAITED = 1 };

typedef struct mesh_post {
    void *group;      /* of group_open; NULL: the world */
    uint64_t channel; /* comm id (24 bits), group (8), sequence (32; 0 or with its top bit set: point to point) */
    uint64_t check;   /* equal at both ends or MISMATCH */
    const mesh_xfer *xfer;
    int count;
    unsigned flags; /* of MESH_POST_ */
    int dtype, op;  /* of its MESH_REDUCE: one of mesh_dtype, one of mesh_op (not avg, minloc, maxloc) */
    const struct mesh__record *record; /* the core's: what ranks tell each other of the operation; may be NULL */
} mesh_post;

typedef struct mesh_ticket {
    void *impl;
    uint64_t id;
} mesh_ticket;

typedef enum mesh_event_kind {
    MESH_EVENT_MESSAGE = 0,
    MESH_EVENT_ABORT,
    MESH_EVENT_LOST,
    MESH_EVENT_CLOSED
} mesh_event_kind;

typedef struct mesh_control {
    int kind, rank; /* mesh_event_kind; the sender, or the rank an event is about */
    uint32_t nbytes, zero;
    unsigned char data[MESH_CONTROL_BYTES]; /* LOST: why, as text */
} mesh_control;

/* One of the arrays of a multi-buffer call. count: elements, as the single form's. */
typedef struct mesh_buffer {
    const void *send;
    void *recv;
    size_t count;
} mesh_buffer;

/* What a transport's own collective gets. Counts and offsets in elements. */
typedef struct mesh_call {
    int kind, dtype, op, root; /* mesh_call_kind, mesh_dtype, mesh_op */
    const void *send;
    void *recv;
    size_t count;
    const size_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
    void (*user_op)(void *inout, const void *in, size_t count, void *ctx); /* NULL: op is one of mesh_op */
    void *user_ctx;
    size_t elem_bytes;
    uint64_t channel, check;
    const mesh_buffer *buffers; /* the multi-buffer forms: send, recv and count of each; else NULL */
    int nbuffers;
    int in_place;                      /* send and recv share memory, as they may */
    const struct mesh__record *record; /* the core's: what ranks tell each other of the call */
} mesh_call;

/* How a call's arguments are read. */
enum {
    MESH_REDUCES = 1,   /* has an op */
    MESH_ROOTED = 2,    /* has a root */
    MESH_BY_COUNTS = 4, /* counts per rank, which are not compared */
    MESH_P2P = 8,       /* point to point: FIFO per pair of ranks and tag, without a sequence number of its own */
    MESH_VARIABLE = 16  /* ... of a length that the receiver does not know */
};

#define MESH_CALLS(X)                                                                \
    X(MESH_CALL_NONE, "none", 0)                                                     \
    X(MESH_CALL_ALL_REDUCE, "all_reduce", MESH_REDUCES)                              \
    X(MESH_CALL_REDUCE, "reduce", MESH_REDUCES | MESH_ROOTED)                        \
    X(MESH_CALL_BROADCAST, "broadcast", MESH_ROOTED)                                 \
    X(MESH_CALL_ALL_GATHER, "all_gather", 0)                                         \
    X(MESH_CALL_ALL_GATHER_V, "all_gather_v", MESH_BY_COUNTS)                        \
    X(MESH_CALL_REDUCE_SCATTER, "reduce_scatter", MESH_REDUCES)                      \
    X(MESH_CALL_REDUCE_SCATTER_V, "reduce_scatter_v", MESH_REDUCES | MESH_BY_COUNTS) \
    X(MESH_CALL_ALL_TO_ALL, "all_to_all", 0)                                         \
    X(MESH_CALL_ALL_TO_ALL_V, "all_to_all_v", MESH_BY_COUNTS)                        \
    X(MESH_CALL_GATHER, "gather", MESH_ROOTED)                                       \
    X(MESH_CALL_GATHER_V, "gather_v", MESH_ROOTED | MESH_BY_COUNTS)                  \
    X(MESH_CALL_SCATTER, "scatter", MESH_ROOTED)                                     \
    X(MESH_CALL_SCATTER_V, "scatter_v", MESH_ROOTED | MESH_BY_COUNTS)                \
    X(MESH_CALL_SCAN, "scan", MESH_REDUCES)                                          \
    X(MESH_CALL_EXSCAN, "exscan", MESH_REDUCES)                                      \
    X(MESH_CALL_BROADCAST_OBJECT, "broadcast_object", MESH_ROOTED)                   \
    X(MESH_CALL_ALL_REDUCE_MANY, "all_reduce_many", MESH_REDUCES)                    \
    X(MESH_CALL_BROADCAST_MANY, "broadcast_many", MESH_ROOTED)                       \
    X(MESH_CALL_ALL_GATHER_MANY, "all_gather_many", 0)                               \
    X(MESH_CALL_REDUCE_SCATTER_MANY, "reduce_scatter_many", MESH_REDUCES)            \
    X(MESH_CALL_BARRIER, "barrier", 0)                                               \
    X(MESH_CALL_SEND, "send", MESH_P2P)                                              \
    X(MESH_CALL_RECV, "recv", MESH_P2P)                                              \
    X(MESH_CALL_SENDRECV, "sendrecv", MESH_P2P)                                      \
    X(MESH_CALL_SHIFT, "shift", MESH_P2P)                                            \
    X(MESH_CALL_EXCHANGE, "exchange", MESH_P2P)                                      \
    X(MESH_CALL_HALO, "halo_exchange", MESH_P2P)                                     \
    X(MESH_CALL_SEND_V, "send_v", MESH_P2P | MESH_VARIABLE)                          \
    X(MESH_CALL_RECV_V, "recv_v", MESH_P2P | MESH_VARIABLE)                          \
    X(MESH_CALL_SENDRECV_V, "sendrecv_v", MESH_P2P | MESH_VARIABLE)                  \
    X(MESH_CALL_SHIFT_V, "shift_v", MESH_P2P | MESH_VARIABLE)                        \
    X(MESH_CALL_RECV_OBJECT, "recv_object", MESH_P2P | MESH_VARIABLE)                \
    X(MESH_CALL_REDISTRIBUTE, "redistribute", 0)                                     \
    X(MESH_CALL_GROUP_OPEN, "group_open", 0)                                         \
    X(MESH_CALL_REGISTER, "register", 0)

#define MESH_X(name, text, flags) name,
typedef enum mesh_call_kind { MESH_CALLS(MESH_X) MESH_CALL_COUNT } mesh_call_kind;
#undef MESH_X

/* Elements of a tensor in the transport's memory. */
typedef struct mesh_part {
    void *base;
    mesh_block block; /* in bytes; of no dims: contiguous */
    uint64_t count;   /* elements */
    int dtype, zero;
} mesh_part;

/* Rows of elements in the transport's memory. Row i lies at i % count[0] * stride[0] + i / count[0] % count[1] * stride[1] + i / count[0] / count[1] * stride[2]. */
typedef struct mesh_matrix {
    void *base;
    int64_t stride[3], count[2]; /* in bytes, any; counts above 0 */
    int64_t step;                /* bytes from an element of a row to the next: an element's, but in logits */
    int dtype, zero;             /* f16, bf16, f32 or f64; of MOVE any */
} mesh_matrix;

/* What is done with each row. The last four are the steps of a cross-entropy: of logits x, f16, bf16 or f32, computed in f32. */
typedef enum mesh_rows_op {
    /* to = from, bit for bit, of one dtype; of an index below 0, and where from's base is NULL: zeros */
    MESH_ROWS_MOVE = 0,
    /* to = the sum of `terms` rows of from, in their order, each times its weight (NULL: 1), and of what is there (`add`): in f64 where one of both is, else
       f32, rounded once. An index below 0: nothing. to may be from, without index and of one term. */
    MESH_ROWS_SUM,
    /* word = the sum of the products of from and with, in f64 */
    MESH_ROWS_DOT,
    /* Of two parts of a softmax, of f32: to and from, their logarithms of the sums of e^x in word and weight, become one in to and word: lse = ln(e^a + e^b),
       to = e^(a - lse) to + e^(b - lse) from. A part of -infinity is none. */
    MESH_ROWS_MERGE,
    /* word = the greatest of the first `columns` of from that are numbers; of none the least finite float */
    MESH_ROWS_MOST,
    /* word: `terms` for each row, over its columns: the sum of e^(x - most); the target's x - most, 0 where it is not here; of 3: the sum of x - most.
       most: weight. The target's column is target - first. */
    MESH_ROWS_EXP,
    /* word = of such sums s, in weight: ln(s0) - s1, smoothed (terms 3): that times 1 - smoothing, and smoothing (ln(s0) - s2 / vocabulary). 0 where the
       target is below 0. */
    MESH_ROWS_LOSS,
    /* to = scale row_scale (e^(x - most) / s0 - smoothing / vocabulary), at the target less scale row_scale (1 - smoothing); beyond the columns, and where the
       target is below 0, 0. most: weight; s: word. row_scale NULL: 1. to may be from. */
    MESH_ROWS_GRADIENT
} mesh_rows_op;

/* All pointers are to the transport's memory, and read until the operation is over; the struct itself during the call only. */
typedef struct mesh_rows {
    int op, terms;       /* mesh_rows_op; rows of from for one of to: 1 but of SUM, where it says so */
    int64_t rows, width; /* of to (of word, where there is no to); elements of a row */
    mesh_matrix to, from, with;
    const int64_t *index; /* rows x terms: which row of from. NULL: in order */
    const float *weight;
    float *word;
    const int32_t *target;
    const float *row_scale;
    int64_t first, columns, vocabulary;
    float smoothing, scale;
    int add, zero;
} mesh_rows;

typedef struct mesh_allocator {
    void *(*alloc)(void *ctx, size_t nbytes);
    void (*free)(void *ctx, void *p);
    void *ctx;
} mesh_allocator;

typedef struct mesh_ops {
    uint32_t struct_size, abi; /* sizeof(mesh_ops), MESH_ABI */
    const char *name;
    /* required */
    mesh_status (*post)(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket);
    mesh_status (*test)(mesh_transport *t, mesh_ticket *ticket, mesh_error *why);
    int (*pending)(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap);
    mesh_status (*cancel)(mesh_transport *t, mesh_ticket *ticket);
    mesh_status (*progress)(mesh_transport *t, int64_t deadline_ns);
    int64_t (*now)(mesh_transport *t);
    mesh_status (*control_send)(mesh_transport *t, int rank, int kind, const void *data, size_t nbytes);
    mesh_status (*control_poll)(mesh_transport *t, mesh_control *out);
    mesh_status (*close)(mesh_transport *t, mesh_error *why);
    /* optional */
    mesh_status (*group_open)(mesh_transport *t, void *parent, uint32_t id, const mesh *group, int color, int key,
                              int64_t deadline_ns, void **out, mesh_error *why);
    mesh_status (*group_close)(mesh_transport *t, void *group);
    mesh_status (*group_abort)(mesh_transport *t, void *group, const char *why);
    mesh_status (*collective)(mesh_transport *t, void *group, const mesh_call *call, mesh_ticket *ticket);
    mesh_status (*copy)(mesh_transport *t, void *group, void *dst, const mesh_block *db, const void *src,
                        const mesh_block *sb, uint64_t nbytes);
    mesh_status (*reduce)(mesh_transport *t, void *group, int op, int dtype, void *dst, const mesh_block *db,
                          const void *src, const mesh_block *sb, uint64_t count, int divide);
    mesh_status (*fence)(mesh_transport *t, void *group, void *stream, int direction);
    mesh_status (*alloc)(mesh_transport *t, uint64_t nbytes, unsigned flags, void **out);
    mesh_status (*free)(mesh_transport *t, void *p);
    mesh_status (*memory_register)(mesh_transport *t, void *group, void *p, uint64_t nbytes, int64_t deadline_ns,
                                   void **handle, mesh_error *why);
    mesh_status (*memory_unregister)(mesh_transport *t, void *group, void *handle);
    mesh_status (*stream_wait)(mesh_transport *t, void *group, const mesh_ticket *ticket, void *stream);
    mesh_status (*control_flush)(mesh_transport *t, int64_t deadline_ns);
    int (*locality)(mesh_transport *t, int rank);
    mesh_status (*arm)(mesh_transport *t, int64_t *wake);
    int (*fd)(mesh_transport *t); /* -1: none */
    mesh_status (*squares)(mesh_transport *t, void *group, const mesh_part *list, int n, void *sums);
    mesh_status (*scale)(mesh_transport *t, void *group, const mesh_part *list, int n, double factor);
    mesh_status (*rows)(mesh_transport *t, void *group, void *stream, const mesh_rows *r, mesh_error *why);
    void (*called)(mesh_transport *t, void *group, uint64_t check, const struct mesh__record *record);
} mesh_ops;

/* The optional members of a transport that has none: { sizeof(mesh_ops), MESH_ABI, "name", post, ... close, MESH_OPS_BARE } */
#define MESH_OPS_BARE                                                                                                 \
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
        NULL

/* ... the last four of them: kernels, and what goes with fence. */
#define MESH_OPS_NO_KERNELS NULL, NULL, NULL, NULL

/* The id of a ticket whose post went into a graph: the host has nothing to wait for, and its memory is the graph's for good. */
#define MESH_TICKET_CAPTURED UINT64_MAX
/* The id of a ticket that ended with an error, whose messages may still be read. */
#define MESH_TICKET_ORPHANED (UINT64_MAX - 1)
enum { MESH_FENCE_AFTER = 0, MESH_FENCE_ON = 1 };
/* For buffers of operations: memory that peers can be shown. Else scratch, often of the same sizes. */
enum { MESH_ALLOC_BUFFER = 1 };
enum { MESH_SQUARES_BYTES = 1 << 22 };

/* What a transport can do beyond the required, and what the core does where a bit is not set. */
enum {
    MESH_CAP_DEVICE = 1,   /* memory is not the host's. Else: the host's functions work on it */
    MESH_CAP_SHARED = 2,   /* alloc gives memory that peers can map. Else: scratch is the allocator's */
    MESH_CAP_STRIDED = 4,  /* takes blocks. Else: they are packed before and unpacked after */
    MESH_CAP_ORDERED = 8,  /* posts run on a queue in order; no host wait between rounds */
    MESH_CAP_CHECK = 16,   /* carries and compares check and length. Else: a deadline's error says that nobody does */
    MESH_CAP_PENDING = 32, /* knows whom a ticket waits for. Else: the roll is called */
    MESH_CAP_CANCEL = 64,  /* takes a single ticket back. Else: group_abort */
    MESH_CAP_REDUCE = 128, /* takes MESH_REDUCE. Else: received apart, then combined */
    MESH_CAP_FP8 = 256     /* its own collectives reduce fp8: sum, prod, min, max. Else: UNSUPPORTED */
};

/* An operation that has ended, for who listens (mesh_transport.trace). Texts live during the call only. */
typedef struct mesh_trace_event {
    const char *call, *comm, *axes, *dtype, *op; /* "all_reduce", the comm's name, ...; op "" where there is none */
    int group, first, ranks; /* which of the groups along the axes (mesh_group_of), its first rank, and its size */
    int slot;                /* operations under way at once have different ones */
    mesh_status status;
    uint32_t comm_id, sequence; /* comms without a common rank may have one id; sequence 0: point to point */
    uint64_t count;             /* elements, as called */
    uint64_t sent, received;    /* payload bytes of this rank */
    int64_t start, end;         /* ns on the transport's clock */
} mesh_trace_event;

typedef void (*mesh_log)(void *ctx, int level, const char *text); /* level 0: error, 1: warning, 2: information */

/* Who is in the library: one thread at a time. The core's; a transport leaves it zero. */
typedef struct mesh_inside {
    uintptr_t thread; /* 0: nobody */
    const char *call;
    int depth;
    int combining; /* a mesh_user_op is running */
    int lent;      /* transports that stand on this one, and close before it */
    /* A thread of the transport's own (0: none), which works in short turns: callers wait for it with `yield`, while `wanted` is set. `leaving` is asked
       by the last caller inside whether it is to be woken, which is done when that one has left. */
    uintptr_t helper;
    int wanted;
    void (*yield)(void);
    int (*leaving)(mesh_transport *t);
    void (*wake)(mesh_transport *t);
    /* The transport's: 0 in a process that was forked from the one that opened it, else 1. NULL: nobody can tell. */
    const unsigned char *alive;
} mesh_inside;

struct mesh_transport { /* the first member of every transport */
    const mesh_ops *ops;
    int rank, size;
    uint32_t caps, zero;
    mesh_allocator allocator;
    mesh_log log;
    void *log_ctx;
    void *engine;                     /* the core's: one per transport, NULL when the transport is opened */
    const struct mesh_tuning *tuning; /* for comms whose description has none (from MESH_TUNING); NULL: built in */
    void (*trace)(void *ctx, const mesh_trace_event *event); /* NULL: nobody listens */
    void *trace_ctx;
    int64_t timeout_ns; /* of operations in comms whose description says none (from MESH_TIMEOUT); 0: 600 s */
    /* Where it is set ranks compare clocks as they open comms, and it hears once, with trace_ctx: times of this rank + offset are rank 0's,
       or off by `within` at most. In ns. */
    void (*trace_clock)(void *ctx, int64_t offset, int64_t within);
    int64_t trace_epoch; /* from the transport's clock to the one that `trace` writes */
    mesh_inside inside;
};

/* For transports: the run of bytes at `offset` of an xfer, and how many are contiguous from there (to the end of a run). */
MESH_API void *mesh_xfer_at(const mesh_xfer *x, uint64_t offset, uint64_t *contiguous);
/* 1 if the block describes exactly nbytes (NULL: always), without overflow. */
MESH_API int mesh_block_fits(const mesh_block *block, uint64_t nbytes);
/* For transports: allocation through t->allocator (MESH_MALLOC by default). NULL when there is none. */
MESH_API void *mesh_transport_alloc(mesh_transport *t, size_t nbytes);
MESH_API void mesh_transport_free(mesh_transport *t, void *p);
/* Ranks of the world. */
MESH_API int mesh_world(const mesh_transport *t);

#ifdef __cplusplus
}
#endif
#endif /* MESH_TRANSPORT_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_TRANSPORT_IMPLEMENTED)
#define MESH_TRANSPORT_IMPLEMENTED

/* ---- // >>memory and bytes ---------------------------------------------------------------------------------------------- */

MESH_API void *mesh_transport_alloc(mesh_transport *t, size_t nbytes) {
    if (t->allocator.alloc) return t->allocator.alloc(t->allocator.ctx, nbytes);
    return MESH_MALLOC(nbytes);
}

MESH_API void mesh_transport_free(mesh_transport *t, void *p) {
    if (!p) return;
    if (t->allocator.free)
        t->allocator.free(t->allocator.ctx, p);
    else
        MESH_FREE(p);
}

MESH_API int mesh_world(const mesh_transport *t) { return t->size; }

/* Is `rep movsb` slow there? By it the C library moves from 2 or 4 KiB to some 512 KiB, and Linux what it copies out of another process. On AMD's
   Zen 3 (read off an EPYC of family 25, model 1) it falls from 40 GB/s to 2 where dst is 1 to 31 bytes further into its page than src: just where
   large memory of malloc, 16 bytes into its page, is filled from pages that are shared. */
MESH__INLINE int mesh__copies_slowly(void *dst, const void *src, uint64_t n) {
#if defined(__x86_64__) || defined(__i386__)
    return n >= 2048 && ((uintptr_t)dst - (uintptr_t)src - 1) % 4096 < 31;
#else
    (void)dst, (void)src, (void)n;
    return 0;
#endif
}

/* memmove of what may be much. (This loop, of which compilers make moves of vectors, copies 25 GB/s there.) */
MESH__PRIVATE void mesh__copy_bytes(void *dst, const void *src, size_t n) {
    unsigned char block[64], *d = (unsigned char *)dst;
    const unsigned char *s = (const unsigned char *)src;
    if (!mesh__copies_slowly(dst, src, n) || (uintptr_t)dst - (uintptr_t)src < n) { /* over itself: from its end */
        memmove(dst, src, n);
        return;
    }
    for (; n >= sizeof block; n -= sizeof block, d += sizeof block, s += sizeof block) {
        memcpy(block, s, sizeof block);
        memcpy(d, block, sizeof block);
    }
    memcpy(d, s, n);
}

/* A few bytes, the usual numbers of which need no call. */
MESH__INLINE void mesh__copy_few(void *dst, const void *src, size_t n) {
    if (n == 8)
        memcpy(dst, src, 8);
    else if (n == 4)
        memcpy(dst, src, 4);
    else if (n)
        mesh__copy_bytes(dst, src, n);
}

/* ---- // >>one thread at a time ---- */

#if defined(__GNUC__) || defined(__clang__)
#define MESH__LOAD(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define MESH__STORE(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
MESH__PRIVATE int mesh__claim(uintptr_t *thread, uintptr_t me) {
    uintptr_t nobody = 0;
    return __atomic_compare_exchange_n(thread, &nobody, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}
#else /* without atomics two that come at the same instant may pass */
#define MESH__LOAD(p) (*(p))
#define MESH__STORE(p, value) (*(p) = (value))
MESH__PRIVATE int mesh__claim(uintptr_t *thread, uintptr_t me) { return *thread ? 0 : (*thread = me, 1); }
#endif

/* Can it be used at all? */
MESH__INLINE int mesh__is_shut(const mesh_transport *t) { return !t->ops || (t->inside.alive && !*t->inside.alive); }

/* Why nobody may come in now: it is not open here, another thread is inside, or a user's op calls back. Both calls are named. */
MESH__RARE mesh_status mesh__inside_error(mesh_transport *t, mesh_error *err, const char *call) {
    const char *other = MESH__LOAD(&t->inside.call);
    if (mesh__is_shut(t))
        return mesh__fail(
            err, MESH_ERR_STATE, -1, "mesh_%s: the transport is not open%s", call,
            t->ops ? " in this process, a fork of the one that opened it; close it here, and open one of its own"
                   : " (it failed to, or was closed)");
    if (MESH__LOAD(&t->inside.thread) == (uintptr_t)&errno)
        return mesh__fail(
            err, MESH_ERR_STATE, -1,
            "mesh_%s: called by a mesh_user_op inside mesh_%s; a user's op must call nothing of the library", call,
            other);
    return mesh__fail(
        err, MESH_ERR_STATE, -1,
        "mesh_%s: another thread is in mesh_%s on this transport; one thread at a time: lock around the calls, or "
        "open a transport for each thread",
        call, other ? other : "comm_open");
}

/* Enter a public call; calls nest. STATE where another thread is inside, where a user's op calls back, or in a fork of the process that opened it; nothing
   of the transport's was touched then. The transport's own thread is waited for. t may be NULL. `call` lives on, and is without its "mesh_". */
MESH__INLINE mesh_status mesh__enter(mesh_transport *t, mesh_error *err, const char *call) {
    uintptr_t me = (uintptr_t)&errno; /* each thread's own */
    if (!t) return MESH_OK;
    if (MESH__LOAD(&t->inside.thread) == me) {
        if (t->inside.combining) return mesh__inside_error(t, err, call);
        t->inside.depth++;
        return MESH_OK;
    }
    if (mesh__is_shut(t)) return mesh__inside_error(t, err, call);
    while (!mesh__claim(&t->inside.thread, me)) {
        uintptr_t holder = MESH__LOAD(&t->inside.thread);
        if (holder && (!t->inside.yield || holder != MESH__LOAD(&t->inside.helper)))
            return mesh__inside_error(t, err, call);
        if (!t->inside.yield) continue;
        MESH__STORE(&t->inside.wanted, 1);
        t->inside.yield();
    }
    if (t->inside.yield) MESH__STORE(&t->inside.wanted, 0);
    MESH__STORE(&t->inside.call, call);
    t->inside.depth = 1;
    return MESH_OK;
}

/* The same for a call that names a transport, which may not be open. */
MESH__PRIVATE mesh_status mesh__enter_open(mesh_transport *t, mesh_error *err, const char *call) {
    return t->ops ? mesh__enter(t, err, call) : mesh__inside_error(t, err, call);
}

MESH__PRIVATE void mesh__leave(mesh_transport *t) {
    int wakes;
    if (!t || t->inside.depth > 1) {
        if (t) t->inside.depth--;
        return;
    }
    wakes = t->inside.leaving && t->inside.leaving(t);
    t->inside.depth = 0;
    MESH__STORE(&t->inside.thread, (uintptr_t)0);
    if (wakes) t->inside.wake(t);
}

#define MESH__CALLER (__func__ + sizeof "mesh_" - 1)

/* The body of a public function of a comm: `call`, with nobody else inside. */
#define MESH__ALONE(comm, name, call)                                                \
    do {                                                                             \
        mesh_transport *inside_ = (comm) && (comm)->impl ? (comm)->transport : NULL; \
        mesh_status status_ = mesh__enter(inside_, NULL, name);                      \
        if (status_ != MESH_OK) {                                                    \
            if (!(comm)->failed) mesh__inside_error(inside_, &(comm)->error, name);  \
            return status_;                                                          \
        }                                                                            \
        status_ = (call);                                                            \
        mesh__leave(inside_);                                                        \
        return status_;                                                              \
    } while (0)

/* The same for one that makes other calls in its turn. */
#define MESH__ALONE_COMPOSED(comm, name, call)                                                                    \
    do {                                                                                                          \
        int failed_ = 0;                                                                                          \
        MESH__ALONE(comm, name, (failed_ = (comm) && (comm)->failed, mesh__composed(comm, name, failed_, call))); \
    } while (0)

/* The same for one that starts an operation: a refused one leaves no request. */
#define MESH__ALONE_START(comm, name, request, call)           \
    do {                                                       \
        if (request) memset(request, 0, sizeof(mesh_request)); \
        MESH__ALONE(comm, name, call);                         \
    } while (0)

/* Make room for `need` items in a growing array, doubling. Returns 0 without memory; the array then is as it was. */
MESH__RARE int mesh__grow_more(mesh_transport *t, void **items, int *cap, int need, size_t item_bytes) {
    int room = *cap ? *cap : 8;
    void *p;
    while (room < need) room *= 2;
    p = mesh_transport_alloc(t, (size_t)room * item_bytes);
    if (!p) return 0;
    if (*cap) memcpy(p, *items, (size_t)*cap * item_bytes);
    memset((char *)p + (size_t)*cap * item_bytes, 0, (size_t)(room - *cap) * item_bytes);
    mesh_transport_free(t, *items);
    *items = p;
    *cap = room;
    return 1;
}
MESH__INLINE int mesh__grow(mesh_transport *t, void **items, int *cap, int need, size_t item_bytes) {
    return need <= *cap || mesh__grow_more(t, items, cap, need, item_bytes);
}

/* Control messages that have come, in order, each followed by its bytes. */
typedef struct mesh__mail {
    struct mesh__mail *next;
    int kind, rank;
    uint32_t nbytes;
} mesh__mail;
typedef struct mesh__inbox {
    mesh__mail *first, **end; /* end: where there is a first */
} mesh__inbox;

/* Returns 0 without memory. */
MESH__PRIVATE int mesh__inbox_add(mesh_transport *t, mesh__inbox *box, int kind, int rank, const void *data,
                                  uint32_t nbytes) {
    mesh__mail *m = (mesh__mail *)mesh_transport_alloc(t, sizeof *m + nbytes);
    if (!m) return 0;
    m->next = NULL;
    m->kind = kind;
    m->rank = rank;
    m->nbytes = nbytes;
    if (nbytes) memcpy(m + 1, data, nbytes);
    if (!box->first) box->end = &box->first;
    *box->end = m;
    box->end = &m->next;
    return 1;
}

MESH__PRIVATE void mesh__inbox_drop(mesh_transport *t, mesh__inbox *box, mesh__mail **at) {
    mesh__mail *m = *at;
    *at = m->next;
    if (!m->next) box->end = at;
    mesh_transport_free(t, m);
}

/* The first one, as control_poll says it. */
MESH__PRIVATE mesh_status mesh__inbox_take(mesh_transport *t, mesh__inbox *box, mesh_control *out) {
    const mesh__mail *m = box->first;
    if (!m) return MESH_IN_PROGRESS;
    out->kind = m->kind;
    out->rank = m->rank;
    out->nbytes = m->nbytes;
    out->zero = 0;
    if (m->nbytes) memcpy(out->data, m + 1, m->nbytes);
    mesh__inbox_drop(t, box, &box->first);
    return MESH_OK;
}

MESH__PRIVATE void mesh__inbox_free(mesh_transport *t, mesh__inbox *box) {
    while (box->first) mesh__inbox_drop(t, box, &box->first);
}

/* Control messages are little-endian on every machine. */
MESH__PRIVATE void mesh__put32(unsigned char *p, uint32_t v) {
    int i;
    for (i = 0; i < 4; i++) p[i] = (unsigned char)(v >> (8 * i));
}
MESH__PRIVATE void mesh__put64(unsigned char *p, uint64_t v) {
    mesh__put32(p, (uint32_t)v);
    mesh__put32(p + 4, (uint32_t)(v >> 32));
}
MESH__PRIVATE uint32_t mesh__get32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
MESH__PRIVATE uint64_t mesh__get64(const unsigned char *p) {
    return mesh__get32(p) | (uint64_t)mesh__get32(p + 4) << 32;
}

/* Bytes of the wire, written or read by the same code: what it does with each number is the cursor's to know. */
typedef struct mesh__wire {
    unsigned char *at;
    int reading;
} mesh__wire;
MESH__PRIVATE mesh__wire mesh__writing(unsigned char *p) {
    mesh__wire w;
    w.at = p;
    w.reading = 0;
    return w;
}
MESH__PRIVATE mesh__wire mesh__reading(const unsigned char *p) {
    mesh__wire w;
    w.at = (unsigned char *)(uintptr_t)p;
    w.reading = 1;
    return w;
}
MESH__FOLDED void mesh__wire32(mesh__wire *w, uint32_t *v) {
    if (w->reading)
        *v = mesh__get32(w->at);
    else
        mesh__put32(w->at, *v);
    w->at += 4;
}
MESH__FOLDED void mesh__wire64(mesh__wire *w, uint64_t *v) {
    if (w->reading)
        *v = mesh__get64(w->at);
    else
        mesh__put64(w->at, *v);
    w->at += 8;
}
/* Signed numbers, as their bits. */
MESH__PRIVATE void mesh__wire_int(mesh__wire *w, int *v) {
    uint32_t u = w->reading ? 0 : (uint32_t)*v;
    mesh__wire32(w, &u);
    *v = (int)u;
}
MESH__PRIVATE void mesh__wire_i64(mesh__wire *w, int64_t *v) {
    uint64_t u = w->reading ? 0 : (uint64_t)*v;
    mesh__wire64(w, &u);
    *v = (int64_t)u;
}
MESH__PRIVATE void mesh__wire_bytes(mesh__wire *w, void *p, size_t n) {
    memcpy(w->reading ? p : (void *)w->at, w->reading ? (void *)w->at : p, n);
    w->at += n;
}

/* Bytes of the UTF-8 character at p; 0: it is none (RFC 3629: no surrogates, nothing overlong, none above 10FFFF). */
MESH__PRIVATE int mesh__utf8(const char *p, const char *end) {
    const unsigned char *s = (const unsigned char *)p;
    int n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0, i;
    if (n > end - p) return 0;
    for (i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (n == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f))) return 0;
    if (n == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))) return 0;
    return n;
}

/* As much as fits, and no half of a character. */
MESH__PRIVATE void mesh__copy_text(char *to, size_t cap, const char *from) {
    size_t n = strlen(from), end = n;
    if (n >= cap) {
        for (n = cap - 1, end = n; n && end - n < 3 && (from[n] & 0xc0) == 0x80;) n--;
        if (mesh__utf8(from + n, from + n + strlen(from + n)) <= (int)(end - n))
            n = end; /* these bytes are no character */
    }
    memcpy(to, from, n);
    to[n] = 0;
}

MESH_API void *mesh_xfer_at(const mesh_xfer *x, uint64_t offset, uint64_t *contiguous) {
    const mesh_block *b = x->block;
    uint64_t index, inside;
    char *p = (char *)x->base;
    int k;
    if (!b || b->ndim == 0) {
        *contiguous = x->nbytes - offset;
        return p ? p + offset : NULL;
    }
    index = offset / b->run;
    inside = offset % b->run;
    for (k = b->ndim - 1; k >= 0; k--) {
        p += (int64_t)(index % (uint64_t)b->dim[k].count) * b->dim[k].stride;
        index /= (uint64_t)b->dim[k].count;
    }
    *contiguous = b->run - inside;
    return p + inside;
}

MESH_API int mesh_block_fits(const mesh_block *b, uint64_t nbytes) {
    uint64_t total;
    int k;
    if (!b) return 1;
    if (b->ndim < 0 || b->ndim > MESH_MAX_DIMS) return 0;
    total = b->run;
    for (k = 0; k < b->ndim; k++) {
        if (b->dim[k].count < 0 || b->dim[k].stride < 0) return 0;
        if (b->dim[k].count && total > UINT64_MAX / (uint64_t)b->dim[k].count) return 0;
        total *= (uint64_t)b->dim[k].count;
    }
    return total == nbytes;
}

/* ---- // >>what is called ---- */

/* Has a transport an optional member? One built against an older header has a shorter struct. */
#define MESH__HAS(ops, member) ((ops)->struct_size > offsetof(mesh_ops, member) && (ops)->member)

MESH__PRIVATE const char *mesh__or_empty(const char *text) { return text ? text : ""; }

MESH__PRIVATE const char *mesh__call_name(int kind) {
#define MESH_X(name, text, flags) text,
    static const char *const names[] = {MESH_CALLS(MESH_X)};
#undef MESH_X
    return kind >= 0 && kind < MESH_CALL_COUNT ? names[kind] : "unknown call";
}

/* Has this kind of call the property (MESH_REDUCES, ...)? */
MESH__PRIVATE int mesh__call_is(int kind, int property) {
#define MESH_X(name, text, flags) flags,
    static const uint8_t properties[] = {MESH_CALLS(MESH_X)};
#undef MESH_X
    return (unsigned)kind < MESH_CALL_COUNT && (properties[kind] & property) != 0;
}

MESH__PRIVATE int mesh__gathers(int single) {
    return single == MESH_CALL_ALL_GATHER || single == MESH_CALL_ALL_GATHER_V || single == MESH_CALL_GATHER ||
           single == MESH_CALL_GATHER_V;
}
MESH__PRIVATE int mesh__scatters(int single) {
    return single == MESH_CALL_REDUCE_SCATTER || single == MESH_CALL_REDUCE_SCATTER_V || single == MESH_CALL_SCATTER ||
           single == MESH_CALL_SCATTER_V;
}

MESH__PRIVATE int mesh__overlap(const void *a, size_t an, const void *b, size_t bn) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return an && bn && x < y + bn && y < x + an;
}

/* What the entries of a list send from or, written, receive into; of each at most one an entry. */
typedef struct mesh__extent {
    uintptr_t begin, end;
    int entry, written;
} mesh__extent;
enum { MESH__EXTENTS = 128 }; /* so many need no memory of the heap */
typedef struct mesh__extents {
    mesh__extent *item, few[MESH__EXTENTS];
    int n;
} mesh__extents;

/* Room for `most`; 0: no memory. */
MESH__PRIVATE int mesh__extents_open(mesh__extents *l, mesh_transport *t, size_t most) {
    l->n = 0;
    l->item = l->few;
    if (most > MESH__EXTENTS) l->item = (mesh__extent *)mesh_transport_alloc(t, most * (sizeof *l->item + sizeof(int)));
    return l->item != NULL;
}

MESH__PRIVATE void mesh__extents_add(mesh__extents *l, const void *base, size_t nbytes, int entry, int written) {
    mesh__extent *x = &l->item[l->n];
    x->begin = (uintptr_t)base;
    x->end = x->begin + nbytes;
    x->entry = entry;
    x->written = written;
    l->n += nbytes != 0;
}

MESH__PRIVATE int mesh__extent_after(const void *ctx, int a, int b) {
    const mesh__extent *x = (const mesh__extent *)ctx;
    return x[a].begin > x[b].begin;
}

/* Does what one entry receives overlap what another receives or sends? By address, beside those of either kind that reach farthest: two of each, for one may be
   the entry's own. Returns that other, the later one in *which; -1: none. */
MESH__PRIVATE int mesh__extents_overlap(const mesh__extents *l, int *order, int *which) {
    int far[2][2] = {{-1, -1}, {-1, -1}}, i, kind, k;
    const mesh__extent *x = l->item;
    for (i = 0; i < l->n; i++) order[i] = i;
    mesh__sort(order, l->n, mesh__extent_after, x);
    for (i = 0; i < l->n; i++) {
        const mesh__extent *here = &x[order[i]];
        int *mine = far[here->written];
        for (kind = !here->written; kind < 2; kind++) /* what is sent may overlap what is sent */
            for (k = 0; k < 2; k++)
                if (far[kind][k] >= 0 && x[far[kind][k]].entry != here->entry && x[far[kind][k]].end > here->begin) {
                    int other = x[far[kind][k]].entry;
                    *which = other > here->entry ? other : here->entry;
                    return other > here->entry ? here->entry : other;
                }
        for (k = 0; k < 2 && mine[k] >= 0 && x[mine[k]].end >= here->end;) k++;
        if (k == 0) mine[1] = mine[0];
        if (k < 2) mine[k] = order[i];
    }
    return -1;
}

/* The same, and the list's end. */
MESH__PRIVATE int mesh__extents_close(mesh__extents *l, mesh_transport *t, int *which) {
    int few[MESH__EXTENTS], one;
    one = mesh__extents_overlap(l, l->item == l->few ? few : (int *)(l->item + l->n), which);
    if (l->item != l->few) mesh_transport_free(t, l->item);
    return one;
}

/* Nothing but a meeting of all ranks of the group. */
MESH__PRIVATE int mesh__is_meeting(int kind) {
    return kind == MESH_CALL_BARRIER || kind == MESH_CALL_GROUP_OPEN || kind == MESH_CALL_REGISTER;
}

/* A list's record has the hash of its counts where others have the root: lists that differ are then seen to. */
MESH__PRIVATE int mesh__is_unrooted_list(int kind) {
    return kind == MESH_CALL_ALL_REDUCE_MANY || kind == MESH_CALL_ALL_GATHER_MANY ||
           kind == MESH_CALL_REDUCE_SCATTER_MANY;
}
#endif /* MESH_TRANSPORT_IMPLEMENTED */
