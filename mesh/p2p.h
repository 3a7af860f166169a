/* mesh/p2p.h - point to point: send, receive, exchange, shift; halos of N-d arrays. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh_collectives.h.
*/
#if !defined(MESH_P2P_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_P2P_IMPLEMENTED))
#include "../mesh_collectives.h"
#endif

#ifndef MESH_P2P_H
#define MESH_P2P_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- point to point: in the order posted per pair of ranks and group; lengths and dtypes must agree ------------------------

   Behind the axes a tag may stand, "dp#7" ("#7": of the whole mesh), 1 to 1,073,741,823: messages under it keep their order among themselves and do
   not get in between others, nor others between them. No wildcards: who waits for whom would not be known. Each pair of a tag and a peer in use
   takes some 40 bytes until the comm is closed. UNSUPPORTED: transports that match messages in the order of issue (GPUs); a tag above what MPI has room
   for (the text says how many: under MPICH 134,152,191). */

/* To and from another rank: a message to oneself needs its other half in the same call (mesh_sendrecv, mesh_exchange), else ARGUMENT. */
MESH_API mesh_status mesh_send(mesh_comm *c, const char *axes, int to, const void *p, size_t count, mesh_dtype d);
MESH_API mesh_status mesh_send_start(mesh_comm *c, const char *axes, int to, const void *p, size_t count, mesh_dtype d,
                                     mesh_request *r);
MESH_API mesh_status mesh_recv(mesh_comm *c, const char *axes, int from, void *p, size_t count, mesh_dtype d);
MESH_API mesh_status mesh_recv_start(mesh_comm *c, const char *axes, int from, void *p, size_t count, mesh_dtype d,
                                     mesh_request *r);
/* Both at once, to and from any two ranks (or oneself). to or from -1: that half is left out. In place: send == recv, through scratch. */
MESH_API mesh_status mesh_sendrecv(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                   int from, void *recv, size_t recv_count, mesh_dtype d);
MESH_API mesh_status mesh_sendrecv_start(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                         int from, void *recv, size_t recv_count, mesh_dtype d, mesh_request *r);
/* Send to index + displacement and receive from index - displacement of the group; periodic wraps, else the ranks at the edge send or
   receive nothing and their recv is left as it is. In place: send == recv, through scratch. */
MESH_API mesh_status mesh_shift(mesh_comm *c, const char *axes, int displacement, int periodic, const void *send,
                                void *recv, size_t count, mesh_dtype d);
MESH_API mesh_status mesh_shift_start(mesh_comm *c, const char *axes, int displacement, int periodic, const void *send,
                                      void *recv, size_t count, mesh_dtype d, mesh_request *r);
/* Any set of sends and receives at once, strided blocks included (a column of a matrix goes without packing). In each xfer `rank` is an
   index in the group. Sends to oneself match receives from oneself in the same call, in order. Blocks are read during the call only.
   ARGUMENT: contiguous transfers of which one is received into another's memory; a received block that lies on itself. Not looked at: blocks
   against other transfers (interleaved columns are fine); what two of them receive at one place is the one or the other. */
MESH_API mesh_status mesh_exchange(mesh_comm *c, const char *axes, const mesh_xfer *xfers, int count);
MESH_API mesh_status mesh_exchange_start(mesh_comm *c, const char *axes, const mesh_xfer *xfers, int count,
                                         mesh_request *r);

/* ---- halos: N-d arrays divided over the mesh, each rank with a border of its neighbours' cells ---- */

typedef struct mesh_halo {
    int ndim;                     /* of the local array, at most MESH_MAX_DIMS; the last dim is contiguous */
    int corners;                  /* 0: faces only (a star stencil); 1: edges and corners too (a box stencil) */
    int64_t shape[MESH_MAX_DIMS]; /* elements of the local array, halo included */
    /* Width of the halo before and after the dim's interior; the same on every rank. */
    int64_t low[MESH_MAX_DIMS], high[MESH_MAX_DIMS];
    /* The mesh axis that divides the dim; NULL: none, the dim is whole on every rank. */
    const char *axis[MESH_MAX_DIMS];
    /* 1: the first and last rank are neighbours (without an axis: the dim wraps onto itself). */
    int periodic[MESH_MAX_DIMS];
} mesh_halo;

