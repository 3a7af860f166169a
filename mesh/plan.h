/* mesh/plan.h - the search: plans that move a tensor from one layout to another. Part of mesh.h 0.1.0. MIT licence.

   Includes cost.h, split.h. No allocation, no floating point. Knows no rank's memory.

DO THIS
    Nothing: mesh.h includes it. To run a plan, mesh_redistribute (mesh_collectives.h).

EXAMPLE
    mesh_plan_desc d = MESH_ZERO;
    mesh_plan plan;
    mesh_layout_parse(&rows, &m, "dp:S(0)", 2, shape, &err);
    mesh_layout_parse(&columns, &m, "dp:S(1)", 2, shape, &err);
    d.src = &rows, d.dst = &columns, d.dtype = MESH_BF16;
    mesh_plan_make(&plan, &d, &err);
    mesh_plan_format(&plan, text, sizeof text);        each step, bytes per rank, predicted time, scratch
    for (mesh_moves_start(&it, &plan, 0, rank, -1); mesh_moves_next(&it);) ...   what this rank sends and receives

CONCEPTS
    layout  a mesh and a spec on it. A plan is a path of layouts, from the source to the destination.
    step    the way from one layout to the next: every rank gets its box of the next layout from the ranks that hold the pieces
            (one message per peer, strided at both ends). A step that leaves Partial behind receives every summand and reduces.
            All-gather, reduce-scatter, all-to-all, slice are names for special steps, not other code.
    move    what a rank sends, receives or copies in a step: a box and a peer. Moves are iterated, never stored.

    The planner lets paths compete: direct; reduce onto ever more axes first and distribute then; gather, move, reduce axis by
    axis or factor by factor; under one objective, predicted time on a topology. Among unreduced layouts the direct step moves
    the fewest bytes there are: what is in a rank's new box and not in its old one.
    Where several ranks hold a piece, those at the nearest level share it: a piece from 64 KiB on is cut along its longest dim,
    a slab from each; smaller pieces come whole, from one replica in turn.

CONVENTIONS
    A plan is the same on every rank, compiler and machine: no floating point, ties go to the path found first. Bytes and
    messages in a plan are what the search goes by: max(sent, received) of the worst rank, from sizes rounded up, with sources
    that share evenly. mesh_plan_traffic counts exactly for one rank, mesh_plan_measure for the worst. R -> P(sum) keeps the value on coordinate 0 and puts zero elsewhere.
    Summands are combined in ascending coordinate. Planning costs O(candidates * axes), moves O(peers).
*/
#if !defined(MESH_PLAN_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_PLAN_IMPLEMENTED))
#include "cost.h"
#include "split.h"
#endif

#ifndef MESH_PLAN_H
#define MESH_PLAN_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- plans --------------------------------------------------------------------------------------------------------- */

typedef struct mesh_plan_desc {
    const mesh_layout *src, *dst; /* of one shape. Their meshes may share all ranks, some, or none */
    mesh_dtype dtype;
    int64_t elem_bytes;            /* 0: the dtype's */
    int64_t scratch_cap;           /* bytes a rank may use beside source and destination; 0: any */
    const mesh_topology *topology; /* NULL: flat */
    /* Of a tensor that is added or converted: what copies of its ends take of the cap, where the last step moves and where it reduces; apart: sums are
       made beside their summands. All are part of the plan's scratch. */
    int64_t copies[2];
    int apart;
} mesh_plan_desc;

/* What a search left out. */
enum {
    MESH_LIMIT_FACTORS = 1, /* axes split into single primes: they would be more than 16 */
    MESH_LIMIT_ORDERS = 2,  /* every order in which more than 3 axes change one at a time */
    MESH_LIMIT_SLICES = 4,  /* every choice among more than 4 axes to slice along before reducing */
    MESH_LIMIT_TRIES = 8    /* layouts on the way beyond the first 1,024 of a kind, or than 100 ms of counting */
};

/* The best plan under the cap. ARGUMENT: specs that do not fit mesh and shape, one partial op to another, R -> P(avg) or
   P(prod), bytes that overflow. MEMORY: no plan within scratch_cap; the least that is possible is named. No allocation. */
MESH_API mesh_status mesh_plan_make(mesh_plan *p, const mesh_plan_desc *d, mesh_error *err);
/* The best `cap` plans, best first, for a look at the alternatives; fewer are the first of more. cap is 1 at least. Returns how many were written, or -1. */
MESH_API int mesh_plan_candidates(mesh_plan *plans, int cap, const mesh_plan_desc *d, mesh_error *err);

#ifdef __cplusplus
}
#endif
#endif /* MESH_PLAN_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_PLAN_IMPLEMENTED)
#define MESH_PLAN_IMPLEMENTED

enum {
    MESH__SLAB = 256 * 1024, /* of what is reduced at a time, per summand */
    MESH__MAX_ROUNDS = 4096,
    MESH__EXACT_RANKS = 12, /* up to so many are counted one by one where sizes do not divide */
    MESH__BYTES_RANKS = 64, /* ... and in the end, or where only bytes count, also where replicas share */
    MESH__TRIES = 1024,     /* layouts by way of which a search goes, at most */
    MESH__WORK = 3000000,   /* ranks and peers visited to count bytes, in all: some 100 ms */
    MESH__BOX_WORK = 4,     /* what a rank's boxes take where its peers need not be visited */
    MESH__TRY_PS = 30000000 /* what a plan must take for each of them to be worth a look */
};

/* ---- // >>search ------------------------------------------------------------------------------------------------------ */

/* Per dim the axes that shard it, outermost first: a spec in the shape that is easy to change. */
typedef struct mesh__form {
    uint8_t count[MESH_MAX_DIMS], axis[MESH_MAX_DIMS][MESH_MAX_AXES];
} mesh__form;

typedef struct mesh__search {
    const mesh_plan_desc *d;
    mesh_plan *best; /* sorted */
    int cap, found;
    int64_t least;    /* scratch of the plan that needs the least */
    int64_t bound;    /* bytes that no plan can do without */
    int bytes_only;   /* the topology is one level without latency: time is bytes */
    int tries;        /* layouts looked at */
    int64_t work;     /* spent on counting */
    uint32_t limited; /* what was not looked at; see mesh_plan.limited */
    mesh_plan path;   /* the one being built, and what it costs */
    mesh__cost cost[MESH_MAX_STEPS];
    int same[4][4]; /* are two meshes of plan.at equal */
} mesh__search;

MESH__PRIVATE mesh__form mesh__form_of(const mesh_spec *s) {
    mesh__form f;
    int d;
    for (d = 0; d < MESH_MAX_DIMS; d++) f.count[d] = (uint8_t)mesh__dim_axes(s, d, f.axis[d]);
    return f;
}

/* The spec that shards as the form says; what shards nothing is as in `other`, where that does not shard it. */
MESH__PRIVATE mesh_spec mesh__spec_of(const mesh__form *f, const mesh_spec *other) {
    mesh_spec s = *other;
    int d, i;
    for (i = 0; i < s.naxes; i++)
        if (s.axis[i].kind == MESH_SHARD) s.axis[i] = mesh_replicate();
    for (d = 0; d < MESH_MAX_DIMS; d++)
        for (i = 0; i < f->count[d]; i++) s.axis[f->axis[d][i]] = mesh_shard_at(d, i);
    s.strict = 0;
    return s;
}

