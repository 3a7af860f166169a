/* Ranks of one host with memory in common: collectives that read where the data lie, messages that the receiver copies, memory that others can map. */
#ifndef T_SHARED_H
#define T_SHARED_H

#include <sys/resource.h>
#include <sys/stat.h>

static mesh_socket__shared *shared_of(mesh_transport *t) { return mesh_socket__of(t)->shared; }

/* ---- the calls, on memory of every kind, against what they mean ---- */

enum { SHARED_MOST = 300007, SHARED_RANKS = 5 };

/* Element i of what rank r sends in a round: small, so that sums are exact in every dtype. */
static int shared_value(int round, int r, size_t i) { return (int)((i * 13 + (size_t)(r * 7 + round * 5)) % 23); }

static void shared_put(unsigned char *p, mesh_dtype d, size_t i, int v) {
    float f = (float)v;
    double g = v;
    uint16_t half = mesh__bf16_of_f32(f);
    int64_t wide = v;
    if (d == MESH_F32) memcpy(p + i * 4, &f, 4);
    if (d == MESH_I32) memcpy(p + i * 4, &v, 4);
    if (d == MESH_F64) memcpy(p + i * 8, &g, 8);
    if (d == MESH_I64) memcpy(p + i * 8, &wide, 8);
    if (d == MESH_BF16) memcpy(p + i * 2, &half, 2);
    if (d == MESH_U8) p[i] = (unsigned char)v;
}

/* Memory for one side of a call: the program's own or mesh_alloc's, aligned or not. */
typedef struct shared_memory {
    unsigned char *base, *p;
    int shared;
} shared_memory;

static shared_memory shared_take(mesh_transport *t, size_t nbytes, int how) {
    shared_memory m;
    void *p = NULL;
    mesh_error err;
    m.shared = how & 1;
    if (m.shared)
        CHECK_OK(mesh_alloc(t, nbytes + 64, &p, &err), err);
    else
        p = malloc(nbytes + 64);
    m.base = (unsigned char *)p;
    m.p = m.base + (how & 2 ? 1 + (how >> 2) % 7 : 0);
    memset(m.base, 0x5a, nbytes + 64);
    return m;
}
static void shared_give(mesh_transport *t, shared_memory *m) {
    mesh_error err;
    if (m->shared)
        CHECK_OK(mesh_free(t, m->base, &err), err);
    else
        free(m->base);
}

enum {
    SH_ALL_REDUCE,
    SH_REDUCE,
    SH_REDUCE_SCATTER,
    SH_ALL_GATHER,
    SH_ALL_TO_ALL,
    SH_BROADCAST,
    SH_GATHER,
    SH_SCATTER,
    SH_KINDS
};

/* What element i of the result of rank `me` is. */
static int shared_want(int kind, int op, int round, int n, int me, int root, size_t count, size_t i) {
    size_t at = kind == SH_REDUCE_SCATTER ? (size_t)me * count + i : i;
    int r, v = 0, from = count ? (int)(i / count) : 0;
    switch (kind) {
    case SH_ALL_GATHER:
    case SH_GATHER:
        return shared_value(round, from, i % count);
    case SH_ALL_TO_ALL:
        return shared_value(round, from, (size_t)me * count + i % count);
    case SH_BROADCAST:
        return shared_value(round, root, i);
    case SH_SCATTER:
        return shared_value(round, root, (size_t)me * count + i);
    default:
        for (r = 0; r < n; r++) {
            int x = shared_value(round, r, at);
            v = r == 0 ? x : op == MESH_SUM ? v + x : x > v ? x : v;
        }
        return v;
    }
}

static mesh_status shared_call(mesh_comm *c, int kind, const void *send, void *recv, size_t count, mesh_dtype d,
                               mesh_op op, int root, mesh_request *r) {
    switch (kind) {
    case SH_ALL_REDUCE:
        return mesh_all_reduce_start(c, NULL, send, recv, count, d, op, r);
    case SH_REDUCE:
        return mesh_reduce_start(c, NULL, send, recv, count, d, op, root, r);
    case SH_REDUCE_SCATTER:
        return mesh_reduce_scatter_start(c, NULL, send, recv, count, d, op, r);
    case SH_ALL_GATHER:
        return mesh_all_gather_start(c, NULL, send, recv, count, d, r);
    case SH_ALL_TO_ALL:
        return mesh_all_to_all_start(c, NULL, send, recv, count, d, r);
    case SH_BROADCAST:
        return mesh_broadcast_start(c, NULL, send, recv, count, d, root, r);
    case SH_GATHER:
        return mesh_gather_start(c, NULL, send, recv, count, d, root, r);
    default:
        return mesh_scatter_start(c, NULL, send, recv, count, d, root, r);
    }
}

static void shared_check(int kind, int op, mesh_dtype d, int round, mesh_transport *t, int root, size_t count,
                         size_t total, const unsigned char *recv) {
    unsigned char want[8];
    size_t i, elem = mesh_dtype_bytes(d);
    for (i = 0; i < total; i++) {
        shared_put(want, d, 0, shared_want(kind, op, round, t->size, t->rank, root, count, i));
        if (!memcmp(recv + i * elem, want, elem)) continue;
        test_fail(__FILE__, __LINE__, "round %d, kind %d of %d x %s: element %d of rank %d is wrong", round, kind,
                  (int)count, mesh_dtype_name(d), (int)i, t->rank);
        return;
    }
    for (i = total * elem; i < total * elem + 8; i++) CHECK_INT(recv[i], 0x5a); /* and nothing behind it */
}

static void shared_round(mesh_transport *t, mesh_comm *c, test_random *all, test_random *own, int round) {
    static const mesh_dtype dtypes[] = {MESH_F32, MESH_I32, MESH_F64, MESH_I64, MESH_BF16, MESH_U8};
    static const size_t sizes[] = {0, 1, 3, 7, 100, 1024, 1025, 4097, 16385, 70001, SHARED_MOST};
    int kind = random_below(all, SH_KINDS), which = random_below(all, 11), root = random_below(all, t->size),
        n = t->size;
    mesh_dtype d = dtypes[random_below(all, 6)];
    mesh_op op = random_below(all, 2) ? MESH_SUM : MESH_MAX;
    int in_place = random_below(own, 2), how = random_below(own, 64), how_recv = random_below(own, 64), me = t->rank;
    size_t elem = mesh_dtype_bytes(d), count = sizes[which], sends, receives, i;
    shared_memory send, recv;
    unsigned char *from, *to;
    mesh_request r;
    int blocks = kind == SH_REDUCE_SCATTER || kind == SH_ALL_TO_ALL || kind == SH_SCATTER;
    if (blocks || kind == SH_ALL_GATHER || kind == SH_GATHER) count /= (size_t)n;
    sends = count * (blocks ? (size_t)n : 1);
    receives = count * (kind == SH_ALL_GATHER || kind == SH_ALL_TO_ALL || kind == SH_GATHER ? (size_t)n : 1);
    if (kind == SH_GATHER || kind == SH_SCATTER || kind == SH_REDUCE || kind == SH_BROADCAST) in_place = 0;
    send = shared_take(t, (sends > receives ? sends : receives) * elem, how);
    recv = shared_take(t, receives * elem, how_recv);
    from = send.p, to = recv.p;
    if (in_place && kind == SH_ALL_GATHER) from = to + (size_t)me * count * elem;
    if (in_place && kind == SH_REDUCE_SCATTER) to = from + (size_t)me * count * elem;
    if (in_place && (kind == SH_ALL_REDUCE || kind == SH_ALL_TO_ALL)) to = from;
    for (i = 0; i < sends; i++) shared_put(from, d, i, shared_value(round, me, i));
    CHECK_OK(shared_call(c, kind, from, to, count, d, op, root, &r), c->error);
    CHECK_OK(mesh_wait(r), c->error);
    if (kind == SH_REDUCE_SCATTER && in_place) { /* what follows was sent */
        memcpy(recv.p, to, count * elem);
        to = recv.p;
    }
    if ((kind != SH_GATHER && kind != SH_REDUCE) || me == root)
        shared_check(kind, op, d, round, t, root, count, receives, to);
    shared_give(t, &send);
    shared_give(t, &recv);
}

