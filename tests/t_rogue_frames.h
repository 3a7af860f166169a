/* A rogue that has joined as it should, and then sends frames, and control messages, that it should not: see t_rogue.h. */
#ifndef T_ROGUE_FRAMES_H
#define T_ROGUE_FRAMES_H

/* Rank 0 has accepted a message of 1000 bytes of the rogue's, between guards, and waits for one more that nobody has begun. */
enum { ROGUE_LARGE = 1000, ROGUE_GUARD = 4096 };
typedef struct rogue_scene {
    int fd;
    mesh_ticket large, waits;
    uint64_t id; /* of the large one */
    unsigned char around[ROGUE_GUARD + ROGUE_LARGE + ROGUE_GUARD], other[8];
} rogue_scene;
static rogue_scene scene;

static void scene_start(void) {
    unsigned char head[ROGUE_HEADER];
    scene.fd = rogue_join();
    memset(scene.around, 0xa5, sizeof scene.around);
    memset(scene.other, 0xa5, sizeof scene.other);
    honest_post(0, MESH_RECV, ROGUE, scene.around + ROGUE_GUARD, ROGUE_LARGE, ROGUE_CHANNEL(0), &scene.large);
    honest_post(0, MESH_RECV, ROGUE, scene.other, sizeof scene.other, ROGUE_CHANNEL(99), &scene.waits);
    rogue_frame(scene.fd, W_OFFER, ROGUE_CHANNEL(0), ROGUE_CHECK, ROGUE_LARGE, 77, NULL, 0);
    CHECK(rogue_frame_read(scene.fd, W_ACCEPT, head, NULL));
    CHECK_INT(rogue_number(head + 24, 8), 77);
    scene.id = rogue_number(head + 32, 8);
}
static void scene_guards(int line) {
    int i, wrong = 0;
    for (i = 0; i < ROGUE_GUARD; i++)
        wrong += (scene.around[i] != 0xa5) + (scene.around[ROGUE_GUARD + ROGUE_LARGE + i] != 0xa5);
    for (i = 0; i < 8; i++) wrong += scene.other[i] != 0xa5;
    if (wrong) test_fail(__FILE__, line, "%d bytes beside the message were written", wrong);
}
static void scene_end(int line) {
    scene_guards(line);
    honest_message(line, 0, 1, 100);
    honest_message(line, 1, 0, 100000);
    close(scene.fd);
    honest_down();
}
/* The rogue is lost, for this reason, on both honest ranks; it lives, and sees that rank 0 has hung up. */
static void scene_lost(int line, const char *why) {
    char want[MESH_ERROR_BYTES];
    mesh_ticket *ticket[2];
    int i;
    snprintf(want, sizeof want, "rank 2 was lost: %s", why);
    ticket[0] = &scene.large;
    ticket[1] = &scene.waits;
    for (i = 0; i < 2; i++) {
        mesh_error err;
        mesh_status status = honest_end(0, ticket[i], &err);
        if (status != MESH_ERR_PEER || err.rank != ROGUE || strcmp(err.text, want))
            test_fail(__FILE__, line, "%s, rank %d, \"%s\", expected \"%s\"", mesh_status_text(status), err.rank,
                      err.text, want);
    }
    honest_event(line, 0, MESH_EVENT_LOST, ROGUE, why);
    honest_event(line, 1, MESH_EVENT_LOST, ROGUE, why);
    rogue_drain(scene.fd);
    scene_end(line);
}
/* What the rogue has sent so far has been read: the word after it has come. */
static void scene_heard(int line) {
    rogue_frame(scene.fd, W_CONTROL, 0, 0, MESH_EVENT_MESSAGE, 0, "done", 4);
    honest_event(line, 0, MESH_EVENT_MESSAGE, ROGUE, "done");
}

/* Frames that cannot be, by their kind or length. */
static void test_frames(void) {
    static const struct {
        uint32_t type, length;
    } wild[] = {{0, 0},
                {W_NONE, 0},
                {INT32_MAX, 0},
                {UINT32_MAX, 0},
                {W_EAGER, 65537},
                {W_EAGER, INT32_MAX},
                {W_EAGER, UINT32_C(1) << 31},
                {W_EAGER, UINT32_MAX},
                {W_DATA, 0},
                {W_DATA, (1 << 20) + 1},
                {W_DATA, UINT32_MAX},
                {W_CONTROL, MESH_CONTROL_BYTES + 1},
                {W_CONTROL, UINT32_MAX},
                {W_LOST, 257},
                {W_LOST, UINT32_MAX},
                {W_GIVEN_UP, MESH_ERROR_BYTES},
                {W_GIVEN_UP, UINT32_MAX},
                {W_BOOK, 0},
                {W_BOOK, 192},
                {W_OFFER, 1},
                {W_ACCEPT, 1},
                {W_REFUSE, 1},
                {W_WITHDRAW, 1},
                {W_CREDIT, 1},
                {W_GOODBYE, 1},
                {W_STAYS, 1},
                {W_SHARE, 1},
                {W_SHARED, 1},
                {W_LEND, 35},
                {W_LEND, 257},
                {W_PULL, 1},
                {W_RINGS, 1},
                {W_BELL, 1}};
    unsigned char junk[ROGUE_HEADER + 2000];
    size_t i;
    memset(junk, 0x5a, sizeof junk);
    for (i = 0; i < sizeof wild / sizeof wild[0]; i++) {
        scene_start();
        rogue_header(junk, wild[i].type, wild[i].length, ROGUE_CHANNEL(99), ROGUE_CHECK, 1, 0);
        rogue_send(scene.fd, junk, ROGUE_HEADER + (wild[i].length < 2000 ? wild[i].length : 2000));
        scene_lost(__LINE__, "it sent a frame that cannot be");
    }
    for (i = 40; i < ROGUE_HEADER; i++) { /* what has to be 0 is not */
        scene_start();
        rogue_header(junk, W_EAGER, 8, ROGUE_CHANNEL(1), ROGUE_CHECK, 0, 0);
        junk[i] = 1;
        rogue_send(scene.fd, junk, ROGUE_HEADER + 8);
        scene_lost(__LINE__, "it sent a frame that cannot be");
    }
}

