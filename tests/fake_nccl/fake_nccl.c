/* fake_nccl.c: a stand-in for libnccl.so.2 on the CPU, for tests. README.md says what it models.
 *
 * The ranks of a comm share one memory segment, an unnamed file that its creator keeps open until all have attached.
 * A collective goes in rounds: every rank posts a chunk on its board, all meet at a barrier, every rank reads the
 * boards. Sends and receives go through one small ring for each ordered pair of ranks. A rank whose call does not fit
 * the others' never passes the barrier: as with NCCL, only an abort ends it. */
#define _GNU_SOURCE
#include "nccl.h"
#include "fake.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- Errors, versions, injected faults -------------------------------------------------------------------------- */

static pthread_mutex_t text_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[512];

/* NCCL has one text for the whole process and never clears it. */
__attribute__((format(printf, 2, 3))) static ncclResult_t fail(ncclResult_t code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&text_lock);
    int used = snprintf(last_error, sizeof last_error, "fake NCCL: ");
    vsnprintf(last_error + used, sizeof last_error - (size_t)used, format, arguments);
    pthread_mutex_unlock(&text_lock);
    va_end(arguments);
    return code;
}

const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return last_error;
}

const char *ncclGetErrorString(ncclResult_t code) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error (fake)",
                                        "unhandled system error (fake)",
                                        "internal error (fake)",
                                        "invalid argument (fake)",
                                        "invalid usage (fake)",
                                        "remote process exited or there was a network error (fake)",
                                        "NCCL operation in progress"};
    return (unsigned)code < sizeof texts / sizeof texts[0] ? texts[code] : "unknown result code";
}

static int library_version(void) { return (int)fake_env("FAKE_NCCL_VERSION", NCCL_VERSION_CODE); }
static int world_rank(void) { return (int)fake_env("RANK", 0); }

/* Whether an injection "rank:n" names this process; *n is 0 where none is written. */
static int injected(const char *name, unsigned long long *n) {
    const char *text = getenv(name);
    if (!text || !*text || atoi(text) != world_rank()) return 0;
    const char *colon = strchr(text, ':');
    if (n) *n = colon ? strtoull(colon + 1, NULL, 0) : 0;
    return 1;
}

/* FAKE_NCCL_FAIL=rank:function:n */
static int injected_failure(const char *function) {
    static atomic_ullong calls;
    const char *text = getenv("FAKE_NCCL_FAIL");
    if (!text || !*text || atoi(text) != world_rank() || !(text = strchr(text, ':'))) return 0;
    const char *end = strchr(++text, ':');
    if (!end || strlen(function) != (size_t)(end - text) || strncmp(function, text, (size_t)(end - text))) return 0;
    return atomic_fetch_add(&calls, 1) + 1 == strtoull(end + 1, NULL, 0);
}

/* Every function begins with this: a function that the version does not have yet must not be called. */
static ncclResult_t enter(const char *function, int since) {
    if (library_version() < since)
        fake_die("%s is called, which NCCL %d does not have (since %d)", function, library_version(), since);
    return injected_failure(function) ? fail(ncclSystemError, "%s: failure injected by FAKE_NCCL_FAIL", function)
                                      : ncclSuccess;
}

#define ENTER(since)                                   \
    do {                                               \
        ncclResult_t entered = enter(__func__, since); \
        if (entered) return entered;                   \
    } while (0)

static void *must_calloc(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) fake_die("out of host memory (%zu bytes)", bytes);
    return memory;
}

/* A line in FAKE_NCCL_TRACE.RANK. */
__attribute__((format(printf, 1, 2))) static void trace(const char *format, ...) {
    static FILE *file;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const char *prefix = getenv("FAKE_NCCL_TRACE");
    char path[4096];
    va_list arguments;
    if (!prefix || !*prefix) return;
    pthread_mutex_lock(&lock);
    if (!file) {
        snprintf(path, sizeof path, "%s.%d", prefix, world_rank());
        file = fopen(path, "a");
        if (!file) fake_die("cannot write %s", path);
    }
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fflush(file);
    pthread_mutex_unlock(&lock);
}

/* ---- Futexes and processes -------------------------------------------------------------------------------------- */

enum { LOOK_MS = 20 }; /* every wait looks this often whether it was stopped or a peer died */

static void futex_wait(atomic_uint *word, unsigned value) {
    struct timespec longest = {0, LOOK_MS * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &longest, NULL, 0);
}

static void futex_wake(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0); }

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* The process's start time, which tells it from a later one with the same id; 0: gone, or a zombie. */
static unsigned long long process_start(int pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char state = 'X';
    unsigned long long start = 0;
    char *after = strrchr(text, ')');
    if (!after || sscanf(after + 1, " %c", &state) != 1 || state == 'Z' || state == 'X') return 0;
    for (int field = 0; field < 20 && after; field++) after = strchr(after + 1, ' ');
    return after ? (start = strtoull(after, NULL, 10)) : 0;
}

/* ---- What the ranks of a comm share ----------------------------------------------------------------------------- */

enum { BOARD_BYTES = 64 << 10, BOARD_GARBAGE = 0x5A, RING_BYTES = 16 << 10, SEGMENT_MAGIC = 0x4e43434c };

typedef struct unique_id { /* the content of an ncclUniqueId */
    int pid, fd;
    unsigned long long start, serial;
} unique_id;

typedef struct signature { /* what all ranks must agree on to pass a barrier together */
    int call, type, op, root;
    size_t count;
} signature;

enum { TREE_BYTES = 64 << 10 }; /* an all_reduce of less takes the tree, all else the ring */
enum algorithm { RING, TREE, ALGORITHMS };
static const char *const algorithm_names[] = {"ring", "tree"};

enum { DESERTED = 1 << 30 }; /* in `arrived`: somebody was cut off, so nobody passes any more */

typedef struct barrier {
    atomic_uint arrived, generation;
} barrier;

typedef struct card { /* of one rank */
    _Alignas(64) atomic_int attached;
    atomic_int left;    /* it destroyed its comm: its process may end */
    atomic_int leaving; /* it called destroy or abort */
    int pid, device;
    unsigned long long start, host;
    signature of_kernel, of_call;
    atomic_uint registered_collectives; /* to which it came with registered memory */
    int color, key;                     /* of a split under way */
    unique_id child;                    /* made by the first rank of the child */
    atomic_uint doorbell;               /* something came for this rank */
} card;

typedef struct meeting { /* who connects: each waits until all have come, and then until all know that */
    atomic_int arrived[2];
} meeting;

typedef struct ring {                              /* from one rank to another; counts only grow */
    _Alignas(64) _Atomic uint64_t sends, receives; /* messages posted by either side */
    size_t send_bytes[2], recv_bytes[2];           /* of the last two */
    _Atomic uint64_t written, read;                /* bytes */
    meeting connecting;
    unsigned char bytes[RING_BYTES];
} ring;

typedef struct segment {
    unsigned magic;
    unsigned long long serial;
    atomic_int nranks;
    barrier operations, control, shrink, windows;
    meeting connecting[ALGORITHMS];
} segment;

enum { HEADER_BYTES = 4096 };

static size_t cards_bytes(int nranks) { return ((size_t)nranks * sizeof(card) + 4095) / 4096 * 4096; }
static size_t boards_at(int nranks) { return HEADER_BYTES + cards_bytes(nranks); }
static size_t rings_at(int nranks) { return boards_at(nranks) + (size_t)nranks * 2 * BOARD_BYTES; }
static size_t segment_bytes(int nranks) { return rings_at(nranks) + (size_t)nranks * (size_t)nranks * sizeof(ring); }

/* ---- Comms ------------------------------------------------------------------------------------------------------ */

typedef struct job { /* what a non-blocking call left to do */
    ncclResult_t (*run)(struct job *self);
    ncclComm_t comm;
    int launches; /* operations: an abort or revoke cuts it, and its result is nobody's then */
} job;

typedef struct registration {
    struct registration *next;
    const char *memory;
    size_t bytes;
    int is_window;
    int holds; /* the memory must not be freed */
} registration;

struct ncclComm {
    int nranks, rank, device;
    ncclConfig_t config;
    segment *shared;
    unsigned long long serial;
    uint64_t round;   /* of collectives: which half of the board */
    atomic_int ready; /* all ranks met */
    atomic_int destroyed, finalized, revoked, revoking;
    atomic_int ending;  /* destroy or abort was called */
    atomic_int stop;    /* operations end: aborted, or while a revoke is under way */
    atomic_int aborted; /* everything ends */
    atomic_int state;   /* of the last call: ncclInProgress, success, or its error */
    atomic_int fault;   /* found by an operation; 0: none */
    atomic_int callers; /* the program's threads inside a call */
    atomic_int inside;  /* jobs under way, also those that callers do themselves */
    atomic_int missed;  /* of these: hanging ones that a revoke misses */
    atomic_int pending; /* kernels issued and not ended */
    atomic_int held;    /* kernels that a stream or a graph still has */
    double peers_seen_ms;
    char *connected;      /* or on the way to be: algorithms, then peers sent to, then peers received from */
    pthread_mutex_t lock; /* of the job and its thread */
    pthread_cond_t wake;
    job *job;
    int has_worker;
    struct registration *registrations; /* they go with the comm */
};

static segment *shared_of(ncclComm_t c) { return c->shared; }
static card *card_of(ncclComm_t c, int rank) { return (card *)((char *)c->shared + HEADER_BYTES) + rank; }
static unsigned char *board_of(ncclComm_t c, int rank) {
    size_t half = (size_t)rank * 2 + (c->round & 1);
    return (unsigned char *)c->shared + boards_at(c->nranks) + half * BOARD_BYTES;
}
static ring *ring_of(ncclComm_t c, int from, int to) {
    return (ring *)((char *)c->shared + rings_at(c->nranks)) + from * c->nranks + to;
}

static atomic_ullong unsafe_aborts;
unsigned long long fake_unsafe_aborts(void) { return atomic_load(&unsafe_aborts); }

