/* laws_waits.h: what ends of comms and calls wait for. Part of selftest.c. */
#ifndef LAWS_WAITS_H
#define LAWS_WAITS_H

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

/* An abort in an open group ends the call of another thread at once; the comm is freed at the group's end. */
static void law_abort_in_group_ends_calls(void) {
    ncclComm_t comm = must_open(1);
    later l;
    setenv("FAKE_NCCL_ENQUEUE_HANG", "0:1", 1);
    reduced_int = new_memory(4);
    later_start(&l, reduce_int, comm);
    sleep_ms(HANG_MS);
    EQUAL(atomic_load(&l.done), rank);
    EQUAL(ncclGroupStart(), ncclSuccess);
    EQUAL(ncclCommAbort(comm), ncclSuccess);
    EQUAL(later_join(&l), rank ? ncclSuccess : ncclInternalError);
    EQUAL(ncclGroupEnd(), ncclSuccess);
    EQUAL(fake_unsafe_aborts(), 0);
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

#endif
