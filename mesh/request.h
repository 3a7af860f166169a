/* mesh/request.h - requests: waited for, tested, kept and started again. Part of mesh.h 0.1.0. MIT licence.

   Includes comm.h. Knows no collective.
*/
#if !defined(MESH_REQUEST_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_REQUEST_IMPLEMENTED))
#include "comm.h"
#endif

#ifndef MESH_REQUEST_H
#define MESH_REQUEST_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- requests --------------------------------------------------------------------------------------------------------- */

/* Wait until an operation ends and return its status; consumes the request. STATE: waited for already, or never started.
   On transports with streams (GPUs) it does not block: what the caller puts on its stream from now on comes after the operation, and
   the buffers are the operation's until that stream has come so far. What goes wrong then is told by a later call. */
MESH_API mesh_status mesh_wait(mesh_request r);
/* The same, but blocks on every transport, at most to the operation's deadline. (In a capture nothing runs: it then only orders, as mesh_wait.) */
MESH_API mesh_status mesh_wait_host(mesh_request r);
/* IN_PROGRESS, or as mesh_wait_host. */
MESH_API mesh_status mesh_test(mesh_request r);
/* Wait for all of a list, in whatever order they end; each is consumed, and is none then, but for kept ones. What is none already (all zero),
   and kept ones that rest, are passed over. OK, or the first error in the list's order: the others were waited for all the same. */
MESH_API mesh_status mesh_wait_all(mesh_request *list, int n);
/* Wait until one of a list has ended: that one is consumed, and is none then unless it is kept; *which says which it was, its status is returned. -1,
   and OK: there is nothing to wait for. Where several have ended, each has its turn: the look begins behind the last one found.
   On one transport; what is under way may be in several comms. ARGUMENT: it is not. Cycles are looked for where one is left under way; of several, each
   may free the next, and the deadline ends them. */
MESH_API mesh_status mesh_wait_any(mesh_request *list, int n, int *which);
/* As mesh_wait_host, but IN_PROGRESS when the transport's clock (mesh_now) comes to `until` first: the request lives on. */
MESH_API mesh_status mesh_wait_until(mesh_request r, int64_t until);
/* The library's turn: everything that is under way on the transport moves, until something has happened or the clock comes to `until` (0: at once).
   OK. STATE: another thread is inside, or the transport is not open. */
MESH_API mesh_status mesh_progress(mesh_transport *t, int64_t until);
/* The transport's clock, in ns: what deadlines are on; 0: it is not open. */
MESH_API int64_t mesh_now(mesh_transport *t);
/* For programs that wait in a loop of their own (poll, epoll, libuv): the descriptor that becomes readable when the library has something to do.
   With a progress thread: when that has ended something. It is the transport's, for its life; it is waited for, never read. -1: there is none (the simulator, NCCL, MPI, systems without epoll). */
MESH_API int mesh_fd(mesh_transport *t);
/* Before each such wait, after requests were tested. IN_PROGRESS: there is work now: mesh_progress(t, 0), test, arm again. OK: the descriptor tells;
   *wake is when to call mesh_progress and test at the latest, on the transport's clock (INT64_MAX: no need). See examples/poll_loop.c.
   UNSUPPORTED: no descriptor. STATE. */
MESH_API mesh_status mesh_arm(mesh_transport *t, int64_t *wake);

/* Persistent operations: after any _start, mesh_keep lets the request outlive its waits, with its schedule built and its memory at hand;
   mesh_restart starts the same call again (same buffers and counts; a new place in its group's order, so every rank of the group
   restarts or calls the same), mesh_wait or mesh_test ends each round, mesh_release gives it up, at once or when the round under way
   is waited for. v-form counts and offsets, and a list of many buffers, need not stay alive. STATE: not kept, under way, waited for.
   UNSUPPORTED: mesh_keep of broadcast_object. */
MESH_API mesh_status mesh_keep(mesh_request r);
/* The next _start in this comm is not started: it gives a kept request that rests, its schedule built. Local: nothing is sent, it takes no place in any
   order, and other ranks may start it as they like. What mesh_keep cannot keep is refused. Blocking calls between do not count. STATE. */
