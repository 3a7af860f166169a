/* nccl/state.h - the libraries as a table of functions; what a rank over NCCL has. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh_nccl.h and mesh_env.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_NCCL_STATE_IMPLEMENTED)
#define MESH_NCCL_STATE_IMPLEMENTED
#include "../mesh_nccl.h"
#include "../mesh_env.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

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
    X(cudaError_t, cuda, StreamGetCaptureInfo,                                                              \
      (cudaStream_t, enum cudaStreamCaptureStatus *, unsigned long long *, void *, void *, void *, void *), \
      0) /* older ones take fewer */                                                                        \
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
    X(ncclResult_t, nccl, CommCount, (const ncclComm_t, int *), 1)                                                     \
    X(ncclResult_t, nccl, CommUserRank, (const ncclComm_t, int *), 1)                                                  \
    X(ncclResult_t, nccl, CommCuDevice, (const ncclComm_t, int *), 1)                                                  \
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
    X(ncclResult_t, nccl, CommWindowRegister, (ncclComm_t, void *, size_t, mesh_nccl__window *, int), 0) /* 2.27 */    \
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
    MESH_NCCL__ODD_ROW =
        128, /* bytes of a row from which a 2-D copy is faster than a kernel that takes 1 byte at a time */
    MESH_NCCL__EVEN_ROW = 512, /* ... that takes 2 */
    MESH_NCCL__VOTE_BYTES = 512,
    MESH_NCCL__GRACE_NS =
        2000000000,             /* the watchdog's patience beyond a deadline: the engine says more, if it is inside */
    MESH_NCCL__POLL_NS = 10000, /* between two looks at the same event */
    MESH_NCCL__TICK_NS = 50000000,       /* of the watchdog */
    MESH_NCCL__BETWEEN_MARKS = 16,       /* operations on the caller's stream, at most */
    MESH_NCCL__PAGED = 1 << 20,          /* bytes from which mesh_alloc takes NCCL's pages (of 2 MiB) */
    MESH_NCCL__COMPARE_NS = 200000000,   /* between two comparisons of histories */
    MESH_NCCL__DISAGREE_NS = 1000000000, /* for the calls that differ to be found, after a barrier that shows it */
    MESH_NCCL__RECENT = 64, /* calls of a communicator that are remembered; and each 64th, and each 4096th */
    MESH_NCCL__LEVELS = 3,
    MESH_NCCL__BARRIERS = 8,     /* whose verdict is under way */
    MESH_NCCL__SYMMETRIC = 1,    /* NCCL_WIN_COLL_SYMMETRIC, which older headers do not have */
    MESH_NCCL__MSG_HISTORY = 64, /* a control message between watchdogs; the engine's own are below */
    MESH_NCCL__MSG_LEFT, /* the same: a rank closes a group, with the id, after its operation of this sequence */
    MESH_NCCL__LEFT_BYTES = 12,
    /* In a larger group a rank that closes it does not connect to all others to say so: the deadline tells. */
    MESH_NCCL__LEFT_RANKS = 64
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
    mesh_nccl__verdict *verdict;           /* MESH_NCCL__BARRIERS, and a neutral one */
    uint64_t barrier[MESH_NCCL__BARRIERS]; /* whose verdict it will be: a ticket's id; 0: free */
    uint32_t barriers;
    int64_t disagreed; /* when a verdict said so; 0: none has */
} mesh_nccl__history;

/* What may be put on a stream. */
typedef enum mesh_nccl__capture {
    MESH_NCCL__FREE = 0,
    MESH_NCCL__CAPTURED, /* goes into a graph */
    MESH_NCCL__BESIDE    /* ends the capture of another stream: this is the default stream, which waits for that one */
} mesh_nccl__capture;

/* What has become of a communicator. Changes under the lock. */
typedef enum mesh_nccl__life {
    MESH_NCCL__NEW = 0,    /* a list of ranks and a stream; nobody has joined */
    MESH_NCCL__CONNECTING, /* joined, and not open yet on every rank */
    MESH_NCCL__OPEN,
    MESH_NCCL__ENDED /* aborted, or never came about */
} mesh_nccl__life;

