/* mesh/transform.h - meshes made of meshes: fixed, transposed, flattened, split, joined, composed. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh.h. Knows no tensor.
*/
#if !defined(MESH_TRANSFORM_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_TRANSFORM_IMPLEMENTED))
#include "../mesh.h"
#endif

#ifndef MESH_TRANSFORM_H
#define MESH_TRANSFORM_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- transform: the result may be the source ------------------------------------------------------------------------

   m(c): the rank at coordinates c; m[i]: the i-th rank. What each call gives is a sentence, which mesh/law/sentences loops. */

/* Drop an axis, held at an index (the last one left: a mesh of no axes and one rank): result(c) = m(c with the index at the axis). ARGUMENT: no
   such axis, index outside. */
MESH_API mesh_status mesh_fix(mesh *result, const mesh *m, const char *axis, int index, mesh_error *err);
/* The same ranks with the axes in another order; every axis is named once: result(c in the order named) = m(c). */
MESH_API mesh_status mesh_transpose(mesh *result, const mesh *m, const char *axes, mesh_error *err);
/* Make one axis of several, adjacent or not, in any order: the first named is outermost, and where it stood stands the new one.
   `name` NULL: the names joined by "_", where that fits in 15 bytes. result(c with i for the axes) = m(c with i taken apart over them, row-major
   in the order named). ARGUMENT: bad axes, a name that is bad or taken. */
MESH_API mesh_status mesh_flatten(mesh *result, const mesh *m, const char *axes, const char *name, mesh_error *err);
/* Make several axes of one: mesh_split(&r, &m, "dp", "replicate=2,shard=-1"): result(c with one index for each part) = m(c with their row-major
   index at the axis). ARGUMENT: no such axis, sizes whose product is
   not the axis, a name taken, an axis flattened out of order whose parts the sizes would cross (remedy: a device table). */
MESH_API mesh_status mesh_split(mesh *result, const mesh *m, const char *axis, const char *text, mesh_error *err);
/* The same ranks in the same order under other axes: result[i] = m[i]. ARGUMENT as mesh_split. */
MESH_API mesh_status mesh_reshape(mesh *result, const mesh *m, const char *text, mesh_error *err);
/* Rename one axis: result(c) = m(c). */
MESH_API mesh_status mesh_rename(mesh *result, const mesh *m, const char *axis, const char *name, mesh_error *err);
/* Drop the axes of size 1: result[i] = m[i]. */
MESH_API void mesh_squeeze(mesh *result, const mesh *m);
/* The mesh of a's axes followed by b's, through a rank that both hold (a, b: slices of one mesh, or any two that do not
   overlap): result(c, d) = a(c) + b(d) - rank, in positions of their table if they have one. ARGUMENT: a name in both, rank not in both, different tables, ranks that would occur twice. */
MESH_API mesh_status mesh_concat(mesh *result, const mesh *a, const mesh *b, int rank, mesh_error *err);
/* result[i] = outer[inner[i]]: inner's ranks are indices into outer. ARGUMENT: inner reaches beyond outer, has a table, or
   the composition is no layout (remedy: a device table). Layouts that only all positions together show are found up to 2^18
   ranks. Source: CuTe layout composition. */
MESH_API mesh_status mesh_compose(mesh *result, const mesh *outer, const mesh *inner, mesh_error *err);

#ifdef __cplusplus
}
#endif
#endif /* MESH_TRANSFORM_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_TRANSFORM_IMPLEMENTED)
#define MESH_TRANSFORM_IMPLEMENTED

/* ---- // >>transform -------------------------------------------------------------------------------------------------------- */

MESH__RARE int mesh__find_or_fail(const mesh *m, const char *axis, const char *function, mesh_error *err) {
    int k;
    if (mesh__mesh_check(m, function, err) != MESH_OK) return -1;
    k = mesh_axis_find(m, axis);
    if (k < 0)
        mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: no axis \"%s\" in the mesh \"%s\"", function,
                   axis ? axis : "(null)", mesh__show(m).text);
    return k;
}

