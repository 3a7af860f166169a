/* mesh_nccl.h - GPUs as ranks, over NCCL. Part of mesh.h 0.1.0. MIT licence. */
#include "../mesh_collectives.h"
#include "mesh_nccl_ptx.h"

#ifndef MESH_NCCL_H
#define MESH_NCCL_H
/*
DO THIS
    #define MESH_IMPLEMENTATION         in exactly one file, C or C++; no nvcc needed
    #include "mesh.h"
    #include "mesh_collectives.h"
    #include "transports/mesh_socket.h"
    #include "transports/mesh_nccl.h"   finds nccl.h and cuda_runtime_api.h: cc -isystem /usr/local/cuda/include app.c -ldl -lpthread

EXAMPLE
    mesh_socket net;
    mesh_nccl gpu;
    mesh_error err;
    if (mesh_socket_open(&net, NULL, &err) || mesh_nccl_open(&gpu, &net.base, NULL, &err)) return fail(err.text);
    ... mesh_comm_open(&comm, &gpu.base, ...) ... mesh_all_reduce(&comm, "dp", device_memory, ...) ...
    mesh_comm_close(&comm);
    mesh_nccl_close(&gpu);
    mesh_socket_close(&net);

CONCEPTS
    bootstrap   An open transport (sockets) over which ranks agree on communicators, hear of lost ranks and compare what they called.
                It stays open, and is this transport's alone until mesh_nccl_close: open no comms on it.
    libraries   libnccl.so.2 and libcudart.so.13 (then .12) are loaded when opened (desc, or MESH_NCCL_LIBRARY and
                MESH_CUDART_LIBRARY, name others): one binary runs with and without GPUs. With -DMESH_NCCL_LINK they are linked.
    device      Of LOCAL_RANK (as torchrun, mpirun and srun give it); where a rank sees one device only, that one. Calls make it the
                current device of the thread that calls.
    streams     A group's operations are in one order, that of their starts. The blocking forms run on the caller's stream
                (mesh_comm_desc.stream, mesh_comm_stream), as the bare NCCL call would: nothing is waited for on the host but by
                mesh_barrier (and a first message). A _start runs on a stream of the group's own, after what is on the caller's stream; mesh_wait puts the
                caller's stream behind it; mesh_wait_host blocks. Start and wait only enqueue: a CUDA graph can capture them (buffers
                and comm then outlive the graph).
    order       NCCL has no tags: ranks start the operations of their groups, and point-to-point ones too, in one consistent order.
                A send and a receive that two ranks exchange go into one call (mesh_sendrecv, mesh_exchange, mesh_shift). Where operations
                of several groups are started at once, desc.launch_order (NCCL_LAUNCH_ORDER_IMPLICIT=1, from 2.26) keeps them from waiting
                for each other on a device; it holds for everything in the process that uses NCCL, so it is off unless asked for.
    communicator  One per ordered list of ranks and comm, shared by the comm's groups with that list; when the comm is closed it is kept for
                the next one with that list, until mesh_nccl_close.
    connecting  NCCL connects when an algorithm or a peer is first used: on the host, inside that call, until the others have come there
                too. Collectives are connected when their group opens. A first message between two ranks is a rendezvous: it blocks the host.
    what differs  NCCL does not compare calls: 999 elements here and 1,000 there may complete, with a wrong tail. So ranks compare what they have
                called in a group, in the background and in every barrier: within about a second all hear of both calls. Until then results may be
                wrong. Not compared: counts of v-forms, messages. MESH_NCCL_DEBUG=1 compares every call, these too, over the bootstrap before
                it is launched; and tells of memory that a device does not reach.
    memory      mesh_alloc is local, and registers nothing. mesh_register is every rank's: in a window from NCCL 2.27 on, of mesh_alloc's memory
                from 1 MiB on; else as ncclCommRegister does. The engine's scratch and the packed messages' memory are kept until mesh_nccl_close
                (or until there is no other): freeing waits for the device.

ERRORS
    As on every transport. A watchdog thread listens while the program computes or blocks in CUDA: a rank that is lost, an operation
    whose deadline has passed (mesh_comm_desc.timeout_ns, and 2 s more) or NCCL's own error ends the communicators concerned, so that
    streams go on (with data that mean nothing) and the next mesh call says why. "NCCL's last warning" is quoted as what NCCL gives:
    this process's last one, perhaps an old one. A rank that is stuck inside a call of NCCL's (which connects when first needed) is given
    2 s to come back by itself, then its communicator is aborted under it: NCCL promises nothing then, but nothing else would free it.

WHAT IT DOES NOT DO
    minloc, maxloc, user ops, broadcast of objects: host memory only. i16, u16, and, or, xor, complex products and scans go through
    sends and receives and small kernels. fp8 is reduced from NCCL 2.24 and compute capability 9.0 on, without avg.
*/
#include <cuda_runtime_api.h>
#include <nccl.h>
#if NCCL_VERSION_CODE < 21800
#error "mesh_nccl.h: NCCL 2.18 or later is needed"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mesh_nccl_desc {
    int device;                 /* 1 + the device's number; 0: from the environment */
    int debug;                  /* 1: compare every call before its launch; 0: MESH_NCCL_DEBUG */
    int no_watchdog;            /* 1: no thread; a rank blocked in CUDA is then not freed */
    int max_ctas;               /* of a communicator; 0: NCCL chooses */
    int launch_order;           /* 1: sets NCCL_LAUNCH_ORDER_IMPLICIT for the whole process, unless it is set */
    int64_t open_timeout_ns;    /* 0: 60 s */
    const char *nccl_library;   /* NULL: MESH_NCCL_LIBRARY, else libnccl.so.2 */
    const char *cudart_library; /* NULL: MESH_CUDART_LIBRARY, else libcudart.so.13, else .12 */
} mesh_nccl_desc;

typedef struct mesh_nccl {
    mesh_transport base;            /* first: &gpu.base is the transport */
    int device, devices;            /* this rank's, of how many on this host */
    int nccl_version, cuda_version; /* of the libraries: 22809, 13000 */
    void *impl;
} mesh_nccl;

/* Join the ranks of an open transport as GPUs; every rank calls it. desc may be NULL. Where one rank cannot (no driver, no library, no
   device, a device taken twice) every rank gets the same error, which names that rank and why: UNSUPPORTED where there is no GPU to use,
   else what went wrong. ARGUMENT: the transport is NULL or has comms of its own. TIMEOUT: ranks missing. On error nothing is open. */
MESH_API mesh_status mesh_nccl_open(mesh_nccl *n, mesh_transport *bootstrap, const mesh_nccl_desc *desc,
                                    mesh_error *err);
/* Closes comms that are still open, waits for what is under way (10 s at most) and then for the other ranks to close too (60 s at most, as
   NCCL's communicators are closed together; without a rank that was lost, at once). Graphs with this transport's operations are destroyed
   before. The bootstrap stays open. TIMEOUT: the others do not come, or NCCL does not end. */
MESH_API mesh_status mesh_nccl_close(mesh_nccl *n);

#ifdef __cplusplus
}
#endif
#endif /* MESH_NCCL_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_NCCL_IMPLEMENTED)
#define MESH_NCCL_IMPLEMENTED

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- // >>libraries: one table of functions --------------------------------------------------------------------------------- */

/* X(result, library, name, arguments, needed); library##name is the function. */
#define MESH_NCCL__CUDA_FUNCTIONS(X)                                                                        \
    X(cudaError_t, cuda, GetDeviceCount, (int *), 1)                                                        \
    X(cudaError_t, cuda, SetDevice, (int), 1)                                                               \
    X(cudaError_t, cuda, GetDevice, (int *), 1)                                                             \
    X(const char *, cuda, GetErrorString, (cudaError_t), 1)                                                 \
    X(const char *, cuda, GetErrorName, (cudaError_t), 1)                                                   \
    X(cudaError_t, cuda, GetLastError, (void), 1)                                                           \
    X(cudaError_t, cuda, RuntimeGetVersion, (int *), 1)                                                     \
    X(cudaError_t, cuda, Malloc, (void **, size_t), 1)                                                      \
    X(cudaError_t, cuda, Free, (void *), 1)                                                                 \
    X(cudaError_t, cuda, HostAlloc, (void **, size_t, unsigned), 1)                                         \
    X(cudaError_t, cuda, FreeHost, (void *), 1)                                                             \
    X(cudaError_t, cuda, MemcpyAsync, (void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t), 1) \
    X(cudaError_t, cuda, Memcpy2DAsync,                                                                     \
      (void *, size_t, const void *, size_t, size_t, size_t, enum cudaMemcpyKind, cudaStream_t), 1)         \
    X(cudaError_t, cuda, MemsetAsync, (void *, int, size_t, cudaStream_t), 1)                               \
    X(cudaError_t, cuda, Memset2DAsync, (void *, size_t, int, size_t, size_t, cudaStream_t), 1)             \
    X(cudaError_t, cuda, StreamCreateWithFlags, (cudaStream_t *, unsigned), 1)                              \
    X(cudaError_t, cuda, StreamDestroy, (cudaStream_t), 1)                                                  \
    X(cudaError_t, cuda, StreamWaitEvent, (cudaStream_t, cudaEvent_t, unsigned), 1)                         \
    X(cudaError_t, cuda, StreamIsCapturing, (cudaStream_t, enum cudaStreamCaptureStatus *), 1)              \
    X(cudaError_t, cuda, ThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode *), 1)                \
    X(cudaError_t, cuda, EventCreateWithFlags, (cudaEvent_t *, unsigned), 1)                                \
    X(cudaError_t, cuda, EventDestroy, (cudaEvent_t), 1)                                                    \
    X(cudaError_t, cuda, EventRecord, (cudaEvent_t, cudaStream_t), 1)                                       \
    X(cudaError_t, cuda, EventQuery, (cudaEvent_t), 1)                                                      \
    X(cudaError_t, cuda, LaunchKernel, (const void *, dim3, dim3, void **, size_t, cudaStream_t), 1)        \
    X(cudaError_t, cuda, DeviceGetAttribute, (int *, enum cudaDeviceAttr, int), 1)                          \
    X(cudaError_t, cuda, PointerGetAttributes, (struct cudaPointerAttributes *, const void *), 1)           \
    X(cudaError_t, cuda, LibraryLoadData,                                                                   \
      (void **, const void *, void *, void **, unsigned, void *, void **, unsigned), 0) /* 12.8 */          \
    X(cudaError_t, cuda, LibraryUnload, (void *), 0)                                                        \
    X(cudaError_t, cuda, LibraryGetKernel, (void **, void *, const char *), 0)
#define MESH_NCCL__NCCL_FUNCTIONS(X)                                                                                   \
    X(ncclResult_t, nccl, GetVersion, (int *), 1)                                                                      \
    X(ncclResult_t, nccl, GetUniqueId, (ncclUniqueId *), 1)                                                            \
    X(ncclResult_t, nccl, CommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *), 1)               \
    X(ncclResult_t, nccl, CommSplit, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *), 1)                          \
    X(ncclResult_t, nccl, CommDestroy, (ncclComm_t), 1)                                                                \
    X(ncclResult_t, nccl, CommAbort, (ncclComm_t), 1)                                                                  \
    X(ncclResult_t, nccl, CommGetAsyncError, (ncclComm_t, ncclResult_t *), 1)                                          \
    X(const char *, nccl, GetErrorString, (ncclResult_t), 1)                                                           \
    X(const char *, nccl, GetLastError, (ncclComm_t), 1)                                                               \
    X(ncclResult_t, nccl, AllReduce,                                                                                   \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t), 1)                        \
    X(ncclResult_t, nccl, Reduce,                                                                                      \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t), 1)                   \
    X(ncclResult_t, nccl, Broadcast, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), 1) \
    X(ncclResult_t, nccl, AllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t), 1)      \
    X(ncclResult_t, nccl, ReduceScatter,                                                                               \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t), 1)                        \
    X(ncclResult_t, nccl, Send, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), 1)              \
    X(ncclResult_t, nccl, Recv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), 1)                    \
    X(ncclResult_t, nccl, GroupStart, (void), 1)                                                                       \
    X(ncclResult_t, nccl, GroupEnd, (void), 1)                                                                         \
    X(ncclResult_t, nccl, MemAlloc, (void **, size_t), 0) /* 2.19 */                                                   \
    X(ncclResult_t, nccl, MemFree, (void *), 0)                                                                        \
    X(ncclResult_t, nccl, CommRegister, (const ncclComm_t, void *, size_t, void **), 0)                                \
    X(ncclResult_t, nccl, CommDeregister, (const ncclComm_t, void *), 0)                                               \
    X(ncclResult_t, nccl, CommWindowRegister, (ncclComm_t, void *, size_t, mesh_nccl__window *, int), 0) /* 2.27 */     \
    X(ncclResult_t, nccl, CommWindowDeregister, (ncclComm_t, mesh_nccl__window), 0)                                    \
    X(ncclResult_t, nccl, AlltoAll, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t),          \
      0) /* 2.28 */                                                                                                    \
    X(ncclResult_t, nccl, Gather, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), 0)    \
    X(ncclResult_t, nccl, Scatter, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), 0)   \
    X(ncclResult_t, nccl, CommRevoke, (ncclComm_t, int), 0) /* 2.28.7 */

typedef struct ncclWindow_vidmem *mesh_nccl__window; /* ncclWindow_t, which older headers do not have */

typedef struct mesh_nccl__api {
#define MESH_X(result, library, name, arguments, needed) result(*library##name) arguments;
    MESH_NCCL__CUDA_FUNCTIONS(MESH_X) MESH_NCCL__NCCL_FUNCTIONS(MESH_X)
#undef MESH_X
} mesh_nccl__api;

/* ---- // >>state --------------------------------------------------------------------------------------------------------- */

enum {
    MESH_NCCL__FLOOR = 21800,
    MESH_NCCL__NARROW = 8192, /* bytes of a row below which a kernel copies faster than a 2-D copy does */
    MESH_NCCL__VOTE_BYTES = 512,
    MESH_NCCL__GRACE_NS =
        2000000000, /* the watchdog's patience beyond a deadline: the engine says more, if it is inside */
    MESH_NCCL__POLL_NS = 10000,            /* between two looks at the same event */
    MESH_NCCL__TICK_NS = 50000000,         /* of the watchdog */
    MESH_NCCL__BETWEEN_MARKS = 16,         /* operations on the caller's stream, at most */
    MESH_NCCL__PAGED = 1 << 20,            /* bytes from which mesh_alloc takes NCCL's pages (of 2 MiB) */
    MESH_NCCL__COMPARE_NS = 200000000,     /* between two comparisons of histories */
    MESH_NCCL__DISAGREE_NS = 1000000000,   /* for the calls that differ to be found, after a barrier that shows it */
    MESH_NCCL__RECENT = 64,                /* calls of a communicator that are remembered; and each 64th, and each 4096th */
    MESH_NCCL__LEVELS = 3,
    MESH_NCCL__BARRIERS = 8,               /* whose verdict is under way */
    MESH_NCCL__SYMMETRIC = 1,              /* NCCL_WIN_COLL_SYMMETRIC, which older headers do not have */
    MESH_NCCL__MSG_HISTORY = 64            /* a control message between watchdogs; the engine's own are below */
};

/* Everything issued up to `issued` in a communicator is over when the event is. */
typedef struct mesh_nccl__mark {
    cudaEvent_t event;
    cudaStream_t stream;
    uint64_t issued;
    int64_t deadline;
} mesh_nccl__mark;

/* The calls of a communicator up to a position, from 1, as one hash. */
typedef struct mesh_nccl__past {
    uint64_t position, history;
} mesh_nccl__past;

/* What a barrier reduces, by min: {h, ~h} gives {least, ~greatest}. In pinned memory. */
typedef struct mesh_nccl__verdict {
    uint64_t in[2], out[2];
} mesh_nccl__verdict;

/* What its ranks have called, in order: calls that differ may complete, with wrong elements at the end. */
typedef struct mesh_nccl__history {
    uint64_t position, history;
    mesh_nccl__past past[MESH_NCCL__LEVELS][MESH_NCCL__RECENT]; /* each call, each 64th, each 4096th */
    mesh__record recent[MESH_NCCL__RECENT];
    uint64_t told; /* the position last told to the next rank of the list */
    int64_t told_at;
    unsigned char theirs[MESH_CONTROL_BYTES]; /* what the rank before told, until it is compared */
    int has_theirs;
    mesh_nccl__verdict *verdict; /* MESH_NCCL__BARRIERS, and a neutral one */
    uint64_t barrier[MESH_NCCL__BARRIERS]; /* whose verdict it will be: a ticket's id; 0: free */
    uint32_t barriers;
    int64_t disagreed; /* when a verdict said so; 0: none has */
} mesh_nccl__history;

/* An ordered list of ranks, its communicator and its queue. A list of one has no communicator. */
typedef struct mesh_nccl__comm {
    struct mesh_nccl__comm *next;
    int *rank, size, index;
    char name[32];   /* NCCL keeps the pointer */
    uint64_t serial; /* when it was made, as its ranks agreed; 0: not yet */
    ncclComm_t root; /* non-blocking, for splits; only a comm's whole mesh has one. Of the main thread alone */
    ncclComm_t comm; /* blocking: its calls enqueue at once, without a thread of NCCL's for each */
    ncclComm_t made; /* where a thread of NCCL's writes it; `comm` when it is ready */
    int connecting;  /* it is joined, and not open yet */
    int ended, capturing;
    int refs;                          /* groups that use it */
    int stale;                         /* its root was given up: no other comm takes it over */
    uint32_t owner;                    /* their comm's id */
    mesh_error why;                    /* what ended it */
    uint64_t valid;                    /* operations up to this one were over before */
    int64_t ended_at, polled, doubted; /* doubted: when NCCL first said that it has failed; 0: never */
    cudaStream_t stream, on;           /* its own; where the last operation went. `on` changes under the lock */
    cudaEvent_t enter, captured;
    cudaStream_t captured_on;           /* where `captured` was recorded */
    uint64_t issued, marked, completed; /* operations: on the device; with a mark behind them; over */
    int64_t due, last_due;              /* deadlines of the first one without a mark, and of the last */
    int64_t marking;                    /* since when the marker is about to put one on `on`; 0: it is not */
    mesh_nccl__mark *mark;              /* a ring */
    int first_mark, nmarks, mark_cap;
    mesh_nccl__history past;
    void *word;             /* of barriers */
    struct mesh_nccl__memory *staging; /* of strided messages; one that was too small, or belongs to a graph, stays until the end */
    void *staging_handle;
} mesh_nccl__comm;

typedef struct mesh_nccl__group {
    struct mesh_nccl__group *next;
    mesh_nccl__comm *c;
    uint32_t id, sequence; /* of its last operation */
    int64_t timeout;
} mesh_nccl__group;

/* Memory of ours: the user's buffers, or the engine's scratch, which is kept for the next that wants it. */
typedef struct mesh_nccl__memory {
    struct mesh_nccl__memory *next;
    void *p;
    size_t nbytes;
    int paged, pooled, used; /* paged: ncclMemAlloc's */
} mesh_nccl__memory;

/* A buffer that every rank of a communicator has registered. */
typedef struct mesh_nccl__registration {
    struct mesh_nccl__registration *next;
    mesh_nccl__comm *c;
    ncclComm_t comm; /* c's, then */
    const mesh_nccl__memory *memory; /* NULL: not ours */
    void *handle;
    mesh_nccl__window window;
} mesh_nccl__registration;

typedef struct mesh_nccl__mail {
    struct mesh_nccl__mail *next;
    int acted; /* the watchdog's part of it is done; 2: so is a closing rank's */
    int64_t came;
    mesh_control m;
} mesh_nccl__mail;

/* A communicator that is being aborted, in a thread of its own: NCCL waits there for streams, other ranks, graphs. */
typedef struct mesh_nccl__stop {
    struct mesh_nccl__stop *next;
    struct mesh_nccl__state *s; /* not NULL: the main thread is inside CUDA or NCCL with it; it is left whole while threads are left */
    mesh_nccl__api api;
    mesh_nccl__comm *of;
    pthread_mutex_t lock; /* over */
    pthread_t thread;
    int device, over;
    ncclComm_t comm;
    ncclComm_t *late; /* not NULL: a split of it that NCCL may still be writing */
} mesh_nccl__stop;

