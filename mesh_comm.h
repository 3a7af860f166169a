/* mesh_comm.h - comms and requests, and the engine that runs operations over a transport. Part of mesh.h 0.1.0. MIT licence. */
#ifndef MESH_COMM_H
#define MESH_COMM_H
/*
DO THIS
    Nothing: mesh_collectives.h includes it, and says what a comm, a group, a request and an error are.

    The engine (one per transport) runs every operation as a schedule: posts, waits, reductions and copies in a straight line, built by
    mesh_collectives.h. Comms, requests, the question who waits for whom, and what becomes of a failure are here.
*/
#include "mesh_transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- comms ---------------------------------------------------------------------------------------------------------- */

/* Which algorithm serves a call: the first row whose call is this, whose group has at most `ranks`, whose bytes per rank (count times
   element, the sum over a list of buffers) are at most `bytes`. What no row says is built in. All ranks use the table of the mesh's
   first rank. As text (mesh_tuning_parse, written by `mesh bench --tune`): lines "all_reduce ranks<=8 bytes<=16384 doubling", "*" for
   any number of ranks or bytes, " segment=65536" for how many bytes a pipelined algorithm moves per step. */
typedef struct mesh_tuning_row {
    uint8_t call, algorithm; /* mesh_call_kind, mesh_algorithm */
    uint16_t ranks;          /* 65535: any */
    uint32_t segment;        /* 0: built in */
    uint64_t bytes;          /* UINT64_MAX: any */
} mesh_tuning_row;

enum { MESH_MAX_TUNING = 48 };

typedef struct mesh_tuning {
    int nrows;
    int zero;
    mesh_tuning_row row[MESH_MAX_TUNING];
} mesh_tuning;

typedef struct mesh_comm_desc {
    const char *groups; /* lists of several axes that will be used, "dp,cp;dp,tp"; NULL: none */
    const char *name;   /* for messages; NULL: "comm" */
    int64_t timeout_ns; /* deadline of every operation, from its start; 0: 600 s */
    int64_t ask_ns;     /* after this long without progress a waiter asks the others what they are in; 0: 1 s */
    /* These are the first rank's for all: */
    const mesh_tuning *tuning;     /* which algorithms; NULL: the transport's */
    const mesh_topology *topology; /* what redistributions are planned for; NULL: flat */
    int64_t scratch_cap;           /* bytes a redistribution may use beside its tensors; 0: any */
    void *stream; /* on GPUs, the caller's cudaStream_t; NULL: the default stream. See mesh_comm_stream */
} mesh_comm_desc;

typedef struct mesh_comm {
    mesh_transport *transport;
    mesh on;
    void *impl; /* NULL when not open */
    uint32_t id, failed;
    mesh_error error; /* the last error; once failed, its first cause */
} mesh_comm;

/* A reduction of your own: inout[i] = in[i] op inout[i], count elements, which has to be associative. Where `ordered` is set, and in
   scans, `in` comes from the ranks before those of inout. Called on the thread that is inside the library; it must call nothing of it. */
typedef struct mesh_user_op {
    void (*combine)(void *inout, const void *in, size_t count, void *ctx);
    void *ctx;
    size_t elem_bytes; /* of an element, with dtype MESH_BYTES; 0: the dtype says */
    int ordered;       /* 1: it does not commute: operands are combined in the group's order, through more scratch */
} mesh_user_op;

typedef struct mesh_request {
    mesh_comm *comm;
    uint32_t slot, generation; /* generation 0: none */
} mesh_request;

/* Open a comm over a mesh; every rank of the mesh calls it with an equal mesh and description. desc may be NULL. A device table of
   the mesh must stay alive. ARGUMENT: this rank is not in the mesh, the mesh reaches beyond the world, bad groups, a transport that
   lacks a required member. MISMATCH: a rank holds another mesh or description (named, both shown). TIMEOUT: ranks missing (named).
   PEER. On error nothing is open. */
MESH_API mesh_status mesh_comm_open(mesh_comm *c, mesh_transport *t, const mesh *m, const mesh_comm_desc *desc,
                                    mesh_error *err);
/* Close it. Operations under way are canceled: their requests end, and the call returns MESH_ERR_STATE and says how many; else OK.
   Closing a comm that failed to open, was closed already or is all zero is OK. */
MESH_API mesh_status mesh_comm_close(mesh_comm *c);
/* Add an op: every rank of the mesh adds the same ones in the same order (nothing is sent; a different elem_bytes shows as MISMATCH when
   used). *op goes where a mesh_op goes, on this comm. At most 64. Host memory only. ARGUMENT, STATE; the comm does not fail. */
MESH_API mesh_status mesh_op_add(mesh_comm *c, const mesh_user_op *user, mesh_op *op);
/* Size of my group along axes, and my index in it; -1: not opened. */
MESH_API int mesh_comm_size(const mesh_comm *c, const char *axes);
MESH_API int mesh_comm_index(const mesh_comm *c, const char *axes);
/* Payload bytes this rank has sent and received in a group since the comm opened; of a transport's own collectives (NCCL), what such a
   call moves at least. STATE (without a text): not opened. */
MESH_API mesh_status mesh_comm_bytes(const mesh_comm *c, const char *axes, uint64_t *sent, uint64_t *received);
/* The last operations of this transport (at most 256), oldest first, a line each. Returns the length of the whole text. */
MESH_API size_t mesh_comm_history(const mesh_comm *c, char *buf, size_t cap);

/* ---- requests --------------------------------------------------------------------------------------------------------- */

/* Wait until an operation ends and return its status; consumes the request. STATE: waited for already, or never started.
   On transports with streams (GPUs) it does not block: what the caller puts on its stream from now on comes after the operation, and
   the buffers are the operation's until that stream has come so far. What goes wrong then is told by a later call. */
MESH_API mesh_status mesh_wait(mesh_request r);
/* The same, but blocks on every transport, at most to the operation's deadline. (In a capture nothing runs: it then only orders, as mesh_wait.) */
MESH_API mesh_status mesh_wait_host(mesh_request r);
/* IN_PROGRESS, or as mesh_wait_host. */
MESH_API mesh_status mesh_test(mesh_request r);
/* From now on this stream is the caller's, until another is or the comm is closed: it lives so long. Operations start after what is on it; the
   blocking forms run on it. Without streams: nothing. */
MESH_API mesh_status mesh_comm_stream(mesh_comm *c, void *stream);
/* Wait on the host for everything that mesh_wait has left under way in this comm. OK, or why it failed. */
MESH_API mesh_status mesh_comm_sync(mesh_comm *c);

/* ---- memory of the transport: device memory on GPUs, the host's elsewhere ------------------------------------------------- */

/* Memory for buffers, of a kind that mesh_register takes (NCCL: from 1 MiB on in its pages of 2 MiB). Local. MEMORY. */
MESH_API mesh_status mesh_alloc(mesh_comm *c, size_t nbytes, void **p);
/* Nothing may be under way in it. NULL is fine. ARGUMENT: it is not mesh_alloc's (where the transport can tell). */
MESH_API mesh_status mesh_free(mesh_comm *c, void *p);
/* Copy between the transport's memory and the host's, either way, and wait for it: after what is on the caller's stream. */
MESH_API mesh_status mesh_copy(mesh_comm *c, void *dst, const void *src, size_t nbytes);

/* Persistent operations: after any _start, mesh_keep lets the request outlive its waits, with its schedule built and its memory at hand;
   mesh_restart starts the same call again (same buffers and counts; a new place in its group's order, so every rank of the group
   restarts or calls the same), mesh_wait or mesh_test ends each round, mesh_release gives it up, at once or when the round under way
   is waited for. v-form counts and offsets, and a list of many buffers, need not stay alive. STATE: not kept, under way, waited for.
   UNSUPPORTED: mesh_keep of broadcast_object. */
MESH_API mesh_status mesh_keep(mesh_request r);
MESH_API mesh_status mesh_restart(mesh_request r);
MESH_API mesh_status mesh_release(mesh_request r);

/* For transports, first in their close function: closes the comms that are still open and lets go of the transport. STATE: another thread
   is inside the library, or a user's op calls; nothing is closed. */
MESH_API mesh_status mesh_transport_detach(mesh_transport *t);
/* For transports, before that: how long close may wait for other ranks, in ns. A second where a comm has failed, else the deadline of its
   comms, 30 s at most. */
MESH_API int64_t mesh_transport_patience(const mesh_transport *t);

#ifdef __cplusplus
}
#endif
#endif /* MESH_COMM_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_COMM_IMPLEMENTED)
#define MESH_COMM_IMPLEMENTED

#ifdef __cplusplus
extern "C" {
#endif

/* ---- // >>engine: state ------------------------------------------------------------------------------------------------------ */

enum {
    MESH__RING = 256,       /* operations remembered */
    MESH__AXES_BYTES = 40,  /* of an axes text in a record */
    MESH__MAX_GROUPS = 255, /* the group's number has 8 bits of the channel */
    MESH__SCRATCH_KEPT = 4 << 20,
    MESH__SCRATCHES = 5,
    MESH__ROUND = 32,        /* partners served at once in direct exchanges */
    MESH__SMALL = 16 * 1024, /* bytes up to which latency decides */
    MESH__MIB = 1 << 20,
    MESH__PACKED = 64 * 1024,     /* buffers of a list up to this size are copied together */
    MESH__OBJECT_CHAIN = 1 << 20, /* objects beyond this size travel in segments */
    MESH__GRACE_NS = 250000000,   /* after a rank is lost or takes back its side: for the cause to be heard */
    MESH__TELL_NS = 500000000,    /* for an announcement to be on its way, at most */
    MESH__ROLL_NS = 1000000000,   /* for the answers to a roll call, at most; see mesh__roll_time */
    MESH__CLOSE_NS = 1000000000,  /* for tickets to end that were canceled */
    MESH__USER_OP = 64,           /* the mesh_op of the first user's op */
    MESH__USER_OPS = 64,
    MESH__LEFT = 1000, /* operations left to streams at once */
    MESH__WALK_DEPTH = 64,
    MESH__WALK_PENDING = 48
};

#define MESH__SAY_NS INT64_C(10000000000) /* waited for so long, a rank says for whom */
#define MESH__FOREVER_NS (INT64_MAX / 4)  /* 73 years: no sum with a clock overflows */

/* What a rank called: goes into the ring and over the wire. */
typedef struct mesh__record {
    uint64_t channel, count;
    uint8_t kind, dtype, op, zero;
    int root;
    char axes[MESH__AXES_BYTES];
} mesh__record;

typedef struct mesh__group {
    const char *axes; /* its text; owned */
    mesh on;          /* its members in order */
    int index;
    uint32_t id; /* comm id << 8 | number in the list */
    uint32_t sequence;
    uint64_t fingerprint, sent, received;
    uint64_t history;   /* hash of every collective called so far: what went unnoticed in one shows in the next */
    void *handle;       /* the transport's */
    uint32_t (*p2p)[2]; /* per member: point-to-point sends and receives posted; NULL until the first */
} mesh__group;

/* A schedule is a straight-line program. */
enum {
    MESH__POST, /* start xfers first .. first+count */
    MESH__WAIT, /* hold until every post before step `first` is complete */
    MESH__REDUCE, /* dst = dst op src, n elements; src_first: dst = src op dst. A user's op may use src as scratch unless src_first */
    MESH__COPY,   /* n bytes from src to dst */
    MESH__MOVE,   /* xfer `first` of this rank to its xfer `count`, strided or not */
    MESH__DIVIDE, /* dst = dst / size of the group, n elements */
    MESH__FOLD, /* xfer `count` = xfer `count` op xfer `first`, strided or not; n > 0: xfer `count` = xfer `count` / n instead.
                     src_first: dtype | op << 8 */
    MESH__ZERO, /* xfer `first` of this rank becomes zero */
    MESH__SWAP, /* on big-endian hosts: n bytes of numbers to dst, in the other byte order; src NULL: of xfer `first`, in place,
                   src_first bytes wide where given */
    MESH__EXTEND /* call op->extend, which adds steps that could not be known before */
};

typedef struct mesh__step {
    int kind, open; /* open: a post that has not ended */
    int first, count, src_first;
    mesh_ticket ticket;
    void *dst;
    const void *src;
    size_t n;
} mesh__step;

enum {
    MESH__FREE,
    MESH__ACTIVE,
    MESH__DONE,
    MESH__RESTING /* kept, and waited for */,
    MESH__RETIRED /* until the transport closes */
};

struct mesh__engine;

typedef struct mesh__op {
    mesh_comm *comm;
    mesh__group *group;
    uint32_t slot, generation;
    int state;
    mesh_status status, failing; /* failing: the end it will have once its tickets have ended */
    uint64_t channel, check;
    mesh__record record;
    uint32_t ring; /* which of all operations remembered it is; see mesh__history_of */
    int64_t start, deadline, next_ask, ask_wait,
        gone_until; /* gone_until: when it gives up on a rank that has closed; 0: none */
    struct mesh__op *next_unused;
    uint64_t sent, received, native_sent, native_received; /* native_: of one round of the transport's own collective */
    void *args; /* a native call's counts, offsets, list: the caller's need not stay */
    int args_cap;
    uint32_t progress,
        serial;  /* progress counts every post and step that ended; serial: of all operations started, this one */
    int stalled; /* a peer took back its side or went away; 1 + its rank. Why is soon to be heard, or it is the cause itself (gone_until) */
    int issued;  /* everything is posted; only its end is awaited */
    int alone;   /* roll calls in a row that found all called, but for ranks that have left */
    int gone_seen;    /* ranks that were gone when it was last seen to need none of them */
    int kept, native; /* mesh_keep; runs as the transport's own collective */
    int detached;     /* waited for on a stream: nobody holds its request any more */
    struct mesh__op *next_detached;
    size_t elem_bytes;
    mesh_call call;
    uint64_t shape; /* hash of the counts of a multi-buffer call, or of a redistribution's plans */
    void (*extend)(struct mesh__engine *e, struct mesh__op *op);
    void *extra;       /* what extend works on */
    mesh_block *block; /* copies of the caller's */
    int block_cap;
    mesh__step *step;
    int nsteps, step_cap, at, oldest; /* at: next step; oldest: no post before it is open */
    mesh_xfer *xfer;
    int nxfers, xfer_cap;
    uint32_t *ordinal; /* point to point: the number of each xfer among those to or from its peer */
    int ordinal_cap;
    struct {
        unsigned char *p;
        size_t nbytes;
    } scratch[MESH__SCRATCHES]; /* pieces of memory, kept for the next operation in this slot unless large */
    int nscratch, out_of_memory;
} mesh__op;

typedef struct mesh__history {
    mesh__record record;
    int comm, status; /* a mesh_status; IN_PROGRESS while under way */
    int64_t start, end;
} mesh__history;

/* An answer to "what are you in": an operation and whom it waits for. */
typedef struct mesh__node {
    int rank, npending, next; /* next: the pending rank to ask next */
    uint32_t progress;
    mesh__record record;
    struct {
        int rank;
        uint32_t sends, recvs; /* posted to and from it */
    } pending[MESH__WALK_PENDING];
} mesh__node;

/* A depth-first search for a cycle of waiting ranks, one question at a time. */
typedef struct mesh__walk {
    int active, verifying, depth, cycle; /* cycle: where on the stack it starts; verifying: the next edge to confirm */
    uint32_t id;
    int64_t until;
    int nvisited;
    struct {
        int rank;
        uint64_t channel;
    } visited[4 * MESH__WALK_DEPTH];
    mesh__node stack[MESH__WALK_DEPTH];
} mesh__walk;

/* A roll call: who has called what timed out here, on transports that cannot tell (no MESH_CAP_PENDING). */
typedef struct mesh__roll {
    mesh__op *op; /* NULL: none under way */
    uint32_t id;
    int64_t until;
    int final;                         /* its deadline has passed; else only disagreement is looked for */
    int answers, absent, first_absent; /* absent: how many have not called it */
    int gone, first_gone;              /* how many have closed their transport, and cannot be asked */
    uint64_t heard[16];                /* bits: indices that have answered */
    mesh__record in;                   /* what the first absent one is in; kind NONE: nothing */
} mesh__roll;

typedef struct mesh__mail {
    struct mesh__mail *next;
    int rank, kind;
    uint32_t nbytes;
} mesh__mail; /* followed by the bytes */

typedef struct mesh__gone {
    int rank, kind; /* LOST or CLOSED */
    int64_t until;  /* LOST: when comms fail for it, unless a better cause is heard before; 0: they have */
    char *why;      /* NULL: nothing is known, or there was no memory */
} mesh__gone;

/* What is to be added to the times that this rank traces for them to be rank 0's. */
typedef struct mesh__clock {
    int known;
    int64_t offset, within; /* it is off by `within` at most */
    uint32_t asked, heard;  /* the last question, the last one answered */
    int told;               /* the answer: does the one asked know rank 0's clock, when it came, what it says */
    int64_t came, time, time_within;
} mesh__clock;

typedef struct mesh__engine {
    mesh_transport *t;
    mesh_comm **comm;
    int ncomms, comm_cap;
    mesh__op **op; /* by slot */
    int nops, op_cap;
    mesh__op *unused;                   /* free slots */
    mesh__op *detached, **detached_end; /* in the order they were waited for */
    int ndetached;
    int nactive, nissued; /* operations that have not ended; of these, those that only wait for the transport */
    unsigned polls;
    uint32_t last_id, opens, started;
    int starved; /* a control message was lost for want of memory */
    int halted;  /* the transport as a whole can go no further */
    uint64_t
        given_up; /* fingerprint of the last mesh whose opening this rank led and gave up: who comes late is told so */
    mesh__op *waiting; /* what this rank is blocked in */
    mesh__roll roll;
    mesh__history ring[MESH__RING];
    uint32_t ring_count;
    mesh__gone *gone; /* room for LOST and CLOSED of every rank: neither is dropped for want of memory */
    int ngone;
    int64_t next_gone; /* the first of gone[].until; 0: none */
    mesh__mail *mail, **mail_end;
    mesh__walk *walk; /* allocated when first needed */
    uint32_t walks;
    int failed;      /* a comm did */
    int64_t longest; /* deadline of its comms' operations */
    mesh__clock clock;
} mesh__engine;

/* Memory that the transport has registered, for each group. */
typedef struct mesh__registration {
    struct mesh__registration *next;
    int ngroups;
    void *handle[1]; /* ngroups of them */
} mesh__registration;

typedef struct mesh__comm_impl {
    mesh__engine *engine;
    mesh__group **group;
    int ngroups, group_cap;
    int64_t timeout, ask;
    char name[32];
    /* two calls that disagree, while their texts are being gathered */
    int disputing, dispute_ranks;
    int64_t dispute_until;
    int dispute_rank[2];
    mesh__record dispute[2], dispute_before; /* dispute_before: the call before the first of them */
    int has_before;
    mesh_error dispute_why;
    mesh_tuning tuning;
    mesh_topology topology;
    int64_t scratch_cap;
    void **graphs; /* scratch of operations that went into graphs */
    int ngraphs, graph_cap;
    void *stream;
    int blocking;       /* what is started now is waited for at once */
    uint32_t *nonce;    /* the first rank's: which opening of each index it answered */
    mesh_error stalled; /* why the first ticket ended that took an operation with it */
    int untold;         /* the announcement did not go out to all; an abort's flavour + 1 */
    int told_record;    /* with `told` */
    mesh__record told;
    /* a rank that says it has closed this comm, and which operation needed it then */
    int closed_rank;
    uint32_t closed_serial, closed_progress;
    mesh_user_op user_op[MESH__USER_OPS];
    int nuser_ops;
    mesh__registration *registered;
} mesh__comm_impl;

static inline mesh__comm_impl *mesh__impl(const mesh_comm *c) { return (mesh__comm_impl *)c->impl; }
/* What is remembered of an operation; NULL: 256 others were started since. */
static inline mesh__history *mesh__history_of(mesh__engine *e, const mesh__op *op) {
    return e->ring_count - op->ring <= (uint32_t)MESH__RING ? &e->ring[op->ring % MESH__RING] : NULL;
}
static inline void mesh__history_end(mesh__engine *e, const mesh__op *op, int status) {
    mesh__history *h = mesh__history_of(e, op);
    if (!h) return;
    h->status = status;
    h->end = e->t->ops->now(e->t);
}
static inline uint32_t mesh__remembered(const mesh__engine *e) {
    return e->ring_count < (uint32_t)MESH__RING ? e->ring_count : (uint32_t)MESH__RING;
}
/* Has a transport an optional member? One built against an older header has a shorter struct. */
#define MESH__HAS(ops, member) ((ops)->struct_size > offsetof(mesh_ops, member) && (ops)->member)

static inline int64_t mesh__now(mesh__engine *e) { return e->t->ops->now(e->t); }

static inline const char *mesh__or_empty(const char *text) { return text ? text : ""; }

static inline const char *mesh__call_name(int kind) {
#define MESH_X(name, text, flags) text,
    static const char *const names[] = {MESH_CALLS(MESH_X)};
#undef MESH_X
    return kind >= 0 && kind < MESH_CALL_COUNT ? names[kind] : "unknown call";
}

/* Has this kind of call the property (MESH_REDUCES, ...)? */
static inline int mesh__call_is(int kind, int property) {
#define MESH_X(name, text, flags) flags,
    static const uint8_t properties[] = {MESH_CALLS(MESH_X)};
#undef MESH_X
    return kind >= 0 && kind < MESH_CALL_COUNT && (properties[kind] & property) != 0;
}

/* Nothing but a meeting of all ranks of the group. */
static inline int mesh__is_meeting(int kind) {
    return kind == MESH_CALL_BARRIER || kind == MESH_CALL_GROUP_OPEN || kind == MESH_CALL_REGISTER;
}

/* A list's record has the hash of its counts where others have the root: lists that differ are then seen to. */
static inline int mesh__is_unrooted_list(int kind) {
    return kind == MESH_CALL_ALL_REDUCE_MANY || kind == MESH_CALL_ALL_GATHER_MANY ||
           kind == MESH_CALL_REDUCE_SCATTER_MANY;
}

/* "all_reduce(4 x f32, sum) on axis "dp", sequence 7" */
static inline void mesh__put_record(mesh__text *t, const mesh__record *r) {
    mesh__put(t, "%s(", mesh__call_name(r->kind));
    if (r->kind == MESH_CALL_BARRIER) {
    } else if (r->kind == MESH_CALL_GROUP_OPEN) {
        mesh__put(t, "list %x", r->count);
    } else if (r->kind == MESH_CALL_BROADCAST_OBJECT) {
        mesh__put(t, "an object");
    } else if (r->kind == MESH_CALL_REDISTRIBUTE) {
        mesh__put(t, "%s, plan %x", mesh_dtype_name((mesh_dtype)r->dtype), r->count);
    } else if (mesh__call_is(r->kind, MESH_BY_COUNTS)) {
        mesh__put(t, "%s", mesh_dtype_name((mesh_dtype)r->dtype));
    } else {
        mesh__put(t, "%u x %s", r->count, mesh_dtype_name((mesh_dtype)r->dtype));
    }
    if (mesh__call_is(r->kind, MESH_REDUCES) && r->op < MESH_OP_COUNT)
        mesh__put(t, ", %s", mesh_op_name((mesh_op)r->op));
    else if (mesh__call_is(r->kind, MESH_REDUCES))
        mesh__put(t, ", user op %d", r->op - MESH__USER_OP);
    if (mesh__call_is(r->kind, MESH_ROOTED)) mesh__put(t, ", root %d", r->root);
    if (mesh__is_unrooted_list(r->kind)) mesh__put(t, ", buffers' counts #%x", (uint64_t)(uint32_t)r->root);
    mesh__put(t, ") on \"%s\"", r->axes);
    if ((uint32_t)r->channel) mesh__put(t, ", sequence %u", (uint64_t)(uint32_t)r->channel);
}

enum { MESH__RECORD_BYTES = 24 + MESH__AXES_BYTES };

static inline void mesh__record_write(unsigned char *p, const mesh__record *r) {
    mesh__put64(p, r->channel);
    mesh__put64(p + 8, r->count);
    p[16] = r->kind;
    p[17] = r->dtype;
    p[18] = r->op;
    p[19] = 0;
    mesh__put32(p + 20, (uint32_t)r->root);
    memcpy(p + 24, r->axes, MESH__AXES_BYTES);
}

static inline void mesh__record_read(mesh__record *r, const unsigned char *p) {
    r->channel = mesh__get64(p);
    r->count = mesh__get64(p + 8);
    r->kind = p[16];
    r->dtype = p[17];
    r->op = p[18];
    r->zero = 0;
    r->root = (int)mesh__get32(p + 20);
    memcpy(r->axes, p + 24, MESH__AXES_BYTES);
    r->axes[MESH__AXES_BYTES - 1] = 0;
}

static inline int mesh__record_same(const mesh__record *a, const mesh__record *b) {
    return a->channel == b->channel && a->kind == b->kind && a->dtype == b->dtype && a->op == b->op &&
           a->count == b->count && a->root == b->root;
}

static inline int mesh__on_device(const mesh__engine *e) {
    return e->t->caps & MESH_CAP_DEVICE && MESH__HAS(e->t->ops, alloc) && MESH__HAS(e->t->ops, free);
}

static inline void mesh__scratch_free(mesh__engine *e, mesh__op *op, size_t above) {
    int i;
    for (i = 0; i < MESH__SCRATCHES; i++) {
        if (!op->scratch[i].p || op->scratch[i].nbytes <= above) continue;
        if (mesh__on_device(e))
            e->t->ops->free(e->t, op->scratch[i].p);
        else
            mesh_transport_free(e->t, op->scratch[i].p);
        op->scratch[i].p = NULL;
        op->scratch[i].nbytes = 0;
    }
}

/* Did its posts go into a graph? */
static inline int mesh__op_captured(const mesh__op *op) {
    const mesh__step *last = op->nsteps ? &op->step[op->nsteps - 1] : NULL;
    return last && last->kind == MESH__POST && last->ticket.id == MESH_TICKET_CAPTURED;
}

/* A graph runs again when it likes: what an operation in it used stays its own until the comm is closed. */
static inline void mesh__scratch_to_graph(mesh__engine *e, mesh__op *op) {
    mesh__comm_impl *impl = mesh__impl(op->comm);
    int i;
    for (i = 0; i < op->nscratch && i < MESH__SCRATCHES; i++) {
        if (op->scratch[i].p &&
            mesh__grow(e->t, (void **)&impl->graphs, &impl->graph_cap, impl->ngraphs + 1, sizeof *impl->graphs))
            impl->graphs[impl->ngraphs++] = op->scratch[i].p; /* without memory it is lost, which is safe */
        op->scratch[i].p = NULL;
        op->scratch[i].nbytes = 0;
    }
}

static inline void mesh__op_release(mesh__engine *e, mesh__op *op) {
    if (op->comm && mesh__op_captured(op)) mesh__scratch_to_graph(e, op);
    op->state = MESH__FREE;
    op->kept = op->detached = 0;
    op->comm = NULL;
    op->next_unused = e->unused;
    e->unused = op;
    mesh__scratch_free(e, op, MESH__SCRATCH_KEPT);
}

/* ---- // >>engine: failure ------------------------------------------------------------------------------------------------------ */

enum {
    MESH__MSG_HELLO = 1,
    MESH__MSG_WELCOME,
    MESH__MSG_FAREWELL,
    MESH__MSG_ASK,
    MESH__MSG_SAY,
    MESH__MSG_ROLL,
    MESH__MSG_HERE,
    MESH__MSG_CLOCK,
    MESH__MSG_TIME
};
enum {
    MESH__HELLO_HEAD = 28,
    MESH__WELCOME_HEAD = 20,
    MESH__ROW_BYTES = 16 /* of the tuning table, last */,
    MESH__LEVEL_BYTES = 20
};
enum { MESH__CLOCK_BYTES = 8, MESH__TIME_BYTES = 28, MESH__CLOCK_TRIPS = 8 };
enum { MESH__ABORT_PLAIN, MESH__ABORT_DISPUTE, MESH__ABORT_CLOSED /* believed only where it explains a wait */ };
enum { MESH__ABORT_HEAD = 16 + 2 * MESH__RECORD_BYTES }; /* the call in dispute, the one before it */

static inline const mesh__record *mesh__record_of(mesh__engine *e, uint64_t channel) {
    uint32_t i, n = mesh__remembered(e);
    for (i = 1; i <= n; i++) {
        mesh__history *h = &e->ring[(e->ring_count - i) % MESH__RING];
        if (h->record.channel == channel) return &h->record;
    }
    return NULL;
}

/* The collective called before in the same group; NULL: none, or forgotten. */
static inline const mesh__record *mesh__record_before(mesh__engine *e, const mesh__record *r) {
    return (uint32_t)r->channel > 1 ? mesh__record_of(e, r->channel - 1) : NULL;
}

/* Why a comm fails, as a message. Returns its length: the text goes as far as a control message reaches. */
static inline size_t mesh__abort_write(unsigned char *data, mesh_comm *c, int flavour, const mesh__record *record) {
    mesh__engine *e = mesh__impl(c)->engine;
    const mesh__record *before;
    size_t length = strlen(c->error.text), room = (size_t)MESH_CONTROL_BYTES - (size_t)MESH__ABORT_HEAD;
    memset(data, 0, MESH_CONTROL_BYTES);
    mesh__put32(data, c->id);
    mesh__put32(data + 4, (uint32_t)c->error.status);
    mesh__put32(data + 8, (uint32_t)c->error.rank);
    mesh__put32(data + 12, (uint32_t)flavour);
    if (record) mesh__record_write(data + 16, record);
    if (record && (before = mesh__record_before(e, record)) != NULL)
        mesh__record_write(data + 16 + MESH__RECORD_BYTES, before);
    if (length > room) length = room;
    memcpy(data + MESH__ABORT_HEAD, c->error.text, length);
    return MESH__ABORT_HEAD + length;
}

/* Send it to every other rank. Returns 0 if the transport had no memory for one of them. */
static inline int mesh__abort_send(mesh_comm *c, int flavour, const mesh__record *record) {
    mesh__engine *e = mesh__impl(c)->engine;
    unsigned char data[MESH_CONTROL_BYTES];
    size_t length = mesh__abort_write(data, c, flavour, record);
    int i, told = 1;
    for (i = 0; i < c->on.size; i++) {
        int rank = mesh_rank_at(&c->on, i);
        if (rank != e->t->rank &&
            e->t->ops->control_send(e->t, rank, MESH_EVENT_ABORT, data, length) == MESH_ERR_MEMORY)
            told = 0;
    }
    return told;
}

/* Tell every other rank of the comm why it fails, before this rank hears of it: the program may end then without a goodbye. */
static inline void mesh__announce(mesh_comm *c, int flavour, const mesh__record *record) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__engine *e = impl->engine;
    int64_t until = mesh__now(e) + MESH__TELL_NS;
    int told = mesh__abort_send(c, flavour, record);
    while (!told && mesh__now(e) < until) { /* memory may come back */
        e->t->ops->progress(e->t, mesh__now(e) + 1000000);
        told = mesh__abort_send(c, flavour, record);
    }
    impl->untold = told ? 0 : 1 + flavour;
    impl->told_record = record != NULL;
    if (record) impl->told = *record;
    if (MESH__HAS(e->t->ops, control_flush)) e->t->ops->control_flush(e->t, until);
}