MESH_API mesh_status mesh_fix(mesh *result, const mesh *m, const char *axis, int index, mesh_error *err) {
    uint8_t list[MESH_MAX_AXES], fixed;
    int n, offset, k = mesh__find_or_fail(m, axis, "mesh_fix", err);
    mesh r;
    if (k < 0) return MESH_ERR_ARGUMENT;
    if (index < 0 || index >= m->axis[k].size)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_fix: index %d along \"%s\"; it has %d, from 0", index, axis,
                          m->axis[k].size);
    fixed = (uint8_t)k;
    n = mesh__others(m, &fixed, 1, list);
    offset = mesh__axis_offset(m, k, index);
    mesh__keep(&r, m, list, n);
    r.origin += offset;
    *result = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_transpose(mesh *result, const mesh *m, const char *axes, mesh_error *err) {
    uint8_t list[MESH_MAX_AXES];
    mesh r;
    int n = mesh__axes(m, axes, list, "mesh_transpose", err);
    if (n < 0) return MESH_ERR_ARGUMENT;
    if (n != m->naxes)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_transpose: \"%s\" names %d of the %d axes of \"%s\"; name every axis once", axes, n,
                          m->naxes, mesh__show(m).text);
    mesh__keep(&r, m, list, n);
    *result = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_flatten(mesh *result, const mesh *m, const char *axes, const char *name, mesh_error *err) {
    uint8_t list[MESH_MAX_AXES], others[MESH_MAX_AXES];
    char joined[MESH_MAX_AXES * MESH_NAME_BYTES], checked[MESH_NAME_BYTES];
    int i, k, n = mesh__axes(m, axes, list, "mesh_flatten", err), count;
    mesh__text t = mesh__text_on(joined, sizeof joined);
    mesh r;
    mesh_status status;
    if (n < 0) return MESH_ERR_ARGUMENT;
    if (n == 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_flatten: no axes named; name those to flatten as \"dp,cp\"");
    count = mesh__others(m, list, n, others);
    for (i = 0; !name && i < n; i++) mesh__put(&t, "%s%s", i ? "_" : "", m->axis[list[i]].name);
    if (!name) name = joined;
    if ((status = mesh__name_set(checked, name, mesh__length(name), "mesh_flatten", err)) != MESH_OK) return status;
    for (i = 0; i < count; i++)
        if (mesh__same(m->axis[others[i]].name, checked))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_flatten: the mesh \"%s\" has an axis \"%s\" already",
                              mesh__show(m).text, checked);
    mesh__start(&r, m);
    for (i = 0; i < m->naxes; i++) {
        for (k = 0; k < n && list[k] != i; k++) {}
        if (k == n) mesh__axis_copy(&r, m, i);
        if (k != 0) continue;
        mesh__axis_add(&r, checked);
        for (k = 0; k < n; k++) mesh__modes_copy(&r, m, list[k]);
    }
    mesh__finish(&r);
    *result = r;
    return MESH_OK;
}

/* One mode {shape, stride} over indices of `outer` (n modes, outermost first, coalesced) as modes over positions, appended to the
   last axis of r. used[k] collects how much of outer mode k's extent is in use. Returns 0 where it is no layout. CuTe: composition. */
MESH__RARE int mesh__compose_mode(mesh *r, const mesh_mode *outer, int n, int shape, int stride, int *used) {
    mesh_mode taken[MESH_MAX_MODES];
    int k, count = 0;
    for (k = n - 1; k >= 0 && shape > 1; k--) {
        int extent = outer[k].shape, take, step = stride;
        if (used[k] + (int64_t)(shape - 1) * stride < extent) { /* it stays within this mode */
            taken[count].shape = shape;
            taken[count++].stride = outer[k].stride * stride;
            used[k] += (shape - 1) * stride;
            shape = 1;
            break;
        }
        if (stride > 1 && stride % extent == 0) {
            stride /= extent;
            continue;
        }
        if (extent % stride) return 0;
        extent /= stride;
        stride = 1;
        take = shape < extent ? shape : extent;
        if (shape % take) return 0;
        taken[count].shape = take;
        taken[count++].stride = outer[k].stride * step;
        used[k] += (take - 1) * step;
        if (used[k] >= outer[k].shape) return 0; /* it would not begin alike each time round */
        shape /= take;
    }
    if (shape > 1) return 0;
    while (count--) mesh__mode_add(r, taken[count].shape, taken[count].stride);
    return 1;
}