/* The largest box of a layout. */
MESH__PRIVATE mesh_box mesh__largest_box(const mesh_plan *p, int layout) {
    const mesh *m = mesh__layout_mesh(p, layout);
    const mesh_spec *s = mesh__layout_spec(p, layout);
    mesh_box box = mesh__box_whole(p->view.ndim, p->view.shape);
    int i;
    for (i = 0; i < s->naxes; i++)
        if (s->axis[i].kind == MESH_SHARD)
            box.shape[s->axis[i].dim] = mesh__ceil(box.shape[s->axis[i].dim], m->axis[i].size);
    return box;
}

/* A box that is reduced into is cut into slabs that stay in cache, and into at least so many. Returns the bytes of a slab. */
MESH__PRIVATE int64_t mesh__step_slab(const mesh_plan *p, mesh_step *s, const mesh_box *box, int rounds) {
    int64_t want = mesh__ceil(mesh_box_count(box) * p->elem_bytes, MESH__SLAB);
    int d, dim = 0;
    mesh_box slab;
    if (want < rounds) want = rounds;
    if (want > MESH__MAX_ROUNDS) want = MESH__MAX_ROUNDS;
    for (d = 0; d < box->ndim && box->shape[d] < want; d++)
        if (box->shape[d] > box->shape[dim]) dim = d;
    if (d < box->ndim) dim = d;
    if (box->ndim == 0 || want > box->shape[dim]) want = box->ndim == 0 ? 1 : box->shape[dim];
    s->rounds = want < 1 ? 1 : (int)want;
    s->slab_dim = (uint16_t)dim;
    slab = mesh_box_slab(box, dim, 0, s->rounds);
    return (mesh_box_count(&slab) * p->elem_bytes + 63) & ~INT64_C(63);
}

/* Scratch of the path when reducing steps run in at least so many rounds, which are noted. A reducing step holds the summands it
   receives, of two slabs in turn, and a sum that is made apart. Layouts between are held whole, but one that is distributed slab by slab as it is reduced. */
MESH__PRIVATE int64_t mesh__path_scratch(mesh_plan *p, const mesh__cost *cost, int rounds, const mesh_plan_desc *d) {
    int64_t scratch = 0, before = 0;
    int k, n = p->nsteps, reduced = -1; /* the last step that reduces: what is before it is not as the destination */
    for (k = 0; k < n && d->apart; k++)
        if (p->step[k].kind == MESH_STEP_REDUCE) reduced = k;
    for (k = 0; k < n; k++) {
        mesh_step *s = &p->step[k];
        const mesh_step *previous = k > 0 ? &p->step[k - 1] : NULL;
        mesh_box box = mesh__largest_box(p, k + 1);
        int64_t made = (mesh_box_count(&box) * p->elem_bytes + 63) & ~INT64_C(63), held = before;
        int last = k == n - 1;
        before = last || (cost[k].inside && p->step[k + 1].kind == MESH_STEP_MOVE && k >= reduced) ? 0 : made;
        s->rounds = 1;
        s->slab_dim = 0;
        if (s->kind == MESH_STEP_REDUCE) {
            int64_t slab = mesh__step_slab(p, s, &box, rounds), slabs = cost[k].summands;
            if (k == n - 2 && p->step[k + 1].kind == MESH_STEP_MOVE && s->rounds > 1) {
                slabs += before > 0;
                before = 0;
            }
            held = mesh__add64(held, mesh__mul64(slab, (s->rounds > 1 ? 2 * slabs : slabs) + (d->apart != 0)));
        } else if (last && previous && previous->kind == MESH_STEP_REDUCE) {
            s->rounds = previous->rounds;
            s->slab_dim = previous->slab_dim;
        }
        held = mesh__add64(held, before);
        if (held > scratch) scratch = held;
    }
    scratch = mesh__add64(scratch, d->copies[p->step[n - 1].kind == MESH_STEP_REDUCE]);
    return scratch ? mesh__add64(scratch, 64) : 0; /* 64: alignment */
}

/* Is at[split] the mesh at[whole] with its axes split? */
MESH__PRIVATE int mesh__splits(const mesh__search *q, int split, int whole) {
    return split >= 2 && whole < 2 && q->same[whole + 2][whole + 2] &&
           (split == whole + 2 || q->same[split][whole + 2]);
}

/* Can the two layouts of a step be compared axis by axis? A layout on a mesh and one on the same mesh with its axes split can, where
   sizes divide: the route is then put on the split mesh. */
MESH__PRIVATE int mesh__same_axes(const mesh__search *q, int on, int next, mesh_moves *route) {
    const mesh_plan *p = &q->path;
    if (q->same[on][next]) return 1;
    if (mesh__splits(q, next, on) && mesh__is_even(&p->view, &p->at[on], &route->src.spec, &p->at[next])) {
        route->src.spec = mesh__spec_split(&route->src.spec, &p->at[on], &p->at[next]);
        route->src.on = &p->at[next];
        return 1;
    }
    if (mesh__splits(q, on, next) && mesh__is_even(&p->view, &p->at[next], &route->dst.spec, &p->at[on])) {
        route->dst.spec = mesh__spec_split(&route->dst.spec, &p->at[next], &p->at[on]);
        route->dst.on = &p->at[on];
        return 1;
    }
    return 0;
}

MESH__PRIVATE int mesh__same_places(const mesh_spec *a, const mesh_spec *b) {
    mesh_spec x = *a, y = *b;
    x.strict = y.strict = 0;
    return mesh_spec_equal(&x, &y);
}

/* Does a layout shard as the destination does and further, so that every rank can make its part where it will be in the end? */
MESH__PRIVATE int mesh__refines(const mesh__search *q, int layout) {
    const mesh_plan *p = &q->path;
    mesh_spec to = p->view.to;
    const mesh_spec *s = mesh__layout_spec(p, layout);
    uint8_t inner[MESH_MAX_AXES], outer[MESH_MAX_AXES];
    int d, i, on = p->step[layout - 1].on;
    if (!q->same[on][1]) {
        if (!mesh__splits(q, on, 1) || !mesh__is_even(&p->view, &p->at[1], &to, &p->at[3])) return 0;
        to = mesh__spec_split(&to, &p->at[1], &p->at[3]);
    }
    if (s->rule != to.rule && !mesh__is_even(&p->view, mesh__layout_mesh(p, layout), s, NULL)) return 0;
    for (i = 0; i < to.naxes; i++) /* zero there on most ranks */
        if (to.axis[i].kind == MESH_PARTIAL && s->axis[i].kind == MESH_REPLICATE && mesh__keeps_zero(p->op)) return 0;
    for (d = 0; d < p->view.ndim; d++) {
        int n = mesh__dim_axes(&to, d, outer), k = mesh__dim_axes(s, d, inner);
        if (k < n) return 0;
        for (i = 0; i < n; i++)
            if (inner[i] != outer[i]) return 0;
    }
    return 1;
}

