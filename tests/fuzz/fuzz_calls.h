/* Programs of calls on the simulator: a world, a mesh, a tuning table, a list of calls that every rank makes, and one thing that one rank does
   otherwise. Either all is right, values included, or every rank gets a status that names the one; never a hang, never a leak. */

enum { CALLS_RANKS = 8, CALLS_STEPS = 10, CALLS_OPS = 4 };

enum {
    CALL_ALL_REDUCE,
    CALL_REDUCE,
    CALL_BROADCAST,
    CALL_ALL_GATHER,
    CALL_REDUCE_SCATTER,
    CALL_ALL_TO_ALL,
    CALL_GATHER,
    CALL_SCATTER,
    CALL_SCAN,
    CALL_EXSCAN,
    CALL_BARRIER,
    CALL_ALL_GATHER_V,
    CALL_REDUCE_SCATTER_V,
    CALL_ALL_TO_ALL_V,
    CALL_MANY,
    CALL_OBJECT,
    CALL_REDISTRIBUTE,
    CALL_MESSAGE, /* from one index to another */
    CALL_SHIFT,
    CALL_GROUP, /* opens "y,x" */
    CALL_KINDS
};

/* What the one rank does otherwise at a step. */
enum {
    ODD_NOTHING,
    ODD_SLEEP, /* these and DELAY are no faults */
    ODD_DELAY,
    ODD_COUNT,
    ODD_DTYPE,
    ODD_OP,
    ODD_ROOT,
    ODD_KIND,
    ODD_SKIP,
    ODD_TWICE,
    ODD_SWAP,
    ODD_AXES,
    ODD_WRONG_ROOT, /* an argument that is refused */
    ODD_DIE,
    ODD_LEAVE,      /* closes its transport */
    ODD_CLOSE_COMM, /* closes its comm, and stays */
    ODD_KILL,       /* dies at its n-th post */
    ODD_DROP,       /* a message of its is lost */
    ODD_KINDS
};

typedef struct calls_step {
    int kind, axes, dtype, op, root, to, later, how;
    size_t count;
} calls_step;

typedef struct calls_end { /* of one rank */
    mesh_status step[CALLS_STEPS + 1];
    int right[CALLS_STEPS], opened, error_rank, polled;
    char text[MESH_ERROR_BYTES];
    int64_t now;
} calls_end;

typedef struct calls_program {
    int ranks, nsteps, odd, odd_rank, odd_step, in_desc, ask_ms, y, z;
    const char *mesh_text;
    calls_step step[CALLS_STEPS];
    mesh_tuning tuning;
    calls_end end[CALLS_RANKS];
    long live; /* pieces of the allocator's memory */
} calls_program;

static const mesh_dtype calls_dtypes[] = {MESH_I32, MESH_F64, MESH_U8, MESH_I16};
static const mesh_op calls_ops[] = {MESH_SUM, MESH_MAX, MESH_MIN, MESH_PROD};

static const char *calls_axes(const calls_program *p, int which) {
    static const char *const names[] = {NULL, "x", "y", "z", "y,x"};
    if (which == 4) return p->y ? "y,x" : "x";
    return which == 3 && !p->z ? "x" : which == 2 && !p->y ? "x" : names[which];
}

static const char *calls_or_all(const calls_program *p, int which) {
    const char *axes = calls_axes(p, which);
    return axes ? axes : p->z ? "x,y,z" : p->y ? "x,y" : "x";
}

/* Small numbers, so that eight of them add up within a byte; with prod only 1 and 2. */
static int64_t calls_value(int step, int rank, size_t i, int op) {
    int64_t v = (int64_t)((size_t)step * 7 + (size_t)rank * 3 + i * 5 + i / 7) % 23;
    return op == 3 ? 1 + v % 2 * (rank < 5) : v;
}
static int64_t calls_combine(int op, int64_t a, int64_t b) {
    return op == 0 ? a + b : op == 1 ? (a > b ? a : b) : op == 2 ? (a < b ? a : b) : a * b;
}

static void calls_put(void *p, int dtype, size_t i, int64_t v) {
    switch (calls_dtypes[dtype]) {
    case MESH_I32:
        ((int32_t *)p)[i] = (int32_t)v;
        break;
    case MESH_F64:
        ((double *)p)[i] = (double)v;
        break;
    case MESH_U8:
        ((uint8_t *)p)[i] = (uint8_t)v;
        break;
    default:
        ((int16_t *)p)[i] = (int16_t)v;
        break;
    }
}
static int64_t calls_get(const void *p, int dtype, size_t i) {
    switch (calls_dtypes[dtype]) {
    case MESH_I32:
        return ((const int32_t *)p)[i];
    case MESH_F64:
        return ((const double *)p)[i] >= 0 && ((const double *)p)[i] < 1e9 ? (int64_t)((const double *)p)[i]
                                                                           : INT64_MIN;
    case MESH_U8:
        return ((const uint8_t *)p)[i];
    default:
        return ((const int16_t *)p)[i];
    }
}

