/* train_gpt's table: which layout each weight and each activation has, at rest and where it is used; its memory; and what brings it from one
   to the other, each step again. train_gpt.c computes with it. */
#ifndef TRAIN_GPT_TABLE_H
#define TRAIN_GPT_TABLE_H
#include "train_gpt_cpu.h"
#include <stdio.h>

typedef struct options {
    const char *mesh, *device, *text, *log, *against, *schedule, *save, *resume, *topology;
    int steps, batch, context, layers, channels, heads, seed, micro, zero, sp, ulysses, ring, explain, chunks;
    int experts, top_k, ep; /* experts 0: an MLP */
    int sample;             /* bytes to write at the end */
    int simulate;           /* ranks that are threads of this process; 0: processes */
} options;

/* ---- the mesh ------------------------------------------------------------------------------------------------------ */

#define PER_RANK static __thread /* --simulate: ranks are threads */
PER_RANK mesh_comm world;        /* all ranks: the pipelines, the loss and the norm */
PER_RANK mesh_comm comm;         /* this rank's stage: the layouts */
PER_RANK mesh_comm crowd;        /* the same ranks as the experts lie on them: dp_shard, cp and tp are efsdp and ep */
PER_RANK const device *dev;

static const char *const axis_names[] = {"dp", "dp_replicate", "dp_shard", "cp", "tp"};
enum { AXES = 5 };

static void die(const char *what) {
    fprintf(stderr, "train_gpt: %s\n", what);
    if (!world.failed) mesh_abort(&world, what); /* the other ranks hear why */
    exit(1);
}

static void must(mesh_status status) {
    if (status != MESH_OK) die(comm.failed || !world.failed ? comm.error.text : world.error.text);
}
static void must_in(const mesh_comm *c, mesh_status status) {
    if (status != MESH_OK) die(c->error.text);
}
static void check(mesh_status status, const mesh_error *err) {
    if (status != MESH_OK) die(err->text);
}

/* Of an axis that the mesh may lack. */
static int ways(const mesh *m, const char *axis) {
    int k = mesh_axis_find(m, axis);
    return k < 0 ? 1 : m->axis[k].size;
}
static int data_ways(const mesh *m) { return ways(m, "dp") * ways(m, "dp_replicate") * ways(m, "dp_shard"); }
static int rank_here(void) { return comm.transport->rank; }

static void *allocate(size_t n, size_t each) {
    void *p = calloc(n ? n : 1, each);
    if (!p) die("out of memory");
    return p;
}

/* Memory of the device, zero. */
static void *device_memory(size_t nbytes) {
    void *p;
    must(mesh_alloc(comm.transport, nbytes ? nbytes : 1, &p, &comm.error));
    dev->zero(p, nbytes);
    return p;
}

static float *floats(size_t n) { return (float *)device_memory(n * sizeof(float)); }

/* ---- layouts --------------------------------------------------------------------------------------------------------- */

static mesh_layout layout(int ndim, const int64_t *shape) {
    mesh_layout l;
    mesh_error err;
    check(mesh_layout_make(&l, &comm.on, NULL, ndim, shape, &err), &err);
    return l;
}

/* With another place along an axis, if the mesh has it. */
static mesh_layout with(mesh_layout l, const char *axis, mesh_place place) {
    mesh_error err;
    if (mesh_axis_find(l.on, axis) < 0) return l;
    check(mesh_layout_set(&l, axis, place, &err), &err);
    return l;
}

/* An activation: dim 0 are sequences, dim 1 positions; along tp a place. */
static mesh_layout activation(int ndim, const int64_t *shape, mesh_place tp) {
    mesh_layout l = layout(ndim, shape);
    int i;
    for (i = 0; i < 3; i++) l = with(l, axis_names[i], mesh_shard(0));
    return with(with(l, "cp", mesh_shard(1)), "tp", tp);
}

/* Has every rank the same box in both? */
static int same_parts(const mesh_layout *a, const mesh_layout *b) {
    int i, d;
    for (i = 0; i < comm.on.size; i++) {
        mesh_box x, y;
        mesh_layout_box(a, mesh_rank_at(&comm.on, i), &x);
        mesh_layout_box(b, mesh_rank_at(&comm.on, i), &y);
        for (d = 0; d < a->ndim; d++)
            if (x.offset[d] != y.offset[d] || x.shape[d] != y.shape[d]) return 0;
    }
    return 1;
}

/* ---- parameters ------------------------------------------------------------------------------------------------------ */

/* The model comes in segments: the embeddings, each layer, the end. */
enum { WTE, WPE };
enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, OF_ATTENTION };
enum { UP_W = OF_ATTENTION, UP_B, DOWN_W, DOWN_B, OF_MLP_LAYER };
enum { ROUTER = OF_ATTENTION, EACH_UP_W, EACH_UP_B, EACH_DOWN_W, EACH_DOWN_B, OF_EXPERTS_LAYER };
enum { LNF_W, LNF_B, HEAD };