/* Must a step be counted rank by rank, its sizes being uneven or shared? */
MESH__PRIVATE int mesh__must_count(const mesh_plan *p, const mesh_moves *route, int most) {
    if (route->placed.n) most = MESH__BYTES_RANKS;
    return p->at[0].size <= most && p->at[1].size <= most &&
           (route->replicas > 1 || !mesh_equal(route->src.on, route->dst.on) || route->placed.n ||
            !mesh__is_even(&p->view, route->src.on, &route->src.spec, NULL) ||
            !mesh__is_even(&p->view, route->dst.on, &route->dst.spec, NULL));
}

/* What the path's last step costs. last: it reaches the destination. Returns 0 if the path is not worth going on with. */
MESH__PRIVATE int mesh__step_cost(mesh__search *q, int last) {
    mesh_plan *p = &q->path;
    int k = p->nsteps - 1, on = k ? p->step[k - 1].on : 0, same, count;
    mesh_step *s = &p->step[k];
    mesh__cost *c = &q->cost[k];
    mesh_moves route;
    mesh__moves_layouts(&route, p, k);
    if (p->op == MESH_PROD && route.made_partial) return 0; /* no whole value is a product of copies of itself */
    same = mesh__same_axes(q, on, s->on, &route);
    if (same && (k > 0 || !last) && mesh__same_places(&route.src.spec, &route.dst.spec)) return 0; /* it does nothing */
    s->kind = route.summands > 1 ? MESH_STEP_REDUCE : MESH_STEP_MOVE;
    s->rounds = 1;
    count = mesh__must_count(p, &route, q->bytes_only ? MESH__BYTES_RANKS : MESH__EXACT_RANKS);
    if (count && q->work > MESH__WORK) { /* from here on estimates have to do */
        q->limited |= MESH_LIMIT_TRIES;
        count = 0;
    }
    if (count)
        q->work += (p->at[0].size + (int64_t)p->at[1].size) * (route.replicas > 1 ? p->at[1].size : MESH__BOX_WORK) *
                   route.summands;
    if (count && q->bytes_only && q->found == q->cap && !q->d->scratch_cap &&
        mesh__add64(p->bytes, mesh__step_least(p, &route)) > q->best[q->found - 1].bytes)
        return 0;
    *c = mesh__cost_of(p, &route, same, count ? k : -1);
    c->inside = !last && mesh__refines(q, k + 1);
    s->bytes = c->bytes;
    s->ps = c->ps;
    if (s->kind == MESH_STEP_REDUCE)
        s->ps = mesh__add64(s->ps, mesh__local_time(&p->topology, mesh__mul64(c->staged, (int64_t)c->summands + 1)));
    else if (!last && !c->inside)
        s->ps = mesh__add64(s->ps, mesh__local_time(&p->topology, c->staged));
    s->messages = c->messages;
    s->divide = 0;
    p->bytes = mesh__add64(p->bytes, s->bytes);
    p->ps = mesh__add64(p->ps, s->ps);
    return q->found < q->cap || q->d->scratch_cap || p->ps <= q->best[q->found - 1].ps;
}

/* Do two plans go by the same layouts? */
MESH__PRIVATE int mesh__same_way(const mesh__search *q, const mesh_plan *a, const mesh_plan *b) {
    int k;
    if (a->nsteps != b->nsteps || a->view.ndim != b->view.ndim) return 0;
    for (k = 0; k < a->view.ndim; k++)
        if (a->view.shape[k] != b->view.shape[k]) return 0;
    for (k = 0; k < a->nsteps; k++)
        if (!q->same[a->step[k].on][b->step[k].on] || !mesh_spec_equal(&a->step[k].spec, &b->step[k].spec)) return 0;
    return 1;
}

/* The path is whole: is it among the best? */
MESH__PRIVATE void mesh__consider(mesh__search *q) {
    mesh_plan *p = &q->path;
    const mesh__cost *cost = q->cost;
    int64_t cap = q->d->scratch_cap;
    int k, at, reduced = 1, last_reduce = -1, rounds;
    for (k = 0; k < p->nsteps; k++) {
        reduced *= cost[k].summands;
        if (cost[k].summands > 1) last_reduce = k;
        p->step[k].divide = 0;
    }
    if (p->op == MESH_AVG && last_reduce >= 0) p->step[last_reduce].divide = reduced;
    p->scratch = mesh__path_scratch(p, cost, 1, q->d);
    if (cap && p->scratch > cap) { /* more rounds, smaller slabs; not always less, for two are held in turn */
        for (rounds = 2; rounds <= MESH__MAX_ROUNDS && p->scratch > cap; rounds *= 2) {
            if (q->least < 0 || p->scratch < q->least) q->least = p->scratch;
            p->scratch = mesh__path_scratch(p, cost, rounds, q->d);
        }
        if (q->least < 0 || p->scratch < q->least) q->least = p->scratch;
        if (p->scratch > cap) return;
    }
    for (at = q->found; at > 0; at--) {
        const mesh_plan *b = &q->best[at - 1];
        if (b->ps < p->ps || (b->ps == p->ps && b->bytes < p->bytes) ||
            (b->ps == p->ps && b->bytes == p->bytes && b->nsteps <= p->nsteps))
            break;
    }
    for (k = 0; k < at; k++)
        if (mesh__same_way(q, &q->best[k], p)) return;
    if (at == q->cap) return;
    if (q->found < q->cap) q->found++;
    for (k = q->found - 1; k > at; k--) q->best[k] = q->best[k - 1];
    q->best[at] = *p;
}

/* Back to the first n steps. */
MESH__PRIVATE void mesh__pop(mesh__search *q, int n) {
    mesh_plan *p = &q->path;
    int k;
    p->nsteps = n;
    p->bytes = p->ps = 0;
    for (k = 0; k < n; k++) {
        p->bytes = mesh__add64(p->bytes, p->step[k].bytes);
        p->ps = mesh__add64(p->ps, p->step[k].ps);
    }
}
/* One step further, unless that is not worth it. */
MESH__PRIVATE int mesh__step_to(mesh__search *q, int on, const mesh_spec *spec, int last) {
    int n = q->path.nsteps;
    if (n == MESH_MAX_STEPS) return 0;
    q->path.step[n].on = (uint8_t)on;
    q->path.step[n].spec = *spec;
    q->path.nsteps++;
    if (mesh__step_cost(q, last)) return 1;
    mesh__pop(q, n);
    return 0;
}
MESH__PRIVATE int mesh__push(mesh__search *q, int on, const mesh_spec *spec) { return mesh__step_to(q, on, spec, 0); }
/* The path so far, and then straight to the destination. */
MESH__PRIVATE void mesh__finish_path(mesh__search *q) {
    int n = q->path.nsteps;
    if (!mesh__step_to(q, 1, &q->path.view.to, 1)) return;
    mesh__consider(q);
    mesh__pop(q, n);
}

