/* socket/direct.h - collectives of ranks that have memory in common: every rank reads what it needs where it lies. Part of mesh.h 0.1.0. MIT licence.

   Includes large.h. The life of an operation; small ones, which take one hop: everyone combines everything, in the same order; calls and groups.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_DIRECT_IMPLEMENTED)
#define MESH_SOCKET_DIRECT_IMPLEMENTED
#include "large.h"

enum {
    MESH_SOCKET__MOVES_AT_ONCE = 16,
    MESH_SOCKET__PATIENCE = 64 /* looks at the others before a call returns */
};

/* ---- // >>an operation's life ---- */

MESH__PRIVATE void mesh_socket__direct_leave(mesh_socket__impl *s, mesh_socket__direct *op) {
    mesh_socket__handle *g = op->group, **at = &s->busy;
    if (!(op->own & MESH_SOCKET__OWN_SEND)) mesh_socket__release_hold(s->shared, op->send_at);
    if (!(op->own & MESH_SOCKET__OWN_RECV)) mesh_socket__release_hold(s->shared, op->recv_at);
    if (op->stage && !op->medium) mesh_socket__stage_give(s, op->stage);
    op->stage = NULL;
    op->send_at = op->recv_at = 0;
    g->head = op->next;
    if (g->head) return;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
}

MESH__PRIVATE void mesh_socket__direct_end(mesh_socket__impl *s, mesh_socket__direct *op) {
    mesh_socket__direct_leave(s, op);
    op->ticket.left = 0;
    s->event = 1;
}

MESH__RARE void mesh_socket__direct_fail(mesh_socket__impl *s, mesh_socket__direct *op, mesh_status status, int rank,
                                         const char *format, ...);

/* Is it one whose memory others write to? */
MESH__INLINE int mesh_socket__is_written(const mesh_socket__direct *op) {
    return op->recv_at && !(op->own & MESH_SOCKET__OWN_RECV) && (op->sliced || op->helped);
}

/* A rank that is stopped may go on, and write to what it was shown: that is taken out of what is shared. What others write to the same pages for another
   operation would not come: it fails as well. */
MESH__RARE void mesh_socket__direct_detach(mesh_socket__impl *s, const mesh_socket__direct *op) {
    uint64_t at = op->recv_at, nbytes = op->recv_bytes;
    mesh_socket__handle *g;
    mesh_socket__direct *other;
    mesh_socket__detach(s, &at, &nbytes);
    for (g = s->busy; g; g = g->next)
        for (other = g->head; other; other = other->next) {
            if (other == op || !other->ticket.left || !mesh_socket__is_written(other) ||
                other->recv_at >= at + nbytes || at >= other->recv_at + other->recv_bytes)
                continue;
            mesh_socket__direct_fail(s, other, MESH_ERR_TRANSPORT, s->net->base.rank,
                                     "its memory is in one page with that of an operation that was given up; give "
                                     "operations that are under way at once pages of their own");
            mesh_socket__direct_detach(s, op); /* lists have changed */
            return;
        }
}

/* It ends without being complete: who has not read what it showed is told so. */
MESH__RARE void mesh_socket__direct_fail(mesh_socket__impl *s, mesh_socket__direct *op, mesh_status status, int rank,
                                         const char *format, ...) {
    mesh_socket__handle *g = op->group;
    mesh_socket__cell *mine = g->cell[g->index];
    mesh_socket__direct **at = &g->head;
    va_list args;
    if (!op->ticket.left) return;
    op->ticket.status = status;
    va_start(args, format);
    mesh__vfail(&op->ticket.why, status, rank, format, args);
    va_end(args);
    if (op->began && !mine->withdrawn) {
        MESH_SOCKET__SHOW(&mine->withdrawn, op->number);
        mesh_socket__tell(s, g);
    }
    if (op->helped) MESH_SOCKET__SHOW(&mine->rest[op->number & 1].left, (uint64_t)0);
    MESH_SOCKET__FENCE(); /* before the program, or another operation, writes there again */
    op->ticket.left = 0;  /* those that fail with it do not fail it again */
    if (op->began && mesh_socket__is_written(op)) mesh_socket__direct_detach(s, op);
    if (g->head == op) {
        mesh_socket__direct_end(s, op);
        return;
    }
    while (*at != op) at = &(*at)->next;
    *at = op->next;
    if (!*at) g->tail = at;
    s->event = 1;
}

