/* mesh/messages.h, p2p.h: messages of unknown length, tags, in place. What conformance.h does not cover: what is refused, who disagrees, who waits. */
#ifndef T_MESSAGES_H
#define T_MESSAGES_H

enum { MESSAGE_ROOM = 1 << 17 };
static const size_t message_sizes[] = {0, 1, 2, 7, 1000, 4095, 4096, 4097, 5000, 70000, MESSAGE_ROOM};
enum { MESSAGE_SIZES = sizeof message_sizes / sizeof message_sizes[0] };

static int32_t message_cell(int from, int to, size_t number, size_t i) {
    return (int32_t)((size_t)from * 1000003 + (size_t)to * 10007 + number * 101 + i * 7 + 1);
}
static void message_fill(int32_t *p, int from, int to, size_t number, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) p[i] = message_cell(from, to, number, i);
}
/* What came is right, and what lies behind is as it was. */
static int message_wrong(const int32_t *p, int from, int to, size_t number, size_t n, size_t room) {
    size_t i;
    int wrong = 0;
    for (i = 0; i < n; i++) wrong += p[i] != message_cell(from, to, number, i);
    for (; i < room; i++) wrong += p[i] != -5;
    return wrong;
}

/* Several messages of any lengths at once between neighbours, received in any order of waiting; then both ways at once, and shifts. */
static void lengths_rank(mesh_transport *t, void *ctx) {
    enum { FLIGHT = 4 };
    int n = t->size, me = t->rank, next = (me + 1) % n, last = (me + n - 1) % n, round, k;
    int32_t *out[FLIGHT], *in[FLIGHT];
    size_t got_none;
    test_random r = random_from(61); /* the same on every rank */
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (k = 0; k < FLIGHT; k++) {
        out[k] = (int32_t *)malloc(MESSAGE_ROOM * 4);
        in[k] = (int32_t *)malloc((MESSAGE_ROOM + 16) * 4);
    }
    for (round = 0; round < 60; round++) {
        mesh_request send[FLIGHT], recv[FLIGHT];
        size_t sizes[FLIGHT], got[FLIGHT];
        int order[FLIGHT], early = random_below(&r, 2), flight = 1 + random_below(&r, FLIGHT), i;
        for (k = 0; k < flight; k++) {
            sizes[k] = message_sizes[random_below(&r, MESSAGE_SIZES - (round % 8 ? 2 : 0))];
            order[k] = k;
        }
        for (k = flight - 1; k > 0; k--) {
            int other = random_below(&r, k + 1), was = order[k];
            order[k] = order[other], order[other] = was;
        }
        for (k = 0; k < flight; k++) {
            message_fill(out[k], me, next, (size_t)k, sizes[k]);
            for (i = 0; i < MESSAGE_ROOM; i++) in[k][i] = -5;
        }
        for (i = 0; i < 2; i++)
            for (k = 0; k < flight; k++)
                if (i == early)
                    CHECK_OK(mesh_send_v_start(&c, "x", next, out[k], sizes[k], MESH_I32, &send[k]), c.error);
                else /* room for just that, or more */
                    CHECK_OK(mesh_recv_v_start(&c, "x", last, in[k], k % 2 ? sizes[k] : (size_t)MESSAGE_ROOM, &got[k],
                                               MESH_I32, &recv[k]),
                             c.error);
        for (k = 0; k < flight; k++) {
            CHECK_OK(mesh_wait(recv[order[k]]), c.error);
            CHECK_INT(got[order[k]], sizes[order[k]]);
            CHECK_INT(message_wrong(in[order[k]], last, me, (size_t)order[k], sizes[order[k]], MESSAGE_ROOM), 0);
        }
        for (k = 0; k < flight; k++) CHECK_OK(mesh_wait(send[order[k]]), c.error);
        if (test_failures) break;
    }
    for (round = 0; round < 4 * MESSAGE_SIZES && !test_failures; round++) { /* each direction its own length */
        size_t sizes[8], got = 99, many = message_sizes[round % MESSAGE_SIZES];
        int edge = round % 2, i, from = last;
        for (k = 0; k < n; k++) sizes[k] = message_sizes[(round * 3 + k) % MESSAGE_SIZES];
        for (i = 0; i < MESSAGE_ROOM; i++) in[0][i] = -5;
        message_fill(out[0], me, next, 9, sizes[me]);
        if (round % 4 < 2) {
            CHECK_OK(mesh_shift_v(&c, "x", 1, !edge, out[0], sizes[me], in[0], MESSAGE_ROOM, &got, MESH_I32), c.error);
            if (edge && me == 0) from = -1;
        } else {
            if (edge && me == 0) from = -1;
            CHECK_OK(mesh_sendrecv_v(&c, "x#3", edge && me == n - 1 ? -1 : next, out[0], sizes[me], from, in[0],
                                     MESSAGE_ROOM, &got, MESH_I32),
                     c.error);
        }
        CHECK_INT(got, from < 0 ? 0 : sizes[last]);
        CHECK_INT(message_wrong(in[0], last, me, 9, got, MESSAGE_ROOM), 0);
        message_fill(out[0], me, me, 1, many); /* with oneself */
        CHECK_OK(mesh_sendrecv_v(&c, "x", me, out[0], many, me, in[0], MESSAGE_ROOM, &got, MESH_I32), c.error);
        CHECK_INT(got, many);
        CHECK_INT(message_wrong(in[0], me, me, 1, got, got), 0);
    }
    got_none = 1;
    CHECK_OK(mesh_sendrecv_v(&c, "x", -1, NULL, 0, -1, NULL, 0, &got_none, MESH_I32), c.error);
    CHECK_INT(got_none, 0);
    for (k = 0; k < FLIGHT; k++) free(out[k]), free(in[k]);
    mesh_comm_close(&c);
}
static void test_message_lengths(void) {
    int b;
    for (b = 0; b < BACKENDS; b++) run_world(b, 3, lengths_rank, NULL);
}

