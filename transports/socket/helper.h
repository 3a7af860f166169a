/* socket/helper.h - a thread that lets what was started go on while the program computes. Part of mesh.h 0.1.0. MIT licence.

   Includes ops.h. One thread at a time is in the library, this one too: it works in short turns, and steps aside for any caller.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_HELPER_IMPLEMENTED)
#define MESH_SOCKET_HELPER_IMPLEMENTED
#include "ops.h"

/* Older C libraries have threads in a library of their own, which who wants none need not link. */
#define MESH_SOCKET__THREADS 0
#if MESH_SOCKET__LINUX && defined(__GNUC__)
#if defined(MESH_SOCKET_THREADS) || !defined(__GLIBC__)
#undef MESH_SOCKET__THREADS
#define MESH_SOCKET__THREADS 1
#elif __GLIBC__ > 2 || (__GLIBC__ == 2 && __GLIBC_MINOR__ >= 34)
#undef MESH_SOCKET__THREADS
#define MESH_SOCKET__THREADS 1
#endif
#endif

#if MESH_SOCKET__THREADS
#include <pthread.h>
#include <signal.h>
#endif

#if MESH_SOCKET__THREADS

/* What the thread is at. */
enum {
    MESH_SOCKET__AWAKE,
    MESH_SOCKET__WAITS, /* asleep until the descriptor is readable, or its time */
    MESH_SOCKET__DOZES, /* the same, and not for long: calls are made, after which nobody rings for it */
    MESH_SOCKET__ASIDE  /* asleep because somebody is inside */
};

enum { MESH_SOCKET__TURNS = 16, MESH_SOCKET__ASIDE_MS = 10 };

struct mesh_socket__helper {
    mesh_socket__impl *s;
    pthread_t thread;
    int state, stop, line[2]; /* line: a pipe by which it is woken */
    int called;               /* a call has had peers ring no more, and left nothing under way */
    int64_t begun;
    uintptr_t until; /* WAITS, DOZES: until when, in ms behind `begun` */
};

/* A time as a word that the other thread reads whole: 64 bits would be a call into a library on some of 32. */
MESH__PRIVATE uintptr_t mesh_socket__helper_ms(const mesh_socket__helper *h, int64_t when) {
    int64_t ms = (when - h->begun) / 1000000;
    return ms < 0 ? 0 : (uint64_t)ms < UINTPTR_MAX ? (uintptr_t)ms : UINTPTR_MAX;
}

MESH__PRIVATE void mesh_socket__helper_yield(void) { sched_yield(); }

MESH__PRIVATE void mesh_socket__helper_wake(mesh_transport *t) {
    mesh_socket__helper *h = mesh_socket__of(t)->helper;
    ssize_t n = write(h->line[1], "w", 1); /* a full pipe wakes it as well */
    (void)n;
}

/* Does nobody ring for this rank? Who works in shared memory sees what comes there, and has its peers spare themselves the bell. */
MESH__PRIVATE int mesh_socket__helper_is_deaf(const mesh_socket__impl *s) {
    return s->shared && !MESH_SOCKET__SEE(&mesh_socket__place_of(s->shared, s->shared->me)->asleep);
}

/* The last who is inside leaves: has the thread to know? Where nothing is under way there are still questions to answer, and bytes of what has ended
   to pass on: then the thread listens again, and soon once more, so that of many calls only the first has to wake it. */
MESH__PRIVATE int mesh_socket__helper_leaving(mesh_transport *t) {
    mesh_socket__helper *h = mesh_socket__of(t)->helper;
    mesh__engine *e = (mesh__engine *)t->engine;
    int state = MESH__LOAD(&h->state);
    int64_t wake;
    mesh_socket__tell_ended(t);
    if (!e || state == MESH_SOCKET__AWAKE) return 0;
    if (!e->nactive) {
        if (state == MESH_SOCKET__ASIDE || !mesh_socket__helper_is_deaf(h->s)) return 0;
        h->called = 1;
        return state == MESH_SOCKET__WAITS;
    }
    if (state == MESH_SOCKET__ASIDE) return 1;
    return mesh_socket__arm(t, &wake) != MESH_OK ||
           mesh_socket__helper_ms(h, mesh__wake_at(e, wake)) < MESH__LOAD(&h->until);
}

