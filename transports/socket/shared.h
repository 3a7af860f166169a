/* socket/shared.h - memory that the ranks of a host have in common: one file without a name, mapped by all of them. Part of mesh.h 0.1.0. MIT licence.

   Includes state.h. Knows no frame and no operation: places, rings of bytes, and what mesh_alloc gives.

   The first of the ranks that share makes the file and passes it on (open.h). It is sparse: what nobody has touched takes no memory.
       places   of each rank, a page: is it asleep; and where its cells are, of each group that is open
       rings    for each rank to each other one: how far what goes from one to the other is written, and read
       bytes    of each ring, MESH_SOCKET__RING
       heaps    of each rank: mesh_alloc, and what operations on shared memory need
   A rank writes into its own place and heap, into the rings that begin at it, and in an all_reduce into what the others receive, where all
   of that is shared. If such a one fails, who receives takes its memory out of the file: a rank that is stopped and goes on later spoils nothing
   that another has given back to its program.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_SHARED_IMPLEMENTED)
#define MESH_SOCKET_SHARED_IMPLEMENTED
#include "state.h"

enum {
    MESH_SOCKET__RING = 64 * 1024,
    MESH_SOCKET__RING_PIECE = 16 * 1024, /* shown, or given free, at once: the other side works meanwhile */
    MESH_SOCKET__PAGE = 4096,
    MESH_SOCKET__RESERVE = 8 << 20, /* bytes of a heap at most that a program cannot have */
    MESH_SOCKET__LOANS = 61,        /* messages that a rank has others read at once */
    MESH_SOCKET__LISTED = 2028,     /* groups that a rank may have open at once */
    MESH_SOCKET__LINE = 64,
    MESH_SOCKET__WIDE = 2 << 20 /* blocks as large as this begin at a huge page */
};

/* Words that others see: on i386 a uint64_t of a struct may lie at a multiple of 4, where compilers make calls of such accesses. */
#if defined(__GNUC__)
typedef uint64_t mesh_socket__word __attribute__((aligned(8)));
#else
typedef uint64_t mesh_socket__word;
#endif

/* A stream of bytes, which stand apart, so that none of them shares a page with another's. Positions count all that went through, and wrap. And what both
   sides say of a large message that the receiver copies from the front, while its sender copies pieces from the back to a stage (lend.h). */
struct mesh_socket__ring {
    uint32_t written; /* by who sends, as what follows */
    uint32_t full;    /* it has more to send than there was room for */
    unsigned char apart[56];
    mesh_socket__word staged; /* the turn, 32 bits, and how many pieces of its message it has copied */
    mesh_socket__word stage;  /* where to, in the file */
    unsigned char apart_staged[48];
    uint32_t read; /* by who receives, as what follows */
    unsigned char apart_read[60];
    mesh_socket__word message; /* what the sender calls the one that is copied now; 0: there is none */
    uint32_t turn;             /* so many there were, with it */
    uint32_t first, taken;     /* pieces: the first that the receiver has not begun; those that it has from the stage */
    unsigned char apart_too[44];
};

/* A group that a rank has open, or has closed while others may still read its cell: those that have it open, and those that are about to open it. */
enum { MESH_SOCKET__IS_OPEN, MESH_SOCKET__IS_CLOSED };

typedef struct mesh_socket__listed {
    uint32_t id, state; /* id 0: free */
    /* Where its cell is; who may still read it, a bit for each index, which that one takes away when it closes the group. */
    mesh_socket__word at, readers;
    uint64_t zero;
} mesh_socket__listed;

typedef struct mesh_socket__place {
    uint32_t asleep; /* 1: it wants to be woken. By itself; who wakes it makes it 0 */
    uint32_t core;   /* 1 + the one that it was last seen on by itself; 0: unknown */
    uint32_t calls;  /* before it sleeps it has what all others have written shown (membarrier) */
    unsigned char apart[52];
    uint64_t probe, probe_at; /* a number, and where the same one stands in its own memory */
    mesh_socket__word reads;  /* whose own memory it can read, a bit for each index */
    mesh_socket__word lent[MESH_SOCKET__LOANS];
    mesh_socket__listed listed[MESH_SOCKET__LISTED];
} mesh_socket__place;

/* A part of this rank's heap, used or free; they follow each other without gaps. */
typedef struct mesh_socket__block {
    uint64_t at, nbytes; /* in the file */
    int used, holds;     /* holds: operations that use it; */
    int unwanted;        /* it is given back when they have ended */
    /* What of it is this process's own memory by now, and its place in the file nobody's; 0, 0: nothing. */
    uint64_t own_at, own_end;
} mesh_socket__block;

struct mesh_socket__shared {
    unsigned char *base;
    uint64_t nbytes, heap; /* heap: bytes of each rank's */
    int fd, n, me;         /* me: of the n ranks that share */
    int all_call;          /* who sleeps sees to it that it sees what was written: who writes need not */
    int rank[MESH_SOCKET__SHARERS];
    int bell
        [MESH_SOCKET__SHARERS]; /* eventfds, by which they wake each other: who is woken through a socket comes to its waker's core */
    mesh_socket__block *block;
    int nblocks, block_cap;
    int first;      /* blocks before it are in use: where to look for a free one */
    uint64_t left;  /* bytes of free blocks */
    uint64_t probe; /* read by the others, to see whether they can */
};

