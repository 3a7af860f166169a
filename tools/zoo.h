/* mesh zoo: parallelisms as tables of layouts: what lies where, what moves in a step, forward and backward. Needs no ranks. */
#ifndef TOOL_ZOO_H
#define TOOL_ZOO_H

static const char zoo_help[] =
    "usage: mesh zoo [NAME] --mesh dp=4,tp=4 [--model FILE] [options]\n\n"
    "A parallelism is a table of layouts. For a transformer block on a mesh this prints each tensor's layout at rest and where it\n"
    "is used; what that makes a step move, forward and backward (the backward pass of a redistribution is the redistribution\n"
    "between the gradients' layouts), with bytes of the worst rank from the planner. Each local computation of the table is checked.\n\n"
    "  NAME        what the mesh's axes are for (default: all)\n"
    "    dp        weights on every rank, gradients summed            axes dp, or dp_replicate and dp_shard\n"
    "    zero1 zero2 zero3 (fsdp)   weights in parts: gathered once a step (1, 2), or for each use (3)\n"
    "    hsdp      zero3 over dp_shard, copies over dp_replicate\n"
    "    tp        column and row linears, vocabulary in parts        axis tp\n"
    "    sp        tp, and the sequence in parts between them          axis tp\n"
    "    ulysses   the sequence in parts, heads in attention           axis sp\n"
    "    cp        keys and values gathered for the own queries         axis cp\n"
    "    ring      the same, keys and values travel in a ring           axis cp\n"
    "    pp        stages: layers in parts                              axis pp\n"
    "    ep        experts in parts, on a mesh that does not factor into the other: --ep N\n"
    "    all       every axis of the mesh, with --sp and --zero\n"
    "  --sp --zero 0..3 --ring --ep N     with `all`\n"
    "  --model FILE   lines of NAME VALUE: layers hidden ffn heads kv_heads head_width vocabulary sequence batch micro\n"
    "                 experts top_k bytes, mlp_matrices (2, or 3 where it is gated); what mesh auto reads beside is let be. Not said:\n"
    "                 kv_heads are heads, head_width is hidden / heads, ffn 4 hidden, all else GPT-2's\n"
    "  --topology TEXT    as mesh plan\n"
    "  --json         the same for programs\n";

typedef struct zoo_model {
    long layers, hidden, ffn, heads, kv_heads, head_width, vocabulary, sequence, batch, micro, experts, top_k, bytes,
        mlp_matrices;
} zoo_model;

/* What a model's file may say beside: how it is computed, and a run that was published. Below 0: not said. */
typedef struct zoo_run {
    double experts; /* the file names experts: layers have them in place of the mlp */
    double flash, causal, dropout, gradient_bytes;
    double devices, tp, cp, pp, dp, ep, zero, sp, recompute, micro, schedule, chunks; /* schedule: of zoo_schedules */
    double tflops, counts_recompute;
    char source[300];
} zoo_run;

typedef struct zoo_options {
    int zero, sp, ring, json;
    long ep;
    const char *name, *mesh_text;
    const mesh_topology *topology;
    mesh m;      /* of one stage */
    mesh sparse; /* of experts: efsdp, ep */
    long pp;
    zoo_model model;
    double forward, backward; /* bytes in all */
} zoo_options;

enum { ZOO_TENSORS = 40 };

/* The stages that have a tensor. */
typedef enum zoo_end { ZOO_EVERY, ZOO_FIRST, ZOO_LAST } zoo_end;

/* A row: a tensor, where it rests and where it is used. times: how often a step moves it forward, and backward. ring: 0, or the ranks of one along
   which its parts travel; back they travel again, and then their gradients, which end where they began. */
typedef struct zoo_tensor {
    const char *name;
    mesh_layout rest, use;
    double forward, backward;
    int ring, again; /* again: gathered once more going back */
    zoo_end end;
} zoo_tensor;

typedef struct zoo_table {
    zoo_options *o;
    zoo_tensor row[ZOO_TENSORS];
    int n, checked;
} zoo_table;

/* ---- axes: what they are for ---- */

static const char *const zoo_data_axes[] = {"dp", "dp_replicate", "dp_shard"};

static int zoo_has(const mesh *m, const char *axis) { return mesh_axis_find(m, axis) >= 0; }

/* Give an axis a place, if the mesh has it. */
static void zoo_set(mesh_layout *l, const char *axis, mesh_place place) {
    mesh_error err;
    if (zoo_has(l->on, axis) && mesh_layout_set(l, axis, place, &err)) fprintf(stderr, "mesh zoo: %s\n", err.text);
}

static mesh_layout zoo_layout(const mesh *m, int ndim, const int64_t *shape) {
    mesh_layout l;
    mesh_error err;
    if (mesh_layout_make(&l, m, NULL, ndim, shape, &err)) fprintf(stderr, "mesh zoo: %s\n", err.text), exit(1);
    return l;
}

/* An activation: its batch over the data axes, its sequence (dim 1) over cp and sp; along tp a place. */
static mesh_layout zoo_activation(const zoo_options *o, int ndim, const int64_t *shape, mesh_place tp) {
    mesh_layout l = zoo_layout(&o->m, ndim, shape);
    size_t i;
    for (i = 0; i < 3; i++) zoo_set(&l, zoo_data_axes[i], mesh_shard(0));
    if (ndim > 1) zoo_set(&l, "cp", mesh_shard(1)), zoo_set(&l, "sp", mesh_shard(1));
    zoo_set(&l, "tp", tp);
    return l;
}

/* A weight where it is used: replicated but along tp. */
static mesh_layout zoo_weight(const zoo_options *o, int ndim, const int64_t *shape, mesh_place tp) {
    mesh_layout l = zoo_layout(&o->m, ndim, shape);
    zoo_set(&l, "tp", tp);
    return l;
}