/* What could not be said for want of memory is said again: who has heard it does not mind. */
static inline void mesh__announce_again(mesh_comm *c) {
    mesh__comm_impl *impl = mesh__impl(c);
    if (impl->untold && mesh__abort_send(c, impl->untold - 1, impl->told_record ? &impl->told : NULL)) impl->untold = 0;
}

static inline void mesh__op_not_issued(mesh__engine *e, mesh__op *op) {
    e->nissued -= op->issued;
    op->issued = 0;
}

static inline void mesh__op_cancel(mesh__engine *e, mesh__op *op, mesh_status status) {
    int i;
    if (op->state != MESH__ACTIVE || op->failing) return;
    op->failing = status;
    mesh__op_not_issued(e, op);
    for (i = op->oldest; i < op->at; i++)
        if (op->step[i].kind == MESH__POST && op->step[i].open) e->t->ops->cancel(e->t, &op->step[i].ticket);
}

/* Without a way to cancel a ticket, all of a comm ends at once. */
static inline void mesh__groups_abort(mesh_comm *c) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh_transport *t = impl->engine->t;
    int i;
    if (t->caps & MESH_CAP_CANCEL || !MESH__HAS(t->ops, group_abort)) return;
    for (i = 0; i < impl->ngroups; i++)
        if (impl->group[i]->handle) t->ops->group_abort(t, impl->group[i]->handle, c->error.text);
}

static inline void mesh__log_history(mesh_comm *c) {
    mesh__engine *e = mesh__impl(c)->engine;
    char text[8192];
    if (!e->t->log) return;
    e->t->log(e->t->log_ctx, 0, c->error.text);
    mesh_comm_history(c, text, sizeof text);
    e->t->log(e->t->log_ctx, 2, text);
}

/* The comm fails with what stands in c->error; the first cause wins (callers check c->failed). */
static inline void mesh__comm_fail(mesh_comm *c) {
    mesh__engine *e = mesh__impl(c)->engine;
    int i;
    c->failed = e->failed = 1;
    mesh__impl(c)->disputing = 0;
    for (i = 0; i < e->nops; i++)
        if (e->op[i]->comm == c) {
            if (e->op[i]->state == MESH__ACTIVE && !e->op[i]->failing) mesh__history_end(e, e->op[i], c->error.status);
            mesh__op_cancel(e, e->op[i], (mesh_status)c->error.status);
        }
    mesh__groups_abort(c);
    mesh__log_history(c);
}

/* Fail a comm for a cause found here, and tell the others. */
static inline mesh_status mesh__comm_broken(mesh_comm *c, mesh_status status, int rank, const char *format, ...) {
    va_list args;
    if (c->failed) return (mesh_status)c->error.status;
    va_start(args, format);
    mesh__vfail(&c->error, status, rank, format, args);
    va_end(args);
    mesh__comm_fail(c);
    mesh__announce(c, MESH__ABORT_PLAIN, NULL);
    return status;
}

/* ---- disagreement: name both calls. Each side of it announces its own call; a rank that has two different ones can tell. */

static inline void mesh__dispute_settle(mesh_comm *c) {
    mesh__comm_impl *impl = mesh__impl(c);
    char calls[360];
    mesh__text t = mesh__text_on(calls, sizeof calls);
    int i;
    for (i = 0; i < impl->dispute_ranks; i++) {
        mesh__put(&t, "%srank %d calls ", i ? ", " : "", impl->dispute_rank[i]);
        mesh__put_record(&t, &impl->dispute[i]);
    }
    if (impl->dispute_ranks < 2) mesh__put(&t, "%s%s", t.len ? "; " : "", impl->dispute_why.text);
    mesh__fail(&c->error, MESH_ERR_MISMATCH, impl->dispute_ranks == 2 ? impl->dispute_rank[1] : impl->dispute_why.rank,
               "%s: ranks disagree: %s; call the same on every rank of the group", impl->name, calls);
    mesh__comm_fail(c);
}

/* Do two ranks call in the same group? All groups along the same axes share their channels. */
static inline int mesh__same_group(const mesh_comm *c, uint64_t channel, int a, int b) {
    const mesh__comm_impl *impl = mesh__impl(c);
    int k = (int)(channel >> 32 & 255), group = k < impl->ngroups ? mesh_group_of(&c->on, impl->group[k]->axes, a) : -1;
    return group >= 0 && group == mesh_group_of(&c->on, impl->group[k]->axes, b);
}

/* before: the call before r, or NULL. Where the calls are the same, the ones before them may be what differs. */
static inline void mesh__dispute_add(mesh_comm *c, int rank, const mesh__record *r, const mesh__record *before) {
    mesh__comm_impl *impl = mesh__impl(c);
    if (impl->dispute_ranks == 1 && mesh__record_same(&impl->dispute[0], r) && before && impl->has_before &&
        impl->dispute_before.channel == before->channel && !mesh__record_same(&impl->dispute_before, before) &&
        mesh__same_group(c, r->channel, rank, impl->dispute_rank[0])) {
        impl->dispute[0] = impl->dispute_before;
        r = before;
    }
    if (impl->dispute_ranks == 0) {
        impl->has_before = before != NULL;
        if (before) impl->dispute_before = *before;
    }
    if (impl->dispute_ranks == 1 && !mesh__same_group(c, r->channel, rank, impl->dispute_rank[0])) return;
    if (impl->dispute_ranks == 1 && (mesh__record_same(&impl->dispute[0], r) || impl->dispute[0].channel != r->channel))
        return;
    impl->dispute_rank[impl->dispute_ranks] = rank;
    impl->dispute[impl->dispute_ranks++] = *r;
    if (impl->dispute_ranks == 2) mesh__dispute_settle(c);
}

/* Begin to gather the calls on a channel: `mine` is this rank's (NULL: it has made none). */
static inline void mesh__dispute_open(mesh_comm *c, const mesh__record *mine, const mesh_error *why) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__engine *e = impl->engine;
    int i;
    if (c->failed || impl->disputing) return;
    impl->disputing = 1;
    impl->dispute_ranks = 0;
    impl->dispute_why = *why;
    impl->dispute_until = mesh__now(e) + INT64_C(1000000000);
    for (i = 0; i < e->nops; i++)
        if (e->op[i]->comm == c) mesh__op_cancel(e, e->op[i], MESH_ERR_MISMATCH);
    if (!mine) return;
    mesh__dispute_add(c, e->t->rank, mine, mesh__record_before(e, mine));
    c->error = *why;
    mesh__announce(c, MESH__ABORT_DISPUTE, mine);
}

static inline int mesh__op_pending(mesh__engine *e, const mesh__op *op, int *ranks, int cap);

/* Who closes the comm, or leaves, during a roll call owes no other answer: it had ended what it was in. Returns 1 if its answer was owed. */
static inline int mesh__roll_excused(mesh__engine *e, int rank) {
    mesh__roll *roll = &e->roll;
    int index = roll->op ? mesh_index_of(&roll->op->group->on, rank) : -1;
    if (index < 0 || index >= 1024 || roll->heard[index / 64] >> index % 64 & 1) return 0;
    roll->heard[index / 64] |= UINT64_C(1) << index % 64;
    return 1;
}

/* A rank says it has closed the comm. That is news only where an operation still waits for it, and goes on waiting when it has been asked
   once more: what it sent before it closed may only be arriving. */
static inline int mesh__closed_heard(mesh_comm *c, int from) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__engine *e = impl->engine;
    int ranks[MESH__WALK_PENDING], i, k, n;
    for (i = 0; i < e->nops; i++) {
        mesh__op *op = e->op[i];
        if (op->comm != c || op->state != MESH__ACTIVE || op->failing) continue;
        if (e->t->caps & MESH_CAP_PENDING) {
            n = mesh__op_pending(e, op, ranks, MESH__WALK_PENDING);
            for (k = 0; k < n && ranks[k] != from; k++) {}
            if (k == n) continue;
        } else if (mesh_index_of(&op->group->on, from) < 0) {
            continue;
        }
        if (impl->closed_rank && impl->closed_serial == op->serial && impl->closed_progress == op->progress) {
            if (impl->closed_rank == from + 1) return 1;
            return 0; /* one of several that say so; the first is listened to */
        }
        impl->closed_rank = from + 1;
        impl->closed_serial = op->serial;
        impl->closed_progress = op->progress;
        if (e->waiting) e->waiting->next_ask = mesh__now(e);
        return 0;
    }
    return 0;
}

/* An error of another rank's. What is none that there is counts as the loss of that rank: never as success. */
static inline mesh_status mesh__status_heard(const unsigned char *p) {
    int status = (int)mesh__get32(p);
    return status < 0 && status >= MESH_ERR_TRANSPORT ? (mesh_status)status : MESH_ERR_PEER;
}

