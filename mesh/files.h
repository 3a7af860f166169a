/* mesh/files.h - files in a folder, whole or at an offset, by POSIX; checksums that several writers make together. Part of mesh.h 0.1.0. MIT licence.

   Includes safetensors.h (bytes that grow). Prints nothing: what failed is in errno's words in the error.

CONCEPTS
    checksum    CRC-32C (Castagnoli; iSCSI's, RFC 3720). It is linear: that of a file is the exclusive or of what its pieces count for at their places, so
                ranks that write pieces of one file, in any order, each make a summand (mesh__crc_place) and one reduction adds them.
*/
#if !defined(MESH_FILES_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_FILES_IMPLEMENTED))
#include "safetensors.h"
#define MESH_FILES_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_FILES_IMPLEMENTED)
#define MESH_FILES_IMPLEMENTED

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#if !defined(O_CLOEXEC)
#error \
    "mesh_checkpoint.h: POSIX is hidden: compile with -std=gnu99, or define _POSIX_C_SOURCE 200809L before the first #include"
#endif

/* ---- // >>checksums ---- */

typedef struct mesh__crc {
    uint32_t byte[8][256]; /* of a byte that 0 to 7 others follow */
    uint32_t power[67];    /* x^(2^k) */
} mesh__crc;

#define MESH__CRC_POLYNOMIAL UINT32_C(0x82f63b78) /* reflected: the highest bit is x^0 */

/* a * b modulo the polynomial. */
MESH__PRIVATE uint32_t mesh__crc_times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a >> 31) product ^= b;
        b = b & 1 ? b >> 1 ^ MESH__CRC_POLYNOMIAL : b >> 1;
    }
    return product;
}

MESH__PRIVATE void mesh__crc_make(mesh__crc *c) {
    uint32_t i, v;
    int k;
    for (i = 0; i < 256; i++) {
        for (v = i, k = 0; k < 8; k++) v = v & 1 ? v >> 1 ^ MESH__CRC_POLYNOMIAL : v >> 1;
        c->byte[0][i] = v;
    }
    for (i = 0; i < 256; i++)
        for (k = 1; k < 8; k++) c->byte[k][i] = c->byte[k - 1][i] >> 8 ^ c->byte[0][c->byte[k - 1][i] & 255];
    c->power[0] = UINT32_C(1) << 30;
    for (k = 1; k < 67; k++) c->power[k] = mesh__crc_times(c->power[k - 1], c->power[k - 1]);
}

/* The remainder of n bytes, without the ones before and after. */
MESH__PRIVATE uint32_t mesh__crc_over(const mesh__crc *c, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    uint32_t v = 0;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = mesh__get32(p) ^ v, b = mesh__get32(p + 4);
        v = c->byte[7][a & 255] ^ c->byte[6][a >> 8 & 255] ^ c->byte[5][a >> 16 & 255] ^ c->byte[4][a >> 24] ^
            c->byte[3][b & 255] ^ c->byte[2][b >> 8 & 255] ^ c->byte[1][b >> 16 & 255] ^ c->byte[0][b >> 24];
    }
    for (; n; n--) v = v >> 8 ^ c->byte[0][(v ^ *p++) & 255];
    return v;
}

/* What a remainder is after n more bytes of 0. */
MESH__PRIVATE uint32_t mesh__crc_shift(const mesh__crc *c, uint32_t v, uint64_t n) {
    int k;
    for (k = 3; n; k++, n >>= 1)
        if (n & 1) v = mesh__crc_times(c->power[k], v);
    return v;
}

/* The summand of n bytes that `after` others follow in the file. */
MESH__PRIVATE uint32_t mesh__crc_place(const mesh__crc *c, const void *data, size_t n, int64_t after) {
    return mesh__crc_shift(c, mesh__crc_over(c, data, n), (uint64_t)after);
}

/* The checksum of a file of so many bytes, all of whose summands were added. */
MESH__PRIVATE uint32_t mesh__crc_whole(const mesh__crc *c, uint32_t sum, int64_t nbytes) {
    return ~(sum ^ mesh__crc_shift(c, UINT32_C(0xffffffff), (uint64_t)nbytes));
}

/* ---- // >>files ---- */

enum { MESH__PATH_BYTES = 1024, MESH__IO_BYTES = 1 << 22 /* a read's buffer */ };

/* A path as errors show it: of a long one the begin and the end, so that what follows has room. */
typedef struct mesh__short_path {
    char text[208];
} mesh__short_path;
MESH__RARE mesh__short_path mesh__path_short(const char *path) {
    mesh__short_path s;
    mesh__text t = mesh__text_on(s.text, sizeof s.text);
    mesh__put_short(&t, path, 60, 144);
    return s;
}

