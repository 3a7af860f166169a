/* socket/cells.h - what the members of a group show each other in shared memory, and where an operation's elements lie. Part of mesh.h 0.1.0. MIT licence.

   Includes loop.h. Knows no frame.

   Each member of a group has a cell, which it alone writes (but for `rest`) and the others read. The operations of a group run one after the
   other, with a number; each begins with `arrived`, the even or the odd one, becoming that number. A rank that begins one has read all it needs of the one before, so what it has
   shown for operation k may be written over once everybody has arrived at k + 1: two of everything will do.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_CELLS_IMPLEMENTED)
#define MESH_SOCKET_CELLS_IMPLEMENTED
#include "loop.h"

enum {
    MESH_SOCKET__SLOT = 4096,        /* bytes of a small message */
    MESH_SOCKET__FEW_BYTES = 24,     /* of one that travels beside its flag */
    MESH_SOCKET__MEDIUM = 64 * 1024, /* of one that is shown at once, without a stage */
    MESH_SOCKET__STAGE = 256 * 1024, /* of a chunk, as far as elements allow */
    MESH_SOCKET__STAGES = 4
};

enum { MESH_SOCKET__OWN_SEND = 1, MESH_SOCKET__OWN_RECV = 2 };

/* What a rank shows of an operation, for even and odd numbers: one line of the cache, so that who waits for it has it when it has come. Offsets are in the
   file; 0: none. own: which of them are addresses in its process. */
typedef struct mesh_socket__shown {
    uint32_t arrived, own;
    uint64_t check, send, recv, stage;
    unsigned char few[MESH_SOCKET__FEW_BYTES];
} mesh_socket__shown;

/* Chunks that a receiver takes from the front and its source from the back. left: the first that nobody has taken, 32 bits, and the one behind the last;
   0 of what has ended. done: how many the source has copied. */
typedef struct mesh_socket__rest {
    mesh_socket__word left, done;
} mesh_socket__rest;

typedef struct mesh_socket__cell {
    uint32_t id;        /* of the group */
    uint32_t withdrawn; /* the operation that it has given up; 0: none */
    uint32_t put, used; /* chunks, of all operations */
    unsigned char apart[48];
    mesh_socket__rest rest[2];
    unsigned char apart_too[32];
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
    unsigned char *slots;             /* for messages of medium size, of even and odd numbers; NULL: none yet */
    struct mesh_socket__handle *next; /* among those with operations, or those that are closed */
} mesh_socket__handle;

/* How the elements of an operation lie. BLOCKS: a rank has a block for each. OWN: one block. */
enum { MESH_SOCKET__BLOCKS, MESH_SOCKET__OWN };

struct mesh_socket__direct {
    mesh_socket__ticket ticket; /* first: with no message of its own */
    mesh_socket__handle *group;
    mesh_call call;
    mesh_socket__direct *next;
    int began, kind, shape; /* kind: of the single form */
    int shows, uses;        /* does this rank? */
    int sliced;             /* an all_reduce: blocks are slices of one array, the last ones shorter */
    int part;               /* of a sliced one: 0 each combines its slice, 1 all copy the others' */
    int streams, settled, told,
        pushes; /* stores go past the caches; how it goes is known; results are written to all members */
    int medium; /* it is shown at once */
    int own;    /* as in what is shown */
    int helped; /* its source copies some of it */
    int helps;  /* the last member that this rank has helped */
    uint32_t number;
    uint64_t check;
    size_t total, length, each; /* elements: of a block (of all where it is sliced); of a block; of a chunk of one */
    uint32_t base, chunks, put, used;    /* base: the group's chunks before */
    uint64_t send_at, recv_at, stage_at; /* as in what is shown */
    uint64_t recv_bytes;                 /* of what others may write to, behind recv_at */
    unsigned char *stage;
    size_t stage_bytes; /* of one of its chunks */
};

MESH__PRIVATE mesh_socket__direct *mesh_socket__direct_of(const mesh_ticket *ticket) {
    mesh_socket__ticket *k = (mesh_socket__ticket *)ticket->impl;
    return k->direct ? (mesh_socket__direct *)(void *)k : NULL;
}