static void check_usable(ncclComm_t c, const char *who) {
    if (c && atomic_load(&c->destroyed)) fake_die("%s: the comm was destroyed or aborted before", who);
}

/* A call on a comm: an abort meanwhile is counted, and finds it as it was until the call has left its job. */
static ncclComm_t call_enter(ncclComm_t c, const char *who) {
    if (!c) return c;
    atomic_fetch_add(&c->callers, 1);
    check_usable(c, who);
    if (atomic_load(&c->aborted)) atomic_fetch_add(&unsafe_aborts, 1);
    return c;
}

static void call_leave(ncclComm_t *c) {
    if (*c) atomic_fetch_sub(&(*c)->callers, 1);
}

#define CALL_ON(comm) __attribute__((cleanup(call_leave), unused)) ncclComm_t called = call_enter(comm, __func__)

static ncclComm_t comm_open(int nranks, int rank, int device, const ncclConfig_t *config) {
    ncclComm_t c = must_calloc(sizeof *c);
    c->nranks = nranks;
    c->rank = rank;
    c->device = device;
    c->config = *config;
    c->connected = must_calloc(ALGORITHMS + 2 * (size_t)nranks);
    c->state = ncclInProgress;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wake, NULL);
    return c;
}

static registration *registration_open(ncclComm_t c, void *buffer, size_t bytes, int is_window) {
    registration *r = must_calloc(sizeof *r);
    pthread_mutex_lock(&c->lock);
    *r = (registration){c->registrations, buffer, bytes, is_window, 1};
    fake_register(buffer, 1);
    c->registrations = r;
    pthread_mutex_unlock(&c->lock);
    return r;
}

static void registration_close(ncclComm_t c, registration **at) {
    registration *r = *at;
    pthread_mutex_lock(&c->lock);
    *at = r->next;
    if (r->holds) fake_register(r->memory, -1);
    pthread_mutex_unlock(&c->lock);
    free(r);
}

/* From the call of its destroy or abort on, a comm holds no memory. */
static void registrations_let_go(ncclComm_t c) {
    pthread_mutex_lock(&c->lock);
    for (registration *r = c->registrations; r; r = r->next) {
        if (r->holds) fake_register(r->memory, -1);
        r->holds = 0;
    }
    pthread_mutex_unlock(&c->lock);
}

static registration **registration_find(ncclComm_t c, const void *handle, int is_window) {
    registration **at = &c->registrations;
    while (*at && (*at != handle || (*at)->is_window != is_window)) at = &(*at)->next;
    return *at ? at : NULL;
}

/* The struct itself stays: a later use is to be told, not to crash. */
static struct graveyard {
    pthread_mutex_t lock;
    ncclComm_t *comms;
    size_t count, room;
} graveyard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void comm_bury(ncclComm_t c) {
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->destroyed, 1);
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    while (c->registrations) registration_close(c, &c->registrations);
    free(c->connected);
    if (c->shared) {
        atomic_store(&card_of(c, c->rank)->left, 1);
        munmap(c->shared, segment_bytes(c->nranks));
        c->shared = NULL;
    }
    pthread_mutex_lock(&graveyard.lock);
    if (graveyard.count == graveyard.room) {
        graveyard.room = graveyard.room * 2 + 16;
        graveyard.comms = realloc(graveyard.comms, graveyard.room * sizeof *graveyard.comms);
        if (!graveyard.comms) fake_die("out of host memory");
    }
    graveyard.comms[graveyard.count++] = c;
    pthread_mutex_unlock(&graveyard.lock);
}

/* A peer that is gone without having left: an error where connections tell (sockets), nothing where they do not. */
static void look_for_dead_peers(ncclComm_t c) {
    const char *mode = getenv("FAKE_NCCL_PEER_DEATH");
    if (!mode || strcmp(mode, "error") || now_ms() - c->peers_seen_ms < 50) return;
    c->peers_seen_ms = now_ms();
    for (int rank = 0; rank < c->nranks; rank++) {
        card *peer = card_of(c, rank);
        if (atomic_load(&peer->attached) && !atomic_load(&peer->left) && process_start(peer->pid) != peer->start)
            atomic_store(&c->fault, fail(ncclRemoteError, "rank %d (pid %d) is gone", rank, peer->pid));
    }
}

/* A kernel and a call may wait at the same time. */
static signature *signature_of(ncclComm_t c, int rank, const barrier *b) {
    return b == &shared_of(c)->operations ? &card_of(c, rank)->of_kernel : &card_of(c, rank)->of_call;
}

static int signatures_agree(ncclComm_t c, const barrier *at, const char *members) {
    for (int rank = 0; rank < c->nranks; rank++) {
        const signature *a = signature_of(c, c->rank, at), *b = signature_of(c, rank, at);
        if (members && !members[rank]) continue;
        if (a->call != b->call || a->type != b->type || a->op != b->op || a->root != b->root || a->count != b->count)
            return 0;
    }
    return 1;
}

/* Waits for the other members (NULL: all ranks). False: cut off. Who comes with another signature keeps all waiting. */
static int barrier_pass(ncclComm_t c, barrier *b, const char *members, signature mine, const atomic_int *cut) {
    unsigned expected = 0;
    for (int rank = 0; rank < c->nranks; rank++) expected += !members || members[rank];
    *signature_of(c, c->rank, b) = mine;
    unsigned generation = atomic_load(&b->generation);
    if (atomic_fetch_add(&b->arrived, 1) + 1 == expected && signatures_agree(c, b, members)) {
        atomic_store(&b->arrived, 0);
        atomic_fetch_add(&b->generation, 1);
        futex_wake(&b->generation);
        return 1;
    }
    while (atomic_load(&b->generation) == generation) {
        if (atomic_load(cut)) {
            atomic_fetch_or(&b->arrived, DESERTED);
            return 0;
        }
        futex_wait(&b->generation, generation);
        look_for_dead_peers(c);
    }
    return 1;
}

static void pause_us(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* ---- Jobs: what non-blocking calls leave to a thread ------------------------------------------------------------ */

static void job_finish(ncclComm_t c, ncclResult_t code, int launches) {
    if (c->config.blocking) code = ncclSuccess; /* the caller has been told */
    if (!launches || !(atomic_load(&c->stop) || atomic_load(&c->revoked))) atomic_store(&c->state, (int)code);
    atomic_fetch_sub(&c->inside, 1);
}

static void *job_worker(void *argument) {
    ncclComm_t c = argument;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->job && !atomic_load(&c->destroyed)) pthread_cond_wait(&c->wake, &c->lock);
        job *next = c->job;
        if (!next) break;
        c->job = NULL;
        pthread_mutex_unlock(&c->lock);
        cudaSetDevice(c->device);
        ncclResult_t code = next->run(next);
        job_finish(c, code, next->launches);
        free(next);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Does the job now where the comm is blocking, else on its thread. Frees it. */
static ncclResult_t job_start(ncclComm_t c, job *work) {
    work->comm = c;
    atomic_fetch_add(&c->inside, 1);
    if (c->config.blocking || atomic_load(&c->aborted)) {
        ncclResult_t code = work->run(work);
        job_finish(c, code, work->launches);
        free(work);
        return code;
    }
    atomic_store(&c->state, ncclInProgress);
    pthread_mutex_lock(&c->lock);
    c->job = work;
    if (!c->has_worker) {
        pthread_t thread;
        c->has_worker = 1;
        if (pthread_create(&thread, NULL, job_worker, c)) fake_die("no thread for a non-blocking comm");
        pthread_detach(thread);
    }
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    return ncclInProgress;
}

/* Calls on a comm need the last one to be done and to have succeeded. */
static ncclResult_t check_ready(ncclComm_t c, const char *who) {
    if (!c) return fail(ncclInvalidArgument, "%s: comm is NULL", who);
    if (atomic_load(&c->aborted)) return fail(ncclInvalidUsage, "%s: the comm is being aborted", who);
    ncclResult_t state = (ncclResult_t)atomic_load(&c->state);
    if (state == ncclInProgress || atomic_load(&c->revoking))
        return fail(ncclInvalidArgument, "%s: the comm's last call is still in progress", who);
    if (state == ncclSuccess) state = (ncclResult_t)atomic_load(&c->fault);
    if (state) return fail(state, "%s: the comm failed before", who);
    return ncclSuccess;
}

/* ---- Init ------------------------------------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version) {
    ENTER(0);
    if (!version) return fail(ncclInvalidArgument, "ncclGetVersion: version is NULL");
    *version = library_version();
    return ncclSuccess;
}

/* Makes a segment that this process keeps open until all have attached: were it gone, nobody could. */
static ncclResult_t segment_make(unique_id *id) {
    static atomic_ullong serials;
    int fd = memfd_create("fake_nccl", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, HEADER_BYTES)) return fail(ncclSystemError, "memfd_create: %s", strerror(errno));
    segment *header = mmap(NULL, HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (header == MAP_FAILED) return fail(ncclSystemError, "mmap: %s", strerror(errno));
    *id = (unique_id){.pid = (int)getpid(), .fd = fd, .start = process_start((int)getpid())};
    id->serial = ((unsigned long long)id->pid << 32) + atomic_fetch_add(&serials, 1) + 1;
    header->serial = id->serial;
    header->magic = SEGMENT_MAGIC;
    munmap(header, HEADER_BYTES);
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    ENTER(0);
    unique_id content;
    if (!id) return fail(ncclInvalidArgument, "ncclGetUniqueId: id is NULL");
    ncclResult_t code = segment_make(&content);
    memset(id, 0, sizeof *id);
    if (!code) memcpy(id, &content, sizeof content);
    return code;
}

static ncclResult_t segment_map(ncclComm_t c, const unique_id *id) {
    char path[64];
    struct stat status;
    size_t bytes = segment_bytes(c->nranks);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", id->pid, id->fd);
    int fd = process_start(id->pid) == id->start ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return fail(ncclRemoteError, "the process that made the unique id (pid %d) is gone", id->pid);
    int bad = fstat(fd, &status) || ((size_t)status.st_size < bytes && ftruncate(fd, (off_t)bytes));
    void *memory = bad ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) return fail(ncclSystemError, "cannot map the shared segment: %s", strerror(errno));
    c->shared = memory;
    c->serial = id->serial;
    if (shared_of(c)->magic != SEGMENT_MAGIC || shared_of(c)->serial != id->serial)
        return fail(ncclInvalidArgument, "the unique id was used before");
    int before = 0;
    if (!atomic_compare_exchange_strong(&shared_of(c)->nranks, &before, c->nranks) && before != c->nranks)
        return fail(ncclInvalidArgument, "rank %d says %d ranks, another %d", c->rank, c->nranks, before);
    return ncclSuccess;
}

