/* What the ranks of a communicator must do alike, and are found out not to do: registration, connecting, the calls themselves; and what the
   device's memory and streams are used for meanwhile. */
#ifndef T_NCCL_ALIKE_H
#define T_NCCL_ALIKE_H

/* A function of the stand-in's libnccl; NULL elsewhere. */
static unsigned long long (*fake_function(const char *name))(void) {
    unsigned long long (*f)(void) = NULL;
    void *library = ON_FAKE ? dlopen(getenv("MESH_NCCL_LIBRARY"), RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *found = library ? dlsym(library, name) : NULL;
    memcpy(&f, &found, sizeof f);
    return f;
}

static unsigned long long fake_number(const char *name) {
    unsigned long long (*f)(void) = fake_function(name);
    return f ? f() : 0;
}

/* mesh_alloc is local: buffers of different kinds and sizes on different ranks work together. */
static void local_memory_rank(mesh_transport *t, void *ctx) {
    enum { N = 1 << 20 };
    mesh_comm c;
    float *a;
    void *plain = NULL;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_INT(cudaMalloc(&plain, N * sizeof *a), cudaSuccess);
    a = device_floats(&c, N, 1);
    CHECK_OK(mesh_copy(&c, plain, a, N * sizeof *a), c.error);
    if (t->rank == 1) CHECK_OK(mesh_all_reduce(&c, NULL, plain, plain, N, MESH_F32, MESH_SUM), c.error);
    if (t->rank != 1) CHECK_OK(mesh_all_reduce(&c, NULL, a, a, N, MESH_F32, MESH_SUM), c.error);
    CHECK(device_holds(&c, t->rank == 1 ? (float *)plain : a, N, (float)t->size));
    mesh_free(c.transport, a, &c.error);
    cudaFree(plain);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_local_memory(void) { run_gpus(3, local_memory_rank, NULL); }

/* Registered by all ranks or by none: all of mesh_alloc's; the parts of one allocation; where one rank's cannot be; let go of by hand, by
   free, by close. */
static void register_rank(mesh_transport *t, void *ctx) {
    enum { N = 1 << 20 };
    int gain = *(int *)ctx, round; /* 2: as a window, 1: as before 2.27, 0: not at all */
    mesh_comm c;
    float *a, *small;
    void *own = NULL, *handle[3];
    for (round = 0; round < 2; round++) { /* the second comm has the first one's communicators */
        if (!open_comm(t, &c, "dp=2,tp=2", NULL, 20 * SECOND)) return;
        a = device_floats(&c, N, 1);
        CHECK_INT(cudaMalloc(&own, N * sizeof *a), cudaSuccess);
        CHECK_OK(mesh_register(&c, a, N * sizeof *a / 2, &handle[0]), c.error);
        CHECK_OK(mesh_register(&c, a + N / 2, N * sizeof *a / 2, &handle[1]), c.error);
        CHECK_INT(handle[0] != NULL, gain > 0);
        CHECK_INT(handle[1] != NULL, gain > 0);
        CHECK_OK(mesh_all_reduce(&c, "tp", a, a, N, MESH_F32, MESH_SUM), c.error);
        CHECK_OK(mesh_all_reduce(&c, "dp", a, a, N / 2, MESH_F32, MESH_SUM), c.error);
        CHECK(device_holds(&c, a, N / 2, 4));
        CHECK(device_holds(&c, a + N / 2, N / 2, 2));
        /* Small memory is CUDA's, which a window does not take: registered as before 2.27. */
        small = device_floats(&c, 1000, 1);
        CHECK_OK(mesh_register(&c, small, 1000 * sizeof *a, &handle[2]), c.error);
        CHECK_INT(handle[2] != NULL, gain > 0);
        CHECK_OK(mesh_all_reduce(&c, "tp", small, small, 1000, MESH_F32, MESH_SUM), c.error);
        CHECK(device_holds(&c, small, 1000, 2));
        mesh_free(c.transport, small, &c.error);
        /* Memory that a window does not take, on one rank. */
        CHECK_OK(mesh_register(&c, t->rank == 2 ? own : a, N, &handle[2]), c.error);
        CHECK_INT(handle[2] != NULL, gain == 1 || (gain == 2 && t->rank != 2)); /* the others have a group without it */
        CHECK_INT(mesh_unregister(&c, handle[2]), MESH_OK);
        CHECK_INT(mesh_unregister(&c, &c), MESH_ERR_ARGUMENT);
        if (handle[0]) {
            CHECK_INT(mesh_unregister(&c, handle[0]), MESH_OK);
            CHECK_INT(mesh_unregister(&c, handle[0]), MESH_ERR_ARGUMENT);
        }
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        if (!round) mesh_free(c.transport, a, &c.error); /* with handle[1] */
        cudaFree(own);
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
    }
}
static void registers(int gain, const char *name, const char *value) { run_gpus_with(4, register_rank, &gain, name, value); }
static void test_register(void) { registers(2, NULL, NULL); }
static void test_register_226(void) { registers(1, "FAKE_NCCL_VERSION", "22600"); }
static void test_register_218(void) { registers(0, "FAKE_NCCL_VERSION", "21805"); }
static void test_register_plain(void) { registers(2, "FAKE_NCCL_SYMMETRIC", "0"); } /* windows that come back empty */

/* Other sizes, or not called by one rank: told by both calls, or at the deadline; never left half done. */
static void register_wrong_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx;
    mesh_comm c;
    void *a = NULL, *handle = &c;
    mesh_status status;
    if (!open_comm(t, &c, "x=3", NULL, what == 1 ? SECOND : 20 * SECOND)) return;
    CHECK_INT(cudaMalloc(&a, 1 << 20), cudaSuccess);
    if (what == 1 && t->rank == 1) { /* it does not come; what the others say is heard */
        while ((status = mesh_comm_sync(&c)) == MESH_OK) test_sleep(0.01);
    } else {
        status = mesh_register(&c, what == 2 && t->rank == 1 ? NULL : a, 4096 * (1 + (what == 0 && t->rank == 1)), &handle);
        CHECK(handle == NULL);
    }
    CHECK_INT(status, what == 0 ? MESH_ERR_MISMATCH : what == 1 ? MESH_ERR_TIMEOUT : MESH_ERR_ARGUMENT);
    if (what == 0) {
        CHECK_HAS(c.error.text, "register(4096 x bytes)");
        CHECK_HAS(c.error.text, "register(8192 x bytes)");
    } else {
        CHECK_INT(c.error.rank, 1);
    }
    mesh_comm_close(&c);
}
static void test_register_wrong(void) {
    int what;
    for (what = 0; what < 3; what++) run_gpus(3, register_wrong_rank, &what);
}

/* Counts that differ by less than NCCL notices: found out while the program computes, without a barrier. */
static void history_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx, i;
    mesh_comm c;
    float *a;
    mesh_status status = MESH_OK;
    if (!open_comm(t, &c, "dp=2,tp=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 4000, 1);
    for (i = 0; i < 70 && status == MESH_OK; i++) status = mesh_all_reduce(&c, "tp", a, a, 8, MESH_F32, MESH_MAX);
    CHECK_OK(status, c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    world_meet(t);
    status = mesh_all_reduce(&c, "tp", a, a, t->rank == 2 ? 1000 : 999, MESH_F32, MESH_MAX);
    /* 1: more calls than are remembered; 2: more than 64 times as many */
    for (i = 0; i < (what == 1 ? 100 : what == 2 ? 5000 : 0) && status == MESH_OK; i++)
        status = mesh_all_reduce(&c, "tp", a, a, 8, MESH_F32, MESH_MAX);
    if (what == 3 && status == MESH_OK) { /* by a barrier */
        status = mesh_barrier(&c, "tp");
        if (t->rank < 2) CHECK(status == MESH_OK || status == MESH_ERR_MISMATCH); /* the other pair has called the same */
    }
    while (status == MESH_OK) {
        status = mesh_comm_sync(&c);
        test_sleep(0.01);
    }
    CHECK_INT(status, MESH_ERR_MISMATCH);
    if (what == 0 || what == 3) {
        CHECK_HAS(c.error.text, "rank 3 calls all_reduce(999 x f32, max)");
        CHECK_HAS(c.error.text, "rank 2 calls all_reduce(1000 x f32, max)");
    } else if (!strstr(c.error.text, "1000 x f32")) {
        CHECK_HAS(c.error.text, "called differently");
    }
    mesh_comm_close(&c);
}
static void test_history(void) {
    int what;
    for (what = 0; what < 4; what++)
        if (ON_FAKE || what != 2) run_gpus(4, history_rank, &what); /* 5000 calls of ranks that share a GPU take minutes */
}

/* Ranks that have called differently and then wait on the host, where they keep the watchdog from listening; or have called what NCCL does not serve. */
enum { WAITS_HOST, WAITS_BARRIER, WAITS_COPY, WAITS_XOR, WAITS_SCAN, WAITS_LAYOUT, WAITS_ENDS };

static mesh_status history_waits_call(mesh_comm *c, int what, float *a, int odd) {
    static const int64_t shape[1] = {24};
    mesh_tensor from, to;
    mesh_request r;
    mesh_error err;
    mesh_status status;
    switch (what) {
    case WAITS_HOST:
        status = mesh_all_reduce_start(c, NULL, a, a, 8, MESH_F32, odd ? MESH_MAX : MESH_SUM, &r);
        return status == MESH_OK ? mesh_wait_host(r) : status;
    case WAITS_XOR:
        return mesh_all_reduce(c, NULL, a, a, 8, odd ? MESH_I16 : MESH_I32, MESH_XOR);
    case WAITS_SCAN:
        return mesh_scan(c, NULL, a, a, 8, MESH_I32, odd ? MESH_MAX : MESH_SUM);
    case WAITS_LAYOUT: /* from what all have: nothing travels */
        CHECK_OK(mesh_tensor_make(&from, &c->on, "x:R", MESH_F32, 1, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&to, &c->on, odd ? "x:R" : "x:S(0)", MESH_F32, 1, shape, &err), err);
        from.data = a, to.data = a + 100;
        return mesh_redistribute(c, &from, &to);
    default:
        return mesh_all_reduce(c, NULL, a, a, 8, MESH_F32, odd ? MESH_MAX : MESH_SUM);
    }
}

static void history_waits_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx;
    float *a, host[8];
    mesh_comm c;
    mesh_status status;
    if (!open_comm(t, &c, "x=-1", NULL, 600 * SECOND)) return;
    a = device_floats(&c, 200, 1);
    world_meet(t); /* what differs ends the copies of who comes later, too */
    pthread_mutex_lock(&mesh_nccl__of(t)->watch_lock); /* the watchdog has no turn */
    status = history_waits_call(&c, what, a, t->rank == 1);
    if (what == WAITS_BARRIER && status == MESH_OK) status = mesh_barrier(&c, NULL);
    while (what != WAITS_BARRIER && status == MESH_OK) status = mesh_copy(&c, host, a, sizeof host);
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_INT(c.error.status, MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "rank 1 calls ");
    pthread_mutex_unlock(&mesh_nccl__of(t)->watch_lock);
    mesh_comm_close(&c);
}
static void test_history_waits(void) {
    int what;
    for (what = 0; what < WAITS_ENDS; what++) run_gpus(3, history_waits_rank, &what);
}

/* A copy behind an operation that a rank does not come to: it tells what the operation tells. */
static void copy_waits_rank(mesh_transport *t, void *ctx) {
    int leaves = *(int *)ctx;
    float *a, host[8];
    mesh_comm c;
    mesh_status status;
    if (!open_comm(t, &c, "x=-1", NULL, leaves ? 600 * SECOND : 2 * SECOND)) return;
    a = device_floats(&c, 8, 1);
    world_meet(t); /* no copy before that of the test */
    if (t->rank == 1) {
        if (leaves) {
            mesh_comm_close(&c);
            return;
        }
        while ((status = mesh_comm_sync(&c)) == MESH_OK) test_sleep(0.01);
    } else {
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 8, MESH_F32, MESH_SUM), c.error);
        status = mesh_copy(&c, host, a, sizeof host);
        CHECK_HAS(c.error.text, leaves ? "closed its transport while it was needed" : "all_reduce(8 x f32, sum)");
    }
    CHECK_INT(status, leaves ? MESH_ERR_PEER : MESH_ERR_TIMEOUT);
    CHECK_INT(c.error.rank, 1);
    mesh_comm_close(&c);
}
static void test_copy_waits(void) {
    int leaves;
    for (leaves = 0; leaves < 2; leaves++) run_gpus(3, copy_waits_rank, &leaves);
}