/* Objects: of growing and shrinking size into the same memory. */
static void message_objects_rank(mesh_transport *t, void *ctx) {
    mesh_object o = MESH_ZERO;
    unsigned char *bytes = (unsigned char *)malloc(1 << 18);
    mesh_comm c;
    int k;
    size_t i;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    for (k = 0; k < MESSAGE_SIZES; k++) {
        size_t n = message_sizes[k * 7 % MESSAGE_SIZES] * 2;
        for (i = 0; i < n; i++) bytes[i] = (unsigned char)(i * 3 + (size_t)k);
        if (t->rank == 0) {
            CHECK_OK(mesh_send_v(&c, "x#1", 1, bytes, n, MESH_BYTES), c.error);
            continue;
        }
        CHECK_OK(mesh_recv_object(&c, "x#1", 0, &o), c.error);
        CHECK_INT(o.nbytes, n);
        CHECK(!memcmp(o.data, bytes, n));
    }
    mesh_object_free(&c, &o);
    free(bytes);
    mesh_comm_close(&c);
}
static void test_message_objects(void) {
    int b;
    for (b = 0; b < BACKENDS; b++) run_world(b, 2, message_objects_rank, NULL);
}

/* Streams do not wait for each other: what is sent first is received last. And a thousand tags find their counts again. */
static void tags_rank(mesh_transport *t, void *ctx) {
    int32_t *big = (int32_t *)malloc(40000 * 4), *got = (int32_t *)malloc(40000 * 4); /* each rank's: they may be threads */
    mesh_request r[5];
    mesh_comm c;
    int32_t v[5] = {10, 11, 12, 13, 14}, w = 0;
    int k;
    static const char *const names[] = {"x#1", "x", "x#2", "#7", "x#1073741823"};
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    for (k = 0; k < 5 && t->rank == 0; k++)
        CHECK_OK(mesh_send_start(&c, names[k], 1, &v[k], 1, MESH_I32, &r[k]), c.error);
    for (k = 4; k >= 0 && t->rank == 1; k--) {
        CHECK_OK(mesh_recv(&c, names[k], 0, &w, 1, MESH_I32), c.error);
        CHECK_INT(w, v[k]);
    }
    for (k = 0; k < 5 && t->rank == 0; k++) CHECK_OK(mesh_wait(r[k]), c.error);
    for (k = 0; k < 40000; k++) big[k] = k;
    if (t->rank == 0) { /* beyond what goes eagerly */
        CHECK_OK(mesh_send_start(&c, "x#5", 1, big, 40000, MESH_I32, &r[0]), c.error);
        CHECK_OK(mesh_send_start(&c, "x#6", 1, big + 1, 39999, MESH_I32, &r[1]), c.error);
        CHECK_OK(mesh_wait(r[1]), c.error);
        CHECK_OK(mesh_wait(r[0]), c.error);
    } else {
        CHECK_OK(mesh_recv(&c, "x#6", 0, got, 39999, MESH_I32), c.error);
        CHECK(!memcmp(got, big + 1, 39999 * 4));
        CHECK_OK(mesh_recv(&c, "x#5", 0, got, 40000, MESH_I32), c.error);
        CHECK(!memcmp(got, big, 40000 * 4));
    }
    for (k = 0; k < 2000; k++) {
        char axes[24];
        snprintf(axes, sizeof axes, "x#%d", 1 + k % 1000);
        CHECK_OK(mesh_sendrecv(&c, axes, 1 - t->rank, &k, 1, 1 - t->rank, &w, 1, MESH_I32), c.error);
        CHECK_INT(w, k);
        if (test_failures) break;
    }
    for (k = 0; k < 1000; k++) {
        mesh__group *g = mesh__group_find(mesh__impl(&c), "x");
        mesh__stream *s = mesh__stream_find(g, MESH__TAGGED | (uint32_t)(k + 1), 1 - t->rank);
        CHECK(s->used && s->count[0] >= 2 && s->count[1] >= 2);
    }
    free(big);
    free(got);
    mesh_comm_close(&c);
}
static void test_message_tags(void) {
    int b;
    for (b = 0; b < BACKENDS; b++) run_world(b, 2, tags_rank, NULL);
}

/* In place: every rank's data go on by one, or are swapped between two, without a second buffer. */
static void in_place_rank(mesh_transport *t, void *ctx) {
    int32_t *p = (int32_t *)malloc(MESSAGE_ROOM * 4);
    int n = t->size, me = t->rank, next = (me + 1) % n, last = (me + n - 1) % n, k;
    mesh_comm c;
    mesh_request r = MESH_ZERO;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (k = 1; k < MESSAGE_SIZES; k++) {
        size_t m = message_sizes[k];
        message_fill(p, me, 0, 0, m);
        CHECK_OK(mesh_sendrecv(&c, "x", next, p, m, last, p, m, MESH_I32), c.error);
        CHECK_INT(message_wrong(p, last, 0, 0, m, m), 0);
        message_fill(p, me, 0, 1, m);
        CHECK_OK(mesh_shift(&c, "x#2", -1, 1, p, p, m, MESH_I32), c.error);
        CHECK_INT(message_wrong(p, next, 0, 1, m, m), 0);
        message_fill(p, me, 0, 2, m);
        CHECK_OK(mesh_shift(&c, "x", 1, 0, p, p, m, MESH_I32), c.error); /* at the edge it stays as it is */
        CHECK_INT(message_wrong(p, me ? last : 0, 0, 2, m, m), 0);
        message_fill(p, me, 0, 3, m);
        CHECK_OK(mesh_sendrecv(&c, "x", me, p, m, me, p, m, MESH_I32), c.error); /* with oneself */
        CHECK_INT(message_wrong(p, me, 0, 3, m, m), 0);
    }
    message_fill(p, me, 0, 4, 100); /* kept: what lies there then is sent each time */
    CHECK_OK(mesh_shift_start(&c, "x", 1, 1, p, p, 100, MESH_I32, &r), c.error);
    CHECK_OK(mesh_keep(r), c.error);
    for (k = 1; k < n; k++) {
        CHECK_OK(mesh_wait(r), c.error);
        CHECK_INT(message_wrong(p, (me + n - k) % n, 0, 4, 100, 100), 0);
        CHECK_OK(mesh_restart(r), c.error);
    }
    CHECK_OK(mesh_wait(r), c.error);
    CHECK_INT(message_wrong(p, me, 0, 4, 100, 100), 0);
    CHECK_OK(mesh_release(r), c.error);
    free(p);
    mesh_comm_close(&c);
}
static void test_message_in_place(void) {
    int b;
    for (b = 0; b < BACKENDS; b++) run_world(b, 3, in_place_rank, NULL);
}

