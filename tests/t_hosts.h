/* Who shares a host: told in runs when a comm opens, by the first rank for everybody; collectives over hosts on every transport that knows. */
#ifndef T_HOSTS_H
#define T_HOSTS_H

#include "worlds.h"

/* ---- runs ---- */

/* Any placement comes back from its runs; the usual ones are one run. */
static void test_host_runs(void) {
    enum { N = 60 };
    mesh_transport t;
    test_random r = random_from(4100);
    int try, i;
    memset(&t, 0, sizeof t);
    for (try = 0; try < 2000; try++) {
        mesh__hosts h = MESH_ZERO;
        int host[N], n = 1 + random_below(&r, N), how = try % 4, each = 1 + random_below(&r, 8), last = 0;
        for (i = 0; i < n; i++) {
            if (how == 2 && i) last = random_below(&r, 3) ? last : random_below(&r, 9);
            host[i] = how == 0 ? i / each : how == 1 ? i % each : how == 2 ? last : random_below(&r, each);
            CHECK(mesh__hosts_add(&t, &h, host[i]));
        }
        for (i = 0; i < n; i++) CHECK_INT(mesh__host_at(&h, i), host[i]);
        if (how == 0) CHECK_INT(h.nruns, 1);
        if (how == 1 && each > 1) CHECK_INT(h.nruns, (n + each - 1) / each);
        for (i = 0; i < n; i++) host[i] = host[i] >= n;
        for (last = i = 0; i < n; i++) last |= host[i];
        CHECK_INT(mesh__hosts_fit(&h, n), !last); /* no more hosts than ranks */
        CHECK(!mesh__hosts_fit(&h, n + 1));
        if (!last) {
            h.run[0].each = 0;
            CHECK(!mesh__hosts_fit(&h, n));
            h.run[0].each = 1, h.run[0].first = -1;
            CHECK(!mesh__hosts_fit(&h, n));
            h.run[0].first = 0, h.run[0].count = -n;
            CHECK(!mesh__hosts_fit(&h, n));
        }
        mesh_transport_free(&t, h.run);
    }
}

/* ---- opening ---- */

typedef struct hosts_world {
    int host[256], own[256]; /* as the first rank has it, and as the others would */
    int n, forge;
} hosts_world;
enum { FORGE_NOTHING, FORGE_STALE, FORGE_COUNT };

typedef struct hosts_shim {
    mesh_transport base;
    mesh_transport *inner;
    mesh_ops ops;
    hosts_world *w;
    mesh_control kept;
    int has_kept;
} hosts_shim;

static hosts_shim *hosts_of(mesh_transport *t) { return (hosts_shim *)(void *)t; }
static int hosts_locality(mesh_transport *t, int rank) {
    hosts_world *w = hosts_of(t)->w;
    return t->rank == 0 ? w->host[rank] : w->own[rank];
}
/* A message about hosts comes twice, the first of another opening; or it tells of another mesh. */
static mesh_status hosts_poll(mesh_transport *t, mesh_control *out) {
    hosts_shim *s = hosts_of(t);
    mesh_status status;
    if (s->has_kept) {
        *out = s->kept;
        s->has_kept = 0;
        return MESH_OK;
    }
    status = s->inner->ops->control_poll(s->inner, out);
    if (status != MESH_OK || out->kind != MESH_EVENT_MESSAGE || mesh__get32(out->data) != MESH__MSG_HOSTS)
        return status;
    if (s->w->forge == FORGE_STALE) {
        s->kept = *out;
        s->has_kept = 1;
        mesh__put32(out->data + 4, mesh__get32(out->data + 4) + 1);
    }
    if (s->w->forge == FORGE_COUNT) mesh__put32(out->data + 8 + 8, mesh__get32(out->data + 8 + 8) + 1);
    return status;
}

