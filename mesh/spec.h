/* mesh/spec.h - how tensors lie on meshes: a place for each axis. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh.h. Knows no tensor's shape: what a spec makes of one is layout.h.

DO THIS
    Nothing: mesh.h includes it.

EXAMPLE
    mesh_spec spec;
    mesh_spec_parse(&spec, &m, "dp:S(0) tp:S(-1)", 2, &err);     rows over dp, columns over tp

CONCEPTS
    place   what a tensor does along one mesh axis: it is replicated (every coordinate holds the same), sharded (each holds a
            part of one dim), partial (each holds a summand; the value is their sum, or their max, ...), or invariant: data lie as if
            replicated, and so does the gradient, where that of replicated data is partial (local.h).
    spec    a place for each axis of a mesh. Where several axes shard one dim they nest: the outermost cuts the dim, the next
            one cuts what the first left. Their order is written out (S(0)@1) where it is not left to right.

CONVENTIONS
    Text: spec = {axis ":" place} rules, place = "R" | "I" | "S(" dim ")" ["@" order] | "P(" op ")", an axis not named is R; @0 is
    outermost, for one dim all axes or none say it. rules = ["balanced"] ["strict"]. Per dim, as JAX writes it:
    dims = {"[" ("*" | axis {"," axis}) "]"} {("P(" op ")" | "I") " over " axis {"," axis}} rules, the leftmost axis outermost.
    Uneven sizes follow torch.chunk: n elements over k shards, c = ceil(n/k), shard i = [min(n, c*i), min(n, c*(i+1))).
    spec.rule = MESH_RULE_BALANCED makes sizes differ by one at most (5,4,4,4). spec.strict = 1 refuses uneven sizes.
*/
#if !defined(MESH_SPEC_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_SPEC_IMPLEMENTED))
#include "../mesh.h"
#endif

#ifndef MESH_SPEC_H
#define MESH_SPEC_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- places and specs ------------------------------------------------------------------------------------------- */

typedef enum mesh_place_kind { MESH_REPLICATE = 0, MESH_SHARD, MESH_PARTIAL, MESH_INVARIANT } mesh_place_kind;
typedef enum mesh_rule { MESH_RULE_CHUNK = 0, MESH_RULE_BALANCED } mesh_rule;

typedef struct mesh_place {
    uint8_t kind;  /* mesh_place_kind */
    uint8_t dim;   /* of MESH_SHARD; mesh_shard(-1) is the last dim until a spec is made of it */
    uint8_t op;    /* of MESH_PARTIAL: a mesh_op */
    uint8_t order; /* of MESH_SHARD: position among the axes that shard the dim, 0 outermost */
} mesh_place;

typedef struct mesh_spec {
    mesh_place axis[MESH_MAX_AXES]; /* one per axis of the mesh; beyond naxes all zero */
    uint8_t naxes, rule, strict, zero;
} mesh_spec;

enum { MESH_ORDER_DEFAULT = 255 }; /* left to right */

/* Places to make specs of. */
MESH_API mesh_place mesh_replicate(void);
MESH_API mesh_place mesh_shard(int dim);               /* negative: from the last dim */
MESH_API mesh_place mesh_shard_at(int dim, int order); /* order 0: outermost of those that shard dim */
MESH_API mesh_place mesh_partial(mesh_op op);
MESH_API mesh_place mesh_invariant(void);

/* Make a spec of one place per axis of the mesh, for tensors of ndim dims. places NULL: all replicated. ARGUMENT: a dim
   outside, an order that is no permutation or not given for all axes of its dim, an op that is none of sum, avg, min, max,
   prod, and, or, xor, two different ops. */
