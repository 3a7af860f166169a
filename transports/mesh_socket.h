/* mesh_socket.h - processes as ranks, over TCP and Unix-domain sockets. Part of mesh.h 0.1.0. MIT licence. */
#include "../mesh_collectives.h"

#ifndef MESH_SOCKET_H
#define MESH_SOCKET_H
/*
DO THIS
    #define MESH_IMPLEMENTATION         in exactly one file
    #include "mesh.h"
    #include "mesh_collectives.h"
    #include "transports/mesh_socket.h"

EXAMPLE
    mesh_socket net;
    mesh_error err;
    if (mesh_socket_open(&net, NULL, &err)) return fail(err.text);     who am I: from the environment; alone: a world of 1
    ... mesh_comm_open(&comm, &net.base, ...) ...
    mesh_socket_close(&net);

WHO AM I
    What the desc leaves 0 comes from the environment, the first of these that is there:
        RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT      torchrun, `mesh run`
        OMPI_COMM_WORLD_RANK / _SIZE / _LOCAL_RANK              Open MPI's mpirun
        PMI_RANK PMI_SIZE                                       MPICH's mpirun (MPI_LOCALRANKID)
        SLURM_PROCID SLURM_NTASKS SLURM_LOCALID                 srun; rank 0's host is the first of SLURM_STEP_NODELIST
    MASTER_ADDR is 127.0.0.1 where nothing says otherwise. The port is MESH_PORT, else MASTER_PORT, else one made of the job's name
    where the launcher gives it one, else 29400. With TORCHELASTIC_USE_AGENT_STORE=True torchrun's agent holds MASTER_PORT itself: MASTER_PORT + 1 is used.
    MESH_LISTEN_FD: a listening socket that rank 0 inherits (from `mesh run`), so that no port can be taken in between.

CONCEPTS
    rendezvous  Every rank connects to rank 0, which hands out the address book. Other connections are opened when first used, one
                per pair of ranks, over a Unix-domain socket where both are on one host (MESH_SOCKET_LANES=tcp: always TCP).
    secret      Both ends of every connection prove that they know the job's secret (HMAC-SHA-256 over two nonces) before any other
                byte is read: MESH_SECRET, made by `mesh run`, or the file that MESH_SECRET_FILE names. Without one only loopback is
                used, unless desc.insecure says otherwise. What follows the proof is neither encrypted nor signed.
    job         Ranks of another job that find the same port are turned away by the secret, and by the job's name where the launcher
                gives it one (PMIX_NAMESPACE; SLURM_JOB_ID and SLURM_STEP_ID; PMI_JOBID; TORCHELASTIC_RUN_ID).
    message     Up to 16 KiB, and up to 64 KiB where the connection is idle, go at once, within a credit of 1 MiB per peer; larger
                ones when the receiver has posted, in frames that interleave, straight from and to the caller's memory, strided or not.
    MESH_TRACE  A directory: every rank writes rank-N.json there, an event for every operation, for Perfetto (ui.perfetto.dev) and for
                `mesh trace`, which merges them, on rank 0's clock, and says who is late. Ranks compare clocks with it in the first comm
                that they open with it, or with one that has; clocks that drift apart later do so in the trace.
    MESH_TIMEOUT  Seconds that an operation may take, for comms whose description says none.
    MESH_TUNING A file with a tuning table (see mesh_tuning_row; `mesh bench --tune` writes one): which algorithm serves which call.

ERRORS
    The peer that is lost is named on every rank: by those connected to it, which tell those they are connected to. On one host that is
    when its process ends (Linux), over TCP when its connections do: a program that forks should close them in the child, or
    exec, for a child that outlives the rank keeps them open. Where a connection breaks between two living ranks one of them is given
    up; comms without that one go on. Another host that falls silent is found by TCP (keepalive, or what it owes an answer to) within about
    20 s; one whose program is slow is not.

WHAT IT DOES NOT DO
    Shared memory: a later version. RDMA.
*/

#ifdef __cplusplus
extern "C" {
#endif

enum { MESH_SOCKET_AUTO = 0, MESH_SOCKET_TCP = 1 };

typedef struct mesh_socket_desc {
    int rank, size;          /* size 0: both from the environment */
    int local_rank;          /* used with size */
    const char *address;     /* of rank 0, a name or number; NULL: from the environment */
    int port;                /* of rank 0; 0: from the environment */
    const char *secret;      /* NULL: MESH_SECRET, else the file MESH_SECRET_FILE; "": none */
    int insecure;            /* 1: go beyond loopback without a secret */
    int lanes;               /* MESH_SOCKET_TCP: TCP even on one host; 0: MESH_SOCKET_LANES (auto, tcp) */
    int64_t open_timeout_ns; /* until every rank has come; 0: 60 s */
    int listen_fd;           /* above 0: rank 0's listening socket; 0: MESH_LISTEN_FD, else its own */
    mesh_allocator allocator;
    mesh_log log; /* NULL: warnings go to stderr */
    void *log_ctx;
} mesh_socket_desc;

typedef struct mesh_socket {
    mesh_transport base; /* first: &net.base is the transport */
    int local_rank;      /* among the ranks on this host; -1: unknown */
    void *impl;
} mesh_socket;

/* Join the job: returns when every rank has come. desc may be NULL. ARGUMENT: rank or size wrong, a variable that is no number, beyond
   loopback without a secret. TRANSPORT: port taken, rank 0 not reached, rank given twice, wrong secret. TIMEOUT: ranks missing, named.
   On error nothing is open. */
MESH_API mesh_status mesh_socket_open(mesh_socket *net, const mesh_socket_desc *desc, mesh_error *err);
/* Orderly goodbye: what was sent is delivered; comms still open are closed. Closing what is not open does nothing. */
MESH_API mesh_status mesh_socket_close(mesh_socket *net);

#ifdef __cplusplus
}
#endif
#endif /* MESH_SOCKET_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_IMPLEMENTED)
#define MESH_SOCKET_IMPLEMENTED

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

#ifdef __cplusplus
extern "C" {
#endif

/* ---- // >>hmac: SHA-256 (FIPS 180-4) and HMAC (RFC 2104) ------------------------------------------------------------------ */

typedef struct mesh_socket__sha {
    uint32_t h[8];
    uint64_t nbytes;
    unsigned char block[64];
} mesh_socket__sha;

static inline uint32_t mesh_socket__rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static inline void mesh_socket__sha_block(mesh_socket__sha *s, const unsigned char *p) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], v[8];
    int i;
    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (; i < 64; i++) {
        uint32_t a = mesh_socket__rotate(w[i - 15], 7) ^ mesh_socket__rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = mesh_socket__rotate(w[i - 2], 17) ^ mesh_socket__rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(v, s->h, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t e = mesh_socket__rotate(v[4], 6) ^ mesh_socket__rotate(v[4], 11) ^ mesh_socket__rotate(v[4], 25);
        uint32_t t1 = v[7] + e + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t a = mesh_socket__rotate(v[0], 2) ^ mesh_socket__rotate(v[0], 13) ^ mesh_socket__rotate(v[0], 22);
        uint32_t t2 = a + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (i = 0; i < 8; i++) s->h[i] += v[i];
}

static inline void mesh_socket__sha_start(mesh_socket__sha *s) {
    static const uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, h, sizeof h);
    s->nbytes = 0;
}

static inline void mesh_socket__sha_add(mesh_socket__sha *s, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    for (; n; n--, p++) {
        s->block[s->nbytes++ % 64] = *p;
        if (s->nbytes % 64 == 0) mesh_socket__sha_block(s, s->block);
    }
}

