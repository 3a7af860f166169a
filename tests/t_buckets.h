/* mesh_parallel.h: buckets. */
#ifndef T_BUCKETS_H
#define T_BUCKETS_H

/* A list whose tensors are as those of t_tensors.h: any layouts, floats of any dtypes, some added to what is there. */
enum { BUCKET_TENSORS = 24 };
typedef struct bucket_list {
    tensor_problem p[BUCKET_TENSORS];
    mesh_tensor src[BUCKET_TENSORS], dst[BUCKET_TENSORS];
    mesh_box from[BUCKET_TENSORS], to[BUCKET_TENSORS];
    int64_t from_count[BUCKET_TENSORS], to_count[BUCKET_TENSORS];
    int n;
} bucket_list;

static void bucket_list_make(bucket_list *l, const mesh *m, int rank, test_random *r) {
    static const int64_t shapes[][3] = {{7, 5, 0}, {24, 0, 0}, {3, 8, 4}, {64, 9, 0}, {1, 1, 1}, {0, 3, 0}};
    int i, a;
    memset(l, 0, sizeof *l);
    l->n = random_below(r, BUCKET_TENSORS + 1);
    for (i = 0; i < l->n; i++) {
        tensor_problem *p = &l->p[i];
        const int64_t *shape = shapes[random_below(r, 6)];
        int ndim = shape[2] ? 3 : shape[1] ? 2 : 1;
        p->op = random_below(r, 3) ? MESH_SUM : MESH_MAX;
        p->src.dtype = float_dtypes[random_below(r, 4)];
        p->dst.dtype = random_below(r, 3) ? p->src.dtype : float_dtypes[random_below(r, 4)];
        p->dst.add = random_below(r, 2);
        p->src.layout = tensor_layout(r, m, ndim, shape, p->op);
        p->dst.layout = tensor_layout(r, m, ndim, shape, p->op);
        for (a = 0; a < m->naxes; a++)
            if (p->dst.layout.spec.axis[a].kind == MESH_PARTIAL) p->dst.layout.spec.axis[a] = mesh_replicate();
        l->from_count[i] = mesh_tensor_box(&p->src, rank, &l->from[i]);
        l->to_count[i] = mesh_tensor_box(&p->dst, rank, &l->to[i]);
        p->src.data = calloc((size_t)l->from_count[i] + 1, 8);
        p->dst.data = calloc((size_t)l->to_count[i] + 1, 8);
        l->src[i] = p->src;
        l->dst[i] = p->dst;
    }
}

/* Another round: other values. */
static void bucket_list_fill(bucket_list *l, int i, int rank, unsigned salt) {
    tensor_problem *p = &l->p[i];
    const mesh_layout *from = &p->src.layout;
    int of, k = plan_partial_index(from->on, &from->spec, rank, &of);
    int64_t e;
    p->salt = salt;
    for (e = 0; e < l->from_count[i]; e++)
        float_put(p->src.dtype, p->src.data, e,
                  tensor_value(p, plan_linear_in(from->ndim, from->shape, &l->from[i], e), k, of));
    for (e = 0; e < l->to_count[i]; e++)
        float_put(p->dst.dtype, p->dst.data, e,
                  tensor_before(p, plan_linear_in(from->ndim, from->shape, &l->to[i], e)));
}

static int bucket_wrong(const bucket_list *l, int i, int rank) {
    return tensor_wrong(&l->p[i], &l->p[i].dst, NULL, rank, &l->to[i], l->to_count[i]);
}

