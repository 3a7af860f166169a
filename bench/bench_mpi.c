/* mesh_all_reduce over MPI beside MPI_Iallreduce and MPI_Wait, which it calls, and beside MPI_Allreduce, in turn in one program; medians of rounds, of the
   slowest rank, in us. Also a matrix from rows to columns: mesh_redistribute beside MPI_Alltoallw with subarrays.
     mpicc -O3 -march=native -I. bench/bench_mpi.c -o build/bench_mpi && mpirun -n 2 build/bench_mpi [ROUNDS] */
#define MESH_IMPLEMENTATION
#include "mesh.h"
#include "mesh_collectives.h"
#include "transports/mesh_mpi.h"
#include <stdio.h>
#include <stdlib.h>

enum { BARE, OURS, BLOCKING, WAYS, MOST_ROUNDS = 64, SIDE = 2048 };

static mesh_mpi net;
static mesh_comm comm;
static float *a, *b;

static void call(int way, size_t n) {
    MPI_Request r;
    if (way == OURS) {
        if (mesh_all_reduce(&comm, NULL, a, b, n, MESH_F32, MESH_SUM)) fprintf(stderr, "%s\n", comm.error.text), exit(1);
    } else if (way == BARE) {
        MPI_Iallreduce(a, b, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &r);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
    } else {
        MPI_Allreduce(a, b, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
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

static void all_reduce(size_t bytes, int rounds, int rank) {
    double us[WAYS][MOST_ROUNDS];
    int calls = bytes <= 1024 ? 20000 : bytes <= 1 << 20 ? 400 : 12, way, k, i;
    for (k = 0; k < rounds; k++)
        for (way = 0; way < WAYS; way++) {
            int which = (way + k) % WAYS;
            double start;
            call(which, bytes / 4);
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
            for (i = 0; i < calls; i++) call(which, bytes / 4);
            us[which][k] = slowest((MPI_Wtime() - start) / calls * 1e6);
        }
    for (way = 0; way < WAYS; way++) qsort(us[way], (size_t)rounds, sizeof(double), by_value);
    if (!rank)
        printf("all_reduce %9lu  MPI_Iallreduce %10.2f  mesh.h %10.2f (%.2f)  MPI_Allreduce %10.2f\n", (unsigned long)bytes, us[BARE][rounds / 2],
               us[OURS][rounds / 2], us[BARE][rounds / 2] / us[OURS][rounds / 2], us[BLOCKING][rounds / 2]);
}

/* Rank r has SIDE / n rows, then as many columns. */
static void rows_to_columns(int rounds, int rank, int n) {
    int *count = (int *)malloc((size_t)n * 2 * sizeof(int)), sizes[2], part[2], from[2], i, k, way;
    MPI_Datatype *send = (MPI_Datatype *)malloc((size_t)n * 2 * sizeof *send), *recv = send + n;
    int *zero = count + n;
    double us[2][MOST_ROUNDS], start;
    int64_t shape[2] = {SIDE, SIDE};
    mesh_tensor src, dst;
    mesh_error err;
    if (mesh_tensor_make(&src, &comm.on, "x:S(0)", MESH_F32, 2, shape, &err) || mesh_tensor_make(&dst, &comm.on, "x:S(1)", MESH_F32, 2, shape, &err))
        fprintf(stderr, "%s\n", err.text), exit(1);
    src.data = a, dst.data = b;
    for (i = 0; i < n; i++) {
        count[i] = 1, zero[i] = 0;
        part[0] = part[1] = SIDE / n;
        sizes[0] = SIDE / n, sizes[1] = SIDE, from[0] = 0, from[1] = i * (SIDE / n);
        MPI_Type_create_subarray(2, sizes, part, from, MPI_ORDER_C, MPI_FLOAT, &send[i]);
        sizes[0] = SIDE, sizes[1] = SIDE / n, from[0] = i * (SIDE / n), from[1] = 0;
        MPI_Type_create_subarray(2, sizes, part, from, MPI_ORDER_C, MPI_FLOAT, &recv[i]);
        MPI_Type_commit(&send[i]), MPI_Type_commit(&recv[i]);
    }
    for (k = 0; k < rounds; k++)
        for (way = 0; way < 2; way++) {
            int which = (way + k) % 2;
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
            for (i = 0; i < 4; i++) {
                if (which == 0)
                    MPI_Alltoallw(a, count, zero, send, b, count, zero, recv, MPI_COMM_WORLD);
                else if (mesh_redistribute(&comm, &src, &dst))
                    fprintf(stderr, "%s\n", comm.error.text), exit(1);
            }
            us[which][k] = slowest((MPI_Wtime() - start) / 4 * 1e6);
        }
    for (way = 0; way < 2; way++) qsort(us[way], (size_t)rounds, sizeof(double), by_value);
    if (!rank)
        printf("rows to columns, %d x %d f32  MPI_Alltoallw %10.1f  mesh_redistribute %10.1f (%.2f)\n", (int)SIDE, (int)SIDE, us[0][rounds / 2],
               us[1][rounds / 2], us[0][rounds / 2] / us[1][rounds / 2]);
    for (i = 0; i < 2 * n; i++) MPI_Type_free(&send[i]);
    free(count), free(send);
}

int main(int argc, char **argv) {
    mesh_error err;
    mesh m;
    int rank, n, rounds = argc > 1 ? atoi(argv[1]) : 11;
    size_t bytes, most = 64 << 20;
    if (rounds < 1 || rounds > MOST_ROUNDS) rounds = 11;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    a = (float *)calloc(most, 1), b = (float *)calloc(most, 1);
    if (!a || !b || mesh_mpi_open(&net, MPI_COMM_WORLD, &err) || mesh_parse(&m, "x=-1", n, &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return fprintf(stderr, "bench_mpi: %s\n", err.text), 1;
    for (bytes = 8; bytes <= most; bytes *= bytes == 8 ? 128 : bytes == 1024 ? 64 : bytes == 64 << 20 ? 2 : bytes == 16 << 20 ? 4 : 16)
        all_reduce(bytes, bytes > 1 << 20 ? (rounds + 1) / 2 : rounds, rank);
    rows_to_columns(rounds, rank, n);
    mesh_comm_close(&comm);
    mesh_mpi_close(&net);
    MPI_Finalize();
    free(a), free(b);
    return 0;
}
