/* selftest.c: what the stand-ins for NCCL and the CUDA runtime promise (README.md), each law run by processes of its
 * own. Usage: fake_nccl_selftest [part of a law's name]. */
#define _GNU_SOURCE
#include "nccl.h"
#include "fake.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

/* ---- Laws of the CUDA runtime ----------------------------------------------------------------------------------- */

static void law_devices(void) {
    int count = -1, device;
    char bus[32];
    setenv("FAKE_CUDA_DEVICES", "0", 1);
    EQUAL(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
    EQUAL(count, -1);
    EQUAL(cudaGetLastError(), cudaErrorInsufficientDriver);
    EQUAL(cudaGetLastError(), cudaSuccess);
    setenv("FAKE_CUDA_DEVICES", "3", 1);
    EQUAL(cudaGetDeviceCount(&count), cudaSuccess);
    EQUAL(count, 3);
    EQUAL(cudaSetDevice(3), cudaErrorInvalidDevice);
    EQUAL(cudaSetDevice(2), cudaSuccess);
    EQUAL(cudaGetDevice(&device), cudaSuccess);
    EQUAL(device, 2);
    EQUAL(cudaDeviceGetPCIBusId(bus, sizeof bus, 1), cudaSuccess);
    CHECK(!strcmp(bus, "0000:11:00.0"));
    CHECK(!strcmp(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady"));
}

static void law_memory(void) {
    void *many[3000], *none;
    struct cudaPointerAttributes attributes;
    size_t left, total;
    for (int i = 0; i < 3000; i++) CHECK((uintptr_t)(many[i] = new_memory((size_t)(i % 700 + 1))) % 256 == 0);
    for (int i = 0; i < 3000; i++) EQUAL(cudaFree(many[(i * 7) % 3000]), cudaSuccess);
    many[0] = new_memory((size_t)3 << 30);
    EQUAL(cudaFree(many[0]), cudaSuccess);
    EQUAL(cudaMemGetInfo(&left, &total), cudaSuccess);
    EQUAL(left, total);
    EQUAL(cudaMalloc(&none, total + 1), cudaErrorMemoryAllocation);
    many[0] = new_memory(100);
    EQUAL(cudaPointerGetAttributes(&attributes, (char *)many[0] + 50), cudaSuccess);
    EQUAL(attributes.type, cudaMemoryTypeDevice);
    EQUAL(cudaMallocHost(&many[1], 100), cudaSuccess);
    EQUAL(cudaPointerGetAttributes(&attributes, many[1]), cudaSuccess);
    EQUAL(attributes.type, cudaMemoryTypeHost);
    EQUAL(cudaPointerGetAttributes(&attributes, &left), cudaSuccess);
    EQUAL(attributes.type, cudaMemoryTypeUnregistered);
    EQUAL(cudaMemcpy(many[0], many[1], 10, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    EQUAL(cudaFreeHost(many[1]), cudaSuccess);
    EQUAL(cudaFree(many[0]), cudaSuccess);
}

static void *device_of_thread(void *unused) {
    int device = -1;
    (void)unused;
    EQUAL(cudaGetDevice(&device), cudaSuccess);
    return (void *)(intptr_t)device;
}

static void law_threads_start_on_device_0(void) {
    pthread_t thread;
    void *device;
    EQUAL(cudaSetDevice(2), cudaSuccess);
    CHECK(!pthread_create(&thread, NULL, device_of_thread, NULL) && !pthread_join(thread, &device));
    EQUAL((intptr_t)device, 0);
    EQUAL((intptr_t)device_of_thread(NULL), 2);
}

static void law_granularity(void) {
    enum { MIB = 1 << 20 };
    void *a, *b, *none;
    size_t left, total;
    set_number("FAKE_CUDA_MEMORY", 5 * MIB);
    EQUAL(ncclMemAlloc(&a, 1), ncclSuccess);
    EQUAL(ncclMemAlloc(&b, 2 * MIB), ncclSuccess);
    EQUAL((uintptr_t)a % (2 * MIB), 0);
    EQUAL((uintptr_t)b % (2 * MIB), 0);
    EQUAL(cudaMemGetInfo(&left, &total), cudaSuccess);
    EQUAL(total - left, 4 * MIB);
    EQUAL(ncclMemAlloc(&none, 1), ncclUnhandledCudaError);
    EQUAL(cudaMalloc(&none, MIB), cudaSuccess);
    EQUAL(cudaFree(none), cudaSuccess);
    EQUAL(ncclMemFree(a), ncclSuccess);
    EQUAL(ncclMemFree(b), ncclSuccess);
    set_number("FAKE_NCCL_GRANULARITY", 4096);
    EQUAL(ncclMemAlloc(&a, 1), ncclSuccess);
    EQUAL(cudaMemGetInfo(&left, &total), cudaSuccess);
    EQUAL(total - left, 4096);
    EQUAL(ncclMemFree(a), ncclSuccess);
}

static void law_memory_is_limited(void) {
    void *memory;
    setenv("FAKE_CUDA_MEMORY", "1000", 1);
    EQUAL(cudaMalloc(&memory, 1001), cudaErrorMemoryAllocation);
    EQUAL(cudaMalloc(&memory, 1000), cudaSuccess);
}

static void die_host_reads_device_memory(void) { _exit(*(volatile char *)new_memory(8)); }
static void die_copy_out_of_range(void) { cudaMemset((char *)new_memory(8) + 4, 0, 5); }
static void die_use_after_free(void) {
    void *memory = new_memory(8);
    cudaFree(memory);
    cudaMemset(memory, 0, 8);
}
static void die_stream_after_destroy(void) {
    cudaStream_t stream = new_stream();
    cudaStreamDestroy(stream);
    cudaStreamQuery(stream);
}
static void die_forbidden(void) { cudaDeviceReset(); }

static void law_copies(void) {
    int host[64], back[64], *device = new_memory(sizeof host), *pinned;
    cudaStream_t stream = new_stream();
    setenv("FAKE_CUDA_DELAY_US", "20000", 1);
    for (int i = 0; i < 64; i++) host[i] = i;
    EQUAL(cudaMemcpyAsync(device, host, sizeof host, cudaMemcpyHostToDevice, stream), cudaSuccess);
    memset(host, 0, sizeof host); /* staged at the call */
    EQUAL(cudaMemcpyAsync(back, device, sizeof host, cudaMemcpyDefault, stream), cudaSuccess);
    for (int i = 0; i < 64; i++) EQUAL(back[i], i);
    /* an 8 x 8 matrix's 3 left columns, through pinned memory */
    EQUAL(cudaMallocHost((void **)&pinned, 8 * 12), cudaSuccess);
    EQUAL(cudaMemcpy2DAsync(pinned, 12, device, 32, 12, 8, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    EQUAL(cudaMemset2DAsync(device, 32, 0, 4, 8, stream), cudaSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    for (int i = 0; i < 24; i++) EQUAL(pinned[i], i / 3 * 8 + i % 3);
    EQUAL(cudaMemcpy(back, device, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < 64; i++) EQUAL(back[i], i % 8 ? i : 0);
    EQUAL(cudaMemcpy2DAsync(pinned, 2, device, 32, 12, 8, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidPitchValue);
    EQUAL(cudaFreeHost(pinned), cudaSuccess);
    EQUAL(cudaStreamDestroy(stream), cudaSuccess);
}

/* Whatever the delays, events order two streams, and the default stream the blocking ones. */
static void law_order(void) {
    int *device = new_memory(sizeof *device);
    cudaStream_t a = new_stream(), b = new_stream(), blocking;
    cudaEvent_t event, timed[2];
    float ms;
    setenv("FAKE_CUDA_DELAY_US", "3000", 1);
    EQUAL(cudaStreamCreate(&blocking), cudaSuccess);
    EQUAL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    EQUAL(cudaEventQuery(event), cudaSuccess);
    for (int i = 0; i < 2; i++) EQUAL(cudaEventCreate(&timed[i]), cudaSuccess);
    EQUAL(cudaEventRecord(timed[0], a), cudaSuccess);
    for (int i = 1; i <= 20; i++) {
        int *pinned;
        EQUAL(cudaMallocHost((void **)&pinned, sizeof *pinned), cudaSuccess);
        EQUAL(cudaMemsetAsync(device, i, 4, a), cudaSuccess);
        EQUAL(cudaEventRecord(event, a), cudaSuccess);
        EQUAL(cudaStreamWaitEvent(b, event, 0), cudaSuccess);
        EQUAL(cudaMemcpyAsync(pinned, device, 4, cudaMemcpyDeviceToHost, b), cudaSuccess);
        EQUAL(cudaEventRecord(event, b), cudaSuccess);
        EQUAL(cudaStreamWaitEvent(a, event, 0), cudaSuccess);
        EQUAL(cudaEventSynchronize(event), cudaSuccess);
        EQUAL(*pinned, i * 0x01010101);
        EQUAL(cudaMemsetAsync(device, i + 100, 4, blocking), cudaSuccess);
        EQUAL(cudaMemcpyAsync(pinned, device, 4, cudaMemcpyDeviceToHost, NULL), cudaSuccess);
        EQUAL(cudaMemsetAsync(device, 0, 4, blocking), cudaSuccess);
        EQUAL(cudaStreamSynchronize(NULL), cudaSuccess);
        EQUAL(*pinned, (i + 100) * 0x01010101);
        EQUAL(cudaStreamSynchronize(blocking), cudaSuccess);
        EQUAL(cudaFreeHost(pinned), cudaSuccess);
    }
    EQUAL(cudaEventRecord(timed[1], a), cudaSuccess);
    EQUAL(cudaEventQuery(timed[1]), cudaErrorNotReady);
    EQUAL(cudaDeviceSynchronize(), cudaSuccess);
    EQUAL(cudaEventElapsedTime(&ms, timed[0], timed[1]), cudaSuccess);
    CHECK(ms > 1);
    EQUAL(cudaEventElapsedTime(&ms, timed[0], event), cudaErrorInvalidResourceHandle);
    for (int i = 0; i < 2; i++) EQUAL(cudaEventDestroy(timed[i]), cudaSuccess);
    EQUAL(cudaEventDestroy(event), cudaSuccess);
    EQUAL(cudaStreamDestroy(a), cudaSuccess);
    EQUAL(cudaStreamDestroy(b), cudaSuccess);
    EQUAL(cudaStreamDestroy(blocking), cudaSuccess);
}

static void law_capture(void) {
    int *device = new_memory(8);
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t fork_event, join_event;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    EQUAL(cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming), cudaSuccess);
    EQUAL(cudaEventCreateWithFlags(&join_event, cudaEventDisableTiming), cudaSuccess);
    put_int(device, 0);
    put_int(device + 1, 0);
    for (int joins = 0; joins < 2; joins++) {
        EQUAL(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal), cudaSuccess);
        EQUAL(cudaEventRecord(fork_event, a), cudaSuccess);
        EQUAL(cudaStreamWaitEvent(b, fork_event, 0), cudaSuccess);
        EQUAL(cudaMemsetAsync(device, 1, 4, a), cudaSuccess);
        EQUAL(cudaMemsetAsync(device + 1, 2, 4, b), cudaSuccess);
        EQUAL(cudaEventRecord(join_event, b), cudaSuccess);
        if (joins) EQUAL(cudaStreamWaitEvent(a, join_event, 0), cudaSuccess);
        EQUAL(cudaStreamEndCapture(a, &graph), joins ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
    }
    EQUAL(cudaEventQuery(join_event), cudaErrorCapturedEvent);
    EQUAL(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EQUAL(cudaGraphDestroy(graph), cudaSuccess);
    EQUAL(get_int(device), 0);
    for (int i = 0; i < 3; i++) {
        EQUAL(cudaMemsetAsync(device, 0, 8, b), cudaSuccess);
        EQUAL(cudaGraphLaunch(exec, b), cudaSuccess);
        EQUAL(cudaStreamSynchronize(b), cudaSuccess);
        EQUAL(get_int(device), 0x01010101);
        EQUAL(get_int(device + 1), 0x02020202);
    }
    EQUAL(cudaGraphExecDestroy(exec), cudaSuccess);
    EQUAL(cudaEventDestroy(fork_event), cudaSuccess);
    EQUAL(cudaEventDestroy(join_event), cudaSuccess);
}

static void *query_elsewhere(void *event) { return (void *)(intptr_t)cudaEventQuery(event); }

static void law_unsafe_calls_end_captures(void) {
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t outside;
    cudaGraph_t graph;
    void *memory;
    EQUAL(cudaEventCreateWithFlags(&outside, cudaEventDisableTiming), cudaSuccess);
    EQUAL(cudaEventRecord(outside, b), cudaSuccess);
    EQUAL(cudaStreamSynchronize(b), cudaSuccess);
    for (int call = 0; call < 6; call++) {
        cudaError_t wanted = call == 4 ? cudaErrorStreamCaptureIsolation : cudaErrorStreamCaptureUnsupported, got;
        EQUAL(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal), cudaSuccess);
        switch (call) {
        case 0:
            got = cudaMalloc(&memory, 8);
            break;
        case 1:
            got = cudaEventQuery(outside);
            break;
        case 2:
            got = cudaStreamQuery(b);
            break;
        case 3:
            got = cudaStreamSynchronize(a);
            break;
        case 4:
            got = cudaStreamWaitEvent(a, outside, 0);
            break;
        default:
            got = cudaDeviceSynchronize();
            break;
        }
        EQUAL(got, wanted);
        EQUAL(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    }
    enum cudaStreamCaptureStatus status;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    pthread_t thread;
    void *code;
    EQUAL(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK(!pthread_create(&thread, NULL, query_elsewhere, outside) && !pthread_join(thread, &code));
    EQUAL((intptr_t)code, cudaSuccess);
    EQUAL(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    EQUAL(mode, cudaStreamCaptureModeGlobal);
    EQUAL(cudaMalloc(&memory, 8), cudaSuccess);
    EQUAL(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    EQUAL(cudaStreamIsCapturing(a, &status), cudaSuccess);
    EQUAL(status, cudaStreamCaptureStatusActive);
    EQUAL(cudaStreamEndCapture(a, &graph), cudaSuccess);
    EQUAL(cudaGraphDestroy(graph), cudaSuccess);
    EQUAL(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal), cudaSuccess);
    CHECK(!pthread_create(&thread, NULL, query_elsewhere, outside) && !pthread_join(thread, &code));
    EQUAL((intptr_t)code, cudaErrorStreamCaptureUnsupported);
    EQUAL(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    EQUAL(cudaEventDestroy(outside), cudaSuccess);
}

static void law_kernels(void) {
    static const char ptx[] =
        "// made by hand\n.version 7.0\n.target sm_70\n.visible .entry mesh_move_4(\n.param .b8 a[8])\n";
    struct {
        unsigned long long dst, src, count;
        char rest[1024];
    } arguments = {0, 0, 5, {0}};
    cudaLibrary_t library;
    cudaKernel_t kernel;
    void *list[] = {&arguments};
    dim3 grid = {2, 1, 1}, block = {3, 1, 1}, too_large = {2000, 1, 1};
    int *src = new_memory(20), *dst = new_memory(20);
    for (int i = 0; i < 5; i++) put_int(src + i, i + 40);
    EQUAL(cudaLibraryLoadData(&library, "\177ELF", NULL, NULL, 0, NULL, NULL, 0), cudaErrorInvalidKernelImage);
    EQUAL(cudaLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0), cudaSuccess);
    EQUAL(cudaLibraryGetKernel(&kernel, library, "mesh_move_1"), cudaErrorSymbolNotFound);
    EQUAL(cudaLibraryGetKernel(&kernel, library, "mesh_move_4"), cudaSuccess);
    arguments.dst = (uintptr_t)dst;
    arguments.src = (uintptr_t)src;
    EQUAL(cudaLaunchKernel(kernel, grid, too_large, list, 0, NULL), cudaErrorInvalidConfiguration);
    EQUAL(cudaLaunchKernel(kernel, grid, block, list, 0, NULL), cudaSuccess);
    for (int i = 0; i < 5; i++) EQUAL(get_int(dst + i), i + 40);
    EQUAL(cudaLibraryUnload(library), cudaSuccess);
}

/* ---- Laws of NCCL: results -------------------------------------------------------------------------------------- */

/* Small integers in any type: exact in all of them. */
static void store(void *memory, size_t i, ncclDataType_t type, int value) {
    float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        ((unsigned char *)memory)[i] = (unsigned char)value;
        break;
    case ncclInt32:
    case ncclUint32:
        ((int32_t *)memory)[i] = value;
        break;
    case ncclInt64:
    case ncclUint64:
        ((int64_t *)memory)[i] = value;
        break;
    case ncclFloat32:
        ((float *)memory)[i] = number;
        break;
    case ncclFloat64:
        ((double *)memory)[i] = number;
        break;
    case ncclBfloat16:
        ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
        break;
    default:
        ((uint16_t *)memory)[i] = (uint16_t)(value ? ((bits - 0x38000000) >> 13) : 0);
        break;
    }
}

static size_t size_of(ncclDataType_t type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[type];
}

static int value_of(int from, size_t i, ncclRedOp_t op) {
    uint32_t mixed = ((uint32_t)i * 2654435761u + (uint32_t)from * 40503u) >> 7;
    return op == ncclProd ? 1 + (int)(mixed % 2) : op == ncclAvg ? 8 * (int)(mixed % 3) : (int)(mixed % 6);
}

static int reduced(size_t i, ncclRedOp_t op) {
    int total = value_of(0, i, op);
    for (int from = 1; from < nranks; from++) {
        int value = value_of(from, i, op);
        if (op == ncclSum || op == ncclAvg)
            total += value;
        else if (op == ncclProd)
            total *= value;
        else if (op == ncclMax ? value > total : value < total)
            total = value;
    }
    return op == ncclAvg ? total / nranks : total;
}

enum collective { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, COLLECTIVES };

static ncclResult_t call(int which, const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                         int root, ncclComm_t comm, cudaStream_t stream) {
    switch (which) {
    case ALL_REDUCE:
        return ncclAllReduce(send, recv, count, type, op, comm, stream);
    case REDUCE:
        return ncclReduce(send, recv, count, type, op, root, comm, stream);
    case BROADCAST:
        return ncclBroadcast(send, recv, count, type, root, comm, stream);
    case ALL_GATHER:
        return ncclAllGather(send, recv, count, type, comm, stream);
    case REDUCE_SCATTER:
        return ncclReduceScatter(send, recv, count, type, op, comm, stream);
    case ALL_TO_ALL:
        return ncclAlltoAll(send, recv, count, type, comm, stream);
    case GATHER:
        return ncclGather(send, recv, count, type, root, comm, stream);
    default:
        return ncclScatter(send, recv, count, type, root, comm, stream);
    }
}

/* What rank `rank` must have at `i` of its result. */
static int expected(int which, size_t i, size_t count, ncclRedOp_t op, int root) {
    size_t n_block = i / count, within = i % count, mine = (size_t)rank * count;
    switch (which) {
    case ALL_REDUCE:
    case REDUCE:
        return reduced(i, op);
    case BROADCAST:
        return value_of(root, i, op);
    case ALL_GATHER:
    case GATHER:
        return value_of((int)n_block, within, op);
    case REDUCE_SCATTER:
        return reduced(mine + i, op);
    case ALL_TO_ALL:
        return value_of((int)n_block, mine + within, op);
    default:
        return value_of(root, mine + i, op);
    }
}

static void check_collective(int which, size_t count, ncclDataType_t type, ncclRedOp_t op, int in_place,
                             ncclComm_t comm, cudaStream_t stream) {
    size_t n = (size_t)nranks, width = size_of(type), room = n * count;
    int root = (int)(count % n), wide = which == ALL_GATHER || which == GATHER || which == ALL_TO_ALL;
    char *send = new_memory(room * width), *recv = new_memory(room * width);
    char *host = calloc(room, width), *want = calloc(room, width);
    CHECK(host && want);
    for (size_t i = 0; i < room; i++) store(host, i, type, value_of(rank, i, op));
    const char *source = send;
    char *target = recv;
    if (in_place) {
        size_t mine = (size_t)rank * count * width;
        source = which == ALL_GATHER || which == GATHER ? send + mine : send;
        target = which == REDUCE_SCATTER || which == SCATTER ? send + mine : send;
        EQUAL(cudaMemcpy((char *)(uintptr_t)source, host, source == send ? room * width : count * width,
                         cudaMemcpyHostToDevice),
              cudaSuccess);
    } else {
        EQUAL(cudaMemcpy(send, host, room * width, cudaMemcpyHostToDevice), cudaSuccess);
    }
    EQUAL(call(which, source, target, count, type, op, root, comm, stream), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    if ((which != REDUCE && which != GATHER) || rank == root) {
        size_t got = wide ? room : count;
        for (size_t i = 0; i < got; i++) store(want, i, type, expected(which, i, count, op, root));
        EQUAL(cudaMemcpy(host, target, got * width, cudaMemcpyDeviceToHost), cudaSuccess);
        for (size_t i = 0; i < got * width; i++)
            if (host[i] != want[i])
                fprintf(stderr, "collective %d, count %zu, type %d, op %d, byte %zu: %d, wanted %d\n", which, count,
                        (int)type, (int)op, i, host[i], want[i]),
                    _exit(1);
    }
    EQUAL(cudaFree(send), cudaSuccess);
    EQUAL(cudaFree(recv), cudaSuccess);
    free(host);
    free(want);
}

static void law_collectives(void) {
    static const size_t counts[] = {1, 13, 40001};
    ncclComm_t comm = must_open(1);
    cudaStream_t stream = new_stream();
    for (int which = 0; which < COLLECTIVES; which++)
        for (int type = 0; type <= ncclBfloat16; type++)
            for (int op = 0; op < ncclNumOps; op++) {
                int reduces = which == ALL_REDUCE || which == REDUCE || which == REDUCE_SCATTER;
                if ((!reduces && op) || (op == ncclAvg && nranks == 3 && type >= ncclFloat16)) continue;
                for (int size = 0; size < (type == ncclInt32 || type == ncclBfloat16 ? 3 : 2); size++)
                    for (int in_place = 0; in_place < (which == ALL_TO_ALL ? 1 : 2); in_place++)
                        check_collective(which, counts[size], (ncclDataType_t)type, (ncclRedOp_t)op, in_place, comm,
                                         stream);
            }
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
    EQUAL(cudaStreamDestroy(stream), cudaSuccess);
}

/* Counts that differ within a chunk's 16 bytes, of a block or of a fourth: all complete, and what not all gave is wrong. */
static void check_other_counts(int which, size_t most, ncclComm_t comm, cudaStream_t stream) {
    size_t n = (size_t)nranks, fewest = most - (which == ALL_GATHER || which == REDUCE_SCATTER ? 3 : 15);
    size_t count = rank % 2 ? most : fewest, parts = which == ALL_GATHER ? n : 1;
    int wide = which == REDUCE_SCATTER, wrong = 0;
    int *send = new_memory(n * count * 4), *recv = new_memory(n * count * 4), *host = malloc(n * count * 4);
    CHECK(host);
    for (size_t i = 0; i < n * count; i++) host[i] = rank + 1;
    EQUAL(cudaMemcpy(send, host, (wide ? n : 1) * count * 4, cudaMemcpyHostToDevice), cudaSuccess);
    EQUAL(call(which, send, recv, count, ncclInt32, ncclSum, 1, comm, stream), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    EQUAL(cudaMemcpy(host, recv, n * count * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < parts * count && (which != REDUCE || rank == 1); i++) {
        int want = which == BROADCAST ? 2 : which == ALL_GATHER ? (int)(i / count) + 1 : nranks * (nranks + 1) / 2;
        if (i % count < fewest)
            EQUAL(host[i], want);
        else
            wrong += host[i] != want;
    }
    if (which != BROADCAST && (which != REDUCE || rank == 1)) EQUAL(wrong > 0, rank % 2);
    EQUAL(cudaFree(send), cudaSuccess);
    EQUAL(cudaFree(recv), cudaSuccess);
    free(host);
}

static void law_other_counts_hang_without_rounding(void) {
    setenv("FAKE_NCCL_ROUND_UP", "0", 1);
    ncclComm_t comm = must_open(1);
    int *x = new_memory(16);
    EQUAL(ncclAllReduce(x, x, 1 + (size_t)rank, ncclInt32, ncclSum, comm, NULL), ncclSuccess);
    check_hangs_until_abort(comm, NULL);
}

static void law_other_counts_within_a_chunk(void) {
    ncclComm_t comm = must_open(1);
    cudaStream_t stream = new_stream();
    for (int which = 0; which <= REDUCE_SCATTER; which++) {
        check_other_counts(which, 1008, comm, stream);
        check_other_counts(which, 32768, comm, stream);
    }
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
    EQUAL(cudaStreamDestroy(stream), cudaSuccess);
}

/* An average of floats is the sum of inputs times the rounded 1/n: for three ranks, not the exact one. */
static void law_average_multiplies(void) {
    ncclComm_t comm = must_open(1);
    float value = 5.0f, third = 1.0f / 3.0f, part = value * third, *device = new_memory(4);
    EQUAL(cudaMemcpy(device, &value, 4, cudaMemcpyHostToDevice), cudaSuccess);
    EQUAL(ncclAllReduce(device, device, 1, ncclFloat32, ncclAvg, comm, NULL), ncclSuccess);
    EQUAL(cudaMemcpy(&value, device, 4, cudaMemcpyDeviceToHost), cudaSuccess);
    CHECK(value == (part + part) + part);
    EQUAL(ncclAllReduce(device, device, 1, ncclNumTypes, ncclSum, comm, NULL), ncclInvalidArgument);
    EQUAL(ncclAllReduce(device, device, 1, ncclFloat32, (ncclRedOp_t)5, comm, NULL), ncclInvalidArgument);
    EQUAL(ncclAlltoAll(device, device, 1, ncclInt8, comm, NULL), ncclInvalidUsage);
    EQUAL(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, comm, NULL), ncclSuccess);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

/* Everyone sends to everyone, itself included, messages of all sizes, in one group. */
static void law_messages(void) {
    ncclComm_t comm = must_open(1);
    cudaStream_t stream = new_stream();
    enum { MOST = 70000 };
    char *send = new_memory((size_t)nranks * MOST), *recv = new_memory((size_t)nranks * MOST), *host = malloc(MOST);
    for (int round = 0; round < 3; round++) {
        size_t base = round == 0 ? 1 : round == 1 ? 1000 : 60000;
        EQUAL(cudaMemsetAsync(send, rank + 1, (size_t)nranks * MOST, stream), cudaSuccess);
        EQUAL(ncclGroupStart(), ncclSuccess);
        for (int peer = 0; peer < nranks; peer++) { /* two messages each way; receives named in another order */
            size_t out = base + (size_t)(rank * 8 + peer), in = base + (size_t)(peer * 8 + rank);
            EQUAL(ncclSend(send + peer * MOST, out, ncclInt8, peer, comm, stream), ncclSuccess);
            EQUAL(ncclSend(send, 3, ncclInt8, peer, comm, stream), ncclSuccess);
            EQUAL(ncclRecv(recv + peer * MOST, in, ncclInt8, peer, comm, stream), ncclSuccess);
            EQUAL(ncclRecv(recv + peer * MOST + in, 3, ncclInt8, peer, comm, stream), ncclSuccess);
        }
        EQUAL(ncclGroupEnd(), ncclSuccess);
        EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
        for (int peer = 0; peer < nranks; peer++) {
            size_t in = base + (size_t)(peer * 8 + rank) + 3;
            EQUAL(cudaMemcpy(host, recv + peer * MOST, in, cudaMemcpyDeviceToHost), cudaSuccess);
            for (size_t i = 0; i < in; i++) EQUAL(host[i], peer + 1);
        }
    }
    free(host);
    EQUAL(ncclSend(send, 1, ncclInt8, rank, comm, stream), ncclInvalidUsage);
    EQUAL(ncclAllGather(send + rank, send, 1, ncclInt8, comm, stream), ncclSuccess); /* a refused call breaks nothing */
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

/* A group over two comms and two streams; an error inside surfaces at its end, and nothing starts. */
static void law_groups(void) {
    ncclComm_t world = must_open(1), copy;
    cudaStream_t a = new_stream(), b = new_stream();
    int *x = new_memory(8), *y = new_memory(8);
    EQUAL(ncclCommSplit(world, 0, rank, &copy, NULL), ncclSuccess);
    put_int(x, rank), put_int(y, 1);
    EQUAL(ncclGroupStart(), ncclSuccess);
    EQUAL(ncclGroupStart(), ncclSuccess);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, world, a), ncclSuccess);
    EQUAL(ncclAllReduce(y, y, 1, ncclInt32, ncclSum, copy, b), ncclSuccess);
    EQUAL(ncclGroupEnd(), ncclSuccess);
    EQUAL(ncclAllReduce(x, x + 1, 1, ncclInt32, ncclMax, world, b), ncclSuccess);
    EQUAL(get_int(y), 1);
    EQUAL(ncclGroupEnd(), ncclSuccess);
    EQUAL(cudaStreamSynchronize(b), cudaSuccess);
    EQUAL(get_int(x), nranks * (nranks - 1) / 2);
    EQUAL(get_int(x + 1), nranks * (nranks - 1) / 2);
    EQUAL(get_int(y), nranks);
    EQUAL(ncclGroupStart(), ncclSuccess);
    EQUAL(ncclAllReduce(y, y, 1, ncclInt32, ncclSum, world, a), ncclSuccess);
    EQUAL(ncclBroadcast(y, y, 1, ncclInt32, nranks, world, a), ncclInvalidArgument);
    EQUAL(ncclGroupEnd(), ncclInvalidArgument);
    EQUAL(ncclGroupEnd(), ncclInvalidUsage);
    EQUAL(cudaStreamSynchronize(a), cudaSuccess);
    EQUAL(get_int(y), nranks);
    EQUAL(ncclCommDestroy(copy), ncclSuccess);
    EQUAL(ncclCommDestroy(world), ncclSuccess);
}

static void law_captured_operations_replay(void) {
    ncclComm_t comm = must_open(1);
    cudaStream_t stream = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int *x = new_memory(8);
    EQUAL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclSuccess);
    EQUAL(ncclGroupStart(), ncclSuccess);
    EQUAL(ncclSend(x, 1, ncclInt32, (rank + 1) % nranks, comm, stream), ncclSuccess);
    EQUAL(ncclRecv(x + 1, 1, ncclInt32, (rank + nranks - 1) % nranks, comm, stream), ncclSuccess);
    EQUAL(ncclGroupEnd(), ncclSuccess);
    EQUAL(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EQUAL(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EQUAL(cudaGraphDestroy(graph), cudaSuccess);
    put_int(x, 1);
    for (int i = 0, wanted = nranks; i < 4; i++, wanted *= nranks) {
        EQUAL(cudaGraphLaunch(exec, stream), cudaSuccess);
        EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
        EQUAL(get_int(x), wanted);
        EQUAL(get_int(x + 1), wanted);
    }
    EQUAL(cudaGraphExecDestroy(exec), cudaSuccess);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

/* ---- Laws of NCCL: comms ---------------------------------------------------------------------------------------- */

static void law_split(void) {
    ncclComm_t world = must_open(1), child;
    int count, place, *x = new_memory(4);
    /* even and odd ranks, in descending order */
    EQUAL(ncclCommSplit(world, rank % 2, -rank, &child, NULL), ncclSuccess);
    EQUAL(ncclCommCount(child, &count), ncclSuccess);
    EQUAL(ncclCommUserRank(child, &place), ncclSuccess);
    EQUAL(count, (nranks + 1 - rank % 2) / 2);
    EQUAL(place, count - 1 - rank / 2);
    put_int(x, rank);
    EQUAL(ncclBroadcast(x, x, 1, ncclInt32, 0, child, NULL), ncclSuccess);
    EQUAL(get_int(x), rank % 2 + 2 * (count - 1));
    EQUAL(ncclCommDestroy(child), ncclSuccess);
    /* equal keys: by rank; rank 0 is left out */
    EQUAL(ncclCommSplit(world, rank ? 5 : NCCL_SPLIT_NOCOLOR, 7, &child, NULL), ncclSuccess);
    CHECK(rank ? child != NULL : child == NULL);
    if (child) {
        EQUAL(ncclCommUserRank(child, &place), ncclSuccess);
        EQUAL(place, rank - 1);
        EQUAL(ncclCommFinalize(child), ncclSuccess);
        EQUAL(ncclCommDestroy(child), ncclSuccess);
    }
    for (int i = 0; i < 20; i++) {
        EQUAL(ncclCommSplit(world, rank / 2, rank, &child, NULL), ncclSuccess);
        EQUAL(ncclCommDestroy(child), ncclSuccess);
    }
    EQUAL(ncclCommDestroy(world), ncclSuccess);
}

/* A non-blocking comm launches later than it returns; until then, it takes no other call. */
static void law_non_blocking(void) {
    setenv("FAKE_NCCL_LAUNCH_US", "100000", 1);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = must_open(0), child = (ncclComm_t)&config;
    cudaStream_t stream = new_stream();
    ncclResult_t state;
    int *x = new_memory(4);
    put_int(x, 1);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclInProgress);
    EQUAL(cudaStreamQuery(stream), cudaSuccess); /* not there yet */
    EQUAL(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    EQUAL(state, ncclInProgress);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument);
    EQUAL(settle(comm), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    EQUAL(get_int(x), nranks);
    config.blocking = 0;
    EQUAL(ncclCommSplit(comm, 0, 0, &child, &config), ncclInProgress);
    EQUAL(settle(comm), ncclSuccess);
    CHECK(child != NULL);
    EQUAL(settle(child), ncclSuccess);
    EQUAL(ncclGroupStart(), ncclSuccess);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclSuccess);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, child, stream), ncclSuccess);
    EQUAL(ncclGroupEnd(), ncclInProgress);
    EQUAL(settle(comm), ncclSuccess);
    EQUAL(settle(child), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    EQUAL(get_int(x), nranks * nranks * nranks);
    EQUAL(ncclCommFinalize(child), ncclInProgress);
    EQUAL(settle(child), ncclSuccess);
    EQUAL(ncclCommDestroy(child), ncclSuccess);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

static void law_duplicate_device(void) {
    ncclComm_t comm;
    EQUAL(cudaSetDevice(0), cudaSuccess);
    EQUAL(open_comm(&comm, 1), ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(NULL), "uplicate GPU"));
}

static void law_host_ids_allow_one_device(void) {
    ncclComm_t comm;
    set_number("NCCL_HOSTID", rank);
    EQUAL(cudaSetDevice(0), cudaSuccess);
    EQUAL(open_comm(&comm, 1), ncclSuccess);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

static void law_registration(void) {
    ncclComm_t comm = must_open(1);
    void *memory, *handle;
    char host[8];
    EQUAL(ncclMemAlloc(&memory, 100), ncclSuccess);
    EQUAL(ncclCommRegister(comm, memory, 100, &handle), ncclSuccess);
    EQUAL(ncclCommDeregister(comm, handle), ncclSuccess);
    EQUAL(ncclCommRegister(comm, host, 8, &handle), ncclInvalidArgument);
    EQUAL(ncclMemFree(memory), ncclSuccess);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
    ncclConfig_t wrong = {0};
    EQUAL(ncclCommInitRankConfig(&comm, 1, shared->id, 0, &wrong), ncclInvalidArgument);
}

static void die_old_version(void) {
    ncclComm_t comm = must_open(1);
    setenv("FAKE_NCCL_VERSION", "22703", 1);
    ncclAlltoAll(NULL, NULL, 0, ncclInt8, comm, NULL);
}

static void die_comm_after_abort(void) {
    ncclComm_t comm = must_open(1);
    int *x = new_memory(4);
    EQUAL(ncclCommAbort(comm), ncclSuccess);
    ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, NULL);
}

static void die_overlap(void) {
    ncclComm_t comm = must_open(1);
    int *x = new_memory(40);
    ncclAllReduce(x, x + 1, 4, ncclInt32, ncclSum, comm, NULL);
}

static void die_host_memory(void) {
    ncclComm_t comm = must_open(1);
    int x = 0;
    ncclAllReduce(&x, &x, 1, ncclInt32, ncclSum, comm, NULL);
}

/* ---- Laws of NCCL: what hangs, and what ends it ----------------------------------------------------------------- */

enum hang { ONE_RANK_ONLY, OTHER_COUNT, OTHER_TYPE, OTHER_OP, OTHER_ROOT, SEND_BEFORE_RECV, OTHER_SIZE, LONE_SEND };

static void hang_case(enum hang which) {
    kernels_only();
    ncclComm_t comm = must_open(1);
    cudaStream_t stream = new_stream();
    int *x = new_memory(64), *y = new_memory(64), other = 1 - rank;
    size_t count = rank ? 4 : 9; /* halves of 8 and 18 bytes */
    ncclRedOp_t op = rank ? ncclSum : ncclMax;
    switch (which) {
    case ONE_RANK_ONLY:
        if (rank == 0) EQUAL(ncclAllReduce(x, x, 4, ncclInt32, ncclSum, comm, stream), ncclSuccess);
        break;
    case OTHER_COUNT:
        EQUAL(ncclAllReduce(x, x, count, ncclInt32, ncclSum, comm, stream), ncclSuccess);
        break;
    case OTHER_TYPE:
        EQUAL(ncclAllReduce(x, x, 4, rank ? ncclInt32 : ncclUint32, ncclSum, comm, stream), ncclSuccess);
        break;
    case OTHER_OP:
        EQUAL(ncclAllReduce(x, x, 4, ncclInt32, op, comm, stream), ncclSuccess);
        break;
    case OTHER_ROOT:
        EQUAL(ncclBroadcast(x, x, 4, ncclInt32, rank, comm, stream), ncclSuccess);
        break;
    case SEND_BEFORE_RECV:
        EQUAL(ncclSend(x, 4, ncclInt32, other, comm, stream), ncclSuccess);
        EQUAL(ncclRecv(y, 4, ncclInt32, other, comm, stream), ncclSuccess);
        break;
    case OTHER_SIZE:
        if (rank == 0)
            EQUAL(ncclSend(x, 4, ncclInt32, other, comm, stream), ncclSuccess);
        else
            EQUAL(ncclRecv(x, 5, ncclInt32, other, comm, stream), ncclSuccess);
        break;
    case LONE_SEND:
        if (rank == 0) EQUAL(ncclSend(x, 4, ncclInt32, other, comm, stream), ncclSuccess);
        break;
    }
    if (rank == 0 || (which != ONE_RANK_ONLY && which != LONE_SEND))
        check_hangs_until_abort(comm, stream);
    else
        EQUAL(ncclCommAbort(comm), ncclSuccess);
    EQUAL(cudaFree(x), cudaSuccess);
}

static void law_hang_one_rank_only(void) { hang_case(ONE_RANK_ONLY); }
static void law_hang_other_count(void) { hang_case(OTHER_COUNT); }
static void law_hang_other_type(void) { hang_case(OTHER_TYPE); }
static void law_hang_other_op(void) { hang_case(OTHER_OP); }
static void law_hang_other_root(void) { hang_case(OTHER_ROOT); }
static void law_hang_send_before_recv(void) { hang_case(SEND_BEFORE_RECV); }
static void law_hang_other_size(void) { hang_case(OTHER_SIZE); }
static void law_hang_lone_send(void) { hang_case(LONE_SEND); }

/* Two comms on two streams: the same order on all ranks, if it was asked for, never hangs, crossed orders do. */
static void crossed(int crosses) {
    setenv("FAKE_NCCL_RUNTIME_CONNECT", crosses ? "0" : "1", 1);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    ncclComm_t world = must_open(1), copy;
    cudaStream_t a = new_stream(), b = new_stream();
    int *x = new_memory(4), *y = new_memory(4);
    EQUAL(ncclCommSplit(world, 0, 0, &copy, NULL), ncclSuccess);
    for (int i = 0; i < (crosses ? 1 : 200); i++) {
        if (crosses && rank == 1) EQUAL(ncclAllReduce(y, y, 1, ncclInt32, ncclSum, copy, b), ncclSuccess);
        EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, world, a), ncclSuccess);
        if (!crosses || rank == 0) EQUAL(ncclAllReduce(y, y, 1, ncclInt32, ncclSum, copy, b), ncclSuccess);
    }
    if (crosses) {
        check_hangs(a);
        check_hangs(b);
        meet(1);
        EQUAL(ncclCommAbort(copy), ncclSuccess);
        meet(2); /* on rank 0 that waits for what is before it: the world's, on both ranks */
        EQUAL(ncclCommAbort(world), ncclSuccess);
    }
    EQUAL(cudaStreamSynchronize(a), cudaSuccess);
    EQUAL(cudaStreamSynchronize(b), cudaSuccess);
    if (crosses) return;
    EQUAL(ncclCommDestroy(copy), ncclSuccess);
    EQUAL(ncclCommDestroy(world), ncclSuccess);
}

static void law_crossed_comms_hang(void) { crossed(1); }
static void law_equal_orders_do_not_hang(void) { crossed(0); }

/* A comm's abort leaves the operations of another comm behind it on the same stream. */
static void law_abort_is_of_one_comm(void) {
    kernels_only();
    ncclComm_t world = must_open(1), copy;
    cudaStream_t stream = new_stream();
    int *x = new_memory(4);
    EQUAL(ncclCommSplit(world, 0, 0, &copy, NULL), ncclSuccess);
    put_int(x, 1);
    if (rank == 0) EQUAL(ncclBroadcast(x, x, 1, ncclInt32, 0, copy, stream), ncclSuccess);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, world, stream), ncclSuccess);
    sleep_ms(HANG_MS);
    EQUAL(cudaStreamQuery(stream), cudaErrorNotReady);
    meet(1);
    EQUAL(ncclCommAbort(copy), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    EQUAL(get_int(x), nranks);
    EQUAL(ncclCommDestroy(world), ncclSuccess);
}

static void law_revoke_and_shrink(void) {
    kernels_only();
    ncclComm_t world = must_open(1), fewer;
    cudaStream_t stream = new_stream();
    int *x = new_memory(4), excluded = nranks - 1, count;
    put_int(x, 1);
    if (rank == excluded) {
        sleep_ms(HANG_MS);
        raise(SIGKILL); /* the others go on without it */
    }
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, world, stream), ncclSuccess);
    check_hangs(stream);
    EQUAL(ncclCommRevoke(world, NCCL_REVOKE_DEFAULT), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, world, stream), ncclInvalidUsage);
    EQUAL(ncclCommShrink(world, &excluded, 1, &fewer, NULL, NCCL_SHRINK_DEFAULT), ncclSuccess);
    EQUAL(ncclCommCount(fewer, &count), ncclSuccess);
    EQUAL(count, nranks - 1);
    put_int(x, 1);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, fewer, stream), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    EQUAL(get_int(x), nranks - 1);
    EQUAL(ncclCommDestroy(fewer), ncclSuccess);
    EQUAL(ncclCommDestroy(world), ncclSuccess);
}

static void peer_death(int tells) {
    kernels_only();
    setenv("FAKE_NCCL_PEER_DEATH", tells ? "error" : "hang", 1);
    ncclComm_t comm = must_open(0);
    cudaStream_t stream = new_stream();
    ncclResult_t state;
    int *x = new_memory(4);
    meet(1);
    if (rank == nranks - 1) raise(SIGKILL);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclInProgress);
    check_hangs(stream);
    sleep_ms(HANG_MS);
    EQUAL(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    EQUAL(state, tells ? ncclRemoteError : ncclSuccess);
    check_hangs_until_abort(comm, stream);
}

static void law_peer_death_hangs(void) { peer_death(0); }
static void law_peer_death_is_told(void) { peer_death(1); }

static void law_init_needs_all_ranks_and_the_root(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state;
    ncclComm_t comm;
    ncclUniqueId id = common_id();
    config.blocking = 0;
    if (rank == 0) { /* rank 1 does not come */
        EQUAL(ncclCommInitRankConfig(&comm, nranks, id, rank, &config), ncclInProgress);
        sleep_ms(HANG_MS);
        EQUAL(ncclCommGetAsyncError(comm, &state), ncclSuccess);
        EQUAL(state, ncclInProgress);
        EQUAL(ncclCommAbort(comm), ncclSuccess);
        atomic_store(&shared->arrived[1], 1);
        raise(SIGKILL);
    }
    while (!atomic_load(&shared->arrived[1])) sleep_ms(1);
    sleep_ms(HANG_MS); /* the process that made the id is gone now */
    EQUAL(ncclCommInitRankConfig(&comm, nranks, id, rank, &config), ncclInProgress);
    EQUAL(settle(comm), ncclRemoteError);
    EQUAL(ncclCommAbort(comm), ncclSuccess);
}

static void *abort_later(void *comm) {
    sleep_ms(HANG_MS);
    return (void *)(intptr_t)ncclCommAbort(comm);
}

static void law_injected_enqueue_hang(void) {
    ncclComm_t comm = must_open(1);
    int *x = new_memory(4);
    pthread_t thread;
    setenv("FAKE_NCCL_ENQUEUE_HANG", "0:2", 1);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, NULL), ncclSuccess);
    EQUAL(cudaStreamSynchronize(NULL), cudaSuccess);
    CHECK(!pthread_create(&thread, NULL, abort_later, comm));
    double start = now_ms();
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, NULL), rank ? ncclSuccess : ncclInternalError);
    if (rank == 0) CHECK(now_ms() - start > HANG_MS / 2);
    CHECK(!pthread_join(thread, NULL));
    EQUAL(fake_unsafe_aborts(), rank == 0);
    EQUAL(cudaStreamSynchronize(NULL), cudaSuccess);
}

static void law_injected_faults(void) {
    kernels_only();
    ncclComm_t comm, child = NULL;
    EQUAL(cudaSetDevice(rank), cudaSuccess);
    cudaStream_t stream = new_stream();
    ncclResult_t state;
    int *x = new_memory(4);
    setenv("FAKE_NCCL_FAIL", "1:ncclReduce:2", 1);
    setenv("FAKE_NCCL_ASYNC_ERROR", "0:2", 1);
    setenv("FAKE_NCCL_SPLIT_HANG", "1", 1);
    comm = must_open(0);
    EQUAL(ncclReduce(x, x, 0, ncclInt32, ncclSum, 0, comm, stream), ncclSuccess);
    if (rank == 1) EQUAL(ncclReduce(x, x, 0, ncclInt32, ncclSum, 0, comm, stream), ncclSystemError);
    EQUAL(ncclCommSplit(comm, 0, 0, &child, NULL), ncclInProgress);
    child = comm;
    sleep_ms(HANG_MS);
    EQUAL(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    EQUAL(state, ncclInProgress);
    CHECK(child == comm);
    EQUAL(ncclCommAbort(comm), ncclSuccess);
    CHECK(child == NULL); /* written at the end, also of a split that was cut */
    meet(1);
    if (rank == 0) atomic_store(&shared->id_ready, 0);
    meet(2);
    comm = must_open(0);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclInProgress);
    check_hangs(stream);
    EQUAL(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    EQUAL(state, rank ? ncclSuccess : ncclInternalError);
    check_hangs_until_abort(comm, stream);
}

/* ---- Laws of NCCL: what ends of comms wait for ------------------------------------------------------------------ */

typedef struct later { /* a call in a thread of its own */
    ncclResult_t (*call)(ncclComm_t comm);
    ncclComm_t comm;
    pthread_t thread;
    atomic_int done;
    ncclResult_t code;
} later;

static void *later_run(void *argument) {
    later *l = argument;
    EQUAL(cudaSetDevice(rank), cudaSuccess);
    l->code = l->call(l->comm);
    atomic_store(&l->done, 1);
    return NULL;
}

static void later_start(later *l, ncclResult_t (*function)(ncclComm_t comm), ncclComm_t comm) {
    memset(l, 0, sizeof *l);
    l->call = function;
    l->comm = comm;
    CHECK(!pthread_create(&l->thread, NULL, later_run, l));
}

static ncclResult_t later_join(later *l) {
    CHECK(!pthread_join(l->thread, NULL));
    return l->code;
}

static ncclResult_t revoke_default(ncclComm_t comm) { return ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT); }

/* Two comms, and one operation on each, one behind the other on two streams or one, none of which ever ends. */
static cudaStream_t stuck_pair(ncclComm_t *first, ncclComm_t *second, int one_stream) {
    kernels_only();
    *first = must_open(1);
    cudaStream_t stream = new_stream(), other = one_stream ? stream : new_stream();
    int *x = new_memory(4);
    EQUAL(ncclCommSplit(*first, 0, 0, second, NULL), ncclSuccess);
    if (rank == 0) {
        EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, *first, stream), ncclSuccess);
        EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, *second, other), ncclSuccess);
    }
    return other;
}

