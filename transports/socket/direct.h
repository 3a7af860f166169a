/* socket/direct.h - collectives of ranks that have memory in common: every rank reads what it needs where it lies. Part of mesh.h 0.1.0. MIT licence.

   Includes loop.h. Knows no frame.

   Each member of a group has a cell, which it alone writes and the others read. The operations of a group run one after the other, with a
   number; each begins with `arrived` becoming that number. A rank that begins one has read all it needs of the one before, so what it has
   shown for operation k may be written over once everybody has arrived at k + 1: two of everything will do.
       small   up to MESH_SOCKET__SLOT bytes lie in the cell: one hop, everyone combines everything in the same order
       large   in chunks. A rank shows a chunk (`put`: where the program's memory is not shared, by copying it to its stage), the members use it
               (`used`: each combines its slice of what all have shown, or copies what it is to have), and of a reduction take the other
               slices (`taken`). What is in shared memory is read where it is. Nobody writes into another's memory.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_DIRECT_IMPLEMENTED)
#define MESH_SOCKET_DIRECT_IMPLEMENTED
#include "loop.h"

enum {
    MESH_SOCKET__SLOT = 4096,
    MESH_SOCKET__STAGE = 256 * 1024, /* bytes of a chunk, as far as elements allow */
    MESH_SOCKET__FEW_BYTES = 24,     /* of a message that travels beside its flag */
    MESH_SOCKET__MOVES_AT_ONCE = 16,
    MESH_SOCKET__STREAMS = 32 << 20, /* bytes of a result that goes past the caches */
    MESH_SOCKET__PATIENCE = 64       /* looks at the others before a call returns */
};

/* What a rank shows of an operation, for even and odd numbers. Offsets are in the file; 0: none. own: send is an address in its process. */
typedef struct mesh_socket__shown {
    uint64_t check, send, recv, stage, own;
    unsigned char few[MESH_SOCKET__FEW_BYTES];
} mesh_socket__shown;

typedef struct mesh_socket__cell {
    uint32_t id; /* of the group */
    uint32_t arrived;
    uint32_t withdrawn;        /* the operation that it has given up; 0: none */
    uint32_t put, used, taken; /* chunks, of all operations */
    unsigned char apart[104];
    mesh_socket__shown shown[2];
    unsigned char slot[2][MESH_SOCKET__SLOT];
} mesh_socket__cell;

typedef struct mesh_socket__direct mesh_socket__direct;

typedef struct mesh_socket__handle {
    uint32_t id;
    int n, index; /* n: members that share memory, all of them; 0: they do not. This one's index */
    int sharer[MESH_SOCKET__SHARERS];
    mesh_socket__cell *cell[MESH_SOCKET__SHARERS]; /* NULL: not seen yet */
    uint32_t numbers, chunks;                      /* of operations so far, of their chunks */
    uint32_t all_at;                               /* an operation at which all have arrived */
    mesh_socket__direct *head, **tail;             /* to be run in this order */
    mesh_socket__direct *spare;
    uint64_t waits_for;               /* closed: members (by sharer) that may still read its cell */
    struct mesh_socket__handle *next; /* among those with operations, or those that are closed */
} mesh_socket__handle;

/* How the elements of an operation lie. RANGE: one array, of which each rank combines a slice. BLOCKS: a block for each rank. OWN: the
   one block that a rank has to show. */
enum { MESH_SOCKET__RANGE, MESH_SOCKET__BLOCKS, MESH_SOCKET__OWN };

struct mesh_socket__direct {
    mesh_socket__ticket ticket; /* first: with no message of its own */
    mesh_socket__handle *group;
    mesh_call call;
    mesh_socket__direct *next;
    int began, kind, shape; /* kind: of the single form */
    int shows, uses, takes; /* does this rank? */
    int streams;            /* stores go past the caches */
    int settled, pushes;    /* it is known how it goes; results are written into every member's memory */
    int own;                /* send_at is an address, which the others can read */
    uint32_t number;
    uint64_t check;
    size_t total, each;                       /* elements of a block (of all, in a RANGE); of a chunk */
    uint32_t first, chunks, put, used, taken; /* first: the group's chunks before */
    uint64_t send_at, recv_at, stage_at;      /* 0: not in shared memory; none */
    unsigned char *stage;
    size_t stage_bytes, out_bytes; /* of one of its two chunks, of one of its two results behind them */
};

MESH__PRIVATE mesh_socket__direct *mesh_socket__direct_of(const mesh_ticket *ticket) {
    mesh_socket__ticket *k = (mesh_socket__ticket *)ticket->impl;
    return k->direct ? (mesh_socket__direct *)(void *)k : NULL;
}

