/* What calls refuse, as laws: thousands of calls by one rank, each judged by the definition, none sent. */
#ifndef T_REFUSED_H
#define T_REFUSED_H

/* A transport that tells nobody of refusals, so that a rank can be refused as often as it likes. */
static mesh_status mute_control_send(mesh_transport *t, int rank, int kind, const void *data, size_t n) {
    return kind == MESH_EVENT_ABORT ? MESH_OK : shim_control_send(t, rank, kind, data, n);
}
typedef struct refuser {
    shim s;
    mesh_comm c;
    test_random r;
} refuser;
static int refuser_open(refuser *f, mesh_transport *t, const char *text, uint64_t salt) {
    shim_make(&f->s, t);
    f->s.ops.control_send = mute_control_send;
    f->r = random_from(salt + (uint64_t)t->rank);
    return open_comm(&f->s.base, &f->c, text, NULL, 20 * SECOND);
}
static void refuser_forget(refuser *f) {
    f->c.failed = 0;
    memset(&f->c.error, 0, sizeof f->c.error);
}
static void refuser_close(refuser *f) {
    mesh_comm_close(&f->c);
    mesh_transport_detach(&f->s.base);
}

/* ---- buffers of collectives: they may not overlap, but as in place ---- */

enum { CELLS = 64 };

typedef struct stretch {
    const int32_t *at;
    size_t n;
} stretch;
static int spans_meet(stretch a, stretch b) { return a.n && b.n && a.at < b.at + b.n && b.at < a.at + a.n; }
static stretch span_of(const void *at, size_t n) {
    stretch s;
    s.at = (const int32_t *)at, s.n = n;
    return s;
}

/* A block list's extent, and where block `me` begins. */
static size_t counts_extent(const size_t *counts, const size_t *offsets, int n, int me, size_t *own) {
    size_t end = 0, at = 0;
    int i;
    for (i = 0; i < n; at += counts[i++]) {
        size_t from = offsets ? offsets[i] : at;
        if (i == me) *own = from;
        if (counts[i] && from + counts[i] > end) end = from + counts[i];
    }
    return end;
}
static int counts_meet(const size_t *counts, const size_t *offsets, int n) {
    int seen[4 * CELLS] = {0}, i;
    size_t k;
    for (i = 0; offsets && i < n; i++)
        for (k = 0; k < counts[i]; k++)
            if (seen[offsets[i] + k]++) return 1;
    return 0;
}

/* What a rank's call reads and writes, and where its data may lie in place: NULL: nowhere. Returns 0 where it is refused anyway. */
static int call_spans(const mesh_call *call, int n, int me, stretch *send, stretch *recv, const int32_t **place,
                      const int32_t **is) {
    size_t c = call->count, all = c * (size_t)n, own = c * (size_t)me, extent;
    int root = me == call->root;
    const int32_t *s = (const int32_t *)call->send, *r = (const int32_t *)call->recv;
    *place = s, *is = r;
    *send = span_of(s, c), *recv = span_of(r, c);
    switch (call->kind) {
    case MESH_CALL_REDUCE:
        if (!root) recv->n = 0;
        return 1;
    case MESH_CALL_BROADCAST:
        if (!root) send->n = 0;
        return 1;
    case MESH_CALL_ALL_GATHER:
    case MESH_CALL_GATHER:
        recv->n = call->kind == MESH_CALL_GATHER && !root ? 0 : all;
        *is = r + own;
        return 1;
    case MESH_CALL_REDUCE_SCATTER:
    case MESH_CALL_SCATTER:
        send->n = call->kind == MESH_CALL_SCATTER && !root ? 0 : all;
        *place = s + own;
        return 1;
    case MESH_CALL_ALL_TO_ALL:
        send->n = recv->n = all;
        return 1;
    case MESH_CALL_ALL_GATHER_V:
        extent = counts_extent(call->recv_counts, call->recv_offsets, n, me, &own);
        send->n = call->recv_counts[me], recv->n = extent, *is = r + own;
        return !counts_meet(call->recv_counts, call->recv_offsets, n);
    case MESH_CALL_REDUCE_SCATTER_V:
        extent = counts_extent(call->recv_counts, call->recv_offsets, n, me, &own);
        send->n = extent, recv->n = call->recv_counts[me], *place = s + own;
        return 1;
    case MESH_CALL_ALL_TO_ALL_V:
        send->n = counts_extent(call->send_counts, call->send_offsets, n, me, &own);
        recv->n = counts_extent(call->recv_counts, call->recv_offsets, n, me, &own);
        *place = NULL;
        return !counts_meet(call->recv_counts, call->recv_offsets, n) && call->send_counts[me] == call->recv_counts[me];
    case MESH_CALL_GATHER_V:
        recv->n = root ? counts_extent(call->recv_counts, call->recv_offsets, n, me, &own) : 0;
        if (root) *is = r + own;
        return !root || (call->recv_counts[me] == c && !counts_meet(call->recv_counts, call->recv_offsets, n));
    case MESH_CALL_SCATTER_V:
        send->n = root ? counts_extent(call->send_counts, call->send_offsets, n, me, &own) : 0;
        if (root) *place = s + own;
        return !root || call->send_counts[me] == c;
    default:
        return 1;
    }
}

static void random_counts(test_random *r, size_t *counts, size_t *offsets, int n) {
    int i;
    for (i = 0; i < n; i++) counts[i] = (size_t)random_below(r, 4), offsets[i] = (size_t)random_below(r, 14);
}

