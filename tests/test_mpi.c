/* The MPI transport's tests, as ranks of an MPI job: `make test-mpi`, or mpirun -n 4 build/test_mpi_openmpi [--limit S] [part of a test's name ...]. */
#include <stddef.h>
static void *test_alloc(size_t n);
#define MESH_MALLOC(n) test_alloc(n)
#define MESH_FREE(p) free(p)
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../mesh_parallel.h"
#include "../transports/mesh_sim.h"
#include "../transports/mesh_socket.h"
#include "../transports/mesh_mpi.h"
#include "harness.h"
#include "worlds.h"
#include "../mesh_checkpoint.h"
#include "t_mesh.h"
#include "t_spec.h"
#include "t_plan.h"
#include "t_plans.h"
#include "t_comm.h"
#include "t_faults.h"
#include "t_redistribute.h"
#include "t_tensors.h"
#include "t_parallel.h"
#include "t_replicas.h"
#include "t_buckets.h"
#include "t_experts.h"
#include "t_vocabulary.h"
#include "t_attention.h"
#include "t_pipeline.h"
#include "t_engine.h"
#include "t_bytes.h"
#include "t_large.h"
#include "t_schedule.h"
#include "t_refused.h"
#include "t_messages.h"
#include "t_split.h"
#include "t_comm_laws.h"
#include "t_calls.h"

static int fail_after = -1; /* allocations of the library's, counted down */
static void *test_alloc(size_t n) { return fail_after >= 0 && fail_after-- == 0 ? NULL : malloc(n); }

#include "mpi_calls.h"

static int open_mpi(mesh_mpi *net, MPI_Comm comm) {
    mesh_error err;
    CHECK_OK(mesh_mpi_open(net, comm, &err), err);
    return net->impl != NULL;
}

/* What test_mesh does over TCP, here on the first of the job's ranks. */
static int worlds_run;
static void world_of_mpi(int backend, int ranks, rank_main f, void *ctx) {
    mesh_mpi net;
    MPI_Comm part;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (backend != TCP || ranks > size) return;
    worlds_run++;
    PMPI_Comm_split(MPI_COMM_WORLD, rank < ranks ? 0 : MPI_UNDEFINED, rank, &part);
    if (rank >= ranks) return;
    if (open_mpi(&net, part)) {
        f(&net.base, ctx);
        mesh_mpi_close(&net);
    }
    PMPI_Comm_free(&part);
}

static void conform_mpi(int native) {
    mesh_mpi net;
    mesh_error err;
    setenv("MESH_MPI_NATIVE", native ? "1" : "0", 1);
    setenv("MESH_TIMEOUT", "77x", 1);
    CHECK_INT(mesh_mpi_open(&net, MPI_COMM_WORLD, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_mpi_open: MESH_TIMEOUT is \"77x\"");
    setenv("MESH_TIMEOUT", "77", 1);
    if (open_mpi(&net, MPI_COMM_WORLD)) {
        CHECK_INT(net.base.timeout_ns, 77 * SECOND);
        conformance_collectives(&net.base, "a=-1", NULL, NULL, 3001);
        if (net.base.size == 4) conformance_collectives(&net.base, "a=2,b=2", "b,a", NULL, 501);
        conformance_redistribute(&net.base, 3, 40, 400);
        CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    }
    unsetenv("MESH_TIMEOUT");
    unsetenv("MESH_MPI_NATIVE");
}

/* Whose collectives serve is everybody's choice. */
static void test_native_alike(void) {
    mesh_mpi net;
    mesh_error err;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == size - 1) setenv("MESH_MPI_NATIVE", "1", 1);
    CHECK_INT(mesh_mpi_open(&net, MPI_COMM_WORLD, &err), MESH_ERR_MISMATCH);
    CHECK_INT(err.rank, size - 1);
    CHECK_HAS(err.text, "mesh_mpi_open: MESH_MPI_NATIVE is set on rank ");
    CHECK_HAS(err.text, " and not set on rank 0; the same on all");
    if (rank == size - 1) setenv("MESH_MPI_NATIVE", "", 1); /* as everywhere, empty is unset */
    if (open_mpi(&net, MPI_COMM_WORLD)) CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    unsetenv("MESH_MPI_NATIVE");
}
static void test_native(void) { conform_mpi(1); }
static void test_scheduled(void) { conform_mpi(0); }

static int open_native(mesh_mpi *net) {
    int opened;
    setenv("MESH_MPI_NATIVE", "1", 1);
    opened = open_mpi(net, MPI_COMM_WORLD);
    unsetenv("MESH_MPI_NATIVE");
    return opened;
}