/* A step under way on a rank. */
typedef struct calls_op {
    int step, n, me, until, live;
    calls_step s;
    mesh group;
    unsigned char *send, *recv; /* each of its own size, so that a byte too many shows */
    size_t sends, recvs;        /* elements */
    size_t counts[CALLS_RANKS], back[CALLS_RANKS];
    mesh_buffer list[3];
    mesh_object object;
    mesh_tensor from, into;
    mesh_request r;
} calls_op;

/* What member k gives in the v-forms. */
static size_t calls_some(const calls_step *s, int k) { return (s->count + (size_t)k * 3) % (s->count + 2); }

static mesh_tensor calls_tensor(const calls_program *p, const calls_step *s, const mesh *on, int into) {
    static const char *const from[] = {"x:S(0)", "x:S(1)", "x:P(sum)", "x:R"}, *const other[] = {"", " y:S(0)",
                                                                                                 " y:S(1)",
                                                                                                 " y:P(sum)"};
    mesh_tensor t = MESH_ZERO;
    char text[60];
    int k = into ? s->how >> 4 : s->how;
    snprintf(text, sizeof text, "%s%s", from[k & 3], p->y ? other[k >> 2 & 3] : "");
    if (into && strchr(text, 'P')) snprintf(text, sizeof text, "x:R");
    t.dtype = calls_dtypes[s->dtype];
    t.layout.ndim = 2;
    t.layout.shape[0] = (int64_t)s->count % 37 + 1, t.layout.shape[1] = (int64_t)(s->count / 37) + s->root + 1;
    t.layout.on = on;
    if (mesh_spec_parse(&t.layout.spec, on, text, 2, NULL)) mesh_spec_parse(&t.layout.spec, on, "x:R", 2, NULL);
    return t;
}

static size_t calls_box(const mesh_tensor *t, int rank, mesh_box *box) {
    mesh_tensor_box(t, rank, box);
    return (size_t)mesh_box_count(box);
}

/* Sizes and what is sent. */
static void calls_prepare(const calls_program *p, calls_op *o, const mesh *whole, int rank) {
    const calls_step *s = &o->s;
    size_t elem = mesh_dtype_bytes(calls_dtypes[s->dtype]), i, n = (size_t)o->n;
    mesh_box box;
    int k;
    o->sends = o->recvs = s->count;
    if (s->kind == CALL_ALL_GATHER || s->kind == CALL_GATHER || s->kind == CALL_ALL_TO_ALL) o->recvs *= n;
    if (s->kind == CALL_REDUCE_SCATTER || s->kind == CALL_SCATTER || s->kind == CALL_ALL_TO_ALL) o->sends *= n;
    if (s->kind == CALL_BARRIER || s->kind == CALL_GROUP) o->sends = o->recvs = 0;
    for (k = 0; k < o->n; k++) o->counts[k] = o->back[k] = calls_some(s, k);
    if (s->kind == CALL_ALL_GATHER_V || s->kind == CALL_REDUCE_SCATTER_V) {
        size_t total = 0;
        for (k = 0; k < o->n; k++) total += o->counts[k];
        *(s->kind == CALL_ALL_GATHER_V ? &o->sends : &o->recvs) = o->counts[o->me];
        *(s->kind == CALL_ALL_GATHER_V ? &o->recvs : &o->sends) = total;
    } else if (s->kind == CALL_ALL_TO_ALL_V) { /* me to k: calls_some of both */
        o->sends = o->recvs = 0;
        for (k = 0; k < o->n; k++) {
            o->sends += o->counts[k] = calls_some(s, o->me + 2 * k);
            o->recvs += o->back[k] = calls_some(s, k + 2 * o->me);
        }
    } else if (s->kind == CALL_REDISTRIBUTE) {
        o->from = calls_tensor(p, s, whole, 0);
        o->into = calls_tensor(p, s, whole, 1);
        o->sends = calls_box(&o->from, rank, &box);
        o->recvs = calls_box(&o->into, rank, &box);
    }
    o->send = (unsigned char *)malloc(o->sends * elem + !o->sends);
    o->recv = (unsigned char *)malloc(o->recvs * elem + !o->recvs);
    memset(o->recv, 0x5a, o->recvs * elem);
    for (i = 0; i < o->sends; i++) {
        int64_t v = calls_value(o->step, rank, i, s->op);
        if (s->kind == CALL_REDISTRIBUTE) {
            calls_box(&o->from, rank, &box);
            v = calls_value(o->step, 0, (size_t)plan_linear_in(2, o->from.layout.shape, &box, (int64_t)i), 0);
        }
        calls_put(o->send, s->dtype, i, v);
    }
    o->from.data = o->send;
    o->into.data = o->recv;
    if (s->kind == CALL_OBJECT && o->me == s->root) o->object.data = o->send, o->object.nbytes = o->sends * elem;
    for (k = 0, i = 0; k < 3; k++) { /* a list of three: a third, another, the rest */
        size_t part = k < 2 ? s->count / 3 : s->count - i;
        o->list[k].send = o->send + i * elem, o->list[k].recv = o->recv + i * elem, o->list[k].count = part;
        i += part;
    }
}

