/* nccl/watch.h - a thread that listens to the bootstrap's control plane, compares histories, and ends communicators. Part of mesh.h 0.1.0. MIT licence.

   Includes streams.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_NCCL_WATCH_IMPLEMENTED)
#define MESH_NCCL_WATCH_IMPLEMENTED
#include "streams.h"

/* ---- // >>control plane: the bootstrap's, shared with the watchdog ---- */

MESH__PRIVATE void mesh_nccl__history_heard(mesh_nccl__state *s, const mesh_control *m);
MESH__RARE void mesh_nccl__left_heard(mesh_nccl__state *s, const mesh_control *m);

/* For the engine. The caller holds boot_lock. */
MESH__PRIVATE int mesh_nccl__mail_add(mesh_nccl__state *s, const mesh_control *m) {
    mesh_nccl__mail *mail = (mesh_nccl__mail *)mesh_transport_alloc(s->boot, sizeof *mail);
    if (!mail) return 0; /* the deadline tells */
    mail->next = NULL;
    mail->state = MESH_NCCL__CAME;
    mail->came = mesh_nccl__now(s);
    mail->m = *m;
    *s->mail_end = mail;
    s->mail_end = &mail->next;
    return 1;
}

/* Is this from an earlier opening over this bootstrap, that failed? It may come when the next has begun. */
MESH__PRIVATE int mesh_nccl__is_stale(const mesh_nccl__state *s, const mesh_control *m) {
    return m->kind == MESH_EVENT_ABORT && m->nbytes >= MESH__ABORT_HEAD && !mesh__get32(m->data) &&
           mesh__get64(m->data + 16) != s->opened;
}

/* Take what has come over the bootstrap. The caller holds boot_lock. Returns 1 if something did. */
MESH__PRIVATE int mesh_nccl__listen(mesh_nccl__state *s) {
    mesh_control m;
    int heard = 0;
    while (s->boot->ops->control_poll(s->boot, &m) == MESH_OK) {
        if (m.kind == MESH_EVENT_LOST || m.kind == MESH_EVENT_CLOSED) s->gone[m.rank] = (unsigned char)m.kind;
        if (m.kind == MESH_EVENT_MESSAGE && m.nbytes >= 4 && mesh__get32(m.data) == MESH_NCCL__MSG_HISTORY)
            mesh_nccl__history_heard(s, &m);
        else if (m.kind == MESH_EVENT_MESSAGE && m.nbytes >= 4 && mesh__get32(m.data) == MESH_NCCL__MSG_LEFT)
            mesh_nccl__left_heard(s, &m);
        else if (!mesh_nccl__is_stale(s, &m))
            heard |= mesh_nccl__mail_add(s, &m);
    }
    return heard;
}

MESH__PRIVATE int mesh_nccl__has_rank(const mesh_nccl__comm *c, int rank) {
    int i;
    for (i = 0; i < c->size && c->rank[i] != rank; i++) {}
    return i < c->size;
}

/* End the communicators that the mail is about: those with a lost rank, those of a comm that failed elsewhere. The caller holds both locks. */
MESH__PRIVATE void mesh_nccl__act(mesh_nccl__state *s) {
    mesh_nccl__mail *mail;
    mesh_nccl__comm *c;
    mesh_nccl__group *g;
    for (mail = s->mail; mail; mail = mail->next) {
        const mesh_control *m = &mail->m;
        if (mail->state != MESH_NCCL__CAME) continue;
        mail->state = MESH_NCCL__ACTED_ON;
        if (m->kind == MESH_EVENT_LOST)
            for (c = s->comm; c; c = c->next)
                if (c->life != MESH_NCCL__NEW &&
                    mesh_nccl__has_rank(c, m->rank)) /* one that is being joined looks after itself */
                    mesh_nccl__end(s, c, MESH_ERR_PEER, m->rank, "rank %d was lost", m->rank);
        /* That a rank has closed a comm counts where it is waited for, which the core knows: see mesh__closed_heard. */
        if (m->kind != MESH_EVENT_ABORT || m->nbytes < MESH__ABORT_HEAD ||
            mesh__get32(m->data + 12) == MESH__ABORT_CLOSED)
            continue;
        for (g = s->group; g; g = g->next)
            if (g->id >> 8 == mesh__get32(m->data))
                mesh_nccl__end(s, g->c, MESH_ERR_CANCELED, m->rank, "rank %d ended it", m->rank);
        for (c = s->comm; c; c = c->next) /* a rank could not join it: see mesh_nccl__tell */
            if (c->life == MESH_NCCL__CONNECTING && c->owner == mesh__get32(m->data)) {
                char text[MESH_ERROR_BYTES];
                mesh__abort_text(text, m->data, m->nbytes);
                mesh_nccl__end(s, c, mesh__status_heard(m->data + 4), (int)mesh__get32(m->data + 8), "%s", text);
            }
    }
}