static inline void mesh__comm_abort_heard(mesh_comm *c, int from, const unsigned char *data, uint32_t nbytes) {
    mesh__engine *e = mesh__impl(c)->engine;
    char text[MESH_ERROR_BYTES];
    uint32_t length = nbytes - MESH__ABORT_HEAD;
    mesh__record theirs, before;
    if (mesh__get32(data + 12) == MESH__ABORT_CLOSED && e->roll.op && e->roll.op->comm == c)
        e->roll.answers += mesh__roll_excused(e, from);
    if (c->failed || (mesh__get32(data + 12) == MESH__ABORT_CLOSED && !mesh__closed_heard(c, from))) return;
    if (length > sizeof text - 1) length = (uint32_t)sizeof text - 1;
    memcpy(text, data + MESH__ABORT_HEAD, length);
    text[length] = 0;
    mesh__record_read(&theirs, data + 16);
    mesh__record_read(&before, data + 16 + MESH__RECORD_BYTES);
    if (mesh__get32(data + 12) == MESH__ABORT_DISPUTE) {
        mesh_error why;
        const mesh__record *mine =
            mesh__same_group(c, theirs.channel, from, e->t->rank) ? mesh__record_of(e, theirs.channel) : NULL;
        if (!(uint32_t)theirs.channel && (int)mesh__get32(data + 8) != e->t->rank)
            mine = NULL; /* a message between two others */
        mesh__fail(&why, MESH_ERR_MISMATCH, from, "rank %d says: %s", from, text);
        mesh__dispute_open(c, mine, &why);
        if (!c->failed) mesh__dispute_add(c, from, &theirs, before.channel ? &before : NULL);
        return;
    }
    mesh__fail(&c->error, mesh__status_heard(data + 4), (int)mesh__get32(data + 8), "rank %d failed: %s", from, text);
    if (c->error.rank < 0 || c->error.rank >= e->t->size) c->error.rank = from;
    mesh__comm_fail(c);
    if (mesh_index_of(&c->on, from) < 0)
        mesh__announce(c, MESH__ABORT_PLAIN, NULL); /* the comm's other ranks do not know it yet */
}

/* ---- // >>engine: operations ---------------------------------------------------------------------------------------------------- */

/* The one place where posts go to the transport. */
static inline mesh_status mesh__post(mesh__engine *e, mesh__op *op, mesh__step *s) {
    mesh_post p;
    mesh_status status;
    int i;
    p.group = op->group->handle;
    p.channel = op->channel;
    p.check = op->check;
    p.record = &op->record;
    p.xfer = s->count ? op->xfer + s->first : NULL;
    p.count = s->count; /* 0 where another schedule has more, or as a mark */
    p.flags = 0;
    status = e->t->ops->post(e->t, &p, &s->ticket);
    if (status != MESH_OK) return status;
    s->open = 1;
    for (i = 0; i < s->count; i++) {
        uint64_t nbytes = p.xfer[i].nbytes;
        if (p.xfer[i].direction == MESH_SEND)
            op->group->sent += nbytes, op->sent += nbytes;
        else
            op->group->received += nbytes, op->received += nbytes;
    }
    return MESH_OK;
}

static inline void mesh__trace(mesh__engine *e, const mesh__op *op) {
    const mesh_comm *c = op->comm;
    mesh_trace_event v;
    memset(&v, 0, sizeof v);
    v.call = mesh__call_name(op->call.kind);
    v.comm = mesh__impl(c)->name;
    v.axes = op->group->axes;
    v.dtype = mesh_dtype_name((mesh_dtype)op->call.dtype);
    v.op = !mesh__call_is(op->call.kind, MESH_REDUCES) ? ""
           : op->call.op < MESH_OP_COUNT               ? mesh_op_name((mesh_op)op->call.op)
                                                       : "user op";
    v.group = mesh_group_of(&c->on, op->group->axes, e->t->rank);
    v.ranks = op->group->on.size;
    v.slot = (int)op->slot;
    v.status = op->status;
    v.comm_id = c->id;
    v.sequence = (uint32_t)op->channel;
    v.count = op->record.count;
    v.sent = op->sent;
    v.received = op->received;
    v.start = op->start;
    v.end = mesh__now(e);
    e->t->trace(e->t->trace_ctx, &v);
}

/* Operations left to a stream, in the order they were left. */
static inline void mesh__op_detach(mesh__engine *e, mesh__op *op) {
    op->detached = 1;
    op->next_detached = NULL;
    if (!e->detached) e->detached_end = &e->detached;
    *e->detached_end = op;
    e->detached_end = &op->next_detached;
    e->ndetached++;
}
static inline void mesh__op_attach(mesh__engine *e, mesh__op *op) {
    mesh__op **at = &e->detached;
    while (*at != op) at = &(*at)->next_detached;
    *at = op->next_detached;
    if (e->detached_end == &op->next_detached) e->detached_end = at;
    op->detached = 0;
    e->ndetached--;
}

static inline void mesh__op_end(mesh__engine *e, mesh__op *op, mesh_status status) {
    op->state = MESH__DONE;
    op->status = status;
    e->nactive--;
    if (e->roll.op == op) e->roll.op = NULL;
    mesh__op_not_issued(e, op);
    mesh__history_end(e, op, status);
    if (e->t->trace) mesh__trace(e, op);
    if (!op->detached) return;
    mesh__op_attach(e, op);
    if (op->kept)
        op->state = MESH__RESTING;
    else
        mesh__op_release(e, op);
}

/* A ticket ended badly, or a post was refused. */
static inline void mesh__op_broken(mesh__engine *e, mesh__op *op, mesh_status status, const mesh_error *why) {
    mesh_comm *c = op->comm;
    if (op->failing) return;
    if (mesh__impl(c)->disputing) status = MESH_ERR_MISMATCH; /* started since; what went wrong with it follows from that */
    if (status == MESH_ERR_MISMATCH) {
        mesh__dispute_open(c, &op->record, why);
    } else {
        char call[160];
        mesh__text t = mesh__text_on(call, sizeof call);
        mesh__put_record(&t, &op->record);
        mesh__comm_broken(c, status, why->rank, "%s: %s: %s", mesh__impl(c)->name, call, why->text);
    }
    mesh__op_cancel(e, op, status);
}

/* A ticket ended because a peer took its side back or went away. That may follow from something else, which is soon heard then. */
static inline void mesh__op_stall(mesh__engine *e, mesh__op *op, mesh_status status, const mesh_error *why) {
    mesh__comm_impl *impl = mesh__impl(op->comm);
    if (op->stalled) return;
    op->gone_until = mesh__now(e) + MESH__GRACE_NS;
    op->stalled = 1 + (why->rank < 0 ? e->t->rank : why->rank);
    if (impl->stalled.status) return;
    mesh__fail(&impl->stalled, MESH_ERR_PEER, op->stalled - 1, "%s",
               status == MESH_ERR_PEER && why->text[0] ? why->text : "");
    if (!impl->stalled.text[0])
        mesh__fail(&impl->stalled, MESH_ERR_PEER, op->stalled - 1, "rank %d canceled its side of it", op->stalled - 1);
}

/* Test the posts before step `end`. Returns 1 when none of them is open. */
static inline int mesh__op_settled(mesh__engine *e, mesh__op *op, int end) {
    int i, settled = 1;
    for (i = op->oldest; i < end; i++) {
        mesh__step *s = &op->step[i];
        mesh_error why;
        mesh_status status;
        if (s->kind == MESH__POST && s->open) {
            why.text[0] = 0;
            why.rank = -1;
            status = e->t->ops->test(e->t, &s->ticket, &why);
            if (status == MESH_IN_PROGRESS) {
                settled = 0;
                continue;
            }
            if (status == MESH_ERR_TIMEOUT && !op->failing && !(e->t->caps & MESH_CAP_PENDING)) {
                op->deadline = 0; /* a watchdog's word: first the others are asked */
                settled = 0;
                continue;
            }
            s->open = 0;
            op->progress++;
            if ((status == MESH_ERR_CANCELED || status == MESH_ERR_PEER) && !op->failing) {
                mesh__op_stall(e, op, status, &why);
            } else if (status != MESH_OK) {
                mesh__op_broken(e, op, status, &why);
            }
        }
        if (i == op->oldest) op->oldest++;
    }
    return settled;
}

static inline mesh_status mesh__step_reduce(mesh__engine *e, mesh__op *op, mesh__step *s, int divide) {
    const mesh_ops *ops = e->t->ops;
    size_t width = mesh__swap_width(&op->call);
    void *src = (void *)(uintptr_t)s->src;
    if (MESH__HAS(ops, reduce))
        return ops->reduce(e->t, op->group->handle, op->call.op, op->call.dtype, s->dst, NULL, src, NULL, s->n, divide);
    e->t->inside.combining = op->call.user_op != NULL;
    if (width)
        mesh__combine_swapped(&op->call, s->dst, src, s->n, op->elem_bytes, s->src_first, divide, width);
    else
        mesh__combine(&op->call, s->dst, src, s->n, op->elem_bytes, s->src_first, divide);
    e->t->inside.combining = 0;
    return MESH_OK;
}

/* A reduction from one strided block to another; memory holds the host's byte order. */
static inline mesh_status mesh__step_fold(mesh__engine *e, mesh__op *op, mesh__step *s) {
    const mesh_xfer *from = &op->xfer[s->first], *to = &op->xfer[s->count];
    mesh__cursor src = mesh__cursor_on(from), dst = mesh__cursor_on(to);
    mesh_call call;
    size_t elem = mesh_dtype_bytes((mesh_dtype)(s->src_first & 255));
    memset(&call, 0, sizeof call);
    call.dtype = s->src_first & 255;
    call.op = s->src_first >> 8;
    uint64_t left, n;
    if (MESH__HAS(e->t->ops, reduce))
        return e->t->ops->reduce(e->t, op->group->handle, call.op, call.dtype, to->base, to->block, from->base,
                                 from->block, to->nbytes / elem, (int)s->n);
    for (left = to->nbytes; left; left -= n) {
        n = src.left < dst.left ? src.left : dst.left;
        mesh__combine(&call, dst.p, src.p, (size_t)n / elem, elem, 0, (int)s->n);
        mesh__cursor_move(&src, n);
        mesh__cursor_move(&dst, n);
    }
    return MESH_OK;
}

static inline mesh_status mesh__step_run(mesh__engine *e, mesh__op *op, mesh__step *s) {
    const mesh_ops *ops = e->t->ops;
    void *group = op->group->handle;
    int n = op->group->on.size;
    const mesh_xfer *from, *to;
    switch (s->kind) {
    case MESH__COPY:
        if (MESH__HAS(ops, copy)) return ops->copy(e->t, group, s->dst, NULL, s->src, NULL, s->n);
        memmove(s->dst, s->src, s->n);
        return MESH_OK;
    case MESH__MOVE:
        from = &op->xfer[s->first];
        to = &op->xfer[s->count];
        if (MESH__HAS(ops, copy))
            return ops->copy(e->t, group, to->base, to->block, from->base, from->block, from->nbytes);
        mesh__move(from, to);
        return MESH_OK;
    case MESH__DIVIDE:
        return mesh__step_reduce(e, op, s, n);
    case MESH__FOLD:
        return mesh__step_fold(e, op, s);
    case MESH__ZERO:
        to = &op->xfer[s->first];
        if (MESH__HAS(ops, copy)) return ops->copy(e->t, group, to->base, to->block, NULL, NULL, to->nbytes);
        mesh__zero(to);
        return MESH_OK;
    case MESH__SWAP:
        if (s->src)
            mesh__swap(s->dst, s->src, s->n, mesh__swap_width(&op->call));
        else
            mesh__swap_xfer(&op->xfer[s->first], s->src_first ? (size_t)s->src_first : mesh__swap_width(&op->call));
        return MESH_OK;
    case MESH__EXTEND:
        op->extend(e, op);
        return op->out_of_memory ? MESH_ERR_MEMORY : MESH_OK;
    default:
        return mesh__step_reduce(e, op, s, 0);
    }
}

static inline void mesh__op_advance(mesh__engine *e, mesh__op *op) {
    if (op->state != MESH__ACTIVE) return;
    if (op->failing) {
        if (mesh__op_settled(e, op, op->at) && !mesh__impl(op->comm)->disputing)
            mesh__op_end(e, op, op->comm->failed ? (mesh_status)op->comm->error.status : op->failing);
        return;
    }
    if (op->stalled) mesh__op_settled(e, op, op->at);
    if (op->stalled && !op->failing && mesh__now(e) >= op->gone_until) {
        mesh__op_broken(e, op, MESH_ERR_PEER, &mesh__impl(op->comm)->stalled);
    }
    if (op->stalled) return;
    while (op->at < op->nsteps) {
        mesh__step *s = &op->step[op->at];
        mesh_status status = MESH_OK;
        if (s->kind == MESH__WAIT && !(e->t->caps & MESH_CAP_ORDERED) && !mesh__op_settled(e, op, s->first)) return;
        if (op->failing || op->stalled) return;
        if (s->kind == MESH__POST)
            status = mesh__post(e, op, s);
        else if (s->kind != MESH__WAIT)
            status = mesh__step_run(e, op, s);
        if (status != MESH_OK) {
            static const char *const what[] = {"to post",   "to wait",   "to reduce", "to copy",       "to copy",
                                               "to divide", "to reduce", "to zero",   "to swap bytes", "memory"};
            mesh_error why;
            mesh__fail(&why, status, -1, "the transport (%s) refused %s: %s", e->t->ops->name,
                       what[op->step[op->at].kind], mesh_status_text(status));
            mesh__op_broken(e, op, status, &why);
            return;
        }
        op->at++;
        op->progress++;
    }
    if (mesh__op_settled(e, op, op->at) && !op->failing && !op->stalled) {
        mesh__op_end(e, op, MESH_OK);
    } else if (!op->failing && !op->issued && !op->stalled) {
        op->issued = 1;
        e->nissued++;
    }
}

/* World ranks whose side of an operation's posts is not matched yet. */
static inline int mesh__op_pending(mesh__engine *e, const mesh__op *op, int *ranks, int cap) {
    int i, k, j, n = 0;
    for (i = op->oldest; i < op->at; i++) {
        int found[MESH__WALK_PENDING], count;
        if (op->step[i].kind != MESH__POST || !op->step[i].open) continue;
        count = e->t->ops->pending(e->t, &op->step[i].ticket, found, MESH__WALK_PENDING);
        if (count > MESH__WALK_PENDING) count = MESH__WALK_PENDING;
        for (k = 0; k < count; k++) {
            for (j = 0; j < n && ranks[j] != found[k]; j++) {}
            if (j == n && n < cap) ranks[n++] = found[k];
        }
    }
    return n;
}

/* "ranks 1, 3 and 5 of 8" for messages. */
static inline void mesh__put_ranks(mesh__text *t, const int *ranks, int n) {
    int i;
    if (n == 0) mesh__put(t, "bytes that are under way");
    for (i = 0; i < n && i < 16; i++) mesh__put(t, "%s%d", i ? ", " : n > 1 ? "ranks " : "rank ", ranks[i]);
    if (n > 16) mesh__put(t, " and %d more", n - 16);
}

/* Call the roll: ask every other rank of the group whether it has called this operation. Who has called something else says so at once. */
static inline void mesh__op_posted(mesh__engine *e, const mesh__op *op, int rank, uint32_t *sends, uint32_t *recvs);
enum { MESH__ROLL_BYTES = 16 + MESH__RECORD_BYTES, MESH__HERE_BYTES = 12 + MESH__RECORD_BYTES };

/* A quarter of the deadline, 0.1 to 1 s: who is in the library answers at once. */
static inline int64_t mesh__roll_time(const mesh__op *op) {
    int64_t part = mesh__impl(op->comm)->timeout / 4, most = MESH__ROLL_NS;
    return part < most / 10 ? most / 10 : part < most ? part : most;
}

static inline void mesh__roll_start(mesh__engine *e, mesh__op *op, int final) {
    const mesh *on = &op->group->on;
    unsigned char ask[MESH__ROLL_BYTES];
    uint32_t sends, recvs;
    int i;
    memset(&e->roll, 0, sizeof e->roll);
    e->roll.op = op;
    e->roll.final = final;
    e->roll.id = ++e->walks;
    e->roll.until = mesh__now(e) + mesh__roll_time(op);
    mesh__put32(ask, MESH__MSG_ROLL);
    mesh__put32(ask + 4, e->roll.id);
    mesh__record_write(ask + 16, &op->record);
    for (i = 0; i < on->size; i++) {
        int rank = mesh_rank_at(on, i), k;
        if (i == op->group->index) continue;
        for (k = 0; k < e->ngone && e->gone[k].rank != rank; k++) {}
        if (k < e->ngone) {
            if (!e->roll.gone++) e->roll.first_gone = rank;
            if (i < 1024) e->roll.heard[i / 64] |= UINT64_C(1) << i % 64; /* no answer is owed */
            continue;
        }
        mesh__op_posted(e, op, rank, &sends, &recvs);
        mesh__put32(ask + 8, sends);
        mesh__put32(ask + 12, recvs);
        e->t->ops->control_send(e->t, rank, MESH_EVENT_MESSAGE, ask, sizeof ask);
    }
}

static inline int mesh__roll_is_over(mesh__engine *e) {
    return e->roll.answers + e->roll.gone >= e->roll.op->group->on.size - 1 || mesh__now(e) >= e->roll.until;
}

/* A roll call before the deadline is over. Who has left had ended what it was in: if all others have called an operation, twice, and it
   still goes on, it is the one who left that is missing. */
static inline void mesh__roll_end(mesh__engine *e) {
    mesh__op *op = e->roll.op;
    int all = !e->roll.absent && e->roll.answers + e->roll.gone >= op->group->on.size - 1;
    mesh_error why;
    e->roll.op = NULL;
    op->alone = all && e->roll.gone ? op->alone + 1 : 0;
    if (op->alone < 2) return;
    mesh__fail(&why, MESH_ERR_PEER, e->roll.first_gone, "rank %d closed its transport while it was needed",
               e->roll.first_gone);
    mesh__op_broken(e, op, MESH_ERR_PEER, &why);
}

static inline void mesh__roll_heard(mesh__engine *e, int from, const unsigned char *d) {
    mesh__roll *roll = &e->roll;
    int index = roll->op ? mesh_index_of(&roll->op->group->on, from) : -1;
    if (index < 0 || mesh__get32(d + 4) != roll->id) return;
    if (index < 1024) roll->heard[index / 64] |= UINT64_C(1) << index % 64;
    roll->answers++;
    if (mesh__get32(d + 8)) return;
    if (!roll->absent++) {
        roll->first_absent = from;
        mesh__record_read(&roll->in, d + 12);
    }
}

/* What the roll call has shown: "rank 2 does not answer". Who is silent keeps the others from answering well; who answers is believed. Returns
   the rank to blame, or -1. */
static inline int mesh__put_roll(mesh__text *t, const mesh__roll *roll) {
    const mesh *on = &roll->op->group->on;
    int i, first = -1, silent = 0;
    for (i = 0; i < on->size && i < 1024; i++) {
        if (i == roll->op->group->index || roll->heard[i / 64] >> i % 64 & 1) continue;
        if (first < 0) first = mesh_rank_at(on, i);
        silent++;
    }
    if (silent > 1)
        mesh__put(t, "; rank %d and %d others do not answer (they are stopped, or outside the library)", first,
                  silent - 1);
    else if (silent)
        mesh__put(t, "; rank %d does not answer (it is stopped, or outside the library)", first);
    if (silent) return first;
    if (roll->absent) {
        mesh__put(t, "; rank %d has not called it", roll->first_absent);
        if (roll->in.kind) mesh__put(t, " (it is in ");
        if (roll->in.kind) mesh__put_record(t, &roll->in);
        if (roll->in.kind) mesh__put(t, ")");
        if (roll->absent > 1) mesh__put(t, " nor have %d others", roll->absent - 1);
        return roll->first_absent;
    }
    if (roll->gone) {
        mesh__put(t, "; rank %d has closed its transport", roll->first_gone);
        return roll->first_gone;
    }
    mesh__put(t, "; every rank has called it: a rank started operations of several groups in another order, an "
                 "exchange has its send and receive in two operations, or a device hangs");
    return -1;
}

