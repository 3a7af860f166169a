/* Destinations that add, floats of two dtypes, in place: against sums made by one rank, rounded by this file's own arithmetic. */
#ifndef T_TENSORS_H
#define T_TENSORS_H

/* Conversions by the kernels: every bit pattern of the small ones, ties, numbers that two roundings would get wrong, infinities. */
static void test_convert(void) {
    test_random r = random_from(77);
    int from, to, i;
    for (from = 0; from < 4; from++)
        for (to = 0; to < 4; to++) {
            mesh_dtype a = float_dtypes[from], b = float_dtypes[to];
            for (i = 0; i < 65536; i++) {
                double v = 0, in[2], out[2], want;
                uint16_t bits = (uint16_t)i;
                if (from < 2) {
                    v = float_at(a, &bits, 0);
                    if (v != v || v - v != 0) continue;
                } else { /* halfway between two of b's, and a hair beside it */
                    int e = random_below(&r, 12) - 4, k;
                    double hair = from == 3 ? 1e-14 : 0;
                    v = 1 + (double)random_below(&r, 4096) / 2048 + (double)(random_below(&r, 3) - 1) * hair;
                    for (k = 0; k < e; k++) v *= 2;
                    for (k = 0; k > e; k--) v /= 2;
                    if (random_below(&r, 2)) v = -v;
                    v = float_rounded(a, v);
                }
                want = float_rounded(b, v);
                if (b == MESH_F16 && (want > 65504 || want < -65504)) continue;
                memset(in, 0, sizeof in), memset(out, 0x5a, sizeof out);
                float_put(a, in, 0, v);
                mesh__convert(b, out, a, in, 1, -1);
                if (float_at(b, out, 0) != want) {
                    test_fail(__FILE__, __LINE__, "%s to %s: %.17g is %.17g, expected %.17g", mesh_dtype_name(a),
                              mesh_dtype_name(b), v, float_at(b, out, 0), want);
                    return;
                }
            }
        }
    {
        double big = 1e300, nan = 0, out[2];
        float f;
        nan /= nan;
        mesh__convert(MESH_F32, out, MESH_F64, &big, 1, -1);
        memcpy(&f, out, 4);
        CHECK(f > 3e38f && f - f != 0);
        mesh__convert(MESH_BF16, out, MESH_F64, &big, 1, -1);
        CHECK(float_at(MESH_BF16, out, 0) > 3e38);
        mesh__convert(MESH_F16, out, MESH_F64, &nan, 1, -1);
        CHECK(float_at(MESH_F16, out, 0) != float_at(MESH_F16, out, 0));
    }
    { /* lengths beyond a piece, and a fold: 2 + 1 in the wider, rounded once */
        uint16_t in[300];
        float sum[300];
        for (i = 0; i < 300; i++) float_put(MESH_BF16, in, i, 3 + i % 100), sum[i] = 16777216.0f - (float)i;
        mesh__convert(MESH_F32, sum, MESH_BF16, in, 300, MESH_SUM);
        for (i = 0; i < 300; i++) CHECK(sum[i] == (float)(16777216.0 - i + 3 + i % 100));
        mesh__convert(MESH_F32, sum, MESH_BF16, in, 300, MESH_MIN);
        CHECK(sum[299] == 102);
    }
}

/* ---- redistributions ---- */

typedef struct tensor_problem {
    mesh_tensor src, dst;
    int op, partial; /* partial: the destination is */
    int64_t elems;
    unsigned salt;
} tensor_problem;

/* What a rank's summand number k of an element is: a value of the source's dtype. */
static double tensor_value(const tensor_problem *p, int64_t at, int k, int summands) {
    unsigned h = ((unsigned)at * 2654435761u + (unsigned)k * 40503u + p->salt * 977u) >> 8;
    int range = summands == 1 && p->src.dtype != p->dst.dtype && !p->partial ? 3000 : 15;
    return float_rounded(p->src.dtype, (double)(h % (unsigned)(2 * range)) - range);
}

