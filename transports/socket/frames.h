/* socket/frames.h - what goes over a connection that stands: messages as frames, frames as messages. Part of mesh.h 0.1.0. MIT licence.

   Includes lend.h. Takes bytes and gives bytes; no descriptor, no system call: recorded bytes and fuzzers drive it as the loop does.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_FRAMES_IMPLEMENTED)
#define MESH_SOCKET_FRAMES_IMPLEMENTED
#include "lend.h"

MESH__PRIVATE void mesh_socket__flush(mesh_socket__impl *s, mesh_socket__conn *c); /* loop.h: bytes leave */
MESH__PRIVATE int mesh_socket__put_short(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_xfer *x,
                                         uint64_t channel, uint64_t check);

/* ---- // >>out ---- */

MESH__PRIVATE unsigned char *mesh_socket__out_room(mesh_socket__impl *s, mesh_socket__conn *c, size_t n) {
    unsigned char *p;
    if (c->out_at == c->out_len) c->out_at = c->out_len = 0;
    if (c->out_len + n > c->out_cap) {
        size_t used = c->out_len - c->out_at, cap = c->out_cap ? c->out_cap : 8192;
        while (cap < used + n) cap *= 2;
        if (cap > c->out_cap) {
            p = (unsigned char *)mesh_transport_alloc(&s->net->base, cap);
            if (!p) return NULL;
            if (used) memcpy(p, c->out + c->out_at, used);
            mesh_transport_free(&s->net->base, c->out);
            c->out = p;
            c->out_cap = cap;
        } else if (used) {
            memmove(c->out, c->out + c->out_at, used);
        }
        c->out_at = 0;
        c->out_len = used;
    }
    p = c->out + c->out_len;
    c->out_len += n;
    return p;
}

/* A header, written or read. */
MESH__FOLDED void mesh_socket__header_wire(mesh__wire *w, mesh_socket__frame *f) {
    mesh__wire32(w, &f->type);
    mesh__wire32(w, &f->length);
    mesh__wire64(w, &f->channel);
    mesh__wire64(w, &f->check);
    mesh__wire64(w, &f->a);
    mesh__wire64(w, &f->b);
    mesh__wire64(w, &f->zero);
}

MESH__PRIVATE void mesh_socket__header(unsigned char *p, uint32_t type, uint32_t length, uint64_t channel,
                                       uint64_t check, uint64_t a, uint64_t b) {
    mesh_socket__frame f;
    mesh__wire w = mesh__writing(p);
    f.type = type, f.length = length, f.channel = channel, f.check = check, f.a = a, f.b = b, f.zero = 0;
    mesh_socket__header_wire(&w, &f);
}

MESH__PRIVATE int mesh_socket__frame_put(mesh_socket__impl *s, mesh_socket__conn *c, uint32_t type, uint64_t channel,
                                         uint64_t check, uint64_t a, uint64_t b, const void *data, uint32_t nbytes) {
    unsigned char *p = mesh_socket__out_room(s, c, MESH_SOCKET__HEADER + (size_t)nbytes);
    if (!p) return 0;
    mesh_socket__header(p, type, nbytes, channel, check, a, b);
    if (nbytes) memcpy(p + MESH_SOCKET__HEADER, data, nbytes);
    mesh_socket__stir(c);
    return 1;
}

/* A frame of a few bytes that must not be lost: without memory for it the connection ends. */
MESH__PRIVATE void mesh_socket__frame_send(mesh_socket__impl *s, mesh_socket__conn *c, uint32_t type, uint64_t a,
                                           uint64_t b, const void *data, uint32_t nbytes) {
    if (mesh_socket__frame_put(s, c, type, 0, 0, a, b, data, nbytes)) return;
    mesh_socket__break(c, MESH_SOCKET__BROKEN);
    mesh__copy_text(c->why, sizeof c->why, "no memory for a frame");
}

/* Runs so short that copying them costs less than naming each to the kernel; through a ring none is named. */
MESH__PRIVATE int mesh_socket__is_fine(const mesh_xfer *x, const mesh_socket__ring *ring) {
    return !ring && x->block && x->block->ndim && x->block->run < 1024;
}

/* Can a frame begin on this connection now, with nothing before it? */
MESH__PRIVATE int mesh_socket__is_idle(mesh_socket__impl *s, mesh_socket__conn *c) {
    if (c->broken || c->mute || c->frame || c->spare) return 0;
    if (c->out_len > c->out_at) mesh_socket__flush(s, c);
    return !c->frame && !c->spare && c->out_len == c->out_at && !c->broken && !c->mute;
}

/* Offer a message by saying where it lies, so that the peer copies it. Returns 0 where that cannot be. */
MESH__PRIVATE int mesh_socket__lend(mesh_socket__impl *s, mesh_socket__peer *p, mesh_socket__xfer *x) {
    mesh_socket__loan loan;
    unsigned char where[MESH_SOCKET__LOAN_WIRE];
    mesh__wire w = mesh__writing(where);
    if (!mesh_socket__can_lend(s, p->sharer - 1, &x->x, &loan) || !mesh_socket__id_take(s, x)) return 0;
    loan.id = x->id;
    if (!mesh_socket__loan_make(s, x, &loan)) {
        mesh_socket__id_drop(s, x);
        return 0;
    }
    mesh_socket__loan_wire(&w, &loan);
    if (!mesh_socket__frame_put(s, p->conn, MESH_SOCKET__F_LEND, x->channel, x->check, x->x.nbytes, x->id, where,
                                (uint32_t)(w.at - where))) {
        mesh_socket__loan_end(s, x);
        mesh_socket__id_drop(s, x);
        return 0;
    }
    mesh_socket__list_add(&p->offered, x);
    p->noffered++;
    return 1;
}

