/* What this library adds to NCCL: its calls beside NCCL's own, in turns. One rank per GPU:
       build/mesh run -n 8 -- build/bench_gpu [--what calls,host,packing,kernels] [--max 256M] [--rounds 7] [--csv FILE] [--no-watchdog]
   calls    each call of this library beside the same one of NCCL ("raw"), in the columns of nccl-tests; medians, of the slowest rank.
            `time` is the device's, between two events with 20 calls between them; `host` the host's while it enqueues those.
   host     what a call of one element costs the host, beside the bare ncclAllReduce; and the library alone: the same with functions
            that do nothing in the place of NCCL's and CUDA's.
   packing  rows, twice as far apart as they are wide (`count` bytes), to one piece and back: the kernel beside cudaMemcpy2DAsync
            ("raw"), first within a cache, then beyond it.
   kernels  reductions, divisions, squares, scaling, beside a copy ("raw") that reads and writes as many bytes in all; busbw counts those.
   ratio is raw us / time us: 1.00 is as fast, above it we are faster.
   Raw NCCL runs in a process of its own beside each rank, the baseline, with nothing of ours in its environment. The two take turns
   batch by batch; whose turn it is not has nothing on the GPU: clocks and temperature are alike for both.
   Ranks that share a GPU take turns on it, and one rank alone has nobody to talk to: calls and host refuse then, for no ratio would say
   anything. --shared (with mesh run --share-gpu) only checks each size's results, of both. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "../mesh_parallel.h"
#include "../transports/mesh_nccl.h"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { INNER = 20, MAX_ROUNDS = 999, BATCH = 256, WORD_BYTES = 65536 };

static mesh_socket net;
static mesh_nccl gpu;
static mesh_comm comm;
static mesh_nccl__state *state;
static mesh_nccl__api lib; /* the same functions as the transport's */
static ncclComm_t raw;     /* the baseline's */
static cudaStream_t stream;
static cudaEvent_t begin, end, over;
static cudaError_t (*elapsed)(float *ms, cudaEvent_t from, cudaEvent_t to);
static float *sends, *receives;     /* of the device, as are the next */
static unsigned char *rows, *dense; /* of packing */
static void *word, *registered;
static int me, n, rounds = 7;
static int only_check; /* --shared: no times */
static int is_baseline;
static FILE *csv;

/* ---- what goes wrong ends the job ---- */

static void stop(const char *what, const char *why) {
    fprintf(stderr, "bench_gpu: rank %d%s: %s%s%s\n", me, is_baseline ? "'s raw NCCL" : "", what, why ? ": " : "",
            why ? why : "");
    exit(1);
}
static void must(mesh_status status) {
    if (status != MESH_OK) stop(comm.error.text[0] ? comm.error.text : mesh_status_text(status), NULL);
}
static void must_cuda(cudaError_t r) {
    if (r != cudaSuccess) stop(lib.cudaGetErrorName(r), lib.cudaGetErrorString(r));
}
static void must_nccl(ncclResult_t r) {
    if (r != ncclSuccess) stop(lib.ncclGetErrorString(r), lib.ncclGetLastError(NULL));
}

/* ---- // >>baseline: raw NCCL in a process of its own ---- */

typedef enum known { PLAIN, REGISTERED, WINDOW, WAYS } known; /* how NCCL knows the baseline's memory */
static const char *const known_as[WAYS] = {"plain", "registered", "window"};

typedef struct setup { /* what the baseline is told first */
    int rank, size, device;
    known as;
    size_t max;
    char nccl[1024], cudart[1024]; /* the libraries that were named, or "" */
} setup;

typedef enum task { CHECK, TIME_CALLS, TIME_HOST, END } task;

typedef struct turn {
    task what;
    int kind;
    size_t count;
} turn;

typedef struct outcome {
    double us[2]; /* TIME, HOST; of TIME_HOST the second only */
    double wrong;
} outcome;

static int beside = -1; /* the other process's end */
static pid_t baseline;

static int move_all(int fd, void *p, size_t left, int out) {
    char *at = (char *)p;
    while (left) {
        ssize_t done = out ? write(fd, at, left) : read(fd, at, left);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        at += done;
        left -= (size_t)done;
    }
    return 1;
}

static void tell(const void *p, size_t nbytes) {
    if (!move_all(beside, (void *)(uintptr_t)p, nbytes, 1)) stop("raw NCCL's process has ended", NULL);
}
static void hear(void *p, size_t nbytes) {
    if (!move_all(beside, p, nbytes, 0)) stop("raw NCCL's process has ended", NULL);
}

/* Nothing of ours: what MESH_ variables say, and what mesh_nccl_open sets. Those of NCCL that the user has set are for both. */
static void clear_environment(void) {
    extern char **environ;
    char **e = environ;
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    while (*e) {
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
        if (strncmp(name, "MESH_", 5) || unsetenv(name))
            e++;
        else
            e = environ;
    }
}

/* Before this process touches CUDA. The other one waits to be told what to do, and ends with this one. */
static void baseline_start(void) {
    const char *listener = getenv("MESH_LISTEN_FD");
    int ends[2];
    char fd[16];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) stop("socketpair", strerror(errno));
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fflush(NULL);
    if ((baseline = fork()) < 0) stop("fork", strerror(errno));
    if (baseline == 0) {
        if (listener) close(atoi(listener));
        clear_environment();
        snprintf(fd, sizeof fd, "%d", ends[1]);
        execl("/proc/self/exe", "bench_gpu", "--baseline", fd, (char *)NULL);
        fprintf(stderr, "bench_gpu: /proc/self/exe: %s\n", strerror(errno));
        _exit(127);
    }
    close(ends[1]);
    beside = ends[0];
    signal(SIGPIPE, SIG_IGN);
}

/* ---- one contest: two ways to do one thing ---- */

typedef struct contest {
    void (*run)(const struct contest *c);
    void (*rival)(const struct contest *c); /* NULL: the baseline's call */
    int kind;                               /* a call; pack (0) or unpack (1) */
    size_t count;                           /* elements of a call, bytes of a copy */
    mesh_block block;                       /* the rows */
} contest;

enum { TIME, HOST, RAW_TIME, RAW_HOST, FIGURES };

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *v, int count) {
    qsort(v, (size_t)count, sizeof *v, order);
    return v[count / 2];
}

