/* Large messages out of a rank's own memory that both sides copy: the receiver from the front, the sender from the back through a stage. Uses t_sockets.h's
   ranks, which take a step when a test says so: which side copies what is no matter of time. */
#ifndef T_AIDED_H
#define T_AIDED_H

enum { AIDED_PIECE = MESH_SOCKET__AID_PIECE, AIDED_MOST = 4 << 20 };

typedef struct aided_message {
    unsigned char *from, *to;
    mesh_block block[2]; /* ndim 0: contiguous */
    uint64_t nbytes, channel;
    mesh_ticket ticket[2];
} aided_message;

/* A block of nbytes in runs with a gap behind each; 0: contiguous. */
static mesh_block aided_block(uint64_t nbytes, uint64_t run) {
    mesh_block b = MESH_ZERO;
    b.run = run ? run : nbytes;
    b.ndim = run != 0;
    b.dim[0].count = run ? (int64_t)(nbytes / run) : 1;
    b.dim[0].stride = (int64_t)run + 24;
    return b;
}
static size_t aided_span(const mesh_block *b) {
    return b->ndim ? (size_t)(b->dim[0].count * b->dim[0].stride) : (size_t)b->run;
}
/* Where byte i of the message lies. */
static size_t aided_at(const mesh_block *b, uint64_t i) {
    return b->ndim ? (size_t)(i / b->run) * (size_t)b->dim[0].stride + (size_t)(i % b->run) : (size_t)i;
}
static unsigned char aided_byte(uint64_t channel, uint64_t i) { return (unsigned char)((i * 7 + (i >> 9) + channel) % 251); }

static void aided_send(aided_message *m, uint64_t channel, uint64_t nbytes, uint64_t run) {
    uint64_t i;
    m->channel = channel, m->nbytes = nbytes;
    m->block[0] = aided_block(nbytes, run);
    m->from = (unsigned char *)malloc(aided_span(&m->block[0]));
    for (i = 0; i < nbytes; i++) m->from[aided_at(&m->block[0], i)] = aided_byte(channel, i);
    law_post(0, MESH_SEND, 1, m->from, nbytes, run ? &m->block[0] : NULL, channel, &m->ticket[0]);
}
static void aided_receive(aided_message *m, uint64_t run) {
    m->block[1] = aided_block(m->nbytes, run);
    m->to = (unsigned char *)malloc(aided_span(&m->block[1]));
    memset(m->to, 0xcc, aided_span(&m->block[1]));
    law_post(1, MESH_RECV, 0, m->to, m->nbytes, run ? &m->block[1] : NULL, m->channel, &m->ticket[1]);
}
static void aided_free(aided_message *m) { free(m->from), free(m->to); }
/* It has come, and nothing beside it is written. */
static void aided_right(const aided_message *m) {
    const mesh_block *b = &m->block[1];
    size_t span = aided_span(b), at, wrong = 0;
    uint64_t i = 0;
    for (at = 0; at < span; at++) {
        int inside = i < m->nbytes && aided_at(b, i) == at;
        wrong += m->to[at] != (inside ? aided_byte(m->channel, i) : 0xcc);
        i += (uint64_t)inside;
    }
    if (wrong) test_fail(__FILE__, __LINE__, "%d of %d bytes of message %d are wrong", (int)wrong, (int)span, (int)m->channel);
}

static const mesh_socket__ring *aided_ring(void) {
    return mesh_socket__ring_of(law_impl(0)->shared, law_peer(1, 0)->sharer - 1, law_peer(0, 1)->sharer - 1);
}
static uint32_t aided_pieces(void) { return law_peer(0, 1)->aid_pieces; }
/* A step of the sender's, which has a core to itself, wherever this runs. */
static void aided_step(void) {
    law_impl(0)->crowded = law_impl(0)->on_one_core = 0;
    law_step(0);
}
/* The sender copies until its stage is full, and no further. */
static void aided_fill(void) {
    int i;
    uint32_t before = aided_ring()->taken;
    for (i = 0; i < 200 && aided_pieces() - before < MESH_SOCKET__AID_PIECES; i++) aided_step();
    for (i = 0; i < 20; i++) aided_step();
    CHECK_INT((int)(aided_pieces() - before), MESH_SOCKET__AID_PIECES);
}
/* The receiver has met message m, and its sender knows; nothing is staged. */
static void aided_begin(const aided_message *m) {
    int i;
    for (i = 0; i < 1000 && !law_peer(1, 0)->aided; i++) {
        law_impl(0)->crowded = 1;
        law_step(0), law_step(1);
    }
    CHECK(law_peer(1, 0)->aided && law_peer(1, 0)->aided->left > 0);
    CHECK(!(m->nbytes > MESH_SOCKET__PULL_PIECE) || aided_ring()->message != 0);
}
static int aided_open(void) {
    law_open(2, MESH_SOCKET_AUTO);
    law_meet(0, 1);
    return MESH_SOCKET__SHARES && law_impl(0)->shared && law_impl(1)->shared &&
           MESH_SOCKET__SEE(&mesh_socket__place_of(law_impl(0)->shared, law_peer(0, 1)->sharer - 1)->reads) != 0;
}
static void aided_over(void) {
    CHECK(!law_peer(1, 0)->aided && aided_ring()->message == 0 && !law_impl(1)->pulls);
    law_settle();
    law_balanced(__LINE__);
}

