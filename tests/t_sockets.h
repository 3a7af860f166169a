/* Laws of the socket transport for right peers: the ranks of a world live in this one process, and take a step when the test says so. */
#ifndef T_SOCKETS_H
#define T_SOCKETS_H

#include <pthread.h>

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
/* So many that whatever is under way on one host has come. */
static void law_settle(void) {
    int i;
    for (i = 0; i < 200; i++) law_pump();
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
static void test_offer_limit(void) {
    enum { MORE = MESH_SOCKET__OFFERS + 5 };
    static mesh_ticket s[MORE], r[MORE], last;
    static unsigned char memory[65537];
    mesh_socket__xfer *x;
    mesh_error why;
    int i, n = 0;
    law_open(2, MESH_SOCKET_UNIX);
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

/* ---- who connects to whom: both may begin; one connection stands, the same on both sides, and nothing else is left ---- */

static void law_one_connection(int a, int b) {
    const mesh_socket__conn *c = law_peer(a, b)->conn, *d = law_peer(b, a)->conn;
    struct sockaddr_storage one, two;
    socklen_t n = sizeof one, m = sizeof two;
    memset(&one, 0, sizeof one), memset(&two, 0, sizeof two);
    CHECK(c && d && !law_peer(a, b)->coming && !law_peer(b, a)->coming);
    if (!c || !d) return;
    CHECK_INT(c->initiator + d->initiator, 1);
    if (!c->initiator) c = law_peer(b, a)->conn, d = law_peer(a, b)->conn; /* one's own address is the other's peer */
    CHECK_INT(getpeername(c->fd, (struct sockaddr *)&one, &n), 0);
    CHECK_INT(getsockname(d->fd, (struct sockaddr *)&two, &m), 0);
    CHECK(n == m && !memcmp(&one, &two, n));
}
static void law_both_begin(int lanes, uint64_t seed) {
    test_random rng = random_from(seed);
    static const int pairs[3][2] = {{1, 2}, {1, 3}, {2, 3}};
    mesh_ticket s[3][2], r[3][2];
    char out = 3, in[3][2];
    int k, side, i;
    law_open(4, lanes);
    law_settle();
    for (k = 0; k < 3; k++) CHECK(law_peer(pairs[k][0], pairs[k][1])->conn == NULL); /* opened when first used */
    for (k = 0; k < 3; k++)
        for (side = 0; side < 2; side++) {
            law_post(pairs[k][side], MESH_SEND, pairs[k][!side], &out, 1, NULL, 1, &s[k][side]);
            law_post(pairs[k][side], MESH_RECV, pairs[k][!side], &in[k][side], 1, NULL, 1, &r[k][side]);
            for (i = random_below(&rng, 3); i > 0; i--) law_step(random_below(&rng, 4));
        }
    for (i = 0; i < 200; i++) law_step(random_below(&rng, 4));
    for (k = 0; k < 3; k++)
        for (side = 0; side < 2; side++) {
            CHECK_INT(law_ended(pairs[k][side], &s[k][side]), MESH_OK);
            CHECK_INT(law_ended(pairs[k][side], &r[k][side]), MESH_OK);
        }
    law_settle();
    for (k = 0; k < 3; k++) law_one_connection(pairs[k][0], pairs[k][1]);
    for (k = 0; k < 4; k++) CHECK_INT(law_impl(k)->nconns, 3);
    for (k = 0; k < 4; k++)
        for (i = 0; i < law_impl(k)->nconns; i++) CHECK_INT(law_impl(k)->conn[i]->deadline, 0); /* none is on trial */
    law_balanced(__LINE__);
    law_close();
}
static void test_both_begin(void) {
    int i;
    for (i = 0; i < 12; i++) law_both_begin(i % 2 ? MESH_SOCKET_TCP : MESH_SOCKET_AUTO, 50 + (uint64_t)i);
}

/* Who gave way to a connection that does not come begins again; who finds no Unix-domain socket takes TCP; ranks of another host do at once. */
static void test_begin_again(void) {
    mesh_ticket s, r;
    char out = 5, in = 0;
    law_open(4, MESH_SOCKET_AUTO);
    /* 3 believes that 1 is connecting to it. */
    law_impl(1)->peer[3].coming = law_peer(1, 0)->conn; /* 1's claim, so that it turns 3 away */
    law_post(3, MESH_SEND, 1, &out, 1, NULL, 1, &s);
    LAW_UNTIL(law_peer(3, 1)->retry_at);
    law_impl(1)->peer[3].coming = NULL;
    law_post(1, MESH_RECV, 3, &in, 1, NULL, 1, &r);
    law_impl(1)->peer[3].retry_at = 0;
    CHECK_INT(law_ended(3, &s), MESH_OK);
    CHECK_INT(law_ended(1, &r), MESH_OK);
    CHECK_INT(in, 5);
    /* Unix-domain, but its address is gone. */
    law_impl(2)->book[1].token ^= 2;
    law_impl(1)->book[2].token ^= 2;
    law_post(2, MESH_SEND, 1, &out, 1, NULL, 1, &s);
    law_post(1, MESH_RECV, 2, &in, 1, NULL, 1, &r);
    CHECK_INT(law_ended(2, &s), MESH_OK);
    CHECK_INT(law_ended(1, &r), MESH_OK);
    CHECK_INT(law_peer(2, 1)->conn->is_unix, 0);
    /* Another host. */
    law_impl(2)->book[3].host ^= 1;
    law_impl(3)->book[2].host ^= 1;
    law_meet(2, 3);
    CHECK_INT(law_peer(2, 3)->conn->is_unix, 0);
    law_close();
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

/* ---- a rank is lost: everything that needs it ends, whatever state it is in, and nothing else does ---- */

static void law_cut(int a, int b) { /* b's connection ends as if its process had */
    mesh_socket__conn *c = law_peer(b, a)->conn;
    CHECK_INT(shutdown(c->fd, SHUT_RDWR), 0);
}
/* Events of a rank, in order; MESSAGE stands for none. */
static int law_event(int rank, int *about) {
    mesh_control m;
    *about = -1;
    if (law_of(rank)->ops->control_poll(law_of(rank), &m) != MESH_OK) return MESH_EVENT_MESSAGE;
    *about = m.rank;
    return m.kind;
}
static void test_lost(void) {
    enum { LARGE = 4 << 20, MANY = 9 };
    static unsigned char *memory;
    mesh_ticket t[MANY], fine[2], s;
    mesh_error why;
    mesh_status status = MESH_OK;
    int lanes, i, about, small = 1 << 14;
    if (!memory) memory = (unsigned char *)calloc(1, LARGE);
    for (lanes = 0; lanes < 2; lanes++) {
        law_open(3, lanes ? MESH_SOCKET_TCP : MESH_SOCKET_UNIX);
        law_meet(0, 1), law_meet(0, 2), law_meet(1, 2);
        for (i = 0; i < 4; i++) { /* so that large messages are under way for long */
            int fd = (i & 1 ? law_peer(0, 1 + i / 2) : law_peer(1 + i / 2, 0))->conn->fd;
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        }
        law_post(0, MESH_RECV, 1, memory, 10, NULL, 2, &t[0]);    /* not sent */
        law_post(0, MESH_SEND, 1, memory, LARGE, NULL, 3, &t[1]); /* offered */
        law_post(0, MESH_SEND, 1, memory, LARGE, NULL, 4, &t[2]); /* accepted, under way */
        law_post(1, MESH_RECV, 0, memory, LARGE, NULL, 4, &s);
        LAW_UNTIL(((mesh_socket__ticket *)t[2].impl)->xfer->moved > 0);
        law_post(1, MESH_SEND, 0, memory, LARGE, NULL, 5, &s);
        law_post(0, MESH_RECV, 1, memory, LARGE, NULL, 5, &t[3]); /* half read */
        LAW_UNTIL(((mesh_socket__ticket *)t[3].impl)->xfer->moved > 0);
        CHECK(!((mesh_socket__ticket *)t[2].impl)->xfer->done && !((mesh_socket__ticket *)t[3].impl)->xfer->done);
        law_peer(0, 1)->noffered += MESH_SOCKET__OFFERS;
        law_post(0, MESH_SEND, 1, memory, LARGE, NULL, 6, &t[4]); /* waits: no more may be offered */
        CHECK(law_peer(0, 1)->waiting.head != NULL);
        for (i = 5; i < MANY - 1; i++) law_post(0, MESH_RECV, 1, memory, 10, NULL, (uint64_t)i + 10, &t[i]);
        law_post(0, MESH_SEND, 2, memory, LARGE, NULL, 1, &fine[0]); /* with the other: these go on */
        law_post(2, MESH_RECV, 0, memory, LARGE, NULL, 1, &fine[1]);
        LAW_UNTIL(((mesh_socket__ticket *)fine[0].impl)->xfer->moved > 0);
        CHECK(!((mesh_socket__ticket *)fine[0].impl)->xfer->done);
        law_cut(0, 1), law_cut(2, 1);
        LAW_UNTIL(law_peer(0, 1)->gone);
        law_post(0, MESH_SEND, 1, memory, 3, NULL, 90, &t[MANY - 1]); /* and what is asked for later */
        for (i = 0; i < MANY; i++) {
            LAW_UNTIL((status = law_test(0, &t[i], &why)) != MESH_IN_PROGRESS);
            if (status != MESH_ERR_PEER) test_fail(__FILE__, __LINE__, "operation %d: %s", i, mesh_status_text(status));
            CHECK_INT(why.rank, 1);
            CHECK_HAS(why.text, "rank 1 was lost");
        }
        CHECK_INT(law_ended(0, &fine[0]), MESH_OK);
        CHECK_INT(law_ended(2, &fine[1]), MESH_OK);
        CHECK_INT(law_event(0, &about), MESH_EVENT_LOST); /* said once, though rank 2 says it too */
        CHECK_INT(about, 1);
        mesh_socket__frame_send(law_impl(2), law_peer(2, 0)->conn, MESH_SOCKET__F_LOST, 0, 0, 1, 0, "?", 1);
        law_meet(2, 0);
        CHECK_INT(law_event(0, &about), MESH_EVENT_MESSAGE);
        CHECK_INT(law_peer(0, 2)->gone, 0);
        CHECK_INT(law_free_slots(law_impl(0)), law_impl(0)->nslots);
        CHECK(law_peer(0, 1)->conn == NULL);
        CHECK_INT(law_impl(0)->nconns, 1);
        law_meet(0, 2);
        law_close();
    }
}

/* So does a small message of which half has come. */
static void test_half_read(void) {
    unsigned char frame[MESH_SOCKET__HEADER + 400] = {0}, got[1000];
    mesh_socket__conn *c;
    mesh_ticket r;
    int lanes;
    for (lanes = 0; lanes < 2; lanes++) {
        law_open(2, lanes ? MESH_SOCKET_TCP : MESH_SOCKET_UNIX);
        law_meet(0, 1);
        law_post(0, MESH_RECV, 1, got, sizeof got, NULL, 5, &r);
        mesh_socket__header(frame, MESH_SOCKET__F_EAGER, sizeof got, 5, 17, 0, 0);
        c = law_peer(1, 0)->conn;
        CHECK(send(c->fd, frame, sizeof frame, MSG_NOSIGNAL) == (ssize_t)sizeof frame);
        LAW_UNTIL(law_peer(0, 1)->conn->rx_left == sizeof got - 400);
        law_cut(0, 1);
        CHECK_INT(law_ended(0, &r), MESH_ERR_PEER);
        law_close();
    }
}

/* A rank hears of a loss from another: what the lost one has sent before is received first, and the doubt ends when it is said to, once. */
static void test_read_first(void) {
    enum { N = 15 };
    static unsigned char memory[60000];
    mesh_ticket s[N], r, more;
    mesh_control m;
    mesh_error why;
    mesh_status status = MESH_OK;
    int64_t deadline;
    int i;
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    int stranger;
    law_open(4, MESH_SOCKET_AUTO);
    law_meet(0, 1), law_meet(0, 2), law_meet(0, 3);
    CHECK_INT(getsockname(law_impl(0)->tcp_fd, (struct sockaddr *)&at, &length), 0);
    stranger = dial(ntohs(at.sin_port)); /* so that connections are more than are simply read to their end */
    LAW_UNTIL(law_impl(0)->nconns == 4);
    law_post(0, MESH_RECV, 2, memory, 1, NULL, 2, &more);
    mesh_socket__frame_send(law_impl(1), law_peer(1, 0)->conn, MESH_SOCKET__F_LOST, 0, 0, 2, 0, "it fell", 7);
    mesh_socket__flush(law_impl(1), law_peer(1, 0)->conn);
    LAW_UNTIL(law_peer(0, 2)->conn->deadline);
    deadline = law_peer(0, 2)->conn->deadline;
    for (i = 0; i < N; i++) law_post(2, MESH_SEND, 0, memory, 60000, NULL, 1, &s[i]); /* more than one step reads */
    for (i = 0; i < 20; i++) law_step(2);
    mesh_socket__frame_send(law_impl(3), law_peer(3, 0)->conn, MESH_SOCKET__F_LOST, 0, 0, 2, 0, "it fell", 7);
    mesh_socket__flush(law_impl(3), law_peer(3, 0)->conn);
    for (i = 0; i < 20; i++) law_step(3);
    while (mesh_socket__clock() <= deadline)
        test_sleep(0.01);                                /* the doubt is over; what it sent has come, and is not read */
    CHECK_INT(law_peer(0, 2)->conn->deadline, deadline); /* said again, it does not begin again */
    for (i = 0; i < N; i++) {
        law_post(0, MESH_RECV, 2, memory, 60000, NULL, 1, &r);
        CHECK_INT(law_ended(0, &r), MESH_OK);
    }
    LAW_UNTIL((status = law_test(0, &more, &why)) != MESH_IN_PROGRESS);
    CHECK_INT(status, MESH_ERR_PEER);
    CHECK_HAS(why.text, "it fell");
    LAW_UNTIL(law_peer(2, 0)->gone == MESH_EVENT_LOST); /* it lives: it hears that it was given up */
    CHECK_INT(law_of(2)->ops->control_poll(law_of(2), &m), MESH_OK);
    CHECK(m.kind == MESH_EVENT_LOST && m.rank == 0);
    m.data[m.nbytes] = 0;
    CHECK_HAS((const char *)m.data, "it has given this rank up: it fell");
    /* What is said of a rank itself, it does not believe. */
    mesh_socket__frame_send(law_impl(1), law_peer(1, 0)->conn, MESH_SOCKET__F_LOST, 0, 0, 0, 0, "?", 1);
    law_meet(1, 0);
    CHECK_INT(law_peer(0, 0)->gone, 0);
    close(stranger);
    law_close();
}
static void test_doubt_once(void) {
    int64_t first;
    law_open(2, MESH_SOCKET_TCP);
    mesh_socket__doubt(law_peer(0, 1)->conn, "one");
    first = law_peer(0, 1)->conn->deadline;
    while (mesh_socket__clock() <= first - 190000000) {} /* later */
    mesh_socket__doubt(law_peer(0, 1)->conn, "two");
    CHECK_INT(law_peer(0, 1)->conn->deadline, first);
    law_peer(0, 1)->conn->deadline = 0;
    law_close();
}

/* ---- close: what was sent arrives, nothing is left open or allocated ---- */

static int law_live; /* allocations that have not been freed */
static void *law_alloc(void *ctx, size_t n) {
    void *p = malloc(n);
    (void)ctx;
    if (p) __sync_add_and_fetch(&law_live, 1);
    return p;
}
static void law_free(void *ctx, void *p) {
    (void)ctx;
    if (p) __sync_add_and_fetch(&law_live, -1);
    free(p);
}
static void law_counted(int rank, mesh_socket_desc *d) {
    (void)rank;
    d->allocator.alloc = law_alloc;
    d->allocator.free = law_free;
}
static int law_descriptors(void) {
    int fd, n = 0;
    for (fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}
static void test_leaves_nothing(void) {
    static unsigned char memory[60][4000];
    mesh_ticket s[60], r[60];
    mesh_error why;
    int lanes, i, small = 1, before = law_descriptors();
    for (lanes = 0; lanes < 2; lanes++) {
        law_open_as(2, lanes ? MESH_SOCKET_TCP : MESH_SOCKET_UNIX, law_counted);
        law_meet(0, 1);
        setsockopt(law_peer(0, 1)->conn->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        for (i = 0; i < 60; i++) { /* more than the kernel takes */
            memset(memory[i], i + 1, sizeof memory[i]);
            law_post(0, MESH_SEND, 1, memory[i], sizeof memory[i], NULL, (uint64_t)i, &s[i]);
        }
        for (i = 0; i < 60; i++) law_test(0, &s[i], &why); /* what is copied is over */
        CHECK(law_peer(0, 1)->conn->frame || law_peer(0, 1)->conn->out_len > law_peer(0, 1)->conn->out_at);
        CHECK_INT(pthread_create(&law[0].thread, NULL, law_leave, &law[0]), 0); /* it leaves at once */
        for (i = 0; i < 60; i++) {
            static unsigned char got[4000];
            double end = test_now() + 20;
            mesh_status status = MESH_IN_PROGRESS;
            if (i % 5 == 4) continue; /* some are never received: they are freed */
            law_post(1, MESH_RECV, 0, got, sizeof got, NULL, (uint64_t)i, &r[i]);
            while ((status = law_test(1, &r[i], &why)) == MESH_IN_PROGRESS && test_now() < end) law_step(1);
            CHECK_INT(status, MESH_OK);
            CHECK(got[0] == i + 1 && got[3999] == i + 1);
        }
        CHECK_INT(pthread_create(&law[1].thread, NULL, law_leave, &law[1]), 0);
        for (i = 0; i < 2; i++) {
            law_end(i);
            CHECK_INT(law[i].status, MESH_OK);
        }
        CHECK_INT(law_descriptors(), before);
        CHECK_INT(law_live, 0);
    }
}

/* ---- the environment: every launcher's variables, and what comes before what ---- */

/* "A=1 B=x": and nothing else that a launcher, or a user, could have said. */
static void law_environment(const char *text) {
    static const char *const more[] = {
        "MPI_LOCALRANKID", "MPI_LOCALNRANKS",  "PMIX_NAMESPACE", "PMI_JOBID",  "TORCHELASTIC_RUN_ID",
        "MESH_TIMEOUT",    "MESH_SECRET_FILE", "MESH_TUNING",    "MESH_TRACE", "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MESH_OPEN_TIMEOUT"};
    char copy[512], *p, *equals;
    size_t i;
    clear_environment();
    for (i = 0; i < sizeof more / sizeof more[0]; i++) unsetenv(more[i]);
    snprintf(copy, sizeof copy, "%s", text);
    for (p = strtok(copy, " "); p; p = strtok(NULL, " "))
        if ((equals = strchr(p, '=')) != NULL) *equals = 0, setenv(p, equals + 1, 1);
}
typedef struct place_case {
    const char *environment;
    int given; /* of the description: 0 nothing; else rank 2 of 5, local rank 3, and bits: 2 a port, 4 an address */
    int rank, size, local_rank, port;
    const char *address, *error;
} place_case;
static void test_places(void) {
    static const place_case cases[] = {
        {"", 0, 0, 1, -1, 29400, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4", 0, 1, 4, -1, 29400, "127.0.0.1", NULL},
        {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=h MASTER_PORT=1", 0, 0, 1, 0, 1, "h", NULL},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=3 SLURM_PROCID=7 SLURM_NTASKS=9 SLURM_LOCALID=5 SLURM_STEP_ID=0", 0, 1, 4, 3,
         29400, "127.0.0.1", NULL},
        {"OMPI_COMM_WORLD_RANK=6 OMPI_COMM_WORLD_SIZE=7 OMPI_COMM_WORLD_LOCAL_RANK=2 PMI_RANK=1 PMI_SIZE=2 MESH_PORT=1",
         0, 6, 7, 2, 1, "127.0.0.1", NULL},
        {"PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=1 MASTER_PORT=65535", 0, 2, 3, 1, 65535, "127.0.0.1", NULL},
        {"SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_LOCALID=1 SLURM_STEP_ID=4 SLURM_STEP_NODELIST=n[2-3] MESH_PORT=9", 0, 2,
         3, 1, 9, "n2", NULL},
        {"SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_STEP_ID=4 SLURM_STEP_NODELIST=n[2-3] MASTER_ADDR=a MESH_PORT=9", 0, 2, 3,
         -1, 9, "a", NULL},
        {"SLURM_PROCID=2 SLURM_STEP_ID=4", 0, 0, 1, -1, 29400, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 SLURM_STEP_NODELIST=n[2-3]", 0, 1, 4, -1, 29400, "127.0.0.1", NULL},
        {"RANK= WORLD_SIZE= MESH_PORT= MASTER_PORT=3 MASTER_ADDR= PMI_RANK=0 PMI_SIZE=2", 0, 0, 2, -1, 3, "127.0.0.1",
         NULL},
        {"RANK=1 WORLD_SIZE=4 MESH_PORT=65535", 0, 1, 4, -1, 65535, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=100 TORCHELASTIC_USE_AGENT_STORE=True", 0, 1, 4, -1, 101, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=100 TORCHELASTIC_USE_AGENT_STORE=False", 0, 1, 4, -1, 100, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=100 MESH_PORT=7 TORCHELASTIC_USE_AGENT_STORE=True", 0, 1, 4, -1, 7,
         "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 TORCHELASTIC_RUN_ID=none", 0, 1, 4, -1, 29400, "127.0.0.1", NULL},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MESH_PORT=7", 1, 2, 5, 3, 7, "a", NULL},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MESH_PORT=7 MASTER_PORT=8", 1 | 2, 2, 5, 3, 4321, "a", NULL},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MESH_PORT=7", 1 | 4, 2, 5, 3, 7, "given", NULL},
        {"RANK=x WORLD_SIZE=4", 1 | 2 | 4, 2, 5, 3, 4321, "given", NULL},
        {"RANK=2147483647 WORLD_SIZE=4", 0, 0, 0, 0, 0, NULL, "rank 2147483647 of a world of 4 (from RANK)"},
        {"RANK=2147483648 WORLD_SIZE=4", 0, 0, 0, 0, 0, NULL, "RANK is \"2147483648\", which is no number"},
        {"RANK=4294967297 WORLD_SIZE=4", 0, 0, 0, 0, 0, NULL, "RANK is \"4294967297\", which is no number"},
        {"RANK=-1 WORLD_SIZE=4", 0, 0, 0, 0, 0, NULL, "RANK is \"-1\", which is no number"},
        {"RANK=0 WORLD_SIZE=0", 0, 0, 0, 0, 0, NULL, "rank 0 of a world of 0"},
        {"WORLD_SIZE=4 PMI_RANK=1 PMI_SIZE=2", 0, 0, 0, 0, 0, NULL, "WORLD_SIZE is set, but RANK is not"},
        {"OMPI_COMM_WORLD_RANK=1", 0, 0, 0, 0, 0, NULL, "OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not"},
        {"RANK=1 WORLD_SIZE=4 MESH_PORT=0", 0, 0, 0, 0, 0, NULL, "port 0;"},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=0", 0, 0, 0, 0, 0, NULL, "port 0;"},
        {"RANK=1 WORLD_SIZE=4 MESH_PORT=65536", 0, 0, 0, 0, 0, NULL, "port 65536;"},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True", 0, 0, 0, 0, 0, NULL, "port 65536;"},
        {"RANK=1 WORLD_SIZE=4 MESH_PORT=x MASTER_PORT=7", 0, 0, 0, 0, 0, NULL, "MESH_PORT is \"x\""},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=7.", 0, 0, 0, 0, 0, NULL, "MASTER_PORT is \"7.\""},
    };
    size_t i;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const place_case *c = &cases[i];
        int failed = test_failures;
        mesh_socket_desc d = MESH_ZERO;
        mesh_env w;
        mesh_error err;
        mesh_status status;
        if (c->given) d.rank = 2, d.size = 5, d.local_rank = 3;
        if (c->given & 2) d.port = 4321;
        if (c->given & 4) d.address = "given";
        law_environment(c->environment);
        err.text[0] = 0;
        status = mesh_socket__who(&d, &w, &err);
        CHECK_INT(status, c->error ? MESH_ERR_ARGUMENT : MESH_OK);
        if (c->error) {
            CHECK_HAS(err.text, c->error);
        } else {
            CHECK_INT(w.rank, c->rank);
            CHECK_INT(w.size, c->size);
            CHECK_INT(w.local_rank, c->local_rank);
            CHECK_INT(w.port, c->port);
            CHECK_STR(w.address, c->address);
        }
        if (test_failures != failed) test_fail(__FILE__, __LINE__, "with \"%s\"", c->environment);
    }
}

static int law_file(char *path, const char *text, size_t n) {
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    close(fd);
    return fd >= 0;
}
/* A world of one, with this environment: opened, or refused with this text. */
static void law_alone(int line, const char *environment, const mesh_socket_desc *d, const char *error,
                      mesh_socket *net) {
    mesh_error err;
    mesh_status status;
    law_environment(environment);
    err.text[0] = 0;
    status = mesh_socket_open(net, d, &err);
    if (status != (error ? MESH_ERR_ARGUMENT : MESH_OK) || (error && !strstr(err.text, error)))
        test_fail(__FILE__, line, "\"%s\": %s: %s", environment, mesh_status_text(status), err.text);
}
static void test_variables(void) {
    static const int lengths[] = {1, 7, 8, 9, 63, 64, 65, 255};
    mesh_socket_desc d = MESH_ZERO;
    mesh_socket net;
    char empty[] = "/tmp/mesh-law-XXXXXX", full[] = "/tmp/mesh-law-XXXXXX", lines[] = "/tmp/mesh-law-XXXXXX", text[400],
         *long_text = (char *)malloc(16384);
    int64_t before, after;
    size_t i;
    law_alone(__LINE__, "MESH_TIMEOUT=3600", NULL, NULL, &net);
    CHECK_INT(net.base.timeout_ns, INT64_C(3600000000000));
    mesh_socket_close(&net);
    law_alone(__LINE__, "RANK=0 WORLD_SIZE=1 MASTER_ADDR=no.such.host.invalid MESH_LISTEN_FD=0", NULL, NULL,
              &net); /* it needs nobody */
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_TIMEOUT=soon", NULL, "MESH_TIMEOUT is \"soon\"", &net);
    law_alone(__LINE__, "MESH_OPEN_TIMEOUT=soon", NULL, "mesh_socket_open: MESH_OPEN_TIMEOUT is \"soon\"", &net);
    before = mesh_socket__clock();
    law_alone(__LINE__, "MESH_OPEN_TIMEOUT=3600", NULL, NULL, &net);
    after = mesh_socket__clock();
    CHECK(mesh_socket__of(&net.base)->open_deadline - before >= 3600 * SECOND);
    CHECK(mesh_socket__of(&net.base)->open_deadline - after <= 3600 * SECOND);
    CHECK_INT(net.base.timeout_ns, 0);
    mesh_socket_close(&net);
    before = mesh_socket__clock();
    law_alone(__LINE__, "MESH_SOCKET_LANES=tcp", NULL, NULL, &net);
    after = mesh_socket__clock();
    CHECK_INT(mesh_socket__of(&net.base)->lanes, MESH_SOCKET_TCP);
    CHECK(mesh_socket__of(&net.base)->open_deadline - before >= 60 * SECOND);
    CHECK(mesh_socket__of(&net.base)->open_deadline - after <= 60 * SECOND);
    CHECK_INT(net.base.timeout_ns, 0);
    mesh_socket_close(&net);
    d.lanes = MESH_SOCKET_TCP;
    d.open_timeout_ns = 5;
    before = mesh_socket__clock();
    law_alone(__LINE__, "MESH_SOCKET_LANES=auto MESH_OPEN_TIMEOUT=3600", &d, NULL, &net);
    CHECK_INT(mesh_socket__of(&net.base)->lanes, MESH_SOCKET_TCP); /* the description's word comes first */
    CHECK(mesh_socket__of(&net.base)->open_deadline - mesh_socket__clock() <= 5);
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_SOCKET_LANES=auto", NULL, NULL, &net);
    CHECK_INT(mesh_socket__of(&net.base)->lanes, MESH_SOCKET_AUTO);
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_SOCKET_LANES=shm", NULL, "MESH_SOCKET_LANES is \"shm\"", &net);
    /* Secrets: every byte of one, where it is to be found, and what is none. */
    for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memset(text, 'a' + (int)i, sizeof text);
        text[lengths[i]] = 0;
        memset(&d, 0, sizeof d);
        d.secret = text;
        law_alone(__LINE__, "MESH_SECRET=other", &d, NULL, &net);
        CHECK_INT(mesh_socket__of(&net.base)->secret_bytes, lengths[i]);
        CHECK(!memcmp(mesh_socket__of(&net.base)->secret, text, (size_t)lengths[i]));
        mesh_socket_close(&net);
    }
    memset(text, 'b', sizeof text);
    text[256] = 0;
    law_alone(__LINE__, "", &d, "the secret has 256 bytes; at most 255", &net);
    d.secret = "";
    law_alone(__LINE__, "MESH_SECRET=other MESH_SECRET_FILE=/nowhere", &d, NULL, &net);
    CHECK_INT(mesh_socket__of(&net.base)->secret_bytes, 0);
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_SECRET=other MESH_SECRET_FILE=/nowhere", NULL, NULL, &net);
    CHECK_INT(mesh_socket__of(&net.base)->secret_bytes, 5);
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_SECRET_FILE=/nowhere", NULL, "MESH_SECRET_FILE names \"/nowhere\"", &net);
    if (law_file(empty, "\r\n\n", 3) && law_file(full, "two words\r\n", 11)) {
        snprintf(text, sizeof text, "MESH_SECRET_FILE=%s", empty);
        law_alone(__LINE__, text, NULL, "it is empty", &net);
        snprintf(text, sizeof text, "MESH_SECRET_FILE=%s", full);
        law_alone(__LINE__, text, NULL, NULL, &net);
        CHECK_INT(mesh_socket__of(&net.base)->secret_bytes, 9);
        mesh_socket_close(&net);
    }
    /* A tuning table is used, whole. */
    memset(long_text, '\n', 16384);
    CHECK(law_file(lines, long_text, 16383));
    snprintf(text, sizeof text, "MESH_TUNING=%s", lines);
    law_alone(__LINE__, text, NULL, "longer than 16 KiB", &net);
    CHECK_INT(truncate(lines, 0), 0);
    law_alone(__LINE__, text, NULL, NULL, &net);
    CHECK(net.base.tuning == &mesh_socket__of(&net.base)->tuning);
    mesh_socket_close(&net);
    law_alone(__LINE__, "MESH_TUNING=/nowhere", NULL, "MESH_TUNING names \"/nowhere\"", &net);
    law_alone(__LINE__, "MESH_TUNING=/", NULL, "MESH_TUNING names \"/\"", &net);
    law_alone(__LINE__, "", NULL, NULL, &net);
    CHECK(net.base.tuning == NULL);
    mesh_socket_close(&net);
    unlink(empty), unlink(full), unlink(lines);
    free(long_text);
    { /* A trace that was closed is whole: an array. */
        char dir[] = "/tmp/mesh-law-XXXXXX", file[64], *last;
        FILE *f;
        size_t n = 0;
        CHECK(mkdtemp(dir) != NULL);
        snprintf(text, sizeof text, "MESH_TRACE=%s", dir);
        law_alone(__LINE__, text, NULL, NULL, &net);
        mesh_socket_close(&net);
        snprintf(file, sizeof file, "%s/rank-0.json", dir);
        if ((f = fopen(file, "r")) != NULL) {
            n = fread(text, 1, sizeof text - 1, f);
            fclose(f);
        }
        text[n] = 0;
        for (last = text + n; last > text && (last[-1] == '\n' || last[-1] == ' ');) *--last = 0;
        CHECK(text[0] == '[' && last > text && last[-1] == ']');
        unlink(file), rmdir(dir);
    }
}