/* dims: V vocabulary, T positions, C channels, 3, H heads, E a head's size, F the MLP, X experts. cut: the dim that tp cuts; X: the dim that ep
   cuts; S: none, but it is used beside a sequence that tp cuts. */
typedef struct row {
    const char *name, *dims;
    char cut;
    float deviation; /* of the initial values; 1: all ones; below 0: of what is added to the residual stream */
} row;
static const row of_start[] = {{"token table", "VC", 'V', 0.02f}, {"positions", "TC", 'T', 0.02f}};
static const row of_attention[] = {{"ln1 weight", "C", 0, 1},   {"ln1 bias", "C", 0, 0},  {"qkv", "C3HE", 'H', 0.02f},
                                   {"qkv bias", "3HE", 'H', 0}, {"proj", "HEC", 'H', -1}, {"proj bias", "C", 0, 0},
                                   {"ln2 weight", "C", 0, 1},   {"ln2 bias", "C", 0, 0}};
static const row of_mlp[] = {
    {"up", "CF", 'F', 0.02f}, {"up bias", "F", 'F', 0}, {"down", "FC", 'F', -1}, {"down bias", "C", 0, 0}};
static const row of_experts[] = {{"router", "CX", 'S', 0.5f},
                                 {"each up", "XCF", 'X', 0.02f},
                                 {"each up bias", "XF", 'X', 0},
                                 {"each down", "XFC", 'X', -1},
                                 {"each down bias", "XC", 'X', 0}};
static const row of_end[] = {{"last weight", "C", 0, 1}, {"last bias", "C", 0, 0}, {"head", "CV", 'V', 0.02f}};

typedef struct parameter {
    const row *row;
    int segment, id; /* id: its number in the whole model */
    mesh_tensor rest, use, rest_grad, use_grad;
} parameter;

enum { MOST_LAYERS = 40, PARAMETERS = MOST_LAYERS * OF_EXPERTS_LAYER + 5, SEGMENTS = MOST_LAYERS + 2 };
struct pass;

/* A stage: the segments lo .. hi - 1 of the model. A rank has one, or with --chunks several. */
typedef struct model {
    options o;
    int stage, stages, lo, hi, nsegments;
    int n, first[SEGMENTS + 1]; /* of a segment's parameters: those of other stages are none */
    parameter all[PARAMETERS];
    float *param, *grad, *m, *v; /* at rest, one after the other */
    size_t at_rest;              /* floats of each */
    void *slot[2], *grad_slot[2], *grads_used;
    size_t slot_bytes, used_bytes;
    mesh_buckets weights, weights_back, grads;
    mesh_moe *moe;       /* NULL: no experts */
    struct pass **saved; /* activations of the micro-batches in flight; NULL: not needed yet */
    int backwards;       /* micro-batches whose gradients are there */
    int splits;          /* the schedule has the weights' half of a backward apart from the input's */
} model;

static int64_t extent(const options *o, char letter) {
    switch (letter) {
    case 'V':
        return VOCAB;
    case 'T':
        return o->context;
    case 'C':
        return o->channels;
    case 'H':
        return o->heads;
    case 'E':
        return o->channels / o->heads;
    case 'F':
        return 4 * o->channels;
    case 'X':
        return o->experts;
    default:
        return letter - '0';
    }
}

/* Along the sequence a weight that scales or is added does as the residual stream does: invariant, or where that is cut, replicated. */
static mesh_place beside_flow(const options *o) { return o->sp ? mesh_replicate() : mesh_invariant(); }

/* Experts lie along ep, each whole on its rank. */
static mesh_layout experts_layout(int ndim, const int64_t *shape, mesh_place others) {
    mesh_layout l;
    mesh_error err;
    int i;
    check(mesh_layout_make(&l, &crowd.on, NULL, ndim, shape, &err), &err);
    for (i = 0; i < crowd.on.naxes; i++)
        l = with(l, crowd.on.axis[i].name, strcmp(crowd.on.axis[i].name, "ep") ? others : mesh_shard(0));
    return l;
}

static mesh_layout weight_used(const options *o, const row *r) {
    int64_t shape[MESH_MAX_DIMS];
    int d, n = (int)strlen(r->dims), cut = -1;
    mesh_layout l;
    for (d = 0; d < n; d++) {
        shape[d] = extent(o, r->dims[d]);
        if (r->dims[d] == r->cut) cut = d;
    }
    if (r->cut == 'X') return experts_layout(n, shape, mesh_replicate());
    l = layout(n, shape);
    if (r->cut == 'S') return with(l, "tp", mesh_replicate());
    if (r->cut == 'T') { /* each rank adds its own positions */
        l = with(l, "cp", mesh_shard(0));
        return with(l, "tp", o->sp ? mesh_shard(0) : mesh_invariant());
    }
    return with(l, "tp", cut >= 0 ? mesh_shard(cut) : beside_flow(o));
}