/* Bytes that a rank shows of it at once, if it shows any. */
MESH__PRIVATE size_t mesh_socket__bytes(const mesh_socket__direct *op) {
    size_t blocks = op->shape == MESH_SOCKET__BLOCKS ? (size_t)op->group->n : 1;
    return op->total > (size_t)MESH_SOCKET__MEDIUM ? (size_t)MESH_SOCKET__MEDIUM + 1
                                                   : blocks * op->total * op->call.elem_bytes;
}

MESH__INLINE int mesh_socket__is_small(const mesh_socket__direct *op) {
    return mesh_socket__bytes(op) <= MESH_SOCKET__SLOT;
}

/* Show the others that this rank has come. */
MESH__PRIVATE void mesh_socket__direct_begin(mesh_socket__impl *s, mesh_socket__direct *op) {
    mesh_socket__handle *g = op->group;
    mesh_socket__cell *mine = g->cell[g->index];
    mesh_socket__shown *shown = &mine->shown[op->number & 1];
    size_t bytes = mesh_socket__bytes(op);
    shown->check = op->check;
    if (bytes > MESH_SOCKET__SLOT) {
        if (!mesh_socket__show_large(s, op, shown)) {
            mesh_socket__direct_fail(s, op, MESH_ERR_MEMORY, -1, "no shared memory for chunks of %u bytes",
                                     (uint64_t)op->stage_bytes);
            return;
        }
    } else if (op->shows && bytes) {
        unsigned char *to = bytes <= MESH_SOCKET__FEW_BYTES ? shown->few : mine->slot[op->number & 1];
        int block, blocks = op->shape == MESH_SOCKET__BLOCKS ? g->n : 1;
        if (blocks == 1 && !op->call.buffers)
            mesh__copy_few(to, op->call.send, bytes);
        else
            for (block = 0; block < blocks; block++)
                mesh_socket__flat(op, MESH_SOCKET__FROM_SEND, block, 0, op->total,
                                  to + (size_t)block * op->total * op->call.elem_bytes);
    }
    op->began = 1;
    MESH_SOCKET__SHOW(&shown->arrived, op->number);
    if (bytes > MESH_SOCKET__SLOT) mesh_socket__begin_part(op);
    mesh_socket__tell(s, g);
}

/* Is member j waited for? */
MESH__INLINE int mesh_socket__awaits(const mesh_socket__direct *op, int j) {
    if (j == op->group->index) return 0;
    return mesh_socket__is_small(op) ? mesh_socket__needs(op, j) : mesh_socket__relates(op, j);
}

/* Are all that are waited for here, and in the same operation? Returns -1 where the operation has failed. */
MESH__PRIVATE int mesh_socket__met(mesh_socket__impl *s, mesh_socket__direct *op) {
    mesh_socket__handle *g = op->group;
    int j;
    for (j = 0; j < g->n; j++)
        if (mesh_socket__awaits(op, j) && !mesh_socket__has_arrived(s, g, j, op->number)) return 0;
    for (j = 0; j < g->n; j++) {
        if (!mesh_socket__awaits(op, j) || g->cell[j]->shown[op->number & 1].check == op->check) continue;
        mesh_socket__direct_fail(s, op, MESH_ERR_MISMATCH, s->shared->rank[g->sharer[j]],
                                 "rank %d is in another operation than rank %d", s->shared->rank[g->sharer[j]],
                                 s->net->base.rank);
        return -1;
    }
    return 1;
}