static mesh_status calls_start(mesh_comm *c, const calls_program *p, calls_op *o) {
    const calls_step *s = &o->s;
    const char *axes = calls_axes(p, s->axes);
    mesh_dtype d = calls_dtypes[s->dtype];
    mesh_op op = calls_ops[s->op];
    const void *in = s->how & 1 ? o->recv : o->send; /* in place */
    size_t elem = mesh_dtype_bytes(d);
    int same =
        s->kind == CALL_ALL_REDUCE || s->kind == CALL_REDUCE || s->kind == CALL_SCAN || s->kind == CALL_BROADCAST;
    if (same && s->how & 1) memcpy(o->recv, o->send, o->sends * elem);
    switch (s->kind) {
    case CALL_ALL_REDUCE:
        return mesh_all_reduce_start(c, axes, in, o->recv, s->count, d, op, &o->r);
    case CALL_REDUCE:
        return mesh_reduce_start(c, axes, in, o->recv, s->count, d, op, s->root, &o->r);
    case CALL_BROADCAST:
        return mesh_broadcast_start(c, axes, in, o->recv, s->count, d, s->root, &o->r);
    case CALL_ALL_GATHER:
        return mesh_all_gather_start(c, axes, o->send, o->recv, s->count, d, &o->r);
    case CALL_REDUCE_SCATTER:
        return mesh_reduce_scatter_start(c, axes, o->send, o->recv, s->count, d, op, &o->r);
    case CALL_ALL_TO_ALL:
        return mesh_all_to_all_start(c, axes, o->send, o->recv, s->count, d, &o->r);
    case CALL_GATHER:
        return mesh_gather_start(c, axes, o->send, o->recv, s->count, d, s->root, &o->r);
    case CALL_SCATTER:
        return mesh_scatter_start(c, axes, o->send, o->recv, s->count, d, s->root, &o->r);
    case CALL_SCAN:
        return mesh_scan_start(c, axes, in, o->recv, s->count, d, op, &o->r);
    case CALL_EXSCAN:
        return mesh_exscan_start(c, axes, o->send, o->recv, s->count, d, op, &o->r);
    case CALL_ALL_GATHER_V:
        return mesh_all_gather_v_start(c, axes, o->send, o->recv, o->counts, NULL, d, &o->r);
    case CALL_REDUCE_SCATTER_V:
        return mesh_reduce_scatter_v_start(c, axes, o->send, o->recv, o->counts, NULL, d, op, &o->r);
    case CALL_ALL_TO_ALL_V:
        return mesh_all_to_all_v_start(c, axes, o->send, o->counts, NULL, o->recv, o->back, NULL, d, &o->r);
    case CALL_MANY:
        return mesh_all_reduce_many_start(c, axes, o->list, 3, d, op, &o->r);
    case CALL_OBJECT:
        return mesh_broadcast_object_start(c, axes, &o->object, s->root, &o->r);
    case CALL_REDISTRIBUTE:
        return mesh_redistribute_start(c, &o->from, &o->into, &o->r);
    case CALL_MESSAGE:
        return mesh_sendrecv_start(c, axes, o->me == s->root ? s->to : -1, o->send, s->count,
                                   o->me == s->to ? s->root : -1, o->recv, s->count, d, &o->r);
    case CALL_SHIFT:
        return mesh_shift_start(c, axes, s->to + 1, s->how >> 1 & 1, o->send, o->recv, s->count, d, &o->r);
    default:
        return mesh_barrier_start(c, axes, &o->r);
    }
}

/* The sum of all members' values of element i, or of those up to `last`. */
static int64_t calls_sum(const calls_op *o, size_t i, int last) {
    int k;
    int64_t v = calls_value(o->step, mesh_rank_at(&o->group, 0), i, o->s.op);
    for (k = 1; k <= last; k++)
        v = calls_combine(o->s.op, v, calls_value(o->step, mesh_rank_at(&o->group, k), i, o->s.op));
    return v;
}