MESH_API mesh_status mesh_spec_make(mesh_spec *s, const mesh *m, const mesh_place *places, int ndim, mesh_error *err);
/* The same from text: "dp:S(0) tp:P(sum)", "dp:S(0) balanced". The inverse of mesh_spec_format. ARGUMENT also: unknown axis, an axis twice. */
MESH_API mesh_status mesh_spec_parse(mesh_spec *s, const mesh *m, const char *text, int ndim, mesh_error *err);
/* Per dim, as JAX writes it: "[dp,tp] [*]", "[tp] P(sum) over dp"; dims that are left out are whole. The inverse of mesh_spec_format_dims. */
MESH_API mesh_status mesh_spec_parse_dims(mesh_spec *s, const mesh *m, const char *text, int ndim, mesh_error *err);
/* As text, every axis named: "dp:S(0) tp:R". Each returns the length of the whole text. */
MESH_API size_t mesh_spec_format(const mesh_spec *s, const mesh *m, char *buf, size_t cap);
/* Partial and invariant axes cannot be said per dim: they follow as "P(sum) over dp", "I over tp". */
MESH_API size_t mesh_spec_format_dims(const mesh_spec *s, const mesh *m, int ndim, char *buf, size_t cap);

/* 1 if both say the same. (R and I differ here, as their gradients do; in mesh_layout_equal they do not.) */
MESH_API int mesh_spec_equal(const mesh_spec *a, const mesh_spec *b);

#ifdef __cplusplus
}
#endif
#endif /* MESH_SPEC_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SPEC_IMPLEMENTED)
#define MESH_SPEC_IMPLEMENTED

/* ---- // >>specs ---------------------------------------------------------------------------------------------------- */

MESH__PRIVATE mesh_place mesh__place(int kind, int dim, int op, int order) {
    mesh_place p;
    p.kind = (uint8_t)kind;
    p.dim = (uint8_t)dim;
    p.op = (uint8_t)op;
    p.order = (uint8_t)order;
    return p;
}
MESH_API mesh_place mesh_replicate(void) { return mesh__place(MESH_REPLICATE, 0, 0, 0); }
MESH_API mesh_place mesh_invariant(void) { return mesh__place(MESH_INVARIANT, 0, 0, 0); }
/* What does not fit a byte stays wrong: it must not become another dim, order or op. */
enum { MESH__DIM_OUTSIDE = 127, MESH__ORDER_OUTSIDE = 254 };
MESH__PRIVATE int mesh__dim_is(int dim) { return dim >= -MESH_MAX_DIMS && dim < MESH_MAX_DIMS; }
MESH__PRIVATE int mesh__dim_byte(int dim) { return mesh__dim_is(dim) ? dim : MESH__DIM_OUTSIDE; }
MESH_API mesh_place mesh_shard(int dim) { return mesh__place(MESH_SHARD, mesh__dim_byte(dim), 0, MESH_ORDER_DEFAULT); }
MESH_API mesh_place mesh_shard_at(int dim, int order) {
    return mesh__place(MESH_SHARD, mesh__dim_byte(dim), 0,
                       order < 0 || order > MESH__ORDER_OUTSIDE ? MESH__ORDER_OUTSIDE : order);
}
MESH_API mesh_place mesh_partial(mesh_op op) {
    return mesh__place(MESH_PARTIAL, 0, (int)op < 0 || (int)op > 254 ? 255 : (int)op, 0);
}

MESH__PRIVATE void mesh__spec_clear(mesh_spec *s, int naxes) {
    int i;
    for (i = 0; i < MESH_MAX_AXES; i++) s->axis[i] = mesh_replicate();
    s->naxes = (uint8_t)naxes;
    s->rule = s->strict = s->zero = 0;
}

/* What moves: data that are invariant lie as replicated ones do. */
MESH__PRIVATE mesh_spec mesh__spec_plain(const mesh_spec *s) {
    mesh_spec r = *s;
    int i;
    for (i = 0; i < r.naxes; i++)
        if (r.axis[i].kind == MESH_INVARIANT) r.axis[i] = mesh_replicate();
    return r;
}

