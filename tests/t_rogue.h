/* A peer that speaks raw bytes to real ranks of the socket transport, and stays alive: what is refused is told from what died. What it
   writes is made here from the description of the wire, not by the transport's own functions. */
#ifndef T_ROGUE_H
#define T_ROGUE_H

#include "rogue.h"

/* ---- the accepting side ---- */

/* The handshake to the letter, on rank 1 of 3, secret "tests", job 0x1122334455667788; the nonces count up from 0x00 and from 0x80. Python:
     from hmac import digest; from struct import pack
     def mac(role, hello=b""): return digest(b"tests", role + bytes(range(0, 32)) + bytes(range(128, 160)) + hello, "sha256")
     def entry(port, host, token): return bytes([127, 0, 0, 1] + 12 * [0]) + pack("<HHIQQQQQ", port, 4, 0, host, token, 0, 0, 0)
     hello = pack("<iiii", 2, 3, 1, 1) + entry(0x5678, 0x1234, 0) + pack("<Q", 0x1122334455667788)
     print((mac(b"C", hello) + hello).hex(), (mac(b"S") + bytes(8)).hex())
     hello = pack("<iiii", 1, 3, 1, 2) + entry(0x9abc, 0x4321, 0xfedcba9876543210) + pack("<Q", 0x1122334455667788)
     print((mac(b"C", hello) + hello).hex())                                  what rank 1 says where it calls rank 2 */
static const char recorded_magic[] = "4d45534804000d0a";
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
#define OUTSIDE(rank, size) \
    "rank " rank " is given twice, or lies outside a world of " size "; give every process its own RANK"
#define UNLIKE(theirs, ours, me) \
    "rank 2 says the world has " theirs " ranks, rank " me " says " ours "; give every rank the same WORLD_SIZE"