typedef struct mesh_nccl__state {
    mesh_nccl *n;
    mesh_transport *boot;
    mesh_nccl__api api;
    void *nccl_library, *cuda_library, *kernels;
    void *kernel[48];
    mesh__batch batch; /* the moves of a post; the main thread's alone */
    int debug, max_ctas, has_kernels;
    char no_kernels[160]; /* why not */
    uint64_t serial;
    /* Two locks, taken in this order. Neither is held in a call of CUDA's or NCCL's that may wait: for a peer, a device, a full queue. */
    pthread_mutex_t boot_lock; /* the bootstrap and the mail */
    pthread_mutex_t lock;      /* what the threads share of the rest */
    pthread_cond_t out;        /* the main thread is not inside any more; the marker has marked */
    mesh_nccl__mail *mail, **mail_end;
    unsigned char *gone; /* per rank: a mesh_event_kind, LOST or CLOSED; 0: it is there */
    mesh_nccl__comm *comm;
    mesh_nccl__comm *inside; /* what the main thread is calling CUDA or NCCL for */
    int64_t inside_since, inside_until;
    mesh__record inside_record; /* of a collective; else zeros and a channel */
    mesh_error trouble;         /* what went wrong inside; the main thread's alone */
    mesh_nccl__group *group, world;
    mesh_nccl__memory *memory;             /* the main thread's alone */
    mesh_nccl__registration *registration; /* the main thread's alone */
    mesh_nccl__stop *stops;
    int closing;        /* who asks for this rank now is told that it has left */
    cudaEvent_t *event; /* free ones; there is room for all that were made */
    int nevents, event_cap, events_made;
    cudaEvent_t held; /* the main thread is about to wait for it: it is not used again meanwhile */
    int held_is_over;
    pthread_t watchdog, marker;
    pthread_mutex_t watch_lock; /* wake, stopping */
    pthread_cond_t wake, want;  /* want: with `lock`, a mark */
    int watching, stopping, marks, marks_stopping, marker_left; /* marks: there is a marker */
    int news;                                      /* something is over that progress has not told yet */
    int64_t asked;                                 /* when NCCL was last asked for errors */
} mesh_nccl__state;

/* The kernels, by their place in MESH_KERNELS. */
#define MESH_X(name) MESH_NCCL__##name,
enum { MESH_KERNELS(MESH_X) MESH_NCCL__KERNELS };
#undef MESH_X

static inline mesh_nccl__state *mesh_nccl__of(mesh_transport *t) { return (mesh_nccl__state *)((mesh_nccl *)t)->impl; }
static inline int64_t mesh_nccl__now(mesh_nccl__state *s) { return s->boot->ops->now(s->boot); }

static inline mesh_nccl__group *mesh_nccl__group_of(mesh_nccl__state *s, void *group) {
    return group ? (mesh_nccl__group *)group : &s->world;
}

static inline void mesh_nccl__nap(int64_t ns) {
    struct timespec t;
    t.tv_sec = (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    nanosleep(&t, NULL);
}

/* "cudaMalloc: out of memory (cudaErrorMemoryAllocation)" */
static inline mesh_status mesh_nccl__cuda_fail(mesh_nccl__state *s, mesh_error *err, const char *what, cudaError_t r) {
    s->api.cudaGetLastError(); /* it is told here */
    return mesh__fail(err, r == cudaErrorMemoryAllocation ? MESH_ERR_MEMORY : MESH_ERR_TRANSPORT, s->boot->rank,
                      "%s: %s (%s)", what, s->api.cudaGetErrorString(r), s->api.cudaGetErrorName(r));
}

static inline mesh_status mesh_nccl__fail(mesh_nccl__state *s, mesh_error *err, const char *what, ncclResult_t r) {
    const char *last = s->api.ncclGetLastError(NULL);
    return mesh__fail(err, MESH_ERR_TRANSPORT, s->boot->rank, "%s: %s%s%s%s", what, s->api.ncclGetErrorString(r),
                      last && *last ? "; NCCL's last warning (perhaps an old one): \"" : "", last && *last ? last : "",
                      last && *last ? "\"" : "");
}

/* This rank's device becomes the calling thread's: what is made there belongs to it. */
static inline void mesh_nccl__use_device(mesh_nccl__state *s) {
    int now = -1;
    if (s->api.cudaGetDevice(&now) == cudaSuccess && now == s->n->device) return;
    s->api.cudaSetDevice(s->n->device);
}

/* ---- // >>marks: what is over ---- */

/* Calls that a stream capture elsewhere in the process must not forbid. */
static inline void mesh_nccl__capture_mode(mesh_nccl__state *s, enum cudaStreamCaptureMode *mode) {
    s->api.cudaThreadExchangeStreamCaptureMode(mode);
}

static inline int mesh_nccl__capturing(mesh_nccl__state *s, cudaStream_t stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (s->api.cudaStreamIsCapturing(stream, &status) == cudaSuccess) return status == cudaStreamCaptureStatusActive;
    s->api.cudaGetLastError(); /* the default stream, while another captures */
    return 0;
}

static inline void mesh_nccl__end(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_status status, int rank,
                                  const char *format, ...);

/* Ask the marker for a mark behind what has none. The caller holds `lock`. */
static inline void mesh_nccl__want_mark(mesh_nccl__state *s, mesh_nccl__comm *c) {
    if (c->issued == c->marked || c->marking) return;
    c->marking = mesh_nccl__now(s);
    pthread_cond_signal(&s->want);
}

/* Do barriers that are over say that the ranks have called the same? Else the first that does not is not over. */
static inline void mesh_nccl__judge(mesh_nccl__state *s, mesh_nccl__comm *c) {
    mesh_nccl__history *h = &c->past;
    int i;
    for (i = 0; i < MESH_NCCL__BARRIERS; i++) {
        const mesh_nccl__verdict *v = &h->verdict[i];
        if (!h->barrier[i] || h->barrier[i] > c->completed) continue;
        if (v->out[0] == ~v->out[1]) {
            h->barrier[i] = 0;
            continue;
        }
        if (!h->disagreed) h->disagreed = mesh_nccl__now(s);
        c->completed = h->barrier[i] - 1;
        h->told = 0; /* tell the next rank at once */
        h->told_at = 0;
    }
}

static inline void mesh_nccl__event_back(mesh_nccl__state *s, cudaEvent_t event) {
    if (event == s->held)
        s->held_is_over = 1;
    else
        s->event[s->nevents++] = event;
}

/* See how far a communicator has come. The caller holds `lock`. */
static inline void mesh_nccl__poll(mesh_nccl__state *s, mesh_nccl__comm *c, int at_once) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    uint64_t before = c->completed;
    int64_t now;
    cudaError_t r = cudaSuccess;
    if (!c->nmarks || (c->past.disagreed && !c->ended)) return;
    now = mesh_nccl__now(s);
    if (!at_once && now - c->polled < MESH_NCCL__POLL_NS) return;
    c->polled = now;
    mesh_nccl__capture_mode(s, &mode);
    while (c->nmarks) {
        mesh_nccl__mark *m = &c->mark[c->first_mark];
        r = s->api.cudaEventQuery(m->event);
        if (r == cudaErrorCapturedEvent && c->nmarks == 1) /* the program began a capture as it was put */
            c->marked = c->completed;
        else if (r == cudaSuccess)
            c->completed = m->issued;
        else if (r != cudaErrorCapturedEvent)
            break;
        mesh_nccl__event_back(s, m->event);
        c->first_mark = (c->first_mark + 1) % c->mark_cap;
        c->nmarks--;
    }
    if (r == cudaErrorNotReady || r == cudaErrorCapturedEvent)
        s->api.cudaGetLastError(); /* or the program would see it */
    mesh_nccl__capture_mode(s, &mode);
    if (c->completed != before && c->past.barriers) mesh_nccl__judge(s, c);
    if (r != cudaSuccess && r != cudaErrorNotReady && r != cudaErrorCapturedEvent) {
        mesh_error why;
        mesh_nccl__cuda_fail(s, &why, "the device", r);
        mesh_nccl__end(s, c, MESH_ERR_TRANSPORT, s->boot->rank, "%s", why.text);
    }
    if (c->completed != before) s->news = 1;
}

/* The main thread may be inside a call with the communicator: it is revoked, which leaves it in place (2.28.7), and given time to come back,
   before it is aborted, which frees it. */
static void *mesh_nccl__stop_main(void *arg) {
    mesh_nccl__stop *stop = (mesh_nccl__stop *)arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    stop->api.cudaThreadExchangeStreamCaptureMode(&mode);
    stop->api.cudaSetDevice(stop->device);
    if (stop->s) {
        struct timespec until;
        int late = 0;
        if (stop->api.ncclCommRevoke) stop->api.ncclCommRevoke(stop->comm, 0);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 2;
        pthread_mutex_lock(&stop->s->lock);
        while (stop->s->inside == stop->of && !late)
            late = pthread_cond_timedwait(&stop->s->out, &stop->s->lock, &until) != 0;
        pthread_mutex_unlock(&stop->s->lock);
    }
    stop->api.ncclCommAbort(stop->comm);
    if (stop->late && *stop->late) stop->api.ncclCommAbort(*stop->late);
    pthread_mutex_lock(&stop->lock);
    stop->over = 1;
    pthread_mutex_unlock(&stop->lock);
    return NULL;
}

/* Abort a communicator without waiting for it: NCCL would wait, for its stream, behind other communicators that may hang too. */
static inline void mesh_nccl__stop_comm(mesh_nccl__state *s, mesh_nccl__comm *c, ncclComm_t comm, ncclComm_t *late) {
    mesh_nccl__stop *stop = (mesh_nccl__stop *)malloc(sizeof *stop); /* may outlive the allocator */
    if (!stop) return; /* it is left; the operations end as failed anyway */
    memset(stop, 0, sizeof *stop);
    stop->api = s->api;
    stop->device = s->n->device;
    stop->comm = comm;
    stop->late = late;
    stop->of = c;
    stop->s = s->inside == c ? s : NULL;
    pthread_mutex_init(&stop->lock, NULL);
    if (pthread_create(&stop->thread, NULL, mesh_nccl__stop_main, stop) != 0) {
        pthread_mutex_destroy(&stop->lock);
        free(stop);
        return;
    }
    stop->next = s->stops;
    s->stops = stop;
}

/* Wait for those threads until a deadline. Returns how many are left; what they use must then stay. */
static inline int mesh_nccl__stops_wait(mesh_nccl__state *s, int64_t deadline) {
    mesh_nccl__stop **at = &s->stops;
    int left = 0;
    while (*at) {
        mesh_nccl__stop *stop = *at;
        int over;
        pthread_mutex_lock(&stop->lock);
        over = stop->over;
        pthread_mutex_unlock(&stop->lock);
        if (!over && mesh_nccl__now(s) < deadline) {
            mesh_nccl__nap(200000);
            continue;
        }
        *at = stop->next;
        left += !over;
        if (!over) {
            pthread_detach(stop->thread);
            continue;
        }
        pthread_join(stop->thread, NULL);
        pthread_mutex_destroy(&stop->lock);
        free(stop);
    }
    return left;
}

/* End what is under way in a communicator; what it was asked for until now, and later, ends with this. The caller holds `lock`. */
static inline void mesh_nccl__end(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_status status, int rank,
                                  const char *format, ...) {
    va_list args;
    if (c->ended) return;
    c->ended = 1;
    va_start(args, format);
    mesh__vfail(&c->why, status, rank, format, args);
    va_end(args);
    if (!c->past.disagreed) mesh_nccl__poll(s, c, 1);
    c->valid = c->completed;
    c->ended_at = mesh_nccl__now(s);
    s->news = 1;
    if (s->marks) mesh_nccl__want_mark(s, c); /* the memory of what has none is the caller's only when the device lets go of it */
    if (c->comm) mesh_nccl__stop_comm(s, c, c->comm, NULL);
    c->comm = NULL;
}

/* The main thread is about to call CUDA or NCCL for a communicator, and may have to stay there. Returns 0 if it has ended. */
static inline int mesh_nccl__enter(mesh_nccl__state *s, mesh_nccl__comm *c, const mesh__record *record,
                                   int64_t deadline) {
    int open;
    mesh_nccl__use_device(s);
    memset(&s->trouble, 0, sizeof s->trouble);
    pthread_mutex_lock(&s->lock);
    open = !c->ended;
    if (open) {
        s->inside = c;
        s->inside_since = mesh_nccl__now(s);
        s->inside_until = deadline;
        s->inside_record = *record;
    }
    pthread_mutex_unlock(&s->lock);
    return open;
}

/* It is back. What went wrong ends the communicator. */
static inline void mesh_nccl__leave(mesh_nccl__state *s, mesh_nccl__comm *c) {
    pthread_mutex_lock(&s->lock);
    if (s->trouble.status != MESH_OK)
        mesh_nccl__end(s, c, (mesh_status)s->trouble.status, s->trouble.rank, "%s", s->trouble.text);
    s->inside = NULL;
    pthread_cond_broadcast(&s->out);
    pthread_mutex_unlock(&s->lock);
}

/* What became of something put on a communicator's stream. The first trouble counts. */
static inline cudaError_t mesh_nccl__put(mesh_nccl__state *s, const char *what, cudaError_t r) {
    if (r == cudaSuccess || s->trouble.status != MESH_OK) return r;
    if (r == cudaErrorNotSupported && s->no_kernels[0])
        mesh__fail(&s->trouble, MESH_ERR_UNSUPPORTED, s->boot->rank, "%s needs a kernel, and %s", what, s->no_kernels);
    else
        mesh_nccl__cuda_fail(s, &s->trouble, what, r);
    return r;
}

static inline ncclResult_t mesh_nccl__said(mesh_nccl__state *s, const char *what, ncclResult_t r) {
    if (r != ncclSuccess && s->trouble.status == MESH_OK) mesh_nccl__fail(s, &s->trouble, what, r);
    return r;
}

/* The caller holds `lock`. */
static inline cudaError_t mesh_nccl__event(mesh_nccl__state *s, cudaEvent_t *event) {
    cudaError_t r;
    if (s->nevents) {
        *event = s->event[--s->nevents];
        return cudaSuccess;
    }
    if (!mesh__grow(s->boot, (void **)&s->event, &s->event_cap, s->events_made + 1, sizeof *s->event))
        return cudaErrorMemoryAllocation;
    r = s->api.cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    if (r == cudaSuccess) s->events_made++;
    return r;
}

static inline mesh_nccl__mark *mesh_nccl__mark_at(mesh_nccl__comm *c, int i) {
    return &c->mark[(c->first_mark + i) % c->mark_cap];
}

/* An event was recorded behind what was issued until then. The caller holds `lock`. Returns 0 without memory. */
static inline int mesh_nccl__mark_add(mesh_nccl__state *s, mesh_nccl__comm *c, const mesh_nccl__mark *mark) {
    if (mark->issued <= c->marked) { /* a later one came before */
        mesh_nccl__event_back(s, mark->event);
        return 1;
    }
    if (c->nmarks == c->mark_cap) {
        int cap = c->mark_cap ? 2 * c->mark_cap : 16, i;
        mesh_nccl__mark *grown = (mesh_nccl__mark *)mesh_transport_alloc(s->boot, (size_t)cap * sizeof *grown);
        if (!grown) {
            mesh_nccl__event_back(s, mark->event);
            return 0;
        }
        for (i = 0; i < c->nmarks; i++) grown[i] = *mesh_nccl__mark_at(c, i);
        mesh_transport_free(s->boot, c->mark);
        c->mark = grown;
        c->mark_cap = cap;
        c->first_mark = 0;
    }
    *mesh_nccl__mark_at(c, c->nmarks++) = *mark;
    c->marked = mark->issued;
    c->due = c->last_due;
    return 1;
}

/* Put a mark behind what has been issued in a communicator, if it has none: by the main thread, or by the marker. The caller holds `lock`,
   which is let go of meanwhile: a stream whose queue is full keeps its caller. */
static inline void mesh_nccl__mark_now(mesh_nccl__state *s, mesh_nccl__comm *c) {
    mesh_nccl__mark mark;
    mesh_error why;
    cudaError_t r;
    if (c->issued == c->marked) return;
    mark.stream = c->on;
    mark.issued = c->issued;
    mark.deadline = c->due;
    r = mesh_nccl__event(s, &mark.event);
    if (r == cudaSuccess) {
        pthread_mutex_unlock(&s->lock);
        if (mesh_nccl__capturing(s, mark.stream)) /* that of a program that comes back from it, and issues more */
            r = cudaErrorStreamCaptureUnsupported;
        else
            r = s->api.cudaEventRecord(mark.event, mark.stream);
        pthread_mutex_lock(&s->lock);
        if (r != cudaSuccess)
            mesh_nccl__event_back(s, mark.event);
        else if (!mesh_nccl__mark_add(s, c, &mark))
            r = cudaErrorMemoryAllocation;
    }
    if (r == cudaSuccess || r == cudaErrorStreamCaptureUnsupported) return;
    c->marked = mark.issued;
    mesh_nccl__cuda_fail(s, &why, "cudaEventRecord", r);
    mesh_nccl__end(s, c, MESH_ERR_TRANSPORT, s->boot->rank, "%s", why.text);
}

/* An operation has been put on the device, by the main thread, inside: its ticket. On the group's own stream each has its mark, so that waiting
   for one does not wait for the next. On the caller's stream few do: what is put there comes after it anyway. */
static inline void mesh_nccl__issued(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_ticket *ticket) {
    ticket->impl = c;
    pthread_mutex_lock(&s->lock);
    if (c->capturing) { /* over at once for the host; the graph's stream can still be put behind it */
        ticket->id = MESH_TICKET_CAPTURED;
    } else {
        c->last_due = s->inside_until;
        if (c->issued == c->marked) c->due = c->last_due;
        ticket->id = ++c->issued;
        if (s->trouble.status == MESH_OK &&
            (c->on == c->stream || c->issued - c->marked >= MESH_NCCL__BETWEEN_MARKS))
            mesh_nccl__mark_now(s, c);
    }
    pthread_mutex_unlock(&s->lock);
    if (c->capturing && s->trouble.status == MESH_OK) {
        c->captured_on = c->on;
        mesh_nccl__put(s, "cudaEventRecord", s->api.cudaEventRecord(c->captured, c->on));
    }
}

/* A communicator that has ended still gives tickets. */
static inline void mesh_nccl__not_issued(mesh_nccl__comm *c, mesh_ticket *ticket) {
    ticket->impl = c;
    ticket->id = MESH_TICKET_CAPTURED - 1; /* after all that are valid */
}

/* Marks where nobody marks: a thread, because a stream whose queue is full keeps its caller. */
static void *mesh_nccl__marker(void *arg) {
    mesh_nccl__state *s = (mesh_nccl__state *)arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    mesh_nccl__capture_mode(s, &mode);
    s->api.cudaSetDevice(s->n->device);
    pthread_mutex_lock(&s->lock);
    while (!s->marks_stopping) {
        mesh_nccl__comm *c = s->comm;
        while (c && !c->marking) c = c->next;
        if (c) {
            mesh_nccl__mark_now(s, c);
            c->marking = 0;
            pthread_cond_broadcast(&s->out);
        } else {
            pthread_cond_wait(&s->want, &s->lock);
        }
    }
    s->marker_left = 1;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static inline mesh_status mesh_nccl__test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *c = (mesh_nccl__comm *)ticket->impl;
    mesh_status status = MESH_IN_PROGRESS;
    if (ticket->id == MESH_TICKET_CAPTURED) return MESH_OK;
    pthread_mutex_lock(&s->lock);
    mesh_nccl__poll(s, c, 0);
    if (c->ended ? ticket->id <= c->valid : ticket->id <= c->completed) {
        status = MESH_OK;
    } else if (c->ended && ((!c->nmarks && c->issued == c->marked) ||
                            mesh_nccl__now(s) > c->ended_at + INT64_C(5000000000))) {
        if (why) *why = c->why;
        status = (mesh_status)c->why.status;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* NCCL does not say who is awaited. */
static inline int mesh_nccl__pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    (void)t, (void)ticket, (void)ranks, (void)cap;
    return 0;
}

static inline mesh_status mesh_nccl__cancel(mesh_transport *t, mesh_ticket *ticket) {
    (void)t, (void)ticket; /* group_abort does it */
    return MESH_OK;
}

/* ---- // >>streams: the caller's order and the group's ---- */

static inline mesh__record mesh_nccl__no_record(uint64_t channel) {
    mesh__record r;
    memset(&r, 0, sizeof r);
    r.channel = channel;
    return r;
}

/* Put a stream behind an operation that has been issued, or is over. */
static inline void mesh_nccl__behind(mesh_nccl__state *s, mesh_nccl__comm *c, cudaStream_t stream, uint64_t id) {
    cudaEvent_t event = NULL;
    cudaStream_t on = NULL;
    int low = 0, high;
    pthread_mutex_lock(&s->lock);
    if (id > c->marked && !c->ended) mesh_nccl__mark_now(s, c);
    if (id > c->completed && c->nmarks) { /* the first mark that covers it */
        for (high = c->nmarks - 1; low < high;) {
            int middle = (low + high) / 2;
            if (mesh_nccl__mark_at(c, middle)->issued < id)
                low = middle + 1;
            else
                high = middle;
        }
        event = mesh_nccl__mark_at(c, low)->event;
        on = mesh_nccl__mark_at(c, low)->stream;
        s->held = event;
    }
    pthread_mutex_unlock(&s->lock);
    if (event && on != stream) mesh_nccl__put(s, "the caller's stream", s->api.cudaStreamWaitEvent(stream, event, 0));
    pthread_mutex_lock(&s->lock);
    if (s->held_is_over) s->event[s->nevents++] = s->held;
    s->held = NULL;
    s->held_is_over = 0;
    pthread_mutex_unlock(&s->lock);
}

/* From now on a communicator's operations go on `next`. The stream they went on may end then. */
static inline void mesh_nccl__go_on(mesh_nccl__state *s, mesh_nccl__comm *c, cudaStream_t next) {
    if (next == c->on) return;
    if (!c->capturing) {
        mesh_nccl__behind(s, c, next, c->issued);
    } else if (c->on == c->stream && mesh_nccl__capturing(s, c->stream)) { /* in this graph */
        cudaError_t r = s->api.cudaEventRecord(c->captured, c->stream);
        if (r == cudaSuccess) r = s->api.cudaStreamWaitEvent(next, c->captured, 0);
        mesh_nccl__put(s, "the caller's stream", r);
    }
    pthread_mutex_lock(&s->lock);
    while (c->marking) pthread_cond_wait(&s->out, &s->lock);
    c->on = next;
    pthread_mutex_unlock(&s->lock);
}

static inline mesh_status mesh_nccl__fence(mesh_transport *t, void *group, void *stream, int direction) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh_nccl__comm *c = g->c;
    mesh__record none = mesh_nccl__no_record(0);
    cudaStream_t caller = (cudaStream_t)stream, next = direction == MESH_FENCE_ON ? caller : c->stream;
    if (next == caller && next == c->on) { /* nothing to order: most calls */
        c->capturing = mesh_nccl__capturing(s, caller);
        return MESH_OK;
    }
    if (!mesh_nccl__enter(s, c, &none, mesh_nccl__now(s) + g->timeout)) return MESH_OK;
    c->capturing = mesh_nccl__capturing(s, caller);
    if (next != caller) {
        cudaError_t r = s->api.cudaEventRecord(c->enter, caller);
        if (r == cudaSuccess) r = s->api.cudaStreamWaitEvent(next, c->enter, 0);
        mesh_nccl__put(s, "the caller's stream", r);
    }
    mesh_nccl__go_on(s, c, next);
    mesh_nccl__leave(s, c);
    return MESH_OK;
}

