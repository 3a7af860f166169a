/* socket/lend.h - memory that others on the host may read: shared, or this process's own where the kernel allows it. Part of mesh.h 0.1.0. MIT licence.

   Includes shared.h. Knows no frame: where memory is, and bytes copied out of it, a piece at a time.

   A sender says where its message lies, and may do with it what it likes as soon as it has taken that back: so each loan has a number in the
   sender's place, and who has copied looks whether it still stands there. Only then what it copied is the message.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_LEND_IMPLEMENTED)
#define MESH_SOCKET_LEND_IMPLEMENTED
#include "shared.h"

#ifndef MESH_SOCKET_READV
#define MESH_SOCKET_READV 1 /* tests set 0, to have everything copied through shared memory */
#endif

enum {
    MESH_SOCKET__PULL_PIECE = 1 << 20, /* copied before others have their turn */
    MESH_SOCKET__PULL_RUNS = 64,       /* of one call of the kernel's */
    MESH_SOCKET__LOAN_WIRE = 36 + MESH_MAX_DIMS * 16,
    MESH_SOCKET__LEND = 16 * 1024,     /* from here on shared memory is lent, */
    MESH_SOCKET__LEND_OWN = 48 * 1024, /* a process's own, */
    MESH_SOCKET__LEND_RUN = 8192,    /* in runs of at least so much: two copies of shorter ones cost less than pages */
    MESH_SOCKET__STREAMS = 32 << 20, /* of a result that goes past the caches, */
    MESH_SOCKET__STREAM_RUN = 4096,  /* in runs of at least so much */
    MESH_SOCKET__AID_PIECE = 64 * 1024, /* that a sender copies at once of what is larger than PULL_PIECE, */
    MESH_SOCKET__AID_PIECES = 4,        /* and how many the receiver has yet to take; */
    MESH_SOCKET__AID_READS =
        4 /* how many the receiver reads first; then all of PULL_PIECE, if the sender is not seen to copy */
};

/* Where a message lies. */
typedef struct mesh_socket__loan {
    uint64_t at;      /* in the file, or an address in its process */
    uint32_t own;     /* 1: an address */
    uint32_t entry;   /* of the sender's `lent` */
    uint64_t id;      /* that has to stand there */
    mesh_block block; /* ndim 0: contiguous */
} mesh_socket__loan;

/* A message that is being copied. */
struct mesh_socket__pull {
    mesh_socket__pull *next;
    mesh_socket__xfer *to;
    mesh_socket__loan loan;
    mesh_xfer from;
    mesh__cursor src, dst;
    uint64_t send_id, left;
    mesh_socket__ring *aid;      /* where its sender learns how far it is; NULL: it is not told */
    uint32_t aid_turn, aid_took; /* its turn; pieces that came by the stage */
    uint64_t end;                /* they lie behind it */
};

MESH__PRIVATE void mesh_socket__loan_wire(mesh__wire *w, mesh_socket__loan *l) {
    uint32_t ndim = (uint32_t)l->block.ndim;
    int k;
    mesh__wire64(w, &l->at);
    mesh__wire32(w, &l->own);
    mesh__wire32(w, &l->entry);
    mesh__wire64(w, &l->id);
    mesh__wire32(w, &ndim);
    l->block.ndim = ndim <= MESH_MAX_DIMS ? (int)ndim : -1;
    mesh__wire64(w, &l->block.run);
    for (k = 0; k < l->block.ndim; k++) {
        mesh__wire_i64(w, &l->block.dim[k].count);
        mesh__wire_i64(w, &l->block.dim[k].stride);
    }
}

/* ---- // >>other processes ---- */