/* Was all that was read still shown when it had been read? */
MESH__PRIVATE int mesh_socket__is_sound(mesh_socket__impl *s, mesh_socket__direct *op) {
    mesh_socket__handle *g = op->group;
    int j;
    MESH_SOCKET__WAS_READ();
    for (j = 0; j < g->n; j++) {
        uint32_t gone = j == g->index || !g->cell[j] ? 0 : MESH_SOCKET__SEE(&g->cell[j]->withdrawn);
        if (!gone || (int32_t)(gone - op->number) > 0) continue;
        mesh_socket__direct_fail(s, op, MESH_ERR_CANCELED, s->shared->rank[g->sharer[j]],
                                 "rank %d has given the operation up", s->shared->rank[g->sharer[j]]);
        return 0;
    }
    return 1;
}

/* Member j's message of a small operation. */
MESH__INLINE unsigned char *mesh_socket__small_at(const mesh_socket__direct *op, int j, size_t bytes) {
    mesh_socket__cell *cell = op->group->cell[j];
    return bytes <= MESH_SOCKET__FEW_BYTES ? cell->shown[op->number & 1].few : cell->slot[op->number & 1];
}

/* A small operation whose messages are all here. */
MESH__PRIVATE void mesh_socket__small(mesh_socket__impl *s, mesh_socket__direct *op) {
    const mesh_socket__handle *g = op->group;
    size_t bytes = mesh_socket__bytes(op), own = op->total * op->call.elem_bytes;
    const void *src[MESH_SOCKET__SHARERS];
    void *dst[1];
    union {
        uint64_t aligned;
        unsigned char bytes[MESH_SOCKET__SLOT];
    } result;
    int j, reduces = mesh__call_is(op->call.kind, MESH_REDUCES), mine = op->shape == MESH_SOCKET__BLOCKS ? g->index : 0;
    if (!bytes || !op->uses) return;
    MESH_SOCKET__OWN(g->cell[g->index]->shown[(op->number + 1) & 1]);
    for (j = 0; j < g->n; j++) src[j] = g->cell[j] ? mesh_socket__small_at(op, j, bytes) + (size_t)mine * own : NULL;
    if (op->shows &&
        !op->call.buffers) /* its own from where it lies: the line that it was shown in is the others' by now */
        src[g->index] = (const unsigned char *)op->call.send + (size_t)mine * own;
    if (reduces && !op->call.buffers) {
        dst[0] = op->call.recv;
        mesh_socket__combine(s, op, dst, 1, src, op->total, 0);
    } else if (reduces) {
        dst[0] = result.bytes;
        mesh_socket__combine(s, op, dst, 1, src, op->total, 0);
        mesh_socket__flat(op, MESH_SOCKET__TO_RECV, 0, 0, op->total, result.bytes);
    } else if (op->kind == MESH_CALL_BROADCAST || op->kind == MESH_CALL_SCATTER) {
        mesh_socket__flat(op, MESH_SOCKET__TO_RECV, 0, 0, op->total, (unsigned char *)(uintptr_t)src[op->call.root]);
    } else {
        for (j = 0; j < g->n; j++)
            mesh_socket__flat(op, MESH_SOCKET__TO_RECV, j, 0, op->total, (unsigned char *)(uintptr_t)src[j]);
    }
}

