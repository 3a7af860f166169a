/* mesh auto: the meshes and schedules that a model allows on a cluster, by predicted step time under the memory limit. Needs no ranks. */
#ifndef TOOL_AUTO_H
#define TOOL_AUTO_H

static const char auto_help[] =
    "usage: mesh auto --model FILE --cluster FILE [--top 10] [--batch N] [--devices N] [--fix tp=8,pp=16] [--json]\n\n"
    "Tries every way to train a model on a cluster: tp, cp, pp, ep, dp = dp_replicate x dp_shard, ZeRO 0 to 3, sequence parallelism,\n"
    "micro-batches, 1F1B and interleaved schedules, recomputation; and prints the meshes with the shortest predicted step that fit\n"
    "into memory, each with its best settings. tp is innermost, then cp, pp, dp; ep takes the ranks of a stage another way.\n\n"
    "  --model FILE     lines of NAME VALUE as mesh zoo --model (batch: sequences of a step), and\n"
    "      flash 1            attention keeps no scores       causal 1       it computes no more than half of them\n"
    "      gradient_bytes 4   of a gradient that is summed     devices N      how many of the cluster's\n"
    "      published_tp _cp _pp _dp _ep _zero _sp _micro _chunks _recompute (0 none, 1 selective, 2 full)   a run that was\n"
    "      published_tflops   per device; with published_counts_recompute 1 what is computed twice counts; source TEXT\n"
    "  --cluster FILE   hosts devices_per_host; memory and reserve in GB of a device; flops: its dense peak in TFLOP/s; efficiency:\n"
    "                   the part of it that large products reach; topology as mesh plan; source TEXT\n"
    "  --fix LIST       only these: tp cp pp ep dp dp_shard zero sp micro chunks recompute\n"
    "  --top N          lines (10)\n"
    "  --batch, --devices   instead of the model's\n"
    "  --json           the same for programs\n";

typedef struct auto_cluster {
    double hosts, devices_per_host, memory, reserve, flops, efficiency;
    mesh_topology topology;
    char source[300];
} auto_cluster;

/* What can be chosen. -1: free. */
typedef struct auto_choice {
    long tp, cp, pp, ep, dp, dp_shard, zero, sp, micro, chunks, recompute;
} auto_choice;

enum { AUTO_NONE, AUTO_SELECTIVE, AUTO_FULL };                   /* recompute */
enum { AUTO_TP, AUTO_CP, AUTO_EP, AUTO_DP, AUTO_PP, AUTO_AXES }; /* who talks */
enum { AUTO_LAYER, AUTO_FIRST, AUTO_LAST, AUTO_PLACES }; /* a layer; what the first stage has beside; the last */
enum { AUTO_FORWARD, AUTO_BACKWARD, AUTO_WAYS };

typedef struct auto_moves {
    double seconds, bytes;
} auto_moves;

typedef struct auto_table {
    auto_moves moves[AUTO_AXES][AUTO_PLACES][AUTO_WAYS];
    double use[AUTO_PLACES], rest[AUTO_PLACES]; /* elements of weights of a rank, where used and at rest */
} auto_table;

typedef struct auto_result {
    auto_choice choice;
    double step, compute, bubble, bubble_part; /* seconds; bubble of the ideal */
    double axis[AUTO_AXES], bytes[AUTO_AXES];  /* seconds that compute waits; bytes of a rank in a step */
    double state, activations;                 /* bytes */
    double micro_batches, model_tflops, hardware_tflops, tokens;
} auto_result;

enum { AUTO_KEY = 600, AUTO_BUCKETS = 1 << 16, AUTO_RULES = 16, AUTO_LIST = 256 };

typedef struct auto_plan {
    struct auto_plan *next;
    auto_moves moves;
    char key[AUTO_KEY];
} auto_plan;

typedef struct auto_search {
    zoo_options zoo;
    zoo_table table;
    zoo_run run;
    auto_cluster cluster;
    auto_choice fix;
    long devices, top;
    int json;
    auto_plan **plans;
    auto_result *best; /* one of a mesh */
    size_t n, room;
    double tried, too_large, least; /* least: bytes of the smallest that was too large */
    auto_choice smallest;
    int nrules;
    struct {
        char rule[24], text[200]; /* the first that a rule refused */
        long times;
    } rules[AUTO_RULES];
} auto_search;

/* ---- communication: from the planner ---- */

/* A layout without the axes along which nothing changes: the part that rank 0 has of them. */
static mesh_layout auto_project(const mesh_layout *l, unsigned keep, mesh *on) {
    int64_t shape[MESH_MAX_DIMS];
    mesh_layout r;
    int i, d, order;
    *on = *l->on;
    for (d = 0; d < l->ndim; d++) shape[d] = l->shape[d];
    for (i = 0; i < l->on->naxes; i++) {
        const mesh_place *place = &l->spec.axis[i];
        const mesh_axis *axis = &l->on->axis[i];
        if (keep >> i & 1) continue;
        if (place->kind == MESH_SHARD) shape[place->dim] = (shape[place->dim] + axis->size - 1) / axis->size;
        if (mesh_fix(on, on, axis->name, 0, NULL)) fprintf(stderr, "mesh auto: no axis %s\n", axis->name), exit(1);
    }
    r = zoo_layout(on, l->ndim, shape);
    for (order = 0; order < MESH_MAX_AXES; order++)
        for (i = 0; i < l->on->naxes; i++) {
            const mesh_place *place = &l->spec.axis[i];
            if (!(keep >> i & 1) || (place->kind == MESH_SHARD ? place->order : 0) != order) continue;
            zoo_set(&r, l->on->axis[i].name, place->kind == MESH_SHARD ? mesh_shard(place->dim) : *place);
        }
    return r;
}

