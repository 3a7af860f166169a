/* gpu_hello: one source for GPUs and for none. Where every rank has a GPU the mesh lies over NCCL; else over sockets, and it says why.
       build/mesh run -n 4 -- build/gpu_hello
       build/mesh run -n 4 -- build/gpu_hello --device cuda            over NCCL, or it fails
       build/mesh run -n 4 --share-gpu -- build/gpu_hello              four ranks on one GPU, in turns                                */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "../transports/mesh_nccl.h"
#include "ends.h"
#include <stdio.h>

int main(int argc, char **argv) {
    enum { COUNT = 1 << 20 };
    mesh_error err;
    mesh_socket net;
    mesh_nccl gpu;
    mesh_transport *t = &gpu.base;
    mesh m;
    mesh_comm comm;
    float mine = 0, *sum;
    void *memory;
    size_t i;
    int cuda = argc == 3 && !strcmp(argv[1], "--device") && !strcmp(argv[2], "cuda");
    if (argc > 1 && !cuda) return fprintf(stderr, "usage: gpu_hello [--device cuda]\n"), 2;
    if (mesh_socket_open(&net, NULL, &err)) return fprintf(stderr, "%s\n", err.text), 1;
    if (mesh_nccl_open(&gpu, &net.base, NULL, &err)) { /* every rank hears the same */
        if (cuda) return fprintf(stderr, "gpu_hello: --device cuda: %s\n", err.text), 1;
        if (net.base.rank == 0) printf("on sockets: %s\n", err.text);
        t = &net.base;
    }
    if (mesh_parse(&m, "dp=-1", mesh_world(t), &err) || mesh_comm_open(&comm, t, &m, NULL, &err))
        return fprintf(stderr, "%s\n", err.text), 1;

    sum = (float *)malloc(COUNT * sizeof *sum);
    for (i = 0; i < COUNT; i++) sum[i] = (float)(t->rank + 1);
    if (mesh_alloc(comm.transport, COUNT * sizeof *sum, &memory, &comm.error) ||
        mesh_copy(&comm, memory, sum, COUNT * sizeof *sum) ||
        mesh_all_reduce(&comm, "dp", memory, memory, COUNT, MESH_F32, MESH_SUM) ||
        mesh_copy(&comm, sum, memory, COUNT * sizeof *sum))
        return fprintf(stderr, "%s\n", comm.error.text), 1;
    mine = sum[COUNT - 1];
    if (t == &gpu.base)
        printf("rank %d of %d, device %d of %d, over nccl %d.%d.%d: the sum is %g\n", t->rank, t->size, gpu.device,
               gpu.devices, gpu.nccl_version / 10000, gpu.nccl_version / 100 % 100, gpu.nccl_version % 100,
               (double)mine);
    else
        printf("rank %d of %d, in host memory, over sockets: the sum is %g\n", t->rank, t->size, (double)mine);

    mesh_free(comm.transport, memory, &comm.error);
    free(sum);
    mesh_comm_close(&comm);
    if (t == &gpu.base) mesh_nccl_close(&gpu);
    mesh_socket_close(&net);
    return finish("gpu_hello", mine != (float)(m.size * (m.size + 1) / 2));
}
