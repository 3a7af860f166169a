/* mesh/engine.h - the life of an operation: taken, identified, launched, advanced, waited for. One engine per transport. Part of mesh.h 0.1.0. MIT licence.

   Includes schedule.h, topology.h, hosts.h. What becomes of a failure it does not know: it meets failure.h, waits.h and control.h in six hooks.
*/
#if !defined(MESH_ENGINE_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_ENGINE_IMPLEMENTED))
#include "schedule.h"
#include "topology.h"
#include "hosts.h"
#endif

#ifndef MESH_ENGINE_H
#define MESH_ENGINE_H

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif /* MESH_ENGINE_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_ENGINE_IMPLEMENTED)
#define MESH_ENGINE_IMPLEMENTED

enum {
    MESH__RING = 256,       /* operations remembered */
    MESH__AXES_BYTES = 40,  /* of an axes text in a record */
    MESH__MAX_GROUPS = 255, /* the group's number has 8 bits of the channel */
    MESH__SCRATCH_KEPT = 4 << 20,
    MESH__USER_OP = 64, /* the mesh_op of the first user's op */
    MESH__USER_OPS = 64,
    MESH__LEFT = 1000, /* operations left to streams at once */
    MESH__WALK_DEPTH = 64,
    MESH__WALK_PENDING = 48,
    MESH__TAGS = 0x3fffffff /* the greatest tag */
};

#define MESH__TAGGED UINT32_C(0x80000000)  /* in a channel: messages under a tag, */
#define MESH__PAYLOAD UINT32_C(0xc0000000) /* or what a message of unknown length holds */
#define MESH__SAY_NS INT64_C(10000000000)  /* waited for so long, a rank says for whom */
#define MESH__FOREVER_NS (INT64_MAX / 4)   /* 73 years: no sum with a clock overflows */
#define MESH__GRACE_NS INT64_C(250000000)  /* after a rank is lost or takes back its side: for the cause to be heard */

/* What a rank called: goes into the ring and over the wire. */
typedef struct mesh__record {
    uint64_t channel, count;
    uint8_t kind, dtype, op, zero;
    int root;
    char axes[MESH__AXES_BYTES];
} mesh__record;

/* Point-to-point sends and receives posted to and from a member under a tag. */
typedef struct mesh__stream {
    uint32_t tag, used;
    int index;
    uint32_t count[2]; /* by mesh_direction */
} mesh__stream;

typedef struct mesh__group {
    const char *axes;             /* its text; owned */
    char shown[MESH__AXES_BYTES]; /* the same, as records have it */
    mesh on;                      /* its members in order */
    int index;
    uint32_t id; /* comm id << 8 | number in the list */
    uint32_t sequence;
    uint64_t fingerprint, sent, received;
    uint64_t history;     /* hash of every collective called so far: what went unnoticed in one shows in the next */
    void *handle;         /* the transport's */
    mesh__stream *stream; /* hashed; a power of two of them, NULL until the first message */
    int nstreams, stream_room;
    mesh__stream *recent;         /* that found last; NULL: none */
    uint32_t payloads;            /* messages of a length that the receiver does not know, sent so far */
    int *host, nhosts, scattered; /* host of each member; NULL: levels would change nothing. See mesh__schedule */
    struct {                      /* pipelines' */
        uint64_t checked;         /* hash of the schedule that was checked last; 0: none */
        uint64_t agreed;          /* of the one that all ranks had the last time, on a device */
        uint64_t sorted;          /* of the one whose messages stand in `turns` */
        void *turns;
        int nturns;
    } kept;
} mesh__group;

enum {
    MESH__FREE,
    MESH__ACTIVE,
    MESH__DONE,
    MESH__RESTING, /* kept, and waited for */
    MESH__RETIRED  /* until the transport closes */
};

/* What a schedule was built from, where the same may be asked for again: redistribute.h's. */
typedef struct mesh__origin {
    uint64_t plan;          /* its stamp; 0: nothing */
    unsigned char *base[2]; /* of source and destination */
    int64_t stride[2][MESH_MAX_DIMS];
    struct mesh__asked *asked; /* and the call itself; NULL: not known */
} mesh__origin;

typedef struct mesh__op {
    mesh__schedule schedule;
    mesh_comm *comm;
    mesh__group *group;
    uint32_t slot, generation;
    int state;
    mesh_status status, failing; /* failing: the end it will have once its tickets have ended */
    uint64_t channel, check;
    mesh__record record;
    uint32_t tag;            /* point to point: the sequence of its channel, 0 or with MESH__TAGGED */
    uint32_t ring;           /* which of all operations remembered it is; see mesh__history_of */
    int64_t start, deadline; /* where it is timed */
    int timed;
    /* While it is blocked in: when to ask the others, again after how long; when to say so, and how long it will have waited then. */
    int64_t next_ask, ask_wait, say, say_wait;
    int64_t gone_until; /* when it gives up on a rank that has closed; 0: none */
    struct mesh__op *next_unused;
    mesh__origin origin;
    uint64_t sent, received;
    uint32_t progress; /* counts every post and step that ended */
    uint32_t serial;   /* of all operations started, this one */
    int stalled; /* a peer took back its side or went away; 1 + its rank. Why is soon to be heard, or it is the cause itself (gone_until) */
    int issued;  /* everything is posted; only its end is awaited */
    int alone;   /* roll calls in a row that found all called, but for ranks that have left */
    int gone_seen; /* ranks that were gone when it was last seen to need none of them */
    int kept;      /* mesh_keep */
    int orphaned;  /* the transport may still read what it sent from: slot and scratch are never used again */
    int detached;  /* waited for on a stream: nobody holds its request any more */
    int unseen;    /* whose program captures since: the host is not told of its end before the capture's */
    struct mesh__op *next_detached;
    uint64_t shape;    /* hash of the counts of a multi-buffer call, or of a redistribution's plans */
    int at, oldest;    /* at: the schedule's next step; oldest: no post before it is open */
    uint32_t *ordinal; /* point to point: the number of each xfer among those to or from its peer */
    int ordinal_cap;
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
    int silent, behind; /* the first that did not answer, and who waits for it; -1: all have */
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
    int final;                 /* its deadline has passed; else only disagreement is looked for */
    int chased;                /* a search has begun for who keeps the absent from it */
    uint32_t together, called; /* operations that may end together, from op on; how many of them all have called */
    int answers, absent, first_absent; /* absent: how many have called no more, where those are not all */
    int gone, first_gone;              /* how many have closed their transport, or were lost, and cannot be asked */
    int lost;                          /* first_gone was lost */
    int closed, first_closed;          /* how many that op may wait for have closed the comm: an answer too */
    uint64_t heard[16];                /* bits: indices that have answered */
    mesh__record in;                   /* what the first absent one is in; kind NONE: nothing */
} mesh__roll;

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

