/* fake_cudart.c: a stand-in for libcudart.so.13 on the CPU, for tests. README.md says what it models.
 *
 * Device memory is a range of addresses the host cannot touch; the stand-in works through an alias of it. Every stream
 * is a thread that runs tasks in order, later than they are issued. One lock guards streams, events and captures. */
#define _GNU_SOURCE
#include "fake.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- Environment, complaints, counts ---------------------------------------------------------------------------- */

long long fake_env(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 0) : otherwise;
}

void fake_die(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "fake NCCL/CUDA, RANK %s, pid %d: %s\n", getenv("RANK") ? getenv("RANK") : "-", (int)getpid(),
            text);
    abort();
}

static atomic_ullong counts[FAKE_COUNTERS];
void fake_count(enum fake_counter counter) { atomic_fetch_add(&counts[counter], 1); }
void fake_counts(unsigned long long out[8]) {
    for (int i = 0; i < FAKE_COUNTERS; i++) out[i] = atomic_load(&counts[i]);
}

static void *must_calloc(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) fake_die("out of host memory (%zu bytes)", bytes);
    return memory;
}

static void *must_realloc(void *memory, size_t bytes) {
    memory = realloc(memory, bytes);
    if (!memory) fake_die("out of host memory (%zu bytes)", bytes);
    return memory;
}

/* ---- Errors ----------------------------------------------------------------------------------------------------- */

#define ERRORS(X)                                                                                                     \
    X(cudaSuccess, "no error")                                                                                        \
    X(cudaErrorInvalidValue, "invalid argument")                                                                      \
    X(cudaErrorMemoryAllocation, "out of memory")                                                                     \
    X(cudaErrorInitializationError, "initialization error")                                                           \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                                \
    X(cudaErrorInvalidPitchValue, "invalid pitch argument")                                                           \
    X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")                    \
    X(cudaErrorInvalidDeviceFunction, "invalid device function")                                                      \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                                        \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                                               \
    X(cudaErrorInvalidKernelImage, "device kernel image is invalid")                                                  \
    X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device")                    \
    X(cudaErrorInvalidPtx, "a PTX JIT compilation failed")                                                            \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                                      \
    X(cudaErrorIllegalState, "the operation cannot be performed in the present state")                                \
    X(cudaErrorSymbolNotFound, "named symbol not found")                                                              \
    X(cudaErrorNotReady, "device not ready")                                                                          \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                                            \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                                                           \
    X(cudaErrorNotSupported, "operation not supported")                                                               \
    X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")                          \
    X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")                   \
    X(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences")                 \
    X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")                        \
    X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                                           \
    X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")                     \
    X(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream") \
    X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream")              \
    X(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread")  \
    X(cudaErrorUnknown, "unknown error")

static __thread cudaError_t last_error;

static cudaError_t result(cudaError_t error) {
    if (error) last_error = error;
    return error;
}

const char *cudaGetErrorName(cudaError_t error) {
#define NAME(code, text) \
    if (error == code) return #code;
    ERRORS(NAME)
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
#define TEXT(code, text) \
    if (error == code) return text;
    ERRORS(TEXT)
    return "unrecognized error code";
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }
cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

/* ---- Devices ---------------------------------------------------------------------------------------------------- */

static __thread int current_device;

enum { MAX_DEVICES = 64 };

static int device_count(void) {
    long long count = fake_env("FAKE_CUDA_DEVICES", 8);
    return count < MAX_DEVICES ? (int)count : MAX_DEVICES;
}
static int no_driver(void) { return device_count() <= 0; }
static int device_missing(int device) { return device < 0 || device >= device_count(); }

