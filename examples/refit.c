/* A trainer hands its weights to a server on other, fewer ranks, again and again as it learns: from shards over all trainer ranks to the
   server's tensor parallelism, without anybody holding the whole: mesh run -n 6 -- build/refit (4 train, 2 serve) */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "ends.h"
#include <stdio.h>

enum { TENSORS = 40, UPDATES = 3 };

static mesh_error err;

static int give_up(const char *text) {
    fprintf(stderr, "%s\n", text);
    return 1;
}

static float element(int tensor, int update, int64_t linear) {
    return (float)((linear * 17 + tensor * 5 + update) % 1009);
}

/* Set this rank's part (check 0) or count what is not as it should be (1). */
static int visit(const mesh_tensor *t, int rank, int tensor, int update, int check) {
    mesh_box box;
    int64_t i, k, at = 0;
    int bad = 0;
    if (mesh_tensor_box(t, rank, &box) < 0) return 0;
    for (i = 0; i < box.shape[0]; i++)
        for (k = 0; k < box.shape[1]; k++, at++) {
            float want = element(tensor, update, (box.offset[0] + i) * t->layout.shape[1] + box.offset[1] + k);
            if (check)
                bad += ((float *)t->data)[at] != want;
            else
                ((float *)t->data)[at] = want;
        }
    return bad;
}

int main(int argc, char **argv) {
    mesh_socket net;
    mesh world, trainer, server;
    mesh_desc desc = MESH_ZERO;
    mesh_comm comm;
    mesh_tensor train[TENSORS], serve[TENSORS];
    static const char *const fsdp[] = {"fsdp"}, *const tp[] = {"tp"};
    mesh_request refit = MESH_ZERO;
    void *trained, *served;
    int rank, size, servers, shape, i, update, bad = 0;
    if (any_argument(argc, argv, "mesh run -n 6 -- build/refit")) return 2;
    if (mesh_socket_open(&net, NULL, &err)) return give_up(err.text);
    rank = net.base.rank;
    size = net.base.size;
    servers = size > 1 ? size / 3 > 0 ? size / 3 : 1 : 1;
    desc.naxes = 1;
    desc.shape = &shape;
    shape = size > 1 ? size - servers : 1;
    desc.names = fsdp;
    if (mesh_make(&trainer, &desc, &err)) return give_up(err.text);
    shape = servers;
    desc.names = tp;
    desc.origin = size - servers; /* the last ranks serve */
    if (mesh_make(&server, &desc, &err) || mesh_parse(&world, "rank=-1", size, &err) ||
        mesh_comm_open(&comm, &net.base, &world, NULL, &err))
        return give_up(err.text);
    for (i = 0; i < TENSORS; i++) { /* weights and, every fourth, a bias, of sizes that nothing divides */
        int64_t sizes[2];
        const char *there = i % 4 == 3 ? "tp:R" : i % 2 ? "tp:S(0)" : "tp:S(1)";
        sizes[0] = i % 4 == 3 ? 1 : 64 + 7 * i;
        sizes[1] = 96 + i;
        if (mesh_tensor_make(&train[i], &trainer, i % 4 == 3 ? "fsdp:S(1)" : "fsdp:S(0)", MESH_F32, 2, sizes, &err) ||
            mesh_tensor_make(&serve[i], &server, there, MESH_F32, 2, sizes, &err))
            return give_up(err.text);
    }
    /* All of a rank's parts in one buffer. */
    trained = calloc(1, (size_t)mesh_tensors_lay(train, TENSORS, rank, NULL, 0) + 1);
    served = calloc(1, (size_t)mesh_tensors_lay(serve, TENSORS, rank, NULL, 0) + 1);
    if (!trained || !served) return give_up("out of memory");
    mesh_tensors_lay(train, TENSORS, rank, trained, 0);
    mesh_tensors_lay(serve, TENSORS, rank, served, 0);
    for (update = 0; update < UPDATES; update++) {
        for (i = 0; i < TENSORS; i++) visit(&train[i], rank, i, update, 0); /* a step of training */
        if (update == 0 ? mesh_redistribute_many_start(&comm, train, serve, TENSORS, &refit) || mesh_keep(refit)
                        : mesh_restart(refit))
            return give_up(comm.error.text);
        if (mesh_wait(refit)) return give_up(comm.error.text);
        for (i = 0; i < TENSORS; i++) bad += visit(&serve[i], rank, i, update, 1);
    }
    mesh_release(refit);
    printf("rank %d%s%s: %d tensors, %d updates, %d elements wrong\n", rank,
           mesh_index_of(&trainer, rank) >= 0 ? " trains" : "", mesh_index_of(&server, rank) >= 0 ? " serves" : "",
           TENSORS, UPDATES, bad);
    mesh_comm_close(&comm);
    mesh_socket_close(&net);
    free(trained), free(served);
    return finish("refit", bad != 0);
}
