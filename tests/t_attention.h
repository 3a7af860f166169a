/* mesh_parallel.h: ring attention, against the whole of it by one rank in double. */
#ifndef T_ATTENTION_H
#define T_ATTENTION_H
#include "there.h"

typedef struct ring_problem {
    int batch, heads, kv_heads, width, order, causal, strided, merges, salt;
    int64_t sequence;
    mesh_dtype dtype;
} ring_problem;

/* Global values: 0: q, 1: k, 2: v, 3: the gradient of out. */
static double ring_value(const ring_problem *p, int which, int b, int h, int64_t position, int e) {
    uint32_t n[4];
    mesh_random_block(n, (uint64_t)(p->salt * 4 + which), (uint64_t)(b * 64 + h), (uint64_t)(position * 128 + e));
    return float_rounded(p->dtype, ((double)n[0] / 4294967296.0 - 0.5) * 3);
}

/* One query row by the definition: out, log-sum-exp, and what its gradient adds to those of keys and values. */
typedef struct ring_whole {
    double *out, *lse, *grad_q, *grad_k, *grad_v; /* batch x heads (kv_heads) x sequence (x width) */
} ring_whole;

static double *ring_zeros(int64_t n) { return (double *)calloc((size_t)n + 1, sizeof(double)); }

static void ring_row(const ring_problem *p, ring_whole *w, int b, int h, int64_t i) {
    int e, kv = h / (p->heads / p->kv_heads);
    int64_t j, keys = p->causal ? i + 1 : p->sequence, row = (int64_t)(b * p->heads + h) * p->sequence + i,
               first = (int64_t)(b * p->kv_heads + kv) * p->sequence;
    double *prob = ring_zeros(keys), most = -1e300, sum = 0, dot = 0;
    for (j = 0; j < keys; j++) {
        for (e = 0; e < p->width; e++) prob[j] += ring_value(p, 0, b, h, i, e) * ring_value(p, 1, b, kv, j, e);
        if (prob[j] > most) most = prob[j];
    }
    for (j = 0; j < keys; j++) sum += prob[j] = mesh__exp(prob[j] - most);
    w->lse[row] = most + mesh__ln(sum);
    for (j = 0; j < keys; j++) prob[j] /= sum;
    for (e = 0; e < p->width; e++) {
        double grad = ring_value(p, 3, b, h, i, e), out = 0;
        for (j = 0; j < keys; j++) out += prob[j] * ring_value(p, 2, b, kv, j, e);
        w->out[row * p->width + e] = out;
        dot += grad * out;
    }
    for (j = 0; j < keys; j++) {
        double dp = 0, ds;
        for (e = 0; e < p->width; e++) {
            double grad = ring_value(p, 3, b, h, i, e);
            dp += grad * ring_value(p, 2, b, kv, j, e);
            w->grad_v[(first + j) * p->width + e] += prob[j] * grad;
        }
        ds = prob[j] * (dp - dot);
        for (e = 0; e < p->width; e++) {
            w->grad_q[row * p->width + e] += ds * ring_value(p, 1, b, kv, j, e);
            w->grad_k[(first + j) * p->width + e] += ds * ring_value(p, 0, b, h, i, e);
        }
    }
    free(prob);
}

static void ring_solve(const ring_problem *p, ring_whole *w) {
    int64_t rows = (int64_t)p->batch * p->heads * p->sequence, kv = (int64_t)p->batch * p->kv_heads * p->sequence, i;
    int b, h;
    w->out = ring_zeros(rows * p->width), w->lse = ring_zeros(rows), w->grad_q = ring_zeros(rows * p->width);
    w->grad_k = ring_zeros(kv * p->width), w->grad_v = ring_zeros(kv * p->width);
    for (b = 0; b < p->batch; b++)
        for (h = 0; h < p->heads; h++)
            for (i = 0; i < p->sequence; i++) ring_row(p, w, b, h, i);
}

/* ---- the caller's block ---- */

