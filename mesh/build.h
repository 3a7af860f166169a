/* mesh/build.h - a call becomes a schedule: objects, lists of buffers, byte order, and whom to ask for the rest. Part of mesh.h 0.1.0. MIT licence.

   Includes levels.h. Knows no comm and no engine.
*/
#if !defined(MESH_BUILD_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_BUILD_IMPLEMENTED))
#include "levels.h"
#endif

#ifndef MESH_BUILD_H
#define MESH_BUILD_H

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes whose number the receivers do not know. */
typedef struct mesh_object {
    void *data;
    size_t nbytes;
    size_t room; /* of memory that is the transport's; 0: data is the caller's */
} mesh_object;

#ifdef __cplusplus
}
#endif
#endif /* MESH_BUILD_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_BUILD_IMPLEMENTED)
#define MESH_BUILD_IMPLEMENTED

enum {
    MESH__PACKED = 64 * 1024,     /* buffers of a list up to this size are copied together */
    MESH__OBJECT_CHAIN = 1 << 20, /* objects beyond this size travel in segments */
    MESH__LENGTH_BITS = 40        /* of a length that travels: less than 1 TiB */
};

/* Make room for a received object of so many bytes. Returns 0 without memory. */
MESH__PRIVATE int mesh__object_room(mesh_transport *t, mesh_object *o, uint64_t nbytes) {
    if (nbytes > o->room || !o->data) {
        void *p = nbytes < SIZE_MAX / 2 ? mesh_transport_alloc(t, (size_t)nbytes + 1) : NULL;
        if (!p) return 0;
        if (o->room) mesh_transport_free(t, o->data);
        o->data = p;
        o->room = (size_t)nbytes + 1;
    }
    o->nbytes = (size_t)nbytes;
    return 1;
}

/* The size of the object has come: make room, and broadcast the bytes. */
MESH__PRIVATE mesh_status mesh__extend_object(mesh__schedule *s, const void *head, mesh_error *why) {
    mesh_object *o = (mesh_object *)s->extra;
    uint64_t nbytes = mesh__get64((const unsigned char *)head);
    mesh__part part;
    mesh__view v;
    (void)why;
    if (s->index != s->call.root && !mesh__object_room(s->t, o, nbytes)) return MESH_ERR_MEMORY;
    part = mesh__part_of(o->data, o->nbytes);
    v = mesh__view_of(&part, 1, MESH__CHUNKS, 1);
    if (nbytes > MESH__OBJECT_CHAIN && s->on->size > 2)
        mesh__build_chain(s, &v, s->call.root, mesh__segment_for(s, MESH__OBJECT_CHAIN / 2, (size_t)nbytes));
    else if (nbytes)
        mesh__build_tree(s, &v, s->call.root);
    return s->out_of_memory ? MESH_ERR_MEMORY : MESH_OK;
}

MESH__PRIVATE void mesh__build_object(mesh__schedule *s) {
    unsigned char *head = mesh__scratch(s, 8);
    mesh__part part = mesh__part_of(head, 8);
    mesh__view v = mesh__view_of(&part, 1, MESH__CHUNKS, 1);
    mesh__step *step;
    s->extra = s->call.recv;
    s->extend = mesh__extend_object;
    if (!head) return;
    mesh__put64(head, ((mesh_object *)s->extra)->nbytes);
    mesh__build_tree(s, &v, s->call.root);
    if ((step = mesh__step_add(s, MESH__EXTEND)) != NULL) step->as.on.dst = head;
}

/* ---- // >>many: lists of buffers. Small neighbours are copied together, so that a thousand small arrays do not make a thousand messages. */

/* How many blocks of a group of n a buffer's send and recv hold. */
MESH__PRIVATE int mesh__many_blocks(int kind, int n, int receive) {
    int gathers = kind == MESH_CALL_ALL_GATHER_MANY, scatters = kind == MESH_CALL_REDUCE_SCATTER_MANY;
    return (receive ? gathers : scatters) ? n : 1;
}