/* ---- // >>words that others see ---- */

#if defined(__GCC_ATOMIC_LLONG_LOCK_FREE) && __GCC_ATOMIC_LLONG_LOCK_FREE == 2 /* a lock would be each process's own */
#define MESH_SOCKET__SHARES MESH_SOCKET__LINUX
#define MESH_SOCKET__SEE(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define MESH_SOCKET__SHOW(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define MESH_SOCKET__SWAP(p, v) __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST)
#define MESH_SOCKET__CLEAR(p, bits) ((void)__atomic_fetch_and(p, ~(bits), __ATOMIC_SEQ_CST))
#define MESH_SOCKET__TURN(p, was, v) __atomic_compare_exchange_n(p, was, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
#define MESH_SOCKET__FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define MESH_SOCKET__WAS_READ() __atomic_thread_fence(__ATOMIC_ACQUIRE) /* what was read before is not read later */
#define MESH_SOCKET__ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)    /* of what the compiler writes */
#else
#define MESH_SOCKET__SHARES 0
#define MESH_SOCKET__SEE(p) (*(p))
#define MESH_SOCKET__SHOW(p, v) (*(p) = (v))
#define MESH_SOCKET__SWAP(p, v) (*(p))
#define MESH_SOCKET__CLEAR(p, bits) ((void)(*(p) &= ~(bits)))
#define MESH_SOCKET__TURN(p, was, v) (*(p) == *(was))
#define MESH_SOCKET__FENCE() ((void)0)
#define MESH_SOCKET__WAS_READ() ((void)0)
#define MESH_SOCKET__ORDER() ((void)0)
#endif

#if defined(__x86_64__) || defined(__i386__)
#define MESH_SOCKET__RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__) && defined(__GNUC__)
#define MESH_SOCKET__RELAX() __asm__ volatile("yield")
#else
#define MESH_SOCKET__RELAX() ((void)0)
#endif

/* This rank is about to write there: the line of the cache is its own by then. */
#if defined(__x86_64__)
#define MESH_SOCKET__OWN(line) \
    __asm__ volatile("prefetchw %0" : : "m"(line)) /* no target's flags make compilers take it */
#elif defined(__GNUC__)
#define MESH_SOCKET__OWN(line) __builtin_prefetch(&(line), 1)
#else
#define MESH_SOCKET__OWN(line) ((void)(line))
#endif

#if MESH_SOCKET__SHARES
#include <sys/eventfd.h>
#include <sys/mman.h>
#if !defined(SYS_memfd_create)
#undef MESH_SOCKET__SHARES
#define MESH_SOCKET__SHARES 0
#endif
#endif

/* ---- // >>layout ---- */

MESH__PRIVATE uint64_t mesh_socket__rings_at(int n) { return (uint64_t)n * sizeof(mesh_socket__place); }

MESH__PRIVATE uint64_t mesh_socket__bytes_at(int n) {
    uint64_t end = mesh_socket__rings_at(n) + (uint64_t)n * (uint64_t)n * sizeof(mesh_socket__ring);
    return (end + MESH_SOCKET__PAGE - 1) / MESH_SOCKET__PAGE * MESH_SOCKET__PAGE;
}

MESH__PRIVATE uint64_t mesh_socket__heaps_at(int n) {
    uint64_t end = mesh_socket__bytes_at(n) + (uint64_t)n * (uint64_t)n * MESH_SOCKET__RING;
    return (end + MESH_SOCKET__WIDE - 1) / MESH_SOCKET__WIDE * MESH_SOCKET__WIDE;
}

MESH__PRIVATE mesh_socket__place *mesh_socket__place_of(const mesh_socket__shared *h, int index) {
    return (mesh_socket__place *)(void *)(h->base + (uint64_t)index * sizeof(mesh_socket__place));
}

MESH__PRIVATE mesh_socket__ring *mesh_socket__ring_of(const mesh_socket__shared *h, int from, int to) {
    uint64_t k = (uint64_t)from * (uint64_t)h->n + (uint64_t)to;
    return (mesh_socket__ring *)(void *)(h->base + mesh_socket__rings_at(h->n) + k * sizeof(mesh_socket__ring));
}

MESH__INLINE unsigned char *mesh_socket__ring_bytes(const mesh_socket__shared *h, const mesh_socket__ring *r) {
    const mesh_socket__ring *first = mesh_socket__ring_of(h, 0, 0);
    return h->base + mesh_socket__bytes_at(h->n) + (uint64_t)(r - first) * MESH_SOCKET__RING;
}

MESH__PRIVATE uint64_t mesh_socket__heap_at(const mesh_socket__shared *h, int index) {
    return mesh_socket__heaps_at(h->n) + (uint64_t)index * h->heap;
}

/* Memory that a rank has told of: NULL where it lies outside of what it has. */
MESH__PRIVATE unsigned char *mesh_socket__told_memory(const mesh_socket__shared *h, int index, uint64_t at,
                                                      uint64_t nbytes) {
    uint64_t heap = mesh_socket__heap_at(h, index);
    return at >= heap && nbytes <= h->heap && at - heap <= h->heap - nbytes ? h->base + at : NULL;
}