static inline mesh_status mesh_nccl__stream_wait(mesh_transport *t, void *group, const mesh_ticket *ticket,
                                                 void *stream) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh_nccl__comm *c = (mesh_nccl__comm *)ticket->impl;
    mesh__record none = mesh_nccl__no_record(0);
    mesh_status status;
    if (ticket->id != MESH_TICKET_CAPTURED && c->on == (cudaStream_t)stream && c->on != c->stream) {
        pthread_mutex_lock(&s->lock);
        status = c->ended ? (mesh_status)c->why.status : MESH_OK;
        pthread_mutex_unlock(&s->lock);
        return status;
    }
    if (!mesh_nccl__enter(s, c, &none, mesh_nccl__now(s) + g->timeout))
        return (mesh_status)c->why.status; /* the engine asks test why */
    if (ticket->id != MESH_TICKET_CAPTURED)
        mesh_nccl__behind(s, c, (cudaStream_t)stream, ticket->id);
    else if (c->captured_on != (cudaStream_t)stream && mesh_nccl__capturing(s, (cudaStream_t)stream))
        mesh_nccl__put(s, "the caller's stream", s->api.cudaStreamWaitEvent((cudaStream_t)stream, c->captured, 0));
    status = (mesh_status)s->trouble.status;
    mesh_nccl__leave(s, c);
    return status;
}

/* ---- // >>bytes: copies, zeros and reductions on the device ---- */

/* An array of bytes for kernels, in units of `width`. */
static inline void mesh_nccl__kernel_block(mesh__kernel_block *to, int *ndim, const mesh_block *b, uint64_t width) {
    int i;
    *ndim = 0;
    if (!b || !b->ndim) return;
    *ndim = b->ndim;
    to->run = b->run / width;
    for (i = 0; i < b->ndim; i++) to->count[i] = b->dim[i].count, to->stride[i] = b->dim[i].stride;
}

static inline cudaError_t mesh_nccl__launch_on(mesh_nccl__state *s, cudaStream_t on, int kernel, void *args,
                                               uint64_t blocks) {
    void *list[1];
    dim3 grid, block;
    list[0] = args;
    block.x = 256, block.y = block.z = 1;
    grid.x = (unsigned)(blocks < 2048 ? blocks : 2048), grid.y = grid.z = 1;
    return s->api.cudaLaunchKernel(s->kernel[kernel], grid, block, list, 0, on);
}

static inline cudaError_t mesh_nccl__launch(mesh_nccl__state *s, mesh_nccl__comm *c, int kernel,
                                            mesh__kernel_args *args) {
    return args->count ? mesh_nccl__launch_on(s, c->on, kernel, args, (args->count + 255) / 256) : cudaSuccess;
}

/* The widest unit, as a power of two from 0 to 4, that divides an address and a block. */
static inline uint64_t mesh_nccl__bits(const void *p, const mesh_block *b) {
    uint64_t bits = (uint64_t)(uintptr_t)p;
    int i;
    if (b && b->ndim) bits |= b->run;
    for (i = 0; b && i < b->ndim; i++)
        if (b->dim[i].count > 1) bits |= (uint64_t)b->dim[i].stride;
    return bits;
}

static inline int mesh_nccl__unit(uint64_t bits) {
    int k = 0;
    while (k < 4 && !(bits >> k & 1)) k++;
    return k;
}

/* A block as rows of a 2-D copy: 1 and where they begin next, or 0 if it has more dims. */
static inline int mesh_nccl__rows(const mesh_block *b, uint64_t *width, uint64_t *pitch, uint64_t *rows) {
    int i, found = 0;
    for (i = 0; b && i < b->ndim; i++) {
        if (b->dim[i].count == 1) continue;
        if (found++) return 0;
        *pitch = (uint64_t)b->dim[i].stride;
        *rows = (uint64_t)b->dim[i].count;
    }
    if (found) *width = b->run;
    return found && *pitch >= *width && *pitch < INT32_MAX;
}

/* Copy without kernels: as 2-D copies where both sides are rows of one width, else run by run. */
static inline cudaError_t mesh_nccl__copy_rows(mesh_nccl__state *s, mesh_nccl__comm *c, void *dst, const mesh_block *db,
                                               const void *src, const mesh_block *sb, uint64_t nbytes) {
    uint64_t dw = nbytes, sw = nbytes, dp = 0, sp = 0, drows = 1, srows = 1, left, n;
    int d2 = mesh_nccl__rows(db, &dw, &dp, &drows), s2 = mesh_nccl__rows(sb, &sw, &sp, &srows);
    mesh_xfer from, to;
    mesh__cursor a, b;
    cudaError_t r = cudaSuccess;
    if (!src && d2) return s->api.cudaMemset2DAsync(dst, (size_t)dp, 0, (size_t)dw, (size_t)drows, c->on);
    if (src && (d2 || !db || !db->ndim) && (s2 || !sb || !sb->ndim) && (d2 || s2) && (!d2 || !s2 || dw == sw)) {
        uint64_t width = d2 ? dw : sw;
        return s->api.cudaMemcpy2DAsync(dst, (size_t)(d2 ? dp : width), src, (size_t)(s2 ? sp : width), (size_t)width,
                                        (size_t)(nbytes / width), cudaMemcpyDefault, c->on);
    }
    memset(&from, 0, sizeof from);
    memset(&to, 0, sizeof to);
    to.base = dst, to.block = db && db->ndim ? db : NULL, to.nbytes = nbytes;
    from.base = src ? (void *)(uintptr_t)src : dst, from.block = src && sb && sb->ndim ? sb : NULL,
    from.nbytes = nbytes;
    a = mesh__cursor_on(&to);
    b = mesh__cursor_on(&from);
    for (left = nbytes; left && r == cudaSuccess; left -= n) {
        n = a.left < b.left ? a.left : b.left;
        r = src ? s->api.cudaMemcpyAsync(a.p, b.p, (size_t)n, cudaMemcpyDefault, c->on)
                : s->api.cudaMemsetAsync(a.p, 0, (size_t)n, c->on);
        mesh__cursor_move(&a, n);
        mesh__cursor_move(&b, n);
    }
    return r;
}

static inline cudaError_t mesh_nccl__move(mesh_nccl__state *s, mesh_nccl__comm *c, void *dst, const mesh_block *db,
                                          const void *src, const mesh_block *sb, uint64_t nbytes) {
    uint64_t row = nbytes;
    mesh__kernel_args args;
    int unit;
    if (!nbytes || dst == src) return cudaSuccess;
    if (db && db->ndim) row = db->run;
    if (sb && sb->ndim && src && sb->run < row) row = sb->run;
    if (row == nbytes && src) return s->api.cudaMemcpyAsync(dst, src, (size_t)nbytes, cudaMemcpyDefault, c->on);
    if (row == nbytes) return s->api.cudaMemsetAsync(dst, 0, (size_t)nbytes, c->on);
    if (row >= MESH_NCCL__NARROW || !s->has_kernels) return mesh_nccl__copy_rows(s, c, dst, db, src, sb, nbytes);
    unit = mesh_nccl__unit(mesh_nccl__bits(dst, db) | (src ? mesh_nccl__bits(src, sb) : 0) | nbytes);
    memset(&args, 0, sizeof args);
    args.dst = (uint64_t)(uintptr_t)dst;
    args.src = (uint64_t)(uintptr_t)src;
    args.count = nbytes >> unit;
    mesh_nccl__kernel_block(&args.to, &args.to_ndim, db, UINT64_C(1) << unit);
    if (src) mesh_nccl__kernel_block(&args.from, &args.from_ndim, sb, UINT64_C(1) << unit);
    return mesh_nccl__launch(s, c, (src ? (int)MESH_NCCL__mesh_move_1 : (int)MESH_NCCL__mesh_zero_1) + unit, &args);
}

/* dst = dst op src, or dst / divide, on the device. cudaErrorNotSupported: there is no kernel. */
static inline cudaError_t mesh_nccl__combine(mesh_nccl__state *s, mesh_nccl__comm *c, int op, int dtype, void *dst,
                                             const mesh_block *db, const void *src, const mesh_block *sb,
                                             uint64_t count, int divide) {
    static const int reduce[] = {
        MESH_NCCL__mesh_reduce_f32, MESH_NCCL__mesh_reduce_f64, MESH_NCCL__mesh_reduce_f16, MESH_NCCL__mesh_reduce_bf16,
        MESH_NCCL__mesh_reduce_i8,  MESH_NCCL__mesh_reduce_u8,  MESH_NCCL__mesh_reduce_i16, MESH_NCCL__mesh_reduce_u16,
        MESH_NCCL__mesh_reduce_i32, MESH_NCCL__mesh_reduce_u32, MESH_NCCL__mesh_reduce_i64, MESH_NCCL__mesh_reduce_u64,
        MESH_NCCL__mesh_reduce_c64, MESH_NCCL__mesh_reduce_c128}; /* in the order of mesh_dtype */
    static const int division[] = {MESH_NCCL__mesh_divide_f32, MESH_NCCL__mesh_divide_f64, MESH_NCCL__mesh_divide_f16,
                                   MESH_NCCL__mesh_divide_bf16};
    uint64_t width = mesh_dtype_bytes((mesh_dtype)dtype);
    mesh__kernel_args args;
    if (!s->has_kernels || (unsigned)dtype >= sizeof reduce / sizeof *reduce) return cudaErrorNotSupported;
    if (divide && mesh__is_complex(dtype)) { /* as twice as many numbers */
        dtype = dtype == MESH_C64 ? MESH_F32 : MESH_F64;
        width /= 2;
        count *= 2;
    }
    if (divide && (unsigned)dtype >= sizeof division / sizeof *division) return cudaErrorNotSupported;
    memset(&args, 0, sizeof args);
    args.dst = (uint64_t)(uintptr_t)dst;
    args.src = (uint64_t)(uintptr_t)src;
    args.count = count;
    args.op = op;
    args.divide = divide;
    mesh_nccl__kernel_block(&args.to, &args.to_ndim, db, width);
    if (!divide) mesh_nccl__kernel_block(&args.from, &args.from_ndim, sb, width);
    return mesh_nccl__launch(s, c, divide ? division[dtype] : reduce[dtype], &args);
}

static inline mesh_status mesh_nccl__copy(mesh_transport *t, void *group, void *dst, const mesh_block *db,
                                          const void *src, const mesh_block *sb, uint64_t nbytes) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh__record none = mesh_nccl__no_record(0);
    if (!mesh_nccl__enter(s, g->c, &none, mesh_nccl__now(s) + g->timeout)) return MESH_OK;
    mesh_nccl__put(s, "a copy", mesh_nccl__move(s, g->c, dst, db, src, sb, nbytes));
    mesh_nccl__leave(s, g->c);
    return MESH_OK; /* what went wrong is told by the operation's mark */
}

static inline mesh_status mesh_nccl__reduce(mesh_transport *t, void *group, int op, int dtype, void *dst,
                                            const mesh_block *db, const void *src, const mesh_block *sb, uint64_t count,
                                            int divide) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh__record none = mesh_nccl__no_record(0);
    if (!mesh_nccl__enter(s, g->c, &none, mesh_nccl__now(s) + g->timeout)) return MESH_OK;
    mesh_nccl__put(s, "a reduction", mesh_nccl__combine(s, g->c, op, dtype, dst, db, src, sb, count, divide));
    mesh_nccl__leave(s, g->c);
    return MESH_OK;
}

/* ---- // >>control plane: the bootstrap's, shared with the watchdog ---- */

static inline void mesh_nccl__history_heard(mesh_nccl__state *s, const mesh_control *m);

/* For the engine. The caller holds boot_lock. */
static inline int mesh_nccl__mail_add(mesh_nccl__state *s, const mesh_control *m) {
    mesh_nccl__mail *mail = (mesh_nccl__mail *)mesh_transport_alloc(s->boot, sizeof *mail);
    if (!mail) return 0; /* the deadline tells */
    mail->next = NULL;
    mail->acted = 0;
    mail->came = mesh_nccl__now(s);
    mail->m = *m;
    *s->mail_end = mail;
    s->mail_end = &mail->next;
    return 1;
}

/* Take what has come over the bootstrap. The caller holds boot_lock. Returns 1 if something did. */
static inline int mesh_nccl__listen(mesh_nccl__state *s) {
    mesh_control m;
    int heard = 0;
    while (s->boot->ops->control_poll(s->boot, &m) == MESH_OK) {
        if (m.kind == MESH_EVENT_LOST || m.kind == MESH_EVENT_CLOSED) s->gone[m.rank] = (unsigned char)m.kind;
        if (m.kind == MESH_EVENT_MESSAGE && m.nbytes >= 4 && mesh__get32(m.data) == MESH_NCCL__MSG_HISTORY)
            mesh_nccl__history_heard(s, &m);
        else
            heard |= mesh_nccl__mail_add(s, &m);
    }
    return heard;
}

static inline int mesh_nccl__has_rank(const mesh_nccl__comm *c, int rank) {
    int i;
    for (i = 0; i < c->size && c->rank[i] != rank; i++) {}
    return i < c->size;
}

/* End the communicators that the mail is about: those with a lost rank, those of a comm that failed elsewhere. The caller holds both locks. */
static inline void mesh_nccl__act(mesh_nccl__state *s) {
    mesh_nccl__mail *mail;
    mesh_nccl__comm *c;
    mesh_nccl__group *g;
    for (mail = s->mail; mail; mail = mail->next) {
        const mesh_control *m = &mail->m;
        if (mail->acted) continue;
        mail->acted = 1;
        if (m->kind == MESH_EVENT_LOST)
            for (c = s->comm; c; c = c->next)
                if ((c->serial || c->connecting) && mesh_nccl__has_rank(c, m->rank)) /* one that is being joined looks after itself */
                    mesh_nccl__end(s, c, MESH_ERR_PEER, m->rank, "rank %d was lost", m->rank);
        if (m->kind == MESH_EVENT_ABORT && m->nbytes >= 4)
            for (g = s->group; g; g = g->next)
                if (g->id >> 8 == mesh__get32(m->data))
                    mesh_nccl__end(s, g->c, MESH_ERR_CANCELED, m->rank, "rank %d ended it", m->rank);
    }
}

static inline mesh_status mesh_nccl__control_send(mesh_transport *t, int rank, int kind, const void *data,
                                                  size_t nbytes) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_status status;
    pthread_mutex_lock(&s->boot_lock);
    status = s->boot->ops->control_send(s->boot, rank, kind, data, nbytes);
    pthread_mutex_unlock(&s->boot_lock);
    return status;
}

static inline mesh_status mesh_nccl__control_flush(mesh_transport *t, int64_t deadline) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_status status = MESH_OK;
    if (s->boot->ops->struct_size <= offsetof(mesh_ops, control_flush) || !s->boot->ops->control_flush) return MESH_OK;
    do { /* a little at a time: the watchdog listens too */
        int64_t now = s->boot->ops->now(s->boot);
        pthread_mutex_lock(&s->boot_lock);
        status = s->boot->ops->control_flush(s->boot, now + 1000000 < deadline ? now + 1000000 : deadline);
        pthread_mutex_unlock(&s->boot_lock);
    } while (status == MESH_IN_PROGRESS && s->boot->ops->now(s->boot) < deadline);
    return status;
}

static inline mesh_status mesh_nccl__control_poll(mesh_transport *t, mesh_control *out) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__mail *mail;
    pthread_mutex_lock(&s->boot_lock);
    mesh_nccl__listen(s);
    if ((mail = s->mail) != NULL) {
        pthread_mutex_lock(&s->lock);
        mesh_nccl__act(s);
        pthread_mutex_unlock(&s->lock);
        *out = mail->m;
        s->mail = mail->next;
        if (!s->mail) s->mail_end = &s->mail;
        mesh_transport_free(s->boot, mail);
    }
    pthread_mutex_unlock(&s->boot_lock);
    return mail ? MESH_OK : MESH_IN_PROGRESS;
}

/* Every communicator's events, and now and then NCCL's own errors. The caller holds `lock`. */
static inline void mesh_nccl__look(mesh_nccl__state *s) {
    mesh_nccl__comm *c;
    int ask = mesh_nccl__now(s) - s->asked > 1000000;
    if (ask) s->asked = mesh_nccl__now(s);
    for (c = s->comm; c; c = c->next) {
        ncclResult_t r = ncclSuccess;
        mesh_nccl__poll(s, c, 1);
        if (c->past.disagreed && mesh_nccl__now(s) > c->past.disagreed + MESH_NCCL__DISAGREE_NS)
            mesh_nccl__end(s, c, MESH_ERR_MISMATCH, -1,
                           "the ranks have not called the same before this barrier: what they called is no longer "
                           "remembered; MESH_NCCL_DEBUG=1 tells at the call");
        if (!ask || !c->comm || c->ended || c->issued == c->completed) continue;
        if (s->api.ncclCommGetAsyncError(c->comm, &r) == ncclSuccess && r != ncclSuccess && r != ncclInProgress) {
            mesh_error why;
            if (!c->doubted) c->doubted = s->asked;
            if ((r == ncclRemoteError || r == ncclSystemError) && s->asked - c->doubted < INT64_C(1000000000))
                continue; /* the control plane is about to say which rank was lost */
            mesh_nccl__fail(s, &why, "NCCL", r);
            mesh_nccl__end(s, c, MESH_ERR_TRANSPORT, s->boot->rank, "%s", why.text);
        }
    }
}

/* What another engine understands as the end of a comm. Returns its length. */
static inline size_t mesh_nccl__abort_write(unsigned char *data, uint32_t comm, const mesh_error *why) {
    memset(data, 0, MESH_CONTROL_BYTES);
    mesh__put32(data, comm);
    mesh__put32(data + 4, (uint32_t)why->status);
    mesh__put32(data + 8, (uint32_t)why->rank);
    mesh__copy_text((char *)data + MESH__ABORT_HEAD, (size_t)MESH_CONTROL_BYTES - (size_t)MESH__ABORT_HEAD, why->text);
    return MESH__ABORT_HEAD + strlen(why->text);
}

/* ---- // >>histories: do all ranks of a communicator call the same? ----
   NCCL does not look: 999 elements here and 1,000 there may complete (its chunks are rounded up to 16 bytes), and the tail is wrong. So each rank
   remembers a hash of all its calls, by position, and tells the next rank of the list from time to time: where all neighbours agree, all do.
   Messages between watchdogs, so that a program that computes is compared too. */

/* The main thread has made one more call. The caller holds `lock`. */
static inline void mesh_nccl__remember(mesh_nccl__comm *c, const mesh_call *call) {
    mesh_nccl__history *h = &c->past;
    mesh_nccl__past now;
    uint64_t every = 1;
    int level;
    now.position = ++h->position;
    now.history = h->history = mesh__mix(h->history, call->check);
    h->recent[now.position % MESH_NCCL__RECENT] = *call->record;
    for (level = 0; level < MESH_NCCL__LEVELS && now.position % every == 0; level++, every *= MESH_NCCL__RECENT)
        h->past[level][now.position / every % MESH_NCCL__RECENT] = now;
}