/* Element i of what a rank receives; -1: nothing is promised about it. */
static int64_t calls_expected(const calls_op *o, size_t i, int rank) {
    const calls_step *s = &o->s;
    int n = o->n, me = o->me, k;
    size_t at = 0, c = s->count;
    mesh_box box;
    switch (s->kind) {
    case CALL_ALL_REDUCE:
    case CALL_MANY:
        return calls_sum(o, i, n - 1);
    case CALL_REDUCE:
        return me == s->root ? calls_sum(o, i, n - 1) : -1;
    case CALL_BROADCAST:
        return calls_value(o->step, mesh_rank_at(&o->group, s->root), i, s->op);
    case CALL_ALL_GATHER:
        return calls_value(o->step, mesh_rank_at(&o->group, (int)(i / c)), i % c, s->op);
    case CALL_GATHER:
        return me == s->root ? calls_value(o->step, mesh_rank_at(&o->group, (int)(i / c)), i % c, s->op) : -1;
    case CALL_REDUCE_SCATTER:
        return calls_sum(o, (size_t)me * c + i, n - 1);
    case CALL_ALL_TO_ALL:
        return calls_value(o->step, mesh_rank_at(&o->group, (int)(i / c)), (size_t)me * c + i % c, s->op);
    case CALL_SCATTER:
        return calls_value(o->step, mesh_rank_at(&o->group, s->root), (size_t)me * c + i, s->op);
    case CALL_SCAN:
        return calls_sum(o, i, me);
    case CALL_EXSCAN:
        return me ? calls_sum(o, i, me - 1) : -1;
    case CALL_ALL_GATHER_V:
        for (k = 0; i - at >= o->counts[k]; k++) at += o->counts[k];
        return calls_value(o->step, mesh_rank_at(&o->group, k), i - at, s->op);
    case CALL_REDUCE_SCATTER_V:
        for (k = 0; k < me; k++) at += o->counts[k];
        return calls_sum(o, at + i, n - 1);
    case CALL_ALL_TO_ALL_V: {
        size_t there = 0;
        int j;
        for (k = 0; i - at >= o->back[k]; k++) at += o->back[k];
        for (j = 0; j < me; j++) there += calls_some(s, k + 2 * j);
        return calls_value(o->step, mesh_rank_at(&o->group, k), there + i - at, s->op);
    }
    case CALL_MESSAGE:
        return me == s->to && s->to != s->root ? calls_value(o->step, mesh_rank_at(&o->group, s->root), i, s->op) : -1;
    case CALL_SHIFT:
        k = me - (s->to + 1);
        if (s->how >> 1 & 1) k = (k % n + n) % n;
        return k < 0 || k >= n ? -1 : calls_value(o->step, mesh_rank_at(&o->group, k), i, s->op);
    case CALL_REDISTRIBUTE: {
        int64_t times = 1;
        for (k = 0; k < o->from.layout.spec.naxes; k++)
            if (o->from.layout.spec.axis[k].kind == MESH_PARTIAL) times *= o->from.layout.on->axis[k].size;
        calls_box(&o->into, rank, &box);
        return times * calls_value(o->step, 0, (size_t)plan_linear_in(2, o->into.layout.shape, &box, (int64_t)i), 0);
    }
    default:
        return -1;
    }
}

static int calls_is_right(const calls_op *o, int rank) {
    size_t i, n = o->s.kind == CALL_BARRIER || o->s.kind == CALL_GROUP ? 0 : o->recvs;
    if (o->s.kind == CALL_OBJECT) {
        size_t elem = mesh_dtype_bytes(calls_dtypes[o->s.dtype]);
        if (o->object.nbytes != o->s.count * elem) return 0;
        for (i = 0; i < o->s.count; i++)
            if (calls_get(o->object.data, o->s.dtype, i) !=
                calls_value(o->step, mesh_rank_at(&o->group, o->s.root), i, o->s.op))
                return 0;
        return 1;
    }
    for (i = 0; i < n; i++) {
        int64_t want = calls_expected(o, i, rank), got = calls_get(o->recv, o->s.dtype, i);
        if (calls_dtypes[o->s.dtype] == MESH_U8) want = want < 0 ? want : want & 255;
        if (want >= 0 && got != want) return 0;
    }
    return 1;
}

/* Wait for a step's end by one of the ways. With `again`, the same call once more from its kept schedule. */
static mesh_status calls_wait(calls_program *p, mesh_comm *c, calls_op *o, int rank) {
    mesh_status status;
    calls_end *e = &p->end[rank];
    int kept = o->s.how & 8 && o->s.kind != CALL_OBJECT && mesh_keep(o->r) == MESH_OK;
    if (o->s.how & 4) { /* polls: to the others it may still be doing something else */
        e->polled = 1;
        while ((status = mesh_test(o->r)) == MESH_IN_PROGRESS)
            c->transport->ops->progress(c->transport, c->transport->ops->now(c->transport) + 50000000);
    } else {
        status = mesh_wait(o->r);
    }
    if (kept && status == MESH_OK) {
        e->right[o->step] = calls_is_right(o, rank);
        memset(o->recv, 0x33, o->recvs * mesh_dtype_bytes(calls_dtypes[o->s.dtype]));
        if (o->s.how & 1 && (o->s.kind <= CALL_BROADCAST || o->s.kind == CALL_SCAN))
            memcpy(o->recv, o->send, o->sends * mesh_dtype_bytes(calls_dtypes[o->s.dtype]));
        status = mesh_restart(o->r);
        if (status == MESH_OK) status = mesh_wait(o->r);
    }
    if (kept) mesh_release(o->r);
    if (!kept && !c->failed) CHECK_INT(mesh_wait(o->r), MESH_ERR_STATE); /* it was waited for */
    return status;
}

