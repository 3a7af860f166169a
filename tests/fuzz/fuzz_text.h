/* Everything else that is read as text: specs, tuning tables, topologies, the environment, traces. */

/* ---- specs: a mesh, a shape and a spec, a line each ---- */

enum { FUZZ_CELLS = 512 };

/* The boxes of all ranks cover the tensor, each element as often as it has holders; owners and pieces say the same. */
static void fuzz_spec_boxes(const mesh_spec *s, const mesh *m, int ndim, const int64_t *shape) {
    const mesh_layout on = layout_of(m, s, ndim, shape);
    static unsigned char held[FUZZ_CELLS], whole[FUZZ_CELLS], cut[FUZZ_CELLS], back[FUZZ_CELLS];
    int64_t total = 1, e, at[MESH_MAX_DIMS], pieces = 0;
    int i, d, holders = mesh_layout_holders(&on);
    mesh_box all = MESH_ZERO, box, both;
    mesh_pieces p;
    for (d = 0; d < ndim; d++) total *= shape[d], all.shape[d] = shape[d];
    all.ndim = ndim;
    CHECK_INT(mesh_box_count(&all), total);
    memset(held, 0, sizeof held);
    memset(back, 0, sizeof back);
    for (e = 0; e < total; e++) whole[e] = (unsigned char)(e * 7 + 1);
    for (i = 0; i < m->size; i++) {
        int rank = mesh_rank_at(m, i);
        CHECK_INT(mesh_layout_box(&on, rank, &box), mesh_box_count(&box));
        CHECK_INT(mesh_box_intersect(&both, &box, &all), mesh_box_count(&box) > 0);
        CHECK_INT(mesh_box_count(&both), mesh_box_count(&box));
        for (e = 0; e < mesh_box_count(&box); e++) held[plan_linear_in(ndim, shape, &box, e)]++;
        mesh_layout_slice(&on, rank, cut, whole, 1);
        for (e = 0; e < mesh_box_count(&box); e++) CHECK_INT(cut[e], whole[plan_linear_in(ndim, shape, &box, e)]);
        mesh_layout_paste(&on, rank, back, cut, 1);
    }
    CHECK(!memcmp(whole, back, (size_t)total));
    for (e = 0; e < total; e++) {
        int64_t rest = e;
        CHECK_INT(held[e], holders);
        for (d = ndim - 1; d >= 0; d--) at[d] = rest % shape[d], rest /= shape[d];
        if (e > 16) continue;
        CHECK_INT(mesh_layout_owner(&on, at, holders), -1);
        for (i = 0; i < holders; i++) {
            int rank = mesh_layout_owner(&on, at, i);
            CHECK(rank >= 0 && mesh_layout_box(&on, rank, &box) >= 0);
            for (d = 0; d < ndim; d++) CHECK(at[d] >= box.offset[d] && at[d] < box.offset[d] + box.shape[d]);
            if (i) CHECK(mesh_index_of(m, rank) > mesh_index_of(m, mesh_layout_owner(&on, at, i - 1)));
        }
    }
    for (mesh_pieces_start(&p, &on, &all); mesh_pieces_next(&p);) {
        CHECK(mesh_layout_box(&on, p.rank, &box) >= 0 && mesh_box_intersect(&both, &box, &p.piece));
        CHECK_INT(mesh_box_count(&both), mesh_box_count(&p.piece));
        pieces += mesh_box_count(&p.piece);
    }
    CHECK_INT(pieces, total);
}

