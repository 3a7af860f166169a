/* socket/state.h - what a rank over sockets has: peers, connections, messages on their way; the wire format's numbers. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh_socket.h. Knows no frame and no event.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_STATE_IMPLEMENTED)
#define MESH_SOCKET_STATE_IMPLEMENTED
#include "../mesh_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#if !defined(AI_PASSIVE) || !defined(CLOCK_MONOTONIC)
#error \
    "mesh_socket.h: POSIX is hidden: compile with -std=gnu99, or define _POSIX_C_SOURCE 200809L before the first #include"
#endif

/* What Linux has beyond POSIX stands behind this one switch: abstract Unix-domain addresses, the bytes a socket has not sent, TCP's
   options, /proc, another process watched. Everything works without, which the tests run to show. */
#if defined(__linux__) && !defined(MESH_POSIX_ONLY)
#define MESH_SOCKET__LINUX 1
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#else
#define MESH_SOCKET__LINUX 0
#endif

#if MESH_SOCKET__LINUX && !defined(_GNU_SOURCE) /* else they are declared */
#ifdef __cplusplus
extern "C" {
#endif
extern int accept4(int fd, struct sockaddr *a, socklen_t *length, int flags);
#if !defined(_DEFAULT_SOURCE) && !defined(_BSD_SOURCE)
extern long syscall(long number, ...);
#endif
#ifdef __cplusplus
}
#endif
#endif

#if defined(SO_PEERCRED) /* hidden from strict C */
#define MESH_SOCKET__PEERCRED SO_PEERCRED
#elif defined(__powerpc__)
#define MESH_SOCKET__PEERCRED 21
#elif defined(__mips__) || defined(__alpha__)
#define MESH_SOCKET__PEERCRED 18
#else
#define MESH_SOCKET__PEERCRED 17
#endif

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* there SO_NOSIGPIPE does it */
#endif
#if defined(SO_NOSIGPIPE)
#define MESH_SOCKET__NOSIGPIPE SO_NOSIGPIPE
#elif defined(__APPLE__) /* hidden from strict C */
#define MESH_SOCKET__NOSIGPIPE 0x1022
#endif

/* Descriptors are passed on Linux, which shows these; BSD and macOS hide them from strict POSIX. */
#ifdef CMSG_SPACE
#define MESH_SOCKET__CMSG_SPACE(n) CMSG_SPACE(n)
#define MESH_SOCKET__CMSG_LEN(n) CMSG_LEN(n)
#else
#define MESH_SOCKET__CMSG_SPACE(n) (sizeof(struct cmsghdr) + (n))
#define MESH_SOCKET__CMSG_LEN(n) MESH_SOCKET__CMSG_SPACE(n)
#endif
#ifdef ETOOMANYREFS
#define MESH_SOCKET__TOO_MANY ETOOMANYREFS
#else
#define MESH_SOCKET__TOO_MANY EAGAIN
#endif

#ifndef MESH_SOCKET_FEW
#define MESH_SOCKET_FEW 3 /* tests set 0, to have everything go by way of the epoll */
#endif

/* ---- // >>wire: what goes over a connection -------------------------------------------------------------------------------------

   Everything little-endian. Handshake, C the side that connects, S the side that accepts:
     C  magic 8, nonce 32
     S  magic 8, nonce 32
     C  HMAC(secret, "C" nonceC nonceS | hello), hello
     S  HMAC(secret, "S" nonceC nonceS), verdict 4 (0: welcome), length 4, text; all zero to who does not know the secret
   Who connects proves first: a stranger who connects gets nothing to guess the secret by.
   Then frames: a header of 48 bytes, and `length` bytes that belong to it. The last 8 are 0: behind 40 in the kernel's buffers what lies 16 bytes into
   its page, as large memory of malloc does, is copied at a tenth of the speed (mesh__copies_slowly). */

#define MESH_SOCKET__MAGIC "MESH\4\0\r\n" /* the fifth byte is the version of the wire format */

/* What the accepting side says of a hello. LATER: rank 0 has not left the world before. */
enum { MESH_SOCKET__WELCOME, MESH_SOCKET__REFUSED, MESH_SOCKET__LATER };

