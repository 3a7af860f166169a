/* mesh/route.h - a plan as data, and who sends what to whom in each of its steps: digits, sources, moves. Part of mesh.h 0.1.0. MIT licence.

   Includes layout.h, topology.h. Knows no search and no cost: a path that anyone made is routed alike.

CONCEPTS
    step    the way from one layout to the next: every rank gets its box of the next layout from the ranks that hold the pieces
            (one message per peer, strided at both ends). A step that leaves Partial behind receives every summand and reduces.
            All-gather, reduce-scatter, all-to-all, slice are names for special steps, not other code.
    move    what a rank sends, receives or copies in a step: a box and a peer. Moves are iterated, never stored.
*/
#if !defined(MESH_ROUTE_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_ROUTE_IMPLEMENTED))
#include "layout.h"
#include "topology.h"
#endif

#ifndef MESH_ROUTE_H
#define MESH_ROUTE_H

#ifdef __cplusplus
extern "C" {
#endif

enum { MESH_MAX_STEPS = 32 };

/* ---- a plan: a path of layouts ---- */

typedef enum mesh_step_kind { MESH_STEP_MOVE = 0, MESH_STEP_REDUCE } mesh_step_kind;

typedef struct mesh_step {
    uint8_t kind; /* mesh_step_kind */
    uint8_t on;   /* the layout after it: which mesh of plan.at, ... */
    uint16_t slab_dim;
    int rounds;     /* it runs slab by slab along slab_dim of the boxes that are reduced into */
    int divide;     /* after the reduction, for avg; 0: no */
    int messages;   /* of a rank, estimated */
    mesh_spec spec; /* ... and how the tensor lies on it */
    int64_t bytes, ps;
} mesh_step;

/* How a plan sees the tensor: a dim may be taken as outer x inner, so that layouts between can shard either. Elements keep their order. */
typedef struct mesh_view {
    mesh_spec from, to; /* of source and destination */
    int ndim, zero;
    int64_t shape[MESH_MAX_DIMS];
    uint8_t dim[MESH_MAX_DIMS]; /* which of the tensor's dims each of these is (a part of) */
} mesh_view;

typedef struct mesh_plan {
    mesh at[4]; /* source, destination; the same with axes split into prime factors */
    mesh_spec from, to;
    int ndim, nsteps;
    int op; /* of the partial source; a mesh_op */
    mesh_dtype dtype;
    int64_t elem_bytes, shape[MESH_MAX_DIMS];
    mesh_topology topology;
    mesh_view view; /* what the steps' specs and the moves' boxes are of */
    mesh_step step[MESH_MAX_STEPS];
    int64_t bytes, ps;
    int64_t scratch;  /* bytes a rank needs beside source and destination, at most */
    uint32_t limited; /* what the search left out: MESH_LIMIT_... */
    uint64_t hash;    /* of all that ranks must agree on */
} mesh_plan;

/* ---- moves --------------------------------------------------------------------------------------------------------- */

typedef enum mesh_move_kind {
    MESH_MOVE_RECV = 0, /* box of the next layout's tensor from peer; reducing: summand number `summand` */
    MESH_MOVE_LOCAL,    /* the same from this rank's own tensor */
    MESH_MOVE_ZERO, /* box of the next layout's tensor becomes zero (R -> P(sum) off coordinate 0, S -> P(sum) beside the own part) */
    MESH_MOVE_SEND /* box of this layout's tensor to peer */
} mesh_move_kind;

/* Digits of positions: as the modes of a mesh, taken apart finer. */
typedef struct mesh_digits {
    int n;
    mesh_mode digit[MESH_MAX_MODES];
} mesh_digits;

typedef struct mesh_moves {
    /* the move */
    int kind, peer, summand;
    mesh_box box;
    /* what led to it */
    mesh_box to, from; /* this rank's boxes of the next layout and of this one (no elements: none) */
    int summands;      /* of each element; 1: nothing is reduced */
    int own_summand;   /* which one this rank holds; -1: none */
    const mesh_plan *plan;
    mesh_layout src, dst; /* as the plan sees the tensor */
    int rank, round, last_round, rounds, slab_dim, by_source;
    mesh_digits kept;               /* partial on both sides: summands that stay apart; part of fixed */
    mesh_digits placed;             /* sharded, then partial: each part stays where it is, zero elsewhere */
    mesh_digits fixed, spread, sum; /* of sources: as the receiver's; any will do; each one is needed */
    mesh_digits to_spread, to_zero; /* of receivers: all receive; 0 receives, others are zero */
    int made_partial;               /* digits that are partial at the destination only */
    int src_coord[MESH_MAX_AXES], own_kept, want_kept, want_placed,
        own_spread;          /* this rank as a source; own_spread -1: it is none */
    int replicas, receivers; /* the products of spread and of to_spread */
    int state, fixed_offset, placed_offset, receiver;
    int sum_at; /* the summand of the piece that is received next */
    struct {
        int state, replica, sharers, first, next; /* see mesh__choose_sources */
    } sources;                                    /* of that summand */
    int level, near_first; /* of the replicas that count: -1, all do; the first of them, -1: a table scatters them */
    int holds;             /* the receiver has the piece's shard */
    mesh_pieces pieces;
    mesh_box part; /* the piece within the round's slab */
} mesh_moves;

/* Every move of a rank in a step, in a round (-1: all rounds at once): receives and local copies first, summands ascending
   per piece; then sends. Between two ranks there is at most one move per step and round, seen alike from both ends. */
MESH_API void mesh_moves_start(mesh_moves *it, const mesh_plan *p, int step, int rank, int round);
MESH_API int mesh_moves_next(mesh_moves *it);
/* Slab `round` of `rounds` of a box along a dim. */
MESH_API mesh_box mesh_box_slab(const mesh_box *box, int dim, int round, int rounds);

#ifdef __cplusplus
}
#endif
#endif /* MESH_ROUTE_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_ROUTE_IMPLEMENTED)
#define MESH_ROUTE_IMPLEMENTED

