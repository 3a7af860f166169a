/* mesh/schedule.h - an operation as data: what one rank posts, waits for, reduces and copies, in a straight line. Part of mesh.h 0.1.0. MIT licence.

   Includes kernels.h, tuning.h. Knows no comm and no engine: a schedule can be built for any rank of any mesh, and run by anyone.
*/
#if !defined(MESH_SCHEDULE_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_SCHEDULE_IMPLEMENTED))
#include "kernels.h"
#include "tuning.h"
#define MESH_SCHEDULE_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SCHEDULE_IMPLEMENTED)
#define MESH_SCHEDULE_IMPLEMENTED

enum {
    MESH__SCRATCHES = 6, /* pieces of memory of a schedule */
    MESH__ROUND = 32     /* partners served at once in direct exchanges */
};

/* A schedule is a straight-line program of steps; what a transport refuses to do is told in these words. */
#define MESH__STEPS(X)                                                                                                 \
    X(MESH__POST, "to post")      /* start xfers first .. first + count */                                             \
    X(MESH__CALL, "a collective") /* issue a collective of the transport's own */                                      \
    X(MESH__WAIT, "to wait")      /* hold until every post and call before a step is complete */                       \
    X(MESH__REDUCE, "to reduce")  /* dst = dst op src, n elements; src_first: dst = src op dst. A user's op may use  \
                                      src as scratch unless src_first */ \
    X(MESH__COPY, "to copy")      /* n bytes from src to dst */                                                        \
    X(MESH__DIVIDE, "to divide")  /* dst = dst / size of the group, n elements */                                      \
    X(MESH__SWAP, "to swap bytes") /* on big-endian hosts: n bytes of numbers to dst, in the other byte order */       \
    X(MESH__MOVE, "to copy")       /* from one xfer of this rank to another, strided or not */                         \
    X(MESH__FOLD, "to reduce")     /* to = to op from, strided or not; divide > 0: to = to / divide */                 \
    X(MESH__CONVERT, "to convert") /* to = from in another dtype, or to = to op from; op below 0: none */              \
    X(MESH__ZERO, "to zero")       /* an xfer of this rank becomes zero */                                             \
    X(MESH__TURN, "to swap bytes") /* an xfer's bytes, in place; width 0: the call's */                                \
    X(MESH__EXTEND, "memory")      /* call extend, which adds steps that could not be known before */

#define MESH_X(name, text) name,
enum { MESH__STEPS(MESH_X) MESH__STEP_KINDS };
#undef MESH_X

typedef struct mesh__step {
    int kind;
    int open; /* POST, CALL: it has not ended */
    mesh_ticket ticket;
    union {
        struct {
            int first, count;  /* xfers */
            uint32_t sequence; /* of its channel, where that is not the operation's; 0: it is */
        } post;
        struct {
            int which;               /* 0: the schedule's call; k: its native[k - 1] */
            uint64_t sent, received; /* what it moves at least */
        } call;
        struct {
            int before;
        } wait; /* a step */
        struct {
            void *dst;
            const void *src;
            size_t n;
            int src_first;
        } on; /* REDUCE, COPY, DIVIDE, SWAP; EXTEND: dst */
        struct {
            int from, to; /* xfers */
            int divide;
            mesh_dtype dtype, from_dtype; /* from_dtype: of CONVERT */
            int op;
        } of; /* MOVE, FOLD, CONVERT; ZERO: to */
        struct {
            int xfer, width;
        } turn;
    } as;
} mesh__step;

/* What one rank does in one operation, as data: built from a group, an index in it and a call, by functions that see no comm and no engine; run
   by the engine, or by anyone. */
