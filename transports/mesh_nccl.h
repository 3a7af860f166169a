/* mesh_nccl.h - GPUs as ranks, over NCCL. Part of mesh.h 0.1.0. MIT licence. */
#include "../mesh_collectives.h"
#include "mesh_nccl_ptx.h"

#ifndef MESH_NCCL_H
#define MESH_NCCL_H
/*
DO THIS
    #define MESH_IMPLEMENTATION         in exactly one file, C or C++; no nvcc needed
    #include "mesh.h"
    #include "mesh_collectives.h"
    #include "transports/mesh_socket.h"
    #include "transports/mesh_nccl.h"   finds nccl.h and cuda_runtime_api.h: cc -isystem /usr/local/cuda/include app.c -ldl -lpthread

EXAMPLE
    mesh_socket net;
    mesh_nccl gpu;
    mesh_error err;
    if (mesh_socket_open(&net, NULL, &err) || mesh_nccl_open(&gpu, &net.base, NULL, &err)) return fail(err.text);
    ... mesh_comm_open(&comm, &gpu.base, ...) ... mesh_all_reduce(&comm, "dp", device_memory, ...) ...
    mesh_comm_close(&comm);
    mesh_nccl_close(&gpu);
    mesh_socket_close(&net);

CONCEPTS
    bootstrap   An open transport (sockets) over which ranks agree on communicators, hear of lost ranks and compare what they called.
                It stays open, and is this transport's alone until mesh_nccl_close: open no comms on it.
    libraries   libnccl.so.2 and libcudart.so of the headers' major version (.13 or .12, then the other) are loaded when opened, those that the
                process has loaded already first (desc, or MESH_NCCL_LIBRARY and MESH_CUDART_LIBRARY, name others): one binary runs with and
                without GPUs. With -DMESH_NCCL_LINK they are linked.
    device      Of LOCAL_RANK (as torchrun, mpirun and srun give it); where a rank sees one device only, that one. Calls make it the
                current device of the thread that calls.
    streams     A group's operations are in one order, that of their starts. The blocking forms run on the caller's stream
                (mesh_comm_desc.stream, mesh_comm_stream), as the bare NCCL call would: nothing is waited for on the host but by
                mesh_barrier (and a first message). A _start runs on a stream of the group's own, after what is on the caller's stream; mesh_wait puts the
                caller's stream behind it; mesh_wait_host blocks. Start and wait only enqueue: a CUDA graph can capture them (buffers
                and comm then outlive the graph).
    order       NCCL has no tags: ranks start the operations of their groups, and point-to-point ones too, in one consistent order.
                A send and a receive that two ranks exchange go into one call (mesh_sendrecv, mesh_exchange, mesh_shift). Where operations
                of several groups are started at once (a pipeline's messages beside what its stages call), desc.launch_order (NCCL_LAUNCH_ORDER_IMPLICIT=1, from 2.26) keeps them from waiting
                for each other on a device; it holds for everything in the process that uses NCCL, so it is off unless asked for.
    communicator  One per ordered list of ranks and comm, shared by the comm's groups with that list; when the comm is closed it is kept for
                the next one with that list, until mesh_nccl_close. A program that has an ncclComm_t of all ranks gives it (desc.comm): what
                has all ranks is then split from it, without a rendezvous of its own. Its own operations may go on beside the library's; all
                ranks issue both in one order.
    connecting  NCCL connects when an algorithm or a peer is first used: on the host, inside that call, until the others have come there
                too. Collectives are connected when their group opens. A first message between two ranks is a rendezvous: it blocks the host.
    what differs  NCCL does not compare calls: 999 elements here and 1,000 there may complete, with a wrong tail. So ranks compare what they have
                called in a group, in the background and in every barrier: within about a second all hear of both calls (where many more
                were made since, only that they differ). Until then results may be wrong. Not compared: counts of v-forms, messages. MESH_NCCL_DEBUG=1
                compares every call, these too, over the bootstrap before it is launched; and tells of memory that a device does not reach.
    memory      mesh_alloc is local, and registers nothing. mesh_register is every rank's: in a window from NCCL 2.27 on, of mesh_alloc's memory
                from 1 MiB on; else as ncclCommRegister does. The engine's scratch and the packed messages' memory are kept until mesh_nccl_close
                (or until there is no other): freeing waits for the device.

ERRORS
    As on every transport. A watchdog thread listens while the program computes or blocks in CUDA: a rank that is lost, an operation
    whose deadline has passed (mesh_comm_desc.timeout_ns, and 2 s more) or NCCL's own error ends the communicators concerned, so that
    streams go on (with data that mean nothing) and the next mesh call says why. "NCCL's last warning" is quoted as what NCCL gives:
    this process's last one, perhaps an old one. A rank that is stuck inside a call of NCCL's (which connects when first needed) is called back by
    revoking its communicator (2.28.7) or aborting it in a group (2.22), which frees it when the rank has come back. Where it has not within 2 s, and with
    older versions, it is aborted under the rank: NCCL promises nothing then, but nothing else would free it.

WHAT IT DOES NOT DO
    minloc, maxloc, user ops, the started form of an object's broadcast and redistribution between two dtypes: host memory only. A graph's replays have
    no deadline: a rank that is lost ends them, one that has stopped or closed its transport does not. Of mesh_parallel.h: the
    vocabulary's lookups. i16, u16, and, or, xor, complex products and scans go through
    sends and receives and small kernels. fp8 is reduced from NCCL 2.24 and compute capability 9.0 on, without avg.
*/
#include <cuda_runtime_api.h>
#include <nccl.h>
#if NCCL_VERSION_CODE < 21800
#error "mesh_nccl.h: NCCL 2.18 or later is needed"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mesh_nccl_desc {
    int device;              /* 1 + the device's number; 0: from the environment */
    int debug;               /* 1: compare every call before its launch; 0: MESH_NCCL_DEBUG */
    int no_watchdog;         /* 1: no thread; a rank blocked in CUDA is then not freed */
    int max_ctas;            /* of a communicator; 0: NCCL chooses */
    int launch_order;        /* 1: sets NCCL_LAUNCH_ORDER_IMPLICIT for the whole process, unless it is set */
    int64_t open_timeout_ns; /* 0: 60 s */
    ncclComm_t comm; /* of all ranks in their order, on their devices, on every rank or on none; of the library that
                                   is loaded here. It is only split: it stays the caller's, who destroys it after mesh_nccl_close */
    const char *nccl_library;   /* NULL: MESH_NCCL_LIBRARY, else libnccl.so.2 */
    const char *cudart_library; /* NULL: MESH_CUDART_LIBRARY, else as above */
} mesh_nccl_desc;

