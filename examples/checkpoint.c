/* A small state in files of safetensors. Each run loads what the run before has saved, on as many ranks as it has itself, trains three steps, and saves
   while the last of them goes on:
       mesh run -n 4 -- build/checkpoint FOLDER && mesh run -n 3 -- build/checkpoint FOLDER
   `build/checkpoint --show FOLDER` loads the tensors and prints their norms: of a folder that Python has written, too. */
#define MESH_IMPLEMENTATION
#include "../mesh_checkpoint.h"
#include "../mesh_parallel.h"
#include "../transports/mesh_socket.h"
#include "ends.h"
#include <stdio.h>
#include <stdlib.h>

enum { TENSORS = 3 };

static mesh_error err;

static int give_up(const char *text) {
    fprintf(stderr, "%s\n", text);
    return 1;
}

static mesh_named tensor(const mesh *m, const char *name, const char *spec, mesh_dtype dtype, int ndim, int rank) {
    static const int64_t shape[2] = {8, 6};
    mesh_named n;
    if (mesh_tensor_make(&n.tensor, m, spec, dtype, ndim, shape, &err)) exit(give_up(err.text));
    n.name = name;
    n.tensor.data = calloc((size_t)mesh_tensor_count(&n.tensor, rank) + 1, mesh_dtype_bytes(dtype));
    return n;
}

static void train(mesh_named *state, int rank) {
    float *weight = (float *)state[0].tensor.data, *moment = (float *)state[1].tensor.data;
    double *scale = (double *)state[2].tensor.data;
    int64_t i, n = mesh_tensor_count(&state[0].tensor, rank);
    for (i = 0; i < n; i++) moment[i] = 0.5f * moment[i] + 1, weight[i] += moment[i];
    *scale += 1;
}

static int show(mesh_comm *comm, const mesh_named *state, const char *when) {
    double norm;
    int i;
    if (!comm->transport->rank) printf("%s:", when);
    for (i = 0; i < TENSORS; i++) {
        if (mesh_norm(comm, &state[i].tensor, 1, &norm)) return give_up(comm->error.text);
        if (!comm->transport->rank) printf(" |%s| = %g", state[i].name, norm);
    }
    if (!comm->transport->rank) printf("\n");
    return 0;
}

int main(int argc, char **argv) {
    const char *folder = argv[argc - 1], *text[3] = {"step", NULL, NULL};
    int only_show = argc == 3, rank, i, step = 0, failed;
    mesh_socket net;
    mesh m;
    mesh_comm comm;
    mesh_named state[TENSORS];
    mesh_checkpoint saving;
    mesh_checkpoint_desc desc = MESH_ZERO;
    char said[24] = "";
    int64_t length;
    if (argc < 2 || argc > 3 || only_show != !strcmp(argv[1], "--show")) return give_up("checkpoint [--show] FOLDER");
    if (mesh_socket_open(&net, NULL, &err) || mesh_parse(&m, "dp=-1", mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return give_up(err.text);
    rank = net.base.rank;
    state[0] = tensor(&m, "weight", "dp:S(0)", MESH_F32, 2, rank); /* rows sharded, as its moment */
    state[1] = tensor(&m, "moment", "dp:S(0)", MESH_F32, 2, rank);
    state[2] = tensor(&m, "scale", "dp:I", MESH_F64, 0, rank); /* on every rank */
    /* The first run finds no checkpoint: an error that leaves comm and tensors as they are. */
    failed = mesh_checkpoint_load(&comm, folder, state, TENSORS, NULL) != MESH_OK;
    if (failed && (only_show || !strstr(comm.error.text, "holds no checkpoint"))) return give_up(comm.error.text);
    if (!failed && mesh_checkpoint_text(&comm, folder, "step", said, sizeof said, &length))
        return give_up(comm.error.text);
    step = atoi(said);
    if (show(&comm, state, failed ? "new" : "loaded")) return 1;
    for (i = 0; i < 2 && !only_show; i++, step++) train(state, rank);
    if (!only_show) {
        snprintf(said, sizeof said, "%d", step);
        text[1] = said;
        desc.text = text;
        if (mesh_checkpoint_save_start(&comm, folder, state, TENSORS, &desc, &saving)) return give_up(comm.error.text);
        train(state, rank); /* while files are written: what is saved is step 2 of this run, not 3 */
        if (mesh_checkpoint_wait(&saving)) return give_up(comm.error.text);
        if (!rank) printf("step %d is saved\n", step);
    }
    for (i = 0; i < TENSORS; i++) free(state[i].tensor.data);
    mesh_comm_close(&comm);
    return finish("checkpoint", mesh_socket_close(&net) != MESH_OK);
}