static void abort_waits(int one_stream) {
    ncclComm_t first, second;
    cudaStream_t stream = stuck_pair(&first, &second, one_stream);
    later l;
    later_start(&l, ncclCommAbort, second);
    sleep_ms(HANG_MS);
    EQUAL(atomic_load(&l.done), rank != 0);
    EQUAL(ncclCommAbort(first), ncclSuccess);
    EQUAL(later_join(&l), ncclSuccess);
    EQUAL(cudaStreamQuery(stream), cudaSuccess);
    EQUAL(fake_unsafe_aborts(), 0);
}

static void law_abort_waits_for_its_stream(void) { abort_waits(1); }
static void law_abort_waits_for_its_turn(void) { abort_waits(0); }

static void law_aborts_of_one_group(void) {
    ncclComm_t first, second;
    cudaStream_t stream = stuck_pair(&first, &second, 1);
    double start = now_ms();
    EQUAL(ncclGroupStart(), ncclSuccess);
    EQUAL(ncclCommAbort(second), ncclSuccess);
    EQUAL(ncclCommAbort(first), ncclSuccess);
    EQUAL(ncclGroupEnd(), ncclSuccess);
    CHECK(now_ms() - start < 2000);
    EQUAL(cudaStreamQuery(stream), cudaSuccess);
}

