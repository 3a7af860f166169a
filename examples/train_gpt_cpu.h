/* train_gpt's device on the CPU, in plain C: train_gpt_cuda.h says what each of these does. */
#ifndef TRAIN_GPT_CPU_H
#define TRAIN_GPT_CPU_H
#include "train_gpt_cuda.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void zero(void *p, size_t nbytes) { memset(p, 0, nbytes); }
static void copy(void *to, const void *from, size_t nbytes) { memcpy(to, from, nbytes); }

/* Where row i of a matrix begins, n a row: of more than 2^31 elements beyond an int. */
static size_t row_at(int i, int n) { return (size_t)i * (size_t)n; }

/* out[m][n] += a[m][k] * b[k][n] */
static void gemm(float *out, const float *a, const float *b, int m, int k, int n) {
    int i, p, j;
    for (i = 0; i + 4 <= m; i += 4)
        for (p = 0; p < k; p++) {
            const float *from = a + row_at(i, k) + p, *row = b + row_at(p, n);
            float a0 = from[0], a1 = from[k], a2 = from[row_at(2, k)], a3 = from[row_at(3, k)];
            float *o0 = out + row_at(i, n), *o1 = o0 + n, *o2 = o1 + n, *o3 = o2 + n;
            for (j = 0; j < n; j++) {
                o0[j] += a0 * row[j];
                o1[j] += a1 * row[j];
                o2[j] += a2 * row[j];
                o3[j] += a3 * row[j];
            }
        }
    for (; i < m; i++)
        for (p = 0; p < k; p++)
            for (j = 0; j < n; j++) (out + row_at(i, n))[j] += (a + row_at(i, k))[p] * (b + row_at(p, n))[j];
}

static void transpose(float *out, const float *a, int rows, int cols) {
    int i, j;
    for (i = 0; i < rows; i++)
        for (j = 0; j < cols; j++) (out + row_at(j, rows))[i] = (a + row_at(i, cols))[j];
}

static void linear(float *out, const float *x, const float *w, const float *bias, int rows, int in, int n) {
    int i;
    for (i = 0; i < rows; i++) {
        if (bias)
            memcpy(out + row_at(i, n), bias, (size_t)n * sizeof(float));
        else
            memset(out + row_at(i, n), 0, (size_t)n * sizeof(float));
    }
    gemm(out, x, w, rows, in, n);
}

static void linear_backward(float *dx, const float *dout, const float *w, int rows, int in, int n, float *work) {
    transpose(work, w, in, n);
    memset(dx, 0, row_at(rows, in) * sizeof(float));
    gemm(dx, dout, work, rows, n, in);
}

static void linear_weight(float *dw, float *dbias, const float *dout, const float *x, int rows, int in, int n,
                          float *work) {
    int i, j;
    transpose(work, x, rows, in);
    gemm(dw, work, dout, in, rows, n);
    for (i = 0; dbias && i < rows; i++)
        for (j = 0; j < n; j++) dbias[j] += (dout + row_at(i, n))[j];
}

static void embed(float *x, const float *table, const int *tokens, int rows, int C, int first, int n) {
    int i;
    for (i = 0; i < rows; i++) {
        int at = tokens[i] - first;
        if (at >= 0 && at < n)
            memcpy(x + row_at(i, C), table + row_at(at, C), (size_t)C * sizeof(float));
        else
            memset(x + row_at(i, C), 0, (size_t)C * sizeof(float));
    }
}

static void embed_backward(float *dtable, const float *dx, const int *tokens, int rows, int C, int first, int n) {
    int i, c;
    for (i = 0; i < rows; i++)
        for (c = 0; c < C && tokens[i] >= first && tokens[i] < first + n; c++)
            (dtable + row_at(tokens[i] - first, C))[c] += (dx + row_at(i, C))[c];
}

static void add_rows(float *x, const float *by, int sequences, int T, int C) {
    size_t i, each = row_at(T, C);
    int s;
    for (s = 0; s < sequences; s++, x += each)
        for (i = 0; i < each; i++) x[i] += by[i];
}