/* ---- // >>cores ---- */

/* Tell the others on which core this rank runs. Returns 1 if one of them says the same of itself: it is not running now. */
MESH__PRIVATE int mesh_socket__meets_on_core(mesh_socket__shared *h) {
#if MESH_SOCKET__LINUX && defined(SYS_getcpu)
    mesh_socket__place *mine = mesh_socket__place_of(h, h->me);
    unsigned core = 0;
    int i;
    if (syscall(SYS_getcpu, &core, NULL, NULL) != 0) return 0;
    if (mine->core != core + 1) MESH_SOCKET__SHOW(&mine->core, (uint32_t)core + 1);
    for (i = 0; i < h->n; i++)
        if (i != h->me && MESH_SOCKET__SEE(&mesh_socket__place_of(h, i)->core) == core + 1) return 1;
#else
    (void)h;
#endif
    return 0;
}

/* ---- // >>who sleeps and who writes ---- */

enum { MESH_SOCKET__BARRIER_NOW = 2, MESH_SOCKET__BARRIER_REGISTER = 4 }; /* of membarrier: GLOBAL_EXPEDITED */

MESH__PRIVATE int mesh_socket__membarrier(int command) {
#if MESH_SOCKET__LINUX && defined(SYS_membarrier)
    return syscall(SYS_membarrier, (long)command, 0L, 0L) == 0;
#else
    return (void)command, 0;
#endif
}

/* This rank says that it sleeps, and then looks whether there is something; another writes something, and then looks whether this rank sleeps. One of both
   has to see the other. Returns 0 where it must not sleep. */
MESH__PRIVATE int mesh_socket__say_asleep(mesh_socket__shared *h) {
    (void)MESH_SOCKET__SWAP(&mesh_socket__place_of(h, h->me)->asleep, 1u);
    return !h->all_call || mesh_socket__membarrier(MESH_SOCKET__BARRIER_NOW);
}

/* Where every rank can do so: what each has in its place was put there before. */
MESH__RARE void mesh_socket__all_call(mesh_socket__shared *h) {
    int i;
    h->all_call = 1;
    for (i = 0; i < h->n; i++) h->all_call &= (int)MESH_SOCKET__SEE(&mesh_socket__place_of(h, i)->calls);
}

MESH__INLINE void mesh_socket__written(const mesh_socket__shared *h) {
    if (h->all_call)
        MESH_SOCKET__ORDER();
    else
        MESH_SOCKET__FENCE();
}

/* ---- // >>rings ---- */

/* Bytes for which there is room; how far the peer has read is looked at where they seem less than `least`. */
MESH__PRIVATE uint32_t mesh_socket__ring_room(mesh_socket__peer *p, mesh_socket__ring *r, uint32_t least) {
    uint32_t room = MESH_SOCKET__RING - (p->ring_written - p->ring_seen);
    if (room >= least) return room;
    p->ring_seen = MESH_SOCKET__SEE(&r->read);
    return MESH_SOCKET__RING - (p->ring_written - p->ring_seen);
}

/* Put n bytes behind those that are not shown yet, `ahead` of them: there is room. */
MESH__INLINE void mesh_socket__ring_put(const mesh_socket__peer *p, unsigned char *bytes, uint32_t ahead,
                                        const void *from, uint32_t n) {
    uint32_t at = (p->ring_written + ahead) % MESH_SOCKET__RING, first = MESH_SOCKET__RING - at;
    if (n <= first) {
        mesh__copy_few(bytes + at, from, n);
        return;
    }
    mesh__copy_bytes(bytes + at, from, first);
    mesh__copy_bytes(bytes, (const unsigned char *)from + first, n - first);
}

/* n bytes more are shown. What was written is counted apart: the line where the peer looks for it is the peer's each time it has looked. */
MESH__INLINE void mesh_socket__ring_show(mesh_socket__peer *p, mesh_socket__ring *r, uint32_t n) {
    p->ring_written += n;
    MESH_SOCKET__SHOW(&r->written, p->ring_written);
}

MESH__INLINE uint32_t mesh_socket__ring_holds(const mesh_socket__peer *p, mesh_socket__ring *r) {
    return MESH_SOCKET__SEE(&r->written) - p->ring_read;
}

/* Take n bytes, `ahead` of which were taken and not yet read: they are there. */
MESH__INLINE void mesh_socket__ring_take(const mesh_socket__peer *p, const unsigned char *bytes, uint32_t ahead,
                                         void *to, uint32_t n) {
    uint32_t at = (p->ring_read + ahead) % MESH_SOCKET__RING, first = MESH_SOCKET__RING - at;
    if (n <= first) {
        mesh__copy_few(to, bytes + at, n);
        return;
    }
    mesh__copy_bytes(to, bytes + at, first);
    mesh__copy_bytes((unsigned char *)to + first, bytes, n - first);
}