/* Keys of every length, messages of many; Python's hmac says the same. */
static void test_hmac_lengths(void) {
    unsigned char key[256], message[70], mac[32];
    mesh_socket__sha all;
    char text[65];
    int n, i;
    memset(message, 'm', sizeof message);
    mesh_socket__sha_start(&all);
    for (n = 0; n < 256; n++) {
        const void *piece = message;
        size_t nbytes = (size_t)(n % 70);
        for (i = 0; i < n; i++) key[i] = (unsigned char)(i * 7 + n);
        mesh_socket__hmac(key, (size_t)n, &piece, &nbytes, 1, mac);
        mesh_socket__sha_add(&all, mac, 32);
    }
    mesh_socket__sha_end(&all, mac);
    hex(mac, 32, text);
    CHECK_STR(text, "64a25fac34d9a6367ab3a0e6ddedbb1581da07a6a2bdb0da1bf0c9b979d6ad98");
}

/* ---- addresses ---- */

static void test_addresses(void) {
    static const struct {
        const char *text;
        int loopback;
    } pool[] = {{"127.0.0.1", 1},
                {"127.255.0.9", 1},
                {"128.0.0.1", 0},
                {"126.0.0.1", 0},
                {"0.0.0.0", 0},
                {"10.0.0.127", 0},
                {"::1", 1},
                {"::", 0},
                {"::2", 0},
                {"::ffff:127.0.0.1", 1},
                {"::ffff:10.0.0.1", 0},
                {"::ffff:1.127.0.1", 0},
                {"fe80::1", 0},
                {"2001:db8::127", 0}};
    static const char *const loopback[] = {"localhost", "127.0.0.1", "127.9.8.7", "::1"},
                             *const others[] = {"1.127.0.0", "127x.example", "1270.example", "localhost.example", "::2",
                                                "",          "node"};
    test_random rng = random_from(31);
    size_t i;
    int k;
    for (i = 0; i < sizeof pool / sizeof pool[0]; i++) {
        struct sockaddr_storage a;
        memset(&a, 0, sizeof a);
        a.ss_family = strchr(pool[i].text, ':') ? AF_INET6 : AF_INET;
        CHECK_INT(inet_pton(a.ss_family, pool[i].text,
                            a.ss_family == AF_INET ? (void *)&((struct sockaddr_in *)&a)->sin_addr
                                                   : (void *)&((struct sockaddr_in6 *)&a)->sin6_addr),
                  1);
        if (mesh_socket__is_loopback((struct sockaddr *)&a) != pool[i].loopback)
            test_fail(__FILE__, __LINE__, "%s: loopback or not?", pool[i].text);
    }
    for (i = 0; i < 4; i++)
        if (!mesh_socket__names_loopback(loopback[i])) test_fail(__FILE__, __LINE__, "%s is loopback", loopback[i]);
    for (i = 0; i < 7; i++)
        if (mesh_socket__names_loopback(others[i])) test_fail(__FILE__, __LINE__, "%s may be another host", others[i]);
    for (k = 0; k < 50; k++) { /* what the book says of a rank is what was written, and where it is reached */
        mesh_socket__entry e, back;
        unsigned char wire[MESH_SOCKET__ENTRY];
        struct sockaddr_storage a;
        socklen_t length = 0;
        memset(&e, 0, sizeof e), memset(&back, 0, sizeof back);
        for (i = 0; i < 16; i++) e.addr[i] = (unsigned char)random_next(&rng);
        e.port = (uint16_t)random_next(&rng), e.family = k % 2 ? 4 : 6;
        e.host = random_next(&rng), e.token = random_next(&rng), e.cores = random_next(&rng);
        e.process = random_next(&rng), e.scope = (uint32_t)random_next(&rng);
        mesh_socket__entry_write(wire, &e);
        mesh_socket__entry_read(&back, wire);
        CHECK(!memcmp(&e, &back, sizeof e));
        CHECK(wire[16] == (e.port & 255) && wire[17] == e.port >> 8 && wire[24] == (e.host & 255));
        mesh_socket__sockaddr(&e, &a, &length);
        if (e.family == 4) {
            const struct sockaddr_in *in = (struct sockaddr_in *)&a;
            CHECK(length == sizeof *in && in->sin_family == AF_INET && ntohs(in->sin_port) == e.port &&
                  !memcmp(&in->sin_addr, e.addr, 4));
        } else {
            const struct sockaddr_in6 *in = (struct sockaddr_in6 *)&a;
            CHECK(length == sizeof *in && in->sin6_family == AF_INET6 && ntohs(in->sin6_port) == e.port &&
                  !memcmp(&in->sin6_addr, e.addr, 16) && in->sin6_scope_id == e.scope);
        }
    }
}