/* ---- // >>where elements lie ---- */

/* The elements from `at` of block `block` of what this rank sends or receives, and how many follow each other from there. */
MESH__PRIVATE unsigned char *mesh_socket__elements(const mesh_socket__direct *op, int receives, int block, size_t at,
                                                   size_t *run) {
    const mesh_call *c = &op->call;
    size_t elem = c->elem_bytes;
    int i = 0;
    unsigned char *p;
    if (!c->buffers) {
        p = (unsigned char *)(uintptr_t)(receives ? c->recv : c->send);
        *run = op->total - at;
        return p ? p + ((size_t)block * op->total + at) * elem : NULL;
    }
    while (at >= c->buffers[i].count) at -= c->buffers[i++].count;
    p = (unsigned char *)(uintptr_t)(receives ? c->buffers[i].recv : c->buffers[i].send);
    *run = c->buffers[i].count - at;
    return p ? p + ((size_t)block * c->buffers[i].count + at) * elem : NULL;
}

/* The same n elements from flat memory to where they belong, or the other way. */
MESH__PRIVATE void mesh_socket__flat(const mesh_socket__direct *op, int receives, int block, size_t at, size_t n,
                                     unsigned char *flat) {
    size_t run, elem = op->call.elem_bytes;
    for (; n; n -= run, at += run, flat += run * elem) {
        unsigned char *p = mesh_socket__elements(op, receives, block, at, &run);
        if (run > n) run = n;
        if (receives && op->streams && run * elem >= MESH_SOCKET__PAGE)
            mesh__copy_stream(p, flat, run * elem);
        else if (receives && p != flat)
            memmove(p, flat, run * elem);
        else if (!receives)
            memcpy(flat, p, run * elem);
    }
}

/* Elements of chunk c. */
MESH__PRIVATE size_t mesh_socket__chunk(const mesh_socket__direct *op, uint32_t c, size_t *at) {
    *at = (size_t)c * op->each;
    return op->total - *at < op->each ? op->total - *at : op->each;
}

/* The slice of a chunk of n elements that member i combines. */
MESH__PRIVATE size_t mesh_socket__slice(const mesh_socket__direct *op, int i, size_t n, size_t *at) {
    size_t each = (n + (size_t)op->group->n - 1) / (size_t)op->group->n, from = (size_t)i * each;
    *at = from < n ? from : n;
    return n - *at < each ? n - *at : each;
}

/* Where member j shows element `at` of block `block`, of chunk c: there, or in its stage. */
MESH__PRIVATE const unsigned char *mesh_socket__shown_at(mesh_socket__impl *s, const mesh_socket__direct *op, int j,
                                                         uint32_t c, int block, size_t at) {
    const mesh_socket__shown *shown = &op->group->cell[j]->shown[op->number & 1];
    size_t elem = op->call.elem_bytes, first = (size_t)c * op->each;
    if (op->shape != MESH_SOCKET__BLOCKS) block = 0;
    if (shown->send) return s->shared->base + shown->send + ((size_t)block * op->total + at) * elem;
    return s->shared->base + shown->stage + ((op->first + c) & 1) * op->stage_bytes +
           ((size_t)block * op->each + at - first) * elem;
}

/* Where member j has the result of its slice, which begins at element `at` of chunk c. */
MESH__PRIVATE const unsigned char *mesh_socket__result_at(mesh_socket__impl *s, const mesh_socket__direct *op, int j,
                                                          uint32_t c, size_t at) {
    const mesh_socket__shown *shown = &op->group->cell[j]->shown[op->number & 1];
    if (shown->recv) return s->shared->base + shown->recv + at * op->call.elem_bytes;
    return s->shared->base + shown->stage + 2 * op->stage_bytes + ((op->first + c) & 1) * op->out_bytes;
}

/* ---- // >>combining ---- */

/* Every one of ndst = src[0] op src[1] op ..., in this order, count elements. */
MESH__PRIVATE void mesh_socket__combine(mesh_socket__impl *s, const mesh_socket__direct *op, void *const *dst, int ndst,
                                        const void *const *src, size_t count, int streams) {
    s->net->base.inside.combining = op->call.user_op != NULL;
    mesh__reduce_many(&op->call, dst, ndst, src, op->group->n, count, op->call.elem_bytes, streams);
    s->net->base.inside.combining = 0;
}

