/* mesh/waits.h - who waits for whom: the search for a cycle, the roll call, deadlines. Part of mesh.h 0.1.0. MIT licence.

   Includes failure.h. Questions and answers as bytes; who carries them is control.h.
*/
#if !defined(MESH_WAITS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_WAITS_IMPLEMENTED))
#include "failure.h"
#define MESH_WAITS_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_WAITS_IMPLEMENTED)
#define MESH_WAITS_IMPLEMENTED

enum { MESH__ROLL_NS = 1000000000 }; /* for the answers to a roll call, at most; see mesh__roll_time */

/* What ranks say to each other: at least so many bytes, dealt with by whom. */
#define MESH__MESSAGES(X)                                                                          \
    X(MESH__MSG_HELLO, MESH__HELLO_HEAD + 1, mesh__hello_heard)   /* I open this mesh */           \
    X(MESH__MSG_WELCOME, MESH__WELCOME_HEAD, mesh__welcome_heard) /* you may, or why not */        \
    X(MESH__MSG_FAREWELL, 8, mesh__farewell_heard)                /* I have given that up */       \
    X(MESH__MSG_ASK, MESH__ASK_BYTES, mesh__answer)               /* what are you in? */           \
    X(MESH__MSG_SAY, MESH__SAY_HEAD, mesh__say_heard)             /* this; for these I wait */     \
    X(MESH__MSG_ROLL, MESH__ROLL_BYTES, mesh__roll_answer)        /* have you called this too? */  \
    X(MESH__MSG_HERE, MESH__HERE_BYTES, mesh__roll_heard)         /* so many, with it; I am in */  \
    X(MESH__MSG_CLOCK, MESH__CLOCK_BYTES, mesh__clock_answer)     /* what time is it on rank 0? */ \
    X(MESH__MSG_TIME, MESH__TIME_BYTES, mesh__clock_heard)        /* this, so far as I know */     \
    X(MESH__MSG_HOSTS, MESH__HOSTS_HEAD + 1, mesh__hosts_told)    /* who shares a host */

#define MESH_X(name, least, heard) name,
enum { MESH__MSG_NONE, MESH__MESSAGES(MESH_X) MESH__MSG_END };
#undef MESH_X

/* ---- // >>what this rank has posted ---- */

/* Whose channel it is here; NULL: nobody's. */
MESH__PRIVATE const mesh__group *mesh__channel_group(const mesh__engine *e, uint64_t channel) {
    int i, k = (int)(channel >> 32 & 255);
    for (i = 0; i < e->ncomms; i++)
        if (e->comm[i]->id == (uint32_t)(channel >> 40) && k < mesh__impl(e->comm[i])->ngroups)
            return mesh__impl(e->comm[i])->group[k];
    return NULL;
}

/* How many collectives of a group this rank has called, from that of a channel on. */
MESH__RARE uint32_t mesh__called_from(const mesh__engine *e, uint64_t channel) {
    const mesh__group *g = mesh__channel_group(e, channel);
    return g ? mesh__sequence_from(g->sequence, mesh__sequence(channel)) : 0;
}

/* Sends to and receives from a world rank that this rank has posted on a channel. */
MESH__PRIVATE void mesh__posted(mesh__engine *e, uint64_t channel, int rank, uint32_t *sends, uint32_t *recvs) {
    const mesh__group *g = mesh__channel_group(e, channel);
    int i, k;
    *sends = *recvs = 0;
    if (g && !mesh__sequence(channel)) {
        int index = mesh_index_of(&g->on, rank);
        const mesh__stream *stream = g->stream && index >= 0 ? mesh__stream_find(g, (uint32_t)channel, index) : NULL;
        if (!stream) return;
        *sends = stream->count[MESH_SEND];
        *recvs = stream->count[MESH_RECV];
        return;
    }
    if (g && mesh__sequence_come_to(g->sequence, (uint32_t)channel))
        *sends = *recvs = UINT32_MAX; /* ended, unless found below */
    for (i = 0; i < e->nops; i++) {
        mesh__op *op = e->op[i];
        if (op->state != MESH__ACTIVE || op->channel != channel) continue;
        *sends = *recvs = 0;
        for (k = 0; k < op->at; k++) {
            int x;
            const mesh__step *s = &op->schedule.step[k];
            if (s->kind == MESH__CALL) *sends += 1, *recvs += 1; /* with every member */
            for (x = s->as.post.first; s->kind == MESH__POST && x < s->as.post.first + s->as.post.count; x++)
                if (op->schedule.xfer[x].rank == rank)
                    *(op->schedule.xfer[x].direction == MESH_SEND ? sends : recvs) += 1;
        }
    }
}

