/* socket/loop.h - the event loop: bytes in and out, connections that come, stand and end. Part of mesh.h 0.1.0. MIT licence.

   Includes handshake.h and patience.h.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_LOOP_IMPLEMENTED)
#define MESH_SOCKET_LOOP_IMPLEMENTED
#include "handshake.h"
#include "patience.h"

static const char mesh_socket__left[] = "it ended without goodbye (killed, or it left without mesh_socket_close)";

MESH__PRIVATE void mesh_socket__read(mesh_socket__impl *s, mesh_socket__conn *c);
MESH__PRIVATE int mesh_socket__direct_poll(mesh_socket__impl *s); /* direct.h: collectives in shared memory go on */
MESH__PRIVATE void mesh_socket__direct_reach(mesh_socket__impl *s);

/* The places where bytes enter and leave. */

/* Wake a rank that sleeps: there is something for it in shared memory. What is there was written before. */
MESH__PRIVATE void mesh_socket__bell(mesh_socket__impl *s, int rank) {
    int sharer = s->peer[rank].sharer - 1;
    mesh_socket__place *place = mesh_socket__place_of(s->shared, sharer);
    uint64_t one = 1;
    ssize_t n;
    mesh_socket__written(s->shared);
    if (!MESH_SOCKET__SEE(&place->asleep) || !MESH_SOCKET__SWAP(&place->asleep, 0u)) return;
    n = write(s->shared->bell[sharer], &one, sizeof one); /* where it is full there is ringing enough */
    (void)n;
}

/* Write into shared memory until it is full. */
MESH__PRIVATE void mesh_socket__write_ring(mesh_socket__impl *s, mesh_socket__conn *c) {
    mesh_socket__ring *r = c->ring_out;
    mesh_socket__peer *p = &s->peer[c->rank];
    unsigned char *bytes = mesh_socket__ring_bytes(s->shared, r);
    struct iovec v[MESH_SOCKET__IOVS];
    int any = 0;
    while (!c->broken && !c->mute &&
           (c->frame || c->spare || c->out_len > c->out_at || mesh_socket__next_frame(s, c))) {
        uint32_t room = mesh_socket__ring_room(p, r, MESH_SOCKET__RING_PIECE), put = 0;
        int i, n, whole;
        if (!room) {
            MESH_SOCKET__SHOW(&r->full, 1u);
            MESH_SOCKET__FENCE();
            if (!(room = mesh_socket__ring_room(p, r, 1))) break;
        }
        if (r->full) MESH_SOCKET__SHOW(&r->full, 0u);
        if (room > MESH_SOCKET__RING_PIECE) room = MESH_SOCKET__RING_PIECE;
        whole = c->frame && c->frame_left && !c->head_left && !c->spare;
        if (whole) { /* of one message, packed where it is strided */
            put = c->frame_left < room ? (uint32_t)c->frame_left : room;
            mesh_socket__ring_pack(p, bytes, 0, &c->frame->x, c->frame->moved, put);
        }
        n = whole ? 0 : mesh_socket__gather(c, v);
        for (i = 0; i < n && put < room; i++) {
            uint32_t part = v[i].iov_len < room - put ? (uint32_t)v[i].iov_len : room - put;
            mesh_socket__ring_put(p, bytes, put, v[i].iov_base, part);
            put += part;
        }
        mesh_socket__ring_show(p, r, put);
        mesh_socket__wrote(s, c, put);
        any = 1;
    }
    if (any) mesh_socket__bell(s, c->rank);
}

/* A short message straight into shared memory. Returns 0 where something is before it, or there is no room: there, or at the peer. */
MESH__PRIVATE int mesh_socket__put_short(mesh_socket__impl *s, mesh_socket__conn *c, const mesh_xfer *x,
                                         uint64_t channel, uint64_t check) {
    mesh_socket__ring *r = c->ring_out;
    mesh_socket__peer *p = &s->peer[c->rank];
    unsigned char *bytes;
    unsigned char head[MESH_SOCKET__HEADER];
    uint64_t n = x->nbytes;
    uint32_t whole = (uint32_t)n + MESH_SOCKET__HEADER;
    if (!r || c->socket_left || n + MESH_SOCKET__HEADER > MESH_SOCKET__RING_PIECE || whole > p->credit ||
        !mesh_socket__is_idle(s, c) || mesh_socket__ring_room(p, r, whole) < whole)
        return 0;
    bytes = mesh_socket__ring_bytes(s->shared, r);
    mesh_socket__header(head, MESH_SOCKET__F_EAGER, (uint32_t)n, channel, check, 0, 0);
    mesh_socket__ring_put(p, bytes, 0, head, MESH_SOCKET__HEADER);
    mesh_socket__ring_pack(p, bytes, MESH_SOCKET__HEADER, x, 0, (uint32_t)n);
    mesh_socket__ring_show(p, r, whole);
    p->credit -= whole;
    mesh_socket__bell(s, c->rank);
    return 1;
}

