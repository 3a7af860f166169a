/* mesh/algorithms.h - builders: a call, a group and an index in it become a schedule. Part of mesh.h 0.1.0. MIT licence.

   Includes schedule.h. Knows no comm and no engine.
*/
#if !defined(MESH_ALGORITHMS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_ALGORITHMS_IMPLEMENTED))
#include "schedule.h"
#define MESH_ALGORITHMS_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_ALGORITHMS_IMPLEMENTED)
#define MESH_ALGORITHMS_IMPLEMENTED

/* What every builder is given: what is sent, where it arrives, and how many elements go in one step of a pipeline. */
typedef struct mesh__layout {
    mesh__view send, recv;
    int root;
    int owners; /* of reduce_blocks: blocks from this one on are nobody's; 0: everybody has one */
    size_t segment;
} mesh__layout;

/* Dissemination: in round k everyone signals the rank 2^k ahead. Source: Hensgen, Finkel, Manber 1988. */
MESH__PRIVATE void mesh__build_barrier(mesh__schedule *s) {
    int n = s->size, me = s->me, k;
    for (k = 1; k < n; k *= 2) {
        mesh__add_post(s);
        mesh__add_xfer(s, MESH_SEND, (me + k) % n, NULL, 0);
        mesh__add_xfer(s, MESH_RECV, (me - k + n) % n, NULL, 0);
        mesh__add_wait(s);
    }
}

/* Binomial tree from the root, for data that lie in recv at the root already. Source: Thakur, Rabenseifner, Gropp 2005. */
MESH__PRIVATE void mesh__build_tree(mesh__schedule *s, const mesh__view *v, int root) {
    int n = s->size, rel = (s->me - root + n) % n, mask = 1;
    mesh__range all = mesh__all_of(v);
    for (; mask < n; mask *= 2)
        if (rel & mask) {
            mesh__add_post(s);
            mesh__add_range(s, MESH_RECV, (rel - mask + root) % n, v, all, NULL);
            mesh__add_wait(s);
            break;
        }
    mesh__add_post(s);
    for (mask /= 2; mask > 0; mask /= 2)
        if (rel + mask < n) mesh__add_range(s, MESH_SEND, (rel + mask + root) % n, v, all, NULL);
    mesh__add_wait(s);
}

/* Each rank hands segments on to the next: every byte crosses every link once, the last rank is n segments behind. Receives are posted two
   segments ahead. */
MESH__PRIVATE void mesh__build_chain(mesh__schedule *s, const mesh__view *v, int root, size_t segment) {
    int n = s->size, rel = (s->me - root + n) % n, ahead = 0;
    mesh__range all = mesh__all_of(v);
    size_t segments = mesh__segments(all, segment), j;
    int before = (rel - 1 + root + n) % n, after = (rel + 1 + root) % n;
    for (j = 0; j < 2; j++) {
        ahead = s->nsteps;
        mesh__add_post(s);
        if (rel && j < segments) mesh__add_range(s, MESH_RECV, before, v, mesh__segment_of(all, segment, j), NULL);
    }
    for (j = 0; j < segments; j++) {
        mesh__add_wait_before(s, ahead); /* segment j has come, segment j-2 has gone */
        ahead = s->nsteps;
        mesh__add_post(s);
        if (rel && j + 2 < segments)
            mesh__add_range(s, MESH_RECV, before, v, mesh__segment_of(all, segment, j + 2), NULL);
        if (rel + 1 < n) mesh__add_range(s, MESH_SEND, after, v, mesh__segment_of(all, segment, j), NULL);
    }
    mesh__add_wait(s);
}

/* Every rank sends its block to all and receives theirs. */
MESH__PRIVATE void mesh__build_direct_gather(mesh__schedule *s, const mesh__view *own, mesh__range mine,
                                             const mesh__view *v) {
    int n = s->size, me = s->me, k;
    for (k = 1; k < n; k++) {
        mesh__add_round(s, k);
        mesh__add_range(s, MESH_SEND, (me + k) % n, own, mine, NULL);
        mesh__add_range(s, MESH_RECV, (me - k + n) % n, v, mesh__block_of(v, (me - k + n) % n), NULL);
    }
    mesh__add_wait(s);
}

/* Blocks travel round a ring; my own lies in v already. */
MESH__PRIVATE void mesh__build_ring_gather(mesh__schedule *s, const mesh__view *v) {
    int n = s->size, me = s->me, k;
    for (k = 0; k < n - 1; k++) {
        mesh__add_post(s);
        mesh__add_range(s, MESH_SEND, (me + 1) % n, v, mesh__block_of(v, (me - k + n) % n), NULL);
        mesh__add_range(s, MESH_RECV, (me - 1 + n) % n, v, mesh__block_of(v, (me - k - 1 + n) % n), NULL);
        mesh__add_wait(s);
    }
}

/* Pairs exchange 1, 2, 4 ... neighbouring blocks, in place; for a power of two of ranks. My own lies in v already. */
MESH__PRIVATE void mesh__build_doubling_gather(mesh__schedule *s, const mesh__view *v) {
    int n = s->size, me = s->me, mask, i;
    for (mask = 1; mask < n; mask *= 2) {
        int mine = me & ~(mask - 1), theirs = mine ^ mask;
        mesh__add_post(s);
        for (i = 0; i < v->nparts; i++) { /* neighbouring blocks of a part lie together */
            size_t bytes = v->part[i].count * s->elem_bytes;
            unsigned char *base = v->part[i].base;
            mesh__add_xfer(s, MESH_SEND, me ^ mask, bytes ? base + (size_t)mine * bytes : NULL, (size_t)mask * bytes);
            mesh__add_xfer(s, MESH_RECV, me ^ mask, bytes ? base + (size_t)theirs * bytes : NULL, (size_t)mask * bytes);
        }
        mesh__add_wait(s);
    }
}