/* Bring the first operation of a group forward. Returns 1 if something was done. */
MESH__PRIVATE int mesh_socket__direct_advance(mesh_socket__impl *s, mesh_socket__handle *g) {
    mesh_socket__direct *op = g->head;
    int j, met, moves;
    if (!op->began) {
        for (j = 0; (int32_t)(g->all_at - (op->number - 1)) < 0 && j < g->n; j++)
            if (j != g->index && !mesh_socket__has_arrived(s, g, j, op->number - 1)) return 0;
        if ((int32_t)(g->all_at - (op->number - 1)) < 0) g->all_at = op->number - 1; /* never 2^31 behind */
        mesh_socket__direct_begin(s, op);
        if (!op->ticket.left) return 1;
    }
    met = mesh_socket__met(s, op);
    if (met <= 0) return met < 0 || !mesh_socket__is_sound(s, op);
    if (mesh_socket__is_small(op)) {
        mesh_socket__small(s, op);
        if (!mesh_socket__is_sound(s, op)) return 1;
        if (op->kind != MESH_CALL_BROADCAST && op->kind != MESH_CALL_SCATTER && mesh_socket__needs(op, g->index))
            g->all_at = op->number;
        mesh_socket__direct_end(s, op);
        return 1;
    }
    for (moves = 0; moves < MESH_SOCKET__MOVES_AT_ONCE && mesh_socket__large(s, op); moves++) mesh_socket__tell(s, g);
    if (!op->ticket.left) return 1;
    if (mesh_socket__large_is_over(op)) {
        if (!mesh_socket__is_sound(s, op)) return 1;
        if (mesh_socket__relates(op, g->index)) g->all_at = op->number;
        mesh_socket__direct_end(s, op);
        return 1;
    }
    return moves || !mesh_socket__is_sound(s, op);
}

/* All groups' operations, as far as they go now. Returns 1 if something was done. */
MESH__PRIVATE int mesh_socket__direct_poll(mesh_socket__impl *s) {
    mesh_socket__handle *g, *next;
    int any = 0;
    for (g = s->busy; g; g = next) { /* one that fails may take the next ones off */
        next = g->next;
        if (g->head) any |= mesh_socket__direct_advance(s, g);
    }
    if (any) s->event = 1;
    return any;
}

/* ns that others may well need for what they are copying now. */
MESH__PRIVATE int64_t mesh_socket__copying(const mesh_socket__impl *s) {
    const mesh_socket__handle *g;
    size_t most = 0;
    for (g = s->busy; g; g = g->next) {
        size_t bytes = g->head->settled ? g->head->total * g->head->call.elem_bytes : 0;
        if (bytes > most) most = bytes;
    }
    if (most > MESH_SOCKET__AWAITED) most = MESH_SOCKET__AWAITED;
    return (int64_t)most / MESH_SOCKET__BYTES_PER_NS;
}

/* Members that an operation waits for, which are not here yet. Those with which there is no connection get one: else nobody would notice their end. */
MESH__PRIVATE int mesh_socket__direct_pending(mesh_socket__impl *s, const mesh_socket__direct *op, int *ranks,
                                              int cap) {
    mesh_socket__handle *g = op->group;
    uint32_t number = op->began ? op->number : op->number - 1;
    int j, n = 0;
    if (!op->ticket.left) return 0;
    for (j = 0; j < g->n; j++) {
        if (j == g->index || (op->began && !mesh_socket__awaits(op, j)) || mesh_socket__has_arrived(s, g, j, number))
            continue;
        if (n < cap) ranks[n] = s->shared->rank[g->sharer[j]];
        n++;
    }
    return n;
}

/* Nothing has come for a while: whoever is waited for has to be connected to, or its end would not be noticed. */
MESH__RARE void mesh_socket__direct_reach(mesh_socket__impl *s) {
    const mesh_socket__handle *g;
    int j;
    for (g = s->busy; g; g = g->next)
        for (j = 0; j < g->n; j++)
            if (j != g->index) mesh_socket__reach(s, s->shared->rank[g->sharer[j]]);
}

/* ---- // >>calls ---- */

/* What serves this kind of call; -1: nothing here does. */
MESH__PRIVATE int mesh_socket__shape(int kind) {
    switch (kind) {
    case MESH_CALL_REDUCE_SCATTER:
    case MESH_CALL_ALL_TO_ALL:
    case MESH_CALL_SCATTER:
        return MESH_SOCKET__BLOCKS;
    case MESH_CALL_ALL_REDUCE:
    case MESH_CALL_REDUCE:
    case MESH_CALL_ALL_GATHER:
    case MESH_CALL_GATHER:
    case MESH_CALL_BROADCAST:
    case MESH_CALL_BARRIER:
        return MESH_SOCKET__OWN;
    default:
        return -1;
    }
}

