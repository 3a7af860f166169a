/* Every collective, dtype and op, in place and not, in every form. Part of tests/conformance.h. */
#ifndef CONFORMANCE_COLLECTIVES_H
#define CONFORMANCE_COLLECTIVES_H

/* Element i of a typed buffer from small integers: exact in every dtype, so that results compare bitwise. */
static void conf_put(mesh_dtype d, void *buf, size_t i, int64_t re, int64_t im) {
    switch ((int)d) {
    case MESH_F32:
        ((float *)buf)[i] = (float)re;
        break;
    case MESH_F64:
        ((double *)buf)[i] = (double)re;
        break;
    case MESH_F16:
        ((uint16_t *)buf)[i] = mesh__f16_of_f32((float)re);
        break;
    case MESH_BF16:
        ((uint16_t *)buf)[i] = mesh__bf16_of_f32((float)re);
        break;
    case MESH_I16:
    case MESH_U16:
        ((uint16_t *)buf)[i] = (uint16_t)re;
        break;
    case MESH_I32:
    case MESH_U32:
        ((uint32_t *)buf)[i] = (uint32_t)re;
        break;
    case MESH_I64:
    case MESH_U64:
        ((uint64_t *)buf)[i] = (uint64_t)re;
        break;
    case MESH_C64:
        ((float *)buf)[2 * i] = (float)re, ((float *)buf)[2 * i + 1] = (float)im;
        break;
    case MESH_C128:
        ((double *)buf)[2 * i] = (double)re, ((double *)buf)[2 * i + 1] = (double)im;
        break;
    case MESH_F64_I32:
        memset((char *)buf + 16 * i, 0, 16);
        ((double *)buf)[2 * i] = (double)re, ((int32_t *)buf)[4 * i + 2] = (int32_t)im;
        break;
    default:
        ((uint8_t *)buf)[i] = (uint8_t)re;
        break;
    }
}

/* A pair of minloc and maxloc. */
static void conf_put_pair(mesh_dtype d, void *buf, size_t i, int64_t value, int64_t index) {
    if (d == MESH_F64_I32) {
        conf_put(d, buf, i, value, index);
        return;
    }
    conf_put(d, buf, 2 * i, value, 0);
    conf_put(mesh_dtype_bytes(d) == 4 ? MESH_I32 : MESH_I64, buf, 2 * i + 1, index, 0);
}

/* What rank r contributes at i: 0..3 (products: 1 or 2, so that they stay exact); im as well. */
static int64_t conf_value(int op, int r, size_t i, int im) {
    uint64_t h = ((uint64_t)r * 2654435761u + i * 40503u + (uint64_t)im * 97u) >> 3;
    return op == MESH_PROD ? (im ? 0 : 1 + (int64_t)(h % 7 == 0)) : (int64_t)(h % 4);
}

/* The reduction over ranks 0..n-1 of a group at i, into element `at`. */
static void conf_expect(mesh_dtype d, int op, int n, const int *seed, size_t i, void *buf, size_t at) {
    int64_t re = conf_value(op, seed[0], i, 0), im = conf_value(op, seed[0], i, 1);
    int r;
    for (r = 1; r < n; r++) {
        int64_t a = conf_value(op, seed[r], i, 0), b = conf_value(op, seed[r], i, 1), old = re;
        switch (op) {
        case MESH_SUM:
        case MESH_AVG:
            re += a, im += b;
            break;
        case MESH_PROD:
            re = re * a - im * b, im = old * b + im * a;
            break;
        case MESH_MIN:
            re = a < re ? a : re;
            break;
        case MESH_MAX:
            re = a > re ? a : re;
            break;
        case MESH_AND:
            re &= a;
            break;
        case MESH_OR:
            re |= a;
            break;
        case MESH_MINLOC:
        case MESH_MAXLOC: /* im is the index */
            if (op == MESH_MINLOC ? a < re || (a == re && b < im) : a > re || (a == re && b < im)) re = a, im = b;
            break;
        default:
            re ^= a;
            break;
        }
    }
    if (mesh__is_loc(op)) {
        conf_put_pair(d, buf, at, re, im);
        return;
    }
    conf_put(d, buf, at, re, im);
    if (op != MESH_AVG) return;
    switch ((int)d) {
    case MESH_F32:
        ((float *)buf)[at] = (float)re / (float)n;
        break;
    case MESH_F64:
        ((double *)buf)[at] = (double)re / (double)n;
        break;
    case MESH_F16:
        ((uint16_t *)buf)[at] = mesh__f16_of_f32((float)re / (float)n);
        break;
    case MESH_BF16:
        ((uint16_t *)buf)[at] = mesh__bf16_of_f32((float)re / (float)n);
        break;
    case MESH_C64:
        ((float *)buf)[2 * at] = (float)re / (float)n, ((float *)buf)[2 * at + 1] = (float)im / (float)n;
        break;
    default:
        ((double *)buf)[2 * at] = (double)re / (double)n, ((double *)buf)[2 * at + 1] = (double)im / (double)n;
        break;
    }
}

enum { CONF_MOST = 1024 /* ranks of a group */ };

typedef struct conf_case {
    mesh_transport *t;
    mesh_comm *comm;
    conf_memory memory; /* of send and recv */
    const char *axes;
    int n, me, seed[CONF_MOST]; /* seed: the members' world ranks */
    mesh_dtype d;
    size_t elem;
    unsigned char *send, *recv, *want; /* want: what recv should hold */
    size_t room;                       /* bytes of each */
    int started;                       /* 1: use the _start form; 2: and keep the request, and start it again */
    int in_place;                      /* cannot be started again: its input is gone */
    char text[640];
} conf_case;

static void conf_contribution(const conf_case *c, int op, int r, size_t first, size_t count, unsigned char *to) {
    size_t i;
    for (i = 0; i < count; i++) {
        int64_t re = conf_value(op, c->seed[r], first + i, 0), im = conf_value(op, c->seed[r], first + i, 1);
        if (mesh__is_loc(op))
            conf_put_pair(c->d, to, i, re, im);
        else
            conf_put(c->d, to, i, re, im);
    }
}

static void conf_clear(conf_case *c) { memset(c->recv, 0xee, c->room); }

