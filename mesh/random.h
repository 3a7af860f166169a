/* mesh/random.h - random numbers by global index: any layout of a tensor has the same values. Part of mesh.h 0.1.0. MIT licence.

   Includes layout.h, kernels.h (floats of other dtypes) and functions.h.

DO THIS
    Nothing: mesh_parallel.h includes it.

CONCEPTS
    block   Four 32-bit numbers of Philox 4x32-10 (Salmon et al., SC'11): key seed, counter (index, stream). Without state: any block at once.
    fills   Element i of the whole tensor, row-major, is made of block i / 4. Two numbers of a block are two normals (Box and Muller):
            numbers 0 and 1 make elements 0 (cosine) and 1 (sine) of the block's four, 2 and 3 the others. So a kernel of yours can do the same.
*/
#if !defined(MESH_RANDOM_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_RANDOM_IMPLEMENTED))
#include "layout.h"
#include "kernels.h"
#include "functions.h"
#endif

#ifndef MESH_RANDOM_H
#define MESH_RANDOM_H

#ifdef __cplusplus
extern "C" {
#endif

MESH_API void mesh_random_block(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t index);
/* Fill a rank's part of a tensor of f16, bf16, f32 or f64 on the host: normals of a mean and a standard deviation; uniform in [low, high), which
   low precision may round up to high. Streams are independent: a number for each tensor. ARGUMENT: another dtype, an axis that is partial (n ranks
   would add up n values), data that is NULL where the rank holds any, numbers that are infinite or none,
   a deviation below 0, low above high. A rank outside the mesh does nothing. */
MESH_API mesh_status mesh_random_normal(const mesh_tensor *t, int rank, uint64_t seed, uint64_t stream, double mean,
                                        double deviation, mesh_error *err);
MESH_API mesh_status mesh_random_uniform(const mesh_tensor *t, int rank, uint64_t seed, uint64_t stream, double low,
                                         double high, mesh_error *err);

#ifdef __cplusplus
}
#endif
#endif /* MESH_RANDOM_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_RANDOM_IMPLEMENTED)
#define MESH_RANDOM_IMPLEMENTED

/* ---- // >>philox ---- */

MESH_API void mesh_random_block(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t c[4], key[2];
    int i;
    c[0] = (uint32_t)index, c[1] = (uint32_t)(index >> 32);
    c[2] = (uint32_t)stream, c[3] = (uint32_t)(stream >> 32);
    key[0] = (uint32_t)seed, key[1] = (uint32_t)(seed >> 32);
    for (i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)c[0] * UINT32_C(0xd2511f53), b = (uint64_t)c[2] * UINT32_C(0xcd9e8d57);
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ key[0];
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ key[1];
        c[3] = (uint32_t)a;
        key[0] += UINT32_C(0x9e3779b9);
        key[1] += UINT32_C(0xbb67ae85);
    }
    for (i = 0; i < 4; i++) out[i] = c[i];
}

/* ---- // >>fills ---- */

typedef struct mesh__fill {
    int normal;
    double a, b; /* mean and deviation; low and high */
    uint64_t seed, stream;
    int64_t block; /* whose values these are; -1: none yet */
    double value[4];
} mesh__fill;

MESH__PRIVATE double mesh__fill_at(mesh__fill *f, int64_t index) {
    if (index / 4 != f->block) {
        uint32_t n[4];
        int k;
        f->block = index / 4;
        mesh_random_block(n, f->seed, f->stream, (uint64_t)f->block);
        for (k = 0; k < 4; k++) f->value[k] = (double)n[k] / 4294967296.0;
        for (k = 0; k < 4 && f->normal; k += 2) {
            double r = mesh__sqrt(-2 * mesh__ln(((double)n[k] + 1) / 4294967296.0)), c, s;
            mesh__turn_of(f->value[k + 1], &c, &s);
            f->value[k] = r * c;
            f->value[k + 1] = r * s;
        }
        for (k = 0; k < 4; k++)
            f->value[k] = f->normal ? f->a + f->b * f->value[k] : f->a + (f->b - f->a) * f->value[k];
    }
    return f->value[index % 4];
}