/* Bytes of a large message that are not the next, or too many. */
static void test_data(void) {
    static const struct {
        uint32_t before, length; /* before: bytes that are right */
        uint64_t offset;
    } wild[] = {
        {0, 1001, 0},  {0, 5000, 0},           {0, 1 << 20, 0},     {0, 1, 1},     {0, 1, UINT64_MAX},
        {0, 1000, 1},  {0, 1, UINT64_MAX / 2}, {600, 401, 600},     {600, 1, 599}, {600, 1, 601},
        {600, 400, 0}, {999, 2, 999},          {999, 1 << 20, 999}, {1, 1000, 1},  {600, 400, UINT64_MAX - 399}};
    static unsigned char bytes[ROGUE_LARGE + 8192];
    size_t i;
    memset(bytes, 0xee, sizeof bytes);
    for (i = 0; i < sizeof wild / sizeof wild[0]; i++) {
        unsigned char head[ROGUE_HEADER];
        scene_start();
        if (wild[i].before) rogue_frame(scene.fd, W_DATA, 0, 0, scene.id, 0, bytes, wild[i].before);
        rogue_header(head, W_DATA, wild[i].length, 0, 0, scene.id, wild[i].offset);
        rogue_send(scene.fd, head, ROGUE_HEADER);
        rogue_send(scene.fd, bytes, wild[i].length < sizeof bytes ? wild[i].length : sizeof bytes);
        scene_lost(__LINE__, "it sent bytes that were not next");
    }
}

/* The id of a message under way at rank 0. */
static uint64_t live_id(int rank, int direction) {
    mesh_socket__impl *s = honest_impl(0);
    int i;
    for (i = 0; i < s->nslots; i++)
        if (s->slot[i] && s->slot[i]->x.rank == rank && s->slot[i]->x.direction == direction) return s->slot[i]->id;
    test_fail(__FILE__, __LINE__, "nothing is under way with rank %d", rank);
    return 0;
}

