/* mesh/levels.h - algorithms for groups that span hosts: on the host, across hosts, on the host. Part of mesh.h 0.1.0. MIT licence.

   Includes algorithms.h. Knows no comm and no engine: a host is a number that members have in common.
*/
#if !defined(MESH_LEVELS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_LEVELS_IMPLEMENTED))
#include "algorithms.h"
#define MESH_LEVELS_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_LEVELS_IMPLEMENTED)
#define MESH_LEVELS_IMPLEMENTED

enum {
    MESH__GATHER_PACKED =
        256 * 1024 /* what is gathered up to this size travels packed, and is put in place at the end */
};

/* How a group lies on its hosts. The first members of each host own a column: they talk with the owners of the same column on the other hosts. Where
   hosts differ in size, further members are served by the owner whose number is theirs modulo the number of columns.
   Cell (column, host): the members there. Slots: all members by column, then host, then place on it. */
typedef struct mesh__levels {
    int nhosts, columns;
    int host, local, nlocal; /* of this rank: its host, its place there, how many are there */
    int *order, *start;      /* the group's indices by host; where each host begins (and one more) */
    int *owner;              /* of this rank's column, by host */
    int *slot;               /* the first of each cell, by column, then host (and one more) */
    size_t *count, *at;      /* room for the counts and offsets of a view, of hosts or of places on one */
} mesh__levels;

MESH__PRIVATE int mesh__levels_size(const mesh__levels *l, int host) { return l->start[host + 1] - l->start[host]; }

/* The first slot of a cell, of a column; how many members are in a cell; in a column on the hosts before this one. */
MESH__PRIVATE int mesh__cell_slot(const mesh__levels *l, int column, int host) {
    return l->slot[column * l->nhosts + host];
}
MESH__PRIVATE int mesh__column_slot(const mesh__levels *l, int column) { return mesh__cell_slot(l, column, 0); }
MESH__PRIVATE int mesh__cells_before(const mesh__levels *l, int column, int host) {
    return mesh__cell_slot(l, column, host) - mesh__column_slot(l, column);
}
MESH__PRIVATE int mesh__cell(const mesh__levels *l, int column, int host) {
    return mesh__cell_slot(l, column, host + 1) - mesh__cell_slot(l, column, host);
}

/* Members k of a cell: its index in the group, its place on the host. */
MESH__PRIVATE int mesh__cell_place(const mesh__levels *l, int column, int k) { return column + k * l->columns; }
MESH__PRIVATE int mesh__cell_index(const mesh__levels *l, int column, int host, int k) {
    return l->order[l->start[host] + mesh__cell_place(l, column, k)];
}

MESH__PRIVATE void mesh__scope_host(mesh__schedule *s, const mesh__levels *l) {
    mesh__scope(s, l->order + l->start[l->host], l->nlocal, l->local);
}
MESH__PRIVATE void mesh__scope_column(mesh__schedule *s, const mesh__levels *l) {
    mesh__scope(s, l->owner, l->nhosts, l->host);
}

/* most: columns at most. Returns 0 without memory. */
MESH__PRIVATE int mesh__levels_make(mesh__schedule *s, mesh__levels *l, size_t most) {
    int n = s->on->size, h = s->nhosts, i, j;
    l->count = (size_t *)mesh_transport_alloc(s->t, 2 * (size_t)n * sizeof *l->count +
                                                        (2 * (size_t)n + 2 * (size_t)h + 2) * sizeof *l->order);
    if (!l->count) return 0;
    l->at = l->count + n;
    l->order = (int *)(void *)(l->at + n);
    l->start = l->order + n;
    l->owner = l->start + h + 1;
    l->slot = l->owner + h;
    l->nhosts = h;
    for (i = 0; i <= h; i++) l->start[i] = 0;
    for (i = 0; i < n; i++) l->start[s->host[i] + 1]++;
    l->columns = n;
    for (i = 0; i < h; i++) {
        if (l->start[i + 1] < l->columns) l->columns = l->start[i + 1];
        l->start[i + 1] += l->start[i];
        l->owner[i] = l->start[i]; /* for now: where the host's next member goes */
    }
    if ((size_t)l->columns > most) l->columns = most ? (int)most : 1;
    for (i = 0; i < n; i++) l->order[l->owner[s->host[i]]++] = i;
    l->host = s->host[s->index];
    l->nlocal = mesh__levels_size(l, l->host);
    for (l->local = 0; l->order[l->start[l->host] + l->local] != s->index;) l->local++;
    for (i = 0; i < h; i++) l->owner[i] = l->order[l->start[i] + l->local % l->columns];
    for (l->slot[0] = j = 0; j < l->columns; j++)
        for (i = 0; i < h; i++)
            l->slot[j * h + i + 1] = l->slot[j * h + i] + (mesh__levels_size(l, i) - j + l->columns - 1) / l->columns;
    return 1;
}