/* The whole element: summands combined, exactly. */
static double tensor_whole(const tensor_problem *p, int64_t at) {
    int k, of;
    double v;
    plan_partial_index(p->src.layout.on, &p->src.layout.spec, mesh_rank_at(p->src.layout.on, 0), &of);
    v = tensor_value(p, at, 0, of);
    for (k = 1; k < of; k++) {
        double w = tensor_value(p, at, k, of);
        v = p->op == MESH_MAX ? (v > w ? v : w) : v + w;
    }
    return v;
}

/* What lies in the destination before. */
static double tensor_before(const tensor_problem *p, int64_t at) { return (double)((at * 3 + p->salt) % 11) - 5; }

/* Check this rank's part of a destination that is not partial. */
static int tensor_wrong(const tensor_problem *p, const mesh_tensor *t, const int64_t *strides, int rank,
                        const mesh_box *box, int64_t count) {
    int64_t e, wrong = 0;
    for (e = 0; e < count; e++) {
        int64_t at = plan_linear_in(t->layout.ndim, t->layout.shape, box, e);
        double value = tensor_whole(p, at), want;
        want = float_rounded(p->dst.dtype, value);
        if (p->dst.add) want = float_rounded(p->dst.dtype, tensor_before(p, at) + want);
        if (float_at(t->dtype, t->data, e * (strides ? 2 : 1)) == want) continue;
        if (!wrong++) {
            char from[100], to[100];
            mesh_spec_format(&p->src.layout.spec, p->src.layout.on, from, sizeof from);
            mesh_spec_format(&p->dst.layout.spec, p->dst.layout.on, to, sizeof to);
            test_fail(__FILE__, __LINE__, "rank %d: %s %s to %s %s, add %d: element %lld is %g, expected %g (value %g)",
                      rank, mesh_dtype_name(p->src.dtype), from, mesh_dtype_name(p->dst.dtype), to, p->dst.add,
                      (long long)at, float_at(t->dtype, t->data, e * (strides ? 2 : 1)), want, value);
        }
    }
    return wrong != 0;
}

/* A partial destination says what it holds when it is reduced: the sum of what was there, and the value. */
static void tensor_reduced(mesh_comm *c, const tensor_problem *p) {
    mesh_tensor whole = p->dst, part = p->dst;
    mesh_box box;
    int of, i, rank = c->transport->rank;
    int64_t e, count;
    for (i = 0; i < whole.layout.on->naxes; i++) whole.layout.spec.axis[i] = mesh_replicate();
    part.add = whole.add = 0;
    count = mesh_tensor_box(&whole, rank, &box);
    whole.data = calloc((size_t)count + 1, 8);
    whole.strides = NULL;
    CHECK_OK(mesh_redistribute(c, &part, &whole), c->error);
    plan_partial_index(p->dst.layout.on, &p->dst.layout.spec, rank, &of);
    for (e = 0; e < count; e++) {
        double want = tensor_whole(p, e) + (p->dst.add ? of * tensor_before(p, e) : 0);
        if (float_at(whole.dtype, whole.data, e) != want) {
            test_fail(__FILE__, __LINE__, "rank %d: partial element %lld is %g, expected %g", rank, (long long)e,
                      float_at(whole.dtype, whole.data, e), want);
            break;
        }
    }
    free(whole.data);
}

