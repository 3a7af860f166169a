/* train_gpt's device on a GPU: products by cuBLAS in full fp32, the rest as kernels written to be read. CUDA being $CUDA,
       nvcc -O2 -c examples/train_gpt.cu -o train_gpt_cu.o
       cc -std=c99 -O2 -DTRAIN_GPT_CUDA -isystem $CUDA/include examples/train_gpt.c train_gpt_cu.o -o train_gpt \
           -L$CUDA/lib64 -Wl,-rpath,$CUDA/lib64 -lcublas -lcudart -lstdc++ -lm -ldl -lpthread
   A kernel has a thread for each element, or a warp (a block of 32 threads) for each row; all sums are in a fixed order. */
#ifdef TRAIN_GPT_SHIM
#include "../tests/gpt_shim.h"
#else
#include <cublas_v2.h>
#include <cuda_runtime.h>
#endif
#include "train_gpt_cuda.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static cudaStream_t stream;
static cublasHandle_t blas;

static void check(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "train_gpt: %s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

static void check_blas(cublasStatus_t e, const char *what) {
    if (e == CUBLAS_STATUS_SUCCESS) return;
    fprintf(stderr, "train_gpt: %s: %s\n", what, cublasGetStatusString(e));
    exit(1);
}

template <typename... P, typename... A>
static void launch(const char *name, size_t blocks, int threads, void (*kernel)(P...), A... arguments) {
    cudaLaunchConfig_t config = {};
    if (!blocks) return;
    config.gridDim = (unsigned)blocks;
    config.blockDim = (unsigned)threads;
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

/* A thread for each of n elements, or a warp for each of n rows. */
#define EACH(kernel, n, ...) launch(#kernel, ((size_t)(n) + 255) / 256, 256, kernel, __VA_ARGS__)
#define ROWS(kernel, n, ...) launch(#kernel, (size_t)(n), 32, kernel, __VA_ARGS__)

static __device__ size_t element() { return (size_t)blockIdx.x * blockDim.x + threadIdx.x; }

/* Over the lanes of a warp; each of them gets the result, with the same bits. */
template <typename T> static __device__ T warp_sum(T x) {
    for (int other = 16; other; other /= 2) x += __shfl_xor_sync(0xffffffffu, x, other);
    return x;
}

static __device__ float warp_max(float x) {
    for (int other = 16; other; other /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, other));
    return x;
}

static void zero(void *p, size_t nbytes) { check(cudaMemsetAsync(p, 0, nbytes, stream), "cudaMemsetAsync"); }
static void copy(void *to, const void *from, size_t nbytes) {
    check(cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
}

/* ---- embeddings -------------------------------------------------------------------------------------------------- */

static __global__ void embed_kernel(float *x, const float *table, const int *tokens, size_t total, int C, int first,
                                    int n) {
    size_t at = element(), c = at % C;
    int row = at < total ? tokens[at / C] - first : 0;
    if (at < total) x[at] = row >= 0 && row < n ? table[(size_t)row * C + c] : 0;
}

static void embed(float *x, const float *table, const int *tokens, int rows, int C, int first, int n) {
    EACH(embed_kernel, (size_t)rows * C, x, table, tokens, (size_t)rows * C, C, first, n);
}

/* An element of the table looks for the rows of its token. */
static __global__ void embed_backward_kernel(float *dtable, const float *dx, const int *tokens, int rows, int C,
                                             int first, int n) {
    size_t at = element(), c = at % C;
    int token = first + (int)(at / C);
    float sum = 0;
    if (at >= (size_t)n * C) return;
    for (size_t i = 0; i < (size_t)rows; i++)
        if (tokens[i] == token) sum += dx[i * C + c];
    dtable[at] += sum;
}

static void embed_backward(float *dtable, const float *dx, const int *tokens, int rows, int C, int first, int n) {
    EACH(embed_backward_kernel, (size_t)n * C, dtable, dx, tokens, rows, C, first, n);
}

static __global__ void add_rows_kernel(float *x, const float *by, size_t total, size_t each) {
    size_t at = element();
    if (at < total) x[at] += by[at % each];
}

static void add_rows(float *x, const float *by, int sequences, int T, int C) {
    size_t each = (size_t)T * C;
    EACH(add_rows_kernel, each * sequences, x, by, each * sequences, each);
}

static __global__ void sum_rows_kernel(float *dby, const float *dx, int sequences, size_t each) {
    size_t at = element();
    float sum = 0;
    if (at >= each) return;
    for (int i = 0; i < sequences; i++) sum += dx[(size_t)i * each + at];
    dby[at] += sum;
}

static void sum_rows(float *dby, const float *dx, int sequences, int T, int C) {
    size_t each = (size_t)T * C;
    EACH(sum_rows_kernel, each, dby, dx, sequences, each);
}

/* ---- layer norm -------------------------------------------------------------------------------------------------- */

static __global__ void layer_norm_kernel(float *out, float *xhat, float *rstd, const float *x, const float *w,
                                         const float *b, int C) {
    size_t row = blockIdx.x, at = row * C;
    int lane = threadIdx.x;
    float mean = 0, var = 0, r;
    for (int c = lane; c < C; c += 32) mean += x[at + c];
    mean = warp_sum(mean) / C;
    for (int c = lane; c < C; c += 32) var += (x[at + c] - mean) * (x[at + c] - mean);
    r = 1 / sqrtf(warp_sum(var) / C + 1e-5f);
    if (lane == 0) rstd[row] = r;
    for (int c = lane; c < C; c += 32) {
        xhat[at + c] = (x[at + c] - mean) * r;
        out[at + c] = xhat[at + c] * w[c] + b[c];
    }
}

static void layer_norm(float *out, float *xhat, float *rstd, const float *x, const float *w, const float *b, int rows,
                       int C) {
    ROWS(layer_norm_kernel, rows, out, xhat, rstd, x, w, b, C);
}

static __global__ void layer_norm_backward_kernel(float *dx, const float *dout, const float *xhat, const float *rstd,
                                                  const float *w, int C) {
    size_t row = blockIdx.x, at = row * C;
    int lane = threadIdx.x;
    float mean = 0, dot = 0;
    for (int c = lane; c < C; c += 32) {
        mean += dout[at + c] * w[c];
        dot += dout[at + c] * w[c] * xhat[at + c];
    }
    mean = warp_sum(mean) / C;
    dot = warp_sum(dot) / C;
    for (int c = lane; c < C; c += 32) dx[at + c] += (dout[at + c] * w[c] - mean - xhat[at + c] * dot) * rstd[row];
}

/* sum[c] += the sum of column c of d, each element times that of `by` (NULL: 1). A warp for each column. */
static __global__ void column_sums_kernel(float *sum, const float *d, const float *by, int rows, int C) {
    int c = blockIdx.x, lane = threadIdx.x;
    float s = 0;
    for (size_t at = (size_t)lane * C + c; at < (size_t)rows * C; at += (size_t)32 * C)
        s += by ? d[at] * by[at] : d[at];
    s = warp_sum(s);
    if (lane == 0) sum[c] += s;
}

static void column_sums(float *sum, const float *d, const float *by, int rows, int C) {
    ROWS(column_sums_kernel, C, sum, d, by, rows, C);
}

static void layer_norm_backward(float *dx, const float *dout, const float *xhat, const float *rstd, const float *w,
                                int rows, int C) {
    ROWS(layer_norm_backward_kernel, rows, dx, dout, xhat, rstd, w, C);
}

static void layer_norm_weight(float *dw, float *db, const float *dout, const float *xhat, int rows, int C) {
    column_sums(dw, dout, xhat, rows, C);
    column_sums(db, dout, nullptr, rows, C);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

typedef struct matrix { /* row-major; `batch` of them lie `stride` apart */
    const float *p;
    int ld, transposed; /* ld: from row to row, in memory */
    long long stride;
} matrix;

/* out[m][n] = scale a[m][k] b[k][n] + keep out, for each of a batch. cuBLAS is column-major: what it sees are the transposes. */
static void gemm(float *out, int ld, long long stride, matrix a, matrix b, int m, int k, int n, float scale, float keep,
                 int batch) {
    if (!m || !n || !k || !batch) return; /* an expert without tokens; k 0: a sum of nothing, added */
    check_blas(cublasSgemmStridedBatched(blas, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                                         a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &scale, b.p, b.ld, b.stride,
                                         a.p, a.ld, a.stride, &keep, out, ld, stride, batch),
               "cublasSgemmStridedBatched");
}

static matrix plain(const float *p, int ld) {
    matrix a = {p, ld, 0, 0};
    return a;
}

static matrix transposed(matrix a) {
    a.transposed = 1;
    return a;
}

static __global__ void fill_rows_kernel(float *out, const float *row, size_t total, int n) {
    size_t at = element();
    if (at < total) out[at] = row[at % n];
}

static void linear(float *out, const float *x, const float *w, const float *bias, int rows, int in, int n) {
    if (bias) EACH(fill_rows_kernel, (size_t)rows * n, out, bias, (size_t)rows * n, n);
    gemm(out, n, 0, plain(x, in), plain(w, n), rows, in, n, 1, bias ? 1 : 0, 1);
}

static void linear_backward(float *dx, const float *dout, const float *w, int rows, int in, int n, float *) {
    if (!n) zero(dx, (size_t)rows * in * sizeof *dx); /* one of more ranks than columns: gemm leaves dx as it is */
    gemm(dx, in, 0, plain(dout, n), transposed(plain(w, n)), rows, n, in, 1, 0, 1);
}

static void linear_weight(float *dw, float *dbias, const float *dout, const float *x, int rows, int in, int n,
                          float *) {
    gemm(dw, n, 0, transposed(plain(x, in)), plain(dout, n), in, rows, n, 1, 1, 1);
    if (dbias) column_sums(dbias, dout, nullptr, rows, n);
}

/* ---- attention: products over the sequences, head by head -------------------------------------------------------- */

/* How many keys query i of a sequence sees. */
static __device__ int keys_seen(int i, attention_desc a) {
    int n = a.first_query + i + 1;
    return n < a.keys ? n : a.keys;
}

/* Row i of each matrix of queries x keys: the softmax of what it sees, and zeros. */
static __global__ void softmax_kernel(float *probs, attention_desc a) {
    float *p = probs + (size_t)blockIdx.x * a.keys;
    int lane = threadIdx.x, n = keys_seen(blockIdx.x % a.queries, a);
    float most = -1e30f, sum = 0;
    for (int j = lane; j < n; j += 32) most = fmaxf(most, p[j]);
    most = warp_max(most);
    for (int j = lane; j < n; j += 32) sum += p[j] = expf(p[j] - most);
    sum = warp_sum(sum);
    for (int j = lane; j < a.keys; j += 32) p[j] = j < n ? p[j] / sum : 0;
}

/* From the gradient of the probabilities to that of the scores, in place. */
static __global__ void softmax_backward_kernel(float *grad, const float *probs, float scale, attention_desc a) {
    float *d = grad + (size_t)blockIdx.x * a.keys;
    const float *p = probs + (size_t)blockIdx.x * a.keys;
    int lane = threadIdx.x, n = keys_seen(blockIdx.x % a.queries, a);
    float mean = 0;
    for (int j = lane; j < n; j += 32) mean += d[j] * p[j];
    mean = warp_sum(mean);
    for (int j = lane; j < a.keys; j += 32) d[j] = j < n ? p[j] * (d[j] - mean) * scale : 0;
}

/* Head h of each sequence: queries x size, or keys x size; of probs: queries x keys. */
static matrix queries_of(const float *q, int h, const attention_desc *a) {
    matrix m = {q + h * a->size, a->q_row, 0, (long long)a->queries * a->q_row};
    return m;
}
static matrix keys_of(const float *k, int h, const attention_desc *a) {
    matrix m = {k + h * a->size, a->kv_row, 0, (long long)a->keys * a->kv_row};
    return m;
}
static matrix dense_of(const float *out, int h, const attention_desc *a) {
    matrix m = {out + h * a->size, a->heads * a->size, 0, (long long)a->queries * a->heads * a->size};
    return m;
}
static matrix probs_of(const float *probs, int h, const attention_desc *a) {
    matrix m = {probs + (size_t)h * a->queries * a->keys, a->keys, 0, (long long)a->heads * a->queries * a->keys};
    return m;
}

/* to = scale x b, of every sequence. */
static void product(matrix to, matrix x, matrix b, int m, int k, int n, float scale, int sequences) {
    gemm((float *)to.p, to.ld, to.stride, x, b, m, k, n, scale, 0, sequences);
}

static void attention(float *out, float *probs, const float *q, const float *k, const float *v,
                      const attention_desc *a) {
    float scale = 1 / sqrtf((float)a->size);
    int n = a->sequences;
    for (int h = 0; h < a->heads; h++)
        product(probs_of(probs, h, a), queries_of(q, h, a), transposed(keys_of(k, h, a)), a->queries, a->size, a->keys,
                scale, n);
    ROWS(softmax_kernel, n * a->heads * a->queries, probs, *a);
    for (int h = 0; h < a->heads; h++)
        product(dense_of(out, h, a), probs_of(probs, h, a), keys_of(v, h, a), a->queries, a->keys, a->size, 1, n);
}

static void attention_backward(float *dq, float *dk, float *dv, const float *dout, const float *probs, const float *q,
                               const float *k, const float *v, const attention_desc *a, float *work) {
    int n = a->sequences;
    for (int h = 0; h < a->heads; h++) {
        matrix d = dense_of(dout, h, a);
        product(probs_of(work, h, a), d, transposed(keys_of(v, h, a)), a->queries, a->size, a->keys, 1, n);
        product(keys_of(dv, h, a), transposed(probs_of(probs, h, a)), d, a->keys, a->queries, a->size, 1, n);
    }
    ROWS(softmax_backward_kernel, n * a->heads * a->queries, work, probs, 1 / sqrtf((float)a->size), *a);
    for (int h = 0; h < a->heads; h++) {
        matrix s = probs_of(work, h, a);
        product(queries_of(dq, h, a), s, keys_of(k, h, a), a->queries, a->keys, a->size, 1, n);
        product(keys_of(dk, h, a), transposed(s), queries_of(q, h, a), a->keys, a->queries, a->size, 1, n);
    }
}

/* ---- attention by parts: a run of queries by a run of keys, wholly seen or on the diagonal -------------------------------- */

/* Head h of a part's queries, of its keys or values, and of what is dense: rows x width, or rows x keys. */
static matrix part_queries(const mesh_attention_part *p, const void *q, int h) {
    matrix m = {(const float *)q + h * p->q_stride[1], (int)p->q_stride[2], 0, p->q_stride[0]};
    return m;
}
static matrix part_keys(const mesh_attention_part *p, const void *k, int h) {
    matrix m = {(const float *)k + h * p->kv_stride[1], (int)p->kv_stride[2], 0, p->kv_stride[0]};
    return m;
}
static matrix part_dense(const mesh_attention_part *p, const float *x, int h, int64_t rows, int64_t width) {
    matrix m = {x + h * rows * width, (int)width, 0, p->all->heads * rows * width};
    return m;
}

/* Row i of each matrix of queries x keys: the softmax of what it sees, zeros, and the logarithm of its sum. */
static __global__ void part_softmax_kernel(float *probs, float *lse, int queries, int keys, int diagonal) {
    float *p = probs + (size_t)blockIdx.x * keys;
    int lane = threadIdx.x, n = diagonal ? (int)(blockIdx.x % queries) + 1 : keys;
    float most = -1e30f, sum = 0;
    for (int j = lane; j < n; j += 32) most = fmaxf(most, p[j]);
    most = warp_max(most);
    for (int j = lane; j < n; j += 32) sum += p[j] = expf(p[j] - most);
    sum = warp_sum(sum);
    for (int j = lane; j < keys; j += 32) p[j] = j < n ? p[j] / sum : 0;
    if (lane == 0) lse[blockIdx.x] = most + logf(sum);
}

/* From scores to probabilities, by the logarithm of the whole row's sum; and from their gradient to that of the scores. */
static __global__ void part_probs_kernel(float *probs, const float *lse, int queries, int keys, int diagonal) {
    float *p = probs + (size_t)blockIdx.x * keys, whole = lse[blockIdx.x];
    int n = diagonal ? (int)(blockIdx.x % queries) + 1 : keys;
    for (int j = threadIdx.x; j < keys; j += 32) p[j] = j < n ? expf(p[j] - whole) : 0;
}
static __global__ void part_scores_kernel(float *grad, const float *probs, const float *dot, float scale, int keys) {
    size_t at = (size_t)blockIdx.x * keys;
    float mean = dot[blockIdx.x];
    for (int j = threadIdx.x; j < keys; j += 32) grad[at + j] = probs[at + j] * (grad[at + j] - mean) * scale;
}

static void ring_forward(void *work, const mesh_attention_part *p) {
    const mesh_attention *a = p->all;
    float *probs = (float *)work, scale = 1 / sqrtf((float)a->width);
    int queries = (int)p->queries, keys = (int)p->keys, n = a->batch;
    for (int h = 0; h < a->heads; h++)
        product(part_dense(p, probs, h, queries, keys), part_queries(p, p->q, h), transposed(part_keys(p, p->k, h)),
                queries, a->width, keys, scale, n);
    ROWS(part_softmax_kernel, n * a->heads * queries, probs, p->lse, queries, keys, p->diagonal);
    for (int h = 0; h < a->heads; h++)
        product(part_dense(p, p->out, h, queries, a->width), part_dense(p, probs, h, queries, keys),
                part_keys(p, p->v, h), queries, keys, a->width, 1, n);
}

/* to += x b, of every sequence. */
static void add_product(matrix to, matrix x, matrix b, int m, int k, int n, int sequences) {
    gemm((float *)to.p, to.ld, to.stride, x, b, m, k, n, 1, 1, sequences);
}

static void ring_backward(void *work, const mesh_attention_part *p) {
    const mesh_attention *a = p->all;
    int queries = (int)p->queries, keys = (int)p->keys, n = a->batch, size = a->width, rows = n * a->heads * queries;
    float *probs = (float *)work, *grad = probs + (size_t)rows * keys, scale = 1 / sqrtf((float)size);
    for (int h = 0; h < a->heads; h++)
        product(part_dense(p, probs, h, queries, keys), part_queries(p, p->q, h), transposed(part_keys(p, p->k, h)),
                queries, size, keys, scale, n);
    ROWS(part_probs_kernel, rows, probs, p->lse_all, queries, keys, p->diagonal);
    for (int h = 0; h < a->heads; h++) {
        matrix d = part_queries(p, p->grad_out, h);
        product(part_dense(p, grad, h, queries, keys), d, transposed(part_keys(p, p->v, h)), queries, size, keys, 1, n);
        add_product(part_dense(p, p->grad_v, h, keys, size), transposed(part_dense(p, probs, h, queries, keys)), d,
                    keys, queries, size, n);
    }
    ROWS(part_scores_kernel, rows, grad, probs, p->dot, scale, keys);
    for (int h = 0; h < a->heads; h++) {
        matrix s = part_dense(p, grad, h, queries, keys);
        add_product(part_dense(p, p->grad_q, h, queries, size), s, part_keys(p, p->k, h), queries, keys, size, n);
        add_product(part_dense(p, p->grad_k, h, keys, size), transposed(s), part_queries(p, p->q, h), keys, queries,
                    size, n);
    }
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static __global__ void gelu_kernel(float *out, const float *in, size_t n) {
    size_t i = element();
    if (i >= n) return;
    float x = in[i];
    out[i] = 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static void gelu(float *out, const float *x, size_t n) { EACH(gelu_kernel, n, out, x, n); }

static __global__ void gelu_backward_kernel(float *d, const float *in, size_t n) {
    size_t i = element();
    if (i >= n) return;
    float x = in[i], t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    d[i] *= 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

static void gelu_backward(float *d, const float *x, size_t n) { EACH(gelu_backward_kernel, n, d, x, n); }

static __global__ void residual_kernel(float *x, const float *part, const float *bias, size_t n, int C) {
    size_t at = element();
    if (at < n) x[at] += part[at] + (bias ? bias[at % C] : 0);
}

static void residual(float *x, const float *part, const float *bias, int rows, int C) {
    EACH(residual_kernel, (size_t)rows * C, x, part, bias, (size_t)rows * C, C);
}

static void bias_backward(float *dbias, const float *dout, int rows, int n) {
    column_sums(dbias, dout, nullptr, rows, n);
}

static __global__ void adam_kernel(float *param, float *m, float *v, const float *grad, size_t n, adam_desc d) {
    size_t i = element();
    if (i >= n) return;
    m[i] = d.a * m[i] + (1 - d.a) * grad[i];
    v[i] = d.b * v[i] + (1 - d.b) * grad[i] * grad[i];
    param[i] -= d.rate * (m[i] / d.a_bias) / (sqrtf(v[i] / d.b_bias) + d.eps);
}

static void adam(float *param, float *m, float *v, const float *grad, size_t n, adam_desc d) {
    EACH(adam_kernel, n, param, m, v, grad, n, d);
}

/* ---- experts, sums ----------------------------------------------------------------------------------------------- */

static __global__ void route_kernel(float *scores, int32_t *choice, float *weight, float *closest, int tokens,
                                    int experts, int top_k) {
    size_t i = element();
    if (i >= (size_t)tokens) return;
    float close = route_token(scores + i * experts, choice + i * top_k, weight + i * top_k, experts, top_k);
    atomicMin((int *)closest, __float_as_int(close)); /* of floats that are not below 0 the order of their bits */
}

static void route(float *scores, int32_t *choice, float *weight, float *closest, int tokens, int experts, int top_k) {
    EACH(route_kernel, tokens, scores, choice, weight, closest, tokens, experts, top_k);
}

static __global__ void route_backward_kernel(float *d, const float *share, const int32_t *choice, const float *dweight,
                                             int tokens, int experts, int top_k) {
    size_t i = element();
    if (i < (size_t)tokens)
        route_token_backward(d + i * experts, share + i * experts, choice + i * top_k, dweight + i * top_k, experts,
                             top_k);
}

static void route_backward(float *d, const float *share, const int32_t *choice, const float *dweight, int tokens,
                           int experts, int top_k) {
    EACH(route_backward_kernel, tokens, d, share, choice, dweight, tokens, experts, top_k);
}

/* One warp: a micro-batch has some thousand rows. */
static __global__ void add_up_kernel(double *sum, const float *x, int n) {
    double s = 0;
    for (int i = threadIdx.x; i < n; i += 32) s += x[i];
    s = warp_sum(s);
    if (threadIdx.x == 0) *sum += s;
}

static void add_up(double *sum, const float *x, int n) { ROWS(add_up_kernel, 1, sum, x, n); }

/* ---- the device -------------------------------------------------------------------------------------------------- */

extern "C" const device *cuda_device(int number, void **stream_out) {
    static const device gpu = {zero,
                               copy,
                               embed,
                               embed_backward,
                               add_rows,
                               sum_rows,
                               layer_norm,
                               layer_norm_backward,
                               layer_norm_weight,
                               linear,
                               linear_backward,
                               linear_weight,
                               attention,
                               attention_backward,
                               gelu,
                               gelu_backward,
                               residual,
                               bias_backward,
                               ring_forward,
                               ring_backward,
                               route,
                               route_backward,
                               add_up,
                               adam};
    check(cudaSetDevice(number), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check_blas(cublasCreate(&blas), "cublasCreate");
    check_blas(cublasSetStream(blas, stream), "cublasSetStream");
    check_blas(cublasSetMathMode(blas, CUBLAS_PEDANTIC_MATH), "cublasSetMathMode"); /* fp32 all the way, no TF32 */
    *stream_out = stream;
    return &gpu;
}