/* The end of the run of small buffers that begins at i. */
MESH__PRIVATE int mesh__many_small(const mesh__schedule *s, int i, size_t *count) {
    const mesh_call *call = &s->call;
    for (*count = 0; i < call->nbuffers && call->buffers[i].count * s->elem_bytes <= MESH__PACKED; i++)
        *count += call->buffers[i].count;
    return i;
}

/* Copy the small buffers i .. end-1 into or out of packed memory of `blocks` blocks. */
MESH__PRIVATE void mesh__many_copy(mesh__schedule *s, int i, int end, unsigned char *packed, size_t count, int blocks,
                                   int receive) {
    int k;
    size_t at = 0;
    for (; i < end; i++) {
        const mesh_buffer *b = &s->call.buffers[i];
        size_t bytes = b->count * s->elem_bytes;
        for (k = 0; k < blocks; k++) {
            unsigned char *inside = packed + (size_t)k * count * s->elem_bytes + at;
            if (receive)
                mesh__add_copy(s, mesh__byte(b->recv, (size_t)k * bytes), inside, bytes);
            else
                mesh__add_copy(s, inside, mesh__byte(b->send, (size_t)k * bytes), bytes);
        }
        at += bytes;
    }
}

/* The parts of a list: as they are, or packed. Copies into packed memory are added; with `out`, those out of it instead. */
MESH__PRIVATE int mesh__many_parts(mesh__schedule *s, mesh__part *send, mesh__part *recv, unsigned char *packed,
                                   int out) {
    const mesh_call *call = &s->call;
    int i = 0, n = 0, size = s->on->size, me = s->index;
    int sb = mesh__many_blocks(call->kind, size, 0), rb = mesh__many_blocks(call->kind, size, 1);
    int silent = call->kind == MESH_CALL_BROADCAST_MANY && me != call->root; /* has nothing to send */
    size_t start = 0;
    while (i < call->nbuffers) {
        size_t count;
        int end = mesh__many_small(s, i, &count);
        send[n].start = recv[n].start = start;
        if (end - i > 1) {
            size_t bytes = count * s->elem_bytes;
            send[n].base =
                rb > 1 && bytes ? packed + (size_t)me * bytes : packed; /* in place; NULL where all are empty */
            recv[n].base = sb > 1 && bytes ? packed + (size_t)me * bytes : packed;
            if (bytes && !out && !silent) mesh__many_copy(s, i, end, send[n].base, count, sb, 0);
            if (bytes && out) mesh__many_copy(s, i, end, recv[n].base, count, rb, 1);
            if (bytes) packed += bytes * (size_t)(sb > rb ? sb : rb);
        } else {
            end = i + 1;
            count = call->buffers[i].count;
            send[n].base = (unsigned char *)(uintptr_t)call->buffers[i].send;
            recv[n].base = (unsigned char *)call->buffers[i].recv;
            if (silent) send[n].base = recv[n].base;
        }
        send[n].count = recv[n].count = count;
        start += count;
        n++;
        i = end;
    }
    return n;
}

/* Bytes that packing needs. */
MESH__PRIVATE size_t mesh__many_packed(const mesh__schedule *s) {
    int i = 0, size = s->on->size;
    int sb = mesh__many_blocks(s->call.kind, size, 0), rb = mesh__many_blocks(s->call.kind, size, 1);
    size_t total = 0, count;
    while (i < s->call.nbuffers) {
        int end = mesh__many_small(s, i, &count);
        if (end - i > 1) total += count * s->elem_bytes * (size_t)(sb > rb ? sb : rb);
        i = end - i > 1 ? end : i + 1;
    }
    return total;
}

/* ---- // >>build: whole schedules ---- */