/* At rest: what is cut stays so; else whole on every rank, or with --zero cut further over the axes of the data. */
static mesh_layout weight_at_rest(const options *o, mesh_layout l) {
    int i;
    for (i = 0; i < l.on->naxes; i++)
        if (l.spec.axis[i].kind == MESH_REPLICATE) {
            const char *axis = l.on->axis[i].name;
            int cuts = o->zero && (!strcmp(axis, "dp_shard") || !strcmp(axis, "cp"));
            if (o->zero && !strcmp(axis, "efsdp")) /* dim 0 are experts, of which there may be few */
                l = with(l, axis, mesh_shard(1));
            else
                l = with(l, axis, cuts ? mesh_shard(0) : mesh_invariant());
        }
    return l;
}

static mesh_tensor tensor_of(mesh_layout l) {
    mesh_tensor t = MESH_ZERO;
    t.layout = l;
    t.dtype = MESH_F32;
    return t;
}

static void add(model *g, const row *r, int segment, int id) {
    parameter *p = &g->all[g->n];
    mesh_error err;
    p->row = r;
    p->segment = segment;
    p->id = id;
    p->use = tensor_of(weight_used(&g->o, r));
    p->rest = tensor_of(weight_at_rest(&g->o, p->use.layout));
    check(mesh_gradient_of(&p->use_grad, &p->use, MESH_F32, NULL, &err), &err);
    check(mesh_gradient_of(&p->rest_grad, &p->rest, MESH_F32, NULL, &err), &err);
    p->rest_grad.add = g->o.zero >= 2; /* each micro-batch's */
    g->n++;
}

/* Parameter i of segment k; NULL: it has no more. */
static const row *row_of(const model *g, int k, int i) {
    int n = g->o.experts ? OF_EXPERTS_LAYER : OF_MLP_LAYER;
    if (k == 0) return i < 2 ? &of_start[i] : NULL;
    if (k == g->nsegments - 1) return i < 3 ? &of_end[i] : NULL;
    if (i < OF_ATTENTION) return &of_attention[i];
    return i < n ? g->o.experts ? &of_experts[i - OF_ATTENTION] : &of_mlp[i - OF_ATTENTION] : NULL;
}

/* The parameters of a stage: those before and behind it have numbers too. */
static void add_segments(model *g) {
    int k, i, id = 0;
    for (k = 0; k < g->nsegments; k++) {
        const row *r;
        g->first[k] = g->n;
        for (i = 0; (r = row_of(g, k, i)) != NULL; i++, id++)
            if (k >= g->lo && k < g->hi) add(g, r, k, id);
    }
    g->first[k] = g->n;
}

/* One member of the parameters from..to, laid into one buffer. Returns its bytes. */
static size_t lay(model *g, int from, int to, size_t member, void *buffer) {
    mesh_tensor list[PARAMETERS];
    int i;
    int64_t bytes;
    for (i = from; i < to; i++) memcpy(&list[i - from], (char *)&g->all[i] + member, sizeof list[0]);
    bytes = mesh_tensors_lay(list, to - from, rank_here(), buffer, 0);
    for (i = from; i < to; i++) memcpy((char *)&g->all[i] + member, &list[i - from], sizeof list[0]);
    return (size_t)bytes;
}
#define LAY(g, from, to, member, buffer) lay(g, from, to, offsetof(parameter, member), buffer)

/* A list of redistributions, a bucket for each segment; `back`: from the last one to the first. */
static void open_buckets(model *g, mesh_buckets *b, size_t src, size_t dst, int back) {
    mesh_tensor from[PARAMETERS], to[PARAMETERS];
    int bucket[PARAMETERS], k, i, n = 0;
    mesh_buckets_desc desc = MESH_ZERO;
    for (k = 0; k < g->hi - g->lo; k++) {
        int segment = back ? g->hi - 1 - k : g->lo + k;
        for (i = g->first[segment]; i < g->first[segment + 1]; i++, n++) {
            memcpy(&from[n], (char *)&g->all[i] + src, sizeof from[0]);
            memcpy(&to[n], (char *)&g->all[i] + dst, sizeof to[0]);
            bucket[n] = k;
        }
    }
    desc.bucket = bucket;
    must(mesh_buckets_open(b, &comm, from, to, n, &desc));
}

/* Where a segment's first parameter stands in such a list. */
static int listed(const model *g, int segment, int back) {
    return back ? g->n - g->first[segment + 1] : g->first[segment];
}

static void all_ready(model *g, mesh_buckets *b, int segment, int back) {
    int i, n = g->first[segment + 1] - g->first[segment];
    for (i = 0; i < n; i++) must(mesh_buckets_ready(b, listed(g, segment, back) + i));
}

