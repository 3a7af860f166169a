/* NCCL over the stand-in: what fails, where, and who is told. Uses t_nccl_laws.h. */
#ifndef T_NCCL_FAILURES_H
#define T_NCCL_FAILURES_H

/* ---- failures ---- */

/* One of the calls that make up a collective is refused: the comm ends, and the next one works. */
static void part_refused_rank(mesh_transport *t, void *ctx) {
    static const size_t counts[3] = {3, 4, 5};
    mesh_comm c;
    mesh_status status;
    float *a, *b;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 30 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    b = device_floats(&c, 100, 2);
    status = mesh_barrier(&c, NULL); /* nobody's memory comes after the failure, but the barrier's end may */
    if (status == MESH_OK) status = mesh_all_gather_v(&c, NULL, a, b, counts, NULL, MESH_F32);
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK(status == MESH_ERR_TRANSPORT || (t->rank != 1 && status == MESH_ERR_CANCELED));
    CHECK_HAS(c.error.text, "unhandled system error");
    mesh_free(c.transport, a, &c.error), mesh_free(c.transport, b, &c.error);
    mesh_comm_close(&c);
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_SUM), c.error);
    CHECK(device_holds(&c, a, 100, 3));
    mesh_free(c.transport, a, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_part_refused(void) { run_gpus_with(3, part_refused_rank, NULL, "FAKE_NCCL_FAIL", "1:ncclBroadcast:3"); }

/* A rank is lost: what it is not in goes on, and a rank that is blocked in CUDA is let go of at its deadline. */
static void apart_rank(mesh_transport *t, void *ctx) {
    mesh_comm all, pair;
    mesh_error err;
    mesh m;
    float *a;
    int i;
    (void)ctx;
    if (!open_comm(t, &all, "x=3", NULL, 20 * SECOND)) return;
    if (t->rank < 2) {
        CHECK_OK(mesh_parse(&m, "y=2", 2, &err), err);
        CHECK_OK(mesh_comm_open(&pair, t, &m, NULL, &err), err);
    }
    CHECK_OK(mesh_barrier(&all, NULL), all.error);
    world_meet(t); /* out of it: who still is inside may hear of the loss sooner than of the last message */
    if (t->rank == 2) kill(getpid(), SIGKILL);
    CHECK_INT(mesh_barrier(&all, NULL), MESH_ERR_PEER);
    a = device_floats(&pair, 100, 1);
    for (i = 0; i < 5; i++) CHECK_OK(mesh_all_reduce(&pair, NULL, a, a, 100, MESH_F32, MESH_SUM), pair.error);
    CHECK(device_holds(&pair, a, 100, 32));
    mesh_free(pair.transport, a, &pair.error);
    mesh_comm_close(&all);
    CHECK_OK(mesh_comm_close(&pair), pair.error);
}
static void test_apart(void) {
    gpu_job job = job_of(apart_rank, NULL);
    run_world_but(UNIX, 3, gpu_rank, &job, 2);
}
static void blocked_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    cudaStream_t stream;
    mesh_status status = MESH_OK;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, SECOND)) return;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_INT(mesh_comm_stream(&c, stream), MESH_OK);
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank == 0) {
        CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_SUM), c.error);
        CHECK_INT(cudaStreamSynchronize(stream), cudaSuccess); /* rank 1 does not call: the watchdog ends it */
    }
    while (status == MESH_OK) {
        CHECK_INT(t->ops->progress(t, t->ops->now(t) + SECOND / 100), MESH_OK);
        status = mesh_comm_sync(&c);
    }
    CHECK(status == MESH_ERR_TIMEOUT);
    mesh_comm_close(&c);
    cudaStreamDestroy(stream);
}
static void test_blocked(void) { run_gpus(2, blocked_rank, NULL); } /* takes the second, and the watchdog's two */

/* Without a watchdog the ranks compare their calls when they are in the library; two comms that differ in nothing but their calls are told apart. */
static void unwatched_rank(mesh_transport *t, void *ctx) {
    mesh_comm one, two;
    mesh_status status = MESH_OK;
    float *a;
    int i;
    (void)ctx;
    if (!open_comm(t, &one, "x=4", NULL, 20 * SECOND) || !open_comm(t, &two, "x=4", NULL, 20 * SECOND)) return;
    a = device_floats(&one, 4000, 1); /* not of the one that ends */
    for (i = 0; i < 20; i++) CHECK_OK(mesh_all_reduce(&one, NULL, a, a, 999, MESH_F32, MESH_MAX), one.error);
    status = mesh_all_reduce(&two, NULL, a, a, t->rank == 1 ? 1000 : 999, MESH_F32, MESH_MAX); /* heard by 2, which is not the last */
    while (status == MESH_OK) {
        CHECK_INT(t->ops->progress(t, t->ops->now(t) + SECOND / 100), MESH_OK);
        status = mesh_comm_sync(&two);
    }
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(two.error.text, "1000 x f32");
    CHECK_OK(mesh_comm_sync(&one), one.error);
    mesh_free(one.transport, a, &one.error);
    mesh_comm_close(&two);
    CHECK_OK(mesh_comm_close(&one), one.error);
}
static void test_unwatched(void) { run_unwatched(4, unwatched_rank, NULL); }

