/* fake_nccl.c: a stand-in for libnccl.so.2 on the CPU, for tests. README.md says what it models.
 *
 * The ranks of a comm share one memory segment, an unnamed file that its creator keeps open until all have attached.
 * A collective goes in rounds: every rank posts a chunk on its board, all meet at a barrier, every rank reads the
 * boards. Sends and receives go through one small ring for each ordered pair of ranks. A rank whose call does not fit
 * the others' never passes the barrier: as with NCCL, only an abort ends it. */
#define _GNU_SOURCE
#include "nccl.h"
#include "fake.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "world.h"
#include "comms.h"
#include "reductions.h"
#include "operations.h"

/* ---- Kernels: what a group launches for one comm ---------------------------------------------------------------- */

typedef struct kernel {
    ncclComm_t comm;
    const void *owner;
    size_t count;
    operation operations[];
} kernel;

static void kernel_p2p(const kernel *k) {
    size_t count = 0;
    transfer *all = must_calloc((k->count + 1) * sizeof *all);
    for (size_t i = 0; i < k->count; i++) {
        const operation *o = &k->operations[i];
        if (!is_p2p(o->kind)) continue;
        int sends = o->kind == SEND;
        transfer *t = &all[count++];
        t->o = o;
        t->ring = sends ? ring_of(k->comm, k->comm->rank, o->root) : ring_of(k->comm, o->root, k->comm->rank);
        t->bytes = o->count * type_bytes(o->type);
        t->memory = fake_memory(sends ? o->send : o->recv, t->bytes, 0, operation_names[o->kind]);
    }
    if (count) run_transfers(k->comm, all, count);
    free(all);
}

/* FAKE_NCCL_ASYNC_ERROR=rank:n: the n-th operation finds an error and hangs. */
static void kernel_injected_error(const kernel *k) {
    unsigned long long n;
    if (!injected("FAKE_NCCL_ASYNC_ERROR", &n)) return;
    for (size_t i = 0; i < k->count; i++)
        if (k->operations[i].number == n)
            atomic_store(&k->comm->fault, fail(ncclInternalError, "error injected by FAKE_NCCL_ASYNC_ERROR"));
    while (atomic_load(&k->comm->fault) && !atomic_load(&k->comm->stop)) pause_us(1000);
}

static void kernel_issued(void *data) {
    ncclComm_t c = ((kernel *)data)->comm;
    check_usable(c, "launch of a graph");
    atomic_fetch_add(&c->pending, 1);
}

static void kernel_run(void *data) {
    kernel *k = data;
    ncclComm_t c = k->comm;
    if (!atomic_load(&c->stop)) {
        kernel_injected_error(k);
        for (size_t i = 0; i < k->count && !atomic_load(&c->stop); i++)
            if (!is_p2p(k->operations[i].kind)) run_collective(&k->operations[i]);
        if (!atomic_load(&c->stop)) kernel_p2p(k);
    }
    atomic_fetch_sub(&c->pending, 1);
}

static void kernel_release(void *data) {
    atomic_fetch_sub(&((kernel *)data)->comm->held, 1);
    free(data);
}

static int kernel_stopped(void *data) { return atomic_load(&((kernel *)data)->comm->stop); }
static const void *kernel_owner(void *data) { return ((kernel *)data)->owner; }

static const fake_task_kind kernel_kind = {kernel_issued, kernel_run, kernel_release, kernel_stopped, kernel_owner};

/* Between comms, NCCL promises an order only where NCCL_LAUNCH_ORDER_IMPLICIT asked for it before the first launch. */
static int kernels_are_ordered(void) {
    static atomic_int known; /* 1: no, 2: yes */
    if (!atomic_load(&known)) {
        int implicit = library_version() >= 22600 && fake_env("NCCL_LAUNCH_ORDER_IMPLICIT", 0);
        atomic_store(&known, implicit || !fake_env("FAKE_NCCL_UNORDERED", 1) ? 2 : 1);
    }
    return atomic_load(&known) == 2;
}