/* When this rank calls the roll after a deadline: where many wait, a few first, and then four times as many, for the first to find out
   tells all. */
static inline int64_t mesh__roll_turn(const mesh__op *op) {
    int64_t turn = op->deadline;
    int most = 16;
    for (; op->group->index >= most; most *= 4) turn += mesh__roll_time(op) + MESH__GRACE_NS;
    return turn;
}

static inline void mesh__op_timeout(mesh__engine *e, mesh__op *op) {
    char call[160], who[400];
    int ranks[MESH__WALK_PENDING], n = 0, blame = -1, asked = op->group->on.size > 1;
    mesh__text t = mesh__text_on(call, sizeof call);
    if (asked) {
        if (e->roll.op && e->roll.op != op &&
            e->roll.final) { /* one roll at a time; another's ends with what it found */
            if (mesh__roll_is_over(e)) mesh__op_timeout(e, e->roll.op);
            return;
        }
        if (e->roll.op != op || !e->roll.final) {
            if (op->deadline && mesh__now(e) < mesh__roll_turn(op)) return;
            mesh__roll_start(e, op, 1);
        }
        if (!mesh__roll_is_over(e)) return;
    }
    mesh__put_record(&t, &op->record);
    t = mesh__text_on(who, sizeof who);
    who[0] = 0;
    if (e->t->caps & MESH_CAP_PENDING) {
        n = mesh__op_pending(e, op, ranks, MESH__WALK_PENDING);
        mesh__put(&t, " waiting for ");
        mesh__put_ranks(&t, ranks, n);
        if (n == 1) blame = ranks[0];
    }
    if (asked && e->roll.op) {
        n = mesh__put_roll(&t, &e->roll);
        if (n >= 0) blame = n;
    }
    mesh__comm_broken(op->comm, MESH_ERR_TIMEOUT, blame, "%s: %s: deadline of %l ms passed%s",
                      mesh__impl(op->comm)->name, call, mesh__impl(op->comm)->timeout / 1000000, who);
}

/* A rank closed its transport in good order: only what still needs it fails. Why it left may be on its way from another rank, so that
   is waited for a little. */
static inline void mesh__op_check_gone(mesh__engine *e, mesh__op *op) {
    int ranks[MESH__WALK_PENDING], n, i, k;
    if (op->state != MESH__ACTIVE || op->failing || op->stalled || op->gone_seen == e->ngone) return;
    for (i = op->nxfers - 1; i >= 0; i--) { /* does it have to do with one of them at all? */
        for (k = 0; k < e->ngone && e->gone[k].rank != op->xfer[i].rank; k++) {}
        if (k < e->ngone) break;
    }
    if (i < 0 && !op->native && !op->extend) {
        op->gone_seen = e->ngone;
        return;
    }
    n = mesh__op_pending(e, op, ranks, MESH__WALK_PENDING);
    for (i = 0; i < n; i++)
        for (k = 0; k < e->ngone; k++)
            if (e->gone[k].rank == ranks[i]) {
                mesh_error why;
                if (!op->gone_until) op->gone_until = mesh__now(e) + MESH__GRACE_NS;
                if (mesh__now(e) < op->gone_until) return;
                mesh__fail(&why, MESH_ERR_PEER, ranks[i], "rank %d %s while it was needed%s%s", ranks[i],
                           e->gone[k].kind == MESH_EVENT_LOST ? "was lost" : "closed its transport",
                           e->gone[k].why ? ": " : "", mesh__or_empty(e->gone[k].why));
                mesh__op_broken(e, op, MESH_ERR_PEER, &why);
                return;
            }
    op->gone_until = 0;
}

/* ---- // >>engine: the question: who waits for whom -------------------------------------------------------------------------------- */

/* Sends to and receives from a world rank that this rank has posted on a channel. */
static inline void mesh__posted(mesh__engine *e, uint64_t channel, int rank, uint32_t *sends, uint32_t *recvs) {
    int i, k;
    *sends = *recvs = 0;
    for (i = 0; i < e->ncomms; i++) {
        mesh__comm_impl *impl = mesh__impl(e->comm[i]);
        if (e->comm[i]->id != (uint32_t)(channel >> 40) || (int)(channel >> 32 & 255) >= impl->ngroups) continue;
        if ((uint32_t)channel == 0) {
            mesh__group *g = impl->group[channel >> 32 & 255];
            int index = mesh_index_of(&g->on, rank);
            if (!g->p2p || index < 0) return;
            *sends = g->p2p[index][0];
            *recvs = g->p2p[index][1];
            return;
        }
        if (impl->group[channel >> 32 & 255]->sequence >= (uint32_t)channel)
            *sends = *recvs = UINT32_MAX; /* ended, unless found below */
    }
    for (i = 0; i < e->nops; i++) {
        mesh__op *op = e->op[i];
        if (op->state != MESH__ACTIVE || op->channel != channel) continue;
        *sends = *recvs = 0;
        for (k = 0; k < op->at; k++) {
            int x;
            for (x = op->step[k].first; op->step[k].kind == MESH__POST && x < op->step[k].first + op->step[k].count;
                 x++)
                if (op->xfer[x].rank == rank) *(op->xfer[x].direction == MESH_SEND ? sends : recvs) += 1;
        }
    }
}

/* What one operation of this rank has posted to and from a rank: what it can be waiting for. */
static inline void mesh__op_posted(mesh__engine *e, const mesh__op *op, int rank, uint32_t *sends, uint32_t *recvs) {
    int x;
    if ((uint32_t)op->channel) {
        mesh__posted(e, op->channel, rank, sends, recvs);
        return;
    }
    *sends = *recvs = 0;
    for (x = 0; x < op->nxfers; x++) {
        uint32_t *count = op->xfer[x].direction == MESH_SEND ? sends : recvs;
        if (op->xfer[x].rank == rank && op->ordinal[x] > *count) *count = op->ordinal[x];
    }
}

/* `subject` waits on a channel for this rank, having posted so many sends to it and receives from it. Fill in the operation that keeps
   this rank from serving it. Returns 0 when there is none: the bytes are under way, or this rank is not blocked. */
static inline int mesh__node_of(mesh__engine *e, int subject, uint64_t channel, uint32_t sends, uint32_t recvs,
                                mesh__node *node) {
    uint32_t my_sends, my_recvs;
    int ranks[MESH__WALK_PENDING], i;
    mesh__op *op = NULL;
    mesh__posted(e, channel, subject, &my_sends, &my_recvs);
    if (my_sends >= recvs && my_recvs >= sends) return 0;
    for (i = 0; i < e->nops && (uint32_t)channel; i++)
        if (e->op[i]->state == MESH__ACTIVE && e->op[i]->channel == channel) op = e->op[i];
    if (!op) op = e->waiting;
    if (!op || op->state != MESH__ACTIVE || op->failing) return 0;
    node->rank = e->t->rank;
    node->progress = (uint32_t)op->channel ? op->progress : op->serial;
    node->record = op->record;
    node->next = 0;
    node->npending = mesh__op_pending(e, op, ranks, MESH__WALK_PENDING);
    for (i = 0; i < node->npending; i++) {
        node->pending[i].rank = ranks[i];
        mesh__op_posted(e, op, ranks[i], &node->pending[i].sends, &node->pending[i].recvs);
    }
    return node->npending > 0;
}

enum { MESH__ASK_BYTES = 20 + MESH__RECORD_BYTES, MESH__SAY_HEAD = 16 + MESH__RECORD_BYTES };

/* The asked may know better: it called something else on that channel, perhaps long ago, in which it had nothing to say to the waiter. */
static inline void mesh__compare_calls(mesh__engine *e, int subject, const mesh__record *theirs) {
    const mesh__record *mine = (uint32_t)theirs->channel ? mesh__record_of(e, theirs->channel) : NULL;
    mesh_error why;
    int i;
    if (!mine || mesh__record_same(mine, theirs)) return;
    mesh__fail(&why, MESH_ERR_MISMATCH, subject, "rank %d waits in another operation", subject);
    for (i = 0; i < e->ncomms; i++)
        if (e->comm[i]->id == (uint32_t)(theirs->channel >> 40) && !e->comm[i]->failed) {
            mesh__dispute_open(e->comm[i], mine, &why);
            if (!e->comm[i]->failed) mesh__dispute_add(e->comm[i], subject, theirs, NULL);
        }
}

/* Asked about a comm that this rank has closed: nobody need wait for it in there. */
static inline int mesh__say_closed(mesh__engine *e, int from, uint32_t id) {
    mesh_error why;
    unsigned char data[MESH_CONTROL_BYTES];
    size_t length;
    int i;
    for (i = 0; i < e->ncomms; i++)
        if (e->comm[i]->id == id) return 0;
    if (id > e->last_id) return 0;
    memset(data, 0, sizeof data);
    mesh__fail(&why, MESH_ERR_PEER, e->t->rank, "rank %d has closed this comm while it was needed", e->t->rank);
    length = strlen(why.text);
    mesh__put32(data, id);
    mesh__put32(data + 4, (uint32_t)MESH_ERR_PEER);
    mesh__put32(data + 8, (uint32_t)e->t->rank);
    mesh__put32(data + 12, MESH__ABORT_CLOSED);
    memcpy(data + MESH__ABORT_HEAD, why.text, length);
    e->t->ops->control_send(e->t, from, MESH_EVENT_ABORT, data, MESH__ABORT_HEAD + length);
    return 1;
}

/* Asked about a comm that has failed here: the asker is told why, once more. */
static inline int mesh__say_failed(mesh__engine *e, int from, uint32_t id) {
    unsigned char data[MESH_CONTROL_BYTES];
    int i;
    for (i = 0; i < e->ncomms; i++)
        if (e->comm[i]->id == id && e->comm[i]->failed) {
            size_t length = mesh__abort_write(data, e->comm[i], MESH__ABORT_PLAIN, NULL);
            e->t->ops->control_send(e->t, from, MESH_EVENT_ABORT, data, length);
            return 1;
        }
    return 0;
}

/* Another rank's roll call: has this one called it too? If not, what is it in? */
static inline void mesh__roll_answer(mesh__engine *e, int from, const unsigned char *d) {
    unsigned char here[MESH__HERE_BYTES];
    mesh__record asked;
    uint32_t sends, recvs, called, remembered = mesh__remembered(e);
    mesh__record_read(&asked, d + 16);
    if (mesh__say_closed(e, from, (uint32_t)(asked.channel >> 40)) ||
        mesh__say_failed(e, from, (uint32_t)(asked.channel >> 40)))
        return;
    mesh__compare_calls(e, from, &asked);
    mesh__posted(e, asked.channel, from, &sends, &recvs);
    called = (uint32_t)asked.channel ? sends == UINT32_MAX || mesh__record_of(e, asked.channel)
                                     : sends >= mesh__get32(d + 12) && recvs >= mesh__get32(d + 8);
    memset(here, 0, sizeof here);
    mesh__put32(here, MESH__MSG_HERE);
    mesh__put32(here + 4, mesh__get32(d + 4));
    mesh__put32(here + 8, called);
    if (e->waiting)
        mesh__record_write(here + 12, &e->waiting->record);
    else if (remembered && e->ring[(e->ring_count - 1) % MESH__RING].status == MESH_IN_PROGRESS)
        mesh__record_write(here + 12, &e->ring[(e->ring_count - 1) % MESH__RING].record);
    e->t->ops->control_send(e->t, from, MESH_EVENT_MESSAGE, here, sizeof here);
}

static inline void mesh__answer(mesh__engine *e, int from, const unsigned char *d) {
    unsigned char say[MESH_CONTROL_BYTES];
    mesh__record asked;
    mesh__node node;
    int i, found;
    mesh__record_read(&asked, d + 20);
    if (mesh__say_closed(e, from, (uint32_t)(asked.channel >> 40)) ||
        mesh__say_failed(e, from, (uint32_t)(asked.channel >> 40)))
        return;
    mesh__compare_calls(e, (int)mesh__get32(d + 8), &asked);
    found = mesh__node_of(e, (int)mesh__get32(d + 8), asked.channel, mesh__get32(d + 12), mesh__get32(d + 16), &node);
    memset(say, 0, sizeof say);
    mesh__put32(say, MESH__MSG_SAY);
    mesh__put32(say + 4, mesh__get32(d + 4));
    if (!found) node.npending = 0;
    mesh__put32(say + 8, (uint32_t)node.npending);
    if (found) {
        mesh__put32(say + 12, node.progress);
        mesh__record_write(say + 16, &node.record);
    }
    for (i = 0; i < node.npending; i++) {
        mesh__put32(say + MESH__SAY_HEAD + 12 * i, (uint32_t)node.pending[i].rank);
        mesh__put32(say + MESH__SAY_HEAD + 12 * i + 4, node.pending[i].sends);
        mesh__put32(say + MESH__SAY_HEAD + 12 * i + 8, node.pending[i].recvs);
    }
    e->t->ops->control_send(e->t, from, MESH_EVENT_MESSAGE, say, MESH__SAY_HEAD + 12 * (size_t)node.npending);
}

static inline void mesh__walk_heard(mesh__engine *e, const mesh__node *node);

/* Ask about the edge from `node` to its pending rank k. Our own answer is taken at once. */
static inline void mesh__walk_ask(mesh__engine *e, const mesh__node *node, int k) {
    mesh__walk *w = e->walk;
    int to = node->pending[k].rank;
    unsigned char ask[MESH__ASK_BYTES];
    w->id = ++e->walks;
    w->until = mesh__now(e) + INT64_C(1000000000);
    if (to == e->t->rank) {
        mesh__node mine;
        if (mesh__say_closed(e, node->rank, (uint32_t)(node->record.channel >> 40))) {
            mesh__walk_heard(e, NULL); /* it ends as soon as it hears */
            return;
        }
        int found =
            mesh__node_of(e, node->rank, node->record.channel, node->pending[k].sends, node->pending[k].recvs, &mine);
        mesh__walk_heard(e, found ? &mine : NULL);
        return;
    }
    mesh__put32(ask, MESH__MSG_ASK);
    mesh__put32(ask + 4, w->id);
    mesh__put32(ask + 8, (uint32_t)node->rank);
    mesh__put32(ask + 12, node->pending[k].sends);
    mesh__put32(ask + 16, node->pending[k].recvs);
    mesh__record_write(ask + 20, &node->record);
    if (e->t->ops->control_send(e->t, to, MESH_EVENT_MESSAGE, ask, sizeof ask) != MESH_OK) mesh__walk_heard(e, NULL);
}

/* Ask the next question of the search; ends it when there is none left. */
static inline void mesh__walk_next(mesh__engine *e) {
    mesh__walk *w = e->walk;
    while (w->depth > 0) {
        mesh__node *top = &w->stack[w->depth - 1];
        if (top->next < top->npending) {
            mesh__walk_ask(e, top, top->next++);
            return;
        }
        w->depth--;
    }
    w->active = 0;
}

static inline void mesh__walk_report(mesh__engine *e) {
    mesh__walk *w = e->walk;
    char who[MESH_ERROR_BYTES];
    mesh__text t = mesh__text_on(who, sizeof who);
    int i, k;
    for (i = w->cycle; i < w->depth; i++) {
        mesh__node *n = &w->stack[i];
        mesh__put(&t, "%srank %d waits for rank %d in ", i > w->cycle ? "; " : "", n->rank,
                  n->pending[n->next - 1].rank);
        mesh__put_record(&t, &n->record);
    }
    w->active = 0;
    for (i = w->cycle; i < w->depth;
         i++) { /* every comm in the cycle that is ours fails here; the cycle's other ranks find it as we did */
        uint32_t id = (uint32_t)(w->stack[i].record.channel >> 40);
        for (k = 0; k < e->ncomms; k++)
            if (e->comm[k]->id == id && !e->comm[k]->failed && mesh_index_of(&e->comm[k]->on, w->stack[i].rank) >= 0)
                mesh__comm_broken(e->comm[k], MESH_ERR_MISMATCH, w->stack[i].rank,
                                  "%s: a cycle of ranks that wait for each other: %s; start operations in one order",
                                  mesh__impl(e->comm[k])->name, who);
    }
}

/* The answer to the last question: an operation, or NULL: that rank is not blocked. */
static inline void mesh__walk_heard(mesh__engine *e, const mesh__node *node) {
    mesh__walk *w = e->walk;
    int i;
    if (w->verifying) { /* the second probe: the same ranks, at the same counters, on the same edges */
        int at = w->verifying, expected = at < w->depth ? at : w->cycle;
        mesh__node *then = &w->stack[expected];
        const mesh__node *now = node;
        if (!now || now->rank != then->rank || now->record.channel != then->record.channel ||
            now->progress != then->progress) {
            w->active = 0;
            return;
        }
        for (i = 0; i < now->npending && now->pending[i].rank != then->pending[then->next - 1].rank; i++) {}
        if (i == now->npending) {
            w->active = 0;
            return;
        }
        if (expected == w->cycle) {
            mesh__walk_report(e);
            return;
        }
        w->verifying = at + 1;
        mesh__walk_ask(e, &w->stack[at], w->stack[at].next - 1);
        return;
    }
    if (!node) {
        mesh__walk_next(e);
        return;
    }
    for (i = 0; i < w->depth; i++)
        if (w->stack[i].rank == node->rank && w->stack[i].record.channel == node->record.channel) {
            w->cycle = i;
            w->verifying = i + 1;
            mesh__walk_ask(e, &w->stack[i], w->stack[i].next - 1);
            return;
        }
    for (i = 0; i < w->nvisited; i++)
        if (w->visited[i].rank == node->rank && w->visited[i].channel == node->record.channel) break;
    if (i == w->nvisited && w->depth < MESH__WALK_DEPTH && w->nvisited < 4 * MESH__WALK_DEPTH) {
        w->visited[w->nvisited].rank = node->rank;
        w->visited[w->nvisited++].channel = node->record.channel;
        w->stack[w->depth++] = *node;
    }
    mesh__walk_next(e);
}

static inline void mesh__say_heard(mesh__engine *e, int from, const unsigned char *d, uint32_t nbytes) {
    mesh__walk *w = e->walk;
    mesh__node node;
    int i, n = (int)mesh__get32(d + 8);
    if (!w || !w->active || mesh__get32(d + 4) != w->id) return;
    if (n == 0) {
        mesh__walk_heard(e, NULL);
        return;
    }
    if (n < 0 || n > MESH__WALK_PENDING || nbytes < MESH__SAY_HEAD + 12 * (uint32_t)n) return;
    node.rank = from;
    node.npending = n;
    node.next = 0;
    node.progress = mesh__get32(d + 12);
    mesh__record_read(&node.record, d + 16);
    for (i = 0; i < n; i++) {
        node.pending[i].rank = (int)mesh__get32(d + MESH__SAY_HEAD + 12 * i);
        node.pending[i].sends = mesh__get32(d + MESH__SAY_HEAD + 12 * i + 4);
        node.pending[i].recvs = mesh__get32(d + MESH__SAY_HEAD + 12 * i + 8);
    }
    mesh__walk_heard(e, &node);
}

/* Begin a search from the operation this rank is blocked in. */
static inline void mesh__walk_start(mesh__engine *e, mesh__op *op) {
    mesh__node *root;
    int ranks[MESH__WALK_PENDING], i;
    if (!(e->t->caps & MESH_CAP_PENDING)) {
        if (!e->roll.op) mesh__roll_start(e, op, 0);
        return;
    }
    if (!e->walk) {
        e->walk = (mesh__walk *)mesh_transport_alloc(e->t, sizeof *e->walk);
        if (!e->walk) return;
        memset(e->walk, 0, sizeof *e->walk);
    }
    if (e->walk->active) return;
    root = &e->walk->stack[0];
    root->rank = e->t->rank;
    root->progress = (uint32_t)op->channel ? op->progress : op->serial;
    root->record = op->record;
    root->next = 0;
    root->npending = mesh__op_pending(e, op, ranks, MESH__WALK_PENDING);
    for (i = 0; i < root->npending; i++) {
        root->pending[i].rank = ranks[i];
        mesh__op_posted(e, op, ranks[i], &root->pending[i].sends, &root->pending[i].recvs);
    }
    if (root->npending == 0) return;
    e->walk->active = 1;
    e->walk->verifying = 0;
    e->walk->depth = 1;
    e->walk->nvisited = 0;
    mesh__walk_next(e);
}