static void auto_key(char *key, const mesh_layout *from, const mesh_layout *to, long bytes) {
    char a[200], b[200];
    mesh__text t = mesh__text_on(key, AUTO_KEY);
    int i;
    mesh_spec_format(&from->spec, from->on, a, sizeof a);
    mesh_spec_format(&to->spec, to->on, b, sizeof b);
    mesh__put(&t, "%l|%s|%s|%d", (int64_t)bytes, a, b, to->on->origin);
    for (i = 0; i < from->on->nmodes; i++) mesh__put(&t, "|%d:%d", from->on->mode[i].shape, from->on->mode[i].stride);
    for (i = 0; i < from->ndim; i++) mesh__put(&t, "|%l", from->shape[i]);
}

static auto_moves auto_planned(auto_search *s, const mesh_layout *from, const mesh_layout *to, long bytes) {
    static mesh_plan plan;
    mesh_plan_desc d = MESH_ZERO;
    mesh_error err;
    char key[AUTO_KEY];
    auto_plan *p;
    uint64_t hash = 0;
    size_t i;
    auto_key(key, from, to, bytes);
    for (i = 0; key[i]; i++) hash = hash * 1099511628211u + (unsigned char)key[i];
    for (p = s->plans[hash % AUTO_BUCKETS]; p; p = p->next)
        if (!strcmp(p->key, key)) return p->moves;
    d.src = from, d.dst = to, d.dtype = MESH_BYTES, d.elem_bytes = bytes, d.topology = &s->cluster.topology;
    if (mesh_plan_make(&plan, &d, &err)) fprintf(stderr, "mesh auto: %s\n", err.text), exit(1);
    if (!(p = (auto_plan *)malloc(sizeof *p))) fprintf(stderr, "mesh auto: no memory\n"), exit(1);
    memcpy(p->key, key, sizeof key);
    p->moves.seconds = (double)plan.ps / 1e12;
    p->moves.bytes = (double)plan.bytes;
    p->next = s->plans[hash % AUTO_BUCKETS];
    s->plans[hash % AUTO_BUCKETS] = p;
    return p->moves;
}

/* From one layout to another, as the planner has it on the axes that change. */
static auto_moves auto_way(auto_search *s, const mesh_layout *from, const mesh_layout *to, long bytes) {
    auto_moves none = {0, 0};
    mesh a, b;
    mesh_layout src, dst;
    unsigned keep = 0;
    int i, moves = 0;
    for (i = 0; i < from->on->naxes; i++) {
        const mesh_place *x = &from->spec.axis[i], *y = &to->spec.axis[i];
        if (from->on->axis[i].size == 1) continue;
        if (x->kind != y->kind || (x->kind == MESH_SHARD && (x->dim != y->dim || x->order != y->order)))
            keep |= 1u << i;
        moves |= zoo_step(x, y) != NULL;
    }
    if (!moves) return none;
    src = auto_project(from, keep, &a);
    dst = auto_project(to, keep, &b);
    return auto_planned(s, &src, &dst, bytes);
}

static int auto_is_weight(const zoo_tensor *r) {
    return !strncmp(r->name, "weight", 6) || !strcmp(r->name, "token table");
}

static double auto_elements(const mesh_layout *l) {
    double n = 1;
    int i;
    for (i = 0; i < l->ndim; i++) n *= (double)l->shape[i];
    for (i = 0; i < l->on->naxes; i++)
        if (l->spec.axis[i].kind == MESH_SHARD) n /= l->on->axis[i].size;
    return n;
}

static void auto_add(auto_moves *to, const auto_moves *m, double times) {
    to->seconds += times * m->seconds;
    to->bytes += times * m->bytes;
}

/* A row of the table of one layer, in its place. Of the norms one is behind the last layer. */
static void auto_row(auto_search *s, const zoo_tensor *r, int weights, auto_table *t) {
    int norm = !strcmp(r->name, "norm") || !strcmp(r->name, "weight norms"), way, place;
    int axis = weights ? AUTO_DP : !strcmp(r->name, "k, v") ? AUTO_CP : AUTO_TP;
    int first = !strcmp(r->name, "token table") || !strcmp(r->name, "embedding");
    int last = !strcmp(r->name, "weight head") || !strcmp(r->name, "logits") || !strncmp(r->name, "loss", 4);
    mesh_layout grad_use = r->use, grad_rest = r->rest;
    long gradient = weights && s->run.gradient_bytes > 0 ? (long)s->run.gradient_bytes : s->zoo.model.bytes;
    if (auto_is_weight(r) != weights) return;
    if (mesh_spec_gradient(&grad_use.spec, &r->use.spec, NULL) ||
        mesh_spec_gradient(&grad_rest.spec, &r->rest.spec, NULL))
        fprintf(stderr, "mesh auto: %s has no gradient\n", r->name), exit(1);
    for (place = 0; place < AUTO_PLACES; place++) {
        double times = place == AUTO_LAYER ? r->backward - norm : norm;
        if (first || last)
            times = place == (first ? AUTO_FIRST : AUTO_LAST) ? r->backward : 0;
        else if (place == AUTO_FIRST)
            times = 0;
        if (!times) continue;
        for (way = 0; way < AUTO_WAYS; way++) {
            auto_moves m = way == AUTO_FORWARD ? auto_way(s, &r->rest, &r->use, s->zoo.model.bytes)
                                               : auto_way(s, &grad_use, &grad_rest, gradient);
            auto_add(&t->moves[axis][place][way], &m, times);
        }
        if (!weights) continue;
        t->use[place] += times * auto_elements(&r->use);
        t->rest[place] += times * auto_elements(&r->rest);
    }
}

/* Tokens to their experts and back: twice an all-to-all of what a rank has, along ep. */
static void auto_experts(auto_search *s, const auto_choice *c, double tokens, auto_table *t) {
    const zoo_model *d = &s->zoo.model;
    mesh on;
    mesh_layout rows, columns;
    auto_moves m;
    int64_t shape[2];
    if (s->run.experts < 0 || c->ep == 1) return;
    shape[0] = (int64_t)(tokens * (double)d->top_k) * c->ep, shape[1] = d->hidden;
    if (mesh_fix(&on, &s->zoo.sparse, "efsdp", 0, NULL)) return;
    rows = columns = zoo_layout(&on, 2, shape);
    zoo_set(&rows, "ep", mesh_shard(0));
    zoo_set(&columns, "ep", mesh_shard(1));
    m = auto_planned(s, &rows, &columns, d->bytes);
    auto_add(&t->moves[AUTO_EP][AUTO_LAYER][AUTO_FORWARD], &m, 2);
    auto_add(&t->moves[AUTO_EP][AUTO_LAYER][AUTO_BACKWARD], &m, 2);
}