/* Frames that name what is not there, or is another's: they change nothing, and the connection goes on. */
static void test_forged(void) {
    static unsigned char from1[200000], to1[200000], to2[200000], got[200000], frame[1000];
    uint64_t other, send1, send2, id[8];
    unsigned char head[ROGUE_HEADER], data[1024], control[1024];
    mesh_ticket r1, s1, s2, out, in;
    mesh_error why;
    size_t i;
    memset(frame, 0xee, sizeof frame);
    memset(control, 'c', sizeof control);
    for (i = 0; i < sizeof from1; i++) got[i] = 0, from1[i] = to1[i] = to2[i] = (unsigned char)(i * 13);
    scene_start();
    /* A message of rank 1 has been accepted and does not come yet; two go out, which have not been accepted. */
    honest_post(1, MESH_SEND, 0, from1, sizeof from1, ROGUE_CHANNEL(5), &out);
    honest[1].still = 1;
    honest_post(0, MESH_RECV, 1, got, sizeof got, ROGUE_CHANNEL(5), &r1);
    ROGUE_UNTIL(honest_impl(0)->nslots >= 2);
    other = live_id(1, MESH_RECV);
    honest_post(0, MESH_SEND, 1, to1, sizeof to1, ROGUE_CHANNEL(6), &s1);
    send1 = live_id(1, MESH_SEND);
    honest_post(0, MESH_SEND, ROGUE, to2, sizeof to2, ROGUE_CHANNEL(7), &s2);
    CHECK(rogue_frame_read(scene.fd, W_OFFER, head, data));
    CHECK_INT(rogue_number(head + 24, 8), sizeof to2);
    send2 = rogue_number(head + 32, 8);
    CHECK(send2 == live_id(ROGUE, MESH_SEND));
    id[0] = 0;
    id[1] = UINT64_MAX;
    id[2] = UINT64_C(1) << 32 | 1000000;
    id[3] = scene.id + (UINT64_C(1) << 32); /* the right place, of another time */
    id[4] = scene.id - (UINT64_C(1) << 32);
    id[5] = other;
    id[6] = send1;
    id[7] = send2;
    for (i = 0; i < 8; i++) rogue_frame(scene.fd, W_DATA, 0, 0, id[i], 0, frame, sizeof frame);
    rogue_frame(scene.fd, W_DATA, 0, 0, UINT64_C(1) << 32 | (uint32_t)honest_impl(0)->nslots, 0, frame, sizeof frame);
    id[7] = scene.id;
    for (i = 0; i < 8; i++) { /* not ours to accept: taken back */
        rogue_frame(scene.fd, W_ACCEPT, 0, 0, id[i], 4000 + i, NULL, 0);
        CHECK(rogue_frame_read(scene.fd, W_WITHDRAW, head, data));
        CHECK_INT(rogue_number(head + 24, 8), 4000 + i);
        rogue_frame(scene.fd, W_REFUSE, 0, 0, id[i], 10, NULL, 0);
    }
    id[7] = send2;
    for (i = 0; i < 8; i++) rogue_frame(scene.fd, W_WITHDRAW, 0, 0, id[i], 0, NULL, 0);
    for (i = 0; i < 3; i++) { /* who is lost: nobody, and rank 0 itself */
        static const uint64_t nobody[] = {3, 0, UINT64_C(1) << 63};
        rogue_frame(scene.fd, W_LOST, 0, 0, nobody[i], 0, control, 256);
    }
    rogue_frame(scene.fd, W_STAYS, 0, 0, 0, 0, NULL, 0);
    scene_heard(__LINE__);
    /* Only the transport says who is lost or has closed. */
    for (i = 0; i < 4; i++) {
        static const uint64_t kind[] = {MESH_EVENT_LOST, MESH_EVENT_CLOSED, 1000, UINT64_MAX};
        mesh_control m;
        rogue_frame(scene.fd, W_CONTROL, 0, 0, kind[i], 0, control, sizeof control);
        ROGUE_UNTIL(honest_impl(0)->mail.first);
        CHECK_INT(honest_of(0)->ops->control_poll(honest_of(0), &m), MESH_OK);
        CHECK(m.kind == MESH_EVENT_MESSAGE && m.rank == ROGUE && m.nbytes == 1024 && !memcmp(m.data, control, 1024));
    }
    CHECK_INT(honest_of(0)->ops->test(honest_of(0), &scene.large, &why), MESH_IN_PROGRESS);
    for (i = 0; i < ROGUE_LARGE; i++) CHECK(scene.around[ROGUE_GUARD + i] == 0xa5);
    scene_guards(__LINE__);
    /* Everything goes on. */
    rogue_frame(scene.fd, W_DATA, 0, 0, scene.id, 0, from1, 600);
    rogue_frame(scene.fd, W_DATA, 0, 0, scene.id, 600, from1 + 600, 400);
    CHECK_OK(honest_end(0, &scene.large, &why), why);
    CHECK(!memcmp(scene.around + ROGUE_GUARD, from1, ROGUE_LARGE));
    rogue_frame(scene.fd, W_DATA, 0, 0, scene.id, 0, frame, sizeof frame); /* done with */
    scene_heard(__LINE__);
    CHECK(!memcmp(scene.around + ROGUE_GUARD, from1, ROGUE_LARGE));
    honest[1].still = 0;
    CHECK_OK(honest_end(0, &r1, &why), why);
    CHECK(!memcmp(got, from1, sizeof got));
    memset(got, 0, sizeof got);
    honest_post(1, MESH_RECV, 0, got, sizeof got, ROGUE_CHANNEL(6), &in);
    CHECK_OK(honest_end(0, &s1, &why), why);
    CHECK_OK(honest_end(1, &in, &why), why);
    CHECK(!memcmp(got, to1, sizeof got));
    CHECK_OK(honest_end(1, &out, &why), why);
    /* The one that is the rogue's it may accept, once. */
    rogue_frame(scene.fd, W_ACCEPT, 0, 0, send2, 4242, NULL, 0);
    rogue_frame(scene.fd, W_ACCEPT, 0, 0, send2, 4243, NULL, 0);
    for (i = 0; i < sizeof to2;) {
        int n;
        CHECK_INT(rogue_read(scene.fd, head, ROGUE_HEADER), ROGUE_HEADER);
        n = (int)rogue_number(head + 4, 4);
        if (rogue_number(head, 4) == W_WITHDRAW && rogue_number(head + 24, 8) == 4243) continue;
        CHECK_INT(rogue_number(head, 4), W_DATA);
        CHECK_INT(rogue_number(head + 24, 8), 4242);
        CHECK_INT(rogue_number(head + 32, 8), i);
        if (n <= 0 || (size_t)n > sizeof got - i || rogue_read(scene.fd, got + i, n) != n) break;
        i += (size_t)n;
    }
    CHECK_OK(honest_end(0, &s2, &why), why);
    CHECK(!memcmp(got, to2, sizeof got));
    honest_no_event(__LINE__, 1);
    CHECK_INT(honest_of(0)->ops->cancel(honest_of(0), &scene.waits), MESH_OK);
    honest_end(0, &scene.waits, &why);
    scene_end(__LINE__);
}

/* A message of another length or check: both sides hear of it, and nothing is written. */
static void test_unlike(void) {
    static const struct {
        uint64_t nbytes, check;
    } unlike[] = {{ROGUE_LARGE - 1, ROGUE_CHECK}, {ROGUE_LARGE + 1, ROGUE_CHECK}, {0, ROGUE_CHECK},
                  {ROGUE_LARGE, ROGUE_CHECK + 1}, {65536, ROGUE_CHECK},           {UINT64_C(1) << 63, ROGUE_CHECK},
                  {UINT64_MAX, ROGUE_CHECK}};
    static unsigned char bytes[65536];
    char want[200];
    size_t i;
    int early;
    memset(bytes, 0xee, sizeof bytes);
    scene_start();
    for (early = 0; early < 2; early++)
        for (i = 0; i < 2 * sizeof unlike / sizeof unlike[0]; i++) {
            uint64_t n = unlike[i / 2].nbytes, channel = ROGUE_CHANNEL(100 + early * 100 + i);
            int offered = i % 2 != 0, line = __LINE__;
            unsigned char head[ROGUE_HEADER], buffer[ROGUE_LARGE];
            mesh_ticket ticket;
            mesh_error why;
            size_t k, touched = 0;
            if (!offered && n > sizeof bytes) continue;
            memset(buffer, 0xa5, sizeof buffer);
            if (!early) honest_post(0, MESH_RECV, ROGUE, buffer, ROGUE_LARGE, channel, &ticket);
            rogue_frame(scene.fd, offered ? W_OFFER : W_EAGER, channel, unlike[i / 2].check, offered ? n : 0, 500 + i,
                        bytes, offered ? 0 : (uint32_t)n);
            if (early) {
                scene_heard(line);
                honest_post(0, MESH_RECV, ROGUE, buffer, ROGUE_LARGE, channel, &ticket);
            }
            CHECK_INT(honest_end(0, &ticket, &why), MESH_ERR_MISMATCH);
            CHECK_INT(why.rank, ROGUE);
            snprintf(want, sizeof want, "rank 2 sent %" PRIu64 " bytes, rank 0 expected 1000%s", n,
                     unlike[i / 2].check == ROGUE_CHECK ? "" : ", of another operation");
            CHECK_STR(why.text, want);
            for (k = 0; k < sizeof buffer; k++) touched += buffer[k] != 0xa5;
            CHECK_INT(touched, 0);
            if (!offered) continue;
            CHECK(rogue_frame_read(scene.fd, W_REFUSE, head, NULL));
            CHECK_INT(rogue_number(head + 24, 8), 500 + i);
            CHECK_INT(rogue_number(head + 32, 8), ROGUE_LARGE);
        }
    rogue_frame(scene.fd, 0, 0, 0, 0, 0, NULL, 0);
    scene_lost(__LINE__, "it sent a frame that cannot be");
}