/* Does this axis cut weights at rest? */
static int zoo_cuts(const zoo_options *o, const char *axis) {
    return o->zero > 0 && (!strcmp(axis, "dp_shard") || !strcmp(axis, "dp"));
}

/* The dim that they cut: the first that comes out even. */
static int zoo_cut_dim(const zoo_options *o, const mesh_layout *use) {
    int d, i;
    for (d = 0; d < use->ndim; d++) {
        int64_t parts = 1;
        for (i = 0; i < use->on->naxes; i++)
            if (zoo_cuts(o, use->on->axis[i].name) ||
                (use->spec.axis[i].kind == MESH_SHARD && use->spec.axis[i].dim == d))
                parts *= use->on->axis[i].size;
        if (use->shape[d] % parts == 0) return d;
    }
    return 0;
}

/* Where it rests: whole on every rank, its gradient too; or in parts over the data axes that cut (after tp). */
static mesh_layout zoo_at_rest(const zoo_options *o, const mesh_layout *use) {
    mesh_layout l = *use;
    int i, dim = zoo_cut_dim(o, use);
    for (i = 0; i < l.on->naxes; i++) {
        const char *axis = l.on->axis[i].name;
        if (!strcmp(axis, "tp") && l.spec.axis[i].kind == MESH_SHARD) continue;
        zoo_set(&l, axis, zoo_cuts(o, axis) ? mesh_shard(dim) : mesh_invariant());
    }
    return l;
}

/* ---- rows ---- */

static zoo_tensor *zoo_row(zoo_table *t, const char *name, const mesh_layout *rest, const mesh_layout *use,
                           double times) {
    zoo_tensor *r = &t->row[t->n++];
    memset(r, 0, sizeof *r);
    r->name = name;
    r->rest = *rest;
    r->use = use ? *use : *rest;
    r->forward = r->backward = times;
    return r;
}

static const mesh_layout *zoo_weight_row(zoo_table *t, const char *name, int ndim, const int64_t *shape, mesh_place tp,
                                         double times) {
    mesh_layout use = zoo_weight(t->o, ndim, shape, tp), rest = zoo_at_rest(t->o, &use);
    zoo_tensor *r = zoo_row(t, name, &rest, &use, times);
    r->again = t->o->zero == 3;
    return &r->use;
}

/* The row made last is of one end of the pipeline alone. */
static void zoo_row_at(zoo_table *t, zoo_end end) { t->row[t->n - 1].end = end; }

/* What a computation makes of operands where they are used, as a row that is used otherwise. Where it is wrong that is told, and all ends. */
static const mesh_layout *zoo_made(zoo_table *t, const char *name, mesh_local_kind kind, const char *letters,
                                   const mesh_layout *a, const mesh_layout *b, const mesh_layout *c,
                                   const mesh_layout *use, double times) {
    const mesh_layout *operand[3];
    mesh_layout made;
    mesh_error err;
    int n = 1 + (b != NULL) + (c != NULL);
    operand[0] = a, operand[1] = b, operand[2] = c;
    if (mesh_layout_local(&made, kind, letters, operand, n, &err)) {
        fprintf(stderr, "mesh zoo: %s: %s\n", name, err.text);
        exit(1);
    }
    t->checked++;
    return &zoo_row(t, name, &made, use, times)->use;
}

/* Layers of a stage: where pp does not divide them, the tables count as one layer each. */
static long zoo_stage_layers(const zoo_model *d, long pp) { return (d->layers + (d->layers % pp ? 2 : 0)) / pp; }

/* The values around one that do: of those up to `most` that divide n. */
static void zoo_nearest(char *text, size_t cap, long n, long most, long value) {
    long below = value < most ? value : most, above = below;
    while (below > 1 && n % below) below--;
    while (above <= most && n % above) above++;
    snprintf(text, cap, above != below && above <= most ? "%ld or %ld" : "%ld", below, above);
}

/* Can the layers be cut into so many stages? Why not goes to text. */
static int zoo_pp_fits(const zoo_model *d, long pp, char *text, size_t cap) {
    char near[48], more[48];
    if (d->layers % pp == 0 || ((d->layers + 2) % pp == 0 && (d->layers + 2) / pp > 1)) return 1;
    zoo_nearest(near, sizeof near, d->layers, d->layers, pp);
    zoo_nearest(more, sizeof more, d->layers + 2, d->layers + 1, pp); /* a stage of a table alone is none */
    snprintf(
        text, cap,
        "pp = %ld divides neither the %ld layers nor, tables counted as layers, %ld in stages of 2 or more; nearest "
        "that do: %s, or %s",
        pp, d->layers, d->layers + 2, near, more);
    return 0;
}

/* ---- the block ---- */