/* Wait for an operation: every way has its turn. */
static mesh_status conf_wait(mesh_request r) {
    mesh_transport *t = r.comm ? r.comm->transport : NULL;
    mesh_status status;
    switch (r.generation % 8) { /* 0: it never started */
    case 3:
        return mesh_wait_host(r);
    case 6:
        while ((status = mesh_test(r)) == MESH_IN_PROGRESS) mesh_progress(t, mesh_now(t) + 1000000);
        return status;
    default:
        return mesh_wait(r);
    }
}

/* What has become of an operation, in host memory. */
static mesh_status conf_end(conf_case *c, mesh_status status, mesh_request r) {
    if (status == MESH_OK && c->started) status = conf_wait(r);
    if (status == MESH_OK) conf_down(&c->memory);
    return status;
}

static void conf_check(conf_case *c, mesh_status status, mesh_request r, const char *what, size_t count, int op,
                       size_t bytes) {
    mesh_transport *t = c->t;
    if (status == MESH_OK && c->started == 2 && !c->in_place) {
        CONFORM_CALL(mesh_keep(r), c->comm);
        CONFORM_CALL(conf_wait(r), c->comm);
        conf_clear(c);
        conf_up(&c->memory);
        status = mesh_restart(r);
        CONFORM_CALL(mesh_release(r), c->comm); /* given up when it has been waited for */
    }
    status = conf_end(c, status, r);
    if (status == MESH_OK && (bytes == 0 || !memcmp(c->recv, c->want, bytes)) && c->recv[bytes] == 0xee) return;
    snprintf(c->text, sizeof c->text, "on \"%s\" count %zu %s %s: %s", c->axes ? c->axes : "(all)", count,
             mesh_dtype_name(c->d), mesh_op_name((mesh_op)op), status ? c->comm->error.text : "wrong values");
    conformance_fail(t, __FILE__, __LINE__, what, c->text);
}

/* Run a case on what send and recv stand for, blocking or started, and check it. */
#define CONF_RUN(what, blocking, start, count, op, bytes)  \
    do {                                                   \
        mesh_request r = MESH_ZERO;                        \
        mesh_status status_;                               \
        conf_up(&c->memory);                               \
        status_ = c->started ? start : blocking;           \
        conf_check(c, status_, r, what, count, op, bytes); \
    } while (0)

static void conf_reductions(conf_case *c, size_t count, mesh_op op) {
    size_t i, n = (size_t)c->n, me = (size_t)c->me, elem = c->elem,
              bytes = count * (mesh__is_loc(op) ? mesh__pair_bytes(c->d) : elem);
    unsigned char *send = conf_at(&c->memory, c->send), *recv = conf_at(&c->memory, c->recv); /* for operations */
    int root = (int)((count + 1) % n), in_place;
    c->elem = mesh__is_loc(op) ? mesh__pair_bytes(c->d) : elem;
    for (in_place = 0; in_place < 2 && op != MESH_AVG; in_place++) { /* scan, exscan */
        const void *from = in_place ? recv : send;
        c->in_place = in_place;
        for (i = 0; i < count; i++) conf_expect(c->d, op, c->me + 1, c->seed, i, c->want, i);
        conf_clear(c);
        conf_contribution(c, op, c->me, 0, count, in_place ? c->recv : c->send);
        CONF_RUN("scan", mesh_scan(c->comm, c->axes, from, recv, count, c->d, op),
                 mesh_scan_start(c->comm, c->axes, from, recv, count, c->d, op, &r), count, op, bytes);
        for (i = 0; i < count && me; i++) conf_expect(c->d, op, c->me, c->seed, i, c->want, i);
        conf_clear(c);
        conf_contribution(c, op, c->me, 0, count, in_place ? c->recv : c->send);
        if (!me && in_place)
            conf_contribution(c, op, c->me, 0, count, c->want);
        else if (!me)
            memset(c->want, 0xee, bytes);
        CONF_RUN("exscan", mesh_exscan(c->comm, c->axes, from, recv, count, c->d, op),
                 mesh_exscan_start(c->comm, c->axes, from, recv, count, c->d, op, &r), count, op, bytes);
    }
    for (in_place = 0; in_place < 2; in_place++) { /* all_reduce, reduce */
        const void *from = in_place ? recv : send;
        c->in_place = in_place;
        for (i = 0; i < count; i++) conf_expect(c->d, op, c->n, c->seed, i, c->want, i);
        conf_clear(c);
        conf_contribution(c, op, c->me, 0, count, in_place ? c->recv : c->send);
        CONF_RUN("all_reduce", mesh_all_reduce(c->comm, c->axes, from, recv, count, c->d, op),
                 mesh_all_reduce_start(c->comm, c->axes, from, recv, count, c->d, op, &r), count, op, bytes);
        conf_clear(c);
        conf_contribution(c, op, c->me, 0, count, in_place ? c->recv : c->send);
        if (c->me != root && in_place)
            conf_contribution(c, op, c->me, 0, count, c->want);
        else if (c->me != root)
            memset(c->want, 0xee, bytes);
        CONF_RUN("reduce", mesh_reduce(c->comm, c->axes, from, recv, count, c->d, op, root),
                 mesh_reduce_start(c->comm, c->axes, from, recv, count, c->d, op, root, &r), count, op, bytes);
    }
    c->in_place = 0;
    for (in_place = 0; in_place < 2; in_place++) { /* reduce_scatter: block me of a buffer of n blocks */
        unsigned char *block = in_place ? send + me * bytes : recv;
        conf_clear(c);
        conf_contribution(c, op, c->me, 0, n * count, c->send);
        for (i = 0; i < count; i++) conf_expect(c->d, op, c->n, c->seed, me * count + i, c->want, i);
        if (in_place) {
            mesh_request r = MESH_ZERO;
            mesh_status status;
            conf_up(&c->memory);
            status = c->started ? mesh_reduce_scatter_start(c->comm, c->axes, send, block, count, c->d, op, &r)
                                : mesh_reduce_scatter(c->comm, c->axes, send, block, count, c->d, op);
            status = conf_end(c, status, r);
            if (status != MESH_OK || memcmp(c->send + me * bytes, c->want, bytes))
                conformance_fail(c->t, __FILE__, __LINE__, "reduce_scatter in place", c->comm->error.text);
        } else {
            CONF_RUN("reduce_scatter", mesh_reduce_scatter(c->comm, c->axes, send, block, count, c->d, op),
                     mesh_reduce_scatter_start(c->comm, c->axes, send, block, count, c->d, op, &r), count, op, bytes);
        }
    }
    { /* reduce_scatter_v: rank i gets count + i elements, given with gaps between blocks */
        size_t counts[CONF_MOST], offsets[CONF_MOST], at = 0, mine;
        for (i = 0; i < n; i++) {
            counts[i] = i % 3 == 2 ? 0 : count + i;
            offsets[i] = at;
            at += counts[i] + 1;
        }
        mine = counts[me];
        conf_clear(c);
        conf_contribution(c, op, c->me, 0, at, c->send);
        for (i = 0; i < mine; i++) conf_expect(c->d, op, c->n, c->seed, offsets[me] + i, c->want, i);
        CONF_RUN("reduce_scatter_v", mesh_reduce_scatter_v(c->comm, c->axes, send, recv, counts, offsets, c->d, op),
                 mesh_reduce_scatter_v_start(c->comm, c->axes, send, recv, counts, offsets, c->d, op, &r), mine, op,
                 mine * c->elem);
    }
    c->elem = elem;
}

