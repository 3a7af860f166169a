/* mesh/topology.h - what a message costs between two ranks: levels of units, latency, bandwidth. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh.h. Knows no tensor.
*/
#include "../mesh.h"

#ifndef MESH_TOPOLOGY_H
#define MESH_TOPOLOGY_H

#ifdef __cplusplus
extern "C" {
#endif

enum { MESH_MAX_LEVELS = 8 };

/* ---- topology ------------------------------------------------------------------------------------------------------ */

/* Innermost level first: ranks [k * ranks, (k + 1) * ranks) are one unit of it. The last level joins everything. */
typedef struct mesh_level {
    int ranks;
    uint32_t zero;
    int64_t latency_ps;     /* of a message */
    int64_t ps_per_byte_16; /* picoseconds per byte in 16.16 fixed point: 65536 is 1 ps per byte, 1,000 GB/s */
} mesh_level;

typedef struct mesh_topology {
    int nlevels; /* 0: flat, a network of 10 us and 5 GB/s */
    int zero;
    mesh_level level[MESH_MAX_LEVELS];
} mesh_topology;

/* ARGUMENT: a number of levels outside 0 to 8, a level of no ranks or fewer than the one within it, a negative time. */
MESH_API mesh_status mesh_topology_check(const mesh_topology *t, mesh_error *err);

#ifdef __cplusplus
}
#endif
#endif /* MESH_TOPOLOGY_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_TOPOLOGY_IMPLEMENTED)
#define MESH_TOPOLOGY_IMPLEMENTED

static inline int64_t mesh__ceil(int64_t n, int64_t k) { return n / k + (n % k != 0); }
static inline int64_t mesh__add64(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }
static inline int64_t mesh__mul64(int64_t a, int64_t b) { return b && a > INT64_MAX / b ? INT64_MAX : a * b; }

static inline mesh_topology mesh__flat(void) {
    mesh_topology t;
    t.nlevels = 1;
    t.zero = 0;
    t.level[0].ranks = INT32_MAX;
    t.level[0].zero = 0;
    t.level[0].latency_ps = INT64_C(10000000);
    t.level[0].ps_per_byte_16 = INT64_C(200) << 16;
    return t;
}

MESH_API mesh_status mesh_topology_check(const mesh_topology *t, mesh_error *err) {
    int l;
    if (!t) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_topology_check: the topology is NULL");
    if (t->nlevels < 0 || t->nlevels > MESH_MAX_LEVELS)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_topology_check: %d levels; 0 to %d are possible",
                          t->nlevels, MESH_MAX_LEVELS);
    for (l = 0; l < t->nlevels; l++) {
        const mesh_level *level = &t->level[l];
        if (level->ranks < 1 || (l > 0 && level->ranks < level[-1].ranks))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_topology_check: level %d has units of %d ranks; levels go from the innermost out",
                              l, level->ranks);
        if (l > 0 && l < t->nlevels - 1 && level->ranks % level[-1].ranks)
            return mesh__fail(
                err, MESH_ERR_ARGUMENT, -1,
                "mesh_topology_check: level %d has units of %d ranks, no multiple of the %d of the level within", l,
                level->ranks, level[-1].ranks);
        if (level->latency_ps < 0 || level->ps_per_byte_16 < 0 || level->ps_per_byte_16 > INT64_C(1) << 40)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_topology_check: level %d: a latency of %l ps, %l ps per byte in 16.16; neither is "
                              "negative, and a byte takes less than 2^24 ps",
                              l, level->latency_ps, level->ps_per_byte_16);
    }
    return MESH_OK;
}
#endif /* MESH_TOPOLOGY_IMPLEMENTED */
