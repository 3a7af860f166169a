/* mesh_parallel.h: random numbers by global index, norms and clipping. */
#ifndef T_PARALLEL_H
#define T_PARALLEL_H

/* Vectors of Random123's known answers (kat_vectors, philox4x32 10). */
static void test_philox(void) {
    static const struct {
        uint64_t seed, stream, index;
        uint32_t out[4];
    } known[] = {{0, 0, 0, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
                 {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
                 {UINT64_C(0x299f31d0a4093822),
                  UINT64_C(0x0370734413198a2e),
                  UINT64_C(0x85a308d3243f6a88),
                  {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}}};
    size_t i;
    for (i = 0; i < 3; i++) {
        uint32_t out[4];
        mesh_random_block(out, known[i].seed, known[i].stream, known[i].index);
        CHECK(!memcmp(out, known[i].out, sizeof out));
    }
}

/* The functions that stand for libm's: known values, and identities. */
static void test_functions(void) {
    static const double ln[][2] = {{2, 0.69314718055994530942},
                                   {10, 2.30258509299404568402},
                                   {0.5, -0.69314718055994530942},
                                   {1, 0},
                                   {3, 1.09861228866810969140},
                                   {2.3283064365386963e-10, -22.180709777918249},
                                   {1.4142135623730951, 0.34657359027997264}};
    test_random r = random_from(9);
    size_t i;
    int k;
    CHECK(mesh__scaled(-3, 4) == 48 && mesh__scaled(0, 600) == 0 && mesh__scaled(1, -1023) == 0);
    CHECK(mesh__scaled(4.9406564584124654e-324, 1074) == 1 && mesh__scaled(-1.4821969375237396e-323, 1075) == 6);
    for (i = 0; i < sizeof ln / sizeof ln[0]; i++) {
        double d = mesh__ln(ln[i][0]) - ln[i][1];
        if (d > 4e-15 || d < -4e-15) test_fail(__FILE__, __LINE__, "ln %g is off by %g", ln[i][0], d);
    }
    for (k = 0; k < 100000 && !test_failures; k++) {
        double x = (double)(random_next(&r) >> 11) / 9007199254740992.0,
               y = (double)(1 + random_below(&r, 1000000)) * x + 1e-9, c, s, c2, s2, d;
        mesh__turn_of(x, &c, &s);
        d = c * c + s * s - 1;
        if (d > 1e-15 || d < -1e-15) test_fail(__FILE__, __LINE__, "cos and sin of %g: %g", x, d);
        mesh__turn_of(x < 0.5 ? 2 * x : 2 * x - 1, &c2, &s2); /* of twice the angle */
        d = c2 - (c * c - s * s);
        if (d > 2e-15 || d < -2e-15) test_fail(__FILE__, __LINE__, "cos of twice %g: %g", x, d);
        d = s2 - 2 * s * c;
        if (d > 2e-15 || d < -2e-15) test_fail(__FILE__, __LINE__, "sin of twice %g: %g", x, d);
        if (x < 0.25 || x > 0.75 ? c < -1e-9 : c > 1e-9) test_fail(__FILE__, __LINE__, "cos of %g is %g", x, c);
        d = (mesh__sqrt(y) * mesh__sqrt(y) - y) / y;
        if (d > 1e-15 || d < -1e-15) test_fail(__FILE__, __LINE__, "sqrt of %g: %g", y, d);
        d = mesh__ln(x + 0.001) + mesh__ln(y) - mesh__ln((x + 0.001) * y);
        if (d > 1e-14 || d < -1e-14) test_fail(__FILE__, __LINE__, "ln of a product: %g", d);
    }
    {
        double infinite = 1e308, none;
        infinite *= 10;
        none = infinite - infinite;
        CHECK(mesh__sqrt(infinite) == infinite);
        CHECK(mesh__sqrt(none) != mesh__sqrt(none));
        CHECK(mesh__ln(infinite) == infinite && mesh__ln(0) == -infinite && mesh__ln(none) != mesh__ln(none));
        CHECK(mesh__ln(-1) != mesh__ln(-1) && mesh__ln(-infinite) != mesh__ln(-infinite) && mesh__ln(4.9e-324) < -744.4);
        CHECK(mesh__exp(none) != mesh__exp(none) && mesh__exp(-infinite) == 0);
        CHECK(mesh__exp_below((float)none) != mesh__exp_below((float)none) && mesh__exp_below((float)-infinite) == 0);
        CHECK(mesh__sqrt(0) == 0 && mesh__sqrt(4) == 2 && mesh__sqrt(1e-300) > 0.99e-150 &&
              mesh__sqrt(1e300) < 1.01e150);
    }
}

/* A million of each: mean, spread, tails; elements next to each other, streams and seeds have nothing in common. */
static void test_moments(void) {
    enum { N = 1 << 20 };
    static const int64_t shape[1] = {N};
    float *a = (float *)malloc(N * sizeof *a), *b = (float *)malloc(N * sizeof *b);
    mesh_tensor t;
    mesh_error err;
    mesh m;
    double sum = 0, squares = 0, fourth = 0, next = 0, across = 0, tail = 0, low = 1, high = 0;
    int i;
    CHECK_OK(mesh_parse(&m, "x=1", 1, &err), err);
    CHECK_OK(mesh_tensor_make(&t, &m, "", MESH_F32, 1, shape, &err), err);
    t.data = a;
    CHECK_OK(mesh_random_normal(&t, 0, 1, 2, 0, 1, &err), err);
    t.data = b;
    CHECK_OK(mesh_random_normal(&t, 0, 1, 3, 0, 1, &err), err);
    for (i = 0; i < N; i++) {
        double v = (double)a[i];
        sum += v, squares += v * v, fourth += v * v * v * v;
        next += v * (double)a[i ? i - 1 : N - 1];
        across += v * (double)b[i];
        tail += v > 1.959964 || v < -1.959964;
    }
    CHECK(sum / N < 0.004 && sum / N > -0.004);
    CHECK(squares / N < 1.006 && squares / N > 0.994);
    CHECK(fourth / N < 3.04 && fourth / N > 2.96);
    CHECK(next / N < 0.004 && next / N > -0.004 && across / N < 0.004 && across / N > -0.004);
    CHECK(tail / N > 0.049 && tail / N < 0.051);
    t.data = a;
    CHECK_OK(mesh_random_normal(&t, 0, 1, 3, 5, 0.5, &err), err);
    for (i = 0; i < 1000; i++) CHECK(a[i] - (5 + 0.5f * b[i]) < 1e-5f && a[i] - (5 + 0.5f * b[i]) > -1e-5f);
    CHECK_OK(mesh_random_uniform(&t, 0, 7, 0, 0, 1, &err), err);
    for (sum = squares = 0, i = 0; i < N; i++) {
        double v = (double)a[i];
        sum += v, squares += v * v;
        if (v < low) low = v;
        if (v > high) high = v;
    }
    CHECK(sum / N > 0.499 && sum / N < 0.501 && squares / N > 0.3325 && squares / N < 0.3342 && low >= 0 &&
          low < 1e-5 && high > 0.99999 && high <= 1);
    free(a), free(b);
}

/* Any layout on any mesh has the values that one rank has; strided, in every dtype, other seeds not. */
static void test_random_layouts(void) {
    static const char *const meshes[] = {"a=2,b=3", "a=4", "a=2,b=2,c=2"};
    test_random r = random_from(31);
    int i, k;
    for (i = 0; i < 300 && !test_failures; i++) {
        mesh_dtype dtype = float_dtypes[random_below(&r, 4)];
        int64_t shape[3], e;
        int ndim = random_below(&r, 4), uniform = random_below(&r, 2);
        mesh alone, m;
        mesh_tensor whole, part;
        mesh_error err;
        double want[1000], got[3000];
        for (k = 0; k < ndim; k++) shape[k] = random_below(&r, 10);
        CHECK_OK(mesh_parse(&alone, "x=1", 1, &err), err);
        CHECK_OK(mesh_parse(&m, meshes[random_below(&r, 3)], 0, &err), err);
        CHECK_OK(mesh_tensor_make(&whole, &alone, "", dtype, ndim, shape, &err), err);
        whole.data = want;
        part = whole;
        part.layout = tensor_layout(&r, &m, ndim, shape, MESH_SUM);
        for (k = 0; k < m.naxes; k++)
            if (part.layout.spec.axis[k].kind == MESH_PARTIAL) part.layout.spec.axis[k] = mesh_invariant();
        CHECK_OK(uniform ? mesh_random_uniform(&whole, 0, 5, (uint64_t)i, -2, 3, &err)
                         : mesh_random_normal(&whole, 0, 5, (uint64_t)i, 0, 1, &err),
                 err);
        for (k = 0; k < m.size; k++) {
            mesh_box box;
            int64_t strides[3], count = mesh_tensor_box(&part, k, &box);
            int d;
            for (d = ndim - 1; d >= 0; d--) strides[d] = d == ndim - 1 ? 3 : strides[d + 1] * box.shape[d + 1];
            part.strides = ndim ? strides : NULL;
            part.data = got;
            CHECK_OK(uniform ? mesh_random_uniform(&part, k, 5, (uint64_t)i, -2, 3, &err)
                             : mesh_random_normal(&part, k, 5, (uint64_t)i, 0, 1, &err),
                     err);
            for (e = 0; e < count && !test_failures; e++) {
                int64_t at = plan_linear_in(ndim, shape, &box, e);
                if (float_at(dtype, got, e * (ndim ? 3 : 1)) != float_at(dtype, want, at))
                    test_fail(__FILE__, __LINE__, "element %lld", (long long)at);
            }
        }
        part.strides = NULL;
        CHECK_OK(mesh_layout_set(&part.layout, "a", mesh_partial(MESH_SUM), &err), err);
        CHECK_INT(mesh_random_normal(&part, 0, 5, 0, 0, 1, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "mesh_random_normal: the tensor is partial along \"a\"");
    }
    {
        mesh_tensor t;
        mesh_error err;
        mesh m;
        int64_t shape[1] = {4};
        CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err);
        CHECK_OK(mesh_tensor_make(&t, &m, "x:S(0)", MESH_I32, 1, shape, &err), err);
        CHECK_INT(mesh_random_uniform(&t, 0, 1, 1, 0, 1, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "the tensor is i32");
        t.dtype = MESH_F32;
        CHECK_INT(mesh_random_uniform(&t, 0, 1, 1, 0, 1, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "the data is NULL, but rank 0 holds 2 elements");
        CHECK_INT(mesh_random_uniform(&t, 9, 1, 1, 0, 1, &err), MESH_OK); /* outside the mesh */
        CHECK_INT(mesh_random_uniform(&t, 0, 1, 1, 1, 0, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "low is above high");
        CHECK_INT(mesh_random_uniform(&t, 0, 1, 1, -1e308, 1e308, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "what lies between is infinite");
        {
            float two[2];
            t.data = two; /* far from each other, and both are numbers */
            CHECK_OK(mesh_random_normal(&t, 0, 1, 1, -1e308, 1e308, &err), err);
        }
        {
            static const int64_t none[1] = {0}, negative[1] = {-4}, huge[1] = {INT64_MAX};
            t.data = &m;
            t.strides = none;
            CHECK_INT(mesh_random_uniform(&t, 0, 1, 1, 0, 1, &err), MESH_ERR_ARGUMENT);
            CHECK_HAS(err.text, "mesh_random_uniform: the tensor: stride 0 of dim 0 is too small");
            t.strides = negative;
            CHECK_INT(mesh_random_uniform(&t, 0, 1, 1, 0, 1, &err), MESH_ERR_ARGUMENT);
            CHECK_HAS(err.text, "stride -4 of dim 0 is too small");
            t.strides = huge;
            CHECK_INT(mesh_random_uniform(&t, 0, 1, 1, 0, 1, &err), MESH_ERR_ARGUMENT);
            CHECK_HAS(err.text, "of dim 0 is too large");
            t.strides = shape, t.dtype = (mesh_dtype)77;
            CHECK_INT(mesh_random_uniform(&t, 0, 1, 1, 0, 1, &err), MESH_ERR_ARGUMENT);
            CHECK_HAS(err.text, "dtype 77 with elements of 0 bytes; see MESH_DTYPES");
            t.strides = NULL, t.dtype = MESH_F32;
        }
        shape[0] = 3;
        t.local_shape = shape;
        CHECK_INT(mesh_random_uniform(&t, 0, 1, 1, 0, 1, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "mesh_random_uniform: the tensor: the local shape has 3 in dim 0, but by its spec rank 0 holds 2 of 4");
    }
}

/* ---- norms ---- */

/* Lists that differ between ranks (two stages), all kinds of layouts, strided; the norm is that of whole tensors, and clipping scales each element once. */
static void norm_rank(mesh_transport *t, void *ctx) {
    enum { TENSORS = 5 };
    static const int64_t shapes[TENSORS][2] = {{7, 5}, {8, 3}, {1, 9}, {0, 4}, {6, 6}};
    test_random r = random_from(55);
    mesh_comm c;
    mesh stage[2];
    mesh_error err;
    int round, i, k;
    (void)ctx;
    if (!open_comm(t, &c, "pp=2,dp=2,tp=-1", NULL, 20 * SECOND)) return;
    for (i = 0; i < 2; i++) CHECK_OK(mesh_fix(&stage[i], &c.on, "pp", i, &err), err);
    for (round = 0; round < 40 && !test_failures; round++) {
        mesh_tensor list[TENSORS];
        int64_t strides[TENSORS][2];
        double whole = 0, norm = -1, again = -1, max;
        int n = 0, clips = random_below(&r, 2), which[TENSORS];
        for (i = 0; i < TENSORS; i++) {
            const mesh *on = i < 4 ? &stage[i & 1] : &c.on;
            mesh_tensor *p = &list[n];
            int64_t e, count;
            mesh_box box;
            int strided = random_below(&r, 2);
            memset(p, 0, sizeof *p);
            p->dtype = float_dtypes[random_below(&r, 4)];
            p->layout = tensor_layout(&r, on, 2, shapes[i], MESH_SUM);
            for (k = 0; k < on->naxes; k++)
                if (p->layout.spec.axis[k].kind == MESH_PARTIAL) p->layout.spec.axis[k] = mesh_replicate();
            for (e = 0; e < shapes[i][0] * shapes[i][1]; e++) whole += (double)((e + i) % 7) * (double)((e + i) % 7);
            if (mesh_index_of(on, t->rank) < 0) continue;
            count = mesh_tensor_box(p, t->rank, &box);
            p->data = calloc(2 * (size_t)count + 2, 8);
            strides[n][1] = strided ? 2 : 1;
            strides[n][0] = box.shape[1] * strides[n][1];
            if (strided) p->strides = strides[n];
            for (e = 0; e < count; e++)
                float_put(p->dtype, p->data, e * (strided ? 2 : 1),
                          (double)((plan_linear_in(2, shapes[i], &box, e) + i) % 7));
            which[n++] = i;
        }
        max = clips ? mesh__sqrt(whole) / 4 : mesh__sqrt(whole) * 2;
        CHECK_OK(mesh_norm(&c, list, n, &norm), c.error);
        if (norm - mesh__sqrt(whole) > 1e-12 * norm || norm - mesh__sqrt(whole) < -1e-12 * norm)
            test_fail(__FILE__, __LINE__, "the norm is %.17g, expected %.17g", norm, mesh__sqrt(whole));
        CHECK_OK(mesh_clip(&c, list, n, max, round & 1 ? &again : NULL), c.error);
        if (round & 1) CHECK(again == norm);
        CHECK_OK(mesh_norm(&c, list, n, &again), c.error);
        max = clips ? max : norm;
        if (again - max > 4e-3 * max || again - max < -4e-3 * max)
            test_fail(__FILE__, __LINE__, "clipped to %g, expected %g", again, max);
        for (i = 0; i < n; i++) { /* replicas too */
            int64_t e, count;
            mesh_box box;
            count = mesh_tensor_box(&list[i], t->rank, &box);
            for (e = 0; e < count; e++) {
                double had = (double)((plan_linear_in(2, list[i].layout.shape, &box, e) + which[i]) % 7) *
                             (clips ? max / norm : 1),
                       has;
                has = float_at(list[i].dtype, list[i].data, e * (list[i].strides ? 2 : 1));
                if (has - had > 5e-3 * had || has - had < -5e-3 * had) {
                    test_fail(__FILE__, __LINE__, "rank %d, tensor %d: %g, expected %g", t->rank, i, has, had);
                    break;
                }
            }
            free(list[i].data);
        }
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_norm(void) {
    run_world(SIM, 4, norm_rank, NULL);
    run_world(SIM, 8, norm_rank, NULL);
    run_world(TCP, 4, norm_rank, NULL);
}

/* What one rank has wrong fails everywhere, with its words. */
static void norm_refused_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {8};
    static const char *const said[] = {"mesh_norm: tensor 1: it is partial along \"x\"",
                                       "mesh_norm: tensor 1: it is i32", "mesh_norm: tensor 1: the data is NULL",
                                       "mesh_clip: max is 0; give one above 0", "mesh_norm: norm is NULL",
                                       "mesh_norm: tensor 1: the tensor: the local shape has 9 in dim 0",
                                       "mesh_norm: tensor 1: the tensor: dtype 0 with elements of 8 bytes",
                                       "mesh_clip: rank 1 has not called what rank 0 has", ": rank 1 has not called what rank 0 has: one mesh_norm",
                                       "mesh_clip: max is -0.5; give one above 0", "mesh_clip: max is no number; give one above 0",
                                       "mesh_clip: max is -123457; give one above 0", "mesh_clip: max is -1e6; give one above 0",
                                       "mesh_clip: max is -0.0001; give one above 0", "mesh_clip: max is -4.94066e-324; give one above 0",
                                       "mesh_clip: max is -1.79769e308; give one above 0", "mesh_clip: max is -inf; give one above 0"};
    const double max[] = {-123456.7, -999999.99, -1e-4, -4.9406564584124654e-324, -1.7976931348623157e308, strtod("-inf", NULL)};
    static const int64_t nine[1] = {9};
    int what;
    (void)ctx;
    CHECK_INT(mesh_norm(NULL, NULL, 0, NULL), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_clip(NULL, NULL, 0, 1, NULL), MESH_ERR_ARGUMENT);
    for (what = 0; what < 17; what++) {
        mesh_tensor list[2];
        mesh_comm c;
        mesh_error err;
        float room[8] = {0};
        double norm;
        mesh_status status;
        if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_tensor_make(&list[0], &c.on, "x:S(0)", MESH_F32, 1, shape, &err), err);
        list[0].data = room;
        list[1] = list[0];
        if (t->rank == 1 && what == 0) list[1].layout.spec.axis[0] = mesh_partial(MESH_SUM);
        if (t->rank == 1 && what == 1) list[1].dtype = MESH_I32;
        if (t->rank == 1 && what == 2) list[1].data = NULL;
        if (t->rank == 1 && what == 5) list[1].local_shape = nine;
        if (t->rank == 1 && what == 6) list[1].elem_bytes = 8;
        if (what == 3 || what == 7 || what > 8)
            status = mesh_clip(&c, list, 2,
                               t->rank != 1 ? 1 : what == 3 ? 0 : what == 7 ? 1.0000000000000002 : what == 9 ? -0.5 : what == 10 ? strtod("nan", NULL) : max[what - 11],
                               &norm);
        else if (what == 8 && t->rank == 1)
            status = mesh_clip(&c, list, 2, 1, &norm);
        else
            status = mesh_norm(&c, list, 2, what == 4 && t->rank == 1 ? NULL : &norm);
        CHECK_INT(status, what < 7 || what > 8 ? MESH_ERR_ARGUMENT : MESH_ERR_MISMATCH);
        CHECK_HAS(c.error.text, said[what]);
        CHECK(!strstr(c.error.text, "all_reduce"));
        CHECK_INT(c.error.rank, 1);
        mesh_comm_close(&c);
    }
}
static void test_norm_refused(void) {
    run_world(SIM, 3, norm_refused_rank, NULL);
    run_world(TCP, 2, norm_refused_rank, NULL);
}

/* ---- calls that make other calls: what one of those tells is told of them ---- */

enum { OF_SPLIT, OF_NORM, OF_CLIP, OF_LOSS, OF_RING, OF_MOE, OF_PIPELINE, OF_REPLICAS, OF_SAVE, OF_LOAD, OF_TEXT, OF_BUCKETS, OF_MOE_OPEN, OF_ENDS };

static void nested_block(void *ctx, const mesh_attention_part *part) { (void)ctx, (void)part; }
static int nested_stage(void *ctx, const mesh_stage_call *call, int ncalls) { return (void)ctx, (void)call, ncalls - 1; }

static mesh_status nested_moe(mesh_comm *c, mesh_moe *moe) {
    mesh_moe_desc d = MESH_ZERO;
    d.experts = 2, d.top_k = d.width = 1, d.max_tokens = 8, d.dtype = MESH_F32;
    return mesh_moe_open(moe, c, "x", &d);
}

/* This rank is in a call of many, the other in a barrier. */
static mesh_status nested_call(mesh_comm *c, int what, const mesh_tensor *x, const mesh_tensor *sums, float *room) {
    static const int32_t ids[8] = {0};
    static char memory[1 << 14];
    mesh_comm part;
    mesh_error err;
    mesh_named named;
    mesh_schedule schedule;
    mesh_stage stage = MESH_ZERO;
    mesh_attention a = MESH_ZERO;
    mesh_loss loss = MESH_ZERO;
    mesh_moe moe;
    mesh_moe_rows rows;
    mesh_buckets b;
    mesh_status status;
    double norm;
    named.name = "x", named.tensor = *x;
    loss.logits = x, loss.targets = ids, loss.loss = room;
    a.batch = a.heads = a.kv_heads = a.width = 1, a.sequence = 2, a.dtype = MESH_F32;
    a.q = a.k = a.v = x->data, a.out = room, a.lse = room + 8, a.forward = a.backward = nested_block;
    stage.run = nested_stage, stage.nbytes = 4;
    switch (what) {
    case OF_SPLIT: return mesh_comm_split(&part, c, 0, 0, NULL, &err);
    case OF_NORM: return mesh_norm(c, x, 1, &norm);
    case OF_CLIP: return mesh_clip(c, x, 1, 1, &norm);
    case OF_LOSS: return mesh_cross_entropy(c, &loss);
    case OF_RING: return mesh_ring_attention(c, "x", &a);
    case OF_REPLICAS: return mesh_check_replicas(c, &named, 1);
    case OF_SAVE: return mesh_checkpoint_save(c, "/nonexistent/folder", &named, 1, NULL);
    case OF_LOAD: return mesh_checkpoint_load(c, "/nonexistent/folder", &named, 1, NULL);
    case OF_TEXT: return mesh_checkpoint_text(c, "/nonexistent/folder", "x", (char *)room, 4, NULL);
    case OF_MOE_OPEN: return nested_moe(c, &moe);
    case OF_MOE:
        CHECK_OK(nested_moe(c, &moe), c->error);
        status = mesh_moe_dispatch(&moe, 0, x->data, 4, ids, &rows);
        mesh_moe_close(&moe);
        return status;
    case OF_PIPELINE:
        CHECK_OK(mesh_schedule_make(&schedule, "gpipe", 2, 2, 1, memory, sizeof memory, &err), err);
        return mesh_pipeline_run(c, "x", &schedule, &stage);
    default:
        CHECK_OK(mesh_buckets_open(&b, c, sums, x, 1, NULL), c->error);
        status = mesh_buckets_ready(&b, 0);
        if (status == MESH_OK) status = mesh_buckets_wait(&b, -1);
        mesh_buckets_close(&b);
        return status;
    }
}

static void nested_rank(mesh_transport *t, void *ctx) {
    static const char *const name[] = {"comm_split",     "norm",         "clip",           "cross_entropy",   "ring_attention",  "moe_dispatch",
                                       "pipeline_run", "check_replicas", "checkpoint_save", "checkpoint_load", "checkpoint_text", "buckets_", "moe_open"};
    static const int64_t shape[2] = {4, 8};
    int what = *(int *)ctx;
    float in[32] = {0}, room[32] = {0};
    mesh_tensor x, sums;
    mesh_comm c;
    mesh_error err;
    char text[MESH_ERROR_BYTES];
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_group_open(&c, "x"), c.error);
    CHECK_OK(mesh_tensor_make(&x, &c.on, "x:S(1)", MESH_F32, 2, shape, &err), err);
    CHECK_OK(mesh_tensor_make(&sums, &c.on, "x:P(sum)", MESH_F32, 2, shape, &err), err);
    x.data = sums.data = in;
    if (what == OF_BUCKETS) x.data = room;
    if (t->rank == 0) {
        snprintf(text, sizeof text, "mesh_%s", name[what]);
        CHECK_INT(nested_call(&c, what, &x, &sums, room), MESH_ERR_MISMATCH);
        if (strncmp(c.error.text, text, strlen(text)) && what != OF_PIPELINE) test_fail(__FILE__, __LINE__, "%s: %s", text, c.error.text);
        CHECK_HAS(c.error.text, name[what]);
        CHECK_HAS(c.error.text, "barrier");
        memcpy(text, c.error.text, sizeof text);
        CHECK_INT(mesh_norm(&c, &x, 1, NULL), MESH_ERR_MISMATCH); /* it failed before: told as it was */
        CHECK(!strcmp(text, c.error.text));
    } else {
        mesh_moe moe = MESH_ZERO;
        if (what == OF_MOE) CHECK_OK(nested_moe(&c, &moe), c.error);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_MISMATCH);
        mesh_moe_close(&moe);
    }
    mesh_comm_close(&c);
}
static void test_nested(void) {
    int what;
    mesh_comm c = MESH_ZERO;
    mesh__fail(&c.error, MESH_ERR_PEER, 1, "all_reduce on \"norm\""); /* the name of an axis is not the call's */
    mesh__composed(&c, "norm", 0, MESH_ERR_PEER);
    CHECK(!strcmp(c.error.text, "mesh_norm: all_reduce on \"norm\"") && c.error.rank == 1);
    mesh__composed(&c, "norm", 0, MESH_ERR_PEER);
    CHECK(!strncmp(c.error.text, "mesh_norm: all", 14));
    for (what = 0; what < OF_ENDS; what++) run_world(SIM, 2, nested_rank, &what);
}

/* Numbers whose squares no f64 holds; an infinite norm scales nothing. On every rank another part of what is far out. */
static void norm_far_rank(mesh_transport *t, void *ctx) {
    static const double v[][6] = {{1e200, 1e200, 1e200, 1e200, 1e200, 0},   {1e-200, 1e-200, 1e-200, 1e-200, 1e-200, 0},
                                  {3e160, 4e160, 1e-200, 5, 1e-170, -5},     {3e-160, -4e-160, 0, 1e-300, 0, 0},
                                  {3, 1e-160, 1e-200, -4, 1e-140, 1e-141},   {3e-141, 4e-141, 3e-139, 0, 0, -4e-139},
                                  {6e153, 8e153, 0, 1e140, 1, 0},            {1e141, 1e139, 1e140, 2e140, 1e138, 0},
                                  {1.7e308, -1.7e308, 0, 0, 1.7e308, 1.7e308}};
    static const double want[] = {2.23606797749978981e200, 2.23606797749978981e-200, 5e160, 5e-160, 5, 5.0002499937503124e-139, 1e154, 1.0247443583645630e141, 0};
    static const int64_t shape[1] = {6};
    size_t k;
    mesh_comm c;
    mesh_error err;
    double infinite = 1e308, none, norm, part[6];
    mesh_tensor x;
    int i;
    (void)ctx;
    infinite *= 10, none = infinite - infinite;
    for (i = 0; i < 6; i++) part[i] = 1.1e140; /* of which there may be 2^63 */
    {
        double sum[MESH__NORM_SUMS] = {0, 0, 0};
        mesh__run_squares(MESH_F64, (unsigned char *)part, 6, sum);
        CHECK(sum[MESH__NORM_LARGE] > 0 && sum[MESH__NORM_MIDDLE] < 1);
    }
    { /* what a rank adds that has called neither */
        double told[MESH__NORM_TOLD] = {0, 0, 0, 6, 12};
        CHECK(mesh__norm_alike(told, 3) && !mesh__norm_alike(told, 2));
        told[MESH__NORM_CALL] = -6;
        CHECK(!mesh__norm_alike(told, 3));
        told[MESH__NORM_CALL] = none;
        CHECK(!mesh__norm_alike(told, 3));
        told[MESH__NORM_CALL] = 6, told[MESH__NORM_CALL_SQUARED] = infinite;
        CHECK(!mesh__norm_alike(told, 3));
    }
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_tensor_make(&x, &c.on, "x:S(0)", MESH_F64, 1, shape, &err), err);
    x.data = part;
    for (k = 0; k < sizeof v / sizeof v[0]; k++) {
        mesh_box box;
        int64_t count = mesh_tensor_box(&x, t->rank, &box);
        for (i = 0; i < count; i++) part[i] = v[k][box.offset[0] + i];
        CHECK_OK(mesh_clip(&c, &x, 1, want[k] > 0 ? want[k] / 4 : 1, &norm), c.error);
        if (want[k] > 0 ? norm / want[k] > 1 + 1e-14 || norm / want[k] < 1 - 1e-14 : norm != infinite)
            test_fail(__FILE__, __LINE__, "the norm is %.17g, not %.17g", norm, want[k]);
        for (i = 0; i < count; i++) {
            double is = v[k][box.offset[0] + i] * (want[k] > 0 ? 0.25 : 1), off = part[i] - is;
            if (off > 1e-14 * (is < 0 ? -is : is) || off < -1e-14 * (is < 0 ? -is : is))
                test_fail(__FILE__, __LINE__, "%zu: clipped to %g, not %g", k, part[i], is);
        }
    }
    for (k = 0; k < 2; k++) {
        for (i = 0; i < 6; i++) part[i] = 3;
        if (t->rank == t->size - 1) part[0] = k ? none : infinite;
        CHECK_OK(mesh_clip(&c, &x, 1, 1, &norm), c.error);
        CHECK(k ? norm != norm : norm == infinite);
        CHECK(t->rank == t->size - 1 || part[0] == 3);
    }
    mesh_comm_close(&c);
}
static void test_norm_far(void) {
    run_world(SIM, 1, norm_far_rank, NULL);
    run_world(SIM, 3, norm_far_rank, NULL);
}

static const test_case parallel_tests[] = {
    {"parallel/philox", test_philox, 0},    {"parallel/functions", test_functions, 0},
    {"parallel/moments", test_moments, 60}, {"parallel/layouts", test_random_layouts, 0},
    {"parallel/norm", test_norm, 60},       {"parallel/norm_refused", test_norm_refused, 60},
    {"parallel/nested", test_nested, 60},   {"parallel/norm_far", test_norm_far, 60},
};

#endif