/* The dim along which an axis should shard further: the longest that it divides, else the longest. */
MESH__PRIVATE int mesh__best_dim(const mesh_plan *p, const mesh *m, const mesh__form *f, int axis) {
    int64_t best = -1, size = m->axis[axis].size;
    int d, i, dim = 0, divides = 0;
    for (d = 0; d < p->view.ndim; d++) {
        int64_t n = p->view.shape[d];
        int even;
        for (i = 0; i < f->count[d]; i++) n = mesh__ceil(n, m->axis[f->axis[d][i]].size);
        even = n > 0 && n % size == 0;
        if (even > divides || (even == divides && n > best)) best = n, dim = d, divides = even;
    }
    return dim;
}

/* The axes in a mask by the stride of their innermost mode, smallest first: the nearest ranks first. */
MESH__PRIVATE int mesh__by_stride(const mesh *m, uint32_t mask, uint8_t *list) {
    int i, k, n = 0;
    for (i = 0; i < m->naxes; i++) {
        int stride;
        if (!(mask >> i & 1)) continue;
        stride = m->axis[i].modes ? m->mode[m->axis[i].first + m->axis[i].modes - 1].stride : 0;
        for (k = n++; k > 0; k--) {
            const mesh_axis *b = &m->axis[list[k - 1]];
            if ((b->modes ? m->mode[b->first + b->modes - 1].stride : 0) <= stride) break;
            list[k] = list[k - 1];
        }
        list[k] = (uint8_t)i;
    }
    return n;
}

/* Shard further along the axes of a mask: where `like` shards them, in its order, if there is such a spec; the rest where there is room,
   the nearest ranks outermost. */
MESH__PRIVATE void mesh__refine(const mesh_plan *p, const mesh *m, mesh__form *f, uint32_t mask,
                                const mesh_spec *like) {
    uint8_t list[MESH_MAX_AXES];
    int d, i, n;
    for (d = 0; d < p->view.ndim && like; d++) {
        n = mesh__dim_axes(like, d, list);
        for (i = 0; i < n; i++)
            if (mask >> list[i] & 1) {
                f->axis[d][f->count[d]++] = list[i];
                mask &= ~(UINT32_C(1) << list[i]);
            }
    }
    n = mesh__by_stride(m, mask, list);
    for (i = 0; i < n && p->view.ndim; i++) {
        d = mesh__best_dim(p, m, f, list[i]);
        f->axis[d][f->count[d]++] = list[i];
    }
}

/* Every axis split into its prime factors, or, were that more than 16 axes, into larger ones. Returns 0 if nothing is split. */
MESH__PRIVATE int mesh__split_primes(mesh *r, const mesh *m, uint32_t *limited) {
    int primes, split;
    for (primes = 1; (split = mesh__split_factors(r, m, primes, NULL)) < 0; primes++) *limited |= MESH_LIMIT_FACTORS;
    return split;
}

MESH__PRIVATE uint32_t mesh__replicated_axes(const mesh *m, const mesh_spec *s) {
    uint32_t mask = 0;
    int i;
    for (i = 0; i < m->naxes; i++)
        if (s->axis[i].kind == MESH_REPLICATE && m->axis[i].size > 1) mask |= UINT32_C(1) << i;
    return mask;
}

/* By way of the destination sharded further over what it replicates, then gathering: at once, or an axis at a time, the farthest ranks
   first while there is little to move, or the nearest. here: the layout reached, NULL if it is on another mesh. roomy: shard where there
   is most room, not as the layout reached does. */
MESH__PRIVATE void mesh__tail_gather(mesh__search *q, int on, const mesh_spec *to, const mesh_spec *here, int roomy) {
    mesh_plan *p = &q->path;
    const mesh *m = &p->at[on];
    const mesh__form end = mesh__form_of(to);
    mesh__form refined = end, f;
    mesh_spec spec;
    uint32_t mask = mesh__replicated_axes(m, to);
    int start = p->nsteps, first, left, d, i, k, near;
    if (here) mask &= ~mesh__replicated_axes(m, here);
    if (!mask || !p->view.ndim) return;
    mesh__refine(p, m, &refined, mask, roomy ? NULL : here);
    spec = mesh__spec_of(&refined, to);
    if (!(here && mesh_spec_equal(&spec, here)) && !mesh__push(q, on, &spec)) return;
    if (on == 1) mesh__finish_path(q);
    first = p->nsteps;
    for (near = 0; near < (q->bytes_only ? 2 : 1);
         near++) { /* where only bytes count, sizes that differ may want either */
        f = refined;
        for (left = 0, k = 0; k < m->naxes; k++) left += (int)(mask >> k & 1);
        for (; left > 1; left--) {
            int best = -1, dim = 0;
            for (d = 0; d < p->view.ndim; d++) { /* of the innermost of each dim */
                if (f.count[d] == end.count[d]) continue;
                i = f.axis[d][f.count[d] - 1];
                k = m->mode[m->axis[i].first].stride;
                if (best < 0 || (near ? k < best : k > best)) best = k, dim = d;
            }
            f.count[dim]--;
            spec = mesh__spec_of(&f, to);
            if (!mesh__push(q, on, &spec)) break;
        }
        if (left == 1) mesh__finish_path(q);
        mesh__pop(q, first);
    }
    mesh__pop(q, start);
}

/* Axis by axis: those that are placed differently move one at a time, in an order. */
MESH__PRIVATE void mesh__tail_axes(mesh__search *q, const mesh_spec *here) {
    const mesh_spec *to = &q->path.view.to;
    mesh_plan *p = &q->path;
    int axis[MESH_MAX_AXES], n = 0, i, orders, o, start = p->nsteps;
    for (i = 0; i < to->naxes; i++)
        if (here->axis[i].kind != to->axis[i].kind ||
            (to->axis[i].kind == MESH_SHARD && here->axis[i].dim != to->axis[i].dim))
            axis[n++] = i;
    if (n < 2) return;
    orders = n == 3 ? 6 : 2;
    if (n > 3) q->limited |= MESH_LIMIT_ORDERS;
    for (o = 0; o < orders; o++) {
        uint32_t moved = 0;
        int k;
        for (k = 0; k < n - 1; k++) {
            static const uint8_t three[6][3] = {{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}};
            mesh__form f = mesh__form_of(here), at_end = mesh__form_of(to);
            mesh_spec spec = *here;
            int d, j, kept;
            moved |= UINT32_C(1) << axis[n == 3 ? three[o][k] : o ? n - 1 - k : k];
            for (i = 0; i < to->naxes; i++)
                if (moved >> i & 1) spec.axis[i] = to->axis[i];
            for (d = 0; d < p->view.ndim; d++) {
                for (j = kept = 0; j < f.count[d]; j++)
                    if (!(moved >> f.axis[d][j] & 1)) f.axis[d][kept++] = f.axis[d][j];
                for (j = 0; j < at_end.count[d]; j++)
                    if (moved >> at_end.axis[d][j] & 1) f.axis[d][kept++] = at_end.axis[d][j];
                f.count[d] = (uint8_t)kept;
            }
            spec = mesh__spec_of(&f, &spec);
            if (!mesh__push(q, 1, &spec)) break;
        }
        if (k == n - 1) mesh__finish_path(q);
        mesh__pop(q, start);
    }
}

