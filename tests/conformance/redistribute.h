/* Seeded redistributions, compared element by element. Part of tests/conformance.h. */
#ifndef CONFORMANCE_REDISTRIBUTE_H
#define CONFORMANCE_REDISTRIBUTE_H

typedef struct conf_random {
    uint64_t state;
} conf_random;

static int conf_below(conf_random *r, int n) {
    r->state ^= r->state >> 12;
    r->state ^= r->state << 25;
    r->state ^= r->state >> 27;
    return (int)((r->state * UINT64_C(2685821657736338717) >> 33) % (uint64_t)n);
}

/* A factoring of ranks [origin, origin + size). */
static mesh conf_mesh(conf_random *r, int origin, int size) {
    static const char *const names[] = {"a", "b", "c", "d"};
    mesh_desc d = MESH_ZERO;
    int shape[4], rest = size;
    mesh m;
    while (d.naxes < 3 && rest > 1 && conf_below(r, 4)) {
        int k = 2 + conf_below(r, rest - 1);
        if (rest % k) continue;
        shape[d.naxes++] = k;
        rest /= k;
    }
    shape[d.naxes++] = rest;
    d.shape = shape;
    d.names = names;
    d.origin = origin;
    d.first_fastest = conf_below(r, 3) == 0;
    mesh_make(&m, &d, NULL);
    return m;
}

/* Any spec: op -1: nothing partial. */
static mesh_spec conf_spec(conf_random *r, const mesh *m, int ndim, int op) {
    mesh_place place[MESH_MAX_AXES];
    mesh_spec s;
    int i, k, d;
    for (i = 0; i < m->naxes; i++) {
        int kind = conf_below(r, 4);
        place[i] = kind == 0 && op >= 0 ? mesh_partial((mesh_op)op)
                   : kind < 3 && ndim   ? mesh_shard(conf_below(r, ndim))
                   : i & 1              ? mesh_invariant()
                                        : mesh_replicate();
    }
    mesh_spec_make(&s, m, place, ndim, NULL);
    for (d = 0; d < ndim; d++) /* another order, perhaps */
        for (i = 0; i < m->naxes; i++)
            for (k = 0; k < i; k++)
                if (s.axis[i].kind == MESH_SHARD && s.axis[k].kind == MESH_SHARD && s.axis[i].dim == d &&
                    s.axis[k].dim == d && conf_below(r, 2)) {
                    uint8_t order = s.axis[i].order;
                    s.axis[i].order = s.axis[k].order;
                    s.axis[k].order = order;
                }
    s.rule = (uint8_t)(conf_below(r, 5) == 0);
    return s;
}

/* Which summand a rank holds, and of how many. */
static int conf_summand(const mesh_tensor *t, int rank, int *count) {
    int coord[MESH_MAX_AXES], i, index = 0;
    *count = 1;
    mesh_coords_of(t->layout.on, NULL, rank, coord);
    for (i = 0; i < t->layout.on->naxes; i++)
        if (t->layout.spec.axis[i].kind == MESH_PARTIAL)
            index = index * t->layout.on->axis[i].size + coord[i], *count *= t->layout.on->axis[i].size;
    return index;
}