/* Lists of buffers: three small ones, one that is large where count is, an empty one. With `op` the reducing forms. */
static void conf_many(conf_case *c, size_t count, mesh_op op) {
    enum { LIST = 5 };
    size_t n = (size_t)c->n, me = (size_t)c->me, counts[LIST], send_at[LIST], recv_at[LIST], i, k, j;
    mesh_buffer list[LIST], given[LIST]; /* as the host sees them, and operations */
    int root = (int)(count % n), form, in_place;
    counts[0] = 3, counts[1] = count, counts[2] = 0, counts[3] = count / 2 + 1, counts[4] = 2;
    for (form = 0; form < 4; form++) /* all_reduce, broadcast, all_gather, reduce_scatter; not all dtypes reduce */
        for (in_place = 0; in_place < 2 && (form == 1 || form == 2 || mesh__reducible(c->d, op)); in_place++) {
            size_t sb = form == 3 ? n : 1, rb = form == 2 ? n : 1, s_end = 0, r_end = 0;
            const char *const names[] = {"all_reduce_many", "broadcast_many", "all_gather_many", "reduce_scatter_many"};
            c->in_place = in_place;
            conf_clear(c);
            memset(c->want, 0xee, c->room);
            for (k = 0; k < LIST;
                 k++) { /* blocks of both sides one buffer after another, an element's gap between them */
                send_at[k] = s_end, recv_at[k] = r_end;
                s_end += (counts[k] * (in_place ? n : sb) + 1) * c->elem;
                r_end += (counts[k] * rb + 1) * c->elem;
                list[k].count = counts[k];
                list[k].send = c->send + send_at[k];
                list[k].recv = c->recv + recv_at[k];
                if (in_place && form < 2) list[k].send = list[k].recv;
                if (in_place && form == 2) list[k].send = c->recv + recv_at[k] + me * counts[k] * c->elem;
                if (in_place && form == 3) list[k].recv = c->send + send_at[k] + me * counts[k] * c->elem;
                for (j = 0; j < sb; j++)
                    conf_contribution(c, op, c->me, 100 * k + j * counts[k], counts[k],
                                      (unsigned char *)(uintptr_t)list[k].send + j * counts[k] * c->elem);
                for (i = 0; i < counts[k] && (form == 0 || form == 3); i++)
                    conf_expect(c->d, op, c->n, c->seed, 100 * k + (form == 3 ? me * counts[k] : 0) + i,
                                c->want + recv_at[k], i);
                for (j = 0; j < rb && (form == 1 || form == 2); j++)
                    conf_contribution(c, op, form == 1 ? root : (int)j, 100 * k, counts[k],
                                      c->want + recv_at[k] + j * counts[k] * c->elem);
            }
            {
                mesh_request r = MESH_ZERO;
                mesh_status status;
                conf_up(&c->memory);
                for (k = 0; k < LIST; k++) {
                    given[k] = list[k];
                    given[k].send = conf_at(&c->memory, list[k].send);
                    given[k].recv = conf_at(&c->memory, list[k].recv);
                }
                if (form == 0)
                    status = c->started ? mesh_all_reduce_many_start(c->comm, c->axes, given, LIST, c->d, op, &r)
                                        : mesh_all_reduce_many(c->comm, c->axes, given, LIST, c->d, op);
                else if (form == 1)
                    status = c->started ? mesh_broadcast_many_start(c->comm, c->axes, given, LIST, c->d, root, &r)
                                        : mesh_broadcast_many(c->comm, c->axes, given, LIST, c->d, root);
                else if (form == 2)
                    status = c->started ? mesh_all_gather_many_start(c->comm, c->axes, given, LIST, c->d, &r)
                                        : mesh_all_gather_many(c->comm, c->axes, given, LIST, c->d);
                else
                    status = c->started ? mesh_reduce_scatter_many_start(c->comm, c->axes, given, LIST, c->d, op, &r)
                                        : mesh_reduce_scatter_many(c->comm, c->axes, given, LIST, c->d, op);
                if (in_place && form == 3) { /* the results lie in the send buffers */
                    status = conf_end(c, status, r);
                    for (k = 0; k < LIST && status == MESH_OK; k++)
                        if (memcmp(list[k].recv, c->want + recv_at[k], counts[k] * c->elem))
                            status = MESH_ERR_TRANSPORT;
                    if (status) conformance_fail(c->t, __FILE__, __LINE__, names[form], c->comm->error.text);
                } else {
                    conf_check(c, status, r, names[form], count, op, r_end);
                }
            }
        }
    c->in_place = 0;
}

/* x -> a x + b, composed in order: associative, and it does not commute. */
static void conf_compose(void *inout, const void *in, size_t count, void *ctx) {
    uint32_t *later = (uint32_t *)inout;
    const uint32_t *first = (const uint32_t *)in;
    size_t i;
    for (i = 0; i < count; i++, later += 2, first += 2) {
        uint32_t a = later[0] * first[0], b = later[0] * first[1] + later[1];
        later[0] = a, later[1] = b;
    }
    __sync_add_and_fetch((int *)ctx, 1);
}

/* The largest magnitude, on a dtype of the library's. */
static void conf_largest(void *inout, const void *in, size_t count, void *ctx) {
    int64_t *a = (int64_t *)inout;
    const int64_t *b = (const int64_t *)in;
    size_t i;
    (void)ctx;
    for (i = 0; i < count; i++)
        a[i] = llabs((long long)a[i]) > llabs((long long)b[i]) ? llabs((long long)a[i]) : llabs((long long)b[i]);
}

