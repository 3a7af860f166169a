/* A peer that speaks raw bytes to real ranks of the socket transport, and stays alive: what is refused is told from what died. What it
   writes is made here from the description of the wire, not by the transport's own functions. */
#ifndef T_ROGUE_H
#define T_ROGUE_H

#include <limits.h>
#include <pthread.h>

/* ---- honest ranks, in this process: each opens and closes in a thread of its own, and between the two this one runs them ---- */

typedef struct honest_rank {
    mesh_socket net;
    mesh_socket_desc desc;
    mesh_error err;
    mesh_status status;
    pthread_t thread;
    int up, still; /* still: not run for now */
    pthread_mutex_t lock;
    char said[8192]; /* what it logged */
} honest_rank;

enum { HONEST = 6, ROGUE = 2, ROGUE_HOST = 0x1234 };
static honest_rank honest[HONEST];
static int rogue_port, rogue_fd; /* where rank 0 listens, which inherits the socket */

static mesh_transport *honest_of(int rank) { return &honest[rank].net.base; }
static mesh_socket__impl *honest_impl(int rank) { return mesh_socket__of(honest_of(rank)); }

static void honest_log(void *ctx, int level, const char *text) {
    honest_rank *h = (honest_rank *)ctx;
    size_t used;
    (void)level;
    pthread_mutex_lock(&h->lock);
    used = strlen(h->said);
    snprintf(h->said + used, sizeof h->said - used, "%s\n", text);
    pthread_mutex_unlock(&h->lock);
}
/* Has the rank logged this since it was last asked? */
static void honest_said(int line, int rank, const char *fragment) {
    honest_rank *h = &honest[rank];
    pthread_mutex_lock(&h->lock);
    if (!strstr(h->said, fragment))
        test_fail(__FILE__, line, "rank %d logged \"%s\", which lacks \"%s\"", rank, h->said, fragment);
    h->said[0] = 0;
    pthread_mutex_unlock(&h->lock);
}

static void *honest_open(void *ctx) {
    honest_rank *h = (honest_rank *)ctx;
    h->status = mesh_socket_open(&h->net, &h->desc, &h->err);
    return NULL;
}
static void *honest_close(void *ctx) {
    mesh_socket_close(&((honest_rank *)ctx)->net);
    return NULL;
}
/* at: the place in honest[], which is the rank but where there are two jobs. */
static honest_rank *honest_prepare(int at, int rank, int size) {
    honest_rank *h = &honest[at];
    memset(h, 0, sizeof *h);
    h->desc = socket_desc(rank, size, rogue_port, rogue_fd);
    h->desc.log = honest_log;
    h->desc.log_ctx = h;
    pthread_mutex_init(&h->lock, NULL);
    return h;
}
static void honest_go(int at) { CHECK(pthread_create(&honest[at].thread, NULL, honest_open, &honest[at]) == 0); }
static mesh_status honest_opened(int at) {
    pthread_join(honest[at].thread, NULL);
    honest[at].up = honest[at].status == MESH_OK;
    return honest[at].status;
}
static void honest_down(void) {
    int i;
    for (i = 0; i < HONEST; i++)
        if (honest[i].up) CHECK(pthread_create(&honest[i].thread, NULL, honest_close, &honest[i]) == 0);
    for (i = 0; i < HONEST; i++) {
        if (honest[i].up) pthread_join(honest[i].thread, NULL);
        honest[i].up = 0;
    }
}

/* One round of every honest rank that is up. Returns their number. */
static int rogue_pump(void) {
    int i, n = 0;
    for (i = 0; i < HONEST; i++) {
        mesh_transport *t = honest_of(i);
        if (!honest[i].up || honest[i].still) continue;
        mesh_socket__of(t)->glances = 31; /* listeners too */
        t->ops->progress(t, 0);
        n++;
    }
    return n;
}
#define ROGUE_UNTIL(cond)                                                             \
    do {                                                                              \
        double end_ = test_now() + 20;                                                \
        while (!(cond) && test_now() < end_) rogue_pump();                            \
        if (!(cond)) test_fail(__FILE__, __LINE__, "what never comes true: %s", #cond); \
    } while (0)

/* ---- the rogue's voice ---- */

static void rogue_le(unsigned char *p, uint64_t v, int bytes) {
    for (; bytes > 0; bytes--, v >>= 8) *p++ = (unsigned char)v;
}
static uint64_t rogue_number(const unsigned char *p, int bytes) {
    uint64_t v = 0;
    while (bytes-- > 0) v = v << 8 | p[bytes];
    return v;
}

static void rogue_send(int fd, const void *data, size_t n) {
    const char *p = (const char *)data;
    while (n) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            p += sent;
            n -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS) {
            if (!rogue_pump()) test_sleep(0.001);
        } else {
            return; /* it has hung up: what is read next shows why */
        }
    }
}

