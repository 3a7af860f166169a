/* Laws of comms: what every rank agrees on, who is told and named, what is counted, remembered and given back. On the simulator. */
#ifndef T_COMM_LAWS_H
#define T_COMM_LAWS_H

/* ---- a transport that writes down what it is given ---- */

enum { NOTES = 4096 };
typedef struct note {
    uint64_t channel, check, nbytes;
    int direction, rank, post;
    const unsigned char *base;
} note;
typedef struct noter {
    shim s;
    note *noted; /* the first NOTES: in the heap, where a process that has none pays nothing for it */
    int notes, posts, under_way, most, messages;
    struct {
        void *impl;
        int xfers;
    } open[64];
} noter;

static mesh_status noter_post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    noter *w = (noter *)(void *)t;
    mesh_status status = w->s.inner->ops->post(w->s.inner, p, ticket);
    int i;
    for (i = 0; i < p->count && w->notes < NOTES; i++) {
        note *n = &w->noted[w->notes++];
        n->channel = p->channel, n->check = p->check, n->nbytes = p->xfer[i].nbytes,
        n->direction = p->xfer[i].direction;
        n->rank = p->xfer[i].rank, n->post = w->posts, n->base = (const unsigned char *)p->xfer[i].base;
    }
    w->posts++;
    for (i = 0; i < 64 && w->open[i].impl; i++) {}
    if (i < 64 && status == MESH_OK)
        w->open[i].impl = ticket->impl, w->open[i].xfers = p->count, w->under_way += p->count;
    if (w->under_way > w->most) w->most = w->under_way;
    return status;
}
static mesh_status noter_test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    noter *w = (noter *)(void *)t;
    void *impl = ticket->impl;
    mesh_status status = w->s.inner->ops->test(w->s.inner, ticket, why);
    int i;
    for (i = 0; i < 64 && status != MESH_IN_PROGRESS; i++)
        if (w->open[i].impl == impl) {
            w->under_way -= w->open[i].xfers;
            w->open[i].impl = NULL;
            break;
        }
    return status;
}
static mesh_status noter_control_send(mesh_transport *t, int rank, int kind, const void *data, size_t n) {
    noter *w = (noter *)(void *)t;
    w->messages += kind == MESH_EVENT_MESSAGE;
    return w->s.inner->ops->control_send(w->s.inner, rank, kind, data, n);
}
static void noter_make(noter *w, mesh_transport *t) {
    note *noted = w->noted ? w->noted : (note *)malloc(NOTES * sizeof *noted); /* a static noter keeps it */
    memset(w, 0, sizeof *w);
    w->noted = noted;
    shim_make(&w->s, t);
    w->s.base.allocator = t->allocator;
    w->s.ops.post = noter_post;
    w->s.ops.test = noter_test;
    w->s.ops.control_send = noter_control_send;
}

static int open_with(mesh_transport *t, mesh_comm *c, const char *text, const mesh_comm_desc *desc) {
    mesh m;
    mesh_error err;
    CHECK_OK(mesh_parse(&m, text, t->size, &err), err);
    if (mesh_comm_open(c, t, &m, desc, &err) == MESH_OK) return 1;
    test_fail(__FILE__, __LINE__, "rank %d: %s", t->rank, err.text);
    return 0;
}

/* What the engine counts is what there is. */
static void check_engine(mesh_transport *t) {
    mesh__engine *e = (mesh__engine *)t->engine;
    mesh__op *op;
    int i, active = 0, issued = 0, detached = 0, unused = 0, idle = 0;
    for (i = 0; i < e->nops; i++) {
        active += e->op[i]->state == MESH__ACTIVE;
        issued += e->op[i]->state == MESH__ACTIVE && e->op[i]->issued;
        idle += e->op[i]->state == MESH__FREE;
    }
    for (op = e->detached; op; op = op->next_detached) detached++;
    for (op = e->unused; op; op = op->next_unused) unused++;
    for (op = e->rested; op; op = op->next_unused) unused++;
    CHECK_INT(e->nactive, active);
    CHECK_INT(e->nissued, issued);
    CHECK_INT(e->ndetached, detached);
    CHECK_INT(unused, idle);
    CHECK(e->waiting == NULL);
}

/* Operations left to a stream stand in the order they were left, whichever ends first. */
static void test_detached(void) {
    enum { OPS = 12 };
    test_random r = random_from(730);
    mesh__engine *e = (mesh__engine *)calloc(1, sizeof *e);
    mesh__op *ops = (mesh__op *)calloc(OPS, sizeof *ops), *op;
    int order[OPS], n = 0, round, i;
    for (round = 0; round < 5000; round++) {
        int k = random_below(&r, OPS);
        if (ops[k].detached) {
            mesh__op_attach(e, &ops[k]);
            for (i = 0; order[i] != k; i++) {}
            for (n--; i < n; i++) order[i] = order[i + 1];
        } else {
            mesh__op_detach(e, &ops[k]);
            order[n++] = k;
        }
        CHECK_INT(e->ndetached, n);
        for (i = 0, op = e->detached; op && i < n; op = op->next_detached) CHECK(op == &ops[order[i++]]);
        CHECK(!op && i == n);
    }
    free(ops), free(e);
}

/* A message of another length comes for an operation that nobody waits for: it is seen to all the same, while the rank polls another. */
static void bystander_error_rank(mesh_transport *t, void *ctx) {
    mesh_comm a, b;
    mesh_request r, other;
    int v[2] = {1, 2};
    (void)ctx;
    if (!open_comm(t, &a, "x=2", NULL, 60 * SECOND) || !open_comm(t, &b, "y=2", NULL, 60 * SECOND)) return;
    if (t->rank == 0) {
        CHECK_INT(mesh_recv_start(&a, NULL, 1, v, 1, MESH_I32, &r), MESH_OK);
        CHECK_INT(mesh_recv_start(&b, NULL, 1, v + 1, 1, MESH_I32, &other), MESH_OK);
        while (!a.failed && t->ops->now(t) < 10 * SECOND) {
            CHECK_INT(mesh_test(other), MESH_IN_PROGRESS);
            pause_rank(t, SECOND / 100);
        }
        CHECK_INT(a.error.status, MESH_ERR_MISMATCH);
        CHECK_INT(mesh_wait(r), MESH_ERR_MISMATCH);
        CHECK_OK(mesh_wait(other), b.error);
    } else {
        pause_rank(t, SECOND / 10);
        CHECK_INT(mesh_send(&a, NULL, 0, v, 2, MESH_I32), MESH_OK); /* buffered */
        pause_rank(t, 20 * SECOND);
        CHECK_OK(mesh_send(&b, NULL, 0, v, 1, MESH_I32), b.error);
    }
    check_engine(t);
    mesh_comm_close(&a);
    mesh_comm_close(&b);
    check_engine(t);
}
static void test_bystander_error(void) { run_world(SIM, 2, bystander_error_rank, NULL); }

/* ---- checks: calls that are alike have one check on all ranks, calls that differ in anything have different ones ---- */

enum { CALLS = 30 };

static void combine_pairs(void *inout, const void *in, size_t count, void *ctx) {
    (void)inout, (void)in, (void)count, (void)ctx;
}

