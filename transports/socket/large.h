/* socket/large.h - operations in shared memory that are more than a message: chunk by chunk, out of where it lies or through small stages. Part of mesh.h 0.1.0. MIT licence.

   Includes cells.h.

   A rank shows a chunk (`put`: where it is the program's own memory, that the others cannot read, by copying it to its stage), and uses what all have
   shown (`used`: it combines its block of what they have, or copies what it is to have). An all_reduce is both in turn: each combines its
   slice, and then copies the others'. Where all receive into shared memory it writes its slice into all of it at once. The root of a broadcast or
   scatter has nothing to do but to wait: what others receive into shared memory it copies too, as far as it is awake, from the end.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_LARGE_IMPLEMENTED)
#define MESH_SOCKET_LARGE_IMPLEMENTED
#include "cells.h"

/* ---- // >>where elements lie ---- */

/* Elements of block `block` from the chunks c on, at most n. */
MESH__PRIVATE size_t mesh_socket__span(const mesh_socket__direct *op, int block, uint32_t c, size_t n) {
    size_t at = (size_t)c * op->each, length = op->length, before = (size_t)block * op->length;
    if (op->sliced) length = before >= op->total ? 0 : op->total - before < length ? op->total - before : length;
    if (at >= length) return 0;
    return length - at < n ? length - at : n;
}

/* Which block of what member j shows this rank is to have. */
MESH__PRIVATE int mesh_socket__block_for_me(const mesh_socket__direct *op, int j) {
    return op->shape == MESH_SOCKET__BLOCKS ? op->group->index : op->sliced ? j : 0;
}

/* Where member j has what it shows now, in the file; 0: in its stage. *own: it is an address in its process. */
MESH__PRIVATE uint64_t mesh_socket__source_of(const mesh_socket__direct *op, int j, int *own) {
    const mesh_socket__shown *shown = &op->group->cell[j]->shown[op->number & 1];
    *own = (shown->own & (op->part ? MESH_SOCKET__OWN_RECV : MESH_SOCKET__OWN_SEND)) != 0;
    return op->part ? shown->recv : shown->send;
}

/* Where member j shows element `at` of block `block`, of chunk c: shared memory. */
MESH__PRIVATE const unsigned char *mesh_socket__shown_at(mesh_socket__impl *s, const mesh_socket__direct *op, int j,
                                                         uint32_t c, int block, size_t at) {
    size_t elem = op->call.elem_bytes;
    int own;
    uint64_t source = mesh_socket__source_of(op, j, &own);
    if (source) return s->shared->base + source + ((size_t)block * op->length + at) * elem;
    if (op->shape != MESH_SOCKET__BLOCKS) block = 0;
    return s->shared->base + op->group->cell[j]->shown[op->number & 1].stage +
           (op->medium ? 0 : (op->base + c) % MESH_SOCKET__STAGES * op->stage_bytes) +
           ((size_t)block * op->each + at - (size_t)c * op->each) * elem;
}

/* Bytes out of member j's own memory, all of them. Returns 0 where they cannot be read. */
MESH__PRIVATE int mesh_socket__read_own(mesh_socket__impl *s, const mesh_socket__direct *op, int j, uint64_t address,
                                        void *to, size_t nbytes) {
    uint32_t process = (uint32_t)s->book[s->shared->rank[op->group->sharer[j]]].process;
    while (nbytes) {
        int64_t got = mesh_socket__read_run(process, to, address, nbytes);
        if (got <= 0) return 0;
        to = (unsigned char *)to + got;
        address += (uint64_t)got;
        nbytes -= (size_t)got;
    }
    return 1;
}

/* ---- // >>beginning ---- */

/* How many elements a chunk has, of blocks of `length`, and how many chunks there are. */
MESH__PRIVATE void mesh_socket__measure(mesh_socket__direct *op, int shape) {
    size_t elem = op->call.elem_bytes, unit = shape == MESH_SOCKET__BLOCKS ? (size_t)op->group->n * elem : elem;
    op->shape = shape;
    op->each = MESH_SOCKET__STAGE / unit ? MESH_SOCKET__STAGE / unit : 1;
    if (op->each > op->length) op->each = op->length;
    op->chunks = (uint32_t)((op->length + op->each - 1) / op->each);
    op->stage_bytes = (op->each * unit + MESH_SOCKET__LINE - 1) / MESH_SOCKET__LINE * MESH_SOCKET__LINE;
}