static unsigned long long host_id(void) {
    char name[256] = "";
    const char *given = getenv("NCCL_HOSTID");
    if (!given || !*given) gethostname(name, sizeof name - 1);
    unsigned long long hash = 14695981039346656037u;
    for (const char *at = given && *given ? given : name; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    return hash;
}

static ncclResult_t check_devices(ncclComm_t c) {
    for (int b = 1; b < c->nranks; b++)
        for (int a = 0; a < b; a++)
            if (card_of(c, a)->host == card_of(c, b)->host && card_of(c, a)->device == card_of(c, b)->device)
                return fail(ncclInvalidUsage, "duplicate GPU detected: rank %d and rank %d both on CUDA device %d", b,
                            a, card_of(c, b)->device);
    return ncclSuccess;
}

/* Meets the other ranks in the segment. `cut` ends the wait. */
static ncclResult_t comm_attach(ncclComm_t c, unique_id id, const atomic_int *cut) {
    ncclResult_t code = segment_map(c, &id);
    if (code) return code;
    card *mine = card_of(c, c->rank);
    mine->pid = (int)getpid();
    mine->start = process_start(mine->pid);
    mine->device = c->device;
    mine->host = host_id();
    if (atomic_exchange(&mine->attached, 1)) return fail(ncclInvalidArgument, "rank %d is already there", c->rank);
    if (!barrier_pass(c, &shared_of(c)->control, NULL, (signature){.call = -1}, cut))
        return fail(ncclInternalError, "init was aborted");
    if (id.pid == mine->pid) close(id.fd);
    code = check_devices(c);
    atomic_store(&c->ready, !code);
    return code;
}

static ncclResult_t config_read(ncclConfig_t *into, const ncclConfig_t *given, const ncclConfig_t *otherwise) {
    *into = *otherwise;
    if (!given) return ncclSuccess;
    if (given->magic != 0xcafebeef) return fail(ncclInvalidArgument, "the config was not made by its initializer");
    if (given->size < offsetof(ncclConfig_t, cgaClusterSize))
        return fail(ncclInvalidArgument, "the config is too short");
    *into = (ncclConfig_t)NCCL_CONFIG_INITIALIZER; /* a given one replaces the parent's in all fields */
    memcpy(into, given, given->size < sizeof *into ? given->size : sizeof *into);
    if (into->blocking == NCCL_CONFIG_UNDEF_INT) into->blocking = 1;
    if (into->blocking != 0 && into->blocking != 1)
        return fail(ncclInvalidArgument, "config.blocking is %d", into->blocking);
    int fewest = into->minCTAs, most = into->maxCTAs, unset = NCCL_CONFIG_UNDEF_INT;
    if ((fewest != unset && fewest < 1) || (most != unset && most < 1) ||
        (fewest != unset && most != unset && fewest > most))
        return fail(ncclInvalidArgument, "config.minCTAs is %d, config.maxCTAs %d", fewest, most);
    return ncclSuccess;
}

typedef struct init_job {
    job base;
    unique_id id;
} init_job;

static ncclResult_t init_run(job *self) {
    ncclComm_t c = self->comm;
    while (injected("FAKE_NCCL_INIT_HANG", NULL) && !atomic_load(&c->aborted)) pause_us(1000);
    if (atomic_load(&c->aborted)) return fail(ncclInternalError, "init was aborted");
    return comm_attach(c, ((init_job *)self)->id, &c->aborted);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    ENTER(21400);
    ncclConfig_t defaults = NCCL_CONFIG_INITIALIZER, settled;
    int device = 0;
    defaults.blocking = 1;
    if (!comm || nranks < 1 || rank < 0 || rank >= nranks)
        return fail(ncclInvalidArgument, "ncclCommInitRankConfig: rank %d of %d", rank, nranks);
    *comm = NULL;
    if (cudaGetDevice(&device)) return fail(ncclUnhandledCudaError, "ncclCommInitRankConfig: no CUDA device");
    ncclResult_t code = config_read(&settled, config, &defaults);
    if (code) return code;
    init_job *work = must_calloc(sizeof *work);
    work->base.run = init_run;
    memcpy(&work->id, &id, sizeof work->id);
    ncclComm_t c = *comm = comm_open(nranks, rank, device, &settled);
    CALL_ON(c);
    code = job_start(c, &work->base);
    if (!code || code == ncclInProgress) return code;
    if (!atomic_exchange(&c->ending, 1)) comm_bury(c);
    *comm = NULL;
    return code;
}

/* ---- Split and shrink ------------------------------------------------------------------------------------------- */

typedef struct derive_job {
    job base;
    ncclComm_t *out;
    ncclConfig_t config;
    int color, key;
    int shrinks;
    char members[]; /* of the parent */
} derive_job;

/* The parent's ranks of one color, ordered by key, then rank. Returns how many; *index is this rank's place. */
static int color_members(ncclComm_t parent, const char *members, int color, int *first, int *index) {
    int count = 0;
    const card *mine = card_of(parent, parent->rank);
    *first = parent->rank;
    *index = 0;
    for (int rank = 0; rank < parent->nranks; rank++) {
        const card *other = card_of(parent, rank), *least = card_of(parent, *first);
        if (!members[rank] || other->color != color) continue;
        count++;
        *index += other->key < mine->key || (other->key == mine->key && rank < parent->rank);
        if (other->key < least->key || (other->key == least->key && rank < *first)) *first = rank;
    }
    return count;
}

static ncclResult_t derive(derive_job *d, ncclComm_t *out) {
    job *self = &d->base;
    ncclComm_t parent = self->comm;
    barrier *meet = d->shrinks ? &shared_of(parent)->shrink : &shared_of(parent)->control;
    signature same = {.call = d->shrinks ? -3 : -2};
    card *mine = card_of(parent, parent->rank);
    int hangs = !d->shrinks && injected("FAKE_NCCL_SPLIT_HANG", NULL);
    int first, index;
    while ((hangs || atomic_load(&parent->pending)) && !atomic_load(&parent->aborted)) pause_us(hangs ? 1000 : 50);
    if (atomic_load(&parent->aborted)) return fail(ncclInternalError, "split was aborted");
    for (int rank = 0; rank < parent->nranks; rank++) same.count = same.count * 31 + (size_t)d->members[rank];
    mine->color = d->color;
    mine->key = d->key;
    if (!barrier_pass(parent, meet, d->members, same, &parent->aborted))
        return fail(ncclInternalError, "split was aborted");
    int count = color_members(parent, d->members, d->color, &first, &index);
    ncclResult_t code = ncclSuccess;
    if (d->color >= 0 && first == parent->rank) code = segment_make(&mine->child);
    if (!barrier_pass(parent, meet, d->members, same, &parent->aborted))
        return fail(ncclInternalError, "split was aborted");
    if (d->color < 0 || code) return code;
    ncclComm_t child = comm_open(count, index, parent->device, &d->config);
    code = comm_attach(child, card_of(parent, first)->child, &parent->aborted);
    atomic_store(&child->state, (int)code);
    if (code)
        comm_bury(child);
    else
        *out = child;
    return code;
}

/* The pointer is written when all is over, whatever came of it. */
static ncclResult_t derive_run(job *self) {
    derive_job *d = (derive_job *)self;
    ncclComm_t child = NULL;
    ncclResult_t code = derive(d, &child);
    __atomic_store_n(d->out, child, __ATOMIC_RELEASE);
    return code;
}

static ncclResult_t derive_start(ncclComm_t parent, const char *members, int color, int key, ncclComm_t *child,
                                 const ncclConfig_t *config, int shrinks) {
    derive_job *d = must_calloc(sizeof *d + (size_t)parent->nranks);
    ncclResult_t code = config_read(&d->config, config, &parent->config);
    if (code) {
        free(d);
        return code;
    }
    d->base.run = derive_run;
    d->out = child;
    d->color = color;
    d->key = key;
    d->shrinks = shrinks;
    for (int rank = 0; rank < parent->nranks; rank++) d->members[rank] = members ? members[rank] : 1;
    *child = NULL;
    return job_start(parent, &d->base);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config) {
    ENTER(21801);
    CALL_ON(comm);
    ncclResult_t code = check_ready(comm, __func__);
    if (code) return code;
    if (!child || color < NCCL_SPLIT_NOCOLOR) return fail(ncclInvalidArgument, "ncclCommSplit: color %d", color);
    return derive_start(comm, NULL, color, key, child, config, 0);
}

/* Ends the comm's kernels, for good or until comm_stopped. */
static void comm_stop(ncclComm_t c, int aborts) {
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->stop, 1);
    if (aborts) atomic_store(&c->aborted, 1);
    pthread_mutex_unlock(&c->lock);
    fake_wake();
}