static void law_old_groups_abort_at_once(void) {
    setenv("FAKE_NCCL_VERSION", "22105", 1);
    ncclComm_t first, second;
    pthread_t thread;
    stuck_pair(&first, &second, 1);
    double start = now_ms();
    EQUAL(ncclGroupStart(), ncclSuccess);
    CHECK(!pthread_create(&thread, NULL, abort_later, first));
    EQUAL(ncclCommAbort(second), ncclSuccess);
    CHECK((now_ms() - start > HANG_MS / 2) == (rank == 0));
    CHECK(!pthread_join(thread, NULL));
    EQUAL(ncclGroupEnd(), ncclSuccess);
}

static void law_abort_waits_for_graphs(void) {
    ncclComm_t comm = must_open(1);
    cudaStream_t stream = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec[2];
    int *x = new_memory(4);
    later l;
    EQUAL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclSuccess);
    EQUAL(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    for (int i = 0; i < 2; i++) EQUAL(cudaGraphInstantiate(&exec[i], graph, 0), cudaSuccess);
    EQUAL(cudaGraphDestroy(graph), cudaSuccess);
    later_start(&l, ncclCommAbort, comm);
    for (int i = 0; i < 2; i++) {
        sleep_ms(HANG_MS / 2);
        EQUAL(atomic_load(&l.done), 0);
        EQUAL(cudaGraphExecDestroy(exec[i]), cudaSuccess);
    }
    EQUAL(later_join(&l), ncclSuccess);
}