/* A rank's place on its host, by the launcher's word or by who else is there; ranks that share cores are crowded. */
static void test_neighbours(void) {
    static const uint64_t hosts[4] = {5, 9, 5, 5};
    static const int places[4] = {0, 0, 1, 2};
    mesh_env w;
    uint64_t bits;
    int i, k, cores = mesh_env_cores(&bits);
    law_open(4, MESH_SOCKET_AUTO);
    for (i = 0; i < 4; i++) CHECK_INT(law[i].net.local_rank, 0); /* what the description says */
    memset(&w, 0, sizeof w);
    for (i = 0; i < 4; i++) {
        mesh_socket__entry *book = law_impl(i)->book;
        for (k = 0; k < 4; k++) book[k].host = hosts[k], book[k].cores = bits;
        w.local_rank = -1;
        mesh_socket__neighbours(law_impl(i), &w);
        CHECK_INT(law[i].net.local_rank, places[i]);
        CHECK_INT(law_impl(i)->crowded, (i == 1 ? 1 : 3) > cores ? (3 + cores - 1) / cores : 0);
        w.local_rank = 7;
        mesh_socket__neighbours(law_impl(i), &w);
        CHECK_INT(law[i].net.local_rank, 7);
    }
    law_close();
}

/* The limit of open files is raised as far as is needed and allowed, and never lowered. */
static void test_files(void) {
    struct rlimit limit, now;
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < 400) {
        fprintf(stderr, "    few files are allowed: not tested\n");
        return;
    }
    limit.rlim_cur = 40;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    mesh_socket__raise_files(100);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &now), 0);
    CHECK_INT(now.rlim_cur, 328);
    mesh_socket__raise_files(10);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &now), 0);
    CHECK_INT(now.rlim_cur, 328);
    limit.rlim_cur = limit.rlim_max = 350;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    mesh_socket__raise_files(10000);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &now), 0);
    CHECK_INT(now.rlim_cur, 350);
}

