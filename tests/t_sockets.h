/* Laws of the socket transport for right peers: the ranks of a world live in this one process, and take a step when the test says so. */
#ifndef T_SOCKETS_H
#define T_SOCKETS_H

#include <pthread.h>
#include <sys/ioctl.h>

enum { LAW_RANKS = 4 };
typedef struct law_rank {
    mesh_socket net;
    mesh_socket_desc desc;
    mesh_status status;
    mesh_error err;
    pthread_t thread;
} law_rank;
static law_rank law[LAW_RANKS];
static int law_n, law_listener;

static mesh_transport *law_of(int rank) { return &law[rank].net.base; }
static mesh_socket__impl *law_impl(int rank) { return mesh_socket__of(law_of(rank)); }
static mesh_socket__peer *law_peer(int rank, int of) { return &law_impl(rank)->peer[of]; }

static void *law_enter(void *ctx) {
    law_rank *r = (law_rank *)ctx;
    r->status = mesh_socket_open(&r->net, &r->desc, &r->err);
    return NULL;
}
static void law_begin(int rank) { CHECK_INT(pthread_create(&law[rank].thread, NULL, law_enter, &law[rank]), 0); }
static void law_end(int rank) { pthread_join(law[rank].thread, NULL); }

static void law_quiet(void *ctx, int level, const char *text) { (void)ctx, (void)level, (void)text; }

/* n ranks that have joined. prepare: changes to a rank's description. */
static void law_open_as(int n, int lanes, void (*prepare)(int rank, mesh_socket_desc *d)) {
    int i, port;
    law_n = n;
    law_listener = listen_loopback(AF_INET, &port);
    for (i = 0; i < n; i++) {
        law[i].desc = socket_desc(i, n, port, law_listener);
        law[i].desc.lanes = lanes;
        law[i].desc.log = law_quiet;
        if (prepare) prepare(i, &law[i].desc);
    }
    for (i = 0; i < n; i++) law_begin(i);
    for (i = 0; i < n; i++) {
        law_end(i);
        CHECK_OK(law[i].status, law[i].err);
        if (law[i].status != MESH_OK) exit(1);
    }
}
static void law_open(int n, int lanes) { law_open_as(n, lanes, NULL); }

/* Tickets that have not ended: what a test leaves is canceled and ended before its ranks close, as the engine does. */
typedef struct law_left {
    int rank;
    mesh_ticket ticket;
} law_left;
static law_left *law_tickets;
static int law_ntickets, law_ticket_cap;

static void law_keep(int rank, const mesh_ticket *ticket) {
    if (law_ntickets == law_ticket_cap) {
        law_ticket_cap = law_ticket_cap ? 2 * law_ticket_cap : 64;
        law_tickets = (law_left *)realloc(law_tickets, (size_t)law_ticket_cap * sizeof *law_tickets);
    }
    law_tickets[law_ntickets].rank = rank;
    law_tickets[law_ntickets++].ticket = *ticket;
}
static void law_forget(int rank, const mesh_ticket *ticket) {
    int i;
    for (i = law_ntickets - 1; i >= 0; i--)
        if (law_tickets[i].rank == rank && law_tickets[i].ticket.impl == ticket->impl) {
            law_tickets[i] = law_tickets[--law_ntickets];
            return;
        }
}

static void *law_leave(void *ctx) {
    law_rank *r = (law_rank *)ctx;
    r->status = mesh_socket_close(&r->net);
    return NULL;
}
static void law_close(void) {
    mesh_error why;
    double end = test_now() + 10;
    int i;
    for (; law_ntickets; law_ntickets--) {
        law_left *left = &law_tickets[law_ntickets - 1];
        mesh_transport *t = law_of(left->rank);
        if (!law[left->rank].net.impl) continue;
        t->ops->cancel(t, &left->ticket);
        while (t->ops->test(t, &left->ticket, &why) == MESH_IN_PROGRESS && test_now() < end) t->ops->progress(t, 0);
    }
    for (i = 0; i < law_n; i++) CHECK_INT(pthread_create(&law[i].thread, NULL, law_leave, &law[i]), 0);
    for (i = 0; i < law_n; i++) {
        law_end(i);
        CHECK_INT(law[i].status, MESH_OK);
    }
}

