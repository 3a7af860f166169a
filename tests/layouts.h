/* Layouts and plans asked for piece by piece, as tests that vary one piece at a time like them. */
#ifndef TEST_LAYOUTS_H
#define TEST_LAYOUTS_H

/* As it is, right or wrong. */
static mesh_layout layout_of(const mesh *m, const mesh_spec *s, int ndim, const int64_t *shape) {
    mesh_layout l;
    int d;
    memset(&l, 0, sizeof l);
    l.on = m;
    l.spec = *s;
    l.ndim = ndim;
    for (d = 0; d < ndim && d < MESH_MAX_DIMS; d++) l.shape[d] = shape[d];
    return l;
}

static mesh_status spec_check(const mesh_spec *s, const mesh *m, int ndim, const int64_t *shape, mesh_error *err) {
    mesh_layout l = layout_of(m, s, ndim, shape);
    return mesh_layout_check(&l, err);
}

/* 1, or 0 for a rank that is not in the mesh. */
static int spec_box(const mesh_spec *s, const mesh *m, int ndim, const int64_t *shape, int rank, mesh_box *box) {
    mesh_layout l = layout_of(m, s, ndim, shape);
    return mesh_layout_box(&l, rank, box) >= 0;
}

typedef struct plan_ask {
    const mesh *src, *dst; /* dst NULL: the same */
    const mesh_spec *from, *to;
    int ndim;
    mesh_dtype dtype;
    int64_t shape[MESH_MAX_DIMS + 1], elem_bytes, scratch_cap;
    const mesh_topology *topology;
} plan_ask;

static int ask_candidates(mesh_plan *plans, int cap, const plan_ask *a, mesh_error *err) {
    mesh_plan_desc d = MESH_ZERO;
    mesh_layout src, dst;
    if (a->src && a->from) src = layout_of(a->src, a->from, a->ndim, a->shape), d.src = &src;
    if (a->src && a->to) dst = layout_of(a->dst ? a->dst : a->src, a->to, a->ndim, a->shape), d.dst = &dst;
    d.dtype = a->dtype, d.elem_bytes = a->elem_bytes, d.scratch_cap = a->scratch_cap, d.topology = a->topology;
    return mesh_plan_candidates(plans, cap, &d, err);
}

static mesh_status ask_plan(mesh_plan *plan, const plan_ask *a, mesh_error *err) {
    mesh_plan_desc d = MESH_ZERO;
    mesh_layout src, dst;
    if (a->src && a->from) src = layout_of(a->src, a->from, a->ndim, a->shape), d.src = &src;
    if (a->src && a->to) dst = layout_of(a->dst ? a->dst : a->src, a->to, a->ndim, a->shape), d.dst = &dst;
    d.dtype = a->dtype, d.elem_bytes = a->elem_bytes, d.scratch_cap = a->scratch_cap, d.topology = a->topology;
    return mesh_plan_make(plan, &d, err);
}
#endif
