/* socket/ops.h - the members of mesh_ops over sockets. Part of mesh.h 0.1.0. MIT licence.

   Includes direct.h.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_OPS_IMPLEMENTED)
#define MESH_SOCKET_OPS_IMPLEMENTED
#include "direct.h"

/* Find what came early for a receive; else it waits. */
MESH__PRIVATE void mesh_socket__match(mesh_socket__impl *s, mesh_socket__xfer *r) {
    mesh_socket__peer *p = &s->peer[r->x.rank];
    mesh_socket__early **at = &p->early, *m;
    while (*at && (*at)->channel != r->channel) at = &(*at)->next;
    m = *at;
    if (!m) {
        mesh_socket__list_add(&p->posted, r);
        return;
    }
    *at = m->next;
    if (!m->next) p->early_end = at;
    if (!m->is_offer) mesh_socket__took(s, p, m->nbytes);
    p->offers -= m->is_offer;
    if (m->is_lent)
        mesh_socket__accept_loan(s, p, r, m->nbytes, m->check, m->offer, (mesh_socket__loan *)(void *)(m + 1));
    else if (m->is_offer)
        mesh_socket__accept_offer(s, p, r, m->nbytes, m->check, m->offer);
    else if (mesh_socket__agrees(s, r, m->nbytes, m->check))
        mesh_socket__deliver(s, r, (unsigned char *)(m + 1));
    mesh_transport_free(&s->net->base, m);
}

MESH__PRIVATE mesh_socket__ticket *mesh_socket__ticket_new(mesh_socket__impl *s, int count) {
    int few = count <= MESH_SOCKET__SPARE_XFERS;
    mesh_socket__ticket *k = few ? s->spare : NULL;
    if (k) {
        s->spare = k->next;
        s->nspare--;
    } else {
        size_t room = few ? (size_t)MESH_SOCKET__SPARE_XFERS : (size_t)count;
        k = (mesh_socket__ticket *)mesh_transport_alloc(&s->net->base, sizeof *k + room * sizeof(mesh_socket__xfer));
        if (!k) return NULL;
        k->xfer = (mesh_socket__xfer *)(k + 1);
        k->direct = 0;
    }
    k->count = k->left = count;
    k->status = MESH_OK;
    return k;
}

MESH__PRIVATE void mesh_socket__ticket_free(mesh_socket__impl *s, mesh_socket__ticket *k) {
    if (k->count > MESH_SOCKET__SPARE_XFERS || s->nspare >= MESH_SOCKET__SPARES) {
        mesh_transport_free(&s->net->base, k);
    } else {
        k->next = s->spare;
        s->spare = k;
        s->nspare++;
    }
}

/* What comes through shared memory often comes in a moment: then nobody has to be asked again. */
MESH__PRIVATE void mesh_socket__linger(mesh_socket__impl *s, const mesh_socket__ticket *k) {
    int looks;
    if (!s->shared || s->crowded || s->on_one_core > 0) return;
    for (looks = 0; looks < MESH_SOCKET__PATIENCE && k->left; looks++)
        if (!mesh_socket__glance_shared(s)) MESH_SOCKET__RELAX();
}

/* A short message that goes at once, before anything is noted of it. Returns 0 where it cannot. */
MESH__PRIVATE int mesh_socket__send_short(mesh_socket__impl *s, const mesh_post *post, const mesh_xfer *x) {
    const mesh_socket__peer *p = &s->peer[x->rank];
    return p->conn && !p->waiting.head && p->noffered < MESH_SOCKET__OFFERS &&
           mesh_socket__put_short(s, p->conn, x, post->channel, post->check);
}

