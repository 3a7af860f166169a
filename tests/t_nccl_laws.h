/* Laws of the NCCL transport: orders of ranks, what types mean, memory, marks, what is made and unmade, what the environment says. */
#ifndef T_NCCL_LAWS_H
#define T_NCCL_LAWS_H

/* ---- a group's order is its mesh's, whatever the ranks' numbers are: every call that tells ranks apart goes by it ---- */

static void *law_device(mesh_comm *c, const void *host, size_t n) {
    void *p = NULL;
    CHECK_OK(mesh_alloc(c->transport, n, &p, &c->error), c->error);
    CHECK_OK(mesh_copy(c, p, host, n), c->error);
    return p;
}
static void law_order(mesh_comm *c, const char *axes) {
    int n = mesh_comm_size(c, axes), me = mesh_comm_index(c, axes), all[8], got[8], i, root;
    void *own = law_device(c, &me, sizeof me), *many;
    for (i = 0; i < n; i++) all[i] = 100 * me + i;
    many = law_device(c, all, sizeof all);
    CHECK_OK(mesh_all_gather(c, axes, own, many, 1, MESH_I32), c->error);
    CHECK_OK(mesh_copy(c, got, many, sizeof got), c->error);
    for (i = 0; i < n; i++) CHECK_INT(got[i], i);
    for (root = 0; root < n; root++) {
        CHECK_OK(mesh_broadcast(c, axes, own, many, 1, MESH_I32, root), c->error);
        CHECK_OK(mesh_copy(c, got, many, sizeof got), c->error);
        CHECK_INT(got[0], root);
        CHECK_OK(mesh_copy(c, many, all, sizeof all), c->error);
        CHECK_OK(mesh_gather(c, axes, own, many, 1, MESH_I32, root), c->error);
        CHECK_OK(mesh_copy(c, got, many, sizeof got), c->error);
        for (i = 0; i < n && me == root; i++) CHECK_INT(got[i], i);
        CHECK_OK(mesh_copy(c, many, all, sizeof all), c->error);
        CHECK_OK(mesh_scatter(c, axes, many, own, 1, MESH_I32, root), c->error);
        CHECK_OK(mesh_copy(c, got, own, sizeof me), c->error);
        CHECK_INT(got[0], 100 * root + me);
        CHECK_OK(mesh_copy(c, own, &me, sizeof me), c->error);
    }
    CHECK_OK(mesh_sendrecv(c, axes, (me + 1) % n, own, 1, (me + n - 1) % n, many, 1, MESH_I32), c->error);
    CHECK_OK(mesh_copy(c, got, many, sizeof got), c->error);
    CHECK_INT(got[0], (me + n - 1) % n);
    mesh_free(c->transport, own, &c->error), mesh_free(c->transport, many, &c->error);
}
static void orders_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    const mesh_nccl__group *g;
    const mesh_nccl__comm *k;
    int i, kept;
    mesh_comm c, sub;
    mesh m;
    mesh_desc d = MESH_ZERO;
    mesh_error err;
    static const int two = 2;
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=2", "b,a", 20 * SECOND)) return;
    for (g = s->group; g; g = g->next) CHECK(g->id == 0 || (g->timeout > 0 && g->timeout <= 20 * SECOND)); /* the comm's */
    law_order(&c, NULL);
    law_order(&c, "a");
    law_order(&c, "b");
    law_order(&c, "b,a");
    CHECK_OK(mesh_comm_close(&c), c.error);
    for (k = s->comm, kept = 0; k; k = k->next) kept++;
    for (i = 0; i < 3; i++) { /* what a comm had is the next one's */
        if (!open_comm(t, &c, "a=2,b=2", "b,a", 20 * SECOND)) return;
        CHECK_OK(mesh_comm_close(&c), c.error);
    }
    for (k = s->comm, i = 0; k; k = k->next) i++;
    CHECK_INT(i, kept);
    d.shape = &two, d.naxes = 1; /* ranks 2 and 3 are a world's end, of which 3 comes first */
    d.origin = t->rank & 2;
    CHECK_OK(mesh_make(&m, &d, &err), err);
    CHECK_OK(mesh_comm_open(&sub, t, &m, NULL, &err), err);
    law_order(&sub, NULL);
    CHECK_OK(mesh_comm_close(&sub), sub.error);
}
static void test_orders(void) { run_gpus(4, orders_rank, NULL); }

/* ---- types: least and greatest by their signs, products of complex numbers, averages of the smallest ---- */