/* After so long a host that does not answer is given up, as TCP's keepalive does. */
#define MESH_SOCKET__SILENCE_NS INT64_C(20000000000)
/* For so long there may be too many descriptors on their way to pass more. */
#define MESH_SOCKET__PASS_NS INT64_C(2000000000)
enum {
    MESH_SOCKET__HEADER = 48,
    MESH_SOCKET__HELLO = 88,
    MESH_SOCKET__C1 = 40,
    MESH_SOCKET__S1 = 40,
    MESH_SOCKET__S2 = 40,
    MESH_SOCKET__C2 = 32 + MESH_SOCKET__HELLO,
    MESH_SOCKET__VERDICT_TEXT = 240,
    MESH_SOCKET__EAGER = 64 * 1024, /* the most that goes without an offer */
    MESH_SOCKET__COPIED =
        4 * 1024, /* of which so much through the connection's buffer, so that small frames share a write */
    MESH_SOCKET__QUEUED = 16 * 1024,  /* and so much where the connection is busy */
    MESH_SOCKET__CREDIT = 1 << 20,    /* eager bytes that may lie unreceived at a peer */
    MESH_SOCKET__CHUNK = 1024 * 1024, /* of a large message in one frame */
    MESH_SOCKET__RBUF = 16 * 1024,
    MESH_SOCKET__AHEAD = 8 * 1024,      /* read beyond what is known to belong to a message */
    MESH_SOCKET__ENTRY = 64,            /* of the address book, the last 8 bytes of its first one the job's number */
    MESH_SOCKET__FEW = MESH_SOCKET_FEW, /* connections that are simply read */
    MESH_SOCKET__HANGUPS = 8,           /* attempts at rank 0, some 0.4 s, before it is said that they are hung up on */
    MESH_SOCKET__STRANGERS = 64,        /* connections that have not proved themselves */
    MESH_SOCKET__OFFERS = 32768,        /* of large messages that a peer has not accepted; more wait here */
    MESH_SOCKET__CONTROLS = 4096,       /* messages of a peer that the core has not taken */
    MESH_SOCKET__IOVS = 64,
    MESH_SOCKET__EVENTS = 64,     /* taken from the kernel at once */
    MESH_SOCKET__SHARERS = 64,    /* ranks of a host that share memory; with more of them it is sockets */
    MESH_SOCKET__SPARE_XFERS = 4, /* messages that a ticket has room for which is kept */
    MESH_SOCKET__SPARES = 16,     /* kept tickets */
    MESH_SOCKET__GLANCES = 64     /* at shared memory, before the kernel is asked */
};

/* What goes over a connection that stands: who deals with it, how many bytes may follow the header, 1 where those have to be here before it is dealt
   with; what the header holds. */
#define MESH_SOCKET__FRAMES(X)                                                                                       \
    X(MESH_SOCKET__F_EAGER, eager, 0, MESH_SOCKET__EAGER, 0)     /* channel check; the message */                    \
    X(MESH_SOCKET__F_OFFER, offer, 0, 0, 0)                      /* channel check a=bytes b=send id: a large */      \
    X(MESH_SOCKET__F_ACCEPT, accept, 0, 0, 0)                    /* a=send id b=recv id: send it */                  \
    X(MESH_SOCKET__F_REFUSE, refuse, 0, 0, 0)                    /* a=send id b=bytes that were expected */          \
    X(MESH_SOCKET__F_WITHDRAW, withdraw, 0, 0, 0)                /* a=recv id: it will not come any more */          \
    X(MESH_SOCKET__F_DATA, data, 1, MESH_SOCKET__CHUNK, 0)       /* a=recv id b=offset; a piece of it */             \
    X(MESH_SOCKET__F_CREDIT, credit, 0, 0, 0)                    /* a=eager bytes taken */                           \
    X(MESH_SOCKET__F_CONTROL, control, 0, MESH_CONTROL_BYTES, 1) /* a=kind; the core's message */                    \
    X(MESH_SOCKET__F_LOST, lost, 0, 256, 1)                      /* a=rank; why */                                   \
    X(MESH_SOCKET__F_BOOK, book, 0, UINT32_MAX, 0)               /* the address book, of rank 0 */                   \
    X(MESH_SOCKET__F_GOODBYE, goodbye, 0, 0, 0)                                                                      \
    X(MESH_SOCKET__F_GIVEN_UP, given_up, 0, MESH_ERROR_BYTES - 1, 1) /* why this rank is given up: others say   \
                           that it is lost, or it is waited for no longer; or the opening is, status -a, rank b */    \
    X(MESH_SOCKET__F_STAYS, stays, 0, 0, 0)   /* while opening: no Unix-domain connection to rank 0 could be had */  \
    X(MESH_SOCKET__F_SHARE, share, 0, 0, 0)   /* a=ranks that share memory b=bytes of each heap; the descriptors */  \
    X(MESH_SOCKET__F_SHARED, shared, 0, 0, 0) /* a=1: it is mapped, by all where the first of them says so */        \
    X(MESH_SOCKET__F_LEND, lend, 36, 256, 1)  /* channel check a=bytes b=send id; where the message lies: copy it */ \
    X(MESH_SOCKET__F_PULL, pull, 0, 0, 0)     /* a=send id b=1: it is copied; 0: that has begun */                   \
    X(MESH_SOCKET__F_RINGS, rings, 0, 0, 0)   /* what follows goes through shared memory; here comes only the end */

