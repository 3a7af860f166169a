/* The layouts of layouts.h as an HPC programmer would write them: one MPI_Alltoallw whose types, made once, are the pieces that
   two ranks have in common, as subarrays of the sender's box and of the receiver's. Built once for each MPI that is installed.
   usage: contender_alltoallw LAYOUT - MILLISECONDS */
#include "layouts.h"
#include <mpi.h>

enum { MOST = 64 };
static int send_count[MOST], recv_count[MOST], displacement[MOST]; /* all 0: the types say where */
static MPI_Datatype send_type[MOST], recv_type[MOST];
static contender c;

static void run(int op, const void *send, void *recv, size_t nbytes) {
    (void)nbytes;
    if (op == OP_MOVE)
        MPI_Alltoallw(send, send_count, displacement, send_type, recv, recv_count, displacement, recv_type,
                      MPI_COMM_WORLD);
    else
        MPI_Barrier(MPI_COMM_WORLD);
}

static void max(double *values, int count) {
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

/* The part of `mine` that is in `other` too, as a type. Returns 1, or 0: there is none. */
static int common(const layout_box *mine, const layout_box *other, MPI_Datatype *type) {
    int first[2], count[2], d;
    *type = MPI_FLOAT;
    for (d = 0; d < 2; d++) {
        int end = mine->first[d] + mine->count[d], other_end = other->first[d] + other->count[d];
        first[d] = mine->first[d] > other->first[d] ? mine->first[d] : other->first[d];
        count[d] = (end < other_end ? end : other_end) - first[d];
        if (count[d] <= 0) return 0;
        first[d] -= mine->first[d];
    }
    MPI_Type_create_subarray(2, mine->count, count, first, MPI_ORDER_C, MPI_FLOAT, type);
    MPI_Type_commit(type);
    return 1;
}

/* Types of one piece, and MPI's own, which stands for none. */
static void release(void) {
    int r;
    for (r = 0; r < c.n; r++) {
        if (send_count[r]) MPI_Type_free(&send_type[r]);
        if (recv_count[r]) MPI_Type_free(&recv_type[r]);
    }
}

static void prepare(const layout *l, void *src, void *dst) {
    layout_box have = layout_box_of(l, l->from, c.rank), want = layout_box_of(l, l->to, c.rank);
    int r;
    (void)src;
    (void)dst;
    for (r = 0; r < c.n; r++) {
        layout_box theirs = layout_box_of(l, l->from, r), wanted = layout_box_of(l, l->to, r);
        send_count[r] = common(&have, &wanted, &send_type[r]);
        recv_count[r] = common(&want, &theirs, &recv_type[r]);
    }
}

int main(int argc, char **argv) {
    const layout *l;
    int status;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &c.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &c.n);
    c.run = run;
    c.max = max;
    l = argc == 4 ? layout_find(argv[1], c.n) : NULL;
    if (!l) fprintf(stderr, "usage: contender_alltoallw LAYOUT - MILLISECONDS, of layouts.h on %d ranks\n", c.n);
    status = l ? layout_main(argv, &c, l, prepare) : 2;
    if (l) release();
    MPI_Finalize();
    return status;
}
