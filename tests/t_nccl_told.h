/* NCCL over the stand-in: what fails on one rank is told on all, at once, and in the library's words. Uses t_nccl_failures.h. */
#ifndef T_NCCL_TOLD_H
#define T_NCCL_TOLD_H

/* A call that does not get into a graph says so: the graph's replays would not. */
static ncclResult_t no_reduce(const void *send, void *recv, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                              cudaStream_t on) {
    (void)send, (void)recv, (void)n, (void)type, (void)op, (void)comm, (void)on;
    return ncclSystemError;
}
static cudaError_t no_record(cudaEvent_t event, cudaStream_t on) {
    (void)event, (void)on;
    return cudaErrorLaunchFailure;
}
static cudaError_t no_wait(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)stream, (void)event, (void)flags;
    return cudaErrorLaunchFailure;
}
static void no_graph_rank(mesh_transport *t, void *ctx) {
    int what = *(const int *)ctx;
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__api api = s->api;
    cudaStream_t stream;
    cudaGraph_t graph;
    mesh_comm c;
    mesh_status status;
    mesh_request r;
    float *a;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_comm_stream(&c, stream), c.error);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_SUM), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    world_meet(t);
    if (t->rank == 1) {
        CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        if (what == 0) s->api.ncclAllReduce = no_reduce;
        if (what == 1) s->api.cudaEventRecord = no_record;
        if (what < 2) {
            CHECK_INT(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_SUM), MESH_ERR_TRANSPORT);
        } else {
            CHECK_OK(mesh_all_reduce_start(&c, NULL, a, a, 100, MESH_F32, MESH_SUM, &r), c.error);
            s->api.cudaStreamWaitEvent = no_wait; /* the program's stream does not come back from the group's */
            CHECK_INT(what == 2 ? mesh_wait(r) : mesh_wait_host(r), MESH_ERR_TRANSPORT);
            CHECK_HAS(c.error.text, "cudaErrorLaunchFailure");
            s->api.cudaStreamWaitEvent = api.cudaStreamWaitEvent;
        }
        CHECK_HAS(c.error.text, what > 1 ? "the caller's stream" : what ? "cudaEventRecord" : "all_reduce: unhandled system error");
        s->api.ncclAllReduce = api.ncclAllReduce;
        s->api.cudaEventRecord = api.cudaEventRecord;
        CHECK_INT(cudaStreamEndCapture(stream, &graph), what > 1 ? cudaErrorStreamCaptureUnjoined : cudaSuccess);
        if (graph) CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
    } else {
        for (status = MESH_OK; status == MESH_OK;) status = mesh_barrier(&c, NULL);
        CHECK_INT(status, MESH_ERR_TRANSPORT);
        CHECK_HAS(c.error.text, "rank 1 failed");
    }
    mesh_comm_close(&c);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
}
static void test_no_graph(void) {
    int what;
    for (what = 0; what < 4; what++) run_unwatched(2, no_graph_rank, &what);
}

/* One communicator has failed, and this rank is blocked in another one's barrier, which the failure holds up: who is blocked says so, long before the
   deadline. */
static mesh_nccl__comm *held_up;
static cudaError_t held_up_record(cudaEvent_t event, cudaStream_t on) {
    if (!held_up || !held_up->marking) return law_api.cudaEventRecord(event, on);
    held_up = NULL;
    return cudaErrorLaunchFailure;
}
static void held_up_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_status status;
    mesh_comm c;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "dp=2,tp=2", NULL, 30 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_all_reduce(&c, "tp", a, a, 100, MESH_F32, MESH_MAX), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    law_api = s->api;
    if (t->rank == 0) {
        for (held_up = s->comm; held_up && (held_up->size != 2 || held_up->issued < 2); held_up = held_up->next) {}
        CHECK(held_up);
        s->api.cudaEventRecord = held_up_record;
    }
    if (t->rank == 1) { /* does not come: rank 0's stays under way */
        while (!c.failed) mesh_progress(t, mesh_now(t) + 1000000);
    } else {
        status = mesh_all_reduce(&c, "tp", a, a, 100, MESH_F32, MESH_MAX);
        if (status == MESH_OK) status = mesh_barrier(&c, NULL);
        CHECK_INT(status, MESH_ERR_TRANSPORT);
    }
    CHECK_HAS(c.error.text, "on \"tp\", sequence 2: cudaEventRecord");
    if (t->rank) CHECK_HAS(c.error.text, "rank 0 failed");
    api_back(s, &law_api);
    mesh_comm_close(&c);
}
static void test_held_up(void) { run_unwatched(4, held_up_rank, NULL); }

