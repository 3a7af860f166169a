/* mesh_nccl.h over fake NCCL: conformance, streams and graphs, every failure with a cause. */
#ifndef T_NCCL_H
#define T_NCCL_H

#ifdef MESH_TEST_GPU /* on NVIDIA's libraries */
enum { ON_FAKE = 0 };
static void fake_counts(unsigned long long out[8]) { memset(out, 0, 8 * sizeof *out); }
#else
enum { ON_FAKE = 1 };
void fake_counts(
    unsigned long long
        out[8]); /* the stand-in's: calls of NCCL operations, EventRecord, EventQuery, StreamWaitEvent, ... */
#endif

/* The stand-in lies beside the test binary. */
static void fake_libraries(const char *self) {
    char path[1024];
    const char *slash = strrchr(self, '/');
    int n = slash ? (int)(slash + 1 - self) : 0;
    if (!ON_FAKE) return;
    snprintf(path, sizeof path, "%.*sfake/libnccl.so.2", n, self);
    setenv("MESH_NCCL_LIBRARY", path, 1);
    snprintf(path, sizeof path, "%.*sfake/libcudart.so.13", n, self);
    setenv("MESH_CUDART_LIBRARY", path, 1);
    unsetenv("LOCAL_RANK");
}

/* How many devices there are, asked in a process of its own: CUDA does not survive a fork. */
static int gpu_devices(void) {
    static int known = -1;
    int status;
    pid_t pid;
    if (known >= 0) return known;
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        int n = 0;
        _exit(cudaGetDeviceCount(&n) == cudaSuccess ? n : 0);
    }
    known = pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    return known;
}

/* ---- worlds of GPUs ---- */

typedef struct gpu_job {
    rank_main f;
    void *ctx;
    mesh_nccl_desc desc;
    const char *set[4][2]; /* environment of every rank */
} gpu_job;

/* Every rank, a process each, has come as far. Not by a barrier of the library: another rank may still be inside of that. */
static void world_meet(const mesh_transport *t) {
    static int met;
    world_say(WORLD_WORDS - 1);
    world_await(WORLD_WORDS - 1, t->size * ++met);
}

/* Only the calls that a test took: threads of the transport read the others meanwhile. */
static void api_back(mesh_nccl__state *s, const mesh_nccl__api *was) {
    unsigned char *now = (unsigned char *)&s->api;
    const unsigned char *then = (const unsigned char *)was;
    size_t i;
    for (i = 0; i < sizeof *was; i += sizeof(void *))
        if (memcmp(now + i, then + i, sizeof(void *))) memcpy(now + i, then + i, sizeof(void *));
}

/* Other calls for the bootstrap, of which the watcher may be in one. */
static void boot_ops(mesh_nccl__state *s, const mesh_ops *ops) {
    pthread_mutex_lock(&s->boot_lock), pthread_mutex_lock(&s->lock);
    s->boot->ops = ops;
    pthread_mutex_unlock(&s->lock), pthread_mutex_unlock(&s->boot_lock);
}

static void gpu_rank(mesh_transport *boot, void *ctx) {
    const gpu_job *job = (const gpu_job *)ctx;
    mesh_nccl_desc desc = job->desc;
    mesh_nccl gpu;
    mesh_error err;
    char rank[16];
    int i;
    if (!ON_FAKE && gpu_devices() > 0) {
        desc.device = 1 + boot->rank % gpu_devices();
        if (boot->size > gpu_devices()) share_gpu("mesh", boot->rank);
    }
    snprintf(rank, sizeof rank, "%d", boot->rank);
    setenv("RANK", rank, 1);
    for (i = 0; i < 4 && job->set[i][0]; i++) setenv(job->set[i][0], job->set[i][1], 1);
    if (mesh_nccl_open(&gpu, boot, &desc, &err)) {
        test_fail(__FILE__, __LINE__, "rank %d: %s", boot->rank, err.text);
        return;
    }
    job->f(&gpu.base, job->ctx);
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
    CHECK_INT(boot->inside.lent, 0);
}

static gpu_job job_of(rank_main f, void *ctx) {
    gpu_job job;
    memset(&job, 0, sizeof job);
    job.f = f;
    job.ctx = ctx;
    return job;
}

static void run_gpus(int ranks, rank_main f, void *ctx) {
    gpu_job job = job_of(f, ctx);
    run_world(UNIX, ranks, gpu_rank, &job);
}

static void run_unwatched(int ranks, rank_main f, void *ctx) {
    gpu_job job = job_of(f, ctx);
    job.desc.no_watchdog = 1;
    run_world(UNIX, ranks, gpu_rank, &job);
}

static void run_gpus_with(int ranks, rank_main f, void *ctx, const char *name, const char *value) {
    gpu_job job = job_of(f, ctx);
    job.set[0][0] = name;
    job.set[0][1] = value;
    run_world(UNIX, ranks, gpu_rank, &job);
}

/* Operations of several groups are started at once: the device takes them in their order. */
static void run_gpus_in_order(int ranks, rank_main f, void *ctx, const char *name, const char *value) {
    gpu_job job = job_of(f, ctx);
    job.desc.launch_order = 1;
    job.set[0][0] = name;
    job.set[0][1] = value;
    run_world(UNIX, ranks, gpu_rank, &job);
}

/* Device memory of n floats, each `value`. */
static float *device_floats(mesh_comm *c, size_t n, float value) {
    float *host = (float *)malloc(n * sizeof *host);
    void *p = NULL;
    size_t i;
    for (i = 0; i < n; i++) host[i] = value;
    CHECK_OK(mesh_alloc(c->transport, n * sizeof *host, &p, &c->error), c->error);
    CHECK_OK(mesh_copy(c, p, host, n * sizeof *host), c->error);
    free(host);
    return (float *)p;
}

/* Are they all this value? */
static int device_holds(mesh_comm *c, const float *p, size_t n, float value) {
    float *host = (float *)malloc(n * sizeof *host);
    size_t i;
    CHECK_OK(mesh_copy(c, host, p, n * sizeof *host), c->error);
    for (i = 0; i < n && host[i] == value; i++) {}
    if (i < n) test_fail(__FILE__, __LINE__, "element %zu is %g, expected %g", i, (double)host[i], (double)value);
    free(host);
    return i == n;
}

/* ---- conformance ---- */

static void conform_gpu(mesh_transport *t, void *ctx) { /* the longest: a GPU that is shared takes its time */
    (void)ctx;
    if (t->size >= 4)
        conformance_collectives(t, t->size == 4 ? "a=2,b=2" : "a=2,b=2,c=2", t->size == 4 ? "b,a" : "c,a;b,a", NULL,
                                601);
    else
        conformance_collectives(t, "a=-1", NULL, NULL, 20011);
}
static void test_conform_2(void) { run_gpus(2, conform_gpu, NULL); }
static void test_conform_3(void) { run_gpus(3, conform_gpu, NULL); }
static void test_conform_axes(void) { run_gpus(test_long ? 8 : 4, conform_gpu, NULL); }
static void test_conform_218(void) { run_gpus_with(3, conform_gpu, NULL, "FAKE_NCCL_VERSION", "21805"); }
static void test_conform_227(void) { run_gpus_with(3, conform_gpu, NULL, "FAKE_NCCL_VERSION", "22705"); }
static void test_conform_debug(void) { run_gpus_with(3, conform_gpu, NULL, "MESH_NCCL_DEBUG", "1"); }

static void conform_bare(mesh_transport *t, void *ctx) {
    (void)ctx;
    conformance_transport(t);
}
static void test_conform_bare(void) { run_gpus(3, conform_bare, NULL); }

static void redistribute_gpu(mesh_transport *t, void *ctx) {
    (void)ctx;
    conformance_redistribute(t, test_seed, 40, 400);
    conformance_redistribute(t, test_seed + 1, 4, 200000);
}
static void test_redistribute_4(void) { run_gpus(4, redistribute_gpu, NULL); }
static void test_redistribute_8(void) { run_gpus(8, redistribute_gpu, NULL); }