static void overlap_rank(mesh_transport *t, void *ctx) {
    static const int kinds[] = {MESH_CALL_ALL_REDUCE,   MESH_CALL_REDUCE,           MESH_CALL_BROADCAST,
                                MESH_CALL_ALL_GATHER,   MESH_CALL_GATHER,           MESH_CALL_REDUCE_SCATTER,
                                MESH_CALL_SCATTER,      MESH_CALL_ALL_TO_ALL,       MESH_CALL_SCAN,
                                MESH_CALL_ALL_GATHER_V, MESH_CALL_REDUCE_SCATTER_V, MESH_CALL_ALL_TO_ALL_V,
                                MESH_CALL_GATHER_V,     MESH_CALL_SCATTER_V,        MESH_CALL_EXSCAN};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    static int32_t memory[12 * CELLS];
    int round, n = t->size, me = t->rank, fine[KINDS] = {0}, refused[KINDS] = {0}, k;
    refuser f;
    (void)ctx;
    if (!refuser_open(&f, t, "x=-1", 601)) return;
    for (round = 0; round < 15000; round++) {
        size_t counts[2][8], offsets[2][8];
        int which = random_below(&f.r, KINDS), legal, exact, far = random_below(&f.r, 3) == 0;
        int32_t *s = memory + CELLS + random_below(&f.r, 24),
                *r = memory + (far ? 4 * CELLS : CELLS) + random_below(&f.r, 24);
        const int32_t *place, *is;
        stretch send, recv;
        mesh_call call =
            mesh__call(kinds[which], s, r, (size_t)random_below(&f.r, 4), MESH_I32, MESH_SUM, random_below(&f.r, n));
        random_counts(&f.r, counts[0], offsets[0], n);
        random_counts(&f.r, counts[1], offsets[1], n);
        call.send_counts = counts[0], call.recv_counts = counts[1];
        if (random_below(&f.r, 2)) call.send_offsets = offsets[0];
        if (random_below(&f.r, 2)) call.recv_offsets = offsets[1];
        if (random_below(&f.r, 2)) counts[0][me] = counts[1][me] = call.count;
        if (!mesh__call_is(call.kind, MESH_BY_COUNTS))
            call.send_counts = call.recv_counts = call.send_offsets = call.recv_offsets = NULL;
        call.elem_bytes = mesh__call_elem(&f.c, &call);
        legal = call_spans(&call, n, me, &send, &recv, &place, &is);
        if (legal && place && random_below(&f.r, 3) == 0) { /* in place, exactly or nearly */
            s += (is - place) + (random_below(&f.r, 3) ? 0 : random_below(&f.r, 3) - 1);
            call.send = s;
            call_spans(&call, n, me, &send, &recv, &place, &is);
        }
        exact = place && place == is;
        for (k = 0; k < n && call.kind == MESH_CALL_REDUCE_SCATTER_V; k++) /* what is reduced there is still to be sent */
            if (k != me && call.recv_offsets && counts[1][k] && counts[1][me] && offsets[1][k] < offsets[1][me] + counts[1][me] &&
                offsets[1][me] < offsets[1][k] + counts[1][k])
                exact = 0;
        if (legal) legal = !spans_meet(send, recv) || exact;
        if ((mesh__call_check(&f.c, mesh__impl(&f.c)->group[0], &call) == MESH_OK) != legal) {
            test_fail(__FILE__, __LINE__,
                      "%s of %d ranks by %d, root %d, count %d: send %d (%d cells), recv %d (%d): %s",
                      mesh__call_name(call.kind), n, me, call.root, (int)call.count, (int)(s - memory), (int)send.n,
                      (int)(r - memory), (int)recv.n, legal ? f.c.error.text : "taken");
        }
        *(legal ? &fine[which] : &refused[which]) += 1;
        if (legal && recv.n && call.kind != MESH_CALL_EXSCAN) { /* and no NULL where something is written, or read */
            call.recv = NULL;
            CHECK_INT(mesh__call_check(&f.c, mesh__impl(&f.c)->group[0], &call), MESH_ERR_ARGUMENT);
            CHECK_HAS(f.c.error.text, "recv is NULL");
            refuser_forget(&f);
        } else if (legal && !recv.n) {
            call.recv = NULL;
            CHECK_INT(mesh__call_check(&f.c, mesh__impl(&f.c)->group[0], &call), MESH_OK);
        }
        call.recv = r, call.send = NULL;
        if (legal)
            CHECK_INT(mesh__call_check(&f.c, mesh__impl(&f.c)->group[0], &call), send.n ? MESH_ERR_ARGUMENT : MESH_OK);
        refuser_forget(&f);
    }
    for (k = 0; k < KINDS; k++) CHECK(fine[k] > 20 && refused[k] > 5);
    refuser_close(&f);
}
static void test_overlap(void) {
    int n;
    for (n = 2; n <= 4; n += 2) run_world(SIM, n, overlap_rank, NULL);
}

/* Lists: what one buffer receives is in no other, whichever of them comes first. */
static void overlap_lists_rank(mesh_transport *t, void *ctx) {
    static const int kinds[] = {MESH_CALL_ALL_REDUCE_MANY, MESH_CALL_BROADCAST_MANY, MESH_CALL_ALL_GATHER_MANY,
                                MESH_CALL_REDUCE_SCATTER_MANY};
    enum { LONG = 200, WIDE = 1 << 18 };
    static int32_t memory[WIDE + 12 * CELLS];
    static mesh_buffer list[LONG];
    static stretch send[LONG], recv[LONG];
    int round, n = t->size, fine = 0, refused = 0, long_fine = 0, long_refused = 0;
    refuser f;
    (void)ctx;
    if (!refuser_open(&f, t, "x=-1", 602)) return;
    for (round = 0; round < 15000; round++) { /* one in a hundred is long, where lists that are right are rare */
        int is_long = round % 100 == 0, nlist = is_long ? 65 + random_below(&f.r, LONG - 64) : 2 + random_below(&f.r, 3),
            legal = 1, i, k, kind = kinds[random_below(&f.r, 4)], room = is_long ? WIDE : random_below(&f.r, 2) ? 40 : 300;
        mesh_call call = mesh__call(kind, NULL, NULL, 0, MESH_I32, MESH_SUM, random_below(&f.r, n));
        for (i = 0; i < nlist; i++) {
            mesh_call one = mesh__call(mesh__single_kind(kind), NULL, NULL, 0, MESH_I32, MESH_SUM, call.root);
            const int32_t *place, *is;
            list[i].send = memory + random_below(&f.r, room);
            list[i].recv =
                random_below(&f.r, 3) ? memory + random_below(&f.r, room) : (int32_t *)(uintptr_t)list[i].send;
            list[i].count = (size_t)random_below(&f.r, 4);
            one.send = list[i].send, one.recv = list[i].recv, one.count = list[i].count;
            call_spans(&one, n, t->rank, &send[i], &recv[i], &place, &is);
            legal &= !spans_meet(send[i], recv[i]) || place == is;
        }
        for (i = 0; i < nlist; i++)
            for (k = 0; k < nlist; k++)
                if (i != k) legal &= !spans_meet(recv[i], recv[k]) && !spans_meet(recv[i], send[k]);
        call.buffers = list, call.nbuffers = nlist;
        call.elem_bytes = mesh__call_elem(&f.c, &call);
        CHECK_INT(mesh__call_check(&f.c, mesh__impl(&f.c)->group[0], &call) == MESH_OK, legal);
        refuser_forget(&f);
        *(is_long ? legal ? &long_fine : &long_refused : legal ? &fine : &refused) += 1;
    }
    CHECK(fine > 1000 && refused > 1000 && long_fine > 10 && long_refused > 10);
    refuser_close(&f);
}
static void test_overlap_lists(void) { run_world(SIM, 3, overlap_lists_rank, NULL); }