MESH__PRIVATE mesh_status mesh_nccl__control_send(mesh_transport *t, int rank, int kind, const void *data,
                                                  size_t nbytes) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_status status;
    pthread_mutex_lock(&s->boot_lock);
    status = s->boot->ops->control_send(s->boot, rank, kind, data, nbytes);
    pthread_mutex_unlock(&s->boot_lock);
    return status;
}

MESH__PRIVATE mesh_status mesh_nccl__control_flush(mesh_transport *t, int64_t deadline) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_status status = MESH_OK;
    if (s->boot->ops->struct_size <= offsetof(mesh_ops, control_flush) || !s->boot->ops->control_flush) return MESH_OK;
    do { /* a little at a time: the watchdog listens too */
        int64_t now = s->boot->ops->now(s->boot);
        pthread_mutex_lock(&s->boot_lock);
        status = s->boot->ops->control_flush(s->boot, now + 1000000 < deadline ? now + 1000000 : deadline);
        pthread_mutex_unlock(&s->boot_lock);
    } while (status == MESH_IN_PROGRESS && s->boot->ops->now(s->boot) < deadline);
    return status;
}

MESH__PRIVATE mesh_status mesh_nccl__control_poll(mesh_transport *t, mesh_control *out) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__mail *mail;
    mesh_status status = MESH_IN_PROGRESS;
    pthread_mutex_lock(&s->boot_lock);
    mesh_nccl__listen(s);
    if ((mail = s->mail) != NULL) {
        status = MESH_OK;
        pthread_mutex_lock(&s->lock);
        mesh_nccl__act(s);
        pthread_mutex_unlock(&s->lock);
        *out = mail->m;
        s->mail = mail->next;
        if (!s->mail) s->mail_end = &s->mail;
        mesh_transport_free(s->boot, mail);
    }
    pthread_mutex_unlock(&s->boot_lock);
    return status;
}

/* Every communicator's events, and now and then NCCL's own errors. The caller holds `lock`. */
MESH__PRIVATE void mesh_nccl__look(mesh_nccl__state *s) {
    mesh_nccl__comm *c;
    int ask = mesh_nccl__now(s) - s->asked > 1000000;
    if (ask) s->asked = mesh_nccl__now(s);
    for (c = s->comm; c; c = c->next) {
        ncclResult_t r = ncclSuccess;
        mesh_nccl__poll(s, c, 1);
        if (c->past.disagreed && mesh_nccl__now(s) > c->past.disagreed + MESH_NCCL__DISAGREE_NS)
            mesh_nccl__end(s, c, MESH_ERR_MISMATCH, -1,
                           "the ranks have not called the same before this barrier: what they called is no longer "
                           "remembered; MESH_NCCL_DEBUG=1 tells at the call");
        if (!ask || !c->comm || c->life == MESH_NCCL__ENDED || c->issued == c->completed) continue;
        if (s->api.ncclCommGetAsyncError(c->comm, &r) == ncclSuccess && r != ncclSuccess && r != ncclInProgress) {
            mesh_error why;
            if (!c->doubted) c->doubted = s->asked;
            if ((r == ncclRemoteError || r == ncclSystemError) && s->asked - c->doubted < INT64_C(1000000000))
                continue; /* the control plane is about to say which rank was lost */
            mesh_nccl__fail(s, &why, "NCCL", r);
            mesh_nccl__end(s, c, MESH_ERR_TRANSPORT, s->boot->rank, "%s", why.text);
        }
    }
}