/* Ranks hold 1, 2, 4 ... blocks, each its own first; turned into place at the end. Source: Bruck et al. 1997. */
MESH__PRIVATE void mesh__build_bruck_gather(mesh__schedule *s, const mesh__layout *b) {
    int n = s->size, me = s->me, k, i;
    size_t bytes = b->recv.each * s->elem_bytes;
    unsigned char *scratch = mesh__scratch(s, bytes * (size_t)n);
    mesh__part part;
    mesh__view turned;
    if (!scratch) return;
    part = mesh__part_of(scratch, b->recv.each);
    turned = mesh__view_of(&part, 1, MESH__BLOCKS, 0);
    mesh__add_copies(s, &turned, mesh__block_of(&turned, 0), &b->send, mesh__all_of(&b->send));
    for (k = 1; k < n; k *= 2) {
        size_t some = (size_t)(k < n - k ? k : n - k) * bytes;
        mesh__add_post(s);
        mesh__add_xfer(s, MESH_SEND, (me - k + n) % n, scratch, some);
        mesh__add_xfer(s, MESH_RECV, (me + k) % n, scratch + (size_t)k * bytes, some);
        mesh__add_wait(s);
    }
    for (i = 0; i < n; i++)
        mesh__add_copies(s, &b->recv, mesh__block_of(&b->recv, (me + i) % n), &turned, mesh__block_of(&turned, i));
}

/* What becomes of the block that a rank has reduced: it stays, or goes on, segment by segment behind those being reduced. */
enum { MESH__KEEP, MESH__HAND_ALL, MESH__HAND_ROOT };

/* Segment j of my reduced block in acc, which holds all of it, or where it is only handed on, two at a time. */
MESH__PRIVATE mesh__range mesh__reduced_segment(const mesh__schedule *s, const mesh__layout *b, mesh__range mine,
                                                size_t j, int hand) {
    mesh__range r = mesh__segment_of(mine, b->segment, j);
    if (hand == MESH__HAND_ROOT && s->me != b->root) r.at = (j & 1) * b->segment;
    return r;
}

/* Hand segment j of my reduced block to all or to the root; who is given theirs receives it. */
MESH__PRIVATE void mesh__add_hand_segment(mesh__schedule *s, const mesh__layout *b, const mesh__view *acc,
                                          mesh__range mine, size_t j, int hand) {
    int n = s->size, me = s->me, k, all = hand == MESH__HAND_ALL;
    mesh__add_post(s);
    for (k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me - k + n) % n;
        mesh__range theirs = mesh__block_of(&b->send, from);
        if ((all || to == b->root) && j < mesh__segments(mine, b->segment))
            mesh__add_range(s, MESH_SEND, to, acc, mesh__reduced_segment(s, b, mine, j, hand), NULL);
        if ((all || me == b->root) && j < mesh__segments(theirs, b->segment))
            mesh__add_range(s, MESH_RECV, from, acc, mesh__segment_of(theirs, b->segment, j), NULL);
    }
}

/* acc = everyone's contribution to my block, in the order me, me-1, me-2 ...: all exchange segments with all, the segment that is being
   reduced behind the one under way. Handed to all at once, it makes an all_reduce, to the root a reduce. */
MESH__PRIVATE void mesh__build_reduce_blocks(mesh__schedule *s, const mesh__layout *b, const mesh__view *acc,
                                             mesh__range mine, int hand) {
    int n = s->size, me = s->me, first, last, i, k, owners = b->owners ? b->owners : n;
    int width = n - 1 < MESH__ROUND ? n - 1 : MESH__ROUND;
    size_t segment = b->segment, own = mesh__segments(mine, segment), most = 0, j;
    size_t slot = ((mine.count < segment ? mine.count : segment) * s->elem_bytes + 63) & ~(size_t)63;
    unsigned char *scratch = mesh__scratch(s, 2 * (size_t)width * slot);
    for (i = 0; i < n; i++)
        if (mesh__segments(mesh__block_of(&b->send, i), segment) > most)
            most = mesh__segments(mesh__block_of(&b->send, i), segment);
    for (first = 1; first < n && scratch; first = last + 1) {
        int done = 0, before = 0; /* segments posted; the last post of them */
        last = first + width - 1 < n - 1 ? first + width - 1 : n - 1;
        for (j = 0; j < most; j++) {
            mesh__range reduced = mesh__reduced_segment(s, b, mine, j, hand);
            for (; done < (int)most && done < (int)j + 2; done++) {
                before = s->nsteps;
                mesh__add_post(s);
                for (k = first; k <= last; k++) {
                    int to = (me + k) % n, from = (me - k + n) % n;
                    mesh__range r = mesh__block_of(&b->send, to);
                    if (to < owners && (size_t)done < mesh__segments(r, segment))
                        mesh__add_range(s, MESH_SEND, to, &b->send, mesh__segment_of(r, segment, (size_t)done), NULL);
                    if (me < owners && (size_t)done < own)
                        mesh__add_range(s, MESH_RECV, from, acc, mesh__reduced_segment(s, b, mine, (size_t)done, hand),
                                        scratch + ((size_t)(done & 1) * (size_t)width + (size_t)(k - first)) * slot);
                }
            }
            if (hand && j > 0) mesh__add_hand_segment(s, b, acc, mine, j - 1, hand);
            mesh__add_wait_before(s, j + 1 < most ? before : s->nsteps);
            if (j >= own) continue;
            if (first == 1)
                mesh__add_copies(s, acc, reduced, &b->send, mesh__segment_of(mesh__block_of(&b->send, me), segment, j));
            for (k = first; k <= last; k++)
                mesh__add_reduces(s, acc, reduced, scratch + ((j & 1) * (size_t)width + (size_t)(k - first)) * slot, 1);
            if (last == n - 1) mesh__add_divides(s, acc, reduced);
        }
    }
    if (hand) mesh__add_hand_segment(s, b, acc, mine, most - 1, hand);
    mesh__add_wait(s);
}

