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

/* What a search left out. */
enum {
    MESH_LIMIT_FACTORS = 1, /* axes split into single primes: they would be more than 16 */
    MESH_LIMIT_ORDERS = 2,  /* every order in which more than 3 axes change one at a time */
    MESH_LIMIT_SLICES = 4,  /* every choice among more than 4 axes to slice along before reducing */
    MESH_LIMIT_TRIES = 8    /* layouts on the way beyond the first 1,024, or than 50 ms of counting */
};

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
/* No way of doing it has the worst rank receive fewer bytes. The larger of: what a rank itself lacks of its new box; and what has to move
   in all, shared evenly: to make one value of G summands takes G - 1 transfers if a receiver holds one of them, else G; each further
   receiver that does not hold the value takes one more. Exact where nothing is partial, on even sizes. O(ranks). */
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
    const mesh *src, *dst;
    const mesh_spec *src_spec, *dst_spec;
    int rank, round, last_round, rounds, slab_dim, by_source;
    mesh_digits kept;               /* partial on both sides: summands that stay apart; part of fixed */
    mesh_digits placed;             /* sharded, then partial: each part stays where it is, zero elsewhere */
    mesh_digits fixed, spread, sum; /* of sources: as the receiver's; any will do; each one is needed */
    mesh_digits to_spread, to_zero; /* of receivers: all receive; 0 receives, others are zero */
    int made_partial;               /* digits that are partial at the destination only */
    int src_coord[MESH_MAX_AXES], own_kept, want_kept, want_placed,
        own_spread;          /* this rank as a source; own_spread -1: it is none */
    int replicas, receivers; /* the products of spread and of to_spread */
    int state, fixed_offset, placed_offset, sum_at, pick, picks, turn, single, receiver;
    int level, near_first; /* of the replicas that count: -1, all do; the first of them, -1: a table scatters them */
    int holds;             /* the receiver has the piece's shard */
    int nothing;           /* all of the rank's box becomes zero */
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
    MESH__EXACT_RANKS = 12, /* up to so many are counted one by one where sizes do not divide */
    MESH__BYTES_RANKS = 64, /* ... and in the end, or where only bytes count, also where replicas share */
    MESH__TRIES = 1024,     /* layouts by way of which a search goes, at most */
    MESH__WORK = 1500000,   /* ranks and peers visited to count bytes, in all: some 50 ms */
    MESH__TRY_PS = 30000000 /* what a plan must take for each of them to be worth a look */
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