/* What another engine understands as the end of a comm. Returns its length. */
MESH__PRIVATE size_t mesh_nccl__abort_write(unsigned char *data, uint32_t comm, const mesh_error *why) {
    memset(data, 0, MESH_CONTROL_BYTES);
    mesh__put32(data, comm);
    mesh__put32(data + 4, (uint32_t)why->status);
    mesh__put32(data + 8, (uint32_t)why->rank);
    mesh__copy_text((char *)data + MESH__ABORT_HEAD, (size_t)MESH_CONTROL_BYTES - (size_t)MESH__ABORT_HEAD, why->text);
    return MESH__ABORT_HEAD + strlen(why->text);
}

/* ---- // >>histories: do all ranks of a communicator call the same? ----
   NCCL does not look: 999 elements here and 1,000 there may complete (its chunks are rounded up to 16 bytes), and the tail is wrong. So each rank
   remembers a hash of all its calls, by position, and tells the next rank of the list from time to time: where all neighbours agree, all do.
   Messages between watchdogs, so that a program that computes is compared too. */

/* The main thread has made one more call. The caller holds `lock`. */
MESH__PRIVATE void mesh_nccl__remember(mesh_nccl__comm *c, uint64_t check, const mesh__record *record) {
    mesh_nccl__history *h = &c->past;
    mesh_nccl__past now;
    uint64_t every = 1;
    int level;
    now.position = ++h->position;
    now.history = h->history = mesh__mix(h->history, check);
    h->recent[now.position % MESH_NCCL__RECENT] = *record;
    for (level = 0; level < MESH_NCCL__LEVELS && now.position % every == 0; level++, every *= MESH_NCCL__RECENT)
        h->past[level][now.position / every % MESH_NCCL__RECENT] = now;
}

/* Also of what goes into a graph, once. */
MESH__PRIVATE void mesh_nccl__called(mesh_transport *t, void *group, uint64_t check, const mesh__record *record) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    if (g->c->size == 1) return;
    pthread_mutex_lock(&s->lock);
    g->sequence = (uint32_t)record->channel;
    mesh_nccl__remember(g->c, check, record);
    pthread_mutex_unlock(&s->lock);
}

/* {MSG_HISTORY, calls in it, serial, LEVELS times {position, history}, calls: {history, record}}: the last call is at level 0's position. */
enum {
    MESH_NCCL__PAST_BYTES = 16,
    MESH_NCCL__HISTORY_HEAD = 16 + MESH_NCCL__LEVELS * MESH_NCCL__PAST_BYTES,
    MESH_NCCL__CALL_BYTES = 8 + MESH__RECORD_BYTES,
    MESH_NCCL__TOLD = 8, /* calls in a message */
    MESH_NCCL__HISTORY_BYTES = MESH_NCCL__HISTORY_HEAD + MESH_NCCL__TOLD * MESH_NCCL__CALL_BYTES
};
typedef char mesh_nccl__history_fits[(int)MESH_NCCL__HISTORY_BYTES <= (int)MESH_CONTROL_BYTES ? 1 : -1];

/* The caller holds both locks. */
MESH__PRIVATE void mesh_nccl__history_tell(mesh_nccl__state *s, mesh_nccl__comm *c) {
    mesh_nccl__history *h = &c->past;
    unsigned char d[MESH_NCCL__HISTORY_BYTES];
    uint32_t n = h->position < MESH_NCCL__TOLD ? (uint32_t)h->position : (uint32_t)MESH_NCCL__TOLD, i;
    uint64_t every = 1;
    int level;
    mesh__put32(d, MESH_NCCL__MSG_HISTORY);
    mesh__put32(d + 4, n);
    mesh__put64(d + 8, c->serial);
    for (level = 0; level < MESH_NCCL__LEVELS; level++, every *= MESH_NCCL__RECENT) {
        const mesh_nccl__past *past = &h->past[level][h->position / every % MESH_NCCL__RECENT];
        mesh__put64(d + 16 + level * MESH_NCCL__PAST_BYTES, past->position);
        mesh__put64(d + 24 + level * MESH_NCCL__PAST_BYTES, past->history);
    }
    for (i = 0; i < n; i++) {
        uint64_t at = (h->position - n + 1 + i) % MESH_NCCL__RECENT;
        mesh__put64(d + MESH_NCCL__HISTORY_HEAD + i * MESH_NCCL__CALL_BYTES, h->past[0][at].history);
        mesh__record_write(d + MESH_NCCL__HISTORY_HEAD + i * MESH_NCCL__CALL_BYTES + 8, &h->recent[at]);
    }
    h->told = h->position;
    h->told_at = mesh_nccl__now(s);
    s->boot->ops->control_send(s->boot, c->rank[(c->index + 1) % c->size], MESH_EVENT_MESSAGE, d,
                               MESH_NCCL__HISTORY_HEAD + n * MESH_NCCL__CALL_BYTES);
}