/* Read n bytes, running the honest ranks meanwhile. Fewer: the other side has hung up. */
static int rogue_read(int fd, void *to, int n) {
    int have = 0, tries = 0;
    while (have < n) {
        ssize_t got = recv(fd, (char *)to + have, (size_t)(n - have), MSG_DONTWAIT);
        struct pollfd f;
        if (got > 0) {
            have += (int)got;
            continue;
        }
        if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return have;
        f.fd = fd;
        f.events = POLLIN;
        poll(&f, 1, rogue_pump() ? tries++ > 50 : 1000);
    }
    return have;
}
/* Until the other side hangs up. Returns how many bytes came before. */
static int rogue_drain(int fd) {
    char byte[256];
    int n, all = 0;
    while ((n = rogue_read(fd, byte, sizeof byte)) == (int)sizeof byte) all += n;
    return all + n;
}

/* ---- the rogue's side of the handshake ---- */

static const char rogue_magic[9] = "MESH\2\0\r\n";
static const char *rogue_secret = "tests";

/* HMAC(secret, role nonceC nonceS hello): the bytes are put together here; HMAC itself has its vectors in socket/hmac. */
static void rogue_mac(const char *role, const unsigned char *nonce_c, const unsigned char *nonce_s,
                      const unsigned char *hello, size_t hello_bytes, unsigned char *out) {
    unsigned char all[1 + 32 + 32 + 88];
    const void *piece = all;
    size_t n = 65 + hello_bytes;
    all[0] = (unsigned char)role[0];
    memcpy(all + 1, nonce_c, 32);
    memcpy(all + 33, nonce_s, 32);
    if (hello_bytes) memcpy(all + 65, hello, hello_bytes);
    mesh_socket__hmac(rogue_secret, strlen(rogue_secret), &piece, &n, 1, out);
}

enum { HELLO_JOINS, HELLO_CALLS, HELLO_MOVES };
typedef struct rogue_hello {
    int rank, size, kind, to;
    uint64_t job;
} rogue_hello;
static int rogue_own_port; /* what the rogue says that it listens at */
static uint64_t rogue_host = ROGUE_HOST, rogue_process;

static void rogue_hello_write(unsigned char *p, const rogue_hello *h) {
    static const unsigned char loopback[4] = {127, 0, 0, 1};
    memset(p, 0, 88);
    rogue_le(p, (uint32_t)h->rank, 4);
    rogue_le(p + 4, (uint32_t)h->size, 4);
    rogue_le(p + 8, (uint32_t)h->kind, 4);
    rogue_le(p + 12, (uint32_t)h->to, 4);
    memcpy(p + 16, loopback, 4);
    rogue_le(p + 32, (uint32_t)rogue_own_port, 2);
    rogue_le(p + 34, 4, 2);
    rogue_le(p + 40, rogue_host, 8);
    rogue_le(p + 64, rogue_process, 8);
    rogue_le(p + 80, h->job, 8);
}

/* One side's words, as the rogue or the honest rank speaks them; outcome: what came of it. */
typedef struct rogue_talk {
    int fd, slow; /* slow: a byte at a time */
    unsigned char c1[40], s1[40], c2[120], s2[40];
    char outcome[300];
} rogue_talk;

static void talk_send(rogue_talk *k, const void *data, int n) {
    const char *p = (const char *)data;
    if (!k->slow) rogue_send(k->fd, data, (size_t)n);
    for (; k->slow && n > 0; n--, p++) {
        rogue_send(k->fd, p, 1);
        rogue_pump();
    }
}

/* Where the rogue knocks. */
static int target_port;
static uint64_t target_token; /* 0: TCP */
static int rogue_dial(void) {
    struct sockaddr_un a;
    socklen_t length;
    int fd, on = 1;
    if (!target_token) {
        if ((fd = dial(target_port)) >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        return fd;
    }
    length = mesh_socket__unix_address(&a, target_token);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)(void *)&a, length) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static void talk_start(rogue_talk *k, const rogue_hello *h) {
    static unsigned char salt;
    int i;
    memset(k, 0, sizeof *k);
    memcpy(k->c1, rogue_magic, 8);
    for (i = 0; i < 32; i++) k->c1[8 + i] = (unsigned char)(i * 7 + salt);
    salt++;
    rogue_hello_write(k->c2 + 32, h);
    k->fd = rogue_dial();
    CHECK(k->fd >= 0);
}
/* Its first word, and the answer. Returns 1 if that is one. */
static int talk_greet(rogue_talk *k) {
    talk_send(k, k->c1, 40);
    return rogue_read(k->fd, k->s1, 40) == 40 && !memcmp(k->s1, rogue_magic, 8);
}
static void talk_prove(rogue_talk *k) { rogue_mac("C", k->c1 + 8, k->s1 + 8, k->c2 + 32, 88, k->c2); }

