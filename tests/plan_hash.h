/* Plans must be the same whatever compiler, flags and machine made them: one number for 10,000 seeded problems with near ties. Alone as C or C++:
   cc -DPLAN_HASH_MAIN -I. -x c tests/plan_hash.h -o plan_hash && ./plan_hash */
#ifdef PLAN_HASH_MAIN
#define MESH_IMPLEMENTATION
#include "mesh.h"
#include <stdio.h>
#endif

static uint64_t plan_hash_state = 88172645463325252u;

static int plan_hash_below(int n) {
    plan_hash_state ^= plan_hash_state >> 12;
    plan_hash_state ^= plan_hash_state << 25;
    plan_hash_state ^= plan_hash_state >> 27;
    return (int)((plan_hash_state * UINT64_C(2685821657736338717) >> 33) % (uint64_t)n);
}

static mesh plan_hash_mesh(int size) {
    static const char *const names[] = {"a", "b", "c", "d"};
    mesh_desc d = MESH_ZERO;
    int shape[4];
    mesh m;
    while (d.naxes < 3 && size > 1 && plan_hash_below(5)) {
        int k = 2 + plan_hash_below(size - 1);
        if (size % k) continue;
        shape[d.naxes++] = k;
        size /= k;
    }
    shape[d.naxes++] = size;
    d.shape = shape;
    d.names = names;
    d.first_fastest = plan_hash_below(2);
    mesh_make(&m, &d, NULL);
    return m;
}

static mesh_spec plan_hash_spec(const mesh *m, int ndim) {
    mesh_place place[MESH_MAX_AXES];
    mesh_spec s;
    int i;
    for (i = 0; i < m->naxes; i++) {
        int kind = plan_hash_below(4);
        place[i] = kind == 0 ? mesh_partial(MESH_SUM) : kind < 3 ? mesh_shard(plan_hash_below(ndim)) : mesh_replicate();
    }
    mesh_spec_make(&s, m, place, ndim, NULL);
    s.rule = (uint8_t)(plan_hash_below(4) == 0);
    return s;
}

static uint64_t plan_hashes(int n) {
    static mesh_plan plan;
    uint64_t h = 0;
    int trial;
    for (trial = 0; trial < n; trial++) {
        int ndim = 1 + plan_hash_below(3), d, size = 1 << plan_hash_below(8);
        mesh src = plan_hash_mesh(size), dst = plan_hash_below(3) ? src : plan_hash_mesh(size);
        mesh_layout from = MESH_ZERO, to;
        mesh_plan_desc desc = MESH_ZERO;
        mesh_topology t = MESH_ZERO;
        from.on = &src, from.ndim = ndim, from.spec = plan_hash_spec(&src, ndim);
        to = from;
        to.on = &dst, to.spec = plan_hash_spec(&dst, ndim);
        for (d = 0; d < ndim; d++)
            to.shape[d] = from.shape[d] = plan_hash_below(2) ? 1 + plan_hash_below(4000) : 64 * (1 + plan_hash_below(40));
        desc.src = &from;
        desc.dst = &to;
        t.nlevels = 2; /* near ties: costs that hardly differ */
        t.level[0].ranks = 8;
        t.level[0].latency_ps = 1000 * (1 + plan_hash_below(3));
        t.level[0].ps_per_byte_16 = 65536;
        t.level[1].ranks = INT32_MAX;
        t.level[1].latency_ps = 2000;
        t.level[1].ps_per_byte_16 = 65536 + plan_hash_below(2);
        desc.topology = plan_hash_below(2) ? &t : NULL;
        desc.scratch_cap = plan_hash_below(4) ? 0 : 1 << (10 + plan_hash_below(16));
        if (mesh_plan_make(&plan, &desc, NULL) == MESH_OK) h = mesh__mix(h, plan.hash ^ (uint64_t)plan.ps);
    }
    return h;
}

#ifdef PLAN_HASH_MAIN
int main(void) {
    printf("%016llx\n", (unsigned long long)plan_hashes(10000));
    return 0;
}
#endif
