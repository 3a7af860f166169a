/* mesh_plan.h - plans that move a tensor from one layout to another. Part of mesh.h 0.1.0. MIT licence. */
#ifndef MESH_H
#include "mesh.h" /* the front door: it includes this header */
#elif !defined(MESH_PLAN_H)
#define MESH_PLAN_H
/*
DO THIS
    Nothing: mesh.h includes it. To run a plan, mesh_redistribute (mesh_collectives.h).

EXAMPLE
    mesh_plan_desc d = MESH_ZERO;
    mesh_plan plan;
    d.src = &m, d.from = &rows, d.to = &columns, d.ndim = 2, d.shape[0] = d.shape[1] = 8192, d.dtype = MESH_BF16;
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

#ifdef __cplusplus
extern "C" {
#endif

enum { MESH_MAX_STEPS = 32, MESH_MAX_LEVELS = 8 };

/* ---- topology ------------------------------------------------------------------------------------------------------ */

/* Innermost level first: ranks [k * ranks, (k + 1) * ranks) are one unit of it. The last level joins everything. */
typedef struct mesh_level {
    int ranks;
    uint32_t zero;
    int64_t latency_ps;     /* of a message */
    int64_t ps_per_byte_16; /* picoseconds per byte in 16.16 fixed point: 65536 is 1 ps per byte, 1,000 GB/s */
} mesh_level;

typedef struct mesh_topology {
    int nlevels; /* 0: flat, a network of 10 us and 5 GB/s */
    int zero;
    mesh_level level[MESH_MAX_LEVELS];
} mesh_topology;

/* ARGUMENT: a number of levels outside 0 to 8, a level of no ranks or fewer than the one within it, a negative time. */
MESH_API mesh_status mesh_topology_check(const mesh_topology *t, mesh_error *err);

/* ---- plans --------------------------------------------------------------------------------------------------------- */

typedef struct mesh_plan_desc {
    const mesh *src, *dst; /* dst NULL: the same mesh. They may share all ranks, some, or none */
    const mesh_spec *from, *to;
    int ndim;
    mesh_dtype dtype;
    int64_t shape[MESH_MAX_DIMS];  /* of the whole tensor */
    int64_t elem_bytes;            /* 0: the dtype's */
    int64_t scratch_cap;           /* bytes a rank may use beside source and destination; 0: any */
    const mesh_topology *topology; /* NULL: flat */
} mesh_plan_desc;

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

typedef struct mesh_plan {
    mesh at[4]; /* source, destination; the same with axes split into prime factors */
    mesh_spec from, to;
    int ndim, nsteps;
    int op; /* of the partial source; a mesh_op */
    mesh_dtype dtype;
    int64_t elem_bytes, shape[MESH_MAX_DIMS];
    mesh_topology topology;
    mesh_step step[MESH_MAX_STEPS];
    int64_t bytes, ps;
    int64_t scratch; /* bytes a rank needs beside source and destination, at most */
    uint64_t hash;   /* of all that ranks must agree on */
} mesh_plan;

/* The best plan under the cap. ARGUMENT: specs that do not fit mesh and shape, one partial op to another, R -> P(avg) or
   P(prod), bytes that overflow. MEMORY: no plan within scratch_cap; the least that is possible is named. No allocation. */
MESH_API mesh_status mesh_plan_make(mesh_plan *p, const mesh_plan_desc *d, mesh_error *err);
/* The best `cap` plans, best first, for a look at the alternatives. Returns how many there are, or -1. */
MESH_API int mesh_plan_candidates(mesh_plan *plans, int cap, const mesh_plan_desc *d, mesh_error *err);

/* What a rank sends and receives in a step (-1: all steps), exactly. O(peers). A rank in neither layout: zeros. */
typedef struct mesh_traffic {
    int64_t sent, received; /* bytes */
    int sends, recvs;       /* messages, all rounds together */
} mesh_traffic;
MESH_API mesh_traffic mesh_plan_traffic(const mesh_plan *p, int step, int rank);
/* Sum over the steps of the worst rank's max(sent, received), exactly. O(ranks * peers): for explanations and tests. */
MESH_API int64_t mesh_plan_measure(const mesh_plan *p);
/* The fewest bytes any way of doing it has the worst rank receive, exactly where nothing is partial: what is in its new box
   and not in its old one. -1 where something is partial. O(ranks). */
MESH_API int64_t mesh_plan_lower_bound(const mesh_plan *p);

/* EXPLAIN: the steps as a table of text, and as JSON. Each returns the length of the whole text. */
MESH_API size_t mesh_plan_format(const mesh_plan *p, char *buf, size_t cap);
MESH_API size_t mesh_plan_json(const mesh_plan *p, char *buf, size_t cap);
/* What a step is in the field's words: "all_gather", "reduce_scatter", "all_to_all", "slice", "permute", "exchange", ... */
MESH_API const char *mesh_step_name(const mesh_plan *p, int step);

/* ---- moves --------------------------------------------------------------------------------------------------------- */

typedef enum mesh_move_kind {
    MESH_MOVE_RECV = 0, /* box of the next layout's tensor from peer; reducing: summand number `summand` */
    MESH_MOVE_LOCAL,    /* the same from this rank's own tensor */
    MESH_MOVE_ZERO,     /* box of the next layout's tensor becomes zero (R -> P(sum) off coordinate 0) */
    MESH_MOVE_SEND      /* box of this layout's tensor to peer */
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
    const mesh *src, *dst;
    const mesh_spec *src_spec, *dst_spec;
    int rank, round, last_round, rounds, slab_dim, by_source;
    mesh_digits kept;               /* partial on both sides: summands that stay apart; part of fixed */
    mesh_digits fixed, spread, sum; /* of sources: as the receiver's; any will do; each one is needed */
    mesh_digits to_spread, to_zero; /* of receivers: all receive; 0 receives, others are zero */
    int made_partial;               /* digits that are partial at the destination only */
    int src_coord[MESH_MAX_AXES], own_kept, want_kept,
        own_spread;          /* this rank as a source; own_spread -1: it is none */
    int replicas, receivers; /* the products of spread and of to_spread */
    int state, fixed_offset, sum_at, pick, picks, turn, level, single, receiver;
    int holds; /* the receiver has the piece's shard */
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
#endif /* MESH_PLAN_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && defined(MESH_SPEC_IMPLEMENTED) && !defined(MESH_PLAN_IMPLEMENTED)
#define MESH_PLAN_IMPLEMENTED

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MESH__PIECE_CUT = 64 * 1024, /* bytes from which replicas share a piece */
    MESH__SLAB = 256 * 1024,     /* of what is reduced at a time, per summand */
    MESH__MAX_ROUNDS = 4096,
    MESH__EXACT_RANKS = 12 /* up to so many are counted one by one where sizes do not divide */
};

static inline int64_t mesh__ceil(int64_t n, int64_t k) { return n / k + (n % k != 0); }
static inline int64_t mesh__add64(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }
static inline int64_t mesh__mul64(int64_t a, int64_t b) { return b && a > INT64_MAX / b ? INT64_MAX : a * b; }

/* ---- // >>digits ------------------------------------------------------------------------------------------------------ */

static inline void mesh__digit_add(mesh_digits *d, int shape, int stride) {
    MESH_ASSERT(d->n < MESH_MAX_MODES);
    d->digit[d->n].shape = shape;
    d->digit[d->n++].stride = stride;
}

/* The modes of the axes whose place is of a kind, outermost first. */
static inline mesh_digits mesh__digits_of(const mesh *m, const mesh_spec *s, int kind) {
    mesh_digits d;
    int i, k;
    d.n = 0;
    for (i = 0; i < m->naxes; i++)
        for (k = m->axis[i].first; k < m->axis[i].first + m->axis[i].modes && s->axis[i].kind == kind; k++)
            mesh__digit_add(&d, m->mode[k].shape, m->mode[k].stride);
    return d;
}