static void sum_rows(float *dby, const float *dx, int sequences, int T, int C) {
    size_t i, each = row_at(T, C);
    int s;
    for (s = 0; s < sequences; s++, dx += each)
        for (i = 0; i < each; i++) dby[i] += dx[i];
}

static void layer_norm(float *out, float *xhat, float *rstd, const float *x, const float *w, const float *b, int rows,
                       int C) {
    int i, c;
    for (i = 0; i < rows; i++, x += C, xhat += C, out += C) {
        float mean = 0, var = 0;
        for (c = 0; c < C; c++) mean += x[c];
        mean /= (float)C;
        for (c = 0; c < C; c++) var += (x[c] - mean) * (x[c] - mean);
        rstd[i] = 1 / sqrtf(var / (float)C + 1e-5f);
        for (c = 0; c < C; c++) {
            xhat[c] = (x[c] - mean) * rstd[i];
            out[c] = xhat[c] * w[c] + b[c];
        }
    }
}

static void layer_norm_backward(float *dx, const float *dout, const float *xhat, const float *rstd, const float *w,
                                int rows, int C) {
    int i, c;
    for (i = 0; i < rows; i++, dx += C, dout += C, xhat += C) {
        float mean = 0, dot = 0;
        for (c = 0; c < C; c++) {
            float d = dout[c] * w[c];
            mean += d;
            dot += d * xhat[c];
        }
        mean /= (float)C;
        dot /= (float)C;
        for (c = 0; c < C; c++) dx[c] += (dout[c] * w[c] - mean - xhat[c] * dot) * rstd[i];
    }
}

static void layer_norm_weight(float *dw, float *db, const float *dout, const float *xhat, int rows, int C) {
    int i, c;
    for (i = 0; i < rows; i++, dout += C, xhat += C)
        for (c = 0; c < C; c++) {
            dw[c] += dout[c] * xhat[c];
            db[c] += dout[c];
        }
}

static void gelu(float *out, const float *x, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) out[i] = 0.5f * x[i] * (1 + tanhf(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}

static void gelu_backward(float *d, const float *x, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) {
        float t = tanhf(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i]));
        d[i] *= 0.5f * (1 + t) + 0.5f * x[i] * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x[i] * x[i]);
    }
}

/* Where the queries of a sequence and head begin, or its keys. */
static size_t query_at(const attention_desc *a, int s, int h) {
    return row_at(s * a->queries, a->q_row) + (size_t)(h * a->size);
}
static size_t key_at(const attention_desc *a, int s, int h) {
    return row_at(s * a->keys, a->kv_row) + (size_t)(h * a->size);
}
static int keys_seen(const attention_desc *a, int i) {
    return a->first_query + i + 1 < a->keys ? a->first_query + i + 1 : a->keys;
}

static void attention(float *out, float *probs, const float *q, const float *k, const float *v,
                      const attention_desc *a) {
    int s, h, i, j, c, size = a->size, width = a->heads * size;
    float scale = 1 / sqrtf((float)size);
    for (s = 0; s < a->sequences; s++)
        for (h = 0; h < a->heads; h++)
            for (i = 0; i < a->queries; i++) {
                const float *query = q + query_at(a, s, h) + row_at(i, a->q_row), *key = k + key_at(a, s, h),
                            *value = v + key_at(a, s, h);
                float *p = probs + (row_at(s * a->heads + h, a->queries) + (size_t)i) * (size_t)a->keys,
                      *o = out + row_at(s * a->queries + i, width) + h * size, most = -1e30f, sum = 0;
                int n = keys_seen(a, i);
                for (j = 0; j < n; j++, key += a->kv_row) {
                    float dot = 0;
                    for (c = 0; c < size; c++) dot += query[c] * key[c];
                    p[j] = dot * scale;
                    if (p[j] > most) most = p[j];
                }
                for (j = 0; j < n; j++) sum += p[j] = expf(p[j] - most);
                memset(o, 0, (size_t)size * sizeof(float));
                for (j = 0; j < n; j++, value += a->kv_row) {
                    p[j] /= sum;
                    for (c = 0; c < size; c++) o[c] += p[j] * value[c];
                }
            }
}

