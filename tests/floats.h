/* Floats of four dtypes, layouts drawn at random, and where elements are: what tests of tensors have in common. */
#ifndef TEST_FLOATS_H
#define TEST_FLOATS_H

static double float_at(mesh_dtype d, const void *p, int64_t i) {
    if (d == MESH_F64) return ((const double *)p)[i];
    if (d == MESH_F32) return (double)((const float *)p)[i];
    return (double)(d == MESH_F16 ? mesh__f32_of_f16(((const uint16_t *)p)[i])
                                  : mesh__f32_of_bf16(((const uint16_t *)p)[i]));
}
/* v is a value of the dtype. */
static void float_put(mesh_dtype d, void *p, int64_t i, double v) {
    if (d == MESH_F64) ((double *)p)[i] = v;
    if (d == MESH_F32) ((float *)p)[i] = (float)v;
    if (d == MESH_F16) ((uint16_t *)p)[i] = mesh__f16_of_f32((float)v);
    if (d == MESH_BF16) ((uint16_t *)p)[i] = mesh__bf16_of_f32((float)v);
}

/* v rounded to a dtype, half to even. */
static double float_rounded(mesh_dtype d, double v) {
    int bits = d == MESH_BF16 ? 8 : d == MESH_F16 ? 11 : d == MESH_F32 ? 24 : 53, e = 0;
    double unit = 1, q, whole;
    if (d == MESH_F64 || v == 0) return v;
    while ((v < 0 ? -v : v) >= 2 * unit) unit *= 2, e++;
    while ((v < 0 ? -v : v) < unit) unit /= 2, e--;
    if (d == MESH_F16 && e < -14) unit = 1.0 / 16384; /* subnormal */
    for (q = unit; bits > 1; bits--) q /= 2;
    v /= q;
    whole = (double)(int64_t)v;
    if (v - whole > 0.5 || (v - whole == 0.5 && (int64_t)whole % 2)) whole++;
    if (whole - v > 0.5 || (whole - v == 0.5 && (int64_t)whole % 2)) whole--;
    return whole * q;
}

static const mesh_dtype float_dtypes[4] = {MESH_F16, MESH_BF16, MESH_F32, MESH_F64};

/* Any: P, I, R or S along each axis. */
static mesh_layout tensor_layout(test_random *r, const mesh *m, int ndim, const int64_t *shape, int op) {
    mesh_layout l;
    mesh_error err;
    int i;
    CHECK_OK(mesh_layout_make(&l, m, NULL, ndim, shape, &err), err);
    for (i = 0; i < m->naxes; i++) {
        int kind = random_below(r, 5);
        mesh_place place = kind == 0            ? mesh_partial((mesh_op)op)
                           : kind == 1          ? mesh_invariant()
                           : kind == 2 || !ndim ? mesh_replicate()
                                                : mesh_shard(random_below(r, ndim));
        CHECK_OK(mesh_layout_set(&l, m->axis[i].name, place, &err), err);
    }
    return l;
}

/* The index in the whole tensor of element k of a box. */
static int64_t plan_linear_in(int ndim, const int64_t *shape, const mesh_box *box, int64_t k) {
    int64_t at[MESH_MAX_DIMS], linear = 0;
    int d;
    for (d = ndim - 1; d >= 0; d--) at[d] = box->offset[d] + k % box->shape[d], k /= box->shape[d];
    for (d = 0; d < ndim; d++) linear = linear * shape[d] + at[d];
    return linear;
}
#endif