/* Frames that just may be, and frames cut in two anywhere. */
static void test_cut_frames(void) {
    static unsigned char most[1 << 20], got[1 << 20];
    unsigned char frame[ROGUE_HEADER + 10], head[ROGUE_HEADER], small[10];
    mesh_socket__conn *c;
    mesh_ticket ticket;
    mesh_error why;
    uint64_t id;
    int kind, cut;
    size_t i;
    for (i = 0; i < sizeof most; i++) most[i] = (unsigned char)(i * 7);
    scene_start();
    c = honest_impl(0)->peer[ROGUE].conn;
    honest_post(0, MESH_RECV, ROGUE, got, 65536, ROGUE_CHANNEL(1), &ticket);
    rogue_frame(scene.fd, W_EAGER, ROGUE_CHANNEL(1), ROGUE_CHECK, 0, 0, most, 65536);
    CHECK_OK(honest_end(0, &ticket, &why), why);
    CHECK(!memcmp(got, most, 65536));
    honest_post(0, MESH_RECV, ROGUE, got, sizeof got, ROGUE_CHANNEL(2), &ticket);
    rogue_frame(scene.fd, W_OFFER, ROGUE_CHANNEL(2), ROGUE_CHECK, sizeof got, 78, NULL, 0);
    CHECK(rogue_frame_read(scene.fd, W_ACCEPT, head, NULL));
    rogue_frame(scene.fd, W_DATA, 0, 0, rogue_number(head + 32, 8), 0, most, sizeof most);
    CHECK_OK(honest_end(0, &ticket, &why), why);
    CHECK(!memcmp(got, most, sizeof got));
    /* A second message in ten-byte frames. */
    honest_post(0, MESH_RECV, ROGUE, got, 10 * (ROGUE_HEADER + 9), ROGUE_CHANNEL(3), &ticket);
    rogue_frame(scene.fd, W_OFFER, ROGUE_CHANNEL(3), ROGUE_CHECK, 10 * (ROGUE_HEADER + 9), 79, NULL, 0);
    CHECK(rogue_frame_read(scene.fd, W_ACCEPT, head, NULL));
    id = rogue_number(head + 32, 8);
    for (kind = 0; kind < 3; kind++)
        for (cut = 1; cut < ROGUE_HEADER + 10; cut++) {
            mesh_ticket one;
            memcpy(frame + ROGUE_HEADER, most + cut, 10);
            if (kind == 0) {
                rogue_header(frame, W_EAGER, 10, ROGUE_CHANNEL(300 + cut), ROGUE_CHECK, 0, 0);
                honest_post(0, MESH_RECV, ROGUE, small, 10, ROGUE_CHANNEL(300 + cut), &one);
            } else if (kind == 1) {
                rogue_header(frame, W_DATA, 10, 0, 0, id, (uint64_t)(10 * (cut - 1)));
            } else {
                rogue_header(frame, W_CONTROL, 10, 0, 0, MESH_EVENT_MESSAGE, 0);
                memcpy(frame + ROGUE_HEADER, "ten bytes.", 10);
            }
            rogue_send(scene.fd, frame, (size_t)cut);
            ROGUE_UNTIL(c->in_len - c->in_at == (size_t)cut ||
                        (cut >= ROGUE_HEADER && c->rx_left == (uint64_t)(ROGUE_HEADER + 10 - cut)));
            rogue_send(scene.fd, frame + cut, (size_t)(ROGUE_HEADER + 10 - cut));
            if (kind == 0) {
                CHECK_OK(honest_end(0, &one, &why), why);
                CHECK(!memcmp(small, most + cut, 10));
            } else if (kind == 2) {
                honest_event(__LINE__, 0, MESH_EVENT_MESSAGE, ROGUE, "ten bytes.");
            }
        }
    CHECK_OK(honest_end(0, &ticket, &why), why);
    for (cut = 1; cut < ROGUE_HEADER + 10; cut++) CHECK(!memcmp(got + 10 * (cut - 1), most + cut, 10));
    rogue_frame(scene.fd, W_LOST, 0, 0, 2, 0, NULL, 0); /* a cut that stays: the rogue ends in the middle of a header */
    rogue_send(scene.fd, frame, 39);
    shutdown(scene.fd, SHUT_WR);
    scene_guards(__LINE__);
    rogue_drain(scene.fd);
    close(scene.fd);
    CHECK_INT(honest_end(0, &scene.large, &why), MESH_ERR_PEER);
    CHECK_INT(honest_end(0, &scene.waits, &why), MESH_ERR_PEER);
    honest_down();
}