/* What the accepting side says to a proof: "welcome", the text of a refusal, "no proof" (zeros), or that it hung up. */
static const char *talk_hear(rogue_talk *k) {
    static const unsigned char zero[40];
    unsigned char mac[32];
    int n = rogue_read(k->fd, k->s2, 40), length = (int)rogue_number(k->s2 + 36, 4);
    const char *outcome = NULL;
    rogue_mac("S", k->c1 + 8, k->s1 + 8, NULL, 0, mac);
    if (n < 40) {
        outcome = n ? "cut" : "hung up";
    } else if (!memcmp(k->s2, zero, 40)) {
        outcome = "no proof";
    } else if (memcmp(k->s2, mac, 32)) {
        outcome = "wrong proof";
    } else if (rogue_number(k->s2 + 32, 4) == 0 && length == 0) {
        strcpy(k->outcome, "welcome");
        return k->outcome;
    } else if (length < 1 || length > 240 || rogue_read(k->fd, k->outcome, length) != length) {
        outcome = "a refusal without its text";
    }
    if (outcome) strcpy(k->outcome, outcome);
    if (rogue_drain(k->fd) != 0) strcpy(k->outcome, "more than a refusal");
    close(k->fd);
    k->fd = -1;
    return k->outcome;
}
static const char *talk_finish(rogue_talk *k) {
    talk_send(k, k->c2, 120);
    return talk_hear(k);
}
/* A whole handshake as this hello. */
static const char *talk_whole(rogue_talk *k, const rogue_hello *h) {
    talk_start(k, h);
    if (!talk_greet(k)) return "no answer";
    talk_prove(k);
    return talk_finish(k);
}
static void talk_refused(int line, int rank, rogue_talk *k, const char *want, const char *log) {
    if (strcmp(k->outcome, want)) test_fail(__FILE__, line, "\"%s\", expected \"%s\"", k->outcome, want);
    honest_said(line, rank, log);
}

/* ---- frames ---- */

enum { W_EAGER = 1, W_OFFER, W_ACCEPT, W_REFUSE, W_WITHDRAW, W_DATA, W_CREDIT, W_CONTROL, W_LOST, W_BOOK, W_GOODBYE, W_GIVEN_UP, W_STAYS };

static void rogue_header(unsigned char *p, uint32_t type, uint32_t length, uint64_t channel, uint64_t check, uint64_t a,
                         uint64_t b) {
    rogue_le(p, type, 4);
    rogue_le(p + 4, length, 4);
    rogue_le(p + 8, channel, 8);
    rogue_le(p + 16, check, 8);
    rogue_le(p + 24, a, 8);
    rogue_le(p + 32, b, 8);
}
static void rogue_frame(int fd, uint32_t type, uint64_t channel, uint64_t check, uint64_t a, uint64_t b,
                        const void *data, uint32_t nbytes) {
    unsigned char head[40];
    rogue_header(head, type, nbytes, channel, check, a, b);
    rogue_send(fd, head, 40);
    if (nbytes) rogue_send(fd, data, nbytes);
}
/* The next frame of a type; others before it are passed over. Returns 0 where the stream ends. */
static int rogue_frame_read(int fd, uint32_t type, unsigned char *head, unsigned char *data) {
    do {
        if (rogue_read(fd, head, 40) != 40) return 0;
        if (rogue_number(head + 4, 4) > 4096) return 0;
        if (rogue_read(fd, data, (int)rogue_number(head + 4, 4)) != (int)rogue_number(head + 4, 4)) return 0;
    } while (rogue_number(head, 4) != type);
    return 1;
}

/* ---- what honest ranks do ---- */

enum { ROGUE_CHECK = 9 };
#define ROGUE_CHANNEL(k) (UINT64_C(0x7000000000000000) + (k))

