/* A matrix moves from rows to columns, and a partial sum becomes a sharded whole, by saying only what is wanted:
   mesh run -n 4 -- build/redistribute */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "ends.h"
#include <stdio.h>

enum { ROWS = 1000, COLUMNS = 601 }; /* sizes need not divide */

static mesh_comm comm;
static mesh_error err;

static int give_up(const char *text) {
    fprintf(stderr, "%s\n", text);
    return 1;
}

/* This rank's part of a matrix: memory for the box that its spec gives it. */
static mesh_tensor tensor(const mesh *m, const char *spec, mesh_box *box) {
    static const int64_t shape[2] = {ROWS, COLUMNS};
    mesh_tensor t;
    if (mesh_tensor_make(&t, m, spec, MESH_F32, 2, shape, &err)) exit(give_up(err.text));
    t.data = calloc((size_t)mesh_tensor_box(&t, comm.transport->rank, box) + 1, sizeof(float));
    return t;
}

static void fill(const mesh_tensor *t, const mesh_box *box) {
    int64_t i, k;
    for (i = 0; i < box->shape[0]; i++)
        for (k = 0; k < box->shape[1]; k++)
            ((float *)t->data)[i * box->shape[1] + k] =
                (float)((box->offset[0] + i) % 100 * 7 + (box->offset[1] + k) % 100);
}

/* How many elements are not what element (i, k) of the matrix is, times `times`. */
static int wrong(const mesh_tensor *t, const mesh_box *box, float times) {
    int64_t i, k;
    int n = 0;
    for (i = 0; i < box->shape[0]; i++)
        for (k = 0; k < box->shape[1]; k++)
            n += ((float *)t->data)[i * box->shape[1] + k] !=
                 (float)((box->offset[0] + i) % 100 * 7 + (box->offset[1] + k) % 100) * times;
    return n;
}

int main(int argc, char **argv) {
    mesh_socket net;
    mesh m;
    mesh_plan plan;
    mesh_box box[4];
    mesh_tensor rows, columns, partial, whole;
    char text[2048];
    int bad;
    if (any_argument(argc, argv, "mesh run -n 4 -- build/redistribute")) return 2;
    if (mesh_socket_open(&net, NULL, &err) || mesh_parse(&m, "dp=-1", mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return give_up(err.text);

    rows = tensor(&m, "dp:S(0)", &box[0]);
    columns = tensor(&m, "dp:S(1)", &box[1]);
    fill(&rows, &box[0]);
    if (mesh_redistribute(&comm, &rows, &columns)) return give_up(comm.error.text);
    bad = wrong(&columns, &box[1], 1);

    partial = tensor(&m, "dp:P(sum)",
                     &box[2]); /* every rank holds a summand of the whole matrix, as after a matrix product */
    whole = tensor(&m, "dp:S(0)", &box[3]);
    fill(&partial, &box[2]);
    if (mesh_redistribute(&comm, &partial, &whole)) return give_up(comm.error.text);
    bad += wrong(&whole, &box[3], (float)m.size);

    if (net.base.rank == 0) { /* what was done; any rank, or `mesh plan`, could have said so before */
        if (mesh_redistribute_plan(&comm, &plan, &partial, &whole, &err)) return give_up(err.text);
        mesh_plan_format(&plan, text, sizeof text);
        printf("%s", text);
    }
    printf("rank %d: rows %lld..%lld are now columns %lld..%lld; %d elements wrong\n", net.base.rank,
           (long long)box[0].offset[0], (long long)(box[0].offset[0] + box[0].shape[0] - 1),
           (long long)box[1].offset[1], (long long)(box[1].offset[1] + box[1].shape[1] - 1), bad);
    free(rows.data), free(columns.data), free(partial.data), free(whole.data);
    mesh_comm_close(&comm);
    mesh_socket_close(&net);
    return finish("redistribute", bad != 0);
}
