/* nccl/comms.h - communicators: made, connected, kept, aborted. Part of mesh.h 0.1.0. MIT licence.

   Includes agree.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_NCCL_COMMS_IMPLEMENTED)
#define MESH_NCCL_COMMS_IMPLEMENTED
#include "agree.h"

/* ---- // >>communicators ---- */

/* One that this comm has already, or that no comm has any more: what ends with a comm must be its own. */
MESH__RARE mesh_nccl__comm *mesh_nccl__find(mesh_nccl__state *s, const mesh *on, uint32_t owner) {
    mesh_nccl__comm *c;
    int i;
    pthread_mutex_lock(&s->lock);
    for (c = s->comm; c; c = c->next) {
        if (c->size != on->size || c->life != MESH_NCCL__OPEN || c->stale || (c->refs && c->owner != owner)) continue;
        for (i = 0; i < c->size && c->rank[i] == mesh_rank_at(on, i); i++) {}
        if (i == c->size) break;
    }
    pthread_mutex_unlock(&s->lock);
    return c;
}

/* What a communicator's list of ranks has of its own on the device. *what: the call that failed. */
MESH__RARE cudaError_t mesh_nccl__comm_make(mesh_nccl__state *s, mesh_nccl__comm *c, const char **what) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    size_t nbytes = (MESH_NCCL__BARRIERS + 1) * sizeof *c->past.verdict;
    void *verdict = NULL;
    cudaError_t r;
    *what = "cudaStreamCreateWithFlags";
    mesh_nccl__use_device(s);
    mesh_nccl__capture_mode(s, &mode);
    r = s->api.cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (r == cudaSuccess) *what = "cudaEventCreateWithFlags";
    if (r == cudaSuccess) r = s->api.cudaEventCreateWithFlags(&c->enter, cudaEventDisableTiming);
    if (r == cudaSuccess) r = s->api.cudaEventCreateWithFlags(&c->captured, cudaEventDisableTiming);
    if (r == cudaSuccess) *what = "cudaMalloc";
    if (r == cudaSuccess && c->size > 1) r = s->api.cudaMalloc(&c->word, 256);
    if (r == cudaSuccess) *what = "cudaHostAlloc";
    if (r == cudaSuccess && c->size > 1) r = s->api.cudaHostAlloc(&verdict, nbytes, cudaHostAllocDefault);
    if (r == cudaSuccess && c->size > 1) {
        memset(verdict, 0xff, nbytes); /* the last one stays so: a graph's barriers say nothing */
        c->past.verdict = (mesh_nccl__verdict *)verdict;
    }
    mesh_nccl__capture_mode(s, &mode);
    return r;
}

MESH__RARE void mesh_nccl__comm_free(mesh_nccl__state *s, mesh_nccl__comm *c) {
    while (c->nmarks) {
        s->event[s->nevents++] = c->mark[c->first_mark].event;
        c->first_mark = (c->first_mark + 1) % c->mark_cap;
        c->nmarks--;
    }
    if (c->word) s->api.cudaFree(c->word);
    if (c->past.verdict) s->api.cudaFreeHost(c->past.verdict);
    if (c->stream) s->api.cudaStreamDestroy(c->stream);
    if (c->enter) s->api.cudaEventDestroy(c->enter);
    if (c->captured) s->api.cudaEventDestroy(c->captured);
    mesh_transport_free(s->boot, c->mark);
    mesh_transport_free(s->boot, c->rank);
    mesh_transport_free(s->boot, c);
}

/* A list of ranks with its stream, not joined to the others yet. */
MESH__RARE mesh_nccl__comm *mesh_nccl__comm_new(mesh_nccl__state *s, const mesh *on, mesh_error *err) {
    mesh_nccl__comm *c = (mesh_nccl__comm *)mesh_transport_alloc(s->boot, sizeof *c);
    int *rank = (int *)mesh_transport_alloc(s->boot, sizeof *rank * (size_t)on->size), i;
    const char *what;
    cudaError_t r;
    if (!c || !rank) {
        mesh_transport_free(s->boot, c);
        mesh_transport_free(s->boot, rank);
        mesh__fail(err, MESH_ERR_MEMORY, s->boot->rank, "no memory for a communicator");
        return NULL;
    }
    memset(c, 0, sizeof *c);
    c->rank = rank;
    c->size = on->size;
    c->index = mesh_index_of(on, s->boot->rank);
    for (i = 0; i < on->size; i++) rank[i] = mesh_rank_at(on, i);
    if ((r = mesh_nccl__comm_make(s, c, &what)) != cudaSuccess) {
        mesh_nccl__cuda_fail(s, err, what, r);
        mesh_nccl__comm_free(s, c);
        return NULL;
    }
    c->on = c->last = c->stream;
    pthread_mutex_lock(&s->lock);
    c->next = s->comm;
    s->comm = c;
    pthread_mutex_unlock(&s->lock);
    return c;
}

