/* mesh/stages.h - plans as a schedule: messages of several tensors together, reductions, rounds, scratch. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh_collectives.h, plan.h. Knows no tensor of a caller's and no request: redistribute.h checks those, and launches what is built here.
*/
#if !defined(MESH_STAGES_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_STAGES_IMPLEMENTED))
#include "../mesh_collectives.h"
#include "plan.h"
#define MESH_STAGES_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_STAGES_IMPLEMENTED)
#define MESH_STAGES_IMPLEMENTED

/* ---- // >>redistribute: where things lie ---- */

/* A box of a tensor in memory; strides in bytes. */
typedef struct mesh__place_of {
    unsigned char *base;
    mesh_box box;
    int64_t stride[MESH_MAX_DIMS];
} mesh__place_of;

/* A tensor's way. Where source and destination are floats of two dtypes, what travels is the source's until summands are reduced, then the
   destination's; where nothing is reduced, the narrower. A layout at an end may so be a copy of what was given. */
typedef struct mesh__task {
    const mesh_plan *plan;
    int width;                /* of numbers that are turned on their way; 0: none */
    mesh_dtype dtype[2];      /* of source and destination */
    int64_t elem[2];          /* bytes of their elements */
    int add;                  /* what arrives is added to the destination */
    int shared;               /* source and destination share memory */
    int straight;             /* neither end is a copy: the only step converts, or adds, on its way */
    mesh__place_of at[2];     /* the layout reached: at[step & 1]; the next one: the other */
    mesh__place_of last;      /* the last layout: the destination, or a copy */
    mesh__place_of given[2];  /* where an end is a copy: what it is a copy of; else its base is NULL */
    unsigned char *staged[2]; /* summands received, one after the other, for each slab in turn */
    int64_t staged_bytes;     /* of one */
    unsigned char *sum;       /* where a slab is summed, if neither there nor where it goes */
} mesh__task;

/* A message of a list's stage: the boxes of several tensors between this rank and a peer. */
typedef struct mesh__item {
    int task, peer, kind, summand, next; /* next: of the same peer and direction; -1: none */
    int64_t elem;                        /* bytes of an element */
    int width;                           /* as the task's */
    mesh_box box, made;                  /* made: this rank's box of the next layout */
    unsigned char *copy;                 /* what is sent from a copy: that */
} mesh__item;

/* What has to be done with a part when it has come: it is moved to where it belongs (to -1: it is there), its bytes are turned. */
typedef struct mesh__after {
    int from, to, width; /* xfers; 0: nothing to turn */
} mesh__after;

/* A schedule is built twice: dry, to see how much scratch it takes, and then in earnest. The two ends of the scratch hold the layouts before
   and after a step, what lies between is the step's own. */
typedef struct mesh__builder {
    mesh__schedule *s;
    mesh__task *task;
    int rank, dry, posting;
    unsigned char *scratch;
    size_t size, used[2], own, most, fixed; /* fixed: before it all, of copies of the ends, of what is done together */
    int nblocks;
    mesh__item *item;
    int nitems, item_cap;
    mesh__after *after;
    int nafter, after_cap;
    int *chain, chain_cap; /* the first item of each message or more to or from a peer */
    int *head;             /* for lists: per rank of the world and direction the last item so far */
} mesh__builder;

/* Of nothing strides may be too large to count, and are never used. */
MESH__PRIVATE mesh__place_of mesh__dense(void *base, const mesh_box *box, int64_t elem) {
    mesh__place_of p;
    uint64_t stride = (uint64_t)elem;
    int d;
    p.base = (unsigned char *)base;
    p.box = *box;
    for (d = box->ndim - 1; d >= 0; stride *= (uint64_t)box->shape[d--]) p.stride[d] = (int64_t)stride;
    return p;
}

MESH__PRIVATE int mesh__is_mixed(const mesh__task *t) { return t->dtype[0] != t->dtype[1]; }

/* The dtype of layout k, the source's being 0. */
MESH__PRIVATE mesh_dtype mesh__dtype_at(const mesh__task *t, int k) {
    int i, before = 0, all = 0;
    if (!mesh__is_mixed(t)) return t->dtype[0];
    for (i = 0; i < t->plan->nsteps; i++) {
        int reduces = t->plan->step[i].kind == MESH_STEP_REDUCE;
        all += reduces;
        before += reduces && i < k;
    }
    if (!all) return t->dtype[mesh_dtype_bytes(t->dtype[0]) >= mesh_dtype_bytes(t->dtype[1])];
    return !before ? t->dtype[0] : before == all ? t->dtype[1] : mesh__wide_of(t->dtype[0], t->dtype[1]);
}
MESH__PRIVATE int64_t mesh__elem_at(const mesh__task *t, int k) {
    return mesh__is_mixed(t) ? (int64_t)mesh_dtype_bytes(mesh__dtype_at(t, k)) : t->plan->elem_bytes;
}

/* Does the last step add what it has reduced to the destination, where that is? (Rounded first, if the destination is narrower: by a copy.) */
MESH__PRIVATE int mesh__adds_reduced(const mesh__task *t) {
    return t->add && t->plan->step[t->plan->nsteps - 1].kind == MESH_STEP_REDUCE &&
           mesh__wide_of(t->dtype[0], t->dtype[1]) == t->dtype[1];
}