/* A copy that fails ends the communicator, and with it the comm on every rank: who is in a call of it, or waits inside NCCL for this rank's first one, hears
   the cause, and the next opening is whole. */
static cudaError_t no_copy(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind, cudaStream_t on) {
    (void)dst, (void)src, (void)nbytes, (void)kind, (void)on;
    return cudaErrorLaunchFailure;
}
static void copy_failed_rank(mesh_transport *t, void *ctx) {
    int connected = *(const int *)ctx, word = 0;
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__api api = s->api;
    mesh_comm c;
    float *a;
    if (!open_comm(t, &c, "x=3", NULL, 15 * SECOND)) return;
    a = device_floats(&c, 100, 0);
    if (connected) CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_I16, MESH_SUM), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    if (t->rank == 1) {
        s->api.cudaMemcpyAsync = no_copy;
        CHECK_INT(mesh_copy(&c, &word, a, sizeof word), MESH_ERR_TRANSPORT);
        s->api.cudaMemcpyAsync = api.cudaMemcpyAsync;
    } else { /* by messages, which NCCL has no such reduction for */
        mesh_status status = mesh_all_reduce(&c, NULL, a, a, 100, MESH_I16, MESH_SUM);
        if (status == MESH_OK) status = mesh_comm_sync(&c);
        CHECK_INT(status, MESH_ERR_TRANSPORT);
        CHECK_HAS(c.error.text, "rank 1 failed: ");
    }
    CHECK_HAS(c.error.text, "mesh_copy: 4 bytes: transport failed: a copy: unspecified launch failure");
    CHECK_INT(c.error.rank, 1);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    if (!open_comm(t, &c, "x=3", NULL, 15 * SECOND)) return;
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_I16, MESH_SUM), c.error);
    CHECK(device_holds(&c, a, 100, 0));
    mesh_free(t, a, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_copy_failed(void) {
    int connected;
    for (connected = 0; connected < 2; connected++) run_gpus(3, copy_failed_rank, &connected);
}

/* What was put on the caller's stream without an operation fails there: who waits for it is told, and so are the others. */
static cudaError_t no_query(cudaEvent_t event) {
    (void)event;
    return cudaErrorIllegalAddress;
}
static void beside_failed_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {100};
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__api api = s->api;
    mesh_comm c;
    mesh_tensor x;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 15 * SECOND)) return;
    CHECK_OK(mesh_tensor_make(&x, &c.on, "x:R", MESH_F32, 1, shape, &c.error), c.error);
    x.data = device_floats(&c, 100, 3);
    CHECK_OK(mesh_clip(&c, &x, 1, 1, NULL), c.error);
    world_meet(t);
    if (t->rank == 1) {
        s->api.cudaEventQuery = no_query;
        CHECK_INT(mesh_comm_sync(&c), MESH_ERR_TRANSPORT);
        CHECK_HAS(c.error.text, "mesh_comm_sync: the device: an illegal memory access");
        s->api.cudaEventQuery = api.cudaEventQuery;
    } else {
        mesh_status status = mesh_barrier(&c, NULL);
        if (status == MESH_OK) status = mesh_comm_sync(&c);
        CHECK_INT(status, MESH_ERR_TRANSPORT);
        CHECK_HAS(c.error.text, "rank 1 failed: mesh_comm_sync: the device");
    }
    CHECK_INT(c.error.rank, 1);
    mesh_comm_close(&c);
}
static void test_beside_failed(void) { run_unwatched(2, beside_failed_rank, NULL); }