typedef struct mesh_nccl {
    mesh_transport base;            /* first: &gpu.base is the transport */
    int device, devices;            /* this rank's, of how many on this host */
    int nccl_version, cuda_version; /* of the libraries: 22809, 13000 */
    void *impl;
} mesh_nccl;

/* Join the ranks of an open transport as GPUs; every rank calls it. desc may be NULL. Where one rank cannot (no driver, no library, no
   device, a device taken twice) every rank gets the same error, which names that rank and why: UNSUPPORTED where there is no GPU to use,
   else what went wrong. ARGUMENT: the transport is NULL, has comms of its own, or another transport that stands on it; NCCL_COMM_BLOCKING is
   0 or 1. STATE: it is not open. TIMEOUT: ranks missing. On error nothing is open. */
MESH_API mesh_status mesh_nccl_open(mesh_nccl *n, mesh_transport *bootstrap, const mesh_nccl_desc *desc,
                                    mesh_error *err);
/* Closes comms that are still open (what was started in them and not waited for is canceled), waits for what was left to streams (10 s at most,
   whatever its own deadline) and then for the other ranks to close too (60 s at most, as NCCL's communicators are closed together; without a rank
   that was lost, at once). Graphs with this transport's operations are destroyed before. The bootstrap stays open. TIMEOUT: the others do not
   come, or NCCL does not end. TRANSPORT: NCCL could not destroy a communicator; the others are. */
MESH_API mesh_status mesh_nccl_close(mesh_nccl *n);

#ifdef __cplusplus
}
#endif
#endif /* MESH_NCCL_H */

#if !defined(MESH__ONE_ROOM) && !defined(MESH__BEHIND_NCCL) && defined(MESH_IMPLEMENTATION) && \
    !defined(MESH_NCCL_OPEN_IMPLEMENTED)
#define MESH__BEHIND_NCCL
#include "nccl/open.h"
#undef MESH__BEHIND_NCCL
#endif