static void calls_finish(calls_program *p, mesh_comm *c, calls_op *o, int rank) {
    calls_end *e = &p->end[rank];
    if (!o->live) return;
    o->live = 0;
    if (e->step[o->step] == MESH_OK && o->s.kind != CALL_GROUP) e->step[o->step] = calls_wait(p, c, o, rank);
    if (e->step[o->step] == MESH_OK) e->right[o->step] &= calls_is_right(o, rank);
    if (o->s.kind == CALL_OBJECT) mesh_object_free(c, &o->object);
    free(o->send); /* from now on nothing touches them, whatever came of it */
    free(o->recv);
}

static void calls_begin(calls_program *p, mesh_comm *c, calls_op *o, const mesh *whole, int rank, int number,
                        const calls_step *s) {
    calls_end *e = &p->end[rank];
    memset(o, 0, sizeof *o);
    o->step = number;
    o->s = *s;
    o->live = 1;
    o->until = number + s->later;
    if (o->s.kind == CALL_REDISTRIBUTE) o->s.axes = 0;
    if (mesh_group_through(&o->group, whole, calls_or_all(p, o->s.axes), rank, NULL)) CHECK(!"a group");
    o->n = o->group.size;
    o->me = mesh_index_of(&o->group, rank);
    if (o->s.root < 90) o->s.root %= o->n;
    o->s.to = o->s.kind == CALL_SHIFT ? o->s.to % 5 - 2 : o->s.to % o->n;
    if (o->s.kind == CALL_MESSAGE && o->s.to == o->s.root) o->s.to = (o->s.root + 1) % o->n;
    calls_prepare(p, o, whole, rank);
    e->right[number] = 1;
    e->step[number] = o->s.kind == CALL_GROUP ? mesh_group_open(c, p->y ? "y,x" : "x") : calls_start(c, p, o);
}

/* The odd rank's step. Returns 0 if it is to make no call. */
static int calls_odd(const calls_program *p, calls_step *s) {
    switch (p->odd) {
    case ODD_COUNT:
        s->count += 1 + (s->count > 5 && s->how & 16 ? (size_t)-3 : 0);
        break;
    case ODD_DTYPE:
        s->dtype ^= 1;
        break;
    case ODD_OP:
        s->op ^= 1;
        break;
    case ODD_ROOT:
        s->root++;
        break;
    case ODD_WRONG_ROOT:
        s->root = 99;
        break;
    case ODD_KIND:
        s->kind = s->kind == CALL_BARRIER ? CALL_ALL_REDUCE : CALL_BARRIER;
        break;
    case ODD_AXES:
        s->axes = s->axes == 1 ? 0 : 1;
        break;
    case ODD_SKIP:
        return 0;
    default:
        break;
    }
    return 1;
}