MESH__PRIVATE size_t mesh__rounded(int64_t nbytes) { return ((size_t)nbytes + 63) & ~(size_t)63; }

MESH__PRIVATE void mesh__scratch_most(mesh__builder *b) {
    size_t now = b->fixed + b->used[0] + b->used[1] + b->own;
    if (now > b->most) b->most = now;
}

/* Scratch of a step's own, gone when the next step begins; scratch for the layout that a step makes. */
MESH__PRIVATE unsigned char *mesh__own_scratch(mesh__builder *b, size_t nbytes) {
    unsigned char *p = b->dry || !b->scratch ? NULL : b->scratch + b->fixed + b->used[0] + b->own;
    b->own += nbytes;
    mesh__scratch_most(b);
    return p;
}
MESH__PRIVATE unsigned char *mesh__layout_scratch(mesh__builder *b, int end, size_t nbytes) {
    unsigned char *p;
    b->used[end] += nbytes;
    mesh__scratch_most(b);
    if (b->dry || !b->scratch) return NULL;
    p = end ? b->scratch + b->size - b->used[1] : b->scratch + b->fixed + b->used[0] - nbytes;
    return p;
}

/* ---- // >>redistribute: steps ---- */

/* An xfer over a box (within what lies at p). Its block is found by number until the schedule is whole. Returns its number. */
MESH__PRIVATE int mesh__add_box(mesh__builder *b, int direction, int rank, const mesh__place_of *p, const mesh_box *box,
                                int64_t elem) {
    mesh__schedule *s = b->s;
    mesh_xfer *x;
    mesh_block block;
    unsigned char *base = p->base;
    int d, n = s->nxfers;
    memset(&block, 0, sizeof block);
    if (b->dry || s->out_of_memory) return 0;
    block.run = (uint64_t)elem;
    for (d = box->ndim - 1; d >= 0; d--) {
        base += (box->offset[d] - p->box.offset[d]) * p->stride[d];
        if (box->shape[d] == 1) continue;
        if (block.ndim == 0 && (int64_t)block.run == p->stride[d]) {
            block.run *= (uint64_t)box->shape[d];
        } else { /* innermost first, for now */
            block.dim[block.ndim].count = box->shape[d];
            block.dim[block.ndim++].stride = p->stride[d];
        }
    }
    if (!mesh__grow(b->s->t, (void **)&s->xfer, &s->xfer_cap, n + 1, sizeof *s->xfer) ||
        !mesh__grow(b->s->t, (void **)&s->block, &s->block_cap, b->nblocks + 1, sizeof *s->block)) {
        s->out_of_memory = 1;
        return 0;
    }
    x = &s->xfer[s->nxfers++];
    x->base = base;
    x->nbytes = (uint64_t)(mesh_box_count(box) * elem);
    x->block = NULL;
    x->direction = direction;
    x->rank = rank;
    x->index = b->posting ? mesh_index_of(s->on, rank) : -1;
    x->zero = 0;
    if (block.ndim) {
        mesh_block *to = &s->block[b->nblocks++];
        *to = block;
        for (d = 0; d < block.ndim; d++) to->dim[d] = block.dim[block.ndim - 1 - d];
        x->block = (const mesh_block *)(uintptr_t)b->nblocks; /* its number from 1; see mesh__blocks_settle */
    }
    if (b->posting) s->step[s->nsteps - 1].as.post.count++;
    return n;
}

MESH__PRIVATE void mesh__blocks_settle(mesh__builder *b) {
    int i;
    for (i = 0; i < b->s->nxfers; i++)
        if (b->s->xfer[i].block) b->s->xfer[i].block = &b->s->block[(uintptr_t)b->s->xfer[i].block - 1];
}

/* A step on two xfers, or one. */
MESH__PRIVATE mesh__step *mesh__add_step(mesh__builder *b, int kind, int from, int to) {
    mesh__step *step = b->dry ? NULL : mesh__step_add(b->s, kind);
    if (!step) return NULL;
    step->as.of.from = from;
    step->as.of.to = to;
    step->as.of.divide = step->as.of.op = 0;
    step->as.of.dtype = step->as.of.from_dtype = MESH_BYTES;
    return step;
}
MESH__PRIVATE void mesh__add_turn(mesh__builder *b, int xfer, int width) {
    mesh__step *step = b->dry ? NULL : mesh__step_add(b->s, MESH__TURN);
    if (!step) return;
    step->as.turn.xfer = xfer;
    step->as.turn.width = width;
}
/* to = from, elements of any size. */
MESH__PRIVATE void mesh__add_move(mesh__builder *b, const mesh__place_of *from, const mesh__place_of *to,
                                  const mesh_box *box, int64_t elem) {
    int x = mesh__add_box(b, MESH_SEND, b->rank, from, box, elem),
        y = mesh__add_box(b, MESH_RECV, b->rank, to, box, elem);
    mesh__add_step(b, MESH__MOVE, x, y);
}
/* to = to op from, or with op below 0 to = from; numbers of one dtype or two. */
MESH__PRIVATE void mesh__add_boxes(mesh__builder *b, const mesh__place_of *from, mesh_dtype in,
                                   const mesh__place_of *to, mesh_dtype out, const mesh_box *box, int op) {
    int x = mesh__add_box(b, MESH_SEND, b->rank, from, box, (int64_t)mesh_dtype_bytes(in)),
        y = mesh__add_box(b, MESH_RECV, b->rank, to, box, (int64_t)mesh_dtype_bytes(out));
    mesh__step *step = mesh__add_step(b, in != out ? MESH__CONVERT : op < 0 ? MESH__MOVE : MESH__FOLD, x, y);
    if (!step) return;
    step->as.of.dtype = out;
    step->as.of.from_dtype = in;
    step->as.of.op = op;
}
MESH__PRIVATE void mesh__add_quotient(mesh__builder *b, const mesh__place_of *at, mesh_dtype dtype, const mesh_box *box,
                                      int divide) {
    int x = mesh__add_box(b, MESH_RECV, b->rank, at, box, (int64_t)mesh_dtype_bytes(dtype));
    mesh__step *step = mesh__add_step(b, MESH__FOLD, x, x);
    if (!step) return;
    step->as.of.dtype = dtype;
    step->as.of.op = MESH_AVG;
    step->as.of.divide = divide;
}
MESH__PRIVATE void mesh__add_zero(mesh__builder *b, const mesh__place_of *at, const mesh_box *box, int64_t elem) {
    mesh__add_step(b, MESH__ZERO, 0, mesh__add_box(b, MESH_RECV, b->rank, at, box, elem));
}