/* The same through memory for every contribution, combined in the group's order: for a user's op that does not commute. */
MESH__PRIVATE void mesh__build_reduce_ordered(mesh__schedule *s, const mesh__layout *b, const mesh__view *acc,
                                              mesh__range mine) {
    int n = s->size, me = s->me, k;
    size_t slot = (mine.count * s->elem_bytes + 63) & ~(size_t)63;
    unsigned char *scratch = mesh__scratch(s, (size_t)n * slot);
    mesh__range own = mesh__block_of(&b->send, me);
    mesh__part part;
    mesh__view last;
    if (!scratch) return;
    for (k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me - k + n) % n;
        mesh__add_round(s, k);
        mesh__add_range(s, MESH_SEND, to, &b->send, mesh__block_of(&b->send, to), NULL);
        mesh__add_range(s, MESH_RECV, from, acc, mine, scratch + (size_t)from * slot);
    }
    mesh__add_wait(s);
    part = mesh__part_of(scratch + (size_t)me * slot, mine.count);
    last = mesh__view_of(&part, 1, MESH__CHUNKS, 1);
    mesh__add_copies(s, &last, mesh__all_of(&last), &b->send, own);
    part = mesh__part_of(scratch + (size_t)(n - 1) * slot, mine.count);
    last = mesh__view_of(&part, 1, MESH__CHUNKS, 1);
    mesh__add_copies(s, acc, mine, &last, mesh__all_of(&last));
    for (k = n - 2; k >= 0; k--) mesh__add_reduces(s, acc, mine, scratch + (size_t)k * slot, 1);
}

/* The ranks beyond a power of two are folded onto neighbours: of ranks 2i and 2i+1 only the second takes part, in role i. */
typedef struct mesh__fold {
    int power, extra, role; /* role -1: sits out */
} mesh__fold;

MESH__PRIVATE mesh__fold mesh__fold_of(const mesh__schedule *s) {
    int n = s->size, me = s->me;
    mesh__fold f;
    for (f.power = 1; f.power * 2 <= n;) f.power *= 2;
    f.extra = n - f.power;
    f.role = me < 2 * f.extra ? (me % 2 ? me / 2 : -1) : me - f.extra;
    return f;
}

MESH__PRIVATE int mesh__fold_rank(const mesh__fold *f, int role) {
    return role < f->extra ? role * 2 + 1 : role + f->extra;
}

/* The first rank of those that a role stands for. */
MESH__PRIVATE int mesh__fold_first(const mesh__fold *f, int role) {
    return role < f->extra ? role * 2 : role + f->extra;
}

/* The blocks that a range of roles ends up with, where it has them: v is cut by role or by rank. */
MESH__PRIVATE mesh__range mesh__fold_blocks(const mesh__fold *f, const mesh__view *v, int by_rank, int first,
                                            int last) {
    return mesh__blocks_of(v, by_rank ? mesh__fold_first(f, first) : first, by_rank ? mesh__fold_first(f, last) : last);
}

/* Before: who sits out gives its data (all of v) to its neighbour. */
MESH__PRIVATE void mesh__add_fold(mesh__schedule *s, const mesh__fold *f, const mesh__view *v, mesh__range all,
                                  unsigned char *scratch) {
    int me = s->me;
    if (me >= 2 * f->extra) return;
    mesh__add_post(s);
    if (f->role < 0)
        mesh__add_range(s, MESH_SEND, me + 1, v, all, NULL);
    else
        mesh__add_take(s, me - 1, v, all, scratch);
    mesh__add_wait(s);
    if (f->role >= 0) mesh__add_taken(s, v, all, scratch, 1);
}

/* After: it is given the result. */
MESH__PRIVATE void mesh__add_unfold(mesh__schedule *s, const mesh__fold *f, const mesh__view *v, mesh__range all) {
    int me = s->me;
    if (me >= 2 * f->extra) return;
    mesh__add_post(s);
    mesh__add_range(s, f->role < 0 ? MESH_RECV : MESH_SEND, f->role < 0 ? me + 1 : me - 1, v, all, NULL);
    mesh__add_wait(s);
}

/* Recursive doubling. Same bits everywhere: both sides combine the same two values in the same order. Source: Thakur, Rabenseifner,
   Gropp 2005. */