/* Two ranks' histories by hand: equal ones agree however far one is ahead, others do not, wherever they are compared. */
static void history_law(void) {
    static mesh_nccl__comm a, b;
    test_random r = random_from(20);
    int round;
    for (round = 0; round < 300; round++) {
        int n = 1 + random_below(&r, round % 10 ? 300 : 20000), ahead = random_below(&r, 200), wrong = 1 + random_below(&r, n), i, level;
        int differ = round % 3 == 0, seen = 0, compared = 0;
        uint64_t theirs, every = 1;
        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        for (i = 1; i <= n + ahead; i++) {
            mesh__record record;
            uint64_t check = random_next(&r);
            memset(&record, 0, sizeof record);
            if (i <= n) mesh_nccl__remember(&a, check, &record);
            mesh_nccl__remember(&b, check + (differ && i == wrong), &record);
        }
        for (level = 0; level < MESH_NCCL__LEVELS; level++, every *= MESH_NCCL__RECENT) {
            const mesh_nccl__past *past = &a.past.past[level][(uint64_t)n / every % MESH_NCCL__RECENT];
            if (past->position) CHECK(past->position == (uint64_t)n / every * every);
            if (!mesh_nccl__history_at(&b.past, level, past->position, &theirs)) continue;
            compared++;
            if (past->position >= (uint64_t)wrong) CHECK_INT(past->history != theirs, differ);
            seen |= past->history != theirs;
        }
        if (!differ) CHECK(!seen);
        if (ahead < MESH_NCCL__RECENT) CHECK_INT(seen, differ);
        if (n > MESH_NCCL__RECENT) CHECK(compared > 0);
    }
}

