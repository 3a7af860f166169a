/* Device memory without a device: a transport over the simulator that keeps to what one on GPUs promises, and to no more. Its memory
   cannot be touched by the host. Posts, copies and reductions run on queues, in order, behind the caller's streams. Messages between two
   ranks of a group match in the order of issue whatever their channel, and a send ends when it is received. Nothing tells who is
   pending, and only a whole group can be canceled. The conformance suite runs on it, and so does the engine's way with such transports. */
#ifndef T_DEVICE_H
#define T_DEVICE_H

#include <sys/mman.h>

typedef struct device_memory {
    struct device_memory *next;
    unsigned char *shown, *real; /* shown: what alloc has given, where any access is a crash */
    uint64_t nbytes;
} device_memory;

enum { DEVICE_POST, DEVICE_COPY, DEVICE_REDUCE, DEVICE_ROWS, DEVICE_WAIT };

typedef struct device_item {
    struct device_item *next;
    struct device_queue *after; /* DEVICE_WAIT: until this queue has done so many */
    uint64_t number;            /* ... */
    int kind, posted, op, dtype, divide;
    mesh_ticket ticket; /* DEVICE_POST: the simulator's */
    mesh_post post;
    mesh_xfer *x; /* of the post; or x[0] to, x[1] from */
    mesh_block *block;
    mesh_rows rows;
} device_item;

typedef struct device_queue {
    struct device_queue *next;
    device_item *first, **end;
    uint64_t issued, done, failed; /* failed: the first item that did, and all after it do; 0: none */
    mesh_status status;
    mesh_error why;
} device_queue;

typedef struct device_group {
    device_queue own, *on; /* on: where it issues, its own queue or a stream */
    uint64_t channel;
} device_group;

typedef struct device {
    mesh_transport base;
    mesh_transport *inner;
    device_memory *memory;
    device_queue *queues;
    device_group world;
    device_queue stream; /* the default one. Others would be queues too */
    int happened;        /* an item has ended since progress returned */
} device;

static device *device_of(mesh_transport *t) { return (device *)(void *)t; }

/* ---- memory ---- */

static size_t device_pages(uint64_t n) { return (size_t)(n / 65536 + 1) * 65536; }

static mesh_status device_alloc(mesh_transport *t, uint64_t nbytes, unsigned flags, void **out) {
    device_memory *m = (device_memory *)malloc(sizeof *m);
    void *shown;
    (void)flags;
    if (posix_memalign(&shown, 65536, device_pages(nbytes))) return MESH_ERR_MEMORY;
    mprotect(shown, device_pages(nbytes), PROT_NONE);
    m->shown = (unsigned char *)shown;
    m->real = (unsigned char *)malloc((size_t)nbytes);
    m->nbytes = nbytes;
    m->next = device_of(t)->memory;
    device_of(t)->memory = m;
    *out = shown;
    return MESH_OK;
}

static mesh_status device_free(mesh_transport *t, void *p) {
    device_memory **at = &device_of(t)->memory, *m;
    while (*at && (*at)->shown != p) at = &(*at)->next;
    if ((m = *at) == NULL) return MESH_ERR_ARGUMENT;
    *at = m->next;
    mprotect(p, device_pages(m->nbytes), PROT_READ | PROT_WRITE);
    free(p);
    free(m->real);
    free(m);
    return MESH_OK;
}
static void device_left(mesh_transport *t) { /* of what failed, the transport's */
    while (device_of(t)->memory) device_free(t, device_of(t)->memory->shown);
}

/* Where the bytes are; NULL: not of this device. */
static void *device_real(const device *d, const void *p) {
    const unsigned char *at = (const unsigned char *)p;
    const device_memory *m = d->memory;
    while (m && !(at >= m->shown && at <= m->shown + m->nbytes)) m = m->next;
    return m ? m->real + (at - m->shown) : NULL;
}

/* ---- queues ---- */

static void device_queue_make(device *d, device_queue *q) {
    memset(q, 0, sizeof *q);
    q->end = &q->first;
    q->next = d->queues;
    d->queues = q;
}