/* Elements at..at+n of block `block`, of all that the members show, combined into what this rank receives, and into `out` (may be NULL); or into
   what all of them receive. */
MESH__PRIVATE void mesh_socket__reduce_chunk(mesh_socket__impl *s, mesh_socket__direct *op, uint32_t c, int block,
                                             size_t at, size_t n, unsigned char *out) {
    const mesh_socket__handle *g = op->group;
    const void *src[MESH_SOCKET__SHARERS];
    void *dst[MESH_SOCKET__SHARERS];
    size_t run, elem = op->call.elem_bytes;
    int j, ndst, receives = op->kind != MESH_CALL_REDUCE || op->takes;
    for (; n; n -= run, at += run) {
        size_t r = n;
        ndst = 0;
        src[g->index] = mesh_socket__elements(op, 0, op->shape == MESH_SOCKET__BLOCKS ? block : 0, at, &run);
        if (receives && !op->pushes) dst[ndst++] = mesh_socket__elements(op, 1, 0, at, &r);
        if (r < run) run = r;
        if (n < run) run = n;
        for (j = 0; j < g->n; j++) {
            if (j != g->index) src[j] = mesh_socket__shown_at(s, op, j, c, block, at);
            if (op->pushes) dst[ndst++] = s->shared->base + g->cell[j]->shown[op->number & 1].recv + at * elem;
        }
        if (out) dst[ndst++] = out;
        mesh_socket__combine(s, op, dst, ndst, src, run, op->streams && !out);
        if (out) out += run * elem;
    }
}

/* ---- // >>what the members have shown ---- */

MESH__PRIVATE mesh_socket__cell *mesh_socket__cell_of(mesh_socket__impl *s, mesh_socket__handle *g, int j) {
    uint64_t at;
    if (g->cell[j]) return g->cell[j];
    at = mesh_socket__listed_at(s->shared, g->sharer[j], g->id);
    if (!at) return NULL;
    return g->cell[j] =
               (mesh_socket__cell *)(void *)mesh_socket__told_memory(s->shared, g->sharer[j], at, sizeof *g->cell[j]);
}

/* Has member j arrived at operation k? */
MESH__INLINE int mesh_socket__has_arrived(mesh_socket__impl *s, mesh_socket__handle *g, int j, uint32_t k) {
    mesh_socket__cell *cell = g->cell[j] ? g->cell[j] : mesh_socket__cell_of(s, g, j);
    return cell && (int32_t)(MESH_SOCKET__SEE(&cell->arrived) - k) >= 0;
}

/* Does this operation need what member j shows? */
MESH__PRIVATE int mesh_socket__needs(const mesh_socket__direct *op, int j) {
    switch (op->kind) {
    case MESH_CALL_BROADCAST:
    case MESH_CALL_SCATTER:
        return j == op->call.root;
    case MESH_CALL_REDUCE:
    case MESH_CALL_GATHER:
        return op->group->index == op->call.root;
    default:
        return 1;
    }
}

/* Has this rank to do with member j in a large one? */
MESH__PRIVATE int mesh_socket__relates(const mesh_socket__direct *op, int j) {
    int rooted = mesh__call_is(op->kind, MESH_ROOTED) && op->kind != MESH_CALL_REDUCE;
    return !rooted || j == op->call.root || op->group->index == op->call.root;
}

/* The counters of chunks of all others that it has to do with are at `least` or beyond. which: 0 put, 1 used, 2 taken. */
MESH__PRIVATE int mesh_socket__all_at(const mesh_socket__direct *op, int which, uint32_t least) {
    const mesh_socket__handle *g = op->group;
    int j;
    for (j = 0; j < g->n; j++) {
        mesh_socket__cell *cell = g->cell[j];
        uint32_t at;
        if (j == g->index || !mesh_socket__relates(op, j)) continue;
        at = which == 0   ? MESH_SOCKET__SEE(&cell->put)
             : which == 1 ? MESH_SOCKET__SEE(&cell->used)
                          : MESH_SOCKET__SEE(&cell->taken);
        if ((int32_t)(at - least) < 0) return 0;
    }
    return 1;
}

/* Who sleeps until this rank has shown something is woken. */
MESH__PRIVATE void mesh_socket__tell(mesh_socket__impl *s, const mesh_socket__handle *g) {
    int j;
    MESH_SOCKET__FENCE();
    for (j = 0; j < g->n; j++) {
        if (j == g->index) continue;
        if (MESH_SOCKET__SEE(&mesh_socket__place_of(s->shared, g->sharer[j])->asleep))
            mesh_socket__bell(s, s->shared->rank[g->sharer[j]]);
    }
}