/* Both have copied; contiguous or in runs; a last piece that is short, of one byte, or none. The memory of an ended receive is the program's: what the
   sender does then does not get there. */
static void test_aided_both(void) {
    static const struct {
        uint64_t nbytes, from, to;
    } cases[] = {{3 << 20, 0, 0},
                 {(3 << 20) + 1, 0, 0},
                 {MESH_SOCKET__PULL_PIECE + 1, 0, 0},
                 {51200 * 60, 51200, 0},
                 {51200 * 60, 0, 51200},
                 {51200 * 60, 51200, 10240},
                 {9000 * 300, 9000, 60},
                 {AIDED_MOST - 100, 0, 12}};
    size_t k, i;
    if (aided_open())
        for (k = 0; k < sizeof cases / sizeof *cases; k++) {
            aided_message m;
            size_t span, wrong = 0;
            uint64_t nbytes = cases[k].nbytes - (cases[k].to ? cases[k].nbytes % cases[k].to : 0);
            aided_send(&m, 300 + k, nbytes, cases[k].from);
            aided_receive(&m, cases[k].to);
            aided_begin(&m);
            while (law_peer(1, 0)->aided) {
                if (law_peer(1, 0)->aided->left > MESH_SOCKET__PULL_PIECE) aided_fill();
                for (i = 0; i < 4; i++) aided_step();
                law_step(1);
            }
            CHECK(aided_pieces() > 0 && (nbytes < 2 << 20 || aided_ring()->taken > 0));
            CHECK_INT(law_ended(1, &m.ticket[1]), MESH_OK);
            aided_right(&m);
            span = aided_span(&m.block[1]);
            memset(m.to, 0x33, span);
            for (i = 0; i < 40; i++) aided_step();
            for (i = 0; i < span; i++) wrong += m.to[i] != 0x33;
            CHECK_INT((int)wrong, 0);
            CHECK_INT(law_ended(0, &m.ticket[0]), MESH_OK);
            aided_over();
            aided_free(&m);
        }
    law_close();
}

/* A sender that takes no step costs nothing; nor does one stopped with pieces that it has begun: the receiver waits for none. */
static void test_aided_alone(void) {
    int how, i;
    if (aided_open())
        for (how = 0; how < 2; how++) {
            aided_message m;
            aided_send(&m, 320 + (uint64_t)how, AIDED_MOST - 5, 0);
            aided_receive(&m, 0);
            aided_begin(&m);
            if (how) aided_fill();
            for (i = 0; i < 1000 && law_impl(1)->pulls; i++) law_step(1);
            CHECK(!law_impl(1)->pulls);
            CHECK_INT(law_ended(1, &m.ticket[1]), MESH_OK);
            CHECK_INT((int)aided_ring()->taken, how ? MESH_SOCKET__AID_PIECES : 0);
            aided_right(&m);
            CHECK_INT(law_ended(0, &m.ticket[0]), MESH_OK);
            aided_over();
            aided_free(&m);
        }
    law_close();
}