/* Largest stride first, so that a greater index lies further on. */
static inline void mesh__digits_order(mesh_digits *d) {
    int i, k;
    for (i = 1; i < d->n; i++) {
        mesh_mode digit = d->digit[i];
        for (k = i; k > 0 && d->digit[k - 1].stride < digit.stride; k--) d->digit[k] = d->digit[k - 1];
        d->digit[k] = digit;
    }
}
/* How many of the offsets that ordered digits make lie below x. */
static inline int64_t mesh__digits_below(const mesh_digits *d, int64_t x) {
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

/* Layout 0 is the source; layout k is reached by step k - 1. */
static inline const mesh *mesh__layout_mesh(const mesh_plan *p, int layout) {
    return layout < 1 ? &p->at[0] : &p->at[p->step[layout - 1].on];
}
static inline const mesh_spec *mesh__layout_spec(const mesh_plan *p, int layout) {
    return layout < 1 ? &p->view.from : &p->step[layout - 1].spec;
}

static inline int mesh__keeps_zero(int op) { return op == MESH_SUM || op == MESH_XOR; }

/* Who gives to whom between two layouts, in digits. */
static inline void mesh__moves_route(mesh_moves *it, int op) {
    mesh_digits src_r = mesh__digits_of(it->src, it->src_spec, MESH_REPLICATE),
                src_p = mesh__digits_of(it->src, it->src_spec, MESH_PARTIAL),
                dst_r = mesh__digits_of(it->dst, it->dst_spec, MESH_REPLICATE),
                dst_p = mesh__digits_of(it->dst, it->dst_spec, MESH_PARTIAL), same;
    int i;
    if (mesh__same_table(it->src, it->dst)) {
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
        mesh_digits src_s = mesh__digits_of(it->src, it->src_spec, MESH_SHARD), rest;
        mesh__digits_match(&src_s, &same, &it->placed, &rest, &it->to_zero);
    } else {
        for (i = 0; i < same.n; i++) mesh__digit_add(&it->to_spread, same.digit[i].shape, same.digit[i].stride);
    }
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
    it->from.ndim = it->to.ndim = p->view.ndim;
    it->from.zero = it->to.zero = 0;
    for (d = 0; d < MESH_MAX_DIMS; d++) it->from.shape[d] = it->from.offset[d] = it->to.shape[d] = it->to.offset[d] = 0;
    it->own_summand = it->own_spread = -1;
    if (mesh_spec_box(it->src_spec, it->src, p->view.ndim, p->view.shape, rank, &it->from)) {
        mesh_coords_of(it->src, rank, it->src_coord);
        mesh__take_apart(it->src, rank, coord);
        it->own_summand = mesh__digits_index(&it->sum, it->src, coord);
        it->own_spread = mesh__digits_index(&it->spread, it->src, coord);
        it->own_kept = mesh__digits_index(&it->kept, it->src, coord);
    } else if (p->view.ndim == 0) {
        it->from.ndim = -1; /* a scalar that is not here */
    }
    if (!mesh_spec_box(it->dst_spec, it->dst, p->view.ndim, p->view.shape, rank, &it->to) && p->view.ndim == 0)
        it->to.ndim = -1;
    mesh__moves_round(it);
}

enum { MESH__MOVES_RECEIVE, MESH__MOVES_PIECE, MESH__MOVES_SEND, MESH__MOVES_RECEIVER, MESH__MOVES_END };

/* The value of a shard's digits; coord: its axes' coordinates. */
static inline int mesh__shard_digits(const mesh_digits *d, const mesh *m, const int *coord) {
    int modes[MESH_MAX_MODES], i, k, index;
    if (!d->n) return 0;
    for (i = 0; i < m->naxes; i++)
        for (index = coord[i], k = m->axis[i].first + m->axis[i].modes - 1; k >= m->axis[i].first; k--) {
            modes[k] = index % m->mode[k].shape;
            index /= m->mode[k].shape;
        }
    return mesh__digits_index(d, m, modes);
}

static inline int mesh__box_some(const mesh_box *b) { return b->ndim >= 0 && mesh_box_count(b) > 0; }

/* Begin a round with what is received. */
static inline void mesh__moves_round(mesh_moves *it) {
    const mesh_plan *p = it->plan;
    it->state = MESH__MOVES_SEND;
    it->pieces.state = 0;
    it->nothing = 0;
    if (mesh__box_some(&it->to)) {
        int coord[MESH_MAX_MODES];
        mesh_box box = it->by_source ? it->to : mesh_box_slab(&it->to, it->slab_dim, it->round, it->rounds);
        mesh__take_apart(it->dst, it->rank, coord);
        it->state = MESH__MOVES_RECEIVE;
        it->fixed_offset = mesh__offset_as(&it->fixed, it->dst, coord);
        it->receiver = mesh__digits_index(&it->to_spread, it->dst, coord);
        it->want_kept = mesh__digits_index(&it->kept, it->dst, coord);
        it->want_placed = mesh__digits_index(&it->placed, it->dst, coord);
        if (mesh__digits_index(&it->to_zero, it->dst, coord)) {
            it->part = box;
            it->nothing = it->round == 0 || !it->by_source ? 1 : 2; /* by source: all of it in the first round */
            return;
        }
        it->sum_at = -1;
        mesh_pieces_start(&it->pieces, it->src_spec, it->src, p->view.ndim, p->view.shape, &box);
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
        int64_t size = it->plan->view.shape[d], at = mesh__shard_number(it->dst_spec, it->dst, d, size, to->offset[d]);
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

/* The nearest replicas of a summand of the shard at `position`, as `rank` sees them: sets level and near_first. Returns how many. Offsets
   grow with a replica's number, so those in one unit of ranks follow one another, unless a table scatters them. */
static inline int mesh__near(mesh_moves *it, int rank, int position, int summand) {
    const mesh_topology *t = &it->plan->topology;
    int64_t base = position + it->fixed_offset + mesh__digits_offset(&it->sum, summand);
    int l, g, near = 0, best = t->nlevels;
    it->level = it->near_first = -1;
    if (t->nlevels == 1) return it->replicas;
    for (l = 0; l < t->nlevels - 1 && !it->src->table; l++) {
        int64_t unit = rank / t->level[l].ranks * (int64_t)t->level[l].ranks - base;
        int64_t first = mesh__digits_below(&it->spread, unit);
        near = (int)(mesh__digits_below(&it->spread, unit + t->level[l].ranks) - first);
        it->near_first = (int)first;
        it->level = l;
        if (near) return near;
    }
    it->near_first = it->level = -1;
    if (!it->src->table) return it->replicas;
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
static inline int mesh__near_at(const mesh_moves *it, int rank, int position, int summand, int n) {
    int g;
    if (it->level < 0) return n;
    if (it->near_first >= 0) return it->near_first + n;
    for (g = 0;; g++)
        if (mesh__level_of(&it->plan->topology, rank, mesh__source_rank(it, position, summand, g)) == it->level &&
            n-- == 0)
            return g;
}
/* The number of a replica among the near ones, of which there are `near`; -1: it is none of them. */
static inline int mesh__near_number(const mesh_moves *it, int rank, int position, int summand, int replica, int near) {
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
   whose own replica is spread. Sets picks (how many of the near ones share the piece), turn (who of them gives the first slab) and
   single (the one, when picks is 1). */
static inline void mesh__choose_sources(mesh_moves *it, int rank, const int *coord, int spread, int position,
                                        int summand, const mesh_box *shard) {
    int near, n;
    it->picks = 1;
    it->single = 0;
    if (it->replicas == 1) return;
    if (it->holds) {
        it->single = spread;
        return;
    }
    near = mesh__near(it, rank, position, summand);
    n = (int)((mesh__receiver_number(it, coord, spread, shard, &it->part) + summand) % near);
    if (near > 1 && it->part.ndim > 0 &&
        mesh_box_count(&it->part) >= mesh__ceil(mesh__cut_bytes(&it->plan->topology), it->plan->elem_bytes)) {
        it->picks = near;
        it->turn = n;
        return;
    }
    it->single = mesh__near_at(it, rank, position, summand, n);
}

/* What the k-th of those that share a piece gives. */
static inline mesh_box mesh__share(const mesh_box *part, int k, int picks) {
    int d, longest = 0;
    for (d = 1; d < part->ndim; d++)
        if (part->shape[d] > part->shape[longest]) longest = d;
    return mesh_box_slab(part, longest, k, picks);
}

/* Nothing comes of the piece at hand: it becomes zero. */
static inline int mesh__moves_zero(mesh_moves *it) {
    it->kind = MESH_MOVE_ZERO;
    it->peer = it->rank;
    it->summand = -1;
    it->box = it->part;
    return 1;
}

/* What is received of the piece at hand: summand after summand, from one or several sources each. */
static inline int mesh__moves_receive(mesh_moves *it) {
    int position = mesh__shard_position(it->src, it->src_spec, it->pieces.coord), n;
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
            n = it->pick++ - 1;
            it->box = mesh__share(&it->part, (n + it->turn) % it->picks, it->picks);
            if (!mesh_box_count(&it->box)) continue;
            it->peer =
                mesh__source_rank(it, position, it->sum_at, mesh__near_at(it, it->rank, position, it->sum_at, n));
            return 1;
        }
    }
    return 0;
}

/* Does this rank serve receiver number it->receiver of the piece at hand? Then the move is set. */
static inline int mesh__moves_serve(mesh_moves *it) {
    int coord[MESH_MAX_AXES], modes[MESH_MAX_MODES], spread = 0, position, n, is_source;
    int rank = mesh__rank_of_position(it->dst, mesh__shard_position(it->dst, it->dst_spec, it->pieces.coord) +
                                                   it->fixed_offset + it->placed_offset +
                                                   mesh__digits_offset(&it->to_spread, it->receiver));
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
    n = mesh__near_number(it, rank, position, it->own_summand, it->own_spread, it->picks);
    if (n < 0) return 0;
    it->box = mesh__share(&it->part, (n + it->turn) % it->picks, it->picks);
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
    it->placed_offset = mesh__offset_as(&it->placed, it->src, coord);
    mesh_pieces_start(&it->pieces, it->dst_spec, it->dst, it->plan->view.ndim, it->plan->view.shape, &box);
}

MESH_API int mesh_moves_next(mesh_moves *it) {
    for (;;) switch (it->state) {
        case MESH__MOVES_RECEIVE:
            if (it->nothing) { /* once */
                it->state = MESH__MOVES_SEND;
                if (it->nothing == 1 && mesh__box_some(&it->part)) return mesh__moves_zero(it);
                break;
            }
            if (it->sum_at >= 0 && mesh__moves_receive(it)) return 1;
            if (mesh__moves_piece(it, 0)) {
                it->sum_at = it->pick = 0;
                if (mesh__shard_digits(&it->placed, it->src, it->pieces.coord) != it->want_placed) {
                    it->sum_at = it->summands;
                    return mesh__moves_zero(it);
                }
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

/* The worst rank's bytes in a step, exactly. Where every piece has one source, boxes say it all. */
static inline int64_t mesh__step_measure(const mesh_plan *p, int step) {
    int64_t worst = 0;
    int side, i, simple;
    mesh_moves route;
    mesh__moves_layouts(&route, p, step);
    simple = route.replicas == 1 && !route.placed.n && !route.to_zero.n && mesh_equal(route.src, route.dst);
    for (side = 0; side < 2; side++)
        for (i = 0; i < p->at[side].size; i++) {
            int rank = mesh_rank_at(&p->at[side], i);
            mesh_traffic t;
            if (side && mesh_index_of(&p->at[0], rank) >= 0) continue;
            if (simple) {
                mesh_box have, want, both;
                int64_t kept = 0;
                if (!mesh_spec_box(route.src_spec, route.src, p->view.ndim, p->view.shape, rank, &have)) continue;
                mesh_spec_box(route.dst_spec, route.dst, p->view.ndim, p->view.shape, rank, &want);
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
static inline int64_t mesh__step_least(const mesh_plan *p, const mesh_moves *route) {
    int64_t worst = 0;
    int i;
    if (route->placed.n || route->to_zero.n) return 0;
    for (i = 0; i < route->dst->size; i++) {
        int rank = mesh_rank_at(route->dst, i);
        mesh_box have, want, both;
        int64_t need;
        mesh_spec_box(route->dst_spec, route->dst, p->view.ndim, p->view.shape, rank, &want);
        need = mesh__mul64(mesh_box_count(&want), route->summands);
        if (mesh_spec_box(route->src_spec, route->src, p->view.ndim, p->view.shape, rank, &have) &&
            mesh_box_intersect(&both, &have, &want))
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
static inline int64_t mesh__transfers(const mesh_plan *p, const mesh_spec *from, const mesh_spec *to, int64_t elements,
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

MESH_API int64_t mesh_plan_lower_bound(const mesh_plan *p) {
    const mesh_spec *from = &p->from, *to = &p->to;
    const mesh *src = &p->at[0], *dst = &p->at[1];
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
        mesh_spec_box(to, dst, p->ndim, p->shape, rank, &want);
        if (!mesh_spec_box(from, src, p->ndim, p->shape, rank, &have))
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

/* Of the ranks that lie along some digits, how many share a unit of so many ranks with one of them. */
static inline int64_t mesh__within(const mesh_digits *d, int unit) {
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
static inline int64_t mesh__time(const mesh_topology *t, const int64_t *near, int64_t all, int self, int64_t messages,
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
static inline int64_t mesh__local_time(const mesh_topology *t, int64_t bytes) {
    return t->level[0].latency_ps ? mesh__mul64(bytes >> 18, t->level[0].ps_per_byte_16) : 0;
}

/* What crosses between two meshes, as a few ranks of one side see the other: its ranks lie along `all`, from its origin on, and each deals
   with `count` of them, the nearest. The worst of them. */
static inline int64_t mesh__time_between(const mesh_topology *t, const mesh *here, const mesh *there, mesh_digits *all,
                                         int64_t count, int64_t messages, int64_t bytes) {
    int64_t worst = 0, most = mesh__digits_size(all);
    int i, k, l;
    mesh__digits_order(all);
    if (count < 1) count = 1;
    for (k = 0; k < 3; k++) { /* the first, the middle and the last */
        int rank = mesh_rank_at(here, k * (here->size - 1) / 2);
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
static inline int64_t mesh__least_part(int rule, int64_t k, int64_t n) {
    int64_t low = 0, high = n;
    mesh__part_cut(rule, k, k - 1, &low, &high);
    return high - low;
}

/* Boxes of a step's two layouts, dim by dim: where the axes that shard a dim begin alike on both sides, those beyond say whether a rank keeps
   its part, cuts it, gathers more around it, or has to look elsewhere. */
typedef struct mesh__shape_of_step {
    int64_t want, have; /* elements of the largest boxes */
    int64_t have_kept,
        want_kept; /* the fewest of its new box that a rank whose box is the largest has, seen from either side */
    int64_t pieces, parts; /* shards that a new box takes from; new boxes that a shard serves */
} mesh__shape_of_step;

/* The axes that really cut a dim, outermost first. */
static inline int mesh__sharding_axes(const mesh *m, const mesh_spec *s, int dim, uint8_t *list) {
    int i, k, n = mesh__dim_axes(s, dim, list);
    for (i = k = 0; i < n; i++)
        if (m->axis[list[i]].size > 1) list[k++] = list[i];
    return k;
}

static inline mesh__shape_of_step mesh__step_shape(const mesh_plan *p, const mesh_moves *route, int same) {
    mesh__shape_of_step r;
    int d, i, k, elsewhere = !same;
    r.want = r.have = r.have_kept = r.want_kept = r.pieces = r.parts = 1;
    for (d = 0; d < p->view.ndim; d++) {
        uint8_t from[MESH_MAX_AXES], to[MESH_MAX_AXES];
        int nfrom = mesh__sharding_axes(route->src, route->src_spec, d, from),
            nto = mesh__sharding_axes(route->dst, route->dst_spec, d, to), kept;
        int64_t want = p->view.shape[d], want_low = want, have = want, have_low = want, placed = 1, a = 1, b = 1;
        for (i = 0; i < nto; i++) {
            want = mesh__ceil(want, route->dst->axis[to[i]].size);
            want_low = mesh__least_part(route->dst_spec->rule, route->dst->axis[to[i]].size, want_low);
        }
        for (i = kept = 0; i < nfrom; i++) {
            int size = route->src->axis[from[i]].size;
            have = mesh__ceil(have, size);
            have_low = mesh__least_part(route->src_spec->rule, size, have_low);
            if (same && route->placed.n && route->dst_spec->axis[from[i]].kind == MESH_PARTIAL)
                placed *= size; /* what comes is from this rank's own coordinate */
            else
                from[kept++] = from[i];
        }
        if (placed > 1 && want > have) want = have;
        elsewhere |= placed > 1 && kept > 0; /* other parts of the dim, cut otherwise */
        for (k = 0; same && k < kept && k < nto && from[k] == to[k]; k++) {}
        for (i = k; i < kept; i++) a *= route->src->axis[from[i]].size;
        for (i = k; i < nto; i++) b *= route->dst->axis[to[i]].size;
        elsewhere |= a > 1 && b > 1;
        r.want = mesh__mul64(r.want, want);
        r.have = mesh__mul64(r.have, have);
        r.want_kept = mesh__mul64(r.want_kept, a > 1 ? have_low : want);
        r.have_kept = mesh__mul64(r.have_kept, b > 1 ? want_low : have);
        if (a > b) r.pieces = mesh__mul64(r.pieces, mesh__ceil(a, b));
        if (b > a) r.parts = mesh__mul64(r.parts, mesh__ceil(b, a));
    }
    if (elsewhere) r.want_kept = r.have_kept = 0;
    return r;
}

/* Between meshes whose axes cannot be compared: the fewest elements of its new box that a rank has already, over up to 16 ranks of one side. */
static inline int64_t mesh__kept_between(const mesh_plan *p, const mesh_moves *route, const mesh *side) {
    int64_t least = INT64_MAX;
    int k, most = side->size < 16 ? side->size : 16;
    for (k = 0; k < most; k++) {
        int rank = mesh_rank_at(side, (int)((int64_t)k * (side->size - 1) / (most > 1 ? most - 1 : 1)));
        mesh_box have, want, both;
        int64_t kept = 0;
        if (mesh_spec_box(route->src_spec, route->src, p->view.ndim, p->view.shape, rank, &have) &&
            mesh_spec_box(route->dst_spec, route->dst, p->view.ndim, p->view.shape, rank, &want) &&
            mesh_box_intersect(&both, &have, &want))
            kept = mesh_box_count(&both);
        if (kept < least) least = kept;
        if (!least) break;
    }
    return least;
}

/* What one step costs its worst rank, from sizes rounded up, or counted. same: both layouts can be compared axis by axis. */
static inline mesh__cost mesh__cost_of(const mesh_plan *p, const mesh_moves *route, int same, int counted) {
    const mesh_topology *t = &p->topology;
    mesh__shape_of_step x = mesh__step_shape(p, route, same);
    int64_t received, sent, come, go, cut = mesh__ceil(mesh__cut_bytes(t), p->elem_bytes);
    mesh_digits along;
    mesh__cost c;
    int i, k;
    c.summands = route->summands;
    c.inside = 0;
    c.staged = mesh__mul64(x.want, p->elem_bytes);
    if (!same) {
        x.want_kept = mesh__kept_between(p, route, route->dst);
        x.have_kept = x.want_kept ? mesh__kept_between(p, route, route->src) : 0;
    }
    received = mesh__mul64(x.want, c.summands) - x.want_kept;
    sent = mesh__ceil(mesh__mul64(x.have, route->receivers), route->replicas) - x.have_kept;
    come = mesh__mul64(x.pieces, c.summands) - (x.want_kept > 0);
    go = mesh__ceil(mesh__mul64(x.parts, route->receivers), route->replicas) - (x.have_kept > 0);
    if (route->replicas > 1 && x.want / x.pieces >= cut && x.want_kept < x.want) come *= route->replicas;
    if (sent < 0) sent = 0;
    received = mesh__mul64(received, p->elem_bytes);
    sent = mesh__mul64(sent, p->elem_bytes);
    c.bytes = received > sent ? received : sent;
    if (counted >= 0) received = sent = c.bytes = mesh__step_measure(p, counted);
    if (come < 0) come = 0;
    if (go < 0) go = 0;
    if (come > INT32_MAX) come = INT32_MAX;
    if (go > INT32_MAX) go = INT32_MAX;
    c.messages = (int)(come > go ? come : go);
    c.ps = 0;
    if (!c.bytes && c.summands == 1) return c;
    along.n = 0;
    if (same) { /* peers have this rank's coordinate along axes that stay as they are, and where the source is replicated */
        int64_t near[MESH_MAX_LEVELS];
        for (i = 0; i < route->src->naxes; i++) {
            const mesh_place *a = &route->src_spec->axis[i], *b = &route->dst_spec->axis[i];
            int moved = a->kind != b->kind || (a->kind == MESH_SHARD && (a->dim != b->dim || a->order != b->order));
            if (a->kind == MESH_REPLICATE || (b->kind == MESH_PARTIAL && route->placed.n)) moved = 0;
            for (k = route->src->axis[i].first; moved && k < route->src->axis[i].first + route->src->axis[i].modes; k++)
                mesh__digit_add(&along, route->src->mode[k].shape, route->src->mode[k].stride);
        }
        if (along.n) {
            int64_t all = mesh__digits_size(&along), few = mesh__mul64(x.pieces, c.summands);
            if (few > all || few <= (x.want_kept > 0)) few = all;
            for (i = 0; i < t->nlevels; i++) { /* few sources: as many as can be are far */
                near[i] = few - (all - mesh__within(&along, t->level[i].ranks));
                if (near[i] < (x.want_kept > 0)) near[i] = x.want_kept > 0;
            }
            c.ps = mesh__time(t, near, few, x.want_kept > 0, c.messages, c.bytes);
            return c;
        }
    }
    along = mesh__digits_of(route->src, route->src_spec, MESH_SHARD);
    for (i = 0; i < route->sum.n; i++) mesh__digit_add(&along, route->sum.digit[i].shape, route->sum.digit[i].stride);
    k = mesh__digits_size(&along);
    for (i = 0; i < route->spread.n; i++)
        mesh__digit_add(&along, route->spread.digit[i].shape, route->spread.digit[i].stride);
    c.ps = mesh__time_between(t, route->dst, route->src, &along, k, come, received);
    along = mesh__digits_of(route->dst, route->dst_spec, MESH_SHARD);
    for (i = 0; i < route->to_spread.n; i++)
        mesh__digit_add(&along, route->to_spread.digit[i].shape, route->to_spread.digit[i].stride);
    k = mesh__digits_size(&along) / route->replicas;
    sent = mesh__time_between(t, route->src, route->dst, &along, k, go, sent);
    if (sent > c.ps) c.ps = sent;
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
    mesh_box box = mesh__box_whole(p->view.ndim, p->view.shape);
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

/* Do the shards of every dim divide it? split: of every dim that an axis shards which is split there, so that its parts cut it the same way. */
static inline int mesh__is_even(const mesh_view *v, const mesh *m, const mesh_spec *s, const mesh *split) {
    int64_t n[MESH_MAX_DIMS];
    int i, d, k, matters[MESH_MAX_DIMS];
    for (d = 0; d < MESH_MAX_DIMS; d++) n[d] = 1, matters[d] = !split;
    for (i = k = 0; i < m->naxes; i++, k++) {
        int size = m->axis[i].size, whole = !split || split->axis[k].size == size, part;
        for (part = split ? split->axis[k].size : size; part < size; part *= split->axis[k].size) k++;
        if (s->axis[i].kind != MESH_SHARD) continue;
        n[s->axis[i].dim] *= size;
        matters[s->axis[i].dim] |= !whole;
    }
    for (d = 0; d < v->ndim; d++)
        if (matters[d] && v->shape[d] % n[d]) return 0;
    return 1;
}

/* Can the two layouts of a step be compared axis by axis? A layout on a mesh and one on the same mesh with its axes split can, where
   sizes divide: the route is then put on the split mesh. */
static inline int mesh__same_axes(const mesh__search *q, int on, int next, mesh_moves *route, mesh_spec *split) {
    const mesh_plan *p = &q->path;
    if (q->same[on][next]) return 1;
    if (on < 2 && next >= 2 && q->same[on][next - 2] &&
        mesh__is_even(&p->view, &p->at[on], route->src_spec, &p->at[next])) {
        *split = mesh__spec_split(route->src_spec, &p->at[on], &p->at[next]);
        route->src = &p->at[next];
        route->src_spec = split;
        return 1;
    }
    if (on >= 2 && next < 2 && q->same[on - 2][next] &&
        mesh__is_even(&p->view, &p->at[next], route->dst_spec, &p->at[on])) {
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
    mesh_spec to = p->view.to;
    const mesh_spec *s = mesh__layout_spec(p, layout);
    uint8_t inner[MESH_MAX_AXES], outer[MESH_MAX_AXES];
    int d, i;
    if (!same) {
        if (p->step[layout - 1].on != 3 || !mesh__is_even(&p->view, &p->at[1], &to, &p->at[3])) return 0;
        to = mesh__spec_split(&to, &p->at[1], &p->at[3]);
    }
    if (s->rule != to.rule && !mesh__is_even(&p->view, mesh__layout_mesh(p, layout), s, NULL)) return 0;
    for (d = 0; d < p->view.ndim; d++) {
        int n = mesh__dim_axes(&to, d, outer), k = mesh__dim_axes(s, d, inner);
        if (k < n) return 0;
        for (i = 0; i < n; i++)
            if (inner[i] != outer[i]) return 0;
    }
    return 1;
}

/* Must a step be counted rank by rank, its sizes being uneven or shared? */
static inline int mesh__must_count(const mesh_plan *p, const mesh_moves *route, int most) {
    if (route->placed.n) most = MESH__BYTES_RANKS;
    return p->at[0].size <= most && p->at[1].size <= most &&
           (route->replicas > 1 || !mesh_equal(route->src, route->dst) || route->placed.n ||
            !mesh__is_even(&p->view, route->src, route->src_spec, NULL) ||
            !mesh__is_even(&p->view, route->dst, route->dst_spec, NULL));
}

/* What the path's last step costs. last: it reaches the destination. Returns 0 if the path is not worth going on with. */
static inline int mesh__step_cost(mesh__search *q, int last) {
    mesh_plan *p = &q->path;
    int k = p->nsteps - 1, on = k ? p->step[k - 1].on : 0, same, count;
    mesh_step *s = &p->step[k];
    mesh__cost *c = &q->cost[k];
    mesh_spec split;
    mesh_moves route;
    mesh__moves_layouts(&route, p, k);
    if (p->op == MESH_PROD && route.made_partial) return 0; /* no whole value is a product of copies of itself */
    same = mesh__same_axes(q, on, s->on, &route, &split);
    if (same && (k > 0 || !last) && mesh__same_places(route.src_spec, route.dst_spec)) return 0; /* it does nothing */
    s->kind = route.summands > 1 ? MESH_STEP_REDUCE : MESH_STEP_MOVE;
    s->rounds = 1;
    count = mesh__must_count(p, &route, q->bytes_only ? MESH__BYTES_RANKS : MESH__EXACT_RANKS);
    if (count && q->work > MESH__WORK) { /* from here on estimates have to do */
        q->limited |= MESH_LIMIT_TRIES;
        count = 0;
    }
    if (count) q->work += (p->at[0].size + (int64_t)p->at[1].size) * (route.replicas > 1 ? p->at[1].size : 1);
    if (count && q->bytes_only && q->found == q->cap && !q->d->scratch_cap &&
        mesh__add64(p->bytes, mesh__step_least(p, &route)) > q->best[q->found - 1].bytes)
        return 0;
    *c = mesh__cost_of(p, &route, same, count ? k : -1);
    c->inside = !last && mesh__refines(p, k + 1, q->same[s->on][1]);
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
static inline int mesh__same_way(const mesh__search *q, const mesh_plan *a, const mesh_plan *b) {
    int k;
    if (a->nsteps != b->nsteps || a->view.ndim != b->view.ndim) return 0;
    for (k = 0; k < a->view.ndim; k++)
        if (a->view.shape[k] != b->view.shape[k]) return 0;
    for (k = 0; k < a->nsteps; k++)
        if (!q->same[a->step[k].on][b->step[k].on] || !mesh_spec_equal(&a->step[k].spec, &b->step[k].spec)) return 0;
    return 1;
}

/* The path is whole: is it among the best? */
static inline void mesh__consider(mesh__search *q) {
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
static inline void mesh__pop(mesh__search *q, int n) {
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
static inline int mesh__step_to(mesh__search *q, int on, const mesh_spec *spec, int last) {
    int n = q->path.nsteps;
    if (n == MESH_MAX_STEPS) return 0;
    q->path.step[n].on = (uint8_t)on;
    q->path.step[n].spec = *spec;
    q->path.nsteps++;
    if (mesh__step_cost(q, last)) return 1;
    mesh__pop(q, n);
    return 0;
}
static inline int mesh__push(mesh__search *q, int on, const mesh_spec *spec) { return mesh__step_to(q, on, spec, 0); }
/* The path so far, and then straight to the destination. */
static inline void mesh__finish_path(mesh__search *q) {
    int n = q->path.nsteps;
    if (!mesh__step_to(q, 1, &q->path.view.to, 1)) return;
    mesh__consider(q);
    mesh__pop(q, n);
}

/* The dim along which an axis should shard further: the longest that it divides, else the longest. */
static inline int mesh__best_dim(const mesh_plan *p, const mesh *m, const mesh__form *f, int axis) {
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

/* "dp_0", or the next such name that neither mesh has. */
static inline void mesh__part_name(char *name, const mesh *m, const mesh *r, const char *whole, int *part) {
    do {
        mesh__text t = mesh__text_on(name, MESH_NAME_BYTES);
        int digits = mesh__digits(*part);
        mesh__put(&t, "%s", whole);
        if (t.len > (size_t)(MESH_NAME_BYTES - 2 - digits)) t.len = (size_t)(MESH_NAME_BYTES - 2 - digits);
        mesh__put(&t, "_%d", (*part)++);
    } while (mesh_axis_find(m, name) >= 0 || mesh_axis_find(r, name) >= 0);
}

/* Every axis split into factors of `primes` prime factors each, outermost first. Returns 0 if nothing is split, -1 if there are too many. */
static inline int mesh__split_factors(mesh *r, const mesh *m, int primes) {
    int i, k, n, more = 0;
    mesh__start(r, m);
    for (i = 0; i < m->naxes; i++) {
        int part = 0, parts = 0;
        for (k = m->axis[i].first; k < m->axis[i].first + m->axis[i].modes; k++) {
            int shape = m->mode[k].shape;
            while (shape > 1) {
                char name[MESH_NAME_BYTES];
                int factor = 1, prime = 2;
                for (n = 0; n < primes && shape > 1; n++) {
                    while (shape % prime && prime <= shape / prime) prime++;
                    if (shape % prime) prime = shape;
                    shape /= prime;
                    factor *= prime;
                }
                if (r->naxes == MESH_MAX_AXES) return -1;
                mesh__part_name(name, m, r, m->axis[i].name, &part);
                mesh__axis_add(r, name);
                mesh__mode_add(r, factor, m->mode[k].stride * shape);
                parts++;
            }
        }
        if (parts == 0) {
            if (r->naxes == MESH_MAX_AXES) return -1;
            mesh__axis_add(r, m->axis[i].name);
        }
        more |= parts > 1;
    }
    return more && !mesh__finish(r);
}

/* Every axis split into its prime factors, or, were that more than 16 axes, into larger ones. Returns 0 if nothing is split. */
static inline int mesh__split_primes(mesh *r, const mesh *m, uint32_t *limited) {
    int primes, split;
    for (primes = 1; (split = mesh__split_factors(r, m, primes)) < 0; primes++) *limited |= MESH_LIMIT_FACTORS;
    return split;
}

static inline uint32_t mesh__axes_of_kind(const mesh *m, const mesh_spec *s, int kind) {
    uint32_t mask = 0;
    int i;
    for (i = 0; i < m->naxes; i++)
        if (s->axis[i].kind == kind && m->axis[i].size > 1) mask |= UINT32_C(1) << i;
    return mask;
}

/* By way of the destination sharded further over what it replicates, then gathering: at once, or an axis at a time, the farthest ranks
   first while there is little to move, or the nearest. here: the layout reached, NULL if it is on another mesh. roomy: shard where there
   is most room, not as the layout reached does. */
static inline void mesh__tail_gather(mesh__search *q, int on, const mesh_spec *to, const mesh_spec *here, int roomy) {
    mesh_plan *p = &q->path;
    const mesh *m = &p->at[on];
    const mesh__form end = mesh__form_of(to);
    mesh__form refined = end, f;
    mesh_spec spec;
    uint32_t mask = mesh__axes_of_kind(m, to, MESH_REPLICATE);
    int start = p->nsteps, first, left, d, i, k, near;
    if (here) mask &= ~mesh__axes_of_kind(m, here, MESH_REPLICATE);
    if (!mask || !p->view.ndim) return;
    mesh__refine(p, m, &refined, mask, roomy ? NULL : here);
    spec = mesh__spec_of(&refined, to);
    if (!(here && mesh_spec_equal(&spec, here)) && !mesh__push(q, on, &spec)) return;
    if (on == 1) mesh__finish_path(q);
    first = p->nsteps;
    for (near = 0; near < (q->bytes_only ? 2 : 1);
         near++) { /* where only bytes count, sizes that differ may want either */
        f = refined;
        for (left = 0, k = 0; k < m->naxes; k++) left += mask >> k & 1;
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
static inline void mesh__tail_axes(mesh__search *q, const mesh_spec *here) {
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
static inline void mesh__tails(mesh__search *q, int on, const mesh_spec *here) {
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
        if (mesh__push(q, on, &spec)) mesh__tails(q, on, &spec);
        mesh__pop(q, start);
    }
    if (n < 2) return;
    for (way = 0; way < (on == 0 ? 2 : 1); way++) {
        uint32_t done = ~partial;
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
        }
        if (i == n) mesh__tails(q, on, &spec);
        mesh__pop(q, start);
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

/* Where an axis may be in a layout on the way: as in the source, as a whole, or sharding a dim. */
enum { MESH__STAYS = 254, MESH__WHOLE = 255 };

typedef struct mesh__choice {
    int n, at;
    uint8_t place[MESH_MAX_DIMS + 2];
} mesh__choice;

static inline void mesh__choice_add(mesh__choice *c, int place) {
    int i;
    for (i = 0; i < c->n; i++)
        if (c->place[i] == place) return;
    c->place[c->n++] = (uint8_t)place;
}

/* What an axis may do on the way, the likeliest first. to: the destination, where it can be compared; else NULL. */
static inline mesh__choice mesh__choices(const mesh_plan *p, const mesh_spec *from, const mesh_spec *to, int axis,
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
static inline mesh_spec mesh__chosen(const mesh_plan *p, const mesh *m, const mesh_spec *from, const mesh_spec *to,
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
static inline void mesh__places(mesh__search *q, int on, const mesh_spec *from, const mesh_spec *to, uint32_t reduced) {
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

/* Where sizes do not divide and only bytes count: one sharded axis moves to another dim first, the summands as they are, which may leave
   room to reduce where the sum is wanted. */
static inline void mesh__move_first(mesh__search *q, const mesh_spec *from, const mesh_spec *to, uint32_t reduced) {
    mesh_plan *p = &q->path;
    const mesh *m = &p->at[0];
    int i, d, start = p->nsteps;
    if (mesh__is_even(&p->view, m, from, NULL) && mesh__is_even(&p->view, m, to, NULL)) return;
    for (i = 0; i < m->naxes; i++)
        for (d = 0; d < p->view.ndim && from->axis[i].kind == MESH_SHARD; d++) {
            mesh__form f = mesh__form_of(from);
            int was = from->axis[i].dim, k, kept;
            mesh_spec spec;
            if (d == was || p->view.shape[d] == 1 || m->axis[i].size == 1 || q->best[0].bytes <= q->bound) continue;
            for (k = kept = 0; k < f.count[was]; k++)
                if (f.axis[was][k] != i) f.axis[was][kept++] = f.axis[was][k];
            f.count[was] = (uint8_t)kept;
            f.axis[d][f.count[d]++] = (uint8_t)i;
            spec = mesh__spec_of(&f, from);
            if (mesh__push(q, 0, &spec)) mesh__places(q, 0, &spec, to, reduced);
            mesh__pop(q, start);
        }
}

static inline void mesh__search_all(mesh__search *q) {
    mesh_plan *p = &q->path;
    const mesh_spec *from = &p->view.from, *to = &p->view.to;
    const mesh *m = &p->at[0];
    uint32_t partial = mesh__to_reduce(m, from, &p->at[1], to),
             replicated = mesh__axes_of_kind(m, from, MESH_REPLICATE), used;
    uint8_t list[MESH_MAX_AXES];
    mesh_spec split_from, split_to;
    int n, code, i, every, split = q->same[2][2], like = q->same[2][3] && q->same[3][3];
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
                        used ? mesh__axes_of_kind(&p->at[2], &split_from, MESH_REPLICATE) : 0);
    }
    mesh__places(q, 0, from, q->same[0][1] ? to : NULL, partial);
    if (partial && q->bytes_only && q->found && q->same[0][1]) mesh__move_first(q, from, to, partial);
    if (split)
        mesh__places(q, 2, &split_from, like ? &split_to : NULL,
                     mesh__to_reduce(&p->at[2], &split_from, &p->at[1], to));
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

static inline mesh_view mesh__whole_view(const mesh_plan *p) {
    mesh_view v;
    int d;
    v.from = p->from;
    v.to = p->to;
    v.ndim = p->ndim;
    v.zero = 0;
    for (d = 0; d < MESH_MAX_DIMS; d++) {
        v.dim[d] = (uint8_t)(d < p->ndim ? d : 0);
        v.shape[d] = d < p->ndim ? p->shape[d] : 0;
    }
    return v;
}

/* Products of the sizes of the first 0, 1, ... axes that shard a dim: where it may be cut. Returns how many axes, or 0 if their shards
   differ in size. */
static inline int mesh__cuts(const mesh_plan *p, const mesh *m, const mesh_spec *s, int dim, int64_t *cut) {
    uint8_t list[MESH_MAX_AXES];
    int i, n = mesh__dim_axes(s, dim, list);
    for (cut[0] = 1, i = 0; i < n; i++) cut[i + 1] = mesh__mul64(cut[i], m->axis[list[i]].size);
    return p->shape[dim] % cut[n] ? 0 : n;
}

/* Can axes with these cuts (n of them) shard a dim that is taken apart at `at`? One axis must not lie on both sides. */
static inline int mesh__cut_fits(const int64_t *cut, int n, int64_t at) {
    int i;
    for (i = 0; i <= n; i++)
        if (cut[i] == at) return 1;
    return cut[n] < at && at % cut[n] == 0; /* all of them are outside */
}

/* The layout's spec with dim d of the view, taken apart at `at`, as two dims. */
static inline mesh_spec mesh__spec_apart(const mesh *m, const mesh_spec *s, int d, int64_t at) {
    mesh_spec r = *s;
    uint8_t list[MESH_MAX_AXES];
    int i, n, outer = 0;
    int64_t cut = 1;
    for (i = 0; i < r.naxes; i++)
        if (r.axis[i].kind == MESH_SHARD && r.axis[i].dim > d) r.axis[i].dim++;
    for (n = mesh__dim_axes(s, d, list), i = 0; i < n; i++) {
        cut *= m->axis[list[i]].size;
        if (cut <= at)
            outer++;
        else
            r.axis[list[i]] = mesh_shard_at(d + 1, i - outer);
    }
    return r;
}

/* Take dims apart where an axis that shards them ends, on either side, if the other side allows it. Returns whether there are any. */
static inline int mesh__split_dims(mesh_plan *p) {
    mesh_view *v = &p->view;
    int d, side, i, k, n[2], dim = 0;
    for (d = 0; d < p->ndim; d++, dim++) {
        int64_t cut[2][MESH_MAX_AXES + 1], inner = p->shape[d], done = 1;
        uint8_t list[MESH_MAX_AXES];
        for (side = 0; side < 2; side++) {
            const mesh_spec *s = side ? &p->to : &p->from;
            n[side] = mesh__cuts(p, &p->at[side], s, d, cut[side]);
            if (!n[side] && mesh__dim_axes(s, d, list)) break;
        }
        if (side < 2) continue; /* uneven */
        for (;;) {              /* the next cut of either side that both allow */
            int64_t at = INT64_MAX;
            for (side = 0; side < 2; side++)
                for (i = 1; i < n[side]; i++)
                    if (cut[side][i] > done && cut[side][i] < at && cut[side][i] % done == 0 &&
                        mesh__cut_fits(cut[!side], n[!side], cut[side][i]))
                        at = cut[side][i];
            if (at == INT64_MAX || v->ndim == MESH_MAX_DIMS) break;
            v->from = mesh__spec_apart(&p->at[0], &v->from, dim, at / done);
            v->to = mesh__spec_apart(&p->at[1], &v->to, dim, at / done);
            for (k = v->ndim++; k > dim; k--) {
                v->shape[k] = v->shape[k - 1];
                v->dim[k] = v->dim[k - 1];
            }
            inner /= at / done;
            v->shape[dim] = at / done;
            v->shape[++dim] = inner;
            done = at;
        }
    }
    return v->ndim > p->ndim;
}

/* All that one view of the tensor offers. */
static inline void mesh__search_view(mesh__search *q) {
    mesh_plan *p = &q->path;
    int i, k, split;
    split = mesh__split_primes(&p->at[2], &p->at[0], &q->limited) &&
            mesh__is_even(&p->view, &p->at[0], &p->view.from, &p->at[2]);
    if (!split) mesh__start(&p->at[2], NULL);
    q->same[2][2] = split;
    split = mesh__split_primes(&p->at[3], &p->at[1], &q->limited) &&
            mesh__is_even(&p->view, &p->at[1], &p->view.to, &p->at[3]);
    if (!split) mesh__start(&p->at[3], NULL);
    q->same[3][3] = split;
    for (i = 0; i < 4; i++)
        for (k = 0; k < 4; k++)
            if (i != k || i < 2) q->same[i][k] = mesh_equal(&p->at[i], &p->at[k]);
    q->tries = 0;
    mesh__search_all(q);
}

/* The bytes that were estimated, counted. */
static inline void mesh__count_bytes(mesh_plan *p) {
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

MESH_API int mesh_plan_candidates(mesh_plan *plans, int cap, const mesh_plan_desc *d, mesh_error *err) {
    mesh__search q;
    mesh_plan *p = &q.path;
    const mesh *src = d ? d->src : NULL, *dst = d && d->dst ? d->dst : src;
    int64_t elem_bytes = !d ? 0 : d->elem_bytes ? d->elem_bytes : (int64_t)mesh_dtype_bytes(d->dtype);
    int i;
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
    p->to = *d->to;
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
        return mesh__fail(
                   err, MESH_ERR_MEMORY, -1,
                   "mesh_plan_make: no plan needs as little scratch as scratch_cap = %l bytes; the least possible is %l",
                   d->scratch_cap, q.least),
               -1;
    for (i = 0; i < q.found; i++) {
        mesh__count_bytes(&plans[i]);
        plans[i].limited = q.limited;
        plans[i].hash = mesh__plan_hash(&plans[i]);
    }
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

/* "over dp,tp": the axes that a step works along; of a split axis its name if all parts do. */
static inline void mesh__put_axes(mesh__text *t, const mesh_plan *p, int step) {
    mesh__change c = mesh__step_change(p, step);
    int split = c.on == &p->at[2] || c.on == &p->at[3], i, k = 0, n = 0, end, all;
    const mesh *whole = split ? c.on - 2 : c.on;
    if (!c.known) {
        mesh__put(t, "between meshes");
        return;
    }
    for (i = 0; i < whole->naxes; i++, k = end) {
        int size = 1;
        for (end = k, all = 1; end == k || size < whole->axis[i].size; end++) {
            size *= c.on->axis[end].size;
            all &= (int)(c.axes >> end & 1);
        }
        if (all) mesh__put(t, "%s%s", n++ ? "," : "", whole->axis[i].name);
        for (; k < end && !all; k++)
            if (c.axes >> k & 1) mesh__put(t, "%s%s", n++ ? "," : "", c.on->axis[k].name);
    }
    if (!n) mesh__put_char(t, '-');
}

static inline void mesh__put_layout(mesh__text *t, const mesh *m, const mesh_spec *s) {
    char text[MESH_MAX_AXES * (MESH_NAME_BYTES + 12) + 32];
    mesh_spec_format(s, m, text, sizeof text);
    mesh__put(t, "%s", text);
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

/* "2x4096x8192": a dim that is taken apart is two. */
static inline void mesh__put_view(mesh__text *t, const mesh_plan *p, const char *between) {
    int d;
    for (d = 0; d < p->view.ndim; d++) mesh__put(t, "%s%l", d ? between : "", p->view.shape[d]);
}

MESH_API size_t mesh_plan_format(const mesh_plan *p, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    static const char *const limits[] = {
        "axes split into single prime factors, which are more than 16",
        "every order in which more than 3 axes may change", "every choice among more than 4 axes to slice along first",
        "layouts on the way beyond the first 1024, or what takes more than some 50 ms to count"};
    int k, side;
    size_t start;
    for (side = 0; side < 2; side++) {
        mesh__put(&t, side ? "to    " : "from  ");
        mesh__put_layout(&t, &p->at[side], side ? &p->to : &p->from);
        mesh__put(&t, "%son ", p->at[side].naxes ? "  " : "");
        mesh__put_sizes(&t, &p->at[side]);
        if (!p->at[side].naxes) mesh__put(&t, "one rank");
        if (!side) {
            mesh__put(&t, "  (");
            mesh__put_problem(&t, p);
            mesh__put(&t, ")");
        }
        mesh__put_char(&t, '\n');
    }
    if (p->view.ndim > p->ndim) {
        mesh__put(&t, "seen as ");
        mesh__put_view(&t, p, "x");
        mesh__put(&t, ", dims of the steps' layouts\n");
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
    for (k = 0; k < 4; k++)
        if (p->limited >> k & 1) mesh__put(&t, "not searched: %s\n", limits[k]);
    return t.len;
}

MESH_API size_t mesh_plan_json(const mesh_plan *p, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int k, d;
    for (k = 0; k < 2; k++) {
        mesh__put(&t, "%s\"%s\": {\"mesh\": \"", k ? "}, " : "{", k ? "to" : "from");
        mesh__put_sizes(&t, &p->at[k]);
        mesh__put(&t, "\", \"spec\": \"");
        mesh__put_layout(&t, &p->at[k], k ? &p->to : &p->from);
        mesh__put_char(&t, '"');
    }
    mesh__put(&t, "}, \"shape\": [");
    for (d = 0; d < p->ndim; d++) mesh__put(&t, "%s%l", d ? ", " : "", p->shape[d]);
    mesh__put(&t, "], \"view\": [");
    mesh__put_view(&t, p, ", ");
    mesh__put(&t, "], \"dtype\": \"%s\", \"elem_bytes\": %l, \"steps\": [", mesh_dtype_name(p->dtype), p->elem_bytes);
    for (k = 0; k < p->nsteps; k++) {
        const mesh_step *s = &p->step[k];
        mesh__put(&t, "%s{\"name\": \"%s\", \"axes\": \"", k ? ", " : "", mesh_step_name(p, k));
        mesh__put_axes(&t, p, k);
        mesh__put(&t, "\", \"bytes\": %l, \"messages\": %d, \"rounds\": %d, \"ps\": %l, \"mesh\": \"", s->bytes,
                  s->messages, s->rounds, s->ps);
        mesh__put_sizes(&t, &p->at[s->on]);
        mesh__put(&t, "\", \"spec\": \"");
        mesh__put_layout(&t, &p->at[s->on], &s->spec);
        mesh__put(&t, "\"}");
    }
    mesh__put(&t, "], \"bytes\": %l, \"ps\": %l, \"scratch\": %l, \"limited\": %d, \"hash\": \"%x\"}", p->bytes, p->ps,
              p->scratch, (int)p->limited, p->hash);
    return t.len;
}

#ifdef __cplusplus
}
#endif
#endif /* MESH_PLAN_IMPLEMENTED */