/* Each value becomes the largest of any rank. */
static void slowest(double *v, size_t count) {
    must(mesh_copy(&comm, word, v, count * sizeof *v));
    must(mesh_all_reduce(&comm, NULL, word, word, count, MESH_F64, MESH_MAX));
    must(mesh_copy(&comm, v, word, count * sizeof *v));
}

/* Wait for whatever is on the stream. */
static void finish(void) {
    cudaError_t r;
    must_cuda(lib.cudaEventRecord(over, stream));
    while ((r = lib.cudaEventQuery(over)) == cudaErrorNotReady) mesh_nccl__nap(10000);
    must_cuda(r);
}

/* Wait, to the comm's deadline, for whatever is on the stream, and for the other ranks. */
static void settle(void) {
    char byte;
    if (n == 1) must(mesh_copy(&comm, &byte, word, 1)); /* a barrier of one does not wait for the stream */
    must(mesh_barrier(&comm, NULL));
    must(mesh_comm_sync(&comm));
}

/* A batch in this process, and us of one of its calls: the device's, the host's. */
static void run_batch(void (*run)(const contest *c), const contest *c, double us[2]) {
    int64_t start;
    float ms;
    int i;
    run(c); /* its end brings the ranks' devices together */
    must_cuda(lib.cudaEventRecord(begin, stream));
    start = mesh_socket__clock();
    for (i = 0; i < INNER; i++) run(c);
    us[HOST] = (double)(mesh_socket__clock() - start) * 1e-3 / INNER;
    must_cuda(lib.cudaEventRecord(end, stream));
    if (!is_baseline) settle();
    if (is_baseline) finish();
    must_cuda(elapsed(&ms, begin, end));
    us[TIME] = (double)ms * 1e3 / INNER;
}

/* The baseline's turn. */
static outcome ask(task what, int kind, size_t count) {
    turn t;
    outcome o;
    memset(&t, 0, sizeof t);
    t.what = what, t.kind = kind, t.count = count;
    settle(); /* no rank is still at its own */
    tell(&t, sizeof t);
    hear(&o, sizeof o);
    return o;
}

static void measure(const contest *c, double us[FIGURES]) {
    static double sample[FIGURES][MAX_ROUNDS];
    int round, k;
    for (round = 0; round < rounds; round++)
        for (k = 0; k < 2; k++) {
            int is_raw = (k + round) & 1; /* who begins changes */
            double of_this[2];
            if (is_raw && !c->rival) {
                outcome o = ask(TIME_CALLS, c->kind, c->count);
                memcpy(of_this, o.us, sizeof of_this);
            } else {
                settle();
                run_batch(is_raw ? c->rival : c->run, c, of_this);
            }
            sample[2 * is_raw + TIME][round] = of_this[TIME];
            sample[2 * is_raw + HOST][round] = of_this[HOST];
        }
    for (k = 0; k < FIGURES; k++) {
        slowest(sample[k], (size_t)rounds);
        us[k] = median(sample[k], rounds);
    }
}

static void heading(const char *name) {
    if (me == 0)
        printf("\n# %s\n%12s %12s %5s %7s %10s %8s %8s %8s %10s %8s %8s %6s %7s\n", name, "size", "count", "type", "op",
               "time us", "algbw", "busbw", "host us", "raw us", "raw bus", "raw host", "ratio", "#wrong");
}

/* One line of a table. `bus` is what busbw is of algbw. us: NULL where nothing was timed. */
static void row(const char *what, size_t bytes, size_t count, const char *type, const char *op, const double *us,
                double bus, double wrong) {
    double bw, raw_bw, ratio;
    if (!us) {
        if (me == 0)
            printf("%12zu %12zu %5s %7s %10s %8s %8s %8s %10s %8s %8s %6s %7.0f\n", bytes, count, type, op, "-", "-",
                   "-", "-", "-", "-", "-", "-", wrong);
        if (csv) fprintf(csv, "%s,%d,%zu,%zu,%s,%s,,,,,,,,,%.0f\n", what, n, bytes, count, type, op, wrong);
        return;
    }
    bw = us[TIME] > 0 ? (double)bytes / us[TIME] * 1e-3 : 0;
    raw_bw = us[RAW_TIME] > 0 ? (double)bytes / us[RAW_TIME] * 1e-3 : 0;
    ratio = us[TIME] > 0 ? us[RAW_TIME] / us[TIME] : 0;
    if (me == 0 && us[TIME] > 0)
        printf("%12zu %12zu %5s %7s %10.2f %8.2f %8.2f %8.2f %10.2f %8.2f %8.2f %6.2f %7.0f\n", bytes, count, type, op,
               us[TIME], bw, bw * bus, us[HOST], us[RAW_TIME], raw_bw * bus, us[RAW_HOST], ratio, wrong);
    if (csv)
        fprintf(csv, "%s,%d,%zu,%zu,%s,%s,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.0f\n", what, n, bytes, count, type,
                op, us[TIME], bw, bw * bus, us[HOST], us[RAW_TIME], raw_bw * bus, us[RAW_HOST], ratio, wrong);
}

/* ---- // >>calls ---- */

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, SENDRECV, CALLS };

static ncclResult_t run_messages(int ring, size_t count) {
    ncclResult_t r = lib.ncclGroupStart();
    size_t i;
    for (i = 0; i < (size_t)(ring ? 1 : n) && r == ncclSuccess; i++) {
        r = lib.ncclSend(sends + i * count, count, ncclFloat32, ring ? (me + 1) % n : (int)i, raw, stream);
        if (r == ncclSuccess)
            r = lib.ncclRecv(receives + i * count, count, ncclFloat32, ring ? (me + n - 1) % n : (int)i, raw, stream);
    }
    return r == ncclSuccess ? lib.ncclGroupEnd() : r;
}