MESH__RARE ncclConfig_t mesh_nccl__config(const mesh_nccl__state *s, int blocking, const char *name) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    config.splitShare = 0; /* children that share would end together */
    if (s->max_ctas) config.maxCTAs = s->max_ctas;
#if NCCL_VERSION_CODE >= 22700
    config.commName = name;
#else
    (void)name;
#endif
    return config;
}

/* A rank that cannot join says so at once: the others would wait for it inside NCCL. */
MESH__RARE void mesh_nccl__tell(mesh_nccl__state *s, const mesh_nccl__comm *ranks, uint32_t id, const mesh_error *why) {
    unsigned char data[MESH_CONTROL_BYTES];
    size_t length = mesh_nccl__abort_write(data, id >> 8, why);
    int i;
    mesh__put64(data + 16, s->opened);
    pthread_mutex_lock(&s->boot_lock);
    for (i = 0; i < ranks->size; i++)
        if (ranks->rank[i] != s->boot->rank)
            s->boot->ops->control_send(s->boot, ranks->rank[i], MESH_EVENT_ABORT, data, length);
    pthread_mutex_unlock(&s->boot_lock);
}

/* Look once for ranks that are lost or cannot join, and at the clock, while `what` is under way. */
MESH__RARE mesh_status mesh_nccl__waits(mesh_nccl__state *s, const mesh_nccl__comm *ranks, uint32_t id,
                                        const char *what, int64_t deadline, mesh_error *err) {
    const mesh_nccl__mail *mail;
    mesh_status told = MESH_IN_PROGRESS;
    pthread_mutex_lock(&s->boot_lock);
    s->boot->ops->progress(s->boot, 0);
    mesh_nccl__listen(s);
    for (mail = s->mail; mail && told == MESH_IN_PROGRESS; mail = mail->next) {
        const mesh_control *m = &mail->m;
        char text[MESH_ERROR_BYTES];
        if (m->kind == MESH_EVENT_LOST && mesh_nccl__has_rank(ranks, m->rank))
            told = mesh__fail(err, MESH_ERR_PEER, m->rank, "%s: rank %d was lost", what, m->rank);
        if (m->kind != MESH_EVENT_ABORT || m->nbytes < MESH__ABORT_HEAD || mesh__get32(m->data) != id >> 8) continue;
        mesh__abort_text(text, m->data, m->nbytes);
        told = mesh__fail(err, mesh__status_heard(m->data + 4), (int)mesh__get32(m->data + 8), "%s", text);
    }
    pthread_mutex_unlock(&s->boot_lock);
    if (told == MESH_IN_PROGRESS && mesh_nccl__now(s) >= deadline)
        told = mesh__fail(err, MESH_ERR_TIMEOUT, -1, "%s is not done at its deadline: NCCL does not reach every rank",
                          what);
    return told;
}

/* Wait until a non-blocking communicator is ready. */
MESH__RARE mesh_status mesh_nccl__await(mesh_nccl__state *s, ncclComm_t *comm, const mesh_nccl__comm *ranks,
                                        uint32_t id, const char *what, int64_t deadline, mesh_error *err) {
    ncclResult_t r = ncclInProgress, asked = ncclSuccess;
    mesh_status told;
    int64_t nap = 20000;
    for (;;) {
        if (*comm) asked = s->api.ncclCommGetAsyncError(*comm, &r);
        if (asked != ncclSuccess) return mesh_nccl__fail(s, err, what, asked);
        if (r == ncclSuccess) return MESH_OK;
        if (r != ncclInProgress) return mesh_nccl__fail(s, err, what, r);
        if ((told = mesh_nccl__waits(s, ranks, id, what, deadline, err)) != MESH_IN_PROGRESS) return told;
        mesh_nccl__nap(nap);
        if (nap < 1000000) nap *= 2;
    }
}

