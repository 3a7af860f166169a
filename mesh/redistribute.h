/* mesh/redistribute.h - move tensors from one layout to another: runs plans. Part of mesh.h 0.1.0. MIT licence.

   Includes stages.h.

DO THIS
    Nothing: mesh_collectives.h includes it.

EXAMPLE
    int64_t shape[2] = {4096, 1024};
    mesh_tensor rows, columns;
    mesh_tensor_make(&rows, &m, "dp:S(0) tp:R", MESH_F32, 2, shape, &err);
    mesh_tensor_make(&columns, &m, "dp:R tp:S(1)", MESH_F32, 2, shape, &err);
    rows.data = a, columns.data = b;
    mesh_redistribute(&comm, &rows, &columns);

    Bytes go straight from one tensor's memory to the other's, strided at both ends, by the plan of plan.h, which any rank (and
    `mesh plan`) can print beforehand. A comm keeps the last 64 plans (430 KB from the first on), so that the search is for the first time only. What
    then is left but the messages, mesh_keep of a request and mesh_restart spare as well.

CONVENTIONS
    Every rank of the comm calls with the same shapes and layouts; a rank that is in one of the meshes only gives NULL for the other data.
    What differs from one group to the next (each pipeline stage's own tensors) goes over a comm of the group's own (mesh_group_through, mesh_comm_open): on the
    whole comm ranks that exchange nothing there are told of other layouts only by the next call that all of them are in.
    Source and destination do not overlap in memory, but where one is a part of the other: each element of the smaller lies where it lies in the
    larger (a gradient reduced onto this rank's shard of the same buffer, weights gathered around their shard; the same data in both where every
    rank's part is the same box, as of R and I, and of P where it keeps its summand). Then the source is lost. Strided parts that lie between each
    other's rows (blocks of columns of one array) do not overlap; those of strides that do not nest may be told as if they did. A list is one operation: what goes from one rank to another goes as few messages.
    dst.add: what arrives is added to what is there: the result is that of a redistribution to memory of its own, added.
    Floats of two dtypes (f16, bf16, f32, f64; host memory): summands travel in the source's, are added in the wider (f32 of f16 and bf16) and rounded
    once to the destination's, in which what is reduced travels on. Where nothing is reduced the narrower travels. Neither overlaps its source.
    What of a plan of one move a rank has itself, all of it, is converted or added straight from memory to memory, without scratch.
    Of such tensors plan.bytes counts elements of the source's where it is partial, else of the narrower; under a scratch cap of the widest on the way.
    Under a scratch cap a list is done in rounds, of as many tensors as fit with the copies that they need.
    Plans use the topology and the scratch cap that the comm's first rank gave when it was opened.
    Bytes of the schedule itself (some 300 per message) are no scratch. Big-endian hosts use more of it: what they send is turned there.
    Large moves that are but an all_gather or an all_reduce along an open group are such a call, where there is no scratch cap.
*/
#if !defined(MESH_REDISTRIBUTE_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_REDISTRIBUTE_IMPLEMENTED))
#include "stages.h"
#endif

#ifndef MESH_REDISTRIBUTE_H
#define MESH_REDISTRIBUTE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Give dst what src says. ARGUMENT: tensors of different shape, dtypes of which one is not made of the other, specs that do not fit, a part that is NULL or not of its box's
   shape, parts that overlap, a rank in neither mesh or of another comm. UNSUPPORTED: a reduction that the dtype has not. MEMORY: no plan
   within the scratch cap, whose least is named. MISMATCH: ranks that gave different layouts. */
MESH_API mesh_status mesh_redistribute(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst);
MESH_API mesh_status mesh_redistribute_start(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst,
                                             mesh_request *r);
/* A list of tensors, of any dtypes and reductions, in one operation. */
MESH_API mesh_status mesh_redistribute_many(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst, int count);
MESH_API mesh_status mesh_redistribute_many_start(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst,
                                                  int count, mesh_request *r);
/* By plans made before (mesh_redistribute_plan, the same on every rank): what is spared is the search. */
MESH_API mesh_status mesh_redistribute_planned_start(mesh_comm *c, const mesh_plan *plans, const mesh_tensor *src,
                                                     const mesh_tensor *dst, int count, mesh_request *r);
/* The plan of a redistribution on this comm. Local; errors as above, in err, and the comm does not fail. */
MESH_API mesh_status mesh_redistribute_plan(const mesh_comm *c, mesh_plan *plan, const mesh_tensor *src,
                                            const mesh_tensor *dst, mesh_error *err);
/* Bytes of scratch this rank will use for a list, before it is done. */
MESH_API mesh_status mesh_redistribute_scratch_bytes(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst,
                                                     int count, int64_t *nbytes, mesh_error *err);

#ifdef __cplusplus
}
#endif
#endif /* MESH_REDISTRIBUTE_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_REDISTRIBUTE_IMPLEMENTED)
#define MESH_REDISTRIBUTE_IMPLEMENTED

/* ---- // >>redistribute: calls ---- */

/* This rank's part of a tensor, and whether what the caller says of it is so. */
MESH__PRIVATE mesh_status mesh__tensor_place(const mesh_tensor *t, const char *which, int rank, mesh__place_of *p,
                                             mesh_error *err) {
    mesh_box box;
    int ndim = t->layout.ndim;
    int64_t elem = mesh__tensor_elem(t);
    memset(&box, 0, sizeof box);
    box.ndim = ndim;
    if (mesh_layout_box(&t->layout, rank, &box) < 0) {
        box.shape[0] = 0;
        *p = mesh__dense(NULL, &box, elem);
        return MESH_OK;
    }
    *p = mesh__dense(t->data, &box, elem);
    if (mesh__local_check(t, which, rank, &box, err) != MESH_OK) return MESH_ERR_ARGUMENT;
    if (t->strides && mesh_box_count(&box) &&
        mesh__strides_place(t->strides, &box, elem, p->stride, which, rank, err) != MESH_OK)
        return MESH_ERR_ARGUMENT;
    if (!t->data && mesh_box_count(&box))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%s: the data is NULL, but rank %d holds %l elements", which,
                          rank, mesh_box_count(&box));
    return MESH_OK;
}