/* A revoke waits as an abort does, and then lets kernels hang again: a graph's, for others are refused. */
static void law_revoke_waits_and_clears(void) {
    ncclComm_t first, second;
    later l;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStream_t stream = stuck_pair(&first, &second, 1), free_stream = new_stream();
    int *x = new_memory(4);
    EQUAL(cudaStreamBeginCapture(free_stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, second, free_stream), ncclSuccess);
    EQUAL(cudaStreamEndCapture(free_stream, &graph), cudaSuccess);
    EQUAL(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EQUAL(cudaGraphDestroy(graph), cudaSuccess);
    later_start(&l, revoke_default, second);
    sleep_ms(HANG_MS);
    EQUAL(atomic_load(&l.done), rank != 0);
    EQUAL(ncclCommAbort(first), ncclSuccess);
    EQUAL(later_join(&l), ncclSuccess);
    EQUAL(cudaStreamQuery(stream), cudaSuccess);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, second, stream), ncclInvalidUsage);
    if (rank == 0) {
        EQUAL(cudaGraphLaunch(exec, stream), cudaSuccess);
        check_hangs(stream);
    }
    later_start(&l, ncclCommAbort, second);
    EQUAL(cudaGraphExecDestroy(exec), cudaSuccess);
    EQUAL(later_join(&l), ncclSuccess);
    EQUAL(cudaStreamQuery(stream), cudaSuccess);
}