/* The same of a message, from an offset on, strided or not. */
MESH__PRIVATE void mesh_socket__ring_pack(const mesh_socket__peer *p, unsigned char *bytes, uint32_t ahead,
                                          const mesh_xfer *from, uint64_t offset, uint32_t n) {
    uint32_t at = (p->ring_written + ahead) % MESH_SOCKET__RING, first = MESH_SOCKET__RING - at;
    if (!n) return;
    if (!from->block) {
        mesh_socket__ring_put(p, bytes, ahead, (const unsigned char *)from->base + offset, n);
        return;
    }
    if (first > n) first = n;
    mesh__pack(from, offset, bytes + at, first);
    mesh__pack(from, offset + first, bytes, n - first);
}

MESH__PRIVATE void mesh_socket__ring_unpack(const mesh_socket__peer *p, const unsigned char *bytes, uint32_t ahead,
                                            const mesh_xfer *to, uint64_t offset, uint32_t n) {
    uint32_t at = (p->ring_read + ahead) % MESH_SOCKET__RING, first = MESH_SOCKET__RING - at;
    if (!n) return;
    if (!to->block) {
        mesh_socket__ring_take(p, bytes, ahead, (unsigned char *)to->base + offset, n);
        return;
    }
    if (first > n) first = n;
    mesh__unpack(to, offset, bytes + at, first);
    mesh__unpack(to, offset + first, bytes, n - first);
}

/* n bytes are read. Every so often they are given free, which who writes looks at seldom: 1 where it waits for that. What is never shown is a piece at
   most, and a ring that is full holds more. */
MESH__PRIVATE int mesh_socket__ring_free(mesh_socket__peer *p, mesh_socket__ring *r, uint32_t n) {
    p->ring_read += n;
    if (p->ring_read - r->read < MESH_SOCKET__RING_PIECE) return 0;
    MESH_SOCKET__SHOW(&r->read, p->ring_read);
    MESH_SOCKET__FENCE();
    return MESH_SOCKET__SEE(&r->full) != 0;
}

/* ---- // >>the file ---- */

MESH__RARE mesh_socket__shared *mesh_socket__shared_new(mesh_socket__impl *s, int n, int me, const int *ranks) {
    mesh_socket__shared *h = (mesh_socket__shared *)mesh_transport_alloc(&s->net->base, sizeof *h);
    int i;
    if (!h) return NULL;
    memset(h, 0, sizeof *h);
    h->fd = -1;
    for (i = 0; i < MESH_SOCKET__SHARERS; i++) h->bell[i] = -1;
    h->n = n;
    h->me = me;
    memcpy(h->rank, ranks, (size_t)n * sizeof *ranks);
    return h;
}

#if MESH_SOCKET__SHARES
/* Map the file, where huge pages of it can be. In a program that locks its memory (mlockall) it is not locked, or all that it could hold would be there at
   once; before it can be read nothing is. */
MESH__RARE int mesh_socket__map(mesh_socket__shared *h) {
    void *all, *p = MAP_FAILED;
    size_t before;
    h->nbytes = mesh_socket__heaps_at(h->n) + (uint64_t)h->n * h->heap;
    all = mmap(NULL, (size_t)h->nbytes + MESH_SOCKET__WIDE, PROT_NONE, MAP_SHARED, h->fd, 0);
    if (all != MAP_FAILED) {
        before = (MESH_SOCKET__WIDE - (uintptr_t)all % MESH_SOCKET__WIDE) % MESH_SOCKET__WIDE;
        p = (unsigned char *)all + before;
        if (before) munmap(all, before);
        munmap((unsigned char *)p + h->nbytes, MESH_SOCKET__WIDE - before);
        if (mmap(p, (size_t)h->nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, h->fd, 0) == MAP_FAILED ||
            munlock(p, (size_t)h->nbytes) != 0 || mprotect(p, (size_t)h->nbytes, PROT_READ | PROT_WRITE) != 0) {
            munmap(p, (size_t)h->nbytes);
            p = MAP_FAILED;
        }
    }
    h->base = p == MAP_FAILED ? NULL : (unsigned char *)p;
    if (h->base) { /* a core has this rank's memory, not everybody's; MADV_DONTDUMP and _DODUMP, which strict C hides */
        enum { MESH_SOCKET__DONTDUMP = 16, MESH_SOCKET__DODUMP = 17 };
        unsigned char *own = h->base + mesh_socket__heap_at(h, h->me);
        long status = syscall(SYS_madvise, (long)(uintptr_t)p, (long)h->nbytes, (long)MESH_SOCKET__DONTDUMP);
        status |= syscall(SYS_madvise, (long)(uintptr_t)own, (long)h->heap, (long)MESH_SOCKET__DODUMP);
        (void)status;
    }
    return h->base != NULL;
}

/* A piece at a time: older kernels take back all that they have made when a signal comes, and with a timer's would never end. */
MESH__PRIVATE int mesh_socket__fill(const mesh_socket__shared *h, uint64_t at, uint64_t nbytes) {
    while (nbytes) {
        uint64_t piece = nbytes < MESH_SOCKET__WIDE ? nbytes : (uint64_t)MESH_SOCKET__WIDE;
        int error = posix_fallocate(h->fd, (off_t)at, (off_t)piece);
        if (error == EINTR) continue;
        if (error) return error;
        at += piece;
        nbytes -= piece;
    }
    return 0;
}