typedef struct ring_seen {
    int64_t work;
    int parts, merges;
    there_move move; /* how a device's memory is reached; NULL: it is the host's */
    void *at;
} ring_seen;
static there_move ring_move; /* of the transport that the tests run on, which gets the comm's stream */

static double ring_elem(const mesh_attention_part *part, const void *data, const int64_t *stride, int b, int h,
                        int64_t at, int e) {
    return float_at(part->all->dtype, data, b * stride[0] + h * stride[1] + at * stride[2] + e);
}

static double ring_score(const mesh_attention_part *p, int b, int h, int kv, int64_t i, int64_t j) {
    double sum = 0;
    int e;
    for (e = 0; e < p->all->width; e++)
        sum += ring_elem(p, p->q, p->q_stride, b, h, i, e) * ring_elem(p, p->k, p->kv_stride, b, kv, j, e);
    return sum;
}

static void ring_forward(void *ctx, const mesh_attention_part *p) {
    const mesh_attention *a = p->all;
    ring_seen *seen = (ring_seen *)ctx;
    int b, h, e;
    int64_t i, j;
    seen->parts++;
    seen->work += p->diagonal ? p->queries * (p->queries + 1) / 2 : p->queries * p->keys;
    CHECK(p->queries > 0 && p->keys > 0 && (!p->diagonal || p->queries == p->keys));
    CHECK(!a->causal || p->first_key + p->keys <= p->first_query || (p->diagonal && p->first_key == p->first_query));
    for (b = 0; b < a->batch; b++)
        for (h = 0; h < a->heads; h++)
            for (i = 0; i < p->queries; i++) {
                int64_t row = (int64_t)(b * a->heads + h) * p->queries + i, keys = p->diagonal ? i + 1 : p->keys;
                double most = -1e300, sum = 0, score[256];
                for (j = 0; j < keys; j++) {
                    score[j] = ring_score(p, b, h, h / (a->heads / a->kv_heads), i, j);
                    if (score[j] > most) most = score[j];
                }
                for (j = 0; j < keys; j++) sum += score[j] = mesh__exp(score[j] - most);
                p->lse[row] = (float)(most + mesh__ln(sum));
                for (e = 0; e < a->width; e++) {
                    double out = 0;
                    for (j = 0; j < keys; j++)
                        out += score[j] / sum * ring_elem(p, p->v, p->kv_stride, b, h / (a->heads / a->kv_heads), j, e);
                    p->out[row * a->width + e] = (float)out;
                }
            }
}

static void ring_backward(void *ctx, const mesh_attention_part *p) {
    const mesh_attention *a = p->all;
    int b, h, e;
    int64_t i, j;
    ((ring_seen *)ctx)->parts++;
    for (b = 0; b < a->batch; b++)
        for (h = 0; h < a->heads; h++)
            for (i = 0; i < p->queries; i++) {
                int kv = h / (a->heads / a->kv_heads);
                int64_t row = (int64_t)(b * a->heads + h) * p->queries + i, keys = p->diagonal ? i + 1 : p->keys;
                for (j = 0; j < keys; j++) {
                    double prob = mesh__exp(ring_score(p, b, h, kv, i, j) - (double)p->lse_all[row]), dp = 0, ds;
                    int64_t at = ((int64_t)(b * a->kv_heads + kv) * p->keys + j) * a->width;
                    for (e = 0; e < a->width; e++) {
                        double grad = ring_elem(p, p->grad_out, p->q_stride, b, h, i, e);
                        dp += grad * ring_elem(p, p->v, p->kv_stride, b, kv, j, e);
                        p->grad_v[at + e] += (float)(prob * grad);
                    }
                    ds = prob * (dp - (double)p->dot[row]);
                    for (e = 0; e < a->width; e++) {
                        p->grad_q[row * a->width + e] += (float)(ds * ring_elem(p, p->k, p->kv_stride, b, kv, j, e));
                        p->grad_k[at + e] += (float)(ds * ring_elem(p, p->q, p->q_stride, b, h, i, e));
                    }
                }
            }
}

