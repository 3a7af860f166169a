/* NCCL: what a program does beside the library. It captures streams of its own, gives a bootstrap that does not serve. */
#ifndef T_NCCL_BESIDE_H
#define T_NCCL_BESIDE_H

/* ---- captures ---- */

/* Until the marker has been asked for a mark, and has come back, twice. */
static void beside_marker(mesh_nccl__state *s, mesh_nccl__comm *k) {
    int i;
    pthread_mutex_lock(&s->lock);
    for (i = 0; i < 2; i++) {
        mesh_nccl__want_mark(s, k);
        while (k->marking) pthread_cond_wait(&s->out, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

/* A comm on the default stream, and a capture of the program's on a stream that waits for that one: no mark ends it, and who waits on the host is told. */
static void beside_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *k;
    cudaStream_t stream;
    cudaGraph_t graph;
    mesh_comm c;
    float *a, *b;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    a = device_floats(&c, 1000, 1), b = device_floats(&c, 1000, 0);
    k = law_whole(&c);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, b, 1000, MESH_F32, MESH_SUM), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamDefault), cudaSuccess);
    law_marks_stop(s, k); /* what comes next has no mark when the capture begins */
    CHECK_OK(mesh_all_reduce(&c, NULL, a, b, 1000, MESH_F32, MESH_SUM), c.error);
    CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    law_marks_again(s);
    beside_marker(s, k);
    pthread_mutex_lock(&s->lock);
    CHECK(k->marked != k->issued);
    pthread_mutex_unlock(&s->lock);
    CHECK_INT(mesh_copy(&c, a, b, sizeof *a), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "captured");
    CHECK_INT(cudaMemcpyAsync(b, a, 4000, cudaMemcpyDefault, stream), cudaSuccess);
    CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK_INT(cudaGetLastError(), cudaSuccess);
    CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
    CHECK(device_holds(&c, b, 1000, 2));
    CHECK_OK(mesh_comm_sync(&c), c.error);
    pthread_mutex_lock(&s->lock);
    CHECK(k->completed == k->issued && k->life == MESH_NCCL__OPEN);
    pthread_mutex_unlock(&s->lock);
    mesh_free(t, a, &c.error), mesh_free(t, b, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
}
static void test_beside(void) { run_gpus(2, beside_rank, NULL); }

/* Such a capture begins as the mark is put: it is put later. One stream comes behind the default one: not without its mark. Closed meanwhile, the
   communicator stays where it is. */
static cudaError_t beside_record(cudaEvent_t event, cudaStream_t stream) {
    (void)event, (void)stream;
    return cudaErrorStreamCaptureImplicit;
}
static void beside_close(mesh_transport *t, mesh_comm *c, float *a, cudaStream_t captured) {
    cudaGraph_t graph;
    CHECK_INT(cudaStreamEndCapture(captured, &graph), cudaSuccess);
    CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
    mesh_free(t, a, &c->error);
    mesh_comm_close(c);
}
static void beside_late_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *k;
    cudaStream_t stream, other;
    mesh_comm c;
    float *a;
    int way;
    (void)ctx;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamDefault), cudaSuccess);
    CHECK_INT(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    for (way = 0; way < 2; way++) {
        if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
        a = device_floats(&c, 1000, 1);
        k = law_whole(&c);
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 1000, MESH_F32, MESH_MAX), c.error);
        CHECK_OK(mesh_comm_sync(&c), c.error);
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 1000, MESH_F32, MESH_MAX), c.error);
        law_api = s->api;
        s->api.cudaEventRecord = beside_record;
        pthread_mutex_lock(&s->lock);
        mesh_nccl__mark_now(s, k);
        CHECK(k->marked != k->issued && k->life == MESH_NCCL__OPEN);
        pthread_mutex_unlock(&s->lock);
        api_back(s, &law_api);
        world_meet(t);
        CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        if (way == 0) {
            mesh_nccl__group *g = s->group;
            CHECK_INT(mesh_nccl__fence(t, g, other, MESH_FENCE_ON), MESH_OK);
            CHECK(k->life == MESH_NCCL__ENDED);
            CHECK_HAS(k->end.why.text, "the stream of the operations before");
        } else {
            mesh_nccl__group_close(t, s->group);
            mesh__impl(&c)->group[0]->handle = NULL;
            CHECK(k->life == MESH_NCCL__OPEN && k->on == NULL);
        }
        beside_close(t, &c, a, stream);
    }
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(other), cudaSuccess);
}

