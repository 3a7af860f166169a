/* world.h: what the ranks of a comm share, and how they wait for one another; injected faults. Part of fake_nccl.c. */
#ifndef WORLD_H
#define WORLD_H

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

#endif