/* Write until the kernel takes no more. */
MESH__PRIVATE void mesh_socket__write(mesh_socket__impl *s, mesh_socket__conn *c) {
    struct iovec v[MESH_SOCKET__IOVS];
    int rounds;
    for (rounds = 0; rounds < 64 && !c->broken && !c->mute; rounds++) {
        if (c->ring_out && !c->socket_left) {
            mesh_socket__write_ring(s, c);
            return;
        }
        struct msghdr m;
        ssize_t n;
        size_t all = 0;
        int i;
        if (!c->frame && !c->spare && c->out_len == c->out_at &&
            !(c->state == MESH_SOCKET__UP && mesh_socket__next_frame(s, c)))
            return;
        memset(&m, 0, sizeof m);
        m.msg_iov = v;
        m.msg_iovlen = (size_t)mesh_socket__gather(c, v);
        for (i = 0; i < (int)m.msg_iovlen; i++) all += v[i].iov_len;
        n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (c->state == MESH_SOCKET__UP && (errno == EPIPE || errno == ECONNRESET))
                c->mute = 1; /* reading finds its end, after what it said last */
            else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS)
                mesh_socket__conn_failed(c, "writing", errno);
            return;
        }
        if (c->socket_left) c->socket_left -= (size_t)n;
        mesh_socket__wrote(s, c, (size_t)n);
        if ((size_t)n < all) return;
    }
}

/* The same; what is left goes when the kernel has room again. */
MESH__PRIVATE void mesh_socket__flush(mesh_socket__impl *s, mesh_socket__conn *c) {
    mesh_socket__write(s, c);
    if (c->interest && !c->broken && !mesh_socket__arm_conn(s, c)) mesh_socket__stir(c);
}

/* Read handshake bytes, never beyond them. */
MESH__PRIVATE void mesh_socket__read_greeting(mesh_socket__impl *s, mesh_socket__conn *c) {
    while (c->state == MESH_SOCKET__GREETING && !c->broken) {
        ssize_t n = recv(c->fd, c->greet + c->greet_have, (size_t)(c->greet_need - c->greet_have), 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0)
            mesh_socket__conn_failed(c, n ? "reading" : "it hung up during the handshake", n ? errno : 0);
        else
            mesh_socket__greeted(s, c, (int)n);
    }
}

/* A short message straight out of shared memory, `have` bytes of which are there. Returns the bytes of its frame; 0: it is no such, and comes the
   long way. */
MESH__PRIVATE uint32_t mesh_socket__take_short(mesh_socket__impl *s, mesh_socket__conn *c, uint32_t have) {
    const mesh_socket__ring *r = c->ring_in;
    mesh_socket__peer *p = &s->peer[c->rank];
    const unsigned char *bytes = mesh_socket__ring_bytes(s->shared, r);
    unsigned char head[MESH_SOCKET__HEADER];
    mesh__wire w;
    mesh_socket__xfer *x;
    if (c->rx_left || c->in_len != c->in_at || have < MESH_SOCKET__HEADER) return 0;
    mesh_socket__ring_take(p, bytes, 0, head, MESH_SOCKET__HEADER);
    w = mesh__reading(head);
    mesh_socket__header_wire(&w, &c->rx);
    if (c->rx.type != MESH_SOCKET__F_EAGER || c->rx.length > have - MESH_SOCKET__HEADER ||
        p->lent + c->rx.length + MESH_SOCKET__HEADER > MESH_SOCKET__CREDIT || mesh_socket__is_dead(s, c->rx.channel))
        return 0;
    c->silent = 0;
    if ((x = mesh_socket__find_posted(p, c->rx.channel)) != NULL) {
        if (x->x.nbytes != c->rx.length || x->check != c->rx.check) return 0;
        mesh_socket__list_remove(&p->posted, x);
        mesh_socket__ring_unpack(p, bytes, MESH_SOCKET__HEADER, &x->x, 0, c->rx.length);
        x->matched = 1;
        mesh_socket__xfer_done(s, x);
        p->lent += c->rx.length + MESH_SOCKET__HEADER;
        mesh_socket__took(s, p, c->rx.length);
    } else {
        mesh_socket__early *m = mesh_socket__early_new(s, c, c->rx.length);
        if (!m) return 0;
        mesh_socket__ring_take(p, bytes, MESH_SOCKET__HEADER, m + 1, c->rx.length);
        mesh_socket__early_add(p, m);
        p->lent += c->rx.length + MESH_SOCKET__HEADER;
        s->event = 1;
    }
    return MESH_SOCKET__HEADER + c->rx.length;
}