/* ---- // >>an operation's life ---- */

/* Memory to show the program's own in. One is kept: what others have touched of it costs them nothing again. */
MESH__PRIVATE unsigned char *mesh_socket__stage_take(mesh_socket__impl *s, size_t nbytes) {
    unsigned char *p = s->stage;
    s->stage = NULL;
    if (p && s->stage_bytes >= nbytes) return p;
    if (p) mesh_socket__heap_give(s, p);
    p = mesh_socket__heap_take(s, nbytes);
    if (p) s->stage_bytes = nbytes;
    return p;
}

MESH__PRIVATE void mesh_socket__stage_give(mesh_socket__impl *s, unsigned char *p) {
    if (s->stage) {
        mesh_socket__heap_give(s, p);
        return;
    }
    s->stage = p;
    s->stage_bytes = (size_t)s->shared->block[mesh_socket__block_at(s->shared, p)].nbytes;
}

MESH__PRIVATE void mesh_socket__direct_leave(mesh_socket__impl *s, mesh_socket__direct *op) {
    mesh_socket__handle *g = op->group, **at = &s->busy;
    if (!op->own) mesh_socket__release_hold(s->shared, op->send_at);
    mesh_socket__release_hold(s->shared, op->recv_at);
    if (op->stage) mesh_socket__stage_give(s, op->stage);
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
    if (op->recv_at) mesh_socket__detach(s, op->recv_at); /* a rank that is stopped may go on, and write there */
    if (g->head == op) {
        mesh_socket__direct_end(s, op);
        return;
    }
    while (*at != op) at = &(*at)->next;
    *at = op->next;
    if (!*at) g->tail = at;
    op->ticket.left = 0;
    s->event = 1;
}

/* How much memory a chunk takes, and how many chunks there are. */
MESH__PRIVATE void mesh_socket__measure(mesh_socket__direct *op) {
    size_t n = (size_t)op->group->n, elem = op->call.elem_bytes;
    size_t unit = op->shape == MESH_SOCKET__BLOCKS ? n * elem : elem;
    op->each = MESH_SOCKET__STAGE / unit ? MESH_SOCKET__STAGE / unit : 1;
    if (op->each > op->total) op->each = op->total;
    op->chunks = (uint32_t)((op->total + op->each - 1) / op->each);
    op->stage_bytes = (op->each * unit + MESH_SOCKET__LINE - 1) / MESH_SOCKET__LINE * MESH_SOCKET__LINE;
    op->out_bytes = op->shape == MESH_SOCKET__RANGE ? ((op->each + n - 1) / n * elem + MESH_SOCKET__LINE - 1) /
                                                          MESH_SOCKET__LINE * MESH_SOCKET__LINE
                                                    : 0;
}

/* Bytes that a rank shows of it at once, if it shows any. */
MESH__PRIVATE size_t mesh_socket__bytes(const mesh_socket__direct *op) {
    size_t blocks = op->shape == MESH_SOCKET__BLOCKS ? (size_t)op->group->n : 1;
    return op->total > (size_t)MESH_SOCKET__SLOT ? (size_t)MESH_SOCKET__SLOT + 1
                                                 : blocks * op->total * op->call.elem_bytes;
}

MESH__INLINE int mesh_socket__is_small(const mesh_socket__direct *op) {
    return mesh_socket__bytes(op) <= MESH_SOCKET__SLOT;
}

/* Can the others read this rank's own memory, where they only copy it? */
MESH__PRIVATE int mesh_socket__all_read(mesh_socket__impl *s, const mesh_socket__direct *op) {
    const mesh_socket__handle *g = op->group;
    int j;
    if (mesh__call_is(op->call.kind, MESH_REDUCES) || op->call.buffers ||
        (op->call.in_place && op->kind == MESH_CALL_ALL_TO_ALL))
        return 0;
    for (j = 0; j < g->n; j++)
        if (j != g->index &&
            !(MESH_SOCKET__SEE(&mesh_socket__place_of(s->shared, g->sharer[j])->reads) >> s->shared->me & 1))
            return 0;
    return 1;
}