/* Transfers: the same, and what goes to oneself has its other half, of the same length, in order. */
static void overlap_xfers_rank(mesh_transport *t, void *ctx) {
    enum { LONG = 300, WIDE = 1 << 16 };
    static int32_t memory[WIDE + 4 * CELLS];
    static mesh_xfer x[LONG];
    test_random r = random_from(603);
    int round, fine = 0, refused = 0, long_fine = 0, long_refused = 0;
    (void)ctx;
    for (round = 0; round < 20000; round++) {
        int is_long = round % 100 == 0, n = is_long ? 65 + random_below(&r, LONG - 64) : 1 + random_below(&r, 5), legal = 1,
            i, k, room = is_long ? WIDE : random_below(&r, 2) ? 30 : 4 * CELLS - 4, one, other, meet;
        for (i = 0; i < n; i++) {
            x[i] = mesh__xfer(random_below(&r, 2) ? MESH_SEND : MESH_RECV, 0, memory + random_below(&r, room),
                              (size_t)random_below(&r, 4), MESH_I32);
        }
        for (i = 0; i < n; i++)
            for (k = 0; k < n; k++)
                if (i != k && x[i].direction == MESH_RECV)
                    legal &= !spans_meet(span_of(x[i].base, (size_t)x[i].nbytes / 4),
                                         span_of(x[k].base, (size_t)x[k].nbytes / 4));
        CHECK_INT(mesh__xfers_overlap(t, x, n, &one, &other), MESH_OK);
        CHECK_INT(one < 0, legal);
        meet = one >= 0 && spans_meet(span_of(x[one].base, (size_t)x[one].nbytes / 4), span_of(x[other].base, (size_t)x[other].nbytes / 4));
        if (one >= 0) CHECK(meet && one < other && (x[one].direction == MESH_RECV || x[other].direction == MESH_RECV));
        *(is_long ? legal ? &long_fine : &long_refused : legal ? &fine : &refused) += 1;
    }
    CHECK(fine > 1000 && refused > 1000 && long_fine > 10 && long_refused > 10);
}

/* Blocks that are received: what lies on itself, held against a count of every byte. Of two dims, or whose inner dims are one run, all are told. */
static int block_lies_on_itself(const mesh_block *b) {
    static unsigned char seen[4096];
    int64_t i, k, n = 1, j;
    int d;
    memset(seen, 0, sizeof seen);
    for (d = 0; d < b->ndim; d++) n *= b->dim[d].count;
    for (i = 0; i < n; i++) {
        for (d = b->ndim - 1, k = 0, j = i; d >= 0; j /= b->dim[d].count, d--) k += j % b->dim[d].count * b->dim[d].stride;
        for (j = 0; j < (int64_t)b->run; j++)
            if (seen[k + j]++) return 1;
    }
    return 0;
}
static void overlap_blocks_rank(mesh_transport *t, void *ctx) {
    static unsigned char from[64 * 8], to[4096];
    test_random r = random_from(617);
    int round, fine = 0, refused = 0;
    refuser f;
    (void)ctx;
    if (!refuser_open(&f, t, "a=1", 617)) return;
    for (round = 0; round < 6000; round++) {
        mesh_block b = MESH_ZERO;
        mesh_xfer x[2];
        int d, k, sure = 1, itself;
        mesh_status status;
        b.run = (uint64_t)(1 + random_below(&r, 6)), b.ndim = random_below(&r, 4);
        x[0] = mesh__xfer(MESH_SEND, 0, from, (size_t)b.run, MESH_BYTES);
        for (d = b.ndim - 1; d >= 0; d--) {
            int64_t dense = (int64_t)b.run;
            for (k = d + 1; k < b.ndim; k++) dense *= b.dim[k].count;
            b.dim[d].count = 1 + random_below(&r, 4), b.dim[d].stride = random_below(&r, 2) ? dense : 1 + random_below(&r, 40);
            x[0].nbytes *= (uint64_t)b.dim[d].count;
            sure &= d > 0 || b.ndim < 3 || (b.dim[1].stride == dense / b.dim[1].count && b.dim[2].stride == (int64_t)b.run);
        }
        x[1] = x[0];
        x[1].direction = MESH_RECV, x[1].base = to, x[1].block = &b;
        itself = block_lies_on_itself(&b);
        status = mesh_exchange(&f.c, NULL, x, 2);
        if (!itself || sure) CHECK_INT(status, itself ? MESH_ERR_ARGUMENT : MESH_OK);
        if (status != MESH_OK) {
            CHECK_HAS(f.c.error.text, "transfer 1 receives more than once at one place");
            refuser_forget(&f);
        }
        fine += !itself, refused += itself;
    }
    CHECK(fine > 300 && refused > 300);
    refuser_close(&f);
}
static void test_overlap_blocks(void) { run_world(SIM, 1, overlap_blocks_rank, NULL); }

static void test_overlap_xfers(void) { run_world(SIM, 1, overlap_xfers_rank, NULL); }