/* ---- // >>engine: control plane ---------------------------------------------------------------------------------------------------- */

static inline int mesh__mail_keep(mesh__engine *e, const mesh_control *m) {
    mesh__mail *mail = (mesh__mail *)mesh_transport_alloc(e->t, sizeof *mail + m->nbytes);
    if (!mail) {
        e->starved = 1; /* who opens a comm now must not wait for what was lost */
        return 0;
    }
    mail->next = NULL;
    mail->rank = m->rank;
    mail->kind = m->kind;
    mail->nbytes = m->nbytes;
    if (m->nbytes) memcpy(mail + 1, m->data, m->nbytes);
    *e->mail_end = mail;
    e->mail_end = &mail->next;
    return 1;
}

static inline unsigned char *mesh__mail_data(mesh__mail *m) { return (unsigned char *)(m + 1); }

static inline void mesh__mail_drop(mesh__engine *e, mesh__mail **at) {
    mesh__mail *m = *at;
    *at = m->next;
    if (!m->next) e->mail_end = at;
    mesh_transport_free(e->t, m);
}

static inline int mesh__is_hello(mesh__mail *m, int rank) {
    return m->rank == rank && m->kind == MESH_EVENT_MESSAGE && mesh__get32(mesh__mail_data(m)) == MESH__MSG_HELLO;
}

/* A rank opens one comm at a time: a new hello replaces its last one, and a farewell takes it back. */
static inline void mesh__hello_forget(mesh__engine *e, int rank) {
    mesh__mail **at = &e->mail;
    while (*at) {
        if (mesh__is_hello(*at, rank))
            mesh__mail_drop(e, at);
        else
            at = &(*at)->next;
    }
}

/* A rank is gone. For LOST comms fail a little later: what the others have to say may be the cause of it. */
static inline void mesh__rank_gone(mesh__engine *e, const mesh_control *m) {
    mesh__gone *g;
    int i;
    for (i = 0; i < e->ngone; i++)
        if (e->gone[i].rank == m->rank && e->gone[i].kind == m->kind) return;
    MESH_ASSERT(e->ngone < 2 * e->t->size);
    if (mesh__roll_excused(e, m->rank) && !e->roll.gone++) e->roll.first_gone = m->rank;
    g = &e->gone[e->ngone++];
    g->rank = m->rank;
    g->kind = m->kind;
    g->until = m->kind == MESH_EVENT_LOST ? mesh__now(e) + MESH__GRACE_NS : 0;
    g->why = m->nbytes ? (char *)mesh_transport_alloc(e->t, m->nbytes + 1) : NULL;
    if (g->why) memcpy(g->why, m->data, m->nbytes);
    if (g->why) g->why[m->nbytes] = 0;
    if (g->until && (!e->next_gone || g->until < e->next_gone)) e->next_gone = g->until;
}

/* Comms of ranks that were lost fail, when nobody has told a better cause by then. */
static inline void mesh__gone_settle(mesh__engine *e) {
    int i, k;
    int64_t now;
    if (!e->next_gone || (now = mesh__now(e)) < e->next_gone) return;
    e->next_gone = 0;
    for (k = 0; k < e->ngone; k++) {
        mesh__gone *g = &e->gone[k];
        if (g->until > now && (!e->next_gone || g->until < e->next_gone)) e->next_gone = g->until;
        if (!g->until || g->until > now) continue;
        g->until = 0;
        for (i = 0; i < e->ncomms; i++) {
            mesh_comm *c = e->comm[i];
            char call[160];
            mesh__text t = mesh__text_on(call, sizeof call);
            if (c->failed || mesh_index_of(&c->on, g->rank) < 0) continue;
            if (e->waiting && e->waiting->comm == c) {
                mesh__put_record(&t, &e->waiting->record);
                mesh__put(&t, ": ");
            }
            mesh__fail(&c->error, MESH_ERR_PEER, g->rank, "%s: %srank %d was lost%s%s", mesh__impl(c)->name, call,
                       g->rank, g->why ? ": " : "", mesh__or_empty(g->why));
            mesh__comm_fail(c);
        }
    }
}

/* What the first rank hands out: the scratch cap, the topology, the tuning table. Returns its length. */
static inline size_t mesh__terms_write(unsigned char *d, const mesh__comm_impl *impl) {
    unsigned char *p = d;
    int i;
    mesh__put64(p, (uint64_t)impl->scratch_cap);
    mesh__put32(p + 8, (uint32_t)impl->topology.nlevels);
    p += 12;
    for (i = 0; i < impl->topology.nlevels; i++, p += MESH__LEVEL_BYTES) {
        const mesh_level *level = &impl->topology.level[i];
        mesh__put32(p, (uint32_t)level->ranks);
        mesh__put64(p + 4, (uint64_t)level->latency_ps);
        mesh__put64(p + 12, (uint64_t)level->ps_per_byte_16);
    }
    for (i = 0; i < impl->tuning.nrows; i++, p += MESH__ROW_BYTES) {
        const mesh_tuning_row *row = &impl->tuning.row[i];
        p[0] = row->call;
        p[1] = row->algorithm;
        p[2] = (unsigned char)row->ranks;
        p[3] = (unsigned char)(row->ranks >> 8);
        mesh__put32(p + 4, row->segment);
        mesh__put64(p + 8, row->bytes);
    }
    return (size_t)(p - d);
}

static inline void mesh__terms_read(mesh__comm_impl *impl, const unsigned char *d, size_t nbytes) {
    const unsigned char *end = d + nbytes;
    int i, n;
    impl->tuning.nrows = impl->topology.nlevels = 0;
    if (nbytes < 12) return;
    impl->scratch_cap = (int64_t)mesh__get64(d);
    n = (int)mesh__get32(d + 8);
    d += 12;
    for (i = 0; i < n && i < MESH_MAX_LEVELS && end - d >= MESH__LEVEL_BYTES; i++, d += MESH__LEVEL_BYTES) {
        mesh_level *level = &impl->topology.level[impl->topology.nlevels++];
        level->ranks = (int)mesh__get32(d);
        level->latency_ps = (int64_t)mesh__get64(d + 4);
        level->ps_per_byte_16 = (int64_t)mesh__get64(d + 12);
    }
    for (; end - d >= MESH__ROW_BYTES && impl->tuning.nrows < MESH_MAX_TUNING; d += MESH__ROW_BYTES) {
        mesh_tuning_row *row = &impl->tuning.row[impl->tuning.nrows++];
        row->call = d[0];
        row->algorithm = d[1];
        row->ranks = (uint16_t)(d[2] | d[3] << 8);
        row->segment = mesh__get32(d + 4);
        row->bytes = mesh__get64(d + 8);
    }
}

/* Are these bytes such terms? */
static inline int mesh__terms_fit(const unsigned char *d, size_t nbytes) {
    uint32_t levels = nbytes >= 12 ? mesh__get32(d + 8) : UINT32_MAX;
    return levels <= MESH_MAX_LEVELS && nbytes >= 12 + levels * MESH__LEVEL_BYTES &&
           (nbytes - 12 - levels * MESH__LEVEL_BYTES) % MESH__ROW_BYTES == 0;
}

/* A rank gave an opening up that this one, its first rank, had welcomed it to meanwhile: the comm is open without it. */
static inline void mesh__opening_given_up(mesh__engine *e, int rank, uint32_t nonce) {
    int i;
    for (i = 0; i < e->ncomms; i++) {
        mesh_comm *c = e->comm[i];
        int index = mesh_index_of(&c->on, rank);
        if (mesh__impl(c)->nonce && index > 0 && mesh__impl(c)->nonce[index] == nonce)
            mesh__comm_broken(c, MESH_ERR_PEER, rank, "%s: rank %d gave up opening it before it was welcomed",
                              mesh__impl(c)->name, rank);
    }
}

/* Another rank asks for the time on rank 0's clock, as this one knows it. */
static inline void mesh__clock_answer(mesh__engine *e, int from, const unsigned char *d) {
    unsigned char answer[MESH__TIME_BYTES];
    int known = e->t->rank == 0 ? e->t->trace_clock != NULL : e->clock.known;
    mesh__put32(answer, MESH__MSG_TIME);
    mesh__put32(answer + 4, mesh__get32(d + 4));
    mesh__put32(answer + 8, (uint32_t)known);
    mesh__put64(answer + 12, (uint64_t)(mesh__now(e) + e->t->trace_epoch + e->clock.offset));
    mesh__put64(answer + 20, (uint64_t)e->clock.within);
    e->t->ops->control_send(e->t, from, MESH_EVENT_MESSAGE, answer, sizeof answer);
}

static inline void mesh__clock_heard(mesh__engine *e, const unsigned char *d) {
    if (mesh__get32(d + 4) != e->clock.asked) return;
    e->clock.came = mesh__now(e);
    e->clock.heard = e->clock.asked;
    e->clock.time = (int64_t)mesh__get64(d + 12);
    e->clock.time_within = (int64_t)mesh__get64(d + 20);
    e->clock.told = mesh__get32(d + 8) != 0 && e->clock.time > -MESH__FOREVER_NS && e->clock.time < MESH__FOREVER_NS &&
                    e->clock.time_within >= 0 && e->clock.time_within < MESH__FOREVER_NS;
}

/* A hello that there was no memory to keep: its sender is told, and waits no longer. */
static inline void mesh__hello_refuse(mesh__engine *e, const mesh_control *hello) {
    unsigned char welcome[MESH_CONTROL_BYTES];
    mesh_error why;
    mesh__fail(&why, MESH_ERR_MEMORY, e->t->rank, "mesh_comm_open: rank %d has no memory for a message of the opening",
               e->t->rank);
    mesh__put32(welcome, MESH__MSG_WELCOME);
    mesh__put32(welcome + 4, mesh__get32(hello->data + 4));
    mesh__put32(welcome + 8, (uint32_t)MESH_ERR_MEMORY);
    mesh__put32(welcome + 12, 0);
    mesh__put32(welcome + 16, (uint32_t)e->t->rank);
    memcpy(welcome + MESH__WELCOME_HEAD, why.text, strlen(why.text) + 1);
    e->t->ops->control_send(e->t, hello->rank, MESH_EVENT_MESSAGE, welcome, MESH__WELCOME_HEAD + strlen(why.text) + 1);
}

static inline void mesh__control(mesh__engine *e) {
    mesh_control m;
    int i;
    while (e->t->ops->control_poll(e->t, &m) == MESH_OK) {
        if (m.kind == MESH_EVENT_LOST || m.kind == MESH_EVENT_CLOSED) {
            mesh__rank_gone(e, &m);
        } else if (m.kind == MESH_EVENT_ABORT && m.nbytes >= MESH__ABORT_HEAD) {
            uint32_t id = mesh__get32(m.data);
            for (i = 0; i < e->ncomms; i++)
                if (e->comm[i]->id == id) mesh__comm_abort_heard(e->comm[i], m.rank, m.data, m.nbytes);
            if (id > e->last_id) mesh__mail_keep(e, &m); /* of a comm that is not open here yet */
        } else if (m.kind == MESH_EVENT_MESSAGE && m.nbytes >= 4) {
            switch (mesh__get32(m.data)) {
            case MESH__MSG_ASK:
                if (m.nbytes >= MESH__ASK_BYTES) mesh__answer(e, m.rank, m.data);
                break;
            case MESH__MSG_SAY:
                if (m.nbytes >= MESH__SAY_HEAD) mesh__say_heard(e, m.rank, m.data, m.nbytes);
                break;
            case MESH__MSG_ROLL:
                if (m.nbytes >= MESH__ROLL_BYTES) mesh__roll_answer(e, m.rank, m.data);
                break;
            case MESH__MSG_HERE:
                if (m.nbytes >= MESH__HERE_BYTES) mesh__roll_heard(e, m.rank, m.data);
                break;
            case MESH__MSG_CLOCK:
                if (m.nbytes >= MESH__CLOCK_BYTES) mesh__clock_answer(e, m.rank, m.data);
                break;
            case MESH__MSG_TIME:
                if (m.nbytes >= MESH__TIME_BYTES) mesh__clock_heard(e, m.data);
                break;
            case MESH__MSG_HELLO:
                if (m.nbytes <= MESH__HELLO_HEAD || m.data[m.nbytes - 1]) break;
                mesh__hello_forget(e, m.rank);
                if (!mesh__mail_keep(e, &m)) mesh__hello_refuse(e, &m);
                break;
            case MESH__MSG_FAREWELL:
                mesh__hello_forget(e, m.rank);
                if (m.nbytes >= 8) mesh__opening_given_up(e, m.rank, mesh__get32(m.data + 4));
                break;
            case MESH__MSG_WELCOME:
                if (m.nbytes >= MESH__WELCOME_HEAD &&
                    (mesh__get32(m.data + 8) == MESH_OK
                         ? mesh__terms_fit(m.data + MESH__WELCOME_HEAD, m.nbytes - MESH__WELCOME_HEAD)
                         : m.nbytes == MESH__WELCOME_HEAD || !m.data[m.nbytes - 1]))
                    mesh__mail_keep(e, &m);
                break;
            default:
                break;
            }
        }
    }
}

/* Advance what can go on. Operations that only wait for the transport have nothing to advance: their turn to show an error comes now and
   then, so that thousands of them cost nothing. */
static inline void mesh__poll(mesh__engine *e) {
    int i, all = e->polls++ % 64 == 0, left;
    mesh__control(e); /* causes before what follows from them */
    mesh__gone_settle(e);
    left = all ? e->nactive : e->nactive - e->nissued;
    for (i = 0; left > 0 && i < e->nops; i++)
        if (e->op[i]->state == MESH__ACTIVE && (all || !e->op[i]->issued)) {
            mesh__op_advance(e, e->op[i]);
            left--;
        }
    for (i = 0; e->ngone && i < e->nops; i++) mesh__op_check_gone(e, e->op[i]);
    for (i = 0; i < e->ncomms; i++) {
        mesh__comm_impl *impl = mesh__impl(e->comm[i]);
        if (impl->untold) mesh__announce_again(e->comm[i]);
        if (impl->disputing && mesh__now(e) >= impl->dispute_until) mesh__dispute_settle(e->comm[i]);
    }
    if (e->walk && e->walk->active && mesh__now(e) >= e->walk->until) mesh__walk_heard(e, NULL);
    if (e->roll.op && !e->roll.final && mesh__roll_is_over(e)) mesh__roll_end(e);
    for (i = 0; e->nactive > e->nissued && i < e->nops; i++)
        if (e->op[i]->state == MESH__ACTIVE && e->op[i]->failing) mesh__op_advance(e, e->op[i]);
}

/* One round of moving data, at most until `deadline`. */
static inline void mesh__progress(mesh__engine *e, int64_t deadline) {
    int i;
    mesh_status status;
    for (i = 0; i < e->ncomms; i++)
        if (mesh__impl(e->comm[i])->disputing && mesh__impl(e->comm[i])->dispute_until < deadline)
            deadline = mesh__impl(e->comm[i])->dispute_until;
    if (e->walk && e->walk->active && e->walk->until < deadline) deadline = e->walk->until;
    if (e->next_gone && e->next_gone < deadline) deadline = e->next_gone;
    status = e->t->ops->progress(e->t, deadline);
    if (status == MESH_ERR_MEMORY)
        e->starved = 1;
    else
        e->halted |= status < 0;
    for (i = 0; status < 0 && i < e->ncomms; i++) {
        char call[160];
        mesh__text t = mesh__text_on(call, sizeof call);
        if (e->waiting && e->waiting->comm == e->comm[i]) {
            mesh__put_record(&t, &e->waiting->record);
            mesh__put(&t, ": ");
        }
        mesh__comm_broken(e->comm[i], status == MESH_ERR_MEMORY ? status : MESH_ERR_TRANSPORT, e->t->rank,
                          "%s: %sthe transport (%s) of rank %d %s", mesh__impl(e->comm[i])->name, call, e->t->ops->name,
                          e->t->rank, status == MESH_ERR_MEMORY ? "has no memory for a message" : "failed");
    }
}

/* ---- // >>comms --------------------------------------------------------------------------------------- */

static inline mesh_status mesh__transport_check(mesh_transport *t, mesh_error *err) {
    const mesh_ops *o = t->ops;
    if (!o || o->struct_size < offsetof(mesh_ops, group_open) || o->abi != MESH_ABI)
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "mesh_comm_open: the transport's ops have struct_size %d and abi %d, expected at least %d and %d",
            o ? (int)o->struct_size : 0, o ? (int)o->abi : 0, (int)offsetof(mesh_ops, group_open), MESH_ABI);
    if (!o->post || !o->test || !o->pending || !o->cancel || !o->progress || !o->now || !o->control_send ||
        !o->control_poll || !o->close)
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "mesh_comm_open: the transport (%s) lacks a required member: post, test, pending, cancel, progress, now, "
            "control_send, control_poll or close",
            o->name ? o->name : "unnamed");
    return MESH_OK;
}

static inline mesh__engine *mesh__engine_get(mesh_transport *t) {
    mesh__engine *e = (mesh__engine *)t->engine;
    if (e) return e;
    e = (mesh__engine *)mesh_transport_alloc(t, sizeof *e);
    if (!e) return NULL;
    memset(e, 0, sizeof *e);
    e->gone = (mesh__gone *)mesh_transport_alloc(t, 2 * (size_t)t->size * sizeof *e->gone);
    if (!e->gone) {
        mesh_transport_free(t, e);
        return NULL;
    }
    e->t = t;
    e->mail_end = &e->mail;
    t->engine = e;
    return e;
}

MESH_API int64_t mesh_transport_patience(const mesh_transport *t) {
    const mesh__engine *e = (const mesh__engine *)t->engine;
    int64_t most = INT64_C(30000000000);
    if (e && e->failed) most = MESH__CLOSE_NS;
    return e && e->longest && e->longest < most ? e->longest : most;
}

MESH_API mesh_status mesh_transport_detach(mesh_transport *t) {
    mesh__engine *e = (mesh__engine *)t->engine;
    mesh_status status = mesh__enter(t, NULL, "transport_detach");
    int i;
    if (status != MESH_OK) return status;
    if (!e) {
        mesh__leave(t);
        return MESH_OK;
    }
    while (e->ncomms) mesh_comm_close(e->comm[e->ncomms - 1]);
    for (i = 0; i < e->nops; i++) {
        mesh__scratch_free(e, e->op[i], 0);
        mesh_transport_free(t, e->op[i]->step);
        mesh_transport_free(t, e->op[i]->xfer);
        mesh_transport_free(t, e->op[i]->ordinal);
        mesh_transport_free(t, e->op[i]->block);
        mesh_transport_free(t, e->op[i]->args);
        mesh_transport_free(t, e->op[i]);
    }
    while (e->mail) mesh__mail_drop(e, &e->mail);
    mesh_transport_free(t, e->op);
    mesh_transport_free(t, e->comm);
    for (i = 0; i < e->ngone; i++) mesh_transport_free(t, e->gone[i].why);
    mesh_transport_free(t, e->gone);
    mesh_transport_free(t, e->walk);
    mesh_transport_free(t, e);
    t->engine = NULL;
    mesh__leave(t);
    return MESH_OK;
}

static inline void mesh__group_free(mesh__engine *e, mesh__group *g) {
    if (!g) return;
    if (MESH__HAS(e->t->ops, group_close) && g->handle) e->t->ops->group_close(e->t, g->handle);
    mesh_transport_free(e->t, (void *)(uintptr_t)g->axes);
    mesh_transport_free(e->t, g->p2p);
    mesh_transport_free(e->t, g);
}

static inline mesh__group *mesh__group_find(const mesh__comm_impl *impl, const char *axes) {
    int i;
    if (!axes) return impl->group[0];
    for (i = 0; i < impl->ngroups; i++)
        if (mesh__same(impl->group[i]->axes, axes)) return impl->group[i];
    return NULL;
}