/* Is it small: at most `most` bytes, and at most so many of the pipelines' segments? */
MESH__PRIVATE int mesh__levels_small(const mesh__schedule *s, const mesh__layout *b, size_t bytes, size_t most,
                                     size_t segments) {
    return bytes <= most && bytes <= segments * b->segment * s->elem_bytes;
}

/* The elements of a range as a view of their own, on parts of which there is room for as many as the view has. */
MESH__PRIVATE mesh__view mesh__view_cut(const mesh__schedule *s, const mesh__view *v, mesh__range r, mesh__part *part,
                                        int chunks) {
    int n = 0;
    size_t start = 0;
    do {
        unsigned char *p;
        size_t count = mesh__run(s, v, &r, &p);
        part[n] = mesh__part_of(p, count);
        part[n++].start = start;
        start += count;
    } while (r.count);
    return mesh__view_of(part, n, MESH__CHUNKS, chunks);
}

/* Reduced by chunks on the host, one for each column; reduced across hosts; handed out on the host. */
MESH__PRIVATE void mesh__levels_all_reduce(mesh__schedule *s, const mesh__layout *b, const mesh__levels *l) {
    mesh__part *part = (mesh__part *)mesh_transport_alloc(s->t, (size_t)b->recv.nparts * sizeof *part);
    mesh__layout in = *b, across = *b;
    mesh__range mine;
    int k;
    if (!part) {
        s->out_of_memory = 1;
        return;
    }
    in.owners = l->columns;
    in.send = mesh__view_of(b->send.part, b->send.nparts, MESH__CHUNKS, l->columns);
    in.recv = mesh__view_of(b->recv.part, b->recv.nparts, MESH__CHUNKS, l->columns);
    mine = mesh__block_of(&in.recv, l->local);
    mesh__scope_host(s, l);
    s->undivided = 1;
    if (l->nlocal == 1)
        mesh__add_copies(s, &in.recv, mesh__all_of(&in.recv), &in.send, mesh__all_of(&in.send));
    else
        mesh__build_reduce_blocks(s, &in, &in.recv, mine, MESH__KEEP);
    s->undivided = 0;
    if (l->local < l->columns && (mine.count || !l->local)) {
        mesh_tuning_row row = mesh__built_in(MESH_CALL_ALL_REDUCE, l->nhosts, mine.count * s->elem_bytes);
        across.segment = mesh__segment_for(s, row.segment, mine.count);
        mesh__scope_column(s, l);
        across.send = across.recv = mesh__view_cut(s, &in.recv, mine, part, l->nhosts);
        mesh__build_all_reduce(s, &across, row.algorithm);
    }
    mesh__scope_host(s, l);
    mesh__add_post(s);
    for (k = 1; k < l->nlocal; k++) {
        int to = (l->local + k) % l->nlocal, from = (l->local - k + l->nlocal) % l->nlocal;
        if (l->local < l->columns) mesh__add_range(s, MESH_SEND, to, &in.recv, mine, NULL);
        if (from < l->columns) mesh__add_range(s, MESH_RECV, from, &in.recv, mesh__block_of(&in.recv, from), NULL);
    }
    mesh__add_wait(s);
    mesh_transport_free(s->t, part);
}

