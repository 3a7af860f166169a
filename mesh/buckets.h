/* mesh/buckets.h - a list of redistributions, kept and started again every step, in buckets. Part of mesh.h 0.1.0. MIT licence.

   Includes redistribute.h.

DO THIS
    Nothing: mesh_parallel.h includes it.

EXAMPLE
    mesh_buckets_open(&b, &comm, sums, at_rest, n, NULL);       gradients as computed, to where the optimizer wants them; in the order they are made
    for each step:
        backward of layer k:  mesh_buckets_ready(&b, i);        for each of its gradients: a bucket that is whole goes, while layer k - 1 is computed
        mesh_buckets_wait(&b, -1);                              all are there
    mesh_buckets_close(&b);

CONVENTIONS
    Buckets start in the list's order, each as soon as all tensors in it and before it are ready: the list is the order in which tensors become
    ready, and the same on every rank of the comm. So ranks need not agree on more, and nothing is asked while it runs. Sharded weights on their
    way to where they are used are such a list too (ready: the destination is free); going back through the layers is another.
    Started buckets move while the program is in the library: in each ready and wait; on their own with a progress thread or on GPUs.
*/
#if !defined(MESH_BUCKETS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_BUCKETS_IMPLEMENTED))
#include "redistribute.h"
#endif

#ifndef MESH_BUCKETS_H
#define MESH_BUCKETS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mesh_buckets_desc {
    /* Of a bucket: it is full when the parts that a rank holds of its tensors (the larger of source and destination, of the rank that has most) are
       this much. 0: 25 MiB, as PyTorch's DDP. */
    size_t bytes;
    /* Per tensor, rising: equal numbers go together (a layer). NULL: by bytes. */
    const int *bucket;
} mesh_buckets_desc;

typedef struct mesh_buckets {
    mesh_comm *comm;
    void *impl; /* NULL: closed. From the transport's allocator */
} mesh_buckets;

/* Collective over the comm; nothing is sent. The lists are read during the call only, but data and, as of every started operation, buffers are in
   use from ready to wait. Tensors of different buckets may share memory: that is the caller's order. Where desc.bucket does not say otherwise a list that mixes reductions is cut between them.
   desc NULL: all zero. ARGUMENT, UNSUPPORTED, MEMORY: as mesh_redistribute_many, on every rank. */
MESH_API mesh_status mesh_buckets_open(mesh_buckets *b, mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst,
                                       int n, const mesh_buckets_desc *desc);
/* Tensor i may go: its source is whole and its destination free. In any order, once per round. Never waits. STATE: it was ready in this round; as
   mesh_restart, where no bucket could go; or their comm was closed. ARGUMENT: no such tensor. Both without effect. Where one went and the next is
   refused, that is OK: it goes with the next ready, or in the wait, which says so if it still cannot. */
MESH_API mesh_status mesh_buckets_ready(mesh_buckets *b, int i);
/* Until tensor i has arrived; -1: all, which ends the round. STATE: one before it, or in its bucket, was not ready (named); nothing was waited for. Streams as
   mesh_wait. */
MESH_API mesh_status mesh_buckets_wait(mesh_buckets *b, int i);
/* How many there are, and the tensors of bucket k: from *first to *end - 1. Either may be NULL. -1: not open, or no such bucket. */
MESH_API int mesh_buckets_of(const mesh_buckets *b, int k, int *first, int *end);
/* What is under way is waited for; a round may end so, half ready. Before the comm's close or after. OK if it is closed already. */
MESH_API mesh_status mesh_buckets_close(mesh_buckets *b);

#ifdef __cplusplus
}
#endif
#endif /* MESH_BUCKETS_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_BUCKETS_IMPLEMENTED)
#define MESH_BUCKETS_IMPLEMENTED

typedef enum mesh__bucket_state { MESH__BUCKET_FILLING, MESH__BUCKET_MOVING, MESH__BUCKET_ARRIVED } mesh__bucket_state;

typedef struct mesh__bucket {
    int first, end; /* its tensors */
    int missing;    /* how many of them are not ready */
    mesh__bucket_state state;
    mesh_request request; /* kept */
} mesh__bucket;

typedef struct mesh__buckets {
    mesh_transport *t;
    uint32_t comm; /* the id of the comm that they were opened on: this rank's next ones have others */
    int n, nbuckets;
    int next; /* the bucket to start next: those before it were started in this round */
    mesh__bucket *bucket;
    int *of;        /* per tensor, its bucket */
    uint8_t *ready; /* per tensor */
} mesh__buckets;