/* ---- streams and graphs ---- */

enum { LONG = 300000 };

/* The caller's order: kernels before a call, the call, a copy after it; started calls beside others; nothing blocks the host. */
static void streams_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request r[8];
    cudaStream_t stream, other;
    float *a[8], *b, host = 0, sum = (float)(t->size * (t->size + 1)) / 2;
    unsigned long long before[8], after[8];
    int i, round;
    (void)ctx;
    if (!open_comm(t, &c, "dp=2,tp=-1", NULL, 20 * SECOND)) return;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_INT(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    CHECK_INT(mesh_comm_stream(&c, stream), MESH_OK);
    for (i = 0; i < 8; i++) a[i] = device_floats(&c, LONG, (float)(t->rank + 1));
    b = device_floats(&c, LONG, 0);
    /* A blocking call returns before it is done: the device is still busy with something else before it. */
    CHECK_OK(mesh_all_reduce(&c, NULL, a[0], a[0], LONG, MESH_F32, MESH_SUM), c.error);
    CHECK_INT(cudaMemcpyAsync(b, a[0], LONG * sizeof(float), cudaMemcpyDefault, stream), cudaSuccess);
    CHECK(device_holds(&c, b, LONG, sum));
    /* Eight started in the same order everywhere, on two groups; waited for in another; each is then behind the caller's stream. */
    for (round = 0; round < 3; round++) {
        for (i = 0; i < 8; i++)
            CHECK_OK(mesh_all_reduce_start(&c, i % 2 ? "dp" : "tp", a[i], a[i], LONG, MESH_F32, MESH_MAX, &r[i]),
                     c.error);
        for (i = 7; i >= 0; i--) {
            CHECK_OK(mesh_wait(r[i]), c.error);
            CHECK_INT(mesh_wait(r[i]), MESH_ERR_STATE);
            CHECK_INT(cudaMemcpyAsync(&b[i], &a[i][LONG - 1], sizeof(float), cudaMemcpyDefault, stream), cudaSuccess);
        }
    }
    CHECK_OK(mesh_comm_sync(&c), c.error);
    for (i = 1; i < 8; i++) {
        CHECK_OK(mesh_copy(&c, &host, &b[i], sizeof host), c.error);
        CHECK(host == (float)(i % 2 ? t->rank % (t->size / 2) + 1 + t->size / 2
                                    : t->rank / (t->size / 2) * (t->size / 2) + t->size / 2));
    }
    /* A group's order holds when its calls change streams: started, blocking, on another stream. */
    for (round = 0; round < 20; round++) {
        CHECK_INT(cudaMemsetAsync(b, 0, LONG * sizeof(float), stream), cudaSuccess);
        if (t->rank == 0)
            CHECK_INT(cudaMemcpyAsync(b, a[0], LONG * sizeof(float), cudaMemcpyDefault, stream), cudaSuccess);
        CHECK_OK(mesh_broadcast_start(&c, NULL, b, b, LONG, MESH_F32, 0, &r[0]), c.error);
        CHECK_OK(mesh_wait(r[0]), c.error);
        CHECK_OK(mesh_all_reduce(&c, NULL, b, b, LONG, MESH_F32, MESH_MAX), c.error);
        CHECK_INT(mesh_comm_stream(&c, other), MESH_OK);
        CHECK_OK(mesh_all_reduce(&c, NULL, b, b, LONG, MESH_F32, MESH_MAX), c.error);
        CHECK(device_holds(&c, b, LONG, sum));
        CHECK_INT(mesh_comm_stream(&c, stream), MESH_OK);
    }
    CHECK_OK(mesh_all_reduce_start(&c, "dp", b, b, LONG, MESH_F32, MESH_MAX, &r[0]), c.error);
    CHECK_OK(mesh_wait_host(r[0]), c.error);
    CHECK_OK(mesh_all_reduce_start(&c, "dp", b, b, LONG, MESH_F32, MESH_MAX, &r[0]), c.error);
    while ((i = (int)mesh_test(r[0])) == MESH_IN_PROGRESS) {}
    CHECK_INT(i, MESH_OK);
    /* A blocking call on the caller's stream costs NCCL's call, and an event now and then: no waits, no copies. */
    CHECK_OK(mesh_comm_sync(&c), c.error);
    fake_counts(before);
    for (i = 0; i < 100; i++) CHECK_OK(mesh_all_reduce(&c, NULL, b, b, 64, MESH_F32, MESH_MAX), c.error);
    fake_counts(after);
    if (ON_FAKE) CHECK_INT(after[0] - before[0], 100);
    CHECK(after[1] - before[1] <= 50);
    CHECK(after[2] - before[2] <= 300);
    CHECK_INT(after[3] - before[3], 0);
    CHECK_INT(after[4] - before[4] + after[5] - before[5] + after[6] - before[6], 0);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    for (i = 0; i < 8; i++) CHECK_INT(mesh_free(c.transport, a[i], &c.error), MESH_OK);
    CHECK_INT(mesh_free(c.transport, b, &c.error), MESH_OK);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
}
static void test_streams(void) { run_gpus_in_order(4, streams_rank, NULL, NULL, NULL); }
static void test_streams_late(void) { run_gpus_in_order(4, streams_rank, NULL, "FAKE_CUDA_DELAY_US", "300"); }

