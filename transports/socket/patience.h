/* socket/patience.h - how long to spin before a core is given away: as long as it really costs to get it back, measured as it happens. Part of mesh.h 0.1.0. MIT licence.

   Includes shared.h. Knows no message.

   On a core of its own a rank that sleeps is back within some 50 us of what it waits for, and spins for about as long before. Beside a program that computes
   it is back when that one's slice ends, some ms later, and then the rank that waits for this one has gone to sleep as well. So both ways to
   give the core away are timed: a yield from its call to its return, a sleep by what the kernel says that the thread waited for a core when it could
   have run. (Where nothing tells on which core the others are, over sockets, more than a sleep's usual cost is not spun: it might be theirs. With two
   programs that compute beside two ranks on two cores that took 2 to 10 times as long.) Who waits for others to copy spins for as long as they may need:
   the calls to sleep and to wake would interrupt them, and a root that slept made a broadcast of 1 MB take up to twice as long. Where ranks outnumber the cores, or two are on one, it is another rank that gets it: then it is given away at once, and who has no turn for long sleeps.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_PATIENCE_IMPLEMENTED)
#define MESH_SOCKET_PATIENCE_IMPLEMENTED
#include "shared.h"

enum {
    MESH_SOCKET__SPINS = 16,        /* looks before the first yield */
    MESH_SOCKET__SPIN_NS = 50000,   /* and for so long, where a sleep costs nothing more */
    MESH_SOCKET__AWAITED = 2 << 20, /* bytes that others copy, at most, for which it is longer: */
    MESH_SOCKET__BYTES_PER_NS = 8,
    MESH_SOCKET__DEAREST = 4000000, /* ns; no cost counts for more */
    MESH_SOCKET__TOGETHER = 16,     /* looks, on one core with another rank, before it is left; */
    MESH_SOCKET__PART_NS = 5000000, /* not more often than so */
    MESH_SOCKET__DELAY_BYTES = 96
};

/* ns that this thread has been ready to run, and had no core; -1: the kernel does not say. */
MESH__PRIVATE int64_t mesh_socket__delay(mesh_socket__impl *s) {
#if MESH_SOCKET__LINUX
    char text[MESH_SOCKET__DELAY_BYTES];
    const char *p = text;
    int64_t ns = 0;
    ssize_t n;
    if (s->schedstat == -1) {
        s->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
        if (s->schedstat < 0) s->schedstat = -2;
    }
    if (s->schedstat < 0) return -1;
    n = pread(s->schedstat, text, sizeof text - 1, 0); /* "run delay slices" */
    if (n <= 0) return -1;
    text[n] = 0;
    while (*p && *p != ' ') p++;
    if (!*p) return -1;
    for (p++; *p >= '0' && *p <= '9'; p++) ns = ns * 10 + (*p - '0');
    return ns;
#else
    (void)s;
    return -1;
#endif
}

/* A cost as it was found this time: dearer counts at once, cheaper little by little. */
MESH__PRIVATE void mesh_socket__learn(int64_t *cost, int64_t found) {
    if (found > MESH_SOCKET__DEAREST) found = MESH_SOCKET__DEAREST;
    *cost += found > *cost ? (found - *cost + 1) / 2 : -((*cost - found + 7) / 8);
}

MESH__PRIVATE void mesh_socket__yield(mesh_socket__impl *s) {
    int64_t from = mesh_socket__clock();
    sched_yield();
    mesh_socket__learn(&s->yield_cost, mesh_socket__clock() - from);
}

/* The sockets of the opening wake a rank on its waker's core, a program that computes takes the other one, and the kernel leaves those together
   that never sleep for long: here each goes to a core of its own. It is bound to none. */
MESH__RARE void mesh_socket__spread(const mesh_socket__impl *s) {
#if MESH_SOCKET__LINUX && defined(SYS_sched_setaffinity)
    enum { BITS = 8 * (int)sizeof(unsigned long), CORES = 4096 };
    unsigned long allowed[CORES / BITS], one[CORES / BITS];
    long bytes = syscall(SYS_sched_getaffinity, 0L, (long)sizeof allowed, allowed), status;
    int i, n = 0, mine;
    for (i = 0; i < 8 * bytes; i++) n += (int)(allowed[i / BITS] >> i % BITS & 1);
    if (n < 2) return;
    mine = s->near <= n ? (int)((int64_t)s->place * n / s->near) : s->place % n;
    for (i = 0; !(allowed[i / BITS] >> i % BITS & 1) || mine--;) i++;
    memset(one, 0, sizeof one);
    one[i / BITS] = 1UL << i % BITS;
    status = syscall(SYS_sched_setaffinity, 0L, bytes, one);
    status |= syscall(SYS_sched_setaffinity, 0L, bytes, allowed);
    (void)status;
#else
    (void)s;
#endif
}

/* Again on one core with another rank: it should not last, for beside it each message costs a change of ranks. */
MESH__PRIVATE void mesh_socket__part(mesh_socket__impl *s) {
    int64_t now;
    if (++s->together % MESH_SOCKET__TOGETHER) return;
    now = mesh_socket__clock();
    if (now < s->part_at) return;
    s->part_at = now + MESH_SOCKET__PART_NS;
    mesh_socket__spread(s);
}

MESH__PRIVATE int64_t mesh_socket__copying(const mesh_socket__impl *s); /* direct.h */

/* After so many looks since `start` that found nothing: 1 to look again, perhaps after a yield; 0 to sleep. */
MESH__PRIVATE int mesh_socket__perseveres(mesh_socket__impl *s, int looks, int64_t spun) {
    if (looks == MESH_SOCKET__SPINS) s->long_waits++;
    if (s->crowded) {
        if (looks > 2 && (!s->shared || spun > (int64_t)s->crowded * (2 * MESH_SOCKET__SPIN_NS))) return 0;
        sched_yield();
        return 1;
    }
    if (spun >= MESH_SOCKET__SPIN_NS + (s->shared ? 2 * s->sleep_cost : 0) &&
        spun >= MESH_SOCKET__SPIN_NS + mesh_socket__copying(s))
        return 0;
    /* Now and then it sleeps at once, where that is cheap: the kernel wakes who sleeps on a core that is free. */
    if (looks >= MESH_SOCKET__SPINS && s->long_waits % 32 == 0 && s->sleep_cost < MESH_SOCKET__SPIN_NS) return 0;
    s->on_one_core = s->shared && mesh_socket__meets_on_core(s->shared);
    if (s->on_one_core) {
        mesh_socket__part(s);
        sched_yield(); /* it may be the very rank that is waited for */
    } else if (looks > MESH_SOCKET__SPINS && (!s->shared || spun >= 2 * s->yield_cost))
        mesh_socket__yield(s);
    return 1;
}
#endif /* MESH_SOCKET_PATIENCE_IMPLEMENTED */
