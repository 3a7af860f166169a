/* What this library adds to NCCL: its calls beside NCCL's own, in one process, on one stream, in turns. One rank per GPU:
       build/mesh run -n 8 -- build/bench_gpu [--what calls,host,packing] [--max 256M] [--rounds 7] [--csv FILE] [--no-watchdog]
   calls    each call of this library beside the same one of NCCL ("raw"), in the columns of nccl-tests; medians, of the slowest rank.
            `time` is the device's, between two events with 20 calls between them; `host` the host's while it enqueues those.
   host     what a call of one element costs the host, beside the bare ncclAllReduce; and the library alone: the same with functions
            that do nothing in the place of NCCL's and CUDA's.
   packing  rows, twice as far apart as they are wide (`count` bytes), to one piece and back: the kernel beside cudaMemcpy2DAsync
            ("raw"), whatever their width, for MESH_NCCL__NARROW.
   ratio is raw us / time us: 1.00 is as fast, above it we are faster. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "../transports/mesh_nccl.h"
#include <stdio.h>
#include <unistd.h>

enum { INNER = 20, MAX_ROUNDS = 999, BATCH = 256, WORD_BYTES = 65536 };

static mesh_socket net;
static mesh_nccl gpu;
static mesh_comm comm;
static mesh_nccl__state *state;
static mesh_nccl__api lib; /* the same functions as the transport's */
static ncclComm_t raw;
static cudaStream_t stream;
static cudaEvent_t begin, end;
static cudaError_t (*elapsed)(float *ms, cudaEvent_t from, cudaEvent_t to);
static float *sends, *receives;     /* of the device, as are the next */
static unsigned char *rows, *dense; /* of packing */
static void *word;
static int me, n, rounds = 7;
static FILE *csv;

/* ---- what goes wrong ends the job ---- */