MESH__PRIVATE mesh_status mesh_socket__post(mesh_transport *t, const mesh_post *post, mesh_ticket *ticket) {
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_socket__ticket *k = mesh_socket__ticket_new(s, post->count);
    int i, first = 1; /* no other send before it */
    if (!k) return MESH_ERR_MEMORY;
    for (i = 0; i < post->count; i++) {
        mesh_socket__xfer *x = &k->xfer[i];
        if (first && post->xfer[i].direction == MESH_SEND) {
            x->x.rank = post->xfer[i].rank;
            x->done = first = mesh_socket__send_short(s, post, &post->xfer[i]);
            k->left -= first;
            if (first) continue;
        }
        x->x = post->xfer[i];
        if (x->x.block) {
            x->block = *x->x.block;
            x->x.block = &x->block;
        }
        x->channel = post->channel;
        x->check = post->check;
        x->id = x->remote = x->moved = 0;
        x->ticket = k;
        x->matched = x->done = x->accepted = x->loan = 0;
        x->in = NULL;
        x->next = NULL;
    }
    for (i = 0; i < post->count && k->left; i++) {
        mesh_socket__xfer *x = &k->xfer[i];
        mesh_socket__peer *p = &s->peer[x->x.rank];
        if (x->done) continue;
        if (x->x.direction == MESH_RECV) {
            mesh_socket__match(s, x);
        } else if (!p->conn || p->waiting.head || p->noffered >= MESH_SOCKET__OFFERS) {
            mesh_socket__list_add(&p->waiting, x);
            mesh_socket__unsettle(s, x->x.rank);
        } else if (!mesh_socket__dispatch(s, p, x)) {
            mesh_socket__ticket_fail(s, k, MESH_ERR_MEMORY, -1, "no memory to send to rank %d", x->x.rank);
            break;
        }
        if (!p->conn && !x->done) {
            if (p->gone == MESH_EVENT_LOST)
                mesh_socket__ticket_fail(s, k, MESH_ERR_PEER, x->x.rank, "rank %d was lost before", x->x.rank);
            else
                mesh_socket__reach(s, x->x.rank);
        }
    }
    for (i = 0; i < post->count; i++) {
        mesh_socket__conn *c = s->peer[post->xfer[i].rank].conn;
        if (c && !c->broken && mesh_socket__wants_write(s, c)) mesh_socket__flush(s, c);
    }
    if (post->flags & MESH_POST_AWAITED) mesh_socket__linger(s, k);
    ticket->impl = k;
    ticket->id = post->channel;
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh_socket__test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    mesh_socket__ticket *k = (mesh_socket__ticket *)ticket->impl;
    mesh_status status;
    if (k->left) return MESH_IN_PROGRESS;
    status = k->status;
    if (status != MESH_OK && why) *why = k->why;
    ticket->impl = NULL;
    if (!k->direct)
        mesh_socket__ticket_free(mesh_socket__of(t), k);
    else if (!((mesh_socket__direct *)(void *)k)->group->spare)
        ((mesh_socket__direct *)(void *)k)->group->spare = (mesh_socket__direct *)(void *)k;
    else
        mesh_transport_free(t, k);
    return status;
}

MESH__PRIVATE int mesh_socket__pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    const mesh_socket__ticket *k = (const mesh_socket__ticket *)ticket->impl;
    int i, j, n = 0;
    if (k && k->direct)
        return mesh_socket__direct_pending(mesh_socket__of(t), mesh_socket__direct_of(ticket), ranks, cap);
    for (i = 0; k && i < k->count; i++) {
        const mesh_socket__xfer *x = &k->xfer[i];
        if (x->done || x->matched) continue;
        for (j = 0; j < i && (k->xfer[j].done || k->xfer[j].matched || k->xfer[j].x.rank != x->x.rank); j++) {}
        if (j < i) continue;
        if (n < cap) ranks[n] = x->x.rank;
        n++;
    }
    return n;
}

MESH__PRIVATE mesh_status mesh_socket__cancel(mesh_transport *t, mesh_ticket *ticket) {
    mesh_socket__direct *op = mesh_socket__direct_of(ticket);
    if (op)
        mesh_socket__direct_fail(mesh_socket__of(t), op, MESH_ERR_CANCELED, -1, "canceled");
    else
        mesh_socket__ticket_fail(mesh_socket__of(t), (mesh_socket__ticket *)ticket->impl, MESH_ERR_CANCELED, -1,
                                 "canceled");
    return MESH_OK;
}

MESH__PRIVATE int64_t mesh_socket__now(mesh_transport *t) {
    (void)t;
    return mesh_socket__clock();
}

