/* mesh/split.h - axes and dims taken apart: what of a step can then be compared with another. Part of mesh.h 0.1.0. MIT licence.

   Includes route.h. An axis of a mesh becomes several whose sizes multiply to it, a dim of a tensor two whose lengths do; a spec says the same
   in the new words. Knows no search.
*/
#if !defined(MESH_SPLIT_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_SPLIT_IMPLEMENTED))
#include "route.h"
#define MESH_SPLIT_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SPLIT_IMPLEMENTED)
#define MESH_SPLIT_IMPLEMENTED

/* ---- // >>axes ---- */

/* The axes that one axis is split into, outermost first. They are found by where they lie: they may stand in the order of another mesh. */
MESH__PRIVATE int mesh__split_axes(const mesh *whole, int axis, const mesh *split, uint8_t *list) {
    const mesh_axis *a = &whole->axis[axis];
    int n = 0, i, j, k;
    for (k = a->first; k < a->first + a->modes; k++) {
        int first = n, shape = whole->mode[k].shape, stride = whole->mode[k].stride;
        for (i = 0; i < split->naxes; i++) {
            int at = split->axis[i].modes ? split->mode[split->axis[i].first].stride : 0;
            if (!at || at % stride || at / stride >= shape) continue;
            for (j = n++; j > first && split->mode[split->axis[list[j - 1]].first].stride < at; j--)
                list[j] = list[j - 1];
            list[j] = (uint8_t)i;
        }
    }
    if (!a->modes && (i = mesh_axis_find(split, a->name)) >= 0 && !split->axis[i].modes) list[n++] = (uint8_t)i;
    return n;
}

/* What a spec says of the axes of the mesh whose axes are split. */
MESH__PRIVATE mesh_spec mesh__spec_split(const mesh_spec *s, const mesh *whole, const mesh *split) {
    mesh_spec r = *s;
    int i, j, d, n, parts;
    uint8_t list[MESH_MAX_AXES], part[MESH_MAX_AXES];
    r.naxes = (uint8_t)split->naxes;
    for (i = 0; i < split->naxes; i++) r.axis[i] = mesh_replicate();
    for (i = 0; i < whole->naxes; i++)
        for (parts = mesh__split_axes(whole, i, split, part), j = 0; j < parts; j++) r.axis[part[j]] = s->axis[i];
    for (d = 0; d < MESH_MAX_DIMS; d++) {
        int order = 0;
        for (n = mesh__dim_axes(s, d, list), i = 0; i < n; i++)
            for (parts = mesh__split_axes(whole, list[i], split, part), j = 0; j < parts; j++)
                r.axis[part[j]] = mesh_shard_at(d, order++);
    }
    return r;
}

/* Do the shards of every dim divide it? split: of every dim that an axis shards which is split there, so that its parts cut it the same way. */
MESH__PRIVATE int mesh__is_even(const mesh_view *v, const mesh *m, const mesh_spec *s, const mesh *split) {
    int64_t n[MESH_MAX_DIMS];
    uint8_t part[MESH_MAX_AXES];
    int i, d, matters[MESH_MAX_DIMS];
    for (d = 0; d < MESH_MAX_DIMS; d++) n[d] = 1, matters[d] = !split;
    for (i = 0; i < m->naxes; i++) {
        if (s->axis[i].kind != MESH_SHARD) continue;
        n[s->axis[i].dim] *= m->axis[i].size;
        if (split) matters[s->axis[i].dim] |= mesh__split_axes(m, i, split, part) > 1;
    }
    for (d = 0; d < v->ndim; d++)
        if (matters[d] && v->shape[d] % n[d]) return 0;
    return 1;
}

/* "dp_0", or the next such name that neither mesh has. */
MESH__PRIVATE void mesh__part_name(char *name, const mesh *m, const mesh *r, const char *whole, int *part) {
    do {
        mesh__text t = mesh__text_on(name, MESH_NAME_BYTES);
        int digits = mesh__digits(*part);
        mesh__put(&t, "%s", whole);
        if (t.len > (size_t)(MESH_NAME_BYTES - 2 - digits)) t.len = (size_t)(MESH_NAME_BYTES - 2 - digits);
        mesh__put(&t, "_%d", (*part)++);
    } while (mesh_axis_find(m, name) >= 0 || mesh_axis_find(r, name) >= 0);
}

/* How many of the `shape` ranks `stride` apart lie within the next place where an axis of `other` begins; 1: there is none. */
MESH__PRIVATE int mesh__cut_below(const mesh *other, int shape, int stride) {
    int k, end, inner = 1, at;
    for (k = 0; other && k < other->nmodes; k++)
        for (end = 0; end < 2; end++) {
            at = other->mode[k].stride;
            if (end && at > INT32_MAX / other->mode[k].shape) continue;
            at *= end ? other->mode[k].shape : 1;
            if (at % stride == 0 && at / stride > inner && at / stride < shape && shape % (at / stride) == 0)
                inner = at / stride;
        }
    return inner;
}

/* Every axis split into factors of `primes` prime factors each, outermost first; none reaches across where an axis of `other` (NULL: none)
   begins. Returns 0 if nothing is split, -1 if there are too many. */