MESH__PRIVATE mesh__buckets *mesh__buckets_of(const mesh_buckets *b) { return (mesh__buckets *)b->impl; }

/* Bytes of a tensor's largest part. Of a shape that overflows as of one that is wrong otherwise the redistribution tells. */
MESH__PRIVATE int64_t mesh__bucket_bytes(const mesh_tensor *t) {
    if (mesh_layout_check(&t->layout, NULL) != MESH_OK) return 0;
    return mesh__largest_part(t, mesh__tensor_elem(t));
}

/* The bucket of each tensor, in of[]; how many there are. */
MESH__RARE int mesh__buckets_cut(int *of, const mesh_tensor *src, const mesh_tensor *dst, int n,
                                 const mesh_buckets_desc *desc) {
    size_t bytes = 0, most = desc->bytes ? desc->bytes : (size_t)25 << 20;
    int i, k = 0, op, reduction = -1;
    for (i = 0; i < n; i++) {
        int64_t from = mesh__bucket_bytes(&src[i]), to = mesh__bucket_bytes(&dst[i]);
        op = mesh__layout_op(&src[i].layout);
        if (desc->bucket ? i && desc->bucket[i] != desc->bucket[i - 1]
                         : bytes >= most || (op >= 0 && reduction >= 0 && op != reduction))
            k++, bytes = 0, reduction = -1;
        bytes += (size_t)(from > to ? from : to);
        if (op >= 0) reduction = op;
        of[i] = k;
    }
    return n ? k + 1 : 0;
}

MESH__RARE mesh_status mesh__bucket_prepare(mesh_comm *c, mesh__bucket *k, const mesh_tensor *src,
                                            const mesh_tensor *dst) {
    mesh_error why;
    mesh_status status;
    int n = k->end - k->first;
    memset(&why, 0, sizeof why);
    mesh__impl(c)->preparing = 1;
    status = mesh__redistribute_start(c, NULL, src + k->first, dst + k->first, n, k->first, NULL, &k->request, &why);
    if (status == MESH_OK || c->failed) return status;
    return mesh__comm_broken(c, status, why.rank < 0 ? c->transport->rank : why.rank, "mesh_buckets_open: %s",
                             why.text);
}

MESH__RARE mesh_status mesh__buckets_check(mesh_comm *c, const mesh_buckets *b, const mesh_tensor *src,
                                           const mesh_tensor *dst, int n, const mesh_buckets_desc *desc) {
    int i, rank = c->transport->rank;
    if (!b || n < 0 || (n && (!src || !dst)))
        return mesh__comm_broken(c, MESH_ERR_ARGUMENT, rank, "mesh_buckets_open: %d tensors, and %s", n,
                                 !b      ? "the buckets are NULL"
                                 : n < 0 ? "a list has none or more"
                                         : "a list is NULL");
    for (i = 1; i < n && desc->bucket; i++)
        if (desc->bucket[i] < desc->bucket[i - 1])
            return mesh__comm_broken(
                c, MESH_ERR_ARGUMENT, rank,
                "mesh_buckets_open: tensor %d is of bucket %d, the one before it of %d: buckets rise, as "
                "they start in the list's order",
                i, desc->bucket[i], desc->bucket[i - 1]);
    return MESH_OK;
}

MESH__RARE void mesh__buckets_free(mesh__buckets *l) {
    mesh_transport_free(l->t, l->bucket);
    mesh_transport_free(l->t, l->of);
    mesh_transport_free(l->t, l->ready);
    mesh_transport_free(l->t, l);
}

/* Its arrays, all of which are full of nothing. NULL: no memory. */
MESH__RARE mesh__buckets *mesh__buckets_new(mesh_transport *t, int n) {
    mesh__buckets *l = (mesh__buckets *)mesh_transport_alloc(t, sizeof *l);
    size_t room = (size_t)n + 1;
    if (!l) return NULL;
    memset(l, 0, sizeof *l);
    l->t = t;
    l->n = n;
    l->bucket = (mesh__bucket *)mesh_transport_alloc(t, room * sizeof *l->bucket);
    l->of = (int *)mesh_transport_alloc(t, room * sizeof *l->of);
    l->ready = (uint8_t *)mesh_transport_alloc(t, room);
    if (!l->bucket || !l->of || !l->ready) {
        mesh__buckets_free(l);
        return NULL;
    }
    memset(l->bucket, 0, room * sizeof *l->bucket);
    memset(l->ready, 0, room);
    return l;
}