/* Copy out of another process. Returns bytes; -1: the kernel does not allow it, or the process is gone. */
MESH__PRIVATE int64_t mesh_socket__read_process(uint32_t process, const struct iovec *to, int nto,
                                                const struct iovec *from, int nfrom) {
#if MESH_SOCKET__LINUX && defined(SYS_process_vm_readv) && MESH_SOCKET_READV
    return (int64_t)syscall(SYS_process_vm_readv, (long)process, to, (long)nto, from, (long)nfrom, 0L);
#else
    (void)process, (void)to, (void)nto, (void)from, (void)nfrom;
    return -1;
#endif
}

/* One run of at most n bytes, as mesh_socket__read_process: where the kernel copies slowly, by way of the stack. */
MESH__PRIVATE int64_t mesh_socket__read_run(uint32_t process, void *to, uint64_t address, uint64_t n) {
    unsigned char way[16 * 1024 + 32];
    struct iovec into, from;
    uint64_t got = 0;
    from.iov_base = (void *)(uintptr_t)address;
    into.iov_base = way + (mesh__copies_slowly(way, from.iov_base, n) ? 32 : 0);
    if (!mesh__copies_slowly(to, from.iov_base, n)) {
        into.iov_base = to;
        into.iov_len = from.iov_len = (size_t)n;
        return mesh_socket__read_process(process, &into, 1, &from, 1);
    }
    while (got < n) {
        size_t piece = n - got < sizeof way - 32 ? (size_t)(n - got) : sizeof way - 32;
        int64_t now;
        from.iov_base = (void *)(uintptr_t)(address + got);
        into.iov_len = from.iov_len = piece;
        now = mesh_socket__read_process(process, &into, 1, &from, 1);
        if (now <= 0) return got ? (int64_t)got : now;
        mesh__copy_bytes((unsigned char *)to + got, into.iov_base, (size_t)now);
        got += (uint64_t)now;
    }
    return (int64_t)got;
}

/* Put into this rank's place what the others need to find out whether they can read its own memory, and whether those that sleep call. */
MESH__RARE void mesh_socket__introduce(mesh_socket__impl *s) {
    mesh_socket__shared *h = s->shared;
    mesh_socket__place *mine = mesh_socket__place_of(h, h->me);
    h->probe = mesh__mix(s->job, (uint64_t)(uintptr_t)h);
    mine->probe = h->probe;
    mine->probe_at = (uint64_t)(uintptr_t)&h->probe;
    mine->calls = (uint32_t)mesh_socket__membarrier(MESH_SOCKET__BARRIER_REGISTER);
}

/* Find out whose memory this rank can read, and tell. What each has in its place was put there before. */
MESH__RARE void mesh_socket__probe(mesh_socket__impl *s) {
    mesh_socket__shared *h = s->shared;
    mesh_socket__place *mine = mesh_socket__place_of(h, h->me);
    const mesh_socket__entry *book = s->book;
    uint64_t word, reads = 0;
    int i;
    for (i = 0; i < h->n; i++) {
        const mesh_socket__place *place = mesh_socket__place_of(h, i);
        const mesh_socket__entry *theirs = &book[h->rank[i]];
        struct iovec to, from;
        if (i == h->me || !theirs->process || theirs->process >> 32 != book[h->rank[h->me]].process >> 32) continue;
        word = 0;
        to.iov_base = &word;
        from.iov_base = (void *)(uintptr_t)place->probe_at;
        to.iov_len = from.iov_len = sizeof word;
        if (mesh_socket__read_process((uint32_t)theirs->process, &to, 1, &from, 1) == (int64_t)sizeof word &&
            word == place->probe)
            reads |= (uint64_t)1 << i;
    }
    MESH_SOCKET__SHOW(&mine->reads, reads);
}

/* ---- // >>lending ---- */