/* The same value at the same place of the whole parameter, in any layout. */
static void initialize(model *g) {
    float *values = (float *)allocate(g->at_rest, sizeof *values);
    float residual = 0.02f / sqrtf(2.0f * (float)g->o.layers);
    mesh_error err;
    int i;
    for (i = 0; i < g->n; i++) {
        mesh_tensor t = g->all[i].rest;
        float deviation = g->all[i].row->deviation;
        if (!t.data) continue;
        t.data = values + ((float *)t.data - g->param);
        check(mesh_random_normal(&t, rank_here(), (uint64_t)g->o.seed, (uint64_t)g->all[i].id, deviation == 1 ? 1 : 0,
                                 (double)(deviation == 1  ? 0
                                          : deviation < 0 ? residual
                                                          : deviation),
                                 &err),
              &err);
    }
    must(mesh_copy(&comm, g->param, values, g->at_rest * sizeof *values));
    free(values);
}

static void model_memory(model *g) {
    int k, zero = g->o.zero;
    g->used_bytes = LAY(g, 0, g->n, use, NULL);
    g->at_rest = LAY(g, 0, g->n, rest, NULL) / sizeof(float);
    g->param = floats(g->at_rest), g->grad = floats(g->at_rest), g->m = floats(g->at_rest), g->v = floats(g->at_rest);
    LAY(g, 0, g->n, rest, g->param);
    LAY(g, 0, g->n, rest_grad, g->grad);
    for (k = g->lo; k < g->hi; k++) {
        size_t bytes = LAY(g, g->first[k], g->first[k + 1], use, NULL);
        if (bytes > g->slot_bytes) g->slot_bytes = bytes;
    }
    for (k = 0; k < 2; k++) { /* a segment in use, and the next on its way */
        if (zero == 3) g->slot[k] = device_memory(g->slot_bytes);
        if (zero >= 2) g->grad_slot[k] = device_memory(g->slot_bytes);
    }
    g->grads_used = zero == 1 ? device_memory(g->used_bytes) : g->grad; /* R and I are the same memory */
    if (zero < 3) LAY(g, 0, g->n, use, zero ? device_memory(g->used_bytes) : g->param);
    if (zero < 2) LAY(g, 0, g->n, use_grad, g->grads_used);
    for (k = g->lo; k < g->hi; k++) {
        if (zero == 3) LAY(g, g->first[k], g->first[k + 1], use, g->slot[k & 1]);
        if (zero >= 2) LAY(g, g->first[k], g->first[k + 1], use_grad, g->grad_slot[k & 1]);
    }
}

/* A slot for each layer of each micro-batch in flight. */
static void open_moe(model *g, int slots) {
    mesh_moe_desc d = MESH_ZERO;
    int64_t shape[2];
    mesh_layout tokens;
    mesh_box box;
    shape[0] = g->o.batch / g->o.micro, shape[1] = g->o.context;
    tokens = activation(2, shape, mesh_shard(1));
    mesh_layout_box(&tokens, rank_here(), &box);
    d.experts = g->o.experts, d.top_k = g->o.top_k, d.width = g->o.channels, d.dtype = MESH_F32;
    d.max_tokens = mesh_box_count(&box);
    d.slots = slots * (g->hi - g->lo);
    g->moe = (mesh_moe *)allocate(1, sizeof *g->moe);
    must_in(&crowd, mesh_moe_open(g->moe, &crowd, "ep", &d));
}

/* Layers are dealt to the stages in order; the first has the embeddings too, the last the end. */
static void model_init(model *g, const options *o, int stage, int stages, int slots) {
    g->o = *o;
    g->stage = stage, g->stages = stages;
    g->nsegments = o->layers + 2;
    g->lo = stage ? 1 + stage * o->layers / stages : 0;
    g->hi = stage == stages - 1 ? g->nsegments : 1 + (stage + 1) * o->layers / stages;
    g->saved = (struct pass **)allocate((size_t)slots, sizeof *g->saved);
    add_segments(g);
    model_memory(g);
    initialize(g);
    if (o->experts) open_moe(g, slots);
    open_buckets(g, &g->weights, offsetof(parameter, rest), offsetof(parameter, use), 0);
    open_buckets(g, &g->weights_back, offsetof(parameter, rest), offsetof(parameter, use), 1);
    open_buckets(g, &g->grads, offsetof(parameter, use_grad), offsetof(parameter, rest_grad), 1);
}

static float *P(const model *g, int segment, int k) { return (float *)g->all[g->first[segment] + k].use.data; }
static float *G(const model *g, int segment, int k) { return (float *)g->all[g->first[segment] + k].use_grad.data; }

/* ---- weights come and gradients go: once a step, or with --zero 3 one segment ahead of its use -------------------------- */