static void raw_call(const contest *c) {
    int k = c->kind;
    size_t count = c->count;
    must_nccl(k == ALL_REDUCE       ? lib.ncclAllReduce(sends, receives, count, ncclFloat32, ncclSum, raw, stream)
              : k == ALL_GATHER     ? lib.ncclAllGather(sends, receives, count, ncclFloat32, raw, stream)
              : k == REDUCE_SCATTER ? lib.ncclReduceScatter(sends, receives, count, ncclFloat32, ncclSum, raw, stream)
              : k == BROADCAST      ? lib.ncclBroadcast(sends, receives, count, ncclFloat32, 0, raw, stream)
              : k == ALL_TO_ALL && lib.ncclAlltoAll ? lib.ncclAlltoAll(sends, receives, count, ncclFloat32, raw, stream)
                                                    : run_messages(k == SENDRECV, count));
}

static void our_call(const contest *c) {
    int k = c->kind;
    size_t count = c->count;
    must(k == ALL_REDUCE       ? mesh_all_reduce(&comm, NULL, sends, receives, count, MESH_F32, MESH_SUM)
         : k == ALL_GATHER     ? mesh_all_gather(&comm, NULL, sends, receives, count, MESH_F32)
         : k == REDUCE_SCATTER ? mesh_reduce_scatter(&comm, NULL, sends, receives, count, MESH_F32, MESH_SUM)
         : k == BROADCAST      ? mesh_broadcast(&comm, NULL, sends, receives, count, MESH_F32, 0)
         : k == ALL_TO_ALL     ? mesh_all_to_all(&comm, NULL, sends, receives, count, MESH_F32)
                               : mesh_shift(&comm, NULL, 1, 1, sends, receives, count, MESH_F32));
}

/* Element i of what a rank sends: small integers, whose sums are exact. */
static float sent(int rank, size_t i) { return (float)(rank + (int)(i % 61)); }
static float sum(size_t i) { return (float)(n * (n - 1) / 2 + n * (int)(i % 61)); }
static float expected(int kind, size_t count, size_t i) {
    size_t mine = (size_t)me * count;
    return kind == ALL_REDUCE       ? sum(i)
           : kind == ALL_GATHER     ? sent((int)(i / count), i % count)
           : kind == REDUCE_SCATTER ? sum(mine + i)
           : kind == BROADCAST      ? sent(0, i)
           : kind == ALL_TO_ALL     ? sent((int)(i / count), mine + i % count)
                                    : sent((me + n - 1) % n, i);
}

/* One call, which also connects the ranks. Returns how many elements of this rank are not as they should be. */
static double count_wrong(const contest *c, float *host) {
    size_t i, total = c->kind == ALL_GATHER || c->kind == ALL_TO_ALL ? c->count * (size_t)n : c->count;
    double wrong = 0;
    must_cuda(lib.cudaMemsetAsync(receives, 0xee, total * sizeof(float), stream));
    c->run(c);
    if (is_baseline) {
        must_cuda(lib.cudaMemcpyAsync(host, receives, total * sizeof(float), cudaMemcpyDefault, stream));
        finish();
    } else {
        must(mesh_copy(&comm, host, receives, total * sizeof(float)));
    }
    for (i = 0; i < total; i++) wrong += host[i] != expected(c->kind, c->count, i);
    return wrong;
}

static int measure_calls(size_t max) {
    static const char *const names[CALLS] = {"all_reduce", "all_gather", "reduce_scatter",
                                             "broadcast",  "all_to_all", "sendrecv"};
    float *host = (float *)malloc(max);
    contest c = MESH_ZERO;
    size_t i, size;
    int bad = 0;
    if (!host) stop("no memory", NULL);
    for (i = 0; i < max / sizeof(float); i++) host[i] = sent(me, i);
    must(mesh_copy(&comm, sends, host, max));
    c.run = our_call;
    for (c.kind = 0; c.kind < CALLS; c.kind++) {
        int one = c.kind == BROADCAST || c.kind == SENDRECV, twice = c.kind == ALL_REDUCE, parts = one || twice ? 1 : n;
        heading(names[c.kind]);
        for (size = 1024; size <= max; size *= 4) {
            double us[FIGURES], wrong;
            c.count = size / sizeof(float) / (size_t)parts;
            if (!c.count) continue;
            wrong = count_wrong(&c, host);
            wrong += ask(CHECK, c.kind, c.count).wrong;
            slowest(&wrong, 1);
            bad |= wrong > 0;
            if (!only_check) measure(&c, us);
            row(names[c.kind], c.count * sizeof(float) * (size_t)parts, c.count, "f32",
                twice || c.kind == REDUCE_SCATTER ? "sum" : "none", only_check ? NULL : us,
                one ? 1 : (1.0 + twice) * (n - 1) / n, wrong);
        }
    }
    free(host);
    return bad;
}

/* ---- // >>host ---- */

/* Functions that do nothing. */
static ncclResult_t idle_all_reduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                    ncclComm_t c, cudaStream_t on) {
    return (void)send, (void)recv, (void)count, (void)type, (void)op, (void)c, (void)on, ncclSuccess;
}
static cudaError_t idle_record(cudaEvent_t event, cudaStream_t on) { return (void)event, (void)on, cudaSuccess; }
static cudaError_t idle_query(cudaEvent_t event) { return (void)event, cudaSuccess; }
static cudaError_t idle_mode(enum cudaStreamCaptureMode *mode) { return (void)mode, cudaSuccess; }
static cudaError_t idle_wait(cudaStream_t on, cudaEvent_t event, unsigned flags) {
    return (void)on, (void)event, (void)flags, cudaSuccess;
}
static cudaError_t idle_capturing(cudaStream_t on, enum cudaStreamCaptureStatus *status) {
    return (void)on, *status = cudaStreamCaptureStatusNone, cudaSuccess;
}

/* The watchdog calls them too, under this lock. */
static void use(const mesh_nccl__api *functions) {
    pthread_mutex_lock(&state->lock);
    state->api = *functions;
    pthread_mutex_unlock(&state->lock);
}

enum { BLOCKING, START_WAIT, RAW, FORMS };

/* us of the host for a call of one element: of a batch of them, with the wait for them outside. */
static double batch(int form) {
    int64_t start = mesh_socket__clock();
    mesh_request r;
    int i;
    for (i = 0; i < BATCH; i++)
        if (form == BLOCKING)
            must(mesh_all_reduce(&comm, NULL, word, word, 1, MESH_F32, MESH_SUM));
        else if (form == RAW)
            must_nccl(lib.ncclAllReduce(word, word, 1, ncclFloat32, ncclSum, raw, stream));
        else if (mesh_all_reduce_start(&comm, NULL, word, word, 1, MESH_F32, MESH_SUM, &r) || mesh_wait(r))
            stop(comm.error.text, NULL);
    return (double)(mesh_socket__clock() - start) * 1e-3 / BATCH;
}