/* The orders of the axes that shard a dim: given for none, which means left to right, or for all, each once. */
MESH__PRIVATE mesh_status mesh__spec_order(mesh_spec *s, const mesh *m, int dim, const char *function,
                                           mesh_error *err) {
    int i, all = 0, given = 0;
    uint32_t seen = 0;
    for (i = 0; i < m->naxes; i++) {
        if (s->axis[i].kind != MESH_SHARD || s->axis[i].dim != dim) continue;
        all++;
        given += s->axis[i].order != MESH_ORDER_DEFAULT;
    }
    if (given && given < all)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: dim %d is sharded by %d axes, but %d of them say their order; all (@) or none must",
                          function, dim, all, given);
    for (i = 0, all = 0; i < m->naxes; i++) {
        mesh_place *p = &s->axis[i];
        if (p->kind != MESH_SHARD || p->dim != dim) continue;
        if (!given) p->order = (uint8_t)all;
        all++;
    }
    for (i = 0; i < m->naxes; i++) {
        const mesh_place *p = &s->axis[i];
        if (p->kind != MESH_SHARD || p->dim != dim) continue;
        if (p->order >= all || (seen >> p->order & 1))
            return mesh__fail(
                err, MESH_ERR_ARGUMENT, -1,
                "%s: axis \"%s\" has order %d%s on dim %d, which %d axes shard; orders are 0 (outermost) to %d, "
                "each once",
                function, m->axis[i].name, p->order, p->order == MESH__ORDER_OUTSIDE ? " or more, or one below 0," : "",
                dim, all, all - 1);
        seen |= UINT32_C(1) << p->order;
    }
    return MESH_OK;
}

/* Places that are right in themselves, with dims counted from the front. The orders: all of a dim's axes or none. */
MESH__PRIVATE mesh_status mesh__spec_finish(mesh_spec *s, const mesh *m, int ndim, const char *function,
                                            mesh_error *err) {
    int i, dim, op = -1, first = -1;
    mesh_status status;
    if (ndim < 0 || ndim > MESH_MAX_DIMS)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: a tensor of %d dims; 0 to %d are possible", function, ndim,
                          MESH_MAX_DIMS);
    if (s->naxes != m->naxes)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the spec is for %d axes, the mesh \"%s\" has %d", function,
                          s->naxes, mesh__show(m).text, m->naxes);
    if (s->rule > MESH_RULE_BALANCED)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: spec.rule is %d; it is MESH_RULE_CHUNK or _BALANCED",
                          function, s->rule);
    for (i = 0; i < m->naxes; i++) {
        mesh_place *p = &s->axis[i];
        const char *name = m->axis[i].name;
        if (p->kind == MESH_PARTIAL) {
            if (p->op > MESH_XOR)
                return mesh__fail(
                    err, MESH_ERR_ARGUMENT, -1,
                    "%s: axis \"%s\" is partial over %s; sum, avg, min, max, prod, and, or, xor are possible", function,
                    name, mesh_op_name((mesh_op)p->op));
            if (op >= 0 && op != p->op)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                  "%s: axes \"%s\" and \"%s\" are partial over %s and %s; one op for all partial axes",
                                  function, m->axis[first].name, name, mesh_op_name((mesh_op)op),
                                  mesh_op_name((mesh_op)p->op));
            op = p->op;
            first = i;
        } else if (p->kind == MESH_SHARD) {
            dim = (int8_t)p->dim;
            if (dim == MESH__DIM_OUTSIDE)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                  "%s: axis \"%s\" shards a dim outside of %d to %d, which no tensor has", function,
                                  name, -MESH_MAX_DIMS, MESH_MAX_DIMS - 1);
            if (ndim == 0)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                  "%s: axis \"%s\" shards dim %d of a tensor of 0 dims; a scalar has none", function,
                                  name, dim);
            if (dim < -ndim || dim >= ndim)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                  "%s: axis \"%s\" shards dim %d of a tensor of %d dims; %d to %d are possible",
                                  function, name, dim, ndim, -ndim, ndim - 1);
            p->dim = (uint8_t)(dim < 0 ? dim + ndim : dim);
        } else if (p->kind != MESH_REPLICATE && p->kind != MESH_INVARIANT) {
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: axis \"%s\" has a place of unknown kind %d", function,
                              name, p->kind);
        }
    }
    for (dim = 0; dim < ndim; dim++)
        if ((status = mesh__spec_order(s, m, dim, function, err)) != MESH_OK) return status;
    return MESH_OK;
}

