/* socket/open.h - joining a job: who and where this rank is, listening, meeting rank 0, the address book. Part of mesh.h 0.1.0. MIT licence.

   Includes helper.h and mesh_env.h.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_OPEN_IMPLEMENTED)
#define MESH_SOCKET_OPEN_IMPLEMENTED
#include "helper.h"
#include "../mesh_env.h"

/* ---- // >>environment ---- */

/* A number from the environment. Returns 1 if it is there; an error where it is no number. */
MESH__RARE int mesh_socket__env_number(const char *name, const char *of, int *out, mesh_error *err, int *bad) {
    mesh_error why;
    int found = mesh__env_number(name, of, out, &why);
    if (found < 0) mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_socket_open: %s", why.text);
    *bad |= found < 0;
    return found > 0;
}

/* The secret as the description or MESH_SECRET has it. NULL: neither does, for a variable that is empty is none. */
MESH__RARE const char *mesh_socket__secret_text(const mesh_socket_desc *d) {
    const char *secret = d->secret ? d->secret : getenv("MESH_SECRET");
    return d->secret || (secret && *secret) ? secret : NULL;
}

/* Only loopback is used: there is no secret, and nobody said that it may do without. */
MESH__RARE int mesh_socket__is_local(const mesh_socket_desc *d) {
    const char *secret = mesh_socket__secret_text(d), *file = getenv("MESH_SECRET_FILE");
    return !d->insecure && !(secret ? *secret : file && *file);
}

/* Who and where this rank is: the description's word, else the launcher's. */
MESH__RARE mesh_status mesh_socket__who(const mesh_socket_desc *d, mesh_env *w, mesh_error *err) {
    mesh_error why;
    mesh_status status;
    mesh__env_nothing(w);
    if (d->size) {
        w->rank = d->rank;
        w->size = d->size;
        w->local_rank = d->local_rank;
        w->source = "desc";
    }
    status = d->size ? mesh__env_check(w, &why) : mesh__env_ranks(w, &why);
    if (d->address)
        mesh__copy_text(w->address, sizeof w->address, d->address);
    else if (status == MESH_OK)
        status = mesh__env_address(w, &why);
    if (d->port)
        w->port = d->port;
    else if (status == MESH_OK)
        status = mesh__env_port(w, &why);
    if (status == MESH_OK && w->port < 0) { /* below the ports that systems hand out themselves */
        uint64_t job = mesh_env_job(mesh_socket__is_local(d));
        w->port = job ? 20000 + (int)((job >> 1) % 12000) : 29400;
    }
    if (status == MESH_OK && (w->port < 1 || w->port > 65535))
        status = mesh__fail(&why, MESH_ERR_ARGUMENT, -1, "port %d; a port is 1 to 65535", w->port);
    if (!w->address[0]) mesh__copy_text(w->address, sizeof w->address, "127.0.0.1");
    return status == MESH_OK ? status : mesh__fail(err, status, why.rank, "mesh_socket_open: %s", why.text);
}

/* ---- // >>opening ---- */

MESH__RARE void mesh_socket__set_port(struct sockaddr_storage *a, int port) {
    if (a->ss_family == AF_INET)
        ((struct sockaddr_in *)(void *)a)->sin_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in6 *)(void *)a)->sin6_port = htons((uint16_t)port);
}

/* Listen at an address; the port that was bound goes into this rank's entry of the book. */
MESH__RARE mesh_status mesh_socket__listen(mesh_socket__impl *s, const struct sockaddr_storage *at, socklen_t length,
                                           const char *what, mesh_error *err) {
    struct sockaddr_storage bound;
    socklen_t bound_len = sizeof bound;
    mesh_socket__entry *mine = &s->book[s->net->base.rank];
    int on = 1, fd = mesh_socket__new(at->ss_family);
    if (fd < 0 || !mesh_socket__nonblocking(fd)) {
        if (fd >= 0) close(fd);
        return mesh__fail(err, MESH_ERR_TRANSPORT, -1, "mesh_socket_open: no socket: %s", strerror(errno));
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)(const void *)at, length) != 0 || listen(fd, 4096) != 0) {
        int error = errno;
        close(fd);
        return mesh__fail(
            err, MESH_ERR_TRANSPORT, s->net->base.rank, "mesh_socket_open: rank %d cannot listen at %s: %s%s",
            s->net->base.rank, what, strerror(error),
            error == EADDRINUSE ? "; another job or program has this port: set MESH_PORT (or MASTER_PORT) to a free one"
                                : "");
    }
    if (getsockname(fd, (struct sockaddr *)(void *)&bound, &bound_len) != 0) {
        int error = errno;
        close(fd);
        return mesh__fail(err, MESH_ERR_TRANSPORT, s->net->base.rank,
                          "mesh_socket_open: rank %d cannot tell at which port it listens: %s", s->net->base.rank,
                          strerror(error));
    }
    s->tcp_fd = fd;
    mine->port = ntohs(bound.ss_family == AF_INET ? ((struct sockaddr_in *)(void *)&bound)->sin_port
                                                  : ((struct sockaddr_in6 *)(void *)&bound)->sin6_port);
    return MESH_OK;
}

MESH__RARE void mesh_socket__listen_unix(mesh_socket__impl *s) {
    mesh_socket__entry *mine = &s->book[s->net->base.rank];
    struct sockaddr_un a;
    socklen_t length;
    int fd;
    mine->host = mesh_env_host();
    mesh_env_cores(&mine->cores);
    mine->process = mesh_socket__process();
    if (s->lanes == MESH_SOCKET_TCP) return;
    fd = mesh_socket__new(AF_UNIX);
    if (fd < 0) return;
    if (!mesh_socket__random(&mine->token, sizeof mine->token)) {
        mine->token = 0;
        close(fd);
        return;
    }
    mine->token |= 1;
    mine->shares = s->awaits_fds = MESH_SOCKET__SHARES && s->lanes == MESH_SOCKET_AUTO && s->ready >= 0;
    length = mesh_socket__unix_address(&a, mine->token);
    if (!mesh_socket__nonblocking(fd) || bind(fd, (struct sockaddr *)(void *)&a, length) != 0 ||
        listen(fd, 4096) != 0) {
        close(fd); /* TCP will do */
        mine->token = 0;
        return;
    }
    s->unix_fd = fd;
    s->unix_token = mine->token;
}

/* Those that have not come, as text; the least of them. */
MESH__RARE int mesh_socket__absent(const mesh_socket__impl *s, char *text, size_t cap) {
    int ranks[32], n = 0, i;
    mesh__text t = mesh__text_on(text, cap);
    for (i = 1; i < s->net->base.size; i++)
        if (!s->peer[i].conn && n < 32) ranks[n++] = i;
    mesh__put_ranks(&t, ranks, n);
    return n ? ranks[0] : -1;
}

MESH__RARE mesh_status mesh_socket__missing(mesh_socket__impl *s, const char *at, mesh_error *err) {
    char who[200];
    int rank = mesh_socket__absent(s, who, sizeof who);
    return mesh__fail(
        err, MESH_ERR_TIMEOUT, rank,
        "mesh_socket_open: %d of %d ranks came to %s before the deadline; missing: %s%s%s%s; start every rank, with one MASTER_ADDR and port, or give them longer (MESH_OPEN_TIMEOUT, in seconds)",
        s->joined + 1, s->net->base.size, at, who, s->stranger[0] ? " (dropped meanwhile: " : "",
        s->stranger[0] ? s->stranger : "", s->stranger[0] ? ")" : "");
}

