/* mesh/explain.h - plans for readers: steps by their names in the field, EXPLAIN as text and as JSON. Part of mesh.h 0.1.0. MIT licence.

   Includes plan.h. Nothing else includes it but the front door.
*/
#if !defined(MESH_EXPLAIN_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_EXPLAIN_IMPLEMENTED))
#include "plan.h"
#endif

#ifndef MESH_EXPLAIN_H
#define MESH_EXPLAIN_H

#ifdef __cplusplus
extern "C" {
#endif

/* EXPLAIN: the steps as a table of text, and as JSON. Each returns the length of the whole text. */
MESH_API size_t mesh_plan_format(const mesh_plan *p, char *buf, size_t cap);
MESH_API size_t mesh_plan_json(const mesh_plan *p, char *buf, size_t cap);
/* What a step is in the field's words: "all_gather", "reduce_scatter", "all_to_all", "slice", "permute", "exchange", ... */
MESH_API const char *mesh_step_name(const mesh_plan *p, int step);

#ifdef __cplusplus
}
#endif
#endif /* MESH_EXPLAIN_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_EXPLAIN_IMPLEMENTED)
#define MESH_EXPLAIN_IMPLEMENTED

/* ---- // >>explain ----------------------------------------------------------------------------------------------------- */

/* Which axes a step changes and how, for its name. */
enum {
    MESH__SLICED = 1,
    MESH__GATHERED = 2,
    MESH__MOVED = 4,
    MESH__ORDERED = 8,
    MESH__SCATTERED = 16,
    MESH__SUMMED = 32,
    MESH__FILLED = 64
};

typedef struct mesh__change {
    int known, what;
    uint32_t axes;          /* of `on` */
    const mesh *on, *whole; /* whole: whose axes those of `on` are parts of */
} mesh__change;

/* Is at[split] the mesh at[whole] with its axes split? */
MESH__RARE int mesh__is_split_of(const mesh_plan *p, int split, int whole) {
    return split >= 2 && whole < 2 &&
           (mesh_equal(&p->at[whole], &p->at[split - 2]) || mesh_equal(&p->at[2], &p->at[3]));
}

MESH__RARE mesh__change mesh__step_change(const mesh_plan *p, int step) {
    mesh__change c;
    const mesh *a = mesh__layout_mesh(p, step), *b = mesh__layout_mesh(p, step + 1);
    mesh_spec from = *mesh__layout_spec(p, step), to = *mesh__layout_spec(p, step + 1);
    int on = step ? p->step[step - 1].on : 0, next = p->step[step].on, recut, i;
    c.what = 0;
    c.axes = 0;
    c.on = b;
    c.whole = next < 2 ? b : on < 2 ? a : &p->at[next - 2];
    c.known = mesh_equal(a, b);
    if (!c.known && mesh__is_split_of(p, next, on)) {
        from = mesh__spec_split(&from, a, b);
        c.known = 1;
    } else if (!c.known && mesh__is_split_of(p, on, next)) {
        to = mesh__spec_split(&to, b, a);
        c.on = a;
        c.known = 1;
    }
    recut = c.known && from.rule != to.rule && !mesh__is_even(&p->view, c.on, &from, NULL);
    for (i = 0; i < c.on->naxes && c.known; i++) {
        const mesh_place *x = &from.axis[i], *y = &to.axis[i];
        int what = 0;
        if (c.on->axis[i].size == 1) continue;
        if (x->kind == MESH_REPLICATE)
            what = y->kind == MESH_SHARD ? MESH__SLICED : y->kind == MESH_PARTIAL ? MESH__FILLED : 0;
        if (x->kind == MESH_PARTIAL)
            what = y->kind == MESH_SHARD ? MESH__SCATTERED : y->kind == MESH_REPLICATE ? MESH__SUMMED : 0;
        if (x->kind == MESH_SHARD)
            what = y->kind == MESH_REPLICATE ? MESH__GATHERED
                   : y->kind == MESH_PARTIAL ? MESH__GATHERED | MESH__FILLED
                   : y->dim != x->dim        ? MESH__MOVED
                   : y->order != x->order    ? MESH__ORDERED
                   : recut                   ? MESH__MOVED | MESH__ORDERED
                                             : 0;
        c.what |= what;
        if (what) c.axes |= UINT32_C(1) << i;
    }
    return c;
}

