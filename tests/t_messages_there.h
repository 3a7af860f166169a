/* mesh/messages.h where memory is a device's and messages match in the order of issue. */
#ifndef T_MESSAGES_THERE_H
#define T_MESSAGES_THERE_H
#include "there.h"

enum { THERE_ROOM = 5000 };
static const size_t there_sizes[] = {0, 1, 2, 7, 1000, 4096, THERE_ROOM};

static int32_t there_cell(int from, int round, size_t i) { return (int32_t)((size_t)from * 100003 + (size_t)round * 1009 + i * 7 + 1); }
static size_t there_size(int rank, int round) { return there_sizes[(rank * 3 + round * 5 + round / 7) % 7]; }

/* One round: to the next, from the last, by one of the calls. Returns whom something comes from, or -1. */
static int there_round(mesh_comm *c, int n, int me, int round, const void *out, void *in, size_t room, size_t *got) {
    int next = (me + 1) % n, last = (me + n - 1) % n, edge = round % 2;
    size_t size = there_size(me, round);
    mesh_request r = MESH_ZERO;
    switch (round / 2 % 4) {
    case 0:
        CHECK_OK(mesh_shift_v(c, "x", 1, !edge, out, size, in, room, got, MESH_I32), c->error);
        return edge && me == 0 ? -1 : last;
    case 1:
        CHECK_OK(mesh_sendrecv_v_start(c, "x", edge && me == n - 1 ? -1 : next, out, size, edge && me == 0 ? -1 : last, in, room,
                                       got, MESH_I32, &r),
                 c->error);
        CHECK_INT(mesh_keep(r), MESH_ERR_UNSUPPORTED);
        CHECK_OK(edge ? mesh_wait_host(r) : mesh_wait(r), c->error);
        return edge && me == 0 ? -1 : last;
    case 2: /* one after the other, from the first on */
        if (n == 1) return -1;
        if (me == 0) CHECK_OK(mesh_send_v(c, "x", next, out, size, MESH_I32), c->error);
        CHECK_OK(mesh_recv_v(c, "x", last, in, room, got, MESH_I32), c->error);
        if (me) CHECK_OK(mesh_send_v(c, "x", next, out, size, MESH_I32), c->error);
        return last;
    default: /* several under way */
        if (n == 1) return -1;
        if (me % 2 || me == n - 1) CHECK_OK(mesh_recv_v_start(c, "x", last, in, room, got, MESH_I32, &r), c->error);
        if (me % 2 || me == n - 1) CHECK_OK(mesh_send_v(c, "x", next, out, size, MESH_I32), c->error);
        if (!(me % 2 || me == n - 1)) {
            CHECK_OK(mesh_send_v_start(c, "x", next, out, size, MESH_I32, &r), c->error);
            CHECK_OK(mesh_recv_v(c, "x", last, in, room, got, MESH_I32), c->error);
        }
        CHECK_OK(mesh_wait(r), c->error);
        return last;
    }
}

