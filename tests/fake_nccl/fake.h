/* fake.h: what fake_nccl.c uses of fake_cudart.c beyond CUDA's own functions. Nothing else includes it. */
#ifndef FAKE_H
#define FAKE_H

#include "cuda_runtime_api.h"
#include <stddef.h>

/* What a stream runs. A task lives until neither a stream nor a graph holds it; a captured one is issued and run once
 * for each launch of the graph. */
typedef struct fake_task_kind {
    void (*issued)(void *data);  /* at each enqueue, on the caller's thread, streams locked; may be NULL */
    void (*run)(void *data);     /* on the stream's thread, nothing locked */
    void (*release)(void *data); /* the last holder let go */
    int (*stopped)(void *data);  /* not NULL: a kernel that holds the whole device; true: no longer */
    /* Kernels of one owner start in order of issue; NULL: in order with all. */
    const void *(*owner)(void *data);
} fake_task_kind;

/* Puts a task at the end of a stream (or of its capture). `data` is released also when this fails. */
cudaError_t fake_enqueue(cudaStream_t stream, const fake_task_kind *kind, void *data);
/* What is issued to `after` from now on waits for all that was issued to `before` so far. */
cudaError_t fake_stream_join(cudaStream_t after, cudaStream_t before);
int fake_stream_device(cudaStream_t stream);
/* Tasks that wait for their turn look again whether they are stopped. */
void fake_wake(void);

/* The host's view of `bytes` at a device or pinned address; outside an allocation: complains and aborts.
 * Pageable memory is returned as it is when `pageable` is allowed, else aborts. */
void *fake_memory(const void *pointer, size_t bytes, int pageable, const char *who);
enum cudaMemoryType fake_memory_type(const void *pointer, int *device);
/* Device memory whose address is a multiple of `granularity`, and of which so much is used up. */
cudaError_t fake_allocate(void **pointer, size_t bytes, size_t granularity);
/* Whether the memory came from there. */
int fake_is_granular(const void *pointer);
/* Memory that is registered must not be freed. */
void fake_register(const void *pointer, int change);

long long fake_env(const char *name, long long otherwise);
/* Prints "fake NCCL/CUDA, RANK r: ..." and aborts. */
void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

enum fake_counter {
    FAKE_NCCL_OPERATIONS,
    FAKE_EVENT_RECORDS,
    FAKE_EVENT_QUERIES,
    FAKE_STREAM_WAITS,
    FAKE_MALLOCS,
    FAKE_LAUNCHES,
    FAKE_COPIES,
    FAKE_GROUP_ENDS,
    FAKE_COUNTERS
};
void fake_count(enum fake_counter counter);
/* For tests: how often each was called in this process. */
void fake_counts(unsigned long long out[8]);
/* In libnccl: how often a comm was aborted while another thread was inside a call on it. NCCL may crash then. */
unsigned long long fake_unsafe_aborts(void);
/* In libnccl: how many calls of this process had something to connect, which blocks the host. */
unsigned long long fake_connects(void);

#endif