#define MESH_X(name, handler, least, most, whole) name,

enum { MESH_SOCKET__F_NONE, MESH_SOCKET__FRAMES(MESH_X) MESH_SOCKET__F_END };

#undef MESH_X

/* A header. data: what follows it, where it is whole. */
typedef struct mesh_socket__frame {
    uint32_t type, length;
    uint64_t channel, check, a, b, zero;
    const unsigned char *data;
} mesh_socket__frame;

typedef struct mesh_socket__ticket mesh_socket__ticket;

typedef struct mesh_socket__conn mesh_socket__conn;

typedef struct mesh_socket__ring mesh_socket__ring; /* shared.h */

typedef struct mesh_socket__shared mesh_socket__shared;

typedef struct mesh_socket__pull mesh_socket__pull; /* lend.h */

typedef struct mesh_socket__xfer {
    mesh_xfer x;
    mesh_block block;
    uint64_t channel, check, id, remote, moved; /* id: ours on the wire; remote: the peer's; moved: bytes so far */
    mesh_socket__ticket *ticket;
    int matched, done, accepted; /* accepted: the peer was asked for its bytes */
    int loan;                    /* 1 + its entry among those that this rank lends; 0: it is sent */
    uint64_t lent_at;            /* of memory that is held for it */
    /* In a peer's list: which, what is behind it, and what points to it. */
    struct mesh_socket__list *in;
    struct mesh_socket__xfer *next, **at;
} mesh_socket__xfer;

struct mesh_socket__ticket {
    mesh_socket__xfer *xfer;
    int count, left;
    mesh_status status;
    mesh_error why;
    int direct;                /* it is the first field of a mesh_socket__direct */
    mesh_socket__ticket *next; /* of those kept for the next post */
};

/* A message that came before its receive: its bytes follow this struct, or it is an offer of a large one. */
typedef struct mesh_socket__early {
    struct mesh_socket__early *next;
    uint64_t channel, check, nbytes, offer;
    int is_offer, is_lent; /* is_lent: a mesh_socket__loan follows */
} mesh_socket__early;

typedef struct mesh_socket__list { /* of messages, in order; each may leave it at any time */
    mesh_socket__xfer *head, **tail;
} mesh_socket__list;

