/* What train_gpt computes with: train_gpt.c has it for the CPU, train_gpt.cu for GPUs. Pointers are into the device's memory, matrices
   are row-major. Nothing is waited for: a GPU's operations follow each other on one stream, the collectives among them. */
#ifndef TRAIN_GPT_CUDA_H
#define TRAIN_GPT_CUDA_H
#include <stddef.h>

enum { VOCAB = 256 };

typedef struct adam_desc {
    float rate, a, b, eps, a_bias,
        b_bias; /* a, b: decay of the mean and the square; the biases: what is missing to 1 */
} adam_desc;

typedef struct device {
    void (*zero)(void *p, size_t nbytes);
    /* x = wte[token] + wpe[place]. Backward: dwte, dwpe += */
    void (*embed)(float *x, const float *wte, const float *wpe, const unsigned char *tokens, int rows, int T, int C);
    void (*embed_backward)(float *dwte, float *dwpe, const float *dx, const unsigned char *tokens, int rows, int T,
                           int C);
    /* out = xhat w + b. Backward: dx, dw, db += */
    void (*layer_norm)(float *out, float *xhat, float *rstd, const float *x, const float *w, const float *b, int rows,
                       int C);
    void (*layer_norm_backward)(float *dx, float *dw, float *db, const float *dout, const float *xhat,
                                const float *rstd, const float *w, int rows, int C);
    /* out = x W + bias (bias NULL: none). Backward: dx = dout W^T, dW += x^T dout, dbias += column sums.
       `work` holds rows*in + in*n floats. */
    void (*linear)(float *out, const float *x, const float *w, const float *bias, int rows, int in, int n);
    void (*linear_backward)(float *dx, float *dw, float *dbias, const float *dout, const float *x, const float *w,
                            int rows, int in, int n, float *work);
    /* Causal attention. qkv: rows of [q | k | v], each heads*size wide; probs: [sequence][head][T][T]. Backward: dqkv is overwritten,
       `work` is as large as probs. */
    void (*attention)(float *out, float *probs, const float *qkv, int sequences, int T, int heads, int size);
    void (*attention_backward)(float *dqkv, const float *dout, const float *probs, const float *qkv, int sequences,
                               int T, int heads, int size, float *work);
    /* out = gelu(x). Backward: d *= its slope at x */
    void (*gelu)(float *out, const float *x, size_t n);
    void (*gelu_backward)(float *d, const float *x, size_t n);
    /* x += part + bias */
    void (*residual)(float *x, const float *part, const float *bias, int rows, int C);
    /* *loss += the mean cross-entropy; logits become its gradient. */
    void (*cross_entropy)(double *loss, float *logits, const unsigned char *targets, int rows);
    void (*add_squares)(double *sum, const float *x, size_t n);
    void (*adam)(float *param, float *m, float *v, const float *grad, size_t n, adam_desc d);
} device;

#ifdef __cplusplus
extern "C" {
#endif
/* The GPU of this number, and the stream (a cudaStream_t) that it works on. Exits with the reason when CUDA refuses. */
const device *cuda_device(int number, void **stream);
#ifdef __cplusplus
}
#endif
#endif