static void measure_host(void) {
    enum { SOME = 100000 / BATCH + 1, MANY = 1000000 / BATCH };
    static const char *const names[] = {"blocking", "start+wait"};
    static double sample[FORMS][MANY];
    double us[FORMS + 2] = {0}, alone[2], f[FIGURES] = {0, 0, 0, 0};
    mesh_nccl__api none = lib;
    int i, k;
    must_cuda(lib.cudaMemsetAsync(word, 0, WORD_BYTES, stream));
    for (i = 0; i < SOME && !only_check; i++)
        for (k = 0; k < FORMS; k++) {
            int form = (i + k) % FORMS;
            if (form != RAW) settle();
            sample[form][i] = form == RAW ? ask(TIME_HOST, 0, 1).us[HOST] : batch(form);
        }
    settle();
    for (k = 0; k < FORMS && !only_check; k++) us[k] = median(sample[k], SOME);
    for (k = 0; k < 2; k++) us[FORMS + k] = us[k] - us[RAW];
    slowest(us, FORMS + 2);

    none.ncclAllReduce = idle_all_reduce, none.cudaEventRecord = idle_record, none.cudaEventQuery = idle_query;
    none.cudaStreamWaitEvent = idle_wait, none.cudaStreamIsCapturing = idle_capturing;
    none.cudaThreadExchangeStreamCaptureMode = idle_mode;
    use(&none);
    for (k = 0; k < 2; k++) {
        for (i = 0; i < MANY; i++) {
            sample[k][i] = batch(k);
            must(mesh_comm_sync(&comm)); /* nothing of it is left when the real functions are back */
        }
        alone[k] = median(sample[k], MANY);
    }
    use(&lib);
    slowest(alone, 2);

    if (me == 0 && only_check)
        printf("\n# host time of an all_reduce of 1 f32\n");
    else if (me == 0)
        printf("\n# host time of an all_reduce of 1 f32: medians of %d batches of %d\n%12s %10s %10s %14s\n", SOME,
               BATCH, "", "us", "raw us", "us beyond raw");
    for (k = 0; k < 2; k++) {
        if (!only_check) {
            if (me == 0) printf("%12s %10.3f %10.3f %14.3f\n", names[k], us[k], us[RAW], us[FORMS + k]);
            f[HOST] = us[k], f[RAW_HOST] = us[RAW];
            row("host", 4, 1, "f32", names[k], f, 0, 0);
        }
        f[HOST] = alone[k], f[RAW_HOST] = 0;
        row("alone", 4, 1, "f32", names[k], f, 0, 0);
    }
    if (me == 0)
        printf("the library alone: %.0f ns per blocking call, %.0f ns per start + wait\n", alone[0] * 1e3,
               alone[1] * 1e3);
}

/* ---- // >>packing ---- */

/* As mesh_nccl__move does. */
static cudaError_t move_by_kernel(void *dst, const mesh_block *db, const void *src, const mesh_block *sb, size_t size) {
    int unit = mesh_nccl__unit(mesh_nccl__bits(dst, db) | mesh_nccl__bits(src, sb) | size);
    mesh__kernel_args args;
    memset(&args, 0, sizeof args);
    args.dst = (uint64_t)(uintptr_t)dst;
    args.src = (uint64_t)(uintptr_t)src;
    args.count = size >> unit;
    mesh_nccl__kernel_block(&args.to, &args.to_ndim, db, UINT64_C(1) << unit);
    mesh_nccl__kernel_block(&args.from, &args.from_ndim, sb, UINT64_C(1) << unit);
    return mesh_nccl__launch(state, state->world.c, (int)MESH_NCCL__mesh_move_1 + unit, &args);
}

/* As mesh_nccl__pack does, whose copies' other sides are contiguous. */
static cudaError_t move_by_batch(void *dst, const mesh_block *db, const void *src, const mesh_block *sb, size_t size) {
    mesh__kernel_args args;
    uint64_t chunks;
    memset(&args, 0, sizeof args);
    args.dst = (uint64_t)(uintptr_t)dst;
    args.src = (uint64_t)(uintptr_t)src;
    args.count = size;
    mesh_nccl__kernel_block(&args.to, &args.to_ndim, db, 1);
    mesh_nccl__kernel_block(&args.from, &args.from_ndim, sb, 1);
    mesh__batch_begin(&state->batch, MESH__BATCH_FEW);
    mesh__batch_add(&state->batch, &args);
    chunks = mesh__batch_end(&state->batch);
    return mesh_nccl__launch_on(state, state->world.c->on, (int)MESH_NCCL__mesh_move_few, state->batch.word, chunks);
}

enum { BY_ROWS, BY_KERNEL, BY_BATCH };
static void run_copy(const contest *c, int by) {
    const mesh_block *db = c->kind ? &c->block : NULL, *sb = c->kind ? NULL : &c->block;
    void *dst = c->kind ? rows : dense, *src = c->kind ? dense : rows;
    must(mesh_nccl__fence(&gpu.base, NULL, stream, MESH_FENCE_ON));
    pthread_mutex_lock(&state->lock);
    must_cuda(by == BY_KERNEL  ? move_by_kernel(dst, db, src, sb, c->count)
              : by == BY_BATCH ? move_by_batch(dst, db, src, sb, c->count)
                               : mesh_nccl__copy_rows(state, state->world.c, dst, db, src, sb, c->count));
    pthread_mutex_unlock(&state->lock);
}
static void copy_by_kernel(const contest *c) { run_copy(c, BY_KERNEL); }
static void copy_by_batch(const contest *c) { run_copy(c, BY_BATCH); }
static void copy_by_rows(const contest *c) { run_copy(c, BY_ROWS); }

