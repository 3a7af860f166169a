/* laws.h: what the laws share. Part of selftest.c. */
#ifndef LAWS_H
#define LAWS_H

/* ---- Harness ---------------------------------------------------------------------------------------------------- */

enum { MAX_RANKS = 8, LAW_SECONDS = 60, HANG_MS = 300 };

static struct shared {
    ncclUniqueId id;
    atomic_int id_ready, arrived[64];
} * shared;

static int rank, nranks; /* of this process */

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: rank %d of %d: not %s (last NCCL error: %s)\n", __FILE__, __LINE__, rank, nranks, \
                    #condition, ncclGetLastError(NULL));                                                              \
            _exit(1);                                                                                                 \
        }                                                                                                             \
    } while (0)

#define EQUAL(got, wanted)                                                                                     \
    do {                                                                                                       \
        long long got_value = (long long)(got), wanted_value = (long long)(wanted);                            \
        if (got_value != wanted_value) {                                                                       \
            fprintf(stderr, "%s:%d: rank %d of %d: %s is %lld, wanted %lld (last NCCL error: %s)\n", __FILE__, \
                    __LINE__, rank, nranks, #got, got_value, wanted_value, ncclGetLastError(NULL));            \
            _exit(1);                                                                                          \
        }                                                                                                      \
    } while (0)

static void sleep_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* All ranks meet, outside of NCCL. */
static void meet(int place) {
    atomic_fetch_add(&shared->arrived[place], 1);
    while (atomic_load(&shared->arrived[place]) < nranks) sleep_ms(1);
}

static void set_number(const char *name, long long value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    setenv(name, text, 1);
}

static ncclUniqueId common_id(void) {
    if (rank == 0) {
        EQUAL(ncclGetUniqueId(&shared->id), ncclSuccess);
        atomic_store(&shared->id_ready, 1);
    }
    while (!atomic_load(&shared->id_ready)) sleep_ms(1);
    return shared->id;
}

static ncclResult_t settle(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        EQUAL(ncclCommGetAsyncError(comm, &state), ncclSuccess);
        if (state == ncclInProgress) sleep_ms(1);
    }
    return state;
}

static ncclResult_t open_comm(ncclComm_t *comm, int blocking) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    ncclResult_t code = ncclCommInitRankConfig(comm, nranks, common_id(), rank, &config);
    if (!blocking && code == ncclInProgress) code = settle(*comm);
    return code;
}

static ncclComm_t must_open(int blocking) {
    ncclComm_t comm;
    EQUAL(cudaSetDevice(rank), cudaSuccess);
    EQUAL(open_comm(&comm, blocking), ncclSuccess);
    return comm;
}

static cudaStream_t new_stream(void) {
    cudaStream_t stream;
    EQUAL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

static void *new_memory(size_t bytes) {
    void *memory;
    EQUAL(cudaMalloc(&memory, bytes), cudaSuccess);
    return memory;
}

static void put_int(int *device, int value) {
    EQUAL(cudaMemcpy(device, &value, sizeof value, cudaMemcpyHostToDevice), cudaSuccess);
}

static int get_int(const int *device) {
    int value;
    EQUAL(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
}

/* For laws of kernels that hang: their calls return, and they start in order of issue. */
static void kernels_only(void) {
    setenv("FAKE_NCCL_RUNTIME_CONNECT", "0", 1);
    setenv("FAKE_NCCL_UNORDERED", "0", 1);
}

static void check_hangs(cudaStream_t stream) {
    sleep_ms(HANG_MS);
    EQUAL(cudaStreamQuery(stream), cudaErrorNotReady);
}

/* The stream is stuck in the comm's kernel until the comm is aborted. */
static void check_hangs_until_abort(ncclComm_t comm, cudaStream_t stream) {
    check_hangs(stream);
    double start = now_ms();
    EQUAL(ncclCommAbort(comm), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    CHECK(now_ms() - start < 2000);
}

#endif
