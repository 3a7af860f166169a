/* The bare transport struct: posts, waits, cancels, control, close. Part of tests/conformance.h. */
#ifndef CONFORMANCE_TRANSPORT_H
#define CONFORMANCE_TRANSPORT_H

enum { CONF_CHANNEL = 1 }; /* point to point of no comm: ids of comms begin at 1 << 8 */

static uint64_t conf_channel(int k) { return (uint64_t)(CONF_CHANNEL + k) << 32; }

static mesh_xfer conf_xfer(int direction, int rank, void *base, uint64_t nbytes, const mesh_block *block) {
    mesh_xfer x;
    memset(&x, 0, sizeof x);
    x.direction = direction;
    x.rank = x.index = rank;
    x.base = base;
    x.nbytes = nbytes;
    x.block = block;
    return x;
}

static mesh_status conf_post(mesh_transport *t, int channel, uint64_t check, const mesh_xfer *x, int count,
                             mesh_ticket *ticket) {
    mesh_post p;
    memset(&p, 0, sizeof p);
    p.channel = conf_channel(channel);
    p.check = check;
    p.xfer = x;
    p.count = count;
    return t->ops->post(t, &p, ticket);
}

/* Progress until the ticket ends, at most 20 s on the transport's clock. IN_PROGRESS: it did not. */
static mesh_status conf_finish(mesh_transport *t, mesh_ticket *ticket) {
    int64_t limit = t->ops->now(t) + INT64_C(20000000000);
    mesh_error why;
    for (;;) {
        mesh_status status = t->ops->test(t, ticket, &why);
        if (status != MESH_IN_PROGRESS) return status;
        if (t->ops->now(t) > limit) return MESH_IN_PROGRESS;
        t->ops->progress(t, limit);
    }
}

/* Progress for some rounds, so that what can happen does. */
static void conf_linger(mesh_transport *t, int64_t ns) {
    int64_t limit = t->ops->now(t) + ns;
    while (t->ops->now(t) < limit) t->ops->progress(t, limit);
}

/* ---- memory of operations ---- */

/* Memory for the buffers of operations, as the host fills and reads it. Where a transport's memory is not the host's (MESH_CAP_DEVICE)
   each piece has a twin there: conf_at is what an operation is given for a pointer of the host's, conf_up brings every piece to its
   twin, before the operation; conf_down brings it back, after it. Elsewhere conf_at is the pointer itself and the other two do nothing. */
typedef struct conf_piece {
    struct conf_piece *next;
    unsigned char *host, *twin;
    size_t nbytes;
} conf_piece;

typedef struct conf_memory {
    mesh_transport *t;
    mesh_comm *comm; /* NULL: of the bare transport */
    conf_piece *first;
} conf_memory;

static conf_memory conf_memory_of(mesh_transport *t, mesh_comm *comm) {
    conf_memory m;
    m.t = t;
    m.comm = comm;
    m.first = NULL;
    return m;
}

static unsigned char *conf_new(conf_memory *m, size_t nbytes) {
    mesh_transport *t = m->t;
    unsigned char *host = (unsigned char *)malloc(nbytes);
    conf_piece *piece;
    void *twin = NULL;
    if (!conf_has(t, MESH_CAP_DEVICE)) return host;
    if (m->comm)
        CONFORM_CALL(mesh_alloc(m->comm->transport, nbytes, &twin, &m->comm->error), m->comm);
    else
        CONFORM(t->ops->alloc(t, nbytes, MESH_ALLOC_BUFFER, &twin) == MESH_OK, "");
    piece = (conf_piece *)malloc(sizeof *piece);
    piece->next = m->first;
    piece->host = host;
    piece->twin = (unsigned char *)twin;
    piece->nbytes = nbytes;
    m->first = piece;
    return host;
}

static void conf_delete(conf_memory *m, void *host) {
    mesh_transport *t = m->t;
    conf_piece **at = &m->first, *piece;
    while (*at && (*at)->host != host) at = &(*at)->next;
    if ((piece = *at) != NULL) {
        *at = piece->next;
        if (m->comm)
            CONFORM_CALL(mesh_free(m->comm->transport, piece->twin, &m->comm->error), m->comm);
        else
            CONFORM(t->ops->free(t, piece->twin) == MESH_OK, "");
        free(piece);
    }
    free(host);
}

/* NULL stays NULL. */
static unsigned char *conf_at(const conf_memory *m, const void *p) {
    unsigned char *host = (unsigned char *)(uintptr_t)p;
    const conf_piece *piece = m->first;
    if (!p || !m->first) return host;
    while (piece && !(host >= piece->host && host <= piece->host + piece->nbytes)) piece = piece->next;
    if (piece) return piece->twin + (host - piece->host);
    conformance_fail(m->t, __FILE__, __LINE__, "an operation's buffer is the suite's own memory", "");
    return NULL;
}

