/* Train a small GPT, byte by byte, on real text, over a mesh of several parallelisms:
       build/train_gpt                                                          one process
       mesh run -n 8 -- build/train_gpt --mesh dp=4,tp=2                        eight, with the same losses
       mesh run -n 8 -- build/train_gpt --mesh dp_shard=2,cp=2,tp=2 --sp --zero 3 --explain
       build/train_gpt --simulate 8 --mesh pp=2,dp=2,tp=2                       the same without processes: any mesh, on a simulator
       mesh run -n 8 -- build/train_gpt --mesh dp=4,tp=2 --device cuda          on eight GPUs (build/train_gpt_cuda)

   A parallelism is a table of layouts. Every weight has a layout at rest, where the optimizer has it, and one where it is used; so has every
   activation between two computations. Where they differ it is redistributed, and its gradient back. The network below knows no parallelism: it
   asks for a weight, computes with the part it has, and passes the result on. What there is:
     dp, dp_replicate, dp_shard   the batch. --zero 1..3: weights, gradients and moments at rest in parts over dp_shard and cp
     cp                           the sequence; keys and values are gathered; with --ulysses heads are cut in attention instead, with --ring they travel
     ep                           --experts N: --ep of dp_shard x cp x tp; tokens travel to the experts that their router chooses
     tp                           heads, the width of the MLP, the vocabulary. --sp: between them the sequence is cut over tp as well
     pp                           layers, by a schedule: where that has halves of a backward pass apart, the weights' half is done later
   Each computation of the table is asked of mesh_layout_local before the first step: a wrong table is an error, not a wrong loss.

   What computes is a `device`: the CPU (train_gpt_cpu.h), or with -DTRAIN_GPT_CUDA a GPU (train_gpt.cu). Its memory is the transport's
   (mesh_alloc, mesh_copy). */
#define MESH_IMPLEMENTATION
#include "../mesh_parallel.h"
#include "../mesh_checkpoint.h"
#include "../transports/mesh_sim.h"
#include "ends.h"
#include "ranks.h"
#ifdef TRAIN_GPT_CUDA
#include "../transports/mesh_nccl.h"
#endif
#include "train_gpt_table.h"
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

PER_RANK mesh_transport *host; /* over memory of the host: of this process, or of the simulator */

/* ---- the whole network: no parallelism is known from here on --------------------------------------------------------------- */

static attention_desc attention_of(const layer_pass *s) {
    attention_desc d;
    mesh_box q;
    mesh_tensor_box(&s->q_used.t, rank_here(), &q);
    d.sequences = (int)q.shape[0], d.queries = (int)q.shape[1], d.first_query = (int)q.offset[1];
    d.keys = extent_here(&s->k_used.t.layout, 1);
    d.heads = (int)q.shape[2], d.size = (int)q.shape[3];
    d.q_row = s->q_used.t.strides ? (int)s->q_used.t.strides[1] : d.heads * d.size;
    d.kv_row = s->k_used.t.strides ? (int)s->k_used.t.strides[1] : d.heads * d.size;
    return d;
}

/* The same for keys and values that travel: batch, head and position have a stride each. */
static mesh_attention ring_of(const model *g, const layer_pass *s, float *work) {
    attention_desc d = attention_of(s);
    mesh_attention a = MESH_ZERO;
    a.batch = d.sequences, a.heads = a.kv_heads = d.heads, a.width = d.size;
    a.sequence = g->o.context, a.dtype = MESH_F32, a.causal = 1;
    a.q_stride[0] = (int64_t)d.queries * d.q_row, a.q_stride[1] = d.size, a.q_stride[2] = d.q_row;
    a.kv_stride[0] = (int64_t)d.keys * d.kv_row, a.kv_stride[1] = d.size, a.kv_stride[2] = d.kv_row;
    a.q = data(&s->q_used.t), a.k = data(&s->k_used.t), a.v = data(&s->v_used.t);
    a.out = data(&s->att_used.t), a.lse = s->lse, a.grad_out = data(&s->att_used.g);
    a.grad_q = data(&s->q_used.g), a.grad_k = data(&s->k_used.g), a.grad_v = data(&s->v_used.g);
    a.forward = dev->ring_forward, a.backward = dev->ring_backward, a.ctx = work;
    return a;
}

static void attend(const model *g, layer_pass *s, float *work) {
    attention_desc d = attention_of(s);
    mesh_attention a = ring_of(g, s, work);
    if (g->o.ring)
        must(mesh_ring_attention(&comm, "cp", &a));
    else
        dev->attention(data(&s->att_used.t), s->probs, data(&s->q_used.t), data(&s->k_used.t), data(&s->v_used.t), &d);
}

static void attend_backward(const model *g, layer_pass *s, float *work) {
    attention_desc d = attention_of(s);
    mesh_attention a = ring_of(g, s, work);
    if (g->o.ring)
        must(mesh_ring_attention_backward(&comm, "cp", &a));
    else
        dev->attention_backward(data(&s->q_used.g), data(&s->k_used.g), data(&s->v_used.g), data(&s->att_used.g),
                                s->probs, data(&s->q_used.t), data(&s->k_used.t), data(&s->v_used.t), &d, work);
}

static void mlp(const model *g, layer_pass *s, int w) {
    int C = g->o.channels, rows = rows_of(&s->whole2), F = extent_here(&s->up.t.layout, 2);
    dev->linear(data(&s->up.t), data(&s->whole2.t), P(g, w, UP_W), P(g, w, UP_B), rows, C, F);
    dev->gelu(data(&s->act.t), data(&s->up.t), (size_t)rows * (size_t)F);
    dev->linear(data(&s->part2.t), data(&s->act.t), P(g, w, DOWN_W), NULL, rows, F, C);
}

static void mlp_backward(const model *g, layer_pass *s, int w, float *work) {
    int C = g->o.channels, rows = rows_of(&s->whole2), F = extent_here(&s->up.t.layout, 2);
    dev->linear_backward(data(&s->act.g), data(&s->part2.g), P(g, w, DOWN_W), rows, F, C, work);
    dev->gelu_backward(data(&s->act.g), data(&s->up.t), (size_t)rows * (size_t)F);
    dev->linear_backward(data(&s->whole2.g), data(&s->act.g), P(g, w, UP_W), rows, C, F, work);
}

static void mlp_weights(const model *g, layer_pass *s, int w, float *work) {
    int C = g->o.channels, rows = rows_of(&s->whole2), F = extent_here(&s->up.t.layout, 2);
    dev->bias_backward(G(g, w, DOWN_B), data(&s->sum2.g), rows_of(&s->sum2), C);
    dev->linear_weight(G(g, w, DOWN_W), NULL, data(&s->part2.g), data(&s->act.t), rows, F, C, work);
    dev->linear_weight(G(g, w, UP_W), G(g, w, UP_B), data(&s->act.g), data(&s->whole2.t), rows, C, F, work);
}

PER_RANK float *closest_choice; /* how much a score would have to change for a token to go elsewhere; on the device */

static void room_free(room *r) {
    if (r->p) must(mesh_free(comm.transport, r->p, &comm.error));
    r->p = NULL;
}

/* Room for so many rows of `width`; what was in it is gone. */
static float *room_for(room *r, size_t rows, size_t width) {
    if (rows <= r->rows && r->p) return r->p;
    room_free(r);
    r->rows = rows + rows / 4;
    return r->p = floats(r->rows * width);
}

/* An expert of this rank: its rows among those that came, and what is made of them. */
typedef struct expert {
    int rows;
    float *in, *up, *act, *out, *grad_out, *grad_wide, *grad_in;
    size_t up_w, up_b, down_w, down_b; /* where its weights begin among the rank's */
} expert;

static expert expert_of(const model *g, const layer_pass *s, int k) {
    size_t C = (size_t)g->o.channels, F = 4 * C, e = (size_t)k, at = (size_t)s->rows.start[k];
    expert x;
    x.rows = (int)s->rows.count[k];
    x.in = (float *)s->rows.data + at * C;
    x.up = s->kept.p + at * F, x.act = s->kept.p + s->kept.rows * F + at * F,
    x.out = s->kept.p + s->kept.rows * 2 * F + at * C;
    x.grad_out = s->grads->p + at * C, x.grad_wide = s->grads->p + s->grads->rows * C + at * F;
    x.grad_in = s->grads->p + s->grads->rows * (C + F) + at * C;
    x.up_w = x.down_w = e * C * F, x.up_b = e * F, x.down_b = e * C;
    return x;
}