/* Sort a digit, cut where needed, into what lies in digits of b from number k on and the rest. */
static inline void mesh__digit_sort(mesh_mode a, const mesh_digits *b, int k, mesh_digits *common, mesh_digits *rest) {
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
static inline void mesh__digits_sort(const mesh_digits *a, const mesh_digits *b, mesh_digits *common,
                                     mesh_digits *rest) {
    int i;
    for (i = 0; i < a->n; i++) mesh__digit_sort(a->digit[i], b, 0, common, rest);
}

static inline int mesh__digits_hold(const mesh_digits *d, mesh_mode digit) {
    int i;
    for (i = 0; i < d->n; i++)
        if (d->digit[i].shape == digit.shape && d->digit[i].stride == digit.stride) return 1;
    return 0;
}

/* Sort two sets of digits into those that both have and what is left of each. What only one side can cut out is not common. */
static inline void mesh__digits_match(const mesh_digits *a, const mesh_digits *b, mesh_digits *common,
                                      mesh_digits *a_rest, mesh_digits *b_rest) {
    mesh_digits of_a, of_b, rest;
    int i, whole = 1;
    of_a.n = of_b.n = rest.n = common->n = 0;
    mesh__digits_sort(a, b, &of_a, &rest);
    rest.n = 0;
    mesh__digits_sort(b, a, &of_b, &rest);
    for (i = 0; i < of_a.n; i++)
        if (mesh__digits_hold(&of_b, of_a.digit[i])) mesh__digit_add(common, of_a.digit[i].shape, of_a.digit[i].stride);
    of_a.n = of_b.n = a_rest->n = b_rest->n = 0;
    mesh__digits_sort(a, common, &of_a, a_rest);
    mesh__digits_sort(b, common, &of_b, b_rest);
    whole = of_a.n == common->n && of_b.n == common->n;
    for (i = 0; i < common->n && whole; i++)
        whole = mesh__digits_hold(&of_a, common->digit[i]) && mesh__digits_hold(&of_b, common->digit[i]);
    if (whole) return;
    common->n = 0;
    *a_rest = *a;
    *b_rest = *b;
}

static inline int mesh__digits_size(const mesh_digits *d) {
    int i, n = 1;
    for (i = 0; i < d->n; i++) n *= d->digit[i].shape;
    return n;
}
/* The position that an index into the digits (row-major) adds. */
static inline int mesh__digits_offset(const mesh_digits *d, int index) {
    int i, offset = 0;
    for (i = d->n - 1; i >= 0 && index; i--) {
        offset += index % d->digit[i].shape * d->digit[i].stride;
        index /= d->digit[i].shape;
    }
    return offset;
}
/* The value of a rank's digits as such an index. coord: its mode coordinates in m, whose modes the digits are parts of. */
static inline int mesh__digits_index(const mesh_digits *d, const mesh *m, const int *coord) {
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

/* Layout 0 is the source; layout k is reached by step k - 1. */
static inline const mesh *mesh__layout_mesh(const mesh_plan *p, int layout) {
    return layout < 1 ? &p->at[0] : &p->at[p->step[layout - 1].on];
}
static inline const mesh_spec *mesh__layout_spec(const mesh_plan *p, int layout) {
    return layout < 1 ? &p->from : &p->step[layout - 1].spec;
}

static inline int mesh__keeps_zero(int op) { return op == MESH_SUM || op == MESH_XOR; }

/* Who gives to whom between two layouts, in digits. */
static inline void mesh__moves_route(mesh_moves *it, int op) {
    mesh_digits src_r = mesh__digits_of(it->src, it->src_spec, MESH_REPLICATE),
                src_p = mesh__digits_of(it->src, it->src_spec, MESH_PARTIAL),
                dst_r = mesh__digits_of(it->dst, it->dst_spec, MESH_REPLICATE),
                dst_p = mesh__digits_of(it->dst, it->dst_spec, MESH_PARTIAL), same;
    int i;
    mesh__digits_match(&src_r, &dst_r, &it->fixed, &it->spread, &it->to_spread);
    mesh__digits_match(&src_p, &dst_p, &it->kept, &it->sum, &same);
    for (i = 0; i < it->kept.n; i++) mesh__digit_add(&it->fixed, it->kept.digit[i].shape, it->kept.digit[i].stride);
    it->to_zero.n = 0;
    it->made_partial = same.n;
    for (i = 0; i < same.n; i++)
        mesh__digit_add(mesh__keeps_zero(op) ? &it->to_zero : &it->to_spread, same.digit[i].shape,
                        same.digit[i].stride);
    it->summands = mesh__digits_size(&it->sum);
    it->replicas = mesh__digits_size(&it->spread);
    it->receivers = mesh__digits_size(&it->to_spread);
}

/* The position that a rank's digits add. */
static inline int mesh__offset_as(const mesh_digits *d, const mesh *m, const int *coord) {
    return mesh__digits_offset(d, mesh__digits_index(d, m, coord));
}

static inline void mesh__moves_round(mesh_moves *it);

static inline void mesh__moves_layouts(mesh_moves *it, const mesh_plan *p, int step) {
    it->plan = p;
    it->src = mesh__layout_mesh(p, step);
    it->dst = mesh__layout_mesh(p, step + 1);
    it->src_spec = mesh__layout_spec(p, step);
    it->dst_spec = mesh__layout_spec(p, step + 1);
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
    it->from.ndim = it->to.ndim = p->ndim;
    it->from.zero = it->to.zero = 0;
    for (d = 0; d < MESH_MAX_DIMS; d++) it->from.shape[d] = it->from.offset[d] = it->to.shape[d] = it->to.offset[d] = 0;
    it->own_summand = it->own_spread = -1;
    if (mesh_spec_box(it->src_spec, it->src, p->ndim, p->shape, rank, &it->from)) {
        mesh_coords_of(it->src, rank, it->src_coord);
        mesh__take_apart(it->src, rank, coord);
        it->own_summand = mesh__digits_index(&it->sum, it->src, coord);
        it->own_spread = mesh__digits_index(&it->spread, it->src, coord);
        it->own_kept = mesh__digits_index(&it->kept, it->src, coord);
    } else if (p->ndim == 0) {
        it->from.ndim = -1; /* a scalar that is not here */
    }
    if (!mesh_spec_box(it->dst_spec, it->dst, p->ndim, p->shape, rank, &it->to) && p->ndim == 0) it->to.ndim = -1;
    mesh__moves_round(it);
}

enum { MESH__MOVES_RECEIVE, MESH__MOVES_PIECE, MESH__MOVES_SEND, MESH__MOVES_RECEIVER, MESH__MOVES_END };

static inline int mesh__box_some(const mesh_box *b) { return b->ndim >= 0 && mesh_box_count(b) > 0; }

/* Begin a round with what is received. */
static inline void mesh__moves_round(mesh_moves *it) {
    const mesh_plan *p = it->plan;
    it->state = MESH__MOVES_SEND;
    it->pieces.state = 0;
    if (mesh__box_some(&it->to)) {
        int coord[MESH_MAX_MODES];
        mesh_box box = it->by_source ? it->to : mesh_box_slab(&it->to, it->slab_dim, it->round, it->rounds);
        mesh__take_apart(it->dst, it->rank, coord);
        it->state = MESH__MOVES_RECEIVE;
        it->fixed_offset = mesh__offset_as(&it->fixed, it->dst, coord);
        it->receiver = mesh__digits_index(&it->to_spread, it->dst, coord);
        it->want_kept = mesh__digits_index(&it->kept, it->dst, coord);
        if (mesh__digits_index(&it->to_zero, it->dst, coord)) {
            it->box = box;
            it->peer = it->rank;
            it->summand = 0;
            it->kind = MESH_MOVE_ZERO;
            it->sum_at = it->round == 0 || !it->by_source; /* by source: all of it in the first round */
            return;
        }
        it->sum_at = -1;
        mesh_pieces_start(&it->pieces, it->src_spec, it->src, p->ndim, p->shape, &box);
        it->kind = MESH_MOVE_RECV;
    }
}

/* Bounds of a piece's shard as a box. */
static inline mesh_box mesh__shard_box(const mesh_pieces *p) {
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
static inline int mesh__shard_position(const mesh *m, const mesh_spec *s, const int *coord) {
    int i, position = m->origin;
    for (i = 0; i < m->naxes; i++)
        if (s->axis[i].kind == MESH_SHARD) position += mesh__axis_offset(m, i, coord[i]);
    return position;
}

static inline int mesh__same_shard(const mesh_spec *s, const int *a, const int *b) {
    int i;
    for (i = 0; i < s->naxes; i++)
        if (s->axis[i].kind == MESH_SHARD && a[i] != b[i]) return 0;
    return 1;
}

/* The rank that has a summand and a replica of the shard at `position`. */
static inline int mesh__source_rank(const mesh_moves *it, int position, int summand, int replica) {
    return mesh__rank_of_position(it->src, position + it->fixed_offset + mesh__digits_offset(&it->sum, summand) +
                                               mesh__digits_offset(&it->spread, replica));
}

static inline int mesh__level_of(const mesh_topology *t, int a, int b) {
    int l = 0;
    while (l < t->nlevels - 1 && a / t->level[l].ranks != b / t->level[l].ranks) l++;
    return l;
}

/* Which of a dim's shards in order, counted along the axes that cut it, holds x. */
static inline int64_t mesh__shard_number(const mesh_spec *s, const mesh *m, int d, int64_t size, int64_t x) {
    uint8_t list[MESH_MAX_AXES];
    int n = mesh__dim_axes(s, d, list), k;
    int64_t low = 0, high = size, number = 0;
    for (k = 0; k < n; k++)
        number = number * m->axis[list[k]].size + mesh__part_find(s->rule, m->axis[list[k]].size, x, &low, &high);
    return number;
}

/* A number that differs from receiver to receiver of a source's shard, so that its replicas take turns: where the receiver is a source
   itself by its own place there, else by its place among all that need something of the shard (`to` lies in its box). */
static inline int64_t mesh__receiver_number(const mesh_moves *it, const int *coord, int spread, const mesh_box *shard,
                                            const mesh_box *to) {
    int64_t number = 0;
    int d;
    if (coord) {
        for (d = 0; d < it->src->naxes; d++)
            if (it->src_spec->axis[d].kind == MESH_SHARD) number = number * it->src->axis[d].size + coord[d];
        return number + spread;
    }
    for (d = 0; d < shard->ndim; d++) {
        int64_t size = it->plan->shape[d], at = mesh__shard_number(it->dst_spec, it->dst, d, size, to->offset[d]);
        int64_t first = mesh__shard_number(it->dst_spec, it->dst, d, size, shard->offset[d]);
        int64_t last = mesh__shard_number(it->dst_spec, it->dst, d, size, shard->offset[d] + shard->shape[d] - 1);
        number = (number * (last - first + 1) + (at - first)) % INT32_MAX;
    }
    return (number * it->receivers + it->receiver) % INT32_MAX;
}

/* Pieces from so many bytes on are worth a message from each replica. */
static inline int64_t mesh__cut_bytes(const mesh_topology *t) {
    return t->level[t->nlevels - 1].latency_ps ? MESH__PIECE_CUT : 1;
}

/* Among the replicas of the shard at a position: which serve a receiver, whose coordinates as a source are coord (NULL: it is none) and
   whose own replica is spread. Sets level (of those that count), picks (how many share the piece), turn (who of them gives the first
   slab) and single (the one, when picks is 1). */
static inline void mesh__choose_sources(mesh_moves *it, int rank, const int *coord, int spread, int position,
                                        int summand, const mesh_box *shard) {
    const mesh_topology *t = &it->plan->topology;
    int g, nearest = it->replicas, n;
    it->picks = 1;
    it->level = -1;
    it->single = 0;
    if (it->replicas == 1) return;
    if (it->holds) {
        it->single = spread;
        return;
    }
    if (t->nlevels > 1) {
        int best = t->nlevels;
        for (g = 0; g < it->replicas; g++) {
            int level = mesh__level_of(t, rank, mesh__source_rank(it, position, summand, g));
            if (level > best) continue;
            nearest = level < best ? 1 : nearest + 1;
            best = level;
        }
        it->level = best;
    }
    n = (int)((mesh__receiver_number(it, coord, spread, shard, &it->part) + summand) % nearest);
    if (nearest > 1 && it->part.ndim > 0 &&
        mesh_box_count(&it->part) >= mesh__ceil(mesh__cut_bytes(t), it->plan->elem_bytes)) {
        it->picks = nearest;
        it->turn = n;
        return;
    }
    for (g = 0; it->level >= 0; g++)
        if (mesh__level_of(t, rank, mesh__source_rank(it, position, summand, g)) == it->level && n-- == 0) break;
    it->single = it->level >= 0 ? g : n;
}

/* What the k-th of those that share a piece gives. */
static inline mesh_box mesh__share(const mesh_box *part, int k, int picks) {
    int d, longest = 0;
    for (d = 1; d < part->ndim; d++)
        if (part->shape[d] > part->shape[longest]) longest = d;
    return mesh_box_slab(part, longest, k, picks);
}

/* What is received of the piece at hand: summand after summand, from one or several sources each. */
static inline int mesh__moves_receive(mesh_moves *it) {
    int position = mesh__shard_position(it->src, it->src_spec, it->pieces.coord), g;
    mesh_box shard = mesh__shard_box(&it->pieces);
    for (; it->sum_at < it->summands; it->sum_at++, it->pick = 0) {
        it->summand = it->sum_at;
        if (it->holds && it->sum_at == it->own_summand) {
            it->kind = MESH_MOVE_LOCAL;
            it->peer = it->rank;
            it->box = it->part;
            it->sum_at++;
            it->pick = 0;
            return 1;
        }
        if (it->pick == 0) {
            mesh__choose_sources(it, it->rank, it->own_spread >= 0 ? it->src_coord : NULL, it->own_spread, position,
                                 it->sum_at, &shard);
            it->pick = 1;
            it->single = it->picks == 1 ? it->single : -1; /* several: the last one looked at */
        } else if (it->picks == 1) {
            continue;
        }
        it->kind = MESH_MOVE_RECV;
        if (it->picks == 1) {
            it->pick = 2;
            it->box = it->part;
            it->peer = mesh__source_rank(it, position, it->sum_at, it->single);
            return 1;
        }
        while (it->pick <= it->picks) {
            it->box = mesh__share(&it->part, (it->pick - 1 + it->turn) % it->picks, it->picks);
            it->pick++;
            for (g = it->single + 1; it->level >= 0; g++)
                if (mesh__level_of(&it->plan->topology, it->rank, mesh__source_rank(it, position, it->sum_at, g)) ==
                    it->level)
                    break;
            it->single = g;
            if (!mesh_box_count(&it->box)) continue;
            it->peer = mesh__source_rank(it, position, it->sum_at, g);
            return 1;
        }
    }
    return 0;
}

/* Does this rank serve receiver number it->receiver of the piece at hand? Then the move is set. */
static inline int mesh__moves_serve(mesh_moves *it) {
    int coord[MESH_MAX_AXES], modes[MESH_MAX_MODES], spread = 0, position, g, nth = 0, is_source;
    int rank =
        mesh__rank_of_position(it->dst, mesh__shard_position(it->dst, it->dst_spec, it->pieces.coord) +
                                            it->fixed_offset + mesh__digits_offset(&it->to_spread, it->receiver));
    it->holds = 0;
    is_source = mesh_coords_of(it->src, rank, coord);
    if (is_source) {
        mesh__take_apart(it->src, rank, modes);
        spread = mesh__digits_index(&it->spread, it->src, modes);
        it->holds = mesh__same_shard(it->src_spec, coord, it->src_coord) &&
                    mesh__digits_index(&it->kept, it->src, modes) == it->own_kept;
        if (it->holds && mesh__digits_index(&it->sum, it->src, modes) == it->own_summand) return 0; /* it has its own */
    }
    position = mesh__shard_position(it->src, it->src_spec, it->src_coord);
    mesh__choose_sources(it, rank, is_source ? coord : NULL, spread, position, it->own_summand, &it->from);
    it->kind = MESH_MOVE_SEND;
    it->peer = rank;
    it->summand = it->own_summand;
    it->box = it->part;
    if (it->picks == 1) return it->single == it->own_spread;
    if (it->level >= 0) {
        const mesh_topology *t = &it->plan->topology;
        if (mesh__level_of(t, rank, it->rank) != it->level) return 0;
        for (g = 0; g < it->own_spread; g++)
            nth += mesh__level_of(t, rank, mesh__source_rank(it, position, it->own_summand, g)) == it->level;
    } else {
        nth = it->own_spread;
    }
    it->box = mesh__share(&it->part, (nth + it->turn) % it->picks, it->picks);
    return mesh_box_count(&it->box) > 0;
}

/* The next piece, cut to the round. */
static inline int mesh__moves_piece(mesh_moves *it, int sending) {
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
static inline void mesh__moves_send(mesh_moves *it) {
    int coord[MESH_MAX_MODES];
    mesh_box box = it->by_source ? mesh_box_slab(&it->from, it->slab_dim, it->round, it->rounds) : it->from;
    it->state = MESH__MOVES_PIECE;
    mesh__take_apart(it->src, it->rank, coord);
    it->fixed_offset = mesh__offset_as(&it->fixed, it->src, coord);
    mesh_pieces_start(&it->pieces, it->dst_spec, it->dst, it->plan->ndim, it->plan->shape, &box);
}

MESH_API int mesh_moves_next(mesh_moves *it) {
    for (;;) switch (it->state) {
        case MESH__MOVES_RECEIVE:
            if (it->kind == MESH_MOVE_ZERO) { /* nothing is received; once */
                it->state = MESH__MOVES_SEND;
                if (it->sum_at && mesh__box_some(&it->box)) return 1;
                break;
            }
            if (it->sum_at >= 0 && mesh__moves_receive(it)) return 1;
            if (mesh__moves_piece(it, 0)) {
                it->sum_at = it->pick = 0;
                it->holds = it->own_spread >= 0 && it->own_kept == it->want_kept &&
                            mesh__same_shard(it->src_spec, it->src_coord, it->pieces.coord);
            } else {
                it->state = MESH__MOVES_SEND;
            }
            break;
        case MESH__MOVES_SEND:
            if (it->own_spread >= 0 && mesh__box_some(&it->from))
                mesh__moves_send(it);
            else
                it->state = MESH__MOVES_END;
            break;
        case MESH__MOVES_PIECE:
            it->receiver = -1;
            it->state = mesh__moves_piece(it, 1) ? MESH__MOVES_RECEIVER : MESH__MOVES_END;
            break;
        case MESH__MOVES_RECEIVER:
            if (++it->receiver >= it->receivers)
                it->state = MESH__MOVES_PIECE;
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

/* The worst rank's bytes in a step, exactly. */
static inline int64_t mesh__step_measure(const mesh_plan *p, int step) {
    int64_t worst = 0;
    int side, i;
    for (side = 0; side < 2; side++)
        for (i = 0; i < p->at[side].size; i++) {
            int rank = mesh_rank_at(&p->at[side], i);
            mesh_traffic t;
            if (side && mesh_index_of(&p->at[0], rank) >= 0) continue;
            t = mesh_plan_traffic(p, step, rank);
            if (t.sent > worst) worst = t.sent;
            if (t.received > worst) worst = t.received;
        }
    return worst;
}

MESH_API int64_t mesh_plan_measure(const mesh_plan *p) {
    int64_t total = 0;
    int k;
    for (k = 0; k < p->nsteps; k++) total += mesh__step_measure(p, k);
    return total;
}

MESH_API int64_t mesh_plan_lower_bound(const mesh_plan *p) {
    const mesh_spec *from = &p->from, *to = mesh__layout_spec(p, p->nsteps);
    const mesh *src = &p->at[0], *dst = &p->at[1];
    int64_t most = 0;
    int i;
    for (i = 0; i < MESH_MAX_AXES; i++)
        if (from->axis[i].kind == MESH_PARTIAL || to->axis[i].kind == MESH_PARTIAL) return -1;
    for (i = 0; i < dst->size; i++) {
        int rank = mesh_rank_at(dst, i);
        mesh_box have, want, both;
        int64_t need;
        mesh_spec_box(to, dst, p->ndim, p->shape, rank, &want);
        need = mesh_box_count(&want);
        if (mesh_spec_box(from, src, p->ndim, p->shape, rank, &have) && mesh_box_intersect(&both, &have, &want))
            need -= mesh_box_count(&both);
        if (need > most) most = need;
    }
    return most * p->elem_bytes;
}

/* ---- // >>costs ------------------------------------------------------------------------------------------------------ */

/* a * b / c for b <= c < 2^31 without overflow. */
static inline int64_t mesh__fraction(int64_t a, int64_t b, int64_t c) { return a / c * b + a % c * b / c; }

static inline mesh_topology mesh__flat(void) {
    mesh_topology t;
    t.nlevels = 1;
    t.zero = 0;
    t.level[0].ranks = INT32_MAX;
    t.level[0].zero = 0;
    t.level[0].latency_ps = INT64_C(10000000);
    t.level[0].ps_per_byte_16 = INT64_C(200) << 16;
    return t;
}

MESH_API mesh_status mesh_topology_check(const mesh_topology *t, mesh_error *err) {
    int l;
    if (!t) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_topology_check: the topology is NULL");
    if (t->nlevels < 0 || t->nlevels > MESH_MAX_LEVELS)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_topology_check: %d levels; 0 to %d are possible",
                          t->nlevels, MESH_MAX_LEVELS);
    for (l = 0; l < t->nlevels; l++) {
        const mesh_level *level = &t->level[l];
        if (level->ranks < 1 || (l > 0 && level->ranks < level[-1].ranks))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_topology_check: level %d has units of %d ranks; levels go from the innermost out",
                              l, level->ranks);
        if (l > 0 && l < t->nlevels - 1 && level->ranks % level[-1].ranks)
            return mesh__fail(
                err, MESH_ERR_ARGUMENT, -1,
                "mesh_topology_check: level %d has units of %d ranks, no multiple of the %d of the level within", l,
                level->ranks, level[-1].ranks);
        if (level->latency_ps < 0 || level->ps_per_byte_16 < 0 || level->ps_per_byte_16 > INT64_C(1) << 40)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_topology_check: level %d: a latency of %l ps, %l ps per byte in 16.16; neither is "
                              "negative, and a byte takes less than 2^24 ps",
                              l, level->latency_ps, level->ps_per_byte_16);
    }
    return MESH_OK;
}

typedef struct mesh__cost {
    int64_t bytes, ps, staged;      /* staged: of the box that is made */
    int messages, summands, inside; /* inside: the box that is made lies in the destination's */
} mesh__cost;

/* Of the ranks that lie along some digits, how many share a unit of so many ranks. */
static inline int64_t mesh__within(const mesh_digits *d, int unit) {
    int64_t n = 1;
    int i;
    for (i = 0; i < d->n; i++) {
        int fit = d->digit[i].stride >= unit ? 1 : unit / d->digit[i].stride;
        n *= d->digit[i].shape < fit ? d->digit[i].shape : fit;
    }
    return n;
}

/* Time of so many messages and bytes to and from ranks along some digits: each level has its share. */
static inline int64_t mesh__time(const mesh_topology *t, const mesh_digits *along, int64_t messages, int64_t bytes) {
    int64_t all = mesh__digits_size(along), below = 1, ps = 0;
    int l;
    for (l = 0; l < t->nlevels; l++) {
        int64_t within = l == t->nlevels - 1 ? all : mesh__within(along, t->level[l].ranks), share = within - below;
        const mesh_level *level = &t->level[l];
        if (share > 0 && all > 1) {
            int64_t part = mesh__fraction(bytes, share, all - 1), count = mesh__ceil(messages * share, all - 1);
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
static inline int64_t mesh__local_time(const mesh_topology *t, int64_t bytes) {
    return t->level[0].latency_ps ? mesh__mul64(bytes >> 18, t->level[0].ps_per_byte_16) : 0;
}

/* What one step costs its worst rank, from sizes rounded up. */
static inline mesh__cost mesh__cost_of(const mesh_plan *p, const mesh_moves *route, int same, int exact_step) {
    mesh__cost c;
    mesh_digits along;
    int64_t want = p->elem_bytes, overlap = same, have = 1, pieces = 1, received, sent;
    int d, i, src_size = 1, dst_size = 1;
    c.summands = route->summands;
    for (d = 0; d < p->ndim; d++) {
        uint8_t from[MESH_MAX_AXES], to[MESH_MAX_AXES];
        int nfrom = mesh__dim_axes(route->src_spec, d, from), nto = mesh__dim_axes(route->dst_spec, d, to), k = 0;
        int64_t n = p->shape[d], m = n, a = 1, b = 1;
        for (i = 0; i < nto; i++) n = mesh__ceil(n, route->dst->axis[to[i]].size);
        for (i = 0; i < nfrom; i++) m = mesh__ceil(m, route->src->axis[from[i]].size);
        while (same && k < nfrom && k < nto && from[k] == to[k]) k++;
        for (i = k; i < nfrom; i++) a *= route->src->axis[from[i]].size;
        for (i = k; i < nto; i++) b *= route->dst->axis[to[i]].size;
        src_size = (int)(src_size * a > INT32_MAX ? INT32_MAX : src_size * a);
        dst_size = (int)(dst_size * b > INT32_MAX ? INT32_MAX : dst_size * b);
        want = mesh__mul64(want, n);
        have = mesh__mul64(have, m);
        overlap = mesh__mul64(overlap, (a > 1 && b > 1) || !same ? 0 : n < m ? n : m);
        if (a > b) pieces = mesh__mul64(pieces, mesh__ceil(a, b));
    }
    overlap *= overlap ? p->elem_bytes : 0;
    received = mesh__mul64(want, c.summands) - overlap;
    if (pieces > INT32_MAX / c.summands) pieces = INT32_MAX / c.summands;
    c.messages = (int)(pieces * c.summands) - (overlap > 0);
    if (route->replicas > 1 && want / pieces >= mesh__cut_bytes(&p->topology) && overlap < want)
        c.messages =
            (int)(mesh__mul64(c.messages, route->replicas) > INT32_MAX ? INT32_MAX
                                                                       : c.messages * (int64_t)route->replicas);
    /* Who sends has as much to do as all it serves receive, shared among the sources: more where sources are few. */
    sent = same ? received : mesh__mul64(mesh__ceil(received, route->src->size), route->dst->size);
    c.bytes = exact_step >= 0 ? mesh__step_measure(p, exact_step) : sent > received ? sent : received;
    c.staged = want;
    along = mesh__digits_of(route->src, route->src_spec, MESH_SHARD);
    for (i = 0; i < route->spread.n; i++) along.digit[along.n++] = route->spread.digit[i];
    for (i = 0; i < route->sum.n; i++) along.digit[along.n++] = route->sum.digit[i];
    if (same) { /* axes that shard the same in both: peers have this rank's coordinate */
        along.n = 0;
        for (i = 0; i < route->src->naxes; i++) {
            const mesh_place *a = &route->src_spec->axis[i], *b = &route->dst_spec->axis[i];
            int k, moved = a->kind != b->kind || (a->kind == MESH_SHARD && (a->dim != b->dim || a->order != b->order));
            for (k = route->src->axis[i].first; moved && k < route->src->axis[i].first + route->src->axis[i].modes; k++)
                mesh__digit_add(&along, route->src->mode[k].shape, route->src->mode[k].stride);
        }
    }
    if (!same && along.n == 0) mesh__digit_add(&along, 2, 1 << 30); /* another place altogether */
    c.ps = c.bytes || c.summands > 1 ? mesh__time(&p->topology, &along, c.messages, c.bytes) : 0;
    return c;
}

/* ---- // >>search ------------------------------------------------------------------------------------------------------ */

/* Per dim the axes that shard it, outermost first: a spec in the shape that is easy to change. */
typedef struct mesh__form {
    uint8_t count[MESH_MAX_DIMS], axis[MESH_MAX_DIMS][MESH_MAX_AXES];
} mesh__form;

typedef struct mesh__search {
    const mesh_plan_desc *d;
    mesh_plan *best; /* sorted */
    int cap, found;
    int64_t least;  /* scratch of the plan that needs the least */
    mesh_plan path; /* the one being built */
    int same[4][4]; /* are two meshes of plan.at equal */
} mesh__search;

static inline mesh__form mesh__form_of(const mesh_spec *s) {
    mesh__form f;
    int d;
    for (d = 0; d < MESH_MAX_DIMS; d++) f.count[d] = (uint8_t)mesh__dim_axes(s, d, f.axis[d]);
    return f;
}

/* The spec that shards as the form says; what shards nothing is as in `other`, where that does not shard it. */
static inline mesh_spec mesh__spec_of(const mesh__form *f, const mesh_spec *other) {
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
static inline mesh_box mesh__largest_box(const mesh_plan *p, int layout) {
    const mesh *m = mesh__layout_mesh(p, layout);
    const mesh_spec *s = mesh__layout_spec(p, layout);
    mesh_box box = mesh__box_whole(p->ndim, p->shape);
    int i;
    for (i = 0; i < s->naxes; i++)
        if (s->axis[i].kind == MESH_SHARD)
            box.shape[s->axis[i].dim] = mesh__ceil(box.shape[s->axis[i].dim], m->axis[i].size);
    return box;
}

/* A box that is reduced into is cut into slabs that stay in cache, and into at least so many. Returns the bytes of a slab. */
static inline int64_t mesh__step_slab(const mesh_plan *p, mesh_step *s, const mesh_box *box, int rounds) {
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
   receives, of two slabs in turn. Layouts between are held whole, but one that is distributed slab by slab as it is reduced. */
static inline int64_t mesh__path_scratch(mesh_plan *p, const mesh__cost *cost, int rounds) {
    int64_t scratch = 0, before = 0;
    int k, n = p->nsteps;
    for (k = 0; k < n; k++) {
        mesh_step *s = &p->step[k];
        const mesh_step *previous = k > 0 ? &p->step[k - 1] : NULL;
        mesh_box box = mesh__largest_box(p, k + 1);
        int64_t made = (mesh_box_count(&box) * p->elem_bytes + 63) & ~INT64_C(63), held = before;
        int last = k == n - 1;
        before = last || (cost[k].inside && p->step[k + 1].kind == MESH_STEP_MOVE) ? 0 : made;
        s->rounds = 1;
        s->slab_dim = 0;
        if (s->kind == MESH_STEP_REDUCE) {
            int64_t slab = mesh__step_slab(p, s, &box, rounds), slabs = cost[k].summands;
            if (k == n - 2 && p->step[k + 1].kind == MESH_STEP_MOVE && s->rounds > 1) {
                slabs += before > 0;
                before = 0;
            }
            held = mesh__add64(held, mesh__mul64(slab, s->rounds > 1 ? 2 * slabs : slabs));
        } else if (last && previous && previous->kind == MESH_STEP_REDUCE) {
            s->rounds = previous->rounds;
            s->slab_dim = previous->slab_dim;
        }
        held = mesh__add64(held, before);
        if (held > scratch) scratch = held;
    }
    return scratch ? mesh__add64(scratch, 64) : 0; /* 64: alignment */
}

/* What a spec says of the axes of the mesh whose axes are split. */
static inline mesh_spec mesh__spec_split(const mesh_spec *s, const mesh *whole, const mesh *split) {
    mesh_spec r = *s;
    int i, k = 0, d, n;
    uint8_t list[MESH_MAX_AXES], first[MESH_MAX_AXES + 1];
    r.naxes = (uint8_t)split->naxes;
    for (i = 0; i < whole->naxes; i++) {
        int size = 1;
        first[i] = (uint8_t)k;
        do {
            r.axis[k] = s->axis[i];
            size *= split->axis[k++].size;
        } while (size < whole->axis[i].size);
    }
    first[i] = (uint8_t)k;
    for (d = 0; d < MESH_MAX_DIMS; d++) {
        int order = 0, j;
        n = mesh__dim_axes(s, d, list);
        for (i = 0; i < n; i++)
            for (j = first[list[i]]; j < first[list[i] + 1]; j++) r.axis[j] = mesh_shard_at(d, order++);
    }
    return r;
}

/* Do the shards of every dim divide it, so that split axes cut it the same way? */
static inline int mesh__is_even(const mesh_plan *p, const mesh *m, const mesh_spec *s) {
    int64_t n[MESH_MAX_DIMS];
    int i, d;
    for (d = 0; d < MESH_MAX_DIMS; d++) n[d] = 1;
    for (i = 0; i < m->naxes; i++)
        if (s->axis[i].kind == MESH_SHARD) n[s->axis[i].dim] *= m->axis[i].size;
    for (d = 0; d < p->ndim; d++)
        if (p->shape[d] % n[d]) return 0;
    return 1;
}

/* Can the two layouts of a step be compared axis by axis? A layout on a mesh and one on the same mesh with its axes split can, where
   sizes divide: the route is then put on the split mesh. */
static inline int mesh__same_axes(const mesh__search *q, int on, int next, mesh_moves *route, mesh_spec *split) {
    const mesh_plan *p = &q->path;
    if (q->same[on][next]) return 1;
    if (on < 2 && next >= 2 && q->same[on][next - 2] && mesh__is_even(p, &p->at[on], route->src_spec)) {
        *split = mesh__spec_split(route->src_spec, &p->at[on], &p->at[next]);
        route->src = &p->at[next];
        route->src_spec = split;
        return 1;
    }
    if (on >= 2 && next < 2 && q->same[on - 2][next] && mesh__is_even(p, &p->at[next], route->dst_spec)) {
        *split = mesh__spec_split(route->dst_spec, &p->at[next], &p->at[on]);
        route->dst = &p->at[on];
        route->dst_spec = split;
        return 1;
    }
    return 0;
}

static inline int mesh__same_places(const mesh_spec *a, const mesh_spec *b) {
    mesh_spec x = *a, y = *b;
    x.strict = y.strict = 0;
    return mesh_spec_equal(&x, &y);
}

/* Does a layout shard as the destination does and further, so that every rank can make its part where it will be in the end? */
static inline int mesh__refines(const mesh_plan *p, int layout, int same) {
    mesh_spec to = *mesh__layout_spec(p, p->nsteps);
    const mesh_spec *s = mesh__layout_spec(p, layout);
    uint8_t inner[MESH_MAX_AXES], outer[MESH_MAX_AXES];
    int d, i;
    if (!same) {
        if (p->step[layout - 1].on != 3 || !mesh__is_even(p, &p->at[1], &to)) return 0;
        to = mesh__spec_split(&to, &p->at[1], &p->at[3]);
    }
    for (d = 0; d < p->ndim; d++) {
        int n = mesh__dim_axes(&to, d, outer), k = mesh__dim_axes(s, d, inner);
        if (k < n) return 0;
        for (i = 0; i < n; i++)
            if (inner[i] != outer[i]) return 0;
    }
    return 1;
}

/* The path is whole: what it costs, and whether it is among the best. */
static inline void mesh__consider(mesh__search *q) {
    mesh_plan *p = &q->path;
    mesh__cost cost[MESH_MAX_STEPS];
    int64_t cap = q->d->scratch_cap;
    int k, at, reduced = 1, last_reduce = -1, rounds, same, even;
    mesh_spec split;
    p->bytes = p->ps = 0;
    for (k = 0; k < p->nsteps; k++) {
        mesh_moves route;
        mesh_step *s = &p->step[k];
        int on = k ? p->step[k - 1].on : 0;
        mesh__moves_layouts(&route, p, k);
        if (p->op == MESH_PROD && route.made_partial) return; /* no whole value is a product of copies of itself */
        same = mesh__same_axes(q, on, s->on, &route, &split);
        if (same && p->nsteps > 1 && mesh__same_places(route.src_spec, route.dst_spec))
            return; /* a step that does nothing */
        s->kind = route.summands > 1 ? MESH_STEP_REDUCE : MESH_STEP_MOVE;
        s->rounds = 1;
        even = mesh__is_even(p, route.src, route.src_spec) && mesh__is_even(p, route.dst, route.dst_spec);
        cost[k] =
            mesh__cost_of(p, &route, same,
                          !even && p->at[0].size <= MESH__EXACT_RANKS && p->at[1].size <= MESH__EXACT_RANKS ? k : -1);
        cost[k].inside = k < p->nsteps - 1 && mesh__refines(p, k + 1, q->same[s->on][1]);
        s->bytes = cost[k].bytes;
        s->ps = cost[k].ps;
        if (s->kind == MESH_STEP_REDUCE)
            s->ps = mesh__add64(
                s->ps, mesh__local_time(&p->topology, mesh__mul64(cost[k].staged, (int64_t)cost[k].summands + 1)));
        else if (k < p->nsteps - 1 && !cost[k].inside)
            s->ps = mesh__add64(s->ps, mesh__local_time(&p->topology, cost[k].staged));
        s->messages = cost[k].messages;
        s->divide = 0;
        reduced *= cost[k].summands;
        if (cost[k].summands > 1) last_reduce = k;
        p->bytes = mesh__add64(p->bytes, s->bytes);
        p->ps = mesh__add64(p->ps, s->ps);
        if (q->found == q->cap && !cap && p->ps > q->best[q->found - 1].ps) return;
    }
    if (p->op == MESH_AVG && last_reduce >= 0) p->step[last_reduce].divide = reduced;
    p->scratch = mesh__path_scratch(p, cost, 1);
    if (cap && p->scratch > cap) { /* more rounds, smaller slabs; not always less, for two are held in turn */
        for (rounds = 2; rounds <= MESH__MAX_ROUNDS && p->scratch > cap; rounds *= 2) {
            if (q->least < 0 || p->scratch < q->least) q->least = p->scratch;
            p->scratch = mesh__path_scratch(p, cost, rounds);
        }
        if (q->least < 0 || p->scratch < q->least) q->least = p->scratch;
        if (p->scratch > cap) return;
    }
    for (at = q->found; at > 0; at--) {
        const mesh_plan *b = &q->best[at - 1];
        int equal = b->nsteps == p->nsteps;
        if (b->ps < p->ps || (b->ps == p->ps && b->bytes < p->bytes) ||
            (b->ps == p->ps && b->bytes == p->bytes && b->nsteps <= p->nsteps)) {
            for (k = 0; k < p->nsteps && equal; k++)
                equal = q->same[b->step[k].on][p->step[k].on] && mesh_spec_equal(&b->step[k].spec, &p->step[k].spec);
            if (equal) return;
            break;
        }
    }
    if (at == q->cap) return;
    if (q->found < q->cap) q->found++;
    for (k = q->found - 1; k > at; k--) q->best[k] = q->best[k - 1];
    q->best[at] = *p;
}

static inline int mesh__push(mesh__search *q, int on, const mesh_spec *spec) {
    if (q->path.nsteps == MESH_MAX_STEPS) return 0;
    q->path.step[q->path.nsteps].on = (uint8_t)on;
    q->path.step[q->path.nsteps++].spec = *spec;
    return 1;
}
/* The path so far, and then straight to the destination. */
static inline void mesh__finish_path(mesh__search *q) {
    if (!mesh__push(q, 1, q->d->to)) return;
    mesh__consider(q);
    q->path.nsteps--;
}

/* The dim along which an axis should shard further: the longest that it divides, else the longest. */
static inline int mesh__best_dim(const mesh_plan *p, const mesh *m, const mesh__form *f, int axis) {
    int64_t best = -1, size = m->axis[axis].size;
    int d, i, dim = 0, divides = 0;
    for (d = 0; d < p->ndim; d++) {
        int64_t n = p->shape[d];
        int even;
        for (i = 0; i < f->count[d]; i++) n = mesh__ceil(n, m->axis[f->axis[d][i]].size);
        even = n > 0 && n % size == 0;
        if (even > divides || (even == divides && n > best)) best = n, dim = d, divides = even;
    }
    return dim;
}

/* The axes in a mask by the stride of their innermost mode, smallest first: the nearest ranks first. */
static inline int mesh__by_stride(const mesh *m, uint32_t mask, uint8_t *list) {
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
static inline void mesh__refine(const mesh_plan *p, const mesh *m, mesh__form *f, uint32_t mask,
                                const mesh_spec *like) {
    uint8_t list[MESH_MAX_AXES];
    int d, i, n;
    for (d = 0; d < p->ndim && like; d++) {
        n = mesh__dim_axes(like, d, list);
        for (i = 0; i < n; i++)
            if (mask >> list[i] & 1) {
                f->axis[d][f->count[d]++] = list[i];
                mask &= ~(UINT32_C(1) << list[i]);
            }
    }
    n = mesh__by_stride(m, mask, list);
    for (i = 0; i < n && p->ndim; i++) {
        d = mesh__best_dim(p, m, f, list[i]);
        f->axis[d][f->count[d]++] = list[i];
    }
}

/* Every axis split into its prime factors, outermost first. Returns 0 if nothing is split or there are too many. */
static inline int mesh__split_primes(mesh *r, const mesh *m) {
    int i, k, more = 0;
    mesh__start(r, m);
    for (i = 0; i < m->naxes; i++) {
        int part = 0;
        for (k = m->axis[i].first; k < m->axis[i].first + m->axis[i].modes; k++) {
            int shape = m->mode[k].shape, prime = 2;
            while (shape > 1) {
                char name[MESH_NAME_BYTES];
                mesh__text t = mesh__text_on(name, sizeof name - 3);
                while (shape % prime && prime <= shape / prime) prime++;
                if (shape % prime) prime = shape;
                shape /= prime;
                if (r->naxes == MESH_MAX_AXES) return 0;
                mesh__put(&t, "%s", m->axis[i].name);
                if (t.len > sizeof name - 4) t.len = sizeof name - 4;
                t.cap = sizeof name;
                mesh__put(&t, "/%d", part++);
                mesh__axis_add(r, name);
                mesh__mode_add(r, prime, m->mode[k].stride * shape);
            }
        }
        if (part == 0) {
            if (r->naxes == MESH_MAX_AXES) return 0;
            mesh__axis_add(r, m->axis[i].name);
        }
        more |= part > 1;
    }
    return more && !mesh__finish(r);
}

static inline uint32_t mesh__axes_of_kind(const mesh *m, const mesh_spec *s, int kind) {
    uint32_t mask = 0;
    int i;
    for (i = 0; i < m->naxes; i++)
        if (s->axis[i].kind == kind && m->axis[i].size > 1) mask |= UINT32_C(1) << i;
    return mask;
}

/* By way of the destination sharded further over what it replicates, then gathering: at once, or an axis at a time, the farthest ranks
   first while there is little to move. here: the layout reached, NULL if it is on another mesh. roomy: shard where there is most room,
   not as the layout reached does. */
static inline void mesh__tail_gather(mesh__search *q, int on, const mesh_spec *to, const mesh_spec *here, int roomy) {
    mesh_plan *p = &q->path;
    const mesh *m = &p->at[on];
    mesh__form f = mesh__form_of(to);
    mesh_spec spec;
    uint32_t mask = mesh__axes_of_kind(m, to, MESH_REPLICATE);
    int start = p->nsteps, left, d, i, k;
    uint8_t count[MESH_MAX_DIMS];
    for (d = 0; d < MESH_MAX_DIMS; d++) count[d] = f.count[d];
    if (here) mask &= ~mesh__axes_of_kind(m, here, MESH_REPLICATE);
    if (!mask || !p->ndim) return;
    mesh__refine(p, m, &f, mask, roomy ? NULL : here);
    spec = mesh__spec_of(&f, to);
    if (!(here && mesh_spec_equal(&spec, here)) && !mesh__push(q, on, &spec)) return;
    if (on == 1) mesh__finish_path(q);
    for (left = 0, k = 0; k < m->naxes; k++) left += mask >> k & 1;
    for (; left > 1; left--) {
        int farthest = -1, dim = 0;
        for (d = 0; d < p->ndim; d++) { /* of the innermost of each dim */
            if (f.count[d] == count[d]) continue;
            i = f.axis[d][f.count[d] - 1];
            k = m->mode[m->axis[i].first].stride;
            if (k > farthest) farthest = k, dim = d;
        }
        f.count[dim]--;
        spec = mesh__spec_of(&f, to);
        if (!mesh__push(q, on, &spec)) break;
    }
    if (left == 1) mesh__finish_path(q);
    p->nsteps = start;
}

/* Axis by axis: those that are placed differently move one at a time, in an order. */
static inline void mesh__tail_axes(mesh__search *q, const mesh_spec *here) {
    const mesh_spec *to = q->d->to;
    mesh_plan *p = &q->path;
    int axis[MESH_MAX_AXES], n = 0, i, orders, o, start = p->nsteps;
    for (i = 0; i < to->naxes; i++)
        if (here->axis[i].kind != to->axis[i].kind ||
            (to->axis[i].kind == MESH_SHARD && here->axis[i].dim != to->axis[i].dim))
            axis[n++] = i;
    if (n < 2) return;
    orders = n == 3 ? 6 : 2;
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
            for (d = 0; d < p->ndim; d++) {
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
        p->nsteps = start;
    }
}

/* Every way from the layout reached, in which nothing has to be reduced any more, to the destination. */
static inline void mesh__tails(mesh__search *q, int on, const mesh_spec *here) {
    int split = q->same[3][3]; /* is there such a mesh */
    mesh__finish_path(q);
    if (q->path.nsteps == 0 && q->path.topology.nlevels == 1 && q->path.topology.level[0].latency_ps == 0 &&
        (q->path.at[0].size > MESH__EXACT_RANKS || q->path.at[1].size > MESH__EXACT_RANKS))
        return; /* only bytes count, nothing receives fewer, and estimates must not say otherwise */
    mesh__tail_gather(q, 1, q->d->to, q->same[on][1] ? here : NULL, 0);
    if (q->same[on][1]) mesh__tail_gather(q, 1, q->d->to, here, 1);
    if (q->same[on][1]) mesh__tail_axes(q, here);
    if (split) {
        mesh_spec to = mesh__spec_split(q->d->to, &q->path.at[1], &q->path.at[3]), from;
        int same = q->same[on][3];
        if (!same && q->same[on][1] && mesh__is_even(&q->path, &q->path.at[on], here)) {
            from = mesh__spec_split(here, &q->path.at[1], &q->path.at[3]);
            here = &from;
            same = 1;
        }
        mesh__tail_gather(q, 3, &to, same ? here : NULL, 0);
    }
}

/* Reduce over the partial axes, scattering: at once, or an axis at a time, the nearest ranks first or the farthest; with the tensor sliced
   along some of the axes that replicate it. */
static inline void mesh__heads(mesh__search *q, int on, const mesh_spec *from, const mesh_spec *like, uint32_t partial,
                               uint32_t slice) {
    mesh_plan *p = &q->path;
    const mesh *m = &p->at[on];
    mesh__form all = mesh__form_of(from);
    mesh_spec spec;
    uint8_t list[MESH_MAX_AXES];
    int n = mesh__by_stride(m, partial, list), i, d, k, start = p->nsteps, way;
    mesh__refine(p, m, &all, partial | slice, like);
    spec = mesh__spec_of(&all, from);
    if (on == 0) {
        if (!mesh__push(q, on, &spec)) return;
        mesh__tails(q, on, &spec);
        p->nsteps = start;
    }
    if (n < 2) return;
    for (way = 0; way < (on == 0 ? 2 : 1); way++) {
        uint32_t done = ~partial;
        for (i = 0; i < n; i++) {
            mesh__form f = all;
            done |= UINT32_C(1) << list[way ? n - 1 - i : i];
            for (d = 0; d < p->ndim; d++) {
                int kept = 0;
                for (k = 0; k < all.count[d]; k++)
                    if (done >> all.axis[d][k] & 1) f.axis[d][kept++] = all.axis[d][k];
                f.count[d] = (uint8_t)kept;
            }
            spec = mesh__spec_of(&f, from);
            if (!mesh__push(q, on, &spec)) break;
            if (i < n - 1) mesh__finish_path(q); /* what is left is reduced at the destination */
        }
        if (i == n) mesh__tails(q, on, &spec);
        p->nsteps = start;
    }
}

/* The partial axes whose summands the destination does not keep apart. */
static inline uint32_t mesh__to_reduce(const mesh *m, const mesh_spec *from, const mesh *dst, const mesh_spec *to) {
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

static inline void mesh__search_all(mesh__search *q) {
    const mesh_spec *from = q->d->from, *to = q->d->to;
    mesh_plan *p = &q->path;
    const mesh *m = &p->at[0];
    uint32_t partial = mesh__to_reduce(m, from, &p->at[1], to),
             replicated = mesh__axes_of_kind(m, from, MESH_REPLICATE), used;
    uint8_t list[MESH_MAX_AXES];
    int n, code, i, every;
    if (!partial) {
        mesh__tails(q, 0, from);
        return;
    }
    mesh__finish_path(q);
    if (!p->ndim) return;
    n = mesh__by_stride(m, replicated, list);
    every = n <= 4; /* every subset, or none, all, and those that the destination shards */
    for (code = 0; code < (every ? 1 << n : 3); code++) {
        for (i = 0, used = 0; i < n; i++) {
            int sharded = q->same[0][1] && to->axis[list[i]].kind == MESH_SHARD;
            if (every ? code >> i & 1 : code == 1 || (code == 2 && sharded)) used |= UINT32_C(1) << list[i];
        }
        mesh__heads(q, 0, from, q->same[0][1] ? to : NULL, partial, used);
        if (q->same[2][2] && (used == 0 || used == replicated)) {
            mesh_spec split_from = mesh__spec_split(from, m, &p->at[2]), split_to = *to;
            int like = q->same[2][3] && q->same[3][3];
            if (like) split_to = mesh__spec_split(to, &p->at[1], &p->at[3]);
            uint32_t split_partial = 0, split_used = 0;
            for (i = 0; i < p->at[2].naxes; i++) {
                if (p->at[2].axis[i].size == 1) continue;
                if (split_from.axis[i].kind == MESH_REPLICATE && used) split_used |= UINT32_C(1) << i;
            }
            split_partial = mesh__to_reduce(&p->at[2], &split_from, &p->at[1], to);
            mesh__heads(q, 2, &split_from, like ? &split_to : NULL, split_partial, split_used);
        }
    }
}

/* ---- // >>plans ------------------------------------------------------------------------------------------------------- */

static inline mesh_status mesh__plan_check(const mesh_plan_desc *d, const mesh *src, const mesh *dst,
                                           int64_t elem_bytes, mesh_error *err) {
    const char *f = "mesh_plan_make";
    int i, k, from_op = -1, to_op = -1, from_axis = 0, to_axis = 0;
    int64_t total = elem_bytes;
    mesh_error why;
    if (elem_bytes < 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: elements of %l bytes (dtype %d); give a dtype of MESH_DTYPES, or elem_bytes", f,
                          elem_bytes, (int)d->dtype);
    if (d->scratch_cap < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: scratch_cap is %l; 0 means any", f, d->scratch_cap);
    if (d->topology && mesh_topology_check(d->topology, err) != MESH_OK) return MESH_ERR_ARGUMENT;
    for (i = 0; i < 2; i++)
        if (mesh_spec_check(i ? d->to : d->from, i ? dst : src, d->ndim, d->shape, &why) != MESH_OK)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %s: %s", f, i ? "destination" : "source", why.text);
    for (k = 0; k < d->ndim; k++) total = mesh__mul64(total, d->shape[k]);
    if (total > INT64_MAX / 4)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: the tensor's bytes overflow: more than 2^61; give a smaller shape than dim 0's %l", f,
                          d->ndim ? d->shape[0] : 1);
    for (i = 0; i < src->naxes; i++)
        if (d->from->axis[i].kind == MESH_PARTIAL) from_op = d->from->axis[i].op, from_axis = i;
    for (i = 0; i < dst->naxes; i++)
        if (d->to->axis[i].kind == MESH_PARTIAL) to_op = d->to->axis[i].op, to_axis = i;
    if (from_op >= 0 && to_op >= 0 && from_op != to_op)
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "%s: axis \"%s\" is partial over %s, and axis \"%s\" of the destination over %s; reduce first, into a "
            "spec without partial axes",
            f, src->axis[from_axis].name, mesh_op_name((mesh_op)from_op), dst->axis[to_axis].name,
            mesh_op_name((mesh_op)to_op));
    if (to_op == MESH_AVG || to_op == MESH_PROD) { /* only summands that are there already */
        mesh_digits have = mesh__digits_of(src, d->from, MESH_PARTIAL),
                    want = mesh__digits_of(dst, d->to, MESH_PARTIAL), common, rest;
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

static inline uint64_t mesh__spec_hash(uint64_t h, const mesh_spec *s) {
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

static inline uint64_t mesh__plan_hash(const mesh_plan *p) {
    uint64_t h = mesh__mix(mesh_fingerprint(&p->at[0]), mesh_fingerprint(&p->at[1]));
    int k;
    h = mesh__spec_hash(mesh__mix(h, (uint64_t)p->ndim << 32 | (uint64_t)p->dtype << 8 | (uint64_t)p->nsteps),
                        &p->from);
    h = mesh__mix(h, (uint64_t)p->elem_bytes);
    for (k = 0; k < p->ndim; k++) h = mesh__mix(h, (uint64_t)p->shape[k]);
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

MESH_API int mesh_plan_candidates(mesh_plan *plans, int cap, const mesh_plan_desc *d, mesh_error *err) {
    mesh__search q;
    mesh_plan *p = &q.path;
    const mesh *src = d ? d->src : NULL, *dst = d && d->dst ? d->dst : src;
    int64_t elem_bytes = !d ? 0 : d->elem_bytes ? d->elem_bytes : (int64_t)mesh_dtype_bytes(d->dtype);
    int i, k, split;
    if (!d || !src || !d->from || !d->to || cap < 1 || !plans)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_plan_make: %s is missing",
                          !d         ? "the description"
                          : !src     ? "desc.src"
                          : !d->from ? "desc.from"
                          : !d->to   ? "desc.to"
                                     : "room for a plan"),
               -1;
    if (mesh__plan_check(d, src, dst, elem_bytes, err) != MESH_OK) return -1;
    q.d = d;
    q.best = plans;
    q.cap = cap;
    q.found = 0;
    q.least = -1;
    p->at[0] = *src;
    p->at[1] = *dst;
    p->from = *d->from;
    p->ndim = d->ndim;
    p->nsteps = 0;
    p->op = MESH_SUM;
    for (i = 0; i < src->naxes; i++)
        if (p->from.axis[i].kind == MESH_PARTIAL) p->op = p->from.axis[i].op;
    for (i = 0; i < dst->naxes; i++)
        if (d->to->axis[i].kind == MESH_PARTIAL) p->op = d->to->axis[i].op;
    p->dtype = d->dtype;
    p->elem_bytes = elem_bytes;
    for (i = 0; i < MESH_MAX_DIMS; i++) p->shape[i] = i < d->ndim ? d->shape[i] : 0;
    p->topology = d->topology && d->topology->nlevels ? *d->topology : mesh__flat();
    split = mesh__split_primes(&p->at[2], src) && mesh__is_even(p, src, d->from);
    if (!split) mesh__start(&p->at[2], NULL);
    q.same[2][2] = split;
    split = mesh__split_primes(&p->at[3], dst) && mesh__is_even(p, dst, d->to);
    if (!split) mesh__start(&p->at[3], NULL);
    q.same[3][3] = split;
    for (i = 0; i < 4; i++)
        for (k = 0; k < 4; k++)
            if (i != k || i < 2) q.same[i][k] = mesh_equal(&p->at[i], &p->at[k]);
    mesh__search_all(&q);
    if (q.found == 0)
        return mesh__fail(
                   err, MESH_ERR_MEMORY, -1,
                   "mesh_plan_make: no plan needs as little scratch as scratch_cap = %l bytes; the least possible is %l",
                   d->scratch_cap, q.least),
               -1;
    for (i = 0; i < q.found; i++) plans[i].hash = mesh__plan_hash(&plans[i]);
    return q.found;
}

MESH_API mesh_status mesh_plan_make(mesh_plan *p, const mesh_plan_desc *d, mesh_error *err) {
    mesh_error why;
    if (mesh_plan_candidates(p, 1, d, &why) > 0) return MESH_OK;
    if (err) *err = why;
    return (mesh_status)why.status;
}

/* ---- // >>explain ----------------------------------------------------------------------------------------------------- */

/* Which axes a step changes and how, for its name. */
enum {
    MESH__SLICED = 1,
    MESH__GATHERED = 2,
    MESH__MOVED = 4,
    MESH__ORDERED = 8,
    MESH__SCATTERED = 16,
    MESH__SUMMED = 32,
    MESH__FILLED = 64
};

typedef struct mesh__change {
    int known, what;
    uint32_t axes; /* of `on` */
    const mesh *on;
} mesh__change;

static inline mesh__change mesh__step_change(const mesh_plan *p, int step) {
    mesh__change c;
    const mesh *a = mesh__layout_mesh(p, step), *b = mesh__layout_mesh(p, step + 1);
    mesh_spec from = *mesh__layout_spec(p, step), to = *mesh__layout_spec(p, step + 1);
    int on = step ? p->step[step - 1].on : 0, next = p->step[step].on, i;
    c.what = 0;
    c.axes = 0;
    c.on = b;
    c.known = mesh_equal(a, b);
    if (!c.known && on < 2 && next >= 2 && mesh_equal(a, &p->at[next - 2])) {
        from = mesh__spec_split(&from, a, b);
        c.known = 1;
    } else if (!c.known && on >= 2 && next < 2 && mesh_equal(b, &p->at[on - 2])) {
        to = mesh__spec_split(&to, b, a);
        c.on = a;
        c.known = 1;
    }
    for (i = 0; i < c.on->naxes && c.known; i++) {
        const mesh_place *x = &from.axis[i], *y = &to.axis[i];
        int what = 0;
        if (c.on->axis[i].size == 1) continue;
        if (x->kind == MESH_REPLICATE)
            what = y->kind == MESH_SHARD ? MESH__SLICED : y->kind == MESH_PARTIAL ? MESH__FILLED : 0;
        if (x->kind == MESH_PARTIAL)
            what = y->kind == MESH_SHARD ? MESH__SCATTERED : y->kind == MESH_REPLICATE ? MESH__SUMMED : 0;
        if (x->kind == MESH_SHARD)
            what = y->kind == MESH_REPLICATE ? MESH__GATHERED
                   : y->kind == MESH_PARTIAL ? MESH__GATHERED | MESH__FILLED
                   : y->dim != x->dim        ? MESH__MOVED
                   : y->order != x->order    ? MESH__ORDERED
                                             : 0;
        c.what |= what;
        if (what) c.axes |= UINT32_C(1) << i;
    }
    return c;
}

MESH_API const char *mesh_step_name(const mesh_plan *p, int step) {
    mesh__change c;
    int reduces;
    if (step < 0 || step >= p->nsteps) return "no step";
    c = mesh__step_change(p, step);
    reduces = p->step[step].kind == MESH_STEP_REDUCE;
    if (!c.known) return reduces ? "reduce, exchange" : "exchange";
    switch (c.what) {
    case 0:
        return "copy";
    case MESH__SLICED:
        return "slice";
    case MESH__GATHERED:
        return "all_gather";
    case MESH__MOVED:
        return "all_to_all";
    case MESH__ORDERED:
        return "permute";
    case MESH__SCATTERED:
        return "reduce_scatter";
    case MESH__SCATTERED | MESH__SLICED:
        return "slice, reduce_scatter";
    case MESH__SUMMED:
        return "all_reduce";
    case MESH__FILLED:
        return "fill";
    default:
        return reduces ? "reduce, exchange" : "exchange";
    }
}

static inline void mesh__put_column(mesh__text *t, size_t start, size_t width) {
    do mesh__put_char(t, ' ');
    while (t->len < start + width);
}
/* 1536 as "1.5 KiB". */
static inline void mesh__put_bytes(mesh__text *t, int64_t n) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int u = 0;
    int64_t rest = 0;
    for (; n >= 1024 && u < 6; u++) rest = n & 1023, n >>= 10;
    mesh__put(t, "%l", n);
    if (u) mesh__put(t, ".%d", (int)(rest * 10 / 1024));
    mesh__put(t, " %s", unit[u]);
}
/* Picoseconds as "12.5 us". */
static inline void mesh__put_time(mesh__text *t, int64_t ps) {
    static const char *const unit[] = {"ps", "ns", "us", "ms", "s"};
    int u = 0;
    int64_t rest = 0;
    for (; ps >= 1000 && u < 4; u++) rest = ps % 1000, ps /= 1000;
    mesh__put(t, "%l", ps);
    if (u) mesh__put(t, ".%d", (int)(rest / 100));
    mesh__put(t, " %s", unit[u]);
}

/* "over dp,tp": the axes that a step works along. */
static inline void mesh__put_axes(mesh__text *t, const mesh_plan *p, int step) {
    mesh__change c = mesh__step_change(p, step);
    int i, n = 0, end;
    if (!c.known) {
        mesh__put(t, "between meshes");
        return;
    }
    for (i = 0; i < c.on->naxes; i = end) { /* the parts "dp/0", "dp/1" of a split axis stand together */
        const char *name = c.on->axis[i].name;
        int length = mesh__name_length(name), all = 1, j, k;
        for (end = i; end < c.on->naxes; end++) {
            for (k = 0; k < length && c.on->axis[end].name[k] == name[k]; k++) {}
            if (end > i && (k < length || c.on->axis[end].name[k] != '/' || name[length] != '/')) break;
            all &= (int)(c.axes >> end & 1);
        }
        if (all) mesh__put(t, n++ ? "," : "");
        for (k = 0; k < length && all; k++) mesh__put_char(t, name[k]);
        for (j = i; j < end && !all; j++)
            if (c.axes >> j & 1) mesh__put(t, "%s%s", n++ ? "," : "", c.on->axis[j].name);
    }
    if (!n) mesh__put_char(t, '-');
}

static inline void mesh__put_layout(mesh__text *t, const mesh *m, const mesh_spec *s) {
    char text[256];
    mesh_spec_format(s, m, text, sizeof text);
    mesh__put(t, "%s", m->naxes ? text : "(one rank)");
}

static inline void mesh__put_problem(mesh__text *t, const mesh_plan *p) {
    int64_t total = p->elem_bytes;
    int d;
    for (d = 0; d < p->ndim; d++) {
        mesh__put(t, "%s%l", d ? "x" : "", p->shape[d]);
        total = mesh__mul64(total, p->shape[d]);
    }
    if (!p->ndim) mesh__put(t, "scalar");
    mesh__put(t, " %s, ", mesh_dtype_name(p->dtype));
    mesh__put_bytes(t, total);
}

MESH_API size_t mesh_plan_format(const mesh_plan *p, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int k, side;
    size_t start;
    for (side = 0; side < 2; side++) {
        mesh__put(&t, side ? "to    " : "from  ");
        mesh__put_layout(&t, &p->at[side], mesh__layout_spec(p, side ? p->nsteps : 0));
        mesh__put(&t, "  on %s", mesh__show(&p->at[side]).text);
        if (!side) {
            mesh__put(&t, "  (");
            mesh__put_problem(&t, p);
            mesh__put(&t, ")");
        }
        mesh__put_char(&t, '\n');
    }
    mesh__put(&t, "step                   along           bytes/rank  messages  rounds  predicted  then\n");
    for (k = 0; k < p->nsteps; k++) {
        const mesh_step *s = &p->step[k];
        start = t.len;
        mesh__put(&t, "%d %s", k + 1, mesh_step_name(p, k));
        mesh__put_column(&t, start, 23);
        mesh__put_axes(&t, p, k);
        mesh__put_column(&t, start, 39);
        mesh__put_bytes(&t, s->bytes);
        mesh__put_column(&t, start, 51);
        mesh__put(&t, "%d", s->messages);
        mesh__put_column(&t, start, 61);
        mesh__put(&t, "%d", s->rounds);
        mesh__put_column(&t, start, 69);
        mesh__put_time(&t, s->ps);
        mesh__put_column(&t, start, 80);
        mesh__put_layout(&t, &p->at[s->on], &s->spec);
        mesh__put_char(&t, '\n');
    }
    start = t.len;
    mesh__put(&t, "total");
    mesh__put_column(&t, start, 39);
    mesh__put_bytes(&t, p->bytes);
    mesh__put_column(&t, start, 69);
    mesh__put_time(&t, p->ps);
    mesh__put(&t, "\nscratch ");
    mesh__put_bytes(&t, p->scratch);
    mesh__put(&t, ", hash %x\n", p->hash);
    return t.len;
}

MESH_API size_t mesh_plan_json(const mesh_plan *p, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int k, d;
    mesh__put(&t, "{\"from\": {\"mesh\": \"%s\", \"spec\": \"", mesh__show(&p->at[0]).text);
    mesh__put_layout(&t, &p->at[0], &p->from);
    mesh__put(&t, "\"}, \"to\": {\"mesh\": \"%s\", \"spec\": \"", mesh__show(&p->at[1]).text);
    mesh__put_layout(&t, &p->at[1], mesh__layout_spec(p, p->nsteps));
    mesh__put(&t, "\"}, \"shape\": [");
    for (d = 0; d < p->ndim; d++) mesh__put(&t, "%s%l", d ? ", " : "", p->shape[d]);
    mesh__put(&t, "], \"dtype\": \"%s\", \"elem_bytes\": %l, \"steps\": [", mesh_dtype_name(p->dtype), p->elem_bytes);
    for (k = 0; k < p->nsteps; k++) {
        const mesh_step *s = &p->step[k];
        mesh__put(&t, "%s{\"name\": \"%s\", \"axes\": \"", k ? ", " : "", mesh_step_name(p, k));
        mesh__put_axes(&t, p, k);
        mesh__put(&t, "\", \"bytes\": %l, \"messages\": %d, \"rounds\": %d, \"ps\": %l, \"mesh\": \"%s\", \"spec\": \"",
                  s->bytes, s->messages, s->rounds, s->ps, mesh__show(&p->at[s->on]).text);
        mesh__put_layout(&t, &p->at[s->on], &s->spec);
        mesh__put(&t, "\"}");
    }
    mesh__put(&t, "], \"bytes\": %l, \"ps\": %l, \"scratch\": %l, \"hash\": \"%x\"}", p->bytes, p->ps, p->scratch,
              p->hash);
    return t.len;
}

#ifdef __cplusplus
}
#endif
#endif /* MESH_PLAN_IMPLEMENTED */