/* The same of a part that lies elsewhere. */
static void ring_forward_there(void *ctx, const mesh_attention_part *p) {
    there_part w = MESH_ZERO;
    w.move = ((ring_seen *)ctx)->move, w.at = ((ring_seen *)ctx)->at;
    there_compute(&w, p, ring_forward, ctx);
}
static void ring_backward_there(void *ctx, const mesh_attention_part *p) {
    there_part w = MESH_ZERO;
    w.move = ((ring_seen *)ctx)->move, w.at = ((ring_seen *)ctx)->at;
    there_compute(&w, p, ring_backward, ctx);
}

static void ring_own_merge(void *ctx, float *out, float *lse, const float *out_part, const float *lse_part,
                           int64_t rows, int width) {
    ((ring_seen *)ctx)->merges++;
    for (; rows; rows--, out += width, out_part += width) mesh__row_merge(out, lse++, out_part, *lse_part++, width);
}

/* ---- a rank's part ---- */

typedef struct ring_part {
    mesh_attention a;
    int64_t where[256]; /* of each position of this rank, in the whole */
    int64_t positions;
    void *data[8]; /* q, k, v, grad_out, out, grad_q, grad_k, grad_v */
    size_t nbytes; /* of each */
} ring_part;

static void ring_part_make(const ring_problem *p, int n, int index, ring_part *r) {
    int64_t first[2], length[2], k;
    int count, i, which, b, h, e;
    mesh_attention *a = &r->a;
    memset(r, 0, sizeof *r);
    mesh_sequence_runs(p->sequence, p->order, n, index, first, length, &count);
    for (i = 0; i < count; i++)
        for (k = 0; k < length[i]; k++) r->where[r->positions++] = first[i] + k;
    a->batch = p->batch, a->heads = p->heads, a->kv_heads = p->kv_heads, a->width = p->width;
    a->sequence = p->sequence, a->dtype = p->dtype, a->order = p->order, a->causal = p->causal;
    if (p->strided) { /* batch x position x head x width, the heads of something else between */
        a->q_stride[2] = (p->heads + 1) * p->width, a->q_stride[1] = p->width;
        a->q_stride[0] = a->q_stride[2] * (r->positions ? r->positions : 1);
        a->kv_stride[2] = p->kv_heads * p->width + 1, a->kv_stride[1] = p->width;
        a->kv_stride[0] = a->kv_stride[2] * (r->positions ? r->positions : 1);
    }
    for (which = 0; which < 8; which++) {
        int kv = which == 1 || which == 2 || which > 5, heads = kv ? p->kv_heads : p->heads;
        int64_t dense[3], *stride = kv ? a->kv_stride : a->q_stride;
        dense[2] = p->width, dense[1] = r->positions * p->width, dense[0] = heads * dense[1];
        if (!p->strided) stride = dense;
        r->nbytes = (size_t)((p->batch + 1) * (r->positions + 1) * (p->heads + 2) * (p->width + 1)) * 4;
        r->data[which] = calloc(1, r->nbytes);
        for (b = 0; b < p->batch && which < 4; b++)
            for (h = 0; h < heads; h++)
                for (k = 0; k < r->positions; k++)
                    for (e = 0; e < p->width; e++)
                        float_put(p->dtype, r->data[which], b * stride[0] + h * stride[1] + k * stride[2] + e,
                                  ring_value(p, which, b, h, r->where[k], e));
    }
    a->q = r->data[0], a->k = r->data[1], a->v = r->data[2], a->grad_out = r->data[3], a->out = r->data[4];
    a->grad_q = r->data[5], a->grad_k = r->data[6], a->grad_v = r->data[7];
    a->lse = (float *)calloc((size_t)(p->batch * p->heads * r->positions) + 1, sizeof(float));
    a->forward = ring_forward, a->backward = ring_backward;
    if (p->merges) a->merge = ring_own_merge;
}

static void ring_part_free(ring_part *r) {
    int i;
    for (i = 0; i < 8; i++) free(r->data[i]);
    free(r->a.lse);
}