/* ---- kept requests with other buffers ---- */

static void rebind_rank(mesh_transport *t, void *ctx) {
    enum { N = 5000, KINDS = 15 };
    int n = t->size, me = t->rank, next = (me + 1) % n, last = (me + n - 1) % n, kind, round, k;
    size_t counts[3] = {7, 0, 40}, offsets[3] = {100, 0, 5};
    int32_t *buffer[2][2], *want = (int32_t *)malloc(3 * N * 4);
    mesh_comm c;
    mesh_request r;
    (void)ctx;
    if (!open_comm(t, &c, "x=3,y=1", NULL, 20 * SECOND)) return;
    for (k = 0; k < 4; k++) buffer[k / 2][k % 2] = (int32_t *)malloc(3 * N * 4);
    for (kind = 0; kind < KINDS; kind++)
        for (round = 0; round < 3;
             round++) { /* on its own buffers, on others, on one other; each against the same call made anew */
            int32_t *in = buffer[round % 2][0], *out = buffer[round > 0][1], *to = out;
            size_t many = kind % 2 ? 900 : 13, v;
            mesh_status status = MESH_OK;
            int again;
            for (again = 1; again >= 0; again--) {
                for (v = 0; v < 3 * N; v++) in[v] = (int32_t)v * (me + 2) + round * 31 + kind, out[v] = -5;
                if (!again && round) {
                    status = mesh_rebind(r, kind == 10 ? in + many * (size_t)me : in, kind >= 10 ? in : out);
                    CHECK_INT(status, MESH_OK);
                    CHECK_OK(mesh_restart(r), c.error);
                    CHECK_OK(mesh_wait(r), c.error);
                } else {
                    mesh_request fresh;
                    to = kind >= 10 ? in : out; /* the last kinds are in place */
                    status = kind == 0   ? mesh_all_reduce_start(&c, NULL, in, to, many, MESH_I32, MESH_SUM, &fresh)
                             : kind == 1 ? mesh_all_reduce_start(&c, NULL, in, to, many, MESH_I32, MESH_MAX, &fresh)
                             : kind == 2 ? mesh_all_gather_start(&c, NULL, in, to, many, MESH_I32, &fresh)
                             : kind == 3 ? mesh_reduce_scatter_start(&c, NULL, in, to, many, MESH_I32, MESH_SUM, &fresh)
                             : kind == 4 ? mesh_all_to_all_start(&c, NULL, in, to, many, MESH_I32, &fresh)
                             : kind == 5 ? mesh_all_gather_v_start(&c, NULL, in, to, counts, offsets, MESH_I32, &fresh)
                             : kind == 6 ? mesh_broadcast_start(&c, NULL, in, to, many, MESH_I32, 1, &fresh)
                             : kind == 7 ? mesh_exscan_start(&c, NULL, in, to, many, MESH_I32, MESH_SUM, &fresh)
                             : kind == 8
                                 ? mesh_sendrecv_start(&c, NULL, next, in, many, last, to, many, MESH_I32, &fresh)
                             : kind == 9 ? mesh_shift_start(&c, NULL, 1, 0, in, to, many, MESH_I32, &fresh)
                             : kind == 10
                                 ? mesh_all_gather_start(&c, NULL, in + many * (size_t)me, in, many, MESH_I32, &fresh)
                             : kind == 11 ? mesh_shift_start(&c, "x", 1, 1, in, in, many, MESH_I32, &fresh)
                             : kind == 13 ? mesh_shift_start(&c, "y", 1, 1, in, in, many, MESH_I32, &fresh)
                             : kind == 14 ? mesh_exscan_start(&c, NULL, in, in, many, MESH_I32, MESH_SUM, &fresh)
                                          : mesh_all_reduce_start(&c, NULL, in, in, many, MESH_I32, MESH_SUM, &fresh);
                    CHECK_INT(status, MESH_OK);
                    if (!again) { /* the first round: kept from here on */
                        r = fresh;
                        CHECK_OK(mesh_keep(r), c.error);
                    }
                    CHECK_OK(mesh_wait(fresh), c.error);
                }
                if (again) memcpy(want, to, 3 * N * 4);
            }
            CHECK(!memcmp(want, to, 3 * N * 4));
            if (test_failures) return;
            if (round < 2) continue;
            if (kind < 10) { /* and what was not is not: each rank sees what it would send and receive itself */
                int alone = me == 1 ? kind == 5 : kind == 6 || kind == 9 || (kind == 7 && me == 0); /* it does only one of both, or nothing */
                CHECK_INT(mesh_rebind(r, out, NULL), alone ? MESH_OK : MESH_ERR_ARGUMENT);
                if (!alone) CHECK_HAS(c.error.text, "the new send and recv overlap, and");
                if (alone) CHECK_OK(mesh_rebind(r, in, NULL), c.error);
                CHECK_INT(mesh_rebind(r, buffer[1][0] + 1, buffer[1][0]), alone ? MESH_OK : MESH_ERR_ARGUMENT);
                if (!alone) CHECK_OK(mesh_rebind(r, in + 2 * N, out), c.error);
            }
            if (kind >= 10) { /* what was in place stays so */
                if (kind % 2) CHECK_INT(mesh_rebind(r, buffer[0][0], NULL), MESH_ERR_ARGUMENT);
                int alone = kind == 14 && me == 0; /* it receives nothing */
                CHECK_INT(mesh_rebind(r, buffer[0][0], buffer[1][1]), alone ? MESH_OK : MESH_ERR_ARGUMENT);
                if (!alone) CHECK_HAS(c.error.text, "is in place; give buffers that lie to each other as before");
            }
            CHECK_OK(mesh_release(r), c.error);
        }
    CHECK_OK(mesh_barrier_start(&c, NULL, &r), c.error);
    CHECK_INT(mesh_rebind(r, want, want), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_rebind: the request is not kept");
    CHECK_OK(mesh_keep(r), c.error);
    CHECK_INT(mesh_rebind(r, want, want), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "under way");
    CHECK_OK(mesh_wait(r), c.error);
    CHECK_INT(mesh_rebind(r, want, want), MESH_ERR_UNSUPPORTED);
    CHECK_OK(mesh_release(r), c.error);
    CHECK_INT(mesh_rebind(r, want, want), MESH_ERR_STATE);
    for (k = 0; k < 4; k++) free(buffer[k / 2][k % 2]);
    free(want);
    mesh_comm_close(&c);
}
static void test_rebind(void) {
    int b;
    for (b = 0; b < BACKENDS; b++) run_world(b, 3, rebind_rank, NULL);
}

/* ---- what goes wrong ---- */

static void message_wrong_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx, k, v;
    static int32_t a[30000], b[30000];
    size_t got = 7;
    mesh_comm c;
    mesh_status status = MESH_OK;
    size_t sent = what == 1 ? 30000 : 11;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (k = 0; k < 30000; k++) b[k] = -5;
    switch (what) {
    case 0: /* less room than comes */
    case 1:
        status = t->rank ? mesh_recv_v(&c, "x", 0, b, 10, &got, MESH_I32) : mesh_send_v(&c, "x", 1, a, sent, MESH_I32);
        break;
    case 2: /* a length on one side only */
        status = t->rank ? mesh_recv(&c, "x", 0, b, 2, MESH_I32) : mesh_send_v(&c, "x", 1, a, 2, MESH_I32);
        break;
    case 3:
        status = t->rank ? mesh_recv_v(&c, "x", 0, b, 10, &got, MESH_I64) : mesh_send(&c, "x", 1, a, 2, MESH_I32);
        break;
    case 4: /* other dtypes */
        status = t->rank ? mesh_recv_v(&c, "x", 0, b, 10, &got, MESH_I64) : mesh_send_v(&c, "x", 1, a, 2, MESH_I32);
        break;
    case 6: /* that they have sent to a third does not help those who wait for each other */
        for (k = 0; k < 6; k++)
            if (t->rank == 2) CHECK_OK(mesh_recv(&c, "x#1", k % 2, &v, 1, MESH_I32), c.error);
        for (k = 0; k < 3 && t->rank < 2; k++) CHECK_OK(mesh_send(&c, "x#1", 2, &k, 1, MESH_I32), c.error);
        if (t->rank < 2) status = mesh_recv(&c, "x#1", 1 - t->rank, b, 1, MESH_I32);
        break;
    default: /* both wait for what the other sends under another tag */
        status = mesh_recv(&c, t->rank ? "x#1" : "x#2", 1 - t->rank, b, 1, MESH_I32);
        break;
    }
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK_INT(status, what < 2 ? MESH_ERR_ARGUMENT : MESH_ERR_MISMATCH);
    if (what < 2) {
        CHECK_INT(c.error.rank, 1);
        char text[60];
        snprintf(text, sizeof text, "rank 0 sends %d elements, but there is room for 10", (int)sent);
        CHECK_HAS(c.error.text, text);
    } else if (what < 5) {
        CHECK_HAS(c.error.text, "rank 0 calls send");
        CHECK_HAS(c.error.text, "rank 1 calls recv");
        CHECK_HAS(c.error.text, "; give a message one count and dtype at both ends, and the v-form at both or at neither");
    } else {
        CHECK_HAS(c.error.text, "a cycle of ranks");
        CHECK_HAS(c.error.text, "recv(1 x i32) on \"x\", tag 1");
        if (what == 5) CHECK_HAS(c.error.text, "recv(1 x i32) on \"x\", tag 2");
        CHECK(!strstr(c.error.text, "sequence"));
    }
    for (k = 0; k < 30000; k++) CHECK(b[k] == -5 || test_failures);
    mesh_comm_close(&c);
}
static void test_message_wrong(void) {
    static const int backends[] = {SIM, TCP, UNIX, SHARED};
    int what, b;
    for (b = 0; b < 3; b++)
        for (what = 0; what < 7; what++) run_world(backends[b], what == 6 ? 3 : 2, message_wrong_rank, &what);
}

