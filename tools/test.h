/* mesh test: every collective on every axis, every value checked. */
#ifndef TOOL_TEST_H
#define TOOL_TEST_H

static int command_test(const char *self, int argc, char **argv) {
    const char *text = NULL;
    mesh_socket net;
    mesh m;
    mesh_comm comm;
    mesh_op ops[2];
    mesh_error err;
    int i;
    for (i = 0; i < argc; i++) {
        if (is_help(argv[i])) {
            printf(
                "usage: mesh test --mesh dp=2,tp=2\n\n"
                "Runs every collective on the whole mesh and on every axis - blocking and started, in place and not, every dtype and reduction -\n"
                "and compares each value. Inside a job (mesh run, torchrun, srun, mpirun) it takes part; else it starts the ranks itself.\n\n"
                "Exit status: 1 if anything is wrong.\n");
            return 0;
        }
        if (!strcmp(argv[i], "--mesh") && i + 1 < argc)
            text = argv[++i];
        else
            return wrong("test", "unknown option, or one without its value", argv[i]);
    }
    if (!text) return wrong("test", "--mesh is missing, as in --mesh dp=2,tp=2", NULL);
    if (mesh_parse(&m, text, 0, &err) && !strstr(text, "=-1")) return wrong("test", err.text, NULL);
    if (!in_job()) {
        if (mesh_parse(&m, text, 0, &err)) return wrong("test", err.text, NULL);
        return start_job(self, m.size, "test", argc, argv);
    }
    if (mesh_socket_open(&net, NULL, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (mesh_parse(&m, text, net.base.size, &err) || mesh_comm_open(&comm, &net.base, &m, NULL, &err)) {
        fprintf(stderr, "%s\n", err.text);
        mesh_socket_close(&net);
        return 1;
    }
    conf_add_ops(&comm, ops);
    for (i = -1; i < m.naxes && !conformance_failures && !comm.failed; i++) {
        const char *axes = i < 0 ? NULL : m.axis[i].name;
        int64_t start = mesh_socket__clock();
        conf_group(&comm, axes, 20011, ops);
        if (net.base.rank == 0)
            printf("%-16s %4d rank%s  %d operations, %d dtypes, %d reductions: %s  (%.2f s)\n",
                   axes ? axes : "(whole mesh)", mesh_comm_size(&comm, axes),
                   mesh_comm_size(&comm, axes) == 1 ? " " : "s", MESH_CALL_GROUP_OPEN - 1, MESH_DTYPE_COUNT,
                   MESH_OP_COUNT,
                   comm.failed            ? "not ended"
                   : conformance_failures ? "WRONG"
                                          : "ok",
                   (double)(mesh_socket__clock() - start) * 1e-9);
        fflush(stdout);
    }
    for (i = 0; i < 8 && !conformance_failures && !comm.failed; i++) conf_halo(&comm, i & 1, i >> 1 == 3 ? 7 : i >> 1);
    if (comm.failed) fprintf(stderr, "%s\n", comm.error.text);
    i = conformance_failures || comm.failed;
    mesh_comm_close(&comm);
    mesh_socket_close(&net);
    return i;
}

#endif