static void law_step(int rank) { law_of(rank)->ops->progress(law_of(rank), 0); }
static void law_pump(void) {
    int i;
    for (i = 0; i < law_n; i++)
        if (law[i].net.impl) law_step(i);
}
/* Steps of all ranks until the condition holds. */
#define LAW_UNTIL(cond)                                                           \
    do {                                                                          \
        double end_ = test_now() + 15;                                            \
        int holds_ = 0;                                                           \
        while (!(holds_ = (cond) != 0) && test_now() < end_) law_pump();          \
        if (!holds_) {                                                            \
            test_fail(__FILE__, __LINE__, "it is waited for in vain: %s", #cond); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)
/* Has any connection bytes to be sent, or its kernel some that are not acknowledged (TIOCOUTQ), or not read (FIONREAD)? */
static int law_holds(unsigned long which) {
    int i, k, bytes;
    for (i = 0; i < law_n; i++)
        for (k = 0; law[i].net.impl && k < law_impl(i)->nconns; k++) {
            const mesh_socket__conn *c = law_impl(i)->conn[k];
            if (c->frame || c->out_at != c->out_len || (ioctl(c->fd, which, &bytes) == 0 && bytes)) return 1;
        }
    return 0;
}
/* Whatever is under way has come: TCP on a busy host hands over some of it late. First what was sent: it is what others read then. */
static void law_settle(void) {
    int i;
    for (i = 0; i < 200; i++) law_pump();
    LAW_UNTIL(!law_holds(TIOCOUTQ) && !law_holds(FIONREAD));
}

static void law_post(int rank, int direction, int peer, void *base, uint64_t nbytes, const mesh_block *block,
                     uint64_t channel, mesh_ticket *ticket) {
    mesh_xfer x;
    mesh_post p;
    memset(&x, 0, sizeof x);
    memset(&p, 0, sizeof p);
    x.base = base, x.nbytes = nbytes, x.block = block;
    x.direction = direction, x.rank = peer;
    p.channel = channel, p.check = 17;
    p.xfer = &x, p.count = 1;
    CHECK_INT(law_of(rank)->ops->post(law_of(rank), &p, ticket), MESH_OK);
    law_keep(rank, ticket);
}
static mesh_status law_test(int rank, mesh_ticket *ticket, mesh_error *why) {
    mesh_ticket was = *ticket;
    mesh_status status = law_of(rank)->ops->test(law_of(rank), ticket, why);
    if (status != MESH_IN_PROGRESS) law_forget(rank, &was);
    return status;
}
/* How a ticket ends. */
static mesh_status law_ended(int rank, mesh_ticket *ticket) {
    mesh_error why;
    mesh_status status = MESH_IN_PROGRESS;
    LAW_UNTIL((status = law_test(rank, ticket, &why)) != MESH_IN_PROGRESS);
    return status;
}
/* A message there and back, so that the two are connected. */
static void law_meet(int a, int b) {
    char x = 1, y = 0;
    mesh_ticket s, r;
    law_post(a, MESH_SEND, b, &x, 1, NULL, 99, &s);
    law_post(b, MESH_RECV, a, &y, 1, NULL, 99, &r);
    CHECK_INT(law_ended(a, &s), MESH_OK);
    CHECK_INT(law_ended(b, &r), MESH_OK);
    CHECK_INT(y, 1);
}

/* ---- the books balance: when nothing is under way, nothing is counted ---- */

static int law_free_slots(const mesh_socket__impl *s) {
    int n = 0, k;
    for (k = s->slot_free; k < s->nslots && n <= s->nslots; k = (int)s->slot_next[k]) n++;
    return n;
}

/* What a may still send b, what b has taken and not said, and what lies at b, is the credit; nothing waits, every id is free. */
static int law_is_balanced(char *text, size_t cap) {
    int i, k;
    for (i = 0; i < law_n; i++) {
        const mesh_socket__impl *s = law_impl(i);
        for (k = 0; k < law_n; k++) {
            const mesh_socket__peer *p = &s->peer[k], *to = law_peer(k, i);
            if (i == k || !p->conn) continue;
            snprintf(
                text, cap,
                "rank %d: of rank %d's credit %d bytes are left, %d taken and %d lie there; offers %d, noffered %d%s",
                i, k, (int)to->credit, (int)p->taken, (int)p->lent, p->offers, p->noffered,
                p->posted.head || p->waiting.head || p->offered.head || p->streaming.head || p->early
                    ? "; messages wait"
                    : "");
            if (to->credit + p->taken != MESH_SOCKET__CREDIT || p->lent || p->posted.head || p->waiting.head ||
                p->offered.head || p->streaming.head || p->early || p->offers || p->noffered || p->conn->frame ||
                p->conn->spare || p->conn->rx_left)
                return 0;
        }
        snprintf(text, cap, "rank %d: %d of %d ids are free", i, law_free_slots(s), s->nslots);
        if (law_free_slots(s) != s->nslots) return 0;
    }
    return 1;
}
static void law_balanced(int line) {
    char text[300] = "";
    double end = test_now() + 10;
    while (!law_is_balanced(text, sizeof text) && test_now() < end) law_pump();
    if (test_now() >= end) test_fail(__FILE__, line, "nothing is under way, but %s", text);
}

/* ---- messages: the k-th send of a channel meets its k-th receive, whole, strided or not, whatever comes between ---- */

enum { LAW_MESSAGES = 120 };
typedef struct law_message {
    unsigned char *from, *to; /* each with room around it */
    size_t room;
    mesh_block block[2];
    int strided[2];
    uint64_t nbytes, channel;
    mesh_ticket ticket[2];
    int ended[2];
} law_message;
static law_message law_said[LAW_MESSAGES];

static const uint64_t law_sizes[] = {0,     1,     39,    40,    4095,  4096,   4097,    8192,          16343,  16344,
                                     16384, 16385, 65535, 65536, 65537, 100000, 1 << 20, (1 << 20) + 1, 3 << 20};

static unsigned char law_byte(int k, uint64_t at) { return (unsigned char)(at * 31 + at / 251 + (uint64_t)k * 7 + 1); }

/* A shape for some bytes: whole, or rows at a distance, of a length that divides them. */
static int law_shape(test_random *rng, uint64_t nbytes, mesh_block *b) {
    static const uint64_t runs[] = {1, 8, 100, 1000, 1024, 2048, 5000};
    uint64_t run = runs[random_below(rng, 7)];
    memset(b, 0, sizeof *b);
    if (!nbytes || nbytes % run || nbytes / run > 4000 || random_below(rng, 2)) return 0;
    b->run = run;
    b->ndim = 1;
    b->dim[0].count = (int64_t)(nbytes / run);
    b->dim[0].stride = (int64_t)run + 3;
    if (b->dim[0].count % 2 == 0) { /* two dims, the outer one far */
        b->ndim = 2;
        b->dim[1] = b->dim[0];
        b->dim[1].count /= 2;
        b->dim[0].count = 2;
        b->dim[0].stride = b->dim[1].count * b->dim[1].stride + 64;
    }
    return 1;
}

static size_t law_span(const law_message *m, int side) {
    const mesh_block *b = &m->block[side];
    size_t n = b->run;
    int i;
    if (!m->strided[side]) return (size_t)m->nbytes;
    for (i = 0; i < b->ndim; i++) n += (size_t)((b->dim[i].count - 1) * b->dim[i].stride);
    return n;
}

static void law_fill(law_message *m, int k) {
    mesh_xfer x;
    uint64_t at, run;
    m->room = (law_span(m, 0) > law_span(m, 1) ? law_span(m, 0) : law_span(m, 1)) + 128;
    m->from = (unsigned char *)malloc(m->room);
    m->to = (unsigned char *)malloc(m->room);
    memset(m->from, 0xee, m->room);
    memset(m->to, 0xdd, m->room);
    memset(&x, 0, sizeof x);
    x.base = m->from + 64, x.nbytes = m->nbytes, x.block = m->strided[0] ? &m->block[0] : NULL;
    for (at = 0; at < m->nbytes; at += run) {
        unsigned char *p = (unsigned char *)mesh_xfer_at(&x, at, &run);
        uint64_t i;
        for (i = 0; i < run; i++) p[i] = law_byte(k, at + i);
    }
}

/* Every byte of the message, and none beside it. */
static void law_arrived(const law_message *m, int k) {
    unsigned char *want = (unsigned char *)malloc(m->room);
    mesh_xfer x;
    uint64_t at, run;
    memset(want, 0xdd, m->room);
    memset(&x, 0, sizeof x);
    x.base = want + 64, x.nbytes = m->nbytes, x.block = m->strided[1] ? &m->block[1] : NULL;
    for (at = 0; at < m->nbytes; at += run) {
        unsigned char *p = (unsigned char *)mesh_xfer_at(&x, at, &run);
        uint64_t i;
        for (i = 0; i < run; i++) p[i] = law_byte(k, at + i);
    }
    if (memcmp(want, m->to, m->room))
        test_fail(__FILE__, __LINE__, "message %d of %d bytes%s%s: what came is not what was sent", k, (int)m->nbytes,
                  m->strided[0] ? ", sent strided" : "", m->strided[1] ? ", received strided" : "");
    free(want);
}

static void law_start(law_message *m, int side, int a, int b) {
    mesh_block gone = m->block[side]; /* the description may go when post returns */
    law_post(side ? b : a, side ? MESH_RECV : MESH_SEND, side ? a : b, (side ? m->to : m->from) + 64, m->nbytes,
             m->strided[side] ? &gone : NULL, m->channel, &m->ticket[side]);
    memset(&gone, 0xff, sizeof gone);
}

static int law_look(law_message *m, int side, int rank, mesh_status *status) {
    mesh_error why;
    if (m->ended[side]) return 1;
    *status = law_test(rank, &m->ticket[side], &why);
    m->ended[side] = *status != MESH_IN_PROGRESS;
    return m->ended[side];
}

/* Messages from a to b: sends and receives are posted at random, in order on each side of a channel. */
static void law_messages(int a, int b, int count, uint64_t salt) {
    test_random rng = random_from(salt);
    int next[2] = {0, 0}, left = 2 * count, k, side;
    double end = test_now() + 60;
    for (k = 0; k < count; k++) {
        law_message *m = &law_said[k];
        memset(m, 0, sizeof *m);
        m->nbytes = law_sizes[random_below(&rng, k % 8 ? 16 : 19)];
        m->channel = (uint64_t)(1 + random_below(&rng, 3)) << 32;
        for (side = 0; side < 2; side++) m->strided[side] = law_shape(&rng, m->nbytes, &m->block[side]);
        law_fill(m, k);
    }
    while (left && test_now() < end) {
        int steps = random_below(&rng, 4);
        side = random_below(&rng, 2);
        if (next[side] < count && next[side] - next[!side] < 40) law_start(&law_said[next[side]++], side, a, b);
        while (steps-- > 0) law_step(random_below(&rng, 2) ? a : b);
        if (next[0] + next[1] == 2 * count) law_pump();
        for (left = 0, side = 0; side < 2; side++)
            for (k = 0; k < count; k++) {
                mesh_status status = MESH_OK;
                if (k >= next[side] || !law_look(&law_said[k], side, side ? b : a, &status)) left++;
                if (status < 0) test_fail(__FILE__, __LINE__, "message %d: %s", k, mesh_status_text(status));
            }
    }
    if (left) test_fail(__FILE__, __LINE__, "%d messages of %d do not end", left, 2 * count), exit(1);
    for (k = 0; k < count; k++) {
        law_arrived(&law_said[k], k);
        free(law_said[k].from);
        free(law_said[k].to);
    }
}

static void test_messages(int lanes) {
    law_open(3, lanes);
    law_messages(1, 2, LAW_MESSAGES, 1);
    law_balanced(__LINE__);
    law_messages(2, 1, LAW_MESSAGES, 2); /* the credit turns over */
    law_balanced(__LINE__);
    law_messages(1, 0, 40, 3);
    law_balanced(__LINE__);
    law_close();
}
static void test_messages_tcp(void) { test_messages(MESH_SOCKET_TCP); }
static void test_messages_unix(void) { test_messages(MESH_SOCKET_UNIX); }
static void test_messages_shared(void) { test_messages(MESH_SOCKET_AUTO); }

/* The same while the kernel takes and gives little at a time. */
static void test_messages_narrow(void) {
    int k, small = 1;
    law_open(2, MESH_SOCKET_UNIX);
    law_meet(0, 1);
    for (k = 0; k < 2; k++) {
        int fd = law_peer(k, 1 - k)->conn->fd;
        CHECK_INT(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    }
    law_messages(0, 1, 60, 4);
    law_balanced(__LINE__);
    law_close();
}

/* One rank says much before the other listens: what is written in part stays in order, in a buffer that grows and moves. */
static void test_burst(void) {
    test_random rng = random_from(9);
    int round, k, small = 1, count;
    law_open(2, MESH_SOCKET_UNIX);
    law_meet(0, 1);
    setsockopt(law_peer(0, 1)->conn->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    for (round = 0; round < 12; round++) {
        uint64_t sum = 0;
        for (count = 0; count < LAW_MESSAGES && sum < MESH_SOCKET__CREDIT / 4 * 3; count++) {
            law_message *m = &law_said[count];
            memset(m, 0, sizeof *m);
            m->nbytes = (uint64_t)random_below(&rng, round % 2 ? 16384 : 4096);
            m->channel = 5;
            sum += m->nbytes + MESH_SOCKET__HEADER;
            law_fill(m, count);
            law_start(m, 0, 0, 1);
            if (random_below(&rng, 3) == 0) law_step(1);
            if (random_below(&rng, 3) == 0) law_step(0);
        }
        for (k = 0; k < count; k++) {
            law_start(&law_said[k], 1, 0, 1);
            CHECK_INT(law_ended(1, &law_said[k].ticket[1]), MESH_OK);
            CHECK_INT(law_ended(0, &law_said[k].ticket[0]), MESH_OK);
            law_arrived(&law_said[k], k);
            free(law_said[k].from), free(law_said[k].to);
        }
        law_balanced(__LINE__);
    }
    law_close();
}

/* Beyond 4 GiB a frame says where it is, too. */
static void test_far(void) {
    mesh_socket__xfer x;
    mesh_socket__ticket k;
    mesh_socket__conn *c;
    mesh_socket__impl *s;
    law_open(2, MESH_SOCKET_UNIX);
    law_meet(0, 1);
    s = law_impl(0), c = law_peer(0, 1)->conn;
    memset(&x, 0, sizeof x), memset(&k, 0, sizeof k);
    x.x.rank = 1, x.x.nbytes = (UINT64_C(9) << 32) + 5, x.x.direction = MESH_SEND;
    x.remote = 77, x.ticket = &k;
    for (x.moved = 3; x.moved < x.x.nbytes; x.moved += UINT64_C(3) << 31) {
        mesh_socket__list_add(&law_peer(0, 1)->streaming, &x);
        CHECK_INT(mesh_socket__next_frame(s, c), 1);
        CHECK_INT(mesh__get32(c->head), MESH_SOCKET__F_DATA);
        CHECK_INT(mesh__get32(c->head + 4),
                  x.x.nbytes - x.moved < MESH_SOCKET__CHUNK ? x.x.nbytes - x.moved : MESH_SOCKET__CHUNK);
        CHECK_INT(mesh__get64(c->head + 24), 77);
        CHECK_INT(mesh__get64(c->head + 32), x.moved);
        c->frame = NULL, c->frame_left = c->head_left = 0;
        mesh_socket__list_remove(&law_peer(0, 1)->streaming, &x);
    }
    law_close();
}

/* ---- cancel: each message on a channel of its own; either end, both or none may be canceled, at any moment ---- */

static int law_canceling(law_message *m, int k, int side, int rank, int *stop, int step, mesh_status *how) {
    if (m->ended[side]) return 1;
    if (*stop >= 0 && step >= *stop) {
        law_of(rank)->ops->cancel(law_of(rank), &m->ticket[side]);
        *stop = -2;
    }
    law_look(m, side, rank, how);
    if (*stop == -2 && !m->ended[side]) test_fail(__FILE__, __LINE__, "message %d goes on though it was canceled", k);
    if (side && m->ended[1] && *how != MESH_OK) memset(m->to, 0xcc, m->room); /* it is the caller's again */
    return m->ended[side];
}
static void law_canceled(int round) {
    enum { COUNT = 50 };
    test_random rng = random_from(100 + (uint64_t)round);
    mesh_error why;
    int k, side, step, stop[COUNT][2], rank[2], left = 1;
    mesh_status how[COUNT][2];
    double end = test_now() + 30;
    void *handle[2];
    rank[0] = round % 2, rank[1] = 1 - rank[0];
    for (side = 0; side < 2; side++)
        CHECK_INT(law_of(side)->ops->group_open(law_of(side), NULL, 77 + (uint32_t)round, NULL, 0, 0, INT64_MAX,
                                                &handle[side], &why),
                  MESH_OK);
    for (k = 0; k < COUNT; k++) {
        law_message *m = &law_said[k];
        memset(m, 0, sizeof *m);
        m->nbytes = law_sizes[k % 2 ? 9 + random_below(&rng, 8) : 16]; /* up to 1 MiB */
        if (k % 2 == 0) m->nbytes = 60000 + (uint64_t)random_below(&rng, 100000);
        m->channel = (uint64_t)(77 + round) << 32 | (uint32_t)(k + 1);
        for (side = 0; side < 2; side++) {
            m->strided[side] = law_shape(&rng, m->nbytes, &m->block[side]);
            stop[k][side] = random_below(&rng, 3) ? -1 : 3 * k + random_below(&rng, 60);
            how[k][side] = MESH_IN_PROGRESS;
        }
        law_fill(m, k);
    }
    for (step = 0; step < 3 * COUNT + 100 || (left && test_now() < end); step++) {
        for (k = 0; k < COUNT; k++) /* one side at 3 k, the other a little later */
            for (side = 0; side < 2; side++) {
                int at = 3 * k + (k % 3 == side ? 0 : k % 7);
                if (step == at) law_start(&law_said[k], side, rank[0], rank[1]);
                if (step >= at) law_canceling(&law_said[k], k, side, rank[side], &stop[k][side], step, &how[k][side]);
            }
        law_step(random_below(&rng, 2));
        if (step > 3 * COUNT) law_pump();
        for (left = 0, k = 0; k < COUNT; k++) /* a send whose receive was canceled is not accepted */
            left += !law_said[k].ended[1] || (!law_said[k].ended[0] && stop[k][1] != -2);
    }
    for (k = 0; k < COUNT; k++) {
        law_message *m = &law_said[k];
        size_t i, wrong = 0;
        if (how[k][1] == MESH_OK) law_arrived(m, k);
        for (i = 0; i < m->room && m->ended[1] && how[k][1] != MESH_OK; i++) wrong += m->to[i] != 0xcc;
        if (wrong) test_fail(__FILE__, __LINE__, "message %d: %d bytes were written after the cancel", k, (int)wrong);
        for (side = 0; side < 2; side++) {
            int mine = stop[k][side] == -2, theirs = stop[k][!side] == -2;
            if (how[k][side] != MESH_OK && how[k][side] != MESH_ERR_CANCELED && how[k][side] != MESH_IN_PROGRESS)
                test_fail(__FILE__, __LINE__, "message %d ends with %s", k, mesh_status_text(how[k][side]));
            if (how[k][side] == MESH_IN_PROGRESS && (side || !theirs))
                test_fail(__FILE__, __LINE__, "%s %d hangs", side ? "receive" : "send", k);
            if (how[k][side] == MESH_ERR_CANCELED && !mine && !theirs)
                test_fail(__FILE__, __LINE__, "message %d was canceled by nobody", k);
            if (!m->ended[side]) {
                law_of(rank[side])->ops->cancel(law_of(rank[side]), &m->ticket[side]);
                how[k][side] = law_test(rank[side], &m->ticket[side], &why);
                CHECK(how[k][side] == MESH_ERR_CANCELED || how[k][side] == MESH_OK); /* it may have ended just now */
            }
        }
    }
    for (side = 0; side < 2; side++) CHECK_INT(law_of(side)->ops->group_close(law_of(side), handle[side]), MESH_OK);
    law_balanced(__LINE__);
    for (k = 0; k < COUNT; k++) free(law_said[k].from), free(law_said[k].to);
}
/* A message that is lent is taken back, and its memory used again, before or while it is copied: it is not received. */
static void test_unlent(void) {
    enum { BYTES = 3 << 20 };
    unsigned char *from = (unsigned char *)malloc(BYTES), *to = (unsigned char *)malloc(BYTES);
    mesh_ticket send, receive;
    mesh_error why;
    int when, i;
    law_open(2, MESH_SOCKET_AUTO);
    law_meet(0, 1);
    for (when = 0; when < 2 && MESH_SOCKET__SHARES && law_impl(0)->shared; when++) {
        memset(from, 1, BYTES);
        if (when) law_post(1, MESH_RECV, 0, to, BYTES, NULL, 50 + (uint64_t)when, &receive);
        law_post(0, MESH_SEND, 1, from, BYTES, NULL, 50 + (uint64_t)when, &send);
        for (i = 0; i < 1000 && !(when ? law_impl(1)->pulls != NULL : law_peer(1, 0)->offers > 0); i++) law_step(1);
        CHECK(i < 1000);
        law_of(0)->ops->cancel(law_of(0), &send);
        CHECK_INT(law_test(0, &send, &why), MESH_ERR_CANCELED);
        memset(from, 2, BYTES);
        if (!when) law_post(1, MESH_RECV, 0, to, BYTES, NULL, 50 + (uint64_t)when, &receive);
        CHECK_INT(law_ended(1, &receive), MESH_ERR_CANCELED);
    }
    law_close();
    free(from);
    free(to);
}
static void test_canceled(int lanes) {
    int round, small = 1;
    law_open(2, lanes);
    law_meet(0, 1);
    for (round = 0; round < 2; round++) /* the kernel takes little at a time: cancels meet messages half way */
        setsockopt(law_peer(round, 1 - round)->conn->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    for (round = 0; round < (lanes == MESH_SOCKET_TCP ? 2 : 6); round++) law_canceled(round);
    CHECK(!law_peer(0, 1)->gone && !law_peer(1, 0)->gone);
    law_messages(0, 1, 40, 5); /* the streams are whole */
    law_messages(1, 0, 40, 6);
    law_balanced(__LINE__);
    law_close();
}
static void test_canceled_tcp(void) { test_canceled(MESH_SOCKET_TCP); }
static void test_canceled_unix(void) { test_canceled(MESH_SOCKET_UNIX); }
static void test_canceled_shared(void) { test_canceled(MESH_SOCKET_AUTO); }

/* ---- what goes at once, what waits ---- */

/* A send to a rank that takes no step: is it over at once, or has it been offered? */
static int law_goes_at_once(int from, int to, uint64_t nbytes, const mesh_block *block, void *memory,
                            uint64_t channel) {
    mesh_ticket s, r;
    mesh_error why;
    int before = law_peer(from, to)->noffered, offered;
    mesh_status status;
    law_post(from, MESH_SEND, to, memory, nbytes, block, channel, &s);
    offered = law_peer(from, to)->noffered > before;
    law_post(to, MESH_RECV, from, memory, nbytes, block, channel, &r);
    LAW_UNTIL((status = law_test(from, &s, &why)) != MESH_IN_PROGRESS);
    CHECK_INT(status, MESH_OK);
    CHECK_INT(law_ended(to, &r), MESH_OK);
    return !offered;
}
static void test_at_once(void) {
    static unsigned char memory[300000];
    mesh_block fine, coarse;
    mesh_ticket s[4], r[4];
    mesh_socket__conn *c;
    int i;
    law_open(2, MESH_SOCKET_UNIX);
    law_meet(0, 1);
    CHECK(law_goes_at_once(0, 1, 65536, NULL, memory, 1));
    CHECK(!law_goes_at_once(0, 1, 65537, NULL, memory, 1));
    CHECK(law_goes_at_once(0, 1, 16385, NULL, memory, 1));
    memset(&fine, 0, sizeof fine);
    fine.run = 1000, fine.ndim = 1;
    fine.dim[0].count = 20, fine.dim[0].stride = 1100;
    coarse = fine;
    coarse.run = 1024, coarse.dim[0].stride = 2000; /* straight from the caller's memory: beyond what is copied */
    CHECK(!law_goes_at_once(0, 1, 20000, &fine, memory, 1));
    CHECK(law_goes_at_once(0, 1, 20 * 1024, &coarse, memory, 1));
    fine.dim[0].count = 16;
    CHECK(law_goes_at_once(0, 1, 16000, &fine, memory, 1));
    /* A connection with something before: 16 KiB join the queue, more are offered. */
    c = law_peer(0, 1)->conn;
    i = 1;
    setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &i, sizeof i);
    law_post(0, MESH_SEND, 1, memory, 65536, NULL, 2, &s[0]); /* it does not all go */
    CHECK(c->frame != NULL);
    law_post(0, MESH_SEND, 1, memory, 16384, NULL, 2, &s[1]);
    CHECK_INT(law_peer(0, 1)->noffered, 0);
    law_post(0, MESH_SEND, 1, memory, 16385, NULL, 2, &s[2]);
    CHECK_INT(law_peer(0, 1)->noffered, 1);
    law_post(0, MESH_SEND, 1, memory, 5, NULL, 2, &s[3]);
    law_post(1, MESH_RECV, 0, memory, 65536, NULL, 2, &r[0]);
    law_post(1, MESH_RECV, 0, memory, 16384, NULL, 2, &r[1]);
    law_post(1, MESH_RECV, 0, memory, 16385, NULL, 2, &r[2]);
    law_post(1, MESH_RECV, 0, memory, 5, NULL, 2, &r[3]);
    for (i = 0; i < 4; i++) CHECK_INT(law_ended(1, &r[i]), MESH_OK);
    for (i = 0; i < 4; i++) CHECK_INT(law_ended(0, &s[i]), MESH_OK);
    law_balanced(__LINE__);
    law_close();
}

/* A rank sends what its credit holds, to the last byte, and no more; what is beyond waits as offers. Credit comes back in quarters, and all of it. */
static void test_flow(void) {
    enum { EACH = 16384, FIT = MESH_SOCKET__CREDIT / (EACH + MESH_SOCKET__HEADER), MORE = FIT + 3 };
    static unsigned char memory[EACH];
    static mesh_ticket s[MORE], r[MORE];
    mesh_error why;
    uint64_t left = 0, before;
    int i, round, over;
    law_open(2, MESH_SOCKET_TCP);
    law_meet(0, 1);
    for (round = 0; round < 9; round++) {
        uint64_t start = law_peer(0, 1)->credit;
        int fit = (int)(start / (EACH + MESH_SOCKET__HEADER)), offers = 0;
        for (i = 0, over = 0; i < MORE; i++) {
            law_post(0, MESH_SEND, 1, memory, EACH, NULL, 1, &s[i]);
            over += law_peer(0, 1)->noffered > 0;
        }
        offers = law_peer(0, 1)->noffered;
        CHECK_INT(offers, MORE - fit);
        CHECK_INT(over, MORE - fit);
        left = law_peer(0, 1)->credit;
        CHECK_INT(left, start - (uint64_t)fit * (EACH + MESH_SOCKET__HEADER));
        law_settle();
        for (i = 0, over = 0; i < MORE; i++)
            if (law_test(0, &s[i], &why) == MESH_OK) over++, s[i].impl = NULL;
        CHECK_INT(over, fit);
        for (i = 0; i < MORE; i++) {
            before = law_peer(0, 1)->credit;
            law_post(1, MESH_RECV, 0, memory, EACH, NULL, 1, &r[i]);
            CHECK_INT(law_ended(1, &r[i]), MESH_OK);
            law_pump();
            if (law_peer(0, 1)->credit != before && law_peer(0, 1)->credit - before < MESH_SOCKET__CREDIT / 4)
                test_fail(__FILE__, __LINE__, "%d bytes of credit came by themselves",
                          (int)(law_peer(0, 1)->credit - before));
        }
        for (i = 0; i < MORE; i++)
            if (s[i].impl) CHECK_INT(law_ended(0, &s[i]), MESH_OK);
        law_balanced(__LINE__);
        CHECK(law_peer(0, 1)->credit > MESH_SOCKET__CREDIT / 4 * 3);
    }
    /* The last byte: one message that fits exactly, and one for which not even the header does. */
    left = law_peer(0, 1)->credit;
    for (i = 0; left > 2 * MESH_SOCKET__EAGER; i++) {
        law_post(0, MESH_SEND, 1, memory, EACH, NULL, 3, &s[i]);
        left -= EACH + MESH_SOCKET__HEADER;
    }
    while (left > EACH + MESH_SOCKET__HEADER) {
        uint64_t n = left - MESH_SOCKET__HEADER > EACH ? EACH / 2 : left - MESH_SOCKET__HEADER;
        law_post(0, MESH_SEND, 1, memory, n, NULL, 4, &s[i++]);
        left -= n + MESH_SOCKET__HEADER;
    }
    CHECK_INT(law_peer(0, 1)->credit, left);
    law_post(0, MESH_SEND, 1, memory, left - MESH_SOCKET__HEADER, NULL, 5, &s[i++]);
    CHECK_INT(law_peer(0, 1)->credit, 0);
    CHECK_INT(law_peer(0, 1)->noffered, 0);
    law_post(0, MESH_SEND, 1, memory, 0, NULL, 6, &s[i]);
    CHECK_INT(law_peer(0, 1)->noffered, 1); /* an empty message needs a header's credit */
    law_settle();
    CHECK_INT(law_peer(1, 0)->gone, 0);
    CHECK_INT(law_peer(0, 1)->gone, 0);
    CHECK_INT(law_peer(1, 0)->lent + law_peer(1, 0)->taken, MESH_SOCKET__CREDIT);
    law_post(1, MESH_RECV, 0, memory, 0, NULL, 6, &r[0]);
    CHECK_INT(law_ended(1, &r[0]), MESH_OK);
    CHECK_INT(law_ended(0, &s[i]), MESH_OK);
    law_settle();
    CHECK_INT(law_peer(1, 0)->gone, 0); /* an empty message has no bytes to come */
    law_goes_at_once(1, 0, 100, NULL, memory, 8);
    law_close();
}

/* Offers are limited on both sides, by the same number: a right rank keeps what is more, in order; what was accepted or canceled makes room. */
static void offer_limit(int lanes) {
    enum { MORE = MESH_SOCKET__OFFERS + 5 };
    static mesh_ticket s[MORE], r[MORE], last;
    static unsigned char memory[65537];
    mesh_socket__xfer *x;
    mesh_error why;
    int i, n = 0;
    law_open(2, lanes);
    law_meet(0, 1);
    for (i = 0; i < MORE; i++) law_post(0, MESH_SEND, 1, memory, 65537, NULL, (uint64_t)i << 32, &s[i]);
    CHECK_INT(law_peer(0, 1)->noffered, MESH_SOCKET__OFFERS);
    for (x = law_peer(0, 1)->waiting.head; x; x = x->next) n++;
    CHECK_INT(n, 5);
    LAW_UNTIL(law_peer(1, 0)->offers == MESH_SOCKET__OFFERS);
    law_post(1, MESH_RECV, 0, memory, 65537, NULL, (uint64_t)7 << 32, &r[7]);
    CHECK_INT(law_ended(1, &r[7]), MESH_OK);
    CHECK_INT(law_ended(0, &s[7]), MESH_OK);
    CHECK_INT(law_peer(0, 1)->noffered, MESH_SOCKET__OFFERS); /* one of those that waited has taken its place */
    law_of(0)->ops->cancel(law_of(0), &s[0]);
    law_post(0, MESH_SEND, 1, memory, 3, NULL, (uint64_t)(MORE - 1) << 32,
             &last); /* behind the large one of its channel */
    CHECK(((mesh_socket__ticket *)last.impl)->left == 1);
    for (i = 0; i < MESH_SOCKET__OFFERS; i++)
        if (i != 7) {
            if (i) law_of(0)->ops->cancel(law_of(0), &s[i]);
            CHECK_INT(law_test(0, &s[i], &why), MESH_ERR_CANCELED);
        }
    law_settle();
    CHECK(law_peer(0, 1)->waiting.head == NULL);
    CHECK_INT(law_peer(0, 1)->noffered, 5);
    CHECK_INT(law_peer(1, 0)->gone, 0); /* what was canceled may lie there still: a right rank is not dropped for it */
    for (i = MESH_SOCKET__OFFERS; i < MORE; i++) {
        law_post(1, MESH_RECV, 0, memory, 65537, NULL, (uint64_t)i << 32, &r[i]);
        CHECK_INT(law_ended(1, &r[i]), MESH_OK);
        CHECK_INT(law_ended(0, &s[i]), MESH_OK);
    }
    law_post(1, MESH_RECV, 0, memory, 3, NULL, (uint64_t)(MORE - 1) << 32, &r[0]);
    CHECK_INT(law_ended(1, &r[0]), MESH_OK);
    CHECK_INT(law_ended(0, &last), MESH_OK);
    law_close();
}
static void test_offer_limit(void) {
    offer_limit(MESH_SOCKET_UNIX);
    offer_limit(MESH_SOCKET_AUTO);
}

/* Two large messages to one rank take turns: neither is a frame ahead. Many are served by as many ids as are under way. */
static void test_turns(void) {
    enum { LARGE = 24 << 20 };
    unsigned char *memory = (unsigned char *)calloc(1, LARGE);
    unsigned char *got[2];
    mesh_ticket s[2], r[2];
    mesh_socket__xfer *x[2];
    int i, most = 0, small = 1 << 16;
    law_open(2, MESH_SOCKET_UNIX);
    law_meet(0, 1);
    setsockopt(law_peer(0, 1)->conn->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    for (i = 0; i < 2; i++) {
        got[i] = (unsigned char *)malloc(LARGE);
        law_post(0, MESH_SEND, 1, memory, LARGE, NULL, (uint64_t)(i + 1) << 32, &s[i]);
        law_post(1, MESH_RECV, 0, got[i], LARGE, NULL, (uint64_t)(i + 1) << 32, &r[i]);
        x[i] = ((mesh_socket__ticket *)s[i].impl)->xfer;
    }
    LAW_UNTIL(x[0]->matched && x[1]->matched);
    while (!x[0]->done && !x[1]->done) {
        int ahead = (int)((int64_t)x[0]->moved - (int64_t)x[1]->moved);
        if (abs(ahead) > most) most = abs(ahead);
        law_step(0), law_step(1);
    }
    if (most > 2 * MESH_SOCKET__CHUNK)
        test_fail(__FILE__, __LINE__, "of two messages one is %d KiB ahead of the other", most >> 10);
    for (i = 0; i < 2; i++) {
        CHECK_INT(law_ended(0, &s[i]), MESH_OK);
        CHECK_INT(law_ended(1, &r[i]), MESH_OK);
        free(got[i]);
    }
    CHECK(law_impl(0)->nslots <= 2);
    for (i = 0; i < 50; i++) law_goes_at_once(0, 1, 100000, NULL, memory, 3);
    CHECK(law_impl(0)->nslots <= 2); /* ids are used again */
    CHECK(law_impl(1)->nslots <= 2);
    free(memory);
    law_balanced(__LINE__);
    law_close();
}

/* Messages that do not match end on both sides, at the same place of the order; the texts name both lengths, and what else was unlike. */
static void test_unlike_lengths(void) {
    static const uint64_t sent[] = {100, 100, 100000, 70000, 100000, 0}, expected[] = {90, 110, 70000, 100000, 5, 7};
    static unsigned char memory[100000];
    mesh_ticket s, r;
    mesh_error why;
    mesh_status status = MESH_OK;
    char text[64];
    int i, first;
    law_open(2, MESH_SOCKET_TCP);
    law_meet(0, 1);
    for (first = 0; first < 2; first++)
        for (i = 0; i < 6; i++) {
            if (first) law_post(1, MESH_RECV, 0, memory, expected[i], NULL, 9, &r);
            law_post(0, MESH_SEND, 1, memory, sent[i], NULL, 9, &s);
            if (!first) law_settle();
            if (!first) law_post(1, MESH_RECV, 0, memory, expected[i], NULL, 9, &r);
            LAW_UNTIL((status = law_test(1, &r, &why)) != MESH_IN_PROGRESS);
            CHECK_INT(status, MESH_ERR_MISMATCH);
            CHECK_INT(why.status, MESH_ERR_MISMATCH);
            CHECK_INT(why.rank, 0);
            snprintf(text, sizeof text, "rank 0 sent %d bytes, rank 1 expected %d", (int)sent[i], (int)expected[i]);
            CHECK_HAS(why.text, text);
            LAW_UNTIL((status = law_test(0, &s, &why)) != MESH_IN_PROGRESS);
            if (sent[i] > MESH_SOCKET__EAGER) {
                CHECK_INT(status, MESH_ERR_MISMATCH);
                CHECK_INT(why.rank, 1);
                CHECK_HAS(why.text, text);
            }
            law_balanced(__LINE__);
        }
    law_messages(0, 1, 20, 7);
    law_close();
}

/* ---- pending: who is awaited, once each, within the room that is given ---- */

static void test_right_pending(void) {
    mesh_xfer x[6];
    mesh_post p;
    mesh_ticket t, s;
    char memory[6] = {0}, c = 1;
    int ranks[6] = {-1, -1, -1, -1, -1, -1}, i;
    law_open(4, MESH_SOCKET_AUTO);
    for (i = 1; i < 4; i++) law_meet(i, 0);
    memset(x, 0, sizeof x);
    memset(&p, 0, sizeof p);
    for (i = 0; i < 6; i++) {
        x[i].base = &memory[i], x[i].nbytes = 1, x[i].direction = MESH_RECV;
        x[i].rank = 1 + i / 2;
    }
    p.channel = 5, p.check = 17, p.xfer = x, p.count = 6;
    CHECK_INT(law_of(0)->ops->post(law_of(0), &p, &t), MESH_OK);
    CHECK_INT(law_of(0)->ops->pending(law_of(0), &t, ranks, 6), 3);
    CHECK(ranks[0] == 1 && ranks[1] == 2 && ranks[2] == 3 && ranks[3] == -1);
    memset(ranks, 0xff, sizeof ranks);
    CHECK_INT(law_of(0)->ops->pending(law_of(0), &t, ranks, 2), 3);
    CHECK(ranks[0] == 1 && ranks[1] == 2 && ranks[2] == -1);
    CHECK_INT(law_of(0)->ops->pending(law_of(0), &t, ranks, 0), 3);
    for (i = 0; i < 5; i++) { /* rank 2, rank 1, rank 1, rank 2: who has sent one of two is awaited still */
        static const int from[] = {2, 1, 1, 2, 3}, left[] = {3, 3, 2, 1, 1};
        law_post(from[i], MESH_SEND, 0, &c, 1, NULL, 5, &s);
        CHECK_INT(law_ended(from[i], &s), MESH_OK);
        law_settle();
        CHECK_INT(law_of(0)->ops->pending(law_of(0), &t, ranks, 6), left[i]);
    }
    CHECK_INT(ranks[0], 3);
    law_post(3, MESH_SEND, 0, &c, 1, NULL, 5, &s);
    CHECK_INT(law_ended(0, &t), MESH_OK);
    CHECK_INT(law_ended(3, &s), MESH_OK);
    /* A large message that has met is under way, not awaited, though not a byte of it has come. */
    {
        static char large[1 << 20];
        law_post(0, MESH_RECV, 1, large, sizeof large, NULL, 6, &t);
        CHECK_INT(law_of(0)->ops->pending(law_of(0), &t, ranks, 6), 1);
        law_post(1, MESH_SEND, 0, large, sizeof large, NULL, 6, &s);
        LAW_UNTIL(((mesh_socket__ticket *)t.impl)->xfer->matched);
        CHECK_INT(law_of(0)->ops->pending(law_of(0), &t, ranks, 6), 0);
        CHECK_INT(law_ended(0, &t), MESH_OK);
        CHECK_INT(law_ended(1, &s), MESH_OK);
    }
    law_close();
}

/* ---- control messages: once each, in order, also those from before the connection; only what waits is counted ---- */

static int law_control(int rank, int *kind, int *from, int *value) {
    mesh_control m;
    if (law_of(rank)->ops->control_poll(law_of(rank), &m) != MESH_OK) return 0;
    *kind = m.kind, *from = m.rank;
    *value = 0;
    if (m.nbytes == sizeof *value) memcpy(value, m.data, sizeof *value);
    return 1;
}
static void test_controls_order(void) {
    enum { N = 3 * MESH_SOCKET__CONTROLS };
    char large[MESH_CONTROL_BYTES + 1] = {0};
    int i, kind, from, value, sent = 0, taken = 0;
    mesh_control m;
    mesh_transport *t;
    law_open(3, MESH_SOCKET_AUTO);
    t = law_of(1);
    CHECK(law_peer(1, 2)->conn == NULL);
    for (; sent < 5; sent++) /* they wait for the connection */
        CHECK_INT(t->ops->control_send(t, 2, sent == 3 ? MESH_EVENT_ABORT : MESH_EVENT_MESSAGE, &sent, sizeof sent),
                  MESH_OK);
    CHECK_INT(t->ops->control_flush(t, 0), MESH_IN_PROGRESS); /* still here: it is not done, and says so */
    LAW_UNTIL(law_peer(1, 2)->conn && law_peer(2, 1)->conn);
    CHECK_INT(t->ops->control_flush(t, t->ops->now(t) + SECOND), MESH_OK);
    while (sent < N) {
        for (i = 0; i < 1000 && sent < N; i++, sent++)
            CHECK_INT(t->ops->control_send(t, 2, MESH_EVENT_MESSAGE, &sent, sizeof sent), MESH_OK);
        law_step(2);
        for (i = 0; i < 700 && law_control(2, &kind, &from, &value); i++, taken++) { /* some stay meanwhile */
            if (value != taken || from != 1 || kind != (taken == 3 ? MESH_EVENT_ABORT : MESH_EVENT_MESSAGE))
                test_fail(__FILE__, __LINE__, "control message %d of rank %d, kind %d, where %d was next", value, from,
                          kind, taken),
                    exit(1);
        }
        for (i = 0; sent - taken > MESH_SOCKET__CONTROLS / 2 && i < 100000; i++) {
            law_pump();
            if (!law_control(2, &kind, &from, &value)) continue;
            CHECK_INT(value, taken);
            taken++;
        }
    }
    while (taken < N) {
        LAW_UNTIL(law_control(2, &kind, &from, &value));
        CHECK_INT(value, taken);
        taken++;
    }
    CHECK_INT(law_peer(2, 1)->gone, 0);
    CHECK_INT(law_peer(2, 1)->controls, 0);
    CHECK_INT(t->ops->control_send(t, 1, MESH_EVENT_MESSAGE, &i, sizeof i), MESH_ERR_ARGUMENT);
    CHECK_INT(t->ops->control_send(t, 3, MESH_EVENT_MESSAGE, &i, sizeof i), MESH_ERR_ARGUMENT);
    CHECK_INT(t->ops->control_send(t, -1, MESH_EVENT_MESSAGE, &i, sizeof i), MESH_ERR_ARGUMENT);
    CHECK_INT(t->ops->control_send(t, 2, MESH_EVENT_MESSAGE, large, sizeof large), MESH_ERR_ARGUMENT);
    CHECK_INT(t->ops->control_send(t, 2, MESH_EVENT_MESSAGE, large, sizeof large - 1), MESH_OK);
    LAW_UNTIL(law_of(2)->ops->control_poll(law_of(2), &m) == MESH_OK);
    CHECK_INT(m.nbytes, MESH_CONTROL_BYTES);
    /* Behind bytes that the kernel has no room for: flush says that they have not left. */
    {
        int small = 1;
        setsockopt(law_peer(1, 2)->conn->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        for (i = 0; i < 100; i++) CHECK_INT(t->ops->control_send(t, 2, MESH_EVENT_MESSAGE, large, 1000), MESH_OK);
        CHECK(law_peer(1, 2)->conn->out_len > law_peer(1, 2)->conn->out_at);
        CHECK_INT(t->ops->control_flush(t, t->ops->now(t) + SECOND / 100), MESH_IN_PROGRESS);
        for (i = 0; i < 100; i++) LAW_UNTIL(law_of(2)->ops->control_poll(law_of(2), &m) == MESH_OK);
        CHECK_INT(t->ops->control_flush(t, t->ops->now(t) + SECOND), MESH_OK);
    }
    law_close();
}

/* Who leaves says why first, then goodbye, to those too that it has just begun to reach; they are told that it has closed, not that it is lost. */
static void test_last_words(void) {
    int kind = -1, from = -1, value = 0, last = 42, i;
    law_open(3, MESH_SOCKET_AUTO);
    CHECK_INT(law_of(1)->ops->control_send(law_of(1), 2, MESH_EVENT_ABORT, &last, sizeof last), MESH_OK);
    CHECK(law_peer(1, 2)->conn == NULL);
    CHECK_INT(pthread_create(&law[1].thread, NULL, law_leave, &law[1]), 0);
    for (i = 0; i < 2; i++) {
        double end = test_now() + 10;
        while (!law_control(2, &kind, &from, &value) && test_now() < end) law_step(2), law_step(0);
        CHECK_INT(kind, i ? MESH_EVENT_CLOSED : MESH_EVENT_ABORT);
        CHECK_INT(from, 1);
        if (!i) CHECK_INT(value, 42);
    }
    law_end(1);
    CHECK_INT(law[1].status, MESH_OK);
    for (i = 0; i < 20; i++) law_step(0), law_step(2);
    CHECK_INT(law_control(2, &kind, &from, &value), 0); /* nothing more: its end is no loss */
    CHECK(law_control(0, &kind, &from, &value));
    CHECK_INT(kind, MESH_EVENT_CLOSED);
    CHECK_INT(law_control(0, &kind, &from, &value), 0);
    CHECK_INT(law_of(2)->ops->control_send(law_of(2), 1, MESH_EVENT_MESSAGE, &last, sizeof last), MESH_ERR_PEER);
    CHECK_INT(mesh_socket_close(&law[0].net), MESH_OK);
    CHECK_INT(mesh_socket_close(&law[2].net), MESH_OK);
}

/* ---- groups that are closed: what lies here of them goes, what still comes is dropped, and its credit comes back ---- */

static void test_closed_groups(void) {
    enum { GROUPS = 9 };
    static const uint32_t ids[GROUPS] = {500, 20, 300, 256, 1, 0x80000003u, 65536, 21, 400};
    static const int order[GROUPS] = {8, 0, 7, 3, 2, 6, 1, 5, 4}; /* the last that lies here is the first to go */
    static unsigned char memory[70000];
    mesh_ticket s, r;
    mesh_error why;
    void *handle[GROUPS];
    int i, k, lie;
    law_open(2, MESH_SOCKET_UNIX);
    law_meet(0, 1);
    for (i = 0; i < GROUPS; i++)
        CHECK_INT(law_of(1)->ops->group_open(law_of(1), NULL, ids[i], NULL, 0, 0, INT64_MAX, &handle[i], &why),
                  MESH_OK);
    for (i = 0; i < GROUPS;
         i++) /* each has messages and an offer here that nobody receives, and one before and after */
        for (k = 0; k < 3; k++) {
            law_post(0, MESH_SEND, 1, memory, k == 1 ? 70000 : 9000, NULL, (uint64_t)ids[i] << 32 | (uint32_t)k, &s);
            if (k != 1) CHECK_INT(law_ended(0, &s), MESH_OK);
        }
    LAW_UNTIL(law_peer(1, 0)->offers == GROUPS && law_peer(1, 0)->lent == 2 * GROUPS * (9000 + MESH_SOCKET__HEADER));
    for (i = 0; i < GROUPS; i++) {
        CHECK_INT(law_of(1)->ops->group_close(law_of(1), handle[order[i]]), MESH_OK);
        CHECK_INT(law_peer(1, 0)->offers, GROUPS - 1 - i);
        CHECK_INT(law_peer(1, 0)->lent, 2 * (GROUPS - 1 - i) * (9000 + MESH_SOCKET__HEADER));
        for (k = 0; k <= i; k++) { /* late ones, of every group that is closed; and of one that is not */
            law_post(0, MESH_SEND, 1, memory, 100, NULL, (uint64_t)ids[order[k]] << 32, &s);
            CHECK_INT(law_ended(0, &s), MESH_OK);
        }
        law_post(0, MESH_SEND, 1, memory, 1, NULL, (uint64_t)(ids[order[i]] + 1000) << 32 | ids[order[i]], &s);
        law_post(1, MESH_RECV, 0, memory, 1, NULL, (uint64_t)(ids[order[i]] + 1000) << 32 | ids[order[i]], &r);
        CHECK_INT(law_ended(0, &s), MESH_OK);
        CHECK_INT(law_ended(1, &r), MESH_OK);
        LAW_UNTIL(law_peer(0, 1)->credit + law_peer(1, 0)->taken + law_peer(1, 0)->lent == MESH_SOCKET__CREDIT);
        CHECK_INT(law_peer(1, 0)->offers, GROUPS - 1 - i);
        for (lie = 0; lie < 2; lie++) { /* what comes next lies where it is found */
            law_post(0, MESH_SEND, 1, memory, 10, NULL, 7, &s);
            LAW_UNTIL(law_peer(1, 0)->early_end && law_peer(1, 0)->early &&
                      (int)law_peer(1, 0)->lent ==
                          2 * (GROUPS - 1 - i) * (9000 + MESH_SOCKET__HEADER) + 10 + MESH_SOCKET__HEADER);
            law_post(1, MESH_RECV, 0, memory, 10, NULL, 7, &r);
            CHECK_INT(law_ended(1, &r), MESH_OK);
            CHECK_INT(law_ended(0, &s), MESH_OK);
        }
    }
    CHECK(law_peer(1, 0)->early == NULL);
    CHECK_INT(law_impl(1)->ndead, GROUPS);
    for (i = 1; i < GROUPS; i++) CHECK(law_impl(1)->dead[i - 1] < law_impl(1)->dead[i]);
    law_close();
}

/* ---- broadcasts and scatters in shared memory: what receivers have not begun their source copies, from the end, when it has its turn ---- */

enum { HELPED_ROOT = 1, HELPED_COUNT = 40 * 65536 + 5 };
static void *helped_group[3];
static int32_t *helped_send, *helped_recv[3];
static mesh_ticket helped_ticket[3];

static mesh_socket__rest *helped_rest(int rank) {
    mesh_socket__handle *g = (mesh_socket__handle *)helped_group[rank];
    return &g->cell[g->index]->rest[g->numbers & 1];
}
static uint32_t helped_done(int rank) { return (uint32_t)MESH_SOCKET__SEE(&helped_rest(rank)->done); }

static void helped_begin(int rank, int kind, size_t count) {
    mesh_call c;
    memset(&c, 0, sizeof c);
    c.kind = kind, c.dtype = MESH_I32, c.elem_bytes = 4, c.root = HELPED_ROOT, c.count = count;
    c.send = rank == HELPED_ROOT ? helped_send : NULL;
    c.recv = kind == MESH_CALL_BROADCAST && rank == HELPED_ROOT ? helped_send : helped_recv[rank];
    c.channel = UINT64_C(77) << 32 | 1, c.check = 5;
    memset(helped_recv[rank], 0x5a, count * 4);
    CHECK_INT(law_of(rank)->ops->collective(law_of(rank), helped_group[rank], &c, &helped_ticket[rank]), MESH_OK);
    law_keep(rank, &helped_ticket[rank]);
}
static void helped_check(int rank, int kind, size_t count) {
    const int32_t *from = kind == MESH_CALL_SCATTER ? helped_send + (size_t)rank * count : helped_send;
    CHECK(!memcmp(helped_recv[rank], from, count * 4));
}
static void test_helped(void) {
    static const int kinds[] = {MESH_CALL_BROADCAST, MESH_CALL_SCATTER};
    mesh_error why;
    mesh m;
    void *p;
    int i, k, kind;
    uint32_t taken = 0;
    unsigned char *view;
    mesh_socket__impl *waits;
    int32_t *own;
    size_t at, count;
    law_open(3, MESH_SOCKET_AUTO);
    if (!MESH_SOCKET__SHARES || !law_impl(0)->shared) {
        law_close();
        return;
    }
    CHECK_OK(mesh_parse(&m, "x=3", 3, &why), why);
    for (i = 0; i < 3; i++) {
        CHECK_INT(law_of(i)->ops->group_open(law_of(i), NULL, 77, &m, 0, i, INT64_MAX, &helped_group[i], &why), MESH_OK);
        CHECK_OK(mesh_alloc(law_of(i), HELPED_COUNT * 4, &p, &why), why);
        helped_recv[i] = (int32_t *)p;
        law_impl(i)->crowded = 1; /* one look at a time, on any machine */
    }
    CHECK_OK(mesh_alloc(law_of(HELPED_ROOT), HELPED_COUNT * 12, &p, &why), why);
    helped_send = (int32_t *)p;
    if (sizeof(void *) < 8 && !mesh_socket__shared_at(law_impl(HELPED_ROOT)->shared, p, HELPED_COUNT * 12)) {
        law_close(); /* a small address space has less to share */
        return;
    }
    for (at = 0; at < (size_t)HELPED_COUNT * 3; at++) helped_send[at] = (int32_t)at * 7;
    /* a source that has no turn is not waited for */
    helped_begin(HELPED_ROOT, MESH_CALL_BROADCAST, HELPED_COUNT);
    CHECK_INT(mesh_socket__copying(law_impl(HELPED_ROOT)), 0); /* nobody copies yet */
    helped_begin(0, MESH_CALL_BROADCAST, HELPED_COUNT);
    helped_begin(2, MESH_CALL_BROADCAST, HELPED_COUNT);
    for (i = 0; i < 3; i += 2) {
        mesh_status status = MESH_IN_PROGRESS;
        for (k = 0; k < 1000 && (status = law_test(i, &helped_ticket[i], &why)) == MESH_IN_PROGRESS; k++) law_step(i);
        CHECK_INT(status, MESH_OK);
        helped_check(i, MESH_CALL_BROADCAST, HELPED_COUNT);
    }
    CHECK_INT(law_ended(HELPED_ROOT, &helped_ticket[HELPED_ROOT]), MESH_OK);
    /* one that has serves each receiver in turn, until nothing is left; then they end */
    for (kind = 0; kind < 2; kind++)
        for (count = HELPED_COUNT; count > HELPED_COUNT - 3; count--) {
            uint32_t chunks = (uint32_t)(kinds[kind] == MESH_CALL_BROADCAST ? (count + 65535) / 65536 : (count + 21844) / 21845);
            for (i = 0; i < 3; i++) helped_begin((HELPED_ROOT + i) % 3, kinds[kind], count);
            law_step(2), law_step(0);
            for (k = 0; k < 100; k++) {
                int ahead = (int)helped_done(0) - (int)helped_done(2);
                CHECK(ahead >= -1 && ahead <= 1);
                law_step(HELPED_ROOT);
            }
            for (i = 0; i < 3; i += 2) {
                uint64_t left = MESH_SOCKET__SEE(&helped_rest(i)->left);
                CHECK_INT((uint32_t)left, left >> 32);
                CHECK_INT(helped_done(i), chunks - (uint32_t)left);
                CHECK(helped_done(i) > 0);
            }
            for (i = 0; i < 3; i++) {
                CHECK_INT(law_ended(i, &helped_ticket[i]), MESH_OK);
                if (i != HELPED_ROOT || kinds[kind] == MESH_CALL_SCATTER) helped_check(i, kinds[kind], count);
            }
        }
    /* who waits for others that copy does not sleep for as long as they may need */
    waits = law_impl(HELPED_ROOT);
    waits->is_pressed = 1, waits->press_at = INT64_MAX; /* nor for a slice */
    waits->long_waits = 1, waits->crowded = 0, waits->sleep_cost = 0, waits->yield_cost = 1000000;
    CHECK_INT(mesh_socket__copying(waits), 0);
    CHECK(!mesh_socket__perseveres(waits, 20, 50001));
    for (count = 100000; count <= HELPED_COUNT; count += HELPED_COUNT - 100000) {
        size_t ns = (count == 100000 ? count * 4 : 2 << 20) / 8;
        for (i = 0; i < 3; i++) helped_begin((HELPED_ROOT + 1 + i) % 3, MESH_CALL_BROADCAST, count);
        CHECK_INT(mesh_socket__copying(waits), ns);
        waits->long_waits = 1, waits->crowded = 0, waits->sleep_cost = 0, waits->yield_cost = 1000000;
        CHECK(mesh_socket__perseveres(waits, 20, 49999 + (int64_t)ns));
        CHECK(!mesh_socket__perseveres(waits, 20, 50000 + (int64_t)ns));
        for (i = 0; i < 3; i++) CHECK_INT(law_ended(i, &helped_ticket[i]), MESH_OK);
    }
    waits->crowded = 1;
    /* what the source has taken is waited for */
    for (i = 0; i < 3; i++) helped_begin((HELPED_ROOT + i) % 3, MESH_CALL_BROADCAST, HELPED_COUNT);
    CHECK_INT(mesh_socket__take_chunk(helped_rest(0), 1, &taken), 1);
    for (k = 0; k < 1000; k++) law_pump();
    CHECK_INT(law_test(0, &helped_ticket[0], &why), MESH_IN_PROGRESS);
    CHECK(helped_recv[0][taken * (size_t)65536] == 0x5a5a5a5a);
    at = (size_t)taken * 65536;
    memcpy(helped_recv[0] + at, helped_send + at, (HELPED_COUNT - at < 65536 ? HELPED_COUNT - at : 65536) * 4);
    MESH_SOCKET__SHOW(&helped_rest(0)->done, MESH_SOCKET__SEE(&helped_rest(0)->done) + 1);
    for (i = 0; i < 3; i++) CHECK_INT(law_ended(i, &helped_ticket[i]), MESH_OK);
    helped_check(0, MESH_CALL_BROADCAST, HELPED_COUNT);
    CHECK_OK(mesh_free(law_of(HELPED_ROOT), p, &why), why);
    /* nobody takes from memory that has to be shown first */
    helped_send = own = (int32_t *)malloc(HELPED_COUNT * 4);
    for (at = 0; at < (size_t)HELPED_COUNT; at++) helped_send[at] = (int32_t)at * 5;
    for (i = 0; i < 3; i++) helped_begin((HELPED_ROOT + i) % 3, MESH_CALL_BROADCAST, HELPED_COUNT);
    for (i = 0; i < 3; i++) {
        CHECK_INT(law_ended(i, &helped_ticket[i]), MESH_OK);
        if (i != HELPED_ROOT) helped_check(i, MESH_CALL_BROADCAST, HELPED_COUNT);
    }
    free(own);
    /* a receiver that gives up: its memory is the program's again */
    CHECK_OK(mesh_alloc(law_of(HELPED_ROOT), HELPED_COUNT * 4, &p, &why), why);
    helped_send = (int32_t *)p;
    for (at = 0; at < (size_t)HELPED_COUNT; at++) helped_send[at] = (int32_t)at;
    for (i = 0; i < 3; i++) helped_begin((HELPED_ROOT + i) % 3, MESH_CALL_BROADCAST, HELPED_COUNT);
    view = law_impl(HELPED_ROOT)->shared->base +
           mesh_socket__shared_at(law_impl(0)->shared, helped_recv[0], HELPED_COUNT * 4);
    CHECK_INT(mesh_socket__take_chunk(helped_rest(0), 1, &taken), 1); /* the source is stopped here */
    CHECK_INT(law_of(0)->ops->cancel(law_of(0), &helped_ticket[0]), MESH_OK);
    CHECK_INT(law_ended(0, &helped_ticket[0]), MESH_ERR_CANCELED);
    CHECK(MESH_SOCKET__SEE(&helped_rest(0)->left) == 0);
    memset(helped_recv[0], 9, HELPED_COUNT * 4);
    memset(view, 8, HELPED_COUNT * 4); /* and goes on */
    for (k = 0; k < 100; k++) law_step(HELPED_ROOT), law_step(2);
    for (at = 0; at < HELPED_COUNT && helped_recv[0][at] == 0x09090909; at++) {}
    CHECK_INT((int)at, HELPED_COUNT);
    law_close();
}

static const test_case sockets_tests[] = {
    {"sockets/messages_tcp", test_messages_tcp, 0},
    {"sockets/messages_unix", test_messages_unix, 0},
    {"sockets/messages_shared", test_messages_shared, 0},
    {"sockets/messages_narrow", test_messages_narrow, 0},
    {"sockets/burst", test_burst, 0},
    {"sockets/far", test_far, 0},
    {"sockets/unlent", test_unlent, 0},
    {"sockets/canceled_tcp", test_canceled_tcp, 0},
    {"sockets/canceled_unix", test_canceled_unix, 0},
    {"sockets/canceled_shared", test_canceled_shared, 0},
    {"sockets/at_once", test_at_once, 0},
    {"sockets/flow", test_flow, 0},
    {"sockets/offer_limit", test_offer_limit, 0},
    {"sockets/turns", test_turns, 0},
    {"sockets/unlike_lengths", test_unlike_lengths, 0},
    {"sockets/pending", test_right_pending, 0},
    {"sockets/controls_order", test_controls_order, 0},
    {"sockets/last_words", test_last_words, 0},
    {"sockets/closed_groups", test_closed_groups, 0},
    {"sockets/helped", test_helped, 0},
};

#endif
