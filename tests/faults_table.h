/* The table of a campaign of faults, as docs/faults.md has it. Part of tests/faults.c. */
#ifndef FAULTS_TABLE_H
#define FAULTS_TABLE_H

static const char *const table_faults[][2] = { /* what it is, what has to be said */
    {"SIGKILL in the middle of a call", "PEER, the killed rank"},
    {"SIGSTOP in the middle of a call, never continued", "TIMEOUT, the stopped rank"},
    {"SIGSTOP for up to 0.3 s, then SIGCONT", "OK: nobody is accused"},
    {"the process exits inside a call, nothing closed (simulator: between calls, its transport closed)", "PEER, the rank that left"},
    {"closes comm and transport in good order while it is needed", "PEER, the rank that left"},
    {"a connection between two living ranks is reset (simulator: a message is lost)", "PEER, one of the two ends; or OK where the link was not needed"},
    {"calls wrongly: another count, dtype, op, root or call; NULL, an axis or dtype that is none", "MISMATCH with the odd rank's call shown, or what the odd rank got with \"rank r failed\""},
    {"never calls, and stays", "TIMEOUT, the absent rank"}};

typedef struct tally {
    int trials, bad, hangs, wrong, left, survivors, right, followed;
    int status[32];
    int64_t *took;
    int ntook;
} tally;

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int is_survivor(const trial *t, int rank) {
    return rank != t->victim || t->fault == FAULT_cut || t->fault == FAULT_pause || t->fault == FAULT_wrong;
}

static void tally_add(tally *s, const trial *t, outcome *o) {
    int i;
    shared = o;
    now_on = *t;
    s->trials++;
    s->bad += o->bad;
    s->hangs += o->hung > 0;
    s->wrong += o->bad && !o->hung;
    s->left += o->processes_left > 0 || o->sockets_left > 0 || o->files_left > 0;
    for (i = 0; i < t->ranks; i++) {
        const said *r = &o->rank[i];
        if (!is_survivor(t, i) || !r->ended) continue;
        s->survivors++;
        s->status[-r->status & 31]++;
        s->left += r->fds_left > 0 || r->blocks_left != 0;
        if (r->status == MESH_OK) continue;
        if (r->rank == t->victim || (t->fault == FAULT_cut && r->rank == o->other_end) || names(r->text, t->victim) || is_missing(r->text, t->victim))
            s->right++;
        else
            s->followed++;
        if (r->at >= o->fault_at && t->lane != LANE_SIM) s->took[s->ntook++] = r->at - o->fault_at;
    }
}

static void tally_row(FILE *f, const char *name, const char *lane, tally *s) {
    const char *comma = "";
    int k;
    fprintf(f, "| %s | %s | %d | ", name, lane, s->trials);
    for (k = 0; k < 32; k++)
        if (s->status[k]) fprintf(f, "%s%s %d", comma, mesh_status_text((mesh_status)-k), s->status[k]), comma = ", ";
    fprintf(f, " | %d | %d | ", s->right, s->followed);
    qsort(s->took, (size_t)s->ntook, sizeof *s->took, by_value);
    if (s->ntook)
        fprintf(f, "%.2f / %.2f", (double)s->took[s->ntook / 2] * 1e-9, (double)s->took[s->ntook - 1] * 1e-9);
    else
        fprintf(f, "-");
    fprintf(f, " | %d | %d | %d |\n", s->hangs, s->wrong, s->left);
}

