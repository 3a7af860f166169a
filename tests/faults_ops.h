/* Every operation, with the law its result obeys: for the campaign of faults (tests/faults.c). A call is described by numbers, so that any
   rank can make it, make it wrongly, and check what it got. */
#ifndef FAULTS_OPS_H
#define FAULTS_OPS_H

#define OPS(X)                                                                                                         \
    X(all_reduce) X(reduce) X(broadcast) X(all_gather) X(all_gather_v) X(reduce_scatter) X(reduce_scatter_v)           \
    X(all_to_all) X(all_to_all_v) X(gather) X(gather_v) X(scatter) X(scatter_v) X(scan) X(exscan) X(broadcast_object)  \
    X(barrier) X(all_reduce_many) X(broadcast_many) X(all_gather_many) X(reduce_scatter_many) X(messages) X(sendrecv)  \
    X(shift) X(exchange) X(halo) X(redistribute) X(kept) X(group_open) X(comm_open) X(comm_close) X(transport_open)    \
    X(transport_close)
#define X(name) OP_##name,
enum { OPS(X) OP_COUNT };
#undef X
#define X(name) #name,
static const char *const op_names[] = {OPS(X)};
#undef X

/* How one rank's call differs from the others'. */
enum { RIGHT, WRONG_COUNT, WRONG_DTYPE, WRONG_OP, WRONG_ROOT, WRONG_CALL, WRONG_NULL, WRONG_AXIS, WRONG_TYPE, WRONGS };
static const char *const wrong_names[] = {"",          "other count", "other dtype",  "other op",
                                          "other root", "other call", "NULL", "no such axis", "no such dtype"};

enum { BLOCKING, WAITING, POLLING };

enum { MOST_RANKS = 8, MOST_COUNT = 40000, ROOM = 2 * (MOST_RANKS + 1) * (MOST_COUNT + 16) };

typedef struct call {
    mesh_comm *c;
    const char *axes;
    int n, me, member[MOST_RANKS]; /* of the group: size, my index, world ranks */
    size_t count;
    mesh_dtype dtype;
    mesh_op op;
    int what, root, round, mode, wrong;
    int32_t *a, *b;    /* send and receive, ROOM elements each */
    mesh_object object; /* received before */
    mesh_request kept;
} call;

/* Element i of what a rank gives in a round: small, so that sums of floats are exact. */
static int op_value(const call *q, int rank, size_t i) { return (int)((size_t)rank * 7 + i % 251 + (size_t)q->round * 13) % 500; }