/* This rank's history at a position: 0 if it is not remembered, or not reached. */
MESH__PRIVATE int mesh_nccl__history_at(const mesh_nccl__history *h, int level, uint64_t position, uint64_t *history) {
    uint64_t every = level == 0 ? 1 : level == 1 ? MESH_NCCL__RECENT : MESH_NCCL__RECENT * MESH_NCCL__RECENT;
    const mesh_nccl__past *past = &h->past[level][position / every % MESH_NCCL__RECENT];
    *history = past->history;
    return position && past->position == position;
}

/* Two ranks have called differently: every rank of the comm hears it, this one included, and names both calls where it is known which. The
   caller holds both locks. */
MESH__PRIVATE void mesh_nccl__history_differs(mesh_nccl__state *s, mesh_nccl__comm *c, int other,
                                              const mesh__record *mine, const mesh__record *theirs) {
    const mesh_nccl__group *whole = s->group;
    const mesh_nccl__comm *all;
    mesh_control m;
    mesh_error why;
    int i;
    while (whole && whole->id != c->owner << 8) whole = whole->next;
    all = whole ? whole->c : c;
    memset(&m, 0, sizeof m);
    mesh__fail(
        &why, MESH_ERR_MISMATCH, other,
        mine
            ? "ranks %d and %d have called differently"
            : "ranks %d and %d have called differently, and no longer remember where; MESH_NCCL_DEBUG=1 tells at the call",
        other, s->boot->rank);
    m.kind = MESH_EVENT_ABORT;
    m.nbytes = (uint32_t)mesh_nccl__abort_write(m.data, c->owner, &why);
    mesh__put32(m.data + 12, mine ? MESH__ABORT_DISPUTE : MESH__ABORT_PLAIN);
    if (mine) mesh__record_write(m.data + 16, mine);
    for (i = 0; i < all->size; i++)
        if (i != all->index) s->boot->ops->control_send(s->boot, all->rank[i], MESH_EVENT_ABORT, m.data, m.nbytes);
    if (theirs) mesh__record_write(m.data + 16, theirs);
    m.rank = other;
    mesh_nccl__mail_add(s, &m);
    mesh_nccl__end(s, c, MESH_ERR_CANCELED, other, "%s", why.text);
}

/* Compare what the rank before has told with what this one has called. The caller holds both locks. */
MESH__PRIVATE void mesh_nccl__history_compare(mesh_nccl__state *s, mesh_nccl__comm *c) {
    mesh_nccl__history *h = &c->past;
    const unsigned char *d = h->theirs, *calls = d + MESH_NCCL__HISTORY_HEAD;
    uint64_t last = mesh__get64(d + 16), n = mesh__get32(d + 4), history, i;
    int other = c->rank[(c->index + c->size - 1) % c->size], level,
        agreed = last == n; /* before the first call they do */
    for (i = 0; i < n; i++) {
        mesh__record theirs;
        uint64_t at = last - n + 1 + i;
        if (!mesh_nccl__history_at(h, 0, at, &history)) continue;
        if (history == mesh__get64(calls + i * MESH_NCCL__CALL_BYTES)) {
            agreed = 1;
            continue;
        }
        mesh__record_read(&theirs, calls + i * MESH_NCCL__CALL_BYTES + 8);
        if (agreed && !mesh__record_same(&h->recent[at % MESH_NCCL__RECENT], &theirs))
            mesh_nccl__history_differs(s, c, other, &h->recent[at % MESH_NCCL__RECENT], &theirs);
        else
            mesh_nccl__history_differs(s, c, other, NULL, NULL);
        return;
    }
    for (level = 1; level < MESH_NCCL__LEVELS; level++)
        if (mesh_nccl__history_at(h, level, mesh__get64(d + 16 + level * MESH_NCCL__PAST_BYTES), &history) &&
            history != mesh__get64(d + 24 + level * MESH_NCCL__PAST_BYTES)) {
            mesh_nccl__history_differs(s, c, other, NULL, NULL);
            return;
        }
    if (last <= h->position) h->has_theirs = 0;
}