static void conf_copy(const conf_memory *m, void *dst, const void *src, size_t nbytes) {
    mesh_transport *t = m->t;
    mesh_ticket mark;
    if (m->comm) {
        CONFORM_CALL(mesh_copy(m->comm, dst, src, nbytes), m->comm);
        return;
    }
    CONFORM(t->ops->copy(t, NULL, dst, NULL, src, NULL, nbytes) == MESH_OK, "");
    CONFORM(conf_post(t, 0, 0, NULL, 0, &mark) == MESH_OK, "a mark");
    CONFORM(conf_finish(t, &mark) == MESH_OK, "a mark ends");
}

static void conf_up(const conf_memory *m) {
    const conf_piece *piece;
    for (piece = m->first; piece; piece = piece->next) conf_copy(m, piece->twin, piece->host, piece->nbytes);
}

static void conf_down(const conf_memory *m) {
    const conf_piece *piece;
    for (piece = m->first; piece; piece = piece->next) conf_copy(m, piece->host, piece->twin, piece->nbytes);
}

/* ---- what it must do ---- */

/* Control messages as signals between two ranks: what is said here is heard after all that was said before. */
static void conf_tell(mesh_transport *t, int rank, unsigned char what) {
    t->ops->control_send(t, rank, MESH_EVENT_MESSAGE, &what, 1);
}

static int conf_hear(mesh_transport *t, int rank, int kind, unsigned char what) {
    int64_t limit = t->ops->now(t) + INT64_C(20000000000);
    mesh_control m;
    for (;;) {
        while (t->ops->control_poll(t, &m) == MESH_OK)
            if (m.kind == kind && m.rank == rank && (kind != MESH_EVENT_MESSAGE || m.data[0] == what)) return 1;
        if (t->ops->now(t) > limit) return 0;
        t->ops->progress(t, limit);
    }
}

static unsigned char conf_byte(uint64_t salt, uint64_t i) {
    return (unsigned char)((salt * 31 + i * 7 + i / 251) & 255);
}

static void conf_fill(unsigned char *p, uint64_t n, uint64_t salt) {
    uint64_t i;
    for (i = 0; i < n; i++) p[i] = conf_byte(salt, i);
}

static int conf_same(const unsigned char *p, uint64_t n, uint64_t salt) {
    uint64_t i;
    for (i = 0; i < n; i++)
        if (p[i] != conf_byte(salt, i)) return 0;
    return 1;
}

/* Messages of every size between ranks 0 and 1, both ways at once; nothing beyond the end is touched. */
static void conf_sizes(mesh_transport *t) {
    static const uint64_t sizes[] = {0, 1, 7, 64, 4096, 16384, 16385, 65537, 1000003, 5000000};
    int k, other = 1 - t->rank;
    for (k = 0; k < (int)(sizeof sizes / sizeof sizes[0]); k++) {
        uint64_t n = sizes[k];
        conf_memory m = conf_memory_of(t, NULL);
        unsigned char *out = conf_new(&m, n + 64), *in = conf_new(&m, n + 64);
        mesh_xfer x[2];
        mesh_ticket ticket;
        int i, intact = 1;
        conf_fill(out, n, (uint64_t)t->rank + 1);
        memset(in, 0xee, n + 64);
        conf_up(&m);
        x[0] = conf_xfer(MESH_SEND, other, conf_at(&m, out), n, NULL);
        x[1] = conf_xfer(MESH_RECV, other, conf_at(&m, in), n, NULL);
        CONFORM(conf_post(t, 0, 5, x, 2, &ticket) == MESH_OK, "");
        CONFORM(conf_finish(t, &ticket) == MESH_OK, "a message of any size arrives");
        conf_down(&m);
        CONFORM(conf_same(in, n, (uint64_t)other + 1), "with the bytes that were sent");
        for (i = 0; i < 64; i++) intact &= in[n + (uint64_t)i] == 0xee;
        CONFORM(intact, "and nothing beyond");
        conf_delete(&m, out);
        conf_delete(&m, in);
    }
}