typedef struct mesh_socket__peer {
    mesh_socket__conn *conn;   /* established, or NULL */
    mesh_socket__conn *coming; /* a connection of ours under way */
    mesh_socket__list posted, waiting, offered,
        streaming; /* receives not matched; sends without a connection, offered, accepted */
    mesh_socket__early *early, **early_end;
    int offers, controls;   /* of the peer, that wait here */
    int noffered;           /* in `offered` */
    uint64_t credit, taken; /* eager bytes we may send; eager bytes taken and not yet credited */
    uint64_t lent;          /* eager bytes that lie here */
    int untold;             /* gone, but there was no memory to say so */
    int gone, goodbye;      /* gone: a mesh_event_kind was reported */
    int settled;            /* on rank 0's host: the connection to rank 0 is the one that is kept */
    /* Where they share memory: how far this rank has written and read, and how far the peer has read, as last seen. */
    uint32_t ring_written, ring_read, ring_seen;
    mesh_socket__pull *aided; /* the message of the peer's that it is told of; NULL: none */
    uint32_t aided_turn;      /* so many there were */
    /* Of this rank's message that the peer copies: its turn; pieces that this rank has copied. */
    uint32_t aid_turn, aid_pieces;
    unsigned char *aid_stage; /* to here; NULL: none yet */
    int tried_unix, restless;
    int sharer;                    /* 1 + its index among the ranks that share memory; 0: it does not */
    int shares;                    /* while opening: what it has said of that */
    int64_t retry_at, short_since; /* since when there has been no descriptor or port for a connection; 0: there is */
    unsigned char *held;           /* control frames that wait for the connection */
    int held_len, held_cap;
} mesh_socket__peer;

enum { MESH_SOCKET__CONNECTING, MESH_SOCKET__GREETING, MESH_SOCKET__UP };

/* The message of the handshake that comes next. */
enum {
    MESH_SOCKET__AWAIT_NONCE,   /* C's, by S */
    MESH_SOCKET__AWAIT_HELLO,   /* by S */
    MESH_SOCKET__AWAIT_ANSWER,  /* S's nonce, by C */
    MESH_SOCKET__AWAIT_VERDICT, /* by C */
    MESH_SOCKET__AWAIT_REASON   /* the text of one that is no welcome */
};

/* What an event of the epoll is of: the low bits beside a connection's address. */
enum {
    MESH_SOCKET__OF_CONN,
    MESH_SOCKET__OF_PROCESS,
    MESH_SOCKET__OF_TCP,
    MESH_SOCKET__OF_UNIX,
    MESH_SOCKET__OF_BELL = 4 /* of no connection */
};

/* What is to become of a connection. */
enum { MESH_SOCKET__LIVES, MESH_SOCKET__BROKEN, MESH_SOCKET__GAVE_WAY /* to the one that the other side began */ };

/* What a connection is for: to join the job, between two that have, or to rank 0 in place of the one by which it was joined. */
enum { MESH_SOCKET__JOINS = 0, MESH_SOCKET__CALLS, MESH_SOCKET__MOVES };

struct mesh_socket__conn {
    int fd, state, initiator, rank, await, is_unix, broken; /* rank: -1 until known; await: of the handshake */
    int mute;   /* the peer reads no more; what it wrote may still be unread */
    int silent; /* it called, and nothing was heard from it or of it since: where it hangs up, it may be closing */
    int64_t deadline, begun;    /* begun: the connecting, by this rank */
    unsigned char nonce[2][32]; /* the connecting side's, the accepting side's */
    unsigned char greet[512];   /* handshake bytes being read */
    int greet_have, greet_need;
    unsigned char *out; /* small frames to be written */
    size_t out_at, out_len, out_cap;
    unsigned char head[MESH_SOCKET__HEADER]; /* the data frame being written */
    size_t head_left, frame_left;
    mesh_socket__xfer *frame; /* its message */
    unsigned char *spare;     /* the rest of a frame whose message was canceled */
    size_t spare_at, spare_len;
    unsigned char *in; /* read ahead */
    size_t in_at, in_len;
    mesh_socket__frame rx; /* the frame being read */
    uint64_t rx_left;
    mesh_socket__xfer *rx_to; /* NULL with rx_left > 0: rx_early, or thrown away */
    mesh_socket__early *rx_early;
    char why[256], doubt[160]; /* doubt: why this one is believed to be lost */
    int refused;               /* one side does not want this connection, and says why; */
    int later;                 /* or not yet: rank 0 has not left the world before */
    int starved;               /* there was no memory for the frame that is next: it lies in `in` until there is */
    int is_near;               /* both ends are on this host, as far as is known; see mesh_socket__place_known */
    int process;               /* Linux: a descriptor that tells when the peer's process ends; -1: none */
    uint32_t interest;         /* Linux: what its descriptor is waited for; 0: it is not */
    mesh_socket__ring *ring_in,
        *ring_out;      /* shared memory in place of the descriptor, which then only wakes; NULL: none */
    size_t socket_left; /* bytes of `out` that still go through the descriptor */
    int ended;          /* that has ended; what is in the ring is read first */
    struct mesh_socket__impl *owner;
    mesh_socket__conn *stir_next, **stir_at; /* among those that are to be tended to; NULL: it is not */
};