/* Can the rank with this index read where x lies? Then how. */
MESH__PRIVATE int mesh_socket__can_lend(mesh_socket__impl *s, int sharer, const mesh_xfer *x, mesh_socket__loan *l) {
    const mesh_socket__shared *h = s->shared;
    const mesh_block *b = x->block && x->block->ndim ? x->block : NULL;
    uint64_t span = x->nbytes;
    int k;
    if (b)
        for (k = 0, span = b->run; k < b->ndim; k++) span += (uint64_t)((b->dim[k].count - 1) * b->dim[k].stride);
    if (x->nbytes <= MESH_SOCKET__LEND) return 0;
    l->at = mesh_socket__shared_at(h, x->base, span);
    l->own = !l->at;
    if (l->own) {
        if (x->nbytes <= MESH_SOCKET__LEND_OWN || (b && b->run < MESH_SOCKET__LEND_RUN) ||
            !(MESH_SOCKET__SEE(&mesh_socket__place_of(h, sharer)->reads) >> h->me & 1))
            return 0;
        l->at = (uint64_t)(uintptr_t)x->base;
    }
    l->block.ndim = 0;
    l->block.run = x->nbytes;
    if (b) l->block = *b;
    return 1;
}

/* Write down a loan. Returns 0 where there are too many. */
MESH__PRIVATE int mesh_socket__loan_make(mesh_socket__impl *s, mesh_socket__xfer *x, mesh_socket__loan *l) {
    mesh_socket__place *mine = mesh_socket__place_of(s->shared, s->shared->me);
    uint32_t k;
    for (k = 0; k < MESH_SOCKET__LOANS && mine->lent[k]; k++) {}
    if (k == MESH_SOCKET__LOANS) return 0;
    l->entry = k;
    x->loan = 1 + (int)k;
    x->lent_at = l->own ? 0 : l->at;
    mesh_socket__hold(s->shared, x->lent_at);
    MESH_SOCKET__SHOW(&mine->lent[k], x->id);
    return 1;
}

/* It is over: what lies there is the program's again. */
MESH__PRIVATE void mesh_socket__loan_end(mesh_socket__impl *s, mesh_socket__xfer *x) {
    if (!x->loan) return;
    MESH_SOCKET__SHOW(&mesh_socket__place_of(s->shared, s->shared->me)->lent[x->loan - 1], (uint64_t)0);
    MESH_SOCKET__FENCE();
    mesh_socket__release_hold(s->shared, x->lent_at);
    x->loan = 0;
}

/* ---- // >>pulling ---- */

/* Is what was copied still lent? */
MESH__PRIVATE int mesh_socket__is_lent(const mesh_socket__impl *s, int rank, const mesh_socket__loan *l) {
    const mesh_socket__place *place = mesh_socket__place_of(s->shared, s->peer[rank].sharer - 1);
    MESH_SOCKET__WAS_READ();
    return l->entry < MESH_SOCKET__LOANS && MESH_SOCKET__SEE(&place->lent[l->entry]) == l->id;
}

/* Runs of a block from where a cursor stands, at most `room` and together `most` bytes. The cursor goes behind them. */
MESH__PRIVATE int mesh_socket__runs(mesh__cursor *c, uint64_t most, struct iovec *v, int room) {
    int n = 0;
    while (most && n < room) {
        uint64_t run = c->left < most ? c->left : most;
        v[n].iov_base = c->p;
        v[n++].iov_len = (size_t)run;
        most -= run;
        mesh__cursor_move(c, run);
    }
    return n;
}