static void shared_calls_rank(mesh_transport *t, void *ctx) {
    test_random all = random_from(501), own = random_from(502 + (uint64_t)t->rank);
    int round, rounds = *(int *)ctx;
    mesh_comm c;
    if (!open_comm(t, &c, "x=-1", NULL, 60 * SECOND)) return;
    CHECK(shared_of(t) != NULL);
    for (round = 0; round < rounds && !test_failures; round++) {
        int reads = random_below(&all, 2); /* or some may not read others' own memory */
        if (!reads && t->rank % 2)
            MESH_SOCKET__SHOW(&mesh_socket__place_of(shared_of(t), shared_of(t)->me)->reads, (uint64_t)0);
        if (reads) mesh_socket__probe(mesh_socket__of(t));
        shared_round(t, &c, &all, &own, round);
    }
    mesh_comm_close(&c);
}
static void test_shared_calls(void) {
    int n, rounds = 150;
    if (!MESH_SOCKET__SHARES) return;
    for (n = 2; n <= SHARED_RANKS; n++) run_world(SHARED, n, shared_calls_rank, &rounds);
}

/* One rank in place, in memory of its own, the others not: it shows what it sends before it receives over it, however far it could copy at once, and
   however late the others come for it. */
static void shared_one_in_place_rank(mesh_transport *t, void *ctx) {
    int round, j, n = t->size;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 60 * SECOND)) return;
    for (round = 0; round < 2 * n && !test_failures; round++) {
        int own = round / 2 == t->rank, late = round % 2 && !own;
        size_t count = (size_t)SHARED_MOST, i;
        shared_memory send = shared_take(t, (size_t)n * count * 4, own ? 0 : 1),
                      recv = shared_take(t, (size_t)n * count * 4, own ? 0 : 1);
        unsigned char *to = own ? send.p : recv.p;
        mesh_request r;
        for (i = 0; i < (size_t)n * count; i++) shared_put(send.p, MESH_I32, i, shared_value(round, t->rank, i));
        CHECK_OK(mesh_all_to_all_start(&c, NULL, send.p, to, count, MESH_I32, &r), c.error);
        for (j = 0; late && j < 20; j++) test_sleep(0.001);
        CHECK_OK(mesh_wait(r), c.error);
        shared_check(SH_ALL_TO_ALL, MESH_SUM, MESH_I32, round, t, 0, count, (size_t)n * count, to);
        shared_give(t, &send);
        shared_give(t, &recv);
    }
    mesh_comm_close(&c);
}
static void test_shared_one_in_place(void) {
    int n;
    if (!MESH_SOCKET__SHARES) return;
    for (n = 2; n <= 4; n++) run_world(SHARED, n, shared_one_in_place_rank, NULL);
}

/* What a root copies for its receivers is there when they end, of its own memory or shared. */
static void shared_helped_rank(mesh_transport *t, void *ctx) {
    enum { TIMES = 60, CHUNK = 65536, COUNT = 16 * CHUNK }; /* elements that are copied at once; beyond the last: some more */
    int own = *(int *)ctx, round, bad = 0, root = t->size - 1;
    size_t count = own ? 4 * CHUNK : COUNT + 3, k;
    uint32_t *a, *b;
    mesh_error err;
    mesh_comm c;
    void *p;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_alloc(t, count * 4, &p, &err), err);
    a = own ? (uint32_t *)malloc(count * 4) : (uint32_t *)p;
    CHECK_OK(mesh_alloc(t, count * 4, &p, &err), err);
    b = (uint32_t *)p;
    for (round = 0; round < TIMES && !bad; round++) {
        for (k = 0; k < count; k++) a[k] = (uint32_t)(k * 5 + (size_t)round);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        CHECK_OK(mesh_broadcast(&c, NULL, a, t->rank == root ? a : b, count, MESH_U32, root), c.error);
        if (t->rank == root) continue;
        for (k = CHUNK - 1; k < count; k += CHUNK) bad |= b[k] != a[k]; /* at once: it may be under way */
        bad |= memcmp(a, b, count * 4) != 0;
        CHECK_INT(bad, 0);
        if (bad) test_fail(__FILE__, __LINE__, "in round %d", round);
    }
    mesh_comm_close(&c);
    CHECK_OK(mesh_free(t, b, &err), err);
    if (own)
        free(a);
    else
        CHECK_OK(mesh_free(t, a, &err), err);
}
static void test_shared_helped(void) {
    int own, n;
    if (!MESH_SOCKET__SHARES) return;
    for (n = 2; n < 4; n++)
        for (own = 0; own < 2; own++) run_world(SHARED, n, shared_helped_rank, &own);
}

/* Lists, and an op of the user's that does not commute: affine maps, each after those of the ranks before. */
static void shared_compose(void *inout, const void *in, size_t count, void *ctx) {
    uint32_t *b = (uint32_t *)inout;
    const uint32_t *a = (const uint32_t *)in;
    size_t i;
    (void)ctx;
    for (i = 0; i < count; i++) {
        uint32_t scale = a[2 * i] * b[2 * i], shift = a[2 * i + 1] * b[2 * i] + b[2 * i + 1];
        b[2 * i] = scale, b[2 * i + 1] = shift;
    }
}

static void shared_lists_rank(mesh_transport *t, void *ctx) {
    enum { ARRAYS = 3 };
    static const size_t counts[4][ARRAYS] = {{1, 0, 5}, {300, 700, 24}, {9000, 1, 7000}, {200001, 0, 33333}};
    mesh_user_op compose = MESH_ZERO;
    mesh_comm c;
    mesh_op op;
    int round, k, r, n = t->size;
    size_t i, j;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 60 * SECOND)) return;
    compose.combine = shared_compose;
    compose.elem_bytes = 8;
    compose.ordered = 1;
    CHECK_OK(mesh_op_add(&c, &compose, &op), c.error);
    for (round = 0; round < 8 && !test_failures; round++) {
        mesh_buffer list[ARRAYS];
        int32_t *send[ARRAYS], *sum[ARRAYS], *all[ARRAYS];
        for (k = 0; k < ARRAYS; k++) {
            size_t most = counts[round % 4][k];
            send[k] = (int32_t *)malloc(most * 8 + 8), sum[k] = (int32_t *)malloc(most * 8 + 8);
            all[k] = (int32_t *)malloc(most * 4 * (size_t)n + 8);
            for (i = 0; i < 2 * most; i++) send[k][i] = shared_value(round, t->rank, i + (size_t)k) + 1;
            list[k].send = send[k], list[k].recv = sum[k], list[k].count = most;
        }
        CHECK_OK(mesh_all_reduce_many(&c, NULL, list, ARRAYS, MESH_I32, MESH_SUM), c.error);
        for (k = 0; k < ARRAYS; k++)
            for (i = 0; i < list[k].count; i++) {
                int want = 0;
                for (r = 0; r < n; r++) want += shared_value(round, r, i + (size_t)k) + 1;
                if (sum[k][i] != want)
                    test_fail(__FILE__, __LINE__, "array %d of round %d is wrong", k, round), i = list[k].count;
            }
        for (k = 0; k < ARRAYS; k++) list[k].recv = all[k];
        CHECK_OK(mesh_all_gather_many(&c, NULL, list, ARRAYS, MESH_I32), c.error);
        for (k = 0; k < ARRAYS; k++)
            for (r = 0; r < n; r++)
                for (j = 0; j < list[k].count; j++)
                    if (all[k][(size_t)r * list[k].count + j] != shared_value(round, r, j + (size_t)k) + 1)
                        test_fail(__FILE__, __LINE__, "gathered array %d of round %d is wrong", k, round),
                            j = list[k].count;
        for (k = 0; k < ARRAYS; k++) {
            CHECK_OK(mesh_all_reduce(&c, NULL, send[k], sum[k], list[k].count, MESH_BYTES, op), c.error);
            for (i = 0; i < list[k].count; i++) {
                uint32_t a = 1, b = 0;
                for (r = 0; r < n; r++) {
                    uint32_t scale = (uint32_t)shared_value(round, r, 2 * i + (size_t)k) + 1,
                             shift = (uint32_t)shared_value(round, r, 2 * i + 1 + (size_t)k) + 1;
                    b = b * scale + shift, a *= scale;
                }
                if ((uint32_t)sum[k][2 * i] != a || (uint32_t)sum[k][2 * i + 1] != b)
                    test_fail(__FILE__, __LINE__, "composed array %d of round %d is wrong", k, round),
                        i = list[k].count;
            }
        }
        for (k = 0; k < ARRAYS; k++) free(send[k]), free(sum[k]), free(all[k]);
    }
    mesh_comm_close(&c);
}
static void test_shared_lists(void) {
    int n;
    if (!MESH_SOCKET__SHARES) return;
    for (n = 2; n <= SHARED_RANKS; n++) run_world(SHARED, n, shared_lists_rank, NULL);
}