enum { MESH__MEMORIES = 256 };

typedef struct mesh__engine {
    mesh_transport *t;
    mesh_comm **comm;
    int ncomms, comm_cap;
    mesh__op **op; /* by slot */
    int nops, op_cap;
    mesh__op *unused;                   /* free slots */
    mesh__op *rested;                   /* the same, whose schedules may come again: the last first */
    uint64_t stamps;                    /* plans kept so far, of all comms */
    mesh__op *detached, **detached_end; /* in the order they were waited for */
    int ndetached;
    int nactive, nissued; /* operations that have not ended; of these, those that only wait for the transport */
    unsigned polls;
    uint32_t last_id, opens, started;
    int starved;   /* a control message was lost for want of memory */
    int halted;    /* the transport as a whole can go no further */
    int unsettled; /* a comm may have something to say again, or a dispute to settle */
    int any;       /* where mesh_wait_any looks first */
    /* Fingerprint of the last mesh whose opening this rank led and gave up: who comes late is told so. */
    uint64_t given_up;
    mesh__op *waiting; /* what this rank is blocked in */
    mesh__roll roll;
    mesh__history ring[MESH__RING];
    uint32_t ring_count;
    mesh__gone *gone; /* room for LOST and CLOSED of every rank: neither is dropped for want of memory */
    int ngone;
    int64_t next_gone; /* the first of gone[].until; 0: none */
    mesh__inbox mail;
    mesh__walk *walk; /* allocated when first needed */
    uint32_t walks;
    int failed;        /* a comm did */
    mesh_comm *parent; /* of which a comm is being opened by a split: it opens no more where that fails; or NULL */
    int64_t longest;   /* deadline of its comms' operations */
    struct mesh__memory *memory[MESH__MEMORIES]; /* of mesh_alloc: lists, by address */
    mesh__clock clock;
} mesh__engine;

/* What stands before a block of memory that mesh_alloc took from the host, in a list of all. */
typedef struct mesh__memory {
    struct mesh__memory *next, **at; /* at: what points here */
    void *raw;
} mesh__memory;

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
    void *plans; /* redistribute.h's, one piece of memory */
    mesh__hosts hosts;
    void *table;   /* of a mesh that the comm made itself */
    void **graphs; /* scratch of operations that went into graphs */
    int ngraphs, graph_cap;
    void *stream;
    int beside;         /* work was put on it that belongs to no operation, and nobody has waited since */
    int blocking;       /* what is started now is waited for at once */
    int preparing;      /* what is started next is only prepared */
    const char *called; /* by the program, where it is no operation's name; NULL: its operation's is it */
    uint32_t *nonce;    /* the first rank's: which opening of each index it answered */
    mesh_error stalled; /* why the first ticket ended that took an operation with it */
    /* What there was no memory to announce to everybody, to be said again. */
    struct {
        int waits, flavour, has_record;
        mesh__record record;
    } untold;
    /* a rank that says it has closed this comm, and which operation needed it then */
    int closed_rank;
    uint32_t closed_serial, closed_progress;
    mesh_user_op user_op[MESH__USER_OPS];
    int nuser_ops;
    mesh__registration *registered;
} mesh__comm_impl;

MESH__PRIVATE mesh__comm_impl *mesh__impl(const mesh_comm *c) { return (mesh__comm_impl *)c->impl; }
/* Where a call that does not fail the comm writes its error: nowhere, once there is a first cause. */
MESH__PRIVATE mesh_error *mesh__says(mesh_comm *c) { return c->failed ? NULL : &c->error; }

MESH__PRIVATE int64_t mesh__now(mesh__engine *e) { return e->t->ops->now(e->t); }

/* The engine meets what becomes of failures in these, and nowhere else. */
MESH__PRIVATE void mesh__op_broken(mesh__engine *e, mesh__op *op, mesh_status status, const mesh_error *why);
MESH__PRIVATE void mesh__heard(mesh__engine *e);
MESH__PRIVATE void mesh__tick(mesh__engine *e);
MESH__PRIVATE int64_t mesh__tick_at(mesh__engine *e, int64_t deadline);
MESH__PRIVATE void mesh__halted(mesh__engine *e, mesh_status status);
MESH__PRIVATE int64_t mesh__stuck(mesh__engine *e, mesh__op *op, int64_t now);

