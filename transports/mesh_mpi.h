/* mesh_mpi.h - ranks of an MPI job. Part of mesh.h 0.1.0. MIT licence. */
#include "../mesh_collectives.h"

#ifndef MESH_MPI_H
#define MESH_MPI_H
/*
DO THIS
    #define MESH_IMPLEMENTATION         in exactly one file, C or C++
    #include "mesh.h"
    #include "mesh_collectives.h"
    #include "transports/mesh_mpi.h"    needs mpi.h of MPI 3.0 or later: mpicc app.c

EXAMPLE
    mesh_mpi net;
    mesh_error err;
    MPI_Init(&argc, &argv);
    if (mesh_mpi_open(&net, MPI_COMM_WORLD, &err)) return fail(err.text);
    ... mesh_comm_open(&comm, &net.base, ...) ... mesh_all_reduce(&comm, "dp", ...) ...
    mesh_comm_close(&comm);
    mesh_mpi_close(&net);
    MPI_Finalize();

CONCEPTS
    world       The ranks of the communicator given: all of the job's, or a part of them. The program calls MPI beside the library as it likes; nothing
                of the communicator is used but a copy.
    threads     One thread at a time is in the library, and it calls MPI: with MPI_THREAD_SINGLE or _FUNNELED that is the one that called MPI_Init.
    messages    Each is one MPI message. Its tag is its place in its group's order, and of what it is for as much as MPI's tags have room for: ranks that
                disagree do not meet, or by another length, and are told. Messages of one tag meet their receives in order.
                Strided blocks are MPI datatypes: nothing is packed.
    collectives The schedules of mesh_collectives.h: on one host they reduce faster than MPI's own nonblocking ones, and move about as fast (bench/MPI.md);
                results are the same bits as over sockets. Where a network reduces by itself MESH_MPI_NATIVE=1, the same on all ranks, has MPI's serve what they can. They
                cannot serve what MPI has not (bf16 and f16, lists, averages' division), what it defines otherwise (minimum and maximum of floats: a NaN
                is passed on here; sums of integers of 8 and 16 bits, where Open MPI's saturate; minimum and maximum of unsigned ones, which MPICH 4.0 takes for signed), more than 2^31 - 1 elements, and forms with counts per rank.
    groups      Each has a communicator of its own, made after its ranks have said the same of it; kept for the next group of the same ranks, in
                the same order. A rank keeps 256 that no group has; of more the one is freed that was used longest ago, once all its ranks have left it.
                What nobody received in one, and what mesh_mpi_comm has given, stay until the transport closes. MPI has a most (MPICH: 2,048).
    waiting     MPI cannot sleep until something comes. Who waits asks it again and again, leaves its core to others where ranks outnumber the cores or after
                1 ms, and sleeps for 0.1 ms at a time after a second.
    environment MESH_TIMEOUT, MESH_OPEN_TIMEOUT and MESH_MPI_NATIVE. (A progress thread, MESH_TUNING and MESH_TRACE are the sockets'.)

ERRORS
    As on every transport, as far as MPI goes. Its own collectives do not compare calls (Open MPI 4.1 even writes beyond memory that is too short): there
    ranks that disagree are told by the deadline, which asks all what they are in. Most MPIs end the whole job when a process dies; where one goes on,
    the library says what MPI says. Errors of MPI are returned, not fatal, from mesh_mpi_open to mesh_mpi_close, on MPI_COMM_WORLD as well (Open MPI
    reports some there). A message that nobody has received, a collective of MPI's that was given up, and a receive that was given up when it
    had met its message (MPI takes no such one back; it is waited for 0.2 s) stay MPI's until mesh_mpi_close, or until MPI_Finalize where that is
    TIMEOUT: their buffers must then live as long, and what was being received may still be written there. Where a rank does not close, communicators
    are left to MPI_Finalize.
    Nothing is aborted: MPI_Abort is the program's. One wait is MPI's own, without a deadline, for MPI has no nonblocking call that makes the communicator of
    a group: MPI_Comm_create_group. It is called once all its ranks have said, twice, that they are there and need nothing more: then only a rank that
    dies inside of it, or where it fails on one rank alone, holds the others.
*/
#include <mpi.h>
#if MPI_VERSION < 3
#error "mesh_mpi.h: MPI 3.0 or later is needed"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mesh_mpi {
    mesh_transport base; /* first: &net.base is the transport */
    void *impl;
} mesh_mpi;

/* Every rank of an intracommunicator calls it; it stays the caller's. STATE: MPI is not initialised, or is finalised, or knows of this rank alone where a
   launcher started several (mesh run, or another MPI's). ARGUMENT: no intracommunicator; MESH_TIMEOUT or MESH_OPEN_TIMEOUT is no number of
   seconds. MEMORY. What is wrong on one rank every rank hears ("rank 3 failed: ..."), but for an argument that is no intracommunicator, or no memory to begin with.
   TIMEOUT: not all of its ranks have called it within MESH_OPEN_TIMEOUT, 60 s without it; a collective of MPI's that this rank began is then still under way on the communicator, where no
   other may follow. On error nothing is open. */
MESH_API mesh_status mesh_mpi_open(mesh_mpi *net, MPI_Comm comm, mesh_error *err);
/* Before MPI_Finalize. Closes comms that are still open, delivers what was sent, and waits for the other ranks to close too, 60 s at most, and 1 s where
   something has failed: messages that nobody has received are received then. TIMEOUT: the others do not come. TRANSPORT: MPI has failed. STATE: MPI is finalised already. */
MESH_API mesh_status mesh_mpi_close(mesh_mpi *net);
/* A communicator of the group's ranks, in its order, for other libraries. Every rank of the group calls it. It is a copy, the library's until
   mesh_mpi_close; the same one each time. Errors of MPI on it are returned. STATE: no such group, or not over MPI. TIMEOUT: not all of them call it. */
MESH_API mesh_status mesh_mpi_comm(mesh_comm *c, const char *axes, MPI_Comm *out);

#ifdef __cplusplus
}
#endif
#endif /* MESH_MPI_H */

#if !defined(MESH__ONE_ROOM) && !defined(MESH__BEHIND_MPI) && defined(MESH_IMPLEMENTATION) && \
    !defined(MESH_MPI_OPEN_IMPLEMENTED)
#define MESH__BEHIND_MPI
#include "mpi/open.h"
#undef MESH__BEHIND_MPI
#endif