/* A large message that its receiver has not asked for yet is nobody's fault. */
static void message_late_rank(mesh_transport *t, void *ctx) {
    static int32_t a[300000];
    size_t got = 0;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    if (t->rank == 1) pause_rank(t, SECOND);
    if (t->rank == 0) CHECK_OK(mesh_send_v(&c, "x#9", 1, a, 300000, MESH_I32), c.error);
    if (t->rank == 1) CHECK_OK(mesh_recv_v(&c, "x#9", 0, a, 300000, &got, MESH_I32), c.error);
    if (t->rank == 1) CHECK_INT(got, 300000);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    mesh_comm_close(&c);
}
static void test_message_late(void) {
    static const int backends[] = {SIM, TCP, UNIX, SHARED};
    int b;
    for (b = 0; b < 4; b++) run_world(backends[b], 3, message_late_rank, NULL);
}

static void message_refused_rank(mesh_transport *t, void *ctx) {
    static int32_t a[64], b[64];
    int me = t->rank, next = (me + 1) % t->size, k;
    size_t got;
    refuser f;
    mesh_request r;
    mesh_object o = MESH_ZERO;
    (void)ctx;
    if (!refuser_open(&f, t, "x=-1", 607)) return;
    for (k = 0; k < 26; k++) {
        static const struct {
            mesh_status status;
            const char *says;
        } want[] = {{MESH_ERR_ARGUMENT, "send_v(\"x\"): peer 3 is outside the group of 3"},
                    {MESH_ERR_ARGUMENT, "send_v(\"x\"): peer -1 is outside"},
                    {MESH_ERR_ARGUMENT, "recv_v(\"x\"): peer -1 is outside"},
                    {MESH_ERR_ARGUMENT, "recv_object(\"x\"): peer -1 is outside"},
                    {MESH_ERR_ARGUMENT, "a send to oneself"},
                    {MESH_ERR_ARGUMENT, "a receive from oneself"},
                    {MESH_ERR_ARGUMENT, "a receive from oneself"},
                    {MESH_ERR_ARGUMENT, "5 elements to oneself, but there is room for 4"},
                    {MESH_ERR_ARGUMENT, "less than 1 TiB"},
                    {MESH_ERR_ARGUMENT, "send is NULL with 4 elements"},
                    {MESH_ERR_ARGUMENT, "the object is NULL"},
                    {MESH_ERR_ARGUMENT, "the count, to be written, is NULL"},
                    {MESH_ERR_ARGUMENT, "overflows"},
                    {MESH_ERR_ARGUMENT, "recv is NULL with room for 4"},
                    {MESH_ERR_ARGUMENT, "send and recv overlap"},
                    {MESH_ERR_ARGUMENT, "dtype 99 is none"},
                    {MESH_ERR_ARGUMENT, "a tag is a number from 1 to 1073741823"},
                    {MESH_ERR_ARGUMENT, "a tag is a number"},
                    {MESH_ERR_ARGUMENT, "a tag is a number"},
                    {MESH_ERR_ARGUMENT, "a tag is a number"},
                    {MESH_ERR_ARGUMENT, "a tag is a number"},
                    {MESH_ERR_ARGUMENT, "no axis \"q\""},
                    {MESH_ERR_ARGUMENT, "no axis"},
                    {MESH_ERR_ARGUMENT, "name its axes as \"a,b\"; tags are for messages: send, recv, sendrecv, shift, exchange"},
                    {MESH_ERR_ARGUMENT, "what is received overlaps"},
                    {MESH_ERR_ARGUMENT, "not the same (in place)"}};
        static const char *const tags[] = {"x#0", "x#1073741824", "x#", "x#1 ", "x#-1"};
        char axes[280];
        memset(axes, 'y', sizeof axes);
        strcpy(axes + sizeof axes - 3, "#1");
        mesh_status status =
            k == 0   ? mesh_send_v_start(&f.c, "x", 3, a, 4, MESH_I32, &r)
            : k == 1 ? mesh_send_v_start(&f.c, "x", -1, a, 4, MESH_I32, &r)
            : k == 2 ? mesh_recv_v_start(&f.c, "x", -1, a, 4, &got, MESH_I32, &r)
            : k == 3 ? mesh_recv_object_start(&f.c, "x", -1, &o, &r)
            : k == 4 ? mesh_send_v_start(&f.c, "x", me, a, 4, MESH_I32, &r)
            : k == 5 ? mesh_recv_v_start(&f.c, "x", me, a, 4, &got, MESH_I32, &r)
            : k == 6 ? mesh_sendrecv_v_start(&f.c, "x", next, a, 4, me, b, 4, &got, MESH_I32, &r)
            : k == 7 ? mesh_sendrecv_v_start(&f.c, "x", me, a, 5, me, b, 4, &got, MESH_I32, &r)
            : k == 8
                ? mesh_send_v_start(&f.c, "x", next, a,
                                    (size_t)(SIZE_MAX >> 24 > 255 ? UINT64_C(1) << 38 : SIZE_MAX / 4), MESH_I32, &r)
            : k == 9  ? mesh_send_v_start(&f.c, "x", next, NULL, 4, MESH_I32, &r)
            : k == 10 ? mesh_recv_object_start(&f.c, "x", next, NULL, &r)
            : k == 11 ? mesh_recv_v_start(&f.c, "x", next, a, 4, NULL, MESH_I32, &r)
            : k == 12 ? mesh_recv_v_start(&f.c, "x", next, a, SIZE_MAX / 4, &got, MESH_I32, &r)
            : k == 13 ? mesh_recv_v_start(&f.c, "x", next, NULL, 4, &got, MESH_I32, &r)
            : k == 14 ? mesh_shift_v_start(&f.c, "x", 1, 1, a, 4, a + 3, 4, &got, MESH_I32, &r)
            : k == 15 ? mesh_send_v_start(&f.c, "x", next, a, 4, (mesh_dtype)99, &r)
            : k < 21  ? mesh_send_start(&f.c, tags[k - 16], next, a, 4, MESH_I32, &r)
            : k == 21 ? mesh_send_start(&f.c, "q#1", next, a, 4, MESH_I32, &r)
            : k == 22 ? mesh_send_start(&f.c, axes, next, a, 4, MESH_I32, &r)
            : k == 23 ? mesh_barrier_start(&f.c, "x#1", &r)
            : k == 24 ? mesh_sendrecv_start(&f.c, "x", next, a, 4, next, a + 3, 4, MESH_I32, &r)
                      : mesh_shift_start(&f.c, "x", 1, 1, a, a + 3, 4, MESH_I32, &r);
        CHECK_INT(status, want[k].status);
        CHECK_HAS(f.c.error.text, want[k].says);
        refuser_forget(&f);
    }
    CHECK_OK(mesh_send_v_start(&f.c, "x", next, a, 4, MESH_I32, &r), f.c.error);
    CHECK_INT(mesh_keep(r), MESH_ERR_UNSUPPORTED);
    CHECK_OK(mesh_recv_v(&f.c, "x", (me + 2) % 3, b, 64, &got, MESH_I32), f.c.error);
    CHECK_INT(got, 4);
    CHECK_OK(mesh_wait(r), f.c.error);
    refuser_close(&f);
}
static void test_message_refused(void) { run_world(SIM, 3, message_refused_rank, NULL); }