MESH__PRIVATE void mesh_socket__helper_sleep(mesh_socket__helper *h, int state, int timeout_ms) {
    struct pollfd f[2];
    char drained[64];
    f[0].fd = h->line[0];
    f[1].fd = state == MESH_SOCKET__ASIDE ? -1 : h->s->ready;
    f[0].events = f[1].events = POLLIN;
    MESH__STORE(&h->state, state);
    if (!MESH__LOAD(&h->stop) && poll(f, 2, timeout_ms) > 0 && f[0].revents)
        while (read(h->line[0], drained, sizeof drained) == (ssize_t)sizeof drained) {}
    MESH__STORE(&h->state, MESH_SOCKET__AWAKE);
}

/* A turn inside: what can go on does, deadlines are looked at. Returns how long to sleep, in ms; -1: until something comes. */
MESH__PRIVATE int mesh_socket__helper_turn(mesh_socket__helper *h, mesh__engine *e) {
    mesh_transport *t = e->t;
    int64_t wake = 0, now;
    int turn, i;
    for (turn = 0; turn < MESH_SOCKET__TURNS && !MESH__LOAD(&t->inside.wanted); turn++) {
        mesh__poll(e);
        mesh__progress(e, 0);
        mesh__poll(e);
        now = mesh__now(e);
        for (i = 0; i < e->nops; i++) { /* nobody else may look for their ends for long */
            if (e->op[i]->issued) mesh__op_advance(e, e->op[i]);
            if (e->op[i]->state == MESH__ACTIVE && now >= e->op[i]->deadline) mesh__op_look(e, e->op[i], now);
        }
        if (mesh_socket__arm(t, &wake) != MESH_OK) continue;
        wake = mesh__wake_at(e, wake);
        now = mesh__now(e);
        if (h->called && wake > now + MESH_SOCKET__ASIDE_MS * 1000000) wake = now + MESH_SOCKET__ASIDE_MS * 1000000;
        MESH__STORE(&h->until, mesh_socket__helper_ms(h, wake));
        return wake == INT64_MAX                 ? -1
               : wake <= now                     ? 0
               : (wake - now) / 1000000 >= 60000 ? 60000
                                                 : (int)((wake - now) / 1000000) + 1;
    }
    return 0;
}

MESH__PRIVATE void *mesh_socket__helper_main(void *arg) {
    mesh_socket__helper *h = (mesh_socket__helper *)arg;
    mesh_transport *t = &h->s->net->base;
    uintptr_t me = (uintptr_t)&errno;
    const char *said = "progress (its own thread)";
    int aside = 1;
    MESH__STORE(&t->inside.helper, me);
    while (!MESH__LOAD(&h->stop)) {
        int timeout = aside, state = MESH_SOCKET__ASIDE;
        if (!MESH__LOAD(&t->inside.wanted) && mesh__claim(&t->inside.thread, me)) {
            MESH__STORE(&t->inside.call, said);
            t->inside.depth = 1;
            if (t->engine) {
                timeout = mesh_socket__helper_turn(h, (mesh__engine *)t->engine);
                mesh_socket__tell_ended(t);
                state = h->called ? MESH_SOCKET__DOZES : MESH_SOCKET__WAITS;
                h->called = 0;
                MESH__STORE(&h->state, state); /* before others come in: who leaves arms again what it disarmed */
            }
            t->inside.depth = 0;
            MESH__STORE(&t->inside.thread, (uintptr_t)0);
            aside = 1;
        } else if (aside < MESH_SOCKET__ASIDE_MS) {
            aside *= 2;
        }
        mesh_socket__helper_sleep(h, state, timeout);
    }
    return NULL;
}

