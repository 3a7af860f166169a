/* Our side of the comparison: collectives, and the layouts of layouts.h. --alloc: buffers of mesh_alloc, not malloc.
   usage: contender_mesh [--alloc] OP BYTES MILLISECONDS [each] */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "contender.h"
#include "lane.h"
#include "layouts.h"

static mesh_comm comm;
static mesh_tensor source, target;
static mesh_request move;

static void must(mesh_status status) {
    if (status == MESH_OK) return;
    fprintf(stderr, "%s\n", comm.error.text);
    exit(1);
}

static void run(int op, const void *send, void *recv, size_t nbytes) {
    size_t block = nbytes / (size_t)comm.on.size;
    int partner;
    switch (op) {
    case OP_ALL_REDUCE:
        must(mesh_all_reduce(&comm, NULL, send, recv, nbytes / 4, MESH_F32, MESH_SUM));
        break;
    case OP_ALL_REDUCE_IN_PLACE:
        must(mesh_all_reduce(&comm, NULL, recv, recv, nbytes / 4, MESH_F32, MESH_SUM));
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
        must(mesh_broadcast(&comm, NULL, recv, recv, nbytes, MESH_BYTES, 0));
        break;
    case OP_SENDRECV:
        partner = (comm.transport->rank ^ 1) < comm.on.size ? comm.transport->rank ^ 1 : -1;
        must(mesh_sendrecv(&comm, NULL, partner, send, nbytes, partner, recv, nbytes, MESH_BYTES));
        break;
    case OP_MOVE: /* planned once, as MPI's types are made once */
        must(mesh_restart(move));
        must(mesh_wait(move));
        break;
    default:
        must(mesh_barrier(&comm, NULL));
        break;
    }
}

static void max(double *values, int count) {
    must(mesh_all_reduce(&comm, NULL, values, values, (size_t)count, MESH_F64, MESH_MAX));
}

static void *get(size_t nbytes) {
    void *p;
    must(mesh_alloc(comm.transport, nbytes, &p, &comm.error));
    return p;
}

static void prepare(const layout *l, void *src, void *dst) {
    const int64_t sizes[2] = {layout_rows(l), layout_columns(l)};
    must(mesh_tensor_make(&source, &comm.on, l->from, MESH_F32, 2, sizes, &comm.error));
    must(mesh_tensor_make(&target, &comm.on, l->to, MESH_F32, 2, sizes, &comm.error));
    source.data = src;
    target.data = dst;
    must(mesh_redistribute_start(&comm, &source, &target, &move));
    must(mesh_keep(move));
    must(mesh_wait(move));
}

int main(int argc, char **argv) {
    mesh_socket net;
    mesh_error err;
    mesh m;
    contender c;
    const layout *l;
    int status, alloc = argc > 1 && !strcmp(argv[1], "--alloc");
    argc -= alloc, argv += alloc;
    if (argc < 4) return fprintf(stderr, "usage: contender_mesh [--alloc] OP BYTES MILLISECONDS [each]\n"), 2;
    if (mesh_socket_open(&net, NULL, &err)) return fprintf(stderr, "%s\n", err.text), 1;
    l = layout_find(argv[1], net.base.size);
    if (mesh_parse(&m, l ? l->mesh : "x=-1", mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return fprintf(stderr, "%s\n", err.text), 1;
    must(mesh_barrier(&comm, NULL));
    if (!lane_is_there()) return 3;
    c.rank = net.base.rank;
    c.n = net.base.size;
    c.run = run;
    c.max = max;
    c.get = alloc ? get : NULL;
    status = l ? layout_main(argv, &c, l, prepare) : contender_main(argc, argv, &c);
    if (l) mesh_release(move);
    mesh_comm_close(&comm);
    mesh_socket_close(&net);
    return status;
}