typedef struct mesh_socket__entry { /* of the address book */
    unsigned char addr[16];
    uint16_t port, family;       /* family 4 or 6 */
    int shares;                  /* it would share memory with others on its host */
    uint64_t host, token, cores; /* cores: bit k % 64 for each core k that it may run on; 0: unknown */
    uint64_t process;            /* see mesh_socket__process */
    uint32_t scope;
} mesh_socket__entry;

typedef struct mesh_socket__helper mesh_socket__helper;

/* What a rank has said of sharing memory. */
enum { MESH_SOCKET__SAYS_NOTHING, MESH_SOCKET__SAYS_NO, MESH_SOCKET__SAYS_YES };

typedef struct mesh_socket__impl {
    mesh_socket *net;
    mesh_socket__helper *helper; /* the progress thread; NULL: none */
    mesh_socket__shared *shared; /* memory in common with other ranks; NULL: none */
    int sharing;                 /* all of them have it */
    struct mesh_socket__handle *busy,
        *closed;              /* groups with operations in it; closed ones whose cells are still read */
    mesh_socket__pull *pulls; /* messages that this rank copies */
    uint64_t aids;            /* who copies large ones of this rank's, a bit for each index */
    unsigned char *stage;     /* kept for the next operation that needs one; NULL: none */
    size_t stage_bytes;
    mesh_socket__ticket *spare; /* tickets of few messages, for the next posts */
    int nspare;
    int awaits_fds, ngiven,
        given[1 + MESH_SOCKET__SHARERS]; /* while they are passed on: the memory's, all ranks' bells */
    uint64_t given_heap;
    int given_ranks;
    char secret[256];
    size_t secret_bytes;
    /* With a progress thread: [0] is readable where something has ended since somebody armed, when so many had; -1: there is none. */
    int ended_fd[2], armed;
    uint32_t ended_seen;
    int lanes, tcp_fd, unix_fd, joined, in_open, closing, threaded;
    int64_t opened_by; /* a process */
    void *alive;       /* memory of inside.alive; see mesh_socket__alive_make */
    int near, place;   /* so many ranks share this one's cores; its place among them */
    int crowded;       /* so many share a core; 0: each has its own */
    int ready;         /* Linux: an epoll of processes, and of all that is waited for once that is many; -1: none */
    int wide;     /* that is many: a descriptor in an epoll costs a little with each message, asking all costs more */
    int hears[2]; /* are the listeners (tcp_fd, unix_fd) in it? */
    int unarmed;  /* it has not taken everything: poll asks for this round */
    int *restless, nrestless; /* ranks that are waited for but not connected, or not yet offered all */
    mesh_socket__conn
        *stirred; /* connections to be tended to: broken, on trial, without memory, with something new to be written */
    mesh_socket__entry *book;
    mesh_socket__peer *peer;
    mesh_socket__conn **conn;
    int nconns, conn_cap;
    struct pollfd *poll;
    int poll_cap;
    mesh_socket__xfer **slot;         /* by the low half of an id */
    uint32_t *generation, *slot_next; /* slot_next: of a free slot the next free one; INT32_MAX: none */
    int nslots, slot_cap, generation_cap, slot_next_cap, slot_free;
    mesh__inbox mail; /* for the core */
    uint32_t *dead;   /* group ids that are closed, ascending: their late frames are dropped */
    int ndead, dead_cap;
    uint64_t unix_token;                   /* of unix_fd's address */
    mesh_tuning tuning;                    /* of MESH_TUNING */
    FILE *trace;                           /* of MESH_TRACE */
    uint64_t identity;                     /* what the launcher calls the job, hashed; 0: it has no name */
    uint64_t job;                          /* drawn by rank 0, in the first entry of the book: 0 until it is known */
    int event, have_book, untold, starved; /* starved: a connection is, which is still to be said */
    unsigned glances, long_waits, idle_looks;
    int on_one_core;   /* another rank was last seen on this one's core; -1: nobody says */
    unsigned together; /* looks that saw it */
    int64_t part_at;   /* when it may be left again */
    int64_t ask_at;    /* when the kernel may be asked again, and (asked % size) about whom; see patience.h */
    int64_t other_ran; /* ns that the one seen there had had a core; -1: the kernel does not say */
    unsigned asked;
    unsigned waits, long_wait; /* long_wait: which of the waits was the last that outlasted a sleep's cost; */
    int is_rare;               /* it came long after the one before */
    int is_pressed;            /* others want this thread's core: */
    int64_t delayed;           /* it had been without one for so many ns */
    int64_t press_from;        /* by then; 0: the kernel never said */
    int64_t press_at;          /* when it may be asked again */
    int schedstat; /* Linux: where the kernel says for how long this thread had no core; -1: not opened, -2: it does not */
    int64_t yield_cost, sleep_cost; /* ns, as they were lately; see patience.h */
    int64_t looked;                 /* when connections were last asked for silence */
    int64_t open_deadline, hint_at; /* hint_at: when it is said who is waited for */
    int64_t accept_at;              /* accept_at: no new connections before: too many strangers, or no descriptors */
    struct sockaddr_storage master, address[8]; /* all that rank 0's name stands for; master: the one in use */
    socklen_t master_len, address_len[8];
    int naddresses, at_address;                                  /* at_address: the number of the one in use */
    char said[8][96];                                            /* why the last attempt at each failed */
    unsigned foreign;                                            /* bits: those where what answers is no rank */
    int hangups;                                                 /* attempts that ended without a byte of an answer */
    char refusal[MESH_SOCKET__VERDICT_TEXT + 16], stranger[256]; /* why rank 0 refused us; the last stranger */
    mesh_error told; /* why rank 0, or the first that shares memory, has given the opening up */
    char last[256];  /* why the last attempt to reach rank 0 failed */
} mesh_socket__impl;