static void tensor_try(mesh_comm *c, test_random *r, unsigned salt) {
    static const int64_t shapes[][3] = {{7, 5, 0}, {24, 0, 0}, {3, 8, 4}, {64, 9, 0}, {1, 1, 1}, {0, 3, 0}};
    const int64_t *shape = shapes[random_below(r, 6)];
    int ndim = random_below(r, 12) ? shape[2] ? 3 : shape[1] ? 2 : 1 : 0, rank = c->transport->rank, strided, i, k, of;
    int64_t e, from_count, to_count, strides[3];
    tensor_problem p;
    mesh_box from, to;
    memset(&p, 0, sizeof p);
    p.salt = salt;
    p.op = random_below(r, 4) ? MESH_SUM : MESH_MAX;
    p.src.dtype = float_dtypes[random_below(r, 4)];
    p.dst.dtype = random_below(r, 3) ? float_dtypes[random_below(r, 4)] : p.src.dtype;
    p.dst.add = random_below(r, 2);
    p.src.layout = tensor_layout(r, &c->on, ndim, shape, p.op);
    p.dst.layout = tensor_layout(r, &c->on, ndim, shape, p.op);
    for (i = 0; i < c->on.naxes; i++)
        p.partial |= p.dst.layout.spec.axis[i].kind == MESH_PARTIAL && c->on.axis[i].size > 1;
    if (p.partial && p.op != MESH_SUM) return;
    strided = ndim > 0 && !p.partial && random_below(r, 3) == 0;
    from_count = mesh_tensor_box(&p.src, rank, &from);
    to_count = mesh_tensor_box(&p.dst, rank, &to);
    p.src.data = calloc((size_t)from_count + 1, 8);
    p.dst.data = calloc(2 * (size_t)to_count + 2, 8);
    k = plan_partial_index(p.src.layout.on, &p.src.layout.spec, rank, &of);
    for (e = 0; e < from_count; e++)
        float_put(p.src.dtype, p.src.data, e, tensor_value(&p, plan_linear_in(ndim, shape, &from, e), k, of));
    for (e = 0; e < to_count; e++)
        float_put(p.dst.dtype, p.dst.data, e * (strided ? 2 : 1),
                  tensor_before(&p, plan_linear_in(ndim, shape, &to, e)));
    for (i = ndim - 1; i >= 0; i--) strides[i] = i == ndim - 1 ? 2 : strides[i + 1] * to.shape[i + 1];
    if (strided) p.dst.strides = strides;
    CHECK_OK(mesh_redistribute(c, &p.src, &p.dst), c->error);
    if (p.partial)
        tensor_reduced(c, &p);
    else
        tensor_wrong(&p, &p.dst, p.dst.strides, rank, &to, to_count);
    free(p.src.data), free(p.dst.data);
}

static void tensors_rank(mesh_transport *t, void *ctx) {
    static const char *const meshes[] = {"a=-1", "a=2,b=-1", "a=-1,b=2"};
    int i, k;
    for (i = 0; i < 3; i++) {
        test_random r = random_from(4242 + (uint64_t)i + (uint64_t)t->size);
        mesh_comm c;
        mesh m;
        mesh_error err;
        mesh_comm_desc desc = MESH_ZERO;
        if (i && t->size % 2) continue;
        desc.scratch_cap = i == 1 ? 60000 : 0;
        CHECK_OK(mesh_parse(&m, meshes[i], t->size, &err), err);
        CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
        for (k = 0; k < *(int *)ctx && !test_failures; k++) tensor_try(&c, &r, (unsigned)(i * 1000 + k));
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
    }
}
static void tensors_on(int backend, int problems) {
    static const int sizes[] = {1, 2, 3, 4, 6, 8};
    int i;
    for (i = 0; i < 6; i++) run_world(backend, sizes[i], tensors_rank, &problems);
}
static void test_tensors_sim(void) { tensors_on(SIM, test_long ? 4000 : 400); }
static void test_tensors_tcp(void) { tensors_on(TCP, 40); }