/* Each expert of this rank is an MLP of the tokens that came for it. */
static void experts(const model *g, layer_pass *s, int w) {
    int C = g->o.channels, F = 4 * C, tokens = rows_of(&s->whole2), k;
    dev->linear(data(&s->scores.t), data(&s->whole2.t), P(g, w, ROUTER), NULL, tokens, C, g->o.experts);
    dev->route(data(&s->scores.t), s->choice, s->weight, closest_choice, tokens, g->o.experts, g->o.top_k);
    must_in(&crowd, mesh_moe_dispatch(g->moe, s->slot, data(&s->whole2.t), tokens, s->choice, &s->rows));
    room_for(&s->kept, (size_t)s->rows.nrows, (size_t)(2 * F + C));
    for (k = 0; k < s->rows.nexperts; k++) {
        expert x = expert_of(g, s, k);
        dev->linear(x.up, x.in, P(g, w, EACH_UP_W) + x.up_w, P(g, w, EACH_UP_B) + x.up_b, x.rows, C, F);
        dev->gelu(x.act, x.up, (size_t)x.rows * (size_t)F);
        dev->linear(x.out, x.act, P(g, w, EACH_DOWN_W) + x.down_w, P(g, w, EACH_DOWN_B) + x.down_b, x.rows, F, C);
    }
    must_in(&crowd,
            mesh_moe_combine(g->moe, s->slot, s->kept.p + s->kept.rows * 2 * (size_t)F, s->weight, data(&s->part2.t)));
}

static void experts_backward(const model *g, pass *a, layer_pass *s, int w) {
    int C = g->o.channels, F = 4 * C, X = g->o.experts, tokens = rows_of(&s->whole2), k;
    size_t c = (size_t)C, n = (size_t)tokens * c, most = c * (size_t)(F > X ? F : X);
    float *grads = room_for(s->grads, (size_t)s->rows.nrows, 2 * c + (size_t)F);
    float *through = room_for(&a->through, 1, n + most), *work = through + n;
    must_in(&crowd,
            mesh_moe_combine_backward(g->moe, s->slot, data(&s->part2.g), s->kept.p + s->kept.rows * 2 * (size_t)F,
                                      s->weight, grads, s->weight_grad));
    for (k = 0; k < s->rows.nexperts; k++) {
        expert x = expert_of(g, s, k);
        dev->linear_backward(x.grad_wide, x.grad_out, P(g, w, EACH_DOWN_W) + x.down_w, x.rows, F, C, work);
        dev->gelu_backward(x.grad_wide, x.up, (size_t)x.rows * (size_t)F);
        dev->linear_backward(x.grad_in, x.grad_wide, P(g, w, EACH_UP_W) + x.up_w, x.rows, C, F, work);
    }
    must_in(&crowd, mesh_moe_dispatch_backward(g->moe, s->slot, grads + s->grads->rows * (c + (size_t)F), through));
    dev->route_backward(data(&s->scores.g), data(&s->scores.t), s->choice, s->weight_grad, tokens, X, g->o.top_k);
    dev->linear_backward(data(&s->whole2.g), data(&s->scores.g), P(g, w, ROUTER), tokens, C, X, work);
    dev->residual(data(&s->whole2.g), through, NULL, tokens, C);
}

static void experts_weights(const model *g, pass *a, layer_pass *s, int w) {
    int C = g->o.channels, F = 4 * C, tokens = rows_of(&s->whole2), k, most = tokens;
    float *work;
    for (k = 0; k < s->rows.nexperts; k++) most = s->rows.count[k] > most ? (int)s->rows.count[k] : most;
    work = room_for(&a->work_rows, (size_t)most, (size_t)F);
    for (k = 0; k < s->rows.nexperts; k++) {
        expert x = expert_of(g, s, k);
        dev->linear_weight(G(g, w, EACH_DOWN_W) + x.down_w, G(g, w, EACH_DOWN_B) + x.down_b, x.grad_out, x.act, x.rows,
                           F, C, work);
        dev->linear_weight(G(g, w, EACH_UP_W) + x.up_w, G(g, w, EACH_UP_B) + x.up_b, x.grad_wide, x.in, x.rows, C, F,
                           work);
    }
    dev->linear_weight(G(g, w, ROUTER), NULL, data(&s->scores.g), data(&s->whole2.t), tokens, C, g->o.experts, work);
}

static void layer_forward(const model *g, pass *a, int l) {
    layer_pass *s = &a->layers[l - a->first_layer];
    int w = l + 1, C = g->o.channels, rows = rows_of(&a->x), all = rows_of(&s->whole1);
    int width = extent_here(&a->heads, 2) * extent_here(&a->heads, 3);
    dev->layer_norm(data(&s->ln1.t), s->hat1, s->rstd1, data(&a->x.t), P(g, w, LN1_W), P(g, w, LN1_B), rows, C);
    follow(s->to_whole1.forward);
    dev->linear(data(&s->qkv.t), data(&s->whole1.t), P(g, w, QKV_W), P(g, w, QKV_B), all, C, 3 * width);
    follow(s->to_q.forward), follow(s->to_k.forward), follow(s->to_v.forward);
    attend(g, s, a->work);
    follow(s->to_att.forward);
    dev->linear(data(&s->part1.t), data(&s->att.t), P(g, w, PROJ_W), NULL, all, width, C);
    follow(s->to_sum1.forward);
    dev->residual(data(&a->x.t), data(&s->sum1.t), P(g, w, PROJ_B), rows, C);
    dev->layer_norm(data(&s->ln2.t), s->hat2, s->rstd2, data(&a->x.t), P(g, w, LN2_W), P(g, w, LN2_B), rows, C);
    follow(s->to_whole2.forward);
    if (g->o.experts)
        experts(g, s, w);
    else
        mlp(g, s, w);
    follow(s->to_sum2.forward);
    dev->residual(data(&a->x.t), data(&s->sum2.t), g->o.experts ? NULL : P(g, w, DOWN_B), rows, C);
}

static void layer_backward(const model *g, pass *a, int l) {
    layer_pass *s = &a->layers[l - a->first_layer];
    int w = l + 1, C = g->o.channels, rows = rows_of(&a->x), all = rows_of(&s->whole1);
    int width = extent_here(&a->heads, 2) * extent_here(&a->heads, 3);
    float *dx = data(&a->x.g);
    dev->copy(data(&s->sum2.g), dx, local(&a->flow) * sizeof(float));
    follow(s->to_sum2.backward);
    if (g->o.experts)
        experts_backward(g, a, s, w);
    else
        mlp_backward(g, s, w, a->work);
    follow(s->to_whole2.backward);
    dev->layer_norm_backward(dx, data(&s->ln2.g), s->hat2, s->rstd2, P(g, w, LN2_W), rows, C);
    dev->copy(data(&s->sum1.g), dx, local(&a->flow) * sizeof(float));
    follow(s->to_sum1.backward);
    dev->linear_backward(data(&s->att.g), data(&s->part1.g), P(g, w, PROJ_W), all, width, C, a->work);
    follow(s->to_att.backward);
    attend_backward(g, s, a->work);
    follow(s->to_q.backward), follow(s->to_k.backward), follow(s->to_v.backward);
    dev->linear_backward(data(&s->whole1.g), data(&s->qkv.g), P(g, w, QKV_W), all, C, 3 * width, a->work);
    follow(s->to_whole1.backward);
    dev->layer_norm_backward(dx, data(&s->ln1.g), s->hat1, s->rstd1, P(g, w, LN1_W), rows, C);
}

/* What layer_backward has left: at once, or where the schedule says so later. */
static void layer_weights(const model *g, pass *a, int l) {
    layer_pass *s = &a->layers[l - a->first_layer];
    int w = l + 1, C = g->o.channels, rows = rows_of(&a->x), all = rows_of(&s->whole1);
    int width = extent_here(&a->heads, 2) * extent_here(&a->heads, 3);
    if (g->o.experts)
        experts_weights(g, a, s, w);
    else
        mlp_weights(g, s, w, a->work);
    dev->layer_norm_weight(G(g, w, LN2_W), G(g, w, LN2_B), data(&s->ln2.g), s->hat2, rows, C);
    dev->bias_backward(G(g, w, PROJ_B), data(&s->sum1.g), rows, C);
    dev->linear_weight(G(g, w, PROJ_W), NULL, data(&s->part1.g), data(&s->att.t), all, width, C, a->work);
    dev->linear_weight(G(g, w, QKV_W), G(g, w, QKV_B), data(&s->qkv.g), data(&s->whole1.t), all, C, 3 * width, a->work);
    dev->layer_norm_weight(G(g, w, LN1_W), G(g, w, LN1_B), data(&s->ln1.g), s->hat1, rows, C);
}

/* Rows of the token table that are here. */
static mesh_box table_rows(const model *g) {
    mesh_box box;
    mesh_layout_box(used(g, 0, WTE), rank_here(), &box);
    return box;
}

/* From one stage's memory to another's buffer. */
static void hand(void *to, const void *from, const pass *a) {
    must(mesh_copy(&comm, to, from, local(&a->flow) * sizeof(float)));
}