/* Fill the halo with the neighbours' interior cells, straight from and to the array. Where there is no neighbour it is left as it is.
   ARGUMENT: an axis that is none or divides two dims, an interior thinner than the neighbour's halo. */
MESH_API mesh_status mesh_halo_exchange(mesh_comm *c, const mesh_halo *h, void *array, mesh_dtype d);
MESH_API mesh_status mesh_halo_exchange_start(mesh_comm *c, const mesh_halo *h, void *array, mesh_dtype d,
                                              mesh_request *r);

#ifdef __cplusplus
}
#endif
#endif /* MESH_P2P_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_P2P_IMPLEMENTED)
#define MESH_P2P_IMPLEMENTED

/* ---- // >>point to point ---- */

/* Memory that is received into may be in no other transfer; strided blocks are not looked at: interleaved columns are fine. The two that overlap; -1 in
   *one: none; status OK or MEMORY. */
MESH__PRIVATE mesh_status mesh__xfers_overlap(mesh_transport *t, const mesh_xfer *xfers, int count, int *one,
                                              int *other) {
    mesh__extents list;
    int i;
    *one = *other = -1;
    if (count < 2) return MESH_OK;
    if (count == 2) {
        if (!xfers[0].block && !xfers[1].block &&
            (xfers[0].direction == MESH_RECV || xfers[1].direction == MESH_RECV) &&
            mesh__overlap(xfers[0].base, (size_t)xfers[0].nbytes, xfers[1].base, (size_t)xfers[1].nbytes))
            *one = 0, *other = 1;
        return MESH_OK;
    }
    if (!mesh__extents_open(&list, t, (size_t)count)) return MESH_ERR_MEMORY;
    for (i = 0; i < count; i++)
        if (!xfers[i].block)
            mesh__extents_add(&list, xfers[i].base, (size_t)xfers[i].nbytes, i, xfers[i].direction == MESH_RECV);
    *one = mesh__extents_close(&list, t, other);
    return MESH_OK;
}

/* Does a block surely lie on itself? Dims that are one run with what they step over are taken as that; of the others each is held against each wider one. */
MESH__PRIVATE int mesh__block_meets_itself(const mesh_block *b) {
    mesh_extent dim[MESH_MAX_DIMS];
    int64_t run = (int64_t)b->run, j, at, behind;
    int i, k, n = 0;
    for (i = 0; i < b->ndim; i++) {
        if (b->dim[i].count == 1) continue;
        for (k = n++; k > 0 && dim[k - 1].stride > b->dim[i].stride; k--) dim[k] = dim[k - 1];
        dim[k] = b->dim[i];
    }
    for (i = 0; i < n && dim[i].stride <= run; i++) {
        if (dim[i].stride < run) return 1;
        run *= dim[i].count;
    }
    for (; i < n; i++)
        for (k = i + 1; k < n; k++)
            for (j = 1, at = dim[k].stride; j < dim[k].count && at / dim[i].stride < dim[i].count; j++) {
                behind = at % dim[i].stride;
                if (behind < run) return 1;
                if (at / dim[i].stride + 1 < dim[i].count && dim[i].stride - behind < run) return 1;
                if (at > INT64_MAX - dim[k].stride) break;
                at += dim[k].stride;
            }
    return 0;
}

MESH__PRIVATE mesh_status mesh__xfer_check(mesh_comm *c, const mesh__group *g, int kind, const mesh_xfer *x, int i) {
    const char *axes = g->axes;
    int k;
    if (x->rank < 0 || x->rank >= g->on.size)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "peer %d is outside the group of %d; it is an index in the group", x->rank, g->on.size);
    if (!x->base && x->nbytes)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "the buffer is NULL with %u bytes", x->nbytes);
    if (x->nbytes > (uint64_t)SIZE_MAX / 2)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%u bytes overflow", x->nbytes);
    if (!mesh_block_fits(x->block, x->nbytes))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "transfer %d has %u bytes, but its block describes another number", i, x->nbytes);
    if (x->direction != MESH_SEND && x->direction != MESH_RECV)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "transfer %d has direction %d", i, x->direction);
    for (k = 0; x->direction == MESH_RECV && x->block && k < x->block->ndim; k++)
        if (x->block->dim[k].count > 1 && x->block->dim[k].stride == 0)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                                "transfer %d receives %l times at one place: its block has a stride of 0", i,
                                (int64_t)x->block->dim[k].count);
    if (x->direction == MESH_RECV && x->block && x->nbytes && mesh__block_meets_itself(x->block))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "transfer %d receives more than once at one place: its block, of runs of %u bytes, lies on "
                            "itself; each stride is at least what it steps over",
                            i, x->block->run);
    return MESH_OK;
}