/* The k-th of a pool of calls, no two of them alike. */
static mesh_status pool_call(mesh_comm *c, int k, const mesh_op *own, float *a, float *b) {
    static const char *const axes[] = {NULL, "x", "y", "y,x"};
    size_t counts[4] = {1, 1, 1, 1};
    mesh_buffer list[2];
    mesh_request r = MESH_ZERO;
    mesh_status status;
    int i;
    for (i = 0; i < 2; i++) list[i].send = a + 8 * i, list[i].recv = b + 8 * i, list[i].count = (size_t)(i + 2);
    switch (k) {
    case 0:
        return mesh_all_reduce(c, NULL, a, b, 4, MESH_F32, MESH_SUM);
    case 1:
        return mesh_all_reduce(c, NULL, a, b, 4, MESH_F32, MESH_MAX);
    case 2:
        return mesh_all_reduce(c, NULL, a, b, 4, MESH_I32, MESH_SUM);
    case 3:
        return mesh_all_reduce(c, NULL, a, b, 2, MESH_F64, MESH_SUM); /* as many bytes */
    case 4:
        return mesh_all_reduce(c, NULL, a, b, 5, MESH_F32, MESH_SUM);
    case 5:
        return mesh_all_reduce(c, axes[1], a, b, 4, MESH_F32, MESH_SUM);
    case 6:
        return mesh_all_reduce(c, axes[2], a, b, 4, MESH_F32, MESH_SUM);
    case 7:
        return mesh_all_reduce(c, axes[3], a, b, 4, MESH_F32, MESH_SUM);
    case 8:
        return mesh_broadcast(c, NULL, a, b, 4, MESH_F32, 0);
    case 9:
        return mesh_broadcast(c, NULL, a, b, 4, MESH_F32, 3);
    case 10:
        return mesh_reduce(c, NULL, a, b, 4, MESH_F32, MESH_SUM, 0);
    case 11:
        return mesh_reduce(c, NULL, a, b, 4, MESH_F32, MESH_SUM, 3);
    case 12:
        return mesh_barrier(c, NULL);
    case 13:
        return mesh_all_gather(c, NULL, a, b, 4, MESH_F32);
    case 14:
        return mesh_all_to_all(c, NULL, a, b, 4, MESH_F32);
    case 15:
        return mesh_all_gather_v(c, NULL, a, b, counts, NULL, MESH_F32);
    case 16:
        return mesh_all_gather_v(c, NULL, a, b, counts, NULL, MESH_I32);
    case 17:
        return mesh_all_reduce_many(c, NULL, list, 2, MESH_F32, MESH_SUM);
    case 18: /* the same sum, in another order */
        list[0].count = 3, list[1].count = 2;
        return mesh_all_reduce_many(c, NULL, list, 2, MESH_F32, MESH_SUM);
    case 19:
        return mesh_all_reduce(c, NULL, a, b, 4, MESH_BYTES, own[0]);
    case 20:
        return mesh_all_reduce(c, NULL, a, b, 4, MESH_BYTES,
                               own[0]); /* the first op too, but its elements have 8 bytes */
    case 21:
        return mesh_scan(c, NULL, a, b, 4, MESH_F32, MESH_SUM);
    case 22:
        return mesh_exscan(c, NULL, a, b, 4, MESH_F32, MESH_SUM);
    case 23:
        return mesh_reduce_scatter(c, NULL, a, b, 4, MESH_F32, MESH_SUM);
    case 24:
        return mesh_gather(c, NULL, a, b, 4, MESH_F32, 0);
    case 25:
        return mesh_scatter(c, NULL, a, b, 4, MESH_F32, 0);
    default:
        break;
    }
    /* point to point: what is sent goes by its dtype alone, whatever call it is part of */
    status = mesh_sendrecv_start(
        c, k == 29 ? "x" : NULL, (mesh_comm_index(c, k == 29 ? "x" : NULL) + 1) % (k == 29 ? 2 : 4), a, k == 27 ? 8 : 4,
        (mesh_comm_index(c, k == 29 ? "x" : NULL) + (k == 29 ? 1 : 3)) % (k == 29 ? 2 : 4), b, k == 27 ? 8 : 4,
        k == 27   ? MESH_BF16
        : k == 28 ? MESH_I32
                  : MESH_F32,
        &r);
    return status == MESH_OK ? mesh_wait(r) : status;
}
static uint64_t pool_checks[2][4][CALLS], pool_next[2][4][CALLS]; /* of the call, and of the one after it */

static void checks_rank(mesh_transport *t, void *ctx) {
    int other = *(int *)ctx, k;
    static noter writers[4];
    noter *w = &writers[t->rank];
    float a[64] = {0}, b[64];
    noter_make(w, t);
    for (k = 0; k < CALLS; k++) { /* a comm of its own for each: the first call of its group */
        mesh_comm c;
        mesh_user_op user = MESH_ZERO;
        mesh_op own[2];
        int i;
        if (!open_comm(&w->s.base, &c, other ? "y=2,x=2" : "x=2,y=2", "y,x", 20 * SECOND)) return;
        user.combine = combine_pairs;
        for (i = 0; i < 2; i++) user.elem_bytes = (size_t)(i == (k != 20) ? 8 : 4), mesh_op_add(&c, &user, &own[i]);
        w->notes = 0;
        CHECK_OK(pool_call(&c, k, own, a, b), c.error);
        CHECK(w->notes > 0);
        pool_checks[other][t->rank][k] = w->noted[0].check;
        for (i = 0; i < w->notes; i++)
            CHECK(w->noted[i].check == w->noted[0].check && w->noted[i].channel == w->noted[0].channel);
        CHECK_INT(w->noted[0].channel >> 40, c.id);
        CHECK_INT((uint32_t)w->noted[0].channel, k < 26);
        if (k < 26) { /* and it shows in every later check of the group */
            w->notes = 0;
            CHECK_OK(pool_call(&c, 0, own, a, b), c.error);
            pool_next[other][t->rank][k] = w->noted[0].check;
        }
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
    }
    mesh_transport_detach(&w->s.base);
}
static void test_checks(void) {
    int other, i, k;
    for (other = 0; other < 2; other++) {
        run_world(SIM, 4, checks_rank, &other);
        for (k = 0; k < CALLS; k++)
            for (i = 1; i < 4; i++) {
                int along = k >= 5 && k <= 7; /* groups along axes are several, each with a check of its own */
                if (!along && pool_checks[other][i][k] != pool_checks[other][0][k])
                    test_fail(__FILE__, __LINE__, "call %d: ranks 0 and %d have different checks", k, i);
            }
        for (k = 0; k < CALLS; k++)
            for (i = 0; i < k; i++)
                if (pool_checks[other][0][k] == pool_checks[other][0][i] && !(k == 29 && i == 26) &&
                    !(other && k == 7 && i == 0)) /* channels tell; the whole */
                    test_fail(__FILE__, __LINE__, "calls %d and %d have the same check", i, k);
    }
    for (k = 0; k < 26; k++) {
        CHECK(pool_checks[0][1][k] != pool_checks[1][1][k]); /* another mesh, another group */
        for (i = 0; i < k; i++)                              /* the same call after another */
            if ((k < 5 || k > 7) && (i < 5 || i > 7) && pool_next[0][0][k] == pool_next[0][0][i])
                test_fail(__FILE__, __LINE__, "after calls %d and %d the next has the same check", i, k);
    }
}