static device_item *device_issue(device_queue *q, int kind, int nxfers) {
    device_item *i = (device_item *)calloc(1, sizeof *i);
    i->kind = kind;
    i->x = (mesh_xfer *)calloc((size_t)nxfers + 1, sizeof *i->x);
    i->block = (mesh_block *)calloc((size_t)nxfers + 1, sizeof *i->block);
    *q->end = i;
    q->end = &i->next;
    q->issued++;
    return i;
}

static void device_set_xfer(device_item *i, int k, const mesh_xfer *x, void *base) {
    i->x[k] = *x;
    i->x[k].base = base;
    if (!x->block) return;
    i->block[k] = *x->block;
    i->x[k].block = &i->block[k];
}

static void device_wait_for(device_queue *q, device_queue *after, uint64_t number) {
    device_item *i = device_issue(q, DEVICE_WAIT, 0);
    i->after = after;
    i->number = number;
}

static device_group *device_group_of(device *d, void *group) { return group ? (device_group *)group : &d->world; }

/* What a group issues stays in order when it changes queues. */
static void device_use(device_group *g, device_queue *q) {
    if (g->on != q) device_wait_for(q, g->on, g->on->issued);
    g->on = q;
}

static void device_combine(const device_item *i) {
    mesh__cursor dst = mesh__cursor_on(&i->x[0]), src = mesh__cursor_on(&i->x[1]);
    uint64_t left, n;
    for (left = i->x[0].nbytes; left; left -= n) {
        size_t count;
        n = dst.left < src.left ? dst.left : src.left;
        count = (size_t)n / mesh_dtype_bytes((mesh_dtype)i->dtype);
        if (i->divide)
            mesh__divide(i->dtype, dst.p, count, i->divide);
        else
            mesh__reduce(i->op, i->dtype, dst.p, src.p, count);
        mesh__cursor_move(&dst, n);
        mesh__cursor_move(&src, n);
    }
}

/* IN_PROGRESS, or how the item ended. */
static mesh_status device_run(device *d, device_queue *q, device_item *i) {
    mesh_status status;
    switch (i->kind) {
    case DEVICE_WAIT:
        return q->failed || i->after->done >= i->number ? MESH_OK : MESH_IN_PROGRESS;
    case DEVICE_COPY:
        if (q->failed) return MESH_OK;
        if (i->x[1].base)
            mesh__move(&i->x[1], &i->x[0]);
        else
            mesh__zero(&i->x[0]);
        return MESH_OK;
    case DEVICE_REDUCE:
        if (!q->failed) device_combine(i);
        return MESH_OK;
    case DEVICE_ROWS:
        if (!q->failed) mesh__rows_here(&i->rows);
        return MESH_OK;
    default:
        if (!i->post.count || (q->failed && !i->posted)) return MESH_OK;
        if (!i->posted && (status = d->inner->ops->post(d->inner, &i->post, &i->ticket)) != MESH_OK) return status;
        i->posted = 1;
        return d->inner->ops->test(d->inner, &i->ticket, &q->why);
    }
}

static void device_pump(device *d) {
    int ended;
    do {
        device_queue *q;
        for (ended = 0, q = d->queues; q; q = q->next)
            while (q->first) {
                device_item *i = q->first;
                mesh_status status = device_run(d, q, i);
                if (status == MESH_IN_PROGRESS) break;
                if (status != MESH_OK && !q->failed) q->failed = q->done + 1, q->status = status;
                q->done++;
                if ((q->first = i->next) == NULL) q->end = &q->first;
                free(i->x);
                free(i->block);
                free(i);
                ended = d->happened = 1;
            }
    } while (ended);
}

/* ---- the members of mesh_ops ---- */

