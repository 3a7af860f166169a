/* mesh/pipeline_run.h - a pipeline's schedule run over an axis: buffers, messages, callbacks. Part of mesh.h 0.1.0. MIT licence.

   Includes p2p.h and pipeline.h.

DO THIS
    Nothing: mesh_parallel.h includes it.
*/
#if !defined(MESH_PIPELINE_RUN_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_PIPELINE_RUN_IMPLEMENTED))
#include "p2p.h"
#include "pipeline.h"
#endif

#ifndef MESH_PIPELINE_RUN_H
#define MESH_PIPELINE_RUN_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mesh_stage_call {
    int kind, chunk, micro;
    int stage, stages; /* 0: reads the data itself; stages - 1: computes the loss itself */
    int slot; /* which set of saved activations: 0 .. peak - 1, this micro-batch's from its forward to its last backward */
    const void *in; /* the stage before's output; NULL on stage 0. Valid until this micro-batch's last backward here */
    void *out;      /* to write, in a forward; NULL on the last stage */
    const void *grad_out; /* in a backward; NULL on the last stage. Valid until BACKWARD_WEIGHT */
    void *grad_in;        /* to write, in BACKWARD and BACKWARD_INPUT; NULL on stage 0 */
} mesh_stage_call;
typedef struct mesh_stage {
    /* One action (ncalls is 1). Not 0: the pipeline stops, here with STATE, elsewhere with PEER naming this rank. May call collectives of comms that the
       other ranks of this stage call too. */
    int (*run)(void *ctx, const mesh_stage_call *call, int ncalls);
    void *ctx;
    size_t nbytes;          /* between stages; buffers are the pipeline's, aligned to 64 */
    const size_t *boundary; /* bytes between stage k and k + 1; NULL: nbytes */
    int inbox;              /* activations, and gradients, that are received ahead from each neighbour; 0: 2 */
} mesh_stage;

/* One step of a schedule, whose ranks are those along the axis; every group along it is a pipeline of its own. Blocking; every rank of the comm calls it.
   Receives are started `inbox` ahead, in the order in which the neighbour sends; sends are waited for when one of their two buffers is needed again, so
   both overlap with what the callback computes (sockets: behind its back with desc.progress_thread). Messages are of bytes, under two tags of the
   library's own; their deadline is the comm's, and a receive's counts from where it is started, ahead. Memory: from the transport's allocator, by the
   schedule's peaks and inbox; given back at the end.
   Where messages match in the order of issue (GPUs) there are no tags: all ranks issue theirs in one order, that in which they would be made if every
   action cost the same; so none waits for ever, whatever the actions really cost, and whatever collectives the callback issues between them (of other
   groups: where the transport has the device take groups in their order; all pipelines of the comm have one schedule and inbox then). A receive is started ahead as far as that order
   has it before the rank's next send. On GPUs buffers are the device's, and nothing waits on the host but the barrier at the end: the callback puts work
   on the comm's stream.
   ARGUMENT: mesh_schedule_check's, an axis of another size than the schedule's ranks; MISMATCH: another schedule, other bytes or another inbox on a rank
   along the axis (without tags: another schedule or inbox on any rank of the comm), told before anything runs. On GPUs ranks compare only where one's
   schedule is another than the last time: if one alone has changed, others may have run all of theirs before they hear of it, by what it calls. STATE and
   PEER: the callback, with its stage and micro-batch. MEMORY. Then the comm fails. It ends with a barrier along the axis: OK says that all of its ranks have
   run all of theirs; where one is lost in that barrier itself, others may have passed it. */
MESH_API mesh_status mesh_pipeline_run(mesh_comm *c, const char *axis, const mesh_schedule *s, const mesh_stage *stage);

#ifdef __cplusplus
}
#endif
#endif /* MESH_PIPELINE_RUN_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_PIPELINE_RUN_IMPLEMENTED)
#define MESH_PIPELINE_RUN_IMPLEMENTED

/* Tags of gradients and activations: they keep their order apart from each other, and from the program's own messages. */
enum { MESH__PIPELINE_TAG = 1073741822, MESH__OUTBOX = 2 };

/* Something that stage `stage` made, on its way here or waiting to be used. */
typedef struct mesh__letter {
    int stage, micro;
    void *buffer;
    mesh_request request; /* all zero: handed over on this rank */
} mesh__letter;

/* What comes from one side: of one sort, from the next rank, the one before, or a stage of this rank. */
typedef struct mesh__feed {
    int peer, forward; /* peer -1: nothing comes */
    size_t nbytes;     /* of a buffer: the largest that comes */
    int now, most;     /* buffers in use, as the list is walked, and the most of them */
    void **buffer;     /* those that are free */
    int nfree;
    mesh__letter *letter;
    int waiting, next; /* letters; where in the peer's list to look for the one after them */
    int ahead;         /* the most letters that wait at once */
} mesh__feed;

typedef struct mesh__outbox {
    size_t nbytes;
    int next;
    void *buffer[MESH__OUTBOX];
    mesh_request request[MESH__OUTBOX];
} mesh__outbox;

/* A message of this rank's in the order of issue: what rank `from` makes at place `at` of its list. */
typedef struct mesh__turn {
    int64_t end; /* when, if every action cost the same */
    int from, at;
    int user; /* place in this rank's list: what sends it, or what takes it */
} mesh__turn;

