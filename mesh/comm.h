/* mesh/comm.h - comms and groups: opened, asked, closed. Part of mesh.h 0.1.0. MIT licence.

   Includes control.h. Knows no collective.

DO THIS
    Nothing: mesh_collectives.h includes it, and says what a comm, a group, a request and an error are.
*/
#if !defined(MESH_COMM_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_COMM_IMPLEMENTED))
#include "control.h"
#endif

#ifndef MESH_COMM_H
#define MESH_COMM_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- comms ---- */

typedef struct mesh_comm_desc {
    const char *groups; /* lists of several axes that will be used, "dp,cp;dp,tp"; NULL: none */
    const char *name;   /* for messages; NULL: "comm" */
    int64_t timeout_ns; /* deadline of every operation, from its start; 0: the transport's (MESH_TIMEOUT), else 600 s */
    int64_t ask_ns;     /* after this long without progress a waiter asks the others what they are in; 0: 1 s */
    /* These are the first rank's for all: */
    const mesh_tuning *tuning;     /* which algorithms; NULL: the transport's */
    const mesh_topology *topology; /* what redistributions are planned for; NULL: flat */
    int64_t scratch_cap;           /* bytes a redistribution may use beside its tensors; 0: any */
    void *stream; /* on GPUs, the caller's cudaStream_t; NULL: the default stream. See mesh_comm_stream */
} mesh_comm_desc;

/* Open a comm over a mesh; every rank of the mesh calls it with an equal mesh and description. desc may be NULL. A device table of
   the mesh must stay alive, and *c, which is not moved, until the comm or the transport is closed. ARGUMENT: this rank is not in the
   mesh, the mesh reaches beyond the world, bad groups, a transport that lacks a required member or that another one stands on. MISMATCH: a rank holds
   another mesh or description (named, both shown). TIMEOUT: ranks missing (named). PEER. On error nothing is open. */
MESH_API mesh_status mesh_comm_open(mesh_comm *c, mesh_transport *t, const mesh *m, const mesh_comm_desc *desc,
                                    mesh_error *err);
/* Close it. Operations under way are canceled: their requests end, and the call returns MESH_ERR_STATE and says how many; else OK.
   Inside a capture of the caller's stream what is on it is under way. Closing a comm that failed to open, was closed already or is all zero is OK. */
MESH_API mesh_status mesh_comm_close(mesh_comm *c);
/* Add an op: every rank of the mesh adds the same ones in the same order (nothing is sent; a different elem_bytes shows as MISMATCH when
   used). *op goes where a mesh_op goes, on this comm. At most 64. Host memory only. ARGUMENT, STATE; the comm does not fail. */
MESH_API mesh_status mesh_op_add(mesh_comm *c, const mesh_user_op *user, mesh_op *op);
/* Give the comm up: operations in it end on every rank, with CANCELED, and say which rank has, and why (NULL: nothing more). It is closed as usual. */
MESH_API mesh_status mesh_abort(mesh_comm *c, const char *why);
/* Size of my group along axes, and my index in it; -1: not opened. */
MESH_API int mesh_comm_size(const mesh_comm *c, const char *axes);
MESH_API int mesh_comm_index(const mesh_comm *c, const char *axes);
/* Payload bytes this rank has sent and received in a group since the comm opened; of a transport's own collectives (NCCL), what such a
   call moves at least. STATE (without a text): not opened, or another thread is in the library. */
MESH_API mesh_status mesh_comm_bytes(const mesh_comm *c, const char *axes, uint64_t *sent, uint64_t *received);
/* The last operations of this transport (at most 256), oldest first, a line each. Returns the length of the whole text; 0 where another thread is in the library. */
MESH_API size_t mesh_comm_history(const mesh_comm *c, char *buf, size_t cap);

/* Ranks of the world that are lost or have closed their transport, as far as this rank has heard by now (mesh_progress hears more), in ascending order: as many
   as there is room for. Returns how many there are; -1: t is NULL or not open, or another thread is in the library. Each survivor hears of each, but not at once: who opens a comm of the
   rest (a mesh over a table of them) too early has MISMATCH or PEER, asks again and opens again. */
MESH_API int mesh_lost_ranks(mesh_transport *t, int *ranks, int room);

/* ---- streams, on GPUs ---- */

/* From now on this stream is the caller's, until another is or the comm is closed: it lives so long (cudaStreamPerThread: and one thread makes all calls).
   Operations start after what is on it; the blocking forms run on it. Without streams: nothing. */
MESH_API mesh_status mesh_comm_stream(mesh_comm *c, void *stream);
/* Wait on the host for everything that mesh_wait has left under way in this comm. OK, or why it failed. TIMEOUT, STATE (inside a capture of the stream
   that it is on) do not fail the comm where no operation has. */
MESH_API mesh_status mesh_comm_sync(mesh_comm *c);

/* For transports, first in their close function: closes the comms that are still open and lets go of the transport. STATE: another thread
   is inside the library, a user's op calls, or another transport still stands on this one; nothing is closed. */
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

/* ---- // >>engines ---- */

