/* Train a small GPT, byte by byte, on real text, over a mesh of data and tensor parallelism:
       build/train_gpt                                             one process
       mesh run -n 8 -- build/train_gpt --mesh dp=4,tp=2           eight, with the same losses
       mesh run -n 8 -- build/train_gpt --mesh dp=4,tp=2 --device cuda    on eight GPUs (build/train_gpt_cuda)

   What is parallel, and where it talks:
     dp    each index trains on its share of the batch; gradients are averaged once per step           (see `train_step`)
     tp    each index holds some heads of the attention and some columns of the MLP. The sums over
           tp after the row-split matrices, and before the column-split ones going backward, are
           the only ones needed (Megatron-LM's f and g)                                                 (see `tp_sum`)
   Everything else - layer norms, embeddings, the head - is replicated over tp: the same numbers on each rank, because an
   all-reduce has the same bits everywhere.

   What computes is a `device`: the CPU, here, or with -DTRAIN_GPT_CUDA a GPU (train_gpt.cu). Its memory is the transport's
   (mesh_alloc, mesh_copy), so the network and what is parallel about it are written once. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#ifdef TRAIN_GPT_CUDA
#include "../transports/mesh_nccl.h"
#endif
#include "train_gpt_cuda.h"
#include <math.h>
#include <stdio.h>

typedef struct options {
    const char *mesh, *device, *text, *log, *against;
    int steps, batch, context, layers, channels, heads, seed;
} options;

/* ---- the mesh ------------------------------------------------------------------------------------------------------ */

static mesh_socket net;
#ifdef TRAIN_GPT_CUDA
static mesh_nccl gpu;
#endif
static mesh_comm comm;
static const device *dev;
static int dp, dp_index, tp, tp_index;

static void die(const char *what) {
    fprintf(stderr, "train_gpt: %s\n", what);
    exit(1);
}

static void must(mesh_status status) {
    if (status != MESH_OK) die(comm.error.text);
}

static void *allocate(size_t n, size_t each) {
    void *p = calloc(n ? n : 1, each);
    if (!p) die("out of memory");
    return p;
}

/* Memory of the device, zero. */
static void *device_memory(size_t nbytes) {
    void *p;
    must(mesh_alloc(comm.transport, nbytes, &p, &comm.error));
    dev->zero(p, nbytes);
    return p;
}

static float *floats(size_t n) { return (float *)device_memory(n * sizeof(float)); }

/* Sum over the tp ranks; each of them ends with the same bits. */
static void tp_sum(float *x, size_t n) {
    if (tp > 1) must(mesh_all_reduce(&comm, "tp", x, x, n, MESH_F32, MESH_SUM));
}

/* ---- parameters ------------------------------------------------------------------------------------------------------ */

typedef enum split { WHOLE, COLUMNS, QKV_COLUMNS, ROWS } split; /* over tp; QKV: the q, k and v thirds are split each */

typedef struct tensor {
    size_t at; /* in the flat arrays */
    int rows, cols;
    split how;
    float deviation; /* of its initial values; below zero: all ones */
} tensor;

typedef struct layer {
    tensor ln1_w, ln1_b, qkv_w, qkv_b, proj_w, proj_b, ln2_w, ln2_b, up_w, up_b, down_w, down_b;
} layer;

typedef struct model {
    options o;
    tensor wte, wpe, lnf_w, lnf_b, head;
    layer *layers;
    tensor *all[512];
    int ntensors;
    size_t nparams;
    float *param, *grad, *m, *v; /* flat: one all-reduce, one optimizer loop */
    double *sums;                /* of a step: the loss, squares of replicated and of split gradients */
} model;

/* The local part of a parameter: rows x cols are what this rank holds. */
static void add(model *g, tensor *t, int rows, int cols, split how, float deviation) {
    t->at = g->nparams;
    t->rows = how == ROWS ? rows / tp : rows;
    t->cols = how == COLUMNS || how == QKV_COLUMNS ? cols / tp : cols;
    t->how = how;
    t->deviation = deviation;
    g->nparams += (size_t)t->rows * (size_t)t->cols;
    if (g->ntensors == (int)(sizeof g->all / sizeof g->all[0])) die("too many layers");
    g->all[g->ntensors++] = t;
}

/* A random number that depends on nothing but what it is for: every mesh draws the same ones. */
static uint64_t draw(uint64_t seed, uint64_t a, uint64_t b) {
    uint64_t h =
        seed * UINT64_C(0x9e3779b97f4a7c15) + a * UINT64_C(0xbf58476d1ce4e5b9) + b * UINT64_C(0x94d049bb133111eb);
    h = (h ^ h >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ h >> 27) * UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 31;
}

