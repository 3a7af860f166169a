/* mesh/views.h - a strategy's meshes from degrees, in one call: torchtitan's views and its getters, KempnerForge's dp_info. Part of mesh.h 0.1.0. MIT licence.

   Includes degrees.h.

DO THIS
    Nothing: mesh.h includes it.

EXAMPLE
    mesh_views views;
    const mesh *m;
    mesh_degrees d = {.world = 16, .dp_shard = -1, .tp = 2, .ep = 4};
    if (mesh_views_make(&views, &d, &err)) return fail(err.text);
    if (mesh_views_get_optional(&views, "tp", &m, &err) > 0) ... m has an axis "tp" ...
    mesh_views_get(&views, "efsdp,ep", &m, &err);                  the experts' mesh, which does not factor into the other
*/
#if !defined(MESH_VIEWS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_VIEWS_IMPLEMENTED))
#include "degrees.h"
#endif

#ifndef MESH_VIEWS_H
#define MESH_VIEWS_H

#ifdef __cplusplus
extern "C" {
#endif

/* One world, seen in several ways: each mesh holds all ranks. */
typedef struct mesh_views {
    mesh_degrees degrees; /* all of them known: what was 0 is 1, what was -1 is inferred */
    int has_etp;          /* the degrees said etp: its axis is known */
    mesh data;            /* pp, batch = dp_replicate * dp_shard, cp, tp */
    mesh dense;           /* pp, dp_replicate, fsdp = dp_shard * cp, tp */
    mesh shard;           /* pp, dp_replicate, dp_shard, cp, tp */
    mesh product;         /* pp, dp = dp_replicate * dp_shard, cp, tp */
    mesh loss;            /* pp, loss = batch * cp, tp; asked for `loss` alone */
    mesh sparse;          /* pp, dp_replicate, efsdp = dp_shard * cp * tp / (ep * etp), ep, etp */
} mesh_views;

/* ARGUMENT: what mesh_from_degrees refuses. */
MESH_API mesh_status mesh_views_make(mesh_views *v, const mesh_degrees *degrees, mesh_error *err);
/* The view that has these axes, all of them enabled: of a degree above 1, but fsdp and dp_shard always, and efsdp wherever there are
   experts. Then use their group in it. ARGUMENT: an axis that is not known, an axis twice, axes that no one view has together, one
   that is not enabled. Source: torchtitan ParallelDims.get_mesh. */
MESH_API mesh_status mesh_views_get(const mesh_views *v, const char *axes, const mesh **view, mesh_error *err);
/* The same, where an axis that is not enabled is no error: 1; 0 and *view NULL: it is not; -1: an error. */
MESH_API int mesh_views_get_optional(const mesh_views *v, const char *axes, const mesh **view, mesh_error *err);
/* The axes that are enabled and larger than 1, "pp,batch,loss,dp_replicate,fsdp,cp,tp,ep,efsdp,etp" in this order, and dp_shard and dp behind.
   Returns the length of the whole list. */
MESH_API size_t mesh_views_axes(const mesh_views *v, char *buf, size_t cap);
/* A rank's place among the ranks that get data of their own (dp_replicate * dp_shard of them: *size); -1: it is not in the world. Source:
   KempnerForge's dp_info. */
MESH_API int mesh_views_dp(const mesh_views *v, int rank, int *size);

#ifdef __cplusplus
}
#endif
#endif /* MESH_VIEWS_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_VIEWS_IMPLEMENTED)
#define MESH_VIEWS_IMPLEMENTED

MESH__RARE int mesh__views_size(const mesh *m, const char *axis) { return m->axis[mesh_axis_find(m, axis)].size; }

MESH_API mesh_status mesh_views_make(mesh_views *v, const mesh_degrees *degrees, mesh_error *err) {
    static const char *const orders[] = {
        "torchtitan:sparse", "torchtitan:dataloading", "torchtitan:dense", "torchtitan", "pp,dp,cp,tp", "pp,loss,tp"};
    mesh_views r;
    mesh *view[6];
    mesh_error why;
    int k;
    if (!v || !degrees)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_views_make: the %s NULL", v ? "degrees are" : "views are");
    view[0] = &r.sparse, view[1] = &r.data, view[2] = &r.dense, view[3] = &r.shard, view[4] = &r.product,
    view[5] = &r.loss;
    for (k = 0; k < 6; k++) {
        mesh_degrees d = *degrees;
        mesh_status status;
        if (k >= 4) d.ep = d.etp = 1; /* orders that know no experts */
        if ((status = mesh_from_degrees(view[k], &d, orders[k], &why)) != MESH_OK)
            return mesh__fail(err, status, why.rank, "mesh_views_make: %s", why.text);
    }
    r.has_etp = degrees->etp != 0;
    r.degrees = *degrees;
    r.degrees.pp = mesh__views_size(&r.shard, "pp");
    r.degrees.dp_replicate = mesh__views_size(&r.shard, "dp_replicate");
    r.degrees.dp_shard = mesh__views_size(&r.shard, "dp_shard");
    r.degrees.cp = mesh__views_size(&r.shard, "cp");
    r.degrees.tp = mesh__views_size(&r.shard, "tp");
    r.degrees.ep = mesh__views_size(&r.sparse, "ep");
    r.degrees.etp = mesh__views_size(&r.sparse, "etp");
    *v = r;
    return MESH_OK;
}