MESH__RARE mesh_status mesh__transport_check(mesh_transport *t, mesh_error *err) {
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

MESH__PRIVATE mesh__engine *mesh__engine_get(mesh_transport *t) {
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
    t->engine = e;
    return e;
}

/* A block that mesh_alloc gave is no longer. */
MESH__RARE void mesh__memory_free(mesh__engine *e, mesh__memory *m) {
    *m->at = m->next;
    if (m->next) m->next->at = m->at;
    mesh_transport_free(e->t, m->raw);
}

MESH_API int64_t mesh_transport_patience(const mesh_transport *t) {
    const mesh__engine *e = (const mesh__engine *)t->engine;
    int64_t most = INT64_C(30000000000);
    if (e && e->failed) most = MESH__CLOSE_NS;
    return e && e->longest && e->longest < most ? e->longest : most;
}

/* What operations that were given up work on is left to a transport that still writes there. */
MESH__RARE void mesh__retired_leave(mesh_transport *t) {
    mesh__engine *e = (mesh__engine *)t->engine;
    int i;
    for (i = 0; e && i < e->nops; i++)
        if (e->op[i]->state == MESH__RETIRED) memset(&e->op[i]->schedule, 0, sizeof e->op[i]->schedule);
}

MESH_API mesh_status mesh_transport_detach(mesh_transport *t) {
    mesh__engine *e = (mesh__engine *)t->engine;
    mesh_status status;
    int i;
    if (mesh__is_shut(t)) return MESH_OK;
    if ((status = mesh__enter(t, NULL, "transport_detach")) != MESH_OK) return status;
    if (t->inside.lent) {
        if (t->log)
            t->log(t->log_ctx, 0, "a transport is not closed: another one still stands on it; close that first");
        mesh__leave(t);
        return MESH_ERR_STATE;
    }
    if (!e) {
        mesh__leave(t);
        return MESH_OK;
    }
    while (e->ncomms) {
        mesh_comm *last = e->comm[e->ncomms - 1];
        if (last->impl && last->transport == t)
            mesh_comm_close(last);
        else
            e->ncomms--; /* it was opened once more on another transport, or overwritten */
    }
    for (i = 0; i < e->nops; i++) {
        mesh__schedule_free(&e->op[i]->schedule);
        mesh_transport_free(t, e->op[i]->ordinal);
        mesh_transport_free(t, e->op[i]->origin.asked);
        mesh_transport_free(t, e->op[i]);
    }
    mesh__inbox_free(e->t, &e->mail);
    for (i = 0; i < MESH__MEMORIES; i++)
        while (e->memory[i]) mesh__memory_free(e, e->memory[i]);
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

/* ---- // >>groups ---- */

MESH__RARE void mesh__group_free(mesh__engine *e, mesh__group *g) {
    if (!g) return;
    if (MESH__HAS(e->t->ops, group_close) && g->handle) e->t->ops->group_close(e->t, g->handle);
    mesh_transport_free(e->t, (void *)(uintptr_t)g->axes);
    mesh_transport_free(e->t, g->stream);
    mesh_transport_free(e->t, g->host);
    mesh_transport_free(e->t, g->kept.turns);
    mesh_transport_free(e->t, g);
}

/* The names of a list of axes, as messages and records write it: "dp,cp". */
MESH__RARE void mesh__put_axes(mesh__text *t, const mesh *m, const uint8_t *list, int n) {
    int i;
    for (i = 0; i < n; i++) mesh__put(t, "%s%s", i ? "," : "", m->axis[list[i]].name);
}

MESH__PRIVATE mesh__group *mesh__group_called(const mesh__comm_impl *impl, const char *axes) {
    int i;
    for (i = 0; i < impl->ngroups; i++)
        if (mesh__same(impl->group[i]->axes, axes)) return impl->group[i];
    return NULL;
}

MESH__PRIVATE mesh__group *mesh__group_find(const mesh__comm_impl *impl, const char *axes) {
    char text[MESH_MAX_AXES * MESH_NAME_BYTES];
    mesh__text t = mesh__text_on(text, sizeof text);
    uint8_t list[MESH_MAX_AXES];
    mesh__group *g = axes ? mesh__group_called(impl, axes) : impl->group[0];
    int n = g ? -1 : mesh__axes(&impl->group[0]->on, axes, list, "", NULL);
    if (n < 0) return g;
    mesh__put_axes(&t, &impl->group[0]->on, list, n); /* it may be written another way */
    return mesh__group_called(impl, text);
}

/* A list of axes as messages and records write it, in memory of its own; NULL: the error is filled. */
MESH__RARE char *mesh__group_text(const mesh_comm *c, const char *function, const char *axes, size_t length,
                                  mesh_error *err) {
    char *text = (char *)mesh_transport_alloc(c->transport, length + 1);
    mesh__text t = mesh__text_on(text, length + 1);
    uint8_t list[MESH_MAX_AXES];
    int n;
    if (!text) {
        mesh__fail(err, MESH_ERR_MEMORY, -1, "%s: no memory for a group", function);
        return NULL;
    }
    memcpy(text, axes, length);
    text[length] = 0;
    if ((n = mesh__axes(&c->on, text, list, function, err)) < 0) {
        mesh_transport_free(c->transport, text);
        return NULL;
    }
    text[0] = 0;
    mesh__put_axes(&t, &c->on, list, n); /* never longer */
    return text;
}

/* Add a list of axes to the comm's groups. ARGUMENT, MEMORY, or what the transport says. function: whose the errors are. */
MESH__RARE mesh_status mesh__group_add(mesh_comm *c, const char *function, const char *axes, size_t length,
                                       mesh_error *err) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__engine *e = impl->engine;
    mesh__group *g;
    mesh_error why = MESH_ZERO;
    char *text = mesh__group_text(c, function, axes, length, err ? err : &why);
    mesh_status status;
    if (!text) return (mesh_status)(err ? err : &why)->status;
    g = impl->ngroups < MESH__MAX_GROUPS ? (mesh__group *)mesh_transport_alloc(e->t, sizeof *g) : NULL;
    if (!g || !mesh__grow(e->t, (void **)&impl->group, &impl->group_cap, impl->ngroups + 1, sizeof *impl->group)) {
        status = impl->ngroups < MESH__MAX_GROUPS
                     ? mesh__fail(err, MESH_ERR_MEMORY, -1, "%s: no memory for the group \"%s\"", function, text)
                     : mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                  "%s: \"%s\" is one group more than the %d that a comm may have; open another comm",
                                  function, text, MESH__MAX_GROUPS);
        mesh_transport_free(e->t, text);
        mesh_transport_free(e->t, g);
        return status;
    }
    memset(g, 0, sizeof *g);
    g->axes = text;
    mesh__copy_text(g->shown, sizeof g->shown, text);
    if (err) memset(err, 0, sizeof *err), err->rank = -1;
    status = mesh_group_through(&g->on, &c->on, text, e->t->rank, err);
    if (status != MESH_OK) {
        mesh__group_free(e, g);
        return status;
    }
    g->host = mesh__hosts_group(e->t, &impl->hosts, &c->on, &g->on, &g->nhosts, &g->scattered);
    if (g->nhosts < 0) {
        mesh__group_free(e, g);
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "%s: no memory for a group", function);
    }
    g->index = mesh_index_of(&g->on, e->t->rank);
    g->id = c->id << 8 | (uint32_t)impl->ngroups;
    g->fingerprint = mesh_fingerprint(&g->on);
    if (MESH__HAS(e->t->ops, group_open)) {
        status = e->t->ops->group_open(e->t, impl->ngroups ? impl->group[0]->handle : NULL, g->id, &g->on,
                                       mesh_group_of(&c->on, text, e->t->rank), g->index, mesh__now(e) + impl->timeout,
                                       &g->handle, &why);
        if (status != MESH_OK && status != MESH_ERR_UNSUPPORTED) {
            if (why.status != status || !why.text[0])
                mesh__fail(&why, status, -1, "the transport (%s) refused to open a group along \"%s\": %s",
                           e->t->ops->name, text, mesh_status_text(status));
            mesh__fail(err, status, why.rank, "%s: %s", function, why.text);
            mesh__group_free(e, g);
            return status;
        }
    }
    impl->group[impl->ngroups++] = g;
    return MESH_OK;
}