/* This rank's messages in the order of issue, and how far they are issued. */
typedef struct mesh__turns {
    mesh__turn *turn; /* NULL: messages have tags */
    int *place;       /* the turns, sorted */
    int *input;       /* of each action of the list: the place of what it takes; -1: nothing comes */
    int n, next;      /* places; those before `next` are issued */
    int at, acted;    /* the action that is due; 1: it has run */
} mesh__turns;

enum { MESH__TURN_OVER, MESH__TURN_RECV, MESH__TURN_ACT, MESH__TURN_SEND };

typedef struct mesh__stash { /* a slot */
    int used, chunk, micro;
    void *in, *grad_out;
} mesh__stash;

enum { MESH__HERE = 2, MESH__SIDES };

typedef struct mesh__pipeline {
    mesh_comm *comm;
    const char *axis;
    const mesh_schedule *s;
    const mesh_stage *stage;
    int rank, inbox, backward, peak;
    mesh__feed feed[MESH__SIDES][2]; /* gradients, activations */
    mesh__outbox outbox[2][2];
    mesh__stash *slot;
    mesh__turns turns;
    mesh__outbox *leaving; /* of the action that has run: where its message lies; NULL: it has none */
    const char *over[2];   /* the axis with a tag, or without */
    char tag[2][MESH_MAX_AXES * MESH_NAME_BYTES + 12];
    uint64_t hash;           /* of schedule and inbox */
    void *state, *arena;     /* what the pointers point into */
    unsigned char *compared; /* two numbers of this rank, then of each of the comm */
} mesh__pipeline;

/* ---- // >>sizes ---- */

MESH__PRIVATE size_t mesh__boundary(const mesh__pipeline *p, int stage, int forward) {
    return !p->stage->boundary ? p->stage->nbytes : p->stage->boundary[forward ? stage : stage - 1];
}

/* Where what comes from `stage` is put; NULL: there is no such stage. */
MESH__PRIVATE mesh__feed *mesh__feed_of(mesh__pipeline *p, int stage, int forward) {
    int from = stage < 0 ? -1 : mesh__stage_rank(p->s, stage);
    if (stage < 0) return NULL;
    return &p->feed[from == p->rank ? MESH__HERE : mesh__way_of(p->s, p->rank, from)][forward];
}

/* One more buffer of a size is in use. */
MESH__PRIVATE void mesh__feed_more(mesh__feed *f, int peer, size_t nbytes) {
    f->peer = peer;
    if (nbytes > f->nbytes) f->nbytes = nbytes;
    if (++f->now > f->most) f->most = f->now;
}

/* The last backward of an action's pair, or its forward where there is no backward: what it got is needed no more. */
MESH__PRIVATE int mesh__is_last(const mesh__pipeline *p, const mesh_action *a) {
    return !p->backward || a->kind == MESH_BACKWARD || a->kind == MESH_BACKWARD_WEIGHT;
}

/* Walk this rank's list: what comes from where and goes to whom, how big it is and how much of it is in use at once. */
MESH__PRIVATE void mesh__pipeline_measure(mesh__pipeline *p) {
    const mesh_schedule *s = p->s;
    int i;
    for (i = s->first[p->rank]; i < s->first[p->rank + 1]; i++) p->backward |= s->action[i].kind != MESH_FORWARD;
    for (i = s->first[p->rank]; i < s->first[p->rank + 1]; i++) {
        const mesh_action *a = &s->action[i];
        int own = mesh__stage_of(s, p->rank, a->chunk), forward = a->kind == MESH_FORWARD;
        int from = mesh__action_stage(s, p->rank, a, -1), to = mesh__action_stage(s, p->rank, a, 1);
        int giver = from < 0 ? p->rank : mesh__stage_rank(s, from), taker = to < 0 ? -1 : mesh__stage_rank(s, to);
        mesh__feed *f;
        if (giver != p->rank) mesh__feed_more(mesh__feed_of(p, from, forward), giver, mesh__boundary(p, from, forward));
        if (taker == p->rank) {
            mesh__feed_more(&p->feed[MESH__HERE][forward], p->rank, mesh__boundary(p, own, forward));
        } else if (taker >= 0) {
            mesh__outbox *o = &p->outbox[mesh__way_of(s, p->rank, taker)][forward];
            if (mesh__boundary(p, own, forward) > o->nbytes) o->nbytes = mesh__boundary(p, own, forward);
        }
        if (!mesh__is_last(p, a)) continue;
        if ((f = mesh__feed_of(p, own - 1, 1)) != NULL) f->now--;
        if (p->backward && own + 1 < s->ranks * s->chunks) mesh__feed_of(p, own + 1, 0)->now--;
    }
}

/* Take bytes of a block of memory; with base NULL only count them. */
MESH__PRIVATE void *mesh__carve(unsigned char *base, size_t *at, size_t nbytes) {
    size_t need = (nbytes + 63) & ~(size_t)63, from = *at;
    if (need < nbytes || need > SIZE_MAX / 2 - from) {
        *at = SIZE_MAX / 2; /* more than any allocator has */
        return NULL;
    }
    *at += need;
    return base ? base + from : NULL;
}