static void p2p_refused_rank(mesh_transport *t, void *ctx) {
    static int32_t a[64], b[64], wide[280];
    mesh_xfer list[70];
    int round, n = t->size;
    refuser f;
    mesh_request r;
    (void)ctx;
    if (!refuser_open(&f, t, "x=-1", 604)) return;
    for (round = 0; round < 2000; round++) { /* to oneself */
        mesh_xfer x[6];
        int lengths[2][6], many[2] = {0, 0}, count = random_below(&f.r, 7), i, legal;
        for (i = 0; i < count; i++) {
            int direction = random_below(&f.r, 2), other = random_below(&f.r, 6) == 0;
            x[i] = mesh__xfer(direction, other ? (t->rank + 1) % n : t->rank, a + i, (size_t)random_below(&f.r, 2),
                              MESH_I32);
            if (!other) lengths[direction][many[direction]++] = (int)x[i].nbytes;
        }
        legal = many[0] == many[1];
        for (i = 0; i < many[0] && legal; i++) legal = lengths[0][i] == lengths[1][i];
        CHECK_INT(mesh__self_check(&f.c, mesh__impl(&f.c)->group[0], MESH_CALL_EXCHANGE, x, count) == MESH_OK, legal);
        refuser_forget(&f);
    }
    for (round = 0; round < 13; round++) { /* each wrong in one way */
        static const char *const says[] = {"is outside the group",
                                           "is outside the group",
                                           "describes another number",
                                           "has direction 2",
                                           "the buffer is NULL",
                                           "-1 transfers",
                                           "3 transfers (NULL)",
                                           "overflow",
                                           "has direction -1",
                                           "receives 4 times at one place",
                                           "describes another number",
                                           "dtype 99",
                                           "overflow"};
        mesh_block block = MESH_ZERO;
        mesh_xfer x = mesh__xfer(MESH_SEND, (t->rank + 1) % n, a, 4, MESH_I32);
        mesh_status status;
        block.run = 4, block.ndim = 1, block.dim[0].count = 4, block.dim[0].stride = 8;
        x.block = &block;
        switch (round) {
        case 0:
            x.rank = -1;
            break;
        case 1:
            x.rank = n;
            break;
        case 2:
            block.run = 8;
            break;
        case 3:
            x.direction = 2;
            break;
        case 4:
            x.base = NULL;
            break;
        case 7:
            x.nbytes = UINT64_MAX / 2 + 1, x.block = NULL;
            break;
        case 8:
            x.direction = -1;
            break;
        case 9:
            x.direction = MESH_RECV, block.dim[0].stride = 0;
            break;
        case 10:
            block.dim[0].count = 3;
            break;
        default:
            break;
        }
        status = round == 5    ? mesh_exchange_start(&f.c, NULL, &x, -1, &r)
                 : round == 6  ? mesh_exchange_start(&f.c, NULL, NULL, 3, &r)
                 : round == 11 ? mesh_send_start(&f.c, NULL, (t->rank + 1) % n, a, 1, (mesh_dtype)99, &r)
                 : round == 12 ? mesh_send_start(&f.c, NULL, (t->rank + 1) % n, a, SIZE_MAX / 4 + 2, MESH_I32, &r)
                               : mesh_exchange_start(&f.c, NULL, &x, 1, &r);
        CHECK_INT(status, MESH_ERR_ARGUMENT);
        CHECK_HAS(f.c.error.text, says[round]);
        refuser_forget(&f);
    }
    for (round = 0; round < 70; round++) list[round] = mesh__xfer(MESH_RECV, (t->rank + 1) % n, wide + 4 * (round - (round == 68 ? 60 : 0)), 4, MESH_I32);
    CHECK_INT(mesh_exchange_start(&f.c, NULL, list, 70, &r), MESH_ERR_ARGUMENT);
    CHECK_HAS(f.c.error.text, "overlaps what is sent or received beside it (transfers 8 and 68)");
    refuser_forget(&f);
    CHECK_INT(mesh_shift_start(&f.c, NULL, n, 0, a, a + 1, 4, MESH_I32, &r), MESH_ERR_ARGUMENT); /* at the edge too */
    refuser_forget(&f);
    for (round = 0; round < 40; round++) {      /* a shift, anywhere over its own send */
        int legal = round >= 24 || round <= 16 || round == 20; /* 4 cells at 20; in place */
        int status = mesh_shift_start(&f.c, NULL, 1, 1, a + 20, round < 8 ? b : a + round, 4, MESH_I32, &r);
        if (round < 8) legal = 1;
        CHECK_INT(status == MESH_OK, legal);
        if (status == MESH_OK) CHECK_OK(mesh_wait(r), f.c.error);
        refuser_forget(&f);
    }
    refuser_close(&f);
}
static void test_p2p_refused(void) { run_world(SIM, 3, p2p_refused_rank, NULL); }

/* ---- arguments, one wrong at a time, at the bound ---- */

/* What one rank takes for very much: a pipeline of it is of no more pieces than any, and the ranks tell each other. */
static void absurd_rank(mesh_transport *t, void *ctx) {
    static float a[64];
    const size_t counts[3] = {1, 2, 3}, more[3] = {1, 2, 4};
    size_t absurd = SIZE_MAX / 64;
    mesh_comm c;
    mesh_object o = MESH_ZERO;
    mesh_status status;
    int bad = t->rank == 2, k;
    (void)ctx;
    for (k = 0; k < 4; k++) {
        if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
        if (k == 0)
            status = mesh_broadcast(&c, NULL, a, a, bad ? absurd : 10, MESH_F32, 0);
        else if (k == 1)
            status = mesh_all_to_all_v(&c, NULL, a, bad ? more : counts, NULL, a + 32, bad ? counts : more, NULL, MESH_F32);
        else {
            o.data = bad ? (void *)a : NULL, o.nbytes = bad ? k == 2 ? SIZE_MAX : SIZE_MAX / 2 + 1 : 0;
            status = mesh_broadcast_object(&c, NULL, &o, 2);
        }
        if (status == MESH_OK) status = mesh_barrier(&c, NULL); /* a root waits for nobody */
        if (status != (k ? MESH_ERR_ARGUMENT : MESH_ERR_MISMATCH)) test_fail(__FILE__, __LINE__, "%d on rank %d: %d, %s", k, t->rank, status, c.error.text);
        if (k == 1) CHECK_HAS(c.error.text, "mesh_all_to_all_v(\"x\"): send_counts[2] is ");
        if (k > 1) CHECK_HAS(c.error.text, "bytes: an object has less than 1 TiB");
        mesh_comm_close(&c);
    }
    {
        mesh__schedule s = MESH_ZERO;
        mesh__range r = mesh__range_of(0, 0, SIZE_MAX);
        s.elem_bytes = 4;
        CHECK_INT(mesh__segment_for(&s, 1 << 16, 1000), 1 << 14);
        CHECK_INT(mesh__segment_for(&s, 3, 1000), 1);
        CHECK(mesh__segments(r, mesh__segment_for(&s, 1 << 16, SIZE_MAX)) <= MESH__SEGMENTS);
        CHECK_INT(mesh__segments(r, SIZE_MAX), 1);
        r.count = 17;
        CHECK_INT(mesh__segments(r, 8), 3);
    }
}
static void test_absurd(void) {
    run_world(SIM, 3, absurd_rank, NULL);
    run_world(TCP, 3, absurd_rank, NULL);
    run_world(SHARED, 3, absurd_rank, NULL);
}