/* FIFO within a channel, small and large mixed; a second channel is independent, where posts do not run in order. */
static void conf_order(mesh_transport *t) {
    enum { N = 12, BIG = 40000 };
    static const int sizes[3] = {8, BIG, 100};
    conf_memory m = conf_memory_of(t, NULL);
    mesh_ticket ticket[N], s;
    unsigned char *buf = conf_new(&m, N * BIG), *side = conf_new(&m, 16), *pair = conf_new(&m, 16);
    mesh_xfer x, two[2];
    int i, pass, side_first = t->rank == 1 && !conf_has(t, MESH_CAP_ORDERED);
    int way = t->rank == 0 ? MESH_SEND : MESH_RECV, other = 1 - t->rank;
    memset(buf, 0, N * BIG);
    memset(side, 0, 16);
    memset(pair, 0, 16);
    for (i = 0; i < N && t->rank == 0; i++) conf_fill(buf + i * BIG, (uint64_t)sizes[i % 3], (uint64_t)i + 50);
    if (t->rank == 0) conf_fill(side, 16, 77);
    for (i = 0; i < 2 && t->rank == 0; i++) conf_fill(pair + 8 * i, 8, (uint64_t)(90 + i));
    conf_up(&m);
    for (pass = 0; pass < 2; pass++) {
        if (pass == side_first) {
            for (i = 0; i < N; i++) {
                x = conf_xfer(way, other, conf_at(&m, buf + i * BIG), (uint64_t)sizes[i % 3], NULL);
                CONFORM(conf_post(t, 1, 9, &x, 1, &ticket[i]) == MESH_OK, "");
            }
        } else {
            x = conf_xfer(way, other, conf_at(&m, side), 16, NULL);
            CONFORM(conf_post(t, 2, 9, &x, 1, &s) == MESH_OK, "");
            CONFORM(conf_finish(t, &s) == MESH_OK, "a channel passes another that waits");
        }
    }
    for (i = 0; i < 2; i++)
        two[i] = conf_xfer(way, other, conf_at(&m, pair + 8 * i), 8, NULL); /* within one post too */
    CONFORM(conf_post(t, 9, 9, two, 2, &s) == MESH_OK, "");
    CONFORM(conf_finish(t, &s) == MESH_OK, "");
    for (i = 0; i < N; i++) CONFORM(conf_finish(t, &ticket[i]) == MESH_OK, "messages of a channel match in order");
    conf_down(&m);
    CONFORM(conf_same(pair, 8, 90) && conf_same(pair + 8, 8, 91), "the xfers of a post match in order");
    CONFORM(conf_same(side, 16, 77), "");
    for (i = 0; i < N && t->rank == 1; i++)
        CONFORM(conf_same(buf + i * BIG, (uint64_t)sizes[i % 3], (uint64_t)i + 50),
                "messages of a channel match in order");
    conf_delete(&m, buf);
    conf_delete(&m, side);
    conf_delete(&m, pair);
}

/* A column of a matrix to a row of planes: strided on both sides, and what lies between is left alone. */
static void conf_strided(mesh_transport *t) {
    enum { ROWS = 300, ROW = 96, RUN = 12, GUARD = 0xcd };
    conf_memory memory = conf_memory_of(t, NULL);
    unsigned char *m = conf_new(&memory, ROWS * ROW);
    mesh_block b;
    mesh_xfer x;
    mesh_ticket ticket;
    int i, k, good = 1;
    memset(&b, 0, sizeof b);
    b.run = RUN;
    b.ndim = 2;
    if (t->rank == 0) { /* rows 0..299, bytes 24..35 */
        b.dim[0].count = ROWS / 3, b.dim[0].stride = 3 * ROW;
        b.dim[1].count = 3, b.dim[1].stride = ROW;
        for (i = 0; i < ROWS * ROW; i++) m[i] = (unsigned char)(i % ROW == 24 ? i / ROW : i * 3);
        conf_up(&memory);
        x = conf_xfer(MESH_SEND, 1, conf_at(&memory, m + 24), ROWS * RUN, &b);
        CONFORM(conf_post(t, 3, 1, &x, 1, &ticket) == MESH_OK, "");
        CONFORM(conf_finish(t, &ticket) == MESH_OK, "");
    } else {
        memset(m, GUARD, ROWS * ROW);
        b.dim[0].count = ROWS / 2, b.dim[0].stride = 2 * ROW;
        b.dim[1].count = 2, b.dim[1].stride = 48;
        conf_up(&memory);
        x = conf_xfer(MESH_RECV, 0, conf_at(&memory, m + 4), ROWS * RUN, &b);
        CONFORM(conf_post(t, 3, 1, &x, 1, &ticket) == MESH_OK, "");
        memset(&b, 0x77, sizeof b); /* read during post only */
        CONFORM(conf_finish(t, &ticket) == MESH_OK, "");
        conf_down(&memory);
        for (i = 0; i < ROWS; i++)
            for (k = 0; k < RUN; k++) {
                unsigned char *at = m + i / 2 * 2 * ROW + i % 2 * 48 + 4 + k;
                int from = i * ROW + 24 + k;
                good &= *at == (unsigned char)(from % ROW == 24 ? from / ROW : from * 3);
                *at = GUARD;
            }
        CONFORM(good, "strided blocks arrive in their places");
        for (i = 0, good = 1; i < ROWS * ROW; i++) good &= m[i] == GUARD;
        CONFORM(good, "and nothing between them is touched");
    }
    conf_delete(&memory, m);
}

/* A receive is not complete, and its peer is pending, until the peer has sent; one message completes one receive. Where posts run in
   order, the second one is posted when the first has ended: what asks for an end may be behind all that was posted. */