/* Read what is in shared memory. */
MESH__PRIVATE void mesh_socket__read_ring(mesh_socket__impl *s, mesh_socket__conn *c) {
    mesh_socket__ring *r = c->ring_in;
    mesh_socket__peer *p = &s->peer[c->rank];
    const unsigned char *bytes = mesh_socket__ring_bytes(s->shared, r);
    int rounds;
    for (rounds = 0; rounds < 64 && !c->broken && !c->starved; rounds++) {
        struct iovec v[MESH_SOCKET__IOVS + 1];
        size_t direct = 0, ask;
        uint32_t have = mesh_socket__ring_holds(p, r), taken;
        int i, n, whole;
        if (!have) return;
        if (have > MESH_SOCKET__RING_PIECE) have = MESH_SOCKET__RING_PIECE;
        whole = (taken = mesh_socket__take_short(s, c, have)) != 0;
        if (!whole && c->rx_left && c->rx_to) { /* of one message, of which nothing is read ahead any more */
            direct = taken = c->rx_left < have ? (uint32_t)c->rx_left : have;
            mesh_socket__ring_unpack(p, bytes, 0, &c->rx_to->x, c->rx_to->moved, taken);
        }
        n = taken ? 0 : mesh_socket__room(c, v, &direct, &ask);
        for (i = 0; i < n && taken < have; i++) {
            uint32_t part = v[i].iov_len < have - taken ? (uint32_t)v[i].iov_len : have - taken;
            mesh_socket__ring_take(p, bytes, taken, v[i].iov_base, part);
            taken += part;
        }
        if (mesh_socket__ring_free(p, r, taken)) mesh_socket__bell(s, c->rank);
        if (!whole) mesh_socket__came(s, c, taken, direct);
    }
}

/* A connection whose messages come through shared memory: its descriptor tells of the end. What was written before that is read first. */
MESH__PRIVATE void mesh_socket__read_shared(mesh_socket__impl *s, mesh_socket__conn *c) {
    unsigned char nothing[64];
    ssize_t n;
    do {
        n = recv(c->fd, nothing, sizeof nothing, 0);
    } while (n == (ssize_t)sizeof nothing || (n < 0 && errno == EINTR));
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) c->ended = 1;
    mesh_socket__read_ring(s, c);
    if (c->ended && !c->starved && !mesh_socket__ring_holds(&s->peer[c->rank], c->ring_in))
        mesh_socket__conn_failed(c, mesh_socket__left, 0);
}

/* Descriptors may come with these bytes, while memory is passed on. */
MESH__RARE void mesh_socket__take_fds(mesh_socket__impl *s, struct msghdr *m) {
    struct cmsghdr *head = CMSG_FIRSTHDR(m);
    int i;
    if (!head || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) return;
    mesh_socket__give_back(s);
    /* no more than there was room for */
    s->ngiven = (int)((head->cmsg_len - MESH_SOCKET__CMSG_LEN(0)) / sizeof *s->given);
    memcpy(s->given, CMSG_DATA(head), (size_t)s->ngiven * sizeof *s->given);
    for (i = 0; i < s->ngiven; i++) fcntl(s->given[i], F_SETFD, FD_CLOEXEC);
}

/* Read until there is nothing more. */
MESH__PRIVATE void mesh_socket__read(mesh_socket__impl *s, mesh_socket__conn *c) {
    int rounds;
    if (c->starved) { /* is there memory now? */
        c->starved = 0;
        mesh_socket__parse(s, c);
    }
    if (c->starved) return;
    for (rounds = 0; rounds < 32 && !c->broken; rounds++) {
        struct iovec v[MESH_SOCKET__IOVS + 1];
        struct msghdr m;
        union {
            struct cmsghdr aligned;
            unsigned char bytes[MESH_SOCKET__CMSG_SPACE(sizeof s->given)];
        } extra;
        size_t direct, ask;
        ssize_t n;
        if (c->ring_in) {
            mesh_socket__read_shared(s, c);
            return;
        }
        memset(&m, 0, sizeof m);
        m.msg_iov = v;
        m.msg_iovlen = (size_t)mesh_socket__room(c, v, &direct, &ask);
        if (s->awaits_fds && c->is_unix)
            m.msg_control = &extra, m.msg_controllen = MESH_SOCKET__CMSG_LEN(sizeof s->given);
        n = recvmsg(c->fd, &m, 0);
        if (n > 0 && m.msg_control && m.msg_controllen) mesh_socket__take_fds(s, &m);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            mesh_socket__conn_failed(c, n ? "reading" : mesh_socket__left, n ? errno : 0);
            return;
        }
        mesh_socket__came(s, c, (size_t)n, direct);
        if (c->starved || (size_t)n < ask) return;
    }
}