MESH_API mesh_status mesh_prepare(mesh_comm *c);
/* Other buffers for a kept request that rests: from its next restart on. What was in place stays so: both are given, and move by as much; what was not may not
   overlap. A NULL leaves that one. Collectives of one buffer each way; send, recv, sendrecv, shift. ARGUMENT, UNSUPPORTED (lists, tensors, any other), STATE: not kept, or
   under way; the comm does not fail. */
MESH_API mesh_status mesh_rebind(mesh_request r, const void *send, void *recv);
MESH_API mesh_status mesh_restart(mesh_request r);
MESH_API mesh_status mesh_release(mesh_request r);

#ifdef __cplusplus
}
#endif
#endif /* MESH_REQUEST_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_REQUEST_IMPLEMENTED)
#define MESH_REQUEST_IMPLEMENTED

/* ---- // >>requests ---- */

MESH__PRIVATE mesh__op *mesh__request_op(mesh_request r) {
    mesh__engine *e;
    if (!r.comm || !r.comm->impl || !r.generation) return NULL;
    e = mesh__impl(r.comm)->engine;
    if (r.slot >= (uint32_t)e->nops || e->op[r.slot]->generation != r.generation || e->op[r.slot]->comm != r.comm ||
        e->op[r.slot]->state == MESH__FREE)
        return NULL;
    return e->op[r.slot];
}

/* Kept, and its last round was waited for: it can be started again, though a stream may still be at it. */
MESH__PRIVATE int mesh__op_rests(const mesh__op *op) { return op->state == MESH__RESTING || op->detached; }

MESH__PRIVATE mesh_status mesh__request_none(mesh_request r, const char *function) {
    if (r.comm && !r.comm->failed)
        mesh__fail(&r.comm->error, MESH_ERR_STATE, -1,
                   "%s: no such request: it was waited for already, or its comm was closed", function);
    return MESH_ERR_STATE;
}

MESH__PRIVATE mesh_status mesh__request_rests(mesh_request r, const char *function) {
    if (!r.comm->failed)
        mesh__fail(&r.comm->error, MESH_ERR_STATE, -1, "%s: this kept request is not started; call mesh_restart first",
                   function);
    return MESH_ERR_STATE;
}

/* The end of a wait: a request is consumed, a kept one rests. */
MESH__PRIVATE mesh_status mesh__request_end(mesh__engine *e, mesh__op *op) {
    mesh_status status = op->status;
    if (op->kept)
        op->state = MESH__RESTING;
    else
        mesh__op_release(e, op);
    return status;
}

MESH__PRIVATE mesh_status mesh__wait_host_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    if (!op) return mesh__request_none(r, "mesh_wait_host");
    if (mesh__op_rests(op)) return mesh__request_rests(r, "mesh_wait_host");
    mesh__op_wait(mesh__impl(r.comm)->engine, op);
    mesh__op_join(mesh__impl(r.comm)->engine, op);
    return mesh__request_end(mesh__impl(r.comm)->engine, op);
}

MESH_API mesh_status mesh_wait_host(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__wait_host_inside(r)); }

MESH__PRIVATE mesh_status mesh__wait_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    mesh__engine *e;
    if (!op) return mesh__request_none(r, "mesh_wait");
    if (mesh__op_rests(op)) return mesh__request_rests(r, "mesh_wait");
    e = mesh__impl(r.comm)->engine;
    if (MESH__HAS(e->t->ops, stream_wait) && op->state == MESH__ACTIVE && op->issued && !op->failing &&
        op->schedule.nsteps && mesh__op_leave(e, op) == MESH_OK)
        return MESH_OK;
    if (op->state == MESH__ACTIVE) mesh__op_wait(e, op);
    mesh__op_join(e, op);
    return mesh__request_end(e, op);
}

MESH_API mesh_status mesh_wait(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__wait_inside(r)); }

/* An operation that nobody is blocked in: its end, or its deadline, is looked for. */
MESH__PRIVATE void mesh__op_look(mesh__engine *e, mesh__op *op, int64_t now) {
    if (op->state != MESH__ACTIVE) return;
    mesh__op_advance(e, op);
    if (op->state == MESH__ACTIVE && !op->failing && now >= op->deadline) mesh__op_timeout(e, op);
    if (op->state == MESH__ACTIVE) mesh__op_advance(e, op);
}