enum { MESH__PIECE_CUT = 64 * 1024 }; /* bytes from which replicas share a piece */

/* ---- // >>digits ------------------------------------------------------------------------------------------------------ */

MESH__PRIVATE void mesh__digit_add(mesh_digits *d, int shape, int stride) {
    MESH_ASSERT(d->n < MESH_MAX_MODES);
    d->digit[d->n].shape = shape;
    d->digit[d->n++].stride = stride;
}

/* The modes of the axes whose place is of a kind, outermost first. */
MESH__PRIVATE mesh_digits mesh__digits_of(const mesh *m, const mesh_spec *s, int kind) {
    mesh_digits d;
    int i, k;
    d.n = 0;
    for (i = 0; i < m->naxes; i++)
        for (k = m->axis[i].first; k < m->axis[i].first + m->axis[i].modes && s->axis[i].kind == kind; k++)
            mesh__digit_add(&d, m->mode[k].shape, m->mode[k].stride);
    return d;
}

/* Sort a digit, cut where needed, into what lies in digits of b from number k on and the rest. */
MESH__PRIVATE void mesh__digit_sort(mesh_mode a, const mesh_digits *b, int k, mesh_digits *common, mesh_digits *rest) {
    int64_t end = (int64_t)a.stride * a.shape;
    for (; k < b->n; k++) {
        int64_t b_end = (int64_t)b->digit[k].stride * b->digit[k].shape;
        int64_t low = a.stride > b->digit[k].stride ? a.stride : b->digit[k].stride, high = end < b_end ? end : b_end;
        mesh_mode part;
        if (low >= high || low % a.stride || low % b->digit[k].stride || high % low || end % high || b_end % high)
            continue;
        part.shape = (int)(end / high);
        part.stride = (int)high;
        if (part.shape > 1) mesh__digit_sort(part, b, k + 1, common, rest);
        mesh__digit_add(common, (int)(high / low), (int)low);
        part.shape = (int)(low / a.stride);
        part.stride = a.stride;
        if (part.shape > 1) mesh__digit_sort(part, b, k + 1, common, rest);
        return;
    }
    mesh__digit_add(rest, a.shape, a.stride);
}
MESH__PRIVATE void mesh__digits_sort(const mesh_digits *a, const mesh_digits *b, mesh_digits *common,
                                     mesh_digits *rest) {
    int i;
    for (i = 0; i < a->n; i++) mesh__digit_sort(a->digit[i], b, 0, common, rest);
}

MESH__PRIVATE int mesh__digits_hold(const mesh_digits *d, mesh_mode digit) {
    int i;
    for (i = 0; i < d->n; i++)
        if (d->digit[i].shape == digit.shape && d->digit[i].stride == digit.stride) return 1;
    return 0;
}

