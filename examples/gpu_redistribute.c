/* gpu_redistribute: tensors in device memory change their layout: weights sharded for FSDP become tensor-parallel, partial gradients
   become the shards that an optimizer owns. One source for GPUs and for none.
       build/mesh run -n 4 -- build/gpu_redistribute [--device cuda: over NCCL, or it fails]                                    */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "../transports/mesh_nccl.h"
#include "ends.h"
#include <stdio.h>

enum { ROWS = 1001, COLUMNS = 516 }; /* sizes need not divide */

static mesh_comm comm;
static mesh_error err;

static void must(mesh_status status, const char *text) {
    if (status == MESH_OK) return;
    fprintf(stderr, "gpu_redistribute: %s\n", text);
    exit(1);
}

/* Element (i, k) of the matrix: small integers, so that sums are exact. */
static float element(int64_t i, int64_t k) { return (float)((i * 7 + k) % 128); }

/* This rank's part of the matrix under a spec, in the transport's memory. */
static mesh_tensor tensor(const mesh *m, const char *spec, mesh_box *box) {
    static const int64_t shape[2] = {ROWS, COLUMNS};
    mesh_tensor t;
    size_t count;
    must(mesh_tensor_make(&t, m, spec, MESH_F32, 2, shape, &err), err.text);
    count = (size_t)mesh_tensor_box(&t, comm.transport->rank, box);
    must(mesh_alloc(comm.transport, count * sizeof(float), &t.data, &comm.error), comm.error.text);
    return t;
}

/* Write this rank's part, or count its elements that are not `times` the matrix's. */
static int part(const mesh_tensor *t, const mesh_box *box, int check, float times) {
    size_t n = (size_t)mesh_box_count(box), at = 0;
    float *host = (float *)malloc((n + 1) * sizeof *host);
    int64_t i, k;
    int wrong = 0;
    if (!host) must(MESH_ERR_MEMORY, "out of memory");
    if (check) must(mesh_copy(&comm, host, t->data, n * sizeof *host), comm.error.text);
    for (i = 0; i < box->shape[0]; i++)
        for (k = 0; k < box->shape[1]; k++, at++) {
            float value = element(box->offset[0] + i, box->offset[1] + k) * times;
            wrong += check && host[at] != value;
            host[at] = value;
        }
    if (!check) must(mesh_copy(&comm, t->data, host, n * sizeof *host), comm.error.text);
    free(host);
    return wrong;
}

int main(int argc, char **argv) {
    mesh_socket net;
    mesh_nccl gpu;
    mesh_transport *t = &gpu.base;
    mesh m;
    mesh_plan plan;
    mesh_box box[4];
    mesh_tensor fsdp, tp, partial, owned, from[2], to[2];
    char text[2048];
    int bad, i, cuda = argc == 3 && !strcmp(argv[1], "--device") && !strcmp(argv[2], "cuda");
    if (argc > 1 && !cuda) return fprintf(stderr, "usage: gpu_redistribute [--device cuda]\n"), 2;
    must(mesh_socket_open(&net, NULL, &err), err.text);
    if (mesh_nccl_open(&gpu, &net.base, NULL, &err)) {
        must(cuda ? MESH_ERR_UNSUPPORTED : MESH_OK, err.text);
        if (net.base.rank == 0) printf("on sockets: %s\n", err.text);
        t = &net.base;
    }
    must(mesh_parse(&m, t->size % 2 ? "dp=1,tp=-1" : "dp=2,tp=-1", mesh_world(t), &err), err.text);
    must(mesh_comm_open(&comm, t, &m, NULL, &err), err.text);

    fsdp = tensor(&m, "dp:S(0)@0 tp:S(0)@1", &box[0]);  /* rows over all ranks */
    tp = tensor(&m, "tp:S(1)", &box[1]);                /* columns over tp, the same on every dp index */
    partial = tensor(&m, "dp:P(sum) tp:S(1)", &box[2]); /* gradients as a backward pass leaves them */
    owned = tensor(&m, "dp:S(0) tp:S(1)", &box[3]);
    part(&fsdp, &box[0], 0, 1);
    part(&partial, &box[2], 0, 1);

    from[0] = fsdp, to[0] = tp;
    from[1] = partial, to[1] = owned;
    must(mesh_redistribute_many(&comm, from, to, 2),
         comm.error.text); /* both at once: enqueued, like every call on GPUs */

    bad = part(&tp, &box[1], 1, 1) + part(&owned, &box[3], 1, (float)m.axis[0].size);
    if (t->rank == 0)
        for (i = 0; i < 2; i++) {
            must(mesh_redistribute_plan(&comm, &plan, &from[i], &to[i], &err), err.text);
            mesh_plan_format(&plan, text, sizeof text);
            printf("%s", text);
        }
    if (t == &gpu.base)
        printf("rank %d, over nccl %d.%d.%d, on its GPU: %d elements wrong\n", t->rank, gpu.nccl_version / 10000,
               gpu.nccl_version / 100 % 100, gpu.nccl_version % 100, bad);
    else
        printf("rank %d, over sockets, on the host: %d elements wrong\n", t->rank, bad);
    mesh_free(comm.transport, fsdp.data, &comm.error), mesh_free(comm.transport, tp.data, &comm.error),
        mesh_free(comm.transport, partial.data, &comm.error), mesh_free(comm.transport, owned.data, &comm.error);
    mesh_comm_close(&comm);
    if (t == &gpu.base) mesh_nccl_close(&gpu);
    mesh_socket_close(&net);
    return finish("gpu_redistribute", bad != 0);
}
