/* Communicators of groups that are no more: a part of test_mpi.c. */
#ifndef T_MPI_KEPT_H
#define T_MPI_KEPT_H

/* The ranks in the i-th of so many orders, of which each is another group. */
static int open_order(mesh_mpi *net, mesh_comm *c, int i) {
    static int order[64], inverse[64]; /* as long as the comm */
    static mesh_table table;
    int n = net->base.size, k;
    const char *name = "x";
    mesh_desc d = MESH_ZERO;
    mesh_error err;
    mesh m;
    for (k = 0; k < n; k++) order[k] = i / n % 2 ? (n - 1 - k + i) % n : (k + i) % n;
    d.shape = &n, d.names = &name, d.naxes = 1, d.world = n, d.table = &table;
    CHECK_OK(mesh_table_make(&table, order, n, inverse, n, &err), err);
    CHECK_OK(mesh_make(&m, &d, &err), err);
    CHECK_OK(mesh_comm_open(c, &net->base, &m, NULL, &err), err);
    return c->impl != NULL;
}
/* MPI frees a communicator where all its ranks do: one rank that keeps too many is enough. What the program has a copy of stays. */
static void given_back(int few, int copied) {
    enum { ROUNDS = 3 };
    mesh_mpi net;
    mesh_comm c;
    MPI_Comm copy = MPI_COMM_NULL, again;
    MPI_Request all;
    int i, ended = 0, most = 2 + copied;
    double end = test_now() + 30;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    if (net.base.rank == few || few < 0) mesh_mpi__of(&net.base)->idle_most = 1;
    for (i = 0; i < ROUNDS * 2 * net.base.size && !test_failures; i++) {
        int sum = 0;
        if (!open_order(&net, &c, i)) break;
        CHECK_OK(mesh_all_reduce(&c, NULL, &i, &sum, 1, MESH_I32, MESH_SUM), c.error);
        CHECK_INT(sum, i * net.base.size);
        if (copied && i == 0) CHECK_INT(mesh_mpi_comm(&c, "x", &copy), MESH_OK);
        mesh_comm_close(&c);
    }
    while (links_of(&net) > most && test_now() < end) mesh_progress(&net.base, mesh_now(&net.base) + SECOND / 1000);
    MPI_Ibarrier(MPI_COMM_WORLD, &all);
    while (!ended && test_now() < end) {
        mesh_progress(&net.base, mesh_now(&net.base) + SECOND / 1000);
        MPI_Test(&all, &ended, MPI_STATUS_IGNORE);
    }
    CHECK(links_of(&net) <= most);
    if (copied && open_order(&net, &c, 0)) {
        CHECK_INT(mesh_mpi_comm(&c, "x", &again), MESH_OK);
        CHECK(again == copy);
        mesh_comm_close(&c);
    }
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}
/* A message that nobody received keeps its communicator, of which all have said that they use it no more: the next in its place would have it. */
static void kept_with_message(void) {
    mesh_mpi net;
    mesh_comm c;
    MPI_Request all;
    int i, v = 0, ended = 0, freed;
    double end = test_now() + 30;
    if (!open_mpi(&net, MPI_COMM_WORLD)) return;
    mesh_mpi__of(&net.base)->idle_most = 0;
    for (i = 0, freed = comms_freed; i < 2 && open_order(&net, &c, i); i++) {
        if (i == 0 && net.base.rank == 0) CHECK_OK(mesh_send(&c, "x", 1, &v, 1, MESH_I32), c.error);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        mesh_comm_close(&c);
    }
    while (comms_freed == freed && test_now() < end) mesh_progress(&net.base, mesh_now(&net.base) + SECOND / 1000); /* the second */
    MPI_Ibarrier(MPI_COMM_WORLD, &all);
    while (!ended && test_now() < end) {
        mesh_progress(&net.base, mesh_now(&net.base) + SECOND / 1000);
        MPI_Test(&all, &ended, MPI_STATUS_IGNORE);
    }
    CHECK_INT(comms_freed, freed + 1);
    CHECK_INT(links_of(&net), 2);
    CHECK_INT(mesh_mpi_close(&net), MESH_OK);
}
static void test_given_back(void) {
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    given_back(-1, 0);
    given_back(0, 0);
    given_back(size - 1, 0);
    given_back(-1, 1);
    if (size > 1) kept_with_message();
}

#endif /* T_MPI_KEPT_H */