/* Sort two sets of digits into those that both have and what is left of each. What only one side can cut out is not common. */
MESH__PRIVATE void mesh__digits_match(const mesh_digits *a, const mesh_digits *b, mesh_digits *common,
                                      mesh_digits *a_rest, mesh_digits *b_rest) {
    mesh_digits of_a, of_b, rest;
    int i;
    of_a.n = of_b.n = rest.n = common->n = 0;
    mesh__digits_sort(a, b, &of_a, &rest);
    rest.n = 0;
    mesh__digits_sort(b, a, &of_b, &rest);
    for (i = 0; i < of_a.n; i++)
        if (mesh__digits_hold(&of_b, of_a.digit[i])) mesh__digit_add(common, of_a.digit[i].shape, of_a.digit[i].stride);
    of_a.n = of_b.n = a_rest->n = b_rest->n = 0;
    mesh__digits_sort(a, common, &of_a, a_rest);
    mesh__digits_sort(b, common, &of_b, b_rest);
}

MESH__PRIVATE int mesh__digits_size(const mesh_digits *d) {
    int i, n = 1;
    for (i = 0; i < d->n; i++) n *= d->digit[i].shape;
    return n;
}
/* The position that an index into the digits (row-major) adds. */
MESH__PRIVATE int mesh__digits_offset(const mesh_digits *d, int index) {
    int i, offset = 0;
    for (i = d->n - 1; i >= 0 && index; i--) {
        offset += index % d->digit[i].shape * d->digit[i].stride;
        index /= d->digit[i].shape;
    }
    return offset;
}
/* The value of a rank's digits as such an index. coord: its mode coordinates in m, whose modes the digits are parts of. */
MESH__PRIVATE int mesh__digits_index(const mesh_digits *d, const mesh *m, const int *coord) {
    int i, k, index = 0;
    for (i = 0; i < d->n; i++) {
        int shape = d->digit[i].shape, stride = d->digit[i].stride;
        for (k = 0; k < m->nmodes; k++)
            if (stride % m->mode[k].stride == 0 && stride / m->mode[k].stride < m->mode[k].shape) break;
        MESH_ASSERT(k < m->nmodes);
        index = index * shape + coord[k] / (stride / m->mode[k].stride) % shape;
    }
    return index;
}

/* Largest stride first, so that a greater index lies further on. */
MESH__PRIVATE void mesh__digits_order(mesh_digits *d) {
    int i, k;
    for (i = 1; i < d->n; i++) {
        mesh_mode digit = d->digit[i];
        for (k = i; k > 0 && d->digit[k - 1].stride < digit.stride; k--) d->digit[k] = d->digit[k - 1];
        d->digit[k] = digit;
    }
}
/* How many of the offsets that ordered digits make lie below x. */
MESH__PRIVATE int64_t mesh__digits_below(const mesh_digits *d, int64_t x) {
    int64_t below = 0, inner = mesh__digits_size(d);
    int i;
    for (i = 0; i < d->n && x > 0; i++) {
        int64_t whole = (x - 1) / d->digit[i].stride;
        if (whole >= d->digit[i].shape) return below + inner;
        inner /= d->digit[i].shape;
        below += whole * inner;
        x -= whole * d->digit[i].stride;
    }
    return below + (x > 0);
}

/* ---- // >>moves ------------------------------------------------------------------------------------------------------- */

MESH_API mesh_box mesh_box_slab(const mesh_box *box, int dim, int round, int rounds) {
    mesh_box r = *box;
    int64_t low, high;
    if (rounds <= 1 || box->ndim == 0) return r;
    low = box->offset[dim];
    high = low + box->shape[dim];
    mesh__part_cut(MESH_RULE_CHUNK, rounds, round, &low, &high);
    r.offset[dim] = low;
    r.shape[dim] = high - low;
    return r;
}

/* What the plan sees as the tensor, on a mesh. */
MESH__PRIVATE mesh_layout mesh__view_layout(const mesh_plan *p, const mesh *on, const mesh_spec *spec) {
    mesh_layout l;
    int d;
    l.on = on;
    l.spec = *spec;
    l.ndim = p->view.ndim;
    for (d = 0; d < MESH_MAX_DIMS; d++) l.shape[d] = p->view.shape[d];
    return l;
}

/* Layout 0 is the source; layout k is reached by step k - 1. */
MESH__PRIVATE const mesh *mesh__layout_mesh(const mesh_plan *p, int layout) {
    return layout < 1 ? &p->at[0] : &p->at[p->step[layout - 1].on];
}
MESH__PRIVATE const mesh_spec *mesh__layout_spec(const mesh_plan *p, int layout) {
    return layout < 1 ? &p->view.from : &p->step[layout - 1].spec;
}