MESH__PRIVATE mesh_status mesh__test_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    mesh__engine *e;
    if (!op) return mesh__request_none(r, "mesh_test");
    if (mesh__op_rests(op)) return mesh__request_rests(r, "mesh_test");
    e = mesh__impl(r.comm)->engine;
    if (op->state == MESH__ACTIVE) {
        mesh__progress(e, 0);
        mesh__poll(e);
        mesh__op_look(e, op, mesh__now(e));
    }
    if (op->state == MESH__ACTIVE) return MESH_IN_PROGRESS;
    mesh__op_join(e, op);
    return mesh__request_end(e, op);
}

MESH_API mesh_status mesh_test(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__test_inside(r)); }

/* A request that has been waited for is none, unless it is kept. */
MESH__PRIVATE void mesh__request_clear(mesh_request *r) {
    if (!mesh__request_op(*r)) memset(r, 0, sizeof *r);
}

MESH__PRIVATE mesh_status mesh__wait_one_inside(mesh_request *r) {
    mesh__op *op = mesh__request_op(*r);
    mesh_status status = op && mesh__op_rests(op) ? MESH_OK : mesh__wait_inside(*r);
    mesh__request_clear(r);
    return status;
}

MESH__PRIVATE mesh_status mesh__wait_one(mesh_request *r) {
    MESH__ALONE(r->comm, "wait_all", mesh__wait_one_inside(r));
}

MESH_API mesh_status mesh_wait_all(mesh_request *list, int n) {
    mesh_status status = MESH_OK;
    int i;
    if (n < 0 || (n && !list)) return MESH_ERR_ARGUMENT;
    for (i = 0; i < n; i++) {
        mesh_status ended = list[i].generation ? mesh__wait_one(&list[i]) : MESH_OK;
        if (status == MESH_OK) status = ended;
    }
    return status;
}

/* When to look at it again, at the latest. */
MESH__PRIVATE int64_t mesh__op_wake(const mesh__op *op, int64_t now, int64_t until) {
    int64_t wake = op->failing || now >= op->deadline ? now + 1000000 : op->deadline;
    return wake < until ? wake : until;
}

/* Has one of a list ended? Looked at from behind the last that had, so that none waits for ever behind others that come again and again.
   IN_PROGRESS: some are under way, and none has; OK and -1: none is under way. */
MESH__PRIVATE mesh_status mesh__any_ended(mesh__engine *e, mesh_request *list, int n, int *which) {
    int k, i = e->any < n ? e->any : 0, active = 0;
    for (k = 0; k < n; k++, i = i + 1 < n ? i + 1 : 0) {
        mesh__op *op = mesh__request_op(list[i]);
        mesh_status status;
        if (!list[i].generation || (op && mesh__op_rests(op))) continue;
        *which = i;
        if (op && e != mesh__impl(list[i].comm)->engine)
            return mesh__fail(mesh__says(list[i].comm), MESH_ERR_ARGUMENT, -1,
                              "mesh_wait_any: request %d is on another transport than others of the list", i);
        if (op && op->state == MESH__ACTIVE) {
            active = 1;
            continue;
        }
        e->any = i + 1;
        if (op) mesh__op_join(e, op);
        status = op ? mesh__request_end(e, op) : mesh__request_none(list[i], "mesh_wait_any");
        mesh__request_clear(&list[i]);
        return status;
    }
    *which = -1;
    return active ? MESH_IN_PROGRESS : MESH_OK;
}

/* What a poll does not see to: tickets of the transport's, and deadlines. Returns when to look again; 0: one has ended. */
MESH__PRIVATE int64_t mesh__any_look(mesh__engine *e, const mesh_request *list, int n) {
    int64_t now = mesh__now(e), until = INT64_MAX;
    int i;
    for (i = 0; i < n; i++) {
        mesh__op *op = mesh__request_op(list[i]);
        if (!op || op->state != MESH__ACTIVE) continue;
        if (op->issued || op->failing || now >= op->deadline) mesh__op_look(e, op, now);
        if (op->state != MESH__ACTIVE) return 0;
        until = mesh__op_wake(op, now, until);
    }
    return until;
}