/* The same part as the plan sees it: dims that it takes apart are two. */
MESH__PRIVATE void mesh__place_view(mesh__place_of *place, const mesh_plan *p, int side, int rank) {
    const mesh_view *v = &p->view;
    mesh__place_of seen = *place;
    mesh_layout layout;
    int d;
    if (v->ndim == p->ndim) return;
    seen.box.ndim = v->ndim;
    for (d = v->ndim - 1; d >= 0; d--) {
        int apart = d + 1 < v->ndim && v->dim[d + 1] == v->dim[d];
        seen.stride[d] = apart ? seen.stride[d + 1] * v->shape[d + 1] : place->stride[v->dim[d]];
    }
    layout = mesh__view_layout(p, &p->at[side], side ? &v->to : &v->from);
    if (mesh_layout_box(&layout, rank, &seen.box) < 0) seen.box.shape[0] = 0;
    *place = seen;
}

/* Bytes from the first to the last element of a part. */
MESH__PRIVATE size_t mesh__place_bytes(const mesh__place_of *p, int64_t elem) {
    int64_t span = elem;
    int d;
    if (!p->base || (p->box.ndim > 0 && !mesh_box_count(&p->box))) return 0;
    for (d = 0; d < p->box.ndim; d++) span += (p->box.shape[d] - 1) * p->stride[d];
    return (size_t)span;
}

/* A part's dims of more than one element, the widest stride first. */
typedef struct mesh__comb {
    int n;
    int64_t elem, stride[MESH_MAX_DIMS], count[MESH_MAX_DIMS];
} mesh__comb;

MESH__PRIVATE mesh__comb mesh__comb_of(const mesh__place_of *p, int64_t elem) {
    mesh__comb c;
    int d, k;
    c.n = 0;
    c.elem = elem;
    for (d = 0; d < p->box.ndim; d++) {
        if (p->box.shape[d] == 1) continue;
        for (k = c.n++; k > 0 && c.stride[k - 1] < p->stride[d]; k--)
            c.stride[k] = c.stride[k - 1], c.count[k] = c.count[k - 1];
        c.stride[k] = p->stride[d], c.count[k] = p->box.shape[d];
    }
    return c;
}

/* Bytes from the first to the last element, in the dims from `dim` on. */
MESH__PRIVATE int64_t mesh__comb_span(const mesh__comb *c, int dim) {
    int64_t span = c->elem;
    for (; dim < c->n; dim++) span += (c->count[dim] - 1) * c->stride[dim];
    return span;
}

/* Can a and b, which begins `by` bytes behind it, have a byte in common? Along the widest stride of the two both are made of blocks; where none is
   wider than that stride, of each pair of blocks that are near each other (at most two places) the same is asked. */
MESH__PRIVATE int mesh__combs_meet(const mesh__comb *a, int i, const mesh__comb *b, int j, int64_t by) {
    int64_t stride, k, first, last, of_a = mesh__comb_span(a, i), of_b = mesh__comb_span(b, j), na = 1, nb = 1;
    if (by >= of_a || by <= -of_b) return 0;
    if (i == a->n && j == b->n) return 1;
    stride = i == a->n || (j < b->n && b->stride[j] > a->stride[i]) ? b->stride[j] : a->stride[i];
    if (i < a->n && a->stride[i] == stride) na = a->count[i++];
    if (j < b->n && b->stride[j] == stride) nb = b->count[j++];
    of_a = mesh__comb_span(a, i), of_b = mesh__comb_span(b, j);
    if (of_a > stride || of_b > stride) return 1; /* not seen apart */
    first = -by / stride - 2, last = -by / stride + 2;
    for (k = first > 1 - na ? first : 1 - na; k <= last && k < nb; k++)
        if (mesh__combs_meet(a, i, b, j, by + k * stride)) return 1;
    return 0;
}

/* Do two parts overlap? Blocks of columns of one array do not, though they lie between each other's rows. */
MESH__PRIVATE int mesh__places_meet(const mesh__place_of *a, int64_t a_elem, const mesh__place_of *b, int64_t b_elem) {
    mesh__comb x, y;
    if (!mesh__overlap(a->base, mesh__place_bytes(a, a_elem), b->base, mesh__place_bytes(b, b_elem))) return 0;
    x = mesh__comb_of(a, a_elem), y = mesh__comb_of(b, b_elem);
    return mesh__combs_meet(&x, 0, &y, 0, b->base - a->base);
}

/* Is one part within another: does each of its elements lie where it lies in there? */
MESH__PRIVATE int mesh__lies_in(const mesh__place_of *a, const mesh__place_of *b) {
    int d;
    for (d = 0; d < a->box.ndim; d++)
        if (a->box.offset[d] < b->box.offset[d] ||
            a->box.offset[d] + a->box.shape[d] > b->box.offset[d] + b->box.shape[d] ||
            (a->box.shape[d] > 1 && a->stride[d] != b->stride[d]))
            return 0;
    return a->base == mesh__address(b, &a->box);
}

/* Source and destination share memory. Can that be, element by element; and is nothing received where something else is still to be sent from? */
MESH__PRIVATE int mesh__in_place(const mesh__task *t, int rank) {
    mesh_moves it;
    int k, rounds = mesh__in_rounds(t->plan);
    if (!mesh__lies_in(&t->at[0], &t->last) && !mesh__lies_in(&t->last, &t->at[0])) return 0;
    for (k = 0; k < t->plan->nsteps && rounds; k++) {
        mesh__moves_layouts(&it, t->plan, k);
        if (it.made_partial) return 0;
    }
    if (t->plan->step[0].kind == MESH_STEP_REDUCE) return 1; /* what comes is staged */
    return !mesh__touches_own(t->plan, 0, rank, MESH_MOVE_RECV);
}

