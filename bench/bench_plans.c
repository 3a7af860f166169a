/* How many bytes plans move: random problems where only bytes count, beside the lower bound, and small ones beside the best way there is by
   any one or two layouts between. bench_plans [problems] [seed] [-v: the worst of them] */
#define MESH_IMPLEMENTATION
#include "../mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;
static int below(int n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)n);
}

/* primes: axes of prime sizes only, so that the layouts between are those of the mesh itself. */
static mesh random_mesh(int most_ranks, int primes) {
    static const int size[] = {2, 2, 2, 3, 4, 2, 3, 8, 5, 16};
    mesh_desc d = MESH_ZERO;
    int shape[4], ranks = 1, want = 1 + below(primes ? 3 : 4);
    mesh m;
    while (d.naxes < want) {
        int k = size[below(primes ? 4 : 10)];
        if (ranks * k > most_ranks) {
            if (ranks * 2 > most_ranks) break;
            continue;
        }
        shape[d.naxes++] = k;
        ranks *= k;
    }
    d.shape = shape;
    if (mesh_make(&m, &d, NULL)) abort();
    return m;
}

static mesh_spec random_spec(const mesh *m, int ndim, int partial) {
    mesh_place place[MESH_MAX_AXES];
    mesh_spec s;
    int i, k, kind;
    for (i = 0; i < m->naxes; i++) {
        kind = below(partial ? 6 : 4);
        place[i] = kind > 3 ? mesh_partial(MESH_SUM) : kind ? mesh_shard(below(ndim)) : mesh_replicate();
    }
    if (mesh_spec_make(&s, m, place, ndim, NULL)) abort();
    for (i = 0; i < m->naxes; i++) /* some in another order */
        for (k = 0; k < i; k++)
            if (s.axis[i].kind == MESH_SHARD && s.axis[k].kind == MESH_SHARD && s.axis[i].dim == s.axis[k].dim &&
                !below(3)) {
                uint8_t order = s.axis[i].order;
                s.axis[i].order = s.axis[k].order;
                s.axis[k].order = order;
            }
    return s;
}

static mesh_topology bytes_only(void) {
    mesh_topology t = MESH_ZERO;
    t.nlevels = 1;
    t.level[0].ranks = INT32_MAX;
    t.level[0].ps_per_byte_16 = 1 << 16;
    return t;
}

/* ---- every way ---- */

enum { MOST_LAYOUTS = 1200 };
static mesh_spec layout[MOST_LAYOUTS];
static int nlayouts;

/* Every spec whose partial axes are among those of `from`. */
static void every_layout(const mesh *m, const mesh_spec *from, int ndim) {
    int total = 1, code, i, o;
    nlayouts = 0;
    for (i = 0; i < m->naxes; i++) total *= ndim + 2;
    for (code = 0; code < total; code++) {
        int rest = code, orders = 1, n = m->naxes;
        mesh_place place[MESH_MAX_AXES];
        for (i = 0; i < n; i++, rest /= ndim + 2) {
            int kind = rest % (ndim + 2);
            place[i] = kind < ndim ? mesh_shard(kind) : kind == ndim ? mesh_replicate() : from->axis[i];
            if (kind == ndim + 1 && from->axis[i].kind != MESH_PARTIAL) break;
            orders *= i + 1;
        }
        if (i < n) continue;
        for (o = 0; o < orders; o++) { /* the axes in an order: the numbers of those that shard the same dim */
            int order[MESH_MAX_AXES], left = o, k, count;
            mesh_place p[MESH_MAX_AXES];
            mesh_spec s;
            for (i = 0; i < n; i++) {
                int at = left % (i + 1);
                left /= i + 1;
                for (k = i; k > at; k--) order[k] = order[k - 1];
                order[at] = i;
            }
            memcpy(p, place, sizeof p);
            for (i = 0; i < n; i++) {
                if (p[order[i]].kind != MESH_SHARD) continue;
                for (k = count = 0; k < i; k++)
                    count += p[order[k]].kind == MESH_SHARD && p[order[k]].dim == p[order[i]].dim;
                p[order[i]] = mesh_shard_at(p[order[i]].dim, count);
            }
            if (mesh_spec_make(&s, m, p, ndim, NULL)) abort();
            for (k = 0; k < nlayouts && !mesh_spec_equal(&layout[k], &s); k++) {}
            if (k == nlayouts && nlayouts < MOST_LAYOUTS) layout[nlayouts++] = s;
        }
    }
}

/* The worst rank's bytes from one layout straight to another; INT64_MAX where that cannot be. */
static int64_t weight(const mesh_plan *like, const mesh_spec *from, const mesh_spec *to) {
    static mesh_plan p;
    int i;
    for (i = 0; i < to->naxes; i++)
        if (to->axis[i].kind == MESH_PARTIAL && from->axis[i].kind != MESH_PARTIAL) return INT64_MAX;
    p = *like;
    p.from = p.view.from = *from; /* edges are routed from there */
    p.to = p.step[0].spec = *to;
    p.nsteps = 1;
    p.step[0].on = 1;
    p.step[0].rounds = 1;
    p.step[0].kind = MESH_STEP_MOVE;
    for (i = 0; i < from->naxes; i++)
        if (from->axis[i].kind == MESH_PARTIAL && to->axis[i].kind != MESH_PARTIAL) p.step[0].kind = MESH_STEP_REDUCE;
    return mesh_plan_measure(&p);
}