/* The next piece out of another process. Returns bytes; -1: it cannot be had. */
MESH__PRIVATE int64_t mesh_socket__pull_own(mesh_socket__impl *s, mesh_socket__pull *q, uint64_t most) {
    struct iovec to[MESH_SOCKET__PULL_RUNS], from[MESH_SOCKET__PULL_RUNS];
    mesh__cursor src = q->src, dst = q->dst;
    uint32_t process = (uint32_t)s->book[q->to->x.rank].process;
    uint64_t first = src.left < dst.left ? src.left : dst.left;
    int64_t n, left;
    if (first > most) first = most;
    if (mesh__copies_slowly(dst.p, src.p, first)) {
        n = mesh_socket__read_run(process, dst.p, (uint64_t)(uintptr_t)src.p, first);
    } else {
        int nfrom = mesh_socket__runs(&src, most, from, MESH_SOCKET__PULL_RUNS),
            nto = mesh_socket__runs(&dst, most, to, MESH_SOCKET__PULL_RUNS);
        n = mesh_socket__read_process(process, to, nto, from, nfrom);
    }
    for (left = n; left > 0;) {
        uint64_t run = q->src.left < q->dst.left ? q->src.left : q->dst.left;
        if (run > (uint64_t)left) run = (uint64_t)left;
        mesh__cursor_move(&q->src, run);
        mesh__cursor_move(&q->dst, run);
        left -= (int64_t)run;
    }
    return n;
}

/* Bytes from one walk to another past the caches, where runs are long. */
MESH__PRIVATE void mesh_socket__stream(mesh__cursor *src, mesh__cursor *dst, uint64_t most) {
    while (most) {
        uint64_t run = src->left < dst->left ? src->left : dst->left;
        if (run > most) run = most;
        if (run >= MESH_SOCKET__STREAM_RUN)
            mesh__copy_stream(dst->p, src->p, (size_t)run);
        else
            mesh__copy_bytes(dst->p, src->p, (size_t)run);
        mesh__cursor_move(src, run);
        mesh__cursor_move(dst, run);
        most -= run;
    }
}

/* The next piece out of shared memory. */
MESH__PRIVATE void mesh_socket__pull_shared(mesh_socket__pull *q, uint64_t most) {
    if (q->from.nbytes < MESH_SOCKET__STREAMS)
        mesh__cursor_copy(&q->src, &q->dst, most);
    else
        mesh_socket__stream(&q->src, &q->dst, most);
}

/* ---- // >>aid: a receiver reads a large message from the front; its sender, as far as it has nothing else to do, copies pieces from the back to shared
   memory, where the receiver finds them. Only the receiver writes into its memory, and it waits for no piece: what is not there it reads itself. ---- */

/* Tell the sender of a message, if it is not told of another of its own by now. Returns 0 where this one has to wait for that. */
MESH__PRIVATE int mesh_socket__aid_ask(mesh_socket__impl *s, mesh_socket__pull *q) {
    mesh_socket__peer *p = &s->peer[q->to->x.rank];
    mesh_socket__ring *r;
    if (q->aid || !q->loan.own || q->from.nbytes <= MESH_SOCKET__PULL_PIECE) return 1;
    if (p->aided) return 0;
    r = mesh_socket__ring_of(s->shared, p->sharer - 1, s->shared->me);
    p->aided = q;
    q->aid = r;
    q->aid_turn = ++p->aided_turn;
    q->end = q->left;
    MESH_SOCKET__SHOW(&r->first, 0u);
    MESH_SOCKET__SHOW(&r->taken, 0u);
    MESH_SOCKET__SHOW(&r->message, q->loan.id);
    MESH_SOCKET__SHOW(&r->turn, q->aid_turn);
    return 1;
}

/* It is copied, or given up. */
MESH__PRIVATE void mesh_socket__aid_end(mesh_socket__impl *s, mesh_socket__pull *q) {
    if (!q->aid) return;
    MESH_SOCKET__SHOW(&q->aid->message, (uint64_t)0);
    s->peer[q->to->x.rank].aided = NULL;
}

