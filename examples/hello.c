/* Who am I, and who is next to me: mesh run -n 4 -- build/hello */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "ends.h"
#include <stdio.h>

int main(int argc, char **argv) {
    mesh_error err;
    mesh_socket net;
    mesh m;
    mesh_comm comm;
    char line[128];
    int sum, i;
    size_t at;
    if (any_argument(argc, argv, "mesh run -n 4 -- build/hello")) return 2;
    if (mesh_socket_open(&net, NULL, &err) ||
        mesh_parse(&m, net.base.size % 2 ? "dp=-1" : "dp=-1,tp=2", mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return fprintf(stderr, "%s\n", err.text), 1;
    if (mesh_all_reduce(&comm, "dp", &net.base.rank, &sum, 1, MESH_I32, MESH_SUM))
        return fprintf(stderr, "%s\n", comm.error.text), 1;
    at = (size_t)snprintf(line, sizeof line, "rank %d of %d", net.base.rank, net.base.size);
    for (i = 0; i < m.naxes; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, ", %s %d of %d", m.axis[i].name,
                               mesh_comm_index(&comm, m.axis[i].name), m.axis[i].size);
    printf("%s; next along dp: rank %d; the ranks of my dp group sum to %d\n", line,
           mesh_neighbor(&m, "dp", net.base.rank, 1, 1), sum);
    mesh_comm_close(&comm);
    return finish("hello", mesh_socket_close(&net));
}