typedef struct mesh__schedule {
    mesh_transport *t; /* whose memory it is made of */
    const mesh *on;    /* the group */
    int index;         /* this rank's */
    int ordered;       /* the call's op is a user's that does not commute */
    /* Whom the builders see: everybody in the group, or some of it. See mesh__scope_all. */
    int size, me;      /* how many they are, and which of them this rank is */
    const int *member; /* their indices in the group; NULL: everybody */
    int undivided;     /* an average is not yet divided: what is built now gives a part of the sum */
    const int *host;   /* of each index, a host's number in order of appearance; NULL: levels would change nothing */
    int nhosts, scattered; /* scattered: neighbours in the group are not on one host */
    mesh_call call;
    mesh_call *native; /* of its steps CALL that are another call than the whole */
    int nnative, native_cap;
    size_t elem_bytes;
    const mesh_tuning *tuning; /* NULL: what is built in */
    mesh__step *step;
    int nsteps, step_cap;
    mesh_xfer *xfer;
    int nxfers, xfer_cap;
    mesh_block *block; /* copies of the caller's */
    int block_cap;
    void *args; /* a native call's counts, offsets, list, or offsets that nobody gave: the caller's need not stay */
    int args_cap;
    struct {
        unsigned char *p;
        size_t nbytes;
    } scratch[MESH__SCRATCHES]; /* pieces of memory, kept for the next schedule made here unless large */
    int nscratch, out_of_memory;
    /* What a step EXTEND calls with its dst: adds steps that could not be known before, or says why that cannot be. */
    mesh_status (*extend)(struct mesh__schedule *s, const void *head, mesh_error *why);
    void *extra; /* what extend works on */
} mesh__schedule;

/* ---- // >>made of ---- */

/* A schedule of nothing; what an earlier one left of arrays and scratch is used again. Whom it is for is to be filled in: on, index, call. */
MESH__PRIVATE void mesh__schedule_begin(mesh__schedule *s, mesh_transport *t) {
    s->t = t;
    s->extend = NULL;
    s->member = NULL;
    s->undivided = 0;
    s->nsteps = s->nxfers = s->nnative = s->nscratch = s->out_of_memory = 0;
}

/* What is built from now on is among everybody in the group, or among `size` members of it of which this rank is number `me`. Roots, blocks
   and peers are then numbers among these. `member` stays the caller's, who goes back to everybody before he frees it. */
MESH__PRIVATE void mesh__scope_all(mesh__schedule *s) {
    s->size = s->on->size;
    s->me = s->index;
    s->member = NULL;
}

MESH__PRIVATE void mesh__scope(mesh__schedule *s, const int *member, int size, int me) {
    s->size = size;
    s->me = me;
    s->member = member;
}

MESH__PRIVATE mesh__step *mesh__step_add(mesh__schedule *s, int kind) {
    mesh__step *step;
    if (s->out_of_memory || !mesh__grow(s->t, (void **)&s->step, &s->step_cap, s->nsteps + 1, sizeof *s->step)) {
        s->out_of_memory = 1;
        return NULL;
    }
    step = &s->step[s->nsteps++];
    memset(step, 0, sizeof *step);
    step->kind = kind;
    if (kind == MESH__POST) step->as.post.first = s->nxfers;
    return step;
}

MESH__PRIVATE void mesh__add_post(mesh__schedule *s) { mesh__step_add(s, MESH__POST); }

/* Wait for the posts before a step. */
MESH__PRIVATE void mesh__add_wait_before(mesh__schedule *s, int before) {
    mesh__step *step = mesh__step_add(s, MESH__WAIT);
    if (step) step->as.wait.before = before;
}

MESH__PRIVATE void mesh__add_wait(mesh__schedule *s) { mesh__add_wait_before(s, s->nsteps); }

/* An xfer, of the post begun last unless another step came since. `index` is the peer's in the scope. */
MESH__PRIVATE void mesh__add_xfer(mesh__schedule *s, int direction, int index, const void *base, size_t nbytes) {
    mesh_xfer *x;
    if (s->out_of_memory || !mesh__grow(s->t, (void **)&s->xfer, &s->xfer_cap, s->nxfers + 1, sizeof *s->xfer)) {
        s->out_of_memory = 1;
        return;
    }
    x = &s->xfer[s->nxfers++];
    x->base = (void *)(uintptr_t)base;
    x->nbytes = nbytes;
    x->block = NULL;
    x->direction = direction;
    x->index = s->member ? s->member[index] : index;
    x->zero = 0;
    x->rank = mesh_rank_at(s->on, x->index);
    if (s->step[s->nsteps - 1].kind == MESH__POST) s->step[s->nsteps - 1].as.post.count++;
}