/* There and back, each way: the rows are as before, and what is between them is left. host: what there was, and room for what there is. */
static double check_copies(contest c, unsigned char *host) {
    static void (*const ways[])(const contest *) = {copy_by_kernel, copy_by_batch, copy_by_rows};
    size_t width = (size_t)c.block.run, nbytes = 2 * c.count, i, k;
    unsigned char *got = host + nbytes;
    double wrong = 0;
    int way;
    for (way = 0; way < 3; way++) {
        must(mesh_copy(&comm, rows, host, nbytes));
        for (c.kind = 0; c.kind < 2; c.kind++) {
            ways[way](&c);
            if (c.kind == 0) must_cuda(lib.cudaMemsetAsync(rows, 0xee, nbytes, stream));
        }
        must(mesh_copy(&comm, got, rows, nbytes));
        for (i = 0; i < nbytes; i += 2 * width) {
            wrong += memcmp(host + i, got + i, width) != 0;
            for (k = i + width; k < i + 2 * width; k++) wrong += got[k] != 0xee;
        }
    }
    slowest(&wrong, 1);
    return wrong;
}

/* Multiples of 4 bytes; between them rows that a kernel moves 1 and 2 bytes at a time. */
static size_t next_width(size_t width) {
    return width == 1 ? 4 : width % 4 == 0 ? width * 4 + 2 : width % 4 == 2 ? width + 1 : width - 3;
}

static int measure_packing(size_t total) {
    unsigned char *host = (unsigned char *)malloc(4 * total);
    size_t width, i, narrow[2] = {0, 0};
    int bad = 0, leads[2] = {1, 1};
    contest c = MESH_ZERO;
    if (!host) stop("no memory", NULL);
    must(mesh_alloc(comm.transport, 3 * total, (void **)&rows, &comm.error));
    dense = rows + 2 * total;
    c.run = copy_by_kernel;
    c.rival = copy_by_rows;
    c.block.ndim = 1;
    for (i = 0; i < 2 * total; i++) host[i] = (unsigned char)(i * 2654435761u >> 13);
    heading("packing");
    for (width = 1; width <= total / 16 && state->has_kernels; width = next_width(width)) {
        double us[FIGURES], wrong;
        c.count = total / width * width;
        c.block.run = width;
        c.block.dim[0].count = (int64_t)(total / width);
        c.block.dim[0].stride = (int64_t)(2 * width);
        wrong = check_copies(c, host);
        bad |= wrong > 0;
        for (c.kind = 0; c.kind < 2; c.kind++) {
            if (!only_check) {
                measure(&c, us);
                if (width % 4 == 0) leads[c.kind] &= us[TIME] < us[RAW_TIME];
                if (width % 4 == 0 && leads[c.kind]) narrow[c.kind] = width;
            }
            row("packing", c.count, width, "u8", c.kind ? "unpack" : "pack", only_check ? NULL : us, 1, wrong);
            if (only_check) continue;
            c.run = copy_by_batch;
            measure(&c, us);
            c.run = copy_by_kernel;
            row("packing", c.count, width, "u8", c.kind ? "unpacks" : "packs", us, 1, wrong);
        }
    }
    if (me == 0 && state->has_kernels && !only_check)
        printf("the kernel is faster up to rows of %zu bytes (pack) and %zu (unpack)\n", narrow[0], narrow[1]);
    if (me == 0 && !state->has_kernels) printf("no kernels: %s\n", state->no_kernels);
    must(mesh_free(comm.transport, rows, &comm.error));
    free(host);
    return bad;
}

/* ---- // >>kernels ---- */

typedef enum work { SUM, DIVIDE, SQUARES, SCALE } work;
static const char *const works[] = {"sum", "divide", "squares", "scale"};
static const int passes[] = {3, 2, 1, 2}; /* over the bytes: those it reads and those it writes */
static const struct {
    mesh_dtype dtype;
    work work;
} kernels[] = {{MESH_F32, SUM},     {MESH_F64, SUM},     {MESH_F16, SUM},     {MESH_BF16, SUM},    {MESH_U8, SUM},
               {MESH_I32, SUM},     {MESH_I64, SUM},     {MESH_F32, DIVIDE},  {MESH_F64, DIVIDE},  {MESH_F16, DIVIDE},
               {MESH_BF16, DIVIDE}, {MESH_F32, SQUARES}, {MESH_F64, SQUARES}, {MESH_F16, SQUARES}, {MESH_BF16, SQUARES},
               {MESH_F32, SCALE},   {MESH_F64, SCALE},   {MESH_F16, SCALE},   {MESH_BF16, SCALE}};
static void *sums; /* of squares */

static int divisor; /* and factor; 1 where it is timed: repeated, another would leave numbers that no longer are any */

/* rows += dense, rows /= divisor, rows *= divisor, of count bytes; or the sum of the squares of rows. */
static void run_kernel(const contest *c) {
    mesh_dtype dtype = kernels[c->kind].dtype;
    work does = kernels[c->kind].work;
    mesh_part part;
    memset(&part, 0, sizeof part);
    part.base = rows;
    part.dtype = (int)dtype;
    part.count = c->count / mesh_dtype_bytes(dtype);
    must(mesh_nccl__fence(&gpu.base, NULL, stream, MESH_FENCE_ON));
    pthread_mutex_lock(&state->lock);
    must_cuda(does == SQUARES ? mesh_nccl__put_squares(state, state->world.c, &part, 1, sums)
              : does == SCALE ? mesh_nccl__put_scale(state, state->world.c, &part, 1, divisor)
                              : mesh_nccl__combine(state, state->world.c, MESH_SUM, (int)dtype, rows, NULL, dense, NULL,
                                                   part.count, does == DIVIDE ? divisor : 0));
    pthread_mutex_unlock(&state->lock);
}
/* A copy that reads and writes as much in all. */
static void copy_as_much(const contest *c) {
    size_t nbytes = c->count / 2 * (size_t)passes[kernels[c->kind].work];
    must(mesh_nccl__fence(&gpu.base, NULL, stream, MESH_FENCE_ON));
    pthread_mutex_lock(&state->lock);
    must_cuda(lib.cudaMemcpyAsync(rows + 2 * c->count, rows, nbytes, cudaMemcpyDefault, state->world.c->on));
    pthread_mutex_unlock(&state->lock);
}

static double squares_differ(mesh_dtype dtype, const unsigned char *host, size_t nbytes) {
    double want[MESH__NORM_SUMS] = {0, 0, 0}, got[MESH__NORM_SUMS], off;
    must(mesh_copy(&comm, got, sums, sizeof got));
    mesh__run_squares(dtype, host, (int64_t)(nbytes / mesh_dtype_bytes(dtype)), want);
    off = mesh__norm_of(got) / mesh__norm_of(want) - 1;
    return off > 1e-12 || off < -1e-12 || off != off;
}