static void ring_compare(const ring_problem *p, const ring_part *r, const double *want, const void *has, int heads,
                         int rank, const char *what) {
    int64_t dense[3], k;
    const int64_t *stride =
        heads == p->heads && (has == r->a.out || has == r->a.grad_q) ? r->a.q_stride : r->a.kv_stride;
    int b, h, e;
    dense[2] = p->width, dense[1] = r->positions * p->width, dense[0] = heads * dense[1];
    if (!p->strided) stride = dense;
    for (b = 0; b < p->batch; b++)
        for (h = 0; h < heads; h++)
            for (k = 0; k < r->positions; k++)
                for (e = 0; e < p->width; e++) {
                    double w = want[((int64_t)(b * heads + h) * p->sequence + r->where[k]) * p->width + e],
                           v = float_at(p->dtype, has, b * stride[0] + h * stride[1] + k * stride[2] + e),
                           room = (w < 0 ? -w : w) + 1;
                    room *= (1 + p->width / 16.0) * (p->dtype == MESH_F32 ? 1e-5 : p->dtype == MESH_F16 ? 1e-2 : 8e-2);
                    if (v - w <= room && w - v <= room) continue;
                    test_fail(
                        __FILE__, __LINE__,
                        "rank %d, %s, batch %d, head %d of %d of %d, position %lld of %lld, %s%s: %g, expected %g",
                        rank, what, b, h, p->heads, p->kv_heads, (long long)r->where[k], (long long)p->sequence,
                        p->order ? "zigzag" : "plain", p->causal ? ", causal" : "", v, w);
                    return;
                }
}

/* The default stream of GPUs, and what stands for it in t_device.h: the transport. */
static void *ring_stream(const mesh_comm *c) { return strcmp(c->transport->ops->name, "device") ? NULL : c->transport; }

/* Either call, in the comm's memory. */
static void ring_call(mesh_comm *c, const char *axis, const ring_part *r, ring_seen *seen, int back) {
    mesh_attention a = r->a;
    there_list w;
    w.c = c, w.n = 0;
    a.ctx = seen;
    if (there_is(c)) {
        seen->move = ring_move, seen->at = ring_stream(c);
        a.forward = ring_forward_there, a.backward = ring_backward_there;
        a.q = there_in(&w, a.q, r->nbytes), a.k = there_in(&w, a.k, r->nbytes), a.v = there_in(&w, a.v, r->nbytes);
        a.grad_out = there_in(&w, a.grad_out, r->nbytes), a.out = there_out(&w, a.out, r->nbytes);
        a.grad_q = there_out(&w, a.grad_q, r->nbytes), a.grad_k = there_out(&w, a.grad_k, r->nbytes);
        a.grad_v = there_out(&w, a.grad_v, r->nbytes);
        a.lse = (float *)there_out(&w, a.lse, (size_t)(a.batch * a.heads * r->positions + 1) * sizeof(float));
    }
    CHECK_OK(back ? mesh_ring_attention_backward(c, axis, &a) : mesh_ring_attention(c, axis, &a), c->error);
    there_back(&w);
}