/* What a large one shows: where its memory is. Returns 0 without memory for a stage. */
MESH__PRIVATE int mesh_socket__show_large(mesh_socket__impl *s, mesh_socket__direct *op, mesh_socket__shown *shown) {
    size_t elem = op->call.elem_bytes, n = (size_t)op->group->n;
    size_t sends = op->total * (op->shape == MESH_SOCKET__BLOCKS ? n : 1) * elem;
    int results = op->shape == MESH_SOCKET__RANGE;
    int receives = op->kind == MESH_CALL_ALL_REDUCE && !op->call.buffers;
    mesh_socket__measure(op);
    op->first = op->group->chunks;
    op->group->chunks += op->chunks;
    if (op->shows && !op->call.buffers && !(op->call.in_place && op->kind == MESH_CALL_ALL_TO_ALL))
        op->send_at = mesh_socket__shared_at(s->shared, op->call.send, sends);
    if (op->shows && !op->send_at && sends > MESH_SOCKET__LEND_OWN && mesh_socket__all_read(s, op)) {
        op->send_at = (uint64_t)(uintptr_t)op->call.send;
        op->own = 1;
    }
    if (receives) op->recv_at = mesh_socket__shared_at(s->shared, op->call.recv, sends);
    if ((op->shows && !op->send_at) || (results && !op->recv_at)) {
        op->stage = mesh_socket__stage_take(s, 2 * (op->stage_bytes + op->out_bytes));
        if (!op->stage) return 0;
        op->stage_at = (uint64_t)(op->stage - s->shared->base);
    }
    if (!op->own) mesh_socket__hold(s->shared, op->send_at);
    mesh_socket__hold(s->shared, op->recv_at);
    shown->send = op->send_at;
    shown->own = (uint64_t)op->own;
    shown->recv = op->recv_at;
    shown->stage = op->stage_at;
    return 1;
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
            mesh_socket__direct_fail(s, op, MESH_ERR_MEMORY, -1, "no shared memory for %u bytes",
                                     (uint64_t)(2 * (op->stage_bytes + op->out_bytes)));
            return;
        }
    } else if (op->shows && bytes) {
        unsigned char *to = bytes <= MESH_SOCKET__FEW_BYTES ? shown->few : mine->slot[op->number & 1];
        int block, blocks = op->shape == MESH_SOCKET__BLOCKS ? g->n : 1;
        for (block = 0; block < blocks; block++)
            mesh_socket__flat(op, 0, block, 0, op->total, to + (size_t)block * op->total * op->call.elem_bytes);
    }
    op->began = 1;
    MESH_SOCKET__SHOW(&mine->arrived, op->number);
    if (bytes > MESH_SOCKET__SLOT) { /* what it does nothing for is done */
        if (!op->shows || op->send_at) op->put = op->chunks;
        if (!op->uses) op->used = op->chunks;
        if (!op->takes) op->taken = op->chunks;
        MESH_SOCKET__SHOW(&mine->put, op->first + op->put);
        MESH_SOCKET__SHOW(&mine->used, op->first + op->used);
        MESH_SOCKET__SHOW(&mine->taken, op->first + op->taken);
    }
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
    MESH_SOCKET__FENCE();
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
    if (!bytes || !op->uses || (op->kind == MESH_CALL_REDUCE && !op->takes)) return;
    for (j = 0; j < g->n; j++) src[j] = g->cell[j] ? mesh_socket__small_at(op, j, bytes) + (size_t)mine * own : NULL;
    if (reduces && !op->call.buffers) {
        dst[0] = op->call.recv;
        mesh_socket__combine(s, op, dst, 1, src, op->total, 0);
    } else if (reduces) {
        dst[0] = result.bytes;
        mesh_socket__combine(s, op, dst, 1, src, op->total, 0);
        mesh_socket__flat(op, 1, 0, 0, op->total, result.bytes);
    } else if (op->kind == MESH_CALL_BROADCAST || op->kind == MESH_CALL_SCATTER) {
        mesh_socket__flat(op, 1, 0, 0, op->total, (unsigned char *)(uintptr_t)src[op->call.root]);
    } else {
        for (j = 0; j < g->n; j++) mesh_socket__flat(op, 1, j, 0, op->total, (unsigned char *)(uintptr_t)src[j]);
    }
}

/* Show the next chunk of what is not in shared memory. */
MESH__PRIVATE void mesh_socket__put_chunk(mesh_socket__direct *op) {
    size_t at, n = mesh_socket__chunk(op, op->put, &at), elem = op->call.elem_bytes, from, part;
    unsigned char *to = op->stage + ((op->first + op->put) & 1) * op->stage_bytes;
    int block, blocks = op->shape == MESH_SOCKET__BLOCKS ? op->group->n : 1;
    if (op->shape == MESH_SOCKET__RANGE) { /* all but the slice that it combines itself */
        part = mesh_socket__slice(op, op->group->index, n, &from);
        mesh_socket__flat(op, 0, 0, at, from, to);
        from += part;
        mesh_socket__flat(op, 0, 0, at + from, n - from, to + from * elem);
    }
    for (block = 0; block < blocks && op->shape != MESH_SOCKET__RANGE; block++)
        if (blocks == 1 || block != op->group->index)
            mesh_socket__flat(op, 0, block, at, n, to + (size_t)block * op->each * elem);
    op->put++;
}