/* Can the others read this rank's own memory? */
MESH__PRIVATE int mesh_socket__all_read(mesh_socket__impl *s, const mesh_socket__direct *op) {
    const mesh_socket__handle *g = op->group;
    int j;
    if (op->call.buffers || (op->call.in_place && op->kind == MESH_CALL_ALL_TO_ALL)) return 0;
    for (j = 0; j < g->n; j++)
        if (j != g->index &&
            !(MESH_SOCKET__SEE(&mesh_socket__place_of(s->shared, g->sharer[j])->reads) >> s->shared->me & 1))
            return 0;
    return 1;
}

/* Do the others better read this rank's own memory than have it copied to a stage? The kernel copies once, but a reader waits for all of it, and where
   several read the same process they wait for each other; a stage is written and read at the same time. As measured: what only one reads, and between
   two. */
MESH__PRIVATE int mesh_socket__better_read(const mesh_socket__direct *op, int moves, size_t nbytes) {
    size_t n = (size_t)op->group->n, few = op->kind == MESH_CALL_BROADCAST ? 2 : 1;
    int divided = moves && op->shape == MESH_SOCKET__BLOCKS;
    if (op->medium) return moves && n == 2 && (divided ? nbytes / n : nbytes) >= few * MESH_SOCKET__LEND;
    if (divided || op->kind == MESH_CALL_GATHER) return 1;
    if (op->kind == MESH_CALL_BROADCAST) return n == 2 && nbytes <= MESH_SOCKET__PULL_PIECE;
    if (op->kind == MESH_CALL_ALL_GATHER && n > 2 && n * nbytes <= 2 * MESH_SOCKET__PULL_PIECE) return 0;
    return n == 2 || nbytes / (op->sliced ? n : 1) <= MESH_SOCKET__PULL_PIECE;
}

/* Have memory to show chunks in. Returns 0 without. */
MESH__PRIVATE int mesh_socket__stage_for(mesh_socket__impl *s, mesh_socket__direct *op, size_t chunk_bytes) {
    mesh_socket__handle *g = op->group;
    if (op->medium && !g->slots) g->slots = mesh_socket__heap_take(s, 2 * MESH_SOCKET__MEDIUM);
    if (op->medium)
        op->stage = g->slots ? g->slots + (op->number & 1) * MESH_SOCKET__MEDIUM : NULL;
    else
        op->stage = mesh_socket__stage_take(s, MESH_SOCKET__STAGES * chunk_bytes);
    if (op->stage) op->stage_at = (uint64_t)(op->stage - s->shared->base);
    return op->stage != NULL;
}

/* Does all of it come from one member? */
MESH__INLINE int mesh_socket__has_source(const mesh_socket__direct *op) {
    return op->kind == MESH_CALL_BROADCAST || op->kind == MESH_CALL_SCATTER;
}

/* Show where this rank's memory is. Returns 0 without memory for a stage. */
MESH__PRIVATE int mesh_socket__show_large(mesh_socket__impl *s, mesh_socket__direct *op, mesh_socket__shown *shown) {
    const mesh_call *c = &op->call;
    size_t sends =
        op->total * (op->shape == MESH_SOCKET__BLOCKS && !op->sliced ? (size_t)op->group->n : 1) * c->elem_bytes;
    size_t second = 0;
    int moves = !mesh__call_is(c->kind, MESH_REDUCES);
    int all_read = mesh_socket__better_read(op, moves, sends) && mesh_socket__all_read(s, op);
    op->base = op->group->chunks;
    if (op->sliced && !op->medium) { /* what its second part needs */
        mesh_socket__measure(op, MESH_SOCKET__OWN);
        second = op->stage_bytes;
        op->group->chunks += op->chunks;
        mesh_socket__measure(op, MESH_SOCKET__BLOCKS);
    } else {
        mesh_socket__measure(op, op->shape);
    }
    op->group->chunks += op->chunks;
    if (op->shows && !c->buffers && !(c->in_place && (op->kind == MESH_CALL_ALL_TO_ALL || (op->sliced && op->medium))))
        op->send_at = mesh_socket__shared_at(s->shared, c->send, sends);
    if (op->shows && !op->send_at && all_read && moves)
        op->send_at = (uint64_t)(uintptr_t)c->send, op->own |= MESH_SOCKET__OWN_SEND;
    op->recv_bytes = op->sliced ? sends : op->total * c->elem_bytes;
    if ((op->sliced || (mesh_socket__has_source(op) && op->uses && !op->shows && !op->medium)) && !c->buffers)
        op->recv_at = mesh_socket__shared_at(s->shared, c->recv, op->recv_bytes);
    if (op->sliced && !op->recv_at && all_read)
        op->recv_at = (uint64_t)(uintptr_t)c->recv, op->own |= MESH_SOCKET__OWN_RECV;
    if (((op->shows && !op->send_at) || (op->sliced && !op->recv_at && !op->medium)) &&
        !mesh_socket__stage_for(s, op, second > op->stage_bytes ? second : op->stage_bytes)) {
        op->send_at = op->recv_at = 0; /* nobody holds them */
        return 0;
    }
    if (!(op->own & MESH_SOCKET__OWN_SEND)) mesh_socket__hold(s->shared, op->send_at);
    if (!(op->own & MESH_SOCKET__OWN_RECV)) mesh_socket__hold(s->shared, op->recv_at);
    shown->send = op->send_at;
    shown->recv = op->recv_at;
    shown->own = (uint32_t)op->own;
    shown->stage = op->stage_at;
    return 1;
}