static void ring_try(mesh_comm *c, const char *axis, const ring_problem *p, int n, int index) {
    ring_part r;
    ring_whole w;
    ring_seen seen = MESH_ZERO;
    int64_t row, k;
    int rank = c->transport->rank;
    ring_solve(p, &w);
    ring_part_make(p, n, index, &r);
    if (there_is(c)) r.a.merge = NULL;
    ring_call(c, axis, &r, &seen, 0);
    ring_compare(p, &r, w.out, r.a.out, p->heads, rank, "out");
    for (row = 0; row < (int64_t)p->batch * p->heads; row++)
        for (k = 0; k < r.positions; k++) {
            double d = (double)r.a.lse[row * r.positions + k] - w.lse[row * p->sequence + r.where[k]];
            if (d > 1e-5 || d < -1e-5) test_fail(__FILE__, __LINE__, "rank %d: lse is off by %g", rank, d);
        }
    if (p->batch && p->sequence % (2 * n) == 0) /* everybody does the same */
        CHECK_INT(p->causal && p->order != MESH_SEQUENCE_ZIGZAG ? 0 : seen.work * n,
                  p->causal && p->order != MESH_SEQUENCE_ZIGZAG ? 0
                  : p->causal                                   ? p->sequence * (p->sequence + 1) / 2
                                                                : p->sequence * p->sequence);
    CHECK_INT(seen.merges != 0, p->merges && !there_is(c) && seen.parts > 1 + (p->order == MESH_SEQUENCE_ZIGZAG));
    ring_call(c, axis, &r, &seen, 1);
    ring_compare(p, &r, w.grad_q, r.a.grad_q, p->heads, rank, "grad_q");
    ring_compare(p, &r, w.grad_k, r.a.grad_k, p->kv_heads, rank, "grad_k");
    ring_compare(p, &r, w.grad_v, r.a.grad_v, p->kv_heads, rank, "grad_v");
    ring_part_free(&r);
    free(w.out), free(w.lse), free(w.grad_q), free(w.grad_k), free(w.grad_v);
}