/* ---- opening ---- */

/* What is inherited is a socket that listens, on loopback where there is no secret. */
static void test_inherited(void) {
    mesh_socket_desc d;
    mesh_socket net;
    mesh_error err;
    struct sockaddr_in any;
    int port, fd[2], listener, insecure;
    law_environment("");
    CHECK_INT(pipe(fd), 0);
    d = socket_desc(0, 2, 1, fd[0]);
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "is no listening socket");
    close(fd[0]), close(fd[1]);
    d.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "is no listening socket");
    close(d.listen_fd);
    for (insecure = 0; insecure < 3; insecure++) { /* 2: with a secret */
        memset(&any, 0, sizeof any);
        any.sin_family = AF_INET;
        listener = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(bind(listener, (struct sockaddr *)&any, sizeof any) == 0 && listen(listener, 5) == 0);
        d.listen_fd = listener;
        d.secret = insecure == 2 ? "s" : "";
        d.insecure = insecure == 1;
        d.open_timeout_ns = 1;
        CHECK_INT(mesh_socket_open(&net, &d, &err), insecure ? MESH_ERR_TIMEOUT : MESH_ERR_ARGUMENT);
        if (!insecure) CHECK_HAS(err.text, "beyond loopback, and there is no secret");
        if (!insecure) close(listener);
    }
    listener = listen_loopback(AF_INET, &port); /* loopback needs none */
    d.listen_fd = listener;
    d.secret = "", d.insecure = 0;
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_TIMEOUT);
}