static void types_rank(mesh_transport *t, void *ctx) {
    static const mesh_dtype types[] = {MESH_I8, MESH_U8, MESH_I16, MESH_U16, MESH_I32, MESH_U32, MESH_I64, MESH_U64};
    mesh_comm c;
    unsigned char host[16], got[16];
    size_t i;
    int op;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    for (i = 0; i < 8; i++)
        for (op = 0; op < 2; op++) { /* rank 0 has one, rank 1 all bits: the least of all, or the greatest */
            size_t width = mesh_dtype_bytes(types[i]), k;
            int ones = (i % 2 == 0) == (op == 0);
            void *p;
            memset(host, t->rank ? 0xff : 0, sizeof host);
            if (!t->rank) host[0] = 1;
            p = law_device(&c, host, width);
            CHECK_OK(mesh_all_reduce(&c, NULL, p, p, 1, types[i], op ? MESH_MAX : MESH_MIN), c.error);
            CHECK_OK(mesh_copy(&c, got, p, width), c.error);
            for (k = 0; k < width; k++)
                if (got[k] != (ones ? 0xff : k == 0))
                    test_fail(__FILE__, __LINE__, "%s of type %d: byte %d is %d", op ? "max" : "min", (int)types[i], (int)k, got[k]);
            mesh_free(c.transport, p, &c.error);
        }
    {
        float z[2] = {1, 2}, sum[2];
        uint16_t least = 1, f16 = 0;
        void *p;
        if (t->rank) z[0] = 3, z[1] = 1;
        p = law_device(&c, z, sizeof z);
        CHECK_OK(mesh_all_reduce(&c, NULL, p, p, 1, MESH_C64, MESH_PROD), c.error);
        CHECK_OK(mesh_copy(&c, sum, p, sizeof sum), c.error);
        CHECK(sum[0] == 1 && sum[1] == 7);
        CHECK_OK(mesh_copy(&c, p, z, sizeof z), c.error);
        CHECK_OK(mesh_all_reduce(&c, NULL, p, p, 1, MESH_C64, MESH_AVG), c.error);
        CHECK_OK(mesh_copy(&c, sum, p, sizeof sum), c.error);
        CHECK(sum[0] == 2 && sum[1] == 1.5f);
        CHECK_OK(mesh_copy(&c, p, &least, sizeof least), c.error);
        CHECK_OK(mesh_all_reduce(&c, NULL, p, p, 1, MESH_F16, MESH_AVG), c.error);
        CHECK_OK(mesh_copy(&c, &f16, p, sizeof f16), c.error);
        CHECK_INT(f16, 1);
        mesh_free(c.transport, p, &c.error);
    }
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_types(void) { run_gpus(2, types_rank, NULL); }

/* Three: no power of two, and complex, over a reduce_scatter by counts that differ. */
static void averages_rank(mesh_transport *t, void *ctx) {
    static const size_t counts[3] = {1, 4, 2};
    double z[14], got[8];
    mesh_comm c;
    void *p, *q;
    size_t i, at = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    for (i = 0; i < 14; i++) z[i] = (double)(i * 3) + t->rank;
    p = law_device(&c, z, sizeof z);
    q = law_device(&c, z, sizeof got);
    for (i = 0; i < (size_t)t->rank; i++) at += counts[i];
    CHECK_OK(mesh_reduce_scatter_v(&c, NULL, p, q, counts, NULL, MESH_C128, MESH_AVG), c.error);
    CHECK_OK(mesh_copy(&c, got, q, sizeof got), c.error);
    for (i = 0; i < 2 * counts[t->rank]; i++) CHECK(got[i] == (double)((2 * at + i) * 3) + 1);
    for (; i < 8; i++) CHECK(got[i] == z[i]); /* nothing beyond its count */
    CHECK_OK(mesh_reduce(&c, NULL, p, q, 4, MESH_C128, MESH_AVG, 1), c.error);
    CHECK_OK(mesh_copy(&c, got, q, sizeof got), c.error);
    for (i = 0; i < 8 && t->rank == 1; i++) CHECK(got[i] == (double)(i * 3) + 1);
    mesh_free(c.transport, p, &c.error), mesh_free(c.transport, q, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_averages(void) { run_gpus(3, averages_rank, NULL); }

/* Strided messages of a post, more than one batch of moves holds, of odd lengths: all arrive, and nothing beside them. */
static void many_pieces_rank(mesh_transport *t, void *ctx) {
    enum { PIECES = 700, EACH = 24 };
    static mesh_xfer x[2 * PIECES];
    static unsigned char host[2 * PIECES * EACH], want[2 * PIECES * EACH];
    mesh_block b[2];
    mesh_comm c;
    unsigned char *p;
    int i, k, side, other = 1 - t->rank;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    memset(b, 0, sizeof b), memset(x, 0, sizeof x);
    for (side = 0; side < 2; side++) { /* two bytes of every five; one of every four of two rows */
        b[side].run = side ? 1 : 2, b[side].ndim = 1 + side;
        b[side].dim[0].count = side ? 2 : 4, b[side].dim[0].stride = side ? 12 : 5;
        b[side].dim[1].count = 4, b[side].dim[1].stride = 3;
    }
    for (i = 0; i < 2 * PIECES * EACH; i++) want[i] = host[i] = (unsigned char)(t->rank * 100 + i % 97);
    p = (unsigned char *)law_device(&c, host, sizeof host);
    for (i = 0; i < 2 * PIECES; i++) {
        x[i].base = p + i * EACH, x[i].direction = i < PIECES ? MESH_SEND : MESH_RECV;
        x[i].rank = other, x[i].block = &b[i >= PIECES], x[i].nbytes = 8;
    }
    CHECK_OK(mesh_exchange(&c, NULL, x, 2 * PIECES), c.error);
    CHECK_OK(mesh_copy(&c, host, p, sizeof host), c.error);
    for (i = 0; i < PIECES; i++)
        for (k = 0; k < 8; k++)
            want[(PIECES + i) * EACH + k / 4 * 12 + k % 4 * 3] = (unsigned char)(other * 100 + (i * EACH + k / 2 * 5 + k % 2) % 97);
    CHECK(!memcmp(host, want, sizeof host));
    mesh_free(c.transport, p, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_many_pieces(void) { run_gpus(2, many_pieces_rank, NULL); }

/* ---- memory: whose are these bytes; the pool gives way to the user ---- */

/* Messages match in the order of issue: no tags. In place goes through the device's memory. */
static void messages_rank(mesh_transport *t, void *ctx) {
    int what;
    (void)ctx;
    for (what = 0; what < 2; what++) {
        float host[1000];
        void *p;
        mesh_comm c;
        mesh_request r;
        mesh_status status = MESH_OK;
        int k;
        if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_alloc(c.transport, sizeof host, &p, &c.error), c.error);
        for (k = 0; k < 1000; k++) host[k] = (float)(k + 5000 * t->rank);
        CHECK_OK(mesh_copy(&c, p, host, sizeof host), c.error);
        CHECK_OK(mesh_shift(&c, "x", 1, 1, p, p, 1000, MESH_F32), c.error);
        CHECK_OK(mesh_copy(&c, host, p, sizeof host), c.error);
        for (k = 0; k < 1000; k++) CHECK(host[k] == (float)(k + 5000 * !t->rank) || test_failures);
        if (what == 0) { /* kept, and then elsewhere */
            void *q;
            CHECK_OK(mesh_alloc(t, sizeof host, &q, &c.error), c.error);
            CHECK_OK(mesh_all_reduce_start(&c, "x", p, p, 1000, MESH_F32, MESH_SUM, &r), c.error);
            CHECK_OK(mesh_keep(r), c.error);
            CHECK_OK(mesh_wait(r), c.error);
            for (k = 0; k < 1000; k++) host[k] = (float)(k + t->rank);
            CHECK_OK(mesh_copy(&c, q, host, sizeof host), c.error);
            CHECK_OK(mesh_rebind(r, q, q), c.error);
            CHECK_OK(mesh_restart(r), c.error);
            CHECK_OK(mesh_wait_host(r), c.error);
            CHECK_OK(mesh_release(r), c.error);
            CHECK_OK(mesh_copy(&c, host, q, sizeof host), c.error);
            for (k = 0; k < 1000; k++) CHECK(host[k] == (float)(2 * k + 1) || test_failures);
            CHECK_OK(mesh_free(t, q, &c.error), c.error);
        }
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        world_meet(t);
        if (what == 1) status = mesh_send_start(&c, "x#1", !t->rank, p, 4, MESH_F32, &r);
        CHECK_INT(status, what ? MESH_ERR_UNSUPPORTED : MESH_OK);
        if (what) CHECK_HAS(c.error.text, "in the order of issue, without tags; leave \"#1\" out");
        world_meet(t);
        mesh_free(c.transport, p, &c.error);
        mesh_comm_close(&c);
    }
}
static void test_messages(void) { run_gpus(2, messages_rank, NULL); }

static void test_lengths_ahead(void) {
    static const int sizes[] = {1, 2, 3, 4};
    int i;
    for (i = 0; i < 4; i++) run_gpus(sizes[i], messages_there_rank, NULL);
}
static void test_lengths_wrong(void) {
    int what;
    for (what = 0; what < 5; what++) run_gpus(2, messages_there_wrong_rank, &what);
}
static void test_lengths_late(void) { run_gpus_with(3, messages_there_rank, NULL, "FAKE_CUDA_DELAY_US", "1000"); }

/* The host cannot wait for a length in a capture: that is said, and the comm goes on. */
static void lengths_captured_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request r;
    cudaStream_t stream;
    cudaGraph_t graph;
    size_t got = 7;
    float *p;
    (void)ctx;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_comm_stream(&c, stream), c.error);
    p = device_floats(&c, 64, 0);
    CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_INT(mesh_shift_v_start(&c, "x", 1, 1, p, 4, p + 32, 8, &got, MESH_F32, &r), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_shift_v_start: the caller's stream is being captured");
    CHECK_INT(r.generation, 0);
    CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    CHECK(!c.failed);
    CHECK_OK(mesh_shift_v(&c, "x", 1, 1, p, 4, p + 32, 8, &got, MESH_F32), c.error);
    CHECK_INT(got, 4);
    CHECK_OK(mesh_free(t, p, &c.error), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
}
static void test_lengths_captured(void) { run_gpus(2, lengths_captured_rank, NULL); }

static void memory_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    void *a = NULL, *b = NULL, *scratch = NULL;
    char *p;
    (void)ctx;
    CHECK_INT(t->ops->alloc(t, 3 << 20, MESH_ALLOC_BUFFER, &a), MESH_OK);
    p = (char *)a;
    CHECK(mesh_nccl__memory_of(s, p, 0) && mesh_nccl__memory_of(s, p, 0)->p == a);
    CHECK(mesh_nccl__memory_of(s, p, 3 << 20) != NULL);
    CHECK(mesh_nccl__memory_of(s, p, (3 << 20) + 1) == NULL);
    CHECK(mesh_nccl__memory_of(s, p + 1, 3 << 20) == NULL);
    CHECK(mesh_nccl__memory_of(s, p + 1, (3 << 20) - 1) != NULL);
    CHECK(mesh_nccl__memory_of(s, p - 1, 1) == NULL);
    CHECK(mesh_nccl__memory_of(s, p, UINT64_MAX) == NULL);
    CHECK_INT(t->ops->free(t, p + 1), MESH_ERR_ARGUMENT);
    CHECK_INT(t->ops->free(t, p), MESH_OK);
    CHECK(mesh_nccl__memory_of(s, p, 0) == NULL);
    if (ON_FAKE) { /* of 64 MiB: what the pool keeps goes for the user's, and for a larger scratch */
        CHECK_INT(t->ops->alloc(t, 30 << 20, 0, &scratch), MESH_OK);
        CHECK_INT(t->ops->free(t, scratch), MESH_OK);
        CHECK_INT(t->ops->alloc(t, 50 << 20, MESH_ALLOC_BUFFER, &a), MESH_OK);
        CHECK_INT(t->ops->alloc(t, 50 << 20, MESH_ALLOC_BUFFER, &b), MESH_ERR_MEMORY);
        CHECK(b == NULL);
        CHECK_INT(cudaGetLastError(), cudaSuccess); /* it is told as mesh's, and not again */
        CHECK_INT(t->ops->free(t, a), MESH_OK);
        CHECK_INT(t->ops->alloc(t, 40 << 20, 0, &a), MESH_OK); /* as large as asked for, where twice as much is not there */
        CHECK_INT(t->ops->free(t, a), MESH_OK);
    }
}
static void told_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_error err;
    void *p = NULL;
    int device = -1;
    (void)ctx;
    CHECK_INT(mesh_nccl__cuda_fail(s, &err, "x", cudaErrorMemoryAllocation), MESH_ERR_MEMORY);
    CHECK_INT(mesh_nccl__cuda_fail(s, &err, "x", cudaErrorInvalidValue), MESH_ERR_TRANSPORT);
    CHECK(cudaMalloc(&p, SIZE_MAX / 2) != cudaSuccess); /* what is told is not told again */
    mesh_nccl__cuda_fail(s, &err, "x", cudaErrorMemoryAllocation);
    CHECK_INT(cudaGetLastError(), cudaSuccess);
    CHECK_INT(cudaSetDevice(1), cudaSuccess); /* the program's own device */
    mesh_nccl__use_device(s);
    CHECK_INT(cudaGetDevice(&device), cudaSuccess);
    CHECK_INT(device, ((mesh_nccl *)(void *)t)->device);
    s->trouble.status = MESH_OK;
    mesh_nccl__put(s, "first", cudaErrorInvalidValue); /* the first trouble counts */
    mesh_nccl__put(s, "second", cudaErrorMemoryAllocation);
    CHECK_HAS(s->trouble.text, "first");
    s->trouble.status = MESH_OK;
}
static void test_told(void) { run_gpus(1, told_rank, NULL); }

/* Who ends a comm while this rank opens it says why: the cause is its, not that it has ended it. */
static void over_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    int ranks[2] = {0, 1};
    mesh_nccl__party heeds = mesh_nccl__party_of(ranks, 2, 1), not = mesh_nccl__party_of(ranks, 2, 0);
    mesh_nccl__mail *mail;
    mesh_control m;
    mesh_error why;
    (void)ctx;
    if (t->rank) return;
    memset(&m, 0, sizeof m);
    mesh__fail(&why, MESH_ERR_PEER, 7, "rank 7 was lost");
    m.kind = MESH_EVENT_ABORT, m.rank = 1;
    m.nbytes = (uint32_t)mesh_nccl__abort_write(m.data, 77, &why);
    pthread_mutex_lock(&s->boot_lock);
    mail = s->mail;
    CHECK(mesh_nccl__mail_add(s, &m));
    CHECK_INT(mesh_nccl__is_over(s, &heeds, 1, 77, &why), MESH_ERR_PEER);
    CHECK_INT(why.rank, 7);
    CHECK_STR(why.text, "rank 1 failed: rank 7 was lost");
    CHECK_INT(mesh_nccl__is_over(s, &heeds, 1, 78, &why), MESH_OK);
    CHECK_INT(mesh_nccl__is_over(s, &not, 1, 77, &why), MESH_OK);
    CHECK(!mail);
    mesh_transport_free(s->boot, s->mail);
    s->mail = NULL, s->mail_end = &s->mail;
    pthread_mutex_unlock(&s->boot_lock);
}
static void test_over(void) { run_gpus(2, over_rank, NULL); }

/* A history tells calls in another order apart, and calls that differ in their check alone. */
static void test_order_of_calls(void) {
    static mesh_nccl__comm a, b, c;
    mesh__record record;
    int i;
    memset(&record, 0, sizeof record);
    for (i = 0; i < 4; i++) {
        mesh_nccl__remember(&a, (uint64_t)i, &record);
        mesh_nccl__remember(&b, (uint64_t)(i ^ 1), &record);
        mesh_nccl__remember(&c, i == 3 ? 9 : (uint64_t)i, &record);
    }
    CHECK(a.past.history != b.past.history && a.past.history != c.past.history);
}

/* Rows and units: what a 2-D copy can say, and the widest unit that divides addresses, runs and strides. */
static void test_rows_and_units(void) {
    mesh_block b;
    uint64_t width = 0, pitch = 0, rows = 0;
    int bit;
    memset(&b, 0, sizeof b);
    b.run = 8, b.ndim = 3;
    b.dim[0].count = 1, b.dim[0].stride = 3; /* one: of no matter */
    b.dim[1].count = 5, b.dim[1].stride = 16;
    b.dim[2].count = 1, b.dim[2].stride = 1;
    CHECK(mesh_nccl__rows(&b, &width, &pitch, &rows) && width == 8 && pitch == 16 && rows == 5);
    CHECK_INT(mesh_nccl__unit(mesh_nccl__bits((void *)(uintptr_t)1024, &b)), 3);
    b.dim[2].count = 2, b.dim[2].stride = 100;
    CHECK(!mesh_nccl__rows(&b, &width, &pitch, &rows));
    b.dim[2].stride = 1;
    CHECK_INT(mesh_nccl__unit(mesh_nccl__bits((void *)(uintptr_t)1024, &b)), 0);
    b.dim[2].count = 1, b.dim[1].stride = 7; /* they overlap */
    CHECK(!mesh_nccl__rows(&b, &width, &pitch, &rows));
    b.dim[1].stride = (int64_t)INT32_MAX + 1; /* further apart than a pitch may be */
    CHECK(!mesh_nccl__rows(&b, &width, &pitch, &rows));
    CHECK(!mesh_nccl__rows(NULL, &width, &pitch, &rows));
    for (bit = 0; bit < 8; bit++) {
        b.run = b.dim[1].stride = 256, b.dim[1].count = 2;
        CHECK_INT(mesh_nccl__unit(mesh_nccl__bits((void *)(uintptr_t)(1u << bit), &b)), bit < 4 ? bit : 4);
        b.run = UINT64_C(1) << bit;
        CHECK_INT(mesh_nccl__unit(mesh_nccl__bits((void *)(uintptr_t)256, &b)), bit < 4 ? bit : 4);
        b.run = 256, b.dim[1].stride = INT64_C(1) << bit;
        CHECK_INT(mesh_nccl__unit(mesh_nccl__bits((void *)(uintptr_t)256, &b)), bit < 4 ? bit : 4);
    }
}

/* Without kernels rows are copied too, whatever their widths on either side, and zeros are written. */
static void plain_rank(mesh_transport *t, void *ctx) {
    enum { ROOM = 400, BYTES = 96 };
    static const int widths[] = {0, 12, 24, 8, 96};
    mesh_nccl__state *s = mesh_nccl__of(t);
    unsigned char host[2][ROOM], got[ROOM];
    mesh_block b[2];
    void *memory[2];
    int i, k, side, at[2], zero, kernels = s->has_kernels;
    (void)ctx;
    for (side = 0; side < 2; side++) CHECK_INT(t->ops->alloc(t, ROOM, MESH_ALLOC_BUFFER, &memory[side]), MESH_OK);
    for (i = 0; i < ROOM; i++) host[0][i] = (unsigned char)(i + 1);
    for (i = 0; i < 2 * 25; i++)
        for (zero = 0; zero < 2; zero++) {
            int width[2];
            width[0] = widths[i % 5], width[1] = widths[i / 5 % 5];
            s->has_kernels = i < 25 ? 0 : kernels;
            memset(host[1], 0xee, ROOM), memset(b, 0, sizeof b);
            for (side = 0; side < 2; side++) {
                b[side].run = width[side] ? (uint64_t)width[side] : BYTES;
                b[side].ndim = width[side] != 0;
                b[side].dim[0].count = width[side] ? BYTES / width[side] : 0;
                b[side].dim[0].stride = width[side] + 5 + side;
                CHECK_INT(cudaMemcpy(memory[side], host[side], ROOM, cudaMemcpyDefault), cudaSuccess);
            }
            CHECK_INT(t->ops->copy(t, NULL, memory[1], &b[1], zero ? NULL : memory[0], zero ? NULL : &b[0], BYTES), MESH_OK);
            CHECK_INT(cudaStreamSynchronize(s->world.c->on), cudaSuccess);
            CHECK_INT(cudaMemcpy(got, memory[1], ROOM, cudaMemcpyDefault), cudaSuccess);
            for (k = 0; k < BYTES; k++) {
                for (side = 0; side < 2; side++) at[side] = width[side] ? k / width[side] * (width[side] + 5 + side) + k % width[side] : k;
                host[1][at[1]] = zero ? 0 : host[0][at[0]];
            }
            if (memcmp(got, host[1], ROOM))
                test_fail(__FILE__, __LINE__, "rows of %d to rows of %d%s: wrong bytes", width[0], width[1], zero ? " of zeros" : "");
        }
    s->has_kernels = kernels;
    for (side = 0; side < 2; side++) CHECK_INT(t->ops->free(t, memory[side]), MESH_OK);
}
static void test_plain_copies(void) { run_gpus(1, plain_rank, NULL); }

/* Memory is registered wherever it begins. */
static void odd_register_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    float *a;
    void *handle[3] = {NULL, NULL, NULL};
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 1 << 20, 1);
    for (i = 0; i < 3; i++) {
        CHECK_OK(mesh_register(&c, a + 16 * i * i, 1 << 20, &handle[i]), c.error);
        CHECK(handle[i] != NULL);
    }
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 1 << 20, MESH_F32, MESH_SUM), c.error);
    CHECK(device_holds(&c, a, 1 << 20, 2));
    for (i = 0; i < 3; i++) CHECK_INT(mesh_unregister(&c, handle[i]), MESH_OK);
    mesh_free(c.transport, a, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_odd_register(void) { run_gpus(2, odd_register_rank, NULL); }

/* What was over before the end stays over; what was not has failed, for the first reason that was given. */
static void ended_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_ticket before, after;
    mesh_error why;
    mesh_status status;
    mesh_xfer x;
    mesh_post p;
    void *a = NULL;
    (void)ctx;
    CHECK_INT(t->ops->alloc(t, 64, MESH_ALLOC_BUFFER, &a), MESH_OK);
    memset(&x, 0, sizeof x), memset(&p, 0, sizeof p);
    x.base = a, x.nbytes = 64, x.rank = x.index = 1 - t->rank;
    x.direction = t->rank ? MESH_SEND : MESH_RECV;
    p.xfer = &x, p.count = 1, p.channel = 1, p.check = 1;
    CHECK_INT(t->ops->post(t, &p, &before), MESH_OK);
    CHECK_INT(cudaStreamSynchronize(s->world.c->on), cudaSuccess); /* it is over, and nobody has looked */
    if (t->rank == 0) CHECK_INT(t->ops->post(t, &p, &after), MESH_OK); /* rank 1 does not send it */
    if (t->rank == 0) {
        CHECK_INT(t->ops->progress(t, t->ops->now(t) + SECOND / 100), MESH_OK);
        CHECK_INT(t->ops->test(t, &after, &why), MESH_IN_PROGRESS);
        CHECK_INT(cudaGetLastError(), cudaSuccess); /* that it is not ready is no error of the program's */
    }
    CHECK_INT(t->ops->group_abort(t, NULL, "one"), MESH_OK);
    CHECK_INT(t->ops->group_abort(t, NULL, "two"), MESH_OK);
    CHECK_INT(t->ops->test(t, &before, &why), MESH_OK);
    if (t->rank == 0) {
        while ((status = t->ops->test(t, &after, &why)) == MESH_IN_PROGRESS) t->ops->progress(t, t->ops->now(t) + SECOND / 100);
        CHECK_INT(status, MESH_ERR_CANCELED);
        CHECK_HAS(why.text, "one");
    }
    CHECK_INT(t->ops->free(t, a), MESH_OK);
}
static void test_ended(void) { run_gpus(2, ended_rank, NULL); }