/* ---- // >>opening: every rank says hello to the first one, which compares and welcomes. */

typedef struct mesh__hello {
    uint32_t nonce, last_id;
    uint64_t fingerprint, desc;
    const char *mesh_text; /* inside the mail */
} mesh__hello;

MESH__RARE size_t mesh__hello_write(unsigned char *d, const mesh__engine *e, const mesh *m,
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
MESH__RARE mesh_status mesh__gone_from(mesh__engine *e, const mesh *m, mesh_error *err) {
    int i;
    if (e->halted)
        return mesh__fail(err, MESH_ERR_TRANSPORT, e->t->rank, "mesh_comm_open: the transport (%s) of rank %d failed",
                          e->t->ops->name, e->t->rank);
    for (i = 0; i < e->ngone; i++)
        if (mesh_index_of(m, e->gone[i].rank) >= 0)
            return mesh__fail(err, MESH_ERR_PEER, e->gone[i].rank, "mesh_comm_open: rank %d %s%s%s%s", e->gone[i].rank,
                              e->gone[i].kind == MESH_EVENT_LOST ? "" : "has ", mesh__gone_how(&e->gone[i]),
                              e->gone[i].why ? ": " : "", mesh__or_empty(e->gone[i].why));
    return MESH_OK;
}

/* Answer a hello: with why not, or with the tuning table. */
MESH__RARE void mesh__welcome(mesh__engine *e, mesh__mail *hello, mesh_status status, uint32_t id,
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
    if (!why && terms) mesh__hosts_tell(e, hello->rank, mesh__get32(mesh__mail_data(hello) + 4), &terms->hosts);
    mesh__say_surely(e, hello->rank, welcome, length);
}

/* Ranks that come for a mesh that this rank gave up before. */
MESH__RARE void mesh__turn_away_late(mesh__engine *e, uint64_t opening) {
    mesh__mail **at = &e->mail.first;
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

/* How many ranks of the mesh have left without a hello? Nobody waits for theirs. */
MESH__RARE int mesh__open_gone(const mesh__engine *e, const mesh *m) {
    int i, k, n = 0;
    for (i = 1; i < m->size && e->ngone; i++) {
        mesh__mail *hello = e->mail.first;
        int rank = mesh_rank_at(m, i);
        for (k = 0; k < e->ngone && e->gone[k].rank != rank; k++) {}
        while (hello && !mesh__is_hello(hello, rank)) hello = hello->next;
        n += k < e->ngone && !hello;
    }
    return n;
}

/* A deadline passed: which ranks have not come. */
MESH__RARE mesh_status mesh__open_missing(mesh__engine *e, const mesh *m, int heard, mesh_error *err) {
    int ranks[32], n = 0, i;
    char who[160];
    mesh__text t = mesh__text_on(who, sizeof who);
    for (i = 1; i < m->size; i++) {
        mesh__mail *k = e->mail.first;
        while (k && !mesh__is_hello(k, mesh_rank_at(m, i))) k = k->next;
        if (!k && n < 32) ranks[n++] = mesh_rank_at(m, i);
    }
    mesh__put_ranks(&t, ranks, n);
    return mesh__fail(err, MESH_ERR_TIMEOUT, ranks[0],
                      "mesh_comm_open: %d of %d ranks came; still missing: %s; every rank of the mesh must open it",
                      heard, m->size, who);
}

/* Has the comm that is split failed? Who fails it does not come to open its part. */
MESH__RARE mesh_status mesh__open_parent(const mesh__engine *e, mesh_error *err) {
    if (!e->parent || !e->parent->failed) return MESH_OK;
    return mesh__fail(err, (mesh_status)e->parent->error.status, e->parent->error.rank, "%s", e->parent->error.text);
}

/* Whom this rank was never connected to, it hears nothing of; and who was may be gone too. A message that nobody answers to finds who is dead among those
   that have not come. */
MESH__RARE void mesh__open_knock(mesh__engine *e, const mesh *m) {
    unsigned char ask[MESH__CLOCK_BYTES] = {0};
    int i;
    mesh__put32(ask, MESH__MSG_CLOCK);
    mesh__put32(ask + 4, ~e->clock.asked);
    for (i = 1; i < m->size; i++) {
        mesh__mail *hello = e->mail.first;
        while (hello && !mesh__is_hello(hello, mesh_rank_at(m, i))) hello = hello->next;
        if (!hello) e->t->ops->control_send(e->t, mesh_rank_at(m, i), MESH_EVENT_MESSAGE, ask, sizeof ask);
    }
}

/* How many have come, this rank among them; whether they hold the same, and the greatest id that they know. */
MESH__RARE mesh_status mesh__open_heard(mesh__engine *e, const mesh *m, const unsigned char *mine, int *heard,
                                        uint32_t *id, mesh_error *err) {
    mesh_status status = MESH_OK;
    mesh__mail *k;
    *heard = 1;
    for (k = e->mail.first; k; k = k->next) { /* one hello of each rank at most */
        unsigned char *d = mesh__mail_data(k);
        if (!mesh__is_hello(k, k->rank) || mesh_index_of(m, k->rank) < 1) continue;
        *heard += 1;
        if (mesh__get32(d + 8) > *id) *id = mesh__get32(d + 8);
        if (status == MESH_OK &&
            (mesh__get64(d + 12) != mesh__get64(mine + 12) || mesh__get64(d + 20) != mesh__get64(mine + 20)))
            status = mesh__fail(
                err, MESH_ERR_MISMATCH, k->rank,
                "mesh_comm_open: rank %d holds the mesh \"%s\" (fingerprint %x), rank %d holds \"%s\" (%x)%s; give every rank the same",
                k->rank, (char *)d + 28, mesh__get64(d + 12), e->t->rank, (const char *)mine + 28,
                mesh__get64(mine + 12),
                mesh__get64(d + 12) == mesh__get64(mine + 12) ? ", and other groups in its description" : "");
    }
    return status;
}

/* The first rank's part: wait for every hello, compare, choose the id. */
MESH__RARE mesh_status mesh__open_lead(mesh__engine *e, const mesh *m, const unsigned char *mine, int64_t deadline,
                                       mesh__comm_impl *terms, uint32_t *id, mesh_error *err) {
    mesh_status status = MESH_OK, met;
    mesh__mail **at;
    int heard = 1;
    int64_t knock = mesh__now(e) + INT64_C(1000000000);
    *id = e->last_id;
    for (;;) {
        mesh__poll(e);
        mesh__turn_away_late(e, mesh__get64(mine + 12));
        met = mesh__open_heard(e, m, mine, &heard, id, status == MESH_OK ? err : NULL);
        if (status == MESH_OK) status = met;
        if (status == MESH_OK && e->starved)
            status = mesh__fail(err, MESH_ERR_MEMORY, e->t->rank,
                                "mesh_comm_open: rank %d has no memory for a message of the opening", e->t->rank);
        if (status == MESH_OK) status = mesh__open_parent(e, err);
        if (status == MESH_OK) status = mesh__gone_from(e, m, err);
        if (status != MESH_OK && mesh__now(e) + INT64_C(1000000000) < deadline)
            deadline = mesh__now(e) + INT64_C(1000000000); /* the others are still to be told */
        if (heard + mesh__open_gone(e, m) >= m->size || (status != MESH_OK && (e->halted || mesh__now(e) >= deadline)))
            break;
        if (mesh__now(e) >= deadline) {
            status = mesh__open_missing(e, m, heard, err);
            break;
        }
        if (mesh__now(e) >= knock) mesh__open_knock(e, m), knock = INT64_MAX;
        mesh__progress(e, knock < deadline ? knock : deadline);
    }
    *id += 1;
    if (status == MESH_OK && !mesh__hosts_find(e->t, m, &terms->hosts))
        status = mesh__fail(err, MESH_ERR_MEMORY, e->t->rank, "mesh_comm_open: rank %d has no memory for the opening",
                            e->t->rank);
    if (status == MESH_OK && *id >= 1u << 24)
        status = mesh__fail(err, MESH_ERR_STATE, -1, "mesh_comm_open: all 2^24 comm ids of this job are used up");
    at = &e->mail.first;
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
    e->given_up = status == MESH_ERR_TIMEOUT || (e->parent && e->parent->failed) ? mesh__get64(mine + 12) : 0;
    return status;
}

/* Who shares a host, as the first rank told before it welcomed this one. */
MESH__RARE mesh_status mesh__open_hosts(mesh__engine *e, const mesh *m, int leader, mesh__comm_impl *terms,
                                        mesh_error *err) {
    if (e->starved || !mesh__hosts_heard(e, leader, &terms->hosts))
        return mesh__fail(err, MESH_ERR_MEMORY, e->t->rank,
                          "mesh_comm_open: rank %d has no memory for a message of the opening", e->t->rank);
    if (terms->hosts.nruns && !mesh__hosts_fit(&terms->hosts, m->size))
        return mesh__fail(
            err, MESH_ERR_MISMATCH, leader,
            "mesh_comm_open: rank %d tells hosts of another mesh than \"%s\"; do all ranks run the same program?",
            leader, mesh__show(m).text);
    return MESH_OK;
}

/* Every other rank's part: wait to be welcomed. */
MESH__RARE mesh_status mesh__open_follow(mesh__engine *e, const mesh *m, int leader, int64_t deadline,
                                         mesh__comm_impl *terms, uint32_t *id, mesh_error *err) {
    mesh_status status;
    mesh first;
    mesh_group_through(&first, m, "", leader, NULL);
    for (;;) {
        mesh__mail **at;
        mesh__poll(e);
        for (at = &e->mail.first; *at; at = &(*at)->next) {
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
                return status == MESH_OK ? mesh__open_hosts(e, m, leader, terms, err) : status;
            }
            mesh__mail_drop(e, at); /* the answer to an opening that this rank gave up */
            break;
        }
        if (e->starved)
            return mesh__fail(err, MESH_ERR_MEMORY, e->t->rank,
                              "mesh_comm_open: rank %d has no memory for a message of the opening", e->t->rank);
        if ((status = mesh__open_parent(e, err)) != MESH_OK) return status;
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
MESH__RARE void mesh__clock_compare(mesh__engine *e, const mesh *m, int leader, int64_t deadline) {
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

MESH__RARE mesh_status mesh__open_groups(mesh_comm *c, const mesh_comm_desc *desc, mesh_error *err) {
    char all[MESH_MAX_AXES * MESH_NAME_BYTES];
    mesh__text t = mesh__text_on(all, sizeof all);
    mesh_status status;
    const char *p;
    uint8_t list[MESH_MAX_AXES];
    int i;
    mesh__put_axes(&t, &c->on, list, mesh__axes(&c->on, NULL, list, "", NULL));
    if ((status = mesh__group_add(c, "mesh_comm_open", all, t.len, err)) != MESH_OK) return status;
    for (i = 0; i < c->on.naxes && c->on.naxes > 1; i++)
        if ((status = mesh__group_add(c, "mesh_comm_open", c->on.axis[i].name, strlen(c->on.axis[i].name), err)) !=
            MESH_OK)
            return status;
    for (p = desc->groups; p && *p;) {
        size_t length = 0;
        while (p[length] && p[length] != ';') length++;
        if ((status = mesh__group_add(c, "mesh_comm_open: desc.groups", p, length, err)) != MESH_OK) return status;
        p += length + (p[length] == ';');
    }
    return MESH_OK;
}

MESH__RARE void mesh__unregister(mesh_comm *c, mesh__registration *r) {
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

MESH__RARE void mesh__comm_release(mesh_comm *c) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__engine *e = impl->engine;
    int i;
    while (impl->registered) mesh__unregister(c, impl->registered);
    for (i = 0; i < impl->ngroups; i++) mesh__group_free(e, impl->group[i]);
    for (i = 0; i < impl->ngraphs; i++) e->t->ops->free(e->t, impl->graphs[i]);
    mesh_transport_free(e->t, impl->plans);
    mesh_transport_free(e->t, impl->nonce);
    mesh_transport_free(e->t, impl->hosts.run);
    mesh_transport_free(e->t, impl->graphs);
    mesh_transport_free(e->t, impl->group);
    mesh_transport_free(e->t, impl->table);
    mesh_transport_free(e->t, impl);
    c->impl = NULL;
}

/* What a description says by itself. */
MESH__RARE mesh_status mesh__desc_check(const mesh_comm_desc *desc, const char *function, mesh_error *err) {
    if (desc->timeout_ns < 0 || desc->ask_ns < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: desc.%s is %l; ns, and 0 is as built in", function,
                          desc->timeout_ns < 0 ? "timeout_ns" : "ask_ns",
                          desc->timeout_ns < 0 ? desc->timeout_ns : desc->ask_ns);
    if (desc->tuning && (desc->tuning->nrows < 0 || desc->tuning->nrows > MESH_MAX_TUNING))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: a tuning table of %d rows; at most %d", function,
                          desc->tuning->nrows, (int)MESH_MAX_TUNING);
    if (desc->scratch_cap < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: scratch_cap is %l; 0 means any", function,
                          desc->scratch_cap);
    return desc->topology ? mesh_topology_check(desc->topology, err) : MESH_OK;
}

/* What can be seen to be wrong without another rank. */
MESH__RARE mesh_status mesh__open_check(const mesh_comm *c, mesh_transport *t, const mesh *m,
                                        const mesh_comm_desc *desc, mesh_error *err) {
    const mesh__engine *e = (const mesh__engine *)t->engine;
    mesh_status status = mesh__transport_check(t, err);
    int i;
    if (status != MESH_OK) return status;
    if (t->inside.lent) /* that one listens on it */
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_comm_open: another transport stands on this one (%s); open the comm there",
                          t->ops->name);
    for (i = 0; e && i < e->ncomms; i++)
        if (e->comm[i] == c)
            return mesh__fail(err, MESH_ERR_STATE, -1,
                              "mesh_comm_open: this comm is open already; close it first, or use another");
    if (m->size < 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_comm_open: the mesh has no ranks; make it with mesh_parse, mesh_make or another call");
    if (mesh_index_of(m, t->rank) < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, t->rank,
                          "mesh_comm_open: rank %d is not in the mesh \"%s\"; only its ranks open it", t->rank,
                          mesh__show(m).text);
    for (i = 0; i < m->size; i++)
        if (mesh_rank_at(m, i) >= t->size)
            return mesh__fail(err, MESH_ERR_ARGUMENT, mesh_rank_at(m, i),
                              "mesh_comm_open: the mesh \"%s\" holds rank %d, but the world has %d ranks",
                              mesh__show(m).text, mesh_rank_at(m, i), t->size);
    return mesh__desc_check(desc, "mesh_comm_open", err);
}

/* A comm that is about to open: an engine, and what the description says. MEMORY: nothing is left of it. */
MESH__RARE mesh_status mesh__open_begin(mesh_comm *c, mesh_transport *t, const mesh *m, const mesh_comm_desc *desc,
                                        mesh_error *err) {
    mesh__engine *e = mesh__engine_get(t);
    mesh__comm_impl *impl = e ? (mesh__comm_impl *)mesh_transport_alloc(t, sizeof *impl) : NULL;
    if (!impl) return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_comm_open: no memory");
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
    if (mesh_rank_at(m, 0) == t->rank) { /* what this rank hands out */
        if (desc->tuning || t->tuning) impl->tuning = desc->tuning ? *desc->tuning : *t->tuning;
        if (desc->topology) impl->topology = *desc->topology;
        impl->scratch_cap = desc->scratch_cap;
        impl->nonce = (uint32_t *)mesh_transport_alloc(t, (size_t)m->size * sizeof *impl->nonce);
        if (impl->nonce) memset(impl->nonce, 0, (size_t)m->size * sizeof *impl->nonce);
    }
    if ((mesh_rank_at(m, 0) != t->rank || impl->nonce) &&
        mesh__grow(t, (void **)&e->comm, &e->comm_cap, e->ncomms + 1, sizeof *e->comm))
        return MESH_OK;
    mesh__comm_release(c);
    return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_comm_open: no memory");
}

/* Meet the other ranks: the first of the mesh leads. */
MESH__RARE mesh_status mesh__open_meet(mesh_comm *c, const mesh_comm_desc *desc, uint32_t *id, mesh_error *err) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__engine *e = impl->engine;
    mesh_transport *t = c->transport;
    unsigned char hello[MESH_CONTROL_BYTES];
    int64_t deadline = mesh__now(e) + impl->timeout;
    int leader = mesh_rank_at(&c->on, 0);
    size_t length;
    mesh_status status;
    mesh first;
    e->starved = 0;
    e->opens++;
    if (leader != t->rank) mesh__clock_compare(e, &c->on, leader, deadline);
    length = mesh__hello_write(hello, e, &c->on, desc);
    if (leader == t->rank) return mesh__open_lead(e, &c->on, hello, deadline, impl, id, err);
    if ((status = mesh__say_surely(e, leader, hello, length)) != MESH_OK) {
        mesh_group_through(&first, &c->on, "", leader, NULL);
        mesh__control(e); /* what became of it */
        if (mesh__gone_from(e, &first, err) == MESH_OK)
            mesh__fail(err, status, status == MESH_ERR_PEER ? leader : t->rank,
                       "mesh_comm_open: cannot reach rank %d, the first of the mesh: %s", leader,
                       mesh_status_text(status));
        return status;
    }
    /* a second more: the leader's answer says more */
    status = mesh__open_follow(e, &c->on, leader, deadline + INT64_C(1000000000), impl, id, err);
    mesh__put32(hello, MESH__MSG_FAREWELL);
    if (status != MESH_OK) t->ops->control_send(t, leader, MESH_EVENT_MESSAGE, hello, 8);
    return status;
}

MESH__RARE mesh_status mesh__comm_open_inside(mesh_comm *c, mesh_transport *t, const mesh *m,
                                              const mesh_comm_desc *desc, mesh_error *err) {
    static const mesh_comm_desc none = MESH_ZERO;
    mesh__engine *e;
    mesh__mail **at;
    mesh_error own;
    mesh_status status;
    uint32_t id = 0;
    if (!c || !t || !m)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_comm_open: %s is NULL",
                          !c   ? "the comm"
                          : !t ? "the transport"
                               : "the mesh");
    if (!desc) desc = &none;
    status = mesh__open_check(c, t, m, desc, err);
    if (status != MESH_ERR_STATE) memset(c, 0, sizeof *c); /* not one that is open */
    if (status != MESH_OK || (status = mesh__open_begin(c, t, m, desc, err)) != MESH_OK) return status;
    e = mesh__impl(c)->engine;
    if ((status = mesh__open_meet(c, desc, &id, err ? err : &own)) == MESH_OK) {
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
    for (at = &e->mail.first; *at;) { /* aborts that came before the welcome */
        uint32_t of = mesh__get32(mesh__mail_data(*at));
        if ((*at)->kind != MESH_EVENT_ABORT || of > id) {
            at = &(*at)->next;
            continue;
        }
        if (of == id) mesh__comm_abort_heard(c, (*at)->rank, mesh__mail_data(*at), (*at)->nbytes);
        mesh__mail_drop(e, at);
    }
    return MESH_OK;
}

MESH_API mesh_status mesh_comm_open(mesh_comm *c, mesh_transport *t, const mesh *m, const mesh_comm_desc *desc,
                                    mesh_error *err) {
    mesh_status status = t ? mesh__enter_open(t, err, "comm_open")
                           : mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_comm_open: the transport is NULL");
    if (status != MESH_OK) return status;
    status = mesh__comm_open_inside(c, t, m, desc, err);
    mesh__leave(t);
    return status;
}

/* ---- // >>closing ---- */

/* What was no operation ended because of what has happened on another rank: that is waited for a little, and fails the comm with its cause. */
MESH__RARE void mesh__cause_await(mesh_comm *c, mesh_status status) {
    mesh__engine *e = mesh__impl(c)->engine;
    int64_t until = mesh__now(e) + MESH__GRACE_NS;
    if (status != MESH_ERR_CANCELED && status != MESH_ERR_PEER && status != MESH_ERR_MISMATCH) return;
    while (!c->failed && (mesh__now(e) < until || mesh__impl(c)->disputing || mesh__loss_due(e, c))) {
        mesh__progress(e, mesh__now(e) + 1000000);
        mesh__poll(e);
    }
}

/* Block until the operations that were left to streams have ended. Returns how many have not, on a stream that the program has begun to capture since. */
MESH__RARE int mesh__detached_settle(mesh_comm *c) {
    mesh__engine *e = mesh__impl(c)->engine;
    mesh__op *op;
    int i, unseen;
    do {
        for (i = unseen = 0; i < e->nops; i++) {
            op = e->op[i];
            if (op->comm != c || !op->detached) continue;
            mesh__op_advance(e, op);
            unseen += op->state == MESH__ACTIVE && op->unseen && !op->failing;
        }
        for (op = e->detached; op && (op->comm != c || (op->unseen && !op->failing)); op = op->next_detached) {}
        if (op) mesh__op_wait_until(e, op, mesh__now(e) + 10000000); /* a capture that ends meanwhile is seen */
    } while (op);
    return unseen;
}

/* Wait on the host for what has been issued in a group, without an operation. *ended: the transport says that it has failed, and nothing in it goes on. */
MESH__RARE mesh_status mesh__group_settle(mesh_comm *c, void *group, mesh_error *why, int *ended) {
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
                          "the caller's stream is being captured; call it outside of the capture");
    mesh__detached_settle(c); /* what these wait for, they tell */
    while ((status = e->t->ops->test(e->t, &ticket, why)) == MESH_IN_PROGRESS && mesh__now(e) < deadline &&
           !c->failed) {
        mesh__progress(e, mesh__now(e) + 1000000);
        mesh__poll(e);
    }
    mesh__cause_await(c, status);
    if (c->failed) return mesh__fail(why, (mesh_status)c->error.status, c->error.rank, "%s", c->error.text);
    *ended = status < 0;
    if (status != MESH_IN_PROGRESS) return status;
    return mesh__fail(why, MESH_ERR_TIMEOUT, e->t->rank,
                      "rank %d: what is on the caller's stream before it has not ended within %l ms; look after what "
                      "the program has put there",
                      e->t->rank, mesh__impl(c)->timeout / 1000000);
}

/* Behind what is on the caller's stream, in the comm's first group. */
MESH__RARE mesh_status mesh__beside_fence(mesh_comm *c) {
    mesh_transport *t = c->transport;
    if (!MESH__HAS(t->ops, fence)) return MESH_OK;
    return t->ops->fence(t, mesh__impl(c)->group[0]->handle, mesh__impl(c)->stream, MESH_FENCE_ON);
}
MESH__RARE mesh_status mesh__beside_settle(mesh_comm *c, mesh_error *why, int *ended) {
    mesh_status status;
    *ended = 0;
    mesh__detached_settle(c); /* one that fails lets the stream go on */
    if (c->failed) return (mesh_status)c->error.status;
    status = mesh__beside_fence(c);
    if (status == MESH_OK) status = mesh__group_settle(c, mesh__impl(c)->group[0]->handle, why, ended);
    if (status == MESH_OK) mesh__impl(c)->beside = 0;
    return status;
}

/* Block until what was left to streams has ended. What has failed fails the comm everywhere: the others may be in what this rank will not come to. */
MESH__RARE mesh_status mesh__comm_settle(mesh_comm *c) {
    const char *call = c->transport->inside.call;
    mesh_error why = MESH_ZERO;
    mesh_status status = MESH_OK;
    int ended = 0, unseen = mesh__detached_settle(c);
    if (unseen && !c->failed)
        return mesh__fail(
            &c->error, MESH_ERR_STATE, c->transport->rank,
            "mesh_%s: %d operation%s before on a stream that is captured now, so that the host is not told "
            "of the end; end the capture first, or call mesh_comm_sync before it",
            call, unseen, unseen == 1 ? " is" : "s are");
    if (mesh__impl(c)->beside && !c->failed) status = mesh__beside_settle(c, &why, &ended);
    if (c->failed) return (mesh_status)c->error.status;
    if (status == MESH_OK) return MESH_OK;
    if (ended) return mesh__comm_broken(c, status, why.rank, "mesh_%s: %s", call, why.text);
    return mesh__fail(&c->error, status, why.rank, "mesh_%s: %s", call, why.text);
}

MESH__RARE mesh_status mesh__comm_close_inside(mesh_comm *c) {
    mesh__engine *e;
    int i, k, under_way = 0, captured;
    int64_t limit;
    if (!c || !c->impl) return MESH_OK;
    e = mesh__impl(c)->engine;
    captured = mesh__comm_settle(c) == MESH_ERR_STATE && !c->failed;
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
        int left = mesh__impl(c)->untold.waits;
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
        mesh__fail(&c->error, MESH_ERR_STATE, -1,
                   "mesh_comm_close: %d operation%s still under way in %s and now canceled; %s", under_way,
                   under_way == 1 ? " was" : "s were", mesh__impl(c)->name,
                   captured ? "their stream is captured now: end the capture first, or call mesh_comm_sync before it"
                            : "wait for every request first");
    mesh__comm_release(c);
    return under_way || captured ? MESH_ERR_STATE : MESH_OK;
}

MESH_API mesh_status mesh_comm_close(mesh_comm *c) { MESH__ALONE(c, MESH__CALLER, mesh__comm_close_inside(c)); }

MESH__RARE mesh_status mesh__comm_closed(mesh_comm *c, const char *function) {
    return c ? mesh__fail(&c->error, MESH_ERR_STATE, -1, "%s: the comm is not open", function) : MESH_ERR_STATE;
}

MESH__RARE mesh_status mesh__op_add_inside(mesh_comm *c, const mesh_user_op *user, mesh_op *op) {
    mesh__comm_impl *impl = c ? mesh__impl(c) : NULL;
    if (!impl) return mesh__comm_closed(c, "mesh_op_add");
    if (c->failed) return (mesh_status)c->error.status;
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

MESH__RARE mesh_status mesh__abort_inside(mesh_comm *c, const char *why) {
    char kept[MESH_ERROR_BYTES]; /* why may be c->error.text, which is written here */
    mesh__text t = mesh__text_on(kept, sizeof kept);
    mesh__put(&t, "%s", mesh__or_empty(why));
    if (!c || !c->impl) return mesh__comm_closed(c, "mesh_abort");
    if (c->failed) return (mesh_status)c->error.status;
    mesh__comm_broken(c, MESH_ERR_CANCELED, c->transport->rank, "%s: rank %d gave up%s%s", mesh__impl(c)->name,
                      c->transport->rank, *kept ? ": " : "", kept);
    return MESH_OK;
}

MESH_API mesh_status mesh_abort(mesh_comm *c, const char *why) {
    MESH__ALONE(c, MESH__CALLER, mesh__abort_inside(c, why));
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
    mesh__group *g;
    if (!c || !c->impl || mesh__enter(c->transport, NULL, "comm_bytes") != MESH_OK) return MESH_ERR_STATE;
    g = mesh__group_find(mesh__impl(c), axes);
    if (g && sent) *sent = g->sent;
    if (g && received) *received = g->received;
    mesh__leave(c->transport);
    return g ? MESH_OK : MESH_ERR_STATE;
}

MESH_API size_t mesh_comm_history(const mesh_comm *c, char *buf, size_t cap) {
    int inside = c && c->impl && mesh__enter(c->transport, NULL, "comm_history") == MESH_OK;
    size_t length = mesh__history_put(inside ? mesh__impl(c)->engine : NULL, buf, cap);
    if (inside) mesh__leave(c->transport);
    return length;
}

MESH_API int mesh_lost_ranks(mesh_transport *t, int *ranks, int room) {
    mesh__engine *e;
    int rank, i, n = 0;
    if (!t || mesh__enter_open(t, NULL, "lost_ranks") != MESH_OK) return -1;
    e = (mesh__engine *)t->engine;
    if (e) mesh__control(e);
    for (rank = 0; e && e->ngone && rank < t->size; rank++) {
        for (i = 0; i < e->ngone && e->gone[i].rank != rank; i++) {}
        if (i == e->ngone) continue;
        if (n < room && ranks) ranks[n] = rank;
        n++;
    }
    mesh__leave(t);
    return n;
}

/* ---- // >>calls: where every start begins and ends ---- */

/* Operations that were left to a stream end in the order they were left; the first that has not is looked at for its deadline. */
MESH__PRIVATE void mesh__reap(mesh__engine *e) {
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
MESH__PRIVATE mesh_status mesh__call_begin(mesh_comm *c, const char *axes, int kind, mesh_request *r, mesh__group **g) {
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
            return mesh__refuse(
                c, MESH_ERR_ARGUMENT, kind, axes, "%s%s", why.text,
                axes && strchr(axes, '#') ? "; tags are for messages: send, recv, sendrecv, shift, exchange" : "");
    }
    return mesh__refuse(
        c, MESH_ERR_STATE, kind, axes,
        "this group is not open; list it in mesh_comm_desc.groups or call mesh_group_open on every rank");
}

/* A start that is only prepared: a kept request that rests. */
MESH__PRIVATE mesh_status mesh__call_prepared(mesh_comm *c, mesh__op *op, mesh_request *r) {
    mesh__engine *e = mesh__impl(c)->engine;
    const char *axes = op->group->axes;
    int kind = op->schedule.call.kind, fixed = mesh__op_is_fixed(op);
    mesh__impl(c)->preparing = 0;
    if (!fixed || op->schedule.out_of_memory) {
        mesh__op_release(e, op);
        return mesh__refuse(c, fixed ? MESH_ERR_MEMORY : MESH_ERR_UNSUPPORTED, kind, axes,
                            fixed ? "no memory for the schedule" : "it has no schedule that could be prepared");
    }
    op->kept = 1;
    op->state = MESH__RESTING;
    r->comm = c;
    r->slot = op->slot;
    r->generation = op->generation;
    return MESH_OK;
}

/* The end of every start: what the launch refuses fails the comm. */
MESH__PRIVATE mesh_status mesh__call_launch(mesh_comm *c, mesh__op *op, mesh_request *r) {
    mesh__engine *e = mesh__impl(c)->engine;
    const mesh__record *record = &op->record; /* still so in a slot that was given back */
    mesh_status status;
    if (mesh__prepares(c)) return mesh__call_prepared(c, op, r);
    status = mesh__op_launch(e, op, r);
    if (status == MESH_OK) {
        if (e->ngone) mesh__op_check_gone(e, op);
        return MESH_OK;
    }
    if (status == MESH_ERR_MEMORY)
        return mesh__refuse(c, status, record->kind, record->axes, "no memory for the schedule or its scratch");
    return mesh__refuse(c, status, record->kind, record->axes, "the transport (%s) refused: %s", e->t->ops->name,
                        mesh_status_text(status));
}

/* ---- // >>streams ---- */

MESH__PRIVATE mesh_status mesh__comm_stream_inside(mesh_comm *c, void *stream) {
    mesh_post mark;
    mesh_ticket ticket;
    int i;
    if (!c || !c->impl) return mesh__comm_closed(c, "mesh_comm_stream");
    if (mesh__impl(c)->stream == stream) return MESH_OK;
    if (mesh__impl(c)->beside && !c->failed && mesh__beside_fence(c) == MESH_OK) { /* the next stream comes behind it */
        memset(&mark, 0, sizeof mark);
        mark.group = mesh__impl(c)->group[0]->handle;
        c->transport->ops->post(c->transport, &mark, &ticket);
    }
    mesh__impl(c)->stream = stream;
    for (i = 0; i < mesh__impl(c)->ngroups && MESH__HAS(c->transport->ops, fence) && !c->failed; i++)
        c->transport->ops->fence(c->transport, mesh__impl(c)->group[i]->handle, stream, MESH_FENCE_ON);
    return MESH_OK;
}

MESH_API mesh_status mesh_comm_stream(mesh_comm *c, void *stream) {
    MESH__ALONE(c, MESH__CALLER, mesh__comm_stream_inside(c, stream));
}

MESH__PRIVATE mesh_status mesh__comm_sync_inside(mesh_comm *c) {
    mesh__engine *e;
    mesh_status status;
    if (!c || !c->impl) return mesh__comm_closed(c, "mesh_comm_sync");
    e = mesh__impl(c)->engine;
    status = mesh__comm_settle(c);
    for (mesh__poll(e); mesh__impl(c)->disputing; mesh__poll(e)) mesh__progress(e, mesh__impl(c)->dispute_until);
    return c->failed ? (mesh_status)c->error.status : status;
}

MESH_API mesh_status mesh_comm_sync(mesh_comm *c) { MESH__ALONE(c, MESH__CALLER, mesh__comm_sync_inside(c)); }
#endif /* MESH_COMM_IMPLEMENTED */