/* A kept request is started again and again without a wait on the host; released while the device is at it; others use scratch meanwhile. */
static void kept_rank(mesh_transport *t, void *ctx) {
    enum { N = 20000, ROUNDS = 30 };
    mesh_comm c;
    mesh_request native, scan, r;
    float *a, *b, *d;
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    a = device_floats(&c, N, 1);
    b = device_floats(&c, N, 1);
    d = device_floats(&c, N, (float)t->rank);
    CHECK_OK(mesh_all_reduce_start(&c, NULL, a, a, N, MESH_F32, MESH_AVG, &native), c.error);
    CHECK_INT(mesh_keep(native), MESH_OK);
    CHECK_OK(mesh_scan_start(&c, NULL, b, b, N, MESH_F32, MESH_MAX, &scan), c.error); /* with scratch */
    CHECK_INT(mesh_keep(scan), MESH_OK);
    for (i = 0; i < ROUNDS; i++) {
        CHECK_OK(mesh_wait(native), c.error);
        CHECK_INT(mesh_wait(native), MESH_ERR_STATE);
        CHECK_OK(mesh_wait(scan), c.error);
        CHECK_OK(mesh_restart(native), c.error);
        CHECK_OK(mesh_scan_start(&c, NULL, d, d, N, MESH_F32, MESH_MAX, &r), c.error);
        CHECK_OK(mesh_restart(scan), c.error);
        CHECK_OK(mesh_wait(r), c.error);
    }
    CHECK_OK(mesh_wait(native), c.error);
    CHECK_INT(mesh_release(native), MESH_OK);
    CHECK_INT(mesh_release(native), MESH_ERR_STATE);
    CHECK_OK(mesh_wait_host(scan), c.error);
    CHECK_INT(mesh_test(scan), MESH_ERR_STATE);
    CHECK_OK(mesh_restart(scan), c.error);
    CHECK_OK(mesh_wait(scan), c.error);
    CHECK_INT(mesh_release(scan), MESH_OK);
    CHECK_OK(mesh_scan(&c, NULL, d, d, N, MESH_F32, MESH_MAX), c.error);
    CHECK(device_holds(&c, a, N, 1));
    CHECK(device_holds(&c, b, N, 1));
    CHECK(device_holds(&c, d, N, (float)t->rank));
    for (i = 0; i < (ON_FAKE ? 3000 : 300); i++) /* never waited for; ranks that share a GPU take 30 ms for each */
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 16, MESH_F32, MESH_MAX), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    mesh_free(c.transport, a, &c.error), mesh_free(c.transport, b, &c.error), mesh_free(c.transport, d, &c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_kept(void) { run_gpus(3, kept_rank, NULL); }
static void test_kept_late(void) { run_gpus_with(3, kept_rank, NULL, "FAKE_CUDA_DELAY_US", "100"); }

/* Calls are captured in a graph, which then runs several times: blocking and started, with and without scratch, strided. */
static void graph_rank(mesh_transport *t, void *ctx) {
    enum { N = 5000 };
    mesh_comm c;
    mesh_request r;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    mesh_block column;
    mesh_xfer x[2];
    const mesh_nccl__memory *staging;
    float *in, *out, *square, want;
    int i, next = (t->rank + 1) % t->size, before = (t->rank + t->size - 1) % t->size;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_INT(mesh_comm_stream(&c, stream), MESH_OK);
    in = device_floats(&c, N, 1);
    out = device_floats(&c, N, 0);
    square = device_floats(&c, 64 * 64, (float)t->rank);
    CHECK_OK(mesh_all_reduce(&c, NULL, in, out, N, MESH_F32, MESH_SUM), c.error);
    memset(&column, 0, sizeof column);
    column.run = sizeof(float);
    column.ndim = 1;
    column.dim[0].count = 64;
    column.dim[0].stride = 64 * sizeof(float);
    memset(x, 0, sizeof x);
    x[0].base = square, x[0].direction = MESH_SEND, x[0].rank = next;
    x[1].base = square + 1, x[1].direction = MESH_RECV, x[1].rank = before;
    x[0].block = x[1].block = &column;
    x[0].nbytes = x[1].nbytes = 64 * sizeof(float);
    staging = mesh_nccl__of(t)->group->c->staging;
    CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    CHECK_OK(mesh_all_reduce(&c, NULL, in, in, N, MESH_F32, MESH_SUM), c.error);            /* in *= size */
    CHECK_OK(mesh_all_reduce_start(&c, NULL, in, out, N, MESH_F32, MESH_SUM, &r), c.error); /* out = in * size */
    CHECK_OK(mesh_wait(r), c.error);
    CHECK_OK(mesh_scan(&c, NULL, in, out, N, MESH_F32, MESH_SUM), c.error); /* out = in * (rank + 1), through scratch */
    CHECK_OK(mesh_exchange(&c, NULL, x, 2), c.error);
    for (i = 0; i < 3; i++) { /* started, another beside it, then waited for in each way: all join the stream */
        CHECK_OK(mesh_all_reduce_start(&c, NULL, in, out, N, MESH_F32, MESH_AVG, &r), c.error);
        if (i != 1) CHECK_OK(mesh_all_reduce(&c, NULL, square + 2, square + 2, 1, MESH_F32, MESH_MIN), c.error);
        CHECK_OK(i == 0 ? mesh_wait(r) : i == 1 ? mesh_test(r) : mesh_wait_host(r), c.error);
    }
    CHECK_OK(mesh_scan(&c, NULL, in, out, N, MESH_F32, MESH_SUM), c.error);
    CHECK_INT(mesh_copy(&c, &want, out, sizeof want), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "captured");
    CHECK(mesh_nccl__of(t)->group->c->staging == staging); /* a graph has its own */
    CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK_INT(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (i = 0, want = 1; i < 3; i++) {
        CHECK_INT(cudaGraphLaunch(exec, stream), cudaSuccess);
        want *= (float)t->size;
        CHECK(device_holds(&c, in, N, want));
        CHECK(device_holds(&c, out, N, want * (float)(t->rank + 1)));
        CHECK(device_holds(&c, square + 1, 1, (float)before));
        /* Other calls between two runs use scratch of their own. */
        CHECK_OK(mesh_scan(&c, NULL, out, out, N, MESH_F32, MESH_MAX), c.error);
        CHECK(device_holds(&c, out, N, want * (float)(t->rank + 1)));
    }
    CHECK_INT(cudaGraphExecDestroy(exec), cudaSuccess);
    CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
    mesh_free(c.transport, in, &c.error);
    mesh_free(c.transport, out, &c.error);
    mesh_free(c.transport, square, &c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    cudaStreamDestroy(stream);
}
static void test_graph(void) { run_gpus(4, graph_rank, NULL); }

/* Strided messages: rows go through kernels, whole arrays through copies; long odd rows through copies too, to others and to oneself. */
static void strided_rank(mesh_transport *t, void *ctx) {
    enum { ROWS = 37, PITCH = 40000 };
    static const int widths[] = {4, 12, 64, 127, 129, 510, 514, 1000, 8191, 8192, 8194, 30000};
    mesh_comm c;
    unsigned char *host = (unsigned char *)malloc(ROWS * PITCH), *got = (unsigned char *)malloc(ROWS * PITCH);
    void *p = NULL;
    mesh_block block;
    mesh_xfer x[2];
    unsigned long long before[8], after[8];
    int k, i, j, other = 1 - t->rank;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_alloc(c.transport, ROWS * PITCH, &p, &c.error), c.error);
    for (k = 0; k < (int)(sizeof widths / sizeof *widths); k++) {
        int wrong = 0, odd = widths[k] % 2 ? widths[k] >= 128 : widths[k] % 4 && widths[k] >= 512;
        int self = widths[k] % 4 || widths[k] == 8192;
        for (i = 0; i < ROWS * PITCH; i++) host[i] = (unsigned char)((i * 7 + i / 255 + t->rank * 90 + k) & 255);
        CHECK_OK(mesh_copy(&c, p, host, ROWS * PITCH), c.error);
        memset(&block, 0, sizeof block);
        block.run = (uint64_t)widths[k];
        block.ndim = 1;
        block.dim[0].count = ROWS;
        block.dim[0].stride = PITCH;
        memset(x, 0, sizeof x);
        x[0].base = p, x[0].direction = MESH_SEND;
        x[1].base = (char *)p + PITCH - widths[k] - 4, x[1].direction = MESH_RECV;
        if (widths[k] > PITCH / 2) x[1].base = p; /* in the place of what was sent */
        x[0].block = x[1].block = &block;
        x[0].rank = x[1].rank = other;
        x[0].nbytes = x[1].nbytes = (uint64_t)ROWS * block.run;
        fake_counts(before);
        if (widths[k] <= PITCH / 2) {
            CHECK_OK(mesh_exchange(&c, NULL, x, 2), c.error);
            fake_counts(after);
            if (ON_FAKE) CHECK_INT(after[5] - before[5], odd ? 0 : 2); /* kernels: one packs, one unpacks */
            if (ON_FAKE) CHECK_INT(after[6] - before[6], odd ? 2 : 0); /* copies */
            CHECK_OK(mesh_copy(&c, got, p, ROWS * PITCH), c.error);
            for (i = 0; i < ROWS; i++)
                for (j = 0; j < PITCH; j++) {
                    int at = i * PITCH + j, from = j - (PITCH - widths[k] - 4);
                    int received = from >= 0 && from < widths[k], source = i * PITCH + from;
                    unsigned char want =
                        received ? (unsigned char)((source * 7 + source / 255 + other * 90 + k) & 255) : host[at];
                    wrong += got[at] != want;
                }
            CHECK_INT(wrong, 0);
        }
        if (widths[k] == 129) { /* rows in two dims: a kernel's, whatever their width */
            mesh_block two = block;
            two.ndim = 2;
            two.dim[0].count = 6, two.dim[0].stride = 6 * PITCH;
            two.dim[1].count = 6, two.dim[1].stride = PITCH;
            x[0].block = x[1].block = &two;
            x[0].nbytes = x[1].nbytes = 36 * two.run;
            fake_counts(before);
            CHECK_OK(mesh_exchange(&c, NULL, x, 2), c.error);
            fake_counts(after);
            if (ON_FAKE) CHECK_INT(after[5] - before[5], 2);
            CHECK_OK(mesh_barrier(&c, NULL), c.error);
            x[0].block = x[1].block = &block;
            x[0].nbytes = x[1].nbytes = (uint64_t)ROWS * block.run;
        }
        if (!self) continue;
        CHECK_OK(mesh_copy(&c, p, host, ROWS * PITCH), c.error);
        x[0].rank = x[1].rank = t->rank;
        fake_counts(before);
        CHECK_OK(mesh_exchange(&c, NULL, x, 2), c.error);
        fake_counts(after);
        if (ON_FAKE) CHECK_INT(after[5] - before[5], !odd);
        if (ON_FAKE) CHECK_INT(after[6] - before[6], odd);
        CHECK_OK(mesh_copy(&c, got, p, ROWS * PITCH), c.error);
        for (wrong = i = 0; i < ROWS; i++)
            wrong += memcmp(got + (i + 1) * PITCH - widths[k] - 4, host + i * PITCH, (size_t)widths[k]) != 0;
        CHECK_INT(wrong, 0);
    }
    mesh_free(c.transport, p, &c.error);
    free(host);
    free(got);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_strided(void) { run_gpus(2, strided_rank, NULL); }

/* Averages are sums divided, on any number of ranks. */
static void average_rank(mesh_transport *t, void *ctx) {
    enum { N = 1000 };
    mesh_comm c;
    float *p, sum = 0;
    void *own = NULL;
    mesh_buffer list[2];
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (i = 0; i < t->size; i++) sum += (float)i + 0.25f;
    CHECK_INT(cudaMalloc(&own, N * sizeof(float)), cudaSuccess);
    p = device_floats(&c, N, (float)t->rank + 0.25f);
    CHECK_OK(mesh_all_reduce(&c, NULL, p, own, N, MESH_F32, MESH_AVG), c.error);
    CHECK(device_holds(&c, (float *)own, N, sum / (float)t->size));
    CHECK_OK(mesh_reduce(&c, NULL, p, own, N, MESH_F32, MESH_AVG, 1), c.error);
    if (t->rank == 1) CHECK(device_holds(&c, (float *)own, N, sum / (float)t->size));
    list[0].send = p, list[0].recv = own, list[0].count = 10;
    list[1].send = p + 100, list[1].recv = (float *)own + 100, list[1].count = 900;
    CHECK_OK(mesh_all_reduce_many(&c, NULL, list, 2, MESH_F32, MESH_AVG), c.error);
    CHECK(device_holds(&c, (float *)own + 100, 900, sum / (float)t->size));
    mesh_free(c.transport, p, &c.error);
    cudaFree(own);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
/* A rank alone: barrier and wait_host still wait for the stream. */
static void alone_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request r;
    cudaStream_t stream;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "x=1,y=-1", NULL, 20 * SECOND)) return;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_INT(mesh_comm_stream(&c, stream), MESH_OK);
    a = device_floats(&c, 1 << 20, 1);
    CHECK_INT(cudaMemsetAsync(a, 0, sizeof(float) << 20, stream), cudaSuccess);
    CHECK_OK(mesh_barrier(&c, "x"), c.error);
    CHECK_INT(cudaStreamQuery(stream), cudaSuccess);
    CHECK_INT(cudaMemsetAsync(a, 0, sizeof(float) << 20, stream), cudaSuccess);
    CHECK_OK(mesh_all_reduce_start(&c, "x", a, a, 1 << 20, MESH_F32, MESH_AVG, &r), c.error);
    CHECK_OK(mesh_wait_host(r), c.error);
    CHECK_INT(cudaStreamQuery(stream), cudaSuccess);
    CHECK_OK(mesh_all_reduce(&c, "y", a, a, 1 << 20, MESH_F32, MESH_AVG), c.error);
    CHECK(device_holds(&c, a, 1 << 20, 0));
    mesh_free(c.transport, a, &c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    cudaStreamDestroy(stream);
}
static void test_alone(void) {
    run_gpus(1, alone_rank, NULL);
    run_gpus(2, alone_rank, NULL);
}

/* A redistribution that adds, on devices: after a reduction, after a gather, and what a rank has itself; two dtypes are the host's to convert. */
static void add_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {3000};
    static const char *const ways[][2] = {{"x:P(sum)", "x:S(0)"}, {"x:S(0)", "x:R"}, {"x:P(sum)", "x:I"}, {"x:R", "x:S(0)"}};
    mesh_tensor src, dst;
    mesh_comm c;
    mesh_error err;
    int way;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    for (way = 0; way < 4; way++) {
        float *a = device_floats(&c, 3000, 2), *b = device_floats(&c, 3000, 5);
        CHECK_OK(mesh_tensor_make(&src, &c.on, ways[way][0], MESH_F32, 1, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&dst, &c.on, ways[way][1], MESH_F32, 1, shape, &err), err);
        src.data = a, dst.data = b, dst.add = 1;
        CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
        CHECK(device_holds(&c, b, way % 3 == 0 ? 1000 : 3000, way % 2 ? 7 : 11));
        mesh_free(t, a, &c.error), mesh_free(t, b, &c.error);
    }
    mesh_comm_close(&c);
}

static void mixed_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {3000};
    mesh_tensor src, dst;
    mesh_comm c;
    mesh_error err;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_tensor_make(&src, &c.on, "x:P(sum)", MESH_BF16, 1, shape, &err), err);
    CHECK_OK(mesh_tensor_make(&dst, &c.on, "x:S(0)", MESH_F32, 1, shape, &err), err);
    CHECK_OK(mesh_alloc(t, 3000 * 2, &src.data, &err), err);
    CHECK_OK(mesh_alloc(t, 1000 * 4, &dst.data, &err), err);
    CHECK_INT(mesh_redistribute(&c, &src, &dst), MESH_ERR_UNSUPPORTED);
    CHECK_HAS(c.error.text, "in memory that is not the host's; convert first");
    mesh_free(t, src.data, &c.error), mesh_free(t, dst.data, &c.error);
    mesh_comm_close(&c);
}
static void test_add(void) {
    run_gpus(3, add_rank, NULL);
    run_gpus(3, mixed_rank, NULL);
}
static void test_average(void) { run_gpus(3, average_rank, NULL); }