/* What rank 0's address has said; of several, each. */
MESH__RARE const char *mesh_socket__all_said(const mesh_socket__impl *s, char *text, size_t cap) {
    mesh__text t = mesh__text_on(text, cap);
    int k;
    if (s->naddresses < 2) return s->last[0] ? s->last : "no answer";
    for (k = 0; k < s->naddresses; k++) {
        const struct sockaddr *a = (const struct sockaddr *)(const void *)&s->address[k];
        char name[INET6_ADDRSTRLEN] = "?";
        inet_ntop(a->sa_family,
                  a->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)(const void *)a)->sin_addr
                                          : (const void *)&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  name, sizeof name);
        mesh__put(&t, "%s%s: %s", k ? ", " : "", name, s->said[k][0] ? s->said[k] : "no answer");
    }
    return text;
}

/* Who starts ranks by hand is told, once, what is waited for. */
MESH__RARE void mesh_socket__hint(mesh_socket__impl *s, const char *address, int port) {
    int64_t now = mesh_socket__clock(), left = (s->open_deadline - now + 999999999) / 1000000000;
    char who[256];
    if (now < s->hint_at || now > s->open_deadline) return;
    s->hint_at = INT64_MAX;
    if (s->net->base.rank == 0) {
        mesh_socket__absent(s, who, sizeof who);
        mesh_socket__log(s, 1,
                         "mesh_socket_open: at %s port %d, %d of %d ranks have come; waiting up to %l s more for %s",
                         address, port, s->joined + 1, s->net->base.size, left, who);
    } else if (!s->peer[0].conn) {
        mesh_socket__log(s, 1,
                         "mesh_socket_open: rank %d cannot reach rank 0 at %s port %d (%s); trying up to %l s more",
                         s->net->base.rank, address, port, mesh_socket__all_said(s, who, sizeof who), left);
    }
}

/* Is this how one says loopback, and nothing else? */
MESH__RARE int mesh_socket__names_loopback(const char *a) {
    return mesh__same(a, "localhost") || mesh__same(a, "::1") || !strncmp(a, "127.", 4);
}

/* A pause before trying again, each twice as long as the last. */
MESH__RARE void mesh_socket__nap(int64_t *pause, int64_t most) {
    struct timespec nap;
    nap.tv_sec = 0;
    nap.tv_nsec = (long)*pause;
    nanosleep(&nap, NULL);
    if (*pause < most) *pause *= 2;
}

/* Where rank 0 is. Its name may come to be known later than its host is: the others ask again. */
MESH__RARE mesh_status mesh_socket__resolve(mesh_socket__impl *s, const mesh_env *w, mesh_error *err) {
    struct addrinfo hints, *list = NULL;
    int64_t pause = 2000000;
    char port[16];
    int code;
    mesh__text t = mesh__text_on(port, sizeof port);
    mesh__put(&t, "%d", w->port);
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    while ((code = getaddrinfo(w->address, port, &hints, &list)) != 0 && s->net->base.rank &&
           (code == EAI_AGAIN || code == EAI_NONAME) && mesh_socket__clock() < s->open_deadline) {
        mesh__copy_text(s->last, sizeof s->last, gai_strerror(code));
        mesh_socket__hint(s, w->address, w->port);
        mesh_socket__nap(&pause, 500000000);
    }
    if (code || !list)
        return mesh__fail(err, MESH_ERR_TRANSPORT, 0,
                          "mesh_socket_open: cannot resolve rank 0's address \"%s\": %s; set MASTER_ADDR", w->address,
                          code ? gai_strerror(code) : "no address");
    {
        struct addrinfo *one;
        for (one = list; one && s->naddresses < 8; one = one->ai_next) {
            memcpy(&s->address[s->naddresses], one->ai_addr, one->ai_addrlen);
            s->address_len[s->naddresses++] = one->ai_addrlen;
        }
    }
    s->master = s->address[0];
    s->master_len = s->address_len[0];
    freeaddrinfo(list);
    return MESH_OK;
}

/* An address of loopback becomes this one, of the same family. */
MESH__RARE void mesh_socket__entry_outward(mesh_socket__entry *e, const struct sockaddr_storage *a) {
    const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)a;
    struct sockaddr_storage its;
    socklen_t length;
    mesh_socket__sockaddr(e, &its, &length);
    if (!e->family || its.ss_family != a->ss_family || !mesh_socket__is_loopback((struct sockaddr *)(void *)&its))
        return;
    if (a->ss_family == AF_INET) {
        memcpy(e->addr, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
        return;
    }
    memcpy(e->addr, &in->sin6_addr, 16);
    e->scope = in->sin6_scope_id;
}

/* A rank that came by loopback is reached by other hosts at the address at which they reached rank 0. */
MESH__RARE void mesh_socket__outward(mesh_socket__impl *s) {
    struct sockaddr_storage a;
    int i, k;
    for (i = 1; i < s->net->base.size; i++) {
        socklen_t length = sizeof a;
        if (!s->peer[i].conn || s->book[i].host == s->book[0].host ||
            getsockname(s->peer[i].conn->fd, (struct sockaddr *)(void *)&a, &length) != 0)
            continue;
        for (k = 1; k < s->net->base.size; k++)
            if (s->book[k].host == s->book[0].host) mesh_socket__entry_outward(&s->book[k], &a);
        return;
    }
}

/* Any address of a family. */
MESH__RARE void mesh_socket__any(struct sockaddr_storage *a, int port) {
    sa_family_t family = a->ss_family;
    memset(a, 0, sizeof *a);
    a->ss_family = family;
    mesh_socket__set_port(a, port);
}

/* Is this an address of this host? */
MESH__RARE int mesh_socket__is_here(const struct sockaddr_storage *a, socklen_t length) {
    struct sockaddr_storage probe = *a;
    int fd = mesh_socket__new(a->ss_family), here;
    mesh_socket__set_port(&probe, 0);
    here = fd >= 0 && bind(fd, (struct sockaddr *)(void *)&probe, length) == 0;
    if (fd >= 0) close(fd);
    return here;
}

/* Is this socket bound to that port? */
MESH__RARE int mesh_socket__is_at(int fd, int port) {
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    if (getsockname(fd, (struct sockaddr *)(void *)&bound, &length)) return 0;
    if (bound.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)(void *)&bound)->sin6_port) == port;
    return bound.ss_family == AF_INET && ntohs(((struct sockaddr_in *)(void *)&bound)->sin_port) == port;
}

/* Is this descriptor one that rank 0 can wait at? */
MESH__RARE mesh_status mesh_socket__inherit(mesh_socket__impl *s, int fd, int insecure, mesh_error *err) {
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound, int_length = sizeof(int);
    int listens = 0;
    errno = 0;
    if (getsockname(fd, (struct sockaddr *)(void *)&bound, &length) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &int_length) != 0 || !listens ||
        (bound.ss_family != AF_INET && bound.ss_family != AF_INET6))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, 0,
            "mesh_socket_open: descriptor %d (listen_fd or MESH_LISTEN_FD) is no listening TCP socket%s%s", fd,
            errno ? ": " : "", errno ? strerror(errno) : "");
    if (!s->secret_bytes && !insecure && !mesh_socket__is_loopback((struct sockaddr *)(void *)&bound))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, 0,
            "mesh_socket_open: the inherited socket listens beyond loopback, and there is no secret: set MESH_SECRET");
    if (!mesh_socket__nonblocking(fd))
        return mesh__fail(err, MESH_ERR_TRANSPORT, 0, "mesh_socket_open: descriptor %d cannot be made non-blocking: %s",
                          fd, strerror(errno));
    s->tcp_fd = fd;
    return MESH_OK;
}