static int *reduced_int;
static ncclResult_t reduce_int(ncclComm_t comm) {
    return ncclAllReduce(reduced_int, reduced_int, 1, ncclInt32, ncclSum, comm, NULL);
}

static void revoke_of_hanging_call(int misses, int blocking) {
    ncclComm_t comm = must_open(blocking);
    later l;
    setenv("FAKE_NCCL_ENQUEUE_HANG", "0:1", 1);
    set_number("FAKE_NCCL_REVOKE_MISSES", misses);
    reduced_int = new_memory(4);
    later_start(&l, reduce_int, comm);
    sleep_ms(HANG_MS);
    EQUAL(atomic_load(&l.done), rank || !blocking);
    EQUAL(revoke_default(comm), blocking ? ncclSuccess : ncclInProgress);
    EQUAL(settle(comm), ncclSuccess);
    sleep_ms(HANG_MS);
    EQUAL(atomic_load(&l.done), rank || !misses || !blocking);
    EQUAL(fake_unsafe_aborts(), 0);
    EQUAL(ncclCommAbort(comm), ncclSuccess);
    EQUAL(later_join(&l), !blocking ? ncclInProgress : rank ? ncclSuccess : ncclInternalError);
    EQUAL(fake_unsafe_aborts(), misses && blocking && rank == 0);
}

static void law_revoke_ends_calls(void) { revoke_of_hanging_call(0, 1); }
static void law_revoke_misses_calls(void) { revoke_of_hanging_call(1, 1); }
static void law_revoke_misses_jobs(void) { revoke_of_hanging_call(1, 0); }

/* The last rank is killed, the one before it exits, and rank 1 aborts: only the call of rank 0 lets the others go. */
static void law_destroy_is_collective(void) {
    ncclComm_t comm = must_open(1);
    later l;
    meet(1);
    if (rank == nranks - 1) raise(SIGKILL);
    if (rank == nranks - 2) return;
    later_start(&l, rank == 1 ? ncclCommAbort : ncclCommDestroy, comm);
    if (rank == 0) EQUAL(later_join(&l), ncclSuccess);
    sleep_ms(HANG_MS);
    if (rank == 1 || rank == 2) EQUAL(later_join(&l), ncclSuccess);
}