MESH_API mesh_status mesh_spec_make(mesh_spec *s, const mesh *m, const mesh_place *places, int ndim, mesh_error *err) {
    mesh_spec r;
    mesh_status status;
    int i;
    if ((status = mesh__mesh_check(m, "mesh_spec_make", err)) != MESH_OK) return status;
    mesh__spec_clear(&r, m->naxes);
    for (i = 0; i < m->naxes && places; i++) r.axis[i] = places[i];
    if ((status = mesh__spec_finish(&r, m, ndim, "mesh_spec_make", err)) != MESH_OK) return status;
    *s = r;
    return MESH_OK;
}

MESH_API int mesh_spec_equal(const mesh_spec *a, const mesh_spec *b) {
    int i;
    if (a->naxes != b->naxes || a->rule != b->rule || a->strict != b->strict) return 0;
    for (i = 0; i < a->naxes; i++) {
        const mesh_place *p = &a->axis[i], *q = &b->axis[i];
        if (p->kind != q->kind || (p->kind == MESH_PARTIAL && p->op != q->op) ||
            (p->kind == MESH_SHARD && (p->dim != q->dim || p->order != q->order)))
            return 0;
    }
    return 1;
}

/* The axes that shard a dim, outermost first. Returns how many. */
MESH__PRIVATE int mesh__dim_axes(const mesh_spec *s, int dim, uint8_t *list) {
    int i, n = 0;
    for (i = 0; i < s->naxes; i++)
        if (s->axis[i].kind == MESH_SHARD && s->axis[i].dim == dim) list[s->axis[i].order] = (uint8_t)i, n++;
    return n;
}

/* ---- // >>specs as text ---- */

/* A reader of texts: p moves on; `text` is shown whole in messages. */
typedef struct mesh__reader {
    const char *p, *text, *function;
    mesh_error *err;
} mesh__reader;

MESH__RARE void mesh__skip_spaces(mesh__reader *r) {
    while (*r->p == ' ' || *r->p == '\t' || *r->p == '\n') r->p++;
}
MESH__RARE int mesh__read_char(mesh__reader *r, char c) {
    if (*r->p != c) return 0;
    r->p++;
    return 1;
}
MESH__RARE mesh_status mesh__read_fail(mesh__reader *r, const char *wanted) {
    char near[24];
    mesh__text t = mesh__text_on(near, sizeof near);
    int i;
    for (i = 0; i < 20 && r->p[i]; i++) mesh__put_char(&t, r->p[i]);
    return mesh__fail(r->err, MESH_ERR_ARGUMENT, -1, "%s: %q: expected %s %s%s%s", r->function, r->text, wanted,
                      near[0] ? "at \"" : "at the end", near, near[0] ? "\"" : "");
}
/* A small number, perhaps negative. Returns 0 if there is none, or one beyond +-99, or a zero below zero. */
MESH__RARE int mesh__read_int(mesh__reader *r, int *v) {
    int sign = *r->p == '-', n = sign;
    *v = 0;
    for (; mesh__is_digit(r->p[n]); n++) {
        *v = *v * 10 + (r->p[n] - '0');
        if (*v > 99) return 0;
    }
    if (n == sign || (sign && !*v)) return 0;
    if (sign) *v = -*v;
    r->p += n;
    return 1;
}
/* The name of an axis that occurs for the first time. Returns its number, or -1 with the error filled. */
MESH__RARE int mesh__read_axis(mesh__reader *r, const mesh *m, uint32_t *seen) {
    int n = mesh__name_length(r->p), axis, i;
    char name[24];
    mesh__text t = mesh__text_on(name, sizeof name);
    if (n == 0) return mesh__read_fail(r, "the name of an axis"), -1;
    for (i = 0; i < n; i++) mesh__put_char(&t, r->p[i]);
    axis = n < MESH_NAME_BYTES ? mesh__axis_of(m, r->p, n) : -1;
    if (axis < 0)
        return mesh__fail(r->err, MESH_ERR_ARGUMENT, -1, "%s: %q: the mesh \"%s\" has no axis \"%s\"", r->function,
                          r->text, mesh__show(m).text, name),
               -1;
    if (*seen >> axis & 1)
        return mesh__fail(r->err, MESH_ERR_ARGUMENT, -1, "%s: %q: axis \"%s\" occurs twice; name it once", r->function,
                          r->text, name),
               -1;
    *seen |= UINT32_C(1) << axis;
    r->p += n;
    return axis;
}