/* Nobody comes to a world of one: what its launcher has it listen at is closed, and no child has it. */
MESH__RARE void mesh_socket__decline(void) {
    int fd = 0, listens = 0;
    socklen_t length = sizeof listens;
    mesh_error why;
    if (mesh__env_number("MESH_LISTEN_FD", "number", &fd, &why) > 0 && fd > 2 &&
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens)
        close(fd);
    unsetenv("MESH_LISTEN_FD");
}

/* A rank that came and went before all had come. */
MESH__RARE mesh_status mesh_socket__lost_early(const mesh_socket__impl *s, mesh_error *err) {
    int i;
    for (i = 1; i < s->net->base.size; i++)
        if (s->peer[i].gone)
            return mesh__fail(err, MESH_ERR_PEER, i,
                              "mesh_socket_open: rank %d came and was lost again before all had come", i);
    return MESH_OK;
}

/* The opening is given up, as those who wait for this rank hear too. */
MESH__RARE mesh_status mesh_socket__give_up(mesh_socket__impl *s, const int *ranks, int n, const mesh_error *why,
                                            mesh_error *err) {
    int i;
    for (i = 0; i < n; i++) {
        mesh_socket__conn *c = s->peer[ranks ? ranks[i] : i].conn;
        if (!c) continue;
        mesh_socket__frame_send(s, c, MESH_SOCKET__F_GIVEN_UP, (uint64_t)(-(int64_t)why->status), (uint64_t)why->rank,
                                why->text, (uint32_t)strlen(why->text));
        mesh_socket__flush(s, c);
    }
    return mesh__fail(err, (mesh_status)why->status, why->rank, "%s", why->text);
}

/* Ranks of this host come again over its Unix-domain socket, or say that they stay. Who has gone is not waited for. */
MESH__RARE mesh_status mesh_socket__settle(mesh_socket__impl *s, mesh_error *err) {
    int i = s->unix_fd >= 0 ? 1 : s->net->base.size;
    while (i < s->net->base.size) {
        if (s->book[i].host != s->book[0].host || !s->book[i].token || s->peer[i].settled || s->peer[i].gone) {
            i++;
            continue;
        }
        if (mesh_socket__clock() >= s->open_deadline) {
            mesh_error why;
            mesh__fail(&why, MESH_ERR_TIMEOUT, i,
                       "mesh_socket_open: rank %d came, but then said nothing until the deadline; is it stopped?", i);
            return mesh_socket__give_up(s, NULL, s->net->base.size, &why, err);
        }
        mesh_socket__round(s, 100);
    }
    return MESH_OK;
}

/* Rank 0: wait for everyone, hand out the book. */
MESH__RARE mesh_status mesh_socket__open_lead(mesh_socket__impl *s, const mesh_env *w, int inherited, int insecure,
                                              mesh_error *err) {
    struct sockaddr_storage at = s->master;
    char where[300];
    unsigned char *book;
    int i, size = s->net->base.size;
    mesh_status status;
    mesh__text t = mesh__text_on(where, sizeof where);
    mesh__put(&t, "%s port %d", w->address, w->port);
    if (s->secret_bytes && !mesh_socket__names_loopback(w->address) &&
        (mesh_socket__is_loopback((struct sockaddr *)(void *)&at) || !mesh_socket__is_here(&at, s->master_len)))
        mesh_socket__any(&at,
                         w->port); /* a name that is loopback on this host alone, or an address it is only known by */
    status = inherited > 0 ? mesh_socket__inherit(s, inherited, insecure, err)
                           : mesh_socket__listen(s, &at, s->master_len, where, err);
    if (status != MESH_OK) return status;
    while (s->joined < size - 1) {
        int64_t left = s->open_deadline - mesh_socket__clock();
        mesh_error why;
        mesh_socket__hint(s, w->address, w->port);
        status = mesh_socket__lost_early(s, &why);
        if (s->starved)
            status = mesh__fail(&why, MESH_ERR_MEMORY, 0, "mesh_socket_open: rank 0 has no memory for those that join");
        if (status == MESH_OK && left <= 0) status = mesh_socket__missing(s, where, &why);
        if (status != MESH_OK) return mesh_socket__give_up(s, NULL, size, &why, err);
        mesh_socket__round(s, left > 100000000 ? 100 : (int)(left / 1000000) + 1);
    }
    if (!mesh_socket__random(&s->job, sizeof s->job))
        return mesh__fail(err, MESH_ERR_TRANSPORT, 0, "mesh_socket_open: no random numbers: /dev/urandom: %s",
                          strerror(errno));
    s->job |= 1;
    book = (unsigned char *)mesh_transport_alloc(&s->net->base, (size_t)size * MESH_SOCKET__ENTRY);
    if (!book) return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_socket_open: no memory for the address book");
    mesh_socket__outward(s);
    for (i = 0; i < size; i++) mesh_socket__entry_write(book + (size_t)i * MESH_SOCKET__ENTRY, &s->book[i]);
    mesh__put64(book + 56, s->job);
    for (i = 1; i < size; i++)
        if (s->peer[i].conn) {
            mesh_socket__frame_send(s, s->peer[i].conn, MESH_SOCKET__F_BOOK, 0, 0, book,
                                    (uint32_t)((size_t)size * MESH_SOCKET__ENTRY));
            mesh_socket__flush(s, s->peer[i].conn);
        }
    mesh_transport_free(&s->net->base, book);
    return mesh_socket__settle(s, err);
}

/* Where rank 0 is on this host, its connection goes over a Unix-domain socket from now on, if one can be had. */
MESH__RARE void mesh_socket__move(mesh_socket__impl *s) {
    mesh_socket__peer *p = &s->peer[0];
    mesh_socket__conn *joined = p->conn;
    struct sockaddr_un a;
    int i;
    socklen_t length = mesh_socket__unix_address(&a, s->book[0].token);
    if (!joined || s->unix_fd < 0 || !s->book[0].token || s->book[0].host != s->book[s->net->base.rank].host) return;
    if (mesh_socket__connect_to(s, (struct sockaddr *)(void *)&a, length, 0))
        while (p->conn == joined && p->coming && mesh_socket__clock() < s->open_deadline) mesh_socket__round(s, 100);
    if (p->conn == joined) {
        mesh_socket__frame_send(s, joined, MESH_SOCKET__F_STAYS, 0, 0, NULL, 0);
        mesh_socket__flush(s, joined);
        return;
    }
    for (i = 0; i < s->nconns; i++)
        if (s->conn[i] == joined) mesh_socket__break(joined, MESH_SOCKET__GAVE_WAY); /* if it has not ended by itself */
}

/* While nobody listens there a connection within a host can be given the very port that it goes to: then TCP connects it to itself. */
MESH__RARE int mesh_socket__is_mirror(int fd, const struct sockaddr_storage *mine, socklen_t length) {
    struct sockaddr_storage theirs;
    socklen_t other = sizeof theirs;
    struct linger at_once = {1, 0}; /* nothing of it may keep rank 0 from listening there */
    if (getpeername(fd, (struct sockaddr *)(void *)&theirs, &other) != 0 || other != length ||
        memcmp(&theirs, mine, length) != 0)
        return 0;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    return 1;
}