/* A split of the caller's communicator, which may be a blocking one: in a thread of its own. */
typedef struct mesh_nccl__branch {
    mesh_nccl__api api;
    ncclComm_t given, made;
    ncclConfig_t config;
    ncclResult_t result;
    pthread_mutex_t lock; /* over, left */
    int device, key, over, left;
    char name[32]; /* config's: the communicator's own may go before the thread */
} mesh_nccl__branch;

MESH__RARE void mesh_nccl__branch_end(mesh_nccl__branch *b) {
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static void *mesh_nccl__branch_main(void *arg) {
    mesh_nccl__branch *b = (mesh_nccl__branch *)arg;
    ncclResult_t r, asked = ncclSuccess;
    int left;
    b->api.cudaSetDevice(b->device);
    r = b->api.ncclCommSplit(b->given, 0, b->key, &b->made, &b->config);
    if (r == ncclSuccess) r = ncclInProgress; /* so NCCL answers for a non-blocking one too, which has only begun */
    while (r == ncclInProgress && asked == ncclSuccess) {
        asked = b->api.ncclCommGetAsyncError(b->given, &r);
        if (r == ncclInProgress) mesh_nccl__nap(100000);
    }
    pthread_mutex_lock(&b->lock);
    b->result = asked != ncclSuccess ? asked : r;
    b->over = 1;
    left = b->left;
    pthread_mutex_unlock(&b->lock);
    if (left && b->made) b->api.ncclCommAbort(b->made); /* it came too late */
    if (left) mesh_nccl__branch_end(b);
    return NULL;
}

/* Does a root of these ranks come from the caller's communicator? */
MESH__RARE int mesh_nccl__branches(const mesh_nccl__state *s, const mesh_nccl__comm *all) {
    return s->given && all->size == s->boot->size;
}

/* The root of all ranks, from the caller's communicator. A rank that does not come is a deadline: the thread is left. */
MESH__RARE mesh_status mesh_nccl__branch_off(mesh_nccl__state *s, mesh_nccl__comm *all, const ncclConfig_t *config,
                                             uint32_t id, int64_t deadline, mesh_error *err) {
    static const char what[] = "ncclCommSplit of mesh_nccl_desc.comm";
    mesh_nccl__branch *b = (mesh_nccl__branch *)malloc(sizeof *b); /* may outlive the allocator */
    mesh_status status = MESH_IN_PROGRESS;
    pthread_t thread;
    int over = 0;
    if (!b) return mesh__fail(err, MESH_ERR_MEMORY, s->boot->rank, "no memory for a communicator");
    memset(b, 0, sizeof *b);
    b->api = s->api;
    b->given = s->given;
    b->config = *config;
    memcpy(b->name, all->name, sizeof b->name);
#if NCCL_VERSION_CODE >= 22700
    b->config.commName = b->name;
#endif
    b->device = s->n->device;
    b->key = all->index;
    pthread_mutex_init(&b->lock, NULL);
    if (pthread_create(&thread, NULL, mesh_nccl__branch_main, b) != 0) {
        mesh_nccl__branch_end(b);
        return mesh__fail(err, MESH_ERR_MEMORY, s->boot->rank, "no thread to split mesh_nccl_desc.comm in");
    }
    while (!over && status == MESH_IN_PROGRESS) {
        mesh_nccl__nap(200000);
        status = mesh_nccl__waits(s, all, id, what, deadline, err);
        pthread_mutex_lock(&b->lock);
        over = b->over;
        b->left = !over && status != MESH_IN_PROGRESS;
        pthread_mutex_unlock(&b->lock);
    }
    if (!over) {
        pthread_detach(thread);
        return status;
    }
    pthread_join(thread, NULL);
    all->root = b->made;
    status = b->result == ncclSuccess ? MESH_OK : mesh_nccl__fail(s, err, what, b->result);
    mesh_nccl__branch_end(b);
    return status;
}

/* NCCL connects when an algorithm is first used: on the host, inside that call, until every rank has come. Better here, where all do: rings (of
   all but small sums) and trees. */
MESH__RARE mesh_status mesh_nccl__connect(mesh_nccl__state *s, mesh_nccl__comm *c, const mesh_nccl__comm *ranks,
                                          uint32_t id, int64_t deadline, mesh_error *err) {
    mesh__record none = mesh_nccl__no_record(0);
    ncclComm_t comm = c->made;
    mesh_ticket ticket;
    mesh_status status = MESH_IN_PROGRESS;
    ncclResult_t r;
    pthread_mutex_lock(&s->lock);
    if (c->life == MESH_NCCL__ENDED) {
        status = mesh__fail(err, (mesh_status)c->end.why.status, c->end.why.rank, "%s", c->end.why.text);
    } else {
        c->comm = comm;
        c->made = NULL;
        c->life = MESH_NCCL__CONNECTING;
        c->owner = id >> 8;
    }
    pthread_mutex_unlock(&s->lock);
    if (status == MESH_IN_PROGRESS) /* what came before is told here, what comes from now on ends it */
        status = mesh_nccl__waits(s, ranks, id, "connecting", deadline, err);
    if (status != MESH_IN_PROGRESS) return status;
    memset(&ticket, 0, sizeof ticket);
    if (mesh_nccl__enter(s, c, &none, deadline)) { /* else it has ended, which is told below */
        r = s->api.ncclBroadcast(c->word, c->word, 8, ncclUint8, 0, comm, c->stream);
        if (r == ncclSuccess) r = s->api.ncclAllReduce(c->word, c->word, 1, ncclUint64, ncclMin, comm, c->stream);
        mesh_nccl__said(s, "connecting", r);
        mesh_nccl__issued(s, c, &ticket);
        mesh_nccl__leave(s, c);
    }
    while (status == MESH_IN_PROGRESS) {
        pthread_mutex_lock(&s->boot_lock);
        s->boot->ops->progress(s->boot, 0);
        mesh_nccl__listen(s);
        pthread_mutex_lock(&s->lock);
        mesh_nccl__act(s);
        mesh_nccl__look(s);
        if (mesh_nccl__now(s) >= deadline)
            mesh_nccl__end(s, c, MESH_ERR_TIMEOUT, -1, "connecting is not done at its deadline");
        if (c->life == MESH_NCCL__ENDED)
            status = mesh__fail(err, (mesh_status)c->end.why.status, c->end.why.rank, "%s", c->end.why.text);
        else if (ticket.id <= c->completed)
            status = MESH_OK;
        pthread_mutex_unlock(&s->lock);
        pthread_mutex_unlock(&s->boot_lock);
        if (status == MESH_IN_PROGRESS) mesh_nccl__nap(20000);
    }
    return status;
}

/* Join the ranks of a communicator. Its family (its own mesh's communicator, or itself) has a root, made where it has none, of the caller's
   communicator or by an id; what operations use is a split of it. */
MESH__RARE mesh_status mesh_nccl__join(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_nccl__comm *parent, int color,
                                       uint32_t id, ncclUniqueId *unique, int64_t deadline, mesh_error *err) {
    ncclConfig_t config = mesh_nccl__config(s, 0, c->name);
    mesh_nccl__comm *all = parent ? parent : c;
    mesh_status status = MESH_OK;
    ncclResult_t r = ncclSuccess;
    mesh_nccl__use_device(s);
    if (!all->root && mesh_nccl__branches(s, all)) {
        status = mesh_nccl__branch_off(s, all, &config, id, deadline, err);
    } else if (!all->root) {
        r = s->api.ncclCommInitRankConfig(&all->root, all->size, *unique, all->index, &config);
        if (r != ncclSuccess && r != ncclInProgress) status = mesh_nccl__fail(s, err, "ncclCommInitRankConfig", r);
        if (status == MESH_OK)
            status = mesh_nccl__await(s, &all->root, all, id, "ncclCommInitRankConfig", deadline, err);
    }
    if (!parent) color = 0;
    if (status == MESH_OK) {
        config = mesh_nccl__config(s, 1, c->name);
        r = s->api.ncclCommSplit(all->root, color, c->index, &c->made, &config);
        if (r != ncclSuccess && r != ncclInProgress) status = mesh_nccl__fail(s, err, "ncclCommSplit", r);
        if (status == MESH_OK) status = mesh_nccl__await(s, &all->root, all, id, "ncclCommSplit", deadline, err);
    }
    if (status == MESH_OK) status = mesh_nccl__connect(s, c, all, id, deadline, err);
    if (status != MESH_OK && err->rank == s->boot->rank) mesh_nccl__tell(s, all, id, err);
    return status;
}

/* A communicator that did not come about, on some rank: its family's root is given up on all, and with it what NCCL may still be making. */
MESH__RARE void mesh_nccl__unjoin(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_nccl__comm *family,
                                  const mesh_nccl__vote *vote) {
    pthread_mutex_lock(&s->lock);
    if (c->life == MESH_NCCL__CONNECTING) mesh_nccl__end(s, c, vote->status, vote->why.rank, "%s", vote->why.text);
    if (family->root) mesh_nccl__stop_comm(s, family, family->root, &c->made);
    if (c->life == MESH_NCCL__NEW) c->end.why = vote->why;
    c->life = MESH_NCCL__ENDED;
    family->root = NULL;
    family->stale = 1;
    pthread_mutex_unlock(&s->lock);
}

/* All ranks make a communicator, and confirm that they have. c NULL: this one had no memory for it; vote->why says so. */
MESH__RARE void mesh_nccl__make(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_nccl__comm *family,
                                const mesh_nccl__comm *all, uint32_t id, int color, mesh_nccl__vote *vote,
                                int64_t deadline) {
    mesh_nccl__vote confirm;
    memset(&confirm, 0, sizeof confirm);
    if (c) {
        mesh__text text = mesh__text_on(c->name, sizeof c->name);
        mesh__put(&text, "mesh %d.%d", (int)(id >> 8), (int)(id & 255));
    }
    confirm.status =
        c ? mesh_nccl__join(s, c, family, color, id, &vote->id, deadline, &confirm.why) : (mesh_status)vote->why.status;
    if (!c) confirm.why = vote->why;
    mesh_nccl__agree(s, all->rank, all->size, id, 0, 0, &confirm, deadline + INT64_C(1000000000));
    vote->status = confirm.status;
    vote->why = confirm.why;
}

/* The ranks of a communicator that this one could not make. Without memory even for these: none. */
MESH__RARE const mesh_nccl__comm *mesh_nccl__listed(mesh_nccl__state *s, const mesh *on, mesh_nccl__comm *listed) {
    int i;
    listed->rank = (int *)mesh_transport_alloc(s->boot, sizeof *listed->rank * (size_t)on->size);
    listed->size = listed->rank ? on->size : 0;
    for (i = 0; i < listed->size; i++) listed->rank[i] = mesh_rank_at(on, i);
    return listed;
}

/* From now on a group is one that is being opened. NULL: none is. */
MESH__RARE void mesh_nccl__opening(mesh_nccl__state *s, mesh_nccl__group *g, mesh_nccl__comm *c, uint32_t id) {
    if (g) memset(g, 0, sizeof *g);
    if (g) g->c = c, g->id = id;
    pthread_mutex_lock(&s->lock);
    s->opening = c ? g : NULL;
    pthread_mutex_unlock(&s->lock);
}

MESH__RARE mesh_status mesh_nccl__group_open(mesh_transport *t, void *parent, uint32_t id, const mesh *on, int color,
                                             int key, int64_t deadline, void **out, mesh_error *err) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = (mesh_nccl__group *)mesh_transport_alloc(s->boot, sizeof *g);
    mesh_nccl__comm *c = mesh_nccl__find(s, on, id >> 8), *family = parent ? ((mesh_nccl__group *)parent)->c : NULL;
    mesh_nccl__vote vote;
    int64_t timeout = deadline - mesh_nccl__now(s); /* the time that joining takes is not the operations' */
    (void)key;
    memset(&vote, 0, sizeof vote);
    if (s->boot->engine)
        vote.status =
            mesh__fail(&vote.why, MESH_ERR_ARGUMENT, s->boot->rank,
                       "a comm was opened on the bootstrap transport of mesh_nccl; open another transport for it");
    if (!g) vote.status = mesh__fail(&vote.why, MESH_ERR_MEMORY, s->boot->rank, "no memory for a group");
    if (c) vote.serial = c->serial;
    if (vote.status == MESH_OK && !c) c = mesh_nccl__comm_new(s, on, &vote.why);
    if (!c && vote.status == MESH_OK) vote.status = (mesh_status)vote.why.status;
    mesh_nccl__opening(s, g, c, id);
    if (on->size > 1) {
        const mesh_nccl__comm *all = family ? family : c;
        mesh_nccl__comm listed;
        memset(&listed, 0, sizeof listed);
        if (!all) all = mesh_nccl__listed(s, on, &listed); /* the others are to hear why */
        if (all->size)
            mesh_nccl__agree(s, all->rank, all->size, id, (!family || !family->root) && !mesh_nccl__branches(s, all), 1,
                             &vote, deadline);
        mesh_transport_free(s->boot, listed.rank);
        if (vote.status == MESH_OK && vote.action == MESH_NCCL__MAKE) {
            if (c->life != MESH_NCCL__NEW)
                c = mesh_nccl__comm_new(s, on, &vote.why); /* the one it has is not everyone's */
            mesh_nccl__make(s, c, family, all, id, color, &vote, deadline);
        }
    }
    if (vote.status != MESH_OK) {
        mesh_nccl__opening(s, NULL, NULL, 0);
        if (c && !c->serial) mesh_nccl__unjoin(s, c, family ? family : c, &vote);
        mesh_transport_free(s->boot, g);
        if (vote.why.rank < 0 || vote.why.rank == s->boot->rank || vote.status == MESH_ERR_PEER)
            return mesh__fail(err, vote.status, vote.why.rank, "nccl: %s", vote.why.text);
        return mesh__fail(err, vote.status, vote.why.rank, "nccl: rank %d: %s", vote.why.rank, vote.why.text);
    }
    g->timeout = timeout < 1000000 ? 1000000 : timeout;
    pthread_mutex_lock(&s->lock);
    s->opening = NULL;
    g->c = c;
    if (on->size == 1 && !c->serial) c->serial = ++s->serial;
    if (on->size > 1 && vote.action == MESH_NCCL__MAKE) c->serial = vote.serial;
    if (c->life != MESH_NCCL__ENDED) c->life = MESH_NCCL__OPEN;
    c->refs++;
    c->owner = id >> 8;
    g->next = s->group;
    s->group = g;
    pthread_mutex_unlock(&s->lock);
    *out = g;
    return MESH_OK;
}