/* {MSG_HISTORY, calls in it, serial, LEVELS times {position, history}, calls: {history, record}}: the last call is at level 0's position. */
enum {
    MESH_NCCL__PAST_BYTES = 16,
    MESH_NCCL__HISTORY_HEAD = 16 + MESH_NCCL__LEVELS * MESH_NCCL__PAST_BYTES,
    MESH_NCCL__CALL_BYTES = 8 + MESH__RECORD_BYTES,
    MESH_NCCL__TOLD = 8, /* calls in a message */
    MESH_NCCL__HISTORY_BYTES = MESH_NCCL__HISTORY_HEAD + MESH_NCCL__TOLD * MESH_NCCL__CALL_BYTES
};
typedef char mesh_nccl__history_fits[(int)MESH_NCCL__HISTORY_BYTES <= (int)MESH_CONTROL_BYTES ? 1 : -1];

/* The caller holds both locks. */
static inline void mesh_nccl__history_tell(mesh_nccl__state *s, mesh_nccl__comm *c) {
    mesh_nccl__history *h = &c->past;
    unsigned char d[MESH_NCCL__HISTORY_BYTES];
    uint32_t n = h->position < MESH_NCCL__TOLD ? (uint32_t)h->position : (uint32_t)MESH_NCCL__TOLD, i;
    uint64_t every = 1;
    int level;
    mesh__put32(d, MESH_NCCL__MSG_HISTORY);
    mesh__put32(d + 4, n);
    mesh__put64(d + 8, c->serial);
    for (level = 0; level < MESH_NCCL__LEVELS; level++, every *= MESH_NCCL__RECENT) {
        const mesh_nccl__past *past = &h->past[level][h->position / every % MESH_NCCL__RECENT];
        mesh__put64(d + 16 + level * MESH_NCCL__PAST_BYTES, past->position);
        mesh__put64(d + 24 + level * MESH_NCCL__PAST_BYTES, past->history);
    }
    for (i = 0; i < n; i++) {
        uint64_t at = (h->position - n + 1 + i) % MESH_NCCL__RECENT;
        mesh__put64(d + MESH_NCCL__HISTORY_HEAD + i * MESH_NCCL__CALL_BYTES, h->past[0][at].history);
        mesh__record_write(d + MESH_NCCL__HISTORY_HEAD + i * MESH_NCCL__CALL_BYTES + 8, &h->recent[at]);
    }
    h->told = h->position;
    h->told_at = mesh_nccl__now(s);
    s->boot->ops->control_send(s->boot, c->rank[(c->index + 1) % c->size], MESH_EVENT_MESSAGE, d,
                               MESH_NCCL__HISTORY_HEAD + n * MESH_NCCL__CALL_BYTES);
}

/* This rank's history at a position: 0 if it is not remembered, or not reached. */
static inline int mesh_nccl__history_at(const mesh_nccl__history *h, int level, uint64_t position, uint64_t *history) {
    uint64_t every = level == 0 ? 1 : level == 1 ? MESH_NCCL__RECENT : MESH_NCCL__RECENT * MESH_NCCL__RECENT;
    const mesh_nccl__past *past = &h->past[level][position / every % MESH_NCCL__RECENT];
    *history = past->history;
    return position && past->position == position;
}

/* Two ranks have called differently: every rank of the comm hears it, this one included, and names both calls where it is known which. The
   caller holds both locks. */
static inline void mesh_nccl__history_differs(mesh_nccl__state *s, mesh_nccl__comm *c, int other,
                                              const mesh__record *mine, const mesh__record *theirs) {
    const mesh_nccl__group *whole = s->group;
    const mesh_nccl__comm *all;
    mesh_control m;
    mesh_error why;
    int i;
    while (whole && whole->id != c->owner << 8) whole = whole->next;
    all = whole ? whole->c : c;
    memset(&m, 0, sizeof m);
    mesh__fail(&why, MESH_ERR_MISMATCH, other,
               mine ? "ranks %d and %d have called differently"
                    : "ranks %d and %d have called differently, and no longer remember where; MESH_NCCL_DEBUG=1 tells at the call",
               other, s->boot->rank);
    m.kind = MESH_EVENT_ABORT;
    m.nbytes = (uint32_t)mesh_nccl__abort_write(m.data, c->owner, &why);
    mesh__put32(m.data + 12, mine ? MESH__ABORT_DISPUTE : MESH__ABORT_PLAIN);
    if (mine) mesh__record_write(m.data + 16, mine);
    for (i = 0; i < all->size; i++)
        if (i != all->index) s->boot->ops->control_send(s->boot, all->rank[i], MESH_EVENT_ABORT, m.data, m.nbytes);
    if (theirs) mesh__record_write(m.data + 16, theirs);
    m.rank = other;
    mesh_nccl__mail_add(s, &m);
    mesh_nccl__end(s, c, MESH_ERR_CANCELED, other, "%s", why.text);
}

/* Compare what the rank before has told with what this one has called. The caller holds both locks. */
static inline void mesh_nccl__history_compare(mesh_nccl__state *s, mesh_nccl__comm *c) {
    mesh_nccl__history *h = &c->past;
    const unsigned char *d = h->theirs, *calls = d + MESH_NCCL__HISTORY_HEAD;
    uint64_t last = mesh__get64(d + 16), n = mesh__get32(d + 4), history, i;
    int other = c->rank[(c->index + c->size - 1) % c->size], level, agreed = last == n; /* before the first call they do */
    for (i = 0; i < n; i++) {
        mesh__record theirs;
        uint64_t at = last - n + 1 + i;
        if (!mesh_nccl__history_at(h, 0, at, &history)) continue;
        if (history == mesh__get64(calls + i * MESH_NCCL__CALL_BYTES)) {
            agreed = 1;
            continue;
        }
        mesh__record_read(&theirs, calls + i * MESH_NCCL__CALL_BYTES + 8);
        if (agreed && !mesh__record_same(&h->recent[at % MESH_NCCL__RECENT], &theirs))
            mesh_nccl__history_differs(s, c, other, &h->recent[at % MESH_NCCL__RECENT], &theirs);
        else
            mesh_nccl__history_differs(s, c, other, NULL, NULL);
        return;
    }
    for (level = 1; level < MESH_NCCL__LEVELS; level++)
        if (mesh_nccl__history_at(h, level, mesh__get64(d + 16 + level * MESH_NCCL__PAST_BYTES), &history) &&
            history != mesh__get64(d + 24 + level * MESH_NCCL__PAST_BYTES)) {
            mesh_nccl__history_differs(s, c, other, NULL, NULL);
            return;
        }
    if (last <= h->position) h->has_theirs = 0;
}

/* The caller holds boot_lock. */
static inline void mesh_nccl__history_heard(mesh_nccl__state *s, const mesh_control *m) {
    mesh_nccl__comm *c;
    uint32_t n = m->nbytes >= MESH_NCCL__HISTORY_HEAD ? mesh__get32(m->data + 4) : UINT32_MAX;
    if (n > MESH_NCCL__TOLD || m->nbytes != MESH_NCCL__HISTORY_HEAD + n * MESH_NCCL__CALL_BYTES ||
        mesh__get64(m->data + 16) < n)
        return;
    pthread_mutex_lock(&s->lock);
    for (c = s->comm; c && c->serial != mesh__get64(m->data + 8); c = c->next) {}
    if (c && c->size > 1 && c->rank[(c->index + c->size - 1) % c->size] == m->rank) {
        memcpy(c->past.theirs, m->data, m->nbytes);
        c->past.has_theirs = 1;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Tell and compare. The caller holds boot_lock. */
static inline void mesh_nccl__histories(mesh_nccl__state *s) {
    mesh_nccl__comm *c;
    int64_t now = mesh_nccl__now(s);
    pthread_mutex_lock(&s->lock);
    for (c = s->comm; c; c = c->next) {
        mesh_nccl__history *h = &c->past;
        if (c->size == 1 || c->ended || !c->refs) continue;
        if (h->told != h->position && now >= h->told_at + MESH_NCCL__COMPARE_NS) mesh_nccl__history_tell(s, c);
        if (h->has_theirs) mesh_nccl__history_compare(s, c);
    }
    pthread_mutex_unlock(&s->lock);
}

static inline mesh_status mesh_nccl__progress(mesh_transport *t, int64_t deadline) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    int64_t start = mesh_nccl__now(s), now = start;
    mesh_nccl__comm *c;
    int rounds;
    for (c = s->comm; c && deadline > now; c = c->next) { /* the host waits: the ends are to be seen */
        pthread_mutex_lock(&s->lock);
        if (!c->marking) mesh_nccl__mark_now(s, c);
        pthread_mutex_unlock(&s->lock);
    }
    for (rounds = 0;; rounds++) {
        int happened;
        mesh_status status = MESH_OK;
        pthread_mutex_lock(&s->lock);
        mesh_nccl__look(s);
        happened = s->news;
        s->news = 0;
        pthread_mutex_unlock(&s->lock);
        now = mesh_nccl__now(s);
        if (happened || rounds % 16 == 0 || now - start > 50000) {
            /* The bootstrap sleeps for us: it wakes for messages, and events are looked at often enough. */
            int64_t nap = now - start > 50000 ? (now - start) / 8 : 0;
            if (nap > 200000) nap = 200000;
            if (happened || now >= deadline) nap = 0;
            pthread_mutex_lock(&s->boot_lock);
            status = s->boot->ops->progress(s->boot, nap ? now + nap : 0);
            happened |= mesh_nccl__listen(s) || s->mail != NULL;
            if (!s->watching) mesh_nccl__histories(s);
            pthread_mutex_unlock(&s->boot_lock);
        }
        if (status < 0) return status;
        if (happened || now >= deadline) return MESH_OK;
    }
}

static inline int64_t mesh_nccl__clock(mesh_transport *t) { return mesh_nccl__now(mesh_nccl__of(t)); }

/* ---- // >>watchdog: a thread that listens, compares, and ends communicators ---- */

static inline void mesh_nccl__watch_deadlines(mesh_nccl__state *s) {
    mesh_nccl__comm *c;
    int64_t now = mesh_nccl__now(s);
    for (c = s->comm; c; c = c->next) {
        if (c->ended) continue;
        if (c->nmarks && now > mesh_nccl__mark_at(c, 0)->deadline + MESH_NCCL__GRACE_NS)
            mesh_nccl__end(s, c, MESH_ERR_TIMEOUT, -1, "the device has not finished it at its deadline");
        /* Without a mark, at its deadline: the marker is kept by a queue that has been full since. */
        else if (c->marking && now > c->marking + MESH_NCCL__GRACE_NS && now > c->due + MESH_NCCL__GRACE_NS)
            mesh_nccl__end(s, c, MESH_ERR_TIMEOUT, -1, "the caller's stream does not move, and its queue is full");
    }
    if (s->inside && now > s->inside_until + MESH_NCCL__GRACE_NS)
        mesh_nccl__end(s, s->inside, MESH_ERR_TIMEOUT, -1, "NCCL has not taken it at its deadline");
}

/* A main thread inside NCCL, where a first message or algorithm waits for its peers, does not answer a roll call: it has called what it is in,
   and what came before. Nor does one that computes; what it has called goes on without it, so that it is not to blame for that. What it has
   not called it may call yet: silence. The caller holds both locks. */
static inline void mesh_nccl__answer_rolls(mesh_nccl__state *s) {
    mesh_nccl__mail **at = &s->mail, *mail;
    int64_t now = mesh_nccl__now(s);
    int inside = s->inside && now >= s->inside_since + MESH_NCCL__TICK_NS, called;
    while ((mail = *at) != NULL) {
        unsigned char here[MESH__HERE_BYTES];
        const mesh_nccl__group *g;
        mesh__record asked;
        if (mail->m.kind != MESH_EVENT_MESSAGE || mail->m.nbytes < MESH__ROLL_BYTES ||
            mesh__get32(mail->m.data) != MESH__MSG_ROLL || now < mail->came + MESH_NCCL__TICK_NS) {
            at = &mail->next;
            continue;
        }
        mesh__record_read(&asked, mail->m.data + 16);
        for (g = s->group; g && g->id != (uint32_t)(asked.channel >> 32); g = g->next) {}
        called = g && (uint32_t)asked.channel && g->sequence >= (uint32_t)asked.channel;
        if (!inside && !called) {
            at = &mail->next;
            continue;
        }
        memset(here, 0, sizeof here);
        mesh__put32(here, MESH__MSG_HERE);
        mesh__put32(here + 4, mesh__get32(mail->m.data + 4));
        mesh__put32(here + 8, (uint32_t)called);
        if (inside && s->inside_record.kind) mesh__record_write(here + 12, &s->inside_record);
        s->boot->ops->control_send(s->boot, mail->m.rank, MESH_EVENT_MESSAGE, here, sizeof here);
        *at = mail->next;
        if (!*at) s->mail_end = at;
        mesh_transport_free(s->boot, mail);
    }
}

static void *mesh_nccl__watch(void *arg) {
    mesh_nccl__state *s = (mesh_nccl__state *)arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    mesh_nccl__capture_mode(s, &mode); /* of this thread: captures elsewhere are not its business */
    s->api.cudaSetDevice(s->n->device);
    for (;;) {
        struct timespec until;
        mesh_nccl__comm *c;
        int listening, stop;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += MESH_NCCL__TICK_NS;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_mutex_lock(&s->watch_lock);
        if (!s->stopping) pthread_cond_timedwait(&s->wake, &s->watch_lock, &until);
        stop = s->stopping;
        pthread_mutex_unlock(&s->watch_lock);
        if (stop) return NULL;
        listening = pthread_mutex_trylock(&s->boot_lock) == 0; /* else the main thread listens */
        if (listening) {
            s->boot->ops->progress(s->boot, 0);
            mesh_nccl__listen(s);
        }
        pthread_mutex_lock(&s->lock);
        if (listening) mesh_nccl__act(s);
        mesh_nccl__look(s);
        mesh_nccl__watch_deadlines(s);
        if (listening) mesh_nccl__answer_rolls(s);
        for (c = s->comm; c && s->marks; c = c->next) mesh_nccl__want_mark(s, c);
        pthread_mutex_unlock(&s->lock);
        if (listening) {
            mesh_nccl__histories(s);
            pthread_mutex_unlock(&s->boot_lock);
        }
    }
}

/* ---- // >>agreement: every rank of a list says how it stands, the first one decides ---- */

enum { MESH_NCCL__KEEP, MESH_NCCL__MAKE };

/* What a rank has to say, and the answer: all ranks end with the same. */
typedef struct mesh_nccl__vote {
    mesh_status status;
    int action;
    uint64_t serial; /* in: of the communicator it has, or 0; out: of the one to use */
    uint64_t newest; /* the greatest it has met */
    ncclUniqueId id;
    mesh_error why;
} mesh_nccl__vote;

static inline void mesh_nccl__vote_write(unsigned char *d, const mesh_nccl__vote *v) {
    memset(d, 0, MESH_NCCL__VOTE_BYTES);
    mesh__put32(d, (uint32_t)v->status);
    mesh__put32(d + 4, (uint32_t)v->action);
    mesh__put32(d + 8, (uint32_t)v->why.rank);
    mesh__put64(d + 12, v->serial);
    mesh__put64(d + 20, v->newest);
    memcpy(d + 28, v->id.internal, 128);
    if (v->status != MESH_OK) mesh__copy_text((char *)d + 156, MESH_NCCL__VOTE_BYTES - 156, v->why.text);
}

static inline void mesh_nccl__vote_read(mesh_nccl__vote *v, const unsigned char *d) {
    v->status = (mesh_status)(int)mesh__get32(d);
    v->action = (int)mesh__get32(d + 4);
    v->serial = mesh__get64(d + 12);
    v->newest = mesh__get64(d + 20);
    memcpy(v->id.internal, d + 28, 128);
    if (v->status != MESH_OK) mesh__fail(&v->why, v->status, (int)mesh__get32(d + 8), "%s", (const char *)d + 156);
}

/* Has another rank said that this comm is over? The engine has yet to read it. */
static inline int mesh_nccl__is_ended(const mesh_nccl__state *s, uint32_t comm) {
    const mesh_nccl__mail *mail;
    for (mail = s->mail; mail; mail = mail->next)
        if (mail->m.kind == MESH_EVENT_ABORT && mail->m.nbytes >= 4 && mesh__get32(mail->m.data) == comm) return 1;
    return 0;
}

/* Who calls the roll of a comm while this rank closes hears that it has left; not at once, as why it left may be on its way from another. */
static inline void mesh_nccl__turn_away(mesh_nccl__state *s) {
    mesh_nccl__mail *mail;
    for (mail = s->mail; mail; mail = mail->next) {
        unsigned char data[MESH_CONTROL_BYTES];
        mesh__record asked;
        mesh_error why;
        if (mail->acted > 1 || mail->m.kind != MESH_EVENT_MESSAGE || mail->m.nbytes < MESH__ROLL_BYTES ||
            mesh__get32(mail->m.data) != MESH__MSG_ROLL || mesh_nccl__now(s) < mail->came + INT64_C(300000000))
            continue;
        mail->acted = 2;
        mesh__record_read(&asked, mail->m.data + 16);
        mesh__fail(&why, MESH_ERR_PEER, s->boot->rank, "rank %d has closed its transport while it was needed",
                   s->boot->rank);
        s->boot->ops->control_send(s->boot, mail->m.rank, MESH_EVENT_ABORT, data,
                                   mesh_nccl__abort_write(data, (uint32_t)(asked.channel >> 40), &why));
    }
}

/* Ranks that take part in something: when one of them is lost, the others do not wait for each other. */
typedef struct mesh_nccl__party {
    const int *rank;
    int size, heed; /* heed: also give up when one of them ends the comm */
} mesh_nccl__party;

static inline mesh_nccl__party mesh_nccl__party_of(const int *rank, int size, int heed) {
    mesh_nccl__party p;
    p.rank = rank;
    p.size = size;
    p.heed = heed;
    return p;
}

/* Why not to wait for a rank any longer. */
static inline mesh_status mesh_nccl__is_over(const mesh_nccl__state *s, const mesh_nccl__party *p, int rank,
                                             uint32_t comm, mesh_error *why) {
    int i;
    for (i = 0; i < p->size; i++)
        if (s->gone[p->rank[i]] == MESH_EVENT_LOST)
            return mesh__fail(why, MESH_ERR_PEER, p->rank[i], "rank %d was lost", p->rank[i]);
    if (s->gone[rank])
        return mesh__fail(why, MESH_ERR_PEER, rank, "rank %d %s", rank,
                          s->gone[rank] == MESH_EVENT_LOST ? "was lost" : "has closed its transport");
    if (p->heed && mesh_nccl__is_ended(s, comm))
        return mesh__fail(why, MESH_ERR_CANCELED, rank, "the comm was ended by another rank");
    return MESH_OK;
}

/* One message over the bootstrap. */
static inline mesh_status mesh_nccl__talk(mesh_nccl__state *s, const mesh_nccl__party *party, int direction, int rank,
                                          uint64_t channel, uint64_t check, void *bytes, size_t nbytes,
                                          int64_t deadline, mesh_error *why) {
    mesh_transport *b = s->boot;
    mesh_xfer x;
    mesh_post p;
    mesh_ticket ticket;
    mesh_status status;
    mesh_error over;
    int canceled = 0, ended;
    memset(&x, 0, sizeof x);
    memset(&p, 0, sizeof p);
    x.base = bytes;
    x.nbytes = nbytes;
    x.direction = direction;
    x.rank = rank;
    p.channel = channel;
    p.check = check;
    p.xfer = &x;
    p.count = 1;
    memset(why, 0, sizeof *why);
    pthread_mutex_lock(&s->boot_lock);
    ended = mesh_nccl__is_over(s, party, rank, (uint32_t)(channel >> 40), &over) != MESH_OK;
    status = b->ops->post(b, &p, &ticket);
    if (status != MESH_OK)
        mesh__fail(why, status, rank, "rank %d cannot be reached: %s", rank, mesh_status_text(status));
    while (status == MESH_OK || status == MESH_IN_PROGRESS) {
        int64_t now = b->ops->now(b);
        status = b->ops->test(b, &ticket, why);
        if (status != MESH_IN_PROGRESS) break;
        if ((now >= deadline || ended) && !canceled++) b->ops->cancel(b, &ticket);
        status = b->ops->progress(b, now + 1000000);
        if (status < 0) mesh__fail(why, status, b->rank, "the bootstrap (%s) failed", b->ops->name);
        mesh_nccl__listen(s);
        if (s->closing) mesh_nccl__turn_away(s);
        if (!ended) ended = mesh_nccl__is_over(s, party, rank, (uint32_t)(channel >> 40), &over) != MESH_OK;
    }
    pthread_mutex_unlock(&s->boot_lock);
    if (ended && status != MESH_OK) {
        *why = over;
        return (mesh_status)over.status;
    }
    if (canceled && status != MESH_OK)
        return mesh__fail(why, MESH_ERR_TIMEOUT, rank, "rank %d has not come before the deadline", rank);
    return status;
}

/* Ranks list[0] .. list[n-1] agree. make_id: the first one makes an id for a new communicator where one is needed. heed: see talk. */
static inline mesh_status mesh_nccl__agree(mesh_nccl__state *s, const int *list, int n, uint32_t id, int make_id,
                                           int heed, mesh_nccl__vote *v, int64_t deadline) {
    unsigned char bytes[MESH_NCCL__VOTE_BYTES];
    uint64_t channel = (uint64_t)id << 32 | 0xffffffffu;
    mesh_nccl__party party = mesh_nccl__party_of(list, n, heed), reply = mesh_nccl__party_of(list, 0, 0);
    mesh_error why;
    mesh_status status;
    int i;
    v->newest = s->serial;
    if (list[0] != s->boot->rank) {
        mesh_nccl__vote_write(bytes, v);
        status = mesh_nccl__talk(s, &party, MESH_SEND, list[0], channel, 1, bytes, sizeof bytes, deadline, &why);
        if (status == MESH_OK) /* the first one's own deadline comes first: it says more */
            status = mesh_nccl__talk(s, &party, MESH_RECV, list[0], channel, 2, bytes, sizeof bytes,
                                     deadline + INT64_C(1000000000), &why);
        if (status != MESH_OK) {
            v->status = status;
            v->why = why;
            return status;
        }
        mesh_nccl__vote_read(v, bytes);
    } else {
        v->action = v->serial ? MESH_NCCL__KEEP : MESH_NCCL__MAKE;
        for (i = 1; i < n; i++) {
            mesh_nccl__vote other;
            memset(&other, 0, sizeof other);
            status = mesh_nccl__talk(s, &party, MESH_RECV, list[i], channel, 1, bytes, sizeof bytes, deadline, &why);
            if (status == MESH_OK) {
                mesh_nccl__vote_read(&other, bytes);
                if (other.serial != v->serial || !other.serial) v->action = MESH_NCCL__MAKE;
                if (other.newest > v->newest) v->newest = other.newest;
                status = other.status;
                why = other.why;
            }
            if (status != MESH_OK && (v->status == MESH_OK || v->status == MESH_ERR_TIMEOUT)) { /* a cause says more */
                v->status = status;
                v->why = why;
            }
        }
        if (v->action == MESH_NCCL__MAKE) v->serial = v->newest + 1;
        if (v->status == MESH_OK && v->action == MESH_NCCL__MAKE && make_id) {
            ncclResult_t r = s->api.ncclGetUniqueId(&v->id);
            if (r != ncclSuccess) v->status = mesh_nccl__fail(s, &v->why, "ncclGetUniqueId", r);
        }
        mesh_nccl__vote_write(bytes, v);
        for (i = 1; i < n; i++)
            mesh_nccl__talk(s, &reply, MESH_SEND, list[i], channel, 2, bytes, sizeof bytes,
                            deadline + INT64_C(1000000000), &why);
    }
    if (v->serial > s->serial) s->serial = v->serial;
    return v->status;
}

/* ---- // >>communicators ---- */

/* One that this comm has already, or that no comm has any more: what ends with a comm must be its own. */
static inline mesh_nccl__comm *mesh_nccl__find(mesh_nccl__state *s, const mesh *on, uint32_t owner) {
    mesh_nccl__comm *c;
    int i;
    pthread_mutex_lock(&s->lock);
    for (c = s->comm; c; c = c->next) {
        if (c->size != on->size || c->ended || c->stale || !c->serial || (c->refs && c->owner != owner)) continue;
        for (i = 0; i < c->size && c->rank[i] == mesh_rank_at(on, i); i++) {}
        if (i == c->size) break;
    }
    pthread_mutex_unlock(&s->lock);
    return c;
}

/* What a communicator's list of ranks has of its own on the device. */
static inline cudaError_t mesh_nccl__comm_make(mesh_nccl__state *s, mesh_nccl__comm *c) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    size_t nbytes = (MESH_NCCL__BARRIERS + 1) * sizeof *c->past.verdict;
    void *verdict = NULL;
    cudaError_t r;
    mesh_nccl__use_device(s);
    mesh_nccl__capture_mode(s, &mode);
    r = s->api.cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (r == cudaSuccess) r = s->api.cudaEventCreateWithFlags(&c->enter, cudaEventDisableTiming);
    if (r == cudaSuccess) r = s->api.cudaEventCreateWithFlags(&c->captured, cudaEventDisableTiming);
    if (r == cudaSuccess && c->size > 1) r = s->api.cudaMalloc(&c->word, 256);
    if (r == cudaSuccess && c->size > 1) r = s->api.cudaHostAlloc(&verdict, nbytes, cudaHostAllocDefault);
    if (r == cudaSuccess && c->size > 1) {
        memset(verdict, 0xff, nbytes); /* the last one stays so: a graph's barriers say nothing */
        c->past.verdict = (mesh_nccl__verdict *)verdict;
    }
    mesh_nccl__capture_mode(s, &mode);
    return r;
}

