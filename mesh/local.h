/* mesh/local.h - layouts of gradients, and of what a local computation makes: a model's table of layouts, checked. Part of mesh.h 0.1.0. MIT licence.

   Includes layout.h. Pure functions of values: no ranks are needed.

DO THIS
    Nothing: mesh.h includes it.

EXAMPLE
    const mesh_layout *in[2] = {&x, &w};                                  x "tp:R" of s x c, w "tp:S(1)" of c x h
    if (mesh_layout_local(&y, MESH_LOCAL_EINSUM, "sc,ch->sh", in, 2, &err)) return fail(err.text);
    ... y is "tp:S(1)" of s x h: each rank multiplies what it has, and no gradient is lost ...

CONCEPTS
    gradient    A tensor that is replicated has a gradient of which each rank holds its own summand; one that is invariant has a gradient
                that each rank holds whole. So R -> P(sum), P(sum) -> R, I -> I, S -> S, and the backward pass of a redistribution is the
                redistribution between the gradients' layouts, the other way.
    local       A computation by each rank on its own parts, without communication. Whether that is right, forward and backward,
                is a question about layouts: what mesh_layout_local accepts is, and where it refuses it says what to redistribute.
    What an optimizer holds is I or S, so that its gradient lies as it does; a loss is I or P(sum) along every axis, so that its gradient
    is 1 on every rank (of a replicated loss n ranks would each count 1). An operand that has no gradient (ids, masks, targets) is called I
    beside I, else R.
    Sources: JAX ("reduced" and "unreduced" cotangents), spmd_types' R, I, V, P (torchtitan), DTensor.
*/
#if !defined(MESH_LOCAL_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_LOCAL_IMPLEMENTED))
#include "layout.h"
#endif

#ifndef MESH_LOCAL_H
#define MESH_LOCAL_H

#ifdef __cplusplus
extern "C" {
#endif

/* The layout of the gradient; its own inverse. g may be s. ARGUMENT: a partial op other than sum (an average is a sum, scaled). */
MESH_API mesh_status mesh_spec_gradient(mesh_spec *g, const mesh_spec *s, mesh_error *err);
/* The gradient's tensor of t: its shape, the gradient's layout, dense. So the backward pass of mesh_redistribute(c, &a, &b) is
   mesh_redistribute(c, &gb, &ga); where a was redistributed to several, ga.add = 1 from the second on. */
MESH_API mesh_status mesh_gradient_of(mesh_tensor *g, const mesh_tensor *t, mesh_dtype dtype, void *data,
                                      mesh_error *err);

typedef enum mesh_local_kind {
    MESH_LOCAL_EINSUM =
        0,             /* linear in each operand: products, contractions, masks, lookups. Letters that go are summed */
    MESH_LOCAL_LINEAR, /* linear in all operands together: sums, differences, scaling, rotation, a cast */
    MESH_LOCAL_MAP     /* any function */
} mesh_local_kind;

enum { MESH_MAX_OPERANDS = 16 };

/* The layout of what a local computation makes, or why it would be wrong. `letters` name the dims: "ik,kj->ij", spaces where you like. A letter
   in UPPER CASE is one along which the function mixes (softmax "bhqK->bhqK", layer norm "bsC,C,C->bsC", attention
   "bhqD,bhKD,bhKD->bhqD"): it must be whole. In LINEAR and MAP a letter that goes is upper case too.
   For each axis of the mesh, whatever its size:
     all R: R. All I: I.
     one letter sharded, by every operand that has it, the others R: S of that letter; P(sum) where an EINSUM drops it
     EINSUM: one operand P(sum), the others R: P(sum).  LINEAR: all P(sum): P(sum).
     anything else: ARGUMENT, which names the axis, the operands and what to redistribute.
   The axes that shard a letter are the same, in the same order, in every operand that has it, and operands that shard anything have one rule
   (it is the result's; strict if any is): so equal sizes have equal boxes, uneven and empty ones too.
   ARGUMENT also: n, sizes or meshes that differ, a letter twice in one operand or in both cases, a letter of the result alone. */
MESH_API mesh_status mesh_layout_local(mesh_layout *result, mesh_local_kind kind, const char *letters,
                                       const mesh_layout *const *operand, int n, mesh_error *err);

#ifdef __cplusplus
}
#endif
#endif /* MESH_LOCAL_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_LOCAL_IMPLEMENTED)
#define MESH_LOCAL_IMPLEMENTED