/* What another rank has told is compared as far as this one has come; a call is named only behind one that was the same. */
static mesh_nccl__comm *law_whole(mesh_comm *c) {
    const mesh_nccl__group *g = mesh_nccl__of(c->transport)->group;
    while (g && g->id != c->id << 8) g = g->next;
    return g ? g->c : NULL;
}
static void law_theirs(mesh_nccl__comm *k, uint64_t last, int wrong_from) { /* as this rank's own until call `wrong_from` of the last eight */
    mesh_nccl__history *h = &k->past;
    unsigned char *d = h->theirs;
    int i, level;
    mesh__put32(d, MESH_NCCL__MSG_HISTORY);
    mesh__put32(d + 4, MESH_NCCL__TOLD);
    for (level = 0; level < MESH_NCCL__LEVELS; level++) mesh__put64(d + 16 + level * MESH_NCCL__PAST_BYTES, level ? 0 : last);
    for (i = 0; i < MESH_NCCL__TOLD; i++) {
        uint64_t at = (last - MESH_NCCL__TOLD + 1 + (uint64_t)i) % MESH_NCCL__RECENT;
        mesh__record record = h->recent[at];
        if (i >= wrong_from) record.count += 7;
        mesh__put64(d + MESH_NCCL__HISTORY_HEAD + i * MESH_NCCL__CALL_BYTES, h->past[0][at].history ^ (uint64_t)(i >= wrong_from));
        mesh__record_write(d + MESH_NCCL__HISTORY_HEAD + i * MESH_NCCL__CALL_BYTES + 8, &record);
    }
    h->has_theirs = 1;
}
static void compared_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    int named = *(const int *)ctx, i;
    mesh_nccl__comm *k;
    mesh_comm c;
    mesh_status status = MESH_OK;
    float *a;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    for (i = 0; i < 20; i++) CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    k = law_whole(&c);
    CHECK(k != NULL);
    if (t->rank == 0) {
        pthread_mutex_lock(&s->boot_lock), pthread_mutex_lock(&s->lock);
        law_theirs(k, k->past.position + 2, 6); /* wrong is what this rank has not called yet */
        mesh_nccl__history_compare(s, k);
        CHECK(k->life != MESH_NCCL__ENDED && k->past.has_theirs);
        law_theirs(k, k->past.position, named ? 3 : 0);
        mesh_nccl__history_compare(s, k);
        CHECK(k->life == MESH_NCCL__ENDED);
        pthread_mutex_unlock(&s->lock), pthread_mutex_unlock(&s->boot_lock);
    }
    while (status == MESH_OK) {
        CHECK_INT(t->ops->progress(t, t->ops->now(t) + SECOND / 100), MESH_OK);
        status = mesh_comm_sync(&c);
    }
    CHECK_INT(status, MESH_ERR_MISMATCH);
    if (named && t->rank == 0) /* rank 1 has called nothing else */
        CHECK_HAS(c.error.text, "all_reduce(107 x f32, max)");
    if (!named)
        CHECK_HAS(c.error.text, "no longer remember where");
    mesh_free(c.transport, a, &c.error);
    mesh_comm_close(&c);
}
static void test_compared(void) {
    int named;
    for (named = 0; named < 2; named++) run_unwatched(2, compared_rank, &named);
}

/* A barrier is judged when it is over, and not when what was called before it is. */
static void judged_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_request r[2];
    mesh_comm c;
    float *a;
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_all_reduce_start(&c, NULL, a, a, 100, MESH_F32, MESH_MAX, &r[0]), c.error);
    if (t->rank == 1) world_await(0, 1);
    CHECK_OK(mesh_barrier_start(&c, NULL, &r[1]), c.error);
    CHECK_OK(mesh_wait_host(r[0]), c.error);
    world_say(0); /* rank 0's, first: its barrier cannot be over */
    CHECK_OK(mesh_wait_host(r[1]), c.error);
    for (i = 0; i < 3; i++) {
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        CHECK_OK(mesh_comm_sync(&c), c.error);
    }
    pthread_mutex_lock(&s->lock);
    CHECK(!law_whole(&c)->past.disagreed && !s->inside);
    pthread_mutex_unlock(&s->lock);
    mesh_free(c.transport, a, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_judged(void) { run_gpus(2, judged_rank, NULL); }

/* A device that fails ends what is under way on it, and says whose it is. */
static cudaError_t law_broken_query(cudaEvent_t event) {
    (void)event;
    return cudaErrorLaunchFailure;
}
static void broken_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    cudaError_t (*query)(cudaEvent_t);
    mesh_request r;
    mesh_comm c;
    mesh_status status;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    pthread_mutex_lock(&s->lock);
    query = s->api.cudaEventQuery;
    if (t->rank == 1) s->api.cudaEventQuery = law_broken_query;
    pthread_mutex_unlock(&s->lock);
    status = mesh_all_reduce_start(&c, NULL, a, a, 100, MESH_F32, MESH_SUM, &r);
    if (status == MESH_OK) status = mesh_wait_host(r);
    while (status == MESH_OK) status = mesh_comm_sync(&c);
    CHECK(status == MESH_ERR_TRANSPORT || (t->rank == 0 && status == MESH_ERR_CANCELED));
    CHECK_INT(c.error.rank, 1);
    CHECK_HAS(c.error.text, "the device: ");
    pthread_mutex_lock(&s->lock);
    s->api.cudaEventQuery = query;
    pthread_mutex_unlock(&s->lock);
    mesh_free(c.transport, a, &c.error);
    mesh_comm_close(&c);
}
static void test_broken_device(void) { run_gpus(2, broken_rank, NULL); }