static void test_memory(void) { run_gpus_with(1, memory_rank, NULL, "FAKE_CUDA_MEMORY", "67108864"); }

/* ---- marks: in the order of what they cover, however the ring grows ---- */

static void marks_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm c;
    mesh_nccl__mark m;
    uint64_t next = 1, first = 1;
    int i, k, taken[] = {0, 5, 3, 40, 1};
    (void)ctx;
    memset(&c, 0, sizeof c), memset(&m, 0, sizeof m);
    for (k = 0; k < 5; k++) {
        for (i = 0; i < taken[k] && c.nmarks; i++) { /* as poll does */
            CHECK(mesh_nccl__mark_at(&c, 0)->issued == first++);
            c.first_mark = (c.first_mark + 1) % c.mark_cap;
            c.nmarks--;
        }
        for (i = 0; i < 23; i++) {
            m.issued = next++;
            m.deadline = (int64_t)m.issued * 10;
            c.last_due = m.deadline + 5;
            CHECK_INT(mesh_nccl__mark_add(s, &c, &m), 1);
            CHECK(c.marked == m.issued && c.due == c.last_due);
        }
        for (i = 0; i < c.nmarks; i++) {
            CHECK_INT(mesh_nccl__mark_at(&c, i)->issued, first + (uint64_t)i);
            CHECK_INT(mesh_nccl__mark_at(&c, i)->deadline, 10 * (first + (uint64_t)i));
        }
    }
    mesh_transport_free(s->boot, c.mark);
}
static void test_marks(void) { run_gpus(1, marks_rank, NULL); }