/* STATE, with the call, the file and errno's words. */
MESH__RARE mesh_status mesh__file_failed(mesh_error *err, const char *call, const char *path) {
    int error = errno;
    return mesh__fail(err, MESH_ERR_STATE, -1, "%s %s: %s", call, mesh__path_short(path).text, strerror(error));
}

/* "folder/name"; name "": the folder. ARGUMENT: it is too long. */
MESH__PRIVATE mesh_status mesh__path(char *path, const char *folder, const char *name, mesh_error *err) {
    mesh__text t = mesh__text_on(path, MESH__PATH_BYTES);
    mesh__put(&t, *name ? "%s/%s" : "%s", folder, name);
    if (t.len < MESH__PATH_BYTES) return MESH_OK;
    return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "the path of \"%s\" has %u bytes; at most %d", name, (uint64_t)t.len,
                      MESH__PATH_BYTES - 1);
}

MESH__PRIVATE int mesh__open(const char *path, int flags) {
    int fd;
    do fd = openat(AT_FDCWD, path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* These go on after a signal too. */
MESH__PRIVATE int mesh__sync(int fd) {
    int refused;
    do refused = fsync(fd);
    while (refused && errno == EINTR);
    return refused;
}
MESH__PRIVATE int mesh__resize(int fd, int64_t nbytes) {
    int refused;
    if ((int64_t)(off_t)nbytes != nbytes) return errno = EFBIG, -1;
    do refused = ftruncate(fd, (off_t)nbytes);
    while (refused && errno == EINTR);
    return refused;
}

/* What a thread that writes and those who wait for it tell each other, at each call on a file. */
typedef struct mesh__pace {
    int given_up;   /* it opens and writes nothing more */
    uint32_t moved; /* what the disk has taken so far, counted in calls */
} mesh__pace;

enum { MESH__WRITE_BYTES = 1 << 26 }; /* in one call: even a slow disk takes so much within MESH__DISK_NS */

/* Both go on after a signal, and where less was moved than asked. 0, or errno is set; where the file ends first, to EIO. pace: NULL where nobody waits. */
MESH__PRIVATE int mesh__write_at(int fd, const void *data, int64_t n, int64_t at, mesh__pace *pace) {
    const char *p = (const char *)data;
    while (n > 0) {
        ssize_t moved;
        if ((int64_t)(off_t)(at + n) != at + n) return errno = EFBIG, -1;
        if (pace && MESH__LOAD(&pace->given_up)) return errno = ECANCELED, -1;
        moved = pwrite(fd, p, n < MESH__WRITE_BYTES ? (size_t)n : (size_t)MESH__WRITE_BYTES, (off_t)at);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return errno = moved < 0 ? errno : EIO, -1;
        if (pace) MESH__STORE(&pace->moved, pace->moved + 1);
        p += moved, n -= moved, at += moved;
    }
    return 0;
}
MESH__PRIVATE int mesh__read_at(int fd, void *data, int64_t n, int64_t at) {
    char *p = (char *)data;
    while (n > 0) {
        ssize_t moved;
        if ((int64_t)(off_t)(at + n) != at + n) return errno = EFBIG, -1;
        moved = pread(fd, p, n < (1 << 30) ? (size_t)n : (size_t)1 << 30, (off_t)at);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return errno = moved < 0 ? errno : EIO, -1;
        p += moved, n -= moved, at += moved;
    }
    return 0;
}

/* To the disk, and close; a folder too. `failed`: it is closed only. */
MESH__PRIVATE mesh_status mesh__sync_close(int fd, int failed, const char *path, mesh_error *err) {
    mesh_status status = MESH_OK;
    if (!failed && mesh__sync(fd) && errno != EINVAL)
        status = mesh__file_failed(err, "fsync", path); /* EINVAL: it has none */
    if (close(fd) && errno != EINTR && !failed && status == MESH_OK) status = mesh__file_failed(err, "close", path);
    return status;
}

MESH__PRIVATE mesh_status mesh__sync_folder(const char *folder, mesh_error *err) {
    int fd = mesh__open(folder, O_RDONLY);
    return fd < 0 ? mesh__file_failed(err, "open", folder) : mesh__sync_close(fd, 0, folder, err);
}

enum { MESH__LOCK_NAPS = 1000 }; /* of 10 ms */

/* Who commits into a folder does so alone, on this host, where the file system knows such locks: into *lock a descriptor, whose close (and the end of its
   process) gives it up. STATE: the folder cannot be opened, or another holds it for long. */
MESH__PRIVATE mesh_status mesh__folder_lock(const char *folder, int *lock, mesh_error *err) {
    int naps = 0;
    if ((*lock = mesh__open(folder, O_RDONLY)) < 0) return mesh__file_failed(err, "open", folder);
#if defined(LOCK_EX)
    while (flock(*lock, LOCK_EX | LOCK_NB) && (errno == EINTR || errno == EWOULDBLOCK)) {
        struct timespec nap;
        nap.tv_sec = 0, nap.tv_nsec = 10000000;
        nanosleep(&nap, NULL);
        if (++naps < MESH__LOCK_NAPS) continue;
        close(*lock);
        return mesh__fail(err, MESH_ERR_STATE, -1,
                          "%s: another save is taking the checkpoint's place there for %d s: stopped?",
                          mesh__path_short(folder).text, MESH__LOCK_NAPS / 100);
    }
#endif
    (void)naps;
    return MESH_OK;
}

#if defined(SIGXFSZ) /* hidden from strict C */
#define MESH__SIGXFSZ SIGXFSZ
#else /* BSD */
#define MESH__SIGXFSZ 25
#endif

/* A process with a limit on its files' sizes (ulimit -f) is sent a signal that ends it, unless it is blocked: then the call says EFBIG. */
typedef struct mesh__unsignaled {
    sigset_t before;
    int pending; /* from before: not ours */
} mesh__unsignaled;

MESH__PRIVATE void mesh__unsignaled_begin(mesh__unsignaled *u) {
    sigset_t one;
    sigpending(&one);
    u->pending = sigismember(&one, MESH__SIGXFSZ);
    sigemptyset(&one);
    sigaddset(&one, MESH__SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &one, &u->before);
}
MESH__PRIVATE void mesh__unsignaled_end(const mesh__unsignaled *u) {
    sigset_t now;
    int sent;
    sigpending(&now);
    if (!u->pending && sigismember(&now, MESH__SIGXFSZ)) {
        sigemptyset(&now);
        sigaddset(&now, MESH__SIGXFSZ);
        sigwait(&now, &sent);
    }
    pthread_sigmask(SIG_SETMASK, &u->before, NULL);
}

MESH__PRIVATE mesh_status mesh__file_make_inside(const char *path, int flags, const void *data, int64_t n,
                                                 int64_t nbytes, mesh_error *err) {
    int fd = mesh__open(path, O_WRONLY | O_CREAT | flags), failed;
    mesh_status status = MESH_OK;
    if (fd < 0) return mesh__file_failed(err, "open", path);
    if ((failed = mesh__write_at(fd, data, n, 0, NULL)) != 0)
        status = mesh__file_failed(err, "pwrite", path);
    else if (nbytes > n && mesh__resize(fd, nbytes))
        failed = 1, status = mesh__file_failed(err, "ftruncate", path);
    if (failed) return mesh__sync_close(fd, 1, path, NULL), status;
    return mesh__sync_close(fd, 0, path, err);
}

/* A new file of nbytes that begins with these n, on the disk. flags: O_EXCL or O_TRUNC. */
MESH__PRIVATE mesh_status mesh__file_make(const char *path, int flags, const void *data, int64_t n, int64_t nbytes,
                                          mesh_error *err) {
    mesh__unsignaled u;
    mesh_status status;
    mesh__unsignaled_begin(&u);
    status = mesh__file_make_inside(path, flags, data, n, nbytes, err);
    mesh__unsignaled_end(&u);
    return status;
}

/* Append n bytes of an open file. */
MESH__PRIVATE mesh_status mesh__file_read(mesh__bytes *b, int fd, const char *path, int64_t at, int64_t n,
                                          mesh_error *err) {
    if (b->failed || n > INT32_MAX / 2 - b->len || !mesh__grow(b->t, (void **)&b->p, &b->cap, b->len + (int)n + 1, 1))
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "%s: no memory for %l bytes", mesh__path_short(path).text, n);
    if (mesh__read_at(fd, b->p + b->len, n, at)) return mesh__file_failed(err, "pread", path);
    b->len += (int)n;
    b->p[b->len] = 0;
    return MESH_OK;
}

/* Open to read. *nbytes: of the file. A file that is not there: ARGUMENT. Returns the descriptor, or -1 with the error filled. */
MESH__PRIVATE int mesh__file_open(const char *path, int64_t *nbytes, mesh_error *err) {
    struct stat s;
    int fd = mesh__open(path, O_RDONLY | O_NONBLOCK); /* it may be a pipe, on which open would wait */
    if (fd >= 0 && !fstat(fd, &s) && S_ISREG(s.st_mode)) return *nbytes = (int64_t)s.st_size, fd;
    if (fd >= 0) {
        close(fd);
        mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s is no file", mesh__path_short(path).text);
        return -1;
    }
    if (errno == ENOENT || errno == ENOTDIR)
        mesh__fail(err, MESH_ERR_ARGUMENT, -1, "there is no %s", mesh__path_short(path).text);
    else
        mesh__file_failed(err, "open", path);
    return -1;
}
#endif /* MESH_FILES_IMPLEMENTED */
