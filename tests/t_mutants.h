/* Transports that break one rule of the transport struct each: the conformance suite must catch every one. They stand on the simulator. */
#ifndef T_MUTANTS_H
#define T_MUTANTS_H

enum {
    M_NONE,
    M_COMPLETES_EARLY,
    M_REORDERS,
    M_TRUNCATES,
    M_IGNORES_STRIDES,
    M_DUPLICATES,
    M_LOSES_LAST_BYTE,
    M_OVER_REPORTS_PENDING,
    M_DROPS_AT_CLOSE,
    M_TOUCHES_AFTER_CANCEL,
    M_FORGETS_WAKE_UP,
    M_REDUCES_TWICE,
    M_REPLACES,
    M_REDUCES_BEYOND,
    M_LOSES_ITS_HOST,
    M_COUNT
};
static const char *const mutant_names[] = {"none",
                                           "completes early",
                                           "reorders",
                                           "truncates",
                                           "ignores strides",
                                           "duplicates",
                                           "loses the last byte",
                                           "over-reports pending",
                                           "drops data at a peer's close",
                                           "touches memory after cancel",
                                           "forgets a wake-up",
                                           "reduces twice",
                                           "receives where it should reduce",
                                           "reduces beyond strides",
                                           "does not know its own host"};

typedef struct mutant {
    mesh_transport base;
    mesh_transport *inner;
    int kind;
    void *canceled; /* memory of a canceled receive */
    size_t canceled_bytes;
    int peer_closed,
        told; /* peer_closed: the rank + 1; told: the suite's signal that what came after a cancel is on its way */
} mutant;

static mutant *mutant_of(mesh_transport *t) { return (mutant *)(void *)t; }

static mesh_status mutant_post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    mutant *m = mutant_of(t);
    mesh_post q = *p;
    mesh_xfer x[64];
    mesh_ticket extra;
    mesh_error why;
    mesh_status status;
    int i, k;
    for (i = 0; i < p->count && i < 64; i++) {
        x[i] = p->xfer[i];
        if (m->kind == M_TRUNCATES && x[i].nbytes > 65536 && !x[i].block) x[i].nbytes = 65536;
        if (m->kind == M_LOSES_LAST_BYTE && x[i].nbytes > 1 && !x[i].block) x[i].nbytes--;
        if (m->kind == M_IGNORES_STRIDES || (m->kind == M_REDUCES_BEYOND && x[i].direction == MESH_REDUCE))
            x[i].block = NULL;
        if (m->kind == M_REPLACES && x[i].direction == MESH_REDUCE) x[i].direction = MESH_RECV;
        if (m->kind == M_REDUCES_TWICE && x[i].direction == MESH_REDUCE && p->dtype == MESH_F32)
            for (k = 0; k < 4; k++) ((float *)x[i].base)[k] *= 2; /* as if the first were combined with itself */
    }
    q.xfer = x;
    if (m->kind == M_REORDERS && p->count == 2 && x[0].direction == MESH_SEND && x[1].direction == MESH_SEND) {
        mesh_xfer y = x[0];
        x[0] = x[1];
        x[1] = y;
    }
    if (m->kind == M_DUPLICATES && p->count == 1 && x[0].direction == MESH_SEND && x[0].nbytes == sizeof(int)) {
        if (m->inner->ops->post(m->inner, &q, &extra) == MESH_OK) m->inner->ops->test(m->inner, &extra, &why);
    }
    if (m->kind == M_DROPS_AT_CLOSE && m->peer_closed == x[0].rank + 1 && x[0].direction == MESH_RECV)
        q.channel += 1000; /* what lay there is forgotten */
    status = m->inner->ops->post(m->inner, &q, ticket);
    if (m->kind == M_TOUCHES_AFTER_CANCEL && x[0].direction == MESH_RECV) {
        m->canceled = x[0].base;
        m->canceled_bytes = (size_t)x[0].nbytes;
    }
    return status;
}

static mesh_status mutant_test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    mutant *m = mutant_of(t);
    mesh_status status = m->inner->ops->test(m->inner, ticket, why);
    if (m->kind == M_COMPLETES_EARLY && status == MESH_IN_PROGRESS) {
        m->inner->ops->cancel(m->inner, ticket);
        m->inner->ops->test(m->inner, ticket, why);
        return MESH_OK;
    }
    return status;
}