/* Large ones, in rounds: gradients of bf16 onto an f32 shard, added twice; a list with both kinds; kept and started again; scratch as it was said. */
static void tensors_large_rank(mesh_transport *t, void *ctx) {
    enum { ROWS = 1024, COLUMNS = 640 };
    static const int64_t shape[2] = {ROWS, COLUMNS};
    mesh_comm c;
    mesh_tensor src[2], dst[2];
    mesh_error err;
    mesh_request r;
    mesh_box box;
    int64_t e, count, scratch;
    int round, i;
    (void)ctx;
    if (!open_comm(t, &c, "dp=-1", NULL, 30 * SECOND)) return;
    for (i = 0; i < 2; i++) {
        CHECK_OK(mesh_tensor_make(&src[i], &c.on, "dp:P(sum)", i ? MESH_F32 : MESH_BF16, 2, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&dst[i], &c.on, i ? "dp:I" : "dp:S(0)", i ? MESH_BF16 : MESH_F32, 2, shape, &err),
                 err);
        src[i].data = calloc(ROWS * COLUMNS, 4);
        dst[i].data = calloc(ROWS * COLUMNS, 4);
        for (e = 0; e < ROWS * COLUMNS; e++) float_put(src[i].dtype, src[i].data, e, (double)(e % 120 + t->rank));
    }
    dst[0].add = 1;
    CHECK_OK(mesh_redistribute_scratch_bytes(&c, src, dst, 2, &scratch, &err), err);
    CHECK_OK(mesh_redistribute_many_start(&c, src, dst, 2, &r), c.error);
    CHECK_INT(mesh_keep(r), MESH_OK);
    CHECK_INT(mesh_wait(r), MESH_OK);
    CHECK_INT(mesh_restart(r), MESH_OK);
    CHECK_INT(mesh_wait(r), MESH_OK);
    CHECK_INT(mesh_release(r), MESH_OK);
    for (round = 0; round < 2; round++) {
        int64_t wrong = 0;
        count = mesh_tensor_box(&dst[round], t->rank, &box);
        for (e = 0; e < count; e++) {
            int64_t at = box.offset[0] * COLUMNS + e;
            double sum = (double)t->size * (double)(at % 120) + t->size * (t->size - 1) / 2;
            wrong +=
                float_at(dst[round].dtype, dst[round].data, e) != (round ? float_rounded(MESH_BF16, sum) : 2 * sum);
        }
        CHECK_INT(wrong, 0);
    }
    CHECK(scratch > 0);
    for (i = 0; i < 2; i++) free(src[i].data), free(dst[i].data);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_tensors_large(void) {
    run_world(SIM, 4, tensors_large_rank, NULL);
    run_world(TCP, 3, tensors_large_rank, NULL);
}

/* Summands of which two ranks have a copy each, and a fifth gets half of each copy, over links so slow to answer that one step is best: added once. */
static void tensors_shared_rank(mesh_transport *t, void *ctx) {
    enum { COUNT = 100003 };
    static const int64_t shape[1] = {COUNT};
    mesh_comm c;
    mesh_error err;
    mesh_tensor src, dst;
    mesh all, pairs, last;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_topology slow = MESH_ZERO;
    int i, wrong = 0;
    float *a = (float *)calloc(COUNT, sizeof *a), *sum = (float *)calloc(COUNT, sizeof *sum);
    (void)ctx;
    slow.nlevels = 1, slow.level[0].ranks = INT32_MAX;
    slow.level[0].latency_ps = INT64_C(1000000000000), slow.level[0].ps_per_byte_16 = 1 << 16;
    desc.topology = &slow, desc.timeout_ns = 20 * SECOND;
    CHECK_OK(mesh_parse(&all, "x=5", t->size, &err), err);
    CHECK_OK(mesh_comm_open(&c, t, &all, &desc, &err), err);
    CHECK_OK(mesh_parse(&pairs, "a=2,b=2", 4, &err), err);
    CHECK_OK(mesh_group_through(&last, &c.on, "", 4, &err), err);
    CHECK_OK(mesh_tensor_make(&src, &pairs, "a:P(sum)", MESH_F32, 1, shape, &err), err);
    CHECK_OK(mesh_tensor_make(&dst, &last, "", MESH_F32, 1, shape, &err), err);
    for (i = 0; i < COUNT; i++) a[i] = (float)(i % 1000 + t->rank / 2), sum[i] = 3;
    src.data = a, dst.data = sum, dst.add = 1;
    CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
    for (i = 0; i < COUNT; i++) wrong += sum[i] != (t->rank == 4 ? (float)(3 + 2 * (i % 1000) + 1) : 3);
    CHECK_INT(wrong, 0);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    free(a), free(sum);
}
static void test_tensors_shared(void) {
    run_world(SIM, 5, tensors_shared_rank, NULL);
    run_world(TCP, 5, tensors_shared_rank, NULL);
}

/* What a rank has itself is converted, or added, straight from source to destination: no scratch. What is rounded before it is added, a zero that is
   added to -0, and what comes from others too go by copies; all to the same bits. */
static void tensors_straight_rank(mesh_transport *t, void *ctx) {
    static const struct {
        const char *from, *to;
        mesh_dtype in, out;
        int add, straight; /* straight < 0: on rank 0 */
    } rows[] = {{"x:S(0)", "x:S(0)", MESH_F32, MESH_BF16, 0, 1}, {"x:R", "x:S(1)", MESH_F32, MESH_BF16, 0, 1},
                {"x:S(0)", "x:S(0)", MESH_BF16, MESH_F64, 0, 1}, {"x:S(1)", "x:S(1)", MESH_F16, MESH_BF16, 0, 1},
                {"x:R", "x:P(sum)", MESH_F64, MESH_F16, 0, 1},   {"x:R", "x:P(sum)", MESH_BF16, MESH_F64, 0, 1},
                {"x:R", "x:S(0)", MESH_F32, MESH_F32, 1, 1},
                {"x:I", "x:S(1)", MESH_BF16, MESH_F32, 1, 1},    {"x:R", "x:S(0)", MESH_F32, MESH_BF16, 1, 0},
                {"x:R", "x:P(sum)", MESH_F32, MESH_F32, 1, -1},  {"x:S(0)", "x:R", MESH_F32, MESH_BF16, 0, 0}};
    enum { EDGE = 24 };
    static const int64_t shape[2] = {EDGE, EDGE};
    mesh_comm c;
    mesh_error err;
    size_t k;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        double in[EDGE * EDGE], out[EDGE * EDGE + 1];
        mesh_tensor src, dst;
        mesh_box box, got;
        int64_t e, n, scratch, wrong = 0;
        int zero = t->rank && strchr(rows[k].to, 'P') != NULL;
        CHECK_OK(mesh_tensor_make(&src, &c.on, rows[k].from, rows[k].in, 2, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&dst, &c.on, rows[k].to, rows[k].out, 2, shape, &err), err);
        src.data = in, dst.data = out, dst.add = rows[k].add;
        n = mesh_tensor_box(&src, t->rank, &box);
        for (e = 0; e < n; e++)
            float_put(src.dtype, in, e, (double)(plan_linear_in(2, shape, &box, e) * 37 % 4001) / 3 - 600);
        n = mesh_tensor_box(&dst, t->rank, &got);
        for (e = 0; e <= n; e++) float_put(dst.dtype, out, e, e % 3 ? 1 : -0.0);
        CHECK_OK(mesh_redistribute_scratch_bytes(&c, &src, &dst, 1, &scratch, &err), err);
        CHECK_INT(scratch == 0, rows[k].straight < 0 ? !t->rank : rows[k].straight);
        CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
        for (e = 0; e <= n; e++) {
            double before = e % 3 ? 1 : -0.0, want = before, is = float_at(dst.dtype, out, e);
            if (e < n) {
                double v = (double)(plan_linear_in(2, shape, &got, e) * 37 % 4001) / 3 - 600;
                v = float_rounded(src.dtype, v);
                v = zero ? 0 : float_rounded(dst.dtype, v);
                want = dst.add ? float_rounded(dst.dtype, before + v) : v;
            }
            wrong += is != want || (want == 0 && (1 / is > 0) != (1 / want > 0));
        }
        CHECK_INT(wrong, 0);
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_tensors_straight(void) {
    run_world(SIM, 4, tensors_straight_rank, NULL);
    run_world(SIM, 3, tensors_straight_rank, NULL);
}

/* R, I and P among themselves in one memory: an all_reduce in place; nothing at all between R and I; zero but for one summand. */
static void tensors_in_place_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {1000};
    static const char *const ways[][2] = {
        {"x:P(sum)", "x:I"}, {"x:P(max)", "x:R"}, {"x:R", "x:I"}, {"x:I", "x:R"}, {"x:I", "x:P(sum)"}};
    mesh_comm c;
    mesh_error err;
    mesh_tensor src, dst;
    int way, i;
    float *a = (float *)calloc(1000, 4);
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (way = 0; way < 5; way++) {
        uint64_t before = 0, after = 0;
        int wrong = 0;
        CHECK_OK(mesh_tensor_make(&src, &c.on, ways[way][0], MESH_F32, 1, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&dst, &c.on, ways[way][1], MESH_F32, 1, shape, &err), err);
        src.data = dst.data = a;
        for (i = 0; i < 1000; i++) a[i] = way < 2 ? (float)(i + t->rank) : (float)i;
        CHECK_INT(mesh_comm_bytes(&c, NULL, &before, NULL), MESH_OK);
        CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
        CHECK_INT(mesh_comm_bytes(&c, NULL, &after, NULL), MESH_OK);
        for (i = 0; i < 1000; i++) {
            float want = way == 0   ? (float)(t->size * i + t->size * (t->size - 1) / 2)
                         : way == 1 ? (float)(i + t->size - 1)
                         : way == 4 ? (t->rank ? 0 : (float)i)
                                    : (float)i;
            wrong += a[i] != want;
        }
        CHECK_INT(wrong, 0);
        if (way >= 2) CHECK_INT(after, before);
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    dst.add = 1;
    CHECK_INT(mesh_redistribute(&c, &src, &dst), MESH_ERR_ARGUMENT);
    CHECK_HAS(c.error.text, "what arrives is to be added: give it memory of its own");
    mesh_comm_close(&c);
    free(a);
}
static void test_tensors_in_place(void) {
    run_world(SIM, 4, tensors_in_place_rank, NULL);
    run_world(TCP, 2, tensors_in_place_rank, NULL);
}

/* What has no sum is not added, what is no float of four is not converted, and a cap that leaves nothing says how much it takes. */
static void tensors_not_added_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {4096};
    static const struct {
        mesh_dtype from, to;
        int add, status;
        const char *text;
    } cases[] = {
        {MESH_I32, MESH_F32, 0, MESH_ERR_ARGUMENT, "source and destination are i32 and f32"},
        {MESH_F8E4M3, MESH_BF16, 0, MESH_ERR_ARGUMENT, "f16, bf16, f32 and f64 are made of each other"},
        {MESH_BYTES, MESH_BYTES, 1, MESH_ERR_ARGUMENT, "add is set, but bytes is not added"},
        {MESH_F32, MESH_F32, 1, MESH_ERR_MEMORY, "scratch_cap = 3000 bytes; the least possible is "},
        {MESH_F32, MESH_F64, 0, MESH_ERR_MEMORY, "scratch_cap = 3000 bytes; the least possible is "}};
    size_t i;
    (void)ctx;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mesh_comm_desc desc = MESH_ZERO;
        mesh_tensor src, dst;
        mesh_comm c;
        mesh_error err;
        mesh m;
        int64_t room[4096];
        desc.scratch_cap = 3000;
        CHECK_OK(mesh_parse(&m, "x=-1", t->size, &err), err);
        CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
        CHECK_OK(mesh_tensor_make(&src, &c.on, "x:S(0)", cases[i].from, 1, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&dst, &c.on, "x:R", cases[i].to, 1, shape, &err), err);
        src.data = calloc(4096, 8), dst.data = room, dst.add = cases[i].add;
        CHECK_INT(mesh_redistribute(&c, &src, &dst), cases[i].status);
        CHECK_HAS(c.error.text, cases[i].text);
        free(src.data);
        mesh_comm_close(&c);
    }
}
static void test_tensors_not_added(void) { run_world(SIM, 2, tensors_not_added_rank, NULL); }

