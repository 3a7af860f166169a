/* Redistribution with little memory, under tight caps on scratch; and lists whose entries overlap. */
#ifndef T_CAPPED_H
#define T_CAPPED_H

/* ---- sums that stay sums, under tight caps: what is zero beside a summand is zero at the end, however many slabs it takes ---- */

enum { CAPPED_RANKS = 12, CAPPED_MOST = 13 * 12 * 16 };
typedef struct capped_sum {
    mesh m[2];
    char text[2][80];
    int64_t shape[3], cap, made[CAPPED_RANKS][CAPPED_MOST];
    mesh_box box[CAPPED_RANKS];
} capped_sum;

static int64_t capped_value(int64_t k, int summand) { return (k * 7 + summand * 13 + 3) % 17 - 8; }

/* Of the axes of a kind: which of their coordinates a rank has, as one number, and how many there are. */
static int capped_along(const mesh_layout *l, int kind, int rank, int *count) {
    int coord[MESH_MAX_AXES], i, k = 0;
    mesh_coords_of(l->on, NULL, rank, coord);
    for (*count = 1, i = 0; i < l->on->naxes; i++)
        if (l->spec.axis[i].kind == kind) k = k * l->on->axis[i].size + coord[i], *count *= l->on->axis[i].size;
    return k;
}

static void capped_rank(mesh_transport *t, void *ctx) {
    capped_sum *q = (capped_sum *)ctx;
    static int64_t from[CAPPED_RANKS][CAPPED_MOST];
    int64_t k, count;
    int summands, mine;
    mesh_tensor src, dst;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_comm c;
    mesh_error err;
    mesh world;
    mesh_box box;
    desc.scratch_cap = q->cap;
    CHECK_OK(mesh_parse(&world, "w=-1", t->size, &err), err);
    CHECK_OK(mesh_comm_open(&c, t, &world, &desc, &err), err);
    CHECK_OK(mesh_tensor_make(&src, &q->m[0], q->text[0], MESH_I64, 3, q->shape, &err), err);
    CHECK_OK(mesh_tensor_make(&dst, &q->m[1], q->text[1], MESH_I64, 3, q->shape, &err), err);
    count = mesh_tensor_box(&src, t->rank, &box);
    mine = capped_along(&src.layout, MESH_PARTIAL, t->rank, &summands);
    for (k = 0; k < count; k++) from[t->rank][k] = capped_value(plan_linear_in(3, q->shape, &box, k), mine);
    mesh_tensor_box(&dst, t->rank, &q->box[t->rank]);
    memset(q->made[t->rank], 99, sizeof q->made[t->rank]);
    src.data = from[t->rank], dst.data = q->made[t->rank];
    CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
    mesh_comm_close(&c);
}

static void capped_check(capped_sum *q) {
    static int64_t total[CAPPED_MOST];
    mesh_layout from, to;
    mesh_plan_desc d = MESH_ZERO;
    static mesh_plan plan;
    mesh_error err;
    int64_t k, elements = q->shape[0] * q->shape[1] * q->shape[2];
    int r, s, summands, copies;
    CHECK_OK(mesh_layout_parse(&from, &q->m[0], q->text[0], 3, q->shape, &err), err);
    CHECK_OK(mesh_layout_parse(&to, &q->m[1], q->text[1], 3, q->shape, &err), err);
    d.src = &from, d.dst = &to, d.dtype = MESH_I64;
    CHECK_OK(mesh_plan_make(&plan, &d, &err), err);
    for (q->cap = d.scratch_cap = plan.scratch; d.scratch_cap > 64 && mesh_plan_make(&plan, &d, &err) == MESH_OK;
         d.scratch_cap = q->cap * 7 / 8)
        q->cap = plan.scratch; /* as little as there can be, or nearly so */
    run_world(SIM, CAPPED_RANKS, capped_rank, q);
    capped_along(&from, MESH_PARTIAL, 0, &summands);
    capped_along(&to, MESH_REPLICATE, 0, &copies);
    memset(total, 0, sizeof total);
    for (r = 0; r < CAPPED_RANKS; r++)
        for (k = 0; k < mesh_box_count(&q->box[r]); k++)
            total[plan_linear_in(3, q->shape, &q->box[r], k)] += q->made[r][k];
    for (k = 0; k < elements && !test_failures; k++) {
        int64_t want = 0;
        for (s = 0; s < summands; s++) want += copies * capped_value(k, s);
        if (total[k] != want)
            test_fail(__FILE__, __LINE__, "element %d adds up to %d, expected %d, cap %d: %s -> %s, %dx%dx%d", (int)k, (int)total[k],
                      (int)want, (int)q->cap, q->text[0], q->text[1], (int)q->shape[0], (int)q->shape[1], (int)q->shape[2]);
    }
}