/* Where CUDA does not say whether a stream is captured, or into which graph, nothing is put there: a call says which of its questions failed. */
static cudaError_t unasked(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    (void)stream, (void)status;
    return cudaErrorUnknown;
}
static cudaError_t unasked_graph(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, void *graph,
                                 void *nodes, void *edges, void *n) {
    (void)id, (void)graph, (void)nodes, (void)edges, (void)n;
    return unasked(stream, status);
}
enum { UNASKED_FIRST, UNASKED_AGAIN, UNASKED_MARK, UNASKED_GRAPH, UNASKED_WAYS };
static void capture_unasked_rank(mesh_transport *t, void *ctx) {
    int way = *(const int *)ctx;
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__api api = s->api;
    cudaStream_t stream, other;
    cudaGraph_t graph;
    mesh_comm c;
    mesh_status status = MESH_OK;
    float *a;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_INT(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    if (way != UNASKED_FIRST) CHECK_OK(mesh_comm_stream(&c, stream), c.error);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX), c.error);
    if (way != UNASKED_MARK) CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    if (t->rank == 1) {
        if (way != UNASKED_MARK) CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        if (way == UNASKED_GRAPH) {
            cudaEvent_t fork;
            CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX), c.error);
            CHECK_INT(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), cudaSuccess);
            CHECK_INT(cudaEventRecord(fork, stream), cudaSuccess);
            CHECK_INT(cudaStreamWaitEvent(other, fork, 0), cudaSuccess);
            CHECK_INT(cudaEventDestroy(fork), cudaSuccess);
            s->api.cudaStreamGetCaptureInfo = unasked_graph;
            CHECK_OK(mesh_comm_stream(&c, other), c.error);
        } else {
            s->api.cudaStreamIsCapturing = unasked;
            if (way == UNASKED_FIRST) CHECK_OK(mesh_comm_stream(&c, stream), c.error);
        }
        status = way == UNASKED_MARK ? mesh_comm_sync(&c) : mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX);
        CHECK_INT(status, MESH_ERR_TRANSPORT);
        api_back(s, &api);
        if (way != UNASKED_MARK) {
            cudaError_t ended = cudaStreamEndCapture(stream, &graph);
            CHECK(ended == cudaSuccess || way == UNASKED_GRAPH);
            if (graph) CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
        }
    } else {
        while (status == MESH_OK) status = mesh_barrier(&c, NULL);
        CHECK_INT(status, MESH_ERR_TRANSPORT);
        CHECK_HAS(c.error.text, "rank 1 failed");
    }
    CHECK_HAS(c.error.text, way == UNASKED_GRAPH ? "cudaStreamGetCaptureInfo: unknown error" : "cudaStreamIsCapturing: unknown error");
    mesh_comm_close(&c);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(other), cudaSuccess);
}
static void test_capture_unasked(void) {
    int way;
    for (way = 0; way < UNASKED_WAYS; way++) run_unwatched(2, capture_unasked_rank, &way);
}

/* Calls left to a stream that is captured since: who waits for them on the host is told at once that it is not told of their end, and closing cancels them.
   What was over, or marked, before the capture is no reason to refuse. */
enum { SINCE_CLOSE, SINCE_SYNC, SINCE_BESIDE, SINCE_MARKED, SINCE_WAYS };
static void closed_since_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {100};
    int way = *(const int *)ctx;
    cudaStream_t stream;
    cudaGraph_t graph;
    mesh_comm c;
    mesh_tensor x;
    mesh_status status;
    float *a;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "x=2", NULL, 100 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_tensor_make(&x, &c.on, "x:R", MESH_F32, 1, shape, &c.error), c.error);
    x.data = a;
    CHECK_OK(mesh_comm_stream(&c, stream), c.error);
    if (way == SINCE_BESIDE)
        CHECK_OK(mesh_clip(&c, &x, 1, 1, NULL), c.error);
    else
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX), c.error);
    if (way == SINCE_MARKED) CHECK_OK(mesh_comm_sync(&c), c.error);
    CHECK_INT(cudaStreamSynchronize(stream), cudaSuccess);
    world_meet(t);
    if (t->rank == 1 || way == SINCE_MARKED) {
        CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        if (way == SINCE_SYNC) {
            CHECK_INT(mesh_comm_sync(&c), MESH_ERR_STATE);
            CHECK_HAS(c.error.text, "mesh_comm_sync: 1 operation is before on a stream that is captured now");
            CHECK_HAS(c.error.text, "end the capture first, or call mesh_comm_sync before it");
        } else {
            CHECK_INT(mesh_comm_close(&c), way == SINCE_MARKED ? MESH_OK : MESH_ERR_STATE);
            if (way == SINCE_CLOSE)
                CHECK_HAS(c.error.text, "1 operation was still under way in comm and now canceled; their stream is captured now: end "
                                        "the capture first, or call mesh_comm_sync before it");
            if (way == SINCE_BESIDE) CHECK_HAS(c.error.text, "mesh_comm_close: the caller's stream is being captured");
        }
        CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
    } else if (way == SINCE_CLOSE) {
        for (status = MESH_OK; status == MESH_OK;) status = mesh_barrier(&c, NULL);
        CHECK_INT(status, MESH_ERR_PEER);
        CHECK_HAS(c.error.text, "rank 1 closed it with 1 operation under way");
    }
    if (way == SINCE_SYNC) {
        CHECK_OK(mesh_comm_sync(&c), c.error);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
    }
    mesh_comm_close(&c);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
}
static void test_closed_since(void) {
    int way;
    for (way = 0; way < SINCE_WAYS; way++) run_unwatched(2, closed_since_rank, &way);
}