static mesh_status device_post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    device *d = device_of(t);
    device_group *g = device_group_of(d, p->group);
    device_item *i;
    int k;
    for (k = 0; k < p->count; k++)
        if (p->xfer[k].nbytes && !device_real(d, p->xfer[k].base)) return MESH_ERR_ARGUMENT;
    i = device_issue(g->on, DEVICE_POST, p->count);
    i->post = *p;
    i->post.group = NULL;
    i->post.channel = g->channel;
    i->post.xfer = i->x;
    for (k = i->post.count = 0; k < p->count; k++) /* a message of no bytes is none */
        if (p->xfer[k].nbytes) device_set_xfer(i, i->post.count++, &p->xfer[k], device_real(d, p->xfer[k].base));
    ticket->impl = g->on;
    ticket->id = g->on->issued;
    return MESH_OK;
}

static mesh_status device_test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    device_queue *q = (device_queue *)ticket->impl;
    device_pump(device_of(t));
    if (q->done < ticket->id) return MESH_IN_PROGRESS;
    if (!q->failed || ticket->id < q->failed) return MESH_OK;
    *why = q->why;
    return q->status;
}

static int device_pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    (void)t, (void)ticket, (void)ranks, (void)cap;
    return 0;
}

static mesh_status device_cancel(mesh_transport *t, mesh_ticket *ticket) {
    (void)t, (void)ticket;
    return MESH_OK;
}

static mesh_status device_progress(mesh_transport *t, int64_t deadline) {
    device *d = device_of(t);
    mesh_status status;
    device_pump(d);
    status = d->inner->ops->progress(d->inner, d->happened ? 0 : deadline);
    device_pump(d);
    d->happened = 0;
    return status;
}

static int64_t device_now(mesh_transport *t) { return device_of(t)->inner->ops->now(device_of(t)->inner); }
static mesh_status device_control_send(mesh_transport *t, int rank, int kind, const void *data, size_t n) {
    return device_of(t)->inner->ops->control_send(device_of(t)->inner, rank, kind, data, n);
}
static mesh_status device_control_poll(mesh_transport *t, mesh_control *out) {
    return device_of(t)->inner->ops->control_poll(device_of(t)->inner, out);
}
static mesh_status device_close(mesh_transport *t, mesh_error *why) {
    mesh_transport_detach(t);
    return device_of(t)->inner->ops->close(device_of(t)->inner, why);
}

static mesh_status device_group_open(mesh_transport *t, void *parent, uint32_t id, const mesh *group, int color,
                                     int key, int64_t deadline, void **out, mesh_error *why) {
    device_group *g = (device_group *)malloc(sizeof *g);
    (void)parent, (void)group, (void)color, (void)key, (void)deadline, (void)why;
    device_queue_make(device_of(t), &g->own);
    g->on = &g->own;
    g->channel = (uint64_t)id << 32;
    *out = g;
    return MESH_OK;
}

/* Its queue stays, for those who wait for it, to the device's end. */
static mesh_status device_group_close(mesh_transport *t, void *group) {
    (void)t, (void)group;
    return MESH_OK;
}

static void device_queue_abort(device *d, device_queue *q, const char *why) {
    if (q->failed || !q->first) return;
    q->failed = q->done + 1;
    q->status = MESH_ERR_CANCELED;
    mesh__fail(&q->why, MESH_ERR_CANCELED, -1, "%s", why);
    if (q->first->posted) d->inner->ops->cancel(d->inner, &q->first->ticket);
}

static mesh_status device_group_abort(mesh_transport *t, void *group, const char *why) {
    device_group *g = device_group_of(device_of(t), group);
    device_queue_abort(device_of(t), &g->own, why);
    device_queue_abort(device_of(t), g->on, why);
    return MESH_OK;
}

static mesh_xfer device_block(const mesh_block *block, uint64_t nbytes) {
    mesh_xfer x;
    memset(&x, 0, sizeof x);
    x.nbytes = nbytes;
    x.block = block;
    return x;
}

