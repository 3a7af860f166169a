/* mesh/plan.h and its rooms: every plan run by a one-thread interpreter over index arrays, bytes beside the bound and PyTorch's, every error. */

#include "floats.h"
#include "plan_hash.h"

enum { PLAN_RANKS = 64, PLAN_ELEMS = 4096 };

/* What rank number `summand` of a partial axis adds to element e. Replicated: summand 0 of 1. */
static int64_t plan_summand(int64_t e, int summand) {
    int64_t value = (e + 1) * 3 + summand * (5 + e % 7);
    return e & 1 ? -value : value; /* zero is neither the least nor the greatest */
}

static int64_t plan_combine(int op, int64_t a, int64_t b) {
    switch (op) {
    case MESH_SUM:
    case MESH_AVG:
        return a + b;
    case MESH_MAX:
        return a > b ? a : b;
    case MESH_MIN:
        return a < b ? a : b;
    case MESH_PROD:
        return (a % 1000003 + 1000003) % 1000003 * ((b % 1000003 + 1000003) % 1000003) % 1000003;
    default:
        return a ^ b;
    }
}

/* The coordinates along partial axes as one index, and how many there are. */
static int plan_partial_index(const mesh *m, const mesh_spec *s, int rank, int *count) {
    int coord[MESH_MAX_AXES], i, index = 0, n = 1;
    mesh_coords_of(m, NULL, rank, coord);
    for (i = 0; i < m->naxes; i++)
        if (s->axis[i].kind == MESH_PARTIAL) index = index * m->axis[i].size + coord[i], n *= m->axis[i].size;
    if (count) *count = n;
    return index;
}

static int64_t plan_linear(const mesh_plan *p, const mesh_box *box, int64_t k) {
    return plan_linear_in(p->view.ndim, p->view.shape, box, k);
}

typedef struct plan_seen {
    int kind, from, to, round, summand, matched;
    mesh_box box;
} plan_seen;

static int64_t plan_value[2][PLAN_RANKS][PLAN_ELEMS]; /* per rank, by index in the whole tensor */
static unsigned char plan_held[2][PLAN_RANKS][PLAN_ELEMS];

static const char *plan_text(const mesh_plan *p) {
    static char text[4096];
    mesh_plan_format(p, text, sizeof text);
    return text;
}