static void zoo_attention(zoo_table *t, const mesh_layout *h, double layers) {
    const zoo_options *o = t->o;
    const zoo_model *d = &o->model;
    int64_t w[3] = {d->heads, d->head_width, d->hidden}, wk[3] = {d->kv_heads, d->head_width, d->hidden},
            wo[3] = {d->hidden, d->heads, d->head_width};
    const mesh_layout *wq = zoo_weight_row(t, "weight q", 3, w, mesh_shard(0), layers),
                      *wkv = zoo_weight_row(t, "weight k, v", 3, wk, mesh_shard(0), 2 * layers), *q, *k, *a;
    mesh_layout use = *h, keys;
    int64_t shape[4] = {h->shape[0], h->shape[1], d->heads, d->head_width};
    use = zoo_activation(o, 4, shape, mesh_shard(2));
    zoo_set(&use, "sp", mesh_shard(2)); /* Ulysses: heads in parts, the sequence whole */
    q = zoo_made(t, "q", MESH_LOCAL_EINSUM, "bsc,hdc->bshd", h, wq, NULL, &use, layers);
    shape[2] = d->kv_heads;
    keys = zoo_activation(o, 4, shape, mesh_shard(2));
    zoo_set(&keys, "sp", mesh_shard(2));
    zoo_set(&keys, "cp", mesh_replicate());
    k = zoo_made(t, "k, v", MESH_LOCAL_EINSUM, "bsc,hdc->bshd", h, wkv, NULL, &keys, 2 * layers);
    if (o->ring && zoo_has(&o->m, "cp")) t->row[t->n - 1].ring = o->m.axis[mesh_axis_find(&o->m, "cp")].size;
    shape[2] = d->heads;
    use = zoo_activation(o, 4, shape, mesh_shard(2)); /* and back: the sequence in parts */
    if (d->kv_heads == d->heads) {
        a = zoo_made(t, "attention", MESH_LOCAL_MAP, "bqhD,bKhD,bKhD->bqhD", q, k, k, &use, layers);
    } else { /* each of kv_heads serves a run of heads: as cut as they are */
        mesh_layout made = *q;
        a = &zoo_row(t, "attention", &made, &use, layers)->use;
    }
    {
        const mesh_layout *w_out = zoo_weight_row(t, "weight out", 3, wo, mesh_shard(1), layers);
        int64_t x[3] = {h->shape[0], h->shape[1], d->hidden};
        use = zoo_activation(o, 3, x, o->sp ? mesh_shard(1) : mesh_invariant());
        zoo_made(t, "attention out", MESH_LOCAL_EINSUM, "bshd,chd->bsc", a, w_out, NULL, &use, layers);
    }
}

static void zoo_mlp(zoo_table *t, const mesh_layout *h, double layers) {
    const zoo_options *o = t->o;
    const zoo_model *d = &o->model;
    int64_t up[2] = {d->ffn, d->hidden}, down[2] = {d->hidden, d->ffn}, x[3] = {h->shape[0], h->shape[1], d->hidden};
    const mesh_layout *wu =
                          zoo_weight_row(t, "weight up", 2, up, mesh_shard(0), (double)(d->mlp_matrices - 1) * layers),
                      *u, *g, *wd;
    mesh_layout use = zoo_activation(o, 3, x, o->sp ? mesh_shard(1) : mesh_invariant());
    u = zoo_made(t, "up", MESH_LOCAL_EINSUM, "bsc,fc->bsf", h, wu, NULL, NULL, layers);
    g = zoo_made(t, "gelu", MESH_LOCAL_MAP, "bsf->bsf", u, NULL, NULL, NULL, layers);
    wd = zoo_weight_row(t, "weight down", 2, down, mesh_shard(1), layers);
    zoo_made(t, "down", MESH_LOCAL_EINSUM, "bsf,cf->bsc", g, wd, NULL, &use, layers);
}

/* Experts' weights, on the mesh of experts; tokens travel by counts, which no layout says. */
static void zoo_experts(zoo_table *t, double layers) {
    zoo_options *o = t->o;
    const zoo_model *d = &o->model;
    int64_t w[3] = {d->experts, d->ffn, d->hidden};
    mesh_layout use = zoo_layout(&o->sparse, 3, w), rest;
    zoo_tensor *r;
    zoo_set(&use, "ep", mesh_shard(0));
    rest = use;
    zoo_set(&rest, "efsdp", o->zero ? mesh_shard(1) : mesh_invariant());
    r = zoo_row(t, "weight experts", &rest, &use, (double)d->mlp_matrices * layers);
    r->again = o->zero == 3;
}

static void zoo_build(zoo_table *t) {
    zoo_options *o = t->o;
    const zoo_model *d = &o->model;
    double layers = (double)zoo_stage_layers(d, o->pp);
    int64_t x[3] = {d->batch, d->sequence, d->hidden}, one_hot[3] = {d->batch, d->sequence, d->vocabulary},
            table[2] = {d->vocabulary, d->hidden}, c[1] = {d->hidden};
    mesh_place between = o->sp ? mesh_shard(1) : mesh_invariant();
    mesh_layout flow = zoo_activation(o, 3, x, between), whole = zoo_activation(o, 3, x, mesh_replicate()),
                ids = zoo_activation(o, 3, one_hot, mesh_shard(2)), use, rest;
    const mesh_layout *embed, *norm, *h, *head;
    embed = zoo_weight_row(t, "token table", 2, table, mesh_shard(0), 1);
    zoo_row_at(t, ZOO_FIRST);
    zoo_made(t, "embedding", MESH_LOCAL_EINSUM, "bsv,vc->bsc", &ids, embed, NULL, &flow, 1);
    zoo_row_at(t, ZOO_FIRST);
    /* A norm's weight is used as what it scales lies: beside an invariant flow it is invariant, beside parts its gradient is summed. */
    norm = zoo_weight_row(t, "weight norms", 1, c, o->sp ? mesh_replicate() : mesh_invariant(), 2 * layers + 1);
    h = zoo_made(t, "norm", MESH_LOCAL_MAP, "bsC,C->bsC", &flow, norm, NULL, &whole, 2 * layers + 1);
    zoo_attention(t, h, layers);
    if (o->sparse.naxes)
        zoo_experts(t, layers);
    else
        zoo_mlp(t, h, layers);
    head = zoo_weight_row(t, "weight head", 2, table, mesh_shard(0), 1);
    zoo_row_at(t, ZOO_LAST);
    zoo_made(t, "logits", MESH_LOCAL_EINSUM, "bsc,vc->bsv", h, head, NULL, NULL, 1);
    zoo_row_at(t, ZOO_LAST);
    { /* the sum of exp and the target's logit, of each row */
        int64_t rows[3] = {d->batch, d->sequence, 2};
        mesh_layout sums = zoo_activation(o, 3, rows, mesh_partial(MESH_SUM)),
                    ends = zoo_activation(o, 3, rows, mesh_invariant());
        zoo_row(t, "loss, of rows", &sums, &ends, 1);
        zoo_row_at(t, ZOO_LAST);
        use = zoo_layout(&o->m, 0, NULL);
        rest = use;
        {
            int i;
            for (i = 0; i < o->m.naxes; i++) {
                zoo_set(&use, o->m.axis[i].name, mesh_invariant());
                zoo_set(&rest, o->m.axis[i].name,
                        strcmp(o->m.axis[i].name, "tp") ? mesh_partial(MESH_SUM) : mesh_invariant());
            }
        }
        zoo_row(t, "loss", &rest, &use, 1);
        zoo_row_at(t, ZOO_LAST);
    }
}