/* What is asked of CUDA: a stream waits where there is something to wait for, and only there. */
static mesh_nccl__api law_api;
static int law_waits, law_records, law_devices;
static cudaError_t law_wait(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    law_waits++;
    return law_api.cudaStreamWaitEvent(stream, event, flags);
}
static cudaError_t law_record(cudaEvent_t event, cudaStream_t stream) {
    law_records++;
    return law_api.cudaEventRecord(event, stream);
}
static cudaError_t law_device_get(int *device) {
    law_devices++;
    return law_api.cudaGetDevice(device);
}
static cudaError_t law_not_ready(cudaEvent_t event) {
    (void)event;
    return cudaErrorNotReady;
}
static void asked_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *k;
    mesh_request r;
    mesh_comm c;
    cudaStream_t stream;
    cudaGraph_t graph;
    mesh_ticket ticket;
    int64_t due;
    float *a, *b;
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_INT(mesh_comm_stream(&c, stream), MESH_OK);
    a = device_floats(&c, 100, 1);
    b = device_floats(&c, 100, 1);
    k = law_whole(&c);
    law_api = s->api;
    s->api.cudaStreamWaitEvent = law_wait, s->api.cudaEventRecord = law_record, s->api.cudaGetDevice = law_device_get;
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX), c.error);
    law_waits = law_devices = 0;
    due = k->due;
    for (i = 0; i < 5; i++) CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_MAX), c.error);
    CHECK_INT(law_waits, 0);   /* on the stream of the one before it */
    CHECK_INT(law_devices, 5); /* each is inside once */
    CHECK(k->issued - k->marked == 6 && k->due == due && k->last_due > due); /* the first that has no mark is the first due */
    CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    pthread_mutex_lock(&s->lock);
    law_records = 0;
    mesh_nccl__mark_now(s, k); /* not into the program's graph */
    CHECK(law_records == 0 && k->marked != k->issued);
    pthread_mutex_unlock(&s->lock);
    CHECK_OK(mesh_all_reduce_start(&c, NULL, a, a, 100, MESH_F32, MESH_MAX, &r), c.error);
    law_waits = 0;
    CHECK_OK(mesh_wait(r), c.error);
    CHECK_INT(law_waits, 1); /* in the graph the stream comes behind what was started */
    CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    if (t->rank == 1) world_await(0, 1); /* so that what rank 0 has started is under way */
    CHECK_OK(mesh_all_reduce_start(&c, NULL, a, a, 100, MESH_F32, MESH_MAX, &r), c.error);
    law_waits = 0;
    CHECK_OK(mesh_all_reduce(&c, NULL, b, b, 100, MESH_F32, MESH_MAX), c.error);
    if (t->rank == 0) CHECK_INT(law_waits, 1); /* the caller's stream, behind it */
    world_say(0);
    CHECK_OK(mesh_wait_host(r), c.error);
    CHECK_OK(t->rank ? mesh_send(&c, NULL, 0, a, 2, MESH_F32) : mesh_recv(&c, NULL, 1, a, 2, MESH_F32), c.error); /* connects */
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    if (t->rank == 0) { /* what has failed on the host may still be under way on the device */
        mesh_post p;
        mesh_xfer x;
        mesh_error why;
        memset(&p, 0, sizeof p), memset(&x, 0, sizeof x), memset(&ticket, 0, sizeof ticket);
        x.base = a, x.nbytes = 8, x.direction = MESH_RECV, x.rank = x.index = 1;
        p.xfer = &x, p.count = 1, p.group = s->group;
        CHECK_INT(t->ops->post(t, &p, &ticket), MESH_OK); /* rank 1 does not send it */
        s->api.cudaEventQuery = law_not_ready;
        pthread_mutex_lock(&s->lock);
        mesh_nccl__mark_now(s, k);
        mesh_nccl__end(s, k, MESH_ERR_CANCELED, 0, "for a test");
        pthread_mutex_unlock(&s->lock);
        CHECK_INT(t->ops->test(t, &ticket, &why), MESH_IN_PROGRESS);
        s->api.cudaEventQuery = law_api.cudaEventQuery;
        while (t->ops->test(t, &ticket, &why) == MESH_IN_PROGRESS) t->ops->progress(t, t->ops->now(t) + SECOND / 100);
        CHECK_INT(t->ops->test(t, &ticket, &why), MESH_ERR_CANCELED);
        CHECK_HAS(why.text, "for a test");
    }
    api_back(s, &law_api);
    mesh_free(c.transport, a, &c.error), mesh_free(c.transport, b, &c.error);
    mesh_comm_close(&c);
    cudaStreamDestroy(stream);
}
static void test_asked(void) { run_unwatched(2, asked_rank, NULL); }

/* Staging grows with what goes through it. NCCL is not told of it: another rank's end of the same message may be in memory that is not registered. */
static ncclResult_t (*staging_real)(const ncclComm_t, void *, size_t, void **);
static int staging_registered;
static ncclResult_t staging_register(const ncclComm_t comm, void *p, size_t nbytes, void **handle) {
    staging_registered++;
    return staging_real(comm, p, nbytes, handle);
}
static void staging_rank(mesh_transport *t, void *ctx) {
    static const size_t counts[] = {10, 200000, 500, 900000, 3000000};
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_comm c;
    mesh_nccl__comm *k;
    size_t i, held = 0;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    k = law_whole(&c);
    pthread_mutex_lock(&s->lock);
    staging_real = s->api.ncclCommRegister, s->api.ncclCommRegister = staging_register;
    pthread_mutex_unlock(&s->lock);
    for (i = 0; i < sizeof counts / sizeof *counts; i++) {
        float *a = device_floats(&c, 2 * counts[i], (float)t->rank);
        CHECK_OK(mesh_all_to_all(&c, NULL, a, a, counts[i], MESH_F32), c.error); /* in place, from a copy */
        CHECK(device_holds(&c, a, counts[i], 0) && device_holds(&c, a + counts[i], counts[i], 1));
        CHECK(k->staging && k->staging->nbytes >= 8 * counts[i] && k->staging->nbytes >= held);
        held = k->staging ? (size_t)k->staging->nbytes : 0;
        mesh_free(c.transport, a, &c.error);
    }
    CHECK_INT(staging_registered, 0);
    pthread_mutex_lock(&s->lock);
    s->api.ncclCommRegister = staging_real;
    pthread_mutex_unlock(&s->lock);
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_staging(void) { run_gpus(2, staging_rank, NULL); }

/* Memory is registered on every rank or on none. */
static void half_registered_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    void *handle = NULL;
    mesh_comm c;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 1 << 20, 1);
    CHECK_OK(mesh_register(&c, a, 4 << 20, &handle), c.error);
    CHECK(!s->registration); /* rank 1's NCCL has refused */
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 1 << 20, MESH_F32, MESH_SUM), c.error);
    CHECK(device_holds(&c, a, 1 << 20, 3));
    CHECK_INT(mesh_unregister(&c, handle), MESH_OK);
    CHECK_OK(mesh_register(&c, a, 4 << 20, &handle), c.error);
    CHECK(s->registration != NULL);
    CHECK_INT(mesh_unregister(&c, handle), MESH_OK);
    mesh_free(c.transport, a, &c.error);
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_half_registered(void) {
    gpu_job job = job_of(half_registered_rank, NULL);
    job.set[0][0] = "FAKE_NCCL_VERSION", job.set[0][1] = "22600";
    job.set[1][0] = "FAKE_NCCL_FAIL", job.set[1][1] = "1:ncclCommRegister:1";
    run_world(UNIX, 3, gpu_rank, &job);
}