MESH__PRIVATE mesh_socket__impl *mesh_socket__of(mesh_transport *t) {
    return (mesh_socket__impl *)((mesh_socket *)(void *)t)->impl;
}

MESH__PRIVATE int64_t mesh_socket__clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

MESH__PRIVATE void mesh_socket__log(mesh_socket__impl *s, int level, const char *format, ...) {
    char text[400];
    mesh__text t = mesh__text_on(text, sizeof text);
    va_list args;
    if (!s->net->base.log) return;
    va_start(args, format);
    mesh__vput(&t, format, args);
    va_end(args);
    s->net->base.log(s->net->base.log_ctx, level, text);
}

#ifdef ENODATA
#define MESH_SOCKET__ENDS ENODATA /* a file that ends too early */
#else
#define MESH_SOCKET__ENDS EIO
#endif

/* The first bytes of a file. Returns 0, with errno, where there are not so many. */
MESH__PRIVATE int mesh_socket__read_file(const char *path, void *p, size_t n) {
    int fd = open(path, O_RDONLY | O_CLOEXEC), error = fd < 0 ? errno : MESH_SOCKET__ENDS;
    size_t have = 0;
    while (fd >= 0 && have < n) {
        ssize_t got = read(fd, (unsigned char *)p + have, n - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) error = errno;
        if (got <= 0) break;
        have += (size_t)got;
    }
    if (fd >= 0) close(fd);
    errno = error;
    return have == n;
}

/* Bytes that nobody can guess. Returns 0 where the system has none: there is nothing to fall back to. */
MESH__PRIVATE int mesh_socket__random(void *p, size_t n) { return mesh_socket__read_file("/dev/urandom", p, n); }

/* A stream socket that no program started later inherits. */
MESH__PRIVATE int mesh_socket__new(int family) {
#if MESH_SOCKET__LINUX
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
#else
    int fd = socket(family, SOCK_STREAM, 0);
    if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
#endif
}