MESH__PRIVATE void mesh__begin_post(mesh__builder *b) {
    b->posting = 1;
    if (!b->dry) mesh__add_post(b->s);
}

MESH__PRIVATE void mesh__end_post(mesh__builder *b) { b->posting = 0; }

MESH__PRIVATE void mesh__when_come(mesh__builder *b, int from, int to, int width) {
    mesh__after *a;
    if (b->dry || (to < 0 && !width)) return;
    if (!mesh__grow(b->s->t, (void **)&b->after, &b->after_cap, b->nafter + 1, sizeof *b->after)) {
        b->s->out_of_memory = 1;
        return;
    }
    a = &b->after[b->nafter++];
    a->from = from;
    a->to = to;
    a->width = width;
}

MESH__PRIVATE void mesh__add_after(mesh__builder *b, int first, int end) {
    int i;
    for (i = first; i < end; i++) {
        const mesh__after *a = &b->after[i];
        if (a->to >= 0) mesh__add_step(b, MESH__MOVE, a->from, a->to);
        if (a->width) mesh__add_turn(b, a->to >= 0 ? a->to : a->from, a->width);
    }
}

/* Where summand number k of what a round makes is staged. */
MESH__PRIVATE mesh__place_of mesh__staged_at(const mesh__task *t, const mesh_box *made, int turn, int k, int64_t elem) {
    unsigned char *base = t->staged[turn];
    return mesh__dense(base ? base + (size_t)k * (size_t)t->staged_bytes : NULL, made, elem);
}

/* The part of its box of the next layout that a rank makes in a round of a step. */
MESH__PRIVATE mesh_box mesh__made_in(const mesh_plan *p, int step, const mesh_box *to, int round) {
    const mesh_step *s = &p->step[step];
    return s->kind == MESH_STEP_REDUCE ? mesh_box_slab(to, s->slab_dim, round, s->rounds) : *to;
}

/* ---- // >>redistribute: messages ---- */

MESH__PRIVATE void mesh__keep_item(mesh__builder *b, int task, const mesh_moves *it, int step) {
    const mesh__task *t = &b->task[task];
    mesh__item *i;
    if (!mesh__grow(b->s->t, (void **)&b->item, &b->item_cap, b->nitems + 1, sizeof *b->item)) {
        b->s->out_of_memory = 1;
        return;
    }
    i = &b->item[b->nitems++];
    i->task = task;
    i->peer = it->peer;
    i->kind = it->kind;
    i->summand = it->summand;
    i->next = -1;
    i->elem = mesh__elem_at(t, step);
    i->width = t->width && mesh__is_mixed(t) ? (int)i->elem : t->width;
    i->box = it->box;
    i->made = it->to;
    i->copy = NULL;
}

MESH__PRIVATE int64_t mesh__item_bytes(const mesh__item *i) { return mesh_box_count(&i->box) * i->elem; }

/* Where a box to be sent lies, or one to be received goes. */
MESH__PRIVATE mesh__place_of mesh__item_place(const mesh__builder *b, const mesh__item *i, int step, int round,
                                              int turn) {
    const mesh__task *t = &b->task[i->task];
    if (i->kind == MESH_MOVE_SEND) return t->at[step & 1];
    if (t->plan->step[step].kind == MESH_STEP_REDUCE) {
        mesh_box made = mesh__made_in(t->plan, step, &i->made, round);
        return mesh__staged_at(t, &made, turn, i->summand, i->elem);
    }
    return t->at[!(step & 1)];
}

/* Is a box packed with others of its message? Small ones are where there are several: both ends say the same. */
MESH__PRIVATE int mesh__is_packed(const mesh__item *i, int alone) {
    return !alone && mesh__item_bytes(i) < MESH__PACKED;
}