static int32_t op_bits(const call *q, int v) {
    float f = (float)v;
    int32_t bits;
    if (q->dtype != MESH_F32) return v;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static int op_reduced(const call *q, size_t i, int from, int to) {
    int j, v = op_value(q, q->member[from], i);
    for (j = from + 1; j < to; j++) {
        int w = op_value(q, q->member[j], i);
        v = q->op == MESH_MAX ? (w > v ? w : v) : v + w;
    }
    return v;
}

static void op_fill(const call *q, size_t n) {
    size_t i;
    int rank = q->member[q->me];
    for (i = 0; i < n; i++) q->a[i] = op_bits(q, op_value(q, rank, i));
    for (i = 0; i < n + 8; i++) q->b[i] = -1;
}

static size_t op_v_count(const call *q, int i) { return q->count + (size_t)(i % 3); }
static size_t op_v_offset(const call *q, int i) {
    size_t at = 0;
    int k;
    for (k = 0; k < i; k++) at += op_v_count(q, k);
    return at;
}

/* Of the all_to_all_v from i to j. */
static size_t op_pair_count(const call *q, int i, int j) { return q->count + (size_t)((i + j) % 3); }
static size_t op_pair_offset(const call *q, int i, int j) {
    size_t at = 0;
    int k;
    for (k = 0; k < j; k++) at += op_pair_count(q, i, k);
    return at;
}

/* Wait for what was started, in this trial's way. Who polls computes a little in between: the simulator's clock moves by that. */
static mesh_status op_finish(const call *q, mesh_status status, mesh_request r) {
    int polls = 0;
    if (status != MESH_OK) return status;
    if (q->mode == WAITING) return mesh_wait(r);
    while ((status = mesh_test(r)) == MESH_IN_PROGRESS) {
        if (!strcmp(q->c->transport->ops->name, "sim"))
            mesh_sim_sleep(q->c->transport, 50000);
        else if (++polls % 16 == 0)
            test_sleep(0.00005);
    }
    return status;
}

#define GO(name, ...) \
    (q->mode == BLOCKING ? mesh_##name(__VA_ARGS__) : op_finish(q, mesh_##name##_start(__VA_ARGS__, &r), r))

/* Elements [at, at + n) of what was received are these: v is an expression in i. */
#define EXPECT(at, n, v)                                                                                  \
    do {                                                                                                  \
        size_t at_ = (at), n_ = (n), i;                                                                   \
        for (i = 0; i < n_; i++)                                                                          \
            if (q->b[at_ + i] != op_bits(q, v)) return 0;                                                 \
    } while (0)

static mesh_halo op_halo(const call *q) {
    mesh_halo h = MESH_ZERO;
    h.ndim = 1;
    h.low[0] = 1 + (int64_t)q->count % 5;
    h.high[0] = 1 + (int64_t)q->count % 3;
    h.shape[0] = 64 + h.low[0] + h.high[0];
    h.axis[0] = q->wrong == WRONG_AXIS ? "zz" : q->c->on.axis[0].name;
    h.periodic[0] = 1;
    return h;
}

/* A tensor of count/64+1 rows and 24 columns, its layouts drawn by the count. */
static void op_tensors(const call *q, mesh_tensor *src, mesh_tensor *dst) {
    static const char *const from[] = {"S(0)", "P(sum)", "S(1)", "S(0)"}, *const to[] = {"S(1)", "S(0)", "R", "R"};
    char text[64];
    memset(src, 0, sizeof *src);
    src->data = q->wrong == WRONG_NULL ? NULL : q->a;
    src->dtype = q->dtype;
    src->layout.ndim = 2;
    src->layout.shape[0] = (int64_t)q->count / 8 + 1;
    if (q->wrong == WRONG_COUNT) src->layout.shape[0]++;
    src->layout.shape[1] = 24;
    src->layout.on = &q->c->on;
    snprintf(text, sizeof text, "%s:%s", q->c->on.axis[0].name, from[q->root % 4]);
    mesh_spec_parse(&src->layout.spec, src->layout.on, text, 2, NULL);
    *dst = *src;
    dst->data = q->b;
    snprintf(text, sizeof text, "%s:%s", q->c->on.axis[q->c->on.naxes - 1].name, to[q->root % 4]);
    mesh_spec_parse(&dst->layout.spec, dst->layout.on, text, 2, NULL);
}

static int op_cell(const call *q, int64_t row, int64_t column) { return (int)((row * 24 + column) % 997) + q->round; }

static mesh_status op_redistribute(call *q) {
    mesh_tensor src, dst;
    mesh_box box;
    mesh_request r;
    int64_t i, k;
    op_tensors(q, &src, &dst);
    mesh_tensor_box(&src, q->c->transport->rank, &box);
    for (i = 0; i < box.shape[0]; i++)
        for (k = 0; k < box.shape[1]; k++)
            q->a[i * box.shape[1] + k] = op_bits(q, op_cell(q, box.offset[0] + i, box.offset[1] + k));
    return GO(redistribute, q->c, &src, &dst);
}

static int op_redistributed(const call *q) {
    mesh_tensor src, dst;
    mesh_box box;
    int64_t i, k;
    int copies;
    op_tensors(q, &src, &dst);
    copies = q->root % 4 == 1 ? q->c->on.axis[0].size : 1;
    mesh_tensor_box(&dst, q->c->transport->rank, &box);
    for (i = 0; i < box.shape[0]; i++)
        for (k = 0; k < box.shape[1]; k++)
            if (q->b[i * box.shape[1] + k] != op_bits(q, copies * op_cell(q, box.offset[0] + i, box.offset[1] + k)))
                return 0;
    return 1;
}

static mesh_status op_messages(call *q, const char *axes) {
    int next = (q->me + 1) % q->n, last = (q->me + q->n - 1) % q->n;
    mesh_request r;
    mesh_status status = mesh_send_start(q->c, axes, next, q->wrong == WRONG_NULL ? NULL : q->a, q->count, q->dtype, &r);
    if (status != MESH_OK) return status;
    status = mesh_recv(q->c, axes, last, q->b, q->count, q->dtype);
    return status == MESH_OK ? mesh_wait(r) : status;
}

/* Every other column of mine to all, each of theirs in a row. */
static mesh_status op_exchange(call *q, const char *axes) {
    mesh_xfer x[2 * MOST_RANKS];
    mesh_block block = MESH_ZERO;
    mesh_request r;
    int i, n = 0;
    size_t part = q->count;
    block.run = 4;
    block.ndim = 1;
    block.dim[0].count = (int64_t)part;
    block.dim[0].stride = 8;
    memset(x, 0, sizeof x);
    for (i = 0; i < q->n; i++) {
        if (i == q->me) continue;
        x[n].rank = x[n + 1].rank = i;
        x[n].nbytes = x[n + 1].nbytes = part * 4;
        x[n].base = q->wrong == WRONG_NULL ? NULL : q->a;
        x[n].block = &block;
        x[n++].direction = MESH_SEND;
        x[n].base = q->b + (size_t)i * part;
        x[n++].direction = MESH_RECV;
    }
    return GO(exchange, q->c, axes, x, n);
}

static mesh_status op_lists(call *q, const char *axes) {
    size_t first = q->count / 3 + 1, n = (size_t)q->n, scale = q->what == OP_all_gather_many || q->what == OP_reduce_scatter_many ? n : 1;
    mesh_buffer list[2];
    mesh_request r;
    memset(list, 0, sizeof list);
    list[0].send = q->wrong == WRONG_NULL ? NULL : q->a;
    list[0].recv = q->b;
    list[0].count = first;
    list[1].send = q->a + (q->what == OP_reduce_scatter_many ? scale * first : first);
    list[1].recv = q->b + (q->what == OP_all_gather_many ? scale * first : first);
    list[1].count = q->count;
    if (q->what == OP_all_reduce_many) return GO(all_reduce_many, q->c, axes, list, 2, q->dtype, q->op);
    if (q->what == OP_broadcast_many) return GO(broadcast_many, q->c, axes, list, 2, q->dtype, q->root);
    if (q->what == OP_all_gather_many) return GO(all_gather_many, q->c, axes, list, 2, q->dtype);
    return GO(reduce_scatter_many, q->c, axes, list, 2, q->dtype, q->op);
}

static int op_lists_right(const call *q) {
    size_t first = q->count / 3 + 1, n = (size_t)q->n, me = (size_t)q->me, at[2], count[2], k;
    int j;
    at[0] = 0, at[1] = first;
    count[0] = first, count[1] = q->count;
    for (k = 0; k < 2; k++) {
        if (q->what == OP_all_reduce_many) EXPECT(at[k], count[k], op_reduced(q, at[k] + i, 0, q->n));
        if (q->what == OP_broadcast_many) EXPECT(at[k], count[k], op_value(q, q->member[q->root], at[k] + i));
        if (q->what == OP_reduce_scatter_many) EXPECT(at[k], count[k], op_reduced(q, n * at[k] + me * count[k] + i, 0, q->n));
        for (j = 0; j < q->n && q->what == OP_all_gather_many; j++)
            EXPECT(n * at[k] + (size_t)j * count[k], count[k], op_value(q, q->member[j], at[k] + i));
    }
    return 1;
}

/* Make the call. A wrong one differs in what q->wrong says. */
static mesh_status op_run(call *right) {
    call wrong = *right, *q = &wrong;
    size_t counts[MOST_RANKS], more[MOST_RANKS], n = (size_t)q->n;
    const char *axes = q->wrong == WRONG_AXIS ? "zz" : q->axes;
    const int32_t *a;
    mesh_halo halo;
    mesh_request r;
    mesh_status status;
    int i;
    op_fill(q, (n + 1) * (q->count + q->count / 3 + 4) + 200);
    if (q->wrong == WRONG_COUNT) q->count++;
    if (q->wrong == WRONG_DTYPE) q->dtype = q->dtype == MESH_F32 ? MESH_I32 : MESH_F32;
    if (q->wrong == WRONG_TYPE) q->dtype = (mesh_dtype)99;
    if (q->wrong == WRONG_OP) q->op = q->op == MESH_SUM ? MESH_MAX : MESH_SUM;
    if (q->wrong == WRONG_ROOT) q->root = (q->root + 1) % q->n;
    if (q->wrong == WRONG_CALL) return q->what == OP_barrier ? GO(all_reduce, q->c, axes, q->a, q->b, 5, q->dtype, q->op) : GO(barrier, q->c, axes);
    a = q->wrong == WRONG_NULL ? NULL : q->a;
    for (i = 0; i < q->n; i++) counts[i] = op_v_count(q, i);
    switch (q->what) {
    case OP_kept:
    case OP_all_reduce:
        if (q->what == OP_kept && !q->wrong) {
            if (q->kept.generation) return op_finish(q, mesh_restart(q->kept), q->kept);
            status = mesh_all_reduce_start(q->c, axes, a, q->b, q->count, q->dtype, q->op, &right->kept);
            if (status == MESH_OK) status = mesh_keep(right->kept);
            return status == MESH_OK ? mesh_wait(right->kept) : status;
        }
        return GO(all_reduce, q->c, axes, a, q->b, q->count, q->dtype, q->op);
    case OP_reduce:
        return GO(reduce, q->c, axes, a, q->b, q->count, q->dtype, q->op, q->root);
    case OP_broadcast:
        return GO(broadcast, q->c, axes, a, a ? q->b : NULL, q->count, q->dtype, q->root);
    case OP_all_gather:
        return GO(all_gather, q->c, axes, a, q->b, q->count, q->dtype);
    case OP_all_gather_v:
        return GO(all_gather_v, q->c, axes, a, q->b, counts, NULL, q->dtype);
    case OP_reduce_scatter:
        return GO(reduce_scatter, q->c, axes, a, q->b, q->count, q->dtype, q->op);
    case OP_reduce_scatter_v:
        return GO(reduce_scatter_v, q->c, axes, a, q->b, counts, NULL, q->dtype, q->op);
    case OP_all_to_all:
        return GO(all_to_all, q->c, axes, a, q->b, q->count, q->dtype);
    case OP_all_to_all_v:
        for (i = 0; i < q->n; i++) counts[i] = op_pair_count(q, q->me, i), more[i] = op_pair_count(q, i, q->me);
        return GO(all_to_all_v, q->c, axes, a, counts, NULL, q->b, more, NULL, q->dtype);
    case OP_gather:
        return GO(gather, q->c, axes, a, q->b, q->count, q->dtype, q->root);
    case OP_gather_v:
        return GO(gather_v, q->c, axes, a, counts[q->me], q->b, counts, NULL, q->dtype, q->root);
    case OP_scatter:
        return GO(scatter, q->c, axes, q->a, a ? q->b : NULL, q->count, q->dtype, q->root);
    case OP_scatter_v:
        return GO(scatter_v, q->c, axes, q->a, counts, NULL, a ? q->b : NULL, counts[q->me], q->dtype, q->root);
    case OP_scan:
        return GO(scan, q->c, axes, a, q->b, q->count, q->dtype, q->op);
    case OP_exscan:
        return GO(exscan, q->c, axes, a, q->b, q->count, q->dtype, q->op);
    case OP_broadcast_object:
        if (q->me == q->root) {
            mesh_object mine = MESH_ZERO;
            mine.data = q->a, mine.nbytes = q->count * 4;
            return GO(broadcast_object, q->c, axes, a ? &mine : NULL, q->root);
        }
        return GO(broadcast_object, q->c, axes, a ? &right->object : NULL, q->root);
    case OP_barrier:
        return GO(barrier, q->c, axes);
    case OP_messages:
        return op_messages(q, axes);
    case OP_sendrecv:
        return GO(sendrecv, q->c, axes, (q->me + 1) % q->n, a, q->count, (q->me + q->n - 1) % q->n, q->b, q->count, q->dtype);
    case OP_shift:
        return GO(shift, q->c, axes, 1, 1, a, q->b, q->count, q->dtype);
    case OP_exchange:
        return op_exchange(q, axes);
    case OP_halo:
        halo = op_halo(q);
        return GO(halo_exchange, q->c, &halo, q->wrong == WRONG_NULL ? NULL : q->a, q->dtype);
    case OP_redistribute:
        return op_redistribute(q);
    case OP_group_open:
        return mesh_group_open(q->c, q->wrong == WRONG_AXIS ? "tp,zz" : "tp,dp");
    default:
        return op_lists(q, axes);
    }
}

/* Is what the call gave the right thing, on this rank? */
static int op_right(const call *q) {
    size_t n = q->count, me = (size_t)q->me, at = 0;
    int j, last = (q->me + q->n - 1) % q->n;
    switch (q->what) {
    case OP_kept:
    case OP_all_reduce:
        EXPECT(0, n, op_reduced(q, i, 0, q->n));
        return 1;
    case OP_reduce:
        if (q->me == q->root) EXPECT(0, n, op_reduced(q, i, 0, q->n));
        return 1;
    case OP_broadcast:
        EXPECT(0, n, op_value(q, q->member[q->root], i));
        return 1;
    case OP_gather:
    case OP_all_gather:
        for (j = 0; j < q->n && (q->what == OP_all_gather || q->me == q->root); j++)
            EXPECT((size_t)j * n, n, op_value(q, q->member[j], i));
        return 1;
    case OP_gather_v:
    case OP_all_gather_v:
        for (j = 0; j < q->n && (q->what == OP_all_gather_v || q->me == q->root); j++)
            EXPECT(op_v_offset(q, j), op_v_count(q, j), op_value(q, q->member[j], i));
        return 1;
    case OP_reduce_scatter:
        EXPECT(0, n, op_reduced(q, me * n + i, 0, q->n));
        return 1;
    case OP_reduce_scatter_v:
        at = op_v_offset(q, q->me);
        EXPECT(0, op_v_count(q, q->me), op_reduced(q, at + i, 0, q->n));
        return 1;
    case OP_all_to_all:
        for (j = 0; j < q->n; j++) EXPECT((size_t)j * n, n, op_value(q, q->member[j], me * n + i));
        return 1;
    case OP_all_to_all_v:
        for (j = 0; j < q->n; j++) {
            size_t from = op_pair_offset(q, j, q->me);
            EXPECT(at, op_pair_count(q, j, q->me), op_value(q, q->member[j], from + i));
            at += op_pair_count(q, j, q->me);
        }
        return 1;
    case OP_scatter:
        EXPECT(0, n, op_value(q, q->member[q->root], me * n + i));
        return 1;
    case OP_scatter_v:
        at = op_v_offset(q, q->me);
        EXPECT(0, op_v_count(q, q->me), op_value(q, q->member[q->root], at + i));
        return 1;
    case OP_scan:
        EXPECT(0, n, op_reduced(q, i, 0, q->me + 1));
        return 1;
    case OP_exscan:
        if (q->me) EXPECT(0, n, op_reduced(q, i, 0, q->me));
        return 1;
    case OP_broadcast_object:
        for (at = 0; at < n && q->me != q->root; at++)
            if (q->object.nbytes != n * 4 ||
                ((const int32_t *)q->object.data)[at] != op_bits(q, op_value(q, q->member[q->root], at)))
                return 0;
        return 1;
    case OP_messages:
    case OP_sendrecv:
    case OP_shift:
        EXPECT(0, n, op_value(q, q->member[last], i));
        return 1;
    case OP_exchange:
        for (j = 0; j < q->n; j++)
            if (j != q->me) EXPECT((size_t)j * n, n, op_value(q, q->member[j], 2 * i));
        return 1;
    case OP_halo: {
        mesh_halo h = op_halo(q);
        int64_t k;
        for (k = 0; k < h.low[0]; k++)
            if (q->a[k] != op_bits(q, op_value(q, q->member[last], (size_t)(64 + k)))) return 0;
        for (k = 0; k < h.high[0]; k++)
            if (q->a[64 + h.low[0] + k] != op_bits(q, op_value(q, q->member[(q->me + 1) % q->n], (size_t)(h.low[0] + k))))
                return 0;
        return 1;
    }
    case OP_redistribute:
        return op_redistributed(q);
    case OP_all_reduce_many:
    case OP_broadcast_many:
    case OP_all_gather_many:
    case OP_reduce_scatter_many:
        return op_lists_right(q);
    default:
        return 1;
    }
}

/* Can this call be made wrongly in this way, so that it has to be noticed? */
static int op_can_be_wrong(int what, int wrong) {
    int reduces = what == OP_all_reduce || what == OP_reduce || what == OP_reduce_scatter || what == OP_reduce_scatter_v ||
                  what == OP_scan || what == OP_exscan || what == OP_all_reduce_many || what == OP_reduce_scatter_many || what == OP_kept;
    int rooted = what == OP_reduce || what == OP_broadcast || what == OP_gather || what == OP_gather_v || what == OP_scatter ||
                 what == OP_scatter_v || what == OP_broadcast_object || what == OP_broadcast_many;
    int typed = what != OP_barrier && what != OP_broadcast_object && what != OP_exchange && what != OP_group_open;
    if (what >= OP_comm_open) return 0;
    switch (wrong) {
    case WRONG_COUNT:
        return what != OP_barrier && what != OP_broadcast_object && what != OP_group_open;
    case WRONG_DTYPE:
        return typed;
    case WRONG_TYPE:
        return typed && what != OP_redistribute;
    case WRONG_OP:
        return reduces;
    case WRONG_ROOT:
        return rooted;
    case WRONG_CALL:
        return 1;
    case WRONG_NULL: /* a root's memory may be nowhere */
        return what != OP_barrier && what != OP_group_open && what != OP_broadcast_many;
    default:
        return what != OP_redistribute; /* which names no axes of its own */
    }
}
#endif