/* Begin a part: what this rank does nothing for is done. */
MESH__PRIVATE void mesh_socket__begin_part(mesh_socket__direct *op) {
    mesh_socket__cell *mine = op->group->cell[op->group->index];
    op->put = !op->shows || (op->part ? op->recv_at : op->send_at) ? op->chunks : 0;
    op->used = op->uses ? 0 : op->chunks;
    MESH_SOCKET__SHOW(&mine->used, op->base + op->used);
    MESH_SOCKET__SHOW(&mine->put, op->base + op->put);
}

/* What this rank is to receive from the source's memory into memory that the source sees as well is left to both. */
MESH__PRIVATE void mesh_socket__share_rest(mesh_socket__direct *op) {
    mesh_socket__rest *rest = &op->group->cell[op->group->index]->rest[op->number & 1];
    int own;
    if (!mesh_socket__has_source(op) || !op->recv_at || op->chunks < 2 ||
        !mesh_socket__source_of(op, op->call.root, &own))
        return;
    op->helped = 1;
    MESH_SOCKET__SHOW(&rest->done, (uint64_t)0);
    MESH_SOCKET__SHOW(&rest->left, (uint64_t)op->chunks);
}

/* All have come: where they all receive into shared memory, each writes its slice into all of it. */
MESH__PRIVATE void mesh_socket__settle_how(mesh_socket__direct *op) {
    const mesh_socket__handle *g = op->group;
    int j;
    op->settled = 1;
    mesh_socket__share_rest(op);
    op->streams = op->total * op->call.elem_bytes >= MESH_SOCKET__STREAMS;
    if (!op->sliced) return; /* it need not have met all */
    for (j = 0; j < g->n; j++) {
        const mesh_socket__shown *shown = &g->cell[j]->shown[op->number & 1];
        if (!shown->recv || shown->own & MESH_SOCKET__OWN_RECV) return;
    }
    op->pushes = 1;
}

/* ---- // >>chunks ---- */

/* Show the next chunk of what the others cannot read where it is. */
MESH__PRIVATE void mesh_socket__put_chunk(mesh_socket__direct *op) {
    size_t elem = op->call.elem_bytes, at = (size_t)op->put * op->each;
    unsigned char *to = op->stage + (op->medium ? 0 : (op->base + op->put) % MESH_SOCKET__STAGES * op->stage_bytes);
    int block, blocks = op->shape == MESH_SOCKET__BLOCKS ? op->group->n : 1;
    for (block = 0; block < blocks; block++) {
        int which = op->part ? op->group->index : block;
        if (blocks > 1 && block == op->group->index && !(op->sliced && op->medium))
            continue; /* it takes its own itself */
        mesh_socket__flat(op, op->part ? MESH_SOCKET__FROM_RECV : MESH_SOCKET__FROM_SEND, which, at,
                          mesh_socket__span(op, which, op->put, op->each), to + (size_t)block * op->each * elem);
    }
    op->put++;
}