static void weights_begin(model *g, int back) {
    int k;
    if (g->o.zero == 3)
        all_ready(g, back ? &g->weights_back : &g->weights, back ? g->hi - 1 : g->lo, back);
    else
        for (k = g->lo; k < g->hi && !back; k++) all_ready(g, &g->weights, k, 0);
}

/* A segment's weights, until the one after the next is asked for. */
static void weights_of(model *g, int segment, int back) {
    int next = back ? segment - 1 : segment + 1, ahead = g->o.zero == 3;
    mesh_buckets *b = ahead && back ? &g->weights_back : &g->weights;
    if (!ahead && back) return; /* they are there since the forward pass */
    must(mesh_buckets_wait(b, listed(g, segment, back)));
    if (ahead && next >= g->lo && next < g->hi) all_ready(g, b, next, back);
}

static void weights_end(model *g, int back) {
    if (g->o.zero == 3 || !back) must(mesh_buckets_wait(back ? &g->weights_back : &g->weights, -1));
}

/* Room for a segment's gradients, zero where nothing has been added yet. */
static void grads_of(model *g, int segment) {
    if (g->o.zero < 2) return;
    if (segment + 2 < g->hi) must(mesh_buckets_wait(&g->grads, listed(g, segment + 2, 1)));
    dev->zero(g->grad_slot[segment & 1], g->slot_bytes);
}

static void grads_go(model *g, int segment, int last) {
    if (g->o.zero >= 2 || last) all_ready(g, &g->grads, segment, 1);
}

/* ---- activations ------------------------------------------------------------------------------------------------------- */

typedef struct value {
    mesh_tensor t, g; /* it, and its gradient */
} value;

/* What is between two computations: forward the value, backward its gradient. */
typedef struct passage {
    mesh_request forward, backward;
} passage;

typedef struct room { /* rows of floats, as many as are needed */
    float *p;
    size_t rows;
} room;

typedef struct layer_pass {
    value ln1, whole1, qkv, q, k, v, q_used, k_used, v_used, att_used, att, part1, sum1, ln2, whole2, up, act, part2,
        sum2;
    passage to_whole1, to_q, to_k, to_v, to_att, to_sum1, to_whole2, to_sum2;
    float *hat1, *rstd1, *hat2, *rstd2, *probs, *lse;
    /* With experts whole2 are this rank's own tokens, and part2 what became of them. */
    value scores;
    float *weight, *weight_grad; /* of each token's choices */
    int32_t *choice;
    int slot; /* of the moe */
    mesh_moe_rows rows;
    room kept, *grads; /* of each row that came: up, act and out; gradients of out and of what gelu makes, of in */
} layer_pass;

typedef struct pass {
    int64_t batch; /* sequences of all ranks */
    value table, x, last, whole, logits;
    passage to_x, to_whole;
    mesh_layout flow, flow_whole, part, heads, wide, tokens, scores;
    int64_t heads_stride[4];
    float *last_hat, *last_rstd, *work;
    layer_pass *layers;
    int nlayers;
    int first_layer, slot;
    void *pool
        [64]; /* gradients of a layer's: those of another are not alive at the same time, unless the weights' half comes later */
    int npool, pooled, splits;
    room grads, through, work_rows; /* through: the tokens' gradients by way of their experts */
} pass;

static size_t local(const mesh_layout *l) {
    mesh_box box;
    mesh_layout_box(l, rank_here(), &box);
    return (size_t)mesh_box_count(&box);
}
static int extent_here(const mesh_layout *l, int dim) {
    mesh_box box;
    mesh_layout_box(l, rank_here(), &box);
    return (int)box.shape[dim];
}
/* Rows of a tensor whose first two dims are sequences and positions. */
static int rows_of(const value *v) { return extent_here(&v->t.layout, 0) * extent_here(&v->t.layout, 1); }
static float *data(const mesh_tensor *t) { return (float *)t->data; }

static void *pooled(pass *a, size_t nbytes) {
    if (a->splits) return device_memory(nbytes);
    if (a->pooled == a->npool) {
        if (a->npool == 64) die("too many values in a layer");
        a->pool[a->npool++] = device_memory(nbytes);
    }
    return a->pool[a->pooled++];
}

static mesh_layout gradient(const mesh_layout *l) {
    mesh_layout g = *l;
    mesh_error err;
    check(mesh_spec_gradient(&g.spec, &l->spec, &err), &err);
    return g;
}

/* In the same memory, where every rank's part is the same box; else in new memory. */
static mesh_tensor as(const mesh_tensor *t, const mesh_layout *l, void *fresh) {
    mesh_tensor r = *t;
    r.layout = *l;
    if (!fresh) return r;
    r.strides = NULL;
    r.data = fresh;
    return r;
}