/* Add a list of axes to the comm's groups. ARGUMENT, MEMORY, or what the transport says. */
static inline mesh_status mesh__group_add(mesh_comm *c, const char *axes, size_t length, mesh_error *err) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__engine *e = impl->engine;
    mesh__group *g;
    char *text = (char *)mesh_transport_alloc(e->t, length + 1);
    mesh_status status;
    if (!text) return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_comm_open: no memory for a group");
    memcpy(text, axes, length);
    text[length] = 0;
    g = impl->ngroups < MESH__MAX_GROUPS ? (mesh__group *)mesh_transport_alloc(e->t, sizeof *g) : NULL;
    if (!g || !mesh__grow(e->t, (void **)&impl->group, &impl->group_cap, impl->ngroups + 1, sizeof *impl->group)) {
        mesh_transport_free(e->t, text);
        mesh_transport_free(e->t, g);
        return mesh__fail(err, impl->ngroups < MESH__MAX_GROUPS ? MESH_ERR_MEMORY : MESH_ERR_ARGUMENT, -1,
                          "mesh_comm_open: group \"%s\": no memory, or more than %d groups", axes, MESH__MAX_GROUPS);
    }
    memset(g, 0, sizeof *g);
    g->axes = text;
    if (err) memset(err, 0, sizeof *err), err->rank = -1;
    status = mesh_group_through(&g->on, &c->on, text, e->t->rank, err);
    if (status != MESH_OK) {
        mesh__group_free(e, g);
        return status;
    }
    g->index = mesh_index_of(&g->on, e->t->rank);
    g->id = c->id << 8 | (uint32_t)impl->ngroups;
    g->fingerprint = mesh_fingerprint(&g->on);
    if (MESH__HAS(e->t->ops, group_open)) {
        status = e->t->ops->group_open(e->t, impl->ngroups ? impl->group[0]->handle : NULL, g->id, &g->on,
                                       mesh_group_of(&c->on, text, e->t->rank), g->index, mesh__now(e) + impl->timeout,
                                       &g->handle, err);
        if (status != MESH_OK && status != MESH_ERR_UNSUPPORTED) {
            if (err && (err->status != status || !err->text[0]))
                mesh__fail(err, status, -1, "the transport (%s) refused to open a group along \"%s\": %s",
                           e->t->ops->name, text, mesh_status_text(status));
            mesh__group_free(e, g);
            return status;
        }
    }
    impl->group[impl->ngroups++] = g;
    return MESH_OK;
}

/* ---- opening: every rank says hello to the first one, which compares and welcomes. */

typedef struct mesh__hello {
    uint32_t nonce, last_id;
    uint64_t fingerprint, desc;
    const char *mesh_text; /* inside the mail */
} mesh__hello;

static inline uint64_t mesh__hash_text(uint64_t h, const char *s) {
    for (; s && *s; s++) h = mesh__mix(h, (unsigned char)*s);
    return mesh__mix(h, 0x100);
}

static inline size_t mesh__hello_write(unsigned char *d, const mesh__engine *e, const mesh *m,
                                       const mesh_comm_desc *desc) {
    char text[300];
    mesh_format(m, text, sizeof text);
    mesh__put32(d, MESH__MSG_HELLO);
    mesh__put32(d + 4, e->opens);
    mesh__put32(d + 8, e->last_id);
    mesh__put64(d + 12, mesh_fingerprint(m));
    mesh__put64(d + 20, mesh__hash_text(1, desc->groups));
    strcpy((char *)d + 28, text);
    return 28 + strlen(text) + 1;
}

/* Has a rank of the mesh left, or can this rank's transport go no further? Then the mesh cannot be opened. */
static inline mesh_status mesh__gone_from(mesh__engine *e, const mesh *m, mesh_error *err) {
    int i;
    if (e->halted)
        return mesh__fail(err, MESH_ERR_TRANSPORT, e->t->rank, "mesh_comm_open: the transport (%s) of rank %d failed",
                          e->t->ops->name, e->t->rank);
    for (i = 0; i < e->ngone; i++)
        if (mesh_index_of(m, e->gone[i].rank) >= 0)
            return mesh__fail(err, MESH_ERR_PEER, e->gone[i].rank, "mesh_comm_open: rank %d %s%s%s", e->gone[i].rank,
                              e->gone[i].kind == MESH_EVENT_LOST ? "was lost" : "has closed its transport",
                              e->gone[i].why ? ": " : "", mesh__or_empty(e->gone[i].why));
    return MESH_OK;
}

/* Answer a hello: with why not, or with the tuning table. */
static inline void mesh__welcome(mesh__engine *e, mesh__mail *hello, mesh_status status, uint32_t id,
                                 const mesh__comm_impl *terms, const mesh_error *why) {
    unsigned char welcome[MESH_CONTROL_BYTES];
    size_t length = MESH__WELCOME_HEAD;
    mesh__put32(welcome, MESH__MSG_WELCOME);
    mesh__put32(welcome + 4, mesh__get32(mesh__mail_data(hello) + 4));
    mesh__put32(welcome + 8, (uint32_t)status);
    mesh__put32(welcome + 12, id);
    mesh__put32(welcome + 16, (uint32_t)(why ? why->rank : -1));
    if (why) {
        memcpy(welcome + length, why->text, strlen(why->text) + 1);
        length += strlen(why->text) + 1;
    }
    if (!why && terms) length += mesh__terms_write(welcome + length, terms);
    e->t->ops->control_send(e->t, hello->rank, MESH_EVENT_MESSAGE, welcome, length);
}

/* Ranks that come for a mesh that this rank gave up before. */
static inline void mesh__turn_away_late(mesh__engine *e, uint64_t opening) {
    mesh__mail **at = &e->mail;
    while (*at) {
        mesh_error why;
        if (!mesh__is_hello(*at, (*at)->rank) || mesh__get64(mesh__mail_data(*at) + 12) != e->given_up ||
            e->given_up == opening) {
            at = &(*at)->next;
            continue;
        }
        mesh__fail(&why, MESH_ERR_TIMEOUT, (*at)->rank,
                   "mesh_comm_open: rank %d came after the others had given up waiting for it", (*at)->rank);
        mesh__welcome(e, *at, MESH_ERR_TIMEOUT, 0, NULL, &why);
        mesh__mail_drop(e, at);
    }
}

/* The first rank's part: wait for every hello, compare, choose the id. */
static inline mesh_status mesh__open_lead(mesh__engine *e, const mesh *m, const unsigned char *mine, int64_t deadline,
                                          mesh__comm_impl *terms, uint32_t *id, mesh_error *err) {
    mesh_status status = MESH_OK;
    mesh__mail **at;
    int heard = 1, i;
    *id = e->last_id;
    for (;;) {
        mesh__poll(e);
        mesh__turn_away_late(e, mesh__get64(mine + 12));
        heard = 1;
        for (at = &e->mail; *at; at = &(*at)->next) { /* one hello of each rank at most */
            unsigned char *d = mesh__mail_data(*at);
            int rank = (*at)->rank;
            if (!mesh__is_hello(*at, rank) || mesh_index_of(m, rank) < 1) continue;
            heard++;
            if (status == MESH_OK &&
                (mesh__get64(d + 12) != mesh__get64(mine + 12) || mesh__get64(d + 20) != mesh__get64(mine + 20)))
                status = mesh__fail(
                    err, MESH_ERR_MISMATCH, rank,
                    "mesh_comm_open: rank %d holds the mesh \"%s\" (fingerprint %x), rank %d holds \"%s\" (%x)%s; give every rank the same",
                    rank, (char *)d + 28, mesh__get64(d + 12), e->t->rank, (const char *)mine + 28,
                    mesh__get64(mine + 12),
                    mesh__get64(d + 12) == mesh__get64(mine + 12) ? ", and other groups in its description" : "");
            if (mesh__get32(d + 8) > *id) *id = mesh__get32(d + 8);
        }
        if (status == MESH_OK && e->starved)
            status = mesh__fail(err, MESH_ERR_MEMORY, e->t->rank,
                                "mesh_comm_open: rank %d has no memory for a message of the opening", e->t->rank);
        if (status != MESH_OK && mesh__now(e) + INT64_C(1000000000) < deadline)
            deadline = mesh__now(e) + INT64_C(1000000000); /* the others are still to be told */
        if (heard == m->size || (status != MESH_OK && (e->halted || mesh__now(e) >= deadline))) break;
        if (status == MESH_OK && (status = mesh__gone_from(e, m, err)) != MESH_OK) break;
        if (mesh__now(e) >= deadline) {
            int ranks[32], n = 0;
            char who[160];
            mesh__text t = mesh__text_on(who, sizeof who);
            for (i = 1; i < m->size; i++) {
                mesh__mail *k = e->mail;
                while (k && !mesh__is_hello(k, mesh_rank_at(m, i))) k = k->next;
                if (!k && n < 32) ranks[n++] = mesh_rank_at(m, i);
            }
            mesh__put_ranks(&t, ranks, n);
            status = mesh__fail(
                err, MESH_ERR_TIMEOUT, ranks[0],
                "mesh_comm_open: %d of %d ranks came; still missing: %s; every rank of the mesh must open it", heard,
                m->size, who);
            break;
        }
        mesh__progress(e, deadline);
    }
    *id += 1;
    if (status == MESH_OK && *id >= 1u << 24)
        status = mesh__fail(err, MESH_ERR_STATE, -1, "mesh_comm_open: all 2^24 comm ids of this job are used up");
    at = &e->mail;
    while (*at) {
        int index = mesh__is_hello(*at, (*at)->rank) ? mesh_index_of(m, (*at)->rank) : -1;
        if (index < 1) {
            at = &(*at)->next;
            continue;
        }
        terms->nonce[index] = mesh__get32(mesh__mail_data(*at) + 4);
        mesh__welcome(e, *at, status, *id, terms, status != MESH_OK ? err : NULL);
        mesh__mail_drop(e, at);
    }
    e->given_up = status == MESH_ERR_TIMEOUT ? mesh__get64(mine + 12) : 0;
    return status;
}

/* Every other rank's part: wait to be welcomed. */
static inline mesh_status mesh__open_follow(mesh__engine *e, const mesh *m, int leader, int64_t deadline,
                                            mesh__comm_impl *terms, uint32_t *id, mesh_error *err) {
    mesh_status status;
    mesh first;
    mesh_group_through(&first, m, "", leader, NULL);
    for (;;) {
        mesh__mail **at;
        mesh__poll(e);
        for (at = &e->mail; *at; at = &(*at)->next) {
            unsigned char *d = mesh__mail_data(*at);
            if ((*at)->rank != leader || (*at)->kind != MESH_EVENT_MESSAGE || mesh__get32(d) != MESH__MSG_WELCOME)
                continue;
            if (mesh__get32(d + 4) == e->opens) {
                status = mesh__get32(d + 8) == MESH_OK ? MESH_OK : mesh__status_heard(d + 8);
                *id = mesh__get32(d + 12);
                if (status == MESH_OK)
                    mesh__terms_read(terms, d + MESH__WELCOME_HEAD, (*at)->nbytes - MESH__WELCOME_HEAD);
                else
                    mesh__fail(err, status, (int)mesh__get32(d + 16), "%s",
                               (*at)->nbytes > 20 ? (char *)d + 20 : mesh_status_text(status));
                mesh__mail_drop(e, at);
                return status;
            }
            mesh__mail_drop(e, at); /* the answer to an opening that this rank gave up */
            break;
        }
        if (e->starved)
            return mesh__fail(err, MESH_ERR_MEMORY, e->t->rank,
                              "mesh_comm_open: rank %d has no memory for a message of the opening", e->t->rank);
        if ((status = mesh__gone_from(e, &first, err)) != MESH_OK)
            return status; /* the others' absence is the leader's to tell */
        if (mesh__now(e) >= deadline)
            return mesh__fail(
                err, MESH_ERR_TIMEOUT, leader,
                "mesh_comm_open: rank %d, the first of the mesh \"%s\", has not opened it (or waits for another rank)",
                leader, mesh__show(m).text);
        mesh__progress(e, deadline);
    }
}

/* Where this rank's operations are traced: ask the first rank for the time, a few times; the shortest trip says it best, taken in its middle
   (Cristian, 1989). That rank cannot have opened the comm before it has this one's hello, so it is there to answer; whether it traces too
   is its answer's to say. A rank that goes, or a deadline that passes, is told of by the opening that follows. */
static inline void mesh__clock_compare(mesh__engine *e, const mesh *m, int leader, int64_t deadline) {
    mesh__clock *k = &e->clock;
    int64_t offset = 0, within = INT64_MAX, sent;
    unsigned char ask[MESH__CLOCK_BYTES];
    mesh first;
    int trip;
    if (!e->t->trace_clock || e->t->rank == 0 || k->known) return;
    mesh_group_through(&first, m, "", leader, NULL);
    mesh__put32(ask, MESH__MSG_CLOCK);
    for (trip = 0; trip < MESH__CLOCK_TRIPS; trip++) {
        mesh__put32(ask + 4, ++k->asked);
        sent = mesh__now(e);
        if (e->t->ops->control_send(e->t, leader, MESH_EVENT_MESSAGE, ask, sizeof ask) != MESH_OK) return;
        for (mesh__poll(e); k->heard != k->asked; mesh__poll(e)) {
            if (e->starved || mesh__gone_from(e, &first, NULL) != MESH_OK || mesh__now(e) >= deadline) return;
            mesh__progress(e, deadline);
        }
        if (!k->told) return;
        if ((k->came - sent + 1) / 2 + k->time_within >= within) continue;
        within = (k->came - sent + 1) / 2 + k->time_within;
        offset = k->time - (sent + (k->came - sent) / 2 + e->t->trace_epoch);
    }
    k->known = 1;
    k->offset = offset;
    k->within = within;
    e->t->trace_clock(e->t->trace_ctx, offset, within);
}

static inline mesh_status mesh__open_groups(mesh_comm *c, const mesh_comm_desc *desc, mesh_error *err) {
    char all[MESH_MAX_AXES * MESH_NAME_BYTES];
    mesh__text t = mesh__text_on(all, sizeof all);
    mesh_status status;
    const char *p;
    int i;
    for (i = 0; i < c->on.naxes; i++) mesh__put(&t, "%s%s", i ? "," : "", c->on.axis[i].name);
    if ((status = mesh__group_add(c, all, t.len, err)) != MESH_OK) return status;
    for (i = 0; i < c->on.naxes && c->on.naxes > 1; i++)
        if ((status = mesh__group_add(c, c->on.axis[i].name, strlen(c->on.axis[i].name), err)) != MESH_OK)
            return status;
    for (p = desc->groups; p && *p;) {
        size_t length = 0;
        while (p[length] && p[length] != ';') length++;
        if ((status = mesh__group_add(c, p, length, err)) != MESH_OK) return status;
        p += length + (p[length] == ';');
    }
    return MESH_OK;
}

static inline void mesh__unregister(mesh_comm *c, mesh__registration *r) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__registration **at = &impl->registered;
    int i;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    for (i = 0; i < r->ngroups; i++)
        if (r->handle[i] && MESH__HAS(c->transport->ops, memory_unregister))
            c->transport->ops->memory_unregister(c->transport, impl->group[i]->handle, r->handle[i]);
    mesh_transport_free(c->transport, r);
}

static inline void mesh__comm_release(mesh_comm *c) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__engine *e = impl->engine;
    int i;
    while (impl->registered) mesh__unregister(c, impl->registered);
    for (i = 0; i < impl->ngroups; i++) mesh__group_free(e, impl->group[i]);
    for (i = 0; i < impl->ngraphs; i++) e->t->ops->free(e->t, impl->graphs[i]);
    mesh_transport_free(e->t, impl->nonce);
    mesh_transport_free(e->t, impl->graphs);
    mesh_transport_free(e->t, impl->group);
    mesh_transport_free(e->t, impl);
    c->impl = NULL;
}

static inline mesh_status mesh__comm_open_inside(mesh_comm *c, mesh_transport *t, const mesh *m,
                                                 const mesh_comm_desc *desc, mesh_error *err) {
    static const mesh_comm_desc none = MESH_ZERO;
    unsigned char hello[MESH_CONTROL_BYTES];
    mesh__engine *e;
    mesh__comm_impl *impl;
    mesh_status status;
    int64_t deadline;
    int i, leader;
    size_t length;
    uint32_t id = 0;
    if (!c || !t || !m)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_comm_open: %s is NULL",
                          !c   ? "the comm"
                          : !t ? "the transport"
                               : "the mesh");
    if (!desc) desc = &none;
    for (i = 0; t->engine && i < ((mesh__engine *)t->engine)->ncomms; i++)
        if (((mesh__engine *)t->engine)->comm[i] == c)
            return mesh__fail(err, MESH_ERR_STATE, -1,
                              "mesh_comm_open: this comm is open already; close it first, or use another");
    memset(c, 0, sizeof *c);
    if ((status = mesh__transport_check(t, err)) != MESH_OK) return status;
    if (mesh_index_of(m, t->rank) < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, t->rank,
                          "mesh_comm_open: rank %d is not in the mesh \"%s\"; only its ranks open it", t->rank,
                          mesh__show(m).text);
    for (i = 0; i < m->size; i++)
        if (mesh_rank_at(m, i) >= t->size)
            return mesh__fail(err, MESH_ERR_ARGUMENT, mesh_rank_at(m, i),
                              "mesh_comm_open: the mesh \"%s\" holds rank %d, but the world has %d ranks",
                              mesh__show(m).text, mesh_rank_at(m, i), t->size);
    if (desc->timeout_ns < 0 || desc->ask_ns < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_comm_open: a negative time in the description");
    if (desc->tuning && (desc->tuning->nrows < 0 || desc->tuning->nrows > MESH_MAX_TUNING))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_comm_open: a tuning table of %d rows; at most %d",
                          desc->tuning->nrows, (int)MESH_MAX_TUNING);
    if (desc->scratch_cap < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_comm_open: scratch_cap is %l; 0 means any",
                          desc->scratch_cap);
    if (desc->topology && (status = mesh_topology_check(desc->topology, err)) != MESH_OK) return status;
    if (!(e = mesh__engine_get(t)) || !(impl = (mesh__comm_impl *)mesh_transport_alloc(t, sizeof *impl)))
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_comm_open: no memory");
    memset(impl, 0, sizeof *impl);
    impl->engine = e;
    impl->timeout = desc->timeout_ns ? desc->timeout_ns : t->timeout_ns ? t->timeout_ns : INT64_C(600000000000);
    impl->ask = desc->ask_ns ? desc->ask_ns : INT64_C(1000000000);
    if (impl->timeout > MESH__FOREVER_NS) impl->timeout = MESH__FOREVER_NS;
    if (impl->ask > MESH__FOREVER_NS) impl->ask = MESH__FOREVER_NS;
    if (impl->timeout > e->longest) e->longest = impl->timeout;
    impl->stream = desc->stream;
    mesh__copy_text(impl->name, sizeof impl->name, desc->name ? desc->name : "comm");
    c->transport = t;
    c->on = *m;
    c->impl = impl;
    deadline = mesh__now(e) + impl->timeout;
    leader = mesh_rank_at(m, 0);
    e->starved = 0;
    e->opens++;
    if (leader != t->rank) mesh__clock_compare(e, m, leader, deadline);
    length = mesh__hello_write(hello, e, m, desc);
    if (!mesh__grow(t, (void **)&e->comm, &e->comm_cap, e->ncomms + 1, sizeof *e->comm)) {
        status = mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_comm_open: no memory");
    } else if (leader == t->rank) {
        mesh_error own;
        if (desc->tuning || t->tuning) impl->tuning = desc->tuning ? *desc->tuning : *t->tuning;
        if (desc->topology) impl->topology = *desc->topology;
        impl->scratch_cap = desc->scratch_cap;
        impl->nonce = (uint32_t *)mesh_transport_alloc(t, (size_t)m->size * sizeof *impl->nonce);
        if (!impl->nonce) {
            mesh__comm_release(c);
            return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_comm_open: no memory");
        }
        memset(impl->nonce, 0, (size_t)m->size * sizeof *impl->nonce);
        status = mesh__open_lead(e, m, hello, deadline, impl, &id, err ? err : &own);
    } else if ((status = t->ops->control_send(t, leader, MESH_EVENT_MESSAGE, hello, length)) != MESH_OK) {
        mesh first;
        mesh_group_through(&first, m, "", leader, NULL);
        mesh__control(e); /* what became of it */
        if (mesh__gone_from(e, &first, err) == MESH_OK)
            mesh__fail(err, status, status == MESH_ERR_PEER ? leader : t->rank,
                       "mesh_comm_open: cannot reach rank %d, the first of the mesh: %s", leader,
                       mesh_status_text(status));
    } else {
        status = mesh__open_follow(e, m, leader, deadline + INT64_C(1000000000), impl, &id,
                                   err); /* the leader's answer says more */
        mesh__put32(hello, MESH__MSG_FAREWELL);
        if (status != MESH_OK) t->ops->control_send(t, leader, MESH_EVENT_MESSAGE, hello, 8);
    }
    if (status == MESH_OK) {
        c->id = id;
        if (id > e->last_id) e->last_id = id;
        status = mesh__open_groups(c, desc, &c->error);
        if (status != MESH_OK && err) *err = c->error;
        if (status != MESH_OK)
            mesh__announce(c, MESH__ABORT_PLAIN, NULL); /* it is open for the others, who would wait */
    }
    if (status != MESH_OK) {
        mesh__comm_release(c);
        return status;
    }
    e->comm[e->ncomms++] = c;
    {
        mesh__mail **at = &e->mail; /* aborts that came before the welcome */
        while (*at) {
            if ((*at)->kind == MESH_EVENT_ABORT && mesh__get32(mesh__mail_data(*at)) <= id) {
                if (mesh__get32(mesh__mail_data(*at)) == id)
                    mesh__comm_abort_heard(c, (*at)->rank, mesh__mail_data(*at), (*at)->nbytes);
                mesh__mail_drop(e, at);
            } else {
                at = &(*at)->next;
            }
        }
    }
    return MESH_OK;
}
MESH_API mesh_status mesh_comm_open(mesh_comm *c, mesh_transport *t, const mesh *m, const mesh_comm_desc *desc,
                                    mesh_error *err) {
    mesh_status status = mesh__enter(t, err, "comm_open");
    if (status != MESH_OK) return status;
    status = mesh__comm_open_inside(c, t, m, desc, err);
    mesh__leave(t);
    return status;
}