/* Combine n elements from chunk c on of a block, of all that the members show, into what this rank receives, or into what they all do. */
MESH__PRIVATE void mesh_socket__reduce_chunk(mesh_socket__impl *s, mesh_socket__direct *op, int block, uint32_t c,
                                             size_t n) {
    const mesh_socket__handle *g = op->group;
    const void *src[MESH_SOCKET__SHARERS];
    void *dst[MESH_SOCKET__SHARERS];
    size_t run, elem = op->call.elem_bytes, at = (size_t)c * op->each;
    int j, ndst;
    for (; n; n -= run, at += run) {
        size_t room = n;
        ndst = 0;
        src[g->index] = mesh_socket__elements(op, 0, block, at, &run);
        if (!op->pushes) dst[ndst++] = mesh_socket__elements(op, 1, op->sliced ? block : 0, at, &room);
        if (room < run) run = room;
        if (n < run) run = n;
        for (j = 0; j < g->n; j++) {
            if (j != g->index) src[j] = mesh_socket__shown_at(s, op, j, c, block, at);
            if (op->pushes)
                dst[ndst++] =
                    s->shared->base + g->cell[j]->shown[op->number & 1].recv + ((size_t)block * op->length + at) * elem;
        }
        mesh_socket__combine(s, op, dst, ndst, src, run, op->streams && (op->pushes || !op->sliced));
    }
}

/* Elements of this rank's own, from where it sends block `block` to where it receives block `to`. */
MESH__PRIVATE void mesh_socket__copy_own(const mesh_socket__direct *op, int block, int to, size_t at, size_t n) {
    size_t run;
    for (; n; n -= run, at += run) {
        unsigned char *from = mesh_socket__elements(op, 0, block, at, &run);
        if (run > n) run = n;
        mesh_socket__flat(op, MESH_SOCKET__TO_RECV, to, at, run, from);
    }
}

/* n elements from chunk c on that member j shows, to where this rank receives block `to`. Returns 0 where they cannot be read. */
MESH__PRIVATE int mesh_socket__copy_shown(mesh_socket__impl *s, mesh_socket__direct *op, int j, uint32_t c, int to,
                                          size_t n) {
    size_t elem = op->call.elem_bytes, at = (size_t)c * op->each, run;
    int own, block = mesh_socket__block_for_me(op, j);
    uint64_t source = mesh_socket__source_of(op, j, &own),
             address = source + ((uint64_t)block * op->length + at) * elem;
    if (!own) {
        mesh_socket__flat(op, MESH_SOCKET__TO_RECV, to, at, n,
                          (unsigned char *)(uintptr_t)mesh_socket__shown_at(s, op, j, c, block, at));
        return 1;
    }
    for (; n; n -= run, at += run, address += run * elem) {
        void *p = mesh_socket__elements(op, 1, to, at, &run);
        if (run > n) run = n;
        if (!mesh_socket__read_own(s, op, j, address, p, run * elem)) return 0;
    }
    return 1;
}

/* Copy this rank's part of the next chunks, at most n elements of each block. Returns 0 where it cannot be read. */
MESH__PRIVATE int mesh_socket__copy_chunk(mesh_socket__impl *s, mesh_socket__direct *op, uint32_t c, size_t n) {
    mesh_socket__handle *g = op->group;
    size_t at = (size_t)c * op->each;
    int k, one = mesh_socket__has_source(op);
    for (k = 0; k < g->n; k++) { /* each begins with another: they do not all read from one at once */
        int j = (g->index + k) % g->n, to = one ? 0 : j;
        size_t part = mesh_socket__span(op, mesh_socket__block_for_me(op, j), c, n);
        if (!mesh_socket__needs(op, j) || (op->part && j == g->index)) continue;
        if (j == g->index)
            mesh_socket__copy_own(op, op->shape == MESH_SOCKET__BLOCKS ? j : 0, to, at, part);
        else if (!mesh_socket__copy_shown(s, op, j, c, to, part))
            return 0;
    }
    return 1;
}

/* Does every member that is needed show all of it, where it lies? Then chunks need not be small. */
MESH__PRIVATE int mesh_socket__is_in_place(const mesh_socket__direct *op) {
    int j, own;
    for (j = 0; j < op->group->n; j++)
        if (j != op->group->index && mesh_socket__needs(op, j) && !mesh_socket__source_of(op, j, &own)) return 0;
    return 1;
}

/* Does each member combine all of it, and not only a slice? */
MESH__INLINE int mesh_socket__is_whole(const mesh_socket__direct *op) {
    return op->sliced && op->medium && !op->pushes;
}