/* The next xfer in a direction to or from myself, behind `i`. */
MESH__PRIVATE int mesh__next_self(const mesh_xfer *xfers, int count, int index, int direction, int i) {
    for (i++; i < count && !(xfers[i].rank == index && xfers[i].direction == direction);) i++;
    return i;
}

MESH__PRIVATE mesh_status mesh__self_check(mesh_comm *c, mesh__group *g, int kind, const mesh_xfer *xfers, int count) {
    int s = -1, r = -1;
    for (;;) {
        s = mesh__next_self(xfers, count, g->index, MESH_SEND, s);
        r = mesh__next_self(xfers, count, g->index, MESH_RECV, r);
        if (s >= count && r >= count) return MESH_OK;
        if (s >= count || r >= count || xfers[s].nbytes != xfers[r].nbytes)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, g->axes,
                                "a %s oneself (index %d) needs its other half, of the same length, in the same call",
                                s < count ? "send to" : "receive from", g->index);
    }
}

/* A copy of the caller's xfer, and of its block. */
MESH__PRIVATE void mesh__add_p2p(mesh__schedule *s, const mesh_xfer *x, int *nblocks) {
    mesh__add_xfer(s, x->direction, x->rank, x->base, (size_t)x->nbytes);
    if (s->out_of_memory || !x->block) return;
    s->block[*nblocks] = *x->block;
    s->xfer[s->nxfers - 1].block = &s->block[(*nblocks)++];
}

/* On a big-endian host: what is sent is packed and turned first, what has come is turned at the end. */
MESH__PRIVATE void mesh__build_p2p_turned(mesh__schedule *s, const mesh_xfer *xfers, int count, int *nblocks) {
    int i, index = s->index, first;
    size_t total = 0;
    unsigned char *scratch, *at;
    mesh__step *step;
    for (i = 0; i < count; i++)
        if (xfers[i].rank != index && xfers[i].direction == MESH_SEND)
            total += ((size_t)xfers[i].nbytes + 63) & ~(size_t)63;
    at = scratch = mesh__scratch(s, total);
    for (i = 0; i < count && !s->out_of_memory; i++) {
        mesh_xfer packed = xfers[i];
        if (packed.rank == index || packed.direction != MESH_SEND) continue;
        if (!(step = mesh__step_add(s, MESH__MOVE))) return;
        packed.rank = index; /* a move from here to here */
        mesh__add_p2p(s, &packed, nblocks);
        packed.base = at;
        packed.block = NULL;
        mesh__add_p2p(s, &packed, nblocks);
        step = &s->step[s->nsteps - 1];
        step->as.of.from = s->nxfers - 2;
        step->as.of.to = s->nxfers - 1;
        mesh__add_swap(s, at, at, (size_t)packed.nbytes);
        at += ((size_t)packed.nbytes + 63) & ~(size_t)63;
    }
    mesh__add_post(s);
    for (first = s->nxfers, at = scratch, i = 0; i < count && !s->out_of_memory; i++) {
        mesh_xfer x = xfers[i];
        if (x.rank == index) continue;
        if (x.direction == MESH_SEND) {
            x.base = at;
            x.block = NULL;
            at += ((size_t)x.nbytes + 63) & ~(size_t)63;
        }
        mesh__add_p2p(s, &x, nblocks);
    }
    mesh__add_wait(s);
    for (; first < s->nxfers && !s->out_of_memory; first++)
        if (s->xfer[first].direction == MESH_RECV && (step = mesh__step_add(s, MESH__TURN)) != NULL)
            step->as.turn.xfer = first;
}

/* Sends to myself, matched in order with receives from myself, as moves; then everything else as one post. in_place: the first is sent from
   a copy, for something is received where it lies. */