/* Control messages go over the pair's connection; until it stands they are held. */
MESH__PRIVATE mesh_status mesh_socket__control_send(mesh_transport *t, int rank, int kind, const void *data,
                                                    size_t nbytes) {
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_socket__peer *p;
    if (rank < 0 || rank >= t->size || rank == t->rank || nbytes > MESH_CONTROL_BYTES) return MESH_ERR_ARGUMENT;
    p = &s->peer[rank];
    if (p->gone || (p->conn && p->conn->broken)) return MESH_ERR_PEER;
    if (!p->conn) {
        int length = MESH_SOCKET__HEADER + (int)nbytes;
        if (!mesh__grow(t, (void **)&p->held, &p->held_cap, p->held_len + length, 1)) return MESH_ERR_MEMORY;
        mesh_socket__header(p->held + p->held_len, MESH_SOCKET__F_CONTROL, (uint32_t)nbytes, 0, 0, (uint64_t)kind, 0);
        memcpy(p->held + p->held_len + MESH_SOCKET__HEADER, data, nbytes);
        p->held_len += length;
        mesh_socket__reach(s, rank);
        return p->gone ? MESH_ERR_PEER : MESH_OK;
    }
    if (!mesh_socket__frame_put(s, p->conn, MESH_SOCKET__F_CONTROL, 0, 0, (uint64_t)kind, 0, data, (uint32_t)nbytes))
        return MESH_ERR_MEMORY;
    mesh_socket__flush(s, p->conn);
    return MESH_OK;
}

/* Control frames that are still here: behind a handshake, or behind bytes that the kernel has no room for. */
MESH__PRIVATE int mesh_socket__held(const mesh_socket__impl *s) {
    int i;
    for (i = 0; i < s->nconns; i++) {
        const mesh_socket__conn *c = s->conn[i];
        if (c->state == MESH_SOCKET__UP && !c->broken && !c->mute && c->out_len > c->out_at) return 1;
    }
    for (i = 0; i < s->net->base.size; i++)
        if (s->peer[i].held_len && !s->peer[i].gone) return 1;
    return 0;
}

MESH__PRIVATE mesh_status mesh_socket__control_flush(mesh_transport *t, int64_t deadline) {
    mesh_socket__impl *s = mesh_socket__of(t);
    while (mesh_socket__held(s) && mesh_socket__clock() < deadline) {
        mesh_socket__retries(s);
        mesh_socket__round(s, 1);
    }
    return mesh_socket__held(s) ? MESH_IN_PROGRESS : MESH_OK;
}

