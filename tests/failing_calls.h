/* System calls that fail, are interrupted or move less than they were asked to, on the threads that want it. Included before mesh_socket.h,
   whose calls then come through here; failing_calls_end.h takes the names away again. */
#ifndef FAILING_CALLS_H
#define FAILING_CALLS_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__) && !defined(MESH_POSIX_ONLY)
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#ifndef _GNU_SOURCE
extern int accept4(int fd, struct sockaddr *a, socklen_t *length, int flags);
#if !defined(_DEFAULT_SOURCE) && !defined(_BSD_SOURCE)
extern long syscall(long number, ...);
#endif
#endif
#endif

#define FAILING_CALLS(X)             \
    X(SOCKET, "socket")              \
    X(ACCEPT, "accept")              \
    X(CONNECT, "connect")            \
    X(BIND, "bind")                  \
    X(LISTEN, "listen")              \
    X(FCNTL, "fcntl")                \
    X(SENDMSG, "sendmsg")            \
    X(RECVMSG, "recvmsg")            \
    X(RECV, "recv")                  \
    X(OPEN, "open")                  \
    X(READ, "read")                  \
    X(CLOSE, "close")                \
    X(POLL, "poll")                  \
    X(GETSOCKOPT, "getsockopt")      \
    X(SETSOCKOPT, "setsockopt")      \
    X(GETSOCKNAME, "getsockname")    \
    X(GETADDRINFO, "getaddrinfo")    \
    X(SHUTDOWN, "shutdown")          \
    X(IOCTL, "ioctl")                \
    X(STAT, "stat")                  \
    X(FOPEN, "fopen")                \
    X(GETRLIMIT, "getrlimit")        \
    X(SETRLIMIT, "setrlimit")        \
    X(SYSCONF, "sysconf")            \
    X(NANOSLEEP, "nanosleep")        \
    X(EPOLL_CREATE, "epoll_create1") \
    X(EPOLL_CTL, "epoll_ctl")        \
    X(EPOLL_WAIT, "epoll_wait")      \
    X(SYSCALL, "syscall")

#define X(name, text) FAIL_AT_##name,
enum { FAILING_CALLS(X) FAIL_KINDS };
#undef X
#define X(name, text) FAIL_##name = 1 << FAIL_AT_##name,
enum { FAILING_CALLS(X) FAIL_NONE = 0 };
#undef X
#define X(name, text) text,
static const char *const failing_names[] = {FAILING_CALLS(X)};
#undef X

/* What one thread's calls are to meet. */
typedef struct failing_plan {
    unsigned kinds;                     /* the calls that are counted */
    int at, times;                      /* which of them fails, counted from 1, and how many in a row */
    int error;                          /* with this errno */
    void (*hook)(void *ctx), *hook_ctx; /* in place of failing: called before the call goes through */
    int interrupt;                      /* every other call is interrupted by a signal */
    int piece;                          /* 1: a byte at a time is read and written; above: at random up to so many */
    uint64_t random;
    int calls, failed; /* of these kinds; failed, or with the hook called */
    unsigned interrupted;
    int counts[FAIL_KINDS]; /* of every kind */
} failing_plan;

static __thread failing_plan *failing_now;      /* NULL: as the system has it */
static __thread volatile int64_t *failing_late; /* how far this thread's clock is ahead; NULL: it is right */
static volatile int failing_nap_ms;             /* above 0: nobody sleeps longer in poll */

enum {
    FAIL_INTERRUPTIBLE = FAIL_ACCEPT | FAIL_SENDMSG | FAIL_RECVMSG | FAIL_RECV | FAIL_READ | FAIL_POLL | FAIL_EPOLL_WAIT
};

static int failing_call(int at) {
    failing_plan *p = failing_now;
    unsigned kind = 1u << at;
    if (!p) return 0;
    p->counts[at]++;
    if (p->interrupt && kind & FAIL_INTERRUPTIBLE && (p->interrupted ^= kind) & kind) {
        errno = EINTR;
        return 1;
    }
    if (!(p->kinds & kind)) return 0;
    p->calls++;
    if (p->calls < p->at || p->calls - p->at >= p->times) return 0;
    p->failed++;
    if (p->hook) {
        p->hook(p->hook_ctx);
        return 0;
    }
    errno = p->error;
    return 1;
}