/* Sums of small integers wrap, as everywhere: Open MPI's own end at the greatest number, where the loop is wide. */
static void test_native_small(void) {
    enum { N = 100 };
    unsigned char a[N], b[N];
    mesh_mpi net;
    mesh_comm c;
    int i;
    for (i = MESH_I8; i <= MESH_U64; i++) /* whichever MPI this is */
        CHECK((mesh_mpi__op(MESH_SUM, i) == MPI_OP_NULL) == (mesh_dtype_bytes((mesh_dtype)i) < 4));
    if (!open_native(&net)) return;
    if (open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) {
        memset(a, 100, N);
        CHECK_OK(mesh_all_reduce(&c, NULL, a, b, N, MESH_I8, MESH_SUM), c.error);
        for (i = 0; i < N; i++) CHECK(b[i] == (unsigned char)(100 * net.base.size) || test_failures);
        CHECK_OK(mesh_all_reduce(&c, NULL, a, b, N, MESH_U8, MESH_SUM), c.error);
        for (i = 0; i < N; i++) CHECK(b[i] == (unsigned char)(100 * net.base.size) || test_failures);
        memset(a, 0x60, N);
        for (i = 0; i < 2; i++) {
            uint16_t v[N / 2], w = (uint16_t)(0x6060 * net.base.size);
            int k;
            CHECK_OK(mesh_all_reduce(&c, NULL, a, v, N / 2, i ? MESH_U16 : MESH_I16, MESH_SUM), c.error);
            for (k = 0; k < N / 2; k++) CHECK(v[k] == w || test_failures);
        }
        CHECK_INT(mesh_comm_close(&c), MESH_OK);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

/* What is MPI's: not a minimum in which somebody's is not a number, nor counts that are no int in bytes. */
/* By MPI's own collectives: each rank decides alone whether it sends from where it receives, short and long. And numbers above the greatest signed one are the
   greater ones. */
static void test_native_in_place(void) {
    static const int counts[] = {3, 16384, 70001};
    enum { MOST = 70001 };
    mesh_mpi net;
    mesh_comm c;
    int kind, k, who, i, r;
    setenv("MESH_MPI_NATIVE", "1", 1);
    if (open_mpi(&net, MPI_COMM_WORLD) && open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) {
        int n = net.base.size, me = net.base.rank;
        int32_t *a = (int32_t *)malloc((size_t)(n + 1) * MOST * 4), *b = (int32_t *)malloc((size_t)(n + 1) * MOST * 4);
        uint8_t high[2], most[2];
        for (kind = 0; kind < 4; kind++)
            for (k = 0; k < 3; k++)
                for (who = 0; who <= n; who++) { /* this one alone; at last all but the first */
                    int own = who == n ? me > 0 : me == who, count = counts[k];
                    int32_t *from = own ? b + (kind == 3 ? me * count : 0) : a;
                    mesh_status status;
                    memset(b, 0x77, (size_t)n * MOST * 4);
                    for (i = 0; i < count; i++) from[i] = (me + 1) * (i % 11 + 1);
                    status = kind == 0   ? mesh_all_reduce(&c, NULL, from, b, (size_t)count, MESH_I32, MESH_SUM)
                             : kind == 1 ? mesh_scan(&c, NULL, from, b, (size_t)count, MESH_I32, MESH_SUM)
                             : kind == 2 ? mesh_exscan(&c, NULL, from, b, (size_t)count, MESH_I32, MESH_SUM)
                                         : mesh_all_gather(&c, NULL, from, b, (size_t)count, MESH_I32);
                    CHECK_OK(status, c.error);
                    for (r = 0; r < (kind == 3 ? n : 1); r++)
                        for (i = 0; i < count; i++) {
                            int times = kind == 0 ? n * (n + 1) / 2 : kind == 1 ? (me + 1) * (me + 2) / 2 : kind == 2 ? me * (me + 1) / 2 : r + 1;
                            if (kind == 2 && me == 0) break;
                            if (b[r * count + i] == times * (i % 11 + 1)) continue;
                            test_fail(__FILE__, __LINE__, "kind %d of %d, in place on %d: element %d is %d", kind, count, who, r * count + i, b[r * count + i]);
                            break;
                        }
                }
        high[0] = me ? 0x49 : 0xe4, high[1] = me ? 0xe4 : 0x49;
        CHECK_OK(mesh_all_reduce(&c, NULL, high, most, 2, MESH_U8, MESH_MAX), c.error);
        CHECK_INT(most[0], 0xe4);
        CHECK_INT(most[1], n > 1 ? 0xe4 : 0x49);
        CHECK_OK(mesh_all_reduce(&c, NULL, high, most, 2, MESH_U8, MESH_MIN), c.error);
        CHECK_INT(most[0], n > 1 ? 0x49 : 0xe4);
        mesh_comm_close(&c);
        free(a), free(b);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    unsetenv("MESH_MPI_NATIVE");
}

static void test_native_limits(void) {
    const size_t most = INT_MAX / sizeof(float);
    mesh_mpi net;
    mesh_comm c;
    mesh_call call;
    volatile float zero = 0;
    float v, least;
    int i;
    if (!open_native(&net)) return;
    if (open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) {
        void *group = mesh__group_find(mesh__impl(&c), "x")->handle;
        for (i = 0; i < net.base.size; i++) {
            v = net.base.rank == i ? zero / zero : 1.f;
            CHECK_OK(mesh_all_reduce(&c, NULL, &v, &least, 1, MESH_F32, i % 2 ? MESH_MIN : MESH_MAX), c.error);
            CHECK(least != least);
        }
        call = mesh__call(MESH_CALL_ALL_REDUCE, &v, &least, most, MESH_F32, MESH_SUM, 0);
        call.elem_bytes = sizeof(float);
        CHECK_INT(net.base.ops->collective(&net.base, group, &call, NULL), MESH_OK);
        call.count = most + 1;
        CHECK_INT(net.base.ops->collective(&net.base, group, &call, NULL), MESH_ERR_UNSUPPORTED);
        call.kind = MESH_CALL_ALL_GATHER;
        call.count = most / (size_t)net.base.size;
        CHECK_INT(net.base.ops->collective(&net.base, group, &call, NULL), MESH_OK);
        call.count++;
        CHECK_INT(net.base.ops->collective(&net.base, group, &call, NULL), MESH_ERR_UNSUPPORTED);
        mesh_comm_close(&c);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

static void test_transport(void) {
    mesh_mpi net;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    conformance_transport(&net.base);
    if (net.base.rank || net.base.size < 2) CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

static int links_of(const mesh_mpi *net) {
    const mesh_mpi__links *g;
    int n = 0;
    for (g = ((mesh_mpi__impl *)net->impl)->links; g; g = g->next) n++;
    return n;
}

/* Thousands of operations are started before the first is waited for, by ranks that others are far behind: what comes for operations that these have not
   begun is not taken for what they await. */
static void test_many_under_way(void) {
    enum { MANY = 6000, EACH = 600 }; /* bytes that are not told MPI ahead, and in two steps */
    float *in = (float *)malloc((size_t)MANY * EACH * sizeof *in), *out = (float *)malloc((size_t)MANY * EACH * sizeof *out);
    mesh_request *r = (mesh_request *)malloc(MANY * sizeof *r);
    mesh_comm_desc desc = MESH_ZERO;
    mesh_tuning tuning;
    mesh_error err;
    mesh_mpi net;
    mesh_comm c;
    int i, k, wrong = 0, n, behind, there;
    if (!in || !out || !r) test_fail(__FILE__, __LINE__, "no memory");
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    n = net.base.size;
    behind = net.base.rank % 2;
    CHECK_OK(mesh_tuning_parse(&tuning, "all_reduce ranks<=* bytes<=* ring", &err), err);
    desc.tuning = &tuning;
    desc.timeout_ns = 60 * SECOND;
    if (open_with(&net.base, &c, "x=-1", &desc)) {
        mesh_mpi__impl *s = (mesh_mpi__impl *)net.impl;
        for (i = 0; i < MANY; i++)
            for (k = 0; k < EACH; k++) in[i * EACH + k] = (float)(i + k + net.base.rank);
        if (behind) MPI_Barrier(MPI_COMM_WORLD);
        for (i = 0; i < MANY && !test_failures; i++) {
            const mesh_mpi__stray *m;
            CHECK_OK(mesh_all_reduce_start(&c, NULL, in + i * EACH, out + i * EACH, EACH, MESH_F32, MESH_SUM, &r[i]), c.error);
            for (k = there = 0; behind && !i && k < 4 && !test_failures; k += there >= MANY - 1) {
                const mesh_mpi__links *g;
                s->misfits_at = 0; /* four looks for what fits nothing, when all is there but what the first has met */
                CHECK_OK(mesh_progress(&net.base, 0), c.error);
                for (there = 0, g = s->links; g; g = g->next)
                    for (m = g->stray; m; m = m->next) there++;
            }
        }
        if (!behind) MPI_Barrier(MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        for (i = 0; i < MANY && !test_failures; i++) CHECK_OK(mesh_wait(r[i]), c.error);
        for (i = 0; i < MANY && !test_failures; i++)
            for (k = 0; k < EACH; k++) wrong += out[i * EACH + k] != (float)(n * (i + k) + n * (n - 1) / 2);
        CHECK_INT(wrong, 0);
        mesh_comm_close(&c);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    free(in), free(out), free(r);
}

/* While a receive waits, another message stands in its place. One like its own is a later one of the same operation; of another length it may be so for as long as a
   large message takes; then it is what came instead. (It stands there by this test: MPI does not say whether a receive has met its message.) */
static void test_suspected(void) {
    enum { BYTES = 20000000 };
    mesh_mpi net;
    mesh_mpi__impl *s;
    mesh_ticket ticket;
    mesh_error why = MESH_ZERO;
    mesh_xfer x;
    void *memory = calloc(BYTES, 1);
    int k, asked;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    s = (mesh_mpi__impl *)net.impl;
    if (net.base.rank < 2 && net.base.size > 1) {
        x = conf_xfer(net.base.rank ? MESH_RECV : MESH_SEND, !net.base.rank, memory, BYTES, NULL);
        if (!net.base.rank) MPI_Recv(&k, 0, MPI_INT, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK_INT(conf_post(&net.base, 0, 1, &x, 1, &ticket), MESH_OK);
        if (net.base.rank) {
            mesh_mpi__stray *m = (mesh_mpi__stray *)calloc(1, sizeof *m);
            mesh_mpi__use *use = &s->use[s->nrequests - 1];
            m->index = use->index, m->tag = use->tag, m->nbytes = use->nbytes, m->message = MPI_MESSAGE_NULL;
            use->links->stray = m;
            for (k = 0; k < 4; k++) { /* like it; as long, for a moment; gone; as long, and long enough */
                int64_t start = mesh_now(&net.base);
                m->nbytes = use->nbytes - (k > 0);
                use->links->stray = k == 2 ? NULL : m;
                for (asked = 0; mesh_now(&net.base) < start + (k % 2 ? SECOND / 4 : SECOND / 2) || asked < 4; asked++) {
                    s->misfits_at = 0;
                    if (k == 3 && use->suspected) use->suspected = start - 2 * SECOND;
                    CHECK_OK(mesh_progress(&net.base, mesh_now(&net.base) + SECOND / 100), why);
                }
                if (k < 3) CHECK_INT(net.base.ops->test(&net.base, &ticket, &why), MESH_IN_PROGRESS);
            }
            use->links->stray = NULL, use->links->stray_end = &use->links->stray;
            free(m);
            MPI_Send(&k, 0, MPI_INT, 0, 3, MPI_COMM_WORLD);
        }
        CHECK_INT(conf_finish(&net.base, &ticket), MESH_ERR_MISMATCH);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    mesh_mpi_close(&net);
    free(memory);
}

/* A message stands in the place of a receive that MPI may have met already: its sender is asked, as often as it says that the right one comes. */
static mesh_mpi__use *use_of(const mesh_mpi__impl *s, const mesh_ticket *ticket) {
    int i;
    for (i = 1; i < s->nrequests; i++)
        if (s->use[i].ticket == ticket->impl) return &s->use[i];
    return NULL;
}

static void test_asks(void) {
    mesh_mpi net;
    mesh_mpi__impl *s;
    mesh_mpi__use *use;
    mesh_mpi__stray *m = (mesh_mpi__stray *)calloc(1, sizeof *m);
    mesh_ticket ticket;
    mesh_error why = MESH_ZERO;
    mesh_xfer x;
    char memory[8];
    int tag, came, k, last = 0, told = 0, denied = 0;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    s = (mesh_mpi__impl *)net.impl;
    if (net.base.rank == 0 && net.base.size > 1) { /* a receive that nothing meets stands for a send that is under way */
        x = conf_xfer(MESH_RECV, 1, memory, 8, NULL);
        CHECK_INT(conf_post(&net.base, 7, 1, &x, 1, &ticket), MESH_OK);
        tag = s->use[s->nrequests - 1].tag;
        use_of(s, &ticket)->receives = MESH_MPI__NONE;
        MPI_Send(&tag, 1, MPI_INT, 1, 3, MPI_COMM_WORLD);
        for (k = 3; k < 5; k++) {
            for (came = 0; !came; MPI_Iprobe(1, k, MPI_COMM_WORLD, &came, MPI_STATUS_IGNORE))
                CHECK_OK(mesh_progress(&net.base, mesh_now(&net.base) + SECOND / 1000), why);
            MPI_Recv(&tag, 1, MPI_INT, 1, k, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            use_of(s, &ticket)->receives = MESH_MPI__AHEAD;
        }
        net.base.ops->cancel(&net.base, &ticket);
        while (net.base.ops->test(&net.base, &ticket, &why) == MESH_IN_PROGRESS) mesh_progress(&net.base, mesh_now(&net.base) + SECOND / 1000);
    } else if (net.base.rank == 1) {
        MPI_Recv(&tag, 1, MPI_INT, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        x = conf_xfer(MESH_RECV, 0, memory, 8, NULL);
        CHECK_INT(conf_post(&net.base, 5, 1, &x, 1, &ticket), MESH_OK);
        use = use_of(s, &ticket);
        CHECK_INT(use->receives, MESH_MPI__AHEAD);
        m->index = use->index, m->tag = tag ^ 1, m->nbytes = 1, m->message = MPI_MESSAGE_NULL;
        use->tag = tag;
        use->links->stray = m;
        while ((use = use_of(s, &ticket)) != NULL && use->ticket->status == MESH_OK) {
            int64_t aged = mesh_mpi__clock() - 2 * SECOND;
            if (use->suspected > aged && last && use->asks == MESH_MPI__UNASKED && ++told == 2)
                MPI_Send(&tag, 1, MPI_INT, 0, 3, MPI_COMM_WORLD);
            denied |= use->asks == MESH_MPI__DENIED;
            CHECK(!denied || told >= 2);
            last = use->suspected != 0;
            s->misfits_at = 0;
            if (use->suspected) use->suspected = aged;
            mesh_progress(&net.base, mesh_now(&net.base) + SECOND / 1000);
        }
        CHECK(told >= 2 && denied);
        s->whole->stray = NULL, s->whole->stray_end = &s->whole->stray;
        CHECK_INT(conf_finish(&net.base, &ticket), MESH_ERR_MISMATCH);
        MPI_Send(&tag, 1, MPI_INT, 0, 4, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    mesh_mpi_close(&net);
    free(m);
}

/* Comms come and go: their communicators are used again. */
static void test_comms(void) {
    mesh_mpi net;
    mesh_comm c;
    int i, n = 0, v, sum;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    for (i = 0; i < 1000 && !test_failures; i++) {
        if (!open_comm(&net.base, &c, i % 2 ? "x=-1" : "y=1,x=-1", NULL, 60 * SECOND)) break;
        v = net.base.rank + i;
        CHECK_OK(mesh_all_reduce(&c, "x", &v, &sum, 1, MESH_I32, MESH_SUM), c.error);
        CHECK_INT(sum, net.base.size * (net.base.size - 1) / 2 + net.base.size * i);
        mesh_comm_close(&c);
        if (i == 1) n = links_of(&net);
    }
    CHECK_INT(links_of(&net), n);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

/* Each half of the job is a world of its own; MPI is called beside it, and the errors of MPI_COMM_WORLD are the program's again afterwards. */
static void test_two_halves(void) {
    mesh_mpi net;
    mesh_comm c;
    MPI_Comm half, other;
    MPI_Errhandler before, after;
    MPI_Request r;
    int rank, size, v, sum, all, of;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
    PMPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    if (!open_mpi(&net, half)) return;
    CHECK_INT(net.base.size, (size + !(rank % 2)) / 2);
    if (open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) {
        v = rank;
        MPI_Iallreduce(&v, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &r);
        CHECK_OK(mesh_all_reduce(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM), c.error);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
        CHECK_INT(all, size * (size - 1) / 2);
        for (of = 0, v = rank % 2; v < size; v += 2) of += v;
        CHECK_INT(sum, of);
        CHECK_INT(mesh_mpi_comm(&c, "x", &other), MESH_OK);
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, other);
        CHECK_INT(sum, of);
        CHECK_INT(mesh_mpi_comm(&c, "none", &other), MESH_ERR_STATE);
        CHECK_HAS(c.error.text, "\"none\" is no group that is open over MPI; mesh_group_open opens it");
        CHECK(other == MPI_COMM_NULL);
        mesh_comm_close(&c);
    }
    CHECK(net.base.ops->locality(&net.base, net.base.rank) == net.base.ops->locality(&net.base, 0)); /* one host */
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    PMPI_Comm_free(&half);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
    CHECK(before == after);
}

/* What is wrong on one rank as the transport opens every rank hears, and it opens after that. */
static void test_open_heard(void) {
    static const char *const names[] = {"MESH_TIMEOUT", "MESH_OPEN_TIMEOUT", "MESH_MPI_NATIVE"};
    int rank, size, k, bad, n;
    double start;
    mesh_mpi net;
    mesh_error err;
    MPI_Comm never;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    bad = size - 1;
    for (k = 0; k < 3; k++) {
        if (rank == bad) setenv(names[k], "5 s", 1);
        CHECK_INT(mesh_mpi_open(&net, MPI_COMM_WORLD, &err), MESH_ERR_ARGUMENT);
        CHECK_INT(err.rank, bad);
        CHECK_HAS(err.text, rank == bad ? names[k] : "failed: bad argument; it says why");
        CHECK(net.impl == NULL);
        check_shut(&net.base);
        unsetenv(names[k]);
    }
    for (n = 2; n < 12; n++) { /* the first two are for what all hear by; with those that follow it has all it needs */
        mesh_status status;
        if (rank == bad) fail_after = n;
        status = mesh_mpi_open(&net, MPI_COMM_WORLD, &err);
        fail_after = -1;
        if (status == MESH_OK) break;
        CHECK_INT(status, MESH_ERR_MEMORY);
        CHECK_INT(err.rank, bad);
        check_shut(&net.base);
    }
    CHECK(n > 4 && n < 12);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    if (size == 1) return;
    PMPI_Comm_dup(MPI_COMM_WORLD, &never); /* MPI's to its end, as is what is begun on it */
    setenv("MESH_OPEN_TIMEOUT", "1", 1);
    start = test_now();
    if (rank != bad) {
        CHECK_INT(mesh_mpi_open(&net, never, &err), MESH_ERR_TIMEOUT);
        CHECK_HAS(err.text, "not all ranks have called it within ");
        CHECK(test_now() - start < 30);
        comms_now--;
    }
    unsetenv("MESH_OPEN_TIMEOUT");
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A rank that runs out of memory as a group opens: every rank hears what and who. */
static void test_group_heard(void) {
    int n, opened = 0;
    mesh_mpi net;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    for (n = 0; n < 10 * net.base.size; n++) {
        mesh_comm c;
        mesh_status status;
        if (!open_comm(&net.base, &c, net.base.size % 2 ? "x=-1" : "x=2,y=-1", NULL, 20 * SECOND)) break;
        MPI_Barrier(MPI_COMM_WORLD);
        if (n % net.base.size == net.base.rank) fail_after = n / net.base.size;
        status = mesh_group_open(&c, net.base.size % 2 ? "x" : "y,x");
        if (status == MESH_OK) status = mesh_barrier(&c, NULL);
        fail_after = -1;
        MPI_Barrier(MPI_COMM_WORLD); /* nothing of the next opening comes while one is short of memory */
        opened += status == MESH_OK;
        if (status != MESH_OK) CHECK_INT(status, MESH_ERR_MEMORY);
        if (status != MESH_OK) CHECK_INT(c.error.rank, n % net.base.size);
        mesh_comm_close(&c);
    }
    CHECK(opened > 0);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

/* Tags as high as MPI's, and one beyond. */
static void test_tags(void) {
    mesh_mpi net;
    mesh_comm c;
    mesh_mpi__impl *s;
    char axes[32];
    int64_t most;
    int other, v, got = -1, k, sent[2] = {11, 22};
    mesh_request r[2];
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    s = (mesh_mpi__impl *)net.impl;
    most = s->high_at - MESH_MPI__PLACES - 1;
    if (most > MESH__TAGS) most = MESH__TAGS;
    other = net.base.rank ^ 1;
    if (open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) {
        snprintf(axes, sizeof axes, "x#%ld", (long)most);
        v = net.base.rank;
        if (other < net.base.size) {
            CHECK_OK(mesh_sendrecv(&c, axes, other, &v, 1, other, &got, 1, MESH_I32), c.error);
            CHECK_INT(got, other);
        }
        for (k = 0; k < 2 && other < net.base.size; k++) { /* two high ones are two */
            snprintf(axes, sizeof axes, "x#%ld", (long)most - 2 * k);
            CHECK_OK(mesh_send_start(&c, axes, other, &sent[k], 1, MESH_I32, &r[k]), c.error);
        }
        for (k = 1; k >= 0 && other < net.base.size; k--) {
            snprintf(axes, sizeof axes, "x#%ld", (long)most - 2 * k);
            CHECK_OK(mesh_recv(&c, axes, other, &got, 1, MESH_I32), c.error);
            CHECK_INT(got, sent[k]);
        }
        for (k = 0; k < 2 && other < net.base.size; k++) CHECK_OK(mesh_wait(r[k]), c.error);
        MPI_Barrier(MPI_COMM_WORLD); /* what is refused ends everybody's comm */
        if (most + MESH_MPI__PLACES + 1 < MESH__TAGS && other < net.base.size) {
            snprintf(axes, sizeof axes, "x#%ld", (long)most + 1);
            CHECK_INT(mesh_sendrecv(&c, axes, other, &v, 1, other, &got, 1, MESH_I32), MESH_ERR_UNSUPPORTED);
            CHECK_HAS(c.error.text, "; it has for those below");
        }
        mesh_comm_close(&c);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

/* A message of another length is told where it is received. */
static void test_lengths(void) {
    mesh_mpi net;
    mesh_comm c;
    int v[4] = {0}, k;
    for (k = 0; k < 2; k++) {
        if (!open_mpi(&net, MPI_COMM_WORLD)) return;
        if (open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) {
            if (net.base.rank == 0 && net.base.size > 1) mesh_send(&c, NULL, 1, v, k ? 4 : 2, MESH_I32);
            if (net.base.rank == 1) {
                CHECK_INT(mesh_recv(&c, NULL, 0, v, 3, MESH_I32), MESH_ERR_MISMATCH);
                CHECK_INT(c.error.rank, 0);
                CHECK_HAS(c.error.text, k ? "rank 0 sent 16 bytes, rank 1 expected 12" : "rank 0 sent 8 bytes, rank 1 expected 12");
            }
            mesh_comm_close(&c);
        }
        CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    }
}

/* Receives are MPI's from the start where a post has gaps, and a message that is too long stays within their runs; what has none meets its message here first. */
static void test_gaps(void) {
    enum { SPAN = 1 << 20, TAG = 5 };
    static const struct {
        mesh_block block;
        int gaps;
    } cases[] = {
        {{4096, 0, 0, {{0, 0}}}, 0},
        {{4096, 1, 0, {{1, 999}}}, 0},
        {{1024, 2, 0, {{4, 2048}, {2, 1024}}}, 0},
        {{4096, 1, 0, {{2, 4097}}}, 1},
        {{256, 2, 0, {{1, 7}, {100, 300}}}, 1},
        {{64, 3, 0, {{3, 100000}, {1, 0}, {40, 64}}}, 1},
        {{8, 3, 0, {{2, 400000}, {30, 4000}, {100, 9}}}, 1},
    };
    static unsigned char v[SPAN], whole[SPAN];
    size_t i, k;
    mesh_mpi net;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    for (k = 0; k < sizeof cases / sizeof *cases && net.base.size > 1 && net.base.rank < 2; k++) {
        const mesh_block *b = &cases[k].block;
        mesh_mpi__impl *s = (mesh_mpi__impl *)net.impl;
        uint64_t nbytes = b->run, wrong = 0;
        mesh_xfer x, two[2];
        mesh_ticket ticket, pair[2];
        MPI_Datatype type;
        for (i = 0; i < (size_t)b->ndim; i++) nbytes *= (uint64_t)b->dim[i].count;
        x = conf_xfer(net.base.rank ? MESH_RECV : MESH_SEND, !net.base.rank, v, nbytes, b);
        CHECK_INT(mesh_mpi__gaps(b), cases[k].gaps);
        if (!net.base.rank) MPI_Recv(v, 0, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK_INT(conf_post(&net.base, 0, 1, &x, 1, &ticket), MESH_OK);
        if (net.base.rank) {
            CHECK_INT(s->use[s->nrequests - 1].receives, cases[k].gaps ? MESH_MPI__AHEAD : MESH_MPI__HELD);
            MPI_Send(v, 0, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        }
        CHECK_INT(conf_finish(&net.base, &ticket), MESH_OK);
        if (!cases[k].gaps) continue;
        { /* what is sent has gaps, what is received has none */
            two[0] = conf_xfer(MESH_RECV, !net.base.rank, v, nbytes, NULL);
            two[1] = conf_xfer(MESH_SEND, !net.base.rank, whole, nbytes, b);
            MPI_Sendrecv(v, 0, MPI_BYTE, !net.base.rank, TAG, v, 0, MPI_BYTE, !net.base.rank, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK_INT(conf_post(&net.base, 1, 1, two, 2, &ticket), MESH_OK);
            for (i = 1; i < (size_t)s->nrequests; i++) CHECK(s->use[i].receives != MESH_MPI__HELD);
            CHECK_INT(conf_finish(&net.base, &ticket), MESH_OK);
        }
        for (i = 0; i < 2; i++) { /* two alike, of which the first has no gaps: in their order */
            two[i] = conf_xfer(net.base.rank ? MESH_RECV : MESH_SEND, !net.base.rank, i ? v : whole, nbytes, i ? b : NULL);
            memset(two[i].base, net.base.rank ? 3 : (int)i + 1, SPAN);
            if (!i && !net.base.rank) MPI_Recv(v, 0, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK_INT(conf_post(&net.base, 2, 1, &two[i], 1, &pair[i]), MESH_OK);
        }
        if (net.base.rank) MPI_Send(v, 0, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        for (i = 0; i < 2; i++) CHECK_INT(conf_finish(&net.base, &pair[i]), MESH_OK);
        if (net.base.rank) CHECK(whole[0] == 1 && whole[nbytes - 1] == 1 && v[0] == 2);
        memset(whole, 0, SPAN);
        if (!net.base.rank) {
            MPI_Recv(v, 0, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(whole, SPAN, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
        } else {
            MPI_Request request;
            MPI_Errhandler before;
            unsigned char at;
            memset(v, 1, SPAN);
            CHECK_INT(mesh_mpi__type_of_block(b, &type), MPI_SUCCESS);
            MPI_Type_commit(&type);
            MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
            MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
            MPI_Irecv(v, 1, type, 0, TAG, MPI_COMM_WORLD, &request);
            MPI_Send(&at, 0, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
            CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) != MPI_SUCCESS);
            MPI_Comm_set_errhandler(MPI_COMM_WORLD, before);
            MPI_Errhandler_free(&before);
            MPI_Type_free(&type);
            for (i = 0; i < SPAN; i++) wrong += !v[i];
            CHECK(wrong <= nbytes);
        }
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

/* Messages of different lengths that are received in another order than they were sent. */
static void test_order_of_lengths(void) {
    mesh_mpi net;
    mesh_comm c;
    int v[5] = {0};
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    if (net.base.size > 1 && open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) {
        if (net.base.rank == 0) {
            CHECK_OK(mesh_send(&c, NULL, 1, v, 5, MESH_I32), c.error);
            CHECK_OK(mesh_send(&c, NULL, 1, v, 4, MESH_I32), c.error);
        }
        if (net.base.rank == 1) {
            CHECK_INT(mesh_recv(&c, NULL, 0, v, 4, MESH_I32), MESH_ERR_MISMATCH);
            CHECK_HAS(c.error.text, "rank 0 sent 20 bytes, rank 1 expected 16");
        }
        mesh_comm_close(&c);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

static int strays_of(const mesh_mpi *net) {
    const mesh_mpi__links *g;
    const mesh_mpi__stray *m;
    int n = 0;
    for (g = ((mesh_mpi__impl *)net->impl)->links; g; g = g->next)
        for (m = g->stray; m; m = m->next) n++;
    return n;
}

/* Alike messages meet their receives in order: those that come before any is posted, and have been taken out of MPI's hands, and those that come after. */
static void test_early_messages(void) {
    enum { LARGE = 5000, EACH = 3 };
    static int32_t v[2 * EACH][LARGE];
    mesh_mpi net;
    mesh_comm c;
    mesh_request r[2 * EACH];
    double end = test_now() + 60;
    int early, k, i;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    if (net.base.size > 1 && open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) {
        for (early = 0; early < 2; early++) {
            for (k = 0; k < 2 * EACH; k++)
                for (i = 0; i < LARGE; i++) v[k][i] = net.base.rank ? -1 : 100 * k + i % 7;
            if (net.base.rank == 1) {
                if (early) MPI_Recv(&i, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                while (early && strays_of(&net) < 2 * EACH && test_now() < end)
                    CHECK_OK(mesh_progress(&net.base, mesh_now(&net.base) + SECOND / 1000), c.error);
                if (early) CHECK_INT(strays_of(&net), 2 * EACH);
                for (k = 0; k < 2 * EACH; k++)
                    CHECK_OK(mesh_recv_start(&c, "x#7", 0, v[k], k % 2 ? LARGE : 3, MESH_I32, &r[k]), c.error);
                if (!early) MPI_Send(&k, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
            }
            if (net.base.rank == 0) {
                if (!early) MPI_Recv(&i, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                for (k = 0; k < 2 * EACH; k++)
                    CHECK_OK(mesh_send_start(&c, "x#7", 1, v[k], k % 2 ? LARGE : 3, MESH_I32, &r[k]), c.error);
                if (early) MPI_Send(&k, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
            }
            for (k = 0; k < 2 * EACH && net.base.rank < 2; k++) {
                CHECK_OK(mesh_wait(r[k]), c.error);
                for (i = 0; i < (k % 2 ? LARGE : 3) && v[k][i] == 100 * k + i % 7; i++) {}
                CHECK_INT(i, k % 2 ? LARGE : 3);
            }
        }
        mesh_comm_close(&c);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

/* An MPI of as few tags as it may have: all that goes from rank to rank in one place has the same tag, and meets its own receives all the same, long ones that
   are held and short ones that MPI is told of; as do two by chance where there are more. */
static void few_tags_messages(mesh_comm *c, const char *axes, int late) {
    enum { EACH = 24, LONGEST = 3000 };
    static unsigned char out[EACH][LONGEST], in[EACH][LONGEST + 8];
    static const size_t sizes[] = {3000, 64, 2048, 2049, 1, 2500, 0, 64};
    int me = c->transport->rank, other = me ^ 1, k;
    size_t i;
    mesh_request s[EACH], r[EACH];
    memset(in, 0x5a, sizeof in);
    for (k = 0; k < EACH; k++)
        for (i = 0; i < LONGEST; i++) out[k][i] = (unsigned char)(k * 31 + me * 7 + (int)(i % 251));
    for (k = 0; k < EACH && late; k++) CHECK_OK(mesh_send_start(c, axes, other, out[k], sizes[k % 8], MESH_U8, &s[k]), c->error);
    for (k = 0; k < EACH; k++) CHECK_OK(mesh_recv_start(c, axes, other, in[k], sizes[k % 8], MESH_U8, &r[k]), c->error);
    MPI_Barrier(MPI_COMM_WORLD);
    for (k = 0; k < EACH && !late; k++) CHECK_OK(mesh_send_start(c, axes, other, out[k], sizes[k % 8], MESH_U8, &s[k]), c->error);
    for (k = 0; k < EACH; k++) {
        CHECK_OK(mesh_wait(s[k]), c->error);
        CHECK_OK(mesh_wait(r[k]), c->error);
        for (i = 0; i < sizes[k % 8] && in[k][i] == (unsigned char)(k * 31 + other * 7 + (int)(i % 251)); i++) {}
        CHECK_INT((int64_t)i, (int64_t)sizes[k % 8]);
        for (; i < LONGEST + 8 && in[k][i] == 0x5a; i++) {}
        CHECK_INT((int64_t)i, LONGEST + 8);
    }
}
static void test_few_tags(void) {
    mesh_mpi net;
    mesh_comm c;
    int i;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    mesh_mpi__tags_below((mesh_mpi__impl *)net.impl, 32768);
    CHECK_INT(((mesh_mpi__impl *)net.impl)->check_bits, 0);
    if (net.base.size % 2 == 0 && open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) {
        for (i = 0; i < 4; i++) few_tags_messages(&c, i % 2 ? "x#7" : "x", i / 2);
        for (i = 0; i < 2; i++) { /* in one call */
            static unsigned char out[4][3000], in[4][3000];
            mesh_xfer x[8];
            int k, next = (net.base.rank + 1) % net.base.size, before = (net.base.rank + net.base.size - 1) % net.base.size;
            memset(x, 0, sizeof x);
            for (k = 0; k < 4; k++) {
                memset(out[k], net.base.rank * 4 + k + i, sizeof out[k]);
                memset(in[k], 0x5a, sizeof in[k]);
                x[k].direction = MESH_RECV, x[k].rank = before, x[k].base = in[k];
                x[4 + k].direction = MESH_SEND, x[4 + k].rank = next, x[4 + k].base = out[k];
                x[k].nbytes = x[4 + k].nbytes = (k + i) % 2 ? 64 : 3000;
            }
            CHECK_OK(mesh_exchange(&c, NULL, x, 8), c.error);
            for (k = 0; k < 4; k++) {
                CHECK_INT(in[k][0], before * 4 + k + i);
                CHECK_INT(in[k][x[k].nbytes - 1], before * 4 + k + i);
                if (x[k].nbytes < 3000) CHECK_INT(in[k][x[k].nbytes], 0x5a);
            }
            MPI_Barrier(MPI_COMM_WORLD);
        }
        mesh_comm_close(&c);
    }
    conformance_collectives(&net.base, "a=-1", NULL, NULL, 3001);
    conformance_redistribute(&net.base, 3, 20, 400);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

/* What nobody received in one comm is not received in the next one of the same ranks. */
static void test_leftover(void) {
    mesh_mpi net;
    mesh_comm c;
    int k, i, v = 0;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    for (k = 1; k <= 2 && net.base.size > 1; k++) {
        if (!open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) break;
        if (net.base.rank == 1 && k == 2) { /* which has some looks to come wrongly */
            mesh_request r;
            CHECK_OK(mesh_recv_start(&c, "x", 0, &v, 1, MESH_I32, &r), c.error);
            for (i = 0; i < 10; i++) CHECK_OK(mesh_progress(&net.base, mesh_now(&net.base) + SECOND / 1000), c.error);
            MPI_Send(&i, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
            CHECK_OK(mesh_wait(r), c.error);
        }
        if (net.base.rank == 0 && k == 2) MPI_Recv(&i, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (net.base.rank == 0) CHECK_OK(mesh_send(&c, "x", 1, &k, 1, MESH_I32), c.error);
        CHECK_OK(mesh_barrier(&c, "x"), c.error);
        mesh_comm_close(&c);
    }
    if (net.base.rank == 1) CHECK_INT(v, 2);
    for (k = 0, i = comms_now; k < 12 && net.base.size > 1; k++) { /* one new communicator, and not one for each comm */
        if (!open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) break;
        CHECK_OK(mesh_barrier(&c, "x"), c.error);
        mesh_comm_close(&c);
    }
    CHECK(comms_now <= i + 2);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

/* A large message that nobody receives is MPI's after it was taken back, which its ticket tells; the close has it received. */
static void test_orphaned(void) {
    enum { BYTES = 4 << 20 };
    mesh_mpi net;
    mesh_xfer x = MESH_ZERO;
    mesh_post p = MESH_ZERO;
    mesh_ticket ticket;
    mesh_error why;
    mesh_status status = MESH_OK;
    void *memory = calloc(BYTES, 1);
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    if (net.base.rank == 0 && net.base.size > 1) {
        x.base = memory;
        x.nbytes = BYTES;
        x.rank = 1;
        p.xfer = &x;
        p.count = 1;
        CHECK_INT(net.base.ops->post(&net.base, &p, &ticket), MESH_OK);
        CHECK_INT(net.base.ops->cancel(&net.base, &ticket), MESH_OK);
        status = net.base.ops->test(&net.base, &ticket, &why);
        CHECK_INT(status, MESH_ERR_CANCELED);
        CHECK(ticket.id == MESH_TICKET_ORPHANED);
    }
    if (net.base.rank == 1) { /* a receive that nothing has met is taken back whole */
        mesh_block b = MESH_ZERO;
        b.run = 1024, b.ndim = 1, b.dim[0].count = 4, b.dim[0].stride = 1024; /* without gaps: with them MPICH 4.0 leaks what is canceled */
        x.base = memory, x.nbytes = 4096, x.block = &b, x.direction = MESH_RECV;
        p.xfer = &x, p.count = 1, p.channel = 9;
        CHECK_INT(net.base.ops->post(&net.base, &p, &ticket), MESH_OK);
        CHECK_INT(net.base.ops->cancel(&net.base, &ticket), MESH_OK);
        CHECK_INT(net.base.ops->test(&net.base, &ticket, &why), MESH_ERR_CANCELED);
        CHECK(ticket.id != MESH_TICKET_ORPHANED);
    }
    MPI_Barrier(MPI_COMM_WORLD); /* a close would receive it */
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    free(memory);
}

/* Who waits for a rank that calls something else, or nothing, is told so; the transport closes in good order. */
static void test_rank_absent(void) {
    mesh_mpi net;
    mesh_comm c;
    int v = 1, sum, k;
    for (k = 0; k < 2; k++) {
        if (!(k == 1 ? open_native(&net) : open_mpi(&net, MPI_COMM_WORLD))) return;
        if (net.base.size > 1 && open_comm(&net.base, &c, "x=-1", NULL, 2 * SECOND)) {
            mesh_status status = MESH_OK;
            if (net.base.rank != net.base.size - 1)
                status = mesh_all_reduce(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM);
            else if (k == 0)
                status = mesh_recv(&c, NULL, 0, &v, 1, MESH_I32);
            else
                test_sleep(4);
            if (k == 0) CHECK(status == MESH_ERR_TIMEOUT || status == MESH_ERR_MISMATCH);
            if (k == 1 && net.base.rank != net.base.size - 1) {
                CHECK_INT(status, MESH_ERR_TIMEOUT);
                CHECK_INT(c.error.rank, net.base.size - 1);
                CHECK_HAS(c.error.text, "does not answer");
            }
            mesh_comm_close(&c);
        }
        { /* the rank that stayed away may be later than the others wait */
            int freed = comms_freed;
            mesh_status status = mesh_mpi_close(&net);
            CHECK(status == MESH_OK || status == MESH_ERR_TIMEOUT);
            CHECK(net.impl == NULL);
            if (status != MESH_OK) CHECK_INT(comms_freed, freed); /* that rank may still send there */
            if (status != MESH_OK) comms_now = 0;
        }
    }
}

/* The letter of its state in /proc: T is stopped. */
static char state_of(int pid) {
    char path[64], text[512] = "";
    const char *at;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!(f = fopen(path, "r"))) return 0;
    if (!fgets(text, sizeof text, f)) text[0] = 0;
    fclose(f);
    at = strrchr(text, ')');
    return at && at[1] ? at[2] : 0;
}

/* A rank that is stopped is named at the deadline; it goes on, and all close. */
static void test_stopped_rank(void) {
    mesh_mpi net;
    mesh_comm c;
    mesh_status status;
    double end = test_now() + 60;
    int v = 1, sum, last, pid = (int)getpid();
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    last = net.base.size - 1;
    MPI_Bcast(&pid, 1, MPI_INT, last, MPI_COMM_WORLD);
    if (last && open_comm(&net.base, &c, "x=-1", NULL, 2 * SECOND)) {
        if (net.base.rank == last) raise(SIGSTOP);
        if (net.base.rank == 0) {
            while (state_of(pid) != 'T' && test_now() < end) test_sleep(0.001);
            CHECK(state_of(pid) == 'T');
            for (v = 1; v < last; v++) MPI_Send(&v, 1, MPI_INT, v, 0, MPI_COMM_WORLD);
        } else if (net.base.rank < last) {
            MPI_Recv(&v, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        status = mesh_all_reduce(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM);
        if (net.base.rank == 0) { /* all the others have heard */
            for (v = 1; v < last; v++) MPI_Recv(&sum, 1, MPI_INT, v, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK_INT(kill(pid, SIGCONT), 0);
        }
        if (net.base.rank > 0 && net.base.rank < last) MPI_Send(&v, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        if (net.base.rank < last) {
            CHECK_INT(status, MESH_ERR_TIMEOUT);
            CHECK_INT(c.error.rank, last);
            CHECK_HAS(c.error.text, "does not answer");
        }
        mesh_comm_close(&c);
    }
    status = mesh_mpi_close(&net);
    CHECK(status == MESH_OK || status == MESH_ERR_TIMEOUT);
    if (status != MESH_OK) comms_now = 0;
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A rank that opens a comm once the others have given up is told; nothing is left. */
static void test_late_opener(void) {
    mesh_mpi net;
    mesh_comm c;
    mesh m;
    mesh_error err;
    mesh_comm_desc d = MESH_ZERO;
    int last;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    last = net.base.rank == net.base.size - 1;
    CHECK_OK(mesh_parse(&m, "x=-1", net.base.size, &err), err);
    d.timeout_ns = SECOND / 2;
    if (last && net.base.size > 1) MPI_Barrier(MPI_COMM_WORLD);
    if (net.base.size > 1) {
        mesh_status status = mesh_comm_open(&c, &net.base, &m, &d, &err);
        CHECK(status != MESH_OK);
        if (!last) CHECK_HAS(err.text, "still missing: rank ");
        if (!last) CHECK_INT(err.rank, net.base.size - 1);
    }
    if (!last) MPI_Barrier(MPI_COMM_WORLD);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

static void own_handler(MPI_Comm *comm, int *code, ...) { (void)comm, (void)code; }
static int key_fails(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    (void)comm, (void)key, (void)extra, (void)in, (void)out, (void)flag;
    return MPI_ERR_OTHER;
}

/* What goes wrong in MPI while a communicator is copied is returned. */
static void test_copies(void) {
    MPI_Comm copy;
    int key;
    mesh_mpi net;
    mesh_error err;
    MPI_Comm_create_keyval(key_fails, MPI_COMM_NULL_DELETE_FN, &key, NULL);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm_set_attr(copy, key, &key);
    CHECK(mesh_mpi_open(&net, copy, &err) != MESH_OK);
    CHECK_HAS(err.text, "MPI_Comm_idup");
    check_shut(&net.base);
    MPI_Comm_delete_attr(copy, key);
    MPI_Comm_free(&copy);
    MPI_Comm_free_keyval(&key);
}

static void test_mpi_refused(void) {
    MPI_Errhandler before, own, now;
    mesh_mpi net;
    mesh_error err;
    mesh_comm c;
    int v = 1;
    CHECK_INT(mesh_mpi_open(NULL, MPI_COMM_WORLD, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_mpi_open(&net, MPI_COMM_NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "MPI_COMM_NULL");
    CHECK(net.impl == NULL);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    check_shut(&net.base);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    MPI_Comm_create_errhandler(own_handler, &own);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, own);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &now);
    CHECK(now == own); /* set meanwhile, it stays */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, before);
    MPI_Errhandler_free(&own), MPI_Errhandler_free(&now), MPI_Errhandler_free(&before);
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    if (open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) {
        CHECK_INT(mesh_all_reduce(&c, "zz", &v, &v, 1, MESH_I32, MESH_SUM), MESH_ERR_ARGUMENT);
        CHECK_HAS(c.error.text, "zz");
        mesh_comm_close(&c);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    check_shut(&net.base);
}

#include "t_mpi_failing.h"
#include "t_mpi_kept.h"

/* A rank is killed among operations, where the launcher lets the others live: each names it at the deadline, and closes. Alone in its job; 0: as it should be. */
static int rank_killed(void) {
    mesh_mpi net;
    mesh_comm c;
    mesh_status status = MESH_OK;
    int v = 1, sum, i, last, bad;
    if (!open_mpi(&net, MPI_COMM_WORLD) || !open_comm(&net.base, &c, "x=-1", NULL, 2 * SECOND)) return 1;
    last = net.base.size - 1;
    for (i = 0; i < 100 && status == MESH_OK; i++) {
        if (i == 50 && net.base.rank == last) raise(SIGKILL);
        status = mesh_all_reduce(&c, NULL, &v, &sum, 1, MESH_I32, MESH_SUM);
    }
    CHECK_INT(status, MESH_ERR_TIMEOUT);
    CHECK_INT(c.error.rank, last);
    CHECK_HAS(c.error.text, "does not answer");
    mesh_comm_close(&c);
    CHECK_INT(mesh_mpi_close(&net), MESH_ERR_TIMEOUT);
    bad = test_failures;
    if (net.base.rank) MPI_Send(&bad, 1, MPI_INT, 0, 0, MPI_COMM_WORLD); /* MPI works on among them */
    for (i = 1; i < last && !net.base.rank; i++) MPI_Recv(&v, 1, MPI_INT, i, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), bad += v;
    if (!net.base.rank) printf("killed: %d checks failed on the other ranks\n", bad), fflush(stdout);
    return bad != 0;
}

/* A transport that is closed too late. In a job of its own; 0: as it should be. */
static int closed_late(void) {
    static mesh_mpi net;
    mesh_error err;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return 1;
    MPI_Finalize();
    CHECK_INT(net.base.ops->close(&net.base, &err), MESH_ERR_STATE);
    CHECK_HAS(err.text, "mesh_mpi_close: MPI is finalised; call it before MPI_Finalize");
    CHECK_INT(mesh_mpi_close(&net), MESH_ERR_STATE);
    if (!net.base.rank) printf("closed late: %d checks failed\n", test_failures), fflush(stdout);
    return test_failures != 0;
}

static const test_case tests[] = {
    {"mpi/refused", test_mpi_refused, 0},
    {"mpi/open_heard", test_open_heard, 0},
    {"mpi/group_heard", test_group_heard, 0},
    {"mpi/copies", test_copies, 0},
    {"mpi/native", test_native, 0},
    {"mpi/native_limits", test_native_limits, 0},
    {"mpi/native_in_place", test_native_in_place, 0},
    {"mpi/native_alike", test_native_alike, 0},
    {"mpi/native_small", test_native_small, 0},
    {"mpi/scheduled", test_scheduled, 0},
    {"mpi/transport", test_transport, 0},
    {"mpi/many_under_way", test_many_under_way, 0},
    {"mpi/suspected", test_suspected, 0},
    {"mpi/asks", test_asks, 0},
    {"mpi/comms", test_comms, 0},
    {"mpi/given_back", test_given_back, 0},
    {"mpi/halves", test_two_halves, 0},
    {"mpi/tags", test_tags, 0},
    {"mpi/lengths", test_lengths, 0},
    {"mpi/gaps", test_gaps, 0},
    {"mpi/order", test_order_of_lengths, 0},
    {"mpi/early", test_early_messages, 0},
    {"mpi/few_tags", test_few_tags, 0},
    {"mpi/leftover", test_leftover, 0},
    {"mpi/orphaned", test_orphaned, 0},
    {"mpi/absent", test_rank_absent, 0},
    {"mpi/stopped", test_stopped_rank, 0},
    {"mpi/late_opener", test_late_opener, 0},
    {"mpi/failing", test_failing, 0},
    {"mpi/group_given_up", test_group_given_up, 0},
    /* Those of test_mesh that have ranks over TCP. */
    {"redistribute/tcp", test_redistribute_tcp, 0},
    {"redistribute/lists", test_lists_of_tensors, 0},
    {"redistribute/scratch", test_scratch, 0},
    {"redistribute/refused", test_refused_tensors, 0},
    {"redistribute/differing", test_differing_layouts, 0},
    {"redistribute/orders_of_dims", test_orders_of_dims, 0},
    {"redistribute/transposed", test_transposed, 0},
    {"redistribute/shared_memory", test_shared_memory, 0},
    {"tensors/tcp", test_tensors_tcp, 0},
    {"tensors/large", test_tensors_large, 0},
    {"tensors/shared", test_tensors_shared, 0},
    {"tensors/in_place", test_tensors_in_place, 0},
    {"parallel/norm", test_norm, 0},
    {"parallel/norm_refused", test_norm_refused, 0},
    {"replicas/bits", test_replicas, 0},
    {"replicas/refused", test_replicas_refused, 0},
    {"buckets/rounds", test_buckets, 0},
    {"buckets/early", test_buckets_early, 0},
    {"buckets/refused", test_buckets_refused, 0},
    {"experts/routes", test_experts, 0},
    {"experts/refused", test_experts_refused, 0},
    {"vocabulary/loss", test_loss, 0},
    {"vocabulary/loss_refused", test_loss_refused, 0},
    {"vocabulary/lookup", test_lookup, 0},
    {"attention/ring", test_around, 0},
    {"attention/refused", test_ring_refused, 0},
    {"pipeline/run", test_run, 0},
    {"pipeline/run_large", test_run_large, 0},
    {"pipeline/run_beside", test_run_beside, 0},
    {"pipeline/stage_fails", test_stage_fails, 0},
    {"pipeline/run_refused", test_run_refused, 0},
    {"messages/lengths", test_message_lengths, 0},
    {"messages/objects", test_message_objects, 0},
    {"messages/tags", test_message_tags, 0},
    {"messages/in_place", test_message_in_place, 0},
    {"messages/wrong", test_message_wrong, 0},
    {"messages/late", test_message_late, 0},
    {"requests/rebind", test_rebind, 0},
    {"requests/prepared", test_prepared, 0},
    {"split/comms", test_split, 0},
    {"split/abort", test_given_up, 0},
    {"calls/counted_segments", test_counted_segments, 0},
    {"tables/values", test_tables, 0},
    {"faults/disagree_tcp", test_disagree_tcp, 0},
    {"faults/disagree_p2p", test_disagree_p2p, 0},
    {"faults/order_cycle", test_order_cycle, 0},
    {"faults/order_one_swapped", test_order_one_swapped, 0},
    {"faults/order_asleep", test_order_asleep, 0},
    {"faults/order_p2p", test_order_p2p, 0},
    {"faults/opposite_tcp", test_opposite_tcp, 0},
    {"large/tcp", test_large_tcp, 0},
};

static int chosen(const char *name, int parts, char **part) {
    int k;
    for (k = 0; k < parts && !strstr(name, part[k]);) k++;
    return !parts || k < parts;
}

int main(int argc, char **argv) {
    mesh_mpi early;
    mesh_error err;
    unsigned limit = 100;
    int rank, passed = 0, failed = 0;
    double start;
    size_t i;
    if (argc > 1 && !strcmp(argv[1], "--list")) {
        for (i = 0; i < sizeof tests / sizeof tests[0]; i++)
            if (chosen(tests[i].name, argc - 2, argv + 2)) puts(tests[i].name);
        return 0;
    }
    CHECK_INT(mesh_mpi_open(&early, MPI_COMM_WORLD, &err), MESH_ERR_STATE);
    CHECK_HAS(err.text, "between MPI_Init and MPI_Finalize");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    world_elsewhere = world_of_mpi;
    if (argc > 1 && !strcmp(argv[1], "--killed")) alarm(100), _exit(rank_killed()); /* MPI_Finalize would wait for it */
    if (argc > 1 && !strcmp(argv[1], "--alone")) alarm(100), _exit(failed_alone());
    if (argc > 1 && !strcmp(argv[1], "--late")) alarm(100), _exit(closed_late());
    if (argc > 2 && !strcmp(argv[1], "--limit")) limit = (unsigned)atoi(argv[2]), argc -= 2, argv += 2;
    for (i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        int bad, all;
        if (!chosen(tests[i].name, argc - 1, argv + 1)) continue;
        worlds_run = 0;
        alarm(limit); /* this process, and with it the job */
        start = test_now();
        tests[i].run();
        if (strncmp(tests[i].name, "mpi/", 4) && !worlds_run) continue; /* too few ranks for it */
        if (types_now || comms_now) test_fail(__FILE__, __LINE__, "%d datatypes and %d communicators are left", types_now, comms_now);
        types_now = comms_now = 0;
        bad = test_failures + conformance_failures;
        MPI_Allreduce(&bad, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        test_failures = conformance_failures = 0;
        passed += all == 0;
        failed += all != 0;
        if (!rank) printf("%s %-32s %6.2f s\n", all ? "FAIL" : "ok  ", tests[i].name, test_now() - start), fflush(stdout);
    }
    if (!rank) printf("%d passed, %d failed\n", passed, failed);
    MPI_Finalize();
    CHECK_INT(mesh_mpi_open(&early, MPI_COMM_WORLD, &err), MESH_ERR_STATE);
    return failed || test_failures;
}
