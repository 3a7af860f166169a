/* socket/patience.h - how long to spin before a core is given away: as long as it really costs to get it back, measured as it happens. Part of mesh.h 0.1.0. MIT licence.

   Includes shared.h. Knows no message.

   On a core of its own a rank that sleeps is back within some 50 us of what it waits for, and spins for about as long before. Beside a program that computes
   it is back when that one's slice ends, some ms later, and then the rank that waits for this one has gone to sleep as well. So both ways to
   give the core away are timed: a yield from its call to its return, a sleep by what the kernel says that the thread waited for a core when it could
   have run; and who knows that the others are on other cores spins for twice as long before it does either. Over shared memory each tells the others on
   which core it runs. Over sockets the kernel is asked where it has put them, when a yield was dear, and seldom. Where it does not say, no more than a
   sleep's usual cost is spun: the core might be theirs. (With two programs that compute beside two ranks on two cores that took 2 to 10 times as long.)

   A rank whose core nobody else wants, as the kernel's count of its own waiting shows, finds sleeping cheap, and yet loses by it: the kernel wakes it on the
   core of who wakes it, where the program computes. It spins for twice as long as the other may be away, which is what a yield cost when it had that core.
   Not where such waits are usual: then the other computes. And if both do it, each beside a program of its own, they take turns at waiting.

   Who waits for others to copy spins for as long as they may need: the calls to sleep and to wake would interrupt them, and a root that slept made a
   broadcast of 1 MB take up to twice as long. Where ranks outnumber the cores, or two are on one, it is another rank that gets it: then it is given away
   at once, and who has no turn for long sleeps.
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
    MESH_SOCKET__DEAREST = 4000000,   /* ns; no cost counts for more */
    MESH_SOCKET__TOGETHER = 16,       /* looks, on one core with another rank, before it is left; */
    MESH_SOCKET__PART_NS = 5000000,   /* not more often than so */
    MESH_SOCKET__ASKS_NS = 2000,      /* a yield that took longer: someone else had the core */
    MESH_SOCKET__ASKS_PART = 20,      /* of the time, at most, goes into asking who */
    MESH_SOCKET__RARELY = 64,         /* waits from one that is long to the next */
    MESH_SOCKET__PRESS_NS = 500000,   /* without a core, */
    MESH_SOCKET__RELIEF_NS = 5000000, /* in so long */
    MESH_SOCKET__DELAY_BYTES = 96
};

/* Of a line of numbers, as schedstat's "run delay slices", the one after so many others; -1: there is none. */
MESH__PRIVATE int64_t mesh_socket__number(const char *p, int others) {
    int64_t value = 0;
    for (; others && *p; p++) others -= *p == ' ';
    if (*p < '0' || *p > '9') return -1;
    for (; *p >= '0' && *p <= '9'; p++) value = value * 10 + (*p - '0');
    return value;
}