/* Modes first..last coalesced as one list. */
MESH__RARE int mesh__coalesce(const mesh_mode *mode, int count, mesh_mode *out) {
    int i, n = 0;
    for (i = 0; i < count; i++) {
        if (n && out[n - 1].stride == (int64_t)mode[i].shape * mode[i].stride) {
            out[n - 1].shape *= mode[i].shape;
            out[n - 1].stride = mode[i].stride;
        } else {
            out[n++] = mode[i];
        }
    }
    return n;
}

/* Append inner's axes, whose modes index `outer`, to r. Returns 0 where an axis is no layout, and names it. */
MESH__RARE int mesh__compose_axes(mesh *r, const mesh_mode *outer, int n, const mesh *inner, int *used,
                                  const char **at) {
    int i, k;
    for (i = 0; i < inner->naxes; i++) {
        const mesh_axis *a = &inner->axis[i];
        *at = a->name;
        mesh__axis_add(r, a->name);
        for (k = a->first; k < a->first + a->modes; k++)
            if (!mesh__compose_mode(r, outer, n, inner->mode[k].shape, inner->mode[k].stride, used)) return 0;
    }
    return 1;
}

/* The position of an index into `outer` (n modes, outermost first). */
MESH__RARE int64_t mesh__outer_position(const mesh_mode *outer, int n, int64_t index) {
    int64_t position = 0;
    int k;
    for (k = n - 1; k >= 0; k--) {
        position += index % outer[k].shape * outer[k].stride;
        index /= outer[k].shape;
    }
    return position;
}

/* The modes of inner's axis i as its positions show them, from the innermost out: as far as steps are equal, again and again. Looks at one
   axis only. Returns 0 where its positions are no layout. */
MESH__RARE int mesh__axis_seen(mesh *r, const mesh_mode *outer, int n, const mesh *inner, int i) {
    mesh_mode seen[MESH_MAX_MODES];
    int size = inner->axis[i].size, done, count = 0, run, take;
    int64_t zero = mesh__outer_position(outer, n, inner->origin), step;
    for (done = 1; done < size; done *= take) {
        step = mesh__outer_position(outer, n, inner->origin + mesh__axis_offset(inner, i, done)) - zero;
        for (run = 2; run < size / done &&
                      mesh__outer_position(outer, n, inner->origin + mesh__axis_offset(inner, i, run * done)) - zero ==
                          run * step;
             run++) {}
        for (take = run; size / done % take; take--) {}
        if (step < 1 || take < 2 || count == MESH_MAX_MODES) return 0;
        seen[count].shape = take;
        seen[count++].stride = (int)step;
    }
    if (r->nmodes + count > MESH_MAX_MODES) return 0;
    while (count--) mesh__mode_add(r, seen[count].shape, seen[count].stride);
    return 1;
}

enum { MESH__SEEN_RANKS = 1 << 18 };

/* What the composition of single modes did not find: the axes from their positions, which are all compared. O(ranks), up to 2^18 of them,
   where there would be an error otherwise. r: the result as it was before any of inner's axes. */
MESH__RARE int mesh__compose_seen(mesh *r, const mesh_mode *outer, int n, const mesh *inner, const char **at) {
    mesh found;
    int i, k;
    if (inner->size > MESH__SEEN_RANKS) return 0;
    mesh__start(&found, NULL);
    for (i = 0; i < inner->naxes; i++) {
        *at = inner->axis[i].name;
        mesh__axis_add(&found, *at);
        if (!mesh__axis_seen(&found, outer, n, inner, i)) return 0;
    }
    if (mesh__finish(&found)) return 0;
    found.origin = (int)mesh__outer_position(outer, n, inner->origin);
    for (i = 0; i < inner->size; i++)
        if (mesh_rank_at(&found, i) != mesh__outer_position(outer, n, mesh_rank_at(inner, i))) return 0;
    for (i = 0; i < found.naxes; i++) {
        mesh__axis_add(r, found.axis[i].name);
        for (k = found.axis[i].first; k < found.axis[i].first + found.axis[i].modes; k++)
            mesh__mode_add(r, found.mode[k].shape, found.mode[k].stride);
    }
    return 1;
}