static void conf_maps(const conf_case *c, int from, int to, size_t first, size_t count, unsigned char *out) {
    uint32_t *map = (uint32_t *)(void *)out;
    size_t i;
    int r;
    for (i = 0; i < count; i++, map += 2)
        for (r = from; r < to; r++) {
            uint32_t a = 3 + 2 * (uint32_t)c->seed[r] + (uint32_t)(first + i),
                     b = (uint32_t)(c->seed[r] * 7) + (uint32_t)(first + i);
            map[1] = r == from ? b : a * map[1] + b;
            map[0] = r == from ? a : a * map[0];
        }
}

static void conf_user_ops(conf_case *c, mesh_op compose, mesh_op largest, size_t count) {
    size_t bytes = count * 8, i, me = (size_t)c->me;
    int root = (int)((count + 1) % (size_t)c->n), last = c->started;
    c->d = MESH_BYTES;
    c->elem = 8;
    c->started = 2;
    conf_maps(c, c->me, c->me + 1, 0, count, c->send);
    conf_maps(c, 0, c->n, 0, count, c->want);
    conf_clear(c);
    CONF_RUN("all_reduce of maps", mesh_all_reduce(c->comm, c->axes, c->send, c->recv, count, c->d, compose),
             mesh_all_reduce_start(c->comm, c->axes, c->send, c->recv, count, c->d, compose, &r), count, 0, bytes);
    if (c->me != root) memset(c->want, 0xee, bytes);
    conf_clear(c);
    CONF_RUN("reduce of maps", mesh_reduce(c->comm, c->axes, c->send, c->recv, count, c->d, compose, root),
             mesh_reduce_start(c->comm, c->axes, c->send, c->recv, count, c->d, compose, root, &r), count, 0, bytes);
    conf_maps(c, 0, c->me + 1, 0, count, c->want);
    conf_clear(c);
    CONF_RUN("scan of maps", mesh_scan(c->comm, c->axes, c->send, c->recv, count, c->d, compose),
             mesh_scan_start(c->comm, c->axes, c->send, c->recv, count, c->d, compose, &r), count, 0, bytes);
    conf_maps(c, 0, c->me, 0, count, c->want);
    if (c->me == 0) memset(c->want, 0xee, bytes);
    conf_clear(c);
    CONF_RUN("exscan of maps", mesh_exscan(c->comm, c->axes, c->send, c->recv, count, c->d, compose),
             mesh_exscan_start(c->comm, c->axes, c->send, c->recv, count, c->d, compose, &r), count, 0, bytes);
    conf_maps(c, c->me, c->me + 1, 0, count * (size_t)c->n, c->send);
    conf_maps(c, 0, c->n, me * count, count, c->want);
    conf_clear(c);
    CONF_RUN("reduce_scatter of maps", mesh_reduce_scatter(c->comm, c->axes, c->send, c->recv, count, c->d, compose),
             mesh_reduce_scatter_start(c->comm, c->axes, c->send, c->recv, count, c->d, compose, &r), count, 0, bytes);
    c->d = MESH_I64;
    for (i = 0; i < count; i++) {
        ((int64_t *)(void *)c->send)[i] = (int64_t)me * (i % 2 ? -1 : 1) - 1;
        ((int64_t *)(void *)c->want)[i] = i % 2 ? c->n : c->n > 3 ? c->n - 2 : 1;
    }
    if (c->n > 1) {
        conf_clear(c);
        CONF_RUN("all_reduce of magnitudes", mesh_all_reduce(c->comm, c->axes, c->send, c->recv, count, c->d, largest),
                 mesh_all_reduce_start(c->comm, c->axes, c->send, c->recv, count, c->d, largest, &r), count, 0, bytes);
    }
    c->started = last;
}

/* The two of them, on a comm. */
static void conf_add_ops(mesh_comm *comm, mesh_op *ops) {
    static int composed;
    mesh_transport *t = comm->transport;
    mesh_user_op user = MESH_ZERO;
    user.combine = conf_compose;
    user.ctx = &composed;
    user.elem_bytes = 8;
    user.ordered = 1;
    CONFORM_CALL(mesh_op_add(comm, &user, &ops[0]), comm);
    user.combine = conf_largest;
    user.elem_bytes = 0;
    user.ordered = 0;
    CONFORM_CALL(mesh_op_add(comm, &user, &ops[1]), comm);
}

/* An object whose size only the root knows: small, large, empty; the receivers use their memory again. */
static void conf_objects(conf_case *c, size_t large) {
    static const size_t sizes[] = {5, 300, 0, 70000, 17};
    mesh_transport *t = c->t;
    mesh_object o = MESH_ZERO, given = MESH_ZERO;
    int k, root;
    for (k = 0; k < 6; k++) {
        size_t n = k < 5 ? sizes[k] : large * 5;
        unsigned char *bytes = (unsigned char *)malloc(n + 1);
        mesh_object *mine;
        mesh_request r = MESH_ZERO;
        root = k % c->n;
        conf_fill(bytes, n, (uint64_t)k);
        given.data = bytes;
        given.nbytes = n;
        mine = c->me == root ? &given : &o;
        if (k % 2 || conf_has(t, MESH_CAP_DEVICE)) {
            CONFORM_CALL(mesh_broadcast_object(c->comm, c->axes, mine, root), c->comm);
        } else {
            CONFORM_CALL(mesh_broadcast_object_start(c->comm, c->axes, mine, root, &r), c->comm);
            CONFORM(mesh_keep(r) == MESH_ERR_UNSUPPORTED, "an object's broadcast is not kept");
            CONFORM_CALL(mesh_wait(r), c->comm);
        }
        CONFORM(mine->nbytes == n && conf_same((unsigned char *)mine->data, n, (uint64_t)k), "broadcast of an object");
        CONFORM(c->me != root || (given.data == bytes && given.room == 0), "the root's object stays its own");
        free(bytes);
    }
    mesh_object_free(c->comm, &o);
    mesh_object_free(c->comm, &o);
}

