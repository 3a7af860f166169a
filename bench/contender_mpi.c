/* MPI's side of the comparison: built once for each MPI that is installed. */
#include "contender.h"
#include <mpi.h>

static contender c;

static void run(int op, const void *send, void *recv, size_t nbytes) {
    int block = (int)(nbytes / (size_t)c.n), partner = contender_partner(&c);
    switch (op) {
    case OP_ALL_REDUCE:
        MPI_Allreduce(send, recv, (int)(nbytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case OP_ALL_REDUCE_IN_PLACE:
        MPI_Allreduce(MPI_IN_PLACE, recv, (int)(nbytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case OP_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(send, recv, block / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case OP_ALL_GATHER:
        MPI_Allgather(send, block, MPI_BYTE, recv, block, MPI_BYTE, MPI_COMM_WORLD);
        break;
    case OP_ALL_TO_ALL:
        MPI_Alltoall(send, block, MPI_BYTE, recv, block, MPI_BYTE, MPI_COMM_WORLD);
        break;
    case OP_BROADCAST: /* in place at every rank, as MPI has it */
        MPI_Bcast(recv, (int)nbytes, MPI_BYTE, 0, MPI_COMM_WORLD);
        break;
    case OP_SENDRECV:
        if (partner >= 0)
            MPI_Sendrecv(send, (int)nbytes, MPI_BYTE, partner, 0, recv, (int)nbytes, MPI_BYTE, partner, 0,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    default:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    }
}

static void max(double *values, int count) {
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    int status;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &c.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &c.n);
    c.run = run;
    c.max = max;
    status = contender_main(argc, argv, &c);
    MPI_Finalize();
    return status;
}