MESH__RARE mesh_status mesh_nccl__group_close(mesh_transport *t, void *group) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group **at = &s->group, *g = (mesh_nccl__group *)group;
    mesh__record none = mesh_nccl__no_record(0);
    cudaError_t asked;
    mesh_nccl__left_tell(s, g);
    g->c->capturing = MESH_NCCL__FREE;
    /* The caller's stream may end now; the communicator may have. The default stream does not, and may have to wait for its mark. */
    if (g->c->refs == 1) g->c->on = g->c->last;
    if (g->c->refs == 1 && g->c->last != g->c->stream &&
        mesh_nccl__capture_of(s, g->c->last, &asked) != MESH_NCCL__BESIDE) {
        mesh_nccl__enter(s, g->c, &none, mesh_nccl__now(s) + g->timeout);
        mesh_nccl__go_on(s, g->c, g->c->stream);
        mesh_nccl__leave(s, g->c);
    }
    pthread_mutex_lock(&s->lock);
    while (*at && *at != g) at = &(*at)->next;
    if (*at) {
        g->c->refs--;
        *at = g->next;
    }
    pthread_mutex_unlock(&s->lock);
    mesh_transport_free(s->boot, group);
    return MESH_OK;
}

MESH__RARE mesh_status mesh_nccl__group_abort(mesh_transport *t, void *group, const char *why) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *c = mesh_nccl__group_of(s, group)->c;
    pthread_mutex_lock(&s->lock);
    mesh_nccl__end(s, c, MESH_ERR_CANCELED, s->boot->rank, "%s", why ? why : "it was ended");
    pthread_mutex_unlock(&s->lock);
    return MESH_OK;
}
#endif /* MESH_NCCL_COMMS_IMPLEMENTED */