/* A stage's forward pass: from tokens, or from the stage before's output; to logits, or to the next one's input. */
static void forward(model *g, pass *a, const int *tokens, const void *in, void *out) {
    int C = g->o.channels, k;
    for (k = g->lo; k < g->hi; k++) {
        weights_of(g, k, 0);
        if (k == 0) {
            mesh_box table = table_rows(g);
            dev->embed(data(&a->table.t), P(g, 0, WTE), tokens, rows_of(&a->table), C, (int)table.offset[0],
                       (int)table.shape[0]);
            follow(a->to_x.forward);
            dev->add_rows(data(&a->x.t), P(g, 0, WPE), extent_here(&a->flow, 0), extent_here(&a->flow, 1), C);
            continue;
        }
        if (k == g->lo) hand(a->x.t.data, in, a);
        if (k < g->nsegments - 1) {
            layer_forward(g, a, k - 1);
            continue;
        }
        dev->layer_norm(data(&a->last.t), a->last_hat, a->last_rstd, data(&a->x.t), P(g, k, LNF_W), P(g, k, LNF_B),
                        rows_of(&a->x), C);
        follow(a->to_whole.forward);
        dev->linear(data(&a->logits.t), data(&a->whole.t), P(g, k, HEAD), NULL, rows_of(&a->whole), C,
                    extent_here(&a->logits.t.layout, 2));
    }
    if (out) hand(out, a->x.t.data, a);
}

/* A segment's backward pass, in two halves: to what came in, which the segment before waits for, and to its weights. */
static void segment_backward(const model *g, pass *a, int k) {
    int C = g->o.channels;
    if (k == g->nsegments - 1) {
        dev->zero(data(&a->x.g), local(&a->flow) * sizeof(float));
        dev->linear_backward(data(&a->whole.g), data(&a->logits.g), P(g, k, HEAD), rows_of(&a->whole), C,
                             extent_here(&a->logits.t.layout, 2), a->work);
        follow(a->to_whole.backward);
        dev->layer_norm_backward(data(&a->x.g), data(&a->last.g), a->last_hat, a->last_rstd, P(g, k, LNF_W),
                                 rows_of(&a->x), C);
    } else if (k > 0) {
        layer_backward(g, a, k - 1);
    } else {
        follow(a->to_x.backward);
    }
}

static void segment_weights(const model *g, pass *a, int k, const int *tokens) {
    int C = g->o.channels;
    if (k == g->nsegments - 1) {
        dev->linear_weight(G(g, k, HEAD), NULL, data(&a->logits.g), data(&a->whole.t), rows_of(&a->whole), C,
                           extent_here(&a->logits.t.layout, 2), a->work);
        dev->layer_norm_weight(G(g, k, LNF_W), G(g, k, LNF_B), data(&a->last.g), a->last_hat, rows_of(&a->x), C);
    } else if (k > 0) {
        layer_weights(g, a, k - 1);
    } else {
        mesh_box table = table_rows(g);
        dev->sum_rows(G(g, 0, WPE), data(&a->x.g), extent_here(&a->flow, 0), extent_here(&a->flow, 1), C);
        dev->embed_backward(G(g, 0, WTE), data(&a->table.g), tokens, rows_of(&a->table), C, (int)table.offset[0],
                            (int)table.shape[0]);
    }
}

/* A stage's, both halves or one of them. whole_batch: after it the gradients of all micro-batches are there. */
static void backward(model *g, pass *a, const mesh_stage_call *call, const int *tokens, int whole_batch) {
    int input = call->kind != MESH_BACKWARD_WEIGHT, weights = call->kind != MESH_BACKWARD_INPUT, k;
    if (input && call->grad_out) hand(a->x.g.data, call->grad_out, a);
    for (k = g->hi - 1; k >= g->lo; k--) {
        if (input) {
            weights_of(g, k, 1);
            segment_backward(g, a, k);
        }
        if (weights) {
            grads_of(g, k);
            segment_weights(g, a, k, tokens);
            grads_go(g, k, whole_batch);
        }
    }
    if (input && call->grad_in) hand(call->grad_in, a->x.g.data, a);
}

/* The logits as rows x vocabulary. */
static mesh_tensor logits_of(const model *g, const pass *a) {
    mesh_tensor t = a->logits.t;
    int64_t shape[2];
    int i;
    shape[0] = a->batch * g->o.context, shape[1] = VOCAB;
    t.layout = layout(2, shape);
    for (i = 0; i < 4; i++) t.layout = with(t.layout, axis_names[i], mesh_shard(0));
    t.layout = with(t.layout, "tp", mesh_shard(1));
    return t;
}

/* ---- a step: the actions of a schedule ------------------------------------------------------------------------------------ */

typedef struct rank_stages {
    model *stage; /* of this rank: chunks */
    mesh_schedule schedule, sampling;
    void *memory[2];
    const int *tokens, *targets; /* of all micro-batches; of sampling one */
    int64_t batch;               /* sequences of a micro-batch */
    int slots, each, samples;    /* each: this rank's tokens of a micro-batch */
    double *loss;                /* of this rank's rows, on the device */
    float *losses;               /* of each */
    mesh_tensor *grads;
    int ngrads;
} rank_stages;

static pass *saved_in(rank_stages *r, model *g, int slot) {
    if (!g->saved[slot]) {
        g->saved[slot] = (pass *)allocate(1, sizeof(pass));
        pass_init(g->saved[slot], g, r->batch, slot);
    }
    return g->saved[slot];
}

/* The loss of a micro-batch; its logits become their gradient. Communicates where they are cut along the vocabulary. */
static void losses_of(rank_stages *r, const mesh_tensor *logits, const int *targets, float scale) {
    mesh_loss l = MESH_ZERO;
    l.logits = logits, l.targets = targets, l.scale = scale;
    l.gradient = logits->data, l.loss = r->losses;
    must(mesh_cross_entropy(&comm, &l));
    dev->add_up(r->loss, r->losses, extent_here(&logits->layout, 0));
}

/* An action of the schedule: what mesh_pipeline_run calls. */
static int run_action(void *ctx, const mesh_stage_call *call, int ncalls) {
    rank_stages *r = (rank_stages *)ctx;
    model *g = &r->stage[call->chunk];
    pass *a = saved_in(r, g, call->slot);
    const int *tokens = r->tokens + call->micro * r->each;
    int last = g->backwards + 1 == g->o.micro;
    (void)ncalls;
    if (call->kind == MESH_FORWARD) {
        mesh_tensor logits;
        if (g->o.zero == 3) weights_begin(g, 0);
        forward(g, a, tokens, call->in, call->out);
        if (g->o.zero == 3) weights_end(g, 0);
        if (r->samples || g->hi < g->nsegments) return 0;
        logits = logits_of(g, a);
        losses_of(r, &logits, r->targets + call->micro * r->each, (float)(1 / ((double)g->o.batch * g->o.context)));
        return 0;
    }
    if (call->kind != MESH_BACKWARD_WEIGHT) weights_begin(g, 1);
    backward(g, a, call, tokens, last);
    if (call->kind != MESH_BACKWARD_WEIGHT) weights_end(g, 1);
    if (call->kind == MESH_BACKWARD_INPUT) return 0;
    g->backwards++;
    if (last || g->o.zero >= 2) must(mesh_buckets_wait(&g->grads, -1));
    return 0;
}

static void run_schedule(rank_stages *r, const mesh_schedule *schedule) {
    mesh_stage stage = MESH_ZERO;
    mesh_layout flow;
    int64_t shape[3];
    const options *o = &r->stage[0].o;
    int k;
    shape[0] = r->batch, shape[1] = o->context, shape[2] = o->channels;
    flow = activation(3, shape, o->sp ? mesh_shard(1) : mesh_invariant());
    stage.run = run_action, stage.ctx = r, stage.nbytes = local(&flow) * sizeof(float);
    for (k = 0; k < o->chunks && o->zero < 3; k++) weights_begin(&r->stage[k], 0);
    if (mesh_pipeline_run(&world, "pp", schedule, &stage) != MESH_OK) die(world.error.text);
    for (k = 0; k < o->chunks && o->zero < 3; k++) weights_end(&r->stage[k], 0);
}

/* Returns the mean loss. */
static double train_step(rank_stages *r, int step, double *norm) {
    adam_desc d = {5e-4f * (step < 20 ? (float)(step + 1) / 20 : 1), 0.9f, 0.99f, 1e-5f, 0, 0};
    const options *o = &r->stage[0].o;
    double loss;
    int k;
    d.a_bias = 1 - powf(d.a, (float)(step + 1)), d.b_bias = 1 - powf(d.b, (float)(step + 1));
    dev->zero(r->loss, sizeof loss);
    for (k = 0; k < o->chunks; k++) {
        model *g = &r->stage[k];
        dev->zero(g->grad, g->at_rest * sizeof(float));
        if (o->zero < 2) dev->zero(g->grads_used, g->used_bytes);
        g->backwards = 0;
    }
    run_schedule(r, &r->schedule);
    if (mesh_norm(&world, r->grads, r->ngrads, norm) != MESH_OK) die(world.error.text); /* every element once */
    if (mesh_comm_index(&comm, "tp") > 0) dev->zero(r->loss, sizeof loss);              /* and every row */
    if (mesh_all_reduce(&world, NULL, r->loss, r->loss, 1, MESH_F64, MESH_SUM) != MESH_OK) die(world.error.text);
    for (k = 0; k < o->chunks; k++) {
        model *g = &r->stage[k];
        dev->adam(g->param, g->m, g->v, g->grad, g->at_rest, d);
    }
    must(mesh_copy(&comm, &loss, r->loss, sizeof loss));
    return loss / ((double)o->batch * o->context);
}