/* Have huge pages, as far as the kernel gives them: each grows out of a small one. (For files without a name it has no other way, unless
   shmem_enabled is set.) */
MESH__PRIVATE void mesh_socket__widen_pages(const mesh_socket__shared *h, uint64_t at, uint64_t nbytes) {
    enum { MESH_SOCKET__COLLAPSE = 25 }; /* MADV_COLLAPSE, of Linux 6.1 */
    uint64_t end = (at + nbytes) / MESH_SOCKET__WIDE * MESH_SOCKET__WIDE;
    at = (at + MESH_SOCKET__WIDE - 1) / MESH_SOCKET__WIDE * MESH_SOCKET__WIDE;
    for (; at < end; at += MESH_SOCKET__WIDE) {
        if (mesh_socket__fill(h, at, MESH_SOCKET__PAGE) != 0) return;
        h->base[at] = 0;
        if (syscall(SYS_madvise, (long)(uintptr_t)(h->base + at), (long)MESH_SOCKET__WIDE,
                    (long)MESH_SOCKET__COLLAPSE) != 0)
            return;
    }
}

/* Have pages where there are none yet. Returns 0, or why not: a page that is not there would end the program when it is touched. */
MESH__PRIVATE int mesh_socket__back(const mesh_socket__shared *h, uint64_t at, uint64_t nbytes) {
    if (nbytes >= MESH_SOCKET__WIDE) mesh_socket__widen_pages(h, at, nbytes);
    return mesh_socket__fill(h, at, nbytes);
}

/* Give pages back. */
MESH__PRIVATE void mesh_socket__unback(const mesh_socket__shared *h, uint64_t at, uint64_t nbytes) {
    enum { MESH_SOCKET__REMOVE = 9 }; /* MADV_REMOVE, which strict C hides */
    long status = syscall(SYS_madvise, (long)(uintptr_t)(h->base + at), (long)nbytes, (long)MESH_SOCKET__REMOVE);
    (void)status;
}

/* Put memory of this process's own, with the same contents, in the place of the file's. Pages are whole. */
MESH__RARE int mesh_socket__own(const mesh_socket__shared *h, uint64_t at, uint64_t nbytes) {
    enum { MESH_SOCKET__MAYMOVE_FIXED = 3 }; /* of mremap, which strict C hides */
    int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
    void *p = zero < 0 ? MAP_FAILED : mmap(NULL, (size_t)nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0);
    if (zero >= 0) close(zero);
    if (p == MAP_FAILED) return 0;
    memcpy(p, h->base + at, (size_t)nbytes);
    if (syscall(SYS_mremap, (long)(uintptr_t)p, (long)nbytes, (long)nbytes, (long)MESH_SOCKET__MAYMOVE_FIXED,
                (long)(uintptr_t)(h->base + at)) != -1)
        return 1;
    munmap(p, (size_t)nbytes);
    return 0;
}

/* Give back memory of the process's own, and what the file has in its place. */
MESH__RARE void mesh_socket__drop(const mesh_socket__shared *h, uint64_t at, uint64_t nbytes) {
    enum { MESH_SOCKET__DONTNEED = 4, MESH_SOCKET__PUNCH_HOLE_KEEP_SIZE = 3 };
    long status = syscall(SYS_madvise, (long)(uintptr_t)(h->base + at), (long)nbytes, (long)MESH_SOCKET__DONTNEED);
#if defined(SYS_fallocate)
    if (sizeof(long) == 8)
        status |= syscall(SYS_fallocate, (long)h->fd, (long)MESH_SOCKET__PUNCH_HOLE_KEEP_SIZE, (long)at, (long)nbytes);
#endif
    (void)status;
}

/* What a limit, or a part of it, leaves to each of n heaps. */
MESH__RARE uint64_t mesh_socket__within(const struct rlimit *limit, uint64_t parts, int n, uint64_t most) {
    uint64_t all = (uint64_t)limit->rlim_cur / parts, before = mesh_socket__heaps_at(n);
    if (limit->rlim_cur == RLIM_INFINITY) return most;
    all = all > before ? (all - before) / (uint64_t)n : 0;
    return all < most ? all : most;
}

/* How much each of n ranks may have at most: all of the memory there is, or twice a fair part of it. */
MESH__RARE uint64_t mesh_socket__heap_bytes(int n) {
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES), page = (uint64_t)sysconf(_SC_PAGESIZE), all = pages * page;
    uint64_t most = sizeof(void *) < 8 ? (uint64_t)(64 << 20) / (uint64_t)n : n > 2 ? 2 * all / (uint64_t)n : all;
    struct rlimit limit;
    /* a larger file is a signal; the address space is the program's too */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0) most = mesh_socket__within(&limit, 1, n, most);
    if (getrlimit(RLIMIT_AS, &limit) == 0) most = mesh_socket__within(&limit, 4, n, most);
    return most / MESH_SOCKET__WIDE * MESH_SOCKET__WIDE;
}