/* Does what a task receives overlap what another receives or sends? Seen by extents first, for those are compared in one pass. */
MESH__PRIVATE mesh_status mesh__tasks_apart(const mesh_comm *c, const mesh__task *task, int count, int first,
                                            mesh_error *err) {
    mesh__extents list;
    int i, k, other = -1;
    if (count < 2) return MESH_OK;
    if (!mesh__extents_open(&list, c->transport, 2 * (size_t)count))
        return mesh__fail(err, MESH_ERR_MEMORY, c->transport->rank, "no memory to compare %d tensors", count);
    for (i = 0; i < count; i++) {
        const mesh__task *t = &task[i];
        mesh__extents_add(&list, t->at[0].base, mesh__place_bytes(&t->at[0], t->elem[0]), i, 0);
        mesh__extents_add(&list, t->last.base, mesh__place_bytes(&t->last, t->elem[1]), i, 1);
    }
    if (mesh__extents_close(&list, c->transport, &other) < 0) return MESH_OK;
    for (i = 1; i < count; i++)
        for (k = 0; k < i; k++) {
            const mesh__task *a = &task[k], *b = &task[i];
            if (mesh__places_meet(&a->last, a->elem[1], &b->last, b->elem[1]) ||
                mesh__places_meet(&a->last, a->elem[1], &b->at[0], b->elem[0]) ||
                mesh__places_meet(&a->at[0], a->elem[0], &b->last, b->elem[1]))
                return mesh__fail(err, MESH_ERR_ARGUMENT, c->transport->rank,
                                  "what tensor %d or %d receives overlaps the other", first + k, first + i);
        }
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__tensors_check(const mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst,
                                              mesh_error *err) {
    int i, side, rank = c->transport->rank;
    const mesh_tensor *both[2];
    const mesh *on;
    both[0] = src;
    both[1] = dst;
    for (side = 0; side < 2; side++) {
        const mesh_tensor *t = both[side];
        const char *which = side ? "destination" : "source";
        if (!t->layout.on) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: layout.on, its mesh, is NULL", which);
        if (mesh__elements_check(t, which, err) != MESH_OK) return MESH_ERR_ARGUMENT;
        if (t->layout.ndim < 0 || t->layout.ndim > MESH_MAX_DIMS)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %d dims; 0 to %d are possible", which, t->layout.ndim,
                              MESH_MAX_DIMS);
        on = t->layout.on;
        if (mesh_equal(on, &c->on)) continue;
        for (i = 0; i < on->size; i++)
            if (mesh_index_of(&c->on, mesh_rank_at(on, i)) < 0)
                return mesh__fail(err, MESH_ERR_ARGUMENT, mesh_rank_at(on, i),
                                  "%s: its mesh \"%s\" holds rank %d, which is not in the comm's", which,
                                  mesh__show(on).text, mesh_rank_at(on, i));
    }
    if (src->dtype != dst->dtype && (!mesh__converts(src->dtype) || !mesh__converts(dst->dtype)))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "source and destination are %s and %s; f16, bf16, f32 and f64 are made of each other: convert "
            "first",
            mesh_dtype_name(src->dtype), mesh_dtype_name(dst->dtype));
    if (src->dtype != dst->dtype && c->transport->caps & MESH_CAP_DEVICE)
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, -1,
                          "source and destination are %s and %s, in memory that is not the host's; convert first",
                          mesh_dtype_name(src->dtype), mesh_dtype_name(dst->dtype));
    if (dst->add && !mesh__reducible((int)dst->dtype, MESH_SUM))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "the destination's add is set, but %s is not added",
                          mesh_dtype_name(dst->dtype));
    if (src->dtype == dst->dtype && mesh__tensor_elem(src) != mesh__tensor_elem(dst))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "elements are of %l bytes in the source and of %l in the destination", mesh__tensor_elem(src),
                          mesh__tensor_elem(dst));
    if (mesh_index_of(src->layout.on, rank) < 0 && mesh_index_of(dst->layout.on, rank) < 0)
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, rank,
            "rank %d is neither in the source's mesh nor in the destination's; let a comm of theirs do it", rank);
    return MESH_OK;
}

/* The largest part of a tensor, in bytes; that of the first coordinates. */
MESH__PRIVATE int64_t mesh__largest_part(const mesh_tensor *t, int64_t elem) {
    mesh_box box;
    mesh_layout_box(&t->layout, mesh_rank_at(t->layout.on, 0), &box);
    return (int64_t)mesh__rounded(mesh_box_count(&box) * elem);
}

/* What a plan is asked for; under a cap with the largest element on the way, and with what copies of the ends take: of a tensor that is only moved the end that
   travels as the other one, and whatever is added to; where it is reduced at last, a destination of another dtype than the sum's that is added to. */
MESH__PRIVATE void mesh__tensor_desc(const mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst,
                                     mesh_plan_desc *d) {
    int64_t in = mesh__tensor_elem(src), out = mesh__tensor_elem(dst);
    int mixed = src->dtype != dst->dtype;
    mesh_dtype wide = mixed ? mesh__wide_of(src->dtype, dst->dtype) : dst->dtype;
    memset(d, 0, sizeof *d);
    d->src = &src->layout;
    d->dst = &dst->layout;
    d->dtype = src->dtype;
    d->elem_bytes = mesh__layout_op(&src->layout) >= 0 || in < out ? in : out;
    d->topology = &mesh__impl(c)->topology;
    d->scratch_cap = mesh__impl(c)->scratch_cap;
    if (!d->scratch_cap || (!mixed && !dst->add)) return;
    d->apart = 1;
    if (mixed) d->elem_bytes = (int64_t)mesh_dtype_bytes(wide);
    if (mixed && in >= out) d->copies[0] = mesh__largest_part(src, out);
    if (dst->add || in < out) d->copies[0] = mesh__add64(d->copies[0], mesh__largest_part(dst, out));
    if (dst->add && wide != dst->dtype) d->copies[1] = mesh__largest_part(dst, out);
}