/* The last piece, out of the stage. Returns 0 where it is not there. */
MESH__PRIVATE int mesh_socket__pull_staged(mesh_socket__impl *s, mesh_socket__pull *q) {
    mesh_socket__ring *r = q->aid;
    uint64_t staged = MESH_SOCKET__SEE(&r->staged), n;
    uint64_t at = (q->end - 1) / MESH_SOCKET__AID_PIECE * MESH_SOCKET__AID_PIECE;
    mesh_xfer flat;
    mesh__cursor src, dst;
    if (staged >> 32 != q->aid_turn || (uint32_t)staged == q->aid_took || at < q->end - q->left) return 0;
    memset(&flat, 0, sizeof flat);
    flat.base = mesh_socket__told_memory(s->shared, s->peer[q->to->x.rank].sharer - 1, MESH_SOCKET__SEE(&r->stage),
                                         MESH_SOCKET__AID_PIECES * MESH_SOCKET__AID_PIECE);
    if (!flat.base) return 0; /* overwritten there: see mesh_socket__told_well */
    flat.base = (unsigned char *)flat.base + q->aid_took % MESH_SOCKET__AID_PIECES * MESH_SOCKET__AID_PIECE;
    flat.nbytes = n = q->end - at;
    src = mesh__cursor_on(&flat);
    dst = mesh__cursor_at(&q->to->x, at);
    if (q->to->x.block && q->to->x.block->run < MESH_SOCKET__STREAM_RUN)
        mesh__cursor_copy(&src, &dst, n);
    else
        mesh_socket__stream(&src, &dst, n);
    q->end = at;
    q->left -= n;
    MESH_SOCKET__SHOW(&r->taken, ++q->aid_took);
    return 1;
}

/* How many bytes to read next, at most so many: up to a piece's end. The sender leaves them out. */
MESH__PRIVATE uint64_t mesh_socket__aid_next(const mesh_socket__pull *q, uint64_t most) {
    mesh_socket__ring *r = q->aid;
    uint64_t at = q->end - q->left, first = at / MESH_SOCKET__AID_PIECE;
    if (MESH_SOCKET__SEE(&r->staged) >> 32 == q->aid_turn)
        first++;
    else
        first += at ? MESH_SOCKET__PULL_PIECE / MESH_SOCKET__AID_PIECE : MESH_SOCKET__AID_READS;
    if (most > first * MESH_SOCKET__AID_PIECE - at) most = first * MESH_SOCKET__AID_PIECE - at;
    MESH_SOCKET__SHOW(&r->first, (uint32_t)((at + most + MESH_SOCKET__AID_PIECE - 1) / MESH_SOCKET__AID_PIECE));
    return most;
}

/* As much of a message as is copied before others have their turn, with its sender. Returns 0 where the memory cannot be read. */
MESH__PRIVATE int mesh_socket__pull_aided(mesh_socket__impl *s, mesh_socket__pull *q) {
    uint64_t least = q->left < MESH_SOCKET__PULL_PIECE ? 0 : q->left - MESH_SOCKET__PULL_PIECE;
    while (q->left > least) {
        int64_t n;
        if (mesh_socket__pull_staged(s, q)) continue;
        n = mesh_socket__pull_own(s, q, mesh_socket__aid_next(q, q->left - least));
        if (n <= 0) return 0;
        q->left -= (uint64_t)n;
    }
    return 1;
}