static void stop(const char *what, const char *why) {
    fprintf(stderr, "bench_gpu: rank %d: %s%s%s\n", me, what, why ? ": " : "", why ? why : "");
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

/* ---- one contest: two ways to do one thing ---- */

typedef struct contest {
    void (*run)(const struct contest *c, int is_raw);
    int kind;         /* a call; pack (0) or unpack (1) */
    size_t count;     /* elements of a call, bytes of a copy */
    mesh_block block; /* the rows */
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

/* Wait, to the comm's deadline, for whatever is on the stream, and for the other ranks. */
static void settle(void) {
    char byte;
    if (n == 1) must(mesh_copy(&comm, &byte, word, 1)); /* a barrier of one does not wait for the stream */
    must(mesh_barrier(&comm, NULL));
    must(mesh_comm_sync(&comm));
}

static void measure(const contest *c, double us[FIGURES]) {
    static double sample[FIGURES][MAX_ROUNDS];
    int round, k, i;
    for (round = 0; round < rounds; round++)
        for (k = 0; k < 2; k++) {
            int is_raw = (k + round) & 1; /* who begins changes */
            int64_t start;
            float ms;
            settle();
            c->run(c, is_raw); /* its end brings the ranks' devices together */
            must_cuda(lib.cudaEventRecord(begin, stream));
            start = mesh_socket__clock();
            for (i = 0; i < INNER; i++) c->run(c, is_raw);
            sample[2 * is_raw + HOST][round] = (double)(mesh_socket__clock() - start) * 1e-3 / INNER;
            must_cuda(lib.cudaEventRecord(end, stream));
            settle();
            must_cuda(elapsed(&ms, begin, end));
            sample[2 * is_raw + TIME][round] = (double)ms * 1e3 / INNER;
        }
    for (k = 0; k < FIGURES; k++) {
        slowest(sample[k], (size_t)rounds);
        us[k] = median(sample[k], rounds);
    }
}

static void heading(const char *name) {
    if (me == 0)
        printf("\n# %s\n%12s %12s %5s %6s %10s %8s %8s %8s %10s %8s %8s %6s %7s\n", name, "size", "count", "type", "op",
               "time us", "algbw", "busbw", "host us", "raw us", "raw bus", "raw host", "ratio", "#wrong");
}

/* One line of a table. `bus` is what busbw is of algbw. */
static void row(const char *what, size_t bytes, size_t count, const char *type, const char *op,
                const double us[FIGURES], double bus, double wrong) {
    double bw = us[TIME] > 0 ? (double)bytes / us[TIME] * 1e-3 : 0;
    double raw_bw = us[RAW_TIME] > 0 ? (double)bytes / us[RAW_TIME] * 1e-3 : 0;
    double ratio = us[TIME] > 0 ? us[RAW_TIME] / us[TIME] : 0;
    if (me == 0 && us[TIME] > 0)
        printf("%12zu %12zu %5s %6s %10.2f %8.2f %8.2f %8.2f %10.2f %8.2f %8.2f %6.2f %7.0f\n", bytes, count, type, op,
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

static void run_call(const contest *c, int is_raw) {
    int k = c->kind;
    size_t count = c->count;
    if (is_raw)
        must_nccl(
            k == ALL_REDUCE       ? lib.ncclAllReduce(sends, receives, count, ncclFloat32, ncclSum, raw, stream)
            : k == ALL_GATHER     ? lib.ncclAllGather(sends, receives, count, ncclFloat32, raw, stream)
            : k == REDUCE_SCATTER ? lib.ncclReduceScatter(sends, receives, count, ncclFloat32, ncclSum, raw, stream)
            : k == BROADCAST      ? lib.ncclBroadcast(sends, receives, count, ncclFloat32, 0, raw, stream)
            : k == ALL_TO_ALL && lib.ncclAlltoAll ? lib.ncclAlltoAll(sends, receives, count, ncclFloat32, raw, stream)
                                                  : run_messages(k == SENDRECV, count));
    else
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

/* One call each way, which also connects the ranks. Returns how many elements of a rank are not as they should be. */
static double check_call(const contest *c, float *host) {
    size_t i, total = c->kind == ALL_GATHER || c->kind == ALL_TO_ALL ? c->count * (size_t)n : c->count;
    double wrong = 0;
    int is_raw;
    for (is_raw = 0; is_raw < 2; is_raw++) {
        must_cuda(lib.cudaMemsetAsync(receives, 0xee, total * sizeof(float), stream));
        c->run(c, is_raw);
        must(mesh_copy(&comm, host, receives, total * sizeof(float)));
        for (i = 0; i < total; i++) wrong += host[i] != expected(c->kind, c->count, i);
    }
    slowest(&wrong, 1);
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
    c.run = run_call;
    for (c.kind = 0; c.kind < CALLS; c.kind++) {
        int one = c.kind == BROADCAST || c.kind == SENDRECV, twice = c.kind == ALL_REDUCE, parts = one || twice ? 1 : n;
        heading(names[c.kind]);
        for (size = 1024; size <= max; size *= 4) {
            double us[FIGURES], wrong;
            c.count = size / sizeof(float) / (size_t)parts;
            if (!c.count) continue;
            wrong = check_call(&c, host);
            bad |= wrong > 0;
            measure(&c, us);
            row(names[c.kind], c.count * sizeof(float) * (size_t)parts, c.count, "f32",
                twice || c.kind == REDUCE_SCATTER ? "sum" : "none", us, one ? 1 : (1.0 + twice) * (n - 1) / n, wrong);
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
    double us[FORMS + 2], alone[2], f[FIGURES] = {0, 0, 0, 0};
    mesh_nccl__api none = lib;
    int i, k;
    must_cuda(lib.cudaMemsetAsync(word, 0, WORD_BYTES, stream));
    for (i = 0; i < SOME; i++)
        for (k = 0; k < FORMS; k++) {
            settle();
            sample[(i + k) % FORMS][i] = batch((i + k) % FORMS);
        }
    settle();
    for (k = 0; k < FORMS; k++) us[k] = median(sample[k], SOME);
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

    if (me == 0)
        printf("\n# host time of an all_reduce of 1 f32: medians of %d batches of %d\n%12s %10s %10s %14s\n", SOME,
               BATCH, "", "us", "raw us", "us beyond raw");
    for (k = 0; k < 2; k++) {
        if (me == 0) printf("%12s %10.3f %10.3f %14.3f\n", names[k], us[k], us[RAW], us[FORMS + k]);
        f[HOST] = us[k], f[RAW_HOST] = us[RAW];
        row("host", 4, 1, "f32", names[k], f, 0, 0);
        f[HOST] = alone[k], f[RAW_HOST] = 0;
        row("alone", 4, 1, "f32", names[k], f, 0, 0);
    }
    if (me == 0)
        printf("the library alone: %.0f ns per blocking call, %.0f ns per start + wait\n", alone[0] * 1e3,
               alone[1] * 1e3);
}

/* ---- // >>packing ---- */

/* As mesh_nccl__move does below MESH_NCCL__NARROW. */
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

static void run_copy(const contest *c, int is_raw) {
    const mesh_block *db = c->kind ? &c->block : NULL, *sb = c->kind ? NULL : &c->block;
    void *dst = c->kind ? rows : dense, *src = c->kind ? dense : rows;
    must(mesh_nccl__fence(&gpu.base, NULL, stream, MESH_FENCE_ON));
    pthread_mutex_lock(&state->lock);
    must_cuda(is_raw ? mesh_nccl__copy_rows(state, state->world.c, dst, db, src, sb, c->count)
                     : move_by_kernel(dst, db, src, sb, c->count));
    pthread_mutex_unlock(&state->lock);
}

/* There and back, each way: the rows are as before, and what is between them is left. */
static double check_copies(contest c, uint32_t *host) {
    size_t i, words = c.count / 2, width = (size_t)c.block.run / 4;
    double wrong = 0;
    int is_raw;
    for (is_raw = 0; is_raw < 2; is_raw++) {
        for (i = 0; i < words; i++) host[i] = (uint32_t)i;
        must(mesh_copy(&comm, rows, host, 4 * words));
        for (c.kind = 0; c.kind < 2; c.kind++) {
            c.run(&c, is_raw);
            if (c.kind == 0) must_cuda(lib.cudaMemsetAsync(rows, 0xee, 4 * words, stream));
        }
        must(mesh_copy(&comm, host, rows, 4 * words));
        for (i = 0; i < words; i++) wrong += host[i] != (i / width % 2 ? 0xeeeeeeeeu : (uint32_t)i);
    }
    slowest(&wrong, 1);
    return wrong;
}

static int measure_packing(size_t total) {
    uint32_t *host = (uint32_t *)malloc(2 * total);
    size_t width, narrow[2] = {0, 0};
    int bad = 0, leads[2] = {1, 1};
    contest c = MESH_ZERO;
    if (!host) stop("no memory", NULL);
    must(mesh_alloc(&comm, 3 * total, (void **)&rows));
    dense = rows + 2 * total;
    c.run = run_copy;
    c.count = total;
    c.block.ndim = 1;
    heading("packing");
    for (width = 4; width <= 65536 && state->has_kernels; width *= 4) {
        double us[FIGURES], wrong;
        c.block.run = width;
        c.block.dim[0].count = (int64_t)(total / width);
        c.block.dim[0].stride = (int64_t)(2 * width);
        wrong = check_copies(c, host);
        bad |= wrong > 0;
        for (c.kind = 0; c.kind < 2; c.kind++) {
            measure(&c, us);
            leads[c.kind] &= us[TIME] < us[RAW_TIME];
            if (leads[c.kind]) narrow[c.kind] = width;
            row("packing", total, width, "u8", c.kind ? "unpack" : "pack", us, 1, wrong);
        }
    }
    if (me == 0 && state->has_kernels)
        printf("the kernel is faster up to rows of %zu bytes (pack) and %zu (unpack); MESH_NCCL__NARROW is %d\n",
               narrow[0], narrow[1], (int)MESH_NCCL__NARROW);
    else if (me == 0)
        printf("no kernels: %s\n", state->no_kernels);
    must(mesh_free(&comm, rows));
    free(host);
    return bad;
}

/* ---- // >>main ---- */

static int usage(void) {
    return fprintf(stderr,
                   "bench_gpu [--what calls,host,packing] [--max 256M] [--rounds 1..%d] [--csv FILE] [--no-watchdog]\n",
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

/* A communicator of NCCL's own over the same ranks, the same memory known to it. NCCL has no deadline here: the alarm is it. */
static void raw_open(size_t nbytes, void **handle) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    if (me == 0) must_nccl(lib.ncclGetUniqueId(&id));
    must(mesh_copy(&comm, word, &id, sizeof id));
    must(mesh_broadcast(&comm, NULL, word, word, sizeof id, MESH_U8, 0));
    must(mesh_copy(&comm, &id, word, sizeof id));
    alarm(120);
    must_nccl(lib.ncclCommInitRankConfig(&raw, n, id, me, &config));
    if (lib.ncclCommRegister && lib.ncclCommDeregister) must_nccl(lib.ncclCommRegister(raw, word, nbytes, handle));
    alarm(0);
}

static void raw_close(void *handle) {
    settle();
    alarm(120);
    if (handle) must_nccl(lib.ncclCommDeregister(raw, handle));
    must_nccl(lib.ncclCommDestroy(raw));
    alarm(0);
}

/* What CUDA and the transport have for this rank. */
static void prepare(void) {
    void *found = dlsym(state->cuda_library, "cudaEventElapsedTime");
    if (!found) stop("libcudart has no cudaEventElapsedTime", NULL);
    memcpy(&elapsed, &found, sizeof found);
    must_cuda(lib.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    must_cuda(lib.cudaEventCreateWithFlags(&begin, cudaEventDefault));
    must_cuda(lib.cudaEventCreateWithFlags(&end, cudaEventDefault));
}

static void head(const char *path, int fake) {
    if (path && !(csv = fopen(path, "w"))) stop("cannot write", path);
    if (csv)
        fprintf(csv,
                "what,ranks,size,count,type,op,time_us,algbw,busbw,host_us,raw_us,raw_busbw,raw_host_us,ratio,wrong\n");
    printf("# %d GPUs, NCCL %d.%d.%d, CUDA %d.%d; %d rounds of %d calls, the slowest rank's medians\n", n,
           gpu.nccl_version / 10000, gpu.nccl_version / 100 % 100, gpu.nccl_version % 100, gpu.cuda_version / 1000,
           gpu.cuda_version / 10 % 100, rounds, INNER);
    if (fake) printf("# on fake NCCL: these figures say nothing about a GPU\n");
    if (n == 1) printf("# one rank: a group of one has no communicator; its calls are copies\n");
}

int main(int argc, char **argv) {
    const char *what = "calls,host,packing", *path = NULL;
    mesh_nccl_desc desc = MESH_ZERO;
    mesh_comm_desc comm_desc = MESH_ZERO;
    mesh_error err;
    mesh m;
    void *handle = NULL;
    size_t max = SIZE_MAX;
    int i, fake, bad = 0;
    for (i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--no-watchdog"))
            desc.no_watchdog = 1;
        else if (value && !strcmp(argv[i], "--what"))
            what = value, i++;
        else if (value && !strcmp(argv[i], "--max"))
            max = size_of(value), i++;
        else if (value && !strcmp(argv[i], "--rounds"))
            rounds = atoi(value), i++;
        else if (value && !strcmp(argv[i], "--csv"))
            path = value, i++;
        else
            return usage();
    }
    if (rounds < 1 || rounds > MAX_ROUNDS || !max) return usage();
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (mesh_socket_open(&net, NULL, &err) || mesh_nccl_open(&gpu, &net.base, &desc, &err)) stop(err.text, NULL);
    state = mesh_nccl__of(&gpu.base);
    lib = state->api;
    me = gpu.base.rank;
    n = gpu.base.size;
    fake = dlsym(state->cuda_library, "fake_counts") != NULL;
    if (max == SIZE_MAX) max = (size_t)(fake ? 4 : 256) << 20;
    prepare();
    comm_desc.stream = stream;
    comm_desc.timeout_ns = INT64_C(120000000000);
    if (mesh_parse(&m, "x=-1", n, &err) || mesh_comm_open(&comm, &gpu.base, &m, &comm_desc, &err)) stop(err.text, NULL);
    must(mesh_alloc(&comm, WORD_BYTES + 2 * max, &word));
    sends = (float *)word + WORD_BYTES / sizeof(float);
    receives = sends + max / sizeof(float);
    raw_open(WORD_BYTES + 2 * max, &handle);
    if (me == 0) head(path, fake);
    if (strstr(what, "calls")) bad |= measure_calls(max);
    if (strstr(what, "host")) measure_host();
    if (strstr(what, "packing")) bad |= measure_packing((size_t)(fake ? 1 : 16) << 20);
    if (bad && me == 0) printf("some results are wrong\n");
    if (csv) fclose(csv);
    raw_close(handle);
    must(mesh_free(&comm, word));
    mesh_comm_close(&comm);
    lib.cudaEventDestroy(begin);
    lib.cudaEventDestroy(end);
    lib.cudaStreamDestroy(stream);
    mesh_nccl_close(&gpu);
    mesh_socket_close(&net);
    return bad;
}