/* The mesh of a stage, outermost dp_replicate, dp_shard, (pp,) cp, tp. Returns 0 where experts do not lie on it. */
static int auto_meshes(auto_search *s, const auto_choice *c) {
    mesh_degrees degrees = MESH_ZERO;
    mesh_error err;
    mesh flat;
    char text[64];
    degrees.world = (int)s->devices;
    degrees.tp = (int)c->tp, degrees.cp = (int)c->cp, degrees.pp = (int)c->pp;
    degrees.dp_shard = (int)c->dp_shard, degrees.dp_replicate = (int)(c->dp / c->dp_shard);
    if (mesh_from_degrees(&s->zoo.m, &degrees, "dp_replicate,dp_shard,pp,cp,tp", &err) ||
        mesh_fix(&s->zoo.m, &s->zoo.m, "pp", 0, &err))
        fprintf(stderr, "mesh auto: %s\n", err.text), exit(1);
    s->zoo.sparse.naxes = 0;
    if (s->run.experts < 0) return 1;
    snprintf(text, sizeof text, "efsdp=%ld,ep=%ld", s->devices / c->pp / c->ep, c->ep);
    return !mesh_flatten(&flat, &s->zoo.m, "dp_replicate,dp_shard,cp,tp", "all", &err) &&
           !mesh_split(&s->zoo.sparse, &flat, "all", text, &err);
}

/* The table of one layer and the ends as mesh zoo has it; of weights, or of a micro-batch's activations. */
static int auto_tabulate(auto_search *s, const auto_choice *c, int weights, auto_table *t) {
    zoo_options *o = &s->zoo;
    long layers = o->model.layers, batch = o->model.batch;
    int i;
    memset(t, 0, sizeof *t);
    if (!auto_meshes(s, c)) return 0;
    o->pp = 1, o->zero = c->zero > 0, o->sp = (int)c->sp;
    o->model.layers = 1, o->model.batch = c->micro * c->dp;
    memset(&s->table, 0, sizeof s->table);
    s->table.o = o;
    zoo_build(&s->table);
    for (i = 0; i < s->table.n; i++) auto_row(s, &s->table.row[i], weights, t);
    o->model.layers = layers, o->model.batch = batch;
    if (!weights)
        auto_experts(s, c, (double)c->micro * (double)o->model.sequence / (double)(c->cp * (c->sp ? c->tp : 1)), t);
    return 1;
}

/* A micro-batch's activations from a stage to the next: cut over tp (scatter and gather around it where sp does not cut them already). */
static auto_moves auto_between(auto_search *s, const auto_choice *c) {
    mesh from, to;
    mesh_layout src, dst;
    mesh_desc desc = MESH_ZERO;
    int64_t n = (int64_t)c->micro * s->zoo.model.sequence / c->cp * s->zoo.model.hidden / c->tp;
    int one = 1;
    const char *name = "pp";
    desc.shape = &one, desc.names = &name, desc.naxes = 1;
    if (mesh_make(&from, &desc, NULL)) fprintf(stderr, "mesh auto: no mesh of one rank\n"), exit(1);
    desc.origin = (int)(c->tp * c->cp);
    if (mesh_make(&to, &desc, NULL)) fprintf(stderr, "mesh auto: no mesh of one rank\n"), exit(1);
    src = zoo_layout(&from, 1, &n);
    dst = zoo_layout(&to, 1, &n);
    return auto_planned(s, &src, &dst, s->zoo.model.bytes);
}

/* ---- compute and memory ---- */

/* Forward, of a token: products of a layer (2 for each weight), attention's scores and their sum (4 x sequence x heads' width), the head.
   Source: Narayanan et al., SC'21 (arXiv:2104.04473), section 5.1 and appendix. */
static double auto_products(const auto_search *s) {
    const zoo_model *d = &s->zoo.model;
    double q = (double)d->heads * (double)d->head_width, k = (double)d->kv_heads * (double)d->head_width;
    double used = s->run.experts > 0 ? (double)d->top_k : 1;
    return 2 * (double)d->hidden * (2 * q + 2 * k + (double)d->mlp_matrices * (double)d->ffn * used);
}
static double auto_scores(const auto_search *s) {
    const zoo_model *d = &s->zoo.model;
    return 4 * (double)d->sequence * (double)d->heads * (double)d->head_width * (s->run.causal > 0 ? 0.5 : 1);
}
static double auto_head(const auto_search *s) {
    return 2 * (double)s->zoo.model.hidden * (double)s->zoo.model.vocabulary;
}

/* Bytes that a layer keeps of a micro-batch. With elements of 2 bytes, 4 x hidden of ffn and as many key heads: s b h (10 + 24/t + 5 a s/(h t)),
   with sp all over t. Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 4. */
static double auto_kept(const auto_search *s, const auto_choice *c, int recompute) {
    const zoo_model *d = &s->zoo.model;
    double tokens = (double)c->micro * (double)d->sequence / (double)c->cp, e = (double)d->bytes, t = (double)c->tp;
    double h = (double)d->hidden, q = (double)d->heads * (double)d->head_width,
           k = (double)d->kv_heads * (double)d->head_width;
    double used = s->run.experts > 0 ? (double)d->top_k : 1, outside = c->sp ? t : 1;
    double scores =
        s->run.flash > 0 || recompute == AUTO_SELECTIVE ? 0 : (2 * e + 1) * (double)d->heads * (double)d->sequence;
    if (recompute == AUTO_FULL) return tokens * e * h / outside;
    return tokens * ((4 * e + 2) * h / outside +
                     (e * (2 * q + 2 * k + (double)d->mlp_matrices * (double)d->ffn * used) + scores) / t);
}

