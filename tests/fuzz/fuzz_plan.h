/* Plans: two layouts, a topology and a cap, from bytes. The plan and every candidate are run over data by one thread (t_plan.h). */

static int fuzz_plan_table[2][PLAN_RANKS], fuzz_plan_inverse[2][PLAN_RANKS];
static mesh_table devices[2];

/* A mesh of `size` ranks from `origin` on: axes in some order, with gaps, from a table, flattened. */
static int fuzz_plan_mesh(fuzz_bytes *b, mesh *m, int origin, int size, int which) {
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    mesh_desc d = MESH_ZERO;
    int shape[6], strides[6], i, rest = size, how = fuzz_byte(b);
    for (i = 2; i <= rest && d.naxes < 4; i++)
        while (rest % i == 0 && d.naxes < 4 && fuzz_below(b, 4)) shape[d.naxes++] = i, rest /= i;
    shape[d.naxes++] = rest;
    if (how & 1) shape[d.naxes++] = 1;
    d.shape = shape, d.names = names, d.origin = origin;
    d.first_fastest = how >> 1 & 1;
    if (how & 4) {
        int64_t span = 1;
        for (i = d.naxes - 1; i >= 0; i--) {
            strides[i] = (int)span + fuzz_below(b, 3);
            span += (int64_t)(shape[i] - 1) * strides[i];
        }
        if (origin + span <= PLAN_RANKS) d.strides = strides;
    }
    if (how & 8) {
        int *table = fuzz_plan_table[which], k, other;
        for (i = 0; i < PLAN_RANKS; i++) table[i] = i;
        for (i = fuzz_below(b, 16); i > 0; i--)
            k = fuzz_below(b, PLAN_RANKS), other = table[i], table[i] = table[k], table[k] = other;
        d.table = &devices[which];
        if (mesh_table_make(&devices[which], table, PLAN_RANKS, fuzz_plan_inverse[which], PLAN_RANKS, NULL)) return 0;
    }
    if (mesh_make(m, &d, NULL) != MESH_OK) return 0;
    if (how & 16 && m->naxes > 1) {
        mesh flat;
        char axes[40];
        snprintf(axes, sizeof axes, "%s,%s", m->axis[m->naxes - 1].name, m->axis[0].name);
        if (mesh_flatten(&flat, m, axes, "flat", NULL) == MESH_OK) *m = flat;
    }
    return 1;
}

static int fuzz_plan_spec(fuzz_bytes *b, mesh_spec *s, const mesh *m, int ndim, int op) {
    mesh_place place[MESH_MAX_AXES];
    int i, k, rule = fuzz_byte(b);
    for (i = 0; i < m->naxes; i++) {
        int what = fuzz_byte(b);
        place[i] = what % 4 == 0   ? mesh_partial((mesh_op)op)
                   : what % 4 == 3 ? (what & 4 ? mesh_invariant() : mesh_replicate())
                                   : mesh_shard(ndim ? what / 4 % ndim : 0);
    }
    if (mesh_spec_make(s, m, place, ndim, NULL) != MESH_OK) return 0;
    for (i = 0; i < m->naxes && rule & 2; i++)
        for (k = 0; k < i; k++)
            if (s->axis[i].kind == MESH_SHARD && s->axis[k].kind == MESH_SHARD && s->axis[i].dim == s->axis[k].dim &&
                fuzz_below(b, 2)) {
                uint8_t order = s->axis[i].order;
                s->axis[i].order = s->axis[k].order, s->axis[k].order = order;
            }
    s->rule = rule & 1 ? MESH_RULE_BALANCED : MESH_RULE_CHUNK;
    s->strict = rule >> 2 & 1 && rule >> 3 & 1;
    return 1;
}

static void fuzz_plan_topology(fuzz_bytes *b, mesh_topology *t) {
    int i;
    memset(t, 0, sizeof *t);
    t->nlevels = fuzz_below(b, 4);
    for (i = 0; i < t->nlevels; i++) {
        t->level[i].ranks = i == t->nlevels - 1 && fuzz_below(b, 8) ? INT32_MAX : 1 + fuzz_below(b, 9);
        if (i && t->level[i].ranks < INT32_MAX) t->level[i].ranks *= t->level[i - 1].ranks;
        t->level[i].latency_ps = (int64_t)fuzz_number(b, 2) << fuzz_below(b, 24);
        t->level[i].ps_per_byte_16 = (int64_t)fuzz_number(b, 2) << fuzz_below(b, 16);
    }
}

/* Brackets and quotes match, and nothing follows. */
static int fuzz_is_json(const char *p) {
    char open[64];
    int depth = 0, quoted = 0;
    for (; *p; p++) {
        if (quoted) {
            if (*p == '\\' && p[1])
                p++;
            else if (*p == '"')
                quoted = 0;
            else if ((unsigned char)*p < ' ' && *p != '\n')
                return 0;
        } else if (*p == '"') {
            quoted = 1;
        } else if (*p == '{' || *p == '[') {
            if (depth == 64) return 0;
            open[depth++] = *p == '{' ? '}' : ']';
        } else if (*p == '}' || *p == ']') {
            if (!depth || open[--depth] != *p) return 0;
        } else if (*p == ',' && (p[1 + strspn(p + 1, " \n")] == '}' || p[1 + strspn(p + 1, " \n")] == ']')) {
            return 0;
        }
    }
    return !depth && !quoted;
}