/* What ends soon is no reason to refuse either: a capture of another thread's that the default stream is beside, and one that is over, where the mark that shows
   it is the marker's to put. */
static int ends_asked;
static cudaStream_t ends_captured; /* the other thread's; this one plays it */
static mesh_nccl__comm *ends_kept;
static cudaError_t ends_soon(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    cudaGraph_t graph;
    if (ends_kept) ends_kept->marking = 0;
    if (ends_captured && ++ends_asked == 8) {
        CHECK_INT(cudaStreamEndCapture(ends_captured, &graph), cudaSuccess);
        CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
        ends_captured = NULL;
    }
    return law_api.cudaStreamIsCapturing(stream, status);
}
static void capture_ends_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *k;
    cudaStream_t stream;
    mesh_comm c;
    float *a;
    int beside = *(const int *)ctx, closes;
    enum cudaStreamCaptureStatus status;
    law_api = s->api;
    for (closes = 0; closes < 2; closes++) {
        CHECK_INT(cudaStreamCreateWithFlags(&stream, beside ? cudaStreamDefault : cudaStreamNonBlocking), cudaSuccess);
        if (!open_comm(t, &c, "x=2", NULL, 40 * SECOND)) return;
        k = law_whole(&c);
        a = device_floats(&c, 100, 1);
        if (!beside) CHECK_OK(mesh_comm_stream(&c, stream), c.error);
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_SUM), c.error);
        ends_asked = 0;
        ends_captured = stream;
        ends_kept = NULL;
        CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        s->api.cudaStreamIsCapturing = ends_soon;
        if (!beside) {
            pthread_mutex_lock(&s->lock);
            mesh_nccl__mark_now(s, k);
            CHECK(k->marked != k->issued && k->captured_since);
            k->marking = mesh_nccl__now(s);
            pthread_mutex_unlock(&s->lock);
            ends_asked = 7;
            ends_soon(stream, &status);
            ends_kept = k;
        }
        if (!closes) CHECK_OK(mesh_comm_sync(&c), c.error);
        if (!closes) k->marking = 0;
        CHECK_OK(mesh_comm_close(&c), c.error);
        CHECK(!ends_captured);
        api_back(s, &law_api);
        mesh_free(t, a, &c.error);
        CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    }
}
static void test_capture_ends(void) {
    int beside;
    for (beside = 0; beside < 2; beside++) run_unwatched(2, capture_ends_rank, &beside);
}

/* Where CUDA answers about no mark any more, the end of the communicator's abort tells: nobody waits for what a mark would say. (The time from which the last
   resort counts is moved on and on.) */
static mesh_nccl__comm *blind_comm;
static cudaError_t blind_query(cudaEvent_t event) {
    (void)event;
    if (blind_comm->life == MESH_NCCL__ENDED) blind_comm->end.at = INT64_MAX / 2;
    return cudaErrorIllegalAddress;
}
static void blind_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__api api = s->api;
    mesh_comm c;
    mesh_request r;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 40 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    blind_comm = law_whole(&c);
    s->api.cudaEventQuery = blind_query;
    CHECK_OK(mesh_all_reduce_start(&c, NULL, a, a, 100, MESH_F32, MESH_SUM, &r), c.error);
    CHECK_INT(mesh_wait_host(r), MESH_ERR_TRANSPORT);
    CHECK_HAS(c.error.text, "the device: an illegal memory access");
    mesh_nccl__drain(s, INT64_MAX / 2); /* of the close */
    s->api.cudaEventQuery = api.cudaEventQuery;
    mesh_free(t, a, &c.error);
    mesh_comm_close(&c);
}
static void test_blind(void) { run_unwatched(2, blind_rank, NULL); }