MESH__PRIVATE int mesh_socket__take(int listener, struct sockaddr_storage *from, socklen_t *length) {
#if MESH_SOCKET__LINUX
    return accept4(listener, (struct sockaddr *)(void *)from, length, SOCK_CLOEXEC);
#else
    return accept(listener, (struct sockaddr *)(void *)from, length);
#endif
}

/* ---- // >>stirred: connections that somebody has to look at, though nothing comes over them ---- */

MESH__PRIVATE void mesh_socket__stir(mesh_socket__conn *c) {
    mesh_socket__impl *s = c->owner;
    if (c->stir_at) return;
    c->stir_next = s->stirred;
    c->stir_at = &s->stirred;
    if (s->stirred) s->stirred->stir_at = &c->stir_next;
    s->stirred = c;
}

MESH__PRIVATE void mesh_socket__unstir(mesh_socket__conn *c) {
    if (!c->stir_at) return;
    *c->stir_at = c->stir_next;
    if (c->stir_next) c->stir_next->stir_at = c->stir_at;
    c->stir_at = NULL;
}

/* It ends, as this tells (BROKEN, GAVE_WAY), when it is next tended to. */
MESH__PRIVATE void mesh_socket__break(mesh_socket__conn *c, int how) {
    c->broken = how;
    mesh_socket__stir(c);
}

/* A peer is to be looked at now and then until nothing waits for it. */
MESH__PRIVATE void mesh_socket__unsettle(mesh_socket__impl *s, int rank) {
    if (s->peer[rank].restless) return;
    s->peer[rank].restless = 1;
    s->restless[s->nrestless++] = rank;
}

/* ---- // >>lists of messages ---- */

MESH__PRIVATE void mesh_socket__frame_send(mesh_socket__impl *s, mesh_socket__conn *c, uint32_t type, uint64_t a,
                                           uint64_t b, const void *data, uint32_t nbytes);

MESH__PRIVATE void mesh_socket__list_add(mesh_socket__list *l, mesh_socket__xfer *x) {
    if (!l->head) l->tail = &l->head;
    x->in = l;
    x->next = NULL;
    x->at = l->tail;
    *l->tail = x;
    l->tail = &x->next;
}

/* Returns 0 where it is not in that list. */
MESH__PRIVATE int mesh_socket__list_remove(mesh_socket__list *l, mesh_socket__xfer *x) {
    if (x->in != l) return 0;
    x->in = NULL;
    *x->at = x->next;
    if (x->next)
        x->next->at = x->at;
    else
        l->tail = x->at;
    return 1;
}

MESH__PRIVATE int mesh_socket__unoffer(mesh_socket__peer *p, mesh_socket__xfer *x) {
    if (!mesh_socket__list_remove(&p->offered, x)) return 0;
    p->noffered--;
    return 1;
}

/* Give a message an id for the wire. Returns 0 without memory. */
MESH__PRIVATE int mesh_socket__id_take(mesh_socket__impl *s, mesh_socket__xfer *x) {
    mesh_transport *t = &s->net->base;
    int k = s->slot_free;
    if (k < s->nslots) {
        s->slot_free = (int)s->slot_next[k];
    } else {
        if (!mesh__grow(t, (void **)&s->slot, &s->slot_cap, s->nslots + 1, sizeof *s->slot) ||
            !mesh__grow(t, (void **)&s->slot_next, &s->slot_next_cap, s->nslots + 1, sizeof *s->slot_next) ||
            !mesh__grow(t, (void **)&s->generation, &s->generation_cap, s->nslots + 1, sizeof *s->generation))
            return 0;
        k = s->nslots++;
        s->slot_free = INT32_MAX;
    }
    s->slot[k] = x;
    if (!++s->generation[k]) s->generation[k] = 1; /* an id is never 0 */
    x->id = (uint64_t)s->generation[k] << 32 | (uint32_t)k;
    return 1;
}

MESH__PRIVATE mesh_socket__xfer *mesh_socket__id_find(mesh_socket__impl *s, uint64_t id, int rank, int direction) {
    uint32_t k = (uint32_t)id;
    mesh_socket__xfer *x = k < (uint32_t)s->nslots ? s->slot[k] : NULL;
    return x && x->id == id && x->x.rank == rank && x->x.direction == direction ? x : NULL;
}