/* A round: tensors get ready in an order of this rank's own; now and then one is waited for, which arrives exactly if all before it and in its bucket are ready. */
static void bucket_round(mesh_buckets *b, bucket_list *l, int rank, unsigned salt, test_random *own) {
    int order[BUCKET_TENSORS], bucket[BUCKET_TENSORS], ready[BUCKET_TENSORS] = {0}, i, k, nbuckets, at = 0;
    nbuckets = mesh_buckets_of(b, 0, NULL, NULL);
    for (k = 0; k < nbuckets; k++) {
        int first = -1, end = -1;
        CHECK_INT(mesh_buckets_of(b, k, &first, &end), nbuckets);
        CHECK(first < end && first == (k ? at : 0));
        for (i = first; i < end; i++) bucket[i] = k;
        at = end;
    }
    CHECK(!nbuckets || at == l->n);
    for (i = 0; i < l->n; i++) order[i] = i;
    for (i = l->n - 1; i > 0; i--) {
        int j = random_below(own, i + 1), o = order[i];
        order[i] = order[j], order[j] = o;
    }
    for (k = 0; k < l->n && !test_failures; k++) {
        int first, end, whole = 1;
        bucket_list_fill(l, order[k], rank, salt + (unsigned)order[k]);
        CHECK_OK(mesh_buckets_ready(b, order[k]), b->comm->error);
        ready[order[k]] = 1;
        i = random_below(own, l->n);
        mesh_buckets_of(b, bucket[i], &first, &end);
        for (at = 0; at < end; at++) whole &= ready[at];
        if (random_below(own, 3)) continue;
        if (whole) { /* others are there too, or come: they need not wait for this one */
            CHECK_OK(mesh_buckets_wait(b, i), b->comm->error);
            bucket_wrong(l, i, rank);
        } else {
            char said[80];
            for (at = 0; ready[at]; at++) {}
            snprintf(said, sizeof said, "mesh_buckets_wait(%d): tensor %d is not ready", i, at);
            CHECK_INT(mesh_buckets_wait(b, i), MESH_ERR_STATE);
            CHECK_HAS(b->comm->error.text, said);
        }
    }
    CHECK_OK(mesh_buckets_wait(b, -1), b->comm->error);
    for (i = 0; i < l->n && !test_failures; i++) bucket_wrong(l, i, rank);
}

static void buckets_rank(mesh_transport *t, void *ctx) {
    test_random r = random_from(77 + (uint64_t)t->size), own = random_from(1000 + (uint64_t)t->rank);
    int k, i, round, trials = *(int *)ctx;
    for (k = 0; k < trials && !test_failures; k++) {
        int groups[BUCKET_TENSORS];
        bucket_list l;
        mesh_buckets b;
        mesh_buckets_desc desc = MESH_ZERO;
        mesh_comm c;
        if (!open_comm(t, &c, t->size % 2 || k % 2 ? "a=-1" : "a=2,b=-1", NULL, 20 * SECOND)) return;
        bucket_list_make(&l, &c.on, t->rank, &r);
        desc.bytes = (size_t)random_below(&r, 3) * 600; /* 0: all in one */
        for (i = 0; i < l.n; i++) groups[i] = (i ? groups[i - 1] : -3) + random_below(&r, 2) * (1 + i);
        if (random_below(&r, 4) == 0) {
            for (i = 0; i < l.n; i++) /* one reduction in all */
                if (l.p[i].op == MESH_MAX) break;
            if (i == l.n) desc.bucket = groups;
        }
        CHECK_OK(mesh_buckets_open(&b, &c, l.src, l.dst, l.n, k ? &desc : NULL), c.error);
        memset(l.src, 0x55, sizeof l.src), memset(l.dst, 0x55, sizeof l.dst); /* they were read */
        for (round = 0; round < 3 && !test_failures; round++)
            bucket_round(&b, &l, t->rank, (unsigned)(100 * k + 31 * round), &own);
        CHECK_INT(mesh_buckets_close(&b), MESH_OK);
        CHECK_INT(mesh_buckets_close(&b), MESH_OK);
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
        for (i = 0; i < l.n; i++) free(l.p[i].src.data), free(l.p[i].dst.data);
    }
}
static void test_buckets(void) {
    static const int sizes[] = {1, 2, 3, 4, 6};
    int i, many = test_long ? 200 : 25, few = 6;
    for (i = 0; i < 5; i++) run_world(SIM, sizes[i], buckets_rank, &many);
    for (i = 1; i < 4; i++) run_world(TCP, sizes[i], buckets_rank, &few);
}

/* A list under a scratch cap: what is carved is what was said, and within the cap; where that is too little for one of the tensors, the cap that is named is enough for it.
   Of each list a world of its own, which has kept no scratch. */
