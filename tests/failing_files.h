/* Calls on files that fail, move less than they were asked to, or at which the process ends. Included before mesh_checkpoint.h, whose calls then come through
   here; failing_files_end.h takes the names away again. For the whole process: a save writes on a thread of its own. */
#ifndef FAILING_FILES_H
#define FAILING_FILES_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum {
    FILE_OPEN = 1,
    FILE_WRITE = 2,
    FILE_READ = 4,
    FILE_SYNC = 8,
    FILE_RENAME = 16,
    FILE_UNLINK = 32,
    FILE_SIZE = 64,
    FILE_THREAD = 128,
    FILE_DIR = 256,
    FILE_ANY = 511
};
enum {
    FILE_DIES = -1,
    FILE_DIES_WITHIN = -2,
    FILE_KILLED = -3
}; /* in place of an errno: _exit(9) before the call; in the middle of what it writes; SIGKILL before it */

typedef struct failing_files {
    int kinds, at, times; /* of these calls the at-th, counted from 1, and how many more in a row */
    int error;            /* an errno, or FILE_DIES */
    int pieces;           /* 1: at most 7 bytes are moved, and every third call is interrupted */
    int lock, naps; /* a descriptor by which the folder's lock is held (0: none), given up at that nap; naps take no time then */
    int gate; /* where it is not 0, a descriptor: the first write waits until it can be read, */
    int gated; /* and 1: each one does */
    size_t most; /* where it is not 0: bytes that a write moves at most */
    int opens; /* where it is not 0, the gate's other end: the first nap opens it */
    volatile int calls, odd, napped, held; /* held: writes that wait at the gate, or did */
} failing_files;
static failing_files *volatile files_plan; /* NULL: as the system has it */

static inline int files_held(failing_files *p) { return __sync_add_and_fetch(&p->held, 0); }
static int files_fail(int kind) {
    failing_files *p = files_plan;
    int call;
    if (!p || !(p->kinds & kind)) return 0;
    call = __sync_add_and_fetch(&p->calls, 1);
    if (call < p->at || call - p->at >= p->times) return 0;
    if (p->error == FILE_DIES || (p->error == FILE_DIES_WITHIN && kind != FILE_WRITE)) _exit(9);
    if (p->error == FILE_KILLED) kill(getpid(), SIGKILL);
    errno = p->error;
    return 1;
}
static size_t files_short(size_t n) {
    failing_files *p = files_plan;
    return p && p->pieces && n > 7 ? 7 : n;
}
static int files_interrupted(void) {
    failing_files *p = files_plan;
    if (!p || !p->pieces || __sync_add_and_fetch(&p->odd, 1) % 3) return 0;
    errno = EINTR;
    return 1;
}

static inline ssize_t files_pwrite(int fd, const void *data, size_t n, off_t at) {
    char word;
    failing_files *p = files_plan;
    if (p && p->gate) {
        int gate = p->gate;
        if (!p->gated) p->gate = 0;
        (void)__sync_add_and_fetch(&p->held, 1);
        if (read(gate, &word, 1) != 1) _exit(8);
    }
    if (files_interrupted()) return -1;
    if (files_fail(FILE_WRITE)) {
        if (errno != FILE_DIES_WITHIN) return -1;
        if (pwrite(fd, data, n / 2, at) < 0) _exit(8);
        _exit(9);
    }
    return pwrite(fd, data, p && p->most && n > p->most ? p->most : files_short(n), at);
}
static inline ssize_t files_pread(int fd, void *data, size_t n, off_t at) {
    if (files_interrupted() || files_fail(FILE_READ)) return -1;
    return pread(fd, data, files_short(n), at);
}
static inline int files_openat(int at, const char *path, int flags, int mode) {
    return files_interrupted() || files_fail(FILE_OPEN) ? -1 : openat(at, path, flags, mode);
}
static inline DIR *files_opendir(const char *path) { return files_fail(FILE_DIR) ? NULL : opendir(path); }
static inline int files_fsync(int fd) { return files_interrupted() || files_fail(FILE_SYNC) ? -1 : fsync(fd); }
static inline int files_ftruncate(int fd, off_t n) {
    return files_interrupted() || files_fail(FILE_SIZE) ? -1 : ftruncate(fd, n);
}
#define FILES_ONE(kind, name, parameters, arguments) \
    static inline int files_##name parameters { return files_fail(kind) ? -1 : name arguments; }
FILES_ONE(FILE_RENAME, rename, (const char *from, const char *to), (from, to))
FILES_ONE(FILE_UNLINK, unlink, (const char *path), (path))
FILES_ONE(FILE_DIR, mkdir, (const char *path, mode_t mode), (path, mode))
#undef FILES_ONE
static inline int files_thread(pthread_t *t, void *(*f)(void *), void *ctx) {
    return files_fail(FILE_THREAD) ? EAGAIN : pthread_create(t, NULL, f, ctx);
}
static inline int files_nap(const struct timespec *t, struct timespec *left) {
    failing_files *p = files_plan;
    if (p && p->opens) {
        int gate = p->opens;
        p->opens = 0;
        if (write(gate, "", 1) != 1) _exit(8);
    }
    if (!p || !p->lock || t->tv_nsec < 10000000) return nanosleep(t, left); /* shorter ones wait for the thread that writes */
    if (++p->napped == p->naps) close(p->lock); /* and the lock is free */
    return 0;
}

#define pwrite(fd, data, n, at) files_pwrite(fd, data, n, at)
#define pread(fd, data, n, at) files_pread(fd, data, n, at)
/* openat, for failing_calls.h has open */
#define openat(at, path, flags, mode) files_openat(at, path, flags, mode)
#define fsync(fd) files_fsync(fd)
#define ftruncate(fd, n) files_ftruncate(fd, n)
#define rename(from, to) files_rename(from, to)
#define unlink(path) files_unlink(path)
#define opendir(path) files_opendir(path)
#define mkdir(path, mode) files_mkdir(path, mode)
#ifndef MESH_TEST_SINGLE /* there transports come through here too */
#define pthread_create(t, how, f, ctx) files_thread(t, f, ctx)
#define nanosleep(t, left) files_nap(t, left)
#endif

#endif