static void calls_rank(mesh_transport *t, void *ctx) {
    calls_program *p = (calls_program *)ctx;
    calls_end *e = &p->end[t->rank];
    calls_op *ops = (calls_op *)calloc(CALLS_STEPS * 2, sizeof *ops);
    mesh_comm_desc desc = MESH_ZERO;
    mesh_comm c;
    mesh whole;
    mesh_error err;
    int k, i, started = 0, over = 0;
    CHECK_OK(mesh_parse(&whole, p->mesh_text, t->size, &err), err);
    desc.groups = p->in_desc && p->y ? "y,x" : NULL;
    desc.timeout_ns = 60 * SECOND;
    desc.ask_ns = (int64_t)p->ask_ms * 1000000;
    desc.tuning = &p->tuning;
    e->step[p->nsteps] = mesh_comm_open(&c, t, &whole, &desc, &err);
    if (e->step[p->nsteps] != MESH_OK) {
        memcpy(e->text, err.text, sizeof e->text);
        free(ops);
        return;
    }
    e->opened = 1;
    for (k = 0; k < p->nsteps && !over; k++) {
        calls_step s = p->step[k];
        int odd = t->rank == p->odd_rank && k == p->odd_step, mine = 1;
        if (t->rank == p->odd_rank && p->odd == ODD_SWAP && p->odd_step + 1 < p->nsteps &&
            (k == p->odd_step || k == p->odd_step + 1))
            s = p->step[2 * p->odd_step + 1 - k];
        if (odd) mine = calls_odd(p, &s);
        if (odd && p->odd == ODD_SLEEP) mesh_sim_sleep(t, 2 * SECOND);
        if (odd && p->odd == ODD_DIE) mesh_sim_die(t);
        if (odd && (p->odd == ODD_LEAVE || p->odd == ODD_CLOSE_COMM)) over = 1;
        if (over) break;
        for (i = 0; i < mine + (odd && p->odd == ODD_TWICE); i++) {
            calls_begin(p, &c, &ops[started], &whole, t->rank, k, &s);
            if (!ops[started].s.later) calls_finish(p, &c, &ops[started], t->rank);
            started++;
        }
        for (i = 0; i < started; i++) /* those whose time has come, the younger ones first where a bit says so */
            if (ops[p->step[k].how & 32 ? started - 1 - i : i].until <= k)
                calls_finish(p, &c, &ops[p->step[k].how & 32 ? started - 1 - i : i], t->rank);
    }
    if (!over) {
        for (i = 0; i < started; i++) calls_finish(p, &c, &ops[i], t->rank);
        /* what nobody saw in a call shows in the next one of its group */
        e->step[p->nsteps] = mesh_barrier(&c, calls_axes(p, p->step[p->odd_step].axes));
        if (e->step[p->nsteps] == MESH_OK) e->step[p->nsteps] = mesh_barrier(&c, NULL);
    }
    memcpy(e->text, c.error.text, sizeof e->text);
    e->error_rank = c.error.rank;
    e->now = t->ops->now(t);
    if (over && p->odd == ODD_LEAVE) mesh_sim_close(t);
    mesh_comm_close(&c);
    for (i = 0; i < started; i++) { /* what was under way has ended with the comm */
        if (!ops[i].live) continue;
        if (ops[i].s.kind == CALL_OBJECT) mesh_object_free(&c, &ops[i].object);
        free(ops[i].send), free(ops[i].recv);
    }
    free(ops);
}

static void *calls_alloc(void *ctx, size_t n) {
    void *p = n < (size_t)1 << 30 ? malloc(n ? n : 1) : NULL; /* a size that is none: no memory */
    if (p) __sync_add_and_fetch(&((calls_program *)ctx)->live, 1);
    return p;
}
static void calls_free(void *ctx, void *p) {
    if (p) __sync_sub_and_fetch(&((calls_program *)ctx)->live, 1);
    free(p);
}

/* Every rank has a table of its own taste; the first one's counts. */
static void calls_tuning(fuzz_bytes *b, mesh_tuning *t) {
    int call, algorithm = fuzz_byte(b);
    memset(t, 0, sizeof *t);
    if (algorithm % 4 == 0) return; /* what is built in */
    for (call = 1; call < MESH_CALL_BARRIER; call++) {
        mesh_tuning_row *row = &t->row[t->nrows];
        int tries = 0;
        algorithm = fuzz_byte(b);
        while (tries < MESH_ALGORITHM_COUNT &&
               !mesh_algorithm_serves((mesh_algorithm)((algorithm + tries) % MESH_ALGORITHM_COUNT), call))
            tries++;
        if (tries == MESH_ALGORITHM_COUNT || mesh__single_kind(call) != call) continue;
        row->call = (uint8_t)call, row->algorithm = (uint8_t)((algorithm + tries) % MESH_ALGORITHM_COUNT);
        row->ranks = UINT16_MAX, row->bytes = UINT64_MAX;
        row->segment = algorithm & 64 ? 64u << (algorithm >> 7) * 5 : 0;
        t->nrows++;
    }
}