static inline void mesh_nccl__comm_free(mesh_nccl__state *s, mesh_nccl__comm *c) {
    while (c->nmarks) {
        s->event[s->nevents++] = c->mark[c->first_mark].event;
        c->first_mark = (c->first_mark + 1) % c->mark_cap;
        c->nmarks--;
    }
    if (c->word) s->api.cudaFree(c->word);
    if (c->past.verdict) s->api.cudaFreeHost(c->past.verdict);
    if (c->stream) s->api.cudaStreamDestroy(c->stream);
    if (c->enter) s->api.cudaEventDestroy(c->enter);
    if (c->captured) s->api.cudaEventDestroy(c->captured);
    mesh_transport_free(s->boot, c->mark);
    mesh_transport_free(s->boot, c->rank);
    mesh_transport_free(s->boot, c);
}

/* A list of ranks with its stream, not joined to the others yet. */
static inline mesh_nccl__comm *mesh_nccl__comm_new(mesh_nccl__state *s, const mesh *on, mesh_error *err) {
    mesh_nccl__comm *c = (mesh_nccl__comm *)mesh_transport_alloc(s->boot, sizeof *c);
    int *rank = (int *)mesh_transport_alloc(s->boot, sizeof *rank * (size_t)on->size), i;
    cudaError_t r;
    if (!c || !rank) {
        mesh_transport_free(s->boot, c);
        mesh_transport_free(s->boot, rank);
        mesh__fail(err, MESH_ERR_MEMORY, s->boot->rank, "no memory for a communicator");
        return NULL;
    }
    memset(c, 0, sizeof *c);
    c->rank = rank;
    c->size = on->size;
    c->index = mesh_index_of(on, s->boot->rank);
    for (i = 0; i < on->size; i++) rank[i] = mesh_rank_at(on, i);
    if ((r = mesh_nccl__comm_make(s, c)) != cudaSuccess) {
        mesh_nccl__cuda_fail(s, err, "a group's stream", r);
        mesh_nccl__comm_free(s, c);
        return NULL;
    }
    c->on = c->stream;
    pthread_mutex_lock(&s->lock);
    c->next = s->comm;
    s->comm = c;
    pthread_mutex_unlock(&s->lock);
    return c;
}

static inline ncclConfig_t mesh_nccl__config(const mesh_nccl__state *s, int blocking, const char *name) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    config.splitShare = 0; /* children that share would end together */
    if (s->max_ctas) config.maxCTAs = s->max_ctas;
#if NCCL_VERSION_CODE >= 22700
    config.commName = name;
#else
    (void)name;
#endif
    return config;
}

/* A rank that cannot join says so at once: the others would wait for it inside NCCL. */
static inline void mesh_nccl__tell(mesh_nccl__state *s, const mesh_nccl__comm *ranks, uint32_t id,
                                   const mesh_error *why) {
    unsigned char data[MESH_CONTROL_BYTES];
    size_t length = mesh_nccl__abort_write(data, id >> 8, why);
    int i;
    pthread_mutex_lock(&s->boot_lock);
    for (i = 0; i < ranks->size; i++)
        if (ranks->rank[i] != s->boot->rank)
            s->boot->ops->control_send(s->boot, ranks->rank[i], MESH_EVENT_ABORT, data, length);
    pthread_mutex_unlock(&s->boot_lock);
}

/* Wait until a non-blocking communicator is ready; listens for ranks that are lost or cannot join meanwhile. */
static inline mesh_status mesh_nccl__await(mesh_nccl__state *s, ncclComm_t *comm, const mesh_nccl__comm *ranks,
                                           uint32_t id, const char *what, int64_t deadline, mesh_error *err) {
    ncclResult_t r = ncclInProgress, asked = ncclSuccess;
    const mesh_nccl__mail *mail;
    int64_t nap = 20000;
    for (;;) {
        mesh_status told = MESH_OK;
        if (*comm) asked = s->api.ncclCommGetAsyncError(*comm, &r);
        if (asked != ncclSuccess) return mesh_nccl__fail(s, err, what, asked);
        if (r == ncclSuccess) return MESH_OK;
        if (r != ncclInProgress) return mesh_nccl__fail(s, err, what, r);
        pthread_mutex_lock(&s->boot_lock);
        s->boot->ops->progress(s->boot, 0);
        mesh_nccl__listen(s);
        for (mail = s->mail; mail && told == MESH_OK; mail = mail->next) {
            const mesh_control *m = &mail->m;
            char text[MESH_ERROR_BYTES];
            if (m->kind == MESH_EVENT_LOST && mesh_nccl__has_rank(ranks, m->rank))
                told = mesh__fail(err, MESH_ERR_PEER, m->rank, "%s: rank %d was lost", what, m->rank);
            if (m->kind != MESH_EVENT_ABORT || m->nbytes < MESH__ABORT_HEAD || mesh__get32(m->data) != id >> 8)
                continue;
            mesh__copy_text(
                text, m->nbytes - MESH__ABORT_HEAD + 1 < sizeof text ? m->nbytes - MESH__ABORT_HEAD + 1 : sizeof text,
                (const char *)m->data + MESH__ABORT_HEAD);
            told =
                mesh__fail(err, (mesh_status)(int)mesh__get32(m->data + 4), (int)mesh__get32(m->data + 8), "%s", text);
        }
        pthread_mutex_unlock(&s->boot_lock);
        if (told != MESH_OK) return told;
        if (mesh_nccl__now(s) >= deadline)
            return mesh__fail(err, MESH_ERR_TIMEOUT, -1,
                              "%s is not done at its deadline: NCCL does not reach every rank", what);
        mesh_nccl__nap(nap);
        if (nap < 1000000) nap *= 2;
    }
}

/* NCCL connects when an algorithm is first used: on the host, inside that call, until every rank has come. Better here, where all do: rings (of
   all but small sums) and trees. */
static inline mesh_status mesh_nccl__connect(mesh_nccl__state *s, mesh_nccl__comm *c, int64_t deadline,
                                             mesh_error *err) {
    mesh__record none = mesh_nccl__no_record(0);
    ncclComm_t comm = c->made;
    mesh_ticket ticket;
    mesh_status status = MESH_IN_PROGRESS;
    ncclResult_t r;
    pthread_mutex_lock(&s->lock);
    if (c->ended) {
        status = mesh__fail(err, (mesh_status)c->why.status, c->why.rank, "%s", c->why.text);
    } else {
        c->comm = comm;
        c->made = NULL;
        c->connecting = 1;
    }
    pthread_mutex_unlock(&s->lock);
    if (status != MESH_IN_PROGRESS) return status;
    mesh_nccl__enter(s, c, &none, deadline);
    r = s->api.ncclBroadcast(c->word, c->word, 8, ncclUint8, 0, comm, c->stream);
    if (r == ncclSuccess) r = s->api.ncclAllReduce(c->word, c->word, 1, ncclUint64, ncclMin, comm, c->stream);
    mesh_nccl__said(s, "connecting", r);
    mesh_nccl__issued(s, c, &ticket);
    mesh_nccl__leave(s, c);
    while (status == MESH_IN_PROGRESS) {
        pthread_mutex_lock(&s->boot_lock);
        s->boot->ops->progress(s->boot, 0);
        mesh_nccl__listen(s);
        pthread_mutex_lock(&s->lock);
        mesh_nccl__act(s);
        mesh_nccl__look(s);
        if (mesh_nccl__now(s) >= deadline) mesh_nccl__end(s, c, MESH_ERR_TIMEOUT, -1, "connecting is not done at its deadline");
        if (c->ended)
            status = mesh__fail(err, (mesh_status)c->why.status, c->why.rank, "%s", c->why.text);
        else if (ticket.id <= c->completed)
            status = MESH_OK;
        pthread_mutex_unlock(&s->lock);
        pthread_mutex_unlock(&s->boot_lock);
        if (status == MESH_IN_PROGRESS) mesh_nccl__nap(20000);
    }
    return status;
}

/* Join the ranks of a communicator. Its family (its own mesh's communicator, or itself) has a root, made by an id where it has none; what
   operations use is a split of it. */
static inline mesh_status mesh_nccl__join(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_nccl__comm *parent, int color,
                                          uint32_t id, ncclUniqueId *unique, int64_t deadline, mesh_error *err) {
    ncclConfig_t config = mesh_nccl__config(s, 0, c->name);
    mesh_nccl__comm *all = parent ? parent : c;
    mesh_status status = MESH_OK;
    ncclResult_t r = ncclSuccess;
    mesh_nccl__use_device(s);
    if (!all->root) {
        r = s->api.ncclCommInitRankConfig(&all->root, all->size, *unique, all->index, &config);
        if (r != ncclSuccess && r != ncclInProgress) status = mesh_nccl__fail(s, err, "ncclCommInitRankConfig", r);
        if (status == MESH_OK)
            status = mesh_nccl__await(s, &all->root, all, id, "ncclCommInitRankConfig", deadline, err);
    }
    if (!parent) color = 0;
    if (status == MESH_OK) {
        config = mesh_nccl__config(s, 1, c->name);
        r = s->api.ncclCommSplit(all->root, color, c->index, &c->made, &config);
        if (r != ncclSuccess && r != ncclInProgress) status = mesh_nccl__fail(s, err, "ncclCommSplit", r);
        if (status == MESH_OK) status = mesh_nccl__await(s, &all->root, all, id, "ncclCommSplit", deadline, err);
    }
    if (status == MESH_OK) status = mesh_nccl__connect(s, c, deadline, err);
    if (status != MESH_OK && err->rank == s->boot->rank) mesh_nccl__tell(s, all, id, err);
    return status;
}

/* A communicator that did not come about, on some rank: its family's root is given up on all, and with it what NCCL may still be making. */
static inline void mesh_nccl__unjoin(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_nccl__comm *family,
                                     const mesh_nccl__vote *vote) {
    pthread_mutex_lock(&s->lock);
    if (c->connecting && !c->ended) mesh_nccl__end(s, c, vote->status, vote->why.rank, "%s", vote->why.text);
    if (family->root) mesh_nccl__stop_comm(s, family, family->root, &c->made);
    if (!c->ended) c->why = vote->why;
    c->ended = 1;
    c->connecting = 0;
    family->root = NULL;
    family->stale = 1;
    pthread_mutex_unlock(&s->lock);
}

static inline mesh_status mesh_nccl__group_open(mesh_transport *t, void *parent, uint32_t id, const mesh *on, int color,
                                                int key, int64_t deadline, void **out, mesh_error *err) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = (mesh_nccl__group *)mesh_transport_alloc(s->boot, sizeof *g);
    mesh_nccl__comm *c = mesh_nccl__find(s, on, id >> 8), *family = parent ? ((mesh_nccl__group *)parent)->c : NULL;
    mesh_nccl__vote vote;
    (void)key;
    memset(&vote, 0, sizeof vote);
    if (s->boot->engine)
        vote.status =
            mesh__fail(&vote.why, MESH_ERR_ARGUMENT, s->boot->rank,
                       "a comm was opened on the bootstrap transport of mesh_nccl; open another transport for it");
    if (!g) vote.status = mesh__fail(&vote.why, MESH_ERR_MEMORY, s->boot->rank, "no memory for a group");
    if (c) vote.serial = c->serial;
    if (vote.status == MESH_OK && !c) c = mesh_nccl__comm_new(s, on, &vote.why);
    if (!c && vote.status == MESH_OK) vote.status = (mesh_status)vote.why.status;
    if (on->size > 1) {
        mesh_nccl__vote confirm;
        const mesh_nccl__comm *all = family ? family : c;
        mesh_nccl__comm listed;
        if (!all) { /* this rank has no memory even for the list: the first one is to hear of it */
            memset(&listed, 0, sizeof listed);
            listed.size = 0;
            all = &listed;
        }
        if (all->size) mesh_nccl__agree(s, all->rank, all->size, id, !family || !family->root, 1, &vote, deadline);
        if (vote.status == MESH_OK && vote.action == MESH_NCCL__MAKE) {
            if (c->serial) c = mesh_nccl__comm_new(s, on, &vote.why); /* the one it has is not everyone's */
            memset(&confirm, 0, sizeof confirm);
            if (c) {
                mesh__text text = mesh__text_on(c->name, sizeof c->name);
                mesh__put(&text, "mesh %d.%d", (int)(id >> 8), (int)(id & 255));
            }
            confirm.status = c ? mesh_nccl__join(s, c, family, color, id, &vote.id, deadline, &confirm.why)
                               : (mesh_status)vote.why.status;
            if (!c) confirm.why = vote.why;
            mesh_nccl__agree(s, all->rank, all->size, id, 0, 0, &confirm, deadline + INT64_C(1000000000));
            vote.status = confirm.status;
            vote.why = confirm.why;
        }
    }
    if (vote.status != MESH_OK) {
        if (c && !c->serial) mesh_nccl__unjoin(s, c, family ? family : c, &vote);
        mesh_transport_free(s->boot, g);
        if (vote.why.rank < 0 || vote.why.rank == s->boot->rank || vote.status == MESH_ERR_PEER)
            return mesh__fail(err, vote.status, vote.why.rank, "nccl: %s", vote.why.text);
        return mesh__fail(err, vote.status, vote.why.rank, "nccl: rank %d: %s", vote.why.rank, vote.why.text);
    }
    memset(g, 0, sizeof *g);
    g->c = c;
    g->id = id;
    g->timeout = deadline - mesh_nccl__now(s);
    if (g->timeout < 1000000) g->timeout = 1000000;
    pthread_mutex_lock(&s->lock);
    if (on->size == 1 && !c->serial) c->serial = ++s->serial;
    if (on->size > 1 && vote.action == MESH_NCCL__MAKE) c->serial = vote.serial;
    c->connecting = 0;
    c->refs++;
    c->owner = id >> 8;
    g->next = s->group;
    s->group = g;
    pthread_mutex_unlock(&s->lock);
    *out = g;
    return MESH_OK;
}

static inline mesh_status mesh_nccl__group_close(mesh_transport *t, void *group) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group **at = &s->group, *g = (mesh_nccl__group *)group;
    mesh__record none = mesh_nccl__no_record(0);
    g->c->capturing = 0;
    if (g->c->refs == 1 && g->c->on != g->c->stream && /* the caller's stream may end now */
        mesh_nccl__enter(s, g->c, &none, mesh_nccl__now(s) + g->timeout)) {
        mesh_nccl__go_on(s, g->c, g->c->stream);
        mesh_nccl__leave(s, g->c);
    }
    pthread_mutex_lock(&s->lock);
    while (*at && *at != g) at = &(*at)->next;
    if (*at) {
        g->c->refs--;
        *at = g->next;
    }
    pthread_mutex_unlock(&s->lock);
    mesh_transport_free(s->boot, group);
    return MESH_OK;
}

static inline mesh_status mesh_nccl__group_abort(mesh_transport *t, void *group, const char *why) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *c = mesh_nccl__group_of(s, group)->c;
    pthread_mutex_lock(&s->lock);
    mesh_nccl__end(s, c, MESH_ERR_CANCELED, s->boot->rank, "%s", why ? why : "it was ended");
    pthread_mutex_unlock(&s->lock);
    return MESH_OK;
}

/* ---- // >>debug: compare a call before it is launched ---- */

/* All ranks of a group's comm. */
static inline mesh_nccl__party mesh_nccl__everyone(const mesh_nccl__state *s, const mesh_nccl__group *g) {
    const mesh_nccl__group *first = s->group;
    while (first && first->id != (g->id & ~255u)) first = first->next;
    if (!first) first = g;
    return mesh_nccl__party_of(first->c->rank, first->c->size, 1);
}

/* Memory that a device does not reach is told, not handed to NCCL. */
static inline mesh_status mesh_nccl__check_memory(mesh_nccl__state *s, const void *p, const char *which,
                                                  mesh_error *why);

/* Every rank of the group waits for all (dissemination), each message carrying the call's check. */
static inline mesh_status mesh_nccl__compare_group(mesh_nccl__state *s, const mesh_nccl__group *g, uint64_t channel,
                                                   uint64_t check, mesh_error *why) {
    const mesh_nccl__comm *c = g->c;
    mesh_nccl__party party = mesh_nccl__everyone(s, g);
    int64_t deadline = mesh_nccl__now(s) + g->timeout;
    mesh_status status = MESH_OK;
    int k;
    for (k = 1; k < c->size && status == MESH_OK; k *= 2) {
        int to = c->rank[(c->index + k) % c->size], from = c->rank[(c->index - k + c->size) % c->size];
        status = mesh_nccl__talk(s, &party, MESH_SEND, to, channel, check, NULL, 0, deadline, why);
        if (status == MESH_OK)
            status = mesh_nccl__talk(s, &party, MESH_RECV, from, channel, check, NULL, 0, deadline, why);
    }
    return status;
}