MESH__PRIVATE void mesh__build_doubling_reduce(mesh__schedule *s, const mesh__view *v) {
    mesh__fold f = mesh__fold_of(s);
    mesh__range all = mesh__all_of(v);
    unsigned char *scratch = mesh__scratch(s, v->total * s->elem_bytes);
    int mask;
    if (!scratch) return;
    mesh__add_fold(s, &f, v, all, scratch);
    for (mask = 1; f.role >= 0 && mask < f.power; mask *= 2) {
        int partner = mesh__fold_rank(&f, f.role ^ mask);
        mesh__add_post(s);
        mesh__add_range(s, MESH_SEND, partner, v, all, NULL);
        mesh__add_range(s, MESH_RECV, partner, v, all, scratch);
        mesh__add_wait(s);
        mesh__add_reduces(s, v, all, scratch, (f.role & mask) != 0);
    }
    if (f.role >= 0) mesh__add_divides(s, v, all);
    mesh__add_unfold(s, &f, v, all);
}

/* Recursive halving: role r is left with its own block reduced. */
MESH__PRIVATE void mesh__add_halving(mesh__schedule *s, const mesh__fold *f, const mesh__view *v, int by_rank,
                                     unsigned char *scratch) {
    int low = 0, high = f->power, mask;
    for (mask = f->power / 2; f->role >= 0 && mask > 0; mask /= 2) {
        int partner = mesh__fold_rank(f, f->role ^ mask), middle = low + mask, upper = (f->role & mask) != 0;
        mesh__range below = mesh__fold_blocks(f, v, by_rank, low, middle),
                    above = mesh__fold_blocks(f, v, by_rank, middle, high), keep = upper ? above : below;
        mesh__add_post(s);
        mesh__add_range(s, MESH_SEND, partner, v, upper ? below : above, NULL);
        mesh__add_take(s, partner, v, keep, scratch);
        mesh__add_wait(s);
        mesh__add_taken(s, v, keep, scratch, upper);
        low = upper ? middle : low;
        high = upper ? high : middle;
    }
}

/* Recursive halving, then doubling: every rank reduces a block of a power of two of them. Source: Rabenseifner 2004. */
MESH__PRIVATE void mesh__build_halving_doubling(mesh__schedule *s, const mesh__view *whole) {
    mesh__fold f = mesh__fold_of(s);
    mesh__view v = mesh__view_of(whole->part, whole->nparts, MESH__CHUNKS, f.power);
    mesh__range all = mesh__all_of(&v);
    unsigned char *scratch = mesh__scratch(s, v.total * s->elem_bytes);
    int low = f.role, high = f.role + 1, mask;
    if (!scratch) return;
    mesh__add_fold(s, &f, &v, all, scratch);
    mesh__add_halving(s, &f, &v, 0, scratch);
    if (f.role >= 0) mesh__add_divides(s, &v, mesh__blocks_of(&v, low, high));
    for (mask = 1; f.role >= 0 && mask < f.power; mask *= 2) {
        int partner = mesh__fold_rank(&f, f.role ^ mask), upper = (f.role & mask) != 0;
        int from = upper ? low - mask : high;
        mesh__add_post(s);
        mesh__add_range(s, MESH_SEND, partner, &v, mesh__blocks_of(&v, low, high), NULL);
        mesh__add_range(s, MESH_RECV, partner, &v, mesh__blocks_of(&v, from, from + mask), NULL);
        mesh__add_wait(s);
        low = upper ? low - mask : low;
        high = upper ? high : high + mask;
    }
    mesh__add_unfold(s, &f, &v, all);
}

/* Blocks are reduced as they travel round a ring, then travel round once more, a segment at a time: a segment is reduced and handed on
   while the next ones are under way. Source of the ring: Patarasuk, Yuan 2009. */
MESH__PRIVATE void mesh__build_ring_reduce(mesh__schedule *s, const mesh__view *v, size_t segment) {
    int n = s->size, me = s->me, depth;
    size_t segments = mesh__segments(mesh__block_of(v, 0), segment), most = v->each < segment ? v->each : segment;
    size_t slot = (most * s->elem_bytes + 63) & ~(size_t)63, reduced = (size_t)(n - 1) * segments, t;
    int post[3] = {0, 0, 0}; /* of items t, t-1, t-2: item t is a segment received and one sent */
    unsigned char *scratch = mesh__scratch(s, 3 * slot);
    if (!scratch) return;
    /* Items under way beside the one that is looked at: what item t sends is item t - segments. */
    depth = segments > 2 ? 2 : (int)segments - 1;
    for (t = 0; t < 2 * reduced + (size_t)depth; t++) {
        int k = (int)(t / segments);
        size_t j = t % segments, last = t - (size_t)depth;
        if (t < 2 * reduced) {
            mesh__range give = mesh__segment_of(mesh__block_of(v, (me - k - 1 + 2 * n) % n), segment, j);
            mesh__range take = mesh__segment_of(mesh__block_of(v, (me - k - 2 + 2 * n) % n), segment, j);
            post[2] = post[1];
            post[1] = post[0];
            post[0] = s->nsteps;
            mesh__add_post(s);
            /* of an empty buffer too, so that ranks meet */
            if (give.count || !v->total) mesh__add_range(s, MESH_SEND, (me + 1) % n, v, give, NULL);
            if ((take.count || !v->total) && t < reduced)
                mesh__add_take(s, (me - 1 + n) % n, v, take, scratch + t % 3 * slot);
            else if (take.count || !v->total)
                mesh__add_range(s, MESH_RECV, (me - 1 + n) % n, v, take, NULL);
        }
        if (t < (size_t)depth) continue;
        mesh__add_wait_before(s, t < 2 * reduced && depth ? post[depth - 1] : s->nsteps);
        if (last < reduced) {
            mesh__range r = mesh__block_of(v, (me - (int)(last / segments) - 2 + 2 * n) % n);
            r = mesh__segment_of(r, segment, last % segments);
            mesh__add_taken(s, v, r, scratch + last % 3 * slot, 1);
            if (last / segments == (size_t)n - 2) mesh__add_divides(s, v, r);
        }
    }
}