/* Lay out the state and the buffers: once to count, once to point. */
MESH__PRIVATE void mesh__pipeline_lay(mesh__pipeline *p, size_t *state, size_t *arena) {
    unsigned char *in = (unsigned char *)p->state, *data = (unsigned char *)p->arena;
    int side, sort, i;
    *state = *arena = 0;
    p->slot = (mesh__stash *)mesh__carve(in, state, (size_t)p->peak * sizeof *p->slot);
    p->compared = (unsigned char *)mesh__carve(data, arena, 16 * ((size_t)p->comm->on.size + 1));
    for (side = 0; side < MESH__SIDES; side++)
        for (sort = 0; sort < 2; sort++) {
            mesh__feed *f = &p->feed[side][sort];
            int n = f->peer < 0 ? 0 : f->most + (side == MESH__HERE ? 0 : f->ahead);
            f->buffer = (void **)mesh__carve(in, state, (size_t)n * sizeof *f->buffer);
            f->letter = (mesh__letter *)mesh__carve(in, state, (size_t)n * sizeof *f->letter);
            for (i = 0; i < n; i++) {
                void *b = mesh__carve(data, arena, f->nbytes);
                if (data) f->buffer[f->nfree++] = b;
            }
            for (i = 0; side < MESH__HERE && i < MESH__OUTBOX; i++)
                p->outbox[side][sort].buffer[i] = mesh__carve(data, arena, p->outbox[side][sort].nbytes);
        }
}

/* ---- // >>the order of issue: without tags ----

   Two ranks match messages in the order of issue, and a device may do one rank's strictly one after another. So all ranks issue in one order of all
   messages: of when each would be made if every action cost the same. Whatever an action needs was made before it begins, by that clock, and what it
   makes comes after it ends: the earliest message that is not through waits for nothing later, on either of its ranks. */

typedef struct mesh__ends {
    int rank, ranks, n[3];
    int64_t *end[3]; /* of this rank's actions, the next one's, the one's before */
} mesh__ends;

MESH__PRIVATE int mesh__ends_list(const mesh__ends *e, int rank) {
    if (rank == e->rank) return 0;
    if (rank == (e->rank + 1) % e->ranks) return 1;
    return rank == (e->rank + e->ranks - 1) % e->ranks ? 2 : -1;
}

MESH__PRIVATE void mesh__ends_see(void *ctx, int rank, const mesh_action *a, int64_t start, int64_t end) {
    mesh__ends *e = (mesh__ends *)ctx;
    int list = mesh__ends_list(e, rank);
    (void)a, (void)start;
    if (list >= 0) e->end[list][e->n[list]++] = end;
}

MESH__PRIVATE int mesh__turn_after(const void *ctx, int a, int b) {
    const mesh__turn *x = (const mesh__turn *)ctx + a, *y = (const mesh__turn *)ctx + b;
    if (x->end != y->end) return x->end > y->end;
    return x->from != y->from ? x->from > y->from : x->at > y->at;
}

MESH__PRIVATE void mesh__turn_add(mesh__turns *o, int from, int at, int user, const mesh__ends *ends) {
    mesh__turn *t = &o->turn[o->n];
    t->end = ends->end[mesh__ends_list(ends, from)][at];
    t->from = from;
    t->at = at;
    t->user = user;
    o->place[o->n] = o->n;
    o->n++;
}

/* The clock runs; this rank's messages are sorted by it. ends: of its own list and its neighbours'. */
MESH__PRIVATE void mesh__turns_fill(mesh__pipeline *p, mesh__ends *ends) {
    const mesh_schedule *s = p->s;
    mesh__turns *o = &p->turns;
    mesh__pipe k;
    int i, hint[3][2] = {{0, 0}, {0, 0}, {0, 0}};
    mesh__pipe_start(&k, s, NULL, 0);
    k.seen = mesh__ends_see;
    k.ctx = ends;
    mesh__pipe_run(&k, "mesh_pipeline_run", NULL); /* it has been checked */
    for (i = 0; i < ends->n[0]; i++) {
        const mesh_action *a = mesh__lane_action(s, p->rank, i);
        int forward = a->kind == MESH_FORWARD, from = mesh__action_peer(s, p->rank, a, -1);
        o->input[i] = -1;
        if (from >= 0)
            mesh__turn_add(o, from,
                           mesh__lane_find(s, from, forward, mesh__action_stage(s, p->rank, a, -1) / s->ranks, a->micro,
                                           &hint[mesh__ends_list(ends, from)][forward]),
                           i, ends);
        if (mesh__action_peer(s, p->rank, a, 1) >= 0) mesh__turn_add(o, p->rank, i, i, ends);
    }
    mesh__sort(o->place, o->n, mesh__turn_after, o->turn);
    for (i = 0; i < o->n; i++)
        if (o->turn[o->place[i]].from != p->rank) o->input[o->turn[o->place[i]].user] = i;
}

/* Where the parts of the memory at `turn` lie; `total` actions' ends between them. */
MESH__PRIVATE void mesh__turns_lay(mesh__turns *o, size_t own, size_t total) {
    o->place = (int *)(void *)((int64_t *)(void *)(o->turn + 2 * own) + total);
    o->input = o->place + 2 * own;
}

