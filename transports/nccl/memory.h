/* nccl/memory.h - memory of the device; sends and receives as one NCCL group. Part of mesh.h 0.1.0. MIT licence.

   Includes calls.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_NCCL_MEMORY_IMPLEMENTED)
#define MESH_NCCL_MEMORY_IMPLEMENTED
#include "calls.h"

/* ---- // >>memory ---- */

/* The memory that these bytes lie in. */
MESH__PRIVATE mesh_nccl__memory *mesh_nccl__memory_of(mesh_nccl__state *s, const void *p, uint64_t nbytes) {
    mesh_nccl__memory *m = s->memory;
    uintptr_t at = (uintptr_t)p;
    while (m &&
           (at < (uintptr_t)m->p || at - (uintptr_t)m->p > m->nbytes || nbytes > m->nbytes - (at - (uintptr_t)m->p)))
        m = m->next;
    return m;
}

MESH__PRIVATE int mesh_nccl__withdraw(mesh_nccl__state *s, mesh_nccl__registration *r);

/* Returns how much. 0: a communicator that is being aborted, in its own time, holds it: it goes when the pool is trimmed after that. */
MESH__PRIVATE size_t mesh_nccl__memory_free(mesh_nccl__state *s, mesh_nccl__memory *m) {
    mesh_nccl__memory **at = &s->memory;
    mesh_nccl__registration *r;
    size_t nbytes = m->nbytes;
    int held = 0;
    for (r = s->registration; r; r = r->next)
        if (r->memory == m) held |= !mesh_nccl__withdraw(s, r);
    m->used = 0;
    if (held) return 0;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    if (m->paged)
        s->api.ncclMemFree(m->p);
    else
        s->api.cudaFree(m->p);
    mesh_transport_free(s->boot, m);
    return nbytes;
}

/* Free what the pool keeps, and what was held: it waits for the device. Returns how much. */
MESH__PRIVATE size_t mesh_nccl__pool_trim(mesh_nccl__state *s) {
    mesh_nccl__memory *m = s->memory, *next;
    size_t freed = 0;
    for (; m; m = next) {
        next = m->next;
        if (!m->used) freed += mesh_nccl__memory_free(s, m);
    }
    return freed;
}

/* paged: where it is worth it NCCL's pages, which peers can be shown; they are of 2 MiB. Else CUDA's. */
MESH__PRIVATE mesh_nccl__memory *mesh_nccl__memory_new(mesh_nccl__state *s, size_t nbytes, int paged) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    mesh_nccl__memory *m = (mesh_nccl__memory *)mesh_transport_alloc(s->boot, sizeof *m);
    int again;
    if (!m) return NULL;
    memset(m, 0, sizeof *m);
    m->nbytes = nbytes;
    m->used = 1;
    mesh_nccl__use_device(s);
    mesh_nccl__capture_mode(s, &mode);
    for (again = 0; again < 2 && !m->p; again++) {
        if (again && !mesh_nccl__pool_trim(s)) break;
        m->paged = paged && nbytes >= MESH_NCCL__PAGED && s->api.ncclMemAlloc && s->api.ncclMemFree &&
                   s->api.ncclMemAlloc(&m->p, nbytes) == ncclSuccess;
        if (!m->paged && s->api.cudaMalloc(&m->p, nbytes) != cudaSuccess) {
            m->p = NULL;
            s->api.cudaGetLastError();
        }
    }
    mesh_nccl__capture_mode(s, &mode);
    if (!m->p) {
        mesh_transport_free(s->boot, m);
        return NULL;
    }
    m->next = s->memory;
    s->memory = m;
    return m;
}

/* The engine's scratch: the smallest that is free and large enough, but not wastefully so. */
MESH__PRIVATE mesh_nccl__memory *mesh_nccl__pool_take(mesh_nccl__state *s, size_t nbytes) {
    mesh_nccl__memory *m, *best = NULL;
    size_t room = 512;
    while (room < nbytes && room < SIZE_MAX / 2) room *= 2;
    for (m = s->memory; m; m = m->next)
        if (m->pooled && !m->used && m->nbytes >= nbytes && m->nbytes <= 2 * room &&
            (!best || m->nbytes < best->nbytes))
            best = m;
    if (!best && (best = mesh_nccl__memory_new(s, room < nbytes ? nbytes : room, 0)) == NULL)
        best = mesh_nccl__memory_new(s, nbytes, 0);
    if (best) best->pooled = best->used = 1;
    return best;
}