static void bounds_rank(mesh_transport *t, void *ctx) {
    static float a[64], b[64];
    int n = t->size, k, kind, d, op;
    const size_t huge = SIZE_MAX / 2;
    size_t counts[8] = {1, 1, 1, 1, 1, 1, 1, 1}, far[8] = {0, 8, 16, 24, 32, 40, 48, 56};
    refuser f;
    mesh_object object = MESH_ZERO;
    (void)ctx;
    if (!refuser_open(&f, t, "x=-1", 605)) return;
    for (kind = 1; kind < MESH_CALL_COUNT; kind++) {
        int root;
        if (mesh__call_is(kind, MESH_P2P) || mesh__is_meeting(kind) || kind == MESH_CALL_REDISTRIBUTE ||
            mesh__single_kind(kind) != kind)
            continue;
        for (root = -2; root <= n + 1; root++) { /* roots: where there is one, an index of the group */
            mesh_call call = mesh__call(kind, a, b, 1, MESH_F32, MESH_SUM, root);
            if (kind == MESH_CALL_BROADCAST_OBJECT) call.recv = &object;
            if (mesh__call_is(kind, MESH_BY_COUNTS)) call.send_counts = call.recv_counts = counts;
            call.elem_bytes = mesh__call_elem(&f.c, &call);
            CHECK_INT(mesh__call_check(&f.c, mesh__impl(&f.c)->group[0], &call) == MESH_OK,
                      !mesh__call_is(kind, MESH_ROOTED) || (root >= 0 && root < n));
            refuser_forget(&f);
        }
        for (d = -1; d <= MESH_DTYPE_COUNT; d++) /* dtypes and ops: those that there are, no avg in scans */
            for (op = 0; op <= MESH_OP_COUNT; op++) {
                mesh_call call = mesh__call(kind, a, b, 1, d, op, 0);
                int reduces = mesh__call_is(kind, MESH_REDUCES),
                    scan = kind == MESH_CALL_SCAN || kind == MESH_CALL_EXSCAN;
                int legal =
                    reduces ? mesh__reducible(d, op) && !(scan && op == MESH_AVG) : mesh_dtype_bytes((mesh_dtype)d) > 0;
                if (kind == MESH_CALL_BROADCAST_OBJECT) continue;
                if (mesh__call_is(kind, MESH_BY_COUNTS)) call.send_counts = call.recv_counts = counts;
                call.elem_bytes = mesh__call_elem(&f.c, &call);
                CHECK_INT(mesh__call_check(&f.c, mesh__impl(&f.c)->group[0], &call) == MESH_OK, legal);
                refuser_forget(&f);
            }
        for (k = 0; k < 4 && kind != MESH_CALL_BROADCAST_OBJECT;
             k++) { /* bytes that overflow, in one block, in their sum, by an offset */
            size_t many[8], at[8];
            mesh_call call = mesh__call(kind, a, a + 1,
                                        k == 0   ? huge
                                        : k == 1 ? huge / 4 + 1
                                        : k == 2 ? huge / 4 / (size_t)n + 1
                                                 : SIZE_MAX,
                                        MESH_F32, MESH_SUM, t->rank);
            memcpy(many, counts, sizeof many), memcpy(at, far, sizeof at);
            if (k == 0) many[0] = huge;
            if (k == 1) many[0] = huge / 8 + 1, many[1] = huge / 8 + 1;
            if (k == 2) at[0] = huge / 4;
            if (k == 3) at[1] = SIZE_MAX;
            if (mesh__call_is(kind, MESH_BY_COUNTS)) {
                call.send_counts = call.recv_counts = many;
                if (k > 1) call.send_offsets = call.recv_offsets = at;
                call.count = many[t->rank];
            }
            call.elem_bytes = mesh__call_elem(&f.c, &call);
            CHECK_INT(mesh__call_check(&f.c, mesh__impl(&f.c)->group[0], &call), MESH_ERR_ARGUMENT);
            CHECK_HAS(f.c.error.text, "overflow");
            refuser_forget(&f);
        }
    }
    for (k = 0; k < 8; k++) { /* objects */
        mesh_call call = mesh__call(MESH_CALL_BROADCAST_OBJECT, NULL, k & 1 ? &object : NULL, 0, MESH_BYTES, 0,
                                    k & 2 ? t->rank : (t->rank + 1) % n);
        object.nbytes = k & 4 ? 3 : 0;
        call.elem_bytes = 1;
        CHECK_INT(mesh__call_check(&f.c, mesh__impl(&f.c)->group[0], &call) == MESH_OK,
                  (k & 1) && !((k & 2) && (k & 4)));
        refuser_forget(&f);
    }
    for (k = 0; k < 3; k++) { /* an op with a size of its own takes MESH_BYTES, one without any dtype */
        mesh_user_op user = MESH_ZERO;
        mesh_op own;
        mesh_call call;
        user.combine = nothing;
        user.elem_bytes = (size_t)(k * 12);
        CHECK_INT(mesh_op_add(&f.c, &user, &own), MESH_OK);
        for (d = 0; d < MESH_DTYPE_COUNT; d++) {
            call = mesh__call(MESH_CALL_ALL_REDUCE, a, b, 1, d, own, 0);
            call.elem_bytes = mesh__call_elem(&f.c, &call);
            CHECK_INT(mesh__call_check(&f.c, mesh__impl(&f.c)->group[0], &call) == MESH_OK, k == 0 || d == MESH_BYTES);
            if (k && d == MESH_BYTES) CHECK_INT(call.elem_bytes, 12 * k);
            if (!k) CHECK_INT(call.elem_bytes, mesh_dtype_bytes((mesh_dtype)d));
            refuser_forget(&f);
        }
    }
    refuser_close(&f);
}
static void test_bounds(void) { run_world(SIM, 3, bounds_rank, NULL); }

/* ---- halos: the description's rules, dim by dim ---- */