/* A message was copied, and will be read without having been asked for. */
MESH__PRIVATE int mesh_socket__eager_sent(mesh_socket__impl *s, mesh_socket__xfer *x) {
    x->matched = 1;
    mesh_socket__xfer_done(s, x);
    return 1;
}

/* Hand a send to an established connection: at once if it is within the credit and neither long nor in the way of others, else as an
   offer. 0: no memory. */
MESH__PRIVATE int mesh_socket__dispatch(mesh_socket__impl *s, mesh_socket__peer *p, mesh_socket__xfer *x) {
    uint64_t n = x->x.nbytes;
    int may = n <= MESH_SOCKET__EAGER && n + MESH_SOCKET__HEADER <= p->credit;
    unsigned char *to;
    if (n > MESH_SOCKET__LEND && p->conn->ring_out && mesh_socket__lend(s, p, x)) return 1;
    if (may && mesh_socket__put_short(s, p->conn, &x->x, x->channel, x->check)) return mesh_socket__eager_sent(s, x);
    if (may && n > MESH_SOCKET__COPIED && !mesh_socket__is_fine(&x->x, p->conn->ring_out) &&
        mesh_socket__is_idle(s, p->conn)) {
        mesh_socket__conn *c = p->conn; /* straight from the caller's memory */
        c->frame = x;
        c->frame_left = (size_t)n;
        c->head_left = MESH_SOCKET__HEADER;
        mesh_socket__header(c->head, MESH_SOCKET__F_EAGER, (uint32_t)n, x->channel, x->check, 0, 0);
        p->credit -= n + MESH_SOCKET__HEADER;
        x->matched = 1;
        return 1;
    }
    if (may && n <= MESH_SOCKET__QUEUED) {
        to = mesh_socket__out_room(s, p->conn, MESH_SOCKET__HEADER + (size_t)n);
        if (!to) return 0;
        mesh_socket__header(to, MESH_SOCKET__F_EAGER, (uint32_t)n, x->channel, x->check, 0, 0);
        mesh__pack(&x->x, 0, to + MESH_SOCKET__HEADER, (size_t)n);
        p->credit -= n + MESH_SOCKET__HEADER;
        return mesh_socket__eager_sent(s, x);
    }
    if (!mesh_socket__id_take(s, x)) return 0;
    if (!mesh_socket__frame_put(s, p->conn, MESH_SOCKET__F_OFFER, x->channel, x->check, n, x->id, NULL, 0)) {
        mesh_socket__id_drop(s, x);
        return 0;
    }
    mesh_socket__list_add(&p->offered, x);
    p->noffered++;
    return 1;
}

/* Begin the next frame of the large messages that were accepted, in turn. */
MESH__PRIVATE int mesh_socket__next_frame(mesh_socket__impl *s, mesh_socket__conn *c) {
    mesh_socket__peer *p = &s->peer[c->rank];
    mesh_socket__xfer *x = p->streaming.head;
    uint64_t left;
    if (!x) return 0;
    left = x->x.nbytes - x->moved;
    c->frame = x;
    c->frame_left = left < MESH_SOCKET__CHUNK ? (size_t)left : (size_t)MESH_SOCKET__CHUNK;
    c->head_left = MESH_SOCKET__HEADER;
    mesh_socket__header(c->head, MESH_SOCKET__F_DATA, (uint32_t)c->frame_left, 0, 0, x->remote, x->moved);
    if (mesh_socket__is_fine(&x->x, c->ring_out)) {
        size_t n = c->frame_left;
        /* The frame goes from a copy: its part of the message is done with. Without memory it goes from where it is, in more pieces. */
        if (mesh_socket__frame_detach(s, c) && (x->moved += n) == x->x.nbytes) {
            mesh_socket__list_remove(&p->streaming, x);
            mesh_socket__xfer_done(s, x);
            return 1;
        }
    }
    if (x->next) { /* others wait: take turns */
        mesh_socket__list_remove(&p->streaming, x);
        mesh_socket__list_add(&p->streaming, x);
    }
    return 1;
}

/* The pieces to write next. Returns their number. */
MESH__PRIVATE int mesh_socket__gather(mesh_socket__conn *c, struct iovec *v) {
    int n = 0;
    if (!c->frame && !c->spare && c->out_len > c->out_at) {
        v[n].iov_base = c->out + c->out_at;
        v[n++].iov_len = c->socket_left ? c->socket_left : c->out_len - c->out_at;
        return n;
    }
    if (c->head_left) {
        v[n].iov_base = c->head + MESH_SOCKET__HEADER - c->head_left;
        v[n++].iov_len = c->head_left;
    }
    if (c->spare) {
        v[n].iov_base = c->spare + c->spare_at;
        v[n++].iov_len = c->spare_len - c->spare_at;
        return n;
    }
    if (c->frame && c->frame_left) {
        mesh__cursor from = mesh__cursor_at(&c->frame->x, c->frame->moved);
        n += mesh_socket__runs(&from, c->frame_left, v + n, MESH_SOCKET__IOVS - n);
    }
    return n;
}

