/* Who am I, and who is next to me: mesh run -n 4 -- build/hello */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include <stdio.h>

int main(void) {
    mesh_error err;
    mesh_socket net;
    mesh m;
    mesh_comm comm;
    char line[128];
    int sum;
    if (mesh_socket_open(&net, NULL, &err) ||
        mesh_parse(&m, net.base.size % 2 ? "dp=-1" : "dp=-1,tp=2", mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return fprintf(stderr, "%s\n", err.text), 1;
    if (mesh_all_reduce(&comm, "dp", &net.base.rank, &sum, 1, MESH_I32, MESH_SUM))
        return fprintf(stderr, "%s\n", comm.error.text), 1;
    mesh_format_rank(&m, net.base.rank, line, sizeof line);
    printf("%s next along dp: rank %d; the ranks of my dp group sum to %d\n", line,
           mesh_neighbor(&m, "dp", net.base.rank, 1, 1), sum);
    mesh_comm_close(&comm);
    return mesh_socket_close(&net);
}