/* ---- a rank that left, to which nobody was connected, is noticed by who only asks now and then ---- */

static void shared_left_rank(mesh_transport *t, void *ctx) {
    static const char why[] = "rank 2 closed its transport";
    enum { COUNT = 2000, ROOT = 1 };
    float v[COUNT] = {0};
    double end = test_now() + 30;
    mesh_comm c;
    mesh_request r;
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 120 * SECOND)) return;
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank < 2) {
        CHECK_OK(mesh_broadcast_start(&c, NULL, v, v, COUNT, MESH_F32, ROOT, &r), c.error);
        while ((status = mesh_test(r)) == MESH_IN_PROGRESS && test_now() < end) {}
        CHECK_INT(status, MESH_ERR_PEER);
        CHECK_INT(c.error.rank, 2);
        CHECK_HAS(c.error.text, t->rank == ROOT ? why : "rank 2");
    }
    mesh_comm_close(&c);
}
static void test_shared_left(void) {
    if (MESH_SOCKET__SHARES) run_world(SHARED, 3, shared_left_rank, NULL);
}

/* ---- a rank that is stopped while it writes into what the others receive, and goes on when they have given it up ---- */

enum { STOPPED_COUNT = 1 << 20 };
static int shared_calls_of_op;

static void shared_stopping(void *inout, const void *in, size_t count, void *ctx) {
    int32_t *a = (int32_t *)inout;
    const int32_t *b = (const int32_t *)in;
    size_t i;
    for (i = 0; i < count; i++) a[i] += b[i];
    if (*(int *)ctx && ++shared_calls_of_op == 50) {
        world_say(1);
        raise(SIGSTOP);
    }
}

static void shared_stopped_rank(mesh_transport *t, void *ctx) {
    int victim = t->rank == 1, i;
    int32_t *recv = NULL, *send = NULL;
    mesh_user_op adds = MESH_ZERO;
    mesh_comm c;
    mesh_error err;
    mesh_op op;
    void *p;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, victim ? 60 * SECOND : 2 * SECOND)) return;
    if (victim) world_word[7] = (int)getpid();
    CHECK_OK(mesh_alloc(t, STOPPED_COUNT * 4, &p, &err), err);
    recv = (int32_t *)p;
    CHECK_OK(mesh_alloc(t, STOPPED_COUNT * 4, &p, &err), err);
    send = (int32_t *)p;
    for (i = 0; i < STOPPED_COUNT; i++) send[i] = i, recv[i] = -1;
    adds.combine = shared_stopping;
    adds.ctx = &victim;
    CHECK_OK(mesh_op_add(&c, &adds, &op), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (victim) {
        CHECK(mesh_all_reduce(&c, NULL, send, recv, STOPPED_COUNT, MESH_I32, op) < 0);
        world_say(3);
    } else {
        CHECK_INT(mesh_all_reduce(&c, NULL, send, recv, STOPPED_COUNT, MESH_I32, op), MESH_ERR_TIMEOUT);
        CHECK_HAS(c.error.text, "rank 1");
        for (i = 0; i < STOPPED_COUNT; i++) recv[i] = -7; /* it is the program's again */
        world_say(2);
        world_await(2, t->size - 1);
        world_await(1, 1);
        if (t->rank == 0) kill(world_word[7], SIGCONT);
        world_await(3, 1); /* it has written all it had to write */
        for (i = 0; i < STOPPED_COUNT && recv[i] == -7; i++) {}
        CHECK_INT(i, STOPPED_COUNT);
        CHECK_INT(mesh_free(t, recv, &err), MESH_OK);
    }
    mesh_comm_close(&c);
}
static void test_shared_stopped(void) {
    enum { NOBODY = 3 }; /* processes in any case: one is stopped */
    if (MESH_SOCKET__SHARES) run_world_but(SHARED, 3, shared_stopped_rank, NULL, NOBODY);
}

/* ---- memory ---- */

/* Block behind block, what is said to be free is, and nothing before `first` is. */
static void heap_is_whole(const mesh_socket__shared *h) {
    uint64_t left = 0;
    int k;
    for (k = 0; k < h->nblocks; k++) {
        const mesh_socket__block *b = &h->block[k];
        if (k) CHECK(b->at == b[-1].at + b[-1].nbytes && (b->used || b[-1].used));
        if (!b->used) left += b->nbytes;
        if (!b->used) CHECK(k >= h->first);
    }
    if (h->nblocks) CHECK(left == h->left);
}