/* fp8 is reduced where the device and NCCL can; avg of it, and older ones, are refused on every rank. */
static void fp8_rank(mesh_transport *t, void *ctx) {
    static const unsigned char e4m3[] = {0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e}, /* 1, 2 ... 7 */
        e5m2[] = {0x3c, 0x40, 0x42, 0x44, 0x45, 0x46, 0x47};
    const int old = ctx != NULL;
    mesh_comm c;
    unsigned char host[256];
    void *p = NULL;
    int k;
    if (!open_comm(t, &c, "x=3", NULL, 10 * SECOND)) return;
    CHECK_OK(mesh_alloc(c.transport, sizeof host, &p, &c.error), c.error);
    for (k = 0; k < 2 && !old; k++) {
        const unsigned char *number = k ? e5m2 : e4m3;
        mesh_dtype d = k ? MESH_F8E5M2 : MESH_F8E4M3;
        memset(host, number[t->rank], sizeof host);
        CHECK_OK(mesh_copy(&c, p, host, sizeof host), c.error);
        CHECK_OK(mesh_all_reduce(&c, NULL, p, p, 200, d, MESH_SUM), c.error);
        CHECK_OK(mesh_reduce_scatter(&c, NULL, p, (char *)p + 60 * t->rank, 60, d, MESH_MAX), c.error);
        CHECK_OK(mesh_copy(&c, host, p, sizeof host), c.error);
        CHECK_INT(host[0], number[5]);
        CHECK_INT(host[199], number[5]);
        CHECK_INT(host[200], number[t->rank]);
    }
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    world_meet(t);
    CHECK_INT(mesh_all_reduce(&c, NULL, p, p, 200, MESH_F8E4M3, old ? MESH_SUM : MESH_AVG), MESH_ERR_UNSUPPORTED);
    CHECK_HAS(c.error.text, old ? "sum of f8e4m3 is not supported" : "avg of f8e4m3 is not supported");
    mesh_free(c.transport, p, &c.error);
    mesh_comm_close(&c);
}
static void test_fp8(void) { run_gpus(3, fp8_rank, NULL); }
static void test_fp8_old(void) { run_gpus_with(3, fp8_rank, (void *)(uintptr_t) "old", "FAKE_NCCL_VERSION", "22300"); }