/* Ranks that are gone, which there was no memory to say: without the reason. */
MESH__PRIVATE mesh_status mesh_socket__untold_poll(mesh_socket__impl *s, mesh_control *out) {
    int i;
    for (i = 0; i < s->net->base.size && !s->peer[i].untold; i++) {}
    if (i == s->net->base.size) {
        s->untold = 0;
        return MESH_IN_PROGRESS;
    }
    s->peer[i].untold = 0;
    out->kind = s->peer[i].gone;
    out->rank = i;
    out->nbytes = out->zero = 0;
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh_socket__control_poll(mesh_transport *t, mesh_control *out) {
    mesh_socket__impl *s = mesh_socket__of(t);
    if (!s->mail.first && s->untold) return mesh_socket__untold_poll(s, out);
    if (mesh__inbox_take(t, &s->mail, out) != MESH_OK) return MESH_IN_PROGRESS;
    if (out->kind == MESH_EVENT_MESSAGE || out->kind == MESH_EVENT_ABORT) s->peer[out->rank].controls--;
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh_socket__group_open(mesh_transport *t, void *parent, uint32_t id, const mesh *group,
                                                  int color, int key, int64_t deadline, void **out, mesh_error *why) {
    mesh_socket__handle *h = (mesh_socket__handle *)mesh_transport_alloc(t, sizeof *h);
    mesh_status status;
    (void)parent, (void)color, (void)key, (void)deadline;
    if (!h) return mesh__fail(why, MESH_ERR_MEMORY, -1, "mesh_socket: no memory for a group");
    memset(h, 0, sizeof *h);
    h->id = id;
    status = mesh_socket__direct_open(mesh_socket__of(t), h, group, why);
    if (status != MESH_OK)
        mesh_transport_free(t, h);
    else
        *out = h;
    return status;
}

/* The group's late frames are dropped from now on, and those that lie here already. */
MESH__PRIVATE mesh_status mesh_socket__group_close(mesh_transport *t, void *group) {
    mesh_socket__impl *s = mesh_socket__of(t);
    uint32_t id = ((mesh_socket__handle *)group)->id;
    int i;
    if (!mesh_socket__direct_close(s, (mesh_socket__handle *)group)) mesh_transport_free(t, group);
    if (mesh__grow(t, (void **)&s->dead, &s->dead_cap, s->ndead + 1, sizeof *s->dead)) {
        for (i = s->ndead++; i > 0 && s->dead[i - 1] > id; i--) s->dead[i] = s->dead[i - 1];
        s->dead[i] = id;
    }
    for (i = 0; i < t->size; i++) {
        mesh_socket__early **at = &s->peer[i].early;
        while (*at) {
            mesh_socket__early *m = *at;
            if ((uint32_t)(m->channel >> 32) != id) {
                at = &m->next;
                continue;
            }
            *at = m->next;
            if (!m->is_offer) mesh_socket__took(s, &s->peer[i], m->nbytes);
            s->peer[i].offers -= m->is_offer;
            mesh_transport_free(t, m);
        }
        s->peer[i].early_end = at;
    }
    return MESH_OK;
}

/* Really zero: no compiler sees that nobody reads it. */
MESH__PRIVATE void mesh_socket__wipe(void *p, size_t n) {
    volatile char *at = (volatile char *)p;
    while (n) at[--n] = 0;
}

/* A page that a child of this process finds empty: by it every call knows where it is. */
MESH__RARE void mesh_socket__alive_make(mesh_socket__impl *s) {
#if MESH_SOCKET__LINUX && defined(SYS_madvise)
    enum { MESH_SOCKET__WIPE_ON_FORK = 18 }; /* MADV_WIPEONFORK, of Linux 4.14, which strict C hides */
    long bytes = sysconf(_SC_PAGESIZE);
    size_t page = bytes > 0 ? (size_t)bytes : 0;
    unsigned char *at;
    if (!page || (s->alive = mesh_transport_alloc(&s->net->base, 2 * page)) == NULL) return;
    at = (unsigned char *)s->alive + (page - (uintptr_t)s->alive % page) % page;
    memset(at, 1, page);
    if (syscall(SYS_madvise, (long)(uintptr_t)at, (long)page, (long)MESH_SOCKET__WIPE_ON_FORK) == 0)
        s->net->base.inside.alive = at;
#else
    (void)s;
#endif
}

MESH__RARE void mesh_socket__alive_free(mesh_socket__impl *s) {
#if MESH_SOCKET__LINUX && defined(SYS_madvise)
    enum { MESH_SOCKET__KEEP_ON_FORK = 19 };
    const unsigned char *at = s->net->base.inside.alive;
    if (at) syscall(SYS_madvise, (long)(uintptr_t)at, sysconf(_SC_PAGESIZE), (long)MESH_SOCKET__KEEP_ON_FORK);
#endif
    s->net->base.inside.alive = NULL;
    mesh_transport_free(&s->net->base, s->alive);
}

MESH__PRIVATE void mesh_socket__release(mesh_socket__impl *s) {
    mesh_transport *t = &s->net->base;
    int i;
    s->closing = 1;
    while (s->nconns) mesh_socket__conn_free(s, s->conn[s->nconns - 1]);
    for (i = 0; s->peer && i < t->size; i++) {
        mesh_transport_free(t, s->peer[i].held);
        while (s->peer[i].early) {
            mesh_socket__early *m = s->peer[i].early;
            s->peer[i].early = m->next;
            mesh_transport_free(t, m);
        }
    }
    mesh__inbox_free(&s->net->base, &s->mail);
    while (s->pulls) mesh_socket__pull_free(s, s->pulls);
    while (s->spare) {
        mesh_socket__ticket *k = s->spare;
        s->spare = k->next;
        mesh_transport_free(t, k);
    }
    while (s->closed) {
        mesh_socket__handle *g = s->closed;
        s->closed = g->next;
        mesh_transport_free(t, g);
    }
    mesh_socket__unshare(s);
    mesh_socket__give_back(s);
    if (s->schedstat >= 0) close(s->schedstat);
    if (s->tcp_fd >= 0) close(s->tcp_fd);
    if (s->ready >= 0) close(s->ready);
    if (s->unix_fd >= 0) {
        close(s->unix_fd);
        if (!MESH_SOCKET__LINUX) {
            struct sockaddr_un a;
            mesh_socket__unix_address(&a, s->unix_token);
            unlink(a.sun_path);
        }
    }
    if (s->trace) {
        if (!s->in_open) fputs("\n]\n", s->trace);
        fclose(s->trace);
    }
    mesh_transport_free(t, s->conn);
    mesh_transport_free(t, s->poll);
    mesh_transport_free(t, s->slot);
    mesh_transport_free(t, s->generation);
    mesh_transport_free(t, s->slot_next);
    mesh_transport_free(t, s->dead);
    mesh_transport_free(t, s->book);
    mesh_transport_free(t, s->restless);
    mesh_transport_free(t, s->peer);
    mesh_socket__wipe(s->secret, sizeof s->secret);
    mesh_socket__alive_free(s);
    s->net->impl = NULL;
    t->ops = NULL;
    mesh_transport_free(t, s);
}

MESH__PRIVATE void mesh_socket__helper_forget(mesh_socket__impl *s);

/* In a child of the process that opened it: descriptors and mappings go, nobody hears of it, and nothing that the parent has too changes. */
MESH__RARE void mesh_socket__close_in_child(mesh_socket__impl *s) {
    int i;
    if (s->ready >= 0) close(s->ready); /* what is waited for in it is the parent's */
    if (s->unix_fd >= 0) close(s->unix_fd);
    if (s->trace) close(fileno(s->trace));
    s->ready = s->unix_fd = -1;
    s->trace = NULL;
    s->pulls = NULL;
    mesh_socket__helper_forget(s);
    for (i = 0; i < s->nconns; i++) {
        s->conn[i]->rx_to = s->conn[i]->frame = NULL;
        s->conn[i]->rx_early = NULL;
    }
    mesh_socket__release(s);
}

/* Bytes that the other host's kernel does not have yet: a close could still lose them. (Elsewhere the kernel goes on sending them.) */
MESH__PRIVATE int mesh_socket__unsent(const mesh_socket__conn *c) {
#if MESH_SOCKET__LINUX
    int left = 0;
    return !c->is_unix && ioctl(c->fd, TIOCOUTQ, &left) == 0 && left > 0;
#else
    (void)c;
    return 0;
#endif
}

MESH__PRIVATE void mesh_socket__helper_stop(mesh_socket__impl *s);

MESH__PRIVATE mesh_status mesh_socket__close(mesh_transport *t, mesh_error *why) {
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_status status = MESH_OK;
    int64_t limit, told, quiet, patience;
    int i, busy = 1;
    if (!s) return MESH_OK;
    if (s->opened_by != (int64_t)getpid()) {
        mesh_socket__close_in_child(s);
        return MESH_OK;
    }
    if ((status = mesh__enter(t, why, "socket_close")) != MESH_OK)
        return status; /* another thread is in it, or this one */
    mesh__leave(t);
    if (t->inside.lent) return mesh_transport_detach(t); /* which refuses: the thread goes on as well */
    mesh_socket__helper_stop(s);
    patience = mesh_transport_patience(t);
    if ((status = mesh_transport_detach(t)) != MESH_OK) return status;
    s->closing = 1;
    for (i = 0; i < s->nconns; i++)
        if (s->conn[i]->state == MESH_SOCKET__UP && !s->conn[i]->broken)
            mesh_socket__frame_send(s, s->conn[i], MESH_SOCKET__F_GOODBYE, 0, 0, NULL, 0);
    limit = mesh_socket__clock() + patience;
    told = mesh_socket__clock() + INT64_C(1000000000);
    while (busy && mesh_socket__clock() < limit) { /* what was sent has to leave */
        for (i = 0, busy = 0; i < s->nconns; i++) {
            mesh_socket__conn *c = s->conn[i];
            if (c->state != MESH_SOCKET__UP || c->broken || s->peer[c->rank].gone == MESH_EVENT_LOST) continue;
            mesh_socket__flush(s, c);
            busy |=
                !c->broken && !c->mute && (c->out_len > c->out_at || c->frame || c->spare || mesh_socket__unsent(c));
        }
        for (i = 0; i < t->size && mesh_socket__clock() < told; i++)
            busy |= s->peer[i].held_len && !s->peer[i].gone; /* why we leave, to those not yet connected */
        if (busy) mesh_socket__round(s, 10);
    }
    if (busy)
        status = mesh__fail(why, MESH_ERR_TIMEOUT, -1,
                            "mesh_socket_close: a rank did not take what was sent to it within %l ms; it may be lost",
                            patience / 1000000);
    for (i = 0; i < s->nconns; i++)
        if (s->conn[i]->state == MESH_SOCKET__UP) shutdown(s->conn[i]->fd, SHUT_WR);
    /* Where a socket cannot say what it has not sent, it is given more time: a close with unread bytes would throw that away. */
    quiet = mesh_socket__clock() + (MESH_SOCKET__LINUX ? INT64_C(200000000) : INT64_C(2000000000));
    for (busy = 1;
         busy && mesh_socket__clock() <
                     quiet;) { /* let the others say goodbye too: a close with unread bytes would be a reset */
        for (i = 0, busy = 0; i < s->nconns; i++)
            busy |= s->conn[i]->state == MESH_SOCKET__UP && !s->peer[s->conn[i]->rank].goodbye;
        if (busy) mesh_socket__round(s, 5);
    }
    mesh_socket__release(s);
    return status;
}

MESH_API mesh_status mesh_socket_close(mesh_socket *net) {
    if (!net || !net->impl) return MESH_OK;
    return mesh_socket__close(&net->base, NULL);
}

/* Of the address book, which is the same on every rank. (Two hosts that share a number would only be thought one.) */
MESH__PRIVATE int mesh_socket__locality(mesh_transport *t, int rank) {
    const mesh_socket__impl *s = mesh_socket__of(t);
    uint64_t host = rank >= 0 && rank < t->size && s->book ? s->book[rank].host : 0;
    return host ? (int)((host ^ host >> 32) & 0x7fffffff) : -1;
}

/* Memory that the others on this host can read, as long as there is some. */
MESH__PRIVATE mesh_status mesh_socket__alloc(mesh_transport *t, uint64_t nbytes, unsigned flags, void **out) {
    mesh_socket__impl *s = mesh_socket__of(t);
    (void)flags;
    *out = mesh_socket__spares(s->shared, nbytes) ? mesh_socket__heap_take(s, nbytes) : NULL;
    return *out ? MESH_OK : MESH_ERR_UNSUPPORTED;
}

MESH__PRIVATE mesh_status mesh_socket__free(mesh_transport *t, void *p) {
    mesh_socket__impl *s = mesh_socket__of(t);
    if (mesh_socket__block_at(s->shared, p) < 0) return MESH_ERR_UNSUPPORTED;
    mesh_socket__heap_give(s, p);
    return MESH_OK;
}

#define MESH_SOCKET__OPS(collective, alloc, free)                                                               \
    sizeof(mesh_ops), MESH_ABI, "socket", mesh_socket__post, mesh_socket__test, mesh_socket__pending,           \
        mesh_socket__cancel, mesh_socket__progress, mesh_socket__now, mesh_socket__control_send,                \
        mesh_socket__control_poll, mesh_socket__close, mesh_socket__group_open, mesh_socket__group_close, NULL, \
        collective, NULL, NULL, NULL, alloc, free, NULL, NULL, NULL, mesh_socket__control_flush,                \
        mesh_socket__locality, mesh_socket__arm_for, mesh_socket__fd, MESH_OPS_NO_KERNELS

/* With memory in common, or without. */
MESH__PRIVATE const mesh_ops *mesh_socket__ops(int sharing) {
    static const mesh_ops apart = {MESH_SOCKET__OPS(NULL, NULL, NULL)};
    static const mesh_ops in_common = {
        MESH_SOCKET__OPS(mesh_socket__collective, mesh_socket__alloc, mesh_socket__free)};
    return sharing ? &in_common : &apart;
}
#undef MESH_SOCKET__OPS
#endif /* MESH_SOCKET_OPS_IMPLEMENTED */