/* The same; what resets a connection resets both of its directions. */
static int failing_transfer(int at, int fd) {
    if (!failing_call(at)) return 0;
    if (errno == ECONNRESET) {
        shutdown(fd, SHUT_RDWR);
        errno = ECONNRESET;
    }
    return 1;
}

/* How much of n bytes is moved. */
static size_t failing_short(size_t n) {
    failing_plan *p = failing_now;
    size_t most;
    if (!p || !p->piece || n <= 1) return n;
    p->random = p->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    most = 1 + (size_t)(p->random >> 33) % (size_t)p->piece;
    return n < most ? n : most;
}

/* A message of at most `failing_short` bytes. */
static struct msghdr failing_message(const struct msghdr *m, struct iovec *v, int cap) {
    struct msghdr less = *m;
    size_t all = 0, left;
    int i, n = 0;
    for (i = 0; i < (int)m->msg_iovlen; i++) all += m->msg_iov[i].iov_len;
    left = failing_short(all);
    if (left == all) return less;
    for (i = 0; i < (int)m->msg_iovlen && left && n < cap; i++) {
        v[n] = m->msg_iov[i];
        if (v[n].iov_len > left) v[n].iov_len = left;
        left -= v[n++].iov_len;
    }
    less.msg_iov = v;
    less.msg_iovlen = (size_t)n;
    return less;
}

enum { FAILING_IOVS = 80 };

static int failing_rights; /* not 0: why descriptors do not go to other processes */
static inline ssize_t failing_sendmsg(int fd, const struct msghdr *m, int flags) {
    struct iovec v[FAILING_IOVS];
    struct msghdr less;
    if (failing_transfer(FAIL_AT_SENDMSG, fd)) return -1;
    if (failing_rights && m->msg_controllen) {
        errno = failing_rights;
        return -1;
    }
    if (!failing_now) return sendmsg(fd, m, flags);
    less = failing_message(m, v, FAILING_IOVS);
    return sendmsg(fd, &less, flags);
}
static inline ssize_t failing_recvmsg(int fd, struct msghdr *m, int flags) {
    struct iovec v[FAILING_IOVS];
    struct msghdr less;
    ssize_t n;
    if (failing_transfer(FAIL_AT_RECVMSG, fd)) return -1;
    if (!failing_now) return recvmsg(fd, m, flags);
    less = failing_message(m, v, FAILING_IOVS);
    n = recvmsg(fd, &less, flags);
    m->msg_controllen = less.msg_controllen;
    return n;
}
static inline ssize_t failing_recv(int fd, void *p, size_t n, int flags) {
    return failing_transfer(FAIL_AT_RECV, fd) ? -1 : recv(fd, p, failing_short(n), flags);
}
static inline ssize_t failing_read(int fd, void *p, size_t n) {
    return failing_call(FAIL_AT_READ) ? -1 : read(fd, p, failing_short(n));
}
static inline int failing_poll(struct pollfd *f, nfds_t n, int ms) {
    if (failing_call(FAIL_AT_POLL)) return -1;
    return poll(f, n, failing_nap_ms && ms > failing_nap_ms ? failing_nap_ms : ms);
}
static inline int failing_close(int fd) { /* it is closed all the same, as Linux does */
    int fails = failing_call(FAIL_AT_CLOSE), error = errno, result = close(fd);
    if (fails) errno = error;
    return fails ? -1 : result;
}
static inline int failing_clock_gettime(clockid_t clock, struct timespec *t) {
    int64_t late = failing_late ? __sync_add_and_fetch(failing_late, 0) : 0;
    int result = clock_gettime(clock, t);
    if (clock != CLOCK_MONOTONIC || !late) return result;
    t->tv_sec += (time_t)(late / 1000000000);
    t->tv_nsec += (long)(late % 1000000000);
    if (t->tv_nsec >= 1000000000) t->tv_nsec -= 1000000000, t->tv_sec++;
    return result;
}
static struct sockaddr_in failing_also; /* an address that every name has first; family 0: none */
static struct addrinfo failing_first;
static inline int failing_getaddrinfo(const char *node, const char *port, const struct addrinfo *hints,
                                      struct addrinfo **list) {
    int code;
    if (failing_call(FAIL_AT_GETADDRINFO)) return EAI_AGAIN;
    if ((code = getaddrinfo(node, port, hints, list)) != 0 || !failing_also.sin_family) return code;
    memset(&failing_first, 0, sizeof failing_first);
    failing_first.ai_family = failing_also.sin_family;
    failing_first.ai_addr = (struct sockaddr *)(void *)&failing_also;
    failing_first.ai_addrlen = sizeof failing_also;
    failing_first.ai_next = *list;
    *list = &failing_first;
    return 0;
}
static inline void failing_freeaddrinfo(struct addrinfo *list) {
    freeaddrinfo(list == &failing_first ? list->ai_next : list);
}