MESH__PRIVATE mesh_call *mesh__native_call(mesh__schedule *s, const mesh__step *step) {
    return step->as.call.which ? &s->native[step->as.call.which - 1] : &s->call;
}

/* A step on n elements or bytes that lie in one piece. */
MESH__PRIVATE void mesh__add_on(mesh__schedule *s, int kind, void *dst, const void *src, size_t n, int src_first) {
    mesh__step *step = n ? mesh__step_add(s, kind) : NULL;
    if (!step) return;
    step->as.on.dst = dst;
    step->as.on.src = src;
    step->as.on.n = n;
    step->as.on.src_first = src_first;
}

/* dst = dst op src, or src op dst: that matters to a user's op only. */
MESH__PRIVATE void mesh__add_reduce(mesh__schedule *s, void *dst, const void *src, size_t count, int src_first) {
    mesh__add_on(s, MESH__REDUCE, dst, src, count, src_first);
}

MESH__PRIVATE void mesh__add_divide(mesh__schedule *s, void *dst, size_t count) {
    if (s->call.op == MESH_AVG && s->on->size > 1 && !s->undivided) mesh__add_on(s, MESH__DIVIDE, dst, dst, count, 0);
}

MESH__PRIVATE void mesh__add_copy(mesh__schedule *s, void *dst, const void *src, size_t nbytes) {
    if (dst != src) mesh__add_on(s, MESH__COPY, dst, src, nbytes, 0);
}

/* Turn the byte order of nbytes, which lie at src, into dst. */
MESH__PRIVATE void mesh__add_swap(mesh__schedule *s, void *dst, const void *src, size_t nbytes) {
    mesh__add_on(s, MESH__SWAP, dst, src, nbytes, 0);
}

/* Is scratch the transport's memory: the device's, or what peers can map? */
MESH__PRIVATE int mesh__scratch_is_transports(const mesh_transport *t) {
    return t->caps & (MESH_CAP_DEVICE | MESH_CAP_SHARED) && MESH__HAS(t->ops, alloc) && MESH__HAS(t->ops, free);
}

MESH__PRIVATE void mesh__scratch_free(mesh__schedule *s, size_t above) {
    int k, n = above ? s->nscratch
                     : (int)MESH__SCRATCHES; /* those that this schedule has not used were looked at before */
    for (k = 0; k < n; k++) {
        if (!s->scratch[k].p || s->scratch[k].nbytes <= above) continue;
        if (mesh__scratch_is_transports(s->t))
            s->t->ops->free(s->t, s->scratch[k].p);
        else
            mesh_transport_free(s->t, s->scratch[k].p);
        s->scratch[k].p = NULL;
        s->scratch[k].nbytes = 0;
    }
}

/* Memory of the schedule's own, aligned to 64 bytes. At most MESH__SCRATCHES pieces. */
MESH__PRIVATE unsigned char *mesh__scratch(mesh__schedule *s, size_t nbytes) {
    int k = s->nscratch++;
    void *p;
    MESH_ASSERT(k < MESH__SCRATCHES);
    nbytes += 64;
    if (nbytes > s->scratch[k].nbytes) {
        p = s->scratch[k].p;
        if (p && mesh__scratch_is_transports(s->t)) s->t->ops->free(s->t, p);
        if (p && !mesh__scratch_is_transports(s->t)) mesh_transport_free(s->t, p);
        p = NULL;
        if (!mesh__scratch_is_transports(s->t))
            p = mesh_transport_alloc(s->t, nbytes);
        else if (s->t->ops->alloc(s->t, nbytes, 0, &p) != MESH_OK)
            p = NULL;
        s->scratch[k].p = (unsigned char *)p;
        s->scratch[k].nbytes = p ? nbytes : 0;
        if (!p) s->out_of_memory = 1;
    }
    p = s->scratch[k].p;
    return p ? (unsigned char *)(((uintptr_t)p + 63) & ~(uintptr_t)63) : NULL;
}

