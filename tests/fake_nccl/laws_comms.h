/* laws_comms.h: comms, what hangs in them, and what ends it. Part of selftest.c. */
#ifndef LAWS_COMMS_H
#define LAWS_COMMS_H

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
    setenv("FAKE_NCCL_LAUNCH_US", "400000", 1); /* a rank beside may not get a core for as long */
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
    EQUAL(ncclCommSplit(comm, 0, 0, &child, &config), ncclSuccess); /* begun */
    CHECK(child == NULL);
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
    EQUAL(ncclCommSplit(comm, 0, 0, &child, NULL), ncclSuccess);
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

#endif