static void buckets_capped_rank(mesh_transport *t, void *ctx) {
    const int number = *(const int *)ctx;
    test_random r = random_from(4000 + (uint64_t)number);
    mesh_comm_desc desc = MESH_ZERO;
    mesh_status status;
    mesh_request request;
    mesh_error err;
    mesh_comm c;
    mesh m;
    bucket_list l;
    int64_t said = -1, carved = 0;
    int i, tries;
    CHECK_OK(mesh_parse(&m, t->size % 2 || number % 2 ? "a=-1" : "a=2,b=-1", t->size, &err), err);
    bucket_list_make(&l, &m, t->rank, &r);
    desc.scratch_cap = 64 + random_below(&r, 6000);
    for (tries = 0;; tries++) {
        const char *least;
        CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
        status = mesh_redistribute_scratch_bytes(&c, l.src, l.dst, l.n, &said, &err);
        if (status != MESH_ERR_MEMORY || tries == l.n) break;
        CHECK_HAS(err.text, "the least possible is ");
        if ((least = strstr(err.text, "the least possible is ")) == NULL) break;
        CHECK(strtol(least + 22, NULL, 10) > (long)desc.scratch_cap);
        desc.scratch_cap = strtol(least + 22, NULL, 10);
        mesh_comm_close(&c);
    }
    CHECK_OK(status, err);
    CHECK(said <= desc.scratch_cap);
    for (i = 0; i < l.n; i++) bucket_list_fill(&l, i, t->rank, (unsigned)(i + number));
    CHECK_OK(mesh_redistribute_many_start(&c, l.src, l.dst, l.n, &request), c.error);
    if (mesh__request_op(request))
        for (i = 0; i < MESH__SCRATCHES; i++) carved += (int64_t)mesh__request_op(request)->schedule.scratch[i].nbytes;
    CHECK_INT(carved, said);
    CHECK_OK(mesh_wait(request), c.error);
    for (i = 0; i < l.n && !test_failures; i++) bucket_wrong(&l, i, t->rank);
    for (i = 0; i < l.n; i++) free(l.p[i].src.data), free(l.p[i].dst.data);
    mesh_comm_close(&c);
}
static void test_buckets_capped(void) {
    static const int sizes[] = {2, 3, 4, 6};
    int k, lists = test_long ? 2000 : 200;
    for (k = 0; k < lists && !test_failures; k++) run_world(SIM, sizes[k / 2 % 4], buckets_capped_rank, &k);
    for (k = 0; k < 6; k++) run_world(TCP, sizes[k / 2], buckets_capped_rank, &k);
}

/* How a list is cut: by the bytes of the largest part, at least one tensor each; by the caller's numbers; between reductions. */
static void test_buckets_cut(void) {
    static const int64_t shapes[5] = {100, 300, 20, 4000, 1};
    static const int by_hand[5] = {-2, -2, 4, 4, 9}, want[][5] = {{0, 0, 0, 0, 0}, {0, 1, 2, 2, 3}, {0, 0, 1, 1, 2}},
                     apart[5] = {0, 0, 1, 1, 2};
    mesh_buckets_desc desc = MESH_ZERO;
    mesh_tensor src[5], dst[5];
    mesh_error err;
    mesh m;
    int i, k, of[5];
    CHECK_OK(mesh_parse(&m, "x=4", 4, &err), err);
    for (i = 0; i < 5; i++) {
        CHECK_OK(mesh_tensor_make(&src[i], &m, "x:P(sum)", MESH_F32, 1, &shapes[i], &err), err);
        CHECK_OK(mesh_tensor_make(&dst[i], &m, "x:S(0)", MESH_F32, 1, &shapes[i], &err), err);
    }
    for (k = 0; k < 3; k++) { /* 400 bytes: 100 floats are a bucket, of the sources, which are larger than the shards */
        desc.bytes = k == 1 ? 400 : 0;
        desc.bucket = k == 2 ? by_hand : NULL;
        CHECK_INT(mesh__buckets_cut(of, src, dst, 5, &desc), want[k][4] + 1);
        for (i = 0; i < 5; i++) CHECK_INT(of[i], want[k][i]);
    }
    desc.bucket = NULL;
    for (i = 2; i < 4; i++) CHECK_OK(mesh_tensor_make(&src[i], &m, "x:P(max)", MESH_F32, 1, &shapes[i], &err), err);
    mesh__buckets_cut(of, src, dst, 5, &desc);
    for (i = 0; i < 5; i++) CHECK_INT(of[i], apart[i]);
}

