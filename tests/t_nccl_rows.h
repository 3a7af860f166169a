/* Experts, ring attention and a vocabulary in parts, in device memory: the laws of the host's tests, by the kernels. */
#ifndef T_NCCL_ROWS_H
#define T_NCCL_ROWS_H
#include "t_experts.h"
#include "t_vocabulary.h"
#include "t_attention.h"

/* What a program does by itself, behind what is on its stream, the default one. */
static void gpu_move(void *at, void *host, void *there, size_t nbytes, int to_host) {
    (void)at;
    CHECK_INT(cudaMemcpyAsync(to_host ? host : there, to_host ? there : host, nbytes, cudaMemcpyDefault, NULL), cudaSuccess);
    CHECK_INT(cudaStreamSynchronize(NULL), cudaSuccess);
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

static const test_case nccl_rows_tests[] = {
    {"nccl/ring", test_gpu_ring, 0},
    {"nccl/experts", test_gpu_experts, 0},
    {"nccl/loss", test_gpu_loss, 0},
    {"nccl/loss_broken", test_gpu_loss_broken, 0},
    {"nccl/rows_captured", test_rows_captured, 0},
};
#endif