/* Fields of an operation that its call decides. */
MESH__PRIVATE void mesh_socket__direct_set(mesh_socket__direct *op, const mesh_call *call) {
    mesh_socket__handle *g = op->group;
    int i, rooted = mesh__call_is(call->kind, MESH_ROOTED), root = g->index == call->root;
    op->call = *call;
    op->kind = mesh__single_kind(call->kind);
    op->shape = mesh_socket__shape(op->kind);
    op->check = call->check;
    op->total = op->kind == MESH_CALL_BARRIER ? 0 : call->count;
    if (call->buffers)
        for (i = 0, op->total = 0; i < call->nbuffers; i++) op->total += call->buffers[i].count;
    op->shows = op->uses = 1;
    if (op->kind == MESH_CALL_BROADCAST || op->kind == MESH_CALL_SCATTER) op->shows = root;
    if (op->kind == MESH_CALL_GATHER || op->kind == MESH_CALL_REDUCE) op->uses = root;
    op->length = op->total;
    op->medium = mesh_socket__bytes(op) > MESH_SOCKET__SLOT && mesh_socket__bytes(op) <= MESH_SOCKET__MEDIUM;
    op->sliced = op->kind == MESH_CALL_ALL_REDUCE && !mesh_socket__is_small(op);
    if (op->sliced) op->shape = MESH_SOCKET__BLOCKS, op->length = (op->total + (size_t)g->n - 1) / (size_t)g->n;
    if (op->kind == MESH_CALL_BROADCAST && rooted && root && call->send == call->recv && !call->buffers) op->uses = 0;
}

MESH__PRIVATE mesh_status mesh_socket__collective(mesh_transport *t, void *group, const mesh_call *call,
                                                  mesh_ticket *ticket) {
    mesh_socket__impl *s = mesh_socket__of(t);
    mesh_socket__handle *g = (mesh_socket__handle *)group;
    mesh_socket__direct *op;
    int looks;
    if (!g || g->n < 2 || mesh_socket__shape(mesh__single_kind(call->kind)) < 0 ||
        (call->op == MESH_AVG && !call->user_op && mesh__call_is(call->kind, MESH_REDUCES)) ||
        (mesh__call_is(call->kind, MESH_REDUCES) && call->elem_bytes > MESH__TILE))
        return MESH_ERR_UNSUPPORTED;
    if (call->kind == MESH_CALL_REDUCE &&
        (call->count > MESH_SOCKET__SLOT || call->count * call->elem_bytes > MESH_SOCKET__SLOT))
        return MESH_ERR_UNSUPPORTED; /* by messages all ranks do their part of it */
    if (!ticket) return MESH_OK;
    op = g->spare ? g->spare : (mesh_socket__direct *)mesh_transport_alloc(t, sizeof *op);
    if (!op) return MESH_ERR_MEMORY;
    g->spare = NULL;
    op->ticket.xfer = NULL;
    op->ticket.count = 0;
    op->ticket.left = 1;
    op->ticket.status = MESH_OK;
    op->ticket.direct = 1;
    op->group = g;
    op->next = NULL;
    op->began = op->streams = op->own = op->settled = op->told = op->pushes = op->sliced = op->part = op->helped =
        op->helps = 0;
    op->put = op->used = op->chunks = 0;
    op->send_at = op->recv_at = op->stage_at = 0;
    op->stage = NULL;
    op->number = ++g->numbers;
    mesh_socket__direct_set(op, call);
    ticket->impl = op;
    ticket->id = call->channel;
    if (!g->head) {
        g->tail = &g->head;
        g->next = s->busy;
        s->busy = g;
    }
    *g->tail = op;
    g->tail = &op->next;
    for (looks = 0; looks < MESH_SOCKET__PATIENCE && op->ticket.left && g->head == op; looks++) {
        if (!mesh_socket__direct_advance(s, g)) MESH_SOCKET__RELAX();
        if (s->crowded || s->on_one_core > 0 || !mesh_socket__is_small(op)) break;
    }
    return MESH_OK;
}