static void fuzz_spec_laws(const mesh_spec *s, const mesh *m, int ndim, const int64_t *shape) {
    mesh_spec again;
    mesh_error err;
    char *text;
    int64_t total = 1;
    int d;
    FUZZ_SHOWN(text, mesh_spec_format(s, m, buf, cap));
    CHECK_OK(mesh_spec_parse(&again, m, text, ndim, &err), err);
    CHECK(mesh_spec_equal(&again, s));
    free(text);
    FUZZ_SHOWN(text, mesh_spec_format_dims(s, m, ndim, buf, cap));
    CHECK_OK(mesh_spec_parse_dims(&again, m, text, ndim, &err), err);
    CHECK(mesh_spec_equal(&again, s));
    free(text);
    if (spec_check(s, m, ndim, shape, &err) != MESH_OK) {
        fuzz_refused((mesh_status)err.status, &err, "mesh_layout_check");
        return;
    }
    for (d = 0; d < ndim; d++) total *= shape[d] < FUZZ_CELLS && total < FUZZ_CELLS ? shape[d] : FUZZ_CELLS;
    if (total < FUZZ_CELLS && m->size <= 64) fuzz_spec_boxes(s, m, ndim, shape);
}

static void fuzz_spec(const unsigned char *data, size_t n) {
    fuzz_bytes b = fuzz_bytes_of(data, n);
    char *mesh_text = fuzz_line(&b), *shape_text = fuzz_line(&b), *text;
    int64_t shape[MESH_MAX_DIMS + 1];
    int ndim, made = mesh_text && shape_text;
    mesh m;
    made = made && mesh_parse(&m, mesh_text, 0, NULL) == MESH_OK && (ndim = plan_shape(shape_text, shape)) >= 0;
    while (made && (text = fuzz_line(&b)) != NULL) {
        mesh_spec s, canary;
        mesh_error err;
        mesh_status status;
        memset(&canary, 0xa5, sizeof canary);
        s = canary;
        status = mesh_spec_parse(&s, &m, text, ndim, &err);
        if (status == MESH_OK) {
            fuzz_spec_laws(&s, &m, ndim, shape);
        } else {
            fuzz_refused(status, &err, "mesh_spec_parse");
            CHECK(!memcmp(&s, &canary, sizeof s));
        }
        s = canary;
        status = mesh_spec_parse_dims(&s, &m, text, ndim, &err);
        if (status == MESH_OK) {
            fuzz_spec_laws(&s, &m, ndim, shape);
        } else {
            fuzz_refused(status, &err, "mesh_spec_parse_dims");
            CHECK(!memcmp(&s, &canary, sizeof s));
        }
        free(text);
    }
    free(mesh_text);
    free(shape_text);
}

/* ---- tuning tables and topologies ---- */

static void fuzz_tuning(const unsigned char *data, size_t n) {
    char *text = fuzz_text(data, n), *shown;
    mesh_tuning t, again;
    mesh_error err;
    mesh_status status = mesh_tuning_parse(&t, text, &err);
    int i, line, lines = 1;
    for (i = 0; text[i]; i++) lines += text[i] == '\n';
    if (status != MESH_OK) {
        fuzz_refused(status, &err, "mesh_tuning_parse");
        CHECK_INT(sscanf(err.text, "mesh_tuning_parse: line %d", &line), 1);
        CHECK(line >= 1 && line <= lines);
    } else {
        CHECK(t.nrows <= lines && t.nrows <= MESH_MAX_TUNING);
        for (i = 0; i < t.nrows; i++) CHECK(mesh_algorithm_serves((mesh_algorithm)t.row[i].algorithm, t.row[i].call));
        FUZZ_SHOWN(shown, mesh_tuning_format(&t, buf, cap));
        CHECK_OK(mesh_tuning_parse(&again, shown, &err), err);
        CHECK(!memcmp(&t, &again, sizeof t));
        free(shown);
    }
    free(text);
}