/* ---- failures: each with its cause, on every rank, none hangs ---- */

enum { VICTIM_GPU = 2 };

/* A rank is killed while the others wait in the library (0), in CUDA (1), or in NCCL's own call (2). */
static void gpu_killed_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx;
    mesh_comm c;
    float *a;
    mesh_request r;
    mesh_status status;
    double start;
    if (!open_comm(t, &c, "x=4", NULL, 30 * SECOND)) return;
    a = device_floats(&c, 1000, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank == VICTIM_GPU) {
        test_sleep(0.1); /* no word tells that a call of CUDA's waits */
        kill(getpid(), SIGKILL);
    }
    start = test_now();
    status = mesh_all_reduce_start(&c, NULL, a, a, 1000, MESH_F32, MESH_SUM, &r);
    if (status == MESH_OK && what == 0) status = mesh_wait_host(r);
    if (status == MESH_OK && what == 1) {
        CHECK_INT(mesh_wait(r), MESH_OK);
        CHECK_INT(cudaStreamSynchronize(NULL), cudaSuccess); /* freed by the watchdog */
        status = mesh_comm_sync(&c);
    }
    CHECK_INT(status, MESH_ERR_PEER);
    CHECK(test_now() - start < 5);
    CHECK_INT(c.error.rank, VICTIM_GPU);
    CHECK_HAS(c.error.text, "rank 2");
    CHECK_INT(mesh_all_reduce(&c, NULL, a, a, 1000, MESH_F32, MESH_SUM), MESH_ERR_PEER);
    mesh_free(c.transport, a, &c.error);
    mesh_comm_close(&c);
}
static void gpu_killed(int what, const char *name, const char *value) {
    gpu_job job = job_of(gpu_killed_rank, &what);
    job.set[0][0] = name, job.set[0][1] = value;
    run_world_but(UNIX, 4, gpu_rank, &job, VICTIM_GPU);
}
static void test_gpu_killed(void) { gpu_killed(0, NULL, NULL); }
static void test_gpu_killed_in_cuda(void) { gpu_killed(1, NULL, NULL); }
static void test_gpu_killed_218(void) { gpu_killed(1, "FAKE_NCCL_VERSION", "21805"); }
static void test_gpu_killed_as_over_sockets(void) { gpu_killed(1, "FAKE_NCCL_PEER_DEATH", "error"); }

/* Survivors open a comm of their own, on new communicators. */
static void gpu_survivors_rank(mesh_transport *t, void *ctx) {
    mesh_comm c, rest;
    mesh m;
    mesh_error err;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "x=4", NULL, 30 * SECOND)) return;
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    world_meet(t);
    if (t->rank == 3) kill(getpid(), SIGKILL);
    CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
    mesh_comm_close(&c);
    CHECK_OK(mesh_parse(&m, "y=3", 3, &err), err);
    CHECK_OK(mesh_comm_open(&rest, t, &m, NULL, &err), err);
    if (!rest.impl) return;
    a = device_floats(&rest, 500, 1);
    CHECK_OK(mesh_all_reduce(&rest, "y", a, a, 500, MESH_F32, MESH_SUM), rest.error);
    CHECK(device_holds(&rest, a, 500, 3));
    mesh_free(rest.transport, a, &rest.error);
    CHECK_INT(mesh_comm_close(&rest), MESH_OK);
}
static void test_gpu_survivors(void) {
    gpu_job job = job_of(gpu_survivors_rank, NULL);
    run_world_but(UNIX, 4, gpu_rank, &job, 3);
}

/* Ranks that call different things, or one that does not call: told by the question, at the deadline, or in debug mode before the launch. */
static void gpu_disagree_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx;
    mesh_comm c;
    float *a;
    mesh_status status;
    mesh_request r;
    if (!open_comm(t, &c, "x=4", NULL, what == 2 || what == 3 ? SECOND : 20 * SECOND)) return;
    a = device_floats(&c, 4000, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    world_meet(t);
    if (what == 0 || what == 1) { /* 1: in debug mode */
        status = mesh_all_reduce_start(&c, NULL, a, a, t->rank == 1 ? 1000 : 999, MESH_F32, MESH_SUM, &r);
        if (status == MESH_OK) status = mesh_wait_host(r);
        if (status == MESH_OK && what == 0) status = mesh_barrier(&c, NULL); /* NCCL takes it: 16 bytes are the same */
        CHECK_INT(status, MESH_ERR_MISMATCH);
        CHECK_HAS(c.error.text, "999 x f32");
        CHECK_HAS(c.error.text, "1000 x f32");
    } else if (what == 2) { /* rank 1 does not call, and says what it is in */
        status = MESH_OK;
        if (t->rank == 1) {
            mesh_object o = MESH_ZERO;
            (void)o;
            while (!c.failed && (status = mesh_recv_start(&c, NULL, 0, a, 5, MESH_F32, &r)) == MESH_OK)
                status = mesh_wait_host(r);
        } else {
            status = mesh_all_reduce_start(&c, NULL, a, a, 1000, MESH_F32, MESH_SUM, &r);
            if (status == MESH_OK) status = mesh_wait_host(r);
            CHECK(status == MESH_ERR_TIMEOUT);
            CHECK_HAS(c.error.text, "deadline of 1000 ms passed");
        }
        CHECK_INT(status, MESH_ERR_TIMEOUT);
        CHECK_HAS(c.error.text, "recv(5 x f32)");
    } else { /* two groups in other orders: every rank has called everything */
        mesh_comm_close(&c);
        if (!open_comm(t, &c, "a=2,b=2", NULL, SECOND)) return;
        status = mesh_all_reduce_start(&c, t->rank % 3 ? "b" : "a", a, a, 4000, MESH_F32, MESH_SUM, &r);
        if (status == MESH_OK) {
            mesh_request second;
            status = mesh_all_reduce_start(&c, t->rank % 3 ? "a" : "b", a, a, 4000, MESH_F32, MESH_SUM, &second);
            if (status == MESH_OK) status = mesh_wait_host(second);
            if (status == MESH_OK) status = mesh_wait_host(r);
        }
        if (status == MESH_OK)
            status = mesh_barrier(&c, NULL); /* when its peers gave up, what it waited for could end */
        CHECK_INT(status, MESH_ERR_TIMEOUT);
        CHECK_HAS(c.error.text, "in another order");
    }
    mesh_free(c.transport, a, &c.error);
    mesh_comm_close(&c);
}
static void gpu_disagree(int what, const char *name, const char *value) {
    run_gpus_with(4, gpu_disagree_rank, &what, name, value);
}
static void test_gpu_disagree(void) { gpu_disagree(0, NULL, NULL); }
static void test_gpu_disagree_debug(void) { gpu_disagree(1, "MESH_NCCL_DEBUG", "1"); }
static void test_gpu_absent(void) { gpu_disagree(2, NULL, NULL); }
static void test_gpu_crossed(void) {
    int what = 3;
    run_gpus_in_order(4, gpu_disagree_rank, &what, NULL, NULL);
}

/* No communicator was freed under a thread that was inside of it. */
static void not_freed_under_it(void) {
    unsigned long long (*unsafe)(void) = NULL;
    void *library = ON_FAKE ? dlopen(getenv("MESH_NCCL_LIBRARY"), RTLD_NOW | RTLD_NOLOAD) : NULL, *found = NULL;
    if (!ON_FAKE) return;
    if (library) found = dlsym(library, "fake_unsafe_aborts");
    memcpy(&unsafe, &found, sizeof found);
    CHECK(unsafe && unsafe() == 0);
}