MESH__PRIVATE void mesh__schedule_free(mesh__schedule *s) {
    mesh__scratch_free(s, 0);
    mesh_transport_free(s->t, s->step);
    mesh_transport_free(s->t, s->xfer);
    mesh_transport_free(s->t, s->block);
    mesh_transport_free(s->t, s->args);
    mesh_transport_free(s->t, s->native);
}

/* ---- // >>packed: for transports that take no blocks ---- */

MESH__PRIVATE int mesh__is_strided(const mesh_xfer *x) { return x->block && x->block->ndim && x->nbytes; }

typedef struct mesh__packer {
    mesh__schedule *s;
    mesh__step *step; /* the new ones */
    int *now;         /* of each old step, the first of the new ones that stand for it */
    int *first;       /* of each post, the strided xfers it had */
    unsigned char *scratch;
    uint64_t at, most; /* bytes in use, and at most so far */
    int n;
} mesh__packer;

/* One round to count, with `step` NULL, and one to write. */
MESH__PRIVATE void mesh__pack_move(mesh__packer *p, int from, int to) {
    if (p->step) {
        mesh__step *step = &p->step[p->n];
        memset(step, 0, sizeof *step);
        step->kind = MESH__MOVE;
        step->as.of.from = from;
        step->as.of.to = to;
    }
    p->n++;
}

/* A post goes with contiguous twins of its xfers, which stand behind all others; the strided ones stay for who names them. */
MESH__PRIVATE void mesh__pack_post(mesh__packer *p, int k) {
    mesh__schedule *s = p->s;
    mesh__step post = s->step[k];
    int i, first = post.as.post.first, twin = s->nxfers, strided = 0;
    for (i = 0; i < post.as.post.count; i++) strided += mesh__is_strided(&s->xfer[first + i]);
    p->first[k] = strided ? first : -1;
    for (i = 0; i < post.as.post.count && strided; i++, s->nxfers += p->step != NULL) {
        mesh_xfer x = s->xfer[first + i];
        int packs = mesh__is_strided(&x);
        if (packs) {
            x.base = p->step ? p->scratch + p->at : NULL;
            x.block = NULL;
            p->at += (x.nbytes + 63) & ~(uint64_t)63;
        }
        if (p->step) s->xfer[twin + i] = x; /* there is room */
        if (packs && x.direction == MESH_SEND) mesh__pack_move(p, first + i, twin + i);
    }
    if (p->at > p->most) p->most = p->at;
    if (strided) post.as.post.first = twin;
    if (p->step) p->step[p->n] = post;
    p->n++;
}

/* Behind a wait: what the posts before it have received goes into place. Where that is all there was, their memory is free again. */
MESH__PRIVATE void mesh__pack_wait(mesh__packer *p, int *open, int k, int before) {
    mesh__schedule *s = p->s;
    int i, j;
    for (i = *open; i < before; i++) {
        const mesh__step *post = &s->step[i];
        if (post->kind != MESH__POST || p->first[i] < 0) continue;
        for (j = 0; j < post->as.post.count; j++) {
            const mesh_xfer *x = &s->xfer[p->first[i] + j];
            if (mesh__is_strided(x) && x->direction != MESH_SEND)
                mesh__pack_move(p, p->step ? p->step[p->now[i + 1] - 1].as.post.first + j : 0, p->first[i] + j);
        }
    }
    if (*open < before) *open = before;
    if (*open >= k) p->at = 0;
}

MESH__PRIVATE void mesh__pack_steps(mesh__packer *p) {
    mesh__schedule *s = p->s;
    int k, open = 0;
    p->at = 0;
    p->n = 0;
    for (k = 0; k < s->nsteps; k++) {
        p->now[k] = p->n;
        if (s->step[k].kind == MESH__POST) {
            mesh__pack_post(p, k);
            continue;
        }
        if (p->step) {
            p->step[p->n] = s->step[k];
            if (s->step[k].kind == MESH__WAIT) p->step[p->n].as.wait.before = p->now[s->step[k].as.wait.before];
        }
        p->n++;
        if (s->step[k].kind == MESH__WAIT) mesh__pack_wait(p, &open, k, s->step[k].as.wait.before);
    }
    p->now[k] = p->n;
}

