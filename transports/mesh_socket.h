/* mesh_socket.h - processes as ranks, over TCP and Unix-domain sockets. Part of mesh.h 0.1.0. MIT licence. */
#include "../mesh_collectives.h"

#ifndef MESH_SOCKET_H
#define MESH_SOCKET_H
/*
DO THIS
    #define MESH_IMPLEMENTATION         in exactly one file
    #include "mesh.h"
    #include "mesh_collectives.h"
    #include "transports/mesh_socket.h"

EXAMPLE
    mesh_socket net;
    mesh_error err;
    if (mesh_socket_open(&net, NULL, &err)) return fail(err.text);     who am I: from the environment; alone: a world of 1
    ... mesh_comm_open(&comm, &net.base, ...) ...
    mesh_socket_close(&net);

WHO AM I
    What the desc leaves 0 comes from the environment, the first of these that is there:
        RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT      torchrun, `mesh run`
        OMPI_COMM_WORLD_RANK / _SIZE / _LOCAL_RANK              Open MPI's mpirun
        PMI_RANK PMI_SIZE                                       MPICH's mpirun (MPI_LOCALRANKID)
        SLURM_PROCID SLURM_NTASKS SLURM_LOCALID                 srun; rank 0's host is the first of SLURM_STEP_NODELIST
    MASTER_ADDR is 127.0.0.1 where nothing says otherwise. The port is MESH_PORT, else MASTER_PORT, else one made of the job's name
    where the launcher gives it one, else 29400. With TORCHELASTIC_USE_AGENT_STORE=True torchrun's agent holds MASTER_PORT itself: MASTER_PORT + 1 is used.
    MESH_LISTEN_FD: a listening socket that rank 0 inherits (from `mesh run`), so that no port can be taken in between. A desc.port that is not its
    port is another world's, which leaves it alone.

CONCEPTS
    rendezvous  Every rank connects to rank 0, which hands out the address book. Other connections are opened when first used, one
                per pair of ranks, over a Unix-domain socket where both are on one host (MESH_SOCKET_LANES=tcp: always TCP).
    shared      Linux: up to 64 ranks on one host have memory in common (an anonymous file, passed over those sockets; gone with the last of
                them). Messages between them, and collectives of groups that lie on the host, go through it; mesh_alloc gives memory that the
                others read and write where it is. MESH_SOCKET_LANES=unix: without. Where the kernel gives none,
                that is logged and it is sockets.
    secret      Both ends of every connection prove that they know the job's secret (HMAC-SHA-256 over two nonces) before any other
                byte is read: MESH_SECRET, made by `mesh run`, or the file that MESH_SECRET_FILE names. Without one only loopback is
                used, unless desc.insecure says otherwise. What follows the proof is neither encrypted nor signed.
    job         Ranks of another job that find the same port are turned away by the secret, and by the job's name where the launcher
                gives it one (PMIX_NAMESPACE; SLURM_JOB_ID and SLURM_STEP_ID; PMI_JOBID; TORCHELASTIC_RUN_ID).
    message     Up to 16 KiB, and up to 64 KiB where the connection is idle, go at once, within a credit of 1 MiB per peer; larger
                ones when the receiver has posted, in frames that interleave, straight from and to the caller's memory, strided or not.
    MESH_TRACE  A directory: every rank writes rank-N.json there, an event for every operation, for Perfetto (ui.perfetto.dev) and for
                `mesh trace`, which merges them, on rank 0's clock, and says who is late. Ranks compare clocks with it in the first comm
                that they open with it, or with one that has; clocks that drift apart later do so in the trace.
    thread      desc.progress_thread: a thread that lets what was started go on while the program computes, answers other ranks and finds lost ones
                and deadlines. It works in short turns and steps aside for any caller; still one thread of the program's at a time is in
                the library. User ops and mesh_transport.trace may run on it. It works until mesh_socket_close, also while main returns: what it uses
                (mesh_socket, mesh_comm) must not stand in main's frame then. Linux; with glibc before 2.34 define MESH_SOCKET_THREADS,
                and link with -lpthread.
    MESH_TIMEOUT  Seconds that an operation may take, for comms whose description says none.
    MESH_OPEN_TIMEOUT  Seconds until every rank has come. After 5 s it is logged who has not.
    MESH_TUNING A file with a tuning table (see mesh_tuning_row; `mesh bench --tune` writes one): which algorithm serves which call.

ERRORS
    The peer that is lost is named on every rank: by those connected to it, which tell those they are connected to. On one host that is
    when its process ends (Linux), over TCP when its connections do: a program that forks calls mesh_socket_close in the child, or
    execs, for a child that outlives the rank keeps them open. There that closes descriptors and mappings, says nothing to anybody and is OK; every
    other call is STATE in a child (Linux 4.14 and later). Of stdin, stdout and stderr those that are closed as it opens become /dev/null. Where a connection breaks between two living ranks one of them is given
    up; comms without that one go on. Another host that falls silent is found by TCP (keepalive, or what it owes an answer to) within about
    20 s, and given up as long after the first connection to it that nobody answers; one whose program is slow is not.

WHAT IT DOES NOT DO
    RDMA.
*/