/* NCCL fails by itself: an asynchronous error, a call that is refused, a call that does not come back. */
static void gpu_error_rank(mesh_transport *t, void *ctx) {
    const char *want = (const char *)ctx;
    mesh_comm c;
    float *a;
    mesh_status status = MESH_OK;
    mesh_request r;
    int i;
    if (!open_comm(t, &c, "x=3", NULL, (strcmp(want, "deadline") ? 40 : 2) * SECOND)) return;
    a = device_floats(&c, 4000, 1);
    for (i = 0; i < 20 && status == MESH_OK; i++) {
        status = mesh_all_reduce_start(&c, NULL, a, a, 1000, MESH_F32, MESH_MAX, &r);
        if (status == MESH_OK) status = mesh_wait_host(r);
    }
    CHECK_INT(status, strcmp(want, "deadline") ? MESH_ERR_TRANSPORT : MESH_ERR_TIMEOUT);
    CHECK_HAS(c.error.text, want);
    CHECK_HAS(c.error.text, "all_reduce");
    not_freed_under_it();
    mesh_free(c.transport, a, &c.error);
    mesh_comm_close(&c);
}
static void gpu_error(const char *name, const char *value, const char *want) {
    run_gpus_with(3, gpu_error_rank, (void *)(uintptr_t)want, name, value);
}
static void test_gpu_async_error(void) { gpu_error("FAKE_NCCL_ASYNC_ERROR", "1:5", "NCCL's last warning"); }
static void test_gpu_refused(void) {
    gpu_error("FAKE_NCCL_FAIL", "2:ncclAllReduce:5", "all_reduce: unhandled system error");
}
static void test_gpu_stuck(void) { gpu_error("FAKE_NCCL_ENQUEUE_HANG", "1:5", "deadline"); }

/* Openings that cannot succeed: every rank is told the same. */
typedef struct gpu_refusal {
    const char *name, *value, *want;
    int only, status; /* only: the rank whose environment it is; -1: all */
} gpu_refusal;

static void gpu_no_open(mesh_transport *boot, void *ctx) {
    const gpu_refusal *no = (const gpu_refusal *)ctx;
    mesh_nccl gpu;
    mesh_nccl_desc desc = MESH_ZERO;
    mesh_error err;
    char rank[16];
    snprintf(rank, sizeof rank, "%d", boot->rank);
    setenv("RANK", rank, 1);
    desc.open_timeout_ns = (no->status == MESH_ERR_TIMEOUT ? 2 : 60) * SECOND; /* only there it is what ends it */
    if (no->only < 0 || no->only == boot->rank) setenv(no->name, no->value, 1);
    CHECK_INT(mesh_nccl_open(&gpu, boot, &desc, &err), no->status);
    CHECK_HAS(err.text, no->want);
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
}

static void test_gpu_openings(void) {
    static const gpu_refusal refusals[] = {
        {"FAKE_CUDA_DEVICES", "0", "no GPU on rank 0's host", -1, MESH_ERR_UNSUPPORTED},
        {"FAKE_CUDA_DEVICES", "0", "no GPU on rank 2's host", 2, MESH_ERR_UNSUPPORTED},
        {"FAKE_CUDA_DEVICES", "2", "rank 2 would use device 2 (its rank), but its host has 2", -1, MESH_ERR_ARGUMENT},
        {"LOCAL_RANK", "1", "uplicate GPU", -1, MESH_ERR_TRANSPORT},
        {"MESH_NCCL_LIBRARY", "/nowhere/libnccl.so.2", "rank 1 cannot load /nowhere/libnccl.so.2", 1,
         MESH_ERR_UNSUPPORTED},
        {"MESH_CUDART_LIBRARY", "/nowhere/libcudart.so", "rank 0 cannot load", -1, MESH_ERR_UNSUPPORTED},
        {"FAKE_NCCL_VERSION", "21700", "2.18 (21800) or later", 0, MESH_ERR_UNSUPPORTED},
        {"NCCL_COMM_BLOCKING", "0", "NCCL_COMM_BLOCKING is \"0\"", 1, MESH_ERR_ARGUMENT},
        {"NCCL_COMM_BLOCKING", "1", "NCCL_COMM_BLOCKING is \"1\"", -1, MESH_ERR_ARGUMENT},
        {"NCCL_COMM_BLOCKING", "no", "NCCL_COMM_BLOCKING is \"no\"", 0, MESH_ERR_ARGUMENT}, /* to NCCL a 0 */
        {"FAKE_NCCL_INIT_HANG", "1", "deadline", -1, MESH_ERR_TIMEOUT},
        {"FAKE_NCCL_SPLIT_HANG", "2", "deadline", -1, MESH_ERR_TIMEOUT},
        {"FAKE_NCCL_FAIL", "1:ncclCommInitRankConfig:1", "ncclCommInitRankConfig: unhandled system error", -1,
         MESH_ERR_TRANSPORT},
        {"FAKE_NCCL_FAIL", "1:ncclCommSplit:1", "ncclCommSplit: unhandled system error", -1, MESH_ERR_TRANSPORT},
        {"FAKE_NCCL_FAIL", "0:ncclGetUniqueId:1", "ncclGetUniqueId", -1, MESH_ERR_TRANSPORT},
        {"FAKE_NCCL_FAIL", "0:ncclAllReduce:1", "connecting: unhandled system error", -1, MESH_ERR_TRANSPORT},
        {"FAKE_NCCL_FAIL", "2:ncclBroadcast:1", "connecting: unhandled system error", -1, MESH_ERR_TRANSPORT},
    };
    size_t i;
    for (i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        int failed = test_failures;
        run_world(UNIX, 3, gpu_no_open, (void *)(uintptr_t)&refusals[i]);
        if (test_failures != failed) test_fail(__FILE__, __LINE__, "%s=%s", refusals[i].name, refusals[i].value);
    }
}