static void shared_alloc_rank(mesh_transport *t, void *ctx) {
    enum { BLOCKS = 60 };
    mesh_socket__shared *h = shared_of(t);
    test_random r = random_from(77);
    unsigned char *block[BLOCKS] = {NULL};
    size_t bytes[BLOCKS], k;
    mesh_error err;
    mesh_request q;
    mesh_comm c;
    int round, i;
    void *p;
    (void)ctx;
    if (h->heap > 64 << 20) h->heap = 64 << 20; /* so that it comes to an end */
    for (round = 0; round < 3000 && !test_failures; round++) {
        i = random_below(&r, BLOCKS);
        heap_is_whole(h);
        if (block[i]) {
            for (k = 0; k < bytes[i]; k += 1 + bytes[i] / 7) CHECK_INT(block[i][k], (unsigned char)i);
            CHECK_OK(mesh_free(t, block[i], &err), err);
            block[i] = NULL;
            continue;
        }
        bytes[i] = (size_t)1 << random_below(&r, 23);
        bytes[i] += (size_t)random_below(&r, (int)bytes[i]);
        CHECK_OK(mesh_alloc(t, bytes[i], &p, &err), err); /* where there is no more to share: of the program's own */
        block[i] = (unsigned char *)p;
        CHECK_INT((uintptr_t)p % 64, 0);
        if (bytes[i] >= 4096 && mesh_socket__block_at(h, p) >= 0) CHECK_INT((uintptr_t)p % 4096, 0);
        memset(p, i, bytes[i]);
    }
    for (i = 0; i < BLOCKS; i++)
        if (block[i]) CHECK_OK(mesh_free(t, block[i], &err), err);
    CHECK_INT(h->nblocks, 1);
    CHECK_OK(mesh_alloc(t, 80 << 20, &p, &err), err);
    CHECK_INT(mesh_socket__block_at(h, p), -1);
    memset(p, 1, 80 << 20);
    CHECK_OK(mesh_free(t, p, &err), err);
    CHECK_OK(mesh_alloc(t, 4096, &p, &err), err);
    CHECK_OK(mesh_free(t, p, &err), err);
    CHECK_INT(mesh_free(t, p, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "was freed before");
    { /* all that a program may have: then its own memory, and groups and chunks go on */
        uint64_t left = h->nblocks ? 0 : h->heap;
        for (i = 0; i < h->nblocks; i++) left += h->block[i].used ? 0 : h->block[i].nbytes;
        CHECK_OK(mesh_alloc(t, (size_t)left - (8 << 20) + 1, &p, &err), err);
        CHECK_INT(mesh_socket__block_at(h, p), -1);
        CHECK_OK(mesh_free(t, p, &err), err);
        CHECK(mesh_socket__spares(h, left - (8 << 20)) && !mesh_socket__spares(h, left - (8 << 20) + 1) && !mesh_socket__spares(h, UINT64_MAX));
    }
    /* given back while it is read: it stays until it is no more */
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_alloc(t, 1 << 20, &p, &err), err);
    memset(p, 7 + t->rank, 1 << 20);
    block[0] = (unsigned char *)malloc((size_t)t->size << 20);
    if (t->rank) world_await(0, 1);
    CHECK_OK(mesh_all_gather_start(&c, NULL, p, block[0], 1 << 20, MESH_U8, &q), c.error);
    if (t->rank == 0) {
        CHECK_OK(mesh_free(t, p, &err), err);
        CHECK_INT(mesh_free(t, p, &err), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_alloc(t, 1 << 20, &p, &err), MESH_OK); /* not in its place */
        memset(p, 99, 1 << 20);
        world_say(0);
    }
    CHECK_OK(mesh_wait(q), c.error);
    for (i = 0; i < t->size; i++) CHECK_INT(block[0][((size_t)i << 20) + 12345], 7 + i);
    CHECK_OK(mesh_free(t, p, &err), err);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    mesh_comm_close(&c);
    free(block[0]);
}
static void test_shared_alloc(void) {
    if (MESH_SOCKET__SHARES) run_world(SHARED, 2, shared_alloc_rank, NULL);
}

/* A rank whose part is done closes the comm, and after the last one the transport, before others have opened it: they still get what it gave. */
static void shared_at_once_rank(mesh_transport *t, void *ctx) {
    int round, k, listed, n = t->size, what = *(int *)ctx;
    for (round = 0; round < 40 && !test_failures; round++) {
        int root = round % n, mine[8] = {0}, got[8] = {0};
        mesh_comm c;
        mesh_request r;
        mesh_status status;
        if (!open_comm(t, &c, "a=-1", NULL, 20 * SECOND)) return;
        for (k = 0; k < n; k++) mine[k] = 100 * t->rank + k;
        status = what == 0   ? mesh_reduce_start(&c, NULL, mine, got, 8, MESH_I32, MESH_SUM, root, &r)
                 : what == 1 ? mesh_gather_start(&c, NULL, mine, got, 1, MESH_I32, root, &r)
                 : what == 2 ? mesh_broadcast_start(&c, NULL, mine, got, 8, MESH_I32, root, &r)
                             : mesh_scatter_start(&c, NULL, mine, got, 1, MESH_I32, root, &r);
        CHECK_OK(status, c.error);
        if (status == MESH_OK) CHECK_OK(mesh_wait(r), c.error);
        for (k = 0; k < n && what == 0 && t->rank == root; k++) CHECK_INT(got[k], 50 * n * (n - 1) + n * k);
        for (k = 0; k < n && what == 1 && t->rank == root; k++) CHECK_INT(got[k], 100 * k);
        for (k = 0; k < n && what == 2; k++) CHECK_INT(got[k], 100 * root + k);
        if (what == 3) CHECK_INT(got[0], 100 * root + t->rank);
        CHECK_OK(mesh_comm_close(&c), c.error);
        if (round % 20 != 19 || !open_comm(t, &c, "a=-1", NULL, 20 * SECOND)) continue;
        CHECK_OK(mesh_barrier(&c, NULL), c.error); /* now all have closed those before */
        mesh_socket__sweep(mesh_socket__of(t));
        for (k = 0, listed = 0; k < MESH_SOCKET__LISTED; k++)
            listed += mesh_socket__place_of(shared_of(t), shared_of(t)->me)->listed[k].id != 0;
        CHECK_INT(listed, 1);
        CHECK_OK(mesh_comm_close(&c), c.error);
    }
}
static void test_shared_at_once(void) {
    int n, what;
    for (n = 2; n <= 4 && MESH_SOCKET__SHARES; n++)
        for (what = 0; what < 4; what++) run_world(SHARED, n, shared_at_once_rank, &what);
}

/* Groups come and go: their cells are memory again when nobody reads them any more. */
static void shared_groups_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    int round, one = 1, sum;
    uint64_t most = 0;
    (void)ctx;
    for (round = 0; round < 3000 && !test_failures; round++) {
        const mesh_socket__shared *h = shared_of(t);
        if (!open_comm(t, &c, t->size == 4 ? "a=2,b=2" : "a=-1", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_all_reduce(&c, NULL, &one, &sum, 1, MESH_I32, MESH_SUM), c.error);
        CHECK_INT(sum, t->size);
        CHECK_OK(mesh_all_reduce(&c, "a", &one, &sum, 1, MESH_I32, MESH_SUM), c.error);
        mesh_comm_close(&c);
        if (h->nblocks > 1 && h->block[h->nblocks - 1].at - h->block[0].at > most)
            most = h->block[h->nblocks - 1].at - h->block[0].at;
    }
    CHECK(most < 1 << 20);
}
static void test_shared_groups(void) {
    if (MESH_SOCKET__SHARES) run_world(SHARED, 4, shared_groups_rank, NULL);
}

/* ---- messages that are lent ---- */