/* Numbers of 4 bytes meet numbers of 8, as many bytes: in no call do they pass for each other. What both called is said. */
static void unlike_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx, odd = t->rank == 1;
    float a[8] = {0}, b[8];
    size_t counts[2][2] = {{4, 4}, {2, 2}};
    mesh_buffer list = MESH_ZERO;
    mesh_dtype d = odd ? MESH_F64 : MESH_F32;
    size_t n = odd ? 1 : 2;
    mesh_comm c;
    mesh_status status = MESH_OK;
    list.send = a, list.recv = b, list.count = n;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    switch (what) {
    case 0:
        status = mesh_all_reduce(&c, NULL, a, b, n, d, MESH_SUM);
        break;
    case 1:
        status = mesh_broadcast(&c, NULL, a, b, n, d, 0);
        break;
    case 2:
        status = mesh_all_gather(&c, NULL, a, b, n, d);
        break;
    case 3:
        status = mesh_all_to_all(&c, NULL, a, b, n, d);
        break;
    case 4:
        status = mesh_reduce_scatter(&c, NULL, a, b, n, d, MESH_SUM);
        break;
    case 5:
        status = mesh_gather(&c, NULL, a, b, n, d, 0);
        break;
    case 6:
        status = mesh_scatter(&c, NULL, a, b, n, d, 1);
        break;
    case 7:
        status = mesh_scan(&c, NULL, a, b, n, d, MESH_MAX);
        break;
    case 8:
        status = mesh_all_gather_v(&c, NULL, a, b, counts[odd], NULL, d);
        break;
    case 9:
        status = mesh_all_reduce_many(&c, NULL, &list, 1, d, MESH_SUM);
        break;
    case 10:
        status = odd ? mesh_recv(&c, NULL, 0, b, n, d) : mesh_send(&c, NULL, 1, a, n, d);
        break;
    case 11:
        status = mesh_sendrecv(&c, NULL, 1 - t->rank, a, n, 1 - t->rank, b, n, d);
        break;
    default:
        status = mesh_shift(&c, NULL, 1, 1, a, b, n, d);
        break;
    }
    if (status == MESH_OK) status = mesh_barrier(&c, NULL); /* who only sent may hear of it now */
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "f32");
    CHECK_HAS(c.error.text, "f64");
    CHECK_INT(c.error.rank, 1 - t->rank); /* of two each names the other */
    mesh_comm_close(&c);
}
static void test_comm_unlike(void) {
    int what;
    for (what = 0; what < 13; what++) run_world(SIM, 2, unlike_rank, &what);
}

/* ---- records: what crosses the wire is what was called ---- */

static void test_records(void) {
    test_random r = random_from(701);
    int round, field;
    for (round = 0; round < 300; round++) {
        unsigned char bytes[MESH__RECORD_BYTES];
        mesh__record a, b;
        char before[300], after[300];
        mesh__text t;
        memset(&a, 0, sizeof a);
        a.channel = random_next(&r), a.count = random_next(&r) >> random_below(&r, 64),
        a.kind = (uint8_t)(1 + random_below(&r, MESH_CALL_COUNT - 1));
        a.dtype = (uint8_t)random_below(&r, MESH_DTYPE_COUNT), a.op = (uint8_t)random_below(&r, 80),
        a.root = (int)random_next(&r);
        mesh__copy_text(a.axes, (size_t)random_below(&r, MESH__AXES_BYTES) + 1,
                        "an,axis,list,that,is,just,as,long,as,it,can");
        mesh__record_write(bytes, &a);
        memset(&b, 0xff, sizeof b);
        mesh__record_read(&b, bytes);
        t = mesh__text_on(before, sizeof before);
        mesh__put_record(&t, &a);
        t = mesh__text_on(after, sizeof after);
        mesh__put_record(&t, &b);
        CHECK_STR(after, before);
        CHECK(mesh__record_same(&a, &b) && !strcmp(a.axes, b.axes));
        for (field = 0; field < 6; field++) { /* each tells records apart */
            b = a;
            if (field == 0) b.channel++;
            if (field == 1) b.count++;
            if (field == 2) b.kind++;
            if (field == 3) b.dtype++;
            if (field == 4) b.op++;
            if (field == 5) b.root++;
            CHECK(!mesh__record_same(&a, &b) && !mesh__record_same(&b, &a));
        }
        CHECK_INT(strstr(before, ", sequence ") != NULL, (uint32_t)a.channel != 0 && !(a.channel & MESH__TAGGED));
        if (a.op >= MESH__USER_OP && mesh__call_is(a.kind, MESH_REDUCES)) {
            char number[32];
            snprintf(number, sizeof number, ", user op %d", a.op - MESH__USER_OP);
            CHECK_HAS(before, number);
        }
        memset(bytes + 24, 'x', MESH__AXES_BYTES); /* forged: no end */
        mesh__record_read(&b, bytes);
        CHECK_INT(strlen(b.axes), MESH__AXES_BYTES - 1);
    }
    for (round = 0; round < 40; round++) { /* lists of ranks: as many as there are */
        char text[300];
        int ranks[40], i, said = 0, more = 0;
        mesh__text t = mesh__text_on(text, sizeof text);
        const char *p;
        for (i = 0; i < 40; i++) ranks[i] = 100 + i;
        mesh__put_ranks(&t, ranks, round);
        for (p = text; (p = strstr(p, "1")) != NULL; p += 3)
            said += (p == text || p[-1] == ' ') && p[1] >= '0' && p[1] <= '3' && p[2] >= '0' && p[2] <= '9';
        if ((p = strstr(text, " and ")) != NULL) more = atoi(p + 5);
        CHECK_INT(said + more, round);
    }
}

/* ---- the first rank's terms are everybody's, whatever they are ---- */

static mesh__comm_impl *terms_seen[4];
static void terms_rank(mesh_transport *t, void *ctx) {
    int round, k;
    (void)ctx;
    for (round = 0; round < 25; round++) {
        test_random r =
            random_from(710 + (uint64_t)round); /* the same on every rank, but what the others give is not heeded */
        mesh_tuning tuning = MESH_ZERO;
        mesh_topology topology = MESH_ZERO;
        mesh_comm_desc desc = MESH_ZERO;
        mesh_comm c;
        int64_t ranks = 1;
        int order[4] = {3, 1, 0, 2}, inverse[4]; /* the first rank is not 0 */
        mesh_table devices;
        tuning.nrows = round == 0 ? MESH_MAX_TUNING : random_below(&r, 20);
        for (k = 0; k < tuning.nrows; k++) {
            tuning.row[k].call = (uint8_t)random_next(&r), tuning.row[k].algorithm = (uint8_t)random_next(&r);
            tuning.row[k].ranks = (uint16_t)random_next(&r), tuning.row[k].bytes = random_next(&r),
            tuning.row[k].segment = (uint32_t)random_next(&r);
        }
        topology.nlevels = random_below(&r, 4);
        for (k = 0; k < topology.nlevels; k++) {
            ranks = k + 1 == topology.nlevels ? INT32_MAX : ranks * 2;
            topology.level[k].ranks = (int)ranks, topology.level[k].latency_ps = 7 + k,
            topology.level[k].ps_per_byte_16 = INT64_C(5) << (16 + k);
        }
        desc.scratch_cap = (int64_t)(random_next(&r) >> 2);
        desc.tuning = &tuning, desc.topology = &topology;
        desc.timeout_ns = 20 * SECOND;
        if (t->rank != 3) desc.tuning = NULL, desc.topology = NULL, desc.scratch_cap = 7;
        if (round % 5 == 4 && t->rank == 3)
            t->tuning = &tuning, desc.tuning = NULL; /* the transport's, where the description has none */
        {
            int shape[1] = {4};
            mesh_desc d = MESH_ZERO;
            mesh m;
            mesh_error err;
            CHECK_OK(mesh_table_make(&devices, order, 4, inverse, 4, &err), err);
            d.shape = shape, d.naxes = 1, d.table = &devices;
            CHECK_OK(mesh_make(&m, &d, &err), err);
            CHECK_OK(mesh_comm_open(&c, t, &m, &desc, &err), err);
            if (!c.impl) return;
        }
        terms_seen[t->rank] = mesh__impl(&c);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
        for (k = 0; k < 4; k++) {
            const mesh__comm_impl *mine = mesh__impl(&c), *theirs = terms_seen[k];
            CHECK_INT(mine->scratch_cap, theirs->scratch_cap);
            CHECK(!memcmp(&mine->tuning, &theirs->tuning, sizeof mine->tuning));
            CHECK(!memcmp(&mine->topology, &theirs->topology, sizeof mine->topology));
        }
        if (t->rank == 3)
            CHECK(mesh__impl(&c)->tuning.nrows == tuning.nrows &&
                  !memcmp(&mesh__impl(&c)->tuning, &tuning, sizeof tuning));
        if (t->rank == 0) { /* what was cut off is not taken */
            unsigned char d[MESH_CONTROL_BYTES];
            size_t whole = mesh__terms_write(d, mesh__impl(&c)), n;
            size_t levels = (size_t)mesh__impl(&c)->topology.nlevels * MESH__LEVEL_BYTES;
            for (n = 0; n <= whole; n++)
                CHECK_INT(mesh__terms_fit(d, n), n >= 12 + levels && (n - 12 - levels) % MESH__ROW_BYTES == 0);
            mesh__put32(d + 8, MESH_MAX_LEVELS + 1);
            CHECK(!mesh__terms_fit(d, sizeof d));
            mesh__put32(d + 8, UINT32_MAX / MESH__LEVEL_BYTES);
            CHECK(!mesh__terms_fit(d, sizeof d));
        }
        CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
        t->tuning = NULL;
        mesh_comm_close(&c);
    }
}
static void test_terms(void) { run_world(SIM, 4, terms_rank, NULL); }

