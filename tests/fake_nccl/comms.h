/* comms.h: comms, from init to their end, with splits, questions and registration. Part of fake_nccl.c. */
#ifndef COMMS_H
#define COMMS_H

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
    atomic_int stays;   /* until the end of the group that aborts it */
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
    if (atomic_load(&c->aborted) && !atomic_load(&c->stays)) atomic_fetch_add(&unsafe_aborts, 1);
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

/* NCCL makes a comm on threads of its own, which allocate and wait: a capture of the global mode, whosever, forbids it and is broken (seen with
   2.28.3). */
static ncclResult_t refused_by_capture(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    void *nothing = NULL;
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaError_t error = cudaHostAlloc(&nothing, 0, cudaHostAllocDefault);
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (!error) return ncclSuccess;
    cudaGetLastError();
    return fail(ncclUnhandledCudaError, "Cuda failure '%s'", cudaGetErrorString(error));
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
    ncclResult_t refused = refused_by_capture();
    if (refused) return refused;
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
    ncclResult_t code = refused_by_capture();
    if (code) return code;
    for (int rank = 0; rank < parent->nranks; rank++) same.count = same.count * 31 + (size_t)d->members[rank];
    mine->color = d->color;
    mine->key = d->key;
    if (!barrier_pass(parent, meet, d->members, same, &parent->aborted))
        return fail(ncclInternalError, "split was aborted");
    int count = color_members(parent, d->members, d->color, &first, &index);
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
    code = job_start(parent, &d->base);
    return code == ncclInProgress ? ncclSuccess : code; /* it has begun: the parent says when it is done */
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
static int group_will_defer(void) { return open_group.depth && library_version() >= 22200; }

static int group_defers_end(ncclComm_t c) {
    group *g = &open_group;
    if (!group_will_defer()) return 0;
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
    if (group_will_defer())
        atomic_store(&comm->stays, 1);
    else if (atomic_load(&comm->callers))
        atomic_fetch_add(&unsafe_aborts, 1);
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

#endif
