/* mesh_parallel.h: cross-entropy and embedding over a sharded vocabulary; the exponential. */
#ifndef T_VOCABULARY_H
#define T_VOCABULARY_H
#include "there.h"

static void test_exponential(void) {
    static const double known[][2] = {{0, 1},
                                      {1, 2.71828182845904523536},
                                      {-1, 0.36787944117144232160},
                                      {0.5, 1.64872127070012814685},
                                      {10, 22026.4657948067165170},
                                      {-20, 2.06115362243855782797e-9},
                                      {700, 1.0142320547350045e304},
                                      {-700, 9.85967654375977e-305}};
    test_random r = random_from(3);
    size_t i;
    int k;
    for (i = 0; i < sizeof known / sizeof known[0]; i++) {
        double d = mesh__exp(known[i][0]) / known[i][1] - 1;
        if (d > 2e-13 || d < -2e-13) test_fail(__FILE__, __LINE__, "e^%g is off by %g", known[i][0], d);
    }
    CHECK(mesh__exp(-709) == 0 && mesh__exp(-1e300) == 0 && mesh__exp(710) > 1e308 && mesh__exp(709.5) > 1e308);
    for (k = 0; k < 200000 && !test_failures; k++) {
        double x = (double)(random_next(&r) >> 11) / 9007199254740992.0 * 690, y = mesh__exp(-x), d = mesh__ln(y) + x;
        float f = (float)(x / 8), e = mesh__exp_below(-f);
        if (d > 2e-13 || d < -2e-13) test_fail(__FILE__, __LINE__, "ln e^-%g is off by %g", x, d);
        d = (double)e / mesh__exp(-(double)f) - 1;
        if (d > 2.5e-7 || d < -2.5e-7) test_fail(__FILE__, __LINE__, "e^-%g in float is off by %g", (double)f, d);
    }
    CHECK(mesh__exp_below(0) == 1 && mesh__exp_below(-87.1f) == 0 && mesh__exp_below(-3e38f) == 0 &&
          mesh__exp_below(-86.9f) > 1e-38f);
}

/* ---- cross-entropy ---- */

enum { LOSS_ROWS = 23, LOSS_COLUMNS = 700 };
typedef struct loss_problem {
    int64_t shape[2], vocabulary;
    float smoothing, scale;
    mesh_dtype dtype;
    int weighs, salt;
} loss_problem;

static double loss_logit(const loss_problem *p, int64_t row, int64_t column) {
    uint32_t n[4];
    double v;
    mesh_random_block(n, (uint64_t)p->salt, 1, (uint64_t)(row * 100000 + column));
    v = ((double)n[0] / 4294967296.0 - 0.5) * (row % 5 == 3 ? 160 : 12) + (row % 7 == 2 ? 1000 : 0);
    if (column >= p->vocabulary) v = 5000; /* padding is never looked at */
    return float_rounded(p->dtype, v);
}
static int32_t loss_target(const loss_problem *p, int64_t row) {
    uint32_t n[4];
    mesh_random_block(n, (uint64_t)p->salt, 2, (uint64_t)row);
    return n[1] % 6 == 0 ? -100 : (int32_t)(n[0] % (uint64_t)p->vocabulary);
}
static float loss_weight(const loss_problem *p, int64_t row) { return p->weighs ? (float)(row % 4) * 0.5f : 1; }

/* By the definition, in double: the loss of a row, and the logarithm of its sum. */
static double loss_of_row(const loss_problem *p, int64_t row, double *total) {
    double most = -1e300, sum = 0, even = 0, smoothing = (double)p->smoothing;
    int64_t k, n = p->vocabulary;
    for (k = 0; k < n; k++) most = loss_logit(p, row, k) > most ? loss_logit(p, row, k) : most;
    for (k = 0; k < n; k++) {
        double v = loss_logit(p, row, k) - most;
        sum += mesh__exp(v);
        even -= v / (double)n;
    }
    *total = most + mesh__ln(sum);
    if (loss_target(p, row) < 0) return 0;
    return (1 - smoothing) * (*total - loss_logit(p, row, loss_target(p, row))) + smoothing * (mesh__ln(sum) + even);
}
static double loss_gradient(const loss_problem *p, int64_t row, int64_t column, double total) {
    int32_t target = loss_target(p, row);
    if (target < 0 || column >= p->vocabulary) return 0;
    return (double)p->scale * (double)loss_weight(p, row) *
           (mesh__exp(loss_logit(p, row, column) - total) - (double)p->smoothing / (double)p->vocabulary -
            (column == target ? 1 - (double)p->smoothing : 0));
}