/* A stream waits for the operation that it is told to wait for, and for no later one: the second is called by the others only when rank 0's stream
   has got past the first. */
static int law_pipe[2];
static void first_only_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request r[3];
    cudaStream_t stream;
    float *a, *b;
    char byte = 0;
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 30 * SECOND)) return;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_INT(mesh_comm_stream(&c, stream), MESH_OK);
    a = device_floats(&c, 1000, 1);
    b = device_floats(&c, 1000, 0);
    for (i = 0; i < 2; i++) CHECK_OK(mesh_all_reduce_start(&c, NULL, a, b, 1000, MESH_F32, MESH_SUM, &r[i]), c.error);
    if (t->rank == 1) CHECK(read(law_pipe[0], &byte, 1) == 1);
    CHECK_OK(mesh_all_reduce_start(&c, NULL, b, b, 1000, MESH_F32, MESH_SUM, &r[2]), c.error);
    CHECK_OK(mesh_wait(r[1]), c.error);
    CHECK_INT(cudaMemcpyAsync(a, b, sizeof(float), cudaMemcpyDefault, stream), cudaSuccess);
    CHECK_INT(cudaStreamSynchronize(stream), cudaSuccess); /* the third has not been called by rank 1 */
    if (t->rank == 0) CHECK(write(law_pipe[1], &byte, 1) == 1);
    CHECK_OK(mesh_wait(r[0]), c.error);
    CHECK_OK(mesh_wait(r[2]), c.error);
    CHECK(device_holds(&c, b, 1000, 4));
    mesh_free(c.transport, a, &c.error), mesh_free(c.transport, b, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
    cudaStreamDestroy(stream);
}
static void test_first_only(void) {
    CHECK_INT(pipe(law_pipe), 0);
    run_gpus_with(2, first_only_rank, NULL, "FAKE_CUDA_DELAY_US", "200");
}