static __thread int failing_connects; /* the descriptor that was to be connected last */
static inline int failing_connect(int fd, const struct sockaddr *a, socklen_t n) {
    failing_connects = fd;
    return failing_call(FAIL_AT_CONNECT) ? -1 : connect(fd, a, n);
}

static int failing_fill; /* above 0: more bytes than so many at once are interrupted, again and again, and in the end there are none */
static int failing_fills;
static inline int failing_posix_fallocate(int fd, off_t at, off_t n) {
    if (failing_fill && n > failing_fill) return failing_fills++ < 100 ? EINTR : ENOSPC;
#ifdef __linux__
    return posix_fallocate(fd, at, n);
#else
    return (void)fd, (void)at, ENOSYS;
#endif
}

/* What is read where the kernel tells of a quota of cores, of cgroup v2, or of v1 and its period; NULL: that. */
static const char *failing_quota, *failing_quota_1, *failing_period_1;
static inline FILE *failing_fopen(const char *path, const char *mode) {
    if (failing_quota && !strcmp(path, "/sys/fs/cgroup/cpu.max")) path = failing_quota;
    if (failing_quota_1 && !strcmp(path, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")) path = failing_quota_1;
    if (failing_period_1 && !strcmp(path, "/sys/fs/cgroup/cpu/cpu.cfs_period_us")) path = failing_period_1;
    return failing_call(FAIL_AT_FOPEN) ? NULL : fopen(path, mode);
}

/* The others only fail. */
#define FAILING_ONE(kind, type, name, parameters, arguments, failed) \
    static inline type failing_##name parameters { return failing_call(FAIL_AT_##kind) ? failed : name arguments; }
FAILING_ONE(SOCKET, int, socket, (int family, int type, int protocol), (family, type, protocol), -1)
FAILING_ONE(ACCEPT, int, accept, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n), -1)
FAILING_ONE(BIND, int, bind, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n), -1)
FAILING_ONE(LISTEN, int, listen, (int fd, int n), (fd, n), -1)
FAILING_ONE(GETSOCKOPT, int, getsockopt, (int fd, int level, int name, void *p, socklen_t *n), (fd, level, name, p, n),
            -1)
FAILING_ONE(SETSOCKOPT, int, setsockopt, (int fd, int level, int name, const void *p, socklen_t n),
            (fd, level, name, p, n), -1)