/* Waits until the streams have got past what the comm issued, then lets it run kernels again. */
static void comm_stopped(ncclComm_t c) {
    while (!atomic_load(&c->aborted) && (atomic_load(&c->inside) > atomic_load(&c->missed) || atomic_load(&c->pending)))
        pause_us(100);
    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->aborted)) atomic_store(&c->stop, 0);
    pthread_mutex_unlock(&c->lock);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int nexcluded, ncclComm_t *child, ncclConfig_t *config,
                            int flags) {
    ENTER(22700);
    CALL_ON(comm);
    if (!comm || !child || !excluded || nexcluded < 1 || nexcluded >= comm->nranks || (flags & ~NCCL_SHRINK_ABORT))
        return fail(ncclInvalidArgument, "ncclCommShrink: %d excluded, flags %d", nexcluded, flags);
    ncclResult_t code = flags ? ncclSuccess : check_ready(comm, __func__);
    if (code) return code;
    char *members = must_calloc((size_t)comm->nranks);
    memset(members, 1, (size_t)comm->nranks);
    for (int i = 0; i < nexcluded && !code; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->nranks || excluded[i] == comm->rank)
            code = fail(ncclInvalidArgument, "ncclCommShrink: rank %d cannot be excluded", excluded[i]);
        else
            members[excluded[i]] = 0;
    }
    if (!code && (flags & NCCL_SHRINK_ABORT)) {
        comm_stop(comm, 0);
        comm_stopped(comm);
    }
    if (!code) code = derive_start(comm, members, 0, comm->rank, child, config, 1);
    free(members);
    return code;
}

/* ---- Open groups ------------------------------------------------------------------------------------------------ */

typedef struct group {
    int depth;
    ncclResult_t error;
    struct operation *operations;
    size_t count, room;
    ncclComm_t *ends; /* to be destroyed or aborted */
    size_t nends;
} group;

static __thread group open_group;

/* Since 2.22, the ends of comms wait for the end of the group, and then for each other. */
static int group_defers_end(ncclComm_t c) {
    group *g = &open_group;
    if (!g->depth || library_version() < 22200) return 0;
    g->ends = realloc(g->ends, (g->nends + 1) * sizeof *g->ends);
    if (!g->ends) fake_die("out of host memory");
    g->ends[g->nends++] = c;
    return 1;
}

static void group_leak(void) { open_group.depth++; }

/* ---- The end of comms ------------------------------------------------------------------------------------------- */

static ncclResult_t finalize_run(job *self) {
    while (atomic_load(&self->comm->pending) && !atomic_load(&self->comm->stop)) pause_us(50);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    ENTER(21400);
    CALL_ON(comm);
    ncclResult_t code = check_ready(comm, __func__);
    if (code) return code;
    if (atomic_load(&comm->revoked)) return fail(ncclInvalidUsage, "ncclCommFinalize: the comm is revoked");
    if (atomic_exchange(&comm->finalized, 1)) return fail(ncclInvalidArgument, "ncclCommFinalize: called before");
    job *work = must_calloc(sizeof *work);
    work->run = finalize_run;
    return job_start(comm, work);
}

static void comm_say_leaving(ncclComm_t c) {
    if (atomic_load(&c->ready)) atomic_store(&card_of(c, c->rank)->leaving, 1);
}

/* Waits until every other rank has called destroy or abort, or its process is gone. */
static void comm_wait_for_leavers(ncclComm_t c) {
    double looked_ms = now_ms();
    for (int rank = 0; atomic_load(&c->ready) && rank < c->nranks;) {
        card *peer = card_of(c, rank);
        int gone = atomic_load(&peer->leaving);
        if (!gone && now_ms() - looked_ms > LOOK_MS) {
            gone = process_start(peer->pid) != peer->start;
            looked_ms = now_ms();
        }
        rank += gone;
        if (!gone) pause_us(50);
    }
}

/* The end of a comm: its streams have got past all that it issued, and no graph holds any of that. */
static void comm_end(ncclComm_t c) {
    while (atomic_load(&c->inside) || atomic_load(&c->pending) || atomic_load(&c->held) || atomic_load(&c->revoking))
        pause_us(50);
    if (!atomic_load(&c->aborted)) comm_wait_for_leavers(c);
    comm_bury(c);
}

static void comm_begin_end(ncclComm_t c, const char *who) {
    check_usable(c, who);
    if (atomic_exchange(&c->ending, 1)) fake_die("%s: the comm is being destroyed or aborted already", who);
    registrations_let_go(c);
}

/* At once, or at the end of the open group. */
static ncclResult_t comm_end_or_defer(ncclComm_t c) {
    if (group_defers_end(c)) return ncclSuccess;
    comm_say_leaving(c);
    comm_end(c);
    return ncclSuccess;
}

/* A comm in progress is refused as NCCL does it: with a group left open. */
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    ENTER(0);
    if (!comm) return ncclSuccess;
    check_usable(comm, __func__);
    if (atomic_load(&comm->state) == ncclInProgress || atomic_load(&comm->revoking)) {
        group_leak();
        return fail(ncclInvalidArgument, "ncclCommDestroy: the comm's last call is still in progress");
    }
    comm_begin_end(comm, __func__);
    return comm_end_or_defer(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    ENTER(0);
    if (!comm) return ncclSuccess;
    comm_begin_end(comm, __func__);
    if (atomic_load(&comm->callers)) atomic_fetch_add(&unsafe_aborts, 1);
    comm_stop(comm, 1);
    while (atomic_load(&comm->inside) || atomic_load(&comm->revoking)) pause_us(100); /* joins the job */
    return comm_end_or_defer(comm);
}

static void *revoke_worker(void *argument) {
    ncclComm_t c = argument;
    comm_stopped(c);
    atomic_store(&c->revoking, 0);
    return NULL;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
    ENTER(22807);
    CALL_ON(comm);
    pthread_t thread;
    if (!comm || flags) return fail(ncclInvalidArgument, "ncclCommRevoke: flags %d", flags);
    if (atomic_load(&comm->aborted)) return fail(ncclInvalidUsage, "ncclCommRevoke: the comm is being aborted");
    if (atomic_load(&comm->finalized)) return fail(ncclInvalidUsage, "ncclCommRevoke: the comm is finalized");
    if (atomic_exchange(&comm->revoking, 1)) return ncclInProgress;
    comm_stop(comm, 0);
    atomic_store(&comm->fault, 0);
    atomic_store(&comm->state, ncclSuccess);
    atomic_store(&comm->revoked, 1);
    if (comm->config.blocking) {
        revoke_worker(comm);
        return atomic_load(&comm->aborted) ? fail(ncclInternalError, "ncclCommRevoke: aborted") : ncclSuccess;
    }
    if (pthread_create(&thread, NULL, revoke_worker, comm)) fake_die("no thread for a revoke");
    pthread_detach(thread);
    return ncclInProgress;
}

/* ---- Questions -------------------------------------------------------------------------------------------------- */

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    ENTER(0);
    CALL_ON(comm);
    if (!comm || !error) return fail(ncclInvalidArgument, "ncclCommGetAsyncError: a NULL argument");
    *error = atomic_load(&comm->revoking) ? ncclInProgress : (ncclResult_t)atomic_load(&comm->state);
    if (atomic_load(&comm->fault)) *error = (ncclResult_t)atomic_load(&comm->fault);
    return ncclSuccess;
}

static ncclResult_t ask(ncclComm_t comm, const char *who, int *out, int value) {
    CALL_ON(comm);
    ncclResult_t code = check_ready(comm, who);
    if (!code && !out) code = fail(ncclInvalidArgument, "%s: a NULL argument", who);
    if (!code) *out = value;
    return code;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
    ENTER(0);
    return ask(comm, __func__, count, comm ? comm->nranks : 0);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    ENTER(0);
    return ask(comm, __func__, rank, comm ? comm->rank : 0);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    ENTER(0);
    return ask(comm, __func__, device, comm ? comm->device : 0);
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t bytes, void **handle) {
    ENTER(21900);
    CALL_ON(comm);
    ncclResult_t code = check_ready(comm, __func__);
    if (code) return code;
    if (!handle || bytes == 0 || fake_memory_type(buffer, NULL) != cudaMemoryTypeDevice)
        return fail(ncclInvalidArgument, "ncclCommRegister: %p is not device memory", buffer);
    fake_memory(buffer, bytes, 0, __func__);
    *handle = registration_open(comm, buffer, bytes, 0);
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    ENTER(21900);
    CALL_ON(comm);
    registration **at = comm ? registration_find(comm, handle, 0) : NULL;
    if (!at) return fail(ncclInvalidArgument, "ncclCommDeregister: not a handle of this comm");
    registration_close(comm, at);
    return ncclSuccess;
}

typedef struct window_job {
    job base;
    void *buffer;
    size_t bytes;
    ncclWindow_t *out;
    int flags;
} window_job;

static ncclResult_t window_run(job *self) {
    window_job *w = (window_job *)self;
    ncclComm_t c = self->comm;
    if ((uintptr_t)w->buffer % NCCL_WIN_REQUIRED_ALIGNMENT || !fake_is_granular(w->buffer))
        return fail(ncclInvalidArgument, "ncclCommWindowRegister: %p is not aligned, or not ncclMemAlloc's", w->buffer);
    fake_memory(w->buffer, w->bytes, 0, "ncclCommWindowRegister");
    signature same = {.call = -4, .op = w->flags, .count = w->bytes};
    if (!barrier_pass(c, &shared_of(c)->windows, NULL, same, &c->stop))
        return fail(ncclInternalError, "ncclCommWindowRegister: the call was aborted");
    *w->out = (ncclWindow_t)registration_open(c, w->buffer, w->bytes, 1);
    return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window, int flags) {
    ENTER(22700);
    CALL_ON(comm);
    ncclResult_t code = check_ready(comm, __func__);
    if (code) return code;
    if (!window || !buffer || bytes == 0 || (flags & ~NCCL_WIN_COLL_SYMMETRIC))
        return fail(ncclInvalidArgument, "ncclCommWindowRegister: %zu bytes at %p, flags %d", bytes, buffer, flags);
    *window = NULL;
    if (!fake_env("FAKE_NCCL_SYMMETRIC", 1)) return ncclSuccess;
    window_job *w = must_calloc(sizeof *w);
    *w = (window_job){{.run = window_run, .launches = 1}, buffer, bytes, window, flags};
    return job_start(comm, &w->base);
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
    ENTER(22700);
    CALL_ON(comm);
    if (comm && !window) return ncclSuccess;
    registration **at = comm ? registration_find(comm, window, 1) : NULL;
    if (!at) return fail(ncclInvalidArgument, "ncclCommWindowDeregister: not a window of this comm");
    registration_close(comm, at);
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **pointer, size_t bytes) {
    ENTER(21900);
    cudaError_t error = fake_allocate(pointer, bytes, (size_t)fake_env("FAKE_NCCL_GRANULARITY", 2 << 20));
    return error ? fail(ncclUnhandledCudaError, "ncclMemAlloc: %zu bytes", bytes) : ncclSuccess;
}

