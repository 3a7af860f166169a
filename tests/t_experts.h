/* mesh_parallel.h: experts, against one rank that computes everything from the same numbers. */
#ifndef T_EXPERTS_H
#define T_EXPERTS_H
#include "there.h"

enum { EXPERT_TOKENS = 9, EXPERT_RANKS = 8, EXPERT_TOP = 4, EXPERT_WIDTH = 7 };
typedef struct expert_problem {
    mesh_moe_desc d;
    int salt, ranks; /* of the group */
} expert_problem;

static unsigned expert_hash(const expert_problem *p, int what, int rank, int token, int i) {
    uint32_t n[4];
    mesh_random_block(n, (uint64_t)p->salt, (uint64_t)what, (uint64_t)((rank * 64 + token) * 64 + i));
    return n[0];
}
static int expert_tokens(const expert_problem *p, int rank) {
    return (int)(expert_hash(p, 0, rank, 0, 0) % (unsigned)(p->d.max_tokens + 1));
}
static int expert_asked(const expert_problem *p, int rank, int token, int k) {
    unsigned h = expert_hash(p, 1, rank, token, k);
    return h % 7 == 0 ? -2 : (int)(h / 7 % (unsigned)p->d.experts);
}
static double expert_value(const expert_problem *p, int what, int rank, int token, int i) {
    return (double)(expert_hash(p, what, rank, token, i) % 5) - 2;
}
static float expert_weight(const expert_problem *p, int rank, int token, int k) {
    return (float)(1 + expert_hash(p, 4, rank, token, k) % 2);
}

/* Does a choice fit under the capacity: fewer of its rank's before it? */
static int expert_kept(const expert_problem *p, int rank, int token, int k) {
    int i, before = 0, e = expert_asked(p, rank, token, k);
    for (i = 0; i < token * p->d.top_k + k; i++) before += expert_asked(p, rank, i / p->d.top_k, i % p->d.top_k) == e;
    return e >= 0 && (!p->d.capacity || before < p->d.capacity);
}

/* Walks the rows that a rank's experts should have; one, and where its row is. */
typedef struct expert_row {
    int expert, rank, token, k;
    int64_t at;
} expert_row;
static int expert_rows(const expert_problem *p, int first, int n, expert_row *rows, int64_t *start, int64_t *count,
                       int64_t *nrows) {
    int e, r, t, k, found = 0;
    *nrows = 0;
    for (e = first; e < first + n; e++) {
        start[e - first] = *nrows, count[e - first] = 0;
        for (r = 0; r < p->ranks; r++)
            for (t = 0; t < expert_tokens(p, r); t++)
                for (k = 0; k < p->d.top_k; k++) {
                    expert_row row;
                    if (expert_asked(p, r, t, k) != e || !expert_kept(p, r, t, k)) continue;
                    row.expert = e, row.rank = r, row.token = t, row.k = k, row.at = *nrows + count[e - first]++;
                    rows[found++] = row;
                }
        *nrows += count[e - first];
        if (p->d.align > 1) *nrows = (*nrows + p->d.align - 1) / p->d.align * p->d.align;
    }
    return found;
}

/* What an expert makes of a value. */
static double expert_out(int e, double x) { return (e + 1) * x + e; }

typedef struct expert_pass {
    expert_problem p;
    char *tokens, *grads, *out, *grad_out, *grad_rows, *result, *came;
    int32_t asked[EXPERT_TOKENS * EXPERT_TOP];
    float weight[EXPERT_TOKENS * EXPERT_TOP], grad_weight[EXPERT_TOKENS * EXPERT_TOP];
    expert_row rows[EXPERT_RANKS * EXPERT_TOKENS * EXPERT_TOP];
    mesh_moe_rows has;
    int nrows, index;
} expert_pass;

static void expert_check(const expert_pass *x, const char *what, int64_t row, int column, double has, double want) {
    if (has == want) return;
    test_fail(__FILE__, __LINE__, "rank %d, %s, row %lld, column %d: %g, expected %g (%d experts on %d, top %d, %s)",
              x->index, what, (long long)row, column, has, want, x->p.d.experts, x->p.ranks, x->p.d.top_k,
              mesh_dtype_name(x->p.d.dtype));
}

enum {
    EXPERT_ROOM = (EXPERT_RANKS * EXPERT_TOKENS * EXPERT_TOP + 16 * 8) * EXPERT_WIDTH * 8 /* bytes of an array of rows */
};