static void conf_unsent(mesh_transport *t) {
    conf_memory m = conf_memory_of(t, NULL);
    int *a = (int *)(void *)conf_new(&m, 2 * sizeof(int)), i, k, ranks[8], n, posted = 0;
    mesh_ticket ticket[2];
    mesh_xfer x;
    mesh_error why;
    a[0] = t->rank ? 4711 : 0;
    a[1] = t->rank ? 4712 : 0;
    conf_up(&m);
    for (k = 0; k < 2; k++) {
        if (t->rank == 1) {
            CONFORM(conf_hear(t, 0, MESH_EVENT_MESSAGE, (unsigned char)('a' + k)), "");
            x = conf_xfer(MESH_SEND, 0, conf_at(&m, &a[k]), sizeof(int), NULL);
            CONFORM(conf_post(t, 4, 2, &x, 1, &ticket[k]) == MESH_OK, "");
            CONFORM(conf_finish(t, &ticket[k]) == MESH_OK, "");
            continue;
        }
        for (; posted < (conf_has(t, MESH_CAP_ORDERED) ? k + 1 : 2); posted++) {
            x = conf_xfer(MESH_RECV, 1, conf_at(&m, &a[posted]), sizeof(int), NULL);
            CONFORM(conf_post(t, 4, 2, &x, 1, &ticket[posted]) == MESH_OK, "");
        }
        for (i = 0; i < 20; i++) {
            t->ops->progress(t, t->ops->now(t) + 100000);
            CONFORM(t->ops->test(t, &ticket[k], &why) == MESH_IN_PROGRESS,
                    k ? "one message completes one receive" : "nothing was sent yet");
        }
        n = k || !conf_has(t, MESH_CAP_PENDING) ? -1 : t->ops->pending(t, &ticket[k], ranks, 8);
        CONFORM(n == -1 || (n == 1 && ranks[0] == 1), "the peer that has not sent is pending");
        conf_tell(t, 1, (unsigned char)('a' + k));
        CONFORM(conf_finish(t, &ticket[k]) == MESH_OK, "");
        conf_down(&m);
        CONFORM(a[k] == 4711 + k, "");
    }
    conf_delete(&m, a);
}

/* A receive that combines with what lies there: once, with the whole of it, small and large, strided where blocks are taken. */
static void conf_reduces(mesh_transport *t) {
    enum { N = 30000 };
    static const struct {
        int dtype, op, count, strided;
    } cases[] = {{MESH_I64, MESH_SUM, 3, 0},  {MESH_I64, MESH_SUM, N, 0}, {MESH_F32, MESH_SUM, N, 0},
                 {MESH_F32, MESH_MAX, 77, 0}, {MESH_U8, MESH_XOR, N, 0},  {MESH_F32, MESH_SUM, N / 2, 1}};
    conf_memory m = conf_memory_of(t, NULL);
    unsigned char *buf, *as_it_was;
    size_t i, k;
    if (!conf_has(t, MESH_CAP_REDUCE)) {
        conf_left_out(t, "receives that reduce (MESH_CAP_REDUCE)");
        return;
    }
    buf = conf_new(&m, 8 * N), as_it_was = (unsigned char *)malloc(8 * N);
    for (k = 0; k < sizeof cases / sizeof *cases; k++) {
        size_t elem = mesh_dtype_bytes((mesh_dtype)cases[k].dtype), step = 1 + (size_t)cases[k].strided;
        mesh_block block = MESH_ZERO;
        mesh_post p;
        mesh_xfer x;
        mesh_ticket ticket;
        if (cases[k].strided && !conf_has(t, MESH_CAP_STRIDED)) continue;
        block.run = elem, block.ndim = 1;
        block.dim[0].count = cases[k].count, block.dim[0].stride = (int64_t)(2 * elem);
        for (i = 0; i < N; i++) {
            int v = (int)(i % 50) + (t->rank ? 7 : 1);
            if (cases[k].dtype == MESH_I64) ((int64_t *)(void *)buf)[i] = v;
            if (cases[k].dtype == MESH_F32) ((float *)(void *)buf)[i] = (float)v;
            if (cases[k].dtype == MESH_U8) buf[i] = (unsigned char)v;
        }
        memcpy(as_it_was, buf, 8 * N);
        conf_up(&m);
        memset(&p, 0, sizeof p);
        x = conf_xfer(t->rank ? MESH_SEND : MESH_REDUCE, 1 - t->rank, conf_at(&m, buf), elem * (size_t)cases[k].count,
                      cases[k].strided ? &block : NULL);
        p.channel = conf_channel(11);
        p.xfer = &x;
        p.count = 1;
        p.dtype = cases[k].dtype;
        p.op = cases[k].op;
        CONFORM(t->ops->post(t, &p, &ticket) == MESH_OK, "");
        CONFORM(conf_finish(t, &ticket) == MESH_OK, "");
        conf_down(&m);
        for (i = 0; i < N; i++) {
            int mine = (int)(i % 50) + 1, theirs = (int)(i % 50) + 7, v;
            double got;
            v = cases[k].op == MESH_SUM ? mine + theirs : cases[k].op == MESH_MAX ? theirs : mine ^ theirs;
            if (t->rank || i % step || i / step >= (size_t)cases[k].count) {
                CONFORM(!memcmp(buf + i * elem, as_it_was + i * elem, elem),
                        "a receive that reduces goes beyond its memory");
                continue;
            }
            got = cases[k].dtype == MESH_I64   ? (double)((int64_t *)(void *)buf)[i]
                  : cases[k].dtype == MESH_F32 ? (double)((float *)(void *)buf)[i]
                                               : (double)buf[i];
            CONFORM(got == v, "a receive that reduces combines once");
        }
    }
    free(as_it_was);
    conf_delete(&m, buf);
}