ncclResult_t ncclMemFree(void *pointer) {
    ENTER(21900);
    return cudaFree(pointer) ? fail(ncclUnhandledCudaError, "ncclMemFree") : ncclSuccess;
}

/* ---- Reductions ------------------------------------------------------------------------------------------------- */

static size_t type_bytes(ncclDataType_t type) {
    static const unsigned char bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return bytes[type];
}

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400) return float_of_bits(sign | ((rest << 13) + 0x38000000));
    float small = (float)rest * 0x1p-24f;
    return sign ? -small : small;
}

/* Rounds to nearest, ties to even. */
static uint16_t float_to_half(float value) {
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (bits < 0x38800000) return (uint16_t)(sign | (bits_of_float(float_of_bits(bits) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13));
}

static float bf16_to_float(uint16_t value) { return float_of_bits((uint32_t)value << 16); }

static uint16_t float_to_bf16(float value) {
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float e5m2_to_float(uint8_t value) { return half_to_float((uint16_t)(value << 8)); }

static float e4m3_to_float(uint8_t value) {
    int exponent = value >> 3 & 15, mantissa = value & 7;
    float size = exponent ? (float)(8 + mantissa) * 0x1p-10f * (float)(1 << exponent) : (float)mantissa * 0x1p-9f;
    if ((value & 0x7f) == 0x7f) return float_of_bits(0x7fc00000);
    return value & 0x80 ? -size : size;
}

/* The nearest of the 8-bit numbers up to `largest`, ties to even; beyond it, that one. */
static uint8_t float_to_8(float value, uint8_t largest, float (*to_float)(uint8_t)) {
    float size = value < 0 ? -value : value;
    uint8_t best = 0, sign = value < 0 ? 0x80 : 0;
    if (value != value) return 0x7f;
    for (uint8_t code = 1; code <= largest; code++) {
        float now = to_float(code), then = to_float(best), up = now > size ? now - size : size - now,
              down = then > size ? then - size : size - then;
        if (up < down || (up == down && !(code & 1))) best = code;
    }
    return sign | best;
}

static uint8_t float_to_e5m2(float value) { return float_to_8(value, 0x7b, e5m2_to_float); }
static uint8_t float_to_e4m3(float value) { return float_to_8(value, 0x7e, e4m3_to_float); }

/* out[i] = the inputs' i-th elements combined in rank order, rounded to the type after each step. Averages of floats
 * multiply each input by the rounded 1/n, as NCCL does; those of integers divide the sum. */
#define LOOP(T, FIRST, NEXT, LAST)                    \
    for (size_t i = 0; i < count; i++) {              \
        T b = ((const T *)inputs[0])[i], a = (FIRST); \
        for (int rank = 1; rank < n; rank++) {        \
            b = ((const T *)inputs[rank])[i];         \
            a = (NEXT);                               \
        }                                             \
        ((T *)out)[i] = (LAST);                       \
    }

#define REDUCER(NAME, T, ADD, MULTIPLY, LESS, SCALE_BY, SCALE, DIVIDE)                                     \
    static void NAME(void *out, const unsigned char *const *inputs, int n, size_t count, ncclRedOp_t op) { \
        SCALE_BY;                                                                                          \
        switch (op) {                                                                                      \
        case ncclSum:                                                                                      \
            LOOP(T, b, ADD(T, a, b), a) break;                                                             \
        case ncclProd:                                                                                     \
            LOOP(T, b, MULTIPLY(T, a, b), a) break;                                                        \
        case ncclMax:                                                                                      \
            LOOP(T, b, LESS(a, b) ? b : a, a) break;                                                       \
        case ncclMin:                                                                                      \
            LOOP(T, b, LESS(b, a) ? b : a, a) break;                                                       \
        default:                                                                                           \
            LOOP(T, SCALE(T, b), ADD(T, a, SCALE(T, b)), DIVIDE(T, a)) break;                              \
        }                                                                                                  \
    }

#define WRAP_ADD(T, a, b) ((T)((uint64_t)(a) + (uint64_t)(b)))
#define WRAP_MULTIPLY(T, a, b) ((T)((uint64_t)(a) * (uint64_t)(b)))
#define PLAIN_ADD(T, a, b) ((T)((a) + (b)))
#define PLAIN_MULTIPLY(T, a, b) ((T)((a) * (b)))
#define PLAIN_LESS(a, b) ((a) < (b))
#define SCALED(T, a) PLAIN_MULTIPLY(T, a, scale)
#define SAME(T, a) (a)
#define DIVIDED(T, a) ((T)((a) / (T)n))
#define HALF_ADD(T, a, b) float_to_half(half_to_float(a) + half_to_float(b))
#define HALF_MULTIPLY(T, a, b) float_to_half(half_to_float(a) * half_to_float(b))
#define HALF_LESS(a, b) (half_to_float(a) < half_to_float(b))
#define HALF_SCALED(T, a) HALF_MULTIPLY(T, a, scale)
#define BF16_ADD(T, a, b) float_to_bf16(bf16_to_float(a) + bf16_to_float(b))
#define BF16_MULTIPLY(T, a, b) float_to_bf16(bf16_to_float(a) * bf16_to_float(b))
#define BF16_LESS(a, b) (bf16_to_float(a) < bf16_to_float(b))
#define BF16_SCALED(T, a) BF16_MULTIPLY(T, a, scale)
#define E4M3_ADD(T, a, b) float_to_e4m3(e4m3_to_float(a) + e4m3_to_float(b))
#define E4M3_MULTIPLY(T, a, b) float_to_e4m3(e4m3_to_float(a) * e4m3_to_float(b))
#define E4M3_LESS(a, b) (e4m3_to_float(a) < e4m3_to_float(b))
#define E4M3_SCALED(T, a) E4M3_MULTIPLY(T, a, scale)
#define E5M2_ADD(T, a, b) float_to_e5m2(e5m2_to_float(a) + e5m2_to_float(b))
#define E5M2_MULTIPLY(T, a, b) float_to_e5m2(e5m2_to_float(a) * e5m2_to_float(b))
#define E5M2_LESS(a, b) (e5m2_to_float(a) < e5m2_to_float(b))
#define E5M2_SCALED(T, a) E5M2_MULTIPLY(T, a, scale)
#define E4M3_SCALE uint8_t scale = float_to_e4m3(1.0f / (float)n)
#define E5M2_SCALE uint8_t scale = float_to_e5m2(1.0f / (float)n)
#define NO_SCALE (void)0
#define FLOAT_SCALE float scale = 1.0f / (float)n
#define DOUBLE_SCALE double scale = 1.0 / (double)n
#define HALF_SCALE uint16_t scale = float_to_half(1.0f / (float)n)
#define BF16_SCALE uint16_t scale = float_to_bf16(1.0f / (float)n)

REDUCER(reduce_i8, int8_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_u8, uint8_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_i32, int32_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_u32, uint32_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_i64, int64_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_u64, uint64_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_f16, uint16_t, HALF_ADD, HALF_MULTIPLY, HALF_LESS, HALF_SCALE, HALF_SCALED, SAME)
REDUCER(reduce_f32, float, PLAIN_ADD, PLAIN_MULTIPLY, PLAIN_LESS, FLOAT_SCALE, SCALED, SAME)
REDUCER(reduce_f64, double, PLAIN_ADD, PLAIN_MULTIPLY, PLAIN_LESS, DOUBLE_SCALE, SCALED, SAME)
REDUCER(reduce_bf16, uint16_t, BF16_ADD, BF16_MULTIPLY, BF16_LESS, BF16_SCALE, BF16_SCALED, SAME)
REDUCER(reduce_e4m3, uint8_t, E4M3_ADD, E4M3_MULTIPLY, E4M3_LESS, E4M3_SCALE, E4M3_SCALED, SAME)
REDUCER(reduce_e5m2, uint8_t, E5M2_ADD, E5M2_MULTIPLY, E5M2_LESS, E5M2_SCALE, E5M2_SCALED, SAME)

typedef void (*reducer)(void *out, const unsigned char *const *inputs, int n, size_t count, ncclRedOp_t op);
static const reducer reducers[ncclNumTypes] = {reduce_i8,  reduce_u8,   reduce_i32,  reduce_u32,
                                               reduce_i64, reduce_u64,  reduce_f16,  reduce_f32,
                                               reduce_f64, reduce_bf16, reduce_e4m3, reduce_e5m2};

/* ---- Operations ------------------------------------------------------------------------------------------------- */

typedef enum operation_kind {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    SEND,
    RECV
} operation_kind;

static const char *const operation_names[] = {"ncclAllReduce",     "ncclReduce",   "ncclBroadcast", "ncclAllGather",
                                              "ncclReduceScatter", "ncclAlltoAll", "ncclGather",    "ncclScatter",
                                              "ncclSend",          "ncclRecv"};

typedef struct operation {
    operation_kind kind;
    const void *send;
    void *recv;
    size_t count; /* elements of one block */
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* or peer */
    ncclComm_t comm;
    cudaStream_t stream;
    unsigned long long number; /* of the process's operations, from 1 */
} operation;

static int is_reduction(operation_kind kind) { return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER; }
static int is_p2p(operation_kind kind) { return kind == SEND || kind == RECV; }

/* How many blocks of `count` elements this rank gives and gets. */
static size_t blocks_sent(const operation *o) {
    size_t n = (size_t)o->comm->nranks;
    int at_root = o->comm->rank == o->root;
    switch (o->kind) {
    case BROADCAST:
        return at_root;
    case SCATTER:
        return at_root ? n : 0;
    case REDUCE_SCATTER:
    case ALL_TO_ALL:
        return n;
    case RECV:
        return 0;
    default:
        return 1;
    }
}

static size_t blocks_received(const operation *o) {
    size_t n = (size_t)o->comm->nranks;
    int at_root = o->comm->rank == o->root;
    switch (o->kind) {
    case REDUCE:
        return at_root;
    case GATHER:
        return at_root ? n : 0;
    case ALL_GATHER:
    case ALL_TO_ALL:
        return n;
    case SEND:
        return 0;
    default:
        return 1;
    }
}

static size_t bytes_sent(const operation *o) { return blocks_sent(o) * o->count * type_bytes(o->type); }
static size_t bytes_received(const operation *o) { return blocks_received(o) * o->count * type_bytes(o->type); }

/* A block's elements as the ranks must agree on them. Rings go in chunks that are rounded up to 16 bytes, a block or an
 * n-th of the array: ranks whose counts differ within that do not notice. */
static size_t padded_count(const operation *o) {
    size_t parts = (size_t)o->comm->nranks, width = type_bytes(o->type), bytes = o->count * width;
    if (o->kind > REDUCE_SCATTER || !fake_env("FAKE_NCCL_ROUND_UP", 1)) return o->count;
    if (o->kind == ALL_GATHER || o->kind == REDUCE_SCATTER) parts = 1;
    return ((bytes + parts - 1) / parts + 15) / 16 * 16 * parts / width;
}

static size_t elements_in(const operation *o, size_t at, size_t step) {
    return o->count < at ? 0 : o->count - at < step ? o->count - at : step;
}

/* A collective's round: elements [at, at + step) of each block. What goes to each rank lies in blocks on the board. Who
 * asked for more than others gave gets garbage. */
static void post_round(const operation *o, const unsigned char *send, size_t at, size_t step) {
    size_t width = type_bytes(o->type), given = elements_in(o, at, step);
    unsigned char *board = board_of(o->comm, o->comm->rank);
    for (size_t block = 0; block < blocks_sent(o); block++, board += step * width) {
        memcpy(board, send + (block * o->count + at) * width, given * width);
        memset(board + given * width, BOARD_GARBAGE, (step - given) * width);
    }
}

static void read_round(const operation *o, unsigned char *recv, size_t at, size_t step) {
    ncclComm_t c = o->comm;
    size_t width = type_bytes(o->type), wanted = elements_in(o, at, step);
    int many = o->kind == REDUCE_SCATTER || o->kind == ALL_TO_ALL || o->kind == SCATTER; /* one block for each rank */
    size_t mine = many ? (size_t)c->rank * step * width : 0;
    if (is_reduction(o->kind)) {
        const unsigned char *inputs[c->nranks];
        for (int rank = 0; rank < c->nranks; rank++) inputs[rank] = board_of(c, rank) + mine;
        reducers[o->type](recv + at * width, inputs, c->nranks, wanted, o->op);
    } else if (o->kind == BROADCAST || o->kind == SCATTER) {
        memcpy(recv + at * width, board_of(c, o->root) + mine, wanted * width);
    } else {
        for (int rank = 0; rank < c->nranks; rank++)
            memcpy(recv + ((size_t)rank * o->count + at) * width, board_of(c, rank) + mine, wanted * width);
    }
}

static void run_collective(const operation *o) {
    ncclComm_t c = o->comm;
    const char *name = operation_names[o->kind];
    size_t width = type_bytes(o->type), sent = bytes_sent(o), received = bytes_received(o), count = padded_count(o);
    const unsigned char *send = sent ? fake_memory(o->send, sent, 0, name) : NULL;
    unsigned char *recv = received ? fake_memory(o->recv, received, 0, name) : NULL;
    int many = o->kind == REDUCE_SCATTER || o->kind == ALL_TO_ALL || o->kind == SCATTER;
    size_t most = BOARD_BYTES / (many ? (size_t)c->nranks : 1) / width;
    signature s = {(int)o->kind, (int)o->type, is_reduction(o->kind) ? (int)o->op : 0, o->root, count};
    for (size_t at = 0; at < count; at += most, c->round++) {
        size_t step = count - at < most ? count - at : most;
        if (send) post_round(o, send, at, step);
        if (!barrier_pass(c, &shared_of(c)->operations, NULL, s, &c->stop)) return;
        if (recv) read_round(o, recv, at, step);
    }
}

/* ---- Sends and receives ----------------------------------------------------------------------------------------- */

typedef struct transfer {
    const operation *o;
    ring *ring;
    unsigned char *memory;
    size_t bytes, moved;
    uint64_t message; /* its number on the ring, from 1; 0: not posted yet */
    int done;
} transfer;

static void ring_doorbell(ncclComm_t c, int rank) {
    atomic_fetch_add(&card_of(c, rank)->doorbell, 1);
    futex_wake(&card_of(c, rank)->doorbell);
}

/* Messages of one direction and peer go one after the other. */
static int transfer_may_post(const transfer *all, const transfer *t) {
    for (const transfer *before = all; before < t; before++)
        if (before->ring == t->ring && before->o->kind == t->o->kind && !before->done) return 0;
    return 1;
}

static void transfer_post(transfer *t) {
    int sends = t->o->kind == SEND;
    _Atomic uint64_t *posted = sends ? &t->ring->sends : &t->ring->receives;
    t->message = atomic_load(posted) + 1;
    (sends ? t->ring->send_bytes : t->ring->recv_bytes)[t->message & 1] = t->bytes;
    atomic_store(posted, t->message);
}

/* Both sides have posted the message, with equal sizes: different ones never meet. */
static int transfer_met(const transfer *t) {
    ring *r = t->ring;
    if (atomic_load(&r->sends) < t->message || atomic_load(&r->receives) < t->message) return 0;
    return r->send_bytes[t->message & 1] == r->recv_bytes[t->message & 1];
}

static size_t transfer_move(transfer *t) {
    ring *r = t->ring;
    int sends = t->o->kind == SEND;
    uint64_t written = atomic_load(&r->written), read = atomic_load(&r->read);
    size_t at = (size_t)((sends ? written : read) % RING_BYTES);
    size_t step = sends ? RING_BYTES - (size_t)(written - read) : (size_t)(written - read);
    if (step > RING_BYTES - at) step = RING_BYTES - at;
    if (step > t->bytes - t->moved) step = t->bytes - t->moved;
    if (sends)
        memcpy(r->bytes + at, t->memory + t->moved, step);
    else
        memcpy(t->memory + t->moved, r->bytes + at, step);
    atomic_fetch_add(sends ? &r->written : &r->read, step);
    t->moved += step;
    return step;
}

/* True: something changed that the peer may be waiting for. */
static int transfer_step(const transfer *all, transfer *t) {
    int changed = 0;
    if (t->done) return 0;
    if (!t->message) {
        if (!transfer_may_post(all, t)) return 0;
        transfer_post(t);
        changed = 1;
    }
    if (transfer_met(t) && transfer_move(t)) changed = 1;
    t->done = t->moved == t->bytes;
    return changed;
}

static void run_transfers(ncclComm_t c, transfer *all, size_t count) {
    atomic_uint *doorbell = &card_of(c, c->rank)->doorbell;
    for (size_t left = count; left && !atomic_load(&c->stop);) {
        unsigned rung = atomic_load(doorbell);
        int changed = 0;
        left = 0;
        for (size_t i = 0; i < count; i++) {
            if (transfer_step(all, &all[i])) {
                changed = 1;
                if (all[i].o->root != c->rank) ring_doorbell(c, all[i].o->root);
            }
            left += !all[i].done;
        }
        if (!left || changed) continue;
        futex_wait(doorbell, rung);
        look_for_dead_peers(c);
    }
}

/* ---- Kernels: what a group launches for one comm ---------------------------------------------------------------- */

typedef struct kernel {
    ncclComm_t comm;
    const void *owner;
    size_t count;
    operation operations[];
} kernel;

static void kernel_p2p(const kernel *k) {
    size_t count = 0;
    transfer *all = must_calloc((k->count + 1) * sizeof *all);
    for (size_t i = 0; i < k->count; i++) {
        const operation *o = &k->operations[i];
        if (!is_p2p(o->kind)) continue;
        int sends = o->kind == SEND;
        transfer *t = &all[count++];
        t->o = o;
        t->ring = sends ? ring_of(k->comm, k->comm->rank, o->root) : ring_of(k->comm, o->root, k->comm->rank);
        t->bytes = o->count * type_bytes(o->type);
        t->memory = fake_memory(sends ? o->send : o->recv, t->bytes, 0, operation_names[o->kind]);
    }
    if (count) run_transfers(k->comm, all, count);
    free(all);
}

/* FAKE_NCCL_ASYNC_ERROR=rank:n: the n-th operation finds an error and hangs. */
static void kernel_injected_error(const kernel *k) {
    unsigned long long n;
    if (!injected("FAKE_NCCL_ASYNC_ERROR", &n)) return;
    for (size_t i = 0; i < k->count; i++)
        if (k->operations[i].number == n)
            atomic_store(&k->comm->fault, fail(ncclInternalError, "error injected by FAKE_NCCL_ASYNC_ERROR"));
    while (atomic_load(&k->comm->fault) && !atomic_load(&k->comm->stop)) pause_us(1000);
}

static void kernel_issued(void *data) {
    ncclComm_t c = ((kernel *)data)->comm;
    check_usable(c, "launch of a graph");
    atomic_fetch_add(&c->pending, 1);
}

static void kernel_run(void *data) {
    kernel *k = data;
    ncclComm_t c = k->comm;
    if (!atomic_load(&c->stop)) {
        kernel_injected_error(k);
        for (size_t i = 0; i < k->count && !atomic_load(&c->stop); i++)
            if (!is_p2p(k->operations[i].kind)) run_collective(&k->operations[i]);
        if (!atomic_load(&c->stop)) kernel_p2p(k);
    }
    atomic_fetch_sub(&c->pending, 1);
}

static void kernel_release(void *data) {
    atomic_fetch_sub(&((kernel *)data)->comm->held, 1);
    free(data);
}

static int kernel_stopped(void *data) { return atomic_load(&((kernel *)data)->comm->stop); }
static const void *kernel_owner(void *data) { return ((kernel *)data)->owner; }

static const fake_task_kind kernel_kind = {kernel_issued, kernel_run, kernel_release, kernel_stopped, kernel_owner};

/* Between comms, NCCL promises an order only where NCCL_LAUNCH_ORDER_IMPLICIT asked for it before the first launch. */
static int kernels_are_ordered(void) {
    static atomic_int known; /* 1: no, 2: yes */
    if (!atomic_load(&known)) {
        int implicit = library_version() >= 22600 && fake_env("NCCL_LAUNCH_ORDER_IMPLICIT", 0);
        atomic_store(&known, implicit || !fake_env("FAKE_NCCL_UNORDERED", 1) ? 2 : 1);
    }
    return atomic_load(&known) == 2;
}

/* ---- What a group waits for on the host, before it launches ----------------------------------------------------- */

static atomic_ullong connects;
unsigned long long fake_connects(void) { return atomic_load(&connects); }

typedef struct joint { /* something that a comm has not connected yet */
    ncclComm_t comm;
    meeting *at;
    int nranks;
} joint;

typedef struct joint_list {
    joint *items;
    size_t count;
} joint_list;

static void joint_add(joint_list *list, ncclComm_t c, int place, joint one) {
    if (c->connected[place]) return;
    c->connected[place] = 1;
    list->items[list->count++] = one;
}

static void join_algorithm(joint_list *list, ncclComm_t c, enum algorithm algorithm) {
    if (c->nranks == 1 || library_version() < 22200 || c->connected[algorithm]) return;
    trace("connect %s comm=%llx ranks=%d rank=%d\n", algorithm_names[algorithm], c->serial, c->nranks, c->rank);
    joint_add(list, c, algorithm, (joint){c, &shared_of(c)->connecting[algorithm], c->nranks});
}

static void join_peer(joint_list *list, ncclComm_t c, int peer, operation_kind as) {
    int place = ALGORITHMS + (as == SEND ? 0 : c->nranks) + peer;
    ring *r = as == SEND ? ring_of(c, c->rank, peer) : ring_of(c, peer, c->rank);
    if (peer == c->rank || c->connected[place]) return;
    trace("connect peer %d comm=%llx ranks=%d rank=%d %s\n", peer, c->serial, c->nranks, c->rank, operation_names[as]);
    joint_add(list, c, place, (joint){c, &r->connecting, 2});
}

/* As NCCL does with its messages, and as it may do with its collectives. */
static void join_operation(joint_list *list, const operation *o) {
    ncclComm_t c = o->comm;
    int at_root = c->rank == o->root, gives = o->kind == ALL_TO_ALL || o->kind == (at_root ? SCATTER : GATHER),
        gets = o->kind == ALL_TO_ALL || o->kind == (at_root ? GATHER : SCATTER);
    int small = o->kind == ALL_REDUCE && o->count * type_bytes(o->type) < TREE_BYTES;
    if (is_p2p(o->kind))
        join_peer(list, c, o->root, o->kind);
    else if (o->kind != ALL_TO_ALL && o->kind != GATHER && o->kind != SCATTER)
        join_algorithm(list, c, small ? TREE : RING);
    for (int peer = 0; peer < c->nranks; peer++) {
        int named = o->kind == ALL_TO_ALL || at_root || peer == o->root;
        if (gives && named) join_peer(list, c, peer, SEND);
        if (gets && named) join_peer(list, c, peer, RECV);
    }
}

/* An end of one comm's calls, or a peer known to be dead, ends the whole group. */
static ncclResult_t joints_cut(const joint_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        ncclComm_t c = list->items[i].comm;
        look_for_dead_peers(c);
        if (atomic_load(&c->stop)) return fail(ncclInternalError, "the call was aborted");
        if (atomic_load(&c->fault) == ncclRemoteError) return fail(ncclRemoteError, "a peer is gone");
    }
    return ncclSuccess;
}

/* Comes to all of them, then waits for all: their order within a group is nobody's business. */
static ncclResult_t joints_meet(const joint_list *list, int phase) {
    for (size_t i = 0; i < list->count; i++) atomic_fetch_add(&list->items[i].at->arrived[phase], 1);
    for (size_t i = 0; i < list->count;) {
        if (atomic_load(&list->items[i].at->arrived[phase]) == list->items[i].nranks) {
            i++;
            continue;
        }
        ncclResult_t code = joints_cut(list);
        for (; code && i < list->count; i++) atomic_fetch_sub(&list->items[i].at->arrived[phase], 1);
        if (code) return code;
        pause_us(50);
    }
    return ncclSuccess;
}

static ncclResult_t group_connect(const operation *operations, size_t count) {
    size_t most = 0;
    if (!fake_env("FAKE_NCCL_RUNTIME_CONNECT", 1)) return ncclSuccess;
    for (size_t i = 0; i < count; i++) most += 2 * (size_t)operations[i].comm->nranks;
    joint_list list = {must_calloc(most * sizeof *list.items), 0};
    for (size_t i = 0; i < count; i++) join_operation(&list, &operations[i]);
    if (list.count) atomic_fetch_add(&connects, 1);
    ncclResult_t code = joints_meet(&list, 0);
    if (!code) code = joints_meet(&list, 1);
    free(list.items);
    return code;
}

static int is_registered(ncclComm_t c, const void *memory, size_t bytes) {
    for (const registration *r = c->registrations; bytes && r; r = r->next)
        if (!r->is_window && (const char *)memory >= r->memory &&
            (size_t)((const char *)memory - r->memory) + bytes <= r->bytes)
            return 1;
    return 0;
}

/* Collectives on registered memory (NVLS) meet where neither abort nor revoke ends the wait. */
static void meet_registered(const operation *o) {
    ncclComm_t c = o->comm;
    double start = now_ms(), longest = (double)fake_env("FAKE_NCCL_NVLS_HANG_MS", 20000);
    int send = o->kind == ALL_REDUCE || o->kind == REDUCE_SCATTER, recv = o->kind == ALL_REDUCE || o->kind == ALL_GATHER;
    if ((!send && !recv) || !fake_env("FAKE_NCCL_NVLS", 1)) return;
    if (send && !is_registered(c, o->send, bytes_sent(o))) return;
    if (recv && !is_registered(c, o->recv, bytes_received(o))) return;
    unsigned mine = atomic_fetch_add(&card_of(c, c->rank)->registered_collectives, 1) + 1;
    for (int rank = 0; rank < c->nranks;) {
        if (atomic_load(&card_of(c, rank)->registered_collectives) >= mine) {
            rank++;
            continue;
        }
        if (now_ms() - start > longest)
            fake_die("%s on memory that is registered here: rank %d did not come with registered memory; nothing ends "
                     "this wait",
                     operation_names[o->kind], rank);
        pause_us(50);
    }
}

/* ---- Groups ----------------------------------------------------------------------------------------------------- */

static int streams_seen(const kernel *k, size_t before) {
    for (size_t i = 0; i < before; i++)
        if (k->operations[i].stream == k->operations[before].stream) return 1;
    return 0;
}

/* A kernel starts on its first operation's stream when all its streams are there, and all wait for its end. */
static cudaError_t kernel_enqueue(kernel *k) {
    cudaStream_t first = k->operations[0].stream, *others = must_calloc(k->count * sizeof *others);
    size_t nothers = 0;
    cudaError_t error = cudaSuccess;
    for (size_t i = 1; i < k->count; i++)
        if (!streams_seen(k, i)) others[nothers++] = k->operations[i].stream;
    for (size_t i = 0; i < k->count; i++)
        if (fake_stream_device(k->operations[i].stream) != k->comm->device) error = cudaErrorInvalidResourceHandle;
    for (size_t i = 0; i < nothers && !error; i++) error = fake_stream_join(first, others[i]);
    if (error)
        kernel_release(k);
    else
        error = fake_enqueue(first, &kernel_kind, k);
    for (size_t i = 0; i < nothers && !error; i++) error = fake_stream_join(others[i], first);
    free(others);
    return error;
}

/* FAKE_NCCL_ENQUEUE_HANG=rank:n: the call that starts the n-th operation does not come back by itself. */
static int hangs_at_enqueue(const kernel *k) {
    unsigned long long n;
    if (!injected("FAKE_NCCL_ENQUEUE_HANG", &n)) return 0;
    for (size_t i = 0; i < k->count; i++)
        if (k->operations[i].number == n) return 1;
    return 0;
}

static ncclResult_t check_self_messages(const kernel *k) {
    long balance = 0;
    for (size_t i = 0; i < k->count; i++) {
        const operation *o = &k->operations[i];
        if (is_p2p(o->kind) && o->root == k->comm->rank) balance += o->kind == SEND ? 1 : -1;
    }
    return balance ? fail(ncclInvalidUsage, "a rank sends to or receives from itself outside of one group")
                   : ncclSuccess;
}

static ncclResult_t kernel_launch(const operation *operations, size_t count, ncclComm_t c) {
    kernel *k = must_calloc(sizeof *k + count * sizeof *operations);
    k->comm = c;
    k->owner = kernels_are_ordered() ? NULL : c;
    atomic_fetch_add(&c->held, 1);
    for (size_t i = 0; i < count; i++)
        if (operations[i].comm == c) k->operations[k->count++] = operations[i];
    ncclResult_t code = check_self_messages(k);
    if (!code && atomic_load(&c->aborted)) code = fail(ncclInvalidUsage, "the comm is being aborted");
    if (!code && hangs_at_enqueue(k)) {
        int missed = fake_env("FAKE_NCCL_REVOKE_MISSES", 0) != 0;
        atomic_fetch_add(&c->missed, missed);
        while (!atomic_load(missed ? &c->aborted : &c->stop)) pause_us(1000);
        atomic_fetch_sub(&c->missed, missed);
        code = fail(ncclInternalError, "the call was aborted");
    }
    if (code) {
        kernel_release(k);
        return code;
    }
    int device;
    cudaGetDevice(&device);
    cudaSetDevice(c->device); /* whose default stream is meant by NULL */
    cudaError_t error = kernel_enqueue(k);
    cudaSetDevice(device);
    return error ? fail(ncclUnhandledCudaError, "%s", cudaGetErrorString(error)) : ncclSuccess;
}

typedef struct group_job {
    job base;
    size_t count;
    operation operations[];
} group_job;

static int comm_seen(const operation *operations, size_t before) {
    for (size_t i = 0; i < before; i++)
        if (operations[i].comm == operations[before].comm) return 1;
    return 0;
}

/* Launches one kernel for each comm, in the order in which the group first names them. */
static ncclResult_t group_run(job *self) {
    group_job *g = (group_job *)self;
    ncclResult_t code = ncclSuccess;
    if (!self->comm->config.blocking) pause_us((long)fake_env("FAKE_NCCL_LAUNCH_US", 50));
    for (size_t i = 0; i < g->count; i++) meet_registered(&g->operations[i]);
    code = group_connect(g->operations, g->count);
    for (size_t i = 0; i < g->count && !code; i++)
        if (!comm_seen(g->operations, i)) code = kernel_launch(g->operations, g->count, g->operations[i].comm);
    for (size_t i = 0; i < g->count; i++)
        if (!comm_seen(g->operations, i) && g->operations[i].comm != self->comm)
            job_finish(g->operations[i].comm, code, 1);
    return code;
}

static void group_call(const operation *operations, size_t count, int change) {
    for (size_t i = 0; i < count; i++)
        if (!comm_seen(operations, i)) atomic_fetch_add(&operations[i].comm->callers, change);
}

static ncclResult_t group_launch(const operation *operations, size_t count) {
    group_job *g = must_calloc(sizeof *g + count * sizeof *operations);
    ncclComm_t leader = operations[0].comm;
    g->base.run = group_run;
    g->base.launches = 1;
    g->count = count;
    memcpy(g->operations, operations, count * sizeof *operations);
    for (size_t i = 0; i < count; i++)
        if (!operations[i].comm->config.blocking) leader = operations[i].comm;
    for (size_t i = 0; i < count; i++) {
        ncclComm_t c = operations[i].comm;
        if (c == leader || comm_seen(operations, i)) continue;
        atomic_fetch_add(&c->inside, 1);
        if (!leader->config.blocking) atomic_store(&c->state, ncclInProgress);
    }
    group_call(operations, count, 1);
    ncclResult_t code = job_start(leader, &g->base);
    group_call(operations, count, -1);
    return code;
}

ncclResult_t ncclGroupStart(void) {
    ENTER(0);
    open_group.depth++;
    return ncclSuccess;
}

static ncclResult_t group_end(void) {
    group *g = &open_group;
    if (g->depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd: no group is open");
    if (--g->depth) return ncclSuccess;
    group ended = *g;
    *g = (group){0};
    ncclResult_t code = ended.error;
    if (!code && ended.count) code = group_launch(ended.operations, ended.count);
    for (size_t i = 0; i < ended.nends; i++) comm_say_leaving(ended.ends[i]);
    for (size_t i = 0; i < ended.nends; i++) comm_end(ended.ends[i]);
    free(ended.operations);
    free(ended.ends);
    return code;
}

ncclResult_t ncclGroupEnd(void) {
    ENTER(0);
    fake_count(FAKE_GROUP_ENDS);
    if (open_group.depth == 1)
        for (size_t i = 0; i < open_group.count; i++) check_usable(open_group.operations[i].comm, __func__);
    return group_end();
}

static void group_add(operation o) {
    group *g = &open_group;
    if (g->count == g->room) {
        g->room = g->room ? g->room * 2 : 4;
        g->operations = realloc(g->operations, g->room * sizeof *g->operations);
        if (!g->operations) fake_die("out of host memory");
    }
    g->operations[g->count++] = o;
}

/* ---- Operations: the calls -------------------------------------------------------------------------------------- */

static void trace_operation(const operation *o, int grouped) {
    trace("%llu comm=%llx ranks=%d rank=%d %s count=%zu type=%d op=%d root=%d stream=%p grouped=%d\n", o->number,
          o->comm->serial, o->comm->nranks, o->comm->rank, operation_names[o->kind], o->count, (int)o->type, (int)o->op,
          o->root, (void *)o->stream, grouped);
}

/* Memory that is read and written may only be the same where NCCL says so; elsewhere results would be garbage. */
static ncclResult_t check_overlap(const operation *o) {
    uintptr_t send = (uintptr_t)o->send, recv = (uintptr_t)o->recv;
    size_t block = o->count * type_bytes(o->type), rank = (size_t)o->comm->rank;
    size_t sent = bytes_sent(o), received = bytes_received(o);
    if (!sent || !received || send + sent <= recv || recv + received <= send) return ncclSuccess;
    if (o->kind == ALL_TO_ALL) return fail(ncclInvalidUsage, "ncclAlltoAll: send and recv overlap");
    int gathers = o->kind == ALL_GATHER || o->kind == GATHER,
        scatters = o->kind == REDUCE_SCATTER || o->kind == SCATTER;
    uintptr_t in_place = gathers ? recv + rank * block : scatters ? send + rank * block : recv;
    if ((scatters ? recv : send) != in_place)
        fake_die("%s: send %p and recv %p overlap, and not as in place", operation_names[o->kind], o->send, o->recv);
    return ncclSuccess;
}

static int elsewhere(const void *pointer, ncclComm_t c) {
    int device;
    return fake_memory_type(pointer, &device) == cudaMemoryTypeDevice && device != c->device;
}

static ncclResult_t check_operation(const operation *o) {
    const char *name = operation_names[o->kind];
    ncclComm_t c = o->comm;
    ncclResult_t code = check_ready(c, name);
    if (code) return code;
    if (atomic_load(&c->revoked) || atomic_load(&c->finalized))
        return fail(ncclInvalidUsage, "%s: the comm is revoked or finalized", name);
    if ((int)o->type < 0 || o->type >= ncclNumTypes)
        return fail(ncclInvalidArgument, "%s: type %d", name, (int)o->type);
    if (is_reduction(o->kind) && ((int)o->op < 0 || o->op >= ncclNumOps || !reducers[o->type]))
        return fail(ncclInvalidArgument, "%s: op %d, type %d", name, (int)o->op, (int)o->type);
    if (o->root < 0 || o->root >= c->nranks)
        return fail(ncclInvalidArgument, "%s: rank %d of %d", name, o->root, c->nranks);
    if (o->count == 0) return ncclSuccess;
    if ((blocks_sent(o) && !o->send) || (blocks_received(o) && !o->recv))
        return fail(ncclInvalidArgument, "%s: a buffer is NULL", name);
    if (blocks_sent(o)) fake_memory(o->send, bytes_sent(o), 0, name);
    if (blocks_received(o)) fake_memory(o->recv, bytes_received(o), 0, name);
    if ((blocks_sent(o) && elsewhere(o->send, c)) || (blocks_received(o) && elsewhere(o->recv, c)))
        return fail(ncclInvalidArgument, "%s: memory of another device than the comm's, %d", name, c->device);
    return check_overlap(o);
}

/* Outside of a group, an operation is a group of its own. */
static ncclResult_t operate(operation o, int since) {
    static atomic_ullong numbers;
    CALL_ON(o.comm);
    open_group.depth++;
    fake_count(FAKE_NCCL_OPERATIONS);
    ncclResult_t code = enter(operation_names[o.kind], since);
    if (!code) code = check_operation(&o);
    if (!code) {
        o.number = atomic_fetch_add(&numbers, 1) + 1;
        trace_operation(&o, open_group.depth - 1);
        if (o.count) group_add(o);
    }
    if (code && !open_group.error) open_group.error = code;
    ncclResult_t ended = group_end();
    return code ? code : ended;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return operate((operation){ALL_REDUCE, send, recv, count, type, op, 0, comm, stream, 0}, 0);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return operate((operation){REDUCE, send, recv, count, type, op, root, comm, stream, 0}, 0);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return operate((operation){BROADCAST, send, recv, count, type, ncclSum, root, comm, stream, 0}, 0);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return operate((operation){ALL_GATHER, send, recv, count, type, ncclSum, 0, comm, stream, 0}, 0);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    return operate((operation){REDUCE_SCATTER, send, recv, count, type, op, 0, comm, stream, 0}, 0);
}

ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
    return operate((operation){ALL_TO_ALL, send, recv, count, type, ncclSum, 0, comm, stream, 0}, 22800);
}

ncclResult_t ncclGather(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
    return operate((operation){GATHER, send, recv, count, type, ncclSum, root, comm, stream, 0}, 22800);
}

ncclResult_t ncclScatter(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
    return operate((operation){SCATTER, send, recv, count, type, ncclSum, root, comm, stream, 0}, 22800);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return operate((operation){SEND, send, NULL, count, type, ncclSum, peer, comm, stream, 0}, 0);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return operate((operation){RECV, NULL, recv, count, type, ncclSum, peer, comm, stream, 0}, 0);
}

/* ---- What the library must never call --------------------------------------------------------------------------- */

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
    (void)buffer, (void)count, (void)type, (void)root, (void)comm, (void)stream;
    fake_die("ncclBcast was called");
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
    (void)comm, (void)nranks, (void)id, (void)rank;
    fake_die("ncclCommInitRank was called");
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndevices, const int *devices) {
    (void)comms, (void)ndevices, (void)devices;
    fake_die("ncclCommInitAll was called");
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info) {
    (void)info;
    fake_die("ncclGroupSimulateEnd was called");
}
