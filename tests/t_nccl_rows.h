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

static const test_case fake_nccl_rows_tests[] = {
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