enum { LOSS_ROOM = 2 * LOSS_ROWS * (LOSS_COLUMNS + 3) };

/* The call, in the comm's memory. */
static void loss_there(mesh_comm *c, const mesh_loss *desc, mesh_tensor t, float *part, float *gradient, float *loss,
                       int in_place) {
    mesh_loss l = *desc;
    there_list w;
    w.c = c, w.n = 0;
    t.data = there_out(&w, part, LOSS_ROOM * sizeof *part);
    l.logits = &t;
    l.gradient = in_place ? t.data : there_out(&w, gradient, LOSS_ROOM * sizeof *gradient);
    l.targets = (const int32_t *)there_in(&w, l.targets, LOSS_ROWS * sizeof *l.targets);
    l.row_scale = (const float *)there_in(&w, l.row_scale, LOSS_ROWS * sizeof *l.row_scale);
    l.loss = (float *)there_out(&w, loss, LOSS_ROWS * sizeof *loss);
    CHECK_OK(mesh_cross_entropy(c, &l), c->error);
    there_back(&w);
}

static void loss_try(mesh_comm *c, test_random *r) {
    static const char *const columns[] = {"R", "S(1)", "S(1)", "I"}, *const rows[] = {"S(0)", "R", "S(0)", "S(1)"};
    static const mesh_dtype dtypes[] = {MESH_F32, MESH_F32, MESH_BF16, MESH_F16};
    /* ranks are threads: nothing static */
    float *part = (float *)calloc(LOSS_ROOM, sizeof *part), *gradient = (float *)calloc(LOSS_ROOM, sizeof *gradient);
    int32_t targets[LOSS_ROWS];
    float weight[LOSS_ROWS], loss[LOSS_ROWS];
    int64_t strides[2], row, k, rows_counted = -1, want = 0;
    int step, strided = random_below(r, 3), in_place = random_below(r, 2), rank = c->transport->rank;
    loss_problem p;
    mesh_tensor t;
    mesh_box box;
    mesh_loss l = MESH_ZERO;
    mesh_error err;
    char spec[64];
    memset(&p, 0, sizeof p);
    p.shape[0] = random_below(r, LOSS_ROWS + 1),
    p.shape[1] = 1 + random_below(r, random_below(r, 2) ? 9 : LOSS_COLUMNS);
    p.vocabulary = random_below(r, 2) ? p.shape[1] : 1 + random_below(r, (int)p.shape[1]);
    p.smoothing = random_below(r, 2) ? 0 : 0.1f * (float)random_below(r, 10);
    p.scale = random_below(r, 2) ? 1 : 0.25f;
    p.dtype = dtypes[random_below(r, 4)];
    p.weighs = random_below(r, 2);
    p.salt = random_below(r, 1000);
    snprintf(spec, sizeof spec, "a:%s", columns[random_below(r, 4)]);
    if (c->on.naxes > 1) snprintf(spec + strlen(spec), 32, " b:%s", rows[random_below(r, 4)]);
    CHECK_OK(mesh_tensor_make(&t, &c->on, spec, p.dtype, 2, p.shape, &err), err);
    mesh_tensor_box(&t, rank, &box);
    step = strided ? 2 : 1;
    strides[0] = strided == 2 ? 1 : box.shape[1] * step + 3;
    strides[1] = strided == 2 ? box.shape[0] + 1 : step;
    if (strided) t.strides = strides;
    t.data = part;
    if (!strided) strides[0] = box.shape[1], strides[1] = 1;
    memset(gradient, 0x77, LOSS_ROOM * sizeof *gradient);
    for (row = 0; row < box.shape[0]; row++) {
        targets[row] = loss_target(&p, box.offset[0] + row);
        weight[row] = loss_weight(&p, box.offset[0] + row);
        want += targets[row] >= 0;
        for (k = 0; k < box.shape[1]; k++)
            float_put(p.dtype, part, row * strides[0] + k * strides[1],
                      loss_logit(&p, box.offset[0] + row, box.offset[1] + k));
    }
    l.logits = &t, l.targets = targets, l.smoothing = p.smoothing, l.loss = loss, l.counted = &rows_counted;
    l.vocabulary = p.vocabulary == p.shape[1] && random_below(r, 2) ? 0 : p.vocabulary;
    l.scale = p.scale == 1 && random_below(r, 2) ? 0 : p.scale;
    l.row_scale = p.weighs ? weight : NULL;
    l.gradient = in_place ? part : gradient;
    loss_there(c, &l, t, part, gradient, loss, in_place);
    CHECK_INT(rows_counted, want);
    for (row = 0; row < box.shape[0] && !test_failures; row++) {
        double total, of = loss_of_row(&p, box.offset[0] + row, &total), near = (double)loss[row] - of;
        if (near > 2e-6 * (1 + of) || near < -2e-6 * (1 + of))
            test_fail(__FILE__, __LINE__, "rank %d, %s, row %d: the loss is %.9g, expected %.9g", rank, spec, (int)row,
                      (double)loss[row], of);
        for (k = 0; k < box.shape[1]; k++) {
            double g = loss_gradient(&p, box.offset[0] + row, box.offset[1] + k, total), room = g < 0 ? -g : g,
                   has = float_at(p.dtype, l.gradient, row * strides[0] + k * strides[1]);
            near = has - g < 0 ? g - has : has - g;
            /* of rounding: the dtype's, where f16 runs out of digits too */
            room = 1e-6 * (0.3 + room) + (p.dtype == MESH_BF16  ? room / 256
                                          : p.dtype == MESH_F16 ? room / 1024 + 6e-8
                                                                : 0);
            if (near > room || (has != 0 && (targets[row] < 0 || box.offset[1] + k >= p.vocabulary)))
                test_fail(__FILE__, __LINE__, "rank %d, %s, row %d, column %d: the gradient is %.9g, expected %.9g",
                          rank, spec, (int)row, (int)k, has, g);
        }
    }
    free(part), free(gradient);
}