/* A topology as `mesh plan` reads it; then the whole as what the first rank of a comm hands out, which may also be any bytes. */
static void fuzz_topology(const unsigned char *data, size_t n) {
    static unsigned char terms[MESH_CONTROL_BYTES * 2];
    char *text = fuzz_text(data, n), *space = strchr(text, ' ');
    mesh__comm_impl *ours = (mesh__comm_impl *)calloc(1, sizeof *ours),
                    *theirs = (mesh__comm_impl *)calloc(1, sizeof *theirs);
    mesh_error err;
    mesh_status status;
    unsigned char *bytes = (unsigned char *)malloc(n + 1);
    size_t length;
    int i;
    (void)command_plan; /* the rest of tools/plan.h */
    if (n) memcpy(bytes, data, n);
    if (space) *space = 0;
    status = mesh_topology_parse(&ours->topology, text, &err);
    if (status != MESH_OK) {
        fuzz_refused(status, &err, "mesh_topology_parse");
    } else {
        char shown[1024];
        CHECK(mesh_topology_format(&ours->topology, shown, sizeof shown) < sizeof shown);
        CHECK_OK(mesh_topology_parse(&theirs->topology, shown, &err), err);
        CHECK(!memcmp(&theirs->topology, &ours->topology, sizeof ours->topology));
        if (space && mesh_tuning_parse(&ours->tuning, space + 1, NULL)) ours->tuning.nrows = 0;
        ours->scratch_cap = (int64_t)n;
        length = mesh__terms_write(terms, ours);
        CHECK(mesh__terms_fit(terms, length));
        mesh__terms_read(theirs, terms, length);
        CHECK_INT(theirs->scratch_cap, ours->scratch_cap);
        CHECK(!memcmp(&theirs->topology, &ours->topology, sizeof ours->topology));
        CHECK_INT(theirs->tuning.nrows, ours->tuning.nrows);
        for (i = 0; i < ours->tuning.nrows; i++)
            CHECK(!memcmp(&theirs->tuning.row[i], &ours->tuning.row[i], sizeof ours->tuning.row[i]));
    }
    if (mesh__terms_fit(bytes, n)) {
        mesh__terms_read(theirs, bytes, n);
        CHECK(theirs->topology.nlevels >= 0 && theirs->topology.nlevels <= MESH_MAX_LEVELS);
        CHECK(theirs->tuning.nrows >= 0 && theirs->tuning.nrows <= MESH_MAX_TUNING);
    }
    free(bytes);
    free(text);
    free(ours);
    free(theirs);
}

/* ---- the environment: a line is NAME=value; of other names only what is read ---- */

static const char *const fuzz_names[] = {"RANK",
                                         "WORLD_SIZE",
                                         "LOCAL_RANK",
                                         "LOCAL_WORLD_SIZE",
                                         "MASTER_ADDR",
                                         "MASTER_PORT",
                                         "MESH_PORT",
                                         "MESH_SECRET",
                                         "MESH_SOCKET_LANES",
                                         "MESH_TIMEOUT",
                                         "TORCHELASTIC_USE_AGENT_STORE",
                                         "TORCHELASTIC_RUN_ID",
                                         "OMPI_COMM_WORLD_RANK",
                                         "OMPI_COMM_WORLD_SIZE",
                                         "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "OMPI_COMM_WORLD_LOCAL_SIZE",
                                         "PMIX_NAMESPACE",
                                         "PMI_RANK",
                                         "PMI_SIZE",
                                         "PMI_JOBID",
                                         "MPI_LOCALRANKID",
                                         "MPI_LOCALNRANKS",
                                         "SLURM_PROCID",
                                         "SLURM_NTASKS",
                                         "SLURM_LOCALID",
                                         "SLURM_STEP_NODELIST",
                                         "SLURM_STEP_ID",
                                         "SLURM_JOB_ID",
                                         "MESH_TUNING",
                                         "MESH_TRACE",
                                         "MESH_SECRET_FILE",
                                         "MESH_LISTEN_FD"};
enum { FUZZ_SET = 28 /* those before the names of files and descriptors */ };

static void fuzz_environment_clear(void) {
    size_t i;
    for (i = 0; i < sizeof fuzz_names / sizeof fuzz_names[0]; i++) unsetenv(fuzz_names[i]);
}

