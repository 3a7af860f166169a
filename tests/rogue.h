/* A peer that speaks raw bytes, and the honest ranks that it meets. */
#ifndef ROGUE_H
#define ROGUE_H

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

/* After a check that failed the rest would only wait for what does not come. */
static void rogue_give_up(void) {
    if (!test_failures) return;
    fflush(NULL);
    _exit(1);
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
/* Memory that nobody has written yet shows itself. */
static void *honest_alloc(void *ctx, size_t n) {
    void *p = malloc(n);
    (void)ctx;
    return p ? memset(p, 0x5a, n) : NULL;
}
static void honest_free(void *ctx, void *p) {
    (void)ctx;
    free(p);
}
/* at: the place in honest[], which is the rank but where there are two jobs. */
static honest_rank *honest_prepare(int at, int rank, int size) {
    honest_rank *h = &honest[at];
    memset(h, 0, sizeof *h);
    h->desc = socket_desc(rank, size, rogue_port, rogue_fd);
    h->desc.log = honest_log;
    h->desc.log_ctx = h;
    h->desc.allocator.alloc = honest_alloc;
    h->desc.allocator.free = honest_free;
    h->desc.lanes = MESH_SOCKET_UNIX;
    h->desc.open_timeout_ns = 10 * SECOND;
    pthread_mutex_init(&h->lock, NULL);
    return h;
}
static void honest_go(int at) { CHECK(pthread_create(&honest[at].thread, NULL, honest_open, &honest[at]) == 0); }
static mesh_status honest_opened(int at) {
    rogue_give_up();
    pthread_join(honest[at].thread, NULL);
    honest[at].up = honest[at].status == MESH_OK;
    return honest[at].status;
}
static void honest_down(void) {
    int i;
    rogue_give_up();
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
#define ROGUE_UNTIL(cond)                                                               \
    do {                                                                                \
        double end_ = test_now() + 20;                                                  \
        while (!(cond) && test_now() < end_) rogue_pump();                              \
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
    rogue_give_up();
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

static const char rogue_magic[9] = "MESH\4\0\r\n";
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

enum {
    W_EAGER = 1,
    W_OFFER,
    W_ACCEPT,
    W_REFUSE,
    W_WITHDRAW,
    W_DATA,
    W_CREDIT,
    W_CONTROL,
    W_LOST,
    W_BOOK,
    W_GOODBYE,
    W_GIVEN_UP,
    W_STAYS,
    W_SHARE,
    W_SHARED,
    W_LEND,
    W_PULL,
    W_RINGS,
    W_BELL,
    W_NONE
};

enum { ROGUE_HEADER = 48 };

static void rogue_header(unsigned char *p, uint32_t type, uint32_t length, uint64_t channel, uint64_t check, uint64_t a,
                         uint64_t b) {
    rogue_le(p, type, 4);
    rogue_le(p + 4, length, 4);
    rogue_le(p + 8, channel, 8);
    rogue_le(p + 16, check, 8);
    rogue_le(p + 24, a, 8);
    rogue_le(p + 32, b, 8);
    rogue_le(p + 40, 0, 8);
}
static void rogue_frame(int fd, uint32_t type, uint64_t channel, uint64_t check, uint64_t a, uint64_t b,
                        const void *data, uint32_t nbytes) {
    unsigned char head[ROGUE_HEADER];
    rogue_header(head, type, nbytes, channel, check, a, b);
    rogue_send(fd, head, ROGUE_HEADER);
    if (nbytes) rogue_send(fd, data, nbytes);
}
/* The next frame of a type; others before it are passed over. Returns 0 where the stream ends. */
static int rogue_frame_read(int fd, uint32_t type, unsigned char *head, unsigned char *data) {
    do {
        if (rogue_read(fd, head, ROGUE_HEADER) != ROGUE_HEADER) return 0;
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
    rogue_give_up();
    memset(why, 0, sizeof *why);
    while ((status = t->ops->test(t, ticket, why)) == MESH_IN_PROGRESS && test_now() < end) rogue_pump();
    return status;
}
/* A message of n bytes between honest ranks, by their places, arrives whole. */
static void honest_message(int line, int from, int to, int n) {
    static unsigned char out[300000], in[300000];
    static uint64_t channel = 1 << 20;
    mesh_ticket send, recv;
    mesh_error why;
    int i;
    for (i = 0; i < n; i++) out[i] = (unsigned char)(i * 31 + from), in[i] = 0;
    channel++;
    honest_post(from, MESH_SEND, honest[to].desc.rank, out, (uint64_t)n, ROGUE_CHANNEL(channel), &send);
    honest_post(to, MESH_RECV, honest[from].desc.rank, in, (uint64_t)n, ROGUE_CHANNEL(channel), &recv);
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
    unsigned char head[ROGUE_HEADER];
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

#endif