static void law_destroy_waits_for_the_others(void) {
    ncclComm_t comm = must_open(1);
    later l;
    if (rank == 0) {
        later_start(&l, ncclCommDestroy, comm);
        sleep_ms(HANG_MS);
        EQUAL(atomic_load(&l.done), 0);
    }
    meet(1);
    if (rank == 0) EQUAL(later_join(&l), ncclSuccess);
    if (rank == 1) EQUAL(ncclCommAbort(comm), ncclSuccess);
    if (rank == 2) EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

/* In a group, the order of destroys may differ between ranks. */
static void law_destroys_of_one_group(void) {
    ncclComm_t comms[2];
    comms[0] = must_open(1);
    EQUAL(ncclCommSplit(comms[0], 0, 0, &comms[1], NULL), ncclSuccess);
    EQUAL(ncclGroupStart(), ncclSuccess);
    EQUAL(ncclCommDestroy(comms[rank]), ncclSuccess);
    EQUAL(ncclCommDestroy(comms[1 - rank]), ncclSuccess);
    EQUAL(ncclGroupEnd(), ncclSuccess);
}

static void law_destroy_in_progress_leaves_a_group_open(void) {
    setenv("FAKE_NCCL_LAUNCH_US", "200000", 1);
    ncclComm_t comm = must_open(0);
    cudaStream_t stream = new_stream();
    int *x = new_memory(4);
    put_int(x, 1);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclInProgress);
    EQUAL(ncclCommDestroy(comm), ncclInvalidArgument);
    EQUAL(settle(comm), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    EQUAL(get_int(x), nranks);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclSuccess); /* never run */
    EQUAL(ncclGroupStart(), ncclSuccess);
    EQUAL(ncclGroupEnd(), ncclSuccess);
    sleep_ms(HANG_MS);
    EQUAL(get_int(x), nranks);
    EQUAL(ncclGroupEnd(), ncclInProgress); /* what was left open */
    EQUAL(settle(comm), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    EQUAL(get_int(x), nranks * nranks);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

static void law_not_ready_is_a_last_error(void) {
    kernels_only();
    ncclComm_t comm = must_open(1);
    cudaStream_t stream = new_stream();
    cudaEvent_t event;
    int *x = new_memory(4);
    EQUAL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    if (rank == 0) {
        EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclSuccess);
        EQUAL(cudaEventRecord(event, stream), cudaSuccess);
        EQUAL(cudaGetLastError(), cudaSuccess);
        EQUAL(cudaEventQuery(event), cudaErrorNotReady);
        EQUAL(cudaPeekAtLastError(), cudaErrorNotReady);
        EQUAL(cudaGetLastError(), cudaErrorNotReady);
        EQUAL(cudaGetLastError(), cudaSuccess);
    }
    EQUAL(ncclCommAbort(comm), ncclSuccess);
}

static void law_device_tags(void) {
    kernels_only();
    ncclComm_t comm = must_open(1);
    cudaStream_t stream = new_stream(), far;
    cudaEvent_t event, far_event;
    struct cudaPointerAttributes attributes;
    size_t left, total;
    int *x = new_memory(4), *y, device, elsewhere = rank + 4;
    EQUAL(cudaEventCreate(&event), cudaSuccess);
    EQUAL(cudaSetDevice(elsewhere), cudaSuccess);
    far = new_stream();
    EQUAL(cudaEventCreate(&far_event), cudaSuccess);
    EQUAL(cudaMemGetInfo(&left, &total), cudaSuccess);
    EQUAL(left, total);
    y = new_memory(4);
    EQUAL(cudaPointerGetAttributes(&attributes, y), cudaSuccess);
    EQUAL(attributes.device, elsewhere);
    EQUAL(cudaEventRecord(event, stream), cudaSuccess); /* whatever device is current */
    EQUAL(cudaEventRecord(event, far), cudaErrorInvalidResourceHandle);
    EQUAL(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    EQUAL(cudaEventRecord(event, NULL), cudaErrorInvalidResourceHandle);
    EQUAL(cudaEventRecord(far_event, NULL), cudaSuccess);
    EQUAL(cudaEventRecord(far_event, far), cudaSuccess);
    EQUAL(cudaStreamWaitEvent(stream, far_event, 0), cudaSuccess);
    EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, far), ncclUnhandledCudaError);
    EQUAL(ncclAllReduce(y, y, 1, ncclInt32, ncclSum, comm, stream), ncclInvalidArgument);
    /* default streams do not wait for each other; NCCL means that of the comm's device */
    if (rank == 0) EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, NULL), ncclSuccess);
    EQUAL(cudaGetDevice(&device), cudaSuccess);
    EQUAL(device, elsewhere);
    EQUAL(cudaStreamSynchronize(NULL), cudaSuccess);
    EQUAL(cudaDeviceSynchronize(), cudaSuccess);
    EQUAL(cudaFree(y), cudaSuccess);
    EQUAL(cudaSetDevice(rank), cudaSuccess);
    EQUAL(cudaEventRecord(event, NULL), cudaSuccess);
    if (rank == 0) check_hangs(NULL);
    EQUAL(ncclCommAbort(comm), ncclSuccess);
    EQUAL(cudaStreamSynchronize(NULL), cudaSuccess);
    EQUAL(cudaEventDestroy(event), cudaSuccess);
    EQUAL(cudaEventDestroy(far_event), cudaSuccess);
}

/* ---- Laws of NCCL: what calls wait for on the host -------------------------------------------------------------- */

static ncclResult_t reduce_many(ncclComm_t comm) {
    return ncclAllReduce(reduced_int, reduced_int, 16384, ncclInt32, ncclSum, comm, NULL);
}
static ncclResult_t send_to_1(ncclComm_t comm) { return ncclSend(reduced_int, 1, ncclInt32, 1, comm, NULL); }
static ncclResult_t receive_from_0(ncclComm_t comm) { return ncclRecv(reduced_int, 1, ncclInt32, 0, comm, NULL); }

/* The call is in its thread, and stays there. */
static void check_waits(later *l, unsigned long long connects) {
    while (fake_connects() < connects) sleep_ms(1);
    sleep_ms(HANG_MS);
    EQUAL(atomic_load(&l->done), 0);
}

static int in_trace(const char *path, const char *wanted) {
    char name[64], line[256];
    int found = 0;
    snprintf(name, sizeof name, "%s.%d", path, rank);
    FILE *file = fopen(name, "r");
    CHECK(file);
    while (fgets(line, sizeof line, file)) found += !strncmp(line, wanted, strlen(wanted));
    fclose(file);
    return found;
}

/* Small ones take the tree, large ones the ring: the first of each waits for all ranks, the others for nobody. */
static void connects(ncclResult_t (*end)(ncclComm_t comm)) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/fake_nccl_trace.%d", (int)getpid());
    setenv("FAKE_NCCL_TRACE", path, 1);
    ncclComm_t comm = must_open(1);
    later l;
    reduced_int = new_memory(65536);
    if (rank == 0) {
        later_start(&l, reduce_int, comm);
        check_waits(&l, 1);
    }
    meet(1);
    EQUAL(rank ? reduce_int(comm) : later_join(&l), ncclSuccess);
    EQUAL(cudaStreamSynchronize(NULL), cudaSuccess);
    EQUAL(fake_connects(), 1);
    if (rank == 0) {
        EQUAL(reduce_int(comm), ncclSuccess);
        later_start(&l, reduce_many, comm);
        check_waits(&l, 2);
        EQUAL(in_trace(path, "connect tree"), 1);
        EQUAL(in_trace(path, "connect ring"), 1);
        EQUAL(end(comm), ncclSuccess);
        EQUAL(later_join(&l), ncclInternalError);
        EQUAL(fake_unsafe_aborts(), end == ncclCommAbort);
    }
    strcat(path, rank ? ".1" : ".0");
    unlink(path);
}

static void law_first_use_connects(void) { connects(ncclCommAbort); }
static void law_revoke_ends_connecting(void) { connects(revoke_default); }

static void connected_at_init(int old) {
    set_number(old ? "FAKE_NCCL_VERSION" : "FAKE_NCCL_RUNTIME_CONNECT", old ? 22105 : 0);
    ncclComm_t comm = must_open(1);
    reduced_int = new_memory(65536);
    if (rank == 0) {
        EQUAL(reduce_int(comm), ncclSuccess);
        EQUAL(reduce_many(comm), ncclSuccess);
    }
    EQUAL(fake_connects(), 0);
    EQUAL(ncclCommAbort(comm), ncclSuccess);
}

static void law_connected_at_init(void) { connected_at_init(0); }
static void law_old_versions_connect_at_init(void) { connected_at_init(1); }

/* A pair connects one way at a time; gathers, scatters and all_to_alls are messages. */
static void law_first_message_connects(void) {
    ncclComm_t comm = must_open(1);
    later l;
    reduced_int = new_memory(16);
    if (rank == 0) {
        later_start(&l, send_to_1, comm);
        check_waits(&l, 1);
    }
    meet(1);
    EQUAL(rank ? receive_from_0(comm) : later_join(&l), ncclSuccess);
    EQUAL(ncclScatter(reduced_int, reduced_int + 2, 1, ncclInt32, 0, comm, NULL), ncclSuccess);
    EQUAL(fake_connects(), 1);
    EQUAL(ncclGather(reduced_int, reduced_int + 2, 1, ncclInt32, 0, comm, NULL), ncclSuccess);
    EQUAL(fake_connects(), 2);
    EQUAL(ncclAlltoAll(reduced_int, reduced_int + 2, 1, ncclInt32, comm, NULL), ncclSuccess);
    EQUAL(fake_connects(), 2);
    EQUAL(cudaStreamSynchronize(NULL), cudaSuccess);
    if (rank == 0) {
        EQUAL(send_to_1(comm), ncclSuccess); /* nobody receives, but the call returns */
        check_hangs(NULL);
    }
    EQUAL(ncclCommAbort(comm), ncclSuccess);
}