MESH__PRIVATE int mesh__split_factors(mesh *r, const mesh *m, int primes, const mesh *other) {
    int i, k, n, more = 0;
    mesh__start(r, m);
    for (i = 0; i < m->naxes; i++) {
        int part = 0, parts = 0;
        for (k = m->axis[i].first; k < m->axis[i].first + m->axis[i].modes; k++) {
            int shape = m->mode[k].shape;
            while (shape > 1) {
                char name[MESH_NAME_BYTES];
                int factor = 1, prime = 2, outer = shape / mesh__cut_below(other, shape, m->mode[k].stride);
                for (n = 0; n < primes && outer > 1; n++) {
                    while (outer % prime && prime <= outer / prime) prime++;
                    if (outer % prime) prime = outer;
                    outer /= prime;
                    factor *= prime;
                }
                shape /= factor;
                if (r->naxes == MESH_MAX_AXES) return -1;
                mesh__part_name(name, m, r, m->axis[i].name, &part);
                mesh__axis_add(r, name);
                mesh__mode_add(r, factor, m->mode[k].stride * shape);
                parts++;
            }
        }
        if (parts == 0) {
            if (r->naxes == MESH_MAX_AXES) return -1;
            mesh__axis_add(r, m->axis[i].name);
        }
        more |= parts > 1;
    }
    return !mesh__finish(r) && more;
}

/* ---- // >>dims ---- */

MESH__PRIVATE mesh_view mesh__whole_view(const mesh_plan *p) {
    mesh_view v;
    int d;
    v.from = mesh__spec_plain(&p->from);
    v.to = mesh__spec_plain(&p->to);
    v.ndim = p->ndim;
    v.zero = 0;
    for (d = 0; d < MESH_MAX_DIMS; d++) {
        v.dim[d] = (uint8_t)(d < p->ndim ? d : 0);
        v.shape[d] = d < p->ndim ? p->shape[d] : 0;
    }
    return v;
}

/* Products of the sizes of the first 0, 1, ... axes that shard a dim: where it may be cut. Returns how many axes, or 0 if their shards
   differ in size. */
MESH__PRIVATE int mesh__cuts(const mesh_plan *p, const mesh *m, const mesh_spec *s, int dim, int64_t *cut) {
    uint8_t list[MESH_MAX_AXES];
    int i, n = mesh__dim_axes(s, dim, list);
    for (cut[0] = 1, i = 0; i < n; i++) cut[i + 1] = mesh__mul64(cut[i], m->axis[list[i]].size);
    return p->shape[dim] % cut[n] ? 0 : n;
}

/* Can axes with these cuts (n of them) shard a dim that is taken apart at `at`? One axis must not lie on both sides. */
MESH__PRIVATE int mesh__cut_fits(const int64_t *cut, int n, int64_t at) {
    int i;
    for (i = 0; i <= n; i++)
        if (cut[i] == at) return 1;
    return cut[n] < at && at % cut[n] == 0; /* all of them are outside */
}

/* The layout's spec with dim d of the view, taken apart at `at`, as two dims. */
MESH__PRIVATE mesh_spec mesh__spec_apart(const mesh *m, const mesh_spec *s, int d, int64_t at) {
    mesh_spec r = *s;
    uint8_t list[MESH_MAX_AXES];
    int i, n, outer = 0;
    int64_t cut = 1;
    for (i = 0; i < r.naxes; i++)
        if (r.axis[i].kind == MESH_SHARD && r.axis[i].dim > d) r.axis[i].dim++;
    for (n = mesh__dim_axes(s, d, list), i = 0; i < n; i++) {
        cut *= m->axis[list[i]].size;
        if (cut <= at)
            outer++;
        else
            r.axis[list[i]] = mesh_shard_at(d + 1, i - outer);
    }
    return r;
}

/* Take dims apart where an axis that shards them ends, on either side, if the other side allows it. Returns whether there are any. */
MESH__PRIVATE int mesh__split_dims(mesh_plan *p) {
    mesh_view *v = &p->view;
    int d, side, i, k, n[2], dim = 0;
    for (d = 0; d < p->ndim; d++, dim++) {
        int64_t cut[2][MESH_MAX_AXES + 1], inner = p->shape[d], done = 1;
        uint8_t list[MESH_MAX_AXES];
        for (side = 0; side < 2; side++) {
            const mesh_spec *s = side ? &p->to : &p->from;
            n[side] = mesh__cuts(p, &p->at[side], s, d, cut[side]);
            if (!n[side] && mesh__dim_axes(s, d, list)) break;
        }
        if (side < 2) continue; /* uneven */
        for (;;) {              /* the next cut of either side that both allow */
            int64_t at = INT64_MAX;
            for (side = 0; side < 2; side++)
                for (i = 1; i < n[side]; i++)
                    if (cut[side][i] > done && cut[side][i] < at && cut[side][i] % done == 0 &&
                        mesh__cut_fits(cut[!side], n[!side], cut[side][i]))
                        at = cut[side][i];
            if (at == INT64_MAX || v->ndim == MESH_MAX_DIMS) break;
            v->from = mesh__spec_apart(&p->at[0], &v->from, dim, at / done);
            v->to = mesh__spec_apart(&p->at[1], &v->to, dim, at / done);
            for (k = v->ndim++; k > dim; k--) {
                v->shape[k] = v->shape[k - 1];
                v->dim[k] = v->dim[k - 1];
            }
            inner /= at / done;
            v->shape[dim] = at / done;
            v->shape[++dim] = inner;
            done = at;
        }
    }
    return v->ndim > p->ndim;
}
#endif /* MESH_SPLIT_IMPLEMENTED */
