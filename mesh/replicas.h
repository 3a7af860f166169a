/* mesh/replicas.h - what is replicated has the same bits on every rank: a check. Part of mesh.h 0.1.0. MIT licence.

   Includes parts.h.

DO THIS
    Nothing: mesh_parallel.h includes it.
*/
#if !defined(MESH_REPLICAS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_REPLICAS_IMPLEMENTED))
#include "parts.h"
#endif

#ifndef MESH_REPLICAS_H
#define MESH_REPLICAS_H

#ifdef __cplusplus
extern "C" {
#endif

/* What is R or I must have the same bits on every rank that holds it: kernels whose sums have no order break that without a word, and training drifts
   apart. Lists may differ (stages, experts): a name stands in the list of every rank of its tensor's mesh, whose ranks are the comm's. Any dtype, in
   the transport's memory (a device's comes to the host, 4 MiB at a time). One all_reduce of one number; where it says that something differs, one all_gather finds what.
   MISMATCH, the same words on every rank (behind "rank 3 failed: " where that one was through first): the first tensor of a list that differs, by name, and the rank that differs from the first that holds it;
   or a name that a rank lists and another of its mesh does not, or in another layout; the comm fails. ARGUMENT: an axis that is partial (summands differ), data that is NULL, a name that
   is NULL or stands twice. Then every rank fails. (-0 is not 0, and two NaNs are alike if their bits are.) */
MESH_API mesh_status mesh_check_replicas(mesh_comm *c, const mesh_named *list, int n);

#ifdef __cplusplus
}
#endif
#endif /* MESH_REPLICAS_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_REPLICAS_IMPLEMENTED)
#define MESH_REPLICAS_IMPLEMENTED

/* What a rank says of a tensor: all of it travels as u64, between hosts of either byte order. */
typedef struct mesh__replica {
    uint64_t name, bits; /* hashes */
    uint64_t first;      /* the rank that holds it first */
    uint64_t copies;     /* ranks that hold it */
    uint64_t at;         /* in this rank's list */
} mesh__replica;
enum { MESH__REPLICA_WORDS = 5, MESH__REPLICA_NAME = 256 };

/* A number of so many bytes: its bits are the same on hosts of either byte order. */
MESH__PRIVATE uint64_t mesh__bits_at(const unsigned char *p, size_t width) {
    uint64_t wide;
    uint32_t u;
    uint16_t half;
    if (width == 1) return *p;
    if (width == 2) return memcpy(&half, p, 2), half;
    if (width == 4) return memcpy(&u, p, 4), u;
    return memcpy(&wide, p, 8), wide;
}

/* Element by element, of bits that lie side by side. */
MESH__PRIVATE uint64_t mesh__bits_mix(uint64_t h, const mesh_tensor *t, const unsigned char *p, size_t count) {
    size_t elem = (size_t)mesh__tensor_elem(t), width = mesh_dtype_bytes(t->dtype), at, e;
    int pair = t->dtype == MESH_F64_I32; /* 8 bytes, 4, and 4 that are nothing */
    if (t->dtype == MESH_BYTES) width = 1;
    if (mesh__is_complex((int)t->dtype)) width /= 2;
    if (pair) width = 8;
    for (e = 0; e < count; e++)
        for (at = 0; at < elem; at += width) h = mesh__mix(h, mesh__bits_at(p + e * elem + at, pair && at ? 4 : width));
    return h;
}

/* This rank's part in its order, whatever its strides: by way of a buffer of mesh__bits_room(t) bytes. */
MESH__PRIVATE size_t mesh__bits_room(const mesh_tensor *t) {
    size_t elem = (size_t)mesh__tensor_elem(t);
    return elem < MESH__PACKED_BYTES ? MESH__PACKED_BYTES / elem * elem : elem;
}
MESH__PRIVATE mesh_status mesh__bits_hash(mesh_comm *c, const mesh_tensor *t, void *buffer, uint64_t *h) {
    mesh_box box;
    int64_t count = mesh_layout_box(&t->layout, c->transport->rank, &box), first, n;
    mesh_status status = MESH_OK;
    *h = 0;
    for (first = 0; first < count && status == MESH_OK; first += n) {
        n = (int64_t)(mesh__bits_room(t) / (size_t)mesh__tensor_elem(t));
        if (n > count - first) n = count - first;
        status = mesh__part_copy(c, t, &box, first, n, buffer, 0, t->dtype);
        *h = mesh__bits_mix(*h, t, (const unsigned char *)buffer, (size_t)n);
    }
    return status;
}