static void around_rank(mesh_transport *t, void *ctx) {
    static const mesh_dtype dtypes[] = {MESH_F32, MESH_F32, MESH_BF16, MESH_F16};
    int i, k, two = t->size % 2 == 0 && t->size > 2;
    test_random r = random_from(31 + (uint64_t)t->size);
    mesh_comm c;
    if (!open_comm(t, &c, two ? "dp=2,cp=-1" : "cp=-1", NULL, 20 * SECOND)) return;
    for (k = 0; k < *(int *)ctx && !test_failures; k++) {
        ring_problem p;
        int n = mesh_comm_size(&c, "cp");
        memset(&p, 0, sizeof p);
        p.batch = random_below(&r, 8) ? 1 + random_below(&r, 2) : 0;
        p.kv_heads = 1 + random_below(&r, 3), p.heads = p.kv_heads * (1 + random_below(&r, 3));
        p.width = random_below(&r, 10) ? 1 + random_below(&r, 8) : 70;
        p.order = random_below(&r, 2), p.causal = random_below(&r, 3) != 0;
        p.sequence = random_below(&r, 24);
        if (p.order) p.sequence = p.sequence / (2 * n) * (2 * n);
        p.strided = random_below(&r, 2), p.merges = random_below(&r, 2);
        p.dtype = dtypes[random_below(&r, 4)];
        p.salt = random_below(&r, 1000);
        for (i = 0; i < (two ? mesh_comm_index(&c, "dp") : 0); i++) p.salt += 1000; /* groups that differ */
        ring_try(&c, "cp", &p, n, mesh_comm_index(&c, "cp"));
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_around(void) {
    static const int sizes[] = {1, 2, 3, 4, 5, 6};
    int i, many = test_long ? 400 : 14, few = 5;
    for (i = 0; i < 6; i++) run_world(SIM, sizes[i], around_rank, &many);
    run_world(TCP, 4, around_rank, &few);
    world_threaded = MESH_SOCKET__THREADS; /* what travels moves while a block is computed */
    run_world(TCP, 3, around_rank, &few);
    world_threaded = 0;
}

/* Scores that are infinite or no number, and rows that see no key of a part, or of none. */
static void test_ring_merge(void) {
    float infinite = 3e38f, none;
    int i;
    infinite *= 10, none = infinite - infinite;
    for (i = 0; i < 8; i++) {
        float a[2] = {1, 2}, b[2] = {3, 4}, lse_a = 0, lse_b = 0;
        if (i == 0) lse_a = -infinite, a[0] = a[1] = none;
        if (i == 1) lse_b = -infinite, b[0] = b[1] = none;
        if (i == 2) lse_a = lse_b = -infinite, a[0] = a[1] = b[0] = b[1] = 0;
        if (i == 3) lse_a = none;
        if (i == 4) lse_b = none;
        if (i == 5) lse_a = infinite;
        if (i == 6) lse_b = infinite;
        mesh__row_merge(a, &lse_a, b, lse_b, 2);
        if (i == 0) CHECK(a[0] == 3 && a[1] == 4 && lse_a == 0);
        if (i == 1) CHECK(a[0] == 1 && a[1] == 2 && lse_a == 0);
        if (i == 2) CHECK(a[0] == 0 && a[1] == 0 && lse_a == -infinite);
        if (i > 2 && i < 7) CHECK(a[0] != a[0] && a[1] != a[1] && lse_a != lse_a);
        if (i == 7) CHECK(a[0] == 2 && a[1] == 3 && lse_a > 0.693147f && lse_a < 0.693148f);
    }
}

/* What travels: keys and values of all other ranks; going back their gradients, in f32, to their home too. */
static void ring_bytes_rank(mesh_transport *t, void *ctx) {
    ring_problem p;
    ring_part r;
    ring_seen seen = MESH_ZERO;
    mesh_comm c;
    uint64_t at[3];
    (void)ctx;
    memset(&p, 0, sizeof p);
    p.batch = 2, p.heads = 4, p.kv_heads = 2, p.width = 8, p.sequence = 24, p.causal = 1, p.dtype = MESH_BF16;
    if (!open_comm(t, &c, "cp=-1", NULL, 20 * SECOND)) return;
    ring_part_make(&p, t->size, t->rank, &r);
    r.a.ctx = &seen;
    CHECK_INT(mesh_comm_bytes(&c, "cp", &at[0], NULL), MESH_OK);
    CHECK_OK(mesh_ring_attention(&c, "cp", &r.a), c.error);
    CHECK_INT(mesh_comm_bytes(&c, "cp", &at[1], NULL), MESH_OK);
    CHECK_OK(mesh_ring_attention_backward(&c, "cp", &r.a), c.error);
    CHECK_INT(mesh_comm_bytes(&c, "cp", &at[2], NULL), MESH_OK);
    /* 64: the numbers that are compared */
    CHECK_INT(at[1] - at[0], (2 * 2 * 2 * 24 * 8 * 2 / t->size + 64) * (t->size - 1));
    CHECK_INT(at[2] - at[1], 2 * 2 * 2 * 24 * 8 / t->size * (2 * (t->size - 1) + 4 * t->size) + 64 * (t->size - 1));
    ring_part_free(&r);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_ring_bytes(void) {
    run_world(SIM, 2, ring_bytes_rank, NULL);
    run_world(SIM, 4, ring_bytes_rank, NULL);
}

/* One number of rank 1's is another: in its first ring and, where all had agreed before, in a later one. */
static void ring_differs(mesh_transport *t) {
    static const char *const says[] = {"rank 1 has batch 2, rank 0 has 1",    "rank 1 has heads 8, rank 0 has 4",
                                       "rank 1 has kv_heads 4, rank 0 has 2", "rank 1 has width 5, rank 0 has 4",
                                       "rank 1 has sequence 16, rank 0 has 8", "rank 1 has dtype 3, rank 0 has 0",
                                       "rank 1 has order 1, rank 0 has 0",    "rank 1 has causal 1, rank 0 has 0"};
    int what, later;
    for (what = 0; what < 16; what++) {
        ring_problem p;
        ring_part r;
        ring_seen seen = MESH_ZERO;
        mesh_comm c;
        mesh_status status;
        int bad = t->rank == 1;
        later = what >= 8;
        memset(&p, 0, sizeof p);
        p.batch = 2, p.heads = 8, p.kv_heads = 4, p.width = 5, p.sequence = 16, p.dtype = MESH_F32; /* room for all */
        if (!open_comm(t, &c, "cp=-1", NULL, 20 * SECOND)) return;
        ring_part_make(&p, t->size, t->rank, &r);
        r.a.ctx = &seen;
        r.a.batch = 1, r.a.heads = 4, r.a.kv_heads = 2, r.a.width = 4, r.a.sequence = 8;
        if (later) CHECK_OK(mesh_ring_attention(&c, "cp", &r.a), c.error);
        if (later) CHECK_OK(mesh_ring_attention_backward(&c, "cp", &r.a), c.error);
        if (bad) {
            int *const fields[] = {&r.a.batch, &r.a.heads, &r.a.kv_heads, &r.a.width, NULL, NULL, &r.a.order, &r.a.causal};
            const int values[] = {2, 8, 4, 5, 0, 0, MESH_SEQUENCE_ZIGZAG, 1};
            if (fields[what % 8]) *fields[what % 8] = values[what % 8];
            if (what % 8 == 4) r.a.sequence = 16;
            if (what % 8 == 5) r.a.dtype = MESH_BF16;
        }
        status = mesh_ring_attention(&c, "cp", &r.a);
        CHECK_INT(status, MESH_ERR_MISMATCH);
        CHECK_HAS(c.error.text, says[what % 8]);
        CHECK_HAS(c.error.text, "mesh_ring_attention(\"cp\")");
        CHECK_INT(c.error.rank, 1);
        ring_part_free(&r);
        mesh_comm_close(&c);
    }
}

static void ring_refused_rank(mesh_transport *t, void *ctx) {
    static const struct {
        const char *said;
        int status, back;
    } wrong[] = {
        {"2 kv_heads do not divide 3 heads", MESH_ERR_ARGUMENT, 0},
        {"zigzag over 2 ranks cuts the sequence in 4, which 10 does not divide by; 8 or 12 do", MESH_ERR_ARGUMENT, 0},
        {"order 2 is none", MESH_ERR_ARGUMENT, 0},
        {"the function forward is NULL", MESH_ERR_ARGUMENT, 0},
        {"the function backward is NULL", MESH_ERR_ARGUMENT, 1},
        {"k is NULL, but rank 1 holds 4 positions", MESH_ERR_ARGUMENT, 0},
        {"out or lse is NULL, but rank 1 holds 4 positions", MESH_ERR_ARGUMENT, 0},
        {"grad_out, grad_q, grad_k or grad_v is NULL, but rank 1 holds 4 positions", MESH_ERR_ARGUMENT, 1},
        {"f64; queries, keys and values are f16, bf16 or f32", MESH_ERR_UNSUPPORTED, 0},
        {"0 heads, 2 kv_heads, width 4, sequence 8; heads and width are above 0", MESH_ERR_ARGUMENT, 0},
        {"elements are too many to count", MESH_ERR_ARGUMENT, 1},
        {"q_stride: stride -16 of dim 0 is too small", MESH_ERR_ARGUMENT, 0},
        {"kv_stride: stride 3 of dim 2 is too small; the dims within it span 4 elements", MESH_ERR_ARGUMENT, 1},
        {"the attention is NULL", MESH_ERR_ARGUMENT, 0},
        {"1 x 4 x 9223372036854775807 x 4 elements are too many to count", MESH_ERR_ARGUMENT, 0},
    };
    int what;
    (void)ctx;
    for (what = 0; what < 15; what++) {
        ring_problem p;
        ring_part r;
        ring_seen seen = MESH_ZERO;
        mesh_comm c;
        mesh_status status;
        int bad = t->rank == 1;
        memset(&p, 0, sizeof p);
        p.batch = 2, p.heads = 4, p.kv_heads = 2, p.width = 4, p.sequence = 8, p.dtype = MESH_F32;
        if (!open_comm(t, &c, "cp=-1", NULL, 20 * SECOND)) return;
        ring_part_make(&p, t->size, t->rank, &r);
        r.a.ctx = &seen;
        if (bad && what == 0) r.a.heads = 3;
        if (bad && what == 1) r.a.order = MESH_SEQUENCE_ZIGZAG, r.a.sequence = 10;
        if (bad && what == 2) r.a.order = 2;
        if (bad && what == 3) r.a.forward = NULL;
        if (bad && what == 4) r.a.backward = NULL;
        if (bad && what == 5) r.a.k = NULL;
        if (bad && what == 6) free(r.a.lse), r.a.lse = NULL;
        if (bad && what == 7) r.a.grad_v = NULL;
        if (bad && what == 8) r.a.dtype = MESH_F64;
        if (bad && what == 9) r.a.heads = 0;
        if (bad && what == 10) r.a.sequence = INT64_MAX / 70, r.a.batch = 0;
        if (bad && what == 11) r.a.q_stride[0] = -16, r.a.q_stride[1] = 4, r.a.q_stride[2] = 16;
        if (bad && what == 12) r.a.kv_stride[0] = 64, r.a.kv_stride[1] = 32, r.a.kv_stride[2] = 3;
        if (bad && what == 14) r.a.order = MESH_SEQUENCE_ZIGZAG, r.a.batch = 1, r.a.sequence = INT64_MAX;
        status = wrong[what].back ? mesh_ring_attention_backward(&c, "cp", &r.a)
                                  : mesh_ring_attention(&c, "cp", bad && what == 13 ? NULL : &r.a);
        CHECK_INT(status, wrong[what].status);
        CHECK_HAS(c.error.text,
                  wrong[what].back ? "mesh_ring_attention_backward(\"cp\"): " : "mesh_ring_attention(\"cp\"): ");
        CHECK_HAS(c.error.text, wrong[what].said);
        CHECK_INT(c.error.rank, 1);
        ring_part_free(&r);
        mesh_comm_close(&c);
    }
    ring_differs(t);
}
static void test_ring_refused(void) {
    mesh_comm none = MESH_ZERO;
    run_world(SIM, 2, ring_refused_rank, NULL);
    run_world(TCP, 2, ring_refused_rank, NULL);
    CHECK_INT(mesh_ring_attention(NULL, "cp", NULL), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_ring_attention(&none, "cp", NULL), MESH_ERR_STATE);
}

/* The whole sequence, each position once, in both orders. */
static void test_sequence_runs(void) {
    int n, order, r, i, count;
    int64_t sequence, first[2], length[2], k;
    for (n = 1; n < 9; n++)
        for (order = 0; order < 2; order++)
            for (sequence = 0; sequence < 70; sequence++) {
                int seen[70] = {0};
                for (r = 0; r < n; r++) {
                    int64_t sum = mesh_sequence_runs(sequence, order, n, r, first, length, &count);
                    CHECK_INT(count, 1 + order);
                    for (i = 0; i < count; i++) {
                        for (k = 0; k < length[i]; k++) seen[first[i] + k]++;
                        sum -= length[i];
                    }
                    CHECK_INT(sum, 0);
                }
                for (k = 0; k < sequence; k++) CHECK_INT(seen[k], 1);
            }
    for (order = 0; order < 2; order++) { /* numbers at the end of what there are */
        CHECK_INT(mesh_sequence_runs(INT64_MAX, order, 4, 3, first, length, &count), INT64_MAX / 4 + order);
        CHECK_INT(mesh_sequence_runs(8, order, 0, 0, first, length, &count), -1);
        CHECK_INT(mesh_sequence_runs(8, order, 2, 2, first, length, &count), -1);
        CHECK_INT(mesh_sequence_runs(8, order, 2, -1, first, length, &count), -1);
        CHECK_INT(mesh_sequence_runs(-8, order, 2, 0, first, length, &count), -1);
        CHECK_INT(count, 0);
    }
    CHECK_INT(mesh_sequence_runs(16, 7, 4, 1, first, length, &count), -1);
    CHECK_INT(mesh_sequence_runs(16, MESH_SEQUENCE_ZIGZAG, 4, 1, first, length, &count), 4);
    CHECK(first[0] == 2 && first[1] == 12 && length[0] == 2 && length[1] == 2);
}

static const test_case attention_tests[] = {
    {"attention/runs", test_sequence_runs, 0},
    {"attention/ring", test_around, 120},
    {"attention/bytes", test_ring_bytes, 60},
    {"attention/merge", test_ring_merge, 0},
    {"attention/refused", test_ring_refused, 60},
};

#endif