static void shared_loans_rank(mesh_transport *t, void *ctx) {
    enum { N = 400000, LOANS = 80 };
    int32_t *a = (int32_t *)malloc(N * 4), *b = (int32_t *)malloc(N * 4);
    mesh_request r[LOANS];
    mesh_comm c;
    int i, k, own = *(int *)ctx;
    void *p = a;
    mesh_error err;
    if (!own) CHECK_OK(mesh_alloc(t, N * 4, &p, &err), err);
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    for (i = 0; i < N; i++) ((int32_t *)p)[i] = i * 3 + t->rank;
    for (k = 0; k < LOANS; k++) { /* more than may be lent at once; every one another part of it */
        size_t at = (size_t)k * 1000, n = 30000 + (size_t)k * 100;
        if (t->rank)
            CHECK_OK(mesh_send_start(&c, NULL, 0, (int32_t *)p + at, n, MESH_I32, &r[k]), c.error);
        else
            CHECK_OK(mesh_recv_start(&c, NULL, 1, b + (k % 2 ? 100000 : 0), n, MESH_I32, &r[k]), c.error);
        if (t->rank) continue;
        CHECK_OK(mesh_wait(r[k]), c.error);
        for (i = 0; i < (int)n; i++)
            if (b[(k % 2 ? 100000 : 0) + i] != ((int)at + i) * 3 + 1) {
                test_fail(__FILE__, __LINE__, "message %d is wrong at %d", k, i);
                break;
            }
    }
    for (k = 0; k < LOANS && t->rank; k++) CHECK_OK(mesh_wait(r[k]), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    for (k = 0; k < MESH_SOCKET__LOANS; k++)
        CHECK_INT((int)mesh_socket__place_of(shared_of(t), shared_of(t)->me)->lent[k], 0);
    mesh_comm_close(&c);
    if (!own) CHECK_OK(mesh_free(t, p, &err), err);
    free(a), free(b);
}
static void test_shared_loans(void) {
    int own;
    if (!MESH_SOCKET__SHARES) return;
    for (own = 0; own < 2; own++) run_world(SHARED, 2, shared_loans_rank, &own);
}

/* Runs that no frame ends between, too short to be named to the kernel, or longer; contiguous on one side; large and past the caches; from the program's own
   memory, and from what others see, where the receiver reads each run. */
static void shared_runs_rank(mesh_transport *t, void *ctx) {
    static const struct {
        int run, step, rows, whole;
    } cases[] = {{3000, 4001, 900, 0}, {700, 701, 5000, 0}, {60, 100, 50001, 1}, {3000, 3001, 900, 2}, {1, 2, 70000, 0}};
    mesh_comm c;
    mesh_error err;
    size_t k;
    int shared = *(const int *)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    for (k = 0; k < sizeof cases / sizeof *cases; k++) {
        int step = cases[k].step, run = cases[k].run, i, at, wrong = 0;
        size_t span = (size_t)step * (size_t)cases[k].rows, n = (size_t)run * (size_t)cases[k].rows;
        shared_memory from = shared_take(t, span, shared & 1), to = shared_take(t, span, shared >> 1);
        unsigned char *a = from.p, *b = to.p;
        mesh_block block = MESH_ZERO;
        mesh_xfer x[2];
        block.run = (uint64_t)run, block.ndim = 1, block.dim[0].count = cases[k].rows, block.dim[0].stride = step;
        x[0] = conf_xfer(MESH_SEND, !t->rank, a, n, cases[k].whole == 1 ? NULL : &block);
        x[1] = conf_xfer(MESH_RECV, !t->rank, b, n, cases[k].whole == 2 ? NULL : &block);
        for (i = 0; i < cases[k].rows; i++) /* byte `at` of row i, wherever it lies */
            for (at = 0; at < run; at++) a[(size_t)i * (size_t)(cases[k].whole == 1 ? run : step) + (size_t)at] = (unsigned char)(i * 7 + at + t->rank);
        memset(b, 0, span);
        CHECK_OK(mesh_exchange(&c, NULL, x, 2), c.error);
        for (i = 0; i < cases[k].rows; i++)
            for (at = 0; at < run; at++) wrong += b[(size_t)i * (size_t)(cases[k].whole == 2 ? run : step) + (size_t)at] != (unsigned char)(i * 7 + at + !t->rank);
        for (i = 0; i < cases[k].rows && cases[k].whole != 2; i++)
            for (at = run; at < step; at++) wrong += b[(size_t)i * (size_t)step + (size_t)at] != 0;
        if (wrong) test_fail(__FILE__, __LINE__, "case %d, shared %d: %d bytes are wrong", (int)k, shared, wrong);
        shared_give(t, &from), shared_give(t, &to);
    }
    if (!shared) {
        enum { LARGE = MESH_SOCKET__STREAMS + 4097 };
        unsigned char *a, *b = (unsigned char *)calloc(LARGE, 1);
        size_t i, wrong = 0;
        void *p = NULL;
        CHECK_OK(mesh_alloc(t, LARGE, &p, &err), err);
        if (!p || !b) return;
        for (a = (unsigned char *)p, i = 0; i < LARGE && !t->rank; i++) a[i] = (unsigned char)(i * 31 >> 7);
        if (t->rank)
            CHECK_OK(mesh_recv(&c, NULL, 0, b, LARGE, MESH_BYTES), c.error);
        else
            CHECK_OK(mesh_send(&c, NULL, 1, a, LARGE, MESH_BYTES), c.error);
        for (i = 0; i < LARGE && t->rank; i++) wrong += b[i] != (unsigned char)(i * 31 >> 7);
        CHECK_INT((int)wrong, 0);
        CHECK_OK(mesh_free(t, p, &err), err);
        free(b);
    }
    mesh_comm_close(&c);
}
static void test_shared_runs(void) {
    static const int lanes[] = {SHARED, UNIX, TCP};
    int k, shared;
    for (shared = 0; shared < 4; shared++)
        for (k = 0; k < (shared ? 1 : 3); k++) run_world(lanes[k], 2, shared_runs_rank, &shared);
}

/* A message is taken back after it was offered, and its memory used again: it is not received. */
static void shared_withdrawn_rank(mesh_transport *t, void *ctx) {
    enum { N = 1 << 20 };
    unsigned char *a = (unsigned char *)malloc(N), *b = (unsigned char *)malloc(N);
    mesh_comm c;
    mesh_request r;
    (void)ctx;
    memset(a, 1, N);
    memset(b, 0, N);
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    world_say(2);
    world_await(2, 2);
    if (t->rank) {
        CHECK_OK(mesh_send_start(&c, NULL, 0, a, N, MESH_U8, &r), c.error);
        mesh_comm_close(&c); /* which gives it up */
        memset(a, 2, N);
        world_say(0);
        world_await(1, 1);
    } else {
        world_await(0, 1);
        CHECK(mesh_recv(&c, NULL, 1, b, N, MESH_U8) < 0);
        world_say(1);
        mesh_comm_close(&c);
    }
    free(a), free(b);
}
static void test_shared_withdrawn(void) {
    if (MESH_SOCKET__SHARES) run_world(SHARED, 2, shared_withdrawn_rank, NULL);
}

/* ---- a host that has none to share ---- */

#ifndef RLIMIT_AS /* OpenBSD */
#define RLIMIT_AS RLIMIT_DATA
#endif
static char shared_said[400];
static void shared_log(void *ctx, int level, const char *text) {
    (void)ctx, (void)level;
    if (strstr(text, "shared memory")) snprintf(shared_said, sizeof shared_said, "%s", text);
}
static void shared_none_rank(int rank, void *ctx) {
    struct rlimit limit;
    mesh_socket net;
    mesh_socket_desc d = socket_desc(rank, 3, mend_port, mend_fd);
    mesh_comm c;
    mesh_error err;
    void *p = NULL;
    int one = 1, sum = 0, files = *(int *)ctx, rights = files > 1;
    getrlimit(files ? RLIMIT_FSIZE : RLIMIT_AS, &limit);
    limit.rlim_cur = files ? 1 << 20 : (rlim_t)2 << 30;
    if (!rights && ((files && rank == 0) || (!files && rank == 2))) setrlimit(files ? RLIMIT_FSIZE : RLIMIT_AS, &limit);
    if (rights && rank == 0) failing_rights = files == 2 ? EPERM : ETOOMANYREFS;
    if (rank) close(mend_fd);
    d.log = shared_log;
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (!net.impl) return;
    CHECK(shared_of(&net.base) == NULL);
    if (rights ? rank > 0 : rank == (files ? 0 : 2)) CHECK_HAS(shared_said, "no shared memory, so sockets");
    if (open_comm(&net.base, &c, "x=3", NULL, 20 * SECOND)) {
        CHECK_OK(mesh_all_reduce(&c, NULL, &one, &sum, 1, MESH_I32, MESH_SUM), c.error);
        CHECK_INT(sum, 3);
        CHECK_OK(mesh_alloc(&net.base, 1000, &p, &err), err);
        CHECK_OK(mesh_free(&net.base, p, &err), err);
        mesh_comm_close(&c);
    }
    mesh_socket_close(&net);
}
static void test_shared_none(void) {
    int files;
    if (!MESH_SOCKET__SHARES) return;
    /* Address space (of which there may be little, or much is needed), files, descriptors that do not go to others: never, and not for now. */
    for (files = TEST_SANITIZED || sizeof(void *) < 8; files < 4; files++) {
        mend_fd = listen_loopback(AF_INET, &mend_port);
        mend_inherits = 1;
        mend_processes(3, shared_none_rank, &files);
        mend_inherits = 0;
    }
}

/* Of an address space with a limit three quarters are left to the program. */
static void shared_narrow_rank(int rank, void *ctx) {
    const uint64_t space = (uint64_t)8 << 30;
    struct rlimit limit;
    mesh_socket net;
    mesh_socket_desc d = socket_desc(rank, 2, mend_port, mend_fd);
    mesh_error err;
    (void)ctx;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = (rlim_t)space;
    setrlimit(RLIMIT_AS, &limit);
    if (rank) close(mend_fd);
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (!net.impl) return;
    CHECK(shared_of(&net.base) != NULL);
    if (shared_of(&net.base)) CHECK(shared_of(&net.base)->nbytes <= space / 4);
    mesh_socket_close(&net);
}
static void test_shared_narrow(void) {
    if (!MESH_SOCKET__SHARES || TEST_SANITIZED || sizeof(void *) < 8) return;
    mend_fd = listen_loopback(AF_INET, &mend_port);
    mend_inherits = 1;
    mend_processes(2, shared_narrow_rank, NULL);
    mend_inherits = 0;
}

/* Two operations of two comms in halves of one block: one is given up by its deadline, and takes its half out of what is shared, and no more: the other has the
   right sums. Nothing is held when they have ended, whichever side is shared; what is given back can be had again, but for that half. */
static void shared_halves_rank(mesh_transport *t, void *ctx) {
    enum { N = 1 << 18 };
    mesh_comm c[2];
    mesh_request r[2];
    mesh_error err;
    mesh_socket__shared *h = shared_of(t);
    int32_t *both, *mine = (int32_t *)malloc(N * 4);
    void *p = NULL, *again = NULL;
    int i, k, me = t->rank;
    (void)ctx;
    for (i = 0; i < N; i++) mine[i] = i;
    if (!open_comm(t, &c[0], "x=2", NULL, SECOND / 4) || !open_comm(t, &c[1], "y=2", NULL, 60 * SECOND)) return;
    CHECK_OK(mesh_alloc(t, 2 * N * 4, &p, &err), err);
    both = (int32_t *)p;
    for (k = 0; k < 2; k++) { /* shared to ordinary, and back */
        for (i = 0; i < 2 * N; i++) both[i] = i;
        CHECK_OK(mesh_all_reduce(&c[1], NULL, k ? mine : both, k ? both : mine, N, MESH_I32, MESH_SUM), c[1].error);
        CHECK_INT(k ? both[N - 1] : mine[N - 1], k ? 4 * (N - 1) : 2 * (N - 1));
        CHECK_INT(h->block[mesh_socket__block_at(h, p)].holds, 0);
    }
    for (i = 0; i < 2 * N; i++) both[i] = i + me;
    if (!me) {
        for (k = 0; k < 2; k++)
            CHECK_OK(mesh_all_reduce_start(&c[k], NULL, both + k * N, both + k * N, N, MESH_I32, MESH_SUM, &r[k]), c[k].error);
        CHECK_INT(mesh_wait(r[0]), MESH_ERR_TIMEOUT);
        CHECK(h->block[mesh_socket__block_at(h, p)].own_end > 0);
        world_say(0);
        CHECK_OK(mesh_wait(r[1]), c[1].error);
    } else {
        world_await(0, 1);
        CHECK_OK(mesh_all_reduce(&c[1], NULL, both + N, both + N, N, MESH_I32, MESH_SUM), c[1].error);
    }
    for (i = k = 0; i < N; i++) k += both[N + i] != 2 * (N + i) + 1;
    CHECK_INT(k, 0);
    for (i = k = 0; i < N; i++) k += both[i] != i + me;
    CHECK_INT(k, 0);
    CHECK_INT(h->block[mesh_socket__block_at(h, p)].holds, 0);
    CHECK_OK(mesh_free(t, p, &err), err);
    CHECK_OK(mesh_alloc(t, N * 4, &again, &err), err);
    if (!me) CHECK(again == (void *)(both + N)); /* behind what is nobody's */
    CHECK_OK(mesh_free(t, again, &err), err);
    mesh_comm_close(&c[0]);
    mesh_comm_close(&c[1]);
    free(mine);
}
/* And where the two have a page in common the other one fails too, for what is written there would not come. */
static void shared_page_rank(mesh_transport *t, void *ctx) {
    enum { N = 1 << 18 };
    mesh_comm c[2];
    mesh_request r[2];
    mesh_error err;
    int32_t *both;
    void *p = NULL;
    int k;
    (void)ctx;
    if (!open_comm(t, &c[0], "x=2", NULL, SECOND / 4) || !open_comm(t, &c[1], "y=2", NULL, 60 * SECOND)) return;
    CHECK_OK(mesh_alloc(t, 2 * N * 4, &p, &err), err);
    both = (int32_t *)p;
    memset(both, 0, 2 * N * 4);
    CHECK_OK(mesh_barrier(&c[1], NULL), c[1].error);
    if (!t->rank) {
        for (k = 0; k < 2; k++)
            CHECK_OK(mesh_all_reduce_start(&c[k], NULL, both + k * (N - 3), both + k * (N - 3), N - 3, MESH_I32, MESH_SUM, &r[k]),
                     c[k].error);
        CHECK_INT(mesh_wait(r[0]), MESH_ERR_TIMEOUT);
        CHECK_INT(mesh_wait(r[1]), MESH_ERR_TRANSPORT);
        CHECK_HAS(c[1].error.text, "in one page with that of an operation that was given up");
    } else {
        world_await(0, 1);
        CHECK(mesh_all_reduce(&c[1], NULL, both + N - 3, both + N - 3, N - 3, MESH_I32, MESH_SUM) != MESH_OK);
    }
    if (!t->rank) world_say(0);
    mesh_comm_close(&c[0]);
    mesh_comm_close(&c[1]);
}
/* Two comms, and memory of which each is to reduce a half; the halves have a page in common. NULL: they did not open. */
enum { SHARED_HALF = 30000 };
static float *shared_one_page(mesh_transport *t, mesh_comm *c) {
    mesh_error err;
    void *p = NULL;
    int k;
    if (!open_comm(t, &c[0], "x=-1", NULL, 60 * SECOND) || !open_comm(t, &c[1], "y=-1", NULL, 60 * SECOND)) return NULL;
    CHECK_OK(mesh_alloc(t, 2 * SHARED_HALF * 4, &p, &err), err);
    memset(p, 0, 2 * SHARED_HALF * 4);
    for (k = 0; k < 2; k++) CHECK_OK(mesh_barrier(&c[k], NULL), c[k].error);
    return (float *)p;
}
static void shared_half_start(mesh_comm *c, float *both, int k, mesh_request *r) {
    float *half = both + k * SHARED_HALF;
    CHECK_OK(mesh_all_reduce_start(&c[k], NULL, half, half, SHARED_HALF, MESH_F32, MESH_SUM, r), c[k].error);
}

/* Operations of two groups whose memory has a page in common, and a rank is lost: both fail, for that or by the other's hand, and nobody with them. */
static void shared_lost_page_rank(mesh_transport *t, void *ctx) {
    mesh_comm c[2];
    mesh_request r[2];
    float *both = shared_one_page(t, c);
    int k;
    (void)ctx;
    if (!both) return;
    if (t->rank == 2) {
        world_await(0, 2);
        kill(getpid(), SIGKILL);
    }
    for (k = 0; k < 2; k++) shared_half_start(c, both, k, &r[k]);
    world_say(0);
    for (k = 0; k < 2; k++) {
        CHECK(mesh_wait(r[k]) != MESH_OK);
        CHECK(strstr(c[k].error.text, "rank 2 was lost") || strstr(c[k].error.text, "in one page with that of"));
    }
    for (k = 0; k < 2; k++) mesh_comm_close(&c[k]);
}

/* The same where the other rank gives one of the two up, at which both have come. */
static void shared_given_page_rank(mesh_transport *t, void *ctx) {
    mesh_comm c[2];
    mesh_request r[2];
    float *both = shared_one_page(t, c);
    int k, first = *(const int *)ctx;
    if (!both) return;
    if (!t->rank) {
        for (k = 0; k < 2; k++) shared_half_start(c, both, k, &r[k]);
        world_say(0);
        world_await(1, 1); /* and does not go on meanwhile: it would come to its end */
        for (k = 0; k < 2; k++) CHECK(mesh_wait(r[k ? 1 - first : first]) != MESH_OK);
        CHECK_HAS(c[0].error.text, "in one page with that of an operation that was given up");
        world_say(2);
    } else {
        world_await(0, 1);
        shared_half_start(c, both, 1, &r[1]);
        CHECK_INT(mesh_comm_close(&c[1]), MESH_ERR_STATE);
        world_say(1);
        world_await(2, 1);
    }
    for (k = 0; k < 2; k++) mesh_comm_close(&c[k]);
}

/* Numbers of operations come round: a group that has only broadcast, or gathered, for 2^31 of them goes on. Here both ranks' numbers are set to just before. */
static void shared_round_rank(mesh_transport *t, void *ctx) {
    enum { CALLS = 3000, BEFORE = 0x7ffffff0 };
    mesh_comm c, other;
    int kind, i, k, wrong = 0;
    (void)ctx;
    for (kind = 0; kind < 2; kind++) {
        mesh_socket__handle *h;
        int64_t v[8], all[16];
        if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND) || !open_comm(t, &other, "y=2", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        CHECK_OK(mesh_barrier(&other, NULL), other.error);
        h = (mesh_socket__handle *)mesh__impl(&c)->group[0]->handle;
        h->numbers = BEFORE, h->all_at = 0;
        for (k = 0; k < 2; k++) h->cell[h->index]->shown[k].arrived = BEFORE;
        CHECK_OK(mesh_barrier(&other, NULL), other.error);
        for (i = 0; i < CALLS && !test_failures; i++) {
            for (k = 0; k < 8; k++) v[k] = kind || !t->rank ? 10 * i + (kind ? t->rank : 0) : -1;
            CHECK_OK(kind ? mesh_gather(&c, NULL, v, all, 8, MESH_I64, 0) : mesh_broadcast(&c, NULL, v, v, 8, MESH_I64, 0), c.error);
            for (k = 0; k < 8; k++) wrong += v[k] != 10 * i + (kind ? t->rank : 0);
            for (k = 0; k < 16 && kind && !t->rank; k++) wrong += all[k] != 10 * i + k / 8;
        }
        CHECK_INT(wrong, 0);
        mesh_comm_close(&c);
        mesh_comm_close(&other);
    }
}

/* And so do the generations of a message's number on the wire, of which 0 is none. */
static void shared_generation_rank(mesh_transport *t, void *ctx) {
    enum { N = 100000 };
    mesh_socket__impl *s = mesh_socket__of(t);
    char *p = (char *)calloc(1, N);
    mesh_comm c;
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    for (i = 0; i < 6; i++) {
        CHECK_OK(t->rank ? mesh_recv(&c, NULL, 0, p, N, MESH_BYTES) : mesh_send(&c, NULL, 1, p, N, MESH_BYTES), c.error);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        if (s->nslots) CHECK(s->slot[0] == NULL && s->generation[0]);
        if (i == 2 && s->nslots) s->generation[0] = UINT32_MAX - 1;
    }
    CHECK(s->nslots && s->generation[0] < 9);
    free(p);
    mesh_comm_close(&c);
}
/* What the kernel does not let a rank read any more, in the midst of a message, is asked for and comes as bytes. */
static void shared_unread_rank(mesh_transport *t, void *ctx) {
    enum { N = 6000000 };
    failing_plan plan = MESH_ZERO;
    unsigned char *p = (unsigned char *)malloc(N);
    mesh_comm c;
    int i, k, wrong = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    for (k = 0; k < 3; k++) {
        for (i = 0; i < N; i++) p[i] = (unsigned char)(t->rank ? 0 : i * 7 + i / 1000 + k);
        plan.kinds = FAIL_SYSCALL, plan.at = k, plan.times = 1 << 20, plan.error = EPERM, plan.calls = plan.failed = 0;
        if (t->rank && k) failing_now = &plan;
        CHECK_OK(t->rank ? mesh_recv(&c, NULL, 0, p, N, MESH_BYTES) : mesh_send(&c, NULL, 1, p, N, MESH_BYTES), c.error);
        failing_now = NULL;
        for (i = 0; i < N; i++) wrong += p[i] != (unsigned char)(i * 7 + i / 1000 + k);
        CHECK_INT(wrong, 0);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
    }
    free(p);
    mesh_comm_close(&c);
}
static void test_shared_rounds(void) {
    enum { NOBODY = 2 };
    int first;
    if (MESH_SOCKET__SHARES) run_world_but(SHARED, 3, shared_lost_page_rank, NULL, 2);
    for (first = 0; first < 2 && MESH_SOCKET__SHARES; first++)
        run_world_but(SHARED, 2, shared_given_page_rank, &first, NOBODY);
    if (MESH_SOCKET__SHARES) run_world(SHARED, 2, shared_round_rank, NULL);
    run_world(SHARED, 2, shared_generation_rank, NULL);
    run_world(SHARED, 2, shared_unread_rank, NULL);
}

static void test_shared_halves(void) {
    enum { NOBODY = 2 }; /* processes in any case: one takes memory out of its mapping */
    if (MESH_SOCKET__SHARES) run_world_but(SHARED, 2, shared_halves_rank, NULL, NOBODY);
    if (MESH_SOCKET__SHARES) run_world_but(SHARED, 2, shared_page_rank, NULL, NOBODY);
}

/* A rank that has written where it should not shows memory outside of its heap: it is named, and takes no other with it. */
static void shared_garbage_rank(mesh_transport *t, void *ctx) {
    enum { N = 1 << 18 };
    mesh_comm c;
    mesh_request r;
    mesh_error err;
    void *p = NULL;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    CHECK_OK(mesh_alloc(t, N * 4, &p, &err), err);
    memset(p, 0, N * 4);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank) {
        mesh_socket__impl *s = mesh_socket__of(t);
        CHECK_OK(mesh_all_reduce_start(&c, NULL, p, p, N, MESH_F32, MESH_SUM, &r), c.error);
        s->busy->cell[s->busy->index]->shown[s->busy->head->number & 1].recv = (uint64_t)1 << 45;
        world_say(0);
        world_await(0, 2);
        _exit(0);
    }
    world_await(0, 1);
    CHECK_INT(mesh_all_reduce(&c, NULL, p, p, N, MESH_F32, MESH_SUM), MESH_ERR_PEER);
    CHECK_HAS(c.error.text, "rank 1 shows memory that it does not have");
    world_say(0);
    mesh_comm_close(&c);
}
static void test_shared_garbage(void) {
    if (MESH_SOCKET__SHARES) run_world_but(SHARED, 2, shared_garbage_rank, NULL, 1);
}

