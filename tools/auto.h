/* mesh auto: the meshes and schedules that a model allows on a cluster, by predicted step time under the memory limit. Needs no ranks. */
#ifndef TOOL_AUTO_H
#define TOOL_AUTO_H

static const char auto_help[] =
    "usage: mesh auto --model FILE --cluster FILE [--top 10] [--batch N] [--devices N] [--fix tp=8,pp=16] [--json]\n\n"
    "Tries every way to train a model on a cluster: tp, cp, pp, ep, dp = dp_replicate x dp_shard, ZeRO 0 to 3, sequence parallelism,\n"
    "micro-batches, schedules (1f1b, interleaved, gpipe, zb-h1), recomputation; and prints the meshes with the shortest predicted step\n"
    "that fit into memory, each with its best settings. tp is innermost, then cp, pp, dp; ep takes the ranks of a stage another way.\n"
    "What the prediction assumes and leaves out, and how far it is from published runs: docs/auto.md.\n\n"
    "  --model FILE     lines of NAME VALUE as mesh zoo --model (layers, hidden, heads, sequence and batch, sequences of a step, have to\n"
    "                   be there), and\n"
    "      flash 1            attention keeps no scores       causal 1       it computes no more than half of them\n"
    "      gradient_bytes 4   of a gradient that is summed     dropout 0      there is none\n"
    "      devices N          how many of the cluster's\n"
    "      published_tp _cp _pp _dp _ep _zero _sp _micro _schedule _chunks _recompute (0 none, 1 selective, 2 full)   a run that\n"
    "      was published, printed beside its prediction; what is not said of it is free: the fastest is taken, of those that fit\n"
    "      published_tflops   per device; with published_counts_recompute 1 what is computed twice counts; source TEXT\n"
    "  --cluster FILE   hosts devices_per_host; of a device: memory and reserve in GB, bandwidth of memory in GB/s, flops, its dense\n"
    "                   peak in TFLOP/s, efficiency, the part of it that products reach; topology as mesh plan; source TEXT\n"
    "  --fix LIST       only these: tp cp pp ep dp dp_shard zero sp micro schedule chunks recompute\n"
    "  --top N          lines (10)\n"
    "  --batch, --devices   instead of the model's\n"
    "  --json           the same for programs\n";

/* ---- rules ---- */

/* A rule refuses a choice: count it, keep its first text. */
static int auto_refuse(auto_search *s, const char *rule, const char *text) {
    int i;
    for (i = 0; i < s->nrules && strcmp(s->rules[i].rule, rule); i++) {}
    if (i == AUTO_RULES) fprintf(stderr, "mesh auto: more than %d rules\n", AUTO_RULES), exit(1);
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
    zoo_nearest(near, sizeof near, n, n, value);
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
    zoo_nearest(near, sizeof near, host, host, tp);
    snprintf(text, sizeof text, "tp = %ld does not fit within a host of %ld devices; nearest that do: %s", tp, host,
             near);
    return auto_refuse(s, "tp/host", text);
}

static int auto_cp_fits(auto_search *s, const auto_choice *c) {
    /* a rank has an early and a late part, so that a causal mask is shared evenly */
    long halves = c->cp > 1 ? 2 * c->cp : 1;
    if (!auto_divides(s, "cp", c->cp, s->devices / c->tp, "devices / tp")) return 0;
    return s->zoo.model.sequence % halves ? auto_divides(s, "2 cp", halves, s->zoo.model.sequence, "the sequence") : 1;
}

static int auto_pp_fits(auto_search *s, const auto_choice *c) {
    const zoo_model *d = &s->zoo.model;
    char text[240];
    if (!auto_divides(s, "pp", c->pp, s->devices / c->tp / c->cp, "devices / tp / cp")) return 0;
    if (c->pp > MESH_SCHEDULE_RANKS) {
        snprintf(text, sizeof text, "pp = %ld, but a schedule has at most %d ranks", c->pp, (int)MESH_SCHEDULE_RANKS);
        return auto_refuse(s, "pp/ranks", text);
    }
    if (zoo_pp_fits(d, c->pp, text, sizeof text)) return 1;
    return auto_refuse(s, "pp/layers", text);
}