/* ---- // >>records: what was called ---- */

/* What is remembered of an operation; NULL: 256 others were started since. */
MESH__PRIVATE mesh__history *mesh__history_of(mesh__engine *e, const mesh__op *op) {
    return e->ring_count - op->ring <= (uint32_t)MESH__RING ? &e->ring[op->ring % MESH__RING] : NULL;
}

MESH__PRIVATE void mesh__history_end(mesh__engine *e, const mesh__op *op, int status) {
    mesh__history *h = mesh__history_of(e, op);
    if (!h) return;
    h->status = status;
    if (op->timed) h->end = e->t->ops->now(e->t);
}

/* When it began, and by when it has to end. One that is waited for at once is timed when a first look finds it unfinished, which few small ones are: asking
   for the time costs as much as they do. */
MESH__PRIVATE void mesh__op_time(mesh__engine *e, mesh__op *op) {
    mesh__history *h = mesh__history_of(e, op);
    op->timed = 1;
    op->start = e->t->ops->now(e->t);
    op->deadline = op->start + mesh__impl(op->comm)->timeout;
    if (h) h->start = op->start;
}

MESH__PRIVATE uint32_t mesh__remembered(const mesh__engine *e) {
    return e->ring_count < (uint32_t)MESH__RING ? e->ring_count : (uint32_t)MESH__RING;
}

/* The place of a collective in its group's order; 0: a channel of messages. */
MESH__PRIVATE uint32_t mesh__sequence(uint64_t channel) { return channel & MESH__TAGGED ? 0 : (uint32_t)channel; }

/* Has a count come to `to`? 0: nothing to come to. Counts wrap, sequences at half of that. */
MESH__INLINE int mesh__come_to(uint32_t count, uint32_t to) { return !to || count - to < MESH__TAGGED; }
MESH__INLINE int mesh__sequence_come_to(uint32_t sequence, uint32_t to) { return (sequence - to) << 1 < MESH__TAGGED; }

/* How many operations there are from one on to where a group has come; 0: it has not come to it. */
MESH__PRIVATE uint32_t mesh__sequence_from(uint32_t sequence, uint32_t from) {
    return mesh__sequence_come_to(sequence, from) ? ((sequence - from) & ~MESH__TAGGED) + 1 : 0;
}

/* "all_reduce(4 x f32, sum) on axis "dp", sequence 7" */
MESH__PRIVATE void mesh__put_record(mesh__text *t, const mesh__record *r) {
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
    if (r->channel & MESH__TAGGED) mesh__put(t, ", tag %u", r->channel & ~MESH__TAGGED & UINT32_MAX);
    if (mesh__sequence(r->channel)) mesh__put(t, ", sequence %u", (uint64_t)mesh__sequence(r->channel));
}

enum { MESH__RECORD_BYTES = 24 + MESH__AXES_BYTES };

MESH__PRIVATE void mesh__record_wire(mesh__wire *w, mesh__record *r) {
    mesh__wire64(w, &r->channel);
    mesh__wire64(w, &r->count);
    mesh__wire_bytes(w, &r->kind, 1);
    mesh__wire_bytes(w, &r->dtype, 1);
    mesh__wire_bytes(w, &r->op, 1);
    mesh__wire_bytes(w, &r->zero, 1);
    mesh__wire_int(w, &r->root);
    mesh__wire_bytes(w, r->axes, MESH__AXES_BYTES);
    r->zero = 0;
    r->axes[MESH__AXES_BYTES - 1] = 0;
}
MESH__PRIVATE void mesh__record_write(unsigned char *p, const mesh__record *r) {
    mesh__record copy = *r;
    mesh__wire w = mesh__writing(p);
    mesh__record_wire(&w, &copy);
}

MESH__PRIVATE void mesh__record_read(mesh__record *r, const unsigned char *p) {
    mesh__wire w = mesh__reading(p);
    mesh__record_wire(&w, r);
}

MESH__PRIVATE int mesh__record_same(const mesh__record *a, const mesh__record *b) {
    return a->channel == b->channel && a->kind == b->kind && a->dtype == b->dtype && a->op == b->op &&
           a->count == b->count && a->root == b->root;
}