/* Short: a tree of one member of each host, then one on each host. Long: a chain that enters every host once. */
MESH__PRIVATE void mesh__levels_broadcast(mesh__schedule *s, const mesh__layout *b, const mesh__levels *l) {
    int root_host = s->host[b->root], entry = l->owner[l->host], n = s->on->size, i, at = 0, *chain;
    if (s->index == b->root) mesh__add_copies(s, &b->recv, mesh__all_of(&b->recv), &b->send, mesh__all_of(&b->send));
    l->owner[root_host] = b->root; /* one column: owners are the hosts' first members */
    if (l->host == root_host) entry = b->root;
    if (mesh__levels_small(s, b, b->recv.total * s->elem_bytes, 2 * MESH__MIB, 4)) {
        if (s->index == entry) {
            mesh__scope_column(s, l);
            mesh__build_tree(s, &b->recv, root_host);
        }
        mesh__scope_host(s, l);
        for (i = 0; l->order[l->start[l->host] + i] != entry;) i++;
        mesh__build_tree(s, &b->recv, i);
        return;
    }
    if (!(chain = (int *)mesh_transport_alloc(s->t, (size_t)n * sizeof *chain))) {
        s->out_of_memory = 1;
        return;
    }
    chain[at++] = b->root;
    for (i = 0; i < n; i++) { /* the rest of its host, then the other hosts */
        int k = l->order[(l->start[root_host] + i) % n];
        if (k != b->root) chain[at++] = k;
    }
    for (i = 0; chain[i] != s->index;) i++;
    mesh__scope(s, chain, n, i);
    mesh__build_chain(s, &b->recv, 0, b->segment);
    mesh__scope_all(s);
    mesh_transport_free(s->t, chain);
}

/* The blocks of a cell, to or from a peer: of a view by index in the group, or (packed) in slots, where they lie together. */
MESH__PRIVATE void mesh__add_cell(mesh__schedule *s, const mesh__levels *l, int direction, int peer,
                                  const mesh__view *v, int packed, int column, int host) {
    size_t bytes = v->each * s->elem_bytes;
    int k, n = mesh__cell(l, column, host);
    if (packed) {
        mesh__add_xfer(s, direction, peer, v->part->base + (size_t)mesh__cell_slot(l, column, host) * bytes,
                       (size_t)n * bytes);
        return;
    }
    for (k = 0; k < n; k++)
        mesh__add_range(s, direction, peer, v, mesh__block_of(v, mesh__cell_index(l, column, host, k)), NULL);
}

MESH__PRIVATE void mesh__add_column(mesh__schedule *s, const mesh__levels *l, int direction, int peer,
                                    const mesh__view *v, int packed, int column) {
    size_t bytes = v->each * s->elem_bytes;
    int h;
    if (packed)
        mesh__add_xfer(s, direction, peer, v->part->base + (size_t)mesh__column_slot(l, column) * bytes,
                       (size_t)mesh__cells_before(l, column, l->nhosts) * bytes);
    for (h = 0; !packed && h < l->nhosts; h++) mesh__add_cell(s, l, direction, peer, v, 0, column, h);
}

/* Copies between a view by index and one in slots, of every member or of those before a host's end. */
MESH__PRIVATE void mesh__add_permuted(mesh__schedule *s, const mesh__levels *l, const mesh__view *to,
                                      const mesh__view *from, int to_slots) {
    int j, h, k, slot = 0;
    for (j = 0; j < l->columns; j++)
        for (h = 0; h < l->nhosts; h++)
            for (k = 0; k < mesh__cell(l, j, h); k++, slot++) {
                int index = mesh__cell_index(l, j, h, k);
                mesh__add_copies(s, to, mesh__block_of(to, to_slots ? slot : index), from,
                                 mesh__block_of(from, to_slots ? index : slot));
            }
}

/* A view of n blocks in memory of the schedule's own, each as large as the view's blocks. */
MESH__PRIVATE mesh__view mesh__levels_work(mesh__schedule *s, const mesh__view *like, mesh__part *part, size_t n) {
    *part = mesh__part_of(mesh__scratch(s, n * like->each * s->elem_bytes), like->each);
    return mesh__view_of(part, 1, MESH__BLOCKS, 0);
}