/* One plan: it moves every element to where it belongs, counts its bytes, holds its cap, and can be shown. */
static int fuzz_plan_runs(const mesh_plan *p, const plan_ask *d) {
    char *text;
    int moves = 0;
    int64_t bound = mesh_plan_lower_bound(p), measured = mesh_plan_measure(p);
    if (!plan_interpret(p, &moves)) return 0;
    if (bound > measured || measured > p->bytes)
        test_fail(__FILE__, __LINE__, "bound %lld, measured %lld:\n%s", (long long)bound, (long long)measured,
                  plan_text(p));
    if (d->scratch_cap) CHECK(p->scratch <= d->scratch_cap);
    FUZZ_SHOWN(text, mesh_plan_json(p, buf, cap));
    CHECK(fuzz_is_json(text));
    free(text);
    FUZZ_SHOWN(text, mesh_plan_format(p, buf, cap));
    free(text);
    return !test_failures;
}

static void fuzz_plan(const unsigned char *data, size_t n) {
    static const int sizes[] = {1, 2, 3, 4, 6, 8, 12, 5, 4, 16},
                     ops[] = {MESH_SUM, MESH_MAX, MESH_MIN, MESH_XOR, MESH_PROD};
    static mesh_plan plan, again, other[8];
    fuzz_bytes b = fuzz_bytes_of(data, n);
    mesh src, dst;
    mesh_spec from, to;
    mesh_topology t;
    plan_ask d = MESH_ZERO;
    mesh_error err;
    mesh_status status;
    int64_t elements = 1;
    int how = fuzz_byte(&b), size = sizes[fuzz_below(&b, 10)], op = ops[fuzz_below(&b, 5)], origin = fuzz_below(&b, 3),
        k, found;
    d.ndim = fuzz_below(&b, 5);
    if (!fuzz_plan_mesh(&b, &src, origin, size, 0)) return;
    dst = src;
    if (how % 4 == 1 && !fuzz_plan_mesh(&b, &dst, origin, size, 1)) return;
    if (how % 4 == 2 &&
        !fuzz_plan_mesh(&b, &dst, fuzz_below(&b, 4) + (how & 16 ? origin + size : 0), sizes[fuzz_below(&b, 6)], 1))
        return;
    for (k = 0; k < d.ndim; k++) {
        d.shape[k] = fuzz_below(&b, 25);
        if (elements * d.shape[k] > 300) d.shape[k] = 1;
        elements *= d.shape[k];
    }
    if (!fuzz_plan_spec(&b, &from, &src, d.ndim, op) || !fuzz_plan_spec(&b, &to, &dst, d.ndim, op)) return;
    fuzz_plan_topology(&b, &t);
    d.src = &src, d.dst = how % 4 ? &dst : NULL, d.from = &from, d.to = &to;
    d.elem_bytes = how & 4 ? 1 + fuzz_below(&b, 16) : how & 8 ? 40000 : 0;
    d.topology = t.nlevels || how & 32 ? &t : NULL;
    d.scratch_cap = how & 64 ? (int64_t)fuzz_number(&b, 3) : 0;
    status = ask_plan(&plan, &d, &err);
    CHECK_INT(ask_plan(&again, &d, NULL), status); /* twice the same: nothing but the description counts */
    if (status == MESH_ERR_MEMORY) {                     /* the least is named, and is possible; one byte less is not */
        const char *least = strstr(err.text, "possible is ");
        CHECK(least != NULL && d.scratch_cap > 0);
        if (!least) return;
        d.scratch_cap = strtoll(least + 12, NULL, 10) - 1;
        if (d.scratch_cap > 0) CHECK_INT(ask_plan(&plan, &d, &err), MESH_ERR_MEMORY);
        d.scratch_cap++;
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        CHECK_OK(ask_plan(&again, &d, &err), err);
    } else if (status != MESH_OK) {
        fuzz_refused(status, &err, "mesh_plan_make");
        return;
    }
    if (test_failures) return;
    CHECK(plan.hash == again.hash && plan.ps == again.ps && plan.bytes == again.bytes && plan.nsteps == again.nsteps);
    if (!fuzz_plan_runs(&plan, &d)) return;
    found = ask_candidates(other, how & 128 ? 8 : 1, &d, &err);
    CHECK(found > 0);
    for (k = 0; k < found && k < 8; k++) {
        if (!fuzz_plan_runs(&other[k], &d)) return;
        if (k) CHECK(other[k].ps >= other[k - 1].ps);
    }
    if (found > 0) CHECK_INT(other[0].ps, plan.ps);
}