/* A stage: its layers, and what it has beside. */
typedef struct auto_stage {
    double layers;
    int first, last;
    double in_flight; /* micro-batches whose activations it keeps, in parts of a chunk */
} auto_stage;

/* The kinds of stages: the first, the second, the last. Layers divide, or they do with an end's table as a layer. In flight: 1F1B min(p - r, m);
   interleaved min(2 (p - r - 1) + (v - 1) p + 1, v m) chunks. Source: Narayanan et al., section 2.2. */
static int auto_stages(const auto_search *s, const auto_choice *c, double m, auto_stage stage[3]) {
    long p = c->pp, layers = s->zoo.model.layers, v = c->chunks;
    int uneven = layers % (p * v) != 0, n = p == 1 ? 1 : p == 2 ? 2 : 3, k;
    for (k = 0; k < n; k++) {
        long r = k == 0 ? 0 : k == n - 1 ? p - 1 : 1;
        double chunks = (double)(v == 1 ? p - r : 2 * (p - r - 1) + (v - 1) * p + 1);
        stage[k].first = r == 0, stage[k].last = r == p - 1;
        stage[k].layers =
            uneven ? (double)((layers + 2) / p - (stage[k].first || stage[k].last)) : (double)(layers / p);
        stage[k].in_flight = (chunks < (double)v * m ? chunks : (double)v * m) / (double)v;
    }
    return n;
}

/* Bytes of weights, gradients and the optimizer (a master copy and two moments in f32: 12), cut as ZeRO says; and of activations. */
static void auto_memory(const auto_search *s, const auto_choice *c, const auto_table *w, const auto_stage *g,
                        double *state, double *activations) {
    const zoo_model *d = &s->zoo.model;
    double use = g->layers * w->use[AUTO_LAYER], rest = g->layers * w->rest[AUTO_LAYER], e = (double)d->bytes;
    double gradient = s->run.gradient_bytes > 0 ? s->run.gradient_bytes : e;
    double tokens = (double)c->micro * (double)d->sequence / (double)c->cp;
    if (g->first) use += w->use[AUTO_FIRST], rest += w->rest[AUTO_FIRST];
    if (g->last) use += w->use[AUTO_LAST], rest += w->rest[AUTO_LAST];
    *state = (c->zero > 2 ? rest : use) * e + (c->zero > 1 ? rest : use) * gradient + (c->zero > 0 ? rest : use) * 12;
    if (c->zero == 3) *state += 2 * w->use[AUTO_LAYER] * e;   /* the layer in use and the next, whole */
    if (c->zero > 1) *state += w->use[AUTO_LAYER] * gradient; /* a layer's gradients until they are summed */
    *activations = g->in_flight * g->layers * auto_kept(s, c, (int)c->recompute);
    if (c->recompute == AUTO_FULL) *activations += auto_kept(s, c, AUTO_NONE);
    if (g->last) *activations += tokens * (double)d->vocabulary / (double)c->tp * (e + 4); /* logits, and in f32 */
}

/* ---- time ---- */

/* A step's seconds of one way of an axis on a stage, of one micro-batch. */
static auto_moves auto_sum(const auto_table *t, int axis, int way, const auto_stage *g) {
    auto_moves m = {0, 0};
    auto_add(&m, &t->moves[axis][AUTO_LAYER][way], g->layers);
    if (g->first) auto_add(&m, &t->moves[axis][AUTO_FIRST][way], 1);
    if (g->last) auto_add(&m, &t->moves[axis][AUTO_LAST][way], 1);
    return m;
}

/* Data parallelism hides behind the compute it may run beside, but for a layer's part of it, which nothing follows. */
static double auto_exposed(double seconds, double beside, double parts) {
    double least = seconds / parts;
    return seconds - beside > least ? seconds - beside : least;
}

/* Gradients and weights of a step. Once a step: ZeRO 0 sums (beside a micro-batch's backward), 1 scatters, then gathers (beside a forward);
   2 scatters with every micro-batch; 3 gathers, too, forward and backward. */
static void auto_data(const auto_choice *c, const auto_table *w, const auto_stage *g, double m, double forward,
                      double backward, auto_result *r) {
    auto_moves gather = auto_sum(w, AUTO_DP, AUTO_FORWARD, g), sum = auto_sum(w, AUTO_DP, AUTO_BACKWARD, g);
    double sums = c->zero > 1 ? m : 1, gathers = c->zero == 3 ? 2 * m : c->zero > 0 ? 1 : 0;
    r->axis[AUTO_DP] = auto_exposed(sums * sum.seconds, sums * backward, g->layers * sums) +
                       auto_exposed(gathers * gather.seconds, c->zero == 3 ? m * (forward + backward) : forward,
                                    g->layers * (gathers > 1 ? gathers : 1));
    r->bytes[AUTO_DP] = sums * sum.bytes + gathers * gather.bytes;
}