MESH__PRIVATE void mesh__build_all_reduce(mesh__schedule *s, const mesh__layout *b, int algorithm) {
    int n = s->size;
    if (algorithm == MESH_ALGORITHM_DIRECT && n - 1 <= MESH__ROUND) {
        mesh__build_reduce_blocks(s, b, &b->recv, mesh__block_of(&b->recv, s->me), MESH__HAND_ALL);
        return;
    }
    if (algorithm == MESH_ALGORITHM_DIRECT) {
        mesh__range mine = mesh__block_of(&b->recv, s->me);
        mesh__build_reduce_blocks(s, b, &b->recv, mine, MESH__KEEP);
        mesh__build_direct_gather(s, &b->recv, mine, &b->recv);
        return;
    }
    mesh__add_copies(s, &b->recv, mesh__all_of(&b->recv), &b->send, mesh__all_of(&b->send));
    if (algorithm == MESH_ALGORITHM_RING)
        mesh__build_ring_reduce(s, &b->recv, b->segment);
    else if (algorithm == MESH_ALGORITHM_HALVING)
        mesh__build_halving_doubling(s, &b->recv);
    else
        mesh__build_doubling_reduce(s, &b->recv);
}

/* A binomial tree whose inner ranks combine their children's data with their own. An op that does not commute goes to rank 0 first. */
MESH__PRIVATE void mesh__build_tree_reduce(mesh__schedule *s, const mesh__layout *b) {
    int n = s->size, me = s->me, mask, ordered = s->ordered;
    int top = ordered ? 0 : b->root, rel = (me - top + n) % n;
    size_t bytes = b->send.total * s->elem_bytes;
    unsigned char *scratch = mesh__scratch(s, bytes);
    unsigned char *acc = me == b->root && !rel ? b->recv.part->base : mesh__scratch(s, bytes);
    if (!scratch || s->out_of_memory) return;
    mesh__add_copy(s, acc, b->send.part->base, bytes);
    for (mask = 1; mask < n; mask *= 2) {
        mesh__add_post(s);
        if (rel & mask) {
            mesh__add_xfer(s, MESH_SEND, (rel - mask + top) % n, acc, bytes);
            mesh__add_wait(s);
            break;
        }
        if (rel + mask < n) {
            mesh__add_xfer(s, MESH_RECV, (rel + mask + top) % n, scratch, bytes);
            mesh__add_wait(s);
            mesh__add_reduce(s, acc, scratch, b->send.total, 0);
        }
    }
    if (!rel) mesh__add_divide(s, acc, b->send.total);
    if (top == b->root || (me != top && me != b->root)) return;
    mesh__add_post(s);
    mesh__add_xfer(s, me == top ? MESH_SEND : MESH_RECV, me == top ? b->root : top,
                   me == top ? acc : b->recv.part->base, bytes);
    mesh__add_wait(s);
}

/* Every rank reduces a block and hands it to the root: as it goes, but of more ranks than are served at once when it has all of it. */
MESH__PRIVATE void mesh__build_block_reduce(mesh__schedule *s, const mesh__layout *b) {
    int n = s->size, me = s->me, k, hand = n - 1 <= MESH__ROUND ? MESH__HAND_ROOT : MESH__KEEP;
    mesh__range mine = mesh__block_of(&b->send, me);
    mesh__part part = mesh__part_of(NULL, mine.count);
    mesh__view acc;
    if (hand && mesh__segments(mine, b->segment) > 2) part.count = 2 * b->segment;
    if (me != b->root && !(part.base = mesh__scratch(s, part.count * s->elem_bytes))) return;
    acc = me == b->root ? b->recv : mesh__view_of(&part, 1, MESH__CHUNKS, 1);
    if (me != b->root) mine.at = 0;
    mesh__build_reduce_blocks(s, b, &acc, mine, hand);
    if (hand) return;
    if (me != b->root) {
        mesh__add_post(s);
        mesh__add_range(s, MESH_SEND, b->root, &acc, mesh__all_of(&acc), NULL);
    }
    for (k = 1; me == b->root && k < n; k++) {
        mesh__add_round(s, k);
        mesh__add_range(s, MESH_RECV, (me + k) % n, &b->recv, mesh__block_of(&b->recv, (me + k) % n), NULL);
    }
    mesh__add_wait(s);
}

/* The root cuts the data among the others; each hands its block to all of them, a segment behind. Source: van de Geijn's
   scatter-allgather. */
