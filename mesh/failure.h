/* mesh/failure.h - what becomes of a comm when something goes wrong: it fails, is announced, is disputed; ranks that are gone. Part of mesh.h 0.1.0. MIT licence.

   Includes engine.h.
*/
#if !defined(MESH_FAILURE_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_FAILURE_IMPLEMENTED))
#include "engine.h"
#define MESH_FAILURE_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_FAILURE_IMPLEMENTED)
#define MESH_FAILURE_IMPLEMENTED

enum {
    MESH__TELL_NS = 500000000,  /* for an announcement to be on its way, at most */
    MESH__CLOSE_NS = 1000000000 /* for tickets to end that were canceled */
};

enum { MESH__ABORT_PLAIN, MESH__ABORT_DISPUTE, MESH__ABORT_CLOSED /* believed only where it explains a wait */ };

enum { MESH__ABORT_HEAD = 16 + 2 * MESH__RECORD_BYTES }; /* the call in dispute, the one before it */

MESH__RARE const char *mesh__gone_how(const mesh__gone *g) {
    if (g->kind == MESH_EVENT_LOST) return "was lost";
    return g->why && *g->why ? "closed its transport or could not be reached" : "closed its transport";
}

MESH__RARE const mesh__record *mesh__record_of(mesh__engine *e, uint64_t channel) {
    uint32_t i, n = mesh__remembered(e);
    for (i = 1; i <= n; i++) {
        mesh__history *h = &e->ring[(e->ring_count - i) % MESH__RING];
        if (h->record.channel == channel) return &h->record;
    }
    return NULL;
}

/* The collective called before in the same group; NULL: none, or forgotten. */
MESH__RARE const mesh__record *mesh__record_before(mesh__engine *e, const mesh__record *r) {
    return mesh__sequence(r->channel) > 1 ? mesh__record_of(e, r->channel - 1) : NULL;
}

/* Why a comm fails, as a message. Returns its length: the text goes as far as a control message reaches. */
MESH__RARE size_t mesh__abort_write(unsigned char *data, mesh_comm *c, int flavour, const mesh__record *record) {
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

/* The words of such a message. */
MESH__RARE void mesh__abort_text(char text[MESH_ERROR_BYTES], const unsigned char *data, uint32_t nbytes) {
    uint32_t length = nbytes - MESH__ABORT_HEAD;
    if (length > MESH_ERROR_BYTES - 1) length = MESH_ERROR_BYTES - 1;
    memcpy(text, data + MESH__ABORT_HEAD, length);
    text[length] = 0;
}

/* Send it to every other rank. Returns 0 if the transport had no memory for one of them. */
MESH__RARE int mesh__abort_send(mesh_comm *c, int flavour, const mesh__record *record) {
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
MESH__RARE void mesh__announce(mesh_comm *c, int flavour, const mesh__record *record) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__engine *e = impl->engine;
    int64_t until = mesh__now(e) + MESH__TELL_NS;
    int told = mesh__abort_send(c, flavour, record);
    while (!told && mesh__now(e) < until) { /* memory may come back */
        e->t->ops->progress(e->t, mesh__now(e) + 1000000);
        told = mesh__abort_send(c, flavour, record);
    }
    impl->untold.waits = !told;
    e->unsettled |= !told;
    impl->untold.flavour = flavour;
    impl->untold.has_record = record != NULL;
    if (record) impl->untold.record = *record;
    if (MESH__HAS(e->t->ops, control_flush)) e->t->ops->control_flush(e->t, until);
}

/* Say to one rank what it waits for. Without memory again, for a while: that may come back. */
MESH__RARE mesh_status mesh__say_surely(mesh__engine *e, int rank, const void *data, size_t nbytes) {
    int64_t until = mesh__now(e) + MESH__TELL_NS;
    mesh_status status;
    while ((status = e->t->ops->control_send(e->t, rank, MESH_EVENT_MESSAGE, data, nbytes)) == MESH_ERR_MEMORY &&
           mesh__now(e) < until)
        e->t->ops->progress(e->t, mesh__now(e) + 1000000);
    return status;
}

/* What could not be said for want of memory is said again: who has heard it does not mind. */
MESH__RARE void mesh__announce_again(mesh_comm *c) {
    mesh__comm_impl *impl = mesh__impl(c);
    if (impl->untold.waits &&
        mesh__abort_send(c, impl->untold.flavour, impl->untold.has_record ? &impl->untold.record : NULL))
        impl->untold.waits = 0;
}

/* Without a way to cancel a ticket, all of a comm ends at once. */
MESH__RARE void mesh__groups_abort(mesh_comm *c) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh_transport *t = impl->engine->t;
    int i;
    if (t->caps & MESH_CAP_CANCEL || !MESH__HAS(t->ops, group_abort)) return;
    for (i = 0; i < impl->ngroups; i++)
        if (impl->group[i]->handle) t->ops->group_abort(t, impl->group[i]->handle, c->error.text);
}