/* A communicator that ends while the ranks agree on memory to register in it: that is the answer, not success without a handle. */
static void register_late_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g;
    mesh_error why = MESH_ZERO;
    mesh_comm c;
    void *handle = NULL, *p = NULL;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 40 * SECOND)) return;
    g = (mesh_nccl__group *)mesh__impl(&c)->group[0]->handle;
    CHECK_OK(mesh_alloc(t, 1 << 21, &p, &c.error), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    pthread_mutex_lock(&s->lock);
    mesh_nccl__end(s, g->c, MESH_ERR_TRANSPORT, t->rank, "the law ends it");
    pthread_mutex_unlock(&s->lock);
    CHECK_INT(mesh_nccl__memory_register(t, g, p, 1 << 21, mesh_nccl__now(s) + 30 * SECOND, &handle, &why), MESH_ERR_TRANSPORT);
    CHECK(!handle);
    CHECK_HAS(why.text, "the law ends it");
    world_meet(t);
    CHECK_INT(mesh_register(&c, p, 1 << 21, &handle), MESH_ERR_TRANSPORT);
    CHECK(!handle);
    CHECK_HAS(c.error.text, "the law ends it");
    mesh_comm_close(&c);
}
static void test_register_late(void) { run_unwatched(2, register_late_rank, NULL); }

/* Who waits inside NCCL for the first connection of a call that another rank has closed the comm before is told at once: its deadline is far
   away. */
static void left_inside_rank(mesh_transport *t, void *ctx) {
    int messages = *(const int *)ctx;
    mesh_comm c;
    float *a, *b;
    if (!open_comm(t, &c, "x=3", NULL, 600 * SECOND)) return;
    a = device_floats(&c, 100, 1), b = device_floats(&c, 100, 1);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    if (t->rank != 1) { /* NCCL's own call, or messages */
        mesh_status status = messages ? mesh_all_reduce(&c, NULL, a, a, 100, MESH_I16, MESH_SUM)
                                      : mesh_all_to_all(&c, NULL, a, b, 10, MESH_F32);
        if (status == MESH_OK) status = mesh_comm_sync(&c);
        CHECK_INT(status, MESH_ERR_PEER);
        CHECK_HAS(c.error.text, "rank 1 has closed this comm while it was needed");
        CHECK_INT(c.error.rank, 1);
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 10, MESH_F32, MESH_MAX), c.error);
    mesh_free(t, a, &c.error);
    mesh_free(t, b, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_left_inside(void) {
    int messages;
    for (messages = 0; messages < 2; messages++) run_gpus(3, left_inside_rank, &messages);
}

/* The same of a comm that a rank has closed before another has heard that it is open. Words: 1 the other has heard that, 2 it has been told. */
static const mesh_ops *left_opening_ops;
static mesh_status left_opening_post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    if (t->rank == 0 && p->xfer[0].direction == MESH_SEND && p->xfer[0].rank == 2) world_await(1, 1);
    return left_opening_ops->post(t, p, ticket);
}
static mesh_status left_opening_poll(mesh_transport *t, mesh_control *m) {
    mesh_status status = left_opening_ops->control_poll(t, m);
    if (t->rank == 2 && status == MESH_OK && m->kind == MESH_EVENT_MESSAGE && mesh__get32(m->data) == MESH_NCCL__MSG_LEFT) world_say(1);
    return status;
}
static void left_opening_rank(mesh_transport *t, void *ctx) {
    static mesh_ops ops;
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_status status;
    mesh_comm c;
    void *a = NULL;
    (void)ctx;
    left_opening_ops = s->boot->ops, ops = *left_opening_ops;
    ops.post = left_opening_post, ops.control_poll = left_opening_poll;
    boot_ops(s, &ops);
    if (!open_comm(t, &c, "x=3", NULL, 600 * SECOND)) return;
    if (t->rank == 2) {
        CHECK_OK(mesh_alloc(t, 4096, &a, &c.error), c.error);
        status = mesh_all_to_all(&c, NULL, a, (char *)a + 2048, 10, MESH_F32);
        if (status == MESH_OK) status = mesh_comm_sync(&c);
        CHECK_INT(status, MESH_ERR_PEER);
        CHECK_HAS(c.error.text, "rank 1 has closed this comm while it was needed");
        CHECK_INT(c.error.rank, 1);
        mesh_free(t, a, &c.error);
    }
    if (t->rank == 0) world_await(2, 1);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    if (t->rank == 2) world_say(2);
}
static void test_left_opening(void) { run_gpus(3, left_opening_rank, NULL); }

