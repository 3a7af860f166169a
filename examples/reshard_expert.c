/* Expert weights go from the dense mesh, where they are sharded for storage, to the expert mesh, where each rank holds whole experts, and
   their gradients come back, summed. Both meshes factor the same ranks in different ways: mesh run -n 8 -- build/reshard_expert */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "ends.h"
#include <stdio.h>

enum { LAYERS = 6, EXPERTS = 8, INNER = 48, OUTER = 32 };

static mesh_error err;

static int give_up(const char *text) {
    fprintf(stderr, "%s\n", text);
    return 1;
}

static mesh_tensor weights(const mesh *m, const char *spec, int rank) {
    static const int64_t shape[3] = {EXPERTS, INNER, OUTER};
    mesh_tensor t;
    if (mesh_tensor_make(&t, m, spec, MESH_F32, 3, shape, &err)) exit(give_up(err.text));
    t.data = calloc((size_t)mesh_tensor_count(&t, rank) + 1, sizeof(float));
    return t;
}

static float element(int layer, int64_t linear) { return (float)((linear * 13 + layer) % 251); }

/* Visit a part: set it (check 0), or count what is not as it should be (check 1). */
static int visit(const mesh_tensor *t, int rank, int layer, float times, int check) {
    mesh_box box;
    int64_t i, j, k, at = 0;
    int bad = 0;
    mesh_tensor_box(t, rank, &box);
    for (i = 0; i < box.shape[0]; i++)
        for (j = 0; j < box.shape[1]; j++)
            for (k = 0; k < box.shape[2]; k++, at++) {
                float *x = (float *)t->data + at;
                float want =
                    element(layer, ((box.offset[0] + i) * INNER + box.offset[1] + j) * OUTER + box.offset[2] + k) *
                    times;
                if (check)
                    bad += *x != want;
                else
                    *x = want;
            }
    return bad;
}

int main(int argc, char **argv) {
    mesh_socket net;
    mesh dense, expert;
    mesh_comm comm;
    mesh_tensor stored[LAYERS], used[LAYERS], grad[LAYERS], back[LAYERS];
    mesh_request there;
    int world, rank, ep, layer, step, bad = 0, replicas;
    char text[64];
    uint64_t sent, received;
    if (any_argument(argc, argv, "mesh run -n 8 -- build/reshard_expert")) return 2;
    if (mesh_socket_open(&net, NULL, &err)) return give_up(err.text);
    world = mesh_world(&net.base);
    rank = net.base.rank;
    ep = world % 4 == 0 ? 4 : world % 2 == 0 ? 2 : 1; /* experts over neighbouring ranks; edp: copies of them */
    snprintf(text, sizeof text, "edp=-1,ep=%d", ep);
    if (mesh_parse(&dense, world % 2 ? "dp=-1,tp=1" : "dp=-1,tp=2", world, &err) ||
        mesh_parse(&expert, text, world, &err) || mesh_comm_open(&comm, &net.base, &dense, NULL, &err))
        return give_up(err.text);
    replicas = world / ep;
    for (layer = 0; layer < LAYERS; layer++) {
        stored[layer] = weights(&dense, "dp:S(1) tp:S(2)", rank);
        used[layer] = weights(&expert, "ep:S(0)", rank);
        grad[layer] = weights(&expert, "edp:P(sum) ep:S(0)", rank); /* each copy has seen other tokens */
        back[layer] = weights(&dense, "dp:S(1) tp:S(2)", rank);
    }
    for (step = 0; step < 3; step++) {
        for (layer = 0; layer < LAYERS; layer++) visit(&stored[layer], rank, layer, (float)(step + 1), 0);
        /* All layers in one exchange, planned once. */
        if (step == 0 ? mesh_redistribute_many_start(&comm, stored, used, LAYERS, &there) || mesh_keep(there)
                      : mesh_restart(there))
            return give_up(comm.error.text);
        if (mesh_wait(there)) return give_up(comm.error.text);
        for (layer = 0; layer < LAYERS; layer++) {
            bad += visit(&used[layer], rank, layer, (float)(step + 1), 1);
            visit(&grad[layer], rank, layer, 2, 0);
        }
        if (mesh_redistribute_many(&comm, grad, back, LAYERS)) return give_up(comm.error.text);
        for (layer = 0; layer < LAYERS; layer++) bad += visit(&back[layer], rank, layer, 2 * (float)replicas, 1);
    }
    mesh_comm_bytes(&comm, NULL, &sent, &received);
    printf("rank %d: expert %d of %d, copy %d of %d; sent %llu KiB in 3 steps; %d elements wrong\n", rank,
           mesh_coord_of(&expert, "ep", rank), ep, mesh_coord_of(&expert, "edp", rank), replicas,
           (unsigned long long)sent >> 10, bad);
    mesh_release(there);
    mesh_comm_close(&comm);
    mesh_socket_close(&net);
    for (layer = 0; layer < LAYERS; layer++)
        free(stored[layer].data), free(used[layer].data), free(grad[layer].data), free(back[layer].data);
    return finish("reshard_expert", bad != 0);
}