/* Rewrite a schedule whose posts have strided xfers for a transport that takes none. */
MESH__PRIVATE void mesh__schedule_pack(mesh__schedule *s) {
    mesh__packer p;
    const mesh__step *last = s->nsteps ? &s->step[s->nsteps - 1] : NULL;
    int k, twins = 0, wait = last && (last->kind != MESH__WAIT || last->as.wait.before < s->nsteps - 1);
    if (s->out_of_memory) return;
    for (k = 0; k < s->nxfers; k++) /* one run, or none */
        if (!mesh__is_strided(&s->xfer[k])) s->xfer[k].block = NULL;
    for (k = 0; k < s->nxfers && !mesh__is_strided(&s->xfer[k]); k++) {}
    if (k == s->nxfers) return;
    if (wait) mesh__add_wait(s);
    for (k = 0; k < s->nsteps; k++) twins += s->step[k].kind == MESH__POST ? s->step[k].as.post.count : 0;
    memset(&p, 0, sizeof p);
    p.s = s;
    p.now = (int *)mesh_transport_alloc(s->t, (2 * (size_t)s->nsteps + 1) * sizeof *p.now);
    if (p.now) {
        p.first = p.now + s->nsteps + 1;
        mesh__pack_steps(&p);
        if (p.most) p.scratch = mesh__scratch(s, (size_t)p.most);
        p.step = (mesh__step *)mesh_transport_alloc(s->t, (size_t)p.n * sizeof *p.step);
    }
    if (!p.step || s->out_of_memory ||
        !mesh__grow(s->t, (void **)&s->xfer, &s->xfer_cap, s->nxfers + twins, sizeof *s->xfer)) {
        s->out_of_memory = 1;
        mesh_transport_free(s->t, p.step);
    } else {
        mesh__pack_steps(&p);
        mesh_transport_free(s->t, s->step);
        s->step = p.step;
        s->nsteps = s->step_cap = p.n;
    }
    mesh_transport_free(s->t, p.now);
}

/* ---- // >>run: all that is no message ---- */

MESH__PRIVATE mesh_status mesh__step_reduce(mesh__schedule *s, void *group, const mesh__step *step, int divide) {
    mesh_transport *t = s->t;
    size_t width = mesh__swap_width(&s->call), n = step->as.on.n;
    void *dst = step->as.on.dst, *src = (void *)(uintptr_t)step->as.on.src;
    if (MESH__HAS(t->ops, reduce))
        return t->ops->reduce(t, group, s->call.op, s->call.dtype, dst, NULL, src, NULL, n, divide);
    t->inside.combining = s->call.user_op != NULL;
    if (width)
        mesh__combine_swapped(&s->call, dst, src, n, s->elem_bytes, step->as.on.src_first, divide, width);
    else
        mesh__combine(&s->call, dst, src, n, s->elem_bytes, step->as.on.src_first, divide);
    t->inside.combining = 0;
    return MESH_OK;
}

/* A reduction from one strided block to another; memory holds the host's byte order. */
MESH__PRIVATE mesh_status mesh__step_fold(mesh__schedule *s, void *group, const mesh__step *step) {
    const mesh_xfer *from = &s->xfer[step->as.of.from], *to = &s->xfer[step->as.of.to];
    mesh__cursor src = mesh__cursor_on(from), dst = mesh__cursor_on(to);
    size_t elem = mesh_dtype_bytes(step->as.of.dtype);
    mesh_call call;
    uint64_t left, n;
    memset(&call, 0, sizeof call);
    call.dtype = (int)step->as.of.dtype;
    call.op = step->as.of.op;
    if (MESH__HAS(s->t->ops, reduce))
        return s->t->ops->reduce(s->t, group, call.op, call.dtype, to->base, to->block, from->base, from->block,
                                 to->nbytes / elem, step->as.of.divide);
    for (left = to->nbytes; left; left -= n) {
        n = src.left < dst.left ? src.left : dst.left;
        mesh__combine(&call, dst.p, src.p, (size_t)n / elem, elem, 0, step->as.of.divide);
        mesh__cursor_move(&src, n);
        mesh__cursor_move(&dst, n);
    }
    return MESH_OK;
}