MESH__PRIVATE void mesh_socket__accept(mesh_socket__impl *s, int listener) {
    int i, strangers = 0, taken = 0;
    for (i = 0; i < s->nconns; i++) strangers += s->conn[i]->rank < 0 && !s->conn[i]->broken;
    for (;;) {
        struct sockaddr_storage from;
        socklen_t length = sizeof from;
        mesh_socket__conn *c;
        int fd = mesh_socket__take(listener, &from, &length);
        if (fd < 0 && errno == EINTR) continue;
        if (fd < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) s->accept_at = mesh_socket__clock() + 10000000;
            return;
        }
        if (listener == s->unix_fd && !s->secret_bytes && !mesh_socket__is_ours(fd)) {
            close(fd);
            continue;
        }
        if (!mesh_socket__nonblocking(fd) || !(c = mesh_socket__conn_new(s, fd))) {
            close(fd);
            s->starved |= s->in_open; /* later it comes again */
            return;
        }
        if (strangers >= MESH_SOCKET__STRANGERS + s->net->base.size) { /* the oldest makes room */
            mesh_socket__conn *oldest = NULL;
            for (i = 0; i < s->nconns; i++)
                if (s->conn[i] != c && s->conn[i]->rank < 0 && !s->conn[i]->broken &&
                    (!oldest || s->conn[i]->deadline < oldest->deadline))
                    oldest = s->conn[i];
            mesh_socket__conn_failed(oldest, "it said nothing, and others came", 0);
            strangers--;
        }
        mesh_socket__tune(fd, (struct sockaddr *)(void *)&from);
        c->is_unix = listener == s->unix_fd;
        c->is_near = c->is_unix || mesh_socket__is_loopback((struct sockaddr *)(void *)&from);
        c->greet_need = MESH_SOCKET__C1;
        c->deadline = mesh_socket__clock() + INT64_C(10000000000); /* it is stirred, being new */
        strangers++;
        if (++taken == MESH_SOCKET__STRANGERS) return; /* read what they say before the next come */
    }
}

/* Why the attempt at rank 0's address in use has failed. */
MESH__RARE void mesh_socket__attempt_failed(mesh_socket__impl *s, const char *why) {
    mesh__copy_text(s->last, sizeof s->last, why);
    mesh__copy_text(s->said[s->at_address], sizeof s->said[0], why);
}

/* What listens there ends connections and says nothing: it may be another program, or rank 0 behind a forwarder that is early. Who starts the job is told, once. */
MESH__RARE void mesh_socket__hung_up(mesh_socket__impl *s) {
    mesh_socket__attempt_failed(s, "it hangs up without a word; if it is another program, set another MASTER_PORT");
    if (++s->hangups == MESH_SOCKET__HANGUPS) s->hint_at = 0;
}

/* A connection has ended: what that means depends on who was at the other end, and how far it had come. */
MESH__PRIVATE void mesh_socket__conn_end(mesh_socket__impl *s, mesh_socket__conn *c) {
    int rank = c->rank, was_up = c->state == MESH_SOCKET__UP, initiator = c->initiator, silent = c->silent,
        gave_way = c->broken == MESH_SOCKET__GAVE_WAY, is_unix = c->is_unix,
        connecting = c->state == MESH_SOCKET__CONNECTING, refused = c->refused,
        unanswered = c->state == MESH_SOCKET__GREETING && c->await == MESH_SOCKET__AWAIT_ANSWER && !c->greet_have;
    char why[256];
    int replaced = was_up && rank >= 0 && s->peer[rank].conn != c;
    mesh_socket__peer *p;
    mesh__copy_text(why, sizeof why, c->why);
    if (rank < 0 && !gave_way) {
        if (!s->stranger[0]) mesh__copy_text(s->stranger, sizeof s->stranger, why);
        /* one that only ended may be of this job's, from a rank that is leaving */
        mesh_socket__log(s, refused ? 1 : 2, "mesh_socket: dropped a connection that is none of this job's: %s", why);
    }
    mesh_socket__conn_free(s, c);
    if (rank < 0 || replaced) return;
    if (s->in_open && initiator && rank == 0 && unanswered && !gave_way && !refused)
        mesh_socket__hung_up(s);
    else if (s->in_open)
        mesh_socket__attempt_failed(s, why);
    p = &s->peer[rank];
    if (was_up) { /* whether a silent one was lost rank 0 knows */
        mesh_socket__gone(s, rank, silent ? MESH_EVENT_CLOSED : MESH_EVENT_LOST, why, NULL);
        mesh_socket__peer_fail(s, rank, why);
        return;
    }
    if (!initiator || p->conn || s->in_open) return;
    if (gave_way) { /* theirs is coming; if it does not, try again */
        p->retry_at = mesh_socket__clock() + INT64_C(200000000);
        mesh_socket__unsettle(s, rank);
        return;
    }
    if (is_unix && connecting) {
        p->tried_unix = 1;
        mesh_socket__reach(s, rank);
        return;
    }
    if (!connecting && !refused) { /* it was there, but busy or leaving: if it is gone, the next attempt is refused */
        p->retry_at = mesh_socket__clock() + INT64_C(20000000);
        mesh_socket__unsettle(s, rank);
        return;
    }
    mesh_socket__gone(s, rank, MESH_EVENT_CLOSED, why, NULL); /* in good order or not: only those who need it fail */
}

MESH__PRIVATE void mesh_socket__connected(mesh_socket__impl *s, mesh_socket__conn *c) {
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error)
        mesh_socket__conn_failed(c, "connecting", error);
    else
        mesh_socket__greet(s, c);
}