/* Element e of the whole tensor, as number or as bytes: a rank's summand, or all of them combined. */
static void conf_element(const mesh_tensor *t, int op, int summand, int summands, int combined, int64_t e,
                         unsigned char *at) {
    static const int seeds[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                  16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                  32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                  48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    if (t->dtype == MESH_BYTES)
        conf_fill(at, (uint64_t)t->elem_bytes, (uint64_t)e);
    else if (combined)
        conf_expect(t->dtype, op, summands, seeds, (size_t)e, at, 0);
    else
        conf_put(t->dtype, at, 0, conf_value(op, summand, (size_t)e, 0), conf_value(op, summand, (size_t)e, 1));
}

enum { CONF_GUARD = 32 };

/* Memory for a rank's part, with guards, now and then with strides, padded and in any order. Returns the bytes between the guards. */
static size_t conf_part(conf_memory *m, conf_random *r, mesh_tensor *t, int rank, int64_t *strides, mesh_box *box) {
    int64_t elem = t->elem_bytes ? t->elem_bytes : (int64_t)mesh_dtype_bytes(t->dtype), span = 1;
    int d, k, order[MESH_MAX_DIMS], padded = conf_below(r, 3) == 0;
    memset(box, 0, sizeof *box);
    box->ndim = t->layout.ndim;
    if (mesh_tensor_box(t, rank, box) < 0 && t->layout.ndim == 0) box->ndim = -1;
    for (d = t->layout.ndim - 1; d >= 0; d--) order[t->layout.ndim - 1 - d] = d;
    for (d = t->layout.ndim - 1; d > 0 && padded; d--) {
        int other = conf_below(r, 2) ? conf_below(r, d + 1) : d, was = order[d];
        order[d] = order[other], order[other] = was;
    }
    for (k = 0; k < t->layout.ndim; k++) {
        d = order[k];
        strides[d] = span + (padded ? d + 1 : 0);
        span = strides[d] * (box->shape[d] ? box->shape[d] : 1);
    }
    t->strides = padded ? strides : NULL;
    t->data = conf_new(m, (size_t)(span * elem) + 2 * CONF_GUARD);
    memset(t->data, 0xee, (size_t)(span * elem) + 2 * CONF_GUARD);
    t->data = (char *)t->data + CONF_GUARD;
    return (size_t)(span * elem);
}

/* Fill a part (check 0), or compare it (1). Elements between strides and guards are 0xee. */
static int conf_visit(const mesh_tensor *t, const mesh_box *box, const int64_t *strides, size_t nbytes, int op,
                      int rank, int summands, int check) {
    int64_t elem = t->elem_bytes ? t->elem_bytes : (int64_t)mesh_dtype_bytes(t->dtype), k, n;
    unsigned char *want = (unsigned char *)malloc(nbytes + 2 * CONF_GUARD), *base = (unsigned char *)t->data;
    int d, of = 1, mine = mesh_index_of(t->layout.on, rank) < 0 ? 0 : conf_summand(t, rank, &of), same;
    n = box->ndim < 0 ? 0 : mesh_box_count(box);
    if (mesh_index_of(t->layout.on, rank) < 0) n = 0;
    memset(want, 0xee, nbytes + 2 * CONF_GUARD);
    for (k = 0; k < n; k++) {
        int64_t rest = k, at = 0, linear = 0, index[MESH_MAX_DIMS];
        for (d = t->layout.ndim - 1; d >= 0; d--) index[d] = rest % box->shape[d], rest /= box->shape[d];
        for (d = 0; d < t->layout.ndim; d++) {
            at += index[d] * strides[d];
            linear = linear * t->layout.shape[d] + index[d] + box->offset[d];
        }
        conf_element(t, op, mine, check ? summands : of, check, linear, want + CONF_GUARD + at * elem);
    }
    if (!check) memcpy(base, want + CONF_GUARD, nbytes);
    same = !memcmp(base - CONF_GUARD, want, nbytes + 2 * CONF_GUARD);
    free(want);
    return same;
}

static void conf_part_free(conf_memory *m, const mesh_tensor *t) { conf_delete(m, (char *)t->data - CONF_GUARD); }

/* A tensor as an operation is given it. */
static mesh_tensor conf_lent(const conf_memory *m, const mesh_tensor *t) {
    mesh_tensor lent = *t;
    lent.data = conf_at(m, t->data);
    return lent;
}

static int conf_has_partial(const mesh_spec *s) {
    int i;
    for (i = 0; i < s->naxes; i++)
        if (s->axis[i].kind == MESH_PARTIAL) return 1;
    return 0;
}

/* Another plan than the best: one of the others that the search has found, the same on every rank. Returns whether there is one. */
static int conf_other_plan(mesh_comm *comm, conf_random *r, const mesh_tensor *src, const mesh_tensor *dst,
                           mesh_plan *plan) {
    enum { PLANS = 16 };
    mesh_plan *all = (mesh_plan *)malloc(PLANS * sizeof *all);
    mesh_plan_desc d;
    int n;
    mesh__tensor_desc(comm, src, dst, &d);
    n = mesh_plan_candidates(all, PLANS, &d, NULL);
    if (n > PLANS) n = PLANS;
    if (n > 1) *plan = all[1 + conf_below(r, n - 1)];
    free(all);
    return n > 1;
}

/* One call: a list of tensors between two meshes, seen from this rank. */
static void conf_redistribute(mesh_comm *comm, conf_random *r, int most) {
    enum { LIST = 24 };
    mesh_transport *t = comm->transport;
    conf_memory m = conf_memory_of(t, comm);
    mesh_tensor src[LIST], dst[LIST], from_src[LIST], to_dst[LIST]; /* the latter: what operations are given */
    int64_t strides[2][LIST][MESH_MAX_DIMS];
    mesh_box box[2][LIST];
    size_t nbytes[2][LIST];
    mesh_plan *plan = (mesh_plan *)malloc(sizeof *plan);
    mesh from, to, other;
    int n = conf_below(r, 4) ? 1 : 2 + conf_below(r, LIST - 1), i, k, how = conf_below(r, 4), half = t->size / 2;
    int ops[LIST], summands[LIST], d, form, given = 0;
    uint64_t sent[2] = {0, 0}, received[2] = {0, 0}, will_send = 0, will_receive = 0;
    int64_t scratch = -1, bound = 0;
    mesh_error err;
    mesh_request request;
    char text[700] = "";
    from = conf_mesh(r, 0, how == 1 && t->size % 2 == 0 ? half : t->size);
    to = how == 1 && t->size % 2 == 0 ? conf_mesh(r, half, half)
         : how == 2                   ? conf_mesh(r, 0, t->size)
         : how == 3 && half           ? conf_mesh(r, half, t->size - half)
                                      : from;
    other = from;
    for (i = 0; i < n; i++) {
        static const int op_of[] = {MESH_SUM, MESH_MAX, MESH_MIN, MESH_SUM, MESH_XOR, MESH_AVG, MESH_PROD, MESH_OR};
        mesh_tensor *a = &src[i], *b = &dst[i];
        int64_t room = 1;
        memset(a, 0, sizeof *a);
        a->layout.ndim = conf_below(r, 12) ? 1 + conf_below(r, 4) : 0;
        for (d = 0; d < a->layout.ndim; d++) {
            a->layout.shape[d] = conf_below(r, 20) ? 1 + conf_below(r, d ? 9 : 30) : 0;
            if (!conf_below(r, 4))
                a->layout.shape[d] = t->size * (1 + conf_below(r, 2)); /* what divides may be taken apart */
            if (room * a->layout.shape[d] > most) a->layout.shape[d] = 2;
            room *= a->layout.shape[d];
        }
        if (a->layout.ndim && n == 1 && !conf_below(r, 3) && room)
            a->layout.shape[0] *= most / (int)room ? most / (int)room : 1;
        ops[i] = op_of[conf_below(r, 8)];
        do a->dtype = (mesh_dtype)conf_below(r, MESH_DTYPE_COUNT);
        while (a->dtype != MESH_BYTES && !mesh__reducible(a->dtype, ops[i]));
        if (a->dtype == MESH_BYTES) a->elem_bytes = 1 << conf_below(r, 5);
        *b = *a;
        a->layout.on = &other;
        b->layout.on = &to;
        a->layout.spec = conf_spec(r, &from, a->layout.ndim, a->dtype == MESH_BYTES ? -1 : ops[i]);
        b->layout.spec = conf_spec(r, &to, a->layout.ndim,
                                   a->dtype == MESH_BYTES || ops[i] == MESH_AVG || ops[i] == MESH_PROD ? -1 : ops[i]);
        nbytes[0][i] = conf_part(&m, r, a, t->rank, strides[0][i], &box[0][i]);
        nbytes[1][i] = conf_part(&m, r, b, t->rank, strides[1][i], &box[1][i]);
        conf_summand(a, mesh_rank_at(&from, 0), &summands[i]);
        conf_visit(a, &box[0][i], strides[0][i], nbytes[0][i], ops[i], t->rank, 1, 0);
        from_src[i] = conf_lent(&m, a);
        to_dst[i] = conf_lent(&m, b);
        if (mesh_redistribute_plan(comm, plan, a, b, &err) != MESH_OK) conformance_fail(t, __FILE__, __LINE__, "plan", err.text);
        given = n == 1 && !conf_below(r, 3) && conf_other_plan(comm, r, a, b, plan);
        if (i == 0) mesh_plan_format(plan, text, sizeof text);
        bound += plan->scratch;
        for (k = 0; k < plan->nsteps; k++) {
            mesh_traffic traffic = mesh_plan_traffic(plan, k, t->rank);
            will_send += (uint64_t)traffic.sent;
            will_receive += (uint64_t)traffic.received;
        }
    }
    if (given)
        CONFORM(mesh__redistribute_start(comm, plan, src, dst, 1, -1, &scratch, NULL, &err) == MESH_OK, err.text);
    else
        CONFORM(mesh_redistribute_scratch_bytes(comm, src, dst, n, &scratch, &err) == MESH_OK, err.text);
    if (n == 1 && mesh__is_little()) CONFORM(scratch <= bound, text);
    conf_up(&m);
    mesh_comm_bytes(comm, NULL, &sent[0], &received[0]);
    form = given ? 1 + conf_below(r, 2) : conf_below(r, 3);
    if (n == 1 && form == 0) {
        CONFORM_CALL(mesh_redistribute(comm, from_src, to_dst), comm);
    } else {
        if (given)
            CONFORM_CALL(mesh_redistribute_planned_start(comm, plan, from_src, to_dst, 1, &request), comm);
        else
            CONFORM_CALL(mesh_redistribute_many_start(comm, from_src, to_dst, n, &request), comm);
        if (form == 2) mesh_keep(request);
        CONFORM_CALL(conf_wait(request), comm);
    }
    mesh_comm_bytes(comm, NULL, &sent[1], &received[1]);
    CONFORM(sent[1] - sent[0] == will_send && received[1] - received[0] == will_receive, text);
    for (k = 0; k < (form == 2 && !(n == 1 && form == 0) ? 2 : 1); k++) {
        if (k) { /* the same again, kept */
            for (i = 0; i < n; i++) memset((char *)dst[i].data - CONF_GUARD, 0xee, nbytes[1][i] + 2 * CONF_GUARD);
            conf_up(&m);
            CONFORM_CALL(mesh_restart(request), comm);
            CONFORM_CALL(conf_wait(request), comm);
            CONFORM_CALL(mesh_release(request), comm);
        }
        conf_down(&m);
        for (i = 0; i < n; i++) {
            mesh_tensor whole = dst[i], to_whole;
            mesh_box whole_box;
            int64_t whole_strides[MESH_MAX_DIMS];
            size_t whole_bytes;
            if (!conf_has_partial(&dst[i].layout.spec)) {
                if (!conf_visit(&dst[i], &box[1][i], strides[1][i], nbytes[1][i], ops[i], t->rank, summands[i], 1)) {
                    if (i)
                        mesh_redistribute_plan(comm, plan, &src[i], &dst[i], NULL),
                            mesh_plan_format(plan, text, sizeof text);
                    conformance_fail(t, __FILE__, __LINE__, "the destination holds the tensor", text);
                }
                continue;
            }
            for (d = 0; d < to.naxes; d++) whole.layout.spec.axis[d] = mesh_replicate(); /* what its summands come to */
            whole.layout.spec.rule = 0;
            whole_bytes = conf_part(&m, r, &whole, t->rank, whole_strides, &whole_box);
            if (t->size == to.size) {
                to_whole = conf_lent(&m, &whole);
                conf_up(&m);
                CONFORM_CALL(mesh_redistribute(comm, &to_dst[i], &to_whole), comm);
                conf_down(&m);
                CONFORM(conf_visit(&whole, &whole_box, whole_strides, whole_bytes, ops[i], t->rank, summands[i], 1),
                        text);
            }
            conf_part_free(&m, &whole);
        }
    }
    for (i = 0; i < n; i++) {
        CONFORM(conf_visit(&src[i], &box[0][i], strides[0][i], nbytes[0][i], ops[i], t->rank, 1, 0),
                "the source is as it was");
        conf_part_free(&m, &src[i]);
        conf_part_free(&m, &dst[i]);
    }
    free(plan);
}

/* Seeded redistributions between layouts of the whole world and of its halves, single and in lists, `most` elements a tensor. */
static inline void conformance_redistribute(mesh_transport *t, uint64_t seed, int problems, int most) {
    mesh m;
    mesh_comm comm;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_topology nodes = MESH_ZERO;
    mesh_error err;
    conf_random r;
    int k, round;
    nodes.nlevels = 2;
    nodes.level[0].ranks = 2;
    nodes.level[0].ps_per_byte_16 = 1 << 16;
    nodes.level[1].ranks = INT32_MAX;
    nodes.level[1].latency_ps = 1;
    nodes.level[1].ps_per_byte_16 = 20 << 16;
    r.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    desc.ask_ns = conf_ask_ns;
    for (round = 0; round < 4; round++) { /* flat, two levels, a tight cap, bytes only */
        desc.topology = round == 1 ? &nodes : NULL;
        desc.scratch_cap = round == 2 ? 1 << 18 : 0;
        if (round == 3) {
            nodes.nlevels = 1;
            nodes.level[0].ranks = INT32_MAX;
            desc.topology = &nodes;
        }
        if (t->rank) desc.topology = NULL, desc.scratch_cap = 0; /* the first rank's are everybody's */
        if (mesh_parse(&m, "w=-1", t->size, &err) || mesh_comm_open(&comm, t, &m, &desc, &err)) {
            conformance_fail(t, __FILE__, __LINE__, "open", err.text);
            return;
        }
        for (k = 0; k < problems / 4 && !comm.failed; k++) conf_redistribute(&comm, &r, most);
        CONFORM_CALL(mesh_comm_close(&comm), &comm);
    }
}

#endif