/* A bucket that is whole goes at once, and arrives while the rest of the list is not ready; a round that ends half ready. */
static void buckets_early_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {1000};
    static const int bucket[3] = {0, 1, 2};
    mesh_buckets_desc desc = MESH_ZERO;
    mesh_tensor src[3], dst[3];
    mesh_buckets b;
    mesh_comm c;
    mesh_error err;
    float in[3][1000], out[3][1000];
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (i = 0; i < 3; i++) {
        int e;
        CHECK_OK(mesh_tensor_make(&src[i], &c.on, "x:P(sum)", MESH_F32, 1, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&dst[i], &c.on, "x:I", MESH_F32, 1, shape, &err), err);
        src[i].data = in[i], dst[i].data = out[i];
        for (e = 0; e < 1000; e++) in[i][e] = (float)(i + 1), out[i][e] = -1;
    }
    desc.bucket = bucket;
    CHECK_OK(mesh_buckets_open(&b, &c, src, dst, 3, &desc), c.error);
    CHECK_OK(mesh_buckets_ready(&b, 2), c.error);
    CHECK_OK(mesh_buckets_ready(&b, 0), c.error);
    CHECK_OK(mesh_buckets_wait(&b, 0), c.error);
    CHECK(out[0][999] == (float)t->size && out[1][0] < 0 && out[2][0] < 0);
    CHECK_INT(mesh_buckets_wait(&b, 2), MESH_ERR_STATE);
    CHECK_HAS(c.error.text,
              "mesh_buckets_wait(2): tensor 1 is not ready, and the bucket of tensors 2 to 2 waits for it");
    CHECK_INT(mesh_buckets_wait(&b, -1), MESH_ERR_STATE);
    CHECK_INT(mesh_buckets_ready(&b, 0), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_buckets_ready: tensor 0 was ready in this round");
    CHECK_INT(mesh_buckets_ready(&b, 3), MESH_ERR_ARGUMENT);
    CHECK_HAS(c.error.text, "mesh_buckets_ready: tensor 3 of 3");
    CHECK_INT(mesh_buckets_ready(&b, -1), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_buckets_wait(&b, -2), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_buckets_of(&b, 3, &i, NULL), -1);
    CHECK_OK(mesh_buckets_ready(&b, 1), c.error); /* after all those errors the round goes on */
    CHECK_OK(mesh_buckets_wait(&b, -1), c.error);
    CHECK(out[1][7] == 2 * (float)t->size && out[2][7] == 3 * (float)t->size);
    CHECK_OK(mesh_buckets_ready(&b, 0), c.error); /* a second round, of which only the first third is ready */
    CHECK_INT(mesh_buckets_close(&b), MESH_OK);
    CHECK(out[0][0] == (float)t->size);
    CHECK_INT(mesh_buckets_ready(&b, 0), MESH_ERR_STATE);
    CHECK_INT(mesh_buckets_wait(&b, -1), MESH_ERR_STATE);
    CHECK_OK(mesh_buckets_open(&b, &c, src, dst, 3, &desc), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK); /* the comm first */
    CHECK_INT(mesh_buckets_ready(&b, 0), MESH_ERR_STATE);
    CHECK_INT(mesh_buckets_close(&b), MESH_OK);
}
static void test_buckets_early(void) {
    run_world(SIM, 3, buckets_early_rank, NULL);
    run_world(TCP, 2, buckets_early_rank, NULL);
}