/* Owners collect what further members have, exchange it across hosts, and hand their columns out. */
MESH__PRIVATE void mesh__levels_all_gather(mesh__schedule *s, const mesh__layout *b, const mesh__levels *l) {
    int column = l->local % l->columns, owns = l->local < l->columns, k;
    int packed = mesh__levels_small(s, b, b->recv.each * (size_t)s->on->size * s->elem_bytes, MESH__GATHER_PACKED, 1);
    int mine = mesh__cell_slot(l, column, l->host) + l->local / l->columns;
    mesh__part part;
    mesh__view work = b->recv;
    mesh__range all = mesh__all_of(&b->send);
    if (packed) work = mesh__levels_work(s, &b->recv, &part, (size_t)s->on->size);
    if (s->out_of_memory) return;
    if (owns || !packed) mesh__add_copies(s, &work, mesh__block_of(&work, packed ? mine : s->index), &b->send, all);
    mesh__scope_host(s, l);
    mesh__add_post(s);
    if (!owns && packed)
        mesh__add_range(s, MESH_SEND, column, &b->send, all, NULL);
    else if (!owns)
        mesh__add_range(s, MESH_SEND, column, &work, mesh__block_of(&work, s->index), NULL);
    for (k = 1; owns && k < mesh__cell(l, column, l->host); k++) {
        int place = mesh__cell_place(l, column, k), index = mesh__cell_index(l, column, l->host, k);
        if (packed)
            mesh__add_range(s, MESH_RECV, place, &b->send, all,
                            part.base + (size_t)(mine + k) * part.count * s->elem_bytes);
        else
            mesh__add_range(s, MESH_RECV, place, &work, mesh__block_of(&work, index), NULL);
    }
    mesh__add_wait(s);
    mesh__scope_column(s, l);
    for (k = 1; owns && k < l->nhosts; k++) {
        int to = (l->host + k) % l->nhosts, from = (l->host - k + l->nhosts) % l->nhosts;
        mesh__add_round(s, k);
        mesh__add_cell(s, l, MESH_SEND, to, &work, packed, column, l->host);
        mesh__add_cell(s, l, MESH_RECV, from, &work, packed, column, from);
    }
    mesh__add_wait(s);
    mesh__scope_host(s, l);
    mesh__add_post(s);
    for (k = 1; k < l->nlocal; k++) {
        int to = (l->local + k) % l->nlocal, from = (l->local - k + l->nlocal) % l->nlocal;
        if (owns) mesh__add_column(s, l, MESH_SEND, to, &work, packed, column);
        if (from < l->columns) mesh__add_column(s, l, MESH_RECV, from, &work, packed, from);
    }
    mesh__add_wait(s);
    if (packed) mesh__add_permuted(s, l, &b->recv, &work, 0);
}

/* A view of `n` blocks whose sizes and places stand in l->count and l->at. */
MESH__PRIVATE mesh__view mesh__levels_counts(const mesh__levels *l, const mesh__part *part) {
    mesh__view v = mesh__view_of(part, 1, MESH__COUNTS, 1);
    v.counts = l->count;
    v.offsets = l->at;
    return v;
}

/* What goes to each column is reduced by its owner, then across hosts; further members are given theirs. */
MESH__PRIVATE void mesh__levels_reduce_scatter(mesh__schedule *s, const mesh__layout *b, const mesh__levels *l) {
    int column = l->local % l->columns, owns = l->local < l->columns, k;
    size_t each = b->send.each, slot = (size_t)mesh__column_slot(l, column);
    mesh__part part, reduced;
    mesh__view work = mesh__levels_work(s, &b->send, &part, (size_t)s->on->size), acc;
    mesh__layout in = *b;
    if (s->out_of_memory) return;
    mesh__add_permuted(s, l, &work, &b->send, 1);
    for (k = 0; k < l->nlocal; k++) {
        l->at[k] = k < l->columns ? (size_t)mesh__column_slot(l, k) * each : 0;
        l->count[k] = k < l->columns ? (size_t)mesh__cells_before(l, k, l->nhosts) * each : 0;
    }
    reduced = mesh__part_of(part.base + slot * each * s->elem_bytes, owns ? l->count[l->local] : 0);
    acc = mesh__view_of(&reduced, 1, MESH__CHUNKS, 1);
    in.owners = l->columns;
    in.send = mesh__levels_counts(l, &part);
    mesh__scope_host(s, l);
    s->undivided = 1;
    if (l->nlocal > 1) mesh__build_reduce_blocks(s, &in, &acc, mesh__all_of(&acc), MESH__KEEP);
    s->undivided = 0;
    if (owns) {
        for (k = 0; k < l->nhosts; k++) {
            l->at[k] = (slot + (size_t)mesh__cells_before(l, column, k)) * each;
            l->count[k] = (size_t)mesh__cell(l, column, k) * each;
        }
        reduced = mesh__part_of(part.base + l->at[l->host] * s->elem_bytes, l->count[l->host]);
        acc = mesh__view_of(&reduced, 1, MESH__CHUNKS, 1);
        in.owners = 0;
        mesh__scope_column(s, l);
        mesh__build_reduce_blocks(s, &in, &acc, mesh__all_of(&acc), MESH__KEEP);
    }
    slot = (size_t)mesh__cell_slot(l, column, l->host);
    mesh__scope_host(s, l);
    if (owns) mesh__add_copies(s, &b->recv, mesh__all_of(&b->recv), &work, mesh__block_of(&work, (int)slot));
    mesh__add_post(s);
    if (!owns) mesh__add_range(s, MESH_RECV, column, &b->recv, mesh__all_of(&b->recv), NULL);
    for (k = 1; owns && k < mesh__cell(l, column, l->host); k++)
        mesh__add_range(s, MESH_SEND, mesh__cell_place(l, column, k), &b->recv, mesh__all_of(&b->recv),
                        part.base + (slot + (size_t)k) * each * s->elem_bytes);
    mesh__add_wait(s);
}