MESH__PRIVATE int mesh__keeps_zero(int op) { return op == MESH_SUM || op == MESH_XOR; }

/* Who gives to whom between two layouts, in digits. */
MESH__PRIVATE void mesh__moves_route(mesh_moves *it, int op) {
    mesh_digits src_r = mesh__digits_of(it->src.on, &it->src.spec, MESH_REPLICATE),
                src_p = mesh__digits_of(it->src.on, &it->src.spec, MESH_PARTIAL),
                dst_r = mesh__digits_of(it->dst.on, &it->dst.spec, MESH_REPLICATE),
                dst_p = mesh__digits_of(it->dst.on, &it->dst.spec, MESH_PARTIAL), same;
    int i;
    if (mesh__same_table(it->src.on, it->dst.on)) {
        mesh__digits_match(&src_r, &dst_r, &it->fixed, &it->spread, &it->to_spread);
    } else { /* equal positions are other ranks: whoever holds a piece keeps it, the others ask who is near */
        it->fixed.n = 0;
        it->spread = src_r;
        it->to_spread = dst_r;
    }
    mesh__digits_order(&it->spread);
    mesh__digits_match(&src_p, &dst_p, &it->kept, &it->sum, &same);
    for (i = 0; i < it->kept.n; i++) mesh__digit_add(&it->fixed, it->kept.digit[i].shape, it->kept.digit[i].stride);
    it->placed.n = it->to_zero.n = 0;
    it->made_partial = same.n;
    if (mesh__keeps_zero(op)) {
        mesh_digits src_s = mesh__digits_of(it->src.on, &it->src.spec, MESH_SHARD), rest;
        mesh__digits_match(&src_s, &same, &it->placed, &rest, &it->to_zero);
    } else {
        for (i = 0; i < same.n; i++) mesh__digit_add(&it->to_spread, same.digit[i].shape, same.digit[i].stride);
    }
    it->summands = mesh__digits_size(&it->sum);
    it->replicas = mesh__digits_size(&it->spread);
    it->receivers = mesh__digits_size(&it->to_spread);
}

/* The position that a rank's digits add. */
MESH__PRIVATE int mesh__offset_as(const mesh_digits *d, const mesh *m, const int *coord) {
    return mesh__digits_offset(d, mesh__digits_index(d, m, coord));
}

MESH__PRIVATE void mesh__moves_round(mesh_moves *it);

MESH__PRIVATE void mesh__moves_layouts(mesh_moves *it, const mesh_plan *p, int step) {
    it->plan = p;
    it->src = mesh__view_layout(p, mesh__layout_mesh(p, step), mesh__layout_spec(p, step));
    it->dst = mesh__view_layout(p, mesh__layout_mesh(p, step + 1), mesh__layout_spec(p, step + 1));
    mesh__moves_route(it, p->op);
}

MESH_API void mesh_moves_start(mesh_moves *it, const mesh_plan *p, int step, int rank, int round) {
    int coord[MESH_MAX_MODES], d;
    mesh__moves_layouts(it, p, step);
    it->rank = rank;
    it->rounds = p->step[step].rounds;
    it->slab_dim = p->step[step].slab_dim;
    it->by_source = p->step[step].kind == MESH_STEP_MOVE;
    it->round = round < 0 ? 0 : round;
    it->last_round = round < 0 ? it->rounds - 1 : round;
    it->from.ndim = it->to.ndim = p->view.ndim;
    it->from.zero = it->to.zero = 0;
    for (d = 0; d < MESH_MAX_DIMS; d++) it->from.shape[d] = it->from.offset[d] = it->to.shape[d] = it->to.offset[d] = 0;
    it->own_summand = it->own_spread = -1;
    it->holds = 0;
    if (mesh_layout_box(&it->src, rank, &it->from) >= 0) {
        mesh_coords_of(it->src.on, NULL, rank, it->src_coord);
        mesh__take_apart(it->src.on, rank, coord);
        it->own_summand = mesh__digits_index(&it->sum, it->src.on, coord);
        it->own_spread = mesh__digits_index(&it->spread, it->src.on, coord);
        it->own_kept = mesh__digits_index(&it->kept, it->src.on, coord);
    } else if (p->view.ndim == 0) {
        it->from.ndim = -1; /* a scalar that is not here */
    }
    if (mesh_layout_box(&it->dst, rank, &it->to) < 0 && p->view.ndim == 0) it->to.ndim = -1;
    mesh__moves_round(it);
}

