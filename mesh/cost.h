/* mesh/cost.h - what a step of a plan moves, exactly and at a glance; what it costs on a topology. Part of mesh.h 0.1.0. MIT licence.

   Includes route.h. Integers only: every machine computes the same. Knows no search.
*/
#if !defined(MESH_COST_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_COST_IMPLEMENTED))
#include "route.h"
#endif

#ifndef MESH_COST_H
#define MESH_COST_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- bytes ---- */

/* What a rank sends and receives in a step (-1: all steps), exactly. O(peers). A rank in neither layout: zeros. */
typedef struct mesh_traffic {
    int64_t sent, received; /* bytes */
    int sends, recvs;       /* messages, all rounds together */
} mesh_traffic;
MESH_API mesh_traffic mesh_plan_traffic(const mesh_plan *p, int step, int rank);
/* Sum over the steps of the worst rank's max(sent, received), exactly. O(ranks * peers): for explanations and tests. */
MESH_API int64_t mesh_plan_measure(const mesh_plan *p);
/* No way of doing it has the worst rank receive fewer bytes. The larger of: what a rank itself lacks of its new box; and what has to move
   in all, shared evenly: to make one value of G summands takes G - 1 transfers if a receiver holds one of them, else G; each further
   receiver that does not hold the value takes one more. Exact where nothing is partial, on even sizes. O(ranks). */
MESH_API int64_t mesh_plan_lower_bound(const mesh_plan *p);

#ifdef __cplusplus
}
#endif
#endif /* MESH_COST_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_COST_IMPLEMENTED)
#define MESH_COST_IMPLEMENTED

/* ---- // >>bytes ---- */

MESH_API mesh_traffic mesh_plan_traffic(const mesh_plan *p, int step, int rank) {
    mesh_traffic t;
    mesh_moves it;
    int k, first = step < 0 ? 0 : step, last = step < 0 ? p->nsteps - 1 : step;
    t.sent = t.received = 0;
    t.sends = t.recvs = 0;
    if (step >= p->nsteps) return t;
    for (k = first; k <= last; k++)
        for (mesh_moves_start(&it, p, k, rank, -1); mesh_moves_next(&it);) {
            int64_t nbytes = mesh_box_count(&it.box) * p->elem_bytes;
            if (it.kind == MESH_MOVE_SEND) t.sent = mesh__add64(t.sent, nbytes), t.sends++;
            if (it.kind == MESH_MOVE_RECV) t.received = mesh__add64(t.received, nbytes), t.recvs++;
        }
    return t;
}

/* The worst rank's bytes in a step, exactly. Where every piece has one source, boxes say it all. */
MESH__PRIVATE int64_t mesh__step_measure(const mesh_plan *p, int step) {
    int64_t worst = 0;
    int side, i, simple;
    mesh_moves route;
    mesh__moves_layouts(&route, p, step);
    simple = route.replicas == 1 && !route.placed.n && !route.to_zero.n && mesh_equal(route.src.on, route.dst.on);
    for (side = 0; side < 2; side++)
        for (i = 0; i < p->at[side].size; i++) {
            int rank = mesh_rank_at(&p->at[side], i);
            mesh_traffic t;
            if (side && mesh_index_of(&p->at[0], rank) >= 0) continue;
            if (simple) {
                mesh_box have, want, both;
                int64_t kept = 0;
                if (mesh_layout_box(&route.src, rank, &have) < 0) continue;
                mesh_layout_box(&route.dst, rank, &want);
                if (mesh_box_intersect(&both, &have, &want)) kept = mesh_box_count(&both);
                t.sent = (mesh__mul64(mesh_box_count(&have), route.receivers) - kept) * p->elem_bytes;
                t.received = (mesh__mul64(mesh_box_count(&want), route.summands) - kept) * p->elem_bytes;
            } else {
                t = mesh_plan_traffic(p, step, rank);
            }
            if (t.sent > worst) worst = t.sent;
            if (t.received > worst) worst = t.received;
        }
    return worst;
}