static void zero_rows(float *x, int rows, int row, int n) {
    int i;
    for (i = 0; i < rows; i++) memset(x + row_at(i, row), 0, (size_t)n * sizeof(float));
}

static void attention_backward(float *dq, float *dk, float *dv, const float *dout, const float *probs, const float *q,
                               const float *k, const float *v, const attention_desc *a, float *work) {
    int s, h, i, j, c, size = a->size, width = a->heads * size;
    float scale = 1 / sqrtf((float)size);
    zero_rows(dq, a->sequences * a->queries, a->q_row, width);
    zero_rows(dk, a->sequences * a->keys, a->kv_row, width);
    zero_rows(dv, a->sequences * a->keys, a->kv_row, width);
    for (s = 0; s < a->sequences; s++)
        for (h = 0; h < a->heads; h++)
            for (i = 0; i < a->queries; i++) {
                const float *p = probs + (row_at(s * a->heads + h, a->queries) + (size_t)i) * (size_t)a->keys,
                            *d = dout + row_at(s * a->queries + i, width) + h * size,
                            *query = q + query_at(a, s, h) + row_at(i, a->q_row);
                float *dquery = dq + query_at(a, s, h) + row_at(i, a->q_row), mean = 0, *dprob = work;
                size_t at = key_at(a, s, h);
                int n = keys_seen(a, i);
                for (j = 0; j < n; j++, at += (size_t)a->kv_row) {
                    dprob[j] = 0;
                    for (c = 0; c < size; c++) {
                        dprob[j] += d[c] * v[at + (size_t)c];
                        dv[at + (size_t)c] += p[j] * d[c];
                    }
                    mean += dprob[j] * p[j];
                }
                at = key_at(a, s, h);
                for (j = 0; j < n; j++, at += (size_t)a->kv_row) {
                    float ds = p[j] * (dprob[j] - mean) * scale;
                    for (c = 0; c < size; c++) {
                        dquery[c] += ds * k[at + (size_t)c];
                        dk[at + (size_t)c] += ds * query[c];
                    }
                }
            }
}

/* ---- attention by parts ---- */

/* The scores of query i of a head, scaled, from `key` on. Returns how many it sees. */
static int64_t ring_scores(const mesh_attention_part *p, const float *query, const float *key, int64_t i,
                           float *score) {
    int64_t j, n = p->diagonal ? i + 1 : p->keys;
    int c, size = p->all->width;
    float scale = 1 / sqrtf((float)size);
    for (j = 0; j < n; j++, key += p->kv_stride[2]) {
        float dot = 0;
        for (c = 0; c < size; c++) dot += query[c] * key[c];
        score[j] = dot * scale;
    }
    return n;
}

static void ring_forward(void *ctx, const mesh_attention_part *p) {
    const mesh_attention *a = p->all;
    float *score = (float *)malloc((size_t)p->keys * sizeof *score), *out = p->out, *lse = p->lse;
    int64_t row, i, j;
    int c;
    (void)ctx;
    if (!score) abort();
    for (row = 0; row < (int64_t)a->batch * a->heads; row++)
        for (i = 0; i < p->queries; i++, out += a->width) {
            int64_t q = row / a->heads * p->q_stride[0] + row % a->heads * p->q_stride[1] + i * p->q_stride[2],
                    kv = row / a->heads * p->kv_stride[0] + row % a->heads * p->kv_stride[1],
                    n = ring_scores(p, (const float *)p->q + q, (const float *)p->k + kv, i, score);
            float most = score[0], sum = 0;
            for (j = 1; j < n; j++) most = score[j] > most ? score[j] : most;
            for (j = 0; j < n; j++) sum += score[j] = expf(score[j] - most);
            *lse++ = most + logf(sum);
            memset(out, 0, (size_t)a->width * sizeof *out);
            for (j = 0; j < n; j++) {
                const float *v = (const float *)p->v + kv + j * p->kv_stride[2];
                for (c = 0; c < a->width; c++) out[c] += score[j] / sum * v[c];
            }
        }
    free(score);
}