/* Memory that a communicator has registered stays until its abort is over, whoever has given it back: where all had registered it, where another rank
   could not. */
static mesh_nccl__api held_api;
static mesh_nccl__state *held_state;
static int held_word;
static ncclResult_t held_abort(ncclComm_t comm) {
    world_await(held_word, 1);
    return held_api.ncclCommAbort(comm);
}
static ncclResult_t held_register(const ncclComm_t comm, void *p, size_t nbytes, void **handle) {
    ncclResult_t r = held_api.ncclCommRegister(comm, p, nbytes, handle);
    pthread_mutex_lock(&held_state->lock);
    mesh_nccl__end(held_state, held_state->inside, MESH_ERR_CANCELED, 0, "for a test");
    pthread_mutex_unlock(&held_state->lock);
    return r;
}
static int held_has(const mesh_nccl__state *s, const void *p) {
    const mesh_nccl__memory *m = s->memory;
    while (m && m->p != p) m = m->next;
    return m != NULL;
}
static void held_rank(mesh_transport *t, void *ctx) {
    int refused = *(const int *)ctx, stopping;
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *k;
    mesh_comm c;
    mesh_status status;
    void *handle = NULL;
    float *a;
    double end = test_now() + 60;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    k = law_whole(&c);
    a = device_floats(&c, 1 << 20, 1);
    pthread_mutex_lock(&s->lock);
    held_state = s, held_api = s->api, held_word = t->rank;
    s->api.ncclCommAbort = held_abort;
    if (refused && t->rank == 0) s->api.ncclCommRegister = held_register;
    pthread_mutex_unlock(&s->lock);
    status = mesh_register(&c, a, 4 << 20, &handle);
    CHECK(status == MESH_OK || (refused && status == MESH_ERR_CANCELED && !handle));
    CHECK_INT(s->registration != NULL, !refused || t->rank == 0);
    world_meet(t);
    if (t->rank == 0) mesh_abort(&c, "for a test");
    while (status == MESH_OK) {
        CHECK_INT(t->ops->progress(t, t->ops->now(t) + SECOND / 100), MESH_OK);
        status = mesh_comm_sync(&c);
    }
    mesh_comm_close(&c);
    CHECK_OK(mesh_free(t, a, &c.error), c.error);
    mesh_nccl__pool_trim(s);
    CHECK_INT(held_has(s, a), !refused || t->rank == 0);
    world_say(held_word);
    for (stopping = 1; stopping && test_now() < end; test_sleep(0.0005)) {
        pthread_mutex_lock(&s->lock);
        stopping = mesh_nccl__stopping(s, k);
        pthread_mutex_unlock(&s->lock);
    }
    mesh_nccl__pool_trim(s);
    CHECK(!held_has(s, a));
    pthread_mutex_lock(&s->lock);
    s->api.ncclCommAbort = held_api.ncclCommAbort;
    s->api.ncclCommRegister = held_api.ncclCommRegister;
    pthread_mutex_unlock(&s->lock);
}
static void test_held(void) {
    int refused = 0;
    run_gpus(2, held_rank, &refused);
    for (refused = 0; refused < 2; refused++) {
        gpu_job job = job_of(held_rank, &refused);
        job.set[0][0] = "FAKE_NCCL_VERSION", job.set[0][1] = "22600";
        if (refused) job.set[1][0] = "FAKE_NCCL_FAIL", job.set[1][1] = "1:ncclCommRegister:1";
        run_world(UNIX, 2, gpu_rank, &job);
    }
}

/* The caller's stream may end when a comm that has failed is closed: no mark is being put on it any more. */
static struct {
    pthread_t main;
    cudaError_t (*real)(cudaEvent_t, cudaStream_t);
    int armed, held, closed;
} close_ended;
static cudaError_t close_ended_record(cudaEvent_t event, cudaStream_t stream) {
    double end = test_now() + 0.2; /* who does not wait for this thread would be through */
    if (!pthread_equal(pthread_self(), close_ended.main) && __sync_add_and_fetch(&close_ended.armed, 0)) {
        __sync_add_and_fetch(&close_ended.held, 1);
        while (!__sync_add_and_fetch(&close_ended.closed, 0) && test_now() < end) test_sleep(0.0005);
    }
    return close_ended.real(event, stream);
}
static void close_ended_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *k;
    mesh_comm c;
    cudaStream_t stream;
    float *a;
    double end = test_now() + 40;
    (void)ctx;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    k = law_whole(&c);
    a = device_floats(&c, 64, 1);
    CHECK_OK(mesh_comm_stream(&c, stream), c.error);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 64, MESH_F32, MESH_MAX), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    close_ended.main = pthread_self();
    pthread_mutex_lock(&s->lock);
    while (k->marking) pthread_cond_wait(&s->out, &s->lock);
    close_ended.real = s->api.cudaEventRecord;
    s->api.cudaEventRecord = close_ended_record;
    close_ended.armed = 1;
    if (k->issued == k->marked) k->marked--; /* there is one to put again */
    mesh_nccl__want_mark(s, k);
    pthread_mutex_unlock(&s->lock);
    while (!__sync_add_and_fetch(&close_ended.held, 0) && test_now() < end) test_sleep(0.0005);
    mesh_abort(&c, "for a test");
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    __sync_add_and_fetch(&close_ended.closed, 1);
    pthread_mutex_lock(&s->lock);
    CHECK(!k->marking && k->on == k->stream);
    s->api.cudaEventRecord = close_ended.real;
    pthread_mutex_unlock(&s->lock);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_OK(mesh_free(t, a, &c.error), c.error);
}
static void test_close_ended(void) { run_gpus(1, close_ended_rank, NULL); }

