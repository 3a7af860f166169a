/* socket/connect.h - connections as descriptors: made, tuned, watched, ended. Part of mesh.h 0.1.0. MIT licence.

   Includes frames.h.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_CONNECT_IMPLEMENTED)
#define MESH_SOCKET_CONNECT_IMPLEMENTED
#include "frames.h"

/* The connection to a rank has ended: what was under way over it ends. If the rank is lost, so does everything that waits for it; after a
   goodbye that is for the core to say (it knows who is needed). */
MESH__RARE void mesh_socket__peer_fail(mesh_socket__impl *s, int rank, const char *why) {
    mesh_socket__peer *p = &s->peer[rank];
    int lost = p->gone == MESH_EVENT_LOST, i;
    while (lost && p->posted.head)
        mesh_socket__ticket_fail(s, p->posted.head->ticket, MESH_ERR_PEER, rank, "rank %d was lost: %s", rank, why);
    while (lost && p->waiting.head)
        mesh_socket__ticket_fail(s, p->waiting.head->ticket, MESH_ERR_PEER, rank, "rank %d was lost: %s", rank, why);
    for (i = 0; i < s->nslots; i++)
        if (s->slot[i] && s->slot[i]->x.rank == rank && (lost || s->slot[i]->matched))
            mesh_socket__ticket_fail(s, s->slot[i]->ticket, MESH_ERR_PEER, rank,
                                     lost ? "rank %d was lost: %s"
                                          : "rank %d closed its transport in the middle of a message%s",
                                     rank, lost ? why : "");
}

MESH__RARE mesh_socket__conn *mesh_socket__conn_new(mesh_socket__impl *s, int fd) {
    mesh_socket__conn *c;
    if (!mesh__grow(&s->net->base, (void **)&s->conn, &s->conn_cap, s->nconns + 1, sizeof *s->conn)) return NULL;
    c = (mesh_socket__conn *)mesh_transport_alloc(&s->net->base, sizeof *c);
    if (!c) return NULL;
    memset(c, 0, sizeof *c);
    c->fd = fd;
    c->rank = c->process = -1;
    c->owner = s;
    c->state = MESH_SOCKET__GREETING;
    s->conn[s->nconns++] = c;
    mesh_socket__stir(c);
    return c;
}

/* Have its descriptor waited for as its state asks. Returns 0 where that cannot be: then poll is asked. */
MESH__PRIVATE int mesh_socket__arm_conn(mesh_socket__impl *s, mesh_socket__conn *c) {
#if MESH_SOCKET__LINUX
    struct epoll_event event;
    uint32_t out = mesh_socket__wants_socket(s, c) ? (uint32_t)EPOLLOUT : 0,
             want = c->state == MESH_SOCKET__CONNECTING ? (uint32_t)EPOLLOUT : (uint32_t)EPOLLIN | out;
    if (want == c->interest || !s->wide) return 1;
    memset(&event, 0, sizeof event);
    event.events = want;
    event.data.u64 = (uint64_t)(uintptr_t)c | MESH_SOCKET__OF_CONN;
    if (epoll_ctl(s->ready, c->interest ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &event) != 0) return 0;
    c->interest = want;
#else
    (void)s, (void)c;
#endif
    return 1;
}

/* A child of this process may keep the descriptor: closing it would not do. */
MESH__PRIVATE void mesh_socket__disarm_conn(mesh_socket__impl *s, mesh_socket__conn *c) {
#if MESH_SOCKET__LINUX
    if (c->interest) epoll_ctl(s->ready, EPOLL_CTL_DEL, c->fd, NULL);
    c->interest = 0;
#else
    (void)s, (void)c;
#endif
}

MESH__RARE void mesh_socket__unwatch(mesh_socket__impl *s, mesh_socket__conn *c) {
#if MESH_SOCKET__LINUX
    if (c->process < 0) return;
    epoll_ctl(s->ready, EPOLL_CTL_DEL, c->process, NULL); /* a child of this process may keep the descriptor */
    close(c->process);
    c->process = -1;
#else
    (void)s, (void)c;
#endif
}

