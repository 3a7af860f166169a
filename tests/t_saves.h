/* Saves under way: given up, waited for by way of another comm, begun beside others, without their first rank, on a slow disk. */
#ifndef T_SAVES_H
#define T_SAVES_H
#include "t_checkpoint.h"

/* A comm of three, and this rank's part of a state to be saved. */
static int saves_open(mesh_transport *t, mesh_comm *c, state_part *p) {
    state_shape shapes[STATE_TENSORS];
    if (!open_comm(t, c, "a=3", NULL, 30 * SECOND)) return 0;
    state_shapes(shapes, 0);
    state_open(p, shapes, &c->on, t->rank, 0, 2);
    return 1;
}

/* A comm that is given up or closed while a save is under way: it ends, and leaves the old checkpoint and nothing else. */
static void abandoned_rank(mesh_transport *t, void *ctx) {
    int how = *(const int *)ctx;
    state_part p;
    mesh_comm c;
    mesh_checkpoint s;
    if (!saves_open(t, &c, &p)) return;
    CHECK_OK(mesh_checkpoint_save_start(&c, checkpoint_folder, p.list, p.n, NULL, &s), c.error);
    if (how) CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (!how) world_say(0), world_await(0, 3);
    if (how == 0 && t->rank == 1) mesh_abort(&c, "a test");
    if (how == 1) mesh_comm_close(&c);
    CHECK_INT(mesh_checkpoint_wait(&s), how ? MESH_ERR_STATE : MESH_ERR_CANCELED);
    if (!how) CHECK_HAS(c.error.text, "a test");
    if (how) CHECK_HAS(c.error.text, "mesh_checkpoint_wait: the comm is not open");
    state_close(&p);
    mesh_comm_close(&c);
}
static void test_checkpoint_abandoned(void) {
    static char names[32][300];
    int how, before;
    folder_new();
    for (how = 0; how < 2; how++) {
        before = state_begin();
        run_world(how ? SIM : TCP, 3, abandoned_rank, &how);
        load_says(NULL);
        CHECK_INT(folder_list(names), before);
    }
    folder_end();
}

/* The comm's first rank, which has made the files, or another is gone while a save is under way: those that are left remove them. */
static void forsaken_rank(mesh_transport *t, void *ctx) {
    const int gone = *(const int *)ctx;
    state_part p;
    mesh_comm c;
    mesh_checkpoint s;
    if (!saves_open(t, &c, &p)) return;
    CHECK_OK(mesh_checkpoint_save_start(&c, checkpoint_folder, p.list, p.n, NULL, &s), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank == gone) kill(getpid(), SIGKILL);
    CHECK_INT(mesh_checkpoint_wait(&s), MESH_ERR_PEER);
    CHECK_INT(c.error.rank, gone);
    state_close(&p);
    mesh_comm_close(&c);
}
/* The first rank dies before it removes the mark that the others have looked for; or when it has made the first of its files. */
static void forsaken_early_rank(mesh_transport *t, void *ctx) {
    failing_files plan = MESH_ZERO;
    state_part p;
    mesh_comm c;
    mesh_checkpoint_desc d = MESH_ZERO;
    if (!saves_open(t, &c, &p)) return;
    d.file_bytes = 30000;
    plan.kinds = *(const int *)ctx, plan.at = plan.times = 1, plan.error = FILE_KILLED;
    if (t->rank == 0) files_plan = &plan;
    CHECK_INT(mesh_checkpoint_save(&c, checkpoint_folder, p.list, p.n, &d), MESH_ERR_PEER);
    CHECK_INT(c.error.rank, 0);
    state_close(&p);
    mesh_comm_close(&c);
}
static void test_checkpoint_forsaken(void) {
    static char names[32][300];
    static const int kinds[] = {FILE_UNLINK, FILE_SYNC};
    int gone, k, before;
    folder_new();
    for (gone = 0; gone < 3; gone += 2) {
        before = state_begin();
        run_world_but(TCP, 3, forsaken_rank, &gone, gone);
        load_says(NULL);
        CHECK_INT(folder_list(names), before);
    }
    for (k = 0; k < 2; k++) {
        int kind = kinds[k];
        before = state_begin();
        run_world_but(TCP, 3, forsaken_early_rank, &kind, 0);
        load_says(NULL);
        CHECK_INT(folder_list(names), before);
    }
    folder_end();
}