/* Every way from the layout reached, in which nothing has to be reduced any more, to the destination. */
MESH__PRIVATE void mesh__tails(mesh__search *q, int on, const mesh_spec *here) {
    int split = q->same[3][3]; /* is there such a mesh */
    mesh__finish_path(q);
    mesh__tail_gather(q, 1, &q->path.view.to, q->same[on][1] ? here : NULL, 0);
    if (q->same[on][1]) mesh__tail_gather(q, 1, &q->path.view.to, here, 1);
    if (q->same[on][1]) mesh__tail_axes(q, here);
    if (split) {
        mesh_spec to = mesh__spec_split(&q->path.view.to, &q->path.at[1], &q->path.at[3]), from;
        int same = q->same[on][3];
        if (!same && q->same[on][1] && mesh__is_even(&q->path.view, &q->path.at[on], here, &q->path.at[3])) {
            from = mesh__spec_split(here, &q->path.at[1], &q->path.at[3]);
            here = &from;
            same = 1;
        }
        mesh__tail_gather(q, 3, &to, same ? here : NULL, 0);
    }
}

/* Those that a layout shards behind the others, the outermost last. */
MESH__PRIVATE void mesh__sharded_last(const mesh_spec *like, uint8_t *list, int n) {
    int i, k;
    for (i = 1; i < n; i++) {
        uint8_t axis = list[i];
        for (k = i; k > 0; k--) {
            const mesh_place *a = &like->axis[list[k - 1]], *b = &like->axis[axis];
            if (a->kind != MESH_SHARD || (b->kind == MESH_SHARD && b->order <= a->order)) break;
            list[k] = list[k - 1];
        }
        list[k] = axis;
    }
}

/* Where there is no room to scatter further: what is left is reduced whole, on the way. */
MESH__PRIVATE void mesh__head_whole(mesh__search *q, int on, const mesh_spec *from, uint32_t left) {
    mesh_spec spec = *from;
    int i, start = q->path.nsteps;
    for (i = 0; i < spec.naxes; i++)
        if (left >> i & 1) spec.axis[i] = mesh_replicate();
    if (mesh__push(q, on, &spec)) mesh__tails(q, on, &spec);
    mesh__pop(q, start);
}

/* Reduce over the partial axes, scattering: at once, or an axis at a time, the nearest ranks first or the farthest; with the tensor sliced
   along some of the axes that replicate it. */
MESH__PRIVATE void mesh__heads(mesh__search *q, int on, const mesh_spec *from, const mesh_spec *like, uint32_t partial,
                               uint32_t slice) {
    mesh_plan *p = &q->path;
    const mesh *m = &p->at[on];
    mesh__form all = mesh__form_of(from);
    mesh_spec spec;
    uint8_t list[MESH_MAX_AXES];
    int n = mesh__by_stride(m, partial, list), i, d, k, start = p->nsteps, way, even;
    mesh__refine(p, m, &all, partial | slice, like);
    spec = mesh__spec_of(&all, from);
    even = mesh__is_even(&p->view, m, &spec, NULL);
    if (on == 0) {
        if (mesh__push(q, on, &spec)) mesh__tails(q, on, &spec);
        mesh__pop(q, start);
    }
    if (n < 2) return;
    for (way = 0; way < (even ? 1 + (on == 0) : like ? 3 : 2); way++) {
        uint32_t done = ~partial;
        if (way == 2) mesh__sharded_last(like, list, n); /* the farthest end is taken first */
        for (i = 0; i < n; i++) {
            mesh__form f = all;
            done |= UINT32_C(1) << list[way ? n - 1 - i : i];
            for (d = 0; d < p->view.ndim; d++) {
                int kept = 0;
                for (k = 0; k < all.count[d]; k++)
                    if (done >> all.axis[d][k] & 1) f.axis[d][kept++] = all.axis[d][k];
                f.count[d] = (uint8_t)kept;
            }
            spec = mesh__spec_of(&f, from);
            if (!mesh__push(q, on, &spec)) break;
            if (i < n - 1) mesh__finish_path(q); /* what is left is reduced at the destination */
            if (i < n - 1 && !even) mesh__head_whole(q, on, &spec, partial & ~done);
        }
        if (i == n) mesh__tails(q, on, &spec);
        mesh__pop(q, start);
    }
}

/* The partial axes whose summands the destination does not keep apart. */
MESH__PRIVATE uint32_t mesh__to_reduce(const mesh *m, const mesh_spec *from, const mesh *dst, const mesh_spec *to) {
    mesh_digits kept = mesh__digits_of(dst, to, MESH_PARTIAL);
    uint32_t mask = 0;
    int i, k;
    for (i = 0; i < m->naxes; i++) {
        mesh_digits axis, common, rest;
        axis.n = common.n = rest.n = 0;
        if (from->axis[i].kind != MESH_PARTIAL) continue;
        for (k = m->axis[i].first; k < m->axis[i].first + m->axis[i].modes; k++)
            mesh__digit_add(&axis, m->mode[k].shape, m->mode[k].stride);
        mesh__digits_sort(&axis, &kept, &common, &rest);
        if (rest.n) mask |= UINT32_C(1) << i;
    }
    return mask;
}

/* Where an axis may be in a layout on the way: as in the source, as a whole, or sharding a dim. */
enum { MESH__STAYS = 254, MESH__WHOLE = 255 };

typedef struct mesh__choice {
    int n, at;
    uint8_t place[MESH_MAX_DIMS + 2];
} mesh__choice;

MESH__PRIVATE void mesh__choice_add(mesh__choice *c, int place) {
    int i;
    for (i = 0; i < c->n; i++)
        if (c->place[i] == place) return;
    c->place[c->n++] = (uint8_t)place;
}

/* What an axis may do on the way, the likeliest first. to: the destination, where it can be compared; else NULL. */
MESH__PRIVATE mesh__choice mesh__choices(const mesh_plan *p, const mesh_spec *from, const mesh_spec *to, int axis,
                                         int reduced) {
    mesh__choice c;
    const mesh_place *a = &from->axis[axis], *b = to ? &to->axis[axis] : NULL;
    int d, longest = 0;
    c.n = c.at = 0;
    for (d = 1; d < p->view.ndim; d++)
        if (p->view.shape[d] > p->view.shape[longest]) longest = d;
    if (a->kind == MESH_REPLICATE) mesh__choice_add(&c, MESH__WHOLE);
    if (a->kind == MESH_SHARD || (a->kind == MESH_PARTIAL && !reduced)) mesh__choice_add(&c, MESH__STAYS);
    if (c.n && a->kind == MESH_PARTIAL) return c;
    if (b && b->kind == MESH_SHARD) mesh__choice_add(&c, b->dim);
    if (a->kind == MESH_SHARD) {
        if (b && b->kind == MESH_REPLICATE) mesh__choice_add(&c, MESH__WHOLE);
        return c;
    }
    mesh__choice_add(&c, longest);
    for (d = 0; d < p->view.ndim; d++)
        if (p->view.shape[d] > 1) mesh__choice_add(&c, d);
    return c;
}

/* The layout that the choices make: on each dim the axes that stay, then those that the destination shards there too, in its order, then
   the others, the nearest ranks outermost. */
