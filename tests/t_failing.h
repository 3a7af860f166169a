/* What fails beneath the library: memory, system calls, ranks that stop for a while, a link between two living ranks. Every rank ends with a
   status, nothing hangs, nothing leaks. */
#ifndef T_FAILING_H
#define T_FAILING_H

#include <limits.h>
#include <pthread.h>

/* ---- worlds of threads: every rank a socket transport of its own, in one process, so that what each has met is seen by all ---- */

enum { FAILING_RANKS = 4 };

typedef struct failing_memory { /* an allocator that counts, and fails when it is told to */
    int armed, calls, at, times, failed;
    long live;
    pthread_t owner;
} failing_memory;

typedef struct failing_rank failing_rank;
typedef struct failing_world {
    int backend, ranks, port, fd;
    struct stat listener;
    void (*run)(failing_rank *k);
    void *ctx;
    pthread_mutex_t lock;
    pthread_cond_t all;
    volatile int64_t late; /* its clock is ahead by so much */
    int done;              /* ranks that have come through an opening */
    int here, stop;        /* stop: a check had failed when all met last */
    unsigned round;
    failing_rank *rank;
} failing_world;

struct failing_rank {
    failing_world *w;
    int me, n;
    pthread_t thread;
    failing_memory memory;
    failing_plan plan;
    mesh_socket net;
    mesh_error err;
    /* of its last operation */
    mesh_comm *c;
    mesh_status status;
    char text[MESH_ERROR_BYTES];
    int blame;
    /* its buffers */
    size_t count, room;
    int32_t *in, *out, *want;
    mesh_object object;
    size_t got; /* of messages of unknown length */
    mesh_op op;
    int blocking, broken, failed;
};

static void *failing_alloc(void *ctx, size_t n) {
    failing_memory *m = (failing_memory *)ctx;
    void *p;
    if (m->armed && ++m->calls >= m->at && m->calls - m->at < m->times) {
        m->failed++;
        return NULL;
    }
    if ((p = malloc(n)) != NULL) m->live++;
    return p;
}
static void failing_free(void *ctx, void *p) {
    ((failing_memory *)ctx)->live--;
    free(p);
}
static void failing_arm(failing_rank *k, int at, int times) {
    k->memory.at = at;
    k->memory.times = times;
    k->memory.calls = k->memory.failed = 0;
    k->memory.armed = at > 0;
}

/* All ranks of the world are here. What they wrote before is seen after it. */
static void failing_meet(failing_world *w) {
    unsigned round;
    pthread_mutex_lock(&w->lock);
    round = w->round;
    if (++w->here == w->ranks) {
        w->here = 0;
        w->stop = test_failures != 0;
        w->round++;
        pthread_cond_broadcast(&w->all);
    }
    while (w->round == round) pthread_cond_wait(&w->all, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void failing_silence(void *ctx, int level, const char *text) { (void)ctx, (void)level, (void)text; }

static mesh_status failing_join(failing_rank *k) {
    mesh_socket_desc d = socket_desc(k->me, k->n, k->w->port, k->w->fd);
    d.lanes = k->w->backend == TCP ? MESH_SOCKET_TCP : k->w->backend == UNIX ? MESH_SOCKET_UNIX : MESH_SOCKET_AUTO;
    d.allocator.alloc = failing_alloc;
    d.allocator.free = failing_free;
    d.allocator.ctx = &k->memory;
    d.log = failing_silence;
    return mesh_socket_open(&k->net, &d, &k->err);
}
static void failing_leave(failing_rank *k) {
    mesh_socket_close(&k->net);
    CHECK_INT(k->memory.live, 0);
}

static void *failing_thread(void *arg) {
    failing_rank *k = (failing_rank *)arg;
    failing_late = &k->w->late;
    k->w->run(k);
    failing_late = NULL;
    failing_now = NULL;
    return NULL;
}

/* Run f as every rank of a world of threads. */
static void failing_world_start(failing_world *w, int backend, int ranks, void (*run)(failing_rank *), void *ctx) {
    int i;
    memset(w, 0, sizeof *w);
    w->backend = backend;
    w->ranks = ranks;
    w->run = run;
    w->ctx = ctx;
    w->rank = (failing_rank *)calloc((size_t)ranks, sizeof *w->rank);
    w->fd = listen_loopback(AF_INET, &w->port);
    CHECK_INT(fstat(w->fd, &w->listener), 0);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->all, NULL);
    for (i = 0; i < ranks; i++) {
        w->rank[i].w = w;
        w->rank[i].me = i;
        w->rank[i].n = ranks;
    }
    for (i = 0; i < ranks; i++)
        if (pthread_create(&w->rank[i].thread, NULL, failing_thread, &w->rank[i])) {
            test_fail(__FILE__, __LINE__, "no thread");
            exit(1);
        }
}
static void failing_world_free(failing_world *w) {
    struct stat now;
    int i;
    if (fstat(w->fd, &now) == 0 && now.st_ino == w->listener.st_ino)
        close(w->fd); /* an opening that failed early leaves it */
    for (i = 0; i < w->ranks; i++) {
        free(w->rank[i].in);
        free(w->rank[i].out);
        free(w->rank[i].want);
    }
    free(w->rank);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->all);
}
static void failing_world_end(failing_world *w) {
    int i;
    for (i = 0; i < w->ranks; i++) pthread_join(w->rank[i].thread, NULL);
    failing_world_free(w);
}

/* It is so much later, at once, for all ranks of this world. */
static void failing_skip(int64_t ns) { __sync_add_and_fetch(failing_late, ns); }