/* Is there something of the peer's to read? */
MESH__PRIVATE int mesh_socket__unread(const mesh_socket__impl *s, const mesh_socket__conn *c) {
    char byte;
    if (c->ring_in) return mesh_socket__ring_holds(&s->peer[c->rank], c->ring_in) > 0;
    return recv(c->fd, &byte, 1, MSG_PEEK) > 0;
}

/* Peers that are waited for but not connected: begin, or begin again; and those to which not all could be offered. Returns when to look again,
   or INT64_MAX. */
MESH__PRIVATE int64_t mesh_socket__retries(mesh_socket__impl *s) {
    int64_t next = INT64_MAX;
    const mesh_socket__conn *c;
    int i;
    for (i = 0; i < s->nrestless && !s->in_open; i++) {
        int rank = s->restless[i];
        mesh_socket__peer *p = &s->peer[rank];
        if (p->conn && p->waiting.head &&
            p->noffered < MESH_SOCKET__OFFERS) { /* what was offered before was taken back */
            mesh_socket__waiting_go(s, rank);
            mesh_socket__flush(s, p->conn);
        }
        if (p->retry_at && !p->conn && !p->coming && mesh_socket__clock() >= p->retry_at) {
            if (p->waiting.head || p->posted.head || p->held_len)
                mesh_socket__reach(s, rank);
            else
                p->retry_at = 0;
        }
        if (p->retry_at && !p->conn && !p->coming && p->retry_at < next) next = p->retry_at;
        if (p->waiting.head || (p->retry_at && !p->conn)) continue;
        p->restless = 0;
        s->restless[i--] = s->restless[--s->nrestless];
    }
    for (c = s->stirred; c; c = c->stir_next)
        if (c->deadline && c->deadline < next) next = c->deadline;
    return next;
}

/* Where there are few connections, reading all of them costs less than asking which have something. Every so often the others'
   turn comes: listeners, connections being made. */
MESH__PRIVATE int mesh_socket__glance(mesh_socket__impl *s) {
    int i;
    if (s->nconns > MESH_SOCKET__FEW || ++s->glances % 32 == 0) return 0;
    for (i = 0; i < s->nconns; i++) {
        mesh_socket__conn *c = s->conn[i];
        if (c->state != MESH_SOCKET__UP || c->broken) return 0;
        if (c->ring_in && !c->starved)
            mesh_socket__read_ring(s, c);
        else
            mesh_socket__read(s, c);
        if (!c->broken && mesh_socket__wants_write(s, c)) mesh_socket__flush(s, c);
        if (c->broken) return 0;
    }
    return 1;
}

/* What peers write where this rank sees it, looked at without asking the kernel. Returns 1 if something has happened. */
MESH__INLINE int mesh_socket__glance_shared(mesh_socket__impl *s) {
    int i;
    if (s->busy) mesh_socket__direct_poll(s);
    if (s->pulls) mesh_socket__pull_poll(s);
    for (i = 0; i < s->nconns; i++) {
        mesh_socket__conn *c = s->conn[i];
        if (c->broken || c->state != MESH_SOCKET__UP) continue;
        if (c->ring_in && !c->starved && mesh_socket__ring_holds(&s->peer[c->rank], c->ring_in))
            mesh_socket__read_ring(s, c);
        if (c->ring_out && !c->broken && mesh_socket__wants_write(s, c)) mesh_socket__flush(s, c);
    }
    if (s->aids && !s->event) mesh_socket__aid(s);
    return s->event;
}

/* Is there something in shared memory, or room where there was none? */
MESH__PRIVATE int mesh_socket__is_called(mesh_socket__impl *s) {
    int i;
    if (s->pulls || (s->busy && mesh_socket__direct_poll(s))) return 1;
    for (i = 0; i < s->nconns; i++) {
        mesh_socket__conn *c = s->conn[i];
        if (c->broken || c->state != MESH_SOCKET__UP) continue;
        if (c->ring_in && !c->starved && mesh_socket__ring_holds(&s->peer[c->rank], c->ring_in)) return 1;
        if (c->ring_out && mesh_socket__wants_write(s, c) && mesh_socket__ring_room(&s->peer[c->rank], c->ring_out, 1))
            return 1;
    }
    return 0;
}

/* From now on a peer that writes something for this rank wakes it. Returns 0 where there is something already. */
MESH__PRIVATE int mesh_socket__doze(mesh_socket__impl *s) {
    mesh_socket__place *place;
    if (!s->shared) return 1;
    place = mesh_socket__place_of(s->shared, s->shared->me);
    if (mesh_socket__say_asleep(s->shared) && !mesh_socket__is_called(s)) return 1;
    MESH_SOCKET__SHOW(&place->asleep, 0u);
    return 0;
}

MESH__PRIVATE void mesh_socket__wake(mesh_socket__impl *s) {
    mesh_socket__place *place = s->shared ? mesh_socket__place_of(s->shared, s->shared->me) : NULL;
    if (place && MESH_SOCKET__SEE(&place->asleep)) MESH_SOCKET__SHOW(&place->asleep, 0u);
}