/* Element by element of this rank's box, in the whole tensor's order. */
MESH__PRIVATE mesh_status mesh__fill_part(const mesh_tensor *t, int rank, const mesh__fill *how, const char *function,
                                          mesh_error *err) {
    mesh__fill f = *how;
    mesh_box box;
    mesh_error why;
    int64_t at[MESH_MAX_DIMS], dense[MESH_MAX_DIMS], count, e;
    int d, ndim, i;
    size_t bytes;
    if (!t) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the tensor is NULL", function);
    if (!mesh__is_finite(f.a) || !mesh__is_finite(f.b) ||
        (f.normal ? f.b < 0 : f.b < f.a || !mesh__is_finite(f.b - f.a)))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %s", function,
                          f.normal ? "mean or deviation is infinite or no number, or the deviation is below 0"
                                   : "low is above high, or one of them or what lies between is infinite or no number");
    if (mesh__tensor_check(t, rank, &why) != MESH_OK)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %s", function, why.text);
    if (!mesh__converts(t->dtype))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the tensor is %s; f16, bf16, f32 and f64 are filled",
                          function, mesh_dtype_name(t->dtype));
    for (i = 0; i < t->layout.on->naxes; i++)
        if (t->layout.spec.axis[i].kind == MESH_PARTIAL && t->layout.on->axis[i].size > 1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: the tensor is partial along \"%s\", where the values of %d ranks would be added up; "
                              "fill one that is not",
                              function, t->layout.on->axis[i].name, t->layout.on->axis[i].size);
    if ((count = mesh_layout_box(&t->layout, rank, &box)) <= 0) return MESH_OK;
    ndim = t->layout.ndim;
    bytes = mesh_dtype_bytes(t->dtype);
    if (!t->data)
        return mesh__fail(err, MESH_ERR_ARGUMENT, rank, "%s: the data is NULL, but rank %d holds %l elements", function,
                          rank, count);
    for (d = ndim - 1; d >= 0; d--) {
        dense[d] = d == ndim - 1 ? 1 : dense[d + 1] * box.shape[d + 1];
        at[d] = 0;
    }
    for (e = 0; e < count; e++) {
        int64_t index = 0, place = 0;
        double v;
        for (d = 0; d < ndim; d++) {
            index = index * t->layout.shape[d] + box.offset[d] + at[d];
            place += at[d] * (t->strides ? t->strides[d] : dense[d]);
        }
        v = mesh__fill_at(&f, index);
        mesh__narrow(t->dtype, (char *)t->data + (size_t)place * bytes, MESH_F64, &v, 1);
        for (d = ndim - 1; d >= 0 && ++at[d] == box.shape[d]; d--) at[d] = 0;
    }
    return MESH_OK;
}

MESH__PRIVATE mesh__fill mesh__fill_of(int normal, double a, double b, uint64_t seed, uint64_t stream) {
    mesh__fill f;
    f.normal = normal;
    f.a = a;
    f.b = b;
    f.seed = seed;
    f.stream = stream;
    f.block = -1;
    return f;
}

MESH_API mesh_status mesh_random_normal(const mesh_tensor *t, int rank, uint64_t seed, uint64_t stream, double mean,
                                        double deviation, mesh_error *err) {
    mesh__fill f = mesh__fill_of(1, mean, deviation, seed, stream);
    return mesh__fill_part(t, rank, &f, "mesh_random_normal", err);
}

MESH_API mesh_status mesh_random_uniform(const mesh_tensor *t, int rank, uint64_t seed, uint64_t stream, double low,
                                         double high, mesh_error *err) {
    mesh__fill f = mesh__fill_of(0, low, high, seed, stream);
    return mesh__fill_part(t, rank, &f, "mesh_random_uniform", err);
}
#endif /* MESH_RANDOM_IMPLEMENTED */