/* Point to point: both ends of every message compare its length. */
static inline mesh_status mesh_nccl__compare_post(mesh_nccl__state *s, const mesh_nccl__group *g, const mesh_post *p,
                                                  mesh_error *why) {
    int64_t deadline = mesh_nccl__now(s) + g->timeout;
    mesh_nccl__party party = mesh_nccl__everyone(s, g);
    mesh_status status = MESH_OK;
    int i, direction;
    for (i = 0; i < p->count && status == MESH_OK; i++)
        if (p->xfer[i].nbytes) status = mesh_nccl__check_memory(s, p->xfer[i].base, "a buffer", why);
    for (direction = MESH_SEND; direction <= MESH_RECV; direction++)
        for (i = 0; i < p->count && status == MESH_OK; i++)
            if (p->xfer[i].direction == direction)
                status = mesh_nccl__talk(s, &party, direction, p->xfer[i].rank, p->channel,
                                         mesh__mix(p->check, p->xfer[i].nbytes), NULL, 0, deadline, why);
    return status;
}

/* Calls by counts: every rank gives the same (gathered or scattered over all), or each pair has its own. */
static inline mesh_status mesh_nccl__compare_counts(mesh_nccl__state *s, const mesh_nccl__group *g,
                                                    const mesh_call *call, mesh_error *why) {
    const mesh_nccl__comm *c = g->c;
    mesh_nccl__party party = mesh_nccl__everyone(s, g);
    int64_t deadline = mesh_nccl__now(s) + g->timeout;
    uint64_t check = call->check;
    mesh_status status = MESH_OK;
    int i, direction, kind = call->kind, root = call->root, me = c->index;
    if (kind == MESH_CALL_ALL_GATHER_V || kind == MESH_CALL_REDUCE_SCATTER_V) {
        for (i = 0; i < c->size; i++) check = mesh__mix(check, call->recv_counts[i]);
        return mesh_nccl__compare_group(s, g, call->channel, check, why);
    }
    for (direction = MESH_SEND; direction <= MESH_RECV; direction++)
        for (i = 0; i < c->size && status == MESH_OK; i++) {
            const size_t *counts = direction == MESH_SEND ? call->send_counts : call->recv_counts;
            int rooted = kind != MESH_CALL_ALL_TO_ALL_V, gives = kind == MESH_CALL_GATHER_V ? i == root : me == root,
                takes = kind == MESH_CALL_GATHER_V ? me == root : i == root;
            if (i == me || (rooted && !(direction == MESH_SEND ? gives : takes))) continue;
            if (rooted && me != root) counts = NULL;
            status = mesh_nccl__talk(s, &party, direction, c->rank[i], call->channel,
                                     mesh__mix(check, counts ? counts[i] : call->count), NULL, 0, deadline, why);
        }
    return status;
}

/* Memory that a device does not reach: malloc's, or none that CUDA knows. */
static inline mesh_status mesh_nccl__check_memory(mesh_nccl__state *s, const void *p, const char *which,
                                                  mesh_error *why) {
    union {
        struct cudaPointerAttributes attributes;
        char room[512]; /* a younger library's struct is longer */
    } at;
    memset(&at, 0, sizeof at);
    if (!p) return MESH_OK;
    if (s->api.cudaPointerGetAttributes(&at.attributes, p) != cudaSuccess) s->api.cudaGetLastError();
    if (at.attributes.type != cudaMemoryTypeUnregistered) return MESH_OK;
    return mesh__fail(
        why, MESH_ERR_ARGUMENT, s->boot->rank,
        "%s is host memory (%x) that the device does not reach; use mesh_alloc, cudaMalloc or cudaMallocHost", which,
        (uint64_t)(uintptr_t)p);
}

static inline mesh_status mesh_nccl__check_call(mesh_nccl__state *s, const mesh_nccl__group *g, const mesh_call *call,
                                                mesh_error *why) {
    mesh_status status = MESH_OK;
    int i;
    for (i = 0; i < call->nbuffers && status == MESH_OK; i++)
        if (call->buffers[i].count &&
            (status = mesh_nccl__check_memory(s, call->buffers[i].send, "send", why)) == MESH_OK)
            status = mesh_nccl__check_memory(s, call->buffers[i].recv, "recv", why);
    if (!call->nbuffers && (status = mesh_nccl__check_memory(s, call->send, "send", why)) == MESH_OK)
        status = mesh_nccl__check_memory(s, call->recv, "recv", why);
    if (status == MESH_OK) status = mesh_nccl__compare_group(s, g, call->channel, call->check, why);
    return status == MESH_OK && mesh__call_is(call->kind, MESH_BY_COUNTS) ? mesh_nccl__compare_counts(s, g, call, why)
                                                                          : status;
}

static inline int mesh_nccl__has_ended(mesh_nccl__state *s, const mesh_nccl__comm *c) {
    int ended;
    pthread_mutex_lock(&s->lock);
    ended = c->ended;
    pthread_mutex_unlock(&s->lock);
    return ended;
}

/* What was found wrong is told by the call's mark. */
static inline void mesh_nccl__checked(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_status status,
                                      const mesh_error *why) {
    if (status == MESH_OK) return;
    pthread_mutex_lock(&s->lock);
    mesh_nccl__end(s, c, status, why->rank, "%s", why->text);
    pthread_mutex_unlock(&s->lock);
}

/* ---- // >>calls: NCCL's own ---- */

/* NCCL's type for a reduction: numbers per element, or 0: it has none. */
static inline size_t mesh_nccl__type(const mesh_nccl__state *s, int dtype, int op, ncclDataType_t *type) {
    static const int types[] = {7,  8,  6, 9, 0, 1,
                                -1, -1, 2, 3, 4, 5}; /* of f32 f64 f16 bf16 i8 u8 i16 u16 i32 u32 i64 u64 */
    if (dtype == MESH_F8E4M3 || dtype == MESH_F8E5M2) {
        *type = (ncclDataType_t)(dtype == MESH_F8E4M3 ? 10 : 11);
        return s->n->base.caps & MESH_CAP_FP8 && op <= MESH_PROD && op != MESH_AVG;
    }
    if (mesh__is_complex(dtype)) {
        *type = dtype == MESH_C64 ? ncclFloat32 : ncclFloat64;
        return op == MESH_SUM || op == MESH_AVG ? 2 : 0;
    }
    if ((unsigned)dtype >= sizeof types / sizeof *types || types[dtype] < 0 || op > MESH_PROD) return 0;
    *type = (ncclDataType_t)types[dtype];
    return 1;
}

/* One call under way: what NCCL is given. */
typedef struct mesh_nccl__ask {
    mesh_nccl__state *s;
    mesh_nccl__comm *c;
    ncclComm_t comm; /* c's: the watchdog may take it away meanwhile, and gives it up later */
    const mesh_call *call;
    ncclDataType_t type; /* of reductions */
    ncclRedOp_t op;
    size_t numbers; /* of an element, in that type; or its bytes, where data only move */
    size_t elem;
    int native; /* NCCL has all_to_all, gather and scatter */
} mesh_nccl__ask;

static inline ncclResult_t mesh_nccl__send(const mesh_nccl__ask *a, const void *p, size_t count, int to) {
    if (!count) return ncclSuccess; /* skipped on both sides */
    return a->s->api.ncclSend(p, count * a->elem, ncclUint8, to, a->comm, a->c->on);
}

static inline ncclResult_t mesh_nccl__recv(const mesh_nccl__ask *a, void *p, size_t count, int from) {
    if (!count) return ncclSuccess;
    return a->s->api.ncclRecv(p, count * a->elem, ncclUint8, from, a->comm, a->c->on);
}

/* Where block i begins; called for 0, 1, 2 ... `at` is the sum so far. */
static inline size_t mesh_nccl__at(const size_t *counts, const size_t *offsets, size_t count, int i, size_t *at) {
    size_t before = *at;
    *at += counts ? counts[i] : count;
    return counts && offsets ? offsets[i] : before;
}

/* Blocks between every pair, or between the root and all. Counts NULL: `count` each. */
static inline ncclResult_t mesh_nccl__blocks(const mesh_nccl__ask *a, const char *send, char *recv) {
    const mesh_call *call = a->call;
    int n = a->c->size, me = a->c->index, i, root = call->root, kind = call->kind;
    int gathers = kind == MESH_CALL_GATHER || kind == MESH_CALL_GATHER_V,
        scatters = kind == MESH_CALL_SCATTER || kind == MESH_CALL_SCATTER_V;
    size_t sends = 0, receives = 0;
    ncclResult_t r = ncclSuccess;
    for (i = 0; i < n && r == ncclSuccess; i++) {
        /* To or from rank i; a rooted call's other side is one block of `count`. */
        size_t so = mesh_nccl__at(call->send_counts, call->send_offsets, call->count, i, &sends),
               ro = mesh_nccl__at(call->recv_counts, call->recv_offsets, call->count, i, &receives),
               sc = call->send_counts ? call->send_counts[i] : call->count,
               rc = call->recv_counts ? call->recv_counts[i] : call->count;
        int to_i = 1, from_i = 1;
        if (gathers) {
            to_i = i == root, so = 0, sc = call->count;
            from_i = me == root;
        }
        if (scatters) {
            to_i = me == root;
            from_i = i == root, ro = 0, rc = call->count;
        }
        if (i == me) {
            if (to_i && from_i)
                mesh_nccl__put(
                    a->s, "a copy",
                    mesh_nccl__move(a->s, a->c, recv + ro * a->elem, NULL, send + so * a->elem, NULL, sc * a->elem));
            continue;
        }
        if (to_i) r = mesh_nccl__send(a, send + so * a->elem, sc, i);
        if (from_i && r == ncclSuccess) r = mesh_nccl__recv(a, recv + ro * a->elem, rc, i);
    }
    return r;
}

/* A barrier, or what is called like one. It also asks whether all have called the same so far. */
static inline ncclResult_t mesh_nccl__meeting(const mesh_nccl__ask *a) {
    mesh_nccl__state *s = a->s;
    mesh_nccl__comm *c = a->c;
    mesh_nccl__history *h = &c->past;
    uint32_t i = MESH_NCCL__BARRIERS;
    mesh_nccl__verdict *v;
    ncclResult_t r;
    pthread_mutex_lock(&s->lock);
    if (!c->capturing && !h->barrier[h->barriers % MESH_NCCL__BARRIERS]) {
        i = h->barriers++ % MESH_NCCL__BARRIERS;
        h->verdict[i].in[0] = h->history;
        h->verdict[i].in[1] = ~h->history;
        h->verdict[i].out[0] = h->verdict[i].out[1] = 0;
        h->barrier[i] = c->issued + 1; /* the ticket it gets */
    }
    pthread_mutex_unlock(&s->lock);
    v = &h->verdict[i];
    if (mesh_nccl__put(s, "a barrier", s->api.cudaMemcpyAsync(c->word, v->in, sizeof v->in, cudaMemcpyDefault, c->on)))
        return ncclSuccess;
    r = s->api.ncclAllReduce(c->word, c->word, 2, ncclUint64, ncclMin, a->comm, c->on);
    if (r == ncclSuccess && i < MESH_NCCL__BARRIERS)
        mesh_nccl__put(s, "a barrier", s->api.cudaMemcpyAsync(v->out, c->word, sizeof v->out, cudaMemcpyDefault, c->on));
    return r;
}

/* One array of a call. */
static inline ncclResult_t mesh_nccl__one(const mesh_nccl__ask *a, int kind, const void *send, void *recv,
                                          size_t count) {
    const mesh_nccl__api *api = &a->s->api;
    const mesh_call *call = a->call;
    ncclComm_t comm = a->comm;
    cudaStream_t on = a->c->on;
    size_t numbers = count * a->numbers, at = 0;
    int i, n = a->c->size, me = a->c->index;
    ncclResult_t r = ncclSuccess;
    switch (kind) {
    case MESH_CALL_ALL_REDUCE:
        return numbers ? api->ncclAllReduce(send, recv, numbers, a->type, a->op, comm, on) : r;
    case MESH_CALL_REDUCE:
        return numbers ? api->ncclReduce(send, recv, numbers, a->type, a->op, call->root, comm, on) : r;
    case MESH_CALL_REDUCE_SCATTER:
        return numbers ? api->ncclReduceScatter(send, recv, numbers, a->type, a->op, comm, on) : r;
    case MESH_CALL_BROADCAST:
        return numbers
                   ? api->ncclBroadcast(me == call->root ? send : recv, recv, numbers, ncclUint8, call->root, comm, on)
                   : r;
    case MESH_CALL_ALL_GATHER:
        return numbers ? api->ncclAllGather(send, recv, numbers, ncclUint8, comm, on) : r;
    case MESH_CALL_ALL_GATHER_V:
        for (i = 0; i < n && r == ncclSuccess; i++) {
            char *to = (char *)recv + mesh_nccl__at(call->recv_counts, call->recv_offsets, 0, i, &at) * a->elem;
            if (call->recv_counts[i])
                r = api->ncclBroadcast(i == me ? send : to, to, call->recv_counts[i] * a->elem, ncclUint8, i, comm, on);
        }
        return r;
    case MESH_CALL_REDUCE_SCATTER_V:
        for (i = 0; i < n && r == ncclSuccess; i++) {
            const char *from =
                (const char *)send + mesh_nccl__at(call->recv_counts, call->recv_offsets, 0, i, &at) * a->elem;
            if (call->recv_counts[i])
                r = api->ncclReduce(from, i == me ? recv : (void *)(uintptr_t)from, call->recv_counts[i] * a->numbers,
                                    a->type, a->op, i, comm, on);
        }
        return r;
    case MESH_CALL_ALL_TO_ALL:
        if (a->native) return numbers ? api->ncclAlltoAll(send, recv, numbers, ncclUint8, comm, on) : r;
        return mesh_nccl__blocks(a, (const char *)send, (char *)recv);
    case MESH_CALL_GATHER:
        if (a->native) return numbers ? api->ncclGather(send, recv, numbers, ncclUint8, call->root, comm, on) : r;
        return mesh_nccl__blocks(a, (const char *)send, (char *)recv);
    case MESH_CALL_SCATTER:
        if (a->native) return numbers ? api->ncclScatter(send, recv, numbers, ncclUint8, call->root, comm, on) : r;
        return mesh_nccl__blocks(a, (const char *)send, (char *)recv);
    case MESH_CALL_ALL_TO_ALL_V:
    case MESH_CALL_GATHER_V:
    case MESH_CALL_SCATTER_V:
        return mesh_nccl__blocks(a, (const char *)send, (char *)recv);
    default:
        return mesh_nccl__meeting(a);
    }
}

static inline int mesh_nccl__single(int kind) {
    return kind == MESH_CALL_ALL_REDUCE_MANY       ? MESH_CALL_ALL_REDUCE
           : kind == MESH_CALL_BROADCAST_MANY      ? MESH_CALL_BROADCAST
           : kind == MESH_CALL_ALL_GATHER_MANY     ? MESH_CALL_ALL_GATHER
           : kind == MESH_CALL_REDUCE_SCATTER_MANY ? MESH_CALL_REDUCE_SCATTER
                                                   : kind;
}

/* Does NCCL serve this call? Else the core's schedule does. It depends only on what all ranks have in common: not on pointers. */
static inline int mesh_nccl__serves(const mesh_nccl__state *s, const mesh_call *call, mesh_nccl__ask *a) {
    int kind = mesh_nccl__single(call->kind);
    switch (kind) {
    case MESH_CALL_ALL_REDUCE:
    case MESH_CALL_REDUCE:
    case MESH_CALL_REDUCE_SCATTER:
    case MESH_CALL_REDUCE_SCATTER_V: {
        static const ncclRedOp_t ops[] = {ncclSum, ncclAvg, ncclMin, ncclMax, ncclProd}; /* in the order of mesh_op */
        /* ncclAvg multiplies every summand by 1/n: exact for powers of two, but for f16, which has little room below. */
        int n = a->c->size, exact = (n & (n - 1)) == 0 && call->dtype != MESH_F16;
        if (call->user_op || call->op > MESH_PROD) return 0;
        a->numbers = mesh_nccl__type(s, call->dtype, call->op, &a->type);
        a->op = call->op == MESH_AVG && !exact ? ncclSum : ops[call->op];
        return a->numbers && (call->op != MESH_AVG || exact || s->has_kernels);
    }
    case MESH_CALL_ALL_TO_ALL:
    case MESH_CALL_BROADCAST:
    case MESH_CALL_ALL_GATHER:
    case MESH_CALL_ALL_GATHER_V:
    case MESH_CALL_ALL_TO_ALL_V:
    case MESH_CALL_GATHER:
    case MESH_CALL_GATHER_V:
    case MESH_CALL_SCATTER:
    case MESH_CALL_SCATTER_V:
    case MESH_CALL_BARRIER:
    case MESH_CALL_GROUP_OPEN:
    case MESH_CALL_REGISTER:
        return 1;
    default:
        return 0;
    }
}

/* Sums become averages where NCCL's own are not exact. */
static inline void mesh_nccl__average(const mesh_nccl__ask *a, int kind, void *recv, size_t count) {
    const mesh_call *call = a->call;
    if (!mesh__call_is(call->kind, MESH_REDUCES) || call->op != MESH_AVG || a->op != ncclSum) return;
    if (kind == MESH_CALL_REDUCE && a->c->index != call->root) return;
    if (kind == MESH_CALL_REDUCE_SCATTER_V) count = call->recv_counts[a->c->index];
    mesh_nccl__put(a->s, "an average",
                   mesh_nccl__combine(a->s, a->c, MESH_AVG, call->dtype, recv, NULL, NULL, NULL, count, a->c->size));
}

static inline unsigned char *mesh_nccl__staging(mesh_nccl__state *s, mesh_nccl__comm *c, ncclComm_t comm,
                                                size_t nbytes);

/* A call, inside. */
static inline void mesh_nccl__call(mesh_nccl__ask *a, int kind) {
    mesh_nccl__state *s = a->s;
    const mesh_call *call = a->call;
    const void *send = call->send;
    int grouped = call->nbuffers > 1 || mesh__call_is(kind, MESH_BY_COUNTS) ||
                  (!a->native && (kind == MESH_CALL_ALL_TO_ALL || kind == MESH_CALL_GATHER || kind == MESH_CALL_SCATTER)),
        i;
    ncclResult_t r = ncclSuccess, end = ncclSuccess;
    if (kind == MESH_CALL_ALL_TO_ALL && call->send == call->recv && call->count) { /* in place: from a copy */
        size_t nbytes = (size_t)a->c->size * call->count * a->elem;
        if (!(send = mesh_nccl__staging(s, a->c, a->comm, nbytes))) {
            mesh__fail(&s->trouble, MESH_ERR_MEMORY, s->boot->rank,
                       "no device memory for %u bytes of an all_to_all in place", (uint64_t)nbytes);
            return;
        }
        if (mesh_nccl__put(s, "a copy",
                           mesh_nccl__move(s, a->c, (void *)(uintptr_t)send, NULL, call->send, NULL, nbytes)))
            return;
    }
    if (grouped) r = s->api.ncclGroupStart();
    for (i = 0; i < call->nbuffers && r == ncclSuccess; i++)
        r = mesh_nccl__one(a, kind, call->buffers[i].send, call->buffers[i].recv, call->buffers[i].count);
    if (!call->nbuffers && r == ncclSuccess) r = mesh_nccl__one(a, kind, send, call->recv, call->count);
    if (grouped) end = s->api.ncclGroupEnd();
    mesh_nccl__said(s, mesh__call_name(call->kind), r != ncclSuccess ? r : end);
    for (i = 0; i < call->nbuffers && s->trouble.status == MESH_OK; i++)
        mesh_nccl__average(a, kind, call->buffers[i].recv, call->buffers[i].count);
    if (!call->nbuffers && s->trouble.status == MESH_OK) mesh_nccl__average(a, kind, call->recv, call->count);
}