static void loss_rank(mesh_transport *t, void *ctx) {
    int k, i;
    for (i = 0; i < 2; i++) {
        test_random r = random_from(700 + (uint64_t)t->size * 2 + (uint64_t)i);
        mesh_comm c;
        if (i && t->size % 2) return;
        if (!open_comm(t, &c, i ? "a=-1,b=2" : "a=-1", NULL, 20 * SECOND)) return;
        for (k = 0; k < *(int *)ctx && !test_failures; k++) loss_try(&c, &r);
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
    }
}
static void test_loss(void) {
    static const int sizes[] = {1, 2, 3, 4, 6};
    int i, many = test_long ? 300 : 30, few = 8;
    for (i = 0; i < 5; i++) run_world(SIM, sizes[i], loss_rank, &many);
    run_world(TCP, 4, loss_rank, &few);
}

/* What travels, and that ranks along the vocabulary get the same bits: a float per row and 4, then two; three where smoothed. */
static void loss_bytes_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[2] = {64, 96};
    float part[64 * 48], loss[64], others[2][64];
    int32_t targets[64];
    int i, smoothed;
    (void)ctx;
    for (i = 0; i < 64 * 48; i++) part[i] = (float)((i * 7 + t->rank * 31) % 101) / 7;
    for (i = 0; i < 64; i++) targets[i] = i;
    for (smoothed = 0; smoothed < 2; smoothed++) {
        mesh_comm c;
        mesh_tensor logits;
        mesh_error err;
        mesh_loss l = MESH_ZERO;
        uint64_t before, after;
        if (!open_comm(t, &c, "a=2", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_tensor_make(&logits, &c.on, "a:S(1)", MESH_F32, 2, shape, &err), err);
        logits.data = part;
        l.logits = &logits, l.targets = targets, l.loss = loss, l.smoothing = smoothed ? 0.1f : 0;
        CHECK_INT(mesh_comm_bytes(&c, "a", &before, NULL), MESH_OK);
        CHECK_OK(mesh_cross_entropy(&c, &l), c.error);
        CHECK_INT(mesh_comm_bytes(&c, "a", &after, NULL), MESH_OK);
        CHECK_INT(after - before,
                  64 * 4 * (smoothed ? 4 : 3) + 16); /* two ranks: what an all_reduce of n bytes sends is n */
        CHECK_OK(mesh_all_gather(&c, "a", loss, others, 64, MESH_F32), c.error);
        CHECK(!memcmp(others[0], others[1], sizeof others[0]));
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
    }
}
static void test_loss_bytes(void) { run_world(SIM, 2, loss_bytes_rank, NULL); }

