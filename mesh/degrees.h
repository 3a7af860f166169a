/* mesh/degrees.h - meshes from degrees of parallelism, in the orders of the field's systems; balanced factors. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh.h. Knows no tensor and no rank's memory.
*/
#if !defined(MESH_DEGREES_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_DEGREES_IMPLEMENTED))
#include "../mesh.h"
#endif

#ifndef MESH_DEGREES_H
#define MESH_DEGREES_H

#ifdef __cplusplus
extern "C" {
#endif

/* How many ways of each parallelism. 0 means 1; -1 means "what remains" (once). */
typedef struct mesh_degrees {
    int world;
    int pp, dp_replicate, dp_shard, cp, tp, ep;
    int etp;              /* expert tensor parallelism: 1 or tp */
    int devices_per_node; /* 0: unknown. A hierarchical order ("auto") keeps tp within a node */
} mesh_degrees;

/* Build the mesh that the degrees describe, in a named order of axes.
   `order` is a list of axis names, slowest first "pp,dp,tp", or Megatron's way, fastest first "tp-cp-ep-dp-pp". Known are pp
   dp_replicate dp_shard cp tp ep etp, and the products dp = batch = dp_replicate*dp_shard, fsdp = dp_shard*cp,
   loss = batch*cp, efsdp = dp_shard*cp*tp/(ep*etp). Or one of these names:
     kempner                 pp,dp_replicate,dp_shard,cp,ep,tp without axes of size 1 (KempnerForge keeps dp_shard if tp or ep > 1)
     torchtitan              pp,dp_replicate,dp_shard,cp,tp       its views: torchtitan:dense pp,dp_replicate,fsdp,tp
     torchtitan:dataloading  pp,batch,cp,tp                       torchtitan:sparse           pp,dp_replicate,efsdp,ep,etp
     ezpz                    dp,pp,cp,tp
     auto                    dp,pp,ep,cp,tp: by how much an axis talks, so tp within a node, then cp, ep (a factor here), pp, dp outermost;
                             ep and cp without size 1; of several -1, dp takes the rest (if it was not given) and the others are 1
   ep is a factor of the world where the order names it without efsdp (KempnerForge), else a view of the dense axes (torchtitan).
   ARGUMENT: a degree below -1, two -1, a product that is not the world, a degree above 1 that the order leaves out, ep that does
   not divide, etp neither 1 nor tp, with "auto" tp that crosses nodes; the text says the nearest that would do. Source: KempnerForge,
   torchtitan ParallelDims, Megatron-LM RankGenerator, ezpz. */
MESH_API mesh_status mesh_from_degrees(mesh *m, const mesh_degrees *degrees, const char *order, mesh_error *err);

/* Factor `size` into `ndims` dims as close to each other as possible, non-increasing; dims given above 0 are kept.
   ARGUMENT: size < 1, more than 16 dims, a negative dim, fixed dims that do not divide size. Source: MPI_Dims_create, MPI-4.1 section 8.5.2;
   as close as MPICH understands it: the least distance from the largest to the smallest, then the largest smallest, then the smallest first ones. */
MESH_API mesh_status mesh_dims_create(int size, int ndims, int *dims, mesh_error *err);

#ifdef __cplusplus
}
#endif
#endif /* MESH_DEGREES_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_DEGREES_IMPLEMENTED)
#define MESH_DEGREES_IMPLEMENTED

enum { MESH__PP, MESH__DPR, MESH__DPS, MESH__CP, MESH__TP, MESH__EP, MESH__ETP, MESH__DEGREES };

MESH__RARE const char *mesh__degree_name(int k) {
    static const char *const names[] = {"pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp"};
    return names[k];
}