/* ---- what a rank made is unmade at close ---- */

enum { MADE_EVENTS, MADE_STREAMS, MADE_MEMORY, MADE_PINNED, MADE_PAGES, MADE_KERNELS, MADE };
static int made[MADE];
static mesh_nccl__api made_by; /* the functions themselves */
static cudaError_t made_event(cudaEvent_t *e, unsigned flags) {
    made[MADE_EVENTS]++;
    return made_by.cudaEventCreateWithFlags(e, flags);
}
static cudaError_t unmade_event(cudaEvent_t e) {
    made[MADE_EVENTS]--;
    return made_by.cudaEventDestroy(e);
}
static cudaError_t made_stream(cudaStream_t *e, unsigned flags) {
    made[MADE_STREAMS]++;
    return made_by.cudaStreamCreateWithFlags(e, flags);
}
static cudaError_t unmade_stream(cudaStream_t e) {
    made[MADE_STREAMS]--;
    return made_by.cudaStreamDestroy(e);
}
static cudaError_t made_memory(void **p, size_t n) {
    made[MADE_MEMORY]++;
    return made_by.cudaMalloc(p, n);
}
static cudaError_t unmade_memory(void *p) {
    made[MADE_MEMORY]--;
    return made_by.cudaFree(p);
}
static cudaError_t made_pinned(void **p, size_t n, unsigned flags) {
    made[MADE_PINNED]++;
    return made_by.cudaHostAlloc(p, n, flags);
}
static cudaError_t unmade_pinned(void *p) {
    made[MADE_PINNED]--;
    return made_by.cudaFreeHost(p);
}
static ncclResult_t made_pages(void **p, size_t n) {
    made[MADE_PAGES]++;
    return made_by.ncclMemAlloc(p, n);
}
static ncclResult_t unmade_pages(void *p) {
    made[MADE_PAGES]--;
    return made_by.ncclMemFree(p);
}
static cudaError_t unmade_kernels(void *library) {
    made[MADE_KERNELS]--;
    return made_by.cudaLibraryUnload(library);
}
static void made_rank(mesh_transport *boot, void *ctx) {
    mesh_nccl gpu;
    mesh_nccl__state *s;
    mesh_nccl__comm *k;
    mesh_error err;
    mesh_comm c;
    mesh_request r;
    char rank[16];
    float *a;
    int i;
    (void)ctx;
    snprintf(rank, sizeof rank, "%d", boot->rank);
    setenv("RANK", rank, 1);
    CHECK_OK(mesh_nccl_open(&gpu, boot, NULL, &err), err);
    if (!gpu.impl) return;
    s = mesh_nccl__of(&gpu.base);
    pthread_mutex_lock(&s->lock); /* what there is already */
    made_by = s->api;
    made[MADE_EVENTS] = s->events_made;
    for (k = s->comm; k; k = k->next) made[MADE_EVENTS] += 2, made[MADE_STREAMS]++, made[MADE_MEMORY]++, made[MADE_PINNED]++;
    made[MADE_KERNELS] = s->has_kernels;
    s->api.cudaEventCreateWithFlags = made_event, s->api.cudaEventDestroy = unmade_event;
    s->api.cudaStreamCreateWithFlags = made_stream, s->api.cudaStreamDestroy = unmade_stream;
    s->api.cudaMalloc = made_memory, s->api.cudaFree = unmade_memory;
    s->api.cudaHostAlloc = made_pinned, s->api.cudaFreeHost = unmade_pinned;
    s->api.ncclMemAlloc = made_pages, s->api.ncclMemFree = unmade_pages;
    s->api.cudaLibraryUnload = unmade_kernels;
    pthread_mutex_unlock(&s->lock);
    if (open_comm(&gpu.base, &c, "a=2,b=1", "b,a", 20 * SECOND)) {
        a = device_floats(&c, 1 << 20, 1);
        device_floats(&c, 100, 1); /* the caller's, who forgets it */
        for (i = 0; i < 40; i++) CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 1000, MESH_F32, MESH_MAX), c.error);
        CHECK_OK(mesh_all_to_all(&c, NULL, a, a, 5000, MESH_F32), c.error); /* from staging */
        CHECK_OK(mesh_scan_start(&c, "a", a, a, 1000, MESH_F32, MESH_MAX, &r), c.error); /* with scratch */
        CHECK_OK(mesh_wait_host(r), c.error);
        CHECK_OK(mesh_comm_close(&c), c.error);
        CHECK(made[MADE_MEMORY] > 1 && made[MADE_PAGES] > 0 && made[MADE_EVENTS] > 2);
    }
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
    for (i = 0; i < MADE; i++)
        if (made[i]) test_fail(__FILE__, __LINE__, "of kind %d %d were made and not unmade", i, made[i]);
}
static void test_unmade(void) { run_world(UNIX, 2, made_rank, NULL); }