/* Hosts are numbers that stay; where they are known they are known of everybody. */
static void conf_locality(mesh_transport *t) {
    int i, mine;
    if (t->ops->struct_size <= offsetof(mesh_ops, locality) || !t->ops->locality) {
        conf_left_out(t, "who shares a host (locality)");
        return;
    }
    mine = t->ops->locality(t, t->rank);
    for (i = 0; i < t->size; i++) {
        CONFORM((t->ops->locality(t, i) >= 0) == (mine >= 0), "a host is known of some ranks only");
        CONFORM(t->ops->locality(t, i) == t->ops->locality(t, i), "a rank's host changes");
    }
}

/* Sleep on the transport's descriptor alone, at most 20 s; 1: there is something to do. */
static int conf_sleep(mesh_transport *t) {
    struct pollfd f;
    int64_t wake;
    mesh_status status = t->ops->arm(t, &wake);
    CONFORM(status == MESH_OK || status == MESH_IN_PROGRESS, "arm");
    if (status == MESH_IN_PROGRESS) return 1;
    f.fd = t->ops->fd(t);
    f.events = POLLIN;
    return poll(&f, 1, 20000) == 1;
}

/* Who waits on the descriptor hears of everything: a message, one that is large, a word over the control plane; what lies here already is said at
   once, and where there is nothing nothing is said. */
static void conf_arm(mesh_transport *t) {
    static const uint64_t sizes[] = {4, 3000000};
    conf_memory m = conf_memory_of(t, NULL);
    unsigned char *buf;
    mesh_ticket ticket;
    mesh_control c;
    mesh_error why;
    mesh_xfer x;
    struct pollfd f;
    int64_t wake;
    mesh_status status = MESH_IN_PROGRESS;
    int k, i;
    if (!MESH__HAS(t->ops, arm) || !MESH__HAS(t->ops, fd) || t->ops->fd(t) < 0) {
        conf_left_out(t, "a descriptor to wait for (arm, fd)");
        return;
    }
    buf = conf_new(&m, (size_t)sizes[1]);
    for (k = 0; k < 2; k++) {
        x = conf_xfer(t->rank ? MESH_SEND : MESH_RECV, 1 - t->rank, conf_at(&m, buf), sizes[k], NULL);
        if (t->rank == 0) {
            CONFORM(conf_post(t, 40 + k, 1, &x, 1, &ticket) == MESH_OK, "");
            f.fd = t->ops->fd(t), f.events = POLLIN;
            for (i = 0; (t->ops->arm(t, &wake) == MESH_IN_PROGRESS || poll(&f, 1, 0) != 0) && i < 1000; i++) {
                t->ops->progress(t, 0); /* a word from before may still come */
                while (t->ops->control_poll(t, &c) == MESH_OK) CONFORM(c.kind == MESH_EVENT_CLOSED, "");
            }
            CONFORM(i < 1000, "nothing has come, and there is work for ever");
            conf_tell(t, 1, 'a');
            while ((status = t->ops->test(t, &ticket, &why)) == MESH_IN_PROGRESS && conf_sleep(t))
                t->ops->progress(t, 0);
            CONFORM(status == MESH_OK, "a message does not make the descriptor readable");
            while (((status = t->ops->control_poll(t, &c)) == MESH_IN_PROGRESS && conf_sleep(t)) ||
                   (status == MESH_OK && c.kind == MESH_EVENT_CLOSED))
                t->ops->progress(t, 0);
            CONFORM(status == MESH_OK && c.data[0] == 'b', "a word does not make the descriptor readable");
            conf_tell(t, 1, 'c');
            for (i = 0; i < 2000 && t->ops->arm(t, &wake) == MESH_OK; i++)
                t->ops->progress(t, t->ops->now(t) + 10000000);
            t->ops->progress(t, 0);
            CONFORM(t->ops->arm(t, &wake) == MESH_IN_PROGRESS, "a word that lies here is work");
            CONFORM(conf_hear(t, 1, MESH_EVENT_MESSAGE, 'd'), "");
        } else {
            CONFORM(conf_hear(t, 0, MESH_EVENT_MESSAGE, 'a'), "");
            CONFORM(conf_post(t, 40 + k, 1, &x, 1, &ticket) == MESH_OK, "");
            while ((status = t->ops->test(t, &ticket, &why)) == MESH_IN_PROGRESS && conf_sleep(t))
                t->ops->progress(t, 0);
            CONFORM(status == MESH_OK, "room to write does not make the descriptor readable");
            conf_tell(t, 0, 'b');
            CONFORM(conf_hear(t, 0, MESH_EVENT_MESSAGE, 'c'), "");
            conf_tell(t, 0, 'd');
        }
    }
    conf_delete(&m, buf);
}