/* Logits that are infinite or no number, and the least of all: on one rank, the whole row, in the target's column or not. */
static void loss_broken_rank(mesh_transport *t, void *ctx) {
    enum { ROWS = 10, COLUMNS = 300 };
    static const int64_t shape[2] = {ROWS, COLUMNS};
    static float part[4][ROWS * COLUMNS], gradient[4][ROWS * COLUMNS];
    float loss[ROWS], infinite = 3e38f, none, ln = 5.70378247465620f; /* ln 300 */
    int32_t targets[ROWS] = {7, 7, 7, 7, 7, 7, 7, 7, 7, -1};
    int64_t row, k, width;
    mesh_loss l = MESH_ZERO;
    mesh_tensor x;
    mesh_comm c;
    mesh_error err;
    mesh_box box;
    (void)ctx;
    infinite *= 10, none = infinite - infinite;
    if (!open_comm(t, &c, "a=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_tensor_make(&x, &c.on, "a:S(1)", MESH_F32, 2, shape, &err), err);
    x.data = part[t->rank];
    mesh_tensor_box(&x, t->rank, &box);
    width = box.shape[1];
    for (row = 0; row < ROWS; row++)
        for (k = 0; k < width; k++) {
            int64_t column = box.offset[1] + k;
            part[t->rank][row * width + k] = row == 0   ? column == 290 ? infinite : 1
                                             : row == 1 ? column == 7 ? infinite : 1
                                             : row == 2 ? column == 299 ? none : 1
                                             : row == 3 ? column == 7 ? none : 1
                                             : row == 4 ? -infinite
                                             : row == 5 ? none
                                             : row == 6 ? -3.40282346638528859812e38f
                                             : row == 7 ? column % 2 ? -infinite : 2
                                             : row == 8 ? column == 7 ? -3.4028e38f : column == 150 ? 3.4e38f : 0
                                                        : none;
        }
    l.logits = &x, l.targets = targets, l.loss = loss, l.gradient = gradient[t->rank];
    for (k = 0; k < 2; k++) {
        mesh_loss there = l;
        there_list w;
        w.c = &c, w.n = 0;
        if (k) there.smoothing = 0.1f;
        x.data = there_in(&w, part[t->rank], sizeof part[0]);
        there.targets = (const int32_t *)there_in(&w, targets, sizeof targets);
        there.gradient = there_out(&w, gradient[t->rank], sizeof gradient[0]);
        there.loss = (float *)there_out(&w, loss, sizeof loss);
        CHECK_OK(mesh_cross_entropy(&c, &there), c.error);
        there_back(&w);
        for (row = 0; row < 6; row++) {
            CHECK(loss[row] != loss[row]);
            CHECK(gradient[t->rank][row * width] != gradient[t->rank][row * width]);
        }
        CHECK(loss[6] > ln * 0.999999f && loss[6] < ln * 1.000001f);
        CHECK(k ? loss[7] != loss[7] || loss[7] > 1e30f : loss[7] > 1e30f); /* the target is a column that cannot be */
        CHECK(k || loss[8] > 3e38f);
        CHECK(loss[9] == 0 && gradient[t->rank][9 * width] == 0);
    }
    mesh_comm_close(&c);
}
static void test_loss_broken(void) {
    run_world(SIM, 1, loss_broken_rank, NULL);
    run_world(SIM, 2, loss_broken_rank, NULL);
    run_world(SIM, 4, loss_broken_rank, NULL);
}

/* Ranks along the vocabulary that have something else. */
static void loss_differs_rank(mesh_transport *t, void *ctx) {
    static const int64_t shapes[2][2] = {{4, 6}, {4, 8}};
    int what;
    (void)ctx;
    for (what = 0; what < 5; what++) {
        int32_t targets[4] = {0, 1, 2, 3};
        float part[48] = {0}, loss[4] = {-1, -1, -1, -1};
        mesh_status status;
        int odd = t->rank == 3;
        mesh_loss l = MESH_ZERO;
        mesh_tensor logits;
        mesh_comm c;
        mesh_error err;
        if (!open_comm(t, &c, "d=2,a=2", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_tensor_make(&logits, &c.on, "a:S(1)", odd && what == 2 ? MESH_BF16 : MESH_F32, 2, shapes[odd && what == 0], &err), err);
        logits.data = part;
        l.logits = &logits, l.targets = targets, l.loss = loss, l.vocabulary = odd && what == 1 ? 5 : 6;
        if (odd && what == 3) l.smoothing = 1e-9f;
        if (what == 3 && !odd) l.smoothing = 1.1e-9f;
        if (odd && what == 4) targets[3] = -1;
        status = mesh_cross_entropy(&c, &l);
        if (t->rank >= 2) { /* the other two may be done before they hear of it */
            CHECK_INT(status, MESH_ERR_MISMATCH);
            CHECK_INT(c.error.rank, 3);
            CHECK_HAS(c.error.text, what == 4 ? "rank 3 has other targets than rank 2;" : "rank 3 has another layout or dtype of the logits, vocabulary or smoothing than rank 2;");
            CHECK(loss[0] == -1);
        }
        mesh_comm_close(&c);
    }
}

/* The same axes, dims and sizes, and other columns on one rank: another order of the axes, another rule. */
static void loss_columns_rank(mesh_transport *t, void *ctx) {
    static const char *const meshes[] = {"d=2,a=2", "d=1,a=4"}, *const specs[] = {"d:S(1) a:S(1)", "a:S(1)"},
                      *const others[] = {"d:S(1)@1 a:S(1)@0", "a:S(1) balanced"};
    static const int64_t shapes[2][2] = {{2, 4}, {2, 5}};
    int what;
    (void)ctx;
    for (what = 0; what < 2; what++) {
        static const int odd[] = {1, 3};
        int32_t targets[2] = {0, 1};
        float part[10] = {0}, loss[2] = {-1, -1};
        mesh_loss l = MESH_ZERO;
        mesh_tensor logits;
        mesh_comm c;
        mesh_error err;
        if (!open_comm(t, &c, meshes[what], NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_tensor_make(&logits, &c.on, (t->rank == odd[what] ? others : specs)[what], MESH_F32, 2, shapes[what], &err), err);
        logits.data = part;
        l.logits = &logits, l.targets = targets, l.loss = loss;
        CHECK_INT(mesh_cross_entropy(&c, &l), MESH_ERR_MISMATCH);
        CHECK_INT(c.error.rank, odd[what]);
        CHECK_HAS(c.error.text, "has another layout or dtype of the logits, vocabulary or smoothing than rank 0;");
        CHECK(loss[0] == -1);
        mesh_comm_close(&c);
    }
}
static void test_loss_differs(void) {
    run_world(SIM, 4, loss_differs_rank, NULL);
    run_world(SIM, 4, loss_columns_rank, NULL);
}

static void loss_refused_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[2] = {4, 6}, cube[3] = {4, 6, 2};
    static const struct {
        const char *said;
        int status;
    } wrong[] = {
        {"mesh_cross_entropy: the target of row 2 of rank 1 is 5, of a vocabulary of 5", MESH_ERR_ARGUMENT},
        {"mesh_cross_entropy: a vocabulary of 7; the logits have 6 columns", MESH_ERR_ARGUMENT},
        {"mesh_cross_entropy: smoothing is not from 0 to less than 1", MESH_ERR_ARGUMENT},
        {"mesh_cross_entropy: the logits are NULL", MESH_ERR_ARGUMENT},
        {"mesh_cross_entropy: the targets are NULL, but rank 1 holds 4 rows", MESH_ERR_ARGUMENT},
        {"mesh_cross_entropy: the logits' data is NULL, but rank 1 holds 4 rows", MESH_ERR_ARGUMENT},
        {"mesh_cross_entropy: the logits are i32; f16, bf16 or f32 are computed with", MESH_ERR_UNSUPPORTED},
        {"mesh_cross_entropy: the logits are partial along \"a\"; redistribute them first", MESH_ERR_ARGUMENT},
        {"mesh_cross_entropy: the logits have 3 dims; they are rows x vocabulary", MESH_ERR_ARGUMENT},
        {"mesh_cross_entropy: the logits are on the mesh \"b=2\", the comm on \"a=2\"", MESH_ERR_ARGUMENT},
        {"mesh_cross_entropy: the loss is NULL", MESH_ERR_ARGUMENT},
        {"mesh_cross_entropy: the tensor: the local shape has 6 in dim 1, but by its spec rank 1 holds 3 of 6", MESH_ERR_ARGUMENT},
        {"mesh_cross_entropy: smoothing is not from 0 to less than 1", MESH_ERR_ARGUMENT},
    };
    int what;
    (void)ctx;
    for (what = 0; what < 13; what++) {
        int32_t targets[4] = {0, 1, 2, 3};
        float part[48] = {0}, loss[4] = {-1, -1, -1, -1};
        int bad = t->rank == 1;
        mesh_loss l = MESH_ZERO;
        mesh_tensor logits;
        mesh_comm c;
        mesh_error err;
        mesh other;
        if (!open_comm(t, &c, "a=2", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_tensor_make(&logits, &c.on, "a:S(1)", MESH_F32, 2, shape, &err), err);
        logits.data = part;
        l.logits = &logits, l.targets = targets, l.loss = loss, l.vocabulary = 5;
        if (bad && what == 0) targets[2] = 5;
        if (bad && what == 1) l.vocabulary = 7;
        if (bad && what == 2) l.smoothing = 1;
        if (bad && what == 12) l.smoothing = strtof("nan", NULL);
        if (bad && what == 3) l.logits = NULL;
        if (bad && what == 4) l.targets = NULL;
        if (bad && what == 5) logits.data = NULL;
        if (bad && what == 11) logits.local_shape = shape;
        if (bad && what == 6) logits.dtype = MESH_I32;
        if (bad && what == 7) logits.layout.spec.axis[0] = mesh_partial(MESH_SUM);
        if (bad && what == 8) CHECK_OK(mesh_tensor_make(&logits, &c.on, "a:S(1)", MESH_F32, 3, cube, &err), err);
        if (bad && what == 9) {
            CHECK_OK(mesh_parse(&other, "b=2", 2, &err), err);
            CHECK_OK(mesh_tensor_make(&logits, &other, "b:S(1)", MESH_F32, 2, shape, &err), err);
        }
        CHECK_INT(mesh_cross_entropy(&c, bad && what == 10 ? NULL : &l), wrong[what].status);
        CHECK_HAS(c.error.text, wrong[what].said);
        CHECK_INT(c.error.rank, 1);
        CHECK(loss[0] == -1);
        mesh_comm_close(&c);
    }
}
/* A group that is not open is no guess: every rank is told what to open. */
static void loss_closed_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[2] = {1, 4};
    float part[1] = {0};
    int32_t target = 0;
    mesh_loss l = MESH_ZERO;
    mesh_tensor logits;
    mesh_comm c;
    mesh_error err;
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=1,c=2", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_tensor_make(&logits, &c.on, "a:S(1) c:S(1)", MESH_F32, 2, shape, &err), err);
    logits.data = part;
    l.logits = &logits, l.targets = &target;
    CHECK_INT(mesh_cross_entropy(&c, &l), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_cross_entropy: \"a,c\" shard the vocabulary, and are no open group");
    mesh_comm_close(&c);
}
static void test_loss_refused(void) {
    mesh_comm none = MESH_ZERO;
    run_world(SIM, 2, loss_refused_rank, NULL);
    run_world(TCP, 2, loss_refused_rank, NULL);
    run_world(SIM, 4, loss_closed_rank, NULL);
    CHECK_INT(mesh_cross_entropy(NULL, NULL), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_cross_entropy(&none, NULL), MESH_ERR_STATE);
}

/* ---- embedding ---- */

static double table_value(int64_t row, int64_t column) { return (double)((row * 31 + column * 7) % 63 - 31); }
static double grad_value(int64_t i, int64_t column) { return (double)((i * 5 + column * 3) % 7 - 3); }

/* Any layout of the table: what the ranks look up adds up to one rank's rows, and their gradients are the parts of one rank's. */
static void lookup_try(test_random *r, const mesh *m) {
    enum { IDS = 17, ROWS = 19, WIDTH = 9 };
    static const char *const places[] = {"R", "S(0)", "S(1)", "I", "S(0)"};
    int64_t shape[2], strides[2], count, i, k;
    double sum[IDS][WIDTH] = {{0}};
    int32_t ids[IDS];
    int n = random_below(r, IDS + 1), rank, a, strided = random_below(r, 3);
    mesh_dtype dtype = float_dtypes[random_below(r, 4)], grad_dtype = float_dtypes[random_below(r, 4)];
    char spec[64];
    shape[0] = 1 + random_below(r, ROWS), shape[1] = random_below(r, WIDTH + 1);
    snprintf(spec, sizeof spec, "a:%s b:%s", places[random_below(r, 5)], places[random_below(r, 5)]);
    for (i = 0; i < n; i++) ids[i] = random_below(r, 8) ? random_below(r, (int)shape[0]) : -1 - random_below(r, 5);
    for (a = 0; a < m->size; a++) {
        static double part[2 * (ROWS + 1) * (WIDTH + 1)], grad[2 * (ROWS + 1) * (WIDTH + 1)], out[IDS * WIDTH],
            grad_out[IDS * WIDTH];
        mesh_tensor t;
        mesh_box box;
        mesh_error err;
        mesh_lookup l = MESH_ZERO;
        int coord[2], first = 1, x;
        rank = mesh_rank_at(m, a);
        CHECK_OK(mesh_tensor_make(&t, m, spec, dtype, 2, shape, &err), err);
        count = mesh_tensor_box(&t, rank, &box);
        strides[0] = strided == 1 ? 1 : box.shape[1] + (strided ? 2 : 0);
        strides[1] = strided == 1 ? box.shape[0] + 1 : 1;
        if (strided) t.strides = strides;
        for (i = 0; i < box.shape[0]; i++)
            for (k = 0; k < box.shape[1]; k++) {
                float_put(dtype, part, i * strides[0] + k * strides[1],
                          table_value(box.offset[0] + i, box.offset[1] + k));
                float_put(grad_dtype, grad, i * strides[0] + k * strides[1], (double)(i + k));
            }
        t.data = part;
        memset(out, 0x55, sizeof out);
        l.table = &t, l.ids = ids, l.nids = n, l.out = out, l.grad_out = grad_out, l.grad_table = grad;
        l.grad_dtype = grad_dtype;
        CHECK_OK(mesh_embedding(&l, rank, &err), err);
        for (i = 0; i < n; i++)
            for (k = 0; k < box.shape[1]; k++)
                float_put(dtype, grad_out, i * box.shape[1] + k, grad_value(i, box.offset[1] + k));
        CHECK_OK(mesh_embedding_backward(&l, rank, &err), err);
        for (i = 0; i < box.shape[0] && count; i++)
            for (k = 0; k < box.shape[1]; k++) {
                double want = (double)(i + k), has = float_at(grad_dtype, grad, i * strides[0] + k * strides[1]);
                int64_t j;
                for (j = 0; j < n; j++)
                    if (ids[j] == box.offset[0] + i) want += grad_value(j, box.offset[1] + k);
                if (has != want)
                    test_fail(__FILE__, __LINE__, "%s, rank %d, row %d: the gradient is %g, expected %g", spec, rank,
                              (int)i, has, want);
            }
        mesh_coords_of(m, NULL, rank, coord);
        for (x = 0; x < 2; x++)
            if (t.layout.spec.axis[x].kind != MESH_SHARD && coord[x]) first = 0; /* a replica */
        for (i = 0; i < n && first; i++)
            for (k = 0; k < box.shape[1]; k++) sum[i][box.offset[1] + k] += float_at(dtype, out, i * box.shape[1] + k);
    }
    for (i = 0; i < n; i++)
        for (k = 0; k < shape[1]; k++)
            if (sum[i][k] != (ids[i] < 0 ? 0 : table_value(ids[i], k)))
                test_fail(__FILE__, __LINE__, "%s: row %d of id %d is %g in column %d", spec, (int)i, (int)ids[i],
                          sum[i][k], (int)k);
}
static void test_lookup(void) {
    static const char *const meshes[] = {"a=1,b=1", "a=3,b=2", "a=2,b=4"};
    test_random r = random_from(8);
    int i, k;
    for (i = 0; i < 3; i++) {
        mesh m;
        mesh_error err;
        CHECK_OK(mesh_parse(&m, meshes[i], i == 0 ? 1 : i == 1 ? 6 : 8, &err), err);
        for (k = 0; k < 300 && !test_failures; k++) lookup_try(&r, &m);
    }
}

static void test_lookup_refused(void) {
    static const int64_t shape[3] = {5, 3, 5}, line[1] = {5};
    int32_t ids[2] = {4, 5};
    float part[15] = {0}, out[6] = {-1};
    mesh_tensor t, flat;
    mesh_lookup l = MESH_ZERO;
    mesh_error err;
    mesh m;
    CHECK_OK(mesh_parse(&m, "a=1,b=2", 2, &err), err);
    CHECK_OK(mesh_tensor_make(&t, &m, "", MESH_F32, 2, shape, &err), err);
    CHECK_OK(mesh_tensor_make(&flat, &m, "", MESH_F32, 1, line, &err), err);
    t.data = part, flat.data = part;
    l.table = &t, l.ids = ids, l.nids = 2, l.out = out, l.grad_out = out, l.grad_table = part, l.grad_dtype = MESH_F32;
    CHECK_INT(mesh_embedding(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_embedding: id 1 is 5, of a vocabulary of 5");
    CHECK_INT(mesh_embedding_backward(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_embedding_backward: id 1 is 5, of a vocabulary of 5");
    CHECK(out[0] == -1 && part[12] == 0);
    ids[1] = 0;
    t.dtype = (mesh_dtype)77;
    CHECK_INT(mesh_embedding(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_embedding: the tensor: dtype 77 with elements of 0 bytes; see MESH_DTYPES");
    t.dtype = MESH_F32;
    t.elem_bytes = 8;
    CHECK_INT(mesh_embedding(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_embedding: the tensor: dtype 0 with elements of 8 bytes");
    t.elem_bytes = 0;
    {
        static const int64_t negative[2] = {-4, 1};
        t.strides = negative;
        CHECK_INT(mesh_embedding_backward(&l, 0, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "mesh_embedding_backward: the tensor: stride -4 of dim 0 is too small");
        t.strides = NULL;
    }
    t.local_shape = shape + 1;
    CHECK_INT(mesh_embedding(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_embedding: the tensor: the local shape has ");
    t.local_shape = NULL;
    l.table = &flat;
    CHECK_INT(mesh_embedding(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the table has 1 dims");
    l.table = NULL;
    CHECK_INT(mesh_embedding(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_embedding: the table is NULL");
    CHECK_INT(mesh_embedding(NULL, 0, &err), MESH_ERR_ARGUMENT);
    l.table = &t, l.ids = NULL;
    CHECK_INT(mesh_embedding(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "ids are NULL; 2 ids");
    l.nids = -1, l.ids = ids;
    CHECK_INT(mesh_embedding(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_embedding: -1 ids");
    l.nids = 2, l.out = NULL, l.grad_out = NULL;
    CHECK_INT(mesh_embedding(&l, 1, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "memory for the rows is NULL, but rank 1 holds 15 elements");
    CHECK_INT(mesh_embedding_backward(&l, 1, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "gradient of the rows is NULL");
    l.out = out, l.grad_out = out, l.grad_table = NULL, t.data = NULL;
    CHECK_INT(mesh_embedding(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the table's data is NULL");
    CHECK_INT(mesh_embedding_backward(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the table's gradient is NULL");
    l.grad_table = part, t.data = part, l.grad_dtype = MESH_I32;
    CHECK_INT(mesh_embedding_backward(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "gradients of f32 and i32");
    t.layout.spec.axis[1] = mesh_partial(MESH_SUM);
    CHECK_INT(mesh_embedding(&l, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the table is partial along \"b\"");
    t.layout.spec.axis[1] = mesh_replicate();
    CHECK_OK(mesh_embedding(&l, 7, &err), err); /* not in the mesh */
    {
        static const int64_t one[2] = {1, 3}; /* of one row rank 1 has none */
        CHECK_OK(mesh_tensor_make(&t, &m, "b:S(0)", MESH_F32, 2, one, &err), err);
        ids[0] = ids[1] = 0, l.grad_table = NULL, l.grad_dtype = MESH_F32;
    }
    CHECK_OK(mesh_embedding_backward(&l, 1, &err), err);
}

static const test_case vocabulary_tests[] = {
    {"vocabulary/exponential", test_exponential, 0}, {"vocabulary/loss", test_loss, 120},
    {"vocabulary/loss_bytes", test_loss_bytes, 60},  {"vocabulary/loss_refused", test_loss_refused, 60},
    {"vocabulary/loss_broken", test_loss_broken, 60}, {"vocabulary/loss_differs", test_loss_differs, 60},
    {"vocabulary/lookup", test_lookup, 60},          {"vocabulary/lookup_refused", test_lookup_refused, 0},
};

#endif
