/* nccl/open.h - opened and closed. Part of mesh.h 0.1.0. MIT licence.

   Includes memory.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_NCCL_OPEN_IMPLEMENTED)
#define MESH_NCCL_OPEN_IMPLEMENTED
#include "memory.h"

/* ---- // >>close ---- */

/* NCCL's own goodbye, which every rank of a communicator says: in a thread, with a deadline. */
typedef struct mesh_nccl__farewell {
    mesh_nccl__api api;
    int device, n, over, left; /* left: nobody waits for the thread any more; it frees this */
    pthread_mutex_t lock;
    ncclResult_t failed; /* what the first that was not destroyed said */
    ncclComm_t comm[1];  /* n of them */
} mesh_nccl__farewell;

static void *mesh_nccl__destroy(void *arg) {
    mesh_nccl__farewell *f = (mesh_nccl__farewell *)arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int i, left;
    f->api.cudaThreadExchangeStreamCaptureMode(&mode);
    f->api.cudaSetDevice(f->device);
    for (i = 0; i < f->n; i++) { /* all ranks destroy all: the others wait for those after one that fails here */
        ncclResult_t r = f->api.ncclCommDestroy(f->comm[i]);
        pthread_mutex_lock(&f->lock);
        if (r != ncclInProgress && f->failed == ncclSuccess) f->failed = r;
        pthread_mutex_unlock(&f->lock);
    }
    pthread_mutex_lock(&f->lock);
    f->over = 1;
    left = f->left;
    pthread_mutex_unlock(&f->lock);
    if (left) free(f);
    return NULL;
}