/* An operation on a group of one. */
MESH__PRIVATE void mesh__build_alone(mesh__schedule *s, const mesh__layout *b) {
    if (s->call.kind == MESH_CALL_EXSCAN || mesh__is_meeting(s->call.kind)) return;
    mesh__add_copies(s, &b->recv, mesh__block_of(&b->recv, 0), &b->send, mesh__block_of(&b->send, 0));
}

/* Elements of a call's larger side; of blocks by counts, of which each rank takes its own, the largest: the same on every rank. */
MESH__PRIVATE size_t mesh__larger_side(const mesh__schedule *s, const mesh__layout *b, int kind) {
    size_t total = b->send.total > b->recv.total ? b->send.total : b->recv.total;
    int i;
    for (i = 0; kind == MESH_CALL_REDUCE_SCATTER_V && i < s->size; i++)
        if (s->call.recv_counts[i] > total) total = s->call.recv_counts[i];
    return total;
}

MESH__PRIVATE void mesh__build_native(mesh__schedule *s, mesh__layout *b, int kind) {
    int by_counts = mesh__call_is(kind, MESH_BY_COUNTS), algorithm;
    size_t bytes =
        (kind == MESH_CALL_REDUCE_SCATTER || kind == MESH_CALL_SCATTER ? b->recv.total : b->send.total) * s->elem_bytes;
    algorithm = mesh__choose(s, kind, by_counts ? SIZE_MAX : bytes, mesh__larger_side(s, b, kind), &b->segment);
    if (s->size == 1) {
        mesh__build_alone(s, b);
        return;
    }
    if (algorithm == MESH_ALGORITHM_LEVELS) {
        mesh__build_levels(s, b, kind);
        return;
    }
    switch (kind) {
    case MESH_CALL_ALL_REDUCE:
        mesh__build_all_reduce(s, b, s->ordered ? MESH_ALGORITHM_DOUBLING : algorithm);
        break;
    case MESH_CALL_REDUCE:
        if (algorithm == MESH_ALGORITHM_BINOMIAL || s->ordered)
            mesh__build_tree_reduce(s, b);
        else
            mesh__build_block_reduce(s, b);
        break;
    case MESH_CALL_BROADCAST:
        mesh__build_broadcast(s, b, algorithm);
        break;
    case MESH_CALL_ALL_GATHER:
    case MESH_CALL_ALL_GATHER_V:
        mesh__build_all_gather(s, b, algorithm);
        break;
    case MESH_CALL_REDUCE_SCATTER:
    case MESH_CALL_REDUCE_SCATTER_V:
        mesh__build_reduce_scatter(s, b, algorithm);
        break;
    case MESH_CALL_ALL_TO_ALL:
    case MESH_CALL_ALL_TO_ALL_V:
        mesh__build_all_to_all(s, b, algorithm);
        break;
    case MESH_CALL_GATHER:
    case MESH_CALL_GATHER_V:
    case MESH_CALL_SCATTER:
    case MESH_CALL_SCATTER_V:
        if (algorithm == MESH_ALGORITHM_BINOMIAL)
            mesh__build_tree_rooted(s, b, kind == MESH_CALL_GATHER);
        else
            mesh__build_direct_rooted(s, b, kind == MESH_CALL_GATHER || kind == MESH_CALL_GATHER_V);
        break;
    case MESH_CALL_SCAN:
    case MESH_CALL_EXSCAN:
        if (algorithm == MESH_ALGORITHM_DOUBLING)
            mesh__build_doubling_scan(s, b, kind == MESH_CALL_EXSCAN);
        else
            mesh__build_chain_scan(s, b, kind == MESH_CALL_EXSCAN);
        break;
    default:
        mesh__build_barrier(s);
        break;
    }
}

/* Elements that a v-call touches, or SIZE_MAX when they overflow. */
MESH__PRIVATE size_t mesh__v_extent(const size_t *counts, const size_t *offsets, int n, size_t elem) {
    size_t end = 0, at = 0, limit = SIZE_MAX / 2 / elem;
    int i;
    for (i = 0; i < n; i++) {
        if (offsets) at = offsets[i];
        if (counts[i] > limit || at > limit || at + counts[i] > limit) return SIZE_MAX;
        if (counts[i] && at + counts[i] > end) end = at + counts[i];
        at += counts[i];
    }
    return end;
}