/* The one of a list that is under way. NULL: none is, or several, each of which may end before what another waits for. */
MESH__PRIVATE mesh__op *mesh__any_sole(const mesh_request *list, int n) {
    mesh__op *sole = NULL;
    int i;
    for (i = 0; i < n; i++) {
        mesh__op *op = mesh__request_op(list[i]);
        if (!op || op->state != MESH__ACTIVE || mesh__op_rests(op)) continue;
        if (sole) return NULL;
        sole = op;
    }
    return sole;
}

/* What ended long ago costs a look; else all that is under way moves before each is looked at, and only then it blocks. */
MESH__PRIVATE mesh_status mesh__wait_any_inside(mesh_request *list, int n, int first, int *which) {
    mesh__op *op = mesh__request_op(list[first]);
    mesh__engine *e;
    mesh_status status;
    int round;
    if (!op) {
        *which = first;
        status = mesh__request_none(list[first], "mesh_wait_any");
        mesh__request_clear(&list[first]);
        return status;
    }
    e = mesh__impl(list[first].comm)->engine;
    for (round = 0; (status = mesh__any_ended(e, list, n, which)) == MESH_IN_PROGRESS; round++) {
        op = round % 2 ? mesh__any_sole(list, n) : NULL;
        if (op) { /* as in mesh_wait: who waits for whom is asked too */
            mesh__op_wait(e, op);
            continue;
        }
        mesh__progress(e, round % 2 ? mesh__any_look(e, list, n) : 0);
        mesh__poll(e);
    }
    return status;
}
MESH_API mesh_status mesh_wait_any(mesh_request *list, int n, int *which) {
    int i, none;
    if (!which) which = &none;
    *which = -1;
    if (n < 0 || (n && !list)) return MESH_ERR_ARGUMENT;
    for (i = 0; i < n && !list[i].generation; i++) {}
    if (i >= n) return MESH_OK;
    MESH__ALONE(list[i].comm, MESH__CALLER, mesh__wait_any_inside(list, n, i, which));
}

MESH__PRIVATE mesh_status mesh__wait_until_inside(mesh_request r, int64_t until) {
    mesh__op *op = mesh__request_op(r);
    mesh__engine *e;
    if (!op) return mesh__request_none(r, "mesh_wait_until");
    if (mesh__op_rests(op)) return mesh__request_rests(r, "mesh_wait_until");
    e = mesh__impl(r.comm)->engine;
    mesh__op_wait_until(e, op, until);
    if (op->state == MESH__ACTIVE) return MESH_IN_PROGRESS;
    mesh__op_join(e, op);
    return mesh__request_end(e, op);
}
MESH_API mesh_status mesh_wait_until(mesh_request r, int64_t until) {
    MESH__ALONE(r.comm, MESH__CALLER, mesh__wait_until_inside(r, until));
}

MESH_API mesh_status mesh_progress(mesh_transport *t, int64_t until) {
    mesh_status status = t ? mesh__enter_open(t, NULL, "progress") : MESH_ERR_ARGUMENT;
    mesh__engine *e;
    if (status != MESH_OK) return status;
    e = (mesh__engine *)t->engine;
    if (e) {
        mesh__poll(e);
        mesh__progress(e, until);
        mesh__poll(e);
    } else {
        t->ops->progress(t, until);
    }
    mesh__leave(t);
    return MESH_OK;
}

MESH_API int64_t mesh_now(mesh_transport *t) { return t && !mesh__is_shut(t) ? t->ops->now(t) : 0; }

MESH_API int mesh_fd(mesh_transport *t) { return t && !mesh__is_shut(t) && MESH__HAS(t->ops, fd) ? t->ops->fd(t) : -1; }

/* When time brings something, by `wake` at the latest. */
MESH__PRIVATE int64_t mesh__wake_at(mesh__engine *e, int64_t wake) {
    int64_t now = mesh__now(e);
    int i;
    wake = mesh__tick_at(e, wake);
    for (i = 0; i < e->nops; i++) {
        const mesh__op *op = e->op[i];
        if (op->state != MESH__ACTIVE) continue;
        wake = mesh__op_wake(op, now, wake);
        if (op->gone_until && op->gone_until < wake) wake = op->gone_until;
    }
    return wake;
}