static inline mesh_status mesh_nccl__collective(mesh_transport *t, void *group, const mesh_call *call,
                                                mesh_ticket *ticket) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh_nccl__comm *c = g->c;
    mesh_nccl__ask a;
    mesh_error why;
    if (c->size == 1) return MESH_ERR_UNSUPPORTED;
    a.s = s;
    a.c = c;
    a.call = call;
    a.type = ncclUint8;
    a.op = ncclSum;
    a.elem = a.numbers = call->elem_bytes;
    a.native = s->api.ncclAlltoAll != NULL;
    if (!mesh_nccl__serves(s, call, &a)) return MESH_ERR_UNSUPPORTED;
    if (s->debug && !mesh_nccl__has_ended(s, c)) mesh_nccl__checked(s, c, mesh_nccl__check_call(s, g, call, &why), &why);
    if (!mesh_nccl__enter(s, c, call->record, mesh_nccl__now(s) + g->timeout)) {
        mesh_nccl__not_issued(c, ticket);
        return MESH_OK;
    }
    pthread_mutex_lock(&s->lock);
    a.comm = c->comm;
    g->sequence = (uint32_t)call->channel;
    if (!c->capturing) mesh_nccl__remember(c, call);
    pthread_mutex_unlock(&s->lock);
    mesh_nccl__call(&a, mesh_nccl__single(call->kind));
    mesh_nccl__issued(s, c, ticket);
    mesh_nccl__leave(s, c);
    return MESH_OK;
}

/* ---- // >>memory ---- */

/* The memory that these bytes lie in. */
static inline mesh_nccl__memory *mesh_nccl__memory_of(mesh_nccl__state *s, const void *p, uint64_t nbytes) {
    mesh_nccl__memory *m = s->memory;
    uintptr_t at = (uintptr_t)p;
    while (m && (at < (uintptr_t)m->p || at - (uintptr_t)m->p > m->nbytes || nbytes > m->nbytes - (at - (uintptr_t)m->p)))
        m = m->next;
    return m;
}

static inline int mesh_nccl__withdraw(mesh_nccl__state *s, mesh_nccl__registration *r);

static inline void mesh_nccl__memory_free(mesh_nccl__state *s, mesh_nccl__memory *m) {
    mesh_nccl__memory **at = &s->memory;
    mesh_nccl__registration *r;
    int held = 0;
    for (r = s->registration; r; r = r->next)
        if (r->memory == m) held |= !mesh_nccl__withdraw(s, r) && s->stops;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    if (held) { /* by a communicator that is being aborted, in its own time */
        m->next = s->memory;
        s->memory = m;
        m->pooled = 1;
        return;
    }
    if (m->paged)
        s->api.ncclMemFree(m->p);
    else
        s->api.cudaFree(m->p);
    mesh_transport_free(s->boot, m);
}

/* Free what the pool keeps: it waits for the device. Returns how much. */
static inline size_t mesh_nccl__pool_trim(mesh_nccl__state *s) {
    mesh_nccl__memory *m = s->memory, *next;
    size_t freed = 0;
    for (; m; m = next) {
        next = m->next;
        if (!m->pooled || m->used) continue;
        freed += m->nbytes;
        mesh_nccl__memory_free(s, m);
    }
    return freed;
}

/* paged: where it is worth it NCCL's pages, which peers can be shown; they are of 2 MiB. Else CUDA's. */
static inline mesh_nccl__memory *mesh_nccl__memory_new(mesh_nccl__state *s, size_t nbytes, int paged) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    mesh_nccl__memory *m = (mesh_nccl__memory *)mesh_transport_alloc(s->boot, sizeof *m);
    int again;
    if (!m) return NULL;
    memset(m, 0, sizeof *m);
    m->nbytes = nbytes;
    m->used = 1;
    mesh_nccl__use_device(s);
    mesh_nccl__capture_mode(s, &mode);
    for (again = 0; again < 2 && !m->p; again++) {
        if (again && !mesh_nccl__pool_trim(s)) break;
        m->paged = paged && nbytes >= MESH_NCCL__PAGED && s->api.ncclMemAlloc && s->api.ncclMemFree &&
                   s->api.ncclMemAlloc(&m->p, nbytes) == ncclSuccess;
        if (!m->paged && s->api.cudaMalloc(&m->p, nbytes) != cudaSuccess) {
            m->p = NULL;
            s->api.cudaGetLastError();
        }
    }
    mesh_nccl__capture_mode(s, &mode);
    if (!m->p) {
        mesh_transport_free(s->boot, m);
        return NULL;
    }
    m->next = s->memory;
    s->memory = m;
    return m;
}

/* The engine's scratch: the smallest that is free and large enough, but not wastefully so. */
static inline mesh_nccl__memory *mesh_nccl__pool_take(mesh_nccl__state *s, size_t nbytes) {
    mesh_nccl__memory *m, *best = NULL;
    size_t room = 512;
    while (room < nbytes && room < SIZE_MAX / 2) room *= 2;
    for (m = s->memory; m; m = m->next)
        if (m->pooled && !m->used && m->nbytes >= nbytes && m->nbytes <= 2 * room && (!best || m->nbytes < best->nbytes))
            best = m;
    if (!best && (best = mesh_nccl__memory_new(s, room < nbytes ? nbytes : room, 0)) == NULL)
        best = mesh_nccl__memory_new(s, nbytes, 0);
    if (best) best->pooled = best->used = 1;
    return best;
}

static inline mesh_status mesh_nccl__alloc(mesh_transport *t, uint64_t nbytes, unsigned flags, void **out) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__memory *m = NULL;
    if (nbytes <= SIZE_MAX)
        m = flags & MESH_ALLOC_BUFFER ? mesh_nccl__memory_new(s, (size_t)nbytes, 1)
                                      : mesh_nccl__pool_take(s, (size_t)nbytes);
    *out = m ? m->p : NULL;
    return m ? MESH_OK : MESH_ERR_MEMORY;
}

static inline mesh_status mesh_nccl__free(mesh_transport *t, void *p) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    mesh_nccl__memory *m = mesh_nccl__memory_of(s, p, 0);
    if (!m || m->p != p) return MESH_ERR_ARGUMENT;
    if (m->pooled) {
        m->used = 0;
        return MESH_OK;
    }
    mesh_nccl__capture_mode(s, &mode);
    mesh_nccl__memory_free(s, m);
    mesh_nccl__capture_mode(s, &mode);
    return MESH_OK;
}

/* ---- registration: by every rank of a communicator, or by none. Where memory is registered on some ranks only, NCCL's collectives may wait
   for the others on the host, where no abort reaches. */

/* A rank withdraws its part by itself; the handle stays until it is given back. Returns 0 if the communicator has ended with it. */
static inline int mesh_nccl__withdraw(mesh_nccl__state *s, mesh_nccl__registration *r) {
    mesh__record none = mesh_nccl__no_record(0);
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int done = !r->window && !r->handle;
    if ((r->window || r->handle) &&
        mesh_nccl__enter(s, r->c, &none, mesh_nccl__now(s) + INT64_C(10000000000))) { /* NCCL waits for the device */
        mesh_nccl__capture_mode(s, &mode);
        if (r->window) s->api.ncclCommWindowDeregister(r->comm, r->window);
        if (r->handle) s->api.ncclCommDeregister(r->comm, r->handle);
        mesh_nccl__capture_mode(s, &mode);
        mesh_nccl__leave(s, r->c);
        done = 1;
    }
    r->window = NULL;
    r->handle = NULL;
    r->memory = NULL;
    return done;
}

/* Do all ranks of a communicator say yes? */
static inline int mesh_nccl__all(mesh_nccl__state *s, const mesh_nccl__group *g, int yes, int64_t deadline,
                                 mesh_nccl__vote *vote) {
    memset(vote, 0, sizeof *vote);
    vote->serial = (uint64_t)yes;
    mesh_nccl__agree(s, g->c->rank, g->c->size, g->id, 0, 1, vote, deadline);
    return vote->status == MESH_OK && vote->action == MESH_NCCL__KEEP;
}

/* In a window if all ranks can, else as NCCL did before 2.27 if all can do that, else not at all. */
static inline mesh_status mesh_nccl__memory_register(mesh_transport *t, void *group, void *p, uint64_t nbytes,
                                                     int64_t deadline, void **handle, mesh_error *why) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh_nccl__registration *reg = (mesh_nccl__registration *)mesh_transport_alloc(s->boot, sizeof *reg);
    mesh__record none = mesh_nccl__no_record(0);
    mesh_nccl__vote vote;
    ncclResult_t r = ncclSuccess;
    int can = 0, done = 0;
    *handle = NULL;
    memset(&vote, 0, sizeof vote);
    if (reg) {
        memset(reg, 0, sizeof *reg);
        reg->c = g->c;
        reg->memory = mesh_nccl__memory_of(s, p, nbytes);
        can = s->api.ncclCommRegister && s->api.ncclCommDeregister;
        if (s->api.ncclCommWindowRegister && s->api.ncclCommWindowDeregister && reg->memory && reg->memory->paged &&
            (uintptr_t)p % 4096 == 0) /* NCCL_WIN_REQUIRED_ALIGNMENT */
            can = 2;
    }
    if (g->c->size > 1 && mesh_nccl__all(s, g, can, deadline, &vote) && mesh_nccl__enter(s, g->c, &none, deadline)) {
        pthread_mutex_lock(&s->lock);
        reg->comm = g->c->comm;
        pthread_mutex_unlock(&s->lock);
        if (can == 2) /* collective; no window where there is no symmetric memory, which is so on all ranks */
            r = s->api.ncclCommWindowRegister(reg->comm, p, (size_t)nbytes, &reg->window, MESH_NCCL__SYMMETRIC);
        mesh_nccl__said(s, "ncclCommWindowRegister", r);
        if (r == ncclSuccess && !reg->window)
            r = s->api.ncclCommRegister(reg->comm, p, (size_t)nbytes, &reg->handle);
        done = r == ncclSuccess && (reg->window || reg->handle);
        mesh_nccl__leave(s, g->c);
        if (!mesh_nccl__all(s, g, done, deadline, &vote)) mesh_nccl__withdraw(s, reg);
    }
    if (vote.status == MESH_OK && (reg && (reg->window || reg->handle))) {
        reg->next = s->registration;
        s->registration = reg;
        *handle = reg;
        return MESH_OK;
    }
    mesh_transport_free(s->boot, reg);
    if (vote.status != MESH_OK) *why = vote.why;
    return vote.status;
}

static inline mesh_status mesh_nccl__memory_unregister(mesh_transport *t, void *group, void *handle) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__registration **at = &s->registration, *reg;
    (void)group;
    while (*at && *at != (mesh_nccl__registration *)handle) at = &(*at)->next;
    if (!(reg = *at)) return MESH_ERR_ARGUMENT;
    *at = reg->next;
    mesh_nccl__withdraw(s, reg);
    mesh_transport_free(s->boot, reg);
    return MESH_OK;
}

/* ---- // >>posts: sends and receives as one NCCL group ---- */

/* Device memory for the strided messages of a post, which NCCL moves without a copy of its own. Posts of a communicator come one after another
   on the device, and share it; a graph keeps its own. What was too small stays until the end: freeing waits for the device. */
static inline unsigned char *mesh_nccl__staging(mesh_nccl__state *s, mesh_nccl__comm *c, ncclComm_t comm,
                                                size_t nbytes) {
    mesh_nccl__memory *m;
    if (c->capturing) return (m = mesh_nccl__memory_new(s, nbytes, 1)) != NULL ? (unsigned char *)m->p : NULL;
    if (c->staging && nbytes <= c->staging->nbytes) return (unsigned char *)c->staging->p;
    if (nbytes < MESH_NCCL__PAGED) nbytes = MESH_NCCL__PAGED;
    if (c->staging && nbytes < 2 * c->staging->nbytes) nbytes = 2 * c->staging->nbytes;
    if (!(m = mesh_nccl__memory_new(s, nbytes, 1))) return NULL;
    if (c->staging_handle) s->api.ncclCommDeregister(comm, c->staging_handle);
    c->staging = m;
    c->staging_handle = NULL;
    if (s->api.ncclCommRegister && s->api.ncclCommDeregister && /* only sends and receives use it: no rank waits for another's */
        s->api.ncclCommRegister(comm, m->p, nbytes, &c->staging_handle) != ncclSuccess)
        c->staging_handle = NULL;
    return (unsigned char *)m->p;
}

static inline int mesh_nccl__peer(const mesh_nccl__comm *c, int rank) {
    int i;
    if (rank < c->size && c->rank[rank] == rank) return rank; /* as in the world */
    for (i = 0; i < c->size && c->rank[i] != rank; i++) {}
    return i;
}

static inline int mesh_nccl__is_strided(const mesh_xfer *x) { return x->block && x->block->ndim && x->nbytes; }

static inline void mesh_nccl__batch_launch(mesh_nccl__state *s, mesh_nccl__comm *c, const char *what) {
    uint64_t chunks = mesh__batch_end(&s->batch);
    int kernel = mesh__batch_few(&s->batch) ? (int)MESH_NCCL__mesh_move_few : (int)MESH_NCCL__mesh_move_many;
    if (chunks) mesh_nccl__put(s, what, mesh_nccl__launch_on(s, c->on, kernel, s->batch.word, chunks));
    mesh__batch_begin(&s->batch, MESH__BATCH_MANY);
}

/* Copy the strided messages of one direction between their arrays and the staging: by one kernel, where there are kernels. */
static inline void mesh_nccl__pack(mesh_nccl__state *s, mesh_nccl__comm *c, const mesh_post *p, unsigned char *staging,
                                   int direction) {
    const char *what = direction == MESH_SEND ? "packing" : "unpacking";
    mesh__kernel_args args;
    size_t at = 0;
    int i;
    mesh__batch_begin(&s->batch, MESH__BATCH_MANY);
    for (i = 0; i < p->count && s->trouble.status == MESH_OK; i++) {
        const mesh_xfer *x = &p->xfer[i];
        unsigned char *here = staging + at;
        void *dst = direction == MESH_SEND ? (void *)here : x->base;
        const void *src = direction == MESH_SEND ? x->base : (const void *)here;
        if (!mesh_nccl__is_strided(x)) continue;
        at += ((size_t)x->nbytes + 255) & ~(size_t)255;
        if (x->direction != direction) continue;
        if (!s->has_kernels) {
            const mesh_block *to = direction == MESH_SEND ? NULL : x->block, *from = to ? NULL : x->block;
            mesh_nccl__put(s, what, mesh_nccl__move(s, c, dst, to, src, from, x->nbytes));
            continue;
        }
        memset(&args, 0, sizeof args);
        args.dst = (uint64_t)(uintptr_t)dst;
        args.src = (uint64_t)(uintptr_t)src;
        args.count = x->nbytes;
        mesh_nccl__kernel_block(direction == MESH_SEND ? &args.from : &args.to,
                                direction == MESH_SEND ? &args.from_ndim : &args.to_ndim, x->block, 1);
        if (mesh__batch_add(&s->batch, &args)) continue;
        mesh_nccl__batch_launch(s, c, what);
        mesh__batch_add(&s->batch, &args);
    }
    if (s->has_kernels && s->trouble.status == MESH_OK) mesh_nccl__batch_launch(s, c, what);
}

/* The messages of a post, inside: strided ones are packed before and unpacked after. */
static inline void mesh_nccl__exchange(mesh_nccl__state *s, mesh_nccl__comm *c, ncclComm_t comm, const mesh_post *p) {
    size_t total = 0, at;
    unsigned char *staging = NULL;
    ncclResult_t r = ncclSuccess, end;
    int i, some = 0;
    for (i = 0; i < p->count; i++) {
        some |= p->xfer[i].nbytes > 0;
        if (mesh_nccl__is_strided(&p->xfer[i])) total += ((size_t)p->xfer[i].nbytes + 255) & ~(size_t)255;
    }
    if (!some) return;
    if (total && !(staging = mesh_nccl__staging(s, c, comm, total))) {
        mesh__fail(&s->trouble, MESH_ERR_MEMORY, s->boot->rank, "no device memory for %u bytes of strided messages",
                   (uint64_t)total);
        return;
    }
    if (total) mesh_nccl__pack(s, c, p, staging, MESH_SEND);
    if (s->trouble.status != MESH_OK) return;
    r = s->api.ncclGroupStart();
    for (i = 0, at = 0; i < p->count && r == ncclSuccess; i++) {
        const mesh_xfer *x = &p->xfer[i];
        void *base = mesh_nccl__is_strided(x) ? (void *)(staging + at) : x->base;
        int peer = mesh_nccl__peer(c, x->rank);
        if (mesh_nccl__is_strided(x)) at += ((size_t)x->nbytes + 255) & ~(size_t)255;
        if (!x->nbytes) continue;
        r = x->direction == MESH_SEND ? s->api.ncclSend(base, (size_t)x->nbytes, ncclUint8, peer, comm, c->on)
                                      : s->api.ncclRecv(base, (size_t)x->nbytes, ncclUint8, peer, comm, c->on);
    }
    end = s->api.ncclGroupEnd();
    mesh_nccl__said(s, "sends and receives", r != ncclSuccess ? r : end);
    if (total) mesh_nccl__pack(s, c, p, staging, MESH_RECV);
}

static inline mesh_status mesh_nccl__post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, p->group);
    mesh_nccl__comm *c = g->c;
    mesh__record none = mesh_nccl__no_record(p->channel);
    mesh_error why;
    ncclComm_t comm;
    if (s->debug && p->count && !mesh_nccl__has_ended(s, c))
        mesh_nccl__checked(s, c, mesh_nccl__compare_post(s, g, p, &why), &why);
    if (!mesh_nccl__enter(s, c, p->record ? p->record : &none, mesh_nccl__now(s) + g->timeout)) {
        mesh_nccl__not_issued(c, ticket);
        return MESH_OK;
    }
    pthread_mutex_lock(&s->lock);
    comm = c->comm;
    if ((uint32_t)p->channel) g->sequence = (uint32_t)p->channel;
    pthread_mutex_unlock(&s->lock);
    if (p->count) mesh_nccl__exchange(s, c, comm, p);
    mesh_nccl__issued(s, c, ticket);
    mesh_nccl__leave(s, c);
    return MESH_OK;
}

/* ---- // >>close ---- */

/* NCCL's own goodbye, which every rank of a communicator says: in a thread, with a deadline. */
typedef struct mesh_nccl__farewell {
    mesh_nccl__api api;
    int device, n, over, left; /* left: nobody waits for the thread any more; it frees this */
    pthread_mutex_t lock;
    ncclComm_t comm[1]; /* n of them */
} mesh_nccl__farewell;

static void *mesh_nccl__destroy(void *arg) {
    mesh_nccl__farewell *f = (mesh_nccl__farewell *)arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    ncclResult_t r = ncclSuccess;
    int i, left;
    f->api.cudaThreadExchangeStreamCaptureMode(&mode);
    f->api.cudaSetDevice(f->device);
    for (i = 0; i < f->n && (r == ncclSuccess || r == ncclInProgress); i++) r = f->api.ncclCommDestroy(f->comm[i]);
    pthread_mutex_lock(&f->lock);
    f->over = 1;
    left = f->left;
    pthread_mutex_unlock(&f->lock);
    if (left) free(f);
    return NULL;
}

/* Destroy the communicators that all ranks have come to destroy. Returns 0 if NCCL does not end. */
static inline int mesh_nccl__destroy_all(mesh_nccl__state *s, int64_t deadline) {
    mesh_nccl__comm *c;
    mesh_nccl__farewell *f;
    pthread_t thread;
    int n = 0, over = 0, left = 0;
    for (c = s->comm; c; c = c->next) n += c->ended ? 0 : (c->comm != NULL) + (c->root != NULL);
    if (!n) return 1;
    f = (mesh_nccl__farewell *)malloc(sizeof *f + (size_t)n * sizeof f->comm[0]); /* may outlive the allocator */
    if (!f) return 0;
    memset(f, 0, sizeof *f);
    f->api = s->api;
    f->device = s->n->device;
    pthread_mutex_init(&f->lock, NULL);
    for (c = s->comm; c; c = c->next) { /* the youngest first, on every rank */
        if (c->ended) continue;
        if (c->comm) f->comm[f->n++] = c->comm;
        if (c->root) f->comm[f->n++] = c->root;
        c->comm = c->root = NULL;
    }
    if (pthread_create(&thread, NULL, mesh_nccl__destroy, f) != 0) {
        free(f);
        return 0;
    }
    while (!over && !left) {
        mesh_nccl__nap(200000);
        pthread_mutex_lock(&f->lock);
        over = f->over;
        left = f->left = !over && mesh_nccl__now(s) >= deadline;
        pthread_mutex_unlock(&f->lock);
    }
    if (left) {
        pthread_detach(thread);
        return 0;
    }
    pthread_join(thread, NULL);
    pthread_mutex_destroy(&f->lock);
    free(f);
    return 1;
}

/* What is under way ends: by itself, or at the deadline. */
static inline void mesh_nccl__drain(mesh_nccl__state *s, int64_t deadline) {
    for (;;) {
        mesh_nccl__comm *c;
        int left = 0;
        pthread_mutex_lock(&s->lock);
        for (c = s->comm; c; c = c->next) mesh_nccl__mark_now(s, c);
        mesh_nccl__look(s);
        for (c = s->comm; c; c = c->next) {
            int busy = c->nmarks > 0 || (!c->ended && c->completed < c->issued);
            left += busy;
            if (busy && mesh_nccl__now(s) >= deadline) mesh_nccl__end(s, c, MESH_ERR_TIMEOUT, -1, "it was closed");
        }
        pthread_mutex_unlock(&s->lock);
        if (!left || mesh_nccl__now(s) > deadline + INT64_C(2000000000)) return;
        mesh_nccl__nap(50000);
    }
}