MESH__PRIVATE mesh_spec mesh__chosen(const mesh_plan *p, const mesh *m, const mesh_spec *from, const mesh_spec *to,
                                     const mesh__choice *choice) {
    mesh__form f = mesh__form_of(from), at_end;
    uint8_t near[MESH_MAX_AXES];
    uint32_t used = 0;
    mesh_spec spec;
    int d, i, k, n = mesh__by_stride(m, ~UINT32_C(0) >> (32 - m->naxes), near);
    if (to) at_end = mesh__form_of(to);
    for (d = 0; d < p->view.ndim; d++) {
        for (i = k = 0; i < f.count[d]; i++)
            if (choice[f.axis[d][i]].place[choice[f.axis[d][i]].at] == MESH__STAYS) f.axis[d][k++] = f.axis[d][i];
        f.count[d] = (uint8_t)k;
        for (i = 0; to && i < at_end.count[d]; i++) {
            int axis = at_end.axis[d][i];
            if (choice[axis].place[choice[axis].at] != d) continue;
            used |= UINT32_C(1) << axis;
            f.axis[d][f.count[d]++] = (uint8_t)axis;
        }
        for (i = 0; i < n; i++) {
            int axis = near[i];
            if (choice[axis].place[choice[axis].at] != d || (used >> axis & 1)) continue;
            f.axis[d][f.count[d]++] = (uint8_t)axis;
        }
    }
    spec = mesh__spec_of(&f, from);
    return spec;
}

/* By way of any layout in which nothing is partial but what stays so: every place that the axes which are reduced may shard instead, the
   replicated ones as they are or sharded too, the sharded ones as they are or as in the end. As many as the plan found so far is worth. */
MESH__PRIVATE void mesh__places(mesh__search *q, int on, const mesh_spec *from, const mesh_spec *to, uint32_t reduced) {
    mesh_plan *p = &q->path;
    const mesh *m = &p->at[on];
    mesh__choice choice[MESH_MAX_AXES];
    int i, start = p->nsteps, most = MESH__TRIES;
    if (!p->view.ndim || !m->naxes) return;
    for (i = 0; i < m->naxes; i++) {
        choice[i] = mesh__choices(p, from, to, i, (int)(reduced >> i & 1));
        if (m->axis[i].size == 1) choice[i].n = 1;
    }
    for (;;) {
        mesh_spec spec;
        if (q->found && !q->bytes_only) {
            int64_t worth = q->best[0].ps / MESH__TRY_PS;
            if (worth < most) most = (int)worth;
        }
        if (q->work > MESH__WORK) q->limited |= MESH_LIMIT_TRIES;
        if (q->tries >= most || q->work > MESH__WORK || (q->found && q->bytes_only && q->best[0].bytes <= q->bound))
            break;
        if (++q->tries == MESH__TRIES) q->limited |= MESH_LIMIT_TRIES;
        spec = mesh__chosen(p, m, from, to, choice);
        if (!mesh__same_places(&spec, from) && mesh__push(q, on, &spec)) mesh__tails(q, on, &spec);
        mesh__pop(q, start);
        for (i = m->naxes - 1; i >= 0 && ++choice[i].at == choice[i].n; i--) choice[i].at = 0;
        if (i < 0) return;
    }
}

/* Can what is left to do be had for less than the best plan found, however many are wanted? The worst rank receives what it lacks, of a sum one
   summand of each value. */
MESH__PRIVATE int mesh__is_worth(mesh__search *q) {
    mesh_plan *p = &q->path;
    int k = p->nsteps;
    int64_t least = 0;
    mesh_moves route;
    mesh_box box;
    if (k + 1 == MESH_MAX_STEPS) return 0;
    if (!q->found || q->d->scratch_cap) return 1;
    p->step[k].on = 1;
    p->step[k].spec = p->view.to;
    p->nsteps++;
    mesh__moves_layouts(&route, p, k);
    box = mesh__largest_box(p, k + 1);
    p->nsteps--;
    if (route.summands == 1) {
        least = mesh__step_least(p, &route);
        q->work += (int64_t)p->at[1].size * MESH__BOX_WORK;
    } else if (!route.placed.n && !route.to_zero.n) {
        least = mesh_box_count(&box) * p->elem_bytes;
    }
    return mesh__add64(p->bytes, least) < q->best[0].bytes;
}

MESH__PRIVATE void mesh__every_layout(mesh__search *q, int on, const mesh_spec *from, int more);

/* The axes from `axis` on, each whole, partial where it is so before, or sharding a dim at any place among the others there. s: the axes that
   shard nothing. from: the layout reached, if it is on this mesh. */
MESH__PRIVATE void mesh__every_place(mesh__search *q, int on, const mesh_spec *from, mesh__form *f, mesh_spec *s,
                                     int axis, int more) {
    const mesh_plan *p = &q->path;
    int d, k, i, start = p->nsteps;
    if (q->found && q->best[0].bytes <= q->bound) return;
    if (q->tries >= MESH__TRIES || q->work > MESH__WORK) {
        q->limited |= MESH_LIMIT_TRIES;
        return;
    }
    if (axis == s->naxes) {
        mesh_spec spec = mesh__spec_of(f, s);
        q->tries++;
        if ((from && mesh__same_places(&spec, from)) || !mesh__push(q, on, &spec)) return;
        if (!more)
            mesh__finish_path(q);
        else if (mesh__is_worth(q))
            mesh__every_layout(q, on, &spec, more - 1);
        mesh__pop(q, start);
        return;
    }
    if (from && from->axis[axis].kind == MESH_PARTIAL) {
        s->axis[axis] = from->axis[axis];
        mesh__every_place(q, on, from, f, s, axis + 1, more);
    }
    s->axis[axis] = mesh_replicate();
    mesh__every_place(q, on, from, f, s, axis + 1, more);
    for (d = 0; d < p->view.ndim && p->at[on].axis[axis].size > 1; d++) {
        k = f->count[d]++;
        f->axis[d][k] = (uint8_t)axis;
        for (;; k--) { /* from the innermost place to the outermost */
            mesh__every_place(q, on, from, f, s, axis + 1, more);
            if (k == 0) break;
            f->axis[d][k] = f->axis[d][k - 1];
            f->axis[d][k - 1] = (uint8_t)axis;
        }
        for (i = 1, f->count[d]--; i <= f->count[d]; i++) f->axis[d][i - 1] = f->axis[d][i];
    }
}

/* By way of every layout, and of `more` others behind it, on the mesh of the one reached or on the destination's. */
MESH__PRIVATE void mesh__every_layout(mesh__search *q, int on, const mesh_spec *from, int more) {
    int next;
    for (next = on; next < 2; next += q->same[0][1] ? 2 : 1) {
        mesh__form f = MESH_ZERO;
        mesh_spec s = q->path.view.to;
        s.naxes = (uint8_t)q->path.at[next].naxes;
        mesh__every_place(q, next, next == on ? from : NULL, &f, &s, 0, more);
    }
}