/* How many of the next chunks this rank may write over. In place, what it has yet to show lies where they go. */
MESH__INLINE uint32_t mesh_socket__may_use(const mesh_socket__direct *op) {
    return (op->call.in_place ? op->put : op->chunks) - op->used;
}

/* Combine, or copy, this rank's part of the next chunk. Returns 0 where it cannot be read: who had it is gone, or may not be read any more. */
MESH__PRIVATE int mesh_socket__use_chunk(mesh_socket__impl *s, mesh_socket__direct *op) {
    size_t many = MESH_SOCKET__PULL_PIECE / (op->each * op->call.elem_bytes + 1);
    if (many < 2 || !mesh_socket__is_in_place(op)) many = 1;
    if (many > mesh_socket__may_use(op)) many = mesh_socket__may_use(op);
    if (mesh_socket__is_whole(op))
        mesh_socket__reduce_chunk(s, op, 0, 0, op->total);
    else if (mesh__call_is(op->call.kind, MESH_REDUCES) && !op->part)
        mesh_socket__reduce_chunk(s, op, op->group->index, op->used,
                                  mesh_socket__span(op, op->group->index, op->used, many * op->each));
    else if (!mesh_socket__copy_chunk(s, op, op->used, many * op->each))
        return 0;
    op->used += (uint32_t)many;
    return 1;
}

/* ---- // >>what is left: a receiver copies it from the front, its source from the back ---- */

/* Take the first chunk, or the last. Returns 0 where none is left. */
MESH__PRIVATE int mesh_socket__take_chunk(mesh_socket__rest *rest, int last, uint32_t *c) {
    uint64_t left = MESH_SOCKET__SEE(&rest->left);
    do {
        uint32_t first = (uint32_t)(left >> 32), end = (uint32_t)left;
        if (first == end) return 0;
        *c = last ? end - 1 : first;
    } while (!MESH_SOCKET__TURN(&rest->left, &left, last ? left - 1 : left + (UINT64_C(1) << 32)));
    return 1;
}

/* The source's turn: the last chunk of one of those that receive from it. Returns 0 where there is none. */
MESH__PRIVATE int mesh_socket__help(mesh_socket__impl *s, mesh_socket__direct *op) {
    const mesh_socket__handle *g = op->group;
    size_t elem = op->call.elem_bytes;
    uint32_t c;
    int k;
    if (!mesh_socket__has_source(op) || g->index != op->call.root || !op->send_at) return 0;
    for (k = 0; k < g->n; k++) {
        int j = (op->helps + 1 + k) % g->n;
        mesh_socket__rest *rest = &g->cell[j]->rest[op->number & 1];
        const unsigned char *from = (const unsigned char *)op->call.send;
        unsigned char *to;
        size_t at, n;
        if (j == g->index || !mesh_socket__take_chunk(rest, 1, &c)) continue;
        op->helps = j;
        at = (size_t)c * op->each;
        n = mesh_socket__span(op, 0, c, op->each);
        from += ((op->shape == MESH_SOCKET__BLOCKS ? (size_t)j * op->length : 0) + at) * elem;
        to =
            mesh_socket__told_memory(s->shared, g->sharer[j], g->cell[j]->shown[op->number & 1].recv, op->total * elem);
        if (!to) return 0; /* overwritten there: see mesh_socket__told_well */
        to += at * elem;
        if (op->streams)
            mesh__copy_stream(to, from, n * elem);
        else
            mesh__copy_bytes(to, from, n * elem);
        MESH_SOCKET__SHOW(&rest->done, MESH_SOCKET__SEE(&rest->done) + 1);
        return 1;
    }
    return 0;
}

/* The receiver's. Returns 0 where the source has yet to finish what it has taken; -1 where it cannot be read. */
MESH__PRIVATE int mesh_socket__use_rest(mesh_socket__impl *s, mesh_socket__direct *op) {
    mesh_socket__rest *rest = &op->group->cell[op->group->index]->rest[op->number & 1];
    uint32_t c;
    if (mesh_socket__take_chunk(rest, 0, &c)) {
        if (!mesh_socket__copy_chunk(s, op, c, op->each)) return -1;
        op->used++;
        return 1;
    }
    if (MESH_SOCKET__SEE(&rest->done) != op->chunks - op->used) return 0;
    op->used = op->chunks;
    return 1;
}

/* ---- // >>moves ---- */