static void honest_post(int at, int direction, int rank, void *base, uint64_t nbytes, uint64_t channel,
                        mesh_ticket *ticket) {
    mesh_transport *t = honest_of(at);
    mesh_post post;
    mesh_xfer x;
    memset(&post, 0, sizeof post);
    memset(&x, 0, sizeof x);
    x.base = base;
    x.nbytes = nbytes;
    x.direction = direction;
    x.rank = rank;
    post.channel = channel;
    post.check = ROGUE_CHECK;
    post.xfer = &x;
    post.count = 1;
    CHECK_INT(t->ops->post(t, &post, ticket), MESH_OK);
}
static mesh_status honest_end(int at, mesh_ticket *ticket, mesh_error *why) {
    mesh_transport *t = honest_of(at);
    mesh_status status;
    double end = test_now() + 20;
    memset(why, 0, sizeof *why);
    while ((status = t->ops->test(t, ticket, why)) == MESH_IN_PROGRESS && test_now() < end) rogue_pump();
    return status;
}
/* A message of n bytes between honest ranks arrives whole. */
static void honest_message(int line, int from, int to, int n) {
    static unsigned char out[300000], in[300000];
    static uint64_t channel = 1 << 20;
    mesh_ticket send, recv;
    mesh_error why;
    int i;
    for (i = 0; i < n; i++) out[i] = (unsigned char)(i * 31 + from), in[i] = 0;
    channel++;
    honest_post(from, MESH_SEND, to, out, (uint64_t)n, ROGUE_CHANNEL(channel), &send);
    honest_post(to, MESH_RECV, from, in, (uint64_t)n, ROGUE_CHANNEL(channel), &recv);
    if (honest_end(from, &send, &why) || honest_end(to, &recv, &why) || memcmp(in, out, (size_t)n))
        test_fail(__FILE__, line, "%d bytes of rank %d for rank %d: %s", n, from, to, why.text);
}
/* The next event at a rank: of this kind, about this rank, with this text. */
static void honest_event(int line, int at, int kind, int rank, const char *text) {
    mesh_transport *t = honest_of(at);
    mesh_control m;
    double end = test_now() + 20;
    memset(&m, 0, sizeof m);
    m.kind = -1;
    while (t->ops->control_poll(t, &m) == MESH_IN_PROGRESS && test_now() < end) rogue_pump();
    if (m.kind != kind || m.rank != rank || m.nbytes != strlen(text) || memcmp(m.data, text, m.nbytes))
        test_fail(__FILE__, line, "rank %d heard event %d of rank %d: \"%.*s\", expected %d of %d: \"%s\"", at, m.kind,
                  m.rank, (int)m.nbytes, (char *)m.data, kind, rank, text);
}
/* Nothing has been heard. */
static void honest_no_event(int line, int at) {
    mesh_control m;
    if (honest_of(at)->ops->control_poll(honest_of(at), &m) == MESH_OK)
        test_fail(__FILE__, line, "rank %d heard event %d of rank %d", at, m.kind, m.rank);
}

/* ---- worlds ---- */

/* Rank 0 of `size` opens; its listener is where the rogue knocks. */
static void rogue_lead(int size) {
    rogue_fd = listen_loopback(AF_INET, &rogue_port);
    target_port = rogue_port;
    target_token = 0;
    CHECK(rogue_fd >= 0);
    honest_prepare(0, 0, size);
    honest_go(0);
}


/* Ranks 0 and 1 are honest, rank 2 is the rogue: it joins as it should, and reads the address book. Returns its connection to rank 0. */
static unsigned char rogue_book[3 * 64];
static uint64_t rogue_job;
static int rogue_join(void) {
    static const rogue_hello right = {ROGUE, 3, HELLO_JOINS, 0, 0};
    unsigned char head[40];
    rogue_talk k;
    rogue_lead(3);
    honest_prepare(1, 1, 3);
    honest_go(1);
    CHECK_STR(talk_whole(&k, &right), "welcome");
    CHECK(rogue_frame_read(k.fd, W_BOOK, head, rogue_book));
    CHECK_INT(rogue_number(head + 4, 4), sizeof rogue_book);
    CHECK_OK(honest_opened(0), honest[0].err);
    CHECK_OK(honest_opened(1), honest[1].err);
    rogue_job = rogue_number(rogue_book + 56, 8);
    return k.fd;
}
/* The rogue turns to rank 1's own listener. */
static void rogue_turn(int is_unix) {
    target_port = (int)rogue_number(rogue_book + 64 + 16, 2);
    target_token = is_unix ? rogue_number(rogue_book + 64 + 32, 8) : 0;
}

/* ---- the accepting side ---- */