/* ---- // >>gradients ---- */

MESH_API mesh_status mesh_spec_gradient(mesh_spec *g, const mesh_spec *s, mesh_error *err) {
    mesh_spec r = *s;
    int i;
    for (i = 0; i < r.naxes; i++) {
        mesh_place *p = &r.axis[i];
        if (p->kind == MESH_PARTIAL && p->op != MESH_SUM)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_spec_gradient: axis %d is partial over %s; only sums have a layout for their "
                              "gradient: reduce before it, or scale and sum",
                              i, mesh_op_name((mesh_op)p->op));
        if (p->kind == MESH_PARTIAL)
            *p = mesh_replicate();
        else if (p->kind == MESH_REPLICATE)
            *p = mesh_partial(MESH_SUM);
    }
    *g = r;
    return MESH_OK;
}

MESH_API mesh_status mesh_gradient_of(mesh_tensor *g, const mesh_tensor *t, mesh_dtype dtype, void *data,
                                      mesh_error *err) {
    mesh_tensor r = *t;
    mesh_status status = mesh_spec_gradient(&r.layout.spec, &t->layout.spec, err);
    if (status != MESH_OK) return status;
    if (!mesh_dtype_bytes(dtype) || dtype == MESH_BYTES)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_gradient_of: dtype %d is none that can be summed",
                          (int)dtype);
    r.dtype = dtype;
    r.add = 0;
    r.data = data;
    r.strides = r.local_shape = NULL;
    r.elem_bytes = 0;
    *g = r;
    return MESH_OK;
}

/* ---- // >>letters ---- */

/* "ik,kj->ij" as lists of letters; number n is the result's. */
typedef struct mesh__equation {
    const char *text;
    mesh_local_kind kind;
    int n;
    char letter[MESH_MAX_OPERANDS + 1][MESH_MAX_DIMS + 1];
    uint8_t count[MESH_MAX_OPERANDS + 1];
} mesh__equation;

MESH__PRIVATE int mesh__is_upper(char c) { return c >= 'A' && c <= 'Z'; }
MESH__PRIVATE char mesh__other_case(char c) { return (char)(mesh__is_upper(c) ? c - 'A' + 'a' : c - 'a' + 'A'); }

/* Which dim of operand k a letter is; -1: it has it not. */
MESH__PRIVATE int mesh__letter_dim(const mesh__equation *q, int k, char letter) {
    int d;
    for (d = 0; d < q->count[k]; d++)
        if (q->letter[k][d] == letter) return d;
    return -1;
}

/* The first operand that has a letter; n: none. */
MESH__PRIVATE int mesh__letter_in(const mesh__equation *q, char letter) {
    int k;
    for (k = 0; k < q->n && mesh__letter_dim(q, k, letter) < 0; k++) {}
    return k;
}

MESH__RARE mesh_status mesh__letters_fail(const mesh__equation *q, mesh_error *err, const char *wanted, char c) {
    char shown[2];
    shown[0] = c;
    shown[1] = 0;
    return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_layout_local: \"%s\": %s%s%s%s", q->text, wanted,
                      c ? " (\"" : "", shown, c ? "\")" : "");
}

/* Letters, commas, an arrow. */
MESH__PRIVATE mesh_status mesh__letters_read(mesh__equation *q, int n, mesh_error *err) {
    const char *p = q->text;
    int k = 0, arrow = 0;
    for (q->n = n, q->count[0] = 0; *p; p++) {
        char c = *p;
        if (c == ' ') continue;
        if (c == ',' || (c == '-' && p[1] == '>')) {
            if (arrow || (c == ',' ? k + 1 >= n : k + 1 != n))
                return mesh__letters_fail(q, err,
                                          "operands and letters do not match, nor one \"->\" before the result's", 0);
            if (c == '-') arrow = 1, p++;
            q->count[++k] = 0;
            continue;
        }
        if (!mesh__is_upper(c) && (c < 'a' || c > 'z'))
            return mesh__letters_fail(q, err, "a dim is one letter, operands are separated by commas", c);
        if (q->count[k] == MESH_MAX_DIMS) return mesh__letters_fail(q, err, "a tensor has at most 8 dims", 0);
        if (mesh__letter_dim(q, k, c) >= 0)
            return mesh__letters_fail(q, err, "a letter stands twice in one tensor; give the dims two", c);
        q->letter[k][q->count[k]++] = c;
    }
    return arrow
               ? MESH_OK
               : mesh__letters_fail(q, err, "operands and letters do not match, nor one \"->\" before the result's", 0);
}