/* A comm that is closed while a save is under way, and opened again in its place, over all its ranks or, when one of them is gone, over the rest: what is waited for
   is not this one's save. It is asked nothing: it meets on some ranks before they wait, on others behind that. */
static void reopened_rank(mesh_transport *t, void *ctx) {
    const int gone = *(const int *)ctx;
    state_shape shapes[STATE_TENSORS];
    state_part p;
    mesh_desc d = MESH_ZERO;
    mesh m, rest;
    mesh_table table;
    mesh_comm c;
    mesh_checkpoint s;
    mesh_error err;
    int ranks[3], inverse[3], n = 0, k;
    double end = test_now() + 60;
    if (!open_comm(t, &c, "a=3", NULL, 30 * SECOND)) return;
    m = c.on;
    state_shapes(shapes, 0);
    state_open(&p, shapes, &m, t->rank, 0, 2);
    CHECK_OK(mesh_checkpoint_save_start(&c, checkpoint_folder, p.list, p.n, NULL, &s), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    if (t->rank == gone) kill(getpid(), SIGKILL);
    if (gone >= 0) CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
    mesh_comm_close(&c);
    while (gone >= 0 && mesh_lost_ranks(t, NULL, 0) < 1 && test_now() < end) mesh_progress(t, mesh_now(t) + SECOND / 100);
    for (k = 0; k < 3; k++)
        if (k != gone) ranks[n++] = k;
    CHECK_OK(mesh_table_make(&table, ranks, n, inverse, 3, &err), err);
    d.shape = &n, d.naxes = 1, d.table = &table;
    CHECK_OK(mesh_make(&rest, &d, &err), err);
    CHECK_OK(mesh_comm_open(&c, t, &rest, NULL, &err), err);
    if (t->rank == 1) CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_INT(mesh_checkpoint_wait(&s), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_checkpoint_wait: the comm that this save was begun on was closed, and another is open");
    CHECK(!s.impl && !c.failed);
    if (t->rank != 1) CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    state_close(&p);
    mesh_comm_close(&c);
}
static void test_checkpoint_reopened(void) {
    static const struct {
        int backend, gone;
    } how[] = {{SIM, -1}, {TCP, -1}, {TCP, 2}, {TCP, 0}};
    static char names[32][300];
    int k, gone, before;
    folder_new();
    for (k = 0; k < (int)(sizeof how / sizeof *how); k++) {
        before = state_begin();
        gone = how[k].gone;
        run_world_but(how[k].backend, 3, reopened_rank, &gone, gone);
        load_says(NULL); /* the one of before */
        CHECK_INT(folder_list(names), before);
    }
    folder_end();
}

/* A save is given up while a rank's thread is at its first write. left: the next save is made by then, and the thread goes on by itself: it finds nothing that it could
   write to. Else it opens and writes nothing more, once it is told. */
static void save_given_up_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {6};
    const int left = ((const int *)ctx)[0], *gate = (const int *)ctx + 1;
    failing_files plan = MESH_ZERO;
    mesh_checkpoint_desc d = MESH_ZERO;
    mesh_checkpoint s;
    mesh_named list[2];
    float data[2][6] = {{1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}};
    mesh_error err;
    mesh_comm c, next;
    double end = test_now() + 60;
    int i;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    for (i = 0; i < 2; i++) {
        CHECK_OK(mesh_tensor_make(&list[i].tensor, &c.on, "x:S(0)", MESH_F32, 1, shape, &err), err);
        list[i].name = i ? "w" : "v", list[i].tensor.data = data[i];
    }
    d.file_bytes = 1;
    plan.gate = gate[0], plan.kinds = FILE_OPEN | FILE_WRITE, plan.at = 1 << 30;
    if (t->rank) files_plan = &plan;
    CHECK_OK(mesh_checkpoint_save_start(&c, checkpoint_folder, list, 2, &d, &s), c.error);
    while (t->rank && !files_held(&plan) && test_now() < end) test_sleep(0.0005);
    CHECK_INT(files_held(&plan), t->rank);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    mesh_comm_close(&c);
    if (t->rank && !left) plan.opens = gate[1];
    if (!t->rank || !left) CHECK_INT(mesh_checkpoint_wait(&s), MESH_ERR_STATE);
    if (t->rank && !left) CHECK_INT(plan.calls, 2); /* its first file's opening, and the write that was held */
    files_plan = NULL;
    if (!open_comm(t, &next, "x=2", NULL, 60 * SECOND)) return;
    for (i = 0; i < 6; i++) data[0][i] = data[1][i] = 2;
    CHECK_OK(mesh_checkpoint_save(&next, checkpoint_folder, list, 2, &d), next.error);
    if (t->rank && left) {
        CHECK(write(gate[1], "", 1) == 1);
        while (!MESH__LOAD(&((mesh__save *)s.impl)->ended) && test_now() < end) test_sleep(0.0005);
        CHECK_INT(mesh_checkpoint_wait(&s), MESH_ERR_STATE);
    }
    CHECK_OK(mesh_barrier(&next, NULL), next.error);
    CHECK_OK(mesh_checkpoint_load(&next, checkpoint_folder, list, 2, NULL), next.error);
    CHECK(data[0][0] == 2 && data[1][2] == 2);
    mesh_comm_close(&next);
}
static void test_checkpoint_given_up(void) {
    static char names[32][300];
    int gate[3];
    folder_new();
    CHECK(!pipe(gate + 1));
#if defined(MESH_TEST_SINGLE)
    for (gate[0] = 1; gate[0] < 2; gate[0]++) { /* naps are as the system has them */
#else
    for (gate[0] = 0; gate[0] < 2; gate[0]++) {
#endif
        run_world(TCP, 2, save_given_up_rank, gate);
        CHECK_INT(folder_list(names), 3); /* two files, and the index */
    }
    close(gate[1]);
    close(gate[2]);
    folder_end();
}

/* A tensor of 31 x 8 numbers, saved as all 0, and two saves of it begun: of all 1, of all 2. */
static void save_thrice(mesh_comm *c, mesh_named *w, float value[31 * 8], mesh_checkpoint s[2]) {
    static const int64_t shape[2] = {31, 8};
    mesh_error err;
    int i, k;
    CHECK_OK(mesh_tensor_make(&w->tensor, &c->on, "a:S(0)", MESH_F32, 2, shape, &err), err);
    w->name = "w", w->tensor.data = value;
    for (k = 0; k < 3; k++) {
        for (i = 0; i < 31 * 8; i++) value[i] = (float)k;
        if (k)
            CHECK_OK(mesh_checkpoint_save_start(c, checkpoint_folder, w, 1, NULL, &s[k - 1]), c->error);
        else
            CHECK_OK(mesh_checkpoint_save(c, checkpoint_folder, w, 1, NULL), c->error);
    }
}

/* Two saves under way into one folder: who commits first keeps the files of one that was begun later, and not of one that was begun before, which is told. What is
   loaded is whole at every moment. */
static void saved_twice_rank(mesh_transport *t, void *ctx) {
    int later_first = *(const int *)ctx, k, status;
    mesh_comm c;
    mesh_named w;
    mesh_checkpoint s[2];
    float value[31 * 8];
    if (!open_comm(t, &c, "a=-1", NULL, 30 * SECOND)) return;
    save_thrice(&c, &w, value, s);
    for (k = 0; k < 2; k++) {
        int which = later_first ? 1 - k : k, want = later_first ? 2 : which + 1;
        status = mesh_checkpoint_wait(&s[which]);
        CHECK_INT(status, later_first && k ? MESH_ERR_STATE : MESH_OK);
        if (status) CHECK_HAS(c.error.text, "a save into this folder that was begun later");
        CHECK_OK(mesh_checkpoint_load(&c, checkpoint_folder, &w, 1, NULL), c.error);
        CHECK(value[0] == (float)want && value[7] == (float)want);
    }
    mesh_comm_close(&c);
}
static void test_checkpoint_twice(void) {
    static char names[32][300];
    int later_first, ranks;
    for (later_first = 0; later_first < 2; later_first++)
        for (ranks = 1; ranks < 3; ranks++) {
            folder_new();
            run_world(ranks % 2 ? SIM : TCP, ranks, saved_twice_rank, &later_first);
            CHECK_INT(folder_list(names), 2); /* one file, and the index */
            folder_end();
        }
}

/* Ranks that wait for two saves in another order: told, and what was the checkpoint stays. A save of nothing has its place among the others too. */
static void saved_across_rank(mesh_transport *t, void *ctx) {
    static const char *const none[] = {"step", "0", NULL}, *const some[] = {"step", "1", NULL};
    mesh_checkpoint s[2];
    mesh_checkpoint_desc d = MESH_ZERO;
    float value[31 * 8];
    char step[8];
    int64_t length;
    mesh_named w;
    mesh_comm c;
    int k;
    (void)ctx;
    if (!open_comm(t, &c, "a=-1", NULL, 30 * SECOND)) return;
    save_thrice(&c, &w, value, s);
    for (k = 0; k < 2 && t->size > 1; k++) {
        CHECK_INT(mesh_checkpoint_wait(&s[t->rank ? 1 - k : k]), MESH_ERR_MISMATCH);
        CHECK_HAS(c.error.text, "mesh_checkpoint_wait: rank 1 waits for another save than rank 0, this one for number ");
        CHECK_INT(c.error.rank, 1);
        CHECK_HAS(c.error.text, "wait for them in one order on all ranks");
    }
    for (k = 0; k < 2 && t->size == 1; k++) CHECK_OK(mesh_checkpoint_wait(&s[k]), c.error);
    CHECK_OK(mesh_checkpoint_load(&c, checkpoint_folder, &w, 1, NULL), c.error);
    CHECK(value[0] == (t->size > 1 ? 0 : 2));
    d.text = none;
    CHECK_OK(mesh_checkpoint_save_start(&c, checkpoint_folder, &w, 0, &d, &s[0]), c.error);
    d.text = some;
    CHECK_OK(mesh_checkpoint_save(&c, checkpoint_folder, &w, 1, &d), c.error);
    CHECK_INT(mesh_checkpoint_wait(&s[0]), MESH_ERR_STATE);
    CHECK_OK(mesh_checkpoint_load(&c, checkpoint_folder, &w, 1, NULL), c.error);
    d.text = none;
    CHECK_OK(mesh_checkpoint_save(&c, checkpoint_folder, NULL, 0, &d), c.error);
    CHECK_OK(mesh_checkpoint_load(&c, checkpoint_folder, NULL, 0, NULL), c.error);
    CHECK_OK(mesh_checkpoint_text(&c, checkpoint_folder, "step", step, sizeof step, &length), c.error);
    CHECK(!strcmp(step, "0"));
    mesh_comm_close(&c);
}

/* The same of two folders, whose saves have the same number. */
static void saved_beside_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[] = {31};
    mesh_checkpoint s[2];
    char folder[2][300];
    float value[2][31];
    mesh_named w[2];
    mesh_error err;
    mesh_comm c;
    int k, i, round;
    (void)ctx;
    if (!open_comm(t, &c, "a=-1", NULL, 30 * SECOND)) return;
    for (k = 0; k < 2; k++) {
        snprintf(folder[k], sizeof folder[k], "%s/%d", checkpoint_folder, k);
        w[k].name = "w";
        CHECK_OK(mesh_tensor_make(&w[k].tensor, &c.on, "a:S(0)", MESH_F32, 1, shape, &err), err);
        w[k].tensor.data = value[k];
    }
    for (round = 0; round < 2; round++) {
        for (k = 0; k < 2; k++) {
            for (i = 0; i < 31; i++) value[k][i] = (float)(100 * k + round);
            CHECK_OK(mesh_checkpoint_save_start(&c, folder[k], &w[k], 1, NULL, &s[k]), c.error);
        }
        for (k = 0; k < 2; k++)
            CHECK_INT(mesh_checkpoint_wait(&s[round && t->rank == 1 ? 1 - k : k]),
                      round ? MESH_ERR_MISMATCH : MESH_OK);
        if (round) CHECK_HAS(c.error.text, "rank 1 waits for another save than rank 0, this one for number 2 into ");
    }
    for (k = 0; k < 2; k++) {
        memset(value[k], 0, sizeof value[k]);
        CHECK_OK(mesh_checkpoint_load(&c, folder[k], &w[k], 1, NULL), c.error);
        CHECK(value[k][0] == (float)(100 * k));
    }
    mesh_comm_close(&c);
}

static void test_checkpoint_across(void) {
    static const char *const parts[] = {"0", "1"};
    int ranks;
    for (ranks = 1; ranks < 4; ranks++) {
        folder_new();
        run_world(ranks % 2 ? SIM : TCP, ranks, saved_across_rank, NULL);
        folder_end();
        if (ranks == 1) continue;
        folder_new();
        run_world(ranks % 2 ? SIM : TCP, ranks, saved_beside_rank, NULL);
        folder_end_with(parts, 2);
    }
}

/* The file of two/here is called as that of one/here, which has another size. */
static void saved_apart_renamed(void) {
    char folder[256], names[2][300], path[500];
    int k;
    snprintf(folder, sizeof folder, "%s", checkpoint_folder);
    for (k = 0; k < 2; k++) {
        snprintf(checkpoint_folder, sizeof checkpoint_folder, "%.200s/%s/here", folder, k ? "two" : "one");
        snprintf(names[k], sizeof names[k], "%s", folder_data());
    }
    snprintf(path, sizeof path, "%s/%.200s", checkpoint_folder, strrchr(names[0], '/') + 1);
    snprintf(checkpoint_folder, sizeof checkpoint_folder, "%s", folder);
    CHECK(!rename(names[1], path));
}

/* Ranks that load from folders which are not the same. In its own process each of them: it goes where its "here" is. */
static void saved_apart_rank(mesh_transport *t, void *ctx) {
    static const int64_t shapes[2][1] = {{6}, {7}};
    static const char *const saved[] = {"one", "two", "one/here", "two/here"};
    char folder[4][400], again[410], was[400];
    float zeros[7] = {0};
    mesh_named n;
    mesh_comm c;
    mesh_error err;
    int k;
    (void)ctx;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    n.name = "w";
    CHECK_OK(mesh_tensor_make(&n.tensor, &c.on, "x:S(0)", MESH_F32, 1, shapes[0], &err), err);
    n.tensor.data = zeros;
    CHECK_INT(mesh_checkpoint_save(&c, t->rank ? "/" : checkpoint_folder, &n, 1, NULL), MESH_ERR_ARGUMENT);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK(!access(checkpoint_folder, F_OK)); /* it was there before, if empty */
    for (k = 0; k < 4; k++) {
        float data[7] = {(float)k, (float)k, (float)k, (float)k};
        snprintf(folder[k], sizeof folder[k], "%s/%s", checkpoint_folder, saved[k]);
        CHECK_OK(mesh_tensor_make(&n.tensor, &c.on, "x:S(0)", MESH_F32, 1, shapes[k == 3], &err), err);
        n.tensor.data = data;
        CHECK_OK(mesh_checkpoint_save(&c, folder[k], &n, 1, NULL), c.error);
    }
    for (k = 0; k < 2; k++) { /* rank 1 writes into no other checkpoint, and neither is there a new one */
        snprintf(again, sizeof again, "%s/none", checkpoint_folder);
        CHECK_INT(mesh_checkpoint_save(&c, k && t->rank ? again : folder[t->rank], &n, 1, NULL), MESH_ERR_ARGUMENT);
        CHECK_HAS(c.error.text, "rank 1: ");
        CHECK_HAS(c.error.text, "give every rank the same folder");
    }
    CHECK_INT(mesh_checkpoint_save(&c, t->rank ? folder[1] : again, &n, 1, NULL), MESH_ERR_ARGUMENT);
    CHECK_OK(mesh_barrier(&c, NULL), c.error);
    CHECK(access(again, F_OK)); /* nor a folder for it */
    snprintf(again, sizeof again, "%s/./", folder[0]);
    CHECK_OK(mesh_tensor_make(&n.tensor, &c.on, "x:S(0)", MESH_F32, 1, shapes[0], &err), err);
    n.tensor.data = zeros;
    CHECK_OK(mesh_checkpoint_save(&c, t->rank ? again : folder[0], &n, 1, NULL), c.error);
    for (k = 0; k < 3; k++) {
        float data[7] = {9, 9, 9, 9, 9, 9, 9};
        CHECK_OK(mesh_tensor_make(&n.tensor, &c.on, "x:S(0)", MESH_F32, 1, shapes[0], &err), err);
        n.tensor.data = data;
        if (k == 2) {
            CHECK(getcwd(was, sizeof was) && !chdir(folder[t->rank]));
            CHECK_INT(mesh_checkpoint_save(&c, "here", &n, 1, NULL), MESH_ERR_ARGUMENT);
            CHECK_HAS(c.error.text, "rank 1: here is not the first rank's here: ");
            CHECK_HAS(c.error.text, "give every rank the same folder, by its whole path");
            CHECK_INT(mesh_checkpoint_load(&c, "here", &n, 1, NULL), MESH_ERR_ARGUMENT);
            CHECK_HAS(c.error.text, "rank 1: there is no here/");
            CHECK_HAS(c.error.text, "here, and rank 0 has it: another folder of that name");
            if (t->rank) saved_apart_renamed();
            CHECK_OK(mesh_barrier(&c, NULL), c.error);
            CHECK_INT(mesh_checkpoint_load(&c, "here", &n, 1, NULL), MESH_ERR_ARGUMENT);
            CHECK_HAS(c.error.text, "bytes here, and ");
            CHECK_HAS(c.error.text, "another folder of that name");
            CHECK(!chdir(was));
        } else if (k == 1) {
            CHECK_OK(mesh_checkpoint_load(&c, t->rank ? again : folder[0], &n, 1, NULL), c.error);
            CHECK(data[0] == 0 && data[2] == 0);
            continue;
        } else {
            CHECK_INT(mesh_checkpoint_load(&c, folder[t->rank], &n, 1, NULL), MESH_ERR_ARGUMENT);
            CHECK_HAS(c.error.text, "rank 1: ");
            CHECK_HAS(c.error.text, "/two holds another checkpoint than rank 0's ");
        }
        CHECK(data[0] == 9 && data[2] == 9);
    }
    mesh_comm_close(&c);
}
static void test_checkpoint_apart(void) {
    enum { NOBODY = 2 };
    static const char *const part[] = {"one/here", "two/here", "one", "two"};
    folder_new();
    run_world_but(TCP, 2, saved_apart_rank, NULL, NOBODY);
    folder_end_with(part, 4);
}

/* A disk that is slower than the comm's patience with a call is waited for, in calls that end: the others hear of it again and again. Here the second rank's first write
   begins when the first rank has heard so twice. */
typedef struct saved_slowly {
    int gate[2], heard;
    volatile int64_t late; /* above 0: how far the second rank's clock goes ahead when it has said so once, the gate shut */
} saved_slowly;
static void saved_slowly_heard(void *ctx, const mesh_trace_event *v) {
    saved_slowly *s = (saved_slowly *)ctx;
    if (!strcmp(v->call, "all_reduce") && v->count == 3 && ++s->heard == 2) CHECK(write(s->gate[1], "", 1) == 1);
}
/* And a disk that takes nothing for long is given up, with the rank's name. */
#if !defined(MESH_TEST_SINGLE)
static volatile int64_t saved_never_late;
static void saved_never_heard(void *ctx, const mesh_trace_event *v) {
    if (!strcmp(v->call, "all_reduce") && v->count == 3) saved_never_late = ((saved_slowly *)ctx)->late;
}
static void saved_never_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {6};
    static failing_files plan; /* the thread's, which stays */
    float data[6] = {1, 2, 3, 4, 5, 6};
    mesh_named n;
    mesh_comm c;
    mesh_error err;
    if (!open_comm(t, &c, "x=2", NULL, 8 * SECOND)) return;
    n.name = "w";
    CHECK_OK(mesh_tensor_make(&n.tensor, &c.on, "x:S(0)", MESH_F32, 1, shape, &err), err);
    n.tensor.data = data;
    plan.gate = ((saved_slowly *)ctx)->gate[0];
    saved_never_late = 0;
    if (t->rank) files_plan = &plan, failing_late = &saved_never_late, t->trace = saved_never_heard, t->trace_ctx = ctx;
    CHECK_INT(mesh_checkpoint_save(&c, checkpoint_folder, &n, 1, NULL), MESH_ERR_TIMEOUT);
    CHECK_HAS(c.error.text, "mesh_checkpoint_save: the disk of rank 1 has taken nothing of ");
    CHECK_INT(c.error.rank, 1);
    failing_late = NULL, t->trace = NULL;
    mesh_comm_close(&c);
}
/* One that takes little at a time, all of it in longer than that, is waited for: whenever the second rank has said that it still writes, its disk takes a piece, and more
   than half of the allowed time passes. */
