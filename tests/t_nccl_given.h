/* A communicator that the program has already (mesh_nccl_desc.comm): split from, used beside the library, left whole. */
#ifndef T_NCCL_GIVEN_H
#define T_NCCL_GIVEN_H

typedef struct given_api {
    ncclResult_t (*GetUniqueId)(ncclUniqueId *);
    ncclResult_t (*CommInitRankConfig)(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
    ncclResult_t (*CommSplit)(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
    ncclResult_t (*CommGetAsyncError)(ncclComm_t, ncclResult_t *);
    ncclResult_t (*AllReduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
    ncclResult_t (*CommDestroy)(ncclComm_t);
    ncclResult_t (*CommAbort)(ncclComm_t);
} given_api;

static void given_load(given_api *api) {
    const char *name = getenv("MESH_NCCL_LIBRARY");
    void *library = dlopen(name && *name ? name : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL), *f;
    CHECK(library != NULL);
#define MESH_X(what) f = dlsym(library, "nccl" #what), memcpy(&api->what, &f, sizeof f);
    MESH_X(GetUniqueId)
    MESH_X(CommInitRankConfig)
    MESH_X(CommSplit)
    MESH_X(CommGetAsyncError)
    MESH_X(AllReduce)
    MESH_X(CommDestroy) MESH_X(CommAbort)
#undef MESH_X
        CHECK(api->CommAbort && api->AllReduce);
}

/* What goes wrong, or nothing. */
enum {
    GIVEN_WELL,
    GIVEN_NONBLOCKING,
    GIVEN_FEWER,
    GIVEN_TURNED,
    GIVEN_BY_SOME,
    GIVEN_ELSEWHERE,
    GIVEN_STUCK,
    GIVEN_KILLED
};

typedef struct given_job {
    int what, ranks;
    ncclUniqueId *id; /* between the processes */
} given_job;

/* The program's own communicator, of all ranks. */
static ncclComm_t given_make(const given_api *api, const given_job *job, int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL, part = NULL;
    ncclResult_t r = ncclInProgress;
    config.blocking = job->what != GIVEN_NONBLOCKING;
    if (rank == 0) CHECK_INT(api->GetUniqueId(job->id), ncclSuccess);
    if (rank == 0) world_say(0);
    world_await(0, 1);
    if (!ON_FAKE && job->ranks > gpu_devices()) share_gpu("mesh", rank);
    CHECK_INT(cudaSetDevice(ON_FAKE ? rank : rank % gpu_devices()), cudaSuccess);
    r = api->CommInitRankConfig(&comm, job->ranks, *job->id, rank, &config);
    while (r == ncclInProgress) api->CommGetAsyncError(comm, &r);
    CHECK_INT(r, ncclSuccess);
    if (job->what != GIVEN_FEWER && job->what != GIVEN_TURNED) return comm;
    CHECK_INT(api->CommSplit(comm, job->what == GIVEN_FEWER && rank == 3, job->what == GIVEN_FEWER ? rank : -rank,
                             &part, NULL),
              ncclSuccess);
    CHECK_INT(api->CommDestroy(comm), ncclSuccess);
    return part;
}

static void given_sum(const given_api *api, ncclComm_t given, float *a, size_t n) {
    ncclResult_t r = api->AllReduce(a, a, n, ncclFloat32, ncclSum, given, NULL);
    while (r == ncclInProgress) api->CommGetAsyncError(given, &r);
    CHECK_INT(r, ncclSuccess);
}

/* The library's operations and the program's own, by turns, on comms in two orders of the ranks; and what a kill leaves. */
static void given_use(mesh_transport *t, const given_api *api, ncclComm_t given, int kills) {
    const char *const meshes[] = {"a=2,b=2", "x=4"};
    mesh_comm c;
    float *a;
    int i;
    for (i = 0; i < 4; i++) {
        mesh m, turned;
        mesh_error err;
        CHECK_OK(mesh_parse(&m, meshes[i & 1], 4, &err), err);
        if (i == 2) {
            CHECK_OK(mesh_transpose(&turned, &m, "b,a", &err), err);
            m = turned;
        }
        CHECK_OK(mesh_comm_open(&c, t, &m, NULL, &err), err);
        if (!c.impl) return;
        a = device_floats(&c, 1000, 1);
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 1000, MESH_F32, MESH_SUM), c.error);
        given_sum(api, given, a, 1000);
        CHECK_OK(mesh_all_reduce(&c, i & 1 ? "x" : "b", a, a, 1000, MESH_F32, MESH_SUM), c.error);
        CHECK(device_holds(&c, a, 1000, i & 1 ? 64 : 32));
        if (i == 3 && kills) {
            CHECK_OK(mesh_barrier(&c, NULL), c.error);
            world_meet(t);
            if (t->rank == 2) kill(getpid(), SIGKILL);
            CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
            CHECK_INT(c.error.rank, 2);
        }
        mesh_free(t, a, &c.error);
        mesh_comm_close(&c);
    }
}

/* Of a part of the ranks the library makes one by itself. */
static void given_part(mesh_transport *t) {
    mesh_comm c;
    mesh m;
    mesh_error err;
    float *a;
    CHECK_OK(mesh_parse(&m, "y=3", 3, &err), err);
    if (t->rank == 3) return;
    CHECK_OK(mesh_comm_open(&c, t, &m, NULL, &err), err);
    if (!c.impl) return;
    a = device_floats(&c, 10, 1);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 10, MESH_F32, MESH_SUM), c.error);
    CHECK(device_holds(&c, a, 10, 3));
    mesh_free(t, a, &c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}

