/* mesh_sim.h - N ranks as threads of one process, with real data, a modelled clock and injected faults. Part of mesh.h 0.1.0. MIT licence. */
#include "../mesh_collectives.h"

#ifndef MESH_SIM_H
#define MESH_SIM_H
/*
DO THIS
    #define MESH_IMPLEMENTATION         in exactly one file; link with -lpthread
    #include "mesh.h"
    #include "mesh_collectives.h"
    #include "transports/mesh_sim.h"

EXAMPLE
    static void rank_main(mesh_transport *t, void *ctx) { ... open a mesh and a comm over t, as with any transport ... }

    mesh_sim_desc desc = MESH_ZERO;
    desc.ranks = 8;
    desc.seed = 42;
    mesh_sim_run(&desc, rank_main, NULL, &err);

CONCEPTS
    baton       The default. One thread runs at a time; whenever a rank waits or calls into the transport, the next one is drawn from the
                seed. The clock is modelled: it moves by message cost, and jumps when every rank waits. A run is the same every time:
                the seed of a failure is its replay.
    free        desc.free_running: all threads run, on the real clock. For the thread sanitizer.
    fault       a message dropped or delayed, a rank that dies at its n-th post; mesh_sim_sleep and mesh_sim_die from inside a rank.

WHAT IT DOES NOT DO
    Contention: each pair of ranks has a link of its own.
*/

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mesh_sim_fault_kind {
    MESH_SIM_DROP = 1, /* the at-th data message that rank sends to peer is lost */
    MESH_SIM_DELAY,    /* it arrives delay_ns later */
    MESH_SIM_KILL      /* rank dies at its at-th post */
} mesh_sim_fault_kind;

typedef struct mesh_sim_fault {
    int kind, rank, peer, at; /* at counts from 0 */
    int64_t delay_ns;
} mesh_sim_fault;

typedef struct mesh_sim_desc {
    int ranks;
    uint64_t seed;        /* of the scheduler and of jitter */
    int free_running;     /* 0: baton */
    int64_t latency_ns;   /* of every message; 0: 1,000. All of ns and ps: at most 10^15 */
    int64_t ps_per_byte;  /* 0: 100 */
    int64_t jitter_ns;    /* up to so much more, drawn per message */
    uint64_t eager_bytes; /* messages up to this size are buffered, larger ones wait for the receiver; 0: 16 KiB */
    int64_t detect_ns;    /* how long a death goes unnoticed; 0: 1 ms */
    const mesh_sim_fault *fault;
    int faults;
    const int *host;          /* of each rank, a number; NULL: one host */
    int reduces;              /* 1: receives reduce (MESH_CAP_REDUCE) */
    int packed;               /* 1: no blocks are taken (no MESH_CAP_STRIDED) */
    mesh_allocator allocator; /* in free-running mode called from every thread */
    mesh_log log;
    void *log_ctx;
} mesh_sim_desc;

typedef void (*mesh_sim_main)(mesh_transport *t, void *ctx);

/* Run main as every rank and return when all have returned. ARGUMENT: ranks < 1, numbers out of range, a fault that no
   message or rank can meet. MEMORY. TRANSPORT: a thread could not be made. */
MESH_API mesh_status mesh_sim_run(const mesh_sim_desc *desc, mesh_sim_main main, void *ctx, mesh_error *err);
/* Inside a rank: let time pass without a call into the library, as a rank that computes does. */
MESH_API void mesh_sim_sleep(mesh_transport *t, int64_t ns);
/* Inside a rank: die. Every later call of this rank fails; the others notice after detect_ns. */
MESH_API void mesh_sim_die(mesh_transport *t);
/* Inside a rank: orderly goodbye before returning (returning does it too: comms that are still open then have to outlive the function). */
MESH_API mesh_status mesh_sim_close(mesh_transport *t);

#ifdef __cplusplus
}
#endif
#endif /* MESH_SIM_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SIM_IMPLEMENTED)
#define MESH_SIM_IMPLEMENTED

#include <pthread.h>
#include <time.h>
#ifndef CLOCK_MONOTONIC
#error \
    "mesh_sim.h: POSIX clocks are hidden: compile with -std=gnu99 or -D_POSIX_C_SOURCE=200809L, or define it before the first #include"
#endif

#ifdef __APPLE__ /* where a condition knows no other */
#define MESH_SIM__WAIT_CLOCK CLOCK_REALTIME
#else
#define MESH_SIM__WAIT_CLOCK CLOCK_MONOTONIC
#endif

#define MESH_SIM__MOST INT64_C(1000000000000000) /* ns, or ps per byte */

typedef struct mesh_sim__ticket mesh_sim__ticket;

typedef struct mesh_sim__xfer { /* one posted send or receive */
    mesh_xfer x;
    mesh_block block;
    uint64_t channel, check;
    mesh_call call; /* of MESH_REDUCE: dtype and op */
    mesh_sim__ticket *ticket;
    int done;
    struct mesh_sim__xfer *next; /* in the rank's list of posted receives */
} mesh_sim__xfer;

struct mesh_sim__ticket {
    mesh_sim__xfer *xfer;
    int count, left;
    mesh_status status;
    mesh_error why;
};

typedef struct mesh_sim__message {
    struct mesh_sim__message *next;
    int from, control; /* control: a control message or event of this kind, else -1 */
    uint64_t channel, check, nbytes;
    int64_t arrival;
    int canceled;           /* its sender took it back */
    mesh_sim__xfer *sender; /* NULL: the bytes follow this struct */
} mesh_sim__message;

enum { MESH_SIM__READY, MESH_SIM__WAITING, MESH_SIM__OVER };

/* What a rank knows of one it has sent to. */
typedef struct mesh_sim__pair {
    int64_t last; /* arrival of the last message: none overtakes another of its pair */
    int peer;     /* and one, so that 0 is none */
    int sent;     /* data messages */
} mesh_sim__pair;

/* How a rank left, in the one list that all read: each hears it, but those with something of it still on its way, who are
   sent a message behind that. */