MESH__PRIVATE void mesh__search_all(mesh__search *q) {
    mesh_plan *p = &q->path;
    const mesh_spec *from = &p->view.from, *to = &p->view.to;
    const mesh *m = &p->at[0];
    uint32_t partial = mesh__to_reduce(m, from, &p->at[1], to), replicated = mesh__replicated_axes(m, from), used;
    uint8_t list[MESH_MAX_AXES];
    mesh_spec split_from, split_to;
    int n, d, code, i, every, uneven = !q->same[0][1], split = q->same[2][2], like = q->same[2][3] && q->same[3][3];
    if (split) split_from = mesh__spec_split(from, m, &p->at[2]);
    if (like) split_to = mesh__spec_split(to, &p->at[1], &p->at[3]);
    if (partial) {
        mesh__finish_path(q);
    } else {
        mesh__tails(q, 0, from);
    }
    n = mesh__by_stride(m, replicated, list);
    every = n <= 4; /* every subset, or none, all, and those that the destination shards */
    if (!every && partial) q->limited |= MESH_LIMIT_SLICES;
    for (code = 0; partial && p->view.ndim && code < (every ? 1 << n : 3); code++) {
        for (i = 0, used = 0; i < n; i++) {
            int sharded = q->same[0][1] && to->axis[list[i]].kind == MESH_SHARD;
            if (every ? code >> i & 1 : code == 1 || (code == 2 && sharded)) used |= UINT32_C(1) << list[i];
        }
        mesh__heads(q, 0, from, q->same[0][1] ? to : NULL, partial, used);
        if (split && (used == 0 || used == replicated))
            mesh__heads(q, 2, &split_from, like ? &split_to : NULL,
                        mesh__to_reduce(&p->at[2], &split_from, &p->at[1], to),
                        used ? mesh__replicated_axes(&p->at[2], &split_from) : 0);
    }
    mesh__places(q, 0, from, q->same[0][1] ? to : NULL, partial);
    if (split)
        mesh__places(q, 2, &split_from, like ? &split_to : NULL,
                     mesh__to_reduce(&p->at[2], &split_from, &p->at[1], to));
    for (d = 0; d < p->view.ndim; d++) uneven |= p->view.shape[d] % m->size || p->view.shape[d] % p->at[1].size;
    for (n = 0; n < 2 && uneven && q->bytes_only; n++) { /* else the ways above are the best */
        q->tries = 0;
        mesh__every_layout(q, 0, from, n);
    }
}

/* ---- // >>plans ------------------------------------------------------------------------------------------------------- */

MESH__PRIVATE mesh_status mesh__plan_check(const mesh_plan_desc *d, int64_t elem_bytes, const char *f,
                                           mesh_error *err) {
    const mesh *src = d->src->on, *dst = d->dst->on;
    int i, k, from_op = -1, to_op = -1, from_axis = 0, to_axis = 0;
    int64_t total = elem_bytes;
    mesh_error why;
    if (elem_bytes < 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: elements of %l bytes (dtype %d); give a dtype of MESH_DTYPES, or elem_bytes", f,
                          elem_bytes, (int)d->dtype);
    if (d->scratch_cap < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: scratch_cap is %l; 0 means any", f, d->scratch_cap);
    if (d->topology && mesh_topology_check(d->topology, &why) != MESH_OK)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %s", f, why.text);
    if (d->src->ndim != d->dst->ndim)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: source and destination have %d and %d dims", f, d->src->ndim,
                          d->dst->ndim);
    for (i = 0; i < 2; i++)
        if (mesh_layout_check(i ? d->dst : d->src, &why) != MESH_OK)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %s: %s", f, i ? "destination" : "source", why.text);
    for (k = 0; k < d->src->ndim; k++)
        if (d->src->shape[k] != d->dst->shape[k])
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: dim %d is %l in the source and %l in the destination", f,
                              k, d->src->shape[k], d->dst->shape[k]);
    for (k = 0; k < d->src->ndim; k++) total = mesh__mul64(total, d->src->shape[k]);
    if (total > INT64_MAX / 4)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: the tensor's bytes overflow: more than 2^61; give a smaller shape than dim 0's %l", f,
                          d->src->ndim ? d->src->shape[0] : 1);
    for (i = 0; i < src->naxes; i++)
        if (d->src->spec.axis[i].kind == MESH_PARTIAL) from_op = d->src->spec.axis[i].op, from_axis = i;
    for (i = 0; i < dst->naxes; i++)
        if (d->dst->spec.axis[i].kind == MESH_PARTIAL) to_op = d->dst->spec.axis[i].op, to_axis = i;
    if (from_op >= 0 && to_op >= 0 && from_op != to_op)
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "%s: axis \"%s\" is partial over %s, and axis \"%s\" of the destination over %s; reduce first, into a "
            "spec without partial axes",
            f, src->axis[from_axis].name, mesh_op_name((mesh_op)from_op), dst->axis[to_axis].name,
            mesh_op_name((mesh_op)to_op));
    if (to_op == MESH_AVG || to_op == MESH_PROD) { /* only summands that are there already */
        mesh_digits have = mesh__digits_of(src, &d->src->spec, MESH_PARTIAL),
                    want = mesh__digits_of(dst, &d->dst->spec, MESH_PARTIAL), common, rest;
        common.n = rest.n = 0;
        mesh__digits_sort(&want, &have, &common, &rest);
        if (rest.n)
            return mesh__fail(
                err, MESH_ERR_ARGUMENT, -1,
                "%s: axis \"%s\" of the destination is partial over %s, which the source is not there; only sum, min, "
                "max, and, or, xor can be made of whole values",
                f, dst->axis[to_axis].name, mesh_op_name((mesh_op)to_op));
    }
    return MESH_OK;
}

MESH__PRIVATE uint64_t mesh__spec_hash(uint64_t h, const mesh_spec *s) {
    int i;
    h = mesh__mix(h, (uint64_t)s->naxes << 16 | (uint64_t)s->rule << 8 | s->strict);
    for (i = 0; i < s->naxes; i++) {
        const mesh_place *p = &s->axis[i];
        h = mesh__mix(h, (uint64_t)p->kind << 24 | (uint64_t)(p->kind == MESH_SHARD ? p->dim : 0) << 16 |
                             (uint64_t)(p->kind == MESH_PARTIAL ? p->op : 0) << 8 |
                             (uint64_t)(p->kind == MESH_SHARD ? p->order : 0));
    }
    return h;
}

MESH__PRIVATE uint64_t mesh__plan_hash(const mesh_plan *p) {
    uint64_t h = mesh__mix(mesh_fingerprint(&p->at[0]), mesh_fingerprint(&p->at[1]));
    mesh_spec from = mesh__spec_plain(&p->from);
    int k;
    h = mesh__spec_hash(mesh__mix(h, (uint64_t)p->ndim << 32 | (uint64_t)p->dtype << 8 | (uint64_t)p->nsteps), &from);
    h = mesh__mix(h, (uint64_t)p->elem_bytes);
    for (k = 0; k < p->ndim; k++) h = mesh__mix(h, (uint64_t)p->shape[k]);
    for (k = 0; k < p->view.ndim && p->view.ndim > p->ndim; k++)
        h = mesh__mix(h, (uint64_t)p->view.dim[k] << 56 ^ (uint64_t)p->view.shape[k]);
    for (k = 0; k < p->nsteps; k++) {
        const mesh_step *s = &p->step[k];
        h = mesh__mix(h, (uint64_t)s->kind << 8 | s->on);
        h = mesh__mix(h, (uint64_t)(uint32_t)s->rounds << 32 | (uint64_t)s->slab_dim << 28 |
                             (uint64_t)(uint32_t)s->divide);
        h = mesh__spec_hash(h, &s->spec);
    }
    for (k = 0; k < p->topology.nlevels; k++)
        h = mesh__mix(
            mesh__mix(h, (uint64_t)p->topology.level[k].ranks),
            mesh__mix((uint64_t)p->topology.level[k].latency_ps, (uint64_t)p->topology.level[k].ps_per_byte_16));
    return h;
}