/* g: a gradient that this one's may share its memory with; NULL: none. */
static void value_make(pass *a, value *v, const mesh_layout *l, const mesh_tensor *g) {
    v->t = tensor_of(*l);
    v->t.data = floats(local(l));
    v->g = tensor_of(gradient(l));
    v->g.data = g && same_parts(l, &g->layout) ? g->data : pooled(a, local(l) * sizeof(float));
}

static void keep(mesh_request *r, const mesh_tensor *src, const mesh_tensor *dst) {
    must(mesh_prepare(&comm));
    must(mesh_redistribute_start(&comm, src, dst, r));
}

/* `to` is `from` in another layout; its memory and its gradient's, if they have none yet, are from's where they can be. */
static void passage_make(pass *a, passage *k, const value *from, value *to, const mesh_layout *l) {
    mesh_layout back = gradient(l);
    int same = same_parts(&from->t.layout, l);
    if (!to->t.data) to->t = as(&from->t, l, same ? NULL : floats(local(l)));
    if (!to->g.data) to->g = as(&from->g, &back, same ? NULL : pooled(a, local(l) * sizeof(float)));
    keep(&k->forward, &from->t, &to->t);
    keep(&k->backward, &to->g, &from->g);
}

static void follow(mesh_request r) {
    must(mesh_restart(r));
    must(mesh_wait(r));
}

/* q, k or v as a view of the rows of qkv. */
static value third(const pass *a, const value *qkv, int which) {
    value v = *qkv;
    int64_t at = (int64_t)which * a->heads_stride[1] / 3;
    v.t.layout = a->heads;
    v.g.layout = gradient(&a->heads);
    v.t.strides = v.g.strides = a->heads_stride;
    v.t.data = data(&qkv->t) + at;
    v.g.data = data(&qkv->g) + at;
    return v;
}

/* Queries stay where they are, and keys and values are gathered; or all are cut by heads instead; or keys and values travel in a ring. */
static void attention_init(const model *g, pass *a, layer_pass *s) {
    mesh_layout queries = a->heads, keys = with(a->heads, "cp", mesh_replicate());
    if (g->o.ulysses) queries = keys = with(a->heads, "cp", mesh_shard(2));
    if (g->o.ring) keys = a->heads;
    s->q = third(a, &s->qkv, 0), s->k = third(a, &s->qkv, 1), s->v = third(a, &s->qkv, 2);
    if (g->o.ring) value_make(a, &s->q_used, &queries, NULL); /* a ring's queries lie as what comes out */
    passage_make(a, &s->to_q, &s->q, &s->q_used, &queries);
    passage_make(a, &s->to_k, &s->k, &s->k_used, &keys);
    passage_make(a, &s->to_v, &s->v, &s->v_used, &keys);
    value_make(a, &s->att_used, &queries, NULL);
    passage_make(a, &s->to_att, &s->att_used, &s->att, &a->heads);
    if (g->o.ring)
        s->lse = floats(local(&queries));
    else
        s->probs = floats((size_t)extent_here(&queries, 0) * (size_t)extent_here(&queries, 2) *
                          (size_t)extent_here(&queries, 1) * (size_t)extent_here(&keys, 1));
}

static void layer_init(const model *g, pass *a, layer_pass *s) {
    int64_t shape[5];
    mesh_layout qkv;
    size_t rows = local(&a->flow);
    a->pooled = 0;
    memcpy(shape, a->heads.shape, 2 * sizeof *shape);
    shape[2] = 3, shape[3] = a->heads.shape[2], shape[4] = a->heads.shape[3];
    qkv = activation(5, shape, mesh_shard(3));
    value_make(a, &s->ln1, &a->flow, NULL);
    passage_make(a, &s->to_whole1, &s->ln1, &s->whole1, &a->flow_whole);
    value_make(a, &s->qkv, &qkv, NULL);
    attention_init(g, a, s);
    s->sum1.g = s->sum2.g = a->x.g; /* copies: the stream's gradient goes on to grow */
    s->sum1.g.data = pooled(a, rows * sizeof(float)), s->sum2.g.data = pooled(a, rows * sizeof(float));
    value_make(a, &s->part1, &a->part, &s->sum1.g);
    passage_make(a, &s->to_sum1, &s->part1, &s->sum1, &a->flow);
    value_make(a, &s->ln2, &a->flow, NULL);
    if (g->o.experts) {
        size_t choices = local(&a->scores) / (size_t)g->o.experts * (size_t)g->o.top_k;
        passage_make(a, &s->to_whole2, &s->ln2, &s->whole2, &a->tokens);
        value_make(a, &s->scores, &a->scores, NULL);
        value_make(a, &s->part2, &a->tokens, &s->sum2.g);
        s->weight = floats(choices), s->weight_grad = floats(choices);
        s->choice = (int32_t *)device_memory(choices * sizeof *s->choice);
        s->slot = a->slot++;
        s->grads = a->splits ? (room *)allocate(1, sizeof(room)) : &a->grads;
    } else {
        passage_make(a, &s->to_whole2, &s->ln2, &s->whole2, &a->flow_whole);
        value_make(a, &s->up, &a->wide, NULL);
        value_make(a, &s->act, &a->wide, NULL);
        value_make(a, &s->part2, &a->part, &s->sum2.g);
    }
    passage_make(a, &s->to_sum2, &s->part2, &s->sum2, &a->flow);
    s->hat1 = floats(rows), s->rstd1 = floats(rows), s->hat2 = floats(rows), s->rstd2 = floats(rows);
}