static void conf_moves(conf_case *c, size_t count) {
    mesh_transport *t = c->t;
    size_t i, k, n = (size_t)c->n, me = (size_t)c->me, bytes = count * c->elem;
    unsigned char *send = conf_at(&c->memory, c->send), *recv = conf_at(&c->memory, c->recv); /* for operations */
    int root = (int)(count % n), in_place;
    for (in_place = 0; in_place < 2; in_place++) { /* broadcast */
        const void *from = in_place ? recv : send;
        c->in_place = in_place;
        conf_clear(c);
        conf_contribution(c, 0, c->me, 0, count, in_place ? c->recv : c->send);
        conf_contribution(c, 0, root, 0, count, c->want);
        CONF_RUN("broadcast", mesh_broadcast(c->comm, c->axes, from, recv, count, c->d, root),
                 mesh_broadcast_start(c->comm, c->axes, from, recv, count, c->d, root, &r), count, 0, bytes);
    }
    for (in_place = 0; in_place < 2; in_place++) { /* all_gather */
        const void *from = in_place ? recv + me * bytes : send;
        c->in_place = in_place;
        conf_clear(c);
        conf_contribution(c, 0, c->me, 0, count, in_place ? c->recv + me * bytes : c->send);
        for (i = 0; i < n; i++) conf_contribution(c, 0, (int)i, 0, count, c->want + i * bytes);
        CONF_RUN("all_gather", mesh_all_gather(c->comm, c->axes, from, recv, count, c->d),
                 mesh_all_gather_start(c->comm, c->axes, from, recv, count, c->d, &r), count, 0, n * bytes);
    }
    for (in_place = 0; in_place < 2; in_place++) { /* all_to_all: rank i's block j goes to rank j */
        const void *from = in_place ? recv : send;
        c->in_place = in_place;
        conf_clear(c);
        conf_contribution(c, 0, c->me, 0, n * count, in_place ? c->recv : c->send);
        for (i = 0; i < n; i++) conf_contribution(c, 0, (int)i, me * count, count, c->want + i * bytes);
        CONF_RUN("all_to_all", mesh_all_to_all(c->comm, c->axes, from, recv, count, c->d),
                 mesh_all_to_all_start(c->comm, c->axes, from, recv, count, c->d, &r), count, 0, n * bytes);
    }
    c->in_place = 0;
    { /* all_gather_v: rank i gives count + i elements, none where i % 3 == 1 */
        size_t counts[CONF_MOST], total = 0;
        for (i = 0; i < n; i++) total += counts[i] = i % 3 == 1 ? 0 : count + i;
        conf_clear(c);
        conf_contribution(c, 0, c->me, 0, counts[me], c->send);
        for (i = 0, k = 0; i < n; k += counts[i++])
            conf_contribution(c, 0, (int)i, 0, counts[i], c->want + k * c->elem);
        CONF_RUN("all_gather_v", mesh_all_gather_v(c->comm, c->axes, send, recv, counts, NULL, c->d),
                 mesh_all_gather_v_start(c->comm, c->axes, send, recv, counts, NULL, c->d, &r), count, 0,
                 total * c->elem);
    }
    { /* all_to_all_v: from i to j go count + (i + 2 j) % 4 elements, none where (i + j) % 5 == 3 */
        size_t sc[CONF_MOST], so[CONF_MOST], rc[CONF_MOST], ro[CONF_MOST], s_at = 0, r_at = 0;
        for (i = 0; i < n; i++) {
            sc[i] = (me + i) % 5 == 3 ? 0 : count + (me + 2 * i) % 4;
            rc[i] = (me + i) % 5 == 3 ? 0 : count + (i + 2 * me) % 4;
            so[i] = s_at, ro[i] = r_at;
            s_at += sc[i], r_at += rc[i];
        }
        conf_clear(c);
        for (i = 0; i < n; i++) conf_contribution(c, 0, c->me, 1000 * i, sc[i], c->send + so[i] * c->elem);
        for (i = 0; i < n; i++) conf_contribution(c, 0, (int)i, 1000 * me, rc[i], c->want + ro[i] * c->elem);
        CONF_RUN("all_to_all_v", mesh_all_to_all_v(c->comm, c->axes, send, sc, so, recv, rc, ro, c->d),
                 mesh_all_to_all_v_start(c->comm, c->axes, send, sc, so, recv, rc, ro, c->d, &r), count, 0,
                 r_at * c->elem);
    }
    for (in_place = 0; in_place < 2; in_place++) { /* gather, scatter */
        int own = in_place && (int)me == root;     /* its part is in its place */
        const void *from = own ? recv + me * bytes : send;
        c->in_place = in_place;
        conf_clear(c);
        conf_contribution(c, 0, c->me, 0, count, own ? c->recv + me * bytes : c->send);
        memset(c->want, 0xee, n * bytes);
        for (i = 0; (int)me == root && i < n; i++) conf_contribution(c, 0, (int)i, 0, count, c->want + i * bytes);
        CONF_RUN("gather", mesh_gather(c->comm, c->axes, from, recv, count, c->d, root),
                 mesh_gather_start(c->comm, c->axes, from, recv, count, c->d, root, &r), count, 0, n * bytes);
        conf_clear(c);
        conf_contribution(c, 0, c->me, 0, n * count, c->send);
        conf_contribution(c, 0, root, me * count, count, c->want);
        if (own) {
            conf_up(&c->memory);
            CONFORM_CALL(mesh_scatter(c->comm, c->axes, send, send + me * bytes, count, c->d, root), c->comm);
            conf_down(&c->memory);
            CONFORM(!memcmp(c->send + me * bytes, c->want, bytes), "scatter in place");
        } else {
            CONF_RUN("scatter", mesh_scatter(c->comm, c->axes, (int)me == root ? send : NULL, recv, count, c->d, root),
                     mesh_scatter_start(c->comm, c->axes, (int)me == root ? send : NULL, recv, count, c->d, root, &r),
                     count, 0, bytes);
        }
    }
    c->in_place = 0;
    { /* gather_v, scatter_v: rank i has count + i elements, none where i % 3 == 1; the blocks lie in descending order */
        size_t counts[CONF_MOST], offsets[CONF_MOST], at = 0;
        int at_root = (int)me == root;
        for (i = n; i-- > 0; at += counts[i]) {
            counts[i] = i % 3 == 1 ? 0 : count + i;
            offsets[i] = at;
        }
        conf_clear(c);
        memset(c->want, 0xee, at * c->elem);
        conf_contribution(c, 0, c->me, 0, counts[me], c->send);
        for (i = 0; at_root && i < n; i++)
            conf_contribution(c, 0, (int)i, 0, counts[i], c->want + offsets[i] * c->elem);
        CONF_RUN("gather_v",
                 mesh_gather_v(c->comm, c->axes, send, counts[me], recv, at_root ? counts : NULL, offsets, c->d, root),
                 mesh_gather_v_start(c->comm, c->axes, send, counts[me], recv, at_root ? counts : NULL, offsets, c->d,
                                     root, &r),
                 count, 0, at * c->elem);
        conf_clear(c);
        conf_contribution(c, 0, c->me, 0, at, c->send);
        conf_contribution(c, 0, root, offsets[me], counts[me], c->want);
        CONF_RUN("scatter_v",
                 mesh_scatter_v(c->comm, c->axes, send, at_root ? counts : NULL, offsets, recv, counts[me], c->d, root),
                 mesh_scatter_v_start(c->comm, c->axes, send, at_root ? counts : NULL, offsets, recv, counts[me], c->d,
                                      root, &r),
                 count, 0, counts[me] * c->elem);
    }
    { /* shift, periodic and not; sendrecv with other counts */
        int displacement = (int)(count % 3) + 1, from = (int)(((int)me - displacement) % (int)n + (int)n) % (int)n,
            edge = (int)me - displacement;
        conf_clear(c);
        conf_contribution(c, 0, c->me, 0, count, c->send);
        conf_contribution(c, 0, from, 0, count, c->want);
        CONF_RUN("shift periodic", mesh_shift(c->comm, c->axes, displacement, 1, send, recv, count, c->d),
                 mesh_shift_start(c->comm, c->axes, displacement, 1, send, recv, count, c->d, &r), count, 0, bytes);
        conf_clear(c);
        if (edge >= 0)
            conf_contribution(c, 0, edge, 0, count, c->want);
        else
            memset(c->want, 0xee, bytes);
        CONF_RUN("shift", mesh_shift(c->comm, c->axes, displacement, 0, send, recv, count, c->d),
                 mesh_shift_start(c->comm, c->axes, displacement, 0, send, recv, count, c->d, &r), count, 0, bytes);
        conf_clear(c);
        from = (int)((me + n - 1) % n);
        conf_contribution(c, 0, from, 0, count + (size_t)from, c->want);
        conf_contribution(c, 0, c->me, 0, count + me, c->send);
        CONF_RUN("sendrecv",
                 mesh_sendrecv(c->comm, c->axes, (int)((me + 1) % n), send, count + me, from, recv,
                               count + (size_t)from, c->d),
                 mesh_sendrecv_start(c->comm, c->axes, (int)((me + 1) % n), send, count + me, from, recv,
                                     count + (size_t)from, c->d, &r),
                 count, 0, (count + (size_t)from) * c->elem);
    }
    { /* lengths that travel ahead, under a tag where there are some */
        int from = (int)((me + n - 1) % n);
        size_t got = 77, room = count + (size_t)n + 2;
        char tagged[MESH_MAX_AXES * MESH_NAME_BYTES + 8];
        const char *axes = c->t->caps & MESH_CAP_ORDERED ? c->axes : tagged;
        mesh__text text = mesh__text_on(tagged, sizeof tagged);
        mesh__put(&text, "%s#5", c->axes ? c->axes : "");
        conf_clear(c);
        conf_contribution(c, 0, from, 0, count + (size_t)from, c->want);
        conf_contribution(c, 0, c->me, 0, count + me, c->send);
        conf_up(&c->memory);
        if (mesh_sendrecv_v(c->comm, axes, (int)((me + 1) % n), send, count + me, from, recv, room, &got, c->d))
            conformance_fail(c->t, __FILE__, __LINE__, "sendrecv_v", c->comm->error.text);
        conf_down(&c->memory);
        if (got != count + (size_t)from || memcmp(c->recv, c->want, got * c->elem))
            conformance_fail(c->t, __FILE__, __LINE__, "sendrecv_v: other data or count", "");
    }
    if (n > 1) { /* send and recv: pairs, twice in a row */
        int pass, peer = (int)(me ^ 1);
        for (pass = 0; pass < 2 && peer < (int)n; pass++) {
            mesh_request r = MESH_ZERO;
            mesh_status status;
            conf_clear(c);
            conf_contribution(c, 0, c->me, (size_t)pass, count, c->send);
            conf_contribution(c, 0, peer, (size_t)pass, count, c->want);
            conf_up(&c->memory);
            if (me & 1) {
                status = mesh_send_start(c->comm, c->axes, peer, send, count, c->d, &r);
                if (!status) status = mesh_recv(c->comm, c->axes, peer, recv, count, c->d);
            } else {
                status = mesh_recv_start(c->comm, c->axes, peer, recv, count, c->d, &r);
                if (!status) status = mesh_send(c->comm, c->axes, peer, send, count, c->d);
            }
            if (!status) status = conf_wait(r);
            if (!status) conf_down(&c->memory);
            if (status || memcmp(c->recv, c->want, bytes))
                conformance_fail(c->t, __FILE__, __LINE__, "send and recv", c->comm->error.text);
        }
    }
    conf_clear(c);
    CONF_RUN("barrier", mesh_barrier(c->comm, c->axes), mesh_barrier_start(c->comm, c->axes, &r), 0, 0, 0);
}