MESH__PRIVATE void mesh__step_convert(mesh__schedule *s, const mesh__step *step) {
    const mesh_xfer *from = &s->xfer[step->as.of.from], *to = &s->xfer[step->as.of.to];
    mesh__cursor src = mesh__cursor_on(from), dst = mesh__cursor_on(to);
    size_t in = mesh_dtype_bytes(step->as.of.from_dtype), out = mesh_dtype_bytes(step->as.of.dtype);
    uint64_t left, n;
    for (left = to->nbytes / out; left; left -= n) {
        n = src.left / in < dst.left / out ? src.left / in : dst.left / out;
        mesh__convert(step->as.of.dtype, dst.p, step->as.of.from_dtype, src.p, (size_t)n, step->as.of.op);
        mesh__cursor_move(&src, n * in);
        mesh__cursor_move(&dst, n * out);
    }
}

/* Any step that is no message. `group`: the transport's handle. why: filled by what a step has found, else left as it is. */
MESH__PRIVATE mesh_status mesh__step_run(mesh__schedule *s, void *group, const mesh__step *step, mesh_error *why) {
    mesh_transport *t = s->t;
    const mesh_ops *ops = t->ops;
    const mesh_xfer *from, *to;
    size_t width;
    switch (step->kind) {
    case MESH__COPY:
        if (MESH__HAS(ops, copy))
            return ops->copy(t, group, step->as.on.dst, NULL, step->as.on.src, NULL, step->as.on.n);
        mesh__copy_bytes(step->as.on.dst, step->as.on.src, step->as.on.n);
        return MESH_OK;
    case MESH__MOVE:
        from = &s->xfer[step->as.of.from];
        to = &s->xfer[step->as.of.to];
        if (MESH__HAS(ops, copy))
            return ops->copy(t, group, to->base, to->block, from->base, from->block, from->nbytes);
        mesh__move(from, to);
        return MESH_OK;
    case MESH__DIVIDE:
        return mesh__step_reduce(s, group, step, s->on->size);
    case MESH__FOLD:
        return mesh__step_fold(s, group, step);
    case MESH__CONVERT:
        mesh__step_convert(s, step);
        return MESH_OK;
    case MESH__ZERO:
        to = &s->xfer[step->as.of.to];
        if (MESH__HAS(ops, copy)) return ops->copy(t, group, to->base, to->block, NULL, NULL, to->nbytes);
        mesh__zero(to);
        return MESH_OK;
    case MESH__SWAP:
        mesh__swap(step->as.on.dst, step->as.on.src, step->as.on.n, mesh__swap_width(&s->call));
        return MESH_OK;
    case MESH__TURN:
        width = step->as.turn.width ? (size_t)step->as.turn.width : mesh__swap_width(&s->call);
        mesh__swap_xfer(&s->xfer[step->as.turn.xfer], width);
        return MESH_OK;
    case MESH__EXTEND:
        return s->extend(s, step->as.on.dst, why);
    default:
        return mesh__step_reduce(s, group, step, 0);
    }
}

/* ---- // >>views: where the elements of an operation lie ---- */

typedef struct mesh__part { /* one of the arrays */
    unsigned char *base;
    size_t count, start; /* elements; start: those of the parts before */
} mesh__part;

enum {
    MESH__CHUNKS, /* one logical array of `total` elements, block i a chunk of it as torch.chunk has it */
    MESH__BLOCKS, /* block i follows block i-1; a list of arrays holds a piece of every block each */
    MESH__COUNTS  /* block i has counts[i] elements at offsets[i] */
};

typedef struct mesh__view {
    const mesh__part *part;
    int nparts, kind;
    size_t total, each; /* CHUNKS: of the whole, of a block (the last ones have less); BLOCKS: both of a block */
    const size_t *counts, *offsets;
} mesh__view;

typedef struct mesh__range {
    int block;
    size_t at, count;
} mesh__range;