static void expert_dispatch(mesh_moe *m, expert_pass *x, int slot) {
    const expert_problem *p = &x->p;
    int64_t start[16], count[16], nrows, at, covered = 0;
    int i, t, k, n = expert_tokens(p, x->index), per = (p->d.experts + p->ranks - 1) / p->ranks, dropped = 0;
    mesh_dtype d = p->d.dtype;
    size_t room = EXPERT_ROOM;
    there_list put;
    put.c = m->comm, put.n = 0;
    x->tokens = (char *)calloc(7, room), x->grads = x->tokens + room, x->out = x->grads + room;
    x->grad_out = x->out + room, x->grad_rows = x->grad_out + room, x->result = x->grad_rows + room;
    x->came = x->result + room;
    for (t = 0; t < n; t++) {
        for (i = 0; i < p->d.width; i++) {
            float_put(d, x->tokens, t * p->d.width + i, expert_value(p, 2, x->index, t, i));
            float_put(d, x->grads, t * p->d.width + i, expert_value(p, 3, x->index, t, i));
        }
        for (k = 0; k < p->d.top_k; k++) {
            x->asked[t * p->d.top_k + k] = expert_asked(p, x->index, t, k);
            x->weight[t * p->d.top_k + k] = expert_weight(p, x->index, t, k);
            dropped += x->asked[t * p->d.top_k + k] >= 0 && !expert_kept(p, x->index, t, k);
        }
    }
    memset(&x->has, 0x55, sizeof x->has);
    CHECK_OK(mesh_moe_dispatch(m, slot, there_in(&put, x->tokens, room), n,
                               (const int32_t *)there_in(&put, x->asked, sizeof x->asked), &x->has),
             m->comm->error);
    there_back(&put);
    if (m->comm->failed) return;
    CHECK_INT(x->has.first_expert, per * x->index < p->d.experts ? per * x->index : p->d.experts);
    x->nrows = expert_rows(p, x->has.first_expert, x->has.nexperts, x->rows, start, count, &nrows);
    CHECK_INT(x->has.nrows, nrows);
    CHECK_INT(x->has.dropped, dropped);
    for (i = 0; i < x->has.nexperts; i++) CHECK(x->has.start[i] == start[i] && x->has.count[i] == count[i]);
    for (t = 0; t < n; t++)
        for (k = 0; k < p->d.top_k; k++) CHECK_INT(x->has.kept[t * p->d.top_k + k], expert_kept(p, x->index, t, k));
    if (nrows && there_is(m->comm))
        CHECK_OK(mesh_copy(m->comm, x->came, x->has.data, (size_t)(nrows * p->d.width) * mesh_dtype_bytes(d)),
                 m->comm->error);
    else if (nrows)
        memcpy(x->came, x->has.data, (size_t)(nrows * p->d.width) * mesh_dtype_bytes(d));
    for (at = 0, k = 0; at < nrows && !test_failures; at++) { /* what is no row is zeros */
        const expert_row *r = k < x->nrows && x->rows[k].at == at ? &x->rows[k++] : NULL;
        for (i = 0; i < p->d.width; i++) {
            double want = r ? expert_value(p, 2, r->rank, r->token, i) : 0;
            expert_check(x, "what came", at, i, float_at(d, x->came, at * p->d.width + i), want);
            float_put(d, x->out, at * p->d.width + i, r ? expert_out(r->expert, want) : 77);
        }
        covered += r != NULL;
    }
    CHECK_INT(covered, x->nrows);
}

static void expert_combine(mesh_moe *m, expert_pass *x, int slot, int weighs) {
    const expert_problem *p = &x->p;
    int t, i, k;
    there_list put;
    put.c = m->comm, put.n = 0;
    CHECK_OK(mesh_moe_combine(m, slot, there_in(&put, x->out, EXPERT_ROOM),
                              weighs ? (const float *)there_in(&put, x->weight, sizeof x->weight) : NULL,
                              there_out(&put, x->result, EXPERT_ROOM)),
             m->comm->error);
    there_back(&put);
    for (t = 0; t < expert_tokens(p, x->index) && !test_failures; t++)
        for (i = 0; i < p->d.width; i++) {
            double want = 0, v = expert_value(p, 2, x->index, t, i);
            for (k = 0; k < p->d.top_k; k++)
                if (expert_kept(p, x->index, t, k))
                    want += (weighs ? (double)expert_weight(p, x->index, t, k) : 1) *
                            expert_out(expert_asked(p, x->index, t, k), v);
            expert_check(x, "the sum", t, i, float_at(p->d.dtype, x->result, t * p->d.width + i), want);
        }
}