MESH__PRIVATE mesh_status mesh_nccl__alloc(mesh_transport *t, uint64_t nbytes, unsigned flags, void **out) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__memory *m = NULL;
    if (nbytes <= SIZE_MAX)
        m = flags & MESH_ALLOC_BUFFER ? mesh_nccl__memory_new(s, (size_t)nbytes, 1)
                                      : mesh_nccl__pool_take(s, (size_t)nbytes);
    *out = m ? m->p : NULL;
    return m ? MESH_OK : MESH_ERR_MEMORY;
}

MESH__PRIVATE mesh_status mesh_nccl__free(mesh_transport *t, void *p) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    mesh_nccl__memory *m = s->memory;
    while (m && m->p != p) m = m->next; /* the end of another may be there too */
    if (!m) return MESH_ERR_ARGUMENT;
    if (m->pooled) {
        m->used = 0;
        return MESH_OK;
    }
    mesh_nccl__capture_mode(s, &mode);
    mesh_nccl__memory_free(s, m);
    mesh_nccl__capture_mode(s, &mode);
    return MESH_OK;
}

/* ---- registration: by every rank of a communicator, or by none. What NCCL does with memory that is registered on some ranks of an operation only
   is undefined, sends and receives included: its collectives may wait for the others on the host, where no abort reaches. So nothing that one rank
   uses by its own choice is registered, the staging for one. */

/* A rank withdraws its part by itself, with nothing under way in it: a window's end waits for the device, ncclCommDeregister does not. The handle stays
   until it is given back. Returns 0 while a communicator that has ended holds it, until it has been aborted. */
MESH__PRIVATE int mesh_nccl__withdraw(mesh_nccl__state *s, mesh_nccl__registration *r) {
    mesh__record none = mesh_nccl__no_record(0);
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int held = r->window || r->handle;
    if (held && mesh_nccl__enter(s, r->c, &none, mesh_nccl__now(s) + INT64_C(10000000000))) {
        mesh_nccl__capture_mode(s, &mode);
        if (r->window) s->api.ncclCommWindowDeregister(r->comm, r->window);
        if (r->handle) s->api.ncclCommDeregister(r->comm, r->handle);
        mesh_nccl__capture_mode(s, &mode);
        mesh_nccl__leave(s, r->c);
        held = 0;
    }
    pthread_mutex_lock(&s->lock);
    held = held && mesh_nccl__stopping(s, r->c);
    pthread_mutex_unlock(&s->lock);
    if (held) return 0;
    r->window = NULL;
    r->handle = NULL;
    r->memory = NULL;
    return 1;
}

/* Do all ranks of a communicator say yes? */
MESH__PRIVATE int mesh_nccl__all(mesh_nccl__state *s, const mesh_nccl__group *g, int yes, int64_t deadline,
                                 mesh_nccl__vote *vote) {
    memset(vote, 0, sizeof *vote);
    vote->serial = (uint64_t)yes;
    mesh_nccl__agree(s, g->c->rank, g->c->size, g->id, 0, 1, vote, deadline);
    return vote->status == MESH_OK && vote->action == MESH_NCCL__KEEP;
}

/* In a window if all ranks can, else as NCCL did before 2.27 if all can do that, else not at all. */
MESH__PRIVATE mesh_status mesh_nccl__memory_register(mesh_transport *t, void *group, void *p, uint64_t nbytes,
                                                     int64_t deadline, void **handle, mesh_error *why) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh_nccl__registration *reg = (mesh_nccl__registration *)mesh_transport_alloc(s->boot, sizeof *reg);
    mesh__record none = mesh_nccl__no_record(0);
    mesh_nccl__vote vote;
    ncclResult_t r = ncclSuccess;
    int can = 0, done = 0, failed;
    *handle = NULL;
    memset(&vote, 0, sizeof vote);
    if (reg) {
        memset(reg, 0, sizeof *reg);
        reg->c = g->c;
        reg->memory = mesh_nccl__memory_of(s, p, nbytes);
        can = s->api.ncclCommRegister && s->api.ncclCommDeregister;
        if (s->api.ncclCommWindowRegister && s->api.ncclCommWindowDeregister && reg->memory && reg->memory->paged &&
            (uintptr_t)p % 4096 == 0) /* NCCL_WIN_REQUIRED_ALIGNMENT */
            can = 2;
    }
    if (g->c->size > 1 && mesh_nccl__all(s, g, can, deadline, &vote) && mesh_nccl__enter(s, g->c, &none, deadline)) {
        pthread_mutex_lock(&s->lock);
        reg->comm = g->c->comm;
        pthread_mutex_unlock(&s->lock);
        if (can == 2) /* collective; no window where there is no symmetric memory, which is so on all ranks */
            r = s->api.ncclCommWindowRegister(reg->comm, p, (size_t)nbytes, &reg->window, MESH_NCCL__SYMMETRIC);
        mesh_nccl__said(s, "ncclCommWindowRegister", r);
        if (r == ncclSuccess && !reg->window) r = s->api.ncclCommRegister(reg->comm, p, (size_t)nbytes, &reg->handle);
        done = r == ncclSuccess && (reg->window || reg->handle);
        failed = s->trouble.status != MESH_OK && !mesh_nccl__has_ended(s, g->c);
        if (failed) vote.status = (mesh_status)s->trouble.status, vote.why = s->trouble;
        mesh_nccl__leave(s, g->c);
        /* The others may be in NCCL still, and have no vote: the caller tells them. */
        if (!failed && !mesh_nccl__all(s, g, done, deadline, &vote)) mesh_nccl__withdraw(s, reg);
    }
    if (reg && (reg->window || reg->handle)) { /* without a vote for it: a communicator that has ended holds it */
        reg->next = s->registration;
        s->registration = reg;
        if (vote.status == MESH_OK && vote.action == MESH_NCCL__KEEP) *handle = reg;
    } else {
        mesh_transport_free(s->boot, reg);
    }
    if (vote.status == MESH_OK) vote.status = mesh_nccl__told(s, g->c, &vote.why); /* one that had ended before, too */
    if (vote.status != MESH_OK) *why = vote.why;
    return vote.status;
}

