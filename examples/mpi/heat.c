/* A stencil of an MPI code, and a mesh inside it. Heat spreads over a torus of N x N cells that a grid of ranks divides, once by MPI's own means (a Cartesian
   communicator, datatypes for columns, four sends and receives) and once by mesh.h on the same communicator; both give the same bits.
     mpicc -I. examples/mpi/heat.c -o heat && mpirun -n 4 ./heat */
#define MESH_IMPLEMENTATION
#include "mesh.h"
#include "mesh_collectives.h"
#include "transports/mesh_mpi.h"
#include <stdio.h>
#include <stdlib.h>

enum { N = 240, STEPS = 50 };

/* One step from a to b, arrays of (rows + 2) x (columns + 2). */
static void spread(const double *a, double *b, int rows, int columns) {
    int i, k, w = columns + 2;
    for (i = 1; i <= rows; i++)
        for (k = 1; k <= columns; k++)
            b[i * w + k] = a[i * w + k] + 0.1 * (a[(i - 1) * w + k] + a[(i + 1) * w + k] + a[i * w + k - 1] + a[i * w + k + 1] - 4 * a[i * w + k]);
}

static void start(double *a, int rows, int columns, int row, int column) {
    int i, k;
    for (i = 1; i <= rows; i++)
        for (k = 1; k <= columns; k++) a[i * (columns + 2) + k] = (row * rows + i) % 17 + (column * columns + k) % 29;
}

/* begin: MPI */
static double by_mpi(MPI_Comm comm, double *a, double *b, double *mine) {
    int dims[2] = {0, 0}, periods[2] = {1, 1}, at[2], size, rank, rows, columns, w, i, up, down, left, right;
    double heat = 0, all, *swap;
    MPI_Comm grid;
    MPI_Datatype column;
    MPI_Comm_size(comm, &size);
    MPI_Dims_create(size, 2, dims);
    MPI_Cart_create(comm, 2, dims, periods, 0, &grid);
    MPI_Comm_rank(grid, &rank);
    MPI_Cart_coords(grid, rank, 2, at);
    MPI_Cart_shift(grid, 0, 1, &up, &down);
    MPI_Cart_shift(grid, 1, 1, &left, &right);
    rows = N / dims[0], columns = N / dims[1], w = columns + 2;
    MPI_Type_vector(rows, 1, w, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    start(a, rows, columns, at[0], at[1]);
    for (i = 0; i < STEPS; i++) {
        MPI_Sendrecv(a + w + 1, columns, MPI_DOUBLE, up, 0, a + (rows + 1) * w + 1, columns, MPI_DOUBLE, down, 0, grid, MPI_STATUS_IGNORE);
        MPI_Sendrecv(a + rows * w + 1, columns, MPI_DOUBLE, down, 1, a + 1, columns, MPI_DOUBLE, up, 1, grid, MPI_STATUS_IGNORE);
        MPI_Sendrecv(a + w + 1, 1, column, left, 2, a + w + columns + 1, 1, column, right, 2, grid, MPI_STATUS_IGNORE);
        MPI_Sendrecv(a + w + columns, 1, column, right, 3, a + w, 1, column, left, 3, grid, MPI_STATUS_IGNORE);
        spread(a, b, rows, columns);
        swap = a, a = b, b = swap;
    }
    for (i = 0; i < rows * columns; i++) heat += a[(i / columns + 1) * w + i % columns + 1] * (i % 7);
    *mine = heat;
    MPI_Allreduce(&heat, &all, 1, MPI_DOUBLE, MPI_SUM, grid);
    MPI_Type_free(&column);
    MPI_Comm_free(&grid);
    return all;
}
/* end: MPI */

/* begin: mesh.h */
static double by_mesh(MPI_Comm of, double *a, double *b, double *mine) {
    mesh_mpi net;
    mesh_comm comm;
    mesh_error err;
    mesh m;
    mesh_halo halo = MESH_ZERO;
    char text[32];
    int dims[2] = {0, 0}, at[2], rows, columns, w, i;
    double heat = 0, all, *swap;
    if (mesh_mpi_open(&net, of, &err) || mesh_dims_create(net.base.size, 2, dims, &err)) return fprintf(stderr, "%s\n", err.text), -1;
    snprintf(text, sizeof text, "y=%d,x=%d", dims[0], dims[1]);
    if (mesh_parse(&m, text, net.base.size, &err) || mesh_comm_open(&comm, &net.base, &m, NULL, &err)) return fprintf(stderr, "%s\n", err.text), -1;
    mesh_coords_of(&m, NULL, net.base.rank, at);
    rows = N / dims[0], columns = N / dims[1], w = columns + 2;
    halo.ndim = 2, halo.axis[0] = "y", halo.axis[1] = "x";
    halo.shape[0] = rows + 2, halo.shape[1] = w;
    for (i = 0; i < 2; i++) halo.low[i] = halo.high[i] = halo.periodic[i] = 1;
    start(a, rows, columns, at[0], at[1]);
    for (i = 0; i < STEPS; i++) {
        if (mesh_halo_exchange(&comm, &halo, a, MESH_F64)) return fprintf(stderr, "%s\n", comm.error.text), -1;
        spread(a, b, rows, columns);
        swap = a, a = b, b = swap;
    }
    for (i = 0; i < rows * columns; i++) heat += a[(i / columns + 1) * w + i % columns + 1] * (i % 7);
    *mine = heat;
    if (mesh_all_reduce(&comm, NULL, &heat, &all, 1, MESH_F64, MESH_SUM)) return fprintf(stderr, "%s\n", comm.error.text), -1;
    mesh_comm_close(&comm);
    mesh_mpi_close(&net);
    return all;
}
/* end: mesh.h */

int main(int argc, char **argv) {
    double *a, *b, mpi, ours, mine[2];
    int rank, size, bad, all;
    MPI_Init(&argc, &argv);
    if (argc > 1) return fprintf(stderr, "heat: \"%s\" is not known; there are no arguments: mpirun -n 4 ./heat\n", argv[1]), MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    a = (double *)calloc((N + 2) * (N + 2), sizeof *a);
    b = (double *)calloc((N + 2) * (N + 2), sizeof *b);
    if (!a || !b) return fprintf(stderr, "heat: no memory\n"), MPI_Abort(MPI_COMM_WORLD, 1);
    if (N % size) return fprintf(stderr, "heat: %d ranks do not divide %d; 1 to 6, 8, 10 or 12 do\n", size, N), MPI_Abort(MPI_COMM_WORLD, 1);
    mpi = by_mpi(MPI_COMM_WORLD, a, b, &mine[0]);
    ours = by_mesh(MPI_COMM_WORLD, a, b, &mine[1]);
    bad = mine[0] != mine[1] || mpi - ours > 1e-9 * mpi || ours - mpi > 1e-9 * mpi;
    MPI_Allreduce(&bad, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (!rank) printf("heat %.15g by MPI, %.15g by mesh.h: %s\n", mpi, ours, all ? "they differ" : "the same on every rank");
    MPI_Finalize();
    free(a), free(b);
    if (fflush(stdout) || ferror(stdout)) return fprintf(stderr, "heat: cannot write to stdout\n"), 1;
    return all != 0;
}