enum { DRIP_PIECES = 3, DRIP_BYTES = 7 };
static void saved_drip_await(failing_files *p, int held) {
    double end = test_now() + 60;
    while (files_held(p) < held && test_now() < end) test_sleep(0.0005);
    CHECK_INT(files_held(p), held);
}
static void saved_drip_heard(void *ctx, const mesh_trace_event *v) {
    saved_slowly *s = (saved_slowly *)ctx;
    if (strcmp(v->call, "all_reduce") || v->count != 3 || ++s->heard > DRIP_PIECES) return;
    CHECK(write(s->gate[1], "", 1) == 1);
    if (s->heard < DRIP_PIECES) saved_drip_await(files_plan, s->heard + 1);
    saved_never_late += s->late;
}
static void saved_drip_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {10};
    saved_slowly *s = (saved_slowly *)ctx;
    failing_files plan = MESH_ZERO;
    float data[5] = {1, 2, 3, 4, 5};
    mesh_named n;
    mesh_comm c;
    mesh_error err;
    mesh_checkpoint saving;
    if (!open_comm(t, &c, "x=2", NULL, 60 * SECOND)) return;
    n.name = "w";
    CHECK_OK(mesh_tensor_make(&n.tensor, &c.on, "x:S(0)", MESH_F32, 1, shape, &err), err);
    n.tensor.data = data;
    plan.gate = s->gate[0], plan.gated = 1, plan.most = DRIP_BYTES;
    if (t->rank) files_plan = &plan;
    CHECK_OK(mesh_checkpoint_save_start(&c, checkpoint_folder, &n, 1, NULL, &saving), c.error);
    saved_never_late = 0;
    if (t->rank) {
        saved_drip_await(&plan, 1);
        failing_late = &saved_never_late, t->trace = saved_drip_heard, t->trace_ctx = ctx;
    }
    CHECK_OK(mesh_checkpoint_wait(&saving), c.error);
    t->trace = NULL;
    failing_late = NULL;
    files_plan = NULL;
    CHECK_OK(mesh_checkpoint_load(&c, checkpoint_folder, &n, 1, NULL), c.error);
    mesh_comm_close(&c);
}
#endif
static void saved_slowly_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {6};
    saved_slowly *s = (saved_slowly *)ctx;
    failing_files plan = MESH_ZERO;
    float data[6] = {1, 2, 3, 4, 5, 6};
    mesh_named n;
    mesh_comm c;
    mesh_error err;
    mesh_checkpoint saving;
    if (!open_comm(t, &c, "x=2", NULL, 8 * SECOND)) return;
    n.name = "w";
    CHECK_OK(mesh_tensor_make(&n.tensor, &c.on, "x:S(0)", MESH_F32, 1, shape, &err), err);
    n.tensor.data = data;
    plan.gate = s->gate[0];
    if (t->rank) files_plan = &plan;
    CHECK_OK(mesh_checkpoint_save_start(&c, checkpoint_folder, &n, 1, NULL, &saving), c.error);
    if (!t->rank) t->trace = saved_slowly_heard, t->trace_ctx = s;
    CHECK_OK(mesh_checkpoint_wait(&saving), c.error);
    t->trace = NULL;
    files_plan = NULL;
    CHECK(t->rank || s->heard >= 3);
    CHECK_OK(mesh_checkpoint_load(&c, checkpoint_folder, &n, 1, NULL), c.error);
    mesh_comm_close(&c);
}
static void test_checkpoint_slowly(void) {
    saved_slowly s = MESH_ZERO;
    folder_new();
    CHECK(!pipe(s.gate));
    run_world(TCP, 2, saved_slowly_rank, &s);
#if !defined(MESH_TEST_SINGLE)
    {
        enum { NOBODY = 2 }; /* processes in any case: a thread stays */
        static char names[32][300];
        int before = folder_list(names);
        s.late = MESH__DISK_NS + SECOND;
        if (!TEST_SANITIZED) run_world_but(TCP, 2, saved_never_rank, &s, NOBODY); /* its memory stays, too */
        CHECK_INT(folder_list(names), before);
        s.late = MESH__DISK_NS * 6 / 10;
        s.heard = 0;
        run_world_but(TCP, 2, saved_drip_rank, &s, NOBODY);
    }
#endif
    close(s.gate[0]);
    close(s.gate[1]);
    folder_end();
}

