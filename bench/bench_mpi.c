/* Collectives over MPI, by our schedules and by MPI's own (MESH_MPI_NATIVE=1), beside MPI_I... with MPI_Wait and beside the blocking ones, in turn in one
   program; medians of rounds, of the slowest rank, in us, and MPI_I...'s time over each. Bytes are of the whole. Also a matrix from rows to columns:
   mesh_redistribute beside MPI_Alltoallw with subarrays.
     mpicc -O3 -march=native -I. bench/bench_mpi.c -o build/bench_mpi && mpirun -n 2 build/bench_mpi [ROUNDS [matrices: those alone]] */
#define MESH_IMPLEMENTATION
#include "mesh.h"
#include "mesh_collectives.h"
#include "transports/mesh_mpi.h"
#include <stdio.h>
#include <stdlib.h>

enum { BARE, SCHEDULES, NATIVE, BLOCKING, WAYS, MOST_ROUNDS = 64 };
static const char *const way_names[] = {"MPI_I...", "schedules", "native", "MPI_..."};

static mesh_mpi net[2]; /* with our schedules, with MPI's collectives */
static mesh_comm comm[2];
static float *a, *b;
static int size;

enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, BARRIER, KINDS };
static const char *const kind_names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier"};

/* n floats: of the whole, where ranks have parts. */
static void call_mpi(int kind, int blocking, int n) {
    MPI_Comm c = MPI_COMM_WORLD;
    MPI_Request r = MPI_REQUEST_NULL;
    int each = n / size;
    switch (kind) {
    case ALL_REDUCE:
        blocking ? MPI_Allreduce(a, b, n, MPI_FLOAT, MPI_SUM, c) : MPI_Iallreduce(a, b, n, MPI_FLOAT, MPI_SUM, c, &r);
        break;
    case REDUCE_SCATTER:
        blocking ? MPI_Reduce_scatter_block(a, b, each, MPI_FLOAT, MPI_SUM, c) : MPI_Ireduce_scatter_block(a, b, each, MPI_FLOAT, MPI_SUM, c, &r);
        break;
    case ALL_GATHER:
        blocking ? MPI_Allgather(a, each, MPI_FLOAT, b, each, MPI_FLOAT, c) : MPI_Iallgather(a, each, MPI_FLOAT, b, each, MPI_FLOAT, c, &r);
        break;
    case ALL_TO_ALL:
        blocking ? MPI_Alltoall(a, each, MPI_FLOAT, b, each, MPI_FLOAT, c) : MPI_Ialltoall(a, each, MPI_FLOAT, b, each, MPI_FLOAT, c, &r);
        break;
    case BROADCAST:
        blocking ? MPI_Bcast(b, n, MPI_FLOAT, 0, c) : MPI_Ibcast(b, n, MPI_FLOAT, 0, c, &r);
        break;
    default:
        blocking ? MPI_Barrier(c) : MPI_Ibarrier(c, &r);
    }
    MPI_Wait(&r, MPI_STATUS_IGNORE);
}

static void call_mesh(int kind, mesh_comm *c, size_t n) {
    size_t each = n / (size_t)size;
    mesh_status status = kind == ALL_REDUCE       ? mesh_all_reduce(c, NULL, a, b, n, MESH_F32, MESH_SUM)
                         : kind == REDUCE_SCATTER ? mesh_reduce_scatter(c, NULL, a, b, each, MESH_F32, MESH_SUM)
                         : kind == ALL_GATHER     ? mesh_all_gather(c, NULL, a, b, each, MESH_F32)
                         : kind == ALL_TO_ALL     ? mesh_all_to_all(c, NULL, a, b, each, MESH_F32)
                         : kind == BROADCAST      ? mesh_broadcast(c, NULL, b, b, n, MESH_F32, 0)
                                                  : mesh_barrier(c, NULL);
    if (status) fprintf(stderr, "%s\n", c->error.text), exit(1);
}

static void call(int kind, int way, size_t n) {
    if (way == SCHEDULES || way == NATIVE)
        call_mesh(kind, &comm[way == NATIVE], n);
    else
        call_mpi(kind, way == BLOCKING, (int)n);
}

static int by_value(const void *p, const void *q) {
    double x = *(const double *)p, y = *(const double *)q;
    return (x > y) - (x < y);
}