/* The step of one kind of stage, if it were the slowest. */
static void auto_time(const auto_search *s, const auto_choice *c, const auto_table *w, const auto_table *a,
                      const auto_stage *g, const auto_moves *between, double m, auto_result *r) {
    const zoo_model *d = &s->zoo.model;
    double tokens = (double)c->micro * (double)d->sequence / (double)c->cp,
           rate = s->cluster.flops * 1e12 * s->cluster.efficiency;
    double layers = g->layers * (auto_products(s) + auto_scores(s)), head = g->last ? auto_head(s) : 0, again, once = 0;
    double forward = tokens * (layers + head) / (double)c->tp / rate, backward = 2 * forward;
    int axis;
    again = c->recompute == AUTO_FULL ? layers : c->recompute == AUTO_SELECTIVE ? g->layers * auto_scores(s) : 0;
    backward += tokens * again / (double)c->tp / rate;
    r->compute = m * (forward + backward);
    for (axis = AUTO_TP; axis <= AUTO_EP; axis++) {
        auto_moves f = auto_sum(a, axis, AUTO_FORWARD, g), b = auto_sum(a, axis, AUTO_BACKWARD, g);
        auto_stage inner = *g;
        inner.first = inner.last = 0;
        if (c->recompute == AUTO_FULL) {
            auto_moves twice = auto_sum(a, axis, AUTO_FORWARD, &inner);
            auto_add(&f, &twice, 1);
        }
        r->axis[axis] = m * (f.seconds + b.seconds);
        r->bytes[axis] = m * (f.bytes + b.bytes);
        once += f.seconds + b.seconds;
    }
    if (c->pp > 1) {
        r->axis[AUTO_PP] = m * 2 * (double)c->chunks * between->seconds;
        r->bytes[AUTO_PP] = m * 2 * (double)c->chunks * between->bytes;
        once += 2 * (double)c->chunks * between->seconds;
    } else {
        r->axis[AUTO_PP] = r->bytes[AUTO_PP] = 0;
    }
    r->bubble = (double)(c->pp - 1) / (double)c->chunks * (forward + backward + once);
    r->bubble_part = (double)(c->pp - 1) / ((double)c->chunks * m);
    auto_data(c, w, g, m, forward, backward, r);
    r->step = r->compute + r->bubble;
    for (axis = 0; axis < AUTO_AXES; axis++) r->step += r->axis[axis];
}

/* Time of the slowest kind of stage, memory of the fullest. */
static auto_result auto_predict(const auto_search *s, const auto_choice *c, const auto_table *w, const auto_table *a,
                                const auto_moves *between) {
    const zoo_model *d = &s->zoo.model;
    double m = (double)d->batch / (double)c->dp / (double)c->micro, tokens = (double)d->batch * (double)d->sequence;
    double forward = (double)d->layers * (auto_products(s) + auto_scores(s)) + auto_head(s), again;
    auto_stage stage[3];
    auto_result r, one;
    int n = auto_stages(s, c, m, stage), k;
    memset(&r, 0, sizeof r);
    memset(&one, 0, sizeof one);
    for (k = 0; k < n; k++) {
        double state, activations;
        auto_memory(s, c, w, &stage[k], &state, &activations);
        auto_time(s, c, w, a, &stage[k], between, m, &one);
        one.state = r.state, one.activations = r.activations;
        if (state + activations > r.state + r.activations)
            one.state = r.state = state, one.activations = r.activations = activations;
        if (one.step > r.step) r = one;
    }
    again = c->recompute == AUTO_FULL        ? (double)d->layers * (auto_products(s) + auto_scores(s))
            : c->recompute == AUTO_SELECTIVE ? (double)d->layers * auto_scores(s)
                                             : 0;
    r.choice = *c;
    r.micro_batches = m;
    r.tokens = tokens / r.step / (double)s->devices;
    r.model_tflops = r.tokens * 3 * forward / 1e12;
    r.hardware_tflops = r.tokens * (3 * forward + again) / 1e12;
    return r;
}

/* ---- rules ---- */

/* The values around one that do: of those that divide n. */
static void auto_nearest(char *text, size_t cap, long n, long value) {
    long below = value < n ? value : n, above = below;
    while (below > 1 && n % below) below--;
    while (above < n && n % above) above++;
    snprintf(text, cap, above != below ? "%ld or %ld" : "%ld", below, above);
}

/* A rule refuses a choice: count it, keep its first text. */
static int auto_refuse(auto_search *s, const char *rule, const char *text) {
    int i;
    for (i = 0; i < s->nrules && strcmp(s->rules[i].rule, rule); i++) {}
    if (i == AUTO_RULES) return 0;
    if (i == s->nrules) {
        s->nrules++;
        s->rules[i].times = 0;
        snprintf(s->rules[i].rule, sizeof s->rules[i].rule, "%s", rule);
        snprintf(s->rules[i].text, sizeof s->rules[i].text, "%s", text);
    }
    s->rules[i].times++;
    return 0;
}

/* Does a degree divide n? */
static int auto_divides(auto_search *s, const char *name, long value, long n, const char *of) {
    char near[64], text[200], rule[24];
    if (value > 0 && n % value == 0) return 1;
    auto_nearest(near, sizeof near, n, value);
    snprintf(text, sizeof text, "%s = %ld does not divide %s (%ld); nearest that do: %s", name, value, of, n, near);
    snprintf(rule, sizeof rule, "%s/%.16s", name, of);
    return auto_refuse(s, rule, text);
}

static int auto_tp_fits(auto_search *s, long tp) {
    const zoo_model *d = &s->zoo.model;
    long host = (long)s->cluster.devices_per_host;
    char near[64], text[200];
    if (!auto_divides(s, "tp", tp, s->devices, "the devices") || !auto_divides(s, "tp", tp, d->heads, "heads") ||
        !auto_divides(s, "tp", tp, d->kv_heads, "kv_heads") || !auto_divides(s, "tp", tp, d->ffn, "ffn"))
        return 0;
    if (host % tp == 0) return 1;
    auto_nearest(near, sizeof near, host, tp);
    snprintf(text, sizeof text, "tp = %ld does not fit within a host of %ld devices; nearest that do: %s", tp, host,
             near);
    return auto_refuse(s, "tp/host", text);
}

static int auto_cp_fits(auto_search *s, const auto_choice *c) {
    long halves =
        c->cp > 1 ? 2 * c->cp : 1; /* a rank has an early and a late part, so that a causal mask is shared evenly */
    if (!auto_divides(s, "cp", c->cp, s->devices / c->tp, "devices / tp")) return 0;
    return s->zoo.model.sequence % halves ? auto_divides(s, "2 cp", halves, s->zoo.model.sequence, "the sequence") : 1;
}