static void test_capped(void) {
    static const char *const meshes[] = {"a=12", "a=3,b=4", "a=2,b=3,c=2", "a=4,b=3", "a=6,b=2", "a=2,b=2,c=3"};
    static const char *const places[] = {"R", "S(0)", "S(1)", "S(2)", "P(sum)", "P(sum)"};
    capped_sum *q = (capped_sum *)calloc(1, sizeof *q);
    test_random r = random_from(77);
    mesh_error err;
    int k, side, i;
    for (k = 0; k < 60 && !test_failures; k++) {
        for (i = 0; i < 3; i++) q->shape[i] = 1 + random_below(&r, i == 0 ? 13 : i == 1 ? 12 : 16);
        for (side = 0; side < 2; side++) {
            CHECK_OK(mesh_parse(&q->m[side], meshes[random_below(&r, 6)], CAPPED_RANKS, &err), err);
            for (q->text[side][0] = 0, i = 0; i < q->m[side].naxes; i++)
                snprintf(q->text[side] + strlen(q->text[side]), 20, "%s%s:%s", i ? " " : "", q->m[side].axis[i].name,
                         places[random_below(&r, 6)]);
        }
        if (k == 0) { /* the slabs of the sum lie in the destination, whose sum is elsewhere */
            CHECK_OK(mesh_parse(&q->m[0], "a=3,b=4", CAPPED_RANKS, &err), err);
            CHECK_OK(mesh_parse(&q->m[1], "a=2,b=3,c=2", CAPPED_RANKS, &err), err);
            strcpy(q->text[0], "a:P(sum) b:S(2)"), strcpy(q->text[1], "a:P(sum) b:P(sum) c:R balanced");
            q->shape[0] = 13, q->shape[1] = 12, q->shape[2] = 16;
        }
        capped_check(q);
    }
    free(q);
}

/* Of entries at random places, few and many: what two receive, or one receives and another sends, overlaps or not, as every pair compared says. */
static int extents_meet(const mesh__extent *sent, const mesh__extent *received, int a, int b) {
    const mesh__extent *r = &received[a];
    return mesh__overlap((void *)r->begin, r->end - r->begin, (void *)received[b].begin, received[b].end - received[b].begin) ||
           mesh__overlap((void *)r->begin, r->end - r->begin, (void *)sent[b].begin, sent[b].end - sent[b].begin);
}
static void overlap_many_rank(mesh_transport *t, void *ctx) {
    enum { MOST = 600, SPACE = 1 << 20 };
    static mesh__extent part[2][MOST];
    int trial, met = 0, apart = 0;
    test_random r = random_from(91);
    (void)ctx;
    for (trial = 0; trial < 4000 && !test_failures; trial++) {
        int n = trial % 100 ? 2 + random_below(&r, 4) : MOST, space = n < MOST ? 120 : SPACE, i, k, want = 0, one, other = -1;
        mesh__extents list;
        CHECK(mesh__extents_open(&list, t, 2 * (size_t)n));
        for (i = 0; i < n; i++)
            for (k = 0; k < 2; k++) {
                mesh__extent *p = &part[k][i];
                int longest = n < MOST || trial % 200 ? 24 : 2, bytes = random_below(&r, longest);
                p->begin = 4096 + (uintptr_t)random_below(&r, space - longest);
                if (n == MOST && trial % 200 == 0) p->begin = 4096 + 2 * (uintptr_t)(MOST * k + (i * 7) % MOST); /* none meets another */
                p->end = p->begin + (uintptr_t)bytes;
                mesh__extents_add(&list, (void *)p->begin, (size_t)bytes, i, k);
            }
        for (i = 0; i < n; i++)
            for (k = 0; k < n; k++) want |= i != k && extents_meet(part[0], part[1], i, k);
        one = mesh__extents_close(&list, t, &other);
        CHECK_INT(one >= 0, want);
        if (one >= 0)
            CHECK(one < other && (extents_meet(part[0], part[1], one, other) || extents_meet(part[0], part[1], other, one)));
        met += want, apart += !want;
    }
    CHECK(met > 500 && apart > 500);
}
static void test_redistribute_overlap_many(void) { run_world(SIM, 1, overlap_many_rank, NULL); }

/* In a list of more than anybody compares pair by pair. */
static void overlap_long_rank(mesh_transport *t, void *ctx) {
    enum { LONG = 300 };
    static const int64_t shape[1] = {2};
    mesh_tensor *list = (mesh_tensor *)calloc(2 * LONG, sizeof *list);
    float *room = (float *)calloc(3 * LONG, sizeof *room);
    mesh_comm c;
    mesh_error err;
    int i, wrong;
    (void)ctx;
    for (wrong = 0; wrong < 2; wrong++) {
        if (!open_comm(t, &c, "x=2", NULL, 30 * SECOND)) break;
        for (i = 0; i < LONG; i++) {
            CHECK_OK(mesh_tensor_make(&list[i], &c.on, "x:S(0)", MESH_F32, 1, shape, &err), err);
            CHECK_OK(mesh_tensor_make(&list[LONG + i], &c.on, "x:R", MESH_F32, 1, shape, &err), err);
            list[i].data = room + i, list[LONG + i].data = room + LONG + 2 * i;
        }
        if (wrong) list[2 * LONG - 1].data = room + LONG;
        CHECK_INT(mesh_redistribute_many(&c, list, list + LONG, LONG), wrong ? MESH_ERR_ARGUMENT : MESH_OK);
        if (wrong) CHECK_HAS(c.error.text, "what tensor 0 or 299 receives overlaps the other");
        mesh_comm_close(&c);
    }
    free(list), free(room);
}
static void test_redistribute_overlap_long(void) { run_world(SIM, 2, overlap_long_rank, NULL); }

static const test_case capped_tests[] = {
    {"redistribute/overlap_many", test_redistribute_overlap_many, 0},
    {"redistribute/overlap_long", test_redistribute_overlap_long, 0},
    {"redistribute/capped", test_capped, 0},
};

#endif