MESH__PRIVATE void mesh__build_p2p(mesh__schedule *s, const mesh_xfer *xfers, int count, int in_place, int to_self) {
    unsigned char *copy = NULL;
    int i, from = -1, to = -1, nblocks = 0, index = s->index;
    for (i = 0; i < count; i++) nblocks += xfers[i].block != NULL;
    if (!mesh__grow(s->t, (void **)&s->block, &s->block_cap, nblocks, sizeof *s->block)) s->out_of_memory = 1;
    for (nblocks = 0; to_self && !s->out_of_memory;) {
        mesh__step *step;
        from = mesh__next_self(xfers, count, index, MESH_SEND, from);
        to = mesh__next_self(xfers, count, index, MESH_RECV, to);
        if (from >= count) break;
        if (!(step = mesh__step_add(s, MESH__MOVE))) return;
        mesh__add_p2p(s, &xfers[from], &nblocks);
        mesh__add_p2p(s, &xfers[to], &nblocks);
        step = &s->step[s->nsteps - 1];
        step->as.of.from = s->nxfers - 2;
        step->as.of.to = s->nxfers - 1;
    }
    if (mesh__swap_width(&s->call)) {
        mesh__build_p2p_turned(s, xfers, count, &nblocks);
        return;
    }
    if (in_place && xfers[0].rank != index && (copy = mesh__scratch(s, (size_t)xfers[0].nbytes)) != NULL)
        mesh__add_copy(s, copy, xfers[0].base, (size_t)xfers[0].nbytes);
    mesh__add_post(s);
    for (i = 0; i < count && !s->out_of_memory; i++) {
        mesh_xfer x = xfers[i];
        if (copy && i == 0) x.base = copy;
        if (x.rank != index) mesh__add_p2p(s, &x, &nblocks);
    }
}

/* The group of a call and the tag behind its axes, as the sequence of a channel. */
MESH__PRIVATE mesh_status mesh__p2p_begin(mesh_comm *c, const char *axes, int kind, mesh_request *r, mesh__group **g,
                                          uint32_t *tag) {
    char plain[MESH_MAX_AXES * MESH_NAME_BYTES];
    const char *at = axes ? strchr(axes, '#') : NULL;
    size_t length = at ? (size_t)(at - axes) : 0;
    uint64_t number = 0;
    mesh_status status;
    if (length >= sizeof plain) at = NULL; /* no axes are that long */
    if (at) memcpy(plain, axes, length);
    plain[length * (at != NULL)] = 0;
    status = mesh__call_begin(c, !at ? axes : length ? plain : NULL, kind, r, g);
    *tag = 0;
    if (status != MESH_OK || !at) return status;
    if (c->transport->caps & MESH_CAP_ORDERED)
        return mesh__refuse(c, MESH_ERR_UNSUPPORTED, kind, axes,
                            "the transport (%s) matches messages in the order of issue, without tags; leave \"%s\" out",
                            c->transport->ops->name, at);
    for (at++; mesh__is_digit(*at) && number <= MESH__TAGS; at++) number = 10 * number + (uint64_t)(*at - '0');
    if (*at || !number || number > MESH__TAGS)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "a tag is a number from 1 to %u, as in \"dp#7\"",
                            (uint64_t)MESH__TAGS);
    *tag = MESH__TAGGED | (uint32_t)number;
    return MESH_OK;
}

/* Is it a call like most: messages in one piece to and from others, waited for at once, over a transport that takes them as they are? */
MESH__PRIVATE int mesh__p2p_is_plain(const mesh_comm *c, const mesh_call *call, const mesh_xfer *xfers, int count,
                                     int to_self) {
    return mesh__impl(c)->blocking && count <= 2 && !to_self && !call->in_place && !mesh__swap_width(call) &&
           !mesh__call_is(call->kind, MESH_VARIABLE) && !(count > 0 && xfers[0].block) &&
           !(count > 1 && xfers[1].block) && !(c->transport->caps & MESH_CAP_ORDERED) &&
           !MESH__HAS(c->transport->ops, fence);
}