#define PLAN_CHECK(p, cond)                                                  \
    do {                                                                     \
        if (!(cond)) {                                                       \
            test_fail(__FILE__, __LINE__, "%s in\n%s", #cond, plan_text(p)); \
            return 0;                                                        \
        }                                                                    \
    } while (0)

/* One step on all ranks: every send has its receive, every element of a new box comes exactly once per summand, from who holds it. */
static int plan_step(const mesh_plan *p, int k, int world, int from, int *nmoves) {
    enum { SEEN = PLAN_RANKS * PLAN_RANKS * 64 };
    static plan_seen *seen;
    int n = 0, r, i, j, to = !from;
    if (!seen) seen = (plan_seen *)malloc(SEEN * sizeof *seen);
    memset(plan_held[to], 0, sizeof plan_held[to]);
    for (r = 0; r < world; r++) {
        mesh_moves it;
        static unsigned char got[PLAN_ELEMS];
        mesh_traffic t = mesh_plan_traffic(p, k, r);
        int64_t sent = 0, received = 0;
        memset(got, 0, sizeof got);
        for (mesh_moves_start(&it, p, k, r, -1); mesh_moves_next(&it);) {
            int64_t e, count = mesh_box_count(&it.box);
            PLAN_CHECK(p, count > 0);
            if (it.kind == MESH_MOVE_SEND || it.kind == MESH_MOVE_RECV) {
                PLAN_CHECK(p, n < SEEN && it.peer >= 0 && it.peer < world && it.peer != r);
                seen[n].kind = it.kind;
                seen[n].from = it.kind == MESH_MOVE_SEND ? r : it.peer;
                seen[n].to = it.kind == MESH_MOVE_SEND ? it.peer : r;
                seen[n].round = it.round;
                seen[n].summand = it.summand;
                seen[n].matched = 0;
                seen[n++].box = it.box;
                *(it.kind == MESH_MOVE_SEND ? &sent : &received) += count * p->elem_bytes;
            }
            if (it.kind == MESH_MOVE_SEND) continue;
            for (e = 0; e < count; e++) {
                int64_t at = plan_linear(p, &it.box, e);
                if (it.kind == MESH_MOVE_ZERO) {
                    PLAN_CHECK(p, !got[at]); /* once, and nothing comes there */
                    plan_value[to][r][at] = 0;
                    got[at] = (unsigned char)it.summands;
                } else {
                    PLAN_CHECK(p, plan_held[from][it.peer][at]);
                    PLAN_CHECK(p, got[at] == it.summand); /* in ascending order, each once */
                    plan_value[to][r][at] =
                        got[at]++ ? plan_combine(p->op, plan_value[to][r][at], plan_value[from][it.peer][at])
                                  : plan_value[from][it.peer][at];
                }
                plan_held[to][r][at] = 1;
            }
        }
        PLAN_CHECK(p, t.sent == sent && t.received == received);
        {
            mesh_box box;
            int64_t e, count = 0, total = 1;
            for (i = 0; i < p->ndim; i++) total *= p->shape[i];
            if (spec_box(&p->step[k].spec, &p->at[p->step[k].on], p->view.ndim, p->view.shape, r, &box))
                count = mesh_box_count(&box);
            for (e = 0; e < count; e++) PLAN_CHECK(p, got[plan_linear(p, &box, e)] == it.summands);
            for (e = 0; e < total; e++) count -= plan_held[to][r][e];
            PLAN_CHECK(p, count == 0);
        }
    }
    for (i = 0; i < n; i++) { /* each receive has its send, and no pair has two in a round */
        if (seen[i].kind != MESH_MOVE_RECV) continue;
        for (j = 0; j < n; j++) {
            const plan_seen *a = &seen[i], *b = &seen[j];
            if (b->kind != MESH_MOVE_SEND || b->matched || a->from != b->from || a->to != b->to || a->round != b->round)
                continue;
            PLAN_CHECK(p, a->summand == b->summand &&
                              !memcmp(a->box.offset, b->box.offset, sizeof a->box.offset[0] * (size_t)p->view.ndim) &&
                              !memcmp(a->box.shape, b->box.shape, sizeof a->box.shape[0] * (size_t)p->view.ndim));
            seen[j].matched = seen[i].matched = 1;
            break;
        }
    }
    for (i = 0; i < n; i++) PLAN_CHECK(p, seen[i].matched);
    for (i = 0; i < n; i++)
        for (j = 0; j < i; j++)
            PLAN_CHECK(p, seen[i].kind != seen[j].kind || seen[i].from != seen[j].from || seen[i].to != seen[j].to ||
                              seen[i].round != seen[j].round);
    *nmoves += n;
    return 1;
}

/* All ranks that hold an element in the same place as r but for partial axes, in the mesh's order. */
static int plan_mates(const mesh *m, const mesh_spec *s, int r, int *mate) {
    int a[MESH_MAX_AXES], b[MESH_MAX_AXES], i, x, n = 0;
    mesh_coords_of(m, NULL, r, b);
    for (i = 0; i < m->size; i++) {
        int rank = mesh_rank_at(m, i), same = 1;
        mesh_coords_of(m, NULL, rank, a);
        for (x = 0; x < m->naxes; x++) same &= a[x] == b[x] || s->axis[x].kind == MESH_PARTIAL;
        if (same) mate[n++] = rank;
    }
    return n;
}

/* The plan moves every tensor as the specs say. */
static int plan_interpret(const mesh_plan *p, int *nmoves) {
    const mesh *src = &p->at[0], *dst = &p->at[1];
    const mesh_spec *to = &p->to;
    int64_t total = 1, e;
    int world = 0, r, k, i, side, summands = 1, last, parts = 1;
    for (i = 0; i < p->ndim; i++) total *= p->shape[i];
    for (side = 0; side < 2; side++)
        for (i = 0; i < p->at[side].size; i++)
            if (mesh_rank_at(&p->at[side], i) >= world) world = mesh_rank_at(&p->at[side], i) + 1;
    CHECK(world <= PLAN_RANKS && total <= PLAN_ELEMS);
    memset(plan_held[0], 0, sizeof plan_held[0]);
    for (r = 0; r < world; r++) {
        mesh_box box;
        int index;
        if (!spec_box(&p->from, src, p->ndim, p->shape, r, &box)) continue;
        index = plan_partial_index(src, &p->from, r, &summands);
        for (e = 0; e < mesh_box_count(&box); e++) {
            int64_t at = plan_linear_in(p->ndim, p->shape, &box, e);
            plan_value[0][r][at] = plan_summand(at, index);
            plan_held[0][r][at] = 1;
        }
    }
    for (k = 0; k < p->nsteps; k++)
        if (!plan_step(p, k, world, k & 1, nmoves)) return 0;
    last = p->nsteps & 1;
    for (r = 0; r < world; r++) {
        mesh_box box;
        int index, mate[PLAN_RANKS], mates;
        if (!spec_box(to, dst, p->ndim, p->shape, r, &box)) continue;
        index = plan_partial_index(dst, to, r, &parts);
        if (parts > 1 && index) continue; /* looked at with the first of its summands */
        mates = plan_mates(dst, to, r, mate);
        for (e = 0; e < mesh_box_count(&box); e++) {
            int64_t at = plan_linear_in(p->ndim, p->shape, &box, e), want = 0, got = 0;
            int s;
            for (s = 0; s < summands; s++)
                want = s ? plan_combine(p->op, want, plan_summand(at, s)) : plan_summand(at, 0);
            for (s = 0; s < mates; s++) {
                PLAN_CHECK(p, plan_held[last][mate[s]][at]);
                got = s ? plan_combine(p->op, got, plan_value[last][mate[s]][at]) : plan_value[last][mate[s]][at];
            }
            PLAN_CHECK(p, s == parts);
            if (got != want) {
                test_fail(__FILE__, __LINE__, "rank %d, element %lld is %lld, expected %lld in\n%s", r, (long long)at,
                          (long long)got, (long long)want, plan_text(p));
                return 0;
            }
        }
    }
    return 1;
}

/* ---- every pair of specs ---- */

typedef struct plan_pairs {
    const mesh *m;
    int ndim, op;
    const int64_t *shape;
    mesh_spec spec[2000];
    int n;
} plan_pairs;

static void plan_collect(const mesh_spec *s, void *ctx) {
    plan_pairs *a = (plan_pairs *)ctx;
    int i;
    if (a->n == 2000) {
        test_fail(__FILE__, __LINE__, "too many specs");
        return;
    }
    a->spec[a->n] = *s;
    for (i = 0; i < s->naxes; i++)
        if (s->axis[i].kind == MESH_PARTIAL) a->spec[a->n].axis[i].op = (uint8_t)a->op;
    a->n++;
}

/* A network without latency: bytes are all that counts. */
static mesh_topology plan_bytes_only(void) {
    mesh_topology t = MESH_ZERO;
    t.nlevels = 1;
    t.level[0].ranks = INT32_MAX;
    t.level[0].ps_per_byte_16 = 1 << 16;
    return t;
}

static mesh_topology plan_slow_messages(void) {
    mesh_topology t = plan_bytes_only();
    t.level[0].latency_ps = INT64_C(1000000000);
    return t;
}

static mesh_topology plan_nodes(int ranks) {
    mesh_topology t = MESH_ZERO;
    t.nlevels = 2;
    t.level[0].ranks = ranks;
    t.level[0].latency_ps = 1000;
    t.level[0].ps_per_byte_16 = 1 << 16;
    t.level[1].ranks = INT32_MAX;
    t.level[1].latency_ps = 10000;
    t.level[1].ps_per_byte_16 = 50 << 16;
    return t;
}

static int plan_has_partial(const mesh_spec *s) {
    int i;
    for (i = 0; i < s->naxes; i++)
        if (s->axis[i].kind == MESH_PARTIAL) return 1;
    return 0;
}

static void plan_every_pair(const char *mesh_text, int ndim, const int64_t *shape, int op, int step) {
    static plan_pairs a;
    mesh m;
    mesh_topology bytes = plan_bytes_only(), slow = plan_slow_messages(), nodes = plan_nodes(2);
    int i, k, moves = 0, done = 0, even = 1;
    CHECK_INT(mesh_parse(&m, mesh_text, 0, NULL), 0);
    for (i = 0; i < ndim; i++) even &= shape[i] % (2 * m.size) == 0;
    a.n = 0;
    a.op = op;
    every_spec(&m, ndim, 1, plan_collect, &a);
    for (i = 0; i < a.n; i++)
        for (k = (int)((uint64_t)i * 7 + test_seed) % step; k < a.n; k += step) {
            mesh_plan plan;
            plan_ask d = MESH_ZERO;
            mesh_error err;
            int64_t bound;
            int which = (i + k) % 3;
            d.src = &m;
            d.from = &a.spec[i];
            d.to = &a.spec[k];
            d.ndim = ndim;
            memcpy(d.shape, shape, sizeof shape[0] * (size_t)ndim);
            d.dtype = MESH_BYTES;
            d.elem_bytes = done & 1 ? 1 << 16 : 4; /* pieces that replicas share, and pieces that come whole */
            d.topology = which == 0 ? &bytes : which == 1 ? &slow : &nodes;
            if (ask_plan(&plan, &d, &err)) {
                test_fail(__FILE__, __LINE__, "%s", err.text);
                return;
            }
            if (!plan_interpret(&plan, &moves)) return;
            bound = mesh_plan_lower_bound(&plan);
            if (which == 0 && even && !plan_has_partial(&a.spec[i]) && !plan_has_partial(&a.spec[k]))
                CHECK_INT(mesh_plan_measure(&plan), bound);
            if (mesh_plan_measure(&plan) < bound || mesh_plan_measure(&plan) > plan.bytes)
                test_fail(__FILE__, __LINE__, "bound %lld, measured %lld:", (long long)bound,
                          (long long)mesh_plan_measure(&plan));
            if (test_failures) {
                fprintf(stderr, "%s", plan_text(&plan));
                return;
            }
            done++;
        }
    CHECK(done > 0 && (m.size == 1 || moves > 0));
}

static void test_plan_pairs(void) {
    static const int64_t even[4][4] = {{48}, {48, 24}, {12, 12, 24}, {4, 4, 8, 8}}, odd[] = {7, 5, 3, 3},
                         prime[] = {13, 11, 2, 3}, small[] = {3, 1, 2, 1};
    static const char *const meshes[] = {"a=2,b=2", "a=4,b=2", "a=3,b=2"};
    size_t k;
    int ndim;
    for (k = 0; k < 3; k++)
        for (ndim = 1; ndim <= 4; ndim++) {
            int step = test_long || ndim < 3 ? 1 : 3;
            plan_every_pair(meshes[k], ndim, even[ndim - 1], MESH_SUM, step);
            plan_every_pair(meshes[k], ndim, odd, MESH_MAX, step);
            plan_every_pair(meshes[k], ndim, ndim < 3 ? prime : small, MESH_SUM, step);
            plan_every_pair(meshes[k], ndim, small, MESH_MAX, step);
        }
}

/* A sample that the seed draws; with --long every pair (minutes). */
static void test_plan_pairs_3d(void) {
    static const int64_t even1[] = {64}, even[] = {16, 16, 16, 1}, odd[] = {7, 5, 3, 3}, small[] = {3, 1, 2, 1};
    plan_every_pair("a=2,b=2,c=2", 1, even1, MESH_SUM, 1);
    plan_every_pair("a=2,b=2,c=2", 1, odd, MESH_MAX, 1);
    plan_every_pair("a=2,b=2,c=2", 2, even, MESH_SUM, test_long ? 1 : 3);
    plan_every_pair("a=2,b=2,c=2", 2, odd, MESH_SUM, test_long ? 1 : 3);
    plan_every_pair("a=2,b=2,c=2", 2, small, MESH_MAX, test_long ? 1 : 3);
    plan_every_pair("a=2,b=2,c=2", 3, even, MESH_SUM, test_long ? 1 : 23);
    plan_every_pair("a=2,b=2,c=2", 3, odd, MESH_MAX, test_long ? 1 : 23);
    plan_every_pair("a=2,b=2,c=2", 3, small, MESH_SUM, test_long ? 1 : 23);
    plan_every_pair("a=2,b=2,c=2", 4, odd, MESH_SUM, test_long ? 1 : 97);
    if (test_long) plan_every_pair("a=2,b=2,c=2", 4, small, MESH_MAX, 1);
}

/* ---- bytes beside PyTorch's ---- */

/* "7/32" of n, or -1 for "-". */
static double plan_fraction(const char *text, int64_t n) {
    const char *slash = strchr(text, '/');
    if (*text == '-') return -1;
    return (double)n * atof(text) / (slash ? atof(slash + 1) : 1);
}

/* PyTorch's bytes of an all_reduce are 2(n-1)/n of them, also where that is a fraction of an element: not comparable. */
static int plan_fractional(const char *steps) {
    for (; (steps = strstr(steps, "all_reduce:")) != NULL; steps++) {
        char *end;
        long n = strtol(steps + 11, &end, 10), nbytes = strtol(end + 1, NULL, 10);
        if (nbytes / 4 % n) return 1;
    }
    return 0;
}

/* The explicit order "0:1>0;1:2": per tensor dim the mesh axes, outermost first. */
static void places_order(mesh_place *place, const char *text) {
    while (*text && *text != '-') {
        int order = 0;
        text = strchr(text, ':') + 1;
        for (;;) {
            place[strtol(text, (char **)&text, 10)].order = (uint8_t)order++;
            if (*text != '>') break;
            text++;
        }
        if (*text == ';') text++;
    }
}

static mesh_spec spec_of_list(const mesh *m, const char *places, const char *order, int ndim) {
    mesh_place place[MESH_MAX_AXES];
    mesh_spec s;
    places_of_list(place, places);
    if (order) places_order(place, order);
    CHECK_INT(mesh_spec_make(&s, m, place, ndim, NULL), 0);
    return s;
}

/* A row's problem. Returns the tensor's elements. */
typedef struct golden_plan {
    mesh m;
    mesh_spec from, to;
    plan_ask ask;
} golden_plan;

static int64_t golden_plan_of(const golden_file *g, int ordered, golden_plan *p) {
    int64_t total = 1;
    int i;
    memset(p, 0, sizeof *p);
    p->ask.ndim = (int)list64(g->field[1], p->ask.shape, 8);
    mesh_of_list(&p->m, g->field[0]);
    p->from = spec_of_list(&p->m, g->field[2], ordered ? g->field[3] : NULL, p->ask.ndim);
    p->to = spec_of_list(&p->m, g->field[ordered ? 4 : 3], ordered ? g->field[5] : NULL, p->ask.ndim);
    p->ask.src = &p->m, p->ask.from = &p->from, p->ask.to = &p->to;
    for (i = 0; i < p->ask.ndim; i++) total *= p->ask.shape[i];
    return total;
}

static void plan_golden(const char *name, int ordered, int at_optimum) {
    golden_file *g = golden_start(name);
    int rows = 0, checked = 0;
    mesh_topology bytes = plan_bytes_only();
    if (!g) return;
    for (; golden_next(g); rows++) {
        golden_plan p;
        mesh_plan plan;
        mesh_error err;
        int moves = 0;
        int64_t total = 4 * golden_plan_of(g, ordered, &p), ours;
        double theirs, optimum;
        p.ask.topology = &bytes;
        CHECK_OK(ask_plan(&plan, &p.ask, &err), err);
        if (total / 4 <= PLAN_ELEMS && !plan_interpret(&plan, &moves)) return;
        ours = mesh_plan_measure(&plan);
        theirs = plan_fraction(g->field[ordered ? 8 : 7], total);
        optimum = plan_fraction(g->field[ordered ? 10 : 9], total);
        if (theirs >= 0 && (double)ours > theirs + 0.001 && !plan_fractional(g->field[ordered ? 7 : 6]))
            test_fail(__FILE__, __LINE__, "line %d: %lld bytes, PyTorch's %s moves %.1f:\n%s", g->line, (long long)ours,
                      g->field[4], theirs, plan_text(&plan));
        if (optimum >= 0) {
            checked++;
            if ((double)mesh_plan_lower_bound(&plan) < optimum - 0.001 ||
                (double)mesh_plan_lower_bound(&plan) > optimum + 0.001 ||
                (at_optimum && (double)ours > optimum + 0.001))
                test_fail(__FILE__, __LINE__, "line %d: %lld bytes, bound %lld, optimum %.1f:\n%s", g->line,
                          (long long)ours, (long long)mesh_plan_lower_bound(&plan), optimum, plan_text(&plan));
        }
    }
    CHECK(rows > 100 && checked > 100);
    golden_end(g);
}

/* The default topology counts what sums read and write in memory too. Large tensors: README says by how much more they may move. */
static void plan_golden_timed(const char *name) {
    golden_file *g = golden_start(name);
    int rows = 0;
    if (!g) return;
    for (; golden_next(g); rows++) {
        enum { ELEM = 1 << 20 };
        golden_plan p;
        mesh_plan plan;
        mesh_error err;
        double theirs = plan_fraction(g->field[7], ELEM * golden_plan_of(g, 0, &p));
        p.ask.elem_bytes = ELEM;
        CHECK_OK(ask_plan(&plan, &p.ask, &err), err);
        if (theirs >= 0 && (double)mesh_plan_measure(&plan) > 1.155 * theirs && !plan_fractional(g->field[6]))
            test_fail(__FILE__, __LINE__, "line %d: PyTorch's %s moves %.0f bytes:\n%s", g->line, g->field[4], theirs,
                      plan_text(&plan));
    }
    CHECK(rows > 100);
    golden_end(g);
}

static void test_plan_golden_timed(void) {
    plan_golden_timed("redistribute_torch.csv");
    plan_golden_timed("redistribute_torch2.csv");
    plan_golden_timed("redistribute_uneven.csv");
    plan_golden_timed("redistribute_uneven2.csv");
}

static void test_plan_golden_torch(void) {
    plan_golden("redistribute_torch.csv", 0, 1);
    plan_golden("redistribute_torch2.csv", 0, 1);
}
static void test_plan_golden_uneven(void) {
    plan_golden("redistribute_uneven.csv", 0, 0);
    plan_golden("redistribute_uneven2.csv", 0, 0);
}
static void test_plan_golden_order(void) { plan_golden("redistribute_order.csv", 1, 0); }

/* FACTS.md section 3: what the optimum moves, beside PyTorch's plans; N = bytes of the whole tensor. */
static void test_plan_facts(void) {
    static const struct {
        const char *mesh, *from, *to;
        int num, den; /* of N, at most; exactly where nothing is partial */
    } rows[] = {
        {"a=2,b=2", "a:S(0) b:S(1)", "a:S(1) b:S(0)", 1, 4},
        {"a=8,b=8", "a:S(0) b:S(1)", "a:S(1) b:S(0)", 1, 64},
        {"a=2,b=2", "a:S(0) b:S(0)", "a:S(1) b:S(1)", 3, 16},
        {"a=2,b=2,c=2", "a:S(0) b:S(0) c:S(0)", "a:S(1) b:S(1) c:S(1)", 7, 64},
        {"a=8,b=8", "a:S(0) b:S(0)", "a:S(1) b:S(1)", 63, 4096},
        {"a=4,b=2", "a:S(0) b:R", "a:R b:S(0)", 1, 2},
        {"a=8,b=8", "a:S(0) b:R", "a:R b:S(0)", 1, 8},
        {"a=8,b=8", "a:R b:S(0)", "a:S(0) b:S(0)", 1, 64},
        {"a=8,b=8", "a:S(0) b:S(0)", "a:R b:S(0)", 1, 8},
        {"a=2,b=2,c=2", "a:S(0) b:S(1) c:S(2)", "a:S(1) b:S(2) c:S(0)", 1, 8},
        {"a=8,b=8", "a:P(sum) b:S(0)", "a:R b:R", 35, 32},
        {"a=8,b=8", "a:P(sum) b:R", "a:R b:S(0)", 7, 32},
        {"a=8,b=8", "a:P(sum) b:S(0)", "a:S(0) b:R", 15, 64},
        {"a=8,b=8", "a:P(sum) b:P(sum)", "a:R b:R", 63, 32},
        {"a=8,b=8", "a:P(sum) b:P(sum)", "a:R b:S(0)", 35, 32},
        {"a=2,b=2,c=2", "a:P(sum) b:P(sum) c:S(0)", "a:S(0) b:S(0) c:S(0)", 1, 2},
        {"a=8,b=8", "a:S(0)@0 b:S(0)@1", "a:S(0)@1 b:S(0)@0", 1, 64},
        {"a=8", "a:R", "a:P(sum)", 0, 1},
        {"a=8", "a:R", "a:S(0)", 0, 1},
    };
    mesh_topology bytes = plan_bytes_only();
    size_t k;
    for (k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        mesh m;
        mesh_spec from, to;
        mesh_plan plan;
        plan_ask d = MESH_ZERO;
        mesh_error err;
        int64_t n = INT64_C(64) * 64 * 64 * 4, want = n * rows[k].num / rows[k].den, ours;
        CHECK_OK(mesh_parse(&m, rows[k].mesh, 0, &err), err);
        CHECK_OK(mesh_spec_parse(&from, &m, rows[k].from, 3, &err), err);
        CHECK_OK(mesh_spec_parse(&to, &m, rows[k].to, 3, &err), err);
        d.src = &m, d.from = &from, d.to = &to, d.ndim = 3, d.topology = &bytes;
        d.shape[0] = d.shape[1] = d.shape[2] = 64;
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        ours = mesh_plan_measure(&plan);
        if (strstr(rows[k].from, "P(") ? ours > want : ours != want)
            test_fail(__FILE__, __LINE__, "%lld bytes, expected %lld:\n%s", (long long)ours, (long long)want,
                      plan_text(&plan));
        CHECK_INT(plan.bytes, ours); /* exact where sizes divide */
    }
}

/* Bytes that must come out where only bytes count, and predictions on two levels. */
static void test_plan_cases(void) {
    static const struct {
        const char *mesh, *from, *to;
        int origin; /* of the destination, a mesh of all on axis "to" */
        int ranks;  /* of it; 0: the same mesh */
        int64_t shape[3];
        int64_t bytes; /* at most; f32 */
    } rows[] = {
        {"a=4,b=2", "a:S(1) b:P(sum)", "a:S(0) b:R", 0, 0, {8, 16, 8}, 1408},
        {"a=2,b=2,c=2", "a:S(1) b:P(sum) c:S(2)", "a:S(0) b:R c:R", 0, 0, {8, 8, 16}, 2304},
        {"a=2,b=2,c=2", "a:P(sum) b:P(sum) c:S(2)", "a:R b:S(1) c:S(0)", 0, 0, {8, 8, 16}, 2304},
        {"a=3,b=2", "a:P(sum) b:S(0)", "a:S(0) b:S(1)", 0, 0, {2, 6, 6}, 168},
        {"a=4,b=2", "a:P(sum) b:S(0)", "a:R b:R", 0, 0, {1, 2, 2}, 28}, /* PyTorch: 40 */
        {"a=5,b=2", "a:P(sum) b:S(1)", "a:S(1) b:R", 0, 0, {4, 5, 1}, 64}, /* b moves away before a is reduced */
        {"a=1", "a:R", "to:R", 0, 16, {16, 64, 64}, 2 * 16 * 64 * 64 * 4 - 2 * 64 * 64 * 4 + 64 * 64 * 4},
        {"ep=16", "ep:S(0)", "ep:R", 0, 0, {1, 64, 64}, 2 * 15 * 64 * 4 * 4},
        {"a=4,b=2", "a:S(0) b:R", "a:P(sum) b:R", 0, 0, {13, 4, 3}, 0},
        {"a=4,b=2", "a:S(0) b:S(0)", "a:P(sum) b:S(0)", 0, 0, {16, 4, 3}, 144},
        {"a=4,b=2", "a:S(0) b:S(1)", "a:P(sum) b:P(sum)", 0, 0, {7, 3, 3}, 0},
        {"a=4,b=2", "a:S(2) b:R", "a:P(xor) b:S(0)", 0, 0, {7, 3, 3}, 0},
        {"a=4,b=2,c=2", "a:S(0)@1 c:S(0)@0", "a:P(sum) c:S(0)", 0, 0, {16, 4, 3}, 0},
        {"a=4,b=2,c=2", "a:S(0)@1 c:S(0)@0 balanced", "a:P(sum) c:S(0) balanced", 0, 0, {13, 4, 3}, 0},
        {"a=4", "a:R", "to:R", 0, 4, {16, 4, 3}, 0}, /* the same ranks under another name */
        {"a=2,b=4", "a:S(0) b:S(0)", "to:S(0)", 0, 8, {16, 4, 3}, 0},
    };
    mesh_topology bytes = plan_bytes_only();
    size_t k;
    int moves = 0;
    for (k = 0; k < sizeof rows / sizeof rows[0] && !test_failures; k++) {
        mesh m, other;
        mesh_spec from, to;
        static mesh_plan plan;
        plan_ask d = MESH_ZERO;
        mesh_desc all = MESH_ZERO;
        mesh_error err;
        const char *name = "to";
        CHECK_OK(mesh_parse(&m, rows[k].mesh, 0, &err), err);
        all.shape = &rows[k].ranks, all.names = &name, all.naxes = 1, all.origin = rows[k].origin;
        other = m;
        if (rows[k].ranks) CHECK_OK(mesh_make(&other, &all, &err), err);
        CHECK_OK(mesh_spec_parse(&from, &m, rows[k].from, 3, &err), err);
        CHECK_OK(mesh_spec_parse(&to, &other, rows[k].to, 3, &err), err);
        d.src = &m, d.dst = &other, d.from = &from, d.to = &to, d.ndim = 3, d.topology = &bytes;
        memcpy(d.shape, rows[k].shape, sizeof rows[k].shape);
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        if (rows[k].ranks == 0 && !plan_interpret(&plan, &moves)) return;
        if (mesh_plan_measure(&plan) > rows[k].bytes || mesh_plan_measure(&plan) > plan.bytes)
            test_fail(__FILE__, __LINE__, "%lld bytes, expected %lld:\n%s", (long long)mesh_plan_measure(&plan),
                      (long long)rows[k].bytes, plan_text(&plan));
    }
}

/* Another factoring of the same ranks: sums are scattered as the destination cuts, not as the source's axes would have it. And where there are fewer
   elements than ranks, what is left to sum is summed whole. */
static void test_plan_alike(void) {
    static const struct {
        const char *mesh, *order, *to_mesh, *from, *to, *along;
        int64_t shape[2], bytes; /* at most; f32 */
    } rows[] = {
        {"a=2,b=4", "a,b", "x=4,y=2", "a:P(sum) b:P(sum)", "x:S(0) y:R", "reduce_scatter       a,b", {16, 64}, 4096},
        {"a=2,b=4", "b,a", "x=4,y=2", "b:P(sum) a:P(sum)", "x:S(0) y:R", "reduce_scatter       b,a", {16, 64}, 4096},
        {"a=2,b=4", "a,b", "x=2,y=2,z=2", "a:P(sum) b:P(sum)", "x:S(0) y:S(0) z:R", "", {16, 64}, 4096},
        {"a=2,b=4,x_0=1", "a,b,x_0", "x=4,y=2", "a:P(sum) b:P(sum) x_0:R", "x:S(0) y:R", "reduce_scatter       a,b ", {16, 64}, 4096}, /* a part's name */
        {"a=2,b=4", "a,b", "z=1,x=4,y=2", "a:P(sum) b:S(1)", "x:S(0) y:S(1)", "", {16, 64}, 1024},
        {"a=2,b=2,c=2", "a,b,c", "x=4,y=2", "a:P(sum) b:R c:P(sum)", "x:S(1) y:R", "", {16, 64}, 2048},
        {"a=12", "a", "x=3,y=4", "a:P(sum)", "x:S(0) y:R", "", {24, 12}, 1344},
        {"a=12", "a", "x=3,y=2,z=2", "a:P(sum)", "x:S(0) y:S(1) z:R", "all_gather           z ", {24, 12}, 1152},
        {"x=3,y=4", "x,y", "a=12", "x:P(sum) y:P(sum)", "a:R", "", {24, 12}, 2112},
        {"a=4,b=4", "a,b", "a=4,b=4", "a:P(sum) b:P(sum)", "a:S(0) b:R", "", {8, 1}, 36},
        {"a=4,b=4", "a,b", "a=4,b=4", "a:P(sum) b:P(sum)", "a:R b:S(0)", "", {8, 1}, 36},
        {"a=4,b=2", "a,b", "a=4,b=2", "a:P(sum) b:P(sum)", "a:R b:S(0)", "", {4, 1}, 20}, /* PyTorch: 20 */
        {"a=2,b=2,c=2", "a,b,c", "a=2,b=2,c=2", "a:P(sum) b:P(sum) c:P(sum)", "a:S(0)@1 b:R c:S(0)@0", "", {4, 1}, 16},
        {"a=2,b=2,c=2", "a,b,c", "a=2,b=2,c=2", "a:P(sum) b:P(sum) c:P(sum)", "a:S(0)@0 b:R c:S(0)@1", "", {4, 1}, 16},
        {"a=2,b=3", "a,b", "x=3,y=2", "a:P(sum) b:P(sum)", "x:S(0) y:R", "", {6, 1}, 28}, /* cannot be split alike */
        {"a=2,b=3", "a,b", "x=3,y=2", "a:S(0) b:R", "x:S(0) y:R", "", {12, 4}, 32},
        {"a=2,b=3", "a,b", "x=3,y=2", "a:S(0) b:R", "x:R y:S(0)", "", {12, 4}, 96},
    };
    mesh_topology bytes = plan_bytes_only();
    size_t k;
    int moves = 0;
    for (k = 0; k < sizeof rows / sizeof rows[0] && !test_failures; k++) {
        mesh m, other;
        mesh_spec from, to;
        static mesh_plan plan;
        plan_ask d = MESH_ZERO;
        mesh_error err;
        CHECK_OK(mesh_parse(&m, rows[k].mesh, 0, &err), err);
        CHECK_OK(mesh_transpose(&m, &m, rows[k].order, &err), err);
        CHECK_OK(mesh_parse(&other, rows[k].to_mesh, 0, &err), err);
        CHECK_OK(mesh_spec_parse(&from, &m, rows[k].from, 2, &err), err);
        CHECK_OK(mesh_spec_parse(&to, &other, rows[k].to, 2, &err), err);
        d.src = &m, d.dst = &other, d.from = &from, d.to = &to, d.ndim = 2, d.topology = &bytes;
        memcpy(d.shape, rows[k].shape, sizeof rows[k].shape);
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        if (!plan_interpret(&plan, &moves)) return;
        CHECK_HAS(plan_text(&plan), rows[k].along);
        if (mesh_plan_measure(&plan) > rows[k].bytes || mesh_plan_measure(&plan) != plan.bytes)
            test_fail(__FILE__, __LINE__, "%lld bytes, expected %lld:\n%s", (long long)mesh_plan_measure(&plan),
                      (long long)rows[k].bytes, plan_text(&plan));
    }
}

/* Hosts of 8 ranks: links within of 400 GB/s, between of 25 GB/s. */
static void test_plan_levels(void) {
    mesh m, far;
    mesh_spec from, to;
    static mesh_plan plan;
    plan_ask d = MESH_ZERO;
    mesh_topology t = MESH_ZERO;
    mesh_error err;
    int moves = 0;
    const int eight = 8;
    const char *name = "tp";
    mesh_desc at_8 = MESH_ZERO;
    t.nlevels = 2;
    t.level[0].ranks = 8, t.level[0].latency_ps = 2000000, t.level[0].ps_per_byte_16 = 5 << 15;
    t.level[1].ranks = INT32_MAX, t.level[1].latency_ps = 10000000, t.level[1].ps_per_byte_16 = 40 << 16;
    d.topology = &t;
    /* from ranks 0..7 to ranks 8..15: eight summands over the slow link would take 5 ms */
    at_8.shape = &eight, at_8.names = &name, at_8.naxes = 1, at_8.origin = 8;
    CHECK_OK(mesh_parse(&m, "tp=8", 0, &err), err);
    CHECK_OK(mesh_make(&far, &at_8, &err), err);
    CHECK_OK(mesh_spec_parse(&from, &m, "tp:P(sum)", 2, &err), err);
    CHECK_OK(mesh_spec_parse(&to, &far, "tp:S(0)", 2, &err), err);
    d.src = &m, d.dst = &far, d.from = &from, d.to = &to, d.ndim = 2, d.dtype = MESH_BF16;
    d.shape[0] = d.shape[1] = 8192;
    CHECK_OK(ask_plan(&plan, &d, &err), err);
    CHECK_INT(plan.nsteps, 2);
    CHECK_INT(plan.step[0].kind, MESH_STEP_REDUCE);
    CHECK_INT(plan.step[1].kind, MESH_STEP_MOVE);
    CHECK(plan.ps > INT64_C(1000000000) && plan.ps < INT64_C(1200000000));
    /* gather over hosts first, each rank 1/16; within a host then. And back */
    CHECK_OK(mesh_parse(&m, "dp=2,tp=8", 0, &err), err);
    CHECK_OK(mesh_spec_parse(&from, &m, "dp:S(0) tp:S(0)", 1, &err), err);
    CHECK_OK(mesh_spec_parse(&to, &m, "", 1, &err), err);
    d.src = d.dst = &m, d.ndim = 1, d.dtype = MESH_F32;
    d.shape[0] = INT64_C(1) << 28;
    CHECK_OK(ask_plan(&plan, &d, &err), err);
    CHECK_STR(mesh_step_name(&plan, 0), "all_gather");
    CHECK_INT(plan.step[0].bytes, INT64_C(1) << 26);
    CHECK_INT(plan.view.ndim, 2);
    CHECK_INT(plan.bytes, (INT64_C(1) << 30) / 16 * 15);
    d.shape[0] = 64; /* the same steps with data */
    d.elem_bytes = 1 << 24;
    CHECK_OK(ask_plan(&plan, &d, &err), err);
    CHECK_INT(plan.view.ndim, 2);
    if (!plan_interpret(&plan, &moves)) return;
    CHECK_OK(mesh_spec_parse(&to, &m, "dp:P(sum) tp:P(sum)", 1, &err), err);
    d.from = &to, d.to = &from;
    CHECK_OK(ask_plan(&plan, &d, &err), err);
    if (!plan_interpret(&plan, &moves)) return;
    CHECK_INT(plan.bytes, (INT64_C(1) << 30) / 16 * 15);
}

/* Where every host has all of a tensor, nothing crosses between hosts; and what a rank has it does not fetch: also where device tables put
   the replicas anywhere. */
static void test_plan_near(void) {
    static const char *const pairs[][2] = {
        {"dp:R tp:S(0)", "dp:S(1) tp:R"}, {"dp:R tp:S(0)", "dp:R tp:S(1)"}, {"dp:R tp:S(1)", "dp:R tp:R"}};
    test_random r = random_from(3);
    int trial, inside = 0, i, k;
    for (trial = 0; trial < 200 && !test_failures; trial++) {
        static mesh_plan plan;
        int hosts = 2 + random_below(&r, 3), table[16], inverse[16], second[16], back[16], shape[2], rank, moves = 0;
        mesh_table devices[2];
        const char *names[2] = {"dp", "tp"};
        mesh_desc d = MESH_ZERO;
        plan_ask p = MESH_ZERO;
        mesh_topology t = plan_nodes(4);
        mesh_spec from, to;
        mesh_error err;
        mesh src, dst;
        shape[0] = hosts, shape[1] = 4;
        d.shape = shape, d.names = names, d.naxes = 2;
        for (i = 0; i < 4 * hosts; i++) table[i] = second[i] = i;
        if (trial & 1) { /* each host's ranks in an order of its own, then the hosts */
            for (i = 4 * hosts - 1; i > 0; i--) {
                int other = i / 4 * 4 + random_below(&r, i % 4 + 1), swap = table[i];
                table[i] = table[other], table[other] = swap;
            }
            for (i = 0; i < 4; i++) k = table[i], table[i] = table[4 + i], table[4 + i] = k;
            CHECK_OK(mesh_table_make(&devices[0], table, 4 * hosts, inverse, 4 * hosts, &err), err);
            d.table = &devices[0];
        }
        CHECK_OK(mesh_make(&src, &d, &err), err);
        dst = src;
        if (trial & 2) { /* the destination's table is another, or none */
            CHECK_OK(mesh_table_make(&devices[1], second, 4 * hosts, back, 4 * hosts, &err), err);
            d.table = trial & 4 ? &devices[1] : NULL;
            CHECK_OK(mesh_make(&dst, &d, &err), err);
        }
        k = (trial & 2) ? 1 + random_below(&r, 2) : random_below(&r, 3);
        CHECK_OK(mesh_spec_parse(&from, &src, pairs[k][0], 2, &err), err);
        CHECK_OK(mesh_spec_parse(&to, &dst, pairs[k][1], 2, &err), err);
        p.src = &src, p.dst = &dst, p.from = &from, p.to = &to, p.ndim = 2, p.topology = &t;
        p.shape[0] = p.shape[1] = 4 * hosts, p.elem_bytes = random_below(&r, 2) ? 4 : 1 << 16;
        CHECK_OK(ask_plan(&plan, &p, &err), err);
        if (!plan_interpret(&plan, &moves)) return;
        for (i = 0; i < plan.nsteps; i++)
            for (rank = 0; rank < 4 * hosts; rank++) {
                mesh_moves it;
                for (mesh_moves_start(&it, &plan, i, rank, -1); mesh_moves_next(&it);)
                    if (it.kind == MESH_MOVE_RECV && it.peer / 4 != rank / 4)
                        test_fail(__FILE__, __LINE__, "rank %d hears from rank %d of another host in\n%s", rank,
                                  it.peer, plan_text(&plan));
                    else
                        inside += it.kind == MESH_MOVE_RECV;
            }
    }
    CHECK(inside > 1000);
}

/* A random factoring of ranks [origin, origin + size), its ranks perhaps from a table or with the first axis fastest. */
static mesh plan_random_mesh(test_random *r, int origin, int size, int *table, int *inverse, mesh_table *devices) {
    mesh_desc d = MESH_ZERO;
    int shape[5], strides[5], i, k, rest = size;
    mesh m;
    mesh_error err;
    while (d.naxes < 4 && rest > 1 && random_below(r, 5)) {
        k = 2 + random_below(r, rest - 1);
        if (rest % k) continue;
        shape[d.naxes++] = k;
        rest /= k;
    }
    shape[d.naxes++] = rest;
    if (d.naxes < 5 && !random_below(r, 4)) shape[d.naxes++] = 1;
    d.shape = shape;
    d.origin = origin;
    d.first_fastest = random_below(r, 2);
    if (!random_below(r, 5)) { /* strides with gaps: ranks that are not in the mesh between those that are */
        int64_t span = 1;
        for (i = d.naxes - 1; i >= 0; i--) {
            strides[i] = (int)span + random_below(r, 3);
            span += (int64_t)(shape[i] - 1) * strides[i];
        }
        if (origin + span <= PLAN_RANKS) d.strides = strides;
    }
    if (table && !random_below(r, 3)) {
        for (i = 0; i < PLAN_RANKS; i++) table[i] = i;
        for (i = PLAN_RANKS - 1; i > 0; i--)
            k = random_below(r, i + 1), rest = table[i], table[i] = table[k], table[k] = rest;
        CHECK_OK(mesh_table_make(devices, table, PLAN_RANKS, inverse, PLAN_RANKS, &err), err);
        d.table = devices;
    }
    CHECK_OK(mesh_make(&m, &d, &err), err);
    if (m.naxes > 1 && !random_below(r, 3)) { /* axes that do not coalesce, as one */
        mesh flat;
        char axes[40];
        snprintf(axes, sizeof axes, "%s,%s", m.axis[m.naxes - 1].name, m.axis[0].name);
        if (!mesh_flatten(&flat, &m, axes, "flat", NULL)) m = flat;
    }
    return m;
}

static mesh_spec plan_random_spec(test_random *r, const mesh *m, int ndim, int op) {
    mesh_place place[MESH_MAX_AXES];
    mesh_spec s;
    mesh_error err;
    int i, k;
    for (i = 0; i < m->naxes; i++) {
        int kind = random_below(r, 4);
        place[i] = kind == 0 && op >= 0 ? mesh_partial((mesh_op)op)
                   : kind < 3 && ndim   ? mesh_shard(random_below(r, ndim))
                   : i & 1              ? mesh_invariant()
                                        : mesh_replicate();
    }
    CHECK_OK(mesh_spec_make(&s, m, place, ndim, &err), err);
    for (i = 0; i < m->naxes; i++)
        for (k = 0; k < i; k++)
            if (s.axis[i].kind == MESH_SHARD && s.axis[k].kind == MESH_SHARD && s.axis[i].dim == s.axis[k].dim &&
                random_below(r, 2)) {
                uint8_t order = s.axis[i].order;
                s.axis[i].order = s.axis[k].order, s.axis[k].order = order;
            }
    s.rule = (uint8_t)(random_below(r, 4) == 0);
    return s;
}

/* Any two meshes, any specs, any topology, any cap that is possible. */
static void test_plan_random(void) {
    static int tables[2][PLAN_RANKS], inverses[2][PLAN_RANKS];
    static mesh_table devices[2];
    test_random r = random_from(9);
    int trial, moves = 0, capped = 0;
    for (trial = 0; trial < 10000 && !test_failures; trial++) {
        static const int sizes[] = {1, 2, 3, 4, 6, 8, 12, 16},
                         ops[] = {MESH_SUM, MESH_MAX, MESH_MIN, MESH_XOR, MESH_PROD};
        int size = sizes[random_below(&r, trial % 10 ? 7 : 8)], how = random_below(&r, 5), ndim = random_below(&r, 5),
            d;
        int op = ops[random_below(&r, 5)];
        mesh src = plan_random_mesh(&r, random_below(&r, 3), size, tables[0], inverses[0], &devices[0]),
             dst = how == 0   ? src
                   : how == 1 ? plan_random_mesh(&r, src.origin + size, sizes[random_below(&r, 6)], NULL, NULL, NULL)
                   : how == 2
                       ? plan_random_mesh(&r, random_below(&r, 4), sizes[random_below(&r, 6)], tables[1], inverses[1], &devices[1])
                       : plan_random_mesh(&r, src.origin, size, NULL, NULL, NULL);
        mesh_spec from = plan_random_spec(&r, &src, ndim, op), to = plan_random_spec(&r, &dst, ndim, op);
        plan_ask desc = MESH_ZERO;
        mesh_topology t = MESH_ZERO;
        mesh_plan plan, tight;
        mesh_error err;
        int64_t elements = 1, bound;
        desc.src = &src, desc.dst = &dst, desc.from = &from, desc.to = &to, desc.ndim = ndim;
        for (d = 0; d < ndim; d++) {
            desc.shape[d] = random_below(&r, 25) ? 1 + random_below(&r, d ? 8 : 20) : 0;
            if (elements * desc.shape[d] > 1500) desc.shape[d] = 1;
            elements *= desc.shape[d];
        }
        desc.elem_bytes = random_below(&r, 2) ? 1 + random_below(&r, 16) : 40000;
        t.nlevels = random_below(&r, 4);
        for (d = 0; d < t.nlevels; d++) {
            t.level[d].ranks = d == t.nlevels - 1 ? INT32_MAX : 2 << (2 * d);
            t.level[d].latency_ps = random_below(&r, 2) * INT64_C(1000) * (1 + random_below(&r, 10000));
            t.level[d].ps_per_byte_16 = (int64_t)(1 + random_below(&r, 100)) << (12 + 2 * d);
        }
        desc.topology = random_below(&r, 4) ? &t : NULL;
        if (ask_plan(&plan, &desc, &err)) {
            if (op == MESH_PROD && strstr(err.text, "is partial over prod, which the source is not there")) continue;
            test_fail(__FILE__, __LINE__, "trial %d: %s", trial, err.text);
            return;
        }
        if (!plan_interpret(&plan, &moves)) return;
        bound = mesh_plan_lower_bound(&plan);
        if (bound > mesh_plan_measure(&plan) || mesh_plan_measure(&plan) > plan.bytes)
            test_fail(__FILE__, __LINE__, "bound %lld, measured %lld:\n%s", (long long)bound,
                      (long long)mesh_plan_measure(&plan), plan_text(&plan));
        if (plan.scratch >
            64) { /* with less: the cap holds, and the values too; and the least that is named is possible */
            desc.scratch_cap = 1 + random_below(&r, (int)(plan.scratch < 1000000 ? plan.scratch : 1000000));
            if (ask_plan(&tight, &desc, &err)) {
                const char *least = strstr(err.text, "possible is ");
                CHECK_INT(err.status, MESH_ERR_MEMORY);
                CHECK(least != NULL);
                if (!least) return;
                desc.scratch_cap = strtoll(least + 12, NULL, 10);
                CHECK_OK(ask_plan(&tight, &desc, &err), err);
            }
            CHECK(tight.scratch <= desc.scratch_cap);
            if (!plan_interpret(&tight, &moves)) return;
            capped++;
        }
    }
    CHECK(moves > 10000 && capped > 100);
}

/* Up to 64 ranks, where only bytes count: nothing that was considered moves fewer, and no plan more than it says. bench_plans has the table. */
static void test_plan_bound(void) {
    static int table[PLAN_RANKS], inverse[PLAN_RANKS];
    static mesh_table devices;
    test_random r = random_from(12);
    mesh_topology bytes = plan_bytes_only();
    int trial, partial = 0, at_bound = 0;
    for (trial = 0; trial < (test_long ? 3000 : 700) && !test_failures; trial++) {
        static const int sizes[] = {2, 4, 6, 8, 12, 16, 32, 64, 64};
        static mesh_plan plan, other[12];
        int size = sizes[random_below(&r, 9)], ndim = 1 + random_below(&r, 4), even = random_below(&r, 2), d, n;
        mesh m = plan_random_mesh(&r, 0, size, table, inverse, &devices);
        mesh_spec from = plan_random_spec(&r, &m, ndim, MESH_SUM), to = plan_random_spec(&r, &m, ndim, MESH_SUM);
        plan_ask desc = MESH_ZERO;
        mesh_error err;
        int64_t bound, ours;
        desc.src = &m, desc.from = &from, desc.to = &to, desc.ndim = ndim, desc.topology = &bytes;
        for (d = 0; d < ndim; d++) desc.shape[d] = even ? size * (1 + random_below(&r, 2)) : 1 + random_below(&r, 30);
        CHECK_OK(ask_plan(&plan, &desc, &err), err);
        ours = mesh_plan_measure(&plan);
        bound = mesh_plan_lower_bound(&plan);
        if (bound > ours || ours > plan.bytes)
            test_fail(__FILE__, __LINE__, "bound %lld, measured %lld:\n%s", (long long)bound, (long long)ours,
                      plan_text(&plan));
        if (even && !plan_has_partial(&from) && !plan_has_partial(&to)) CHECK_INT(ours, bound);
        partial += plan_has_partial(&from);
        at_bound += plan_has_partial(&from) && ours == bound;
        n = ask_candidates(other, 12, &desc, &err);
        for (d = 0; d < n; d++)
            if (mesh_plan_measure(&other[d]) < ours)
                test_fail(__FILE__, __LINE__, "%lld bytes, alternative %d moves %lld:\n%s", (long long)ours, d,
                          (long long)mesh_plan_measure(&other[d]), plan_text(&plan));
    }
    CHECK(partial * 5 > trial && at_bound * 3 > partial);
}

/* Meshes too large to count each rank's bytes: what a rank has already is known as well. Cuts by two rules along one axis are two layouts; what is replicated, or
   cut evenly by either rule, needs nothing. */
static void test_plan_recut(void) {
    static const struct {
        const char *mesh, *from, *to;
        int64_t shape[2];
        const char *step;
        int64_t low, high; /* of the plan's bytes */
    } cases[] = {
        {"a=96", "a:S(0) balanced", "a:S(0)", {2064, 140900}, "exchange", 11000000, 12399200},
        {"a=96", "balanced", "a:S(0)", {2064, 140900}, "slice", 0, 0},
        {"a=96", "balanced", "a:S(0)", {500, 20000}, "slice", 0, 0},
        {"a=96", "a:S(0) balanced", "a:S(0)", {192, 100}, "copy", 0, 0},
        {"a=64", "a:S(0) balanced", "a:S(0)", {1000, 140900}, "exchange", 8000000, 9017600},
        {"a=16,b=6", "a:S(0) b:S(0) balanced", "a:S(0) b:S(0)", {2064, 1000}, "exchange", 4000, 16000},
        {"dp=96", "dp:R", "dp:S(0)", {100, 1000000}, "slice", 0, 0},
        {"dp=1000", "dp:R", "dp:S(0)", {1500, 8000003}, "slice", 0, 0},
        {"dp=16", "dp:R", "dp:S(0)", {100, 1}, "slice", 0, 0},
        {"dp=1073741825", "dp:R", "dp:S(0)", {4, 1}, "slice", 0, 0},
        {"dp=1000000,tp=2000", "dp:S(0)", "tp:S(0)", {5000, 6000}, NULL, 1, INT64_MAX},
    };
    size_t i;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static mesh_plan plan;
        mesh_plan_desc desc = MESH_ZERO;
        mesh_layout from, to;
        mesh_spec spec;
        mesh_error err;
        mesh m;
        int failed = test_failures;
        CHECK_OK(mesh_parse(&m, cases[i].mesh, 0, &err), err);
        CHECK_OK(mesh_spec_parse(&spec, &m, cases[i].from, 2, &err), err);
        CHECK_OK(mesh_layout_make(&from, &m, &spec, 2, cases[i].shape, &err), err);
        CHECK_OK(mesh_spec_parse(&spec, &m, cases[i].to, 2, &err), err);
        CHECK_OK(mesh_layout_make(&to, &m, &spec, 2, cases[i].shape, &err), err);
        desc.src = &from, desc.dst = &to, desc.dtype = MESH_F32;
        CHECK_OK(mesh_plan_make(&plan, &desc, &err), err);
        CHECK(plan.bytes >= cases[i].low && plan.bytes <= cases[i].high);
        CHECK_INT(plan.bytes == 0, plan.ps == 0);
        if (cases[i].step) CHECK_INT(plan.nsteps, 1);
        if (cases[i].step) CHECK_STR(mesh_step_name(&plan, 0), cases[i].step);
        if (test_failures != failed) test_fail(__FILE__, __LINE__, "case %d:\n%s", (int)i, plan_text(&plan));
    }
}