/* In debug mode both ends of a message say its length before NCCL is asked. */
static void lengths_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    float *a;
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    status = t->rank ? mesh_recv(&c, NULL, 0, a, 7, MESH_F32) : mesh_send(&c, NULL, 1, a, 6, MESH_F32);
    while (status == MESH_OK) status = mesh_comm_sync(&c);
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "send(6 x f32");
    CHECK_HAS(c.error.text, "recv(7 x f32");
    mesh_free(c.transport, a, &c.error);
    mesh_comm_close(&c);
}
static void test_lengths(void) { run_gpus_with(2, lengths_rank, NULL, "MESH_NCCL_DEBUG", "1"); }

/* Communicators are told apart by their numbers on every rank, also where some ranks have made more of them than others. */
static void numbers_rank(mesh_transport *t, void *ctx) {
    static const int two = 2;
    mesh_nccl__state *s = mesh_nccl__of(t);
    const mesh_nccl__comm *k, *other;
    mesh_comm pair[3], all[2];
    mesh_desc d = MESH_ZERO;
    mesh_error err;
    mesh m;
    int i;
    (void)ctx;
    d.shape = &two, d.naxes = 1, d.origin = 1;
    CHECK_OK(mesh_make(&m, &d, &err), err);
    for (i = 0; i < 3 && t->rank; i++) CHECK_OK(mesh_comm_open(&pair[i], t, &m, NULL, &err), err);
    for (i = 0; i < 2; i++) /* the first has what mesh_nccl_open made */
        if (!open_comm(t, &all[i], "x=3", NULL, 20 * SECOND)) return;
    for (k = s->comm; k; k = k->next)
        for (other = k->next; other; other = other->next) CHECK(!k->serial || k->serial != other->serial);
    for (i = 0; i < 2; i++) CHECK_OK(mesh_comm_close(&all[i]), all[i].error);
    for (i = 0; i < 3 && t->rank; i++) CHECK_OK(mesh_comm_close(&pair[i]), pair[i].error);
}
static void test_numbers(void) { run_gpus(3, numbers_rank, NULL); }

/* Who has called is not named, though it computes now and only its watchdog can answer: by a collective of NCCL's, by messages. */
static void rolled_rank(mesh_transport *t, void *ctx) {
    int messages = *(int *)ctx;
    mesh_comm c;
    mesh_request r;
    float *a;
    if (!open_comm(t, &c, "x=3", NULL, 2 * SECOND)) return;
    a = device_floats(&c, 12, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank < 2)
        CHECK_OK(messages ? mesh_scan_start(&c, NULL, a, a + 6, 6, MESH_F32, MESH_SUM, &r)
                          : mesh_all_reduce_start(&c, NULL, a, a, 12, MESH_F32, MESH_SUM, &r),
                 c.error);
    if (t->rank == 0) {
        CHECK_INT(mesh_wait_host(r), MESH_ERR_TIMEOUT);
        CHECK_INT(c.error.rank, 2);
        CHECK(!strstr(c.error.text, "rank 1"));
        world_say(1);
    } else {
        world_await(1, 1);
    }
    mesh_free(c.transport, a, &c.error);
    mesh_comm_close(&c);
}
static void test_rolled(void) {
    int messages;
    for (messages = 0; messages < 2; messages++) run_gpus(3, rolled_rank, &messages);
}

/* Nothing puts marks but who waits; or the marker too, again. */
static int law_marker;
static void law_marks_stop(mesh_nccl__state *s, const mesh_nccl__comm *k) {
    pthread_mutex_lock(&s->lock);
    law_marker = s->marks, s->marks = 0;
    while (k->marking) pthread_cond_wait(&s->out, &s->lock);
    pthread_mutex_unlock(&s->lock);
}
static void law_marks_again(mesh_nccl__state *s) {
    pthread_mutex_lock(&s->lock);
    s->marks = law_marker;
    pthread_mutex_unlock(&s->lock);
}

/* Who has not called what comes after the operation whose deadline passes is named, and that: on the caller's stream its end is told with theirs. Of
   the others many calls more are believed. */
static void behind_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    int more = *(const int *)ctx, fewer[4], i;
    mesh_comm c;
    float *a;
    if (!open_comm(t, &c, "x=4", NULL, 4 * SECOND)) return;
    a = device_floats(&c, 12, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    law_marks_stop(s, law_whole(&c));
    for (i = 0; i < 2; i++) CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 12, MESH_F32, MESH_MAX), c.error);
    fewer[0] = 0, fewer[1] = more > 1, fewer[2] = more, fewer[3] = more - 1; /* the last two are away then */
    for (i = fewer[t->rank]; i < more; i++) CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 12, MESH_F32, MESH_MIN), c.error);
    world_say(0);
    if (t->rank < 2) {
        world_await(0, 4);
        CHECK_INT(mesh_comm_sync(&c), MESH_ERR_TIMEOUT);
        CHECK_INT(c.error.rank, 2);
        CHECK_HAS(c.error.text, "all_reduce(12 x f32, min) on \"x\", sequence 4: deadline");
        CHECK_HAS(c.error.text, "rank 2 has not called it;");
        world_say(1);
    } else {
        world_await(1, 2);
    }
    law_marks_again(s);
    mesh_free(c.transport, a, &c.error);
    mesh_comm_close(&c);
}
static void test_behind(void) {
    int more;
    for (more = 1; more <= 300; more += 299) run_gpus(4, behind_rank, &more);
}

/* A device that hangs is nobody's fault, also where one has called more than another that waits for it too. */
static void hangs_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    cudaError_t (*query)(cudaEvent_t);
    mesh_comm c;
    float *a;
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 4 * SECOND)) return;
    a = device_floats(&c, 12, 1);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    law_marks_stop(s, law_whole(&c));
    pthread_mutex_lock(&s->lock);
    query = s->api.cudaEventQuery, s->api.cudaEventQuery = law_not_ready;
    pthread_mutex_unlock(&s->lock);
    if (t->rank) mesh__impl(&c)->timeout = 40 * SECOND; /* rank 0 finds it */
    for (i = 0; i < 3 - t->rank; i++) CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 12, MESH_F32, MESH_MAX), c.error);
    world_say(0);
    world_await(0, 3);
    CHECK_INT(mesh_comm_sync(&c), MESH_ERR_TIMEOUT);
    if (t->rank == 0) CHECK_INT(c.error.rank, -1);
    CHECK_HAS(c.error.text, "sequence 2: deadline of 4000 ms passed; every rank has called it: ");
    pthread_mutex_lock(&s->lock);
    s->api.cudaEventQuery = query;
    pthread_mutex_unlock(&s->lock);
    law_marks_again(s);
    mesh_free(c.transport, a, &c.error);
    mesh_comm_close(&c);
}
static void test_hangs(void) { run_gpus(3, hangs_rank, NULL); }