/* The table asks no more than these: what each computation makes of its operands has to be what the next one is given. */
static void made(const char *what, const mesh_layout *want, mesh_local_kind kind, const char *letters,
                 const mesh_layout *a, const mesh_layout *b, const mesh_layout *c) {
    const mesh_layout *operands[3];
    mesh_layout result;
    mesh_error err;
    int n = 0;
    operands[n++] = a;
    if (b) operands[n++] = b;
    if (c) operands[n++] = c;
    if (mesh_layout_local(&result, kind, letters, operands, n, &err) != MESH_OK) {
        fprintf(stderr, "train_gpt: the table is wrong: %s: %s\n", what, err.text);
        exit(1);
    }
    if (!mesh_layout_equal(&result, want) || !mesh_spec_equal(&result.spec, &want->spec)) {
        char has[128], wants[128];
        mesh_spec_format(&result.spec, result.on, has, sizeof has);
        mesh_spec_format(&want->spec, want->on, wants, sizeof wants);
        fprintf(stderr, "train_gpt: the table is wrong: %s makes \"%s\", and \"%s\" is expected\n", what, has, wants);
        exit(1);
    }
}

static const mesh_layout *used(const model *g, int segment, int k) { return &g->all[g->first[segment] + k].use.layout; }

/* An expert's rows are those of all ranks that differ in ep alone; between the tables stands the library's dispatch. */
static void check_experts(const model *g, const pass *a, int w) {
    int64_t shape[3];
    mesh_layout rows, wide;
    shape[0] = g->o.experts, shape[1] = comm.on.size, shape[2] = g->o.channels;
    rows = experts_layout(3, shape, mesh_shard(1));
    shape[2] = 4 * g->o.channels, wide = experts_layout(3, shape, mesh_shard(1));
    made("the router", &a->scores, MESH_LOCAL_EINSUM, "bsc,cx->bsx", &a->tokens, used(g, w, ROUTER), NULL);
    made("an expert's first product", &wide, MESH_LOCAL_EINSUM, "xrc,xcf->xrf", &rows, used(g, w, EACH_UP_W), NULL);
    made("an expert's first bias", &wide, MESH_LOCAL_LINEAR, "xrf,xf->xrf", &wide, used(g, w, EACH_UP_B), NULL);
    made("an expert's second product", &rows, MESH_LOCAL_EINSUM, "xrf,xfc->xrc", &wide, used(g, w, EACH_DOWN_W), NULL);
    made("an expert's second bias", &rows, MESH_LOCAL_LINEAR, "xrc,xc->xrc", &rows, used(g, w, EACH_DOWN_B), NULL);
    made("adding what experts made", &a->flow, MESH_LOCAL_LINEAR, "bsc,bsc->bsc", &a->flow, &a->layers[0].sum2.t.layout,
         NULL);
}

static void check_layer(const model *g, const pass *a, int w) {
    const layer_pass *s = &a->layers[0];
    const mesh_layout *flow = &a->flow, *whole = &a->flow_whole, *qkv = &s->qkv.t.layout, *wide = &a->wide;
    const mesh_layout *q = &s->q_used.t.layout, *k = &s->k_used.t.layout;
    made("a layer norm", flow, MESH_LOCAL_MAP, "bsC,C,C->bsC", flow, used(g, w, LN1_W), used(g, w, LN1_B));
    made("the product with qkv", qkv, MESH_LOCAL_EINSUM, "bsc,cthe->bsthe", whole, used(g, w, QKV_W), NULL);
    made("qkv's bias", qkv, MESH_LOCAL_LINEAR, "bsthe,the->bsthe", qkv, used(g, w, QKV_B), NULL);
    if (!g->o.ring) /* which is a function of the library's own */
        made("attention", &s->att_used.t.layout, MESH_LOCAL_MAP, "bqhE,bKhE,bKhE->bqhE", q, k, &s->v_used.t.layout);
    made("the product with proj", &a->part, MESH_LOCAL_EINSUM, "bshe,hec->bsc", &s->att.t.layout, used(g, w, PROJ_W),
         NULL);
    made("adding to the residual stream", flow, MESH_LOCAL_LINEAR, "bsc,bsc,c->bsc", flow, &s->sum1.t.layout,
         used(g, w, PROJ_B));
    if (g->o.experts) {
        check_experts(g, a, w);
        return;
    }
    made("the product with up", wide, MESH_LOCAL_EINSUM, "bsc,cf->bsf", whole, used(g, w, UP_W), NULL);
    made("up's bias", wide, MESH_LOCAL_LINEAR, "bsf,f->bsf", wide, used(g, w, UP_B), NULL);
    made("gelu", wide, MESH_LOCAL_MAP, "bsf->bsf", wide, NULL, NULL);
    made("the product with down", &a->part, MESH_LOCAL_EINSUM, "bsf,fc->bsc", wide, used(g, w, DOWN_W), NULL);
}