/* What is sent from a copy: on hosts of the other byte order all, turned there. */
MESH__PRIVATE int mesh__is_staged(const mesh__item *i, int alone) {
    return i->kind == MESH_MOVE_SEND && i->width && !mesh__is_packed(i, alone);
}

/* Copy a box that is to be sent to where it is sent from. */
MESH__PRIVATE void mesh__add_copied(mesh__builder *b, const mesh__item *i, const mesh__place_of *place,
                                    unsigned char *copy) {
    mesh__place_of to = mesh__dense(copy, &i->box, i->elem);
    int from = mesh__add_box(b, MESH_SEND, b->rank, place, &i->box, i->elem),
        x = mesh__add_box(b, MESH_RECV, b->rank, &to, &i->box, i->elem);
    mesh__add_step(b, MESH__MOVE, from, x);
    if (i->width) mesh__add_turn(b, x, i->width);
}

/* Before the post: of a peer's boxes from item `first` on, what is sent packed or from a copy is put there. `packed`: where. */
MESH__PRIVATE void mesh__add_packing(mesh__builder *b, int first, int step, int round, int turn,
                                     unsigned char **packed) {
    int k, alone = b->item[first].next < 0;
    int64_t together = 0;
    if (b->item[first].kind != MESH_MOVE_SEND) return;
    for (k = first; k >= 0; k = b->item[k].next)
        if (mesh__is_packed(&b->item[k], alone)) together += mesh__item_bytes(&b->item[k]);
    if (together) *packed = mesh__own_scratch(b, mesh__rounded(together));
    for (together = 0, k = first; k >= 0; k = b->item[k].next) {
        mesh__item *i = &b->item[k];
        mesh__place_of place = mesh__item_place(b, i, step, round, turn);
        if (mesh__is_staged(i, alone)) {
            i->copy = mesh__own_scratch(b, mesh__rounded(mesh__item_bytes(i)));
            mesh__add_copied(b, i, &place, i->copy);
        } else if (mesh__is_packed(i, alone)) {
            mesh__add_copied(b, i, &place, *packed ? *packed + together : NULL);
            together += mesh__item_bytes(i);
        }
    }
}

/* Of a peer's boxes, in one direction, from item `first` on: those that are packed are one message, the others one each. */
MESH__PRIVATE void mesh__add_messages(mesh__builder *b, int first, int step, int round, int turn,
                                      unsigned char **packed) {
    int k, x, sending = b->item[first].kind == MESH_MOVE_SEND, alone = b->item[first].next < 0;
    int64_t together = 0;
    mesh_box line; /* packed boxes as one row of bytes */
    mesh__place_of row;
    for (k = first; k >= 0; k = b->item[k].next)
        if (mesh__is_packed(&b->item[k], alone)) together += mesh__item_bytes(&b->item[k]);
    if (together) {
        memset(&line, 0, sizeof line);
        line.ndim = 1;
        line.shape[0] = together;
        if (!sending) *packed = mesh__own_scratch(b, mesh__rounded(together));
        row = mesh__dense(*packed, &line, 1);
        mesh__add_box(b, sending ? MESH_SEND : MESH_RECV, b->item[first].peer, &row, &line, 1);
    }
    for (k = first; k >= 0; k = b->item[k].next) {
        const mesh__item *i = &b->item[k];
        mesh__place_of place;
        if (mesh__is_packed(i, alone)) continue;
        place = mesh__is_staged(i, alone) ? mesh__dense(i->copy, &i->box, i->elem)
                                          : mesh__item_place(b, i, step, round, turn);
        x = mesh__add_box(b, sending ? MESH_SEND : MESH_RECV, i->peer, &place, &i->box, i->elem);
        if (!sending) mesh__when_come(b, x, -1, i->width);
    }
}

/* After the post: the boxes of packed messages are to be put where they belong. */
MESH__PRIVATE void mesh__add_unpacking(mesh__builder *b, int first, int step, int round, int turn,
                                       unsigned char *packed) {
    int k, alone = b->item[first].next < 0;
    for (k = first; k >= 0; k = b->item[k].next) {
        const mesh__item *i = &b->item[k];
        mesh__place_of from = mesh__dense(packed, &i->box, i->elem), to;
        int x, y;
        if (!mesh__is_packed(i, alone)) continue;
        to = mesh__item_place(b, i, step, round, turn);
        x = mesh__add_box(b, MESH_SEND, b->rank, &from, &i->box, i->elem);
        y = mesh__add_box(b, MESH_RECV, b->rank, &to, &i->box, i->elem);
        mesh__when_come(b, x, y, i->width);
        if (packed) packed += mesh__item_bytes(i);
    }
}

/* Every rank begins with another peer: its neighbours, ranks after it to send to, ranks before it to receive from. */
MESH__PRIVATE int mesh__distance(const mesh__builder *b, const mesh__item *i) {
    int world = b->s->t->size, ahead = (i->peer - b->rank + world) % world;
    return i->kind == MESH_MOVE_SEND ? 2 * ahead : 2 * (world - ahead) + 1;
}
MESH__PRIVATE int mesh__chain_after(const void *builder, int i, int k) {
    const mesh__builder *b = (const mesh__builder *)builder;
    return mesh__distance(b, &b->item[i]) > mesh__distance(b, &b->item[k]);
}

