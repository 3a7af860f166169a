/* mesh auto, the half that predicts: what a step of a choice takes and holds. The other half, tools/auto.h, searches. docs/auto.md says every assumption. */
#ifndef TOOL_PREDICT_H
#define TOOL_PREDICT_H

/* Times are of a device; rates in units per second, memory and reserve in bytes. */
typedef struct auto_cluster {
    double hosts, devices_per_host, memory, reserve, bandwidth, flops, efficiency;
    mesh_topology topology;
    char source[300];
} auto_cluster;

/* What can be chosen. -1: free. */
typedef struct auto_choice {
    long tp, cp, pp, ep, dp, dp_shard, zero, sp, micro, schedule, chunks, recompute;
} auto_choice;
enum { AUTO_CHOICES = sizeof(auto_choice) / sizeof(long) };
static const char *const auto_names[] = {"tp",   "cp", "pp",    "ep",       "dp",     "dp_shard",
                                         "zero", "sp", "micro", "schedule", "chunks", "recompute"};

/* The choices in that order. */
static long auto_chosen(const auto_choice *c, int i) {
    return *(const long *)(const void *)((const char *)c + (size_t)i * sizeof(long));
}

enum { AUTO_NONE, AUTO_SELECTIVE, AUTO_FULL }; /* recompute */
enum { AUTO_1F1B, AUTO_INTERLEAVED, AUTO_GPIPE, AUTO_ZB_H1, AUTO_SCHEDULES };
enum { AUTO_TP, AUTO_CP, AUTO_EP, AUTO_DP, AUTO_PP, AUTO_AXES }; /* who talks */
enum { AUTO_LAYER, AUTO_FIRST, AUTO_LAST, AUTO_PLACES }; /* a layer; what the first stage has beside; the last */
enum { AUTO_FORWARD, AUTO_BACKWARD, AUTO_WAYS };

typedef struct auto_moves {
    double seconds, bytes;
} auto_moves;

/* Of one layer and the ends: what a way of an axis moves, the elements of weights of a rank where used and at rest. */
typedef struct auto_table {
    auto_moves moves[AUTO_AXES][AUTO_PLACES][AUTO_WAYS];
    double use[AUTO_PLACES], rest[AUTO_PLACES];
} auto_table;

/* Of a micro-batch on the slowest stage: with what tp, cp and ep wait; weight: the half of backward that nobody waits for; send: a chunk's output. */
typedef struct auto_micro_batch {
    double forward, backward, weight, send;
} auto_micro_batch;

typedef struct auto_result {
    auto_choice choice;
    double step, compute, memory, bubble;     /* seconds; memory: bound by it, not by products */
    double axis[AUTO_AXES], bytes[AUTO_AXES]; /* seconds that a device waits; bytes of a rank in a step */
    double state, activations;                /* bytes of the fullest device */
    double micro_batches, in_flight, model_tflops, hardware_tflops, tokens;
    auto_micro_batch one;
} auto_result;

enum { AUTO_KEY = 600, AUTO_BUCKETS = 1 << 16, AUTO_RULES = 32, AUTO_LIST = 256 };

typedef struct auto_plan {
    struct auto_plan *next;
    auto_moves moves;
    char key[AUTO_KEY];
} auto_plan;

/* Micro-batches and chunks in flight, as a schedule's clock counts them, on its first, second and last rank. */
typedef struct auto_peaks {
    struct auto_peaks *next;
    long schedule, pp, m, chunks;
    int peak[3];
} auto_peaks;

typedef struct auto_rule {
    char rule[24], text[240]; /* the first that it refused */
    long times;
} auto_rule;

typedef struct auto_search {
    zoo_options zoo;
    zoo_table table;
    zoo_run run;
    auto_cluster cluster;
    auto_choice fix, published;
    long devices, top;
    int json;
    auto_plan **plans;
    auto_peaks *peaks;
    auto_table activations[2][AUTO_LIST]; /* [sp][micro-batch] of a mesh */
    auto_moves between[AUTO_LIST];
    auto_result *best; /* one of a mesh */
    auto_result own;   /* of the published choices: the fastest that fits, or what needs least */
    int own_found, own_fits;
    size_t n, room;
    long tried, too_large;
    double least; /* bytes of the smallest that was too large */
    auto_choice smallest;
    int nrules;
    auto_rule rules[AUTO_RULES];
} auto_search;