/* A rank that comes before rank 0 does tries again; the port of a connection that has just ended is free for rank 0. Somebody else on this
   host may take it in between: then once more. */
static int comes_first(void) {
    int port, fd = listen_loopback(AF_INET, &port), first, i, on = 1, have = 0;
    char hello[MESH_SOCKET__C1];
    ssize_t n;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* what was accepted has it too */
    law_n = 2;
    for (i = 0; i < 2; i++) {
        law[i].desc = socket_desc(i, 2, port, 0);
        law[i].desc.log = law_quiet;
        law[i].desc.open_timeout_ns = (i ? 3 : 20) * SECOND;
    }
    law_begin(1);
    first = accept(fd, NULL, NULL); /* somebody else, who hangs up */
    CHECK(first >= 0);
    while (have < MESH_SOCKET__C1 && (n = recv(first, hello, sizeof hello, 0)) > 0) have += (int)n;
    close(fd);
    close(first); /* with nothing unread: it lingers */
    law_begin(0);
    for (i = 0; i < 2; i++) law_end(i);
    if (law[0].status == MESH_ERR_TRANSPORT && strstr(law[0].err.text, "cannot listen")) return 0;
    for (i = 0; i < 2; i++) CHECK_OK(law[i].status, law[i].err);
    law_close();
    return 1;
}
static void test_comes_first(void) {
    int i;
    for (i = 0; i < 4; i++)
        if (comes_first()) return;
    test_fail(__FILE__, __LINE__, "rank 0 cannot listen where another connection has just ended: %s", law[0].err.text);
}