/* Operations without a mark on a stream whose capture has begun: another stream cannot come behind them, and the call that would go there says so. */
static void captured_since_rank(mesh_transport *t, void *ctx) {
    cudaStream_t stream, other;
    mesh_comm c;
    float *a;
    (void)ctx;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_INT(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    a = device_floats(&c, 1000, 1);
    CHECK_OK(mesh_comm_stream(&c, stream), c.error);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 1000, MESH_F32, MESH_MAX), c.error);
    world_meet(t);
    CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_OK(mesh_comm_stream(&c, other), c.error);
    CHECK_INT(mesh_all_reduce(&c, NULL, a, a, 1000, MESH_F32, MESH_MAX), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_comm_sync before it");
    beside_close(t, &c, a, stream);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(other), cudaSuccess);
}
static void test_captured_since(void) { run_unwatched(2, captured_since_rank, NULL); }
static void test_beside_late(void) { run_unwatched(2, beside_late_rank, NULL); }

/* In a capture a group's order holds when its calls change from one stream of the caller's to another; not between two captures. */
static cudaStream_t moved_to;
static int moved_waits;
static cudaError_t moved_wait(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    moved_waits += stream == moved_to;
    return law_api.cudaStreamWaitEvent(stream, event, flags);
}
static void moved_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    cudaStream_t stream[2];
    cudaEvent_t fork, join;
    cudaGraph_t graph[2];
    mesh_comm c;
    float *a;
    int i, one;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_INT(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), cudaSuccess);
    CHECK_INT(cudaEventCreateWithFlags(&join, cudaEventDisableTiming), cudaSuccess);
    for (i = 0; i < 2; i++) CHECK_INT(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), cudaSuccess);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    law_api = s->api, moved_to = stream[1];
    s->api.cudaStreamWaitEvent = moved_wait;
    for (one = 0; one < 2; one++) {
        CHECK_INT(mesh_comm_stream(&c, stream[0]), MESH_OK);
        CHECK_INT(cudaStreamBeginCapture(stream[0], cudaStreamCaptureModeThreadLocal), cudaSuccess);
        if (one) { /* before the call: what comes behind that is the group's to say */
            CHECK_INT(cudaEventRecord(fork, stream[0]), cudaSuccess);
            CHECK_INT(cudaStreamWaitEvent(stream[1], fork, 0), cudaSuccess);
        } else {
            CHECK_INT(cudaStreamBeginCapture(stream[1], cudaStreamCaptureModeThreadLocal), cudaSuccess);
        }
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX), c.error);
        moved_waits = 0;
        CHECK_INT(mesh_comm_stream(&c, stream[1]), MESH_OK);
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX), c.error);
        CHECK_INT(moved_waits, one);
        if (one) CHECK_INT(cudaEventRecord(join, stream[1]), cudaSuccess);
        if (one) CHECK_INT(cudaStreamWaitEvent(stream[0], join, 0), cudaSuccess);
        for (i = 0; i < 2 - one; i++) {
            CHECK_INT(cudaStreamEndCapture(stream[i], &graph[i]), cudaSuccess);
            if (graph[i]) CHECK_INT(cudaGraphDestroy(graph[i]), cudaSuccess);
        }
    }
    CHECK_INT(mesh_comm_stream(&c, NULL), MESH_OK);
    api_back(s, &law_api);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    mesh_free(t, a, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
    CHECK_INT(cudaEventDestroy(fork), cudaSuccess);
    CHECK_INT(cudaEventDestroy(join), cudaSuccess);
    for (i = 0; i < 2; i++) CHECK_INT(cudaStreamDestroy(stream[i]), cudaSuccess);
}
static void test_moved_captured(void) { run_unwatched(2, moved_rank, NULL); }

/* What was called before a capture is not over when the graph's stream is: who waits for it afterwards comes behind it, what is called next on another
   stream comes behind it, and it is where its mark goes. */