static int auto_pp_fits(auto_search *s, const auto_choice *c) {
    const zoo_model *d = &s->zoo.model;
    char near[48], more[48], text[240];
    if (!auto_divides(s, "pp", c->pp, s->devices / c->tp / c->cp, "devices / tp / cp")) return 0;
    if (d->layers % c->pp == 0 || ((d->layers + 2) % c->pp == 0 && (d->layers + 2) / c->pp > 1)) return 1;
    auto_nearest(near, sizeof near, d->layers, c->pp);
    auto_nearest(more, sizeof more, d->layers + 2, c->pp);
    snprintf(text, sizeof text,
             "pp = %ld divides neither the %ld layers nor, tables counted as layers, %ld; nearest that do: %s, or %s",
             c->pp, d->layers, d->layers + 2, near, more);
    return auto_refuse(s, "pp/layers", text);
}

static int auto_ep_fits(auto_search *s, const auto_choice *c) {
    char text[200];
    if (s->run.experts < 0)
        return c->ep == 1 ? 1 : auto_refuse(s, "ep", "ep > 1, but the model has no experts; 1 does");
    if (!auto_divides(s, "ep", c->ep, s->zoo.model.experts, "experts") ||
        !auto_divides(s, "ep", c->ep, s->devices / c->pp, "a stage's ranks"))
        return 0;
    if (auto_meshes(s, c)) return 1;
    snprintf(text, sizeof text, "ep = %ld crosses tp x cp = %ld; nearest that do not: its divisors and multiples",
             c->ep, c->tp * c->cp);
    return auto_refuse(s, "ep/crosses", text);
}

/* ---- the search ---- */

static int auto_candidates(long fixed, long n, long *list) {
    long k;
    int count = 0;
    if (fixed >= 0) list[count++] = fixed;
    for (k = 1; fixed < 0 && k <= n && count < AUTO_LIST; k++)
        if (n % k == 0) list[count++] = k;
    return count;
}

static void auto_keep(auto_search *s, const auto_result *r) {
    double bytes = r->state + r->activations, limit = (s->cluster.memory - s->cluster.reserve) * 1e9;
    const auto_choice *c = &r->choice, *b;
    s->tried++;
    if (bytes > limit) {
        if (!s->too_large++ || bytes < s->least) s->least = bytes, s->smallest = *c;
        return;
    }
    b = s->n ? &s->best[s->n - 1].choice : NULL;
    if (b && b->tp == c->tp && b->cp == c->cp && b->pp == c->pp && b->ep == c->ep) {
        if (r->step < s->best[s->n - 1].step) s->best[s->n - 1] = *r;
        return;
    }
    if (s->n == s->room) {
        s->room = s->room ? 2 * s->room : 64;
        s->best = (auto_result *)realloc(s->best, s->room * sizeof *s->best);
        if (!s->best) fprintf(stderr, "mesh auto: no memory\n"), exit(1);
    }
    s->best[s->n++] = *r;
}

/* Schedules and recomputation of a mesh, a ZeRO, a micro-batch. */
static void auto_schedules(auto_search *s, auto_choice *c, const auto_table *w, const auto_table *a,
                           const auto_moves *between) {
    long chunks[AUTO_LIST], stage, m = s->zoo.model.batch / c->dp / c->micro;
    int n, k;
    stage = s->zoo.model.layers % c->pp ? (s->zoo.model.layers + 2) / c->pp : s->zoo.model.layers / c->pp;
    n = auto_candidates(c->pp > 1 ? s->fix.chunks : 1, stage, chunks);
    for (k = 0; k < n; k++) {
        c->chunks = chunks[k];
        if (!auto_divides(s, "chunks", c->chunks, stage, "a stage's layers")) continue;
        if (c->chunks > 1 && !auto_divides(s, "pp", c->pp, m, "micro-batches, as interleaving asks,")) continue;
        for (c->recompute = AUTO_NONE; c->recompute <= AUTO_FULL; c->recompute++) {
            auto_result r;
            if (s->fix.recompute >= 0 ? c->recompute != s->fix.recompute
                                      : s->run.flash > 0 && c->recompute == AUTO_SELECTIVE)
                continue;
            r = auto_predict(s, c, w, a, between);
            auto_keep(s, &r);
        }
    }
}

/* Sequence parallelism and micro-batches of a mesh and its weights' tables [sp][whole or cut]. */
static void auto_micro(auto_search *s, auto_choice *c, auto_table weights[2][2]) {
    long micro[AUTO_LIST], share = s->zoo.model.batch / c->dp, zero;
    int n = auto_candidates(s->fix.micro, share, micro), k;
    for (c->sp = 0; c->sp < 2; c->sp++) {
        if (s->fix.sp >= 0 ? c->sp != s->fix.sp : c->sp && c->tp == 1) continue;
        if (c->sp && !auto_divides(s, "tp", c->tp, s->zoo.model.sequence / c->cp, "sequence / cp, as sp asks,"))
            continue;
        if (!c->sp && c->tp > 1 && s->run.experts > 0) {
            auto_refuse(s, "sp/experts", "experts with tp > 1 want sp = 1: else each rank of tp sends the same tokens");
            continue;
        }
        for (k = 0; k < n; k++) {
            auto_table a;
            auto_moves between = {0, 0};
            c->micro = micro[k];
            if (!auto_divides(s, "micro", c->micro, share, "a replica's sequences")) continue;
            c->zero = 0;
            if (!auto_tabulate(s, c, 0, &a)) continue;
            if (c->pp > 1) between = auto_between(s, c);
            for (zero = c->dp_shard == 1 && c->dp > 1 ? 0 : c->dp > 1; zero <= (c->dp_shard > 1 ? 3 : 0); zero++) {
                if (s->fix.zero >= 0 && zero != s->fix.zero) continue;
                c->zero = zero;
                auto_schedules(s, c, &weights[c->sp][zero > 0], &a, &between);
            }
        }
    }
}