static void calls_decode(calls_program *p, mesh_sim_desc *d, mesh_sim_fault *fault, fuzz_bytes *b) {
    static const char *const meshes[] = {"x=2", "x=3", "x=4", "x=2,y=2", "x=3,y=2", "x=5", "x=2,y=2,z=2", "x=4,y=2"};
    static const size_t counts[] = {0, 1, 2, 3, 5, 17, 64, 129, 700, 2500};
    static const uint64_t eager[] = {1, 16, 64, 1000, 16384};
    int opened, k, many;
    memset(p, 0, sizeof *p);
    memset(d, 0, sizeof *d);
    memset(fault, 0, sizeof *fault);
    p->mesh_text = meshes[fuzz_below(b, 8)];
    p->y = strchr(p->mesh_text, 'y') != NULL;
    p->z = strchr(p->mesh_text, 'z') != NULL;
    p->ranks = !strcmp(p->mesh_text, "x=2")               ? 2
               : !strcmp(p->mesh_text, "x=3")             ? 3
               : !strcmp(p->mesh_text, "x=5")             ? 5
               : !strcmp(p->mesh_text, "x=3,y=2")         ? 6
               : p->z || !strcmp(p->mesh_text, "x=4,y=2") ? 8
                                                          : 4;
    d->ranks = p->ranks;
    d->seed = fuzz_number(b, 2);
    d->eager_bytes = eager[fuzz_below(b, 5)];
    d->jitter_ns = fuzz_below(b, 4) * 2000;
    opened = p->in_desc = fuzz_below(b, 2);
    p->ask_ms = 1 + fuzz_byte(b);
    p->odd = fuzz_byte(b) % ODD_KINDS;
    p->odd_rank = fuzz_below(b, p->ranks);
    p->odd_step = fuzz_byte(b);
    calls_tuning(b, &p->tuning);
    many = 1 + fuzz_below(b, CALLS_STEPS);
    for (k = 0; k < many; k++) {
        calls_step *s = &p->step[k];
        s->kind = fuzz_byte(b) % CALL_KINDS;
        s->axes = fuzz_below(b, 5);
        s->dtype = fuzz_byte(b);
        s->op = s->dtype >> 2 & 3;
        s->dtype &= 3;
        s->root = fuzz_byte(b);
        s->to = s->root >> 4;
        s->root &= 7;
        s->later = fuzz_byte(b);
        s->later = s->later & 1 ? 0 : s->later >> 1 & 3;
        s->how = fuzz_byte(b);
        s->count = counts[fuzz_below(b, 10)];
        if (s->kind == CALL_GROUP && s->kind == opened) s->kind = CALL_BARRIER;
        if (s->kind == CALL_GROUP) s->later = 0, opened = 1;
        if (s->axes == 4 && p->y && !opened) s->axes = 1;
    }
    p->nsteps = many;
    p->odd_step %= many;
    if (p->odd == ODD_KILL || p->odd == ODD_DROP || p->odd == ODD_DELAY) {
        fault->kind = p->odd == ODD_KILL ? MESH_SIM_KILL : p->odd == ODD_DROP ? MESH_SIM_DROP : MESH_SIM_DELAY;
        fault->rank = p->odd_rank;
        fault->peer = (p->odd_rank + 1 + fuzz_below(b, p->ranks - 1)) % p->ranks;
        fault->at = fuzz_byte(b) % 40;
        fault->delay_ns = 3 * SECOND;
        d->fault = fault;
        d->faults = 1;
    }
}

/* Is what the odd rank does sure to be a disagreement? Where the call has not what it changes, and in groups of one, it is not. */
static int calls_must_fail(const calls_program *p) {
    const calls_step *s = &p->step[p->odd_step];
    int collective = s->kind != CALL_MESSAGE && s->kind != CALL_SHIFT && s->kind != CALL_GROUP, has_dtype, reduces,
        rooted;
    reduces = s->kind == CALL_ALL_REDUCE || s->kind == CALL_REDUCE || s->kind == CALL_REDUCE_SCATTER ||
              s->kind == CALL_SCAN || s->kind == CALL_EXSCAN || s->kind == CALL_REDUCE_SCATTER_V ||
              s->kind == CALL_MANY;
    rooted = s->kind == CALL_REDUCE || s->kind == CALL_BROADCAST || s->kind == CALL_GATHER || s->kind == CALL_SCATTER ||
             s->kind == CALL_OBJECT;
    has_dtype = collective && s->kind != CALL_BARRIER && s->kind != CALL_OBJECT;
    switch (p->odd) {
    case ODD_DIE:
    case ODD_LEAVE:
    case ODD_CLOSE_COMM:
        return 1;
    case ODD_COUNT:
        return has_dtype && s->kind < CALL_BARRIER;
    case ODD_DTYPE:
        return has_dtype;
    case ODD_OP:
        return reduces;
    case ODD_ROOT:
    case ODD_WRONG_ROOT:
        return rooted;
    case ODD_AXES: /* that is: another group */
        return collective && p->y && s->kind != CALL_REDISTRIBUTE &&
               (s->axes == 1 || strcmp(calls_or_all(p, s->axes), "x"));
    case ODD_KIND:
    case ODD_SKIP:
    case ODD_TWICE:
        return collective;
    default:
        return 0;
    }
}

