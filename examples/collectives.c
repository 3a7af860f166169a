/* Every collective once, on the axes of a 2-D mesh: mesh run -n 4 -- build/collectives */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "ends.h"

static mesh_comm comm;

static void must(mesh_status status) {
    if (status == MESH_OK) return;
    fprintf(stderr, "%s\n", comm.error.text);
    exit(1);
}

/* Print a line at rank 0 only. */
static void show(const char *what, const float *v, int n) {
    int i;
    if (comm.transport->rank) return;
    printf("%-42s", what);
    for (i = 0; i < n; i++) printf(" %4g", (double)v[i]);
    printf("\n");
}

int main(int argc, char **argv) {
    mesh_error err;
    mesh_socket net;
    mesh m;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_request r[2];
    float a[64], b[64];
    int i, rank, size, dp, tp;

    if (any_argument(argc, argv, "mesh run -n 4 -- build/collectives")) return 2;
    desc.groups = "tp,dp"; /* a group of several axes is named when the comm opens; its ranks count in this order */
    if (mesh_socket_open(&net, NULL, &err) || mesh_parse(&m, "dp=-1,tp=2", mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, &desc, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    rank = net.base.rank;
    size = net.base.size;
    dp = mesh_comm_size(&comm, "dp");
    tp = mesh_comm_size(&comm, "tp");
    if (size > 32) return fprintf(stderr, "collectives: at most 32 ranks\n"), 1;
    for (i = 0; i < 64; i++) a[i] = (float)(rank * 10 + i);

    must(mesh_all_reduce(&comm, "dp", a, b, 2, MESH_F32, MESH_SUM));
    show("all_reduce sum on dp", b, 2);
    must(mesh_all_reduce(&comm, NULL, a, b, 2, MESH_F32, MESH_MAX));
    show("all_reduce max on the whole mesh", b, 2);
    must(mesh_reduce(&comm, "tp", a, b, 2, MESH_F32, MESH_AVG, 0));
    show("reduce avg on tp to index 0", b, 2);
    must(mesh_broadcast(&comm, NULL, a, b, 2, MESH_F32, size - 1));
    show("broadcast from the last rank", b, 2);
    must(mesh_all_gather(&comm, "tp,dp", a, b, 1, MESH_F32));
    show("all_gather on (tp,dp)", b, size);
    must(mesh_reduce_scatter(&comm, "tp", a, b, 2, MESH_F32, MESH_SUM));
    show("reduce_scatter sum on tp", b, 2);
    must(mesh_all_to_all(&comm, NULL, a, b, 1, MESH_F32));
    show("all_to_all on the whole mesh", b, size);
    must(mesh_shift(&comm, "dp", 1, 1, a, b, 1, MESH_F32));
    show("shift by one on dp, periodic", b, 1);

    /* Two operations under way at once, waited for in any order. */
    must(mesh_all_reduce_start(&comm, "dp", a, a, 8, MESH_F32, MESH_SUM, &r[0]));
    must(mesh_all_reduce_start(&comm, "tp", b, b, 8, MESH_F32, MESH_SUM, &r[1]));
    must(mesh_wait(r[1]));
    must(mesh_wait(r[0]));

    { /* a column of a matrix to the next rank's row, without packing */
        float matrix[4][4], row[4];
        mesh_block column = MESH_ZERO;
        mesh_xfer x[2];
        int me = mesh_comm_index(&comm, NULL);
        for (i = 0; i < 16; i++) matrix[i / 4][i % 4] = (float)(rank * 100 + i);
        column.run = sizeof(float);
        column.ndim = 1;
        column.dim[0].count = 4;
        column.dim[0].stride = sizeof matrix[0];
        memset(x, 0, sizeof x);
        x[0].base = &matrix[0][1], x[0].nbytes = sizeof row, x[0].block = &column, x[0].direction = MESH_SEND,
        x[0].rank = (me + 1) % size;
        x[1].base = row, x[1].nbytes = sizeof row, x[1].direction = MESH_RECV, x[1].rank = (me + size - 1) % size;
        must(mesh_exchange(&comm, NULL, x, 2));
        show("exchange: the last rank's column 1", row, 4);
    }
    must(mesh_barrier(&comm, NULL));
    if (rank == 0) printf("%d ranks as dp=%d, tp=%d\n", size, dp, tp);
    mesh_comm_close(&comm);
    return finish("collectives", mesh_socket_close(&net));
}