/* ---- what the description and the environment say ---- */

static void config_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    ncclConfig_t none = NCCL_CONFIG_INITIALIZER, c = mesh_nccl__config(s, 1, "n");
    (void)ctx;
    CHECK_INT(c.blocking, 1);
    CHECK_INT(c.splitShare, 0);
    CHECK_INT(c.maxCTAs, none.maxCTAs);
    s->max_ctas = 3;
    CHECK_INT(mesh_nccl__config(s, 0, "n").maxCTAs, 3);
    CHECK_INT(mesh_nccl__config(s, 0, "n").blocking, 0);
    s->max_ctas = 0;
}
static void test_config(void) { run_gpus(1, config_rank, NULL); }

typedef struct gpu_place {
    const char *set[3][2];
    int given, devices, device; /* given: desc.device */
    const char *error;
} gpu_place;
static void places_rank(mesh_transport *boot, void *ctx) {
    const gpu_place *p = (const gpu_place *)ctx;
    mesh_nccl_desc desc = MESH_ZERO;
    mesh_nccl gpu;
    mesh_error err;
    char count[16];
    int i;
    snprintf(count, sizeof count, "%d", p->devices);
    setenv("FAKE_CUDA_DEVICES", count, 1);
    for (i = 0; i < 3 && p->set[i][0]; i++) setenv(p->set[i][0], p->set[i][1], 1);
    desc.device = p->given;
    desc.no_watchdog = 1;
    CHECK_INT(mesh_nccl_open(&gpu, boot, &desc, &err), p->error ? MESH_ERR_ARGUMENT : MESH_OK);
    if (p->error) {
        CHECK_HAS(err.text, p->error);
    } else {
        CHECK_INT(gpu.device, p->device);
        CHECK_INT(gpu.devices, p->devices);
        CHECK_INT(mesh_nccl__of(&gpu.base)->debug, p->set[0][0] && !strcmp(p->set[0][0], "MESH_NCCL_DEBUG") && p->set[0][1][0] == '1');
    }
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
}
static void test_gpu_places(void) {
    static const gpu_place places[] = {
        {{{"LOCAL_RANK", "3"}, {"SLURM_LOCALID", "2"}, {"MPI_LOCALRANKID", "1"}}, 0, 8, 3, NULL},
        {{{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}, {"SLURM_LOCALID", "1"}}, 0, 8, 2, NULL},
        {{{"MPI_LOCALRANKID", "5"}}, 0, 8, 5, NULL},
        {{{"SLURM_LOCALID", "7"}}, 0, 8, 7, NULL},
        {{{"LOCAL_RANK", "3"}}, 1, 8, 0, NULL},
        {{{"LOCAL_RANK", "3"}}, 8, 8, 7, NULL},
        {{{"LOCAL_RANK", "3"}}, 9, 8, 0, "device 8 (mesh_nccl_desc.device - 1), but its host has 8"},
        {{{"LOCAL_RANK", "8"}}, 0, 8, 0, "device 8 (LOCAL_RANK), but its host has 8"},
        {{{"LOCAL_RANK", "3"}}, 0, 1, 0, NULL}, /* the one that it sees */
        {{{"LOCAL_RANK", "x"}}, 0, 8, 0, NULL},
        {{{"MESH_NCCL_DEBUG", "0"}}, 0, 8, 0, NULL},
        {{{"MESH_NCCL_DEBUG", "1"}}, 0, 8, 0, NULL},
        {{{"MESH_NCCL_DEBUG", ""}}, 0, 8, 0, NULL},
        {{{"NCCL_COMM_BLOCKING", "2"}}, 0, 8, 0, NULL}, /* to NCCL nothing */
        {{{"NCCL_COMM_BLOCKING", ""}}, 0, 8, 0, NULL},
    };
    size_t i;
    for (i = 0; i < sizeof places / sizeof places[0]; i++) {
        int failed = test_failures;
        run_world(UNIX, 1, places_rank, (void *)(uintptr_t)&places[i]);
        if (test_failures != failed) test_fail(__FILE__, __LINE__, "place %d", (int)i);
    }
}