/* Destroy the communicators that all ranks have come to destroy. Returns 0 if NCCL does not end. */
MESH__RARE int mesh_nccl__destroy_all(mesh_nccl__state *s, int64_t deadline, ncclResult_t *failed) {
    mesh_nccl__comm *c;
    mesh_nccl__farewell *f;
    pthread_t thread;
    int n = 0, over = 0, left = 0;
    for (c = s->comm; c; c = c->next) n += c->life == MESH_NCCL__ENDED ? 0 : (c->comm != NULL) + (c->root != NULL);
    if (!n) return 1;
    f = (mesh_nccl__farewell *)malloc(sizeof *f + (size_t)n * sizeof f->comm[0]); /* may outlive the allocator */
    if (!f) return 0;
    memset(f, 0, sizeof *f);
    f->api = s->api;
    f->device = s->n->device;
    pthread_mutex_init(&f->lock, NULL);
    for (c = s->comm; c; c = c->next) { /* the youngest first, on every rank */
        if (c->life == MESH_NCCL__ENDED) continue;
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
        *failed = f->failed;
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
MESH__RARE void mesh_nccl__drain(mesh_nccl__state *s, int64_t deadline) {
    for (;;) {
        mesh_nccl__comm *c;
        int left = 0;
        pthread_mutex_lock(&s->boot_lock);
        s->boot->ops->progress(s->boot, 0);
        mesh_nccl__listen(s);
        pthread_mutex_lock(&s->lock);
        mesh_nccl__act(s); /* with a lost rank there is nothing to wait for */
        pthread_mutex_unlock(&s->boot_lock);
        for (c = s->comm; c; c = c->next) {
            if (c->marking) continue; /* a full queue may keep the marker */
            mesh_nccl__mark_now(s, c);
        }
        mesh_nccl__look(s);
        for (c = s->comm; c; c = c->next) {
            int busy = (c->nmarks > 0 && !mesh_nccl__is_off(s, c)) ||
                       (c->life != MESH_NCCL__ENDED && c->completed < c->issued);
            left += busy;
            if (busy && mesh_nccl__now(s) >= deadline) mesh_nccl__end(s, c, MESH_ERR_TIMEOUT, -1, "it was closed");
        }
        pthread_mutex_unlock(&s->lock);
        if (!left || mesh_nccl__now(s) > deadline + INT64_C(2000000000)) return;
        mesh_nccl__nap(50000);
    }
}

/* Wait for the other ranks to close. OK, TIMEOUT, or PEER when one is lost: then there is nothing to wait for. */
MESH__RARE mesh_status mesh_nccl__meet(mesh_nccl__state *s, int64_t deadline, mesh_error *why) {
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
MESH__RARE int mesh_nccl__marker_end(mesh_nccl__state *s, int64_t deadline) {
    const mesh_nccl__comm *c;
    int busy = 1;
    pthread_mutex_lock(&s->lock);
    s->marks_stopping = 1;
    pthread_cond_signal(&s->want);
    pthread_mutex_unlock(&s->lock);
    while (busy && mesh_nccl__now(s) < deadline) {
        pthread_mutex_lock(&s->lock);
        for (busy = 0, c = s->comm; c; c = c->next) busy |= c->wanted && !s->marker_left;
        pthread_mutex_unlock(&s->lock);
        if (busy) mesh_nccl__nap(200000);
    }
    pthread_mutex_lock(&s->lock);
    s->marker_lost = busy;
    pthread_mutex_unlock(&s->lock);
    if (busy)
        pthread_detach(s->marker);
    else
        pthread_join(s->marker, NULL);
    return !busy;
}

/* Memory and locks; where something hangs, not what it may still look at. */
MESH__RARE void mesh_nccl__free_all(mesh_nccl__state *s, int hung) {
    mesh_nccl__registration *reg;
    mesh_nccl__mail *mail;
    int i;
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
    s->n->base.ops = NULL;
    s->boot->inside.lent--;
    mesh_transport_free(s->boot, s->gone);
    if (hung) return; /* a thread that is left may still look at the lock */
    pthread_mutex_destroy(&s->boot_lock);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->watch_lock);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->want);
    pthread_cond_destroy(&s->out);
    mesh_transport_free(s->boot, s);
}

/* met: the ranks have come so far together that they can close together. deadline: of what is under way. */
MESH__RARE mesh_status mesh_nccl__close_all(mesh_nccl__state *s, int met, int64_t deadline, mesh_error *why) {
    cudaError_t (*exchange)(enum cudaStreamCaptureMode *) = s->api.cudaThreadExchangeStreamCaptureMode;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    mesh_status status = MESH_OK;
    mesh_nccl__registration *reg;
    mesh_nccl__comm *c;
    ncclResult_t failed = ncclSuccess;
    int hung = 0;
    if (exchange) exchange(&mode); /* NULL: no library was loaded */
    mesh_nccl__drain(s, deadline);
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
    if (met) hung |= !mesh_nccl__destroy_all(s, mesh_nccl__now(s) + INT64_C(10000000000), &failed);
    if (failed != ncclSuccess && status == MESH_OK) status = mesh_nccl__fail(s, why, "ncclCommDestroy", failed);
    for (c = s->comm; c; c = c->next) {
        if (c->life == MESH_NCCL__ENDED) continue;
        if (c->comm) mesh_nccl__stop_comm(s, c, c->comm, NULL);
        if (c->root) mesh_nccl__stop_comm(s, c, c->root, NULL);
    }
    hung |= mesh_nccl__stops_wait(s, mesh_nccl__now(s) + INT64_C(5000000000));
    if (hung && failed == ncclSuccess) /* else that is why */
        status = mesh__fail(
            why, MESH_ERR_TIMEOUT, -1,
            "mesh_nccl_close: NCCL has not ended its communicators at the deadline; they are left (does a graph "
            "still hold their operations?)");
    while (s->comm && !hung) { /* else freeing would wait for the device, and NCCL may still write there */
        c = s->comm;
        s->comm = c->next;
        mesh_nccl__comm_free(s, c);
    }
    mesh_nccl__free_all(s, hung);
    if (exchange) exchange(&mode);
    return status;
}

/* Are there operations left to streams? Comms that close wait for these until their own deadlines; others they cancel. */
MESH__RARE int mesh_nccl__leaves(const mesh_transport *t) {
    const mesh__engine *e = (const mesh__engine *)t->engine;
    int i, left = e && e->detached;
    for (i = 0; e && i < e->ncomms; i++) left |= mesh__impl(e->comm[i])->beside;
    return left;
}

MESH__RARE mesh_status mesh_nccl__close(mesh_transport *t, mesh_error *why) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_error own;
    mesh_status status;
    int64_t deadline;
    if (!s) return MESH_OK;
    if ((status = mesh__enter(t, NULL, "nccl_close")) != MESH_OK) return status;
    deadline = mesh_nccl__now(s) + INT64_C(10000000000);
    if (!t->inside.lent && mesh_nccl__leaves(t)) mesh_nccl__drain(s, deadline);
    status = mesh_transport_detach(t);
    mesh__leave(t);
    return status == MESH_OK ? mesh_nccl__close_all(s, 1, deadline, why ? why : &own) : status;
}

