/* The MPI transport's tests, as ranks of an MPI job: `make test-mpi`, or mpirun -n 4 build/test_mpi_openmpi [part of a test's name ...]. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_mpi.h"
#include "harness.h"
#include "conformance.h"

#define SECOND INT64_C(1000000000)

static int open_mpi(mesh_mpi *net, MPI_Comm comm) {
    mesh_error err;
    CHECK_OK(mesh_mpi_open(net, comm, &err), err);
    return net->impl != NULL;
}

/* Open a mesh of all ranks; ask after 100 ms, so that the tests are quick. */
static int open_comm(mesh_mpi *net, mesh_comm *c, const char *text, int64_t timeout) {
    mesh m;
    mesh_error err;
    mesh_comm_desc d = MESH_ZERO;
    d.timeout_ns = timeout;
    d.ask_ns = SECOND / 10;
    CHECK_OK(mesh_parse(&m, text, net->base.size, &err), err);
    CHECK_OK(mesh_comm_open(c, &net->base, &m, &d, &err), err);
    return c->impl != NULL;
}

static void conform(int native) {
    mesh_mpi net;
    setenv("MESH_MPI_NATIVE", native ? "1" : "0", 1);
    if (open_mpi(&net, MPI_COMM_WORLD)) {
        conformance_collectives(&net.base, "a=-1", NULL, NULL, 3001);
        if (net.base.size == 4) conformance_collectives(&net.base, "a=2,b=2", "b,a", NULL, 501);
        conformance_redistribute(&net.base, 3, 40, 400);
        CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    }
    unsetenv("MESH_MPI_NATIVE");
}
static void test_native(void) { conform(1); }
static void test_scheduled(void) { conform(0); }

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

/* Comms come and go: their communicators are used again. */
static void test_comms(void) {
    mesh_mpi net;
    mesh_comm c;
    int i, n = 0, v, sum;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    for (i = 0; i < 1000 && !test_failures; i++) {
        if (!open_comm(&net, &c, i % 2 ? "x=-1" : "y=1,x=-1", 60 * SECOND)) break;
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
static void test_halves(void) {
    mesh_mpi net;
    mesh_comm c;
    MPI_Comm half, other;
    MPI_Errhandler before, after;
    MPI_Request r;
    int rank, size, v, sum, all, of;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    if (!open_mpi(&net, half)) return;
    CHECK_INT(net.base.size, (size + !(rank % 2)) / 2);
    if (open_comm(&net, &c, "x=-1", 60 * SECOND)) {
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
        CHECK(other == MPI_COMM_NULL);
        mesh_comm_close(&c);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    MPI_Comm_free(&half);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
    CHECK(before == after);
}

/* Tags as high as MPI's, and one beyond. */
static void test_tags(void) {
    mesh_mpi net;
    mesh_comm c;
    mesh_mpi__impl *s;
    char axes[32];
    int64_t most;
    int other, v, got = -1;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    s = (mesh_mpi__impl *)net.impl;
    most = s->ordered_at - s->tagged_at - 1;
    if (most > MESH__TAGS) most = MESH__TAGS;
    other = net.base.rank ^ 1;
    if (other < net.base.size && open_comm(&net, &c, "x=-1", 60 * SECOND)) {
        snprintf(axes, sizeof axes, "x#%ld", (long)most);
        v = net.base.rank;
        CHECK_OK(mesh_sendrecv(&c, axes, other, &v, 1, other, &got, 1, MESH_I32), c.error);
        CHECK_INT(got, other);
        if (net.base.size % 2 == 0) MPI_Barrier(MPI_COMM_WORLD); /* what is refused ends everybody's comm */
        if (most < MESH__TAGS) {
            snprintf(axes, sizeof axes, "x#%ld", (long)most + 1);
            CHECK_INT(mesh_sendrecv(&c, axes, other, &v, 1, other, &got, 1, MESH_I32), MESH_ERR_UNSUPPORTED);
            CHECK_HAS(c.error.text, "the highest is");
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
        if (open_comm(&net, &c, "x=-1", 60 * SECOND)) {
            if (net.base.rank == 0 && net.base.size > 1) mesh_send(&c, NULL, 1, v, k ? 4 : 2, MESH_I32);
            if (net.base.rank == 1) {
                CHECK_INT(mesh_recv(&c, NULL, 0, v, 3, MESH_I32), MESH_ERR_MISMATCH);
                CHECK_INT(c.error.rank, 0);
                CHECK_HAS(c.error.text, k ? "rank 0 sent more bytes than the 12" : "rank 0 sent 8 bytes, rank 1 expected 12");
            }
            mesh_comm_close(&c);
        }
        CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    }
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
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    free(memory);
}

/* Who waits for a rank that calls something else, or nothing, is told so; the transport closes in good order. */
static void test_absent(void) {
    mesh_mpi net;
    mesh_comm c;
    int v = 1, sum, k;
    for (k = 0; k < 2; k++) {
        if (!open_mpi(&net, MPI_COMM_WORLD)) return;
        if (net.base.size > 1 && open_comm(&net, &c, "x=-1", 2 * SECOND)) {
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
            mesh_status status = mesh_mpi_close(&net);
            CHECK(status == MESH_OK || status == MESH_ERR_TIMEOUT);
            CHECK(net.impl == NULL);
        }
    }
}

static void test_refused(void) {
    mesh_mpi net;
    mesh_error err;
    mesh_comm c;
    int v = 1;
    CHECK_INT(mesh_mpi_open(NULL, MPI_COMM_WORLD, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_mpi_open(&net, MPI_COMM_NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "MPI_COMM_NULL");
    CHECK(net.impl == NULL);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    if (open_comm(&net, &c, "x=-1", 60 * SECOND)) {
        CHECK_INT(mesh_all_reduce(&c, "zz", &v, &v, 1, MESH_I32, MESH_SUM), MESH_ERR_ARGUMENT);
        CHECK_HAS(c.error.text, "zz");
        mesh_comm_close(&c);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {{"mpi/refused", test_refused},     {"mpi/native", test_native},   {"mpi/scheduled", test_scheduled},
             {"mpi/transport", test_transport}, {"mpi/comms", test_comms},     {"mpi/halves", test_halves},
             {"mpi/tags", test_tags},           {"mpi/lengths", test_lengths}, {"mpi/orphaned", test_orphaned},
             {"mpi/absent", test_absent}};

int main(int argc, char **argv) {
    mesh_mpi early;
    mesh_error err;
    int rank, passed = 0, failed = 0;
    size_t i;
    CHECK_INT(mesh_mpi_open(&early, MPI_COMM_WORLD, &err), MESH_ERR_STATE);
    CHECK_HAS(err.text, "between MPI_Init and MPI_Finalize");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        int k, bad, all;
        for (k = 1; k < argc && !strstr(tests[i].name, argv[k]);) k++;
        if (argc > 1 && k == argc) continue;
        tests[i].run();
        bad = test_failures + conformance_failures;
        MPI_Allreduce(&bad, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        test_failures = conformance_failures = 0;
        passed += all == 0;
        failed += all != 0;
        if (!rank) printf("%s %s\n", all ? "FAIL" : "ok  ", tests[i].name), fflush(stdout);
    }
    if (!rank) printf("%d passed, %d failed\n", passed, failed);
    MPI_Finalize();
    CHECK_INT(mesh_mpi_open(&early, MPI_COMM_WORLD, &err), MESH_ERR_STATE);
    return failed || test_failures;
}