cudaError_t cudaGetDeviceCount(int *count) {
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    *count = device_count();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    if (device_missing(device)) return result(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device) {
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    if (device_missing(device)) return result(cudaErrorInvalidDevice);
    if (!text || room < 13) return result(cudaErrorInvalidValue);
    snprintf(text, (size_t)room, "0000:%02X:00.0", (unsigned)(0x10 + device) & 0xff);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    if (device_missing(device)) return result(cudaErrorInvalidDevice);
    *value = attribute == cudaDevAttrMultiProcessorCount ? 8 : attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = (int)fake_env("FAKE_CUDA_VERSION", 13000);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = no_driver() ? 0 : (int)fake_env("FAKE_CUDA_VERSION", 13000);
    return cudaSuccess;
}

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

enum { ALIGNMENT = 256, GUARD_BYTES = 256, GUARD_VALUE = 0xC7, GARBAGE_VALUE = 0xA5 };

typedef struct allocation {
    uintptr_t address;
    size_t bytes, granularity;
    int device, registered;
} allocation;

typedef struct allocation_table { /* sorted by address */
    allocation *items;
    size_t count, room;
} allocation_table;

static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    allocation_table device, pinned;
    uintptr_t base, cursor; /* addresses handed out: nothing is mapped there */
    char *alias;            /* the same bytes, for the stand-in */
    size_t arena_bytes, limit_bytes, used_bytes[MAX_DEVICES];
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void memory_open(void) {
    for (memory.arena_bytes = (size_t)64 << 30; memory.arena_bytes >= (size_t)1 << 28; memory.arena_bytes /= 2) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *face = mmap(NULL, memory.arena_bytes, PROT_NONE, flags, -1, 0);
        void *alias = mmap(NULL, memory.arena_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (face != MAP_FAILED && alias != MAP_FAILED) {
            madvise(alias, memory.arena_bytes, MADV_DONTDUMP);
            memory.base = memory.cursor = (uintptr_t)face;
            memory.alias = alias;
            memory.limit_bytes = (size_t)fake_env("FAKE_CUDA_MEMORY", (long long)(memory.arena_bytes / 2));
            return;
        }
        if (face != MAP_FAILED) munmap(face, memory.arena_bytes);
        if (alias != MAP_FAILED) munmap(alias, memory.arena_bytes);
    }
    fake_die("no address space for device memory");
}

static char *alias_of(uintptr_t address) { return memory.alias + (address - memory.base); }
static int in_arena(uintptr_t address) { return memory.base && address - memory.base < memory.arena_bytes; }

/* The index of the first allocation above the address. */
static size_t table_above(const allocation_table *table, uintptr_t address) {
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table->items[middle].address > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static allocation *table_find(const allocation_table *table, uintptr_t address) {
    size_t above = table_above(table, address);
    if (above == 0) return NULL;
    allocation *found = &table->items[above - 1];
    return address - found->address < found->bytes ? found : NULL;
}

static void table_insert(allocation_table *table, allocation item) {
    size_t at = table_above(table, item.address);
    if (table->count == table->room) {
        table->room = table->room ? table->room * 2 : 64;
        table->items = must_realloc(table->items, table->room * sizeof *table->items);
    }
    memmove(table->items + at + 1, table->items + at, (table->count - at) * sizeof *table->items);
    table->items[at] = item;
    table->count++;
}

static void table_remove(allocation_table *table, allocation *item) {
    size_t at = (size_t)(item - table->items);
    memmove(item, item + 1, (table->count - at - 1) * sizeof *item);
    table->count--;
}

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
static size_t room_of(size_t bytes) { return round_up(bytes + GUARD_BYTES, ALIGNMENT); }

/* A free place at or above the address, or 0. Searching on from the last one leaves freed addresses unused for long. */
static uintptr_t arena_place(uintptr_t address, size_t room, size_t alignment) {
    size_t i = table_above(&memory.device, address);
    if (i > 0) {
        allocation *below = &memory.device.items[i - 1];
        uintptr_t end = below->address + room_of(below->bytes);
        if (end > address) address = end;
    }
    address = round_up(address, alignment);
    for (; i < memory.device.count && memory.device.items[i].address < address + room; i++)
        address = round_up(memory.device.items[i].address + room_of(memory.device.items[i].bytes), alignment);
    return address + room <= memory.base + memory.arena_bytes ? address : 0;
}

static cudaError_t device_allocate(void **pointer, size_t bytes, size_t granularity, int device) {
    if (no_driver()) return cudaErrorInsufficientDriver;
    if (!pointer) return cudaErrorInvalidValue;
    *pointer = NULL;
    if (bytes == 0) return cudaSuccess;
    pthread_once(&memory.once, memory_open);
    pthread_mutex_lock(&memory.lock);
    uintptr_t address = 0;
    size_t used = round_up(bytes, granularity), alignment = granularity > ALIGNMENT ? granularity : ALIGNMENT;
    if (used <= memory.limit_bytes && memory.used_bytes[device] <= memory.limit_bytes - used) {
        address = arena_place(memory.cursor, room_of(bytes), alignment);
        if (!address) address = arena_place(memory.base, room_of(bytes), alignment);
    }
    if (address) {
        memory.cursor = address + room_of(bytes);
        memory.used_bytes[device] += used;
        table_insert(&memory.device, (allocation){address, bytes, granularity, device, 0});
        size_t garbage = bytes < (1 << 20) ? bytes : 1 << 20;
        memset(alias_of(address), GARBAGE_VALUE, garbage);
        memset(alias_of(address) + bytes, GUARD_VALUE, GUARD_BYTES);
        *pointer = (void *)address;
    }
    pthread_mutex_unlock(&memory.lock);
    return address ? cudaSuccess : cudaErrorMemoryAllocation;
}

static void device_release(void *pointer, const char *who) {
    uintptr_t address = (uintptr_t)pointer;
    pthread_mutex_lock(&memory.lock);
    allocation *found = table_find(&memory.device, address);
    if (!found || found->address != address) fake_die("%s: %p is not the start of a device allocation", who, pointer);
    if (found->registered > 0 && !fake_env("FAKE_NCCL_FREE_REGISTERED", 0))
        fake_die("%s: %p is still registered with a comm", who, pointer);
    size_t bytes = found->bytes;
    const unsigned char *guard = (const unsigned char *)alias_of(address) + bytes;
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (guard[i] != GUARD_VALUE)
            fake_die("%s: something wrote %zu bytes past the %zu at %p", who, i, bytes, pointer);
    const uintptr_t page = 4096;
    uintptr_t first = (address + page - 1) / page * page, last = (address + bytes) / page * page;
    if (last > first) madvise(alias_of(first), last - first, MADV_DONTNEED);
    memory.used_bytes[found->device] -= round_up(bytes, found->granularity);
    table_remove(&memory.device, found);
    pthread_mutex_unlock(&memory.lock);
}

enum cudaMemoryType fake_memory_type(const void *pointer, int *device) {
    enum cudaMemoryType type = cudaMemoryTypeUnregistered;
    pthread_mutex_lock(&memory.lock);
    allocation *found = table_find(&memory.device, (uintptr_t)pointer);
    if (found)
        type = cudaMemoryTypeDevice;
    else if ((found = table_find(&memory.pinned, (uintptr_t)pointer)))
        type = cudaMemoryTypeHost;
    if (device) *device = found ? found->device : -1;
    pthread_mutex_unlock(&memory.lock);
    return type;
}

cudaError_t fake_allocate(void **pointer, size_t bytes, size_t granularity) {
    return device_allocate(pointer, bytes, granularity, current_device);
}

int fake_is_granular(const void *pointer) {
    pthread_mutex_lock(&memory.lock);
    allocation *found = table_find(&memory.device, (uintptr_t)pointer);
    int granular = found && found->granularity > 1;
    pthread_mutex_unlock(&memory.lock);
    return granular;
}

void fake_register(const void *pointer, int change) {
    pthread_mutex_lock(&memory.lock);
    allocation *found = table_find(&memory.device, (uintptr_t)pointer);
    if (found) found->registered += change; /* it may be freed where FAKE_NCCL_FREE_REGISTERED lets it */
    pthread_mutex_unlock(&memory.lock);
}

void *fake_memory(const void *pointer, size_t bytes, int pageable, const char *who) {
    uintptr_t address = (uintptr_t)pointer;
    void *view = (void *)address;
    pthread_mutex_lock(&memory.lock);
    allocation *found = table_find(&memory.device, address);
    if (found)
        view = alias_of(address);
    else if (in_arena(address))
        fake_die("%s: device address %p is not allocated (freed?)", who, pointer);
    else
        found = table_find(&memory.pinned, address);
    if (found && bytes > found->bytes - (address - found->address))
        fake_die("%s: %zu bytes at %p leave the allocation of %zu at %p", who, bytes, pointer, found->bytes,
                 (void *)found->address);
    if (!found && !pageable) fake_die("%s: %p is neither device nor pinned memory", who, pointer);
    pthread_mutex_unlock(&memory.lock);
    return view;
}

/* ---- Streams ---------------------------------------------------------------------------------------------------- */

enum { MAX_CAPTURED_STREAMS = 16 };

typedef struct task {
    const fake_task_kind *kind;
    void *data;
    atomic_int holders;
} task;

/* One run of a task, in the queue of a stream; exclusive ones also in the queue for the device. */
typedef struct entry {
    task *task;
    cudaStream_t stream;
    struct entry *next, *next_exclusive;
} entry;

typedef struct capture_view { /* the node of each captured stream up to which work is known to come before */
    uint32_t node[MAX_CAPTURED_STREAMS];
} capture_view;

struct CUstream_st {
    struct CUstream_st *next;
    unsigned flags;
    int id, device, is_default, started, destroyed;
    pthread_cond_t work;
    entry *first, *last;
    uint64_t issued, completed, default_seen;
    uint64_t random;
    struct CUgraph_st *capture;
    int captured_as;
    capture_view view;
};

struct CUevent_st {
    unsigned flags;
    int device;
    atomic_int holders;
    cudaStream_t stream; /* NULL: never recorded, or in a capture */
    uint64_t position;
    double milliseconds;
    uint64_t capture; /* serial number of the capture it was last recorded in, or 0 */
    capture_view view;
};

struct CUgraph_st {
    struct CUgraph_st *next; /* of the captures under way */
    uint64_t serial;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    int invalid;
    task **tasks;
    uint32_t count, room;
    cudaStream_t streams[MAX_CAPTURED_STREAMS]; /* the first is where it began */
    uint32_t last_node[MAX_CAPTURED_STREAMS];
    int nstreams;
};

struct CUgraphExec_st {
    task **tasks;
    uint32_t count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* a task completed, or see fake_wake */
static struct CUstream_st default_streams[MAX_DEVICES];   /* in use from the first time that one is named */
static struct CUstream_st *streams;
static struct CUstream_st *closed_streams;   /* kept, so that a use of one can be told */
static entry *exclusive_first;               /* in order of issue */
static entry *exclusive_chosen[MAX_DEVICES]; /* where kernels start in any order: the one that holds the device */
static cudaGraph_t captures;
static __thread enum cudaStreamCaptureMode thread_capture_mode;

static task *task_open(const fake_task_kind *kind, void *data) {
    task *t = must_calloc(sizeof *t);
    *t = (task){.kind = kind, .data = data, .holders = 1};
    return t;
}

static void task_release(task *t) {
    if (atomic_fetch_sub(&t->holders, 1) != 1) return;
    if (t->kind->release) t->kind->release(t->data);
    free(t);
}

/* NULL is the default stream of the device that is current in the calling thread. */
static cudaStream_t stream_of(cudaStream_t handle) {
    if (!handle) {
        cudaStream_t s = &default_streams[current_device];
        if (s->is_default) return s;
        pthread_cond_init(&s->work, NULL);
        s->device = current_device;
        s->id = -current_device;
        s->is_default = 1;
        s->next = streams;
        return streams = s;
    }
    if (handle->destroyed) fake_die("stream %d is used after cudaStreamDestroy", handle->id);
    return handle;
}

static int is_blocking(cudaStream_t s) { return !s->is_default && !(s->flags & cudaStreamNonBlocking); }
/* Whether the default stream `s` waits for `other`, and `other` for it. */
static int default_orders(cudaStream_t s, cudaStream_t other) {
    return s->is_default && is_blocking(other) && other->device == s->device;
}
static int is_busy(cudaStream_t s) { return s->completed < s->issued; }

void fake_wake(void) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void stream_wait_locked(cudaStream_t s, uint64_t position) {
    while (s->completed < position) pthread_cond_wait(&changed, &lock);
}

static int is_stopped(const entry *e) { return e->task->kind->stopped(e->task->data); }
static const void *owner_of(const entry *e) { return e->task->kind->owner(e->task->data); }

/* A kernel that holds the whole device starts when none issued before it is left that it must follow, but for those that
 * were stopped. One that was stopped itself waits no less. */
static int exclusive_follows(const entry *e) {
    for (const entry *before = exclusive_first; before != e; before = before->next_exclusive)
        if (before->stream->device == e->stream->device && owner_of(before) == owner_of(e) && !is_stopped(before))
            return 1;
    return 0;
}

static uint64_t random_next(uint64_t *state, uint64_t stream) {
    if (!*state) {
        uint64_t seed = (uint64_t)fake_env("FAKE_CUDA_SEED", 1) * 1000003 + (uint64_t)fake_env("RANK", 0);
        *state = (seed * 1000003 + stream) * 0x9E3779B97F4A7C15u | 1;
    }
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state * 0x2545F4914F6CDD1Du >> 32;
}

/* One of the kernels that are the first of their streams and follow none, but for `stopped`. */
static entry *exclusive_choose(int device, const entry *stopped) {
    static uint64_t random;
    entry *chosen = NULL;
    uint64_t candidates = 0;
    for (entry *e = exclusive_first; e; e = e->next_exclusive)
        if (e != stopped && e->stream->device == device && e->stream->first == e && !exclusive_follows(e) &&
            random_next(&random, 1 << 20) % ++candidates == 0)
            chosen = e;
    return chosen;
}

static int exclusive_may_start(const entry *e) {
    entry **chosen = &exclusive_chosen[e->stream->device];
    if (!owner_of(e) || exclusive_follows(e)) return !exclusive_follows(e);
    if (*chosen != e && (!*chosen || is_stopped(*chosen))) {
        *chosen = exclusive_choose(e->stream->device, *chosen);
        pthread_cond_broadcast(&changed);
    }
    return *chosen == e;
}

static void exclusive_take(entry *e) {
    while (!exclusive_may_start(e)) pthread_cond_wait(&changed, &lock);
}

static void exclusive_give(entry *e) {
    entry **link = &exclusive_first;
    while (*link != e) link = &(*link)->next_exclusive;
    *link = e->next_exclusive;
    if (exclusive_chosen[e->stream->device] == e) exclusive_chosen[e->stream->device] = NULL;
}

static void stream_delay(cudaStream_t s) {
    static long long longest = -1;
    long long limit = __atomic_load_n(&longest, __ATOMIC_RELAXED);
    if (limit < 0) __atomic_store_n(&longest, limit = fake_env("FAKE_CUDA_DELAY_US", 0), __ATOMIC_RELAXED);
    if (limit <= 0) return;
    usleep((useconds_t)(random_next(&s->random, (uint64_t)s->id) % (uint64_t)(limit + 1)));
}

static void stream_unlink(cudaStream_t s) {
    cudaStream_t *link = &streams;
    while (*link != s) link = &(*link)->next;
    *link = s->next;
    s->next = closed_streams;
    closed_streams = s;
}

static void *stream_worker(void *argument) {
    cudaStream_t s = argument;
    current_device = s->device;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!s->first && !s->destroyed) pthread_cond_wait(&s->work, &lock);
        entry *e = s->first;
        if (!e) break;
        pthread_mutex_unlock(&lock);
        stream_delay(s);
        pthread_mutex_lock(&lock);
        if (e->task->kind->stopped) exclusive_take(e);
        pthread_mutex_unlock(&lock);
        e->task->kind->run(e->task->data);
        pthread_mutex_lock(&lock);
        if (e->task->kind->stopped) exclusive_give(e);
        s->first = e->next;
        s->completed++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        task_release(e->task);
        free(e);
        pthread_mutex_lock(&lock);
    }
    stream_unlink(s);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void stream_push(cudaStream_t s, task *t) {
    entry *e = must_calloc(sizeof *e);
    e->task = t;
    e->stream = s;
    if (s->first)
        s->last->next = e;
    else
        s->first = e;
    s->last = e;
    s->issued++;
    if (t->kind->stopped) {
        entry **link = &exclusive_first;
        while (*link) link = &(*link)->next_exclusive;
        *link = e;
    }
    if (t->kind->issued) t->kind->issued(t->data);
    if (!s->started) {
        pthread_t thread;
        s->started = 1;
        if (pthread_create(&thread, NULL, stream_worker, s)) fake_die("no thread for a stream");
        pthread_detach(thread);
    }
    pthread_cond_signal(&s->work);
}

typedef struct wait_data {
    cudaStream_t stream;
    uint64_t position;
} wait_data;

static void wait_run(void *data) {
    wait_data *wait = data;
    pthread_mutex_lock(&lock);
    stream_wait_locked(wait->stream, wait->position);
    pthread_mutex_unlock(&lock);
}

static const fake_task_kind wait_kind = {NULL, wait_run, free, NULL, NULL};

static void push_wait(cudaStream_t s, cudaStream_t on, uint64_t position) {
    if (on == s || on->completed >= position) return;
    wait_data *wait = must_calloc(sizeof *wait);
    *wait = (wait_data){on, position};
    stream_push(s, task_open(&wait_kind, wait));
}

/* The default stream waits for the blocking ones, and these for it. */
static void push_default_order(cudaStream_t s) {
    cudaStream_t its_default = &default_streams[s->device];
    for (cudaStream_t other = streams; s->is_default && other; other = other->next)
        if (default_orders(s, other)) push_wait(s, other, other->issued);
    if (is_blocking(s) && s->default_seen < its_default->issued) {
        push_wait(s, its_default, its_default->issued);
        s->default_seen = its_default->issued;
    }
}

/* ---- Captures --------------------------------------------------------------------------------------------------- */

static void capture_append(cudaStream_t s, task *t) {
    cudaGraph_t graph = s->capture;
    if (graph->count == graph->room) {
        graph->room = graph->room ? graph->room * 2 : 16;
        graph->tasks = must_realloc(graph->tasks, graph->room * sizeof *graph->tasks);
    }
    graph->tasks[graph->count++] = t;
    graph->last_node[s->captured_as] = s->view.node[s->captured_as] = graph->count;
}

static cudaError_t capture_invalidate(cudaGraph_t graph, cudaError_t error) {
    graph->invalid = 1;
    return error;
}

static cudaError_t capture_join(cudaStream_t s, cudaGraph_t graph, const capture_view *view) {
    if (s->is_default) return capture_invalidate(graph, cudaErrorStreamCaptureImplicit);
    if (graph->nstreams == MAX_CAPTURED_STREAMS) fake_die("a capture with more than %d streams", MAX_CAPTURED_STREAMS);
    s->capture = graph;
    s->captured_as = graph->nstreams;
    s->view = *view;
    graph->streams[graph->nstreams++] = s;
    return cudaSuccess;
}

static void view_merge(capture_view *into, const capture_view *from) {
    for (int i = 0; i < MAX_CAPTURED_STREAMS; i++)
        if (into->node[i] < from->node[i]) into->node[i] = from->node[i];
}

static cudaGraph_t capture_find(uint64_t serial) {
    cudaGraph_t graph = captures;
    while (graph && graph->serial != serial) graph = graph->next;
    return graph;
}

/* Calls that could wait for captured work are refused while a capture is under way, as the thread's mode says. */
static cudaError_t refuse_in_capture(void) {
    cudaError_t error = cudaSuccess;
    for (cudaGraph_t graph = captures; graph; graph = graph->next) {
        int own = graph->mode != cudaStreamCaptureModeRelaxed && pthread_equal(graph->thread, pthread_self());
        int all = graph->mode == cudaStreamCaptureModeGlobal && thread_capture_mode == cudaStreamCaptureModeGlobal;
        if (thread_capture_mode != cudaStreamCaptureModeRelaxed && (own || all))
            error = capture_invalidate(graph, cudaErrorStreamCaptureUnsupported);
    }
    return error;
}

static cudaError_t refuse_in_capture_unlocked(void) {
    pthread_mutex_lock(&lock);
    cudaError_t error = refuse_in_capture();
    pthread_mutex_unlock(&lock);
    return error;
}

/* Work on the default stream would wait for the blocking streams: not while one of them is captured. */
static cudaError_t refuse_default_stream(cudaStream_t s) {
    cudaError_t error = cudaSuccess;
    for (cudaStream_t other = streams; s->is_default && other; other = other->next)
        if (default_orders(s, other) && other->capture)
            error = capture_invalidate(other->capture, cudaErrorStreamCaptureImplicit);
    return error;
}

static cudaError_t enqueue_locked(cudaStream_t s, task *t) {
    if (s->capture && s->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (s->capture) {
        capture_append(s, t);
        return cudaSuccess;
    }
    cudaError_t error = refuse_default_stream(s);
    if (error) return error;
    push_default_order(s);
    stream_push(s, t);
    return cudaSuccess;
}

cudaError_t fake_enqueue(cudaStream_t stream, const fake_task_kind *kind, void *data) {
    task *t = task_open(kind, data);
    pthread_mutex_lock(&lock);
    cudaError_t error = enqueue_locked(stream_of(stream), t);
    pthread_mutex_unlock(&lock);
    if (error) task_release(t);
    return error;
}

/* Waits until all that was issued to the stream so far is done. */
static void stream_drain(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    cudaStream_t s = stream_of(stream);
    stream_wait_locked(s, s->issued);
    pthread_mutex_unlock(&lock);
}

enum { ALL_DEVICES = -1 };

static void device_drain(int device) {
    pthread_mutex_lock(&lock);
    for (cudaStream_t s = streams; s;) {
        uint64_t position = s->issued;
        if (s->completed >= position || (device != ALL_DEVICES && s->device != device))
            s = s->next;
        else
            stream_wait_locked(s, position), s = streams; /* the list may have changed meanwhile */
    }
    pthread_mutex_unlock(&lock);
}

static cudaStream_t stream_open(unsigned flags) {
    static int ids;
    cudaStream_t s = must_calloc(sizeof *s);
    pthread_cond_init(&s->work, NULL);
    s->flags = flags;
    s->device = current_device;
    pthread_mutex_lock(&lock);
    s->id = ++ids;
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    return s;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)priority;
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    if (!stream || flags > cudaStreamNonBlocking) return result(cudaErrorInvalidValue);
    *stream = stream_open(flags);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!stream) return result(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    stream_of(stream);
    cudaError_t error = stream->capture ? capture_invalidate(stream->capture, cudaErrorStreamCaptureUnsupported) : 0;
    if (!error) {
        stream->destroyed = 1;
        if (stream->started)
            pthread_cond_signal(&stream->work);
        else
            stream_unlink(stream);
    }
    pthread_mutex_unlock(&lock);
    return result(error);
}

/* Whether the host may ask about or wait for the stream now. */
static cudaError_t refuse_stream_wait(cudaStream_t s) {
    if (s->capture) return capture_invalidate(s->capture, cudaErrorStreamCaptureUnsupported);
    cudaError_t error = refuse_in_capture();
    return error ? error : refuse_default_stream(s);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    cudaStream_t s = stream_of(stream);
    cudaError_t error = refuse_stream_wait(s);
    if (!error && is_busy(s)) error = cudaErrorNotReady;
    for (cudaStream_t other = streams; !error && s->is_default && other; other = other->next)
        if (default_orders(s, other) && is_busy(other)) error = cudaErrorNotReady;
    pthread_mutex_unlock(&lock);
    return result(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    cudaStream_t s = stream_of(stream);
    cudaError_t error = refuse_stream_wait(s);
    if (!error) {
        push_default_order(s);
        stream_wait_locked(s, s->issued);
    }
    pthread_mutex_unlock(&lock);
    return result(error);
}

cudaError_t cudaDeviceSynchronize(void) {
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    cudaError_t error = refuse_in_capture_unlocked();
    if (!error) device_drain(current_device);
    return result(error);
}

int fake_stream_device(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    int device = stream_of(stream)->device;
    pthread_mutex_unlock(&lock);
    return device;
}

cudaError_t fake_stream_join(cudaStream_t after, cudaStream_t before) {
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&lock);
    after = stream_of(after), before = stream_of(before);
    if (before->capture && !after->capture)
        error = capture_join(after, before->capture, &before->view);
    else if (before->capture && after->capture == before->capture)
        view_merge(&after->view, &before->view);
    else if (before->capture)
        error = capture_invalidate(before->capture, cudaErrorStreamCaptureMerge);
    else if (after->capture)
        error = capture_invalidate(after->capture, cudaErrorStreamCaptureIsolation);
    else
        push_wait(after, before, before->issued);
    pthread_mutex_unlock(&lock);
    return error;
}

/* ---- Memory: the calls ------------------------------------------------------------------------------------------ */

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    fake_count(FAKE_MALLOCS);
    cudaError_t error = refuse_in_capture_unlocked();
    return result(error ? error : device_allocate(pointer, bytes, 1, current_device));
}

cudaError_t cudaFree(void *pointer) {
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    cudaError_t error = refuse_in_capture_unlocked();
    if (error || !pointer) return result(error);
    int device;
    fake_memory_type(pointer, &device);
    device_drain(device);
    device_release(pointer, "cudaFree");
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    cudaError_t error = refuse_in_capture_unlocked();
    if (error) return result(error);
    if (!pointer) return result(cudaErrorInvalidValue);
    *pointer = NULL;
    if (bytes == 0) return cudaSuccess;
    if (posix_memalign(pointer, 4096, bytes)) return result(cudaErrorMemoryAllocation);
    memset(*pointer, GARBAGE_VALUE, bytes < 4096 ? bytes : 4096);
    pthread_mutex_lock(&memory.lock);
    table_insert(&memory.pinned, (allocation){(uintptr_t)*pointer, bytes, 1, current_device, 0});
    pthread_mutex_unlock(&memory.lock);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *pointer) {
    cudaError_t error = refuse_in_capture_unlocked();
    if (error || !pointer) return result(error);
    device_drain(ALL_DEVICES);
    pthread_mutex_lock(&memory.lock);
    allocation *found = table_find(&memory.pinned, (uintptr_t)pointer);
    if (found && found->address != (uintptr_t)pointer) found = NULL;
    if (found) table_remove(&memory.pinned, found);
    pthread_mutex_unlock(&memory.lock);
    if (!found) return result(cudaErrorInvalidValue);
    free(pointer);
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    fake_count(FAKE_MALLOCS);
    pthread_mutex_lock(&lock);
    int capturing = stream_of(stream)->capture != NULL, device = stream_of(stream)->device;
    pthread_mutex_unlock(&lock);
    return result(capturing ? cudaErrorNotSupported : device_allocate(pointer, bytes, 1, device));
}

static void free_run(void *pointer) { device_release(pointer, "cudaFreeAsync"); }
static const fake_task_kind free_kind = {NULL, free_run, NULL, NULL, NULL};

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    int capturing = stream_of(stream)->capture != NULL;
    pthread_mutex_unlock(&lock);
    if (capturing) return result(cudaErrorNotSupported);
    return pointer ? result(fake_enqueue(stream, &free_kind, pointer)) : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    pthread_once(&memory.once, memory_open);
    pthread_mutex_lock(&memory.lock);
    *total_bytes = memory.limit_bytes;
    *free_bytes = memory.limit_bytes - memory.used_bytes[current_device];
    pthread_mutex_unlock(&memory.lock);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = fake_memory_type(pointer, &attributes->device);
    attributes->hostPointer = attributes->type == cudaMemoryTypeDevice ? NULL : (void *)(uintptr_t)pointer;
    attributes->devicePointer = attributes->type == cudaMemoryTypeUnregistered ? NULL : (void *)(uintptr_t)pointer;
    if (attributes->type == cudaMemoryTypeUnregistered) attributes->device = -2; /* what cudaInvalidDeviceId is */
    return cudaSuccess;
}

