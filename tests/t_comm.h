/* mesh_collectives.h on our transports: the conformance suite, mutants that must fail it, disagreements, faults, errors. */
#ifndef T_COMM_H
#define T_COMM_H

#include "conformance.h"

typedef void (*rank_main)(mesh_transport *t, void *ctx);
enum { BACKEND_SIM, BACKEND_SIM_FREE, BACKENDS_SIM };

static mesh_sim_desc sim_desc(int ranks) {
    mesh_sim_desc d = MESH_ZERO;
    d.ranks = ranks;
    d.seed = test_seed;
    d.jitter_ns = 3000;
    return d;
}

static void run_sim(int backend, int ranks, rank_main f, void *ctx) {
    mesh_sim_desc d = sim_desc(ranks);
    mesh_error err;
    d.free_running = backend == BACKEND_SIM_FREE;
    CHECK_OK(mesh_sim_run(&d, f, ctx, &err), err);
    test_failures += conformance_failures;
}

static const char *mesh_for(int ranks, const char **groups) {
    *groups = ranks == 8 ? "c,a;b,a" : NULL;
    return ranks == 8 ? "a=2,b=2,c=2" : "a=-1";
}

static void conform_rank(mesh_transport *t, void *ctx) {
    const char *groups, *text = mesh_for(t->size, &groups);
    (void)ctx;
    conformance_collectives(t, text, groups, 9001);
    conformance_transport(t);
}

static void test_sim_conformance(void) {
    static const int sizes[] = {1, 2, 3, 5, 8};
    int i;
    for (i = 0; i < 5; i++) run_sim(BACKEND_SIM, sizes[i], conform_rank, NULL);
}

static void test_sim_conformance_free(void) {
    static const int sizes[] = {1, 2, 3, 5, 8};
    int i;
    for (i = 0; i < 5; i++) run_sim(BACKEND_SIM_FREE, sizes[i], conform_rank, NULL);
}

static const test_case comm_tests[] = {
    {"sim/conformance", test_sim_conformance, 0},
    {"sim/conformance_free", test_sim_conformance_free, 0},
};

#endif
