/* nccl/streams.h - marks that tell what is over; the caller's order and the group's. Part of mesh.h 0.1.0. MIT licence.

   Includes state.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_NCCL_STREAMS_IMPLEMENTED)
#define MESH_NCCL_STREAMS_IMPLEMENTED
#include "state.h"

/* ---- // >>marks: what is over ---- */

/* Calls that a stream capture elsewhere in the process must not forbid, nor be ended by. */
MESH__PRIVATE void mesh_nccl__capture_mode(mesh_nccl__state *s, enum cudaStreamCaptureMode *mode) {
    s->api.cudaThreadExchangeStreamCaptureMode(mode);
}

/* *r: why that cannot be told. */
MESH__PRIVATE mesh_nccl__capture mesh_nccl__capture_of(mesh_nccl__state *s, cudaStream_t stream, cudaError_t *r) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    *r = s->api.cudaStreamIsCapturing(stream, &status);
    if (*r == cudaSuccess) return status == cudaStreamCaptureStatusActive ? MESH_NCCL__CAPTURED : MESH_NCCL__FREE;
    s->api.cudaGetLastError(); /* or the program would see it */
    if (*r != cudaErrorStreamCaptureImplicit) return MESH_NCCL__FREE;
    *r = cudaSuccess;
    return MESH_NCCL__BESIDE;
}

MESH__PRIVATE void mesh_nccl__end(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_status status, int rank,
                                  const char *format, ...);

/* Ask the marker for a mark behind what has none; not on a stream whose name means another one there. The caller holds `lock`. */
MESH__PRIVATE void mesh_nccl__want_mark(mesh_nccl__state *s, mesh_nccl__comm *c) {
    if (c->issued == c->marked || c->marking || c->last == cudaStreamPerThread) return;
    c->marking = mesh_nccl__now(s);
    c->wanted = 1;
    pthread_cond_signal(&s->want);
}

/* Do barriers that are over say that the ranks have called the same? Else the first that does not is not over. */
MESH__PRIVATE void mesh_nccl__judge(mesh_nccl__state *s, mesh_nccl__comm *c) {
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

MESH__PRIVATE void mesh_nccl__event_back(mesh_nccl__state *s, cudaEvent_t event) {
    if (event == s->held)
        s->held_is_over = 1;
    else
        s->event[s->nevents++] = event;
}

/* See how far a communicator has come. The caller holds `lock`. */
MESH__PRIVATE void mesh_nccl__poll(mesh_nccl__state *s, mesh_nccl__comm *c, int at_once) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    uint64_t before = c->completed;
    int64_t now;
    cudaError_t r = cudaSuccess;
    if (!c->nmarks || (c->past.disagreed && c->life != MESH_NCCL__ENDED)) return;
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
        c->blind = 1;
        mesh_nccl__cuda_fail(s, &why, "the device", r);
        mesh_nccl__end(s, c, MESH_ERR_TRANSPORT, s->boot->rank, "%s", why.text);
    }
    if (c->completed != before) s->news = 1;
}

/* The main thread may be inside a call with the communicator: that call is ended first, and the communicator left in place until the thread has come
   back, or 2 s have passed. By revoking it (2.28.7), or by an abort in an open group, which NCCL frees it at the end of (from 2.22 on). */
MESH__PRIVATE int mesh_nccl__stop_inside(mesh_nccl__stop *stop) {
    struct timespec until;
    int late = 0, grouped = !stop->api.ncclCommRevoke && stop->s->n->nccl_version >= 22200;
    if (stop->api.ncclCommRevoke) stop->api.ncclCommRevoke(stop->comm, 0);
    if (grouped) stop->api.ncclGroupStart();
    if (grouped) stop->api.ncclCommAbort(stop->comm);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    pthread_mutex_lock(&stop->s->lock);
    while (stop->s->inside == stop->of && !late)
        late = pthread_cond_timedwait(&stop->s->out, &stop->s->lock, &until) != 0;
    pthread_mutex_unlock(&stop->s->lock);
    return grouped;
}