static void ring_backward(void *ctx, const mesh_attention_part *p) {
    const mesh_attention *a = p->all;
    float *score = (float *)malloc((size_t)p->keys * sizeof *score), scale = 1 / sqrtf((float)a->width);
    int64_t row, i, j;
    int c;
    (void)ctx;
    if (!score) abort();
    for (row = 0; row < (int64_t)a->batch * a->heads; row++)
        for (i = 0; i < p->queries; i++) {
            int64_t q = row / a->heads * p->q_stride[0] + row % a->heads * p->q_stride[1] + i * p->q_stride[2],
                    kv = row / a->heads * p->kv_stride[0] + row % a->heads * p->kv_stride[1], at = row * p->queries + i,
                    n = ring_scores(p, (const float *)p->q + q, (const float *)p->k + kv, i, score);
            const float *d = (const float *)p->grad_out + q, *query = (const float *)p->q + q;
            for (j = 0; j < n; j++) {
                const float *k = (const float *)p->k + kv + j * p->kv_stride[2],
                            *v = (const float *)p->v + kv + j * p->kv_stride[2];
                float prob = expf(score[j] - p->lse_all[at]), dp = 0, ds,
                      *dk = p->grad_k + (row * p->keys + j) * a->width,
                      *dv = p->grad_v + (row * p->keys + j) * a->width;
                for (c = 0; c < a->width; c++) {
                    dp += d[c] * v[c];
                    dv[c] += prob * d[c];
                }
                ds = prob * (dp - p->dot[at]) * scale;
                for (c = 0; c < a->width; c++) {
                    p->grad_q[at * a->width + c] += ds * k[c];
                    dk[c] += ds * query[c];
                }
            }
        }
    free(score);
}

static void residual(float *x, const float *part, const float *bias, int rows, int C) {
    int i, c;
    for (i = 0; i < rows; i++, x += C, part += C)
        for (c = 0; c < C; c++) x[c] += part[c] + (bias ? bias[c] : 0);
}

/* ---- experts, sums ---- */

static void route(float *scores, int32_t *choice, float *weight, float *closest, int tokens, int experts, int top_k) {
    int i;
    for (i = 0; i < tokens; i++) {
        float close = route_token(scores + row_at(i, experts), choice + row_at(i, top_k), weight + row_at(i, top_k),
                                  experts, top_k);
        if (close < *closest) *closest = close;
    }
}

static void route_backward(float *d, const float *share, const int32_t *choice, const float *dweight, int tokens,
                           int experts, int top_k) {
    int i;
    for (i = 0; i < tokens; i++)
        route_token_backward(d + row_at(i, experts), share + row_at(i, experts), choice + row_at(i, top_k),
                             dweight + row_at(i, top_k), experts, top_k);
}

static void add_up(double *sum, const float *x, int n) {
    int i;
    for (i = 0; i < n; i++) *sum += (double)x[i];
}

static void bias_backward(float *dbias, const float *dout, int rows, int n) {
    int i, j;
    for (i = 0; i < rows; i++)
        for (j = 0; j < n; j++) dbias[j] += (dout + row_at(i, n))[j];
}

static void adam(float *param, float *m, float *v, const float *grad, size_t n, adam_desc d) {
    size_t i;
    for (i = 0; i < n; i++) {
        m[i] = d.a * m[i] + (1 - d.a) * grad[i];
        v[i] = d.b * v[i] + (1 - d.b) * grad[i] * grad[i];
        param[i] -= d.rate * (m[i] / d.a_bias) / (sqrtf(v[i] / d.b_bias) + d.eps);
    }
}

static const device cpu = {zero,
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
#endif