/* The messages in their order; those of the group's last schedule are kept. 0: no memory. */
MESH__PRIVATE int mesh__turns_get(mesh__pipeline *p, mesh__group *g) {
    const mesh_schedule *s = p->s;
    mesh__turns *o = &p->turns;
    mesh__ends ends;
    size_t n[3], total = 0;
    int64_t *end;
    int i;
    memset(&ends, 0, sizeof ends);
    ends.rank = p->rank;
    ends.ranks = s->ranks;
    for (i = 0; i < 3; i++) {
        int r = (p->rank + (i == 2 ? s->ranks - 1 : i)) % s->ranks;
        n[i] = (size_t)(s->first[r + 1] - s->first[r]);
        total += n[i];
    }
    if (g->kept.turns && g->kept.sorted == p->hash) {
        o->turn = (mesh__turn *)g->kept.turns;
        o->n = g->kept.nturns;
        mesh__turns_lay(o, n[0], total);
        return 1;
    }
    mesh_transport_free(p->comm->transport, g->kept.turns);
    o->turn = (mesh__turn *)mesh_transport_alloc(p->comm->transport, 2 * n[0] * sizeof *o->turn + total * sizeof *end +
                                                                         3 * n[0] * sizeof *o->place);
    g->kept.turns = o->turn;
    if (!o->turn) return 0;
    end = (int64_t *)(void *)(o->turn + 2 * n[0]);
    mesh__turns_lay(o, n[0], total);
    for (i = 0; i < 3; end += n[i++]) ends.end[i] = end;
    mesh__turns_fill(p, &ends);
    g->kept.sorted = p->hash;
    g->kept.nturns = o->n;
    return 1;
}

/* Where a message that comes is put. */
MESH__PRIVATE mesh__feed *mesh__turn_feed(mesh__pipeline *p, const mesh__turn *t) {
    const mesh_action *a = mesh__lane_action(p->s, t->from, t->at);
    return mesh__feed_of(p, mesh__stage_of(p->s, t->from, a->chunk), a->kind == MESH_FORWARD);
}

/* What this rank issues next: to receive *turn, the action `at`, or what that has made: then `at` is the one behind. A receive comes when its action is
   due, before a send that stands behind it, and earlier if the inbox has room. */
MESH__PRIVATE int mesh__turns_next(mesh__pipeline *p, const mesh__turn **turn) {
    mesh__turns *o = &p->turns;
    for (;;) {
        const mesh_action *a = mesh__lane_action(p->s, p->rank, o->at);
        int sends = a && o->acted && mesh__action_peer(p->s, p->rank, a, 1) >= 0;
        const mesh__turn *t = *turn = o->next < o->n ? &o->turn[o->place[o->next]] : NULL;
        if (!a) return MESH__TURN_OVER;
        if (t && t->from != p->rank && (!o->acted || sends) &&
            (sends || o->input[o->at] >= o->next || mesh__turn_feed(p, t)->waiting < p->inbox)) {
            o->next++;
            return MESH__TURN_RECV;
        }
        if (!o->acted) {
            o->acted = 1;
            return MESH__TURN_ACT;
        }
        MESH_ASSERT(!sends || (t && t->user == o->at));
        o->acted = 0;
        o->at++;
        if (!sends) continue;
        o->next++;
        return MESH__TURN_SEND;
    }
}

/* How many letters wait at once. With tags it is the inbox. */
MESH__PRIVATE void mesh__turns_measure(mesh__pipeline *p) {
    const mesh__turn *t;
    int i, what;
    for (i = 0; i < 2 * MESH__SIDES; i++) p->feed[i / 2][i % 2].ahead = p->turns.turn ? 0 : p->inbox;
    while (p->turns.turn && (what = mesh__turns_next(p, &t)) != MESH__TURN_OVER) {
        const mesh_action *a = mesh__lane_action(p->s, p->rank, p->turns.at);
        mesh__feed *f;
        if (what == MESH__TURN_RECV) {
            f = mesh__turn_feed(p, t);
            if (++f->waiting > f->ahead) f->ahead = f->waiting;
        } else if (what == MESH__TURN_ACT && p->turns.input[p->turns.at] >= 0) {
            mesh__feed_of(p, mesh__action_stage(p->s, p->rank, a, -1), a->kind == MESH_FORWARD)->waiting--;
        }
    }
    p->turns.next = p->turns.at = p->turns.acted = 0;
}

/* ---- // >>failing ---- */

MESH__RARE mesh_status mesh__pipeline_fail_inside(mesh__pipeline *p, mesh_status status, int rank, const char *why) {
    return mesh__comm_broken(p->comm, status, rank, "mesh_pipeline_run(\"%s\"): %s", p->axis ? p->axis : "(all axes)",
                             why);
}

/* Something is wrong here: the comm fails on every rank. */
MESH__RARE mesh_status mesh__pipeline_fail(mesh__pipeline *p, mesh_status status, int rank, const char *why) {
    MESH__ALONE(p->comm, "pipeline_run", mesh__pipeline_fail_inside(p, status, rank, why));
}

MESH__RARE mesh_status mesh__pipeline_stop_inside(mesh__pipeline *p, const mesh_action *a, int returned) {
    mesh_comm *c = p->comm;
    char why[200];
    mesh__text t = mesh__text_on(why, sizeof why);
    if (c->failed) return (mesh_status)c->error.status; /* the callback met with that */
    mesh__put_action(&t, p->s, p->rank, a);
    mesh__put(&t, " failed on rank %d: the callback returned %d", c->transport->rank, returned);
    mesh__pipeline_fail_inside(p, MESH_ERR_PEER, c->transport->rank, why);
    if (!mesh__impl(c)->untold.waits) c->error.status = MESH_ERR_STATE; /* what the others are told is PEER */
    return MESH_ERR_STATE;
}

/* The callback gave up. */
MESH__RARE mesh_status mesh__pipeline_stop(mesh__pipeline *p, const mesh_action *a, int returned) {
    MESH__ALONE(p->comm, "pipeline_run", mesh__pipeline_stop_inside(p, a, returned));
}