/* Elements of this rank's own, from where it sends block `block` to where it receives block `to`. */
MESH__PRIVATE void mesh_socket__copy_own(const mesh_socket__direct *op, int block, int to, size_t at, size_t n) {
    size_t run;
    for (; n; n -= run, at += run) {
        unsigned char *from = mesh_socket__elements(op, 0, block, at, &run);
        if (run > n) run = n;
        mesh_socket__flat(op, 1, to, at, run, from);
    }
}

/* Elements that member j shows to where this rank receives block `to`. Returns 0 where they cannot be read. */
MESH__PRIVATE int mesh_socket__copy_shown(mesh_socket__impl *s, mesh_socket__direct *op, int j, uint32_t c, int to,
                                          size_t at, size_t n) {
    const mesh_socket__handle *g = op->group;
    const mesh_socket__shown *shown = &g->cell[j]->shown[op->number & 1];
    size_t elem = op->call.elem_bytes, run;
    int rank = s->shared->rank[g->sharer[j]], block = op->shape == MESH_SOCKET__BLOCKS ? g->index : 0;
    struct iovec from, into;
    uint64_t address = shown->send + ((uint64_t)block * op->total + at) * elem;
    if (!shown->own) {
        mesh_socket__flat(op, 1, to, at, n, (unsigned char *)(uintptr_t)mesh_socket__shown_at(s, op, j, c, block, at));
        return 1;
    }
    while (n) {
        int64_t got;
        into.iov_base = mesh_socket__elements(op, 1, to, at, &run);
        from.iov_base = (void *)(uintptr_t)address;
        into.iov_len = from.iov_len = (run < n ? run : n) * elem;
        got = mesh_socket__read_process((uint32_t)s->book[rank].process, &into, 1, &from, 1);
        if (got < (int64_t)elem) return 0;
        run = (size_t)got / elem; /* an element that came in part comes again */
        n -= run, at += run, address += run * elem;
    }
    return 1;
}

/* Does every member that is needed show all of it, where it lies? Then chunks need not be small. */
MESH__PRIVATE int mesh_socket__is_in_place(const mesh_socket__direct *op) {
    int j;
    for (j = 0; j < op->group->n; j++)
        if (j != op->group->index && mesh_socket__needs(op, j) && !op->group->cell[j]->shown[op->number & 1].send)
            return 0;
    return op->shape != MESH_SOCKET__RANGE;
}

/* Copy this rank's part of the next chunks, `n` elements from `at`. */
MESH__PRIVATE int mesh_socket__copy_chunk(mesh_socket__impl *s, mesh_socket__direct *op, uint32_t c, size_t at,
                                          size_t n) {
    mesh_socket__handle *g = op->group;
    int k, one = op->kind == MESH_CALL_BROADCAST || op->kind == MESH_CALL_SCATTER;
    for (k = 0; k < g->n; k++) { /* each begins with another: they do not all read from one at once */
        int j = (g->index + k) % g->n, to = one ? 0 : j;
        if (!mesh_socket__needs(op, j)) continue;
        if (j == g->index)
            mesh_socket__copy_own(op, op->shape == MESH_SOCKET__BLOCKS ? j : 0, to, at, n);
        else if (!mesh_socket__copy_shown(s, op, j, c, to, at, n))
            return 0;
    }
    return 1;
}

/* Combine, or copy, this rank's part of the next chunk. Returns 0 where it cannot be read: who had it is gone, or may not be read any more. */
MESH__PRIVATE int mesh_socket__use_chunk(mesh_socket__impl *s, mesh_socket__direct *op) {
    size_t at, from, n = mesh_socket__chunk(op, op->used, &at), many;
    uint32_t c = op->used, next = c + 1;
    if (op->shape == MESH_SOCKET__RANGE) {
        unsigned char *out =
            op->recv_at || op->pushes ? NULL : op->stage + 2 * op->stage_bytes + ((op->first + c) & 1) * op->out_bytes;
        n = mesh_socket__slice(op, op->group->index, n, &from);
        mesh_socket__reduce_chunk(s, op, c, 0, at + from, n, out);
        op->used = next;
        return 1;
    }
    many = MESH_SOCKET__PULL_PIECE / (op->each * op->call.elem_bytes + 1);
    if (many > 1 && mesh_socket__is_in_place(op)) {
        if (many > op->chunks - c) many = op->chunks - c;
        next = c + (uint32_t)many;
        n = op->total - at < many * op->each ? op->total - at : many * op->each;
    }
    if (mesh__call_is(op->call.kind, MESH_REDUCES))
        mesh_socket__reduce_chunk(s, op, c, op->group->index, at, n, NULL);
    else if (!mesh_socket__copy_chunk(s, op, c, at, n))
        return 0;
    op->used = next;
    return 1;
}