typedef struct copy { /* a fill where src is NULL */
    void *dst;
    const void *src;
    size_t dst_pitch, src_pitch, width, height;
    int value;
    unsigned char staged[]; /* pageable memory to be sent, as it was at the call */
} copy;

static size_t extent(size_t pitch, size_t width, size_t height) { return height ? pitch * (height - 1) + width : 0; }

static void copy_rows(unsigned char *dst, size_t dst_pitch, const unsigned char *src, size_t src_pitch, size_t width,
                      size_t height) {
    if (dst_pitch == width && src_pitch == width) width *= height, height = 1;
    for (size_t row = 0; row < height; row++) memmove(dst + row * dst_pitch, src + row * src_pitch, width);
}

static void copy_run(void *data) {
    copy *c = data;
    unsigned char *dst = fake_memory(c->dst, extent(c->dst_pitch, c->width, c->height), 1, "copy or fill");
    if (c->src) {
        const unsigned char *src = fake_memory(c->src, extent(c->src_pitch, c->width, c->height), 1, "copy");
        copy_rows(dst, c->dst_pitch, src, c->src_pitch, c->width, c->height);
    } else {
        for (size_t row = 0; row < c->height; row++) memset(dst + row * c->dst_pitch, c->value, c->width);
    }
}

static const fake_task_kind copy_kind = {NULL, copy_run, free, NULL, NULL};