/* Two meshes of the same ranks whose axes can be split into the same ones: both are, and a layout on either can be compared with one on the other. */
MESH__PRIVATE int mesh__split_alike(mesh_plan *p) {
    const mesh *src = &p->at[0], *dst = &p->at[1];
    mesh_digits a, b;
    int i;
    if (mesh_equal(src, dst) || src->size != dst->size || src->origin != dst->origin || !mesh__same_table(src, dst) ||
        mesh__split_factors(&p->at[2], src, 1, dst) < 0 || mesh__split_factors(&p->at[3], dst, 1, src) < 0)
        return 0;
    a.n = b.n = 0;
    for (i = 0; i < p->at[2].nmodes; i++) mesh__digit_add(&a, p->at[2].mode[i].shape, p->at[2].mode[i].stride);
    for (i = 0; i < p->at[3].nmodes; i++) mesh__digit_add(&b, p->at[3].mode[i].shape, p->at[3].mode[i].stride);
    mesh__digits_order(&a);
    mesh__digits_order(&b);
    for (i = 0; i < a.n && a.n == b.n; i++)
        if (a.digit[i].shape != b.digit[i].shape || a.digit[i].stride != b.digit[i].stride) return 0;
    p->at[2] = p->at[3];
    return a.n == b.n && mesh__is_even(&p->view, src, &p->view.from, &p->at[2]) &&
           mesh__is_even(&p->view, dst, &p->view.to, &p->at[3]);
}

/* All that one view of the tensor offers. */
MESH__PRIVATE void mesh__search_view(mesh__search *q) {
    mesh_plan *p = &q->path;
    int i, k, split, alike = mesh__split_alike(p);
    split = alike || (mesh__split_primes(&p->at[2], &p->at[0], &q->limited) &&
                      mesh__is_even(&p->view, &p->at[0], &p->view.from, &p->at[2]));
    if (!split) mesh__start(&p->at[2], NULL);
    q->same[2][2] = split;
    split = alike || (mesh__split_primes(&p->at[3], &p->at[1], &q->limited) &&
                      mesh__is_even(&p->view, &p->at[1], &p->view.to, &p->at[3]));
    if (!split) mesh__start(&p->at[3], NULL);
    q->same[3][3] = split;
    for (i = 0; i < 4; i++)
        for (k = 0; k < 4; k++)
            if (i != k || i < 2) q->same[i][k] = mesh_equal(&p->at[i], &p->at[k]);
    q->tries = 0;
    mesh__search_all(q);
}

/* The bytes that were estimated, counted. */
MESH__PRIVATE void mesh__count_bytes(mesh_plan *p) {
    int k;
    for (p->bytes = k = 0; k < p->nsteps; k++) {
        mesh_moves route;
        mesh__moves_layouts(&route, p, k);
        if (mesh__must_count(p, &route, MESH__BYTES_RANKS)) {
            int rounds = p->step[k].rounds;
            if (rounds > 16)
                p->step[k].rounds =
                    1; /* slab by slab it would take as much longer, for the same bytes but for rounding */
            p->step[k].bytes = mesh__step_measure(p, k);
            p->step[k].rounds = rounds;
        }
        p->bytes = mesh__add64(p->bytes, p->step[k].bytes);
    }
}

MESH__PRIVATE int mesh__plans_find(mesh_plan *plans, int cap, const mesh_plan_desc *d, const char *function,
                                   mesh_error *err) {
    mesh__search q;
    mesh_plan *p = &q.path;
    const mesh_layout *src = d ? d->src : NULL, *dst = d ? d->dst : NULL;
    int64_t elem_bytes = !d ? 0 : d->elem_bytes ? d->elem_bytes : (int64_t)mesh_dtype_bytes(d->dtype);
    int i;
    if (!d || !src || !dst || cap < 1 || !plans)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %s is missing", function,
                          !d     ? "the description"
                          : !src ? "desc.src"
                          : !dst ? "desc.dst"
                                 : "room for a plan"),
               -1;
    if (mesh__plan_check(d, elem_bytes, function, err) != MESH_OK) return -1;
    q.d = d;
    q.best = plans;
    q.cap = cap;
    q.found = 0;
    q.least = -1;
    p->at[0] = *src->on;
    p->at[1] = *dst->on;
    p->from = src->spec;
    p->to = dst->spec;
    p->ndim = src->ndim;
    p->nsteps = 0;
    p->op = MESH_SUM;
    for (i = 0; i < p->from.naxes; i++)
        if (p->from.axis[i].kind == MESH_PARTIAL) p->op = p->from.axis[i].op;
    for (i = 0; i < p->to.naxes; i++)
        if (p->to.axis[i].kind == MESH_PARTIAL) p->op = p->to.axis[i].op;
    p->dtype = d->dtype;
    p->elem_bytes = elem_bytes;
    for (i = 0; i < MESH_MAX_DIMS; i++) p->shape[i] = i < p->ndim ? src->shape[i] : 0;
    p->topology = d->topology && d->topology->nlevels ? *d->topology : mesh__flat();
    p->bytes = p->ps = 0;
    p->limited = 0;
    q.limited = 0;
    q.work = 0;
    q.bytes_only = p->topology.nlevels == 1 && p->topology.level[0].latency_ps == 0;
    q.bound = q.bytes_only ? mesh_plan_lower_bound(p) : 0;
    p->view = mesh__whole_view(p);
    mesh__search_view(&q);
    if (p->topology.nlevels > 1 && mesh__split_dims(p)) mesh__search_view(&q);
    if (q.found == 0)
        return mesh__fail(err, MESH_ERR_MEMORY, -1,
                          "%s: no plan needs as little scratch as scratch_cap = %l bytes; the least possible is %l",
                          function, d->scratch_cap, q.least),
               -1;
    for (i = 0; i < q.found; i++) {
        mesh__count_bytes(&plans[i]);
        plans[i].limited = q.limited;
        plans[i].hash = mesh__plan_hash(&plans[i]);
    }
    return q.found;
}

MESH_API int mesh_plan_candidates(mesh_plan *plans, int cap, const mesh_plan_desc *d, mesh_error *err) {
    return mesh__plans_find(plans, cap, d, "mesh_plan_candidates", err);
}

MESH_API mesh_status mesh_plan_make(mesh_plan *p, const mesh_plan_desc *d, mesh_error *err) {
    mesh_error why;
    if (mesh__plans_find(p, 1, d, "mesh_plan_make", &why) > 0) return MESH_OK;
    if (err) *err = why;
    return (mesh_status)why.status;
}
#endif /* MESH_PLAN_IMPLEMENTED */