/* All of a mesh of tp, cp, pp, ep: how dp is cut. */
static void auto_mesh(auto_search *s, auto_choice *c) {
    long shard[AUTO_LIST];
    int n, k;
    n = auto_candidates(s->fix.dp_shard, c->dp, shard);
    for (k = 0; k < n; k++) {
        auto_table weights[2][2];
        c->dp_shard = shard[k];
        if (!auto_divides(s, "dp_shard", c->dp_shard, c->dp, "dp")) continue;
        if (!auto_ep_fits(s, c)) continue;
        c->micro = 1;
        for (c->sp = 0; c->sp < 2; c->sp++)
            for (c->zero = 0; c->zero < 2; c->zero++) auto_tabulate(s, c, 1, &weights[c->sp][c->zero]);
        auto_micro(s, c, weights);
    }
}

static int auto_faster(const void *x, const void *y) {
    const auto_result *a = (const auto_result *)x, *b = (const auto_result *)y;
    return a->step < b->step ? -1 : a->step > b->step;
}

static void auto_run(auto_search *s) {
    long tp[AUTO_LIST], cp[AUTO_LIST], pp[AUTO_LIST], ep[AUTO_LIST];
    int i, j, k, l, ntp = auto_candidates(s->fix.tp, s->devices, tp), ncp, npp, nep;
    auto_choice c;
    memset(&c, 0, sizeof c);
    for (i = 0; i < ntp; i++) {
        c.tp = tp[i];
        if (!auto_tp_fits(s, c.tp)) continue;
        ncp = auto_candidates(s->fix.cp, s->devices / c.tp, cp);
        for (j = 0; j < ncp; j++) {
            c.cp = cp[j];
            if (!auto_cp_fits(s, &c)) continue;
            npp = auto_candidates(s->fix.pp, s->devices / c.tp / c.cp, pp);
            for (k = 0; k < npp; k++) {
                c.pp = pp[k];
                if (!auto_pp_fits(s, &c)) continue;
                c.dp = s->devices / c.tp / c.cp / c.pp;
                if (s->fix.dp > 0 && c.dp != s->fix.dp) continue;
                if (!auto_divides(s, "dp", c.dp, s->zoo.model.batch, "the batch")) continue;
                nep = auto_candidates(s->fix.ep >= 0 || s->run.experts > 0 ? s->fix.ep : 1, s->zoo.model.experts, ep);
                for (l = 0; l < nep; l++) c.ep = ep[l], auto_mesh(s, &c);
            }
        }
    }
    qsort(s->best, s->n, sizeof *s->best, auto_faster);
}

/* ---- printing ---- */

static const char *const auto_axes[] = {"tp", "cp", "ep", "dp", "pp"};

static void auto_print_json(const auto_result *r) {
    const auto_choice *c = &r->choice;
    int k;
    printf(
        "{\"tp\": %ld, \"cp\": %ld, \"pp\": %ld, \"ep\": %ld, \"dp\": %ld, \"dp_shard\": %ld, \"zero\": %ld, \"sp\": %ld",
        c->tp, c->cp, c->pp, c->ep, c->dp, c->dp_shard, c->zero, c->sp);
    printf(", \"micro\": %ld, \"micro_batches\": %.0f, \"chunks\": %ld, \"recompute\": %ld", c->micro, r->micro_batches,
           c->chunks, c->recompute);
    printf(", \"step\": %.9g, \"compute\": %.9g, \"bubble\": %.9g, \"bubble_part\": %.9g", r->step, r->compute,
           r->bubble, r->bubble_part);
    for (k = 0; k < AUTO_AXES; k++)
        printf(", \"%s_seconds\": %.9g, \"%s_bytes\": %.0f", auto_axes[k], r->axis[k], auto_axes[k], r->bytes[k]);
    printf(
        ", \"state\": %.0f, \"activations\": %.0f, \"tokens\": %.9g, \"model_tflops\": %.9g, \"hardware_tflops\": %.9g}",
        r->state, r->activations, r->tokens, r->model_tflops, r->hardware_tflops);
}

static void auto_print_line(const auto_result *r) {
    static const char *const recompute[] = {"none", "select", "full"};
    const auto_choice *c = &r->choice;
    printf("%3ld %3ld %3ld %3ld %4ld/%-4ld %4ld %2ld %5ld %6ld %-6s %9.3f %8.3f", c->tp, c->cp, c->pp, c->ep, c->dp,
           c->dp_shard, c->zero, c->sp, c->micro, c->chunks, recompute[c->recompute], r->step, r->compute);
    printf(" %7.3f %7.3f %7.3f %7.3f %7.3f %7.3f %6.1f %6.1f %9.1f %7.1f\n", r->axis[AUTO_TP], r->axis[AUTO_CP],
           r->axis[AUTO_EP], r->axis[AUTO_DP], r->axis[AUTO_PP], r->bubble, r->state / 1e9, r->activations / 1e9,
           r->tokens, r->model_tflops);
}

static int auto_print(auto_search *s) {
    double limit = (s->cluster.memory - s->cluster.reserve) * 1e9;
    size_t i, n = s->n < (size_t)s->top ? s->n : (size_t)s->top;
    int k;
    if (!s->n) {
        for (k = 0; k < s->nrules; k++)
            fprintf(stderr, "mesh auto: %s (%ld refused so)\n", s->rules[k].text, s->rules[k].times);
        if (s->too_large)
            fprintf(
                stderr,
                "mesh auto: nothing fits: the smallest of %.0f (tp %ld, cp %ld, pp %ld, dp %ld) needs %.1f GB, %.1f more than there are\n",
                s->too_large, s->smallest.tp, s->smallest.cp, s->smallest.pp, s->smallest.dp, s->least / 1e9,
                (s->least - limit) / 1e9);
        return 1;
    }
    if (s->json) {
        printf("{\"devices\": %ld, \"limit\": %.0f, \"tried\": %.0f, \"too_large\": %.0f, \"meshes\": %zu, \"rows\": [",
               s->devices, limit, s->tried, s->too_large, s->n);
        for (i = 0; i < n; i++) printf("%s\n ", i ? "," : ""), auto_print_json(&s->best[i]);
        printf("]}\n");
        return 0;
    }
    printf(
        "%ld devices, %.1f GB each: %.0f ways tried, %.0f of them too large; the best of %zu meshes, by seconds of a step\n",
        s->devices, limit / 1e9, s->tried, s->too_large, s->n);
    printf(
        " tp  cp  pp  ep   dp/shard zero sp micro chunks again       step  compute      tp      cp      ep      dp      pp  bubble  state   acts  tokens/s TFLOP/s\n");
    for (i = 0; i < n; i++) auto_print_line(&s->best[i]);
    printf(
        "Left out: how products' speed depends on their shapes (one efficiency for all), work bound by memory, the optimizer's own time,\n"
        "contention and rails of the network, uneven experts, stragglers, and what a bucket of many tensors saves.\n");
    return 0;
}