/* Ranks that hold the same part. */
MESH__PRIVATE int mesh__replicas_of(const mesh_layout *l) {
    int i, n = 1;
    for (i = 0; i < l->on->naxes; i++) n *= l->spec.axis[i].kind == MESH_SHARD ? 1 : l->on->axis[i].size;
    return n;
}

MESH__RARE mesh_status mesh__replicas_check(const mesh_comm *c, const mesh_named *named, mesh_error *err) {
    const mesh_tensor *t = &named->tensor;
    int i, rank = c->transport->rank;
    mesh_box box;
    if (!named->name) return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "its name is NULL");
    if (mesh__tensor_check(t, rank, err) != MESH_OK) return MESH_ERR_ARGUMENT;
    for (i = 0; i < t->layout.on->naxes; i++)
        if (t->layout.spec.axis[i].kind == MESH_PARTIAL && t->layout.on->axis[i].size > 1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "%q is partial along \"%s\": summands differ; redistribute it first", named->name,
                              t->layout.on->axis[i].name);
    for (i = 0; i < t->layout.on->size; i++)
        if (mesh_index_of(&c->on, mesh_rank_at(t->layout.on, i)) < 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                              "%q is on a mesh that holds rank %d, which is not in the comm's", named->name,
                              mesh_rank_at(t->layout.on, i));
    if (!t->data && mesh_layout_box(&t->layout, rank, &box) > 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "the data of %q is NULL, but rank %d holds %l elements",
                          named->name, rank, mesh_box_count(&box));
    return MESH_OK;
}

/* This rank's words, and what they add up to: 0 over all ranks if replicas are alike (the first counts once for each other one, which count against
   it; each tensor and part by a factor of its own, so that two that differ do not make each other good). */
MESH__PRIVATE mesh_status mesh__replicas_say(mesh_comm *c, const mesh_named *list, int n, void *buffer,
                                             mesh__replica *say, uint64_t *whole) {
    uint64_t sum = 0;
    int i, rank = c->transport->rank;
    mesh_status status;
    for (i = 0; i < n; i++) {
        const mesh_tensor *t = &list[i].tensor;
        mesh__replica *r = &say[i];
        uint64_t factor, others;
        memset(r, 0, sizeof *r);
        r->at = (uint64_t)i;
        r->name = mesh__hash_text(0, list[i].name);
        r->first = UINT64_MAX; /* it holds nothing */
        if (mesh_index_of(t->layout.on, rank) < 0) continue;
        r->first = (uint64_t)mesh__layout_first(&t->layout, rank);
        if ((status = mesh__bits_hash(c, t, buffer, &r->bits)) != MESH_OK) return status;
        factor = mesh__mix(r->name, r->first) | 1;
        r->copies = (uint64_t)mesh__replicas_of(&t->layout);
        others = r->copies - 1;
        sum += factor * (r->first == (uint64_t)rank ? r->bits * others : (uint64_t)0 - r->bits);
    }
    *whole = sum;
    return MESH_OK;
}

/* What rank `holder` says of the tensor that `r` is a replica of. NULL: nothing. */
MESH__PRIVATE const mesh__replica *mesh__replica_first(const mesh__replica *r, const mesh__replica *all,
                                                       const size_t *counts, const size_t *offsets, int index) {
    const mesh__replica *list = all + offsets[index] / MESH__REPLICA_WORDS;
    size_t i;
    for (i = 0; i < counts[index] / MESH__REPLICA_WORDS; i++)
        if (list[i].name == r->name) return &list[i];
    return NULL;
}

/* Which tensor do fewer, or more, ranks list than hold it? *rank: one that does. NULL: none. */
MESH__RARE const mesh__replica *mesh__replica_alone(const mesh__replica *all, const size_t *counts,
                                                    const size_t *offsets, const mesh_comm *c, int *rank) {
    int i, other;
    size_t k;
    for (i = 0; i < c->on.size; i++)
        for (k = 0; k < counts[i] / MESH__REPLICA_WORDS; k++) {
            const mesh__replica *r = &all[offsets[i] / MESH__REPLICA_WORDS + k], *theirs;
            uint64_t found = 0;
            if (r->first == UINT64_MAX) continue;
            for (other = 0; other < c->on.size; other++) {
                theirs = mesh__replica_first(r, all, counts, offsets, other);
                found += theirs && theirs->first == r->first;
            }
            *rank = mesh_rank_at(&c->on, i);
            if (found != r->copies) return r;
        }
    return NULL;
}