#ifdef __cplusplus
extern "C" {
#endif

enum { MESH_SOCKET_AUTO = 0, MESH_SOCKET_TCP = 1, MESH_SOCKET_UNIX = 2 };

typedef struct mesh_socket_desc {
    int rank, size;      /* size 0: both from the environment */
    int local_rank;      /* used with size */
    const char *address; /* of rank 0, a name or number; NULL: from the environment */
    int port;            /* of rank 0; 0: from the environment */
    const char *secret;  /* NULL: MESH_SECRET, else the file MESH_SECRET_FILE; "": none */
    int insecure;        /* 1: go beyond loopback without a secret */
    int lanes; /* MESH_SOCKET_TCP: TCP even on one host; MESH_SOCKET_UNIX: no shared memory; 0: MESH_SOCKET_LANES (auto, unix, tcp) */
    int64_t open_timeout_ns; /* until every rank has come; 0: MESH_OPEN_TIMEOUT (seconds), else 60 s */
    int listen_fd;           /* above 0: rank 0's listening socket; 0: MESH_LISTEN_FD, where that is at `port`, else its own */
    int progress_thread; /* 1: what was started goes on while the program computes; 0: MESH_PROGRESS_THREAD, else not */
    mesh_allocator allocator;
    mesh_log log; /* NULL: warnings go to stderr */
    void *log_ctx;
} mesh_socket_desc;

typedef struct mesh_socket {
    mesh_transport base; /* first: &net.base is the transport */
    int local_rank;      /* among the ranks on this host; -1: unknown */
    void *impl;
} mesh_socket;

/* Join the job: returns when every rank has come. desc may be NULL. ARGUMENT: rank or size wrong, a variable that is no number, beyond
   loopback without a secret. TRANSPORT: port taken, rank 0 not reached, rank given twice, wrong secret. TIMEOUT: ranks missing, named.
   On error nothing is open. */
MESH_API mesh_status mesh_socket_open(mesh_socket *net, const mesh_socket_desc *desc, mesh_error *err);
/* Orderly goodbye: what was sent is delivered; comms still open are closed. Closing what is not open does nothing. */
MESH_API mesh_status mesh_socket_close(mesh_socket *net);

#ifdef __cplusplus
}
#endif
#endif /* MESH_SOCKET_H */

#if !defined(MESH__ONE_ROOM) && !defined(MESH__BEHIND_SOCKET) && defined(MESH_IMPLEMENTATION) && \
    !defined(MESH_SOCKET_OPEN_IMPLEMENTED)
#define MESH__BEHIND_SOCKET
#include "socket/open.h"
#undef MESH__BEHIND_SOCKET
#endif