static void calls_judge(const calls_program *p) {
    int i, k, failed = 0, living = 0, polled = 0, must_hold = p->odd <= ODD_DELAY, named = p->odd < ODD_DROP, gone,
        one_barrier;
    int64_t latest = 0;
    char name[20];
    snprintf(name, sizeof name, "rank %d", p->odd_rank);
    for (i = 0; i < p->ranks; i++) polled |= p->end[i].polled;
    for (i = 0; i < p->ranks; i++) {
        const calls_end *e = &p->end[i];
        gone = i == p->odd_rank &&
               (p->odd == ODD_DIE || p->odd == ODD_LEAVE || p->odd == ODD_CLOSE_COMM || p->odd == ODD_KILL);
        if (gone) continue;
        living++;
        failed += e->step[p->nsteps] != MESH_OK;
        if (e->now > latest) latest = e->now;
        for (k = 0; k < p->nsteps; k++) { /* what was right before stays so, where messages are not lost */
            /* a kept one under way then is started again after it, and meets what the odd rank does there */
            int ends = p->step[k].how & 8 ? k + p->step[k].later : k;
            if (e->step[k] == MESH_OK && !e->right[k] && (must_hold || (ends < p->odd_step && p->odd != ODD_DROP)))
                test_fail(__FILE__, __LINE__, "rank %d, step %d (kind %d): values", i, k, p->step[k].kind);
            if (e->step[k] == MESH_IN_PROGRESS) test_fail(__FILE__, __LINE__, "rank %d, step %d has not ended", i, k);
        }
        if (e->step[p->nsteps] == MESH_OK) continue;
        if (must_hold)
            test_fail(__FILE__, __LINE__, "rank %d: %s", i, e->text);
        else if (!e->text[0])
            test_fail(__FILE__, __LINE__, "rank %d: status %d without a text", i, e->step[p->nsteps]);
        else if (named && i != p->odd_rank && !strstr(e->text, name) &&
                 !(polled && e->step[p->nsteps] == MESH_ERR_TIMEOUT))
            test_fail(__FILE__, __LINE__, "odd %d: rank %d is told of others than %s: %s", p->odd, i, name, e->text);
        else if (!polled && p->odd != ODD_DROP && e->step[p->nsteps] == MESH_ERR_TIMEOUT)
            test_fail(__FILE__, __LINE__, "odd %d: rank %d finds it out by its deadline only: %s", p->odd, i, e->text);
    }
    /* a barrier too many or too few, where the others have left in good order, is told to those that wait in one */
    one_barrier = (p->odd == ODD_KIND && !calls_must_fail(p)) ||
                  ((p->odd == ODD_TWICE || p->odd == ODD_SKIP) && p->step[p->odd_step].kind == CALL_BARRIER);
    if (failed && failed < living && p->odd != ODD_KILL && p->odd != ODD_DROP && !one_barrier)
        test_fail(__FILE__, __LINE__, "odd %d of %s at step %d: %d of %d ranks are told", p->odd, name, p->odd_step,
                  failed, living);
    if (!failed && p->ranks > 1 && calls_must_fail(p))
        test_fail(__FILE__, __LINE__, "odd %d of %s at step %d (kind %d) goes unnoticed", p->odd, name, p->odd_step,
                  p->step[p->odd_step].kind);
    if (!polled && p->odd != ODD_DROP && latest > 40 * SECOND)
        test_fail(__FILE__, __LINE__, "odd %d: it takes %lld s", p->odd, (long long)(latest / SECOND));
    /* those that change places and end at different times take what was started in between along: calls that look alike then meet */
    if (p->odd == ODD_SWAP && p->odd_step + 1 < p->nsteps && p->step[p->odd_step].later != p->step[p->odd_step + 1].later)
        return;
    for (i = 0; i < p->ranks && !failed; i++)
        for (k = 0; k < p->nsteps; k++)
            if (i != p->odd_rank && k > p->odd_step + (p->odd == ODD_SWAP) && p->end[i].step[k] == MESH_OK &&
                !p->end[i].right[k])
                test_fail(__FILE__, __LINE__, "rank %d, step %d: nobody was told, but the values are wrong", i, k);
}

static void fuzz_calls(const unsigned char *data, size_t n) {
    static calls_program p;
    fuzz_bytes b = fuzz_bytes_of(data, n);
    mesh_sim_desc d;
    mesh_sim_fault fault;
    mesh_error err;
    int i, k;
    calls_decode(&p, &d, &fault, &b);
    d.allocator.alloc = calls_alloc, d.allocator.free = calls_free, d.allocator.ctx = &p;
    CHECK_OK(mesh_sim_run(&d, calls_rank, &p, &err), err);
    CHECK_INT(p.live, 0);
    calls_judge(&p);
    if (!test_failures) return;
    fprintf(stderr, "    mesh %s, odd %d: rank %d at step %d, eager %d, seed %d\n", p.mesh_text, p.odd, p.odd_rank,
            p.odd_step, (int)d.eager_bytes, (int)d.seed);
    for (k = 0; k < p.nsteps; k++)
        fprintf(stderr, "    step %d: kind %d on %s, %d x dtype %d, op %d, root %d, to %d, later %d, how %d\n", k,
                p.step[k].kind, calls_axes(&p, p.step[k].axes), (int)p.step[k].count, p.step[k].dtype, p.step[k].op,
                p.step[k].root, p.step[k].to, p.step[k].later, p.step[k].how);
    for (i = 0; i < p.ranks; i++)
        fprintf(stderr, "    rank %d ends with %d: %s\n", i, p.end[i].step[p.nsteps], p.end[i].text);
}
