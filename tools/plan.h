/* mesh plan: what a redistribution would do, step by step, beside the ways not taken. Needs no ranks. */
#ifndef TOOL_PLAN_H
#define TOOL_PLAN_H

enum { PLAN_ALTERNATIVES = 6, PLAN_EXACT_PEERS = 1 << 22 };

static const char plan_help[] =
    "usage: mesh plan --mesh dp=8,tp=8 --shape 8192x8192 [--dtype bf16] [options] \"dp:S(0) tp:R\" \"dp:R tp:S(0)\"\n\n"
    "Explains how mesh_redistribute would bring a tensor from one layout to the other: each step, bytes of the worst rank,\n"
    "messages, predicted time and scratch, the least bytes that are possible, and the alternatives not taken.\n\n"
    "  --to-mesh tp=4        the destination's mesh, where it is another; @8 behind it: from rank 8 on\n"
    "  --dtype f32           or --elem-bytes N\n"
    "  --topology TEXT       levels from the innermost out, RANKS:LATENCY:BANDWIDTH, \"8:2us:400GB/s,*:10us:25GB/s\"\n"
    "  --cap 64M             scratch a rank may use beside source and destination\n"
    "  --strict              refuse sizes that the shards do not divide\n"
    "  --json                the same for programs\n"
    "A spec names an axis' place: R, S(dim), S(dim)@order, P(op); or per dim \"[dp,tp] [*]\".\n";

/* 8192x8192. Returns the number of dims, or -1. */
static int plan_shape(const char *text, int64_t *shape) {
    int n = 0;
    char *end;
    if (!strcmp(text, "scalar")) return 0;
    for (;; text = end + 1) {
        long long v = (errno = 0, strtoll(text, &end, 10));
        if (*text < '0' || *text > '9' || errno || n == MESH_MAX_DIMS) return -1;
        shape[n++] = v;
        if (!*end) return n;
        if (*end != 'x' && *end != ',') return -1;
    }
}

/* A number that is not whole: of what strtod reads, neither signs nor hexadecimal nor a point with nothing behind it. end: behind it. -1: it is none. */
static double decimal(const char *text, char **end) {
    double v = strtod(text, end);
    const char *x = strpbrk(text, "xX");
    if (!strchr("0123456789.", *text) || *end == text || (x && x < *end) || (*end)[-1] == '.') return -1;
    return v;
}

/* 64M as bytes, or -1. */
static int64_t plan_bytes(const char *text) {
    char *end;
    double v = decimal(text, &end);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : *end ? -1 : 0;
    if (strspn(text, "0123456789.") != (size_t)(end - text) || v < 0 || shift < 0 || (shift && end[1]) || v > 1e12)
        return -1;
    v *= (double)(INT64_C(1) << shift);
    return v < 9e18 && v == (double)(int64_t)v ? (int64_t)v : -1;
}

static void plan_print(const mesh_plan *p, size_t (*print)(const mesh_plan *, char *, size_t)) {
    size_t n = print(p, NULL, 0);
    char *text = (char *)malloc(n + 1);
    if (!text) return;
    print(p, text, n + 1);
    fputs(text, stdout);
    free(text);
}

/* "all_to_all over dp, all_gather over tp" in a line. */
static void plan_line(const mesh_plan *p) {
    int k;
    for (k = 0; k < p->nsteps; k++) {
        char axes[256];
        mesh__text t = mesh__text_on(axes, sizeof axes);
        mesh__put_change(&t, p, k);
        printf("%s%s %s", k ? ", " : "", mesh_step_name(p, k), axes);
    }
}

static void plan_number(const char *name, int64_t v, const char *end) {
    if (v >= 0)
        printf("\"%s\": %lld%s", name, (long long)v, end);
    else
        printf("\"%s\": null%s", name, end);
}

static int plan_show(const mesh_plan *plans, int n, int json) {
    const mesh_plan *p = &plans[0];
    int small = (int64_t)p->at[0].size * p->at[1].size <= PLAN_EXACT_PEERS, k;
    int64_t exact = small ? mesh_plan_measure(p) : -1, bound = small ? mesh_plan_lower_bound(p) : -1;
    if (json) {
        printf("{\"plan\": ");
        plan_print(p, mesh_plan_json);
        printf(", ");
        plan_number("exact_bytes", exact, ", ");
        plan_number("lower_bound", bound, ", \"alternatives\": [");
        for (k = 1; k < n; k++) {
            printf("%s", k > 1 ? ", " : "");
            plan_print(&plans[k], mesh_plan_json);
        }
        printf("]}\n");
        return 0;
    }
    plan_print(p, mesh_plan_format);
    if (exact >= 0) printf("bytes of the worst rank, counted: %lld", (long long)exact);
    if (bound >= 0) printf("; no way needs fewer than %lld", (long long)bound);
    if (exact >= 0 || bound >= 0) printf("\n");
    if (n > 1) printf("not taken (predicted us, bytes/rank, scratch):\n");
    for (k = 1; k < n; k++) {
        printf("  %10.1f %14lld %14lld  ", (double)plans[k].ps / 1e6, (long long)plans[k].bytes,
               (long long)plans[k].scratch);
        plan_line(&plans[k]);
        printf("\n");
    }
    return 0;
}