/* ---- prepared ---- */

/* Prepared on some ranks and started on others, of every kind: nothing is sent before the restart, the results are those of the call, rebound too;
   a blocking call between is not prepared. */
static void prepared_rank(mesh_transport *t, void *ctx) {
    enum { KINDS = 8, N = 9 };
    mesh_comm c, alone;
    mesh m;
    mesh_desc one = MESH_ZERO;
    void *memory, *handle;
    mesh_object object = MESH_ZERO;
    mesh_error err;
    static const int size = 1;
    mesh_request r[KINDS], none, kept;
    int32_t a[N * 4], b[KINDS][N * 4], other[N * 4], want;
    uint64_t sent = 0, before = 0;
    int k, i, round, me = t->rank, n = t->size, prepares = me != 1;
    (void)ctx;
    if (!open_comm(t, &c, "x=4,y=1", NULL, 20 * SECOND)) return;
    for (i = 0; i < N * 4; i++) a[i] = 100 * me + i;
    mesh_comm_bytes(&c, NULL, &before, NULL);
    for (round = 0; round < 3; round++)
        for (k = 0; k < KINDS; k++) {
            mesh_tensor x, y;
            const int64_t shape[] = {4 * N};
            CHECK_OK(mesh_tensor_make(&x, &c.on, "x:S(0)", MESH_I32, 1, shape, &err), err);
            CHECK_OK(mesh_tensor_make(&y, &c.on, "x:R", MESH_I32, 1, shape, &err), err);
            x.data = a, y.data = b[k];
            if (round == 1 || (!prepares && round)) {
                if (prepares) CHECK_OK(mesh_restart(r[k]), c.error);
            } else if (round == 2) {
                if (k < 5) CHECK_OK(mesh_rebind(r[k], NULL, other), c.error);
                CHECK_OK(mesh_restart(r[k]), c.error);
            }
            if (round == 0 && !prepares) continue;
            if (round == 0) CHECK_INT(mesh_prepare(&c), MESH_OK);
            if (round == 0 || !prepares)
                CHECK_OK(k == 0   ? mesh_all_reduce_start(&c, NULL, a, b[k], N, MESH_I32, MESH_SUM, &r[k])
                         : k == 1 ? mesh_all_gather_start(&c, NULL, a, b[k], N, MESH_I32, &r[k])
                         : k == 2 ? mesh_broadcast_start(&c, NULL, a, b[k], N, MESH_I32, 2, &r[k])
                         : k == 3
                             ? mesh_sendrecv_start(&c, NULL, (me + 1) % n, a, N, (me + 3) % n, b[k], N, MESH_I32, &r[k])
                         : k == 4 ? mesh_shift_start(&c, NULL, 1, 1, a, b[k], N, MESH_I32, &r[k])
                         : k == 5 ? mesh_barrier_start(&c, NULL, &r[k])
                         : k == 6 ? mesh_redistribute_start(&c, &x, &y, &r[k])
                                  : mesh_all_to_all_start(&c, NULL, a, b[k], N, MESH_I32, &r[k]),
                         c.error);
            if (round == 0) {
                CHECK_INT(mesh_test(r[k]), MESH_ERR_STATE); /* it rests */
                c.error.text[0] = 0;
                continue;
            }
            CHECK_OK(mesh_wait(r[k]), c.error);
            for (i = 0; i < N && k != 5; i++) {
                const int32_t *got = round == 2 && k < 5 && prepares ? other : b[k];
                want = k == 0             ? 600 + 4 * i
                       : k == 1 || k == 6 ? i
                       : k == 2           ? 200 + i
                       : k < 5            ? 100 * ((me + 3) % n) + i
                                          : i + N * me;
                if (k == 1) want = i, got += 0;
                CHECK_INT(got[i], want);
            }
        }
    mesh_comm_bytes(&c, NULL, &sent, NULL);
    CHECK(sent > before);
    for (k = 0; k < KINDS && prepares; k++) CHECK_OK(mesh_release(r[k]), c.error);
    CHECK_INT(mesh_prepare(&c), MESH_OK);
    mesh_comm_bytes(&c, NULL, &before, NULL);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, other, N, MESH_I32, MESH_SUM), c.error); /* at once */
    CHECK_INT(other[1], 604);
    CHECK_OK(mesh_group_open(&c, "y,x"), c.error); /* these too: they are waited for */
    CHECK_OK(mesh_alloc(t, 4096, &memory, &err), err);
    CHECK_OK(mesh_register(&c, memory, 4096, &handle), c.error);
    CHECK_OK(mesh_all_reduce(&c, "y,x", a, other, N, MESH_I32, MESH_SUM), c.error);
    CHECK_INT(other[1], 604);
    CHECK_OK(mesh_barrier_start(&c, NULL, &kept), c.error);
    CHECK_INT(mesh_wait(kept), MESH_ERR_STATE);
    CHECK_INT(mesh_prepare(&c), MESH_OK);
    CHECK_OK(mesh_restart(kept), c.error); /* no start: the next one is still to be prepared */
    CHECK_OK(mesh_wait(kept), c.error);
    CHECK_OK(mesh_barrier_start(&c, NULL, &none), c.error);
    CHECK_INT(mesh_wait(none), MESH_ERR_STATE);
    CHECK_OK(mesh_release(none), c.error);
    CHECK_OK(mesh_release(kept), c.error);
    CHECK_OK(mesh_barrier_start(&c, NULL, &none), c.error); /* as ever */
    CHECK_OK(mesh_wait(none), c.error);
    one.shape = &size, one.naxes = 1, one.origin = me;
    CHECK_OK(mesh_make(&m, &one, &err), err);
    CHECK_OK(mesh_comm_open(&alone, t, &m, NULL, &err), err);
    CHECK_INT(mesh_prepare(&alone), MESH_OK);
    CHECK_INT(mesh_broadcast_object_start(&alone, NULL, &object, 0, &none), MESH_ERR_UNSUPPORTED);
    CHECK_HAS(alone.error.text, "no schedule that could be prepared");
    CHECK_INT(mesh_prepare(&alone), MESH_ERR_UNSUPPORTED); /* the comm has failed */
    mesh_comm_close(&alone);
    mesh_comm_close(&c);
    CHECK_INT(mesh_prepare(&c), MESH_ERR_STATE);
    CHECK_INT(mesh_prepare(NULL), MESH_ERR_STATE);
}
static void test_prepared(void) {
    run_world(SIM, 4, prepared_rank, NULL);
    run_world(TCP, 4, prepared_rank, NULL);
}