/* Such a call: its schedule is one post, begun as soon as it is laid down. What has ended then leaves no request: r's generation stays 0. */
MESH__PRIVATE mesh_status mesh__p2p_at_once(mesh_comm *c, mesh__op *op, const mesh_xfer *xfers, int count,
                                            mesh_request *r) {
    mesh__engine *e = mesh__impl(c)->engine;
    mesh__schedule *s = &op->schedule;
    int i, nblocks = 0;
    mesh__add_post(s);
    if (!mesh__grow(e->t, (void **)&op->ordinal, &op->ordinal_cap, count + 1, sizeof *op->ordinal))
        s->out_of_memory = 1;
    for (i = 0; i < count && !s->out_of_memory; i++) {
        mesh__add_p2p(s, &xfers[i], &nblocks);
        if (!s->out_of_memory && !(op->ordinal[i] = mesh__p2p_count(e, op, &s->xfer[i]))) s->out_of_memory = 1;
    }
    if (s->out_of_memory) return mesh__call_launch(c, op, r);
    mesh__op_advance(e, op);
    if (op->state == MESH__DONE && op->status == MESH_OK) {
        mesh__op_release(e, op);
        return MESH_OK;
    }
    r->comm = c;
    r->slot = op->slot;
    r->generation = op->generation;
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__p2p_start_inside(mesh_comm *c, const char *axes, int kind, const mesh_xfer *xfers,
                                                 int count, size_t elements, mesh_dtype d, mesh_request *r) {
    mesh_call call = mesh__call(kind, NULL, NULL, elements, d, MESH_SUM, 0);
    mesh__group *g = NULL;
    mesh__engine *e;
    mesh__op *op;
    uint32_t tag;
    mesh_status status = mesh__p2p_begin(c, axes, kind, r, &g, &tag);
    int i, one = -1, other = -1, to_self = 0,
           in_place = (kind == MESH_CALL_SENDRECV || kind == MESH_CALL_SHIFT) && count == 2 &&
                      xfers[0].base == xfers[1].base && xfers[0].nbytes && xfers[1].nbytes;
    if (status != MESH_OK) return status;
    e = mesh__impl(c)->engine;
    call.elem_bytes = mesh_dtype_bytes(d);
    if (!call.elem_bytes)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "dtype %d is none; see MESH_DTYPES", (int)d);
    if (count < 0 || (count && !xfers))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%d transfers%s", count, xfers ? "" : " (NULL)");
    for (i = 0; i < count; i++) {
        if ((status = mesh__xfer_check(c, g, kind, &xfers[i], i)) != MESH_OK) return status;
        to_self |= xfers[i].rank == g->index;
    }
    if (!in_place && mesh__xfers_overlap(c->transport, xfers, count, &one, &other) != MESH_OK)
        return mesh__refuse(c, MESH_ERR_MEMORY, kind, axes, "no memory to compare %d transfers", count);
    if (one >= 0)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "what is received overlaps what is sent or received beside it (transfers %d and %d)", one,
                            other);
    if (to_self && (status = mesh__self_check(c, g, kind, xfers, count)) != MESH_OK) return status;
    if (!(op = mesh__op_take(e))) return mesh__refuse(c, MESH_ERR_MEMORY, kind, axes, "no memory for the operation");
    call.in_place = in_place;
    op->schedule.call = call;
    op->tag = tag;
    mesh__op_identify(e, op, c, g);
    if (mesh__p2p_is_plain(c, &op->schedule.call, xfers, count, to_self))
        return mesh__p2p_at_once(c, op, xfers, count, r);
    mesh__build_p2p(&op->schedule, xfers, count, in_place, to_self);
    return mesh__call_launch(c, op, r);
}

MESH__PRIVATE mesh_status mesh__p2p_start(mesh_comm *c, const char *axes, int kind, const mesh_xfer *xfers, int count,
                                          size_t elements, mesh_dtype d, mesh_request *r) {
    MESH__ALONE_START(c, mesh__call_name(kind), r, mesh__p2p_start_inside(c, axes, kind, xfers, count, elements, d, r));
}

MESH__PRIVATE mesh_xfer mesh__xfer(int direction, int index, const void *base, size_t count, mesh_dtype d) {
    mesh_xfer x;
    size_t elem = mesh_dtype_bytes(d);
    x.base = (void *)(uintptr_t)base;
    x.nbytes = count > SIZE_MAX >> 8 && elem && count > SIZE_MAX / elem ? UINT64_MAX : (uint64_t)count * elem;
    x.block = NULL;
    x.direction = direction;
    x.rank = index;
    return x;
}

MESH_API mesh_status mesh_send_start(mesh_comm *c, const char *axes, int to, const void *p, size_t count, mesh_dtype d,
                                     mesh_request *r) {
    mesh_xfer x = mesh__xfer(MESH_SEND, to, p, count, d);
    return mesh__p2p_start(c, axes, MESH_CALL_SEND, &x, 1, count, d, r);
}

MESH_API mesh_status mesh_send(mesh_comm *c, const char *axes, int to, const void *p, size_t count, mesh_dtype d) {
    MESH__BLOCKING(mesh_send_start(c, axes, to, p, count, d, &r));
}