/* ---- printing ---- */

/* What a place becoming another is called, where it moves anything. */
static const char *zoo_step(const mesh_place *a, const mesh_place *b) {
    if (a->kind == MESH_PARTIAL)
        return b->kind == MESH_PARTIAL ? NULL : b->kind == MESH_SHARD ? "reduce_scatter" : "all_reduce";
    if (a->kind != MESH_SHARD || b->kind == MESH_PARTIAL) return NULL;
    if (b->kind != MESH_SHARD) return "all_gather";
    return a->dim != b->dim || a->order != b->order ? "all_to_all" : NULL;
}

/* What one way of a row moves: the collectives that follow, by axis, and the worst rank's bytes as the planner has it. */
static int64_t zoo_way(const zoo_options *o, const mesh_layout *from, const mesh_layout *to, char *text, size_t cap) {
    static const char *const steps[] = {"reduce_scatter", "all_reduce", "all_gather", "all_to_all"};
    static mesh_plan plan;
    mesh_plan_desc d = MESH_ZERO;
    mesh_error err;
    mesh__text t = mesh__text_on(text, cap);
    int i, k, axes;
    d.src = from, d.dst = to;
    d.dtype = MESH_BYTES, d.elem_bytes = o->model.bytes;
    d.topology = o->topology;
    if (mesh_plan_make(&plan, &d, &err)) fprintf(stderr, "mesh zoo: %s\n", err.text), exit(1);
    for (k = 0; k < 4; k++)
        for (axes = i = 0; i < from->on->naxes; i++) {
            const char *step = from->on->axis[i].size > 1 ? zoo_step(&from->spec.axis[i], &to->spec.axis[i]) : NULL;
            if (!step || strcmp(step, steps[k])) continue;
            if (!axes++) mesh__put(&t, "%s%s ", t.len ? ", " : "", step);
            mesh__put(&t, "%s%s", axes > 1 ? "," : "", from->on->axis[i].name);
        }
    return plan.bytes;
}

/* A row as text, and what its two ways move. */
typedef struct zoo_line {
    char shape[80], rest[300], use[300], forward[300], backward[300];
    int64_t go, back;
} zoo_line;

static void zoo_line_make(const zoo_options *o, const zoo_tensor *r, zoo_line *line) {
    mesh_layout grad_use = r->use, grad_rest = r->rest;
    mesh__text s = mesh__text_on(line->shape, sizeof line->shape);
    mesh_error err;
    int d;
    for (d = 0; d < r->rest.ndim; d++) mesh__put(&s, "%s%l", d ? "x" : "", r->rest.shape[d]);
    if (!r->rest.ndim) mesh__put(&s, "scalar");
    mesh_spec_format(&r->rest.spec, r->rest.on, line->rest, sizeof line->rest);
    mesh_spec_format(&r->use.spec, r->use.on, line->use, sizeof line->use);
    if (mesh_spec_gradient(&grad_use.spec, &r->use.spec, &err) ||
        mesh_spec_gradient(&grad_rest.spec, &r->rest.spec, &err))
        fprintf(stderr, "mesh zoo: %s\n", err.text), exit(1);
    line->go = zoo_way(o, &r->rest, &r->use, line->forward, sizeof line->forward);
    line->back = zoo_way(o, &grad_use, &grad_rest, line->backward, sizeof line->backward);
    if (r->again && line->go) {
        char way[300];
        snprintf(way, sizeof way, "%s", line->backward);
        snprintf(line->backward, sizeof line->backward, "%.140s, %.140s", line->forward, way);
        line->back += line->go;
    }
    if (r->ring < 2) return;
    line->back = line->go + line->back / (r->ring - 1) * r->ring / o->model.bytes * 4; /* gradients travel in f32 */
    snprintf(line->forward, sizeof line->forward, "%d shifts cp", r->ring - 1);
    snprintf(line->backward, sizeof line->backward, "%d + %d (f32) shifts cp", r->ring - 1, r->ring);
}

/* What the rank moves that moves most: of the first stage, of the last, or of one between. Where tables count as layers, an end has one layer less. */
static void zoo_worst(zoo_table *t, const zoo_line *line) {
    zoo_options *o = t->o;
    double way[3][2] = {{0, 0}, {0, 0}, {0, 0}}, part[2], layers = (double)zoo_stage_layers(&o->model, o->pp);
    double less = o->model.layers % o->pp ? (layers - 1) / layers : 1;
    int i, end;
    for (i = 0; i < t->n; i++) {
        way[t->row[i].end][0] += (double)line[i].go * t->row[i].forward;
        way[t->row[i].end][1] += (double)line[i].back * t->row[i].backward;
    }
    for (end = ZOO_EVERY; end <= ZOO_LAST; end++) {
        for (i = 0; i < 2; i++) {
            part[i] = way[ZOO_EVERY][i] * (end == ZOO_EVERY ? 1 : less) + (end == ZOO_EVERY ? 0 : way[end][i]);
            if (o->pp == 1 && end == ZOO_LAST) part[i] += way[ZOO_FIRST][i];
        }
        if (part[0] + part[1] > o->forward + o->backward) o->forward = part[0], o->backward = part[1];
    }
}