/* A rank's moves of a round: what it receives, piece by piece and of each summand by summand, or zeros where nothing comes; then what it
   sends, piece by piece and of each receiver by receiver. */
enum {
    MESH__MOVES_ZERO,
    MESH__MOVES_ARRIVING,
    MESH__MOVES_SUMMAND,
    MESH__MOVES_SEND,
    MESH__MOVES_LEAVING,
    MESH__MOVES_RECEIVER,
    MESH__MOVES_END
};

/* Who gives a summand of a piece. */
enum {
    MESH__SOURCES_OPEN,   /* not chosen yet */
    MESH__SOURCES_ONE,    /* `replica` gives it whole */
    MESH__SOURCES_SHARED, /* `sharers` near ones a slab each, the first slab number `first`; `next` is asked next */
    MESH__SOURCES_DONE
};

/* The value of a shard's digits; coord: its axes' coordinates. */
MESH__PRIVATE int mesh__shard_digits(const mesh_digits *d, const mesh *m, const int *coord) {
    int modes[MESH_MAX_MODES], i, k, index;
    if (!d->n) return 0;
    for (i = 0; i < m->naxes; i++)
        for (index = coord[i], k = m->axis[i].first + m->axis[i].modes - 1; k >= m->axis[i].first; k--) {
            modes[k] = index % m->mode[k].shape;
            index /= m->mode[k].shape;
        }
    return mesh__digits_index(d, m, modes);
}

MESH__PRIVATE int mesh__box_some(const mesh_box *b) { return b->ndim >= 0 && mesh_box_count(b) > 0; }

/* Begin a round with what is received. */
MESH__PRIVATE void mesh__moves_round(mesh_moves *it) {
    it->state = MESH__MOVES_SEND;
    it->pieces.state = MESH_PIECES_OVER;
    if (mesh__box_some(&it->to)) {
        int coord[MESH_MAX_MODES];
        mesh_box box = it->by_source ? it->to : mesh_box_slab(&it->to, it->slab_dim, it->round, it->rounds);
        mesh__take_apart(it->dst.on, it->rank, coord);
        it->state = MESH__MOVES_ARRIVING;
        it->fixed_offset = mesh__offset_as(&it->fixed, it->dst.on, coord);
        it->receiver = mesh__digits_index(&it->to_spread, it->dst.on, coord);
        it->want_kept = mesh__digits_index(&it->kept, it->dst.on, coord);
        it->want_placed = mesh__digits_index(&it->placed, it->dst.on, coord);
        if (mesh__digits_index(&it->to_zero, it->dst.on, coord)) {
            it->part = box;
            it->state = it->round == 0 || !it->by_source
                            ? MESH__MOVES_ZERO
                            : MESH__MOVES_SEND; /* by source: all of it in the first round */
            return;
        }
        mesh_pieces_start(&it->pieces, &it->src, &box);
        it->kind = MESH_MOVE_RECV;
    }
}

/* Bounds of a piece's shard as a box. */
MESH__PRIVATE mesh_box mesh__shard_box(const mesh_pieces *p) {
    mesh_box box;
    int d;
    box.ndim = p->piece.ndim;
    box.zero = 0;
    for (d = 0; d < box.ndim; d++) {
        box.offset[d] = p->low[d];
        box.shape[d] = p->high[d] - p->low[d];
    }
    return box;
}

/* Where a shard lies, in positions, its other axes at 0. */
MESH__PRIVATE int mesh__shard_position(const mesh *m, const mesh_spec *s, const int *coord) {
    int i, position = m->origin;
    for (i = 0; i < m->naxes; i++)
        if (s->axis[i].kind == MESH_SHARD) position += mesh__axis_offset(m, i, coord[i]);
    return position;
}

MESH__PRIVATE int mesh__same_shard(const mesh_spec *s, const int *a, const int *b) {
    int i;
    for (i = 0; i < s->naxes; i++)
        if (s->axis[i].kind == MESH_SHARD && a[i] != b[i]) return 0;
    return 1;
}

/* The rank that has a summand and a replica of the shard at `position`. */
MESH__PRIVATE int mesh__source_rank(const mesh_moves *it, int position, int summand, int replica) {
    return mesh__rank_of_position(it->src.on, position + it->fixed_offset + mesh__digits_offset(&it->sum, summand) +
                                                  mesh__digits_offset(&it->spread, replica));
}

MESH__PRIVATE int mesh__level_of(const mesh_topology *t, int a, int b) {
    int l = 0;
    while (l < t->nlevels - 1 && a / t->level[l].ranks != b / t->level[l].ranks) l++;
    return l;
}