/* ---- ids: equal on all ranks of a comm, never used twice by a rank; the last one is refused ---- */

static void ids_rank(mesh_transport *t, void *ctx) {
    static uint32_t ids[4];
    uint32_t last = 0;
    int k;
    (void)ctx;
    for (k = 0; k < 9; k++) {
        int first = k % 3, size = 2;
        mesh_comm c;
        if (t->rank >= first && t->rank < first + size) {
            if (!open_some(t, &c, first, size, 20 * SECOND)) return;
            CHECK(c.id > last);
            last = ids[t->rank] = c.id;
            CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
            CHECK_INT(ids[first], ids[first + 1]);
            CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
            mesh_comm_close(&c);
        }
    }
    if (t->rank < 2) {
        mesh_comm c;
        mesh m;
        mesh_error err;
        ((mesh__engine *)t->engine)->last_id = (1u << 24) - 2;
        if (!open_some(t, &c, 0, 2, 20 * SECOND)) return;
        CHECK_INT(c.id, (1u << 24) - 1);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
        mesh_comm_close(&c);
        CHECK_OK(mesh_parse(&m, "x=2", 2, &err), err);
        CHECK_INT(mesh_comm_open(&c, t, &m, NULL, &err), MESH_ERR_STATE);
        CHECK_HAS(err.text, "2^24");
    }
}
static void test_ids(void) { run_world(SIM, 4, ids_rank, NULL); }

/* A group's sequence comes round: collectives never have number 0, nor what tags have. */
static void wrap_rank(mesh_transport *t, void *ctx) {
    static noter writers[2];
    noter *w = &writers[t->rank];
    mesh_comm c;
    int i, v = 1, sum;
    (void)ctx;
    noter_make(w, t);
    if (!open_comm(&w->s.base, &c, "x=2", NULL, 20 * SECOND)) return;
    mesh__impl(&c)->group[0]->sequence = MESH__TAGGED - 3;
    for (i = 0; i < 5; i++) CHECK_OK(mesh_all_reduce(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM), c.error);
    for (i = 0; i < w->notes; i++) CHECK((uint32_t)w->noted[i].channel != 0);
    CHECK_INT((uint32_t)w->noted[w->notes - 1].channel, 3);
    mesh_comm_close(&c);
    mesh_transport_detach(&w->s.base);
}
static void test_wrap(void) { run_world(SIM, 2, wrap_rank, NULL); }

/* ---- history: every operation once, with its end ---- */

static void history_rank(mesh_transport *t, void *ctx) {
    int others = *(int *)ctx, i, v = 1, got = 0, lines = 0;
    static char texts[2][100000];
    char *text = texts[t->rank], *p;
    mesh_comm c;
    mesh_request slow;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    if (t->rank == 0) CHECK_INT(mesh_recv_start(&c, NULL, 1, &got, 1, MESH_I32, &slow), MESH_OK);
    for (i = 0; i < others; i++) CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 1) CHECK_INT(mesh_send(&c, NULL, 0, &v, 1, MESH_I32), MESH_OK);
    if (t->rank == 0) CHECK_INT(mesh_wait(slow), MESH_OK);
    CHECK(mesh_comm_history(&c, text, sizeof texts[0]) < sizeof texts[0]);
    for (p = text; *p; p++) lines += *p == '\n';
    CHECK_INT(lines, others + 1 < MESH__RING ? others + 1 : MESH__RING);
    CHECK(!strstr(text, "in progress"));
    CHECK_INT(strstr(text, "recv(") != NULL, t->rank == 0 && others < MESH__RING);
    if (t->rank == 0) { /* what a failure ends, stands there with it */
        CHECK_INT(mesh_recv_start(&c, NULL, 1, &got, 1, MESH_I32, &slow), MESH_OK);
        CHECK_INT(mesh_barrier(&c, "nowhere"), MESH_ERR_ARGUMENT);
        CHECK(mesh_comm_history(&c, text, sizeof texts[0]) < sizeof texts[0]);
        CHECK(!strstr(text, "in progress"));
        CHECK_HAS(text, "recv(1 x i32) on \"x\": bad argument");
        CHECK(!strstr(text, " after -")); /* with a time that is one */
        CHECK_INT(mesh_wait(slow), MESH_ERR_ARGUMENT);
    }
    mesh_comm_close(&c);
}
static void test_history(void) {
    static const int others[] = {0, 7, MESH__RING - 2, MESH__RING - 1, MESH__RING, MESH__RING + 1};
    size_t k;
    for (k = 0; k < sizeof others / sizeof *others; k++) run_world(SIM, 2, history_rank, (void *)(uintptr_t)&others[k]);
}

/* ---- an older transport: its struct ends with the required members, and what lies behind is not looked at ---- */

static void short_ops_rank(mesh_transport *t, void *ctx) {
    mesh_ops older;
    const mesh_ops *whole = t->ops;
    mesh_tensor src, dst;
    mesh_comm c;
    void *p = NULL, *handle;
    char text[8] = "abcdefg";
    (void)ctx;
    memset(&older, 0xff, sizeof older); /* calls that would crash */
    memcpy(&older, whole, offsetof(mesh_ops, group_open));
    older.struct_size = (uint32_t)offsetof(mesh_ops, group_open);
    t->ops = &older;
    conformance_collectives(t, "a=2,b=2", "b,a", NULL, 301);
    if (!open_comm(t, &c, "a=2,b=2", NULL, 20 * SECOND)) return;
    two_layouts(&c, &src, &dst, "a:P(sum) b:S(0)", "a:S(0) b:S(1)", 13, 7);
    set_part(&src, t->rank, 1);
    CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
    CHECK_INT(wrong_part(&dst, t->rank, 2), 0);
    free(src.data), free(dst.data);
    CHECK_INT(mesh_group_open(&c, "b,a"), MESH_OK);
    CHECK_INT(mesh_alloc(c.transport, 100, &p, &c.error), MESH_OK);
    CHECK_INT((uintptr_t)p & 63, 0);
    CHECK_INT(mesh_copy(&c, p, text, 8), MESH_OK);
    CHECK(!memcmp(p, text, 8));
    CHECK_INT(mesh_register(&c, p, 100, &handle), MESH_OK);
    CHECK(handle == NULL);
    CHECK_INT(mesh_free(c.transport, p, &c.error), MESH_OK);
    CHECK_INT(mesh_free(c.transport, NULL, &c.error), MESH_OK);
    CHECK_INT(mesh_comm_stream(&c, &c), MESH_OK);
    CHECK_INT(mesh_comm_sync(&c), MESH_OK);
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    pause_rank(t, SECOND / 20);
    CHECK_INT(mesh_barrier(&c, "nowhere"), MESH_ERR_ARGUMENT); /* failing, too */
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    mesh_transport_detach(t);
    t->ops = whole;
}
static void test_short_ops(void) { run_world(SIM, 4, short_ops_rank, NULL); }