/* Something can be done on a connection. */
MESH__PRIVATE void mesh_socket__ready(mesh_socket__impl *s, mesh_socket__conn *c, unsigned got) {
    if (!got || c->broken) return;
    if (c->state == MESH_SOCKET__CONNECTING) {
        mesh_socket__connected(s, c);
    } else if (got & (POLLIN | POLLHUP | POLLERR)) {
        if (c->state == MESH_SOCKET__GREETING) mesh_socket__read_greeting(s, c);
        if (c->state == MESH_SOCKET__UP && !c->broken) mesh_socket__read(s, c);
    }
    if (!c->broken && mesh_socket__wants_write(s, c)) mesh_socket__flush(s, c);
}

#if MESH_SOCKET__LINUX
/* Have a listener waited for, or not while there are too many strangers. */
MESH__PRIVATE void mesh_socket__hear(mesh_socket__impl *s, int which, int fd, int wanted) {
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    event.data.u64 = which ? MESH_SOCKET__OF_UNIX : MESH_SOCKET__OF_TCP;
    if (fd < 0 || wanted == s->hears[which]) return;
    if (epoll_ctl(s->ready, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event) == 0)
        s->hears[which] = wanted;
    else
        s->unarmed = 1;
}

/* Have this rank's bell waited for. Returns 0 where that cannot be. */
MESH__RARE int mesh_socket__hear_bell(mesh_socket__impl *s) {
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    event.data.u64 = MESH_SOCKET__OF_BELL;
    return s->ready >= 0 && epoll_ctl(s->ready, EPOLL_CTL_ADD, s->shared->bell[s->shared->me], &event) == 0;
}

MESH__PRIVATE void mesh_socket__heard(mesh_socket__impl *s) {
    uint64_t times;
    ssize_t n = s->shared ? read(s->shared->bell[s->shared->me], &times, sizeof times) : 0;
    (void)n;
}

/* Wait for what is in the epoll. Returns 0 where it says nothing. */
MESH__PRIVATE int mesh_socket__await_epoll(mesh_socket__impl *s, int timeout_ms) {
    struct epoll_event got[MESH_SOCKET__EVENTS];
    int i, tcp = 0, local = 0, n = epoll_wait(s->ready, got, MESH_SOCKET__EVENTS, timeout_ms);
    if (n < 0) return errno == EINTR;
    for (i = 0; i < n; i++) {
        mesh_socket__conn *c = (mesh_socket__conn *)(uintptr_t)(got[i].data.u64 & ~(uint64_t)3);
        if (got[i].data.u64 == MESH_SOCKET__OF_BELL) {
            mesh_socket__heard(s);
            continue;
        }
        switch (got[i].data.u64 & 3) {
        case MESH_SOCKET__OF_CONN:
            mesh_socket__ready(s, c, got[i].events);
            break;
        case MESH_SOCKET__OF_PROCESS: /* what it sent may still be unread */
            mesh_socket__unwatch(s, c);
            mesh_socket__doubt(c, "its process has ended, though a child of it still holds the connection");
            break;
        case MESH_SOCKET__OF_TCP:
            tcp = 1;
            break;
        default:
            local = 1;
            break;
        }
    }
    if (tcp) mesh_socket__accept(s, s->tcp_fd);
    if (local) mesh_socket__accept(s, s->unix_fd);
    return 1;
}

/* The same for everything. Returns 0 where poll has to be asked. */
MESH__PRIVATE int mesh_socket__await_wide(mesh_socket__impl *s, int timeout_ms, int64_t now) {
    if (!s->wide) return 0;
    mesh_socket__hear(s, 0, s->tcp_fd, now >= s->accept_at);
    mesh_socket__hear(s, 1, s->unix_fd, now >= s->accept_at);
    return !s->unarmed && mesh_socket__await_epoll(s, timeout_ms);
}

/* All that is waited for goes into the epoll, and stays there. */
MESH__PRIVATE void mesh_socket__widen(mesh_socket__impl *s) {
    int i;
    if (s->wide || s->ready < 0) return;
    s->wide = 1;
    for (i = 0; i < s->nconns; i++) mesh_socket__stir(s->conn[i]);
}
#else
MESH__PRIVATE int mesh_socket__await_wide(mesh_socket__impl *s, int timeout_ms, int64_t now) {
    (void)s, (void)timeout_ms, (void)now;
    return 0;
}
MESH__PRIVATE void mesh_socket__widen(mesh_socket__impl *s) { (void)s; }
MESH__RARE int mesh_socket__hear_bell(mesh_socket__impl *s) { return (void)s, 0; }
MESH__PRIVATE void mesh_socket__hear(mesh_socket__impl *s, int which, int fd, int wanted) {
    (void)s, (void)which, (void)fd, (void)wanted;
}
#endif