static void check_ends(const model *g, const pass *a) {
    int64_t one_hot[3];
    mesh_layout ids;
    one_hot[0] = a->batch, one_hot[1] = g->o.context, one_hot[2] = VOCAB;
    ids = activation(3, one_hot, mesh_shard(2));
    if (g->lo == 0) {
        made("looking up tokens", &a->table.t.layout, MESH_LOCAL_EINSUM, "bsv,vc->bsc", &ids, used(g, 0, WTE), NULL);
        made("adding positions", &a->flow, MESH_LOCAL_LINEAR, "bsc,sc->bsc", &a->flow, used(g, 0, WPE), NULL);
    }
    if (g->hi == g->nsegments)
        made("the product with head", &a->logits.t.layout, MESH_LOCAL_EINSUM, "bsc,cv->bsv", &a->whole.t.layout,
             used(g, g->hi - 1, HEAD), NULL);
}

/* slot: which of the micro-batches in flight it is. */
static void pass_init(pass *a, const model *g, int64_t batch, int slot) {
    const options *o = &g->o;
    int64_t shape[4], E = o->channels / o->heads;
    mesh_place cut = mesh_shard(2), flow = o->sp ? mesh_shard(1) : mesh_invariant();
    mesh_layout logits, table, last;
    size_t linear, probs, all;
    int i, layers;
    memset(a, 0, sizeof *a);
    a->batch = batch;
    a->splits = g->splits;
    a->slot = slot * (g->hi - g->lo);
    shape[0] = batch, shape[1] = o->context, shape[2] = o->channels, shape[3] = E;
    a->flow = activation(3, shape, flow);
    a->flow_whole = activation(3, shape, mesh_replicate());
    a->part = activation(3, shape, mesh_partial(MESH_SUM));
    last = activation(3, shape, mesh_replicate());
    table = activation(3, shape, mesh_partial(MESH_SUM));
    shape[2] = o->heads, a->heads = activation(4, shape, cut);
    shape[2] = 4 * o->channels, a->wide = activation(3, shape, cut);
    shape[2] = o->channels, a->tokens = activation(3, shape, mesh_shard(1));
    if (o->experts) shape[2] = o->experts, a->scores = activation(3, shape, mesh_shard(1));
    shape[2] = VOCAB, logits = activation(3, shape, cut);
    a->heads_stride[3] = 1, a->heads_stride[2] = E;
    a->heads_stride[1] = 3 * E * extent_here(&a->heads, 2);
    a->heads_stride[0] = a->heads_stride[1] * extent_here(&a->heads, 1);
    if (g->lo == 0) {
        value_make(a, &a->table, &table, NULL);
        passage_make(a, &a->to_x, &a->table, &a->x, &a->flow);
    } else {
        value_make(a, &a->x, &a->flow, NULL);
    }
    if (g->hi == g->nsegments) {
        value_make(a, &a->last, &a->flow, NULL);
        passage_make(a, &a->to_whole, &a->last, &a->whole, &last);
        value_make(a, &a->logits, &logits, NULL);
        a->logits.g.data = a->logits.t.data; /* the gradient takes its place */
        a->last_hat = floats(local(&a->flow)), a->last_rstd = floats(local(&a->flow));
    }
    a->npool = 0; /* those above are not a layer's */
    a->first_layer = g->lo == 0 ? 0 : g->lo - 1;
    layers = (g->hi == g->nsegments ? o->layers : g->hi - 1) - a->first_layer;
    a->layers = (layer_pass *)allocate((size_t)layers, sizeof *a->layers);
    a->nlayers = layers;
    for (i = 0; i < layers; i++) layer_init(g, a, &a->layers[i]);
    all = (size_t)extent_here(&a->flow_whole, 0) * (size_t)extent_here(&a->flow_whole, 1);
    linear =
        all * 4 * (size_t)o->channels + 4 * (size_t)o->channels * (size_t)o->channels + (size_t)o->channels * VOCAB;
    probs = (size_t)rows_of(&a->layers[0].q_used) * (size_t)(o->heads * o->context) * (o->ring ? 2 : 1);
    a->work = floats(linear > probs ? linear : probs);
    check_layer(g, a, a->first_layer + 1);
    check_ends(g, a);
}
#endif