typedef struct mesh_sim__leaving {
    struct mesh_sim__leaving *before, *after; /* by arrival */
    int64_t arrival;
    int from, kind, apart; /* kind: an event; apart: how many were sent a message */
} mesh_sim__leaving;

/* Some ranks, as a node of a tree over all: how many can run, and when the first of the others will. */
typedef struct mesh_sim__node {
    int64_t when;
    int ready;
} mesh_sim__node;

typedef struct mesh_sim__world mesh_sim__world;

typedef struct mesh_sim {
    mesh_transport base;
    mesh_sim__world *world;
    pthread_t thread;
    pthread_cond_t wake;
    int state, event, dead, closed, asleep, posts;
    int64_t deadline;
    mesh_sim__message *coming, *arrived,
        *controls;                  /* in flight by arrival; data not yet matched; control not yet polled */
    mesh_sim__message *last_coming; /* or NULL: not known */
    mesh_sim__xfer *posted;         /* receives not yet matched */
    mesh_sim__pair *pair;           /* a hash table by peer */
    size_t pairs, room;             /* of it; room is a power of two, or 0 */
    mesh_sim__leaving leaving;
    mesh_sim__leaving *heard, *polled; /* the last that has been an event here, and was polled; NULL: none */
    struct mesh_sim *waits_before, *waits_after;
} mesh_sim;

struct mesh_sim__world {
    pthread_mutex_t lock;
    mesh_sim_desc desc;
    mesh_sim *rank;
    mesh_sim__leaving *left, *last_left; /* who has, by arrival */
    mesh_sim *waiting;                   /* who waits in progress or sleeps */
    mesh_sim__node *node; /* baton: 1 is the root, 2i and 2i + 1 are below i; the ranks from `leaves` on */
    size_t leaves;
    int64_t clock;
    int turn;
    uint64_t random;
    mesh_sim_main main;
    void *ctx;
};

MESH__PRIVATE mesh_sim *mesh_sim__of(mesh_transport *t) { return (mesh_sim *)(void *)t; }

MESH__PRIVATE uint64_t mesh_sim__draw(mesh_sim__world *w) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random * UINT64_C(0x2545f4914f6cdd1d) >> 16;
}