/* A barrier that has no place for a verdict, as in a graph, says nothing to those that have one. */
static void neutral_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *k;
    mesh_comm c;
    int i, way;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    k = law_whole(&c);
    for (way = 0; way < 2; way++) { /* one of them has none; both have */
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        CHECK_OK(mesh_comm_sync(&c), c.error);
        pthread_mutex_lock(&s->lock);
        for (i = 0; i < MESH_NCCL__BARRIERS && t->rank == 0; i++) k->past.barrier[i] = way ? 0 : UINT64_MAX;
        pthread_mutex_unlock(&s->lock);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        CHECK_OK(mesh_comm_sync(&c), c.error);
    }
    CHECK_OK(mesh_comm_close(&c), c.error);
}
static void test_neutral(void) { run_gpus(2, neutral_rank, NULL); }

/* What NCCL says of a group's calls, it says at the group's end. */
static ncclResult_t law_group_end(void) {
    law_api.ncclGroupEnd();
    return ncclInvalidUsage;
}
static void group_end_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_buffer list[2];
    mesh_comm c;
    float *a;
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    for (i = 0; i < 2; i++) list[i].send = list[i].recv = a + 50 * i, list[i].count = 50;
    CHECK_OK(mesh_all_reduce_many(&c, NULL, list, 2, MESH_F32, MESH_SUM), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    law_api = s->api;
    s->api.ncclGroupEnd = law_group_end;
    CHECK_INT(mesh_all_reduce_many(&c, NULL, list, 2, MESH_F32, MESH_SUM), MESH_ERR_TRANSPORT);
    CHECK_HAS(c.error.text, "invalid usage");
    s->api.ncclGroupEnd = law_api.ncclGroupEnd; /* only that: threads of the transport read the others */
    mesh_free(c.transport, a, &c.error);
    mesh_comm_close(&c);
}
static void test_group_end(void) { run_gpus(2, group_end_rank, NULL); }

/* Kernels are used where every rank has them: one without memory for them is enough, and its reason is told. */
static void *no_ptx(void *ctx, size_t n) {
    (void)ctx;
    return n == MESH__PTX_BYTES + 1 ? NULL : malloc(n ? n : 1);
}
static void no_ptx_free(void *ctx, void *p) {
    (void)ctx;
    free(p);
}
static void no_kernels_rank(mesh_transport *boot, void *ctx) {
    mesh_nccl gpu;
    mesh_nccl__state *s;
    mesh_comm c;
    mesh_error err;
    mesh_moe m;
    mesh_moe_desc d = MESH_ZERO;
    float *a;
    (void)ctx;
    if (boot->rank == 1) boot->allocator.alloc = no_ptx, boot->allocator.free = no_ptx_free;
    boot->timeout_ns = 77 * SECOND; /* MESH_TIMEOUT's */
    CHECK_OK(mesh_nccl_open(&gpu, boot, NULL, &err), err);
    CHECK_INT(gpu.base.timeout_ns, 77 * SECOND);
    s = mesh_nccl__of(&gpu.base);
    CHECK_INT(s->has_kernels, 0);
    CHECK_HAS(s->no_kernels, boot->rank == 1 ? "no memory for the kernels" : "another rank has none");
    if (!open_comm(&gpu.base, &c, "x=3", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, 1);
    CHECK_OK(mesh_all_reduce(&c, NULL, a, a, 100, MESH_F32, MESH_SUM), c.error);
    CHECK(device_holds(&c, a, 100, 3));
    mesh_free(c.transport, a, &c.error);
    world_meet(boot);
    d.experts = 3, d.top_k = 1, d.width = 8, d.max_tokens = 4, d.dtype = MESH_F32;
    CHECK_INT(mesh_moe_open(&m, &c, "x", &d), MESH_ERR_UNSUPPORTED);
    CHECK_HAS(c.error.text, "mesh_moe_open: work on rows needs kernels, and ");
    mesh_comm_close(&c);
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
}
static void test_no_kernels(void) { run_world(UNIX, 3, no_kernels_rank, NULL); }

/* The watchdog ends a communicator when the main thread is about to connect it: NCCL is not called for it any more, and why is told. */
static mesh_nccl__state *connects_state;
static cudaError_t (*connects_device)(int *);
static cudaError_t connects_ended(int *device) {
    mesh_nccl__state *s = connects_state;
    mesh_nccl__comm *c;
    mesh_nccl__stop *stop;
    double end = test_now() + 20;
    int ended = 0, over = 0;
    if (pthread_mutex_trylock(&s->boot_lock)) return connects_device(device);
    if (pthread_mutex_trylock(&s->lock)) {
        pthread_mutex_unlock(&s->boot_lock);
        return connects_device(device);
    }
    for (c = s->comm; c; c = c->next)
        if (c->life == MESH_NCCL__CONNECTING) mesh_nccl__end(s, c, MESH_ERR_PEER, 1, "rank 1 was lost, say"), ended = 1;
    if (ended) mesh_nccl__act(s);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_unlock(&s->boot_lock);
    while (ended && !over && test_now() < end) { /* until it is no communicator of NCCL's any more */
        pthread_mutex_lock(&s->lock);
        for (over = 1, stop = s->stops; stop; stop = stop->next) {
            pthread_mutex_lock(&stop->lock);
            over &= stop->over;
            pthread_mutex_unlock(&stop->lock);
        }
        pthread_mutex_unlock(&s->lock);
        test_sleep(0.0005);
    }
    return connects_device(device);
}
static void connects_ended_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_comm_desc d = MESH_ZERO;
    mesh_comm c;
    mesh_error err;
    mesh m;
    (void)ctx;
    connects_state = s, connects_device = s->api.cudaGetDevice;
    s->api.cudaGetDevice = connects_ended;
    d.timeout_ns = 20 * SECOND;
    CHECK_OK(mesh_parse(&m, "dp=2,tp=-1", t->size, &err), err);
    CHECK_INT(mesh_comm_open(&c, t, &m, &d, &err), MESH_ERR_PEER);
    CHECK_HAS(err.text, "rank 1 was lost, say");
    world_meet(t);
    s->api.cudaGetDevice = connects_device;
}
static void test_connects_ended(void) { run_gpus(4, connects_ended_rank, NULL); }