/* Whatever an opening has to say finds no memory at first: it is said again, and the comm opens. */
static const mesh_ops *short_of_memory;
static __thread int short_said, short_times;
static mesh_status short_control_send(mesh_transport *t, int rank, int kind, const void *data, size_t nbytes) {
    uint32_t what = nbytes >= 4 ? mesh__get32((const unsigned char *)data) : 0;
    int opens = kind == MESH_EVENT_MESSAGE && (what == MESH__MSG_HELLO || what == MESH__MSG_WELCOME || what == MESH__MSG_HOSTS);
    if (opens && short_times++ % 3 < 2) return MESH_ERR_MEMORY;
    short_said += opens;
    return short_of_memory->control_send(t, rank, kind, data, nbytes);
}
static void short_opening_rank(mesh_transport *t, void *ctx) {
    mesh_ops ops = *t->ops;
    const mesh_ops *whole = t->ops;
    mesh_comm c, part;
    (void)ctx;
    short_of_memory = whole;
    short_said = short_times = 0;
    ops.control_send = short_control_send;
    t->ops = &ops;
    if (open_comm(t, &c, "a=2,b=2", NULL, 20 * SECOND)) {
        CHECK_OK(mesh_comm_split(&part, &c, t->rank % 2, t->rank, NULL, NULL), c.error);
        CHECK_OK(mesh_barrier(&part, NULL), part.error);
        CHECK(short_said >= 2);
        mesh_comm_close(&part);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        mesh_comm_close(&c);
    }
    mesh_transport_detach(t);
    t->ops = whole;
}
static void test_short_opening(void) {
    run_world(SIM, 4, short_opening_rank, NULL);
    run_world(TCP, 4, short_opening_rank, NULL);
}

/* ---- memory: all of it comes back, none is written beyond, whatever is done and however it ends ---- */

