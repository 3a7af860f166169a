/* mesh_collectives.h on our transports: the conformance suite, mutants that must fail it, disagreements, faults, errors. */
#ifndef T_COMM_H
#define T_COMM_H

#include "worlds.h"

/* ---- conformance ---- */

static void conform_rank(mesh_transport *t, void *ctx) {
    size_t large = *(const size_t *)ctx;
    conformance_collectives(t, t->size == 8 ? "a=2,b=2,c=2" : "a=-1", t->size == 8 ? "c,a;b,a" : NULL, NULL, large);
    conformance_transport(t);
}

static void conform(int backend, size_t large) {
    static const int sizes[] = {1, 2, 3, 5, 8};
    int i;
    for (i = 0; i < 5; i++) run_world(backend, sizes[i], conform_rank, &large);
}

static void test_conform_sim(void) { conform(SIM, 9001); }
static void test_conform_sim_free(void) { conform(SIM_FREE, 9001); }
static void test_conform_tcp(void) { conform(TCP, 100003); }
static void test_conform_unix(void) { conform(UNIX, 100003); }

/* Any table gives the same values: tables that give every call its k-th algorithm, in short segments; the first rank's is everybody's. */
static void tables_rank(mesh_transport *t, void *ctx) {
    int k, call, a;
    (void)ctx;
    for (k = 0; k < 4; k++) {
        mesh_tuning tuning = MESH_ZERO, again;
        mesh_error err;
        char text[4096];
        for (call = 1; call < MESH_CALL_COUNT; call++) {
            int seen = 0, chosen = 0;
            for (a = 1; a < MESH_ALGORITHM_COUNT; a++)
                if (mesh_algorithm_serves((mesh_algorithm)a, call) && mesh__single_kind(call) == call && seen++ <= k)
                    chosen = a;
            if (!chosen) continue;
            tuning.row[tuning.nrows].call = (uint8_t)call;
            tuning.row[tuning.nrows].algorithm = (uint8_t)chosen;
            tuning.row[tuning.nrows].ranks = UINT16_MAX;
            tuning.row[tuning.nrows].bytes = UINT64_MAX;
            tuning.row[tuning.nrows++].segment = 400;
        }
        CHECK(mesh_tuning_format(&tuning, text, sizeof text) < sizeof text);
        CHECK_OK(mesh_tuning_parse(&again, text, &err), err);
        CHECK(!memcmp(&again, &tuning, sizeof tuning));
        conformance_collectives(t, t->size == 8 ? "a=4,b=2" : "a=-1", NULL, t->rank == 0 ? &tuning : NULL, 601);
    }
}

static void test_tables(void) {
    int n;
    for (n = 2; n <= 8; n++) run_world(SIM, n, tables_rank, NULL);
    run_world(TCP, 4, tables_rank, NULL);
}

static void test_tables_text(void) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"all_reduce ranks<=8 bytes<=16 bruck", "line 1: no algorithm \"bruck\" for \"all_reduce\""},
        {"\nall_reduc ranks<=8 bytes<=16 ring", "line 2: no algorithm \"ring\" for \"all_reduc\""},
        {"all_reduce ranks<=99999 bytes<=16 ring", "expected \"all_reduce ranks<=N"},
        {"all_reduce ranks<=8 bytes<=99999999999999999999 ring", "expected"},
        {"all_reduce ranks<=8 bytes<=16 ring segment=-1", "expected"},
        {"all_reduce", "expected \"CALL ranks<=N"},
        {"all_reduce ranks<=8 bytes<=16 ring segment=1 more", "more than five words"},
        {"all_reduce_many ranks<=8 bytes<=16 ring", "no algorithm"},
        {"barrier ranks<=8 bytes<=16 ring", "no algorithm"},
    };
    mesh_tuning t;
    mesh_error err;
    char text[64 * 64] = "", line[64];
    size_t i;
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_INT(mesh_tuning_parse(&t, bad[i].text, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, bad[i].says);
    }
    CHECK_OK(
        mesh_tuning_parse(
            &t,
            "# a comment\n\n  all_reduce\tranks<=8 bytes<=* ring # and another\r\nscan ranks<=* bytes<=7 chain segment=4000000000",
            &err),
        err);
    CHECK_INT(t.nrows, 2);
    CHECK(t.row[0].ranks == 8 && t.row[0].bytes == UINT64_MAX && t.row[1].ranks == UINT16_MAX && t.row[1].bytes == 7 &&
          t.row[1].segment == 4000000000u);
    mesh_tuning_format(&t, text, sizeof text);
    CHECK_STR(text, "all_reduce ranks<=8 bytes<=* ring\nscan ranks<=* bytes<=7 chain segment=4000000000\n");
    text[0] = 0;
    for (i = 0; i <= MESH_MAX_TUNING; i++) {
        snprintf(line, sizeof line, "all_reduce ranks<=%d bytes<=16 ring\n", (int)i + 2);
        strcat(text, line);
    }
    CHECK_INT(mesh_tuning_parse(&t, text, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "more than 48 rows");
}

static const test_case comm_tests[] = {

    {"tables/values", test_tables, 0},        {"tables/text", test_tables_text, 0},
    {"conformance/sim", test_conform_sim, 0}, {"conformance/sim_free", test_conform_sim_free, 0},
    {"conformance/tcp", test_conform_tcp, 0}, {"conformance/unix", test_conform_unix, 0},
};

#endif
