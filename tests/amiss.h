/* A transport between the engine and another one, that does one thing amiss. */
#ifndef AMISS_H
#define AMISS_H

/* ---- a transport between the engine and another one, that does one thing amiss ---- */

enum { SHIM_RANGES = 64 };

typedef struct shim {
    mesh_transport base;
    mesh_transport *inner;
    mesh_ops ops;
    int refuse_aborts; /* so many announcements are refused for want of memory */
    int drop_aborts;   /* so many that arrive are dropped, as for want of memory */
    int starve_lost;   /* no memory while a LOST is taken in */
    int starved;
    int refuse_group; /* the group opened after so many others is refused, without a reason */
    int stick;        /* canceled tickets do not end, */
    int orphan;       /* or end as orphans: what they have under their hands stays there */
    int nstuck, reused, freed, asked, announced, posts;
    struct {
        mesh_ticket ticket;
        unsigned char *base;
        uint64_t nbytes;
        int canceled;
    } stuck[SHIM_RANGES]; /* receives that are under way: what they have under their hands */
} shim;

static shim *shim_of(mesh_transport *t) { return (shim *)(void *)t; }

static mesh_status shim_post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    shim *s = shim_of(t);
    mesh_post q = *p;
    mesh_status status;
    int i, k;
    q.group = NULL;
    s->posts++;
    for (i = 0; i < p->count; i++)
        for (k = 0; k < s->nstuck; k++) {
            unsigned char *at = (unsigned char *)p->xfer[i].base;
            s->reused += at < s->stuck[k].base + s->stuck[k].nbytes && s->stuck[k].base < at + p->xfer[i].nbytes;
        }
    status = s->inner->ops->post(s->inner, &q, ticket);
    for (i = 0; s->stick && status == MESH_OK && i < p->count && s->nstuck < SHIM_RANGES; i++)
        if (p->xfer[i].direction == MESH_RECV) {
            s->stuck[s->nstuck].ticket = *ticket;
            s->stuck[s->nstuck].base = (unsigned char *)p->xfer[i].base;
            s->stuck[s->nstuck].canceled = 0;
            s->stuck[s->nstuck++].nbytes = p->xfer[i].nbytes;
        }
    return status;
}
static int shim_is_stuck(const shim *s, const mesh_ticket *ticket) {
    int k;
    for (k = 0; k < s->nstuck && s->stuck[k].ticket.impl != ticket->impl; k++) {}
    return k < s->nstuck;
}
/* The tickets that were stuck end, as when a transport closes. */
static void shim_unstick(shim *s) {
    mesh_error why;
    for (; s->nstuck > 0; s->nstuck--) {
        mesh_ticket ticket = s->stuck[s->nstuck - 1].ticket;
        int k;
        for (k = 0; s->stuck[k].ticket.impl != ticket.impl; k++) {}
        if (k < s->nstuck - 1) continue; /* another receive of the same */
        s->inner->ops->cancel(s->inner, &ticket);
        s->inner->ops->test(s->inner, &ticket, &why);
    }
}
static mesh_status shim_test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    shim *s = shim_of(t);
    int k;
    for (k = 0; s->orphan && k < s->nstuck; k++)
        if (s->stuck[k].ticket.impl == ticket->impl && s->stuck[k].canceled) {
            ticket->id = MESH_TICKET_ORPHANED;
            return mesh__fail(why, MESH_ERR_CANCELED, -1, "canceled, but not taken back");
        }
    if (shim_is_stuck(s, ticket)) return MESH_IN_PROGRESS;
    return s->inner->ops->test(s->inner, ticket, why);
}
static int shim_pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    shim *s = shim_of(t);
    s->asked++;
    return s->inner->ops->pending(s->inner, ticket, ranks, cap);
}
static mesh_status shim_cancel(mesh_transport *t, mesh_ticket *ticket) {
    shim *s = shim_of(t);
    int k;
    for (k = 0; k < s->nstuck; k++) s->stuck[k].canceled |= s->stuck[k].ticket.impl == ticket->impl;
    return shim_is_stuck(s, ticket) ? MESH_OK : s->inner->ops->cancel(s->inner, ticket);
}
static mesh_status shim_progress(mesh_transport *t, int64_t deadline) {
    shim_of(t)->starved = 0;
    return shim_of(t)->inner->ops->progress(shim_of(t)->inner, deadline);
}
static int64_t shim_now(mesh_transport *t) { return shim_of(t)->inner->ops->now(shim_of(t)->inner); }
static mesh_status shim_control_send(mesh_transport *t, int rank, int kind, const void *data, size_t n) {
    shim *s = shim_of(t);
    if (kind == MESH_EVENT_ABORT && s->refuse_aborts > 0) {
        s->refuse_aborts--;
        return MESH_ERR_MEMORY;
    }
    s->announced += kind == MESH_EVENT_ABORT;
    return s->inner->ops->control_send(s->inner, rank, kind, data, n);
}
static mesh_status shim_control_poll(mesh_transport *t, mesh_control *out) {
    shim *s = shim_of(t);
    mesh_status status;
    s->starved = 0;
    while ((status = s->inner->ops->control_poll(s->inner, out)) == MESH_OK && out->kind == MESH_EVENT_ABORT &&
           s->drop_aborts > 0)
        s->drop_aborts--;
    if (status == MESH_OK && out->kind == MESH_EVENT_LOST && s->starve_lost) s->starved = 1;
    return status;
}
static mesh_status shim_close(mesh_transport *t, mesh_error *why) {
    (void)t, (void)why;
    return MESH_OK;
}
static mesh_status shim_group_open(mesh_transport *t, void *parent, uint32_t id, const mesh *group, int color, int key,
                                   int64_t deadline, void **out, mesh_error *why) {
    (void)parent, (void)id, (void)group, (void)color, (void)key, (void)deadline, (void)why;
    *out = NULL;
    return shim_of(t)->refuse_group > 0 && --shim_of(t)->refuse_group == 0 ? MESH_ERR_MEMORY : MESH_OK;
}
static mesh_status shim_group_close(mesh_transport *t, void *group) {
    (void)t, (void)group;
    return MESH_OK;
}
/* The lists' collectives are the transport's own; it has nothing to move. */
static mesh_status shim_collective(mesh_transport *t, void *group, const mesh_call *call, mesh_ticket *ticket) {
    mesh_post mark;
    (void)group;
    if (!call->nbuffers) return MESH_ERR_UNSUPPORTED;
    if (!ticket) return MESH_OK;
    memset(&mark, 0, sizeof mark);
    mark.channel = call->channel;
    return shim_of(t)->inner->ops->post(shim_of(t)->inner, &mark, ticket);
}