/* The connection to rank 0 stands, or has failed: its local address is the one the others can reach us at. */
MESH__RARE mesh_status mesh_socket__joining(mesh_socket__impl *s, const mesh_env *w, mesh_error *err) {
    mesh_socket__conn *c = s->peer[0].coming;
    mesh_socket__entry *mine = &s->book[s->net->base.rank];
    struct sockaddr_storage a;
    socklen_t length = sizeof a;
    int error = 0;
    socklen_t error_len = sizeof error;
    mesh_status status;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &error_len);
    if (!error && getsockname(c->fd, (struct sockaddr *)(void *)&a, &length) != 0) error = errno;
    if (!error && mesh_socket__is_mirror(c->fd, &a, length)) error = ECONNREFUSED;
    if (error) {
        mesh_socket__attempt_failed(s, strerror(error));
        mesh_socket__conn_free(s, c);
        return MESH_OK;
    }
    if (a.ss_family == AF_INET) {
        mine->family = 4;
        memcpy(mine->addr, &((struct sockaddr_in *)(void *)&a)->sin_addr, 4);
    } else {
        mine->family = 6;
        memcpy(mine->addr, &((struct sockaddr_in6 *)(void *)&a)->sin6_addr, 16);
        mine->scope = ((struct sockaddr_in6 *)(void *)&a)->sin6_scope_id;
    }
    mesh_socket__set_port(&a, 0);
    if (s->secret_bytes && mesh_socket__is_loopback((struct sockaddr *)(void *)&a) &&
        !mesh_socket__names_loopback(w->address))
        mesh_socket__any(&a, 0); /* as rank 0 does; see mesh_socket__outward */
    if ((status = mesh_socket__listen(s, &a, length, "a port of its own", err)) == MESH_OK)
        mesh_socket__connected(s, c);
    return status;
}

/* This rank's way to rank 0, whose name may have several addresses. */
typedef struct mesh_socket__way {
    int64_t pause, patience, since; /* patience: with the attempt that began then */
    int attempts;
    unsigned down; /* bits: addresses of loopback that this host does not have */
} mesh_socket__way;

/* A network may come yet, but not this one: where all addresses of rank 0 are loopback's, and it is down, nothing is waited for. */
MESH__RARE void mesh_socket__look_down(mesh_socket__impl *s, mesh_socket__way *way, int why) {
    if (!mesh_socket__is_loopback((struct sockaddr *)(void *)&s->master) ||
        (why != ENETUNREACH && (why != EADDRNOTAVAIL || mesh_socket__is_here(&s->master, s->master_len))))
        return;
    way->down |= 1u << s->at_address;
    if (way->down != (1u << s->naddresses) - 1) return;
    mesh__copy_text(
        s->refusal, sizeof s->refusal,
        why == ENETUNREACH || s->naddresses > 1
            ? "loopback is down here; bring it up: ip link set lo up"
            : "loopback has no such address here; bring it up (ip link set lo up), or set MASTER_ADDR=127.0.0.1");
}

/* One more attempt, at the next address. */
MESH__RARE void mesh_socket__approach(mesh_socket__impl *s, mesh_socket__way *way) {
    int k = way->attempts % s->naddresses, why;
    mesh_socket__conn *c;
    if (way->attempts++) mesh_socket__nap(&way->pause, 100000000);
    s->at_address = k;
    s->master = s->address[k];
    s->master_len = s->address_len[k];
    way->since = mesh_socket__clock();
    c = mesh_socket__connect_to(s, (struct sockaddr *)(void *)&s->master, s->master_len, 0);
    why = errno;
    if (c) return;
    mesh_socket__attempt_failed(s, strerror(why));
    if (why == ENOMEM) s->starved = 1;
    mesh_socket__look_down(s, way, why);
}

/* An address where nobody answers does not keep this rank from the next one. Each that is given up gives the others longer: rank 0 may be waited for
   at its port by who starts it, before it opens. */
MESH__RARE void mesh_socket__turn_away(mesh_socket__impl *s, mesh_socket__way *way) {
    mesh_socket__conn *c = s->peer[0].coming;
    if (s->naddresses < 2 || !c || mesh_socket__clock() - way->since < way->patience) return;
    way->patience *= 2;
    mesh_socket__attempt_failed(s, "no answer");
    mesh_socket__conn_free(s, c);
    if (s->tcp_fd >= 0) close(s->tcp_fd); /* where that one would have reached this rank */
    s->tcp_fd = -1;
    s->hears[0] = 0;
}

/* Every other rank: reach rank 0, listen where it was reached from, wait for the book. */
MESH__RARE mesh_status mesh_socket__open_follow(mesh_socket__impl *s, const mesh_env *w, mesh_error *err) {
    mesh_socket__way way = {2000000, INT64_C(2000000000), 0, 0, 0};
    char said[256];
    while (!s->have_book) {
        mesh_socket__peer *p = &s->peer[0];
        int64_t left =
            s->open_deadline + (p->conn ? 1000000000 : 0) - mesh_socket__clock(); /* rank 0's text says more */
        if (s->told.status != MESH_OK)
            return mesh__fail(err, (mesh_status)s->told.status, s->told.rank, "%s", s->told.text);
        if (s->starved)
            return mesh__fail(err, MESH_ERR_MEMORY, s->net->base.rank,
                              "mesh_socket_open: rank %d has no memory for a connection", s->net->base.rank);
        if (s->refusal[0])
            return mesh__fail(err, MESH_ERR_TRANSPORT, s->net->base.rank, "mesh_socket_open: rank 0 at %s port %d: %s",
                              w->address, w->port, s->refusal);
        mesh_socket__hint(s, w->address, w->port);
        if (left <= 0) {
            if (p->conn)
                return mesh__fail(
                    err, MESH_ERR_TIMEOUT, 0,
                    "mesh_socket_open: rank %d reached rank 0, but not all %d ranks came before the deadline; rank 0 names the missing",
                    s->net->base.rank, s->net->base.size);
            return mesh__fail(
                err, MESH_ERR_TIMEOUT, 0,
                "mesh_socket_open: rank %d cannot reach rank 0 at %s port %d: %s; is rank 0 running, are MASTER_ADDR and the port right? (MESH_OPEN_TIMEOUT, in seconds, gives it longer)",
                s->net->base.rank, w->address, w->port, mesh_socket__all_said(s, said, sizeof said));
        }
        if (p->gone)
            return mesh__fail(err, MESH_ERR_PEER, 0,
                              "mesh_socket_open: rank 0 went away before all %d ranks had come%s%s", s->net->base.size,
                              s->last[0] ? ": " : "", s->last);
        mesh_socket__turn_away(s, &way);
        if (!p->conn && !p->coming) mesh_socket__approach(s, &way);
        if (p->coming && p->coming->state == MESH_SOCKET__CONNECTING && s->tcp_fd < 0) {
            struct pollfd f;
            mesh_status status;
            f.fd = p->coming->fd;
            f.events = POLLOUT;
            if (poll(&f, 1, 100) > 0 && (status = mesh_socket__joining(s, w, err)) != MESH_OK) return status;
            continue; /* a long way: before there is an address to listen at, nobody may be joined */
        }
        if (!p->conn && !p->coming) continue;
        mesh_socket__round(s, left > 100000000 ? 100 : (int)(left / 1000000) + 1);
    }
    mesh_socket__move(s);
    return MESH_OK;
}