static void past_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *k;
    mesh_request r;
    cudaStream_t stream[2];
    cudaGraph_t graph;
    mesh_comm c;
    float *a, *b, *copy;
    int i, way;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 40 * SECOND)) return;
    k = law_whole(&c);
    a = device_floats(&c, 1000, 1), b = device_floats(&c, 1000, 0), copy = device_floats(&c, 1000, 7);
    for (i = 0; i < 2; i++) CHECK_INT(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), cudaSuccess);
    law_api = s->api;
    for (way = 0; way < 3; way++) {
        CHECK_INT(mesh_comm_stream(&c, stream[0]), MESH_OK);
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 1000, MESH_F32, MESH_MAX), c.error);
        CHECK_OK(mesh_comm_sync(&c), c.error);
        if (t->rank) world_meet(t); /* the other has done all that it does meanwhile: what it called before is under way */
        if (way == 0)
            CHECK_OK(mesh_all_reduce_start(&c, NULL, a, b, 1000, MESH_F32, MESH_SUM, &r), c.error);
        else
            CHECK_OK(mesh_all_reduce(&c, NULL, a, b, 1000, MESH_F32, MESH_SUM), c.error);
        CHECK_INT(cudaStreamBeginCapture(stream[way == 2], cudaStreamCaptureModeThreadLocal), cudaSuccess);
        moved_to = stream[1], moved_waits = 0;
        if (way == 2) CHECK_INT(mesh_comm_stream(&c, stream[1]), MESH_OK);
        if (way == 1) {
            CHECK_OK(mesh_all_reduce_start(&c, NULL, a, a, 1000, MESH_F32, MESH_MAX, &r), c.error);
            CHECK_OK(mesh_wait(r), c.error);
        } else {
            CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 1000, MESH_F32, MESH_MAX), c.error);
        }
        CHECK_INT(cudaStreamEndCapture(stream[way == 2], &graph), cudaSuccess);
        CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
        if (way == 0) {
            CHECK_OK(mesh_wait(r), c.error);
            CHECK_INT(cudaMemcpyAsync(copy, b, 4000, cudaMemcpyDefault, stream[0]), cudaSuccess);
            if (!t->rank) world_meet(t);
            CHECK_INT(cudaStreamSynchronize(stream[0]), cudaSuccess);
            CHECK(device_holds(&c, copy, 1000, 2));
        }
        if (way == 1) {
            pthread_mutex_lock(&s->lock);
            mesh_nccl__mark_now(s, k);
            CHECK(t->rank || (k->nmarks == 1 && mesh_nccl__mark_at(k, 0)->stream == stream[0]));
            pthread_mutex_unlock(&s->lock);
        }
        if (way == 2) {
            s->api.cudaStreamWaitEvent = moved_wait;
            CHECK_OK(mesh_all_reduce(&c, NULL, b, a, 1000, MESH_F32, MESH_MAX), c.error);
            api_back(s, &law_api);
            CHECK(t->rank || moved_waits == 1);
        }
        if (way && !t->rank) world_meet(t);
    }
    CHECK_INT(mesh_comm_stream(&c, NULL), MESH_OK);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK(device_holds(&c, a, 1000, 2));
    mesh_free(t, a, &c.error), mesh_free(t, b, &c.error), mesh_free(t, copy, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
    for (i = 0; i < 2; i++) CHECK_INT(cudaStreamDestroy(stream[i]), cudaSuccess);
}
static void test_past_captured(void) { run_unwatched(2, past_rank, NULL); }

/* The program makes another device current between its calls: marks go on the default stream of this rank's all the same. */
static void device_rank(mesh_transport *t, void *ctx) {
    int device = ((mesh_nccl *)(void *)t)->device, devices = ((mesh_nccl *)(void *)t)->devices, way;
    cudaStream_t stream;
    cudaGraph_t graph;
    mesh_nccl__comm *k;
    static mesh_comm c; /* the last is open when its transport closes */
    float *a, one = 0;
    (void)ctx;
    for (way = 0; way < 3; way++) { /* seen by who waits; by who closes the comm; the transport */
        if (!open_comm(t, &c, "x=2", NULL, 40 * SECOND)) return;
        k = law_whole(&c);
        a = device_floats(&c, 1000, 1);
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 1000, MESH_F32, MESH_SUM), c.error);
        CHECK(k->marked != k->issued);
        CHECK_INT(cudaSetDevice((device + 1) % devices), cudaSuccess);
        if (way == 0) CHECK_OK(mesh_progress(t, 1000), c.error);
        if (way == 0) { /* and captures there, beside a default stream that is not this rank's */
            CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamDefault), cudaSuccess);
            CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
            CHECK_OK(mesh_copy(&c, &one, a, sizeof one), c.error);
            CHECK(one == 2);
            CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
            CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
            CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
            CHECK_INT(cudaSetDevice((device + 1) % devices), cudaSuccess);
        }
        if (way < 2) CHECK_OK(mesh_comm_close(&c), c.error);
        if (way < 2) CHECK(k->life == MESH_NCCL__OPEN);
        CHECK_INT(cudaGetLastError(), cudaSuccess);
        CHECK_INT(cudaSetDevice(device), cudaSuccess);
        if (way < 2) mesh_free(t, a, &c.error);
    }
    CHECK_INT(cudaSetDevice((device + 1) % devices), cudaSuccess);
}
static void test_device(void) { run_unwatched(2, device_rank, NULL); }