/* The same plans whatever the compiler, flags and machine: this number was found with gcc -O2 on x86-64. */
static void test_plan_hash(void) { CHECK_INT((int64_t)plan_hashes(10000), (int64_t)UINT64_C(0x29ec8c76e208f1d9)); }

/* The text between `"key": "` and the next quote, from *p on, which moves behind it. */
static int plan_json_text(const char **p, const char *key, char *text) {
    char opening[32];
    const char *at;
    size_t n = 0;
    snprintf(opening, sizeof opening, "\"%s\": \"", key);
    if (!(at = strstr(*p, opening))) return 0;
    for (at += strlen(opening); *at != '"'; at++) text[n++] = *at;
    text[n] = 0;
    *p = at;
    return 1;
}

/* What EXPLAIN prints as JSON can be read back whole: meshes and specs of every step, however long, their names distinct. */
static void test_plan_json(void) {
    static const struct {
        const char *mesh, *from, *to;
    } rows[] = {
        {"dp=8,tp=8", "dp:S(0) tp:P(sum)", "dp:S(1) tp:R"},
        {"abcdefghijklmn0=4,abcdefghijklmn1=4,abcdefghijklmn2=4", /* names that are alike for 14 bytes */
         "abcdefghijklmn0:P(sum) abcdefghijklmn1:P(sum) abcdefghijklmn2:S(0) balanced", "abcdefghijklmn0:S(1)"},
        {"dp=4,dp_0=4,dp_1=4", "dp:P(sum) dp_0:S(0) dp_1:S(0)", ""},
        {"a=64,b=64,c=64,d=64", "a:P(sum) b:P(sum)", "c:S(0) d:S(1)"}, /* 24 prime factors */
        {"abcdefghijklmn0=2,abcdefghijklmn1=2,abcdefghijklmn2=2,abcdefghijklmn3=2,abcdefghijklmn4=2,abcdefghijklmn5=2,"
         "abcdefghijklmn6=2,abcdefghijklmn7=2,abcdefghijklmn8=2,abcdefghijklmn9=2,abcdefghijklmna=2",
         "abcdefghijklmn0:P(sum) abcdefghijklmn5:S(0)@1 abcdefghijklmn6:S(0)@0 abcdefghijklmn7:S(1)",
         "abcdefghijklmn0:S(1) abcdefghijklmn8:S(0)@2 abcdefghijklmn9:S(0)@0 abcdefghijklmna:S(0)@1"}};
    static mesh_plan plan;
    static char json[1 << 16], text[1 << 16];
    size_t k;
    for (k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        mesh m, back;
        mesh_spec from, to, spec;
        plan_ask d = MESH_ZERO;
        mesh_error err;
        const char *p = json;
        int i, n;
        CHECK_OK(mesh_parse(&m, rows[k].mesh, 0, &err), err);
        CHECK_OK(mesh_spec_parse(&from, &m, rows[k].from, 2, &err), err);
        CHECK_OK(mesh_spec_parse(&to, &m, rows[k].to, 2, &err), err);
        d.src = &m, d.from = &from, d.to = &to, d.ndim = 2;
        d.shape[0] = d.shape[1] = 8192;
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        CHECK(mesh_spec_equal(&plan.to, &to) && mesh_spec_equal(&plan.from, &from));
        CHECK(mesh_plan_json(&plan, json, sizeof json) < sizeof json);
        for (i = -2; i < plan.nsteps; i++) {
            const mesh *on = i < 0 ? &plan.at[i + 2] : &plan.at[plan.step[i].on];
            const mesh_spec *said = i == -2 ? &plan.from : i == -1 ? &plan.to : &plan.step[i].spec;
            CHECK(plan_json_text(&p, "mesh", text));
            CHECK_OK(mesh_parse(&back, text, 0, &err), err);
            CHECK_INT(back.naxes, on->naxes);
            for (n = 0; n < back.naxes && n < on->naxes; n++) {
                CHECK_STR(back.axis[n].name, on->axis[n].name);
                CHECK_INT(back.axis[n].size, on->axis[n].size);
            }
            CHECK(plan_json_text(&p, "spec", text));
            CHECK_OK(mesh_spec_parse(&spec, on, text, plan.view.ndim, &err), err);
            CHECK(mesh_spec_equal(&spec, said));
        }
        mesh_plan_format(&plan, text, sizeof text);
        CHECK(!strstr(text, "~") && strstr(text, rows[k].mesh));
        if (k == 3) CHECK_HAS(text, "not searched: axes split into single prime factors");
        if (k == 4) CHECK_HAS(text, "not searched: every choice among more than 4 axes");
        /* a plan made over the one that its description points into */
        d.to = &plan.to, d.from = &plan.from, d.src = &plan.at[0];
        {
            uint64_t hash = plan.hash;
            CHECK_OK(ask_plan(&plan, &d, &err), err);
            CHECK(plan.hash == hash);
        }
    }
}