MESH__PRIVATE mesh__view mesh__view_of(const mesh__part *part, int nparts, int kind, int chunks) {
    mesh__view v;
    memset(&v, 0, sizeof v);
    v.part = part;
    v.nparts = nparts;
    v.kind = kind;
    v.total = v.each = part[nparts - 1].start + part[nparts - 1].count;
    if (kind == MESH__CHUNKS) v.each = (v.total + (size_t)chunks - 1) / (size_t)chunks;
    return v;
}

MESH__PRIVATE mesh__part mesh__part_of(const void *base, size_t count) {
    mesh__part p;
    p.base = (unsigned char *)(uintptr_t)base;
    p.count = count;
    p.start = 0;
    return p;
}

MESH__PRIVATE mesh__range mesh__range_of(int block, size_t at, size_t count) {
    mesh__range r;
    r.block = block;
    r.at = at;
    r.count = count;
    return r;
}

MESH__PRIVATE mesh__range mesh__block_of(const mesh__view *v, int i) {
    size_t at = v->each * (size_t)i;
    if (v->kind == MESH__BLOCKS) return mesh__range_of(i, 0, v->total);
    if (v->kind == MESH__COUNTS) return mesh__range_of(i, 0, v->counts[i]);
    if (at > v->total) at = v->total;
    return mesh__range_of(0, at, v->total - at < v->each ? v->total - at : v->each);
}

/* Blocks a .. b-1 of a view of chunks. */
MESH__PRIVATE mesh__range mesh__blocks_of(const mesh__view *v, int a, int b) {
    mesh__range first = mesh__block_of(v, a), last = mesh__block_of(v, b);
    return mesh__range_of(0, first.at, last.at - first.at);
}

/* Piece j of a range cut into pieces of `segment` elements; how many pieces there are: at least one. */
MESH__PRIVATE mesh__range mesh__segment_of(mesh__range r, size_t segment, size_t j) {
    size_t at = segment * j;
    if (at > r.count) at = r.count;
    return mesh__range_of(r.block, r.at + at, r.count - at < segment ? r.count - at : segment);
}

MESH__PRIVATE size_t mesh__segments(mesh__range r, size_t segment) { return r.count ? (r.count - 1) / segment + 1 : 1; }

/* Behind a buffer's beginning; of none, which has no elements, none. */
MESH__INLINE unsigned char *mesh__byte(const void *p, size_t at) {
    return p ? (unsigned char *)(uintptr_t)p + at : NULL;
}

/* The first contiguous run of a range; the range goes on behind it. Its elements are returned (0 for an empty range), *p is where they are. */
MESH__PRIVATE size_t mesh__run(const mesh__schedule *s, const mesh__view *v, mesh__range *r, unsigned char **p) {
    int low = 0, high = v->nparts - 1;
    const mesh__part *part;
    size_t inside, n;
    if (v->kind == MESH__COUNTS) {
        *p = mesh__byte(v->part->base, (v->offsets[r->block] + r->at) * s->elem_bytes);
        n = r->count;
        r->at += n;
        r->count = 0;
        return n;
    }
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (v->part[middle].start <= r->at)
            low = middle;
        else
            high = middle - 1;
    }
    part = &v->part[low];
    inside = r->at - part->start;
    n = part->count - inside < r->count ? part->count - inside : r->count;
    if (v->kind == MESH__BLOCKS) inside += (size_t)r->block * part->count;
    *p = part->base ? part->base + inside * s->elem_bytes : NULL;
    r->at += n;
    r->count -= n;
    return n;
}

/* The xfers of a range to or from a peer, a message for every part it touches; with `flat`, the data lie there one after another. */
MESH__PRIVATE void mesh__add_range(mesh__schedule *s, int direction, int index, const mesh__view *v, mesh__range r,
                                   unsigned char *flat) {
    do {
        unsigned char *p;
        size_t nbytes = mesh__run(s, v, &r, &p) * s->elem_bytes;
        mesh__add_xfer(s, direction, index, flat ? flat : p, nbytes);
        if (flat) flat += nbytes;
    } while (r.count);
}