/* The memory of an all_to_all on its way: of this rank's blocks in slots; of the host's for each cell of the column (by host, then place, then
   member); of all ranks for this host's cell (by host, then place, then member); of all ranks for each further member of it. */
typedef struct mesh__bundles {
    mesh__view out, host, got, give;
    mesh__part part[4];
} mesh__bundles;

/* Where the blocks from a member of a host begin in `host`, or in `got`. */
MESH__PRIVATE size_t mesh__bundle_at(const mesh__levels *l, int column, int host, int place) {
    return (size_t)mesh__cells_before(l, column, host) * (size_t)l->nlocal +
           (size_t)place * (size_t)mesh__cell(l, column, host);
}
MESH__PRIVATE size_t mesh__got_at(const mesh__levels *l, int column, int host) {
    return (size_t)l->start[host] * (size_t)mesh__cell(l, column, l->host);
}

MESH__PRIVATE int mesh__bundles_make(mesh__schedule *s, const mesh__layout *b, const mesh__levels *l,
                                     mesh__bundles *k) {
    int column = l->local % l->columns, owns = l->local < l->columns;
    size_t n = (size_t)s->on->size, cell = (size_t)mesh__cell(l, column, l->host);
    k->out = mesh__levels_work(s, &b->send, &k->part[0], n);
    k->host = mesh__levels_work(s, &b->send, &k->part[1],
                                owns ? (size_t)mesh__cells_before(l, column, l->nhosts) * (size_t)l->nlocal : 0);
    k->got = mesh__levels_work(s, &b->send, &k->part[2], owns ? n * cell : n);
    k->give = mesh__levels_work(s, &b->send, &k->part[3], owns ? n * (cell - 1) : 0);
    return !s->out_of_memory;
}

/* n blocks of a bundle from block `at`, to or from a peer. */
MESH__PRIVATE void mesh__add_bundle(mesh__schedule *s, int direction, int peer, const mesh__view *v, size_t at,
                                    size_t n) {
    size_t bytes = v->each * s->elem_bytes;
    mesh__add_xfer(s, direction, peer, v->part->base + at * bytes, n * bytes);
}