/* The caller holds boot_lock. */
MESH__PRIVATE void mesh_nccl__history_heard(mesh_nccl__state *s, const mesh_control *m) {
    mesh_nccl__comm *c;
    uint32_t n = m->nbytes >= MESH_NCCL__HISTORY_HEAD ? mesh__get32(m->data + 4) : UINT32_MAX;
    if (n > MESH_NCCL__TOLD || m->nbytes != MESH_NCCL__HISTORY_HEAD + n * MESH_NCCL__CALL_BYTES ||
        mesh__get64(m->data + 16) < n)
        return;
    pthread_mutex_lock(&s->lock);
    for (c = s->comm; c && c->serial != mesh__get64(m->data + 8); c = c->next) {}
    if (c && c->size > 1 && c->rank[(c->index + c->size - 1) % c->size] == m->rank) {
        memcpy(c->past.theirs, m->data, m->nbytes);
        c->past.has_theirs = 1;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Tell and compare. The caller holds boot_lock. */
MESH__PRIVATE void mesh_nccl__histories(mesh_nccl__state *s) {
    mesh_nccl__comm *c;
    int64_t now = mesh_nccl__now(s);
    pthread_mutex_lock(&s->lock);
    for (c = s->comm; c; c = c->next) {
        mesh_nccl__history *h = &c->past;
        if (c->size == 1 || c->life == MESH_NCCL__ENDED || !c->refs) continue;
        if (h->told != h->position && now >= h->told_at + MESH_NCCL__COMPARE_NS) mesh_nccl__history_tell(s, c);
        if (h->has_theirs) mesh_nccl__history_compare(s, c);
    }
    pthread_mutex_unlock(&s->lock);
}

MESH__PRIVATE mesh_status mesh_nccl__progress(mesh_transport *t, int64_t deadline) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    int64_t start = mesh_nccl__now(s), now = start;
    mesh_nccl__comm *c;
    int rounds;
    for (c = s->comm; c && deadline > now; c = c->next) { /* the host waits: the ends are to be seen */
        pthread_mutex_lock(&s->lock);
        if (!c->marking) mesh_nccl__mark_now(s, c);
        pthread_mutex_unlock(&s->lock);
    }
    for (rounds = 0;; rounds++) {
        int happened;
        mesh_status status = MESH_OK;
        pthread_mutex_lock(&s->lock);
        mesh_nccl__look(s);
        happened = s->news;
        s->news = 0;
        pthread_mutex_unlock(&s->lock);
        now = mesh_nccl__now(s);
        if (happened || rounds % 16 == 0 || now - start > 50000) {
            /* The bootstrap sleeps for us: it wakes for messages, and events are looked at often enough. */
            int64_t nap = now - start > 50000 ? (now - start) / 8 : 0;
            if (nap > 200000) nap = 200000;
            if (happened || now >= deadline) nap = 0;
            pthread_mutex_lock(&s->boot_lock);
            status = s->boot->ops->progress(s->boot, nap ? now + nap : 0);
            happened |= mesh_nccl__listen(s) || s->mail != NULL;
            if (nap || !s->watching) mesh_nccl__histories(s); /* who waits keeps the watchdog from it */
            pthread_mutex_unlock(&s->boot_lock);
        }
        if (status < 0) return status;
        if (happened || now >= deadline) return MESH_OK;
    }
}

MESH__PRIVATE int64_t mesh_nccl__clock(mesh_transport *t) { return mesh_nccl__now(mesh_nccl__of(t)); }

/* ---- // >>leaving: who closes a group says after which operation, for those whose main thread waits inside NCCL for a later one ---- */

MESH__RARE void mesh_nccl__left_tell(mesh_nccl__state *s, const mesh_nccl__group *g) {
    unsigned char d[MESH_NCCL__LEFT_BYTES];
    int i, ended;
    pthread_mutex_lock(&s->lock);
    ended = g->c->life == MESH_NCCL__ENDED;
    pthread_mutex_unlock(&s->lock);
    if (g->c->size == 1 || g->c->size > MESH_NCCL__LEFT_RANKS || ended) return;
    mesh__put32(d, MESH_NCCL__MSG_LEFT);
    mesh__put32(d + 4, g->id);
    mesh__put32(d + 8, g->sequence);
    pthread_mutex_lock(&s->boot_lock);
    for (i = 0; i < g->c->size; i++)
        if (i != g->c->index) s->boot->ops->control_send(s->boot, g->c->rank[i], MESH_EVENT_MESSAGE, d, sizeof d);
    pthread_mutex_unlock(&s->boot_lock);
}

/* The first that leaves counts. The caller holds boot_lock. */
MESH__RARE void mesh_nccl__left_heard(mesh_nccl__state *s, const mesh_control *m) {
    mesh_nccl__group *g;
    uint32_t at;
    if (m->nbytes != MESH_NCCL__LEFT_BYTES) return;
    at = mesh__get32(m->data + 8);
    pthread_mutex_lock(&s->lock);
    for (g = s->group; g && g->id != mesh__get32(m->data + 4); g = g->next) {}
    if (!g && s->opening && s->opening->id == mesh__get32(m->data + 4)) g = s->opening;
    if (g && mesh_nccl__has_rank(g->c, m->rank) && (!g->left_by || !mesh__sequence_from(at, g->left_at))) {
        g->left_by = m->rank + 1;
        g->left_at = at;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Is a rank to take part in what the main thread is in? The caller holds `lock`. */
MESH__RARE int mesh_nccl__inside_needs(const mesh_nccl__state *s, int rank) {
    const mesh_post *p = s->inside_post;
    int i, needs = s->inside_all;
    for (i = 0; p && i < p->count; i++) needs |= p->xfer[i].nbytes && s->inside->rank[p->xfer[i].index] == rank;
    return needs;
}

/* The caller holds `lock`. */
MESH__PRIVATE void mesh_nccl__left_look(mesh_nccl__state *s) {
    const mesh_nccl__group *g = s->group;
    uint64_t channel = s->inside_record.channel;
    if (!s->inside || mesh_nccl__now(s) < s->inside_since + MESH_NCCL__TICK_NS) return;
    while (g && g->id != (uint32_t)(channel >> 32)) g = g->next;
    if (g && g->left_by && mesh__sequence(channel) && !mesh__sequence_from(g->left_at, (uint32_t)channel) &&
        mesh_nccl__inside_needs(s, g->left_by - 1))
        mesh_nccl__end(s, s->inside, MESH_ERR_PEER, g->left_by - 1, "rank %d has closed this comm while it was needed",
                       g->left_by - 1);
}

/* ---- // >>watchdog: a thread that listens, compares, and ends communicators ---- */

MESH__PRIVATE void mesh_nccl__watch_deadlines(mesh_nccl__state *s) {
    mesh_nccl__comm *c;
    int64_t now = mesh_nccl__now(s);
    for (c = s->comm; c; c = c->next) {
        if (c->life == MESH_NCCL__ENDED) continue;
        if (c->nmarks && now > mesh_nccl__mark_at(c, 0)->deadline + MESH_NCCL__GRACE_NS)
            mesh_nccl__end(s, c, MESH_ERR_TIMEOUT, -1, "the device has not finished it at its deadline");
        /* Without a mark, at its deadline: the marker is kept by a queue that has been full since. */
        else if (c->marking && now > c->marking + MESH_NCCL__GRACE_NS && now > c->due + MESH_NCCL__GRACE_NS)
            mesh_nccl__end(s, c, MESH_ERR_TIMEOUT, -1, "the caller's stream does not move, and its queue is full");
    }
    if (s->inside && now > s->inside_until + MESH_NCCL__GRACE_NS)
        mesh_nccl__end(s, s->inside, MESH_ERR_TIMEOUT, -1, "NCCL has not taken it at its deadline");
}

/* A main thread inside NCCL, where a first message or algorithm waits for its peers, does not answer a roll call: it has called what it is in,
   and what came before. Nor does one that computes; what it has called goes on without it, so that it is not to blame for that. What is asked
   about and it has not called it may call yet: silence. The caller holds both locks. */
MESH__PRIVATE void mesh_nccl__answer_rolls(mesh_nccl__state *s) {
    mesh_nccl__mail **at = &s->mail, *mail;
    int64_t now = mesh_nccl__now(s);
    int inside = s->inside && now >= s->inside_since + MESH_NCCL__TICK_NS;
    while ((mail = *at) != NULL) {
        unsigned char here[MESH__HERE_BYTES];
        const mesh_nccl__group *g;
        mesh__record asked;
        uint32_t called;
        if (mail->m.kind != MESH_EVENT_MESSAGE || mail->m.nbytes < MESH__ROLL_BYTES ||
            mesh__get32(mail->m.data) != MESH__MSG_ROLL || now < mail->came + MESH_NCCL__TICK_NS) {
            at = &mail->next;
            continue;
        }
        mesh__record_read(&asked, mail->m.data + 16);
        for (g = s->group; g && g->id != (uint32_t)(asked.channel >> 32); g = g->next) {}
        called = g && mesh__sequence(asked.channel) ? mesh__sequence_from(g->sequence, (uint32_t)asked.channel) : 0;
        if (!inside && !called) {
            at = &mail->next;
            continue;
        }
        memset(here, 0, sizeof here);
        mesh__put32(here, MESH__MSG_HERE);
        mesh__put32(here + 4, mesh__get32(mail->m.data + 4));
        mesh__put32(here + 8, called);
        if (inside && s->inside_record.kind) mesh__record_write(here + 12, &s->inside_record);
        s->boot->ops->control_send(s->boot, mail->m.rank, MESH_EVENT_MESSAGE, here, sizeof here);
        *at = mail->next;
        if (!*at) s->mail_end = at;
        mesh_transport_free(s->boot, mail);
    }
}

static void *mesh_nccl__watch(void *arg) {
    mesh_nccl__state *s = (mesh_nccl__state *)arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    mesh_nccl__capture_mode(s, &mode); /* of this thread: captures elsewhere are not its business */
    s->api.cudaSetDevice(s->n->device);
    for (;;) {
        struct timespec until;
        mesh_nccl__comm *c;
        int listening, stop;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += MESH_NCCL__TICK_NS;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_mutex_lock(&s->watch_lock);
        if (!s->stopping) pthread_cond_timedwait(&s->wake, &s->watch_lock, &until);
        stop = s->stopping;
        pthread_mutex_unlock(&s->watch_lock);
        if (stop) return NULL;
        listening = pthread_mutex_trylock(&s->boot_lock) == 0; /* else the main thread listens */
        if (listening) {
            s->boot->ops->progress(s->boot, 0);
            mesh_nccl__listen(s);
        }
        pthread_mutex_lock(&s->lock);
        if (listening) mesh_nccl__act(s);
        mesh_nccl__look(s);
        mesh_nccl__watch_deadlines(s);
        mesh_nccl__left_look(s);
        if (listening) mesh_nccl__answer_rolls(s);
        for (c = s->comm; c && s->marks; c = c->next) mesh_nccl__want_mark(s, c);
        pthread_mutex_unlock(&s->lock);
        if (listening) {
            mesh_nccl__histories(s);
            pthread_mutex_unlock(&s->boot_lock);
        }
    }
}
#endif /* MESH_NCCL_WATCH_IMPLEMENTED */