static mesh_status hosts_post(mesh_transport *t, const mesh_post *p, mesh_ticket *k) {
    return hosts_of(t)->inner->ops->post(hosts_of(t)->inner, p, k);
}
static mesh_status hosts_test(mesh_transport *t, mesh_ticket *k, mesh_error *why) {
    return hosts_of(t)->inner->ops->test(hosts_of(t)->inner, k, why);
}
static int hosts_pending(mesh_transport *t, const mesh_ticket *k, int *ranks, int cap) {
    return hosts_of(t)->inner->ops->pending(hosts_of(t)->inner, k, ranks, cap);
}
static mesh_status hosts_cancel(mesh_transport *t, mesh_ticket *k) {
    return hosts_of(t)->inner->ops->cancel(hosts_of(t)->inner, k);
}
static mesh_status hosts_progress(mesh_transport *t, int64_t deadline) {
    return hosts_of(t)->inner->ops->progress(hosts_of(t)->inner, deadline);
}
static int64_t hosts_now(mesh_transport *t) { return hosts_of(t)->inner->ops->now(hosts_of(t)->inner); }
static mesh_status hosts_send(mesh_transport *t, int rank, int kind, const void *data, size_t n) {
    return hosts_of(t)->inner->ops->control_send(hosts_of(t)->inner, rank, kind, data, n);
}
static mesh_status hosts_close(mesh_transport *t, mesh_error *why) {
    (void)t, (void)why;
    return MESH_OK;
}
static void hosts_make(hosts_shim *s, mesh_transport *inner, hosts_world *w) {
    static const mesh_ops bare = {sizeof(mesh_ops), MESH_ABI,     "hosts",        hosts_post, hosts_test,
                                  hosts_pending,    hosts_cancel, hosts_progress, hosts_now,  hosts_send,
                                  hosts_poll,       hosts_close,  MESH_OPS_BARE};
    memset(s, 0, sizeof *s);
    s->ops = bare;
    s->ops.locality = hosts_locality;
    s->base = *inner;
    s->base.ops = &s->ops;
    s->base.engine = NULL;
    s->inner = inner;
    s->w = w;
}

/* What a rank knows of a group's hosts is what the first rank knows, numbered as they appear. */
static void hosts_check(const mesh_comm *c, const char *axes, const hosts_world *w) {
    const mesh__group *g = mesh__group_find(mesh__impl(c), axes);
    int i, k, hosts = 0, number[256], seen[256];
    for (i = 0; i < g->on.size; i++) {
        int rank = mesh_rank_at(&g->on, i);
        for (k = 0; k < i; k++)
            if (w->host[rank] >= 0 && w->host[seen[k]] == w->host[rank]) break;
        seen[i] = rank;
        number[i] = k < i ? number[k] : hosts++;
    }
    if (hosts == 1 || hosts == g->on.size) {
        CHECK(!g->host);
        CHECK_INT(g->nhosts, 0);
        return;
    }
    CHECK(g->host != NULL);
    CHECK_INT(g->nhosts, hosts);
    for (k = i = 0; g->host && i < g->on.size; i++) {
        CHECK_INT(g->host[i], number[i]);
        k |= i && number[i] < number[i - 1];
    }
    CHECK_INT(g->scattered, k);
}

static void hosts_open_rank(mesh_transport *t, void *ctx) {
    hosts_world *w = (hosts_world *)ctx;
    hosts_shim s;
    mesh_comm c;
    mesh m;
    mesh_error err;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_status status;
    hosts_make(&s, t, w);
    desc.groups = "b,a";
    desc.timeout_ns = 20 * SECOND;
    CHECK_OK(mesh_parse(&m, w->n % 2 ? "b=1,a=-1" : "b=2,a=-1", w->n, &err), err);
    status = mesh_comm_open(&c, &s.base, &m, &desc, &err);
    if (w->forge == FORGE_COUNT && t->rank) {
        CHECK_INT(status, MESH_ERR_MISMATCH);
        CHECK_HAS(err.text, "rank 0 tells hosts of another mesh");
    } else if (status != MESH_OK) {
        CHECK(w->forge == FORGE_COUNT);
    } else if (w->forge == FORGE_COUNT) { /* it hears that the others gave up */
        CHECK_INT(mesh_barrier(&c, NULL), MESH_ERR_PEER);
    } else {
        hosts_check(&c, NULL, w);
        hosts_check(&c, "a", w);
        hosts_check(&c, "b", w);
        hosts_check(&c, "b,a", w);
        CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    }
    mesh_comm_close(&c);
    mesh_transport_detach(&s.base);
}