/* Take the others' slices of the next chunk of a reduction. */
MESH__PRIVATE void mesh_socket__take_chunk(mesh_socket__impl *s, mesh_socket__direct *op) {
    size_t at, from, n = mesh_socket__chunk(op, op->taken, &at), part;
    int k, j;
    for (k = 1; k < op->group->n; k++) {
        j = (op->group->index + k) % op->group->n;
        part = mesh_socket__slice(op, j, n, &from);
        if (part)
            mesh_socket__flat(op, 1, 0, at + from, part,
                              (unsigned char *)(uintptr_t)mesh_socket__result_at(s, op, j, op->taken, at + from));
    }
    op->taken++;
}

/* All have come: where they all receive into shared memory, each writes its slice into all of it. */
MESH__PRIVATE void mesh_socket__settle_how(mesh_socket__direct *op) {
    const mesh_socket__handle *g = op->group;
    int j;
    op->settled = 1;
    op->streams = op->total * op->call.elem_bytes >= MESH_SOCKET__STREAMS;
    for (j = 0; j < g->n && op->kind == MESH_CALL_ALL_REDUCE && g->cell[j]->shown[op->number & 1].recv; j++) {}
    if (j < g->n) return;
    op->pushes = 1;
    op->taken = op->chunks;
}

/* Another's own memory was not to be read. If its process has ended, that is soon to be heard. */
MESH__RARE int mesh_socket__unreadable(mesh_socket__impl *s, mesh_socket__direct *op) {
    if (errno != ESRCH)
        mesh_socket__direct_fail(
            s, op, MESH_ERR_TRANSPORT, -1,
            "the memory of another rank on this host cannot be read any more (%s); run with MESH_SOCKET_LANES=unix",
            strerror(errno));
    return 0;
}

/* One move of a large operation, if one can be made: 1. */
MESH__PRIVATE int mesh_socket__large(mesh_socket__impl *s, mesh_socket__direct *op) {
    mesh_socket__cell *mine = op->group->cell[op->group->index];
    if (op->put < op->chunks && op->put <= op->used + 1 &&
        (op->put < 2 || mesh_socket__all_at(op, 1, op->first + op->put - 1))) {
        mesh_socket__put_chunk(op);
        MESH_SOCKET__SHOW(&mine->put, op->first + op->put);
        return 1;
    }
    if (op->used < op->chunks && mesh_socket__all_at(op, 0, op->first + op->used + 1) &&
        (op->shape != MESH_SOCKET__RANGE || op->pushes || op->used < 2 ||
         mesh_socket__all_at(op, 2, op->first + op->used - 1))) {
        if (!mesh_socket__use_chunk(s, op)) return mesh_socket__unreadable(s, op);
        MESH_SOCKET__SHOW(&mine->used, op->first + op->used);
        return 1;
    }
    if (op->taken < op->chunks && op->taken < op->used && mesh_socket__all_at(op, 1, op->first + op->taken + 1)) {
        mesh_socket__take_chunk(s, op);
        MESH_SOCKET__SHOW(&mine->taken, op->first + op->taken);
        return 1;
    }
    return 0;
}