/* The least that the worst rank receives in a step, whoever sends it. */
MESH__PRIVATE int64_t mesh__step_least(const mesh_plan *p, const mesh_moves *route) {
    int64_t worst = 0;
    int i;
    if (route->placed.n || route->to_zero.n) return 0;
    for (i = 0; i < route->dst.on->size; i++) {
        int rank = mesh_rank_at(route->dst.on, i);
        mesh_box have, want, both;
        int64_t need;
        mesh_layout_box(&route->dst, rank, &want);
        need = mesh__mul64(mesh_box_count(&want), route->summands);
        if (mesh_layout_box(&route->src, rank, &have) >= 0 && mesh_box_intersect(&both, &have, &want))
            need -= mesh_box_count(&both);
        if (need > worst) worst = need;
    }
    return worst * p->elem_bytes;
}

MESH_API int64_t mesh_plan_measure(const mesh_plan *p) {
    int64_t total = 0;
    int k;
    for (k = 0; k < p->nsteps; k++) total += mesh__step_measure(p, k);
    return total;
}

/* Transfers of elements that no plan can do without, on all ranks together. matched: elements times ranks that hold and want them. */
MESH__PRIVATE int64_t mesh__transfers(const mesh_plan *p, const mesh_spec *from, const mesh_spec *to, int64_t elements,
                                      int64_t matched) {
    const mesh *src = &p->at[0], *dst = &p->at[1];
    int64_t groups = 1, copies = 1, apart = 1, own = 1, both = 1, found, missed;
    int i, made = 0;
    for (i = 0; i < dst->naxes; i++) {
        if (to->axis[i].kind == MESH_REPLICATE) copies *= dst->axis[i].size;
        made |= to->axis[i].kind == MESH_PARTIAL && dst->axis[i].size > 1;
    }
    if (!mesh_equal(src, dst)) { /* a receiver that holds a summand does so for as many elements as that at most */
        for (i = 0; i < src->naxes; i++) groups *= from->axis[i].kind == MESH_PARTIAL ? src->axis[i].size : 1;
        if (made) return 0;
        found = matched < elements ? matched : elements;
        if (groups == 1) return mesh__mul64(elements, copies) - matched;
        return mesh__add64(mesh__mul64(elements, groups + copies - 2), elements - found);
    }
    for (i = 0; i < src->naxes; i++) {
        int size = src->axis[i].size, a = from->axis[i].kind, b = to->axis[i].kind;
        if (a == MESH_PARTIAL && b == MESH_PARTIAL) apart *= size;
        if (a == MESH_PARTIAL && b != MESH_PARTIAL) groups *= size;
        if (a == MESH_SHARD && b == MESH_REPLICATE) own *= size; /* of the copies, one is there */
        if (a != MESH_SHARD && b != MESH_SHARD) both *= size;
    }
    found = matched / both; /* elements that some receiver holds */
    missed = elements - found;
    if (groups == 1) /* apart: values are as good as whole */
        return mesh__add64(mesh__mul64(found, copies - copies / own), mesh__mul64(missed, copies));
    return mesh__add64(mesh__mul64(found, (groups - 1) * apart + copies - 1),
                       mesh__mul64(missed, groups * apart + copies - 1));
}

/* The tensor before (0) and after (1) the plan. */
MESH__PRIVATE mesh_layout mesh__plan_end(const mesh_plan *p, int side) {
    mesh_layout l;
    int d;
    l.on = &p->at[side];
    l.spec = mesh__spec_plain(side ? &p->to : &p->from);
    l.ndim = p->ndim;
    for (d = 0; d < MESH_MAX_DIMS; d++) l.shape[d] = p->shape[d];
    return l;
}