/* place = "R" | "I" | "S(" dim ")" ["@" order] | "P(" op ")" */
MESH__RARE mesh_status mesh__read_place(mesh__reader *r, mesh_place *place) {
    int v, k, order = MESH_ORDER_DEFAULT;
    if (mesh__read_char(r, 'R')) {
        *place = mesh_replicate();
        return MESH_OK;
    }
    if (mesh__read_char(r, 'I')) {
        *place = mesh_invariant();
        return MESH_OK;
    }
    if (mesh__read_char(r, 'S')) {
        if (!mesh__read_char(r, '(') || !mesh__read_int(r, &v) || !mesh__read_char(r, ')'))
            return mesh__read_fail(r, "a dim, as in S(0),");
        if (!mesh__dim_is(v))
            return mesh__fail(r->err, MESH_ERR_ARGUMENT, -1, "%s: %q: dim %d; a tensor has %d dims at most",
                              r->function, r->text, v, MESH_MAX_DIMS);
        if (mesh__read_char(r, '@') && (!mesh__read_int(r, &order) || order < 0))
            return mesh__read_fail(r, "an order, as in S(0)@1,");
        *place = order == MESH_ORDER_DEFAULT ? mesh_shard(v) : mesh_shard_at(v, order);
        return MESH_OK;
    }
    if (mesh__read_char(r, 'P')) {
        const char *start = r->p + 1;
        if (!mesh__read_char(r, '(')) return mesh__read_fail(r, "an op, as in P(sum),");
        for (k = 0; k <= MESH_XOR; k++) {
            const char *name = mesh_op_name((mesh_op)k);
            int n = mesh__length(name), same = 1, i;
            for (i = 0; i < n && same; i++) same = start[i] == name[i];
            if (!same || start[n] != ')') continue;
            r->p = start + n + 1;
            *place = mesh_partial((mesh_op)k);
            return MESH_OK;
        }
        return mesh__read_fail(r, "sum, avg, min, max, prod, and, or or xor, as in P(sum),");
    }
    return mesh__read_fail(r, "a place: R, I, S(0), S(0)@1 or P(sum),");
}

/* A word that is no axis' name, for it would have a colon. */
MESH__RARE int mesh__read_word(mesh__reader *r, const char *word) {
    int n = mesh__length(word), i;
    if (mesh__name_length(r->p) != n || r->p[n] == ':') return 0;
    for (i = 0; i < n; i++)
        if (r->p[i] != word[i]) return 0;
    r->p += n;
    mesh__skip_spaces(r);
    return 1;
}
/* rules = ["balanced"] ["strict"], to the end of the text */
MESH__RARE mesh_status mesh__read_rules(mesh__reader *r, mesh_spec *s) {
    if (mesh__read_word(r, "balanced")) s->rule = MESH_RULE_BALANCED;
    if (mesh__read_word(r, "strict")) s->strict = 1;
    return *r->p ? mesh__read_fail(r, s->strict ? "the end (strict is for all axes, behind them)"
                                      : s->rule == MESH_RULE_BALANCED
                                          ? "the end, or strict (balanced is for all axes, behind them)"
                                          : "the end, balanced or strict")
                 : MESH_OK;
}
MESH__RARE void mesh__put_rules(mesh__text *t, const mesh_spec *s) {
    if (s->rule == MESH_RULE_BALANCED) mesh__put(t, "%sbalanced", t->len ? " " : "");
    if (s->strict) mesh__put(t, "%sstrict", t->len ? " " : "");
}
/* Does one of the rules begin here? */
MESH__RARE int mesh__at_rules(const mesh__reader *r) {
    mesh__reader ahead = *r;
    return mesh__read_word(&ahead, "balanced") || mesh__read_word(&ahead, "strict");
}

