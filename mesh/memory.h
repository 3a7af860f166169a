/* mesh/memory.h - memory of the transport: device memory on GPUs, the host's elsewhere. Part of mesh.h 0.1.0. MIT licence.

   Includes comm.h. Knows no collective.

DO THIS
    Nothing: mesh_collectives.h includes it.
*/
#if !defined(MESH_MEMORY_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_MEMORY_IMPLEMENTED))
#include "comm.h"
#endif

#ifndef MESH_MEMORY_H
#define MESH_MEMORY_H

#ifdef __cplusplus
extern "C" {
#endif

/* Memory for buffers, of a kind that mesh_register takes (NCCL: from 1 MiB on in its pages of 2 MiB). Local. It is the transport's: it outlives
   comms, and what is not given back is when the transport closes. MEMORY; *p is NULL then. */
MESH_API mesh_status mesh_alloc(mesh_transport *t, size_t nbytes, void **p, mesh_error *err);
/* Nothing may be under way in it. NULL is fine. ARGUMENT: it is not mesh_alloc's, or was freed before (where that can be told). */
MESH_API mesh_status mesh_free(mesh_transport *t, void *p, mesh_error *err);
/* Copy between the transport's memory and the host's, either way, and wait for it: after what is on the caller's stream. */
MESH_API mesh_status mesh_copy(mesh_comm *c, void *dst, const void *src, size_t nbytes);

#ifdef __cplusplus
}
#endif
#endif /* MESH_MEMORY_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_MEMORY_IMPLEMENTED)
#define MESH_MEMORY_IMPLEMENTED

/* The list that a block stands in. */
MESH__PRIVATE mesh__memory **mesh__memories(mesh__engine *e, const void *p) {
    return &e->memory[mesh__mix(0, (uint64_t)(uintptr_t)p) % MESH__MEMORIES];
}