/* The handshake to the letter, on rank 1 of 3, secret "tests", job 0x1122334455667788; the nonces count up from 0x00 and from 0x80. Python:
     from hmac import digest; from struct import pack
     def mac(role, hello=b""): return digest(b"tests", role + bytes(range(0, 32)) + bytes(range(128, 160)) + hello, "sha256")
     def entry(port, host, token): return bytes([127, 0, 0, 1] + 12 * [0]) + pack("<HHIQQQQQ", port, 4, 0, host, token, 0, 0, 0)
     hello = pack("<iiii", 2, 3, 1, 1) + entry(0x5678, 0x1234, 0) + pack("<Q", 0x1122334455667788)
     print((mac(b"C", hello) + hello).hex(), (mac(b"S") + bytes(8)).hex())
     hello = pack("<iiii", 1, 3, 1, 2) + entry(0x9abc, 0x4321, 0xfedcba9876543210) + pack("<Q", 0x1122334455667788)
     print((mac(b"C", hello) + hello).hex())                                  what rank 1 says where it calls rank 2 */
static const char recorded_magic[] = "4d45534802000d0a";
static const char recorded_c2[] =
    "45aea22d2b32db9fae539fe2ed882276ab03ed7d388b73d52ad9a25f25c469c2020000000300000001000000010000007f000001"
    "00000000000000000000000078560400000000003412000000000000000000000000000000000000000000000000000000000000"
    "00000000000000008877665544332211";
static const char recorded_s2[] = "dfd6bf40c4416688786918f6d0ba720eb0e4a83befbabde42b9fdf70081bd6490000000000000000";
static const char recorded_call[] =
    "462b1588bfa876d3f536f06cfdcbdf60746fa95f2c32b5751af02ce71cbc4b58010000000300000001000000020000007f000001"
    "000000000000000000000000bc9a04000000000021430000000000001032547698badcfe00000000000000000000000000000000"
    "00000000000000008877665544332211";

static int unhex(const char *text, unsigned char *out) {
    unsigned v;
    int n = 0;
    for (; sscanf(text, "%2x", &v) == 1; text += 2) out[n++] = (unsigned char)v;
    return n;
}
static void check_hex(int line, const unsigned char *got, int n, const char *want) {
    char text[512];
    hex(got, n, text);
    if (strcmp(text, want)) test_fail(__FILE__, line, "%d bytes are\n%s, expected\n%s", n, text, want);
}
static void count_up(unsigned char *nonce, int from) {
    int i;
    for (i = 0; i < 32; i++) nonce[i] = (unsigned char)(from + i);
}

static void test_recorded(void) {
    static const unsigned char loopback[4] = {127, 0, 0, 1};
    unsigned char b[120], nonce[32];
    mesh_socket__impl *s;
    mesh_socket__conn *c;
    int fd = rogue_join(), pair[2];
    s = honest_impl(1);
    s->job = UINT64_C(0x1122334455667788);
    /* Rank 1 accepts: its nonce is put in place of the one it drew. */
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK(mesh_socket__nonblocking(pair[0]));
    c = mesh_socket__conn_new(s, pair[0]);
    c->greet_need = MESH_SOCKET__C1;
    unhex(recorded_magic, b);
    count_up(b + 8, 0);
    rogue_send(pair[1], b, 40);
    CHECK_INT(rogue_read(pair[1], b, 40), 40);
    check_hex(__LINE__, b, 8, recorded_magic);
    count_up(c->nonce[1], 0x80);
    CHECK_INT(unhex(recorded_c2, b), 120);
    rogue_send(pair[1], b, 120);
    CHECK_INT(rogue_read(pair[1], b, 40), 40);
    check_hex(__LINE__, b, 40, recorded_s2);
    CHECK(s->peer[ROGUE].conn == c);
    close(pair[1]);
    ROGUE_UNTIL(!s->peer[ROGUE].conn);
    /* Rank 1 calls. */
    s->peer[ROGUE].gone = 0;
    memset(&s->book[1], 0, sizeof s->book[1]);
    memcpy(s->book[1].addr, loopback, 4);
    s->book[1].port = 0x9abc;
    s->book[1].family = 4;
    s->book[1].host = 0x4321;
    s->book[1].token = UINT64_C(0xfedcba9876543210);
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK(mesh_socket__nonblocking(pair[0]));
    c = s->peer[ROGUE].coming = mesh_socket__conn_new(s, pair[0]);
    c->initiator = 1;
    c->rank = ROGUE;
    mesh_socket__greet(s, c);
    CHECK_INT(rogue_read(pair[1], b, 40), 40);
    check_hex(__LINE__, b, 8, recorded_magic);
    memset(nonce, 0, 32);
    CHECK(memcmp(b + 8, nonce, 32));
    count_up(c->nonce[0], 0);
    unhex(recorded_magic, b);
    count_up(b + 8, 0x80);
    rogue_send(pair[1], b, 40);
    CHECK_INT(rogue_read(pair[1], b, 120), 120);
    check_hex(__LINE__, b, 120, recorded_call);
    CHECK_INT(unhex(recorded_s2, b), 40);
    rogue_send(pair[1], b, 40);
    ROGUE_UNTIL(s->peer[ROGUE].conn == c);
    close(pair[1]);
    close(fd);
    honest_down();
}