/* What the CPU makes of the same bytes: in every dtype neither a NaN nor a subnormal number, which divisions are slower for. */
static double check_kernel(const contest *c, unsigned char *host) {
    mesh_dtype dtype = kernels[c->kind].dtype;
    work does = kernels[c->kind].work;
    unsigned char *more = host + c->count, *got = more + c->count;
    size_t i, count = c->count / mesh_dtype_bytes(dtype);
    double wrong = 0;
    for (i = 0; i < 2 * c->count; i++) host[i] = (unsigned char)((i * 2654435761u >> 13 & 0x0f) | 0x30);
    must(mesh_copy(&comm, rows, host, c->count));
    must(mesh_copy(&comm, dense, more, c->count));
    divisor = 3;
    run_kernel(c);
    divisor = 1;
    if (does == SQUARES) wrong = squares_differ(dtype, host, c->count);
    must(mesh_copy(&comm, got, rows, c->count));
    if (does == DIVIDE) mesh__divide((int)dtype, host, count, 3);
    if (does == SUM) mesh__reduce(MESH_SUM, (int)dtype, host, more, count);
    if (does == SCALE) mesh__run_scale(dtype, host, (int64_t)count, 3);
    for (i = 0; i < c->count; i++) wrong += host[i] != got[i];
    slowest(&wrong, 1);
    return wrong;
}

static int measure_kernels(size_t total) {
    unsigned char *host = (unsigned char *)malloc(3 * total);
    size_t k;
    int bad = 0;
    if (!host) stop("no memory", NULL);
    must(mesh_alloc(comm.transport, 4 * total, (void **)&rows, &comm.error));
    must(mesh_alloc(comm.transport, MESH_SQUARES_BYTES, &sums, &comm.error));
    dense = rows + total;
    heading("kernels");
    for (k = 0; k < sizeof kernels / sizeof *kernels && state->has_kernels; k++) {
        work does = kernels[k].work;
        double us[FIGURES], wrong;
        contest c = MESH_ZERO;
        c.run = run_kernel;
        c.rival = copy_as_much;
        c.kind = (int)k;
        c.count = total;
        wrong = check_kernel(&c, host);
        bad |= wrong > 0;
        if (!only_check) measure(&c, us);
        row("kernels", total, total / mesh_dtype_bytes(kernels[k].dtype), mesh_dtype_name(kernels[k].dtype),
            works[does], only_check ? NULL : us, passes[does], wrong);
    }
    if (me == 0 && !state->has_kernels) printf("no kernels: %s\n", state->no_kernels);
    must(mesh_free(comm.transport, rows, &comm.error));
    must(mesh_free(comm.transport, sums, &comm.error));
    free(host);
    return bad;
}

/* ---- the baseline's life ---- */

static void raw_register(known as, size_t nbytes, void **handle) {
    ncclResult_t (*window)(ncclComm_t, void *, size_t, void **, int);
    void *found = dlsym(state->nccl_library, "ncclCommWindowRegister");
    memcpy(&window, &found, sizeof window);
    if (as == WINDOW && (!window || gpu.nccl_version < 22700)) stop("--raw window", "NCCL has that from 2.27 on");
    if (as == REGISTERED && !lib.ncclCommRegister) stop("--raw registered", "NCCL has that from 2.19 on");
    if (as == WINDOW) must_nccl(window(raw, word, nbytes, handle, 1)); /* NCCL_WIN_COLL_SYMMETRIC */
    if (as == REGISTERED) must_nccl(lib.ncclCommRegister(raw, word, nbytes, handle));
}

/* A communicator over the same ranks, and memory as mesh_alloc gives it. NCCL has no deadline here: the alarm is it. */
static void raw_open(const setup *s, void **handle) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    size_t nbytes = WORD_BYTES + 2 * s->max;
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    if (me == 0) {
        must_nccl(lib.ncclGetUniqueId(&id));
        tell(&id, sizeof id);
    }
    hear(&id, sizeof id);
    must_nccl(lib.ncclCommInitRankConfig(&raw, n, id, me, &config));
    if (lib.ncclMemAlloc)
        must_nccl(lib.ncclMemAlloc(&word, nbytes));
    else
        must_cuda(lib.cudaMalloc(&word, nbytes));
    raw_register(s->as, nbytes, handle);
    sends = (float *)word + WORD_BYTES / sizeof(float);
    receives = sends + s->max / sizeof(float);
}

static void raw_close(known as, void *handle) {
    ncclResult_t (*window)(ncclComm_t, void *);
    void *found = dlsym(state->nccl_library, "ncclCommWindowDeregister");
    memcpy(&window, &found, sizeof window);
    if (as == WINDOW && window) must_nccl(window(raw, handle));
    if (as == REGISTERED) must_nccl(lib.ncclCommDeregister(raw, handle));
    must_nccl(lib.ncclCommDestroy(raw));
    if (lib.ncclMemAlloc)
        must_nccl(lib.ncclMemFree(word));
    else
        must_cuda(lib.cudaFree(word));
}