static int kind_agrees(enum cudaMemcpyKind kind, enum cudaMemoryType dst, enum cudaMemoryType src) {
    int to_device = dst == cudaMemoryTypeDevice, from_device = src == cudaMemoryTypeDevice;
    if (kind == cudaMemcpyDefault) return 1;
    return to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
           from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
}

static int stream_capturing(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    int capturing = stream_of(stream)->capture != NULL;
    pthread_mutex_unlock(&lock);
    return capturing;
}

/* Pageable memory is read at the call, and written before it returns; pinned and device memory when the stream is there. */
static cudaError_t copy_start(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream, int wait) {
    if (no_driver()) return cudaErrorInsufficientDriver;
    if (width == 0 || height == 0) return cudaSuccess;
    if (!dst || !src) return cudaErrorInvalidValue;
    if (width > dst_pitch || width > src_pitch) return cudaErrorInvalidPitchValue;
    fake_memory(dst, extent(dst_pitch, width, height), 1, "cudaMemcpy to");
    fake_memory(src, extent(src_pitch, width, height), 1, "cudaMemcpy from");
    enum cudaMemoryType dst_type = fake_memory_type(dst, NULL), src_type = fake_memory_type(src, NULL);
    if (!kind_agrees(kind, dst_type, src_type)) return cudaErrorInvalidValue;
    int capturing = stream_capturing(stream);
    int stage = src_type == cudaMemoryTypeUnregistered && !capturing;
    copy *c = must_calloc(sizeof *c + (stage ? width * height : 0));
    *c = (copy){dst, src, dst_pitch, src_pitch, width, height, 0};
    if (stage) {
        copy_rows(c->staged, width, src, src_pitch, width, height);
        c->src = c->staged;
        c->src_pitch = width;
    }
    cudaError_t error = fake_enqueue(stream, &copy_kind, c);
    if (!error && !capturing && (wait || dst_type == cudaMemoryTypeUnregistered)) stream_drain(stream);
    return error;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind) {
    cudaError_t error = refuse_in_capture_unlocked();
    return result(error ? error : copy_start(dst, bytes, src, bytes, bytes, 1, kind, NULL, 1));
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    fake_count(FAKE_COPIES);
    return result(copy_start(dst, bytes, src, bytes, bytes, 1, kind, stream, 0));
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    fake_count(FAKE_COPIES);
    return result(copy_start(dst, dst_pitch, src, src_pitch, width, height, kind, stream, 0));
}