/* Ranks that die on the way in: an allocation of this size, for the n-th time, is the last thing that they do; or it fails. */
static size_t fatal_size;
static int fatal_left, fatal_dies;
static void *fatal_alloc(void *ctx, size_t n) {
    (void)ctx;
    if (n == fatal_size && --fatal_left == 0) {
        if (fatal_dies) _exit(0);
        return NULL;
    }
    return malloc(n);
}
static void fatal_free(void *ctx, void *p) {
    (void)ctx;
    free(p);
}
static void fatal_open(int ranks, size_t size, int times, int dies, mesh_status status, const char *want) {
    mesh_error err;
    mesh_socket net;
    int port, fd = listen_loopback(AF_INET, &port), state;
    mesh_socket_desc d = socket_desc(0, ranks, port, fd);
    int64_t deadline;
    pid_t pid;
    d.open_timeout_ns = 10 * SECOND;
    fflush(NULL);
    if ((pid = fork()) == 0) {
        mesh_socket_desc e = socket_desc(1, ranks, port, 0);
        close(fd);
        fatal_size = size, fatal_left = times, fatal_dies = dies;
        e.allocator.alloc = fatal_alloc, e.allocator.free = fatal_free;
        if (mesh_socket_open(&net, &e, &err)) _exit(1);
        mesh_socket_close(&net);
        _exit(0);
    }
    deadline = mesh_socket__clock() + d.open_timeout_ns;
    err.text[0] = 0;
    CHECK_INT(mesh_socket_open(&net, &d, &err), status);
    if (want) CHECK_HAS(err.text, want);
    CHECK(mesh_socket__clock() < deadline); /* who is gone, or stays, is not waited for to the end */
    mesh_socket_close(&net);
    CHECK(test_wait_child(pid, test_now() + 20, &state) && WIFEXITED(state) && WEXITSTATUS(state) == 0);
}
static void test_lost_early(void) {
    fatal_open(3, MESH_SOCKET__RBUF, 1, 1, MESH_ERR_PEER, "rank 1 came and was lost again before all had come");
}
static void test_lost_moving(void) { fatal_open(2, sizeof(mesh_socket__conn), 2, 1, MESH_OK, NULL); }
static void test_stays(void) { fatal_open(2, sizeof(mesh_socket__conn), 2, 0, MESH_OK, NULL); }