/* Descriptors of this process. */
static int failing_descriptors(void) {
    int fd, n = 0;
    for (fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* ---- every operation ---- */

enum { F_USER_OP = MESH_CALL_COUNT, F_LOC, F_PAIR, F_STEPS, F_LIST, F_KEPT, F_ALLOC, F_COPY, F_COMM, F_OPS };

static const char *failing_name(int what) {
    static const char *const more[] = {"all_reduce", "all_reduce", "(", "redistribute", "redistribute", "all_reduce",
                                       "mesh_alloc", "mesh_copy",  ""};
    if (what == MESH_CALL_GROUP_OPEN) return "group";
    if (what == MESH_CALL_HALO) return "halo";
    if (what == MESH_CALL_RECV_OBJECT) return "(";
    return what < MESH_CALL_COUNT ? mesh__call_name(what) : more[what - MESH_CALL_COUNT];
}

static void failing_add(void *inout, const void *in, size_t count, void *ctx) {
    int32_t *a = (int32_t *)inout;
    const int32_t *b = (const int32_t *)in;
    size_t i;
    (void)ctx;
    for (i = 0; i < count; i++) a[i] += b[i];
}

/* Buffers for operations of `count` elements. */
static void failing_buffers(failing_rank *k, size_t count) {
    size_t i;
    k->count = count;
    k->room = (count + 16) * (size_t)(k->n + 1) * sizeof(int32_t);
    free(k->in), free(k->out), free(k->want);
    k->in = (int32_t *)malloc(k->room);
    k->out = (int32_t *)malloc(k->room);
    k->want = (int32_t *)malloc(k->room);
    for (i = 0; i < k->room / sizeof(int32_t); i++) k->in[i] = (int32_t)(i % 9973) + 10000 * k->me;
}

static mesh_tensor failing_tensor(failing_rank *k, const char *spec, int64_t rows, int64_t columns, void *data) {
    mesh_tensor t = MESH_ZERO;
    mesh_error err;
    t.data = data;
    t.layout.ndim = 2;
    t.layout.shape[0] = rows;
    t.layout.shape[1] = columns;
    t.dtype = MESH_I32;
    t.layout.on = &k->c->on;
    CHECK_OK(mesh_spec_parse(&t.layout.spec, t.layout.on, spec, 2, &err), err);
    return t;
}

#define FAILING_DO(name, ...) (k->blocking ? mesh_##name(c, __VA_ARGS__) : mesh_##name##_start(c, __VA_ARGS__, r))

static mesh_status failing_redistribute(failing_rank *k, int what, mesh_request *r) {
    mesh_comm *c = k->c;
    int64_t rows = 4 * k->n, columns = (int64_t)k->count / rows;
    mesh_tensor src[3], dst[3];
    if (columns < 1) columns = 1;
    src[0] = failing_tensor(k, what == F_STEPS ? "x:P(sum) y:S(0)" : "x:S(0)", rows, columns, k->in);
    dst[0] = failing_tensor(k, what == F_STEPS ? "x:S(0) y:R" : "x:S(1)", rows, columns, k->out);
    if (what != F_LIST) return FAILING_DO(redistribute, &src[0], &dst[0]);
    src[1] = failing_tensor(k, "x:P(sum)", rows / 2, columns, k->in);
    dst[1] = failing_tensor(k, "x:S(1)", rows / 2, columns, k->out + (k->count + 16));
    src[2] = failing_tensor(k, "x:S(1)", 5, 3, k->in);
    dst[2] = failing_tensor(k, "", 5, 3, k->out + (k->count + 16) + k->count);
    return FAILING_DO(redistribute_many, src, dst, 3);
}

static mesh_status failing_p2p(failing_rank *k, int what, mesh_request *r) {
    mesh_comm *c = k->c;
    int next = (k->me + 1) % k->n, last = (k->me + k->n - 1) % k->n;
    size_t n = k->count;
    mesh_xfer x[2];
    mesh_block column;
    mesh_halo h = MESH_ZERO;
    mesh_status status;
    mesh_request other = MESH_ZERO;
    switch (what) {
    case MESH_CALL_SENDRECV:
        return FAILING_DO(sendrecv, NULL, next, k->in, n, last, k->out, n, MESH_I32);
    case MESH_CALL_SHIFT:
        return FAILING_DO(shift, NULL, 1, 0, k->in, k->out, n, MESH_I32);
    case MESH_CALL_SENDRECV_V:
        return FAILING_DO(sendrecv_v, "#9", next, k->in, n, last, k->out, n + 5, &k->got, MESH_I32);
    case MESH_CALL_SHIFT_V:
        return FAILING_DO(shift_v, NULL, 1, 0, k->in, n, k->out, n, &k->got, MESH_I32);
    case MESH_CALL_RECV_OBJECT: /* a send and a receive, apart */
        memset(&k->object, 0, sizeof k->object);
        status = mesh_send_v_start(c, NULL, next, k->in, 4 * n, MESH_BYTES, &other);
        if (status == MESH_OK) status = mesh_recv_object(c, NULL, last, &k->object);
        if (status == MESH_OK) memcpy(k->out, k->object.data, k->object.nbytes);
        mesh_object_free(c, &k->object);
        if (status == MESH_OK) return mesh_wait(other);
        if (other.generation) mesh_wait(other);
        return status;
    case MESH_CALL_EXCHANGE:
        memset(&column, 0, sizeof column);
        column.run = 4;
        column.ndim = 1;
        column.dim[0].count = (int64_t)n;
        column.dim[0].stride = 8;
        x[0] = conf_xfer(MESH_SEND, next, k->in, 4 * n, &column);
        x[1] = conf_xfer(MESH_RECV, last, k->out, 4 * n, NULL);
        return FAILING_DO(exchange, NULL, x, 2);
    case MESH_CALL_HALO:
        memcpy(k->out, k->in, 4 * n);
        h.ndim = 1;
        h.shape[0] = (int64_t)n;
        h.low[0] = h.high[0] = (int64_t)n / 4;
        h.axis[0] = "x";
        h.periodic[0] = 1;
        return FAILING_DO(halo_exchange, &h, k->out, MESH_I32);
    default: /* a send and a receive, apart */
        status = mesh_recv_start(c, NULL, last, k->out, n, MESH_I32, &other);
        if (status == MESH_OK) status = mesh_send(c, NULL, next, k->in, n, MESH_I32);
        if (status == MESH_OK) return mesh_wait(other);
        if (other.generation) mesh_wait(other);
        return status;
    }
}

static mesh_status failing_list(failing_rank *k, int what, mesh_request *r) {
    mesh_comm *c = k->c;
    size_t each = k->count / 3, i;
    mesh_buffer list[3];
    for (i = 0; i < 3; i++) {
        list[i].send = k->in + i * (k->room / 16);
        list[i].recv = k->out + i * (k->room / 12);
        list[i].count = i == 1 ? 1 : each;
    }
    if (what == MESH_CALL_ALL_REDUCE_MANY) return FAILING_DO(all_reduce_many, NULL, list, 3, MESH_I32, MESH_SUM);
    if (what == MESH_CALL_BROADCAST_MANY) return FAILING_DO(broadcast_many, NULL, list, 3, MESH_I32, 1);
    for (i = 0; i < 3; i++) {
        list[i].send = k->in + i * (k->count + 16) / 2;
        list[i].recv = k->out + i * (k->count + 16) / 3 * (size_t)k->n;
    }
    if (what == MESH_CALL_ALL_GATHER_MANY) return FAILING_DO(all_gather_many, NULL, list, 3, MESH_I32);
    for (i = 0; i < 3; i++) list[i].count = list[i].count / (size_t)k->n + 1;
    return FAILING_DO(reduce_scatter_many, NULL, list, 3, MESH_I32, MESH_SUM);
}

/* What is no request. */
static mesh_status failing_local(failing_rank *k, int what) {
    mesh_comm *c = k->c, other;
    mesh_comm_desc d = MESH_ZERO;
    mesh_status status;
    mesh_request r;
    void *p = NULL, *handle = NULL;
    switch (what) {
    case MESH_CALL_GROUP_OPEN:
        return mesh_group_open(c, "y,x");
    case MESH_CALL_REGISTER:
        status = mesh_register(c, k->in, 4096, &handle);
        return status == MESH_OK ? mesh_unregister(c, handle) : status;
    case F_ALLOC:
        status = mesh_alloc(c->transport, k->count, &p, &c->error);
        return status == MESH_OK ? mesh_free(c->transport, p, &c->error) : status;
    case F_COPY:
        return mesh_copy(c, k->out, k->in, 4 * k->count);
    case F_KEPT:
        status = mesh_all_reduce_start(c, NULL, k->in, k->out, k->count, MESH_I32, MESH_SUM, &r);
        if (status != MESH_OK) return status;
        mesh_keep(r);
        status = mesh_wait(r);
        if (status == MESH_OK) memset(k->out, 0xee, 4 * k->count);
        if (status == MESH_OK) status = mesh_restart(r);
        if (status == MESH_OK) status = mesh_wait(r);
        mesh_release(r);
        return status;
    default:
        d.groups = "y,x";
        d.timeout_ns = 20 * SECOND;
        status = mesh_comm_open(&other, c->transport, &c->on, &d, &k->err);
        __sync_add_and_fetch(&k->w->done, 1);
        while (status == MESH_ERR_MEMORY && k->memory.failed && __sync_add_and_fetch(&k->w->done, 0) < k->n) {
            failing_skip(30 * SECOND); /* the others' deadline passes */
            test_sleep(0.002);
        }
        if (status != MESH_OK) return status;
        status = mesh_barrier(&other, NULL);
        k->err = other.error;
        mesh_comm_close(&other);
        return status;
    }
}

/* One operation of a kind, to its end. */
static mesh_status failing_operate(failing_rank *k, int what) {
    mesh_comm *c = k->c;
    mesh_request one = MESH_ZERO, *r = &one;
    size_t n = k->count, i, counts[FAILING_RANKS];
    mesh_status status;
    int root = 1;
    for (i = 0; i < (size_t)k->n; i++) counts[i] = i == 2 ? 0 : n;
    memset(k->out, 0xee, k->room);
    switch (what) {
    case MESH_CALL_ALL_REDUCE:
        status = FAILING_DO(all_reduce, NULL, k->in, k->out, n, MESH_I32, MESH_SUM);
        break;
    case F_USER_OP:
        status = FAILING_DO(all_reduce, NULL, k->in, k->out, n, MESH_I32, k->op);
        break;
    case F_LOC:
        status = FAILING_DO(all_reduce, NULL, k->in, k->out, n / 2, MESH_I32, MESH_MINLOC);
        break;
    case MESH_CALL_REDUCE:
        status = FAILING_DO(reduce, NULL, k->in, k->out, n, MESH_I32, MESH_SUM, root);
        break;
    case MESH_CALL_BROADCAST:
        status = FAILING_DO(broadcast, NULL, k->in, k->out, n, MESH_I32, root);
        break;
    case MESH_CALL_ALL_GATHER:
        status = FAILING_DO(all_gather, NULL, k->in, k->out, n, MESH_I32);
        break;
    case MESH_CALL_ALL_GATHER_V:
        status = FAILING_DO(all_gather_v, NULL, k->in, k->out, counts, NULL, MESH_I32);
        break;
    case MESH_CALL_REDUCE_SCATTER:
        status = FAILING_DO(reduce_scatter, NULL, k->in, k->out, n, MESH_I32, MESH_SUM);
        break;
    case MESH_CALL_REDUCE_SCATTER_V:
        status = FAILING_DO(reduce_scatter_v, NULL, k->in, k->out, counts, NULL, MESH_I32, MESH_SUM);
        break;
    case MESH_CALL_ALL_TO_ALL:
        status = FAILING_DO(all_to_all, NULL, k->in, k->out, n, MESH_I32);
        break;
    case MESH_CALL_ALL_TO_ALL_V:
        for (i = 0; i < (size_t)k->n; i++) counts[i] = n;
        status = FAILING_DO(all_to_all_v, NULL, k->in, counts, NULL, k->out, counts, NULL, MESH_I32);
        break;
    case MESH_CALL_BARRIER:
        status = k->blocking ? mesh_barrier(c, NULL) : mesh_barrier_start(c, NULL, r);
        break;
    case MESH_CALL_GATHER:
        status = FAILING_DO(gather, NULL, k->in, k->out, n, MESH_I32, root);
        break;
    case MESH_CALL_GATHER_V:
        status = FAILING_DO(gather_v, NULL, k->in, counts[k->me], k->out, counts, NULL, MESH_I32, root);
        break;
    case MESH_CALL_SCATTER:
        status = FAILING_DO(scatter, NULL, k->in, k->out, n, MESH_I32, root);
        break;
    case MESH_CALL_SCATTER_V:
        status = FAILING_DO(scatter_v, NULL, k->in, counts, NULL, k->out, counts[k->me], MESH_I32, root);
        break;
    case MESH_CALL_SCAN:
        status = FAILING_DO(scan, NULL, k->in, k->out, n, MESH_I32, MESH_SUM);
        break;
    case MESH_CALL_EXSCAN:
        status = FAILING_DO(exscan, NULL, k->in, k->out, n, MESH_I32, MESH_SUM);
        break;
    case MESH_CALL_BROADCAST_OBJECT:
        memset(&k->object, 0, sizeof k->object);
        if (k->me == root) k->object.data = k->in, k->object.nbytes = 4 * n;
        status = FAILING_DO(broadcast_object, NULL, &k->object, root);
        break;
    case MESH_CALL_ALL_REDUCE_MANY:
    case MESH_CALL_BROADCAST_MANY:
    case MESH_CALL_ALL_GATHER_MANY:
    case MESH_CALL_REDUCE_SCATTER_MANY:
        status = failing_list(k, what, r);
        break;
    case MESH_CALL_SENDRECV:
    case MESH_CALL_SHIFT:
    case MESH_CALL_SENDRECV_V:
    case MESH_CALL_SHIFT_V:
    case MESH_CALL_RECV_OBJECT:
    case MESH_CALL_EXCHANGE:
    case MESH_CALL_HALO:
    case F_PAIR:
        status = failing_p2p(k, what, r);
        break;
    case MESH_CALL_REDISTRIBUTE:
    case F_STEPS:
    case F_LIST:
        status = failing_redistribute(k, what, r);
        break;
    default:
        status = failing_local(k, what);
        break;
    }
    if (status == MESH_OK && one.generation) status = mesh_wait(one);
    if (what == MESH_CALL_BROADCAST_OBJECT) {
        if (status == MESH_OK && k->object.nbytes == 4 * n) memcpy(k->out, k->object.data, 4 * n);
        if (k->me != root) mesh_object_free(c, &k->object);
    }
    return status;
}

static int failing_is_skipped(int what, int ranks) {
    return what == MESH_CALL_NONE || what == MESH_CALL_SEND || what == MESH_CALL_RECV || what == MESH_CALL_SEND_V ||
           what == MESH_CALL_RECV_V || (what == F_STEPS && ranks != 4);
}

/* A comm over the world. Returns 0 where it cannot be had. */
static int failing_comm(failing_rank *k, mesh_comm *c) {
    static const char *const meshes[] = {"", "", "x=2,y=1", "x=3,y=1", "x=2,y=2"};
    mesh_comm_desc d = MESH_ZERO;
    mesh_user_op op = MESH_ZERO;
    mesh m;
    d.timeout_ns = 20 * SECOND;
    op.combine = failing_add;
    op.ordered = 1;
    return mesh_parse(&m, meshes[k->n], k->n, &k->err) == MESH_OK &&
           mesh_comm_open(c, &k->net.base, &m, &d, &k->err) == MESH_OK && mesh_op_add(c, &op, &k->op) == MESH_OK;
}

/* ---- memory ---- */

/* What an operation has kept for the next is given back, so that the next has to ask for it. */
static void failing_cool(failing_rank *k) {
    mesh_transport *t = &k->net.base;
    mesh__engine *e = (mesh__engine *)t->engine;
    mesh_socket__impl *s = mesh_socket__of(t);
    int i;
    if (e->nactive) return;
    for (i = 0; i < e->nops; i++) {
        mesh__op *op = e->op[i];
        if (op->state != MESH__FREE) return;
    }
    for (i = 0; i < e->nops; i++) {
        mesh__op *op = e->op[i];
        mesh__schedule_free(&op->schedule);
        mesh_transport_free(t, op->ordinal);
        mesh_transport_free(t, op->origin.asked);
        mesh_transport_free(t, op);
    }
    mesh_transport_free(t, e->op);
    e->op = NULL;
    e->unused = e->rested = NULL;
    e->nops = e->op_cap = 0;
    for (i = 0; i < s->nslots; i++)
        if (s->slot[i]) return;
    mesh_transport_free(t, s->slot);
    mesh_transport_free(t, s->slot_next);
    s->slot = NULL;
    s->slot_next = NULL;
    s->nslots = s->slot_cap = s->slot_next_cap = 0; /* generations stay: late frames may name an id of before */
    s->slot_free = INT32_MAX;
}

typedef struct starved_trial_of {
    int what, large, blocking, victim, from, at; /* from: from `at` on */
} starved_trial_of;

/* The trial after one in which something failed, or nothing. Returns 0 when all are done. */
static int starved_next(starved_trial_of *m, int ranks, int failed) {
    if (failed) {
        m->at++;
        return 1;
    }
    m->at = 0;
    if (!m->from++ && m->what != F_COMM) return 1;
    m->from = 0;
    if (++m->victim < ranks) return 1;
    m->victim = 0;
    m->blocking ^= 1;
    if (m->large++ == 0) return 1;
    m->large = 0;
    do m->what++;
    while (m->what < F_OPS && failing_is_skipped(m->what, ranks));
    return m->what < F_OPS;
}

/* What the trial came to, on this rank. */
static void starved_check(failing_rank *k, const starved_trial_of *m) {
    const failing_rank *v = &k->w->rank[m->victim];
    char label[120];
    snprintf(label, sizeof label, "%s, rank %d of %d, %s, %s, memory of rank %d fails at call %d%s",
             failing_name(m->what), k->me, k->n, m->large ? "large" : "small", m->blocking ? "blocking" : "started",
             m->victim, m->at, m->from ? " and after" : "");
    if (k->status == MESH_OK) {
        if (memcmp(k->out, k->want, k->room)) test_fail(__FILE__, __LINE__, "%s: OK, with wrong values", label);
        return;
    }
    if (!v->memory.failed) {
        test_fail(__FILE__, __LINE__, "%s: nothing failed, and yet: %s", label, k->text);
        return;
    }
    if (k->status == MESH_ERR_PEER && k->broken) return; /* the connection went with it */
    if (m->what == F_COMM && k->me != m->victim && (k->status == MESH_ERR_TIMEOUT || k->status == MESH_ERR_PEER))
        return; /* it did not come, or left */
    if (k->status != MESH_ERR_MEMORY)
        test_fail(__FILE__, __LINE__, "%s: %s: %s", label, mesh_status_text(k->status), k->text);
    else if (!strstr(k->text, "memory") || !strstr(k->text, failing_name(m->what)))
        test_fail(__FILE__, __LINE__, "%s: the text lacks what was called or why: %s", label, k->text);
    else if (k->me != m->victim && k->blame != m->victim)
        test_fail(__FILE__, __LINE__, "%s: names rank %d: %s", label, k->blame, k->text);
}

/* One trial on this rank. Returns 0 if the world is of no more use: a connection has broken. */
static int starved_trial(failing_rank *k, const starved_trial_of *m, mesh_comm *control) {
    mesh_comm *c = k->c;
    int i, broken = 0, failed = 0;
    if (k->count != (m->large ? 30000u : 12u)) failing_buffers(k, m->large ? 30000 : 12);
    k->blocking = m->blocking;
    k->w->done = 0;
    failing_meet(k->w);
    failing_cool(k);
    if (k->me == m->victim) failing_arm(k, m->at, m->from ? INT32_MAX : 1);
    k->status = failing_operate(k, m->what);
    k->memory.armed = 0;
    mesh__copy_text(k->text, sizeof k->text, m->what == F_COMM ? k->err.text : c->error.text);
    k->blame = m->what == F_COMM ? k->err.rank : c->error.rank;
    if (m->at == 0) memcpy(k->want, k->out, k->room);
    k->broken = mesh_barrier(control, NULL) != MESH_OK;
    failing_meet(k->w);
    starved_check(k, m);
    mesh_barrier(c, NULL); /* fails where the operation has failed on any rank */
    k->failed = c->failed != 0;
    failing_meet(k->w);
    for (i = 0; i < k->n; i++) failed += k->w->rank[i].failed, broken |= k->w->rank[i].broken;
    failing_meet(k->w);
    if (failed && failed < k->n && !broken)
        test_fail(__FILE__, __LINE__,
                  "%s, memory of rank %d fails at call %d%s: the comm failed on %d of %d ranks; on rank %d: %s",
                  failing_name(m->what), m->victim, m->at, m->from ? " and after" : "", failed, k->n, k->me,
                  c->failed ? c->error.text : "it did not");
    if (!broken && (failed || m->what == MESH_CALL_GROUP_OPEN)) {
        mesh_comm_close(c);
        k->broken |= !failing_comm(k, c);
    }
    failing_meet(k->w);
    for (i = 0; i < k->n; i++) broken |= k->w->rank[i].broken;
    if (broken && !k->w->rank[m->victim].memory.failed)
        test_fail(__FILE__, __LINE__, "%s, rank %d: nothing failed, and the world is broken", failing_name(m->what),
                  k->me);
    return !broken;
}

/* Trials until a connection breaks; the one that did it is left in *ctx. */
static void starved_rank(failing_rank *k) {
    starved_trial_of m = *(starved_trial_of *)k->w->ctx, first = m;
    mesh_comm c, control;
    int more = 1, whole = 1;
    CHECK_OK(failing_join(k), k->err);
    memset(&c, 0, sizeof c);
    memset(&control, 0, sizeof control);
    k->c = &c;
    k->broken = !k->net.impl || !failing_comm(k, &control) || !failing_comm(k, &c);
    if (k->broken) test_fail(__FILE__, __LINE__, "rank %d: %s", k->me, k->err.text);
    failing_meet(k->w);
    first.at = 0; /* for its values */
    whole = starved_trial(k, &first, &control);
    failing_meet(k->w);
    while (more && whole && !k->w->stop) {
        whole = starved_trial(k, &m, &control);
        more = starved_next(&m, k->n, m.at == 0 || k->w->rank[m.victim].memory.failed);
        failing_meet(k->w);
    }
    if (k->me == 0) *(starved_trial_of *)k->w->ctx = m;
    mesh_comm_close(&c);
    mesh_comm_close(&control);
    failing_leave(k);
}

static void starved_everywhere(int backend, int ranks) {
    starved_trial_of m = MESH_ZERO;
    int before = failing_descriptors();
    m.what = ranks == 4 ? F_STEPS : MESH_CALL_ALL_REDUCE;
    failing_nap_ms = 5;
    while (m.what < F_OPS && !test_failures) {
        failing_world w;
        failing_world_start(&w, backend, ranks, starved_rank, &m);
        failing_world_end(&w);
        if (ranks == 4 && m.what != F_STEPS) break;
    }
    CHECK_INT(failing_descriptors(), before);
}
static void test_memory_tcp2(void) { starved_everywhere(TCP, 2); }
static void test_memory_tcp3(void) { starved_everywhere(TCP, 3); }
static void test_memory_unix2(void) { starved_everywhere(UNIX, 2); }
static void test_memory_unix3(void) { starved_everywhere(UNIX, 3); }
static void test_memory_steps(void) { starved_everywhere(UNIX, 4); }

/* ---- opening and closing without memory; system calls that fail ---- */

typedef struct failing_life {                   /* of a transport, from its opening to its close */
    int kind, error, at, times, victim, memory; /* memory: not a system call but the allocator fails */
    int must;                                   /* harmless: everything has to be right all the same */
    int made, counts[FAIL_KINDS];               /* allocations, and calls of each kind, that the victim made */
} failing_life;

/* Open, one small operation and one large, close. The one for whom nothing came of it lets the others' deadlines pass. */
static void life_rank(failing_rank *k) {
    failing_life *f = (failing_life *)k->w->ctx;
    mesh_comm c = MESH_ZERO;
    if (k->me == f->victim && !f->memory) {
        k->plan.kinds = 1u << f->kind;
        k->plan.at = f->at;
        k->plan.times = f->times;
        k->plan.error = f->error;
        failing_now = &k->plan;
    }
    if (k->me == f->victim && f->memory) failing_arm(k, f->at, f->times);
    k->status = failing_join(k);
    if (k->status == MESH_OK && !failing_comm(k, &c)) k->status = (mesh_status)k->err.status;
    k->c = &c;
    if (k->status == MESH_OK) {
        size_t i, count;
        for (count = 4; count <= (k->plan.piece == 1 ? 4u : 30000u) && k->status == MESH_OK; count += 29996) {
            failing_buffers(k, count);
            k->status = mesh_all_reduce(&c, NULL, k->in, k->out, count, MESH_I32, MESH_SUM);
            for (i = 0; i < count && k->status == MESH_OK; i++)
                if (k->out[i] != (int32_t)(i % 9973) * k->n + 5000 * k->n * (k->n - 1)) {
                    test_fail(__FILE__, __LINE__, "wrong at %d: %d", (int)i, (int)k->out[i]);
                    break;
                }
        }
        if (k->status != MESH_OK) k->err = c.error;
    }
    __sync_add_and_fetch(&k->w->done, 1);
    mesh_comm_close(&c);
    if (k->status == MESH_OK) /* the others still may need it */
        while (__sync_add_and_fetch(&k->w->done, 0) < k->n && k->net.base.engine)
            mesh_socket__progress(&k->net.base, mesh_socket__clock() + 1000000);
    while (k->status != MESH_OK && __sync_add_and_fetch(&k->w->done, 0) < k->n) {
        test_sleep(0.003);
        failing_skip(SECOND);
    }
    failing_now = NULL;
    k->memory.armed = 0;
    failing_leave(k);
}

/* What a life came to: every rank is right, or has a status that says what and where. */
static void life_check(failing_world *w, const failing_life *f) {
    const failing_rank *v = &w->rank[f->victim];
    int i, failed = f->memory ? v->memory.failed : v->plan.failed, wrong = 0;
    for (i = 0; i < w->ranks; i++) {
        const failing_rank *k = &w->rank[i];
        if (k->status == MESH_OK) continue;
        wrong |= !failed || f->must || !k->err.text[0];
        wrong |= i != f->victim && !strstr(k->err.text, "rank") && !strstr(k->err.text, "mesh_");
    }
    for (i = 0; i < w->ranks && wrong; i++)
        test_fail(__FILE__, __LINE__, "%s of rank %d fails at call %d%s (%s): rank %d: %s: %s",
                  f->memory ? "memory" : failing_names[f->kind], f->victim, f->at, f->times > 1 ? " and after" : "",
                  strerror(f->error), i, mesh_status_text(w->rank[i].status), w->rank[i].err.text);
}

/* Lives, many at once, for they mostly wait. */
static void lives(int backend, failing_life *f, int n) {
    enum { ONCE = 24 };
    static failing_world w[ONCE];
    int first, i, k, before = failing_descriptors();
    failing_nap_ms = 5;
    for (first = 0; first < n && !test_failures; first += ONCE) {
        for (i = first; i < n && i < first + ONCE; i++)
            failing_world_start(&w[i - first], backend, 2, life_rank, &f[i]);
        for (i = first; i < n && i < first + ONCE; i++) {
            for (k = 0; k < 2; k++) pthread_join(w[i - first].rank[k].thread, NULL);
            life_check(&w[i - first], &f[i]);
            f[i].made = f[i].memory ? w[i - first].rank[f[i].victim].memory.calls : 0;
            if (!f[i].memory) memcpy(f[i].counts, w[i - first].rank[f[i].victim].plan.counts, sizeof f[i].counts);
            failing_world_free(&w[i - first]);
        }
    }
    CHECK_INT(failing_descriptors(), before);
}

typedef struct failing_error {
    int kind, error, must;
} failing_error;
static const failing_error failing_errors[] = {{FAIL_AT_SOCKET, EMFILE, 0},
                                               {FAIL_AT_SOCKET, ENFILE, 0},
                                               {FAIL_AT_ACCEPT, EMFILE, 1},
                                               {FAIL_AT_ACCEPT, ECONNABORTED, 1},
                                               {FAIL_AT_ACCEPT, EINTR, 1},
                                               {FAIL_AT_CONNECT, EADDRNOTAVAIL, 0},
                                               {FAIL_AT_CONNECT, ECONNREFUSED, 0},
                                               {FAIL_AT_BIND, EADDRINUSE, 0},
                                               {FAIL_AT_LISTEN, EADDRINUSE, 0},
                                               {FAIL_AT_FCNTL, ENOMEM, 0},
                                               {FAIL_AT_SENDMSG, EINTR, 1},
                                               {FAIL_AT_SENDMSG, EAGAIN, 1},
                                               {FAIL_AT_SENDMSG, ENOBUFS, 1},
                                               {FAIL_AT_SENDMSG, ENOMEM, 0},
                                               {FAIL_AT_SENDMSG, ECONNRESET, 0},
                                               {FAIL_AT_RECVMSG, EINTR, 1},
                                               {FAIL_AT_RECVMSG, EAGAIN, 1},
                                               {FAIL_AT_RECVMSG, ENOMEM, 0},
                                               {FAIL_AT_RECVMSG, ECONNRESET, 0},
                                               {FAIL_AT_RECV, EINTR, 1},
                                               {FAIL_AT_RECV, EAGAIN, 1},
                                               {FAIL_AT_RECV, ECONNRESET, 0},
                                               {FAIL_AT_OPEN, EMFILE, 0},
                                               {FAIL_AT_READ, EINTR, 1},
                                               {FAIL_AT_READ, EIO, 0},
                                               {FAIL_AT_CLOSE, EINTR, 1},
                                               {FAIL_AT_POLL, EINTR, 1},
                                               {FAIL_AT_POLL, ENOMEM, 1},
                                               {FAIL_AT_GETSOCKOPT, ENOBUFS, 0},
                                               {FAIL_AT_SETSOCKOPT, ENOBUFS, 1},
                                               {FAIL_AT_GETSOCKNAME, ENOBUFS, 0},
                                               {FAIL_AT_GETADDRINFO, EAGAIN, 0},
                                               {FAIL_AT_SHUTDOWN, ENOTCONN, 1},
                                               {FAIL_AT_IOCTL, ENOTTY, 1},
                                               {FAIL_AT_STAT, EACCES, 1},
                                               {FAIL_AT_FOPEN, EMFILE, 1},
                                               {FAIL_AT_GETRLIMIT, EPERM, 1},
                                               {FAIL_AT_SYSCONF, EINVAL, 1},
                                               {FAIL_AT_NANOSLEEP, EINTR, 1},
                                               {FAIL_AT_EPOLL_CREATE, EMFILE, 1},
                                               {FAIL_AT_EPOLL_CTL, ENOSPC, 1},
                                               {FAIL_AT_EPOLL_WAIT, EINTR, 1},
                                               {FAIL_AT_SYSCALL, ENOSYS, 1}};

enum { LIVES = 4000, LIVES_EACH = 16 };

/* Which of `calls` are to fail: every one where they are few, else some that the seed draws. */
static int life_add(failing_life *list, int n, failing_life f, int calls, test_random *r) {
    int i;
    for (i = 0; i < calls && i < LIVES_EACH && n < LIVES; i++) {
        f.at = calls <= LIVES_EACH ? i + 1 : 1 + random_below(r, calls);
        list[n++] = f;
    }
    return n;
}

/* Every kind of call that a life makes, with every error that it may have, on either rank. */
static void calls_fail(int backend) {
    failing_life clean[2], *list = (failing_life *)calloc(LIVES, sizeof *list);
    test_random r = random_from(8);
    size_t i;
    int n = 0, v;
    memset(clean, 0, sizeof clean);
    for (v = 0; v < 2; v++) clean[v].victim = v;
    lives(backend, clean, 2);
    for (i = 0; i < sizeof failing_errors / sizeof failing_errors[0]; i++)
        for (v = 0; v < 2; v++) {
            failing_life f = MESH_ZERO;
            f.kind = failing_errors[i].kind;
            f.error = failing_errors[i].error;
            f.must = failing_errors[i].must;
            f.times = 1;
            f.victim = v;
            n = life_add(list, n, f, clean[v].counts[f.kind], &r);
        }
    lives(backend, list, n);
    free(list);
}
static void test_calls_tcp(void) { calls_fail(TCP); }
static void test_calls_unix(void) { calls_fail(UNIX); }

/* The same of the allocator: no transport can be had, or a comm, and nobody waits for ever. */
static void memory_life(int backend) {
    failing_life list[400];
    test_random r = random_from(9);
    int v, n = 0;
    memset(list, 0, sizeof list);
    for (v = 0; v < 2; v++) {
        failing_life f = MESH_ZERO;
        f.memory = f.times = 1;
        f.at = 1 << 20;
        f.victim = v;
        lives(backend, &f, 1);
        n = life_add(list, n, f, f.made, &r);
        f.times = INT_MAX;
        n = life_add(list, n, f, f.made, &r);
    }
    lives(backend, list, n);
}
static void test_memory_life(void) {
    memory_life(TCP);
    memory_life(UNIX);
}

/* ---- bytes that come singly, signals ---- */

/* Every collective once, of a few elements. */
static void conf_small(mesh_comm *comm) {
    conf_case c;
    int i;
    memset(&c, 0, sizeof c);
    c.t = comm->transport;
    c.comm = comm;
    c.memory = conf_memory_of(c.t, comm);
    c.n = comm->on.size;
    c.me = mesh_comm_index(comm, NULL);
    for (i = 0; i < c.n; i++) c.seed[i] = i;
    c.d = MESH_F32;
    c.elem = 4;
    conf_make_room(&c, 300);
    for (c.started = 0; c.started < 3; c.started++) {
        conf_moves(&c, 17);
        conf_many(&c, 9, MESH_SUM);
        conf_reductions(&c, 17, MESH_SUM);
    }
    conf_exchange(&c);
    conf_objects(&c, 300);
    conf_free_room(&c);
}

/* The transport's suite, redistributions and every operation with transfers cut short, or every other call interrupted. */
static void short_rank(mesh_transport *t, void *ctx) {
    static failing_plan plan;
    mesh_comm c;
    plan = *(const failing_plan *)ctx;
    plan.random = test_seed * 1000 + (uint64_t)t->rank;
    failing_now = &plan;
    conformance_redistribute(t, test_seed, 8, plan.piece == 1 ? 30 : 2000);
    if (plan.piece > 1) {
        conformance_collectives(t, "x=3", NULL, NULL, 9000);
    } else if (open_comm(t, &c, "x=2", NULL, 60 * SECOND)) {
        conf_halo(&c, 1, 7);
        conf_small(&c);
        mesh_comm_close(&c);
    }
    failing_now = NULL;
}
static void short_transfers(int backend, int ranks, int piece, int interrupt) {
    failing_plan p = MESH_ZERO;
    p.piece = piece;
    p.interrupt = interrupt;
    run_world(backend, ranks, short_rank, &p);
}
static void test_bytes_tcp(void) { short_transfers(TCP, 2, 1, 0); }
static void test_bytes_unix(void) { short_transfers(UNIX, 2, 1, 1); }
static void test_pieces_tcp(void) { short_transfers(TCP, 3, 3000, 1); }
static void test_pieces_unix(void) { short_transfers(UNIX, 3, 3000, 0); }

/* The same from the opening on: the handshake comes in single bytes too. */
static void byte_life_rank(failing_rank *k) {
    failing_life *f = (failing_life *)k->w->ctx;
    k->plan.piece = 1;
    k->plan.interrupt = f->at;
    failing_now = &k->plan;
    life_rank(k);
    CHECK_OK(k->status, k->err);
}
static void test_byte_handshake(void) {
    int b, i;
    for (b = TCP; b <= SHARED; b++)
        for (i = 0; i < 2; i++) {
            failing_life f = MESH_ZERO;
            failing_world w;
            f.victim = -1;
            f.at = i;
            failing_world_start(&w, b, 3, byte_life_rank, &f);
            failing_world_end(&w);
        }
}

/* ---- a link cut between two living ranks ---- */

typedef struct failing_cut {
    int what, how, cut; /* how: 0 reset, 1 shut down, 2 silent */
    int fd;
} failing_cut;

/* What a host in between may do to a connection. Runs in the middle of rank 2's operation. */
static void cut_now(void *ctx) {
    failing_rank *k = (failing_rank *)ctx;
    failing_cut *f = (failing_cut *)k->w->ctx;
    struct linger at_once = {1, 0};
    int fd = f->fd, pair[2];
    if (f->cut++) return;
    if (f->how == 1) {
        shutdown(fd, SHUT_RDWR);
        return;
    }
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    if (f->how == 0) setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    CHECK(dup2(pair[0], fd) == fd);
    close(pair[0]);
    close(pair[1]);
}

static void cut_rank(failing_rank *k) {
    static const int two = 2;
    failing_cut *f = (failing_cut *)k->w->ctx;
    mesh_comm c = MESH_ZERO, pair = MESH_ZERO;
    mesh_desc d = MESH_ZERO;
    mesh_socket__impl *s;
    mesh p;
    int v[4] = {1, 1, 1, 1}, got[4], i;
    CHECK_OK(failing_join(k), k->err);
    s = mesh_socket__of(&k->net.base);
    d.shape = &two;
    d.naxes = 1;
    d.origin = k->me & 2;
    CHECK_OK(mesh_make(&p, &d, &k->err), k->err);
    CHECK(failing_comm(k, &c));
    CHECK_OK(mesh_comm_open(&pair, &k->net.base, &p, NULL, &k->err), k->err);
    k->c = &c;
    failing_buffers(k, 30000);
    for (i = 1; i < 4; i++) CHECK_OK(mesh_sendrecv(&c, NULL, k->me ^ i, v, 1, k->me ^ i, got, 1, MESH_I32), c.error);
    if (k->me == 2 && s->peer[3].conn) f->fd = s->peer[3].conn->fd;
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    failing_meet(k->w);
    if (k->me == 2) {
        k->plan.kinds = FAIL_SENDMSG;
        k->plan.at = 1;
        k->plan.times = INT_MAX;
        k->plan.hook = cut_now;
        k->plan.hook_ctx = k;
        failing_now = &k->plan;
    }
    k->status = failing_operate(k, f->what);
    failing_now = NULL;
    if (k->me == 2) cut_now(k); /* it had nothing to send */
    for (i = 0; i < 3 && k->status == MESH_OK; i++)
        k->status = mesh_barrier(&c, NULL); /* one may do without that link */
    /* Ranks 2 and 3 may name one who gave them up; who was told late may name one who took back its side. */
    if (k->status != MESH_ERR_PEER ||
        (k->me < 2 && c.error.rank != 2 && c.error.rank != 3 && !strstr(c.error.text, "canceled its side")))
        test_fail(__FILE__, __LINE__, "%s, link of 2 and 3 cut: rank %d: %s, rank %d: %s", failing_name(f->what), k->me,
                  mesh_status_text(k->status), c.error.rank, c.error.text);
    failing_meet(k->w);
    if (k->me < 2) { /* those that are connected to each other go on */
        CHECK_OK(mesh_all_reduce(&pair, NULL, v, got, 1, MESH_I32, MESH_SUM), pair.error);
        CHECK_INT(got[0], 2);
    }
    failing_meet(k->w);
    mesh_comm_close(&c);
    mesh_comm_close(&pair);
    failing_leave(k);
}

static void cuts(int backend) {
    enum { ONCE = 6 };
    static failing_world w[ONCE];
    static failing_cut f[ONCE];
    int what = MESH_CALL_ALL_REDUCE, n, i;
    failing_nap_ms = 5;
    while (what < F_OPS) {
        for (n = 0; n < ONCE && what < F_OPS; what++) {
            if (failing_is_skipped(what, 4) || what == F_ALLOC || what == F_COPY || what == F_COMM) continue;
            memset(&f[n], 0, sizeof f[n]);
            f[n].what = what;
            f[n].how = (what + backend) % 2;
            failing_world_start(&w[n], backend, 4, cut_rank, &f[n]);
            n++;
        }
        for (i = 0; i < n; i++) failing_world_end(&w[i]);
    }
}
static void test_cut_tcp(void) { cuts(TCP); }
static void test_cut_unix(void) { cuts(UNIX); }

/* ---- a rank that is stopped for a while ---- */

#if MESH_SOCKET__LINUX
#include <sys/mman.h>
enum { STOPPED = 1 };
typedef struct failing_stop {
    volatile int64_t *late; /* all ranks' clocks: shared */
    int word[2];            /* an operation's number: somebody has said that rank 1 keeps it waiting */
} failing_stop;
static failing_stop stop_shared;
static int stop_what;

static void stop_log(void *ctx, int level, const char *text) {
    unsigned char what = (unsigned char)stop_what;
    (void)ctx, (void)level;
    if (strstr(text, "has waited for ") && strstr(text, "rank 1") && strstr(text, failing_name(stop_what)))
        CHECK(write(stop_shared.word[1], &what, 1) == 1);
}

static void stop_now(void *ctx) {
    failing_now = NULL;
    (void)ctx;
    raise(SIGSTOP);
}

/* Wait until the process is stopped; let 11 s pass for all, again and again (who comes to wait later is to wait as long), until one says who
   is late; let it go on. */
static int stop_watch(pid_t pid) {
    double end = test_now() + 30;
    unsigned char what = 0;
    char path[64], text[512], *p;
    struct pollfd f;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    for (;;) {
        FILE *stat_file = fopen(path, "r");
        int is_stopped =
            stat_file && fgets(text, sizeof text, stat_file) && (p = strrchr(text, ')')) != NULL && p[2] == 'T';
        if (stat_file) fclose(stat_file);
        if (is_stopped) break;
        if (test_now() > end) return 1;
        test_sleep(0.0005);
    }
    f.fd = stop_shared.word[0];
    f.events = POLLIN;
    while (what != stop_what && test_now() < end) {
        __sync_add_and_fetch(stop_shared.late, 11 * SECOND);
        while (what != stop_what && poll(&f, 1, 30) > 0) CHECK(read(stop_shared.word[0], &what, 1) == 1);
    }
    kill(pid, SIGCONT);
    return what == stop_what ? 0 : 2;
}

static void stop_rank(mesh_transport *t, void *ctx) {
    failing_rank k;
    failing_plan plan = MESH_ZERO;
    mesh_comm c;
    int what, status;
    (void)ctx;
    memset(&k, 0, sizeof k);
    k.me = t->rank;
    k.n = t->size;
    k.c = &c;
    t->log = stop_log;
    failing_late = stop_shared.late;
    failing_nap_ms = 20;
    if (!open_comm(t, &c, "x=3,y=1", NULL, 1000000 * SECOND)) return;
    mesh__impl(&c)->ask = SECOND;
    failing_buffers(&k, 30000);
    for (what = MESH_CALL_ALL_REDUCE; what < F_ALLOC; what++) {
        pid_t watcher = -1;
        if (failing_is_skipped(what, k.n) || what == F_USER_OP || what == MESH_CALL_GROUP_OPEN) continue;
        stop_what = what;
        k.blocking = what % 2;
        CHECK_INT(failing_operate(&k, what), MESH_OK);
        memcpy(k.want, k.out, k.room);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        if (t->rank == STOPPED) {
            pid_t me = getpid();
            fflush(NULL);
            if ((watcher = fork()) == 0) _exit(stop_watch(me));
            plan.kinds = FAIL_SENDMSG | FAIL_RECVMSG;
            plan.at = plan.times = 1;
            plan.calls = 0;
            plan.hook = stop_now;
            failing_now = &plan;
        }
        CHECK_OK(failing_operate(&k, what), c.error);
        failing_now = NULL;
        if (memcmp(k.out, k.want, k.room))
            test_fail(__FILE__, __LINE__, "%s: rank %d: wrong values", failing_name(what), k.me);
        if (watcher > 0) {
            CHECK(waitpid(watcher, &status, 0) == watcher);
            if (status)
                test_fail(__FILE__, __LINE__, "%s: rank 1 was not %s", failing_name(what),
                          WEXITSTATUS(status) == 1 ? "stopped" : "said to be late");
        }
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        if (c.failed) break;
    }
    mesh_comm_close(&c);
    free(k.in), free(k.out), free(k.want);
    failing_late = NULL;
}
static void stopped(int backend) {
    FILE *shared = tmpfile();
    void *p;
    CHECK(shared && ftruncate(fileno(shared), 4096) == 0 && pipe(stop_shared.word) == 0);
    p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(shared), 0);
    CHECK(p != MAP_FAILED);
    stop_shared.late = (volatile int64_t *)p;
    run_world(backend, 3, stop_rank, NULL);
}
static void test_stopped_tcp(void) { stopped(TCP); }
static void test_stopped_unix(void) { stopped(UNIX); }
#else
static void test_stopped_tcp(void) { fprintf(stderr, "    needs /proc: not tested\n"); }
static void test_stopped_unix(void) {}
#endif

static const test_case failing_tests[] = {
    {"failing/memory_tcp2", test_memory_tcp2, 300},
    {"failing/memory_tcp3", test_memory_tcp3, 300},
    {"failing/memory_unix2", test_memory_unix2, 300},
    {"failing/memory_unix3", test_memory_unix3, 300},
    {"failing/memory_steps", test_memory_steps, 300},
    {"failing/memory_life", test_memory_life, 0},
    {"failing/calls_tcp", test_calls_tcp, 0},
    {"failing/calls_unix", test_calls_unix, 0},
    {"failing/bytes_tcp", test_bytes_tcp, 0},
    {"failing/bytes_unix", test_bytes_unix, 0},
    {"failing/pieces_tcp", test_pieces_tcp, 0},
    {"failing/pieces_unix", test_pieces_unix, 0},
    {"failing/byte_handshake", test_byte_handshake, 0},
    {"failing/cut_tcp", test_cut_tcp, 0},
    {"failing/cut_unix", test_cut_unix, 0},
    {"failing/stopped_tcp", test_stopped_tcp, 0},
    {"failing/stopped_unix", test_stopped_unix, 0},
};

#endif