static void fuzz_hosts(const char *list) {
    char all[300], some[8], prefix[300];
    int only = mesh__env_first_host(list, all, sizeof all);
    size_t n = strcspn(list, ",[");
    CHECK_INT(mesh__env_first_host(list, some, sizeof some), only);
    CHECK(!strncmp(some, all, strlen(some)));
    snprintf(prefix, sizeof prefix, "%.*s", (int)(n < 280 ? n : 280), list);
    CHECK(!strncmp(all, prefix, strlen(prefix)));
    CHECK(!strpbrk(all, ",[") && strlen(all) <= strlen(list));
    if (!list[n]) CHECK_INT(only, 1);
}

static void fuzz_environment(const unsigned char *data, size_t n) {
    fuzz_bytes b = fuzz_bytes_of(data, n);
    char *line;
    mesh_socket_desc desc = MESH_ZERO;
    mesh_env w;
    mesh_error err;
    mesh_status status;
    mesh_socket net;
    fuzz_environment_clear();
    while ((line = fuzz_line(&b)) != NULL) {
        char *value = strchr(line, '=');
        int i;
        for (i = 0; value && i < FUZZ_SET; i++) {
            size_t length = strlen(fuzz_names[i]);
            if (length == (size_t)(value - line) && !strncmp(line, fuzz_names[i], length))
                setenv(fuzz_names[i], value + 1, 1);
        }
        if (value && !strncmp(line, "SLURM_STEP_NODELIST=", 20)) fuzz_hosts(value + 1);
        free(line);
    }
    status = mesh_socket__who(&desc, &w, &err);
    if (status != MESH_OK) {
        fuzz_refused(status, &err, "mesh_socket_open");
        CHECK_INT(mesh_socket_open(&net, NULL, NULL), status);
    } else {
        CHECK(w.size >= 1 && w.rank >= 0 && w.rank < w.size && w.port >= 1 && w.port <= 65535);
        CHECK(w.local_rank >= -1 && w.local_size >= -1);
        CHECK(strlen(w.address) < sizeof w.address && w.address[0]);
        if (w.size == 1) { /* nobody to meet: it opens, or says which variable is wrong */
            status = mesh_socket_open(&net, NULL, &err);
            if (status != MESH_OK)
                fuzz_refused(status, &err, "mesh_socket_open");
            else
                CHECK_INT(mesh_socket_close(&net), MESH_OK);
        }
    }
    fuzz_environment_clear();
}

/* ---- traces: what `mesh trace` makes of any file ---- */

static char fuzz_dir[64];
static void fuzz_trace_clean(void) {
    static const char *const names[] = {"rank-0.json", "rank-1.json", "trace.json", "trace.json.part"};
    char path[100];
    size_t i;
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", fuzz_dir, names[i]);
        unlink(path);
    }
    rmdir(fuzz_dir);
}

static void fuzz_trace(const unsigned char *data, size_t n) {
    static int out = -1;
    char path[100];
    int i, kept;
    size_t cut = 0;
    if (out < 0) {
        snprintf(fuzz_dir, sizeof fuzz_dir, "%s/mesh-fuzz-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
        CHECK(mkdtemp(fuzz_dir) != NULL);
        atexit(fuzz_trace_clean);
        out = open("/dev/null", O_WRONLY | O_CLOEXEC);
    }
    for (i = 0; i < 2; i++) { /* two ranks' files: the second from the first byte 0 on */
        const unsigned char *zero = n ? (const unsigned char *)memchr(data, 0, n) : NULL;
        size_t from = i ? cut : 0, to = i ? n : (cut = zero ? (size_t)(zero - data) : n);
        FILE *f;
        from += i && cut < n;
        snprintf(path, sizeof path, "%s/rank-%d.json", fuzz_dir, i);
        if (i && cut == n) {
            unlink(path);
            break;
        }
        if (!(f = fopen(path, "w"))) {
            CHECK(!"a place for traces");
            return;
        }
        fwrite(data + from, 1, to - from, f);
        fclose(f);
    }
    fflush(stdout);
    kept = dup(1);
    dup2(out, 1);
    i = dup(2);
    dup2(out, 2);
    trace_merge(fuzz_dir);
    fflush(stdout);
    dup2(kept, 1);
    dup2(i, 2);
    close(kept);
    close(i);
}