/* The comm failed while this rank was at an action, or had done all: its text says so too. */
MESH__RARE void mesh__pipeline_at(mesh__pipeline *p, const mesh_action *a) {
    mesh_error was = p->comm->error;
    char here[120];
    mesh__text t = mesh__text_on(here, sizeof here);
    if (a)
        mesh__put_action(&t, p->s, p->rank, a);
    else
        mesh__put(&t, "its end");
    mesh__fail(&p->comm->error, (mesh_status)was.status, was.rank, "%s; here the pipeline was at %s", was.text, here);
}

/* ---- // >>messages ---- */

/* Start to receive what the peer makes by an action. */
MESH__PRIVATE mesh_status mesh__feed_start(mesh__pipeline *p, mesh__feed *f, const mesh_action *a) {
    mesh__letter *l = &f->letter[f->waiting];
    int forward = a->kind == MESH_FORWARD;
    mesh_status status;
    l->stage = mesh__stage_of(p->s, f->peer, a->chunk);
    l->micro = a->micro;
    l->buffer = f->buffer[f->nfree - 1];
    status = mesh_recv_start(p->comm, p->over[forward], f->peer, l->buffer, mesh__boundary(p, l->stage, forward),
                             MESH_BYTES, &l->request);
    if (status != MESH_OK) return status;
    f->nfree--;
    f->waiting++;
    return MESH_OK;
}

/* Start the receives that the inbox has room for, in the order in which the peer sends. */
MESH__PRIVATE mesh_status mesh__feed_fill(mesh__pipeline *p, mesh__feed *f, int forward) {
    const mesh_schedule *s = p->s;
    mesh_status status = MESH_OK;
    while (f->waiting < p->inbox && status == MESH_OK) {
        const mesh_action *a;
        while ((a = mesh__lane_action(s, f->peer, f->next)) != NULL &&
               ((a->kind == MESH_FORWARD) != forward || mesh__action_peer(s, f->peer, a, 1) != p->rank))
            f->next++;
        if (!a) return MESH_OK;
        status = mesh__feed_start(p, f, a);
        f->next++;
    }
    return status;
}

/* Wait for what a stage made of a micro-batch. The checker knows that it is among those that wait. */
MESH__PRIVATE mesh_status mesh__feed_take(mesh__pipeline *p, mesh__feed *f, int forward, int stage, int micro,
                                          void **buffer) {
    mesh_status status = MESH_OK;
    int i = 0;
    while (f->letter[i].stage != stage || f->letter[i].micro != micro) i++;
    MESH_ASSERT(i < f->waiting);
    if (f->letter[i].request.comm) {
        status = mesh_wait(f->letter[i].request);
        memset(&f->letter[i].request, 0, sizeof f->letter[i].request);
        if (status != MESH_OK) return status;
    }
    *buffer = f->letter[i].buffer;
    for (f->waiting--; i < f->waiting; i++) f->letter[i] = f->letter[i + 1];
    return f == &p->feed[MESH__HERE][forward] || p->turns.turn ? MESH_OK : mesh__feed_fill(p, f, forward);
}

/* A buffer for what an action makes for stage `to`: in the outbox *o, once its last message has gone, or (*o is NULL) handed over here. */
MESH__PRIVATE mesh_status mesh__pipeline_room(mesh__pipeline *p, const mesh_action *a, int to, mesh__outbox **o,
                                              void **buffer) {
    int forward = a->kind == MESH_FORWARD, taker = mesh__stage_rank(p->s, to);
    mesh_status status = MESH_OK;
    if (taker == p->rank) {
        mesh__feed *f = &p->feed[MESH__HERE][forward];
        mesh__letter *l = &f->letter[f->waiting++];
        memset(l, 0, sizeof *l);
        l->stage = mesh__stage_of(p->s, p->rank, a->chunk);
        l->micro = a->micro;
        *buffer = l->buffer = f->buffer[--f->nfree];
        return MESH_OK;
    }
    *o = &p->outbox[mesh__way_of(p->s, p->rank, taker)][forward];
    if ((*o)->request[(*o)->next].comm) {
        status = mesh_wait((*o)->request[(*o)->next]);
        memset(&(*o)->request[(*o)->next], 0, sizeof(mesh_request));
    }
    *buffer = (*o)->buffer[(*o)->next];
    return status;
}

/* ---- // >>running ---- */

/* The slot of an action's micro-batch and chunk; for a forward a free one. */
MESH__PRIVATE mesh__stash *mesh__pipeline_slot(mesh__pipeline *p, const mesh_action *a) {
    int i = 0, forward = a->kind == MESH_FORWARD;
    while (forward ? p->slot[i].used : !p->slot[i].used || p->slot[i].chunk != a->chunk || p->slot[i].micro != a->micro)
        i++;
    MESH_ASSERT(i < p->peak);
    p->slot[i].used = 1;
    p->slot[i].chunk = a->chunk;
    p->slot[i].micro = a->micro;
    return &p->slot[i];
}

MESH__PRIVATE void mesh__pipeline_release(mesh__pipeline *p, mesh__stash *slot, int stage) {
    mesh__feed *f = slot->in ? mesh__feed_of(p, stage - 1, 1) : NULL;
    if (f) f->buffer[f->nfree++] = slot->in;
    f = slot->grad_out ? mesh__feed_of(p, stage + 1, 0) : NULL;
    if (f) f->buffer[f->nfree++] = slot->grad_out;
    memset(slot, 0, sizeof *slot);
}