/* A matrix's column to the next rank's row, with a column to oneself in the same call. */
static void conf_exchange(conf_case *c) {
    mesh_transport *t = c->t;
    enum { N = 37, BYTES = N * sizeof(int32_t) };
    conf_memory m = conf_memory_of(t, c->comm);
    int32_t *a = (int32_t *)(void *)conf_new(&m, N * BYTES), *row = (int32_t *)(void *)conf_new(&m, BYTES);
    int32_t *self = (int32_t *)(void *)conf_new(&m, BYTES), i;
    mesh_block column, flat; /* flat: one run, which is no stride */
    mesh_xfer x[4];
    mesh_request r = MESH_ZERO;
    int next = (c->me + 1) % c->n, last = (c->me + c->n - 1) % c->n;
    for (i = 0; i < N * N; i++) a[i] = c->me * 10000 + i / N * 100 + i % N;
    memset(row, 0xee, BYTES);
    memset(self, 0xee, BYTES);
    conf_up(&m);
    memset(&column, 0, sizeof column);
    column.run = sizeof(int32_t);
    column.ndim = 1;
    column.dim[0].count = N;
    column.dim[0].stride = BYTES;
    x[0] = conf_xfer(MESH_SEND, next, conf_at(&m, a + 5), BYTES, &column);
    memset(&flat, 0, sizeof flat);
    flat.run = BYTES;
    x[1] = conf_xfer(MESH_RECV, last, conf_at(&m, row), BYTES, &flat);
    x[2] = conf_xfer(MESH_SEND, c->me, conf_at(&m, a + 6), BYTES, &column);
    x[3] = conf_xfer(MESH_RECV, c->me, conf_at(&m, self), BYTES, NULL);
    if (c->n == 1) { /* everything is to oneself: in order */
        CONFORM_CALL(mesh_exchange(c->comm, c->axes, x, 4), c->comm);
    } else {
        CONFORM_CALL(mesh_exchange_start(c->comm, c->axes, x, 4, &r), c->comm);
        CONFORM_CALL(conf_wait(r), c->comm);
    }
    conf_down(&m);
    for (i = 0; i < N; i++)
        CONFORM(row[i] == last * 10000 + i * 100 + 5 && self[i] == c->me * 10000 + i * 100 + 6, "exchange of a column");
    conf_delete(&m, a);
    conf_delete(&m, row);
    conf_delete(&m, self);
}