MESH__PRIVATE int64_t mesh_sim__clock(mesh_sim__world *w) {
    struct timespec t;
    if (!w->desc.free_running) return w->clock;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- // >>sim: messages ---- */

MESH__PRIVATE mesh_sim__message *mesh_sim__message_new(mesh_sim *s, size_t nbytes) {
    mesh_sim__message *m = (mesh_sim__message *)mesh_transport_alloc(&s->base, sizeof *m + nbytes);
    if (m) memset(m, 0, sizeof *m);
    return m;
}

/* Where the pair of that peer stands, or would; there is room. */
MESH__PRIVATE mesh_sim__pair *mesh_sim__pair_at(mesh_sim__pair *pair, size_t room, int peer) {
    size_t i = (size_t)((uint64_t)peer * UINT64_C(0x9e3779b97f4a7c15) >> 32);
    while (pair[i & (room - 1)].peer && pair[i & (room - 1)].peer != peer + 1) i++;
    return &pair[i & (room - 1)];
}

/* The pair of s and peer, made where it is the first time; NULL: no memory. Good until the next is made. */
MESH__PRIVATE mesh_sim__pair *mesh_sim__pair_make(mesh_sim *s, int peer) {
    mesh_sim__pair *p = s->room ? mesh_sim__pair_at(s->pair, s->room, peer) : NULL;
    if (p && p->peer) return p;
    if (s->room - s->room / 4 <= s->pairs) {
        size_t i, room = s->room ? 2 * s->room : 8;
        mesh_sim__pair *more = (mesh_sim__pair *)MESH_MALLOC(room * sizeof *more);
        if (!more) return NULL;
        memset(more, 0, room * sizeof *more);
        for (i = 0; i < s->room; i++)
            if (s->pair[i].peer) *mesh_sim__pair_at(more, room, s->pair[i].peer - 1) = s->pair[i];
        MESH_FREE(s->pair);
        s->pair = more;
        s->room = room;
        p = mesh_sim__pair_at(s->pair, s->room, peer);
    }
    s->pairs++;
    p->peer = peer + 1;
    return p;
}

/* ---- // >>sim: who hears that a rank left ---- */

/* Whether s was sent a message instead: its last is later then. */
MESH__PRIVATE int mesh_sim__apart(const mesh_sim *s, const mesh_sim__leaving *e) {
    const mesh_sim *from = &s->world->rank[e->from];
    const mesh_sim__pair *p;
    if (!e->apart) return 0;
    p = mesh_sim__pair_at(from->pair, from->room, s->base.rank);
    return p->peer && p->last > e->arrival;
}

/* The first in the list behind e that s hears. */
MESH__PRIVATE mesh_sim__leaving *mesh_sim__hears(const mesh_sim *s, mesh_sim__leaving *e) {
    e = e ? e->after : s->world->left;
    while (e && (e->from == s->base.rank || mesh_sim__apart(s, e))) e = e->after;
    return e;
}

/* When the next thing comes to s. */
MESH__PRIVATE int64_t mesh_sim__next(const mesh_sim *s) {
    const mesh_sim__leaving *e = mesh_sim__hears(s, s->heard);
    int64_t when = e ? e->arrival : INT64_MAX;
    return s->coming && s->coming->arrival < when ? s->coming->arrival : when;
}

/* ---- // >>sim: who can run ---- */

MESH__PRIVATE void mesh_sim__node_set(mesh_sim__world *w, size_t i, int64_t when) {
    int ready = when <= w->clock;
    if (ready) when = INT64_MAX;
    if (w->node[i].ready == ready && w->node[i].when == when) return;
    w->node[i].ready = ready;
    w->node[i].when = when;
    while (i /= 2) {
        const mesh_sim__node *half = &w->node[2 * i];
        w->node[i].ready = half[0].ready + half[1].ready;
        w->node[i].when = half[0].when < half[1].when ? half[0].when : half[1].when;
    }
}

/* Those whose time has come. */
MESH__PRIVATE void mesh_sim__ripen(mesh_sim__world *w) {
    while (w->node[1].when <= w->clock) {
        size_t i = 1;
        while (i < w->leaves) i = 2 * i + (w->node[2 * i].when > w->clock);
        mesh_sim__node_set(w, i, w->clock);
    }
}

/* Something came to s, or its state is another. */
MESH__PRIVATE void mesh_sim__stir(mesh_sim *s) {
    int64_t when = INT64_MAX, next;
    if (s->world->desc.free_running) {
        pthread_cond_signal(&s->wake);
        return;
    }
    if (s->state == MESH_SIM__READY || (s->state == MESH_SIM__WAITING && s->event && !s->asleep)) {
        when = INT64_MIN;
    } else if (s->state == MESH_SIM__WAITING) {
        next = s->asleep ? INT64_MAX : mesh_sim__next(s);
        when = next < s->deadline ? next : s->deadline;
    }
    mesh_sim__node_set(s->world, s->world->leaves + (size_t)s->base.rank, when);
}

MESH__PRIVATE void mesh_sim__wait_begin(mesh_sim *s) {
    s->waits_before = NULL;
    s->waits_after = s->world->waiting;
    if (s->waits_after) s->waits_after->waits_before = s;
    s->world->waiting = s;
}

MESH__PRIVATE void mesh_sim__wait_end(mesh_sim *s) {
    if (s->waits_after) s->waits_after->waits_before = s->waits_before;
    if (s->waits_before)
        s->waits_before->waits_after = s->waits_after;
    else
        s->world->waiting = s->waits_after;
}

MESH__PRIVATE void mesh_sim__signal(mesh_sim *s) {
    s->event = 1;
    mesh_sim__stir(s);
}

/* ---- // >>sim: sending and meeting ---- */

MESH__PRIVATE int64_t mesh_sim__jitter(mesh_sim__world *w) {
    return w->desc.jitter_ns ? (int64_t)(mesh_sim__draw(w) % (uint64_t)w->desc.jitter_ns) : 0;
}

/* Put a message on its way; it never overtakes one of the same pair, which has been made. */
MESH__PRIVATE void mesh_sim__send(mesh_sim *from, int to, mesh_sim__message *m, int64_t extra) {
    mesh_sim__world *w = from->world;
    mesh_sim *dest = &w->rank[to];
    mesh_sim__message **at = &dest->coming;
    int64_t *last = &mesh_sim__pair_at(from->pair, from->room, to)->last;
    m->from = from->base.rank;
    m->arrival = mesh_sim__clock(w) + w->desc.latency_ns + extra;
    if (m->nbytes < (uint64_t)(INT64_MAX / 2 / (w->desc.ps_per_byte + 1)))
        m->arrival += (int64_t)m->nbytes * w->desc.ps_per_byte / 1000;
    else
        m->arrival += INT64_MAX / 2000; /* for ever, nearly */
    m->arrival += mesh_sim__jitter(w);
    if (m->arrival <= *last) m->arrival = *last + 1;
    *last = m->arrival;
    if (dest->last_coming && dest->last_coming->arrival <= m->arrival) at = &dest->last_coming->next;
    while (*at && (*at)->arrival <= m->arrival) at = &(*at)->next;
    m->next = *at;
    *at = m;
    if (!m->next) dest->last_coming = m;
    mesh_sim__stir(dest);
}

/* Tell all that s is gone. */
MESH__PRIVATE void mesh_sim__leaves(mesh_sim *s, int kind, const char *text, int64_t extra) {
    mesh_sim__world *w = s->world;
    mesh_sim__leaving *e = &s->leaving, *before = w->last_left;
    mesh_sim *waits;
    size_t i;
    e->from = s->base.rank;
    e->kind = kind;
    e->arrival = mesh_sim__clock(w) + w->desc.latency_ns + extra + mesh_sim__jitter(w);
    for (i = 0; i < s->room; i++) {
        int to = s->pair[i].peer - 1;
        mesh_sim__message *m;
        if (to < 0 || s->pair[i].last < e->arrival || w->rank[to].closed || w->rank[to].dead) continue;
        m = mesh_sim__message_new(s, strlen(text));
        if (!m) { /* told too early rather than never */
            s->pair[i].last = e->arrival;
            continue;
        }
        m->control = kind;
        m->nbytes = strlen(text);
        memcpy(m + 1, text, strlen(text));
        mesh_sim__send(s, to, m, extra);
        e->apart++;
    }
    while (before && before->arrival > e->arrival) before = before->before; /* all of these are still to be heard */
    e->before = before;
    e->after = before ? before->after : w->left;
    *(before ? &before->after : &w->left) = e;
    *(e->after ? &e->after->before : &w->last_left) = e;
    for (waits = w->waiting; waits; waits = waits->waits_after) mesh_sim__stir(waits);
}

MESH__PRIVATE void mesh_sim__append(mesh_sim__message **list, mesh_sim__message *m) {
    while (*list) list = &(*list)->next;
    m->next = NULL;
    *list = m;
}

MESH__PRIVATE void mesh_sim__unpost(mesh_sim *s, mesh_sim__xfer *x) {
    mesh_sim__xfer **at = &s->posted;
    while (*at && *at != x) at = &(*at)->next;
    if (*at) *at = x->next;
}

/* Take back a send that waits for its receiver. Its place in the channel's order stays: the receive that meets it is told. */
MESH__PRIVATE void mesh_sim__unsend(mesh_sim *s, mesh_sim__xfer *x) {
    mesh_sim *dest = &s->world->rank[x->x.rank];
    mesh_sim__message *lists[2], *m;
    int i;
    lists[0] = dest->coming;
    lists[1] = dest->arrived;
    for (i = 0; i < 2; i++)
        for (m = lists[i]; m; m = m->next)
            if (m->sender == x) {
                m->sender = NULL;
                m->canceled = 1;
                return;
            }
}

/* Nothing of the ticket is touched after this. */
MESH__PRIVATE void mesh_sim__ticket_stop(mesh_sim *s, mesh_sim__ticket *k) {
    int i;
    for (i = 0; i < k->count; i++) {
        if (k->xfer[i].done) continue;
        k->xfer[i].done = 1;
        if (k->xfer[i].x.direction == MESH_SEND)
            mesh_sim__unsend(s, &k->xfer[i]);
        else
            mesh_sim__unpost(s, &k->xfer[i]);
    }
    k->left = 0;
}

MESH__PRIVATE void mesh_sim__ticket_fail(mesh_sim *s, mesh_sim__ticket *k, mesh_status status, int rank,
                                         const char *text) {
    if (k->left == 0) return;
    k->status = status;
    mesh__fail(&k->why, status, rank, "%s", text);
    mesh_sim__ticket_stop(s, k);
    mesh_sim__signal(s);
}

MESH__PRIVATE void mesh_sim__xfer_done(mesh_sim *s, mesh_sim__xfer *x) {
    x->done = 1;
    x->ticket->left--;
    mesh_sim__signal(s);
}

/* A message meets the receive it matches; both are off their lists. Frees the message. */
MESH__PRIVATE void mesh_sim__meet(mesh_sim *s, mesh_sim__message *m, mesh_sim__xfer *r) {
    mesh_sim__xfer from;
    mesh_sim *peer = &s->world->rank[m->from];
    uint64_t at, a, b;
    if (m->canceled) {
        char text[80];
        mesh__text t = mesh__text_on(text, sizeof text);
        mesh__put(&t, "rank %d canceled a message to rank %d", m->from, s->base.rank);
        r->done = 1;
        mesh_sim__ticket_fail(s, r->ticket, MESH_ERR_CANCELED, m->from, text);
        mesh_transport_free(&s->base, m);
        return;
    }
    if (m->check != r->check || m->nbytes != r->x.nbytes) {
        char text[160];
        mesh__text t = mesh__text_on(text, sizeof text);
        mesh__put(&t, "rank %d sent %u bytes, rank %d expected %u%s", m->from, m->nbytes, s->base.rank, r->x.nbytes,
                  m->check != r->check ? ", of another operation" : "");
        if (m->sender) {
            mesh_sim__ticket *k = m->sender->ticket;
            m->sender->done = 1;
            mesh_sim__ticket_fail(peer, k, MESH_ERR_MISMATCH, s->base.rank, text);
        }
        r->done = 1;
        mesh_sim__ticket_fail(s, r->ticket, MESH_ERR_MISMATCH, m->from, text);
        mesh_transport_free(&s->base, m);
        return;
    }
    memset(&from, 0, sizeof from);
    if (m->sender) {
        from.x = m->sender->x;
    } else {
        from.x.base = m + 1;
        from.x.nbytes = m->nbytes;
    }
    if (r->x.direction != MESH_REDUCE) mesh__move(&from.x, &r->x);
    for (at = 0; r->x.direction == MESH_REDUCE && at < m->nbytes; at += a < b ? a : b) {
        void *src = mesh_xfer_at(&from.x, at, &a), *dst = mesh_xfer_at(&r->x, at, &b);
        mesh__combine(&r->call, dst, src, (size_t)(a < b ? a : b) / r->call.elem_bytes, r->call.elem_bytes, 1, 0);
    }
    if (m->sender) mesh_sim__xfer_done(peer, m->sender);
    mesh_sim__xfer_done(s, r);
    mesh_transport_free(&s->base, m);
}

/* Take in what has arrived by now. */
MESH__PRIVATE void mesh_sim__deliver(mesh_sim *s) {
    int64_t now = mesh_sim__clock(s->world);
    mesh_sim__leaving *e;
    while (s->coming && s->coming->arrival <= now) {
        mesh_sim__message *m = s->coming;
        mesh_sim__xfer *r = s->posted;
        s->coming = m->next;
        if (m == s->last_coming) s->last_coming = NULL;
        if (m->control >= 0) {
            mesh_sim__append(&s->controls, m);
            s->event = 1;
            continue;
        }
        while (r && !(r->x.rank == m->from && r->channel == m->channel)) r = r->next;
        if (r) {
            mesh_sim__unpost(s, r);
            mesh_sim__meet(s, m, r);
        } else {
            mesh_sim__append(&s->arrived, m);
        }
    }
    while ((e = mesh_sim__hears(s, s->heard)) != NULL && e->arrival <= now) {
        s->heard = e;
        s->event = 1;
    }
}

/* ---- // >>sim: the baton ---- */

/* Draw who runs next; when all wait, time jumps to the first thing that happens. */
MESH__PRIVATE void mesh_sim__pass(mesh_sim__world *w) {
    const mesh_sim__node *root = &w->node[1];
    size_t i;
    int pick;
    mesh_sim__ripen(w);
    if (!root->ready && root->when != INT64_MAX) {
        w->clock = root->when;
        mesh_sim__ripen(w);
    }
    if (!root->ready) return; /* all are over */
    pick = (int)(mesh_sim__draw(w) % (uint64_t)root->ready);
    for (i = 1; i < w->leaves;) {
        i *= 2;
        if (pick < w->node[i].ready) continue;
        pick -= w->node[i].ready;
        i++;
    }
    w->turn = (int)(i - w->leaves);
    pthread_cond_signal(&w->rank[w->turn].wake);
}

/* Give the baton away and wait until it comes back. */
MESH__PRIVATE void mesh_sim__yield(mesh_sim *s, int state) {
    mesh_sim__world *w = s->world;
    s->state = state;
    if (state == MESH_SIM__WAITING) mesh_sim__wait_begin(s);
    mesh_sim__stir(s);
    mesh_sim__pass(w);
    while (w->turn != s->base.rank) pthread_cond_wait(&s->wake, &w->lock);
    if (state == MESH_SIM__WAITING) mesh_sim__wait_end(s);
    s->state = MESH_SIM__READY;
}

/* A call into the transport: a little time passes, and perhaps another rank runs first. */
MESH__PRIVATE void mesh_sim__enter(mesh_sim *s) {
    pthread_mutex_lock(&s->world->lock);
    if (s->world->desc.free_running) return;
    s->world->clock += 20;
    if (mesh_sim__draw(s->world) % 4 == 0) mesh_sim__yield(s, MESH_SIM__READY);
}

MESH__PRIVATE void mesh_sim__leave(mesh_sim *s) { pthread_mutex_unlock(&s->world->lock); }

MESH__PRIVATE void mesh_sim__wait_until(mesh_sim *s, int64_t when) {
    struct timespec t;
    int64_t left, next = s->asleep ? INT64_MAX : mesh_sim__next(s);
    if (next < when) when = next;
    left = when - mesh_sim__clock(s->world);
    if (left > INT64_C(1000000000000)) left = INT64_C(1000000000000); /* it is asked again */
    if (left < 0) left = 0;
    clock_gettime(MESH_SIM__WAIT_CLOCK, &t);
    left += t.tv_nsec;
    t.tv_sec += (time_t)(left / 1000000000);
    t.tv_nsec = (long)(left % 1000000000);
    mesh_sim__wait_begin(s);
    pthread_cond_timedwait(&s->wake, &s->world->lock, &t);
    mesh_sim__wait_end(s);
}

/* ---- // >>sim: the members of mesh_ops ---- */

/* What s has sent to dest and is still on its way from its memory is lost; what was buffered arrives. */
MESH__PRIVATE void mesh_sim__lose(mesh_sim *s, mesh_sim *dest) {
    mesh_sim__message **lists[2], **at, *m;
    int k;
    lists[0] = &dest->coming;
    lists[1] = &dest->arrived;
    for (k = 0; k < 2; k++)
        for (at = lists[k]; *at;) {
            m = *at;
            if (m->sender && m->from == s->base.rank) {
                *at = m->next;
                if (m == dest->last_coming) dest->last_coming = NULL;
                mesh_transport_free(&s->base, m);
            } else {
                at = &m->next;
            }
        }
    mesh_sim__stir(dest);
}

MESH__PRIVATE void mesh_sim__dies(mesh_sim *s) {
    size_t i;
    if (s->dead) return;
    s->dead = 1;
    for (i = 0; i < s->room; i++)
        if (s->pair[i].peer) mesh_sim__lose(s, &s->world->rank[s->pair[i].peer - 1]);
    if (!s->closed) mesh_sim__leaves(s, MESH_EVENT_LOST, "killed", s->world->desc.detect_ns);
    s->posted = NULL;
}

MESH__PRIVATE const mesh_sim_fault *mesh_sim__fault(const mesh_sim *s, int kind, int peer, int at) {
    const mesh_sim_desc *d = &s->world->desc;
    int i;
    for (i = 0; i < d->faults; i++)
        if (d->fault[i].kind == kind && d->fault[i].rank == s->base.rank && d->fault[i].at == at &&
            (kind == MESH_SIM_KILL || d->fault[i].peer == peer))
            return &d->fault[i];
    return NULL;
}

MESH__PRIVATE void mesh_sim__discard(mesh_sim *s, mesh_sim__message *list) {
    while (list) {
        mesh_sim__message *next = list->next;
        mesh_transport_free(&s->base, list);
        list = next;
    }
}

/* The messages of a post's sends, chained in order; all or none. */
MESH__PRIVATE int mesh_sim__prepare(mesh_sim *s, const mesh_post *p, mesh_sim__ticket *k, mesh_sim__message **out) {
    int i;
    *out = NULL;
    for (i = 0; i < p->count; i++) {
        mesh_sim__xfer *x = &k->xfer[i];
        mesh_sim__message *m;
        int eager = p->xfer[i].nbytes <= s->world->desc.eager_bytes;
        x->x = p->xfer[i];
        if (x->x.block) {
            x->block = *x->x.block;
            x->x.block = &x->block;
        }
        x->channel = p->channel;
        x->check = p->check;
        x->ticket = k;
        x->call.dtype = p->dtype;
        x->call.op = p->op;
        x->call.elem_bytes = mesh_dtype_bytes((mesh_dtype)p->dtype);
        if (x->x.direction != MESH_SEND) continue;
        m = mesh_sim__pair_make(s, x->x.rank) ? mesh_sim__message_new(s, eager ? (size_t)x->x.nbytes : 0) : NULL;
        if (!m) {
            mesh_sim__discard(s, *out);
            return 0;
        }
        m->control = -1;
        m->channel = p->channel;
        m->check = p->check;
        m->nbytes = x->x.nbytes;
        m->sender = eager ? NULL : x;
        m->from = i;
        if (eager) mesh__pack(&x->x, 0, m + 1, (size_t)m->nbytes);
        mesh_sim__append(out, m);
    }
    return 1;
}

/* Only what its capabilities say. */
MESH__PRIVATE int mesh_sim__takes(const mesh_sim *s, const mesh_post *p) {
    int i;
    for (i = 0; i < p->count; i++)
        if ((p->xfer[i].block && !(s->base.caps & MESH_CAP_STRIDED)) ||
            (p->xfer[i].direction == MESH_REDUCE && !(s->base.caps & MESH_CAP_REDUCE)))
            return 0;
    return 1;
}

MESH__PRIVATE mesh_status mesh_sim__post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    mesh_sim *s = mesh_sim__of(t);
    mesh_sim__ticket *k;
    mesh_sim__message *list = NULL, *m;
    int i;
    if (!mesh_sim__takes(s, p)) return MESH_ERR_UNSUPPORTED;
    mesh_sim__enter(s);
    if (!s->dead && mesh_sim__fault(s, MESH_SIM_KILL, 0, s->posts++)) mesh_sim__dies(s);
    if (s->dead || s->closed) {
        mesh_sim__leave(s);
        return MESH_ERR_TRANSPORT;
    }
    k = (mesh_sim__ticket *)mesh_transport_alloc(t, sizeof *k + sizeof *k->xfer * (size_t)p->count);
    if (k) {
        memset(k, 0, sizeof *k + sizeof *k->xfer * (size_t)p->count);
        k->xfer = (mesh_sim__xfer *)(k + 1);
        k->count = k->left = p->count;
    }
    if (!k || !mesh_sim__prepare(s, p, k, &list)) {
        mesh_transport_free(t, k);
        mesh_sim__leave(s);
        return MESH_ERR_MEMORY;
    }
    while ((m = list) != NULL) {
        mesh_sim__xfer *x = &k->xfer[m->from];
        int to = x->x.rank, n = mesh_sim__pair_at(s->pair, s->room, to)->sent++;
        const mesh_sim_fault *delay = mesh_sim__fault(s, MESH_SIM_DELAY, to, n);
        int lost = mesh_sim__fault(s, MESH_SIM_DROP, to, n) || s->world->rank[to].dead || s->world->rank[to].closed;
        list = m->next;
        if (!m->sender) {
            x->done = 1;
            k->left--;
        }
        if (lost)
            mesh_transport_free(t, m);
        else
            mesh_sim__send(s, to, m, delay ? delay->delay_ns : 0);
    }
    mesh_sim__deliver(s);
    for (i = 0; i < k->count; i++) {
        mesh_sim__xfer *x = &k->xfer[i], **at = &s->posted;
        mesh_sim__message **a = &s->arrived;
        if (x->x.direction == MESH_SEND || x->done) continue;
        while (*a && !((*a)->from == x->x.rank && (*a)->channel == x->channel)) a = &(*a)->next;
        if (*a) {
            m = *a;
            *a = m->next;
            mesh_sim__meet(s, m, x);
        } else {
            while (*at) at = &(*at)->next;
            x->next = NULL;
            *at = x;
        }
    }
    ticket->impl = k;
    ticket->id = p->channel;
    mesh_sim__leave(s);
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh_sim__test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    mesh_sim *s = mesh_sim__of(t);
    mesh_sim__ticket *k = (mesh_sim__ticket *)ticket->impl;
    mesh_status status;
    mesh_sim__enter(s);
    if (s->dead) mesh_sim__ticket_fail(s, k, MESH_ERR_TRANSPORT, t->rank, "this rank is dead");
    if (!s->dead) mesh_sim__deliver(s);
    if (k->left) {
        mesh_sim__leave(s);
        return MESH_IN_PROGRESS;
    }
    status = k->status;
    if (status != MESH_OK && why) *why = k->why;
    mesh_transport_free(t, k);
    ticket->impl = NULL;
    mesh_sim__leave(s);
    return status;
}