/* This rank's stages, and the schedule. */
static void stages_init(rank_stages *r, const options *o) {
    int p = mesh_comm_size(&world, "pp"), index = mesh_comm_index(&world, "pp"), i, k, n, micros[2], splits = 0;
    const char *kinds[2];
    mesh_error err;
    mesh_schedule_report report = MESH_ZERO;
    memset(r, 0, sizeof *r);
    kinds[0] = o->schedule, kinds[1] = "forward";
    micros[0] = o->micro, micros[1] = 1;
    for (k = 0; k < 2; k++) {
        size_t nbytes = mesh_schedule_bytes(p, micros[k], o->chunks);
        r->memory[k] = allocate(nbytes, 1);
        check(mesh_schedule_make(k ? &r->sampling : &r->schedule, kinds[k], p, micros[k], o->chunks, r->memory[k],
                                 nbytes, &err),
              &err);
    }
    r->sampling.order = r->schedule.order;
    for (k = 0; k < r->schedule.first[p]; k++) splits |= r->schedule.action[k].kind == MESH_BACKWARD_WEIGHT;
    check(mesh_schedule_time(&r->schedule, NULL, &report, &err), &err);
    r->slots = report.peak;
    r->loss = (double *)device_memory(sizeof(double));
    r->stage = (model *)allocate((size_t)o->chunks, sizeof *r->stage);
    for (k = 0; k < o->chunks; k++) {
        r->stage[k].splits = splits;
        model_init(&r->stage[k], o, mesh_schedule_stage(&r->schedule, index, k), p * o->chunks, r->slots);
        r->ngrads += r->stage[k].n;
    }
    r->grads = (mesh_tensor *)allocate((size_t)r->ngrads, sizeof *r->grads);
    for (k = 0, n = 0; k < o->chunks; k++)
        for (i = 0; i < r->stage[k].n; i++) r->grads[n++] = r->stage[k].all[i].rest_grad;
    r->batch = o->batch / o->micro;
}

/* Memory of what is kept for the backward, but for what the transport frees. */
static void passes_free(rank_stages *r, model *g) {
    int slot, i;
    for (slot = 0; slot < r->slots; slot++) {
        pass *a = g->saved[slot];
        if (!a) continue;
        for (i = 0; i < a->nlayers; i++) {
            room_free(&a->layers[i].kept);
            if (!a->layers[i].grads || a->layers[i].grads == &a->grads) continue;
            room_free(a->layers[i].grads), free(a->layers[i].grads);
        }
        room_free(&a->grads), room_free(&a->through), room_free(&a->work_rows);
        free(a->layers), free(a);
        g->saved[slot] = NULL;
    }
}

static void stages_close(rank_stages *r, int chunks) {
    int k;
    for (k = 0; k < chunks; k++) {
        model *g = &r->stage[k];
        passes_free(r, g);
        must(mesh_buckets_close(&g->weights)), must(mesh_buckets_close(&g->weights_back)),
            must(mesh_buckets_close(&g->grads));
        if (g->moe) mesh_moe_close(g->moe);
        free(g->moe), free(g->saved);
    }
    free(r->stage), free(r->grads), free(r->memory[0]), free(r->memory[1]);
}

/* ---- checkpoints: weights and moments by name, whatever mesh they are on --------------------------------------------------------- */

typedef struct named_tensors {
    mesh_named *list;
    char (*names)[48];
    int n;
} named_tensors;

static void name_tensor(named_tensors *t, const char *what, const parameter *p, const float *from, float *to) {
    snprintf(t->names[t->n], sizeof t->names[0], "%d.%s%s", p->segment, p->row->name, what);
    t->list[t->n].name = t->names[t->n];
    t->list[t->n].tensor = p->rest;
    if (p->rest.data) t->list[t->n].tensor.data = to + (data(&p->rest) - from);
    t->n++;
}

static named_tensors all_named(const rank_stages *r) {
    named_tensors t = {NULL, NULL, 0};
    int i, k, chunks = r->stage[0].o.chunks, n = 0;
    for (k = 0; k < chunks; k++) n += 3 * r->stage[k].n;
    t.list = (mesh_named *)allocate((size_t)n, sizeof *t.list);
    t.names = (char(*)[48])allocate((size_t)n, sizeof *t.names);
    for (k = 0; k < chunks; k++)
        for (i = 0; i < r->stage[k].n; i++) {
            const model *g = &r->stage[k];
            name_tensor(&t, "", &g->all[i], g->param, g->param);
            name_tensor(&t, ".mean", &g->all[i], g->param, g->m);
            name_tensor(&t, ".square", &g->all[i], g->param, g->v);
        }
    return t;
}

static void save(const rank_stages *r, const char *folder, int steps) {
    named_tensors t = all_named(r);
    char number[16];
    const char *text[] = {"steps", number, NULL};
    mesh_checkpoint_desc desc = MESH_ZERO;
    snprintf(number, sizeof number, "%d", steps);
    desc.text = text;
    if (mesh_checkpoint_save(&world, folder, t.list, t.n, &desc) != MESH_OK) die(world.error.text);
    free(t.list), free(t.names);
}

/* Returns how many steps it has seen. */
static int resume(const rank_stages *r, const char *folder) {
    named_tensors t = all_named(r);
    char number[16] = "";
    int64_t length = 0;
    if (mesh_checkpoint_load(&world, folder, t.list, t.n, NULL) != MESH_OK ||
        mesh_checkpoint_text(&world, folder, "steps", number, sizeof number, &length) != MESH_OK)
        die(world.error.text);
    free(t.list), free(t.names);
    return atoi(number);
}

/* ---- text ------------------------------------------------------------------------------------------------------------------------ */

static void die_of(const char *option, const char *path, const char *what) {
    char said[1200];
    snprintf(said, sizeof said, "%s: cannot %s %.900s: %s", option, what, path, strerror(errno));
    die(said);
}

/* Append a file. Returns 0 if it cannot be read, and errno says why. */
static int append_file(const char *path, unsigned char **text, size_t *length) {
    FILE *f = fopen(path, "rb");
    unsigned char chunk[65536];
    size_t n;
    int why;
    if (!f) return 0;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        *text = (unsigned char *)realloc(*text, *length + n);
        if (!*text) die("out of memory");
        memcpy(*text + *length, chunk, n);
        *length += n;
    }
    n = (size_t)ferror(f); /* a directory can be opened */
    why = errno;
    fclose(f);
    errno = why;
    return !n;
}

/* Broadcast what lies in host memory. */
static void spread(void *p, size_t count, mesh_dtype dtype) {
    size_t nbytes = count * mesh_dtype_bytes(dtype);
    void *there;
    must(mesh_alloc(comm.transport, nbytes, &there, &comm.error));
    must(mesh_copy(&comm, there, p, nbytes));
    if (mesh_broadcast(&world, NULL, there, there, count, dtype, 0) != MESH_OK) die(world.error.text);
    must(mesh_copy(&comm, p, there, nbytes));
    must(mesh_free(comm.transport, there, &comm.error));
}

/* Rank 0 reads, everybody gets it: the other hosts need not have the file. */
static unsigned char *read_text(const options *o, size_t *length) {
    static const char *const own[] = {"mesh.h", "mesh_collectives.h", "transports/mesh_socket.h",
                                      "transports/mesh_sim.h"};
    unsigned char *text = NULL;
    uint64_t n = 0;
    if (host->rank == 0) {
        size_t have = 0, i;
        if (o->text && !append_file(o->text, &text, &have)) die_of("--text", o->text, "read");
        for (i = 0; !o->text && i < sizeof own / sizeof own[0]; i++) {
            char path[1024];
            const char *slash = strrchr(__FILE__, '/');
            snprintf(path, sizeof path, "%.*s../%s", slash ? (int)(slash + 1 - __FILE__) : 0, __FILE__, own[i]);
            append_file(path, &text, &have);
        }
        n = have;
    }
    spread(&n, 1, MESH_U64);
    if (n < 4 * (uint64_t)o->context) {
        char said[1200] = "the library's headers are not where they were built; give --text FILE";
        if (o->text)
            snprintf(said, sizeof said, "--text: %.900s has %llu bytes; with --context %d at least %d", o->text,
                     (unsigned long long)n, o->context, 4 * o->context);
        die(said);
    }
    if (host->rank) text = (unsigned char *)allocate((size_t)n, 1);
    spread(text, (size_t)n, MESH_U8);
    *length = (size_t)n;
    return text;
}