/* ---- // >>groups ---- */

/* Cells of closed groups whose members have all closed them too, or are gone, are memory again. */
MESH__PRIVATE void mesh_socket__sweep(mesh_socket__impl *s) {
    mesh_socket__handle **at = &s->closed, *g;
    int j;
    while ((g = *at) != NULL) {
        mesh_socket__listed *mine = mesh_socket__my_entry(s->shared, g->id, g->id);
        for (j = 0; j < g->n; j++)
            if (s->peer[s->shared->rank[g->sharer[j]]].gone)
                MESH_SOCKET__CLEAR(&mine->readers, (uint64_t)1 << g->sharer[j]);
        if (MESH_SOCKET__SEE(&mine->readers)) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        MESH_SOCKET__SHOW(&mine->id, 0u);
        mesh_socket__heap_give(s, g->cell[g->index]);
        if (g->slots) mesh_socket__heap_give(s, g->slots);
        mesh_transport_free(&s->net->base, g);
    }
}

/* Have a cell in the group, if all its members share memory. */
MESH__PRIVATE mesh_status mesh_socket__direct_open(mesh_socket__impl *s, mesh_socket__handle *g, const mesh *m,
                                                   mesh_error *why) {
    mesh_socket__cell *cell;
    uint64_t readers = 0;
    int i, me = -1;
    if (!s->sharing || !m || m->size < 2 || m->size > s->shared->n) return MESH_OK;
    for (i = 0; i < m->size; i++) {
        int rank = mesh_rank_at(m, i);
        if (!s->peer[rank].sharer && rank != s->net->base.rank) return MESH_OK;
        if (rank == s->net->base.rank) me = i;
        g->sharer[i] = s->peer[rank].sharer - 1;
    }
    mesh_socket__sweep(s);
    cell = me < 0 ? NULL : (mesh_socket__cell *)(void *)mesh_socket__heap_take(s, sizeof *cell);
    if (!cell) return mesh__fail(why, MESH_ERR_MEMORY, -1, "mesh_socket: no shared memory for a group");
    memset(cell, 0, sizeof *cell);
    cell->id = g->id;
    g->index = me;
    g->cell[me] = cell;
    g->n = m->size;
    for (i = 0; i < g->n; i++) readers |= i == me ? 0 : (uint64_t)1 << g->sharer[i];
    if (mesh_socket__list_cell(s->shared, g->id, (uint64_t)((unsigned char *)cell - s->shared->base), readers))
        return MESH_OK;
    mesh_socket__heap_give(s, cell);
    return mesh__fail(
        why, MESH_ERR_MEMORY, -1,
        "mesh_socket: this rank has %d groups open on one host, and can have no more; close comms, or let the job do "
        "without shared memory (MESH_SOCKET_LANES=unix)",
        (int)MESH_SOCKET__LISTED);
}

/* Who still reads its cell, or is going to, may do so. Returns 1 where the handle lives until then. */
MESH__PRIVATE int mesh_socket__direct_close(mesh_socket__impl *s, mesh_socket__handle *g) {
    mesh_transport_free(&s->net->base, g->spare);
    if (!g->n) return 0;
    while (g->head) mesh_socket__direct_fail(s, g->head, MESH_ERR_CANCELED, -1, "the group was closed");
    mesh_socket__close_cell(s->shared, mesh_socket__my_entry(s->shared, g->id, g->id));
    g->next = s->closed;
    s->closed = g;
    mesh_socket__sweep(s);
    return 1;
}
#endif /* MESH_SOCKET_DIRECT_IMPLEMENTED */
