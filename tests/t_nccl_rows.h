/* Experts, ring attention and a vocabulary in parts, in device memory: the laws of the host's tests, by the kernels. */
#ifndef T_NCCL_ROWS_H
#define T_NCCL_ROWS_H
#include "t_experts.h"
#include "t_vocabulary.h"
#include "t_attention.h"

/* What a program does by itself, behind what is on its stream. */
static void gpu_move(void *stream, void *host, void *there, size_t nbytes, int to_host) {
    cudaStream_t on = (cudaStream_t)stream;
    CHECK_INT(cudaMemcpyAsync(to_host ? host : there, to_host ? there : host, nbytes, cudaMemcpyDefault, on), cudaSuccess);
    CHECK_INT(cudaStreamSynchronize(on), cudaSuccess);
}

static void rows_gpus(rank_main f, int many) {
    static const int sizes[] = {1, 2, 3, 4};
    int i;
    ring_move = gpu_move;
    for (i = 0; i < 4; i++) run_gpus(sizes[i], f, &many);
}
static void test_gpu_ring(void) { rows_gpus(around_rank, 6); }
static void test_gpu_experts(void) { rows_gpus(experts_rank, 6); }
static void test_gpu_loss(void) { rows_gpus(loss_rank, 10); }
static void test_gpu_loss_broken(void) { run_gpus(3, loss_broken_rank, NULL); }