/* A random number that depends on nothing but what it is for. */
static uint64_t draw(uint64_t seed, uint64_t a, uint64_t b) {
    uint32_t n[4];
    mesh_random_block(n, seed, a, b);
    return (uint64_t)n[0] << 32 | n[1];
}

/* This rank's part of a micro-batch: a sequence of the whole batch is the same text on every mesh. */
static void take_batch(const options *o, const unsigned char *text, size_t length, int step, int micro, int *tokens,
                       int *targets) {
    int64_t shape[2], i, k;
    mesh_layout l;
    mesh_box box;
    shape[0] = o->batch / o->micro, shape[1] = o->context;
    l = activation(2, shape, mesh_replicate());
    mesh_layout_box(&l, rank_here(), &box);
    for (i = 0; i < box.shape[0]; i++) {
        uint64_t sequence = (uint64_t)(micro * shape[0] + box.offset[0] + i);
        size_t at =
            (size_t)(draw((uint64_t)o->seed + 77, (uint64_t)step, sequence) % (length - (size_t)o->context - 1));
        for (k = 0; k < box.shape[1]; k++) {
            *tokens++ = text[at + (size_t)(box.offset[1] + k)];
            *targets++ = text[at + (size_t)(box.offset[1] + k) + 1];
        }
    }
}

/* Continue a prompt, one byte at a time. All ranks take part, with a copy for each cut of the batch; rank 0 prints. */
static void sample(rank_stages *r, int bytes) {
    model *g = &r->stage[r->stage[0].o.chunks - 1];
    int T = g->o.context, copies = data_ways(&comm.on), last = 0, i, k, n;
    unsigned char *window = (unsigned char *)allocate((size_t)T, 1);
    const char *prompt = "static inline ";
    float *last_row = floats(VOCAB);
    int64_t shape[3];
    mesh_layout cut;
    mesh_tensor logits;
    mesh_box box;
    int *tokens, *here;
    while (mesh_schedule_stage(&r->sampling, last, g->o.chunks - 1) != g->stages - 1) last++;
    shape[0] = copies, shape[1] = T, shape[2] = VOCAB;
    cut = activation(2, shape, mesh_replicate());
    mesh_layout_box(&cut, rank_here(), &box);
    for (k = 0; k < g->o.chunks; k++) passes_free(r, &r->stage[k]); /* they are of another batch */
    r->batch = copies, r->samples = 1, r->each = (int)mesh_box_count(&box);
    n = (int)strlen(prompt);
    tokens = (int *)device_memory((size_t)r->each * sizeof *tokens);
    here = (int *)allocate((size_t)r->each, sizeof *here);
    r->tokens = tokens;
    logits = tensor_of(layout(3, shape));
    logits.data = floats(local(&logits.layout));
    memset(window, '\n', (size_t)T);
    memcpy(window, prompt, (size_t)n);
    if (host->rank == 0) printf("\n%s", prompt);
    for (i = 0; i < bytes; i++) {
        float chances[VOCAB], most = -1e30f;
        double sum = 0, at;
        if (n == T) {
            memmove(window, window + 1, (size_t)n - 1);
            n--;
        }
        for (k = 0; k < r->each; k++) here[k] = window[box.offset[1] + k % box.shape[1]];
        must(mesh_copy(&comm, tokens, here, (size_t)r->each * sizeof *here));
        run_schedule(r, &r->sampling);
        if (g->hi == g->nsegments) {
            must(mesh_redistribute(&comm, &g->saved[0]->logits.t, &logits));
            must(mesh_copy(&comm, last_row, data(&logits) + (n - 1) * VOCAB, VOCAB * sizeof *last_row));
        }
        if (mesh_broadcast(&world, "pp", last_row, last_row, VOCAB, MESH_F32, last) != MESH_OK) die(world.error.text);
        must(mesh_copy(&comm, chances, last_row, sizeof chances));
        for (k = 0; k < VOCAB; k++) most = chances[k] > most ? chances[k] : most;
        for (k = 0; k < VOCAB; k++) sum += exp(((double)chances[k] - (double)most) / 0.6);
        at = sum * ((double)(draw((uint64_t)g->o.seed, 99, (uint64_t)i) >> 11) / 9007199254740992.0);
        for (k = 0; k < VOCAB - 1 && (at -= exp(((double)chances[k] - (double)most) / 0.6)) > 0; k++) {}
        window[n++] = (unsigned char)k;
        if (host->rank == 0) putchar(k == '\n' || (k >= ' ' && k < 127) ? k : '?');
    }
    if (host->rank == 0) printf("\n");
    free(window), free(here);
}

/* ---- the table, printed ------------------------------------------------------------------------------------------------------ */

typedef struct cost {
    double predicted;
    int prints;
} cost;

/* A row: a tensor at one place and at the next, how often a step brings it there and its gradient back, and the bytes of the rank that moves most. */
static void explain_row(cost *c, const char *name, const mesh_tensor *from, const mesh_tensor *to,
                        const mesh_tensor *to_grad, const mesh_tensor *from_grad, int forward, int backward) {
    mesh_plan plan;
    mesh_error err;
    double there, back;
    char a[96], b[96];
    check(mesh_redistribute_plan(&comm, &plan, from, to, &err), &err);
    there = (double)plan.bytes * forward;
    check(mesh_redistribute_plan(&comm, &plan, to_grad, from_grad, &err), &err);
    back = (double)plan.bytes * backward;
    c->predicted += there + back;
    if (!c->prints) return;
    mesh_spec_format(&from->layout.spec, from->layout.on, a, sizeof a);
    mesh_spec_format(&to->layout.spec, to->layout.on, b, sizeof b);
    printf("%-14s %-34s %-34s %10.0f %10.0f\n", name, a, b, there, back);
}

static void explain_value(cost *c, const char *name, const value *from, const value *to, int times) {
    explain_row(c, name, &from->t, &to->t, &to->g, &from->g, times, times);
}

/* Tokens to their experts and back, where all experts are asked alike: rows both ways forward and backward, of each row its weight there and the weight's
   gradient back; and for each pair of ranks how many come for each expert. */
static void explain_experts(cost *c, const model *g, const layer_pass *s, int times) {
    const options *o = &g->o;
    double asked = (double)rows_of(&s->whole2) * o->top_k, away = 1 - 1 / (double)o->ep;
    double there = (2 * asked * away * o->channels * 4 + (o->ep - 1) * ((o->experts + o->ep - 1) / o->ep) * 8) * times;
    double back = (2 * asked * away * o->channels * 4 + 2 * asked * away * 4) * times;
    c->predicted += there + back;
    if (c->prints)
        printf("%-14s %-34s %-34s %10.0f %10.0f\n", "tokens", "their own", "by expert, and back", there, back);
}

/* Keys and values in a ring: to each other rank forward, again going back, and then their gradients all around. */
static void explain_ring(cost *c, const layer_pass *s, int times) {
    int cp = ways(&comm.on, "cp");
    double part = 2.0 * (double)local(&s->k_used.t.layout) * sizeof(float) * times;
    double there = (cp - 1) * part, back = cp > 1 ? (2 * cp - 1) * part : 0;
    c->predicted += there + back;
    if (c->prints) printf("%-14s %-34s %-34s %10.0f %10.0f\n", "k, v", "their own", "all, in a ring", there, back);
}

/* Of a stage. */
static void explain(cost *c, const model *g, const pass *a) {
    const layer_pass *s = &a->layers[0];
    int i, gathers = g->o.zero == 3 ? 2 * g->o.micro : 1, sums = g->o.zero >= 2 ? g->o.micro : 1;
    int first = a->first_layer + 1, layers = (g->hi < g->nsegments ? g->hi : g->nsegments - 1) - first;
    int n = g->o.micro * layers;
    if (c->prints && g->o.chunks > 1) printf("stage %d of %d\n", g->stage + 1, g->stages);
    if (c->prints) printf("%-14s %-34s %-34s %10s %10s\n", "tensor", "from", "to", "forward", "backward");
    for (i = 0; i < g->n; i++) {
        const parameter *p = &g->all[i];
        int of_a_layer = p->segment >= first && p->segment < first + layers, k = of_a_layer ? layers : 1;
        if (of_a_layer && p->segment > first) continue; /* one layer's stand for all */
        explain_row(c, p->row->name, &p->rest, &p->use, &p->use_grad, &p->rest_grad, gathers * k, sums * k);
    }
    if (g->lo == 0) explain_value(c, "x", &a->table, &a->x, g->o.micro);
    explain_value(c, "into qkv", &s->ln1, &s->whole1, n);
    explain_value(c, "q", &s->q, &s->q_used, n);
    explain_value(c, "k", &s->k, &s->k_used, n);
    explain_value(c, "v", &s->v, &s->v_used, n);
    if (g->o.ring) explain_ring(c, s, n);
    explain_value(c, "attention", &s->att_used, &s->att, n);
    explain_value(c, "proj", &s->part1, &s->sum1, n);
    explain_value(c, g->o.experts ? "into experts" : "into up", &s->ln2, &s->whole2, n);
    if (g->o.experts) explain_experts(c, g, s, n);
    explain_value(c, g->o.experts ? "from experts" : "down", &s->part2, &s->sum2, n);
    if (g->hi == g->nsegments) explain_value(c, "into head", &a->last, &a->whole, g->o.micro);
    if (c->prints && g->hi < g->nsegments)
        printf("between stages, %s: %.0f bytes to the next for each micro-batch, and as many back\n", g->o.schedule,
               (double)local(&a->flow) * sizeof(float));
}