/* A round begins. */
MESH__PRIVATE void mesh__buckets_rewind(mesh__buckets *l) {
    int k;
    memset(l->ready, 0, (size_t)l->n);
    l->next = 0;
    for (k = 0; k < l->nbuckets; k++) {
        l->bucket[k].state = MESH__BUCKET_FILLING;
        l->bucket[k].missing = l->bucket[k].end - l->bucket[k].first;
    }
}

MESH__RARE mesh_status mesh__buckets_open(mesh_buckets *b, mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst,
                                          int n, const mesh_buckets_desc *desc) {
    mesh_buckets_desc plain = MESH_ZERO;
    mesh__buckets *l;
    mesh__group *g = NULL;
    mesh_request none;
    mesh_status status = mesh__call_begin(c, NULL, MESH_CALL_REDISTRIBUTE, &none, &g);
    int i, k;
    if (status != MESH_OK) return status;
    if (!desc) desc = &plain;
    if ((status = mesh__buckets_check(c, b, src, dst, n, desc)) != MESH_OK) return status;
    if ((l = mesh__buckets_new(c->transport, n)) == NULL)
        return mesh__comm_broken(c, MESH_ERR_MEMORY, c->transport->rank, "mesh_buckets_open: no memory for %d tensors",
                                 n);
    l->nbuckets = mesh__buckets_cut(l->of, src, dst, n, desc);
    for (i = n - 1; i >= 0; i--) l->bucket[l->of[i]].first = i;
    for (k = 0; k < l->nbuckets; k++) l->bucket[k].end = k + 1 < l->nbuckets ? l->bucket[k + 1].first : n;
    for (k = 0; k < l->nbuckets && status == MESH_OK; k++) status = mesh__bucket_prepare(c, &l->bucket[k], src, dst);
    if (status != MESH_OK) {
        while (--k >= 0)
            if (l->bucket[k].request.comm) mesh__release_inside(l->bucket[k].request);
        mesh__buckets_free(l);
        return status;
    }
    mesh__buckets_rewind(l);
    l->comm = c->id;
    b->comm = c;
    b->impl = l;
    return MESH_OK;
}

MESH_API mesh_status mesh_buckets_open(mesh_buckets *b, mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst,
                                       int n, const mesh_buckets_desc *desc) {
    if (b) memset(b, 0, sizeof *b);
    if (!c) return MESH_ERR_ARGUMENT;
    if (!c->impl) return mesh__fail(&c->error, MESH_ERR_STATE, -1, "mesh_buckets_open: the comm is not open");
    MESH__ALONE_COMPOSED(c, MESH__CALLER, mesh__buckets_open(b, c, src, dst, n, desc));
}

/* Is their comm still the one that they were opened on? Their requests ended with that. */
MESH__PRIVATE int mesh__buckets_are_of(const mesh_comm *c, const mesh__buckets *l) {
    return c->impl && c->id == l->comm && c->transport == l->t;
}

/* The comm of buckets that are open; an error's text where they are not, or it is not. */
MESH__PRIVATE mesh_status mesh__buckets_usable(const mesh_buckets *b, int i, int least, const char *function) {
    mesh_comm *c = b ? b->comm : NULL;
    if (!c || !b->impl) return MESH_ERR_STATE;
    if (!c->impl) return mesh__fail(&c->error, MESH_ERR_STATE, -1, "%s: the comm is not open", function);
    if (c->failed) return (mesh_status)c->error.status;
    if (!mesh__buckets_are_of(c, mesh__buckets_of(b)))
        return mesh__fail(
            &c->error, MESH_ERR_STATE, -1,
            "%s: the comm that these buckets were opened on was closed, and another is open in its place; "
            "close them, and open them on that",
            function);
    if (i < least || i >= mesh__buckets_of(b)->n)
        return mesh__fail(&c->error, MESH_ERR_ARGUMENT, -1, "%s: tensor %d of %d", function, i, mesh__buckets_of(b)->n);
    return MESH_OK;
}

