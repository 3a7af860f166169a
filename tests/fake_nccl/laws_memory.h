/* laws_memory.h: registered memory, and the order of kernels. Part of selftest.c. */
#ifndef LAWS_MEMORY_H
#define LAWS_MEMORY_H

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

#endif