MESH__RARE void mesh_socket__conn_free(mesh_socket__impl *s, mesh_socket__conn *c) {
    int i;
    if (c->rank >= 0) {
        mesh_socket__peer *p = &s->peer[c->rank];
        if (p->conn == c) p->conn = NULL;
        if (p->coming == c) p->coming = NULL;
    }
    if (c->rx_to)
        mesh_socket__ticket_fail(s, c->rx_to->ticket, MESH_ERR_PEER, c->rank, "rank %d was lost: %s", c->rank, c->why);
    if (c->frame && c->rank >= 0)
        mesh_socket__ticket_fail(s, c->frame->ticket, MESH_ERR_PEER, c->rank,
                                 s->peer[c->rank].goodbye ? "rank %d closed its transport in the middle of a message%s"
                                                          : "rank %d was lost: %s",
                                 c->rank, s->peer[c->rank].goodbye ? "" : c->why);
    mesh_transport_free(&s->net->base, c->rx_early);
    mesh_socket__unstir(c);
    mesh_socket__disarm_conn(s, c);
    close(c->fd);
    mesh_socket__unwatch(s, c);
    for (i = 0; i < s->nconns && s->conn[i] != c; i++) {}
    if (i < s->nconns) s->conn[i] = s->conn[--s->nconns];
    mesh_transport_free(&s->net->base, c->out);
    mesh_transport_free(&s->net->base, c->spare);
    mesh_transport_free(&s->net->base, c->in);
    mesh_transport_free(&s->net->base, c);
}

/* Has a peer's host fallen silent while it owes an answer? (TCP_USER_TIMEOUT would also end the connection to a host that answers, whose
   program computes for long with its window full. Keepalive looks after connections with nothing on the way.) From Linux's tcp_info, whose
   beginning is the kernel's interface: byte 2 counts unanswered retransmissions, byte 3 unanswered probes, the word at 56 is the time
   since the last acknowledgement, in ms. */
enum { MESH_SOCKET__TCP_INFO = 60 };

MESH__PRIVATE int mesh_socket__is_silence(const unsigned char *info) {
    uint32_t ms;
    memcpy(&ms, info + 56, sizeof ms);
    return (info[2] >= 3 || info[3] >= 3) && ms >= 20000;
}

MESH__PRIVATE int mesh_socket__is_silent(const mesh_socket__conn *c) {
#if MESH_SOCKET__LINUX
    unsigned char info[MESH_SOCKET__TCP_INFO];
    socklen_t length = sizeof info;
    if (c->is_near) return 0;
    memset(info, 0, sizeof info);
    return getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, info, &length) == 0 && length == sizeof info &&
           mesh_socket__is_silence(info);
#else
    (void)c;
    return 0;
#endif
}

/* Without a secret only processes of this user are let in over Unix-domain sockets, where the system can tell. */
MESH__RARE int mesh_socket__is_ours(int fd) {
#if MESH_SOCKET__LINUX
    struct {
        int pid;
        unsigned uid, gid;
    } who; /* struct ucred, which glibc shows with _GNU_SOURCE only */
    socklen_t length = sizeof who;
    return getsockopt(fd, SOL_SOCKET, MESH_SOCKET__PEERCRED, &who, &length) == 0 && who.uid == (unsigned)geteuid();
#else
    (void)fd;
    return 1;
#endif
}

/* This process as others on its host may know it: its number, and a hash of the namespace that has it. 0: unknown. */
MESH__RARE uint64_t mesh_socket__process(void) {
#if MESH_SOCKET__LINUX
    struct stat st;
    if (stat("/proc/self/ns/pid", &st) == 0)
        return (mesh__mix(7, (uint64_t)st.st_ino) | 1) << 32 | (uint64_t)(uint32_t)getpid();
#endif
    return 0;
}