static float normal(uint64_t seed, uint64_t a, uint64_t b) {
    double u = ((double)(draw(seed, a, 2 * b) >> 11) + 1) / 9007199254740993.0,
           v = (double)(draw(seed, a, 2 * b + 1) >> 11) / 9007199254740992.0;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* The same value at the same place of the whole parameter, whoever holds it. */
static void initialize(model *g) {
    float *values = (float *)allocate(g->nparams, sizeof *values);
    int k, r, c;
    for (k = 0; k < g->ntensors; k++) {
        const tensor *t = g->all[k];
        for (r = 0; r < t->rows; r++)
            for (c = 0; c < t->cols; c++) {
                int third = t->cols / 3;
                uint64_t row = (uint64_t)(t->how == ROWS ? tp_index * t->rows + r : r);
                uint64_t col = (uint64_t)(t->how == COLUMNS       ? tp_index * t->cols + c
                                          : t->how == QKV_COLUMNS ? (c / third * tp + tp_index) * third + c % third
                                                                  : c);
                float *p = &values[t->at + (size_t)r * (size_t)t->cols + (size_t)c];
                *p = t->deviation < 0   ? 1
                     : t->deviation > 0 ? t->deviation * normal((uint64_t)g->o.seed, (uint64_t)k, row << 32 | col)
                                        : 0;
            }
    }
    must(mesh_copy(&comm, g->param, values, g->nparams * sizeof *values));
    free(values);
}

static void model_init(model *g, const options *o) {
    int i, C = o->channels;
    float residual = 0.02f / sqrtf(2.0f * (float)o->layers);
    memset(g, 0, sizeof *g);
    g->o = *o;
    g->layers = (layer *)allocate((size_t)o->layers, sizeof *g->layers);
    add(g, &g->wte, VOCAB, C, WHOLE, 0.02f);
    add(g, &g->wpe, o->context, C, WHOLE, 0.02f);
    for (i = 0; i < o->layers; i++) {
        layer *l = &g->layers[i];
        add(g, &l->ln1_w, 1, C, WHOLE, -1), add(g, &l->ln1_b, 1, C, WHOLE, 0);
        add(g, &l->qkv_w, C, 3 * C, QKV_COLUMNS, 0.02f), add(g, &l->qkv_b, 1, 3 * C, QKV_COLUMNS, 0);
        add(g, &l->proj_w, C, C, ROWS, residual), add(g, &l->proj_b, 1, C, WHOLE, 0);
        add(g, &l->ln2_w, 1, C, WHOLE, -1), add(g, &l->ln2_b, 1, C, WHOLE, 0);
        add(g, &l->up_w, C, 4 * C, COLUMNS, 0.02f), add(g, &l->up_b, 1, 4 * C, COLUMNS, 0);
        add(g, &l->down_w, 4 * C, C, ROWS, residual), add(g, &l->down_b, 1, C, WHOLE, 0);
    }
    add(g, &g->lnf_w, 1, C, WHOLE, -1), add(g, &g->lnf_b, 1, C, WHOLE, 0);
    add(g, &g->head, C, VOCAB, WHOLE, 0.02f);
    g->param = floats(g->nparams);
    g->grad = floats(g->nparams);
    g->m = floats(g->nparams);
    g->v = floats(g->nparams);
    g->sums = (double *)device_memory(3 * sizeof(double));
    initialize(g);
}

static float *P(const model *g, const tensor *t) { return g->param + t->at; }
static float *G(const model *g, const tensor *t) { return g->grad + t->at; }

/* ---- the CPU as a device: train_gpt_cuda.h says what each of these does ------------------------------------------ */

static void zero(void *p, size_t nbytes) { memset(p, 0, nbytes); }

/* out[m][n] += a[m][k] * b[k][n] */
static void gemm(float *out, const float *a, const float *b, int m, int k, int n) {
    int i, p, j;
    for (i = 0; i + 4 <= m; i += 4)
        for (p = 0; p < k; p++) {
            float a0 = a[i * k + p], a1 = a[(i + 1) * k + p], a2 = a[(i + 2) * k + p], a3 = a[(i + 3) * k + p];
            float *o0 = out + i * n, *o1 = o0 + n, *o2 = o1 + n, *o3 = o2 + n;
            const float *row = b + p * n;
            for (j = 0; j < n; j++) {
                o0[j] += a0 * row[j];
                o1[j] += a1 * row[j];
                o2[j] += a2 * row[j];
                o3[j] += a3 * row[j];
            }
        }
    for (; i < m; i++)
        for (p = 0; p < k; p++)
            for (j = 0; j < n; j++) out[i * n + j] += a[i * k + p] * b[p * n + j];
}

static void transpose(float *out, const float *a, int rows, int cols) {
    int i, j;
    for (i = 0; i < rows; i++)
        for (j = 0; j < cols; j++) out[j * rows + i] = a[i * cols + j];
}

static void linear(float *out, const float *x, const float *w, const float *bias, int rows, int in, int n) {
    int i;
    for (i = 0; i < rows; i++) {
        if (bias)
            memcpy(out + i * n, bias, (size_t)n * sizeof(float));
        else
            memset(out + i * n, 0, (size_t)n * sizeof(float));
    }
    gemm(out, x, w, rows, in, n);
}

static void linear_backward(float *dx, float *dw, float *dbias, const float *dout, const float *x, const float *w,
                            int rows, int in, int n, float *work) {
    float *xt = work, *wt = work + rows * in;
    int i, j;
    transpose(wt, w, in, n);
    memset(dx, 0, (size_t)rows * (size_t)in * sizeof(float));
    gemm(dx, dout, wt, rows, n, in);
    transpose(xt, x, rows, in);
    gemm(dw, xt, dout, in, rows, n);
    for (i = 0; dbias && i < rows; i++)
        for (j = 0; j < n; j++) dbias[j] += dout[i * n + j];
}

static void embed(float *x, const float *wte, const float *wpe, const unsigned char *tokens, int rows, int T, int C) {
    int i, c;
    for (i = 0; i < rows; i++)
        for (c = 0; c < C; c++) x[i * C + c] = wte[tokens[i] * C + c] + wpe[i % T * C + c];
}

static void embed_backward(float *dwte, float *dwpe, const float *dx, const unsigned char *tokens, int rows, int T,
                           int C) {
    int i, c;
    for (i = 0; i < rows; i++)
        for (c = 0; c < C; c++) {
            dwte[tokens[i] * C + c] += dx[i * C + c];
            dwpe[i % T * C + c] += dx[i * C + c];
        }
}

static void layer_norm(float *out, float *xhat, float *rstd, const float *x, const float *w, const float *b, int rows,
                       int C) {
    int i, c;
    for (i = 0; i < rows; i++) {
        float mean = 0, var = 0;
        for (c = 0; c < C; c++) mean += x[i * C + c];
        mean /= (float)C;
        for (c = 0; c < C; c++) var += (x[i * C + c] - mean) * (x[i * C + c] - mean);
        rstd[i] = 1 / sqrtf(var / (float)C + 1e-5f);
        for (c = 0; c < C; c++) {
            xhat[i * C + c] = (x[i * C + c] - mean) * rstd[i];
            out[i * C + c] = xhat[i * C + c] * w[c] + b[c];
        }
    }
}

static void layer_norm_backward(float *dx, float *dw, float *db, const float *dout, const float *xhat,
                                const float *rstd, const float *w, int rows, int C) {
    int i, c;
    for (i = 0; i < rows; i++) {
        float mean = 0, dot = 0;
        for (c = 0; c < C; c++) {
            float d = dout[i * C + c];
            dw[c] += d * xhat[i * C + c];
            db[c] += d;
            mean += d * w[c];
            dot += d * w[c] * xhat[i * C + c];
        }
        mean /= (float)C;
        dot /= (float)C;
        for (c = 0; c < C; c++) dx[i * C + c] += (dout[i * C + c] * w[c] - mean - xhat[i * C + c] * dot) * rstd[i];
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

static void attention(float *out, float *probs, const float *qkv, int sequences, int T, int heads, int size) {
    int s, h, i, j, c, width = heads * size;
    float scale = 1 / sqrtf((float)size);
    for (s = 0; s < sequences; s++)
        for (h = 0; h < heads; h++)
            for (i = 0; i < T; i++) {
                const float *q = qkv + (s * T + i) * 3 * width + h * size;
                float *p = probs + ((s * heads + h) * T + i) * T, *o = out + (s * T + i) * width + h * size,
                      most = -1e30f, sum = 0;
                for (j = 0; j <= i; j++) {
                    const float *k = qkv + (s * T + j) * 3 * width + width + h * size;
                    float dot = 0;
                    for (c = 0; c < size; c++) dot += q[c] * k[c];
                    p[j] = dot * scale;
                    if (p[j] > most) most = p[j];
                }
                for (j = 0; j <= i; j++) sum += p[j] = expf(p[j] - most);
                memset(o, 0, (size_t)size * sizeof(float));
                for (j = 0; j <= i; j++) {
                    const float *v = qkv + (s * T + j) * 3 * width + 2 * width + h * size;
                    p[j] /= sum;
                    for (c = 0; c < size; c++) o[c] += p[j] * v[c];
                }
            }
}

static void attention_backward(float *dqkv, const float *dout, const float *probs, const float *qkv, int sequences,
                               int T, int heads, int size, float *work) {
    int s, h, i, j, c, width = heads * size;
    float scale = 1 / sqrtf((float)size);
    memset(dqkv, 0, (size_t)(sequences * T) * 3 * (size_t)width * sizeof(float));
    for (s = 0; s < sequences; s++)
        for (h = 0; h < heads; h++)
            for (i = 0; i < T; i++) {
                const float *q = qkv + (s * T + i) * 3 * width + h * size, *p = probs + ((s * heads + h) * T + i) * T,
                            *d = dout + (s * T + i) * width + h * size;
                float *dq = dqkv + (s * T + i) * 3 * width + h * size, mean = 0, *dprob = work;
                for (j = 0; j <= i; j++) {
                    const float *v = qkv + (s * T + j) * 3 * width + 2 * width + h * size;
                    float *dv = dqkv + (s * T + j) * 3 * width + 2 * width + h * size;
                    dprob[j] = 0;
                    for (c = 0; c < size; c++) {
                        dprob[j] += d[c] * v[c];
                        dv[c] += p[j] * d[c];
                    }
                    mean += dprob[j] * p[j];
                }
                for (j = 0; j <= i; j++) {
                    const float *k = qkv + (s * T + j) * 3 * width + width + h * size;
                    float *dk = dqkv + (s * T + j) * 3 * width + width + h * size,
                          ds = p[j] * (dprob[j] - mean) * scale;
                    for (c = 0; c < size; c++) {
                        dq[c] += ds * k[c];
                        dk[c] += ds * q[c];
                    }
                }
            }
}

static void residual(float *x, const float *part, const float *bias, int rows, int C) {
    int i, c;
    for (i = 0; i < rows; i++)
        for (c = 0; c < C; c++) x[i * C + c] += part[i * C + c] + bias[c];
}

static void cross_entropy(double *mean, float *logits, const unsigned char *targets, int rows) {
    double loss = 0;
    int i, k;
    for (i = 0; i < rows; i++) {
        float *row = logits + i * VOCAB, most = row[0], sum = 0;
        for (k = 1; k < VOCAB; k++) most = row[k] > most ? row[k] : most;
        loss += (double)most - (double)row[targets[i]];
        for (k = 0; k < VOCAB; k++) sum += row[k] = expf(row[k] - most);
        loss += log((double)sum);
        for (k = 0; k < VOCAB; k++) row[k] = (row[k] / sum - (float)(k == targets[i])) / (float)rows;
    }
    *mean += loss / (double)rows;
}

static void add_squares(double *sum, const float *x, size_t n) {
    double s = *sum;
    size_t i;
    for (i = 0; i < n; i++) s += (double)x[i] * (double)x[i];
    *sum = s;
}

static void adam(float *param, float *m, float *v, const float *grad, size_t n, adam_desc d) {
    size_t i;
    for (i = 0; i < n; i++) {
        m[i] = d.a * m[i] + (1 - d.a) * grad[i];
        v[i] = d.b * v[i] + (1 - d.b) * grad[i] * grad[i];
        param[i] -= d.rate * (m[i] / d.a_bias) / (sqrtf(v[i] / d.b_bias) + d.eps);
    }
}

static const device cpu = {zero,          embed,           embed_backward, layer_norm,         layer_norm_backward,
                           linear,        linear_backward, attention,      attention_backward, gelu,
                           gelu_backward, residual,        cross_entropy,  add_squares,        adam};

/* ---- the whole network ------------------------------------------------------------------------------------------------------- */

typedef struct saved { /* what a layer's backward pass needs */
    float *ln1, *ln1_hat, *ln1_rstd, *qkv, *probs, *att, *ln2, *ln2_hat, *ln2_rstd, *up, *act;
} saved;

typedef struct pass {
    int sequences, rows;
    float *x, *part, *lnf, *lnf_hat, *lnf_rstd, *logits, *dx, *dpart, *dwide, *work;
    saved *layers;
} pass;

static void pass_init(pass *a, const model *g, int sequences) {
    size_t C = (size_t)g->o.channels, rows = (size_t)sequences * (size_t)g->o.context, width = C / (size_t)tp;
    size_t linear = rows * 4 * C + 4 * C * C + C * VOCAB, probs = rows * (size_t)(g->o.context * g->o.heads / tp);
    int i;
    a->sequences = sequences;
    a->rows = (int)rows;
    a->x = floats(rows * C), a->part = floats(rows * C), a->lnf = floats(rows * C), a->lnf_hat = floats(rows * C),
    a->lnf_rstd = floats(rows);
    a->logits = floats(rows * VOCAB), a->dx = floats(rows * C), a->dpart = floats(rows * C),
    a->dwide = floats(rows * 4 * C);
    a->work = floats(linear > probs ? linear : probs);
    a->layers = (saved *)allocate((size_t)g->o.layers, sizeof *a->layers);
    for (i = 0; i < g->o.layers; i++) {
        saved *s = &a->layers[i];
        s->ln1 = floats(rows * C), s->ln1_hat = floats(rows * C), s->ln1_rstd = floats(rows),
        s->qkv = floats(rows * 3 * width);
        s->probs = floats(probs), s->att = floats(rows * width);
        s->ln2 = floats(rows * C), s->ln2_hat = floats(rows * C), s->ln2_rstd = floats(rows),
        s->up = floats(rows * 4 * width), s->act = floats(rows * 4 * width);
    }
}

/* x += the sum over tp of what the row-split matrix gave, + bias once. */
static void join(float *x, float *part, const float *bias, int rows, int C) {
    tp_sum(part, (size_t)rows * (size_t)C);
    dev->residual(x, part, bias, rows, C);
}

static void forward(const model *g, pass *a, const unsigned char *tokens) {
    int C = g->o.channels, T = g->o.context, width = C / tp, heads = g->o.heads / tp, l;
    dev->embed(a->x, P(g, &g->wte), P(g, &g->wpe), tokens, a->rows, T, C);
    for (l = 0; l < g->o.layers; l++) {
        const layer *w = &g->layers[l];
        saved *s = &a->layers[l];
        dev->layer_norm(s->ln1, s->ln1_hat, s->ln1_rstd, a->x, P(g, &w->ln1_w), P(g, &w->ln1_b), a->rows, C);
        dev->linear(s->qkv, s->ln1, P(g, &w->qkv_w), P(g, &w->qkv_b), a->rows, C, 3 * width);
        dev->attention(s->att, s->probs, s->qkv, a->sequences, T, heads, C / g->o.heads);
        dev->linear(a->part, s->att, P(g, &w->proj_w), NULL, a->rows, width, C);
        join(a->x, a->part, P(g, &w->proj_b), a->rows, C);
        dev->layer_norm(s->ln2, s->ln2_hat, s->ln2_rstd, a->x, P(g, &w->ln2_w), P(g, &w->ln2_b), a->rows, C);
        dev->linear(s->up, s->ln2, P(g, &w->up_w), P(g, &w->up_b), a->rows, C, 4 * width);
        dev->gelu(s->act, s->up, (size_t)a->rows * 4 * (size_t)width);
        dev->linear(a->part, s->act, P(g, &w->down_w), NULL, a->rows, 4 * width, C);
        join(a->x, a->part, P(g, &w->down_b), a->rows, C);
    }
    dev->layer_norm(a->lnf, a->lnf_hat, a->lnf_rstd, a->x, P(g, &g->lnf_w), P(g, &g->lnf_b), a->rows, C);
    dev->linear(a->logits, a->lnf, P(g, &g->head), NULL, a->rows, C, VOCAB);
}

static void backward(const model *g, pass *a, const unsigned char *tokens) {
    int C = g->o.channels, T = g->o.context, width = C / tp, heads = g->o.heads / tp, l;
    size_t all = (size_t)a->rows * (size_t)C;
    dev->zero(g->grad, g->nparams * sizeof(float));
    dev->zero(a->dx, all * sizeof(float));
    dev->linear_backward(a->dpart, G(g, &g->head), NULL, a->logits, a->lnf, P(g, &g->head), a->rows, C, VOCAB, a->work);
    dev->layer_norm_backward(a->dx, G(g, &g->lnf_w), G(g, &g->lnf_b), a->dpart, a->lnf_hat, a->lnf_rstd,
                             P(g, &g->lnf_w), a->rows, C);
    for (l = g->o.layers - 1; l >= 0; l--) {
        const layer *w = &g->layers[l];
        saved *s = &a->layers[l];
        dev->linear_backward(a->dwide, G(g, &w->down_w), G(g, &w->down_b), a->dx, s->act, P(g, &w->down_w), a->rows,
                             4 * width, C, a->work);
        dev->gelu_backward(a->dwide, s->up, (size_t)a->rows * 4 * (size_t)width);
        dev->linear_backward(a->dpart, G(g, &w->up_w), G(g, &w->up_b), a->dwide, s->ln2, P(g, &w->up_w), a->rows, C,
                             4 * width, a->work);
        tp_sum(a->dpart, all); /* each rank's columns give a part of the gradient of their common input */
        dev->layer_norm_backward(a->dx, G(g, &w->ln2_w), G(g, &w->ln2_b), a->dpart, s->ln2_hat, s->ln2_rstd,
                                 P(g, &w->ln2_w), a->rows, C);
        dev->linear_backward(a->part, G(g, &w->proj_w), G(g, &w->proj_b), a->dx, s->att, P(g, &w->proj_w), a->rows,
                             width, C, a->work);
        dev->attention_backward(a->dwide, a->part, s->probs, s->qkv, a->sequences, T, heads, C / g->o.heads, a->work);
        dev->linear_backward(a->dpart, G(g, &w->qkv_w), G(g, &w->qkv_b), a->dwide, s->ln1, P(g, &w->qkv_w), a->rows, C,
                             3 * width, a->work);
        tp_sum(a->dpart, all);
        dev->layer_norm_backward(a->dx, G(g, &w->ln1_w), G(g, &w->ln1_b), a->dpart, s->ln1_hat, s->ln1_rstd,
                                 P(g, &w->ln1_w), a->rows, C);
    }
    dev->embed_backward(G(g, &g->wte), G(g, &g->wpe), a->dx, tokens, a->rows, T, C);
}

/* One step on this rank's share of the batch. */
static double train_step(model *g, pass *a, const unsigned char *tokens, const unsigned char *targets, int step,
                         double *norm) {
    adam_desc d = {5e-4f * (step < 20 ? (float)(step + 1) / 20 : 1), 0.9f, 0.99f, 1e-5f, 0, 0};
    double sums[3];
    int k;
    d.a_bias = 1 - powf(d.a, (float)(step + 1)), d.b_bias = 1 - powf(d.b, (float)(step + 1));
    dev->zero(g->sums, sizeof sums);
    forward(g, a, tokens);
    dev->cross_entropy(&g->sums[0], a->logits, targets, a->rows);
    backward(g, a, tokens);
    must(mesh_all_reduce(&comm, "dp", g->grad, g->grad, g->nparams, MESH_F32, MESH_AVG));
    must(mesh_all_reduce(&comm, "dp", &g->sums[0], &g->sums[0], 1, MESH_F64, MESH_AVG));
    /* The norm of the whole gradient: replicated parameters count once, split ones are summed over tp. */
    for (k = 0; k < g->ntensors; k++) {
        const tensor *t = g->all[k];
        dev->add_squares(&g->sums[t->how == WHOLE ? 1 : 2], G(g, t), (size_t)t->rows * (size_t)t->cols);
    }
    must(mesh_all_reduce(&comm, "tp", &g->sums[2], &g->sums[2], 1, MESH_F64, MESH_SUM));
    dev->adam(g->param, g->m, g->v, g->grad, g->nparams, d);
    must(mesh_copy(&comm, sums, g->sums, sizeof sums));
    *norm = sqrt(sums[1] + sums[2]);
    return sums[0];
}

/* ---- text ------------------------------------------------------------------------------------------------------------------------ */

/* Append a file. Returns 0 if it cannot be read. */
static int append_file(const char *path, unsigned char **text, size_t *length) {
    FILE *f = fopen(path, "rb");
    unsigned char chunk[65536];
    size_t n;
    if (!f) return 0;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        *text = (unsigned char *)realloc(*text, *length + n);
        if (!*text) die("out of memory");
        memcpy(*text + *length, chunk, n);
        *length += n;
    }
    fclose(f);
    return 1;
}

/* Broadcast what lies in host memory. */
static void spread(void *p, size_t count, mesh_dtype dtype) {
    size_t nbytes = count * mesh_dtype_bytes(dtype);
    void *there;
    must(mesh_alloc(comm.transport, nbytes, &there, &comm.error));
    must(mesh_copy(&comm, there, p, nbytes));
    must(mesh_broadcast(&comm, NULL, there, there, count, dtype, 0));
    must(mesh_copy(&comm, p, there, nbytes));
    must(mesh_free(comm.transport, there, &comm.error));
}

/* Rank 0 reads, everybody gets it: the other hosts need not have the file. */
static unsigned char *read_text(const options *o, size_t *length) {
    static const char *const own[] = {"mesh.h", "mesh_collectives.h", "transports/mesh_socket.h",
                                      "transports/mesh_sim.h"};
    unsigned char *text = NULL;
    uint64_t n = 0;
    if (net.base.rank == 0) {
        size_t have = 0, i;
        if (o->text) append_file(o->text, &text, &have);
        for (i = 0; !o->text && i < sizeof own / sizeof own[0]; i++) {
            char path[1024];
            const char *slash = strrchr(__FILE__, '/');
            snprintf(path, sizeof path, "%.*s../%s", slash ? (int)(slash + 1 - __FILE__) : 0, __FILE__, own[i]);
            append_file(path, &text, &have);
        }
        n = have;
    }
    spread(&n, 1, MESH_U64);
    if (n < 4 * (uint64_t)o->context)
        die(o->text ? "the text of --text is missing or too short"
                    : "the library's headers are not where they were built; give --text FILE");
    if (net.base.rank) text = (unsigned char *)allocate((size_t)n, 1);
    spread(text, (size_t)n, MESH_U8);
    *length = (size_t)n;
    return text;
}

/* This rank's sequences of a step: a global sequence is the same text on every mesh. */
static void take_batch(const options *o, const unsigned char *text, size_t length, int step, int share,
                       unsigned char *tokens, unsigned char *targets) {
    int s, T = o->context;
    for (s = 0; s < share; s++) {
        uint64_t sequence = (uint64_t)(dp_index * share + s);
        size_t at = (size_t)(draw((uint64_t)o->seed + 77, (uint64_t)step, sequence) % (length - (size_t)T - 1));
        memcpy(tokens + s * T, text + at, (size_t)T);
        memcpy(targets + s * T, text + at + 1, (size_t)T);
    }
}

/* Continue a prompt, one byte at a time. All ranks take part; rank 0 prints. */
static void sample(const model *g, int bytes) {
    unsigned char *window = (unsigned char *)allocate((size_t)g->o.context, 1),
                  *tokens = (unsigned char *)device_memory((size_t)g->o.context);
    const char *prompt = "static inline ";
    int n = (int)strlen(prompt), i, k;
    pass a;
    pass_init(&a, g, 1);
    memset(window, '\n', (size_t)g->o.context);
    memcpy(window, prompt, (size_t)n);
    if (net.base.rank == 0) printf("\n%s", prompt);
    for (i = 0; i < bytes; i++) {
        float row[VOCAB], most = -1e30f;
        double sum = 0, at;
        if (n == g->o.context) {
            memmove(window, window + 1, (size_t)n - 1);
            n--;
        }
        must(mesh_copy(&comm, tokens, window, (size_t)g->o.context));
        forward(g, &a, tokens);
        must(mesh_copy(&comm, row, a.logits + (n - 1) * VOCAB, sizeof row));
        for (k = 0; k < VOCAB; k++) most = row[k] > most ? row[k] : most;
        for (k = 0; k < VOCAB; k++) sum += exp(((double)row[k] - (double)most) / 0.6);
        at = sum * ((double)(draw((uint64_t)g->o.seed, 99, (uint64_t)i) >> 11) / 9007199254740992.0);
        for (k = 0; k < VOCAB - 1 && (at -= exp(((double)row[k] - (double)most) / 0.6)) > 0; k++) {}
        window[n++] = (unsigned char)k;
        if (net.base.rank == 0) putchar(k == '\n' || (k >= ' ' && k < 127) ? k : '?');
    }
    if (net.base.rank == 0) printf("\n");
    free(window);
}

/* ---- main -------------------------------------------------------------------------------------------------------------------------- */

static double seconds(void) { return (double)net.base.ops->now(&net.base) * 1e-9; }

static int usage(int status) {
    fprintf(
        status ? stderr : stdout,
        "usage: train_gpt [--mesh dp=D,tp=T] [--device cpu|cuda] [--text FILE] [--steps N] [--batch SEQUENCES]\n"
        "                 [--context BYTES] [--layers N] [--channels N] [--heads N] [--seed N] [--log FILE]\n"
        "                 [--against FILE]\n"
        "  --mesh      how the ranks are laid out; default: all of them as dp\n"
        "  --device    what computes: cpu (the default), or cuda, a GPU for each rank, which then talk over NCCL\n"
        "  --text      what to learn; default: the library's own headers\n"
        "  --log       write step, loss and gradient norm of every step to FILE\n"
        "  --against   show the losses of an earlier --log beside these; exit 1 if they differ by more than rounding\n");
    return status;
}

static int parse_options(options *o, int argc, char **argv) {
    int i, k;
    memset(o, 0, sizeof *o);
    o->mesh = "dp=-1,tp=1", o->device = "cpu";
    o->steps = 100, o->batch = 16, o->context = 64, o->layers = 2, o->channels = 64, o->heads = 4, o->seed = 1;
    for (i = 1; i < argc; i++) {
        struct {
            const char *name, **text;
            int *number;
        } known[] = {
            {"--mesh", &o->mesh, NULL},       {"--text", &o->text, NULL},     {"--log", &o->log, NULL},
            {"--against", &o->against, NULL}, {"--steps", NULL, &o->steps},   {"--batch", NULL, &o->batch},
            {"--context", NULL, &o->context}, {"--layers", NULL, &o->layers}, {"--channels", NULL, &o->channels},
            {"--heads", NULL, &o->heads},     {"--seed", NULL, &o->seed},     {"--device", &o->device, NULL}};
        int n = (int)(sizeof known / sizeof known[0]);
        if (!strcmp(argv[i], "--help")) exit(usage(0));
        for (k = 0; k < n && strcmp(argv[i], known[k].name); k++) {}
        if (k == n || ++i == argc)
            return fprintf(stderr, "train_gpt: %s is unknown or lacks its value; see --help\n",
                           argv[k == n ? i : i - 1]),
                   0;
        if (known[k].text)
            *known[k].text = argv[i];
        else if ((*known[k].number = atoi(argv[i])) < 1)
            return fprintf(stderr, "train_gpt: %s %s: expected a number above 0\n", known[k].name, argv[i]), 0;
    }
    if (strcmp(o->device, "cpu") && strcmp(o->device, "cuda"))
        return fprintf(stderr, "train_gpt: --device %s: it is cpu or cuda\n", o->device), 0;
#ifndef TRAIN_GPT_CUDA
    if (!strcmp(o->device, "cuda"))
        return fprintf(stderr,
                       "train_gpt: --device cuda: this one was built without CUDA; `make build/train_gpt` where "
                       "nvcc and nccl.h are found, or compile with -DTRAIN_GPT_CUDA and link train_gpt.cu\n"),
               0;
#endif
    return 1;
}

static int open_mesh(const options *o) {
    mesh m;
    mesh_error err;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_transport *transport = &net.base;
    if (mesh_socket_open(&net, NULL, &err) || mesh_parse(&m, o->mesh, mesh_world(&net.base), &err))
        return fprintf(stderr, "train_gpt: %s\n", err.text), 0;
    if (mesh_axis_find(&m, "dp") < 0 || mesh_axis_find(&m, "tp") < 0 || m.naxes != 2)
        return fprintf(stderr, "train_gpt: --mesh %s: expected the axes dp and tp, as in dp=4,tp=2\n", o->mesh), 0;
    dp = m.axis[mesh_axis_find(&m, "dp")].size;
    tp = m.axis[mesh_axis_find(&m, "tp")].size;
    if (o->batch % dp) return fprintf(stderr, "train_gpt: --batch %d does not divide by dp = %d\n", o->batch, dp), 0;
    if (o->channels % o->heads)
        return fprintf(stderr, "train_gpt: --channels %d does not divide by --heads %d\n", o->channels, o->heads), 0;
    if (o->heads % tp) return fprintf(stderr, "train_gpt: --heads %d does not divide by tp = %d\n", o->heads, tp), 0;
    if (o->context < 16 || o->context > 1024)
        return fprintf(stderr, "train_gpt: --context %d; 16 to 1024\n", o->context), 0;
    dev = &cpu;
#ifdef TRAIN_GPT_CUDA
    if (!strcmp(o->device, "cuda")) {
#ifndef TRAIN_GPT_SHIM /* a test, which runs the kernels on the CPU */
        if (mesh_nccl_open(&gpu, &net.base, NULL, &err)) return fprintf(stderr, "train_gpt: %s\n", err.text), 0;
        transport = &gpu.base;
#endif
        dev = cuda_device(gpu.device, &desc.stream);
    }
#endif
    if (mesh_comm_open(&comm, transport, &m, &desc, &err)) return fprintf(stderr, "train_gpt: %s\n", err.text), 0;
    dp_index = mesh_comm_index(&comm, "dp");
    tp_index = mesh_comm_index(&comm, "tp");
    return 1;
}

static int on_terminal(void) { return isatty(1) || getenv("MESH_TTY"); } /* `mesh run` passes a terminal's lines on */

static void progress_bar(int step, int steps) {
    int i, full = 30 * (step + 1) / steps;
    if (!on_terminal()) return;
    putchar('[');
    for (i = 0; i < 30; i++) putchar(i < full ? '#' : '.');
    printf("] %d/%d\r", step + 1, steps);
    fflush(stdout);
}

/* Bytes this rank sent and received along each axis: with every rank alike, what each one moved. */
static void print_traffic(int steps) {
    static const char *const axes[] = {"dp", "tp"};
    int i;
    for (i = 0; i < 2; i++) {
        uint64_t sent = 0, received = 0;
        must(mesh_comm_bytes(&comm, axes[i], &sent, &received));
        printf("%s: %.1f KB sent, %.1f KB received per step and rank\n", axes[i], (double)sent / 1000 / steps,
               (double)received / 1000 / steps);
    }
}

/* The next line of an earlier log. */
static int earlier(FILE *f, double *loss, double *norm) {
    char line[256];
    int step;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%d,%lf,%lf", &step, loss, norm) == 3) return 1;
    return 0;
}

static double relative(double a, double b) { return fabs(a - b) / (fabs(b) > 0 ? fabs(b) : 1); }

int main(int argc, char **argv) {
    options o;
    model g;
    pass a;
    size_t length;
    unsigned char *text, *batch, *tokens;
    FILE *log = NULL, *other = NULL;
    double start, worst_loss = 0, worst_norm = 0;
    int step, share, lead, wrong = 0;
    if (!parse_options(&o, argc, argv)) return 2;
    if (!open_mesh(&o)) return 1;
    lead = net.base.rank == 0;
    share = o.batch / dp;
    model_init(&g, &o);
    pass_init(&a, &g, share);
    text = read_text(&o, &length);
    batch = (unsigned char *)allocate(2 * (size_t)a.rows, 1); /* tokens and their targets */
    tokens = (unsigned char *)device_memory(2 * (size_t)a.rows);
    if (lead && o.log && !(log = fopen(o.log, "w"))) die("cannot write the file of --log");
    if (lead && o.against && !(other = fopen(o.against, "r"))) die("cannot read the file of --against");
    if (log) fprintf(log, "step,loss,norm\n");
    if (lead)
        printf(
            "%d rank%s as dp=%d, tp=%d; %zu parameters on each; %d sequences of %d bytes per step; %zu bytes of text\n",
            net.base.size, net.base.size > 1 ? "s" : "", dp, tp, g.nparams, o.batch, o.context, length);
    if (lead) printf(other ? "step      loss    (other)  grad norm    (other)\n" : "step      loss  grad norm\n");
    start = seconds();
    for (step = 0; step < o.steps; step++) {
        double norm, loss, was_loss = 0, was_norm = 0;
        take_batch(&o, text, length, step, share, batch, batch + a.rows);
        must(mesh_copy(&comm, tokens, batch, 2 * (size_t)a.rows));
        loss = train_step(&g, &a, tokens, tokens + a.rows, step, &norm);
        if (!lead) continue;
        if (log) fprintf(log, "%d,%.17g,%.17g\n", step, loss, norm);
        if (other && earlier(other, &was_loss, &was_norm)) {
            if (relative(loss, was_loss) > worst_loss) worst_loss = relative(loss, was_loss);
            if (relative(norm, was_norm) > worst_norm) worst_norm = relative(norm, was_norm);
        }
        progress_bar(step, o.steps);
        if (step % 10 && step + 1 != o.steps) continue;
        if (on_terminal()) printf("\033[K");
        if (other)
            printf("%4d  %8.6f  %8.6f   %8.6f   %8.6f\n", step, loss, was_loss, norm, was_norm);
        else
            printf("%4d  %8.6f   %8.6f\n", step, loss, norm);
        fflush(stdout);
    }
    if (lead) {
        printf("%s%.0f tokens/s\n", on_terminal() ? "\033[K" : "",
               (double)o.steps * o.batch * o.context / (seconds() - start));
        print_traffic(o.steps);
        if (other) printf("largest relative difference: loss %.1e, gradient norm %.1e\n", worst_loss, worst_norm);
        wrong = other && (worst_loss > 1e-6 || worst_norm > 5e-6);
        if (wrong) printf("these differ by more than rounding\n");
        if (log) fclose(log);
        if (other) fclose(other);
    }
    sample(&g, 200);
    mesh_comm_close(&comm);
#ifdef TRAIN_GPT_CUDA
    mesh_nccl_close(&gpu);
#endif
    mesh_socket_close(&net);
    return wrong;
}