MESH__RARE mesh_status mesh__spec_parse_as(mesh_spec *s, const mesh *m, const char *text, int ndim,
                                           const char *function, mesh_error *err) {
    mesh__reader r;
    mesh_spec spec;
    mesh_status status;
    uint32_t seen = 0;
    r.p = r.text = text;
    r.function = function;
    r.err = err;
    if (!text) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the text is NULL", function);
    if ((status = mesh__mesh_check(m, function, err)) != MESH_OK) return status;
    mesh__spec_clear(&spec, m->naxes);
    for (mesh__skip_spaces(&r); *r.p && !mesh__at_rules(&r);) {
        const char *end;
        int axis = mesh__read_axis(&r, m, &seen);
        if (axis < 0) return MESH_ERR_ARGUMENT;
        if (!mesh__read_char(&r, ':')) return mesh__read_fail(&r, "\":\" and a place");
        if ((status = mesh__read_place(&r, &spec.axis[axis])) != MESH_OK) return status;
        end = r.p;
        mesh__skip_spaces(&r);
        if (*r.p && r.p == end) return mesh__read_fail(&r, "a space");
    }
    if ((status = mesh__read_rules(&r, &spec)) != MESH_OK) return status;
    if ((status = mesh__spec_finish(&spec, m, ndim, function, err)) != MESH_OK) return status;
    *s = spec;
    return MESH_OK;
}

MESH_API mesh_status mesh_spec_parse(mesh_spec *s, const mesh *m, const char *text, int ndim, mesh_error *err) {
    return mesh__spec_parse_as(s, m, text, ndim, "mesh_spec_parse", err);
}

/* The next axis of a list, at a comma; spaces around it. */
MESH__RARE int mesh__read_comma(mesh__reader *r) {
    mesh__reader ahead = *r;
    mesh__skip_spaces(&ahead);
    if (!mesh__read_char(&ahead, ',')) return 0;
    mesh__skip_spaces(&ahead);
    r->p = ahead.p;
    return 1;
}

MESH__RARE mesh_status mesh__spec_parse_dims_as(mesh_spec *s, const mesh *m, const char *text, int ndim,
                                                const char *function, mesh_error *err) {
    mesh__reader r;
    mesh_spec spec;
    mesh_status status;
    uint32_t seen = 0;
    int dim = 0, axis, n;
    r.p = r.text = text;
    r.function = function;
    r.err = err;
    if (!text) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the text is NULL", function);
    if ((status = mesh__mesh_check(m, function, err)) != MESH_OK) return status;
    if (ndim < 0 || ndim > MESH_MAX_DIMS)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: a tensor of %d dims; 0 to %d are possible", function, ndim,
                          MESH_MAX_DIMS);
    mesh__spec_clear(&spec, m->naxes);
    for (mesh__skip_spaces(&r); *r.p && *r.p != 'P' && *r.p != 'I' && !mesh__at_rules(&r);
         mesh__skip_spaces(&r), dim++) {
        if (dim >= ndim)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %q is for more than the %d dims", function, text, ndim);
        if (!mesh__read_char(&r, '[')) return mesh__read_fail(&r, "\"[\"");
        mesh__skip_spaces(&r);
        if (!mesh__read_char(&r, '*')) {
            n = 0;
            do {
                if ((axis = mesh__read_axis(&r, m, &seen)) < 0) return MESH_ERR_ARGUMENT;
                spec.axis[axis] = mesh_shard_at(dim, n++);
            } while (mesh__read_comma(&r));
        }
        mesh__skip_spaces(&r);
        if (!mesh__read_char(&r, ']')) return mesh__read_fail(&r, "\"]\"");
    }
    while (*r.p == 'P' || *r.p == 'I') {
        mesh_place place;
        if ((status = mesh__read_place(&r, &place)) != MESH_OK) return status;
        mesh__skip_spaces(&r);
        if (!mesh__read_word(&r, "over")) return mesh__read_fail(&r, "\"over\" and axes");
        do {
            if ((axis = mesh__read_axis(&r, m, &seen)) < 0) return MESH_ERR_ARGUMENT;
            spec.axis[axis] = place;
        } while (mesh__read_comma(&r));
        mesh__skip_spaces(&r);
    }
    if ((status = mesh__read_rules(&r, &spec)) != MESH_OK) return status;
    if ((status = mesh__spec_finish(&spec, m, ndim, function, err)) != MESH_OK) return status;
    *s = spec;
    return MESH_OK;
}