/* Which of a dim's shards in order, counted along the axes that cut it, holds x. */
MESH__PRIVATE int64_t mesh__shard_number(const mesh_spec *s, const mesh *m, int d, int64_t size, int64_t x) {
    uint8_t list[MESH_MAX_AXES];
    int n = mesh__dim_axes(s, d, list), k;
    int64_t low = 0, high = size, number = 0;
    for (k = 0; k < n; k++)
        number = number * m->axis[list[k]].size + mesh__part_find(s->rule, m->axis[list[k]].size, x, &low, &high);
    return number;
}

/* A number that differs from receiver to receiver of a source's shard, so that its replicas take turns: where the receiver is a source
   itself by its own place there, else by its place among all that need something of the shard (`to` lies in its box). */
MESH__PRIVATE int64_t mesh__receiver_number(const mesh_moves *it, const int *coord, int spread, const mesh_box *shard,
                                            const mesh_box *to) {
    int64_t number = 0;
    int d;
    if (coord) {
        for (d = 0; d < it->src.on->naxes; d++)
            if (it->src.spec.axis[d].kind == MESH_SHARD) number = number * it->src.on->axis[d].size + coord[d];
        return number + spread;
    }
    for (d = 0; d < shard->ndim; d++) {
        int64_t size = it->plan->view.shape[d],
                at = mesh__shard_number(&it->dst.spec, it->dst.on, d, size, to->offset[d]);
        int64_t first = mesh__shard_number(&it->dst.spec, it->dst.on, d, size, shard->offset[d]);
        int64_t last = mesh__shard_number(&it->dst.spec, it->dst.on, d, size, shard->offset[d] + shard->shape[d] - 1);
        number = (number * (last - first + 1) + (at - first)) % INT32_MAX;
    }
    return (number * it->receivers + it->receiver) % INT32_MAX;
}

/* Pieces from so many bytes on are worth a message from each replica. */
MESH__PRIVATE int64_t mesh__cut_bytes(const mesh_topology *t) {
    return t->level[t->nlevels - 1].latency_ps ? MESH__PIECE_CUT : 1;
}

/* The nearest replicas of a summand of the shard at `position`, as `rank` sees them: sets level and near_first. Returns how many. Offsets
   grow with a replica's number, so those in one unit of ranks follow one another, unless a table scatters them. */
MESH__PRIVATE int mesh__near(mesh_moves *it, int rank, int position, int summand) {
    const mesh_topology *t = &it->plan->topology;
    int64_t base = position + it->fixed_offset + mesh__digits_offset(&it->sum, summand);
    int l, g, near = 0, best = t->nlevels;
    it->level = it->near_first = -1;
    if (t->nlevels == 1) return it->replicas;
    for (l = 0; l < t->nlevels - 1 && !it->src.on->table; l++) {
        int64_t unit = rank / t->level[l].ranks * (int64_t)t->level[l].ranks - base;
        int64_t first = mesh__digits_below(&it->spread, unit);
        near = (int)(mesh__digits_below(&it->spread, unit + t->level[l].ranks) - first);
        it->near_first = (int)first;
        it->level = l;
        if (near) return near;
    }
    it->near_first = it->level = -1;
    if (!it->src.on->table) return it->replicas;
    for (g = 0; g < it->replicas; g++) {
        int level = mesh__level_of(t, rank, mesh__source_rank(it, position, summand, g));
        if (level > best) continue;
        near = level < best ? 1 : near + 1;
        best = level;
    }
    it->level = best;
    return near;
}
/* The replica that is number n among the near ones. */
MESH__PRIVATE int mesh__near_at(const mesh_moves *it, int rank, int position, int summand, int n) {
    int g;
    if (it->level < 0) return n;
    if (it->near_first >= 0) return it->near_first + n;
    for (g = 0;; g++)
        if (mesh__level_of(&it->plan->topology, rank, mesh__source_rank(it, position, summand, g)) == it->level &&
            n-- == 0)
            return g;
}
/* The number of a replica among the near ones, of which there are `near`; -1: it is none of them. */
MESH__PRIVATE int mesh__near_number(const mesh_moves *it, int rank, int position, int summand, int replica, int near) {
    const mesh_topology *t = &it->plan->topology;
    int g, n = replica - (it->near_first >= 0 ? it->near_first : 0);
    if (it->level < 0) return n;
    if (it->near_first >= 0) return n >= 0 && n < near ? n : -1;
    if (mesh__level_of(t, rank, mesh__source_rank(it, position, summand, replica)) != it->level) return -1;
    for (g = n = 0; g < replica; g++)
        n += mesh__level_of(t, rank, mesh__source_rank(it, position, summand, g)) == it->level;
    return n;
}