FAILING_ONE(GETSOCKNAME, int, getsockname, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n), -1)
FAILING_ONE(SHUTDOWN, int, shutdown, (int fd, int how), (fd, how), -1)
FAILING_ONE(STAT, int, stat, (const char *path, struct stat *s), (path, s), -1)
FAILING_ONE(GETRLIMIT, int, getrlimit, (int what, struct rlimit *l), (what, l), -1)
FAILING_ONE(SETRLIMIT, int, setrlimit, (int what, const struct rlimit *l), (what, l), -1)
FAILING_ONE(SYSCONF, long, sysconf, (int what), (what), -1)
FAILING_ONE(NANOSLEEP, int, nanosleep, (const struct timespec *t, struct timespec *left), (t, left), -1)
static inline int failing_open(const char *path, int flags) {
    return failing_call(FAIL_AT_OPEN) ? -1 : open(path, flags);
}
static inline int failing_fcntl(int fd, int what, int value) {
    return failing_call(FAIL_AT_FCNTL) ? -1 : fcntl(fd, what, value);
}
#if defined(__linux__) && !defined(MESH_POSIX_ONLY)
FAILING_ONE(EPOLL_CREATE, int, epoll_create1, (int flags), (flags), -1)
FAILING_ONE(EPOLL_CTL, int, epoll_ctl, (int fd, int what, int on, struct epoll_event *e), (fd, what, on, e), -1)
static inline int failing_epoll_wait(int fd, struct epoll_event *e, int n, int ms) {
    if (failing_call(FAIL_AT_EPOLL_WAIT)) return -1;
    return epoll_wait(fd, e, n, failing_nap_ms && ms > failing_nap_ms ? failing_nap_ms : ms);
}
static inline int failing_ioctl(int fd, unsigned long what, int *p) {
    return failing_call(FAIL_AT_IOCTL) ? -1 : ioctl(fd, (int)what, p);
}
/* Not static: the header declares these two where the system does not. */
int failing_accept4(int fd, struct sockaddr *a, socklen_t *length, int flags);
int failing_accept4(int fd, struct sockaddr *a, socklen_t *length, int flags) {
    return failing_call(FAIL_AT_ACCEPT) ? -1 : accept4(fd, a, length, flags);
}
static __thread unsigned long failing_cores[2][16]; /* what the last two calls bound this thread to, */
static __thread int failing_bindings;                /* of so many */
long failing_syscall(long number, ...);
long failing_syscall(long number, ...) {
    long a[6] = {0, 0, 0, 0, 0, 0};
    int i, given = 2;
    va_list args;
#ifdef SYS_process_vm_readv
    if (number == SYS_process_vm_readv) given = 6;
#endif
    if (number == SYS_mremap) given = 5;
    if (number == SYS_madvise || number == SYS_getcpu || number == SYS_sched_getaffinity ||
        number == SYS_sched_setaffinity)
        given = 3;
    va_start(args, number);
    for (i = 0; i < given; i++) a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_sched_setaffinity && a[1] <= (long)sizeof failing_cores[0])
        memcpy(failing_cores[failing_bindings++ % 2], (const void *)a[2], (size_t)a[1]);
    return failing_call(FAIL_AT_SYSCALL) ? -1 : syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
#define accept4(fd, a, n, flags) failing_accept4(fd, a, n, flags)
#define syscall(...) failing_syscall(__VA_ARGS__)
#define epoll_create1(flags) failing_epoll_create1(flags)
#define epoll_ctl(fd, what, on, e) failing_epoll_ctl(fd, what, on, e)
#define epoll_wait(fd, e, n, ms) failing_epoll_wait(fd, e, n, ms)
#define ioctl(fd, what, p) failing_ioctl(fd, what, p)
#endif
#undef FAILING_ONE

#define posix_fallocate(fd, at, n) failing_posix_fallocate(fd, at, n)
#define socket(family, type, protocol) failing_socket(family, type, protocol)
#define accept(fd, a, n) failing_accept(fd, a, n)
#define connect(fd, a, n) failing_connect(fd, a, n)
#define bind(fd, a, n) failing_bind(fd, a, n)
#define listen(fd, n) failing_listen(fd, n)
#define fcntl(...) FAILING_FCNTL(__VA_ARGS__, 0, 0)
#define FAILING_FCNTL(fd, what, value, ...) failing_fcntl(fd, what, value)
#define sendmsg(fd, m, flags) failing_sendmsg(fd, m, flags)
#define recvmsg(fd, m, flags) failing_recvmsg(fd, m, flags)
#define recv(fd, p, n, flags) failing_recv(fd, p, n, flags)
#define open(path, flags) failing_open(path, flags)
#define read(fd, p, n) failing_read(fd, p, n)
#define close(fd) failing_close(fd)
#define poll(f, n, ms) failing_poll(f, n, ms)
#define getsockopt(fd, level, name, p, n) failing_getsockopt(fd, level, name, p, n)
#define setsockopt(fd, level, name, p, n) failing_setsockopt(fd, level, name, p, n)
#define getsockname(fd, a, n) failing_getsockname(fd, a, n)
#define getaddrinfo(node, port, hints, list) failing_getaddrinfo(node, port, hints, list)
#define freeaddrinfo(list) failing_freeaddrinfo(list)
#define shutdown(fd, how) failing_shutdown(fd, how)
#define stat(path, s) failing_stat(path, s)
#define fopen(path, mode) failing_fopen(path, mode)
#define getrlimit(what, l) failing_getrlimit(what, l)
#define setrlimit(what, l) failing_setrlimit(what, l)
#define sysconf(what) failing_sysconf(what)
#define nanosleep(t, left) failing_nanosleep(t, left)
#define clock_gettime(clock, t) failing_clock_gettime(clock, t)

#endif