static void everything_rank(mesh_transport *t, void *ctx) {
    int how = *(int *)ctx, me = t->rank, i, v[8] = {0}, got[8] = {0};
    size_t counts[4] = {1, 0, 2, 1}, sends[4];
    mesh_comm c, other;
    mesh_object o = MESH_ZERO;
    mesh_request r;
    mesh_error err;
    mesh_comm_desc desc = MESH_ZERO;
    mesh m;
    void *p;
    if (!open_comm(t, &c, "a=2,b=2", "b,a", 20 * SECOND)) return;
    for (i = 0; i < 4; i++) sends[i] = counts[me];
    CHECK_OK(mesh_all_gather_v(&c, NULL, v, got, counts, NULL, MESH_I32), c.error);
    CHECK_OK(mesh_all_to_all_v(&c, NULL, v, sends, NULL, got, counts, NULL, MESH_I32), c.error);
    CHECK_OK(mesh_sendrecv(&c, "a", 1 - mesh_comm_index(&c, "a"), v, 3, 1 - mesh_comm_index(&c, "a"), got, 3, MESH_I32),
             c.error);
    for (i = 0; i < 3; i++) { /* an object that grows, shrinks, grows */
        static char bytes[3][3000];
        mesh_object mine = MESH_ZERO;
        mine.data = bytes[i], mine.nbytes = (size_t)(i == 1 ? 0 : 1000 * (i + 1));
        CHECK_OK(mesh_broadcast_object(&c, NULL, me == 2 ? &mine : &o, 2), c.error);
    }
    mesh_object_free(&c, &o);
    mesh_object_free(&c, &o);
    CHECK_INT(mesh_alloc(c.transport, 1000, &p, &c.error), MESH_OK);
    memset(p, 7, 1000);
    CHECK_INT(mesh_free(c.transport, p, &c.error), MESH_OK);
    CHECK_INT(mesh_free(c.transport, p, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "is not mesh_alloc's of this transport, or was freed before");
    CHECK_INT(mesh_alloc(c.transport, SIZE_MAX - 64, &p, &c.error), MESH_ERR_MEMORY);
    CHECK_HAS(c.error.text, "mesh_alloc: no memory for ");
    CHECK_INT(mesh_alloc(c.transport, SIZE_MAX, &p, &c.error), MESH_ERR_MEMORY);
    CHECK_INT(mesh_copy(&c, v, NULL, 4), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_copy(&c, NULL, v, 4), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_copy(&c, NULL, NULL, 0), MESH_OK);
    CHECK_INT(mesh_copy(&c, got, v, 4), MESH_OK);
    CHECK_INT(c.failed, 0);
    desc.groups = "b,nowhere";
    CHECK_OK(mesh_parse(&m, "a=2,b=2", 4, &err), err);
    CHECK_INT(mesh_comm_open(&other, t, &m, &desc, &err), MESH_ERR_ARGUMENT);
    switch (how) {
    case 0:
        break;
    case 1: /* a rank dies */
        if (me == 1) mesh_sim_die(t);
        CHECK_INT(mesh_barrier(&c, NULL), me == 1 ? MESH_ERR_TRANSPORT : MESH_ERR_PEER);
        break;
    case 2: /* all wait for one that computes, and ask; requests are left under way */
        if (me == 3) pause_rank(t, SECOND);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        if (me) break;
        pause_rank(t, SECOND / 20);
        CHECK_INT(mesh_recv_start(&c, NULL, (me + 1) % 4, got, 1, MESH_I32, &r), MESH_OK);
        CHECK_INT(mesh_comm_close(&c), MESH_ERR_STATE);
        break;
    default: /* a cycle */
        CHECK_INT(mesh_recv(&c, NULL, (me + 1) % 4, got, 1, MESH_I32), MESH_ERR_MISMATCH);
        break;
    }
    mesh_comm_close(&c);
}
static void test_everything(void) {
    int how;
    for (how = 0; how < 4; how++) run_guarded(sim_desc(4), everything_rank, &how);
}

/* The suites in such memory, unevenly many ranks. */
static void guarded_collectives_rank(mesh_transport *t, void *ctx) {
    mesh_tuning tuning;
    mesh_error err;
    int k = *(int *)ctx;
    CHECK_OK(
        mesh_tuning_parse(
            &tuning,
            k ? "all_reduce ranks<=* bytes<=* ring segment=600\nreduce_scatter ranks<=* bytes<=* direct segment=600\n"
                "all_gather ranks<=* bytes<=* bruck\ngather ranks<=* bytes<=* binomial\nscatter ranks<=* bytes<=* binomial\n"
                "scan ranks<=* bytes<=* chain segment=600\nexscan ranks<=* bytes<=* chain segment=600\n"
                "all_to_all ranks<=* bytes<=* bruck\nbroadcast ranks<=* bytes<=* scatter segment=600"
              : "all_reduce ranks<=* bytes<=* halving\nreduce_scatter ranks<=* bytes<=* halving\nreduce ranks<=* bytes<=* direct segment=600",
            &err),
        err);
    conformance_collectives(t, "a=-1", NULL, &tuning, 421);
}
static void test_guarded_collectives(void) {
    int k;
    for (k = 0; k < 2; k++) run_guarded(sim_desc(k ? 5 : 3), guarded_collectives_rank, &k);
}
static void guarded_redistribute_rank(mesh_transport *t, void *ctx) {
    (void)ctx;
    conformance_redistribute(t, test_seed + 77, 60, 400);
}
static void test_guarded_redistribute(void) { run_guarded(sim_desc(4), guarded_redistribute_rank, NULL); }

/* ---- requests ---- */

static void requests_rank(mesh_transport *t, void *ctx) {
    mesh_comm c, other;
    mesh_request r[3], stale, kept;
    mesh_object o = MESH_ZERO;
    mesh_op ops[70];
    mesh_user_op user = MESH_ZERO;
    int v = 1, sum, i;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 2 * SECOND) || !open_comm(t, &other, "y=2", NULL, 20 * SECOND)) return;
    /* one that was waited for is none, though its slot is another's by now */
    CHECK_INT(mesh_barrier_start(&c, NULL, &stale), MESH_OK);
    CHECK_INT(mesh_wait(stale), MESH_OK);
    CHECK_INT(mesh_barrier_start(&c, NULL, &r[0]), MESH_OK);
    CHECK_INT(r[0].slot, stale.slot);
    CHECK(mesh_wait(stale) == MESH_ERR_STATE && mesh_test(stale) == MESH_ERR_STATE &&
          mesh_wait_host(stale) == MESH_ERR_STATE && mesh_keep(stale) == MESH_ERR_STATE &&
          mesh_release(stale) == MESH_ERR_STATE && mesh_restart(stale) == MESH_ERR_STATE);
    r[1] = r[0];
    r[1].comm = &other; /* nor in another comm */
    CHECK(mesh_wait(r[1]) == MESH_ERR_STATE && mesh_test(r[1]) == MESH_ERR_STATE);
    CHECK_INT(mesh_release(r[0]), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "not kept");
    CHECK_INT(mesh_restart(r[0]), MESH_ERR_STATE);
    CHECK_INT(mesh_wait(r[0]), MESH_OK);
    CHECK(c.failed == 0 && other.failed == 0);
    /* kept: at rest nothing ends it, under way nothing starts it; its deadline is that of each round */
    CHECK_INT(mesh_all_reduce_start(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM, &kept), MESH_OK);
    CHECK_INT(mesh_keep(kept), MESH_OK);
    CHECK_INT(mesh_restart(kept), MESH_ERR_STATE);
    CHECK_INT(mesh_wait(kept), MESH_OK);
    CHECK(mesh_wait(kept) == MESH_ERR_STATE && mesh_test(kept) == MESH_ERR_STATE &&
          mesh_wait_host(kept) == MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_restart");
    for (i = 0; i < 3; i++) {
        pause_rank(t, 3 * SECOND);
        v = i;
        CHECK_OK(mesh_restart(kept), c.error);
        if (t->rank == 1) pause_rank(t, SECOND);
        CHECK_OK(mesh_wait(kept), c.error);
        CHECK_INT(sum, 2 * i);
    }
    CHECK_INT(mesh_release(kept), MESH_OK); /* its slot is free for the next */
    CHECK_INT(mesh_barrier_start(&c, NULL, &r[0]), MESH_OK);
    CHECK_INT(r[0].slot, kept.slot);
    CHECK_INT(mesh_release(kept), MESH_ERR_STATE);
    CHECK_INT(mesh_wait(r[0]), MESH_OK);
    CHECK_INT(mesh_broadcast_object_start(&c, NULL, &o, 0, &r[0]), MESH_OK);
    CHECK_INT(mesh_keep(r[0]), MESH_ERR_UNSUPPORTED);
    CHECK_INT(mesh_wait(r[0]), MESH_OK);
    mesh_object_free(&c, &o);
    /* released under way: it ends with its round */
    CHECK_INT(mesh_barrier_start(&c, NULL, &r[0]), MESH_OK);
    CHECK_INT(mesh_keep(r[0]), MESH_OK);
    CHECK_INT(mesh_release(r[0]), MESH_OK);
    CHECK_INT(mesh_wait(r[0]), MESH_OK);
    CHECK_INT(mesh_restart(r[0]), MESH_ERR_STATE);
    check_engine(t);
    /* 64 ops, each another */
    user.combine = combine_pairs;
    for (i = 0; i < MESH__USER_OPS; i++) CHECK_INT(mesh_op_add(&c, &user, &ops[i]), MESH_OK);
    for (i = 1; i < MESH__USER_OPS; i++) CHECK(ops[i] != ops[i - 1] && ops[i] >= MESH_OP_COUNT);
    CHECK_INT(mesh_op_add(&c, &user, &ops[64]), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_op_add(&other, NULL, &ops[0]), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_op_add(&other, &user, NULL), MESH_ERR_ARGUMENT);
    user.elem_bytes = SIZE_MAX / 4 + 1;
    CHECK_INT(mesh_op_add(&other, &user, &ops[0]), MESH_ERR_ARGUMENT);
    user.combine = NULL;
    CHECK_INT(mesh_op_add(&other, &user, &ops[0]), MESH_ERR_ARGUMENT);
    CHECK_INT(other.failed, 0);
    /* what has ended, though nobody waited for it, is no reason to complain at the close */
    CHECK_INT(mesh_barrier_start(&c, NULL, &r[0]), MESH_OK);
    pause_rank(t, SECOND);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(mesh_barrier(&other, NULL), MESH_OK);
    /* the first cause stays, whatever is called after it */
    if (t->rank == 0) CHECK_INT(mesh_barrier(&other, "nowhere"), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_barrier(&other, NULL), MESH_ERR_ARGUMENT);
    CHECK_INT(other.error.rank, 0);
    CHECK_INT(mesh_wait(stale), MESH_ERR_STATE);
    memset(&r[0], 0, sizeof r[0]);
    r[0].comm = &other, r[0].generation = 9, r[0].slot = 77;
    CHECK(mesh_wait(r[0]) == MESH_ERR_STATE && mesh_test(r[0]) == MESH_ERR_STATE);
    CHECK_INT(mesh_barrier(&other, "elsewhere"), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_barrier_start(&other, NULL, &r[0]), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_barrier_start(&other, NULL, NULL), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_op_add(&other, &user, &ops[0]), MESH_ERR_ARGUMENT);
    CHECK_HAS(other.error.text, "nowhere");
    CHECK_INT(mesh_comm_close(&other), MESH_OK);
    CHECK_INT(mesh_op_add(&other, &user, &ops[0]), MESH_ERR_STATE);
    CHECK_HAS(other.error.text, "mesh_op_add: the comm is not open");
    CHECK_INT(mesh_abort(&other, NULL), MESH_ERR_STATE);
    CHECK_HAS(other.error.text, "mesh_abort: the comm is not open");
    CHECK_INT(mesh_prepare(&other), MESH_ERR_STATE);
    CHECK_HAS(other.error.text, "mesh_prepare: the comm is not open");
    CHECK_INT(mesh_abort(NULL, NULL), MESH_ERR_STATE);
}
static void test_requests(void) { run_world(SIM, 2, requests_rank, NULL); }