static cudaError_t fill_start(void *dst, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    if (no_driver()) return cudaErrorInsufficientDriver;
    if (width == 0 || height == 0) return cudaSuccess;
    if (width > pitch) return cudaErrorInvalidPitchValue;
    fake_memory(dst, extent(pitch, width, height), 1, "cudaMemset");
    if (fake_memory_type(dst, NULL) == cudaMemoryTypeUnregistered) return cudaErrorInvalidValue;
    copy *c = must_calloc(sizeof *c);
    *c = (copy){dst, NULL, pitch, 0, width, height, value};
    return fake_enqueue(stream, &copy_kind, c);
}

cudaError_t cudaMemset(void *pointer, int value, size_t bytes) {
    cudaError_t error = refuse_in_capture_unlocked();
    return result(error ? error : fill_start(pointer, bytes, value, bytes, 1, NULL));
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream) {
    return result(fill_start(pointer, bytes, value, bytes, 1, stream));
}

cudaError_t cudaMemset2DAsync(void *pointer, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
    return result(fill_start(pointer, pitch, value, width, height, stream));
}

/* ---- Events ----------------------------------------------------------------------------------------------------- */

static void event_release(void *data) {
    cudaEvent_t event = data;
    if (atomic_fetch_sub(&event->holders, 1) == 1) free(event);
}