/* A connection is a descriptor, and so is the bell of each rank that shares memory: many ranks need more than the usual soft limit. */
MESH__RARE void mesh_socket__raise_files(int ranks) {
    struct rlimit limit;
    rlim_t wanted = (rlim_t)ranks * 2 + MESH_SOCKET__SHARERS + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
    limit.rlim_cur = limit.rlim_max != RLIM_INFINITY && limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Rank 0 needs a descriptor for every rank, listeners, and one that is opened for a moment; who joins needs listeners,
   memory to share, a bell, and connections: to twice log2(ranks) others, for collectives. Better told now than when ranks are missing. */
MESH__RARE mesh_status mesh_socket__files_check(const mesh_socket__impl *s, mesh_error *err) {
    struct rlimit limit;
    int rank = s->net->base.rank, size = s->net->base.size, need = rank ? 8 : size + 2, fd, used = 0, most, rest;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > 1 << 20)
        return MESH_OK;
    for (rest = size - 1; rest && rank; rest /= 2) need += 2;
    most = limit.rlim_cur < 4096 ? (int)limit.rlim_cur : 4096;
    for (fd = 0; fd < most && fd - used < need; fd++) used += fcntl(fd, F_GETFD) >= 0;
    if ((int)limit.rlim_cur - used >= need) return MESH_OK;
    return mesh__fail(
        err, MESH_ERR_TRANSPORT, rank,
        "mesh_socket_open: rank %d of %d needs %d more descriptors, but has %d left of its limit of %d; raise it with ulimit -n",
        rank, size, need, (int)limit.rlim_cur - used, (int)limit.rlim_cur);
}

/* This rank's place among those on this host, and how many ranks each of its cores is shared by. */
MESH__RARE void mesh_socket__neighbours(mesh_socket__impl *s, mesh_env *w) {
    int i, before = 0, cores, me = s->net->base.rank;
    uint64_t mine = s->book[me].cores, bits;
    s->near = s->place = 0;
    for (i = 0; i < s->net->base.size; i++)
        if (i == me || s->book[i].host == s->book[me].host) {
            uint64_t theirs = s->book[i].cores;
            int near = i == me || !mine || !theirs || (mine & theirs) != 0;
            s->near += near;
            s->place += near && i < me;
            before += i < me;
        }
    s->net->local_rank = w->local_rank >= 0 ? w->local_rank : before;
    cores = mesh_env_cores(&bits);
    s->crowded = s->near > cores ? (s->near + cores - 1) / cores : 0;
}

/* An event a line, in Chrome's trace format, in the file as it happens: one without its end, of a rank that was killed, is good to read too. Operations under way
   at once are on tracks of their own. The time is the host's; what brings it to rank 0's is in an event of its own, "clock", for `mesh trace` to add. Numbers are written
   as integers: a locale may have a comma where JSON wants a point. */
MESH__RARE void mesh_socket__traced(mesh_socket__impl *s) {
    if (!fflush(s->trace) && !ferror(s->trace)) return;
    mesh_socket__log(s, 1,
                     "mesh_socket: MESH_TRACE: cannot write what rank %d does any more: %s; its trace is not whole",
                     s->net->base.rank, strerror(errno));
    s->net->base.trace = NULL;
    s->net->base.trace_clock = NULL;
}

MESH__RARE void mesh_socket__trace(void *ctx, const mesh_trace_event *v) {
    mesh_socket__impl *s = (mesh_socket__impl *)ctx;
    int64_t ns = v->start + s->net->base.trace_epoch;
    char name[32], *p;
    int n;
    mesh__copy_text(name, sizeof name, v->comm[0] ? v->comm : "comm");
    for (p = name; *p; p += n) { /* as JSON has it in quotes */
        n = mesh__utf8(p, name + strlen(name));
        if (!n || (unsigned char)*p < 0x20 || *p == '"' || *p == '\\') *p = '_', n = 1;
    }
    fprintf(
        s->trace,
        ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.%03d,\"dur\":%lld.%03d,\"name\":\"%s\",\"cat\":\"%s\",\"args\":{\"comm\":%u,"
        "\"named\":\"%s\",\"group\":%d,\"first\":%d,\"ranks\":%d,\"sequence\":%u,\"count\":%llu,\"sent\":%llu,\"received\":%llu,\"dtype\":\"%s\",\"op\":\"%s\",\"status\":%d}}",
        s->net->base.rank, v->slot, (long long)(ns / 1000), (int)(ns % 1000), (long long)((v->end - v->start) / 1000),
        (int)((v->end - v->start) % 1000), v->call, v->axes, v->comm_id, name, v->group, v->first, v->ranks,
        v->sequence, (unsigned long long)v->count, (unsigned long long)v->sent, (unsigned long long)v->received,
        v->dtype, v->op, (int)v->status);
    mesh_socket__traced(s);
}

MESH__RARE void mesh_socket__trace_clock(void *ctx, int64_t offset, int64_t within) {
    mesh_socket__impl *s = (mesh_socket__impl *)ctx;
    uint64_t ns = offset < 0 ? 0 - (uint64_t)offset : (uint64_t)offset;
    fprintf(
        s->trace,
        ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"clock\",\"args\":{\"offset_us\":%s%llu.%03d,\"within_us\":%lld.%03d}}",
        s->net->base.rank, offset < 0 ? "-" : "", (unsigned long long)(ns / 1000), (int)(ns % 1000),
        (long long)(within / 1000), (int)(within % 1000));
}

MESH__RARE mesh_status mesh_socket__open_trace(mesh_socket__impl *s, mesh_error *err) {
    const char *dir = getenv("MESH_TRACE");
    char path[1024];
    struct timespec t;
    if (!dir || !*dir) return MESH_OK;
    mkdir(dir, 0777); /* another rank may have made it */
    if (snprintf(path, sizeof path, "%s/rank-%d.json", dir, s->net->base.rank) >= (int)sizeof path)
        errno = ENAMETOOLONG;
    else
        s->trace = fopen(path, "we");
    if (!s->trace)
        return mesh__fail(err, MESH_ERR_ARGUMENT, s->net->base.rank,
                          "mesh_socket_open: MESH_TRACE: cannot write %s: %s", path, strerror(errno));
    clock_gettime(CLOCK_REALTIME, &t); /* modulo 10^12 us, which a double holds to a tenth of a ns */
    s->net->base.trace_epoch = ((int64_t)t.tv_sec % 1000000) * 1000000000 + t.tv_nsec - mesh_socket__clock();
    s->net->base.trace = mesh_socket__trace;
    s->net->base.trace_clock = mesh_socket__trace_clock;
    s->net->base.trace_ctx = s;
    return MESH_OK;
}