/* What a hello may not say, and the answer. %: the world's size, and the rank it has reached. */
typedef struct wrong_hello {
    const char *what;
    rogue_hello h;
    const char *want;
} wrong_hello;
#define OUTSIDE(rank, size) "rank " rank " is given twice, or lies outside a world of " size "; give every process its own RANK"
#define UNLIKE(theirs, ours, me) \
    "rank 2 says the world has " theirs " ranks, rank " me " says " ours "; give every rank the same WORLD_SIZE"
#define ASTRAY(rank, to, me) \
    "rank " rank " of another job, or on its way to rank " to ", has reached rank " me "; give each job its own port and secret"

static void try_hellos(const wrong_hello *w, size_t n, int me, uint64_t job) {
    rogue_talk k;
    size_t i;
    for (i = 0; i < n; i++) {
        rogue_hello h = w[i].h;
        h.job ^= job;
        talk_whole(&k, &h);
        if (strcmp(k.outcome, w[i].want))
            test_fail(__FILE__, __LINE__, "%s: \"%s\", expected \"%s\"", w[i].what, k.outcome, w[i].want);
        honest_said(__LINE__, me, w[i].want);
    }
}

/* Every proof that is none: each byte of the MAC, each byte that it stands for, each thing that it is made of. */
static void try_proofs(int me, const rogue_hello *right) {
    static const char log[] = "dropped a connection that is none of this job's: it does not know the secret";
    unsigned char nonce[32];
    rogue_talk k;
    int i;
    for (i = 0; i < 120; i++) { /* MAC, and hello */
        talk_start(&k, right);
        CHECK(talk_greet(&k));
        talk_prove(&k);
        k.c2[i] ^= (unsigned char)(1 << i % 8);
        talk_finish(&k);
        talk_refused(__LINE__, me, &k, "no proof", log);
    }
    for (i = 0; i < 8; i++) {
        talk_start(&k, right);
        CHECK(talk_greet(&k));
        memset(nonce, 0, 32);
        switch (i) {
        case 0: rogue_mac("S", k.c1 + 8, k.s1 + 8, NULL, 0, k.c2); break; /* the accepting side's own, sent back */
        case 1: rogue_mac("S", k.c1 + 8, k.s1 + 8, k.c2 + 32, 88, k.c2); break;
        case 2: rogue_mac("C", k.s1 + 8, k.c1 + 8, k.c2 + 32, 88, k.c2); break;
        case 3: rogue_mac("C", k.c1 + 8, nonce, k.c2 + 32, 88, k.c2); break;
        case 4: rogue_mac("C", nonce, k.s1 + 8, k.c2 + 32, 88, k.c2); break;
        case 5: rogue_mac("C", k.c1 + 8, k.s1 + 8, NULL, 0, k.c2); break;
        case 6: memset(k.c2, 0, 32); break;
        default:
            rogue_secret = "";
            talk_prove(&k);
            rogue_secret = "tests";
        }
        talk_finish(&k);
        talk_refused(__LINE__, me, &k, "no proof", log);
    }
}

/* Cut off at every length; a first word that is another's, to the byte that shows it. */
static void try_pieces(int me, const rogue_hello *right) {
    static const char hung_up[] = "it hung up during the handshake";
    rogue_talk k;
    int i, version;
    for (i = 0; i < 160; i++) {
        talk_start(&k, right);
        if (i >= 40) {
            CHECK(talk_greet(&k));
            talk_prove(&k);
        }
        if (i < 40)
            talk_send(&k, k.c1, i);
        else
            talk_send(&k, k.c2, i - 40);
        shutdown(k.fd, SHUT_WR);
        talk_hear(&k);
        talk_refused(__LINE__, me, &k, "hung up", hung_up);
    }
    for (i = 0; i < 8; i++) {
        talk_start(&k, right);
        k.c1[i] ^= 1;
        talk_send(&k, k.c1, i + 1);
        talk_hear(&k);
        talk_refused(__LINE__, me, &k, "hung up",
                     i == 4 ? "it speaks another version of this protocol" : "it does not speak this protocol");
    }
    for (version = 0; version < 256; version++) {
        if (version == 2) continue;
        talk_start(&k, right);
        k.c1[4] = (unsigned char)version;
        talk_send(&k, k.c1, 5);
        talk_hear(&k);
        talk_refused(__LINE__, me, &k, "hung up", "it speaks another version of this protocol");
    }
}

