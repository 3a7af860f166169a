/* What a start costs: a fresh all_reduce_start against a kept request started again, in ns of this rank's time until start returns, and
   the whole operation. Run as a job: mesh run -n 2 -- build/bench_persistent. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include <stdio.h>

enum { STARTS = 2000, LIST = 300 };

static mesh_comm comm;

static void must(mesh_status status) {
    if (status == MESH_OK) return;
    fprintf(stderr, "%s\n", comm.error.text);
    exit(1);
}

static int order(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Median ns until start returns, and until the operation ends. `list`: a call on 300 small buffers instead of one. */
static void measure(const char *what, size_t count, int list) {
    static float data[LIST][4096];
    static int64_t starts[2][STARTS], ends[2][STARTS];
    mesh_buffer buffers[LIST];
    mesh_request kept, r;
    int i, k;
    for (i = 0; i < LIST; i++) {
        buffers[i].send = buffers[i].recv = data[i];
        buffers[i].count = count;
    }
    must(list ? mesh_all_reduce_many_start(&comm, NULL, buffers, LIST, MESH_F32, MESH_MAX, &kept)
              : mesh_all_reduce_start(&comm, NULL, data[0], data[0], count, MESH_F32, MESH_MAX, &kept));
    must(mesh_keep(kept));
    must(mesh_wait(kept));
    for (i = 0; i < STARTS; i++)
        for (k = 0; k < 2; k++) {
            int64_t begin;
            must(mesh_barrier(&comm, NULL));
            begin = mesh_socket__clock();
            r = kept;
            if (k)
                must(mesh_restart(kept));
            else
                must(list ? mesh_all_reduce_many_start(&comm, NULL, buffers, LIST, MESH_F32, MESH_MAX, &r)
                          : mesh_all_reduce_start(&comm, NULL, data[0], data[0], count, MESH_F32, MESH_MAX, &r));
            starts[k][i] = mesh_socket__clock() - begin;
            must(mesh_wait(r));
            ends[k][i] = mesh_socket__clock() - begin;
        }
    must(mesh_release(kept));
    for (k = 0; k < 2; k++) {
        qsort(starts[k], STARTS, sizeof(int64_t), order);
        qsort(ends[k], STARTS, sizeof(int64_t), order);
    }
    if (comm.transport->rank == 0)
        printf("%-28s start: fresh %7lld ns, kept %7lld ns; whole: fresh %8lld ns, kept %8lld ns\n", what,
               (long long)starts[0][STARTS / 2], (long long)starts[1][STARTS / 2], (long long)ends[0][STARTS / 2],
               (long long)ends[1][STARTS / 2]);
}

int main(void) {
    mesh_socket net;
    mesh m;
    mesh_error err;
    if (mesh_socket_open(&net, NULL, &err) || mesh_parse(&m, "x=-1", mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return fprintf(stderr, "%s\n", err.text), 1;
    measure("all_reduce of 1 f32", 1, 0);
    measure("all_reduce of 1,024 f32", 1024, 0);
    measure("all_reduce of 4,096 f32", 4096, 0);
    measure("300 buffers of 16 f32", 16, 1);
    mesh_comm_close(&comm);
    return mesh_socket_close(&net);
}