/* What the caller gave may go, or change, after a start: a kept native call has its own; and its rounds are counted. */
static void kept_args_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request many, v;
    mesh_buffer *list = (mesh_buffer *)malloc(2 * sizeof *list);
    size_t *counts = (size_t *)malloc(3 * sizeof *counts);
    uint64_t sent = 0, received = 0, again = 0;
    float *a, *b;
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 600, (float)t->rank);
    b = device_floats(&c, 600, 0);
    list[0].send = list[0].recv = a, list[0].count = 100;
    list[1].send = list[1].recv = a + 200, list[1].count = 300;
    for (i = 0; i < 3; i++) counts[i] = 50 * (size_t)i;
    CHECK_OK(mesh_all_reduce_many_start(&c, NULL, list, 2, MESH_F32, MESH_MAX, &many), c.error);
    CHECK_OK(mesh_all_gather_v_start(&c, NULL, a, b, counts, NULL, MESH_F32, &v), c.error);
    CHECK_INT(mesh_keep(many), MESH_OK);
    CHECK_INT(mesh_keep(v), MESH_OK);
    memset(list, 0xff, 2 * sizeof *list), free(list);
    memset(counts, 0xff, 3 * sizeof *counts), free(counts);
    mesh_comm_bytes(&c, NULL, &sent, &received);
    for (i = 0; i < 4; i++) {
        CHECK_OK(mesh_wait(many), c.error);
        CHECK_OK(mesh_wait(v), c.error);
        CHECK_OK(mesh_restart(many), c.error);
        CHECK_OK(mesh_restart(v), c.error);
    }
    mesh_comm_bytes(&c, NULL, &again, NULL);
    CHECK_INT(again, 5 * sent);
    CHECK_OK(mesh_wait(many), c.error);
    CHECK_OK(mesh_wait_host(v), c.error);
    CHECK_INT(mesh_release(many), MESH_OK);
    CHECK_INT(mesh_release(v), MESH_OK);
    CHECK(device_holds(&c, a, 100, 2));
    CHECK(device_holds(&c, a + 100, 100, (float)t->rank));
    CHECK(device_holds(&c, b, 150, 2));
    mesh_free(c.transport, a, &c.error), mesh_free(c.transport, b, &c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_kept_args(void) { run_gpus(3, kept_args_rank, NULL); }

/* Two comms over the same ranks: what ends one leaves the other alone. In place is each rank's own choice. */
static void two_comms_rank(mesh_transport *t, void *ctx) {
    mesh_comm one, two;
    float *a, *b;
    (void)ctx;
    if (!open_comm(t, &one, "x=3", NULL, 20 * SECOND) || !open_comm(t, &two, "y=3", NULL, 20 * SECOND)) return;
    a = device_floats(&two, 3000, (float)t->rank);
    b = device_floats(&two, 3000, 0);
    CHECK_OK(mesh_all_to_all(&two, "y", a, t->rank == 1 ? a : b, 1000, MESH_F32), two.error);
    CHECK(device_holds(&two, t->rank == 1 ? a : b, 1000, 0));
    CHECK(device_holds(&two, (t->rank == 1 ? a : b) + 2000, 1000, 2));
    CHECK_OK(mesh_barrier(&one, NULL), one.error);
    world_meet(t);
    if (t->rank == 2)
        CHECK_INT(mesh_all_reduce(&one, NULL, NULL, b, 5, MESH_F32, MESH_SUM), MESH_ERR_ARGUMENT);
    else
        CHECK_INT(mesh_barrier(&one, NULL), MESH_ERR_ARGUMENT);
    CHECK_OK(mesh_all_reduce(&two, NULL, b, b, 3000, MESH_F32, MESH_MAX), two.error);
    CHECK_OK(mesh_comm_sync(&two), two.error);
    mesh_comm_close(&one);
    CHECK_OK(mesh_all_reduce(&two, NULL, b, b, 3000, MESH_F32, MESH_MAX), two.error);
    CHECK_OK(mesh_comm_sync(&two), two.error);
    mesh_free(two.transport, a, &two.error), mesh_free(two.transport, b, &two.error);
    CHECK_INT(mesh_comm_close(&two), MESH_OK);
}
static void test_two_comms(void) { run_gpus(3, two_comms_rank, NULL); }

/* A split that one rank cannot make fails the opening everywhere at once; the next opening is whole. */
static void split_again_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh m;
    mesh_error err;
    float *a;
    (void)ctx;
    CHECK_OK(mesh_parse(&m, "a=2,b=2", 4, &err), err);
    CHECK_INT(mesh_comm_open(&c, t, &m, NULL, &err), MESH_ERR_TRANSPORT);
    CHECK_INT(err.rank, 1);
    CHECK_HAS(err.text, "ncclCommSplit: unhandled system error");
    if (!open_comm(t, &c, "a=2,b=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_all_reduce(&c, "b", a, a, 100, MESH_F32, MESH_SUM), c.error);
    CHECK_OK(mesh_all_reduce(&c, "a", a, a, 100, MESH_F32, MESH_SUM), c.error);
    CHECK(device_holds(&c, a, 100, 4));
    mesh_free(c.transport, a, &c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_split_again(void) { run_gpus_with(4, split_again_rank, NULL, "FAKE_NCCL_FAIL", "1:ncclCommSplit:2"); }

/* A rank is lost while some of the others open a group, or compare calls in a group without it: they do not wait for each other. */
static void lost_opening_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    float *a;
    double start;
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=2", NULL, 30 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    world_meet(t);
    if (t->rank == 3) kill(getpid(), SIGKILL);
    start = test_now();
    if (t->rank == 0)
        status = mesh_recv(&c, NULL, 3, a, 100, MESH_F32);
    else
        status = getenv("MESH_NCCL_DEBUG") ? mesh_all_reduce(&c, "a", a, a, 100, MESH_F32, MESH_SUM)
                                           : mesh_group_open(&c, "b,a");
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK_INT(status, MESH_ERR_PEER);
    CHECK_INT(c.error.rank, 3);
    mesh_free(c.transport, a, &c.error);
    mesh_comm_close(&c);
    not_freed_under_it();
    CHECK(test_now() - start < 5);
}
static void lost_opening(const char *name, const char *value) {
    gpu_job job = job_of(lost_opening_rank, NULL);
    job.set[0][0] = name, job.set[0][1] = value;
    run_world_but(UNIX, 4, gpu_rank, &job, 3);
}
static void test_lost_opening(void) { lost_opening(NULL, NULL); }
static void test_lost_debug(void) { lost_opening("MESH_NCCL_DEBUG", "1"); }
static void test_lost_opening_2283(void) { lost_opening("FAKE_NCCL_VERSION", "22803"); }
static void test_lost_opening_222(void) { lost_opening("FAKE_NCCL_VERSION", "22203"); }

/* In debug mode counts that differ are told too, by both calls. */
static void gpu_counts_rank(mesh_transport *t, void *ctx) {
    size_t counts[3] = {4, 5, 6}, other[3] = {4, 5, 6};
    int what = *(int *)ctx;
    mesh_comm c;
    float *a, *b;
    mesh_status status;
    if (!open_comm(t, &c, "x=3", NULL, 10 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    b = device_floats(&c, 100, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    world_meet(t);
    if (t->rank == 1) counts[2] = 7;
    status = what == 0   ? mesh_all_gather_v(&c, NULL, a, b, counts, NULL, MESH_F32)
             : what == 1 ? mesh_all_to_all_v(&c, NULL, a, other, NULL, b, counts, NULL, MESH_F32)
                         : mesh_gather_v(&c, NULL, a, other[t->rank] + (t->rank == 1), b, other, NULL, MESH_F32, 0);
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK_INT(status, MESH_ERR_MISMATCH);
    mesh_comm_close(&c);
}
static void test_gpu_counts(void) {
    int what;
    for (what = 0; what < 3; what++) run_gpus_with(3, gpu_counts_rank, &what, "MESH_NCCL_DEBUG", "1");
}

/* Meshes over the same ranks share communicators; sub-meshes and other orders have their own; groups opened later. */
static void gpu_comms_rank(mesh_transport *t, void *ctx) {
    mesh_comm c[3];
    mesh m, half;
    mesh_error err;
    float *a;
    int i;
    (void)ctx;
    if (!open_comm(t, &c[0], "dp=2,tp=2", "tp,dp", 20 * SECOND)) return;
    if (!open_comm(t, &c[1], "x=4", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_group_open(&c[0], "dp,tp"), c[0].error);
    CHECK_OK(mesh_parse(&m, "a=2,b=2", 4, &err), err);
    CHECK_OK(mesh_group_through(&half, &m, "b", t->rank, &err), err);
    CHECK_OK(mesh_comm_open(&c[2], t, &half, NULL, &err), err);
    a = device_floats(&c[0], 100, (float)(1 << t->rank));
    CHECK_OK(mesh_all_reduce(&c[0], "tp,dp", a, a, 100, MESH_F32, MESH_SUM), c[0].error);
    CHECK(device_holds(&c[0], a, 100, 15));
    CHECK_OK(mesh_all_reduce(&c[1], "x", a, a, 100, MESH_F32, MESH_SUM), c[1].error);
    CHECK_OK(mesh_all_reduce(&c[2], "b", a, a, 100, MESH_F32, MESH_SUM), c[2].error);
    CHECK(device_holds(&c[2], a, 100, 120));
    for (i = 0; i < 3; i++) CHECK_INT(mesh_comm_close(&c[i]), MESH_OK);
    for (i = 0; i < 3; i++) { /* again, from what is there */
        if (!open_comm(t, &c[0], "dp=2,tp=2", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_all_reduce(&c[0], "tp", a, a, 100, MESH_F32, MESH_MAX), c[0].error);
        CHECK_OK(mesh_comm_sync(&c[0]), c[0].error);
        if (i == 2) mesh_free(c[0].transport, a, &c[0].error);
        CHECK_INT(mesh_comm_close(&c[0]), MESH_OK);
    }
}
static void test_gpu_comms(void) { run_gpus(4, gpu_comms_rank, NULL); }

/* A comm closed with operations under way, or closed on one rank while others need it. */
static void gpu_close_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request r;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 10 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    world_meet(t);
    if (t->rank == 0) {
        CHECK_OK(mesh_all_reduce_start(&c, NULL, a, a, 100, MESH_F32, MESH_SUM, &r), c.error);
        CHECK_INT(mesh_comm_close(&c), MESH_ERR_STATE);
        CHECK_HAS(c.error.text, "under way");
    } else {
        mesh_status status = mesh_recv(&c, NULL, 0, a, 5, MESH_F32); /* enqueued, or still about to connect to rank 0 */
        CHECK(status == MESH_OK || status == MESH_ERR_PEER);
        CHECK_INT(mesh_comm_sync(&c), MESH_ERR_PEER);
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
    }
}
static void test_gpu_close(void) { run_gpus(2, gpu_close_rank, NULL); }

/* A rank that has left its transport is missed. */
static void gpu_left_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request r;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 60 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank != 1) {
        CHECK_OK(mesh_all_reduce_start(&c, NULL, a, a, 100, MESH_F32, MESH_SUM, &r), c.error);
        CHECK_INT(mesh_wait_host(r), MESH_ERR_PEER);
        CHECK_HAS(c.error.text, "rank 1");
        CHECK_HAS(c.error.text, "closed");
    }
    mesh_comm_close(&c);
}
static void test_gpu_left(void) { run_gpus(3, gpu_left_rank, NULL); }

/* In debug mode host memory is told as such, on every rank. */
static void gpu_host_memory_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    float host[8] = {0}, *a;
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 10 * SECOND)) return;
    a = device_floats(&c, 8, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    world_meet(t);
    status = mesh_all_reduce(&c, NULL, a, t->rank ? host : a, 8, MESH_F32, MESH_SUM);
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK_INT(status, MESH_ERR_ARGUMENT);
    CHECK_HAS(c.error.text, "recv is host memory");
    CHECK_INT(c.error.rank, 1);
    mesh_comm_close(&c);
}
static void test_gpu_host_memory(void) { run_gpus_with(2, gpu_host_memory_rank, NULL, "MESH_NCCL_DEBUG", "1"); }

/* The examples, as a user starts them: on the stand-in, and where there is no GPU on sockets, with why. */
static void test_gpu_examples(void) {
    static const char *const names[] = {"gpu_hello", "gpu_redistribute"};
    const char *library = getenv("MESH_NCCL_LIBRARY");
    char command[4096], line[512];
    int i, gpu;
    for (i = 0; i < 2; i++)
        for (gpu = 0; gpu < 2; gpu++) {
            int n = (int)(strstr(library, "fake/") - library), seen = 0, status;
            FILE *f;
            snprintf(
                command, sizeof command,
                "ASAN_OPTIONS=detect_leaks=0 FAKE_CUDA_DEVICES=%d %.*smesh run -n 3 --idle-timeout 60 -- %.*s%s 2>&1",
                gpu ? 8 : 0, n, n ? library : "./", n, n ? library : "./", names[i]);
            if ((f = popen(command, "r")) == NULL) {
                test_fail(__FILE__, __LINE__, "%s: %s", command, strerror(errno));
                return;
            }
            while (fgets(line, sizeof line, f))
                seen |= strstr(line, gpu ? "GPU: 0 elements wrong" : "no GPU on rank 0's host") ||
                        strstr(line, "device 2 of 8");
            status = pclose(f);
            if (status || !seen) test_fail(__FILE__, __LINE__, "%s: status %d, last line %s", command, status, line);
        }
    { /* what runs on GPUs is traced as on sockets */
        char dir[] = "/tmp/mesh_test_XXXXXX";
        int n = (int)(strstr(library, "fake/") - library);
        if (!mkdtemp(dir)) test_fail(__FILE__, __LINE__, "%s: %s", dir, strerror(errno));
        snprintf(
            command, sizeof command,
            "cd %.*s. && ASAN_OPTIONS=detect_leaks=0 MESH_TRACE=%s ./mesh run -n 2 --idle-timeout 60 -- ./gpu_hello >%s/out 2>&1 && "
            "./mesh trace %s >%s/text && grep -q all_reduce %s/text && grep -q \"clock is\\|times are rank 0\" %s/text; "
            "status=$?; rm -r %s; exit $status",
            n, library, dir, dir, dir, dir, dir, dir, dir);
        CHECK_INT(system(command), 0);
    }
}

/* On real GPUs too; killed ranks and deadlines included. */
static const test_case nccl_tests[] = {
    {"nccl/bare", test_conform_bare, 60},
    {"nccl/conformance_2", test_conform_2, 400},
    {"nccl/conformance_3", test_conform_3, 400},
    {"nccl/conformance_axes", test_conform_axes, 400},
    {"nccl/redistribute_4", test_redistribute_4, 400},
    {"nccl/redistribute_8", test_redistribute_8, 400},
    {"nccl/streams", test_streams, 60},
    {"nccl/kept", test_kept, 60},
    {"nccl/graph", test_graph, 60},
    {"nccl/strided", test_strided, 60},
    {"nccl/average", test_average, 60},
    {"nccl/add", test_add, 60},
    {"nccl/alone", test_alone, 60},
    {"nccl/comms", test_gpu_comms, 60},
    {"nccl/kept_args", test_kept_args, 60},
    {"nccl/two_comms", test_two_comms, 60},
    {"nccl/lost_opening", test_lost_opening, 60},
    {"nccl/lost_debug", test_lost_debug, 60},
    {"nccl/counts", test_gpu_counts, 60},
    {"nccl/killed", test_gpu_killed, 60},
    {"nccl/killed_in_cuda", test_gpu_killed_in_cuda, 60},
    {"nccl/survivors", test_gpu_survivors, 60},
    {"nccl/disagree", test_gpu_disagree, 60},
    {"nccl/disagree_debug", test_gpu_disagree_debug, 60},
    {"nccl/absent", test_gpu_absent, 60},
    {"nccl/close", test_gpu_close, 60},
    {"nccl/left", test_gpu_left, 60},
    {"nccl/host_memory", test_gpu_host_memory, 60},
};

/* What only the stand-in can do: other versions, injected errors, kernels in strict order. */
static const test_case fake_nccl_tests[] = {
    {"nccl/fake/lost_opening_2.28.3", test_lost_opening_2283, 60},
    {"nccl/fake/lost_opening_2.22", test_lost_opening_222, 60},
    {"nccl/fake/conformance_2.18", test_conform_218, 240},
    {"nccl/fake/conformance_2.27", test_conform_227, 240},
    {"nccl/fake/conformance_debug", test_conform_debug, 240},
    {"nccl/fake/streams_late", test_streams_late, 60},
    {"nccl/fake/kept_late", test_kept_late, 60},
    {"nccl/fake/fp8", test_fp8, 60},
    {"nccl/fake/fp8_2.23", test_fp8_old, 60},
    {"nccl/fake/killed_2.18", test_gpu_killed_218, 60},
    {"nccl/fake/killed_as_over_sockets", test_gpu_killed_as_over_sockets, 60},
    {"nccl/fake/split_again", test_split_again, 60},
    {"nccl/fake/crossed", test_gpu_crossed, 60},
    {"nccl/fake/async_error", test_gpu_async_error, 60},
    {"nccl/fake/refused", test_gpu_refused, 60},
    {"nccl/fake/stuck", test_gpu_stuck, 60},
    {"nccl/fake/openings", test_gpu_openings, 120},
    {"nccl/fake/examples", test_gpu_examples, 100},
};

#endif