/* A rank has closed the comm, or its transport too, in which two others have yet a message: nobody waits for it, whatever they ask it meanwhile. */
static const mesh_ops *closed_beside_ops;
static mesh_status closed_beside_send(mesh_transport *t, int rank, int kind, const void *data, size_t nbytes) {
    mesh_status status = closed_beside_ops->control_send(t, rank, kind, data, nbytes);
    if (kind == MESH_EVENT_ABORT) world_say(1); /* it was asked, and has answered */
    return status;
}
static void closed_beside_leaves(mesh_nccl__state *s) { /* its transport closes too, and answers over the bootstrap */
    static mesh_ops ops;
    closed_beside_ops = s->boot->ops, ops = *closed_beside_ops;
    ops.control_send = closed_beside_send;
    boot_ops(s, &ops);
}
static void closed_beside_rank(mesh_transport *t, void *ctx) {
    int way = *(const int *)ctx;
    mesh_ops ops = *t->ops;
    mesh_comm c;
    float *a;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    a = device_floats(&c, 100, (float)t->rank);
    if (t->rank == 0) CHECK_OK(mesh_send(&c, NULL, 1, a, 10, MESH_F32), c.error);
    if (t->rank == 1) CHECK_OK(mesh_recv(&c, NULL, 0, a, 10, MESH_F32), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    if (t->rank == 2) {
        double end = test_now() + 30;
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
        if (way > 1) closed_beside_leaves(mesh_nccl__of(t));
        world_say(2);
        if (way > 1) return;
        closed_beside_ops = t->ops;
        ops.control_send = closed_beside_send;
        t->ops = &ops;
        while (__sync_add_and_fetch(&world_word[3], 0) < 2 && test_now() < end) mesh_progress(t, mesh_now(t) + SECOND / 100);
        t->ops = closed_beside_ops;
        return;
    }
    world_await(2, 1);
    if (t->rank == 1) world_await(1, 3);
    if (t->rank == 0)
        CHECK_OK(mesh_send(&c, NULL, 1, a, 10, MESH_F32), c.error);
    else
        CHECK_OK(mesh_recv(&c, NULL, 0, a, 10, MESH_F32), c.error);
    if (way % 2 == 0) CHECK_OK(mesh_comm_sync(&c), c.error);
    CHECK(device_holds(&c, a, 10, 0));
    world_say(3);
    world_await(3, 2);
    mesh_comm_close(&c);
}
static void test_closed_beside(void) {
    int way;
    for (way = 0; way < 4; way++) run_gpus(3, closed_beside_rank, &way);
}

/* Who compares calls before they are made waits there for one that has closed the comm: told when the roll is called, as without comparing. */
static void closed_debug_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 4 * SECOND)) return;
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    if (t->rank == 0) {
        double end = test_now() + 60;
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
        while (!__sync_add_and_fetch(&world_word[0], 0) && test_now() < end) mesh_progress(t, mesh_now(t) + SECOND / 100);
        return;
    }
    while (mesh_barrier(&c, NULL) == MESH_OK && mesh_comm_sync(&c) == MESH_OK) {}
    CHECK_INT(c.error.status, MESH_ERR_PEER);
    CHECK_INT(c.error.rank, 0);
    CHECK_HAS(c.error.text, "rank 0 has closed this comm while it was needed");
    world_say(0);
    mesh_comm_close(&c);
}
static void test_closed_debug(void) { run_gpus_with(2, closed_debug_rank, NULL, "MESH_NCCL_DEBUG", "1"); }

/* What a failed opening has said comes late, in the next one over that bootstrap: it is none of its business. */
static const mesh_ops *reopened_ops;
static unsigned char reopened_data[MESH_CONTROL_BYTES];
static size_t reopened_bytes;
static mesh_status reopened_send(mesh_transport *t, int rank, int kind, const void *data, size_t nbytes) {
    if (kind == MESH_EVENT_ABORT && rank == 2) memcpy(reopened_data, data, reopened_bytes = nbytes);
    return reopened_ops->control_send(t, rank, kind, data, nbytes);
}
static mesh_status reopened_poll(mesh_transport *t, mesh_control *out) {
    mesh_status status = reopened_ops->control_poll(t, out);
    if (status == MESH_OK && out->kind == MESH_EVENT_ABORT) world_say(1); /* it has come */
    return status;
}
static void reopened_rank(mesh_transport *boot, void *ctx) {
    mesh_ops ops = *boot->ops;
    mesh_nccl gpu;
    mesh_error err;
    char rank[16];
    (void)ctx;
    snprintf(rank, sizeof rank, "%d", boot->rank);
    setenv("RANK", rank, 1);
    setenv("FAKE_NCCL_FAIL", "1:ncclBroadcast:1", 1);
    reopened_ops = boot->ops;
    ops.control_send = reopened_send;
    boot->ops = &ops;
    CHECK_INT(mesh_nccl_open(&gpu, boot, NULL, &err), MESH_ERR_TRANSPORT);
    CHECK_INT(err.rank, 1);
    ops.control_send = reopened_ops->control_send;
    if (boot->rank == 2) ops.control_poll = reopened_poll;
    world_meet(boot);
    if (boot->rank == 1) {
        CHECK(reopened_bytes > 0);
        CHECK_INT(boot->ops->control_send(boot, 2, MESH_EVENT_ABORT, reopened_data, reopened_bytes), MESH_OK);
    }
    if (boot->rank == 0) world_await(1, 1);
    CHECK_OK(mesh_nccl_open(&gpu, boot, NULL, &err), err);
    CHECK_INT(mesh_nccl_close(&gpu), MESH_OK);
    boot->ops = reopened_ops;
}
static void test_reopened(void) { run_world(UNIX, 3, reopened_rank, NULL); }