/* Credit: to the byte what lies here unreceived; what was taken may be sent again; what was given back must have been spent. */
static void test_credit_sent(void) {
    enum { EACH = 65536 - ROGUE_HEADER };
    static unsigned char bytes[EACH], got[EACH];
    unsigned char head[ROGUE_HEADER];
    mesh_error why;
    uint64_t k;
    scene_start();
    for (k = 0; k < 16; k++) rogue_frame(scene.fd, W_EAGER, ROGUE_CHANNEL(200 + k), ROGUE_CHECK, 0, 0, bytes, EACH);
    scene_heard(__LINE__);
    CHECK_INT(honest_impl(0)->peer[ROGUE].lent, 1 << 20);
    for (k = 0; k < 4; k++) {
        mesh_ticket ticket;
        honest_post(0, MESH_RECV, ROGUE, got, EACH, ROGUE_CHANNEL(200 + k), &ticket);
        CHECK_OK(honest_end(0, &ticket, &why), why);
    }
    CHECK(rogue_frame_read(scene.fd, W_CREDIT, head, NULL));
    CHECK_INT(rogue_number(head + 24, 8), 4 << 16);
    for (k = 0; k < 4; k++) rogue_frame(scene.fd, W_EAGER, ROGUE_CHANNEL(300 + k), ROGUE_CHECK, 0, 0, bytes, EACH);
    scene_heard(__LINE__);
    rogue_frame(scene.fd, W_EAGER, ROGUE_CHANNEL(400), ROGUE_CHECK, 0, 0, NULL, 0);
    scene_lost(__LINE__, "it sent more than its credit");
}
static void test_credit_given(void) {
    static const uint64_t wild[] = {1, 1 << 20, UINT64_C(1) << 63, UINT64_MAX};
    static unsigned char bytes[16384 - ROGUE_HEADER];
    unsigned char head[ROGUE_HEADER];
    mesh_ticket ticket[67];
    mesh_error why;
    size_t i;
    for (i = 0; i < sizeof wild / sizeof wild[0]; i++) {
        scene_start();
        rogue_frame(scene.fd, W_CREDIT, 0, 0, wild[i], 0, NULL, 0);
        scene_lost(__LINE__, "it took more than was sent to it");
    }
    /* All of it is spent, and the next is offered; what is given back is spent again; a byte more than that is too much. */
    scene_start();
    for (i = 0; i < 65; i++) honest_post(0, MESH_SEND, ROGUE, bytes, sizeof bytes, ROGUE_CHANNEL(100 + i), &ticket[i]);
    for (i = 0; i < 65; i++) {
        CHECK_INT(rogue_read(scene.fd, head, ROGUE_HEADER), ROGUE_HEADER);
        CHECK_INT(rogue_number(head, 4), i < 64 ? W_EAGER : W_OFFER);
        if (i < 64) {
            CHECK_OK(honest_end(0, &ticket[i], &why), why);
            rogue_read(scene.fd, bytes, sizeof bytes);
        }
    }
    for (i = 65; i < 67; i++) { /* a byte less than it takes, header and all; then that byte */
        rogue_frame(scene.fd, W_CREDIT, 0, 0, i == 65 ? 16383 : 1, 0, NULL, 0);
        scene_heard(__LINE__);
        honest_post(0, MESH_SEND, ROGUE, bytes, sizeof bytes, ROGUE_CHANNEL(100 + i), &ticket[i]);
        CHECK_INT(rogue_read(scene.fd, head, ROGUE_HEADER), ROGUE_HEADER);
        CHECK_INT(rogue_number(head, 4), i == 65 ? W_OFFER : W_EAGER);
    }
    CHECK_OK(honest_end(0, &ticket[66], &why), why);
    rogue_frame(scene.fd, W_CREDIT, 0, 0, 1 << 20, 0, NULL, 0);
    scene_heard(__LINE__);
    rogue_frame(scene.fd, W_CREDIT, 0, 0, 1, 0, NULL, 0);
    for (i = 64; i < 66; i++) CHECK_INT(honest_end(0, &ticket[i], &why), MESH_ERR_PEER);
    scene_lost(__LINE__, "it took more than was sent to it");
}

/* What may wait here: so many control messages, so many offers, and one more is too many. */
static void test_queues(void) {
    enum { CONTROLS = 4096, OFFERS = 65536 };
    mesh_socket__impl *s;
    mesh_control m;
    int i;
    scene_start();
    s = honest_impl(0);
    for (i = 0; i < CONTROLS; i++) rogue_frame(scene.fd, W_CONTROL, 0, 0, MESH_EVENT_MESSAGE, 0, NULL, 0);
    ROGUE_UNTIL(s->peer[ROGUE].controls == CONTROLS);
    CHECK(s->peer[ROGUE].conn && !s->peer[ROGUE].conn->broken);
    rogue_frame(scene.fd, W_CONTROL, 0, 0, MESH_EVENT_ABORT, 0, NULL, 0);
    ROGUE_UNTIL(!s->peer[ROGUE].conn);
    for (i = 0; i < CONTROLS; i++) {
        CHECK_INT(honest_of(0)->ops->control_poll(honest_of(0), &m), MESH_OK);
        CHECK(m.kind == MESH_EVENT_MESSAGE && m.nbytes == 0);
    }
    scene_lost(__LINE__, "it sent more control messages than may wait");
    scene_start();
    for (i = 0; i < OFFERS; i++)
        rogue_frame(scene.fd, W_OFFER, ROGUE_CHANNEL(1000 + (unsigned)i), ROGUE_CHECK, UINT64_MAX, 1, NULL, 0);
    scene_heard(__LINE__);
    rogue_frame(scene.fd, W_OFFER, ROGUE_CHANNEL(1), ROGUE_CHECK, 1, 1, NULL, 0);
    scene_lost(__LINE__, "it offered more messages than may wait");
}

