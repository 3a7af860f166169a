/* Comms split by color and key, comms given up, memory that is the transport's. */
#ifndef T_SPLIT_H
#define T_SPLIT_H

/* ---- split: against the definition, ranks of a color by key, then as they were ---- */

static void split_rank(mesh_transport *t, void *ctx) {
    test_random r = random_from(67); /* the same on every rank */
    int n = t->size, me, round, i, k;
    mesh_comm c, none;
    mesh_error err;
    (void)ctx;
    memset(&none, 0, sizeof none);
    if (!open_comm(t, &c, n == 6 ? "a=2,b=3" : "a=-1", NULL, 20 * SECOND)) return;
    me = mesh_comm_index(&c, NULL);
    for (round = 0; round < 12 && !test_failures; round++) {
        int color[8], key[8], want[8], count = 0, sum, mine, twice = round % 3 == 0;
        mesh_comm part, half;
        memset(&half, 0, sizeof half);
        for (i = 0; i < n; i++) {
            color[i] = random_below(&r, 4) - 1, key[i] = random_below(&r, 3) - 1;
            if (round == 1) color[i] = -1;
            if (round == 2) color[i] = INT32_MAX, key[i] = i ? -i : INT32_MIN;
        }
        for (i = 0; i < n; i++) { /* by key, and where keys are the same by index */
            if (color[i] != color[me] || color[me] < 0) continue;
            for (k = count++; k > 0 && key[want[k - 1]] > key[i]; k--) want[k] = want[k - 1];
            want[k] = i;
        }
        CHECK_OK(mesh_comm_split(&part, &c, color[me], key[me], NULL, &err), err);
        if (color[me] < 0) {
            CHECK(!memcmp(&part, &none, sizeof none));
        } else {
            CHECK_INT(part.on.size, count);
            CHECK_STR(part.on.axis[0].name, "rank");
            for (i = 0; i < count; i++) CHECK_INT(mesh_rank_at(&part.on, i), mesh_rank_at(&c.on, want[i]));
            mine = 1 << me;
            CHECK_OK(mesh_all_reduce(&part, "rank", &mine, &sum, 1, MESH_I32, MESH_SUM), part.error);
            for (i = 0; i < count; i++) sum -= 1 << want[i];
            CHECK_INT(sum, 0);
            CHECK_OK(mesh_scan(&part, NULL, &(mine), &sum, 1, MESH_I32, MESH_SUM), part.error);
            for (i = 0; i < count && want[i] != me; i++) sum -= 1 << want[i];
            CHECK_INT(sum, 1 << me); /* in the order of the keys */
            if (twice) { /* a split of a split, the other way round */
                CHECK_OK(mesh_comm_split(&half, &part, 0, -mesh_comm_index(&part, NULL), NULL, &err), err);
                for (i = 0; i < count; i++)
                    CHECK_INT(mesh_rank_at(&half.on, i), mesh_rank_at(&c.on, want[count - 1 - i]));
            }
        }
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        if (twice && color[me] >= 0) CHECK_INT(mesh_comm_close(round % 2 ? &part : &half), MESH_OK);
        if (twice && color[me] >= 0) { /* the other one lives on */
            mesh_comm *left = round % 2 ? &half : &part;
            CHECK_OK(mesh_all_reduce(left, NULL, &me, &sum, 1, MESH_I32, MESH_MAX), left->error);
        }
        CHECK_INT(mesh_comm_close(twice && !(round % 2) ? &part : twice ? &half : &part), MESH_OK);
    }
    CHECK_INT(mesh_comm_split(&none, NULL, 0, 0, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_comm_split: the comm is NULL");
    {
        mesh_comm open, closed;
        memset(&closed, 0, sizeof closed);
        CHECK_OK(mesh_comm_split(&open, &c, 0, 0, NULL, &err), err);
        CHECK_INT(mesh_comm_split(&open, &closed, 0, 0, NULL, &err), MESH_ERR_STATE);
        CHECK_HAS(err.text, "the comm is not open");
        CHECK_OK(mesh_barrier(&open, NULL), open.error);
        CHECK_INT(mesh_comm_close(&open), MESH_OK);
    }
    if (me == n - 1) mesh_abort(&c, NULL); /* what has failed cannot be split */
    CHECK_INT(mesh_comm_split(&none, &c, 0, 0, NULL, &err), MESH_ERR_CANCELED);
    CHECK_HAS(err.text, n > 1 ? "rank 5 gave up" : "rank 0 gave up");
    CHECK(!none.impl);
    mesh_comm_close(&c);
}
/* What is wrong on one rank: all hear it, at once or in their next call, and none waits for its deadline. */
static void split_wrong_rank(mesh_transport *t, void *ctx) {
    static const char *const says[] = {"mesh_comm_split: desc.timeout_ns is -1; ns, and 0 is as built in",
                                       "mesh_comm_split: the result is NULL", "mesh_comm_split: the result is the comm itself",
                                       "mesh_comm_split: the result is open; close it first",
                                       "desc.groups: no axis \"nowhere\"", "it does not come to open it"};
    int what = *(int *)ctx, odd = t->rank == 0;
    mesh_comm c, part, open;
    mesh_comm_desc d = MESH_ZERO;
    mesh_error err = MESH_ZERO;
    mesh_status status, wants = what == 5 ? MESH_ERR_CANCELED : what == 3 ? MESH_ERR_STATE : MESH_ERR_ARGUMENT;
    int mine[2] = {0, 0}, all[6];
    if (!open_comm(t, &c, "x=-1", NULL, 600 * SECOND)) return;
    memset(&part, what == 0 || what == 4 ? 255 : 0, sizeof part); /* what is wrong leaves it all zero */
    CHECK_OK(mesh_comm_split(&open, &c, 0, 0, NULL, &err), err);
    d.timeout_ns = what || !odd ? 600 * SECOND : -1;
    if (what == 4 && odd) d.groups = "nowhere";
    if (what == 5 && odd) { /* it tells its color as the others do, and gives up: they wait for it as they open theirs */
        CHECK_OK(mesh_all_gather(&c, NULL, mine, all, 2, MESH_I32), c.error);
        CHECK_INT(mesh_abort(&c, says[what]), MESH_OK);
    }
    status = mesh_comm_split(!odd || what == 0 || what == 4 ? &part
                             : what == 1                    ? NULL
                             : what == 2                    ? &c
                                                            : &open,
                             &c, what == 4 ? odd : 0, 0, &d, &err);
    if (what == 4 && !odd && status == MESH_OK) { /* of another color: it may have its comm before it hears */
        CHECK_INT(mesh_comm_close(&part), MESH_OK);
        status = mesh_barrier(&c, NULL);
        err = c.error;
    }
    CHECK_INT(status, wants);
    CHECK_HAS(err.text, says[what]);
    CHECK_INT(err.rank, 0);
    CHECK(c.failed && !part.impl);
    CHECK_OK(mesh_barrier(&open, NULL), open.error);
    mesh_comm_close(&open);
    mesh_comm_close(&c);
}
static void test_split_wrong(void) {
    int what;
    for (what = 0; what < 6; what++) {
        run_world(SIM, 3, split_wrong_rank, &what);
        run_world(TCP, 3, split_wrong_rank, &what);
    }
}

static void test_split(void) {
    int b;
    for (b = 0; b < BACKENDS; b++) run_world(b, 6, split_rank, NULL);
    run_world(SIM, 1, split_rank, NULL);
}

/* ---- given up ---- */

static void given_up_rank(mesh_transport *t, void *ctx) {
    static const char *const says[] = {"rank 1 gave up: the loss is nan", "rank 1 gave up", "rank 1 gave up: mesh_op_add: the description is NULL"};
    int how = *(int *)ctx, sum;
    mesh_comm c, other;
    mesh_request r = MESH_ZERO;
    mesh_op op;
    if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND) || !open_comm(t, &other, "x=3", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_barrier(&other, NULL), other.error);
    if (t->rank == 1) {
        CHECK_OK(mesh_recv_start(&c, NULL, 0, &sum, 1, MESH_I32, &r), c.error);
        CHECK_INT(mesh_op_add(&c, NULL, &op), MESH_ERR_ARGUMENT); /* its text is in c.error, and may be the reason */
        CHECK_INT(mesh_abort(&c, how == 2 ? c.error.text : how ? NULL : "the loss is nan"), MESH_OK);
        CHECK_INT(mesh_wait(r), MESH_ERR_CANCELED);
        CHECK_INT(mesh_abort(&c, "again"), MESH_ERR_CANCELED); /* the first reason stays */
    }
    CHECK_INT(mesh_all_reduce(&c, NULL, &how, &sum, 1, MESH_I32, MESH_SUM), MESH_ERR_CANCELED);
    CHECK_INT(c.error.rank, 1);
    CHECK_HAS(c.error.text, says[how]);
    CHECK_OK(mesh_barrier(&other, NULL), other.error); /* other comms go on */
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(mesh_abort(&c, "closed"), MESH_ERR_STATE);
    CHECK_INT(mesh_abort(NULL, "none"), MESH_ERR_STATE);
    CHECK_INT(mesh_comm_close(&other), MESH_OK);
}
static void test_given_up(void) {
    int b, how;
    for (b = 0; b < BACKENDS; b++)
        for (how = 0; how < 3; how++) run_world(b, 3, given_up_rank, &how);
}

/* ---- memory: the transport's, given back when it closes ---- */

static int split_blocks;
static void *split_alloc(void *ctx, size_t nbytes) {
    (void)ctx;
    split_blocks++;
    return malloc(nbytes);
}
static void split_free(void *ctx, void *p) {
    (void)ctx;
    split_blocks--;
    free(p);
}
static void memory_rank_of(mesh_transport *t, void *ctx) {
    enum { BLOCKS = 40 };
    unsigned char *p[BLOCKS];
    void *q = &q;
    mesh_comm c;
    mesh_error err;
    test_random r = random_from(71);
    int i, k, round;
    (void)ctx;
    for (i = 0; i < BLOCKS; i++) { /* before any comm is open */
        CHECK_OK(mesh_alloc(t, (size_t)(1 + i * 37), (void **)&p[i], &err), err);
        CHECK_INT((uintptr_t)p[i] & 63, 0);
        memset(p[i], i, (size_t)(1 + i * 37));
    }
    if (!open_comm(t, &c, "x=1", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    for (round = 0; round < 400; round++) { /* freed and taken in any order */
        i = random_below(&r, BLOCKS);
        for (k = 0; p[i] && k < 1 + i * 37; k++)
            if (p[i][k] != i) test_fail(__FILE__, __LINE__, "block %d, byte %d", i, k);
        CHECK_OK(mesh_free(t, p[i], &err), err);
        p[i] = NULL;
        if (round % 5) continue;
        CHECK_OK(mesh_alloc(t, (size_t)(1 + i * 37), (void **)&p[i], &err), err);
        memset(p[i], i, (size_t)(1 + i * 37));
    }
    CHECK_INT(mesh_alloc(t, SIZE_MAX - 100, &q, &err), MESH_ERR_MEMORY);
    CHECK_HAS(err.text, "mesh_alloc: no memory for ");
    CHECK(q == NULL);
    CHECK_INT(mesh_alloc(NULL, 1, &q, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_alloc(t, 1, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_free(NULL, &q, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the transport is NULL");
    CHECK_INT(mesh_free(NULL, NULL, &err), MESH_OK);
    {
        static unsigned char other[256]; /* not of mesh_alloc */
        CHECK_INT(mesh_free(t, other + 128, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "is not mesh_alloc's");
    }
    {
        mesh_socket net; /* another transport does not take it back */
        mesh_socket_desc d = MESH_ZERO;
        d.size = 1;
        CHECK_OK(mesh_socket_open(&net, &d, &err), err);
        CHECK_OK(mesh_alloc(t, 10, (void **)&p[0], &err), err);
        CHECK_OK(mesh_alloc(&net.base, 10, &q, &err), err);
        CHECK_INT(mesh_free(&net.base, p[0], &err), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_free(t, q, &err), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_socket_close(&net), MESH_OK);
    }
    CHECK_OK(mesh_alloc(t, 0, &q, &err), err);
    CHECK(q != NULL);
}
static void test_memory_of_transport(void) {
    mesh_sim_desc d = sim_desc(1);
    mesh_error err;
    d.allocator.alloc = split_alloc;
    d.allocator.free = split_free;
    split_blocks = 0;
    CHECK_OK(mesh_sim_run(&d, memory_rank_of, NULL, &err), err);
    CHECK_INT(split_blocks, 0);
}

static const test_case split_tests[] = {
    {"split/wrong", test_split_wrong, 0}, {"split/comms", test_split, 0}, {"split/abort", test_given_up, 0}, {"split/memory", test_memory_of_transport, 0},
};
#endif