MESH__PRIVATE mesh_status mesh__pipeline_act(mesh__pipeline *p, const mesh_action *a) {
    const mesh_schedule *s = p->s;
    int forward = a->kind == MESH_FORWARD, returned;
    int from = mesh__action_stage(s, p->rank, a, -1), to = mesh__action_stage(s, p->rank, a, 1);
    mesh__stash *slot = mesh__pipeline_slot(p, a);
    mesh_stage_call call = MESH_ZERO;
    void *made = NULL;
    mesh_status status = MESH_OK;
    p->leaving = NULL;
    if (from >= 0)
        status = mesh__feed_take(p, mesh__feed_of(p, from, forward), forward, from, a->micro,
                                 forward ? &slot->in : &slot->grad_out);
    if (status == MESH_OK && to >= 0) status = mesh__pipeline_room(p, a, to, &p->leaving, &made);
    if (status != MESH_OK) return status;
    call.kind = a->kind;
    call.chunk = a->chunk;
    call.micro = a->micro;
    call.stage = mesh__stage_of(s, p->rank, a->chunk);
    call.stages = s->ranks * s->chunks;
    call.slot = (int)(slot - p->slot);
    call.in = slot->in;
    call.grad_out = slot->grad_out;
    call.out = forward ? made : NULL;
    call.grad_in = forward ? NULL : made;
    returned = p->stage->run(p->stage->ctx, &call, 1);
    if (returned || p->comm->failed) return mesh__pipeline_stop(p, a, returned);
    if (mesh__is_last(p, a)) mesh__pipeline_release(p, slot, call.stage);
    return status;
}

/* What an action has made leaves, if it is for another rank. */
MESH__PRIVATE mesh_status mesh__pipeline_send(mesh__pipeline *p, const mesh_action *a) {
    int forward = a->kind == MESH_FORWARD, at;
    mesh__outbox *o = p->leaving;
    if (!o) return MESH_OK;
    at = o->next;
    o->next = (at + 1) % MESH__OUTBOX;
    return mesh_send_start(p->comm, p->over[forward], mesh__action_peer(p->s, p->rank, a, 1), o->buffer[at],
                           mesh__boundary(p, mesh__stage_of(p->s, p->rank, a->chunk), forward), MESH_BYTES,
                           &o->request[at]);
}

MESH__PRIVATE mesh_status mesh__pipeline_acts(mesh__pipeline *p) {
    const mesh_schedule *s = p->s;
    const mesh_action *a = NULL;
    const mesh__turn *turn;
    mesh_status status = MESH_OK;
    int i, what;
    for (i = 0; i < 2 * MESH__HERE && status == MESH_OK && !p->turns.turn; i++)
        if (p->feed[i / 2][i % 2].peer >= 0) status = mesh__feed_fill(p, &p->feed[i / 2][i % 2], i % 2);
    for (i = s->first[p->rank]; i < s->first[p->rank + 1] && status == MESH_OK && !p->turns.turn; i++) {
        status = mesh__pipeline_act(p, a = &s->action[i]);
        if (status == MESH_OK) status = mesh__pipeline_send(p, a);
    }
    while (p->turns.turn && status == MESH_OK && (what = mesh__turns_next(p, &turn)) != MESH__TURN_OVER) {
        a = mesh__lane_action(s, p->rank, p->turns.at - (what == MESH__TURN_SEND));
        if (what == MESH__TURN_RECV)
            status = mesh__feed_start(p, mesh__turn_feed(p, turn), mesh__lane_action(s, turn->from, turn->at));
        else
            status = what == MESH__TURN_ACT ? mesh__pipeline_act(p, a) : mesh__pipeline_send(p, a);
    }
    if (status != MESH_OK && status != MESH_ERR_STATE) mesh__pipeline_at(p, a);
    if (status != MESH_OK) return status;
    status = mesh_barrier(p->comm, p->axis); /* whom nobody needs any more hears, too, that another failed */
    if (status != MESH_OK) mesh__pipeline_at(p, NULL);
    return status;
}

/* Until nothing uses the buffers: what is still being sent, and after a failure what was still to come. */
MESH__PRIVATE mesh_status mesh__pipeline_settle(mesh__pipeline *p, mesh_status status) {
    int i, k;
    for (i = 0; i < 4; i++) {
        mesh__outbox *o = &p->outbox[i / 2][i % 2];
        mesh__feed *f = &p->feed[i / 2][i % 2];
        for (k = 0; k < MESH__OUTBOX; k++)
            if (o->request[k].comm) {
                mesh_status sent = mesh_wait(o->request[k]);
                if (status == MESH_OK) status = sent;
            }
        for (k = 0; k < f->waiting; k++)
            if (f->letter[k].request.comm) mesh_wait(f->letter[k].request);
    }
    return status;
}

/* ---- // >>beginning ---- */

/* Of a schedule that is whole. */
MESH__PRIVATE uint64_t mesh__schedule_hash(const mesh_schedule *s, int inbox) {
    uint64_t hash = mesh__mix(mesh__mix((uint64_t)s->ranks, (uint64_t)s->micros),
                              (uint64_t)s->chunks << 1 | (uint64_t)(s->order == MESH_STAGES_V));
    int i;
    for (i = 0; i < s->ranks; i++) hash = mesh__mix(hash, (uint64_t)(s->first[i + 1] - s->first[i]));
    for (i = s->first[0]; i < s->first[s->ranks]; i++)
        hash = mesh__mix(hash, (uint64_t)s->action[i].micro << 16 | (uint64_t)s->action[i].chunk << 8 |
                                   (uint64_t)s->action[i].kind);
    return mesh__mix(hash, (uint64_t)inbox) | 1;
}