/* Messages that end by the rogue's word: withdrawn, refused, given up. Their text fits where it goes. */
static void test_words(void) {
    static unsigned char bytes[200000];
    unsigned char head[ROGUE_HEADER];
    char text[MESH_ERROR_BYTES], want[MESH_ERROR_BYTES];
    mesh_ticket send;
    mesh_error why;
    scene_start();
    rogue_frame(scene.fd, W_WITHDRAW, 0, 0, scene.id, 0, NULL, 0);
    CHECK_INT(honest_end(0, &scene.large, &why), MESH_ERR_CANCELED);
    CHECK_STR(why.text, "rank 2 canceled a message to rank 0");
    honest_post(0, MESH_SEND, ROGUE, bytes, sizeof bytes, ROGUE_CHANNEL(7), &send);
    CHECK(rogue_frame_read(scene.fd, W_OFFER, head, NULL));
    rogue_frame(scene.fd, W_REFUSE, 0, 0, rogue_number(head + 32, 8), 4711, NULL, 0);
    CHECK_INT(honest_end(0, &send, &why), MESH_ERR_MISMATCH);
    CHECK_STR(why.text, "rank 0 sent 200000 bytes, rank 2 expected 4711");
    memset(text, 'g', sizeof text);
    rogue_frame(scene.fd, W_GIVEN_UP, 0, 0, 0, 0, text, sizeof text - 1);
    strcpy(want, "it has given this rank up: ");
    memset(want + strlen(want), 'g', sizeof want - 27);
    want[sizeof want - 1] = 0;
    honest_event(__LINE__, 0, MESH_EVENT_LOST, ROGUE, want);
    CHECK_INT(honest_end(0, &scene.waits, &why), MESH_ERR_PEER);
    CHECK_HAS(why.text, "rank 2 was lost: it has given this rank up: ggg");
    rogue_drain(scene.fd);
    honest_message(__LINE__, 0, 1, 10);
    honest_no_event(__LINE__, 1); /* between the two alone */
    scene_end(__LINE__);
}

/* After a goodbye what was sent still counts, and what cannot be ends the connection without a loss. */
static void test_after_goodbye(void) {
    unsigned char got[8];
    mesh_ticket recv;
    mesh_error why;
    scene_start();
    honest_post(0, MESH_RECV, ROGUE, got, 8, ROGUE_CHANNEL(1), &recv);
    rogue_frame(scene.fd, W_GOODBYE, 0, 0, 0, 0, NULL, 0);
    rogue_frame(scene.fd, W_EAGER, ROGUE_CHANNEL(1), ROGUE_CHECK, 0, 0, "farewell", 8);
    rogue_frame(scene.fd, W_GOODBYE, 0, 0, 0, 0, NULL, 0);
    rogue_frame(scene.fd, W_DATA, 0, 0, scene.id, 1, "farewell", 8);
    CHECK_OK(honest_end(0, &recv, &why), why);
    CHECK(!memcmp(got, "farewell", 8));
    CHECK_INT(honest_end(0, &scene.large, &why), MESH_ERR_PEER);
    CHECK_STR(why.text, "rank 2 closed its transport in the middle of a message");
    CHECK_INT(why.rank, ROGUE);
    honest_event(__LINE__, 0, MESH_EVENT_CLOSED, ROGUE, "");
    rogue_drain(scene.fd);
    CHECK_INT(honest_of(0)->ops->test(honest_of(0), &scene.waits, &why), MESH_IN_PROGRESS);
    CHECK_INT(honest_of(0)->ops->cancel(honest_of(0), &scene.waits), MESH_OK);
    honest_end(0, &scene.waits, &why);
    honest_message(__LINE__, 0, 1, 10);
    honest_no_event(__LINE__, 0);
    honest_no_event(__LINE__, 1);
    scene_end(__LINE__);
}

/* A rank that is connected to the rogue too hears it from the other: it hangs up, and says why. */
static void test_told(void) {
    rogue_hello call = {ROGUE, 3, HELLO_CALLS, 1, 0};
    unsigned char head[ROGUE_HEADER], text[4096];
    mesh_ticket recv;
    mesh_error why;
    rogue_talk k;
    scene_start();
    rogue_turn(1);
    call.job = rogue_job;
    CHECK_STR(talk_whole(&k, &call), "welcome");
    honest_post(1, MESH_RECV, ROGUE, text, 10, ROGUE_CHANNEL(1), &recv);
    rogue_frame(scene.fd, W_NONE, 0, 0, 0, 0, NULL, 0);
    CHECK(rogue_frame_read(k.fd, W_GIVEN_UP, head, text));
    CHECK(rogue_number(head + 4, 4) == 30 && !memcmp(text, "it sent a frame that cannot be", 30));
    CHECK_INT(rogue_drain(k.fd), 0);
    CHECK_INT(honest_end(1, &recv, &why), MESH_ERR_PEER);
    CHECK_STR(why.text, "rank 2 was lost: it sent a frame that cannot be");
    close(k.fd);
    scene_lost(__LINE__, "it sent a frame that cannot be");
}