MESH_API int64_t mesh_plan_lower_bound(const mesh_plan *p) {
    const mesh *src = &p->at[0], *dst = &p->at[1];
    mesh_layout before = mesh__plan_end(p, 0), after = mesh__plan_end(p, 1);
    const mesh_spec *from = &before.spec, *to = &after.spec;
    mesh_box whole = mesh__box_whole(p->ndim, p->shape);
    int64_t most = 0, matched = 0, elements = mesh_box_count(&whole), shared;
    int i, partial = 0, made = 0, ranks = src->size;
    for (i = 0; i < src->naxes; i++)
        partial |= from->axis[i].kind == MESH_PARTIAL && src->axis[i].size > 1 &&
                   !(mesh_equal(src, dst) && to->axis[i].kind == MESH_PARTIAL);
    for (i = 0; i < dst->naxes; i++) made |= to->axis[i].kind == MESH_PARTIAL && dst->axis[i].size > 1;
    for (i = 0; i < dst->size; i++) {
        int rank = mesh_rank_at(dst, i);
        mesh_box have, want, both;
        int64_t held = 0, need;
        mesh_layout_box(&after, rank, &want);
        if (mesh_layout_box(&before, rank, &have) < 0)
            ranks++;
        else if (mesh_box_intersect(&both, &have, &want))
            held = mesh_box_count(&both);
        matched = mesh__add64(matched, held);
        need = made ? 0 : mesh_box_count(&want) - (partial ? 0 : held);
        if (need > most) most = need;
    }
    shared =
        elements > INT64_MAX / 4 / ranks / (dst->size + src->size) /* beyond what can be counted: nothing is said */
            ? 0
            : mesh__ceil(mesh__transfers(p, from, to, elements, matched), ranks);
    return (shared > most ? shared : most) * p->elem_bytes;
}

/* ---- // >>costs ------------------------------------------------------------------------------------------------------ */

/* a * b / c for b <= c < 2^31 without overflow. */
MESH__PRIVATE int64_t mesh__fraction(int64_t a, int64_t b, int64_t c) { return a / c * b + a % c * b / c; }

typedef struct mesh__cost {
    int64_t bytes, ps, staged;      /* staged: of the box that is made */
    int messages, summands, inside; /* inside: the box that is made lies in the destination's */
} mesh__cost;

/* Of the ranks that lie along some digits, how many share a unit of so many ranks with one of them. */
MESH__PRIVATE int64_t mesh__within(const mesh_digits *d, int unit) {
    int64_t n = 1;
    int i;
    for (i = 0; i < d->n; i++) {
        int fit = d->digit[i].stride >= unit ? 1 : unit / d->digit[i].stride;
        n *= d->digit[i].shape < fit ? d->digit[i].shape : fit;
    }
    return n;
}

/* Time of so many messages and bytes between a rank and `all` others, of which near[l] are in its unit of level l: each level has its
   share. self: the rank is one of them. */
MESH__PRIVATE int64_t mesh__time(const mesh_topology *t, const int64_t *near, int64_t all, int self, int64_t messages,
                                 int64_t bytes) {
    int64_t below = self, ps = 0;
    int l;
    for (l = 0; l < t->nlevels; l++) {
        int64_t within = l == t->nlevels - 1 ? all : near[l], share = within - below;
        const mesh_level *level = &t->level[l];
        if (share > 0) {
            int64_t part = mesh__fraction(bytes, share, all - self),
                    count = mesh__ceil(mesh__mul64(messages, share), all - self);
            ps = mesh__add64(ps, mesh__mul64(count, level->latency_ps));
            ps = mesh__add64(ps, mesh__mul64(part >> 16, level->ps_per_byte_16));
            ps = mesh__add64(ps, mesh__mul64(part & 0xffff, level->ps_per_byte_16) >> 16);
        }
        if (within > below) below = within;
    }
    return ps;
}

/* What so many bytes cost that are read or written in memory beside: four times as fast as the nearest level. Nothing where that has no
   latency: such a topology asks for the fewest bytes between ranks. */
MESH__PRIVATE int64_t mesh__local_time(const mesh_topology *t, int64_t bytes) {
    return t->level[0].latency_ps ? mesh__mul64(bytes >> 18, t->level[0].ps_per_byte_16) : 0;
}

/* What crosses between two meshes, as a few ranks of one side see the other: its ranks lie along `all`, from its origin on, and each deals
   with `count` of them, the nearest. The worst of them. */