MESH__PRIVATE int mesh_sim__pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    mesh_sim *s = mesh_sim__of(t);
    const mesh_sim__ticket *k = (const mesh_sim__ticket *)ticket->impl;
    int i, j, n = 0;
    mesh_sim__enter(s);
    for (i = 0; k && i < k->count; i++) {
        for (j = 0; j < i && (k->xfer[j].done || k->xfer[j].x.rank != k->xfer[i].x.rank); j++) {}
        if (k->xfer[i].done || j < i) continue;
        if (n < cap) ranks[n] = k->xfer[i].x.rank;
        n++;
    }
    mesh_sim__leave(s);
    return n;
}

MESH__PRIVATE mesh_status mesh_sim__cancel(mesh_transport *t, mesh_ticket *ticket) {
    mesh_sim *s = mesh_sim__of(t);
    mesh_sim__enter(s);
    mesh_sim__ticket_fail(s, (mesh_sim__ticket *)ticket->impl, MESH_ERR_CANCELED, -1, "canceled");
    mesh_sim__leave(s);
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh_sim__progress(mesh_transport *t, int64_t deadline) {
    mesh_sim *s = mesh_sim__of(t);
    mesh_sim__world *w = s->world;
    mesh_status status;
    pthread_mutex_lock(&w->lock);
    s->deadline = deadline;
    mesh_sim__deliver(s);
    if (!s->event && !s->dead) {
        if (!w->desc.free_running) {
            w->clock += 20;
            mesh_sim__yield(s, MESH_SIM__WAITING);
            mesh_sim__deliver(s);
        } else {
            while (!s->event && !s->dead && mesh_sim__clock(w) < deadline) {
                mesh_sim__wait_until(s, deadline);
                mesh_sim__deliver(s);
            }
        }
    } else if (!w->desc.free_running) {
        w->clock += 20;
        mesh_sim__yield(s, MESH_SIM__READY);
    }
    s->event = 0;
    status = s->dead ? MESH_ERR_TRANSPORT : MESH_OK;
    pthread_mutex_unlock(&w->lock);
    return status;
}

MESH__PRIVATE int64_t mesh_sim__now(mesh_transport *t) {
    mesh_sim *s = mesh_sim__of(t);
    int64_t now;
    pthread_mutex_lock(&s->world->lock);
    now = mesh_sim__clock(s->world);
    pthread_mutex_unlock(&s->world->lock);
    return now;
}

MESH__PRIVATE mesh_status mesh_sim__control_send(mesh_transport *t, int rank, int kind, const void *data,
                                                 size_t nbytes) {
    mesh_sim *s = mesh_sim__of(t);
    mesh_sim__message *m;
    mesh_status status = MESH_OK;
    if (rank < 0 || rank >= t->size || rank == t->rank || nbytes > MESH_CONTROL_BYTES) return MESH_ERR_ARGUMENT;
    mesh_sim__enter(s);
    if (s->dead || s->closed)
        status = MESH_ERR_TRANSPORT;
    else if (s->world->rank[rank].dead || s->world->rank[rank].closed)
        status = MESH_ERR_PEER;
    else if (!mesh_sim__pair_make(s, rank) || !(m = mesh_sim__message_new(s, nbytes)))
        status = MESH_ERR_MEMORY;
    else {
        m->control = kind;
        m->nbytes = nbytes;
        memcpy(m + 1, data, nbytes);
        mesh_sim__send(s, rank, m, 0);
    }
    mesh_sim__leave(s);
    return status;
}

MESH__PRIVATE void mesh_sim__control_put(mesh_control *out, int kind, int from, const void *data, size_t nbytes) {
    out->kind = kind;
    out->rank = from;
    out->nbytes = (uint32_t)nbytes;
    out->zero = 0;
    memcpy(out->data, data, nbytes);
}

MESH__PRIVATE mesh_status mesh_sim__control_poll(mesh_transport *t, mesh_control *out) {
    mesh_sim *s = mesh_sim__of(t);
    mesh_sim__leaving *e = NULL;
    mesh_sim__message *m = NULL;
    pthread_mutex_lock(&s->world->lock);
    mesh_sim__deliver(s);
    if (!s->dead) {
        m = s->controls;
        if (s->polled != s->heard) e = mesh_sim__hears(s, s->polled);
    }
    if (e && m && e->arrival < m->arrival) m = NULL;
    if (m) {
        s->controls = m->next;
        mesh_sim__control_put(out, m->control, m->from, m + 1, (size_t)m->nbytes);
        mesh_transport_free(t, m);
    } else if (e) {
        s->polled = e;
        mesh_sim__control_put(out, e->kind, e->from, "killed", e->kind == MESH_EVENT_LOST ? 6 : 0);
    }
    pthread_mutex_unlock(&s->world->lock);
    return m || e ? MESH_OK : MESH_IN_PROGRESS;
}

MESH__PRIVATE mesh_status mesh_sim__close(mesh_transport *t, mesh_error *why) {
    mesh_sim *s = mesh_sim__of(t);
    mesh_status status = mesh_transport_detach(t);
    (void)why;
    if (status != MESH_OK) return status;
    mesh_sim__enter(s);
    if (!s->closed && !s->dead) mesh_sim__leaves(s, MESH_EVENT_CLOSED, "", 0);
    s->closed = 1;
    mesh_sim__leave(s);
    t->ops = NULL; /* not open any more */
    return MESH_OK;
}

MESH_API mesh_status mesh_sim_close(mesh_transport *t) { return mesh_sim__close(t, NULL); }

MESH_API void mesh_sim_die(mesh_transport *t) {
    mesh_sim *s = mesh_sim__of(t);
    mesh_sim__enter(s);
    mesh_sim__dies(s);
    mesh_sim__leave(s);
}

MESH_API void mesh_sim_sleep(mesh_transport *t, int64_t ns) {
    mesh_sim *s = mesh_sim__of(t);
    int64_t until;
    if (ns > MESH_SIM__MOST) ns = MESH_SIM__MOST;
    pthread_mutex_lock(&s->world->lock);
    until = mesh_sim__clock(s->world) + ns;
    s->asleep = 1;
    s->deadline = until;
    if (!s->world->desc.free_running)
        mesh_sim__yield(s, MESH_SIM__WAITING);
    else
        while (mesh_sim__clock(s->world) < until) mesh_sim__wait_until(s, until);
    s->asleep = 0;
    pthread_mutex_unlock(&s->world->lock);
}

MESH__PRIVATE int mesh_sim__locality(mesh_transport *t, int rank) {
    const int *host = mesh_sim__of(t)->world->desc.host;
    return host && rank >= 0 && rank < t->size ? host[rank] : 0;
}

/* ---- // >>sim: running ---- */

MESH__PRIVATE const mesh_ops *mesh_sim__ops(void) {
    static const mesh_ops ops = {sizeof(mesh_ops),
                                 MESH_ABI,
                                 "sim",
                                 mesh_sim__post,
                                 mesh_sim__test,
                                 mesh_sim__pending,
                                 mesh_sim__cancel,
                                 mesh_sim__progress,
                                 mesh_sim__now,
                                 mesh_sim__control_send,
                                 mesh_sim__control_poll,
                                 mesh_sim__close,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 mesh_sim__locality,
                                 NULL,
                                 NULL,
                                 MESH_OPS_NO_KERNELS};
    return &ops;
}

static void *mesh_sim__thread(void *arg) {
    mesh_sim *s = (mesh_sim *)arg;
    mesh_sim__world *w = s->world;
    pthread_mutex_lock(&w->lock);
    while (!w->desc.free_running && w->turn != s->base.rank) pthread_cond_wait(&s->wake, &w->lock);
    pthread_mutex_unlock(&w->lock);
    w->main(&s->base, w->ctx);
    mesh_sim__close(&s->base, NULL);
    pthread_mutex_lock(&w->lock);
    s->state = MESH_SIM__OVER;
    mesh_sim__stir(s);
    if (!w->desc.free_running) mesh_sim__pass(w);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

MESH__PRIVATE void mesh_sim__rank_init(mesh_sim__world *w, int r) {
    mesh_sim *s = &w->rank[r];
    pthread_condattr_t attr;
    s->base.ops = mesh_sim__ops();
    s->base.rank = r;
    s->base.size = w->desc.ranks;
    s->base.caps = MESH_CAP_STRIDED | MESH_CAP_CHECK | MESH_CAP_PENDING | MESH_CAP_CANCEL;
    if (w->desc.reduces) s->base.caps |= MESH_CAP_REDUCE;
    if (w->desc.packed) s->base.caps &= ~(uint32_t)MESH_CAP_STRIDED;
    s->base.allocator = w->desc.allocator;
    s->base.log = w->desc.log;
    s->base.log_ctx = w->desc.log_ctx;
    s->world = w;
    pthread_condattr_init(&attr);
#ifndef __APPLE__
    pthread_condattr_setclock(&attr, MESH_SIM__WAIT_CLOCK);
#endif
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
}

MESH__PRIVATE void mesh_sim__release(mesh_sim__world *w) {
    int i;
    for (i = 0; i < w->desc.ranks; i++) {
        mesh_sim *s = &w->rank[i];
        mesh_sim__discard(s, s->coming);
        mesh_sim__discard(s, s->arrived);
        mesh_sim__discard(s, s->controls);
        MESH_FREE(s->pair);
        pthread_cond_destroy(&s->wake);
    }
    pthread_mutex_destroy(&w->lock);
    MESH_FREE(w->rank);
    MESH_FREE(w->node);
}

/* Memory for all ranks, and none of them begun. 0: there is none. */
MESH__PRIVATE int mesh_sim__make(mesh_sim__world *w) {
    size_t i, n = (size_t)w->desc.ranks;
    for (w->leaves = 1; w->leaves < n;) w->leaves *= 2;
    w->rank = (mesh_sim *)MESH_MALLOC(n * sizeof *w->rank);
    w->node = (mesh_sim__node *)MESH_MALLOC(2 * w->leaves * sizeof *w->node);
    if (!w->rank || !w->node) {
        MESH_FREE(w->rank);
        MESH_FREE(w->node);
        return 0;
    }
    memset(w->rank, 0, n * sizeof *w->rank);
    for (i = 0; i < 2 * w->leaves; i++) w->node[i].when = INT64_MAX, w->node[i].ready = 0;
    pthread_mutex_init(&w->lock, NULL);
    for (i = 0; i < n; i++) mesh_sim__rank_init(w, (int)i);
    return 1;
}

/* A fault that nothing can meet would be a test of nothing. */
MESH__RARE mesh_status mesh_sim__fault_check(const mesh_sim_desc *desc, int i, mesh_error *err) {
    const mesh_sim_fault *f = &desc->fault[i];
    int most = desc->ranks - 1;
    if (f->kind != MESH_SIM_DROP && f->kind != MESH_SIM_DELAY && f->kind != MESH_SIM_KILL)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_sim_run: fault %d is of kind %d; give a mesh_sim_fault_kind", i, f->kind);
    if (f->rank < 0 || f->rank > most)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_sim_run: fault %d: rank is %d; from 0 to %d", i, f->rank,
                          most);
    if (f->kind != MESH_SIM_KILL && (f->peer < 0 || f->peer > most || f->peer == f->rank))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_sim_run: fault %d: peer is %d; from 0 to %d, and not rank %d itself", i, f->peer, most,
                          f->rank);
    if (f->at < 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_sim_run: fault %d: at is %d; it counts from 0", i, f->at);
    if (f->delay_ns < 0 || f->delay_ns > MESH_SIM__MOST)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_sim_run: fault %d delays by %l ns; from 0 to %l", i,
                          f->delay_ns, MESH_SIM__MOST);
    return MESH_OK;
}