/* Ask poll about every descriptor: where they are few, where there is no epoll, or it takes no more. */
MESH__PRIVATE void mesh_socket__await_poll(mesh_socket__impl *s, int timeout_ms, int64_t now) {
    int i, n = 0, listeners, count = s->nconns;
    if (!mesh__grow(&s->net->base, (void **)&s->poll, &s->poll_cap, count + 3, sizeof *s->poll)) {
        s->starved = s->event = 1;
        return;
    }
    if (s->tcp_fd >= 0 && now >= s->accept_at) s->poll[n].fd = s->tcp_fd, s->poll[n++].events = POLLIN;
    if (s->unix_fd >= 0 && now >= s->accept_at) s->poll[n].fd = s->unix_fd, s->poll[n++].events = POLLIN;
    listeners = n;
    for (i = 0; i < count; i++, n++) {
        s->poll[n].fd = s->conn[i]->fd;
        s->poll[n].events = (short)((s->conn[i]->state == MESH_SOCKET__CONNECTING ? 0 : POLLIN) |
                                    (mesh_socket__wants_socket(s, s->conn[i]) ? POLLOUT : 0));
    }
    if (s->ready >= 0) s->poll[n].fd = s->ready, s->poll[n++].events = POLLIN;
    if (poll(s->poll, (nfds_t)n, timeout_ms) <= 0) return;
#if MESH_SOCKET__LINUX
    if (s->ready >= 0 && s->poll[n - 1].revents & POLLIN) mesh_socket__await_epoll(s, 0);
#endif
    for (i = 0; i < count; i++) mesh_socket__ready(s, s->conn[i], (unsigned)s->poll[listeners + i].revents);
    for (i = 0; i < listeners; i++)
        if (s->poll[i].revents & POLLIN) mesh_socket__accept(s, s->poll[i].fd);
}

/* A connection on trial whose time is over. */
MESH__PRIVATE void mesh_socket__expire(mesh_socket__impl *s, mesh_socket__conn *c, int64_t now) {
    int up = c->state == MESH_SOCKET__UP;
    if (c->broken || !c->deadline || now <= c->deadline) return;
    if (up && mesh_socket__unread(s, c)) {
        c->deadline = now + INT64_C(200000000); /* not before all that it sent is read */
        return;
    }
    if (up) { /* it may be alive */
        mesh_socket__frame_send(s, c, MESH_SOCKET__F_GIVEN_UP, 0, 0, c->doubt, (uint32_t)strlen(c->doubt));
        mesh_socket__flush(s, c);
    }
    mesh_socket__conn_failed(c, up ? c->doubt : "it did not finish the handshake", 0);
}

/* Look after the connections that were stirred. Those that are on trial, or wait for memory, stay so. */
MESH__PRIVATE void mesh_socket__tend(mesh_socket__impl *s) {
    mesh_socket__conn *c, *list = s->stirred;
    int64_t now;
    if (!list) return;
    now = mesh_socket__clock();
    s->stirred = NULL;
    list->stir_at = &list;
    while ((c = list) != NULL) {
        mesh_socket__unstir(c);
        if (c->starved && !c->broken) mesh_socket__read(s, c);
        if (!c->broken && c->state != MESH_SOCKET__CONNECTING && mesh_socket__wants_write(s, c))
            mesh_socket__flush(s, c);
        mesh_socket__expire(s, c, now);
        if (c->broken) {
            mesh_socket__unstir(c);
            mesh_socket__conn_end(s, c);
            continue;
        }
        if (!mesh_socket__arm_conn(s, c)) s->unarmed = 1, mesh_socket__stir(c);
        if (c->deadline || c->starved) mesh_socket__stir(c);
    }
}

/* Hosts that have fallen silent. */
MESH__PRIVATE void mesh_socket__look(mesh_socket__impl *s, int64_t now) {
    int i;
    if (now <= s->looked + INT64_C(1000000000)) return;
    s->looked = now;
    for (i = 0; i < s->nconns; i++) {
        mesh_socket__conn *c = s->conn[i];
        int late = c->state == MESH_SOCKET__CONNECTING && !s->in_open && now > c->begun + MESH_SOCKET__SILENCE_NS;
        if (!c->broken && (late || (c->state == MESH_SOCKET__UP && mesh_socket__is_silent(c))))
            mesh_socket__conn_failed(c, "its host has not answered for 20 s", 0);
    }
}

/* One round: what is ready on any connection, sleeping up to timeout_ms until something is. */
MESH__PRIVATE void mesh_socket__round(mesh_socket__impl *s, int timeout_ms) {
    const mesh_socket__conn *c;
    int64_t now;
    if (timeout_ms == 0 && mesh_socket__glance(s)) return;
    s->unarmed = 0;
    if (s->nconns > MESH_SOCKET__FEW) mesh_socket__widen(s);
    mesh_socket__tend(s);
    now = mesh_socket__clock();
    if (now < s->accept_at && timeout_ms > 10) timeout_ms = 10;
    for (c = s->stirred; c; c = c->stir_next)
        if (c->starved && timeout_ms > 1) timeout_ms = 1; /* memory comes back without a word */
    if (!mesh_socket__await_wide(s, timeout_ms, now)) mesh_socket__await_poll(s, timeout_ms, now);
    mesh_socket__look(s, mesh_socket__clock());
    mesh_socket__tend(s);
}