MESH__PRIVATE void mesh__build_scatter_broadcast(mesh__schedule *s, const mesh__layout *b) {
    int n = s->size, me = s->me, root = b->root, k, before = 0;
    mesh__view cut = mesh__view_of(b->recv.part, b->recv.nparts, MESH__CHUNKS, n - 1);
    const mesh__view *v = &cut;
    int block = (me - root - 1 + n) % n; /* mine; the root has none */
    size_t segment = b->segment, most = mesh__segments(mesh__block_of(v, 0), segment), j, done = 0;
    for (j = 0; j < most; j++) {
        for (; done < most && done < j + 2; done++) {
            before = s->nsteps;
            mesh__add_post(s);
            for (k = 0; k < n - 1; k++) {
                mesh__range r = mesh__block_of(v, k);
                if ((me != root && k != block) || done >= mesh__segments(r, segment)) continue;
                mesh__add_range(s, me == root ? MESH_SEND : MESH_RECV, me == root ? (root + 1 + k) % n : root, v,
                                mesh__segment_of(r, segment, done), NULL);
            }
        }
        mesh__add_wait_before(s, j + 1 < most ? before : s->nsteps);
        mesh__add_post(s);
        for (k = 1; k < n - 1 && me != root; k++) {
            int to = (block + k) % (n - 1), from = (block - k + n - 1) % (n - 1);
            mesh__range mine = mesh__block_of(v, block), theirs = mesh__block_of(v, from);
            if (j < mesh__segments(mine, segment))
                mesh__add_range(s, MESH_SEND, (root + 1 + to) % n, v, mesh__segment_of(mine, segment, j), NULL);
            if (j < mesh__segments(theirs, segment))
                mesh__add_range(s, MESH_RECV, (root + 1 + from) % n, v, mesh__segment_of(theirs, segment, j), NULL);
        }
    }
    mesh__add_wait(s);
}

MESH__PRIVATE void mesh__build_broadcast(mesh__schedule *s, const mesh__layout *b, int algorithm) {
    if (s->me == b->root) mesh__add_copies(s, &b->recv, mesh__all_of(&b->recv), &b->send, mesh__all_of(&b->send));
    if (algorithm == MESH_ALGORITHM_SCATTER)
        mesh__build_scatter_broadcast(s, b);
    else if (algorithm == MESH_ALGORITHM_CHAIN)
        mesh__build_chain(s, &b->recv, b->root, b->segment);
    else
        mesh__build_tree(s, &b->recv, b->root);
}

MESH__PRIVATE void mesh__build_all_gather(mesh__schedule *s, const mesh__layout *b, int algorithm) {
    mesh__range own = mesh__block_of(&b->recv, s->me), all = mesh__all_of(&b->send);
    if (algorithm == MESH_ALGORITHM_BRUCK) {
        mesh__build_bruck_gather(s, b);
        return;
    }
    mesh__add_copies(s, &b->recv, own, &b->send, all);
    if (algorithm == MESH_ALGORITHM_RING)
        mesh__build_ring_gather(s, &b->recv);
    else if (algorithm == MESH_ALGORITHM_DOUBLING && (s->size & (s->size - 1)) == 0)
        mesh__build_doubling_gather(s, &b->recv);
    else
        mesh__build_direct_gather(s, &b->send, all, &b->recv);
}

/* Recursive halving over blocks that are neighbours; who sits out is given its block at the end. */
MESH__PRIVATE void mesh__build_halving_scatter(mesh__schedule *s, const mesh__layout *b) {
    int n = s->size, me = s->me;
    mesh__fold f = mesh__fold_of(s);
    size_t total = b->send.each * (size_t)n;
    unsigned char *work = mesh__scratch(s, total * s->elem_bytes), *scratch = mesh__scratch(s, total * s->elem_bytes);
    mesh__part part;
    mesh__view v;
    int k;
    if (s->out_of_memory) return;
    part = mesh__part_of(work, total);
    v = mesh__view_of(&part, 1, MESH__CHUNKS, n);
    for (k = 0; k < n; k++) mesh__add_copies(s, &v, mesh__block_of(&v, k), &b->send, mesh__block_of(&b->send, k));
    mesh__add_fold(s, &f, &v, mesh__all_of(&v), scratch);
    mesh__add_halving(s, &f, &v, 1, scratch);
    if (me < 2 * f.extra) {
        mesh__add_post(s);
        if (f.role < 0)
            mesh__add_range(s, MESH_RECV, me + 1, &v, mesh__block_of(&v, me), NULL);
        else
            mesh__add_range(s, MESH_SEND, me - 1, &v, mesh__block_of(&v, me - 1), NULL);
        mesh__add_wait(s);
    }
    mesh__add_copies(s, &b->recv, mesh__all_of(&b->recv), &v, mesh__block_of(&v, me));
    mesh__add_divides(s, &b->recv, mesh__all_of(&b->recv));
}

MESH__PRIVATE void mesh__build_reduce_scatter(mesh__schedule *s, const mesh__layout *b, int algorithm) {
    if (s->ordered)
        mesh__build_reduce_ordered(s, b, &b->recv, mesh__all_of(&b->recv));
    else if (algorithm == MESH_ALGORITHM_HALVING)
        mesh__build_halving_scatter(s, b);
    else
        mesh__build_reduce_blocks(s, b, &b->recv, mesh__all_of(&b->recv), MESH__KEEP);
}

