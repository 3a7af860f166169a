/* MPI that fails: a part of test_mpi.c. */
#ifndef T_MPI_FAILING_H
#define T_MPI_FAILING_H

/* A call of MPI's that fails on one rank: it says which, and MPI's words; the others hear from it, and nothing is left. */
static void failing_open(int bad) {
    static const char *const calls[] = {"MPI_Comm_get_attr", "MPI_Comm_group", "MPI_Irecv"};
    mesh_mpi net;
    mesh_error err;
    int k, rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (k = 0; k < 3; k++) {
        if (rank == bad) failing = calls[k], failing_after = 0;
        CHECK_INT(mesh_mpi_open(&net, MPI_COMM_WORLD, &err), MESH_ERR_TRANSPORT);
        failing = NULL;
        CHECK_INT(err.rank, bad);
        CHECK_HAS(err.text, rank == bad ? calls[k] : "failed: transport failed; it says why");
        check_shut(&net.base);
    }
}
/* And one without which MPI's own collectives never end: they, and the communicators, are left to MPI. In a job of its own; 0: as it should be. */
static int failed_alone(void) {
    static const struct {
        const char *call;
        int after;
    } calls[] = {{"MPI_Iallgather", 0}, {"MPI_Comm_set_errhandler", 6}, {"MPI_Comm_idup", 1}};
    mesh_mpi net;
    mesh_error err;
    int k, rank, size, bad, all;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (k = 0; k < 3; k++) {
        if (rank == size - 1) failing = calls[k].call, failing_after = calls[k].after;
        CHECK_INT(mesh_mpi_open(&net, MPI_COMM_WORLD, &err), MESH_ERR_TRANSPORT);
        failing = NULL;
        if (rank != size - 1) CHECK_INT(err.rank, size - 1);
        CHECK_HAS(err.text, rank == size - 1 ? calls[k].call : "failed: transport failed; it says why");
        check_shut(&net.base);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    bad = test_failures;
    MPI_Allreduce(&bad, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (!rank) printf("failed alone: %d checks failed\n", all), fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    return all != 0;
}
static void failing_call(int bad, const char *call, const char *said) {
    enum { N = 16000 }; /* whose parts are held */
    static int32_t in[N], out[N];
    mesh_block b = MESH_ZERO;
    mesh_mpi net;
    mesh_comm c;
    mesh_status status = MESH_OK;
    int broken = strcmp(call, "MPI_Isend") && strcmp(call, "MPI_Type_commit");
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    if (open_comm(&net.base, &c, "x=-1", NULL, 60 * SECOND)) {
        int me = net.base.rank, n = net.base.size;
        mesh_xfer x[2];
        b.run = 8, b.ndim = 1, b.dim[0].count = 5, b.dim[0].stride = 16;
        x[0] = conf_xfer(MESH_RECV, (me + n - 1) % n, out, 40, &b);
        x[1] = conf_xfer(MESH_SEND, (me + 1) % n, in, 40, &b);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        MPI_Barrier(MPI_COMM_WORLD); /* all are out of it */
        if (me == bad) failing = call, failing_after = 0;
        if (!strcmp(call, "MPI_Type_commit")) status = mesh_exchange(&c, NULL, x, 2);
        if (status == MESH_OK) status = mesh_all_reduce(&c, NULL, in, out, N, MESH_I32, MESH_SUM);
        failing = NULL;
        if (status == MESH_OK) status = mesh_barrier(&c, NULL); /* until all have heard */
        CHECK_INT(status, MESH_ERR_TRANSPORT);
        CHECK_HAS(c.error.text, said);
        if (me != bad) CHECK_HAS(c.error.text, "failed: ");
        mesh_comm_close(&c);
    }
    broken = broken && net.base.rank == bad;
    CHECK_INT(mesh_mpi_close(&net), broken ? MESH_ERR_TRANSPORT : MESH_OK);
    if (broken) comms_now = 0; /* they are left to MPI */
}
/* A rank that gives up a group while the first of it awaits others, or cannot make it: nobody enters MPI's own wait for it, which has no deadline. */
static void failing_group(int who) {
    mesh_mpi net;
    mesh_comm c;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    if (open_comm(&net.base, &c, "y=1,x=-1", NULL, 60 * SECOND)) {
        if (net.base.rank == who) failing = "MPI_Group_incl", failing_after = 0;
        CHECK_INT(mesh_group_open(&c, "x,y"), MESH_ERR_TRANSPORT);
        failing = NULL;
        CHECK_INT(c.error.rank, who);
        CHECK_HAS(c.error.text, net.base.rank == who ? "MPI_Group_incl: " : "could not open this group");
        mesh_comm_close(&c);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}
/* The first hears it even where all have been heard and it has been asleep since. */
static void given_up_meanwhile(void) {
    mesh_mpi net;
    mesh_error why = MESH_ZERO;
    unsigned char d[MESH__ABORT_HEAD + 4] = {77}; /* the comm */
    int i, ranks[64];
    double end = test_now() + 30;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    for (i = 0; i < 64; i++) ranks[i] = i;
    mesh__put32(d + 4, (uint32_t)MESH_ERR_CANCELED);
    memcpy(d + MESH__ABORT_HEAD, "gone", 4);
    if (net.base.rank == 1) CHECK_INT(net.base.ops->control_send(&net.base, 0, MESH_EVENT_ABORT, d, sizeof d), MESH_OK);
    if (net.base.rank == 0) {
        while (mesh_mpi__all_there(mesh_mpi__of(&net.base), ranks, net.base.size, 77, &why) == MESH_OK && test_now() < end) {}
        CHECK_INT(why.rank, 1);
        CHECK_HAS(why.text, "rank 1 failed: gone");
        CHECK_INT(mesh_mpi__all_there(mesh_mpi__of(&net.base), ranks, net.base.size, 78, &why), MESH_OK);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}
/* What a rank has said of a group in one comm, and given up, is not taken for what it says in an older one. */
static void given_up_elsewhere(void) {
    mesh_mpi net;
    mesh_comm older, c;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    if (open_comm(&net.base, &older, "y=1,x=-1", NULL, 60 * SECOND)) {
        if (open_comm(&net.base, &c, "y=1,x=-1", NULL, net.base.rank == 1 ? SECOND : 60 * SECOND)) {
            if (net.base.rank == 1) CHECK_INT(mesh_group_open(&c, "x,y"), MESH_ERR_TIMEOUT);
            mesh_comm_close(&c);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK_OK(mesh_group_open(&older, "x,y"), older.error);
        CHECK_OK(mesh_barrier(&older, "x,y"), older.error);
        mesh_comm_close(&older);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}
static void test_group_given_up(void) {
    int size, v = 0;
    mesh_mpi net;
    mesh_comm c;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size < 2) return;
    failing_group(size - 1);
    failing_group(0);
    given_up_meanwhile();
    given_up_elsewhere();
    if (size < 3 || !open_mpi(&net, MPI_COMM_WORLD)) return;
    if (open_comm(&net.base, &c, "y=1,x=-1", NULL, net.base.rank == 1 ? SECOND : 60 * SECOND)) {
        if (net.base.rank != 1) MPI_Recv(&v, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(mesh_group_open(&c, "x,y") != MESH_OK);
        if (net.base.rank != 1) CHECK_INT(c.error.rank, 1);
        for (v = 0; v < size && net.base.rank == 1; v++)
            if (v != 1) MPI_Send(&v, 1, MPI_INT, v, 0, MPI_COMM_WORLD);
        mesh_comm_close(&c);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}
/* A control message that MPI does not take: whoever needs that rank says so in MPI's words, and the others hear it. */
static void failing_said(int bad) {
    mesh_mpi net;
    mesh_comm c;
    mesh m;
    mesh_error err;
    mesh_status status;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    CHECK_OK(mesh_parse(&m, "x=-1", net.base.size, &err), err);
    if (net.base.rank == bad) failing = "MPI_Isend", failing_after = 0;
    status = mesh_comm_open(&c, &net.base, &m, NULL, &err);
    CHECK(status != MESH_OK);
    failing = NULL;
    if (net.base.rank == bad) {
        char words[MPI_MAX_ERROR_STRING + 1];
        int length = 0;
        MPI_Error_string(MPI_ERR_OTHER, words, &length);
        words[length] = 0;
        CHECK_INT(status, MESH_ERR_PEER);
        CHECK_HAS(err.text, "rank 0 ");
        CHECK_HAS(err.text, "could not be reached: MPI_Isend: ");
        CHECK_HAS(err.text, words);
    }
    if (status == MESH_OK) mesh_comm_close(&c);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}
static void test_failing(void) {
    mesh_mpi net;
    mesh_comm c;
    mesh m;
    mesh_error err;
    mesh_status status;
    MPI_Errhandler before, after;
    int size, bad;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size < 2) return;
    bad = size - 1;
    failing_open(bad);
    failing = "MPI_Comm_get_errhandler", failing_after = 0; /* of the world: its handler stays as it is */
    PMPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    failing = NULL;
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    PMPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
    CHECK(before == after);
    PMPI_Errhandler_free(&before), PMPI_Errhandler_free(&after);
    failing_said(bad);
    failing_call(bad, "MPI_Type_commit", "a datatype of MPI: ");
    failing_call(bad, "MPI_Isend", "MPI_Isend: ");
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    CHECK_OK(mesh_parse(&m, "x=-1", size, &err), err);
    if (net.base.rank == bad) failing = "MPI_Comm_set_errhandler", failing_after = 0;
    status = mesh_comm_open(&c, &net.base, &m, NULL, &err);
    failing = NULL;
    if (net.base.rank == bad) CHECK_INT(status, MESH_ERR_TRANSPORT);
    if (net.base.rank == bad) CHECK_HAS(err.text, "MPI_Comm_set_errhandler: ");
    if (status == MESH_OK) mesh_comm_close(&c);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    if (net.base.rank == bad) failing = "MPI_Isend", failing_after = 0; /* goodbye, to the first */
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
    failing = NULL;
    failing_call(bad, "MPI_Testsome", "MPI_Testsome: ");
    failing_call(bad, "MPI_Improbe", "MPI_Improbe: ");
    failing_call(bad, "MPI_Get_elements_x", "MPI_Get_elements_x: ");
}

#endif /* T_MPI_FAILING_H */