/* Another's own memory was not to be read. If its process has ended, that is soon to be heard. */
MESH__RARE int mesh_socket__unreadable(mesh_socket__impl *s, mesh_socket__direct *op) {
    if (errno != ESRCH)
        mesh_socket__direct_fail(
            s, op, MESH_ERR_TRANSPORT, -1,
            "the memory of another rank on this host cannot be read any more (%s); run with MESH_SOCKET_LANES=unix",
            strerror(errno));
    return 0;
}

/* Has who is read shown memory of its own? (A program that writes where it should not may have overwritten that, and takes no other with it.) */
MESH__RARE int mesh_socket__told_well(mesh_socket__impl *s, mesh_socket__direct *op) {
    const mesh_socket__handle *g = op->group;
    size_t least = op->total * op->call.elem_bytes,
           stages = op->medium ? (size_t)MESH_SOCKET__MEDIUM : MESH_SOCKET__STAGES * op->stage_bytes;
    int j;
    for (j = 0; j < g->n; j++) {
        const mesh_socket__shown *shown = g->cell[j] ? &g->cell[j]->shown[op->number & 1] : NULL;
        int of = g->sharer[j];
        if (j == g->index || !mesh_socket__relates(op, j) || !shown) continue;
        if ((!shown->send || shown->own & MESH_SOCKET__OWN_SEND ||
             mesh_socket__told_memory(s->shared, of, shown->send, least)) &&
            (!shown->recv || shown->own & MESH_SOCKET__OWN_RECV ||
             mesh_socket__told_memory(s->shared, of, shown->recv, least)) &&
            (!shown->stage || mesh_socket__told_memory(s->shared, of, shown->stage, stages)))
            continue;
        mesh_socket__direct_fail(s, op, MESH_ERR_PEER, s->shared->rank[of],
                                 "rank %d shows memory that it does not have: what it shares was overwritten there",
                                 s->shared->rank[of]);
        return 0;
    }
    return op->told = 1;
}

/* One move of a large operation, if one can be made: 1. */
MESH__PRIVATE int mesh_socket__large(mesh_socket__impl *s, mesh_socket__direct *op) {
    mesh_socket__cell *mine = op->group->cell[op->group->index];
    uint32_t read = op->put >= MESH_SOCKET__STAGES ? op->put - MESH_SOCKET__STAGES + 1 : 0;
    if (!op->settled) mesh_socket__settle_how(op);
    if (op->put < op->chunks && op->put < op->used + MESH_SOCKET__STAGES &&
        mesh_socket__all_at(op, MESH_SOCKET__ALL_USED, op->base + read)) {
        mesh_socket__put_chunk(op);
        MESH_SOCKET__SHOW(&mine->put, op->base + op->put);
        return 1;
    }
    if (op->used < op->chunks && op->helped) {
        int used;
        if (!op->told && !mesh_socket__told_well(s, op)) return 0;
        used = mesh_socket__use_rest(s, op);
        if (used < 0) return mesh_socket__unreadable(s, op);
        if (used && op->used == op->chunks) MESH_SOCKET__SHOW(&mine->used, op->base + op->used);
        return used;
    }
    if (mesh_socket__may_use(op) && mesh_socket__all_at(op, MESH_SOCKET__ALL_PUT, op->base + op->used + 1)) {
        if (!op->told && !mesh_socket__told_well(s, op)) return 0;
        if (!mesh_socket__use_chunk(s, op)) return mesh_socket__unreadable(s, op);
        MESH_SOCKET__SHOW(&mine->used, op->base + op->used);
        return 1;
    }
    if (mesh_socket__help(s, op)) return 1;
    if (op->put < op->chunks || op->used < op->chunks || !op->sliced || op->medium || op->pushes || op->part) return 0;
    op->part = 1;
    op->base += op->chunks;
    mesh_socket__measure(op, MESH_SOCKET__OWN);
    mesh_socket__begin_part(op);
    return 1;
}

/* Is it complete, here and where it is still read? (What is shown in slots may be read until the operation after the next.) */
MESH__PRIVATE int mesh_socket__large_is_over(const mesh_socket__direct *op) {
    if (op->put < op->chunks || op->used < op->chunks) return 0;
    if (op->sliced && !op->medium && !op->pushes && !op->part) return 0;
    if (op->medium && !op->pushes && !op->send_at && op->uses) return 1;
    return mesh_socket__all_at(op, MESH_SOCKET__ALL_USED, op->base + op->chunks);
}
#endif /* MESH_SOCKET_LARGE_IMPLEMENTED */