/* Among the replicas of the shard at a position: which serve a receiver, whose coordinates as a source are coord (NULL: it is none) and
   whose own replica is spread. One gives it whole, or the near ones share it. */
MESH__PRIVATE void mesh__choose_sources(mesh_moves *it, int rank, const int *coord, int spread, int position,
                                        int summand, const mesh_box *shard) {
    int near, n;
    it->sources.state = MESH__SOURCES_ONE;
    it->sources.replica = it->holds ? spread : 0;
    if (it->replicas == 1 || it->holds) return;
    near = mesh__near(it, rank, position, summand);
    n = (int)((mesh__receiver_number(it, coord, spread, shard, &it->part) + summand) % near);
    if (near > 1 && it->part.ndim > 0 &&
        mesh_box_count(&it->part) >= mesh__ceil(mesh__cut_bytes(&it->plan->topology), it->plan->elem_bytes)) {
        it->sources.state = MESH__SOURCES_SHARED;
        it->sources.sharers = near;
        it->sources.first = n;
        it->sources.next = 0;
        return;
    }
    it->sources.replica = mesh__near_at(it, rank, position, summand, n);
}

/* What number n of those that share the piece at hand gives. */
MESH__PRIVATE mesh_box mesh__share(const mesh_moves *it, int n) {
    int d, longest = 0;
    for (d = 1; d < it->part.ndim; d++)
        if (it->part.shape[d] > it->part.shape[longest]) longest = d;
    return mesh_box_slab(&it->part, longest, (n + it->sources.first) % it->sources.sharers, it->sources.sharers);
}

/* Nothing comes of the piece at hand: it becomes zero. */
MESH__PRIVATE int mesh__moves_zero(mesh_moves *it) {
    it->kind = MESH_MOVE_ZERO;
    it->peer = it->rank;
    it->summand = -1;
    it->box = it->part;
    return 1;
}

/* What is received of the piece at hand: summand after summand, from one or several sources each. */
MESH__PRIVATE int mesh__moves_receive(mesh_moves *it) {
    int position = mesh__shard_position(it->src.on, &it->src.spec, it->pieces.coord), n;
    mesh_box shard = mesh__shard_box(&it->pieces);
    for (; it->sum_at < it->summands; it->sum_at++, it->sources.state = MESH__SOURCES_OPEN) {
        it->summand = it->sum_at;
        it->box = it->part;
        if (it->holds && it->sum_at == it->own_summand) {
            if (it->sources.state == MESH__SOURCES_DONE) continue;
            it->sources.state = MESH__SOURCES_DONE;
            it->kind = MESH_MOVE_LOCAL;
            it->peer = it->rank;
            return 1;
        }
        it->kind = MESH_MOVE_RECV;
        if (it->sources.state == MESH__SOURCES_OPEN)
            mesh__choose_sources(it, it->rank, it->own_spread >= 0 ? it->src_coord : NULL, it->own_spread, position,
                                 it->sum_at, &shard);
        if (it->sources.state == MESH__SOURCES_ONE) {
            it->sources.state = MESH__SOURCES_DONE;
            it->peer = mesh__source_rank(it, position, it->sum_at, it->sources.replica);
            return 1;
        }
        while (it->sources.state == MESH__SOURCES_SHARED && it->sources.next < it->sources.sharers) {
            n = it->sources.next++;
            it->box = mesh__share(it, n);
            if (!mesh_box_count(&it->box)) continue;
            it->peer =
                mesh__source_rank(it, position, it->sum_at, mesh__near_at(it, it->rank, position, it->sum_at, n));
            return 1;
        }
    }
    return 0;
}