MESH__RARE mesh_status mesh__no_layout(mesh_error *err, const char *function, const char *axis) {
    return mesh__fail(
        err, MESH_ERR_ARGUMENT, -1,
        "%s: axis \"%s\" would cross parts whose strides do not fit together, which no layout can say; give the ranks as a device "
        "table (mesh_desc.table) instead",
        function, axis);
}

MESH__RARE mesh_status mesh__compose_as(mesh *result, const mesh *outer, const mesh *inner, const char *function,
                                        mesh_error *err) {
    mesh_mode modes[MESH_MAX_MODES];
    int used[MESH_MAX_MODES] = {0}, k, n, rest;
    int64_t last;
    const char *at = "";
    mesh r, before;
    mesh_status status = mesh__mesh_check(outer, function, err);
    if (status == MESH_OK) status = mesh__mesh_check(inner, function, err);
    if (status != MESH_OK) return status;
    last = (int64_t)inner->origin + mesh__span(inner) - 1;
    if (inner->table)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the inner mesh stands on a device table", function);
    if (last >= outer->size)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: the inner mesh reaches index %l of an outer mesh of %d ranks", function, last,
                          outer->size);
    n = mesh__coalesce(outer->mode, outer->nmodes, modes);
    mesh__start(&r, outer);
    for (rest = inner->origin, k = n - 1; k >= 0; k--) {
        used[k] = rest % modes[k].shape;
        r.origin += used[k] * modes[k].stride;
        rest /= modes[k].shape;
    }
    before = r;
    if (!mesh__compose_axes(&r, modes, n, inner, used, &at) || mesh__finish(&r)) {
        r = before;
        if (!mesh__compose_seen(&r, modes, n, inner, &at)) return mesh__no_layout(err, function, at);
        mesh__finish(&r);
    }
    *result = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_split(mesh *result, const mesh *m, const char *axis, const char *text, mesh_error *err) {
    int i, k = mesh__find_or_fail(m, axis, "mesh_split", err), used[MESH_MAX_MODES] = {0};
    const char *at = "";
    mesh r, parts;
    mesh_status status;
    if (k < 0) return MESH_ERR_ARGUMENT;
    if ((status = mesh__parse_as(&parts, text, m->axis[k].size, "mesh_split", err)) != MESH_OK) return status;
    if (m->naxes - 1 + parts.naxes > MESH_MAX_AXES)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_split: the result would have more than %d axes",
                          MESH_MAX_AXES);
    for (i = 0; i < parts.naxes; i++) {
        int taken = mesh_axis_find(m, parts.axis[i].name);
        if (taken >= 0 && taken != k)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_split: the mesh \"%s\" has an axis \"%s\" already; choose another name",
                              mesh__show(m).text, parts.axis[i].name);
    }
    mesh__start(&r, m);
    for (i = 0; i < m->naxes; i++) {
        const mesh_mode *modes = m->mode + m->axis[k].first;
        mesh before = r;
        if (i != k) {
            mesh__axis_copy(&r, m, i);
        } else if (!mesh__compose_axes(&r, modes, m->axis[k].modes, &parts, used, &at)) {
            r = before;
            if (!mesh__compose_seen(&r, modes, m->axis[k].modes, &parts, &at))
                return mesh__no_layout(err, "mesh_split", at);
        }
    }
    mesh__finish(&r);
    *result = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_reshape(mesh *result, const mesh *m, const char *text, mesh_error *err) {
    mesh shape;
    mesh_status status = mesh__mesh_check(m, "mesh_reshape", err);
    if (status == MESH_OK) status = mesh__parse_as(&shape, text, m->size, "mesh_reshape", err);
    return status == MESH_OK ? mesh__compose_as(result, m, &shape, "mesh_reshape", err) : status;
}