MESH__PRIVATE mesh_status mesh_nccl__memory_unregister(mesh_transport *t, void *group, void *handle) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__registration **at = &s->registration, *reg;
    (void)group;
    while (*at && *at != (mesh_nccl__registration *)handle) at = &(*at)->next;
    if (!(reg = *at)) return MESH_ERR_ARGUMENT;
    if (!mesh_nccl__withdraw(s, reg)) return MESH_OK; /* the memory's end asks again */
    *at = reg->next;
    mesh_transport_free(s->boot, reg);
    return MESH_OK;
}

/* ---- // >>posts: sends and receives as one NCCL group ---- */

/* Device memory for the strided messages of a post. Posts of a communicator come one after another on the device, and share it; a graph keeps its own.
   What was too small stays until the end: freeing waits for the device. It is not registered: the other end's memory may not be. */
MESH__PRIVATE unsigned char *mesh_nccl__staging(mesh_nccl__state *s, mesh_nccl__comm *c, size_t nbytes) {
    mesh_nccl__memory *m;
    if (c->capturing) return (m = mesh_nccl__memory_new(s, nbytes, 1)) != NULL ? (unsigned char *)m->p : NULL;
    if (c->staging && nbytes <= c->staging->nbytes) return (unsigned char *)c->staging->p;
    if (nbytes < MESH_NCCL__PAGED) nbytes = MESH_NCCL__PAGED;
    if (c->staging && nbytes < 2 * c->staging->nbytes) nbytes = 2 * c->staging->nbytes;
    if (!(m = mesh_nccl__memory_new(s, nbytes, 1))) return NULL;
    c->staging = m;
    return (unsigned char *)m->p;
}

MESH__PRIVATE void mesh_nccl__batch_launch(mesh_nccl__state *s, mesh_nccl__comm *c, const char *what) {
    uint64_t chunks = mesh__batch_end(&s->batch);
    int kernel = mesh__batch_few(&s->batch) ? (int)MESH_NCCL__mesh_move_few : (int)MESH_NCCL__mesh_move_many;
    if (chunks) mesh_nccl__put(s, what, mesh_nccl__launch_on(s, c->on, kernel, s->batch.word, chunks));
    mesh__batch_begin(&s->batch, MESH__BATCH_MANY);
}