/* ---- What a group waits for on the host, before it launches ----------------------------------------------------- */

static atomic_ullong connects;
unsigned long long fake_connects(void) { return atomic_load(&connects); }

typedef struct joint { /* something that a comm has not connected yet */
    ncclComm_t comm;
    meeting *at;
    int nranks;
} joint;

typedef struct joint_list {
    joint *items;
    size_t count;
} joint_list;

static void joint_add(joint_list *list, ncclComm_t c, int place, joint one) {
    if (c->connected[place]) return;
    c->connected[place] = 1;
    list->items[list->count++] = one;
}

static void join_algorithm(joint_list *list, ncclComm_t c, enum algorithm algorithm) {
    if (c->nranks == 1 || library_version() < 22200 || c->connected[algorithm]) return;
    trace("connect %s comm=%llx ranks=%d rank=%d\n", algorithm_names[algorithm], c->serial, c->nranks, c->rank);
    joint_add(list, c, algorithm, (joint){c, &shared_of(c)->connecting[algorithm], c->nranks});
}

static void join_peer(joint_list *list, ncclComm_t c, int peer, operation_kind as) {
    int place = ALGORITHMS + (as == SEND ? 0 : c->nranks) + peer;
    ring *r = as == SEND ? ring_of(c, c->rank, peer) : ring_of(c, peer, c->rank);
    if (peer == c->rank || c->connected[place]) return;
    trace("connect peer %d comm=%llx ranks=%d rank=%d %s\n", peer, c->serial, c->nranks, c->rank, operation_names[as]);
    joint_add(list, c, place, (joint){c, &r->connecting, 2});
}

/* As NCCL does with its messages, and as it may do with its collectives. */
static void join_operation(joint_list *list, const operation *o) {
    ncclComm_t c = o->comm;
    int at_root = c->rank == o->root, gives = o->kind == ALL_TO_ALL || o->kind == (at_root ? SCATTER : GATHER),
        gets = o->kind == ALL_TO_ALL || o->kind == (at_root ? GATHER : SCATTER);
    int small = o->kind == ALL_REDUCE && o->count * type_bytes(o->type) < TREE_BYTES;
    if (is_p2p(o->kind))
        join_peer(list, c, o->root, o->kind);
    else if (o->kind != ALL_TO_ALL && o->kind != GATHER && o->kind != SCATTER)
        join_algorithm(list, c, small ? TREE : RING);
    for (int peer = 0; peer < c->nranks; peer++) {
        int named = o->kind == ALL_TO_ALL || at_root || peer == o->root;
        if (gives && named) join_peer(list, c, peer, SEND);
        if (gets && named) join_peer(list, c, peer, RECV);
    }
}

/* An end of one comm's calls, or a peer known to be dead, ends the whole group. */
static ncclResult_t joints_cut(const joint_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        ncclComm_t c = list->items[i].comm;
        look_for_dead_peers(c);
        if (atomic_load(&c->stop)) return fail(ncclInternalError, "the call was aborted");
        if (atomic_load(&c->fault) == ncclRemoteError) return fail(ncclRemoteError, "a peer is gone");
    }
    return ncclSuccess;
}

/* Comes to all of them, then waits for all: their order within a group is nobody's business. */
static ncclResult_t joints_meet(const joint_list *list, int phase) {
    for (size_t i = 0; i < list->count; i++) atomic_fetch_add(&list->items[i].at->arrived[phase], 1);
    for (size_t i = 0; i < list->count;) {
        if (atomic_load(&list->items[i].at->arrived[phase]) == list->items[i].nranks) {
            i++;
            continue;
        }
        ncclResult_t code = joints_cut(list);
        for (; code && i < list->count; i++) atomic_fetch_sub(&list->items[i].at->arrived[phase], 1);
        if (code) return code;
        pause_us(50);
    }
    return ncclSuccess;
}