static mesh_status device_copy(mesh_transport *t, void *group, void *dst, const mesh_block *db, const void *src,
                               const mesh_block *sb, uint64_t nbytes) {
    device *d = device_of(t);
    mesh_xfer to = device_block(db, nbytes), from = device_block(sb, nbytes);
    void *dst_real = device_real(d, dst), *src_real = device_real(d, src);
    device_item *i;
    if (nbytes && !dst_real && !src_real) return MESH_ERR_ARGUMENT;
    i = device_issue(device_group_of(d, group)->on, DEVICE_COPY, 2);
    device_set_xfer(i, 0, &to, dst_real ? dst_real : dst);
    device_set_xfer(i, 1, &from, src_real ? src_real : (void *)(uintptr_t)src);
    return MESH_OK;
}

static mesh_status device_reduce(mesh_transport *t, void *group, int op, int dtype, void *dst, const mesh_block *db,
                                 const void *src, const mesh_block *sb, uint64_t count, int divide) {
    device *d = device_of(t);
    uint64_t nbytes = count * mesh_dtype_bytes((mesh_dtype)dtype);
    mesh_xfer to = device_block(db, nbytes), from = device_block(sb, nbytes);
    void *dst_real = device_real(d, dst), *src_real = divide ? dst_real : device_real(d, src);
    device_item *i;
    if (count && (!dst_real || !src_real)) return MESH_ERR_ARGUMENT;
    i = device_issue(device_group_of(d, group)->on, DEVICE_REDUCE, 2);
    i->op = op, i->dtype = dtype, i->divide = divide;
    device_set_xfer(i, 0, &to, dst_real);
    device_set_xfer(i, 1, divide ? &to : &from, src_real);
    return MESH_OK;
}

static device_queue *device_stream(device *d, void *stream) { return stream ? (device_queue *)stream : &d->stream; }

static mesh_status device_rows(mesh_transport *t, void *group, void *stream, const mesh_rows *r, mesh_error *why) {
    device *d = device_of(t);
    device_item *i;
    (void)group, (void)why;
    if (!r->rows) return MESH_OK;
    i = device_issue(device_stream(d, stream), DEVICE_ROWS, 0);
    i->rows = *r;
    i->rows.to.base = device_real(d, r->to.base);
    i->rows.from.base = device_real(d, r->from.base);
    i->rows.with.base = device_real(d, r->with.base);
    i->rows.index = (const int64_t *)device_real(d, r->index);
    i->rows.weight = (const float *)device_real(d, r->weight);
    i->rows.word = (float *)device_real(d, r->word);
    i->rows.target = (const int32_t *)device_real(d, r->target);
    i->rows.row_scale = (const float *)device_real(d, r->row_scale);
    return MESH_OK;
}

static mesh_status device_fence(mesh_transport *t, void *group, void *stream, int direction) {
    device_group *g = device_group_of(device_of(t), group);
    device_queue *q = device_stream(device_of(t), stream);
    device_use(g, direction == MESH_FENCE_ON ? q : &g->own);
    if (direction == MESH_FENCE_AFTER) device_wait_for(&g->own, q, q->issued);
    return MESH_OK;
}

static mesh_status device_stream_wait(mesh_transport *t, void *group, const mesh_ticket *ticket, void *stream) {
    (void)group;
    device_wait_for(device_stream(device_of(t), stream), (device_queue *)ticket->impl, ticket->id);
    return MESH_OK;
}

/* ---- tests ---- */

typedef struct device_run_desc {
    rank_main f;
    void *ctx;
} device_run_desc;