static void halo_refused_rank(mesh_transport *t, void *ctx) {
    static int32_t array[1];
    int round, taken = 0;
    refuser f;
    (void)ctx;
    if (!refuser_open(&f, t, "a=2,b=2", 606)) return;
    for (round = 0; round < 20000; round++) {
        static const char *const names[] = {NULL, "a", "b", "nowhere"};
        mesh_halo h = MESH_ZERO;
        int axis[MESH_MAX_DIMS], legal = 1, k, j, which[MESH_MAX_DIMS], cells = 1;
        h.ndim = random_below(&f.r, 30) ? 1 + random_below(&f.r, 3) : random_below(&f.r, 2) ? 0 : MESH_MAX_DIMS + 1;
        legal = h.ndim >= 1 && h.ndim <= MESH_MAX_DIMS;
        for (k = 0; k < 3; k++) {
            int64_t inner;
            int at;
            which[k] = random_below(&f.r, 20) ? random_below(&f.r, 3) : 3;
            h.axis[k] = names[which[k]];
            h.low[k] = random_below(&f.r, 4) - (random_below(&f.r, 20) == 0);
            h.high[k] = random_below(&f.r, 4) - (random_below(&f.r, 20) == 0);
            h.shape[k] = random_below(&f.r, 14);
            h.periodic[k] = random_below(&f.r, 3) == 0;
            if (k >= h.ndim) continue;
            inner = h.shape[k] - h.low[k] - h.high[k];
            legal &= which[k] < 3 && h.low[k] >= 0 && h.high[k] >= 0 && inner >= 0;
            at = which[k] == 1 ? t->rank / 2 : which[k] == 2 ? t->rank % 2 : -1; /* who has a neighbour fills its halo */
            if (at == 0 || h.periodic[k]) legal &= inner >= h.low[k];
            if (at == 1 || h.periodic[k]) legal &= inner >= h.high[k];
            for (j = 0; j < k; j++) legal &= !which[k] || which[j] != which[k];
            cells *= (int)h.shape[k];
        }
        if (mesh__halo_check(&f.c, &h, array, 4, axis) == MESH_OK) {
            CHECK(legal);
            CHECK_INT(mesh__halo_check(&f.c, &h, NULL, 4, axis) == MESH_OK, cells == 0);
            taken++;
        } else if (legal) {
            test_fail(__FILE__, __LINE__, "refused: %s", f.c.error.text);
        }
        refuser_forget(&f);
    }
    CHECK(taken > 1000);
    {
        mesh_halo h = MESH_ZERO;
        int axis[MESH_MAX_DIMS], k;
        h.ndim = 2;
        for (k = 0; k < 2; k++) { /* 2^62 bytes and the next more */
            h.shape[0] = INT64_C(1) << 40, h.shape[1] = (INT64_C(1) << 20) + k * ((INT64_C(1) << 20) + 1);
            CHECK_INT(mesh__halo_check(&f.c, &h, array, 4, axis) == MESH_OK, k == 0);
            refuser_forget(&f);
        }
    }
    refuser_close(&f);
}
static void test_halo_refused(void) { run_world(SIM, 4, halo_refused_rank, NULL); }

/* ---- tensors: strides, and memory of lists; asked for their scratch, which does not fail the comm ---- */

/* A rank's part as it lies: its box, where element (i, j) of the whole is, how far it reaches. */
typedef struct lying {
    const int32_t *at;
    mesh_box box;
    int64_t stride[2];
} lying;
static const int32_t *lies_at(const lying *p, int64_t i, int64_t j) {
    return p->at + (i - p->box.offset[0]) * p->stride[0] + (j - p->box.offset[1]) * p->stride[1];
}
/* Every element of a is one of b, at the same place. */
static int lies_within(const lying *a, const lying *b) {
    int64_t i, j;
    for (i = a->box.offset[0]; i < a->box.offset[0] + a->box.shape[0]; i++)
        for (j = a->box.offset[1]; j < a->box.offset[1] + a->box.shape[1]; j++)
            if (i < b->box.offset[0] || i >= b->box.offset[0] + b->box.shape[0] || j < b->box.offset[1] ||
                j >= b->box.offset[1] + b->box.shape[1] || lies_at(a, i, j) != lies_at(b, i, j))
                return 0;
    return 1;
}
/* Is an element of one at the place of one of the other? */
static int lies_meet(const lying *a, const lying *b) {
    int64_t i, j, k, l;
    for (i = a->box.offset[0]; i < a->box.offset[0] + a->box.shape[0]; i++)
        for (j = a->box.offset[1]; j < a->box.offset[1] + a->box.shape[1]; j++)
            for (k = b->box.offset[0]; k < b->box.offset[0] + b->box.shape[0]; k++)
                for (l = b->box.offset[1]; l < b->box.offset[1] + b->box.shape[1]; l++)
                    if (lies_at(a, i, j) == lies_at(b, k, l)) return 1;
    return 0;
}
/* Of the two that are apart, can that be told? Where the one's rows or columns are as far from each other as the other's; or one ends before the other. */
static int lies_alike(const lying *a, const lying *b) {
    int d;
    for (d = 0; d < 2; d++)
        if (a->box.shape[d] < 2 || b->box.shape[d] < 2 || a->stride[d] != b->stride[d]) return 0;
    return 1;
}
/* Strides that nest in one order or the other. */
static int strides_nest(const lying *p) {
    int64_t n0 = p->box.shape[0], n1 = p->box.shape[1], s0 = p->stride[0], s1 = p->stride[1];
    if (n0 == 0 || n1 == 0) return 1;
    if (n0 > 1 && s0 < 1) return 0;
    if (n1 > 1 && s1 < 1) return 0;
    return n0 == 1 || n1 == 1 || s0 > s1 * (n1 - 1) || s1 > s0 * (n0 - 1);
}