/* That a rank has closed the comm, said late to who had asked, ends no comparison of a message between two others. Words: 1 rank 0 compares, 2 it has
   been told. */
static const mesh_ops *compared_ops;
static mesh_status compared_post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    mesh_status status = compared_ops->post(t, p, ticket);
    world_say(1);
    return status;
}
static mesh_status compared_poll(mesh_transport *t, mesh_control *out) {
    mesh_status status = compared_ops->control_poll(t, out);
    if (status == MESH_OK && out->kind == MESH_EVENT_ABORT) world_say(2);
    return status;
}
static void closed_compared_rank(mesh_transport *t, void *ctx) {
    static mesh_ops ops;
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_comm c;
    uint32_t id;
    float *a;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    id = c.id;
    a = device_floats(&c, 100, (float)t->rank);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    if (t->rank == 0) {
        compared_ops = s->boot->ops, ops = *compared_ops;
        ops.post = compared_post, ops.control_poll = compared_poll;
        boot_ops(s, &ops);
        CHECK_OK(mesh_recv(&c, NULL, 1, a, 10, MESH_F32), c.error);
        CHECK(device_holds(&c, a, 10, 1));
    } else if (t->rank == 1) {
        world_await(2, 1);
        CHECK_OK(mesh_send(&c, NULL, 0, a, 10, MESH_F32), c.error);
    } else {
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
        world_await(1, 1);
        CHECK_INT(mesh__say_closed((mesh__engine *)t->engine, 0, id), 1);
    }
    if (t->rank < 2) CHECK_OK(mesh_comm_sync(&c), c.error);
    world_meet(t);
    if (t->rank < 2) CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_closed_compared(void) { run_gpus_with(3, closed_compared_rank, NULL, "MESH_NCCL_DEBUG", "1"); }

/* A time to open that no clock reaches is long, and one below zero is none that was given. */
static void open_long_rank(mesh_transport *t, void *ctx) {
    (void)ctx;
    CHECK(t->size == 2);
}
static void test_open_long(void) {
    int k;
    for (k = 0; k < 2; k++) {
        gpu_job job = job_of(open_long_rank, NULL);
        job.desc.open_timeout_ns = k ? -1 : INT64_MAX;
        run_world(UNIX, 2, gpu_rank, &job);
    }
}

/* A rank that has no stream, or no memory, for a communicator says so to the others, the first as well as the last; the next opening is whole. */
static cudaError_t no_stream(cudaStream_t *stream, unsigned flags) {
    (void)stream, (void)flags;
    return cudaErrorMemoryAllocation;
}
static cudaError_t no_malloc(void **p, size_t nbytes) {
    (void)p, (void)nbytes;
    return cudaErrorMemoryAllocation;
}
static void no_stream_rank(mesh_transport *t, void *ctx) {
    int wrong = *(const int *)ctx;
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__api api = s->api;
    mesh_comm_desc d = MESH_ZERO;
    mesh_comm c, other;
    mesh_error err;
    d.timeout_ns = 40 * SECOND;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
    if (t->rank == wrong && !wrong) s->api.cudaStreamCreateWithFlags = no_stream;
    if (t->rank == wrong && wrong) s->api.cudaMalloc = no_malloc;
    CHECK_INT(mesh_comm_open(&other, t, &c.on, &d, &err), MESH_ERR_MEMORY);
    CHECK_INT(err.rank, wrong);
    CHECK_HAS(err.text, wrong ? "cudaMalloc: out of memory" : "cudaStreamCreateWithFlags: out of memory");
    api_back(s, &api);
    CHECK_OK(mesh_comm_open(&other, t, &c.on, &d, &err), err);
    CHECK_OK(mesh_barrier(&other, NULL), other.error);
    CHECK_INT(mesh_comm_close(&other), MESH_OK);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_no_stream(void) {
    int wrong;
    for (wrong = 0; wrong < 3; wrong += 2) run_gpus(3, no_stream_rank, &wrong);
}

static const test_case fake_nccl_failure_tests[] = {
    {"nccl/fake/no_stream", test_no_stream, 60},
    {"nccl/fake/connects_ended", test_connects_ended, 60},
    {"nccl/fake/open_long", test_open_long, 60},
    {"nccl/fake/closed_beside", test_closed_beside, 90},
    {"nccl/fake/reopened", test_reopened, 90},
    {"nccl/fake/closed_compared", test_closed_compared, 0},
    {"nccl/fake/closed_debug", test_closed_debug, 90},
    {"nccl/fake/held", test_held, 90},
    {"nccl/fake/close_ended", test_close_ended, 60},
    {"nccl/fake/part_refused", test_part_refused, 60},
    {"nccl/fake/apart", test_apart, 60},
    {"nccl/fake/blocked", test_blocked, 60},
    {"nccl/fake/unwatched", test_unwatched, 60},
    {"nccl/fake/compared", test_compared, 60},
    {"nccl/fake/judged", test_judged, 60},
    {"nccl/fake/asked", test_asked, 60},
    {"nccl/fake/broken_device", test_broken_device, 60},
    {"nccl/fake/staging", test_staging, 60},
    {"nccl/fake/half_registered", test_half_registered, 60},
    {"nccl/fake/lengths", test_lengths, 60},
    {"nccl/fake/numbers", test_numbers, 60},
    {"nccl/fake/rolled", test_rolled, 60},
    {"nccl/fake/behind", test_behind, 90},
    {"nccl/fake/hangs", test_hangs, 60},
    {"nccl/fake/group_end", test_group_end, 60},
    {"nccl/fake/neutral", test_neutral, 60},
    {"nccl/fake/no_kernels", test_no_kernels, 60},
};

#endif