MESH__RARE void mesh__log_history(mesh_comm *c) {
    mesh__engine *e = mesh__impl(c)->engine;
    char text[8192];
    if (!e->t->log) return;
    e->t->log(e->t->log_ctx, 0, c->error.text);
    mesh__history_put(e, text, sizeof text);
    e->t->log(e->t->log_ctx, 2, text);
}

/* The comm fails with what stands in c->error; the first cause wins (callers check c->failed). */
MESH__RARE void mesh__comm_fail(mesh_comm *c) {
    mesh__engine *e = mesh__impl(c)->engine;
    int i;
    c->failed = 1;
    e->failed = 1;
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
MESH__RARE mesh_status mesh__comm_broken(mesh_comm *c, mesh_status status, int rank, const char *format, ...) {
    va_list args;
    if (c->failed) return (mesh_status)c->error.status;
    va_start(args, format);
    mesh__vfail(&c->error, status, rank, format, args);
    va_end(args);
    mesh__comm_fail(c);
    mesh__announce(c, MESH__ABORT_PLAIN, NULL);
    return status;
}

/* A call that is made of others ends with `status`: what one of those has told then begins with its name. failed: the comm had failed before. */
MESH__PRIVATE mesh_status mesh__composed(mesh_comm *c, const char *name, int failed, mesh_status status) {
    char was[MESH_ERROR_BYTES], whole[64];
    mesh__text t = mesh__text_on(whole, sizeof whole);
    if (!c || status == MESH_OK || failed || c->error.status != (int)status) return status;
    mesh__put(&t, "mesh_%s", name);
    if (strstr(c->error.text, whole)) return status;
    memcpy(was, c->error.text, sizeof was);
    return mesh__fail(&c->error, status, c->error.rank, "%s: %s", whole, was);
}

/* A call that this rank got wrong fails the comm everywhere: the others would wait for it. */
MESH__RARE mesh_status mesh__refuse(mesh_comm *c, mesh_status status, int kind, const char *axes, const char *format,
                                    ...) {
    const char *called = mesh__impl(c)->called;
    va_list args;
    char why[300];
    mesh__text t = mesh__text_on(why, sizeof why);
    va_start(args, format);
    mesh__vput(&t, format, args);
    va_end(args);
    return mesh__comm_broken(c, status, c->transport->rank, "mesh_%s(\"%s\"): %s",
                             called ? called : mesh__call_name(kind), axes ? axes : "(all axes)", why);
}

/* ---- // >>disagreement: name both calls. Each side of it announces its own call; a rank that has two different ones can tell. */

MESH__RARE void mesh__dispute_settle(mesh_comm *c) {
    mesh__comm_impl *impl = mesh__impl(c);
    char calls[360];
    mesh__text t = mesh__text_on(calls, sizeof calls);
    int i, message = mesh__call_is(impl->dispute[0].kind, MESH_P2P); /* its two ends are two calls */
    for (i = 0; i < impl->dispute_ranks; i++) {
        mesh__put(&t, "%srank %d calls ", i ? ", " : "", impl->dispute_rank[i]);
        mesh__put_record(&t, &impl->dispute[i]);
    }
    if (impl->dispute_ranks < 2) mesh__put(&t, "%s%s", t.len ? "; " : "", impl->dispute_why.text);
    mesh__fail(&c->error, MESH_ERR_MISMATCH, impl->dispute_ranks == 2 ? impl->dispute_rank[1] : impl->dispute_why.rank,
               "%s: ranks disagree: %s; %s", impl->name, calls,
               message ? "give a message one count and dtype at both ends, and the v-form at both or at neither"
                       : "call the same on every rank of the group");
    mesh__comm_fail(c);
}

/* Do two ranks call in the same group? All groups along the same axes share their channels. */
MESH__RARE int mesh__same_group(const mesh_comm *c, uint64_t channel, int a, int b) {
    const mesh__comm_impl *impl = mesh__impl(c);
    int k = (int)(channel >> 32 & 255), group = k < impl->ngroups ? mesh_group_of(&c->on, impl->group[k]->axes, a) : -1;
    return group >= 0 && group == mesh_group_of(&c->on, impl->group[k]->axes, b);
}

/* before: the call before r, or NULL. Where the calls are the same, the ones before them may be what differs. */
MESH__RARE void mesh__dispute_add(mesh_comm *c, int rank, const mesh__record *r, const mesh__record *before) {
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
MESH__RARE void mesh__dispute_open(mesh_comm *c, const mesh__record *mine, const mesh_error *why) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__engine *e = impl->engine;
    int i;
    if (c->failed || impl->disputing) return;
    impl->disputing = e->unsettled = 1;
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

/* A ticket ended badly, or a post was refused. */
MESH__RARE void mesh__op_broken(mesh__engine *e, mesh__op *op, mesh_status status, const mesh_error *why) {
    mesh_comm *c = op->comm;
    if (op->failing) return;
    if (mesh__impl(c)->disputing)
        status = MESH_ERR_MISMATCH; /* started since; what went wrong with it follows from that */
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

/* ---- // >>ranks that are gone ---- */

/* Comms of ranks that were lost fail, when nobody has told a better cause by then. */
MESH__RARE void mesh__gone_settle(mesh__engine *e) {
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

/* A rank closed its transport in good order: only what still needs it fails. Why it left may be on its way from another rank, so that
   is waited for a little. */
MESH__PRIVATE void mesh__op_check_gone(mesh__engine *e, mesh__op *op) {
    int ranks[MESH__WALK_PENDING], n, i, k;
    if (op->state != MESH__ACTIVE || op->failing || op->stalled || op->gone_seen == e->ngone) return;
    for (i = op->schedule.nxfers - 1; i >= 0; i--) { /* does it have to do with one of them at all? */
        for (k = 0; k < e->ngone && e->gone[k].rank != op->schedule.xfer[i].rank; k++) {}
        if (k < e->ngone) break;
    }
    if (i < 0 && !mesh__op_is_call(op) && !op->schedule.extend) {
        op->gone_seen = e->ngone;
        return;
    }
    n = mesh__op_pending(e, op, ranks, MESH__WALK_PENDING);
    for (i = 0; i < n; i++)
        for (k = 0; k < e->ngone; k++)
            if (e->gone[k].rank == ranks[i]) {
                mesh_error why;
                if (!op->gone_until) op->gone_until = mesh__now(e) + MESH__GRACE_NS;
                if (mesh__now(e) < op->gone_until || mesh__loss_due(e, op->comm)) return;
                mesh__fail(&why, MESH_ERR_PEER, ranks[i], "rank %d %s while it was needed%s%s", ranks[i],
                           mesh__gone_how(&e->gone[k]), e->gone[k].why ? ": " : "", mesh__or_empty(e->gone[k].why));
                mesh__op_broken(e, op, MESH_ERR_PEER, &why);
                return;
            }
    op->gone_until = 0;
}

/* The transport can go no further, or had no memory for what came: every comm fails. */
MESH__PRIVATE void mesh__halted(mesh__engine *e, mesh_status status) {
    int i;
    for (i = 0; i < e->ncomms; i++) {
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
#endif /* MESH_FAILURE_IMPLEMENTED */