MESH_API mesh_status mesh_recv_start(mesh_comm *c, const char *axes, int from, void *p, size_t count, mesh_dtype d,
                                     mesh_request *r) {
    mesh_xfer x = mesh__xfer(MESH_RECV, from, p, count, d);
    return mesh__p2p_start(c, axes, MESH_CALL_RECV, &x, 1, count, d, r);
}

MESH_API mesh_status mesh_recv(mesh_comm *c, const char *axes, int from, void *p, size_t count, mesh_dtype d) {
    MESH__BLOCKING(mesh_recv_start(c, axes, from, p, count, d, &r));
}

MESH__PRIVATE mesh_status mesh__sendrecv(mesh_comm *c, const char *axes, int kind, int to, const void *send,
                                         size_t send_count, int from, void *recv, size_t recv_count, mesh_dtype d,
                                         mesh_request *r) {
    mesh_xfer x[2];
    int n = 0;
    if (to != -1) x[n++] = mesh__xfer(MESH_SEND, to, send, send_count, d);
    if (from != -1) x[n++] = mesh__xfer(MESH_RECV, from, recv, recv_count, d);
    return mesh__p2p_start(c, axes, kind, x, n, send_count, d, r);
}

MESH_API mesh_status mesh_sendrecv_start(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                         int from, void *recv, size_t recv_count, mesh_dtype d, mesh_request *r) {
    return mesh__sendrecv(c, axes, MESH_CALL_SENDRECV, to, send, send_count, from, recv, recv_count, d, r);
}

MESH_API mesh_status mesh_sendrecv(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                   int from, void *recv, size_t recv_count, mesh_dtype d) {
    MESH__BLOCKING(mesh_sendrecv_start(c, axes, to, send, send_count, from, recv, recv_count, d, &r));
}

/* The index so many steps further in a group; -1: beyond its edge. */
MESH__PRIVATE int mesh__shifted(const mesh__group *g, int64_t displacement, int periodic) {
    int64_t n = g->on.size, to = g->index + displacement;
    if (periodic) to = (to % n + n) % n;
    return to >= 0 && to < n ? (int)to : -1;
}

MESH__PRIVATE mesh_status mesh__shift_start_inside(mesh_comm *c, const char *axes, int displacement, int periodic,
                                                   const void *send, void *recv, size_t count, mesh_dtype d,
                                                   mesh_request *r) {
    mesh__group *g = NULL;
    uint32_t tag;
    mesh_status status = mesh__p2p_begin(c, axes, MESH_CALL_SHIFT, r, &g, &tag);
    if (status != MESH_OK) return status;
    if (send != recv && mesh__overlap(send, (size_t)mesh__xfer(0, 0, send, count, d).nbytes, recv,
                                      (size_t)mesh__xfer(0, 0, recv, count, d).nbytes))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, MESH_CALL_SHIFT, axes,
                            "send and recv overlap, but are not the same (in place)");
    return mesh__sendrecv(c, axes, MESH_CALL_SHIFT, mesh__shifted(g, displacement, periodic), send, count,
                          mesh__shifted(g, -(int64_t)displacement, periodic), recv, count, d, r);
}

MESH_API mesh_status mesh_shift_start(mesh_comm *c, const char *axes, int displacement, int periodic, const void *send,
                                      void *recv, size_t count, mesh_dtype d, mesh_request *r) {
    MESH__ALONE_START(c, MESH__CALLER, r,
                      mesh__shift_start_inside(c, axes, displacement, periodic, send, recv, count, d, r));
}

MESH_API mesh_status mesh_shift(mesh_comm *c, const char *axes, int displacement, int periodic, const void *send,
                                void *recv, size_t count, mesh_dtype d) {
    MESH__BLOCKING(mesh_shift_start(c, axes, displacement, periodic, send, recv, count, d, &r));
}

MESH_API mesh_status mesh_exchange_start(mesh_comm *c, const char *axes, const mesh_xfer *xfers, int count,
                                         mesh_request *r) {
    uint64_t total = 0;
    int i;
    for (i = 0; xfers && i < count; i++) total += xfers[i].nbytes;
    return mesh__p2p_start(c, axes, MESH_CALL_EXCHANGE, xfers, count, (size_t)total, MESH_BYTES, r);
}