/* An ordered list of ranks, its communicator and its queue. A list of one has no communicator. */
typedef struct mesh_nccl__comm {
    struct mesh_nccl__comm *next;
    int *rank, size, index;
    char name[32];   /* NCCL keeps the pointer */
    int life;        /* mesh_nccl__life */
    uint64_t serial; /* when it was made, as its ranks agreed; 0: it has never been open */
    ncclComm_t root; /* non-blocking, for splits; only a comm's whole mesh has one. Of the main thread alone */
    ncclComm_t comm; /* blocking: its calls enqueue at once, without a thread of NCCL's for each */
    ncclComm_t made; /* where a thread of NCCL's writes it; `comm` when it is ready */
    struct {         /* once it has ENDED */
        mesh_error why;
        uint64_t valid; /* operations up to this one were over before */
        int64_t at;
    } end;
    mesh_nccl__capture capturing; /* the caller's stream, when an operation came last */
    int refs;                     /* groups that use it */
    int stale;                    /* its root was given up: no other comm takes it over */
    uint32_t owner;               /* their comm's id */
    int64_t polled, doubted;      /* doubted: when NCCL first said that it has failed; 0: never */
    /* Its own; where the last operation went; where the last one went that is in no graph, which is where marks go: changes under the lock. */
    cudaStream_t stream, on, last;
    cudaEvent_t enter, captured;
    cudaStream_t captured_on;           /* where `captured` was recorded */
    uint64_t issued, marked, completed; /* operations: on the device; with a mark behind them; over */
    int64_t due, last_due;              /* deadlines of the first one without a mark, and of the last */
    int64_t marking;                    /* since when one is being put on `last`, or is wanted; 0: none */
    int blind;                          /* CUDA has not said how far they are, but that something has failed */
    int wanted;                         /* the marker is to put it, or does */
    int64_t captured_since; /* none could be put: the program captured `last`, or beside it; 0: the last one was */
    mesh_nccl__mark *mark;  /* a ring */
    int first_mark, nmarks, mark_cap;
    mesh_nccl__history past;
    void *word; /* of barriers */
    /* Of strided messages; one that was too small, or belongs to a graph, stays until the end. */
    struct mesh_nccl__memory *staging;
} mesh_nccl__comm;

typedef struct mesh_nccl__group {
    struct mesh_nccl__group *next;
    mesh_nccl__comm *c;
    uint32_t id, sequence; /* of its last operation */
    int left_by;           /* a rank that has closed it, + 1; 0: none has */
    uint32_t left_at;      /* its last operation there */
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
    ncclComm_t comm;                 /* c's, then */
    const mesh_nccl__memory *memory; /* NULL: not ours */
    void *handle;
    mesh_nccl__window window;
} mesh_nccl__registration;

/* What came; what the watchdog has acted on; what a rank that closes has answered. */
typedef enum mesh_nccl__mail_state {
    MESH_NCCL__CAME = 0,
    MESH_NCCL__ACTED_ON,
    MESH_NCCL__ANSWERED
} mesh_nccl__mail_state;
typedef struct mesh_nccl__mail {
    struct mesh_nccl__mail *next;
    int state; /* mesh_nccl__mail_state */
    int64_t came;
    mesh_control m;
} mesh_nccl__mail;

/* A communicator that is being aborted, in a thread of its own: NCCL waits there for streams, other ranks, graphs. */
typedef struct mesh_nccl__stop {
    struct mesh_nccl__stop *next;
    /* Not NULL: the main thread is inside CUDA or NCCL with it; it is left whole while threads are left. */
    struct mesh_nccl__state *s;
    mesh_nccl__api api;
    mesh_nccl__comm *of;
    pthread_mutex_t lock; /* over */
    pthread_t thread;
    int device, over;
    ncclComm_t comm;
    ncclComm_t *late; /* not NULL: a split of it that NCCL may still be writing */
} mesh_nccl__stop;

/* The kernels, by their place in MESH_KERNELS. */
#define MESH_X(name) MESH_NCCL__##name,
enum { MESH_KERNELS(MESH_X) MESH_NCCL__KERNELS };
#undef MESH_X