/* Copy the last piece that is neither here nor there of what a rank is receiving. Returns 0 where there is none, or no room for it. */
MESH__PRIVATE int mesh_socket__aid_piece(mesh_socket__impl *s, int sharer) {
    mesh_socket__shared *h = s->shared;
    mesh_socket__peer *p = &s->peer[h->rank[sharer]];
    mesh_socket__ring *r = mesh_socket__ring_of(h, h->me, sharer);
    uint32_t turn = MESH_SOCKET__SEE(&r->turn);
    uint64_t id = MESH_SOCKET__SEE(&r->message), stage = MESH_SOCKET__AID_PIECES * MESH_SOCKET__AID_PIECE, at, n;
    const mesh_socket__xfer *x = id ? mesh_socket__id_find(s, id, h->rank[sharer], MESH_SEND) : NULL;
    if (!x || !x->loan || x->lent_at) return 0;
    if (turn != p->aid_turn) p->aid_turn = turn, p->aid_pieces = 0;
    n = x->x.nbytes;
    at = (n + MESH_SOCKET__AID_PIECE - 1) / MESH_SOCKET__AID_PIECE; /* pieces */
    if (p->aid_pieces - MESH_SOCKET__SEE(&r->taken) >= MESH_SOCKET__AID_PIECES ||
        p->aid_pieces + (uint64_t)MESH_SOCKET__SEE(&r->first) >= at)
        return 0;
    if (!p->aid_stage) {
        if (!mesh_socket__spares(h, stage) || !(p->aid_stage = mesh_socket__heap_take(s, stage))) return 0;
        MESH_SOCKET__SHOW(&r->stage, (uint64_t)(p->aid_stage - h->base));
    }
    at = (at - 1 - p->aid_pieces) * MESH_SOCKET__AID_PIECE;
    n = n - at < MESH_SOCKET__AID_PIECE ? n - at : (uint64_t)MESH_SOCKET__AID_PIECE;
    mesh__pack(&x->x, at, p->aid_stage + p->aid_pieces % MESH_SOCKET__AID_PIECES * MESH_SOCKET__AID_PIECE, (size_t)n);
    p->aid_pieces++;
    MESH_SOCKET__SHOW(&r->staged, (uint64_t)turn << 32 | p->aid_pieces);
    return 1;
}

/* This rank's thread waits, and has a core: a piece of what another one copies out of its memory. */
MESH__PRIVATE void mesh_socket__aid(mesh_socket__impl *s) {
    mesh_transport *t = &s->net->base;
    int i;
    if (s->crowded || s->on_one_core > 0) return;
    if (s->helper && MESH__LOAD(&t->inside.thread) == MESH__LOAD(&t->inside.helper)) return;
    for (i = 0; i < s->shared->n && !s->event; i++) {
        if (!(s->aids >> i & 1)) continue;
        if (!s->peer[s->shared->rank[i]].offered.head)
            s->aids &= ~((uint64_t)1 << i);
        else if (mesh_socket__aid_piece(s, i))
            s->event = 1;
    }
}

/* ---- // >>one piece after the other ---- */

/* Copy a piece. Returns 0 where the memory cannot be read. */
MESH__PRIVATE int mesh_socket__pull_some(mesh_socket__impl *s, mesh_socket__pull *q) {
    uint64_t most = q->left < MESH_SOCKET__PULL_PIECE ? q->left : (uint64_t)MESH_SOCKET__PULL_PIECE;
    if (q->aid) return mesh_socket__pull_aided(s, q);
    if (q->loan.own) {
        int64_t n = mesh_socket__pull_own(s, q, most);
        if (n <= 0) return 0;
        q->left -= (uint64_t)n;
    } else {
        mesh_socket__pull_shared(q, most);
        q->left -= most;
    }
    return 1;
}

/* Does a loan describe nbytes, in memory that can be had from this rank? */
MESH__PRIVATE int mesh_socket__loan_valid(const mesh_socket__impl *s, int rank, const mesh_socket__loan *l,
                                          uint64_t nbytes) {
    const mesh_block *b = &l->block;
    uint64_t span = b->run, most = UINT64_C(1) << 62, more;
    int k;
    if (!s->shared || !s->peer[rank].sharer || b->ndim < 0 || !b->run || !mesh_block_fits(b, nbytes)) return 0;
    for (k = 0; k < b->ndim; k++) {
        if (b->dim[k].count < 1 ||
            (b->dim[k].stride && (uint64_t)(b->dim[k].count - 1) > most / (uint64_t)b->dim[k].stride))
            return 0;
        more = (uint64_t)(b->dim[k].count - 1) * (uint64_t)b->dim[k].stride;
        if (span > most - more) return 0;
        span += more;
    }
    return l->own || mesh_socket__told_memory(s->shared, s->peer[rank].sharer - 1, l->at, span) != NULL;
}
#endif /* MESH_SOCKET_LEND_IMPLEMENTED */