/* Each thread has a stream of its own by the name of cudaStreamPerThread: the marker puts no mark there, which would not be behind anything. */
static pthread_t per_thread_main;
static int per_thread_others;
static cudaError_t per_thread_record(cudaEvent_t event, cudaStream_t stream) {
    if (stream == cudaStreamPerThread && !pthread_equal(pthread_self(), per_thread_main)) per_thread_others++;
    return law_api.cudaEventRecord(event, stream);
}
static void per_thread_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *k;
    mesh_comm c;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 40 * SECOND)) return;
    k = law_whole(&c);
    a = device_floats(&c, 1000, 1);
    CHECK_INT(mesh_comm_stream(&c, cudaStreamPerThread), MESH_OK);
    law_marks_stop(s, k);
    per_thread_main = pthread_self();
    law_api = s->api, s->api.cudaEventRecord = per_thread_record;
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 1000, MESH_F32, MESH_SUM), c.error);
    law_marks_again(s);
    beside_marker(s, k);
    law_marks_stop(s, k);
    CHECK_INT(per_thread_others, 0);
    CHECK(k->marked == k->issued); /* it has its deadline all the same */
    pthread_mutex_lock(&s->lock);
    k->issued++; /* one that could have no mark when it was called */
    mesh_nccl__want_mark(s, k);
    CHECK(!k->marking);
    k->issued--;
    pthread_mutex_unlock(&s->lock);
    s->api.cudaEventRecord = law_api.cudaEventRecord; /* alone: the watcher reads the others */
    law_marks_again(s);
    CHECK(device_holds(&c, a, 1000, 2));
    mesh_free(t, a, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_per_thread(void) { run_gpus(2, per_thread_rank, NULL); }

/* Another thread captures, and nothing may be done beside: a transport opens, and closes with memory of its own, all the same. */
static int captured_word[2]; /* it captures; it may end */
static void *captured_main(void *arg) {
    cudaStream_t stream;
    cudaGraph_t graph;
    (void)arg;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamDefault), cudaSuccess);
    CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    __sync_add_and_fetch(&captured_word[0], 1);
    while (!__sync_add_and_fetch(&captured_word[1], 0)) test_sleep(0.0005);
    CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    if (graph) CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    return NULL;
}
static void elsewhere_captured_rank(mesh_transport *boot, void *ctx) {
    int closes;
    (void)ctx;
    for (closes = 0; closes < 2; closes++) {
        enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
        pthread_t thread;
        mesh_nccl gpu;
        mesh_error err;
        void *p;
        captured_word[0] = captured_word[1] = 0;
        if (closes) {
            CHECK_OK(mesh_nccl_open(&gpu, boot, NULL, &err), err);
            CHECK_OK(mesh_alloc(&gpu.base, 1 << 16, &p, &err), err);
        }
        CHECK_INT(pthread_create(&thread, NULL, captured_main, NULL), 0);
        while (!__sync_add_and_fetch(&captured_word[0], 0)) test_sleep(0.0005);
        if (closes)
            CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
        else
            CHECK_OK(mesh_nccl_open(&gpu, boot, NULL, &err), err);
        CHECK_INT(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
        CHECK_INT(mode, cudaStreamCaptureModeGlobal); /* as it was */
        __sync_add_and_fetch(&captured_word[1], 1);
        CHECK_INT(pthread_join(thread, NULL), 0);
        if (!closes) CHECK_INT(mesh_nccl__of(&gpu.base)->has_kernels, 1);
        if (!closes) CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
    }
}
static void test_elsewhere_captured(void) { run_world(UNIX, 1, elsewhere_captured_rank, NULL); }

/* ---- a fabric that is slow to come up ---- */

/* Operations have the comm's whole time, however much of it went by as its ranks joined: by a clock that a split moves. */
static const mesh_ops *slow_ops;
static int64_t slow_by;
static ncclResult_t (*slow_real)(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
static int64_t slow_now(mesh_transport *t) { return slow_ops->now(t) + slow_by; }
static ncclResult_t slow_split(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    slow_by += 1000 * SECOND;
    return slow_real(comm, color, key, out, config);
}
static void slow_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_ops ops = *s->boot->ops;
    const mesh_nccl__group *g;
    mesh_comm c;
    (void)ctx;
    slow_ops = s->boot->ops, slow_real = s->api.ncclCommSplit;
    ops.now = slow_now;
    s->boot->ops = &ops, s->api.ncclCommSplit = slow_split;
    if (open_comm(t, &c, "a=2,b=2", NULL, 10000 * SECOND)) {
        CHECK(slow_by >= 1000 * SECOND);
        for (g = s->group; g; g = g->next) CHECK(g->id == 0 || (g->timeout > 9500 * SECOND && g->timeout <= 10000 * SECOND));
        CHECK_OK(mesh_comm_close(&c), c.error);
    }
    s->boot->ops = slow_ops, s->api.ncclCommSplit = slow_real;
}
static void test_timeout_whole(void) { run_unwatched(4, slow_rank, NULL); }

/* ---- a rank is lost while two others agree ---- */

/* Rank 0 waits for rank 1, which comes when rank 0 has aborted what it had with rank 2: that was lost meanwhile. Words: 1 rank 0 waits, 2 it has
   aborted. */
static mesh_nccl__api talk_api;
static const mesh_ops *talk_ops;
static mesh_status talk_post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    static int said;
    if (!said++) world_say(1);
    return talk_ops->post(t, p, ticket);
}
static ncclResult_t talk_abort(ncclComm_t comm) {
    world_say(2);
    return talk_api.ncclCommAbort(comm);
}
static int talk_pair(mesh_transport *t, mesh_comm *c, int other) {
    static const int two = 2;
    mesh_desc d = MESH_ZERO;
    mesh_comm_desc terms = MESH_ZERO;
    mesh_error err;
    mesh m;
    d.shape = &two, d.strides = &other, d.naxes = 1;
    terms.timeout_ns = 120 * SECOND;
    CHECK_OK(mesh_make(&m, &d, &err), err);
    CHECK_OK(mesh_comm_open(c, t, &m, &terms, &err), err);
    return c->impl != NULL;
}
static void talk_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_ops ops = *s->boot->ops;
    mesh_comm near, far;
    mesh_request r;
    cudaStream_t stream;
    float *a, *b = NULL;
    (void)ctx;
    if (t->rank < 2 && !talk_pair(t, &near, 1)) return;
    if (t->rank != 1 && !talk_pair(t, &far, 2)) return;
    a = device_floats(t->rank == 2 ? &far : &near, 100, 1);
    world_meet(t);
    if (t->rank == 2) {
        world_await(1, 1);
        kill(getpid(), SIGKILL);
    }
    if (t->rank == 1) world_await(2, 1);
    if (t->rank == 0) {
        CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        CHECK_OK(mesh_comm_stream(&far, stream), far.error);
        b = device_floats(&far, 100, 1);
        s->debug = 0; /* rank 2 does not call it */
        CHECK_OK(mesh_all_reduce_start(&far, NULL, b, b, 100, MESH_F32, MESH_SUM, &r), far.error);
        s->debug = 1;
        pthread_mutex_lock(&s->boot_lock), pthread_mutex_lock(&s->lock);
        talk_api = s->api, talk_ops = s->boot->ops;
        ops.post = talk_post;
        s->boot->ops = &ops, s->api.ncclCommAbort = talk_abort;
        pthread_mutex_unlock(&s->lock), pthread_mutex_unlock(&s->boot_lock);
    }
    CHECK_OK(mesh_all_reduce(&near, NULL, a, a, 100, MESH_F32, MESH_SUM), near.error);
    CHECK(device_holds(&near, a, 100, 2));
    mesh_free(t, a, &near.error);
    if (t->rank == 0) {
        CHECK_INT(mesh_wait_host(r), MESH_ERR_PEER);
        CHECK_INT(far.error.rank, 2);
        mesh_comm_close(&far);
        mesh_free(t, b, &near.error);
        CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
        pthread_mutex_lock(&s->boot_lock), pthread_mutex_lock(&s->lock);
        s->api.ncclCommAbort = talk_api.ncclCommAbort, s->boot->ops = talk_ops;
        pthread_mutex_unlock(&s->lock), pthread_mutex_unlock(&s->boot_lock);
    }
    CHECK_OK(mesh_comm_close(&near), near.error);
}
static void test_talk_lost(void) {
    gpu_job job = job_of(talk_rank, NULL);
    job.desc.debug = 1;
    run_world_but(UNIX, 3, gpu_rank, &job, 2);
}