static void tensors_refused_rank(mesh_transport *t, void *ctx) {
    static int32_t memory[12 * CELLS];
    int round, fine = 0, refused = 0, within = 0, between = 0, me = t->rank;
    refuser f;
    (void)ctx;
    if (!refuser_open(&f, t, "a=2,b=2", 607)) return;
    for (round = 0; round < 4000; round++) {
        static const char *const specs[] = {"", "a:S(0)", "b:S(1)", "a:S(1) b:S(0)", "a:S(0) b:S(0)"};
        mesh_tensor list[2][3];
        int64_t strides[2][3][2], said;
        stretch spans[2][3];
        lying lies[2][3];
        int n = 1 + random_below(&f.r, 3), i, k, side, legal = 1, sure = 1, room = random_below(&f.r, 3) ? 6 * CELLS : 60;
        mesh_error err;
        for (i = 0; i < n; i++)
            for (side = 0; side < 2; side++) {
                mesh_tensor *x = &list[side][i];
                mesh_box box;
                int64_t reach = 1;
                int d, columns = !random_below(&f.r, 3), twin = side && !random_below(&f.r, 3),
                       beside = !twin && (i || side) && !random_below(&f.r, 3);
                memset(x, 0, sizeof *x);
                x->dtype = MESH_I32, x->layout.ndim = 2, x->layout.on = &f.c.on;
                x->layout.shape[0] = side ? list[0][i].layout.shape[0] : random_below(&f.r, 5);
                x->layout.shape[1] = side ? list[0][i].layout.shape[1] : 1 + random_below(&f.r, 4);
                mesh_spec_parse(&x->layout.spec, x->layout.on, specs[random_below(&f.r, 5)], 2, NULL);
                x->data = memory + 2 * CELLS + random_below(&f.r, room);
                mesh_tensor_box(x, me, &box);
                if (random_below(&f.r, 2)) x->strides = strides[side][i];
                for (d = 1; d >= 0; d--) {
                    int inner = d == !columns;
                    strides[side][i][d] = !x->strides ? (d ? 1 : box.shape[1])
                                                      : (inner ? 1 : box.shape[!d]) + random_below(&f.r, inner ? 2 : 6) -
                                                            (random_below(&f.r, 12) == 0);
                }
                if (twin) { /* where the source has it, or would have it */
                    if (random_below(&f.r, 4)) x->strides = strides[1][i];
                    for (d = 0; d < 2 && x->strides; d++) strides[1][i][d] = strides[0][i][d];
                    for (d = 0; d < 2 && !x->strides; d++) strides[1][i][d] = d ? 1 : box.shape[1];
                    x->data = (void *)(uintptr_t)lies_at(&lies[0][i], box.offset[0], box.offset[1]);
                }
                if (beside) { /* rows as far from each other as the first's, which it may lie between */
                    x->strides = strides[side][i];
                    for (d = 0; d < 2; d++) strides[side][i][d] = strides[0][0][d];
                    x->data = (void *)(uintptr_t)(lies[0][0].at + random_below(&f.r, 8));
                }
                lies[side][i].at = (const int32_t *)x->data, lies[side][i].box = box;
                for (d = 0; d < 2; d++) lies[side][i].stride[d] = strides[side][i][d];
                legal &= strides_nest(&lies[side][i]);
                for (d = 0; d < 2; d++)
                    if (box.shape[d] > 1) reach += strides[side][i][d] * (box.shape[d] - 1);
                spans[side][i] = span_of(x->data, mesh_box_count(&box) ? (size_t)reach : 0);
            }
        for (i = 0; i < n && legal; i++) {
            int apart = !spans_meet(spans[0][i], spans[1][i]),
                inside = lies_within(&lies[0][i], &lies[1][i]) || lies_within(&lies[1][i], &lies[0][i]);
            within += !apart && inside;
            for (k = 0; k < n; k++)
                for (side = 0; side < 2 - (k == i) && legal; side++) {
                    const lying *a = &lies[1][i], *b = &lies[side][k];
                    if (!spans_meet(spans[1][i], spans[side][k])) continue;
                    legal &= !lies_meet(a, b) || (k == i && inside);
                    between += legal && lies_alike(a, b) && !(k == i && inside);
                    sure &= lies_alike(a, b) || (k == i && inside);
                }
        }
        k = mesh_redistribute_scratch_bytes(&f.c, list[0], list[1], n, &said, &err) == MESH_OK;
        if (!legal || sure) CHECK_INT(k, legal); /* what is apart by chance may be refused */
        *(legal ? &fine : &refused) += 1;
    }
    CHECK(fine > 800 && refused > 800 && within > 300 && between > 0);
    refuser_close(&f);
}
static void test_tensors_refused(void) { run_world(SIM, 4, tensors_refused_rank, NULL); }

/* One field of a pair of tensors wrong at a time; and plans: each is for its own tensors and no others. */
static void tensor_fields_rank(mesh_transport *t, void *ctx) {
    enum { FIELDS = 20, TENSORS = 12 };
    static int64_t local[2], wide[2];
    mesh_plan *plan = (mesh_plan *)malloc(sizeof *plan * TENSORS);
    mesh_tensor src, dst, pool[TENSORS][2];
    mesh other, beyond, single;
    refuser f;
    mesh_error err;
    int64_t said;
    int what, i, k;
    (void)ctx;
    if (t->rank == 3) { /* it is not in the comm */
        free(plan);
        return;
    }
    shim_make(&f.s, t);
    if (!open_some(&f.s.base, &f.c, 0, 3, 20 * SECOND)) return;
    CHECK_OK(mesh_parse(&other, "y=3", 3, &err), err);
    CHECK_OK(mesh_parse(&beyond, "z=4", 4, &err), err);
    CHECK_OK(mesh_group_at(&single, &beyond, "", (t->rank + 1) % 3, &err), err);
    for (what = 0; what < FIELDS; what++) {
        static const int fine[] = {0, 9, 16, 17, 18, 19};
        int good = 0;
        two_layouts(&f.c, &src, &dst, "dim0:S(0)", "dim0:S(1)", 6, 9);
        switch (what) {
        case 1:
            src.dtype = MESH_I32;
            break;
        case 2:
            dst.elem_bytes = 8;
            break;
        case 3:
            src.elem_bytes = dst.elem_bytes = 8;
            break; /* of a float */
        case 4:
            src.elem_bytes = dst.elem_bytes = -4;
            break;
        case 5:
            src.layout.ndim = dst.layout.ndim = MESH_MAX_DIMS + 1;
            break;
        case 6:
            src.layout.ndim = dst.layout.ndim = -1;
            break;
        case 7:
            dst.layout.shape[0] = 7;
            break;
        case 8:
            dst.layout.shape[0] = 5;
            break;
        case 9:
            src.layout.on = dst.layout.on = &other;
            break; /* the same ranks */
        case 10:
            src.layout.on = &beyond;
            break;
        case 11:
            src.layout.on = dst.layout.on = &single, memset(&src.layout.spec, 0, sizeof src.layout.spec), dst.layout.spec = src.layout.spec;
            break;
        case 12:
            local[0] = 3, local[1] = 9, src.local_shape = local;
            break; /* it is 2 */
        case 13:
            local[0] = 1, local[1] = 9, src.local_shape = local;
            break;
        case 14:
            local[0] = 6, local[1] = 4, dst.local_shape = local;
            break;
        case 15:
            wide[0] = INT64_MAX / 8, wide[1] = 1, src.strides = wide;
            break;
        case 16:
            local[0] = 2, local[1] = 9, src.local_shape = local;
            break;
        case 17:
            wide[0] = 9, wide[1] = 1, src.strides = wide;
            break;
        case 18:
            src.elem_bytes = 4;
            break;
        case 19:
            src.dtype = dst.dtype = MESH_BYTES, src.elem_bytes = dst.elem_bytes = 4;
            break;
        default:
            break;
        }
        for (i = 0; i < 6; i++) good |= fine[i] == what;
        if ((mesh_redistribute_scratch_bytes(&f.c, &src, &dst, 1, &said, &err) == MESH_OK) != good)
            test_fail(__FILE__, __LINE__, "field %d: %s", what, good ? err.text : "taken");
        free(src.data), free(dst.data);
    }
    for (i = 0; i < TENSORS; i++) {
        static const char *const specs[][2] = {{"dim0:S(0)", "dim0:S(1)"},
                                               {"dim0:S(1)", "dim0:S(1)"},
                                               {"dim0:S(0)", "dim0:R"},
                                               {"dim0:P(sum)", "dim0:R"},
                                               {"dim0:P(max)", "dim0:R"}};
        two_layouts(&f.c, &pool[i][0], &pool[i][1], specs[i < 5 ? i : 0][0], specs[i < 5 ? i : 0][1], i == 5 ? 7 : 6,
                    i == 6 ? 10 : 9);
        if (i == 7) pool[i][0].dtype = pool[i][1].dtype = MESH_I32;
        if (i == 8) pool[i][0].dtype = pool[i][1].dtype = MESH_BYTES, pool[i][0].elem_bytes = pool[i][1].elem_bytes = 4;
        if (i == 9) pool[i][0].dtype = pool[i][1].dtype = MESH_BYTES, pool[i][0].elem_bytes = pool[i][1].elem_bytes = 2;
        if (i == 10) pool[i][0].layout.on = &other;
        if (i == 11) pool[i][1].layout.on = &other;
        CHECK_OK(mesh_redistribute_plan(&f.c, &plan[i], &pool[i][0], &pool[i][1], &err), err);
    }
    for (i = 0; i < TENSORS; i++)
        for (k = 0; k < TENSORS; k++)
            CHECK_INT(mesh__given_check(&f.c, &plan[i], &pool[k][0], &pool[k][1], &err) == MESH_OK, i == k);
    mesh__impl(&f.c)->scratch_cap = 100;
    for (k = 99; k <= 101; k++) {
        plan[0].scratch = k;
        CHECK_INT(mesh__given_check(&f.c, &plan[0], &pool[0][0], &pool[0][1], &err),
                  k <= 100 ? MESH_OK : MESH_ERR_MEMORY);
    }
    mesh__impl(&f.c)->scratch_cap = 0;
    for (i = 0; i < TENSORS; i++) free(pool[i][0].data), free(pool[i][1].data);
    /* reductions that the dtype has not, wherever in the plan they stand */
    two_layouts(&f.c, &src, &dst, "dim0:P(avg)", "dim0:R", 6, 9);
    src.dtype = dst.dtype = MESH_I32;
    CHECK_INT(mesh_redistribute_scratch_bytes(&f.c, &src, &dst, 1, &said, &err), MESH_ERR_UNSUPPORTED);
    free(src.data), free(dst.data), free(plan);
    refuser_close(&f);
}
static void test_tensor_fields(void) { run_world(SIM, 4, tensor_fields_rank, NULL); }