static void test_host_opening(void) {
    test_random r = random_from(4200);
    static hosts_world w;
    int try, i;
    for (try = 0; try < 40; try++) {
        w.n = 3 + random_below(&r, 12);
        w.forge = try % 8 == 7 ? FORGE_STALE : try % 8 == 3 ? FORGE_COUNT : FORGE_NOTHING;
        for (i = 0; i < w.n; i++) {
            w.host[i] = random_below(&r, 2 + w.n / 2) * 1000003 - (try % 3 == 2); /* any numbers; below 0: not known */
            w.own[i] = random_below(&r, 3);                                       /* nobody asks for this */
        }
        if (w.forge) w.host[0] = w.host[1] = 5, w.host[2] = 7;
        run_world(SIM, w.n, hosts_open_rank, &w);
    }
    w.forge = FORGE_NOTHING, w.n = 200; /* more runs than fit into a message */
    for (i = 0; i < w.n; i++) w.host[i] = (i * i) % 31;
    run_world(SIM, w.n, hosts_open_rank, &w);
}

/* ---- collectives ---- */

static void hosts_conform_rank(mesh_transport *t, void *ctx) {
    mesh_tuning tuning;
    mesh_error err;
    (void)ctx;
    CHECK_OK(mesh_tuning_parse(
                 &tuning,
                 "all_reduce ranks<=* bytes<=* levels segment=400\nbroadcast ranks<=* bytes<=* levels segment=400\n"
                 "all_gather ranks<=* bytes<=* levels segment=400\nall_to_all ranks<=* bytes<=* levels\n"
                 "reduce_scatter ranks<=* bytes<=* levels segment=400\n",
                 &err),
             err);
    conformance_collectives(t, t->size == 8 ? "a=2,b=4" : "a=-1", t->size == 8 ? "b,a" : NULL, &tuning, 1201);
}
static void test_host_collectives(void) {
    static const int sizes[] = {3, 5, 8};
    static const int host[3][8] = {{0, 0, 1}, {4, 4, 4, 9, 9}, {7, 3, 7, 3, 7, 3, 7, 7}};
    int i;
    for (i = 0; i < 3; i++) run_world_on(host[i], sizes[i], hosts_conform_rank, NULL);
}

/* Where levels are chosen: in groups over hosts, for the sizes that they were measured to be faster for; a table's row decides before that. */
static void test_host_choice(void) {
    static const struct {
        int kind, scattered;
        size_t bytes;
        int levels;
    } cases[] = {{MESH_CALL_ALL_REDUCE, 0, 8192, 0},     {MESH_CALL_ALL_REDUCE, 0, 8193, 1},
                 {MESH_CALL_ALL_REDUCE, 0, 1 << 26, 1},  {MESH_CALL_ALL_GATHER, 0, 1024, 0},
                 {MESH_CALL_ALL_GATHER, 0, 1025, 1},     {MESH_CALL_ALL_GATHER, 0, SIZE_MAX / 4, 1},
                 {MESH_CALL_REDUCE_SCATTER, 1, 1024, 0}, {MESH_CALL_REDUCE_SCATTER, 0, 1025, 1},
                 {MESH_CALL_ALL_TO_ALL, 0, 256, 0},      {MESH_CALL_ALL_TO_ALL, 0, 257, 1},
                 {MESH_CALL_ALL_TO_ALL, 0, 65536, 1},    {MESH_CALL_ALL_TO_ALL, 0, 65537, 0},
                 {MESH_CALL_BROADCAST, 0, 1 << 20, 0},   {MESH_CALL_BROADCAST, 1, 1 << 20, 1},
                 {MESH_CALL_REDUCE, 1, 1 << 20, 0},      {MESH_CALL_SCAN, 1, 1 << 20, 0},
                 {MESH_CALL_ALL_GATHER_V, 1, 1 << 20, 0}};
    static const int host[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    mesh_tuning tuning = MESH_ZERO;
    size_t i, segment;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        mesh__schedule s;
        memset(&s, 0, sizeof s);
        s.size = 8, s.elem_bytes = 4, s.scattered = cases[i].scattered;
        CHECK(mesh__choose(&s, cases[i].kind, cases[i].bytes, 0, &segment) != MESH_ALGORITHM_LEVELS);
        s.host = host, s.nhosts = 2;
        if ((mesh__choose(&s, cases[i].kind, cases[i].bytes, 0, &segment) == MESH_ALGORITHM_LEVELS) != cases[i].levels)
            test_fail(__FILE__, __LINE__, "case %d", (int)i);
        s.ordered = 1;
        CHECK(mesh__choose(&s, cases[i].kind, cases[i].bytes, 0, &segment) != MESH_ALGORITHM_LEVELS);
        s.ordered = 0, s.tuning = &tuning;
        tuning.nrows = 1, tuning.row[0].call = MESH_CALL_ALL_REDUCE, tuning.row[0].algorithm = MESH_ALGORITHM_RING;
        tuning.row[0].ranks = UINT16_MAX, tuning.row[0].bytes = UINT64_MAX;
        if (cases[i].kind == MESH_CALL_ALL_REDUCE)
            CHECK_INT(mesh__choose(&s, cases[i].kind, cases[i].bytes, 0, &segment), MESH_ALGORITHM_RING);
    }
}