/* Bring the first operation of a group forward. Returns 1 if something was done. */
MESH__PRIVATE int mesh_socket__direct_advance(mesh_socket__impl *s, mesh_socket__handle *g) {
    mesh_socket__direct *op = g->head;
    int j, met, moves;
    if (!op->began) {
        for (j = 0; (int32_t)(g->all_at - (op->number - 1)) < 0 && j < g->n; j++)
            if (j != g->index && !mesh_socket__has_arrived(s, g, j, op->number - 1)) return 0;
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
    if (!op->settled) mesh_socket__settle_how(op);
    for (moves = 0; moves < MESH_SOCKET__MOVES_AT_ONCE && mesh_socket__large(s, op); moves++) mesh_socket__tell(s, g);
    if (!op->ticket.left) return 1;
    if (op->put == op->chunks && op->used == op->chunks && op->taken == op->chunks &&
        mesh_socket__all_at(op, 1, op->first + op->chunks) &&
        (op->pushes || mesh_socket__all_at(op, 2, op->first + op->chunks))) {
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
    for (g = s->busy; g; g = next) {
        next = g->next;
        any |= mesh_socket__direct_advance(s, g);
    }
    if (any) s->event = 1;
    return any;
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
    case MESH_CALL_ALL_REDUCE:
    case MESH_CALL_REDUCE:
        return MESH_SOCKET__RANGE;
    case MESH_CALL_REDUCE_SCATTER:
    case MESH_CALL_ALL_TO_ALL:
    case MESH_CALL_SCATTER:
        return MESH_SOCKET__BLOCKS;
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
    op->shows = op->uses = op->takes = 1;
    if (op->kind == MESH_CALL_BROADCAST || op->kind == MESH_CALL_SCATTER) op->shows = root;
    if (op->kind == MESH_CALL_GATHER) op->uses = root;
    if (op->shape != MESH_SOCKET__RANGE) op->takes = 0;
    if (op->kind == MESH_CALL_REDUCE) op->takes = root;
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
    op->began = op->streams = op->own = op->settled = op->pushes = 0;
    op->put = op->used = op->taken = op->chunks = 0;
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
        if (s->crowded || !mesh_socket__is_small(op)) break;
    }
    return MESH_OK;
}

/* ---- // >>groups ---- */

/* Cells of closed groups whose members have all closed them too, or are gone, are memory again. */
MESH__PRIVATE void mesh_socket__sweep(mesh_socket__impl *s) {
    mesh_socket__handle **at = &s->closed, *g;
    int j;
    while ((g = *at) != NULL) {
        int left = 0;
        for (j = 0; j < g->n; j++) {
            uint64_t bit = (uint64_t)1 << g->sharer[j];
            if (!(g->waits_for & bit)) continue;
            if (s->peer[s->shared->rank[g->sharer[j]]].gone || !mesh_socket__has_open(s->shared, g->sharer[j], g->id))
                g->waits_for &= ~bit;
            else
                left = 1;
        }
        if (left) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        MESH_SOCKET__SHOW(&mesh_socket__my_entry(s->shared, g->id, g->id)->id, 0u);
        mesh_socket__heap_give(s, g->cell[g->index]);
        mesh_transport_free(&s->net->base, g);
    }
}

/* Have a cell in the group, if all its members share memory. */
MESH__PRIVATE mesh_status mesh_socket__direct_open(mesh_socket__impl *s, mesh_socket__handle *g, const mesh *m,
                                                   mesh_error *why) {
    mesh_socket__cell *cell;
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
    if (mesh_socket__list_cell(s->shared, g->id, (uint64_t)((unsigned char *)cell - s->shared->base))) return MESH_OK;
    mesh_socket__heap_give(s, cell);
    return mesh__fail(why, MESH_ERR_MEMORY, -1,
                      "mesh_socket: this rank has %d groups open on one host, and can have no more; close comms",
                      (int)MESH_SOCKET__LISTED);
}

/* Who still reads its cell may do so. Returns 1 where the handle lives until then. */
MESH__PRIVATE int mesh_socket__direct_close(mesh_socket__impl *s, mesh_socket__handle *g) {
    mesh_socket__listed *mine;
    int j;
    mesh_transport_free(&s->net->base, g->spare);
    if (!g->n) return 0;
    while (g->head) mesh_socket__direct_fail(s, g->head, MESH_ERR_CANCELED, -1, "the group was closed");
    mine = mesh_socket__my_entry(s->shared, g->id, g->id);
    MESH_SOCKET__SHOW(&mine->state, (uint32_t)MESH_SOCKET__IS_CLOSING);
    MESH_SOCKET__FENCE();
    for (j = 0; j < g->n; j++)
        if (j != g->index && mesh_socket__has_open(s->shared, g->sharer[j], g->id))
            g->waits_for |= (uint64_t)1 << g->sharer[j];
    mine->readers = g->waits_for;
    MESH_SOCKET__SHOW(&mine->state, (uint32_t)MESH_SOCKET__IS_CLOSED);
    g->next = s->closed;
    s->closed = g;
    mesh_socket__sweep(s);
    return 1;
}
#endif /* MESH_SOCKET_DIRECT_IMPLEMENTED */