/* Bytes that this rank has sent in a comm. */
static double sent_in(const mesh_comm *c) {
    uint64_t sent = 0, sum = 0;
    int i;
    for (i = 0; i < c->on.naxes && c->on.naxes > 1; i++) {
        must(mesh_comm_bytes(c, c->on.axis[i].name, &sent, NULL));
        sum += sent;
    }
    must(mesh_comm_bytes(c, NULL, &sent, NULL));
    return (double)(sum + sent);
}
static double sent_so_far(void) { return sent_in(&comm) + sent_in(&world) + (crowd.impl ? sent_in(&crowd) : 0); }

/* ---- main -------------------------------------------------------------------------------------------------------------------------- */

/* A mesh as words, until the next. */
static const char *shown(const mesh *m) {
    PER_RANK char text[256];
    mesh_format(m, text, sizeof text);
    return text;
}

static double seconds(void) { return (double)mesh_now(host) * 1e-9; }

enum { MOST_BATCH = 65536, MOST_CONTEXT = 1024, MOST_CHANNELS = 65536, MOST_HEADS = 1024 };

static int usage(int status) {
    fprintf(
        status ? stderr : stdout,
        "usage: train_gpt [--mesh dp=D,tp=T] [--sp] [--ulysses|--ring] [--zero 0..3] [--micro N] [--schedule K]\n"
        "                 [--chunks N] [--explain] [--device cpu|cuda] [--text FILE] [--steps N] [--batch SEQUENCES]\n"
        "                 [--context BYTES] [--layers N] [--channels N] [--heads N] [--seed N] [--log FILE] [--against FILE]\n"
        "                 [--sample BYTES] [--topology TEXT] [--simulate RANKS] [--experts N] [--top-k K] [--ep N] [--save FOLDER] [--resume FOLDER]\n"
        "  --mesh      how the ranks are laid out, by axes of pp, dp, dp_replicate, dp_shard, cp, tp; default: all of them as dp\n"
        "  --sp        between the linears the sequence is cut over tp\n"
        "  --ulysses   in attention heads are cut over cp, instead of gathering keys and values\n"
        "  --ring      keys and values travel from rank to rank instead\n"
        "  --zero      at rest over dp_shard and cp: 0 nothing is cut; 1 moments, weights and gradients, which are reduced once a\n"
        "              step; 2 reduced for each micro-batch; 3 weights gathered for each use, a layer ahead\n"
        "  --micro     micro-batches of a step\n"
        "  --schedule  of stages along pp: 1f1b (the default), gpipe, zb-h1; interleaved or zb-v, with --chunks N (2) stages on each rank\n"
        "  --experts   instead of an MLP, of which each token goes to the --top-k (2) its router scores highest\n"
        "  --ep        ranks that share the experts, out of dp_shard x cp x tp\n"
        "  --explain   print the table: what lies where, what that makes a step move; then what was sent\n"
        "  --topology  what the links are, which plans go by: \"8:2us:300GB/s,*:10us:25GB/s\"; of latency 0: the fewest bytes\n"
        "  --simulate  so many ranks as threads of this process, which talk over the simulator: without mesh run\n"
        "  --device    what computes: cpu (the default), or cuda, a GPU for each rank, which then talk over NCCL\n"
        "  --text      what to learn; default: the library's own headers\n"
        "  --sample    bytes to write at the end, as it has learnt to (200)\n"
        "  --log       write step, loss and gradient norm of every step to FILE\n"
        "  --save      write weights and moments to a checkpoint at the end: safetensors\n"
        "  --resume    go on from one, on this mesh or any other, to step --steps\n"
        "  --against   show the losses of an earlier --log beside these; exit 1 if they differ by more than rounding\n");
    return status;
}

/* Options that are for each other, or not. */
static int go_together(options *o) {
    if (!o->chunks) o->chunks = !strcmp(o->schedule, "interleaved") || !strcmp(o->schedule, "zb-v") ? 2 : 1;
    if (o->simulate && strcmp(o->device, "cpu")) return fprintf(stderr, "train_gpt: --simulate is on the cpu\n"), 0;
    if (o->ring && o->ulysses) return fprintf(stderr, "train_gpt: --ring goes without --ulysses\n"), 0;
    if (strcmp(o->device, "cpu") && strcmp(o->device, "cuda"))
        return fprintf(stderr, "train_gpt: --device %s: it is cpu or cuda\n", o->device), 0;
#ifndef TRAIN_GPT_CUDA
    if (!strcmp(o->device, "cuda"))
        return fprintf(stderr,
                       "train_gpt: --device cuda: this one was built without CUDA; `make build/train_gpt_cuda` where "
                       "nvcc and nccl.h are found, or compile with -DTRAIN_GPT_CUDA and link train_gpt.cu\n"),
               0;
#endif
    return 1;
}

static int parse_options(options *o, int argc, char **argv) {
    int i, k;
    memset(o, 0, sizeof *o);
    o->mesh = "dp=-1", o->device = "cpu";
    o->steps = 100, o->batch = 16, o->context = 64, o->layers = 2, o->channels = 64, o->heads = 4, o->seed = 1;
    o->top_k = 2, o->ep = 1, o->sample = 200;
    o->micro = 1, o->schedule = "1f1b";
    for (i = 1; i < argc; i++) {
        struct {
            const char *name, **text;
            int *number, least, most, *flag;
        } known[] = {{"--mesh", &o->mesh, NULL, 0, 0, NULL},
                     {"--text", &o->text, NULL, 0, 0, NULL},
                     {"--log", &o->log, NULL, 0, 0, NULL},
                     {"--against", &o->against, NULL, 0, 0, NULL},
                     {"--device", &o->device, NULL, 0, 0, NULL},
                     {"--save", &o->save, NULL, 0, 0, NULL},
                     {"--resume", &o->resume, NULL, 0, 0, NULL},
                     {"--topology", &o->topology, NULL, 0, 0, NULL},
                     {"--steps", NULL, &o->steps, 1, 1000000, NULL},
                     {"--batch", NULL, &o->batch, 1, MOST_BATCH, NULL},
                     {"--context", NULL, &o->context, 16, MOST_CONTEXT, NULL},
                     {"--layers", NULL, &o->layers, 1, MOST_LAYERS, NULL},
                     {"--channels", NULL, &o->channels, 1, MOST_CHANNELS, NULL},
                     {"--heads", NULL, &o->heads, 1, MOST_HEADS, NULL},
                     {"--seed", NULL, &o->seed, 1, INT_MAX, NULL},
                     {"--micro", NULL, &o->micro, 1, 65536, NULL},
                     {"--zero", NULL, &o->zero, 0, 3, NULL},
                     {"--experts", NULL, &o->experts, 1, 65536, NULL},
                     {"--top-k", NULL, &o->top_k, 1, 65536, NULL},
                     {"--ep", NULL, &o->ep, 1, 65536, NULL},
                     {"--sample", NULL, &o->sample, 0, 1000000, NULL},
                     {"--simulate", NULL, &o->simulate, 1, 1024, NULL},
                     {"--chunks", NULL, &o->chunks, 1, 255, NULL},
                     {"--schedule", &o->schedule, NULL, 0, 0, NULL},
                     {"--sp", NULL, NULL, 0, 0, &o->sp},
                     {"--ulysses", NULL, NULL, 0, 0, &o->ulysses},
                     {"--ring", NULL, NULL, 0, 0, &o->ring},
                     {"--explain", NULL, NULL, 0, 0, &o->explain}};
        int n = (int)(sizeof known / sizeof known[0]);
        char *end = NULL;
        long number;
        if (!strcmp(argv[i], "--help")) exit(usage(0));
        for (k = 0; k < n && strcmp(argv[i], known[k].name); k++) {}
        if (k < n && known[k].flag) {
            *known[k].flag = 1;
            continue;
        }
        if (k == n || ++i == argc)
            return fprintf(stderr, "train_gpt: %s is unknown or lacks its value; see --help\n",
                           argv[k == n ? i : i - 1]),
                   0;
        if (known[k].text) {
            *known[k].text = argv[i];
            continue;
        }
        number = strtol(argv[i], &end, 10);
        if (end == argv[i] || *end || number < known[k].least || number > known[k].most)
            return fprintf(stderr, "train_gpt: %s %s: expected a number from %d to %d\n", known[k].name, argv[i],
                           known[k].least, known[k].most),
                   0;
        *known[k].number = (int)number;
    }
    return go_together(o);
}