/* Those that are whole and come next are started. */
MESH__PRIVATE mesh_status mesh__buckets_go(mesh__buckets *l) {
    for (; l->next < l->nbuckets && !l->bucket[l->next].missing; l->next++) {
        mesh_status status = mesh__restart_inside(l->bucket[l->next].request);
        if (status != MESH_OK) return status;
        l->bucket[l->next].state = MESH__BUCKET_MOVING;
    }
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__buckets_ready(mesh_buckets *b, int i) {
    mesh__buckets *l = mesh__buckets_of(b);
    mesh__engine *e = mesh__impl(b->comm)->engine;
    mesh_status status;
    mesh_error before = b->comm->error;
    int next = l->next;
    if (l->ready[i])
        return mesh__fail(&b->comm->error, MESH_ERR_STATE, -1,
                          "mesh_buckets_ready: tensor %d was ready in this round; mesh_buckets_wait of -1 ends it", i);
    l->ready[i] = 1;
    l->bucket[l->of[i]].missing--;
    status = mesh__buckets_go(l);
    if (status != MESH_OK && l->next == next) l->ready[i] = 0, l->bucket[l->of[i]].missing++; /* without effect */
    if (status != MESH_OK && (b->comm->failed || l->next == next)) return status;
    if (status != MESH_OK) b->comm->error = before; /* of a bucket behind it, which is asked again */
    mesh__poll(e);                                  /* those under way move on */
    mesh__progress(e, 0);
    mesh__poll(e);
    return MESH_OK;
}

MESH_API mesh_status mesh_buckets_ready(mesh_buckets *b, int i) {
    mesh_status status = mesh__buckets_usable(b, i, 0, "mesh_buckets_ready");
    if (status != MESH_OK) return status;
    MESH__ALONE_COMPOSED(b->comm, MESH__CALLER, mesh__buckets_ready(b, i));
}

MESH__PRIVATE mesh_status mesh__buckets_wait(mesh_buckets *b, int i) {
    mesh__buckets *l = mesh__buckets_of(b);
    int k, last = i < 0 ? l->nbuckets - 1 : l->of[i], missing = 0;
    mesh_status status =
        l->next <= last ? mesh__buckets_go(l) : MESH_OK; /* one behind those that ready started may have been refused */
    if (status != MESH_OK) return status;
    if (l->next <= last) {
        while (l->ready[missing]) missing++;
        return mesh__fail(
            &b->comm->error, MESH_ERR_STATE, -1,
            "mesh_buckets_wait(%d): tensor %d is not ready, and the bucket of tensors %d to %d waits for it", i,
            missing, l->bucket[last].first, l->bucket[last].end - 1);
    }
    for (k = i < 0 ? 0 : last; k <= last && status == MESH_OK; k++) {
        if (l->bucket[k].state == MESH__BUCKET_ARRIVED) continue;
        status = mesh__wait_inside(l->bucket[k].request);
        if (status == MESH_OK) l->bucket[k].state = MESH__BUCKET_ARRIVED;
    }
    if (i < 0 && status == MESH_OK) mesh__buckets_rewind(l);
    return status;
}

MESH_API mesh_status mesh_buckets_wait(mesh_buckets *b, int i) {
    mesh_status status = mesh__buckets_usable(b, i, -1, "mesh_buckets_wait");
    if (status != MESH_OK) return status;
    MESH__ALONE_COMPOSED(b->comm, MESH__CALLER, mesh__buckets_wait(b, i));
}

MESH_API int mesh_buckets_of(const mesh_buckets *b, int k, int *first, int *end) {
    const mesh__buckets *l = b && b->impl ? mesh__buckets_of(b) : NULL;
    if (!l) return -1;
    if ((first || end) && (k < 0 || k >= l->nbuckets)) return -1;
    if (first) *first = l->bucket[k].first;
    if (end) *end = l->bucket[k].end;
    return l->nbuckets;
}

MESH__RARE mesh_status mesh__buckets_close(mesh_buckets *b) {
    mesh__buckets *l = mesh__buckets_of(b);
    mesh_status status = MESH_OK;
    int k, open = mesh__buckets_are_of(b->comm, l);
    for (k = 0; k < l->nbuckets && open; k++) {
        mesh_status ended = MESH_OK;
        if (l->bucket[k].state == MESH__BUCKET_MOVING) ended = mesh__wait_inside(l->bucket[k].request);
        status = status == MESH_OK ? ended : status;
        mesh__release_inside(l->bucket[k].request);
    }
    mesh__buckets_free(l);
    if (status != MESH_OK && b->comm->failed)
        status = (mesh_status)b->comm->error.status; /* a request that has failed before is over */
    memset(b, 0, sizeof *b);
    return status;
}

MESH_API mesh_status mesh_buckets_close(mesh_buckets *b) {
    mesh_comm *c = b ? b->comm : NULL;
    if (!b || !b->impl) return MESH_OK;
    MESH__ALONE_COMPOSED(c, MESH__CALLER, mesh__buckets_close(b));
}
#endif /* MESH_BUCKETS_IMPLEMENTED */