/* ---- a split that is left behind ---- */

/* A split of the caller's communicator that is given up at its deadline goes on in its thread, with nothing of what it was for. */
static int branch_words[2]; /* the other ranks' list is gone; it has looked */
static ncclResult_t branch_split(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    (void)comm, (void)color, (void)key, (void)out;
    while (!__sync_add_and_fetch(&branch_words[0], 0)) test_sleep(0.0005);
    __sync_add_and_fetch(&branch_words[1], strcmp(config->commName, "mesh 7.0") ? 2 : 1);
    return ncclSystemError;
}
static void branch_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm all;
    ncclConfig_t config;
    mesh_error err;
    int rank = 0;
    (void)ctx;
    memset(&all, 0, sizeof all);
    all.rank = &rank, all.size = 1;
    snprintf(all.name, sizeof all.name, "mesh 7.0");
    config = mesh_nccl__config(s, 0, all.name);
    pthread_mutex_lock(&s->lock);
    law_api = s->api;
    s->api.ncclCommSplit = branch_split;
    pthread_mutex_unlock(&s->lock);
    CHECK_INT(mesh_nccl__branch_off(s, &all, &config, 7 << 8, mesh_nccl__now(s), &err), MESH_ERR_TIMEOUT);
    memset(all.name, 'x', sizeof all.name - 1);
    __sync_add_and_fetch(&branch_words[0], 1);
    while (!__sync_add_and_fetch(&branch_words[1], 0)) test_sleep(0.0005);
    CHECK_INT(branch_words[1], 1);
    pthread_mutex_lock(&s->lock);
    s->api.ncclCommSplit = law_api.ncclCommSplit;
    pthread_mutex_unlock(&s->lock);
}
static void test_branch_left(void) { run_gpus(1, branch_rank, NULL); }