/* Rank 0 while the job opens: the rogue is refused for each thing that is wrong; then let in, twice, where nothing is. The job goes on. */
static void test_acceptor(void) {
    static const wrong_hello wrong[] = {
        {"rank -1", {-1, 4, 0, 0, 0}, OUTSIDE("-1", "4")},
        {"the least rank", {INT_MIN, 4, 0, 0, 0}, OUTSIDE("-2147483648", "4")},
        {"a rank outside", {4, 4, 0, 0, 0}, OUTSIDE("4", "4")},
        {"the greatest rank", {INT_MAX, 4, 0, 0, 0}, OUTSIDE("2147483647", "4")},
        {"rank 0 itself", {0, 4, 0, 0, 0}, OUTSIDE("0", "4")},
        {"a smaller world", {2, 3, 0, 0, 0}, UNLIKE("3", "4", "0")},
        {"a larger world", {2, 5, 0, 0, 0}, UNLIKE("5", "4", "0")},
        {"no world", {2, 0, 0, 0, 0}, UNLIKE("0", "4", "0")},
        {"less than no world", {2, -4, 0, 0, 0}, UNLIKE("-4", "4", "0")},
        {"for another rank", {2, 4, 0, 1, 0}, ASTRAY("2", "1", "0")},
        {"for no rank", {2, 4, 0, -1, 0}, ASTRAY("2", "-1", "0")},
        {"another job's name", {2, 4, 0, 0, 1}, ASTRAY("2", "0", "0")},
        {"another job's name", {2, 4, 0, 0, UINT64_C(1) << 63}, ASTRAY("2", "0", "0")},
        {"a call before there is a book", {2, 4, 1, 0, 0}, ASTRAY("2", "0", "0")},
        {"a move before there is a book", {2, 4, 2, 0, 0}, ASTRAY("2", "0", "0")},
        {"neither", {2, 4, 3, 0, 0}, ASTRAY("2", "0", "0")},
    };
    static const wrong_hello twice[] = {
        {"a rank that is there",
         {2, 4, 0, 0, 0},
         "rank 2 is given twice: another process has joined as rank 2; give every process its own RANK"}};
    rogue_hello right = {2, 4, HELLO_JOINS, 0, 0};
    unsigned char head[40], book[4 * 64];
    rogue_talk k, plain, slow, open[3];
    int i;
    setenv("PMIX_NAMESPACE", "the rogue's job", 1);
    rogue_lead(4);
    right.job = mesh_socket__identity(0);
    CHECK(right.job);
    for (i = 0; i < 3; i++) { /* cut off, and kept open until the end: they are in nobody's way */
        talk_start(&open[i], &right);
        if (i) CHECK(talk_greet(&open[i]));
        talk_send(&open[i], i ? open[i].c2 : open[i].c1, i == 0 ? 39 : i == 1 ? 0 : 119);
    }
    try_hellos(wrong, sizeof wrong / sizeof wrong[0], 0, right.job);
    try_proofs(0, &right);
    try_pieces(0, &right);
    talk_start(&k, &right); /* a refusal stays one, whatever follows */
    CHECK(talk_greet(&k));
    talk_send(&k, rogue_book, sizeof rogue_book);
    CHECK_STR(talk_finish(&k), "no proof");
    CHECK_STR(talk_whole(&plain, &right), "welcome");
    try_hellos(twice, 1, 0, right.job);
    right.rank = 3;
    talk_start(&slow, &right);
    slow.slow = 1;
    CHECK(talk_greet(&slow));
    talk_prove(&slow);
    CHECK_STR(talk_finish(&slow), "welcome");
    honest_prepare(1, 1, 4);
    honest_go(1);
    CHECK_OK(honest_opened(0), honest[0].err);
    CHECK_OK(honest_opened(1), honest[1].err);
    CHECK(rogue_frame_read(plain.fd, W_BOOK, head, book) && rogue_frame_read(slow.fd, W_BOOK, head, book));
    honest_message(__LINE__, 1, 0, 1000);
    try_hellos(twice, 1, 0, right.job); /* and when all have come */
    for (i = 0; i < 3; i++) { /* those who say nothing more have ten seconds: they pass */
        mesh_socket__impl *s = honest_impl(0);
        int j, found = 0;
        for (j = 0; j < s->nconns; j++) found += s->conn[j]->rank < 0;
        CHECK_INT(found, 3 - i);
        for (j = 0; s->conn[j]->rank >= 0; j++) {}
        CHECK(s->conn[j]->deadline > 0 && s->conn[j]->deadline <= mesh_socket__clock() + 10 * SECOND);
        s->conn[j]->deadline = 1;
        rogue_pump(), rogue_pump();
        honest_said(__LINE__, 0, "it did not finish the handshake");
    }
    for (i = 0; i < 3; i++) {
        CHECK_INT(rogue_drain(open[i].fd), 0);
        close(open[i].fd);
    }
    honest_message(__LINE__, 0, 1, 100000);
    close(plain.fd);
    close(slow.fd);
    honest_down();
    unsetenv("PMIX_NAMESPACE");
}