static ncclResult_t group_connect(const operation *operations, size_t count) {
    size_t most = 0;
    if (!fake_env("FAKE_NCCL_RUNTIME_CONNECT", 1)) return ncclSuccess;
    for (size_t i = 0; i < count; i++) most += 2 * (size_t)operations[i].comm->nranks;
    joint_list list = {must_calloc(most * sizeof *list.items), 0};
    for (size_t i = 0; i < count; i++) join_operation(&list, &operations[i]);
    if (list.count) atomic_fetch_add(&connects, 1);
    ncclResult_t code = joints_meet(&list, 0);
    if (!code) code = joints_meet(&list, 1);
    free(list.items);
    return code;
}

static int is_registered(ncclComm_t c, const void *memory, size_t bytes) {
    for (const registration *r = c->registrations; bytes && r; r = r->next)
        if (!r->is_window && (const char *)memory >= r->memory &&
            (size_t)((const char *)memory - r->memory) + bytes <= r->bytes)
            return 1;
    return 0;
}

/* Collectives on registered memory (NVLS) meet where neither abort nor revoke ends the wait. */
static void meet_registered(const operation *o) {
    ncclComm_t c = o->comm;
    double start = now_ms(), longest = (double)fake_env("FAKE_NCCL_NVLS_HANG_MS", 20000);
    int send = o->kind == ALL_REDUCE || o->kind == REDUCE_SCATTER, recv = o->kind == ALL_REDUCE || o->kind == ALL_GATHER;
    if ((!send && !recv) || !fake_env("FAKE_NCCL_NVLS", 1)) return;
    if (send && !is_registered(c, o->send, bytes_sent(o))) return;
    if (recv && !is_registered(c, o->recv, bytes_received(o))) return;
    unsigned mine = atomic_fetch_add(&card_of(c, c->rank)->registered_collectives, 1) + 1;
    for (int rank = 0; rank < c->nranks;) {
        if (atomic_load(&card_of(c, rank)->registered_collectives) >= mine) {
            rank++;
            continue;
        }
        if (now_ms() - start > longest)
            fake_die("%s on memory that is registered here: rank %d did not come with registered memory; nothing ends "
                     "this wait",
                     operation_names[o->kind], rank);
        pause_us(50);
    }
}

/* ---- Groups ----------------------------------------------------------------------------------------------------- */

static int streams_seen(const kernel *k, size_t before) {
    for (size_t i = 0; i < before; i++)
        if (k->operations[i].stream == k->operations[before].stream) return 1;
    return 0;
}

/* A kernel starts on its first operation's stream when all its streams are there, and all wait for its end. */
static cudaError_t kernel_enqueue(kernel *k) {
    cudaStream_t first = k->operations[0].stream, *others = must_calloc(k->count * sizeof *others);
    size_t nothers = 0;
    cudaError_t error = cudaSuccess;
    for (size_t i = 1; i < k->count; i++)
        if (!streams_seen(k, i)) others[nothers++] = k->operations[i].stream;
    for (size_t i = 0; i < k->count; i++)
        if (fake_stream_device(k->operations[i].stream) != k->comm->device) error = cudaErrorInvalidResourceHandle;
    for (size_t i = 0; i < nothers && !error; i++) error = fake_stream_join(first, others[i]);
    if (error)
        kernel_release(k);
    else
        error = fake_enqueue(first, &kernel_kind, k);
    for (size_t i = 0; i < nothers && !error; i++) error = fake_stream_join(others[i], first);
    free(others);
    return error;
}

/* FAKE_NCCL_ENQUEUE_HANG=rank:n: the call that starts the n-th operation does not come back by itself. */
static int hangs_at_enqueue(const kernel *k) {
    unsigned long long n;
    if (!injected("FAKE_NCCL_ENQUEUE_HANG", &n)) return 0;
    for (size_t i = 0; i < k->count; i++)
        if (k->operations[i].number == n) return 1;
    return 0;
}