static void device_rank(mesh_transport *inner, void *ctx) {
    static const mesh_ops ops = {sizeof(mesh_ops),
                                 MESH_ABI,
                                 "device",
                                 device_post,
                                 device_test,
                                 device_pending,
                                 device_cancel,
                                 device_progress,
                                 device_now,
                                 device_control_send,
                                 device_control_poll,
                                 device_close,
                                 device_group_open,
                                 device_group_close,
                                 device_group_abort,
                                 NULL,
                                 device_copy,
                                 device_reduce,
                                 device_fence,
                                 device_alloc,
                                 device_free,
                                 NULL,
                                 NULL,
                                 device_stream_wait,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 device_rows,
                                 NULL};
    const device_run_desc *run = (const device_run_desc *)ctx;
    device d;
    device_queue *q;
    memset(&d, 0, sizeof d);
    d.base = *inner;
    d.base.ops = &ops;
    d.base.engine = NULL;
    d.base.caps = MESH_CAP_DEVICE | MESH_CAP_ORDERED | MESH_CAP_STRIDED;
    d.inner = inner;
    device_queue_make(&d, &d.stream);
    device_queue_make(&d, &d.world.own);
    d.world.on = &d.world.own;
    d.world.channel = UINT64_C(1) << 32;
    run->f(&d.base, run->ctx);
    mesh_transport_detach(&d.base);
    CHECK(!d.memory); /* all was given back */
    while ((q = d.queues) != NULL) {
        d.queues = q->next;
        CHECK(!q->first || q->failed);
        if (q != &d.stream && q != &d.world.own) free(q); /* the first member of its group */
    }
}

static void device_world(int ranks, rank_main f, void *ctx) {
    device_run_desc run;
    mesh_sim_desc d = sim_desc(ranks);
    mesh_error err;
    d.eager_bytes = 1; /* a send waits for its receive */
    run.f = f;
    run.ctx = ctx;
    CHECK_OK(mesh_sim_run(&d, device_rank, &run, &err), err);
    test_failures += conformance_failures;
}

/* What a program does with the device by itself, behind what is on the default stream. */
static void device_move(void *at, void *host, void *there, size_t nbytes, int to_host) {
    device *d = device_of((mesh_transport *)at);
    void *real = device_real(d, there);
    device_pump(d);
    while (d->stream.first) device_progress(&d->base, device_now(&d->base) + SECOND / 100);
    CHECK(real != NULL);
    memcpy(to_host ? host : real, to_host ? real : host, nbytes);
}

static void test_device_ring(void) {
    static const int sizes[] = {1, 2, 3, 4, 6};
    int i, many = 10;
    ring_move = device_move;
    for (i = 0; i < 5; i++) device_world(sizes[i], around_rank, &many);
}

static void test_device_experts(void) {
    static const int sizes[] = {1, 2, 3, 4, 6, 8};
    int i, many = 12;
    for (i = 0; i < 6; i++) device_world(sizes[i], experts_rank, &many);
}