/* What was staged of a message is not taken for part of the next one, whoever gave the first up; nor is anything written for a receive that was. */
static void test_aided_given_up(void) {
    int side, i;
    mesh_error why;
    if (aided_open())
        for (side = 0; side < 2; side++) {
            aided_message m[2];
            size_t at, wrong = 0;
            for (i = 0; i < 2; i++) aided_send(&m[i], 330 + (uint64_t)(2 * side + i), AIDED_MOST - 77, 0);
            aided_receive(&m[0], 0);
            aided_begin(&m[0]);
            aided_fill();
            law_of(side)->ops->cancel(law_of(side), &m[0].ticket[side]);
            CHECK_INT(law_test(side, &m[0].ticket[side], &why), MESH_ERR_CANCELED);
            if (side) memset(m[0].to, 0x44, AIDED_MOST - 77);
            if (!side) memset(m[0].from, 0x55, AIDED_MOST - 77);
            aided_receive(&m[1], 0);
            for (i = 0; i < 1000 && law_impl(1)->pulls; i++) law_step(1); /* the sender stands still */
            CHECK(!law_impl(1)->pulls);
            CHECK_INT(law_ended(1, &m[1].ticket[1]), MESH_OK);
            aided_right(&m[1]);
            CHECK_INT(law_ended(0, &m[1].ticket[0]), MESH_OK);
            if (!side) CHECK_INT(law_ended(1, &m[0].ticket[1]), MESH_ERR_CANCELED);
            for (i = 0; i < 40; i++) aided_step(), law_step(1);
            for (at = 0; at < AIDED_MOST - 77 && side; at++) wrong += m[0].to[at] != 0x44;
            CHECK_INT((int)wrong, 0);
            if (side) law_ended(0, &m[0].ticket[0]);
            aided_over();
            for (i = 0; i < 2; i++) aided_free(&m[i]);
        }
    law_close();
}

/* Several at once: one after the other, each by both; small ones do not wait for them. */
static void test_aided_turns(void) {
    enum { COUNT = 5 };
    aided_message m[COUNT];
    int i, step;
    uint32_t turn;
    if (aided_open()) {
        turn = aided_ring()->turn;
        for (i = 0; i < COUNT; i++) {
            aided_send(&m[i], 340 + (uint64_t)i, i == COUNT - 1 ? 100000 : (3 << 20) + (uint64_t)i * 1111, 0);
            aided_receive(&m[i], 0);
        }
        aided_begin(&m[0]);
        for (i = 0; i < 2; i++) law_step(1);
        CHECK_INT(law_ended(1, &m[COUNT - 1].ticket[1]), MESH_OK);
        for (step = 0; step < 1000 && law_impl(1)->pulls; step++) {
            for (i = 0; i < 8; i++) aided_step();
            law_step(1);
        }
        CHECK_INT((int)(aided_ring()->turn - turn), COUNT - 1);
        CHECK_INT((int)law_peer(0, 1)->aid_turn, (int)aided_ring()->turn);
        for (i = 0; i < COUNT; i++) {
            if (i < COUNT - 1) CHECK_INT(law_ended(1, &m[i].ticket[1]), MESH_OK);
            CHECK_INT(law_ended(0, &m[i].ticket[0]), MESH_OK);
            aided_right(&m[i]);
            aided_free(&m[i]);
        }
        aided_over();
    }
    law_close();
}

/* Where nothing is to be gained the sender leaves it to the receiver: ranks that share a core, messages that are not large, one that copies itself. And where
   the kernel lets nobody read any more, halfway, it is sent. */
static void test_aided_not(void) {
    int how, i;
    if (aided_open())
        for (how = 0; how < 4; how++) {
            aided_message m;
            uint64_t process = law_impl(1)->book[0].process;
            aided_send(&m, 350 + (uint64_t)how, how == 2 ? 900000 : AIDED_MOST - 3, 0);
            aided_receive(&m, 0);
            if (how != 2) aided_begin(&m);
            if (how == 3) {
                aided_fill();
                law_step(1);
                CHECK(law_peer(1, 0)->aided != NULL);
                law_impl(1)->book[0].process = (process >> 32 << 32) | 0x7ffffff0u; /* nobody's */
            }
            for (i = 0; i < 30 && how < 3; i++) {
                law_impl(0)->crowded = how == 0 ? 2 : 0;
                law_impl(0)->on_one_core = how == 1;
                law_step(0);
                CHECK_INT(how == 2 || law_peer(0, 1)->aid_turn != law_peer(1, 0)->aided_turn, 1);
            }
            CHECK_INT(law_ended(1, &m.ticket[1]), MESH_OK);
            CHECK_INT(law_ended(0, &m.ticket[0]), MESH_OK);
            aided_right(&m);
            law_impl(1)->book[0].process = process;
            aided_over();
            aided_free(&m);
        }
    law_close();
}