static inline void mesh__comm_settle(mesh_comm *c);

static inline mesh_status mesh__comm_close_inside(mesh_comm *c) {
    mesh__engine *e;
    int i, k, under_way = 0;
    int64_t limit;
    if (!c || !c->impl) return MESH_OK;
    e = mesh__impl(c)->engine;
    mesh__comm_settle(c);
    for (i = 0; i < e->nops; i++) {
        mesh__op *op = e->op[i];
        if (op->comm != c) continue;
        mesh__op_advance(e, op); /* it may have ended */
        if (op->state != MESH__ACTIVE || op->failing) continue;
        under_way++;
        mesh__history_end(e, op, MESH_ERR_CANCELED);
        mesh__op_cancel(e, op, MESH_ERR_CANCELED);
    }
    mesh__impl(c)->disputing = 0;
    if (under_way) mesh__groups_abort(c);
    if (under_way && !c->failed) { /* the others may be waiting for what will not come */
        mesh__fail(&c->error, MESH_ERR_PEER, e->t->rank, "%s: rank %d closed it with %d operation%s under way",
                   mesh__impl(c)->name, e->t->rank, under_way, under_way == 1 ? "" : "s");
        mesh__announce(c, MESH__ABORT_PLAIN, NULL);
    }
    limit = mesh__now(e) + MESH__CLOSE_NS;
    for (;;) { /* tickets end without their peers */
        int left = mesh__impl(c)->untold != 0;
        mesh__announce_again(c);
        for (i = 0; i < e->nops; i++) {
            if (e->op[i]->comm != c) continue;
            mesh__op_advance(e, e->op[i]);
            left += e->op[i]->state == MESH__ACTIVE;
        }
        if (!left || mesh__now(e) > limit) break;
        e->t->ops->progress(e->t, mesh__now(e) + 1000000);
    }
    for (i = 0; i < e->nops; i++)
        if (e->op[i]->comm == c) {
            mesh__op_not_issued(e, e->op[i]);
            if (e->op[i]->state == MESH__ACTIVE) { /* the transport is still at it: slot and memory stay its own */
                e->nactive--;
                if (e->roll.op == e->op[i]) e->roll.op = NULL;
                if (e->op[i]->detached) mesh__op_attach(e, e->op[i]);
                e->op[i]->state = MESH__RETIRED;
                e->op[i]->comm = NULL;
            } else {
                mesh__op_release(e, e->op[i]);
            }
        }
    for (i = 0; i < e->ncomms && e->comm[i] != c; i++) {}
    for (k = i; k + 1 < e->ncomms; k++) e->comm[k] = e->comm[k + 1];
    if (i < e->ncomms) e->ncomms--;
    if (under_way && !c->failed)
        mesh__fail(
            &c->error, MESH_ERR_STATE, -1,
            "mesh_comm_close: %d operation%s still under way in %s and now canceled; wait for every request first",
            under_way, under_way == 1 ? " was" : "s were", mesh__impl(c)->name);
    mesh__comm_release(c);
    return under_way ? MESH_ERR_STATE : MESH_OK;
}
MESH_API mesh_status mesh_comm_close(mesh_comm *c) { MESH__ALONE(c, MESH__CALLER, mesh__comm_close_inside(c)); }

static inline mesh_status mesh__op_add_inside(mesh_comm *c, const mesh_user_op *user, mesh_op *op) {
    mesh__comm_impl *impl = c ? mesh__impl(c) : NULL;
    if (!impl || c->failed) return MESH_ERR_STATE;
    if (!user || !user->combine || !op)
        return mesh__fail(&c->error, MESH_ERR_ARGUMENT, -1, "mesh_op_add: %s is NULL",
                          !user ? "the description"
                          : !op ? "op"
                                : "combine");
    if (user->elem_bytes > SIZE_MAX / 4)
        return mesh__fail(&c->error, MESH_ERR_ARGUMENT, -1, "mesh_op_add: elements of %u bytes; give the size of one",
                          (uint64_t)user->elem_bytes);
    if (impl->nuser_ops == MESH__USER_OPS)
        return mesh__fail(&c->error, MESH_ERR_ARGUMENT, -1,
                          "mesh_op_add: this comm has %d ops; add each once, and use it again", (int)MESH__USER_OPS);
    impl->user_op[impl->nuser_ops] = *user;
    *op = (mesh_op)(MESH__USER_OP + impl->nuser_ops++);
    return MESH_OK;
}
MESH_API mesh_status mesh_op_add(mesh_comm *c, const mesh_user_op *user, mesh_op *op) {
    MESH__ALONE(c, MESH__CALLER, mesh__op_add_inside(c, user, op));
}

MESH_API int mesh_comm_size(const mesh_comm *c, const char *axes) {
    mesh__group *g = c && c->impl ? mesh__group_find(mesh__impl(c), axes) : NULL;
    return g ? g->on.size : -1;
}

MESH_API int mesh_comm_index(const mesh_comm *c, const char *axes) {
    mesh__group *g = c && c->impl ? mesh__group_find(mesh__impl(c), axes) : NULL;
    return g ? g->index : -1;
}

MESH_API mesh_status mesh_comm_bytes(const mesh_comm *c, const char *axes, uint64_t *sent, uint64_t *received) {
    mesh__group *g = c && c->impl ? mesh__group_find(mesh__impl(c), axes) : NULL;
    if (!g) return MESH_ERR_STATE;
    if (sent) *sent = g->sent;
    if (received) *received = g->received;
    return MESH_OK;
}

MESH_API size_t mesh_comm_history(const mesh_comm *c, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    mesh__engine *e = c && c->impl ? mesh__impl(c)->engine : NULL;
    uint32_t i, n = e ? mesh__remembered(e) : 0;
    for (i = 0; i < n; i++) {
        const mesh__history *h = &e->ring[(e->ring_count - n + i) % MESH__RING];
        mesh__put(&t, "comm %d: ", h->comm);
        mesh__put_record(&t, &h->record);
        if (h->status == MESH_IN_PROGRESS)
            mesh__put(&t, ": in progress\n");
        else
            mesh__put(&t, ": %s after %l us\n", mesh_status_text((mesh_status)h->status), (h->end - h->start) / 1000);
    }
    return t.len;
}

/* ---- // >>operations: a call becomes an operation, its schedule is built, it is launched ---- */

/* A call that this rank got wrong fails the comm everywhere: the others would wait for it. */
static inline mesh_status mesh__refuse(mesh_comm *c, mesh_status status, int kind, const char *axes, const char *format,
                                       ...) {
    va_list args;
    char why[300];
    mesh__text t = mesh__text_on(why, sizeof why);
    va_start(args, format);
    mesh__vput(&t, format, args);
    va_end(args);
    return mesh__comm_broken(c, status, c->transport->rank, "mesh_%s(\"%s\"): %s", mesh__call_name(kind),
                             axes ? axes : "(all axes)", why);
}

/* A free slot, its arrays kept from the operation that used it before. */
static inline mesh__op *mesh__op_take(mesh__engine *e) {
    mesh__op *op = e->unused;
    if (op) {
        e->unused = op->next_unused;
    } else {
        if (!mesh__grow(e->t, (void **)&e->op, &e->op_cap, e->nops + 1, sizeof *e->op)) return NULL;
        op = (mesh__op *)mesh_transport_alloc(e->t, sizeof *op);
        if (!op) return NULL;
        memset(op, 0, sizeof *op);
        op->slot = (uint32_t)e->nops;
        e->op[e->nops++] = op;
    }
    op->extend = NULL;
    op->nsteps = op->nxfers = op->nscratch = op->native = op->out_of_memory = 0;
    if (++op->generation == 0) op->generation = 1;
    return op;
}

/* Operations that were left to a stream end in the order they were left; the first that has not is looked at for its deadline. */
static inline void mesh__reap(mesh__engine *e) {
    mesh__op *op;
    while ((op = e->detached) != NULL) {
        mesh__op_advance(e, op);
        if (e->detached != op) continue;
        if (mesh__now(e) < op->deadline && !op->failing) return;
        mesh__progress(e, 0); /* what is there counts, however late it is looked at */
        mesh__poll(e);
        mesh__op_advance(e, op);
        if (e->detached != op) continue;
        if (!op->failing) mesh__op_timeout(e, op);
        mesh__progress(e, mesh__now(e) + 1000000);
        mesh__poll(e);
    }
}

/* The comm and group of a call, or an error. */
static inline mesh_status mesh__call_begin(mesh_comm *c, const char *axes, int kind, mesh_request *r, mesh__group **g) {
    if (!c) return MESH_ERR_ARGUMENT;
    if (!c->impl)
        return mesh__fail(&c->error, MESH_ERR_STATE, -1, "mesh_%s: the comm is not open", mesh__call_name(kind));
    if (c->failed) return (mesh_status)c->error.status;
    if (!r) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "the request is NULL");
    mesh__control(mesh__impl(c)->engine);
    mesh__reap(mesh__impl(c)->engine);
    if (c->failed) return (mesh_status)c->error.status;
    *g = mesh__group_find(mesh__impl(c), axes);
    if (*g) return MESH_OK;
    {
        uint8_t list[MESH_MAX_AXES];
        mesh_error why;
        if (mesh__axes(&c->on, axes, list, "axes", &why) < 0)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%s", why.text);
    }
    return mesh__refuse(
        c, MESH_ERR_STATE, kind, axes,
        "this group is not open; list it in mesh_comm_desc.groups or call mesh_group_open on every rank");
}

/* Give the operation its identity, after its arguments were found good, or a kept one a new identity. */
static inline void mesh__op_identify(mesh__engine *e, mesh__op *op, mesh_comm *c, mesh__group *g) {
    const mesh_call *call = &op->call;
    mesh__history *h = &e->ring[e->ring_count % MESH__RING];
    int p2p = mesh__call_is(call->kind, MESH_P2P);
    uint64_t check = mesh__mix(g->fingerprint * (uint64_t)!p2p, p2p ? (uint64_t)MESH_CALL_SEND : (uint64_t)call->kind);
    op->comm = c;
    op->group = g;
    op->state = MESH__ACTIVE;
    op->at = op->oldest = 0;
    op->progress = 0;
    op->sent = op->received = 0;
    op->serial = ++e->started;
    op->gone_until = 0;
    op->stalled = op->alone = op->gone_seen = 0;
    op->failing = MESH_OK;
    op->channel = (uint64_t)g->id << 32 | (p2p ? 0 : ++g->sequence);
    if (!p2p && !g->sequence) op->channel |= ++g->sequence; /* 0 is point to point: it is skipped on wrap-around */
    op->record.count = mesh__call_is(call->kind, MESH_BY_COUNTS) ? 0
                       : call->kind == MESH_CALL_REDISTRIBUTE    ? op->shape
                                                                 : call->count;
    check = mesh__mix(check, (uint64_t)call->dtype << 8 | (uint64_t)call->op);
    if (call->op >= MESH__USER_OP) check = mesh__mix(check, call->elem_bytes);
    if (call->nbuffers) check = mesh__mix(check, op->shape);
    if (!p2p)
        g->history = check = mesh__mix(mesh__mix(mesh__mix(check, (uint64_t)call->root), op->record.count), g->history);
    op->check = check;
    op->call.channel = op->channel;
    op->call.check = check;
    op->call.record = &op->record;
    op->elem_bytes = call->elem_bytes;
    op->start = mesh__now(e);
    op->deadline = op->start + mesh__impl(c)->timeout;
    op->record.channel = op->channel;
    op->record.kind = (uint8_t)call->kind;
    op->record.dtype = (uint8_t)call->dtype;
    op->record.op = (uint8_t)call->op;
    op->record.root = mesh__is_unrooted_list(call->kind) ? (int)(op->shape & 0x7fffffff) : call->root;
    mesh__copy_text(op->record.axes, sizeof op->record.axes, g->axes);
    op->ring = e->ring_count++;
    h->record = op->record;
    h->comm = (int)c->id;
    h->status = MESH_IN_PROGRESS;
    h->start = op->start;
    e->nactive++;
}

/* Number the xfers of a point-to-point operation among all to or from their peers: how a waiter and its peer find out whether it is
   served. Returns 0 without memory. */
static inline int mesh__p2p_number(mesh__engine *e, mesh__op *op) {
    mesh__group *g = op->group;
    int x;
    if (!g->p2p) {
        g->p2p = (uint32_t(*)[2])mesh_transport_alloc(e->t, sizeof *g->p2p * (size_t)g->on.size);
        if (!g->p2p) return 0;
        memset(g->p2p, 0, sizeof *g->p2p * (size_t)g->on.size);
    }
    if (!mesh__grow(e->t, (void **)&op->ordinal, &op->ordinal_cap, op->nxfers, sizeof *op->ordinal)) return 0;
    for (x = 0; x < op->nxfers; x++)
        op->ordinal[x] = ++g->p2p[mesh_index_of(&g->on, op->xfer[x].rank)][op->xfer[x].direction];
    return 1;
}

/* Operations come after what is on the caller's stream; one that is waited for at once runs there. */
static inline mesh_status mesh__op_fence(mesh__engine *e, const mesh__op *op) {
    const mesh__comm_impl *impl = mesh__impl(op->comm);
    if (!MESH__HAS(e->t->ops, fence)) return MESH_OK;
    return e->t->ops->fence(e->t, op->group->handle, impl->stream, impl->blocking ? MESH_FENCE_ON : MESH_FENCE_AFTER);
}

static inline mesh__step *mesh__step_add(mesh__engine *e, mesh__op *op, int kind);

/* Where steps are only issued, a mark behind them tells their end. */
static inline void mesh__add_mark(mesh__engine *e, mesh__op *op) {
    const mesh__step *last = op->nsteps ? &op->step[op->nsteps - 1] : NULL;
    if (!(e->t->caps & MESH_CAP_ORDERED) || op->native || (last && last->kind == MESH__POST && !last->count)) return;
    mesh__step_add(e, op, MESH__POST);
}

static inline mesh_status mesh__op_launch(mesh__engine *e, mesh__op *op, mesh_request *r) {
    mesh__add_mark(e, op);
    if (mesh__call_is(op->call.kind, MESH_P2P) && !mesh__p2p_number(e, op)) op->out_of_memory = 1;
    if (op->out_of_memory) {
        mesh_comm *c = op->comm;
        mesh__op_end(e, op, MESH_ERR_MEMORY);
        mesh__op_release(e, op);
        return mesh__refuse(c, MESH_ERR_MEMORY, op->record.kind, op->record.axes,
                            "no memory for the schedule or scratch of %u elements", op->record.count);
    }
    if (!op->native) {
        mesh_status status = mesh__op_fence(e, op);
        if (status != MESH_OK) {
            mesh_comm *c = op->comm;
            mesh__op_end(e, op, status);
            mesh__op_release(e, op);
            return mesh__refuse(c, status, op->record.kind, op->record.axes,
                                "the transport (%s) refused the caller's stream: %s", e->t->ops->name,
                                mesh_status_text(status));
        }
    }
    r->comm = op->comm;
    r->slot = op->slot;
    r->generation = op->generation;
    mesh__op_advance(e, op);
    if (e->ngone) mesh__op_check_gone(e, op);
    return MESH_OK;
}

/* ---- // >>schedules: the steps they are made of ---- */

static inline mesh__step *mesh__step_add(mesh__engine *e, mesh__op *op, int kind) {
    mesh__step *s;
    if (op->out_of_memory || !mesh__grow(e->t, (void **)&op->step, &op->step_cap, op->nsteps + 1, sizeof *op->step)) {
        op->out_of_memory = 1;
        return NULL;
    }
    s = &op->step[op->nsteps++];
    memset(s, 0, sizeof *s);
    s->kind = kind;
    s->first = op->nxfers;
    return s;
}

static inline void mesh__add_post(mesh__engine *e, mesh__op *op) { mesh__step_add(e, op, MESH__POST); }
/* Wait for the posts before a step. */
static inline void mesh__add_wait_before(mesh__engine *e, mesh__op *op, int step) {
    mesh__step *s = mesh__step_add(e, op, MESH__WAIT);
    if (s) s->first = step;
}
static inline void mesh__add_wait(mesh__engine *e, mesh__op *op) { mesh__add_wait_before(e, op, op->nsteps); }

/* An xfer of the post begun last. `index` is the peer's in the group. */
static inline void mesh__add_xfer(mesh__engine *e, mesh__op *op, int direction, int index, const void *base,
                                  size_t nbytes) {
    mesh_xfer *x;
    if (op->out_of_memory || !mesh__grow(e->t, (void **)&op->xfer, &op->xfer_cap, op->nxfers + 1, sizeof *op->xfer)) {
        op->out_of_memory = 1;
        return;
    }
    x = &op->xfer[op->nxfers++];
    x->base = (void *)(uintptr_t)base;
    x->nbytes = nbytes;
    x->block = NULL;
    x->direction = direction;
    x->rank = mesh_rank_at(&op->group->on, index);
    op->step[op->nsteps - 1].count++;
}

/* dst = dst op src, or src op dst: that matters to a user's op only. */
static inline void mesh__add_reduce(mesh__engine *e, mesh__op *op, void *dst, const void *src, size_t count,
                                    int src_first) {
    mesh__step *s = count ? mesh__step_add(e, op, MESH__REDUCE) : NULL;
    if (!s) return;
    s->dst = dst;
    s->src = src;
    s->n = count;
    s->src_first = src_first;
}

static inline void mesh__add_divide(mesh__engine *e, mesh__op *op, void *dst, size_t count) {
    mesh__step *s =
        count && op->call.op == MESH_AVG && op->group->on.size > 1 ? mesh__step_add(e, op, MESH__DIVIDE) : NULL;
    if (!s) return;
    s->dst = dst;
    s->src = dst;
    s->n = count;
}