/* ---- arguments ---- */

static int auto_read_cluster(auto_cluster *c, const char *path) {
    static const char *const names[] = {"hosts", "devices_per_host", "memory", "flops", "efficiency", "reserve"};
    double *const at[] = {&c->hosts, &c->devices_per_host, &c->memory, &c->flops, &c->efficiency, &c->reserve};
    char line[400], name[64], value[64], all[300], *end;
    FILE *f = fopen(path, "r");
    mesh_error err;
    size_t i;
    if (!f) return wrong("auto", strerror(errno), path);
    while (fgets(line, sizeof line, f)) {
        int kind = zoo_line_read(line, name, value, all);
        if (!kind) continue;
        for (i = 0; i < 6 && strcmp(name, names[i]); i++) {}
        if (kind > 0 && i < 6) {
            *at[i] = strtod(value, &end);
            if (!*end && *at[i] >= 0 && *at[i] < 1e6) continue;
        } else if (kind > 0 && !strcmp(name, "topology")) {
            if (!mesh_topology_parse(&c->topology, value, &err)) continue;
        } else if (kind > 0 && !strcmp(name, "source")) {
            snprintf(c->source, sizeof c->source, "%s", all);
            continue;
        }
        fclose(f);
        return wrong("auto", "a line of the cluster is no NAME VALUE of those that --help lists", line);
    }
    fclose(f);
    for (i = 0; i < 5; i++)
        if (!(*at[i] > 0)) return wrong("auto", "the cluster's file says no value above 0 of", names[i]);
    if (!c->topology.nlevels) return wrong("auto", "the cluster's file says no value of", "topology");
    return c->reserve < c->memory ? 0 : wrong("auto", "the cluster's reserve is its whole memory", NULL);
}

static int auto_fix(auto_choice *fix, const char *text) {
    static const char *const names[] = {"tp",   "cp", "pp",    "ep",     "dp",       "dp_shard",
                                        "zero", "sp", "micro", "chunks", "recompute"};
    long *const at[] = {&fix->tp,   &fix->cp, &fix->pp,    &fix->ep,     &fix->dp,       &fix->dp_shard,
                        &fix->zero, &fix->sp, &fix->micro, &fix->chunks, &fix->recompute};
    char name[32];
    int n, used;
    size_t i;
    long value;
    for (; *text; text += used + (text[used] == ',')) {
        n = sscanf(text, "%31[a-z_]=%6ld%n", name, &value, &used);
        for (i = 0; n == 2 && i < 11 && strcmp(name, names[i]); i++) {}
        if (n != 2 || i == 11 || value < (i >= 6 && i != 8 && i != 9 ? 0 : 1) || (text[used] && text[used] != ','))
            return wrong("auto", "--fix takes NAME=NUMBER of those that --help lists", text);
        *at[i] = value;
    }
    return 0;
}

static void auto_close(auto_search *s) {
    size_t i;
    for (i = 0; i < AUTO_BUCKETS; i++)
        while (s->plans[i]) {
            auto_plan *next = s->plans[i]->next;
            free(s->plans[i]);
            s->plans[i] = next;
        }
    free(s->plans);
    free(s->best);
}

static int command_auto(const char *self, int argc, char **argv) {
    static auto_search s;
    const char *model = NULL, *cluster = NULL;
    long batch = 0, all;
    int i, status;
    (void)self;
    memset(&s.fix, -1, sizeof s.fix);
    s.top = 10;
    for (i = 0; i < argc; i++) {
        const char *arg = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        long *n = !strcmp(arg, "--top")       ? &s.top
                  : !strcmp(arg, "--batch")   ? &batch
                  : !strcmp(arg, "--devices") ? &s.devices
                                              : NULL;
        if (is_help(arg)) {
            fputs(auto_help, stdout);
            return 0;
        }
        if (!strcmp(arg, "--json")) {
            s.json = 1;
            continue;
        }
        if (!n && strcmp(arg, "--model") && strcmp(arg, "--cluster") && strcmp(arg, "--fix"))
            return wrong("auto", "unknown option", arg);
        if (!value) return wrong("auto", "a value is missing after", arg);
        if (n && (*n = number(value)) < 1) return wrong("auto", "no number above 0", value);
        if (!strcmp(arg, "--model")) model = value;
        if (!strcmp(arg, "--cluster")) cluster = value;
        if (!strcmp(arg, "--fix") && (status = auto_fix(&s.fix, value)) != 0) return status;
        i++;
    }
    if (!model || !cluster) return wrong("auto", "expected --model FILE and --cluster FILE", NULL);
    if ((status = zoo_read_model(&s.zoo.model, &s.run, model, "auto")) != 0 ||
        (status = auto_read_cluster(&s.cluster, cluster)) != 0)
        return status;
    if (s.run.experts <= 0) s.run.experts = -1;
    if (batch) s.zoo.model.batch = batch;
    all = (long)(s.cluster.hosts * s.cluster.devices_per_host);
    if (!s.devices) s.devices = s.run.devices > 0 ? (long)s.run.devices : all;
    if (s.devices > all) return wrong("auto", "more devices than the cluster has", NULL);
    if (!(s.plans = (auto_plan **)calloc(AUTO_BUCKETS, sizeof *s.plans))) return wrong("auto", "no memory", NULL);
    auto_run(&s);
    status = auto_print(&s);
    auto_close(&s);
    return status;
}
#endif