/* Rank 1 waits for rank 0, which waits for all of its group: for rank 2 too. */
static void law_connecting_ends_together(void) {
    ncclComm_t comm = must_open(1);
    later l;
    reduced_int = new_memory(16);
    if (rank == 0) {
        EQUAL(ncclGroupStart(), ncclSuccess);
        EQUAL(ncclSend(reduced_int, 1, ncclInt32, 1, comm, NULL), ncclSuccess);
        EQUAL(ncclSend(reduced_int, 1, ncclInt32, 2, comm, NULL), ncclSuccess);
        EQUAL(ncclGroupEnd(), ncclSuccess);
    }
    if (rank == 1) {
        later_start(&l, receive_from_0, comm);
        check_waits(&l, 1);
    }
    if (rank == 1) atomic_fetch_add(&shared->arrived[1], 1); /* for rank 0, which is inside */
    if (rank) meet(1);
    if (rank == 2) EQUAL(receive_from_0(comm), ncclSuccess);
    if (rank == 1) EQUAL(later_join(&l), ncclSuccess);
    EQUAL(cudaStreamSynchronize(NULL), cudaSuccess);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

static void law_non_blocking_comms_connect_in_their_thread(void) {
    ncclComm_t comm = must_open(0);
    ncclResult_t state;
    reduced_int = new_memory(4);
    put_int(reduced_int, 1);
    if (rank == 0) {
        EQUAL(reduce_int(comm), ncclInProgress);
        sleep_ms(HANG_MS);
        EQUAL(ncclCommGetAsyncError(comm, &state), ncclSuccess);
        EQUAL(state, ncclInProgress);
    }
    meet(1);
    if (rank == 1) EQUAL(reduce_int(comm), ncclInProgress);
    EQUAL(settle(comm), ncclSuccess);
    EQUAL(get_int(reduced_int), nranks);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

static void law_connecting_tells_of_death(void) {
    setenv("FAKE_NCCL_PEER_DEATH", "error", 1);
    ncclComm_t comm = must_open(1);
    reduced_int = new_memory(4);
    meet(1);
    if (rank == 1) raise(SIGKILL);
    EQUAL(reduce_int(comm), ncclRemoteError);
    EQUAL(ncclCommAbort(comm), ncclSuccess);
}

/* ---- Laws of NCCL: registration --------------------------------------------------------------------------------- */

static ncclWindow_t window;
static size_t window_bytes = 100;
static ncclResult_t register_window(ncclComm_t comm) {
    return ncclCommWindowRegister(comm, reduced_int, window_bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
}

static int *nccl_memory(size_t bytes) {
    void *memory;
    EQUAL(ncclMemAlloc(&memory, bytes), ncclSuccess);
    return memory;
}

static void law_windows_are_collective(void) {
    ncclComm_t comm = must_open(1);
    later l;
    reduced_int = nccl_memory(100);
    if (rank == 0) {
        later_start(&l, register_window, comm);
        sleep_ms(HANG_MS);
        EQUAL(atomic_load(&l.done), 0);
    }
    meet(1);
    EQUAL(rank ? register_window(comm) : later_join(&l), ncclSuccess);
    CHECK(window != NULL);
    EQUAL(ncclCommDeregister(comm, window), ncclInvalidArgument);
    meet(2);
    if (rank == 0) EQUAL(ncclCommWindowDeregister(comm, window), ncclSuccess); /* alone */
    meet(3);
    if (rank == 1) EQUAL(ncclCommWindowDeregister(comm, window), ncclSuccess);
    EQUAL(ncclCommWindowDeregister(comm, NULL), ncclSuccess);
    EQUAL(register_window(comm), ncclSuccess); /* goes with the comm */
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
    EQUAL(ncclMemFree(reduced_int), ncclSuccess);
}

/* Other sizes never meet, and who is refused does not come. Aborts and revokes end it. */
static void windows_hang(int refused, ncclResult_t (*end)(ncclComm_t comm)) {
    ncclComm_t comm = must_open(1);
    later l;
    reduced_int = nccl_memory(8192);
    if (rank == 1 && refused) {
        EQUAL(ncclCommWindowRegister(comm, reduced_int + 2, 8, &window, 0), ncclInvalidArgument);
        char *plain = new_memory(8192);
        plain += -(uintptr_t)plain % NCCL_WIN_REQUIRED_ALIGNMENT;
        EQUAL(ncclCommWindowRegister(comm, plain, 8, &window, 0), ncclInvalidArgument);
        EQUAL(ncclCommWindowRegister(comm, reduced_int, 0, &window, 0), ncclInvalidArgument);
    } else {
        window_bytes += (size_t)rank;
        later_start(&l, register_window, comm);
        sleep_ms(HANG_MS);
        EQUAL(atomic_load(&l.done), 0);
    }
    EQUAL(end(comm), ncclSuccess);
    if (rank == 0 || !refused) EQUAL(later_join(&l), ncclInternalError);
    CHECK(window == NULL);
}

static void law_windows_of_other_sizes(void) { windows_hang(0, ncclCommAbort); }
static void law_refused_windows(void) { windows_hang(1, revoke_default); }

static void law_windows_non_blocking(void) {
    ncclComm_t comm = must_open(0);
    reduced_int = nccl_memory(100);
    EQUAL(register_window(comm), ncclInProgress);
    EQUAL(settle(comm), ncclSuccess);
    CHECK(window != NULL);
    EQUAL(ncclCommWindowDeregister(comm, window), ncclSuccess);
    EQUAL(ncclMemFree(reduced_int), ncclSuccess);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

static void law_no_symmetric_memory(void) {
    setenv("FAKE_NCCL_SYMMETRIC", "0", 1);
    ncclComm_t comm = must_open(1);
    reduced_int = new_memory(100);
    window = (ncclWindow_t)reduced_int;
    if (rank == 0) EQUAL(register_window(comm), ncclSuccess); /* waits for nobody */
    CHECK(rank == 1 || window == NULL);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

static void die_old_window(void) {
    ncclComm_t comm = must_open(1);
    setenv("FAKE_NCCL_VERSION", "22603", 1);
    register_window(comm);
}

static void die_free_registered(void) {
    ncclComm_t comm = must_open(1);
    void *handle;
    reduced_int = nccl_memory(100);
    EQUAL(ncclCommRegister(comm, reduced_int, 100, &handle), ncclSuccess);
    ncclMemFree(reduced_int);
}

static void die_free_window(void) {
    ncclComm_t comm = must_open(1);
    reduced_int = nccl_memory(100);
    EQUAL(register_window(comm), ncclSuccess);
    ncclMemFree(reduced_int);
}

/* Memory may go as soon as its comm's abort was called, which a graph holds up here. */
static void law_aborts_let_memory_go(void) {
    ncclComm_t comm = must_open(1);
    cudaStream_t stream = new_stream();
    cudaGraph_t graph;
    void *handle;
    int count;
    later l;
    reduced_int = nccl_memory(100);
    EQUAL(ncclCommRegister(comm, reduced_int, 100, &handle), ncclSuccess);
    EQUAL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EQUAL(ncclAllReduce(reduced_int, reduced_int, 1, ncclInt32, ncclSum, comm, stream), ncclSuccess);
    EQUAL(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    later_start(&l, ncclCommAbort, comm);
    while (ncclCommCount(comm, &count) == ncclSuccess) sleep_ms(1);
    EQUAL(ncclMemFree(reduced_int), ncclSuccess);
    EQUAL(cudaGraphDestroy(graph), cudaSuccess);
    EQUAL(later_join(&l), ncclSuccess);
}

/* With registered memory on all ranks: a call waits for the others' calls, and all is well. */
static void law_registered_memory_meets(void) {
    kernels_only();
    ncclComm_t comm = must_open(1);
    void *handle;
    later l;
    reduced_int = nccl_memory(100);
    put_int(reduced_int, 1);
    EQUAL(ncclCommRegister(comm, reduced_int, 100, &handle), ncclSuccess);
    if (rank == 0) {
        later_start(&l, reduce_int, comm);
        sleep_ms(HANG_MS);
        EQUAL(atomic_load(&l.done), 0);
    }
    meet(1);
    EQUAL(rank ? reduce_int(comm) : later_join(&l), ncclSuccess);
    for (int i = 1; i < 10; i++) EQUAL(reduce_int(comm), ncclSuccess);
    EQUAL(get_int(reduced_int), 1024);
    EQUAL(ncclCommDeregister(comm, handle), ncclSuccess);
    if (rank == 0) EQUAL(reduce_int(comm), ncclSuccess); /* no longer */
    EQUAL(ncclCommAbort(comm), ncclSuccess);
}

/* Registered on rank 0 only: there the call never returns, nor does an abort. */
static void die_registered_on_one_rank(void) {
    kernels_only();
    set_number("FAKE_NCCL_NVLS_HANG_MS", HANG_MS);
    ncclComm_t comm = must_open(1);
    void *handle;
    later l;
    reduced_int = nccl_memory(100);
    if (rank == 0) EQUAL(ncclCommRegister(comm, reduced_int, 100, &handle), ncclSuccess);
    if (rank == 1) {
        EQUAL(reduce_int(comm), ncclSuccess);
        abort(); /* as rank 0 will */
    }
    later_start(&l, reduce_int, comm);
    sleep_ms(HANG_MS / 3);
    ncclCommAbort(comm);
}

/* Without NVLS, and in windows, it does not matter. */
static void registered_on_one_rank(int windows) {
    if (!windows) setenv("FAKE_NCCL_NVLS", "0", 1);
    ncclComm_t comm = must_open(1);
    void *handle;
    reduced_int = nccl_memory(100);
    if (windows)
        EQUAL(register_window(comm), ncclSuccess);
    else if (rank == 0)
        EQUAL(ncclCommRegister(comm, reduced_int, 100, &handle), ncclSuccess);
    if (rank == 1) reduced_int = new_memory(4);
    put_int(reduced_int, 1);
    EQUAL(reduce_int(comm), ncclSuccess);
    EQUAL(get_int(reduced_int), nranks);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

static void law_registered_without_nvls(void) { registered_on_one_rank(0); }
static void law_windows_do_not_meet(void) { registered_on_one_rank(1); }

/* ---- Laws of NCCL: the order of kernels ------------------------------------------------------------------------- */

/* Two kernels on two streams are issued while a third holds the device of rank 0. Which of them came last, of 32 pairs:
 * bit 0: the first, bit 1: the second. */
static int last_ones(int one_comm, int by_event) {
    ncclComm_t world = must_open(1), alone[2];
    cudaStream_t held = new_stream(), streams[2] = {new_stream(), new_stream()};
    cudaEvent_t event;
    int *x = new_memory(12), seen = 0;
    EQUAL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    for (int i = 0; i < 2; i++) EQUAL(ncclCommSplit(world, rank, 0, &alone[i], NULL), ncclSuccess);
    if (one_comm) alone[1] = alone[0];
    for (int i = 0; i < 2; i++) put_int(x + i, i + 1);
    for (int round = 0; round < 32; round++) {
        if (rank == 0) EQUAL(ncclAllReduce(x + 2, x + 2, 1, ncclInt32, ncclMax, world, held), ncclSuccess);
        for (int i = 0; i < 2 && rank == 0; i++) {
            if (i && by_event) {
                EQUAL(cudaEventRecord(event, streams[0]), cudaSuccess);
                EQUAL(cudaStreamWaitEvent(streams[1], event, 0), cudaSuccess);
            }
            EQUAL(ncclBroadcast(x + i, x + 2, 1, ncclInt32, 0, alone[i], streams[i]), ncclSuccess);
        }
        meet(1 + round);
        if (rank) EQUAL(ncclAllReduce(x + 2, x + 2, 1, ncclInt32, ncclMax, world, held), ncclSuccess);
        EQUAL(cudaDeviceSynchronize(), cudaSuccess);
        if (rank == 0) seen |= get_int(x + 2);
    }
    return seen;
}

static void order_of_comms(int one_comm, int by_event, int wanted) {
    setenv("FAKE_NCCL_RUNTIME_CONNECT", "0", 1);
    int seen = last_ones(one_comm, by_event);
    if (rank == 0) EQUAL(seen, wanted);
}

static void law_comms_are_unordered(void) { order_of_comms(0, 0, 3); }
static void law_one_comm_is_ordered(void) { order_of_comms(1, 0, 2); }
static void law_events_order_comms(void) { order_of_comms(0, 1, 2); }
static void law_launch_order_orders_comms(void) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    order_of_comms(0, 0, 2);
}
static void law_old_versions_have_no_launch_order(void) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    setenv("FAKE_NCCL_VERSION", "22505", 1);
    order_of_comms(0, 0, 3);
}
static void law_order_for_other_tests(void) {
    setenv("FAKE_NCCL_UNORDERED", "0", 1);
    order_of_comms(0, 0, 2);
}

/* ---- Speed, so that a slow stand-in is noticed ------------------------------------------------------------------ */

static void law_speed(void) {
    ncclComm_t comm = must_open(1);
    cudaStream_t stream = new_stream();
    int *x = new_memory(4), *large = new_memory((size_t)8 << 20);
    double start = now_ms();
    for (int i = 0; i < 1000; i++) EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    double queued = now_ms() - start;
    start = now_ms();
    for (int i = 0; i < 300; i++) {
        EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclSuccess);
        EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    }
    double waited = now_ms() - start;
    start = now_ms();
    EQUAL(ncclAllReduce(large, large, (size_t)2 << 20, ncclInt32, ncclSum, comm, stream), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    if (rank == 0)
        printf("  %d ranks: all_reduce of 4 bytes %.1f us queued, %.1f us waited for; of 8 MiB %.1f ms\n", nranks,
               queued, waited / 0.3, now_ms() - start);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

/* ---- The list --------------------------------------------------------------------------------------------------- */

static const struct law {
    const char *name;
    void (*run)(void);
    int nranks;
    int signal; /* that ends it, or 0 */
    int killed; /* a rank that kills itself, or -1 */
} laws[] = {
    {"devices", law_devices, 1, 0, -1},
    {"memory", law_memory, 1, 0, -1},
    {"memory is limited", law_memory_is_limited, 1, 0, -1},
    {"threads start on device 0", law_threads_start_on_device_0, 1, 0, -1},
    {"ncclMemAlloc has a granularity", law_granularity, 1, 0, -1},
    {"the host cannot read device memory", die_host_reads_device_memory, 1, SIGSEGV, -1},
    {"a copy out of range aborts", die_copy_out_of_range, 1, SIGABRT, -1},
    {"a use after free aborts", die_use_after_free, 1, SIGABRT, -1},
    {"a use of a destroyed stream aborts", die_stream_after_destroy, 1, SIGABRT, -1},
    {"a forbidden function aborts", die_forbidden, 1, SIGABRT, -1},
    {"copies", law_copies, 1, 0, -1},
    {"order of streams", law_order, 1, 0, -1},
    {"captures", law_capture, 1, 0, -1},
    {"unsafe calls end captures", law_unsafe_calls_end_captures, 1, 0, -1},
    {"kernels", law_kernels, 1, 0, -1},
    {"collectives of 1", law_collectives, 1, 0, -1},
    {"collectives of 2", law_collectives, 2, 0, -1},
    {"collectives of 3", law_collectives, 3, 0, -1},
    {"collectives of 8", law_collectives, 8, 0, -1},
    {"other counts within a chunk complete", law_other_counts_within_a_chunk, 4, 0, -1},
    {"averages multiply by the rounded 1/n", law_average_multiplies, 3, 0, -1},
    {"messages of 2", law_messages, 2, 0, -1},
    {"messages of 8", law_messages, 8, 0, -1},
    {"groups of 2", law_groups, 2, 0, -1},
    {"groups of 3", law_groups, 3, 0, -1},
    {"captured operations replay", law_captured_operations_replay, 3, 0, -1},
    {"split of 2", law_split, 2, 0, -1},
    {"split of 8", law_split, 8, 0, -1},
    {"non-blocking", law_non_blocking, 3, 0, -1},
    {"duplicate devices", law_duplicate_device, 3, 0, -1},
    {"host ids allow one device", law_host_ids_allow_one_device, 3, 0, -1},
    {"registration and configs", law_registration, 2, 0, -1},
    {"a function younger than the version aborts", die_old_version, 1, SIGABRT, -1},
    {"a use of an aborted comm aborts", die_comm_after_abort, 1, SIGABRT, -1},
    {"overlapping buffers abort", die_overlap, 1, SIGABRT, -1},
    {"host buffers abort", die_host_memory, 1, SIGABRT, -1},
    {"hang: one rank only", law_hang_one_rank_only, 2, 0, -1},
    {"hang: other count", law_hang_other_count, 2, 0, -1},
    {"hang: other count without rounding", law_other_counts_hang_without_rounding, 2, 0, -1},
    {"hang: other type", law_hang_other_type, 2, 0, -1},
    {"hang: other op", law_hang_other_op, 2, 0, -1},
    {"hang: other root", law_hang_other_root, 2, 0, -1},
    {"hang: send before recv", law_hang_send_before_recv, 2, 0, -1},
    {"hang: other size", law_hang_other_size, 2, 0, -1},
    {"hang: lone send", law_hang_lone_send, 2, 0, -1},
    {"crossed comms hang", law_crossed_comms_hang, 2, 0, -1},
    {"equal orders do not hang", law_equal_orders_do_not_hang, 3, 0, -1},
    {"an abort is of one comm", law_abort_is_of_one_comm, 2, 0, -1},
    {"revoke and shrink", law_revoke_and_shrink, 4, 0, 3},
    {"peer death hangs", law_peer_death_hangs, 3, 0, 2},
    {"peer death is told", law_peer_death_is_told, 3, 0, 2},
    {"init needs all ranks and the root", law_init_needs_all_ranks_and_the_root, 2, 0, 0},
    {"injected enqueue hang", law_injected_enqueue_hang, 2, 0, -1},
    {"injected faults", law_injected_faults, 2, 0, -1},
    {"an abort waits for its stream", law_abort_waits_for_its_stream, 2, 0, -1},
    {"an abort waits for its turn", law_abort_waits_for_its_turn, 2, 0, -1},
    {"aborts of one group", law_aborts_of_one_group, 2, 0, -1},
    {"before 2.22 groups abort at once", law_old_groups_abort_at_once, 2, 0, -1},
    {"an abort waits for graphs", law_abort_waits_for_graphs, 2, 0, -1},
    {"a revoke waits and clears", law_revoke_waits_and_clears, 2, 0, -1},
    {"a revoke ends hanging calls", law_revoke_ends_calls, 2, 0, -1},
    {"a revoke may miss calls", law_revoke_misses_calls, 2, 0, -1},
    {"a revoke may miss jobs", law_revoke_misses_jobs, 2, 0, -1},
    {"destroy is collective", law_destroy_is_collective, 5, 0, 4},
    {"destroy waits for the others", law_destroy_waits_for_the_others, 3, 0, -1},
    {"destroys of one group", law_destroys_of_one_group, 2, 0, -1},
    {"destroy in progress leaves a group open", law_destroy_in_progress_leaves_a_group_open, 2, 0, -1},
    {"not ready is a last error", law_not_ready_is_a_last_error, 2, 0, -1},
    {"device tags", law_device_tags, 2, 0, -1},
    {"the first use connects", law_first_use_connects, 2, 0, -1},
    {"a revoke ends connecting", law_revoke_ends_connecting, 2, 0, -1},
    {"connected at init", law_connected_at_init, 2, 0, -1},
    {"before 2.22 collectives connect at init", law_old_versions_connect_at_init, 2, 0, -1},
    {"the first message connects", law_first_message_connects, 2, 0, -1},
    {"connecting ends together", law_connecting_ends_together, 3, 0, -1},
    {"non-blocking comms connect in their thread", law_non_blocking_comms_connect_in_their_thread, 2, 0, -1},
    {"connecting tells of death", law_connecting_tells_of_death, 2, 0, 1},
    {"windows are collective", law_windows_are_collective, 2, 0, -1},
    {"windows of other sizes hang", law_windows_of_other_sizes, 2, 0, -1},
    {"a refused window hangs the others", law_refused_windows, 2, 0, -1},
    {"windows of non-blocking comms", law_windows_non_blocking, 2, 0, -1},
    {"no symmetric memory", law_no_symmetric_memory, 2, 0, -1},
    {"a window before 2.27 aborts", die_old_window, 1, SIGABRT, -1},
    {"a free of registered memory aborts", die_free_registered, 1, SIGABRT, -1},
    {"a free of a window aborts", die_free_window, 1, SIGABRT, -1},
    {"aborts let registered memory go", law_aborts_let_memory_go, 1, 0, -1},
    {"registered memory meets", law_registered_memory_meets, 2, 0, -1},
    {"registered on one rank: nothing ends it", die_registered_on_one_rank, 2, SIGABRT, -1},
    {"registered on one rank, without NVLS", law_registered_without_nvls, 2, 0, -1},
    {"windows do not meet", law_windows_do_not_meet, 2, 0, -1},
    {"comms are unordered", law_comms_are_unordered, 2, 0, -1},
    {"one comm is ordered", law_one_comm_is_ordered, 2, 0, -1},
    {"events order comms", law_events_order_comms, 2, 0, -1},
    {"the launch order orders comms", law_launch_order_orders_comms, 2, 0, -1},
    {"before 2.26 there is no launch order", law_old_versions_have_no_launch_order, 2, 0, -1},
    {"order for other tests", law_order_for_other_tests, 2, 0, -1},
    {"speed of 2", law_speed, 2, 0, -1},
    {"speed of 8", law_speed, 8, 0, -1},
};

static int ended_well(const struct law *law, int of_rank, int status) {
    int signal = of_rank == law->killed ? SIGKILL : law->signal;
    if (signal == SIGSEGV && WIFEXITED(status) && WEXITSTATUS(status)) return 1; /* a sanitizer's report */
    return signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal : WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int run_law(const struct law *law) {
    pid_t children[MAX_RANKS];
    int good = 1;
    memset(shared, 0, sizeof *shared);
    fflush(stdout);
    for (int r = 0; r < law->nranks; r++) {
        children[r] = fork();
        if (children[r]) continue;
        rank = r, nranks = law->nranks;
        set_number("RANK", rank);
        alarm(LAW_SECONDS);
        if (law->signal && !freopen("/dev/null", "w", stderr)) _exit(2); /* the complaint is wanted */
        law->run();
        exit(0);
    }
    for (int r = 0; r < law->nranks; r++) {
        int status;
        if (waitpid(children[r], &status, 0) != children[r] || !ended_well(law, r, status)) {
            printf("  rank %d: %s %d\n", r, WIFSIGNALED(status) ? "signal" : "exit",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            good = 0;
        }
    }
    return good;
}

int main(int argc, char **argv) {
    int passed = 0, failed = 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    for (size_t i = 0; i < sizeof laws / sizeof laws[0]; i++) {
        if (argc > 1 && !strstr(laws[i].name, argv[1])) continue;
        double start = now_ms();
        int good = run_law(&laws[i]);
        printf("%s %s (%.0f ms)\n", good ? "pass" : "FAIL", laws[i].name, now_ms() - start);
        passed += good;
        failed += !good;
    }
    printf("fake NCCL: %d passed, %d failed\n", passed, failed);
    return failed != 0;
}