static int64_t best_of_all(const mesh_plan *plan, int64_t known) {
    static int64_t in[MOST_LAYOUTS], out[MOST_LAYOUTS];
    int64_t best = weight(plan, &plan->from, &plan->to);
    int i, k;
    every_layout(&plan->at[0], &plan->from, plan->ndim);
    for (i = 0; i < nlayouts; i++) {
        in[i] = weight(plan, &plan->from, &layout[i]);
        out[i] = weight(plan, &layout[i], &plan->to);
        if (in[i] != INT64_MAX && out[i] != INT64_MAX && in[i] + out[i] < best) best = in[i] + out[i];
    }
    for (i = 0; i < nlayouts; i++)
        for (k = 0; k < nlayouts; k++) {
            int64_t w;
            if (in[i] == INT64_MAX || out[k] == INT64_MAX || in[i] + out[k] >= (best < known ? best : known)) continue;
            w = weight(plan, &layout[i], &layout[k]);
            if (w != INT64_MAX && in[i] + w + out[k] < best) best = in[i] + w + out[k];
        }
    return best;
}

/* ---- tables ---- */

static const double mark[] = {1, 1.001, 1.05, 1.1, 1.25, 1.5, 2, 1e9};
enum { MARKS = sizeof mark / sizeof *mark };
typedef struct tally {
    int n[MARKS], problems;
    double ours, theirs, worst;
} tally;

static void count(tally *t, int64_t ours, int64_t theirs) {
    double ratio = theirs ? (double)ours / (double)theirs : ours ? 1e8 : 1;
    int k;
    for (k = 0; ratio > mark[k] + 1e-9; k++) {}
    t->n[k]++;
    t->problems++;
    t->ours += (double)ours;
    t->theirs += (double)theirs;
    if (ratio > t->worst) t->worst = ratio;
}

static void show(const char *name, const tally *t) {
    int k;
    printf("%-34s %6d ", name, t->problems);
    for (k = 0; k < MARKS; k++) printf(" %6d", t->n[k]);
    printf("   %6.3f %7.3f\n", t->theirs ? t->ours / t->theirs : 1, t->worst);
}

int main(int argc, char **argv) {
    int problems = argc > 1 ? atoi(argv[1]) : 10000, verbose = argc > 3, k, small = 0, excess = 0, above = 0;
    static tally unreduced[2], partial[2], brute[2];
    mesh_topology t = bytes_only();
    state = argc > 2 ? (uint64_t)atoi(argv[2]) : 1;
    for (k = 0; k < problems; k++) {
        static mesh_plan plan, other[16];
        mesh_plan_desc d = MESH_ZERO;
        mesh_error err;
        int tiny = k % 10 == 0, ndim = 1 + below(tiny ? 3 : 4), i, n, even = below(2), has_partial = 0;
        mesh m = random_mesh(tiny ? 8 : 64, tiny);
        mesh_layout from = MESH_ZERO, to;
        int64_t ours, bound;
        from.on = &m;
        from.ndim = ndim;
        from.spec = random_spec(&m, ndim, k % 4 != 0);
        to = from;
        to.spec = random_spec(&m, ndim, 0);
        for (i = 0; i < m.naxes; i++) has_partial |= from.spec.axis[i].kind == MESH_PARTIAL;
        d.src = &from;
        d.dst = &to;
        d.dtype = MESH_F32;
        d.topology = &t;
        for (i = 0; i < ndim; i++)
            to.shape[i] = from.shape[i] = even ? m.size * (1 + below(2)) : 1 + below(ndim < 3 ? 40 : 20);
        if (mesh_plan_make(&plan, &d, &err)) return printf("%s\n", err.text), 1;
        ours = mesh_plan_measure(&plan);
        bound = mesh_plan_lower_bound(&plan);
        if (bound > ours) return printf("below the bound\n"), 1;
        above += plan.bytes < ours;
        count(has_partial ? &partial[even] : &unreduced[even], ours, bound);
        n = mesh_plan_candidates(other, 16, &d, &err);
        for (i = 0; i < n; i++) excess += mesh_plan_measure(&other[i]) < ours;
        if (tiny) {
            int64_t best = best_of_all(&plan, ours);
            if (best > ours) best = ours; /* by way of more layouts, or of axes split */
            count(&brute[even], ours, best);
            small++;
            if (verbose && ours > best) {
                char text[4096];
                mesh_plan_format(&plan, text, sizeof text);
                printf("%lld, best %lld, bound %lld:\n%s\n", (long long)ours, (long long)best, (long long)bound, text);
            }
        }
    }
    printf("%-34s %6s  %6s %6s %6s %6s %6s %6s %6s %6s   %6s %7s\n", "bytes of ours / theirs", "count", "1", "1.001",
           "1.05", "1.1", "1.25", "1.5", "2", "more", "all", "worst");
    show("even, unreduced / bound", &unreduced[1]);
    show("even, partial / bound", &partial[1]);
    show("uneven, unreduced / bound", &unreduced[0]);
    show("uneven, partial / bound", &partial[0]);
    show("even, to 8 ranks / every way", &brute[1]);
    show("uneven, to 8 ranks / every way", &brute[0]);
    printf("alternatives that move fewer bytes than the plan chosen: %d; plans that move more than they say: %d\n",
           excess, above);
    return excess || above;
}