/* A pipe that nobody waits at. Returns 0 without. */
MESH__PRIVATE int mesh_socket__helper_pipe(int ends[2]) {
    if (pipe(ends)) return ends[0] = ends[1] = -1, 0;
    return mesh_socket__nonblocking(ends[0]) && mesh_socket__nonblocking(ends[1]);
}

MESH__PRIVATE void mesh_socket__helper_free(mesh_socket__helper *h) {
    int *const ends[4] = {&h->line[0], &h->line[1], &h->s->ended_fd[0], &h->s->ended_fd[1]}, i;
    for (i = 0; i < 4; i++) {
        if (*ends[i] >= 0) close(*ends[i]);
        *ends[i] = -1;
    }
    mesh_transport_free(&h->s->net->base, h);
}

/* There is no such thread any more, or never was in this process. */
MESH__PRIVATE void mesh_socket__helper_forget(mesh_socket__impl *s) {
    mesh_transport *t = &s->net->base;
    if (!s->helper) return;
    t->inside.helper = 0;
    t->inside.leaving = NULL;
    t->inside.wake = NULL;
    mesh_socket__helper_free(s->helper);
    s->helper = NULL;
}

MESH__PRIVATE void mesh_socket__helper_stop(mesh_socket__impl *s) {
    mesh_socket__helper *h = s->helper;
    if (!h) return;
    MESH__STORE(&h->stop, 1);
    mesh_socket__helper_wake(&s->net->base);
    pthread_join(h->thread, NULL);
    mesh_socket__helper_forget(s);
}

MESH__PRIVATE mesh_status mesh_socket__helper_start(mesh_socket__impl *s, mesh_error *err) {
    mesh_transport *t = &s->net->base;
    mesh_socket__helper *h = (mesh_socket__helper *)mesh_transport_alloc(t, sizeof *h);
    sigset_t all, before;
    int error;
    if (!h) return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_socket_open: no memory");
    memset(h, 0, sizeof *h);
    h->s = s;
    h->begun = mesh_socket__clock();
    h->line[0] = h->line[1] = -1;
    error = s->ready < 0 ? ENOSYS : 0; /* it sleeps on an epoll */
    if (!error && (!mesh_socket__helper_pipe(h->line) || !mesh_socket__helper_pipe(s->ended_fd))) error = errno;
    if (error) {
        mesh_socket__helper_free(h);
        return mesh__fail(err, MESH_ERR_TRANSPORT, t->rank, "mesh_socket_open: no progress thread: %s",
                          strerror(error));
    }
    s->helper = h;
    t->inside.yield = mesh_socket__helper_yield;
    t->inside.leaving = mesh_socket__helper_leaving;
    t->inside.wake = mesh_socket__helper_wake;
    sigfillset(&all); /* signals are the program's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&h->thread, NULL, mesh_socket__helper_main, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return MESH_OK;
    s->helper = NULL;
    t->inside.leaving = NULL;
    t->inside.wake = NULL;
    mesh_socket__helper_free(h);
    return mesh__fail(err, MESH_ERR_TRANSPORT, t->rank, "mesh_socket_open: no progress thread: %s", strerror(error));
}
#else
MESH__PRIVATE void mesh_socket__helper_forget(mesh_socket__impl *s) { (void)s; }
MESH__PRIVATE void mesh_socket__helper_stop(mesh_socket__impl *s) { (void)s; }
MESH__PRIVATE mesh_status mesh_socket__helper_start(mesh_socket__impl *s, mesh_error *err) {
    return mesh__fail(
        err, MESH_ERR_UNSUPPORTED, s->net->base.rank,
        "mesh_socket_open: no progress thread on this system; leave desc.progress_thread and MESH_PROGRESS_THREAD 0");
}
#endif
#endif /* MESH_SOCKET_HELPER_IMPLEMENTED */