#if MESH_SOCKET__LINUX
/* ---- a loop of one's own ---- */

/* Rank 0 lives in poll alone: it is woken for every step of collectives and messages, for a deadline, for a rank that dies. */
static void armed_rank(mesh_transport *t, void *ctx) {
    enum { N = 200000 };
    static int32_t a[N], b[N];
    mesh_comm c;
    mesh_request r;
    mesh_status status;
    int64_t wake;
    int k, slept = 0, late = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 2 * SECOND)) return;
    CHECK(mesh_fd(t) >= 0);
    if (world_threaded) { /* a close that is refused leaves the thread, and what it tells, as they were */
        mesh_log log = t->log;
        int fd = mesh_fd(t);
        t->log = NULL;
        t->inside.lent++;
        CHECK_INT(mesh_socket_close(mesh_socket__of(t)->net), MESH_ERR_STATE);
        t->inside.lent--;
        t->log = log;
        CHECK(mesh_socket__of(t)->ended_fd[0] >= 0);
        CHECK_INT(mesh_fd(t), fd);
    }
    for (k = 0; k < 60; k++) {
        size_t n = k % 3 == 0 ? 1 : k % 3 == 1 ? 3000 : N;
        a[n - 1] = k + t->rank;
        if (t->rank) {
            if (k % 5 == t->rank) test_sleep(0.002);
            CHECK_OK(mesh_all_reduce(&c, NULL, a, b, n, MESH_I32, MESH_SUM), c.error);
            continue;
        }
        CHECK_INT(mesh_all_reduce_start(&c, NULL, a, b, n, MESH_I32, MESH_SUM, &r), MESH_OK);
        while ((status = mesh_test(r)) == MESH_IN_PROGRESS) {
            struct pollfd f;
            f.fd = mesh_fd(t), f.events = POLLIN;
            if (mesh_arm(t, &wake) == MESH_OK) {
                CHECK(wake > mesh_now(t) && wake <= mesh_now(t) + 2 * SECOND); /* the operation's deadline */
                slept++;
                late += poll(&f, 1, 10000) != 1;
            }
            CHECK_INT(mesh_progress(t, 0), MESH_OK);
        }
        CHECK_INT(status, MESH_OK);
        CHECK_INT(b[n - 1], 3 * k + 3);
    }
    CHECK(t->rank || slept > 0);
    CHECK_INT(late, 0);
    if (world_threaded && t->rank == 0) { /* what has ended since, and nobody has looked at, is told by the next arming too */
        struct pollfd f;
        CHECK_INT(mesh_recv_start(&c, NULL, 1, a, 1, MESH_I32, &r), MESH_OK);
        while (mesh_arm(t, &wake) != MESH_OK) CHECK_INT(mesh_progress(t, 0), MESH_OK);
        world_say(3);
        f.fd = mesh_fd(t), f.events = POLLIN;
        CHECK_INT(poll(&f, 1, 10000), 1);
        CHECK_INT(mesh_arm(t, &wake), MESH_IN_PROGRESS);
        CHECK_INT(mesh_test(r), MESH_OK);
    }
    if (world_threaded && t->rank == 1) {
        world_await(3, 1);
        CHECK_OK(mesh_send(&c, NULL, 0, a, 1, MESH_I32), c.error);
    }
    if (t->rank == 2) kill(getpid(), SIGKILL);
    if (t->rank == 0) {
        CHECK_INT(mesh_recv_start(&c, NULL, 2, a, 1, MESH_I32, &r), MESH_OK);
        while ((status = mesh_test(r)) == MESH_IN_PROGRESS) {
            struct pollfd f;
            f.fd = mesh_fd(t), f.events = POLLIN;
            if (mesh_arm(t, &wake) == MESH_OK)
                poll(&f, 1, wake == INT64_MAX ? 10000 : (int)((wake - mesh_now(t)) / 1000000) + 1);
            mesh_progress(t, 0);
        }
        CHECK_INT(status, MESH_ERR_PEER);
    }
    mesh_comm_close(&c);
}
#endif
static void armless_rank(mesh_transport *t, void *ctx) {
    int64_t wake = 0;
    (void)ctx;
    CHECK_INT(mesh_fd(t), -1);
    CHECK_INT(mesh_arm(t, &wake), MESH_ERR_UNSUPPORTED);
    CHECK_INT(mesh_arm(t, NULL), MESH_ERR_UNSUPPORTED);
}
static void test_armed(void) {
    run_world(SIM, 1, armless_rank, NULL);
#if MESH_SOCKET__LINUX
    for (world_threaded = 0; world_threaded < 2; world_threaded++) { /* with a progress thread that ends what is waited for */
        run_world_but(TCP, 3, armed_rank, NULL, 2);
        run_world_but(UNIX, 3, armed_rank, NULL, 2);
    }
    world_threaded = 0;
#else
    run_world(TCP, 1, armless_rank, NULL);
#endif
}