MESH_API mesh_status mesh_arm(mesh_transport *t, int64_t *wake) {
    mesh_status status = t ? mesh__enter_open(t, NULL, "arm") : MESH_ERR_ARGUMENT;
    mesh__engine *e;
    int64_t at = INT64_MAX;
    if (status != MESH_OK) return status;
    e = (mesh__engine *)t->engine;
    status = MESH_ERR_UNSUPPORTED;
    if (MESH__HAS(t->ops, arm)) {
        if (e) mesh__poll(e);
        status = t->ops->arm(t, &at);
        if (e) at = mesh__wake_at(e, at);
    }
    if (wake) *wake = at;
    mesh__leave(t);
    return status;
}

MESH__PRIVATE mesh_status mesh__keep_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    if (!op) return mesh__request_none(r, "mesh_keep");
    if (!mesh__op_is_fixed(op)) {
        mesh__fail(mesh__says(r.comm), MESH_ERR_UNSUPPORTED, -1, "mesh_keep: %s has no schedule that could be kept",
                   mesh__call_name(op->schedule.call.kind));
        return MESH_ERR_UNSUPPORTED;
    }
    op->kept = 1;
    return MESH_OK;
}

MESH_API mesh_status mesh_keep(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__keep_inside(r)); }

MESH__PRIVATE mesh_status mesh__prepare_inside(mesh_comm *c) {
    if (!c || !c->impl) return mesh__comm_closed(c, "mesh_prepare");
    if (c->failed) return (mesh_status)c->error.status;
    mesh__impl(c)->preparing = 1;
    return MESH_OK;
}

MESH_API mesh_status mesh_prepare(mesh_comm *c) { MESH__ALONE(c, MESH__CALLER, mesh__prepare_inside(c)); }

/* Is it memory of the schedule's own? */
MESH__PRIVATE int mesh__is_scratch(const mesh__schedule *s, const void *p) {
    int k;
    for (k = 0; k < MESH__SCRATCHES; k++)
        if ((uintptr_t)p >= (uintptr_t)s->scratch[k].p &&
            (uintptr_t)p - (uintptr_t)s->scratch[k].p < s->scratch[k].nbytes)
            return 1;
    return 0;
}

/* A buffer that this rank's part in a collective does not touch may be anything, and lie anywhere. */
MESH__PRIVATE void mesh__unused_forget(mesh__schedule *s) {
    if (!mesh__gives(s, s->call.kind)) s->call.send = NULL;
    if (!mesh__takes(s, s->call.kind)) s->call.recv = NULL;
    if (!s->call.send || !s->call.recv) s->call.in_place = 0; /* the one that is left lies as it likes */
}

/* How far a pointer of a schedule moves: with the buffer that begins nearest before it. */
MESH__PRIVATE void *mesh__rebound(const mesh__schedule *s, const void *p, intptr_t send_by, intptr_t recv_by) {
    uintptr_t at = (uintptr_t)p, send = (uintptr_t)s->call.send, recv = (uintptr_t)s->call.recv;
    if (!p || mesh__is_scratch(s, p)) return (void *)at;
    return (void *)(at + (uintptr_t)(at >= send && (at < recv || send >= recv) ? send_by : recv_by));
}

/* How far memory of a schedule reaches from the buffer that begins nearest before it. */
MESH__PRIVATE void mesh__reaches(const mesh__schedule *s, const void *p, size_t nbytes, size_t reach[2]) {
    uintptr_t at = (uintptr_t)p, send = (uintptr_t)s->call.send, recv = (uintptr_t)s->call.recv;
    int received = !(at >= send && (at < recv || send >= recv));
    if (!p || !nbytes || mesh__is_scratch(s, p)) return; /* what has no bytes may stand anywhere */
    nbytes += at - (received ? recv : send);
    if (nbytes > reach[received]) reach[received] = nbytes;
}