static int auto_ep_fits(auto_search *s, const auto_choice *c) {
    char near[64], text[200];
    if (s->run.experts < 0)
        return c->ep == 1 ? 1 : auto_refuse(s, "ep", "ep > 1, but the model has no experts; 1 does");
    if (!auto_divides(s, "ep", c->ep, s->zoo.model.experts, "experts") ||
        !auto_divides(s, "ep", c->ep, s->devices / c->pp, "a stage's ranks"))
        return 0;
    if (auto_meshes(s, c)) return 1;
    zoo_nearest(near, sizeof near, c->tp * c->cp, c->tp * c->cp, c->ep);
    snprintf(text, sizeof text, "ep = %ld crosses tp x cp = %ld; nearest that do not: %s, or a multiple of that", c->ep,
             c->tp * c->cp, near);
    return auto_refuse(s, "ep/crosses", text);
}

/* ---- the search ---- */

static int auto_candidates(long fixed, long n, long *list) {
    long k;
    int count = 0;
    if (fixed >= 0) list[count++] = fixed;
    for (k = 1; fixed < 0 && k <= n; k++) {
        if (n % k) continue;
        if (count == AUTO_LIST) fprintf(stderr, "mesh auto: %ld has more than %d divisors\n", n, AUTO_LIST), exit(1);
        list[count++] = k;
    }
    return count;
}

/* Is a choice what is asked for, where anything is? */
static int auto_agrees(const auto_choice *asked, const auto_choice *c) {
    int i;
    for (i = 0; i < AUTO_CHOICES; i++)
        if (auto_chosen(asked, i) >= 0 && auto_chosen(asked, i) != auto_chosen(c, i)) return 0;
    return 1;
}

static int auto_one_mesh(const auto_choice *a, const auto_choice *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->ep == b->ep;
}