/* Which degrees make up a token of an order, as bits; 0: no such token. */
MESH__RARE unsigned mesh__token_degrees(const char *token) {
    enum {
        PP = 1 << MESH__PP,
        DPR = 1 << MESH__DPR,
        DPS = 1 << MESH__DPS,
        CP = 1 << MESH__CP,
        TP = 1 << MESH__TP,
        EP = 1 << MESH__EP,
        ETP = 1 << MESH__ETP
    };
    static const struct {
        const char *token;
        unsigned degrees;
    } tokens[] = {{"pp", PP},
                  {"dp_replicate", DPR},
                  {"dp_shard", DPS},
                  {"cp", CP},
                  {"tp", TP},
                  {"ep", EP},
                  {"etp", ETP},
                  {"dp", DPR | DPS},
                  {"batch", DPR | DPS},
                  {"fsdp", DPS | CP},
                  {"loss", DPR | DPS | CP},
                  {"efsdp", DPS | CP | TP}};
    size_t i;
    for (i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
        if (mesh__same(tokens[i].token, token)) return tokens[i].degrees;
    return 0;
}

enum { MESH__EXPERT_VIEW = 1, MESH__SQUEEZE = 2, MESH__HIERARCHY = 4 }; /* of a named order */

typedef struct mesh__order {
    const char *text;
    char token[MESH_MAX_AXES][MESH_NAME_BYTES]; /* slowest first */
    int n, efsdp;
    unsigned kind;    /* MESH__EXPERT_VIEW: ep and etp are another view of its axes, ... */
    unsigned covered; /* the degrees it accounts for, as bits */
    unsigned factors; /* those whose product is the world */
} mesh__order;

/* The tokens of a list. */
MESH__RARE mesh_status mesh__order_split(mesh__order *o, const char *text, mesh_error *err) {
    mesh__list list = mesh__list_of(text);
    const char *word = text;
    int i, n, length;
    for (n = 0; (length = mesh__list_next(&list, &word)) >= 0; n++) {
        if (!length || length >= MESH_NAME_BYTES || n == MESH_MAX_AXES || mesh__name_length(word) != length) break;
        mesh__name_set(o->token[n], word, length, "", NULL);
    }
    if (length >= 0 || !n)
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "mesh_from_degrees: order %q is neither a known name nor a list such as \"pp,dp,tp\" (slowest first) or "
            "\"tp-dp-pp\" (fastest first)",
            o->text);
    o->n = n;
    for (i = 0; list.parted == '-' && i < n / 2; i++) {
        char *a = o->token[i], *z = o->token[n - 1 - i];
        int k;
        for (k = 0; k < MESH_NAME_BYTES; k++) {
            char c = a[k];
            a[k] = z[k];
            z[k] = c;
        }
    }
    return MESH_OK;
}