MESH_API mesh_status mesh_rename(mesh *result, const mesh *m, const char *axis, const char *name, mesh_error *err) {
    char checked[MESH_NAME_BYTES];
    int i, taken, k = mesh__find_or_fail(m, axis, "mesh_rename", err);
    mesh_status status;
    mesh r;
    if (k < 0) return MESH_ERR_ARGUMENT;
    if (!name) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_rename: the new name is NULL");
    if ((status = mesh__name_set(checked, name, mesh__length(name), "mesh_rename", err)) != MESH_OK) return status;
    taken = mesh_axis_find(m, checked);
    if (taken >= 0 && taken != k)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_rename: the mesh \"%s\" has an axis \"%s\" already",
                          mesh__show(m).text, checked);
    r = *m;
    for (i = 0; i < MESH_NAME_BYTES; i++) r.axis[k].name[i] = checked[i];
    *result = r;
    return MESH_OK;
}

MESH_API void mesh_squeeze(mesh *result, const mesh *m) {
    uint8_t list[MESH_MAX_AXES];
    int i, n = 0;
    mesh r;
    for (i = 0; i < m->naxes; i++)
        if (m->axis[i].size > 1) list[n++] = (uint8_t)i;
    mesh__keep(&r, m, list, n);
    *result = r;
}

MESH_API mesh_status mesh_concat(mesh *result, const mesh *a, const mesh *b, int rank, mesh_error *err) {
    int coord[MESH_MAX_MODES], i;
    int64_t origin, last;
    mesh r;
    mesh_status status = mesh__mesh_check(a, "mesh_concat", err);
    if (status == MESH_OK) status = mesh__mesh_check(b, "mesh_concat", err);
    if (status != MESH_OK) return status;
    for (i = 0; i < b->naxes; i++)
        if (mesh_axis_find(a, b->axis[i].name) >= 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_concat: both meshes have an axis \"%s\"; rename one",
                              b->axis[i].name);
    if (a->naxes + b->naxes > MESH_MAX_AXES)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_concat: the result would have more than %d axes",
                          MESH_MAX_AXES);
    if (!mesh__same_table(a, b))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_concat: the meshes stand on different device tables; slice both from one mesh");
    if (!mesh__take_apart(b, rank, coord) || !mesh__take_apart(a, rank, coord))
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank,
                          "mesh_concat: rank %d is not in both \"%s\" and \"%s\"; slice both through one rank", rank,
                          mesh__show(a).text, mesh__show(b).text);
    if ((int64_t)a->size * b->size > INT32_MAX)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_concat: over %d ranks (overflow)", INT32_MAX);
    origin = (int64_t)a->origin + b->origin - (a->table ? a->table->position[rank] : rank);
    mesh__start(&r, a);
    r.origin = (int)origin;
    for (i = 0; i < a->naxes; i++) mesh__axis_copy(&r, a, i);
    for (i = 0; i < b->naxes; i++) mesh__axis_copy(&r, b, i);
    if (mesh__finish(&r))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, rank,
            "mesh_concat: the strides of \"%s\" and \"%s\" do not nest (the meshes overlap, or no layout can say it); give the ranks "
            "as a device table (mesh_desc.table)",
            mesh__show(a).text, mesh__show(b).text);
    last = origin + mesh__span(&r) - 1;
    if (origin < 0 || last > INT32_MAX || (r.table && last >= r.table->size))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, rank,
            "mesh_concat: \"%s\" and \"%s\" through rank %d would reach positions %l to %l, beyond what there is",
            mesh__show(a).text, mesh__show(b).text, rank, origin, last);
    *result = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_compose(mesh *result, const mesh *outer, const mesh *inner, mesh_error *err) {
    return mesh__compose_as(result, outer, inner, "mesh_compose", err);
}
#endif /* MESH_TRANSFORM_IMPLEMENTED */