typedef struct shim_block {
    size_t nbytes, zero;
} shim_block;

static void *shim_alloc(void *ctx, size_t n) {
    shim_block *b = ((shim *)ctx)->starved ? NULL : (shim_block *)malloc(sizeof *b + n);
    if (!b) return NULL;
    b->nbytes = n;
    return b + 1;
}
static void shim_free(void *ctx, void *p) {
    shim *s = (shim *)ctx;
    shim_block *b = p ? (shim_block *)p - 1 : NULL;
    int k;
    for (k = 0; b && k < s->nstuck; k++)
        s->freed += s->stuck[k].base < (unsigned char *)p + b->nbytes &&
                    (unsigned char *)p < s->stuck[k].base + s->stuck[k].nbytes;
    free(b);
}

static void shim_make(shim *s, mesh_transport *inner) {
    static const mesh_ops bare = {sizeof(mesh_ops),  MESH_ABI,    "shim",        shim_post, shim_test,
                                  shim_pending,      shim_cancel, shim_progress, shim_now,  shim_control_send,
                                  shim_control_poll, shim_close,  MESH_OPS_BARE};
    memset(s, 0, sizeof *s);
    s->ops = bare;
    s->base = *inner;
    s->base.ops = &s->ops;
    s->base.engine = NULL;
    s->base.allocator.alloc = shim_alloc;
    s->base.allocator.free = shim_free;
    s->base.allocator.ctx = s;
    s->inner = inner;
}

/* A comm over `size` ranks from `first` on. */
static int open_some(mesh_transport *t, mesh_comm *c, int first, int size, int64_t timeout) {
    mesh m;
    mesh_desc d = MESH_ZERO;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    d.shape = &size;
    d.naxes = 1;
    d.origin = first;
    desc.timeout_ns = timeout;
    desc.ask_ns = SECOND / 10;
    CHECK_OK(mesh_make(&m, &d, &err), err);
    if (mesh_comm_open(c, t, &m, &desc, &err)) {
        test_fail(__FILE__, __LINE__, "rank %d: %s", t->rank, err.text);
        return 0;
    }
    return 1;
}

/* Between ranks, whatever they are (threads, processes): a byte for every word said. */
typedef struct word {
    int fd[2];
} word;
static void word_make(word *w) { CHECK(pipe(w->fd) == 0); }
static void word_say(word *w) { CHECK(write(w->fd[1], "w", 1) == 1); }
/* Wait for a word without a call into the library; 0: none came. */
static int word_hear(word *w, int ms) {
    struct pollfd p;
    char c;
    p.fd = w->fd[0];
    p.events = POLLIN;
    return poll(&p, 1, ms) > 0 && read(w->fd[0], &c, 1) == 1;
}

#endif
