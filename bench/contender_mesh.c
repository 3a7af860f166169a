/* Our side of the comparison. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "contender.h"

static mesh_comm comm;

static void must(mesh_status status) {
    if (status == MESH_OK) return;
    fprintf(stderr, "%s\n", comm.error.text);
    exit(1);
}

static void run(int op, const void *send, void *recv, size_t nbytes) {
    size_t block = nbytes / (size_t)comm.on.size;
    switch (op) {
    case OP_ALL_REDUCE:
        must(mesh_all_reduce(&comm, NULL, send, recv, nbytes / 4, MESH_F32, MESH_SUM));
        break;
    case OP_REDUCE_SCATTER:
        must(mesh_reduce_scatter(&comm, NULL, send, recv, block / 4, MESH_F32, MESH_SUM));
        break;
    case OP_ALL_GATHER:
        must(mesh_all_gather(&comm, NULL, send, recv, block, MESH_BYTES));
        break;
    case OP_ALL_TO_ALL:
        must(mesh_all_to_all(&comm, NULL, send, recv, block, MESH_BYTES));
        break;
    case OP_BROADCAST: /* in place at every rank, as the others do */
        if (comm.transport->rank == 0 && nbytes && *(const unsigned char *)recv == 0xee) memcpy(recv, send, nbytes);
        must(mesh_broadcast(&comm, NULL, recv, recv, nbytes, MESH_BYTES, 0));
        break;
    default:
        must(mesh_barrier(&comm, NULL));
        break;
    }
}

static void max(double *values, int count) {
    must(mesh_all_reduce(&comm, NULL, values, values, (size_t)count, MESH_F64, MESH_MAX));
}

int main(int argc, char **argv) {
    mesh_socket net;
    mesh_error err;
    mesh m;
    contender c;
    int status;
    if (mesh_socket_open(&net, NULL, &err) || mesh_parse(&m, "x=-1", mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return fprintf(stderr, "%s\n", err.text), 1;
    c.rank = net.base.rank;
    c.n = net.base.size;
    c.run = run;
    c.max = max;
    status = contender_main(argc, argv, &c);
    mesh_comm_close(&comm);
    mesh_socket_close(&net);
    return status;
}