/* Every axis there is, and the view that is asked for it alone. */
enum { MESH__VIEWS_AXES = 12 };
MESH__RARE const mesh *mesh__views_at(const mesh_views *v, int k, const char **name) {
    static const char *const names[MESH__VIEWS_AXES] = {"pp", "batch", "loss",  "dp_replicate", "fsdp",     "cp",
                                                        "tp", "ep",    "efsdp", "etp",          "dp_shard", "dp"};
    const mesh *of[MESH__VIEWS_AXES];
    of[0] = of[3] = of[4] = of[6] = &v->dense;
    of[1] = of[5] = &v->data;
    of[2] = &v->loss;
    of[7] = of[8] = of[9] = &v->sparse;
    of[10] = &v->shard;
    of[11] = &v->product;
    *name = names[k];
    return of[k];
}

MESH__RARE int mesh__views_enabled(const mesh_views *v, const char *axis, int size) {
    if (mesh__same(axis, "efsdp")) return v->degrees.ep > 1;
    return size > 1 || mesh__same(axis, "fsdp") || mesh__same(axis, "dp_shard");
}

MESH__RARE mesh_status mesh__views_unknown(const mesh_views *v, const char *axes, const char *function,
                                           mesh_error *err) {
    mesh__list list = mesh__list_of(axes);
    const char *word = axes, *name;
    char known[160], bad[MESH_NAME_BYTES + 8];
    mesh__text t = mesh__text_on(known, sizeof known), b;
    int length, k, i;
    for (k = 0; k < MESH__VIEWS_AXES; k++) {
        mesh__views_at(v, k, &name);
        if (v->has_etp || !mesh__same(name, "etp")) mesh__put(&t, " %s", name);
    }
    while ((length = mesh__list_next(&list, &word)) >= 0) {
        b = mesh__text_on(bad, sizeof bad);
        for (i = 0; i < length; i++) mesh__put_char(&b, word[i]);
        for (k = 0; k < MESH__VIEWS_AXES; k++) {
            mesh__views_at(v, k, &name);
            if (mesh__same(name, bad) && (v->has_etp || !mesh__same(name, "etp"))) break;
        }
        if (k == MESH__VIEWS_AXES)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: no axis \"%s\"; known are%s", function, bad, known);
    }
    return mesh__fail(
        err, MESH_ERR_ARGUMENT, -1,
        "%s: \"%s\": no one view has these axes together, each once; the views are pp,batch,cp,tp; "
        "pp,dp_replicate,fsdp,tp; pp,dp_replicate,dp_shard,cp,tp; pp,dp,cp,tp; pp,dp_replicate,efsdp,ep,etp; loss",
        function, axes);
}

/* 1; 0: an axis is not enabled, *axis is its name; -1: an error. */
MESH__RARE int mesh__views_find(const mesh_views *v, const char *axes, const mesh **view, const char **axis,
                                const char *function, mesh_error *err) {
    const mesh *views[5];
    uint8_t list[MESH_MAX_AXES];
    int k, i, n;
    if (!v || !view) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %s is NULL", function, v ? "view" : "v"), -1;
    *view = NULL;
    if (!axes || !*axes) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: no axes; name one or more", function), -1;
    views[0] = &v->dense, views[1] = &v->data, views[2] = &v->shard, views[3] = &v->sparse, views[4] = &v->product;
    for (k = 0; k < 6; k++) {
        const mesh *m = k < 5 ? views[k] : &v->loss;
        n = mesh__axes(m, axes, list, "", NULL);
        if (n < 1 || (k == 5 && (n > 1 || !mesh__same(m->axis[list[0]].name, "loss")))) continue;
        for (i = 0; i < n && !v->has_etp; i++)
            if (mesh__same(m->axis[list[i]].name, "etp")) return mesh__views_unknown(v, axes, function, err), -1;
        for (i = 0; i < n; i++) {
            *axis = m->axis[list[i]].name;
            if (!mesh__views_enabled(v, *axis, m->axis[list[i]].size)) return 0;
        }
        *view = m;
        return 1;
    }
    return mesh__views_unknown(v, axes, function, err), -1;
}

MESH_API int mesh_views_get_optional(const mesh_views *v, const char *axes, const mesh **view, mesh_error *err) {
    const char *axis;
    return mesh__views_find(v, axes, view, &axis, "mesh_views_get_optional", err);
}

MESH_API mesh_status mesh_views_get(const mesh_views *v, const char *axes, const mesh **view, mesh_error *err) {
    const char *axis = NULL;
    int found = mesh__views_find(v, axes, view, &axis, "mesh_views_get", err);
    if (found == 0)
        mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                   "mesh_views_get: \"%s\": axis \"%s\" is not enabled: its degree is 1; make it larger, or ask by "
                   "mesh_views_get_optional",
                   axes, axis);
    return found > 0 ? MESH_OK : MESH_ERR_ARGUMENT;
}

MESH_API size_t mesh_views_axes(const mesh_views *v, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int k;
    for (k = 0; k < MESH__VIEWS_AXES; k++) {
        const char *name;
        const mesh *m = mesh__views_at(v, k, &name);
        int size = mesh__views_size(m, name);
        if (size > 1 && mesh__views_enabled(v, name, size)) mesh__put(&t, "%s%s", t.len ? "," : "", name);
    }
    return t.len;
}

MESH_API int mesh_views_dp(const mesh_views *v, int rank, int *size) {
    *size = mesh__views_size(&v->data, "batch");
    return mesh_coord_of(&v->data, "batch", rank);
}
#endif /* MESH_VIEWS_IMPLEMENTED */