MESH__PRIVATE int64_t mesh__time_between(const mesh_topology *t, const mesh *here, const mesh *there, mesh_digits *all,
                                         int64_t count, int64_t messages, int64_t bytes) {
    int64_t worst = 0, most = mesh__digits_size(all);
    int i, k, l;
    mesh__digits_order(all);
    if (count < 1) count = 1;
    for (k = 0; k < 3; k++) { /* the first, the middle and the last */
        int rank = mesh_rank_at(here, (int)((int64_t)k * (here->size - 1) / 2));
        int64_t near[MESH_MAX_LEVELS], ps;
        for (l = 0; l < t->nlevels - 1; l++) {
            int64_t unit = rank / t->level[l].ranks * (int64_t)t->level[l].ranks - there->origin, n = 0;
            if (!there->table) {
                n = mesh__digits_below(all, unit + t->level[l].ranks) - mesh__digits_below(all, unit);
            } else { /* up to 16 of them, evenly spread */
                for (i = 0; i < 16 && i < most; i++) {
                    int at = (int)(i * most / (most < 16 ? most : 16));
                    n += mesh__level_of(
                             t, rank, mesh__rank_of_position(there, there->origin + mesh__digits_offset(all, at))) <= l;
                }
                if (most > 16) n = n * most / 16;
            }
            near[l] = n < count ? n : count;
        }
        ps = mesh__time(t, near, count, 0, messages, bytes);
        if (ps > worst) worst = ps;
    }
    return worst;
}

/* The last of k parts of n, again and again the smallest there is. */
MESH__PRIVATE int64_t mesh__least_part(int rule, int64_t k, int64_t n) {
    int64_t low = 0, high = n;
    mesh__part_cut(rule, k, k - 1, &low, &high);
    return high - low;
}

/* Boxes of a step's two layouts, dim by dim: where the axes that shard a dim begin alike on both sides, those beyond say whether a rank keeps
   its part, cuts it, gathers more around it, or has to look elsewhere. */
typedef struct mesh__shape_of_step {
    int64_t want, have; /* elements of the largest boxes; want: of what comes, where parts stay in place */
    int64_t made;       /* of the largest new box */
    /* The fewest of its new box that a rank whose box is the largest has, seen from either side. */
    int64_t have_kept, want_kept;
    int64_t pieces, parts; /* shards that a new box takes from; new boxes that a shard serves */
} mesh__shape_of_step;

/* The axes that really cut a dim, outermost first. */
MESH__PRIVATE int mesh__sharding_axes(const mesh *m, const mesh_spec *s, int dim, uint8_t *list) {
    int i, k, n = mesh__dim_axes(s, dim, list);
    for (i = k = 0; i < n; i++)
        if (m->axis[list[i]].size > 1) list[k++] = list[i];
    return k;
}

/* How far the last whole part of a dim of n, cut along the same axes by two rules, lies from itself. */
MESH__PRIVATE int64_t mesh__cut_drift(const mesh_moves *route, const uint8_t *axes, int naxes, int64_t n) {
    int64_t size = 1, low[2], high[2], last;
    int i;
    if (route->src.spec.rule == route->dst.spec.rule) return 0;
    for (i = 0; i < naxes && n % (size = route->src.on->axis[axes[i]].size) == 0; i++) n /= size;
    if (i == naxes) return 0;
    last = n / mesh__ceil(n, size) - 1;
    for (i = 0; i < 2; i++) {
        low[i] = 0, high[i] = n;
        mesh__part_cut(i ? route->dst.spec.rule : route->src.spec.rule, size, last, &low[i], &high[i]);
    }
    return low[0] > low[1] ? low[0] - low[1] : low[1] - low[0];
}