/* What one operation of this rank has posted to and from a rank: what it can be waiting for. */
MESH__PRIVATE void mesh__op_posted(mesh__engine *e, const mesh__op *op, int rank, uint32_t *sends, uint32_t *recvs) {
    int x, any[2] = {0, 0};
    if (mesh__sequence(op->channel)) {
        mesh__posted(e, op->channel, rank, sends, recvs);
        return;
    }
    *sends = *recvs = 0;
    for (x = 0; x < op->schedule.nxfers; x++) {
        int is_send = op->schedule.xfer[x].direction == MESH_SEND;
        uint32_t *count = is_send ? sends : recvs;
        if (op->schedule.xfer[x].rank != rank || !op->ordinal[x]) continue;
        if (!any[is_send]++ || mesh__come_to(op->ordinal[x], *count)) *count = op->ordinal[x];
    }
}

/* The asked may know better: it called something else on that channel, perhaps long ago, in which it had nothing to say to the waiter. */
MESH__RARE void mesh__compare_calls(mesh__engine *e, int subject, const mesh__record *theirs) {
    const mesh__record *mine = mesh__sequence(theirs->channel) ? mesh__record_of(e, theirs->channel) : NULL;
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
MESH__RARE int mesh__say_closed(mesh__engine *e, int from, uint32_t id) {
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
MESH__RARE int mesh__say_failed(mesh__engine *e, int from, uint32_t id) {
    unsigned char data[MESH_CONTROL_BYTES];
    int i;
    for (i = 0; i < e->ncomms; i++)
        if (e->comm[i]->id == id && e->comm[i]->failed && mesh_index_of(&e->comm[i]->on, from) >= 0) {
            size_t length = mesh__abort_write(data, e->comm[i], MESH__ABORT_PLAIN, NULL);
            e->t->ops->control_send(e->t, from, MESH_EVENT_ABORT, data, length);
            return 1;
        }
    return 0;
}

/* ---- // >>the roll: who has called it? ---- */

enum { MESH__ROLL_BYTES = 16 + MESH__RECORD_BYTES, MESH__HERE_BYTES = 12 + MESH__RECORD_BYTES };

/* A quarter of the deadline, 0.1 to 1 s: who is in the library answers at once. */
MESH__PRIVATE int64_t mesh__roll_time(const mesh__op *op) {
    int64_t part = mesh__impl(op->comm)->timeout / 4, most = MESH__ROLL_NS;
    return part < most / 10 ? most / 10 : part < most ? part : most;
}

/* A rank of the group is gone. One that was lost says more than those that left. */
MESH__RARE void mesh__roll_left(mesh__engine *e, int rank, int kind) {
    mesh__roll *roll = &e->roll;
    if (!roll->gone++ || (kind == MESH_EVENT_LOST && !roll->lost)) roll->first_gone = rank;
    roll->lost |= kind == MESH_EVENT_LOST;
}

/* The end of what is left to a stream may be told with that of what was left there after it: how many operations of its group that is, from it on. */
MESH__RARE uint32_t mesh__roll_together(const mesh__op *op) {
    const mesh__op *next, *last = op;
    if (!mesh__sequence(op->channel) || !op->detached) return 1;
    for (next = op->next_detached; next; next = next->next_detached)
        if (next->group == op->group && mesh__sequence(next->channel)) last = next;
    return mesh__sequence_from(mesh__sequence(last->channel), mesh__sequence(op->channel));
}

/* The first of them that a rank has not called hangs. */
MESH__RARE const mesh__op *mesh__roll_hangs(const mesh__roll *roll) {
    const mesh__op *op = roll->absent && roll->called ? roll->op->next_detached : NULL;
    while (op && (op->group != roll->op->group ||
                  mesh__sequence_from(mesh__sequence(op->channel), mesh__sequence(roll->op->channel)) <= roll->called))
        op = op->next_detached;
    return op ? op : roll->op;
}

MESH__RARE void mesh__roll_start(mesh__engine *e, mesh__op *op, int final) {
    const mesh *on = &op->group->on;
    unsigned char ask[MESH__ROLL_BYTES];
    uint32_t sends, recvs;
    int i;
    memset(&e->roll, 0, sizeof e->roll);
    e->roll.op = op;
    e->roll.final = final;
    e->roll.id = ++e->walks;
    e->roll.together = e->roll.called = mesh__roll_together(op);
    e->roll.until = mesh__now(e) + mesh__roll_time(op);
    mesh__put32(ask, MESH__MSG_ROLL);
    mesh__put32(ask + 4, e->roll.id);
    mesh__record_write(ask + 16, &op->record);
    for (i = 0; i < on->size; i++) {
        int rank = mesh_rank_at(on, i), k;
        if (i == op->group->index) continue;
        for (k = 0; k < e->ngone && e->gone[k].rank != rank; k++) {}
        if (k < e->ngone) {
            mesh__roll_left(e, rank, e->gone[k].kind);
            if (i < 1024) e->roll.heard[i / 64] |= UINT64_C(1) << i % 64; /* no answer is owed */
            continue;
        }
        mesh__op_posted(e, op, rank, &sends, &recvs);
        mesh__put32(ask + 8, sends);
        mesh__put32(ask + 12, recvs);
        e->t->ops->control_send(e->t, rank, MESH_EVENT_MESSAGE, ask, sizeof ask);
    }
}

MESH__RARE int mesh__roll_is_over(mesh__engine *e) {
    return e->roll.answers + e->roll.gone >= e->roll.op->group->on.size - 1 || mesh__now(e) >= e->roll.until;
}

/* A roll call before the deadline is over. Who has left had ended what it was in: if all others have called an operation, twice, and it
   still goes on, it is the one who left that is missing. */
MESH__RARE void mesh__roll_end(mesh__engine *e) {
    mesh__op *op = e->roll.op;
    int all = !e->roll.absent && e->roll.answers + e->roll.gone >= op->group->on.size - 1;
    mesh_error why;
    e->roll.op = NULL;
    op->alone = all && e->roll.gone ? op->alone + 1 : 0;
    if (op->alone < 2 || mesh__loss_due(e, op->comm)) return; /* that is told by itself: see mesh__gone_settle */
    mesh__fail(&why, MESH_ERR_PEER, e->roll.first_gone, "rank %d closed its transport while it was needed",
               e->roll.first_gone);
    mesh__op_broken(e, op, MESH_ERR_PEER, &why);
}

MESH__RARE void mesh__roll_heard(mesh__engine *e, const mesh_control *m) {
    mesh__roll *roll = &e->roll;
    const unsigned char *d = m->data;
    int from = m->rank, index = roll->op ? mesh_index_of(&roll->op->group->on, from) : -1;
    uint32_t called = mesh__get32(d + 8);
    mesh__record in;
    if (index < 0 || mesh__get32(d + 4) != roll->id) return;
    if (index < 1024) roll->heard[index / 64] |= UINT64_C(1) << index % 64;
    roll->answers++;
    if (called >= roll->together || called > roll->called) return;
    mesh__record_read(&in, d + 12);
    if (called && mesh__sequence(in.channel) && in.channel >> 32 == roll->op->channel >> 32)
        return; /* it waits for what it has called, as this one does */
    if (called < roll->called) roll->absent = 0;
    roll->called = called;
    if (roll->absent++) return;
    roll->first_absent = from;
    roll->in = in;
}

/* Another rank's roll call: has this one called it too, and what follows in its group? And what is it in? */
MESH__RARE void mesh__roll_answer(mesh__engine *e, const mesh_control *m) {
    const unsigned char *d = m->data;
    int from = m->rank;
    unsigned char here[MESH__HERE_BYTES];
    mesh__record asked;
    uint32_t sends, recvs, called, remembered = mesh__remembered(e);
    mesh__record_read(&asked, d + 16);
    if (mesh__say_closed(e, from, (uint32_t)(asked.channel >> 40)) ||
        mesh__say_failed(e, from, (uint32_t)(asked.channel >> 40)))
        return;
    mesh__compare_calls(e, from, &asked);
    mesh__posted(e, asked.channel, from, &sends, &recvs);
    called = mesh__sequence(asked.channel)
                 ? mesh__called_from(e, asked.channel)
                 : mesh__come_to(sends, mesh__get32(d + 12)) && mesh__come_to(recvs, mesh__get32(d + 8));
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

/* Who closes the comm, or leaves, during a roll call owes no other answer: it had ended what it was in. Returns 1 if its answer was owed. */
MESH__RARE int mesh__roll_excused(mesh__engine *e, int rank) {
    mesh__roll *roll = &e->roll;
    int index = roll->op ? mesh_index_of(&roll->op->group->on, rank) : -1;
    if (index < 0 || index >= 1024 || roll->heard[index / 64] >> index % 64 & 1) return 0;
    roll->heard[index / 64] |= UINT64_C(1) << index % 64;
    return 1;
}

/* "ranks 1, 3 and 5 of 8" for messages. */
MESH__RARE void mesh__put_ranks(mesh__text *t, const int *ranks, int n) {
    int i;
    if (n == 0) mesh__put(t, "bytes that are under way");
    for (i = 0; i < n && i < 16; i++) mesh__put(t, "%s%d", i ? ", " : n > 1 ? "ranks " : "rank ", ranks[i]);
    if (n > 16) mesh__put(t, " and %d more", n - 16);
}

/* What the roll call has shown: "rank 2 does not answer". Who is silent keeps the others from answering well; who answers is believed. walk: the search for
   who keeps the absent, or NULL. Returns the rank to blame, or -1. */
MESH__RARE int mesh__put_roll(mesh__text *t, const mesh__roll *roll, const mesh__walk *walk) {
    const mesh *on = &roll->op->group->on;
    int i, who[16], silent = 0;
    for (i = 0; i < on->size && i < 1024; i++) {
        if (i == roll->op->group->index || roll->heard[i / 64] >> i % 64 & 1) continue;
        if (silent++ < 16) who[silent - 1] = mesh_rank_at(on, i);
    }
    if (silent) {
        mesh__put(t, "; ");
        mesh__put_ranks(t, who, silent);
        mesh__put(t, silent > 1 ? " do not answer (they are stopped, or outside the library)"
                                : " does not answer (it is stopped, or outside the library)");
        return who[0];
    }
    if (roll->lost) {
        mesh__put(t, "; rank %d was lost", roll->first_gone);
        return roll->first_gone;
    }
    if (roll->absent) {
        mesh__put(t, "; rank %d has not called it", roll->first_absent);
        if (roll->in.kind) mesh__put(t, " (it is in ");
        if (roll->in.kind) mesh__put_record(t, &roll->in);
        if (roll->in.kind) mesh__put(t, ")");
        if (roll->absent > 1)
            mesh__put(t, " nor %s %d other%s", roll->absent == 2 ? "has" : "have", roll->absent - 1,
                      roll->absent == 2 ? "" : "s");
        if (!walk || walk->silent < 0) return roll->first_absent;
        mesh__put(t, "; rank %d waits for rank %d, which does not answer (it is stopped, or outside the library)",
                  walk->behind, walk->silent);
        return walk->silent;
    }
    if (roll->gone) {
        mesh__put(t, "; rank %d has closed its transport", roll->first_gone);
        return roll->first_gone;
    }
    mesh__put(t,
              "; every rank has called it: a rank called it only as the deadline came (a longer timeout_ns waits for "
              "it), a rank started operations of several groups in another order, an exchange has its send and "
              "receive in two operations, or a device hangs");
    return -1;
}

/* When this rank calls the roll after a deadline: where many wait, a few first, and then four times as many, for the first to find out
   tells all. */
MESH__PRIVATE int64_t mesh__roll_turn(const mesh__op *op) {
    int64_t turn = op->deadline;
    int most = 16;
    for (; op->group->index >= most; most *= 4) turn += mesh__roll_time(op) + MESH__GRACE_NS;
    return turn;
}

MESH__RARE void mesh__walk_start(mesh__engine *e, mesh__op *op);

/* Who has not called it may wait elsewhere, in a group or a comm that this rank is not in, for one that does not answer: that one is looked for. Returns 1
   while it is. */
MESH__RARE int mesh__roll_chase(mesh__engine *e, mesh__op *op) {
    mesh__roll *roll = &e->roll;
    if (!roll->absent || !roll->in.kind || !(e->t->caps & MESH_CAP_PENDING)) return 0;
    if (roll->answers + roll->gone < op->group->on.size - 1) return 0; /* one of the group is silent */
    if (!roll->chased) {
        roll->chased = 1;
        if (e->walk) e->walk->active = 0;
        mesh__walk_start(e, op);
    }
    return e->walk && e->walk->active && e->walk->silent < 0 && !op->failing;
}

/* The only one that may be missing has closed the comm: its deadline has passed, so that what it sent before is not on its way any more. Returns 1 if it
   is so. */
MESH__RARE int mesh__roll_closed(mesh__engine *e, mesh__op *op) {
    const mesh__roll *roll = &e->roll;
    mesh_error why;
    if (!roll->closed || roll->absent || roll->answers + roll->gone < op->group->on.size - 1) return 0;
    mesh__fail(&why, MESH_ERR_PEER, roll->first_closed, "rank %d has closed this comm while it was needed",
               roll->first_closed);
    mesh__op_broken(e, op, MESH_ERR_PEER, &why);
    return 1;
}

MESH__RARE void mesh__op_timeout(mesh__engine *e, mesh__op *op) {
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
        if (!mesh__roll_is_over(e) || mesh__roll_chase(e, op) || op->failing || mesh__roll_closed(e, op)) return;
    }
    mesh__put_record(&t, asked && e->roll.op ? &mesh__roll_hangs(&e->roll)->record : &op->record);
    t = mesh__text_on(who, sizeof who);
    who[0] = 0;
    if (e->t->caps & MESH_CAP_PENDING) {
        n = mesh__op_pending(e, op, ranks, MESH__WALK_PENDING);
        mesh__put(&t, " waiting for ");
        mesh__put_ranks(&t, ranks, n);
        if (n == 1) blame = ranks[0];
    }
    if (asked && e->roll.op) {
        n = mesh__put_roll(&t, &e->roll, e->roll.chased ? e->walk : NULL);
        if (n >= 0) blame = n;
    }
    if (asked && !(e->t->caps & MESH_CAP_CHECK))
        mesh__put(&t, "; this transport (%s) does not compare what ranks call", e->t->ops->name);
    mesh__comm_broken(op->comm, MESH_ERR_TIMEOUT, blame, "%s: %s: deadline of %l ms passed%s",
                      mesh__impl(op->comm)->name, call, mesh__impl(op->comm)->timeout / 1000000, who);
}

/* ---- // >>the search: a cycle of ranks that wait for each other ---- */

/* `subject` waits on a channel for this rank, having posted so many sends to it and receives from it. Fill in the operation that keeps
   this rank from serving it. Returns 0 when there is none: the bytes are under way, or this rank is not blocked. */
MESH__RARE int mesh__node_of(mesh__engine *e, int subject, uint64_t channel, uint32_t sends, uint32_t recvs,
                             mesh__node *node) {
    uint32_t my_sends, my_recvs;
    int ranks[MESH__WALK_PENDING], i;
    mesh__op *op = NULL;
    mesh__posted(e, channel, subject, &my_sends, &my_recvs);
    if (mesh__sequence(channel) ? my_sends >= recvs && my_recvs >= sends
                                : mesh__come_to(my_sends, recvs) && mesh__come_to(my_recvs, sends))
        return 0;
    for (i = 0; i < e->nops && mesh__sequence(channel); i++)
        if (e->op[i]->state == MESH__ACTIVE && e->op[i]->channel == channel) op = e->op[i];
    if (!op) op = e->waiting;
    if (!op || op->state != MESH__ACTIVE || op->failing) return 0;
    node->rank = e->t->rank;
    node->progress = mesh__sequence(op->channel) ? op->progress : op->serial;
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

/* An answer behind its number: nothing where nobody is waited for. */
MESH__RARE void mesh__node_wire(mesh__wire *w, mesh__node *node) {
    int i;
    mesh__wire_int(w, &node->npending);
    mesh__wire32(w, &node->progress);
    mesh__record_wire(w, &node->record);
    for (i = 0; i < node->npending && i < MESH__WALK_PENDING; i++) {
        mesh__wire_int(w, &node->pending[i].rank);
        mesh__wire32(w, &node->pending[i].sends);
        mesh__wire32(w, &node->pending[i].recvs);
    }
}

/* A question: about whom, who has posted so many sends to and receives from the asked, in which operation. */
typedef struct mesh__ask {
    uint32_t id, sends, recvs;
    int subject;
    mesh__record record;
} mesh__ask;
MESH__RARE void mesh__ask_wire(mesh__wire *w, mesh__ask *a) {
    mesh__wire32(w, &a->id);
    mesh__wire_int(w, &a->subject);
    mesh__wire32(w, &a->sends);
    mesh__wire32(w, &a->recvs);
    mesh__record_wire(w, &a->record);
}

MESH__RARE void mesh__answer(mesh__engine *e, const mesh_control *m) {
    int from = m->rank;
    unsigned char say[MESH_CONTROL_BYTES];
    mesh__wire in = mesh__reading(m->data + 4), out = mesh__writing(say);
    uint32_t kind = MESH__MSG_SAY;
    mesh__ask ask;
    mesh__node node;
    mesh__ask_wire(&in, &ask);
    if (mesh__say_closed(e, from, (uint32_t)(ask.record.channel >> 40)) ||
        mesh__say_failed(e, from, (uint32_t)(ask.record.channel >> 40)))
        return;
    mesh__compare_calls(e, ask.subject, &ask.record);
    memset(&node, 0, sizeof node);
    if (!mesh__node_of(e, ask.subject, ask.record.channel, ask.sends, ask.recvs, &node)) memset(&node, 0, sizeof node);
    mesh__wire32(&out, &kind);
    mesh__wire32(&out, &ask.id);
    mesh__node_wire(&out, &node);
    e->t->ops->control_send(e->t, from, MESH_EVENT_MESSAGE, say, (size_t)(out.at - say));
}

MESH__RARE void mesh__walk_heard(mesh__engine *e, const mesh__node *node);

/* Ask about the edge from `node` to its pending rank k. Our own answer is taken at once. */
MESH__RARE void mesh__walk_ask(mesh__engine *e, const mesh__node *node, int k) {
    mesh__walk *w = e->walk;
    int to = node->pending[k].rank;
    unsigned char ask[MESH__ASK_BYTES];
    uint32_t kind = MESH__MSG_ASK;
    mesh__wire out = mesh__writing(ask);
    mesh__ask question;
    w->id = ++e->walks;
    w->until = mesh__now(e) + (e->roll.op && e->roll.chased ? mesh__roll_time(e->roll.op) : INT64_C(1000000000));
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
    question.id = w->id;
    question.subject = node->rank;
    question.sends = node->pending[k].sends;
    question.recvs = node->pending[k].recvs;
    question.record = node->record;
    mesh__wire32(&out, &kind);
    mesh__ask_wire(&out, &question);
    if (e->t->ops->control_send(e->t, to, MESH_EVENT_MESSAGE, ask, sizeof ask) != MESH_OK) mesh__walk_heard(e, NULL);
}

/* Ask the next question of the search; ends it when there is none left. */
MESH__RARE void mesh__walk_next(mesh__engine *e) {
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

MESH__RARE void mesh__walk_report(mesh__engine *e) {
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
MESH__RARE void mesh__walk_heard(mesh__engine *e, const mesh__node *node) {
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

MESH__RARE void mesh__say_heard(mesh__engine *e, const mesh_control *m) {
    const unsigned char *d = m->data;
    mesh__walk *walk = e->walk;
    mesh__wire w = mesh__reading(d + 8);
    mesh__node node;
    int n = (int)mesh__get32(d + 8);
    if (!walk || !walk->active || mesh__get32(d + 4) != walk->id) return;
    if (n < 0 || n > MESH__WALK_PENDING || m->nbytes < MESH__SAY_HEAD + 12 * (uint32_t)n) return;
    mesh__node_wire(&w, &node);
    node.rank = m->rank;
    node.next = 0;
    mesh__walk_heard(e, n ? &node : NULL);
}

/* Whom the last question went to has not answered it. */
MESH__RARE void mesh__walk_unanswered(mesh__engine *e) {
    mesh__walk *w = e->walk;
    const mesh__node *asker = &w->stack[w->depth - 1];
    if (w->silent < 0 && !w->verifying) w->silent = asker->pending[asker->next - 1].rank, w->behind = asker->rank;
    mesh__walk_heard(e, NULL);
}

/* Begin a search from the operation this rank is blocked in. */
MESH__RARE void mesh__walk_start(mesh__engine *e, mesh__op *op) {
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
    e->walk->silent = -1;
    root = &e->walk->stack[0];
    root->rank = e->t->rank;
    root->progress = mesh__sequence(op->channel) ? op->progress : op->serial;
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

/* ---- // >>blocked ---- */

/* Said when an operation has waited for long, and again after twice as long: a rank that is only slow is no error. */
MESH__RARE void mesh__say_waiting(mesh__engine *e, const mesh__op *op) {
    char text[400];
    int ranks[MESH__WALK_PENDING], n;
    mesh__text t = mesh__text_on(text, sizeof text);
    if (!e->t->log) return;
    mesh__put(&t, "%s: rank %d has waited for %l s in ", mesh__impl(op->comm)->name, e->t->rank,
              op->say_wait / 1000000000);
    mesh__put_record(&t, &op->record);
    if (e->t->caps & MESH_CAP_PENDING) {
        n = mesh__op_pending(e, op, ranks, MESH__WALK_PENDING);
        mesh__put(&t, " for ");
        mesh__put_ranks(&t, ranks, n);
    }
    mesh__put(&t, "; its deadline is %l s", mesh__impl(op->comm)->timeout / 1000000000);
    e->t->log(e->t->log_ctx, 1, text);
}

/* An operation that this rank is blocked in: when it has made no progress for long, the others are asked; at its deadline it fails. Returns when
   to look again. */
MESH__PRIVATE int64_t mesh__stuck(mesh__engine *e, mesh__op *op, int64_t now) {
    int64_t wake;
    if (now >= op->deadline && !op->failing) mesh__op_timeout(e, op);
    if (now >= op->next_ask && !op->failing) {
        mesh__walk_start(e, op);
        if (op->ask_wait < INT64_C(30000000000)) op->ask_wait *= 2;
        op->next_ask = now + op->ask_wait;
    }
    if (op->failing) return now;
    wake = op->deadline < op->next_ask ? op->deadline : op->next_ask;
    if (op->gone_until && op->gone_until < wake) wake = op->gone_until;
    if (now >= op->say) {
        mesh__say_waiting(e, op);
        for (; op->say <= now; op->say_wait *= 2) op->say += op->say_wait;
    }
    if (op->say < wake) wake = op->say;
    return now >= op->deadline ? now + 1000000 : wake; /* past it the roll is called */
}

/* What comms have to say, or to settle, when its time has come. */
MESH__RARE void mesh__settle(mesh__engine *e) {
    int i, left = 0;
    for (i = 0; i < e->ncomms; i++) {
        mesh__comm_impl *impl = mesh__impl(e->comm[i]);
        if (impl->untold.waits) mesh__announce_again(e->comm[i]);
        if (impl->disputing && mesh__now(e) >= impl->dispute_until) mesh__dispute_settle(e->comm[i]);
        left |= impl->untold.waits || impl->disputing;
    }
    e->unsettled = left;
}

/* What time has brought. */
MESH__PRIVATE void mesh__tick(mesh__engine *e) {
    int i;
    for (i = 0; e->ngone && i < e->nops; i++) mesh__op_check_gone(e, e->op[i]);
    if (e->unsettled) mesh__settle(e);
    if (e->walk && e->walk->active && mesh__now(e) >= e->walk->until) mesh__walk_unanswered(e);
    if (e->roll.op && !e->roll.final && mesh__roll_is_over(e)) mesh__roll_end(e);
}

/* When that has something to do next, by `deadline` at the latest. */
MESH__PRIVATE int64_t mesh__tick_at(mesh__engine *e, int64_t deadline) {
    int i;
    for (i = 0; e->unsettled && i < e->ncomms; i++)
        if (mesh__impl(e->comm[i])->disputing && mesh__impl(e->comm[i])->dispute_until < deadline)
            deadline = mesh__impl(e->comm[i])->dispute_until;
    if (e->walk && e->walk->active && e->walk->until < deadline) deadline = e->walk->until;
    return e->next_gone && e->next_gone < deadline ? e->next_gone : deadline;
}
#endif /* MESH_WAITS_IMPLEMENTED */