static void plan_expect(const plan_ask *d, mesh_status status, const char *fragment) {
    static mesh_plan plan, before;
    mesh_error err;
    memset(&plan, 0x5a, sizeof plan);
    before = plan;
    CHECK_INT(ask_plan(&plan, d, &err), status);
    CHECK_HAS(err.text, fragment);
    CHECK_HAS(err.text, "mesh_plan_make");
    CHECK(!memcmp(&plan, &before, sizeof plan));
    CHECK_INT(ask_plan(&plan, d, NULL), status);
}

static void test_plan_errors(void) {
    mesh m, other;
    mesh_spec rows, sum, max, avg, prod, wide;
    plan_ask good = MESH_ZERO, d;
    mesh_topology t = MESH_ZERO;
    mesh_error err;
    mesh_plan plan;
    CHECK_OK(mesh_parse(&m, "dp=4,tp=2", 0, &err), err);
    CHECK_OK(mesh_parse(&other, "ep=8", 0, &err), err);
    CHECK_OK(mesh_spec_parse(&rows, &m, "dp:S(0)", 2, &err), err);
    CHECK_OK(mesh_spec_parse(&sum, &m, "dp:P(sum)", 2, &err), err);
    CHECK_OK(mesh_spec_parse(&max, &m, "tp:P(max)", 2, &err), err);
    CHECK_OK(mesh_spec_parse(&avg, &m, "tp:P(avg)", 2, &err), err);
    CHECK_OK(mesh_spec_parse(&wide, &other, "ep:S(1)", 2, &err), err);
    good.src = &m, good.from = &rows, good.to = &sum, good.ndim = 2, good.shape[0] = 13, good.shape[1] = 8;
    CHECK_OK(ask_plan(&plan, &good, &err), err);
    d = good, d.src = NULL;
    plan_expect(&d, MESH_ERR_ARGUMENT, "desc.src is missing");
    d = good, d.to = NULL;
    plan_expect(&d, MESH_ERR_ARGUMENT, "desc.dst is missing");
    d = good, d.to = &wide;
    plan_expect(&d, MESH_ERR_ARGUMENT, "destination: mesh_layout_check: the spec is for 1 axes");
    d = good, d.ndim = 0;
    plan_expect(&d, MESH_ERR_ARGUMENT, "source: mesh_layout_check: axis \"dp\" shards dim 0 of a tensor of 0 dims");
    d = good, d.ndim = 9;
    plan_expect(&d, MESH_ERR_ARGUMENT, "0 to 8 are possible");
    d = good, d.shape[1] = -4;
    plan_expect(&d, MESH_ERR_ARGUMENT, "dim 1 has size -4");
    d = good, d.shape[0] = INT64_MAX / 8, d.shape[1] = 4;
    plan_expect(&d, MESH_ERR_ARGUMENT, "bytes overflow");
    d = good, d.dtype = (mesh_dtype)99;
    plan_expect(&d, MESH_ERR_ARGUMENT, "elements of 0 bytes");
    d = good, d.scratch_cap = -1;
    plan_expect(&d, MESH_ERR_ARGUMENT, "scratch_cap is -1");
    d = good, d.from = &sum, d.to = &max;
    plan_expect(&d, MESH_ERR_ARGUMENT,
                "is partial over sum, and axis \"tp\" of the destination over max; reduce first");
    d = good, d.to = &avg;
    plan_expect(&d, MESH_ERR_ARGUMENT, "axis \"tp\" of the destination is partial over avg");
    CHECK_OK(mesh_spec_parse(&prod, &m, "tp:P(prod)", 2, &err), err);
    d = good, d.to = &prod;
    plan_expect(&d, MESH_ERR_ARGUMENT, "axis \"tp\" of the destination is partial over prod");
    d = good, d.from = &sum, d.to = &rows, d.scratch_cap = 100;
    plan_expect(&d, MESH_ERR_MEMORY, "the least possible is ");
    t.nlevels = 9;
    d = good, d.topology = &t;
    CHECK_INT(ask_plan(&plan, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_topology_check: 9 levels");
    t.nlevels = 2, t.level[0].ranks = 8, t.level[1].ranks = 4;
    CHECK_INT(mesh_topology_check(&t, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "level 2 has units of 4 ranks");
    t.level[1].ranks = 64, t.level[1].latency_ps = -1;
    CHECK_INT(mesh_topology_check(&t, &err), MESH_ERR_ARGUMENT);
}

static const test_case plan_tests[] = {
    {"plan/facts", test_plan_facts, 0},
    {"plan/cases", test_plan_cases, 0},
    {"plan/alike", test_plan_alike, 0},
    {"plan/levels", test_plan_levels, 0},
    {"plan/near", test_plan_near, 0},
    {"plan/bound", test_plan_bound, 0},
    {"plan/random", test_plan_random, 0},
    {"plan/hash", test_plan_hash, 0}, {"plan/recut", test_plan_recut, 0},
    {"plan/json", test_plan_json, 0},
    {"plan/errors", test_plan_errors, 0},
    {"plan/golden/torch", test_plan_golden_torch, 0},
    {"plan/golden/uneven", test_plan_golden_uneven, 0},
    {"plan/golden/timed", test_plan_golden_timed, 0},
    {"plan/golden/order", test_plan_golden_order, 0},
    {"plan/pairs", test_plan_pairs, 0},
    {"plan/pairs_3d", test_plan_pairs_3d, 0},
};