/* Elements from a part's base to the end of what a view has there. */
MESH__PRIVATE size_t mesh__part_extent(const mesh__schedule *s, const mesh__view *v, const mesh__part *p) {
    size_t extent = mesh__v_extent(v->counts, v->offsets, v->counts ? s->on->size : 0, 1);
    return v->kind == MESH__COUNTS ? extent : v->kind == MESH__BLOCKS ? p->count * (size_t)s->on->size : p->count;
}

/* On a big-endian host: turned copies are sent, and what has arrived is turned at the end. */
MESH__PRIVATE void mesh__build_turned(mesh__schedule *s, mesh__layout *b, int kind) {
    mesh__part *turned = (mesh__part *)mesh_transport_alloc(s->t, (size_t)b->send.nparts * sizeof *turned);
    size_t total = 0;
    unsigned char *scratch = NULL;
    int i, gives = mesh__gives(s, kind);
    for (i = 0; turned && i < b->send.nparts; i++) {
        turned[i] = b->send.part[i];
        total += (mesh__part_extent(s, &b->send, &turned[i]) * s->elem_bytes + 63) & ~(size_t)63;
    }
    if (turned && gives) scratch = mesh__scratch(s, total);
    if (!turned || s->out_of_memory) s->out_of_memory = 1;
    for (i = 0; gives && !s->out_of_memory && i < b->send.nparts; i++) {
        size_t nbytes = mesh__part_extent(s, &b->send, &turned[i]) * s->elem_bytes;
        if (turned[i].base) mesh__add_swap(s, scratch, turned[i].base, nbytes);
        turned[i].base = scratch;
        scratch += (nbytes + 63) & ~(size_t)63;
    }
    if (!s->out_of_memory) {
        b->send.part = turned;
        mesh__build_native(s, b, kind);
        for (i = 0; mesh__takes(s, kind) && i < (b->recv.kind == MESH__CHUNKS ? 1 : s->on->size); i++) {
            mesh__range r = b->recv.kind == MESH__CHUNKS ? mesh__all_of(&b->recv) : mesh__block_of(&b->recv, i);
            while (r.count) {
                unsigned char *p;
                size_t n = mesh__run(s, &b->recv, &r, &p);
                mesh__add_swap(s, p, p, n * s->elem_bytes);
            }
        }
    }
    mesh_transport_free(s->t, turned);
}

MESH__PRIVATE void mesh__build_with(mesh__schedule *s, mesh__layout *b, int kind) {
    int talks = !mesh__is_meeting(kind) && s->on->size > 1;
    if (talks && mesh__swap_width(&s->call))
        mesh__build_turned(s, b, kind);
    else
        mesh__build_native(s, b, kind);
}

