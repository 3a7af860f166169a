/* laws_cuda.h: the CUDA runtime. Part of selftest.c. */
#ifndef LAWS_CUDA_H
#define LAWS_CUDA_H

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

/* cudaStreamPerThread is another stream in every thread. */
static void *captured_elsewhere(void *unused) {
    enum cudaStreamCaptureStatus status;
    (void)unused;
    EQUAL(cudaStreamIsCapturing(cudaStreamPerThread, &status), cudaSuccess);
    return (void *)(intptr_t)status;
}

static void law_streams_of_threads(void) {
    enum cudaStreamCaptureStatus status;
    cudaGraph_t graph;
    pthread_t thread;
    void *code;
    EQUAL(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EQUAL(cudaStreamIsCapturing(cudaStreamPerThread, &status), cudaSuccess);
    EQUAL(status, cudaStreamCaptureStatusActive);
    CHECK(!pthread_create(&thread, NULL, captured_elsewhere, NULL) && !pthread_join(thread, &code));
    EQUAL((intptr_t)code, cudaStreamCaptureStatusNone);
    EQUAL(cudaStreamEndCapture(cudaStreamPerThread, &graph), cudaSuccess);
    EQUAL(cudaGraphDestroy(graph), cudaSuccess);
}

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
    EQUAL(cudaStreamCreate(&b), cudaSuccess); /* the default stream waits for it: the question is harmless, work is not */
    for (int work = 0; work < 2; work++) {
        EQUAL(cudaStreamBeginCapture(b, cudaStreamCaptureModeRelaxed), cudaSuccess);
        EQUAL(cudaStreamIsCapturing(NULL, &status), cudaErrorStreamCaptureImplicit);
        if (work) EQUAL(cudaEventRecord(outside, NULL), cudaErrorStreamCaptureImplicit);
        EQUAL(cudaStreamEndCapture(b, &graph), work ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
        if (!work) EQUAL(cudaGraphDestroy(graph), cudaSuccess);
    }
    EQUAL(cudaStreamDestroy(b), cudaSuccess);
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

#endif