/* The table that MESH_TUNING names. */
MESH__RARE mesh_status mesh_socket__read_tuning(mesh_socket__impl *s, mesh_error *err) {
    const char *path = getenv("MESH_TUNING");
    char text[16384];
    mesh_error why;
    size_t n = 0;
    int fd, error = 0;
    if (!path || !*path) return MESH_OK;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && n < sizeof text - 1) {
        ssize_t got = read(fd, text + n, sizeof text - 1 - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) error = errno;
        if (got <= 0) break;
        n += (size_t)got;
    }
    if (fd < 0) error = errno;
    if (fd >= 0) close(fd);
    if (error || n == sizeof text - 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_socket_open: MESH_TUNING names \"%s\": %s", path,
                          error ? strerror(error) : "longer than 16 KiB");
    text[n] = 0;
    if (mesh_tuning_parse(&s->tuning, text, &why) != MESH_OK)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_socket_open: MESH_TUNING (%s): %s", path, why.text);
    s->net->base.tuning = &s->tuning;
    return MESH_OK;
}

/* Where the desc has no log: warnings go to stderr. (Errors have their status and text, the rest is for who asks.) */
static void mesh_socket__warn(void *ctx, int level, const char *text) {
    (void)ctx;
    if (level == 1) fprintf(stderr, "%s\n", text);
}

/* The secret in the file that MESH_SECRET_FILE names, without its last newline; none is no error. */
MESH__RARE mesh_status mesh_socket__secret_file(char *text, size_t cap, const char **secret, mesh_error *err) {
    const char *path = getenv("MESH_SECRET_FILE");
    int fd, error, longer;
    ssize_t n, got;
    if (!path || !*path) return MESH_OK;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    for (n = got = fd < 0 ? -1 : 0; fd >= 0 && n < (ssize_t)cap && (got = read(fd, text + n, cap - (size_t)n)) != 0;)
        if (got > 0)
            n += got;
        else if (errno != EINTR)
            break;
    error = errno;
    longer = n == (ssize_t)cap;
    if (got < 0) n = -1;
    if (fd >= 0) close(fd);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) n--;
    if (n <= 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_socket_open: MESH_SECRET_FILE names \"%s\": %s", path,
                          n ? strerror(error) : "it is empty");
    if (longer || n > (ssize_t)cap - 3)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_socket_open: MESH_SECRET_FILE names \"%s\": more than %d bytes; it is a line of text",
                          path, (int)cap - 3);
    text[n] = 0;
    if (strlen(text) < (size_t)n)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_socket_open: MESH_SECRET_FILE names \"%s\": a zero byte in it; it is a line of text",
                          path);
    *secret = text;
    return MESH_OK;
}

/* Where the program has closed stdin, stdout or stderr they become /dev/null: else a connection would be one of them, and be written to. */
MESH__RARE void mesh_socket__fill_standard(void) {
    int fd;
    for (fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd) return;
}

/* An endpoint of nothing yet. MEMORY: nothing is left of it. */
MESH__RARE mesh_status mesh_socket__begin(mesh_socket *net, const mesh_socket_desc *desc, const mesh_env *where,
                                          mesh_error *err) {
    mesh_socket__impl *s;
    int i;
    net->base.ops = mesh_socket__ops(0);
    net->base.rank = where->rank;
    net->base.size = where->size;
    net->base.caps = MESH_CAP_STRIDED | MESH_CAP_CHECK | MESH_CAP_PENDING | MESH_CAP_CANCEL;
    net->base.allocator = desc->allocator;
    net->base.log = desc->log ? desc->log : mesh_socket__warn;
    net->base.log_ctx = desc->log_ctx;
    s = (mesh_socket__impl *)mesh_transport_alloc(&net->base, sizeof *s);
    if (!s) {
        net->base.ops = NULL;
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_socket_open: no memory");
    }
    memset(s, 0, sizeof *s);
    net->impl = s;
    s->net = net;
    s->tcp_fd = s->unix_fd = s->ready = s->ended_fd[0] = s->ended_fd[1] = -1;
    s->schedstat = -1;
    s->slot_free = INT32_MAX;
    s->opened_by = (int64_t)getpid();
    mesh_socket__alive_make(s);
    mesh_socket__fill_standard();
    s->in_open = 1;
    s->identity = mesh_env_job(mesh_socket__is_local(desc));
    s->book = (mesh_socket__entry *)mesh_transport_alloc(&net->base, sizeof *s->book * (size_t)where->size);
    s->peer = (mesh_socket__peer *)mesh_transport_alloc(&net->base, sizeof *s->peer * (size_t)where->size);
    s->restless = (int *)mesh_transport_alloc(&net->base, sizeof *s->restless * (size_t)where->size);
#if MESH_SOCKET__LINUX
    s->ready = epoll_create1(EPOLL_CLOEXEC); /* without one poll is asked */
#endif
    if (!s->book || !s->peer || !s->restless) {
        mesh_transport_free(&net->base, s->peer);
        s->peer = NULL;
        mesh_socket__release(s);
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_socket_open: no memory for %d ranks", where->size);
    }
    memset(s->book, 0, sizeof *s->book * (size_t)where->size);
    memset(s->peer, 0, sizeof *s->peer * (size_t)where->size);
    for (i = 0; i < where->size; i++) s->peer[i].early_end = &s->peer[i].early;
    return MESH_OK;
}

/* What description and environment say beside who and where: the secret, lanes, the deadline of operations, tuning, a trace. */
MESH__RARE mesh_status mesh_socket__configure(mesh_socket__impl *s, const mesh_socket_desc *desc, mesh_error *err) {
    const char *secret = mesh_socket__secret_text(desc), *lanes = getenv("MESH_SOCKET_LANES");
    char file[sizeof s->secret + 2]; /* and the end of its line */
    int bad = 0, seconds = 0;
    int64_t allowed = INT64_C(60000000000);
    mesh_status status;
    if (lanes && !*lanes) lanes = NULL;
    status = secret ? MESH_OK : mesh_socket__secret_file(file, sizeof file, &secret, err);
    s->secret_bytes = secret ? strlen(secret) : 0;
    s->lanes = desc->lanes                          ? desc->lanes
               : lanes && mesh__same(lanes, "tcp")  ? MESH_SOCKET_TCP
               : lanes && mesh__same(lanes, "unix") ? MESH_SOCKET_UNIX
                                                    : MESH_SOCKET_AUTO;
    if (status == MESH_OK && s->secret_bytes >= sizeof s->secret)
        status = mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_socket_open: the secret has %d bytes; at most %d",
                            (int)s->secret_bytes, (int)sizeof s->secret - 1);
    else if (status == MESH_OK && (desc->lanes < MESH_SOCKET_AUTO || desc->lanes > MESH_SOCKET_UNIX))
        status = mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                            "mesh_socket_open: desc.lanes is %d; it is MESH_SOCKET_AUTO, _TCP or _UNIX", desc->lanes);
    else if (status == MESH_OK && lanes && !mesh__same(lanes, "tcp") && !mesh__same(lanes, "unix") &&
             !mesh__same(lanes, "auto"))
        status = mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                            "mesh_socket_open: MESH_SOCKET_LANES is \"%s\"; it is auto, unix or tcp", lanes);
    else if (status == MESH_OK)
        memcpy(s->secret, secret ? secret : "", s->secret_bytes);
    mesh_socket__wipe(file, sizeof file);
    if (status == MESH_OK && mesh_socket__env_number("MESH_TIMEOUT", "number of seconds", &seconds, err, &bad))
        s->net->base.timeout_ns = (int64_t)seconds * 1000000000;
    if (desc->open_timeout_ns > 0)
        allowed = desc->open_timeout_ns;
    else if (status == MESH_OK &&
             mesh_socket__env_number("MESH_OPEN_TIMEOUT", "number of seconds", &seconds, err, &bad) && seconds)
        allowed = (int64_t)seconds * 1000000000;
    if (allowed > MESH__FOREVER_NS) allowed = MESH__FOREVER_NS;
    s->open_deadline = mesh_socket__clock() + allowed;
    s->hint_at = s->open_deadline - (allowed < INT64_C(10000000000) ? allowed / 2 : allowed - INT64_C(5000000000));
    s->threaded = desc->progress_thread;
    if (!s->threaded) mesh_socket__env_number("MESH_PROGRESS_THREAD", "number", &s->threaded, err, &bad);
    if (bad) status = MESH_ERR_ARGUMENT;
    if (status == MESH_OK) status = mesh_socket__read_tuning(s, err);
    return status == MESH_OK ? mesh_socket__open_trace(s, err) : status;
}

