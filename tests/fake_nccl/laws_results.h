/* laws_results.h: what NCCL's operations compute. Part of selftest.c. */
#ifndef LAWS_RESULTS_H
#define LAWS_RESULTS_H

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

#endif