/* Blocks move in log2 n rounds: in round k those whose distance has bit k go on by 2^k. Source: Bruck et al. 1997. */
MESH__PRIVATE void mesh__build_bruck_all_to_all(mesh__schedule *s, const mesh__layout *b) {
    int n = s->size, me = s->me, k, i;
    size_t bytes = b->send.each * s->elem_bytes;
    unsigned char *turned = mesh__scratch(s, bytes * (size_t)n), *out = mesh__scratch(s, bytes * (size_t)n),
                  *in = mesh__scratch(s, bytes * (size_t)n);
    if (s->out_of_memory) return;
    for (i = 0; i < n; i++)
        mesh__add_copy(s, turned + (size_t)i * bytes, mesh__byte(b->send.part->base, (size_t)((me + i) % n) * bytes),
                       bytes);
    for (k = 1; k < n; k *= 2) {
        size_t some = 0;
        for (i = 0; i < n; i++)
            if (i & k) mesh__add_copy(s, out + some++ * bytes, turned + (size_t)i * bytes, bytes);
        mesh__add_post(s);
        mesh__add_xfer(s, MESH_SEND, (me + k) % n, out, some * bytes);
        mesh__add_xfer(s, MESH_RECV, (me - k + n) % n, in, some * bytes);
        mesh__add_wait(s);
        for (i = 0, some = 0; i < n; i++)
            if (i & k) mesh__add_copy(s, turned + (size_t)i * bytes, in + some++ * bytes, bytes);
    }
    for (i = 0; i < n; i++)
        mesh__add_copy(s, mesh__byte(b->recv.part->base, (size_t)((me - i + n) % n) * bytes),
                       turned + (size_t)i * bytes, bytes);
}

MESH__PRIVATE void mesh__build_all_to_all(mesh__schedule *s, const mesh__layout *b, int algorithm) {
    int n = s->size, me = s->me, k;
    mesh__view send = b->send;
    mesh__part part = *b->send.part;
    if (algorithm == MESH_ALGORITHM_BRUCK) {
        mesh__build_bruck_all_to_all(s, b);
        return;
    }
    send.part = &part;
    if (part.base == b->recv.part->base && part.count && n > 1) {
        size_t bytes = part.count * (size_t)n * s->elem_bytes;
        if (!(part.base = mesh__scratch(s, bytes))) return;
        mesh__add_copy(s, part.base, b->recv.part->base, bytes);
    }
    mesh__add_copies(s, &b->recv, mesh__block_of(&b->recv, me), &send, mesh__block_of(&send, me));
    for (k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me - k + n) % n;
        mesh__add_round(s, k);
        mesh__add_range(s, MESH_SEND, to, &send, mesh__block_of(&send, to), NULL);
        mesh__add_range(s, MESH_RECV, from, &b->recv, mesh__block_of(&b->recv, from), NULL);
    }
    mesh__add_wait(s);
}

/* gather and scatter are each other's mirror image. `all` is the root's view of blocks, `own` everyone's piece. */
MESH__PRIVATE void mesh__build_direct_rooted(mesh__schedule *s, const mesh__layout *b, int gather) {
    int n = s->size, me = s->me, k;
    const mesh__view *own = gather ? &b->send : &b->recv, *all = gather ? &b->recv : &b->send;
    if (me == b->root && gather)
        mesh__add_copies(s, all, mesh__block_of(all, me), own, mesh__all_of(own));
    else if (me == b->root)
        mesh__add_copies(s, own, mesh__all_of(own), all, mesh__block_of(all, me));
    for (k = 1; me == b->root && k < n; k++) {
        mesh__add_round(s, k);
        mesh__add_range(s, gather ? MESH_RECV : MESH_SEND, (me + k) % n, all, mesh__block_of(all, (me + k) % n), NULL);
    }
    if (me != b->root) {
        mesh__add_post(s);
        mesh__add_range(s, gather ? MESH_SEND : MESH_RECV, b->root, own, mesh__all_of(own), NULL);
    }
    mesh__add_wait(s);
}

/* A binomial tree: the rank at distance d from the root deals with blocks d .. d + its lowest bit. */
MESH__PRIVATE void mesh__build_tree_rooted(mesh__schedule *s, const mesh__layout *b, int gather) {
    int n = s->size, me = s->me, rel = (me - b->root + n) % n, mask, below = 1, i;
    const mesh__view *own = gather ? &b->send : &b->recv, *all = gather ? &b->recv : &b->send;
    size_t bytes = own->total * s->elem_bytes;
    unsigned char *held;
    while (below < n && !(rel & below)) below *= 2;
    mask = below;
    if (below > n - rel) below = n - rel;
    held = mesh__scratch(s, bytes * (size_t)below);
    if (!held) return;
    if (gather) mesh__add_copy(s, held, own->part->base, bytes);
    for (i = 0; !gather && rel == 0 && i < n; i++)
        mesh__add_copy(s, held + (size_t)i * bytes, mesh__byte(all->part->base, (size_t)((b->root + i) % n) * bytes),
                       bytes);
    if (!gather && rel) {
        mesh__add_post(s);
        mesh__add_xfer(s, MESH_RECV, (rel - mask + b->root) % n, held, bytes * (size_t)below);
        mesh__add_wait(s);
    }
    mesh__add_post(s);
    for (mask /= 2; mask > 0; mask /= 2) {
        int child = rel + mask, count = mask < n - child ? mask : n - child;
        if (child < n)
            mesh__add_xfer(s, gather ? MESH_RECV : MESH_SEND, (child + b->root) % n, held + (size_t)mask * bytes,
                           bytes * (size_t)count);
    }
    mesh__add_wait(s);
    if (gather && rel) {
        for (mask = 1; !(rel & mask);) mask *= 2;
        mesh__add_post(s);
        mesh__add_xfer(s, MESH_SEND, (rel - mask + b->root) % n, held, bytes * (size_t)below);
        mesh__add_wait(s);
    }
    for (i = 0; gather && rel == 0 && i < n; i++)
        mesh__add_copy(s, mesh__byte(all->part->base, (size_t)((b->root + i) % n) * bytes), held + (size_t)i * bytes,
                       bytes);
    if (!gather) mesh__add_copy(s, own->part->base, held, bytes);
}