/* Watch the process at the other end, if it is on this host: it is lost when it ends, whatever children of it hold the connection. */
MESH__RARE void mesh_socket__watch(mesh_socket__impl *s, mesh_socket__conn *c) {
#if MESH_SOCKET__LINUX && defined(SYS_pidfd_open)
    const mesh_socket__entry *mine = &s->book[s->net->base.rank], *theirs = &s->book[c->rank];
    struct epoll_event event;
    struct rlimit limit;
    if (c->process >= 0 || !mine->process || mine->host != theirs->host ||
        mine->process >> 32 != theirs->process >> 32 || mine->process == theirs->process)
        return;
    if (s->in_open || s->ready < 0) return; /* connections come first */
    c->process = (int)syscall(SYS_pidfd_open, (long)(theirs->process & 0xffffffffu), 0L);
    if (c->process < 0) return;
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    event.data.u64 = (uint64_t)(uintptr_t)c | MESH_SOCKET__OF_PROCESS;
    /* Where descriptors are short connections need them more. */
    if ((getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)c->process + 64 > limit.rlim_cur) ||
        epoll_ctl(s->ready, EPOLL_CTL_ADD, c->process, &event) != 0) {
        close(c->process);
        c->process = -1;
    }
#else
    (void)s, (void)c;
#endif
}

/* Where a peer is, is known. On this very host it is never silent: who looks is alive, so the host is. A kernel that is short of time or
   memory delays or drops what goes over loopback, too; a peer that ends there shows by itself, so nothing is sent to find out. */
MESH__RARE void mesh_socket__place_known(mesh_socket__impl *s, mesh_socket__conn *c) {
    int off = 0;
    if (s->book[c->rank].host == s->book[s->net->base.rank].host) c->is_near = 1;
    if (c->is_near && !c->is_unix) setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof off);
    mesh_socket__watch(s, c);
}

MESH__RARE int mesh_socket__nonblocking(int fd) {
    int flags = fcntl(fd, F_GETFL, 0);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return 0;
    return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

MESH__RARE int mesh_socket__is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    if (a->sa_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
    }
    return a->sa_family == AF_UNIX;
}

MESH__RARE void mesh_socket__tune(int fd, const struct sockaddr *to) {
    int on = 1;
#ifdef MESH_SOCKET__NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, MESH_SOCKET__NOSIGPIPE, &on, sizeof on);
#endif
    if (to->sa_family == AF_UNIX) {
        int bytes = 1 << 20;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#if MESH_SOCKET__LINUX
    {
        int idle = 5, interval = 5, probes = 3;
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    }
    if (mesh_socket__is_loopback(to)) { /* bbr paces even here: 2.2 instead of 5.7 GB/s */
        char name[32] = "";
        socklen_t length = sizeof name;
        if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 && !strncmp(name, "bbr", 3) &&
            setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0)
            setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    }
#endif
}

/* The Unix-domain address of a token: abstract on Linux (nothing to clean up), a file elsewhere (a rank that is killed leaves it). */
MESH__RARE socklen_t mesh_socket__unix_address(struct sockaddr_un *a, uint64_t token) {
    char name[64];
    mesh__text t = mesh__text_on(name, sizeof name);
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
#if MESH_SOCKET__LINUX
    mesh__put(&t, "mesh.h-%x", token);
    memcpy(a->sun_path + 1, name, t.len);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + t.len);
#else
    mesh__put(&t, "/tmp/mesh.h-%x", token);
    memcpy(a->sun_path, name, t.len + 1);
    return (socklen_t)sizeof *a;
#endif
}

MESH__RARE void mesh_socket__sockaddr(const mesh_socket__entry *e, struct sockaddr_storage *a, socklen_t *length) {
    memset(a, 0, sizeof *a);
    if (e->family == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)(void *)a;
        in->sin_family = AF_INET;
        in->sin_port = htons(e->port);
        memcpy(&in->sin_addr, e->addr, 4);
        *length = sizeof *in;
    } else {
        struct sockaddr_in6 *in = (struct sockaddr_in6 *)(void *)a;
        in->sin6_family = AF_INET6;
        in->sin6_port = htons(e->port);
        in->sin6_scope_id = e->scope;
        memcpy(&in->sin6_addr, e->addr, 16);
        *length = sizeof *in;
    }
}