/* Does this rank serve receiver number it->receiver of the piece at hand? Then the move is set. */
MESH__PRIVATE int mesh__moves_serve(mesh_moves *it) {
    int coord[MESH_MAX_AXES], modes[MESH_MAX_MODES], spread = 0, position, n, is_source;
    int rank = mesh__rank_of_position(it->dst.on, mesh__shard_position(it->dst.on, &it->dst.spec, it->pieces.coord) +
                                                      it->fixed_offset + it->placed_offset +
                                                      mesh__digits_offset(&it->to_spread, it->receiver));
    it->holds = 0;
    is_source = mesh_coords_of(it->src.on, NULL, rank, coord) >= 0;
    if (is_source) {
        mesh__take_apart(it->src.on, rank, modes);
        spread = mesh__digits_index(&it->spread, it->src.on, modes);
        it->holds = mesh__same_shard(&it->src.spec, coord, it->src_coord) &&
                    mesh__digits_index(&it->kept, it->src.on, modes) == it->own_kept;
        if (it->holds && mesh__digits_index(&it->sum, it->src.on, modes) == it->own_summand)
            return 0; /* it has its own */
    }
    position = mesh__shard_position(it->src.on, &it->src.spec, it->src_coord);
    mesh__choose_sources(it, rank, is_source ? coord : NULL, spread, position, it->own_summand, &it->from);
    it->kind = MESH_MOVE_SEND;
    it->peer = rank;
    it->summand = it->own_summand;
    it->box = it->part;
    if (it->sources.state == MESH__SOURCES_ONE) return it->sources.replica == it->own_spread;
    n = mesh__near_number(it, rank, position, it->own_summand, it->own_spread, it->sources.sharers);
    if (n < 0) return 0;
    it->box = mesh__share(it, n);
    return mesh_box_count(&it->box) > 0;
}

/* The next piece, cut to the round. */
MESH__PRIVATE int mesh__moves_piece(mesh_moves *it, int sending) {
    while (mesh_pieces_next(&it->pieces)) {
        it->part = it->pieces.piece;
        if (it->rounds > 1 && sending == !it->by_source) { /* the slab is of the other side's box */
            mesh_box whole = mesh__shard_box(&it->pieces),
                     slab = mesh_box_slab(&whole, it->slab_dim, it->round, it->rounds);
            if (!mesh_box_intersect(&it->part, &it->pieces.piece, &slab)) continue;
        }
        return 1;
    }
    return 0;
}

/* From here on what is sent. */
MESH__PRIVATE void mesh__moves_send(mesh_moves *it) {
    int coord[MESH_MAX_MODES];
    mesh_box box = it->by_source ? mesh_box_slab(&it->from, it->slab_dim, it->round, it->rounds) : it->from;
    it->state = MESH__MOVES_LEAVING;
    mesh__take_apart(it->src.on, it->rank, coord);
    it->fixed_offset = mesh__offset_as(&it->fixed, it->src.on, coord);
    it->placed_offset = mesh__offset_as(&it->placed, it->src.on, coord);
    mesh_pieces_start(&it->pieces, &it->dst, &box);
}

MESH_API int mesh_moves_next(mesh_moves *it) {
    for (;;) switch (it->state) {
        case MESH__MOVES_ZERO: /* all of the rank's box */
            it->state = MESH__MOVES_SEND;
            if (mesh__box_some(&it->part)) return mesh__moves_zero(it);
            break;
        case MESH__MOVES_ARRIVING:
            if (!mesh__moves_piece(it, 0)) {
                it->state = MESH__MOVES_SEND;
                break;
            }
            if (mesh__shard_digits(&it->placed, it->src.on, it->pieces.coord) != it->want_placed)
                return mesh__moves_zero(it);
            it->sum_at = 0;
            it->sources.state = MESH__SOURCES_OPEN;
            it->holds = it->own_spread >= 0 && it->own_kept == it->want_kept &&
                        mesh__same_shard(&it->src.spec, it->src_coord, it->pieces.coord);
            it->state = MESH__MOVES_SUMMAND;
            break;
        case MESH__MOVES_SUMMAND:
            if (mesh__moves_receive(it)) return 1;
            it->state = MESH__MOVES_ARRIVING;
            break;
        case MESH__MOVES_SEND:
            if (it->own_spread >= 0 && mesh__box_some(&it->from))
                mesh__moves_send(it);
            else
                it->state = MESH__MOVES_END;
            break;
        case MESH__MOVES_LEAVING:
            it->receiver = -1;
            it->state = mesh__moves_piece(it, 1) ? MESH__MOVES_RECEIVER : MESH__MOVES_END;
            break;
        case MESH__MOVES_RECEIVER:
            if (++it->receiver >= it->receivers)
                it->state = MESH__MOVES_LEAVING;
            else if (mesh__moves_serve(it))
                return 1;
            break;
        default:
            if (it->round >= it->last_round) return 0;
            it->round++;
            mesh__moves_round(it);
            break;
        }
}
#endif /* MESH_ROUTE_IMPLEMENTED */