/* A book is what rank 0 says while this rank opens, and as long as the world: nothing else is. */
static void test_book_only(void) {
    static const uint64_t length[] = {
        0, 1, MESH_SOCKET__ENTRY, 2 * MESH_SOCKET__ENTRY - 1, 2 * MESH_SOCKET__ENTRY, 3 * MESH_SOCKET__ENTRY};
    mesh_socket__conn c;
    int opening, rank;
    size_t i;
    law_open(2, MESH_SOCKET_UNIX);
    memset(&c, 0, sizeof c);
    for (opening = 0; opening < 2; opening++)
        for (rank = 0; rank < 2; rank++)
            for (i = 0; i < 6; i++) {
                c.rx.type = MESH_SOCKET__F_BOOK, c.rx.length = (uint32_t)length[i];
                c.rank = rank;
                law_impl(1)->in_open = opening;
                CHECK_INT(mesh_socket__frame_valid(law_impl(1), &c), opening && rank == 0 && i == 4);
            }
    law_impl(1)->in_open = 0;
    law_close();
}

/* Ranks that want TCP, and ranks that do not, are one world; nobody waits for a Unix-domain socket that is not there. */
static void some_tcp(int rank, mesh_socket_desc *d) {
    d->lanes = rank % 2 ? MESH_SOCKET_TCP : MESH_SOCKET_AUTO;
    d->open_timeout_ns = 10 * SECOND;
}
static void test_mixed_lanes(void) {
    int64_t deadline = mesh_socket__clock() + 10 * SECOND;
    int a, b;
    law_open_as(4, 0, some_tcp);
    CHECK(mesh_socket__clock() < deadline);
    for (a = 0; a < 4; a++)
        for (b = 0; b < a; b++) {
            law_meet(a, b);
            CHECK_INT(law_peer(a, b)->conn->is_unix, !(a % 2) && !(b % 2));
        }
    law_balanced(__LINE__);
    law_close();
}

/* A connection over TCP: small messages do not wait. To another host, one that falls silent is found within 20 s; on this host nothing is sent
   to find out, for it is never silent to itself. */
static void test_tcp_options(void) {
    mesh_socket__conn *c;
    struct sockaddr_in elsewhere;
    int i, value[5] = {0, 0, 0, 0, 0};
    socklen_t length;
    memset(&elsewhere, 0, sizeof elsewhere);
    elsewhere.sin_family = AF_INET;
    law_open(2, MESH_SOCKET_TCP);
    for (i = 0; i < 2; i++) {
        c = law_peer(i, 1 - i)->conn;
        length = sizeof value[0], getsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &value[0], &length);
        CHECK(value[0] && c->is_near);
        length = sizeof value[1], getsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &value[1], &length);
        CHECK_INT(value[1], 0);
        law_impl(i)->book[1 - i].host ^= 1; /* as if it were elsewhere */
        c->is_near = 0;
        mesh_socket__tune(c->fd, (struct sockaddr *)(void *)&elsewhere);
        mesh_socket__place_known(law_impl(i), c);
        CHECK_INT(c->is_near, 0);
        length = sizeof value[1], getsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &value[1], &length);
        CHECK_INT(value[1], 1);
#if MESH_SOCKET__LINUX
        length = sizeof value[2], getsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &value[2], &length);
        length = sizeof value[3], getsockopt(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, &value[3], &length);
        length = sizeof value[4], getsockopt(c->fd, IPPROTO_TCP, TCP_KEEPCNT, &value[4], &length);
        CHECK(value[2] + value[3] * value[4] <= 20 && value[2] > 0);
#endif
        CHECK(fcntl(c->fd, F_GETFL) & O_NONBLOCK);
    }
    law_close();
}

/* ---- progress, and what a rank does for its own sake ---- */

static void test_progress(void) {
    static unsigned char memory[8000];
    mesh_transport *t;
    mesh_ticket s[6], r[6];
    int64_t deadline, now;
    int i;
    law_open(2, MESH_SOCKET_UNIX);
    law_meet(0, 1);
    law_settle();
    t = law_of(0);
    law_step(0);
    deadline = t->ops->now(t) + SECOND / 50;
    CHECK_INT(t->ops->progress(t, deadline), MESH_OK); /* nothing happens: at the deadline, not before, nor at 2^63 */
    CHECK(t->ops->now(t) >= deadline);
    for (i = 0; i < 6; i++) law_post(1, MESH_SEND, 0, memory, 8000, NULL, 3, &s[i]);
    for (i = 0; i < 6; i++) CHECK_INT(law_ended(1, &s[i]), MESH_OK);
    LAW_UNTIL(law_peer(0, 1)->lent == 6 * (8000 + MESH_SOCKET__HEADER));
    for (i = 0; i < 6; i++) law_post(0, MESH_RECV, 1, memory, 8000, NULL, 3, &r[i]);
    for (i = 0; i < 6; i++) CHECK_INT(law_ended(0, &r[i]), MESH_OK);
    law_settle();
    /* One step takes in all that is there. */
    for (i = 0; i < 6; i++) law_post(1, MESH_SEND, 0, memory, 4000, NULL, 4, &s[i]);
    law_step(0);
    CHECK_INT(law_peer(0, 1)->lent, 6 * (4000 + MESH_SOCKET__HEADER));
    for (i = 0; i < 6; i++) law_post(0, MESH_RECV, 1, memory, 4000, NULL, 4, &r[i]);
    for (i = 0; i < 6; i++) {
        CHECK_INT(law_ended(1, &s[i]), MESH_OK);
        CHECK_INT(law_ended(0, &r[i]), MESH_OK);
    }
    law_settle();
    law_step(0);
    /* A message wakes who sleeps for ever. */
    law_post(1, MESH_SEND, 0, memory, 1, NULL, 5, &s[0]);
    now = t->ops->now(t);
    CHECK_INT(t->ops->progress(t, now + 60 * SECOND), MESH_OK);
    CHECK(t->ops->now(t) < now + 60 * SECOND);
    law_post(0, MESH_RECV, 1, memory, 1, NULL, 5, &r[0]);
    CHECK_INT(law_ended(0, &r[0]), MESH_OK);
    CHECK_INT(law_ended(1, &s[0]), MESH_OK);
    law_balanced(__LINE__);
    law_close();
}