/* What CUDA and the transport have for this rank. */
static void prepare(void) {
    void *found = dlsym(state->cuda_library, "cudaEventElapsedTime");
    if (!found) stop("libcudart has no cudaEventElapsedTime", NULL);
    memcpy(&elapsed, &found, sizeof found);
    must_cuda(lib.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    must_cuda(lib.cudaEventCreateWithFlags(&begin, cudaEventDefault));
    must_cuda(lib.cudaEventCreateWithFlags(&end, cudaEventDefault));
    must_cuda(lib.cudaEventCreateWithFlags(&over, cudaEventDefault));
}

static int run_baseline(int fd) {
    static mesh_nccl__state own; /* for its table of functions */
    static mesh_transport rank_of;
    mesh_nccl_desc desc = MESH_ZERO;
    mesh_error err;
    setup s;
    turn t;
    outcome o;
    contest c = MESH_ZERO;
    void *handle = NULL;
    float *host;
    size_t i;
    is_baseline = 1;
    beside = fd;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    signal(SIGPIPE, SIG_IGN);
    if (!move_all(fd, &s, sizeof s, 0)) return 0; /* nothing to compare with */
    me = rank_of.rank = s.rank;
    n = s.size;
    state = &own;
    own.boot = &rank_of;
    own.n = &gpu;
    if (*s.nccl) desc.nccl_library = s.nccl;
    if (*s.cudart) desc.cudart_library = s.cudart;
    if (mesh_nccl__load(&own, &desc, &err)) stop(err.text, NULL);
    lib = own.api;
    must_cuda(lib.cudaSetDevice(s.device));
    prepare();
    alarm(120);
    raw_open(&s, &handle);
    if (!(host = (float *)malloc(s.max))) stop("no memory", NULL);
    for (i = 0; i < s.max / sizeof(float); i++) host[i] = sent(me, i);
    must_cuda(lib.cudaMemcpyAsync(sends, host, s.max, cudaMemcpyDefault, stream));
    must_cuda(lib.cudaMemsetAsync(word, 0, WORD_BYTES, stream));
    finish();
    c.run = raw_call;
    memset(&o, 0, sizeof o);
    for (;;) {
        alarm(0);
        tell(&o, sizeof o);                           /* the first says that it is ready */
        if (!move_all(fd, &t, sizeof t, 0)) return 1; /* the rank has ended, and has said why */
        alarm(120);
        if (t.what == END) break;
        memset(&o, 0, sizeof o);
        c.kind = t.kind;
        c.count = t.count;
        if (t.what == CHECK) o.wrong = count_wrong(&c, host);
        if (t.what == TIME_CALLS) run_batch(raw_call, &c, o.us);
        if (t.what == TIME_HOST) o.us[HOST] = batch(RAW);
        finish();
    }
    raw_close(s.as, handle);
    free(host);
    return 0;
}

/* ---- // >>main ---- */

typedef struct options {
    const char *what, *csv;
    size_t max;
    known as;
    mesh_nccl_desc desc;
} options;

static int usage(void) {
    return fprintf(
               stderr,
               "bench_gpu [--what calls,host,packing,kernels] [--max 256M] [--rounds 1..%d] [--csv FILE] [--no-watchdog]\n"
               "          [--shared] [--raw plain|registered|window]\n"
               "  --shared  ranks share GPUs (mesh run --share-gpu): results are checked, nothing is compared\n"
               "  --raw     how NCCL knows raw NCCL's memory: not at all (the default), ncclCommRegister, a symmetric window\n",
               MAX_ROUNDS),
           2;
}

/* "64K", "16M": the largest size to measure. 0: not a size. */
static size_t size_of(const char *text) {
    char *rest;
    size_t size = (size_t)strtoull(text, &rest, 10);
    if (*rest == 'K' || *rest == 'M') size <<= *rest++ == 'K' ? 10 : 20;
    return *rest || size < 1024 ? 0 : size - size % 1024;
}

static int parse(options *o, int argc, char **argv) {
    int i;
    memset(o, 0, sizeof *o);
    o->what = "calls,host,packing,kernels";
    o->max = SIZE_MAX;
    for (i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--no-watchdog"))
            o->desc.no_watchdog = 1;
        else if (!strcmp(argv[i], "--shared"))
            only_check = 1;
        else if (value && !strcmp(argv[i], "--what"))
            o->what = value, i++;
        else if (value && !strcmp(argv[i], "--max"))
            o->max = size_of(value), i++;
        else if (value && !strcmp(argv[i], "--rounds"))
            rounds = atoi(value), i++;
        else if (value && !strcmp(argv[i], "--csv"))
            o->csv = value, i++;
        else if (value && !strcmp(argv[i], "--raw")) {
            for (o->as = PLAIN; o->as < WAYS && strcmp(value, known_as[o->as]); o->as = (known)(o->as + 1)) {}
            i++;
        } else
            return 0;
    }
    return rounds >= 1 && rounds <= MAX_ROUNDS && o->max && o->as < WAYS;
}

/* Does any rank use another one's GPU? A GPU is its bus address on a running kernel, whatever a rank calls host or device. */
static int share_gpus(void) {
    cudaError_t (*bus_of)(char *text, int room, int device);
    void *found = dlsym(state->cuda_library, "cudaDeviceGetPCIBusId");
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    char name[128] = "";
    uint64_t hash = UINT64_C(14695981039346656037), *all = (uint64_t *)calloc((size_t)n, sizeof *all);
    int i, k, shared = 0;
    if (!all) stop("no memory", NULL);
    if (!f || !fgets(name, 64, f)) gethostname(name, 64);
    if (f) fclose(f);
    memcpy(&bus_of, &found, sizeof bus_of);
    if (!bus_of || bus_of(name + strlen(name), 32, gpu.device) != cudaSuccess)
        snprintf(name + strlen(name), 32, "%d", gpu.device);
    for (i = 0; name[i]; i++) hash = (hash ^ (unsigned char)name[i]) * UINT64_C(1099511628211); /* FNV-1a */
    must(mesh_copy(&comm, word, &hash, sizeof hash));
    must(mesh_all_gather(&comm, NULL, word, receives, sizeof hash, MESH_U8));
    must(mesh_copy(&comm, all, receives, (size_t)n * sizeof *all));
    for (i = 0; i < n; i++)
        for (k = 0; k < i; k++) shared |= all[i] == all[k];
    free(all);
    return shared;
}

/* Is there a ratio in what was asked for that would say nothing? Says so, and what to do. */
static int refuse(const options *o, int shared) {
    static const char for_correctness[] = "a ratio takes two GPUs or more, one for each rank. For correctness only:\n"
                                          "    make bench-gpu GPUS=2 BENCH=--shared        (build/mesh run --share-gpu "
                                          "-n 2 -- build/bench_gpu --shared)\n";
    int beside_nccl = strstr(o->what, "calls") || strstr(o->what, "host");
    if (only_check || (!shared && (n > 1 || !beside_nccl))) return 0;
    if (me) return 1;
    if (shared)
        fprintf(stderr,
                "bench_gpu: refused: ranks share a GPU. They take turns on it and talk through NCCL's sockets: their "
                "times say nothing of NCCL or of this library; %s",
                for_correctness);
    else
        fprintf(stderr,
                "bench_gpu: refused: one rank. A group of one has no communicator, its calls are copies, and NCCL "
                "with one rank is no measure for them; %s    build/bench_gpu --what packing"
                "                      what one GPU alone can answer: kernels beside 2-D copies\n",
                for_correctness);
    return 1;
}

/* Tell the baseline where it is; its communicator's id goes from rank 0's to all. */
static void baseline_join(const options *o) {
    const char *nccl = getenv("MESH_NCCL_LIBRARY"), *cudart = getenv("MESH_CUDART_LIBRARY");
    ncclUniqueId id;
    outcome ready;
    setup s;
    memset(&s, 0, sizeof s);
    memset(&id, 0, sizeof id);
    s.rank = me, s.size = n, s.device = gpu.device, s.as = o->as, s.max = o->max;
    snprintf(s.nccl, sizeof s.nccl, "%s", nccl ? nccl : "");
    snprintf(s.cudart, sizeof s.cudart, "%s", cudart ? cudart : "");
    tell(&s, sizeof s);
    if (me == 0) hear(&id, sizeof id);
    must(mesh_copy(&comm, word, &id, sizeof id));
    must(mesh_broadcast(&comm, NULL, word, word, sizeof id, MESH_U8, 0));
    must(mesh_copy(&comm, &id, word, sizeof id));
    tell(&id, sizeof id);
    hear(&ready, sizeof ready);
}

/* Returns 1 if it did not end well. */
static int baseline_end(int joined) {
    turn t;
    int status;
    memset(&t, 0, sizeof t);
    t.what = END;
    if (joined) tell(&t, sizeof t);
    close(beside);
    while (waitpid(baseline, &status, 0) < 0 && errno == EINTR) {}
    return status != 0;
}

static void head(const options *o, int fake) {
    if (o->csv && !(csv = fopen(o->csv, "w"))) stop("cannot write", o->csv);
    if (csv)
        fprintf(csv,
                "what,ranks,size,count,type,op,time_us,algbw,busbw,host_us,raw_us,raw_busbw,raw_host_us,ratio,wrong\n");
    printf("# %d %s%s, NCCL %d.%d.%d, CUDA %d.%d; ", n, only_check ? "rank" : "GPU", n > 1 ? "s" : "",
           gpu.nccl_version / 10000, gpu.nccl_version / 100 % 100, gpu.nccl_version % 100, gpu.cuda_version / 1000,
           gpu.cuda_version / 10 % 100);
    if (only_check)
        printf("results only: nothing is timed beside NCCL, for ranks may share a GPU\n");
    else
        printf("%d rounds of %d calls, the slowest rank's medians\n", rounds, INNER);
    if (baseline)
        printf("# raw NCCL in a process of its own; its memory: %s, ours: %s\n", known_as[o->as],
               registered ? "mesh_register" : "plain");
    if (fake) printf("# on fake NCCL: these figures say nothing about a GPU\n");
}

static void open_all(options *o) {
    mesh_comm_desc comm_desc = MESH_ZERO;
    mesh_error err;
    mesh m;
    mesh_status status = mesh_socket_open(&net, NULL, &err);
    if (status == MESH_OK) status = mesh_nccl_open(&gpu, &net.base, &o->desc, &err);
    if (status != MESH_OK) {
        me = net.base.rank;
        stop(err.text, status == MESH_ERR_UNSUPPORTED || only_check || net.base.size == 1
                           ? NULL
                           : "(ranks that share a GPU need mesh run --share-gpu and bench_gpu --shared)");
    }
    state = mesh_nccl__of(&gpu.base);
    lib = state->api;
    me = gpu.base.rank;
    n = gpu.base.size;
    if (o->max == SIZE_MAX)
        o->max = (size_t)(dlsym(state->cuda_library, "fake_counts") ? 4 : only_check ? 64 : 256) << 20;
    prepare();
    comm_desc.stream = stream;
    comm_desc.timeout_ns = INT64_C(120000000000);
    if (mesh_parse(&m, "x=-1", n, &err) || mesh_comm_open(&comm, &gpu.base, &m, &comm_desc, &err)) stop(err.text, NULL);
    must(mesh_alloc(comm.transport, WORD_BYTES + 2 * o->max, &word, &comm.error));
    if (o->as != PLAIN) must(mesh_register(&comm, word, WORD_BYTES + 2 * o->max, &registered));
    sends = (float *)word + WORD_BYTES / sizeof(float);
    receives = sends + o->max / sizeof(float);
}

static void close_all(void) {
    must(mesh_unregister(&comm, registered));
    must(mesh_free(comm.transport, word, &comm.error));
    mesh_comm_close(&comm);
    lib.cudaEventDestroy(begin);
    lib.cudaEventDestroy(end);
    lib.cudaEventDestroy(over);
    lib.cudaStreamDestroy(stream);
    mesh_nccl_close(&gpu);
    mesh_socket_close(&net);
}

int main(int argc, char **argv) {
    options o;
    int fake, beside_nccl, refused, bad = 0;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (argc == 3 && !strcmp(argv[1], "--baseline")) return run_baseline(atoi(argv[2]));
    if (!parse(&o, argc, argv)) return usage();
    beside_nccl = strstr(o.what, "calls") || strstr(o.what, "host");
    if (beside_nccl) baseline_start();
    open_all(&o);
    fake = dlsym(state->cuda_library, "fake_counts") != NULL;
    refused = refuse(&o, share_gpus());
    if (beside_nccl && !refused) baseline_join(&o);
    if (me == 0 && !refused) head(&o, fake);
    if (strstr(o.what, "calls") && !refused) bad |= measure_calls(o.max);
    if (strstr(o.what, "host") && !refused) measure_host();
    if (strstr(o.what, "packing") && !refused) bad |= measure_packing((size_t)(fake ? 1 : 16) << 20);
    if (strstr(o.what, "packing") && !refused && !fake && !only_check)
        bad |= measure_packing((size_t)128 << 20); /* not in a cache */
    if (strstr(o.what, "kernels") && !refused) bad |= measure_kernels((size_t)(fake ? 1 : 128) << 20);
    if (bad && me == 0) printf("some results are wrong\n");
    if (csv) fclose(csv);
    if (beside_nccl) bad |= baseline_end(!refused);
    close_all();
    return refused ? 2 : bad;
}