/* Bytes from the beginning of what a collective sends, and of what it receives, that it may touch. */
MESH__PRIVATE void mesh__reach(const mesh__schedule *s, const mesh__group *g, size_t reach[2]) {
    int kind = s->call.kind, rooted = mesh__call_is(kind, MESH_ROOTED), away = rooted && g->index != s->call.root, i;
    size_t one = s->call.count * s->call.elem_bytes, all = one * (size_t)g->on.size;
    reach[0] = reach[1] = 0;
    if (!mesh__call_is(kind, MESH_BY_COUNTS)) {
        reach[0] = mesh__scatters(kind) || kind == MESH_CALL_ALL_TO_ALL ? all : one;
        reach[1] = mesh__gathers(kind) || kind == MESH_CALL_ALL_TO_ALL ? all : one;
        if (away) reach[kind == MESH_CALL_REDUCE || kind == MESH_CALL_GATHER] = 0;
        return;
    }
    for (i = 0; i < s->nxfers; i++) mesh__reaches(s, s->xfer[i].base, (size_t)s->xfer[i].nbytes, reach);
    for (i = 0; i < s->nsteps; i++) {
        const mesh__step *step = &s->step[i];
        size_t nbytes = step->as.on.n;
        if (step->kind != MESH__REDUCE && step->kind != MESH__COPY && step->kind != MESH__DIVIDE &&
            step->kind != MESH__SWAP)
            continue;
        if (step->kind == MESH__REDUCE || step->kind == MESH__DIVIDE) nbytes *= s->elem_bytes;
        mesh__reaches(s, step->as.on.dst, nbytes, reach);
        mesh__reaches(s, step->as.on.src, nbytes, reach);
    }
}

MESH__PRIVATE mesh_status mesh__rebind_overlaps(mesh_request r, int kind) {
    return mesh__fail(mesh__says(r.comm), MESH_ERR_ARGUMENT, -1,
                      "mesh_rebind: the new send and recv overlap, and %s was not made in place; start another",
                      mesh__call_name(kind));
}

/* Point to point: what is sent, and what is received. 0: they would overlap, and nothing has changed. */
MESH__PRIVATE int mesh__rebind_p2p(mesh__schedule *s, const void *send, void *recv) {
    const void *at[2] = {NULL, NULL};
    size_t nbytes[2] = {0, 0};
    int i;
    for (i = 0; i < s->nxfers && !s->call.in_place; i++) {
        int received = s->xfer[i].direction != MESH_SEND;
        const void *to = received ? recv : send;
        at[received] = to ? to : s->xfer[i].base;
        nbytes[received] = (size_t)s->xfer[i].nbytes;
    }
    if (!s->call.in_place && mesh__overlap(at[0], nbytes[0], at[1], nbytes[1])) return 0;
    for (i = 0; i < s->nxfers; i++) {
        mesh_xfer *x = &s->xfer[i];
        void *to = x->direction == MESH_SEND ? (void *)(uintptr_t)send : recv;
        if (to && !mesh__is_scratch(s, x->base)) x->base = to;
    }
    for (i = 0; i < s->nsteps; i++) /* in place it is copied first */
        if (s->step[i].kind == MESH__COPY && send) s->step[i].as.on.src = send;
    return 1;
}

MESH__PRIVATE void mesh__rebind(mesh__schedule *s, intptr_t send_by, intptr_t recv_by) {
    int i;
    for (i = 0; i < s->nxfers; i++) s->xfer[i].base = mesh__rebound(s, s->xfer[i].base, send_by, recv_by);
    for (i = 0; i < s->nsteps; i++) {
        mesh__step *step = &s->step[i];
        if (step->kind != MESH__REDUCE && step->kind != MESH__COPY && step->kind != MESH__DIVIDE &&
            step->kind != MESH__SWAP)
            continue;
        step->as.on.dst = mesh__rebound(s, step->as.on.dst, send_by, recv_by);
        step->as.on.src = mesh__rebound(s, step->as.on.src, send_by, recv_by);
    }
    for (i = -1; i < s->nnative; i++) {
        mesh_call *call = i < 0 ? &s->call : &s->native[i];
        if (call->send) call->send = (const void *)((uintptr_t)call->send + (uintptr_t)send_by);
        if (call->recv) call->recv = (void *)((uintptr_t)call->recv + (uintptr_t)recv_by);
    }
}