/* The sender is killed when it has staged pieces: the receive ends with that. */
static void aided_killed_rank(mesh_transport *t, void *ctx) {
    enum { N = 64 << 20 };
    mesh_socket__impl *s = mesh_socket__of(t);
    unsigned char *a = (unsigned char *)calloc(N, 1);
    mesh_request r;
    mesh_comm c;
    mesh_status status = MESH_IN_PROGRESS;
    (void)ctx;
    if (!a || !open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank) {
        CHECK_OK(mesh_send_start(&c, NULL, 0, a, N, MESH_U8, &r), c.error);
        while (s->shared && mesh_test(r) == MESH_IN_PROGRESS && !s->peer[0].aid_pieces) s->crowded = s->on_one_core = 0;
        CHECK(!s->shared || s->peer[0].aid_pieces > 0);
        kill(getpid(), SIGKILL);
    }
    CHECK_OK(mesh_recv_start(&c, NULL, 1, a, N, MESH_U8, &r), c.error);
    while (s->shared && !s->peer[1].aided && (status = mesh_test(r)) == MESH_IN_PROGRESS) {}
    if (s->shared && status == MESH_IN_PROGRESS && s->pulls) { /* nothing more is read before it is dead */
        struct pollfd end;
        end.fd = s->peer[1].conn->fd;
        end.events = POLLIN;
        while (poll(&end, 1, -1) < 0 || !(end.revents & (POLLHUP | POLLERR))) {}
    }
    if (status == MESH_IN_PROGRESS) status = mesh_wait(r);
    CHECK_INT(status, MESH_ERR_PEER);
    CHECK_INT(c.error.rank, 1);
    CHECK(s->pulls == NULL && s->peer[1].aided == NULL);
    mesh_comm_close(&c);
    free(a);
}
static void test_aided_killed(void) {
    if (MESH_SOCKET__SHARES) run_world_but(SHARED, 2, aided_killed_rank, NULL, 1);
}

/* As it comes: both ways at once, several sizes, runs on either side. */
static void aided_rounds_rank(mesh_transport *t, void *ctx) {
    enum { TIMES = 24, ROOM = AIDED_MOST + (1 << 20) };
    test_random rng = random_from(9);
    unsigned char *a = (unsigned char *)malloc(ROOM), *b = (unsigned char *)malloc(ROOM);
    mesh_comm c;
    int k, n = 0;
    uint64_t i;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    for (k = 0; k < TIMES; k++) {
        uint64_t run = 8192 + (uint64_t)random_below(&rng, 60000), wrong = 0,
                 nbytes = run * ((1 << 20) / run + (uint64_t)random_below(&rng, (3 << 20) / (int)run));
        int ways = random_below(&rng, 3), fine = random_below(&rng, 4); /* there, back, both; bit 0: where it is sent in runs, bit 1: received */
        mesh_block out = aided_block(nbytes, fine & 1 ? run : 0), in = aided_block(nbytes, fine & 2 ? run : 0);
        mesh_xfer x[2];
        for (i = 0; i < nbytes; i++) a[aided_at(&out, i)] = aided_byte((uint64_t)(2 * k + t->rank), i);
        memset(b, 0xcc, ROOM);
        n = 0;
        if (ways == 2 || ways == t->rank) x[n++] = conf_xfer(MESH_SEND, !t->rank, a, nbytes, out.ndim ? &out : NULL);
        if (ways == 2 || ways != t->rank) x[n++] = conf_xfer(MESH_RECV, !t->rank, b, nbytes, in.ndim ? &in : NULL);
        CHECK_OK(mesh_exchange(&c, NULL, x, n), c.error);
        if (ways != 2 && ways == t->rank) continue;
        for (i = 0; i < nbytes; i++) wrong += b[aided_at(&in, i)] != aided_byte((uint64_t)(2 * k + !t->rank), i);
        if (wrong) test_fail(__FILE__, __LINE__, "round %d: %d of %d bytes are wrong", k, (int)wrong, (int)nbytes);
    }
    mesh_comm_close(&c);
    free(a), free(b);
}
static void test_aided_rounds(void) { run_world(SHARED, 2, aided_rounds_rank, NULL); }