/* The operations remembered, oldest first, a line each. Returns the length of the whole text. */
MESH__PRIVATE size_t mesh__history_put(const mesh__engine *e, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
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

/* ---- // >>begin ---- */

MESH__PRIVATE int mesh__is_issued(const mesh__step *s) { return s->kind == MESH__POST || s->kind == MESH__CALL; }

/* Does it begin with a collective of the transport's own? */
MESH__PRIVATE int mesh__op_is_call(const mesh__op *op) {
    return op->schedule.nsteps && op->schedule.step[0].kind == MESH__CALL;
}

/* Has it the same schedule every time? */
MESH__PRIVATE int mesh__op_is_fixed(const mesh__op *op) {
    return !op->schedule.extend && !mesh__call_is(op->schedule.call.kind, MESH_VARIABLE);
}

/* Did its posts go into a graph? */
MESH__PRIVATE int mesh__op_captured(const mesh__op *op) {
    const mesh__step *last = op->schedule.nsteps ? &op->schedule.step[op->schedule.nsteps - 1] : NULL;
    return last && mesh__is_issued(last) && last->ticket.id == MESH_TICKET_CAPTURED;
}

/* A graph runs again when it likes: what an operation in it used stays its own until the comm is closed. */
MESH__PRIVATE void mesh__scratch_to_graph(mesh__engine *e, mesh__op *op) {
    mesh__comm_impl *impl = mesh__impl(op->comm);
    int i;
    for (i = 0; i < op->schedule.nscratch && i < MESH__SCRATCHES; i++) {
        if (op->schedule.scratch[i].p &&
            mesh__grow(e->t, (void **)&impl->graphs, &impl->graph_cap, impl->ngraphs + 1, sizeof *impl->graphs))
            impl->graphs[impl->ngraphs++] = op->schedule.scratch[i].p; /* without memory it is lost, which is safe */
        op->schedule.scratch[i].p = NULL;
        op->schedule.scratch[i].nbytes = 0;
    }
}

/* A free slot keeps its schedule. Of more than so many, or so much, those that were not used for longest make room. */
enum { MESH__RESTED = 16, MESH__RESTED_XFERS = 4096 };
MESH__PRIVATE void mesh__op_rest(mesh__engine *e, mesh__op *op) {
    mesh__op **at = &e->rested;
    int n, xfers = 0;
    op->next_unused = e->rested;
    e->rested = op;
    for (n = 0; *at && n < MESH__RESTED && (xfers += (*at)->schedule.nxfers) <= MESH__RESTED_XFERS; n++)
        at = &(*at)->next_unused;
    while ((op = *at) != NULL) {
        *at = op->next_unused;
        op->next_unused = e->unused;
        e->unused = op;
    }
}

MESH__PRIVATE void mesh__op_release(mesh__engine *e, mesh__op *op) {
    if (op->comm && mesh__op_captured(op)) mesh__scratch_to_graph(e, op);
    op->state = op->orphaned ? MESH__RETIRED : MESH__FREE;
    op->kept = op->detached = 0;
    op->comm = NULL;
    if (op->orphaned) return;
    if (op->origin.plan && !op->schedule.out_of_memory) {
        mesh__op_rest(e, op);
    } else {
        op->next_unused = e->unused;
        e->unused = op;
    }
    mesh__scratch_free(&op->schedule, MESH__SCRATCH_KEPT);
}

/* The slot that stands there among those that keep their schedules is used again. */
MESH__PRIVATE mesh__op *mesh__op_again(mesh__op **at) {
    mesh__op *op = *at;
    *at = op->next_unused;
    if (++op->generation == 0) op->generation = 1;
    return op;
}

/* A free slot, its arrays kept from the operation that used it before. */
MESH__PRIVATE mesh__op *mesh__op_take(mesh__engine *e) {
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
    mesh__schedule_begin(&op->schedule, e->t);
    op->tag = 0;
    op->origin.plan = 0;
    if (++op->generation == 0) op->generation = 1;
    return op;
}

/* Whose the operation is: what its schedule is built from. */
MESH__PRIVATE void mesh__op_join_group(mesh__op *op, mesh_comm *c, mesh__group *g) {
    mesh__schedule *s = &op->schedule;
    int user = s->call.op - MESH__USER_OP;
    op->comm = c;
    op->group = g;
    s->elem_bytes = s->call.elem_bytes;
    s->on = &g->on;
    s->index = g->index;
    s->host = g->host;
    s->nhosts = g->nhosts;
    s->scattered = g->scattered;
    s->tuning = &mesh__impl(c)->tuning;
    s->ordered = user >= 0 && user < mesh__impl(c)->nuser_ops && mesh__impl(c)->user_op[user].ordered;
}

/* Is what is being started only prepared? */
MESH__PRIVATE int mesh__prepares(const mesh_comm *c) { return mesh__impl(c)->preparing && !mesh__impl(c)->blocking; }

/* The count that ranks compare. */
MESH__PRIVATE uint64_t mesh__count_told(const mesh__op *op) {
    const mesh_call *call = &op->schedule.call;
    return mesh__call_is(call->kind, MESH_BY_COUNTS) ? 0
           : call->kind == MESH_CALL_REDISTRIBUTE    ? op->shape
                                                     : call->count;
}

MESH__INLINE void mesh__record_of_op(const mesh__op *op, uint64_t count, mesh__record *r) {
    const mesh_call *call = &op->schedule.call;
    r->channel = op->channel;
    r->count = count;
    r->kind = (uint8_t)call->kind;
    r->dtype = (uint8_t)call->dtype;
    r->op = (uint8_t)call->op;
    r->zero = 0;
    r->root = mesh__is_unrooted_list(call->kind) ? (int)(op->shape & 0x7fffffff) : call->root;
    memcpy(r->axes, op->group->shown, sizeof r->axes);
}

/* Give the operation its identity, after its arguments were found good, or a kept one a new identity. One that is only prepared has none yet. */
MESH__PRIVATE void mesh__op_identify(mesh__engine *e, mesh__op *op, mesh_comm *c, mesh__group *g) {
    const mesh_call *call = &op->schedule.call;
    mesh__history *h = &e->ring[e->ring_count % MESH__RING];
    int p2p = mesh__call_is(call->kind, MESH_P2P);
    int alike = !p2p                                       ? call->kind
                : mesh__call_is(call->kind, MESH_VARIABLE) ? (int)MESH_CALL_SEND_V
                                                           : (int)MESH_CALL_SEND;
    uint64_t count = mesh__count_told(op);
    uint64_t check =
        (uint64_t)(uint8_t)alike | (uint64_t)(uint8_t)call->dtype << 8 | (uint64_t)(uint16_t)call->op << 16;
    mesh__op_join_group(op, c, g);
    if (mesh__prepares(c)) return;
    op->state = MESH__ACTIVE;
    op->at = op->oldest = 0;
    op->progress = 0;
    op->sent = op->received = 0;
    op->serial = ++e->started;
    op->gone_until = op->next_ask = 0;
    op->stalled = op->alone = op->gone_seen = op->unseen = 0;
    op->failing = MESH_OK;
    if (!p2p && ++g->sequence >= MESH__TAGGED) g->sequence = 1; /* what is not a message's */
    op->channel = (uint64_t)g->id << 32 | (p2p ? op->tag : g->sequence);
    if (!p2p) check |= (uint64_t)(uint32_t)call->root << 32;
    check = mesh__mix(p2p ? 0 : g->fingerprint, check);
    if (call->op >= MESH__USER_OP) check = mesh__mix(check, call->elem_bytes);
    if (call->nbuffers) check = mesh__mix(check, op->shape);
    if (!p2p) g->history = check = mesh__mix(mesh__mix(check, count), g->history);
    op->check = check;
    op->schedule.call.channel = op->channel;
    op->schedule.call.check = check;
    op->schedule.call.record = &op->record;
    op->timed = 0;
    op->deadline = INT64_MAX;
    mesh__record_of_op(op, count, &op->record);
    mesh__record_of_op(op, count, &h->record); /* written twice: reading back what was just written would wait for it */
    op->ring = e->ring_count++;
    h->comm = (int)c->id;
    h->status = MESH_IN_PROGRESS;
    h->start = h->end = 0;
    if (e->t->trace || !mesh__impl(c)->blocking) mesh__op_time(e, op);
    e->nactive++;
}

/* What was posted to and from a member under a tag, to be counted on. NULL: no memory. */
MESH__PRIVATE mesh__stream *mesh__stream_find(const mesh__group *g, uint32_t tag, int index) {
    uint32_t at = (uint32_t)mesh__mix(tag, (uint64_t)(uint32_t)index), mask = (uint32_t)g->stream_room - 1;
    while (g->stream[at & mask].used && (g->stream[at & mask].tag != tag || g->stream[at & mask].index != index)) at++;
    return &g->stream[at & mask];
}

MESH__PRIVATE mesh__stream *mesh__stream_of(mesh_transport *t, mesh__group *g, uint32_t tag, int index) {
    mesh__stream *stream = g->recent;
    if (stream && stream->tag == tag && stream->index == index) return stream;
    if (2 * g->nstreams >= g->stream_room) { /* half of them stay free */
        mesh__group wider = *g;
        int i;
        wider.stream_room = g->stream_room ? 2 * g->stream_room : 16;
        wider.stream = (mesh__stream *)mesh_transport_alloc(t, (size_t)wider.stream_room * sizeof *wider.stream);
        if (!wider.stream) return NULL;
        memset(wider.stream, 0, (size_t)wider.stream_room * sizeof *wider.stream);
        for (i = 0; i < g->stream_room; i++)
            if (g->stream[i].used) *mesh__stream_find(&wider, g->stream[i].tag, g->stream[i].index) = g->stream[i];
        mesh_transport_free(t, g->stream);
        *g = wider;
    }
    stream = mesh__stream_find(g, tag, index);
    if (!stream->used) {
        stream->used = 1;
        stream->tag = tag;
        stream->index = index;
        g->nstreams++;
    }
    g->recent = stream;
    return stream;
}

/* The number of an xfer under its tag to or from its peer. 0: no memory. */
MESH__INLINE uint32_t mesh__p2p_count(mesh__engine *e, mesh__op *op, const mesh_xfer *x) {
    mesh__stream *stream = mesh__stream_of(e->t, op->group, op->tag, x->index);
    if (!stream) return 0;
    stream->count[x->direction] += stream->count[x->direction] == UINT32_MAX ? 2 : 1;
    return stream->count[x->direction];
}

/* Number the xfers of a point-to-point operation among all under their tag to or from their peers: how a waiter and its peer find out whether
   it is served. Returns 0 without memory. */
MESH__PRIVATE int mesh__p2p_number(mesh__engine *e, mesh__op *op) {
    const mesh__schedule *s = &op->schedule;
    int x, k, n = s->nsteps;
    if (!mesh__grow(e->t, (void **)&op->ordinal, &op->ordinal_cap, s->nxfers + 1, sizeof *op->ordinal)) return 0;
    memset(op->ordinal, 0, ((size_t)s->nxfers + 1) * sizeof *op->ordinal);
    if (mesh__call_is(s->call.kind, MESH_VARIABLE) && n) n = 1; /* what comes and goes behind a length has its number */
    for (k = 0; k < n; k++) {
        const mesh__step *step = &s->step[k];
        for (x = 0; step->kind == MESH__POST && x < step->as.post.count; x++) {
            uint32_t count = mesh__p2p_count(e, op, &s->xfer[step->as.post.first + x]);
            if (!count) return 0;
            op->ordinal[step->as.post.first + x] = count;
        }
    }
    return 1;
}

/* Operations come after what is on the caller's stream; one that is waited for at once runs there. */
MESH__PRIVATE mesh_status mesh__op_fence(mesh__engine *e, const mesh__op *op) {
    const mesh__comm_impl *impl = mesh__impl(op->comm);
    void *group = op->group->handle;
    mesh_status status;
    if (!MESH__HAS(e->t->ops, fence)) return MESH_OK;
    status = e->t->ops->fence(e->t, group, impl->stream, impl->blocking ? MESH_FENCE_ON : MESH_FENCE_AFTER);
    if (status == MESH_OK && mesh__sequence(op->channel) && MESH__HAS(e->t->ops, called))
        e->t->ops->called(e->t, group, op->check, &op->record);
    return status;
}

/* Where steps are only issued, a mark behind them tells their end. */
MESH__PRIVATE void mesh__add_mark(mesh__engine *e, mesh__op *op) {
    const mesh__step *last = op->schedule.nsteps ? &op->schedule.step[op->schedule.nsteps - 1] : NULL;
    if (!(e->t->caps & MESH_CAP_ORDERED) || (last && last->kind == MESH__CALL) ||
        (last && last->kind == MESH__POST && !last->as.post.count))
        return;
    mesh__step_add(&op->schedule, MESH__POST);
}

/* ---- // >>advance ---- */

MESH__PRIVATE void mesh__op_not_issued(mesh__engine *e, mesh__op *op) {
    e->nissued -= op->issued;
    op->issued = 0;
}

MESH__PRIVATE void mesh__op_cancel(mesh__engine *e, mesh__op *op, mesh_status status) {
    int i;
    if (op->state != MESH__ACTIVE || op->failing) return;
    op->failing = status;
    mesh__op_not_issued(e, op);
    for (i = op->oldest; i < op->at; i++)
        if (op->schedule.step[i].open) e->t->ops->cancel(e->t, &op->schedule.step[i].ticket);
}

/* Is what comes behind this step that a blocking call waits for it? */
MESH__INLINE int mesh__step_awaited(const mesh__op *op) {
    const mesh__schedule *s = &op->schedule;
    return mesh__impl(op->comm)->blocking && (op->at + 1 >= s->nsteps || s->step[op->at + 1].kind == MESH__WAIT);
}

/* The one place where posts go to the transport. */
MESH__PRIVATE mesh_status mesh__post(mesh__engine *e, mesh__op *op, mesh__step *s) {
    mesh_post p;
    mesh_status status;
    int i;
    p.group = op->group->handle;
    p.channel = s->as.post.sequence ? op->channel >> 32 << 32 | s->as.post.sequence : op->channel;
    p.check = op->check;
    p.record = &op->record;
    p.xfer = s->as.post.count ? op->schedule.xfer + s->as.post.first : NULL;
    p.count = s->as.post.count; /* 0 where another schedule has more, or as a mark */
    p.flags = mesh__step_awaited(op) ? MESH_POST_AWAITED : 0;
    p.dtype = op->schedule.call.dtype;
    p.op = op->schedule.call.op == MESH_AVG ? MESH_SUM : op->schedule.call.op;
    status = e->t->ops->post(e->t, &p, &s->ticket);
    if (status != MESH_OK) return status;
    s->open = 1;
    for (i = 0; i < p.count; i++) {
        uint64_t nbytes = p.xfer[i].nbytes;
        if (p.xfer[i].direction == MESH_SEND)
            op->group->sent += nbytes, op->sent += nbytes;
        else
            op->group->received += nbytes, op->received += nbytes;
    }
    return MESH_OK;
}

/* The same of the transport's own collectives. */
MESH__PRIVATE mesh_status mesh__issue(mesh__engine *e, mesh__op *op, mesh__step *s) {
    mesh_call *call = mesh__native_call(&op->schedule, s);
    mesh_status status;
    call->channel = op->channel;
    call->check = op->check;
    call->record = &op->record;
    status = e->t->ops->collective(e->t, op->group->handle, call, &s->ticket);
    if (status != MESH_OK) return status;
    s->open = 1;
    op->group->sent += s->as.call.sent, op->sent += s->as.call.sent;
    op->group->received += s->as.call.received, op->received += s->as.call.received;
    return MESH_OK;
}

MESH__PRIVATE void mesh__trace(mesh__engine *e, const mesh__op *op) {
    const mesh_comm *c = op->comm;
    mesh_trace_event v;
    memset(&v, 0, sizeof v);
    v.call = mesh__call_name(op->schedule.call.kind);
    v.comm = mesh__impl(c)->name;
    v.axes = op->group->axes;
    v.dtype = mesh_dtype_name((mesh_dtype)op->schedule.call.dtype);
    v.op = !mesh__call_is(op->schedule.call.kind, MESH_REDUCES) ? ""
           : op->schedule.call.op < MESH_OP_COUNT               ? mesh_op_name((mesh_op)op->schedule.call.op)
                                                                : "user op";
    v.group = mesh_group_of(&c->on, op->group->axes, e->t->rank);
    v.first = mesh_rank_at(&op->group->on, 0);
    v.ranks = op->group->on.size;
    v.slot = (int)op->slot;
    v.status = op->status;
    v.comm_id = c->id;
    v.sequence = mesh__sequence(op->channel);
    v.count = op->record.count;
    v.sent = op->sent;
    v.received = op->received;
    v.start = op->start;
    v.end = mesh__now(e);
    e->t->trace(e->t->trace_ctx, &v);
}

/* Operations left to a stream, in the order they were left. */
MESH__PRIVATE void mesh__op_detach(mesh__engine *e, mesh__op *op) {
    op->detached = 1;
    op->next_detached = NULL;
    if (!e->detached) e->detached_end = &e->detached;
    *e->detached_end = op;
    e->detached_end = &op->next_detached;
    e->ndetached++;
}

MESH__PRIVATE void mesh__op_attach(mesh__engine *e, mesh__op *op) {
    mesh__op **at = &e->detached;
    while (*at != op) at = &(*at)->next_detached;
    *at = op->next_detached;
    if (e->detached_end == &op->next_detached) e->detached_end = at;
    op->detached = 0;
    e->ndetached--;
}

MESH__PRIVATE void mesh__op_end(mesh__engine *e, mesh__op *op, mesh_status status) {
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

/* A ticket ended because a peer took its side back or went away. That may follow from something else, which is soon heard then. */
MESH__PRIVATE void mesh__op_stall(mesh__engine *e, mesh__op *op, mesh_status status, const mesh_error *why) {
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

/* Was a rank of the comm lost, and fails it in a moment? That is a better cause than who left or took its side back for it. */
MESH__RARE int mesh__loss_due(const mesh__engine *e, const mesh_comm *c) {
    int i;
    for (i = 0; i < e->ngone; i++)
        if (e->gone[i].until && mesh_index_of(&c->on, e->gone[i].rank) >= 0) return 1;
    return 0;
}

/* Test the posts before step `end`. Returns 1 when none of them is open. */
MESH__PRIVATE int mesh__op_settled(mesh__engine *e, mesh__op *op, int end) {
    int i, settled = 1;
    for (i = op->oldest; i < end; i++) {
        mesh__step *s = &op->schedule.step[i];
        mesh_error why;
        mesh_status status;
        if (s->open) {
            why.text[0] = 0;
            why.rank = -1;
            why.status = MESH_OK;
            status = e->t->ops->test(e->t, &s->ticket, &why);
            if (status == MESH_IN_PROGRESS) {
                op->unseen = why.status == MESH_ERR_STATE;
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
            if (status != MESH_OK && s->ticket.id == MESH_TICKET_ORPHANED) op->orphaned = 1;
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

MESH__PRIVATE void mesh__op_advance(mesh__engine *e, mesh__op *op) {
    if (op->state != MESH__ACTIVE) return;
    if (op->failing) {
        if (mesh__op_settled(e, op, op->at) && !mesh__impl(op->comm)->disputing)
            mesh__op_end(e, op, op->comm->failed ? (mesh_status)op->comm->error.status : op->failing);
        return;
    }
    if (op->stalled) mesh__op_settled(e, op, op->at);
    if (op->stalled && !op->failing && mesh__now(e) >= op->gone_until && !mesh__loss_due(e, op->comm)) {
        mesh__op_broken(e, op, MESH_ERR_PEER, &mesh__impl(op->comm)->stalled);
    }
    if (op->stalled) return;
    while (op->at < op->schedule.nsteps) {
        mesh__step *s = &op->schedule.step[op->at];
        mesh_status status = MESH_OK;
        mesh_error why;
        if (s->kind == MESH__WAIT && !(e->t->caps & MESH_CAP_ORDERED) && !mesh__op_settled(e, op, s->as.wait.before))
            return;
        if (op->failing || op->stalled) return;
        why.text[0] = 0;
        if (s->kind == MESH__POST)
            status = mesh__post(e, op, s);
        else if (s->kind == MESH__CALL)
            status = mesh__issue(e, op, s);
        else if (s->kind != MESH__WAIT)
            status = mesh__step_run(&op->schedule, op->group->handle, s, &why);
        if (status != MESH_OK) {
#define MESH_X(name, text) text,
            static const char *const what[] = {MESH__STEPS(MESH_X)};
#undef MESH_X
            if (!why.text[0])
                mesh__fail(&why, status, -1, "the transport (%s) refused %s: %s", e->t->ops->name,
                           what[op->schedule.step[op->at].kind], mesh_status_text(status));
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
MESH__PRIVATE int mesh__op_pending(mesh__engine *e, const mesh__op *op, int *ranks, int cap) {
    int i, k, j, n = 0;
    for (i = op->oldest; i < op->at; i++) {
        int found[MESH__WALK_PENDING], count;
        if (!op->schedule.step[i].open) continue;
        count = e->t->ops->pending(e->t, &op->schedule.step[i].ticket, found, MESH__WALK_PENDING);
        if (count > MESH__WALK_PENDING) count = MESH__WALK_PENDING;
        for (k = 0; k < count; k++) {
            for (j = 0; j < n && ranks[j] != found[k]; j++) {}
            if (j == n && n < cap) ranks[n++] = found[k];
        }
    }
    return n;
}

/* Let an operation go whose schedule is built. On an error it has ended, a kept one rests, and another's slot is free: MEMORY, or what the transport
   says to the caller's stream or to a collective of its own. */
MESH__PRIVATE mesh_status mesh__op_launch(mesh__engine *e, mesh__op *op, mesh_request *r) {
    mesh_status status = MESH_OK;
    if (!(e->t->caps & MESH_CAP_STRIDED)) mesh__schedule_pack(&op->schedule);
    mesh__add_mark(e, op);
    if (mesh__call_is(op->schedule.call.kind, MESH_P2P) && !mesh__p2p_number(e, op)) op->schedule.out_of_memory = 1;
    status = op->schedule.out_of_memory ? MESH_ERR_MEMORY : mesh__op_fence(e, op);
    if (status == MESH_OK && mesh__op_is_call(op) && (status = mesh__issue(e, op, op->schedule.step)) == MESH_OK)
        op->at = 1;
    if (status != MESH_OK) {
        mesh__op_end(e, op, status);
        if (op->kept)
            op->state = MESH__RESTING;
        else
            mesh__op_release(e, op);
        return status;
    }
    r->comm = op->comm;
    r->slot = op->slot;
    r->generation = op->generation;
    mesh__op_advance(e, op);
    return MESH_OK;
}

/* ---- // >>wait ---- */

/* Advance what can go on. Operations that only wait for the transport have nothing to advance: their turn to show an error comes now and
   then, so that thousands of them cost nothing. */
MESH__INLINE void mesh__poll(mesh__engine *e) {
    int i, all = e->polls++ % 64 == 0, left;
    mesh__heard(e);
    left = all ? e->nactive : e->nactive - e->nissued;
    for (i = 0; left > 0 && i < e->nops; i++)
        if (e->op[i]->state == MESH__ACTIVE && (all || !e->op[i]->issued)) {
            mesh__op_advance(e, e->op[i]);
            left--;
        }
    mesh__tick(e);
    for (i = 0; e->nactive > e->nissued && i < e->nops; i++)
        if (e->op[i]->state == MESH__ACTIVE && e->op[i]->failing) mesh__op_advance(e, e->op[i]);
}

/* One round of moving data, at most until `deadline`. Where operations are left to streams, who sleeps gets up now and then, and all show their errors then:
   one of another communicator may be what this rank waits behind. */
MESH__PRIVATE void mesh__progress(mesh__engine *e, int64_t deadline) {
    int64_t start = deadline && (e->t->caps & MESH_CAP_ORDERED) ? mesh__now(e) : 0;
    mesh_status status;
    if (start && deadline > start + 100000000) deadline = start + 100000000;
    status = e->t->ops->progress(e->t, mesh__tick_at(e, deadline));
    if (start && mesh__now(e) > start + 1000000) e->polls = 0;
    if (status >= 0) return;
    if (status == MESH_ERR_MEMORY)
        e->starved = 1;
    else
        e->halted = 1;
    mesh__halted(e, status);
}

/* Block until an operation has ended, or the clock comes to `until`. */
MESH__PRIVATE void mesh__op_wait_until(mesh__engine *e, mesh__op *op, int64_t until) {
    const mesh__comm_impl *impl = mesh__impl(op->comm); /* what was left to a stream lets go of its comm as it ends */
    int looked = 0;
    uint32_t seen, generation = op->generation;
    mesh__op_advance(e, op); /* often it has ended: then the others need no look */
    e->waiting = op;
    if (op->state == MESH__ACTIVE && !op->timed) {
        mesh__progress(e, 0);
        mesh__heard(e);
        mesh__op_advance(e, op);
        if (op->state == MESH__ACTIVE && op->generation == generation) mesh__op_time(e, op);
    }
    seen = op->progress;
    if (op->state == MESH__ACTIVE && !op->next_ask) { /* the first time it is waited for */
        op->ask_wait = impl->ask;
        op->next_ask = mesh__now(e) + op->ask_wait;
        op->say_wait = MESH__SAY_NS;
        op->say = op->next_ask - op->ask_wait + op->say_wait;
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
        if ((now >= op->deadline || now >= until) && !op->failing && !looked++) {
            mesh__progress(e, 0); /* what is there counts, however late it is looked at */
            continue;
        }
        wake = mesh__stuck(e, op, now);
        if (op->failing) mesh__op_advance(e, op);
        if (op->state != MESH__ACTIVE || now >= until) break;
        if (op->failing) wake = now + INT64_C(100000000);
        mesh__progress(e, wake < until ? wake : until);
    }
    e->waiting = NULL;
}
MESH__PRIVATE void mesh__op_wait(mesh__engine *e, mesh__op *op) { mesh__op_wait_until(e, op, INT64_MAX); }

/* Posts that went into a graph are over for the host; the stream that is captured still has to come behind them. Where it cannot, the operation has failed:
   the graph would not wait for it. */
MESH__PRIVATE void mesh__op_join(mesh__engine *e, mesh__op *op) {
    mesh__step *last = op->schedule.nsteps ? &op->schedule.step[op->schedule.nsteps - 1] : NULL;
    mesh_status status;
    mesh_error why;
    if (!MESH__HAS(e->t->ops, stream_wait) || op->state != MESH__DONE || op->status != MESH_OK ||
        !mesh__op_captured(op))
        return;
    status = e->t->ops->stream_wait(e->t, op->group->handle, &last->ticket, mesh__impl(op->comm)->stream);
    if (status == MESH_OK) return;
    memset(&why, 0, sizeof why);
    e->t->ops->test(e->t, &last->ticket, &why);
    if (!why.text[0])
        mesh__fail(&why, status, -1, "the transport (%s) cannot put the stream that is captured behind it: %s",
                   e->t->ops->name, mesh_status_text(status));
    mesh__heard(e); /* another rank's cause comes first */
    mesh__op_broken(e, op, status, &why);
    op->status = op->comm->failed ? (mesh_status)op->comm->error.status : status;
}

/* Leave an operation that is issued to the caller's stream: its request ends, it goes on. A kept one rests. */
MESH__PRIVATE mesh_status mesh__op_leave(mesh__engine *e, mesh__op *op) {
    mesh__step *last = &op->schedule.step[op->schedule.nsteps - 1];
    mesh_status status = e->t->ops->stream_wait(e->t, op->group->handle, &last->ticket, mesh__impl(op->comm)->stream);
    if (status != MESH_OK) return status;
    if (!op->kept && ++op->generation == 0) op->generation = 1;
    mesh__op_detach(e, op);
    while (e->ndetached > MESH__LEFT) mesh__op_wait(e, e->detached);
    return MESH_OK;
}

/* A round that is left to a stream is followed by the next in the same queue: the next one's end is its end too. */
MESH__PRIVATE void mesh__op_recall(mesh__engine *e, mesh__op *op) {
    int i;
    for (i = 0; i < op->schedule.nsteps; i++) op->schedule.step[i].open = 0;
    mesh__op_attach(e, op);
    mesh__op_end(e, op, MESH_OK);
    op->state = MESH__RESTING;
}
#endif /* MESH_ENGINE_IMPLEMENTED */