MESH__PRIVATE mesh__shape_of_step mesh__step_shape(const mesh_plan *p, const mesh_moves *route, int same) {
    mesh__shape_of_step r;
    int d, i, k, elsewhere = !same;
    r.want = r.have = r.made = r.have_kept = r.want_kept = r.pieces = r.parts = 1;
    for (d = 0; d < p->view.ndim; d++) {
        uint8_t from[MESH_MAX_AXES], to[MESH_MAX_AXES];
        int nfrom = mesh__sharding_axes(route->src.on, &route->src.spec, d, from),
            nto = mesh__sharding_axes(route->dst.on, &route->dst.spec, d, to), kept;
        int64_t want = p->view.shape[d], want_low = want, have = want, have_low = want, placed = 1, a = 1, b = 1, drift;
        for (i = 0; i < nto; i++) {
            want = mesh__ceil(want, route->dst.on->axis[to[i]].size);
            want_low = mesh__least_part(route->dst.spec.rule, route->dst.on->axis[to[i]].size, want_low);
        }
        for (i = kept = 0; i < nfrom; i++) {
            int size = route->src.on->axis[from[i]].size;
            have = mesh__ceil(have, size);
            have_low = mesh__least_part(route->src.spec.rule, size, have_low);
            if (same && route->placed.n && route->dst.spec.axis[from[i]].kind == MESH_PARTIAL)
                placed *= size; /* what comes is from this rank's own coordinate */
            else
                from[kept++] = from[i];
        }
        r.made = mesh__mul64(r.made, want);
        if (placed > 1 && want > have) want = have;
        elsewhere |= placed > 1 && kept > 0; /* other parts of the dim, cut otherwise */
        for (k = 0; same && k < kept && k < nto && from[k] == to[k]; k++) {}
        drift = mesh__cut_drift(route, from, k, p->view.shape[d]);
        for (i = k; i < kept; i++) a *= route->src.on->axis[from[i]].size;
        for (i = k; i < nto; i++) b *= route->dst.on->axis[to[i]].size;
        elsewhere |= a > 1 && b > 1;
        r.want = mesh__mul64(r.want, want);
        r.have = mesh__mul64(r.have, have);
        have_low = (a > 1 ? have_low : want) - drift;
        want_low = (b > 1 ? want_low : have) - drift;
        r.want_kept = mesh__mul64(r.want_kept, have_low > 0 ? have_low : 0);
        r.have_kept = mesh__mul64(r.have_kept, want_low > 0 ? want_low : 0);
        if (drift) r.pieces = mesh__mul64(r.pieces, 2), r.parts = mesh__mul64(r.parts, 2);
        if (a > b) r.pieces = mesh__mul64(r.pieces, mesh__ceil(a, b));
        if (b > a) r.parts = mesh__mul64(r.parts, mesh__ceil(b, a));
    }
    if (elsewhere) r.want_kept = r.have_kept = 0;
    return r;
}

/* Between meshes whose axes cannot be compared: the fewest elements of its new box that a rank has already, over up to 16 ranks of one side. */
MESH__PRIVATE int64_t mesh__kept_between(const mesh_moves *route, const mesh *side) {
    int64_t least = INT64_MAX;
    int k, most = side->size < 16 ? side->size : 16;
    for (k = 0; k < most; k++) {
        int rank = mesh_rank_at(side, (int)((int64_t)k * (side->size - 1) / (most > 1 ? most - 1 : 1)));
        mesh_box have, want, both;
        int64_t kept = 0;
        if (mesh_layout_box(&route->src, rank, &have) >= 0 && mesh_layout_box(&route->dst, rank, &want) >= 0 &&
            mesh_box_intersect(&both, &have, &want))
            kept = mesh_box_count(&both);
        if (kept < least) least = kept;
        if (!least) break;
    }
    return least;
}

/* Within one mesh peers have this rank's coordinate along axes that stay as they are, and where the source is replicated: the digits along which they
   differ. */
MESH__PRIVATE mesh_digits mesh__moved_digits(const mesh_moves *route) {
    mesh_digits along;
    int i, k;
    along.n = 0;
    for (i = 0; i < route->src.on->naxes; i++) {
        const mesh_place *a = &route->src.spec.axis[i], *b = &route->dst.spec.axis[i];
        int moved = a->kind != b->kind || (a->kind == MESH_SHARD && (a->dim != b->dim || a->order != b->order ||
                                                                     route->src.spec.rule != route->dst.spec.rule));
        if (a->kind == MESH_REPLICATE || (b->kind == MESH_PARTIAL && route->placed.n)) moved = 0;
        for (k = route->src.on->axis[i].first; moved && k < route->src.on->axis[i].first + route->src.on->axis[i].modes;
             k++)
            mesh__digit_add(&along, route->src.on->mode[k].shape, route->src.on->mode[k].stride);
    }
    return along;
}