static void zoo_print(zoo_table *t) {
    static const char *const stages[] = {"every", "first", "last"};
    static zoo_line line[ZOO_TENSORS];
    zoo_options *o = t->o;
    int i, rest = 7, use = 10;
    for (i = 0; i < t->n; i++) {
        zoo_line_make(o, &t->row[i], &line[i]);
        if ((int)strlen(line[i].rest) > rest) rest = (int)strlen(line[i].rest);
        if ((int)strlen(line[i].use) > use) use = (int)strlen(line[i].use);
    }
    zoo_worst(t, line);
    if (o->json)
        printf("{\"name\": \"%s\", \"mesh\": \"%s\", \"stages\": %ld, \"checked\": %d, \"rows\": [", o->name,
               mesh__show(&o->m).text, o->pp, t->checked);
    else
        printf("%-14s %-14s %-*s %-*s %s\n", "tensor", "shape", rest, "at rest", use, "where used",
               "a step moves (bytes of the worst rank)");
    for (i = 0; i < t->n; i++) {
        const zoo_tensor *r = &t->row[i];
        const zoo_line *l = &line[i];
        if (o->json) {
            printf("%s\n {\"tensor\": \"%s\", \"stage\": \"%s\", \"shape\": \"%s\", \"rest\": \"%s\", \"use\": \"%s\"",
                   i ? "," : "", r->name, stages[r->end], l->shape, l->rest, l->use);
            printf(", \"forward\": \"%s\", \"forward_bytes\": %.0f, \"backward\": \"%s\", \"backward_bytes\": %.0f}",
                   l->forward, (double)l->go * r->forward, l->backward, (double)l->back * r->backward);
            continue;
        }
        printf("%-14s %-14s %-*s %-*s", r->name, l->shape, rest, l->rest, use, l->use);
        if (l->go) printf(" forward %g x %s %lld%s", r->forward, l->forward, (long long)l->go, l->back ? ";" : "");
        if (l->back) printf(" backward %g x %s %lld", r->backward, l->backward, (long long)l->back);
        puts(l->go || l->back ? "" : " nothing");
    }
}

/* What each schedule makes of the stages, where forward and both halves of the backward cost the same: the bubble over what a rank computes, micro-batches in
   flight at most on a rank (of its chunks: each holds that part of the layers), messages to the next stage. */