MESH_API mesh_status mesh_exchange(mesh_comm *c, const char *axes, const mesh_xfer *xfers, int count) {
    MESH__BLOCKING(mesh_exchange_start(c, axes, xfers, count, &r));
}

/* ---- // >>halos ---- */

/* A box of the local array as a strided xfer. */
MESH__PRIVATE mesh_xfer mesh__box(const mesh_halo *h, void *array, size_t elem, const int64_t *from,
                                  const int64_t *extent, mesh_block *b) {
    mesh_xfer x;
    int64_t stride = (int64_t)elem, at = 0, strides[MESH_MAX_DIMS];
    int k, whole = h->ndim - 1; /* dims behind this one are covered whole: one run */
    for (k = h->ndim - 1; k >= 0; k--) {
        strides[k] = stride;
        at += from[k] * stride;
        stride *= h->shape[k];
    }
    while (whole > 0 && extent[whole] == h->shape[whole]) whole--;
    memset(b, 0, sizeof *b);
    b->run = (uint64_t)(extent[whole] * strides[whole]);
    b->ndim = whole;
    for (k = 0; k < whole; k++) {
        b->dim[k].count = extent[k];
        b->dim[k].stride = strides[k];
    }
    x.base = (char *)array + at;
    x.nbytes = b->run;
    for (k = 0; k < whole; k++) x.nbytes *= (uint64_t)extent[k];
    x.block = b;
    x.direction = MESH_SEND;
    x.rank = 0;
    return x;
}

/* Which axis of the mesh divides each dim (-1: none), after a look at everything else in the description. */
MESH__PRIVATE mesh_status mesh__halo_check(mesh_comm *c, const mesh_halo *h, const void *array, size_t elem,
                                           int *axis) {
    int64_t total = (int64_t)elem;
    int k, j, kind = MESH_CALL_HALO, at[MESH_MAX_AXES] = {0};
    if (!h) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "the description is NULL");
    if (!elem) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "the dtype is none; see MESH_DTYPES");
    if (h->ndim < 1 || h->ndim > MESH_MAX_DIMS)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "%d dims; 1 to %d are possible", h->ndim,
                            (int)MESH_MAX_DIMS);
    mesh_coords_of(&c->on, NULL, c->transport->rank, at);
    for (k = 0; k < h->ndim; k++) {
        int64_t shape = h->shape[k], low = h->low[k], high = h->high[k], inner;
        int fits = shape >= 0 && low >= 0 && high >= 0 && low <= shape && high <= shape - low, before, behind;
        axis[k] = h->axis[k] ? mesh_axis_find(&c->on, h->axis[k]) : -1;
        if (h->axis[k] && axis[k] < 0)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "dim %d: the mesh \"%s\" has no axis \"%s\"", k,
                                mesh__show(&c->on).text, h->axis[k]);
        for (j = 0; j < k; j++)
            if (axis[k] >= 0 && axis[j] == axis[k])
                return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "axis \"%s\" divides dims %d and %d; one at most",
                                    h->axis[k], j, k);
        if (!fits)
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL,
                                "dim %d: shape %l with a halo of %l and %l; shape includes the halo", k, h->shape[k],
                                h->low[k], h->high[k]);
        inner = shape - low - high;
        before = h->periodic[k] || (axis[k] >= 0 && at[axis[k]] > 0); /* is there a neighbour? */
        behind = h->periodic[k] || (axis[k] >= 0 && at[axis[k]] + 1 < c->on.axis[axis[k]].size);
        if ((behind && inner < low) || (before && inner < high))
            return mesh__refuse(
                c, MESH_ERR_ARGUMENT, kind, NULL,
                "dim %d: an interior of %l cannot fill a neighbour's halo of %l; use fewer ranks there, or "
                "cut it \"balanced\", which leaves the last ranks no less than others",
                k, inner, behind && inner < low ? low : high);
        if (h->shape[k] && total > INT64_MAX / h->shape[k])
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "dim %d: the array's bytes overflow", k);
        total *= h->shape[k];
    }
    if (!array && total) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "the array is NULL");
    return MESH_OK;
}