/* A moe that is closed with work on its memory under way. */
static void device_moe_rank(mesh_transport *t, void *ctx) {
    enum { TOKENS = 16, WIDTH = 64 };
    int32_t asked[TOKENS];
    float host[TOKENS * WIDTH];
    mesh_moe_desc d = MESH_ZERO;
    mesh_moe_rows rows;
    mesh_moe m;
    mesh_comm c;
    there_list w;
    int i;
    void *tokens;
    (void)ctx;
    if (!open_comm(t, &c, "ep=-1", NULL, 20 * SECOND)) return;
    for (i = 0; i < TOKENS; i++) asked[i] = i % t->size;
    for (i = 0; i < TOKENS * WIDTH; i++) host[i] = (float)(i + t->rank * 10000);
    d.experts = t->size, d.top_k = 1, d.width = WIDTH, d.dtype = MESH_F32, d.max_tokens = TOKENS;
    CHECK_OK(mesh_moe_open(&m, &c, "ep", &d), c.error);
    w.c = &c, w.n = 0;
    tokens = there_out(&w, host, sizeof host);
    CHECK_OK(mesh_moe_dispatch(&m, 0, tokens, TOKENS, (const int32_t *)there_in(&w, asked, sizeof asked), &rows), c.error);
    CHECK_OK(mesh_moe_combine(&m, 0, rows.data, NULL, tokens), c.error);
    CHECK_INT(mesh_moe_close(&m), MESH_OK);
    for (i = 0; i < TOKENS * WIDTH; i++) host[i] = -1;
    there_back(&w);
    for (i = 0; i < TOKENS * WIDTH; i++) CHECK(host[i] == (float)(i + t->rank * 10000));
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_device_moe(void) { device_world(4, device_moe_rank, NULL); }

static void test_device_loss(void) {
    static const int sizes[] = {1, 2, 3, 4, 6};
    int i, many = 12;
    for (i = 0; i < 5; i++) device_world(sizes[i], loss_rank, &many);
}

static void test_device_conformance(void) {
    static const int sizes[] = {1, 2, 3, 5, 8};
    size_t large = 9001;
    int i;
    for (i = 0; i < 5; i++) device_world(sizes[i], conform_rank, &large);
}

static void test_device_redistribute(void) {
    static const int sizes[] = {1, 2, 3, 4, 6, 8};
    int i, problems = 80;
    for (i = 0; i < 6; i++) device_world(sizes[i], redistribute_rank, &problems);
}

static void test_device_checkpoint(void) { states_there_and_back(device_world, 24, 78); }

/* Of each element of a part: where its slab has it; no slab is of more than there is room for. */
static void test_device_cuts(void) {
    test_random r = random_from(5);
    int round, d;
    for (round = 0; round < 3000 && !test_failures; round++) {
        static const int64_t sizes[] = {1, 2, 3, 7, 100, 1500, 3001};
        mesh_box box;
        int64_t strides[MESH_MAX_DIMS], order[MESH_MAX_DIMS], total = 1, step = 1, e, k;
        size_t elem = (size_t)1 << random_below(&r, 4);
        mesh__strip w;
        mesh__slab s;
        memset(&box, 0, sizeof box);
        box.ndim = 1 + random_below(&r, 4);
        for (d = 0; d < box.ndim; d++) {
            box.shape[d] = sizes[random_below(&r, 7)], total *= box.shape[d], order[d] = d;
            k = random_below(&r, d + 1);
            order[d] = order[k], order[k] = d;
        }
        for (d = 0; d < box.ndim; d++) strides[order[d]] = step, step *= box.shape[order[d]] + random_below(&r, 2);
        w = mesh__strip_of(&box, strides, box.shape, 0);
        e = (int64_t)(random_next(&r) % (uint64_t)total);
        s = mesh__slab_at(&w, NULL, elem, e);
        CHECK(e >= s.first && e < s.first + s.count && s.first + s.count <= total);
        CHECK(s.count * (int64_t)elem <= MESH__PACKED_BYTES);
        for (k = 0; k < 40; k++) { /* some elements of it */
            int64_t in = (int64_t)(random_next(&r) % (uint64_t)s.count), at = in, all = s.first + in, place = 0, want = 0;
            for (d = s.block.ndim - 1; d >= 0; d--)
                place += at % s.block.dim[d].count * s.block.dim[d].stride, at /= s.block.dim[d].count;
            for (d = box.ndim - 1; d >= 0; d--) want += all % box.shape[d] * strides[d], all /= box.shape[d];
            CHECK_INT((int64_t)(uintptr_t)s.base + place, want * (int64_t)elem);
        }
    }
}

/* Elements that do not lie side by side, in more than one slab; floats of another dtype; a tensor of one dim. */
static void device_slabs_rank(mesh_transport *t, void *ctx) {
    enum { ROWS = 1500, COLS = 801, LONG = 1500001 };
    static const int64_t shape[2] = {ROWS, COLS}, length[1] = {LONG}, skewed[2] = {1, ROWS + 3}, every_other[1] = {2},
                         rows[2] = {1000, 1};
    mesh_comm c;
    mesh_named list[2];
    size_t nbytes[2] = {(size_t)(ROWS + 3) * COLS * 8, (size_t)LONG * 4};
    unsigned char *host[2];
    int i, what;
    int64_t e;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (what = 0; what < 2; what++) { /* load: the second tensor as f16; rows apart from each other */
        memset(list, 0, sizeof list);
        list[0].name = "column-major", list[1].name = "long";
        CHECK_OK(mesh_tensor_make(&list[0].tensor, &c.on, "x:R", what ? MESH_F64 : MESH_F32, 2, shape, &c.error), c.error);
        CHECK_OK(mesh_tensor_make(&list[1].tensor, &c.on, "x:R", MESH_F16, 1, length, &c.error), c.error);
        list[0].tensor.strides = what ? rows : skewed;
        if (!what) list[1].tensor.strides = every_other;
        nbytes[0] = what ? (size_t)ROWS * 1000 * 8 : (size_t)(ROWS + 3) * COLS * 4;
        for (i = 0; i < 2; i++) {
            host[i] = (unsigned char *)calloc(1, nbytes[i] + 8);
            CHECK_OK(mesh_alloc(t, nbytes[i] + 8, &list[i].tensor.data, &c.error), c.error);
        }
        for (e = 0; e < ROWS * COLS && !what; e++) ((float *)(void *)host[0])[e % COLS * (ROWS + 3) + e / COLS] = (float)e;
        for (e = 0; e < LONG && !what; e++) ((uint16_t *)(void *)host[1])[2 * e] = mesh__f16_of_f32((float)(e % 2000));
        for (i = 0; i < 2; i++) CHECK_OK(mesh_copy(&c, list[i].tensor.data, host[i], nbytes[i]), c.error);
        if (what) {
            mesh_checkpoint_desc d = MESH_ZERO;
            int64_t wrong = 0;
            d.convert = 1;
            CHECK_OK(mesh_checkpoint_load(&c, checkpoint_folder, list, 2, &d), c.error);
            for (i = 0; i < 2; i++) CHECK_OK(mesh_copy(&c, host[i], list[i].tensor.data, nbytes[i]), c.error);
            for (e = 0; e < ROWS * 1000; e++) {
                double want = e % 1000 < COLS ? (double)(float)(e / 1000 * COLS + e % 1000) : 0;
                wrong += ((double *)(void *)host[0])[e] != want;
            }
            for (e = 0; e < LONG; e++) wrong += ((uint16_t *)(void *)host[1])[e] != mesh__f16_of_f32((float)(e % 2000));
            CHECK_INT(wrong, 0);
        } else {
            CHECK_OK(mesh_checkpoint_save(&c, checkpoint_folder, list, 2, NULL), c.error);
        }
        for (i = 0; i < 2; i++) {
            CHECK_OK(mesh_free(t, list[i].tensor.data, &c.error), c.error);
            free(host[i]);
        }
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_device_slabs(void) {
    folder_new();
    device_world(2, device_slabs_rank, NULL);
    folder_end();
}

/* A rank that does not come: the call says so, and who, where it does not say that another rank waits elsewhere. */
static void device_absent_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {1000};
    static const char *const said[] = {"mesh_broadcast_object", "mesh_check_replicas", "mesh_checkpoint_save"};
    int what = *(int *)ctx, one = 1;
    mesh_comm c;
    mesh_named x;
    mesh_object o = MESH_ZERO;
    mesh_status status;
    if (!open_comm(t, &c, "x=-1", NULL, SECOND)) return;
    memset(&x, 0, sizeof x);
    x.name = "x";
    CHECK_OK(mesh_tensor_make(&x.tensor, &c.on, "x:R", MESH_F32, 1, shape, &c.error), c.error);
    CHECK_OK(mesh_alloc(t, 4000, &x.tensor.data, &c.error), c.error);
    if (t->rank == 0) o.data = &one, o.nbytes = sizeof one;
    if (t->rank != 2) {
        status = what == 0   ? mesh_broadcast_object(&c, "x", &o, 0)
                 : what == 1 ? mesh_check_replicas(&c, &x, 1)
                             : mesh_checkpoint_save(&c, checkpoint_folder, &x, 1, NULL);
        CHECK_INT(status, MESH_ERR_TIMEOUT);
        CHECK_HAS(c.error.text, said[what]);
        CHECK_HAS(c.error.text, "deadline of 1000 ms passed");
        if (what || t->rank == 0) CHECK_INT(c.error.rank, 2);
    }
    while (!c.failed) mesh_progress(t, mesh_now(t) + SECOND / 100);
    mesh_object_free(&c, &o);
    mesh_free(t, x.tensor.data, &c.error);
    mesh_comm_close(&c);
    device_left(t);
}
static void test_device_absent(void) {
    int what;
    folder_new();
    for (what = 0; what < 3; what++) device_world(3, device_absent_rank, &what);
    folder_end();
}

/* Replicas in a device's memory: alike, and where one rank's last element differs; parts of more than a buffer, and strided ones. A norm has no
   kernels here. */
static void device_replicas_rank(mesh_transport *t, void *ctx) {
    enum { LONG = 2300000 };
    static const int64_t length[1] = {LONG}, small[2] = {3, 5}, strides[2] = {12, 2};
    int what;
    (void)ctx;
    for (what = 0; what < 4; what++) {
        mesh_comm c;
        mesh_named list[2];
        float *host = (float *)calloc(LONG, sizeof *host);
        double norm;
        int i;
        memset(list, 0, sizeof list);
        if (!open_comm(t, &c, "a=2,b=-1", NULL, 20 * SECOND)) return;
        list[0].name = "long", list[1].name = "small";
        CHECK_OK(mesh_tensor_make(&list[0].tensor, &c.on, "b:R", MESH_F32, 1, length, &c.error), c.error);
        CHECK_OK(mesh_tensor_make(&list[1].tensor, &c.on, "a:S(0) b:R", MESH_F32, 2, small, &c.error), c.error);
        list[1].tensor.strides = strides;
        for (i = 0; i < 2; i++) {
            CHECK_OK(mesh_alloc(t, LONG * sizeof *host, &list[i].tensor.data, &c.error), c.error);
            if (what == 2 && i && t->rank == 1) host[1] = 7; /* between elements */
            if (what == 1 && !i && t->rank == 1) host[LONG - 1] = 7;
            if (what == 3 && i && t->rank == 1) host[8] = 7;
            CHECK_OK(mesh_copy(&c, list[i].tensor.data, host, LONG * sizeof *host), c.error);
        }
        if (what == 0 || what == 2) {
            CHECK_OK(mesh_check_replicas(&c, list, 2), c.error);
        } else {
            CHECK_INT(mesh_check_replicas(&c, list, 2), MESH_ERR_MISMATCH);
            CHECK_HAS(c.error.text, what == 1 ? "\"long\" has other bits on rank 1 than on rank 0" : "\"small\" has other bits on rank 1 than on rank 0");
        }
        if (what == 0) {
            CHECK_INT(mesh_norm(&c, &list[0].tensor, 1, &norm), MESH_ERR_UNSUPPORTED);
            CHECK_HAS(c.error.text, "mesh_norm: tensor 0: the transport (device) has memory that is not the host's, and no kernels for it");
        }
        for (i = 0; i < 2; i++) mesh_free(t, list[i].tensor.data, &c.error);
        free(host);
        mesh_comm_close(&c);
    }
    device_left(t);
}
static void test_device_replicas(void) { device_world(4, device_replicas_rank, NULL); }

static void device_messages_wrong_rank(mesh_transport *t, void *ctx) {
    messages_there_wrong_rank(t, ctx);
    device_left(t);
}
static void test_device_messages(void) {
    static const int sizes[] = {1, 2, 3, 4, 5};
    int i;
    for (i = 0; i < 5; i++) device_world(sizes[i], messages_there_rank, NULL);
    for (i = 0; i < 5; i++) device_world(2, device_messages_wrong_rank, &i);
}

static const test_case device_tests[] = {
    {"device/cuts", test_device_cuts, 0},
    {"device/ring", test_device_ring, 0},
    {"device/experts", test_device_experts, 0},
    {"device/moe_closed", test_device_moe, 0},
    {"device/loss", test_device_loss, 0},
    {"device/messages", test_device_messages, 0},
    {"device/replicas", test_device_replicas, 0},
    {"device/absent", test_device_absent, 0},
    {"device/checkpoint", test_device_checkpoint, 0},
    {"device/slabs", test_device_slabs, 0},
    {"device/conformance", test_device_conformance, 0},
    {"device/redistribute", test_device_redistribute, 0},
};

#endif