/* Lists whose arrays are too large to be packed: chunks and blocks have parts in several of them. */
static void hosts_lists_rank(mesh_transport *t, void *ctx) {
    enum { N = 17001, PARTS = 3 };
    mesh_tuning tuning;
    mesh_error err;
    mesh_comm c;
    mesh_buffer list[PARTS];
    int k, i, r, n = t->size, form;
    size_t j;
    (void)ctx;
    CHECK_OK(mesh_tuning_parse(&tuning,
                               "all_reduce ranks<=* bytes<=* levels\nbroadcast ranks<=* bytes<=* levels\n"
                               "all_gather ranks<=* bytes<=* levels\nreduce_scatter ranks<=* bytes<=* levels\n",
                               &err),
             err);
    t->tuning = &tuning;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (k = 0; k < PARTS; k++) {
        list[k].count = N + (size_t)k;
        list[k].send = malloc((size_t)n * list[k].count * 4);
        list[k].recv = malloc((size_t)n * list[k].count * 4);
        for (j = 0; j < (size_t)n * list[k].count; j++)
            ((int32_t *)(uintptr_t)list[k].send)[j] = (int32_t)(j * 3 + (size_t)(1000 * k + t->rank));
    }
    for (form = 0; form < 4; form++) {
        mesh_status status = form == 0   ? mesh_all_reduce_many(&c, NULL, list, PARTS, MESH_I32, MESH_SUM)
                             : form == 1 ? mesh_reduce_scatter_many(&c, NULL, list, PARTS, MESH_I32, MESH_SUM)
                             : form == 2 ? mesh_all_gather_many(&c, NULL, list, PARTS, MESH_I32)
                                         : mesh_broadcast_many(&c, NULL, list, PARTS, MESH_I32, n - 1);
        CHECK_OK(status, c.error);
        for (k = 0; k < PARTS; k++) {
            const int32_t *got = (const int32_t *)list[k].recv;
            size_t count = list[k].count, bad = 0;
            for (j = 0; j < count * (form == 2 ? (size_t)n : 1); j++) {
                int64_t want = 0, at = (int64_t)(j + (form == 1 ? (size_t)t->rank * count : 0)),
                        from = form == 3 ? n - 1 : -1;
                if (form == 2) from = at / (int64_t)count, at %= (int64_t)count;
                for (r = 0; r < n; r++)
                    if (from < 0 || from == r) want += at * 3 + 1000 * k + r;
                bad += got[j] != want;
            }
            if (bad) test_fail(__FILE__, __LINE__, "form %d, array %d, rank %d: %d wrong", form, k, t->rank, (int)bad);
        }
    }
    for (k = 0; k < PARTS; k++)
        for (i = 0; i < 2; i++) free(i ? list[k].recv : (void *)(uintptr_t)list[k].send);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_host_lists(void) {
    static const int host[] = {0, 0, 0, 1, 1};
    run_world_on(host, 5, hosts_lists_rank, NULL);
    run_world_on(host + 1, 4, hosts_lists_rank, NULL);
}

static const test_case hosts_tests[] = {
    {"hosts/runs", test_host_runs, 0},
    {"hosts/opening", test_host_opening, 0},
    {"hosts/collectives", test_host_collectives, 0},
    {"hosts/lists", test_host_lists, 0},
    {"hosts/choice", test_host_choice, 0},
};

#endif