static double auto_limit(const auto_search *s) { return s->cluster.memory - s->cluster.reserve; }

/* ---- communication: from the planner ---- */

static double auto_gradient_bytes(const auto_search *s) {
    return s->run.gradient_bytes > 0 ? s->run.gradient_bytes : (double)s->zoo.model.bytes;
}

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

static int auto_key(char *key, const mesh_layout *from, const mesh_layout *to, long bytes) {
    char a[200], b[200];
    mesh__text t = mesh__text_on(key, AUTO_KEY);
    int i;
    mesh_spec_format(&from->spec, from->on, a, sizeof a);
    mesh_spec_format(&to->spec, to->on, b, sizeof b);
    mesh__put(&t, "%l|%s|%s|%d", (int64_t)bytes, a, b, to->on->origin);
    for (i = 0; i < from->on->nmodes; i++) mesh__put(&t, "|%d:%d", from->on->mode[i].shape, from->on->mode[i].stride);
    for (i = 0; i < from->ndim; i++) mesh__put(&t, "|%l", from->shape[i]);
    return t.len < AUTO_KEY;
}

static auto_moves auto_planned(auto_search *s, const mesh_layout *from, const mesh_layout *to, long bytes) {
    static mesh_plan plan;
    mesh_plan_desc d = MESH_ZERO;
    mesh_error err;
    char key[AUTO_KEY];
    auto_plan *p;
    uint64_t hash = 0;
    size_t i;
    if (!auto_key(key, from, to, bytes))
        fprintf(stderr, "mesh auto: layouts beyond %d bytes of text\n", AUTO_KEY), exit(1);
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

static int auto_copies(const mesh_place *p) { return p->kind == MESH_REPLICATE || p->kind == MESH_INVARIANT; }

/* From one layout to another, as the planner has it on the axes that change: copies stay copies, each for itself. */
static auto_moves auto_way(auto_search *s, const mesh_layout *from, const mesh_layout *to, long bytes) {
    auto_moves none = {0, 0};
    mesh a, b;
    mesh_layout src, dst;
    unsigned keep = 0;
    int i, moves = 0;
    for (i = 0; i < from->on->naxes; i++) {
        const mesh_place *x = &from->spec.axis[i], *y = &to->spec.axis[i];
        if (from->on->axis[i].size == 1) continue;
        if (auto_copies(x) && auto_copies(y)) continue;
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

/* ---- of a layer's activations, and its weights ---- */

/* How often a row of the table of one layer is in a place. Of the norms one is behind the last layer. */
static double auto_times(const zoo_tensor *r, int place) {
    int norm = !strcmp(r->name, "norm") || !strcmp(r->name, "weight norms");
    int first = !strcmp(r->name, "token table") || !strcmp(r->name, "embedding");
    int last = !strcmp(r->name, "weight head") || !strcmp(r->name, "logits") || !strcmp(r->name, "loss, of rows");
    if (!strcmp(r->name, "loss")) return 0; /* a number once a step */
    if (first || last) return place == (first ? AUTO_FIRST : AUTO_LAST) ? r->backward : 0;
    return place == AUTO_LAYER ? r->backward - norm : place == AUTO_LAST ? norm : 0;
}

/* Forward from rest to use, backward from the gradient of use to that of rest. */
static void auto_both_ways(auto_search *s, const mesh_layout *rest, const mesh_layout *use, long gradient,
                           auto_moves moves[AUTO_WAYS]) {
    mesh_layout grad_use = *use, grad_rest = *rest;
    mesh_error err;
    if (mesh_spec_gradient(&grad_use.spec, &use->spec, &err) || mesh_spec_gradient(&grad_rest.spec, &rest->spec, &err))
        fprintf(stderr, "mesh auto: %s\n", err.text), exit(1);
    moves[AUTO_FORWARD] = auto_way(s, rest, use, s->zoo.model.bytes);
    moves[AUTO_BACKWARD] = auto_way(s, &grad_use, &grad_rest, gradient);
}

static void auto_activation(auto_search *s, const zoo_tensor *r, auto_table *t) {
    int axis = !strcmp(r->name, "k, v") ? AUTO_CP : AUTO_TP, place, way;
    auto_moves moves[AUTO_WAYS];
    auto_both_ways(s, &r->rest, &r->use, s->zoo.model.bytes, moves);
    for (place = 0; place < AUTO_PLACES; place++)
        for (way = 0; way < AUTO_WAYS; way++) auto_add(&t->moves[axis][place][way], &moves[way], auto_times(r, place));
}

/* A layout with all elements in a row, n of them, what tp or ep cuts where a weight is used being the outer cut: as data parallelism cuts weights
   (whole heads over many ranks would leave ranks with none). */
static mesh_layout auto_flat(const mesh_layout *l, const mesh_layout *use, int64_t n) {
    mesh_layout r = zoo_layout(l->on, 1, &n);
    int i, inner;
    for (inner = 0; inner < 2; inner++)
        for (i = 0; i < l->on->naxes; i++) {
            const mesh_place *place = &l->spec.axis[i];
            int cut = place->kind == MESH_SHARD;
            if ((cut && use->spec.axis[i].kind != MESH_SHARD) == inner)
                zoo_set(&r, l->on->axis[i].name, cut ? mesh_shard(0) : *place);
        }
    return r;
}

/* Do two weights lie alike, so that they travel as one? */
static int auto_alike(const zoo_tensor *a, const zoo_tensor *b) {
    mesh_layout x[4];
    int64_t n = 1;
    if (a->use.on != b->use.on) return 0;
    x[0] = auto_flat(&a->use, &a->use, n), x[1] = auto_flat(&b->use, &b->use, n);
    x[2] = auto_flat(&a->rest, &a->use, n), x[3] = auto_flat(&b->rest, &b->use, n);
    return mesh_spec_equal(&x[0].spec, &x[1].spec) && mesh_spec_equal(&x[2].spec, &x[3].spec);
}

/* The weights of a place: those that lie alike, in one bucket. done: of the table's rows. */
static void auto_buckets(auto_search *s, int place, auto_table *t) {
    int done[ZOO_TENSORS] = {0}, i, k, d, way;
    for (i = 0; i < s->table.n; i++) {
        const zoo_tensor *r = &s->table.row[i];
        auto_moves moves[AUTO_WAYS];
        mesh_layout use, rest;
        int64_t n = 0;
        for (k = i; k < s->table.n; k++) {
            const zoo_tensor *other = &s->table.row[k];
            int64_t elements = (int64_t)auto_times(other, place);
            if (done[k] || !auto_is_weight(other) || !elements || !auto_is_weight(r) || !auto_alike(r, other)) continue;
            for (d = 0; d < other->use.ndim; d++) elements *= other->use.shape[d];
            n += elements;
            done[k] = 1;
        }
        if (!n) continue;
        use = auto_flat(&r->use, &r->use, n), rest = auto_flat(&r->rest, &r->use, n);
        auto_both_ways(s, &rest, &use, (long)auto_gradient_bytes(s), moves);
        for (way = 0; way < AUTO_WAYS; way++) auto_add(&t->moves[AUTO_DP][place][way], &moves[way], 1);
        t->use[place] += auto_elements(&use);
        t->rest[place] += auto_elements(&rest);
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
    for (i = 0; !weights && i < s->table.n; i++)
        if (!auto_is_weight(&s->table.row[i])) auto_activation(s, &s->table.row[i], t);
    for (i = 0; weights && i < AUTO_PLACES; i++) auto_buckets(s, i, t);
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

/* ---- what a layer computes, touches and keeps ---- */

static double auto_tokens(const auto_search *s, const auto_choice *c) {
    return (double)c->micro * (double)s->zoo.model.sequence / (double)c->cp;
}

static double auto_ffn(const auto_search *s) {
    return (double)s->zoo.model.ffn * (s->run.experts > 0 ? (double)s->zoo.model.top_k : 1);
}

/* Forward, of a token: products of a layer (2 for each weight), attention's scores and their sum (4 x sequence x heads' width), the head.
   Source: Narayanan et al., SC'21 (arXiv:2104.04473), section 5.1 and appendix. */
static double auto_products(const auto_search *s) {
    const zoo_model *d = &s->zoo.model;
    double q = (double)d->heads * (double)d->head_width, k = (double)d->kv_heads * (double)d->head_width;
    return 2 * (double)d->hidden * (2 * q + 2 * k + (double)d->mlp_matrices * auto_ffn(s));
}
static double auto_scores(const auto_search *s) {
    const zoo_model *d = &s->zoo.model;
    return 4 * (double)d->sequence * (double)d->heads * (double)d->head_width * (s->run.causal > 0 ? 0.5 : 1);
}
static double auto_head(const auto_search *s) {
    return 2 * (double)s->zoo.model.hidden * (double)s->zoo.model.vocabulary;
}

/* Bytes that the forward pass of a layer reads and writes for a token beside its products, each kernel fused with its neighbours of one element: two
   norms (read, write), two residual sums (read two, write one) with their dropout's masks, the activation function; and of scores, unless flash
   keeps them on chip, softmax (read, write) and dropout (read, write, mask). Backward: twice that. */
static int auto_drops(const auto_search *s) { return s->run.dropout != 0; }
static double auto_touched_scores(const auto_search *s) {
    double e = (double)s->zoo.model.bytes, of = auto_drops(s) ? 4 * e + 1 : 2 * e;
    return s->run.flash > 0 ? 0 : of * (double)s->zoo.model.heads * (double)s->zoo.model.sequence;
}
static double auto_touched(const auto_search *s, const auto_choice *c) {
    double e = (double)s->zoo.model.bytes, t = (double)c->tp;
    return (10 * e + (auto_drops(s) ? 2 : 0)) * (double)s->zoo.model.hidden / (c->sp ? t : 1) +
           (e * (double)s->zoo.model.mlp_matrices * auto_ffn(s) + auto_touched_scores(s)) / t;
}

/* Bytes that a layer keeps of a token. With elements of 2 bytes, 4 x hidden of ffn and as many key heads: s b h (10 + 24/t + 5 a s/(h t)),
   with sp all over t; without dropout no masks and one copy of scores. Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 4. */
static double auto_kept(const auto_search *s, const auto_choice *c, int recompute) {
    const zoo_model *d = &s->zoo.model;
    double e = (double)d->bytes, t = (double)c->tp, h = (double)d->hidden, outside = c->sp ? t : 1;
    double q = (double)d->heads * (double)d->head_width, k = (double)d->kv_heads * (double)d->head_width;
    double mask = auto_drops(s) ? 2 : 0, of = auto_drops(s) ? 2 * e + 1 : e;
    double scores = s->run.flash > 0 || recompute == AUTO_SELECTIVE ? 0 : of * (double)d->heads * (double)d->sequence;
    if (recompute == AUTO_FULL) return e * h / outside;
    return (4 * e + mask) * h / outside + (e * (2 * q + 2 * k + (double)d->mlp_matrices * auto_ffn(s)) + scores) / t;
}

/* ---- stages ---- */

typedef struct auto_stage {
    double layers, in_flight; /* in_flight: of micro-batches whose activations it keeps, in parts of a chunk */
    int first, last;
} auto_stage;

/* What a schedule has in flight, by its own clock. Beyond 2 p micro-batches none has more but gpipe, which by its definition has all. */
static const int *auto_peaks_of(auto_search *s, const auto_choice *c, long m) {
    auto_peaks *k;
    mesh_schedule schedule;
    mesh_schedule_report report = MESH_ZERO;
    mesh_error err;
    size_t n;
    void *memory;
    int *peaks;
    long p = c->pp;
    if (m > 2 * p) m = 2 * p;
    for (k = s->peaks; k; k = k->next)
        if (k->schedule == c->schedule && k->pp == p && k->m == m && k->chunks == c->chunks) return k->peak;
    n = mesh_schedule_bytes((int)p, (int)m, (int)c->chunks);
    memory = malloc(n);
    report.peaks = peaks = (int *)malloc((size_t)p * sizeof *peaks);
    k = (auto_peaks *)malloc(sizeof *k);
    if (!memory || !peaks || !k) fprintf(stderr, "mesh auto: no memory\n"), exit(1);
    if (mesh_schedule_make(&schedule, zoo_schedules[c->schedule], (int)p, (int)m, (int)c->chunks, memory, n, &err) ||
        mesh_schedule_time(&schedule, NULL, &report, &err))
        fprintf(stderr, "mesh auto: %s\n", err.text), exit(1);
    k->schedule = c->schedule, k->pp = p, k->m = m, k->chunks = c->chunks;
    k->peak[0] = peaks[0], k->peak[1] = peaks[p > 1], k->peak[2] = peaks[p - 1];
    k->next = s->peaks;
    s->peaks = k;
    free(memory), free(peaks);
    return k->peak;
}

/* The kinds of stages: the first, the second, the last. Layers divide, or they do with each end's table as a layer. */
static int auto_stages(auto_search *s, const auto_choice *c, double m, auto_stage stage[3]) {
    long p = c->pp, layers = s->zoo.model.layers;
    int uneven = layers % (p * c->chunks) != 0, n = p == 1 ? 1 : p == 2 ? 2 : 3, k;
    const int *peak = c->schedule == AUTO_GPIPE ? NULL : auto_peaks_of(s, c, (long)m);
    for (k = 0; k < n; k++) {
        stage[k].first = k == 0, stage[k].last = k == n - 1;
        stage[k].layers = uneven ? (double)((layers + 2) / p - stage[k].first - stage[k].last) : (double)(layers / p);
        stage[k].in_flight = peak ? (double)peak[k == 0 ? 0 : k == n - 1 ? 2 : 1] / (double)c->chunks : m;
    }
    return n;
}

/* Elements of a stage's weights on a rank. */
static double auto_weights(const double of[AUTO_PLACES], const auto_stage *g) {
    return g->layers * of[AUTO_LAYER] + (g->first ? of[AUTO_FIRST] : 0) + (g->last ? of[AUTO_LAST] : 0);
}

/* Bytes of weights, gradients and the optimizer (a master copy and two moments in f32: 12), cut as ZeRO says; and of activations. */
static void auto_memory(const auto_search *s, const auto_choice *c, const auto_table *w, const auto_stage *g,
                        auto_result *r) {
    const zoo_model *d = &s->zoo.model;
    double use = auto_weights(w->use, g), rest = auto_weights(w->rest, g), e = (double)d->bytes, tokens;
    double gradient = auto_gradient_bytes(s);
    tokens = auto_tokens(s, c);
    r->state = (c->zero > 2 ? rest : use) * e + (c->zero > 1 ? rest : use) * gradient + (c->zero > 0 ? rest : use) * 12;
    if (c->zero == 3) r->state += 2 * w->use[AUTO_LAYER] * e;   /* the layer in use and the next, whole */
    if (c->zero > 1) r->state += w->use[AUTO_LAYER] * gradient; /* a layer's gradients until they are summed */
    r->in_flight = g->in_flight;
    r->activations = g->in_flight * g->layers * tokens * auto_kept(s, c, (int)c->recompute);
    if (c->recompute != AUTO_NONE) /* what of the layer at work is computed again */
        r->activations += tokens * (auto_kept(s, c, AUTO_NONE) - auto_kept(s, c, (int)c->recompute));
    if (g->last) r->activations += tokens * (double)d->vocabulary / (double)c->tp * (e + 4); /* logits, and in f32 */
}

/* ---- time ---- */

/* A micro-batch on a stage: seconds of products, of memory, and of each axis, forward and backward. */
typedef struct auto_work {
    double compute[AUTO_WAYS], memory[AUTO_WAYS], weight;
    auto_moves axis[AUTO_AXES][AUTO_WAYS];
} auto_work;

static auto_moves auto_sum(const auto_table *t, int axis, int way, const auto_stage *g) {
    auto_moves m = {0, 0};
    auto_add(&m, &t->moves[axis][AUTO_LAYER][way], g->layers);
    if (g->first) auto_add(&m, &t->moves[axis][AUTO_FIRST][way], 1);
    if (g->last) auto_add(&m, &t->moves[axis][AUTO_LAST][way], 1);
    return m;
}

/* Recomputation is a part of the backward pass: a layer's products, its touching and its communication again, or those of scores alone. */
static void auto_work_of(const auto_search *s, const auto_choice *c, const auto_table *w, const auto_table *a,
                         const auto_stage *g, double m, auto_work *o) {
    double tokens = auto_tokens(s, c), rate = s->cluster.flops * s->cluster.efficiency * (double)c->tp;
    double layers = g->layers * (auto_products(s) + auto_scores(s)), head = g->last ? auto_head(s) : 0;
    double touched = g->layers * auto_touched(s, c), e = (double)s->zoo.model.bytes;
    double logits = g->last ? (double)s->zoo.model.vocabulary / (double)c->tp : 0;
    /* gradients of one more micro-batch are added to what there is */
    double added = m > 1 ? 2 * auto_gradient_bytes(s) * auto_weights(w->use, g) : 0;
    auto_stage inner = *g;
    int axis;
    inner.first = inner.last = 0;
    o->compute[AUTO_FORWARD] = tokens * (layers + head) / rate;
    o->compute[AUTO_BACKWARD] = 2 * o->compute[AUTO_FORWARD];
    o->weight = tokens * (g->layers * auto_products(s) + head) / rate;
    o->memory[AUTO_FORWARD] = tokens * (touched + logits * (e + 8)) / s->cluster.bandwidth;
    o->memory[AUTO_BACKWARD] = (tokens * (2 * touched + logits * (e + 4)) + added) / s->cluster.bandwidth;
    for (axis = AUTO_TP; axis <= AUTO_EP; axis++) {
        o->axis[axis][AUTO_FORWARD] = auto_sum(a, axis, AUTO_FORWARD, g);
        o->axis[axis][AUTO_BACKWARD] = auto_sum(a, axis, AUTO_BACKWARD, g);
        if (c->recompute == AUTO_FULL) {
            auto_moves twice = auto_sum(a, axis, AUTO_FORWARD, &inner);
            auto_add(&o->axis[axis][AUTO_BACKWARD], &twice, 1);
        }
    }
    if (c->recompute == AUTO_FULL) {
        o->compute[AUTO_BACKWARD] += tokens * layers / rate;
        o->memory[AUTO_BACKWARD] += tokens * touched / s->cluster.bandwidth;
    } else if (c->recompute == AUTO_SELECTIVE) {
        o->compute[AUTO_BACKWARD] += tokens * g->layers * auto_scores(s) / rate;
        o->memory[AUTO_BACKWARD] += tokens * g->layers * auto_touched_scores(s) / (double)c->tp / s->cluster.bandwidth;
    }
}

/* The bubble of a schedule whose stages all take the same. Sources: mesh/pipeline.h's table; zb-h1: Qi et al. 2023, table 1. */
static double auto_bubble(const auto_choice *c, const auto_micro_batch *one, double m) {
    double p = (double)c->pp, both = one->forward + one->backward;
    if (c->schedule == AUTO_ZB_H1) return (p - 1 > 2 * p - 1 - m ? p - 1 : 2 * p - 1 - m) * (both - 2 * one->weight);
    return (p - 1) * both / (double)c->chunks;
}

/* What a chunk's sends, forward and backward, take longer than what is computed meanwhile. */
static double auto_over(const auto_micro_batch *one, double v) {
    double forward = one->send - one->forward / v, backward = one->send - one->backward / v;
    return (forward > 0 ? forward : 0) + (backward > 0 ? backward : 0);
}

/* Sends that nothing hides: of the fill and the drain; with 1f1b, where each rank has one micro-batch fewer in flight than the one before, of the rounds
   between; and what a link takes longer than what hides it. Fitted to the clock of mesh schedule, which
   tests/auto.py compares: to 2 % where a send is shorter than a chunk's forward, to 10 % beyond. */
static double auto_sends(const auto_choice *c, const auto_micro_batch *one, double m) {
    double p = (double)c->pp, v = (double)c->chunks, send = one->send, over, rounds;
    switch (c->schedule) {
    case AUTO_1F1B:
        return send * (2 * (p - 1) * m / p + 2 * (p - 2));
    case AUTO_INTERLEAVED:
        return send * 2 * (p * v - 1) + m * (v - 1) * auto_over(one, v);
    case AUTO_ZB_H1:
        over = 2 * send - one->weight, rounds = (p - 1) * m / p - p;
        return send * 4 * (p - 1) + (over > 0 && rounds > 0 ? rounds * over : 0);
    default:
        return send * 2 * (p - 1) + m * auto_over(one, 1);
    }
}

/* What hides behind the compute beside it, but for a layer's part of it, which nothing follows. */
static double auto_exposed(double seconds, double beside, double parts) {
    double least = seconds / parts;
    return seconds - beside > least ? seconds - beside : least;
}

/* Gradients and weights of a step. Once a step: ZeRO 0 sums (beside the last micro-batch's backward), 1 scatters, then gathers (beside the first's
   forward); 2 scatters with every micro-batch; 3 gathers, too, forward and backward. Then the optimizer reads the gradient, reads and writes 12
   bytes of an element, writes the weight. */
static void auto_data(const auto_search *s, const auto_choice *c, const auto_table *w, const auto_stage *g, double m,
                      auto_result *r) {
    auto_moves gather = auto_sum(w, AUTO_DP, AUTO_FORWARD, g), sum = auto_sum(w, AUTO_DP, AUTO_BACKWARD, g);
    double sums = c->zero > 1 ? m : 1, gathers = c->zero == 3 ? 2 * m : c->zero > 0 ? 1 : 0;
    double forward = r->one.forward, backward = r->one.backward;
    r->axis[AUTO_DP] = auto_exposed(sums * sum.seconds, sums * backward, g->layers * sums) +
                       auto_exposed(gathers * gather.seconds, c->zero == 3 ? m * (forward + backward) : forward,
                                    g->layers * (gathers > 1 ? gathers : 1));
    r->bytes[AUTO_DP] = sums * sum.bytes + gathers * gather.bytes;
    r->memory += auto_weights(c->zero > 0 ? w->rest : w->use, g) *
                 (auto_gradient_bytes(s) + 24 + (double)s->zoo.model.bytes) / s->cluster.bandwidth;
}

/* The step, if all stages were as this one. */
static void auto_time(const auto_search *s, const auto_choice *c, const auto_table *w, const auto_table *a,
                      const auto_stage *g, const auto_moves *between, double m, auto_result *r) {
    auto_work o;
    double v = (double)c->chunks;
    int axis;
    auto_work_of(s, c, w, a, g, m, &o);
    r->compute = m * (o.compute[AUTO_FORWARD] + o.compute[AUTO_BACKWARD]);
    r->memory = m * (o.memory[AUTO_FORWARD] + o.memory[AUTO_BACKWARD]);
    r->one.forward = o.compute[AUTO_FORWARD] + o.memory[AUTO_FORWARD];
    r->one.backward = o.compute[AUTO_BACKWARD] + o.memory[AUTO_BACKWARD];
    r->one.weight = o.weight, r->one.send = c->pp > 1 ? between->seconds : 0;
    for (axis = AUTO_TP; axis <= AUTO_EP; axis++) {
        const auto_moves *f = &o.axis[axis][AUTO_FORWARD], *b = &o.axis[axis][AUTO_BACKWARD];
        r->axis[axis] = m * (f->seconds + b->seconds);
        r->bytes[axis] = m * (f->bytes + b->bytes);
        r->one.forward += f->seconds;
        r->one.backward += b->seconds;
    }
    r->axis[AUTO_PP] = c->pp > 1 ? auto_sends(c, &r->one, m) : 0;
    r->bytes[AUTO_PP] = c->pp > 1 ? m * 2 * v * between->bytes : 0;
    r->bubble = auto_bubble(c, &r->one, m);
    auto_data(s, c, w, g, m, r);
    r->step = r->compute + r->memory + r->bubble;
    for (axis = 0; axis < AUTO_AXES; axis++) r->step += r->axis[axis];
}

/* Time of the slowest kind of stage, memory of the fullest. */
static auto_result auto_predict(auto_search *s, const auto_choice *c, const auto_table *w, const auto_table *a,
                                const auto_moves *between) {
    const zoo_model *d = &s->zoo.model;
    double m = (double)d->batch / (double)c->dp / (double)c->micro, tokens = (double)d->batch * (double)d->sequence;
    double layers = (double)d->layers * (auto_products(s) + auto_scores(s)), again;
    auto_stage stage[3];
    auto_result slow = MESH_ZERO, full = MESH_ZERO, r = MESH_ZERO;
    int n = auto_stages(s, c, m, stage), k;
    for (k = 0; k < n; k++) {
        auto_memory(s, c, w, &stage[k], &r);
        auto_time(s, c, w, a, &stage[k], between, m, &r);
        if (r.step > slow.step) slow = r;
        if (r.state + r.activations > full.state + full.activations) full = r;
    }
    r = slow;
    r.state = full.state, r.activations = full.activations, r.in_flight = full.in_flight;
    again = c->recompute == AUTO_FULL        ? layers
            : c->recompute == AUTO_SELECTIVE ? (double)d->layers * auto_scores(s)
                                             : 0;
    r.choice = *c;
    r.micro_batches = m;
    r.tokens = tokens / r.step / (double)s->devices;
    r.model_tflops = r.tokens * 3 * (layers + auto_head(s)) / 1e12;
    r.hardware_tflops = r.model_tflops + r.tokens * again / 1e12;
    return r;
}

#endif