/* ---- // >>memory in common with the ranks of this host ---- */

/* The ranks of this host that would share memory, this one among them, ascending. Returns how many; 0 where it is none, or too many. */
MESH__RARE int mesh_socket__sharers(const mesh_socket__impl *s, int *ranks) {
    int i, n = 0, me = s->net->base.rank;
    for (i = 0; i < s->net->base.size; i++) {
        if (!s->book[i].shares || !s->book[i].token || s->book[i].host != s->book[me].host) continue;
        if (n == MESH_SOCKET__SHARERS) return 0;
        ranks[n++] = i;
    }
    return s->book[me].shares && n > 1 ? n : 0;
}

/* Pass on the descriptors of the memory and the bells, with the frame that tells of them; without, where the connection can carry none. Returns 0
   at the deadline. */
MESH__RARE int mesh_socket__pass(mesh_socket__impl *s, mesh_socket__conn *c, int64_t deadline) {
    mesh_socket__shared *h = s->shared;
    unsigned char head[MESH_SOCKET__HEADER];
    union {
        struct cmsghdr aligned;
        unsigned char bytes[MESH_SOCKET__CMSG_SPACE(sizeof s->given)];
    } extra;
    struct msghdr m;
    struct iovec v;
    struct cmsghdr *fd;
    int64_t most = mesh_socket__clock() + MESH_SOCKET__PASS_NS;
    int rank = c->rank, without = !c->is_unix;
    mesh_socket__header(head, MESH_SOCKET__F_SHARE, 0, 0, 0, (uint64_t)h->n, h->heap);
    memset(&extra, 0, sizeof extra);
    memset(&m, 0, sizeof m);
    v.iov_base = head;
    v.iov_len = sizeof head;
    m.msg_iov = &v;
    m.msg_iovlen = 1;
    m.msg_control = &extra;
    m.msg_controllen = MESH_SOCKET__CMSG_SPACE((1 + (size_t)h->n) * sizeof h->fd);
    fd = CMSG_FIRSTHDR(&m);
    fd->cmsg_level = SOL_SOCKET;
    fd->cmsg_type = SCM_RIGHTS;
    fd->cmsg_len = MESH_SOCKET__CMSG_LEN((1 + (size_t)h->n) * sizeof h->fd);
    memcpy(CMSG_DATA(fd), &h->fd, sizeof h->fd);
    memcpy(CMSG_DATA(fd) + sizeof h->fd, h->bell, (size_t)h->n * sizeof *h->bell);
    while (!without && s->peer[rank].conn == c && !c->broken && mesh_socket__clock() < deadline) {
        ssize_t n = mesh_socket__is_idle(s, c) ? sendmsg(c->fd, &m, MSG_NOSIGNAL) : 0;
        if (n > 0) { /* the descriptors went with the first byte */
            mesh_socket__raw(s, c, head + n, sizeof head - (size_t)n);
            mesh_socket__flush(s, c);
            return 1;
        }
        if (n < 0 && errno == MESH_SOCKET__TOO_MANY) /* others have theirs yet to take */
            without = mesh_socket__clock() >= most;
        else if (n < 0)
            without = errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS && errno != EINTR;
        if (!without) mesh_socket__round(s, 1);
    }
    if (without && s->peer[rank].conn == c && !c->broken) {
        mesh_socket__frame_send(s, c, MESH_SOCKET__F_SHARE, (uint64_t)h->n, h->heap, NULL, 0);
        mesh_socket__flush(s, c);
        return 1;
    }
    return s->peer[rank].conn != c || c->broken;
}

/* Until a peer has said whether it shares, or is gone. What it said; SAYS_NOTHING at the deadline. */
MESH__RARE int mesh_socket__said(mesh_socket__impl *s, int rank, int64_t deadline) {
    mesh_socket__peer *p = &s->peer[rank];
    while (!p->shares && !p->gone && mesh_socket__clock() < deadline) {
        mesh_socket__reach(s, rank);
        mesh_socket__retries(s);
        mesh_socket__round(s, 10);
    }
    return p->gone && !p->shares ? (int)MESH_SOCKET__SAYS_NO : p->shares;
}

MESH__RARE mesh_status mesh_socket__late(mesh_socket__impl *s, int rank, mesh_error *err) {
    mesh_error why;
    mesh__fail(&why, MESH_ERR_TIMEOUT, rank,
               "mesh_socket_open: rank %d did not say before the deadline whether it shares memory", rank);
    return mesh_socket__give_up(s, s->shared->rank, s->shared->me ? 0 : s->shared->n, &why, err);
}

/* The first of them makes the memory and passes it on; all have it, or none. */
MESH__RARE mesh_status mesh_socket__share_lead(mesh_socket__impl *s, int64_t deadline, mesh_error *err) {
    mesh_socket__shared *h = s->shared;
    int i, all = 1, error = mesh_socket__shared_make(h);
    if (!error && !mesh_socket__hear_bell(s)) error = errno;
    if (error)
        mesh_socket__log(s, 1, "mesh_socket: no shared memory, so sockets: %s", strerror(error));
    else
        mesh_socket__introduce(s);
    for (i = 1; i < h->n; i++) {
        mesh_socket__peer *p = &s->peer[h->rank[i]];
        while (!p->conn && !p->gone && mesh_socket__clock() < deadline)
            mesh_socket__round(s, 10); /* it is on its way */
        if (!p->conn && !p->gone) return mesh_socket__late(s, h->rank[i], err);
        if (!error && p->conn && !mesh_socket__pass(s, p->conn, deadline)) return mesh_socket__late(s, h->rank[i], err);
    }
    for (i = 1; i < h->n && !error; i++) {
        int said = mesh_socket__said(s, h->rank[i], deadline);
        if (!said) return mesh_socket__late(s, h->rank[i], err);
        all &= said == MESH_SOCKET__SAYS_YES;
    }
    s->sharing = all && !error;
    for (i = 1; i < h->n; i++) {
        mesh_socket__conn *c = s->peer[h->rank[i]].conn;
        if (!c) continue;
        mesh_socket__frame_send(s, c, MESH_SOCKET__F_SHARED, (uint64_t)s->sharing, 0, NULL, 0);
        mesh_socket__flush(s, c);
    }
    return MESH_OK;
}