MESH__PRIVATE mesh_status mesh__plan_reducible(const mesh_plan *p, mesh_error *err) {
    int k;
    for (k = 0; k < p->nsteps; k++)
        if (p->step[k].kind == MESH_STEP_REDUCE && !mesh__reducible((int)p->dtype, p->op))
            return mesh__fail(err, MESH_ERR_UNSUPPORTED, -1, "%s of %s is not supported; see MESH_REDUCTIONS",
                              mesh_op_name((mesh_op)p->op), mesh_dtype_name(p->dtype));
    return MESH_OK;
}

/* Is a layout what the plan begins (0) or ends (1) with? */
MESH__PRIVATE int mesh__is_plans(const mesh_plan *p, int side, const mesh_layout *l) {
    int d, same = p->ndim == l->ndim && mesh_equal(&p->at[side], l->on) &&
                  mesh_spec_equal(side ? &p->to : &p->from, &l->spec);
    for (d = 0; d < p->ndim && same; d++) same = p->shape[d] == l->shape[d];
    return same;
}

/* The plans of the last redistributions: a step comes again and again, and a search takes 5 to 300 us. In sets, found by their key. */
enum { MESH__PLAN_SETS = 16, MESH__PLANS_OF_SET = 4 };
typedef struct mesh__plans {
    uint64_t key[MESH__PLAN_SETS][MESH__PLANS_OF_SET]; /* 0: none */
    int64_t cap[MESH__PLAN_SETS][MESH__PLANS_OF_SET];
    uint64_t stamp[MESH__PLAN_SETS][MESH__PLANS_OF_SET]; /* no other plan has had it */
    unsigned char next[MESH__PLAN_SETS];                 /* makes room */
    mesh_plan plan[MESH__PLAN_SETS][MESH__PLANS_OF_SET];
} mesh__plans;

MESH__PRIVATE uint64_t mesh__desc_key(const mesh_plan_desc *desc) {
    uint64_t h = mesh__spec_hash(mesh__spec_hash((uint64_t)desc->elem_bytes, &desc->src->spec), &desc->dst->spec);
    int d;
    for (d = 0; d < desc->src->ndim; d++) h = mesh__mix(h, (uint64_t)desc->src->shape[d]);
    if (desc->apart) h = mesh__mix(mesh__mix(h, (uint64_t)desc->copies[0]), ~(uint64_t)desc->copies[1]);
    return h | 1;
}

/* Meshes on a device table other than the comm's: it may be gone by the next call. */
MESH__PRIVATE int mesh__plan_keeps(const mesh_comm *c, const mesh_plan_desc *d) {
    const mesh *a = d->src->on, *b = d->dst->on;
    return (!a->table || a->table == c->on.table) && (!b->table || b->table == c->on.table);
}

MESH__PRIVATE const mesh_plan *mesh__plan_kept(const mesh_comm *c, const mesh_plan_desc *d) {
    const mesh__plans *kept = (const mesh__plans *)mesh__impl(c)->plans;
    uint64_t key = mesh__desc_key(d);
    int set = (int)(key >> 32) & (MESH__PLAN_SETS - 1), k;
    for (k = 0; k < MESH__PLANS_OF_SET && kept; k++) {
        const mesh_plan *p = &kept->plan[set][k];
        if (kept->key[set][k] == key && kept->cap[set][k] == d->scratch_cap && p->dtype == d->dtype &&
            p->elem_bytes == d->elem_bytes && mesh__is_plans(p, 0, d->src) && mesh__is_plans(p, 1, d->dst))
            return p;
    }
    return NULL;
}

/* Without memory for it, it is made again the next time. */
MESH__PRIVATE void mesh__plan_keep(const mesh_comm *c, const mesh_plan_desc *d, const mesh_plan *p) {
    mesh__plans *kept = (mesh__plans *)mesh__impl(c)->plans;
    uint64_t key = mesh__desc_key(d);
    int set = (int)(key >> 32) & (MESH__PLAN_SETS - 1), k;
    if (!kept) {
        kept = (mesh__plans *)mesh_transport_alloc(c->transport, sizeof *kept);
        if (!kept) return;
        memset(kept, 0, offsetof(mesh__plans, plan));
        mesh__impl(c)->plans = kept;
    }
    k = kept->next[set];
    kept->next[set] = (unsigned char)((k + 1) % MESH__PLANS_OF_SET);
    kept->key[set][k] = key;
    kept->cap[set][k] = d->scratch_cap;
    kept->plan[set][k] = *p;
    kept->stamp[set][k] = ++mesh__impl(c)->engine->stamps;
}

/* 0: it is none of those. */
MESH__PRIVATE uint64_t mesh__plan_stamp(const mesh_comm *c, const mesh_plan *p) {
    const mesh__plans *kept = (const mesh__plans *)mesh__impl(c)->plans;
    int set;
    for (set = 0; set < MESH__PLAN_SETS && kept; set++)
        if (p >= kept->plan[set] && p < kept->plan[set] + MESH__PLANS_OF_SET)
            return kept->stamp[set][p - kept->plan[set]];
    return 0;
}

/* keep: plans of before count, and this one will. Its room is `plan` where nothing was kept. */
MESH__PRIVATE mesh_status mesh__plan_of(const mesh_comm *c, mesh_plan *plan, const mesh_plan **out,
                                        const mesh_tensor *src, const mesh_tensor *dst, int keep, mesh_error *err) {
    mesh_plan_desc d;
    mesh_status status = mesh__tensors_check(c, src, dst, err);
    if (status != MESH_OK) return status;
    mesh__tensor_desc(c, src, dst, &d);
    keep = keep && mesh__plan_keeps(c, &d);
    if (keep && (*out = mesh__plan_kept(c, &d)) != NULL) return MESH_OK;
    *out = plan;
    if ((status = mesh_plan_make(plan, &d, err)) != MESH_OK) return status;
    if ((status = mesh__plan_reducible(plan, err)) == MESH_OK && keep) mesh__plan_keep(c, &d, plan);
    return status;
}

