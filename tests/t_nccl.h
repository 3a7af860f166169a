/* mesh_nccl.h over fake NCCL: conformance, streams and graphs, every failure with a cause. */
#ifndef T_NCCL_H
#define T_NCCL_H

#define SECOND INT64_C(1000000000)

void fake_counts(unsigned long long out[8]); /* the stand-in's: calls of NCCL operations, EventRecord, EventQuery, StreamWaitEvent, ... */

/* The stand-in lies beside the test binary. */
static void fake_libraries(const char *self) {
    char path[1024];
    const char *slash = strrchr(self, '/');
    int n = slash ? (int)(slash + 1 - self) : 0;
    snprintf(path, sizeof path, "%.*sfake/libnccl.so.2", n, self);
    setenv("MESH_NCCL_LIBRARY", path, 1);
    snprintf(path, sizeof path, "%.*sfake/libcudart.so.13", n, self);
    setenv("MESH_CUDART_LIBRARY", path, 1);
    unsetenv("LOCAL_RANK");
}

/* ---- worlds of GPUs ---- */

typedef struct gpu_job {
    rank_main f;
    void *ctx;
    mesh_nccl_desc desc;
    const char *set[4][2]; /* environment of every rank */
} gpu_job;

static void gpu_rank(mesh_transport *boot, void *ctx) {
    const gpu_job *job = (const gpu_job *)ctx;
    mesh_nccl gpu;
    mesh_error err;
    char rank[16];
    int i;
    snprintf(rank, sizeof rank, "%d", boot->rank);
    setenv("RANK", rank, 1);
    for (i = 0; i < 4 && job->set[i][0]; i++) setenv(job->set[i][0], job->set[i][1], 1);
    if (mesh_nccl_open(&gpu, boot, &job->desc, &err)) {
        test_fail(__FILE__, __LINE__, "rank %d: %s", boot->rank, err.text);
        return;
    }
    job->f(&gpu.base, job->ctx);
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
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

static void run_gpus_with(int ranks, rank_main f, void *ctx, const char *name, const char *value) {
    gpu_job job = job_of(f, ctx);
    job.set[0][0] = name;
    job.set[0][1] = value;
    run_world(UNIX, ranks, gpu_rank, &job);
}

static int open_gpu(mesh_transport *t, mesh_comm *c, const char *text, const char *groups, int64_t timeout) {
    mesh m;
    mesh_error err;
    mesh_comm_desc desc = MESH_ZERO;
    desc.groups = groups;
    desc.timeout_ns = timeout;
    desc.ask_ns = SECOND / 10;
    CHECK_OK(mesh_parse(&m, text, t->size, &err), err);
    if (mesh_comm_open(c, t, &m, &desc, &err)) {
        test_fail(__FILE__, __LINE__, "rank %d: %s", t->rank, err.text);
        return 0;
    }
    return 1;
}

/* Device memory of n floats, each `value`. */
static float *device_floats(mesh_comm *c, size_t n, float value) {
    float *host = (float *)malloc(n * sizeof *host);
    void *p = NULL;
    size_t i;
    for (i = 0; i < n; i++) host[i] = value;
    CHECK_OK(mesh_alloc(c, n * sizeof *host, &p), c->error);
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

static void conform_gpu(mesh_transport *t, void *ctx) {
    (void)ctx;
    if (t->size == 8)
        conformance_collectives(t, "a=2,b=2,c=2", "c,a;b,a", NULL, 601);
    else
        conformance_collectives(t, "a=-1", NULL, NULL, 20011);
}
static void test_conform_2(void) { run_gpus(2, conform_gpu, NULL); }
static void test_conform_3(void) { run_gpus(3, conform_gpu, NULL); }
static void test_conform_4(void) { run_gpus(4, conform_gpu, NULL); }
static void test_conform_8(void) { run_gpus(8, conform_gpu, NULL); }
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

static const test_case nccl_tests[] = {
    {"nccl/bare", test_conform_bare, 60},
    {"nccl/conformance_2", test_conform_2, 240},
    {"nccl/conformance_3", test_conform_3, 240},
    {"nccl/conformance_4", test_conform_4, 240},
    {"nccl/conformance_8", test_conform_8, 240},
    {"nccl/conformance_2.18", test_conform_218, 240},
    {"nccl/conformance_2.27", test_conform_227, 240},
    {"nccl/conformance_debug", test_conform_debug, 240},
    {"nccl/redistribute_4", test_redistribute_4, 240},
    {"nccl/redistribute_8", test_redistribute_8, 240},
};

#endif