/* The value of a global cell. */
static int32_t conf_cell(const int64_t *cell, int ndim) {
    int64_t v = 0;
    int k;
    for (k = 0; k < ndim; k++) v = v * 64 + cell[k];
    return (int32_t)v;
}

/* A local array with dims divided by the mesh's axes, and one that is whole: every cell of the halo holds its neighbour's value, or what
   it held where there is no neighbour. */
static void conf_halo(mesh_comm *comm, int corners, int periodic) {
    mesh_transport *t = comm->transport;
    conf_memory m = conf_memory_of(t, comm);
    mesh_halo h = MESH_ZERO;
    int64_t cells = 1, inner[MESH_MAX_DIMS], i, at[MESH_MAX_DIMS], global[MESH_MAX_DIMS];
    int coords[MESH_MAX_AXES], k, pass;
    int32_t *a;
    mesh_request r = MESH_ZERO;
    h.ndim = comm->on.naxes < 3 ? comm->on.naxes + 1 : comm->on.naxes;
    h.corners = corners;
    mesh_coords_of(&comm->on, NULL, t->rank, coords);
    for (k = 0; k < h.ndim; k++) { /* dim 0 by the last axis, and so on */
        h.axis[k] = k < comm->on.naxes ? comm->on.axis[comm->on.naxes - 1 - k].name : NULL;
        h.low[k] = 1 + k % 2;
        h.high[k] = k == 1 ? 0 : 2;
        h.periodic[k] = periodic >> k & 1;
        inner[k] = 3 + k;
        h.shape[k] = inner[k] + h.low[k] + h.high[k];
        cells *= h.shape[k];
    }
    a = (int32_t *)(void *)conf_new(&m, (size_t)cells * sizeof *a);
    for (pass = 0; pass < 2; pass++) {
        int64_t wrong = 0;
        for (i = 0; i < cells; i++) {
            int64_t rest = i;
            int inside = 1;
            for (k = h.ndim - 1; k >= 0; k--) {
                at[k] = rest % h.shape[k] - h.low[k];
                rest /= h.shape[k];
                inside &= at[k] >= 0 && at[k] < inner[k];
                global[k] = at[k] + (h.axis[k] ? coords[comm->on.naxes - 1 - k] : 0) * inner[k];
            }
            a[i] = inside ? conf_cell(global, h.ndim) + pass : -7;
        }
        conf_up(&m);
        if (pass == 0) { /* the second time the kept request */
            CONFORM_CALL(mesh_halo_exchange_start(comm, &h, conf_at(&m, a), MESH_I32, &r), comm);
            CONFORM_CALL(mesh_keep(r), comm);
        } else {
            CONFORM_CALL(mesh_restart(r), comm);
        }
        CONFORM_CALL(conf_wait(r), comm);
        conf_down(&m);
        for (i = 0; i < cells; i++) {
            int64_t rest = i;
            int outside = 0, there = 1;
            for (k = h.ndim - 1; k >= 0; k--) {
                int64_t size = (h.axis[k] ? comm->on.axis[comm->on.naxes - 1 - k].size : 1) * inner[k];
                at[k] = rest % h.shape[k] - h.low[k];
                rest /= h.shape[k];
                outside += at[k] < 0 || at[k] >= inner[k];
                global[k] = at[k] + (h.axis[k] ? coords[comm->on.naxes - 1 - k] : 0) * inner[k];
                if (global[k] < 0 || global[k] >= size) there &= h.periodic[k];
                global[k] = (global[k] + size) % size;
            }
            wrong += a[i] != (there && (outside < 2 || corners) ? conf_cell(global, h.ndim) + pass : -7);
        }
        CONFORM(wrong == 0, "halo exchange");
    }
    CONFORM_CALL(mesh_release(r), comm);
    CONFORM(mesh_restart(r) == MESH_ERR_STATE, "what was released is gone");
    conf_delete(&m, a);
}

/* One operation's result is the next one's input, on another group, before the host has looked at it: the sum over the whole
   mesh axis by axis, which is then everybody's. */