/* ---- closing ---- */

/* NCCL could not destroy one communicator: the others are destroyed, as the other ranks wait for that, and close says so. */
static int destroyed;
static ncclResult_t (*destroy_real)(ncclComm_t);
static ncclResult_t destroy_first_fails(ncclComm_t comm) {
    ncclResult_t r = destroy_real(comm);
    return destroyed++ ? r : ncclSystemError;
}
static void destroy_fails_rank(mesh_transport *boot, void *ctx) {
    mesh_nccl__state *s;
    mesh_nccl__comm *k;
    mesh_nccl gpu;
    mesh_error err;
    mesh_comm c;
    char rank[16];
    int n = 0;
    (void)ctx;
    snprintf(rank, sizeof rank, "%d", boot->rank);
    setenv("RANK", rank, 1);
    CHECK_OK(mesh_nccl_open(&gpu, boot, NULL, &err), err);
    s = mesh_nccl__of(&gpu.base);
    if (!open_comm(&gpu.base, &c, "a=2,b=2", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_comm_close(&c), c.error);
    pthread_mutex_lock(&s->lock);
    for (k = s->comm; k; k = k->next) n += (k->comm != NULL) + (k->root != NULL);
    destroy_real = s->api.ncclCommDestroy;
    if (boot->rank == 1) s->api.ncclCommDestroy = destroy_first_fails;
    pthread_mutex_unlock(&s->lock);
    CHECK(n > 2);
    CHECK_INT(mesh_nccl_close(&gpu), boot->rank == 1 ? MESH_ERR_TRANSPORT : MESH_OK);
    if (boot->rank == 1) CHECK_INT(destroyed, n);
}
static void test_destroy_fails(void) { run_world(UNIX, 4, destroy_fails_rank, NULL); }

/* One that is left whole by that keeps the others, and the rest of this rank's, in NCCL: close says what failed, and not only that NCCL has not ended. */
static ncclResult_t destroy_nothing(ncclComm_t comm) { return destroyed++ ? destroy_real(comm) : ncclSystemError; }
static void destroy_left_rank(mesh_transport *boot, void *ctx) {
    mesh_nccl gpu;
    mesh_error err, why = MESH_ZERO;
    char rank[16];
    (void)ctx;
    snprintf(rank, sizeof rank, "%d", boot->rank);
    setenv("RANK", rank, 1);
    CHECK_OK(mesh_nccl_open(&gpu, boot, NULL, &err), err);
    destroy_real = mesh_nccl__of(&gpu.base)->api.ncclCommDestroy;
    if (boot->rank == 1) mesh_nccl__of(&gpu.base)->api.ncclCommDestroy = destroy_nothing;
    CHECK_INT(mesh_nccl__close(&gpu.base, &why), boot->rank == 1 ? MESH_ERR_TRANSPORT : MESH_ERR_TIMEOUT);
    CHECK_HAS(why.text, boot->rank == 1 ? "ncclCommDestroy: unhandled system error" : "NCCL has not ended its communicators");
    world_say(0);
    world_await(0, 2);
    fflush(NULL);
    _exit(test_failures != 0); /* threads are left in NCCL, and what they use */
}
static void test_destroy_left(void) { run_world(UNIX, 2, destroy_left_rank, NULL); }

/* What was left to a stream as a transport closes has 10 s, whatever its own deadline: 600 s. Where it waits for a rank that is lost, none; and what was
   only started is canceled. Words: 0 rank 0 has called, 1 it has aborted. */
enum { BOUND_LATE, BOUND_LOST, BOUND_STARTED, BOUND_BARE };
static mesh_nccl__state *bound_state;
static mesh_nccl__comm *bound_comm;
static int bound_status; /* what it has ended with */
static ncclResult_t bound_abort(ncclComm_t comm) {
    pthread_mutex_lock(&bound_state->lock);
    bound_status = bound_comm->end.why.status;
    pthread_mutex_unlock(&bound_state->lock);
    world_say(1);
    return law_api.ncclCommAbort(comm);
}
static void bound_post(mesh_transport *t, void *to) { /* no comm's: rank 1 does not send it */
    mesh_ticket ticket;
    mesh_post p;
    mesh_xfer x;
    memset(&p, 0, sizeof p), memset(&x, 0, sizeof x);
    x.base = to, x.nbytes = 8, x.direction = MESH_RECV, x.rank = x.index = 1;
    p.xfer = &x, p.count = 1, p.channel = 1, p.check = 1;
    CHECK_INT(t->ops->post(t, &p, &ticket), MESH_OK);
}
static void bound_rank(mesh_transport *boot, void *ctx) {
    static const int wanted[] = {MESH_ERR_TIMEOUT, MESH_ERR_PEER, MESH_ERR_CANCELED, MESH_ERR_TIMEOUT};
    int what = *(const int *)ctx;
    mesh_nccl_desc desc = MESH_ZERO;
    mesh_nccl__state *s;
    mesh_request r;
    mesh_nccl gpu;
    mesh_error err;
    mesh_comm c;
    char rank[16];
    float *a;
    snprintf(rank, sizeof rank, "%d", boot->rank);
    setenv("RANK", rank, 1);
    desc.no_watchdog = what == BOUND_LOST;
    CHECK_OK(mesh_nccl_open(&gpu, boot, &desc, &err), err);
    if (!open_comm(&gpu.base, &c, "x=2", NULL, 600 * SECOND)) return;
    s = mesh_nccl__of(&gpu.base);
    a = device_floats(&c, 64, 1);
    CHECK_OK(boot->rank ? mesh_send(&c, NULL, 0, a, 2, MESH_F32) : mesh_recv(&c, NULL, 1, a, 2, MESH_F32), c.error); /* connects */
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(boot);
    if (boot->rank == 1) {
        world_await(what == BOUND_LOST ? 0 : 1, 1);
        kill(getpid(), SIGKILL);
    }
    pthread_mutex_lock(&s->lock);
    law_api = s->api;
    bound_state = s, bound_comm = law_whole(&c);
    s->api.ncclCommAbort = bound_abort;
    pthread_mutex_unlock(&s->lock);
    if (what == BOUND_BARE)
        bound_post(&gpu.base, a);
    else
        CHECK_OK(what == BOUND_STARTED ? mesh_all_reduce_start(&c, NULL, a, a, 64, MESH_F32, MESH_SUM, &r)
                                       : mesh_all_reduce(&c, NULL, a, a, 64, MESH_F32, MESH_SUM),
                 c.error);
    world_say(0);
    if (what == BOUND_LOST) mesh_nccl__drain(s, mesh_nccl__now(s) + 600 * SECOND);
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
    CHECK_INT(bound_status, wanted[what]);
}
static void bound(int what) { run_world_but(UNIX, 2, bound_rank, &what, 1); }
static void test_close_bound(void) { bound(BOUND_LATE); }
static void test_close_lost(void) { bound(BOUND_LOST); }
static void test_close_cancels(void) { bound(BOUND_STARTED); }
static void test_close_bare(void) { bound(BOUND_BARE); }

/* A stream whose queue is full keeps the marker, and close goes on: what it has freed is left alone when the marker comes back, and so is the bootstrap,
   which may be closed by then. Its clock runs ahead, so that nothing is waited for. */
enum { LOST_BLOCKS = 256 };
static struct {
    const mesh_ops *ops;
    mesh_allocator before;
    pthread_t main;
    int64_t ahead;
    int in, back, closed, asked; /* the marker is in CUDA; it may come back; close is over; the clock was asked after that */
    pthread_mutex_t lock;        /* blocks */
    struct {
        unsigned char *p;
        size_t nbytes;
        int freed;
    } block[LOST_BLOCKS];
    int blocks;
} lost;
static int64_t lost_now(mesh_transport *t) {
    int64_t ahead = __sync_add_and_fetch(&lost.ahead, 0);
    if (__sync_add_and_fetch(&lost.closed, 0)) __sync_add_and_fetch(&lost.asked, 1);
    if (ahead) ahead = __sync_add_and_fetch(&lost.ahead, SECOND);
    return lost.ops->now(t) + ahead;
}
static cudaError_t lost_record(cudaEvent_t event, cudaStream_t stream) {
    if (pthread_equal(pthread_self(), lost.main)) return law_api.cudaEventRecord(event, stream);
    __sync_add_and_fetch(&lost.in, 1);
    while (!__sync_add_and_fetch(&lost.back, 0)) test_sleep(0.0005);
    return cudaErrorLaunchFailure;
}
static void *lost_alloc(void *ctx, size_t n) {
    void *p = malloc(n ? n : 1);
    (void)ctx;
    pthread_mutex_lock(&lost.lock);
    if (p && lost.blocks < LOST_BLOCKS) lost.block[lost.blocks].p = (unsigned char *)p, lost.block[lost.blocks++].nbytes = n;
    pthread_mutex_unlock(&lost.lock);
    return p;
}
static void lost_free(void *ctx, void *p) { /* what is freed stays, all of one byte */
    int i;
    (void)ctx;
    pthread_mutex_lock(&lost.lock);
    for (i = 0; i < lost.blocks && lost.block[i].p != p; i++) {}
    if (i < lost.blocks) memset(p, 0xee, lost.block[i].nbytes), lost.block[i].freed = 1;
    pthread_mutex_unlock(&lost.lock);
    if (i == lost.blocks) lost.before.free ? lost.before.free(lost.before.ctx, p) : free(p);
}
static void lost_rank(mesh_transport *boot, void *ctx) {
    mesh_ops ops = *boot->ops;
    mesh_nccl__state *s;
    mesh_nccl gpu;
    mesh_error err;
    mesh_comm c;
    float *a;
    size_t k;
    int i, left = 0;
    (void)ctx;
    pthread_mutex_init(&lost.lock, NULL);
    lost.before = boot->allocator, boot->log = NULL;
    boot->allocator.alloc = lost_alloc, boot->allocator.free = lost_free;
    CHECK_OK(mesh_nccl_open(&gpu, boot, NULL, &err), err);
    if (!open_comm(&gpu.base, &c, "x=1", NULL, 20 * SECOND)) return;
    s = mesh_nccl__of(&gpu.base);
    a = device_floats(&c, 64, 1);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    lost.main = pthread_self(), lost.ops = boot->ops;
    pthread_mutex_lock(&s->boot_lock), pthread_mutex_lock(&s->lock);
    law_api = s->api;
    s->api.cudaEventRecord = lost_record;
    ops.now = lost_now;
    boot->ops = &ops;
    pthread_mutex_unlock(&s->lock), pthread_mutex_unlock(&s->boot_lock);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 64, MESH_F32, MESH_MAX), c.error);
    while (!__sync_add_and_fetch(&lost.in, 0)) test_sleep(0.0005);
    __sync_add_and_fetch(&lost.ahead, 1);
    mesh_comm_close(&c);
    CHECK_INT(mesh_nccl_close(&gpu), MESH_ERR_TIMEOUT);
    CHECK(lost.blocks > 4 && lost.blocks < LOST_BLOCKS);
    __sync_add_and_fetch(&lost.closed, 1);
    __sync_add_and_fetch(&lost.back, 1);
    while (!left) {
        pthread_mutex_lock(&s->lock);
        left = s->marker_left;
        pthread_mutex_unlock(&s->lock);
    }
    CHECK_INT(lost.asked, 0);
    for (i = 0; i < lost.blocks; i++) {
        for (k = 0; lost.block[i].freed && k < lost.block[i].nbytes && lost.block[i].p[k] == 0xee; k++) {}
        if (lost.block[i].freed && k < lost.block[i].nbytes)
            test_fail(__FILE__, __LINE__, "byte %d of %d was written after it was freed", (int)k, (int)lost.block[i].nbytes);
    }
    boot->ops = lost.ops, boot->allocator = lost.before;
}
static void test_marker_lost(void) { run_world(UNIX, 1, lost_rank, NULL); }