/* What one step costs its worst rank, from sizes rounded up, or counted. same: both layouts can be compared axis by axis. */
MESH__PRIVATE mesh__cost mesh__cost_of(const mesh_plan *p, const mesh_moves *route, int same, int counted) {
    const mesh_topology *t = &p->topology;
    mesh__shape_of_step x = mesh__step_shape(p, route, same);
    int64_t received, sent, come, go, cut = mesh__ceil(mesh__cut_bytes(t), p->elem_bytes);
    mesh_digits along;
    mesh__cost c;
    int i, k;
    c.summands = route->summands;
    c.inside = 0;
    c.staged = mesh__mul64(x.made, p->elem_bytes);
    if (!same) {
        x.want_kept = mesh__kept_between(route, route->dst.on);
        x.have_kept = x.want_kept ? mesh__kept_between(route, route->src.on) : 0;
    }
    received = mesh__mul64(x.want, c.summands) - x.want_kept;
    sent = mesh__ceil(mesh__mul64(x.have, route->receivers), route->replicas) - x.have_kept;
    come = mesh__mul64(x.pieces, c.summands) - (x.want_kept > 0);
    go = mesh__ceil(mesh__mul64(x.parts, route->receivers), route->replicas) - (x.have_kept > 0);
    if (route->replicas > 1 && x.want / x.pieces >= cut && x.want_kept < x.want) come *= route->replicas;
    if (sent < 0 || (same && received == 0)) sent = 0; /* who has all of its new box is sent nothing */
    received = mesh__mul64(received, p->elem_bytes);
    sent = mesh__mul64(sent, p->elem_bytes);
    c.bytes = received > sent ? received : sent;
    if (counted >= 0) received = sent = c.bytes = mesh__step_measure(p, counted);
    if (come < 0) come = 0;
    if (go < 0) go = 0;
    if (come > INT32_MAX) come = INT32_MAX;
    if (go > INT32_MAX) go = INT32_MAX;
    c.messages = c.bytes ? (int)(come > go ? come : go) : 0;
    c.ps = 0;
    if (!c.bytes && c.summands == 1) return c;
    if (same && (along = mesh__moved_digits(route)).n) {
        int64_t near[MESH_MAX_LEVELS], all = mesh__digits_size(&along), few = mesh__mul64(x.pieces, c.summands);
        if (few > all || few <= (x.want_kept > 0)) few = all;
        for (i = 0; i < t->nlevels; i++) { /* few sources: as many as can be are far */
            near[i] = few - (all - mesh__within(&along, t->level[i].ranks));
            if (near[i] < (x.want_kept > 0)) near[i] = x.want_kept > 0;
        }
        c.ps = mesh__time(t, near, few, x.want_kept > 0, c.messages, c.bytes);
        return c;
    }
    along = mesh__digits_of(route->src.on, &route->src.spec, MESH_SHARD);
    for (i = 0; i < route->sum.n; i++) mesh__digit_add(&along, route->sum.digit[i].shape, route->sum.digit[i].stride);
    k = mesh__digits_size(&along);
    for (i = 0; i < route->spread.n; i++)
        mesh__digit_add(&along, route->spread.digit[i].shape, route->spread.digit[i].stride);
    c.ps = mesh__time_between(t, route->dst.on, route->src.on, &along, k, come, received);
    along = mesh__digits_of(route->dst.on, &route->dst.spec, MESH_SHARD);
    for (i = 0; i < route->to_spread.n; i++)
        mesh__digit_add(&along, route->to_spread.digit[i].shape, route->to_spread.digit[i].stride);
    k = mesh__digits_size(&along) / route->replicas;
    sent = mesh__time_between(t, route->src.on, route->dst.on, &along, k, go, sent);
    if (sent > c.ps) c.ps = sent;
    return c;
}
#endif /* MESH_COST_IMPLEMENTED */