static void expert_backward(mesh_moe *m, expert_pass *x, int slot, int weighs) {
    const expert_problem *p = &x->p;
    int t, i, k, r;
    there_list put;
    put.c = m->comm, put.n = 0;
    CHECK_OK(mesh_moe_combine_backward(m, slot, there_in(&put, x->grads, EXPERT_ROOM), there_in(&put, x->out, EXPERT_ROOM),
                                       weighs ? (const float *)there_in(&put, x->weight, sizeof x->weight) : NULL,
                                       there_out(&put, x->grad_out, EXPERT_ROOM),
                                       (float *)there_out(&put, x->grad_weight, sizeof x->grad_weight)),
             m->comm->error);
    there_back(&put);
    for (r = 0; r < x->nrows && !test_failures; r++) {
        const expert_row *row = &x->rows[r];
        double w = weighs ? (double)expert_weight(p, row->rank, row->token, row->k) : 1;
        for (i = 0; i < p->d.width; i++) {
            double want = w * expert_value(p, 3, row->rank, row->token, i);
            expert_check(x, "a row's gradient", row->at, i, float_at(p->d.dtype, x->grad_out, row->at * p->d.width + i),
                         want);
            float_put(p->d.dtype, x->grad_rows, row->at * p->d.width + i, (row->expert + 1) * want);
        }
    }
    for (t = 0; t < expert_tokens(p, x->index) && !test_failures; t++)
        for (k = 0; k < p->d.top_k; k++) {
            double want = 0;
            for (i = 0; i < p->d.width && expert_kept(p, x->index, t, k); i++)
                want += expert_value(p, 3, x->index, t, i) *
                        expert_out(expert_asked(p, x->index, t, k), expert_value(p, 2, x->index, t, i));
            expert_check(x, "a weight's gradient", t, k, (double)x->grad_weight[t * p->d.top_k + k], want);
        }
    CHECK_OK(mesh_moe_dispatch_backward(m, slot, there_in(&put, x->grad_rows, EXPERT_ROOM),
                                        there_out(&put, x->result, EXPERT_ROOM)),
             m->comm->error);
    there_back(&put);
    for (t = 0; t < expert_tokens(p, x->index) && !test_failures; t++)
        for (i = 0; i < p->d.width; i++) {
            double want = 0, g = expert_value(p, 3, x->index, t, i);
            for (k = 0; k < p->d.top_k; k++)
                if (expert_kept(p, x->index, t, k))
                    want += (weighs ? (double)expert_weight(p, x->index, t, k) : 1) *
                            (expert_asked(p, x->index, t, k) + 1) * g;
            expert_check(x, "a token's gradient", t, i, float_at(p->d.dtype, x->result, t * p->d.width + i), want);
        }
    free(x->tokens);
}