/* Each letter in one case; the result's are the operands'; what goes is summed, or mixed along. */
MESH__PRIVATE mesh_status mesh__letters_check(const mesh__equation *q, mesh_error *err) {
    int k, d;
    for (k = 0; k <= q->n; k++)
        for (d = 0; d < q->count[k]; d++) {
            char c = q->letter[k][d];
            if (mesh__letter_in(q, mesh__other_case(c)) < q->n || mesh__letter_dim(q, q->n, mesh__other_case(c)) >= 0)
                return mesh__letters_fail(q, err, "a letter stands in both cases", c);
            if (k == q->n && mesh__letter_in(q, c) == q->n)
                return mesh__letters_fail(q, err, "a letter of the result is in no operand", c);
            if (k < q->n && q->kind != MESH_LOCAL_EINSUM && mesh__letter_dim(q, q->n, c) < 0 && !mesh__is_upper(c))
                return mesh__letters_fail(q, err,
                                          "a letter that goes is one along which the function mixes: write it in upper "
                                          "case, or call it an einsum",
                                          c);
        }
    return MESH_OK;
}

/* ---- // >>local computations ---- */

typedef struct mesh__local {
    mesh__equation q;
    const mesh_layout *const *operand;
    mesh_error *err;
} mesh__local;

/* `operand 1 ("kj") is S(0)` along an axis */
MESH__RARE void mesh__put_operand(mesh__text *t, const mesh__local *l, int k, int axis) {
    const mesh_place *p = &l->operand[k]->spec.axis[axis];
    int d;
    mesh__put(t, "operand %d (\"", k);
    for (d = 0; d < l->q.count[k]; d++) mesh__put_char(t, l->q.letter[k][d]);
    mesh__put(t, "\") is ");
    if (p->kind == MESH_SHARD) mesh__put(t, "S(%d)", p->dim);
    if (p->kind == MESH_PARTIAL) mesh__put(t, "P(%s)", mesh_op_name((mesh_op)p->op));
    if (p->kind == MESH_REPLICATE) mesh__put_char(t, 'R');
    if (p->kind == MESH_INVARIANT) mesh__put_char(t, 'I');
}

/* Operands a and b (b < 0: a alone) do not go together along an axis. */
MESH__RARE mesh_status mesh__local_fail(const mesh__local *l, int axis, int a, int b, const char *remedy) {
    char text[200];
    mesh__text t = mesh__text_on(text, sizeof text);
    mesh__put_operand(&t, l, a, axis);
    if (b >= 0) {
        mesh__put(&t, " and ");
        mesh__put_operand(&t, l, b, axis);
    }
    return mesh__fail(l->err, MESH_ERR_ARGUMENT, -1, "mesh_layout_local: \"%s\", axis \"%s\": %s: %s", l->q.text,
                      l->operand[0]->on->axis[axis].name, text, remedy);
}

/* The first operand whose place along an axis is of a kind (from `from` on), or is not; n: none. */
MESH__PRIVATE int mesh__local_find(const mesh__local *l, int axis, int kind, int is, int from) {
    int k;
    for (k = from; k < l->q.n && (l->operand[k]->spec.axis[axis].kind == kind) != is; k++) {}
    return k;
}