MESH__PRIVATE void mesh_socket__id_drop(mesh_socket__impl *s, mesh_socket__xfer *x) {
    uint32_t k = (uint32_t)x->id;
    if (!x->id) return;
    s->slot[k] = NULL;
    s->slot_next[k] = (uint32_t)s->slot_free;
    s->slot_free = (int)k;
    x->id = 0;
}

MESH__PRIVATE void mesh_socket__loan_end(mesh_socket__impl *s, mesh_socket__xfer *x);  /* lend.h */
MESH__PRIVATE void mesh_socket__pull_stop(mesh_socket__impl *s, mesh_socket__xfer *x); /* frames.h */

/* Descriptors that were passed on, and are not wanted. */
MESH__RARE void mesh_socket__give_back(mesh_socket__impl *s) {
    while (s->ngiven) close(s->given[--s->ngiven]);
}

MESH__PRIVATE void mesh_socket__xfer_done(mesh_socket__impl *s, mesh_socket__xfer *x) {
    if (x->loan) mesh_socket__loan_end(s, x);
    mesh_socket__id_drop(s, x);
    x->done = 1;
    x->ticket->left--;
    s->event = 1;
}

/* A message of ours that is partly written: what is left of its frame is copied, so that the stream stays whole without the caller's memory.
   Returns 0 without memory: nothing has changed then. */
MESH__PRIVATE int mesh_socket__frame_detach(mesh_socket__impl *s, mesh_socket__conn *c) {
    mesh_socket__xfer *x = c->frame;
    c->spare = (unsigned char *)mesh_transport_alloc(&s->net->base, c->frame_left + 1);
    if (!c->spare) return 0;
    mesh__pack(&x->x, x->moved, c->spare, c->frame_left);
    c->spare_at = 0;
    c->spare_len = c->frame_left;
    c->frame = NULL;
    return 1;
}

/* Nothing of the ticket is touched after this. */
MESH__PRIVATE void mesh_socket__ticket_stop(mesh_socket__impl *s, mesh_socket__ticket *k) {
    int i;
    for (i = 0; i < k->count; i++) {
        mesh_socket__xfer *x = &k->xfer[i];
        mesh_socket__peer *p = &s->peer[x->x.rank];
        if (x->done) continue;
        x->done = 1;
        if (x->loan) mesh_socket__loan_end(s, x);
        if (s->pulls) mesh_socket__pull_stop(s, x);
        if (x->x.direction == MESH_RECV)
            mesh_socket__list_remove(&p->posted, x);
        else if (!mesh_socket__list_remove(&p->waiting, x) && !mesh_socket__unoffer(p, x))
            mesh_socket__list_remove(&p->streaming, x);
        if (p->conn && p->conn->frame == x && p->conn->broken) p->conn->frame = NULL;
        if (p->conn && p->conn->frame == x && !mesh_socket__frame_detach(s, p->conn)) {
            mesh_socket__break(p->conn, MESH_SOCKET__BROKEN);
            mesh__copy_text(p->conn->why, sizeof p->conn->why, "no memory to keep the stream whole");
            p->conn->frame = NULL;
        }
        if (p->conn && p->conn->rx_to == x) p->conn->rx_to = NULL;
        if (p->conn && x->x.direction == MESH_SEND && x->matched && x->remote)
            mesh_socket__frame_send(s, p->conn, MESH_SOCKET__F_WITHDRAW, x->remote, 0, NULL, 0);
        mesh_socket__id_drop(s, x);
    }
    k->left = 0;
    s->event = 1;
}

MESH__PRIVATE void mesh_socket__ticket_fail(mesh_socket__impl *s, mesh_socket__ticket *k, mesh_status status, int rank,
                                            const char *format, ...) {
    va_list args;
    if (k->left == 0) return;
    k->status = status;
    va_start(args, format);
    mesh__vfail(&k->why, status, rank, format, args);
    va_end(args);
    mesh_socket__ticket_stop(s, k);
}
#endif /* MESH_SOCKET_STATE_IMPLEMENTED */