static ncclResult_t check_self_messages(const kernel *k) {
    long balance = 0;
    for (size_t i = 0; i < k->count; i++) {
        const operation *o = &k->operations[i];
        if (is_p2p(o->kind) && o->root == k->comm->rank) balance += o->kind == SEND ? 1 : -1;
    }
    return balance ? fail(ncclInvalidUsage, "a rank sends to or receives from itself outside of one group")
                   : ncclSuccess;
}

static ncclResult_t kernel_launch(const operation *operations, size_t count, ncclComm_t c) {
    kernel *k = must_calloc(sizeof *k + count * sizeof *operations);
    k->comm = c;
    k->owner = kernels_are_ordered() ? NULL : c;
    atomic_fetch_add(&c->held, 1);
    for (size_t i = 0; i < count; i++)
        if (operations[i].comm == c) k->operations[k->count++] = operations[i];
    ncclResult_t code = check_self_messages(k);
    if (!code && atomic_load(&c->aborted)) code = fail(ncclInvalidUsage, "the comm is being aborted");
    if (!code && hangs_at_enqueue(k)) {
        int missed = fake_env("FAKE_NCCL_REVOKE_MISSES", 0) != 0;
        atomic_fetch_add(&c->missed, missed);
        while (!atomic_load(missed ? &c->aborted : &c->stop)) pause_us(1000);
        atomic_fetch_sub(&c->missed, missed);
        code = fail(ncclInternalError, "the call was aborted");
    }
    if (code) {
        kernel_release(k);
        return code;
    }
    int device;
    cudaGetDevice(&device);
    cudaSetDevice(c->device); /* whose default stream is meant by NULL */
    cudaError_t error = kernel_enqueue(k);
    cudaSetDevice(device);
    return error ? fail(ncclUnhandledCudaError, "%s", cudaGetErrorString(error)) : ncclSuccess;
}

typedef struct group_job {
    job base;
    size_t count;
    operation operations[];
} group_job;

static int comm_seen(const operation *operations, size_t before) {
    for (size_t i = 0; i < before; i++)
        if (operations[i].comm == operations[before].comm) return 1;
    return 0;
}

/* Launches one kernel for each comm, in the order in which the group first names them. */
static ncclResult_t group_run(job *self) {
    group_job *g = (group_job *)self;
    ncclResult_t code = ncclSuccess;
    if (!self->comm->config.blocking) pause_us((long)fake_env("FAKE_NCCL_LAUNCH_US", 50));
    for (size_t i = 0; i < g->count; i++) meet_registered(&g->operations[i]);
    code = group_connect(g->operations, g->count);
    for (size_t i = 0; i < g->count && !code; i++)
        if (!comm_seen(g->operations, i)) code = kernel_launch(g->operations, g->count, g->operations[i].comm);
    for (size_t i = 0; i < g->count; i++)
        if (!comm_seen(g->operations, i) && g->operations[i].comm != self->comm)
            job_finish(g->operations[i].comm, code, 1);
    return code;
}

static void group_call(const operation *operations, size_t count, int change) {
    for (size_t i = 0; i < count; i++)
        if (!comm_seen(operations, i)) atomic_fetch_add(&operations[i].comm->callers, change);
}

static ncclResult_t group_launch(const operation *operations, size_t count) {
    group_job *g = must_calloc(sizeof *g + count * sizeof *operations);
    ncclComm_t leader = operations[0].comm;
    g->base.run = group_run;
    g->base.launches = 1;
    g->count = count;
    memcpy(g->operations, operations, count * sizeof *operations);
    for (size_t i = 0; i < count; i++)
        if (!operations[i].comm->config.blocking) leader = operations[i].comm;
    for (size_t i = 0; i < count; i++) {
        ncclComm_t c = operations[i].comm;
        if (c == leader || comm_seen(operations, i)) continue;
        atomic_fetch_add(&c->inside, 1);
        if (!leader->config.blocking) atomic_store(&c->state, ncclInProgress);
    }
    group_call(operations, count, 1);
    ncclResult_t code = job_start(leader, &g->base);
    group_call(operations, count, -1);
    return code;
}

