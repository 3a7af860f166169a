/* mesh/alike.h - numbers that every rank of a group must give alike: compared, and told by name. Part of mesh.h 0.1.0. MIT licence.

   Includes host_bytes.h. Knows nothing of what the numbers are for.
*/
#if !defined(MESH_ALIKE_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_ALIKE_IMPLEMENTED))
#include "host_bytes.h"
#endif

#ifndef MESH_ALIKE_H
#define MESH_ALIKE_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_ALIKE_IMPLEMENTED)
#define MESH_ALIKE_IMPLEMENTED

typedef struct mesh__number {
    const char *name; /* of the field that a caller sets */
    int64_t value;
} mesh__number;

enum { MESH__NUMBERS = 16 }; /* numbers at most */

/* Every rank of the group calls, from inside of a call. MISMATCH: the first number that differs, by its name, on the first rank where
   it does. The comm fails then, on every rank. */
MESH__PRIVATE mesh_status mesh__alike(mesh_comm *c, const char *function, const char *axes, const mesh__group *g,
                                      const mesh__number *said, int n) {
    uint64_t mine[MESH__NUMBERS], *all;
    mesh_status status;
    int i, k;
    MESH_ASSERT(n <= MESH__NUMBERS);
    if (g->on.size == 1) return MESH_OK;
    for (i = 0; i < n; i++) mine[i] = (uint64_t)said[i].value;
    all = (uint64_t *)mesh_transport_alloc(c->transport, (size_t)g->on.size * (size_t)n * sizeof *all);
    if (!all)
        return mesh__comm_broken(c, MESH_ERR_MEMORY, c->transport->rank, "%s: no memory to compare %d ranks", function,
                                 g->on.size);
    status = mesh__host_all_gather(c, axes, g->on.size, mine, all, (size_t)n, MESH_U64);
    for (k = 1; k < g->on.size && status == MESH_OK; k++)
        for (i = 0; i < n && status == MESH_OK; i++)
            if (all[k * n + i] != all[i])
                status = mesh__comm_broken(
                    c, MESH_ERR_MISMATCH, mesh_rank_at(&g->on, k),
                    "%s(\"%s\"): rank %d has %s %l, rank %d has %l; it is the same on every rank of the group",
                    function, axes ? axes : "(all axes)", mesh_rank_at(&g->on, k), said[i].name,
                    (int64_t)all[k * n + i], mesh_rank_at(&g->on, 0), (int64_t)all[i]);
    mesh_transport_free(c->transport, all);
    return status;
}

/* The ranks of the group know that their words differ: of which rank the first is that is not as the group's first rank's? -1 (and OK): of none.
   Every rank of the group calls, from inside of a call. */
MESH__PRIVATE mesh_status mesh__alike_not(mesh_comm *c, const char *axes, const mesh__group *g, uint64_t word,
                                          int *rank) {
    uint64_t *all = (uint64_t *)mesh_transport_alloc(c->transport, (size_t)g->on.size * sizeof *all);
    mesh_status status;
    int k = 1;
    *rank = -1;
    if (!all) return MESH_OK; /* told without it */
    status = mesh__host_all_gather(c, axes, g->on.size, &word, all, 1, MESH_U64);
    while (status == MESH_OK && k < g->on.size && all[k] == all[0]) k++;
    if (status == MESH_OK && k < g->on.size) *rank = mesh_rank_at(&g->on, k);
    mesh_transport_free(c->transport, all);
    return status;
}
#endif /* MESH_ALIKE_IMPLEMENTED */