static void event_run(void *data) {
    cudaEvent_t event = data;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&lock);
    event->milliseconds = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
    pthread_mutex_unlock(&lock);
}

static const fake_task_kind event_kind = {NULL, event_run, event_release, NULL, NULL};

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    if (!event) return result(cudaErrorInvalidValue);
    *event = must_calloc(sizeof **event);
    (*event)->flags = flags;
    (*event)->device = current_device;
    (*event)->holders = 1;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (!event) return result(cudaErrorInvalidResourceHandle);
    event_release(event);
    return cudaSuccess;
}

static cudaError_t event_record_locked(cudaEvent_t event, cudaStream_t s) {
    if (event->device != s->device) return cudaErrorInvalidResourceHandle;
    if (s->capture && s->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (s->capture) {
        event->stream = NULL;
        event->capture = s->capture->serial;
        event->view = s->view;
        return cudaSuccess;
    }
    task *t = task_open(&event_kind, event);
    atomic_fetch_add(&event->holders, 1);
    cudaError_t error = enqueue_locked(s, t);
    if (error) {
        task_release(t);
        return error;
    }
    event->capture = 0;
    event->stream = s;
    event->position = s->issued;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    fake_count(FAKE_EVENT_RECORDS);
    if (!event) return result(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    cudaError_t error = event_record_locked(event, stream_of(stream));
    pthread_mutex_unlock(&lock);
    return result(error);
}

static cudaError_t event_wait_locked(cudaStream_t s, cudaEvent_t event) {
    if (s->capture && s->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (event->capture) {
        cudaGraph_t graph = capture_find(event->capture);
        if (!graph)
            return s->capture ? capture_invalidate(s->capture, cudaErrorStreamCaptureIsolation)
                              : cudaErrorCapturedEvent;
        if (!s->capture) return capture_join(s, graph, &event->view);
        if (s->capture != graph) {
            capture_invalidate(s->capture, cudaSuccess);
            return capture_invalidate(graph, cudaErrorStreamCaptureMerge);
        }
        view_merge(&s->view, &event->view);
        return cudaSuccess;
    }
    if (!event->stream) return cudaSuccess; /* never recorded */
    if (s->capture) return capture_invalidate(s->capture, cudaErrorStreamCaptureIsolation);
    push_wait(s, event->stream, event->position);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    fake_count(FAKE_STREAM_WAITS);
    if (!event) return result(cudaErrorInvalidResourceHandle);
    if (flags) return result(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    cudaError_t error = event_wait_locked(stream_of(stream), event);
    pthread_mutex_unlock(&lock);
    return result(error);
}

/* Whether the host may ask about or wait for the event now. */
static cudaError_t refuse_event_wait(cudaEvent_t event) {
    cudaError_t error = refuse_in_capture();
    if (!event->capture) return error;
    cudaGraph_t graph = capture_find(event->capture);
    return graph ? capture_invalidate(graph, cudaErrorCapturedEvent) : cudaErrorCapturedEvent;
}

static int event_done(cudaEvent_t event) { return !event->stream || event->stream->completed >= event->position; }

cudaError_t cudaEventQuery(cudaEvent_t event) {
    fake_count(FAKE_EVENT_QUERIES);
    if (!event) return result(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    cudaError_t error = refuse_event_wait(event);
    if (!error && !event_done(event)) error = cudaErrorNotReady;
    pthread_mutex_unlock(&lock);
    return result(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (!event) return result(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    cudaError_t error = refuse_event_wait(event);
    if (!error && event->stream) stream_wait_locked(event->stream, event->position);
    pthread_mutex_unlock(&lock);
    return result(error);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    if (!milliseconds) return result(cudaErrorInvalidValue);
    if (!start || !end || (start->flags | end->flags) & cudaEventDisableTiming || start->device != end->device)
        return result(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    cudaError_t error = cudaSuccess;
    if (!start->stream || !end->stream)
        error = cudaErrorInvalidResourceHandle;
    else if (!event_done(start) || !event_done(end))
        error = cudaErrorNotReady;
    else
        *milliseconds = (float)(end->milliseconds - start->milliseconds);
    pthread_mutex_unlock(&lock);
    return result(error);
}

/* ---- Captures and graphs: the calls ----------------------------------------------------------------------------- */

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    enum cudaStreamCaptureMode before = thread_capture_mode;
    thread_capture_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    pthread_mutex_lock(&lock);
    cudaStream_t s = stream_of(stream);
    cudaError_t error = refuse_default_stream(s);
    *status = !s->capture           ? cudaStreamCaptureStatusNone
              : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    pthread_mutex_unlock(&lock);
    return result(error);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    static uint64_t serials;
    if (!stream) return result(cudaErrorStreamCaptureUnsupported);
    pthread_mutex_lock(&lock);
    stream_of(stream);
    int already = stream->capture != NULL;
    if (!already) {
        cudaGraph_t graph = must_calloc(sizeof *graph);
        graph->serial = ++serials;
        graph->mode = mode;
        graph->thread = pthread_self();
        graph->next = captures;
        captures = graph;
        capture_join(stream, graph, &(capture_view){{0}});
    }
    pthread_mutex_unlock(&lock);
    return result(already ? cudaErrorIllegalState : cudaSuccess);
}

static void graph_free(cudaGraph_t graph) {
    for (uint32_t i = 0; i < graph->count; i++) task_release(graph->tasks[i]);
    free(graph->tasks);
    free(graph);
}

static int capture_unjoined(cudaGraph_t graph) {
    for (int i = 1; i < graph->nstreams; i++)
        if (graph->streams[0]->view.node[i] < graph->last_node[i]) return 1;
    return 0;
}

static cudaError_t capture_verdict(cudaGraph_t graph, cudaStream_t s) {
    if (graph->streams[0] != s) return cudaErrorStreamCaptureUnmatched;
    if (graph->invalid) return cudaErrorStreamCaptureInvalidated;
    return capture_unjoined(graph) ? cudaErrorStreamCaptureUnjoined : cudaSuccess;
}

static void capture_end(cudaGraph_t graph) {
    cudaGraph_t *link = &captures;
    while (*link != graph) link = &(*link)->next;
    *link = graph->next;
    for (int i = 0; i < graph->nstreams; i++) graph->streams[i]->capture = NULL;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    *out = NULL;
    pthread_mutex_lock(&lock);
    cudaGraph_t graph = stream_of(stream)->capture;
    cudaError_t error = cudaErrorIllegalState;
    if (graph && graph->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(graph->thread, pthread_self())) {
        error = cudaErrorStreamCaptureWrongThread;
        graph = NULL;
    } else if (graph) {
        error = capture_verdict(graph, stream_of(stream));
        capture_end(graph);
    }
    pthread_mutex_unlock(&lock);
    if (graph && error)
        graph_free(graph);
    else if (graph)
        *out = graph;
    return result(error);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    if (!exec || !graph || flags) return result(cudaErrorInvalidValue);
    *exec = must_calloc(sizeof **exec);
    (*exec)->count = graph->count;
    (*exec)->tasks = must_calloc((graph->count + 1) * sizeof *graph->tasks);
    for (uint32_t i = 0; i < graph->count; i++) {
        (*exec)->tasks[i] = graph->tasks[i];
        atomic_fetch_add(&graph->tasks[i]->holders, 1);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    if (!exec) return result(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    cudaStream_t s = stream_of(stream);
    cudaError_t error =
        s->capture ? cudaErrorNotSupported : refuse_default_stream(s); /* no graphs inside graphs here */
    for (uint32_t i = 0; !error && i < exec->count; i++) {
        atomic_fetch_add(&exec->tasks[i]->holders, 1);
        enqueue_locked(s, exec->tasks[i]);
    }
    pthread_mutex_unlock(&lock);
    return result(error);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    if (!exec) return result(cudaErrorInvalidValue);
    for (uint32_t i = 0; i < exec->count; i++) task_release(exec->tasks[i]);
    free(exec->tasks);
    free(exec);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    if (!graph) return result(cudaErrorInvalidValue);
    graph_free(graph);
    return cudaSuccess;
}

/* ---- Kernels ---------------------------------------------------------------------------------------------------- */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#if __has_include("../../transports/kernels/mesh_nccl.cu")
#include "../../transports/kernels/mesh_nccl.cu"
#else
typedef struct mesh__kernel_args {
    unsigned long long dst, src, count;
} mesh__kernel_args;
enum { fake_copy_bytes = sizeof(mesh__kernel_args) };
static void fake_copy(const void *parameter, unsigned long long thread, unsigned long long threads) {
    const mesh__kernel_args *a = parameter;
    for (unsigned long long i = thread; i < a->count; i += threads) ((char *)a->dst)[i] = ((char *)a->src)[i];
}
static unsigned mesh__k_move_at(const unsigned long long *word, unsigned i) { return (unsigned)word[i]; }
#define MESH_KERNELS(X) X(fake_copy)
#endif
#pragma GCC diagnostic pop

struct CUlib_st {
    char *text;
};

struct CUkern_st {
    const char *name;
    void (*run)(const void *parameter, unsigned long long thread, unsigned long long threads);
    size_t bytes; /* of the parameter */
};

#define KERNEL_ROW(name) {#name, name, name##_bytes},
static const struct CUkern_st kernels[] = {MESH_KERNELS(KERNEL_ROW)};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

static const char *skip_blank(const char *text) {
    for (;;) {
        const char *before = text;
        text += strspn(text, " \t\r\n");
        if (!strncmp(text, "//", 2))
            text += strcspn(text, "\n");
        else if (!strncmp(text, "/*", 2))
            text = strstr(text, "*/") ? strstr(text, "*/") + 2 : text + strlen(text);
        if (text == before) return text;
    }
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *jit_options,
                                void **jit_values, unsigned jit_count, enum cudaLibraryOption *library_options,
                                void **library_values, unsigned library_count) {
    (void)jit_options, (void)jit_values, (void)jit_count;
    (void)library_options, (void)library_values, (void)library_count;
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    cudaError_t error = refuse_in_capture_unlocked();
    if (error) return result(error);
    if (!library || !code) return result(cudaErrorInvalidValue);
    const char *start = skip_blank(code);
    if (strncmp(start, ".version", 8)) return result(cudaErrorInvalidKernelImage);
    if (!strstr(start, ".target") || !strstr(start, ".entry")) return result(cudaErrorInvalidPtx);
    *library = must_calloc(sizeof **library);
    (*library)->text = strdup(start);
    return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
    if (!library) return result(cudaErrorInvalidResourceHandle);
    free(library->text);
    free(library);
    return cudaSuccess;
}

static int has_entry(const char *text, const char *name) {
    size_t length = strlen(name);
    while ((text = strstr(text, ".entry"))) {
        text += 6;
        text += strspn(text, " \t\r\n");
        if (!strncmp(text, name, length) && strchr(" \t\r\n({", text[length])) return 1;
    }
    return 0;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
    if (!kernel || !library || !name) return result(cudaErrorInvalidValue);
    for (int i = 0; i < KERNELS; i++)
        if (!strcmp(kernels[i].name, name) && has_entry(library->text, name)) {
            *kernel = (cudaKernel_t)(uintptr_t)&kernels[i];
            return cudaSuccess;
        }
    return result(cudaErrorSymbolNotFound);
}

typedef struct launch {
    cudaKernel_t kernel;
    unsigned long long threads;
    unsigned long long parameter[];
} launch;

static unsigned long long host_view(unsigned long long address, const char *who) {
    return address ? (unsigned long long)(uintptr_t)fake_memory((void *)(uintptr_t)address, 1, 0, who) : 0;
}

/* A parameter is a mesh__kernel_args, or a mesh__batch of many. */
static void launch_run(void *data) {
    const launch *l = data;
    const char *name = l->kernel->name;
    unsigned long long *own = must_calloc(l->kernel->bytes);
    mesh__kernel_args *one = (mesh__kernel_args *)own;
    memcpy(own, l->parameter, l->kernel->bytes);
    if (l->kernel->bytes == sizeof *one) {
        one->dst = host_view(one->dst, name);
        one->src = host_view(one->src, name);
    } else {
        for (unsigned i = 0; i < own[1] >> 32; i++) {
            unsigned long long *move = own + mesh__k_move_at(own, i);
            move[0] = host_view(move[0], name);
            move[1] = host_view(move[1], name);
        }
    }
    for (unsigned long long thread = 0; thread < l->threads; thread++) l->kernel->run(own, thread, l->threads);
    free(own);
}

static const fake_task_kind launch_kind = {NULL, launch_run, free, NULL, NULL};

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                             cudaStream_t stream) {
    fake_count(FAKE_LAUNCHES);
    if (no_driver()) return result(cudaErrorInsufficientDriver);
    const struct CUkern_st *known = kernel;
    if (known < kernels || known >= kernels + KERNELS) return result(cudaErrorInvalidDeviceFunction);
    unsigned long long blocks = (unsigned long long)grid.x * grid.y * grid.z;
    unsigned long long block_threads = (unsigned long long)block.x * block.y * block.z;
    if (blocks == 0 || block_threads == 0 || block_threads > 1024 || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535 || shared_bytes > 48 * 1024)
        return result(cudaErrorInvalidConfiguration);
    if (fake_stream_device(stream) != current_device) return result(cudaErrorInvalidResourceHandle);
    launch *l = must_calloc(sizeof *l + known->bytes);
    l->kernel = (cudaKernel_t)(uintptr_t)known;
    memcpy(l->parameter, arguments[0], known->bytes);
    l->threads = blocks * block_threads;
    return result(fake_enqueue(stream, &launch_kind, l));
}

/* ---- What the library must never call --------------------------------------------------------------------------- */

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void *user, unsigned flags) {
    (void)stream, (void)call, (void)user, (void)flags;
    fake_die("cudaStreamAddCallback was called");
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void *user) {
    (void)stream, (void)call, (void)user;
    fake_die("cudaLaunchHostFunc was called");
}

cudaError_t cudaDeviceReset(void) { fake_die("cudaDeviceReset was called"); }