ncclResult_t ncclGroupStart(void) {
    ENTER(0);
    open_group.depth++;
    return ncclSuccess;
}

static ncclResult_t group_end(void) {
    group *g = &open_group;
    if (g->depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd: no group is open");
    if (--g->depth) return ncclSuccess;
    group ended = *g;
    *g = (group){0};
    ncclResult_t code = ended.error;
    if (!code && ended.count) code = group_launch(ended.operations, ended.count);
    for (size_t i = 0; i < ended.nends; i++) comm_say_leaving(ended.ends[i]);
    for (size_t i = 0; i < ended.nends; i++) {
        if (atomic_load(&ended.ends[i]->callers)) atomic_fetch_add(&unsafe_aborts, 1);
        comm_end(ended.ends[i]);
    }
    free(ended.operations);
    free(ended.ends);
    return code;
}

ncclResult_t ncclGroupEnd(void) {
    ENTER(0);
    fake_count(FAKE_GROUP_ENDS);
    if (open_group.depth == 1)
        for (size_t i = 0; i < open_group.count; i++) check_usable(open_group.operations[i].comm, __func__);
    return group_end();
}

static void group_add(operation o) {
    group *g = &open_group;
    if (g->count == g->room) {
        g->room = g->room ? g->room * 2 : 4;
        g->operations = realloc(g->operations, g->room * sizeof *g->operations);
        if (!g->operations) fake_die("out of host memory");
    }
    g->operations[g->count++] = o;
}

/* ---- Operations: the calls -------------------------------------------------------------------------------------- */

static void trace_operation(const operation *o, int grouped) {
    trace("%llu comm=%llx ranks=%d rank=%d %s count=%zu type=%d op=%d root=%d stream=%p grouped=%d\n", o->number,
          o->comm->serial, o->comm->nranks, o->comm->rank, operation_names[o->kind], o->count, (int)o->type, (int)o->op,
          o->root, (void *)o->stream, grouped);
}

/* Memory that is read and written may only be the same where NCCL says so; elsewhere results would be garbage. */
static ncclResult_t check_overlap(const operation *o) {
    uintptr_t send = (uintptr_t)o->send, recv = (uintptr_t)o->recv;
    size_t block = o->count * type_bytes(o->type), rank = (size_t)o->comm->rank;
    size_t sent = bytes_sent(o), received = bytes_received(o);
    if (!sent || !received || send + sent <= recv || recv + received <= send) return ncclSuccess;
    if (o->kind == ALL_TO_ALL) return fail(ncclInvalidUsage, "ncclAlltoAll: send and recv overlap");
    int gathers = o->kind == ALL_GATHER || o->kind == GATHER,
        scatters = o->kind == REDUCE_SCATTER || o->kind == SCATTER;
    uintptr_t in_place = gathers ? recv + rank * block : scatters ? send + rank * block : recv;
    if ((scatters ? recv : send) != in_place)
        fake_die("%s: send %p and recv %p overlap, and not as in place", operation_names[o->kind], o->send, o->recv);
    return ncclSuccess;
}

static int elsewhere(const void *pointer, ncclComm_t c) {
    int device;
    return fake_memory_type(pointer, &device) == cudaMemoryTypeDevice && device != c->device;
}

static ncclResult_t check_operation(const operation *o) {
    const char *name = operation_names[o->kind];
    ncclComm_t c = o->comm;
    ncclResult_t code = check_ready(c, name);
    if (code) return code;
    if (atomic_load(&c->revoked) || atomic_load(&c->finalized))
        return fail(ncclInvalidUsage, "%s: the comm is revoked or finalized", name);
    if ((int)o->type < 0 || o->type >= ncclNumTypes)
        return fail(ncclInvalidArgument, "%s: type %d", name, (int)o->type);
    if (is_reduction(o->kind) && ((int)o->op < 0 || o->op >= ncclNumOps || !reducers[o->type]))
        return fail(ncclInvalidArgument, "%s: op %d, type %d", name, (int)o->op, (int)o->type);
    if (o->root < 0 || o->root >= c->nranks)
        return fail(ncclInvalidArgument, "%s: rank %d of %d", name, o->root, c->nranks);
    if (o->count == 0) return ncclSuccess;
    if ((blocks_sent(o) && !o->send) || (blocks_received(o) && !o->recv))
        return fail(ncclInvalidArgument, "%s: a buffer is NULL", name);
    if (blocks_sent(o)) fake_memory(o->send, bytes_sent(o), 0, name);
    if (blocks_received(o)) fake_memory(o->recv, bytes_received(o), 0, name);
    if ((blocks_sent(o) && elsewhere(o->send, c)) || (blocks_received(o) && elsewhere(o->recv, c)))
        return fail(ncclInvalidArgument, "%s: memory of another device than the comm's, %d", name, c->device);
    return check_overlap(o);
}

/* Outside of a group, an operation is a group of its own. */
static ncclResult_t operate(operation o, int since) {
    static atomic_ullong numbers;
    CALL_ON(o.comm);
    open_group.depth++;
    fake_count(FAKE_NCCL_OPERATIONS);
    ncclResult_t code = enter(operation_names[o.kind], since);
    if (!code) code = check_operation(&o);
    if (!code) {
        o.number = atomic_fetch_add(&numbers, 1) + 1;
        trace_operation(&o, open_group.depth - 1);
        if (o.count) group_add(o);
    }
    if (code && !open_group.error) open_group.error = code;
    ncclResult_t ended = group_end();
    return code ? code : ended;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return operate((operation){ALL_REDUCE, send, recv, count, type, op, 0, comm, stream, 0}, 0);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return operate((operation){REDUCE, send, recv, count, type, op, root, comm, stream, 0}, 0);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return operate((operation){BROADCAST, send, recv, count, type, ncclSum, root, comm, stream, 0}, 0);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return operate((operation){ALL_GATHER, send, recv, count, type, ncclSum, 0, comm, stream, 0}, 0);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    return operate((operation){REDUCE_SCATTER, send, recv, count, type, op, 0, comm, stream, 0}, 0);
}

ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
    return operate((operation){ALL_TO_ALL, send, recv, count, type, ncclSum, 0, comm, stream, 0}, 22800);
}

ncclResult_t ncclGather(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
    return operate((operation){GATHER, send, recv, count, type, ncclSum, root, comm, stream, 0}, 22800);
}

ncclResult_t ncclScatter(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
    return operate((operation){SCATTER, send, recv, count, type, ncclSum, root, comm, stream, 0}, 22800);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return operate((operation){SEND, send, NULL, count, type, ncclSum, peer, comm, stream, 0}, 0);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return operate((operation){RECV, NULL, recv, count, type, ncclSum, peer, comm, stream, 0}, 0);
}

/* ---- What the library must never call --------------------------------------------------------------------------- */

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
    (void)buffer, (void)count, (void)type, (void)root, (void)comm, (void)stream;
    fake_die("ncclBcast was called");
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
    (void)comm, (void)nranks, (void)id, (void)rank;
    fake_die("ncclCommInitRank was called");
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndevices, const int *devices) {
    (void)comms, (void)ndevices, (void)devices;
    fake_die("ncclCommInitAll was called");
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info) {
    (void)info;
    fake_die("ncclGroupSimulateEnd was called");
}
