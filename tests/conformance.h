/* What every transport must do, run as each rank of a world: conformance_transport (the bare transport struct), conformance_collectives
   (every collective over it) and conformance_redistribute (seeded redistributions). For a transport of your own: include mesh.h,
   mesh_collectives.h, your header and this file, run the functions on 1, 2, 3, 5 and 8 ranks, and look at conformance_failures.
   tests/t_comm.h and t_redistribute.h do so for ours. What a transport's capabilities leave out is said on rank 0's stdout. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile int conformance_failures;
static int64_t conf_ask_ns; /* of the suites' comms; 0: as built in */

static void conformance_fail(const mesh_transport *t, int line, const char *what, const char *detail) {
    if (__sync_add_and_fetch(&conformance_failures, 1) <= 10)
        fprintf(stderr, "    conformance.h:%d: rank %d of %d on %s: %s %s\n", line, t->rank, t->size, t->ops->name,
                what, detail);
}

#define CONFORM(cond, detail)                                      \
    do {                                                           \
        if (!(cond)) conformance_fail(t, __LINE__, #cond, detail); \
    } while (0)
#define CONFORM_CALL(call, comm)                                                         \
    do {                                                                                 \
        if ((call) != MESH_OK) conformance_fail(t, __LINE__, #call, (comm)->error.text); \
    } while (0)

/* What is not tested on a transport, and why: said once. */
static void conf_left_out(const mesh_transport *t, const char *what) {
    static const char *said[16];
    static int n;
    int i;
    if (t->rank || n == 16) return;
    for (i = 0; i < n; i++)
        if (!strcmp(said[i], what)) return;
    said[n++] = what;
    printf("    not on %s: %s\n", t->ops->name, what);
}

static int conf_has(const mesh_transport *t, uint32_t cap) { return (t->caps & cap) != 0; }

/* ---- the bare transport ------------------------------------------------------------------------------------------------- */

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
    conformance_fail(m->t, __LINE__, "an operation's buffer is the suite's own memory", "");
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

/* ---- collectives --------------------------------------------------------------------------------------------------------- */

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
    conformance_fail(t, __LINE__, what, c->text);
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
                conformance_fail(c->t, __LINE__, "reduce_scatter in place", c->comm->error.text);
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
                    if (status) conformance_fail(c->t, __LINE__, names[form], c->comm->error.text);
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
        if (k % 2) {
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
    if (!(c->t->caps & MESH_CAP_ORDERED)) { /* lengths that travel ahead, under a tag */
        int from = (int)((me + n - 1) % n);
        size_t got = 77, room = count + (size_t)n + 2;
        char axes[MESH_MAX_AXES * MESH_NAME_BYTES + 8];
        mesh__text text = mesh__text_on(axes, sizeof axes);
        mesh__put(&text, "%s#5", c->axes ? c->axes : "");
        conf_clear(c);
        conf_contribution(c, 0, from, 0, count + (size_t)from, c->want);
        conf_contribution(c, 0, c->me, 0, count + me, c->send);
        conf_up(&c->memory);
        if (mesh_sendrecv_v(c->comm, axes, (int)((me + 1) % n), send, count + me, from, recv, room, &got, c->d))
            conformance_fail(c->t, __LINE__, "sendrecv_v", c->comm->error.text);
        conf_down(&c->memory);
        if (got != count + (size_t)from || memcmp(c->recv, c->want, got * c->elem))
            conformance_fail(c->t, __LINE__, "sendrecv_v: other data or count", "");
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
                conformance_fail(c->t, __LINE__, "send and recv", c->comm->error.text);
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
    mesh_block column;
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
    x[1] = conf_xfer(MESH_RECV, last, conf_at(&m, row), BYTES, NULL);
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
        conformance_fail(c.t, __LINE__, "the group is too large for this suite", "");
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
    if (on_host) conf_objects(&c, large);
    for (k = 0; k < 4 && on_host; k++) conf_user_ops(&c, ops[0], ops[1], k < 3 ? counts[k] : large);
    if (!on_host) conf_left_out(c.t, "minloc, maxloc, ops of one's own, broadcast_object (they need host memory)");
    conf_free_room(&c);
}

/* ---- redistribution ------------------------------------------------------------------------------------------------------ */

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
        if (mesh_redistribute_plan(comm, plan, a, b, &err) != MESH_OK) conformance_fail(t, __LINE__, "plan", err.text);
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
        CONFORM(mesh__redistribute_start(comm, plan, src, dst, 1, &scratch, NULL, &err) == MESH_OK, err.text);
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
                    conformance_fail(t, __LINE__, "the destination holds the tensor", text);
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
            conformance_fail(t, __LINE__, "open", err.text);
            return;
        }
        for (k = 0; k < problems / 4 && !comm.failed; k++) conf_redistribute(&comm, &r, most);
        CONFORM_CALL(mesh_comm_close(&comm), &comm);
    }
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
        conformance_fail(t, __LINE__, "open", err.text);
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