/* ---- what it takes beyond the program's memory ---- */

/* Bytes of this process that are not the file's: pages that it wrote itself. */
static int64_t shared_private_bytes(void) {
    char line[256];
    int64_t kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "RssAnon:", 8)) kib = strtoll(line + 8, NULL, 10);
    if (f) fclose(f);
    return kib * 1024;
}

static void shared_beyond_rank(mesh_transport *t, void *ctx) {
    enum { MOST = 16 << 20 };
    unsigned char *a = (unsigned char *)malloc(MOST), *b = (unsigned char *)malloc(MOST);
    int64_t before, own, peers = t->size - 1, allowed = (4 << 20) + peers * (64 << 10);
    size_t n, each;
    struct stat file;
    mesh_comm c;
    (void)ctx;
    memset(a, 1, MOST);
    memset(b, 2, MOST);
    before = shared_private_bytes();
    if (!open_comm(t, &c, "x=-1", NULL, 60 * SECOND)) return;
    for (n = 8; n <= MOST; n *= 128) {
        each = n / (size_t)t->size;
        CHECK_OK(mesh_all_reduce(&c, NULL, a, b, n / 4, MESH_F32, MESH_SUM), c.error);
        CHECK_OK(mesh_reduce_scatter(&c, NULL, a, b, each / 4, MESH_F32, MESH_SUM), c.error);
        CHECK_OK(mesh_all_gather(&c, NULL, a, b, each, MESH_U8), c.error);
        CHECK_OK(mesh_all_to_all(&c, NULL, a, b, each, MESH_U8), c.error);
        CHECK_OK(mesh_broadcast(&c, NULL, a, b, n, MESH_U8, 0), c.error);
        CHECK_OK(mesh_shift(&c, "x", 1, 1, a, b, n, MESH_U8), c.error);
        CHECK_OK(mesh_shift(&c, "x", -1, 1, a, b, n, MESH_U8), c.error);
    }
    own = TEST_SANITIZED ? 0 : shared_private_bytes() - before; /* a sanitizer's is more */
    CHECK(before > 0 && fstat(shared_of(t)->fd, &file) == 0);
    CHECK_INT(own < 0 ? 0 : own > allowed, 0);
    CHECK_INT((int64_t)file.st_blocks * 512 / t->size + own > allowed, 0);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    mesh_comm_close(&c);
    free(a);
    free(b);
}
static void test_shared_beyond(void) {
    int n;
    for (n = 2; n <= 5 && MESH_SOCKET__SHARES; n++) run_world_but(SHARED, n, shared_beyond_rank, NULL, n);
}