MESH_API mesh_status mesh_redistribute_plan(const mesh_comm *c, mesh_plan *plan, const mesh_tensor *src,
                                            const mesh_tensor *dst, mesh_error *err) {
    const mesh_plan *made;
    mesh_error why;
    mesh_status status;
    if (!c || !c->impl) return mesh__fail(err, MESH_ERR_STATE, -1, "mesh_redistribute_plan: the comm is not open");
    if (!src || !dst || !plan)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_redistribute_plan: %s is NULL",
                          !plan  ? "the plan"
                          : !src ? "the source"
                                 : "the destination");
    status = mesh__plan_of(c, plan, &made, src, dst, 0, &why);
    return status == MESH_OK ? status : mesh__fail(err, status, why.rank, "mesh_redistribute_plan: %s", why.text);
}

/* Is a plan that was made before one of these tensors, and possible here? */
MESH__PRIVATE mesh_status mesh__given_check(const mesh_comm *c, const mesh_plan *p, const mesh_tensor *src,
                                            const mesh_tensor *dst, mesh_error *err) {
    mesh_status status = mesh__tensors_check(c, src, dst, err);
    mesh_plan_desc d;
    if (status != MESH_OK) return status;
    mesh__tensor_desc(c, src, dst, &d);
    if (p->nsteps < 1 || !mesh__is_plans(p, 0, &src->layout) || !mesh__is_plans(p, 1, &dst->layout) ||
        p->dtype != src->dtype || p->elem_bytes != d.elem_bytes)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "the plan is for other tensors; make it of these");
    if (d.scratch_cap && p->scratch > d.scratch_cap)
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "the plan needs %l bytes of scratch, the comm's scratch_cap is %l",
                          p->scratch, mesh__impl(c)->scratch_cap);
    return mesh__plan_reducible(p, err);
}

/* Plans, if there are none yet, and tasks. err says which tensor: `number` is the first one's; -1: 0, and a single one has none. */
MESH__PRIVATE mesh_status mesh__tasks_make(const mesh_comm *c, mesh__task *task, mesh_plan *made,
                                           const mesh_plan *given, const mesh_tensor *src, const mesh_tensor *dst,
                                           int count, int number, mesh_error *err) {
    int i, rank = c->transport->rank, first = number < 0 ? 0 : number;
    for (i = 0; i < count; i++) {
        mesh_status status = MESH_OK;
        mesh_error why;
        mesh__task *t = &task[i];
        mesh_call call;
        memset(t, 0, sizeof *t);
        t->dtype[0] = src[i].dtype;
        t->dtype[1] = dst[i].dtype;
        t->elem[0] = mesh__tensor_elem(&src[i]);
        t->elem[1] = mesh__tensor_elem(&dst[i]);
        t->add = dst[i].add != 0;
        memset(&call, 0, sizeof call);
        t->plan = given ? &given[i] : NULL;
        if (given)
            status = mesh__given_check(c, &given[i], &src[i], &dst[i], &why);
        else
            status = mesh__plan_of(c, &made[i], &t->plan, &src[i], &dst[i], 1, &why);
        if (status == MESH_OK && count > 1 && !given && t->plan != &made[i]) { /* those behind it may take its place */
            made[i] = *t->plan;
            t->plan = &made[i];
        }
        if (status == MESH_OK) status = mesh__tensor_place(&src[i], "source", rank, &t->at[0], &why);
        if (status == MESH_OK) status = mesh__tensor_place(&dst[i], "destination", rank, &t->last, &why);
        t->shared = status == MESH_OK && mesh__places_meet(&t->at[0], t->elem[0], &t->last, t->elem[1]);
        if (status == MESH_OK) {
            mesh__place_view(&t->at[0], t->plan, 0, rank);
            mesh__place_view(&t->last, t->plan, 1, rank);
        }
        if (t->shared && (t->add || mesh__is_mixed(t) || !mesh__in_place(t, rank)))
            status = mesh__fail(&why, MESH_ERR_ARGUMENT, rank, "source and destination overlap in memory, and %s",
                                t->add ? "what arrives is to be added: give it memory of its own"
                                : mesh__is_mixed(t)
                                    ? "are of two dtypes: give them memory of their own"
                                    : "neither is a part of the other there, or what arrives is another summand "
                                      "of what is still to be sent; give it memory of its own");
        if (status != MESH_OK) {
            if (count > 1 || number >= 0)
                mesh__fail(err, status, why.rank, "tensor %d: %s", first + i, why.text);
            else if (err)
                *err = why;
            return status;
        }
        call.dtype = (int)src[i].dtype;
        t->width = (int)mesh__swap_width(&call);
    }
    return mesh__tasks_apart(c, task, count, first, err);
}

/* Large even moves that are nothing but an all_gather or an all_reduce along open axes: those have tuned algorithms of their own, which move
   as many bytes. Not under a scratch cap: theirs is their own. Fills in the call and its axes; what it looks at is the same on every rank. */