MESH__RARE mesh_status mesh_sim__check(const mesh_sim_desc *desc, mesh_sim_main main, mesh_error *err) {
    int i;
    if (!desc || !main || desc->ranks < 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_sim_run: %d ranks; at least 1, and a function to run",
                          desc ? desc->ranks : 0);
    if (desc->latency_ns < 0 || desc->jitter_ns < 0 || desc->ps_per_byte < 0 || desc->detect_ns < 0)
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "mesh_sim_run: a latency of %l ns, jitter of %l, %l ps per byte, deaths seen after %l ns: none "
            "may be negative",
            desc->latency_ns, desc->jitter_ns, desc->ps_per_byte, desc->detect_ns);
    if (desc->latency_ns > MESH_SIM__MOST || desc->jitter_ns > MESH_SIM__MOST || desc->ps_per_byte > MESH_SIM__MOST ||
        desc->detect_ns > MESH_SIM__MOST)
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "mesh_sim_run: a latency of %l ns, jitter of %l, %l ps per byte, deaths seen after %l ns: at most %l each",
            desc->latency_ns, desc->jitter_ns, desc->ps_per_byte, desc->detect_ns, MESH_SIM__MOST);
    if (desc->faults < 0 || (desc->faults && !desc->fault))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_sim_run: %d faults%s", desc->faults,
                          desc->faults < 0 ? "; 0 for none" : ", and fault is NULL");
    for (i = 0; i < desc->faults; i++)
        if (mesh_sim__fault_check(desc, i, err) != MESH_OK) return MESH_ERR_ARGUMENT;
    return MESH_OK;
}