/* Every member gives each owner what goes to its column; owners exchange that across hosts; what is for further members is handed on. */
MESH__PRIVATE void mesh__levels_all_to_all(mesh__schedule *s, const mesh__layout *b, const mesh__levels *l) {
    int column = l->local % l->columns, owns = l->local < l->columns, n = s->on->size, h, i, k;
    size_t cell = (size_t)mesh__cell(l, column, l->host), bytes = b->send.each * s->elem_bytes;
    mesh__bundles v;
    if (!mesh__bundles_make(s, b, l, &v)) return;
    mesh__add_permuted(s, l, &v.out, &b->send, 1);
    mesh__scope_host(s, l);
    mesh__add_post(s);
    for (k = 1; k < l->nlocal; k++) {
        int to = (l->local + k) % l->nlocal, from = (l->local - k + l->nlocal) % l->nlocal;
        for (h = 0; h < l->nhosts; h++) {
            if (to < l->columns) mesh__add_cell(s, l, MESH_SEND, to, &v.out, 1, to, h);
            if (owns)
                mesh__add_bundle(s, MESH_RECV, from, &v.host, mesh__bundle_at(l, column, h, from),
                                 (size_t)mesh__cell(l, column, h));
        }
    }
    mesh__add_wait(s);
    for (h = 0; owns && h < l->nhosts; h++)
        mesh__add_copy(s, v.host.part->base + mesh__bundle_at(l, column, h, l->local) * bytes,
                       v.out.part->base + (size_t)mesh__cell_slot(l, column, h) * bytes,
                       (size_t)mesh__cell(l, column, h) * bytes);
    mesh__scope_column(s, l);
    for (k = 1; owns && k < l->nhosts; k++) {
        int to = (l->host + k) % l->nhosts, from = (l->host - k + l->nhosts) % l->nhosts;
        mesh__add_round(s, k);
        mesh__add_bundle(s, MESH_SEND, to, &v.host, mesh__bundle_at(l, column, to, 0),
                         (size_t)l->nlocal * (size_t)mesh__cell(l, column, to));
        mesh__add_bundle(s, MESH_RECV, from, &v.got, mesh__got_at(l, column, from),
                         (size_t)mesh__levels_size(l, from) * cell);
    }
    mesh__add_wait(s);
    if (owns)
        mesh__add_copy(s, v.got.part->base + mesh__got_at(l, column, l->host) * bytes,
                       v.host.part->base + mesh__bundle_at(l, column, l->host, 0) * bytes,
                       (size_t)l->nlocal * cell * bytes);
    mesh__scope_host(s, l);
    for (i = 0; owns && i < n; i++) /* by host and place, as `order` has them */
        for (k = 1; k < (int)cell; k++)
            mesh__add_copy(s, v.give.part->base + ((size_t)(k - 1) * (size_t)n + (size_t)i) * bytes,
                           v.got.part->base + ((size_t)i * cell + (size_t)k) * bytes, bytes);
    mesh__add_post(s);
    for (k = 1; owns && k < (int)cell; k++)
        mesh__add_bundle(s, MESH_SEND, mesh__cell_place(l, column, k), &v.give, (size_t)(k - 1) * (size_t)n, (size_t)n);
    if (!owns) mesh__add_bundle(s, MESH_RECV, column, &v.got, 0, (size_t)n);
    mesh__add_wait(s);
    for (i = 0; i < n; i++)
        mesh__add_copies(s, &b->recv, mesh__block_of(&b->recv, l->order[i]), &v.got,
                         mesh__block_of(&v.got, owns ? i * (int)cell : i));
}

/* A call of one of these kinds in a group that spans hosts, several of whose members share one. */
MESH__PRIVATE void mesh__build_levels(mesh__schedule *s, const mesh__layout *b, int kind) {
    size_t total = b->recv.total, most = (size_t)s->on->size;
    mesh__levels l;
    if (kind == MESH_CALL_BROADCAST ||
        (kind == MESH_CALL_ALL_REDUCE && mesh__levels_small(s, b, total * s->elem_bytes, MESH__SMALL, 1)))
        most = 1;
    if (kind == MESH_CALL_ALL_REDUCE && total < most) most = total;
    if (!mesh__levels_make(s, &l, most)) {
        s->out_of_memory = 1;
        return;
    }
    switch (kind) {
    case MESH_CALL_ALL_REDUCE:
        mesh__levels_all_reduce(s, b, &l);
        break;
    case MESH_CALL_BROADCAST:
        mesh__levels_broadcast(s, b, &l);
        break;
    case MESH_CALL_ALL_GATHER:
        mesh__levels_all_gather(s, b, &l);
        break;
    case MESH_CALL_REDUCE_SCATTER:
        mesh__levels_reduce_scatter(s, b, &l);
        break;
    default:
        mesh__levels_all_to_all(s, b, &l);
        break;
    }
    mesh__scope_all(s);
    mesh_transport_free(s->t, l.count);
}
#endif /* MESH_LEVELS_IMPLEMENTED */