MESH__RARE mesh_status mesh__order_read(mesh__order *o, const char *text, mesh_error *err) {
    static const struct {
        const char *name, *list;
        unsigned kind;
    } known[] = {{"kempner", "pp,dp_replicate,dp_shard,cp,ep,tp", MESH__SQUEEZE},
                 {"torchtitan", "pp,dp_replicate,dp_shard,cp,tp", MESH__EXPERT_VIEW},
                 {"torchtitan:dense", "pp,dp_replicate,fsdp,tp", MESH__EXPERT_VIEW},
                 {"torchtitan:dataloading", "pp,batch,cp,tp", MESH__EXPERT_VIEW},
                 {"torchtitan:sparse", "pp,dp_replicate,efsdp,ep,etp", 0},
                 {"ezpz", "dp,pp,cp,tp", 0},
                 {"auto", "dp,pp,ep,cp,tp", MESH__HIERARCHY}};
    const unsigned experts = 1u << MESH__EP | 1u << MESH__ETP;
    const char *list = text;
    unsigned twice = 0;
    mesh_status status;
    int i;
    o->text = text;
    o->n = o->efsdp = 0;
    o->kind = o->covered = 0;
    for (i = 0; i < (int)(sizeof known / sizeof known[0]); i++)
        if (mesh__same(known[i].name, text)) {
            list = known[i].list;
            o->kind = known[i].kind;
        }
    if ((status = mesh__order_split(o, list, err)) != MESH_OK) return status;
    for (i = 0; i < o->n; i++) {
        unsigned degrees = mesh__token_degrees(o->token[i]);
        if (!degrees)
            return mesh__fail(
                err, MESH_ERR_ARGUMENT, -1,
                "mesh_from_degrees: order %q names \"%s\"; known are pp dp dp_replicate dp_shard cp tp ep etp batch fsdp loss "
                "efsdp",
                text, o->token[i]);
        twice |= o->covered & degrees;
        o->covered |= degrees;
        o->efsdp |= mesh__same(o->token[i], "efsdp");
    }
    if (o->efsdp ? (o->covered & experts) != experts : o->covered >> MESH__ETP & 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_from_degrees: order %q: efsdp goes with both ep and etp, and etp with efsdp", text);
    if (twice)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_from_degrees: order %q counts a degree twice; name each once", text);
    o->factors = o->efsdp ? o->covered & ~experts : o->covered;
    if (o->kind & MESH__EXPERT_VIEW) o->covered |= experts;
    return MESH_OK;
}

/* "; nearest that do: 4, 8": the divisors of n around a value that is none. */
MESH__RARE void mesh__put_divisors(mesh__text *t, int n, int64_t value) {
    int below = value < n ? (int)value : n, above;
    while (below > 1 && n % below) below--;
    for (above = value < n ? (int)value : n; n % above;) above++;
    mesh__put(t, "; nearest that do: %d", below);
    if (above != below) mesh__put(t, ", %d", above);
}

/* "; dp_shard = 4 would make it so": the first degree that another value makes right, data parallelism before others. */
MESH__RARE void mesh__put_remedy(mesh__text *t, const int *value, unsigned factors, int64_t product, int world) {
    static const uint8_t first[] = {MESH__DPS, MESH__DPR, MESH__PP, MESH__CP, MESH__EP, MESH__TP};
    size_t i;
    for (i = 0; i < sizeof first; i++) {
        int64_t others = product / value[first[i]];
        if (!(factors >> first[i] & 1) || world % others) continue;
        mesh__put(t, "; %s = %l would make it so", mesh__degree_name(first[i]), world / others);
        return;
    }
}

/* Infer the one degree that is -1 and check the product over `factors` (a set of degrees) against the world. */
MESH__RARE mesh_status mesh__degrees_fill(int *value, unsigned factors, int world, mesh_error *err) {
    int k, missing = -1;
    int64_t product = 1;
    for (k = 0; k < MESH__DEGREES; k++) {
        if (value[k] == 0) value[k] = 1;
        if (value[k] < -1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_from_degrees: %s is %d; a degree is at least 1, or -1 for what remains",
                              mesh__degree_name(k), value[k]);
        if (value[k] == -1) {
            if (missing >= 0)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                  "mesh_from_degrees: %s and %s are both -1; only one degree can be inferred",
                                  mesh__degree_name(missing), mesh__degree_name(k));
            if (!(factors >> k & 1))
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                  "mesh_from_degrees: %s cannot be -1 in this order: it is no factor of the world",
                                  mesh__degree_name(k));
            missing = k;
        } else if (factors >> k & 1) {
            product *= value[k];
            if (product > INT32_MAX)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_from_degrees: the degrees overflow at %s",
                                  mesh__degree_name(k));
        }
    }
    if (missing >= 0 && world % product == 0) {
        value[missing] = (int)(world / product);
    } else if (missing >= 0 || product != world) {
        char shown[160], remedy[80];
        mesh__text t = mesh__text_on(shown, sizeof shown), r = mesh__text_on(remedy, sizeof remedy);
        for (k = 0; k < MESH__DEGREES; k++)
            if (factors >> k & 1 && k != missing)
                mesh__put(&t, "%s%s(%d)", t.len ? " * " : "", mesh__degree_name(k), value[k]);
        if (missing >= 0)
            mesh__put_divisors(&r, world, product);
        else
            mesh__put_remedy(&r, value, factors, product, world);
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_from_degrees: %s = %l %s the world's %d ranks%s%s%s", shown,
                          product, missing >= 0 ? "does not divide" : "is not", world,
                          missing >= 0 ? "; cannot infer " : "", missing >= 0 ? mesh__degree_name(missing) : "",
                          remedy);
    }
    return MESH_OK;
}

/* Experts as a view of the dense axes: what they divide, and what they may be. */
MESH__RARE mesh_status mesh__experts_check(const int *value, mesh_error *err) {
    int64_t dense = (int64_t)value[MESH__DPS] * value[MESH__CP] * value[MESH__TP];
    if (value[MESH__ETP] != 1 && value[MESH__ETP] != value[MESH__TP])
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_from_degrees: etp is %d; it is 1 or tp (%d)",
                          value[MESH__ETP], value[MESH__TP]);
    if (dense % ((int64_t)value[MESH__EP] * value[MESH__ETP])) {
        char nearest[80];
        mesh__text t = mesh__text_on(nearest, sizeof nearest);
        mesh__put_divisors(&t, (int)(dense / value[MESH__ETP]), value[MESH__EP]);
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "mesh_from_degrees: ep * etp = %d * %d does not divide dp_shard * cp * tp = %l; cannot take ep%s",
            value[MESH__EP], value[MESH__ETP], dense, nearest);
    }
    return MESH_OK;
}