static inline void mesh_socket__sha_end(mesh_socket__sha *s, unsigned char *out) {
    uint64_t bits = s->nbytes * 8;
    unsigned char pad = 0x80, length[8];
    int i;
    mesh_socket__sha_add(s, &pad, 1);
    for (pad = 0; s->nbytes % 64 != 56;) mesh_socket__sha_add(s, &pad, 1);
    for (i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    mesh_socket__sha_add(s, length, 8);
    for (i = 0; i < 32; i++) out[i] = (unsigned char)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

/* HMAC over up to three pieces. */
static inline void mesh_socket__hmac(const void *key, size_t key_bytes, const void *const *piece, const size_t *nbytes,
                                     int pieces, unsigned char *out) {
    unsigned char k[64] = {0}, pad[64];
    mesh_socket__sha s;
    int i;
    if (key_bytes > 64) {
        mesh_socket__sha_start(&s);
        mesh_socket__sha_add(&s, key, key_bytes);
        mesh_socket__sha_end(&s, k);
    } else if (key_bytes) {
        memcpy(k, key, key_bytes);
    }
    for (i = 0; i < 64; i++) pad[i] = k[i] ^ 0x36;
    mesh_socket__sha_start(&s);
    mesh_socket__sha_add(&s, pad, 64);
    for (i = 0; i < pieces; i++) mesh_socket__sha_add(&s, piece[i], nbytes[i]);
    mesh_socket__sha_end(&s, out);
    for (i = 0; i < 64; i++) pad[i] = k[i] ^ 0x5c;
    mesh_socket__sha_start(&s);
    mesh_socket__sha_add(&s, pad, 64);
    mesh_socket__sha_add(&s, out, 32);
    mesh_socket__sha_end(&s, out);
}

/* Equality that takes the same time wherever they differ. */
static inline int mesh_socket__equal(const unsigned char *a, const unsigned char *b, size_t n) {
    unsigned char differ = 0;
    size_t i;
    for (i = 0; i < n; i++) differ |= a[i] ^ b[i];
    return !differ;
}

/* ---- // >>wire: what goes over a connection -------------------------------------------------------------------------------------

   Everything little-endian. Handshake, C the side that connects, S the side that accepts:
     C  magic 8, nonce 32
     S  magic 8, nonce 32
     C  HMAC(secret, "C" nonceC nonceS | hello), hello
     S  HMAC(secret, "S" nonceC nonceS), verdict 4 (0: welcome), length 4, text; all zero to who does not know the secret
   Who connects proves first: a stranger who connects gets nothing to guess the secret by.
   Then frames: a header of 40 bytes, and `length` bytes that belong to it. */

#define MESH_SOCKET__MAGIC "MESH\2\0\r\n" /* the fifth byte is the version of the wire format */

enum {
    MESH_SOCKET__HEADER = 40,
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
    MESH_SOCKET__AHEAD = 8 * 1024, /* read beyond what is known to belong to a message */
    MESH_SOCKET__ENTRY = 64,       /* of the address book, the last 8 bytes of its first one the job's number */
    MESH_SOCKET__FEW = 3,          /* connections that are simply read */
    MESH_SOCKET__STRANGERS = 64,   /* connections that have not proved themselves */
    MESH_SOCKET__OFFERS = 32768,   /* of large messages that a peer has not accepted; more wait here */
    MESH_SOCKET__CONTROLS = 4096,  /* messages of a peer that the core has not taken */
    MESH_SOCKET__IOVS = 64
};

enum {
    MESH_SOCKET__F_EAGER = 1, /* channel check; bytes follow */
    MESH_SOCKET__F_OFFER,     /* channel check a=bytes b=send id: a large message waits */
    MESH_SOCKET__F_ACCEPT,    /* a=send id b=recv id: send it */
    MESH_SOCKET__F_REFUSE,    /* a=send id b=bytes expected: not what was posted here */
    MESH_SOCKET__F_WITHDRAW,  /* a=recv id: what was accepted will not come (any more) */
    MESH_SOCKET__F_DATA,      /* a=recv id b=offset; bytes follow */
    MESH_SOCKET__F_CREDIT,    /* a=eager bytes taken */
    MESH_SOCKET__F_CONTROL,   /* a=kind; bytes follow */
    MESH_SOCKET__F_LOST,      /* a=rank; why follows */
    MESH_SOCKET__F_BOOK,      /* the address book follows */
    MESH_SOCKET__F_GOODBYE,
    MESH_SOCKET__F_GIVEN_UP, /* why follows: this rank is given up, for others say that it is lost, or it will not be waited for; a: or an
                                opening is, with status -a for rank b */
    MESH_SOCKET__F_STAYS, /* while opening: no Unix-domain connection to rank 0 could be had */
    MESH_SOCKET__F_END
};

typedef struct mesh_socket__ticket mesh_socket__ticket;
typedef struct mesh_socket__conn mesh_socket__conn;

typedef struct mesh_socket__xfer {
    mesh_xfer x;
    mesh_block block;
    uint64_t channel, check, id, remote, moved; /* id: ours on the wire; remote: the peer's; moved: bytes so far */
    mesh_socket__ticket *ticket;
    int matched, done;
    struct mesh_socket__xfer *next; /* in a peer's list */
} mesh_socket__xfer;

struct mesh_socket__ticket {
    mesh_socket__xfer *xfer;
    int count, left;
    mesh_status status;
    mesh_error why;
};

/* A message that came before its receive: its bytes follow this struct, or it is an offer of a large one. */
typedef struct mesh_socket__early {
    struct mesh_socket__early *next;
    uint64_t channel, check, nbytes, offer;
    int is_offer;
} mesh_socket__early;

typedef struct mesh_socket__list {
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
    int tried_unix;
    int64_t retry_at;
    unsigned char *held; /* control frames that wait for the connection */
    int held_len, held_cap;
} mesh_socket__peer;

enum { MESH_SOCKET__CONNECTING, MESH_SOCKET__GREETING, MESH_SOCKET__UP };
/* What a connection is for: to join the job, between two that have, or to rank 0 in place of the one by which it was joined. */
enum { MESH_SOCKET__JOINS = 0, MESH_SOCKET__CALLS, MESH_SOCKET__MOVES };

struct mesh_socket__conn {
    int fd, state, initiator, rank, stage, is_unix, broken; /* rank: -1 until known; stage: of the handshake */
    int mute; /* the peer reads no more; what it wrote may still be unread */
    int64_t deadline;
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
    unsigned char rx[MESH_SOCKET__HEADER]; /* the frame being read */
    uint64_t rx_left;
    mesh_socket__xfer *rx_to; /* NULL with rx_left > 0: rx_early, or thrown away */
    mesh_socket__early *rx_early;
    char why[256], doubt[160]; /* doubt: why this one is believed to be lost */
    int refused;               /* one side does not want this connection, and says why */
    int starved;               /* there was no memory for the frame that is next: it lies in `in` until there is */
    int is_near;               /* both ends are on this host, as far as is known; see mesh_socket__place_known */
    int process;               /* Linux: a descriptor that tells when the peer's process ends; -1: none */
};

typedef struct mesh_socket__entry { /* of the address book */
    unsigned char addr[16];
    uint16_t port, family;       /* family 4 or 6 */
    uint64_t host, token, cores; /* cores: bit k % 64 for each core k that it may run on; 0: unknown */
    uint64_t process;            /* see mesh_socket__process */
    uint32_t scope;
} mesh_socket__entry;

typedef struct mesh_socket__control {
    struct mesh_socket__control *next;
    int kind, rank;
    uint32_t nbytes;
} mesh_socket__control;

typedef struct mesh_socket__impl {
    mesh_socket *net;
    char secret[256];
    size_t secret_bytes;
    int lanes, tcp_fd, unix_fd, joined, in_open, closing, crowded;
    int processes; /* an epoll of those at the other ends of connections on this host: one descriptor to poll; -1: none */
    mesh_socket__entry *book;
    mesh_socket__peer *peer;
    mesh_socket__conn **conn;
    int nconns, conn_cap;
    struct pollfd *poll;
    int poll_cap;
    mesh_socket__xfer **slot;         /* by the low half of an id */
    uint32_t *generation, *slot_next; /* slot_next: of a free slot the next free one; INT32_MAX: none */
    int nslots, slot_cap, generation_cap, slot_next_cap, slot_free;
    mesh_socket__control *control, **control_end;
    uint32_t *dead; /* group ids that are closed, ascending: their late frames are dropped */
    int ndead, dead_cap;
    uint64_t unix_token;                   /* of unix_fd's address */
    mesh_tuning tuning;                    /* of MESH_TUNING */
    FILE *trace;                           /* of MESH_TRACE */
    uint64_t identity;                     /* what the launcher calls the job, hashed; 0: it has no name */
    uint64_t job;                          /* drawn by rank 0, in the first entry of the book: 0 until it is known */
    int event, have_book, untold, starved; /* starved: a connection is, which is still to be said */
    unsigned glances, long_waits;
    int64_t looked;                   /* when connections were last asked for silence */
    int64_t open_deadline, accept_at; /* accept_at: no new connections before: too many strangers, or no descriptors */
    struct sockaddr_storage master, address[8]; /* all that rank 0's name stands for; master: the one in use */
    socklen_t master_len, address_len[8];
    int naddresses;
    char refusal[MESH_SOCKET__VERDICT_TEXT + 16], stranger[256]; /* why rank 0 refused us; the last stranger */
    mesh_error told;                                             /* why rank 0 has given the opening up */
    char last[256];                                              /* why the last attempt to reach rank 0 failed */
    int strangers;
} mesh_socket__impl;

static inline mesh_socket__impl *mesh_socket__of(mesh_transport *t) {
    return (mesh_socket__impl *)((mesh_socket *)(void *)t)->impl;
}

static inline int64_t mesh_socket__clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void mesh_socket__log(mesh_socket__impl *s, int level, const char *format, ...) {
    char text[400];
    mesh__text t = mesh__text_on(text, sizeof text);
    va_list args;
    if (!s->net->base.log) return;
    va_start(args, format);
    mesh__vput(&t, format, args);
    va_end(args);
    s->net->base.log(s->net->base.log_ctx, level, text);
}

/* Bytes that nobody can guess. Returns 0 where the system has none: there is nothing to fall back to. */
static inline int mesh_socket__random(void *p, size_t n) {
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    size_t have = 0;
    while (fd >= 0 && have < n) {
        ssize_t got = read(fd, (unsigned char *)p + have, n - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        have += (size_t)got;
    }
    if (fd >= 0) close(fd);
    return have == n;
}

/* A stream socket that no program started later inherits. */
static inline int mesh_socket__new(int family) {
#if MESH_SOCKET__LINUX
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
#else
    int fd = socket(family, SOCK_STREAM, 0);
    if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
#endif
}
static inline int mesh_socket__take(int listener, struct sockaddr_storage *from, socklen_t *length) {
#if MESH_SOCKET__LINUX
    return accept4(listener, (struct sockaddr *)(void *)from, length, SOCK_CLOEXEC);
#else
    return accept(listener, (struct sockaddr *)(void *)from, length);
#endif
}

/* ---- // >>lists of messages ---- */

static inline void mesh_socket__list_add(mesh_socket__list *l, mesh_socket__xfer *x) {
    if (!l->head) l->tail = &l->head;
    x->next = NULL;
    *l->tail = x;
    l->tail = &x->next;
}

static inline int mesh_socket__list_remove(mesh_socket__list *l, mesh_socket__xfer *x) {
    mesh_socket__xfer **at = &l->head;
    while (*at && *at != x) at = &(*at)->next;
    if (!*at) return 0;
    *at = x->next;
    if (!x->next) l->tail = at;
    return 1;
}

static inline int mesh_socket__unoffer(mesh_socket__peer *p, mesh_socket__xfer *x) {
    if (!mesh_socket__list_remove(&p->offered, x)) return 0;
    p->noffered--;
    return 1;
}

/* Give a message an id for the wire. Returns 0 without memory. */
static inline int mesh_socket__id_take(mesh_socket__impl *s, mesh_socket__xfer *x) {
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
    x->id = (uint64_t)++s->generation[k] << 32 | (uint32_t)k;
    return 1;
}

static inline mesh_socket__xfer *mesh_socket__id_find(mesh_socket__impl *s, uint64_t id, int rank, int direction) {
    uint32_t k = (uint32_t)id;
    mesh_socket__xfer *x = k < (uint32_t)s->nslots ? s->slot[k] : NULL;
    return x && x->id == id && x->x.rank == rank && x->x.direction == direction ? x : NULL;
}

static inline void mesh_socket__id_drop(mesh_socket__impl *s, mesh_socket__xfer *x) {
    uint32_t k = (uint32_t)x->id;
    if (!x->id) return;
    s->slot[k] = NULL;
    s->slot_next[k] = (uint32_t)s->slot_free;
    s->slot_free = (int)k;
    x->id = 0;
}

static inline void mesh_socket__xfer_done(mesh_socket__impl *s, mesh_socket__xfer *x) {
    mesh_socket__id_drop(s, x);
    x->done = 1;
    x->ticket->left--;
    s->event = 1;
}

/* A message of ours that is partly written: what is left of its frame is copied, so that the stream stays whole without the caller's memory.
   Returns 0 without memory: nothing has changed then. */
static inline int mesh_socket__frame_detach(mesh_socket__impl *s, mesh_socket__conn *c) {
    mesh_socket__xfer *x = c->frame;
    size_t at = 0;
    c->spare = (unsigned char *)mesh_transport_alloc(&s->net->base, c->frame_left + 1);
    if (!c->spare) return 0;
    while (at < c->frame_left) {
        uint64_t run;
        void *from = mesh_xfer_at(&x->x, x->moved + at, &run);
        if (run > c->frame_left - at) run = c->frame_left - at;
        memcpy(c->spare + at, from, (size_t)run);
        at += (size_t)run;
    }
    c->spare_at = 0;
    c->spare_len = c->frame_left;
    c->frame = NULL;
    return 1;
}

static inline void mesh_socket__frame_send(mesh_socket__impl *s, mesh_socket__conn *c, int type, uint64_t channel,
                                           uint64_t check, uint64_t a, uint64_t b, const void *data, uint32_t nbytes);

/* Nothing of the ticket is touched after this. */
static inline void mesh_socket__ticket_stop(mesh_socket__impl *s, mesh_socket__ticket *k) {
    int i;
    for (i = 0; i < k->count; i++) {
        mesh_socket__xfer *x = &k->xfer[i];
        mesh_socket__peer *p = &s->peer[x->x.rank];
        if (x->done) continue;
        x->done = 1;
        if (x->x.direction == MESH_RECV)
            mesh_socket__list_remove(&p->posted, x);
        else if (!mesh_socket__list_remove(&p->waiting, x) && !mesh_socket__unoffer(p, x))
            mesh_socket__list_remove(&p->streaming, x);
        if (p->conn && p->conn->frame == x && p->conn->broken) p->conn->frame = NULL;
        if (p->conn && p->conn->frame == x && !mesh_socket__frame_detach(s, p->conn)) {
            p->conn->broken = 1;
            mesh__copy_text(p->conn->why, sizeof p->conn->why, "no memory to keep the stream whole");
            p->conn->frame = NULL;
        }
        if (p->conn && p->conn->rx_to == x) p->conn->rx_to = NULL;
        if (p->conn && x->x.direction == MESH_SEND && x->matched && x->remote)
            mesh_socket__frame_send(s, p->conn, MESH_SOCKET__F_WITHDRAW, 0, 0, x->remote, 0, NULL, 0);
        mesh_socket__id_drop(s, x);
    }
    k->left = 0;
    s->event = 1;
}

static inline void mesh_socket__ticket_fail(mesh_socket__impl *s, mesh_socket__ticket *k, mesh_status status, int rank,
                                            const char *format, ...) {
    va_list args;
    if (k->left == 0) return;
    k->status = status;
    va_start(args, format);
    mesh__vfail(&k->why, status, rank, format, args);
    va_end(args);
    mesh_socket__ticket_stop(s, k);
}

/* ---- // >>frames out ---- */

static inline unsigned char *mesh_socket__out_room(mesh_socket__impl *s, mesh_socket__conn *c, size_t n) {
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

static inline void mesh_socket__header(unsigned char *p, int type, uint32_t length, uint64_t channel, uint64_t check,
                                       uint64_t a, uint64_t b) {
    mesh__put32(p, (uint32_t)type);
    mesh__put32(p + 4, length);
    mesh__put64(p + 8, channel);
    mesh__put64(p + 16, check);
    mesh__put64(p + 24, a);
    mesh__put64(p + 32, b);
}

static inline int mesh_socket__frame_put(mesh_socket__impl *s, mesh_socket__conn *c, int type, uint64_t channel,
                                         uint64_t check, uint64_t a, uint64_t b, const void *data, uint32_t nbytes) {
    unsigned char *p = mesh_socket__out_room(s, c, MESH_SOCKET__HEADER + (size_t)nbytes);
    if (!p) return 0;
    mesh_socket__header(p, type, nbytes, channel, check, a, b);
    if (nbytes) memcpy(p + MESH_SOCKET__HEADER, data, nbytes);
    return 1;
}

/* A frame of a few bytes that must not be lost: without memory for it the connection ends. */
static inline void mesh_socket__frame_send(mesh_socket__impl *s, mesh_socket__conn *c, int type, uint64_t channel,
                                           uint64_t check, uint64_t a, uint64_t b, const void *data, uint32_t nbytes) {
    if (mesh_socket__frame_put(s, c, type, channel, check, a, b, data, nbytes)) return;
    c->broken = 1;
    mesh__copy_text(c->why, sizeof c->why, "no memory for a frame");
}

/* Runs so short that copying them costs less than naming each to the kernel. */
static inline int mesh_socket__is_fine(const mesh_xfer *x) {
    return x->block && x->block->ndim && x->block->run < 1024;
}

static inline void mesh_socket__flush(mesh_socket__impl *s, mesh_socket__conn *c);

/* Can a frame begin on this connection now, with nothing before it? */
static inline int mesh_socket__is_idle(mesh_socket__impl *s, mesh_socket__conn *c) {
    if (c->broken || c->mute || c->frame || c->spare) return 0;
    if (c->out_len > c->out_at) mesh_socket__flush(s, c);
    return !c->frame && !c->spare && c->out_len == c->out_at && !c->broken && !c->mute;
}

/* Hand a send to an established connection: at once if it is within the credit and neither long nor in the way of others, else as an
   offer. 0: no memory. */
static inline int mesh_socket__dispatch(mesh_socket__impl *s, mesh_socket__peer *p, mesh_socket__xfer *x) {
    uint64_t n = x->x.nbytes, at, run;
    int may = n <= MESH_SOCKET__EAGER && n + MESH_SOCKET__HEADER <= p->credit;
    unsigned char *to;
    if (may && n > MESH_SOCKET__COPIED && !mesh_socket__is_fine(&x->x) && mesh_socket__is_idle(s, p->conn)) {
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
        for (at = 0; at < n; at += run) {
            void *from = mesh_xfer_at(&x->x, at, &run);
            memcpy(to + MESH_SOCKET__HEADER + at, from, (size_t)run);
        }
        p->credit -= n + MESH_SOCKET__HEADER;
        x->matched = 1;
        mesh_socket__xfer_done(s, x);
        return 1;
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
static inline int mesh_socket__next_frame(mesh_socket__impl *s, mesh_socket__conn *c) {
    mesh_socket__peer *p = &s->peer[c->rank];
    mesh_socket__xfer *x = p->streaming.head;
    uint64_t left;
    if (!x) return 0;
    left = x->x.nbytes - x->moved;
    c->frame = x;
    c->frame_left = left < MESH_SOCKET__CHUNK ? (size_t)left : (size_t)MESH_SOCKET__CHUNK;
    c->head_left = MESH_SOCKET__HEADER;
    mesh_socket__header(c->head, MESH_SOCKET__F_DATA, (uint32_t)c->frame_left, 0, 0, x->remote, x->moved);
    if (mesh_socket__is_fine(&x->x)) {
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
static inline int mesh_socket__gather(mesh_socket__conn *c, struct iovec *v) {
    int n = 0;
    size_t at = 0;
    if (!c->frame && !c->spare && c->out_len > c->out_at) {
        v[n].iov_base = c->out + c->out_at;
        v[n++].iov_len = c->out_len - c->out_at;
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
    while (c->frame && at < c->frame_left && n < MESH_SOCKET__IOVS) {
        uint64_t run;
        void *from = mesh_xfer_at(&c->frame->x, c->frame->moved + at, &run);
        if (run > c->frame_left - at) run = c->frame_left - at;
        v[n].iov_base = from;
        v[n++].iov_len = (size_t)run;
        at += (size_t)run;
    }
    return n;
}

static inline void mesh_socket__wrote(mesh_socket__impl *s, mesh_socket__conn *c, size_t n) {
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

static inline void mesh_socket__conn_failed(mesh_socket__conn *c, const char *what, int error) {
    mesh__text t;
    if (c->broken) return;
    c->broken = 1;
    t = mesh__text_on(c->why, sizeof c->why);
    mesh__put(&t, "%s%s%s", what, error ? ": " : "", error ? strerror(error) : "");
}

static inline int mesh_socket__wants_write(mesh_socket__impl *s, mesh_socket__conn *c) {
    if (c->mute) return 0;
    if (c->state == MESH_SOCKET__CONNECTING) return 1;
    if (c->out_len > c->out_at || c->frame || c->spare) return 1;
    return c->state == MESH_SOCKET__UP && c->rank >= 0 && s->peer[c->rank].conn == c &&
           s->peer[c->rank].streaming.head != NULL;
}

/* Write until the kernel takes no more. */
static inline void mesh_socket__flush(mesh_socket__impl *s, mesh_socket__conn *c) {
    struct iovec v[MESH_SOCKET__IOVS];
    int rounds;
    for (rounds = 0; rounds < 64 && !c->broken && !c->mute; rounds++) {
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
        mesh_socket__wrote(s, c, (size_t)n);
        if ((size_t)n < all) return;
    }
}

/* ---- // >>connections ---- */

/* What the core is to hear. Returns 0 without memory: that a rank is gone it then hears without the reason. */
static inline int mesh_socket__control_add(mesh_socket__impl *s, int kind, int rank, const void *data,
                                           uint32_t nbytes) {
    mesh_socket__control *m = (mesh_socket__control *)mesh_transport_alloc(&s->net->base, sizeof *m + nbytes + 1);
    if (!m && (kind == MESH_EVENT_LOST || kind == MESH_EVENT_CLOSED)) s->peer[rank].untold = s->untold = s->event = 1;
    if (!m) return 0;
    m->next = NULL;
    m->kind = kind;
    m->rank = rank;
    m->nbytes = nbytes;
    if (nbytes) memcpy(m + 1, data, nbytes);
    *s->control_end = m;
    s->control_end = &m->next;
    s->event = 1;
    return 1;
}

/* A rank is gone: say so once, and tell those we are connected to (they may not be connected to it). One that only could not be reached
   counts as closed until another rank knows that it was lost. */
static inline void mesh_socket__gone(mesh_socket__impl *s, int rank, int kind, const char *why,
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
        mesh_socket__frame_send(s, c, MESH_SOCKET__F_LOST, 0, 0, (uint64_t)rank, 0, why, (uint32_t)strlen(why));
        mesh_socket__flush(s, c);
    }
}

/* The connection to a rank has ended: what was under way over it ends. If the rank is lost, so does everything that waits for it; after a
   goodbye that is for the core to say (it knows who is needed). */
static inline void mesh_socket__peer_fail(mesh_socket__impl *s, int rank, const char *why) {
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

static inline mesh_socket__conn *mesh_socket__conn_new(mesh_socket__impl *s, int fd) {
    mesh_socket__conn *c;
    if (!mesh__grow(&s->net->base, (void **)&s->conn, &s->conn_cap, s->nconns + 1, sizeof *s->conn)) return NULL;
    c = (mesh_socket__conn *)mesh_transport_alloc(&s->net->base, sizeof *c);
    if (!c) return NULL;
    memset(c, 0, sizeof *c);
    c->fd = fd;
    c->rank = c->process = -1;
    c->state = MESH_SOCKET__GREETING;
    s->conn[s->nconns++] = c;
    return c;
}

static inline void mesh_socket__unwatch(mesh_socket__impl *s, mesh_socket__conn *c) {
#if MESH_SOCKET__LINUX
    if (c->process < 0) return;
    epoll_ctl(s->processes, EPOLL_CTL_DEL, c->process, NULL); /* a child of this process may keep the descriptor */
    close(c->process);
    c->process = -1;
#else
    (void)s, (void)c;
#endif
}

static inline void mesh_socket__conn_free(mesh_socket__impl *s, mesh_socket__conn *c) {
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
static inline int mesh_socket__is_silence(const unsigned char *info) {
    uint32_t ms;
    memcpy(&ms, info + 56, sizeof ms);
    return (info[2] >= 3 || info[3] >= 3) && ms >= 20000;
}

static inline int mesh_socket__is_silent(const mesh_socket__conn *c) {
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
static inline int mesh_socket__is_ours(int fd) {
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
static inline uint64_t mesh_socket__process(void) {
#if MESH_SOCKET__LINUX
    struct stat st;
    if (stat("/proc/self/ns/pid", &st) == 0)
        return (mesh__mix(7, (uint64_t)st.st_ino) | 1) << 32 | (uint64_t)(uint32_t)getpid();
#endif
    return 0;
}

/* Watch the process at the other end, if it is on this host: it is lost when it ends, whatever children of it hold the connection. */
static inline void mesh_socket__watch(mesh_socket__impl *s, mesh_socket__conn *c) {
#if MESH_SOCKET__LINUX && defined(SYS_pidfd_open)
    const mesh_socket__entry *mine = &s->book[s->net->base.rank], *theirs = &s->book[c->rank];
    struct epoll_event event;
    struct rlimit limit;
    if (c->process >= 0 || !mine->process || mine->host != theirs->host ||
        mine->process >> 32 != theirs->process >> 32 || mine->process == theirs->process)
        return;
    if (s->in_open) return; /* connections come first */
    c->process = (int)syscall(SYS_pidfd_open, (long)(theirs->process & 0xffffffffu), 0L);
    if (c->process < 0) return;
    if (s->processes < 0) s->processes = epoll_create1(EPOLL_CLOEXEC);
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    event.data.fd = c->process;
    /* Where descriptors are short connections need them more. */
    if ((getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)c->process + 64 > limit.rlim_cur) || s->processes < 0 ||
        epoll_ctl(s->processes, EPOLL_CTL_ADD, c->process, &event) != 0) {
        close(c->process);
        c->process = -1;
    }
#else
    (void)s, (void)c;
#endif
}

/* Where a peer is, is known. On this very host it is never silent: who looks is alive, so the host is. A kernel that is short of time or
   memory delays or drops what goes over loopback, too; a peer that ends there shows by itself, so nothing is sent to find out. */
static inline void mesh_socket__place_known(mesh_socket__impl *s, mesh_socket__conn *c) {
    int off = 0;
    if (s->book[c->rank].host == s->book[s->net->base.rank].host) c->is_near = 1;
    if (c->is_near && !c->is_unix) setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof off);
    mesh_socket__watch(s, c);
}

static inline int mesh_socket__nonblocking(int fd) {
    int flags = fcntl(fd, F_GETFL, 0);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return 0;
    return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

static inline int mesh_socket__is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    if (a->sa_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
    }
    return a->sa_family == AF_UNIX;
}

static inline void mesh_socket__tune(int fd, const struct sockaddr *to) {
    int on = 1;
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
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
static inline socklen_t mesh_socket__unix_address(struct sockaddr_un *a, uint64_t token) {
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

static inline void mesh_socket__sockaddr(const mesh_socket__entry *e, struct sockaddr_storage *a, socklen_t *length) {
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

/* Begin a connection to a rank. Returns NULL with errno where it cannot even begin. */
static inline mesh_socket__conn *mesh_socket__connect_to(mesh_socket__impl *s, const struct sockaddr *a,
                                                         socklen_t length, int rank) {
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
static inline void mesh_socket__reach(mesh_socket__impl *s, int rank) {
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
            return;
        }
        p->tried_unix = 1;
    }
    mesh_socket__sockaddr(e, &a, &length);
    if (mesh_socket__connect_to(s, (struct sockaddr *)(void *)&a, length, rank)) return;
    if (errno == EAGAIN || errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EADDRNOTAVAIL) {
        p->retry_at = mesh_socket__clock() + 10000000;
        return;
    }
    mesh_socket__gone(s, rank, MESH_EVENT_CLOSED, strerror(errno), NULL);
}

/* ---- // >>handshake ---- */

static inline void mesh_socket__mac(mesh_socket__impl *s, const mesh_socket__conn *c, const char *role,
                                    const void *hello, size_t hello_bytes, unsigned char *out) {
    const void *piece[3];
    size_t nbytes[3];
    piece[0] = role;
    nbytes[0] = 1;
    piece[1] = c->nonce;
    nbytes[1] = sizeof c->nonce;
    piece[2] = hello;
    nbytes[2] = hello_bytes;
    mesh_socket__hmac(s->secret, s->secret_bytes, piece, nbytes, hello ? 3 : 2, out);
}

static inline void mesh_socket__entry_write(unsigned char *p, const mesh_socket__entry *e) {
    memcpy(p, e->addr, 16);
    mesh__put32(p + 16, (uint32_t)e->port | (uint32_t)e->family << 16);
    mesh__put32(p + 20, e->scope);
    mesh__put64(p + 24, e->host);
    mesh__put64(p + 32, e->token);
    mesh__put64(p + 40, e->cores);
    mesh__put64(p + 48, e->process);
    mesh__put64(p + 56, 0);
}

static inline void mesh_socket__entry_read(mesh_socket__entry *e, const unsigned char *p) {
    uint32_t v = mesh__get32(p + 16);
    memcpy(e->addr, p, 16);
    e->port = (uint16_t)v;
    e->family = (uint16_t)(v >> 16);
    e->scope = mesh__get32(p + 20);
    e->host = mesh__get64(p + 24);
    e->token = mesh__get64(p + 32);
    e->cores = mesh__get64(p + 40);
    e->process = mesh__get64(p + 48);
}

static inline void mesh_socket__raw(mesh_socket__impl *s, mesh_socket__conn *c, const void *data, size_t n) {
    unsigned char *p = mesh_socket__out_room(s, c, n);
    if (p)
        memcpy(p, data, n);
    else
        mesh_socket__conn_failed(c, "no memory", 0);
}

/* What waited for a connection goes, in order: as much as may be offered at once. */
static inline void mesh_socket__waiting_go(mesh_socket__impl *s, int rank) {
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

/* The connection stands: whatever waited for it goes. */
static inline void mesh_socket__established(mesh_socket__impl *s, mesh_socket__conn *c) {
    mesh_socket__peer *p = &s->peer[c->rank];
    if (!(c->in = (unsigned char *)mesh_transport_alloc(&s->net->base, MESH_SOCKET__RBUF))) {
        mesh_socket__conn_failed(c, "no memory", 0);
        return;
    }
    c->state = MESH_SOCKET__UP;
    mesh_socket__place_known(s, c);
    c->deadline = 0;
    if (p->coming && p->coming != c) p->coming->broken = 2; /* ours gave way to theirs */
    p->coming = NULL;
    p->conn = c;
    p->credit = MESH_SOCKET__CREDIT;
    s->event = 1;
    if (p->held_len) mesh_socket__raw(s, c, p->held, (size_t)p->held_len);
    p->held_len = 0;
    if (s->closing) mesh_socket__frame_send(s, c, MESH_SOCKET__F_GOODBYE, 0, 0, 0, 0, NULL, 0);
    mesh_socket__waiting_go(s, c->rank);
    mesh_socket__flush(s, c);
}

static inline void mesh_socket__greet(mesh_socket__impl *s, mesh_socket__conn *c) {
    unsigned char m[MESH_SOCKET__C1];
    c->state = MESH_SOCKET__GREETING;
    c->stage = 1;
    c->greet_need = MESH_SOCKET__S1;
    if (!mesh_socket__random(c->nonce[0], 32)) {
        mesh_socket__conn_failed(c, "no random numbers (/dev/urandom)", errno);
        return;
    }
    memcpy(m, MESH_SOCKET__MAGIC, 8);
    memcpy(m + 8, c->nonce[0], 32);
    mesh_socket__raw(s, c, m, sizeof m);
}

static inline void mesh_socket__hello(mesh_socket__impl *s, int to, unsigned char *hello) {
    memset(hello, 0, MESH_SOCKET__HELLO);
    mesh__put32(hello, (uint32_t)s->net->base.rank);
    mesh__put32(hello + 4, (uint32_t)s->net->base.size);
    mesh__put32(hello + 8, s->in_open ? s->have_book ? MESH_SOCKET__MOVES : MESH_SOCKET__JOINS : MESH_SOCKET__CALLS);
    mesh__put32(hello + 12, (uint32_t)to);
    mesh_socket__entry_write(hello + 16, &s->book[s->net->base.rank]);
    mesh__put64(hello + 16 + 64, s->job ? s->job : s->identity);
}

static inline void mesh_socket__verdict(mesh_socket__impl *s, mesh_socket__conn *c, const char *refusal) {
    unsigned char m[MESH_SOCKET__S2];
    size_t length = strlen(refusal);
    if (length > MESH_SOCKET__VERDICT_TEXT) length = MESH_SOCKET__VERDICT_TEXT;
    mesh_socket__mac(s, c, "S", NULL, 0, m);
    mesh__put32(m + 32, refusal[0] != 0);
    mesh__put32(m + 36, (uint32_t)length);
    mesh_socket__raw(s, c, m, MESH_SOCKET__S2);
    if (length) mesh_socket__raw(s, c, refusal, length);
    mesh_socket__flush(s, c);
}

/* The accepting side has heard who it is. */
static inline void mesh_socket__introduced(mesh_socket__impl *s, mesh_socket__conn *c, const unsigned char *hello) {
    int rank = (int)mesh__get32(hello), size = (int)mesh__get32(hello + 4), meant = (int)mesh__get32(hello + 12);
    int joins = mesh__get32(hello + 8) == MESH_SOCKET__JOINS, moves = mesh__get32(hello + 8) == MESH_SOCKET__MOVES;
    uint64_t job = mesh__get64(hello + 16 + 64);
    int me = s->net->base.rank;
    char text[MESH_SOCKET__VERDICT_TEXT];
    mesh__text t = mesh__text_on(text, sizeof text);
    mesh_socket__peer *p;
    if (size != s->net->base.size)
        mesh__put(&t, "rank %d says the world has %d ranks, rank %d says %d; give every rank the same WORLD_SIZE", rank,
                  size, me, s->net->base.size);
    else if (rank < 0 || rank >= size || rank == me)
        mesh__put(&t, "rank %d is given twice, or lies outside a world of %d; give every process its own RANK", rank,
                  size);
    else if (meant != me || (joins && (me != 0 || job != s->identity)) ||
             (!joins &&
              (s->job ? job != s->job : me == 0))) /* who knows a book of rank 0's before there is one has another */
        mesh__put(
            &t,
            "rank %d of another job, or on its way to rank %d, has reached rank %d; give each job its own port and secret",
            rank, meant, me);
    else if (s->peer[rank].gone)
        mesh__put(&t, "rank %d is not waited for any more", rank);
    else if (joins && me == 0 && (!s->in_open || s->peer[rank].conn))
        mesh__put(&t, "rank %d is given twice: another process has joined as rank %d; give every process its own RANK",
                  rank, rank);
    if (t.len) {
        mesh_socket__log(s, rank >= 0 && rank < s->net->base.size && s->peer[rank].gone ? 2 : 1,
                         "mesh_socket: refused a connection: %s", text);
        mesh__copy_text(s->stranger, sizeof s->stranger, text);
        mesh_socket__verdict(s, c, text);
        c->broken = 2;
        return;
    }
    p = &s->peer[rank];
    if (moves && me == 0 && s->in_open && p->conn && !p->conn->is_unix && c->is_unix) {
        p->conn = NULL; /* over which nothing but the book went; it is closed from the other side */
        p->settled = 1;
    }
    if (p->conn || (p->coming && me < rank)) { /* both sides began: the lower rank's connection stands */
        mesh_socket__verdict(s, c, "!");
        c->broken = 2;
        return;
    }
    c->rank = rank;
    if (joins && me == 0) {
        mesh_socket__entry_read(&s->book[rank], hello + 16);
        s->joined++;
    }
    mesh_socket__verdict(s, c, "");
    mesh_socket__established(s, c);
}

/* A whole handshake message has been read. */
static inline void mesh_socket__greeting(mesh_socket__impl *s, mesh_socket__conn *c) {
    unsigned char mac[32], m[MESH_SOCKET__S1 + MESH_SOCKET__C2];
    unsigned char *g = c->greet;
    c->greet_have = 0;
    if (!c->initiator && c->stage == 0) {
        memcpy(c->nonce[0], g + 8, 32);
        if (!mesh_socket__random(c->nonce[1], 32)) {
            mesh_socket__conn_failed(c, "no random numbers (/dev/urandom)", errno);
            return;
        }
        memcpy(m, MESH_SOCKET__MAGIC, 8);
        memcpy(m + 8, c->nonce[1], 32);
        mesh_socket__raw(s, c, m, MESH_SOCKET__S1);
        c->stage = 1;
        c->greet_need = MESH_SOCKET__C2;
    } else if (!c->initiator) {
        mesh_socket__mac(s, c, "C", g + 32, MESH_SOCKET__HELLO, mac);
        if (!mesh_socket__equal(mac, g, 32)) {
            static const unsigned char no[MESH_SOCKET__S2] = {0}; /* no proof, so that it knows why */
            mesh__copy_text(s->stranger, sizeof s->stranger, "it does not know the secret");
            c->refused = 1;
            mesh_socket__raw(s, c, no, sizeof no);
            mesh_socket__flush(s, c);
            mesh_socket__conn_failed(c, "it does not know the secret", 0);
        } else {
            mesh_socket__introduced(s, c, g + 32);
        }
    } else if (c->stage == 1) {
        memcpy(c->nonce[1], g + 8, 32);
        mesh_socket__hello(s, c->rank, m + 32);
        mesh_socket__mac(s, c, "C", m + 32, MESH_SOCKET__HELLO, m);
        mesh_socket__raw(s, c, m, MESH_SOCKET__C2);
        c->stage = 2;
        c->greet_need = MESH_SOCKET__S2;
    } else if (c->stage == 2 && (mesh_socket__mac(s, c, "S", NULL, 0, mac), !mesh_socket__equal(mac, g, 32))) {
        if (s->in_open)
            mesh__copy_text(s->refusal, sizeof s->refusal,
                            "it does not know this job's secret; give every rank the same MESH_SECRET");
        c->refused = 1;
        mesh_socket__conn_failed(c, "it does not know the secret", 0);
    } else if (c->stage == 2 && (mesh__get32(g + 32) || mesh__get32(g + 36))) {
        uint32_t length = mesh__get32(g + 36);
        if (length == 0 || length > MESH_SOCKET__VERDICT_TEXT) {
            mesh_socket__conn_failed(c, "a verdict that is none", 0);
            return;
        }
        c->stage = 3;
        c->greet_need = (int)length;
    } else if (c->stage == 2) {
        mesh_socket__established(s, c);
    } else {
        g[c->greet_need] = 0;
        if (g[0] == '!') {
            c->broken = 2; /* the peer's own connection is coming */
        } else {
            if (s->in_open) mesh__copy_text(s->refusal, sizeof s->refusal, (const char *)g);
            c->refused = 1;
            mesh_socket__conn_failed(c, (const char *)g, 0);
        }
    }
}

/* Read handshake bytes, never beyond them. Anything that is not ours is dropped at the first byte that shows it. */
static inline void mesh_socket__read_greeting(mesh_socket__impl *s, mesh_socket__conn *c) {
    while (c->state == MESH_SOCKET__GREETING && !c->broken) {
        ssize_t n = recv(c->fd, c->greet + c->greet_have, (size_t)(c->greet_need - c->greet_have), 0);
        int i, from = c->greet_have;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            mesh_socket__conn_failed(c, n ? "reading" : "it hung up during the handshake", n ? errno : 0);
            return;
        }
        c->greet_have += (int)n;
        for (i = from; i < c->greet_have && i < 8 && c->stage == (c->initiator ? 1 : 0); i++)
            if (c->greet[i] != (unsigned char)MESH_SOCKET__MAGIC[i]) {
                const char *what =
                    i == 4 ? "it speaks another version of this protocol" : "it does not speak this protocol";
                c->refused = 1;
                mesh__copy_text(c->initiator ? s->refusal : s->stranger,
                                c->initiator ? sizeof s->refusal : sizeof s->stranger, what);
                mesh_socket__conn_failed(c, what, 0);
                return;
            }
        if (c->greet_have == c->greet_need) mesh_socket__greeting(s, c);
    }
}

/* ---- // >>frames in ---- */

static inline int mesh_socket__is_dead(const mesh_socket__impl *s, uint64_t channel) {
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

static inline void mesh_socket__took(mesh_socket__impl *s, mesh_socket__peer *p, uint64_t nbytes) {
    p->taken += nbytes + MESH_SOCKET__HEADER;
    p->lent -= nbytes + MESH_SOCKET__HEADER;
    if (p->taken < MESH_SOCKET__CREDIT / 4 || !p->conn) return;
    mesh_socket__frame_send(s, p->conn, MESH_SOCKET__F_CREDIT, 0, 0, p->taken, 0, NULL, 0);
    p->taken = 0;
}

static inline mesh_socket__xfer *mesh_socket__find_posted(mesh_socket__peer *p, uint64_t channel) {
    mesh_socket__xfer *x = p->posted.head;
    while (x && x->channel != channel) x = x->next;
    return x;
}

/* Compare a message with the receive it met (off the list already). Returns 1 if they agree, else both sides end with MISMATCH. */
static inline int mesh_socket__agrees(mesh_socket__impl *s, mesh_socket__xfer *r, uint64_t nbytes, uint64_t check) {
    if (r->x.nbytes == nbytes && r->check == check) return 1;
    mesh_socket__ticket_fail(s, r->ticket, MESH_ERR_MISMATCH, r->x.rank, "rank %d sent %u bytes, rank %d expected %u%s",
                             r->x.rank, nbytes, s->net->base.rank, r->x.nbytes,
                             r->check != check ? ", of another operation" : "");
    return 0;
}

static inline void mesh_socket__accept_offer(mesh_socket__impl *s, mesh_socket__peer *p, mesh_socket__xfer *r,
                                             uint64_t nbytes, uint64_t check, uint64_t offer) {
    uint64_t expected = r->x.nbytes;
    if (!mesh_socket__agrees(s, r, nbytes, check)) {
        if (p->conn) mesh_socket__frame_send(s, p->conn, MESH_SOCKET__F_REFUSE, 0, 0, offer, expected, NULL, 0);
        return;
    }
    if (!mesh_socket__id_take(s, r)) {
        mesh_socket__ticket_fail(s, r->ticket, MESH_ERR_MEMORY, -1, "no memory to receive from rank %d", r->x.rank);
        return;
    }
    r->matched = 1;
    if (r->x.nbytes == 0) mesh_socket__xfer_done(s, r); /* offered for want of credit */
    if (p->conn) mesh_socket__frame_send(s, p->conn, MESH_SOCKET__F_ACCEPT, 0, 0, offer, r->id, NULL, 0);
    s->event = 1;
}

static inline void mesh_socket__early_add(mesh_socket__peer *p, mesh_socket__early *m) {
    if (!p->early) p->early_end = &p->early;
    m->next = NULL;
    *p->early_end = m;
    p->early_end = &m->next;
}

static inline void mesh_socket__deliver(mesh_socket__impl *s, mesh_socket__xfer *r, const unsigned char *bytes) {
    uint64_t at, run;
    for (at = 0; at < r->x.nbytes; at += run) {
        void *to = mesh_xfer_at(&r->x, at, &run);
        memcpy(to, bytes + at, (size_t)run);
    }
    r->matched = 1;
    mesh_socket__xfer_done(s, r);
}

/* The bytes of the frame being read are all here. */
static inline void mesh_socket__frame_end(mesh_socket__impl *s, mesh_socket__conn *c) {
    mesh_socket__peer *p = &s->peer[c->rank];
    uint32_t type = mesh__get32(c->rx);
    uint64_t channel = mesh__get64(c->rx + 8);
    if (type == MESH_SOCKET__F_EAGER) {
        int taken = 1;
        if (c->rx_to) {
            mesh_socket__xfer_done(s, c->rx_to);
        } else if (c->rx_early) {
            mesh_socket__xfer *r = mesh_socket__find_posted(p, channel); /* posted while the bytes came in */
            if (r) {
                mesh_socket__list_remove(&p->posted, r);
                if (mesh_socket__agrees(s, r, c->rx_early->nbytes, c->rx_early->check))
                    mesh_socket__deliver(s, r, (unsigned char *)(c->rx_early + 1));
                mesh_transport_free(&s->net->base, c->rx_early);
            } else {
                mesh_socket__early_add(p, c->rx_early);
                taken = 0;
            }
        }
        if (taken) mesh_socket__took(s, p, mesh__get32(c->rx + 4));
    } else if (type == MESH_SOCKET__F_DATA && c->rx_to && c->rx_to->moved == c->rx_to->x.nbytes) {
        mesh_socket__xfer_done(s, c->rx_to);
    } else if (type == MESH_SOCKET__F_BOOK && c->rx_early) {
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

static inline mesh_socket__early *mesh_socket__early_new(mesh_socket__impl *s, mesh_socket__conn *c, uint64_t nbytes) {
    mesh_socket__early *m = (mesh_socket__early *)mesh_transport_alloc(&s->net->base, sizeof *m + (size_t)nbytes + 1);
    if (!m) return NULL;
    memset(m, 0, sizeof *m);
    m->channel = mesh__get64(c->rx + 8);
    m->check = mesh__get64(c->rx + 16);
    m->nbytes = nbytes;
    return m;
}

/* A connection whose peer is said to be lost, or seen to be, ends soon, if not by itself: what came over it is read first. */
static inline void mesh_socket__doubt(mesh_socket__conn *c, const char *why) {
    if (!c->deadline) c->deadline = mesh_socket__clock() + INT64_C(200000000);
    mesh__copy_text(c->doubt, sizeof c->doubt, why);
}

/* A header has been read: decide where the bytes go. Small control frames are whole in the buffer (their bytes at `data`). Returns 0 without
   memory for what has to be kept: nothing has been done then. */
static inline int mesh_socket__frame_begin(mesh_socket__impl *s, mesh_socket__conn *c, const unsigned char *data) {
    mesh_socket__peer *p = &s->peer[c->rank];
    uint32_t type = mesh__get32(c->rx), length = mesh__get32(c->rx + 4);
    uint64_t channel = mesh__get64(c->rx + 8), check = mesh__get64(c->rx + 16), a = mesh__get64(c->rx + 24),
             b = mesh__get64(c->rx + 32);
    mesh_socket__xfer *x;
    mesh_socket__early *m;
    char text[MESH_ERROR_BYTES];
    switch (type) {
    case MESH_SOCKET__F_EAGER:
        p->lent += length + MESH_SOCKET__HEADER;
        if (p->lent > MESH_SOCKET__CREDIT) {
            mesh_socket__conn_failed(c, "it sent more than its credit", 0);
            return 1;
        }
        c->rx_left = length;
        if (mesh_socket__is_dead(s, channel)) break;
        if ((x = mesh_socket__find_posted(p, channel)) != NULL) {
            mesh_socket__list_remove(&p->posted, x);
            if (mesh_socket__agrees(s, x, length, check)) {
                x->matched = 1;
                c->rx_to = x;
            }
            break;
        }
        if (!(c->rx_early = mesh_socket__early_new(s, c, length))) {
            p->lent -= length + MESH_SOCKET__HEADER;
            c->rx_left = 0;
            return 0;
        }
        break;
    case MESH_SOCKET__F_OFFER:
        if (mesh_socket__is_dead(s, channel)) break;
        if ((x = mesh_socket__find_posted(p, channel)) != NULL) {
            mesh_socket__list_remove(&p->posted, x);
            mesh_socket__accept_offer(s, p, x, a, check, b);
        } else if (++p->offers > 2 * MESH_SOCKET__OFFERS) { /* twice: what was canceled there may still lie here */
            mesh_socket__conn_failed(c, "it offered more messages than may wait", 0);
            return 1;
        } else if ((m = mesh_socket__early_new(s, c, 0)) == NULL) {
            p->offers--;
            return 0;
        } else {
            m->nbytes = a;
            m->offer = b;
            m->is_offer = 1;
            mesh_socket__early_add(p, m);
        }
        break;
    case MESH_SOCKET__F_ACCEPT:
        x = mesh_socket__id_find(s, a, c->rank, MESH_SEND);
        if (!x || !mesh_socket__unoffer(p, x)) { /* canceled meanwhile */
            mesh_socket__frame_send(s, c, MESH_SOCKET__F_WITHDRAW, 0, 0, b, 0, NULL, 0);
            break;
        }
        x->matched = 1;
        x->remote = b;
        if (x->x.nbytes == 0)
            mesh_socket__xfer_done(s, x);
        else
            mesh_socket__list_add(&p->streaming, x);
        if (p->waiting.head) mesh_socket__waiting_go(s, c->rank);
        break;
    case MESH_SOCKET__F_REFUSE:
        if ((x = mesh_socket__id_find(s, a, c->rank, MESH_SEND)) != NULL)
            mesh_socket__ticket_fail(s, x->ticket, MESH_ERR_MISMATCH, c->rank,
                                     "rank %d sent %u bytes, rank %d expected %u%s", s->net->base.rank, x->x.nbytes,
                                     c->rank, b, x->x.nbytes == b ? ", of another operation" : "");
        break;
    case MESH_SOCKET__F_WITHDRAW:
        if ((x = mesh_socket__id_find(s, a, c->rank, MESH_RECV)) != NULL)
            mesh_socket__ticket_fail(s, x->ticket, MESH_ERR_CANCELED, c->rank, "rank %d canceled a message to rank %d",
                                     c->rank, s->net->base.rank);
        break;
    case MESH_SOCKET__F_DATA:
        c->rx_left = length;
        x = mesh_socket__id_find(s, a, c->rank, MESH_RECV);
        if (x && (x->moved != b || b + length > x->x.nbytes)) {
            mesh_socket__conn_failed(c, "it sent bytes that were not next", 0);
            return 1;
        }
        c->rx_to = x;
        break;
    case MESH_SOCKET__F_CREDIT:
        if (a > MESH_SOCKET__CREDIT - p->credit) {
            mesh_socket__conn_failed(c, "it took more than was sent to it", 0);
            return 1;
        }
        p->credit += a;
        break;
    case MESH_SOCKET__F_CONTROL:
        if (++p->controls > MESH_SOCKET__CONTROLS) {
            mesh_socket__conn_failed(c, "it sent more control messages than may wait", 0);
            return 1;
        }
        if (!mesh_socket__control_add(s, a == MESH_EVENT_ABORT ? MESH_EVENT_ABORT : MESH_EVENT_MESSAGE, c->rank, data,
                                      length)) {
            p->controls--;
            return 0;
        }
        break;
    case MESH_SOCKET__F_GIVEN_UP: { /* that ends this pair; nobody was lost, so the others hear nothing of it */
        mesh__text t = mesh__text_on(text, sizeof text);
        uint32_t i;
        if (!a) mesh__put(&t, "it has given this rank up: ");
        for (i = 0; i < length; i++) mesh__put_char(&t, (char)data[i]);
        if (p->gone != MESH_EVENT_LOST) {
            p->gone = MESH_EVENT_LOST;
            mesh_socket__control_add(s, MESH_EVENT_LOST, c->rank, text, (uint32_t)strlen(text));
        }
        if (s->in_open && c->rank == 0 && a > 0 && a < 64 && b < (uint64_t)s->net->base.size)
            mesh__fail(&s->told, (mesh_status)(-(int)a), (int)b, "%s", text);
        mesh_socket__conn_failed(c, text, 0);
        return 1;
    }
    case MESH_SOCKET__F_STAYS:
        p->settled = 1;
        break;
    case MESH_SOCKET__F_LOST:
        if (a >= (uint64_t)s->net->base.size || (int)a == s->net->base.rank) break;
        if (c->doubt[0]) break; /* testimony of one who is doubted */
        {
            mesh__text t = mesh__text_on(text, sizeof text < (size_t)length + 1 ? sizeof text : (size_t)length + 1);
            uint32_t i;
            for (i = 0; i < length; i++) mesh__put_char(&t, (char)data[i]);
        }
        if (s->peer[a].conn &&
            s->peer[a].conn != c) { /* what it sent may still be unread; its end will show by itself, or else soon */
            mesh_socket__doubt(s->peer[a].conn, text);
        } else {
            mesh_socket__gone(s, (int)a, MESH_EVENT_LOST, text, c);
        }
        break;
    case MESH_SOCKET__F_BOOK:
        if (!(c->rx_early = mesh_socket__early_new(s, c, length))) return 0;
        c->rx_left = length;
        break;
    default: /* GOODBYE */
        p->goodbye = 1;
        mesh_socket__gone(s, c->rank, MESH_EVENT_CLOSED, "", c);
        break;
    }
    if (!c->rx_left) mesh_socket__frame_end(s, c);
    return 1;
}

/* Is this header one that may come? Bounds first: nothing is allocated for what cannot be. */
static inline int mesh_socket__frame_valid(const mesh_socket__impl *s, const mesh_socket__conn *c) {
    uint32_t type = mesh__get32(c->rx), length = mesh__get32(c->rx + 4);
    switch (type) {
    case MESH_SOCKET__F_EAGER:
        return length <= MESH_SOCKET__EAGER;
    case MESH_SOCKET__F_DATA:
        return length > 0 && length <= MESH_SOCKET__CHUNK;
    case MESH_SOCKET__F_CONTROL:
        return length <= MESH_CONTROL_BYTES;
    case MESH_SOCKET__F_LOST:
        return length <= 256;
    case MESH_SOCKET__F_GIVEN_UP:
        return length < MESH_ERROR_BYTES;
    case MESH_SOCKET__F_BOOK:
        return s->in_open && c->rank == 0 && length == (uint64_t)s->net->base.size * MESH_SOCKET__ENTRY;
    default:
        return type > 0 && type < MESH_SOCKET__F_END && length == 0;
    }
}

/* Take frames out of what was read ahead. */
static inline void mesh_socket__parse(mesh_socket__impl *s, mesh_socket__conn *c) {
    while (!c->broken) {
        size_t have = c->in_len - c->in_at;
        if (c->rx_left) {
            uint64_t run = c->rx_left;
            unsigned char *to = NULL;
            if (!have) return;
            if (c->rx_to)
                to = (unsigned char *)mesh_xfer_at(&c->rx_to->x, c->rx_to->moved, &run);
            else if (c->rx_early)
                to = (unsigned char *)(c->rx_early + 1) + (mesh__get32(c->rx + 4) - c->rx_left);
            if (run > c->rx_left) run = c->rx_left;
            if (run > have) run = have;
            if (to) memcpy(to, c->in + c->in_at, (size_t)run);
            if (c->rx_to) c->rx_to->moved += run;
            c->rx_left -= run;
            c->in_at += (size_t)run;
            if (!c->rx_left) mesh_socket__frame_end(s, c);
            continue;
        }
        if (have < MESH_SOCKET__HEADER) return;
        memcpy(c->rx, c->in + c->in_at, MESH_SOCKET__HEADER);
        if (!mesh_socket__frame_valid(s, c)) {
            mesh_socket__conn_failed(c, "it sent a frame that cannot be", 0);
            return;
        }
        {
            uint32_t type = mesh__get32(c->rx), length = mesh__get32(c->rx + 4);
            int whole =
                type == MESH_SOCKET__F_CONTROL || type == MESH_SOCKET__F_LOST || type == MESH_SOCKET__F_GIVEN_UP;
            if (whole && have < MESH_SOCKET__HEADER + (size_t)length) return;
            s->event = 1;
            if (!mesh_socket__frame_begin(s, c, c->in + c->in_at + MESH_SOCKET__HEADER)) {
                c->starved = s->starved = 1;
                return;
            }
            c->in_at += MESH_SOCKET__HEADER;
            if (whole) c->in_at += length;
        }
    }
}

/* Read: what belongs to a message goes straight to its place, what follows is read ahead. */
static inline void mesh_socket__read(mesh_socket__impl *s, mesh_socket__conn *c) {
    int rounds;
    if (c->starved) { /* is there memory now? */
        c->starved = 0;
        mesh_socket__parse(s, c);
    }
    if (c->starved) return;
    for (rounds = 0; rounds < 32 && !c->broken; rounds++) {
        struct iovec v[MESH_SOCKET__IOVS + 1];
        struct msghdr m;
        ssize_t n;
        size_t direct = 0, room, ask;
        int k = 0;
        if (c->in_at) memmove(c->in, c->in + c->in_at, c->in_len - c->in_at);
        c->in_len -= c->in_at;
        c->in_at = 0;
        while (c->rx_left && c->rx_to && !mesh_socket__is_fine(&c->rx_to->x) && direct < c->rx_left &&
               k < MESH_SOCKET__IOVS) {
            uint64_t run;
            v[k].iov_base = mesh_xfer_at(&c->rx_to->x, c->rx_to->moved + direct, &run);
            if (run > c->rx_left - direct) run = c->rx_left - direct;
            v[k++].iov_len = (size_t)run;
            direct += (size_t)run;
        }
        room = MESH_SOCKET__RBUF - c->in_len;
        if (room > MESH_SOCKET__AHEAD) room = MESH_SOCKET__AHEAD;
        if (!c->rx_left || direct == c->rx_left || !c->rx_to || mesh_socket__is_fine(&c->rx_to->x)) {
            v[k].iov_base = c->in + c->in_len;
            v[k++].iov_len = room;
        } else {
            room = 0;
        }
        ask = direct + room;
        memset(&m, 0, sizeof m);
        m.msg_iov = v;
        m.msg_iovlen = (size_t)k;
        n = recvmsg(c->fd, &m, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            mesh_socket__conn_failed(
                c, n ? "reading" : "it ended without goodbye (killed, or it left without mesh_socket_close)",
                n ? errno : 0);
            return;
        }
        s->event = 1;
        if (direct) {
            size_t got = (size_t)n < direct ? (size_t)n : direct;
            c->rx_to->moved += got;
            c->rx_left -= got;
            n -= (ssize_t)got;
            if (!c->rx_left) mesh_socket__frame_end(s, c);
        }
        c->in_len += (size_t)n;
        mesh_socket__parse(s, c);
        if (c->starved || (size_t)n + direct < ask) return;
    }
}

/* ---- // >>the event loop ---- */

static inline void mesh_socket__accept(mesh_socket__impl *s, int listener) {
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
        c->deadline = mesh_socket__clock() + INT64_C(10000000000);
        strangers++;
        if (++taken == MESH_SOCKET__STRANGERS) return; /* read what they say before the next come */
    }
}

/* A connection has ended: what that means depends on who was at the other end, and how far it had come. */
static inline void mesh_socket__conn_end(mesh_socket__impl *s, mesh_socket__conn *c) {
    int rank = c->rank, was_up = c->state == MESH_SOCKET__UP, initiator = c->initiator, gave_way = c->broken == 2,
        is_unix = c->is_unix, connecting = c->state == MESH_SOCKET__CONNECTING, refused = c->refused;
    char why[256];
    int replaced = was_up && rank >= 0 && s->peer[rank].conn != c;
    mesh_socket__peer *p;
    mesh__copy_text(why, sizeof why, c->why);
    if (rank < 0 && !gave_way) {
        s->strangers++;
        if (!s->stranger[0]) mesh__copy_text(s->stranger, sizeof s->stranger, why);
        /* one that only ended may be of this job's, from a rank that is leaving */
        mesh_socket__log(s, refused ? 1 : 2, "mesh_socket: dropped a connection that is none of this job's: %s", why);
    }
    mesh_socket__conn_free(s, c);
    if (rank < 0 || replaced) return;
    if (s->in_open) mesh__copy_text(s->last, sizeof s->last, why);
    p = &s->peer[rank];
    if (was_up) {
        mesh_socket__gone(s, rank, MESH_EVENT_LOST, why, NULL);
        mesh_socket__peer_fail(s, rank, why);
        return;
    }
    if (!initiator || p->conn || s->in_open) return;
    if (gave_way) { /* theirs is coming; if it does not, try again */
        p->retry_at = mesh_socket__clock() + INT64_C(200000000);
        return;
    }
    if (is_unix && connecting) {
        p->tried_unix = 1;
        mesh_socket__reach(s, rank);
        return;
    }
    if (!connecting && !refused) { /* it was there, but busy or leaving: if it is gone, the next attempt is refused */
        p->retry_at = mesh_socket__clock() + INT64_C(20000000);
        return;
    }
    mesh_socket__gone(s, rank, MESH_EVENT_CLOSED, why, NULL); /* in good order or not: only those who need it fail */
}

static inline void mesh_socket__connected(mesh_socket__impl *s, mesh_socket__conn *c) {
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error)
        mesh_socket__conn_failed(c, "connecting", error);
    else
        mesh_socket__greet(s, c);
}

/* Is there something of the peer's to read? */
static inline int mesh_socket__unread(const mesh_socket__conn *c) {
    char byte;
    return recv(c->fd, &byte, 1, MSG_PEEK) > 0;
}

/* Peers that are waited for but not connected: begin, or begin again. Returns when to look again, or INT64_MAX. */
static inline int64_t mesh_socket__retries(mesh_socket__impl *s) {
    int64_t next = INT64_MAX;
    int i;
    for (i = 0; i < s->net->base.size && !s->in_open; i++) {
        mesh_socket__peer *p = &s->peer[i];
        if (p->conn && p->waiting.head &&
            p->noffered < MESH_SOCKET__OFFERS) { /* what was offered before was taken back */
            mesh_socket__waiting_go(s, i);
            mesh_socket__flush(s, p->conn);
        }
        if (!p->retry_at || p->conn || p->coming) continue;
        if (mesh_socket__clock() >= p->retry_at) {
            if (p->waiting.head || p->posted.head || p->held_len)
                mesh_socket__reach(s, i);
            else
                p->retry_at = 0;
        }
        if (p->retry_at && p->retry_at < next) next = p->retry_at;
    }
    for (i = 0; i < s->nconns; i++)
        if (s->conn[i]->deadline && s->conn[i]->deadline < next) next = s->conn[i]->deadline;
    return next;
}

/* Where there are few connections, reading all of them costs less than asking which have something. Every so often the others'
   turn comes: listeners, connections being made. */
static inline int mesh_socket__glance(mesh_socket__impl *s) {
    int i;
    if (s->nconns > MESH_SOCKET__FEW || ++s->glances % 32 == 0) return 0;
    for (i = 0; i < s->nconns; i++) {
        mesh_socket__conn *c = s->conn[i];
        if (c->state != MESH_SOCKET__UP || c->broken) return 0;
        mesh_socket__read(s, c);
        if (!c->broken && mesh_socket__wants_write(s, c)) mesh_socket__flush(s, c);
        if (c->broken) return 0;
    }
    return 1;
}

/* Processes have ended: whose? What they sent may still be unread. */
static inline void mesh_socket__bury(mesh_socket__impl *s) {
#if MESH_SOCKET__LINUX
    struct epoll_event ended[16];
    int i, k, n = epoll_wait(s->processes, ended, 16, 0);
    for (k = 0; k < n; k++)
        for (i = 0; i < s->nconns; i++)
            if (s->conn[i]->process == ended[k].data.fd) {
                mesh_socket__unwatch(s, s->conn[i]);
                mesh_socket__doubt(s->conn[i],
                                   "its process has ended, though a child of it still holds the connection");
                break;
            }
#else
    (void)s;
#endif
}

/* One round over all connections, sleeping up to timeout_ms. */
static inline void mesh_socket__round(mesh_socket__impl *s, int timeout_ms) {
    int i, n = 0, listeners = 0, count, look, ended = -1, starved = 0;
    int64_t now;
    if (timeout_ms == 0 && mesh_socket__glance(s)) return;
    if (!mesh__grow(&s->net->base, (void **)&s->poll, &s->poll_cap, s->nconns + 3, sizeof *s->poll)) {
        s->starved = s->event = 1;
        return;
    }
    now = mesh_socket__clock();
    if (now < s->accept_at && timeout_ms > 10) timeout_ms = 10;
    if (s->tcp_fd >= 0 && now >= s->accept_at) s->poll[n].fd = s->tcp_fd, s->poll[n++].events = POLLIN;
    if (s->unix_fd >= 0 && now >= s->accept_at) s->poll[n].fd = s->unix_fd, s->poll[n++].events = POLLIN;
    listeners = n;
    count = s->nconns;
    for (i = 0; i < count; i++, n++) {
        starved |= s->conn[i]->starved;
        s->poll[n].fd = s->conn[i]->fd;
        s->poll[n].events = (short)((s->conn[i]->state == MESH_SOCKET__CONNECTING ? 0 : POLLIN) |
                                    (mesh_socket__wants_write(s, s->conn[i]) ? POLLOUT : 0));
    }
    if (s->processes >= 0) ended = n, s->poll[n].fd = s->processes, s->poll[n++].events = POLLIN;
    if (starved && timeout_ms > 1) timeout_ms = 1; /* memory comes back without a word */
    if (poll(s->poll, (nfds_t)n, timeout_ms) > 0 || starved) {
        if (ended >= 0 && s->poll[ended].revents & POLLIN) mesh_socket__bury(s);
        for (i = 0; i < count; i++) {
            mesh_socket__conn *c = s->conn[i];
            short got = s->poll[listeners + i].revents;
            if (c->starved && !c->broken) mesh_socket__read(s, c);
            if (!got || c->broken) continue;
            if (c->state == MESH_SOCKET__CONNECTING) {
                mesh_socket__connected(s, c);
                continue;
            }
            if (got & (POLLIN | POLLHUP | POLLERR)) {
                if (c->state == MESH_SOCKET__GREETING) mesh_socket__read_greeting(s, c);
                if (c->state == MESH_SOCKET__UP && !c->broken) mesh_socket__read(s, c);
            }
            if (!c->broken && mesh_socket__wants_write(s, c)) mesh_socket__flush(s, c);
        }
        for (i = 0; i < listeners; i++)
            if (s->poll[i].revents & POLLIN) mesh_socket__accept(s, s->poll[i].fd);
    }
    now = mesh_socket__clock();
    look = now > s->looked + INT64_C(1000000000);
    if (look) s->looked = now;
    for (i = s->nconns - 1; i >= 0; i--) {
        mesh_socket__conn *c = s->conn[i];
        if (look && !c->broken && c->state == MESH_SOCKET__UP && mesh_socket__is_silent(c))
            mesh_socket__conn_failed(c, "its host has not answered for 20 s", 0);
        if (!c->broken && c->deadline && now > c->deadline && c->state == MESH_SOCKET__UP && mesh_socket__unread(c))
            c->deadline = now + INT64_C(200000000); /* not before all that it sent is read */
        if (!c->broken && c->deadline && now > c->deadline && c->state == MESH_SOCKET__UP) { /* it may be alive */
            mesh_socket__frame_send(s, c, MESH_SOCKET__F_GIVEN_UP, 0, 0, 0, 0, c->doubt, (uint32_t)strlen(c->doubt));
            mesh_socket__flush(s, c);
        }
        if (!c->broken && c->deadline && now > c->deadline)
            mesh_socket__conn_failed(c, c->state == MESH_SOCKET__UP ? c->doubt : "it did not finish the handshake", 0);
        if (c->broken) mesh_socket__conn_end(s, c);
        if (i > s->nconns) i = s->nconns; /* others may have ended with it */
    }
}

static inline mesh_status mesh_socket__progress(mesh_transport *t, int64_t deadline) {
    mesh_socket__impl *s = mesh_socket__of(t);
    int64_t start = 0, now, next;
    int spins = 0;
    for (;;) {
        next = mesh_socket__retries(s);
        mesh_socket__round(s, 0);
        if (s->event) break;
        now = mesh_socket__clock();
        if (now >= deadline) break;
        if (!start) start = now;
        /* A short wait is spun through. One that is not so short may be for a rank on this very core: it yields, and now and then sleeps
           at once, for the kernel wakes who sleeps on a core that is free. */
        if (++spins == 16) s->long_waits++;
        if (s->crowded ? spins <= 2 : now - start < 50000 && (spins < 16 || s->long_waits % 32)) {
            if (s->crowded || spins > 16) sched_yield();
            continue;
        }
        if (deadline < next) next = deadline;
        now = next - now;
        mesh_socket__round(s, now > INT64_C(1000000000) ? 1000 : now > 0 ? (int)((now + 999999) / 1000000) : 0);
        if (s->event) break;
    }
    s->event = 0;
    if (!s->starved) return MESH_OK;
    s->starved = 0;
    return MESH_ERR_MEMORY;
}

/* ---- // >>the members of mesh_ops ---- */

/* Find what came early for a receive; else it waits. */
static inline void mesh_socket__match(mesh_socket__impl *s, mesh_socket__xfer *r) {
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
    if (m->is_offer)
        mesh_socket__accept_offer(s, p, r, m->nbytes, m->check, m->offer);
    else if (mesh_socket__agrees(s, r, m->nbytes, m->check))
        mesh_socket__deliver(s, r, (unsigned char *)(m + 1));
    mesh_transport_free(&s->net->base, m);
}

static inline mesh_status mesh_socket__post(mesh_transport *t, const mesh_post *post, mesh_ticket *ticket) {
    mesh_socket__impl *s = mesh_socket__of(t);
    size_t bytes = sizeof(mesh_socket__ticket) + sizeof(mesh_socket__xfer) * (size_t)post->count;
    mesh_socket__ticket *k = (mesh_socket__ticket *)mesh_transport_alloc(t, bytes);
    int i;
    if (!k) return MESH_ERR_MEMORY;
    memset(k, 0, sizeof *k);
    k->xfer = (mesh_socket__xfer *)(k + 1);
    k->count = k->left = post->count;
    for (i = 0; i < post->count; i++) {
        mesh_socket__xfer *x = &k->xfer[i];
        x->x = post->xfer[i];
        if (x->x.block) {
            x->block = *x->x.block;
            x->x.block = &x->block;
        }
        x->channel = post->channel;
        x->check = post->check;
        x->id = x->remote = x->moved = 0;
        x->ticket = k;
        x->matched = x->done = 0;
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
    ticket->impl = k;
    ticket->id = post->channel;
    return MESH_OK;
}

static inline mesh_status mesh_socket__test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    mesh_socket__ticket *k = (mesh_socket__ticket *)ticket->impl;
    mesh_status status;
    if (k->left) return MESH_IN_PROGRESS;
    status = k->status;
    if (status != MESH_OK && why) *why = k->why;
    mesh_transport_free(t, k);
    ticket->impl = NULL;
    return status;
}

static inline int mesh_socket__pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    const mesh_socket__ticket *k = (const mesh_socket__ticket *)ticket->impl;
    int i, j, n = 0;
    (void)t;
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

static inline mesh_status mesh_socket__cancel(mesh_transport *t, mesh_ticket *ticket) {
    mesh_socket__ticket_fail(mesh_socket__of(t), (mesh_socket__ticket *)ticket->impl, MESH_ERR_CANCELED, -1,
                             "canceled");
    return MESH_OK;
}

static inline int64_t mesh_socket__now(mesh_transport *t) {
    (void)t;
    return mesh_socket__clock();
}

/* Control messages go over the pair's connection; until it stands they are held. */
static inline mesh_status mesh_socket__control_send(mesh_transport *t, int rank, int kind, const void *data,
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
static inline int mesh_socket__held(const mesh_socket__impl *s) {
    int i;
    for (i = 0; i < s->nconns; i++) {
        const mesh_socket__conn *c = s->conn[i];
        if (c->state == MESH_SOCKET__UP && !c->broken && !c->mute && c->out_len > c->out_at) return 1;
    }
    for (i = 0; i < s->net->base.size; i++)
        if (s->peer[i].held_len && !s->peer[i].gone) return 1;
    return 0;
}

static inline mesh_status mesh_socket__control_flush(mesh_transport *t, int64_t deadline) {
    mesh_socket__impl *s = mesh_socket__of(t);
    while (mesh_socket__held(s) && mesh_socket__clock() < deadline) {
        mesh_socket__retries(s);
        mesh_socket__round(s, 1);
    }
    return mesh_socket__held(s) ? MESH_IN_PROGRESS : MESH_OK;
}

/* Ranks that are gone, which there was no memory to say: without the reason. */
static inline mesh_status mesh_socket__untold_poll(mesh_socket__impl *s, mesh_control *out) {
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

static inline mesh_status mesh_socket__control_poll(mesh_transport *t, mesh_control *out) {
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_socket__control *m = s->control;
    if (!m && s->untold) return mesh_socket__untold_poll(s, out);
    if (!m) return MESH_IN_PROGRESS;
    s->control = m->next;
    if (!m->next) s->control_end = &s->control;
    out->kind = m->kind;
    out->rank = m->rank;
    out->nbytes = m->nbytes;
    out->zero = 0;
    if (m->nbytes) memcpy(out->data, m + 1, m->nbytes);
    if (m->kind == MESH_EVENT_MESSAGE || m->kind == MESH_EVENT_ABORT) s->peer[m->rank].controls--;
    mesh_transport_free(t, m);
    return MESH_OK;
}

typedef struct mesh_socket__handle {
    uint32_t id;
} mesh_socket__handle;

static inline mesh_status mesh_socket__group_open(mesh_transport *t, void *parent, uint32_t id, const mesh *group,
                                                  int color, int key, int64_t deadline, void **out, mesh_error *why) {
    mesh_socket__handle *h = (mesh_socket__handle *)mesh_transport_alloc(t, sizeof *h);
    (void)parent, (void)group, (void)color, (void)key, (void)deadline;
    if (!h) return mesh__fail(why, MESH_ERR_MEMORY, -1, "mesh_socket: no memory for a group");
    h->id = id;
    *out = h;
    return MESH_OK;
}

/* The group's late frames are dropped from now on, and those that lie here already. */
static inline mesh_status mesh_socket__group_close(mesh_transport *t, void *group) {
    mesh_socket__impl *s = mesh_socket__of(t);
    uint32_t id = ((mesh_socket__handle *)group)->id;
    int i;
    mesh_transport_free(t, group);
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
static inline void mesh_socket__wipe(void *p, size_t n) {
    volatile char *at = (volatile char *)p;
    while (n) at[--n] = 0;
}

static inline void mesh_socket__release(mesh_socket__impl *s) {
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
    while (s->control) {
        mesh_socket__control *m = s->control;
        s->control = m->next;
        mesh_transport_free(t, m);
    }
    if (s->tcp_fd >= 0) close(s->tcp_fd);
    if (s->processes >= 0) close(s->processes);
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
    mesh_transport_free(t, s->peer);
    mesh_socket__wipe(s->secret, sizeof s->secret);
    s->net->impl = NULL;
    mesh_transport_free(t, s);
}

/* Bytes that the other host's kernel does not have yet: a close could still lose them. (Elsewhere the kernel goes on sending them.) */
static inline int mesh_socket__unsent(const mesh_socket__conn *c) {
#if MESH_SOCKET__LINUX
    int left = 0;
    return !c->is_unix && ioctl(c->fd, TIOCOUTQ, &left) == 0 && left > 0;
#else
    (void)c;
    return 0;
#endif
}

static inline mesh_status mesh_socket__close(mesh_transport *t, mesh_error *why) {
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_status status = MESH_OK;
    int64_t limit, told, quiet, patience;
    int i, busy = 1;
    if (!s) return MESH_OK;
    patience = mesh_transport_patience(t);
    if ((status = mesh_transport_detach(t)) != MESH_OK) return status;
    s->closing = 1;
    for (i = 0; i < s->nconns; i++)
        if (s->conn[i]->state == MESH_SOCKET__UP && !s->conn[i]->broken)
            mesh_socket__frame_send(s, s->conn[i], MESH_SOCKET__F_GOODBYE, 0, 0, 0, 0, NULL, 0);
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

static inline const mesh_ops *mesh_socket__ops(void) {
    static const mesh_ops ops = {sizeof(mesh_ops),
                                 MESH_ABI,
                                 "socket",
                                 mesh_socket__post,
                                 mesh_socket__test,
                                 mesh_socket__pending,
                                 mesh_socket__cancel,
                                 mesh_socket__progress,
                                 mesh_socket__now,
                                 mesh_socket__control_send,
                                 mesh_socket__control_poll,
                                 mesh_socket__close,
                                 mesh_socket__group_open,
                                 mesh_socket__group_close,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 mesh_socket__control_flush};
    return &ops;
}

/* ---- // >>environment ---- */

typedef struct mesh_socket__place { /* who and where we are, and how we know */
    int rank, size, local_rank, local_size, port;
    char address[256];
    const char *source;
} mesh_socket__place;

/* A number from the environment. Returns 1 if it is there; an error where it is no number. */
static inline int mesh_socket__env_int(const char *name, int *out, mesh_error *err, int *bad) {
    const char *text = getenv(name), *p = text;
    int64_t v = 0;
    if (!text || !*text) return 0;
    for (; mesh__is_digit(*p) && v <= INT32_MAX; p++) v = v * 10 + (*p - '0');
    if (*p || v > INT32_MAX) {
        mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_socket_open: %s is \"%s\", which is no number from 0 to %d", name,
                   text, INT32_MAX);
        *bad = 1;
        return 0;
    }
    *out = (int)v;
    return 1;
}

/* The first host of a Slurm node list: "gpu[03-05,9],x" is gpu03. Returns 1 if there is no other. */
static inline int mesh_socket__first_host(const char *list, char *out, size_t cap) {
    mesh__text t = mesh__text_on(out, cap);
    int only = 1;
    for (; *list && *list != ',' && *list != '['; list++) mesh__put_char(&t, *list);
    if (*list == '[') {
        for (list++; mesh__is_digit(*list); list++) mesh__put_char(&t, *list);
        only = *list == ']';
        while (*list && *list != ']') list++;
        for (list += *list == ']'; *list && *list != ',' && *list != '['; list++) mesh__put_char(&t, *list);
    }
    return only && !*list;
}

/* Number `field` of /proc/PID/stat behind the name: 1 the parent, 19 when it started. 0: unknown. */
static inline unsigned long long mesh_socket__stat_of(long pid, int field) {
    unsigned long long v = 0;
#if MESH_SOCKET__LINUX
    char path[64], text[512] = "", *p;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    if (!(f = fopen(path, "re"))) return 0;
    if (fgets(text, sizeof text, f) && (p = strrchr(text, ')')) != NULL && p[1] && p[2]) {
        for (p += 3; *p && field > 0; p++) field -= *p == ' ';
        sscanf(p, "%llu", &v);
    }
    fclose(f);
#else
    (void)pid, (void)field;
#endif
    return v;
}

/* What the launcher calls this job: ranks of one agree in it, and jobs of one host differ. 0: no launcher says. local: the job has one host.
   MPICH's has no name for it, but there every rank leads a session below one proxy of the job and host. */
static inline uint64_t mesh_socket__identity(int local) {
    static const char *const names[][2] = {
        {"PMIX_NAMESPACE", ""}, {"SLURM_JOB_ID", "SLURM_STEP_ID"}, {"PMI_JOBID", ""}, {"TORCHELASTIC_RUN_ID", ""}};
    size_t i;
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *a = getenv(names[i][0]), *b = getenv(names[i][1]);
        if (a && *a && !mesh__same(a, "none")) return mesh__hash_text(mesh__hash_text(5, a), b ? b : "") | 1;
    }
    if (local && getenv("PMI_RANK")) {
        unsigned long long proxy = mesh_socket__stat_of((long)getsid(0), 1);
        if (proxy) return mesh__mix(proxy, mesh_socket__stat_of((long)proxy, 19)) | 1;
    }
    return 0;
}

/* Only loopback is used: there is no secret, and nobody said that it may do without. */
static inline int mesh_socket__is_local(const mesh_socket_desc *d) {
    const char *secret = d->secret ? d->secret : getenv("MESH_SECRET");
    return !d->insecure && !(secret && *secret) && !(!secret && getenv("MESH_SECRET_FILE"));
}

static inline mesh_status mesh_socket__who(const mesh_socket_desc *d, mesh_socket__place *w, mesh_error *err) {
    static const char *const names[4][4] = {
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
        {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""}};
    const char *master = getenv("MASTER_ADDR"), *nodes = getenv("SLURM_STEP_NODELIST"),
               *elastic = getenv("TORCHELASTIC_USE_AGENT_STORE");
    uint64_t identity = mesh_socket__identity(mesh_socket__is_local(d));
    int i, bad = 0, found = 0;
    memset(w, 0, sizeof *w);
    w->local_rank = w->local_size = -1;
    w->source = "desc";
    if (d->size) {
        w->rank = d->rank;
        w->size = d->size;
        w->local_rank = d->local_rank;
    }
    for (i = 0; i < 4 && !d->size && !found; i++) {
        int has_rank = mesh_socket__env_int(names[i][0], &w->rank, err, &bad),
            has_size = mesh_socket__env_int(names[i][1], &w->size, err, &bad);
        if (bad) return MESH_ERR_ARGUMENT;
        if (has_rank != has_size && i < 3)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_socket_open: %s is set, but %s is not; set both or neither", names[i][!has_rank],
                              names[i][has_rank]);
        if (!has_rank || !has_size ||
            (i == 3 && !getenv("SLURM_STEP_ID"))) { /* a batch script of Slurm's, without srun */
            w->rank = w->size = 0;
            continue;
        }
        found = i + 1;
        w->source = names[i][0];
        if (!mesh_socket__env_int(names[i][2], &w->local_rank, err, &bad)) w->local_rank = -1;
        if (!mesh_socket__env_int(names[i][3], &w->local_size, err, &bad)) w->local_size = -1;
    }
    if (!d->size && !found) w->size = 1;
    if (w->size < 1 || w->rank < 0 || w->rank >= w->size)
        return mesh__fail(err, MESH_ERR_ARGUMENT, w->rank,
                          "mesh_socket_open: rank %d of a world of %d (from %s); ranks go from 0 to size - 1", w->rank,
                          w->size, w->source);
    if (d->address) master = d->address;
    if (master && *master)
        mesh__copy_text(w->address, sizeof w->address, master);
    else if (found < 3 || !nodes || !*nodes || mesh_socket__first_host(nodes, w->address, sizeof w->address))
        mesh__copy_text(w->address, sizeof w->address, "127.0.0.1"); /* also where a step of srun's has one host */
    if (!w->address[0])
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_socket_open: SLURM_STEP_NODELIST is \"%s\", which begins with no host; set MASTER_ADDR",
                          nodes);
    if (d->port) {
        w->port = d->port;
    } else if (!mesh_socket__env_int("MESH_PORT", &w->port, err, &bad)) {
        if (!bad && mesh_socket__env_int("MASTER_PORT", &w->port, err, &bad))
            w->port += elastic && mesh__same(elastic, "True");
        else /* below the ports that systems hand out themselves */
            w->port = identity ? 20000 + (int)((identity >> 1) % 12000) : 29400;
    }
    if (bad) return MESH_ERR_ARGUMENT;
    if (w->port < 1 || w->port > 65535)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_socket_open: port %d; a port is 1 to 65535", w->port);
    return MESH_OK;
}

/* ---- // >>opening ---- */

/* What tells hosts apart, so that only ranks on one try Unix-domain sockets: its name, its boot, its network namespace. */
static inline uint64_t mesh_socket__host(void) {
    char text[256] = "";
    uint64_t h;
    gethostname(text, sizeof text - 1);
    h = mesh__hash_text(3, text);
#if MESH_SOCKET__LINUX
    {
        struct stat st;
        int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            ssize_t n = read(fd, text, sizeof text - 1);
            text[n > 0 ? n : 0] = 0;
            h = mesh__hash_text(h, text);
            close(fd);
        }
        if (stat("/proc/self/ns/net", &st) == 0) h = mesh__mix(h, (uint64_t)st.st_ino);
    }
#endif
    return h ? h : 1;
}

static inline mesh_status mesh_socket__resolve(mesh_socket__impl *s, const mesh_socket__place *w, mesh_error *err) {
    struct addrinfo hints, *list = NULL;
    char port[16];
    int code;
    mesh__text t = mesh__text_on(port, sizeof port);
    mesh__put(&t, "%d", w->port);
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    code = getaddrinfo(w->address, port, &hints, &list);
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

static inline void mesh_socket__set_port(struct sockaddr_storage *a, int port) {
    if (a->ss_family == AF_INET)
        ((struct sockaddr_in *)(void *)a)->sin_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in6 *)(void *)a)->sin6_port = htons((uint16_t)port);
}

/* Listen at an address; the port that was bound goes into this rank's entry of the book. */
static inline mesh_status mesh_socket__listen(mesh_socket__impl *s, const struct sockaddr_storage *at, socklen_t length,
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

static inline int mesh_socket__cores(uint64_t *bits);
static inline void mesh_socket__listen_unix(mesh_socket__impl *s) {
    mesh_socket__entry *mine = &s->book[s->net->base.rank];
    struct sockaddr_un a;
    socklen_t length;
    int fd;
    mine->host = mesh_socket__host();
    mesh_socket__cores(&mine->cores);
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

static inline mesh_status mesh_socket__missing(mesh_socket__impl *s, const char *at, mesh_error *err) {
    int ranks[32], n = 0, i;
    char who[200];
    mesh__text t = mesh__text_on(who, sizeof who);
    for (i = 1; i < s->net->base.size; i++)
        if (!s->peer[i].conn && n < 32) ranks[n++] = i;
    mesh__put_ranks(&t, ranks, n);
    return mesh__fail(
        err, MESH_ERR_TIMEOUT, ranks[0],
        "mesh_socket_open: %d of %d ranks came to %s before the deadline; missing: %s%s%s%s; start every rank, with one MASTER_ADDR and port",
        s->joined + 1, s->net->base.size, at, who, s->stranger[0] ? " (dropped meanwhile: " : "",
        s->stranger[0] ? s->stranger : "", s->stranger[0] ? ")" : "");
}

/* Is this how one says loopback, and nothing else? */
static inline int mesh_socket__names_loopback(const char *a) {
    return mesh__same(a, "localhost") || mesh__same(a, "::1") || !strncmp(a, "127.", 4);
}

/* A rank that came by loopback is reached by other hosts at the address at which they reached rank 0. */
static inline void mesh_socket__outward(mesh_socket__impl *s) {
    struct sockaddr_storage a;
    int i, k;
    for (i = 1; i < s->net->base.size; i++) {
        socklen_t length = sizeof a;
        if (!s->peer[i].conn || s->book[i].host == s->book[0].host ||
            getsockname(s->peer[i].conn->fd, (struct sockaddr *)(void *)&a, &length) != 0 || a.ss_family != AF_INET)
            continue;
        for (k = 1; k < s->net->base.size; k++)
            if (s->book[k].host == s->book[0].host && s->book[k].family == 4 && s->book[k].addr[0] == 127)
                memcpy(s->book[k].addr, &((struct sockaddr_in *)(void *)&a)->sin_addr, 4);
        return;
    }
}

/* Any address of a family. */
static inline void mesh_socket__any(struct sockaddr_storage *a, int port) {
    sa_family_t family = a->ss_family;
    memset(a, 0, sizeof *a);
    a->ss_family = family;
    mesh_socket__set_port(a, port);
}

/* Is this an address of this host? */
static inline int mesh_socket__is_here(const struct sockaddr_storage *a, socklen_t length) {
    struct sockaddr_storage probe = *a;
    int fd = mesh_socket__new(a->ss_family), here;
    mesh_socket__set_port(&probe, 0);
    here = fd >= 0 && bind(fd, (struct sockaddr *)(void *)&probe, length) == 0;
    if (fd >= 0) close(fd);
    return here;
}

/* Is this descriptor one that rank 0 can wait at? */
static inline mesh_status mesh_socket__inherit(mesh_socket__impl *s, int fd, int insecure, mesh_error *err) {
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound, int_length = sizeof(int);
    int listens = 0;
    if (getsockname(fd, (struct sockaddr *)(void *)&bound, &length) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &int_length) != 0 || !listens)
        return mesh__fail(err, MESH_ERR_ARGUMENT, 0,
                          "mesh_socket_open: descriptor %d (listen_fd or MESH_LISTEN_FD) is no listening socket%s%s",
                          fd, errno ? ": " : "", errno ? strerror(errno) : "");
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

/* A rank that came and went before all had come. */
static inline mesh_status mesh_socket__lost_early(const mesh_socket__impl *s, mesh_error *err) {
    int i;
    for (i = 1; i < s->net->base.size; i++)
        if (s->peer[i].gone)
            return mesh__fail(err, MESH_ERR_PEER, i,
                              "mesh_socket_open: rank %d came and was lost again before all had come", i);
    return MESH_OK;
}

/* Ranks of this host come again over its Unix-domain socket, or say that they stay. Who has gone is not waited for. */
static inline void mesh_socket__settle(mesh_socket__impl *s) {
    int i, left = s->unix_fd >= 0;
    while (left && mesh_socket__clock() < s->open_deadline) {
        for (i = 1, left = 0; i < s->net->base.size; i++)
            left |= s->book[i].host == s->book[0].host && s->book[i].token && !s->peer[i].settled && !s->peer[i].gone;
        if (left) mesh_socket__round(s, 100);
    }
}

/* Rank 0: wait for everyone, hand out the book. */
static inline mesh_status mesh_socket__open_lead(mesh_socket__impl *s, const mesh_socket__place *w, int inherited,
                                                 int insecure, mesh_error *err) {
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
        status = mesh_socket__lost_early(s, &why);
        if (s->starved)
            status = mesh__fail(&why, MESH_ERR_MEMORY, 0, "mesh_socket_open: rank 0 has no memory for those that join");
        if (status == MESH_OK && left <= 0) status = mesh_socket__missing(s, where, &why);
        if (status != MESH_OK) {
            for (i = 1; i < size; i++) { /* those who wait hear it too */
                mesh_socket__conn *c = s->peer[i].conn;
                if (!c) continue;
                mesh_socket__frame_send(s, c, MESH_SOCKET__F_GIVEN_UP, 0, 0, (uint64_t)(-(int64_t)status),
                                        (uint64_t)why.rank, why.text, (uint32_t)strlen(why.text));
                mesh_socket__flush(s, c);
            }
            return mesh__fail(err, status, why.rank, "%s", why.text);
        }
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
            mesh_socket__frame_send(s, s->peer[i].conn, MESH_SOCKET__F_BOOK, 0, 0, 0, 0, book,
                                    (uint32_t)((size_t)size * MESH_SOCKET__ENTRY));
            mesh_socket__flush(s, s->peer[i].conn);
        }
    mesh_transport_free(&s->net->base, book);
    mesh_socket__settle(s);
    return MESH_OK;
}

/* Where rank 0 is on this host, its connection goes over a Unix-domain socket from now on, if one can be had. */
static inline void mesh_socket__move(mesh_socket__impl *s) {
    mesh_socket__peer *p = &s->peer[0];
    mesh_socket__conn *joined = p->conn;
    struct sockaddr_un a;
    int i;
    socklen_t length = mesh_socket__unix_address(&a, s->book[0].token);
    if (!joined || s->unix_fd < 0 || !s->book[0].token || s->book[0].host != s->book[s->net->base.rank].host) return;
    if (mesh_socket__connect_to(s, (struct sockaddr *)(void *)&a, length, 0))
        while (p->conn == joined && p->coming && mesh_socket__clock() < s->open_deadline) mesh_socket__round(s, 100);
    if (p->conn == joined) {
        mesh_socket__frame_send(s, joined, MESH_SOCKET__F_STAYS, 0, 0, 0, 0, NULL, 0);
        mesh_socket__flush(s, joined);
        return;
    }
    for (i = 0; i < s->nconns; i++)
        if (s->conn[i] == joined) joined->broken = 2; /* if it has not ended by itself */
}

/* The connection to rank 0 stands, or has failed: its local address is the one the others can reach us at. */
static inline mesh_status mesh_socket__joining(mesh_socket__impl *s, const mesh_socket__place *w, mesh_error *err) {
    mesh_socket__conn *c = s->peer[0].coming;
    mesh_socket__entry *mine = &s->book[s->net->base.rank];
    struct sockaddr_storage a;
    socklen_t length = sizeof a;
    int error = 0;
    socklen_t error_len = sizeof error;
    mesh_status status;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &error_len);
    if (!error && getsockname(c->fd, (struct sockaddr *)(void *)&a, &length) != 0) error = errno;
    if (error) {
        mesh__copy_text(s->last, sizeof s->last, strerror(error));
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

/* Every other rank: reach rank 0, listen where it was reached from, wait for the book. */
static inline mesh_status mesh_socket__open_follow(mesh_socket__impl *s, const mesh_socket__place *w, mesh_error *err) {
    int64_t pause = 2000000;
    int attempts = 0, at = 0;
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
            return mesh__fail(err, MESH_ERR_TRANSPORT, 0, "mesh_socket_open: rank 0 at %s port %d: %s", w->address,
                              w->port, s->refusal);
        if (left <= 0) {
            if (p->conn)
                return mesh__fail(
                    err, MESH_ERR_TIMEOUT, 0,
                    "mesh_socket_open: rank %d reached rank 0, but not all %d ranks came before the deadline; rank 0 names the missing",
                    s->net->base.rank, s->net->base.size);
            return mesh__fail(
                err, MESH_ERR_TIMEOUT, 0,
                "mesh_socket_open: rank %d cannot reach rank 0 at %s port %d: %s; is rank 0 running, are MASTER_ADDR and the port right?",
                s->net->base.rank, w->address, w->port, s->last[0] ? s->last : "no answer");
        }
        if (p->gone)
            return mesh__fail(err, MESH_ERR_PEER, 0,
                              "mesh_socket_open: rank 0 went away before all %d ranks had come%s%s", s->net->base.size,
                              s->last[0] ? ": " : "", s->last);
        if (!p->conn && !p->coming) {
            mesh_socket__conn *c;
            if (attempts++) {
                struct timespec nap;
                nap.tv_sec = 0;
                nap.tv_nsec = (long)pause;
                nanosleep(&nap, NULL);
                if (pause < 100000000) pause *= 2;
            }
            s->master = s->address[at % s->naddresses];
            s->master_len = s->address_len[at++ % s->naddresses];
            c = mesh_socket__connect_to(s, (struct sockaddr *)(void *)&s->master, s->master_len, 0);
            if (!c) mesh__copy_text(s->last, sizeof s->last, strerror(errno));
            if (!c && errno == ENOMEM) s->starved = 1;
        }
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

/* A connection is a descriptor: many ranks need more than the usual soft limit. */
static inline void mesh_socket__raise_files(int ranks) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= (rlim_t)ranks * 2 + 64) return;
    limit.rlim_cur = limit.rlim_max != RLIM_INFINITY && limit.rlim_max < (rlim_t)ranks * 2 + 64
                         ? limit.rlim_max
                         : (rlim_t)ranks * 2 + 64;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Rank 0 needs a descriptor for every rank, listeners, and one that is opened for a moment; who joins needs four. Better told now than when
   ranks are missing. */
static inline mesh_status mesh_socket__files_check(const mesh_socket__impl *s, mesh_error *err) {
    struct rlimit limit;
    int rank = s->net->base.rank, size = s->net->base.size, need = rank ? 4 : size + 2, fd, used = 0, most;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > 1 << 20)
        return MESH_OK;
    most = limit.rlim_cur < 4096 ? (int)limit.rlim_cur : 4096;
    for (fd = 0; fd < most && fd - used < need; fd++) used += fcntl(fd, F_GETFD) >= 0;
    if ((int)limit.rlim_cur - used >= need) return MESH_OK;
    return mesh__fail(
        err, MESH_ERR_TRANSPORT, rank,
        "mesh_socket_open: rank %d of %d needs %d more descriptors, but has %d left of its limit of %d; raise it with ulimit -n",
        rank, size, need, (int)limit.rlim_cur - used, (int)limit.rlim_cur);
}

/* Cores that this process may run on; *bits: bit k % 64 for each core k, 0 where that is not known. */
static inline int mesh_socket__cores(uint64_t *bits) {
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
#if MESH_SOCKET__LINUX
    FILE *f = fopen("/proc/self/status", "re");
    char line[1024];
    *bits = 0;
    while (f && fgets(line, sizeof line, f)) { /* "Cpus_allowed:	ff,ffffffff", the last digit cores 0 to 3 */
        int allowed = 0, at = 0;
        char *p;
        if (strncmp(line, "Cpus_allowed:", 13)) continue;
        for (p = line + strlen(line) - 1; p > line + 13; p--) {
            int digit = *p >= '0' && *p <= '9' ? *p - '0' : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10 : -1;
            if (digit < 0) continue;
            *bits |= (uint64_t)digit << at % 64;
            for (at += 4; digit; digit &= digit - 1) allowed++;
        }
        if (allowed > 0 && allowed < cores) cores = allowed;
    }
    if (f) fclose(f);
    if ((f = fopen("/sys/fs/cgroup/cpu.max", "re")) !=
        NULL) { /* "200000 100000": a quota of two cores; or "max 100000" */
        long quota, period;
        if (fscanf(f, "%ld %ld", &quota, &period) == 2 && period > 0 && quota / period + 1 < cores)
            cores = (int)((quota + period - 1) / period);
        fclose(f);
    }
#else
    *bits = 0;
#endif
    return cores > 0 ? cores : 1;
}

/* This rank's place among those on this host, and whether more ranks share its cores than there are. */
static inline void mesh_socket__neighbours(mesh_socket__impl *s, mesh_socket__place *w) {
    int i, here = 0, before = 0, me = s->net->base.rank;
    uint64_t mine = s->book[me].cores, bits;
    for (i = 0; i < s->net->base.size; i++)
        if (i == me || s->book[i].host == s->book[me].host) {
            uint64_t theirs = s->book[i].cores;
            here += i == me || !mine || !theirs || (mine & theirs) != 0;
            before += i < me;
        }
    s->net->local_rank = w->local_rank >= 0 ? w->local_rank : before;
    s->crowded = here > mesh_socket__cores(&bits);
}

/* An event a line, in Chrome's trace format: a file without its end, of a rank that was killed, is good to read too. Operations under way at once are on tracks of
   their own. The time is the host's; what brings it to rank 0's is in an event of its own, "clock", for `mesh trace` to add. Numbers are written
   as integers: a locale may have a comma where JSON wants a point. */
static inline void mesh_socket__trace(void *ctx, const mesh_trace_event *v) {
    mesh_socket__impl *s = (mesh_socket__impl *)ctx;
    int64_t ns = v->start + s->net->base.trace_epoch;
    fprintf(
        s->trace,
        ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.%03d,\"dur\":%lld.%03d,\"name\":\"%s\",\"cat\":\"%s\",\"args\":{\"comm\":%u,"
        "\"group\":%d,\"ranks\":%d,\"sequence\":%u,\"count\":%llu,\"sent\":%llu,\"received\":%llu,\"dtype\":\"%s\",\"op\":\"%s\",\"status\":%d}}",
        s->net->base.rank, v->slot, (long long)(ns / 1000), (int)(ns % 1000), (long long)((v->end - v->start) / 1000),
        (int)((v->end - v->start) % 1000), v->call, v->axes, v->comm_id, v->group, v->ranks, v->sequence,
        (unsigned long long)v->count, (unsigned long long)v->sent, (unsigned long long)v->received, v->dtype, v->op,
        (int)v->status);
}

static inline void mesh_socket__trace_clock(void *ctx, int64_t offset, int64_t within) {
    mesh_socket__impl *s = (mesh_socket__impl *)ctx;
    uint64_t ns = offset < 0 ? 0 - (uint64_t)offset : (uint64_t)offset;
    fprintf(
        s->trace,
        ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"clock\",\"args\":{\"offset_us\":%s%llu.%03d,\"within_us\":%lld.%03d}}",
        s->net->base.rank, offset < 0 ? "-" : "", (unsigned long long)(ns / 1000), (int)(ns % 1000),
        (long long)(within / 1000), (int)(within % 1000));
}

static inline mesh_status mesh_socket__open_trace(mesh_socket__impl *s, mesh_error *err) {
    const char *dir = getenv("MESH_TRACE");
    char path[1024];
    struct timespec t;
    if (!dir || !*dir) return MESH_OK;
    mkdir(dir, 0777); /* another rank may have made it */
    snprintf(path, sizeof path, "%s/rank-%d.json", dir, s->net->base.rank);
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
static inline mesh_status mesh_socket__read_tuning(mesh_socket__impl *s, mesh_error *err) {
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
static inline mesh_status mesh_socket__secret_file(char *text, size_t cap, const char **secret, mesh_error *err) {
    const char *path = getenv("MESH_SECRET_FILE");
    int fd, error;
    ssize_t n;
    if (!path || !*path) return MESH_OK;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd >= 0 ? read(fd, text, cap - 1) : -1;
    error = errno;
    if (fd >= 0) close(fd);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) n--;
    if (n <= 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_socket_open: MESH_SECRET_FILE names \"%s\": %s", path,
                          n ? strerror(error) : "it is empty");
    text[n] = 0;
    *secret = text;
    return MESH_OK;
}

MESH_API mesh_status mesh_socket_open(mesh_socket *net, const mesh_socket_desc *desc, mesh_error *err) {
    static const mesh_socket_desc none = MESH_ZERO;
    mesh_socket__place where;
    mesh_socket__impl *s;
    mesh_status status;
    const char *secret, *lanes;
    char file[300];
    int i, inherited = 0, bad = 0, seconds = 0;
    if (!net) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_socket_open: the socket is NULL");
    if (!desc) desc = &none;
    memset(net, 0, sizeof *net);
    if ((status = mesh_socket__who(desc, &where, err)) != MESH_OK) return status;
    net->base.ops = mesh_socket__ops();
    net->base.rank = where.rank;
    net->base.size = where.size;
    net->base.caps = MESH_CAP_STRIDED | MESH_CAP_CHECK | MESH_CAP_PENDING | MESH_CAP_CANCEL;
    net->base.allocator = desc->allocator;
    net->base.log = desc->log ? desc->log : mesh_socket__warn;
    net->base.log_ctx = desc->log_ctx;
    s = (mesh_socket__impl *)mesh_transport_alloc(&net->base, sizeof *s);
    if (!s) return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_socket_open: no memory");
    memset(s, 0, sizeof *s);
    net->impl = s;
    s->net = net;
    s->tcp_fd = s->unix_fd = s->processes = -1;
    s->control_end = &s->control;
    s->slot_free = INT32_MAX;
    s->in_open = 1;
    s->identity = mesh_socket__identity(mesh_socket__is_local(desc));
    s->book = (mesh_socket__entry *)mesh_transport_alloc(&net->base, sizeof *s->book * (size_t)where.size);
    s->peer = (mesh_socket__peer *)mesh_transport_alloc(&net->base, sizeof *s->peer * (size_t)where.size);
    if (!s->book || !s->peer) {
        mesh_transport_free(&net->base, s->peer);
        s->peer = NULL;
        mesh_socket__release(s);
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_socket_open: no memory for %d ranks", where.size);
    }
    memset(s->book, 0, sizeof *s->book * (size_t)where.size);
    memset(s->peer, 0, sizeof *s->peer * (size_t)where.size);
    for (i = 0; i < where.size; i++) s->peer[i].early_end = &s->peer[i].early;
    secret = desc->secret ? desc->secret : getenv("MESH_SECRET");
    lanes = getenv("MESH_SOCKET_LANES");
    status = secret ? MESH_OK : mesh_socket__secret_file(file, sizeof file, &secret, err);
    s->secret_bytes = secret ? strlen(secret) : 0;
    s->lanes = desc->lanes ? desc->lanes : lanes && mesh__same(lanes, "tcp") ? MESH_SOCKET_TCP : MESH_SOCKET_AUTO;
    s->open_deadline =
        mesh_socket__clock() + (desc->open_timeout_ns > 0 ? desc->open_timeout_ns : INT64_C(60000000000));
    if (status == MESH_OK && s->secret_bytes >= sizeof s->secret)
        status = mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_socket_open: the secret has %d bytes; at most %d",
                            (int)s->secret_bytes, (int)sizeof s->secret - 1);
    else if (status == MESH_OK && lanes && !mesh__same(lanes, "tcp") && !mesh__same(lanes, "auto"))
        status = mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                            "mesh_socket_open: MESH_SOCKET_LANES is \"%s\"; it is auto or tcp", lanes);
    else if (status == MESH_OK)
        memcpy(s->secret, secret ? secret : "", s->secret_bytes);
    mesh_socket__wipe(file, sizeof file);
    if (status == MESH_OK && mesh_socket__env_int("MESH_TIMEOUT", &seconds, err, &bad))
        net->base.timeout_ns = (int64_t)seconds * 1000000000;
    if (bad) status = MESH_ERR_ARGUMENT;
    if (status == MESH_OK) status = mesh_socket__read_tuning(s, err);
    if (status == MESH_OK) status = mesh_socket__open_trace(s, err);
    if (status == MESH_OK && where.size > 1) status = mesh_socket__resolve(s, &where, err);
    if (status == MESH_OK && where.size > 1 && !s->secret_bytes && !desc->insecure &&
        !mesh_socket__is_loopback((struct sockaddr *)(void *)&s->master))
        status = mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "mesh_socket_open: rank 0's address %s is beyond loopback, and there is no secret: set MESH_SECRET to the same random text on every rank (`mesh run` does), or desc.insecure",
            where.address);
    if (status == MESH_OK && where.size > 1) {
        mesh_socket__raise_files(where.size);
        status = mesh_socket__files_check(s, err);
    }
    if (status == MESH_OK && where.size > 1) {
        if (desc->listen_fd > 0)
            inherited = desc->listen_fd;
        else if (where.rank == 0)
            mesh_socket__env_int("MESH_LISTEN_FD", &inherited, err, &bad);
        unsetenv("MESH_LISTEN_FD"); /* it serves once, and no child */
        mesh_socket__listen_unix(s);
        status = where.rank == 0 ? mesh_socket__open_lead(s, &where, inherited, desc->insecure, err)
                                 : mesh_socket__open_follow(s, &where, err);
    }
    if (status != MESH_OK) {
        mesh_socket__release(s);
        return status;
    }
    s->in_open = s->starved = 0;
    for (i = 0; i < s->nconns; i++)
        if (s->conn[i]->state == MESH_SOCKET__UP) mesh_socket__place_known(s, s->conn[i]);
    mesh_socket__neighbours(s, &where);
    if (s->trace)
        fprintf(
            s->trace,
            "[{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\",\"job\":\"%08lx%08lx\",\"world\":%d}}",
            where.rank, where.rank, (unsigned long)(s->job >> 32), (unsigned long)(s->job & 0xffffffffu), where.size);
    return MESH_OK;
}

#ifdef __cplusplus
}
#endif
#endif /* MESH_IMPLEMENTATION */