/* What one rank gets wrong fails on all, with its words; ranks whose buckets differ disagree, and are told. */
static void buckets_refused_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {8};
    static const char *const said[] = {
        "mesh_buckets_open: tensor 1: source: the data is NULL", /* in a bucket of its own */
        "mesh_buckets_open: tensor 1 is of bucket 2, the one before it of 3",
        "mesh_buckets_open: 3 tensors, and a list is NULL",
        "mesh_buckets_open: -1 tensors, and a list has none or more",
        "mesh_buckets_open: 3 tensors, and the buckets are NULL",
        "", /* no call is wrong in itself */
        "mesh_buckets_open: what tensor 1 or 2 receives overlaps the other",
        "mesh_buckets_open: tensor 2: source: the data is NULL", /* the second of its bucket */
    };
    int what, i;
    (void)ctx;
    for (what = 0; what < 8; what++) {
        static const int falling[3] = {3, 2, 2}, together[3] = {1, 1, 1}, apart[3] = {1, 2, 2}, alone[3] = {1, 2, 3};
        int bad = t->rank == 1;
        mesh_buckets_desc desc = MESH_ZERO;
        mesh_tensor src[3], dst[3];
        mesh_buckets b;
        mesh_comm c;
        mesh_error err;
        float in[3][8] = {{0}}, out[3][8];
        mesh_status status;
        if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_tensor_make(&src[0], &c.on, "x:P(sum)", MESH_F32, 1, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&dst[0], &c.on, "x:I", MESH_F32, 1, shape, &err), err);
        src[1] = src[2] = src[0], dst[1] = dst[2] = dst[0];
        for (i = 0; i < 3; i++) src[i].data = in[i], dst[i].data = out[i];
        desc.bucket = apart;
        if (what == 0 && bad) src[1].data = NULL;
        if (what == 0) desc.bucket = alone;
        if (what == 1 && bad) desc.bucket = falling;
        if (what == 6 && bad) dst[2].data = dst[1].data;
        if (what == 7 && bad) src[2].data = NULL;
        if (what == 5) desc.bucket = bad ? together : apart;
        status = mesh_buckets_open(what == 4 && bad ? NULL : &b, &c, what == 2 && bad ? NULL : src, dst,
                                   what == 3 && bad ? -1 : 3, &desc);
        if (what == 5) {
            CHECK_INT(status, MESH_OK);
            status = mesh_buckets_ready(&b, 0);
            for (i = 1; i < 3 && status == MESH_OK; i++) status = mesh_buckets_ready(&b, i);
            if (status == MESH_OK) status = mesh_buckets_wait(&b, -1);
            CHECK_INT(status, MESH_ERR_MISMATCH);
            status = mesh_buckets_close(&b); /* OK: none of them was under way */
            CHECK(status == MESH_OK || status == MESH_ERR_MISMATCH);
            CHECK(!b.impl);
        } else {
            if (!bad && status == MESH_OK) { /* it came to know later */
                status = mesh_buckets_ready(&b, 0);
                for (i = 1; i < 3 && status == MESH_OK; i++) status = mesh_buckets_ready(&b, i);
                if (status == MESH_OK) status = mesh_buckets_wait(&b, -1);
                mesh_buckets_close(&b);
            }
            CHECK_INT(status, MESH_ERR_ARGUMENT);
            CHECK_HAS(c.error.text, said[what]);
            CHECK_INT(c.error.rank, 1);
        }
        mesh_comm_close(&c);
    }
}
static void test_buckets_refused(void) {
    mesh_buckets b;
    mesh_comm none = MESH_ZERO;
    run_world(SIM, 3, buckets_refused_rank, NULL);
    run_world(TCP, 2, buckets_refused_rank, NULL);
    CHECK_INT(mesh_buckets_open(&b, NULL, NULL, NULL, 0, NULL), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_buckets_open(&b, &none, NULL, NULL, 0, NULL), MESH_ERR_STATE);
    CHECK_HAS(none.error.text, "mesh_buckets_open: the comm is not open");
    CHECK_INT(mesh_buckets_of(&b, 0, NULL, NULL), -1);
}