static void zoo_print_schedules(const zoo_options *o) {
    static const char *const kinds[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
    int p = (int)o->pp, m = (int)o->model.micro, k;
    if (o->json)
        printf(", \"schedules\": [");
    else
        printf("schedule     chunks  bubble  in flight  messages of all stages, each way\n");
    for (k = 0; k < 5; k++) {
        int chunks = k == 2 || k == 4 ? 2 : 1;
        mesh_schedule_report r = MESH_ZERO;
        mesh_schedule s;
        mesh_error err;
        size_t n = mesh_schedule_bytes(p, m, chunks);
        void *memory = malloc(n + 1);
        int made = memory && mesh_schedule_make(&s, kinds[k], p, m, chunks, memory, n, &err) == MESH_OK &&
                   mesh_schedule_time(&s, NULL, &r, &err) == MESH_OK;
        double bubble = made ? (double)r.makespan_ps / (double)r.busy_ps - 1 : 0;
        int messages = made ? m * (p * chunks - 1 - (k == 4)) : 0; /* zb-v turns back on the last rank */
        if (o->json && made)
            printf("%s\n {\"schedule\": \"%s\", \"chunks\": %d, \"bubble\": %.6f, \"in_flight\": %d, \"messages\": %d}",
                   k ? "," : "", kinds[k], chunks, bubble, r.peak, messages);
        else if (o->json)
            printf("%s\n {\"schedule\": \"%s\", \"refused\": true, \"why\": \"%s\"}", k ? "," : "", kinds[k],
                   memory ? err.text : "no memory");
        else if (made)
            printf("%-12s %6d  %6.4f  %9d  %d\n", kinds[k], chunks, bubble, r.peak, messages);
        else
            printf("%-12s %s\n", kinds[k], memory ? err.text : "no memory");
        free(memory);
    }
    if (o->json) printf("]");
}

/* Between stages, and of experts' tokens: what no layout says. */
static void zoo_print_rest(const zoo_table *t) {
    const zoo_options *o = t->o;
    const zoo_model *d = &o->model;
    double parts = 1, tokens, boundary, dispatch = 0;
    int i;
    for (i = 0; i < o->m.naxes; i++)
        if (strcmp(o->m.axis[i].name, "tp") || o->sp) parts *= o->m.axis[i].size;
    tokens = (double)d->batch * (double)d->sequence / parts;
    boundary = o->pp > 1 ? tokens * (double)d->hidden * (double)d->bytes : 0;
    if (o->ep > 1)
        dispatch = 2 * tokens * (double)d->top_k * (double)d->hidden * (double)d->bytes * (double)(o->ep - 1) /
                   (double)o->ep * (double)zoo_stage_layers(d, o->pp);
    if (o->json) {
        printf(
            "],\n \"forward_bytes\": %.0f, \"backward_bytes\": %.0f, \"between_stages\": %.0f, \"tokens_to_experts\": %.0f",
            o->forward, o->backward, boundary, dispatch);
        if (boundary > 0) zoo_print_schedules(o);
        puts("}");
        return;
    }
    if (boundary > 0)
        printf("between stages: %ld x %.0f bytes forward, and as much backward (%ld micro-batches)\n", d->micro,
               boundary / (double)d->micro, d->micro);
    if (boundary > 0) zoo_print_schedules(o);
    if (dispatch > 0)
        printf("tokens to their experts and back: %.0f bytes forward (tokens spread evenly), and as much backward\n",
               dispatch);
    printf(
        "a step moves %.4g MB forward and %.4g MB backward by layouts, of the worst rank; %d local computations checked\n",
        o->forward / 1e6, o->backward / 1e6, t->checked);
}

/* ---- arguments ---- */

static const struct {
    const char *name;
    size_t at;
    long usual;
} zoo_fields[] = {
#define ZOO(field, usual) \
    { #field, offsetof(zoo_model, field), usual }
    ZOO(layers, 12),     ZOO(hidden, 768),       ZOO(ffn, 3072),      ZOO(heads, 12),      ZOO(kv_heads, 12),
    ZOO(head_width, 64), ZOO(vocabulary, 50304), ZOO(sequence, 1024), ZOO(batch, 32),      ZOO(micro, 4),
    ZOO(experts, 8),     ZOO(top_k, 2),          ZOO(bytes, 2),       ZOO(mlp_matrices, 2)};
#undef ZOO
enum { ZOO_FIELDS = sizeof zoo_fields / sizeof zoo_fields[0] };

static long *zoo_field(zoo_model *d, size_t i) { return (long *)(void *)((char *)d + zoo_fields[i].at); }

/* The other words of a model's file. */
static const struct {
    const char *name;
    size_t at;
} zoo_words[] = {
#define ZOO(field) \
    { #field, offsetof(zoo_run, field) }
#define PUBLISHED(field) \
    { "published_" #field, offsetof(zoo_run, field) }
    ZOO(dropout),
    ZOO(flash),
    ZOO(causal),
    ZOO(gradient_bytes),
    ZOO(devices),
    PUBLISHED(tp),
    PUBLISHED(cp),
    PUBLISHED(pp),
    PUBLISHED(dp),
    PUBLISHED(ep),
    PUBLISHED(zero),
    PUBLISHED(sp),
    PUBLISHED(micro),
    PUBLISHED(chunks),
    PUBLISHED(recompute),
    PUBLISHED(tflops),
    PUBLISHED(counts_recompute)};
#undef ZOO
#undef PUBLISHED
enum { ZOO_WORDS = sizeof zoo_words / sizeof zoo_words[0] };

static double *zoo_word(zoo_run *run, size_t i) { return (double *)(void *)((char *)run + zoo_words[i].at); }

/* Lines NAME VALUE of a file (# begins a comment; of `source` the value is the rest of the line), each for `take`: NULL, or what is wrong with it. */
static int zoo_read_lines(const char *command, const char *path,
                          const char *(*take)(void *to, const char *name, const char *value, const char *all),
                          void *to) {
    char line[400], name[400], value[400], more[2], said[600];
    FILE *f = fopen(path, "r");
    int number_of = 0, n, at;
    if (!f) return wrong(command, strerror(errno), path);
    while (fgets(line, sizeof line, f)) {
        const char *what = NULL;
        char *hash = strchr(line, '#');
        number_of++;
        if (strlen(line) == sizeof line - 1 && line[sizeof line - 2] != '\n')
            what = "a line of 399 bytes or more";
        else if (!strchr(line, '\n') && !feof(f))
            what = "a byte 0: this is no text";
        if (hash) *hash = 0;
        line[strcspn(line, "\r\n")] = 0;
        at = 0;
        n = sscanf(line, "%399s %n%399s %1s", name, &at, value, more);
        if (n <= 0 && !what) continue;
        if (!what && n == 1) what = "a value is missing; a line is NAME VALUE";
        if (!what && n == 3 && strcmp(name, "source")) what = "more than one value; a line is NAME VALUE";
        if (!what && !(what = take(to, name, value, line + at))) continue;
        fclose(f);
        snprintf(said, sizeof said, "%s:%d: %s", path, number_of, what);
        return wrong(command, said, *line && strlen(line) < 100 ? line : NULL);
    }
    number_of = ferror(f) ? errno : 0;
    fclose(f);
    return number_of ? wrong(command, strerror(number_of), path) : 0;
}

static const char *const zoo_schedules[] = {"1f1b", "interleaved", "gpipe", "zb-h1"};

typedef struct zoo_reading {
    zoo_model *d;
    zoo_run *run;
} zoo_reading;

static const char *zoo_model_line(void *to, const char *name, const char *value, const char *all) {
    zoo_reading *r = (zoo_reading *)to;
    double *word;
    char *end;
    size_t i;
    if (!strcmp(name, "source"))
        return snprintf(r->run->source, sizeof r->run->source, "%s", all) < 0 ? "no text" : NULL;
    for (i = 0; !strcmp(name, "published_schedule") && i < 4; i++)
        if (!strcmp(value, zoo_schedules[i])) return r->run->schedule = (double)i, (const char *)NULL;
    if (!strcmp(name, "published_schedule")) return "expected 1f1b, interleaved, gpipe or zb-h1";
    for (i = 0; i < ZOO_FIELDS; i++)
        if (!strcmp(name, zoo_fields[i].name)) {
            if (!strcmp(name, "experts")) r->run->experts = 1;
            return (*zoo_field(r->d, i) = number(value)) > 0 ? NULL : "a whole number from 1 to 999999 is expected";
        }
    for (i = 0; i < ZOO_WORDS && strcmp(name, zoo_words[i].name); i++) {}
    if (i == ZOO_WORDS) return "no such name; those that --help lists are";
    word = zoo_word(r->run, i);
    *word = decimal(value, &end);
    if (*end || !(*word >= 0 && *word < 1e6)) return "a number from 0 to 999999 is expected";
    return *word == (double)(long)*word || !strcmp(name, "published_tflops") ? NULL : "a whole number is expected";
}

/* What a file does not say follows from what it says, or is GPT-2's; of layers, hidden, heads, sequence, batch, where they are `needed`, nothing does. Then: do the
   heads divide? 0, or the status of a message. */
static int zoo_complete(zoo_model *d, const char *path, const char *command, int needed) {
    static const char *const needs[] = {"layers", "hidden", "heads", "sequence", "batch"};
    char said[300];
    double weights, widest, numbers;
    size_t i, k;
    for (i = 0; i < ZOO_FIELDS; i++)
        for (k = 0; k < 5 && needed; k++)
            if (!strcmp(zoo_fields[i].name, needs[k]) && *zoo_field(d, i) < 0) {
                snprintf(said, sizeof said, "%s lacks a line", path);
                return wrong(command, said, needs[k]);
            }
    if (d->heads < 0) d->heads = 12;
    if (d->hidden < 0) d->hidden = 64 * d->heads;
    if (d->head_width < 0 && d->hidden % d->heads) {
        snprintf(said, sizeof said, "%s: %ld heads do not divide hidden, %ld; %ld does, or say head_width", path,
                 d->heads, d->hidden, d->heads * (d->hidden / d->heads + 1));
        return wrong(command, said, NULL);
    }
    if (d->head_width < 0) d->head_width = d->hidden / d->heads;
    if (d->kv_heads < 0) d->kv_heads = d->heads;
    if (d->ffn < 0) d->ffn = 4 * d->hidden;
    if (d->top_k < 0 && d->experts > 0 && d->experts < 2) d->top_k = d->experts;
    for (i = 0; i < ZOO_FIELDS; i++)
        if (*zoo_field(d, i) < 0) *zoo_field(d, i) = zoo_fields[i].usual;
    if (d->top_k > d->experts) {
        snprintf(said, sizeof said, "%s: top_k %ld of %ld experts; %ld at most", path, d->top_k, d->experts,
                 d->experts);
        return wrong(command, said, NULL);
    }
    weights = (double)d->layers * (double)d->hidden *
                  ((double)d->experts * (double)d->mlp_matrices * (double)d->ffn +
                   4 * (double)d->heads * (double)d->head_width) +
              (double)d->vocabulary * (double)d->hidden;
    widest = (double)(d->ffn > d->vocabulary ? d->ffn : d->vocabulary);
    numbers = (double)(d->batch > d->micro ? d->batch : d->micro) * (double)d->sequence * (double)d->top_k *
              (widest > (double)d->hidden ? widest : (double)d->hidden);
    if (weights > 1e15 || numbers > 1e15) {
        snprintf(said, sizeof said,
                 "%s: some %.1e weights, and %.1e numbers that a step makes of them; at most 1e15 of each", path,
                 weights, numbers);
        return wrong(command, said, NULL);
    }
    if (d->heads % d->kv_heads == 0) return 0;
    for (k = (size_t)d->kv_heads; d->heads % (long)k; k--) {}
    snprintf(said, sizeof said, "%s: %ld kv_heads do not divide %ld heads; %zu do", path, d->kv_heads, d->heads, k);
    return wrong(command, said, NULL);
}

static int zoo_read_model(zoo_model *d, zoo_run *run, const char *path, const char *command, int needed) {
    zoo_reading r;
    size_t i;
    int status;
    r.d = d, r.run = run;
    for (i = 0; i < ZOO_FIELDS; i++) *zoo_field(d, i) = -1;
    for (i = 0; i < ZOO_WORDS; i++) *zoo_word(run, i) = -1;
    run->experts = 0;
    run->schedule = -1;
    run->source[0] = 0;
    status = zoo_read_lines(command, path, zoo_model_line, &r);
    return status ? status : zoo_complete(d, path, command, needed);
}

/* What a name asks of the mesh, and of the options. 0, or the status of a message. */
static int zoo_choose(zoo_options *o) {
    static const struct {
        const char *name, *axis;
        int zero, sp, ring;
    } names[] = {{"dp", "dp", 0, 0, 0},    {"zero1", "dp", 1, 0, 0}, {"zero2", "dp", 2, 0, 0},
                 {"zero3", "dp", 3, 0, 0}, {"fsdp", "dp", 3, 0, 0},  {"hsdp", "dp_shard", 3, 0, 0},
                 {"tp", "tp", 0, 0, 0},    {"sp", "tp", 0, 1, 0},    {"ulysses", "sp", 0, 0, 0},
                 {"cp", "cp", 0, 0, 0},    {"ring", "cp", 0, 0, 1},  {"pp", NULL, 0, 0, 0},
                 {"ep", NULL, 0, 0, 0},    {"all", NULL, 0, 0, 0}};
    static char said[200];
    size_t i, n = sizeof names / sizeof names[0];
    int axis, data = 0;
    for (i = 0; i < n && strcmp(names[i].name, o->name); i++) {}
    if (i == n)
        return wrong("zoo",
                     "no such parallelism; one of dp zero1 zero2 zero3 fsdp hsdp tp sp ulysses cp ring pp ep all",
                     o->name);
    for (axis = 0; axis < 3; axis++) data |= zoo_has(&o->m, zoo_data_axes[axis]);
    if (names[i].axis && !(strcmp(names[i].axis, "dp") ? zoo_has(&o->m, names[i].axis) : data)) {
        snprintf(said, sizeof said, "%s needs an axis \"%s\"%s in the mesh", o->name, names[i].axis,
                 strcmp(names[i].axis, "dp") ? "" : ", \"dp_shard\" or \"dp_replicate\"");
        return wrong("zoo", said, o->mesh_text);
    }
    if (!strcmp(o->name, "pp") && o->pp < 2) return wrong("zoo", "pp needs an axis \"pp\" in the mesh", o->mesh_text);
    if (!strcmp(o->name, "ep") && o->ep < 2)
        return wrong("zoo", "ep needs --ep N, how many ways experts are cut", NULL);
    if (names[i].axis && !strncmp(names[i].axis, "dp", 2) && o->zero >= 0 && o->zero != names[i].zero) {
        snprintf(said, sizeof said, "%s is --zero %d; leave it out, or take zero1 to zero3, or all, with", o->name,
                 names[i].zero);
        return wrong("zoo", said,
                     o->zero ? o->zero == 1   ? "--zero 1"
                               : o->zero == 2 ? "--zero 2"
                                              : "--zero 3"
                             : "--zero 0");
    }
    if (names[i].zero || o->zero < 0) o->zero = names[i].zero;
    o->sp |= names[i].sp;
    o->ring |= names[i].ring;
    return 0;
}

/* The mesh of one stage, and that of experts, which takes the same ranks another way. */
static int zoo_meshes(zoo_options *o) {
    static const char *const known[] = {"pp", "dp", "dp_replicate", "dp_shard", "cp", "sp", "tp"};
    mesh_error err;
    mesh stage;
    char text[120];
    long cut = 1;
    int i;
    size_t k;
    for (i = 0; i < o->m.naxes; i++) {
        for (k = 0; k < 7 && strcmp(o->m.axis[i].name, known[k]); k++) {}
        if (k == 7)
            return wrong("zoo", "an axis that is none of pp dp dp_replicate dp_shard cp sp tp", o->m.axis[i].name);
    }
    for (i = 0; i < o->m.naxes; i++) /* grouped queries: a rank's heads of q belong to its heads of k and v */
        if (!strcmp(o->m.axis[i].name, "tp") || !strcmp(o->m.axis[i].name, "sp")) cut *= o->m.axis[i].size;
    if (o->model.kv_heads % cut) {
        snprintf(text, sizeof text, "%ld heads, %ld kv_heads, %ld ways", o->model.heads, o->model.kv_heads, cut);
        return wrong("zoo", "tp and sp together have to divide the kv_heads", text);
    }
    o->pp = 1;
    if (zoo_has(&o->m, "pp")) {
        char why[240];
        o->pp = o->m.axis[mesh_axis_find(&o->m, "pp")].size;
        if (!zoo_pp_fits(&o->model, o->pp, why, sizeof why)) return wrong("zoo", why, NULL);
        if (mesh_fix(&stage, &o->m, "pp", 0, &err)) return wrong("zoo", err.text, NULL);
        o->m = stage;
    }
    if (o->ep <= 1) return 0;
    if (o->m.size % o->ep || o->model.experts % o->ep) {
        for (cut = o->ep; o->m.size % cut || o->model.experts % cut; cut--) {}
        snprintf(text, sizeof text, "%ld ways, %d ranks of a stage, %ld experts; %ld does", o->ep, o->m.size,
                 o->model.experts, cut);
        return wrong("zoo", "--ep has to divide the ranks of a stage and the experts", text);
    }
    snprintf(text, sizeof text, "efsdp=%ld,ep=%ld", o->m.size / o->ep, o->ep);
    return mesh_parse(&o->sparse, text, 0, &err) ? wrong("zoo", err.text, NULL) : 0;
}

static int command_zoo(const char *self, int argc, char **argv) {
    static zoo_table table;
    static zoo_options o;
    static zoo_run run;
    mesh_topology topology;
    mesh_error err;
    const char *mesh_text = NULL;
    int i, status;
    (void)self;
    for (i = 0; i < ZOO_FIELDS; i++) *zoo_field(&o.model, (size_t)i) = zoo_fields[i].usual;
    o.zero = -1;
    for (i = 0; i < argc; i++) {
        const char *arg = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        int takes = !strcmp(arg, "--mesh") || !strcmp(arg, "--model") || !strcmp(arg, "--zero") ||
                    !strcmp(arg, "--ep") || !strcmp(arg, "--topology");
        if (is_help(arg)) {
            fputs(zoo_help, stdout);
            return 0;
        }
        if (takes && !value) return wrong("zoo", "a value is missing after", arg);
        if (!strcmp(arg, "--mesh")) {
            mesh_text = value;
        } else if (!strcmp(arg, "--model")) {
            if ((status = zoo_read_model(&o.model, &run, value, "zoo", 0)) != 0) return status;
        } else if (!strcmp(arg, "--zero")) {
            if (strlen(value) != 1 || *value < '0' || *value > '3')
                return wrong("zoo", "--zero is 0, 1, 2 or 3", value);
            o.zero = *value - '0';
        } else if (!strcmp(arg, "--ep")) {
            if ((o.ep = number(value)) < 1) return wrong("zoo", "--ep is no number", value);
        } else if (!strcmp(arg, "--topology")) {
            if (mesh_topology_parse(&topology, value, &err)) return wrong("zoo", err.text, NULL);
            o.topology = &topology;
        } else if (!strcmp(arg, "--sp")) {
            o.sp = 1;
        } else if (!strcmp(arg, "--ring")) {
            o.ring = 1;
        } else if (!strcmp(arg, "--json")) {
            o.json = 1;
        } else if (arg[0] == '-') {
            return wrong("zoo", "unknown option", arg);
        } else if (o.name) {
            return wrong("zoo", "more than one name", arg);
        } else {
            o.name = arg;
        }
        i += takes;
    }
    if (!o.name) o.name = "all";
    if (!mesh_text) return wrong("zoo", "expected --mesh, as in mesh zoo tp --mesh dp=4,tp=4", NULL);
    o.mesh_text = mesh_text;
    if (mesh_parse(&o.m, mesh_text, 0, &err)) return wrong("zoo", err.text, NULL);
    if ((status = zoo_meshes(&o)) != 0 || (status = zoo_choose(&o)) != 0) return status;
    if (!o.json) {
        printf(
            "%s on %s: %ld layers, hidden %ld, ffn %ld, %ld heads of %ld, vocabulary %ld, %ld sequences of %ld, elements of %ld bytes\n",
            o.name, mesh_text, o.model.layers, o.model.hidden, o.model.ffn, o.model.heads, o.model.head_width,
            o.model.vocabulary, o.model.batch, o.model.sequence, o.model.bytes);
        if (o.m.size <= 64) {
            char *drawing = (char *)malloc(mesh_draw(&o.m, NULL, 0) + 1);
            if (drawing) mesh_draw(&o.m, drawing, mesh_draw(&o.m, NULL, 0) + 1), fputs(drawing, stdout), free(drawing);
        }
        if (o.ep > 1) printf("experts: the same ranks as %s\n", mesh__show(&o.sparse).text);
    }
    table.o = &o;
    zoo_build(&table);
    zoo_print(&table);
    zoo_print_rest(&table);
    return 0;
}

#endif