/* Headers by chance: each ends in a refusal, and in no death; nothing is written where it should not be. */
static void test_wild_frames(void) {
    static const char *const ends[] = {"it sent a frame that cannot be", "it sent more than its credit",
                                       "it sent bytes that were not next", "it took more than was sent to it"};
    static unsigned char zeros[(1 << 20) + 65536 + ROGUE_HEADER];
    test_random rng = random_from(7);
    int round;
    for (round = 0; round < 60; round++) {
        static const uint32_t lengths[] = {0, 0, 1, 64, 256, 999, 65536, 1 << 20};
        uint32_t type = 1 + (uint32_t)random_below(&rng, 10), length = lengths[random_below(&rng, 8)];
        uint64_t a = random_below(&rng, 2) ? random_next(&rng) : (uint64_t)random_below(&rng, 6);
        unsigned char head[ROGUE_HEADER];
        mesh_control m;
        mesh_error why;
        size_t k;
        scene_start();
        if (random_below(&rng, 3) == 0) a = scene.id;
        if (type == W_LOST && a == 1) a = 0; /* that is testimony, and believed */
        rogue_header(head, type, length, random_next(&rng), random_next(&rng), a,
                     random_below(&rng, 2) ? random_next(&rng) : 0);
        if (random_below(&rng, 4) == 0) /* no plausible one */
            for (k = 0; k < ROGUE_HEADER - 8; k++) head[k] = (unsigned char)random_next(&rng);
        rogue_send(scene.fd, head, ROGUE_HEADER);
        rogue_send(scene.fd, zeros, sizeof zeros); /* what belongs to it, and then a frame of no kind */
        rogue_drain(scene.fd);
        ROGUE_UNTIL(!honest_impl(0)->peer[ROGUE].conn);
        do {
            memset(&m, 0, sizeof m);
            m.kind = -1;
            honest_of(0)->ops->control_poll(honest_of(0), &m);
        } while (m.kind == MESH_EVENT_MESSAGE || m.kind == MESH_EVENT_ABORT);
        for (k = 0; k < 4 && (m.nbytes != strlen(ends[k]) || memcmp(m.data, ends[k], m.nbytes)); k++) {}
        if (m.kind != MESH_EVENT_LOST || m.rank != ROGUE || (k == 4 && !(type == W_LOST && a == ROGUE)))
            test_fail(__FILE__, __LINE__, "round %d, frame %u of %u bytes: event %d of rank %d: \"%.*s\"", round, type,
                      length, m.kind, m.rank, (int)m.nbytes, (char *)m.data);
        CHECK(honest_end(0, &scene.large, &why) < 0 && why.rank == ROGUE);
        CHECK(honest_end(0, &scene.waits, &why) < 0 && why.rank == ROGUE);
        scene_end(__LINE__);
    }
}

/* ---- control messages: ranks 0 and 1 are in a comm, which the rogue is not ---- */

typedef struct gossip_rank {
    pthread_t thread;
    mesh_comm comm;
    mesh_status status; /* of its last call */
    int rounds;
} gossip_rank;
static gossip_rank gossip[2];
static volatile int gossip_over, gossip_id;

static void *gossip_main(void *ctx) {
    gossip_rank *g = (gossip_rank *)ctx;
    mesh_transport *t = honest_of((int)(g - gossip));
    mesh_comm_desc desc = MESH_ZERO;
    mesh_desc shape = MESH_ZERO;
    int two = 2, v[2], sum[2];
    mesh_error err;
    mesh m;
    shape.shape = &two;
    shape.naxes = 1;
    desc.timeout_ns = 20 * SECOND;
    CHECK_OK(mesh_make(&m, &shape, &err), err);
    CHECK_OK(mesh_comm_open(&g->comm, t, &m, &desc, &err), err);
    __sync_lock_test_and_set(&gossip_id, (int)g->comm.id);
    do {
        v[0] = __sync_fetch_and_add(&gossip_over, 0);
        v[1] = ++g->rounds;
        g->status = mesh_all_reduce(&g->comm, NULL, v, sum, 2, MESH_I32, MESH_SUM);
        if (g->status == MESH_OK && sum[1] != 2 * g->rounds) test_fail(__FILE__, __LINE__, "a sum is wrong");
    } while (g->status == MESH_OK && !sum[0]);
    return NULL;
}
/* Everything that the rogue has said to rank 0 has been taken: it knows the time. */
static void gossip_heard(uint32_t id) {
    unsigned char say[8], head[ROGUE_HEADER], data[4096];
    rogue_le(say, MESH__MSG_CLOCK, 4);
    rogue_le(say + 4, id, 4);
    rogue_frame(scene.fd, W_CONTROL, 0, 0, MESH_EVENT_MESSAGE, 0, say, 8);
    do {
        if (!rogue_frame_read(scene.fd, W_CONTROL, head, data)) {
            test_fail(__FILE__, __LINE__, "rank 0 has hung up");
            return;
        }
    } while (rogue_number(data, 4) != MESH__MSG_TIME || rogue_number(data + 4, 4) != id);
}
static void gossip_start(void) {
    int i;
    gossip_over = gossip_id = 0;
    memset(gossip, 0, sizeof gossip);
    scene.fd = rogue_join();
    honest[0].still = honest[1].still = 1; /* their threads run them */
    for (i = 0; i < 2; i++) CHECK(pthread_create(&gossip[i].thread, NULL, gossip_main, &gossip[i]) == 0);
    gossip_heard(1);
    while (!__sync_fetch_and_add(&gossip_id, 0)) gossip_heard(2);
}

/* Questions and answers of every kind and length, of comms that there are not: the one that there is goes on. */
static void test_gossip(void) {
    unsigned char say[MESH_CONTROL_BYTES];
    test_random rng = random_from(11);
    uint32_t kind, k, asked = 10;
    int i;
    gossip_start();
    for (kind = 0; kind < 12; kind++)
        for (k = 0; k < 120; k++) {
            uint32_t n = k < 100 ? 2 * k : (uint32_t)random_below(&rng, sizeof say + 1);
            for (i = 0; i < (int)sizeof say; i++)
                say[i] = k % 3 == 0 ? 0 : k % 3 == 1 ? 0xff : (unsigned char)random_next(&rng);
            rogue_le(say, kind, 4);
            if (kind == 11) { /* why a comm fails that is not open, or that the rogue is not in */
                rogue_le(say, k % 2 ? 1000 : (uint32_t)gossip_id, 4);
                rogue_le(say + 12, k % 4, 4);
            }
            rogue_frame(scene.fd, W_CONTROL, 0, 0, kind == 11 ? MESH_EVENT_ABORT : MESH_EVENT_MESSAGE, 0, say, n);
            if (k % 40 == 39) gossip_heard(asked++);
        }
    __sync_fetch_and_add(&gossip_over, 1);
    for (i = 0; i < 2; i++) pthread_join(gossip[i].thread, NULL);
    for (i = 0; i < 2; i++) {
        CHECK_OK(gossip[i].status, gossip[i].comm.error);
        CHECK_OK(mesh_comm_close(&gossip[i].comm), gossip[i].comm.error);
    }
    honest[0].still = honest[1].still = 0;
    honest_message(__LINE__, 0, 1, 1000);
    close(scene.fd);
    honest_down();
}