/* A group is connected when it opens: no later collective waits on the host for a peer that computes. */
static void connect_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    float *a;
    unsigned long long before;
    (void)ctx;
    if (!open_comm(t, &c, "dp=2,tp=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 1 << 16, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    before = fake_number("fake_connects");
    if (ON_FAKE) CHECK(before >= 6); /* rings and trees of three groups */
    CHECK_OK(mesh_all_reduce(&c, "tp", a, a, 1 << 16, MESH_F32, MESH_MAX), c.error);
    CHECK_OK(mesh_all_reduce(&c, "dp", a, a, 8, MESH_F32, MESH_MAX), c.error);
    CHECK_OK(mesh_broadcast(&c, NULL, a, a, 1 << 16, MESH_F32, 1), c.error);
    CHECK_OK(mesh_all_gather(&c, "tp", a + 8 * (t->rank % 2), a, 8, MESH_F32), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    CHECK_INT(fake_number("fake_connects"), before);
    mesh_free(c.transport, a, &c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_connect(void) { run_gpus(4, connect_rank, NULL); }

/* A comm opens in a thread of its own, on the transport's device, while another thread captures a stream: well where the capture is its
   thread's own business; told, and nothing left of it, where it is the whole program's. */
static void *open_elsewhere(void *arg) {
    mesh_comm *c = (mesh_comm *)arg;
    mesh_transport *t = c->transport;
    mesh_comm_desc desc;
    mesh_error err;
    mesh m;
    int device = -1;
    memset(&desc, 0, sizeof desc);
    desc.timeout_ns = 20 * SECOND;
    CHECK_OK(mesh_parse(&m, "dp=2,tp=2", 4, &err), err);
    mesh_comm_open(c, t, &m, &desc, &c->error);
    CHECK_INT(cudaGetDevice(&device), cudaSuccess);
    if (ON_FAKE) CHECK_INT(device, t->rank);
    return NULL;
}

static void elsewhere_rank(mesh_transport *t, void *ctx) {
    enum cudaStreamCaptureMode mode = *(enum cudaStreamCaptureMode *)ctx;
    int whole = mode == cudaStreamCaptureModeGlobal;
    mesh_comm c;
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    pthread_t thread;
    float *a;
    memset(&c, 0, sizeof c);
    c.transport = t;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_INT(cudaStreamBeginCapture(stream, mode), cudaSuccess);
    world_meet(t); /* all capture */
    CHECK_INT(pthread_create(&thread, NULL, open_elsewhere, &c), 0);
    pthread_join(thread, NULL);
    world_meet(t);
    if (whole) {
        CHECK_INT(c.error.status, MESH_ERR_TRANSPORT);
        CHECK_HAS(c.error.text, "open before, or capture with cudaStreamCaptureModeThreadLocal");
        cudaStreamEndCapture(stream, &graph); /* broken, on the ranks where NCCL came so far */
        cudaGetLastError();
        if (!open_comm(t, &c, "dp=2,tp=2", NULL, 20 * SECOND)) return;
    } else {
        CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        if (!c.impl) test_fail(__FILE__, __LINE__, "rank %d, mode %d: %s", t->rank, (int)mode, c.error.text);
        if (!c.impl) return;
    }
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_SUM), c.error);
    CHECK(device_holds(&c, a, 100, (float)t->size));
    mesh_free(c.transport, a, &c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    if (graph) cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
}
static void test_elsewhere(void) {
    enum cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal,
                                          cudaStreamCaptureModeRelaxed};
    int i;
    for (i = 0; i < 3; i++) run_gpus(4, elsewhere_rank, &modes[i]);
}

/* The caller's stream may be destroyed once another is set, or the comm closed; what was put on it is still seen to its end. */
static void streams_end_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    cudaStream_t stream, first = NULL, other;
    float *a;
    void *v = NULL;
    int i, one = 1, got = 0;
    (void)ctx;
    if (!open_comm(t, &c, "dp=2,tp=-1", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 1000, 1);
    CHECK_OK(mesh_alloc(c.transport, sizeof one, &v, &c.error), c.error);
    CHECK_INT(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    for (i = 0; i < 10; i++) {
        CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        CHECK_INT(mesh_comm_stream(&c, stream), MESH_OK);
        if (first) CHECK_INT(cudaStreamDestroy(first), cudaSuccess);
        first = stream;
        CHECK_OK(mesh_all_reduce(&c, i % 2 ? "tp" : "dp", a, a, 1000, MESH_F32, MESH_MAX), c.error);
        /* A scan is kernels of ours: those on the next stream come after them. */
        CHECK_OK(mesh_copy(&c, v, &one, sizeof one), c.error);
        CHECK_OK(mesh_scan(&c, NULL, v, v, 1, MESH_I32, MESH_SUM), c.error);
        CHECK_INT(mesh_comm_stream(&c, other), MESH_OK);
        CHECK_OK(mesh_scan(&c, NULL, v, v, 1, MESH_I32, MESH_SUM), c.error);
        CHECK_OK(mesh_copy(&c, &got, v, sizeof got), c.error);
        CHECK_INT(got, (t->rank + 1) * (t->rank + 2) / 2);
        if (i % 3 == 0) test_sleep(0.12); /* the watchdog's tick */
    }
    CHECK_OK(mesh_comm_sync(&c), c.error);
    CHECK_OK(mesh_all_reduce(&c, "tp", a, a, 1000, MESH_F32, MESH_MAX), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(cudaStreamDestroy(first), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(other), cudaSuccess);
    test_sleep(0.12);
    if (!open_comm(t, &c, "dp=2,tp=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_all_reduce(&c, "tp", a, a, 1000, MESH_F32, MESH_SUM), c.error);
    CHECK(device_holds(&c, a, 1000, (float)t->size / 2));
    mesh_free(c.transport, a, &c.error);
    mesh_free(c.transport, v, &c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_streams_end(void) { run_gpus_with(4, streams_end_rank, NULL, "FAKE_CUDA_DELAY_US", "300"); }

/* One kernel packs all pieces that a rank sends, one unpacks all it receives; scratch is made once, and used again. */
static void pieces_rank(mesh_transport *t, void *ctx) {
    enum { ROWS = 50, PITCH = 300, WIDTH = 36 };
    mesh_comm c;
    mesh_block block;
    mesh_xfer x[16];
    unsigned long long before[8], after[8];
    unsigned char *host = (unsigned char *)malloc(ROWS * PITCH), *p;
    void *memory = NULL, *scan = NULL;
    int i, k, n = 0, wrong = 0, round;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_alloc(c.transport, ROWS * PITCH, &memory, &c.error), c.error);
    p = (unsigned char *)memory;
    for (i = 0; i < ROWS * PITCH; i++) host[i] = (unsigned char)(t->rank * 40 + i % PITCH / WIDTH);
    CHECK_OK(mesh_copy(&c, p, host, ROWS * PITCH), c.error);
    memset(&block, 0, sizeof block);
    memset(x, 0, sizeof x);
    block.run = WIDTH;
    block.ndim = 1;
    block.dim[0].count = ROWS;
    block.dim[0].stride = PITCH;
    for (k = 0; k < t->size; k++) /* column k goes to rank k; what comes from there goes into column 4 + k */
        for (i = 0; i < 2 && k != t->rank; i++, n++) {
            x[n].base = p + WIDTH * (i ? 4 + k : k);
            x[n].direction = i ? MESH_RECV : MESH_SEND;
            x[n].rank = k;
            x[n].block = &block;
            x[n].nbytes = ROWS * WIDTH;
        }
    for (round = 0; round < 3; round++) {
        fake_counts(before);
        CHECK_OK(mesh_exchange(&c, NULL, x, n), c.error);
        fake_counts(after);
        if (ON_FAKE) CHECK_INT(after[5] - before[5], 2);
        if (ON_FAKE && round) CHECK_INT(after[4] - before[4], 0); /* cudaMalloc */
    }
    CHECK_OK(mesh_copy(&c, host, p, ROWS * PITCH), c.error);
    for (i = 0; i < ROWS * PITCH; i++) {
        int column = i % PITCH / WIDTH;
        if (column >= 4 && column < 4 + t->size && column - 4 != t->rank)
            wrong += host[i] != (unsigned char)((column - 4) * 40 + t->rank);
    }
    CHECK_INT(wrong, 0);
    CHECK_OK(mesh_alloc(c.transport, 4000, &scan, &c.error), c.error);
    for (round = 0; round < 4; round++) {
        fake_counts(before);
        CHECK_OK(mesh_scan(&c, NULL, scan, scan, 1000, MESH_I32, MESH_SUM), c.error);
        CHECK_OK(mesh_comm_sync(&c), c.error);
        fake_counts(after);
        if (ON_FAKE && round) CHECK_INT(after[4] - before[4], 0);
    }
    mesh_free(c.transport, scan, &c.error);
    mesh_free(c.transport, p, &c.error);
    /* The engine's scratch, as it asks for it. */
    CHECK_INT(t->ops->alloc(t, 5000, 0, &scan), MESH_OK);
    CHECK_INT(t->ops->free(t, scan), MESH_OK);
    fake_counts(before);
    CHECK_INT(t->ops->alloc(t, 6000, 0, &memory), MESH_OK);
    CHECK(memory == scan);
    CHECK_INT(t->ops->alloc(t, 5000, 0, &scan), MESH_OK);
    CHECK(memory != scan);
    CHECK_INT(t->ops->free(t, scan), MESH_OK);
    CHECK_INT(t->ops->free(t, memory), MESH_OK);
    CHECK_INT(t->ops->alloc(t, 100, 0, &memory), MESH_OK); /* not one that is far too large */
    CHECK(memory != scan);
    CHECK_INT(t->ops->free(t, memory), MESH_OK);
    fake_counts(after);
    if (ON_FAKE) CHECK_INT(after[4] - before[4], 2);
    CHECK_INT(mesh_free(c.transport, host, &c.error), MESH_ERR_ARGUMENT);
    CHECK_HAS(c.error.text, "not mesh_alloc's");
    free(host);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_pieces(void) { run_gpus(4, pieces_rank, NULL); }

/* The sockets beneath do not close before: that is told, and all goes on. */
static void beneath_rank(mesh_transport *t, void *ctx) {
    mesh_transport *boot = mesh_nccl__of(t)->boot;
    mesh_comm c;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_INT(boot->ops->close(boot, NULL), MESH_ERR_STATE);
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_SUM), c.error);
    CHECK(device_holds(&c, a, 100, (float)t->size));
    mesh_free(t, a, NULL);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(boot->inside.lent, 1);
}
static void test_beneath(void) { run_gpus(2, beneath_rank, NULL); }

static const test_case nccl_alike_tests[] = {
    {"nccl/local_memory", test_local_memory, 60},
    {"nccl/register", test_register, 60},
    {"nccl/register_wrong", test_register_wrong, 60},
    {"nccl/history", test_history, 100}, {"nccl/history_waits", test_history_waits, 60}, {"nccl/copy_waits", test_copy_waits, 60},
    {"nccl/history_law", history_law, 60},
    {"nccl/connect", test_connect, 60},
    {"nccl/elsewhere", test_elsewhere, 60},
    {"nccl/streams_end", test_streams_end, 60},
    {"nccl/pieces", test_pieces, 60},
    {"nccl/beneath", test_beneath, 60},
};

static const test_case fake_nccl_alike_tests[] = {
    {"nccl/fake/register_2.26", test_register_226, 60},
    {"nccl/fake/register_2.18", test_register_218, 60},
    {"nccl/fake/register_plain", test_register_plain, 60},
};

#endif