/* A rank that lists `r` otherwise than layout l, this rank's, has it: -1, none. *lists: whether it lists it at all. */
MESH__RARE int mesh__replica_odd(const mesh_comm *c, const mesh_layout *l, const mesh__replica *r,
                                 const mesh__replica *all, const size_t *counts, const size_t *offsets, int *lists) {
    int i, rank, holds;
    for (i = 0; i < c->on.size; i++) {
        const mesh__replica *theirs = mesh__replica_first(r, all, counts, offsets, i);
        rank = mesh_rank_at(&c->on, i);
        holds = mesh_index_of(l->on, rank) >= 0 && (uint64_t)mesh__layout_first(l, rank) == r->first;
        *lists = theirs != NULL;
        if (holds != (theirs && theirs->first == r->first)) return rank;
    }
    return -1;
}

/* What `holder` knows, and every rank ends with: a tensor's name, as much of it as fits; and whose list has it otherwise, or not at all (-1: bits differ). */
typedef struct mesh__replica_said {
    char name[MESH__REPLICA_NAME];
    int32_t odd[2]; /* the rank; does it list it at all? */
} mesh__replica_said;

MESH__RARE mesh_status mesh__replicas_tell(mesh_comm *c, mesh__replica_said *said, int holder, int worst) {
    int at = mesh_index_of(&c->on, holder);
    mesh_status status = mesh__host_broadcast(c, NULL, said->name, sizeof said->name, MESH_BYTES, at);
    if (status == MESH_OK) status = mesh__host_broadcast(c, NULL, said->odd, 2, MESH_I32, at);
    if (status != MESH_OK) return status;
    if (said->odd[0] < 0)
        return mesh__comm_broken(c, MESH_ERR_MISMATCH, worst,
                                 "mesh_check_replicas: %q has other bits on rank %d than on rank %d, the "
                                 "first that holds that part",
                                 said->name, worst, holder);
    return mesh__comm_broken(c, MESH_ERR_MISMATCH, (int)said->odd[0],
                             said->odd[1] ? "mesh_check_replicas: %q stands in the lists of rank %d and rank %d, in "
                                            "layouts that differ"
                                          : "mesh_check_replicas: %q stands in the list of rank %d, but not in that of "
                                            "rank %d, which its mesh holds",
                             said->name, holder, (int)said->odd[0]);
}

/* Something differs: everybody says all, and finds the same. */
MESH__RARE mesh_status mesh__replicas_find(mesh_comm *c, const mesh_named *list, const mesh__replica *say, int n) {
    int size = c->on.size, i, worst = -1;
    uint64_t mine = (uint64_t)n * MESH__REPLICA_WORDS;
    size_t total = 0, k;
    const mesh__replica *found = NULL;
    mesh_transport *t = c->transport;
    size_t *counts = (size_t *)mesh_transport_alloc(t, 2 * (size_t)size * sizeof *counts),
           *offsets = counts ? counts + size : NULL;
    uint64_t *words = (uint64_t *)mesh_transport_alloc(t, (size_t)size * sizeof *words);
    mesh__replica *all = NULL;
    mesh_status status = counts && words ? MESH_OK : MESH_ERR_MEMORY;
    if (status == MESH_OK) status = mesh__host_all_gather(c, NULL, size, &mine, words, 1, MESH_U64);
    for (i = 0; status == MESH_OK && i < size; i++) {
        counts[i] = (size_t)words[i];
        offsets[i] = total;
        total += counts[i];
    }
    if (status == MESH_OK && (all = (mesh__replica *)mesh_transport_alloc(t, total * 8 + 8)) == NULL)
        status = MESH_ERR_MEMORY;
    if (status == MESH_OK) status = mesh__host_all_gather_v(c, say, all, counts, MESH_U64);
    for (i = 0; status == MESH_OK && i < size; i++)
        for (k = 0; k < counts[i] / MESH__REPLICA_WORDS; k++) {
            const mesh__replica *r = &all[offsets[i] / MESH__REPLICA_WORDS + k], *first = NULL;
            if (r->first != UINT64_MAX)
                first = mesh__replica_first(r, all, counts, offsets, mesh_index_of(&c->on, (int)r->first));
            if (first && first->first != r->first) continue; /* layouts differ, not bits */
            if (!first || first->bits == r->bits || (found && found->at <= first->at)) continue;
            found = first;
            worst = mesh_rank_at(&c->on, i);
        }
    if (status == MESH_ERR_MEMORY)
        mesh__comm_broken(c, status, t->rank, "mesh_check_replicas: no memory for %d tensors", n);
    if (status == MESH_OK) {
        const mesh__replica *r = found ? found : mesh__replica_alone(all, counts, offsets, c, &worst);
        int holder = found ? (int)found->first : worst, lists = 0;
        mesh__replica_said said = {"", {-1, 0}};
        if (r && holder == t->rank) {
            mesh__copy_text(said.name, sizeof said.name, list[r->at].name);
            if (!found) said.odd[0] = mesh__replica_odd(c, &list[r->at].tensor.layout, r, all, counts, offsets, &lists);
            said.odd[1] = lists;
        }
        status = r ? mesh__replicas_tell(c, &said, holder, worst)
                   : mesh__comm_broken(c, MESH_ERR_MISMATCH, -1, "mesh_check_replicas: the ranks' lists differ");
    }
    mesh_transport_free(t, counts);
    mesh_transport_free(t, words);
    mesh_transport_free(t, all);
    return status;
}