/* Why a comm fails, in the words of one of its ranks: the status is one that there is, the rank too, and the text goes no further than its buffer. */
static void abort_rank(mesh_transport *t, void *ctx) {
    static const struct {
        int status, rank, want, named;
    } wild[] = {{0, 1, MESH_ERR_PEER, 1},        {1, 1, MESH_ERR_PEER, 1},
                {77, 0, MESH_ERR_PEER, 0},       {INT_MAX, 1, MESH_ERR_PEER, 1},
                {INT_MIN, 1, MESH_ERR_PEER, 1},  {-10, 1, MESH_ERR_PEER, 1},
                {-9, -1, MESH_ERR_TRANSPORT, 2}, {-1, INT_MAX, MESH_ERR_ARGUMENT, 2},
                {-7, 3, MESH_ERR_PEER, 2},       {-6, INT_MIN, MESH_ERR_TIMEOUT, 2}};
    size_t i;
    int k;
    (void)ctx;
    for (i = 0; i < sizeof wild / sizeof wild[0]; i++) {
        unsigned char say[MESH_CONTROL_BYTES];
        mesh_comm c, all;
        if (!open_comm(t, &all, "x=3", NULL, 60 * SECOND) || !open_comm(t, &c, "x=3", NULL, 60 * SECOND)) return;
        memset(say, 'a', sizeof say);
        memset(say, 0, MESH__ABORT_HEAD);
        mesh__put32(say, c.id);
        mesh__put32(say + 4, (uint32_t)wild[i].status);
        mesh__put32(say + 8, (uint32_t)wild[i].rank);
        for (k = 0; k < 2 && t->rank == 2; k++)
            CHECK_INT(t->ops->control_send(t, k, MESH_EVENT_ABORT, say, sizeof say), MESH_OK);
        if (t->rank < 2) {
            CHECK_INT(mesh_barrier(&c, NULL), wild[i].want);
            CHECK_INT(c.error.status, wild[i].want);
            CHECK_INT(c.error.rank, wild[i].named);
            CHECK_HAS(c.error.text, "rank 2 failed: aaaaa");
            CHECK(strlen(c.error.text) < sizeof c.error.text);
        }
        CHECK_OK(mesh_barrier(&all, NULL), all.error);
        mesh_comm_close(&c);
        mesh_comm_close(&all);
    }
}
static void test_abort(void) {
    run_world(SIM, 3, abort_rank, NULL);
    run_world(TCP, 3, abort_rank, NULL);
}

/* Calls in dispute that nobody made, and comms that a stranger to them has closed: an error that there is, or none. */
static void test_dispute(void) {
    static const uint32_t flavour[] = {MESH__ABORT_CLOSED, 3, MESH__ABORT_CLOSED, UINT32_MAX, MESH__ABORT_CLOSED,
                                       MESH__ABORT_DISPUTE}; /* one of these: others are given a second to speak */
    test_random rng = random_from(12);
    int round, i;
    for (round = 0; round < 6; round++) {
        unsigned char say[MESH_CONTROL_BYTES];
        gossip_start();
        for (i = 0; i < (int)sizeof say; i++)
            say[i] = round % 3 == 0 ? 0 : round % 3 == 1 ? 0xff : (unsigned char)random_next(&rng);
        rogue_le(say, (uint32_t)gossip_id, 4);
        rogue_le(say + 12, flavour[round], 4);
        for (i = 0; i < 2 && round % 2; i++) /* of this comm, and its world */
            rogue_le(say + 16 + i * MESH__RECORD_BYTES,
                     (uint64_t)(unsigned)gossip_id << 40 | (unsigned)random_below(&rng, 9), 8);
        rogue_frame(scene.fd, W_CONTROL, 0, 0, MESH_EVENT_ABORT, 0, say, sizeof say);
        __sync_fetch_and_add(&gossip_over, 1);
        for (i = 0; i < 2; i++) pthread_join(gossip[i].thread, NULL);
        for (i = 0; i < 2; i++) {
            CHECK(gossip[i].status <= 0 && gossip[i].status >= MESH_ERR_TRANSPORT);
            CHECK_INT(gossip[i].status, gossip[i].comm.failed ? gossip[i].comm.error.status : MESH_OK);
            mesh_comm_close(&gossip[i].comm);
        }
        honest[0].still = honest[1].still = 0;
        honest_message(__LINE__, 0, 1, 1000);
        close(scene.fd);
        honest_down();
    }
}

static const test_case rogue_frame_tests[] = {
    {"rogue/frames", test_frames, 0},
    {"rogue/data", test_data, 0},
    {"rogue/forged", test_forged, 0},
    {"rogue/unlike", test_unlike, 0},
    {"rogue/cut_frames", test_cut_frames, 0},
    {"rogue/credit_sent", test_credit_sent, 0},
    {"rogue/credit_given", test_credit_given, 0},
    {"rogue/queues", test_queues, 0},
    {"rogue/words", test_words, 0},
    {"rogue/after_goodbye", test_after_goodbye, 0},
    {"rogue/told", test_told, 0},
    {"rogue/wild_frames", test_wild_frames, 0},
    {"rogue/gossip", test_gossip, 0},
    {"rogue/abort", test_abort, 0},
    {"rogue/dispute", test_dispute, 0},
};

#endif