static int command_plan(const char *self, int argc, char **argv) {
    static mesh_plan plans[PLAN_ALTERNATIVES];
    const char *mesh_text = NULL, *to_text = NULL, *shape_text = NULL, *spec_text[2] = {NULL, NULL};
    mesh_plan_desc d = MESH_ZERO;
    mesh_topology topology;
    mesh src, dst;
    mesh_layout from, to;
    int64_t shape[MESH_MAX_DIMS + 1];
    mesh_error err;
    int ndim, i, n, json = 0, strict = 0, nspecs = 0, origin = 0, dtype = -1;
    (void)self;
    for (i = 0; i < argc; i++) {
        const char *arg = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        int takes = !strcmp(arg, "--mesh") || !strcmp(arg, "--to-mesh") || !strcmp(arg, "--shape") ||
                    !strcmp(arg, "--dtype") || !strcmp(arg, "--topology") || !strcmp(arg, "--cap") ||
                    !strcmp(arg, "--elem-bytes");
        if (is_help(arg)) {
            fputs(plan_help, stdout);
            return 0;
        }
        if (takes && (!value || !strncmp(value, "--", 2))) return wrong("plan", "a value is missing after", arg);
        if (!strcmp(arg, "--json")) {
            json = 1;
        } else if (!strcmp(arg, "--strict")) {
            strict = 1;
        } else if (!strcmp(arg, "--mesh")) {
            mesh_text = value;
        } else if (!strcmp(arg, "--to-mesh")) {
            to_text = value;
        } else if (!strcmp(arg, "--shape")) {
            shape_text = value;
        } else if (!strcmp(arg, "--dtype")) {
            for (n = 0; n < MESH_DTYPE_COUNT && strcmp(value, mesh_dtype_name((mesh_dtype)n)); n++) {}
            if (n == MESH_DTYPE_COUNT) return wrong("plan", "no such dtype (f32, bf16, i64, ...)", value);
            dtype = n;
        } else if (!strcmp(arg, "--elem-bytes")) {
            d.elem_bytes = plan_bytes(value);
            if (d.elem_bytes < 1) return wrong_value("plan", arg, "a whole number of bytes from 1 to 10^12", value);
        } else if (!strcmp(arg, "--cap")) {
            d.scratch_cap = plan_bytes(value);
            if (d.scratch_cap < 1)
                return wrong_value("plan", arg, "a whole number of bytes from 1 to 10^12 (64M)", value);
        } else if (!strcmp(arg, "--topology")) {
            if (mesh_topology_parse(&topology, value, &err)) return wrong("plan", err.text, NULL);
            d.topology = &topology;
        } else if (arg[0] == '-') {
            return wrong("plan", "unknown option", arg);
        } else if (nspecs == 2) {
            return wrong("plan", "more than two specs", arg);
        } else {
            spec_text[nspecs++] = arg;
        }
        i += takes;
    }
    if (!mesh_text || !shape_text || nspecs < 2)
        return wrong(
            "plan",
            "expected --mesh, --shape and two specs, as in mesh plan --mesh dp=4 --shape 1024x64 \"dp:S(0)\" \"dp:S(1)\"",
            NULL);
    if (dtype >= 0 && d.elem_bytes) return wrong("plan", "--dtype and --elem-bytes: one of them", NULL);
    if (dtype >= 0 || d.elem_bytes) d.dtype = d.elem_bytes ? MESH_BYTES : (mesh_dtype)dtype;
    if ((ndim = plan_shape(shape_text, shape)) < 0)
        return wrong("plan", "no shape (8192x8192, at most 8 dims)", shape_text);
    if (mesh_parse(&src, mesh_text, 0, &err)) return wrong("plan", err.text, NULL);
    dst = src;
    if (to_text) {
        char text[256];
        const char *at = strchr(to_text, '@');
        mesh_desc desc = MESH_ZERO;
        const char *names[MESH_MAX_AXES];
        int sizes[MESH_MAX_AXES], k;
        mesh dense;
        snprintf(text, sizeof text, "%.*s", at ? (int)(at - to_text) : (int)strlen(to_text), to_text);
        if (mesh_parse(&dense, text, 0, &err)) return wrong("plan", err.text, NULL);
        if (at && (strspn(at + 1, "0123456789") != strlen(at + 1) || !at[1] || strlen(at + 1) > 9))
            return wrong("plan", "no rank behind @", to_text);
        origin = at ? atoi(at + 1) : 0;
        for (k = 0; k < dense.naxes; k++) names[k] = dense.axis[k].name, sizes[k] = dense.axis[k].size;
        desc.shape = sizes, desc.names = names, desc.naxes = dense.naxes, desc.origin = origin;
        if (mesh_make(&dst, &desc, &err)) return wrong("plan", err.text, NULL);
    }
    if (mesh_layout_parse(&from, &src, spec_text[0], ndim, shape, &err) ||
        mesh_layout_parse(&to, &dst, spec_text[1], ndim, shape, &err))
        return wrong("plan", err.text, NULL);
    if (strict) from.spec.strict = to.spec.strict = 1;
    d.src = &from;
    d.dst = &to;
    n = mesh_plan_candidates(plans, PLAN_ALTERNATIVES, &d, &err);
    if (n < 0) {
        fprintf(stderr, "mesh plan: %s\n", err.text);
        return 1;
    }
    return plan_show(plans, n, json);
}

#endif