/* The order of launches is asked for, and what the user has set stays. */
static void launch_rank(mesh_transport *boot, void *ctx) {
    int what = *(int *)ctx;
    const char *got;
    mesh_nccl_desc desc = MESH_ZERO;
    mesh_nccl gpu;
    mesh_error err;
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    if (what == 2) setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
    desc.launch_order = what > 0;
    CHECK_OK(mesh_nccl_open(&gpu, boot, &desc, &err), err);
    got = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    CHECK(what == 0 ? got == NULL : got && !strcmp(got, what == 1 ? "1" : "0"));
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
}
static void test_launch_order(void) {
    int what;
    for (what = 0; what < 3; what++) run_world(UNIX, 1, launch_rank, &what);
}

/* A library that is not NCCL, and a driver that is too old for a runtime, are told apart from what serves. */
static void libraries_rank(mesh_transport *boot, void *ctx) {
    void *cudart = dlopen(getenv("MESH_CUDART_LIBRARY"), RTLD_NOW);
    mesh_nccl_desc desc = MESH_ZERO;
    mesh_nccl gpu;
    mesh_error err;
    (void)ctx;
    CHECK(cudart != NULL);
    CHECK_INT(mesh_nccl__suits(cudart), 1);
    setenv("FAKE_CUDA_DEVICES", "0", 1);
    CHECK_INT(mesh_nccl__suits(cudart), 0);
    setenv("FAKE_CUDA_DEVICES", "8", 1);
    desc.nccl_library = getenv("MESH_CUDART_LIBRARY");
    CHECK_INT(mesh_nccl_open(&gpu, boot, &desc, &err), MESH_ERR_UNSUPPORTED);
    CHECK_HAS(err.text, "libraries lack nccl");
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
}
/* What a version does not have, or has under another meaning, is not called. */
static void versions_rank(mesh_transport *t, void *ctx) {
    const mesh_nccl__api *api = &mesh_nccl__of(t)->api;
    int version = *(int *)ctx;
    CHECK_INT(((mesh_nccl *)(void *)t)->nccl_version, version);
    CHECK_INT(api->ncclMemAlloc != NULL, version >= 21900);
    CHECK_INT(api->ncclCommRegister != NULL, version >= 21900);
    CHECK_INT(api->ncclCommWindowRegister != NULL, version >= 22700);
    CHECK_INT(api->ncclAlltoAll != NULL, version >= 22800);
    CHECK_INT(api->ncclCommRevoke != NULL, version >= 22807);
    CHECK_INT((t->caps & MESH_CAP_FP8) != 0, version >= 22400);
}
static void test_versions(void) {
    static int versions[] = {21800, 21805, 21900, 22304, 22400, 22600, 22699, 22700, 22705, 22800, 22806, 22807, 22809};
    char text[16];
    size_t i;
    for (i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        snprintf(text, sizeof text, "%d", versions[i]);
        run_gpus_with(1, versions_rank, &versions[i], "FAKE_NCCL_VERSION", text);
    }
}