/* A comm closed with operations under way: its own requests are gone, and who waits for it is told at once, with the cause. */
static void closed_under_way_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request r[2];
    int v = 1, got;
    int64_t start;
    (void)ctx;
    if (!open_comm(t, &c, "x=3", NULL, 60 * SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    start = t->ops->now(t);
    if (t->rank == 0) {
        pause_rank(t, SECOND);
        CHECK_INT(mesh_recv_start(&c, NULL, 1, &got, 1, MESH_I32, &r[0]), MESH_OK);
        CHECK_INT(mesh_recv_start(&c, NULL, 2, &got, 1, MESH_I32, &r[1]), MESH_OK);
        CHECK_INT(mesh_comm_close(&c), MESH_ERR_STATE);
        CHECK_HAS(c.error.text, "2 operations were still under way");
        CHECK(mesh_wait(r[0]) == MESH_ERR_STATE && mesh_test(r[1]) == MESH_ERR_STATE);
        pause_rank(t, 20 * SECOND); /* without a call into the library */
    } else {
        CHECK_INT(mesh_recv(&c, NULL, 0, &v, 1, MESH_I32), MESH_ERR_PEER);
        CHECK_INT(c.error.rank, 0);
        CHECK_HAS(c.error.text, "rank 0 closed it with 2 operations under way");
        CHECK(t->ops->now(t) - start < 5 * SECOND);
        mesh_comm_close(&c);
    }
    check_engine(t);
}
static void test_closed_under_way(void) { run_world(SIM, 3, closed_under_way_rank, NULL); }

/* Memory that is short once: the call says so, or does well without; what comes after it has all it needs, in the same slots. */
typedef struct scarce {
    int fail_in; /* 0: the next; negative: none */
} scarce;
static void *scarce_alloc(void *ctx, size_t n) {
    scarce *s = (scarce *)ctx;
    return s->fail_in >= 0 && s->fail_in-- == 0 ? NULL : guarded_alloc(&guarded_memory, n);
}
static void scarce_free(void *ctx, void *p) {
    (void)ctx;
    guarded_free(&guarded_memory, p);
}
static void scarce_rank(mesh_transport *t, void *ctx) {
    static shim shims[2];
    static scarce short_of[2];
    static float a[2][6000], b[2][6000];
    shim *s = &shims[t->rank];
    int when = *(int *)ctx, what, v = 1, got;
    size_t counts[2] = {3, 4};
    mesh_buffer list[3];
    mesh_comm c;
    mesh_status status;
    shim_make(s, t);
    short_of[t->rank].fail_in = -1;
    s->base.allocator.alloc = scarce_alloc;
    s->base.allocator.free = scarce_free;
    s->base.allocator.ctx = &short_of[t->rank];
    for (what = 0; what < 6; what++) {
        int round;
        for (round = 0; round < 3; round++)
            list[round].send = a[t->rank] + 10 * round, list[round].recv = b[t->rank] + 10 * round,
            list[round].count = 5;
        for (round = 0; round < 2; round++) { /* short at rank 0, then not */
            if (!open_comm(&s->base, &c, "x=2", NULL, 5 * SECOND)) return;
            if (round == 0 && t->rank == 0) short_of[0].fail_in = when;
            if (t->rank == 1) pause_rank(t, SECOND / 2); /* it is waited for, and asked */
            status = what == 0   ? mesh_all_reduce(&c, NULL, a[t->rank], b[t->rank], 6000, MESH_F32, MESH_SUM)
                     : what == 1 ? mesh_sendrecv(&c, NULL, 1 - t->rank, &v, 1, 1 - t->rank, &got, 1, MESH_I32)
                     : what == 2 ? mesh_all_gather_v(&c, NULL, a[t->rank], b[t->rank], counts, NULL, MESH_F32)
                     : what == 3 ? mesh_all_reduce_many(&c, NULL, list, 3, MESH_F32, MESH_SUM)
                     : what == 4 ? mesh_group_open(&c, "x,x")
                                 : mesh_all_to_all(&c, NULL, b[t->rank], b[t->rank], 2000, MESH_F32);
            short_of[t->rank].fail_in = -1;
            if (what == 4) {
                CHECK(status == MESH_ERR_ARGUMENT || (status == MESH_ERR_MEMORY && round == 0));
            } else if (round || status == MESH_OK) {
                if (status == MESH_OK) status = mesh_barrier(&c, NULL);
                CHECK(status == MESH_OK || (round == 0 && status == MESH_ERR_MEMORY));
            } else {
                CHECK_INT(status, MESH_ERR_MEMORY);
                CHECK_INT(c.error.rank, 0);
            }
            mesh_comm_close(&c);
        }
    }
    mesh_transport_detach(&s->base);
}
static void test_scarce(void) {
    int when;
    for (when = 0; when < 8; when++) run_guarded(sim_desc(2), scarce_rank, &when);
}

/* A kept operation of a comm that fails at rest is not started again. */
static void kept_failed_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_request kept;
    int v = 1, sum;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_all_reduce_start(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM, &kept), MESH_OK);
    CHECK_INT(mesh_keep(kept), MESH_OK);
    CHECK_INT(mesh_wait(kept), MESH_OK);
    if (t->rank == 0) CHECK_INT(mesh_barrier(&c, "nowhere"), MESH_ERR_ARGUMENT);
    if (t->rank == 1) pause_rank(t, SECOND);
    CHECK_INT(mesh_restart(kept), MESH_ERR_ARGUMENT); /* heard now at the latest */
    CHECK_HAS(c.error.text, "nowhere");
    mesh_comm_close(&c);
}
static void test_kept_failed(void) { run_world(SIM, 2, kept_failed_rank, NULL); }

/* Polling alone hears of deadlines, deaths and refusals. */
static void polled_rank(mesh_transport *t, void *ctx) {
    int how = *(int *)ctx, got = 0;
    static const mesh_status want[] = {MESH_ERR_TIMEOUT, MESH_ERR_PEER, MESH_ERR_ARGUMENT};
    mesh_comm c;
    mesh_request r;
    mesh_status status;
    if (!open_comm(t, &c, "x=2", NULL, SECOND)) return;
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    if (t->rank == 1) {
        pause_rank(t, SECOND / 10); /* rank 0 has started by now */
        if (how == 1) mesh_sim_die(t);
        if (how == 2) mesh_barrier(&c, "nowhere");
        pause_rank(t, 5 * SECOND);
    } else {
        CHECK_INT(mesh_recv_start(&c, NULL, 1, &got, 1, MESH_I32, &r), MESH_OK);
        while ((status = mesh_test(r)) == MESH_IN_PROGRESS && t->ops->now(t) < 20 * SECOND) pause_rank(t, SECOND / 100);
        CHECK_INT(status, want[how]);
        CHECK_INT(c.error.rank, 1);
    }
    mesh_comm_close(&c);
}
static void test_polled(void) {
    int how;
    for (how = 0; how < 3; how++) run_world(SIM, 2, polled_rank, &how);
}

/* ---- comms side by side: one fails in each way, the other goes on, and so does what comes after, in the same slots ---- */