MESH__PRIVATE int mesh__as_collective(const mesh_comm *c, const mesh__task *t, const mesh_tensor *src,
                                      const mesh_tensor *dst, mesh_call *call, char *axes, size_t cap) {
    const mesh_plan *p = t->plan;
    const mesh *m = &c->on;
    mesh_view whole = mesh__whole_view(p);
    mesh__text text = mesh__text_on(axes, cap);
    uint8_t list[MESH_MAX_AXES];
    int i, k, n, dim = -1, ranks = 1, sums = 0, gathers = 0;
    int64_t count = mesh_box_count(&t->at[0].box), most = mesh_box_count(&t->last.box) * p->elem_bytes;
    if (t->add || mesh__is_mixed(t) || !mesh_equal(src->layout.on, m) || !mesh_equal(dst->layout.on, m) ||
        src->strides || dst->strides || most < 2 * MESH__MIB || mesh__impl(c)->scratch_cap ||
        src->dtype == MESH_BYTES || src->layout.spec.rule != dst->layout.spec.rule ||
        !mesh__is_even(&whole, m, &src->layout.spec, NULL) || !mesh__is_even(&whole, m, &dst->layout.spec, NULL))
        return 0;
    for (i = 0; i < m->naxes; i++) {
        const mesh_place *a = &whole.from.axis[i], *b = &whole.to.axis[i];
        if (a->kind == b->kind && (a->kind != MESH_SHARD || (a->dim == b->dim && a->order == b->order))) continue;
        if (b->kind != MESH_REPLICATE || a->kind == MESH_REPLICATE ||
            (a->kind == MESH_SHARD && dim >= 0 && dim != a->dim))
            return 0;
        if (a->kind == MESH_SHARD) dim = a->dim, gathers++;
        if (a->kind == MESH_PARTIAL) {
            mesh__put(&text, "%s%s", sums++ ? "," : "", m->axis[i].name);
            ranks *= m->axis[i].size;
        }
    }
    if ((sums != 0) == (gathers != 0)) return 0;
    if (gathers) { /* the innermost axes of a dim before which nothing varies */
        n = mesh__dim_axes(&src->layout.spec, dim, list);
        for (i = 0; i < dim; i++)
            if (t->at[0].box.shape[i] != 1) return 0;
        for (i = n - gathers; i < n; i++) {
            if (whole.to.axis[list[i]].kind != MESH_REPLICATE) return 0;
            mesh__put(&text, "%s%s", i > n - gathers ? "," : "", m->axis[list[i]].name);
        }
    }
    for (k = 0; k < m->naxes && sums; k++)
        if (src->layout.spec.axis[k].kind == MESH_PARTIAL && dst->layout.spec.axis[k].kind == MESH_PARTIAL) return 0;
    if (text.len >= cap || !mesh__group_find(mesh__impl(c), axes) || (sums && count % ranks)) return 0;
    *call = mesh__call(sums ? MESH_CALL_ALL_REDUCE : MESH_CALL_ALL_GATHER, src->data, dst->data, (size_t)count,
                       src->dtype, sums ? (mesh_op)p->op : MESH_SUM, 0);
    return 1;
}

/* Is it but one move from here to there? */
MESH__PRIVATE int mesh__takes_no_scratch(const mesh__task *t, int count) {
    return count == 1 && t->plan->nsteps == 1 && t->plan->step[0].kind == MESH_STEP_MOVE && !t->add && !t->width &&
           !mesh__is_mixed(t);
}

/* Build a schedule, dry or in earnest. */
MESH__PRIVATE void mesh__redistribute_build(mesh_comm *c, mesh__builder *b, int count) {
    int64_t cap = mesh__impl(c)->scratch_cap;
    b->nitems = b->nafter = b->nblocks = 0;
    mesh__add_tasks(b, count, cap);
}

/* A call, as far as looking at its tensors tells all. */
typedef struct mesh__asked {
    uint32_t comm; /* its id; 0: it does not */
    int ngroups;   /* that the comm had open */
    mesh_tensor tensor[2];
    size_t nbytes[2]; /* of this rank's parts */
} mesh__asked;

/* What its schedule is built from. Returns 0 where it is not one that may come again: those are single moves between memory apart. */
MESH__PRIVATE int mesh__task_origin(const mesh_comm *c, const mesh__task *t, int count, mesh__origin *o) {
    const mesh__place_of *at[2];
    int side, d;
    if (!(c->transport->caps & MESH_CAP_STRIDED) || !mesh__takes_no_scratch(t, count) || t->shared ||
        !(o->plan = mesh__plan_stamp(c, t->plan)))
        return 0;
    at[0] = &t->at[0];
    at[1] = &t->last;
    memset(o->stride, 0, sizeof o->stride);
    for (side = 0; side < 2; side++) {
        o->base[side] = at[side]->base;
        for (d = 0; d < at[side]->box.ndim; d++) o->stride[side][d] = at[side]->stride[d];
    }
    return 1;
}

/* A slot remembers what its schedule was built from, and what was asked for. */
MESH__PRIVATE void mesh__origin_keep(const mesh_comm *c, mesh__op *op, const mesh__origin *from, const mesh__task *t,
                                     const mesh_tensor *src, const mesh_tensor *dst) {
    mesh__asked *asked = op->origin.asked;
    int side;
    op->origin = *from;
    if (!asked) asked = (mesh__asked *)mesh_transport_alloc(c->transport, sizeof *asked);
    op->origin.asked = asked;
    if (!asked) return;
    asked->comm = c->id;
    asked->ngroups = mesh__impl(c)->ngroups;
    for (side = 0; side < 2; side++) {
        const mesh_tensor *tensor = side ? dst : src;
        if (tensor->strides || tensor->local_shape || !mesh_equal(tensor->layout.on, &c->on)) asked->comm = 0;
        asked->tensor[side] = *tensor;
        asked->nbytes[side] = mesh__place_bytes(side ? &t->last : &t->at[0], t->elem[side]);
    }
}

/* A slot with its schedule, at the addresses of now. */
MESH__PRIVATE mesh__op *mesh__redistribute_at(mesh_comm *c, mesh__op *op, unsigned char *const *base) {
    intptr_t by[2];
    int i;
    for (i = 0; i < 2; i++) {
        by[i] = (intptr_t)((uintptr_t)base[i] - (uintptr_t)op->origin.base[i]);
        op->origin.base[i] = base[i];
    }
    for (i = 0; i < op->schedule.nxfers && (by[0] || by[1]); i++) {
        mesh_xfer *x = &op->schedule.xfer[i];
        x->base = (void *)((uintptr_t)x->base + (uintptr_t)by[x->direction != MESH_SEND]);
    }
    mesh__op_identify(mesh__impl(c)->engine, op, c, mesh__group_find(mesh__impl(c), NULL));
    return op;
}