/* The sends and receives of a round of a step, of all tasks [first, end) that have it, as one post. */
MESH__PRIVATE void mesh__add_exchange(mesh__builder *b, int first, int end, int step, int round, int turn) {
    int i, k, n, world = b->s->t->size, chains = 0, *head = b->head;
    unsigned char **packed = NULL;
    b->nitems = 0;
    for (i = first; i < end; i++) {
        mesh_moves it;
        const mesh_plan *p = b->task[i].plan;
        if (step >= p->nsteps) continue;
        for (mesh_moves_start(&it, p, step, b->rank, p->step[step].rounds > 1 ? round : -1); mesh_moves_next(&it);)
            if (it.kind == MESH_MOVE_SEND || it.kind == MESH_MOVE_RECV) mesh__keep_item(b, i, &it, step);
    }
    if (b->s->out_of_memory || b->nitems == 0) return;
    /* Chains: the items of one peer and direction. Of a single tensor each item is one by itself. */
    n = b->nitems;
    if (end - first > 1)
        for (i = 0; i < 2 * world; i++) head[i] = -1;
    packed = (unsigned char **)mesh_transport_alloc(b->s->t, (size_t)n * sizeof *packed);
    if (!mesh__grow(b->s->t, (void **)&b->chain, &b->chain_cap, n, sizeof *b->chain) || !packed) {
        b->s->out_of_memory = 1;
        mesh_transport_free(b->s->t, packed);
        return;
    }
    for (i = 0; i < n; i++) {
        int *tail = &head[b->item[i].peer + (b->item[i].kind == MESH_MOVE_SEND ? world : 0)];
        packed[i] = NULL;
        if (end - first > 1 && *tail >= 0) {
            b->item[*tail].next = i;
        } else {
            b->chain[chains++] = i;
        }
        if (end - first > 1) *tail = i;
    }
    mesh__sort(b->chain, chains, mesh__chain_after, b);
    for (k = 0; k < chains; k++) mesh__add_packing(b, b->chain[k], step, round, turn, &packed[k]);
    mesh__begin_post(b);
    for (k = 0; k < chains; k++) mesh__add_messages(b, b->chain[k], step, round, turn, &packed[k]);
    mesh__end_post(b);
    for (k = 0; k < chains; k++)
        if (b->item[b->chain[k]].kind == MESH_MOVE_RECV)
            mesh__add_unpacking(b, b->chain[k], step, round, turn, packed[k]);
    mesh_transport_free(b->s->t, packed);
}

/* ---- // >>redistribute: schedules ---- */

MESH__PRIVATE unsigned char *mesh__address(const mesh__place_of *p, const mesh_box *box) {
    unsigned char *at = p->base;
    int d;
    for (d = 0; d < box->ndim && at; d++) at += (box->offset[d] - p->box.offset[d]) * p->stride[d];
    return at;
}

/* What a rank has itself of a step that reduces nothing, or what becomes zero. */
MESH__PRIVATE void mesh__add_own(mesh__builder *b, const mesh__task *t, int step, int round, int kind) {
    const mesh_plan *p = t->plan;
    const mesh__place_of *from = &t->at[step & 1], *to = &t->at[!(step & 1)];
    mesh_moves it;
    for (mesh_moves_start(&it, p, step, b->rank, p->step[step].rounds > 1 ? round : -1);
         mesh_moves_next(&it) && it.kind != MESH_MOVE_SEND;) {
        if (it.kind != kind) continue;
        if (kind == MESH_MOVE_ZERO)
            mesh__add_zero(b, to, &it.box, t->straight ? t->elem[1] : mesh__elem_at(t, step));
        else if (t->straight)
            mesh__add_boxes(b, from, t->dtype[0], to, t->dtype[1], &it.box, t->add ? MESH_SUM : -1);
        else if (kind == MESH_MOVE_LOCAL && (b->dry || mesh__address(from, &it.box) != mesh__address(to, &it.box)))
            mesh__add_move(b, from, to, &it.box, mesh__elem_at(t, step));
    }
}

/* The summands of a piece, in ascending order, and where they go. */
typedef struct mesh__summands {
    const mesh__task *t;
    const mesh__place_of *from, *to; /* the layouts */
    mesh_dtype in, wide, out;        /* of summands, of their sum, of the layout made */
    mesh_box made;
    int turn, adds;
} mesh__summands;