static void messages_there_rank(mesh_transport *t, void *ctx) {
    static const int32_t one = 1;
    int n = t->size, me = t->rank, round, from;
    int32_t *out = (int32_t *)malloc(THERE_ROOM * 4), *in = (int32_t *)malloc((THERE_ROOM + 8) * 4);
    mesh_object o = MESH_ZERO;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (round = 0; round < 28 && !test_failures; round++) {
        there_list w = MESH_ZERO;
        size_t i, got = 77, want, size = there_size(me, round), wrong = 0;
        int32_t sum = 0;
        mesh_request reduced;
        void *to, *there, *count;
        w.c = &c;
        for (i = 0; i < size; i++) out[i] = there_cell(me, round, i);
        for (i = 0; i < THERE_ROOM + 8; i++) in[i] = -5;
        there = there_in(&w, out, size * 4), to = there_out(&w, in, (THERE_ROOM + 8) * 4);
        if (there_is(&c)) CHECK_OK(mesh_copy(&c, to, in, (THERE_ROOM + 8) * 4), c.error);
        count = there_put(&w, &one, sizeof one, 0);
        CHECK_OK(mesh_all_reduce_start(&c, "x", count, count, 1, MESH_I32, MESH_SUM, &reduced), c.error);
        from = there_round(&c, n, me, round, there, to, round % 3 ? THERE_ROOM : there_size((me + n - 1) % n, round), &got);
        CHECK_OK(mesh_wait_host(reduced), c.error);
        CHECK_OK(mesh_copy(&c, &sum, count, sizeof sum), c.error);
        CHECK_INT(sum, n);
        there_back(&w);
        want = from < 0 ? 0 : there_size(from, round);
        if (from >= 0 || round / 2 % 4 < 2) CHECK_INT(got, want);
        for (i = 0; i < THERE_ROOM + 8; i++) wrong += in[i] != (i < want ? there_cell(from, round, i) : -5);
        CHECK_INT(wrong, 0);
    }
    for (round = 0; round < 7 && n > 1 && !test_failures; round++) { /* objects come to the host */
        size_t i, size = there_size(0, round), wrong = 0;
        there_list w = MESH_ZERO;
        w.c = &c;
        for (i = 0; i < size; i++) out[i] = there_cell(0, round, i);
        if (me == 0) CHECK_OK(mesh_send_v(&c, NULL, n - 1, there_in(&w, out, size * 4), size * 4, MESH_BYTES), c.error);
        if (me == n - 1) {
            CHECK_OK(mesh_recv_object(&c, NULL, 0, &o), c.error);
            CHECK_INT(o.nbytes, size * 4);
            for (i = 0; i < size; i++) wrong += ((int32_t *)o.data)[i] != out[i];
            CHECK_INT(wrong, 0);
        }
        there_back(&w);
    }
    mesh_object_free(&c, &o);
    free(out), free(in);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}

/* What goes wrong ends both with the cause. */
static void messages_there_wrong_rank(mesh_transport *t, void *ctx) {
    static const struct {
        mesh_status status;
        const char *text;
    } want[] = {{MESH_ERR_ARGUMENT, "recv_v(\"x\"): rank 0 sends 11 elements, but there is room for 10; give more room to recv_v"},
                {MESH_ERR_MISMATCH, "mesh_recv_v: rank 0 sends i32, rank 1 receives i64"},
                {MESH_ERR_UNSUPPORTED, "it has no schedule that could be prepared"},
                {MESH_ERR_UNSUPPORTED, "in the order of issue, without tags; leave \"#1\" out"},
                {MESH_ERR_TIMEOUT, "recv_v(1 x u64) on \"x\""}};
    int what = *(int *)ctx;
    mesh_status status = MESH_OK;
    size_t got = 7;
    mesh_request r;
    mesh_comm c;
    void *p;
    if (!open_comm(t, &c, "x=-1", NULL, what == 4 ? SECOND : 20 * SECOND)) return;
    CHECK_OK(mesh_alloc(t, 400, &p, &c.error), c.error);
    if (what == 2) CHECK_OK(mesh_prepare(&c), c.error);
    if (t->rank) {
        status = mesh_recv_v_start(&c, what == 3 ? "x#1" : "x", 0, p, 10, &got, what == 1 ? MESH_I64 : MESH_I32, &r);
    } else if (what != 4) {
        status = mesh_send_v_start(&c, what == 3 ? "x#1" : "x", 1, p, what == 0 ? 11 : 4, MESH_I32, &r);
    }
    if (status == MESH_OK && (what != 4 || t->rank)) status = mesh_barrier(&c, NULL);
    if (what == 4 && !t->rank) { /* rank 1 waits alone */
        while (!c.failed) CHECK_INT(mesh_progress(t, mesh_now(t) + SECOND / 100), MESH_OK);
        status = mesh_barrier(&c, NULL);
    }
    CHECK_INT(status, want[what].status);
    CHECK_HAS(c.error.text, want[what].text);
    mesh_free(t, p, &c.error);
    mesh_comm_close(&c);
}
#endif