MESH_API mesh_status mesh_sim_run(const mesh_sim_desc *desc, mesh_sim_main main, void *ctx, mesh_error *err) {
    mesh_sim__world w;
    int i, started = 0;
    if (mesh_sim__check(desc, main, err) != MESH_OK) return MESH_ERR_ARGUMENT;
    memset(&w, 0, sizeof w);
    w.desc = *desc;
    if (!w.desc.latency_ns) w.desc.latency_ns = 1000;
    if (!w.desc.ps_per_byte) w.desc.ps_per_byte = 100;
    if (!w.desc.eager_bytes) w.desc.eager_bytes = 16 * 1024;
    if (!w.desc.detect_ns) w.desc.detect_ns = 1000000;
    w.random = (desc->seed + 1) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    w.main = main;
    w.ctx = ctx;
    w.turn = -1;
    if (!mesh_sim__make(&w))
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_sim_run: no memory for %d ranks", desc->ranks);
    pthread_mutex_lock(&w.lock);
    for (; started < desc->ranks; started++)
        if (pthread_create(&w.rank[started].thread, NULL, mesh_sim__thread, &w.rank[started])) break;
    for (i = started; i < desc->ranks; i++) { /* no thread for these: they count as dead */
        w.rank[i].state = MESH_SIM__OVER;
        w.rank[i].dead = 1;
    }
    for (i = 0; i < started; i++) mesh_sim__stir(&w.rank[i]);
    if (!w.desc.free_running && started) mesh_sim__pass(&w);
    pthread_mutex_unlock(&w.lock);
    for (i = 0; i < started; i++) pthread_join(w.rank[i].thread, NULL);
    mesh_sim__release(&w);
    if (started < desc->ranks)
        return mesh__fail(err, MESH_ERR_TRANSPORT, started, "mesh_sim_run: only %d of %d threads could be made",
                          started, desc->ranks);
    return MESH_OK;
}
#endif /* MESH_IMPLEMENTATION */