/* Sum a piece, and put it where it belongs: there, if the sum can be made there; else where the first summand is, if it came; else apart. */
MESH__PRIVATE void mesh__add_sum(mesh__builder *b, const mesh__summands *m, int own, int n, const mesh_box *part,
                                 int op, int divide) {
    int64_t elem = (int64_t)mesh_dtype_bytes(m->wide);
    mesh__place_of first = own == 0 ? *m->from
                                    : mesh__staged_at(m->t, &m->made, m->turn, 0, (int64_t)mesh_dtype_bytes(m->in)),
                   run = first, apart = mesh__dense(m->t->sum, &m->made, (int64_t)mesh_dtype_bytes(m->wide));
    int k, there = !m->adds && m->wide == m->out && (own == 0 || m->in != m->wide);
    if (there)
        run = *m->to;
    else if (m->in != m->wide || own == 0)
        run = apart;
    if (m->in != m->wide)
        mesh__add_boxes(b, &first, m->in, &run, m->wide, part, -1);
    else if (b->dry || mesh__address(&first, part) != mesh__address(&run, part))
        mesh__add_move(b, &first, &run, part, elem);
    for (k = 1; k < n; k++) {
        mesh__place_of summand =
            k == own ? *m->from : mesh__staged_at(m->t, &m->made, m->turn, k, (int64_t)mesh_dtype_bytes(m->in));
        mesh__add_boxes(b, &summand, m->in, &run, m->wide, part, op);
    }
    if (divide > 1) mesh__add_quotient(b, &run, m->wide, part, divide);
    if (there) return;
    if (m->wide == m->out && !m->adds)
        mesh__add_move(b, &run, m->to, part, elem);
    else
        mesh__add_boxes(b, &run, m->wide, m->to, m->out, part, m->adds ? MESH_SUM : -1);
}

/* Combine the summands of a round into the next layout. */
MESH__PRIVATE void mesh__add_reduction(mesh__builder *b, const mesh__task *t, int step, int round, int turn) {
    const mesh_plan *p = t->plan;
    mesh__summands m;
    mesh_moves it;
    int before = -1;
    mesh_moves_start(&it, p, step, b->rank, p->step[step].rounds > 1 ? round : -1);
    m.t = t;
    m.from = &t->at[step & 1];
    m.to = &t->at[!(step & 1)];
    m.in = mesh__dtype_at(t, step);
    m.wide = mesh__is_mixed(t) ? mesh__wide_of(t->dtype[0], t->dtype[1]) : m.in;
    m.out = mesh__dtype_at(t, step + 1);
    m.made = mesh__made_in(p, step, &it.to, round);
    m.turn = turn;
    m.adds = step == p->nsteps - 1 && mesh__adds_reduced(t);
    for (; mesh_moves_next(&it) && it.kind != MESH_MOVE_SEND; before = it.summand) {
        mesh_box part = it.part;
        if (it.kind == MESH_MOVE_ZERO && !m.adds) mesh__add_zero(b, m.to, &it.box, mesh__elem_at(t, step + 1));
        if (it.kind == MESH_MOVE_ZERO || it.summand || before == 0)
            continue; /* a piece is dealt with at its first summand */
        mesh__add_sum(b, &m, it.holds ? it.own_summand : -1, it.summands, &part, p->op, p->step[step].divide);
    }
}

MESH__PRIVATE void mesh__add_wait_of(mesh__builder *b, int before) {
    if (!b->dry) mesh__add_wait_before(b->s, before);
}
MESH__PRIVATE int mesh__here(const mesh__builder *b) { return b->dry ? 0 : b->s->nsteps; }

/* Does a move of a kind that a step makes here touch the box that this rank holds before it? A partial tensor that goes to another mesh may bring (RECV)
   another summand of the very elements that this rank has still to send, or leave zeros (ZERO) for them, whose other summands are elsewhere then. */
MESH__PRIVATE int mesh__touches_own(const mesh_plan *p, int step, int rank, int kind) {
    mesh_moves it;
    mesh_box both;
    for (mesh_moves_start(&it, p, step, rank, -1); mesh_moves_next(&it);)
        if (it.kind == kind && mesh_box_intersect(&both, &it.box, &it.from)) return 1;
    return 0;
}

/* Where this rank's box of the layout that a step makes goes: the destination, in it, or scratch. */
MESH__PRIVATE void mesh__make_room(mesh__builder *b, mesh__task *t, int step) {
    const mesh_plan *p = t->plan;
    const mesh_step *s = &p->step[step];
    mesh__place_of *to = &t->at[!(step & 1)];
    mesh_layout layout;
    mesh_box box, both;
    int64_t elem = mesh__elem_at(t, step + 1), held;
    /* A scalar has no box that would be empty; where it is a copy that has no address yet, it is one none the less. */
    int d, inside = p->view.ndim > 0 || mesh_index_of(&p->at[1], b->rank) >= 0;
    if (step == p->nsteps - 1) {
        *to = t->last;
        return;
    }
    memset(&box, 0, sizeof box);
    box.ndim = p->view.ndim;
    layout = mesh__view_layout(p, &p->at[s->on], &s->spec);
    held = mesh_layout_box(&layout, b->rank, &box);
    if (held < 0) held = box.shape[0] = 0;
    both = box;
    inside &= !mesh__adds_reduced(t) && mesh__dtype_at(t, step + 1) == mesh__dtype_at(t, p->nsteps);
    inside &= p->step[step + 1].kind == MESH_STEP_MOVE && mesh_box_intersect(&both, &box, &t->last.box);
    for (d = 0; d < p->view.ndim && inside; d++) inside = both.shape[d] == box.shape[d];
    if (inside && !mesh__touches_own(p, step + 1, b->rank, MESH_MOVE_RECV)) { /* where it will be in the end anyway */
        *to = t->last;
        return;
    }
    *to = mesh__dense(mesh__layout_scratch(b, !(step & 1), mesh__rounded(held * elem)), &box, elem);
}

