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
#include "cuda_memory.h"
#include "cuda_streams.h"

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
    cudaStream_t s = stream_of(stream);
    cudaError_t error = event_record_locked(event, s);
    pthread_mutex_unlock(&lock);
    stream_ring(s);
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

/* The question leaves the capture as it is. */
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    pthread_mutex_lock(&lock);
    cudaStream_t s = stream_of(stream);
    cudaError_t error = default_is_beside_capture(s) ? cudaErrorStreamCaptureImplicit : cudaSuccess;
    *status = !s->capture           ? cudaStreamCaptureStatusNone
              : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    pthread_mutex_unlock(&lock);
    return result(error);
}

/* Of CUDA's seven arguments, which nodes apart are the same in every version. */
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     void *graph, void *nodes, void *edges, void *count) {
    cudaError_t error = cudaStreamIsCapturing(stream, status);
    (void)graph, (void)nodes, (void)edges, (void)count;
    pthread_mutex_lock(&lock);
    cudaStream_t s = stream_of(stream);
    if (!error && s->capture) *id = s->capture->serial;
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    static uint64_t serials;
    if (!stream) return result(cudaErrorStreamCaptureUnsupported);
    pthread_mutex_lock(&lock);
    stream = stream_of(stream);
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
    stream_ring(s);
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
typedef struct mesh__kernel_rows {
    struct {
        unsigned long long base;
    } to, from, with;
    unsigned long long index, weight, word, target, row_scale;
} mesh__kernel_rows;
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

/* A parameter is a mesh__kernel_args, a mesh__kernel_rows, or a mesh__batch of many. */
static void launch_run(void *data) {
    const launch *l = data;
    const char *name = l->kernel->name;
    unsigned long long *own = must_calloc(l->kernel->bytes);
    mesh__kernel_args *one = (mesh__kernel_args *)own;
    mesh__kernel_rows *rows = (mesh__kernel_rows *)own;
    memcpy(own, l->parameter, l->kernel->bytes);
    if (l->kernel->bytes == sizeof *one) {
        one->dst = host_view(one->dst, name);
        one->src = host_view(one->src, name);
    } else if (l->kernel->bytes == sizeof *rows) {
        unsigned long long *at[] = {&rows->to.base, &rows->from.base, &rows->with.base, &rows->index,
                                    &rows->weight,  &rows->word,      &rows->target,    &rows->row_scale};
        for (unsigned i = 0; i < sizeof at / sizeof *at; i++) *at[i] = host_view(*at[i], name);
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