/* Copy the strided messages of one direction between their arrays and the staging: by one kernel, but for those that a copy takes better. */
MESH__PRIVATE void mesh_nccl__pack(mesh_nccl__state *s, mesh_nccl__comm *c, const mesh_post *p, unsigned char *staging,
                                   int direction) {
    const char *what = direction == MESH_SEND ? "packing" : "unpacking";
    mesh__kernel_args args;
    size_t at = 0;
    int i;
    mesh__batch_begin(&s->batch, MESH__BATCH_MANY);
    for (i = 0; i < p->count && s->trouble.status == MESH_OK; i++) {
        const mesh_xfer *x = &p->xfer[i];
        unsigned char *here = staging + at;
        void *dst = direction == MESH_SEND ? (void *)here : x->base;
        const void *src = direction == MESH_SEND ? x->base : (const void *)here;
        if (!mesh__is_strided(x)) continue;
        at += ((size_t)x->nbytes + 255) & ~(size_t)255;
        if (x->direction != direction) continue;
        if (mesh_nccl__by_copy(s, mesh_nccl__unit(mesh_nccl__bits(x->base, x->block) | x->nbytes), x->block->run,
                               x->block, NULL)) {
            const mesh_block *to = direction == MESH_SEND ? NULL : x->block, *from = to ? NULL : x->block;
            mesh_nccl__put(s, what, mesh_nccl__move(s, c, dst, to, src, from, x->nbytes));
            continue;
        }
        memset(&args, 0, sizeof args);
        args.dst = (uint64_t)(uintptr_t)dst;
        args.src = (uint64_t)(uintptr_t)src;
        args.count = x->nbytes;
        mesh_nccl__kernel_block(direction == MESH_SEND ? &args.from : &args.to,
                                direction == MESH_SEND ? &args.from_ndim : &args.to_ndim, x->block, 1);
        if (mesh__batch_add(&s->batch, &args)) continue;
        mesh_nccl__batch_launch(s, c, what);
        mesh__batch_add(&s->batch, &args);
    }
    if (s->has_kernels && s->trouble.status == MESH_OK) mesh_nccl__batch_launch(s, c, what);
}

/* The messages of a post, inside: strided ones are packed before and unpacked after. */
MESH__PRIVATE void mesh_nccl__exchange(mesh_nccl__state *s, mesh_nccl__comm *c, ncclComm_t comm, const mesh_post *p) {
    size_t total = 0, at;
    unsigned char *staging = NULL;
    ncclResult_t r = ncclSuccess, end;
    int i, some = 0;
    for (i = 0; i < p->count; i++) {
        some |= p->xfer[i].nbytes > 0;
        if (mesh__is_strided(&p->xfer[i])) total += ((size_t)p->xfer[i].nbytes + 255) & ~(size_t)255;
    }
    if (!some) return;
    if (total && !(staging = mesh_nccl__staging(s, c, total))) {
        mesh__fail(&s->trouble, MESH_ERR_MEMORY, s->boot->rank, "no device memory for %u bytes of strided messages",
                   (uint64_t)total);
        return;
    }
    if (total) mesh_nccl__pack(s, c, p, staging, MESH_SEND);
    if (s->trouble.status != MESH_OK) return;
    r = s->api.ncclGroupStart();
    for (i = 0, at = 0; i < p->count && r == ncclSuccess; i++) {
        const mesh_xfer *x = &p->xfer[i];
        void *base = mesh__is_strided(x) ? (void *)(staging + at) : x->base;
        if (mesh__is_strided(x)) at += ((size_t)x->nbytes + 255) & ~(size_t)255;
        if (!x->nbytes) continue;
        r = x->direction == MESH_SEND ? s->api.ncclSend(base, (size_t)x->nbytes, ncclUint8, x->index, comm, c->on)
                                      : s->api.ncclRecv(base, (size_t)x->nbytes, ncclUint8, x->index, comm, c->on);
    }
    end = s->api.ncclGroupEnd();
    mesh_nccl__said(s, "sends and receives", r != ncclSuccess ? r : end);
    if (total) mesh_nccl__pack(s, c, p, staging, MESH_RECV);
}

MESH__PRIVATE mesh_status mesh_nccl__post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, p->group);
    mesh_nccl__comm *c = g->c;
    mesh__record none = mesh_nccl__no_record(p->channel);
    mesh_error why;
    ncclComm_t comm;
    if (s->debug && p->count && !mesh_nccl__has_ended(s, c))
        mesh_nccl__checked(s, c, mesh_nccl__compare_post(s, g, p, &why), &why);
    if (!mesh_nccl__enter(s, c, p->record ? p->record : &none, mesh_nccl__now(s) + g->timeout)) {
        mesh_nccl__not_issued(c, ticket);
        return MESH_OK;
    }
    pthread_mutex_lock(&s->lock);
    comm = c->comm;
    s->inside_post = p;
    pthread_mutex_unlock(&s->lock);
    if (p->count) mesh_nccl__exchange(s, c, comm, p);
    ticket->impl = c;
    if (!p->count && c->capturing == MESH_NCCL__BESIDE)
        ticket->id = MESH_TICKET_CAPTURED; /* no mark can be put: who waits on the host is told */
    else
        mesh_nccl__issued(s, c, ticket);
    mesh_nccl__leave(s, c);
    return MESH_OK;
}
#endif /* MESH_NCCL_MEMORY_IMPLEMENTED */