/* Room for the summands of a reducing step. */
MESH__PRIVATE void mesh__make_staging(mesh__builder *b, mesh__task *t, int step, int turns) {
    const mesh_plan *p = t->plan;
    mesh_moves it;
    mesh_box slab;
    int k;
    mesh_moves_start(&it, p, step, b->rank, 0);
    slab = mesh__made_in(p, step, &it.to, 0); /* the first is the largest */
    t->staged_bytes = it.to.ndim < 0 ? 0 : (int64_t)mesh__rounded(mesh_box_count(&slab) * mesh__elem_at(t, step));
    for (k = 0; k < turns; k++) t->staged[k] = mesh__own_scratch(b, (size_t)(t->staged_bytes * it.summands));
    if (it.to.ndim >= 0 && (mesh__is_mixed(t) || t->add))
        t->sum =
            mesh__own_scratch(b, mesh__rounded(mesh_box_count(&slab) *
                                               (int64_t)mesh_dtype_bytes(mesh__wide_of(t->dtype[0], t->dtype[1]))));
}

/* A step of all tasks [first, end) that have it, each in one round. */
MESH__PRIVATE void mesh__add_stage(mesh__builder *b, int first, int end, int step) {
    int i, after = b->nafter;
    b->own = 0;
    b->used[!(step & 1)] = 0;
    for (i = first; i < end; i++) {
        mesh__task *t = &b->task[i];
        if (step >= t->plan->nsteps) continue;
        mesh__make_room(b, t, step);
    }
    for (i = first; i < end; i++) /* behind all layouts: they may grow from the same end */
        if (step < b->task[i].plan->nsteps && b->task[i].plan->step[step].kind == MESH_STEP_REDUCE)
            mesh__make_staging(b, &b->task[i], step, 1);
    mesh__add_exchange(b, first, end, step, 0, 0);
    for (i = first; i < end; i++)
        if (step < b->task[i].plan->nsteps && b->task[i].plan->step[step].kind == MESH_STEP_MOVE)
            mesh__add_own(b, &b->task[i], step, 0, MESH_MOVE_LOCAL);
    mesh__add_wait_of(b, mesh__here(b));
    mesh__add_after(b, after, b->nafter);
    for (i = first; i < end; i++) {
        if (step >= b->task[i].plan->nsteps) continue;
        if (b->task[i].plan->step[step].kind == MESH_STEP_REDUCE)
            mesh__add_reduction(b, &b->task[i], step, 0, 0);
        else /* in place it may have been sent until now */
            mesh__add_own(b, &b->task[i], step, 0, MESH_MOVE_ZERO);
    }
}

/* The last step with one slab of what the step before it reduced. */
MESH__PRIVATE void mesh__hand_on(mesh__builder *b, int task, int step, int round, const mesh__place_of *slab,
                                 const mesh__place_of *source) {
    mesh__task *t = &b->task[task];
    mesh__place_of next = t->at[!(step & 1)];
    t->at[!(step & 1)] = *slab;
    t->at[step & 1] = t->last;
    mesh__add_exchange(b, task, task + 1, step + 1, round, round & 1);
    mesh__add_own(b, t, step + 1, round, MESH_MOVE_LOCAL);
    mesh__add_own(b, t, step + 1, round, MESH_MOVE_ZERO);
    t->at[!(step & 1)] = next;
    t->at[step & 1] = *source;
}

/* A reducing step in rounds: the next slab is on its way while this one is reduced. Where the last step follows, each slab is handed on
   while the next one is reduced. Returns how many steps that were. */
MESH__PRIVATE int mesh__add_rounds(mesh__builder *b, int task, int step) {
    mesh__task *t = &b->task[task];
    const mesh_plan *p = t->plan;
    const mesh_step *s = &p->step[step];
    int fused =
        step == p->nsteps - 2 && p->step[step + 1].kind == MESH_STEP_MOVE && p->step[step + 1].rounds == s->rounds;
    int round, next = !(step & 1), in_place = 1, after = b->nafter;
    int64_t elem = mesh__elem_at(t, step + 1);
    mesh__place_of slab_at[2], source = t->at[step & 1], whole;
    mesh_moves it;
    b->own = 0;
    b->used[next] = 0;
    mesh_moves_start(&it, p, step, b->rank, 0);
    {
        size_t used = b->used[next], most = b->most;
        mesh__make_room(b, t, step);
        whole = t->at[next];
        if (fused && (b->used[next] > used || mesh__touches_own(p, step + 1, b->rank, MESH_MOVE_ZERO))) {
            /* slab by slab, unless it lies in the destination; what is zero there once would not be when the next slab is made in it */
            in_place = 0;
            b->used[next] = used;
            b->most = most;
        }
    }
    mesh__make_staging(b, t, step, 2);
    for (round = 0; round < 2; round++) {
        mesh_box slab = mesh__made_in(p, step, &it.to, round);
        if (in_place)
            slab_at[round] = whole;
        else
            slab_at[round] =
                mesh__dense(mesh__own_scratch(b, mesh__rounded(mesh_box_count(&slab) * elem)), &slab, elem);
    }
    mesh__add_exchange(b, task, task + 1, step, 0, 0);
    for (round = 0; round < s->rounds; round++) {
        int turn = round & 1, before = mesh__here(b), come = b->nafter;
        if (round + 1 < s->rounds) mesh__add_exchange(b, task, task + 1, step, round + 1, !turn);
        if (fused && round > 0) mesh__hand_on(b, task, step, round - 1, &slab_at[!turn], &source);
        mesh__add_wait_of(b, before);
        mesh__add_after(b, after, come);
        after = come;
        if (!in_place) {
            mesh_box slab = mesh__made_in(p, step, &it.to, round);
            slab_at[turn] = mesh__dense(slab_at[turn].base, &slab, elem);
        }
        t->at[next] = slab_at[turn];
        mesh__add_reduction(b, t, step, round, turn);
    }
    if (!fused) return 1;
    mesh__hand_on(b, task, step, s->rounds - 1, &slab_at[(s->rounds - 1) & 1], &source);
    mesh__add_wait_of(b, mesh__here(b));
    mesh__add_after(b, after, b->nafter);
    return 2;
}