MESH_API mesh_status mesh_spec_parse_dims(mesh_spec *s, const mesh *m, const char *text, int ndim, mesh_error *err) {
    return mesh__spec_parse_dims_as(s, m, text, ndim, "mesh_spec_parse_dims", err);
}

MESH_API size_t mesh_spec_format(const mesh_spec *s, const mesh *m, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int i, k;
    for (i = 0; i < s->naxes; i++) {
        const mesh_place *p = &s->axis[i];
        uint8_t list[MESH_MAX_AXES];
        int n, in_order = 1;
        mesh__put(&t, "%s%s:", i ? " " : "", m->axis[i].name);
        if (p->kind == MESH_REPLICATE) mesh__put_char(&t, 'R');
        if (p->kind == MESH_INVARIANT) mesh__put_char(&t, 'I');
        if (p->kind == MESH_PARTIAL) mesh__put(&t, "P(%s)", mesh_op_name((mesh_op)p->op));
        if (p->kind != MESH_SHARD) continue;
        n = mesh__dim_axes(s, p->dim, list);
        for (k = 1; k < n; k++) in_order &= list[k - 1] < list[k];
        mesh__put(&t, "S(%d)", p->dim);
        if (!in_order) mesh__put(&t, "@%d", p->order);
    }
    mesh__put_rules(&t, s);
    return t.len;
}

MESH_API size_t mesh_spec_format_dims(const mesh_spec *s, const mesh *m, int ndim, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int d, k, partial = 0, invariant = 0;
    for (d = 0; d < ndim; d++) {
        uint8_t list[MESH_MAX_AXES];
        int n = mesh__dim_axes(s, d, list);
        mesh__put(&t, "%s[%s", d ? " " : "", n ? "" : "*");
        for (k = 0; k < n; k++) mesh__put(&t, "%s%s", k ? "," : "", m->axis[list[k]].name);
        mesh__put_char(&t, ']');
    }
    for (k = 0; k < s->naxes; k++)
        if (s->axis[k].kind == MESH_PARTIAL) {
            if (!partial) mesh__put(&t, "%sP(%s) over ", t.len ? " " : "", mesh_op_name((mesh_op)s->axis[k].op));
            mesh__put(&t, "%s%s", partial++ ? "," : "", m->axis[k].name);
        }
    for (k = 0; k < s->naxes; k++)
        if (s->axis[k].kind == MESH_INVARIANT) {
            if (!invariant) mesh__put(&t, "%sI over ", t.len ? " " : "");
            mesh__put(&t, "%s%s", invariant++ ? "," : "", m->axis[k].name);
        }
    mesh__put_rules(&t, s);
    return t.len;
}
#endif /* MESH_SPEC_IMPLEMENTED */