static void experts_rank(mesh_transport *t, void *ctx) {
    static const mesh_dtype dtypes[] = {MESH_F32, MESH_BF16, MESH_F16, MESH_F64};
    int trial, two = t->size % 2 == 0;
    test_random r = random_from(123 + (uint64_t)t->size);
    mesh_comm c;
    if (!open_comm(t, &c, two ? "dp=2,ep=-1" : "ep=-1", two ? "ep,dp" : NULL, 20 * SECOND)) return;
    for (trial = 0; trial < *(int *)ctx && !test_failures; trial++) {
        const char *axes = !two ? "ep" : random_below(&r, 2) ? "ep,dp" : "ep";
        static const char *const none = NULL;
        expert_pass x[3];
        mesh_moe m;
        mesh_moe_desc d = MESH_ZERO;
        int i, weighs = random_below(&r, 2), slots = 1 + random_below(&r, 3);
        if (!two && trial % 5 == 4) axes = none; /* all axes */
        d.experts = 1 + random_below(&r, 8), d.top_k = 1 + random_below(&r, EXPERT_TOP),
        d.width = 1 + random_below(&r, EXPERT_WIDTH);
        d.dtype = dtypes[random_below(&r, 4)];
        d.max_tokens = random_below(&r, EXPERT_TOKENS + 1);
        d.capacity = random_below(&r, 3), d.align = random_below(&r, 2) * 4, d.slots = slots == 1 ? 0 : slots;
        CHECK_OK(mesh_moe_open(&m, &c, axes, &d), c.error);
        for (i = 0; i < slots; i++) { /* all in flight at once; back in another order */
            memset(&x[i], 0, sizeof x[i]);
            x[i].p.d = d, x[i].p.salt = random_below(&r, 10000);
            x[i].p.ranks = mesh_comm_size(&c, axes), x[i].index = mesh_comm_index(&c, axes);
            if (axes && !strcmp(axes, "ep") && two)
                x[i].p.salt += 10000 * mesh_comm_index(&c, "dp"); /* groups of their own */
            expert_dispatch(&m, &x[i], i);
        }
        for (i = slots - 1; i >= 0; i--) expert_combine(&m, &x[i], i, weighs);
        for (i = 0; i < slots; i++) expert_backward(&m, &x[i], i, weighs);
        CHECK_INT(mesh_moe_close(&m), MESH_OK);
        CHECK_INT(mesh_moe_close(&m), MESH_OK);
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_experts(void) {
    static const int sizes[] = {1, 2, 3, 4, 6, 8};
    int i, many = test_long ? 400 : 40, few = 8;
    for (i = 0; i < 6; i++) run_world(SIM, sizes[i], experts_rank, &many);
    run_world(TCP, 4, experts_rank, &few);
}

/* One token by one expert, and back: each bit of it, a zero's sign too. */
static void experts_bits_rank(mesh_transport *t, void *ctx) {
    static const uint32_t bits[6] = {0x80000000u, 0, 1, 0x80000001u, 0xff7fffffu, 0x7f800000u};
    static const int32_t asked[1] = {0};
    uint32_t out[6];
    mesh_moe_desc d = MESH_ZERO;
    mesh_moe_rows rows;
    mesh_moe m;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "ep=2", NULL, 20 * SECOND)) return;
    d.experts = 2, d.top_k = 1, d.width = 6, d.dtype = MESH_F32, d.max_tokens = 1;
    CHECK_OK(mesh_moe_open(&m, &c, "ep", &d), c.error);
    CHECK_OK(mesh_moe_dispatch(&m, 0, bits, 1, asked, &rows), c.error);
    CHECK_OK(mesh_moe_combine(&m, 0, rows.data, NULL, out), c.error);
    CHECK(!memcmp(out, bits, sizeof bits));
    mesh_moe_close(&m);
    mesh_comm_close(&c);
}
static void test_experts_bits(void) { run_world(SIM, 2, experts_bits_rank, NULL); }

/* A moe outlives its comm, of which nothing is left. */
static void experts_alone_rank(mesh_transport *t, void *ctx) {
    mesh_moe_desc d = MESH_ZERO;
    mesh_moe m;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "ep=2", NULL, 20 * SECOND)) return;
    d.experts = 2, d.top_k = 1, d.width = 6, d.dtype = MESH_F32, d.max_tokens = 1;
    CHECK_OK(mesh_moe_open(&m, &c, "ep", &d), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    memset(&c, 0x55, sizeof c);
    CHECK_INT(mesh_moe_close(&m), MESH_OK);
}
static void test_experts_alone(void) { run_world(SIM, 2, experts_alone_rank, NULL); }

/* What travels: 8 bytes of each expert's count to each other rank, and each row that goes elsewhere once each way. */
static void experts_bytes_rank(mesh_transport *t, void *ctx) {
    static const int32_t asked[4] = {0, 1, 1, 1};
    float tokens[4 * 6] = {0}, weight[4] = {1, 1, 1, 1}, out[32 * 6], grad[32 * 6], grad_weight[4];
    uint64_t at[5];
    mesh_moe_desc d = MESH_ZERO;
    mesh_moe_rows rows;
    mesh_moe m;
    mesh_comm c;
    int away = t->rank ? 1 : 3, i, step;
    (void)ctx;
    memset(out, 0, sizeof out);
    if (!open_comm(t, &c, "ep=2", NULL, 20 * SECOND)) return;
    d.experts = 2, d.top_k = 1, d.width = 6, d.dtype = MESH_F32, d.max_tokens = 4;
    CHECK_OK(mesh_moe_open(&m, &c, "ep", &d), c.error);
    for (step = 0; step < 5; step++) {
        CHECK_INT(mesh_comm_bytes(&c, "ep", &at[step], NULL), MESH_OK);
        if (step == 0) CHECK_OK(mesh_moe_dispatch(&m, 0, tokens, 4, asked, &rows), c.error);
        if (step == 1) CHECK_OK(mesh_moe_combine(&m, 0, out, weight, tokens), c.error);
        if (step == 2) CHECK_OK(mesh_moe_combine_backward(&m, 0, tokens, out, weight, grad, grad_weight), c.error);
        if (step == 3) CHECK_OK(mesh_moe_dispatch_backward(&m, 0, grad, tokens), c.error);
    }
    i = t->rank ? 3 : 1; /* rows that came from the other rank, and go back */
    CHECK_INT(at[1] - at[0], 8 + away * 24);
    CHECK_INT(at[2] - at[1], i * 24);
    CHECK_INT(at[3] - at[2], away * (24 + 4) + i * 4);
    CHECK_INT(at[4] - at[3], i * 24);
    CHECK_INT(mesh_moe_combine(&m, 0, out, weight, tokens), MESH_ERR_STATE); /* its backward is done: the slot is free */
    CHECK_HAS(c.error.text, "mesh_moe_combine: slot 0 is empty");
    mesh_moe_close(&m);
    mesh_comm_close(&c);
}
static void test_experts_bytes(void) { run_world(SIM, 2, experts_bytes_rank, NULL); }