/* A window that one rank cannot register, and a kernel that it cannot launch: each is said at once, in CUDA's and NCCL's words, to those who wait inside NCCL
   too. */
static ncclResult_t no_window(ncclComm_t comm, void *p, size_t nbytes, mesh_nccl__window *window, int flags) {
    (void)comm, (void)p, (void)nbytes, (void)window, (void)flags;
    return ncclInternalError;
}
static cudaError_t no_launch(const void *kernel, dim3 blocks, dim3 threads, void **args, size_t shared, cudaStream_t on) {
    (void)kernel, (void)blocks, (void)threads, (void)args, (void)shared, (void)on;
    return cudaErrorLaunchFailure;
}
static void in_words_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {100};
    int window = *(const int *)ctx;
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__api api = s->api;
    mesh_status status;
    mesh_comm c;
    mesh_tensor x;
    void *handle, *p = NULL;
    if (!open_comm(t, &c, "x=3", NULL, 15 * SECOND)) return;
    CHECK_OK(mesh_tensor_make(&x, &c.on, "x:R", MESH_F32, 1, shape, &c.error), c.error);
    x.data = device_floats(&c, 100, 3);
    CHECK_OK(mesh_alloc(t, 1 << 21, &p, &c.error), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    if (t->rank == 1 && window) s->api.ncclCommWindowRegister = no_window;
    if (window) {
        status = mesh_register(&c, p, 1 << 21, &handle);
        CHECK(!handle);
    } else {
        if (t->rank == 1) s->api.cudaLaunchKernel = no_launch;
        if (t->rank == 1) {
            mesh_part parts[1];
            status = mesh__clip_there(&c, &x, 1, parts, 0.5, "mesh_clip");
        } else {
            status = mesh_barrier(&c, NULL);
            if (status == MESH_OK) status = mesh_comm_sync(&c);
        }
    }
    CHECK_INT(status, MESH_ERR_TRANSPORT);
    CHECK_HAS(c.error.text, window ? "mesh_register: ncclCommWindowRegister: internal error" : "mesh_clip: the transport (nccl) says: clipping: unspecified launch failure");
    if (t->rank != 1) CHECK_HAS(c.error.text, "rank 1 failed: ");
    CHECK_INT(c.error.rank, 1);
    s->api.ncclCommWindowRegister = api.ncclCommWindowRegister;
    s->api.cudaLaunchKernel = api.cudaLaunchKernel;
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_in_words(void) {
    int window;
    for (window = 0; window < 2; window++) run_gpus(3, in_words_rank, &window);
}
static const test_case fake_nccl_told_tests[] = {
    {"nccl/fake/in_words", test_in_words, 60},
    {"nccl/fake/left_opening", test_left_opening, 60},
    {"nccl/fake/left_inside", test_left_inside, 60},
    {"nccl/fake/blind", test_blind, 60},
    {"nccl/fake/register_late", test_register_late, 60},
    {"nccl/fake/capture_ends", test_capture_ends, 90},
    {"nccl/fake/closed_since", test_closed_since, 90},
    {"nccl/fake/capture_unasked", test_capture_unasked, 60},
    {"nccl/fake/copy_failed", test_copy_failed, 60},
    {"nccl/fake/beside_failed", test_beside_failed, 60},
    {"nccl/fake/held_up", test_held_up, 60},
    {"nccl/fake/no_graph", test_no_graph, 60},
};

#endif