MESH__RARE mesh_status mesh__rebind_apart(mesh_request r, int kind) {
    return mesh__fail(mesh__says(r.comm), MESH_ERR_ARGUMENT, -1,
                      "mesh_rebind: %s is in place; give buffers that lie to each other as before",
                      mesh__call_name(kind));
}

MESH__PRIVATE mesh_status mesh__rebind_inside(mesh_request r, const void *send, void *recv) {
    mesh__op *op = mesh__request_op(r);
    mesh__schedule *s;
    intptr_t send_by, recv_by;
    size_t reach[2];
    int kind;
    if (!op) return mesh__request_none(r, "mesh_rebind");
    if (op->kept && op->detached) mesh__op_recall(mesh__impl(r.comm)->engine, op);
    if (!op->kept || op->state != MESH__RESTING)
        return mesh__fail(mesh__says(r.comm), MESH_ERR_STATE, -1, "mesh_rebind: the request is %s",
                          op->kept ? "under way; wait for it first"
                                   : "not kept; call mesh_keep before it is waited for");
    s = &op->schedule;
    kind = s->call.kind;
    if (kind == MESH_CALL_SEND || kind == MESH_CALL_RECV || kind == MESH_CALL_SENDRECV || kind == MESH_CALL_SHIFT) {
        if (s->call.in_place && send != recv) return mesh__rebind_apart(r, kind);
        return mesh__rebind_p2p(s, send, recv) ? MESH_OK : mesh__rebind_overlaps(r, kind);
    }
    if (mesh__call_is(kind, MESH_P2P) || kind == MESH_CALL_REDISTRIBUTE || kind == MESH_CALL_BARRIER ||
        mesh__single_kind(kind) != kind)
        return mesh__fail(mesh__says(r.comm), MESH_ERR_UNSUPPORTED, -1,
                          "mesh_rebind: %s has not one buffer each way; start another", mesh__call_name(kind));
    mesh__unused_forget(s);
    send_by = send && s->call.send ? (intptr_t)((uintptr_t)send - (uintptr_t)s->call.send) : 0;
    recv_by = recv && s->call.recv ? (intptr_t)((uintptr_t)recv - (uintptr_t)s->call.recv) : 0;
    if (s->call.in_place && send_by != recv_by) return mesh__rebind_apart(r, kind);
    mesh__reach(s, op->group, reach);
    if (!s->call.in_place && mesh__overlap((const void *)((uintptr_t)s->call.send + (uintptr_t)send_by), reach[0],
                                           (const void *)((uintptr_t)s->call.recv + (uintptr_t)recv_by), reach[1]))
        return mesh__rebind_overlaps(r, kind);
    mesh__rebind(s, send_by, recv_by);
    return MESH_OK;
}

MESH_API mesh_status mesh_rebind(mesh_request r, const void *send, void *recv) {
    MESH__ALONE(r.comm, MESH__CALLER, mesh__rebind_inside(r, send, recv));
}

MESH__PRIVATE mesh_status mesh__restart_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    mesh_comm *c = r.comm;
    mesh__engine *e;
    mesh_status status;
    int preparing;
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
    preparing = mesh__impl(c)->preparing;
    mesh__impl(c)->preparing = 0;
    mesh__op_identify(e, op, c, op->group);
    status = mesh__call_launch(c, op, &r);
    mesh__impl(c)->preparing = preparing;
    return status;
}

MESH_API mesh_status mesh_restart(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__restart_inside(r)); }

MESH__PRIVATE mesh_status mesh__release_inside(mesh_request r) {
    mesh__op *op = mesh__request_op(r);
    if (!op) return mesh__request_none(r, "mesh_release");
    if (!op->kept)
        return mesh__fail(mesh__says(r.comm), MESH_ERR_STATE, -1, "mesh_release: the request is not kept; wait for it");
    op->kept = 0;
    if (op->detached && ++op->generation == 0) op->generation = 1; /* freed when it ends */
    if (op->state == MESH__RESTING) mesh__op_release(mesh__impl(r.comm)->engine, op);
    return MESH_OK;
}

MESH_API mesh_status mesh_release(mesh_request r) { MESH__ALONE(r.comm, MESH__CALLER, mesh__release_inside(r)); }
#endif /* MESH_REQUEST_IMPLEMENTED */