static void experts_refused_rank(mesh_transport *t, void *ctx) {
    static const struct {
        const char *said;
        int status;
    } wrong[] = {
        {"mesh_moe_open: 0 experts, top 2, rows of 3", MESH_ERR_ARGUMENT},
        {"mesh_moe_open: max_tokens 4, capacity -1", MESH_ERR_ARGUMENT},
        {"mesh_moe_open: i32; rows are", MESH_ERR_UNSUPPORTED},
        {"mesh_moe_open: the desc is NULL", MESH_ERR_ARGUMENT},
        {"mesh_moe_dispatch: slot 1 of 1", MESH_ERR_ARGUMENT},
        {"mesh_moe_dispatch: 5 tokens; max_tokens is 4", MESH_ERR_ARGUMENT},
        {"mesh_moe_dispatch: choice 1 of token 1 is expert 4 of 4", MESH_ERR_ARGUMENT},
        {"mesh_moe_dispatch: expert is NULL", MESH_ERR_ARGUMENT},
        {"mesh_moe_combine: slot 0 is empty; dispatch into it first", MESH_ERR_STATE},
        {"mesh_moe_combine_backward: slot 0 is dispatched; combine it first", MESH_ERR_STATE},
        {"mesh_moe_dispatch_backward: slot 0 is empty", MESH_ERR_STATE},
        {"mesh_moe_combine: the tokens are NULL", MESH_ERR_ARGUMENT},
        {"mesh_moe_open(\"ep\"): rank 1 has experts 6, rank 0 has 4; it is the same on every rank", MESH_ERR_MISMATCH},
        {"rank 1 has top_k 1, rank 0 has 2", MESH_ERR_MISMATCH},
        {"rank 1 has width 2, rank 0 has 3", MESH_ERR_MISMATCH},
        {"rank 1 has dtype 3, rank 0 has 0", MESH_ERR_MISMATCH},
        {"rank 1 has capacity 7, rank 0 has 0", MESH_ERR_MISMATCH},
        {"mesh_moe_open: 9223372036854775807 tokens x 2 x 3 are too many to count", MESH_ERR_ARGUMENT},
    };
    int what;
    (void)ctx;
    for (what = 0; what < (int)(sizeof wrong / sizeof *wrong); what++) {
        int32_t asked[8] = {0, 1, 2, 3, 0, 1, 2, 3};
        float tokens[12] = {0}, out[3 * 64] = {0}, weight[8] = {0}, grad[8];
        int bad = t->rank == 1;
        mesh_moe_desc d = MESH_ZERO;
        mesh_moe_rows rows;
        mesh_moe m;
        mesh_comm c;
        mesh_status status;
        if (!open_comm(t, &c, "ep=-1", NULL, 20 * SECOND)) return;
        d.experts = 4, d.top_k = 2, d.width = 3, d.dtype = MESH_F32, d.max_tokens = 4;
        if (bad && what == 0) d.experts = 0;
        if (bad && what == 1) d.capacity = -1;
        if (bad && what == 2) d.dtype = MESH_I32;
        if (bad && what == 6) asked[3] = 4;
        if (bad && what == 12) d.experts = 6;
        if (bad && what == 13) d.top_k = 1;
        if (bad && what == 14) d.width = 2;
        if (bad && what == 15) d.dtype = MESH_BF16;
        if (bad && what == 16) d.capacity = 7;
        if (bad && what == 17) d.max_tokens = INT64_MAX;
        status = mesh_moe_open(&m, &c, "ep", bad && what == 3 ? NULL : &d);
        if (status == MESH_OK && !(bad && (what == 8 || what == 10)))
            status = mesh_moe_dispatch(&m, bad && what == 4, tokens, bad && what == 5 ? 5 : 4,
                                       bad && what == 7 ? NULL : asked, &rows);
        if (status == MESH_OK && !(bad && what == 9) && what != 10)
            status = mesh_moe_combine(&m, 0, out, weight, bad && what == 11 ? NULL : tokens);
        if (status == MESH_OK && what == 9) status = mesh_moe_combine_backward(&m, 0, tokens, out, weight, out, grad);
        if (status == MESH_OK && what == 10) status = mesh_moe_dispatch_backward(&m, 0, out, tokens);
        CHECK_INT(status, wrong[what].status);
        CHECK_HAS(c.error.text, wrong[what].said);
        CHECK_INT(c.error.rank, 1);
        mesh_moe_close(&m);
        mesh_comm_close(&c);
    }
}
static void test_experts_refused(void) {
    mesh_moe m;
    mesh_moe_rows rows;
    mesh_comm none = MESH_ZERO;
    run_world(SIM, 2, experts_refused_rank, NULL);
    run_world(TCP, 2, experts_refused_rank, NULL);
    CHECK_INT(mesh_moe_open(&m, NULL, "ep", NULL), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_moe_open(&m, &none, "ep", NULL), MESH_ERR_STATE);
    CHECK_INT(mesh_moe_dispatch(&m, 0, NULL, 0, NULL, &rows), MESH_ERR_STATE);
}