static void given_rank(mesh_transport *boot, void *ctx) {
    const given_job *job = (const given_job *)ctx;
    mesh_nccl_desc desc;
    mesh_nccl gpu;
    mesh_error err;
    given_api api;
    ncclComm_t comm;
    mesh_status status;
    double start = test_now();
    char rank[16];
    snprintf(rank, sizeof rank, "%d", boot->rank);
    setenv("RANK", rank, 1);
    memset(&desc, 0, sizeof desc);
    given_load(&api);
    comm = given_make(&api, job, boot->rank);
    if (job->what != GIVEN_BY_SOME || boot->rank != 1) desc.comm = comm;
    if (job->what == GIVEN_ELSEWHERE && boot->rank == 1) desc.device = 1 + 5;
    if (job->what == GIVEN_STUCK) desc.open_timeout_ns = 4 * SECOND; /* all have to come before, on a slow machine too */
    status = mesh_nccl_open(&gpu, boot, &desc, &err);
    if (job->what <= GIVEN_NONBLOCKING || job->what == GIVEN_KILLED) {
        CHECK_OK(status, err);
        if (status == MESH_OK) given_use(&gpu.base, &api, comm, job->what == GIVEN_KILLED);
        if (status == MESH_OK && job->what == GIVEN_NONBLOCKING) given_part(&gpu.base);
        mesh_nccl_close(&gpu);
    } else if (job->what == GIVEN_STUCK) {
        CHECK_INT(status, MESH_ERR_TIMEOUT);
        CHECK_HAS(err.text, "ncclCommSplit of mesh_nccl_desc.comm is not done at its deadline");
        CHECK(test_now() - start < 20);
    } else {
        CHECK_INT(status, job->what == GIVEN_BY_SOME ? MESH_ERR_MISMATCH : MESH_ERR_ARGUMENT);
        if (job->what == GIVEN_FEWER) CHECK_HAS(err.text, "as 0 of 3, the bootstrap as 0 of 4");
        if (job->what == GIVEN_TURNED) CHECK_HAS(err.text, "as 3 of 4, the bootstrap as 0 of 4");
        if (job->what == GIVEN_BY_SOME) CHECK_HAS(err.text, boot->rank == 1 ? "on rank 1 it is not)" : "it is)");
        if (job->what == GIVEN_ELSEWHERE) CHECK_HAS(err.text, "mesh_nccl_desc.comm is on device 1");
    }
    if (job->what == GIVEN_KILLED || job->what == GIVEN_STUCK) { /* it is the program's to end */
        CHECK_INT(api.CommAbort(comm), ncclSuccess);
        return;
    }
    if (job->what != GIVEN_FEWER) { /* whole, after the library has left */
        float *a = NULL, host = 1;
        CHECK_INT(cudaMalloc((void **)&a, sizeof *a), cudaSuccess);
        CHECK_INT(cudaMemcpy(a, &host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
        given_sum(&api, comm, a, 1);
        CHECK_INT(cudaMemcpy(&host, a, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
        CHECK(host == 4);
        cudaFree(a);
    }
    CHECK_INT(api.CommDestroy(comm), ncclSuccess);
}

static void given(int what, const char *name, const char *value) {
    int zero = open("/dev/zero", O_RDWR);
    given_job job;
    job.what = what;
    job.ranks = 4;
    job.id = (ncclUniqueId *)mmap(NULL, sizeof *job.id, PROT_READ | PROT_WRITE, MAP_SHARED, zero, 0);
    close(zero);
    if (name) setenv(name, value, 1);
    run_world_but(UNIX, job.ranks, given_rank, &job, what == GIVEN_KILLED ? 2 : -1);
    if (name) unsetenv(name);
    munmap(job.id, sizeof *job.id);
}
/* The second id would be the library's. */
static void test_given(void) { given(GIVEN_WELL, "FAKE_NCCL_FAIL", "0:ncclGetUniqueId:2"); }
static void test_given_nonblocking(void) { given(GIVEN_NONBLOCKING, NULL, NULL); }
static void test_given_killed(void) { given(GIVEN_KILLED, NULL, NULL); }
static void test_given_wrong(void) {
    given(GIVEN_FEWER, NULL, NULL);
    given(GIVEN_TURNED, NULL, NULL);
    given(GIVEN_BY_SOME, NULL, NULL);
    if (ON_FAKE) given(GIVEN_ELSEWHERE, NULL, NULL);
}
static void test_given_stuck(void) { given(GIVEN_STUCK, "FAKE_NCCL_SPLIT_HANG", "2"); }

static const test_case nccl_given_tests[] = {
    {"nccl/given", test_given, 60},
    {"nccl/given_nonblocking", test_given_nonblocking, 60},
    {"nccl/given_killed", test_given_killed, 60},
    {"nccl/given_wrong", test_given_wrong, 60},
};
static const test_case fake_nccl_given_tests[] = {{"nccl/fake/given_stuck", test_given_stuck, 60}};

#endif