MESH__PRIVATE void mesh_socket__wrote(mesh_socket__impl *s, mesh_socket__conn *c, size_t n) {
    size_t part;
    if (!c->frame && !c->spare) {
        c->out_at += n;
        if (c->out_at == c->out_len && c->out_cap > 2 * MESH_SOCKET__QUEUED) { /* a burst, or the address book */
            mesh_transport_free(&s->net->base, c->out);
            c->out = NULL;
            c->out_at = c->out_len = c->out_cap = 0;
        }
        return;
    }
    part = n < c->head_left ? n : c->head_left;
    c->head_left -= part;
    n -= part;
    if (c->spare) {
        c->spare_at += n;
        if (c->spare_at < c->spare_len || c->head_left) return;
        mesh_transport_free(&s->net->base, c->spare);
        c->spare = NULL;
        return;
    }
    c->frame_left -= n;
    c->frame->moved += n;
    if (c->frame_left || c->head_left) return;
    if (c->frame->moved == c->frame->x.nbytes) {
        mesh_socket__list_remove(&s->peer[c->rank].streaming, c->frame);
        mesh_socket__xfer_done(s, c->frame);
    }
    c->frame = NULL;
}

/* From now on what goes to this peer goes through shared memory. */
MESH__RARE void mesh_socket__use_ring(mesh_socket__impl *s, mesh_socket__conn *c) {
    int sharer = s->peer[c->rank].sharer;
    if (!s->sharing || !sharer || !c->is_unix || c->ring_out) return;
    if (!mesh_socket__frame_put(s, c, MESH_SOCKET__F_RINGS, 0, 0, 0, 0, NULL, 0)) return; /* the socket will do */
    c->ring_out = mesh_socket__ring_of(s->shared, s->shared->me, sharer - 1);
    c->socket_left = c->out_len - c->out_at;
}

MESH__PRIVATE void mesh_socket__conn_failed(mesh_socket__conn *c, const char *what, int error) {
    mesh__text t;
    if (c->broken) return;
    mesh_socket__break(c, MESH_SOCKET__BROKEN);
    t = mesh__text_on(c->why, sizeof c->why);
    mesh__put(&t, "%s%s%s", what, error ? ": " : "", error ? strerror(error) : "");
}

MESH__INLINE int mesh_socket__wants_write(mesh_socket__impl *s, mesh_socket__conn *c) {
    if (c->mute) return 0;
    if (c->state == MESH_SOCKET__CONNECTING) return 1;
    if (c->out_len > c->out_at || c->frame || c->spare) return 1;
    return c->state == MESH_SOCKET__UP && c->rank >= 0 && s->peer[c->rank].conn == c &&
           s->peer[c->rank].streaming.head != NULL;
}

/* Is there something for the descriptor? */
MESH__INLINE int mesh_socket__wants_socket(mesh_socket__impl *s, mesh_socket__conn *c) {
    return c->ring_out ? c->socket_left > 0 : mesh_socket__wants_write(s, c);
}

/* ---- // >>what the core hears ---- */

/* What the core is to hear. Returns 0 without memory: that a rank is gone it then hears without the reason. */
MESH__PRIVATE int mesh_socket__control_add(mesh_socket__impl *s, int kind, int rank, const void *data,
                                           uint32_t nbytes) {
    int kept = mesh__inbox_add(&s->net->base, &s->mail, kind, rank, data, nbytes);
    if (!kept && (kind == MESH_EVENT_LOST || kind == MESH_EVENT_CLOSED))
        s->peer[rank].untold = s->untold = s->event = 1;
    if (kept) s->event = 1;
    return kept;
}

/* A rank is gone: say so once, and tell those we are connected to (they may not be connected to it). One that only could not be reached
   counts as closed until another rank knows that it was lost. */
MESH__PRIVATE void mesh_socket__gone(mesh_socket__impl *s, int rank, int kind, const char *why,
                                     const mesh_socket__conn *heard_from) {
    mesh_socket__peer *p = &s->peer[rank];
    int i;
    if (p->gone == MESH_EVENT_LOST || (p->gone && (kind != MESH_EVENT_LOST || p->goodbye))) return;
    p->gone = kind;
    mesh_socket__control_add(s, kind, rank, why, (uint32_t)strlen(why));
    if (kind != MESH_EVENT_LOST || s->in_open || s->closing) return;
    for (i = 0; i < s->nconns; i++) {
        mesh_socket__conn *c = s->conn[i];
        if (c->state != MESH_SOCKET__UP || c == heard_from || c->broken || c->rank == rank) continue;
        mesh_socket__frame_send(s, c, MESH_SOCKET__F_LOST, (uint64_t)rank, 0, why, (uint32_t)strlen(why));
        mesh_socket__flush(s, c);
    }
}

/* ---- // >>the address book, and what waited for a connection ---- */

/* An entry of the address book, 64 bytes, written or read. */
MESH__PRIVATE void mesh_socket__entry_wire(mesh__wire *w, mesh_socket__entry *e) {
    uint32_t place = (uint32_t)e->port | (uint32_t)e->family << 16 | (uint32_t)e->shares << 24;
    uint64_t none = 0; /* of the first entry: the job's number */
    mesh__wire_bytes(w, e->addr, sizeof e->addr);
    mesh__wire32(w, &place);
    mesh__wire32(w, &e->scope);
    mesh__wire64(w, &e->host);
    mesh__wire64(w, &e->token);
    mesh__wire64(w, &e->cores);
    mesh__wire64(w, &e->process);
    mesh__wire64(w, &none);
    e->port = (uint16_t)place;
    e->family = place >> 16 & 255;
    e->shares = (int)(place >> 24);
}

MESH__PRIVATE void mesh_socket__entry_write(unsigned char *p, const mesh_socket__entry *e) {
    mesh_socket__entry copy = *e;
    mesh__wire w = mesh__writing(p);
    mesh_socket__entry_wire(&w, &copy);
}

MESH__PRIVATE void mesh_socket__entry_read(mesh_socket__entry *e, const unsigned char *p) {
    mesh__wire w = mesh__reading(p);
    mesh_socket__entry_wire(&w, e);
}