static int mutant_pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    mutant *m = mutant_of(t);
    int n = m->inner->ops->pending(m->inner, ticket, ranks, cap);
    if (m->kind == M_OVER_REPORTS_PENDING && n > 0 && n < cap && t->size > n + 1) {
        int r, i;
        for (r = 0; r < t->size; r++) {
            for (i = 0; i < n && ranks[i] != r; i++) {}
            if (i == n && r != t->rank) break;
        }
        ranks[n++] = r;
    }
    return n;
}

static mesh_status mutant_cancel(mesh_transport *t, mesh_ticket *ticket) {
    return mutant_of(t)->inner->ops->cancel(mutant_of(t)->inner, ticket);
}

static mesh_status mutant_progress(mesh_transport *t, int64_t deadline) {
    mutant *m = mutant_of(t);
    mesh_status status;
    if (m->kind == M_FORGETS_WAKE_UP) { /* sleeps through to the deadline */
        int64_t now = m->inner->ops->now(m->inner);
        if (deadline > now) mesh_sim_sleep(m->inner, deadline - now);
    }
    status = m->inner->ops->progress(m->inner, deadline);
    if (m->kind == M_TOUCHES_AFTER_CANCEL && m->canceled && m->told)
        memset(m->canceled, 0x55, m->canceled_bytes), m->canceled = NULL;
    return status;
}

static int64_t mutant_now(mesh_transport *t) { return mutant_of(t)->inner->ops->now(mutant_of(t)->inner); }
static mesh_status mutant_control_send(mesh_transport *t, int rank, int kind, const void *data, size_t n) {
    return mutant_of(t)->inner->ops->control_send(mutant_of(t)->inner, rank, kind, data, n);
}
static mesh_status mutant_control_poll(mesh_transport *t, mesh_control *out) {
    mutant *m = mutant_of(t);
    mesh_status status = m->inner->ops->control_poll(m->inner, out);
    if (status == MESH_OK && out->kind == MESH_EVENT_CLOSED) m->peer_closed = out->rank + 1;
    if (status == MESH_OK && out->kind == MESH_EVENT_MESSAGE && out->data[0] == 'y') m->told = 1;
    return status;
}
static mesh_status mutant_close(mesh_transport *t, mesh_error *why) {
    (void)why;
    mesh_transport_detach(t);
    return mesh_sim_close(mutant_of(t)->inner);
}

static int mutant_locality(mesh_transport *t, int rank) {
    mutant *m = mutant_of(t);
    if (m->kind == M_LOSES_ITS_HOST && rank == t->rank) return -1;
    return m->inner->ops->locality(m->inner, rank);
}

static void mutant_rank(mesh_transport *inner, void *ctx) {
    static const mesh_ops bare = {sizeof(mesh_ops),    MESH_ABI,      "mutant",        mutant_post, mutant_test,
                                  mutant_pending,      mutant_cancel, mutant_progress, mutant_now,  mutant_control_send,
                                  mutant_control_poll, mutant_close,  MESH_OPS_BARE};
    mesh_ops ops = bare;
    mutant m;
    ops.locality = mutant_locality;
    memset(&m, 0, sizeof m);
    m.base = *inner;
    m.base.ops = &ops;
    m.base.engine = NULL;
    m.inner = inner;
    m.kind = *(int *)ctx;
    conformance_transport(&m.base);
    mesh_transport_detach(&m.base);
}

/* Each mutant in a process of its own, quietly: it may crash or hang, which counts as caught. */
static void test_mutants(void) {
    int kind, status;
    for (kind = M_NONE; kind < M_COUNT; kind++) {
        pid_t pid;
        int ended;
        fflush(NULL);
        pid = fork();
        if (pid == 0) {
            mesh_sim_desc d = sim_desc(3);
            mesh_error err;
            int null = open("/dev/null", O_WRONLY);
            d.reduces = 1;
            dup2(null, 2);
            mesh_sim_run(&d, mutant_rank, &kind, &err);
            _exit(conformance_failures ? 1 : 0);
        }
        ended = test_wait_child(pid, test_now() + 20, &status);
        if (!ended) {
            if (pid > 0) kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
        }
        if ((ended && WIFEXITED(status) && WEXITSTATUS(status) == 0) != (kind == M_NONE))
            test_fail(__FILE__, __LINE__, "a transport that %s %s the suite", mutant_names[kind],
                      kind == M_NONE ? "is right fails" : "passes");
    }
}

static const test_case mutant_tests[] = {
    {"conformance/mutants", test_mutants, 0},
};

#endif