/* A rank's own listener, over TCP and the Unix-domain socket. What follows a right proof at once is read as frames. */
static void listener(int is_unix) {
    static const wrong_hello wrong[] = {
        {"rank -1", {-1, 3, 1, 1, 0}, OUTSIDE("-1", "3")},
        {"a rank outside", {3, 3, 1, 1, 0}, OUTSIDE("3", "3")},
        {"rank 1 itself", {1, 3, 1, 1, 0}, OUTSIDE("1", "3")},
        {"a larger world", {2, 4, 1, 1, 0}, UNLIKE("4", "3", "1")},
        {"for rank 0", {2, 3, 1, 0, 0}, ASTRAY("2", "0", "1")},
        {"for itself", {2, 3, 1, 2, 0}, ASTRAY("2", "2", "1")},
        {"another job", {2, 3, 1, 1, 2}, ASTRAY("2", "1", "1")},
        {"who would join", {2, 3, 0, 1, 0}, ASTRAY("2", "1", "1")},
    };
    static const wrong_hello gone[] = {{"who has gone", {2, 3, 1, 1, 0}, "rank 2 is not waited for any more"}};
    rogue_hello right = {ROGUE, 3, HELLO_CALLS, 1, 0};
    unsigned char got[8], after[120 + 48];
    int fd = rogue_join();
    mesh_ticket recv;
    mesh_error why;
    rogue_talk k, second;
    rogue_turn(is_unix);
    right.job = rogue_job;
    try_hellos(wrong, sizeof wrong / sizeof wrong[0], 1, rogue_job);
    right.job = 0; /* no job is not any job */
    CHECK_STR(talk_whole(&k, &right), ASTRAY("2", "1", "1"));
    right.job = rogue_job;
    try_proofs(1, &right);
    try_pieces(1, &right);
    talk_start(&k, &right);
    CHECK(talk_greet(&k));
    talk_prove(&k);
    memcpy(after, k.c2, 120);
    rogue_header(after + 120, W_EAGER, 8, ROGUE_CHANNEL(1), ROGUE_CHECK, 0, 0);
    memcpy(after + 160, "at once.", 8);
    rogue_send(k.fd, after, sizeof after);
    CHECK_STR(talk_hear(&k), "welcome");
    honest_post(1, MESH_RECV, ROGUE, got, 8, ROGUE_CHANNEL(1), &recv);
    CHECK_OK(honest_end(1, &recv, &why), why);
    CHECK(!memcmp(got, "at once.", 8));
    CHECK_STR(talk_whole(&second, &right), "!"); /* there is one */
    honest_message(__LINE__, 0, 1, 200000);
    rogue_frame(k.fd, W_GOODBYE, 0, 0, 0, 0, NULL, 0);
    honest_event(__LINE__, 1, MESH_EVENT_CLOSED, ROGUE, "");
    try_hellos(gone, 1, 1, rogue_job);
    close(k.fd);
    close(fd);
    honest_down();
}
static void test_listener_tcp(void) { listener(0); }
static void test_listener_unix(void) { listener(1); }

/* What was right in one opening is wrong in the next, to the same port, secret and name: nonces are drawn anew. */
static void test_replay(void) {
    static const rogue_hello right = {1, 2, HELLO_JOINS, 0, 0};
    rogue_talk first, again;
    unsigned char head[40], book[128];
    int round;
    for (round = 0; round < 2; round++) {
        rogue_lead(2);
        if (round) {
            again = first;
            again.fd = rogue_dial();
            CHECK(talk_greet(&again));
            CHECK(memcmp(again.s1 + 8, first.s1 + 8, 32));
            talk_finish(&again);
            talk_refused(__LINE__, 0, &again, "no proof", "it does not know the secret");
        }
        CHECK_STR(talk_whole(&first, &right), "welcome");
        CHECK(rogue_frame_read(first.fd, W_BOOK, head, book));
        CHECK_OK(honest_opened(0), honest[0].err);
        close(first.fd);
        honest_down();
    }
}

static const test_case rogue_tests[] = {
    {"rogue/recorded", test_recorded, 30},
    {"rogue/acceptor", test_acceptor, 60},
    {"rogue/listener_tcp", test_listener_tcp, 60},
    {"rogue/listener_unix", test_listener_unix, 60},
    {"rogue/replay", test_replay, 30},
};

#endif