/* A comm that was closed, with another in its place: the group is of another size, and what the moe has of ranks and experts fits it no more. */
static void experts_reopened_rank(mesh_transport *t, void *ctx) {
    mesh_moe_desc d = MESH_ZERO;
    mesh_moe_rows rows;
    mesh_moe moe;
    mesh_comm c;
    int32_t asked[2] = {0, 3};
    float tokens[2] = {1, 2}, grad[2] = {0};
    (void)ctx;
    if (!open_comm(t, &c, "ep=4", NULL, 20 * SECOND)) return;
    d.experts = 4, d.top_k = 1, d.width = 1, d.dtype = MESH_F32, d.max_tokens = 2;
    CHECK_OK(mesh_moe_open(&moe, &c, "ep", &d), c.error);
    CHECK_OK(mesh_moe_dispatch(&moe, 0, tokens, 2, asked, &rows), c.error);
    CHECK_OK(mesh_moe_combine(&moe, 0, rows.data, NULL, tokens), c.error);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    if (!open_comm(t, &c, "dp=2,ep=2", NULL, 20 * SECOND)) return;
    CHECK_INT(mesh_moe_dispatch(&moe, 0, tokens, 2, asked, &rows), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_moe_dispatch: the comm that this moe was opened on was closed, and another is open");
    CHECK_INT(mesh_moe_combine(&moe, 0, rows.data, NULL, tokens), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_moe_combine: the comm that");
    CHECK_INT(mesh_moe_combine_backward(&moe, 0, tokens, rows.data, NULL, rows.data, grad), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_moe_combine_backward: the comm that");
    CHECK_INT(mesh_moe_dispatch_backward(&moe, 0, rows.data, tokens), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_moe_dispatch_backward: the comm that");
    CHECK_INT(mesh_moe_close(&moe), MESH_OK);
    CHECK_OK(mesh_moe_open(&moe, &c, "ep", &d), c.error); /* the comm stays */
    CHECK_OK(mesh_moe_dispatch(&moe, 0, tokens, 2, asked, &rows), c.error);
    CHECK_INT(mesh_moe_close(&moe), MESH_OK);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_experts_reopened(void) { run_world(SIM, 4, experts_reopened_rank, NULL); }

static const test_case experts_tests[] = {
    {"experts/routes", test_experts, 120},
    {"experts/bits", test_experts_bits, 0},
    {"experts/alone", test_experts_alone, 0},
    {"experts/bytes", test_experts_bytes, 60},
    {"experts/refused", test_experts_refused, 60},
    {"experts/reopened", test_experts_reopened, 60},
};

#endif