/* tp stays within a node, and nodes are full. */
MESH__RARE mesh_status mesh__hierarchy_check(const int *value, int world, int per_node, mesh_error *err) {
    char nearest[80];
    mesh__text t = mesh__text_on(nearest, sizeof nearest);
    if (per_node <= 0) return MESH_OK;
    if (per_node % value[MESH__TP]) {
        mesh__put_divisors(&t, per_node, value[MESH__TP]);
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_from_degrees: tp = %d does not fit within a node of %d devices%s", value[MESH__TP],
                          per_node, nearest);
    }
    if (world > per_node && world % per_node)
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "mesh_from_degrees: a world of %d ranks does not fill nodes of %d devices; %d and %l ranks would", world,
            per_node, world - world % per_node, (int64_t)world - world % per_node + per_node);
    return MESH_OK;
}

/* Of several degrees to infer, data parallelism takes what remains, unless it was given, and the others are 1. */
MESH__RARE void mesh__hierarchy_defaults(int *value) {
    int k, missing = 0, rest = value[MESH__DPS] <= 0 && value[MESH__DPS] >= -1 ? MESH__DPS : -1;
    for (k = 0; k < MESH__DEGREES; k++) missing += value[k] == -1;
    for (k = 0; k < MESH__DEGREES && missing > 1; k++)
        if (value[k] == -1) value[k] = 1;
    if (missing > 1 && rest >= 0) value[rest] = -1;
}

/* Leave out axes of size 1: with KempnerForge all, but dp_shard where it is kept; with "auto" ep and cp. */
MESH__RARE void mesh__drop_ones(mesh *m, unsigned kind, int keep_shard) {
    mesh all = *m;
    int i;
    mesh__start(m, &all);
    for (i = 0; i < all.naxes; i++) {
        const char *name = all.axis[i].name;
        int drop = kind & MESH__SQUEEZE     ? !(keep_shard && mesh__same(name, "dp_shard"))
                   : kind & MESH__HIERARCHY ? mesh__same(name, "ep") || mesh__same(name, "cp")
                                            : 0;
        if (all.axis[i].size > 1 || !drop) mesh__axis_copy(m, &all, i);
    }
    mesh__finish(m);
}

MESH_API mesh_status mesh_from_degrees(mesh *m, const mesh_degrees *d, const char *order, mesh_error *err) {
    const char *names[MESH_MAX_AXES];
    int value[MESH__DEGREES], shape[MESH_MAX_AXES], i, k;
    mesh__order o;
    mesh r;
    mesh_desc desc = MESH_ZERO;
    mesh_status status;
    if (!m || !d || !order)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_from_degrees: %s is NULL",
                          !m   ? "the mesh"
                          : !d ? "the degrees"
                               : "the order");
    if (d->world < 1 || d->devices_per_node < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_from_degrees: a world of %d ranks, nodes of %d devices",
                          d->world, d->devices_per_node);
    if ((status = mesh__order_read(&o, order, err)) != MESH_OK) return status;
    value[MESH__PP] = d->pp;
    value[MESH__DPR] = d->dp_replicate;
    value[MESH__DPS] = d->dp_shard;
    value[MESH__CP] = d->cp;
    value[MESH__TP] = d->tp;
    value[MESH__EP] = d->ep;
    value[MESH__ETP] = d->etp;
    if (o.kind & MESH__HIERARCHY) mesh__hierarchy_defaults(value);
    if ((status = mesh__degrees_fill(value, o.factors, d->world, err)) != MESH_OK) return status;
    for (k = 0; k < MESH__DEGREES; k++)
        if (value[k] > 1 && !(o.covered >> k & 1))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_from_degrees: %s is %d, but the order \"%s\" leaves it out; name it or make it 1",
                              mesh__degree_name(k), value[k], order);
    if (o.efsdp || o.kind & MESH__EXPERT_VIEW)
        if ((status = mesh__experts_check(value, err)) != MESH_OK) return status;
    if (o.kind & MESH__HIERARCHY)
        if ((status = mesh__hierarchy_check(value, d->world, d->devices_per_node, err)) != MESH_OK) return status;
    for (i = 0; i < o.n; i++) {
        unsigned degrees = mesh__token_degrees(o.token[i]);
        names[i] = o.token[i];
        for (shape[i] = 1, k = 0; k < MESH__DEGREES; k++) shape[i] *= degrees >> k & 1 ? value[k] : 1;
        if (mesh__same(o.token[i], "efsdp")) shape[i] /= value[MESH__EP] * value[MESH__ETP];
    }
    desc.shape = shape;
    desc.names = names;
    desc.naxes = o.n;
    desc.world = d->world;
    if ((status = mesh_make(&r, &desc, err)) != MESH_OK) return status;
    mesh__drop_ones(&r, o.kind, value[MESH__TP] > 1 || value[MESH__EP] > 1 || d->world == 1);
    *m = r;
    return MESH_OK;
}