/* With a buffer for the longest piece of a part. What goes wrong on one rank fails everywhere. */
MESH__PRIVATE mesh_status mesh__replicas_read(mesh_comm *c, const mesh_named *list, int n, mesh__replica *say,
                                              uint64_t *whole) {
    size_t room = 1;
    void *buffer;
    mesh_status status = MESH_ERR_MEMORY;
    mesh_error why;
    int i;
    for (i = 0; i < n; i++)
        if (mesh__bits_room(&list[i].tensor) > room) room = mesh__bits_room(&list[i].tensor);
    if ((buffer = mesh_transport_alloc(c->transport, room)) == NULL)
        mesh__fail(&c->error, status, c->transport->rank, "no memory for a buffer of %u bytes", (uint64_t)room);
    else
        status = mesh__replicas_say(c, list, n, buffer, say, whole);
    mesh_transport_free(c->transport, buffer);
    if (status == MESH_OK || c->failed) return status;
    why = c->error;
    return mesh__comm_broken(c, status, c->transport->rank, "mesh_check_replicas: %s", why.text);
}

MESH__PRIVATE mesh_status mesh__replicas_inside(mesh_comm *c, const mesh_named *list, int n) {
    int i, k, rank;
    uint64_t whole = 0;
    mesh__group *g = NULL;
    mesh_request none;
    mesh__replica *say;
    mesh_status status = mesh__call_begin(c, NULL, MESH_CALL_ALL_REDUCE, &none, &g);
    if (status != MESH_OK) return status;
    if ((status = mesh__on_stream(c)) != MESH_OK) return status;
    rank = c->transport->rank;
    if (n < 0 || (n && !list))
        return mesh__comm_broken(c, MESH_ERR_ARGUMENT, rank,
                                 "mesh_check_replicas: %d tensors, and the list is NULL, or of fewer than none", n);
    for (i = 0; i < n; i++) {
        mesh_error why;
        status = mesh__replicas_check(c, &list[i], &why);
        if (status != MESH_OK)
            return mesh__comm_broken(c, status, rank, "mesh_check_replicas: tensor %d: %s", i, why.text);
    }
    say = (mesh__replica *)mesh_transport_alloc(c->transport, (size_t)n * sizeof *say + 8);
    if (!say) return mesh__comm_broken(c, MESH_ERR_MEMORY, rank, "mesh_check_replicas: no memory for %d tensors", n);
    status = mesh__replicas_read(c, list, n, say, &whole);
    for (i = 1; i < n && status == MESH_OK; i++)
        for (k = 0; k < i && status == MESH_OK; k++)
            if (say[k].name == say[i].name)
                status =
                    mesh__comm_broken(c, MESH_ERR_ARGUMENT, rank,
                                      "mesh_check_replicas: tensor %d: %q is tensor %d's name too", i, list[i].name, k);
    if (status == MESH_OK) status = mesh__host_all_reduce(c, &whole, 1, MESH_U64, MESH_SUM);
    if (status == MESH_OK && whole) status = mesh__replicas_find(c, list, say, n);
    mesh_transport_free(c->transport, say);
    return status;
}

MESH_API mesh_status mesh_check_replicas(mesh_comm *c, const mesh_named *list, int n) {
    if (!c) return MESH_ERR_ARGUMENT;
    if (!c->impl) return mesh__fail(&c->error, MESH_ERR_STATE, -1, "mesh_check_replicas: the comm is not open");
    MESH__ALONE_COMPOSED(c, MESH__CALLER, mesh__replicas_inside(c, list, n));
}
#endif /* MESH_REPLICAS_IMPLEMENTED */