MESH__PRIVATE mesh_status mesh__local_partial(const mesh__local *l, int axis, int first, mesh_place *place) {
    int n = l->q.n, k, other = mesh__local_find(l, axis, MESH_PARTIAL, 1, first + 1);
    for (k = first; k < n; k = mesh__local_find(l, axis, MESH_PARTIAL, 1, k + 1))
        if (l->operand[k]->spec.axis[axis].op != MESH_SUM)
            return mesh__local_fail(l, axis, k, -1, "only sums go through a computation; reduce it first");
    if (l->q.kind == MESH_LOCAL_MAP)
        return mesh__local_fail(
            l, axis, first, -1,
            "the function is not linear in it: reduce it before (redistribute it to R, I or S), or call it "
            "an einsum of this operand and a map of the rest");
    if (l->q.kind == MESH_LOCAL_EINSUM && other < n)
        return mesh__local_fail(l, axis, first, other,
                                "a product of sums is no sum of products; redistribute one of them to R");
    for (k = 0; k < n; k++) {
        int kind = l->operand[k]->spec.axis[axis].kind;
        if (kind == MESH_SHARD)
            return mesh__local_fail(l, axis, first, k,
                                    l->q.kind == MESH_LOCAL_LINEAR
                                        ? "redistribute the partial one to the other's S (a reduce_scatter)"
                                        : "redistribute the partial one to R (an all_reduce), or to S");
        if (kind == MESH_REPLICATE && l->q.kind == MESH_LOCAL_LINEAR)
            return mesh__local_fail(
                l, axis, first, k,
                "what is replicated would be added by every rank; redistribute it to P(sum), which moves nothing");
    }
    *place = mesh_partial(MESH_SUM);
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__local_sharded(const mesh__local *l, int axis, int first, mesh_place *place) {
    const mesh__equation *q = &l->q;
    const mesh_place *p = &l->operand[first]->spec.axis[axis];
    char c = q->letter[first][p->dim];
    int k, dim;
    if (mesh__is_upper(c))
        return mesh__local_fail(
            l, axis, first, -1,
            "the function mixes along that letter, which is in upper case; redistribute it to R, or to S "
            "of another dim");
    for (k = 0; k < q->n; k++) {
        const mesh_place *other = &l->operand[k]->spec.axis[axis];
        dim = mesh__letter_dim(q, k, c);
        if (other->kind == MESH_SHARD && q->letter[k][other->dim] != c)
            return mesh__local_fail(l, axis, first, k, "one axis shards two letters; redistribute one of them");
        if (other->kind != MESH_SHARD && dim >= 0)
            return mesh__local_fail(
                l, axis, first, k,
                "one has a part of that letter, the other all of it; redistribute the other to S too, which "
                "moves nothing");
    }
    dim = mesh__letter_dim(q, q->n, c);
    *place = dim < 0 ? mesh_partial(MESH_SUM) : mesh_shard_at(dim, p->order);
    return MESH_OK;
}

/* What the result is along one axis. */
MESH__PRIVATE mesh_status mesh__local_axis(const mesh__local *l, int axis, mesh_place *place) {
    int n = l->q.n, k;
    if ((k = mesh__local_find(l, axis, MESH_INVARIANT, 1, 0)) < n) {
        int other = mesh__local_find(l, axis, MESH_INVARIANT, 0, 0);
        *place = mesh_invariant();
        return other == n
                   ? MESH_OK
                   : mesh__local_fail(l, axis, k, other,
                                      "an invariant operand's gradient is whole on every rank, which the other's is "
                                      "not; redistribute it to R: nothing moves, and its gradient is summed");
    }
    if ((k = mesh__local_find(l, axis, MESH_PARTIAL, 1, 0)) < n) return mesh__local_partial(l, axis, k, place);
    if ((k = mesh__local_find(l, axis, MESH_SHARD, 1, 0)) < n) return mesh__local_sharded(l, axis, k, place);
    *place = mesh_replicate();
    return MESH_OK;
}

/* Operands that can be looked at together: each a layout, as many dims as letters, one mesh, one size for each letter. */
MESH__PRIVATE mesh_status mesh__local_operands(const mesh__local *l) {
    const mesh__equation *q = &l->q;
    mesh_error why;
    int k, d;
    for (k = 0; k < q->n; k++) {
        const mesh_layout *o = l->operand[k];
        if (!o) return mesh__fail(l->err, MESH_ERR_ARGUMENT, -1, "mesh_layout_local: operand %d is NULL", k);
        if (mesh_layout_check(o, &why) != MESH_OK)
            return mesh__fail(l->err, MESH_ERR_ARGUMENT, -1, "mesh_layout_local: operand %d: %s", k, why.text);
        if (o->ndim != q->count[k])
            return mesh__fail(l->err, MESH_ERR_ARGUMENT, -1,
                              "mesh_layout_local: \"%s\": operand %d has %d dims and %d letters", q->text, k, o->ndim,
                              (int)q->count[k]);
        if (!mesh_equal(o->on, l->operand[0]->on))
            return mesh__fail(l->err, MESH_ERR_ARGUMENT, -1,
                              "mesh_layout_local: operand %d is on the mesh \"%s\", operand 0 on \"%s\"; redistribute "
                              "one of them",
                              k, mesh__show(o->on).text, mesh__show(l->operand[0]->on).text);
        for (d = 0; d < o->ndim; d++) {
            int first = mesh__letter_in(q, q->letter[k][d]), e = mesh__letter_dim(q, first, q->letter[k][d]);
            if (l->operand[first]->shape[e] != o->shape[d])
                return mesh__fail(
                    l->err, MESH_ERR_ARGUMENT, -1,
                    "mesh_layout_local: \"%s\": dim %d of operand %d has %l elements, dim %d of operand %d, by "
                    "the same letter, %l",
                    q->text, d, k, o->shape[d], e, first, l->operand[first]->shape[e]);
        }
    }
    return MESH_OK;
}

/* Every operand that has a letter cuts it in the same order, all by one rule. */
MESH__PRIVATE mesh_status mesh__local_orders(const mesh__local *l, mesh_spec *result) {
    const mesh__equation *q = &l->q;
    int k, d, i, ruled = -1;
    for (k = 0; k < q->n; k++) {
        const mesh_spec *s = &l->operand[k]->spec;
        int shards = 0;
        result->strict |= s->strict;
        for (d = 0; d < q->count[k]; d++) {
            uint8_t mine[MESH_MAX_AXES], theirs[MESH_MAX_AXES];
            int first = mesh__letter_in(q, q->letter[k][d]), n = mesh__dim_axes(s, d, mine);
            mesh__dim_axes(&l->operand[first]->spec, mesh__letter_dim(q, first, q->letter[k][d]), theirs);
            for (i = 0; i < n; i++)
                if (mine[i] != theirs[i])
                    return mesh__local_fail(
                        l, mine[i], first, k,
                        "the axes that shard that letter do so in another order (@); redistribute one "
                        "of them");
            shards += n;
        }
        if (!shards) continue;
        if (ruled >= 0 && s->rule != result->rule)
            return mesh__fail(
                l->err, MESH_ERR_ARGUMENT, -1,
                "mesh_layout_local: \"%s\": operand %d is %s and operand %d %s; their parts differ in size: "
                "redistribute one of them",
                q->text, ruled, result->rule ? "balanced" : "chunked", k, s->rule ? "balanced" : "chunked");
        ruled = k;
        result->rule = s->rule;
    }
    return MESH_OK;
}

MESH_API mesh_status mesh_layout_local(mesh_layout *result, mesh_local_kind kind, const char *letters,
                                       const mesh_layout *const *operand, int n, mesh_error *err) {
    mesh__local l;
    mesh_layout made;
    mesh_status status;
    int i, d;
    if (!letters || !operand || !result || n < 1 || n > MESH_MAX_OPERANDS || (unsigned)kind > MESH_LOCAL_MAP)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_layout_local: %s",
                          !letters                         ? "the letters are NULL"
                          : !operand || !result            ? "operands or result are NULL"
                          : n < 1 || n > MESH_MAX_OPERANDS ? "1 to 16 operands are possible"
                                                           : "the kind is MESH_LOCAL_EINSUM, _LINEAR or _MAP");
    l.q.text = letters;
    l.q.kind = kind;
    l.operand = operand;
    l.err = err;
    if ((status = mesh__letters_read(&l.q, n, err)) != MESH_OK ||
        (status = mesh__letters_check(&l.q, err)) != MESH_OK || (status = mesh__local_operands(&l)) != MESH_OK)
        return status;
    made.on = operand[0]->on;
    made.ndim = l.q.count[n];
    for (d = 0; d < MESH_MAX_DIMS; d++) made.shape[d] = 0;
    for (d = 0; d < made.ndim; d++) {
        int k = mesh__letter_in(&l.q, l.q.letter[n][d]);
        made.shape[d] = operand[k]->shape[mesh__letter_dim(&l.q, k, l.q.letter[n][d])];
    }
    mesh__spec_clear(&made.spec, made.on->naxes);
    for (i = 0; i < made.on->naxes; i++)
        if ((status = mesh__local_axis(&l, i, &made.spec.axis[i])) != MESH_OK) return status;
    if ((status = mesh__local_orders(&l, &made.spec)) != MESH_OK) return status;
    if ((status = mesh__layout_check(&made, "mesh_layout_local", err)) == MESH_OK) *result = made;
    return status;
}
#endif /* MESH_LOCAL_IMPLEMENTED */