/* `base` to the k-th power, or n where that is less. */
MESH__RARE int64_t mesh__power(int base, int k, int n) {
    int64_t reach = 1;
    for (; k > 0 && reach < n; k--) reach *= base;
    return reach < n ? reach : n;
}

/* Factor n into k dims from `least` to `most`: the lexicographically smallest non-increasing list. `divisor` holds all of the size's
   divisors in ascending order. Returns 0 where there is none. */
MESH__RARE int mesh__factor(int n, int k, int least, int most, const int *divisor, int ndivisors, int *out) {
    int i;
    if (k == 0) return n == 1;
    if (mesh__power(least, k, INT32_MAX) > n) return 0;
    for (i = 0; i < ndivisors && divisor[i] <= most; i++) {
        if (n % divisor[i] || mesh__power(divisor[i], k, n) < n) continue;
        out[0] = divisor[i];
        if (mesh__factor(n / divisor[i], k - 1, least, divisor[i], divisor, ndivisors, out + 1)) return 1;
    }
    return 0;
}

/* Factor n into k dims: the least distance from the largest to the smallest, then the largest smallest, then the smallest first ones. */
MESH__RARE void mesh__balance(int n, int k, const int *divisor, int ndivisors, int *out) {
    int i, j, root = 0, best = n;
    int found[MESH_MAX_AXES];
    while (root + 1 < ndivisors && mesh__power(divisor[root + 1], k, INT32_MAX) <= n) root++;
    for (i = root; i < ndivisors && divisor[i] - divisor[root] <= best; i++) {
        int most = divisor[i];
        if (mesh__power(most, k, n) < n || !mesh__factor(n / most, k - 1, 1, most, divisor, ndivisors, found + 1))
            continue;
        for (j = root; j >= 0 && most - divisor[j] <= best; j--) {
            if (!mesh__factor(n / most, k - 1, divisor[j], most, divisor, ndivisors, found + 1)) continue;
            best = most - divisor[j];
            found[0] = most;
            for (j = 0; j < k; j++) out[j] = found[j];
            break;
        }
    }
}

MESH_API mesh_status mesh_dims_create(int size, int ndims, int *dims, mesh_error *err) {
    int divisor[1600], large[800], free_dim[MESH_MAX_AXES],
        out[MESH_MAX_AXES]; /* no int has more than 1,536 divisors */
    int i, n = 0, nlarge = 0, nfree = 0, rest = size;
    if (size < 1 || ndims < 0 || ndims > MESH_MAX_AXES || (ndims > 0 && !dims))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_dims_create: size %d, %d dims%s; size is at least 1, dims 0 to %d", size, ndims,
                          ndims > 0 && !dims ? " (NULL)" : "", MESH_MAX_AXES);
    for (i = 0; i < ndims; i++) {
        if (dims[i] < 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_dims_create: dim %d is %d; a dim is 0 (free) or more",
                              i, dims[i]);
        if (dims[i] == 0) {
            free_dim[nfree++] = i;
        } else if (rest % dims[i]) {
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_dims_create: size %d does not divide by the fixed dims up to dim %d (%d)", size, i,
                              dims[i]);
        } else {
            rest /= dims[i];
        }
    }
    if (nfree == 0 && rest != 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_dims_create: the fixed dims multiply to %d, not to size %d; leave one 0", size / rest,
                          size);
    for (i = 1; (int64_t)i * i <= rest; i++) {
        if (rest % i) continue;
        divisor[n++] = i;
        if (rest / i != i) large[nlarge++] = rest / i;
    }
    while (nlarge) divisor[n++] = large[--nlarge];
    if (nfree) mesh__balance(rest, nfree, divisor, n, out);
    for (i = 0; i < nfree; i++) dims[free_dim[i]] = out[i];
    return MESH_OK;
}
#endif /* MESH_DEGREES_IMPLEMENTED */