MESH__RARE void mesh_socket__direct_fail(mesh_socket__impl *s, mesh_socket__direct *op, mesh_status status, int rank,
                                         const char *format, ...); /* direct.h */

/* ---- // >>where elements lie ---- */

/* The elements from `at` of block `block` of what this rank sends or receives, and how many follow each other from there. */
MESH__PRIVATE unsigned char *mesh_socket__elements(const mesh_socket__direct *op, int receives, int block, size_t at,
                                                   size_t *run) {
    const mesh_call *c = &op->call;
    size_t elem = c->elem_bytes;
    int i = 0;
    unsigned char *p;
    if (op->sliced) at += (size_t)block * op->length, block = 0;
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

enum { MESH_SOCKET__FROM_SEND, MESH_SOCKET__FROM_RECV, MESH_SOCKET__TO_RECV };

/* n elements of what this rank sends or receives to flat memory, or from there to what it receives. */
MESH__PRIVATE void mesh_socket__flat(const mesh_socket__direct *op, int way, int block, size_t at, size_t n,
                                     unsigned char *flat) {
    size_t run, elem = op->call.elem_bytes;
    for (; n; n -= run, at += run, flat += run * elem) {
        unsigned char *p = mesh_socket__elements(op, way != MESH_SOCKET__FROM_SEND, block, at, &run);
        if (run > n) run = n;
        if (way != MESH_SOCKET__TO_RECV)
            mesh__copy_bytes(flat, p, run * elem);
        else if (op->streams && run * elem >= MESH_SOCKET__PAGE)
            mesh__copy_stream(p, flat, run * elem);
        else if (p != flat)
            mesh__copy_bytes(p, flat, run * elem);
    }
}

/* Every one of ndst = src[0] op src[1] op ..., in this order, count elements. */
MESH__PRIVATE void mesh_socket__combine(mesh_socket__impl *s, const mesh_socket__direct *op, void *const *dst, int ndst,
                                        const void *const *src, size_t count, int streams) {
    s->net->base.inside.combining = op->call.user_op != NULL;
    mesh__reduce_many(&op->call, dst, ndst, src, op->group->n, count, op->call.elem_bytes, streams);
    s->net->base.inside.combining = 0;
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

/* Has member j arrived at operation k? This rank has begun k or is about to, so no other is beyond k + 1. */
MESH__INLINE int mesh_socket__has_arrived(mesh_socket__impl *s, mesh_socket__handle *g, int j, uint32_t k) {
    mesh_socket__cell *cell = g->cell[j] ? g->cell[j] : mesh_socket__cell_of(s, g, j);
    return cell && (int32_t)(MESH_SOCKET__SEE(&cell->shown[k & 1].arrived) - k) >= 0;
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

enum { MESH_SOCKET__ALL_PUT, MESH_SOCKET__ALL_USED };

/* That counter of chunks of all others that it has to do with is at `least` or beyond. */
MESH__PRIVATE int mesh_socket__all_at(const mesh_socket__direct *op, int which, uint32_t least) {
    const mesh_socket__handle *g = op->group;
    int j;
    for (j = 0; j < g->n; j++) {
        mesh_socket__cell *cell = g->cell[j];
        uint32_t at;
        if (j == g->index || !mesh_socket__relates(op, j)) continue;
        at = which == MESH_SOCKET__ALL_PUT ? MESH_SOCKET__SEE(&cell->put) : MESH_SOCKET__SEE(&cell->used);
        if ((int32_t)(at - least) < 0) return 0;
    }
    return 1;
}

/* Who sleeps until this rank has shown something is woken. */
MESH__PRIVATE void mesh_socket__tell(mesh_socket__impl *s, const mesh_socket__handle *g) {
    int j;
    mesh_socket__written(s->shared);
    for (j = 0; j < g->n; j++) {
        if (j == g->index) continue;
        if (MESH_SOCKET__SEE(&mesh_socket__place_of(s->shared, g->sharer[j])->asleep))
            mesh_socket__bell(s, s->shared->rank[g->sharer[j]]);
    }
}

/* ---- // >>stages ---- */

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

#endif /* MESH_SOCKET_CELLS_IMPLEMENTED */