static void conf_chain(mesh_comm *comm) {
    enum { COUNT = 5000 };
    mesh_transport *t = comm->transport;
    conf_memory m = conf_memory_of(t, comm);
    int32_t *link[MESH_MAX_AXES + 2], want;
    size_t bytes = COUNT * sizeof(int32_t), i;
    int k, n = comm->on.naxes, me = mesh_comm_index(comm, NULL), size = comm->on.size;
    mesh_request r = MESH_ZERO;
    for (k = 0; k < n + 2; k++) {
        link[k] = (int32_t *)(void *)conf_new(&m, bytes);
        memset(link[k], 0xee, bytes);
    }
    for (i = 0; i < COUNT; i++) link[0][i] = (int32_t)(i % 100) + me;
    conf_up(&m);
    for (k = 0; k < n + 1; k++) {
        const char *axes = k < n ? comm->on.axis[k].name : NULL;
        const void *send = conf_at(&m, link[k]);
        void *recv = conf_at(&m, link[k + 1]);
        if (k == n) {
            CONFORM_CALL(mesh_all_reduce_start(comm, axes, send, recv, COUNT, MESH_I32, MESH_MAX, &r), comm);
            CONFORM_CALL(mesh_wait(r), comm);
        } else if (k % 2) {
            CONFORM_CALL(mesh_all_reduce(comm, axes, send, recv, COUNT, MESH_I32, MESH_SUM), comm);
        } else {
            CONFORM_CALL(mesh_all_reduce_start(comm, axes, send, recv, COUNT, MESH_I32, MESH_SUM, &r), comm);
            CONFORM_CALL(mesh_wait(r), comm);
        }
    }
    CONFORM_CALL(mesh_comm_sync(comm), comm);
    conf_down(&m);
    for (i = 0; i < COUNT; i++) {
        want = (int32_t)(i % 100) * size + size * (size - 1) / 2;
        if (link[n + 1][i] != want) break;
    }
    CONFORM(i == COUNT, "an operation takes another's result without a look by the host");
    for (k = 0; k < n + 2; k++) conf_delete(&m, link[k]);
}

static size_t conf_room(const conf_case *c, size_t count) { return (count + 300) * (size_t)(c->n + 1) * 16 + 64; }

/* Memory for cases of up to so many elements per rank. */
static void conf_make_room(conf_case *c, size_t count) {
    c->room = conf_room(c, count);
    c->send = conf_new(&c->memory, c->room);
    c->recv = conf_new(&c->memory, c->room);
    c->want = (unsigned char *)malloc(c->room);
}

static void conf_free_room(conf_case *c) {
    conf_delete(&c->memory, c->send);
    conf_delete(&c->memory, c->recv);
    free(c->want);
}

/* Every collective on one group: all dtypes and ops at small counts, a few dtypes at counts beyond every threshold. */
static void conf_group(mesh_comm *comm, const char *axes, size_t large, const mesh_op *ops) {
    static const size_t counts[] = {0, 1, 3, 17, 257};
    conf_case c;
    mesh g;
    mesh_error err;
    int d, op, k, i, on_host = !conf_has(comm->transport, MESH_CAP_DEVICE);
    memset(&c, 0, sizeof c);
    c.t = comm->transport;
    c.comm = comm;
    c.memory = conf_memory_of(c.t, comm);
    c.axes = axes;
    mesh_group_through(&g, &comm->on, axes, comm->transport->rank, &err);
    c.n = g.size;
    c.me = mesh_index_of(&g, comm->transport->rank);
    if (g.size > CONF_MOST) {
        conformance_fail(c.t, __FILE__, __LINE__, "the group is too large for this suite", "");
        return;
    }
    for (i = 0; i < g.size; i++) c.seed[i] = mesh_rank_at(&g, i);
    conf_make_room(&c, 300);
    for (d = 0; d < MESH_DTYPE_COUNT; d++) {
        c.d = (mesh_dtype)d;
        c.elem = mesh_dtype_bytes(c.d);
        for (k = 0; k < (int)(sizeof counts / sizeof counts[0]); k++) {
            /* thinned: every dtype at some counts, every count with some; where cases cost copies, at one, but two dtypes at all */
            if (on_host ? d % 3 != k % 3 : k != 1 + d % 4 && d != MESH_F32 && d != MESH_BF16) continue;
            c.started = (d + k) % 3;
            conf_moves(&c, counts[k]);
            conf_many(&c, counts[k], mesh__reducible(d, MESH_MAX) ? MESH_MAX : MESH_SUM);
            for (op = 0; op < MESH_OP_COUNT; op++)
                if (mesh__reducible(d, op) && (on_host || !mesh__is_loc(op)))
                    conf_reductions(&c, counts[k], (mesh_op)op);
        }
    }
    conf_free_room(&c);
    conf_make_room(&c, large > 300 ? large : 300);
    for (k = 0; k < 2 && large; k++) {
        c.d = k ? MESH_BF16 : MESH_F32;
        c.elem = mesh_dtype_bytes(c.d);
        c.started = 2 * k;
        conf_moves(&c, large);
        conf_many(&c, large / 2, MESH_SUM);
        conf_reductions(&c, large, k ? MESH_MAX : MESH_SUM);
        if (!k && on_host) conf_reductions(&c, large, MESH_MINLOC);
    }
    conf_exchange(&c);
    conf_objects(&c, large);
    for (k = 0; k < 4 && on_host; k++) conf_user_ops(&c, ops[0], ops[1], k < 3 ? counts[k] : large);
    if (!on_host) conf_left_out(c.t, "minloc, maxloc, ops of one's own, broadcast_object_start (they need host memory)");
    conf_free_room(&c);
}

/* Every collective on every axis of a mesh over the whole world (text as for mesh_parse), on the whole mesh, and on the groups given
   ("c,a;a,b", or NULL), by the algorithms of a tuning table (NULL: as built in). `large`: elements per rank of the large cases; 0: none. */
static inline void conformance_collectives(mesh_transport *t, const char *mesh_text, const char *groups,
                                           const mesh_tuning *tuning, size_t large) {
    mesh m;
    mesh_comm comm;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    const char *p = groups;
    int i;
    mesh_op ops[2];
    desc.groups = groups;
    desc.tuning = tuning;
    desc.ask_ns = conf_ask_ns;
    if (mesh_parse(&m, mesh_text, t->size, &err) || mesh_comm_open(&comm, t, &m, &desc, &err)) {
        conformance_fail(t, __FILE__, __LINE__, "open", err.text);
        return;
    }
    conf_add_ops(&comm, ops);
    conf_group(&comm, NULL, large, ops);
    for (i = 0; i < m.naxes && m.naxes > 1; i++) conf_group(&comm, m.axis[i].name, large / 2, ops);
    for (i = 0; i < 8; i++) conf_halo(&comm, i & 1, i >> 1 == 3 ? 7 : i >> 1);
    for (i = 0; i < 4; i++) conf_chain(&comm);
    while (p && *p) {
        char one[64];
        size_t length = 0;
        while (p[length] && p[length] != ';') length++;
        snprintf(one, sizeof one, "%.*s", (int)length, p);
        conf_group(&comm, one, 0, ops);
        p += length + (p[length] == ';');
    }
    CONFORM_CALL(mesh_comm_close(&comm), &comm);
}

#endif