MESH_API const char *mesh_step_name(const mesh_plan *p, int step) {
    mesh__change c;
    int reduces;
    if (step < 0 || step >= p->nsteps) return "no step";
    c = mesh__step_change(p, step);
    reduces = p->step[step].kind == MESH_STEP_REDUCE;
    if (!c.known) return reduces ? "reduce, exchange" : "exchange";
    switch (c.what) {
    case 0:
        return "copy";
    case MESH__SLICED:
        return "slice";
    case MESH__GATHERED:
        return "all_gather";
    case MESH__MOVED:
        return "all_to_all";
    case MESH__ORDERED:
        return "permute";
    case MESH__SCATTERED:
        return "reduce_scatter";
    case MESH__SCATTERED | MESH__SLICED:
        return "slice, reduce_scatter";
    case MESH__SUMMED:
        return "all_reduce";
    case MESH__FILLED:
        return "fill";
    default:
        return reduces ? "reduce, exchange" : "exchange";
    }
}

MESH__RARE void mesh__put_column(mesh__text *t, size_t start, size_t width) {
    do mesh__put_char(t, ' ');
    while (t->len < start + width);
}
/* 1536 as "1.5 KiB". */
MESH__RARE void mesh__put_bytes(mesh__text *t, int64_t n) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int u = 0;
    int64_t rest = 0;
    for (; n >= 1024 && u < 6; u++) rest = n & 1023, n >>= 10;
    mesh__put(t, "%l", n);
    if (u) mesh__put(t, ".%d", (int)(rest * 10 / 1024));
    mesh__put(t, " %s", unit[u]);
}
/* Picoseconds as "12.5 us". */
MESH__RARE void mesh__put_time(mesh__text *t, int64_t ps) {
    static const char *const unit[] = {"ps", "ns", "us", "ms", "s"};
    int u = 0;
    int64_t rest = 0;
    for (; ps >= 1000 && u < 4; u++) rest = ps % 1000, ps /= 1000;
    mesh__put(t, "%l", ps);
    if (u) mesh__put(t, ".%d", (int)(rest / 100));
    mesh__put(t, " %s", unit[u]);
}

/* "over dp,tp": the axes that a step works along; of a split axis its name if all parts do. */
MESH__RARE void mesh__put_change(mesh__text *t, const mesh_plan *p, int step) {
    mesh__change c = mesh__step_change(p, step);
    int i, k, n = 0, parts, all;
    uint8_t part[MESH_MAX_AXES];
    if (!c.known) {
        mesh__put(t, "between meshes");
        return;
    }
    for (i = 0; i < c.whole->naxes; i++) {
        parts = c.on == c.whole ? 1 : mesh__split_axes(c.whole, i, c.on, part);
        if (c.on == c.whole) part[0] = (uint8_t)i;
        for (all = parts > 0, k = 0; k < parts; k++) all &= (int)(c.axes >> part[k] & 1);
        if (all) mesh__put(t, "%s%s", n++ ? "," : "", c.whole->axis[i].name);
        for (k = 0; k < parts && !all; k++)
            if (c.axes >> part[k] & 1) mesh__put(t, "%s%s", n++ ? "," : "", c.on->axis[part[k]].name);
    }
    if (!n) mesh__put_char(t, '-');
}

MESH__RARE void mesh__put_layout(mesh__text *t, const mesh *m, const mesh_spec *s) {
    char text[MESH_MAX_AXES * (MESH_NAME_BYTES + 12) + 32];
    mesh_spec_format(s, m, text, sizeof text);
    mesh__put(t, "%s", text);
}

MESH__RARE void mesh__put_problem(mesh__text *t, const mesh_plan *p) {
    int64_t total = p->elem_bytes;
    int d;
    for (d = 0; d < p->ndim; d++) {
        mesh__put(t, "%s%l", d ? "x" : "", p->shape[d]);
        total = mesh__mul64(total, p->shape[d]);
    }
    if (!p->ndim) mesh__put(t, "scalar");
    mesh__put(t, " %s, ", mesh_dtype_name(p->dtype));
    mesh__put_bytes(t, total);
}

/* "2x4096x8192": a dim that is taken apart is two. */
MESH__RARE void mesh__put_view(mesh__text *t, const mesh_plan *p, const char *between) {
    int d;
    for (d = 0; d < p->view.ndim; d++) mesh__put(t, "%s%l", d ? between : "", p->view.shape[d]);
}

/* As `mesh plan --to-mesh` takes it: from which position on, where that is not 0. */
MESH__PRIVATE void mesh__put_on(mesh__text *t, const mesh *m) {
    mesh__put_sizes(t, m);
    if (m->origin) mesh__put(t, "@%d", m->origin);
}

