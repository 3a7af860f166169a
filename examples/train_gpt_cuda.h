/* What train_gpt computes with: train_gpt_cpu.h has it for the CPU, train_gpt.cu for GPUs. Pointers are into the device's memory, matrices
   are row-major. Nothing is waited for: a GPU's operations follow each other on one stream, the collectives among them. */
#ifndef TRAIN_GPT_CUDA_H
#define TRAIN_GPT_CUDA_H
#include "../mesh_parallel.h"
#include <math.h>
#include <stddef.h>

enum { VOCAB = 256 };

typedef struct adam_desc {
    float rate, a, b, eps; /* a, b: decay of the mean and of the square */
    float a_bias, b_bias;  /* what is missing to 1 */
} adam_desc;

/* Causal: query i stands at first_query + i of the sequence, of which all keys are there. Heads lie one after the other, each `size` wide;
   from one position to the next it is q_row floats in q and dq, kv_row in k, v, dk and dv. */
typedef struct attention_desc {
    int sequences, queries, keys, first_query, heads, size, q_row, kv_row;
} attention_desc;

typedef struct device {
    void (*zero)(void *p, size_t nbytes);
    void (*copy)(void *to, const void *from, size_t nbytes);
    /* x = table[token - first], 0 where that is none of the n rows of the table. Backward: dtable += */
    void (*embed)(float *x, const float *table, const int *tokens, int rows, int C, int first, int n);
    void (*embed_backward)(float *dtable, const float *dx, const int *tokens, int rows, int C, int first, int n);
    /* x of each sequence += by, T rows. Backward: dby += */
    void (*add_rows)(float *x, const float *by, int sequences, int T, int C);
    void (*sum_rows)(float *dby, const float *dx, int sequences, int T, int C);
    /* out = xhat w + b. Backward, to what came in: dx +=; to the weights: dw, db += */
    void (*layer_norm)(float *out, float *xhat, float *rstd, const float *x, const float *w, const float *b, int rows,
                       int C);
    void (*layer_norm_backward)(float *dx, const float *dout, const float *xhat, const float *rstd, const float *w,
                                int rows, int C);
    void (*layer_norm_weight)(float *dw, float *db, const float *dout, const float *xhat, int rows, int C);
    /* out = x W + bias (bias NULL: none). Backward, to what came in: dx = dout W^T; to the weights: dW += x^T dout, dbias += column sums.
       `work` holds in*n floats, and rows*in. */
    void (*linear)(float *out, const float *x, const float *w, const float *bias, int rows, int in, int n);
    void (*linear_backward)(float *dx, const float *dout, const float *w, int rows, int in, int n, float *work);
    void (*linear_weight)(float *dw, float *dbias, const float *dout, const float *x, int rows, int in, int n,
                          float *work);
    /* out: sequences x queries x heads x size; probs: sequences x heads x queries x keys. Backward: dq, dk and dv are overwritten; `work` is as
       large as probs. */
    void (*attention)(float *out, float *probs, const float *q, const float *k, const float *v,
                      const attention_desc *a);
    void (*attention_backward)(float *dq, float *dk, float *dv, const float *dout, const float *probs, const float *q,
                               const float *k, const float *v, const attention_desc *a, float *work);
    /* out = gelu(x). Backward: d *= its slope at x */
    void (*gelu)(float *out, const float *x, size_t n);
    void (*gelu_backward)(float *d, const float *x, size_t n);
    /* x += part + bias (bias NULL: none). Backward: dbias += column sums */
    void (*residual)(float *x, const float *part, const float *bias, int rows, int C);
    void (*bias_backward)(float *dbias, const float *dout, int rows, int n);
    /* Attention by parts, whose keys and values have travelled: what mesh_ring_attention asks for. ctx: as large as probs twice. */
    mesh_attention_block ring_forward, ring_backward;
    /* Each token's top_k experts by score, the first of equals, each with its share of softmax over all: scores becomes that. *closest becomes the smallest
       difference between the score of the last expert chosen and the first that was not. Backward: d, the scores' gradient; share: what route made of them. */
    void (*route)(float *scores, int32_t *choice, float *weight, float *closest, int tokens, int experts, int top_k);
    void (*route_backward)(float *d, const float *share, const int32_t *choice, const float *dweight, int tokens,
                           int experts, int top_k);
    /* *sum += the n floats of x */
    void (*add_up)(double *sum, const float *x, int n);
    void (*adam)(float *param, float *m, float *v, const float *grad, size_t n, adam_desc d);
} device;

#ifdef __CUDACC__
#define ON_ANY static __host__ __device__ inline
#else
#define ON_ANY static inline
#endif

/* A token's part of route; returns how close its choice was. */
ON_ANY float route_token(float *scores, int32_t *choice, float *weight, int experts, int top_k) {
    float sum = 0, most, next = -1e30f, last;
    int k, e;
    for (k = 0; k < top_k; k++) {
        int best = -1;
        for (e = 0; e < experts; e++) {
            int taken = 0, j;
            for (j = 0; j < k; j++) taken |= choice[j] == e;
            if (!taken && (best < 0 || scores[e] > scores[best])) best = e;
        }
        choice[k] = best;
    }
    most = scores[choice[0]], last = scores[choice[top_k - 1]];
    for (e = 0; e < experts; e++) {
        for (k = 0; k < top_k && choice[k] != e; k++) {}
        if (k == top_k && scores[e] > next) next = scores[e];
    }
    for (e = 0; e < experts; e++) sum += scores[e] = expf(scores[e] - most);
    for (e = 0; e < experts; e++) scores[e] /= sum;
    for (k = 0; k < top_k; k++) weight[k] = scores[choice[k]];
    return last - next;
}

ON_ANY void route_token_backward(float *d, const float *share, const int32_t *choice, const float *dweight, int experts,
                                 int top_k) {
    float mean = 0;
    int k, e;
    for (k = 0; k < top_k; k++) mean += dweight[k] * share[choice[k]];
    for (e = 0; e < experts; e++) d[e] = -share[e] * mean;
    for (k = 0; k < top_k; k++) d[choice[k]] += dweight[k] * share[choice[k]];
}

#ifdef __cplusplus
extern "C" {
#endif
/* The GPU of this number, and the stream (a cudaStream_t) that it works on. Exits with the reason when CUDA refuses. */
const device *cuda_device(int number, void **stream);
#ifdef __cplusplus
}
#endif
#endif