/* The mesh that --mesh says, with pp, and beside experts tp, of 1 where it does not. */
static int mesh_of(const options *o, mesh *m) {
    mesh_error err;
    char given[256], words[300];
    int i, k;
    if (mesh_parse(m, o->mesh, mesh_world(host), &err)) return fprintf(stderr, "train_gpt: --mesh: %s\n", err.text), 0;
    for (i = 0; i < m->naxes; i++) {
        for (k = 0; k < AXES && strcmp(m->axis[i].name, axis_names[k]); k++) {}
        if (k == AXES && strcmp(m->axis[i].name, "pp"))
            return fprintf(
                       stderr,
                       "train_gpt: --mesh %s: axis \"%s\": the axes are pp, dp, dp_replicate, dp_shard, cp and tp, as in "
                       "dp=4,tp=2\n",
                       o->mesh, m->axis[i].name),
                   0;
    }
    mesh_format(m, given, sizeof given);
    snprintf(words, sizeof words, "%s%s%s%s", mesh_axis_find(m, "pp") < 0 ? "pp=1" : "",
             mesh_axis_find(m, "pp") < 0 && m->naxes ? "," : "", given,
             o->experts && mesh_axis_find(m, "tp") < 0 ? ",tp=1" : "");
    if (mesh_parse(m, words, mesh_world(host), &err)) return fprintf(stderr, "train_gpt: --mesh: %s\n", err.text), 0;
    return 1;
}

/* This rank's stage: the mesh without pp. */
static int stage_of(const mesh *m, mesh *stage) {
    mesh_error err;
    if (mesh_fix(stage, m, "pp", mesh_coord_of(m, "pp", host->rank), &err))
        return fprintf(stderr, "train_gpt: %s\n", err.text), 0;
    return 1;
}

/* The same ranks as the experts lie on them: dp_shard, cp and tp, the last the innermost, are efsdp and ep. The two do not factor into each other. */
static int crowd_of(const options *o, const mesh *stage, mesh *m) {
    char axes[64] = "", parts[64];
    mesh_error err;
    int i;
    for (i = 2; i < AXES; i++)
        if (mesh_axis_find(stage, axis_names[i]) >= 0)
            snprintf(axes + strlen(axes), sizeof axes - strlen(axes), "%s%s", axes[0] ? "," : "", axis_names[i]);
    snprintf(parts, sizeof parts, "efsdp=-1,ep=%d", o->ep);
    if (mesh_flatten(m, stage, axes, "shard", &err) || mesh_split(m, m, "shard", parts, &err))
        return fprintf(stderr, "train_gpt: --ep %d: %s; or name dp_shard, cp and tp in this order, side by side\n",
                       o->ep, err.text),
               0;
    return 1;
}

/* What every rank finds, the first one says. */
static int refuse(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (host->rank == 0) fputs("train_gpt: ", stderr), vfprintf(stderr, format, args), fputc('\n', stderr);
    va_end(args);
    return 0;
}

/* Does `what`, at most `most`, divide by the product of axes? Else the nearest that does is told. */
static int divides(const mesh *m, const char *option, int what, int most, const char *each, int by) {
    int below = what / by * by,
        near = below && (what - below < by - what % by || below + by > most) ? below : below + by;
    if (what % by == 0) return 1;
    if (near > most)
        return refuse("%s %d does not divide by %s = %d on the mesh %s; nothing up to %d does", option, what, each, by,
                      shown(m), most);
    return refuse("%s %d does not divide by %s = %d on the mesh %s; %d does", option, what, each, by, shown(m), near);
}

static int fits(const options *o, const mesh *m) {
    int cp = ways(m, "cp"), tp = ways(m, "tp"), cut = o->sp || o->experts, shard = ways(m, "dp_shard") * cp * tp, ep,
        off;
    for (off = 0; shard % (o->ep - off) && shard % (o->ep + off); off++) {}
    ep = shard % (o->ep - off) ? o->ep + off : o->ep - off;
    if (ep != o->ep)
        return refuse("--ep %d does not divide dp_shard x cp x tp = %d on the mesh %s; %d does", o->ep, shard, shown(m),
                      ep);
    for (; ep > 1 && (ep > o->experts || shard % ep); ep--) {}
    if (ep != o->ep)
        return refuse("--ep %d, and --experts %d: each of those ranks has one or more; %d does", o->ep, o->experts, ep);
    if (o->experts && o->experts < o->top_k)
        return refuse("--top-k %d of --experts %d: there are not as many", o->top_k, o->experts);
    if (o->ring && mesh_axis_find(m, "cp") < 0)
        return refuse("--ring goes along an axis cp, which the mesh %s has not", shown(m));
    if (ways(m, "pp") * o->chunks > MOST_LAYERS)
        return refuse("%d x %d stages on the mesh %s are more than layers can be, %d", ways(m, "pp"), o->chunks,
                      shown(m), MOST_LAYERS);
    if (o->layers < ways(m, "pp") * o->chunks)
        return refuse("--layers %d are fewer than the stages, %d x %d; give %d or more", o->layers, ways(m, "pp"),
                      o->chunks, ways(m, "pp") * o->chunks);
    if (strcmp(o->schedule, "1f1b") && strcmp(o->schedule, "gpipe") && strcmp(o->schedule, "interleaved") &&
        strcmp(o->schedule, "zb-h1") && strcmp(o->schedule, "zb-v"))
        return refuse("--schedule %s: it is 1f1b, gpipe, interleaved, zb-h1 or zb-v", o->schedule);
    return divides(m, "--batch", o->batch, MOST_BATCH, "micro and dp", o->micro * data_ways(m)) &&
           divides(m, "--context", o->context, MOST_CONTEXT, cut ? "cp and tp" : "cp", cp * (cut ? tp : 1)) &&
           divides(m, "--channels", o->channels, MOST_CHANNELS, "--heads", o->heads) &&
           divides(m, "--heads", o->heads, MOST_HEADS, o->ulysses ? "tp and cp" : "tp", tp * (o->ulysses ? cp : 1));
}

#ifdef TRAIN_GPT_CUDA
static mesh_nccl gpu;
#endif

