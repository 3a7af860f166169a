/* Connections of the socket transport, between right peers: who makes them, who is lost, how they close, what a rank does for its own sake. Uses
   t_sockets.h's ranks. */
#ifndef T_CONNECTIONS_H
#define T_CONNECTIONS_H

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
        mesh_socket__frame_send(law_impl(2), law_peer(2, 0)->conn, MESH_SOCKET__F_LOST, 1, 0, "?", 1);
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
    mesh_socket__frame_send(law_impl(1), law_peer(1, 0)->conn, MESH_SOCKET__F_LOST, 2, 0, "it fell", 7);
    mesh_socket__flush(law_impl(1), law_peer(1, 0)->conn);
    LAW_UNTIL(law_peer(0, 2)->conn->deadline);
    deadline = law_peer(0, 2)->conn->deadline;
    for (i = 0; i < N; i++) law_post(2, MESH_SEND, 0, memory, 60000, NULL, 1, &s[i]); /* more than one step reads */
    for (i = 0; i < 20; i++) law_step(2);
    mesh_socket__frame_send(law_impl(3), law_peer(3, 0)->conn, MESH_SOCKET__F_LOST, 2, 0, "it fell", 7);
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
    mesh_socket__frame_send(law_impl(1), law_peer(1, 0)->conn, MESH_SOCKET__F_LOST, 0, 0, "?", 1);
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

/* A message whose group is closed when half of it has come is dropped with the rest, and its room is there again. */
static void half_come_rank(mesh_transport *t, void *ctx) {
    enum { BYTES = 40000, FIRST = 1000 };
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_comm c;
    int k, left, v = 0, sum;
    (void)ctx;
    for (k = 0; k < 3; k++) {
        uint64_t channel;
        if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_all_reduce(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM), c.error);
        channel = (uint64_t)mesh__impl(&c)->group[0]->id << 32 | MESH__TAGGED | 5;
        if (t->rank == 1) {
            mesh_socket__conn *from = s->peer[0].conn;
            uint64_t lent = s->peer[0].lent;
            while (from->in_len != from->in_at) mesh_socket__parse(s, from);
            from->in_at = 0, from->in_len = MESH_SOCKET__HEADER + FIRST;
            mesh_socket__header(from->in, MESH_SOCKET__F_EAGER, BYTES, channel, 1, 0, 0);
            memset(from->in + MESH_SOCKET__HEADER, 0, FIRST);
            mesh_socket__parse(s, from);
            mesh_comm_close(&c);
            for (left = BYTES - FIRST; left > 0; left -= 3000) {
                from->in_at = 0, from->in_len = 3000;
                mesh_socket__parse(s, from);
            }
            CHECK(s->peer[0].early == NULL);
            CHECK(s->peer[0].lent <= lent + MESH_SOCKET__HEADER);
        } else {
            mesh_comm_close(&c);
        }
    }
}
static void test_half_come(void) { run_world(TCP, 2, half_come_rank, NULL); }

/* Bytes of a message that was not asked for as bytes are refused: its memory may be the caller's again. */
static void test_not_asked_for(void) {
    enum { BYTES = 300000 };
    char *out = (char *)calloc(2, BYTES);
    mesh_ticket sent, got;
    int i, found = 0;
    law_open(2, MESH_SOCKET_TCP);
    law_settle();
    law_post(1, MESH_RECV, 0, out + BYTES, BYTES, NULL, 1, &got);
    law_post(0, MESH_SEND, 1, out, BYTES, NULL, 1, &sent);
    for (i = 0; i < 10000 && !found; i++) {
        law_step(i % 2 == 0);
        found = law_impl(1)->nslots > 0 && law_impl(1)->slot[0] != NULL;
    }
    CHECK(found && law_impl(1)->slot[0]->accepted);
    if (found) law_impl(1)->slot[0]->accepted = 0;
    for (i = 0; i < 100000 && law_peer(1, 0)->conn; i++) law_step(i % 2);
    CHECK(law_peer(1, 0)->conn == NULL);
    CHECK(law_ended(1, &got) == MESH_ERR_PEER);
    free(out);
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

/* A host that answers no connection is given up like one that falls silent; so is one for which there is no descriptor. */
static void test_unanswered(void) {
    mesh_socket__peer *p;
    mesh_socket__conn *c;
    struct rlimit limit, none;
    struct sockaddr_storage a;
    socklen_t length;
    mesh_control m;
    int i, fds[64], n = 0;
    law_open(4, MESH_SOCKET_TCP);
    p = law_peer(1, 2);
    mesh_socket__sockaddr(&law_impl(1)->book[2], &a, &length);
    c = mesh_socket__connect_to(law_impl(1), (struct sockaddr *)(void *)&a, length, 2);
    CHECK(c && c->begun && c->state == MESH_SOCKET__CONNECTING);
    mesh_socket__look(law_impl(1), c->begun + MESH_SOCKET__SILENCE_NS);
    CHECK(!c->broken);
    law_impl(1)->looked = 0;
    mesh_socket__look(law_impl(1), c->begun + MESH_SOCKET__SILENCE_NS + 1);
    CHECK(c->broken);
    mesh_socket__tend(law_impl(1));
    CHECK_INT(p->gone, MESH_EVENT_CLOSED);
    while (law_of(1)->ops->control_poll(law_of(1), &m) == MESH_OK && m.rank != 2) {}
    m.data[m.nbytes] = 0;
    CHECK_HAS((char *)m.data, "its host has not answered for 20 s");
    p = law_peer(1, 3);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    while (n < 64 && (fds[n] = dup(1)) >= 0) n++;
    none.rlim_cur = (rlim_t)fds[n - 1]; /* of the descriptors below it all are used, or as good as */
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &none), 0);
    mesh_socket__reach(law_impl(1), 3);
    CHECK(p->short_since && p->retry_at && !p->gone);
    p->retry_at = 0, p->short_since -= MESH_SOCKET__SILENCE_NS;
    mesh_socket__reach(law_impl(1), 3);
    CHECK_INT(p->gone, MESH_EVENT_CLOSED);
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (law_of(1)->ops->control_poll(law_of(1), &m) == MESH_OK && m.rank != 3) {}
    m.data[m.nbytes] = 0;
    CHECK_HAS((char *)m.data, "raise ulimit -n");
    for (i = 0; i < n; i++) close(fds[i]);
    law_close();
}

static const test_case connections_tests[] = {
    {"sockets/unanswered", test_unanswered, 0},
    {"sockets/both_begin", test_both_begin, 0},
    {"sockets/begin_again", test_begin_again, 0},
    {"sockets/lost", test_lost, 0},
    {"sockets/half_read", test_half_read, 0},
    {"sockets/read_first", test_read_first, 0},
    {"sockets/doubt_once", test_doubt_once, 0},
    {"sockets/leaves_nothing", test_leaves_nothing, 0},
    {"sockets/progress", test_progress, 0},
    {"sockets/said_last", test_said_last, 0},
    {"sockets/watched", test_watched, 0},
    {"sockets/close_in_vain", test_close_in_vain, 0},
    {"sockets/half_come", test_half_come, 0},
    {"sockets/not_asked_for", test_not_asked_for, 0},
};

#endif