static inline void mesh__add_copy(mesh__engine *e, mesh__op *op, void *dst, const void *src, size_t nbytes) {
    mesh__step *s = nbytes && dst != src ? mesh__step_add(e, op, MESH__COPY) : NULL;
    if (!s) return;
    s->dst = dst;
    s->src = src;
    s->n = nbytes;
}

/* Turn the byte order of nbytes, which lie at src, into dst. */
static inline void mesh__add_swap(mesh__engine *e, mesh__op *op, void *dst, const void *src, size_t nbytes) {
    mesh__step *s = nbytes ? mesh__step_add(e, op, MESH__SWAP) : NULL;
    if (!s) return;
    s->dst = dst;
    s->src = src;
    s->n = nbytes;
}

/* Memory of the operation's own, aligned to 64 bytes. At most MESH__SCRATCHES pieces. */
static inline unsigned char *mesh__scratch(mesh__engine *e, mesh__op *op, size_t nbytes) {
    int k = op->nscratch++;
    void *p = NULL;
    MESH_ASSERT(k < MESH__SCRATCHES);
    nbytes += 64;
    if (nbytes > op->scratch[k].nbytes) {
        if (op->scratch[k].p && mesh__on_device(e)) e->t->ops->free(e->t, op->scratch[k].p);
        if (op->scratch[k].p && !mesh__on_device(e)) mesh_transport_free(e->t, op->scratch[k].p);
        if (!mesh__on_device(e))
            p = mesh_transport_alloc(e->t, nbytes);
        else if (e->t->ops->alloc(e->t, nbytes, 0, &p) != MESH_OK)
            p = NULL;
        op->scratch[k].p = (unsigned char *)p;
        op->scratch[k].nbytes = p ? nbytes : 0;
        if (!p) op->out_of_memory = 1;
    }
    p = op->scratch[k].p;
    return p ? (unsigned char *)(((uintptr_t)p + 63) & ~(uintptr_t)63) : NULL;
}

/* ---- // >>requests -------------------------------------------------------------------------------------------------------------------------- */

static inline mesh__op *mesh__request_op(mesh_request r) {
    mesh__engine *e;
    if (!r.comm || !r.comm->impl || !r.generation) return NULL;
    e = mesh__impl(r.comm)->engine;
    if (r.slot >= (uint32_t)e->nops || e->op[r.slot]->generation != r.generation || e->op[r.slot]->comm != r.comm ||
        e->op[r.slot]->state == MESH__FREE)
        return NULL;
    return e->op[r.slot];
}

/* Kept, and its last round was waited for: it can be started again, though a stream may still be at it. */
static inline int mesh__op_rests(const mesh__op *op) { return op->state == MESH__RESTING || op->detached; }

static inline mesh_status mesh__request_none(mesh_request r, const char *function) {
    if (r.comm && !r.comm->failed)
        mesh__fail(&r.comm->error, MESH_ERR_STATE, -1,
                   "%s: no such request: it was waited for already, or its comm was closed", function);
    return MESH_ERR_STATE;
}

static inline mesh_status mesh__request_rests(mesh_request r, const char *function) {
    if (!r.comm->failed)
        mesh__fail(&r.comm->error, MESH_ERR_STATE, -1, "%s: this kept request is not started; call mesh_restart first",
                   function);
    return MESH_ERR_STATE;
}

/* The end of a wait: a request is consumed, a kept one rests. */
static inline mesh_status mesh__request_end(mesh__engine *e, mesh__op *op) {
    mesh_status status = op->status;
    if (op->kept)
        op->state = MESH__RESTING;
    else
        mesh__op_release(e, op);
    return status;
}

/* Said once, when an operation has waited for long: a rank that is only slow is no error. */
static inline void mesh__say_waiting(mesh__engine *e, const mesh__op *op) {
    char text[400];
    int ranks[MESH__WALK_PENDING], n;
    mesh__text t = mesh__text_on(text, sizeof text);
    if (!e->t->log) return;
    mesh__put(&t, "%s: rank %d has waited for 10 s in ", mesh__impl(op->comm)->name, e->t->rank);
    mesh__put_record(&t, &op->record);
    if (e->t->caps & MESH_CAP_PENDING) {
        n = mesh__op_pending(e, op, ranks, MESH__WALK_PENDING);
        mesh__put(&t, " for ");
        mesh__put_ranks(&t, ranks, n);
    }
    mesh__put(&t, "; its deadline is %l s", mesh__impl(op->comm)->timeout / 1000000000);
    e->t->log(e->t->log_ctx, 1, text);
}

/* Block until an operation has ended. */
static inline void mesh__op_wait(mesh__engine *e, mesh__op *op) {
    const mesh__comm_impl *impl = mesh__impl(op->comm);
    int looked = 0;
    int64_t say = INT64_MAX;
    uint32_t seen, generation = op->generation;
    mesh__op_advance(e, op); /* often it has ended: then the others need no look */
    e->waiting = op;
    seen = op->progress;
    op->ask_wait = impl->ask;
    if (op->state == MESH__ACTIVE) {
        op->next_ask = mesh__now(e) + op->ask_wait;
        say = op->next_ask - op->ask_wait + MESH__SAY_NS;
    }
    while (op->state == MESH__ACTIVE && op->generation == generation) {
        int64_t now, wake;
        mesh__poll(e);
        mesh__op_advance(e, op);
        if (op->state != MESH__ACTIVE) break;
        now = mesh__now(e);
        if (op->progress != seen) { /* it moves: no reason to ask */
            seen = op->progress;
            op->ask_wait = impl->ask;
            op->next_ask = now + op->ask_wait;
        }
        if (now >= op->deadline && !op->failing && !looked++) { /* what is there counts, however late it is looked at */
            mesh__progress(e, 0);
            continue;
        }
        if (now >= op->deadline && !op->failing) mesh__op_timeout(e, op);
        if (now >= op->next_ask && !op->failing) {
            mesh__walk_start(e, op);
            if (op->ask_wait < INT64_C(30000000000)) op->ask_wait *= 2;
            op->next_ask = now + op->ask_wait;
        }
        if (op->failing) {
            mesh__op_advance(e, op);
            if (op->state != MESH__ACTIVE) break;
        }
        wake = op->failing ? now + INT64_C(100000000) : op->deadline < op->next_ask ? op->deadline : op->next_ask;
        if (op->gone_until && op->gone_until < wake && !op->failing) wake = op->gone_until;
        if (now >= say && !op->failing) {
            mesh__say_waiting(e, op);
            say = INT64_MAX;
        }
        if (say < wake) wake = say;
        if (now >= op->deadline && !op->failing) wake = now + 1000000; /* the roll is called */
        mesh__progress(e, wake);
    }
    e->waiting = NULL;
}

/* Posts that went into a graph are over for the host; the stream that is captured still has to come behind them. */
static inline void mesh__op_join(mesh__engine *e, mesh__op *op) {
    if (op->state == MESH__DONE && op->status == MESH_OK && mesh__op_captured(op) && MESH__HAS(e->t->ops, stream_wait))
        e->t->ops->stream_wait(e->t, op->group->handle, &op->step[op->nsteps - 1].ticket, mesh__impl(op->comm)->stream);
}

static inline mesh_status mesh__wait_host_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    if (!op) return mesh__request_none(r, "mesh_wait_host");
    if (mesh__op_rests(op)) return mesh__request_rests(r, "mesh_wait_host");
    mesh__op_wait(mesh__impl(r.comm)->engine, op);
    mesh__op_join(mesh__impl(r.comm)->engine, op);
    return mesh__request_end(mesh__impl(r.comm)->engine, op);
}
MESH_API mesh_status mesh_wait_host(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__wait_host_inside(r)); }

/* Leave an operation that is issued to the caller's stream: its request ends, it goes on. A kept one rests. */
static inline mesh_status mesh__op_leave(mesh__engine *e, mesh__op *op) {
    mesh__step *last = &op->step[op->nsteps - 1];
    mesh_status status = e->t->ops->stream_wait(e->t, op->group->handle, &last->ticket, mesh__impl(op->comm)->stream);
    if (status != MESH_OK) return status;
    if (!op->kept && ++op->generation == 0) op->generation = 1;
    mesh__op_detach(e, op);
    while (e->ndetached > MESH__LEFT) mesh__op_wait(e, e->detached);
    return MESH_OK;
}

/* A round that is left to a stream is followed by the next in the same queue: the next one's end is its end too. */
static inline void mesh__op_recall(mesh__engine *e, mesh__op *op) {
    int i;
    for (i = 0; i < op->nsteps; i++) op->step[i].open = 0;
    mesh__op_attach(e, op);
    mesh__op_end(e, op, MESH_OK);
    op->state = MESH__RESTING;
}

static inline mesh_status mesh__wait_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    mesh__engine *e;
    if (!op) return mesh__request_none(r, "mesh_wait");
    if (mesh__op_rests(op)) return mesh__request_rests(r, "mesh_wait");
    e = mesh__impl(r.comm)->engine;
    if (MESH__HAS(e->t->ops, stream_wait) && op->state == MESH__ACTIVE && op->issued && !op->failing && op->nsteps &&
        mesh__op_leave(e, op) == MESH_OK)
        return MESH_OK;
    mesh__op_wait(e, op);
    mesh__op_join(e, op);
    return mesh__request_end(e, op);
}
MESH_API mesh_status mesh_wait(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__wait_inside(r)); }

static inline mesh_status mesh__comm_stream_inside(mesh_comm *c, void *stream) {
    int i;
    if (!c || !c->impl) return MESH_ERR_STATE;
    if (mesh__impl(c)->stream == stream) return MESH_OK;
    mesh__impl(c)->stream = stream;
    for (i = 0; i < mesh__impl(c)->ngroups && MESH__HAS(c->transport->ops, fence) && !c->failed; i++)
        c->transport->ops->fence(c->transport, mesh__impl(c)->group[i]->handle, stream, MESH_FENCE_ON);
    return MESH_OK;
}
MESH_API mesh_status mesh_comm_stream(mesh_comm *c, void *stream) {
    MESH__ALONE(c, MESH__CALLER, mesh__comm_stream_inside(c, stream));
}

/* Block until what was left to streams has ended. */
static inline void mesh__comm_settle(mesh_comm *c) {
    mesh__engine *e = mesh__impl(c)->engine;
    mesh__op *op = e->detached;
    while (op) {
        if (op->comm != c) {
            op = op->next_detached;
            continue;
        }
        mesh__op_wait(e, op);
        op = e->detached; /* others may have ended meanwhile */
    }
}

static inline mesh_status mesh__comm_sync_inside(mesh_comm *c) {
    mesh__engine *e;
    if (!c || !c->impl) return MESH_ERR_STATE;
    e = mesh__impl(c)->engine;
    mesh__comm_settle(c);
    for (mesh__poll(e); mesh__impl(c)->disputing; mesh__poll(e)) mesh__progress(e, mesh__impl(c)->dispute_until);
    return c->failed ? (mesh_status)c->error.status : MESH_OK;
}
MESH_API mesh_status mesh_comm_sync(mesh_comm *c) { MESH__ALONE(c, MESH__CALLER, mesh__comm_sync_inside(c)); }

static inline mesh_status mesh__test_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    mesh__engine *e;
    if (!op) return mesh__request_none(r, "mesh_test");
    if (mesh__op_rests(op)) return mesh__request_rests(r, "mesh_test");
    e = mesh__impl(r.comm)->engine;
    if (op->state == MESH__ACTIVE) {
        mesh__progress(e, 0);
        mesh__poll(e);
        mesh__op_advance(e, op);
        if (op->state == MESH__ACTIVE && !op->failing && mesh__now(e) >= op->deadline) mesh__op_timeout(e, op);
        if (op->state == MESH__ACTIVE) mesh__op_advance(e, op);
    }
    if (op->state == MESH__ACTIVE) return MESH_IN_PROGRESS;
    mesh__op_join(e, op);
    return mesh__request_end(e, op);
}
MESH_API mesh_status mesh_test(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__test_inside(r)); }

static inline mesh_status mesh__keep_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    if (!op) return mesh__request_none(r, "mesh_keep");
    if (op->extend) {
        mesh__fail(&r.comm->error, MESH_ERR_UNSUPPORTED, -1, "mesh_keep: %s has no schedule that could be kept",
                   mesh__call_name(op->call.kind));
        return MESH_ERR_UNSUPPORTED;
    }
    op->kept = 1;
    return MESH_OK;
}
MESH_API mesh_status mesh_keep(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__keep_inside(r)); }

static inline mesh_status mesh__restart_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    mesh_comm *c = r.comm;
    mesh__engine *e;
    if (!op) return mesh__request_none(r, "mesh_restart");
    e = mesh__impl(c)->engine;
    if (c->failed) return (mesh_status)c->error.status;
    if (!mesh__op_rests(op))
        return mesh__fail(&c->error, MESH_ERR_STATE, -1, "mesh_restart: the request is %s",
                          op->kept ? "under way; wait for it first"
                                   : "not kept; call mesh_keep before it is waited for");
    mesh__control(e);
    mesh__reap(e);
    if (c->failed) return (mesh_status)c->error.status;
    if (op->detached) mesh__op_recall(e, op);
    mesh__op_identify(e, op, c, op->group);
    if (op->native) { /* the transport's own collective */
        mesh_status status = mesh__op_fence(e, op);
        if (status == MESH_OK) status = e->t->ops->collective(e->t, op->group->handle, &op->call, &op->step[0].ticket);
        if (status != MESH_OK) {
            mesh__op_end(e, op, status);
            op->state = MESH__RESTING;
            return mesh__refuse(c, status, op->call.kind, op->group->axes, "the transport (%s) refused: %s",
                                e->t->ops->name, mesh_status_text(status));
        }
        op->step[0].open = 1;
        op->at = 1;
        op->group->sent += op->sent = op->native_sent;
        op->group->received += op->received = op->native_received;
    }
    return mesh__op_launch(e, op, &r);
}
MESH_API mesh_status mesh_restart(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__restart_inside(r)); }

static inline mesh_status mesh__release_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    if (!op) return mesh__request_none(r, "mesh_release");
    if (!op->kept)
        return mesh__fail(&r.comm->error, MESH_ERR_STATE, -1, "mesh_release: the request is not kept; wait for it");
    op->kept = 0;
    if (op->detached && ++op->generation == 0) op->generation = 1; /* freed when it ends */
    if (op->state == MESH__RESTING) mesh__op_release(mesh__impl(r.comm)->engine, op);
    return MESH_OK;
}
MESH_API mesh_status mesh_release(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__release_inside(r)); }

/* ---- // >>memory of the transport ---- */

static inline mesh_status mesh__alloc_inside(mesh_comm *c, size_t nbytes, void **p) {
    mesh__engine *e;
    mesh_status status;
    if (!c || !c->impl || !p) return c && c->impl ? MESH_ERR_ARGUMENT : MESH_ERR_STATE;
    e = mesh__impl(c)->engine;
    *p = NULL;
    if (MESH__HAS(e->t->ops, alloc)) {
        status = e->t->ops->alloc(e->t, nbytes ? nbytes : 1, MESH_ALLOC_BUFFER, p);
    } else {
        unsigned char *raw = nbytes < SIZE_MAX - 128 ? (unsigned char *)mesh_transport_alloc(e->t, nbytes + 128) : NULL;
        unsigned char *at = raw ? (unsigned char *)(((uintptr_t)raw + 127) & ~(uintptr_t)63) : NULL;
        status = raw ? MESH_OK : MESH_ERR_MEMORY;
        if (raw) memcpy(at - sizeof raw, &raw, sizeof raw); /* mesh_free finds it there */
        *p = at;
    }
    if (status != MESH_OK && !c->failed)
        mesh__fail(&c->error, status, -1, "mesh_alloc: no memory for %u bytes", (uint64_t)nbytes);
    return status;
}
MESH_API mesh_status mesh_alloc(mesh_comm *c, size_t nbytes, void **p) {
    MESH__ALONE(c, MESH__CALLER, mesh__alloc_inside(c, nbytes, p));
}

static inline mesh_status mesh__free_inside(mesh_comm *c, void *p) {
    mesh__engine *e;
    void *raw;
    mesh_status status;
    if (!c || !c->impl) return MESH_ERR_STATE;
    if (!p) return MESH_OK;
    e = mesh__impl(c)->engine;
    if (MESH__HAS(e->t->ops, free)) {
        status = e->t->ops->free(e->t, p);
        if (status != MESH_OK && !c->failed)
            mesh__fail(&c->error, status, -1, "mesh_free: %x is not mesh_alloc's, or was freed before",
                       (uint64_t)(uintptr_t)p);
        return status;
    }
    memcpy(&raw, (unsigned char *)p - sizeof raw, sizeof raw);
    mesh_transport_free(e->t, raw);
    return MESH_OK;
}
MESH_API mesh_status mesh_free(mesh_comm *c, void *p) { MESH__ALONE(c, MESH__CALLER, mesh__free_inside(c, p)); }

/* Wait on the host for what has been issued in a group, without an operation. */
static inline mesh_status mesh__group_settle(mesh_comm *c, void *group, mesh_error *why) {
    mesh__engine *e = mesh__impl(c)->engine;
    int64_t deadline = mesh__now(e) + mesh__impl(c)->timeout;
    mesh_post mark;
    mesh_ticket ticket;
    mesh_status status;
    memset(&mark, 0, sizeof mark);
    mark.group = group;
    status = e->t->ops->post(e->t, &mark, &ticket);
    if (status != MESH_OK) return status;
    if (ticket.id == MESH_TICKET_CAPTURED)
        return mesh__fail(why, MESH_ERR_STATE, -1,
                          "the caller's stream is being captured; copy outside of the capture");
    while ((status = e->t->ops->test(e->t, &ticket, why)) == MESH_IN_PROGRESS && mesh__now(e) < deadline &&
           !c->failed) {
        mesh__progress(e, mesh__now(e) + 1000000);
        mesh__poll(e);
    }
    return status == MESH_IN_PROGRESS ? MESH_ERR_TIMEOUT : status;
}

static inline mesh_status mesh__copy_inside(mesh_comm *c, void *dst, const void *src, size_t nbytes) {
    mesh__comm_impl *impl = c ? mesh__impl(c) : NULL;
    mesh_transport *t;
    void *group;
    mesh_error why = MESH_ZERO;
    mesh_status status = MESH_OK;
    if (!impl) return MESH_ERR_STATE;
    if (nbytes && (!dst || !src))
        return mesh__fail(&c->error, MESH_ERR_ARGUMENT, -1, "mesh_copy: %s is NULL", dst ? "src" : "dst");
    t = c->transport;
    if (!MESH__HAS(t->ops, copy)) {
        if (nbytes) memmove(dst, src, nbytes);
        return MESH_OK;
    }
    if (c->failed) return (mesh_status)c->error.status;
    group = impl->group[0]->handle;
    if (MESH__HAS(t->ops, fence)) status = t->ops->fence(t, group, impl->stream, MESH_FENCE_ON);
    if (status == MESH_OK) status = mesh__group_settle(c, group, &why); /* a copy to the host's memory may block */
    if (status == MESH_OK && nbytes) status = t->ops->copy(t, group, dst, NULL, src, NULL, nbytes);
    if (status == MESH_OK) status = mesh__group_settle(c, group, &why);
    if (c->failed) return (mesh_status)c->error.status;
    if (status == MESH_OK) return MESH_OK;
    return mesh__fail(&c->error, status, -1, "mesh_copy: %u bytes: %s%s%s", (uint64_t)nbytes, mesh_status_text(status),
                      why.text[0] ? ": " : "", why.text);
}
MESH_API mesh_status mesh_copy(mesh_comm *c, void *dst, const void *src, size_t nbytes) {
    MESH__ALONE(c, MESH__CALLER, mesh__copy_inside(c, dst, src, nbytes));
}

#ifdef __cplusplus
}
#endif
#endif /* MESH_IMPLEMENTATION */