/* Wait for the other ranks to close. OK, TIMEOUT, or PEER when one is lost: then there is nothing to wait for. */
static inline mesh_status mesh_nccl__meet(mesh_nccl__state *s, int64_t deadline, mesh_error *why) {
    mesh_nccl__vote vote;
    int *ranks, i;
    if (s->boot->size == 1) return MESH_OK;
    ranks = (int *)mesh_transport_alloc(s->boot, sizeof *ranks * (size_t)s->boot->size);
    if (!ranks) return mesh__fail(why, MESH_ERR_MEMORY, s->boot->rank, "no memory");
    for (i = 0; i < s->boot->size; i++) ranks[i] = i;
    memset(&vote, 0, sizeof vote);
    s->closing = 1;
    mesh_nccl__agree(s, ranks, s->boot->size, 0, 0, 0, &vote, deadline);
    mesh_transport_free(s->boot, ranks);
    *why = vote.why;
    return vote.status;
}

/* The marker's end. Returns 0 if a stream whose queue is full keeps it. */
static inline int mesh_nccl__marker_end(mesh_nccl__state *s, int64_t deadline) {
    const mesh_nccl__comm *c;
    int busy = 1;
    pthread_mutex_lock(&s->lock);
    s->marks_stopping = 1;
    pthread_cond_signal(&s->want);
    pthread_mutex_unlock(&s->lock);
    while (busy && mesh_nccl__now(s) < deadline) {
        pthread_mutex_lock(&s->lock);
        for (busy = 0, c = s->comm; c; c = c->next) busy |= c->marking && !s->marker_left;
        pthread_mutex_unlock(&s->lock);
        if (busy) mesh_nccl__nap(200000);
    }
    if (busy)
        pthread_detach(s->marker);
    else
        pthread_join(s->marker, NULL);
    return !busy;
}

/* met: the ranks have come so far together that they can close together. */
static inline mesh_status mesh_nccl__close_all(mesh_nccl__state *s, int met, mesh_error *why) {
    mesh_status status = MESH_OK;
    mesh_nccl__registration *reg;
    mesh_nccl__mail *mail;
    mesh_nccl__comm *c;
    int hung = 0, i;
    mesh_nccl__drain(s, mesh_nccl__now(s) + INT64_C(10000000000));
    if (met) status = mesh_nccl__meet(s, mesh_nccl__now(s) + INT64_C(60000000000), why);
    met = met && status == MESH_OK;
    if (status != MESH_ERR_TIMEOUT) status = MESH_OK;
    if (s->watching) {
        pthread_mutex_lock(&s->watch_lock);
        s->stopping = 1;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->watch_lock);
        pthread_join(s->watchdog, NULL);
    }
    if (s->marks) hung = !mesh_nccl__marker_end(s, mesh_nccl__now(s) + INT64_C(5000000000));
    for (reg = s->registration; reg; reg = reg->next) mesh_nccl__withdraw(s, reg);
    if (met) hung |= !mesh_nccl__destroy_all(s, mesh_nccl__now(s) + INT64_C(10000000000));
    for (c = s->comm; c; c = c->next) {
        if (c->ended) continue;
        if (c->comm) mesh_nccl__stop_comm(s, c, c->comm, NULL);
        if (c->root) mesh_nccl__stop_comm(s, c, c->root, NULL);
    }
    hung |= mesh_nccl__stops_wait(s, mesh_nccl__now(s) + INT64_C(5000000000));
    if (hung)
        status = mesh__fail(
            why, MESH_ERR_TIMEOUT, -1,
            "mesh_nccl_close: NCCL has not ended its communicators at the deadline; they are left (does a graph "
            "still hold their operations?)");
    while (s->comm && !hung) { /* else freeing would wait for the device, and NCCL may still write there */
        c = s->comm;
        s->comm = c->next;
        mesh_nccl__comm_free(s, c);
    }
    while ((reg = s->registration) != NULL) {
        s->registration = reg->next;
        mesh_transport_free(s->boot, reg);
    }
    while (s->memory && !hung) mesh_nccl__memory_free(s, s->memory);
    while (s->group) {
        mesh_nccl__group *g = s->group;
        s->group = g->next;
        mesh_transport_free(s->boot, g);
    }
    for (i = 0; i < s->nevents; i++) s->api.cudaEventDestroy(s->event[i]);
    mesh_transport_free(s->boot, s->event);
    if (s->kernels && !hung) s->api.cudaLibraryUnload(s->kernels);
    while ((mail = s->mail) != NULL) {
        s->mail = mail->next;
        mesh_transport_free(s->boot, mail);
    }
    s->n->impl = NULL;
    mesh_transport_free(s->boot, s->gone);
    if (hung) return status; /* a thread that is left may still look at the lock */
    pthread_mutex_destroy(&s->boot_lock);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->watch_lock);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->want);
    pthread_cond_destroy(&s->out);
    mesh_transport_free(s->boot, s);
    return status;
}

static inline mesh_status mesh_nccl__close(mesh_transport *t, mesh_error *why) {
    mesh_error own;
    mesh_status status;
    if (!((mesh_nccl *)t)->impl) return MESH_OK;
    if ((status = mesh_transport_detach(t)) != MESH_OK) return status;
    return mesh_nccl__close_all(mesh_nccl__of(t), 1, why ? why : &own);
}

MESH_API mesh_status mesh_nccl_close(mesh_nccl *n) {
    mesh_error why;
    return n && n->impl ? mesh_nccl__close(&n->base, &why) : MESH_OK;
}

/* ---- // >>open ---- */

static inline const mesh_ops *mesh_nccl__ops(void) {
    static const mesh_ops ops = {sizeof(mesh_ops),
                                 MESH_ABI,
                                 "nccl",
                                 mesh_nccl__post,
                                 mesh_nccl__test,
                                 mesh_nccl__pending,
                                 mesh_nccl__cancel,
                                 mesh_nccl__progress,
                                 mesh_nccl__clock,
                                 mesh_nccl__control_send,
                                 mesh_nccl__control_poll,
                                 mesh_nccl__close,
                                 mesh_nccl__group_open,
                                 mesh_nccl__group_close,
                                 mesh_nccl__group_abort,
                                 mesh_nccl__collective,
                                 mesh_nccl__copy,
                                 mesh_nccl__reduce,
                                 mesh_nccl__fence,
                                 mesh_nccl__alloc,
                                 mesh_nccl__free,
                                 mesh_nccl__memory_register,
                                 mesh_nccl__memory_unregister,
                                 mesh_nccl__stream_wait,
                                 mesh_nccl__control_flush};
    return &ops;
}

/* Does a CUDA runtime go with this machine's driver? One that is too young for it does not. */
static inline int mesh_nccl__suits(void *cudart) {
    cudaError_t (*count)(int *);
    void *f = dlsym(cudart, "cudaGetDeviceCount");
    int n;
    memcpy(&count, &f, sizeof f);
    return count && count(&n) != cudaErrorInsufficientDriver;
}

/* The library that was named; else the first of these names that suits: the one that the program has already, or one that loads. */
static inline void *mesh_nccl__library(int rank, const char *given, const char *variable, const char *const *names,
                                       int cudart, mesh_error *err) {
    const char *named = given ? given : getenv(variable);
    void *library = NULL;
    int i, load;
#ifdef MESH_NCCL_LINK
    library = dlopen(NULL, RTLD_NOW); /* this program: for what the linked libraries may lack */
    (void)names, (void)cudart, (void)i, (void)load;
#else
    if (named && *named) library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    for (load = 0; load < 2 && (!named || !*named); load++)
        for (i = 0; names[i]; i++) {
            void *found;
#ifdef RTLD_NOLOAD
            found = dlopen(names[i], RTLD_NOW | (load ? RTLD_LOCAL : RTLD_NOLOAD));
#else
            found = load ? dlopen(names[i], RTLD_NOW | RTLD_LOCAL) : NULL;
#endif
            if (!found) continue;
            if (!cudart || mesh_nccl__suits(found)) return found;
            if (!library) library = found; /* it says what is wrong */
        }
#endif
    if (!library) {
        const char *why = dlerror();
        mesh__fail(err, MESH_ERR_UNSUPPORTED, rank, "rank %d cannot load %s (%s); see %s", rank,
                   named && *named ? named : names[0], why ? why : "no reason given", variable);
    }
    return library;
}

/* Find the functions. Of NCCL only those that its version has. */
static inline mesh_status mesh_nccl__load(mesh_nccl__state *s, const mesh_nccl_desc *desc, mesh_error *err) {
#if CUDART_VERSION >= 13000
    static const char *const cuda[] = {"libcudart.so.13", "libcudart.so.12", NULL};
#else
    static const char *const cuda[] = {"libcudart.so.12", "libcudart.so.13", NULL};
#endif
    static const char *const nccl[] = {"libnccl.so.2", NULL};
    mesh_nccl__api *api = &s->api;
    const char *missing = NULL;
    int version = 0, rank = s->boot->rank;
    if (!(s->cuda_library = mesh_nccl__library(rank, desc->cudart_library, "MESH_CUDART_LIBRARY", cuda, 1, err)) ||
        !(s->nccl_library = mesh_nccl__library(rank, desc->nccl_library, "MESH_NCCL_LIBRARY", nccl, 0, err)))
        return (mesh_status)MESH_ERR_UNSUPPORTED;
#ifdef MESH_NCCL_LINK
#define MESH_NCCL__NEEDED_1(library, name) api->library##name = library##name
#else
#define MESH_NCCL__NEEDED_1(library, name) (void)0
#endif
#define MESH_NCCL__NEEDED_0(library, name) (void)0
#define MESH_X(result, library, name, arguments, needed)                         \
    {                                                                            \
        void *f = dlsym(s->library##_library, #library #name);                   \
        memcpy(&api->library##name, &f, sizeof f);                               \
        MESH_NCCL__NEEDED_##needed(library, name);                               \
        if (needed && !api->library##name && !missing) missing = #library #name; \
    }
    MESH_NCCL__CUDA_FUNCTIONS(MESH_X)
    MESH_NCCL__NCCL_FUNCTIONS(MESH_X)
#undef MESH_X
#undef MESH_NCCL__NEEDED_0
#undef MESH_NCCL__NEEDED_1
    if (missing)
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, rank,
                          "rank %d's libraries lack %s: NCCL 2.18 and CUDA 12 or later are needed", rank, missing);
    if (api->ncclGetVersion(&version) != ncclSuccess || version < MESH_NCCL__FLOOR)
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, rank,
                          "rank %d's libnccl is version %d; 2.18 (21800) or later is needed", rank, version);
    s->n->nccl_version = version;
    api->cudaRuntimeGetVersion(&s->n->cuda_version);
    if (version < 21900) api->ncclMemAlloc = NULL, api->ncclCommRegister = NULL;
    if (version < 22700) api->ncclCommWindowRegister = NULL;
    if (version < 22800) api->ncclAlltoAll = NULL, api->ncclGather = NULL, api->ncclScatter = NULL;
    if (version < 22807) api->ncclCommRevoke = NULL;
    if (!api->ncclGather || !api->ncclScatter) api->ncclAlltoAll = NULL;
    return MESH_OK;
}

/* Which device is this rank's? */
static inline mesh_status mesh_nccl__device(mesh_nccl__state *s, const mesh_nccl_desc *desc, mesh_error *err) {
    static const char *const variables[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                            "SLURM_LOCALID"};
    const char *from = "its rank", *value;
    int count = 0, local = s->boot->rank, major = 0, i;
    cudaError_t r = s->api.cudaGetDeviceCount(&count);
    if (r != cudaSuccess || count < 1)
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, s->boot->rank, "no GPU on rank %d's host: cudaGetDeviceCount: %s",
                          s->boot->rank, r == cudaSuccess ? "0 devices" : s->api.cudaGetErrorString(r));
    for (i = 0; i < 4; i++)
        if ((value = getenv(variables[i])) != NULL && mesh__is_digit(*value)) {
            local = atoi(value);
            from = variables[i];
            break;
        }
    if (desc->device) {
        local = desc->device - 1;
        from = "mesh_nccl_desc.device - 1";
    } else if (count == 1) {
        local = 0; /* chosen for it, by CUDA_VISIBLE_DEVICES */
    }
    if (local < 0 || local >= count)
        return mesh__fail(err, MESH_ERR_ARGUMENT, s->boot->rank,
                          "rank %d would use device %d (%s), but its host has %d; start one rank per GPU",
                          s->boot->rank, local, from, count);
    s->n->device = local;
    s->n->devices = count;
    r = s->api.cudaSetDevice(local);
    if (r != cudaSuccess) return mesh_nccl__cuda_fail(s, err, "cudaSetDevice", r);
    if (s->api.cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, local) == cudaSuccess && major >= 9 &&
        s->n->nccl_version >= 22400)
        s->n->base.caps |= MESH_CAP_FP8;
    r = s->api.cudaFree(NULL); /* makes the context: a device that cannot be used shows here */
    return r == cudaSuccess ? MESH_OK : mesh_nccl__cuda_fail(s, err, "the device's context", r);
}

/* Kernels are a help, not a need: without them narrow rows go slower and some reductions are refused. */
static inline void mesh_nccl__load_kernels(mesh_nccl__state *s) {
#define MESH_X(name) #name,
    static const char *const names[] = {MESH_KERNELS(MESH_X)};
#undef MESH_X
    mesh__text t = mesh__text_on(s->no_kernels, sizeof s->no_kernels);
    mesh__kernel_args nothing;
    void *args = &nothing;
    cudaError_t r = cudaSuccess;
    char *text;
    int i;
    if (!s->api.cudaLibraryLoadData || !s->api.cudaLibraryGetKernel || !s->api.cudaLibraryUnload) {
        mesh__put(&t, "libcudart %d has no cudaLibraryLoadData (12.8 has)", s->n->cuda_version);
        return;
    }
    text = (char *)mesh_transport_alloc(s->boot, MESH__PTX_BYTES + 1);
    if (!text) {
        mesh__put(&t, "there was no memory for the kernels");
        return;
    }
    memset(&nothing, 0, sizeof nothing);
    nothing.divide = 1;
    mesh__batch_begin(&s->batch, MESH__BATCH_FEW);
    mesh__ptx_join(text);
    r = s->api.cudaLibraryLoadData(&s->kernels, text, NULL, NULL, 0, NULL, NULL, 0);
    mesh_transport_free(s->boot, text);
    for (i = 0; i < MESH_NCCL__KERNELS && r == cudaSuccess; i++) {
        r = s->api.cudaLibraryGetKernel(&s->kernel[i], s->kernels, names[i]);
        if (i >= MESH_NCCL__mesh_move_few) args = s->batch.word;
        if (r == cudaSuccess)
            r = mesh_nccl__launch_on(s, NULL, i, args, 1); /* so that it is compiled now, not inside a call or a capture */
    }
    s->has_kernels = r == cudaSuccess;
    if (r == cudaSuccess) return;
    mesh__put(&t, "the driver does not take the kernels: %s", s->api.cudaGetErrorString(r));
    s->api.cudaGetLastError();
}

MESH_API mesh_status mesh_nccl_open(mesh_nccl *n, mesh_transport *bootstrap, const mesh_nccl_desc *desc,
                                    mesh_error *err) {
    static const mesh_nccl_desc none = MESH_ZERO;
    mesh_nccl__state *s;
    mesh_nccl__vote vote;
    const char *debug = getenv("MESH_NCCL_DEBUG"), *blocking = getenv("NCCL_COMM_BLOCKING");
    unsigned char *gone;
    mesh_error own;
    mesh all;
    void *world = NULL;
    mesh_status status;
    int64_t deadline;
    int i, *ranks;
    if (!n || !bootstrap)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_nccl_open: %s is NULL",
                          n ? "the bootstrap" : "the transport");
    memset(n, 0, sizeof *n);
    if (bootstrap->engine)
        return mesh__fail(err, MESH_ERR_ARGUMENT, bootstrap->rank,
                          "mesh_nccl_open: the bootstrap (%s) has comms of its own; give it one without",
                          bootstrap->ops->name);
    if (!desc) desc = &none;
    s = (mesh_nccl__state *)mesh_transport_alloc(bootstrap, sizeof *s);
    ranks = (int *)mesh_transport_alloc(bootstrap, sizeof *ranks * (size_t)bootstrap->size);
    gone = (unsigned char *)mesh_transport_alloc(bootstrap, (size_t)bootstrap->size);
    if (!s || !ranks || !gone) {
        mesh_transport_free(bootstrap, gone);
        mesh_transport_free(bootstrap, s);
        mesh_transport_free(bootstrap, ranks);
        return mesh__fail(err, MESH_ERR_MEMORY, bootstrap->rank, "mesh_nccl_open: no memory");
    }
    memset(s, 0, sizeof *s);
    memset(gone, 0, (size_t)bootstrap->size);
    s->gone = gone;
    s->n = n;
    s->boot = bootstrap;
    s->mail_end = &s->mail;
    s->debug = desc->debug || (debug && *debug && *debug != '0');
    s->max_ctas = desc->max_ctas;
    pthread_mutex_init(&s->boot_lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->watch_lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->want, NULL);
    pthread_cond_init(&s->out, NULL);
    n->base.ops = mesh_nccl__ops();
    n->base.rank = bootstrap->rank;
    n->base.size = bootstrap->size;
    n->base.caps = MESH_CAP_DEVICE | MESH_CAP_ORDERED | MESH_CAP_CONTROL_THREAD;
    n->base.allocator = bootstrap->allocator;
    n->base.log = bootstrap->log;
    n->base.log_ctx = bootstrap->log_ctx;
    n->base.trace = bootstrap->trace; /* it has no operations of its own, and the same clock */
    n->base.trace_ctx = bootstrap->trace_ctx;
    n->base.trace_clock = bootstrap->trace_clock;
    n->base.trace_epoch = bootstrap->trace_epoch;
    n->impl = s;
    if (desc->launch_order) setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    deadline = mesh_nccl__now(s) + (desc->open_timeout_ns ? desc->open_timeout_ns : INT64_C(60000000000));
    memset(&vote, 0, sizeof vote);
    vote.status = mesh_nccl__load(s, desc, &vote.why);
    if (vote.status == MESH_OK && blocking && *blocking == '0')
        vote.status =
            mesh__fail(&vote.why, MESH_ERR_ARGUMENT, bootstrap->rank,
                       "NCCL_COMM_BLOCKING is \"%s\", which makes NCCL's calls return before they are done whatever a "
                       "communicator says; unset it",
                       blocking);
    if (vote.status == MESH_OK) vote.status = mesh_nccl__device(s, desc, &vote.why);
    if (vote.status != MESH_OK && vote.why.rank < 0) vote.why.rank = bootstrap->rank;
    for (i = 0; i < bootstrap->size; i++) ranks[i] = i;
    if (bootstrap->size > 1) mesh_nccl__agree(s, ranks, bootstrap->size, 0, 0, 1, &vote, deadline);
    status = vote.status;
    if (status == MESH_OK) mesh_nccl__load_kernels(s);
    if (status == MESH_OK &&
        bootstrap->size > 1) { /* which calls NCCL serves depends on them: all ranks use them, or none */
        vote.serial = (uint64_t)s->has_kernels;
        status = mesh_nccl__agree(s, ranks, bootstrap->size, 0, 0, 1, &vote, deadline);
        if (s->has_kernels && vote.action != MESH_NCCL__KEEP) {
            mesh__text t = mesh__text_on(s->no_kernels, sizeof s->no_kernels);
            mesh__put(&t, "another rank has none");
            s->has_kernels = 0;
        }
    }
    mesh_transport_free(bootstrap, ranks);
    if (status == MESH_OK && !desc->no_watchdog) {
        s->marks = pthread_create(&s->marker, NULL, mesh_nccl__marker, s) == 0; /* which the watchdog asks */
        s->watching = pthread_create(&s->watchdog, NULL, mesh_nccl__watch, s) == 0;
        if (!s->watching || !s->marks)
            status = mesh__fail(&vote.why, MESH_ERR_MEMORY, bootstrap->rank, "no watchdog thread");
    }
    if (status == MESH_OK) {
        status = mesh_parse(&all, "world=-1", bootstrap->size, &vote.why);
        if (status == MESH_OK)
            status = mesh_nccl__group_open(&n->base, NULL, 0, &all, 0, bootstrap->rank, deadline, &world, &vote.why);
    }
    if (status == MESH_OK) {
        s->world = *(mesh_nccl__group *)world; /* for bare posts; the first comm over the world may have it */
        pthread_mutex_lock(&s->lock);
        s->world.c->refs = 0;
        pthread_mutex_unlock(&s->lock);
        s->world.timeout = INT64_C(600000000000);
    }
    if (status == MESH_OK) return MESH_OK;
    mesh_nccl__close_all(s, 0, &own);
    return mesh__fail(err, status, vote.why.rank, "mesh_nccl_open: %s", vote.why.text);
}

#ifdef __cplusplus
}
#endif
#endif /* MESH_NCCL_IMPLEMENTED */