/* Tensors of no elements, whose other dims are longer together than can be counted: nothing moves, and nothing overflows (under a sanitizer). */
static void tensors_nothing_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[4] = {0, INT64_C(1) << 61, 8, INT64_MAX / 3};
    static const int order[4] = {3, 1, 2, 0};
    static const char *const from[] = {"x:S(1)", "x:P(sum)", "x:R"}, *const to[] = {"x:S(2)", "x:R", "x:S(3)"};
    mesh_comm c;
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (i = 0; i < 3; i++) {
        mesh_tensor src, dst, view;
        mesh_error err;
        int64_t strides[4];
        CHECK_OK(mesh_tensor_make(&src, &c.on, from[i], MESH_F32, 4, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&dst, &c.on, to[i], MESH_F32, 4, shape, &err), err);
        CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
        CHECK_OK(mesh_tensor_permute(&view, &dst, order, t->rank, strides, &err), err);
    }
    mesh_comm_close(&c);
}
static void test_tensors_nothing(void) { run_world(SIM, 2, tensors_nothing_rank, NULL); }

/* A scalar's several steps: a rank that is not in a layout on the way holds nothing of it; where it ends in another dtype, what reaches it is made in
   the copy, whose room alone counts. A plan within the cap serves, in no more than it says. */
static void tensors_scalar_rank(mesh_transport *t, void *ctx) {
    enum { PLANS = 16, CAP = 128 };
    mesh_plan *all = (mesh_plan *)malloc(PLANS * sizeof *all); /* a rank's own: they are threads */
    mesh_tensor src, dst;
    mesh_plan_desc d;
    mesh_desc half = MESH_ZERO;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_topology free_steps = MESH_ZERO;
    mesh_comm c;
    mesh_error err;
    mesh_request r;
    mesh whole, from, to;
    int shape[] = {5}, wide;
    uint16_t value = mesh__f16_of_f32(3);
    (void)ctx;
    CHECK_OK(mesh_topology_parse(&free_steps, "*:0ns:1000GB/s", &err), err);
    desc.topology = &free_steps, desc.scratch_cap = CAP;
    CHECK_OK(mesh_parse(&whole, "x=10", t->size, &err), err);
    CHECK_OK(mesh_comm_open(&c, t, &whole, &desc, &err), err);
    half.shape = shape, half.naxes = 1;
    CHECK_OK(mesh_make(&from, &half, &err), err);
    half.origin = 5;
    CHECK_OK(mesh_make(&to, &half, &err), err);
    CHECK_OK(mesh_tensor_make(&src, &from, "dim0:R", MESH_F16, 0, NULL, &err), err);
    for (wide = 0; wide < 2; wide++) {
        int n, k, passes = 0;
        CHECK_OK(mesh_tensor_make(&dst, &to, "dim0:P(min)", wide ? MESH_F64 : MESH_F16, 0, NULL, &err), err);
        mesh__tensor_desc(&c, &src, &dst, &d);
        n = mesh_plan_candidates(all, PLANS, &d, &err);
        for (k = 0; k < n && !c.failed; k++) {
            double got = 0;
            uint16_t narrow = 0;
            int64_t scratch = -1;
            src.data = t->rank < 5 ? &value : NULL, dst.data = t->rank < 5 ? NULL : wide ? (void *)&got : &narrow;
            passes += all[k].nsteps > 1;
            CHECK_OK(mesh__redistribute_start(&c, &all[k], &src, &dst, 1, -1, &scratch, NULL, &err), err);
            CHECK(scratch >= 0 && scratch <= all[k].scratch);
            CHECK_OK(mesh_redistribute_planned_start(&c, &all[k], &src, &dst, 1, &r), c.error);
            CHECK(mesh_wait(r) == MESH_OK && (t->rank < 5 || (wide ? got == 3 : narrow == value)));
        }
        CHECK(passes > 0);
    }
    free(all);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_tensors_scalar(void) { run_world(SIM, 10, tensors_scalar_rank, NULL); }

static const test_case tensor_tests[] = {
    {"tensors/convert", test_convert, 60},           {"tensors/sim", test_tensors_sim, 120},
    {"tensors/tcp", test_tensors_tcp, 60},           {"tensors/large", test_tensors_large, 60},
    {"tensors/shared", test_tensors_shared, 60},     {"tensors/in_place", test_tensors_in_place, 60},
    {"tensors/straight", test_tensors_straight, 60}, {"tensors/refused", test_tensors_not_added, 60},
    {"tensors/nothing", test_tensors_nothing, 60},   {"tensors/scalar", test_tensors_scalar, 60},
};

#endif