/* Blocking messages that end as they are posted leave nothing behind, whatever is under way beside them; a short one does not overtake a long one of the
   same call, nor of one before it. */
static void at_once_rank(mesh_transport *t, void *ctx) {
    enum { TURNS = 60, LONG = 1 << 18 };
    int n = t->size, me = t->rank, next = (me + 1) % n, last = (me + n - 1) % n, round, i, busy = 0;
    int32_t *far = (int32_t *)malloc(2 * LONG * 4), out[8], in[8], first[8], tagged[8];
    mesh_xfer x[4];
    mesh_comm c;
    mesh_request r[3];
    mesh__engine *e;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    e = mesh__impl(&c)->engine;
    for (round = 0; round < TURNS; round++) {
        size_t count = (size_t)(round % 8 + 1);
        memset(in, 0xff, sizeof in); /* -1, which no cell is */
        message_fill(out, me, next, (size_t)round, count);
        message_fill(first, me, next, 1000, 8);
        CHECK_OK(mesh_recv_start(&c, "x#3", last, tagged, 8, MESH_I32, &r[0]), c.error);
        CHECK_OK(mesh_sendrecv(&c, "x", next, out, count, last, in, count, MESH_I32), c.error);
        CHECK_INT(message_wrong(in, last, me, (size_t)round, count, 0), 0);
        CHECK_OK(mesh_send(&c, "x#3", next, first, 8, MESH_I32), c.error);
        CHECK_OK(mesh_wait(r[0]), c.error);
        CHECK_INT(message_wrong(tagged, last, me, 1000, 8, 0), 0);
        CHECK_INT(mesh__impl(&c)->engine->nactive, 0);
    }
    for (i = 0; i < e->nops; i++) busy += e->op[i]->state != MESH__FREE;
    CHECK_INT(busy, 0);
    CHECK(e->nops <= 4); /* slots were used again */
    for (i = 0; i < 4; i++) { /* by direction, without a tag and with one */
        uint32_t tag = i > 1 ? MESH__TAGGED | 3 : 0;
        int direction = i % 2 ? MESH_RECV : MESH_SEND;
        const mesh__group *g = mesh__group_find(mesh__impl(&c), "x");
        CHECK_INT(mesh__stream_find(g, tag, direction == MESH_SEND ? next : last)->count[direction], TURNS);
    }
    CHECK_OK(mesh_sendrecv(&c, "x", me, out, 8, me, in, 8, MESH_I32), c.error); /* with oneself */
    CHECK_INT(message_wrong(in, me, next, TURNS - 1, (TURNS - 1) % 8 + 1, 0), 0);
    CHECK_INT(e->ring[(e->ring_count - 1) % MESH__RING].status, MESH_OK);
    for (round = 0; round < 4; round++) { /* a long one, and a short one behind it: in one call, in two */
        message_fill(far, me, next, 7, LONG);
        message_fill(out, me, next, 8, 8);
        x[0] = mesh__xfer(MESH_SEND, next, far, LONG, MESH_I32);
        x[1] = mesh__xfer(MESH_SEND, next, out, 8, MESH_I32);
        x[2] = mesh__xfer(MESH_RECV, last, far + LONG, LONG, MESH_I32);
        x[3] = mesh__xfer(MESH_RECV, last, in, 8, MESH_I32);
        if (round % 2) {
            CHECK_OK(mesh_exchange(&c, "x", x, 4), c.error);
        } else {
            CHECK_OK(mesh_send_start(&c, "x", next, far, LONG, MESH_I32, &r[0]), c.error);
            CHECK_OK(mesh_send_start(&c, "x", next, out, 8, MESH_I32, &r[1]), c.error);
            CHECK_OK(mesh_recv(&c, "x", last, far + LONG, LONG, MESH_I32), c.error);
            CHECK_OK(mesh_recv(&c, "x", last, in, 8, MESH_I32), c.error);
            CHECK_OK(mesh_wait_all(r, 2), c.error);
        }
        CHECK_INT(message_wrong(far + LONG, last, me, 7, LONG, 0), 0);
        CHECK_INT(message_wrong(in, last, me, 8, 8, 0), 0);
    }
    free(far);
    mesh_comm_close(&c);
}
static void test_message_at_once(void) {
    int b;
    for (b = 0; b < BACKENDS; b++) run_world(b, 3, at_once_rank, NULL);
}