/* The bootstrap is this transport's alone; its traces are this one's too. */
static void boot_trace(void *ctx, const mesh_trace_event *event) { (void)ctx, (void)event; }
static void boot_clock(void *ctx, int64_t offset, int64_t within) { (void)ctx, (void)offset, (void)within; }
static void bootstrap_rank(mesh_transport *boot, void *ctx) {
    mesh_nccl_desc desc = MESH_ZERO;
    mesh_socket_desc alone = MESH_ZERO;
    mesh_nccl gpu, second;
    mesh_socket shut;
    mesh_error err;
    mesh_comm c;
    mesh m;
    int i;
    (void)ctx;
    desc.no_watchdog = 1;
    boot->trace = boot_trace, boot->trace_clock = boot_clock, boot->trace_ctx = &c, boot->trace_epoch = 77;
    CHECK_OK(mesh_nccl_open(&gpu, boot, &desc, &err), err);
    CHECK(gpu.base.trace == boot_trace && gpu.base.trace_clock == boot_clock && gpu.base.trace_ctx == &c);
    CHECK_INT(gpu.base.trace_epoch, 77);
    CHECK_INT(mesh_nccl_open(&second, boot, &desc, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "is another transport's already");
    CHECK_INT(mesh_nccl_close(&second), MESH_OK);
    CHECK_OK(mesh_parse(&m, "x=1", 1, &err), err);
    CHECK_INT(mesh_comm_open(&c, boot, &m, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "another transport stands on this one");
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
    boot->trace = NULL, boot->trace_clock = NULL;
    if (!open_comm(boot, &c, "x=1", NULL, 5 * SECOND)) return;
    CHECK_INT(mesh_nccl_open(&gpu, boot, &desc, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "has comms of its own");
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
    CHECK_INT(mesh_nccl_open(NULL, boot, &desc, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_nccl_open(&gpu, NULL, &desc, &err), MESH_ERR_ARGUMENT);
    CHECK_OK(mesh_comm_close(&c), c.error);
    memset(&shut, 0, sizeof shut);
    alone.size = 1;
    for (i = 0; i < 2; i++) { /* never opened; closed */
        CHECK_INT(mesh_nccl_open(&gpu, &shut.base, &desc, &err), MESH_ERR_STATE);
        CHECK_HAS(err.text, "the bootstrap is not open");
        CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
        if (i == 0) CHECK_OK(mesh_socket_open(&shut, &alone, &err), err);
        if (i == 0) CHECK_INT(mesh_socket_close(&shut), MESH_OK);
    }
}
static void test_bootstrap(void) { run_world(UNIX, 1, bootstrap_rank, NULL); }

static void test_libraries(void) { run_world(UNIX, 1, libraries_rank, NULL); }

static const test_case fake_nccl_law_tests[] = {
    {"nccl/fake/orders", test_orders, 60},
    {"nccl/fake/types", test_types, 60},
    {"nccl/fake/averages", test_averages, 60},
    {"nccl/fake/many_pieces", test_many_pieces, 60},
    {"nccl/messages", test_messages, 60},
    {"nccl/messages_lengths", test_lengths_ahead, 90},
    {"nccl/messages_wrong", test_lengths_wrong, 60},
    {"nccl/fake/messages_late", test_lengths_late, 90},
    {"nccl/messages_captured", test_lengths_captured, 60},
    {"nccl/fake/memory", test_memory, 60},
    {"nccl/fake/told", test_told, 60},
    {"nccl/fake/order_of_calls", test_order_of_calls, 60}, {"nccl/over", test_over, 60},
    {"nccl/fake/rows_and_units", test_rows_and_units, 60},
    {"nccl/fake/plain_copies", test_plain_copies, 60},
    {"nccl/fake/odd_register", test_odd_register, 60},
    {"nccl/fake/ended", test_ended, 60},
    {"nccl/fake/marks", test_marks, 60},
    {"nccl/fake/first_only", test_first_only, 60},
    {"nccl/fake/unmade", test_unmade, 60},
    {"nccl/fake/config", test_config, 60},
    {"nccl/fake/places", test_gpu_places, 60},
    {"nccl/fake/launch_order", test_launch_order, 60},
    {"nccl/fake/libraries", test_libraries, 60},
    {"nccl/fake/versions", test_versions, 60},
    {"nccl/fake/bootstrap", test_bootstrap, 60},
};

#endif