MESH_API mesh_status mesh_nccl_close(mesh_nccl *n) {
    mesh_error why;
    return n && n->impl ? mesh_nccl__close(&n->base, &why) : MESH_OK;
}

/* What the bootstrap knows. */
MESH__RARE int mesh_nccl__locality(mesh_transport *t, int rank) {
    mesh_transport *boot = mesh_nccl__of(t)->boot;
    return MESH__HAS(boot->ops, locality) ? boot->ops->locality(boot, rank) : -1;
}

/* ---- // >>open ---- */

MESH__RARE const mesh_ops *mesh_nccl__ops(void) {
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
                                 mesh_nccl__control_flush,
                                 mesh_nccl__locality,
                                 NULL,
                                 NULL,
                                 mesh_nccl__squares,
                                 mesh_nccl__scale,
                                 mesh_nccl__do_rows,
                                 mesh_nccl__called};
    return &ops;
}

/* Does a CUDA runtime go with this machine's driver? One that is too young for it does not. */
MESH__RARE int mesh_nccl__suits(void *cudart) {
    cudaError_t (*count)(int *);
    void *f = dlsym(cudart, "cudaGetDeviceCount");
    int n;
    memcpy(&count, &f, sizeof f);
    return count && count(&n) != cudaErrorInsufficientDriver;
}