static double slowest(double us) {
    double most;
    MPI_Allreduce(&us, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

static void collective(int kind, size_t bytes, int rounds, int rank) {
    double us[WAYS][MOST_ROUNDS];
    int calls = bytes <= 1024 ? 8000 : bytes <= 65536 ? 800 : bytes <= 1 << 20 ? 150 : bytes <= 16 << 20 ? 12 : 4, way, k, i;
    for (k = 0; k < rounds; k++)
        for (way = 0; way < WAYS; way++) {
            int which = (way + k) % WAYS;
            double start;
            call(kind, which, bytes / 4);
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
            for (i = 0; i < calls; i++) call(kind, which, bytes / 4);
            us[which][k] = slowest((MPI_Wtime() - start) / calls * 1e6);
        }
    for (way = 0; way < WAYS; way++) qsort(us[way], (size_t)rounds, sizeof(double), by_value);
    if (rank) return;
    printf("%-14s %9lu", kind_names[kind], (unsigned long)bytes);
    for (way = 0; way < WAYS; way++) {
        printf("  %s %9.2f", way_names[way], us[way][rounds / 2]);
        if (way) printf(" (%.2f)", us[BARE][rounds / 2] / us[way][rounds / 2]);
    }
    putchar('\n');
    fflush(stdout);
}

/* Rank r has side / n rows, then as many columns. MPI's datatypes are made ahead; so may be our request, which is kept. */
static void rows_to_columns(int side, int rounds, int rank, int n) {
    int *count = (int *)malloc((size_t)n * 2 * sizeof(int)), sizes[2], part[2], from[2], i, k, way;
    MPI_Datatype *send = (MPI_Datatype *)malloc((size_t)n * 2 * sizeof *send), *recv = send + n;
    int *zero = count + n;
    enum { ALLTOALLW, CALLED, KEPT, OURS };
    double us[OURS][MOST_ROUNDS], start;
    mesh_request kept;
    int64_t shape[2] = {side, side};
    mesh_tensor src, dst;
    mesh_error err;
    if (mesh_tensor_make(&src, &comm[0].on, "x:S(0)", MESH_F32, 2, shape, &err) || mesh_tensor_make(&dst, &comm[0].on, "x:S(1)", MESH_F32, 2, shape, &err))
        fprintf(stderr, "%s\n", err.text), exit(1);
    src.data = a, dst.data = b;
    for (i = 0; i < n; i++) {
        count[i] = 1, zero[i] = 0;
        part[0] = part[1] = side / n;
        sizes[0] = side / n, sizes[1] = side, from[0] = 0, from[1] = i * (side / n);
        MPI_Type_create_subarray(2, sizes, part, from, MPI_ORDER_C, MPI_FLOAT, &send[i]);
        sizes[0] = side, sizes[1] = side / n, from[0] = i * (side / n), from[1] = 0;
        MPI_Type_create_subarray(2, sizes, part, from, MPI_ORDER_C, MPI_FLOAT, &recv[i]);
        MPI_Type_commit(&send[i]), MPI_Type_commit(&recv[i]);
    }
    if (mesh_redistribute_start(&comm[0], &src, &dst, &kept) || mesh_keep(kept) || mesh_wait(kept)) fprintf(stderr, "%s\n", comm[0].error.text), exit(1);
    for (k = 0; k < rounds; k++)
        for (way = 0; way < OURS; way++) {
            int which = (way + k) % OURS;
            mesh_barrier(&comm[0], NULL); /* MPI's leaves ranks without a core for a slice, where they outnumber the cores */
            start = MPI_Wtime();
            for (i = 0; i < 4; i++) {
                if (which == ALLTOALLW)
                    MPI_Alltoallw(a, count, zero, send, b, count, zero, recv, MPI_COMM_WORLD);
                else if (which == CALLED ? mesh_redistribute(&comm[0], &src, &dst) : mesh_restart(kept) || mesh_wait(kept))
                    fprintf(stderr, "%s\n", comm[0].error.text), exit(1);
            }
            us[which][k] = slowest((MPI_Wtime() - start) / 4 * 1e6);
        }
    for (way = 0; way < OURS; way++) qsort(us[way], (size_t)rounds, sizeof(double), by_value);
    if (!rank)
        printf("rows to columns, %d x %d f32  MPI_Alltoallw %10.1f  mesh_redistribute %10.1f (%.2f)  kept %10.1f (%.2f)\n", side, side,
               us[ALLTOALLW][rounds / 2], us[CALLED][rounds / 2], us[ALLTOALLW][rounds / 2] / us[CALLED][rounds / 2], us[KEPT][rounds / 2],
               us[ALLTOALLW][rounds / 2] / us[KEPT][rounds / 2]);
    mesh_release(kept);
    for (i = 0; i < 2 * n; i++) MPI_Type_free(&send[i]);
    free(count), free(send);
}

/* Every rank has a term of a matrix, every rank wants the sum. With MPI_Alltoallw everybody sends its whole term to all, and adds; the plan sends as much
   as an all_reduce does. */
static void partial_sums(int rounds, int rank, int n) {
    enum { EDGE = 1024, CELLS = EDGE * EDGE };
    int *count = (int *)malloc((size_t)n * 3 * sizeof(int)), *from = count + n, *to = from + n, i, j, k, way;
    MPI_Datatype *type = (MPI_Datatype *)malloc((size_t)n * sizeof *type);
    double us[2][MOST_ROUNDS], start, bytes[2] = {0, 1};
    int64_t shape[2] = {EDGE, EDGE};
    uint64_t sent[2] = {0, 0};
    mesh_tensor src, dst;
    mesh_error err;
    size_t at;
    if (mesh_tensor_make(&src, &comm[0].on, "x:P(sum)", MESH_F32, 2, shape, &err) || mesh_tensor_make(&dst, &comm[0].on, "x:R", MESH_F32, 2, shape, &err))
        fprintf(stderr, "%s\n", err.text), exit(1);
    src.data = a, dst.data = b;
    for (i = 0; i < n; i++) count[i] = CELLS, from[i] = 0, to[i] = i * CELLS * 4, type[i] = MPI_FLOAT;
    for (k = 0; k < rounds; k++)
        for (way = 0; way < 2; way++) {
            int which = (way + k) % 2;
            mesh_comm_bytes(&comm[0], NULL, &sent[0], NULL);
            mesh_barrier(&comm[0], NULL); /* MPI's leaves ranks without a core for a slice, where they outnumber the cores */
            start = MPI_Wtime();
            for (j = 0; j < 4; j++) {
                if (which == 0) {
                    MPI_Alltoallw(a, count, from, type, b, count, to, type, MPI_COMM_WORLD);
                    for (i = 1; i < n; i++)
                        for (at = 0; at < CELLS; at++) b[at] += b[(size_t)i * CELLS + at];
                } else if (mesh_redistribute(&comm[0], &src, &dst)) {
                    fprintf(stderr, "%s\n", comm[0].error.text), exit(1);
                }
            }
            us[which][k] = slowest((MPI_Wtime() - start) / 4 * 1e6);
            mesh_comm_bytes(&comm[0], NULL, &sent[1], NULL);
            if (which) bytes[1] = (double)(sent[1] - sent[0]) / 4;
        }
    bytes[0] = 4.0 * CELLS * (n - 1);
    for (way = 0; way < 2; way++) qsort(us[way], (size_t)rounds, sizeof(double), by_value);
    if (!rank)
        printf("partial sums to the whole, %d x %d f32  MPI_Alltoallw and adding %10.1f  mesh_redistribute %10.1f (%.2f; of its bytes %.2f)\n", (int)EDGE, (int)EDGE,
               us[0][rounds / 2], us[1][rounds / 2], us[0][rounds / 2] / us[1][rounds / 2], bytes[0] / bytes[1]);
    free(count), free(type);
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {8, 1024, 65536, 1 << 20, 16 << 20, 64 << 20};
    mesh_error err;
    mesh m;
    int rank, rounds = argc > 1 ? atoi(argv[1]) : 9, kind, k;
    size_t most = 64 << 20;
    if (rounds < 1 || rounds > MOST_ROUNDS) rounds = 9;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    a = (float *)calloc(most, 1), b = (float *)calloc(most, 1);
    for (k = 0; k < 2; k++) {
        setenv("MESH_MPI_NATIVE", k ? "1" : "0", 1);
        if (!a || !b || mesh_mpi_open(&net[k], MPI_COMM_WORLD, &err) || mesh_parse(&m, "x=-1", size, &err) ||
            mesh_comm_open(&comm[k], &net[k].base, &m, NULL, &err))
            return fprintf(stderr, "bench_mpi: %s\n", err.text), 1;
    }
    for (kind = argc > 2 ? (int)KINDS : 0; kind < KINDS; kind++)
        for (k = 0; k < (kind == BARRIER ? 1 : 6); k++)
            collective(kind, sizes[k] < (size_t)size * 4 ? (size_t)size * 4 : sizes[k], sizes[k] > 1 << 20 ? (rounds + 2) / 3 : rounds, rank);
    for (k = 1024; k <= 4096; k *= 2) rows_to_columns(k, rounds, rank, size);
    if ((size_t)size * (4 << 20) <= most) partial_sums(rounds, rank, size);
    for (k = 0; k < 2; k++) mesh_comm_close(&comm[k]), mesh_mpi_close(&net[k]);
    MPI_Finalize();
    free(a), free(b);
    return 0;
}