/* Index in the mesh of the neighbour in a direction (-1, 0, 1 per dim); -1: none. */
MESH__PRIVATE int mesh__halo_neighbor(const mesh_comm *c, const mesh_halo *h, const int *axis, const int *direction,
                                      int sign) {
    int at[MESH_MAX_AXES], k;
    if (mesh_coords_of(&c->on, NULL, c->transport->rank, at) < 0) return -1;
    for (k = 0; k < h->ndim; k++) {
        int size = axis[k] < 0 ? 1 : c->on.axis[axis[k]].size,
            to = (axis[k] < 0 ? 0 : at[axis[k]]) + sign * direction[k];
        if ((to < 0 || to >= size) && !h->periodic[k]) return -1;
        if (axis[k] >= 0) at[axis[k]] = (to + size) % size;
    }
    return mesh_index_of(&c->on, mesh_rank_at_coords(&c->on, at));
}

/* What goes out in a direction (my interior cells at that side), or comes in along it (the halo at the other). Returns 0 if nothing does. */
MESH__PRIVATE int mesh__halo_box(const mesh_halo *h, const int *direction, int receive, int64_t *from,
                                 int64_t *extent) {
    int k;
    for (k = 0; k < h->ndim; k++) {
        int64_t low = h->low[k], high = h->high[k], shape = h->shape[k];
        extent[k] = direction[k] > 0 ? low : direction[k] < 0 ? high : shape - low - high;
        if (direction[k] == 0)
            from[k] = low;
        else if (direction[k] > 0)
            from[k] = receive ? 0 : shape - high - low;
        else
            from[k] = receive ? shape - high : low;
        if (extent[k] == 0) return 0;
    }
    return 1;
}

MESH__PRIVATE mesh_status mesh__halo_exchange_start_inside(mesh_comm *c, const mesh_halo *h, void *array, mesh_dtype d,
                                                           mesh_request *r) {
    mesh__group *g = NULL;
    mesh_status status = mesh__call_begin(c, NULL, MESH_CALL_HALO, r, &g);
    size_t elem = mesh_dtype_bytes(d);
    int axis[MESH_MAX_DIMS], k, n = 0, directions = 1, code, receive;
    int64_t from[MESH_MAX_DIMS], extent[MESH_MAX_DIMS];
    mesh_xfer *x;
    mesh_block *blocks;
    uint64_t total = 0;
    if (status != MESH_OK) return status;
    if ((status = mesh__halo_check(c, h, array, elem, axis)) != MESH_OK) return status;
    for (k = 0; k < h->ndim; k++) directions *= 3;
    x = (mesh_xfer *)mesh_transport_alloc(c->transport, 2 * (size_t)directions * (sizeof *x + sizeof *blocks));
    if (!x) return mesh__refuse(c, MESH_ERR_MEMORY, MESH_CALL_HALO, NULL, "no memory for %d directions", directions);
    blocks = (mesh_block *)(void *)(x + 2 * directions);
    for (code = 0; code < directions;
         code++) { /* the same order on every rank: messages to one neighbour match in order */
        int direction[MESH_MAX_DIMS], moved = 0, rest = code;
        for (k = h->ndim - 1; k >= 0; k--, rest /= 3) {
            direction[k] = rest % 3 - 1;
            moved += direction[k] != 0;
        }
        if (moved == 0 || (moved > 1 && !h->corners)) continue;
        for (receive = 0; receive < 2; receive++) {
            int peer = mesh__halo_neighbor(c, h, axis, direction, receive ? -1 : 1);
            if (peer < 0 || !mesh__halo_box(h, direction, receive, from, extent)) continue;
            x[n] = mesh__box(h, array, elem, from, extent, &blocks[n]);
            x[n].direction = receive ? MESH_RECV : MESH_SEND;
            x[n].rank = peer;
            total += x[n++].nbytes;
        }
    }
    status = mesh__p2p_start(c, NULL, MESH_CALL_HALO, x, n, (size_t)(total / elem), d, r);
    mesh_transport_free(c->transport, x);
    return status;
}

MESH_API mesh_status mesh_halo_exchange_start(mesh_comm *c, const mesh_halo *h, void *array, mesh_dtype d,
                                              mesh_request *r) {
    MESH__ALONE_START(c, MESH__CALLER, r, mesh__halo_exchange_start_inside(c, h, array, d, r));
}

MESH_API mesh_status mesh_halo_exchange(mesh_comm *c, const mesh_halo *h, void *array, mesh_dtype d) {
    MESH__BLOCKING(mesh_halo_exchange_start(c, h, array, d, &r));
}
#endif /* MESH_P2P_IMPLEMENTED */
