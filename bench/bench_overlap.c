/* What buckets are for: the gradients of a backward pass, layer by layer, summed over all ranks while the next layer is computed. Beside it what the
   computing alone and the transfer alone take, and one after the other. bench/overlap.sh runs it over a link of 1 Gbit/s.
       mesh run -n 2 -- build/bench_overlap [LAYERS [KIB_OF_A_LAYER [ROUNDS [PERCENT]]]]
   Compute is arithmetic on this rank's own memory: it takes PERCENT of what the transfer takes (100). A row per way: median of the wall clock's ms,
   that against the greater of compute and transfer, and the processor's ms of this rank (its threads; not what the kernel does for the link). */
#define MESH_IMPLEMENTATION
#include "../mesh_parallel.h"
#include "../transports/mesh_socket.h"
#include <stdio.h>
#include <time.h>

enum { MOST_LAYERS = 64, MOST_ROUNDS = 101, CALIBRATIONS = 5, WAYS = 4 };

static mesh_comm comm;
static mesh_buckets buckets;
static int layers = 32, kib = 2048, rounds = 15, percent = 100;
static int64_t work; /* passes over a layer's memory */
static float *memory;
static double processor_ms[WAYS];

static void must(mesh_status status) {
    if (status == MESH_OK) return;
    fprintf(stderr, "bench_overlap: %s\n", comm.error.text);
    exit(1);
}

static void compute(void) {
    int64_t pass;
    int i;
    for (pass = 0; pass < work; pass++)
        for (i = 0; i < 4096; i++) memory[i] = memory[i] * 0.999f + 0.001f;
}

static const char *const way_names[WAYS] = {"compute", "transfer", "one after the other", "buckets"};

/* A backward pass; ns. */
static int64_t pass(int way) {
    int64_t begin;
    clock_t worked;
    int k;
    must(mesh_barrier(&comm, NULL));
    begin = mesh_now(comm.transport);
    worked = clock();
    for (k = 0; k < layers; k++) {
        if (way != 1) compute();
        if (way == 3) must(mesh_buckets_ready(&buckets, k));
    }
    for (k = 0; k < layers && (way == 1 || way == 2); k++) must(mesh_buckets_ready(&buckets, k));
    if (way) must(mesh_buckets_wait(&buckets, -1));
    processor_ms[way] += (double)(clock() - worked) * 1e3 / CLOCKS_PER_SEC;
    return mesh_now(comm.transport) - begin;
}

static int order(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double median_ms(int64_t *ns, int n) {
    qsort(ns, (size_t)n, sizeof *ns, order);
    return (double)ns[n / 2] / 1e6;
}

static double several_ms(int way) {
    int64_t ns[CALIBRATIONS];
    int i;
    for (i = 0; i < CALIBRATIONS; i++) ns[i] = pass(way);
    return median_ms(ns, CALIBRATIONS);
}

/* As much work as takes percent of what the transfer takes: rank 0's word counts. */
static void calibrate(void) {
    double transfer;
    int i;
    pass(1); /* connections open, windows grow */
    transfer = several_ms(1);
    work = 64;
    for (i = 0; i < 3; i++) {
        work = 1 + (int64_t)((double)work * transfer * percent / 100 / several_ms(0));
        must(mesh_broadcast(&comm, NULL, &work, &work, 1, MESH_I64, 0));
    }
}

int main(int argc, char **argv) {
    static int64_t ns[WAYS][MOST_ROUNDS];
    mesh_tensor src[MOST_LAYERS], dst[MOST_LAYERS];
    int bucket[MOST_LAYERS], i, k;
    double ms[WAYS], bound;
    int64_t shape[1];
    mesh_buckets_desc desc = MESH_ZERO;
    mesh_socket net;
    mesh_error err;
    mesh m;
    if (argc > 1) layers = atoi(argv[1]);
    if (argc > 2) kib = atoi(argv[2]);
    if (argc > 3) rounds = atoi(argv[3]);
    if (argc > 4) percent = atoi(argv[4]);
    if (layers < 1 || layers > MOST_LAYERS || kib < 1 || rounds < 1 || rounds > MOST_ROUNDS ||
        percent < 1)
        return fprintf(stderr, "usage: bench_overlap [LAYERS 1..64 [KIB_OF_A_LAYER [ROUNDS 1..101 [PERCENT]]]]\n"), 2;
    if (mesh_socket_open(&net, NULL, &err) || mesh_parse(&m, "dp=-1", mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return fprintf(stderr, "bench_overlap: %s\n", err.text), 1;
    shape[0] = (int64_t)kib * 256;
    memory = (float *)calloc(4096 + (size_t)layers * (size_t)shape[0], sizeof *memory);
    if (!memory) return fprintf(stderr, "bench_overlap: out of memory\n"), 1;
    for (k = 0; k < layers; k++) {
        if (mesh_tensor_make(&src[k], &m, "dp:P(sum)", MESH_F32, 1, shape, &err) ||
            mesh_tensor_make(&dst[k], &m, "dp:I", MESH_F32, 1, shape, &err))
            return fprintf(stderr, "bench_overlap: %s\n", err.text), 1;
        src[k].data = dst[k].data = memory + 4096 + (size_t)k * (size_t)shape[0];
        bucket[k] = k;
    }
    desc.bucket = bucket;
    must(mesh_buckets_open(&buckets, &comm, src, dst, layers, &desc));
    calibrate();
    memset(processor_ms, 0, sizeof processor_ms);
    for (i = 0; i < rounds; i++)
        for (k = 0; k < WAYS; k++) ns[k][i] = pass(k);
    for (k = 0; k < WAYS; k++) ms[k] = median_ms(ns[k], rounds);
    bound = ms[0] > ms[1] ? ms[0] : ms[1];
    if (net.base.rank == 0) {
        printf("| compute %d %% of the transfer | ms | x the greater | processor, ms |\n|---|---|---|---|\n", percent);
        for (k = 0; k < WAYS; k++)
            printf("| %s | %.0f | %.2f | %.0f |\n", way_names[k], ms[k], ms[k] / bound, processor_ms[k] / rounds);
    }
    mesh_buckets_close(&buckets);
    mesh_comm_close(&comm);
    mesh_socket_close(&net);
    free(memory);
    return 0;
}