/* Until something comes, or for so many ns. */
MESH__PRIVATE void mesh_socket__sleep(mesh_socket__impl *s, int64_t ns) {
    int64_t before = s->crowded ? -1 : mesh_socket__delay(s), after;
    if (!mesh_socket__doze(s)) return;
    mesh_socket__round(s, ns > INT64_C(1000000000) ? 1000 : ns > 0 ? (int)((ns + 999999) / 1000000) : 0);
    mesh_socket__wake(s);
    after = before >= 0 ? mesh_socket__delay(s) : -1;
    if (after >= before && before >= 0) mesh_socket__learn(&s->sleep_cost, after - before);
}

MESH__PRIVATE mesh_status mesh_socket__progress(mesh_transport *t, int64_t deadline) {
    mesh_socket__impl *s = mesh_socket__of(t);
    int64_t start = 0, now, next;
    int spins = 0, i;
    s->waits++;
    mesh_socket__wake(s);
    for (;;) {
        next = mesh_socket__retries(s);
        for (i = 0; s->shared && i < (s->crowded || s->on_one_core > 0 ? 1 : MESH_SOCKET__GLANCES) &&
                    !mesh_socket__glance_shared(s);
             i++)
            MESH_SOCKET__RELAX();
        if (s->event) break;
        mesh_socket__round(s, 0);
        if (s->event) break;
        now = mesh_socket__clock();
        if (now >= deadline) { /* who only asks now and then never comes to sleep */
            if (s->busy && ++s->idle_looks % 64 == 0) mesh_socket__direct_reach(s);
            break;
        }
        if (!start) start = now;
        if (mesh_socket__perseveres(s, ++spins, now - start)) continue;
        if (s->busy) mesh_socket__direct_reach(s);
        mesh_socket__sleep(s, (deadline < next ? deadline : next) - now);
        if (s->event) break;
    }
    s->event = 0;
    if (!s->starved) return MESH_OK;
    s->starved = 0;
    return MESH_ERR_MEMORY;
}

/* ---- // >>for who waits elsewhere ---- */

MESH__PRIVATE int mesh_socket__fd(mesh_transport *t) {
    mesh_socket__impl *s = mesh_socket__of(t);
    return s->ended_fd[0] >= 0 ? s->ended_fd[0] : s->ready;
}

MESH__PRIVATE mesh_status mesh_socket__arm(mesh_transport *t, int64_t *wake) {
    mesh_socket__impl *s = mesh_socket__of(t);
    const mesh_socket__conn *c;
    int64_t now = mesh_socket__clock();
    int i;
    *wake = INT64_MAX;
    if (s->ready < 0) return MESH_ERR_UNSUPPORTED;
    s->unarmed = 0;
    mesh_socket__widen(s);
    mesh_socket__tend(s);
    *wake = mesh_socket__retries(s);
    mesh_socket__hear(s, 0, s->tcp_fd, now >= s->accept_at);
    mesh_socket__hear(s, 1, s->unix_fd, now >= s->accept_at);
    if (s->event || s->mail.first || s->untold || s->unarmed || !mesh_socket__doze(s)) return MESH_IN_PROGRESS;
    for (c = s->stirred; c; c = c->stir_next)
        if (!c->deadline) return MESH_IN_PROGRESS;
    if (now < s->accept_at && s->accept_at < *wake) *wake = s->accept_at;
    for (i = 0; i < s->nconns; i++) /* of another host nobody hears when it falls silent */
        if (!s->conn[i]->is_near && now + INT64_C(1000000000) < *wake) *wake = now + INT64_C(1000000000);
    return MESH_OK;
}

/* Operations that have ended so far. */
MESH__PRIVATE uint32_t mesh_socket__ended(const mesh_transport *t) {
    const mesh__engine *e = (const mesh__engine *)t->engine;
    return e ? e->started - (uint32_t)e->nactive : 0;
}

/* Where a thread moves everything, all that who waits elsewhere has to hear is that something has ended. */
MESH__PRIVATE mesh_status mesh_socket__arm_for(mesh_transport *t, int64_t *wake) {
    mesh_socket__impl *s = mesh_socket__of(t);
    uint32_t ended = mesh_socket__ended(t);
    char drained[64];
    if (s->ended_fd[0] < 0) return mesh_socket__arm(t, wake);
    *wake = INT64_MAX;
    while (read(s->ended_fd[0], drained, sizeof drained) == (ssize_t)sizeof drained) {}
    s->armed = ended == s->ended_seen;
    s->ended_seen = ended;
    return s->armed ? MESH_OK : MESH_IN_PROGRESS;
}

MESH__PRIVATE void mesh_socket__tell_ended(mesh_transport *t) {
    mesh_socket__impl *s = mesh_socket__of(t);
    if (!s->armed || mesh_socket__ended(t) == s->ended_seen) return;
    s->armed = write(s->ended_fd[1], "e", 1) != 1 && errno != EAGAIN;
}
#endif /* MESH_SOCKET_LOOP_IMPLEMENTED */