/* In a capture each is refused, on every rank, and the comm goes on. */
static void rows_captured_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[2] = {4, 8};
    mesh_comm c;
    mesh_moe m;
    mesh_moe_desc d = MESH_ZERO;
    mesh_moe_rows rows;
    mesh_tensor logits;
    mesh_loss l = MESH_ZERO;
    mesh_attention a = MESH_ZERO;
    cudaStream_t stream;
    cudaGraph_t graph;
    float *x;
    (void)ctx;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_comm_stream(&c, stream), c.error);
    x = device_floats(&c, 64, 0);
    d.experts = 2, d.top_k = 1, d.width = 8, d.max_tokens = 4, d.dtype = MESH_F32;
    CHECK_OK(mesh_moe_open(&m, &c, "x", &d), c.error);
    CHECK_OK(mesh_tensor_make(&logits, &c.on, "x:R", MESH_F32, 2, shape, &c.error), c.error);
    logits.data = x;
    l.logits = &logits, l.targets = (const int32_t *)(void *)(x + 32), l.gradient = x;
    a.batch = a.heads = a.kv_heads = 1, a.width = 4, a.sequence = 4, a.dtype = MESH_F32;
    a.q = a.k = a.v = a.out = x, a.lse = x, a.forward = ring_forward;
    CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_INT(mesh_moe_dispatch(&m, 0, x, 4, (const int32_t *)(void *)x, &rows), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_moe_dispatch: the caller's stream is being captured");
    CHECK_INT(mesh_cross_entropy(&c, &l), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_cross_entropy: the caller's stream is being captured");
    CHECK_INT(mesh_ring_attention(&c, "x", &a), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_ring_attention: the caller's stream is being captured");
    CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    CHECK(!c.failed);
    CHECK_OK(mesh_cross_entropy(&c, &l), c.error);
    CHECK_OK(mesh_moe_dispatch(&m, 0, x, 4, (const int32_t *)(void *)(x + 32), &rows), c.error);
    CHECK_INT(mesh_moe_close(&m), MESH_OK);
    CHECK_OK(mesh_free(t, x, &c.error), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
}
static void test_rows_captured(void) { run_gpus(2, rows_captured_rank, NULL); }

/* On a device that takes its time: what is not waited for is not there. */
static void rows_late(int ranks, rank_main f, int many) {
    ring_move = gpu_move;
    run_gpus_with(ranks, f, &many, "FAKE_CUDA_DELAY_US", "1000");
}
static void test_ring_late(void) { rows_late(3, around_rank, 4); }
static void test_experts_late(void) { rows_late(2, experts_rank, 4); }
static void test_loss_late(void) { rows_late(3, loss_rank, 4); }

/* Ring attention and a cross-entropy are over when they return, on a stream of the caller's, too. */
static void rows_over_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[2] = {4, 8};
    mesh_comm c;
    mesh_tensor logits;
    mesh_loss l = MESH_ZERO;
    ring_problem p;
    ring_part r;
    ring_seen seen = MESH_ZERO;
    cudaStream_t stream;
    float *x;
    int i;
    (void)ctx;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "cp=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_comm_stream(&c, stream), c.error);
    x = device_floats(&c, 64, 0);
    CHECK_OK(mesh_tensor_make(&logits, &c.on, "cp:R", MESH_F32, 2, shape, &c.error), c.error);
    logits.data = x;
    l.logits = &logits, l.targets = (const int32_t *)(void *)(x + 32), l.gradient = x;
    memset(&p, 0, sizeof p);
    p.batch = 1, p.heads = p.kv_heads = 1, p.width = 2, p.sequence = 8, p.causal = 1, p.dtype = MESH_F32;
    ring_part_make(&p, t->size, t->rank, &r);
    seen.move = gpu_move, seen.at = stream;
    r.a.ctx = &seen, r.a.forward = ring_forward_there, r.a.backward = ring_backward_there;
    ring_part_free(&r);
    for (i = 0; i < 8; i++) r.data[i] = device_floats(&c, r.nbytes / 4, 0);
    r.a.q = r.data[0], r.a.k = r.data[1], r.a.v = r.data[2], r.a.grad_out = r.data[3], r.a.out = r.data[4];
    r.a.grad_q = r.data[5], r.a.grad_k = r.data[6], r.a.grad_v = r.data[7];
    r.a.lse = device_floats(&c, 64, 0);
    for (i = 0; i < 3; i++) {
        CHECK_OK(i == 0   ? mesh_cross_entropy(&c, &l)
                 : i == 1 ? mesh_ring_attention(&c, "cp", &r.a)
                          : mesh_ring_attention_backward(&c, "cp", &r.a),
                 c.error);
        CHECK_INT(cudaStreamQuery(stream), cudaSuccess);
    }
    for (i = 0; i < 8; i++) CHECK_OK(mesh_free(t, r.data[i], &c.error), c.error);
    CHECK_OK(mesh_free(t, r.a.lse, &c.error), c.error);
    CHECK_OK(mesh_free(t, x, &c.error), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
}
static void test_rows_over(void) { run_gpus_with(2, rows_over_rank, NULL, "FAKE_CUDA_DELAY_US", "3000"); }

/* Kernels that no operation follows: another stream comes behind them, mesh_comm_sync and closing wait for them, however many operations were before. */
static void rows_beside_rank(mesh_transport *t, void *ctx) {
    static const int32_t asked[4] = {0, 1, 0, 1};
    mesh_comm c;
    mesh_moe m;
    mesh_moe_desc d = MESH_ZERO;
    mesh_moe_rows rows;
    mesh_tensor grad;
    int64_t length[1] = {64};
    cudaStream_t stream[2];
    float *x, *y, *w, host[64];
    int32_t *expert;
    int round, k, j;
    (void)ctx;
    for (k = 0; k < 2; k++) CHECK_INT(cudaStreamCreateWithFlags(&stream[k], cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    x = device_floats(&c, 64, 1), y = device_floats(&c, 64, 0), w = device_floats(&c, 64, 8);
    expert = (int32_t *)(void *)device_floats(&c, 4, 0);
    CHECK_OK(mesh_copy(&c, expert, asked, sizeof asked), c.error);
    CHECK_OK(mesh_tensor_make(&grad, &c.on, "x:R", MESH_F32, 1, length, &c.error), c.error);
    grad.data = w;
    d.experts = 2, d.top_k = 1, d.width = 16, d.max_tokens = 4, d.dtype = MESH_F32;
    CHECK_OK(mesh_moe_open(&m, &c, "x", &d), c.error);
    for (round = 0; round < 48 && !test_failures; round++) { /* one operation in sixteen has a mark: some time it is the last one before the kernel */
        k = round < 18 ? round : 11 + round % 4;
        CHECK_OK(mesh_comm_stream(&c, stream[0]), c.error);
        CHECK_OK(mesh_moe_dispatch(&m, 0, x, 4, expert, &rows), c.error);
        CHECK_INT(cudaMemsetAsync(y, 0, sizeof host, stream[0]), cudaSuccess);
        for (j = 0; j < k; j++) CHECK_OK(mesh_all_reduce(&c, "x", x, x, 1, MESH_F32, MESH_MAX), c.error);
        CHECK_OK(mesh_moe_combine(&m, 0, rows.data, NULL, y), c.error);
        if (round % 7 == 5) CHECK_OK(mesh_clip(&c, &grad, 1, 8, NULL), c.error);
        if (round % 3 == 2) {
            CHECK_OK(mesh_comm_sync(&c), c.error);
            CHECK_INT(cudaStreamQuery(stream[0]), cudaSuccess);
        }
        CHECK_OK(mesh_comm_stream(&c, stream[1]), c.error);
        CHECK_OK(mesh_copy(&c, host, y, sizeof host), c.error);
        for (j = 0; j < 64 && host[j] == 1; j++) {}
        if (j < 64) test_fail(__FILE__, __LINE__, "after %d operations: element %d is %g", k, j, (double)host[j]);
    }
    CHECK_OK(mesh_moe_dispatch(&m, 0, x, 4, expert, &rows), c.error);
    CHECK_OK(mesh_moe_combine(&m, 0, rows.data, NULL, y), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(cudaStreamQuery(stream[1]), cudaSuccess);
    CHECK_INT(mesh_moe_close(&m), MESH_OK); /* what it has left is the transport's until that closes */
}
static void test_rows_beside(void) { run_gpus_with(2, rows_beside_rank, NULL, "FAKE_CUDA_DELAY_US", "5000"); }

/* A launch that fails on one rank: told by the call, on every rank. */
static int rows_fail_in;
static cudaError_t (*rows_launch_real)(const void *, dim3, dim3, void **, size_t, cudaStream_t);
static cudaError_t rows_launch(const void *f, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
    if (rows_fail_in && !--rows_fail_in) return cudaErrorLaunchFailure;
    return rows_launch_real(f, grid, block, args, shared, stream);
}
static void rows_launch_rank(mesh_transport *t, void *ctx) {
    static const int32_t asked[4] = {0, 1, 0, 1};
    mesh_comm c;
    mesh_moe m;
    mesh_moe_desc d = MESH_ZERO;
    mesh_moe_rows rows;
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_status status;
    float *x;
    if (!open_comm(t, &c, "a=2,b=2", NULL, 40 * SECOND)) return;
    x = device_floats(&c, 64, 0);
    d.experts = 2, d.top_k = 1, d.width = 8, d.max_tokens = 4, d.dtype = MESH_F32;
    CHECK_OK(mesh_copy(&c, x + 32, asked, sizeof asked), c.error);
    CHECK_OK(mesh_moe_open(&m, &c, "b", &d), c.error);
    rows_launch_real = s->api.cudaLaunchKernel;
    s->api.cudaLaunchKernel = rows_launch;
    world_meet(t);
    rows_fail_in = t->rank == 1 ? *(int *)ctx : 0;
    status = mesh_moe_dispatch(&m, 0, x, 4, (const int32_t *)(void *)(x + 32), &rows);
    if (t->rank == 1) CHECK_INT(status, MESH_ERR_TRANSPORT);
    if (t->rank == 1) CHECK_HAS(c.error.text, "mesh_moe_dispatch: work on rows");
    while (!c.failed) mesh_progress(t, mesh_now(t) + SECOND / 100);
    CHECK_INT(mesh_copy(&c, &status, x, sizeof status) != MESH_OK, 1);
    CHECK_INT(mesh_moe_close(&m), MESH_OK);
    mesh_comm_close(&c);
}
static void test_rows_launch(void) {
    int which;
    for (which = 1; which < 3; which++) run_gpus(4, rows_launch_rank, &which);
}

/* A rank whose block does not end: the others are told, and do not take what they have for a result. */
static void ring_stuck_block(void *ctx, const mesh_attention_part *p) {
    if (*(int *)ctx == 1) world_await(0, 2);
    (void)p;
}
static void ring_stuck_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_attention a = MESH_ZERO;
    mesh_status status;
    float *x;
    int back = *(int *)ctx, rank = t->rank;
    if (!open_comm(t, &c, "x=-1", NULL, SECOND)) return;
    x = device_floats(&c, 4096, 0);
    a.batch = a.heads = a.kv_heads = 1, a.width = 4, a.sequence = 12, a.dtype = MESH_F32;
    a.q = a.k = a.v = x, a.out = x + 512, a.lse = x + 1024;
    a.grad_out = x, a.grad_q = x + 1536, a.grad_k = x + 2048, a.grad_v = x + 2560;
    a.forward = a.backward = ring_stuck_block, a.ctx = &rank;
    status = back ? mesh_ring_attention_backward(&c, "x", &a) : mesh_ring_attention(&c, "x", &a);
    CHECK(status != MESH_OK);
    CHECK(c.failed);
    CHECK_HAS(c.error.text, back ? "mesh_ring_attention_backward" : "mesh_ring_attention");
    if (rank != 1) world_say(0);
    mesh_comm_close(&c);
}
static void test_ring_stuck(void) {
    int back;
    for (back = 0; back < 2; back++) run_gpus(3, ring_stuck_rank, &back);
}

/* One mark at a time: the watchdog wants one while the main thread puts its own, and the main thread comes to one while the marker puts it. */
static struct {
    mesh_nccl__state *s;
    mesh_nccl__comm *c;
    pthread_t main;
    cudaError_t (*real)(cudaEvent_t, cudaStream_t);
    int armed, held, mains, markers;
} marks;
static cudaError_t marks_record(cudaEvent_t event, cudaStream_t stream) {
    int is_main = pthread_equal(pthread_self(), marks.main), i;
    if (!marks.armed) return marks.real(event, stream);
    pthread_mutex_lock(&marks.s->lock);
    if (is_main) marks.mains++;
    else marks.markers++;
    if (is_main) mesh_nccl__want_mark(marks.s, marks.c);
    if (!is_main) marks.held = 1;
    pthread_mutex_unlock(&marks.s->lock);
    for (i = 0; i < 200 && !is_main; i++) { /* the main thread, which does not wait for this one, would be through */
        pthread_mutex_lock(&marks.s->lock);
        if (marks.mains) i = 200;
        pthread_mutex_unlock(&marks.s->lock);
        test_sleep(0.001);
    }
    return marks.real(event, stream);
}
static void marks_once_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    cudaStream_t stream;
    float *x;
    int by_marker, marking;
    (void)ctx;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    x = device_floats(&c, 64, 1);
    CHECK_OK(mesh_comm_stream(&c, stream), c.error);
    memset(&marks, 0, sizeof marks);
    marks.s = mesh_nccl__of(t);
    marks.c = mesh_nccl__group_of(marks.s, mesh__impl(&c)->group[0]->handle)->c;
    marks.main = pthread_self();
    marks.real = marks.s->api.cudaEventRecord;
    marks.s->api.cudaEventRecord = marks_record;
    for (by_marker = 0; by_marker < 2; by_marker++) {
        CHECK_OK(mesh_all_reduce(&c, "x", x, x, 64, MESH_F32, MESH_MAX), c.error);
        CHECK_OK(mesh_comm_sync(&c), c.error);
        CHECK_OK(mesh_all_reduce(&c, "x", x, x, 64, MESH_F32, MESH_MAX), c.error);
        pthread_mutex_lock(&marks.s->lock);
        while (marks.c->marking) pthread_cond_wait(&marks.s->out, &marks.s->lock);
        if (marks.c->issued == marks.c->marked) marks.c->marked--; /* the watchdog was here: there is one to put again */
        marks.mains = marks.markers = marks.held = 0;
        marks.armed = 1;
        if (by_marker) mesh_nccl__want_mark(marks.s, marks.c);
        pthread_mutex_unlock(&marks.s->lock);
        for (marking = by_marker; marking;) {
            pthread_mutex_lock(&marks.s->lock);
            marking = !marks.held;
            pthread_mutex_unlock(&marks.s->lock);
        }
        pthread_mutex_lock(&marks.s->lock);
        mesh_nccl__mark_now(marks.s, marks.c);
        while (marks.c->marking) pthread_cond_wait(&marks.s->out, &marks.s->lock);
        marks.armed = 0;
        CHECK_INT(marks.mains, !by_marker);
        CHECK_INT(marks.markers, by_marker);
        pthread_mutex_unlock(&marks.s->lock);
        CHECK_OK(mesh_comm_sync(&c), c.error);
    }
    marks.s->api.cudaEventRecord = marks.real;
    CHECK_OK(mesh_free(t, x, &c.error), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
}
static void test_marks_once(void) { run_gpus(1, marks_once_rank, NULL); }

/* A moe is not closed in a capture, and stays. */
static void moe_captured_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_moe m;
    mesh_moe_desc d = MESH_ZERO;
    cudaStream_t stream;
    cudaGraph_t graph;
    (void)ctx;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_comm_stream(&c, stream), c.error);
    d.experts = 2, d.top_k = 1, d.width = 16, d.max_tokens = 4, d.dtype = MESH_F32;
    CHECK_OK(mesh_moe_open(&m, &c, "x", &d), c.error);
    CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_INT(mesh_moe_close(&m), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_moe_close: the caller's stream is being captured");
    CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK(m.impl && !c.failed);
    CHECK_INT(mesh_moe_close(&m), MESH_OK);
    CHECK(!m.impl);
    cudaGraphDestroy(graph);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
}
static void test_moe_captured(void) { run_gpus(2, moe_captured_rank, NULL); }

/* Blocks of the device's that lie side by side, the later before the earlier. */
static char *rows_arena;
static cudaError_t (*rows_malloc_real)(void **, size_t);
static cudaError_t rows_malloc(void **p, size_t n) {
    static char *at;
    if (!rows_arena && rows_malloc_real((void **)&rows_arena, 65536) == cudaSuccess) at = rows_arena + 65536;
    *p = at -= n;
    return cudaSuccess;
}
static void rows_neighbours_rank(mesh_transport *t, void *ctx) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__memory *own;
    void *a, *b;
    (void)ctx;
    rows_malloc_real = s->api.cudaMalloc;
    s->api.cudaMalloc = rows_malloc;
    own = s->memory;
    CHECK_INT(t->ops->alloc(t, 512, 0, &a), MESH_OK);
    CHECK_INT(t->ops->alloc(t, 512, 0, &b), MESH_OK);
    s->api.cudaMalloc = rows_malloc_real;
    CHECK((char *)b + 512 == (char *)a);
    CHECK_INT(t->ops->free(t, a), MESH_OK);
    CHECK_INT(t->ops->free(t, b), MESH_OK);
    while (s->memory != own) { /* they are no blocks of CUDA's */
        mesh_nccl__memory *next = s->memory->next;
        mesh_transport_free(s->boot, s->memory);
        s->memory = next;
    }
}
static void test_rows_neighbours(void) { run_gpus(1, rows_neighbours_rank, NULL); }

static const test_case fake_nccl_rows_tests[] = {
    {"nccl/fake/rows_beside", test_rows_beside, 0},
    {"nccl/fake/rows_launch", test_rows_launch, 0},
    {"nccl/fake/marks_once", test_marks_once, 0},
    {"nccl/fake/ring_stuck", test_ring_stuck, 0},
    {"nccl/fake/moe_captured", test_moe_captured, 0},
    {"nccl/fake/rows_neighbours", test_rows_neighbours, 0},
    {"nccl/fake/rows_over", test_rows_over, 0},
    {"nccl/fake/ring_late", test_ring_late, 0},
    {"nccl/fake/experts_late", test_experts_late, 0},
    {"nccl/fake/loss_late", test_loss_late, 0},
};

static const test_case nccl_rows_tests[] = {
    {"nccl/ring", test_gpu_ring, 0},
    {"nccl/experts", test_gpu_experts, 0},
    {"nccl/loss", test_gpu_loss, 0},
    {"nccl/loss_broken", test_gpu_loss_broken, 0},
    {"nccl/rows_captured", test_rows_captured, 0},
};
#endif