/* Rank 1 sends to rank 0, rank 2 waits to be told, two messages: only rank 2 is pending then, once, in as much room as there is. */
static void conf_pending(mesh_transport *t) {
    conf_memory m = conf_memory_of(t, NULL);
    int *a, i, ranks[8], n;
    mesh_ticket ticket;
    mesh_xfer x[3];
    mesh_error why;
    if (!conf_has(t, MESH_CAP_PENDING)) conf_left_out(t, "who is pending (MESH_CAP_PENDING)");
    if (!conf_has(t, MESH_CAP_PENDING) && t->size >= 2 && t->rank < 2) {
        a = (int *)(void *)conf_new(&m, sizeof(int));
        x[0] = conf_xfer(t->rank ? MESH_RECV : MESH_SEND, 1 - t->rank, conf_at(&m, a), sizeof(int), NULL);
        CONFORM(conf_post(t, 5, 2, x, 1, &ticket) == MESH_OK, "");
        CONFORM(t->ops->pending(t, &ticket, ranks, 8) == 0, "who cannot tell says nobody");
        CONFORM(conf_finish(t, &ticket) == MESH_OK, "");
        conf_delete(&m, a);
    }
    if (!conf_has(t, MESH_CAP_PENDING) || t->size < 3 || t->rank > 2) return;
    a = (int *)(void *)conf_new(&m, 3 * sizeof(int));
    if (t->rank == 0) {
        x[0] = conf_xfer(MESH_RECV, 1, conf_at(&m, &a[0]), sizeof(int), NULL);
        x[1] = conf_xfer(MESH_RECV, 2, conf_at(&m, &a[1]), sizeof(int), NULL);
        x[2] = conf_xfer(MESH_RECV, 2, conf_at(&m, &a[2]), sizeof(int), NULL);
        CONFORM(conf_post(t, 5, 2, x, 3, &ticket) == MESH_OK, "");
        conf_tell(t, 1, 'c');
        CONFORM(conf_hear(t, 1, MESH_EVENT_MESSAGE, 'd'), "");
        for (i = 0; i < 10; i++) t->ops->progress(t, t->ops->now(t) + 1000000);
        CONFORM(t->ops->test(t, &ticket, &why) == MESH_IN_PROGRESS, "");
        n = t->ops->pending(t, &ticket, ranks, 8);
        CONFORM(n == 1 && ranks[0] == 2, "a peer whose message has come is not pending, another is, once");
        ranks[0] = -1;
        CONFORM(t->ops->pending(t, &ticket, ranks, 0) == 1 && ranks[0] == -1, "no more than there is room for");
        conf_tell(t, 2, 'e');
        CONFORM(conf_finish(t, &ticket) == MESH_OK, "");
    } else {
        CONFORM(conf_hear(t, 0, MESH_EVENT_MESSAGE, t->rank == 1 ? 'c' : 'e'), "");
        a[0] = 1;
        conf_up(&m);
        x[0] = x[1] = conf_xfer(MESH_SEND, 0, conf_at(&m, a), sizeof(int), NULL);
        CONFORM(conf_post(t, 5, 2, x, t->rank, &ticket) == MESH_OK, "");
        CONFORM(conf_finish(t, &ticket) == MESH_OK, "");
        if (t->rank == 1) conf_tell(t, 0, 'd');
    }
    conf_delete(&m, a);
}