/* Make the file, as large as it can be had, and map it. Returns 0, or why not. */
MESH__RARE int mesh_socket__shared_make(mesh_socket__shared *h) {
    const uint64_t least = 4 << 20;
    int error = ENOMEM, i;
    h->fd = (int)syscall(SYS_memfd_create, "mesh.h", 1L /* MFD_CLOEXEC */);
    if (h->fd < 0) return errno;
    for (i = 0; i < h->n; i++)
        if ((h->bell[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) return errno;
    for (h->heap = mesh_socket__heap_bytes(h->n); h->heap >= least; h->heap = h->heap / 2 / least * least) {
        h->nbytes = mesh_socket__heaps_at(h->n) + (uint64_t)h->n * h->heap;
        if (ftruncate(h->fd, (off_t)h->nbytes) == 0 && mesh_socket__map(h)) return 0;
        error = errno;
    }
    return error;
}

MESH__RARE void mesh_socket__unshare(mesh_socket__impl *s) {
    mesh_socket__shared *h = s->shared;
    int i;
    if (!h) return;
    s->shared = NULL;
    for (i = 0; i < h->n; i++)
        if (h->bell[i] >= 0) close(h->bell[i]);
    if (h->base) munmap(h->base, (size_t)h->nbytes);
    if (h->fd >= 0) close(h->fd);
    mesh_transport_free(&s->net->base, h->block);
    mesh_transport_free(&s->net->base, h);
}
#else
MESH__RARE int mesh_socket__map(mesh_socket__shared *h) {
    (void)h;
    return 0;
}
MESH__PRIVATE int mesh_socket__back(const mesh_socket__shared *h, uint64_t at, uint64_t nbytes) {
    (void)h, (void)at, (void)nbytes;
    return ENOMEM;
}
MESH__PRIVATE void mesh_socket__unback(const mesh_socket__shared *h, uint64_t at, uint64_t nbytes) {
    (void)h, (void)at, (void)nbytes;
}
MESH__RARE int mesh_socket__own(const mesh_socket__shared *h, uint64_t at, uint64_t nbytes) {
    (void)h, (void)at, (void)nbytes;
    return 0;
}
MESH__RARE void mesh_socket__drop(const mesh_socket__shared *h, uint64_t at, uint64_t nbytes) {
    (void)h, (void)at, (void)nbytes;
}
MESH__RARE int mesh_socket__shared_make(mesh_socket__shared *h) {
    (void)h;
    return ENOMEM;
}
MESH__RARE void mesh_socket__unshare(mesh_socket__impl *s) { (void)s; }
#endif

/* ---- // >>heap: what mesh_alloc gives ---- */

MESH__PRIVATE int mesh_socket__block_find(const mesh_socket__shared *h, uint64_t at) {
    int low = 0, high = h->nblocks;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (h->block[middle].at + h->block[middle].nbytes <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < h->nblocks && h->block[low].at <= at ? low : -1;
}

MESH__PRIVATE void mesh_socket__block_insert(mesh_socket__shared *h, int k, uint64_t at, uint64_t nbytes, int used) {
    memmove(h->block + k + 1, h->block + k, (size_t)(h->nblocks++ - k) * sizeof *h->block);
    memset(&h->block[k], 0, sizeof h->block[k]);
    h->block[k].at = at;
    h->block[k].nbytes = nbytes;
    h->block[k].used = used;
    if (k < h->first) h->first = k;
}

MESH__PRIVATE void mesh_socket__block_remove(mesh_socket__shared *h, int k) {
    memmove(h->block + k, h->block + k + 1, (size_t)(--h->nblocks - k) * sizeof *h->block);
    if (k < h->first) h->first = k;
}

/* Memory of this rank's that the others can map; NULL: there is none left, or the kernel gives none. */
MESH__PRIVATE unsigned char *mesh_socket__heap_take(mesh_socket__impl *s, uint64_t nbytes) {
    mesh_socket__shared *h = s->shared;
    uint64_t unit = nbytes >= MESH_SOCKET__PAGE ? MESH_SOCKET__PAGE : MESH_SOCKET__LINE, at = 0;
    uint64_t align = nbytes >= MESH_SOCKET__WIDE ? (uint64_t)MESH_SOCKET__WIDE : unit;
    mesh_socket__block *b = NULL;
    int k;
    if (!h || nbytes > h->heap ||
        !mesh__grow(&s->net->base, (void **)&h->block, &h->block_cap, h->nblocks + 3, sizeof *h->block))
        return NULL;
    nbytes = (nbytes + unit - 1) / unit * unit;
    if (!h->nblocks) {
        mesh_socket__block_insert(h, 0, mesh_socket__heap_at(h, h->me), h->heap, 0);
        h->left = h->heap;
    }
    while (h->first < h->nblocks && h->block[h->first].used) h->first++;
    for (k = h->first; k < h->nblocks; k++) {
        b = &h->block[k];
        at = (b->at + align - 1) / align * align;
        if (!b->used && at + nbytes <= b->at + b->nbytes) break;
    }
    if (k == h->nblocks) return NULL;
    if (mesh_socket__back(h, at, nbytes) != 0) {
        mesh_socket__unback(h, at, nbytes);
        return NULL;
    }
    if (at > b->at) { /* what lies before it stays free */
        mesh_socket__block_insert(h, k + 1, at, b->at + b->nbytes - at, 0);
        h->block[k].nbytes = at - h->block[k].at;
        k++;
    }
    b = &h->block[k];
    if (b->nbytes > nbytes) {
        mesh_socket__block_insert(h, k + 1, at + nbytes, b->nbytes - nbytes, 0);
        h->block[k].nbytes = nbytes;
    }
    h->block[k].used = 1;
    h->left -= nbytes;
    return h->base + at;
}

/* May a program have so much of the heap? The rest is for groups and chunks, which go on when it has all that it may have. */
MESH__PRIVATE int mesh_socket__spares(const mesh_socket__shared *h, uint64_t nbytes) {
    uint64_t left, rest;
    if (!h) return 0;
    left = h->nblocks ? h->left : h->heap;
    rest = h->heap / 4 < (uint64_t)MESH_SOCKET__RESERVE ? h->heap / 4 : (uint64_t)MESH_SOCKET__RESERVE;
    return nbytes <= left && left - nbytes >= rest;
}

/* What stands at `at` and behind in block k is a block of its own, used as well. Returns 1 if there is something before it. */
MESH__PRIVATE int mesh_socket__block_cut(mesh_socket__shared *h, int k, uint64_t at) {
    uint64_t end = h->block[k].at + h->block[k].nbytes;
    if (at > h->block[k].at && at < end) {
        mesh_socket__block_insert(h, k + 1, at, end - at, 1);
        h->block[k].nbytes = at - h->block[k].at;
    }
    return at > h->block[k].at;
}

/* A block is free again, one with its neighbours. Its pages go back to the kernel where they are many. What of it is this process's own goes back as well,
   and its place is never used again: a rank that was given up may still write there. */
MESH__PRIVATE void mesh_socket__block_free(mesh_socket__shared *h, int k) {
    mesh_socket__block *b = &h->block[k];
    uint64_t from = b->own_at, to = b->own_end, end = b->at + b->nbytes;
    if (to) {
        int lost, tail;
        b->own_at = b->own_end = 0;
        mesh_socket__drop(h, from, to - from);
        if (h->nblocks + 2 > h->block_cap) from = b->at, to = end; /* no memory to tell its parts apart */
        tail = to < end;
        mesh_socket__block_cut(h, k, to);
        lost = k + mesh_socket__block_cut(h, k, from);
        h->block[lost].unwanted = 1;
        if (tail) mesh_socket__block_free(h, lost + 1);
        if (lost > k) mesh_socket__block_free(h, k);
        return;
    }
    if (b->nbytes >= 1 << 20) mesh_socket__unback(h, b->at, b->nbytes);
    b->used = b->unwanted = 0;
    h->left += b->nbytes;
    if (k < h->first) h->first = k;
    if (k + 1 < h->nblocks && !h->block[k + 1].used) {
        b->nbytes += h->block[k + 1].nbytes;
        mesh_socket__block_remove(h, k + 1);
    }
    if (k > 0 && !h->block[k - 1].used) {
        h->block[k - 1].nbytes += h->block[k].nbytes;
        mesh_socket__block_remove(h, k);
    }
}

/* The block that begins there; -1: none in use does. */
MESH__PRIVATE int mesh_socket__block_at(const mesh_socket__shared *h, const void *p) {
    uintptr_t base = (uintptr_t)(h ? h->base : NULL), at = (uintptr_t)p;
    int k;
    if (!h || at < base || at - base >= h->nbytes) return -1;
    k = mesh_socket__block_find(h, (uint64_t)(at - base));
    return k >= 0 && h->block[k].used && !h->block[k].unwanted && h->block[k].at == (uint64_t)(at - base) ? k : -1;
}

MESH__PRIVATE void mesh_socket__heap_give(mesh_socket__impl *s, void *p) {
    int k = mesh_socket__block_at(s->shared, p);
    if (k < 0) return;
    if (s->shared->block[k].holds)
        s->shared->block[k].unwanted = 1;
    else
        mesh_socket__block_free(s->shared, k);
}

/* Where memory is in the file, all of it in one block in use; 0: it is the program's own. */
MESH__PRIVATE uint64_t mesh_socket__shared_at(const mesh_socket__shared *h, const void *p, uint64_t nbytes) {
    uintptr_t base = (uintptr_t)h->base, at = (uintptr_t)p;
    int k;
    if (at < base || at - base >= h->nbytes) return 0;
    k = mesh_socket__block_find(h, (uint64_t)(at - base));
    if (k < 0 || !h->block[k].used || h->block[k].own_end ||
        nbytes > h->block[k].at + h->block[k].nbytes - (uint64_t)(at - base))
        return 0;
    return (uint64_t)(at - base);
}

/* The pages of a range are this process's own from now on, at the same addresses, with the same contents; those of its block that were so stay it, with what
   lies between. Returns the range; without memory for that it is empty, and they stay where they are. */
MESH__RARE void mesh_socket__detach(mesh_socket__impl *s, uint64_t *at, uint64_t *nbytes) {
    mesh_socket__shared *h = s->shared;
    int k = mesh_socket__block_find(h, *at), done;
    mesh_socket__block *b = &h->block[k < 0 ? 0 : k];
    uint64_t from = *at / MESH_SOCKET__PAGE * MESH_SOCKET__PAGE,
             to = (*at + *nbytes + MESH_SOCKET__PAGE - 1) / MESH_SOCKET__PAGE * MESH_SOCKET__PAGE;
    *nbytes = 0;
    if (k < 0) return;
    if (from < b->at) from = b->at;
    if (to > b->at + b->nbytes) to = b->at + b->nbytes;
    if (!b->own_end) {
        done = mesh_socket__own(h, from, to - from);
    } else {
        if (from > b->own_at) from = b->own_at;
        if (to < b->own_end) to = b->own_end;
        done = (from == b->own_at || mesh_socket__own(h, from, b->own_at - from)) &&
               (to == b->own_end || mesh_socket__own(h, b->own_end, to - b->own_end));
    }
    if (done) {
        *at = b->own_at = from;
        *nbytes = to - from;
        b->own_end = to;
        return;
    }
    mesh_socket__log(
        s, 1,
        "mesh_socket: no memory to take %u bytes out of what is shared: a rank that was given up may still write there",
        to - from);
}

/* An operation uses the block with what lies at `at` (0: none), or does so no more. */
MESH__PRIVATE void mesh_socket__hold(mesh_socket__shared *h, uint64_t at) {
    int k = at ? mesh_socket__block_find(h, at) : -1;
    if (k >= 0) h->block[k].holds++;
}

MESH__PRIVATE void mesh_socket__release_hold(mesh_socket__shared *h, uint64_t at) {
    int k = at ? mesh_socket__block_find(h, at) : -1;
    if (k >= 0 && --h->block[k].holds == 0 && h->block[k].unwanted) mesh_socket__block_free(h, k);
}

/* ---- // >>groups: where each rank has its cell ---- */

/* This rank's entry of a group, or a free one (id 0). NULL: there is none. */
MESH__PRIVATE mesh_socket__listed *mesh_socket__my_entry(mesh_socket__shared *h, uint32_t id, uint32_t wanted) {
    mesh_socket__place *p = mesh_socket__place_of(h, h->me);
    uint32_t k, first = id % MESH_SOCKET__LISTED;
    for (k = 0; k < MESH_SOCKET__LISTED; k++)
        if (p->listed[(first + k) % MESH_SOCKET__LISTED].id == wanted)
            return &p->listed[(first + k) % MESH_SOCKET__LISTED];
    return NULL;
}

/* List a cell of this rank's, which `readers` may read. Returns 0 where it has too many groups. */
MESH__PRIVATE int mesh_socket__list_cell(mesh_socket__shared *h, uint32_t id, uint64_t at, uint64_t readers) {
    mesh_socket__listed *l = mesh_socket__my_entry(h, id, 0);
    if (!l) return 0;
    l->at = at;
    l->readers = readers;
    l->state = MESH_SOCKET__IS_OPEN;
    MESH_SOCKET__SHOW(&l->id, id);
    MESH_SOCKET__FENCE(); /* before this rank looks for others' */
    return 1;
}

/* Another rank's entry of a group; NULL: there is none. */
MESH__PRIVATE mesh_socket__listed *mesh_socket__entry_of(const mesh_socket__shared *h, int index, uint32_t id) {
    mesh_socket__place *p = mesh_socket__place_of(h, index);
    uint32_t k, first = id % MESH_SOCKET__LISTED;
    for (k = 0; k < MESH_SOCKET__LISTED; k++) {
        mesh_socket__listed *l = &p->listed[(first + k) % MESH_SOCKET__LISTED];
        if (MESH_SOCKET__SEE(&l->id) == id) return l;
    }
    return NULL;
}

/* Where another rank has its cell; 0: it has not opened the group, or this one has closed it. */
MESH__PRIVATE uint64_t mesh_socket__listed_at(const mesh_socket__shared *h, int index, uint32_t id) {
    mesh_socket__listed *l = mesh_socket__entry_of(h, index, id);
    uint64_t at = l && MESH_SOCKET__SEE(&l->readers) >> h->me & 1 ? l->at : 0;
    MESH_SOCKET__WAS_READ();
    return at && MESH_SOCKET__SEE(&l->id) == id ? at : 0; /* not of another group that has it by now */
}

/* This rank has closed a group and reads no other's cell any more; who has closed it too reads none of this one's. Who has not opened it has no
   entry: it keeps one until this rank has given up its bit there, and gets to its own later. */
MESH__PRIVATE void mesh_socket__close_cell(const mesh_socket__shared *h, mesh_socket__listed *mine) {
    int i;
    MESH_SOCKET__SHOW(&mine->state, (uint32_t)MESH_SOCKET__IS_CLOSED);
    MESH_SOCKET__FENCE();
    for (i = 0; i < h->n; i++) {
        mesh_socket__listed *its = i == h->me ? NULL : mesh_socket__entry_of(h, i, mine->id);
        if (!its) continue;
        MESH_SOCKET__CLEAR(&its->readers, (uint64_t)1 << h->me);
        if (MESH_SOCKET__SEE(&its->state) == MESH_SOCKET__IS_CLOSED)
            MESH_SOCKET__CLEAR(&mine->readers, (uint64_t)1 << i);
    }
}
#endif /* MESH_SOCKET_SHARED_IMPLEMENTED */