/* Copy or reduce a range of one view to the same elements of another, or from flat memory. */
MESH__PRIVATE void mesh__add_ranges(mesh__schedule *s, int kind, const mesh__view *to, mesh__range r,
                                    const mesh__view *from, mesh__range q, const unsigned char *flat, int src_first) {
    while (r.count) {
        unsigned char *dst, *src;
        mesh__range r2 = r, q2 = q;
        size_t n = mesh__run(s, to, &r2, &dst), m = n;
        if (flat)
            src = (unsigned char *)(uintptr_t)flat;
        else
            m = mesh__run(s, from, &q2, &src);
        if (m < n) n = m;
        if (kind == MESH__COPY)
            mesh__add_copy(s, dst, src, n * s->elem_bytes);
        else
            mesh__add_reduce(s, dst, src, n, src_first);
        r.at += n, r.count -= n;
        q.at += n, q.count -= n;
        if (flat) flat += n * s->elem_bytes;
    }
}

MESH__PRIVATE void mesh__add_copies(mesh__schedule *s, const mesh__view *to, mesh__range r, const mesh__view *from,
                                    mesh__range q) {
    mesh__add_ranges(s, MESH__COPY, to, r, from, q, NULL, 0);
}

MESH__PRIVATE void mesh__add_reduces(mesh__schedule *s, const mesh__view *to, mesh__range r, const unsigned char *flat,
                                     int src_first) {
    mesh__add_ranges(s, MESH__REDUCE, to, r, NULL, r, flat, src_first);
}

MESH__PRIVATE void mesh__add_divides(mesh__schedule *s, const mesh__view *v, mesh__range r) {
    while (r.count) {
        unsigned char *p;
        size_t n = mesh__run(s, v, &r, &p);
        mesh__add_divide(s, p, n);
    }
}

MESH__PRIVATE mesh__range mesh__all_of(const mesh__view *v) { return mesh__range_of(0, 0, v->total); }

/* Receive a range and reduce it into a view, in one pass where the transport can: then there is nothing left to add behind the wait. What is
   sent at the same time must lie elsewhere. */
MESH__PRIVATE int mesh__fuses(const mesh__schedule *s) {
    return s->t->caps & MESH_CAP_REDUCE && !s->call.user_op && !mesh__is_loc(s->call.op) && !mesh__swap_width(&s->call);
}

MESH__PRIVATE void mesh__add_take(mesh__schedule *s, int index, const mesh__view *v, mesh__range r,
                                  unsigned char *flat) {
    if (mesh__fuses(s))
        mesh__add_range(s, MESH_REDUCE, index, v, r, NULL);
    else
        mesh__add_range(s, MESH_RECV, index, v, r, flat);
}

MESH__PRIVATE void mesh__add_taken(mesh__schedule *s, const mesh__view *v, mesh__range r, const unsigned char *flat,
                                   int src_first) {
    if (!mesh__fuses(s)) mesh__add_reduces(s, v, r, flat, src_first);
}

/* Partners served at once: more would meet at one rank. After every MESH__ROUND of them comes a wait. */
MESH__PRIVATE void mesh__add_round(mesh__schedule *s, int k) {
    if (k % MESH__ROUND != 1) return;
    if (k > 1) mesh__add_wait(s);
    mesh__add_post(s);
}

/* Does this rank give data, or take a result, in this kind of call? */
MESH__PRIVATE int mesh__gives(const mesh__schedule *s, int kind) {
    int rooted = kind == MESH_CALL_BROADCAST || kind == MESH_CALL_SCATTER || kind == MESH_CALL_SCATTER_V;
    return !rooted || s->index == s->call.root;
}

MESH__PRIVATE int mesh__takes(const mesh__schedule *s, int kind) {
    int rooted = kind == MESH_CALL_REDUCE || kind == MESH_CALL_GATHER || kind == MESH_CALL_GATHER_V;
    if (kind == MESH_CALL_EXSCAN) return s->index > 0;
    return !rooted || s->index == s->call.root;
}
#endif /* MESH_SCHEDULE_IMPLEMENTED */