/* After cancel a ticket ends, and its memory is nobody's: a message that comes later does not touch it. */
static void conf_cancel(mesh_transport *t) {
    static const uint64_t sizes[2] = {64, 200000};
    int k;
    if (!conf_has(t, MESH_CAP_CANCEL)) {
        conf_left_out(t, "cancel (MESH_CAP_CANCEL)");
        return;
    }
    for (k = 0; k < 2; k++) {
        uint64_t n = sizes[k], i;
        conf_memory m = conf_memory_of(t, NULL);
        unsigned char *buf = conf_new(&m, n);
        mesh_ticket ticket;
        mesh_xfer x;
        int intact = 1;
        memset(buf, t->rank == 0 ? 0xaa : 0x11, n);
        conf_up(&m);
        if (t->rank == 0) {
            x = conf_xfer(MESH_RECV, 1, conf_at(&m, buf), n, NULL);
            CONFORM(conf_post(t, 6 + k, 3, &x, 1, &ticket) == MESH_OK, "");
            t->ops->progress(t, 0);
            CONFORM(t->ops->cancel(t, &ticket) == MESH_OK, "");
            CONFORM(conf_finish(t, &ticket) == MESH_ERR_CANCELED, "a canceled receive ends");
            conf_tell(t, 1, 'x');
            CONFORM(conf_hear(t, 1, MESH_EVENT_MESSAGE, 'y'), "");
            conf_linger(t, 20000000);
            conf_down(&m);
            for (i = 0; i < n; i++) intact &= buf[i] == 0xaa;
            CONFORM(intact, "memory is not touched after cancel");
            conf_tell(t, 1, 'z');
        } else {
            CONFORM(conf_hear(t, 0, MESH_EVENT_MESSAGE, 'x'), "");
            x = conf_xfer(MESH_SEND, 0, conf_at(&m, buf), n, NULL);
            CONFORM(conf_post(t, 6 + k, 3, &x, 1, &ticket) == MESH_OK, "");
            t->ops->progress(t, t->ops->now(t) + 1000000);
            conf_tell(t, 0, 'y');
            CONFORM(conf_hear(t, 0, MESH_EVENT_MESSAGE, 'z'), "");
            t->ops->cancel(t, &ticket); /* nobody will receive it */
            CONFORM(conf_finish(t, &ticket) != MESH_IN_PROGRESS, "a canceled send ends");
        }
        conf_delete(&m, buf);
    }
}

/* progress wakes when something happens, long before its deadline; and at its deadline when nothing does. */
static void conf_wake(mesh_transport *t) {
    conf_memory m = conf_memory_of(t, NULL);
    unsigned char *v = conf_new(&m, 4);
    mesh_ticket ticket;
    mesh_xfer x;
    memset(v, 5, 4);
    conf_up(&m);
    if (t->rank == 0) {
        int64_t start = t->ops->now(t);
        x = conf_xfer(MESH_RECV, 1, conf_at(&m, v), 4, NULL);
        CONFORM(conf_post(t, 8, 4, &x, 1, &ticket) == MESH_OK, "");
        conf_tell(t, 1, 'w');
        CONFORM(conf_finish(t, &ticket) == MESH_OK, "");
        CONFORM(t->ops->now(t) - start < INT64_C(10000000000), "progress wakes when a message comes");
        start = t->ops->now(t);
        t->ops->progress(t, start + 3000000);
        while (t->ops->now(t) < start + 3000000) t->ops->progress(t, start + 3000000);
        CONFORM(t->ops->now(t) - start < INT64_C(10000000000), "progress ends at its deadline");
    } else {
        CONFORM(conf_hear(t, 0, MESH_EVENT_MESSAGE, 'w'), "");
        conf_linger(t, 30000000);
        x = conf_xfer(MESH_SEND, 0, conf_at(&m, v), 4, NULL);
        CONFORM(conf_post(t, 8, 4, &x, 1, &ticket) == MESH_OK, "");
        CONFORM(conf_finish(t, &ticket) == MESH_OK, "");
    }
    conf_delete(&m, v);
}

/* Another length or check: the receiver ends with MISMATCH, the sender too unless it was done already; later channels are not harmed. */
static void conf_mismatch(mesh_transport *t) {
    static const uint64_t sent[] = {8, 8, 100000, 0, 100000, 8}, expected[] = {12, 8, 100004, 4, 8, 100000};
    conf_memory m = conf_memory_of(t, NULL);
    unsigned char *buf;
    int k;
    if (!conf_has(t, MESH_CAP_CHECK)) {
        conf_left_out(t, "other lengths and checks at the two ends (MESH_CAP_CHECK)");
        return;
    }
    buf = conf_new(&m, 100004);
    memset(buf, 0, 100004);
    conf_up(&m);
    for (k = 0; k < 6; k++) {
        mesh_ticket ticket;
        mesh_xfer x;
        mesh_status status;
        if (t->rank == 0) {
            x = conf_xfer(MESH_SEND, 1, conf_at(&m, buf), sent[k], NULL);
            CONFORM(conf_post(t, 20 + k, 1, &x, 1, &ticket) == MESH_OK, "");
            status = conf_finish(t, &ticket);
            CONFORM(status == MESH_ERR_MISMATCH || (status == MESH_OK && sent[k] <= 16384),
                    "a large send ends with MISMATCH too");
        } else {
            x = conf_xfer(MESH_RECV, 0, conf_at(&m, buf), expected[k], NULL);
            CONFORM(conf_post(t, 20 + k, k == 1 ? 2 : 1, &x, 1, &ticket) == MESH_OK, "");
            CONFORM(conf_finish(t, &ticket) == MESH_ERR_MISMATCH, "other lengths or checks are a MISMATCH");
        }
    }
    conf_delete(&m, buf);
}