MESH__PRIVATE mesh_status mesh__alloc_host(mesh__engine *e, size_t nbytes, void **p) {
    enum { MESH__LINE = 64, MESH__HEAD = (sizeof(mesh__memory) + MESH__LINE - 1) / MESH__LINE * MESH__LINE };
    void *raw = nbytes < SIZE_MAX - MESH__HEAD - MESH__LINE
                    ? mesh_transport_alloc(e->t, nbytes + MESH__HEAD + MESH__LINE)
                    : NULL;
    unsigned char *at =
        (unsigned char *)(((uintptr_t)raw + MESH__HEAD + MESH__LINE - 1) & ~(uintptr_t)(MESH__LINE - 1));
    mesh__memory *m;
    if (!raw) return MESH_ERR_MEMORY;
    m = (mesh__memory *)(void *)(at - sizeof *m);
    m->raw = raw;
    m->at = mesh__memories(e, at);
    m->next = *m->at;
    if (m->next) m->next->at = &m->next;
    *m->at = m;
    *p = at;
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__alloc_inside(mesh_transport *t, size_t nbytes, void **p, mesh_error *err) {
    mesh__engine *e = mesh__engine_get(t);
    mesh_status status = MESH_ERR_MEMORY;
    *p = NULL;
    if (e && MESH__HAS(t->ops, alloc)) status = t->ops->alloc(t, nbytes ? nbytes : 1, MESH_ALLOC_BUFFER, p);
    if (e && (!MESH__HAS(t->ops, alloc) || status == MESH_ERR_UNSUPPORTED)) status = mesh__alloc_host(e, nbytes, p);
    return status == MESH_OK ? status
                             : mesh__fail(err, status, -1, "mesh_alloc: no memory for %u bytes", (uint64_t)nbytes);
}

MESH_API mesh_status mesh_alloc(mesh_transport *t, size_t nbytes, void **p, mesh_error *err) {
    mesh_status status;
    if (!t || !p) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_alloc: %s is NULL", t ? "p" : "the transport");
    if ((status = mesh__enter_open(t, err, "alloc")) != MESH_OK) return status;
    status = mesh__alloc_inside(t, nbytes, p, err);
    mesh__leave(t);
    return status;
}

MESH_API mesh_status mesh_free(mesh_transport *t, void *p, mesh_error *err) {
    mesh_status status;
    mesh__memory *m;
    if (!p) return MESH_OK;
    if (!t) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_free: the transport is NULL");
    if ((status = mesh__enter_open(t, err, "free")) != MESH_OK) return status;
    status = MESH__HAS(t->ops, free) ? t->ops->free(t, p) : MESH_ERR_UNSUPPORTED;
    if (status == MESH_ERR_UNSUPPORTED) { /* what is no block is not looked into */
        m = t->engine ? *mesh__memories((mesh__engine *)t->engine, p) : NULL;
        while (m && m != (mesh__memory *)(void *)((unsigned char *)p - sizeof *m)) m = m->next;
        if (m) mesh__memory_free((mesh__engine *)t->engine, m);
        status = m ? MESH_OK : MESH_ERR_ARGUMENT;
    }
    mesh__leave(t);
    return status == MESH_OK
               ? status
               : mesh__fail(err, status, -1, "mesh_free: %x is not mesh_alloc's of this transport, or was freed before",
                            (uint64_t)(uintptr_t)p);
}

/* Blocks: between two places of the transport's memory. */
MESH__PRIVATE mesh_status mesh__copy_inside(mesh_comm *c, void *dst, const mesh_block *db, const void *src,
                                            const mesh_block *sb, size_t nbytes) {
    mesh__comm_impl *impl = c ? mesh__impl(c) : NULL;
    mesh_transport *t;
    void *group;
    mesh_error why = MESH_ZERO;
    mesh_status status = MESH_OK;
    int ended = 0, inner;
    why.rank = -1;
    if (!impl) return mesh__comm_closed(c, "mesh_copy");
    if (nbytes && (!dst || !src))
        return mesh__fail(mesh__says(c), MESH_ERR_ARGUMENT, -1, "mesh_copy: %s is NULL", dst ? "src" : "dst");
    t = c->transport;
    if (!MESH__HAS(t->ops, copy)) {
        if (nbytes) mesh__copy_bytes(dst, src, nbytes);
        return MESH_OK;
    }
    if (c->failed) return (mesh_status)c->error.status;
    group = impl->group[0]->handle;
    if (MESH__HAS(t->ops, fence)) status = t->ops->fence(t, group, impl->stream, MESH_FENCE_ON);
    if (status == MESH_OK)
        status = mesh__group_settle(c, group, &why, &ended); /* a copy to the host's memory may block */
    if (status == MESH_OK && nbytes) status = t->ops->copy(t, group, dst, db, src, sb, nbytes);
    if (status == MESH_OK) status = mesh__group_settle(c, group, &why, &ended);
    if (c->failed) return (mesh_status)c->error.status;
    if (status == MESH_OK) return MESH_OK;
    if (ended) { /* and every rank's calls in it: who waits for this one hears why */
        inner = !mesh__same(t->inside.call, "copy");
        return mesh__comm_broken(c, status, why.rank, "%s%s%smesh_copy: %u bytes: %s%s%s", inner ? "mesh_" : "",
                                 inner ? t->inside.call : "", inner ? ": " : "", (uint64_t)nbytes,
                                 mesh_status_text(status), why.text[0] ? ": " : "", why.text);
    }
    return mesh__fail(&c->error, status, why.rank, "mesh_copy: %u bytes: %s%s%s", (uint64_t)nbytes,
                      mesh_status_text(status), why.text[0] ? ": " : "", why.text);
}

MESH_API mesh_status mesh_copy(mesh_comm *c, void *dst, const void *src, size_t nbytes) {
    MESH__ALONE(c, MESH__CALLER, mesh__copy_inside(c, dst, NULL, src, NULL, nbytes));
}
#endif /* MESH_MEMORY_IMPLEMENTED */