/* A bucket that cannot go is not ready, and can be later; buckets of a comm that was closed, with another in its place, are told so, and closed without a word. */
static void buckets_reopened_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {8};
    mesh_tensor src, dst;
    mesh_buckets b;
    mesh_request kept;
    mesh_comm c;
    mesh_error err;
    mesh m;
    float in[8] = {1, 1, 1, 1, 1, 1, 1, 1}, out[8] = {0};
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    m = c.on;
    CHECK_OK(mesh_tensor_make(&src, &m, "x:P(sum)", MESH_F32, 1, shape, &err), err);
    CHECK_OK(mesh_tensor_make(&dst, &m, "x:I", MESH_F32, 1, shape, &err), err);
    src.data = in, dst.data = out;
    CHECK_OK(mesh_buckets_open(&b, &c, &src, &dst, 1, NULL), c.error);
    kept = mesh__buckets_of(&b)->bucket[0].request;
    CHECK_OK(mesh_restart(kept), c.error); /* behind their back */
    CHECK_INT(mesh_buckets_ready(&b, 0), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "the request is under way");
    CHECK_INT(mesh_buckets_wait(&b, -1), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_buckets_wait(-1): tensor 0 is not ready, and the bucket of tensors 0 to 0 waits for it");
    CHECK_OK(mesh_wait(kept), c.error);
    CHECK_OK(mesh_buckets_ready(&b, 0), c.error);
    CHECK_OK(mesh_buckets_wait(&b, -1), c.error);
    CHECK(out[0] == (float)t->size && out[7] == (float)t->size);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_OK(mesh_comm_open(&c, t, &m, NULL, &err), err);
    CHECK_INT(mesh_buckets_ready(&b, 0), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_buckets_ready: the comm that these buckets were opened on was closed");
    CHECK_INT(mesh_buckets_wait(&b, -1), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_buckets_wait: the comm that these buckets were opened on was closed");
    memset(&c.error, 0, sizeof c.error);
    CHECK_INT(mesh_buckets_close(&b), MESH_OK);
    CHECK_STR(c.error.text, "");
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
/* A bucket behind the one that gets whole cannot go: that one does, and the other goes later. */
static void buckets_behind_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {1};
    static const int bucket[2] = {0, 1};
    mesh_buckets_desc desc = MESH_ZERO;
    mesh_tensor src[2], dst[2];
    mesh_buckets b;
    mesh_request behind;
    mesh_comm c;
    mesh_error err;
    float in[2] = {1, 2}, out[2] = {0};
    int i;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (i = 0; i < 2; i++) {
        CHECK_OK(mesh_tensor_make(&src[i], &c.on, "x:P(sum)", MESH_F32, 1, shape, &err), err);
        CHECK_OK(mesh_tensor_make(&dst[i], &c.on, "x:I", MESH_F32, 1, shape, &err), err);
        src[i].data = &in[i], dst[i].data = &out[i];
    }
    desc.bucket = bucket;
    CHECK_OK(mesh_buckets_open(&b, &c, src, dst, 2, &desc), c.error);
    behind = mesh__buckets_of(&b)->bucket[1].request;
    CHECK_OK(mesh_restart(behind), c.error); /* behind their back */
    CHECK_OK(mesh_buckets_ready(&b, 1), c.error);
    memset(&c.error, 0, sizeof c.error);
    CHECK_OK(mesh_buckets_ready(&b, 0), c.error);
    CHECK_STR(c.error.text, "");
    CHECK_OK(mesh_buckets_wait(&b, 0), c.error);
    CHECK(out[0] == (float)t->size);
    CHECK_OK(mesh_wait(behind), c.error);
    out[1] = 0;
    CHECK_OK(mesh_buckets_wait(&b, -1), c.error);
    CHECK(out[1] == 2 * (float)t->size);
    CHECK_OK(mesh_restart(behind), c.error);
    CHECK_OK(mesh_buckets_ready(&b, 1), c.error);
    CHECK_OK(mesh_buckets_ready(&b, 0), c.error);
    CHECK_INT(mesh_buckets_wait(&b, -1), MESH_ERR_STATE); /* it still cannot */
    CHECK_HAS(c.error.text, "the request is under way");
    CHECK_OK(mesh_wait(behind), c.error);
    CHECK_OK(mesh_buckets_wait(&b, -1), c.error);
    CHECK_INT(mesh_buckets_close(&b), MESH_OK);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_buckets_behind(void) { run_world(SIM, 3, buckets_behind_rank, NULL); }

static void test_buckets_reopened(void) {
    run_world(SIM, 3, buckets_reopened_rank, NULL);
    run_world(TCP, 2, buckets_reopened_rank, NULL);
}

static const test_case buckets_tests[] = {
    {"buckets/rounds", test_buckets, 120},
    {"buckets/cut", test_buckets_cut, 0},
    {"buckets/capped", test_buckets_capped, 120},
    {"buckets/early", test_buckets_early, 60},
    {"buckets/reopened", test_buckets_reopened, 60},
    {"buckets/behind", test_buckets_behind, 60},
    {"buckets/refused", test_buckets_refused, 60},
};

#endif