MESH__PRIVATE mesh_status mesh__pipeline_axis(mesh__pipeline *p, mesh__group **g) {
    mesh_comm *c = p->comm;
    mesh_error why;
    uint8_t list[MESH_MAX_AXES];
    if (!c) return MESH_ERR_ARGUMENT;
    if (!c->impl) return mesh__fail(&c->error, MESH_ERR_STATE, -1, "mesh_pipeline_run: the comm is not open");
    if (c->failed) return (mesh_status)c->error.status;
    *g = mesh__group_find(mesh__impl(c), p->axis);
    if (*g && (!p->axis || strlen(p->axis) < MESH_MAX_AXES * MESH_NAME_BYTES)) return MESH_OK;
    if (mesh__axes(&c->on, p->axis, list, "axis", &why) < 0)
        return mesh__pipeline_fail_inside(p, MESH_ERR_ARGUMENT, c->transport->rank, why.text);
    return mesh__pipeline_fail_inside(p, MESH_ERR_STATE, c->transport->rank,
                                      "this group is not open; list it in mesh_comm_desc.groups or call "
                                      "mesh_group_open on every rank");
}

MESH__PRIVATE mesh_status mesh__pipeline_begin_inside(mesh__pipeline *p, mesh__group **g) {
    const mesh_schedule *s = p->s;
    mesh_error err;
    char text[160];
    mesh__text t = mesh__text_on(text, sizeof text);
    mesh_status status = mesh__pipeline_axis(p, g);
    int i;
    if (status != MESH_OK) return status;
    if (!p->stage || !p->stage->run)
        return mesh__pipeline_fail_inside(p, MESH_ERR_ARGUMENT, p->comm->transport->rank,
                                          p->stage ? "stage.run is NULL" : "the stage is NULL");
    if (p->stage->inbox >= 0) status = mesh__pipeline_whole(s, "mesh_schedule_check", &err);
    if (p->stage->inbox >= 0 && status == MESH_OK)
        p->hash = mesh__schedule_hash(s, p->stage->inbox ? p->stage->inbox : 2);
    if (status == MESH_OK && (!p->hash || p->hash != (*g)->kept.checked))
        status = mesh_schedule_check(s, p->stage->inbox, &err);
    if (status != MESH_OK) return mesh__pipeline_fail_inside(p, status, p->comm->transport->rank, err.text);
    (*g)->kept.checked = p->hash;
    if ((*g)->on.size != s->ranks) {
        mesh__put(&t, "the schedule is for %d ranks, the axis has %d", s->ranks, (*g)->on.size);
        return mesh__pipeline_fail_inside(p, MESH_ERR_ARGUMENT, p->comm->transport->rank, text);
    }
    p->rank = (*g)->index;
    p->inbox = p->stage->inbox ? p->stage->inbox : 2;
    if (p->inbox > s->micros * s->chunks) p->inbox = s->micros * s->chunks; /* there are no more messages */
    p->peak = mesh__pipeline_peak(s, p->rank);
    for (i = 0; i < 2 * MESH__SIDES; i++) p->feed[i / 2][i % 2].peer = -1;
    for (i = 0; i < 2; i++) {
        t = mesh__text_on(p->tag[i], sizeof p->tag[i]);
        mesh__put(&t, "%s#%d", p->axis ? p->axis : "", (int)MESH__PIPELINE_TAG + i);
        p->over[i] = p->comm->transport->caps & MESH_CAP_ORDERED ? p->axis : p->tag[i];
    }
    if (p->comm->transport->caps & MESH_CAP_ORDERED && !mesh__turns_get(p, *g))
        return mesh__pipeline_fail_inside(p, MESH_ERR_MEMORY, p->comm->transport->rank, "no memory to order messages");
    mesh__pipeline_measure(p);
    mesh__turns_measure(p);
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__pipeline_begin(mesh__pipeline *p, mesh__group **g) {
    MESH__ALONE(p->comm, "pipeline_run", mesh__pipeline_begin_inside(p, g));
}

MESH__PRIVATE mesh_status mesh__pipeline_end(mesh_comm *c, mesh_status status) {
    MESH__ALONE(c, "pipeline_run", mesh__composed(c, "pipeline_run", 0, status));
}

/* Gather two numbers of each rank of a group, `on`, and compare as many of them as are to be the same. */
MESH__PRIVATE mesh_status mesh__pipeline_compare(mesh__pipeline *p, const char *axes, const mesh *on,
                                                 const uint64_t mine[2], int numbers) {
    mesh_comm *c = p->comm;
    size_t n = (size_t)on->size, each = 2 * sizeof *mine;
    uint64_t *all = (uint64_t *)mesh_transport_alloc(c->transport, n * each);
    mesh_status status;
    int i, differs;
    if (!all) return mesh__pipeline_fail(p, MESH_ERR_MEMORY, c->transport->rank, "no memory to compare schedules");
    status = mesh_copy(c, p->compared, mine, each);
    if (status == MESH_OK) status = mesh_all_gather(c, axes, p->compared, p->compared + each, 2, MESH_U64);
    if (status == MESH_OK) status = mesh_copy(c, all, p->compared + each, n * each);
    for (i = 1; i < on->size && status == MESH_OK; i++) {
        char why[100];
        mesh__text w = mesh__text_on(why, sizeof why);
        differs = all[2 * i] != all[0] ? 1 : numbers == 2 && all[2 * i + 1] != all[1] ? 2 : 0;
        if (!differs) continue;
        mesh__put(&w, "rank %d has %s than rank %d", mesh_rank_at(on, i),
                  differs == 1 ? "another schedule, or another inbox," : "other bytes between stages",
                  mesh_rank_at(on, 0));
        status = mesh__pipeline_fail(p, MESH_ERR_MISMATCH, mesh_rank_at(on, i), why);
    }
    mesh_transport_free(c->transport, all);
    return status;
}

/* What must be the same: along the axis schedule, inbox and the sizes of what travels; without tags schedule and inbox in the whole comm, for a callback's
   collectives stand between messages that are in one order. On a device only where this rank's are others than the last time: what it takes to read is
   waited for on the host. */
MESH__PRIVATE mesh_status mesh__pipeline_agree(mesh__pipeline *p, mesh__group *g) {
    mesh_comm *c = p->comm;
    uint64_t mine[2];
    mesh_status status;
    int i;
    mine[0] = p->hash;
    for (mine[1] = 1, i = 0; i + 1 < p->s->ranks * p->s->chunks; i++)
        mine[1] = mesh__mix(mine[1], (uint64_t)mesh__boundary(p, i, 1));
    if (g->kept.agreed && g->kept.agreed == (mesh__mix(mine[0], mine[1]) | 1)) return MESH_OK;
    status = mesh__pipeline_compare(p, p->axis, &g->on, mine, 2);
    if (status == MESH_OK && c->transport->caps & MESH_CAP_ORDERED && g->on.size < c->on.size)
        status = mesh__pipeline_compare(p, NULL, &c->on, mine, 1);
    if (status == MESH_OK && c->transport->caps & MESH_CAP_DEVICE) g->kept.agreed = mesh__mix(mine[0], mine[1]) | 1;
    return status;
}

/* A device's memory is the transport's scratch: taking and giving back ordinary memory would wait for all that the device does, other comms' too. */
MESH__PRIVATE int mesh__pipeline_has_scratch(const mesh_transport *t) {
    return t->caps & MESH_CAP_DEVICE && MESH__HAS(t->ops, alloc) && MESH__HAS(t->ops, free);
}
MESH__PRIVATE mesh_status mesh__pipeline_scratch(mesh__pipeline *p, size_t nbytes) {
    mesh_transport *t = p->comm->transport;
    MESH__ALONE(p->comm, "pipeline_run", t->ops->alloc(t, nbytes, 0, &p->arena));
}
MESH__PRIVATE mesh_status mesh__pipeline_scratch_back(mesh__pipeline *p) {
    mesh_transport *t = p->comm->transport;
    MESH__ALONE(p->comm, "pipeline_run", t->ops->free(t, p->arena));
}

/* The state and the buffers. 0: no memory. */
MESH__PRIVATE int mesh__pipeline_take(mesh__pipeline *p) {
    mesh_transport *t = p->comm->transport;
    size_t state, arena;
    mesh__pipeline_lay(p, &state, &arena);
    if (!(p->state = mesh_transport_alloc(t, state))) return 0;
    memset(p->state, 0, state);
    if ((mesh__pipeline_has_scratch(t) ? mesh__pipeline_scratch(p, arena) : mesh_alloc(t, arena, &p->arena, NULL)) !=
        MESH_OK)
        p->arena = NULL;
    if (!p->arena) return 0;
    mesh__pipeline_lay(p, &state, &arena);
    return 1;
}

/* After a failure a device may still write into its memory: it stays the transport's. */
MESH__PRIVATE void mesh__pipeline_give(mesh__pipeline *p) {
    mesh_transport *t = p->comm->transport;
    if (p->arena && !mesh__pipeline_has_scratch(t))
        mesh_free(t, p->arena, NULL);
    else if (p->arena && !p->comm->failed)
        mesh__pipeline_scratch_back(p);
    mesh_transport_free(t, p->state);
}

MESH_API mesh_status mesh_pipeline_run(mesh_comm *c, const char *axis, const mesh_schedule *s,
                                       const mesh_stage *stage) {
    mesh__pipeline p;
    mesh__group *g = NULL;
    mesh_status status;
    memset(&p, 0, sizeof p);
    p.comm = c;
    p.axis = axis;
    p.s = s;
    p.stage = stage;
    if ((status = mesh__pipeline_begin(&p, &g)) != MESH_OK) return status;
    if (mesh__pipeline_take(&p)) {
        status = mesh__pipeline_agree(&p, g); /* whom something fails so far has not come here: nobody has begun */
        if (status == MESH_OK) status = mesh__pipeline_settle(&p, mesh__pipeline_acts(&p));
        status = mesh__pipeline_end(c, status);
    } else {
        char why[80];
        size_t state, arena;
        mesh__text t = mesh__text_on(why, sizeof why);
        mesh__pipeline_lay(&p, &state, &arena);
        mesh__put(&t, "no memory for %u bytes of messages", (uint64_t)arena);
        status = mesh__pipeline_fail(&p, MESH_ERR_MEMORY, c->transport->rank, why);
    }
    mesh__pipeline_give(&p);
    return status;
}
#endif /* MESH_PIPELINE_RUN_IMPLEMENTED */
