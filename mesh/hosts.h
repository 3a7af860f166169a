/* mesh/hosts.h - which ranks of a mesh share a host: as the first rank knows it, told in runs. Part of mesh.h 0.1.0. MIT licence.

   Includes transport.h. Knows no operation and no comm.
*/
#if !defined(MESH_HOSTS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_HOSTS_IMPLEMENTED))
#include "transport.h"
#define MESH_HOSTS_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_HOSTS_IMPLEMENTED)
#define MESH_HOSTS_IMPLEMENTED

/* `count` ranks of a mesh in a row: the first `each` on host `first`, as many on the next, and so on. */
typedef struct mesh__host_run {
    int first, each, count;
} mesh__host_run;

/* Of a whole mesh, hosts numbered in the order in which they appear. nruns 0: nothing to gain by knowing (one host, or a rank on each). */
typedef struct mesh__hosts {
    mesh__host_run *run;
    int nruns, cap;
} mesh__hosts;

enum { MESH__HOST_RUN_BYTES = 12 };

MESH__RARE void mesh__host_run_wire(mesh__wire *w, mesh__host_run *run) {
    mesh__wire_int(w, &run->first);
    mesh__wire_int(w, &run->each);
    mesh__wire_int(w, &run->count);
}

/* The host of a rank of the mesh. */
MESH__PRIVATE int mesh__host_at(const mesh__hosts *h, int index) {
    int i;
    for (i = 0; i + 1 < h->nruns && index >= h->run[i].count; i++) index -= h->run[i].count;
    return h->run[i].first + index / h->run[i].each;
}

/* Do they describe a mesh of n ranks? What came from another rank is not believed. */
MESH__RARE int mesh__hosts_fit(const mesh__hosts *h, int n) {
    int64_t total = 0;
    int i;
    for (i = 0; i < h->nruns; i++) {
        const mesh__host_run *r = &h->run[i];
        if (r->first < 0 || r->first >= n || r->each < 1 || r->count < 1 || r->count > n) return 0;
        if (r->first + (int64_t)(r->count - 1) / r->each >= n) return 0;
        total += r->count;
    }
    return total == n;
}

/* Add a rank to the runs: it goes on with the last one where it can. Returns 0 without memory. */
MESH__RARE int mesh__hosts_add(mesh_transport *t, mesh__hosts *h, int host) {
    mesh__host_run *r = h->nruns ? &h->run[h->nruns - 1] : NULL;
    if (r && r->count % r->each && host == r->first + r->count / r->each) { /* within a host */
        r->count++;
        return 1;
    }
    if (r && r->count == r->each && host == r->first) { /* the first host has one more */
        r->count++, r->each++;
        return 1;
    }
    if (r && r->count % r->each == 0 && host == r->first + r->count / r->each) { /* the next host */
        r->count++;
        return 1;
    }
    if (!mesh__grow(t, (void **)&h->run, &h->cap, h->nruns + 1, sizeof *h->run)) return 0;
    r = &h->run[h->nruns++];
    r->first = host;
    r->each = r->count = 1;
    return 1;
}

typedef struct mesh__placing {
    mesh_transport *t;
    const mesh *m;
} mesh__placing;

MESH__PRIVATE int mesh__host_known(const mesh__placing *p, int index) {
    return p->t->ops->locality(p->t, mesh_rank_at(p->m, index));
}

MESH__PRIVATE int mesh__host_after(const void *placing, int a, int b) {
    const mesh__placing *p = (const mesh__placing *)placing;
    int x = mesh__host_known(p, a), y = mesh__host_known(p, b);
    return x > y || (x == y && a > b);
}

/* What the transport knows of a mesh's ranks. A rank whose host is not known has one of its own. Returns 0 without memory. */
MESH__RARE int mesh__hosts_find(mesh_transport *t, const mesh *m, mesh__hosts *h) {
    int n = m->size, *order, *number, i, hosts = 0, good = 1;
    mesh__placing p;
    h->nruns = 0;
    if (!MESH__HAS(t->ops, locality) || n < 3) return 1;
    p.t = t;
    p.m = m;
    order = (int *)mesh_transport_alloc(t, 2 * (size_t)n * sizeof *order);
    if (!order) return 0;
    number = order + n;
    for (i = 0; i < n; i++) order[i] = i;
    mesh__sort(order, n, mesh__host_after, &p);
    for (i = 0; i < n; i++) { /* the first rank of its host */
        int same = i && mesh__host_known(&p, order[i]) >= 0 &&
                   mesh__host_known(&p, order[i]) == mesh__host_known(&p, order[i - 1]);
        number[order[i]] = same ? number[order[i - 1]] : order[i];
    }
    for (i = 0; i < n; i++) number[i] = number[i] == i ? hosts++ : number[number[i]];
    for (i = 0; i < n && hosts > 1 && hosts < n && good; i++) good = mesh__hosts_add(t, h, number[i]);
    mesh_transport_free(t, order);
    return good;
}

/* The hosts of a group's members, numbered in the order in which they appear among them. NULL with *nhosts 0: nothing to gain; NULL else: no memory.
   The caller frees it. */
MESH__RARE int *mesh__hosts_group(mesh_transport *t, const mesh__hosts *h, const mesh *whole, const mesh *group,
                                  int *nhosts, int *scattered) {
    int n = group->size, i, *host, *number;
    *nhosts = *scattered = 0;
    if (!h->nruns || n < 3) return NULL;
    host = (int *)mesh_transport_alloc(t, (size_t)n * sizeof *host);
    number = (int *)mesh_transport_alloc(t, (size_t)whole->size * sizeof *number);
    *nhosts = -1;
    if (host && number) {
        *nhosts = 0;
        for (i = 0; i < whole->size; i++) number[i] = -1;
        for (i = 0; i < n; i++) {
            int at = mesh__host_at(h, mesh_index_of(whole, mesh_rank_at(group, i)));
            if (number[at] < 0) number[at] = (*nhosts)++;
            host[i] = number[at];
            *scattered |= i && host[i] < host[i - 1];
        }
        if (*nhosts == 1 || *nhosts == n) *nhosts = 0;
    }
    mesh_transport_free(t, number);
    if (*nhosts > 0) return host;
    mesh_transport_free(t, host);
    return NULL;
}
#endif /* MESH_HOSTS_IMPLEMENTED */