MESH_API size_t mesh_plan_format(const mesh_plan *p, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    static const char *const limits[] = {
        "axes split into single prime factors, which are more than 16",
        "every order in which more than 3 axes may change", "every choice among more than 4 axes to slice along first",
        "layouts on the way beyond the first 1024, or what takes more than some 100 ms to count"};
    int k, side;
    size_t start;
    for (side = 0; side < 2; side++) {
        mesh__put(&t, side ? "to    " : "from  ");
        mesh__put_layout(&t, &p->at[side], side ? &p->to : &p->from);
        mesh__put(&t, "%son ", p->at[side].naxes ? "  " : "");
        mesh__put_on(&t, &p->at[side]);
        if (!p->at[side].naxes) mesh__put(&t, "one rank");
        if (!side) {
            mesh__put(&t, "  (");
            mesh__put_problem(&t, p);
            mesh__put(&t, ")");
        }
        mesh__put_char(&t, '\n');
    }
    if (p->view.ndim > p->ndim) {
        mesh__put(&t, "seen as ");
        mesh__put_view(&t, p, "x");
        mesh__put(&t, ", dims of the steps' layouts\n");
    }
    mesh__put(&t, "step                   along           bytes/rank  messages  rounds  predicted  then\n");
    for (k = 0; k < p->nsteps; k++) {
        const mesh_step *s = &p->step[k];
        start = t.len;
        mesh__put(&t, "%d %s", k + 1, mesh_step_name(p, k));
        mesh__put_column(&t, start, 23);
        mesh__put_change(&t, p, k);
        mesh__put_column(&t, start, 39);
        mesh__put_bytes(&t, s->bytes);
        mesh__put_column(&t, start, 51);
        mesh__put(&t, "%d", s->messages);
        mesh__put_column(&t, start, 61);
        mesh__put(&t, "%d", s->rounds);
        mesh__put_column(&t, start, 69);
        mesh__put_time(&t, s->ps);
        mesh__put_column(&t, start, 80);
        mesh__put_layout(&t, &p->at[s->on], &s->spec);
        mesh__put_char(&t, '\n');
    }
    start = t.len;
    mesh__put(&t, "total");
    mesh__put_column(&t, start, 39);
    mesh__put_bytes(&t, p->bytes);
    mesh__put_column(&t, start, 69);
    mesh__put_time(&t, p->ps);
    mesh__put(&t, "\nscratch ");
    mesh__put_bytes(&t, p->scratch);
    mesh__put(&t, ", hash %x\n", p->hash);
    for (k = 0; k < 4; k++)
        if (p->limited >> k & 1) mesh__put(&t, "not searched: %s\n", limits[k]);
    return t.len;
}

MESH_API size_t mesh_plan_json(const mesh_plan *p, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int k, d;
    for (k = 0; k < 2; k++) {
        mesh__put(&t, "%s\"%s\": {\"mesh\": \"", k ? "}, " : "{", k ? "to" : "from");
        mesh__put_on(&t, &p->at[k]);
        mesh__put(&t, "\", \"spec\": \"");
        mesh__put_layout(&t, &p->at[k], k ? &p->to : &p->from);
        mesh__put_char(&t, '"');
    }
    mesh__put(&t, "}, \"shape\": [");
    for (d = 0; d < p->ndim; d++) mesh__put(&t, "%s%l", d ? ", " : "", p->shape[d]);
    mesh__put(&t, "], \"view\": [");
    mesh__put_view(&t, p, ", ");
    mesh__put(&t, "], \"dtype\": \"%s\", \"elem_bytes\": %l, \"steps\": [", mesh_dtype_name(p->dtype), p->elem_bytes);
    for (k = 0; k < p->nsteps; k++) {
        const mesh_step *s = &p->step[k];
        mesh__put(&t, "%s{\"name\": \"%s\", \"axes\": \"", k ? ", " : "", mesh_step_name(p, k));
        mesh__put_change(&t, p, k);
        mesh__put(&t, "\", \"bytes\": %l, \"messages\": %d, \"rounds\": %d, \"ps\": %l, \"mesh\": \"", s->bytes,
                  s->messages, s->rounds, s->ps);
        mesh__put_on(&t, &p->at[s->on]);
        mesh__put(&t, "\", \"spec\": \"");
        mesh__put_layout(&t, &p->at[s->on], &s->spec);
        mesh__put(&t, "\"}");
    }
    mesh__put(&t, "], \"bytes\": %l, \"ps\": %l, \"scratch\": %l, \"limited\": %d, \"hash\": \"%x\"}", p->bytes, p->ps,
              p->scratch, (int)p->limited, p->hash);
    return t.len;
}
#endif /* MESH_EXPLAIN_IMPLEMENTED */