static void auto_keep(auto_search *s, const auto_result *r) {
    double bytes = r->state + r->activations;
    const auto_choice *c = &r->choice;
    int fits = bytes <= auto_limit(s);
    s->tried++;
    if (s->run.tflops > 0 && auto_agrees(&s->published, c) &&
        (!s->own_found || fits > s->own_fits || (fits == s->own_fits && r->step < s->own.step)))
        s->own = *r, s->own_found = 1, s->own_fits = fits;
    if (!fits) {
        if (!s->too_large++ || bytes < s->least) s->least = bytes, s->smallest = *c;
        return;
    }
    if (s->n && auto_one_mesh(&s->best[s->n - 1].choice, c)) {
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

/* Does a schedule do with these numbers? One chunk is 1f1b, gpipe or zb-h1, more are interleaved; without stages there is only one after the other. */
static int auto_schedule_fits(auto_search *s, const auto_choice *c, long m) {
    int asked = s->fix.schedule >= 0;
    if (c->pp == 1 && c->schedule != AUTO_1F1B)
        return asked ? auto_refuse(s, "schedule/pp", "without stages (pp = 1) the schedule is 1f1b") : 0;
    if ((c->schedule == AUTO_INTERLEAVED) != (c->chunks > 1))
        return asked ? auto_refuse(s, "schedule/chunks", "interleaved has more than 1 chunk, every other schedule 1")
                     : 0;
    if (c->chunks > MESH_SCHEDULE_CHUNKS)
        return auto_refuse(s, "chunks/most", "more than 255 chunks on a rank; fewer chunks or more stages do");
    if (m > MESH_SCHEDULE_MICROS)
        return auto_refuse(s, "schedule/micro", "more than 65535 micro-batches; a larger micro does");
    if (c->schedule != AUTO_INTERLEAVED) return 1;
    return auto_divides(s, "pp", c->pp, m, "micro-batches, as interleaving asks,");
}

/* Schedules and recomputation of a mesh, a ZeRO, a micro-batch. Where no scores are kept, selective recomputation is none. */
static void auto_schedules(auto_search *s, auto_choice *c, const auto_table *w, const auto_table *a,
                           const auto_moves *between) {
    long chunks[AUTO_LIST], stage, m = s->zoo.model.batch / c->dp / c->micro;
    int n, k;
    stage = zoo_stage_layers(&s->zoo.model, c->pp);
    n = auto_candidates(c->pp > 1 || s->fix.chunks > 1 ? s->fix.chunks : 1, stage, chunks);
    for (k = 0; k < n; k++) {
        c->chunks = chunks[k];
        if (!auto_divides(s, "chunks", c->chunks, stage, "a stage's layers")) continue;
        for (c->schedule = 0; c->schedule < AUTO_SCHEDULES; c->schedule++) {
            if (s->fix.schedule >= 0 && c->schedule != s->fix.schedule) continue;
            if (!auto_schedule_fits(s, c, m)) continue;
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
}

/* May activations be cut so between tensor-parallel products? */
static int auto_sp_fits(auto_search *s, const auto_choice *c) {
    if (s->fix.sp >= 0 && c->sp != s->fix.sp) return 0;
    if (c->sp && c->tp == 1) return s->fix.sp > 0 ? auto_refuse(s, "sp/tp", "sp = 1 wants tp > 1") : 0;
    if (c->sp) return auto_divides(s, "tp", c->tp, s->zoo.model.sequence / c->cp, "sequence / cp, as sp asks,");
    if (c->tp == 1 || s->run.experts < 0) return 1;
    return auto_refuse(s, "sp/experts", "experts with tp > 1 want sp = 1: else each rank of tp sends the same tokens");
}

/* Sequence parallelism, ZeRO and micro-batches of a mesh. ZeRO cuts where dp_shard > 1, and nothing else. */
static void auto_settings(auto_search *s, auto_choice *c, const long *micro, int n) {
    auto_table weights;
    long zero;
    int k;
    for (c->sp = 0; c->sp < 2; c->sp++) {
        if (!auto_sp_fits(s, c)) continue;
        if (s->fix.zero >= 0 && (s->fix.zero > 0) != (c->dp_shard > 1)) {
            auto_refuse(s, "zero/dp_shard", "zero 1 to 3 want dp_shard > 1, zero 0 wants dp_shard 1");
            continue;
        }
        c->micro = 1, c->zero = c->dp_shard > 1;
        auto_tabulate(s, c, 1, &weights);
        for (k = 0; k < n; k++) {
            c->micro = micro[k];
            if (!auto_divides(s, "micro", c->micro, s->zoo.model.batch / c->dp, "a replica's sequences")) continue;
            for (zero = c->dp_shard > 1; zero <= (c->dp_shard > 1 ? 3 : 0); zero++) {
                if (s->fix.zero >= 0 && zero != s->fix.zero) continue;
                c->zero = zero;
                auto_schedules(s, c, &weights, &s->activations[c->sp][k], &s->between[k]);
            }
        }
    }
}

/* All of a mesh of tp, cp, pp, ep: what its micro-batches move, then how dp is cut, which they do not know. */
static void auto_mesh(auto_search *s, auto_choice *c) {
    long shard[AUTO_LIST], micro[AUTO_LIST];
    int n, nmicro, k;
    c->dp_shard = 1, c->zero = 0;
    if (!auto_ep_fits(s, c)) return;
    nmicro = auto_candidates(s->fix.micro, s->zoo.model.batch / c->dp, micro);
    for (k = 0; k < nmicro; k++) {
        c->micro = micro[k];
        if (s->zoo.model.batch / c->dp % c->micro) continue;
        s->between[k] = auto_between(s, c);
        for (c->sp = 0; c->sp <= (c->tp > 1 && s->zoo.model.sequence / c->cp % c->tp == 0); c->sp++)
            auto_tabulate(s, c, 0, &s->activations[c->sp][k]);
    }
    n = auto_candidates(s->fix.dp_shard, c->dp, shard);
    for (k = 0; k < n; k++) {
        c->dp_shard = shard[k];
        if (auto_divides(s, "dp_shard", c->dp_shard, c->dp, "dp")) auto_settings(s, c, micro, nmicro);
    }
}

static int auto_faster(const void *x, const void *y) {
    const auto_result *a = (const auto_result *)x, *b = (const auto_result *)y;
    int i;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    for (i = 0; i < AUTO_CHOICES; i++)
        if (auto_chosen(&a->choice, i) != auto_chosen(&b->choice, i))
            return auto_chosen(&a->choice, i) < auto_chosen(&b->choice, i) ? -1 : 1;
    return 0;
}

/* All of tp, cp, pp. */
static void auto_degrees(auto_search *s, auto_choice *c) {
    long ep[AUTO_LIST];
    int n, k;
    c->dp = s->devices / c->tp / c->cp / c->pp;
    if (s->fix.dp > 0 && c->dp != s->fix.dp) {
        char text[200];
        snprintf(text, sizeof text, "dp = %ld, but %ld devices leave %ld beside tp %ld, cp %ld, pp %ld", s->fix.dp,
                 s->devices, c->dp, c->tp, c->cp, c->pp);
        auto_refuse(s, "dp/devices", text);
        return;
    }
    if (!auto_divides(s, "dp", c->dp, s->zoo.model.batch, "the batch")) return;
    n = auto_candidates(s->fix.ep >= 0 || s->run.experts > 0 ? s->fix.ep : 1, s->zoo.model.experts, ep);
    for (k = 0; k < n; k++) c->ep = ep[k], auto_mesh(s, c);
}

static void auto_run(auto_search *s) {
    long tp[AUTO_LIST], cp[AUTO_LIST], pp[AUTO_LIST];
    int i, j, k, ntp = auto_candidates(s->fix.tp, s->devices, tp), ncp, npp;
    auto_choice c;
    memset(&c, 0, sizeof c);
    if (s->fix.dp > 0 && !auto_divides(s, "dp", s->fix.dp, s->devices, "the devices")) return;
    if (s->fix.recompute == AUTO_SELECTIVE && s->run.flash > 0) {
        auto_refuse(s, "recompute",
                    "recompute = 1 (selective) computes again the scores that flash attention has not kept; 0 or 2 do");
        return;
    }
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
                if (auto_pp_fits(s, &c)) auto_degrees(s, &c);
            }
        }
    }
    if (s->n) qsort(s->best, s->n, sizeof *s->best, auto_faster);
}

/* Where the published choices stand: behind the best of each other mesh that is faster. */
static size_t auto_place(const auto_search *s) {
    size_t i, place = 1;
    for (i = 0; i < s->n; i++)
        place += s->best[i].step < s->own.step && !auto_one_mesh(&s->best[i].choice, &s->own.choice);
    return place;
}

/* ---- printing ---- */

static const char *const auto_axes[] = {"tp", "cp", "ep", "dp", "pp"};

static void auto_print_json(const auto_result *r) {
    int k;
    printf("{");
    for (k = 0; k < AUTO_CHOICES; k++)
        if (!strcmp(auto_names[k], "schedule"))
            printf("\"schedule\": \"%s\", ", zoo_schedules[r->choice.schedule]);
        else
            printf("\"%s\": %ld, ", auto_names[k], auto_chosen(&r->choice, k));
    printf("\"micro_batches\": %.0f, \"step\": %.9g, \"compute\": %.9g, \"memory\": %.9g, \"bubble\": %.9g",
           r->micro_batches, r->step, r->compute, r->memory, r->bubble);
    for (k = 0; k < AUTO_AXES; k++)
        printf(", \"%s_seconds\": %.9g, \"%s_bytes\": %.0f", auto_axes[k], r->axis[k], auto_axes[k], r->bytes[k]);
    printf(", \"forward\": %.9g, \"backward\": %.9g, \"weight\": %.9g, \"send\": %.9g, \"in_flight\": %.9g",
           r->one.forward, r->one.backward, r->one.weight, r->one.send, r->in_flight);
    printf(
        ", \"state\": %.0f, \"activations\": %.0f, \"tokens\": %.9g, \"model_tflops\": %.9g, \"hardware_tflops\": %.9g}",
        r->state, r->activations, r->tokens, r->model_tflops, r->hardware_tflops);
}

static void auto_print_line(const auto_result *r) {
    static const char *const recompute[] = {"none", "select", "full"};
    const auto_choice *c = &r->choice;
    printf("%3ld %3ld %3ld %3ld %5ld/%-5ld %4ld %2ld %5ld %11s %6ld %-6s %8.3f %8.3f %7.3f", c->tp, c->cp, c->pp, c->ep,
           c->dp, c->dp_shard, c->zero, c->sp, c->micro, zoo_schedules[c->schedule], c->chunks, recompute[c->recompute],
           r->step, r->compute, r->memory);
    printf(" %7.3f %7.3f %7.3f %7.3f %7.3f %7.3f %6.1f %6.1f %8.1f %7.1f\n", r->axis[AUTO_TP], r->axis[AUTO_CP],
           r->axis[AUTO_EP], r->axis[AUTO_DP], r->axis[AUTO_PP], r->bubble, r->state / 1e9, r->activations / 1e9,
           r->tokens, r->model_tflops);
}

/* Nothing is left: what refused, and what was the smallest. */
static int auto_print_none(const auto_search *s) {
    int k, free_of = s->fix.zero < 0 && s->fix.recompute < 0;
    for (k = 0; !s->too_large && k < s->nrules; k++)
        fprintf(stderr, "mesh auto: %s (%ld refused so)\n", s->rules[k].text, s->rules[k].times);
    if (s->too_large)
        fprintf(
            stderr,
            "mesh auto: nothing fits into memory: the smallest of %ld ways (tp %ld, cp %ld, pp %ld, dp %ld) needs %.5g GB, "
            "%.5g more than there are; more devices%s a smaller batch%s may do\n",
            s->too_large, s->smallest.tp, s->smallest.cp, s->smallest.pp, s->smallest.dp, s->least / 1e9,
            (s->least - auto_limit(s)) / 1e9, free_of ? " or" : ",",
            free_of ? "" : " or --fix without zero and recompute");
    if (!s->nrules && !s->too_large) fprintf(stderr, "mesh auto: nothing is left of --fix; take some of it away\n");
    return 1;
}

static double auto_own_tflops(const auto_search *s) {
    return s->run.counts_recompute > 0 ? s->own.hardware_tflops : s->own.model_tflops;
}

static void auto_print_published(const auto_search *s) {
    double bytes = s->own.state + s->own.activations;
    if (s->run.tflops <= 0) return;
    if (!s->own_found) {
        if (s->n) printf("The published run (%s) is none of the ways tried.\n", s->run.source);
        return;
    }
    printf("The published run (%s), what is not said of it chosen as above:\n", s->run.source);
    auto_print_line(&s->own);
    printf("predicted %.1f TFLOP/s of a device%s, published %g: %.3f of it; ", auto_own_tflops(s),
           s->run.counts_recompute > 0 ? ", what is computed again counted" : "", s->run.tflops,
           auto_own_tflops(s) / s->run.tflops);
    if (s->own_fits)
        printf("place %zu of %zu meshes\n", auto_place(s), s->n);
    else
        printf("by this prediction it needs %.1f GB of %.1f; else it had place %zu\n", bytes / 1e9, auto_limit(s) / 1e9,
               auto_place(s));
}

static void auto_print_all_json(const auto_search *s, size_t n) {
    size_t i;
    printf("{\"devices\": %ld, \"limit\": %.0f, \"tried\": %ld, \"too_large\": %ld, \"meshes\": %zu, \"rows\": [",
           s->devices, auto_limit(s), s->tried, s->too_large, s->n);
    for (i = 0; i < n; i++) printf("%s\n ", i ? "," : ""), auto_print_json(&s->best[i]);
    printf("]");
    if (s->own_found) {
        printf(
            ",\n \"published\": {\"tflops\": %g, \"predicted\": %.9g, \"ratio\": %.9g, \"fits\": %d, \"place\": %zu, \"run\": ",
            s->run.tflops, auto_own_tflops(s), auto_own_tflops(s) / s->run.tflops, s->own_fits, auto_place(s));
        auto_print_json(&s->own);
        printf("}");
    }
    printf("}\n");
}

static int auto_print(const auto_search *s) {
    const zoo_model *d = &s->zoo.model;
    size_t i, n = s->n < (size_t)s->top ? s->n : (size_t)s->top;
    if (!s->n && !(s->json && s->own_found)) {
        auto_print_published(s);
        return auto_print_none(s);
    }
    if (s->json) {
        auto_print_all_json(s, n);
        return 0;
    }
    printf(
        "%ld layers, hidden %ld, ffn %ld, %ld heads of %ld (%ld of keys), vocabulary %ld, %ld sequences of %ld, elements of %ld bytes\n",
        d->layers, d->hidden, d->ffn, d->heads, d->head_width, d->kv_heads, d->vocabulary, d->batch, d->sequence,
        d->bytes);
    printf(
        "%ld devices (%s), %.1f GB each: %ld ways tried, %ld of them too large; the best of %zu meshes, seconds of a step\n",
        s->devices, s->cluster.source, auto_limit(s) / 1e9, s->tried, s->too_large, s->n);
    printf(
        " tp  cp  pp  ep    dp/shard zero sp micro    schedule chunks again      step  compute  memory      tp      cp      ep "
        "     dp      pp  bubble  state   acts tokens/s TFLOP/s\n");
    for (i = 0; i < n; i++) auto_print_line(&s->best[i]);
    auto_print_published(s);
    printf(
        "Left out (docs/auto.md): how products' speed depends on their shapes (one efficiency for all), overlap of tp, cp and ep with\n"
        "products, stages that differ, contention and rails of the network, uneven experts, stragglers, fragments of memory, input and\n"
        "checkpoints. memory: seconds bound by it (norms, sums, softmax, gradients added, the optimizer), products' own traffic left out.\n");
    return 0;
}

/* ---- arguments ---- */

static const char *auto_cluster_line(void *to, const char *name, const char *value, const char *all) {
    static const struct {
        const char *name;
        size_t at;
        double unit;
    } fields[] = {{"hosts", offsetof(auto_cluster, hosts), 1},
                  {"devices_per_host", offsetof(auto_cluster, devices_per_host), 1},
                  {"memory", offsetof(auto_cluster, memory), 1e9},
                  {"reserve", offsetof(auto_cluster, reserve), 1e9},
                  {"bandwidth", offsetof(auto_cluster, bandwidth), 1e9},
                  {"flops", offsetof(auto_cluster, flops), 1e12},
                  {"efficiency", offsetof(auto_cluster, efficiency), 1}};
    static mesh_error err; /* its text is what is returned */
    auto_cluster *c = (auto_cluster *)to;
    char *end;
    double v;
    size_t i;
    if (!strcmp(name, "source")) return snprintf(c->source, sizeof c->source, "%s", all) < 0 ? "no text" : NULL;
    if (!strcmp(name, "topology")) return mesh_topology_parse(&c->topology, value, &err) ? err.text : NULL;
    for (i = 0; i < 7 && strcmp(name, fields[i].name); i++) {}
    if (i == 7)
        return "no such name; a cluster has hosts devices_per_host memory reserve bandwidth flops efficiency topology source";
    v = decimal(value, &end);
    if (*end || !(v >= 0 && v < 1e6) || (v < 1e-6 && strcmp(name, "reserve")))
        return "a number from 1e-6 to 1e6 is expected";
    if (i < 2 && v != (double)(long)v) return "a whole number is expected";
    if (!strcmp(name, "efficiency") && v > 1) return "a part of the peak is expected, at most 1";
    *(double *)(void *)((char *)c + fields[i].at) = v * fields[i].unit;
    return NULL;
}

static int auto_read_cluster(auto_cluster *c, const char *path) {
    char said[300];
    int status = zoo_read_lines("auto", path, auto_cluster_line, c);
    const char *lacks = c->hosts <= 0              ? "hosts"
                        : c->devices_per_host <= 0 ? "devices_per_host"
                        : c->memory <= 0           ? "memory, in GB"
                        : c->bandwidth <= 0        ? "bandwidth, in GB/s"
                        : c->flops <= 0            ? "flops, in TFLOP/s"
                        : c->efficiency <= 0       ? "efficiency, as 0.6"
                        : !c->topology.nlevels     ? "topology, as 8:3us:300GB/s,*:8us:25GB/s"
                                                   : NULL;
    if (status) return status;
    if (lacks) {
        snprintf(said, sizeof said, "%s lacks a line", path);
        return wrong("auto", said, lacks);
    }
    if (c->hosts * c->devices_per_host > 999999) {
        snprintf(said, sizeof said, "%s: %.0f devices, hosts times devices_per_host; 999999 at most", path,
                 c->hosts * c->devices_per_host);
        return wrong("auto", said, NULL);
    }
    if (c->reserve < c->memory) return 0;
    snprintf(said, sizeof said, "%s: reserve is the whole memory of %g GB or more; say less", path, c->memory / 1e9);
    return wrong("auto", said, NULL);
}

/* A value of --fix as a number: of a degree, micro, chunks from 1, of the others from 0 to their last; or -1. */
static long auto_fixed(const char *name, const char *word) {
    long value = !strcmp(word, "0") ? 0 : number(word), last = 999999;
    int first = 0, k;
    if (!strcmp(name, "schedule")) {
        for (k = 0; k < AUTO_SCHEDULES && strcmp(word, zoo_schedules[k]); k++) {}
        return k < AUTO_SCHEDULES ? k : -1;
    }
    if (!strcmp(name, "zero"))
        last = 3;
    else if (!strcmp(name, "sp"))
        last = 1;
    else if (!strcmp(name, "recompute"))
        last = 2;
    else
        first = 1;
    return value >= first && value <= last ? value : -1;
}

static int auto_fix(auto_choice *fix, const char *text) {
    char name[32], word[32];
    long value;
    int used, i;
    for (; *text; text += used + (text[used] == ',')) {
        used = 0;
        if (sscanf(text, "%31[a-z_]=%31[a-z0-9-]%n", name, word, &used) != 2 || (text[used] && text[used] != ','))
            return wrong("auto", "--fix takes NAME=VALUE,... as in tp=8,schedule=1f1b", text);
        for (i = 0; i < AUTO_CHOICES && strcmp(name, auto_names[i]); i++) {}
        if (i == AUTO_CHOICES)
            return wrong("auto", "--fix knows tp cp pp ep dp dp_shard zero sp micro schedule chunks recompute, not",
                         name);
        if ((value = auto_fixed(name, word)) < 0)
            return wrong("auto",
                         "--fix: no such value (zero 0 to 3; sp 0, 1; recompute 0, 1, 2; schedule 1f1b, interleaved, "
                         "gpipe, zb-h1; others from 1)",
                         text);
        memcpy((char *)fix + (size_t)i * sizeof value, &value, sizeof value);
    }
    return 0;
}

/* The published run as a choice; what it does not say is free. */
static void auto_published(auto_search *s) {
    const zoo_run *r = &s->run;
    auto_choice *c = &s->published;
    c->tp = (long)r->tp, c->cp = (long)r->cp, c->pp = (long)r->pp, c->ep = (long)r->ep, c->dp = (long)r->dp;
    c->dp_shard = -1;
    c->zero = (long)r->zero, c->sp = (long)r->sp, c->micro = (long)r->micro, c->chunks = (long)r->chunks;
    c->schedule = (long)r->schedule, c->recompute = (long)r->recompute;
}

static void auto_close(auto_search *s) {
    size_t i;
    for (i = 0; i < AUTO_BUCKETS; i++)
        while (s->plans[i]) {
            auto_plan *next = s->plans[i]->next;
            free(s->plans[i]);
            s->plans[i] = next;
        }
    while (s->peaks) {
        auto_peaks *next = s->peaks->next;
        free(s->peaks);
        s->peaks = next;
    }
    free(s->plans);
    free(s->best);
}

/* Options into the search; the files' names. 0, or the status of a message; -1: help was asked for. */
static int auto_arguments(auto_search *s, int argc, char **argv, const char **model, const char **cluster,
                          long *batch) {
    int i, status;
    for (i = 0; i < argc; i++) {
        const char *arg = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        long *n = !strcmp(arg, "--top")       ? &s->top
                  : !strcmp(arg, "--batch")   ? batch
                  : !strcmp(arg, "--devices") ? &s->devices
                                              : NULL;
        if (is_help(arg)) return -1;
        if (!strcmp(arg, "--json")) {
            s->json = 1;
            continue;
        }
        if (!n && strcmp(arg, "--model") && strcmp(arg, "--cluster") && strcmp(arg, "--fix"))
            return wrong("auto", "unknown option", arg);
        if (!value) return wrong("auto", "a value is missing after", arg);
        if (n && (*n = number(value)) < 1) return wrong("auto", "a whole number from 1 to 999999 is expected", value);
        if (!strcmp(arg, "--model")) *model = value;
        if (!strcmp(arg, "--cluster")) *cluster = value;
        if (!strcmp(arg, "--fix") && (status = auto_fix(&s->fix, value)) != 0) return status;
        i++;
    }
    return *model && *cluster ? 0 : wrong("auto", "expected --model FILE and --cluster FILE", NULL);
}

static int command_auto(const char *self, int argc, char **argv) {
    static auto_search s;
    const char *model = NULL, *cluster = NULL;
    long batch = 0, all;
    char said[100];
    int status;
    (void)self;
    memset(&s.fix, -1, sizeof s.fix);
    s.top = 10;
    if ((status = auto_arguments(&s, argc, argv, &model, &cluster, &batch)) != 0)
        return status > 0 ? status : fputs(auto_help, stdout) < 0;
    if ((status = zoo_read_model(&s.zoo.model, &s.run, model, "auto", 1)) != 0 ||
        (status = auto_read_cluster(&s.cluster, cluster)) != 0)
        return status;
    if (s.run.experts <= 0) s.run.experts = -1;
    auto_published(&s);
    if (batch || s.devices) s.run.tflops = 0; /* what was published is another run */
    if (batch) s.zoo.model.batch = batch;
    all = (long)(s.cluster.hosts * s.cluster.devices_per_host);
    if (!s.devices) s.devices = s.run.devices > 0 ? (long)s.run.devices : all;
    snprintf(said, sizeof said, "%ld devices, but the cluster has %ld; take as many or fewer", s.devices, all);
    if (s.devices > all) return wrong("auto", said, NULL);
    if (!(s.plans = (auto_plan **)calloc(AUTO_BUCKETS, sizeof *s.plans))) return wrong("auto", "no memory", NULL);
    auto_run(&s);
    status = auto_print(&s);
    auto_close(&s);
    return status;
}
#endif