/* On GPUs too. */
static const test_case nccl_beside_tests[] = {
    {"nccl/moved_captured", test_moved_captured, 60},
    {"nccl/past_captured", test_past_captured, 60},
    {"nccl/per_thread", test_per_thread, 60},
    {"nccl/elsewhere_captured", test_elsewhere_captured, 60},
    {"nccl/beside", test_beside, 60},
    {"nccl/beside_late", test_beside_late, 60},
    {"nccl/captured_since", test_captured_since, 60},
};

static const test_case fake_nccl_beside_tests[] = {
    {"nccl/fake/close_bound", test_close_bound, 90},
    {"nccl/fake/close_lost", test_close_lost, 60},
    {"nccl/fake/close_cancels", test_close_cancels, 60},
    {"nccl/fake/close_bare", test_close_bare, 90},
    {"nccl/fake/marker_lost", test_marker_lost, 60},
    {"nccl/fake/branch_left", test_branch_left, 60},
    {"nccl/fake/destroy_fails", test_destroy_fails, 60},
    {"nccl/fake/destroy_left", test_destroy_left, 90},
    {"nccl/fake/device_elsewhere", test_device, 60},
    {"nccl/fake/talk_lost", test_talk_lost, 90},
    {"nccl/fake/timeout_whole", test_timeout_whole, 60},
};

#endif