static void *mesh_nccl__stop_main(void *arg) {
    mesh_nccl__stop *stop = (mesh_nccl__stop *)arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    stop->api.cudaThreadExchangeStreamCaptureMode(&mode);
    stop->api.cudaSetDevice(stop->device);
    if (stop->s && mesh_nccl__stop_inside(stop))
        stop->api.ncclGroupEnd();
    else
        stop->api.ncclCommAbort(stop->comm);
    if (stop->late && *stop->late) stop->api.ncclCommAbort(*stop->late);
    pthread_mutex_lock(&stop->lock);
    stop->over = 1;
    pthread_mutex_unlock(&stop->lock);
    return NULL;
}

/* Abort a communicator without waiting for it: NCCL would wait, for its stream, behind other communicators that may hang too. */
MESH__PRIVATE void mesh_nccl__stop_comm(mesh_nccl__state *s, mesh_nccl__comm *c, ncclComm_t comm, ncclComm_t *late) {
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

/* Is a communicator that has ended being aborted still? The caller holds `lock`. */
MESH__PRIVATE int mesh_nccl__stopping(mesh_nccl__state *s, const mesh_nccl__comm *c) {
    mesh_nccl__stop *stop;
    int stopping = 0;
    for (stop = s->stops; stop; stop = stop->next) {
        pthread_mutex_lock(&stop->lock);
        stopping |= stop->of == c && !stop->over;
        pthread_mutex_unlock(&stop->lock);
    }
    return stopping;
}

/* Is nothing of a communicator that has ended on the device any more? Where CUDA does not answer about its marks, NCCL's abort does, which waits for that. The
   caller holds `lock`. */
MESH__PRIVATE int mesh_nccl__is_off(mesh_nccl__state *s, const mesh_nccl__comm *c) {
    return (!c->nmarks && c->issued == c->marked) || (c->blind && !mesh_nccl__stopping(s, c));
}

/* Wait for those threads until a deadline. Returns how many are left; what they use must then stay. */
MESH__PRIVATE int mesh_nccl__stops_wait(mesh_nccl__state *s, int64_t deadline) {
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
MESH__PRIVATE void mesh_nccl__end(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_status status, int rank,
                                  const char *format, ...) {
    va_list args;
    if (c->life == MESH_NCCL__ENDED) return;
    c->life = MESH_NCCL__ENDED;
    va_start(args, format);
    mesh__vfail(&c->end.why, status, rank, format, args);
    va_end(args);
    if (!c->past.disagreed) mesh_nccl__poll(s, c, 1);
    c->end.valid = c->completed;
    c->end.at = mesh_nccl__now(s);
    s->news = 1;
    if (s->marks)
        mesh_nccl__want_mark(s, c); /* the memory of what has none is the caller's only when the device lets go of it */
    if (c->comm) mesh_nccl__stop_comm(s, c, c->comm, NULL);
    c->comm = NULL;
}

/* The main thread is about to call CUDA or NCCL for a communicator, and may have to stay there. Returns 0 if it has ended. */
MESH__PRIVATE int mesh_nccl__enter(mesh_nccl__state *s, mesh_nccl__comm *c, const mesh__record *record,
                                   int64_t deadline) {
    int open;
    mesh_nccl__use_device(s);
    memset(&s->trouble, 0, sizeof s->trouble);
    pthread_mutex_lock(&s->lock);
    open = c->life != MESH_NCCL__ENDED;
    if (open) {
        s->inside = c;
        s->inside_since = mesh_nccl__now(s);
        s->inside_until = deadline;
        s->inside_record = *record;
        s->inside_all = 0;
        s->inside_post = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return open;
}

/* It is back. What went wrong ends the communicator. */
MESH__PRIVATE void mesh_nccl__leave(mesh_nccl__state *s, mesh_nccl__comm *c) {
    pthread_mutex_lock(&s->lock);
    if (s->trouble.status != MESH_OK)
        mesh_nccl__end(s, c, (mesh_status)s->trouble.status, s->trouble.rank, "%s", s->trouble.text);
    s->inside = NULL;
    pthread_cond_broadcast(&s->out);
    pthread_mutex_unlock(&s->lock);
}

/* What became of something put on a communicator's stream. The first trouble counts. */
MESH__PRIVATE cudaError_t mesh_nccl__put(mesh_nccl__state *s, const char *what, cudaError_t r) {
    if (r == cudaSuccess || s->trouble.status != MESH_OK) return r;
    if (r == cudaErrorNotSupported && s->no_kernels[0])
        mesh__fail(&s->trouble, MESH_ERR_UNSUPPORTED, s->boot->rank, "%s needs a kernel, and %s", what, s->no_kernels);
    else
        mesh_nccl__cuda_fail(s, &s->trouble, what, r);
    return r;
}

/* What is put on a stream goes where? Inside. */
MESH__PRIVATE mesh_nccl__capture mesh_nccl__put_on(mesh_nccl__state *s, cudaStream_t stream) {
    cudaError_t r;
    mesh_nccl__capture capture = mesh_nccl__capture_of(s, stream, &r);
    mesh_nccl__put(s, "cudaStreamIsCapturing", r);
    return capture;
}

MESH__PRIVATE ncclResult_t mesh_nccl__said(mesh_nccl__state *s, const char *what, ncclResult_t r) {
    if (r != ncclSuccess && s->trouble.status == MESH_OK) mesh_nccl__fail(s, &s->trouble, what, r);
    return r;
}

/* The caller holds `lock`. */
MESH__PRIVATE cudaError_t mesh_nccl__event(mesh_nccl__state *s, cudaEvent_t *event) {
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

MESH__PRIVATE mesh_nccl__mark *mesh_nccl__mark_at(mesh_nccl__comm *c, int i) {
    return &c->mark[(c->first_mark + i) % c->mark_cap];
}

/* An event was recorded behind what was issued until then. The caller holds `lock`. Returns 0 without memory. */
MESH__PRIVATE int mesh_nccl__mark_add(mesh_nccl__state *s, mesh_nccl__comm *c, const mesh_nccl__mark *mark) {
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

/* Put a mark behind what has been issued in a communicator, if it has none. The caller holds `lock`, which is let go of meanwhile: a stream whose queue
   is full keeps its caller. */
MESH__PRIVATE void mesh_nccl__mark_put(mesh_nccl__state *s, mesh_nccl__comm *c) {
    const char *what = "cudaEventCreateWithFlags";
    mesh_nccl__mark mark;
    mesh_error why;
    cudaError_t r;
    mark.stream = c->last;
    mark.issued = c->issued;
    mark.deadline = c->due;
    r = mesh_nccl__event(s, &mark.event);
    if (r == cudaSuccess) {
        pthread_mutex_unlock(&s->lock);
        what = "cudaEventRecord";
        if (mesh_nccl__capture_of(s, mark.stream, &r)) /* a program's, that comes back from it: then it is put */
            r = cudaErrorStreamCaptureUnsupported;
        else if (r != cudaSuccess)
            what = "cudaStreamIsCapturing";
        else if ((r = s->api.cudaEventRecord(mark.event, mark.stream)) == cudaErrorStreamCaptureImplicit)
            s->api.cudaGetLastError(); /* a capture that has begun meanwhile */
        pthread_mutex_lock(&s->lock);
        if (s->marker_lost) return;
        if (r != cudaErrorStreamCaptureUnsupported && r != cudaErrorStreamCaptureImplicit)
            c->captured_since = 0;
        else if (!c->captured_since)
            c->captured_since = mesh_nccl__now(s);
        if (r != cudaSuccess)
            mesh_nccl__event_back(s, mark.event);
        else if (!mesh_nccl__mark_add(s, c, &mark))
            r = cudaErrorMemoryAllocation;
    }
    if (r == cudaSuccess || r == cudaErrorStreamCaptureUnsupported || r == cudaErrorStreamCaptureImplicit) return;
    c->marked = mark.issued;
    mesh_nccl__cuda_fail(s, &why, what, r);
    mesh_nccl__end(s, c, MESH_ERR_TRANSPORT, s->boot->rank, "%s", why.text);
}

MESH__PRIVATE void mesh_nccl__marked(mesh_nccl__state *s, mesh_nccl__comm *c) {
    c->marking = 0;
    c->wanted = 0;
    pthread_cond_broadcast(&s->out);
}

/* The same by the main thread. One at a time: a mark that is put when all that came before is over would still be on the caller's stream when the
   caller has been told so. */
MESH__PRIVATE void mesh_nccl__mark_now(mesh_nccl__state *s, mesh_nccl__comm *c) {
    while (c->marking) pthread_cond_wait(&s->out, &s->lock);
    if (c->issued == c->marked) return;
    mesh_nccl__use_device(s); /* the program may have left it since; the default stream is the current one's */
    c->marking = mesh_nccl__now(s);
    mesh_nccl__mark_put(s, c);
    mesh_nccl__marked(s, c);
}

/* A communicator that has ended still gives tickets. */
MESH__PRIVATE void mesh_nccl__not_issued(mesh_nccl__comm *c, mesh_ticket *ticket) {
    ticket->impl = c;
    ticket->id = MESH_TICKET_CAPTURED - 1; /* after all that are valid */
}

/* An operation has been put on the device, by the main thread, inside: its ticket. On the group's own stream each has its mark, so that waiting
   for one does not wait for the next. On the caller's stream few do: what is put there comes after it anyway; on its thread's own all, which nobody else
   can mark. */
MESH__PRIVATE void mesh_nccl__issued(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_ticket *ticket) {
    mesh_nccl__not_issued(c, ticket); /* what a graph would lack is told: its replays would not */
    if (c->capturing == MESH_NCCL__CAPTURED) {
        if (s->trouble.status != MESH_OK) return;
        c->captured_on = c->on;
        if (mesh_nccl__put(s, "cudaEventRecord", s->api.cudaEventRecord(c->captured, c->on)) == cudaSuccess)
            ticket->id = MESH_TICKET_CAPTURED; /* over at once for the host; the graph's stream can follow it */
        return;
    }
    pthread_mutex_lock(&s->lock);
    c->last_due = s->inside_until;
    if (c->issued == c->marked) c->due = c->last_due;
    ticket->id = ++c->issued;
    if (s->trouble.status == MESH_OK &&
        (c->on == c->stream || c->on == cudaStreamPerThread || c->issued - c->marked >= MESH_NCCL__BETWEEN_MARKS))
        mesh_nccl__mark_now(s, c);
    pthread_mutex_unlock(&s->lock);
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
        while (c && !c->wanted) c = c->next;
        if (c) {
            if (c->issued != c->marked) mesh_nccl__mark_put(s, c);
            mesh_nccl__marked(s, c);
        } else {
            pthread_cond_wait(&s->want, &s->lock);
        }
    }
    s->marker_left = 1;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Can no mark be put on a communicator's stream? Not while the program captures it. Another stream's capture, which the default stream is beside, may be
   another thread's, and end soon. The caller holds `lock`. */
MESH__PRIVATE int mesh_nccl__unmarkable(mesh_nccl__state *s, const mesh_nccl__comm *c) {
    cudaError_t r;
    mesh_nccl__capture now;
    mesh_nccl__use_device(s);
    now = mesh_nccl__capture_of(s, c->last, &r);
    return now == MESH_NCCL__CAPTURED ||
           (now == MESH_NCCL__BESIDE && mesh_nccl__now(s) > c->captured_since + MESH_NCCL__GRACE_NS);
}

MESH__PRIVATE mesh_status mesh_nccl__test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__comm *c = (mesh_nccl__comm *)ticket->impl;
    mesh_status status = MESH_IN_PROGRESS;
    int captured = ticket->id == MESH_TICKET_CAPTURED; /* the device has nothing of it */
    pthread_mutex_lock(&s->lock);
    if (!captured) mesh_nccl__poll(s, c, 0);
    if (c->life == MESH_NCCL__ENDED ? ticket->id <= c->end.valid : captured || ticket->id <= c->completed) {
        status = MESH_OK;
    } else if (c->life == MESH_NCCL__ENDED &&
               (captured || mesh_nccl__is_off(s, c) || mesh_nccl__now(s) > c->end.at + INT64_C(5000000000))) {
        if (why) *why = c->end.why;
        status = (mesh_status)c->end.why.status;
    } else if (why && c->captured_since && ticket->id > c->marked && c->life != MESH_NCCL__ENDED &&
               mesh_nccl__unmarkable(s, c)) {
        mesh__fail(why, MESH_ERR_STATE, s->boot->rank, "its stream is captured now"); /* still in progress */
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* NCCL does not say who is awaited. */
MESH__PRIVATE int mesh_nccl__pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    (void)t, (void)ticket, (void)ranks, (void)cap;
    return 0;
}

MESH__PRIVATE mesh_status mesh_nccl__cancel(mesh_transport *t, mesh_ticket *ticket) {
    (void)t, (void)ticket; /* group_abort does it */
    return MESH_OK;
}

/* ---- // >>streams: the caller's order and the group's ---- */

MESH__PRIVATE mesh__record mesh_nccl__no_record(uint64_t channel) {
    mesh__record r;
    memset(&r, 0, sizeof r);
    r.channel = channel;
    return r;
}

/* Put a stream behind an operation that has been issued, or is over. */
MESH__PRIVATE void mesh_nccl__behind(mesh_nccl__state *s, mesh_nccl__comm *c, cudaStream_t stream, uint64_t id) {
    cudaEvent_t event = NULL;
    cudaStream_t on = NULL;
    int low = 0, high, beside;
    pthread_mutex_lock(&s->lock);
    if (id > c->marked && c->life != MESH_NCCL__ENDED) mesh_nccl__mark_now(s, c);
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
    beside = id > c->marked && c->life != MESH_NCCL__ENDED;
    pthread_mutex_unlock(&s->lock);
    if (beside) beside = (int)mesh_nccl__put_on(s, c->last); /* no mark: nothing to wait for */
    if (beside == MESH_NCCL__BESIDE)
        mesh_nccl__put(s, "the stream of the operations before", cudaErrorStreamCaptureImplicit);
    if (beside == MESH_NCCL__CAPTURED && s->trouble.status == MESH_OK)
        mesh__fail(&s->trouble, MESH_ERR_STATE, s->boot->rank,
                   "the operations before are on a stream that is captured now, and no other stream can come behind "
                   "them: end the capture first, or call mesh_comm_sync before it");
    if (event && on != stream) mesh_nccl__put(s, "the caller's stream", s->api.cudaStreamWaitEvent(stream, event, 0));
    pthread_mutex_lock(&s->lock);
    if (s->held_is_over) s->event[s->nevents++] = s->held;
    s->held = NULL;
    s->held_is_over = 0;
    pthread_mutex_unlock(&s->lock);
}

/* Until no mark is being put on a communicator's stream: for as long as it takes, and in one that has ended for a while, as a queue that nothing moves
   any more keeps the marker. The caller holds `lock`. */
MESH__PRIVATE void mesh_nccl__marker_wait(mesh_nccl__state *s, mesh_nccl__comm *c) {
    while (c->marking && (c->life != MESH_NCCL__ENDED || mesh_nccl__now(s) <= c->end.at + INT64_C(5000000000))) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&s->out, &s->lock, &until);
    }
}

/* Does a communicator's stream go into the graph that `next` goes into? */
MESH__PRIVATE int mesh_nccl__one_graph(mesh_nccl__state *s, const mesh_nccl__comm *c, cudaStream_t next) {
    unsigned long long id[2] = {0, 0};
    int i;
    if (!s->api.cudaStreamGetCaptureInfo)
        return c->on == c->stream && mesh_nccl__put_on(s, c->on) == MESH_NCCL__CAPTURED;
    for (i = 0; i < 2; i++) {
        enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        cudaError_t r = s->api.cudaStreamGetCaptureInfo(i ? next : c->on, &status, &id[i], NULL, NULL, NULL, NULL);
        if (r == cudaErrorStreamCaptureImplicit)
            s->api.cudaGetLastError(); /* or the program would see it */
        else
            mesh_nccl__put(s, "cudaStreamGetCaptureInfo", r);
        if (r != cudaSuccess || status != cudaStreamCaptureStatusActive) return 0;
    }
    return id[0] == id[1];
}

/* From now on a communicator's operations go on `next`. The stream they went on may end then. What goes into a graph leaves `last` where it is: what
   is there is not over when the graph's stream is, and the next operation that is in no graph comes behind it. */
MESH__PRIVATE void mesh_nccl__go_on(mesh_nccl__state *s, mesh_nccl__comm *c, cudaStream_t next) {
    int captured = c->capturing == MESH_NCCL__CAPTURED;
    if (next == c->on && (captured || next == c->last)) return;
    if (!captured) {
        mesh_nccl__behind(s, c, next, c->issued);
    } else if (mesh_nccl__one_graph(s, c, next)) {
        cudaError_t r = s->api.cudaEventRecord(c->captured, c->on);
        if (r == cudaSuccess) r = s->api.cudaStreamWaitEvent(next, c->captured, 0);
        mesh_nccl__put(s, "the caller's stream", r);
    }
    pthread_mutex_lock(&s->lock);
    mesh_nccl__marker_wait(s, c);
    c->on = next;
    if (!captured) c->last = next;
    pthread_mutex_unlock(&s->lock);
}

MESH__PRIVATE mesh_status mesh_nccl__fence(mesh_transport *t, void *group, void *stream, int direction) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh_nccl__comm *c = g->c;
    mesh__record none = mesh_nccl__no_record(0);
    cudaStream_t caller = (cudaStream_t)stream, next = direction == MESH_FENCE_ON ? caller : c->stream;
    cudaError_t asked;
    if (next == caller && next == c->on) { /* nothing to order: most calls */
        c->capturing = mesh_nccl__capture_of(s, caller, &asked);
        if (c->capturing == MESH_NCCL__BESIDE) { /* perhaps another device's default stream */
            mesh_nccl__use_device(s);
            c->capturing = mesh_nccl__capture_of(s, caller, &asked);
        }
        if (asked == cudaSuccess && (next == c->last || c->capturing == MESH_NCCL__CAPTURED)) return MESH_OK;
    }
    if (!mesh_nccl__enter(s, c, &none, mesh_nccl__now(s) + g->timeout)) return MESH_OK;
    c->capturing = mesh_nccl__put_on(s, caller);
    if (next != caller) {
        cudaError_t r = s->api.cudaEventRecord(c->enter, caller);
        if (r == cudaSuccess) r = s->api.cudaStreamWaitEvent(next, c->enter, 0);
        mesh_nccl__put(s, "the caller's stream", r);
    }
    mesh_nccl__go_on(s, c, next);
    mesh_nccl__leave(s, c);
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh_nccl__stream_wait(mesh_transport *t, void *group, const mesh_ticket *ticket,
                                                 void *stream) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh_nccl__comm *c = (mesh_nccl__comm *)ticket->impl;
    mesh__record none = mesh_nccl__no_record(0);
    mesh_status status;
    if (ticket->id != MESH_TICKET_CAPTURED && c->last == (cudaStream_t)stream && c->last != c->stream) {
        pthread_mutex_lock(&s->lock);
        status = c->life == MESH_NCCL__ENDED ? (mesh_status)c->end.why.status : MESH_OK;
        pthread_mutex_unlock(&s->lock);
        return status;
    }
    if (!mesh_nccl__enter(s, c, &none, mesh_nccl__now(s) + g->timeout))
        return (mesh_status)c->end.why.status; /* the engine asks test why */
    if (ticket->id != MESH_TICKET_CAPTURED)
        mesh_nccl__behind(s, c, (cudaStream_t)stream, ticket->id);
    else if (c->captured_on != (cudaStream_t)stream &&
             mesh_nccl__put_on(s, (cudaStream_t)stream) == MESH_NCCL__CAPTURED)
        mesh_nccl__put(s, "the caller's stream", s->api.cudaStreamWaitEvent((cudaStream_t)stream, c->captured, 0));
    status = (mesh_status)s->trouble.status;
    mesh_nccl__leave(s, c);
    return status;
}
#endif /* MESH_NCCL_STREAMS_IMPLEMENTED */