/* ---- openings ---- */

static void open_refused_rank(mesh_transport *t, void *ctx) {
    static const struct {
        const char *says;
    } want[] = {{"desc.timeout_ns is -1; ns, and 0 is as built in"},
                {"desc.ask_ns is -1; ns, and 0 is as built in"},
                {"a tuning table of 49 rows"},
                {"a tuning table of -1 rows"},
                {"scratch_cap is -1"},
                {"is not in the mesh"},
                {"holds rank 2, but the world has 2 ranks"},
                {"mesh_topology_check"},
                {"is one group more than the 255 that a comm may have"}};
    mesh m;
    mesh_comm c;
    mesh_error err;
    int what, n = (int)(sizeof want / sizeof *want), k;
    mesh_tuning tuning = MESH_ZERO;
    mesh_topology topology = MESH_ZERO;
    mesh_desc d = MESH_ZERO;
    char groups[600];
    (void)ctx;
    for (what = 0; what < n; what++) {
        mesh_comm_desc desc = MESH_ZERO;
        int two = 2;
        CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err);
        desc.timeout_ns = SECOND;
        d.shape = &two, d.naxes = 1, d.origin = t->rank + 1;
        if (what == 0) desc.timeout_ns = -1;
        if (what == 1) desc.ask_ns = -1;
        if (what == 2) tuning.nrows = MESH_MAX_TUNING + 1, desc.tuning = &tuning;
        if (what == 3) tuning.nrows = -1, desc.tuning = &tuning;
        if (what == 4) desc.scratch_cap = -1;
        if (what == 5) CHECK_OK(mesh_make(&m, &d, &err), err);
        if (what == 6) CHECK_OK(mesh_parse(&m, "x=3", 3, &err), err);
        if (what == 7) topology.nlevels = -3, desc.topology = &topology;
        if (what == 8) {
            for (k = 0; k < 256; k++) groups[2 * k] = 'x', groups[2 * k + 1] = ';';
            groups[2 * 255] = 0; /* with the whole mesh 256 */
            desc.groups = groups;
        }
        CHECK_INT(mesh_comm_open(&c, t, &m, &desc, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, want[what].says);
        CHECK(c.impl == NULL);
    }
    { /* 255 groups are fine */
        mesh_comm_desc desc = MESH_ZERO;
        CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err);
        groups[2 * 254] = 0;
        desc.groups = groups;
        CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
        CHECK_INT(mesh__impl(&c)->ngroups, 255);
        CHECK_INT(mesh_comm_open(&c, t, &m, &desc, &err), MESH_ERR_STATE);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
        mesh_comm_close(&c);
    }
    { /* every required member, the ABI, a struct that ends too early */
        const mesh_ops *whole = t->ops;
        size_t member;
        for (member = 0; member < 11; member++) {
            mesh_ops broken = *whole;
            static const size_t at[] = {
                offsetof(mesh_ops, post),         offsetof(mesh_ops, test),         offsetof(mesh_ops, pending),
                offsetof(mesh_ops, cancel),       offsetof(mesh_ops, progress),     offsetof(mesh_ops, now),
                offsetof(mesh_ops, control_send), offsetof(mesh_ops, control_poll), offsetof(mesh_ops, close)};
            if (member < 9) memset((char *)&broken + at[member], 0, sizeof broken.post);
            if (member == 9) broken.abi++;
            if (member == 10) broken.struct_size = (uint32_t)offsetof(mesh_ops, group_open) - 1;
            t->ops = &broken;
            CHECK_INT(mesh_comm_open(&c, t, &m, NULL, &err), MESH_ERR_ARGUMENT);
            CHECK_HAS(err.text, member < 9 ? "lacks a required member" : "expected at least");
            t->ops = whole;
        }
        t->ops = NULL;
        check_shut(t);
        t->ops = whole;
    }
    CHECK_INT(mesh_comm_open(&c, NULL, &m, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_comm_open: the transport is NULL");
}
static void test_open_refused(void) { run_world(SIM, 2, open_refused_rank, NULL); }

static const test_case refused_tests[] = {
    {"refused/absurd", test_absurd, 0},
    {"refused/overlap", test_overlap, 0},
    {"refused/overlap_lists", test_overlap_lists, 0},
    {"refused/overlap_xfers", test_overlap_xfers, 0},
    {"refused/overlap_blocks", test_overlap_blocks, 0},
    {"refused/p2p", test_p2p_refused, 0},
    {"refused/bounds", test_bounds, 0},
    {"refused/halos", test_halo_refused, 0},
    {"refused/tensors", test_tensors_refused, 0},
    {"refused/tensor_fields", test_tensor_fields, 0},
    {"refused/open", test_open_refused, 0},
};

#endif