static void conf_control(mesh_transport *t) {
    unsigned char data[MESH_CONTROL_BYTES];
    mesh_control m;
    int i, next = 0;
    int64_t limit = t->ops->now(t) + INT64_C(20000000000);
    if (t->rank == 0) {
        for (i = 0; i < 50; i++) {
            conf_fill(data, sizeof data, (uint64_t)i);
            data[0] = (unsigned char)i;
            CONFORM(t->ops->control_send(t, 1, MESH_EVENT_MESSAGE, data, i == 49 ? 1024 : (size_t)i + 1) == MESH_OK,
                    "");
        }
        CONFORM(t->ops->control_send(t, 1, MESH_EVENT_MESSAGE, data, 1025) == MESH_ERR_ARGUMENT, "");
        CONFORM(conf_hear(t, 1, MESH_EVENT_MESSAGE, 200), "");
        return;
    }
    while (next < 50 && t->ops->now(t) < limit) {
        if (t->ops->control_poll(t, &m) != MESH_OK) {
            t->ops->progress(t, limit);
            continue;
        }
        CONFORM(m.rank == 0 && m.data[0] == next && m.nbytes == (uint32_t)(next == 49 ? 1024 : next + 1),
                "control messages come in order and whole");
        conf_fill(data, sizeof data, (uint64_t)next);
        CONFORM(!memcmp(data + 1, m.data + 1, m.nbytes - 1), "");
        next++;
    }
    CONFORM(next == 50, "");
    conf_tell(t, 0, 200);
}

/* The last thing: rank 0 sends and closes at once. What it sent still arrives, even when it is received after CLOSED was heard; where
   posts run in order, and a send may wait for its receive, that was posted before. */
static void conf_close(mesh_transport *t, mesh_status (*close)(mesh_transport *t, mesh_error *why)) {
    enum { BIG = 300000 };
    conf_memory m = conf_memory_of(t, NULL);
    unsigned char *small = conf_new(&m, 32), *big = conf_new(&m, BIG);
    mesh_ticket a, b;
    mesh_xfer x[2];
    mesh_error why;
    int other = 1 - t->rank, posted = t->rank == 0 || conf_has(t, MESH_CAP_ORDERED);
    memset(small, 0, 32);
    memset(big, 0, BIG);
    if (t->rank == 0) conf_fill(small, 32, 3);
    if (t->rank == 0) conf_fill(big, BIG, 4);
    conf_up(&m);
    x[0] = conf_xfer(t->rank == 0 ? MESH_SEND : MESH_RECV, other, conf_at(&m, big), BIG, NULL);
    x[1] = conf_xfer(t->rank == 0 ? MESH_SEND : MESH_RECV, other, conf_at(&m, small), 32, NULL);
    CONFORM(conf_post(t, 30, 1, &x[0], 1, &a) == MESH_OK, "");
    if (posted) CONFORM(conf_post(t, 31, 1, &x[1], 1, &b) == MESH_OK, "");
    CONFORM(conf_finish(t, &a) == MESH_OK, "");
    if (conf_has(t, MESH_CAP_ORDERED)) /* its ranks may close together */
        conf_left_out(t, "hearing that a rank has closed (MESH_CAP_ORDERED)");
    else if (t->rank == 1)
        CONFORM(conf_hear(t, 0, MESH_EVENT_CLOSED, 0), "an orderly close is heard");
    if (!posted) CONFORM(conf_post(t, 31, 1, &x[1], 1, &b) == MESH_OK, "");
    CONFORM(conf_finish(t, &b) == MESH_OK, "what was sent before a close arrives");
    conf_down(&m);
    CONFORM(conf_same(big, BIG, 4), "");
    CONFORM(conf_same(small, 32, 3), "what was sent before a close arrives");
    conf_delete(&m, small);
    conf_delete(&m, big);
    if (t->rank == 0) close(t, &why);
}

/* Run all of it. Ranks 0 and 1 (and 2) work, the others follow. Afterwards rank 0 has closed its transport with `close` (its ops'
   own by default): nothing else can be tested on this world. */
static inline void conformance_transport(mesh_transport *t) {
    if (t->size >= 2 && t->rank < 2) {
        conf_sizes(t);
        conf_order(t);
        if (conf_has(t, MESH_CAP_STRIDED))
            conf_strided(t);
        else
            conf_left_out(t, "strided messages (MESH_CAP_STRIDED)");
        conf_reduces(t);
        conf_arm(t);
        conf_unsent(t);
    }
    conf_locality(t);
    if (t->size >= 2) conf_pending(t);
    if (t->size >= 2 && t->rank < 2) {
        conf_cancel(t);
        conf_wake(t);
        conf_mismatch(t);
        conf_control(t);
        conf_close(t, t->ops->close);
    }
}

#endif
