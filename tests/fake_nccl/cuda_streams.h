/* Of fake_cudart.c: streams, their workers, what waits for what, captures. Uses cuda_memory.h. */
#ifndef FAKE_CUDA_STREAMS_H
#define FAKE_CUDA_STREAMS_H

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
static __thread cudaStream_t thread_streams[MAX_DEVICES]; /* cudaStreamPerThread's: blocking ones */

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
static cudaStream_t stream_add(unsigned flags);

static cudaStream_t stream_of(cudaStream_t handle) {
    if (handle == cudaStreamPerThread) {
        cudaStream_t *s = &thread_streams[current_device];
        return *s ? *s : (*s = stream_add(cudaStreamDefault));
    }
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

static long long longest_delay(void) {
    static long long longest = -1;
    long long limit = __atomic_load_n(&longest, __ATOMIC_RELAXED);
    if (limit < 0) __atomic_store_n(&longest, limit = fake_env("FAKE_CUDA_DELAY_US", 0), __ATOMIC_RELAXED);
    return limit;
}

static void stream_delay(cudaStream_t s) {
    usleep((useconds_t)(random_next(&s->random, (uint64_t)s->id) % (uint64_t)(longest_delay() + 1)));
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
        if (longest_delay() > 0) {
            pthread_mutex_unlock(&lock);
            stream_delay(s);
            pthread_mutex_lock(&lock);
        }
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

/* Who pushes rings: after it has unlocked, where it can, or the worker wakes to wait for the lock. */
static void stream_ring(cudaStream_t s) { pthread_cond_signal(&s->work); }

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
    stream_ring(s);
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

/* Whether a stream that the default stream `s` would wait for is captured. */
static int default_is_beside_capture(cudaStream_t s) {
    for (cudaStream_t other = streams; s->is_default && other; other = other->next)
        if (default_orders(s, other) && other->capture) return 1;
    return 0;
}

/* Work on the default stream would wait for the blocking streams: not while one of them is captured. */
static cudaError_t refuse_default_stream(cudaStream_t s) {
    cudaError_t error = cudaSuccess;
    for (cudaStream_t other = streams; s->is_default && other; other = other->next)
        if (default_orders(s, other) && other->capture)
            error = capture_invalidate(other->capture, cudaErrorStreamCaptureImplicit);
    return error;
}

/* The caller rings. */
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
    cudaStream_t s = stream_of(stream);
    cudaError_t error = enqueue_locked(s, t);
    pthread_mutex_unlock(&lock);
    stream_ring(s);
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

static cudaStream_t stream_add(unsigned flags) {
    static int ids;
    cudaStream_t s = must_calloc(sizeof *s);
    pthread_cond_init(&s->work, NULL);
    s->flags = flags;
    s->device = current_device;
    s->id = ++ids;
    s->next = streams;
    return streams = s;
}

static cudaStream_t stream_open(unsigned flags) {
    pthread_mutex_lock(&lock);
    cudaStream_t s = stream_add(flags);
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

#endif