/* A program that locks all of its memory has what it uses, not all that it could. */
static void shared_locked_rank(int rank, void *ctx) {
    mesh_socket_desc d = socket_desc(rank, 2, mend_port, mend_fd);
    struct rlimit files = {64 << 20, 64 << 20}; /* what there could be */
    mesh_socket net;
    struct stat file;
    mesh_error err;
    void *p = NULL;
    (void)ctx;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &files), 0);
    CHECK_INT(mlockall(MCL_CURRENT | MCL_FUTURE), 0);
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (!net.impl) return;
    CHECK(shared_of(&net.base) != NULL);
    if (shared_of(&net.base)) {
        CHECK_INT(fstat(shared_of(&net.base)->fd, &file), 0);
        CHECK(file.st_blocks * 512 < 8 << 20);
    }
    CHECK_OK(mesh_alloc(&net.base, 1 << 20, &p, &err), err);
    if (p) memset(p, rank, 1 << 20);
    CHECK_OK(mesh_free(&net.base, p, &err), err);
    mesh_socket_close(&net);
}
/* May this process lock so much? Asked in a child. */
static int shared_may_lock(void) {
    int status = -1, zero;
    pid_t child = fork();
    if (child == 0) {
        zero = open("/dev/zero", O_RDWR);
        _exit(mlockall(MCL_FUTURE) != 0 || mmap(NULL, 128 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0) == MAP_FAILED);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}
static void test_shared_locked(void) {
    if (!MESH_SOCKET__SHARES || TEST_SANITIZED) return; /* a sanitizer's memory is not to be locked */
    if (!shared_may_lock()) {
        fprintf(stderr, "    little memory may be locked: not tested\n");
        return;
    }
    mend_fd = listen_loopback(AF_INET, &mend_port);
    mend_processes(2, shared_locked_rank, NULL);
    close(mend_fd);
}

/* A kernel that gives little memory before a signal takes it back gives much all the same. */
static void shared_filled_rank(mesh_transport *t, void *ctx) {
    enum { MUCH = 9 << 20 };
    mesh_error err;
    void *p = NULL;
    (void)ctx;
    failing_fill = 2 << 20;
    CHECK_OK(mesh_alloc(t, MUCH, &p, &err), err);
    if (shared_of(t) && p) CHECK(mesh_socket__shared_at(shared_of(t), p, MUCH) != 0);
    if (p) memset(p, 1, MUCH);
    CHECK_OK(mesh_free(t, p, &err), err);
    failing_fill = 0;
}
static void test_shared_filled(void) {
    enum { NOBODY = 2 }; /* processes in any case */
    if (MESH_SOCKET__SHARES) run_world_but(SHARED, 2, shared_filled_rank, NULL, NOBODY);
}

/* Who has not passed memory on is named: the first of those that share. */
static char shared_said[400];
static void shared_hear(void *ctx, int level, const char *text) {
    (void)ctx;
    if (level == 1) snprintf(shared_said, sizeof shared_said, "%s", text);
}
static void shared_named_rank(int rank, void *ctx) {
    mesh_socket_desc d = socket_desc(rank, 3, mend_port, mend_fd);
    mesh_socket net;
    mesh_error err;
    (void)ctx;
    if (rank == 0) d.lanes = MESH_SOCKET_UNIX; /* it shares nothing */
    if (rank == 1) failing_rights = EPERM;
    d.log = shared_hear;
    CHECK_OK(mesh_socket_open(&net, &d, &err), err);
    if (rank == 2) CHECK_HAS(shared_said, "no shared memory, so sockets: rank 1 is connected to over TCP");
    mesh_socket_close(&net);
}
static void test_shared_named(void) {
    if (!MESH_SOCKET__SHARES) return;
    mend_fd = listen_loopback(AF_INET, &mend_port);
    mend_processes(3, shared_named_rank, NULL);
    close(mend_fd);
}

static const test_case shared_tests[] = {
    {"shared/named", test_shared_named, 0},
    {"shared/filled", test_shared_filled, 0},
    {"shared/locked", test_shared_locked, 0},
    {"shared/rounds", test_shared_rounds, 60},
    {"shared/one_in_place", test_shared_one_in_place, 0},
    {"shared/calls", test_shared_calls, 0},         {"shared/lists", test_shared_lists, 0},
    {"shared/left", test_shared_left, 0},           {"shared/helped", test_shared_helped, 0},
    {"shared/stopped", test_shared_stopped, 0},     {"shared/alloc", test_shared_alloc, 0},
    {"shared/groups", test_shared_groups, 0},       {"shared/loans", test_shared_loans, 0},
    {"shared/runs", test_shared_runs, 0},
    {"shared/at_once", test_shared_at_once, 0},     {"shared/halves", test_shared_halves, 0},
    {"shared/garbage", test_shared_garbage, 0},     {"shared/beyond", test_shared_beyond, 0},
    {"shared/withdrawn", test_shared_withdrawn, 0}, {"shared/none", test_shared_none, 0}, {"shared/narrow", test_shared_narrow, 0},
};
#endif