static void table_head(FILE *f, const options *o, int combinations, double seconds, int failed) {
    int i;
    fprintf(f,
            "# A campaign of faults\n\nWritten by `make faults` (tests/faults.c): %d trials from seed %" PRIu64 ", %.0f s, %d jobs side by side; %d failed. Every one of the\n"
            "%d combinations of operation, fault and backend that there are is tried before one is tried again; ranks (2 to 8), who is at fault, the\n"
            "moment (the n-th call into the transport or the system, the n-th byte sent or received), counts, dtypes, axes, roots and how the call is\n"
            "waited for (blocking, mesh_wait, polled) are drawn from the seed. A trial that fails prints the line that repeats it, as\n"
            "`build/faults --trial 'tcp 5 all_reduce sigkill 2 seed 1234'`. The same line draws the same trial; what the kernel makes of it may differ.\n\n",
            o->trials, o->seed, seconds, o->jobs, failed, combinations);
    fprintf(f, "Operations:");
    for (i = 0; i < OP_COUNT; i++) fprintf(f, "%s %s", i ? "," : "", op_names[i]);
    fprintf(f, ".\n\n"
               "## What has to be said\n\nEvery survivor ends, with a status; a call that says OK has the right result (checked element by element); a barrier that needs every\n"
               "rank follows the calls, so that nobody can have missed the fault. `error.rank` is the right name, else the text:\n\n"
               "| fault | what happens | what every survivor says |\n|---|---|---|\n");
    for (i = 0; i < FAULT_COUNT; i++) fprintf(f, "| %s | %s | %s |\n", fault_names[i], table_faults[i][0], table_faults[i][1]);
    fprintf(f,
            "\nThat is what mesh_collectives.h and mesh/comm.h promise: PEER names who was lost, or has closed its transport while it was needed; TIMEOUT\n"
            "those still awaited, first who does not answer; MISMATCH both calls. Five things are right by that letter though they name another rank\n"
            "than the first cause, and are counted in a column of their own:\n"
            "who opens a comm while its first rank still waits for the stopped one says that the first has not opened it \"or waits for another\";\n"
            "an opening that comes late finds that the first rank of the mesh has closed its transport, because of the fault; a rank finds so where\n"
            "a link was cut that others did not need, so that they ended well and left with what they knew; the end of a cut link that the others\n"
            "give up names who tells it so (\"it has given this rank up\"); and where ranks poll, a cycle of waiting is ended by the deadline, which\n"
            "names who is awaited. A transport that loses a message (cut on the simulator) is none: there an end is all that is asked.\n"
            "While the transport itself opens, TIMEOUT and TRANSPORT that name the rank are as good as PEER; while it closes, no call is left to fail.\n\n"
            "Leftovers: processes (the trial is their subreaper), listening or connected sockets and Unix-domain names, files in /tmp and /dev/shm\n"
            "(each trial over sockets has a network and mounts of its own), descriptors and allocations of every survivor.\n\n"
            "## What was said\n\nSeconds are from the fault to the survivor's status, on the machine's clock: 0.25 s of them wait for a better cause to be told. TIMEOUT\n"
            "comes after the deadline of the trial (2 s; 3 s while the transport opens, and where a wrong call is polled) and a roll call of a quarter of it.\n\n"
            "| fault | backend | trials | survivors said | named the rank | named a consequence | s: median / most | hangs | wrong | leftovers |\n"
            "|---|---|---|---|---|---|---|---|---|---|\n");
}

static void table_write(const options *o, const trial *list, outcome *all, int combinations, double seconds, int failed) {
    FILE *f = fopen(o->table, "w");
    int fault, lane, i, k;
    char line[128];
    if (!f) {
        perror(o->table);
        return;
    }
    table_head(f, o, combinations, seconds, failed);
    for (fault = 0; fault < FAULT_COUNT; fault++)
        for (lane = 0; lane < LANES; lane++) {
            tally s;
            memset(&s, 0, sizeof s);
            s.took = (int64_t *)calloc((size_t)o->trials * MOST_RANKS, sizeof *s.took);
            for (i = 0; s.took && i < o->trials; i++)
                if (list[i].fault == fault && list[i].lane == lane) tally_add(&s, &list[i], &all[i]);
            if (s.trials) tally_row(f, fault_names[fault], lane_names[lane], &s);
            free(s.took);
        }
    fprintf(f, "\n## In their words\n\nOne survivor of the first trial of each fault over sockets or shared memory:\n\n");
    for (fault = 0; fault < FAULT_COUNT; fault++) {
        for (i = 0; i < o->trials && (list[i].fault != fault || list[i].lane == LANE_SIM || list[i].op >= OP_comm_open); i++) {}
        for (k = 0; i < o->trials && k < list[i].ranks && (k == list[i].victim || !all[i].rank[k].text[0]); k++) {}
        if (i == o->trials || k == list[i].ranks) continue;
        trial_line(&list[i], line, sizeof line);
        fprintf(f, "- `%s`: rank %d: %s\n", line, k, all[i].rank[k].text);
    }
    if (failed) fprintf(f, "\n## Failed\n\n");
    for (i = 0; i < o->trials; i++)
        if (all[i].bad) trial_line(&list[i], line, sizeof line), fprintf(f, "- `%s`: %s\n", line, all[i].verdict);
    fclose(f);
}

static void csv_write(const options *o, const trial *list, outcome *all) {
    FILE *f = fopen(o->csv, "w");
    int i, k;
    if (!f) {
        perror(o->csv);
        return;
    }
    fprintf(f, "backend,ranks,operation,fault,at_fault,seed,rank,status,named,seconds,text\n");
    for (i = 0; i < o->trials; i++)
        for (k = 0; k < list[i].ranks; k++) {
            const said *s = &all[i].rank[k];
            const char *p = s->text;
            if (!s->ended) continue;
            fprintf(f, "%s,%d,%s,%s,%d,%" PRIu64 ",%d,%s,%d,%.4f,\"", lane_names[list[i].lane], list[i].ranks, op_names[list[i].op], fault_names[list[i].fault], list[i].victim,
                    list[i].seed, k, mesh_status_text((mesh_status)s->status), s->rank, (double)(s->at - all[i].fault_at) * 1e-9);
            for (; *p; p++) fprintf(f, *p == '"' ? "\"\"" : "%c", *p);
            fprintf(f, "\"\n");
        }
    fclose(f);
}

#endif
