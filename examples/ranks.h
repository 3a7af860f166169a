/* The ranks of an example: processes over sockets, as `mesh run` starts them; with -DWITH_MPI (mpicc) those of an MPI job. */
#ifndef RANKS_H
#define RANKS_H

#ifdef WITH_MPI
#include "../transports/mesh_mpi.h"
typedef mesh_mpi ranks_transport;
static mesh_status ranks_open(ranks_transport *r, mesh_error *err) {
    MPI_Init(NULL, NULL);
    return mesh_mpi_open(r, MPI_COMM_WORLD, err);
}
static void ranks_close(ranks_transport *r) {
    mesh_mpi_close(r);
    MPI_Finalize();
}
#else
#include "../transports/mesh_socket.h"
typedef mesh_socket ranks_transport;
static mesh_status ranks_open(ranks_transport *r, mesh_error *err) { return mesh_socket_open(r, NULL, err); }
static void ranks_close(ranks_transport *r) { mesh_socket_close(r); }
#endif

#endif