/* A link-local address is reached over the link over which this rank and rank 0 have met: the book's number of it is another host's. */
MESH__RARE void mesh_socket__over_own_link(const mesh_socket__impl *s, struct sockaddr_storage *a) {
    const struct sockaddr_in6 *master = (const struct sockaddr_in6 *)(const void *)&s->master;
    struct sockaddr_in6 *in = (struct sockaddr_in6 *)(void *)a;
    uint32_t own = s->net->base.rank                 ? s->book[s->net->base.rank].scope
                   : s->master.ss_family == AF_INET6 ? master->sin6_scope_id
                                                     : 0;
    if (own && a->ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr)) in->sin6_scope_id = own;
}

/* Begin a connection to a rank. Returns NULL with errno where it cannot even begin. */
MESH__RARE mesh_socket__conn *mesh_socket__connect_to(mesh_socket__impl *s, const struct sockaddr *a, socklen_t length,
                                                      int rank) {
    mesh_socket__conn *c;
    int fd = mesh_socket__new(a->sa_family);
    if (fd < 0) return NULL;
    if (!mesh_socket__nonblocking(fd) || !(c = mesh_socket__conn_new(s, fd))) {
        close(fd);
        errno = ENOMEM;
        return NULL;
    }
    mesh_socket__tune(fd, a);
    c->initiator = 1;
    c->rank = rank;
    c->is_unix = a->sa_family == AF_UNIX;
    c->is_near = mesh_socket__is_loopback(a);
    c->state = MESH_SOCKET__CONNECTING;
    c->begun = mesh_socket__clock();
    s->peer[rank].short_since = 0;
    s->peer[rank].coming = c;
    if (connect(fd, a, length) != 0 && errno != EINPROGRESS) {
        int error = errno;
        mesh_socket__conn_free(s, c);
        errno = error;
        return NULL;
    }
    return c;
}

/* Have a connection to a peer, or one coming. */
MESH__PRIVATE void mesh_socket__reach(mesh_socket__impl *s, int rank) {
    mesh_socket__peer *p = &s->peer[rank];
    mesh_socket__entry *e = &s->book[rank];
    struct sockaddr_storage a;
    socklen_t length;
    if (p->conn || p->coming || p->gone || s->in_open) return;
    if (p->retry_at && mesh_socket__clock() < p->retry_at) return;
    p->retry_at = 0;
    if (e->token && e->host == s->book[s->net->base.rank].host && s->lanes != MESH_SOCKET_TCP && !p->tried_unix) {
        length = mesh_socket__unix_address((struct sockaddr_un *)(void *)&a, e->token);
        if (mesh_socket__connect_to(s, (struct sockaddr *)(void *)&a, length, rank)) return;
        if (errno == EAGAIN) { /* its queue of connections is full */
            p->retry_at = mesh_socket__clock() + 1000000;
            mesh_socket__unsettle(s, rank);
            return;
        }
        p->tried_unix = 1;
    }
    mesh_socket__sockaddr(e, &a, &length);
    mesh_socket__over_own_link(s, &a);
    if (mesh_socket__connect_to(s, (struct sockaddr *)(void *)&a, length, rank)) return;
    if (errno == EAGAIN || errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EADDRNOTAVAIL) {
        int64_t now = mesh_socket__clock();
        if (!p->short_since) p->short_since = now;
        if (now < p->short_since + MESH_SOCKET__SILENCE_NS) {
            p->retry_at = now + 10000000;
            mesh_socket__unsettle(s, rank);
            return;
        }
    }
    mesh_socket__gone(s, rank, MESH_EVENT_CLOSED,
                      errno == EMFILE ? "no descriptor was left for it for 20 s; raise ulimit -n" : strerror(errno),
                      NULL);
}
#endif /* MESH_SOCKET_CONNECT_IMPLEMENTED */