/* ns that this thread has been ready to run, and had no core; -1: the kernel does not say. */
MESH__PRIVATE int64_t mesh_socket__delay(mesh_socket__impl *s) {
#if MESH_SOCKET__LINUX
    char text[MESH_SOCKET__DELAY_BYTES];
    ssize_t n;
    if (s->schedstat == -1) {
        s->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
        if (s->schedstat < 0) s->schedstat = -2;
    }
    if (s->schedstat < 0) return -1;
    n = pread(s->schedstat, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return mesh_socket__number(text, 1);
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

/* ns until this thread is back. */
MESH__PRIVATE int64_t mesh_socket__yield(void) {
    int64_t from = mesh_socket__clock();
    sched_yield();
    return mesh_socket__clock() - from;
}

/* The sockets of the opening wake a rank on its waker's core, a program that computes takes the other one, and the kernel leaves those together
   that never sleep for long: here each goes to a core of its own. It is bound to none. */
MESH__RARE void mesh_socket__spread(const mesh_socket__impl *s) {
#if MESH_SOCKET__LINUX && defined(SYS_sched_setaffinity)
    enum { MESH_SOCKET__BITS = 8 * (int)sizeof(unsigned long), MESH_SOCKET__CORES = 4096 };
    unsigned long allowed[MESH_SOCKET__CORES / MESH_SOCKET__BITS], one[MESH_SOCKET__CORES / MESH_SOCKET__BITS];
    long bytes = syscall(SYS_sched_getaffinity, 0L, (long)sizeof allowed, allowed), status;
    int i, n = 0, mine;
    for (i = 0; i < 8 * bytes; i++) n += (int)(allowed[i / MESH_SOCKET__BITS] >> i % MESH_SOCKET__BITS & 1);
    if (n < 2) return;
    mine = s->near <= n ? (int)((int64_t)s->place * n / s->near) : s->place % n;
    for (i = 0; !(allowed[i / MESH_SOCKET__BITS] >> i % MESH_SOCKET__BITS & 1) || mine--;) i++;
    memset(one, 0, sizeof one);
    one[i / MESH_SOCKET__BITS] = 1UL << i % MESH_SOCKET__BITS;
    status = syscall(SYS_sched_setaffinity, 0L, bytes, one);
    status |= syscall(SYS_sched_setaffinity, 0L, bytes, allowed);
    (void)status;
#else
    (void)s;
#endif
}

/* On one core with another rank: it should not last, for beside it each message costs a change of ranks. */
MESH__PRIVATE void mesh_socket__part(mesh_socket__impl *s) {
    int64_t now = mesh_socket__clock();
    if (now < s->part_at) return;
    s->part_at = now + MESH_SOCKET__PART_NS;
    s->on_one_core = 0;
    s->ask_at = 0;
    mesh_socket__spread(s);
}

/* What /proc/PROCESS/NAME says, so much of it as there is room for; "": nothing. */
MESH__RARE void mesh_socket__read_proc(unsigned process, const char *name, char *text, size_t cap) {
    char path[48];
    ssize_t n;
    int fd;
    snprintf(path, sizeof path, "/proc/%u/%s", process, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? 0 : read(fd, text, cap - 1);
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
}

/* On which core the kernel has a process of this host that runs, or could run. */
enum { MESH_SOCKET__ASLEEP = -1, MESH_SOCKET__UNTOLD = -2 };
MESH__RARE int mesh_socket__core_of(unsigned process) {
#if MESH_SOCKET__LINUX
    enum {
        MESH_SOCKET__STATE = 3,
        MESH_SOCKET__PROCESSOR = 39
    }; /* proc(5) counts its fields from 1; the second may hold anything */
    char text[1024], *p;
    int field, core = 0;
    mesh_socket__read_proc(process, "stat", text, sizeof text);
    p = strrchr(text, ')');
    if (!p || !p[1]) return MESH_SOCKET__UNTOLD;
    if (p[2] != 'R') return MESH_SOCKET__ASLEEP;
    for (field = MESH_SOCKET__STATE - 1; field < MESH_SOCKET__PROCESSOR; field++)
        if ((p = strchr(p + 1, ' ')) == NULL) return MESH_SOCKET__UNTOLD;
    for (p++; *p >= '0' && *p <= '9' && core < 1 << 20; p++) core = core * 10 + (*p - '0');
    return core;
#else
    return (void)process, MESH_SOCKET__UNTOLD;
#endif
}

/* ns that a process has had a core, up to when it last lost one; -1: the kernel does not say. */
MESH__RARE int64_t mesh_socket__ran(unsigned process) {
    char text[MESH_SOCKET__DELAY_BYTES];
    mesh_socket__read_proc(process, "schedstat", text, sizeof text);
    return mesh_socket__number(text, 0);
}

/* Is another rank, as the kernel has it, on this one's core? -1: that cannot be known. One is looked at, the next one next time. */
MESH__RARE int mesh_socket__meets_process(mesh_socket__impl *s) {
#if MESH_SOCKET__LINUX && defined(SYS_getcpu)
    const mesh_socket__entry *mine = &s->book[s->net->base.rank], *e;
    int i, size = s->net->base.size, core;
    unsigned here = 0;
    if (!mine->process || syscall(SYS_getcpu, &here, NULL, NULL) != 0) return -1;
    for (i = 0; i < size; i++, s->asked++) {
        e = &s->book[s->asked % (unsigned)size];
        if (e == mine || e->host != mine->host) continue;
        if (e->process >> 32 != mine->process >> 32 || e->process == mine->process) return s->asked++, -1;
        core = mesh_socket__core_of((unsigned)e->process);
        if (core == (int)here) return s->other_ran = mesh_socket__ran((unsigned)e->process), 1;
        s->asked++;
        return core == MESH_SOCKET__UNTOLD ? -1 : 0;
    }
#else
    (void)s;
#endif
    return -1;
}

/* While this thread had given the core away for so long: had a third one it, not the rank that it was given to? */
MESH__RARE int mesh_socket__was_third(mesh_socket__impl *s, int64_t took) {
    int64_t ran;
    if (s->shared || s->other_ran < 0) return 0;
    ran = mesh_socket__ran((unsigned)s->book[s->asked % (unsigned)s->net->base.size].process);
    return ran >= 0 && ran - s->other_ran < took / 2;
}

/* As it was when last asked: seldom, for that costs some us. */
MESH__PRIVATE int mesh_socket__meets(mesh_socket__impl *s) {
    int64_t now;
    if (s->shared) return mesh_socket__meets_on_core(s->shared);
    if (s->yield_cost < MESH_SOCKET__ASKS_NS) return -1;
    now = mesh_socket__clock();
    if (now >= s->ask_at) {
        s->on_one_core = mesh_socket__meets_process(s);
        s->ask_at = now + (mesh_socket__clock() - now) * MESH_SOCKET__ASKS_PART;
    }
    return s->on_one_core;
}

/* Did no other wait outlast a sleep's cost for many waits? Where ranks wait for each other's computing, most do. */
MESH__PRIVATE int mesh_socket__is_rare(mesh_socket__impl *s) {
    if (s->long_wait != s->waits) {
        s->is_rare = s->waits - s->long_wait >= MESH_SOCKET__RARELY;
        s->long_wait = s->waits;
    }
    return s->is_rare;
}

/* Do others want this thread's core? Noticed at once, and believed for a while. */
MESH__PRIVATE int mesh_socket__is_pressed(mesh_socket__impl *s) {
    int64_t now = mesh_socket__clock(), delay;
    int pressed;
    if (now < s->press_at) return s->is_pressed;
    delay = mesh_socket__delay(s);
    pressed = delay < 0 || (s->press_from && delay - s->delayed > MESH_SOCKET__PRESS_NS);
    if (pressed || now - s->press_from > MESH_SOCKET__RELIEF_NS) {
        s->is_pressed = pressed;
        s->delayed = delay;
        s->press_from = now;
    }
    s->press_at = now + (mesh_socket__clock() - now) * MESH_SOCKET__ASKS_PART;
    return s->is_pressed;
}

/* A rank beside a program that computes is away for a slice now and then. Who has a core to itself spins for up to two. */
MESH__PRIVATE int mesh_socket__spins_a_slice(mesh_socket__impl *s, int64_t spun) {
    return !s->on_one_core && spun < MESH_SOCKET__SPIN_NS + 2 * s->yield_cost && mesh_socket__is_rare(s) &&
           !mesh_socket__is_pressed(s);
}

MESH__PRIVATE int64_t mesh_socket__copying(const mesh_socket__impl *s); /* direct.h */

/* After so many looks since `start` that found nothing: 1 to look again, perhaps after a yield; 0 to sleep. */
MESH__PRIVATE int mesh_socket__perseveres(mesh_socket__impl *s, int looks, int64_t spun) {
    int64_t took;
    if (looks == MESH_SOCKET__SPINS) s->long_waits++;
    if (s->crowded) {
        if (looks > 2 && (!s->shared || spun > (int64_t)s->crowded * (2 * MESH_SOCKET__SPIN_NS))) return 0;
        sched_yield();
        return 1;
    }
    if (looks > MESH_SOCKET__SPINS || s->shared) s->on_one_core = mesh_socket__meets(s);
    if (spun >= MESH_SOCKET__SPIN_NS + (s->on_one_core >= 0 ? 2 * s->sleep_cost : 0) &&
        spun >= MESH_SOCKET__SPIN_NS + mesh_socket__copying(s) && !mesh_socket__spins_a_slice(s, spun))
        return 0;
    /* Now and then it sleeps at once, where that is cheap: the kernel wakes who sleeps on a core that is free. */
    if (looks >= MESH_SOCKET__SPINS && s->long_waits % 32 == 0 && s->sleep_cost < MESH_SOCKET__SPIN_NS) return 0;
    if (s->on_one_core > 0) {
        if (++s->together % MESH_SOCKET__TOGETHER == 0) mesh_socket__part(s);
        took = mesh_socket__yield();       /* it may be the very rank that is waited for; */
        if (took > MESH_SOCKET__SPIN_NS) { /* then it was not, or it computed */
            mesh_socket__learn(&s->yield_cost, took);
            s->ask_at = 0;
            if (mesh_socket__was_third(s, took)) mesh_socket__part(s);
        }
    } else if (looks > MESH_SOCKET__SPINS && (s->on_one_core < 0 || spun >= 2 * s->yield_cost))
        mesh_socket__learn(&s->yield_cost, mesh_socket__yield());
    return 1;
}
#endif /* MESH_SOCKET_PATIENCE_IMPLEMENTED */