/* A schedule built before serves. NULL: there is none. */
MESH__PRIVATE mesh__op *mesh__redistribute_again(mesh_comm *c, const mesh__origin *o) {
    mesh__op **at = &mesh__impl(c)->engine->rested, *op;
    while ((op = *at) != NULL &&
           (op->origin.plan != o->plan || memcmp(op->origin.stride, o->stride, sizeof o->stride) != 0))
        at = &op->next_unused;
    return op ? mesh__redistribute_at(c, mesh__op_again(at), o->base) : NULL;
}

/* A tensor as it was asked for then, but for where its data is. */
MESH__PRIVATE int mesh__asked_alike(const mesh_comm *c, const mesh_tensor *a, const mesh_tensor *b) {
    const mesh_layout *l = &a->layout, *k = &b->layout;
    return l->on == k->on && l->ndim == k->ndim && a->dtype == b->dtype && a->add == b->add && !b->strides &&
           !b->local_shape && a->elem_bytes == b->elem_bytes && !a->data == !b->data &&
           !memcmp(&l->spec, &k->spec, sizeof l->spec) &&
           !memcmp(l->shape, k->shape, (size_t)l->ndim * sizeof *l->shape) &&
           (k->on == &c->on || mesh_equal(k->on, &c->on)); /* where it is may stand another mesh by now */
}

/* The same call as one before, but for where the data is: what was found of it then holds, and nothing of it is looked at again, which cost more than
   all the rest where what was moved has pushed it out of the caches. NULL: it is not known, or the parts overlap here. */
MESH__PRIVATE mesh__op *mesh__redistribute_asked(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst) {
    mesh__op **at = &mesh__impl(c)->engine->rested, *op;
    const mesh__asked *a = NULL;
    unsigned char *base[2];
    for (; (op = *at) != NULL; at = &op->next_unused) {
        a = op->origin.asked;
        if (a && a->comm == c->id && a->ngroups == mesh__impl(c)->ngroups && mesh__asked_alike(c, &a->tensor[0], src) &&
            mesh__asked_alike(c, &a->tensor[1], dst))
            break;
    }
    if (!op || mesh__overlap(src->data, a->nbytes[0], dst->data, a->nbytes[1])) return NULL;
    base[0] = op->origin.base[0] ? (unsigned char *)src->data : NULL;
    base[1] = op->origin.base[1] ? (unsigned char *)dst->data : NULL;
    return mesh__redistribute_at(c, mesh__op_again(at), base);
}

/* The operation of a redistribution whose scratch a dry build has told. NULL: no memory. */
MESH__PRIVATE mesh__op *mesh__redistribute_op(mesh_comm *c, mesh__builder *b, const mesh_tensor *src, int count) {
    mesh__engine *e = mesh__impl(c)->engine;
    mesh__op *op = mesh__op_take(e);
    uint64_t hash = (uint64_t)count;
    int i;
    if (!op) return NULL;
    for (i = 0; i < count && count > 1; i++) hash = mesh__mix(hash, b->task[i].plan->hash);
    op->shape = count == 1 ? b->task[0].plan->hash : hash;
    for (i = 0; i < count; i++)
        if (mesh__is_mixed(&b->task[i])) op->shape = mesh__mix(op->shape, (uint64_t)b->task[i].dtype[1]);
    op->schedule.call =
        mesh__call(MESH_CALL_REDISTRIBUTE, NULL, NULL, (size_t)count, count ? src[0].dtype : MESH_BYTES, MESH_SUM, 0);
    op->schedule.call.elem_bytes = count ? (size_t)mesh__tensor_elem(&src[0]) : 1;
    mesh__op_identify(e, op, c, mesh__group_find(mesh__impl(c), NULL));
    b->s = &op->schedule;
    b->dry = 0;
    b->size = b->most;
    b->scratch = b->most ? mesh__scratch(b->s, b->most) : NULL;
    b->most = 0;
    if (!b->s->out_of_memory) mesh__redistribute_build(c, b, count);
    if (!b->s->out_of_memory) mesh__blocks_settle(b);
    return op;
}

/* Built dry: how much scratch the schedule takes, 64 bytes of it for alignment. `saved`: room for the tasks as they are. A plan that was not made for what is added or
   converted may take more than the cap; as may hosts that turn bytes. */
MESH__PRIVATE mesh_status mesh__redistribute_dry(mesh_comm *c, mesh__builder *b, mesh__task *saved, int count,
                                                 int64_t *scratch, mesh_error *err) {
    int64_t cap = mesh__impl(c)->scratch_cap;
    mesh__schedule none;
    memset(&none, 0, sizeof none);
    memcpy(saved, b->task, (size_t)count * sizeof *saved);
    none.t = c->transport;
    b->s = &none;
    b->dry = 1;
    mesh__redistribute_build(c, b, count);
    memcpy(b->task, saved, (size_t)count * sizeof *saved);
    if (none.out_of_memory) return mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for the schedule");
    *scratch = b->most ? (int64_t)b->most + 64 : 0;
    if (!cap || *scratch <= cap || b->task[0].width) return MESH_OK;
    return mesh__fail(err, MESH_ERR_MEMORY, c->transport->rank,
                      "by these plans it takes %l bytes of scratch; the comm's scratch_cap is %l", *scratch, cap);
}