/* The library that was named; else the first of these names that suits: the one that the program has already, or one that loads. */
MESH__RARE void *mesh_nccl__library(int rank, const char *given, const char *variable, const char *const *names,
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
MESH__RARE mesh_status mesh_nccl__load(mesh_nccl__state *s, const mesh_nccl_desc *desc, mesh_error *err) {
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

/* The caller's communicator is of these ranks, in this order. *device: the one that it is on. */
MESH__RARE mesh_status mesh_nccl__given(mesh_nccl__state *s, int *device, mesh_error *err) {
    int rank = -1, size = -1;
    ncclResult_t r = s->api.ncclCommCount(s->given, &size);
    if (r == ncclSuccess) r = s->api.ncclCommUserRank(s->given, &rank);
    if (r == ncclSuccess) r = s->api.ncclCommCuDevice(s->given, device);
    if (r != ncclSuccess) return mesh_nccl__fail(s, err, "mesh_nccl_desc.comm", r);
    if (size != s->boot->size || rank != s->boot->rank)
        return mesh__fail(err, MESH_ERR_ARGUMENT, s->boot->rank,
                          "mesh_nccl_desc.comm has this rank as %d of %d, the bootstrap as %d of %d; give one of all "
                          "ranks in their order, or none",
                          rank, size, s->boot->rank, s->boot->size);
    return MESH_OK;
}

/* Which device is this rank's? */
MESH__RARE mesh_status mesh_nccl__device(mesh_nccl__state *s, const mesh_nccl_desc *desc, mesh_error *err) {
    const char *from = "its rank";
    int count = 0, local = mesh_env_local_rank(&from), major = 0;
    cudaError_t r = s->api.cudaGetDeviceCount(&count);
    if (r != cudaSuccess || count < 1)
        return mesh__fail(err, MESH_ERR_UNSUPPORTED, s->boot->rank, "no GPU on rank %d's host: cudaGetDeviceCount: %s",
                          s->boot->rank, r == cudaSuccess ? "0 devices" : s->api.cudaGetErrorString(r));
    if (local < 0) local = s->boot->rank;
    if (desc->device) {
        local = desc->device - 1;
        from = "mesh_nccl_desc.device - 1";
    } else if (count == 1) {
        local = 0; /* chosen for it, by CUDA_VISIBLE_DEVICES */
    }
    if (s->given) {
        int on = -1;
        mesh_status status = mesh_nccl__given(s, &on, err);
        if (status != MESH_OK) return status;
        if (desc->device && on != local)
            return mesh__fail(err, MESH_ERR_ARGUMENT, s->boot->rank,
                              "mesh_nccl_desc.device - 1 is %d, but mesh_nccl_desc.comm is on device %d", local, on);
        local = on;
        from = "mesh_nccl_desc.comm";
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

/* Kernels are a help, not a need: without them rows go slower and some reductions are refused. */
MESH__RARE void mesh_nccl__load_kernels(mesh_nccl__state *s) {
#define MESH_X(name) #name,
    static const char *const names[] = {MESH_KERNELS(MESH_X)};
#undef MESH_X
    mesh__text t = mesh__text_on(s->no_kernels, sizeof s->no_kernels);
    mesh__kernel_args nothing;
    void *args = &nothing;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaStream_t stream = NULL; /* not the default one, which would wait for the program's */
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
    mesh_nccl__capture_mode(s, &mode);
    r = s->api.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (r == cudaSuccess) r = s->api.cudaLibraryLoadData(&s->kernels, text, NULL, NULL, 0, NULL, NULL, 0);
    mesh_transport_free(s->boot, text);
    for (i = 0; i < MESH_NCCL__KERNELS && r == cudaSuccess; i++) {
        r = s->api.cudaLibraryGetKernel(&s->kernel[i], s->kernels, names[i]);
        if (i >= MESH_NCCL__mesh_move_few) args = s->batch.word;
        if (r == cudaSuccess)
            r = mesh_nccl__launch_on(s, stream, i, args,
                                     1); /* so that it is compiled now, not in a call or a capture */
    }
    if (stream) s->api.cudaStreamDestroy(stream);
    mesh_nccl__capture_mode(s, &mode);
    s->has_kernels = r == cudaSuccess;
    if (r == cudaSuccess) return;
    mesh__put(&t, "the driver does not take the kernels: %s", s->api.cudaGetErrorString(r));
    s->api.cudaGetLastError();
}

/* An endpoint of nothing yet. MEMORY: nothing is left of it. */
MESH__RARE mesh_nccl__state *mesh_nccl__begin(mesh_nccl *n, mesh_transport *bootstrap, const mesh_nccl_desc *desc) {
    const char *debug = getenv("MESH_NCCL_DEBUG");
    mesh_nccl__state *s = (mesh_nccl__state *)mesh_transport_alloc(bootstrap, sizeof *s);
    unsigned char *gone = (unsigned char *)mesh_transport_alloc(bootstrap, (size_t)bootstrap->size);
    if (!s || !gone) {
        mesh_transport_free(bootstrap, gone);
        mesh_transport_free(bootstrap, s);
        return NULL;
    }
    memset(s, 0, sizeof *s);
    memset(gone, 0, (size_t)bootstrap->size);
    s->gone = gone;
    s->n = n;
    s->boot = bootstrap;
    bootstrap->inside.lent++;
    s->mail_end = &s->mail;
    s->debug = desc->debug || (debug && *debug && *debug != '0');
    s->max_ctas = desc->max_ctas;
    s->given = desc->comm;
    pthread_mutex_init(&s->boot_lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->watch_lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->want, NULL);
    pthread_cond_init(&s->out, NULL);
    n->base.ops = mesh_nccl__ops();
    n->base.rank = bootstrap->rank;
    n->base.size = bootstrap->size;
    n->base.caps = MESH_CAP_DEVICE | MESH_CAP_ORDERED | MESH_CAP_STRIDED;
    n->base.allocator = bootstrap->allocator;
    n->base.log = bootstrap->log;
    n->base.log_ctx = bootstrap->log_ctx;
    n->base.timeout_ns = bootstrap->timeout_ns;
    n->base.trace = bootstrap->trace; /* it has no operations of its own, and the same clock */
    n->base.trace_ctx = bootstrap->trace_ctx;
    n->base.trace_clock = bootstrap->trace_clock;
    n->base.trace_epoch = bootstrap->trace_epoch;
    n->impl = s;
    return s;
}

/* The kernels, if every rank has them: which calls NCCL serves depends on them, so all ranks use them, or none. */
MESH__RARE mesh_status mesh_nccl__kernels(mesh_nccl__state *s, const int *ranks, mesh_nccl__vote *vote,
                                          int64_t deadline) {
    mesh_status status;
    mesh_nccl__load_kernels(s);
    if (s->boot->size == 1) return MESH_OK;
    vote->serial = (uint64_t)s->has_kernels;
    status = mesh_nccl__agree(s, ranks, s->boot->size, 0, 0, 1, vote, deadline);
    if (s->has_kernels && vote->action != MESH_NCCL__KEEP) {
        mesh__text t = mesh__text_on(s->no_kernels, sizeof s->no_kernels);
        mesh__put(&t, "another rank has none");
        s->has_kernels = 0;
    }
    return status;
}

/* The threads, and the communicator of all ranks. */
MESH__RARE mesh_status mesh_nccl__world(mesh_nccl__state *s, const mesh_nccl_desc *desc, int64_t deadline,
                                        mesh_error *why) {
    mesh_status status;
    void *world = NULL;
    mesh all;
    if (!desc->no_watchdog) {
        s->marks = pthread_create(&s->marker, NULL, mesh_nccl__marker, s) == 0; /* which the watchdog asks */
        s->watching = pthread_create(&s->watchdog, NULL, mesh_nccl__watch, s) == 0;
        if (!s->watching || !s->marks) return mesh__fail(why, MESH_ERR_MEMORY, s->boot->rank, "no watchdog thread");
    }
    if ((status = mesh_parse(&all, "world=-1", s->boot->size, why)) != MESH_OK) return status;
    status = mesh_nccl__group_open(&s->n->base, NULL, 0, &all, 0, s->boot->rank, deadline, &world, why);
    if (status != MESH_OK) return status;
    s->world = *(mesh_nccl__group *)world; /* for bare posts; the first comm over the world may have it */
    pthread_mutex_lock(&s->lock);
    s->world.c->refs = 0;
    pthread_mutex_unlock(&s->lock);
    s->world.timeout = INT64_C(600000000000);
    return MESH_OK;
}

/* NCCL lets this variable's number, 0 or 1, decide for every communicator of the process. It may have read it already, so it is not set aside. */
MESH__RARE mesh_status mesh_nccl__blocking_check(const mesh_nccl__state *s, mesh_error *err) {
    const char *text = getenv("NCCL_COMM_BLOCKING");
    long long number;
    if (!text || !*text) return MESH_OK;
    errno = 0;
    number = strtoll(text, NULL, 0); /* as NCCL reads it */
    if (errno || number < 0 || number > 1) return MESH_OK;
    return mesh__fail(err, MESH_ERR_ARGUMENT, s->boot->rank,
                      "NCCL_COMM_BLOCKING is \"%s\", which makes NCCL's calls return before they are done (0), or "
                      "communicators be made without a deadline (1), whatever a communicator says; unset it",
                      text);
}

/* This rank's libraries and device. */
MESH__RARE mesh_status mesh_nccl__equip(mesh_nccl__state *s, const mesh_nccl_desc *desc, mesh_error *err) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    mesh_status status = mesh_nccl__load(s, desc, err);
    if (status == MESH_OK) status = mesh_nccl__blocking_check(s, err);
    if (status != MESH_OK) return status;
    mesh_nccl__capture_mode(s, &mode);
    status = mesh_nccl__device(s, desc, err);
    mesh_nccl__capture_mode(s, &mode);
    return status;
}

/* It is open, and nobody else's. */
MESH__RARE mesh_status mesh_nccl__bootstrap_check(const mesh_transport *bootstrap, mesh_error *err) {
    const char *why = NULL;
    if (mesh__is_shut(bootstrap))
        return mesh__fail(err, MESH_ERR_STATE, -1,
                          "mesh_nccl_open: the bootstrap is not open here (it failed to, was closed, or is a fork's); "
                          "open it first, and close it after mesh_nccl_close");
    if (bootstrap->inside.lent)
        why = "is another transport's already; close that first, or open a bootstrap for each";
    else if (bootstrap->engine)
        why = "has comms of its own; give it one without";
    else if (bootstrap->inside.leaving)
        why = "has a progress thread; open it without";
    if (!why) return MESH_OK;
    return mesh__fail(err, MESH_ERR_ARGUMENT, bootstrap->rank, "mesh_nccl_open: the bootstrap (%s) %s",
                      bootstrap->ops->name, why);
}

MESH_API mesh_status mesh_nccl_open(mesh_nccl *n, mesh_transport *bootstrap, const mesh_nccl_desc *desc,
                                    mesh_error *err) {
    static const mesh_nccl_desc none = MESH_ZERO;
    mesh_nccl__state *s;
    mesh_nccl__vote vote;
    mesh_error own;
    mesh_status status;
    int64_t deadline, allowed;
    int i, *ranks;
    if (!n || !bootstrap)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_nccl_open: %s is NULL",
                          n ? "the bootstrap" : "the transport");
    memset(n, 0, sizeof *n);
    if ((status = mesh_nccl__bootstrap_check(bootstrap, err)) != MESH_OK) return status;
    if (!desc) desc = &none;
    ranks = (int *)mesh_transport_alloc(bootstrap, sizeof *ranks * (size_t)bootstrap->size);
    if (!ranks || !(s = mesh_nccl__begin(n, bootstrap, desc))) {
        mesh_transport_free(bootstrap, ranks);
        return mesh__fail(err, MESH_ERR_MEMORY, bootstrap->rank, "mesh_nccl_open: no memory");
    }
    if (desc->launch_order) setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    allowed = desc->open_timeout_ns > 0 ? desc->open_timeout_ns : INT64_C(60000000000);
    deadline = mesh_nccl__now(s) + (allowed < MESH__FOREVER_NS ? allowed : MESH__FOREVER_NS);
    memset(&vote, 0, sizeof vote);
    vote.status = mesh_nccl__equip(s, desc, &vote.why);
    if (vote.status != MESH_OK && vote.why.rank < 0) vote.why.rank = bootstrap->rank;
    for (i = 0; i < bootstrap->size; i++) ranks[i] = i;
    vote.serial = s->given ? 2 : 1;
    if (bootstrap->rank == 0) s->serial = (uint64_t)mesh_nccl__now(s); /* greater than in an earlier opening */
    if (bootstrap->size > 1) mesh_nccl__agree(s, ranks, bootstrap->size, 0, 0, 1, &vote, deadline);
    s->opened = vote.newest;
    if (bootstrap->size > 1 && vote.status == MESH_OK && vote.action != MESH_NCCL__KEEP)
        vote.status = mesh__fail(&vote.why, MESH_ERR_MISMATCH, -1,
                                 "mesh_nccl_desc.comm is given on some ranks and not on others (on rank %d it is%s); "
                                 "give it on all or on none",
                                 bootstrap->rank, s->given ? "" : " not");
    status = vote.status;
    if (status == MESH_OK) status = mesh_nccl__kernels(s, ranks, &vote, deadline);
    mesh_transport_free(bootstrap, ranks);
    if (status == MESH_OK) status = mesh_nccl__world(s, desc, deadline, &vote.why);
    if (status == MESH_OK) return MESH_OK;
    mesh_nccl__close_all(s, 0, mesh_nccl__now(s) + INT64_C(10000000000), &own);
    return mesh__fail(err, status, vote.why.rank, "mesh_nccl_open: %s", vote.why.text);
}
#endif /* MESH_NCCL_OPEN_IMPLEMENTED */