static void beside_rank(mesh_transport *t, void *ctx) {
    int how = *(int *)ctx, v = 1, sum = 0, i, me = t->rank;
    static float big[4][2][8000];
    mesh_comm a, b, d;
    mesh_request r[3];
    mesh_status status = MESH_OK;
    if (!open_comm(t, &a, "x=4", NULL, how == 3 ? SECOND : 20 * SECOND) || !open_comm(t, &b, "y=4", NULL, 20 * SECOND))
        return;
    for (i = 0; i < 3; i++)
        CHECK_INT(mesh_recv_start(&a, NULL, (me + 1) % 4, &sum, 1, MESH_I32, &r[i]),
                  MESH_OK); /* under way when it fails */
    CHECK_OK(mesh_barrier(&b, NULL), b.error); /* on every rank */
    switch (how) {
    case 0:
        status = me == 2 ? mesh_barrier(&a, "nowhere") : mesh_barrier(&a, NULL);
        break;
    case 1:
        status = mesh_all_reduce(&a, NULL, big[me][0], big[me][1], me == 2 ? 7999 : 8000, MESH_F32, MESH_SUM);
        break;
    case 2:
        status = mesh_recv(&a, NULL, (me + 1) % 4, &v, 1, MESH_I32);
        break;
    default:
        if (me == 2) pause_rank(t, 5 * SECOND);
        status = mesh_barrier(&a, NULL);
        break;
    }
    CHECK_INT(status, how == 0 ? MESH_ERR_ARGUMENT : how == 3 ? MESH_ERR_TIMEOUT : MESH_ERR_MISMATCH);
    for (i = 0; i < 3; i++) CHECK_INT(mesh_wait(r[i]), status); /* all of it with the cause */
    CHECK_INT(mesh_transport_patience(t), MESH__CLOSE_NS);
    if (how % 2) CHECK_INT(mesh_comm_close(&a), MESH_OK);
    for (i = 0; i < 20; i++) {
        v = me + i;
        CHECK_OK(mesh_all_reduce(&b, NULL, &v, &sum, 1, MESH_I32, MESH_SUM), b.error);
        CHECK_INT(sum, 6 + 4 * i);
        CHECK_OK(mesh_all_reduce(&b, NULL, big[me][0], big[me][1], 8000, MESH_F32, MESH_SUM), b.error);
    }
    mesh_comm_close(&a);
    if (!open_comm(t, &d, "z=4", NULL, 20 * SECOND)) return;
    for (i = 0; i < 5; i++)
        CHECK_OK(mesh_sendrecv(&d, NULL, (me + 1) % 4, &v, 1, (me + 3) % 4, &sum, 1, MESH_I32), d.error);
    CHECK_OK(mesh_barrier(&b, NULL), b.error); /* closing the first took no other off the list */
    if (me == 1) CHECK_INT(mesh_barrier(&d, "nowhere"), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_barrier(&d, NULL), MESH_ERR_ARGUMENT); /* which is told as ever */
    CHECK_INT(d.error.rank, 1);
    CHECK_OK(mesh_barrier(&b, NULL), b.error);
    check_engine(t);
    CHECK_INT(mesh_comm_close(&b), MESH_OK);
    mesh_comm_close(&d);
    check_engine(t);
}
static void test_beside(void) {
    int how;
    for (how = 0; how < 4; how++) run_world(SIM, 4, beside_rank, &how);
}

/* How long a transport waits for others as it closes: at most as long as an operation may, 30 s, a second after a failure. */
static void patience_rank(mesh_transport *t, void *ctx) {
    static const int64_t timeouts[] = {5 * SECOND, 2 * SECOND, 7 * SECOND, 100 * SECOND};
    mesh_comm c[4];
    int k;
    (void)ctx;
    CHECK_INT(mesh_transport_patience(t), 30 * SECOND);
    for (k = 0; k < 4; k++) {
        if (!open_comm(t, &c[k], "x=2", NULL, timeouts[k])) return;
        CHECK_INT(mesh_transport_patience(t), k < 2 ? 5 * SECOND : k == 2 ? 7 * SECOND : 30 * SECOND);
    }
    for (k = 0; k < 4; k++) mesh_comm_close(&c[k]);
}
static void test_patience(void) { run_world(SIM, 2, patience_rank, NULL); }

/* ---- counts and traces: what an operation moves is what its posts hold ---- */

typedef struct traced {
    mesh_trace_event event[64];
    int n;
} traced;
static void hear_trace(void *ctx, const mesh_trace_event *e) {
    traced *h = (traced *)ctx;
    if (h->n < 64) h->event[h->n++] = *e;
}
static void traced_rank(mesh_transport *t, void *ctx) {
    static noter writers[6];
    static traced heard[6];
    noter *w = &writers[t->rank];
    traced *h = &heard[t->rank];
    static float a[6][600], b[6][600];
    mesh_comm c;
    uint64_t sent = 0, received = 0, total[2] = {0, 0};
    int i, k, before;
    (void)ctx;
    memset(h, 0, sizeof *h);
    noter_make(w, t);
    w->s.base.trace = hear_trace;
    w->s.base.trace_ctx = h;
    if (!open_comm(&w->s.base, &c, "x=2,y=3", NULL, 20 * SECOND)) return;
    for (k = 0; k < 6; k++) {
        mesh_trace_event *e;
        uint64_t moved[2] = {0, 0};
        before = w->notes;
        CHECK_OK(k == 0   ? mesh_all_reduce(&c, "y", a[t->rank], b[t->rank], 100, MESH_F32, MESH_MAX)
                 : k == 1 ? mesh_broadcast(&c, "y", a[t->rank], b[t->rank], 50, MESH_F64, 1)
                 : k == 2 ? mesh_all_gather(&c, "y", a[t->rank], b[t->rank], 9, MESH_I32)
                 : k == 3 ? mesh_barrier(&c, "x")
                 : k == 4 ? mesh_reduce(&c, "y", a[t->rank], b[t->rank], 33, MESH_F32, MESH_SUM, 2)
                          : mesh_shift(&c, "y", 1, 0, a[t->rank], b[t->rank], 5, MESH_U8),
                 c.error);
        for (i = before; i < w->notes; i++) moved[w->noted[i].direction] += w->noted[i].nbytes;
        CHECK_INT(h->n, k + 1);
        e = &h->event[k];
        CHECK_INT(e->sent, moved[MESH_SEND]);
        CHECK_INT(e->received, moved[MESH_RECV]);
        CHECK_INT(e->status, MESH_OK);
        CHECK_INT(e->ranks, k == 3 ? 2 : 3);
        CHECK_INT(e->group, k == 3 ? t->rank % 3 : t->rank / 3);
        CHECK_INT(e->sequence, k == 3 ? 1 : k == 5 ? 0 : k == 4 ? 4 : k + 1);
        CHECK_STR(e->op, k == 0 ? "max" : k == 4 ? "sum" : "");
        CHECK(e->start <= e->end && e->comm_id == c.id);
        if (k != 3) total[0] += moved[0], total[1] += moved[1];
    }
    CHECK_INT(mesh_comm_bytes(&c, "y", &sent, &received), MESH_OK);
    CHECK(sent == total[MESH_SEND] && received == total[MESH_RECV]);
    CHECK_INT(mesh_comm_bytes(&c, NULL, &sent, &received), MESH_OK);
    CHECK(sent == 0 && received == 0);
    if (t->rank == 4) pause_rank(t, SECOND / 20);
    CHECK_INT(mesh_barrier(&c, t->rank == 4 ? "nowhere" : NULL), MESH_ERR_ARGUMENT);
    if (t->rank != 4 && h->n > 6) CHECK_INT(h->event[6].status, MESH_ERR_ARGUMENT);
    mesh_comm_close(&c);
    mesh_transport_detach(&w->s.base);
}
static void test_traced(void) { run_world(SIM, 6, traced_rank, NULL); }

static const test_case law_tests[] = {
    {"comm/checks", test_checks, 0},
    {"comm/unlike", test_comm_unlike, 0},
    {"comm/records", test_records, 0},
    {"comm/terms", test_terms, 0},
    {"comm/ids", test_ids, 0},
    {"comm/wrap", test_wrap, 0},
    {"comm/history", test_history, 0},
    {"comm/short_ops", test_short_ops, 0},
    {"comm/short_opening", test_short_opening, 0},
    {"comm/everything", test_everything, 0},
    {"comm/requests", test_requests, 0},
    {"comm/kept_failed", test_kept_failed, 0},
    {"comm/polled", test_polled, 0},
    {"comm/beside", test_beside, 0},
    {"comm/patience", test_patience, 0},
    {"comm/detached", test_detached, 0},
    {"comm/closed_under_way", test_closed_under_way, 0},
    {"comm/scarce", test_scarce, 0},
    {"comm/bystander_error", test_bystander_error, 0},
    {"comm/traced", test_traced, 0},
    {"comm/guarded_collectives", test_guarded_collectives, 0},
    {"redistribute/guarded", test_guarded_redistribute, 0},
};

#endif