/* More messages than a peer takes without having asked for them: many that it is offered, with a short one behind; many short ones, which it reads while it
   waits for the last. */
static void unasked_rank(mesh_transport *t, void *ctx) {
    enum { LONG = 20000, OFFERED = 20, SHORT = 250, MANY = 1500 };
    int32_t *far = (int32_t *)malloc((LONG + OFFERED) * 4), got[SHORT + 1], k;
    mesh_request *r = (mesh_request *)calloc(MANY, sizeof *r);
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    for (k = 0; k < LONG + OFFERED; k++) far[k] = k;
    if (t->rank == 0) {
        for (k = 0; k < OFFERED; k++)
            CHECK_OK(mesh_send_start(&c, "x", 1, far + k, LONG, MESH_I32, &r[k]), c.error);
        CHECK_OK(mesh_send_start(&c, "x", 1, far + k, SHORT, MESH_I32, &r[k]), c.error);
        CHECK_OK(mesh_wait_all(r, OFFERED + 1), c.error);
        for (k = 0; k < MANY; k++)
            CHECK_OK(mesh_send_start(&c, "x", 1, far + k % OFFERED, SHORT, MESH_I32, &r[k]), c.error);
        CHECK_OK(mesh_send(&c, "x#1", 1, far, SHORT, MESH_I32), c.error);
        CHECK_OK(mesh_wait_all(r, MANY), c.error);
    } else {
        int32_t *in = (int32_t *)malloc(LONG * 4);
        for (k = 0; k < OFFERED; k++) {
            CHECK_OK(mesh_recv(&c, "x", 0, in, LONG, MESH_I32), c.error);
            CHECK(in[0] == k && in[LONG - 1] == k + LONG - 1);
        }
        CHECK_OK(mesh_recv(&c, "x", 0, got, SHORT, MESH_I32), c.error);
        CHECK(got[0] == OFFERED && got[SHORT - 1] == OFFERED + SHORT - 1);
        CHECK_OK(mesh_recv(&c, "x#1", 0, got, SHORT, MESH_I32), c.error);
        for (k = 0; k < MANY && !test_failures; k++) {
            CHECK_OK(mesh_recv(&c, "x", 0, got, SHORT, MESH_I32), c.error);
            CHECK(got[0] == k % OFFERED && got[SHORT - 1] == k % OFFERED + SHORT - 1);
        }
        free(in);
    }
    free(far);
    free(r);
    mesh_comm_close(&c);
}
static void test_message_unasked(void) {
    int b;
    for (b = 0; b < BACKENDS; b++) run_world(b, 2, unasked_rank, NULL);
}

static const test_case message_tests[] = {
    {"messages/at_once", test_message_at_once, 0},
    {"messages/unasked", test_message_unasked, 0},
    {"messages/lengths", test_message_lengths, 0},
    {"messages/objects", test_message_objects, 0},
    {"messages/tags", test_message_tags, 0},
    {"messages/in_place", test_message_in_place, 0},
    {"messages/wrong", test_message_wrong, 0},
    {"messages/late", test_message_late, 0},
    {"messages/refused", test_message_refused, 0},
    {"requests/rebind", test_rebind, 0},
    {"requests/armed", test_armed, 0},
    {"requests/prepared", test_prepared, 0},
};
#endif