static int open_mesh(const options *o) {
    mesh m, stage, experts;
    mesh_error err;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_topology topology = MESH_ZERO;
    mesh_transport *transport = host;
    if (o->topology && mesh_topology_parse(&topology, o->topology, &err))
        return fprintf(stderr, "train_gpt: --topology: %s\n", err.text), 0;
    if (o->topology) desc.topology = &topology;
    if (!mesh_of(o, &m) || !fits(o, &m) || !stage_of(&m, &stage)) return 0;
    dev = &cpu;
#ifdef TRAIN_GPT_CUDA
    if (!strcmp(o->device, "cuda")) {
#ifndef TRAIN_GPT_SHIM /* a test, which runs the kernels on the CPU */
        mesh_nccl_desc on_gpu = MESH_ZERO;
        on_gpu.launch_order = 1; /* a pipeline's messages, gradients and what a layer calls are under way at once */
        if (mesh_nccl_open(&gpu, host, &on_gpu, &err)) return fprintf(stderr, "train_gpt: %s\n", err.text), 0;
        transport = &gpu.base;
#endif
        dev = cuda_device(gpu.device, &desc.stream);
    }
#endif
    if (mesh_comm_open(&world, transport, &m, &desc, &err) || mesh_comm_open(&comm, transport, &stage, &desc, &err))
        return fprintf(stderr, "train_gpt: %s\n", err.text), 0;
    if (o->experts && !crowd_of(o, &stage, &experts)) return 0;
    if (o->experts && mesh_comm_open(&crowd, transport, &experts, &desc, &err))
        return fprintf(stderr, "train_gpt: %s\n", err.text), 0;
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

/* The greater of what was worst and the relative difference of a and b; no number is worse than any. */
static double worse(double worst, double a, double b) {
    double d = fabs(a - b) / (fabs(b) > 0 ? fabs(b) : 1);
    return isnan(worst) || d <= worst ? worst : d;
}

/* What each step came to, beside what it was in an earlier run. */
typedef struct record {
    FILE *log, *other;
    double worst_loss, worst_norm;
    int compared;
    int was_step; /* of the earlier run, what was read last */
    double was_loss, was_norm;
} record;

/* Has the earlier log this step? It may begin at another. */
static int earlier(record *h, int step) {
    char line[256];
    double loss, norm;
    int was;
    while (h->other && h->was_step < step && fgets(line, sizeof line, h->other))
        if (sscanf(line, "%d,%lf,%lf", &was, &loss, &norm) == 3)
            h->was_step = was, h->was_loss = loss, h->was_norm = norm;
    return h->other && h->was_step == step;
}

static int same_file(const char *a, const char *b) {
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static void record_open(record *h, const options *o) {
    memset(h, 0, sizeof *h);
    h->was_step = -1;
    if (host->rank) return;
    if (o->log && o->against && same_file(o->log, o->against))
        die("--log would write over what --against compares with; name another file");
    if (o->log && !(h->log = fopen(o->log, "w"))) die_of("--log", o->log, "write");
    if (o->against && !(h->other = fopen(o->against, "r"))) die_of("--against", o->against, "read");
    if (h->log) fprintf(h->log, "step,loss,norm\n");
    printf(h->other ? "step      loss    (other)  grad norm    (other)\n" : "step      loss  grad norm\n");
}

static void record_step(record *h, const options *o, int step, double loss, double norm) {
    double was_loss = 0, was_norm = 0;
    if (host->rank) return;
    if (h->log) fprintf(h->log, "%d,%.17g,%.17g\n", step, loss, norm);
    if (earlier(h, step)) {
        was_loss = h->was_loss, was_norm = h->was_norm;
        h->compared++;
        h->worst_loss = worse(h->worst_loss, loss, was_loss), h->worst_norm = worse(h->worst_norm, norm, was_norm);
    }
    progress_bar(step, o->steps);
    if (step % 10 && step + 1 != o->steps) return;
    if (on_terminal()) printf("\033[K");
    if (h->other)
        printf("%4d  %8.6f  %8.6f   %8.6f   %8.6f\n", step, loss, was_loss, norm, was_norm);
    else
        printf("%4d  %8.6f   %8.6f\n", step, loss, norm);
    fflush(stdout);
}

/* Returns 1 where the steps differ by more than rounding from those of the earlier run, or the log is not whole. */
static int record_close(record *h, const options *o, int steps) {
    int cut = h->log && (fflush(h->log) || ferror(h->log));
    int wrong = h->other && !(h->worst_loss <= 5e-6 && h->worst_norm <= 5e-6);
    int missing = h->other && h->compared < steps;
    if (h->other) printf("largest relative difference: loss %.1e, gradient norm %.1e\n", h->worst_loss, h->worst_norm);
    if (missing) printf("the file of --against has %d of these %d steps\n", h->compared, steps);
    if (wrong) printf("these differ by more than rounding\n");
    if (cut) fprintf(stderr, "train_gpt: --log: not all of it could be written to %s\n", o->log);
    if (h->log) fclose(h->log);
    if (h->other) fclose(h->other);
    return wrong || missing || cut;
}

static void train_all(rank_stages *r, const options *o, int first, record *h) {
    size_t length;
    unsigned char *text = read_text(o, &length);
    int64_t shape[2];
    mesh_layout cut;
    int *batch, *tokens, step, micro, each;
    float closest = 1e30f;
    double start, sent;
    shape[0] = r->batch, shape[1] = o->context;
    cut = activation(2, shape, mesh_replicate());
    each = r->each = (int)local(&cut);                                     /* of a micro-batch */
    batch = (int *)allocate(2 * (size_t)(each * o->micro), sizeof *batch); /* tokens, and then their targets */
    tokens = (int *)device_memory(2 * (size_t)(each * o->micro) * sizeof *tokens);
    r->tokens = tokens, r->targets = tokens + o->micro * each;
    r->losses = floats((size_t)each);
    closest_choice = floats(1);
    must(mesh_copy(&comm, closest_choice, &closest, sizeof closest));
    start = seconds();
    sent = sent_so_far();
    for (step = first; step < o->steps; step++) {
        double norm, loss;
        for (micro = 0; micro < o->micro; micro++)
            take_batch(o, text, length, step, micro, batch + micro * each, batch + (o->micro + micro) * each);
        must(mesh_copy(&comm, tokens, batch, 2 * (size_t)(each * o->micro) * sizeof *tokens));
        loss = train_step(r, step, &norm);
        record_step(h, o, step, loss, norm);
    }
    sent = (sent_so_far() - sent) / (o->steps > first ? o->steps - first : 1);
    must(mesh_copy(&comm, &closest, closest_choice, sizeof closest));
    if (host->rank == 0) {
        printf("%s%.0f tokens/s%s, %.1f KB sent per step by this rank\n", on_terminal() ? "\033[K" : "",
               (double)(o->steps - first) * o->batch * o->context / (seconds() - start),
               o->simulate ? " of the simulator's clock" : "", sent / 1000);
        if (o->experts && closest < 1e30f) /* there is a choice where not all are taken */
            printf("the closest choice of an expert: %.1e%s\n", (double)closest,
                   host->size > 1 ? " (this rank's)" : "");
    }
    free(text), free(batch);
}

/* Before the training, not behind it: can there be a checkpoint? */
static void save_there(const char *folder) {
    struct stat there;
    char parent[1024];
    char *end;
    if (!*folder) die("--save: the folder's name is empty");
    snprintf(parent, sizeof parent, "%s", folder);
    while ((end = strrchr(parent, '/')) != NULL && end > parent && !end[1]) *end = 0; /* "a/b/" */
    if (stat(folder, &there) == 0) {
        if (!S_ISDIR(there.st_mode)) die("--save names a file; it takes a folder");
        if (access(folder, W_OK | X_OK)) die_of("--save", folder, "write into");
        return;
    }
    if (end) end[end == parent] = 0;
    if (access(end ? parent : ".", W_OK | X_OK)) die_of("--save", folder, "make");
}

/* A rank, from here on of processes or of the simulator. */
static int run_rank(mesh_transport *t, const options *o) {
    rank_stages r;
    record h;
    int lead, first = 0, wrong, k, staged;
    size_t rest = 0;
    host = t;
    lead = t->rank == 0;
    if (!open_mesh(o)) return 1;
    stages_init(&r, o);
    if (o->resume) first = resume(&r, o->resume);
    if (first >= o->steps) {
        char said[120];
        snprintf(said, sizeof said, "the checkpoint of --resume is at step %d of --steps %d; give %d or more", first,
                 o->steps, first + 1);
        die(said);
    }
    staged = ways(&world.on, "pp") > 1;
    for (k = 0; k < o->chunks; k++) rest += r.stage[k].at_rest;
    if (lead)
        printf("%d rank%s as %s; %zu parameters at rest on %s; %d sequences of %d bytes per step\n", t->size,
               t->size > 1 ? "s" : "", shown(&world.on), rest, staged ? "this rank" : "each", o->batch, o->context);
    if (o->explain) {
        cost c = MESH_ZERO;
        c.prints = lead;
        for (k = 0; k < o->chunks; k++) explain(&c, &r.stage[k], saved_in(&r, &r.stage[k], 0));
        if (lead)
            printf("bytes per step by the plans, on the rank%s that moves most: %.0f\n",
                   staged ? " of this part of the layers" : "", c.predicted);
    }
    if (o->save && lead) save_there(o->save);
    record_open(&h, o);
    train_all(&r, o, first, &h);
    if (o->save) save(&r, o->save, o->steps);
    wrong = record_close(&h, o, lead ? o->steps - first : 0);
    if (o->sample) sample(&r, o->sample);
    stages_close(&r, o->chunks);
    if (o->experts) mesh_comm_close(&crowd);
    mesh_comm_close(&comm);
    mesh_comm_close(&world);
    return wrong;
}

typedef struct simulated {
    const options *o;
    int wrong;
} simulated;

static void run_simulated(mesh_transport *t, void *ctx) {
    simulated *s = (simulated *)ctx;
    int wrong = run_rank(t, s->o); /* one thread at a time is awake */
    if (wrong) s->wrong = wrong;
}

int main(int argc, char **argv) {
    options o;
    mesh_error err;
    ranks_transport net;
    int wrong;
    if (!parse_options(&o, argc, argv)) return 2;
    if (o.simulate) {
        simulated s = {NULL, 0};
        mesh_sim_desc desc = MESH_ZERO;
        s.o = &o;
        desc.ranks = o.simulate, desc.seed = (uint64_t)o.seed;
        if (mesh_sim_run(&desc, run_simulated, &s, &err)) return fprintf(stderr, "train_gpt: %s\n", err.text), 1;
        return finish("train_gpt", s.wrong);
    }
    if (ranks_open(&net, &err)) return fprintf(stderr, "train_gpt: %s\n", err.text), 1;
    wrong = run_rank(&net.base, &o);
#ifdef TRAIN_GPT_CUDA
    mesh_nccl_close(&gpu);
#endif
    ranks_close(&net);
    return finish("train_gpt", wrong);
}