/* Wherever in its page a message begins, and wherever it is to go, whole and in runs. */
typedef struct offset_case {
    size_t nbytes;
    int above; /* how much further into its page it is to go than it comes from */
    const char *what;
} offset_case;
static void offset_right(const offset_case *o, int me, const unsigned char *to, const mesh_block *b) {
    size_t i, wrong = to[-1] != 0xcc;
    for (i = 0; i < o->nbytes; i++) wrong += to[aided_at(b, i)] != aided_byte((uint64_t)!me, i);
    wrong += to[aided_at(b, o->nbytes - 1) + 1] != 0xcc;
    if (wrong) test_fail(__FILE__, __LINE__, "%s of %zu bytes, %d further into its page: %zu bytes are wrong", o->what, o->nbytes, o->above, wrong);
}
static void offset_rank(mesh_transport *t, void *ctx) {
    enum { RUN = 16384, ROOM = (1 << 20) + (1 << 14) };
    static const int aboves[] = {0, 1, 16, 31, 32, 33, 48, 100, 2000, 4080, 4095};
    static const size_t lengths[] = {3000, 65536, 300001, (1 << 20) + 77};
    unsigned char *raw = (unsigned char *)malloc(2 * ROOM), *from = raw + (4096 - (uintptr_t)raw % 4096) + 5, *to;
    unsigned char *room = (unsigned char *)malloc(2 * ROOM);
    mesh_comm c;
    int i, k, me = t->rank;
    size_t at;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    for (i = 0; i < (int)(sizeof aboves / sizeof aboves[0]); i++)
        for (k = 0; k < 4; k++) {
            mesh_block whole = aided_block(lengths[k], 0), runs = aided_block(lengths[k] / RUN * RUN, RUN);
            offset_case o;
            mesh_xfer x[2];
            o.above = aboves[i], o.nbytes = lengths[k], o.what = "a message";
            to = room + (4096 - (uintptr_t)room % 4096) + 5 + o.above;
            for (at = 0; at < o.nbytes; at++) from[at] = aided_byte((uint64_t)me, at);
            memset(room, 0xcc, 2 * ROOM);
            CHECK_OK(mesh_sendrecv(&c, "x", !me, from, o.nbytes, !me, to, o.nbytes, MESH_U8), c.error);
            offset_right(&o, me, to, &whole);
            memset(room, 0xcc, 2 * ROOM);
            CHECK_OK(mesh_broadcast(&c, "x", from, to, o.nbytes, MESH_U8, 0), c.error);
            o.what = "a broadcast";
            if (me) offset_right(&o, me, to, &whole);
            memset(room, 0xcc, 2 * ROOM);
            CHECK_OK(mesh_all_gather(&c, "x", from, to, o.nbytes / 2, MESH_U8), c.error);
            o.what = "an all_gather", o.nbytes /= 2;
            for (at = 0; at < o.nbytes; at++)
                if (to[(size_t)!me * o.nbytes + at] != aided_byte((uint64_t)!me, at)) break;
            CHECK(at == o.nbytes && to[2 * o.nbytes] == 0xcc);
            if (lengths[k] < 2 * RUN) continue;
            o.what = "runs", o.nbytes = lengths[k] / RUN * RUN;
            for (at = 0; at < o.nbytes; at++) from[aided_at(&runs, at)] = aided_byte((uint64_t)me, at);
            memset(room, 0xcc, 2 * ROOM);
            x[0] = conf_xfer(MESH_SEND, !me, from, o.nbytes, &runs);
            x[1] = conf_xfer(MESH_RECV, !me, to, o.nbytes, &runs);
            CHECK_OK(mesh_exchange(&c, NULL, x, 2), c.error);
            offset_right(&o, me, to, &runs);
            for (at = 0; at + RUN < o.nbytes; at += RUN) CHECK_INT(to[aided_at(&runs, at) + RUN], 0xcc);
        }
    mesh_comm_close(&c);
    free(raw), free(room);
}
static void test_offsets(void) { run_world(SHARED, 2, offset_rank, NULL); }

static const test_case aided_tests[] = {
    {"shared/offsets", test_offsets, 0},
    {"shared/aided_both", test_aided_both, 0},         {"shared/aided_alone", test_aided_alone, 0},
    {"shared/aided_given_up", test_aided_given_up, 0}, {"shared/aided_turns", test_aided_turns, 0},
    {"shared/aided_not", test_aided_not, 0},           {"shared/aided_killed", test_aided_killed, 0},
    {"shared/aided_rounds", test_aided_rounds, 0},
};
#endif