/* How a call's send and recv are laid out. */
MESH__PRIVATE mesh__layout mesh__layout_of(const mesh__schedule *s, const mesh__part *send, const mesh__part *recv,
                                           int nparts) {
    const mesh_call *call = &s->call;
    int n = s->on->size, kind = mesh__single_kind(call->kind);
    mesh__layout b;
    b.root = call->root;
    b.owners = 0;
    b.segment = 1;
    b.send = mesh__view_of(send, nparts, MESH__CHUNKS, n);
    b.recv = mesh__view_of(recv, nparts, MESH__CHUNKS, n);
    if (kind == MESH_CALL_REDUCE_SCATTER || kind == MESH_CALL_ALL_TO_ALL || kind == MESH_CALL_SCATTER)
        b.send = mesh__view_of(send, nparts, MESH__BLOCKS, n);
    if (kind == MESH_CALL_ALL_GATHER || kind == MESH_CALL_ALL_TO_ALL || kind == MESH_CALL_GATHER)
        b.recv = mesh__view_of(recv, nparts, MESH__BLOCKS, n);
    if (kind == MESH_CALL_REDUCE_SCATTER_V || kind == MESH_CALL_ALL_TO_ALL_V || kind == MESH_CALL_SCATTER_V) {
        int all_to_all = kind == MESH_CALL_ALL_TO_ALL_V;
        b.send.kind = MESH__COUNTS;
        b.send.counts = all_to_all || kind == MESH_CALL_SCATTER_V ? call->send_counts : call->recv_counts;
        b.send.offsets = all_to_all || kind == MESH_CALL_SCATTER_V ? call->send_offsets : call->recv_offsets;
    }
    if (kind == MESH_CALL_ALL_GATHER_V || kind == MESH_CALL_ALL_TO_ALL_V || kind == MESH_CALL_GATHER_V) {
        b.recv.kind = MESH__COUNTS;
        b.recv.counts = call->recv_counts;
        b.recv.offsets = call->recv_offsets;
    }
    return b;
}

/* Where blocks without offsets begin: summed up once, not for each. */
MESH__PRIVATE int mesh__offsets_make(mesh__schedule *s, mesh__layout *b) {
    mesh__view *view[2];
    size_t n = (size_t)s->on->size, *offsets, i, k, at;
    view[0] = &b->send, view[1] = &b->recv;
    if (2 * n * sizeof *offsets > INT32_MAX / 2 ||
        !mesh__grow(s->t, &s->args, &s->args_cap, (int)(2 * n * sizeof *offsets), 1))
        return 0;
    offsets = (size_t *)s->args;
    for (k = 0; k < 2; k++, offsets += n) {
        if (view[k]->kind != MESH__COUNTS || !view[k]->counts || view[k]->offsets) continue;
        for (i = at = 0; i < n; at += view[k]->counts[i++]) offsets[i] = at;
        view[k]->offsets = offsets;
    }
    return 1;
}

MESH__PRIVATE void mesh__build(mesh__schedule *s) {
    const mesh_call *call = &s->call;
    mesh__part send, recv, *list = NULL;
    mesh__layout b;
    unsigned char *packed = NULL;
    size_t packed_bytes;
    int n;
    mesh__scope_all(s);
    if (call->kind == MESH_CALL_BROADCAST_OBJECT) {
        mesh__build_object(s);
        return;
    }
    if (!call->nbuffers) {
        send = mesh__part_of(call->send, call->count);
        recv = mesh__part_of(call->recv, call->count);
        if (call->kind == MESH_CALL_ALL_GATHER_V) send.count = call->recv_counts[s->index];
        if (call->kind == MESH_CALL_REDUCE_SCATTER_V) recv.count = call->recv_counts[s->index];
        b = mesh__layout_of(s, &send, &recv, 1);
        if ((b.send.kind == MESH__COUNTS || b.recv.kind == MESH__COUNTS) && !mesh__offsets_make(s, &b))
            s->out_of_memory = 1;
        else
            mesh__build_with(s, &b, mesh__single_kind(call->kind));
        return;
    }
    list = (mesh__part *)mesh_transport_alloc(s->t, 2 * (size_t)call->nbuffers * sizeof *list);
    packed_bytes = mesh__many_packed(s);
    if (packed_bytes) packed = mesh__scratch(s, packed_bytes);
    if (!list || s->out_of_memory) {
        s->out_of_memory = 1;
    } else {
        n = mesh__many_parts(s, list, list + call->nbuffers, packed, 0);
        b = mesh__layout_of(s, list, list + call->nbuffers, n);
        mesh__build_with(s, &b, mesh__single_kind(call->kind));
        mesh__many_parts(s, list, list + call->nbuffers, packed, 1);
    }
    mesh_transport_free(s->t, list);
}
#endif /* MESH_BUILD_IMPLEMENTED */