MESH__PRIVATE mesh_status mesh__redistribute_start(mesh_comm *c, const mesh_plan *plans, const mesh_tensor *src,
                                                   const mesh_tensor *dst, int count, int number, int64_t *scratch,
                                                   mesh_request *r, mesh_error *err) {
    mesh_transport *t = c->transport;
    mesh__builder b;
    mesh__op *op = NULL;
    mesh_plan *made = NULL;
    mesh__task *task = NULL;
    int64_t taken;
    mesh_status status = MESH_OK;
    mesh_call call;
    mesh__origin from;
    int again;
    char axes[MESH_MAX_AXES * MESH_NAME_BYTES];
    memset(&b, 0, sizeof b);
    task = (mesh__task *)mesh_transport_alloc(t, 2 * (size_t)count * sizeof *task + 1);
    made = plans ? NULL : (mesh_plan *)mesh_transport_alloc(t, (size_t)count * sizeof *made + 1);
    b.head = (int *)mesh_transport_alloc(t, 2 * (size_t)t->size * sizeof *b.head);
    if (!task || (!made && !plans) || !b.head)
        status = mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for %d plans", count);
    else
        status = mesh__tasks_make(c, task, made, plans, src, dst, count, number, err);
    if (status == MESH_OK && count == 1 && r && mesh__as_collective(c, task, src, dst, &call, axes, sizeof axes)) {
        mesh_transport_free(t, b.head);
        mesh_transport_free(t, made);
        mesh_transport_free(t, task);
        return mesh__call_start(c, axes, &call, r);
    }
    b.task = task;
    b.rank = t->rank;
    if (scratch) *scratch = 0;
    if (status == MESH_OK && !mesh__takes_no_scratch(task, count))
        status = mesh__redistribute_dry(c, &b, task + count, count, scratch ? scratch : &taken, err);
    again = status == MESH_OK && r && mesh__task_origin(c, task, count, &from);
    if (again) op = mesh__redistribute_again(c, &from);
    if (status == MESH_OK && r && !op && (op = mesh__redistribute_op(c, &b, src, count)) == NULL)
        status = mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for the operation");
    if (again && op) mesh__origin_keep(c, op, &from, task, src, dst);
    mesh_transport_free(t, b.item);
    mesh_transport_free(t, b.after);
    mesh_transport_free(t, b.chain);
    mesh_transport_free(t, b.head);
    mesh_transport_free(t, made);
    mesh_transport_free(t, task);
    return status != MESH_OK || !op ? status : mesh__call_launch(c, op, r);
}

MESH__PRIVATE mesh_status mesh__redistribute_call_inside(mesh_comm *c, const mesh_plan *plans, const mesh_tensor *src,
                                                         const mesh_tensor *dst, int count, mesh_request *r) {
    int kind = MESH_CALL_REDISTRIBUTE;
    mesh__group *g = NULL;
    mesh__op *op;
    mesh_error why;
    mesh_status status = mesh__call_begin(c, NULL, kind, r, &g);
    if (status != MESH_OK) return status;
    if (count < 0 || (count && (!src || !dst)))
        return count < 0 ? mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "%d tensors; 0 or more", count)
                         : mesh__refuse(c, MESH_ERR_ARGUMENT, kind, NULL, "%s is NULL", src ? "dst" : "src");
    if (count == 1 && !plans && (op = mesh__redistribute_asked(c, src, dst)) != NULL)
        return mesh__call_launch(c, op, r);
    memset(&why, 0, sizeof why);
    status = mesh__redistribute_start(c, plans, src, dst, count, -1, NULL, r, &why);
    if (status != MESH_OK && !c->failed) return mesh__refuse(c, status, kind, NULL, "%s", why.text);
    return status;
}
/* name: of what the program called, without its "mesh_". */
MESH__PRIVATE mesh_status mesh__redistribute_named(mesh_comm *c, const char *name, const mesh_plan *plans,
                                                   const mesh_tensor *src, const mesh_tensor *dst, int count,
                                                   mesh_request *r) {
    mesh_status status;
    if (c && !c->impl) return mesh__fail(&c->error, MESH_ERR_STATE, -1, "mesh_%s: the comm is not open", name);
    if (c) mesh__impl(c)->called = name;
    status = mesh__redistribute_call_inside(c, plans, src, dst, count, r);
    if (c) mesh__impl(c)->called = NULL;
    return status;
}
MESH__PRIVATE mesh_status mesh__redistribute_call(mesh_comm *c, const char *name, const mesh_plan *plans,
                                                  const mesh_tensor *src, const mesh_tensor *dst, int count,
                                                  mesh_request *r) {
    MESH__ALONE_START(c, name, r, mesh__redistribute_named(c, name, plans, src, dst, count, r));
}

MESH_API mesh_status mesh_redistribute_planned_start(mesh_comm *c, const mesh_plan *plans, const mesh_tensor *src,
                                                     const mesh_tensor *dst, int count, mesh_request *r) {
    return mesh__redistribute_call(c, MESH__CALLER, plans, src, dst, count, r);
}
MESH_API mesh_status mesh_redistribute_many_start(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst,
                                                  int count, mesh_request *r) {
    return mesh__redistribute_call(c, "redistribute_many", NULL, src, dst, count, r);
}
MESH_API mesh_status mesh_redistribute_many(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst, int count) {
    MESH__BLOCKING(mesh_redistribute_many_start(c, src, dst, count, &r));
}
MESH_API mesh_status mesh_redistribute_start(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst,
                                             mesh_request *r) {
    return mesh__redistribute_call(c, "redistribute", NULL, src, dst, 1, r);
}
MESH_API mesh_status mesh_redistribute(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst) {
    MESH__BLOCKING(mesh_redistribute_start(c, src, dst, &r));
}

MESH_API mesh_status mesh_redistribute_scratch_bytes(mesh_comm *c, const mesh_tensor *src, const mesh_tensor *dst,
                                                     int count, int64_t *nbytes, mesh_error *err) {
    mesh_error why;
    mesh_status status;
    if (!c || !c->impl)
        return mesh__fail(err, MESH_ERR_STATE, -1, "mesh_redistribute_scratch_bytes: the comm is not open");
    if (!nbytes || count < 0 || (count && (!src || !dst)))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_redistribute_scratch_bytes: %d tensors, %s", count,
                          !nbytes ? "and nbytes is NULL" : "and a list that is NULL, or fewer than none");
    if ((status = mesh__enter(c->transport, err, "redistribute_scratch_bytes")) != MESH_OK) return status;
    status = mesh__redistribute_start(c, NULL, src, dst, count, -1, nbytes, NULL, &why);
    mesh__leave(c->transport);
    return status == MESH_OK ? status
                             : mesh__fail(err, status, why.rank, "mesh_redistribute_scratch_bytes: %s", why.text);
}
#endif /* MESH_REDISTRIBUTE_IMPLEMENTED */