/* Two comms save into one folder in one moment. A message of the first one's is late, so that the other is through before that, at one place or another. */
static int saved_swept; /* of the first one: its mark was swept before all had looked */
static void saved_moment_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {4};
    const int two = 2;
    float data[4] = {1, 2, 3, 4};
    mesh_desc desc = MESH_ZERO;
    mesh_named n;
    mesh_comm c;
    mesh_error err;
    mesh m;
    (void)ctx;
    desc.shape = &two, desc.naxes = 1, desc.origin = t->rank < 2 ? 0 : 2;
    CHECK_OK(mesh_make(&m, &desc, &err), err);
    CHECK_OK(mesh_comm_open(&c, t, &m, NULL, &err), err);
    CHECK_OK(mesh_tensor_make(&n.tensor, &m, "dim0:S(0)", MESH_F32, 1, shape, &err), err);
    n.tensor.data = data, n.name = "w";
    if (t->rank >= 2) mesh_sim_sleep(t, SECOND / 20);
    if (mesh_checkpoint_save(&c, checkpoint_folder, &n, 1, NULL) != MESH_OK) {
        CHECK(t->rank < 2);
        CHECK_INT(c.error.status, MESH_ERR_STATE);
        saved_swept += strstr(c.error.text, "this save's mark is gone: another save into this folder") != NULL;
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_checkpoint_moment(void) {
    int at;
    saved_swept = 0;
    for (at = 0; at < 20 && !test_failures; at++) {
        mesh_sim_desc desc = MESH_ZERO;
        mesh_sim_fault fault = MESH_ZERO;
        mesh_error err;
        fault.kind = MESH_SIM_DELAY, fault.rank = 0, fault.peer = 1, fault.at = at, fault.delay_ns = SECOND;
        desc.ranks = 4, desc.fault = &fault, desc.faults = 1;
        folder_new();
        CHECK_OK(mesh_sim_run(&desc, saved_moment_rank, NULL, &err), err);
        folder_end();
    }
    CHECK(saved_swept > 0 && saved_swept % 2 == 0);
}

static const test_case save_tests[] = {
    {"checkpoint/abandoned", test_checkpoint_abandoned, 0},
    {"checkpoint/twice", test_checkpoint_twice, 0},
    {"checkpoint/apart", test_checkpoint_apart, 0},
    {"checkpoint/across", test_checkpoint_across, 0},
    {"checkpoint/slowly", test_checkpoint_slowly, 0},
    {"checkpoint/forsaken", test_checkpoint_forsaken, 0},
    {"checkpoint/reopened", test_checkpoint_reopened, 0},
    {"checkpoint/given_up", test_checkpoint_given_up, 0},
    {"checkpoint/moment", test_checkpoint_moment, 0},
};
#endif