MESH__PRIVATE int mesh__in_rounds(const mesh_plan *p) {
    int k;
    for (k = 0; k < p->nsteps; k++)
        if (p->step[k].rounds > 1) return 1;
    return 0;
}

/* Is it one step for which this rank needs no other, of the same bits without copies of its ends? A number that is rounded before it is added is
   not, nor is a zero that is added (to -0). */
MESH__PRIVATE int mesh__is_straight(const mesh__task *t, int rank) {
    int plain = t->plan->nsteps == 1 && t->plan->step[0].kind == MESH_STEP_MOVE &&
                (!t->add || mesh__dtype_at(t, 0) == t->dtype[0]);
    mesh_moves it;
    if (!plain || (!t->add && !mesh__is_mixed(t))) return 0;
    for (mesh_moves_start(&it, t->plan, 0, rank, -1); mesh_moves_next(&it);)
        if (it.kind != MESH_MOVE_LOCAL && (it.kind != MESH_MOVE_ZERO || t->add)) return 0;
    return 1;
}

/* The ends that are copies: a source that travels in the destination's dtype; a destination of another dtype than what arrives, or to which is
   added what comes in several parts. Of the tasks [first, end), which are done together. */
MESH__PRIVATE void mesh__set_ends(mesh__builder *b, int first, int end) {
    int i, side;
    b->fixed = b->used[0] = b->used[1] = b->own = 0;
    for (i = first; i < end; i++) {
        mesh__task *t = &b->task[i];
        int n = t->plan->nsteps;
        t->given[0].base = t->given[1].base = NULL;
        t->straight = mesh__is_straight(t, b->rank);
        for (side = 0; side < 2 && !t->straight; side++) {
            mesh__place_of *at = side ? &t->last : &t->at[0];
            int64_t elem = mesh__elem_at(t, side ? n : 0);
            int copied =
                mesh__dtype_at(t, side ? n : 0) != t->dtype[side] || (side && t->add && !mesh__adds_reduced(t));
            unsigned char *base = b->scratch ? b->scratch + b->fixed : NULL;
            if (!copied || !at->base) continue;
            t->given[side] = *at;
            *at = mesh__dense(base, &at->box, elem);
            b->fixed += mesh__rounded(mesh_box_count(&at->box) * elem);
        }
    }
    mesh__scratch_most(b);
}

/* Fill the copy at an end, or give what it holds to what it is a copy of. */
MESH__PRIVATE void mesh__add_end(mesh__builder *b, const mesh__task *t, int side) {
    const mesh__place_of *given = &t->given[side];
    mesh_dtype inner = mesh__dtype_at(t, side ? t->plan->nsteps : 0);
    if (!given->base || !mesh_box_count(&given->box)) return;
    if (side)
        mesh__add_boxes(b, &t->last, inner, given, t->dtype[1], &given->box, t->add ? MESH_SUM : -1);
    else
        mesh__add_boxes(b, given, t->dtype[0], &t->at[0], inner, &given->box, -1);
}

/* The whole schedule. What is done together is the same on every rank: it follows from the plans. */
MESH__PRIVATE void mesh__add_tasks(mesh__builder *b, int count, int64_t cap) {
    int first, end, step;
    for (first = 0; first < count && !b->s->out_of_memory; first = end) {
        int64_t used = 64 + 128 * (int64_t)b->s->t->size; /* what alignment takes of packed messages */
        int steps = 0;
        for (end = first; end < count; end++) {
            const mesh_plan *p = b->task[end].plan;
            used = mesh__add64(used, mesh__add64(p->scratch, mesh__mul64(p->bytes, 2)));
            if (end > first && (mesh__in_rounds(p) || mesh__in_rounds(b->task[first].plan) || (cap && used > cap)))
                break;
            if (p->nsteps > steps) steps = p->nsteps;
        }
        mesh__set_ends(b, first, end);
        for (step = first; step < end; step++) mesh__add_end(b, &b->task[step], 0);
        for (step = 0; step < steps;) {
            const mesh_step *s = &b->task[first].plan->step[step];
            if (end - first == 1 && s->kind == MESH_STEP_REDUCE && s->rounds > 1)
                step += mesh__add_rounds(b, first, step);
            else
                mesh__add_stage(b, first, end, step++);
        }
        for (step = first; step < end; step++) mesh__add_end(b, &b->task[step], 1);
    }
}
#endif /* MESH_STAGES_IMPLEMENTED */