/* In round k every rank adds what the rank 2^k before has added up. Source: Hillis, Steele 1986. */
MESH__PRIVATE void mesh__build_doubling_scan(mesh__schedule *s, const mesh__layout *b, int exclusive) {
    int n = s->size, me = s->me, k, first = 1;
    size_t count = b->send.total, bytes = count * s->elem_bytes;
    unsigned char *result = b->recv.part->base, *scratch = mesh__scratch(s, bytes),
                  *sum = exclusive ? mesh__scratch(s, bytes) : result;
    if (s->out_of_memory) return;
    mesh__add_copy(s, sum, b->send.part->base, bytes);
    for (k = 1; k < n; k *= 2) {
        mesh__add_post(s);
        if (me + k < n) mesh__add_xfer(s, MESH_SEND, me + k, sum, bytes);
        if (me - k >= 0) mesh__add_xfer(s, MESH_RECV, me - k, scratch, bytes);
        mesh__add_wait(s);
        if (me - k < 0) continue;
        if (exclusive && first)
            mesh__add_copy(s, result, scratch, bytes);
        else if (exclusive)
            mesh__add_reduce(s, result, scratch, count, 1);
        mesh__add_reduce(s, sum, scratch, count, 1);
        first = 0;
    }
}

/* Segments pass from rank to rank, each adding its own. */
MESH__PRIVATE void mesh__build_chain_scan(mesh__schedule *s, const mesh__layout *b, int exclusive) {
    int n = s->size, me = s->me, post = s->nsteps;
    mesh__range all = mesh__all_of(&b->send);
    size_t segments = mesh__segments(all, b->segment), j, most = all.count < b->segment ? all.count : b->segment;
    size_t slot = (most * s->elem_bytes + 63) & ~(size_t)63;
    unsigned char *in = mesh__scratch(s, 2 * slot), *out = mesh__scratch(s, 2 * slot);
    if (s->out_of_memory) return;
    mesh__add_post(s);
    if (me) mesh__add_range(s, MESH_RECV, me - 1, &b->send, mesh__segment_of(all, b->segment, 0), in);
    for (j = 0; j < segments; j++) {
        mesh__range r = mesh__segment_of(all, b->segment, j);
        unsigned char *got = in + (j & 1) * slot, *next = out + (j & 1) * slot;
        unsigned char *result = mesh__byte(b->recv.part->base, r.at * s->elem_bytes),
                      *mine = mesh__byte(b->send.part->base, r.at * s->elem_bytes);
        mesh__add_wait_before(s, post + 1); /* segment j has come, and j-2 has gone */
        mesh__add_copy(s, next, mine, r.count * s->elem_bytes);
        if (me) mesh__add_reduce(s, next, got, r.count, 1);
        if (!exclusive) mesh__add_copy(s, result, next, r.count * s->elem_bytes);
        if (exclusive && me) mesh__add_copy(s, result, got, r.count * s->elem_bytes);
        post = s->nsteps;
        mesh__add_post(s);
        if (me && j + 1 < segments)
            mesh__add_range(s, MESH_RECV, me - 1, &b->send, mesh__segment_of(all, b->segment, j + 1),
                            in + ((j + 1) & 1) * slot);
        if (me + 1 < n) mesh__add_range(s, MESH_SEND, me + 1, &b->send, r, next);
    }
    mesh__add_wait(s);
}

/* ---- // >>choice: which algorithm serves a call ---- */

enum { MESH__SEGMENTS = 1 << 16 }; /* of a pipeline at most: more elements (by mistake, too) go in larger ones */

/* The elements that a pipeline moves in one step: of so many bytes, out of so many elements in all. */
MESH__PRIVATE size_t mesh__segment_for(const mesh__schedule *s, size_t bytes, size_t total) {
    size_t segment = bytes / s->elem_bytes, least = total / MESH__SEGMENTS + 1;
    return segment > least ? segment : least;
}

/* The algorithm of a call, and the elements its pipelines move in one step. `total`: elements of the larger side, the same on every rank. */
MESH__PRIVATE int mesh__choose(const mesh__schedule *s, int kind, size_t bytes, size_t total, size_t *segment) {
    const mesh_tuning *t = s->tuning;
    int n = s->size, i, levels = s->host && !s->ordered;
    mesh_tuning_row chosen = mesh__built_in(kind, n, bytes);
    if (levels && mesh__levels_help(kind, n, bytes, s->scattered)) chosen.algorithm = MESH_ALGORITHM_LEVELS;
    for (i = 0; t && i < t->nrows; i++) {
        const mesh_tuning_row *row = &t->row[i];
        if (row->call != kind || (n > row->ranks && row->ranks != UINT16_MAX) || bytes > row->bytes ||
            !mesh_algorithm_serves((mesh_algorithm)row->algorithm, kind) ||
            (row->algorithm == MESH_ALGORITHM_LEVELS && !levels))
            continue;
        chosen.algorithm = row->algorithm;
        if (row->segment) chosen.segment = row->segment;
        break;
    }
    *segment = mesh__segment_for(s, chosen.segment, total);
    return chosen.algorithm;
}
#endif /* MESH_ALGORITHMS_IMPLEMENTED */