MESH__RARE mesh_status mesh_socket__share_follow(mesh_socket__impl *s, int64_t deadline, mesh_error *err) {
    mesh_socket__shared *h = s->shared;
    int lead = h->rank[0], mapped = 0;
    mesh_socket__peer *p = &s->peer[lead];
    int said = mesh_socket__said(s, lead, deadline);
    if (said == MESH_SOCKET__SAYS_YES) {
        int all = s->given_ranks == h->n && s->ngiven == 1 + h->n;
        if (all) {
            h->fd = s->given[0];
            memcpy(h->bell, s->given + 1, (size_t)h->n * sizeof *h->bell);
            s->ngiven = 0;
        }
        h->heap = s->given_heap;
        mapped = all && mesh_socket__map(h) && mesh_socket__hear_bell(s);
        if (mapped)
            mesh_socket__introduce(s);
        else if (all)
            mesh_socket__log(s, 1, "mesh_socket: no shared memory, so sockets: %s", strerror(errno));
        else
            mesh_socket__log(
                s, 1,
                "mesh_socket: no shared memory, so sockets: rank %d is connected to over TCP, or there are no descriptors left",
                lead);
        p->shares = MESH_SOCKET__SAYS_NOTHING;
        if (p->conn) mesh_socket__frame_send(s, p->conn, MESH_SOCKET__F_SHARED, (uint64_t)mapped, 0, NULL, 0);
        said = mesh_socket__said(s, lead, deadline);
    }
    if (s->told.status != MESH_OK)
        return mesh__fail(err, (mesh_status)s->told.status, s->told.rank, "%s", s->told.text);
    if (!said) return mesh_socket__late(s, lead, err);
    if (!p->shares)
        return mesh__fail(err, MESH_ERR_PEER, lead, "mesh_socket_open: rank %d was lost before all had come", lead);
    s->sharing = mapped && said == MESH_SOCKET__SAYS_YES;
    return MESH_OK;
}

/* Have memory in common with the other ranks of this host, where all of them can. */
MESH__RARE mesh_status mesh_socket__share(mesh_socket__impl *s, mesh_error *err) {
    int ranks[MESH_SOCKET__SHARERS], i, me = 0, n = mesh_socket__sharers(s, ranks);
    mesh_status status;
    if (!n) {
        s->awaits_fds = 0;
        return MESH_OK;
    }
    while (ranks[me] != s->net->base.rank) me++;
    s->shared = mesh_socket__shared_new(s, n, me, ranks);
    if (!s->shared) return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_socket_open: no memory");
    for (i = 0; i < n; i++) s->peer[ranks[i]].sharer = 1 + i;
    status =
        me ? mesh_socket__share_follow(s, s->open_deadline + INT64_C(1000000000), err) /* its first one knows more */
           : mesh_socket__share_lead(s, s->open_deadline, err);
    s->awaits_fds = 0;
    mesh_socket__give_back(s);
    for (i = 0; i < n && !s->sharing; i++) s->peer[ranks[i]].sharer = 0;
    if (!s->sharing) mesh_socket__unshare(s);
    if (s->sharing) mesh_socket__probe(s);
    if (s->sharing) mesh_socket__all_call(s->shared);
    s->net->base.ops = mesh_socket__ops(s->sharing);
    for (i = 0; i < s->nconns && s->sharing; i++) {
        mesh_socket__conn *c = s->conn[i];
        if (c->state != MESH_SOCKET__UP || c->broken) continue;
        mesh_socket__use_ring(s, c);
        mesh_socket__flush(s, c);
    }
    return status;
}

/* Of the addresses that rank 0's name has, those of loopback; the first is one. */
MESH__RARE void mesh_socket__stay_on_loopback(mesh_socket__impl *s) {
    int i, kept = 0;
    for (i = 0; i < s->naddresses; i++) {
        if (!mesh_socket__is_loopback((struct sockaddr *)(void *)&s->address[i])) continue;
        s->address[kept] = s->address[i];
        s->address_len[kept++] = s->address_len[i];
    }
    s->naddresses = kept;
}

/* A world of more than one: meet the others. */
MESH__RARE mesh_status mesh_socket__join(mesh_socket__impl *s, const mesh_socket_desc *desc, const mesh_env *where,
                                         mesh_error *err) {
    int inherited = 0, bad = 0;
    mesh_status status = mesh_socket__resolve(s, where, err);
    if (status != MESH_OK) return status;
    if (!s->secret_bytes && !desc->insecure && !mesh_socket__is_loopback((struct sockaddr *)(void *)&s->master))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "mesh_socket_open: rank 0's address %s is beyond loopback, and there is no secret: set MESH_SECRET to the same random text on every rank (`mesh run` does), or desc.insecure",
            where->address);
    if (!s->secret_bytes && !desc->insecure) mesh_socket__stay_on_loopback(s);
    mesh_socket__raise_files(where->size);
    if ((status = mesh_socket__files_check(s, err)) != MESH_OK) return status;
    if (desc->listen_fd > 0)
        inherited = desc->listen_fd;
    else if (where->rank == 0)
        mesh_socket__env_number("MESH_LISTEN_FD", "number", &inherited, err, &bad);
    if (bad) return MESH_ERR_ARGUMENT;
    if (desc->port && desc->listen_fd <= 0 && (where->rank || !mesh_socket__is_at(inherited, desc->port)))
        inherited = 0; /* another world's */
    else
        unsetenv("MESH_LISTEN_FD"); /* it serves once, and no child */
    mesh_socket__listen_unix(s);
    return where->rank == 0 ? mesh_socket__open_lead(s, where, inherited, desc->insecure, err)
                            : mesh_socket__open_follow(s, where, err);
}

MESH_API mesh_status mesh_socket_open(mesh_socket *net, const mesh_socket_desc *desc, mesh_error *err) {
    static const mesh_socket_desc none = MESH_ZERO;
    mesh_env where;
    mesh_socket__impl *s;
    mesh_status status;
    int i;
    if (!net) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_socket_open: the socket is NULL");
    if (!desc) desc = &none;
    memset(net, 0, sizeof *net);
    if ((status = mesh_socket__who(desc, &where, err)) != MESH_OK ||
        (status = mesh_socket__begin(net, desc, &where, err)) != MESH_OK)
        return status;
    s = mesh_socket__of(&net->base);
    status = mesh_socket__configure(s, desc, err);
    if (where.size == 1 && !desc->size) mesh_socket__decline();
    if (status == MESH_OK && where.size > 1) status = mesh_socket__join(s, desc, &where, err);
    if (status != MESH_OK) {
        mesh_socket__release(s);
        return status;
    }
    s->in_open = s->starved = 0;
    for (i = 0; i < s->nconns; i++)
        if (s->conn[i]->state == MESH_SOCKET__UP) mesh_socket__place_known(s, s->conn[i]);
    mesh_socket__neighbours(s, &where);
    if ((status = mesh_socket__share(s, err)) != MESH_OK) {
        mesh_socket__release(s);
        return status;
    }
    if (!s->crowded && s->near > 1) mesh_socket__spread(s);
    if (s->trace)
        fprintf(
            s->trace,
            "[{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\",\"job\":\"%08lx%08lx\",\"world\":%d}}",
            where.rank, where.rank, (unsigned long)(s->job >> 32), (unsigned long)(s->job & 0xffffffffu), where.size);
    if (s->trace) fflush(s->trace);
    if (s->threaded && where.size > 1 && (status = mesh_socket__helper_start(s, err)) != MESH_OK) {
        mesh_socket__close(&net->base, NULL);
        return status;
    }
    return MESH_OK;
}
#endif /* MESH_SOCKET_OPEN_IMPLEMENTED */