/* What a rank said last is received, though it takes nothing any more, and what is said to it finds nobody. */
static void test_said_last(void) {
    static unsigned char memory[3000], got[3000];
    mesh_ticket s, r, late[3];
    mesh_error why;
    mesh_status status = MESH_OK;
    mesh_control m;
    int i;
    law_open(2, MESH_SOCKET_UNIX);
    law_meet(0, 1);
    memset(memory, 9, sizeof memory);
    law_post(0, MESH_RECV, 1, got, 3000, NULL, 1, &r);
    law_post(1, MESH_SEND, 0, memory, 3000, NULL, 1, &s);
    CHECK_INT(law_of(1)->ops->control_send(law_of(1), 0, MESH_EVENT_ABORT, "why", 3), MESH_OK);
    law_cut(0, 1);
    for (i = 0; i < 3; i++) law_post(0, MESH_SEND, 1, memory, 3000, NULL, 2, &late[i]);
    CHECK_INT(law_ended(0, &r), MESH_OK);
    CHECK(got[2999] == 9);
    LAW_UNTIL(law_of(0)->ops->control_poll(law_of(0), &m) == MESH_OK);
    CHECK_INT(m.kind, MESH_EVENT_ABORT);
    LAW_UNTIL(law_of(0)->ops->control_poll(law_of(0), &m) == MESH_OK);
    CHECK_INT(m.kind, MESH_EVENT_LOST);
    law_post(0, MESH_RECV, 1, got, 1, NULL, 3, &r);
    LAW_UNTIL((status = law_test(0, &r, &why)) != MESH_IN_PROGRESS);
    CHECK_INT(status, MESH_ERR_PEER);
    law_close();
}

#if MESH_SOCKET__LINUX
/* Processes are watched that are another's, on this host, in this namespace; their end is seen, though their connection stays open. */
static void test_watched(void) {
    mesh_socket__impl *s;
    mesh_socket__conn *c;
    mesh_socket__entry *mine, *theirs, kept;
    int what, status, about, before, line[2];
    pid_t pid;
    law_open(2, MESH_SOCKET_UNIX);
    s = law_impl(0);
    c = law_peer(0, 1)->conn;
    mine = &s->book[0], theirs = &s->book[1];
    LAW_UNTIL(s->nconns == 1 && law_impl(1)->nconns == 1); /* the one by which rank 1 joined has ended */
    CHECK_INT(c->process, -1);                             /* it is this process */
    CHECK_INT(pipe(line), 0);
    fflush(NULL);
    if ((pid = fork()) == 0) {
        char byte;
        close(line[1]);
        while (read(line[0], &byte, 1) < 0 && errno == EINTR) {}
        _exit(0);
    }
    theirs->process = mine->process >> 32 << 32 | (uint64_t)(uint32_t)pid;
    mesh_socket__watch(s, c); /* the epoll stays */
    what = (int)syscall(SYS_pidfd_open, (long)pid, 0L);
    if (what >= 0) close(what);
    if (what < 0) {
        CHECK_INT(c->process, -1);
        fprintf(stderr, "    this kernel has no pidfd_open: not tested\n");
    } else {
        CHECK(c->process >= 0);
        before = law_descriptors();
        mesh_socket__unwatch(s, c);
        CHECK_INT(law_descriptors(), before - 1);
        for (what = 0; what < 3; what++) {
            kept = *theirs;
            if (what == 0) theirs->host ^= 1;
            if (what == 1) theirs->process ^= UINT64_C(1) << 40; /* another namespace's */
            if (what == 2) theirs->process = 0;
            mesh_socket__watch(s, c);
            if (c->process >= 0)
                test_fail(__FILE__, __LINE__, "a process that is none of this host's is watched: %d", what);
            mesh_socket__unwatch(s, c);
            *theirs = kept;
        }
        mesh_socket__watch(s, c);
        CHECK(c->process >= 0);
        close(line[1]);
        LAW_UNTIL(law_peer(0, 1)->gone == MESH_EVENT_LOST);
        CHECK_INT(law_event(0, &about), MESH_EVENT_LOST);
        LAW_UNTIL(law_descriptors() == before - 4); /* the watch, the pipe's end, both ends of the connection */
    }
    if (pid > 0) kill(pid, SIGKILL); /* -1 would be everybody */
    waitpid(pid, &status, 0);
    law_close();
}
#else
static void test_watched(void) {}
#endif

/* A rank that is closed, and whose last bytes a peer does not take, says so at its deadline. */
static void test_close_in_vain(void) {
    static unsigned char memory[16000];
    mesh_ticket s;
    mesh_error why;
    int i, small = 1;
    mesh_comm c;
    mesh m;
    mesh_comm_desc cd = MESH_ZERO;
    law_open(2, MESH_SOCKET_UNIX);
    law_meet(0, 1);
    setsockopt(law_peer(0, 1)->conn->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    CHECK_OK(mesh_parse(&m, "x=1", 1, &why), why);
    cd.timeout_ns = SECOND / 10; /* so long a comm of this transport may wait, and so its close */
    CHECK_OK(mesh_comm_open(&c, law_of(0), &m, &cd, &why), why);
    for (i = 0; i < 30; i++) {
        law_post(0, MESH_SEND, 1, memory, 4000, NULL, 7, &s);
        CHECK_INT(law_test(0, &s, &why), MESH_OK);
    }
    CHECK_INT(mesh_socket_close(&law[0].net), MESH_ERR_TIMEOUT);
    CHECK(law[0].net.impl == NULL);
    mesh_socket_close(&law[1].net);
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
    {"sockets/both_begin", test_both_begin, 0},
    {"sockets/begin_again", test_begin_again, 0},
    {"sockets/closed_groups", test_closed_groups, 0},
    {"sockets/lost", test_lost, 0},
    {"sockets/half_read", test_half_read, 0},
    {"sockets/read_first", test_read_first, 0},
    {"sockets/doubt_once", test_doubt_once, 0},
    {"sockets/leaves_nothing", test_leaves_nothing, 0},
    {"sockets/places", test_places, 0},
    {"sockets/variables", test_variables, 0},
    {"sockets/hmac_lengths", test_hmac_lengths, 0},
    {"sockets/addresses", test_addresses, 0},
    {"sockets/neighbours", test_neighbours, 0},
    {"sockets/files", test_files, 0},
    {"sockets/inherited", test_inherited, 0},
    {"sockets/comes_first", test_comes_first, 0},
    {"sockets/lost_early", test_lost_early, 0},
    {"sockets/lost_moving", test_lost_moving, 0},
    {"sockets/stays", test_stays, 0},
    {"sockets/book_only", test_book_only, 0},
    {"sockets/mixed_lanes", test_mixed_lanes, 0},
    {"sockets/tcp_options", test_tcp_options, 0},
    {"sockets/progress", test_progress, 0},
    {"sockets/said_last", test_said_last, 0},
    {"sockets/watched", test_watched, 0},
    {"sockets/close_in_vain", test_close_in_vain, 0},
};

#endif