#define ASTRAY(rank, to, me)                                                           \
    "rank " rank " of another job, or on its way to rank " to ", has reached rank " me \
    "; give each job its own port and secret"

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
        case 0:
            rogue_mac("S", k.c1 + 8, k.s1 + 8, NULL, 0, k.c2);
            break; /* the accepting side's own, sent back */
        case 1:
            rogue_mac("S", k.c1 + 8, k.s1 + 8, k.c2 + 32, 88, k.c2);
            break;
        case 2:
            rogue_mac("C", k.s1 + 8, k.c1 + 8, k.c2 + 32, 88, k.c2);
            break;
        case 3:
            rogue_mac("C", k.c1 + 8, nonce, k.c2 + 32, 88, k.c2);
            break;
        case 4:
            rogue_mac("C", nonce, k.s1 + 8, k.c2 + 32, 88, k.c2);
            break;
        case 5:
            rogue_mac("C", k.c1 + 8, k.s1 + 8, NULL, 0, k.c2);
            break;
        case 6:
            memset(k.c2, 0, 32);
            break;
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
        if (version == rogue_magic[4]) continue;
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
    unsigned char head[ROGUE_HEADER], book[4 * 64];
    rogue_talk k, plain, slow, open[3];
    int i;
    setenv("PMIX_NAMESPACE", "the rogue's job", 1);
    rogue_lead(4);
    right.job = mesh_env_job(0);
    CHECK(right.job);
    try_hellos(wrong, sizeof wrong / sizeof wrong[0], 0, right.job);
    try_proofs(0, &right);
    try_pieces(0, &right);
    talk_start(&k, &right); /* a refusal stays one, whatever follows */
    CHECK(talk_greet(&k));
    talk_send(&k, rogue_book, sizeof rogue_book);
    CHECK_STR(talk_finish(&k), "no proof");
    for (i = 0; i < 3; i++) { /* cut off, and kept open until the end: they are in nobody's way */
        talk_start(&open[i], &right);
        if (i) CHECK(talk_greet(&open[i]));
        talk_send(&open[i], i ? open[i].c2 : open[i].c1, i == 0 ? 39 : i == 1 ? 0 : 119);
    }
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
    for (i = 0; i < 3; i++) {           /* those who say nothing more have ten seconds: they pass */
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
    unsigned char got[8], after[120 + ROGUE_HEADER + 8];
    int fd = rogue_join();
    mesh_ticket recv;
    mesh_error why;
    rogue_talk k, second;
    rogue_turn(is_unix);
    right.job = rogue_job;
    try_hellos(wrong, sizeof wrong / sizeof wrong[0], 1, rogue_job);
    right.job = 0; /* no job is not any job, and nobody joins here */
    CHECK_STR(talk_whole(&k, &right), ASTRAY("2", "1", "1"));
    right.kind = HELLO_JOINS;
    CHECK_STR(talk_whole(&k, &right), ASTRAY("2", "1", "1"));
    right.kind = HELLO_CALLS;
    right.job = rogue_job;
    try_proofs(1, &right);
    try_pieces(1, &right);
    talk_start(&k, &right);
    CHECK(talk_greet(&k));
    talk_prove(&k);
    memcpy(after, k.c2, 120);
    rogue_header(after + 120, W_EAGER, 8, ROGUE_CHANNEL(1), ROGUE_CHECK, 0, 0);
    memcpy(after + 120 + ROGUE_HEADER, "at once.", 8);
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

/* Up to its hello. */
static void half_call(rogue_talk *k, int is_unix) {
    rogue_hello right = {ROGUE, 3, HELLO_CALLS, 1, 0};
    rogue_turn(is_unix);
    right.job = rogue_job;
    talk_start(k, &right);
    CHECK(talk_greet(k));
    talk_prove(k);
    talk_send(k, k->c2, 120);
}
/* A rank that calls while it leaves: it hangs up when it has said hello, or has its welcome, and says nothing. It has closed, as far as rank 1
   can know. One that has said something is lost; so is one that rank 1 hears of from rank 0, before it hangs up or after. */
static void half_called(int is_unix, int welcomed, int says) {
    mesh_transport *t;
    double end = test_now() + 20;
    int fd = rogue_join();
    mesh_control m;
    rogue_talk k;
    half_call(&k, is_unix);
    if (welcomed) CHECK_STR(talk_hear(&k), "welcome");
    if (says) rogue_frame(k.fd, W_EAGER, 8, ROGUE_CHANNEL(1), ROGUE_CHECK, 0, "a word..", 8);
    close(k.fd);
    t = honest_of(1);
    memset(&m, 0, sizeof m);
    m.kind = -1;
    while (t->ops->control_poll(t, &m) == MESH_IN_PROGRESS && test_now() < end) rogue_pump();
    CHECK_INT(m.kind, says ? MESH_EVENT_LOST : MESH_EVENT_CLOSED);
    CHECK_INT(m.rank, ROGUE);
    honest_message(__LINE__, 0, 1, 1000);
    close(fd);
    honest_event(__LINE__, 0, MESH_EVENT_LOST, ROGUE, mesh_socket__left);
    if (!says) honest_event(__LINE__, 1, MESH_EVENT_LOST, ROGUE, mesh_socket__left);
    honest_down();
}
static void half_called_lost(int is_unix) {
    mesh_transport *t;
    double end = test_now() + 20;
    int fd = rogue_join();
    mesh_socket__impl *s;
    rogue_talk k;
    half_call(&k, is_unix);
    CHECK_STR(talk_hear(&k), "welcome");
    t = honest_of(1);
    s = mesh_socket__of(t);
    close(fd);
    honest_event(__LINE__, 0, MESH_EVENT_LOST, ROGUE, mesh_socket__left);
    while (s->peer[ROGUE].conn && !s->peer[ROGUE].conn->doubt[0] && test_now() < end) rogue_pump();
    close(k.fd);
    honest_event(__LINE__, 1, MESH_EVENT_LOST, ROGUE, mesh_socket__left);
    honest_down();
}
static void test_half_called(void) {
    int is_unix, i;
    for (is_unix = 0; is_unix < 2; is_unix++) {
        for (i = 0; i < 3; i++) half_called(is_unix, i > 0, i > 1);
        half_called_lost(is_unix);
    }
}

/* What was right in one opening is wrong in the next, to the same port, secret and name: nonces are drawn anew. */
static void test_replay(void) {
    static const rogue_hello right = {1, 2, HELLO_JOINS, 0, 0};
    rogue_talk first, again;
    unsigned char head[ROGUE_HEADER], book[128];
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

/* ---- the dialing side: the rogue is rank 0 of two, and rank 1 joins it ---- */

enum { D_GREET, D_PROOF, D_MAC_BYTE, D_VERDICT, D_CUT, D_STILL };
typedef struct dial_case {
    int what, at;          /* at: a byte, or a length */
    uint32_t flag, length; /* of a verdict */
    const char *want;      /* what rank 1's opening ends with; NULL: it hangs up, comes again, and gets in */
} dial_case;

static const char unproved[] = "it does not know this job's secret; give every rank the same MESH_SECRET";
static const char other_version[] = "it speaks another version of this protocol";
static const char other_protocol[] = "it does not speak this protocol; another program listens there: set another MASTER_PORT";

/* The other side's first word. */
static void dialed_start(rogue_talk *k, int listener) {
    int on = 1;
    memset(k, 0, sizeof *k);
    k->fd = accept(listener, NULL, NULL);
    CHECK(k->fd >= 0 && setsockopt(k->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    CHECK_INT(rogue_read(k->fd, k->c1, 40), 40);
    CHECK(!memcmp(k->c1, rogue_magic, 8));
    memcpy(k->s1, rogue_magic, 8);
    count_up(k->s1 + 8, 3);
}
/* The nonce goes out, and the proof comes: it is right. */
static void dialed_proof(rogue_talk *k) {
    unsigned char mac[32];
    talk_send(k, k->s1, 40);
    CHECK_INT(rogue_read(k->fd, k->c2, 120), 120);
    rogue_mac("C", k->c1 + 8, k->s1 + 8, k->c2 + 32, 88, mac);
    CHECK(!memcmp(mac, k->c2, 32));
    rogue_mac("S", k->c1 + 8, k->s1 + 8, NULL, 0, k->s2);
}
static void dialed_right(rogue_talk *k, int listener) {
    unsigned char book[128];
    dialed_start(k, listener);
    dialed_proof(k);
    CHECK_INT(rogue_number(k->c2 + 32, 4), 1);
    CHECK_INT(rogue_number(k->c2 + 36, 4), 2);
    CHECK_INT(rogue_number(k->c2 + 40, 4), HELLO_JOINS);
    CHECK_INT(rogue_number(k->c2 + 44, 4), 0);
    CHECK(rogue_number(k->c2 + 32 + 80, 8) == mesh_env_job(0));
    talk_send(k, k->s2, 40);
    memset(book, 0, sizeof book);
    memcpy(book + 64, k->c2 + 48, 64);
    rogue_le(book + 56, 12345, 8);
    rogue_frame(k->fd, W_BOOK, 0, 0, 0, 0, book, sizeof book);
}
/* What this case says. Returns with the connection hung up by the other side. */
static void dialed_wrong(rogue_talk *k, int listener, const dial_case *d) {
    char text[4096];
    memset(text, 'n', sizeof text);
    dialed_start(k, listener);
    if (d->what == D_GREET) { /* up to the byte that shows it */
        k->s1[d->at] ^= 4;
        talk_send(k, k->s1, d->at + 1);
    } else if (d->what == D_CUT && d->at < 40) {
        talk_send(k, k->s1, d->at);
        shutdown(k->fd, SHUT_WR);
    } else {
        if (d->what == D_PROOF && d->at == 3) memcpy(k->s1 + 8, k->c1 + 8, 32); /* its own nonce */
        dialed_proof(k);
        if (d->what == D_MAC_BYTE) k->s2[d->at] ^= (unsigned char)(1 << d->at % 8);
        if (d->what == D_PROOF && d->at == 0) memset(k->s2, 0, 32);
        if (d->what == D_PROOF && d->at == 1) rogue_mac("C", k->c1 + 8, k->s1 + 8, NULL, 0, k->s2);
        if (d->what == D_PROOF && d->at == 2) rogue_mac("S", k->s1 + 8, k->c1 + 8, NULL, 0, k->s2);
        if (d->what == D_PROOF && d->at == 3) memcpy(k->s2, k->c2, 32); /* and its own proof */
        if (d->what == D_VERDICT) {
            rogue_le(k->s2 + 32, d->flag, 4);
            rogue_le(k->s2 + 36, d->length, 4);
        }
        talk_send(k, k->s2, d->what == D_CUT ? d->at - 40 : 40);
        if (d->what == D_VERDICT) talk_send(k, text, d->length < sizeof text ? (int)d->length : (int)sizeof text);
        if (d->what == D_CUT) shutdown(k->fd, SHUT_WR);
    }
    if (d->what != D_STILL) CHECK_INT(rogue_drain(k->fd), d->what == D_CUT && d->at >= 80 ? 1 : 0);
    close(k->fd);
}

static void dialed(const dial_case *d) {
    char want[MESH_ERROR_BYTES];
    rogue_talk k;
    rogue_fd = listen_loopback(AF_INET, &rogue_port);
    honest_prepare(1, 1, 2);
    honest_go(1);
    dialed_wrong(&k, rogue_fd, d);
    if (d->want) {
        snprintf(want, sizeof want, "mesh_socket_open: rank 0 at 127.0.0.1 port %d: %s", rogue_port, d->want);
        CHECK_INT(honest_opened(1), MESH_ERR_TRANSPORT);
        CHECK_STR(honest[1].err.text, want);
    } else {
        dialed_right(&k, rogue_fd);
        CHECK_OK(honest_opened(1), honest[1].err);
        close(k.fd);
        honest_down();
    }
    close(rogue_fd);
}

static void test_dialer(void) {
    char most[241];
    dial_case d = {D_GREET, 0, 0, 0, NULL};
    for (d.at = 0; d.at < 8; d.at++) {
        d.want = d.at == 4 ? other_version : other_protocol;
        dialed(&d);
    }
    d.want = unproved;
    for (d.what = D_PROOF, d.at = 0; d.at < 4; d.at++) dialed(&d);
    for (d.what = D_MAC_BYTE, d.at = 0; d.at < 32; d.at++) dialed(&d);
    d.want = NULL;
    for (d.what = D_CUT, d.at = 0; d.at < 80; d.at++) dialed(&d);
    /* A refusal has up to 240 bytes of text. */
    d.what = D_VERDICT;
    d.flag = 1;
    memset(most, 'n', sizeof most);
    for (d.length = 1; d.length <= 240; d.length += 239) {
        most[d.length] = 0;
        d.want = most;
        dialed(&d);
        most[d.length] = 'n';
    }
    d.want = NULL;
    d.length = 0;
    dialed(&d);
    for (d.flag = 0; d.flag < 2; d.flag++) {
        d.length = 241, dialed(&d);
        d.length = 511, dialed(&d);
        d.length = 4096, dialed(&d);
        d.length = INT32_MAX, dialed(&d);
        d.length = UINT32_C(1) << 31, dialed(&d);
        d.length = UINT32_MAX, dialed(&d);
    }
}

/* Silence, and words a byte at a time. */
static void test_dialer_slow(void) {
    int what;
    rogue_talk k;
    for (what = 0; what < 2; what++) {
        rogue_fd = listen_loopback(AF_INET, &rogue_port);
        honest_prepare(1, 1, 2);
        if (!what) honest[1].desc.open_timeout_ns = SECOND / 20;
        honest_go(1);
        if (what) { /* the handshake byte by byte, then the book */
            unsigned char book[128];
            memset(book, 0, sizeof book);
            dialed_start(&k, rogue_fd);
            k.slow = 1;
            dialed_proof(&k);
            talk_send(&k, k.s2, 40);
            rogue_le(book + 56, 12345, 8);
            rogue_frame(k.fd, W_BOOK, 0, 0, 0, 0, book, sizeof book);
            CHECK_OK(honest_opened(1), honest[1].err);
            close(k.fd);
            honest_down();
        } else {
            CHECK_INT(honest_opened(1), MESH_ERR_TIMEOUT);
            CHECK_HAS(honest[1].err.text, "rank 1 cannot reach rank 0 at 127.0.0.1 port");
            CHECK_HAS(honest[1].err.text, "no answer");
        }
        close(rogue_fd);
    }
}

/* What rank 0 may say while the job opens: no book of another length, no second world; and it may give up. */
static void test_book(void) {
    static const char said[] = "mesh_socket_open: rank 2 is on fire";
    int what;
    for (what = 0; what < 4; what++) {
        unsigned char book[3 * 64], head[ROGUE_HEADER];
        rogue_talk k;
        memset(book, 0, sizeof book);
        rogue_fd = listen_loopback(AF_INET, &rogue_port);
        honest_prepare(1, 1, 2);
        honest_go(1);
        dialed_start(&k, rogue_fd);
        dialed_proof(&k);
        talk_send(&k, k.s2, 40);
        if (what == 3) {
            rogue_frame(k.fd, W_GIVEN_UP, 0, 0, (uint64_t)-MESH_ERR_TIMEOUT, 1, said, sizeof said - 1);
        } else {
            rogue_header(head, W_BOOK, what == 0 ? 64 : what == 1 ? 127 : 192, 0, 0, 0, 0);
            rogue_send(k.fd, head, ROGUE_HEADER);
        }
        CHECK_INT(rogue_drain(k.fd), 0);
        close(rogue_fd);
        CHECK_INT(honest_opened(1), what == 3 ? MESH_ERR_TIMEOUT : MESH_ERR_PEER);
        if (what == 3)
            CHECK_STR(honest[1].err.text, said);
        else
            CHECK_HAS(honest[1].err.text, "it sent a frame that cannot be");
        CHECK_INT(honest[1].err.rank, what == 3 ? 1 : 0);
        close(k.fd);
    }
}

/* There is one book, and it is rank 0's. */
static void test_second_book(void) {
    static const rogue_hello right = {ROGUE, 3, HELLO_JOINS, 0, 0};
    unsigned char book[3 * 64] = {0};
    rogue_talk k;
    rogue_fd = listen_loopback(AF_INET, &rogue_port);
    honest_prepare(1, 1, 2);
    honest_go(1);
    dialed_right(&k, rogue_fd);
    CHECK_OK(honest_opened(1), honest[1].err);
    rogue_frame(k.fd, W_BOOK, 0, 0, 0, 0, book, 2 * 64);
    honest_event(__LINE__, 1, MESH_EVENT_LOST, 0, "it sent a frame that cannot be");
    rogue_drain(k.fd);
    close(k.fd);
    close(rogue_fd);
    honest_down();
    rogue_lead(3);
    CHECK_STR(talk_whole(&k, &right), "welcome");
    rogue_frame(k.fd, W_BOOK, 0, 0, 0, 0, book, sizeof book);
    CHECK_INT(rogue_drain(k.fd), 0);
    close(k.fd);
    CHECK_INT(honest_opened(0), MESH_ERR_PEER);
    CHECK_STR(honest[0].err.text, "mesh_socket_open: rank 2 came and was lost again before all had come");
}

/* Rank 1, of a job that is open, calls rank 2. */
static int rogue_listener;
static int rogue_join_listening(void) {
    int fd;
    rogue_listener = listen_loopback(AF_INET, &rogue_own_port);
    fd = rogue_join();
    return fd;
}
/* A connection that rank 1 makes. */
static void called_start(rogue_talk *k) {
    struct pollfd f;
    f.fd = rogue_listener;
    f.events = POLLIN;
    while (poll(&f, 1, 1) == 0) rogue_pump();
    dialed_start(k, rogue_listener);
}
static void test_caller(void) {
    static const struct {
        int what;
        const char *why;
    } refused[] = {{0, "it does not know the secret"},
                   {1, "it speaks another version of this protocol"},
                   {2, "it does not speak this protocol"},
                   {3, "full"}};
    size_t i;
    for (i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        unsigned char got[8];
        int fd = rogue_join_listening(), what = refused[i].what;
        mesh_ticket recv;
        rogue_talk k;
        honest_post(1, MESH_RECV, ROGUE, got, sizeof got, ROGUE_CHANNEL(1), &recv);
        called_start(&k);
        if (what == 1 || what == 2) {
            k.s1[what == 1 ? 4 : 0]++;
            talk_send(&k, k.s1, what == 1 ? 5 : 1);
        } else {
            dialed_proof(&k);
            CHECK_INT(rogue_number(k.c2 + 40, 4), HELLO_CALLS);
            CHECK_INT(rogue_number(k.c2 + 44, 4), ROGUE);
            CHECK(rogue_number(k.c2 + 112, 8) == rogue_job);
            if (what == 0) k.s2[31] ^= 0x80;
            if (what == 3) rogue_le(k.s2 + 32, 1, 4), rogue_le(k.s2 + 36, 4, 4);
            talk_send(&k, k.s2, 40);
            if (what == 3) talk_send(&k, "full", 4);
        }
        honest_event(__LINE__, 1, MESH_EVENT_CLOSED, ROGUE, refused[i].why);
        CHECK_INT(rogue_drain(k.fd), 0);
        CHECK_INT(honest_of(1)->ops->test(honest_of(1), &recv, NULL),
                  MESH_IN_PROGRESS); /* the core knows who is needed */
        CHECK_INT(honest_of(1)->ops->cancel(honest_of(1), &recv), MESH_OK);
        CHECK_INT(honest_of(1)->ops->test(honest_of(1), &recv, NULL), MESH_ERR_CANCELED);
        honest_message(__LINE__, 0, 1, 100);
        close(k.fd);
        close(fd);
        close(rogue_listener);
        honest_down();
    }
}
/* Who hangs up is called again; who passes a proof on to another rank is found out there. */
static void test_relay(void) {
    unsigned char got[8];
    int fd = rogue_join_listening();
    rogue_hello any = {1, 3, HELLO_CALLS, 0, 0};
    mesh_ticket recv;
    mesh_error why;
    rogue_talk k, away;
    honest_post(1, MESH_RECV, ROGUE, got, sizeof got, ROGUE_CHANNEL(1), &recv);
    called_start(&k);
    close(k.fd);
    called_start(&k);
    talk_start(&away, &any); /* rank 1's words for rank 2 go to rank 0, whose nonce goes to rank 1 */
    memcpy(away.c1, k.c1, 40);
    CHECK(talk_greet(&away));
    memcpy(k.s1, away.s1, 40);
    dialed_proof(&k);
    memcpy(away.c2, k.c2, 120);
    CHECK_STR(talk_finish(&away), ASTRAY("1", "2", "0"));
    talk_send(&k, k.s2, 40);
    rogue_frame(k.fd, W_EAGER, ROGUE_CHANNEL(1), ROGUE_CHECK, 0, 0, "received", 8);
    CHECK_OK(honest_end(1, &recv, &why), why);
    CHECK(!memcmp(got, "received", 8));
    close(k.fd);
    close(fd);
    close(rogue_listener);
    honest_down();
}

/* ---- limits ---- */

static int strangers_of(int at) {
    mesh_socket__impl *s = honest_impl(at);
    int i, n = 0;
    for (i = 0; i < s->nconns; i++) n += s->conn[i]->rank < 0;
    return n;
}
/* 64 strangers, and as many as there are ranks: for one more the first goes. Who knows the secret gets in among them. */
static void test_stranger_limit(void) {
    enum { MOST = 64 + 3 };
    rogue_hello call = {ROGUE, 3, HELLO_CALLS, 1, 0};
    int fd[MOST + 1], first = rogue_join(), i;
    rogue_talk k;
    rogue_turn(0);
    for (i = 0; i < MOST; i++) {
        fd[i] = rogue_dial();
        CHECK(fd[i] >= 0);
    }
    ROGUE_UNTIL(strangers_of(1) == MOST);
    rogue_pump(), rogue_pump();
    CHECK_STR(honest[1].said, "");
    fd[MOST] = rogue_dial();
    CHECK_INT(rogue_drain(fd[0]), 0);
    honest_said(__LINE__, 1, "it said nothing, and others came");
    CHECK_INT(strangers_of(1), MOST);
    call.job = rogue_job;
    CHECK_STR(talk_whole(&k, &call), "welcome");
    CHECK_INT(rogue_drain(fd[1]), 0);
    CHECK_INT(strangers_of(1), MOST - 1);
    honest_message(__LINE__, 0, 1, 1000);
    for (i = 0; i <= MOST; i++) close(fd[i]);
    ROGUE_UNTIL(strangers_of(1) == 0);
    close(k.fd);
    close(first);
    honest_down();
}

/* A port that nobody else gets, which rank 0 can still listen at. Returns the socket that holds it. */
static int reserve_port(int *port) {
    struct sockaddr_in a;
    socklen_t length = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
          bind(fd, (struct sockaddr *)&a, length) == 0 && getsockname(fd, (struct sockaddr *)&a, &length) == 0);
    *port = ntohs(a.sin_port);
#ifndef __linux__
    close(fd);
#endif
    return fd;
}
/* Listeners are on loopback where rank 0's address is, with a secret and without; without one nothing else is let in. */
static void test_loopback(void) {
    static const char *const secret[] = {"tests", "", "tests"}, *const address[] = {"127.0.0.1", "127.0.0.1",
                                                                                    "localhost"};
    struct sockaddr_in any;
    mesh_socket net;
    mesh_error err;
    mesh_socket_desc d;
    int i, k;
    for (i = 0; i < 3; i++) {
        int held = reserve_port(&rogue_port);
        rogue_fd = 0;
        for (k = 0; k < 2; k++) {
            honest_prepare(k, k, 2);
            honest[k].desc.secret = secret[i];
            honest[k].desc.address = address[i];
            honest_go(k);
        }
        for (k = 0; k < 2; k++) {
            struct sockaddr_storage at;
            socklen_t length = sizeof at;
            CHECK_OK(honest_opened(k), honest[k].err);
            if (!honest[k].up) continue;
            CHECK_INT(getsockname(honest_impl(k)->tcp_fd, (struct sockaddr *)&at, &length), 0);
            if (at.ss_family == AF_INET)
                CHECK_INT(ntohl(((struct sockaddr_in *)&at)->sin_addr.s_addr), INADDR_LOOPBACK);
            else
                CHECK(IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&at)->sin6_addr));
        }
        honest_message(__LINE__, 0, 1, 1000);
        honest_down();
        close(held);
    }
    memset(&any, 0, sizeof any);
    any.sin_family = AF_INET;
    rogue_fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(rogue_fd, (struct sockaddr *)&any, sizeof any) == 0 && listen(rogue_fd, 1) == 0);
    d = socket_desc(0, 2, rogue_port, rogue_fd);
    d.secret = "";
    CHECK_INT(mesh_socket_open(&net, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the inherited socket listens beyond loopback, and there is no secret");
    close(rogue_fd);
}

/* No descriptor of the transport's is inherited by a program that is started. Those that its rank watches and traces with, too. */
static void test_cloexec(void) {
    enum { MOST = 1024 };
    static char before[MOST];
    char dir[] = "/tmp/mesh-rogue-XXXXXX", path[64];
    rogue_hello call = {ROGUE, 3, HELLO_CALLS, 1, 0};
    rogue_talk k;
    int i, fd, found = 0, watching = 0, status, line[2];
    pid_t child;
    CHECK(mkdtemp(dir) != NULL && pipe(line) == 0);
    fflush(NULL);
    if ((child = fork()) == 0) { /* it ends with this one */
        close(line[1]);
        _exit(read(line[0], path, 1) != 0);
    }
    setenv("MESH_TRACE", dir, 1);
    rogue_host = mesh_env_host();
    rogue_process = mesh_socket__process();
    if (rogue_process) rogue_process = rogue_process >> 32 << 32 | (uint64_t)(uint32_t)child;
    for (i = 0; i < MOST; i++) before[i] = fcntl(i, F_GETFD) >= 0;
    fd = rogue_join();
    call.job = rogue_job;
    rogue_turn(0);
    CHECK_STR(talk_whole(&k, &call), "welcome");
    honest_message(__LINE__, 0, 1, 100);
    for (i = 0; i < MOST; i++) {
        int flags = fcntl(i, F_GETFD);
        if (before[i] || flags < 0 || i == fd || i == k.fd) continue;
        found++;
        if (!(flags & FD_CLOEXEC)) test_fail(__FILE__, __LINE__, "descriptor %d would be inherited", i);
    }
    for (i = 0; i < 2; i++) { /* what waits, and what watches processes, where the system has that */
        const mesh_socket__impl *s = honest_impl(i);
        int c;
        watching += s->ready >= 0;
        for (c = 0; c < s->nconns; c++) watching += s->conn[c]->process >= 0;
    }
    /* Listeners, connections, traces. */
    CHECK_INT(found, 4 + 2 + 2 + 2 + watching);
    close(k.fd);
    close(fd);
    close(line[1]);
    waitpid(child, &status, 0);
    honest_down();
    unsetenv("MESH_TRACE");
    for (i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/rank-%d.json", dir, i);
        unlink(path);
    }
    rmdir(dir);
}

/* Two jobs of three on this host, with one secret: a rank of one that comes to the other, for its address is in a port's past, is refused. */
static void test_two_jobs(void) {
    static const char astray[] = ASTRAY("1", "2", "2");
    mesh_ticket recv;
    mesh_error why;
    char got[8];
    int job, k;
    for (job = 0; job < 2; job++) {
        rogue_fd = listen_loopback(AF_INET, &rogue_port);
        for (k = 0; k < 3; k++) {
            honest_prepare(3 * job + k, k, 3);
            if (job) honest[3 * job + k].desc.lanes = MESH_SOCKET_TCP;
            honest_go(3 * job + k);
        }
        for (k = 0; k < 3; k++) CHECK_OK(honest_opened(3 * job + k), honest[3 * job + k].err);
    }
    for (job = 0; job < 2; job++) { /* over TCP, and over a Unix-domain socket */
        int from = 3 * job + 1, to = 3 * !job + 2;
        honest_impl(from)->book[2] = honest_impl(to)->book[2];
        if (job) honest_impl(from)->lanes = MESH_SOCKET_AUTO;
        honest_post(from, MESH_RECV, 2, got, sizeof got, ROGUE_CHANNEL(1), &recv);
        honest_event(__LINE__, from, MESH_EVENT_CLOSED, 2, astray);
        honest_said(__LINE__, to, astray);
        CHECK(!honest_impl(to)->peer[1].conn);
        CHECK_INT(honest_of(from)->ops->cancel(honest_of(from), &recv), MESH_OK);
        honest_end(from, &recv, &why);
        honest_message(__LINE__, from, from - 1, 1000);
        honest_message(__LINE__, to, to - 2, 1000);
    }
    honest_down();
}

static const test_case rogue_tests[] = {
    {"rogue/recorded", test_recorded, 0},
    {"rogue/acceptor", test_acceptor, 0},
    {"rogue/listener_tcp", test_listener_tcp, 0},
    {"rogue/listener_unix", test_listener_unix, 0},
    {"rogue/half_called", test_half_called, 0},
    {"rogue/replay", test_replay, 0},
    {"rogue/dialer", test_dialer, 0},
    {"rogue/dialer_slow", test_dialer_slow, 0},
    {"rogue/book", test_book, 0},
    {"rogue/second_book", test_second_book, 0},
    {"rogue/caller", test_caller, 0},
    {"rogue/relay", test_relay, 0},
    {"rogue/stranger_limit", test_stranger_limit, 0},
    {"rogue/loopback", test_loopback, 0},
    {"rogue/cloexec", test_cloexec, 0},
    {"rogue/two_jobs", test_two_jobs, 0},
};

#endif