/* What waited for a connection goes, in order: as much as may be offered at once. */
MESH__PRIVATE void mesh_socket__waiting_go(mesh_socket__impl *s, int rank) {
    mesh_socket__peer *p = &s->peer[rank];
    mesh_socket__xfer *x;
    while (p->conn && p->noffered < MESH_SOCKET__OFFERS && (x = p->waiting.head) != NULL) {
        mesh_socket__list_remove(&p->waiting, x);
        if (!mesh_socket__dispatch(s, p, x)) {
            mesh_socket__list_add(&p->waiting, x);
            mesh_socket__ticket_fail(s, x->ticket, MESH_ERR_MEMORY, -1, "no memory to send to rank %d", rank);
        }
    }
}

/* ---- // >>in: messages ---- */

MESH__PRIVATE int mesh_socket__is_dead(const mesh_socket__impl *s, uint64_t channel) {
    int low = 0, high = s->ndead;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (s->dead[middle] == (uint32_t)(channel >> 32)) return 1;
        if (s->dead[middle] < (uint32_t)(channel >> 32))
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

MESH__PRIVATE void mesh_socket__took(mesh_socket__impl *s, mesh_socket__peer *p, uint64_t nbytes) {
    p->taken += nbytes + MESH_SOCKET__HEADER;
    p->lent -= nbytes + MESH_SOCKET__HEADER;
    if (p->taken < MESH_SOCKET__CREDIT / 4 || !p->conn) return;
    mesh_socket__frame_send(s, p->conn, MESH_SOCKET__F_CREDIT, p->taken, 0, NULL, 0);
    p->taken = 0;
}

MESH__PRIVATE mesh_socket__xfer *mesh_socket__find_posted(mesh_socket__peer *p, uint64_t channel) {
    mesh_socket__xfer *x = p->posted.head;
    while (x && x->channel != channel) x = x->next;
    return x;
}

/* Compare a message with the receive it met (off the list already). Returns 1 if they agree, else both sides end with MISMATCH. */
MESH__PRIVATE int mesh_socket__agrees(mesh_socket__impl *s, mesh_socket__xfer *r, uint64_t nbytes, uint64_t check) {
    if (r->x.nbytes == nbytes && r->check == check) return 1;
    mesh_socket__ticket_fail(s, r->ticket, MESH_ERR_MISMATCH, r->x.rank, "rank %d sent %u bytes, rank %d expected %u%s",
                             r->x.rank, nbytes, s->net->base.rank, r->x.nbytes,
                             r->check != check ? ", of another operation" : "");
    return 0;
}

MESH__PRIVATE void mesh_socket__accept_offer(mesh_socket__impl *s, mesh_socket__peer *p, mesh_socket__xfer *r,
                                             uint64_t nbytes, uint64_t check, uint64_t offer) {
    uint64_t expected = r->x.nbytes;
    if (!mesh_socket__agrees(s, r, nbytes, check)) {
        if (p->conn) mesh_socket__frame_send(s, p->conn, MESH_SOCKET__F_REFUSE, offer, expected, NULL, 0);
        return;
    }
    if (!mesh_socket__id_take(s, r)) {
        mesh_socket__ticket_fail(s, r->ticket, MESH_ERR_MEMORY, -1, "no memory to receive from rank %d", r->x.rank);
        return;
    }
    r->matched = 1;
    if (r->x.nbytes == 0) mesh_socket__xfer_done(s, r); /* offered for want of credit */
    r->accepted = 1;
    if (p->conn) mesh_socket__frame_send(s, p->conn, MESH_SOCKET__F_ACCEPT, offer, r->id, NULL, 0);
    s->event = 1;
}

/* ---- // >>in: messages that this rank copies itself ---- */

MESH__PRIVATE void mesh_socket__tell_pull(mesh_socket__impl *s, int rank, uint64_t send_id, int over) {
    mesh_socket__conn *c = s->peer[rank].conn;
    if (!c || c->broken) return;
    mesh_socket__frame_send(s, c, MESH_SOCKET__F_PULL, send_id, (uint64_t)over, NULL, 0);
    mesh_socket__flush(s, c);
}

/* A receive has met a message that is lent: it is copied as time allows. */
MESH__PRIVATE void mesh_socket__accept_loan(mesh_socket__impl *s, mesh_socket__peer *p, mesh_socket__xfer *r,
                                            uint64_t nbytes, uint64_t check, uint64_t offer,
                                            const mesh_socket__loan *loan) {
    mesh_socket__pull *q, **at = &s->pulls;
    if (r->x.nbytes != nbytes || r->check != check || !mesh_socket__id_take(s, r) ||
        !(q = (mesh_socket__pull *)mesh_transport_alloc(&s->net->base, sizeof *q))) {
        mesh_socket__id_drop(s, r);
        mesh_socket__accept_offer(s, p, r, nbytes, check,
                                  offer); /* refused; or there is no memory: sent, if that helps */
        return;
    }
    memset(q, 0, sizeof *q);
    q->to = r;
    q->loan = *loan;
    q->from.base = loan->own ? (void *)(uintptr_t)loan->at : (void *)(s->shared->base + loan->at);
    q->from.nbytes = q->left = nbytes;
    q->from.block = q->loan.block.ndim ? &q->loan.block : NULL;
    q->src = mesh__cursor_on(&q->from);
    q->dst = mesh__cursor_on(&r->x);
    q->send_id = offer;
    r->matched = 1;
    while (*at) at = &(*at)->next;
    *at = q;
    if (nbytes > MESH_SOCKET__PULL_PIECE) mesh_socket__tell_pull(s, r->x.rank, offer, 0);
    s->event = 1;
}

MESH__PRIVATE void mesh_socket__pull_free(mesh_socket__impl *s, mesh_socket__pull *q) {
    mesh_socket__pull **at = &s->pulls;
    while (*at != q) at = &(*at)->next;
    *at = q->next;
    mesh_socket__aid_end(s, q);
    mesh_transport_free(&s->net->base, q);
}

/* A receive that is given up: the sender need wait no longer. */
MESH__PRIVATE void mesh_socket__pull_stop(mesh_socket__impl *s, mesh_socket__xfer *x) {
    mesh_socket__pull *q = s->pulls;
    while (q && q->to != x) q = q->next;
    if (!q) return;
    mesh_socket__tell_pull(s, x->x.rank, q->send_id, 1);
    mesh_socket__pull_free(s, q);
}

/* The kernel does not let this rank read there: it has to be sent after all. */
MESH__RARE void mesh_socket__pull_fails(mesh_socket__impl *s, mesh_socket__pull *q) {
    mesh_socket__xfer *r = q->to;
    mesh_socket__conn *c = s->peer[r->x.rank].conn;
    uint64_t offer = q->send_id;
    mesh_socket__pull_free(s, q);
    r->moved = 0;
    r->accepted = 1;
    if (c && !c->broken) mesh_socket__frame_send(s, c, MESH_SOCKET__F_ACCEPT, offer, r->id, NULL, 0);
}

/* Copy some of what is lent to this rank, a piece of each. Returns 1 if there was anything. */
MESH__PRIVATE int mesh_socket__pull_poll(mesh_socket__impl *s) {
    mesh_socket__pull *q = s->pulls, *next;
    if (!q) return 0;
    for (; q; q = next) {
        mesh_socket__xfer *r = q->to;
        int rank = r->x.rank;
        uint64_t send_id = q->send_id;
        next = q->next;
        if (!mesh_socket__aid_ask(s, q)) continue;
        if (!mesh_socket__pull_some(s, q)) {
            mesh_socket__pull_fails(s, q);
        } else if (!q->left && mesh_socket__is_lent(s, rank, &q->loan)) {
            mesh_socket__pull_free(s, q);
            mesh_socket__tell_pull(s, rank, send_id, 1);
            mesh_socket__xfer_done(s, r);
        } else if (!q->left) {
            mesh_socket__pull_free(s, q);
            mesh_socket__ticket_fail(s, r->ticket, MESH_ERR_CANCELED, rank, "rank %d canceled a message to rank %d",
                                     rank, s->net->base.rank);
            return 1; /* of the same operation others may have ended, too */
        }
    }
    s->event = 1;
    return 1;
}

MESH__PRIVATE void mesh_socket__early_add(mesh_socket__peer *p, mesh_socket__early *m) {
    if (!p->early) p->early_end = &p->early;
    m->next = NULL;
    *p->early_end = m;
    p->early_end = &m->next;
}

MESH__PRIVATE void mesh_socket__deliver(mesh_socket__impl *s, mesh_socket__xfer *r, const unsigned char *bytes) {
    mesh__unpack(&r->x, 0, bytes, (size_t)r->x.nbytes);
    r->matched = 1;
    mesh_socket__xfer_done(s, r);
}

/* The bytes of the frame being read are all here. */
MESH__PRIVATE void mesh_socket__frame_end(mesh_socket__impl *s, mesh_socket__conn *c) {
    mesh_socket__peer *p = &s->peer[c->rank];
    if (c->rx.type == MESH_SOCKET__F_EAGER) {
        int taken = 1;
        if (c->rx_to) {
            mesh_socket__xfer_done(s, c->rx_to);
        } else if (c->rx_early) {
            mesh_socket__xfer *r = mesh_socket__find_posted(p, c->rx.channel); /* posted while the bytes came in */
            if (r) {
                mesh_socket__list_remove(&p->posted, r);
                if (mesh_socket__agrees(s, r, c->rx_early->nbytes, c->rx_early->check))
                    mesh_socket__deliver(s, r, (unsigned char *)(c->rx_early + 1));
                mesh_transport_free(&s->net->base, c->rx_early);
            } else if (mesh_socket__is_dead(s, c->rx.channel)) { /* its group was closed while the bytes came in */
                mesh_transport_free(&s->net->base, c->rx_early);
            } else {
                mesh_socket__early_add(p, c->rx_early);
                taken = 0;
            }
        }
        if (taken) mesh_socket__took(s, p, c->rx.length);
    } else if (c->rx.type == MESH_SOCKET__F_DATA && c->rx_to && c->rx_to->moved == c->rx_to->x.nbytes) {
        mesh_socket__xfer_done(s, c->rx_to);
    } else if (c->rx.type == MESH_SOCKET__F_BOOK && c->rx_early) {
        const unsigned char *from = (unsigned char *)(c->rx_early + 1);
        int i;
        for (i = 0; i < s->net->base.size; i++)
            mesh_socket__entry_read(&s->book[i], from + (size_t)i * MESH_SOCKET__ENTRY);
        s->job = mesh__get64(from + 56);
        s->have_book = 1;
        mesh_transport_free(&s->net->base, c->rx_early);
    }
    c->rx_to = NULL;
    c->rx_early = NULL;
}

MESH__PRIVATE mesh_socket__early *mesh_socket__early_new(mesh_socket__impl *s, mesh_socket__conn *c, uint64_t nbytes) {
    mesh_socket__early *m = (mesh_socket__early *)mesh_transport_alloc(&s->net->base, sizeof *m + (size_t)nbytes + 1);
    if (!m) return NULL;
    memset(m, 0, sizeof *m);
    m->channel = c->rx.channel;
    m->check = c->rx.check;
    m->nbytes = nbytes;
    return m;
}

/* A connection whose peer is said to be lost, or seen to be, ends soon, if not by itself: what came over it is read first. */
MESH__PRIVATE void mesh_socket__doubt(mesh_socket__conn *c, const char *why) {
    if (!c->deadline) c->deadline = mesh_socket__clock() + INT64_C(200000000);
    mesh_socket__stir(c);
    mesh__copy_text(c->doubt, sizeof c->doubt, why);
}

/* ---- // >>in: who deals with which frame. Each decides where the bytes behind the header go, and returns 0 without memory for what has to be
   kept: nothing has been done then. */

MESH__PRIVATE int mesh_socket__on_eager(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    mesh_socket__peer *p = &s->peer[c->rank];
    mesh_socket__xfer *x;
    p->lent += f->length + MESH_SOCKET__HEADER;
    if (p->lent > MESH_SOCKET__CREDIT) {
        mesh_socket__conn_failed(c, "it sent more than its credit", 0);
        return 1;
    }
    c->rx_left = f->length;
    if (mesh_socket__is_dead(s, f->channel)) return 1;
    if ((x = mesh_socket__find_posted(p, f->channel)) != NULL) {
        mesh_socket__list_remove(&p->posted, x);
        if (mesh_socket__agrees(s, x, f->length, f->check)) {
            x->matched = 1;
            c->rx_to = x;
        }
        return 1;
    }
    if ((c->rx_early = mesh_socket__early_new(s, c, f->length)) != NULL) return 1;
    p->lent -= f->length + MESH_SOCKET__HEADER;
    c->rx_left = 0;
    return 0;
}

MESH__PRIVATE int mesh_socket__on_offer(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    mesh_socket__peer *p = &s->peer[c->rank];
    mesh_socket__xfer *x;
    mesh_socket__early *m;
    if (mesh_socket__is_dead(s, f->channel)) return 1;
    if ((x = mesh_socket__find_posted(p, f->channel)) != NULL) {
        mesh_socket__list_remove(&p->posted, x);
        mesh_socket__accept_offer(s, p, x, f->a, f->check, f->b);
        return 1;
    }
    if (++p->offers > 2 * MESH_SOCKET__OFFERS) { /* twice: what was canceled there may still lie here */
        mesh_socket__conn_failed(c, "it offered more messages than may wait", 0);
        return 1;
    }
    if ((m = mesh_socket__early_new(s, c, 0)) == NULL) {
        p->offers--;
        return 0;
    }
    m->nbytes = f->a;
    m->offer = f->b;
    m->is_offer = 1;
    mesh_socket__early_add(p, m);
    return 1;
}

MESH__PRIVATE int mesh_socket__on_lend(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    mesh_socket__peer *p = &s->peer[c->rank];
    unsigned char where[256];
    mesh__wire w;
    mesh_socket__loan loan;
    mesh_socket__xfer *x;
    mesh_socket__early *m;
    memset(where, 0, sizeof where);
    memcpy(where, f->data, f->length);
    memset(&loan, 0, sizeof loan);
    w = mesh__reading(where);
    mesh_socket__loan_wire(&w, &loan);
    if (!mesh_socket__loan_valid(s, c->rank, &loan, f->a)) {
        mesh_socket__conn_failed(c, "it lent what it does not have", 0);
        return 1;
    }
    if (mesh_socket__is_dead(s, f->channel)) return 1;
    if ((x = mesh_socket__find_posted(p, f->channel)) != NULL) {
        mesh_socket__list_remove(&p->posted, x);
        mesh_socket__accept_loan(s, p, x, f->a, f->check, f->b, &loan);
        return 1;
    }
    if (++p->offers > 2 * MESH_SOCKET__OFFERS) {
        mesh_socket__conn_failed(c, "it offered more messages than may wait", 0);
        return 1;
    }
    if ((m = mesh_socket__early_new(s, c, sizeof loan)) == NULL) {
        p->offers--;
        return 0;
    }
    m->nbytes = f->a;
    m->offer = f->b;
    m->is_offer = m->is_lent = 1;
    memcpy(m + 1, &loan, sizeof loan);
    mesh_socket__early_add(p, m);
    return 1;
}

MESH__PRIVATE int mesh_socket__on_pull(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    mesh_socket__peer *p = &s->peer[c->rank];
    mesh_socket__xfer *x = mesh_socket__id_find(s, f->a, c->rank, MESH_SEND);
    if (!x || !x->loan) return 1; /* canceled meanwhile */
    x->matched = 1;
    if (!f->b && p->sharer) s->aids |= (uint64_t)1 << (p->sharer - 1);
    if (!f->b || !mesh_socket__unoffer(p, x)) return 1;
    mesh_socket__xfer_done(s, x);
    if (p->waiting.head) mesh_socket__waiting_go(s, c->rank);
    return 1;
}

MESH__PRIVATE int mesh_socket__on_accept(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    mesh_socket__peer *p = &s->peer[c->rank];
    mesh_socket__xfer *x = mesh_socket__id_find(s, f->a, c->rank, MESH_SEND);
    if (!x || !mesh_socket__unoffer(p, x)) { /* canceled meanwhile */
        mesh_socket__frame_send(s, c, MESH_SOCKET__F_WITHDRAW, f->b, 0, NULL, 0);
        return 1;
    }
    if (x->loan) mesh_socket__loan_end(s, x);
    x->matched = 1;
    x->remote = f->b;
    if (x->x.nbytes == 0)
        mesh_socket__xfer_done(s, x);
    else
        mesh_socket__list_add(&p->streaming, x), mesh_socket__stir(c);
    if (p->waiting.head) mesh_socket__waiting_go(s, c->rank);
    return 1;
}

MESH__PRIVATE int mesh_socket__on_refuse(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    mesh_socket__xfer *x = mesh_socket__id_find(s, f->a, c->rank, MESH_SEND);
    if (x)
        mesh_socket__ticket_fail(s, x->ticket, MESH_ERR_MISMATCH, c->rank,
                                 "rank %d sent %u bytes, rank %d expected %u%s", s->net->base.rank, x->x.nbytes,
                                 c->rank, f->b, x->x.nbytes == f->b ? ", of another operation" : "");
    return 1;
}

MESH__PRIVATE int mesh_socket__on_withdraw(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    mesh_socket__xfer *x = mesh_socket__id_find(s, f->a, c->rank, MESH_RECV);
    if (x)
        mesh_socket__ticket_fail(s, x->ticket, MESH_ERR_CANCELED, c->rank, "rank %d canceled a message to rank %d",
                                 c->rank, s->net->base.rank);
    return 1;
}

MESH__PRIVATE int mesh_socket__on_data(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    mesh_socket__xfer *x = mesh_socket__id_find(s, f->a, c->rank, MESH_RECV);
    c->rx_left = f->length;
    c->rx_to = x;
    if (x && (!x->accepted || x->moved != f->b || f->b + f->length > x->x.nbytes)) {
        c->rx_to = NULL;
        mesh_socket__conn_failed(c, x->accepted ? "it sent bytes that were not next" : "it sent bytes that it lends",
                                 0);
    }
    return 1;
}

MESH__PRIVATE int mesh_socket__on_credit(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    mesh_socket__peer *p = &s->peer[c->rank];
    if (f->a > MESH_SOCKET__CREDIT - p->credit)
        mesh_socket__conn_failed(c, "it took more than was sent to it", 0);
    else
        p->credit += f->a;
    return 1;
}

MESH__PRIVATE int mesh_socket__on_control(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    mesh_socket__peer *p = &s->peer[c->rank];
    int kind = f->a == MESH_EVENT_ABORT ? MESH_EVENT_ABORT : MESH_EVENT_MESSAGE;
    if (++p->controls > MESH_SOCKET__CONTROLS) {
        mesh_socket__conn_failed(c, "it sent more control messages than may wait", 0);
        return 1;
    }
    if (mesh_socket__control_add(s, kind, c->rank, f->data, f->length)) return 1;
    p->controls--;
    return 0;
}

/* That ends this pair; nobody was lost, so the others hear nothing of it. */
MESH__PRIVATE int mesh_socket__on_given_up(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    mesh_socket__peer *p = &s->peer[c->rank];
    char text[MESH_ERROR_BYTES];
    mesh__text t = mesh__text_on(text, sizeof text);
    uint32_t i;
    int lead = -1; /* whom this rank's opening waits for */
    if (s->in_open)
        lead = 0;
    else if (s->awaits_fds && s->shared)
        lead = s->shared->rank[0];
    if (!f->a) mesh__put(&t, "it has given this rank up: ");
    for (i = 0; i < f->length; i++) mesh__put_char(&t, (char)f->data[i]);
    if (p->gone != MESH_EVENT_LOST) {
        p->gone = MESH_EVENT_LOST;
        mesh_socket__control_add(s, MESH_EVENT_LOST, c->rank, text, (uint32_t)strlen(text));
    }
    if (c->rank == lead && f->a > 0 && f->a < 64 && f->b < (uint64_t)s->net->base.size)
        mesh__fail(&s->told, (mesh_status)(-(int)f->a), (int)f->b, "%s", text);
    mesh_socket__conn_failed(c, text, 0);
    return 1;
}

MESH__PRIVATE int mesh_socket__on_stays(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    (void)f;
    s->peer[c->rank].settled = 1;
    return 1;
}

MESH__PRIVATE int mesh_socket__on_share(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    s->given_ranks = f->a <= MESH_SOCKET__SHARERS ? (int)f->a : 0;
    s->given_heap = f->b;
    s->peer[c->rank].shares = MESH_SOCKET__SAYS_YES;
    return 1;
}

MESH__PRIVATE int mesh_socket__on_shared(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    s->peer[c->rank].shares = f->a ? MESH_SOCKET__SAYS_YES : MESH_SOCKET__SAYS_NO;
    return 1;
}

MESH__PRIVATE int mesh_socket__on_rings(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    int sharer = s->peer[c->rank].sharer;
    (void)f;
    if (!s->shared || !sharer || c->ring_in)
        mesh_socket__conn_failed(c, "it shares no memory with this rank", 0);
    else
        c->ring_in = mesh_socket__ring_of(s->shared, sharer - 1, s->shared->me);
    return 1;
}

MESH__PRIVATE int mesh_socket__on_lost(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    char text[257];
    mesh__text t = mesh__text_on(text, (size_t)f->length + 1);
    mesh_socket__conn *theirs;
    uint32_t i;
    if (f->a >= (uint64_t)s->net->base.size || (int)f->a == s->net->base.rank) return 1;
    if (c->doubt[0]) return 1; /* testimony of one who is doubted */
    theirs = s->peer[f->a].conn;
    for (i = 0; i < f->length; i++) mesh__put_char(&t, (char)f->data[i]);
    if (theirs && theirs != c) { /* what it sent may be unread; its end will show, or else soon */
        theirs->silent = 0;
        mesh_socket__doubt(theirs, text);
    } else {
        mesh_socket__gone(s, (int)f->a, MESH_EVENT_LOST, text, c);
    }
    return 1;
}

MESH__PRIVATE int mesh_socket__on_book(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    if (!(c->rx_early = mesh_socket__early_new(s, c, f->length))) return 0;
    c->rx_left = f->length;
    return 1;
}

MESH__PRIVATE int mesh_socket__on_goodbye(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f) {
    (void)f;
    s->peer[c->rank].goodbye = 1;
    mesh_socket__gone(s, c->rank, MESH_EVENT_CLOSED, "", c);
    return 1;
}

#define MESH_X(name, handler, least, most, whole) {mesh_socket__on_##handler, least, most, whole},

static const struct {
    int (*begin)(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_socket__frame *f);
    uint32_t least, most;
    int whole;
} mesh_socket__frames[] = {{NULL, 1, 0, 0}, MESH_SOCKET__FRAMES(MESH_X)};

#undef MESH_X

/* Is this header one that may come? Bounds first: nothing is allocated for what cannot be. */
MESH__PRIVATE int mesh_socket__frame_valid(const mesh_socket__impl *s, const mesh_socket__conn *c) {
    const mesh_socket__frame *f = &c->rx;
    if (f->type >= MESH_SOCKET__F_END || f->length < mesh_socket__frames[f->type].least ||
        f->length > mesh_socket__frames[f->type].most || f->zero)
        return 0;
    return f->type != MESH_SOCKET__F_BOOK ||
           (s->in_open && c->rank == 0 && f->length == (uint64_t)s->net->base.size * MESH_SOCKET__ENTRY);
}

/* More of the bytes that belong to the frame being read. Returns 0 when there are none. */
MESH__PRIVATE int mesh_socket__parse_bytes(mesh_socket__impl *s, mesh_socket__conn *c) {
    size_t n = c->in_len - c->in_at;
    if (!n) return 0;
    if (n > c->rx_left) n = (size_t)c->rx_left;
    if (c->rx_to) {
        mesh__unpack(&c->rx_to->x, c->rx_to->moved, c->in + c->in_at, n);
        c->rx_to->moved += n;
    } else if (c->rx_early) {
        mesh__copy_bytes((unsigned char *)(c->rx_early + 1) + (c->rx.length - c->rx_left), c->in + c->in_at, n);
    }
    c->rx_left -= n;
    c->in_at += n;
    if (!c->rx_left) mesh_socket__frame_end(s, c);
    return 1;
}

/* Take frames out of what was read ahead. */
MESH__PRIVATE void mesh_socket__parse(mesh_socket__impl *s, mesh_socket__conn *c) {
    while (!c->broken) {
        size_t have = c->in_len - c->in_at;
        mesh__wire w = mesh__reading(c->in + c->in_at);
        if (c->rx_left) {
            if (!mesh_socket__parse_bytes(s, c)) return;
            continue;
        }
        if (have < MESH_SOCKET__HEADER) return;
        mesh_socket__header_wire(&w, &c->rx);
        if (!mesh_socket__frame_valid(s, c)) {
            mesh_socket__conn_failed(c, "it sent a frame that cannot be", 0);
            return;
        }
        if (mesh_socket__frames[c->rx.type].whole && have < MESH_SOCKET__HEADER + (size_t)c->rx.length) return;
        s->event = 1;
        c->rx.data = w.at;
        if (!mesh_socket__frames[c->rx.type].begin(s, c, &c->rx)) {
            c->starved = s->starved = 1;
            mesh_socket__stir(c);
            return;
        }
        if (!c->broken && !c->rx_left) mesh_socket__frame_end(s, c);
        c->in_at += MESH_SOCKET__HEADER;
        if (c->rx.type == MESH_SOCKET__F_RINGS) c->in_at = c->in_len; /* nothing more */
        if (mesh_socket__frames[c->rx.type].whole) c->in_at += c->rx.length;
    }
}

/* Where the next bytes go: what belongs to a message straight to its place (`direct` bytes), what follows is read ahead. Returns how many pieces
   v has, of `ask` bytes in all. */
MESH__PRIVATE int mesh_socket__room(mesh_socket__conn *c, struct iovec *v, size_t *direct, size_t *ask) {
    size_t room;
    int k = 0;
    *direct = 0;
    if (c->in_at) memmove(c->in, c->in + c->in_at, c->in_len - c->in_at);
    c->in_len -= c->in_at;
    c->in_at = 0;
    if (c->rx_left && c->rx_to && !mesh_socket__is_fine(&c->rx_to->x, c->ring_in)) {
        mesh__cursor to = mesh__cursor_at(&c->rx_to->x, c->rx_to->moved);
        int i;
        k = mesh_socket__runs(&to, c->rx_left, v, MESH_SOCKET__IOVS);
        for (i = 0; i < k; i++) *direct += v[i].iov_len;
    }
    room = MESH_SOCKET__RBUF - c->in_len;
    if (room > MESH_SOCKET__AHEAD) room = MESH_SOCKET__AHEAD;
    if (!c->rx_left || *direct == c->rx_left || !c->rx_to || mesh_socket__is_fine(&c->rx_to->x, c->ring_in)) {
        v[k].iov_base = c->in + c->in_len;
        v[k++].iov_len = room;
    } else {
        room = 0;
    }
    *ask = *direct + room;
    return k;
}

/* n bytes have come there. */
MESH__PRIVATE void mesh_socket__came(mesh_socket__impl *s, mesh_socket__conn *c, size_t n, size_t direct) {
    size_t got = n < direct ? n : direct;
    s->event = 1;
    c->silent = 0;
    if (direct) {
        c->rx_to->moved += got;
        c->rx_left -= got;
        if (!c->rx_left) mesh_socket__frame_end(s, c);
    }
    c->in_len += n - got;
    mesh_socket__parse(s, c);
}
#endif /* MESH_SOCKET_FRAMES_IMPLEMENTED */