typedef struct mesh_nccl__state {
    mesh_nccl *n;
    mesh_transport *boot;
    mesh_nccl__api api;
    ncclComm_t given; /* the caller's, of all ranks; NULL: there is none */
    void *nccl_library, *cuda_library, *kernels;
    void *kernel[MESH_NCCL__KERNELS];
    mesh__batch batch; /* the moves of a post; the main thread's alone */
    int debug, max_ctas, has_kernels;
    char no_kernels[160]; /* why not */
    uint64_t serial;
    uint64_t opened; /* which opening of the bootstrap this is, as its ranks agreed */
    /* Two locks, taken in this order. Neither is held in a call of CUDA's or NCCL's that may wait: for a peer, a device, a full queue. */
    pthread_mutex_t boot_lock; /* the bootstrap and the mail */
    pthread_mutex_t lock;      /* what the threads share of the rest */
    pthread_cond_t out;        /* the main thread is not inside any more; the marker has marked */
    mesh_nccl__mail *mail, **mail_end;
    unsigned char *gone; /* per rank: a mesh_event_kind, LOST or CLOSED; 0: it is there */
    mesh_nccl__comm *comm;
    mesh_nccl__comm *inside; /* what the main thread is calling CUDA or NCCL for */
    int64_t inside_since, inside_until;
    mesh__record inside_record;   /* of a collective; else zeros and a channel */
    int inside_all;               /* NCCL's own, which every rank of the group is to come to */
    const mesh_post *inside_post; /* not NULL: messages of it */
    mesh_error trouble;           /* what went wrong inside; the main thread's alone */
    mesh_nccl__group *group, world;
    mesh_nccl__group *opening;             /* another rank, where it is open already, may close it meanwhile */
    mesh_nccl__memory *memory;             /* the main thread's alone */
    mesh_nccl__registration *registration; /* the main thread's alone */
    mesh_nccl__stop *stops;
    int closing;        /* who asks for this rank now is told that it has left */
    cudaEvent_t *event; /* free ones; there is room for all that were made */
    int nevents, event_cap, events_made;
    cudaEvent_t held; /* the main thread is about to wait for it: it is not used again meanwhile */
    int held_is_over;
    pthread_t watchdog, marker;
    pthread_mutex_t watch_lock;                                 /* wake, stopping */
    pthread_cond_t wake, want;                                  /* want: with `lock`, a mark */
    int watching, stopping, marks, marks_stopping, marker_left; /* marks: there is a marker */
    int marker_lost; /* it is in CUDA still, and close has gone on: nothing here is its own any more but the lock */
    int news;        /* something is over that progress has not told yet */
    int64_t asked;   /* when NCCL was last asked for errors */
} mesh_nccl__state;

MESH__PRIVATE mesh_nccl__state *mesh_nccl__of(mesh_transport *t) { return (mesh_nccl__state *)((mesh_nccl *)t)->impl; }
MESH__PRIVATE int64_t mesh_nccl__now(mesh_nccl__state *s) { return s->boot->ops->now(s->boot); }

MESH__PRIVATE mesh_nccl__group *mesh_nccl__group_of(mesh_nccl__state *s, void *group) {
    return group ? (mesh_nccl__group *)group : &s->world;
}

MESH__PRIVATE void mesh_nccl__nap(int64_t ns) {
    struct timespec t;
    t.tv_sec = (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    nanosleep(&t, NULL);
}

/* "cudaMalloc: out of memory (cudaErrorMemoryAllocation)" */
MESH__PRIVATE mesh_status mesh_nccl__cuda_fail(mesh_nccl__state *s, mesh_error *err, const char *what, cudaError_t r) {
    s->api.cudaGetLastError(); /* it is told here */
    return mesh__fail(err, r == cudaErrorMemoryAllocation ? MESH_ERR_MEMORY : MESH_ERR_TRANSPORT, s->boot->rank,
                      "%s: %s (%s)", what, s->api.cudaGetErrorString(r), s->api.cudaGetErrorName(r));
}

MESH__PRIVATE mesh_status mesh_nccl__fail(mesh_nccl__state *s, mesh_error *err, const char *what, ncclResult_t r) {
    const char *last = s->api.ncclGetLastError(NULL);
    int told = last && *last;
    int captured = r == ncclUnhandledCudaError && told && strstr(last, "is capturing");
    return mesh__fail(err, MESH_ERR_TRANSPORT, s->boot->rank, "%s: %s%s%s%s%s", what, s->api.ncclGetErrorString(r),
                      told ? "; NCCL's last warning (perhaps an old one): \"" : "", told ? last : "", told ? "\"" : "",
                      captured
                          ? "; NCCL makes no communicator while any thread captures a stream: open before, or capture "
                            "with cudaStreamCaptureModeThreadLocal"
                          : "");
}

/* This rank's device becomes the calling thread's: what is made there belongs to it. */
MESH__PRIVATE void mesh_nccl__use_device(mesh_nccl__state *s) {
    int now = -1;
    if (s->api.cudaGetDevice(&now) == cudaSuccess && now == s->n->device) return;
    s->api.cudaSetDevice(s->n->device);
}
#endif /* MESH_NCCL_STATE_IMPLEMENTED */
