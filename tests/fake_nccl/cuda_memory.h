/* Of fake_cudart.c: the environment, errors, devices, and the table of memory. */
#ifndef FAKE_CUDA_MEMORY_H
#define FAKE_CUDA_MEMORY_H

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

#endif
