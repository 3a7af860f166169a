/* The single-file test binary: cc -std=c99 tests/test_mesh.c -o test_mesh -lpthread && ./test_mesh
   ./test_mesh [--list] [--seed N] [--limit S] [name part ...]: runs the tests whose name holds one of the parts. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_sim.h"
#include "../transports/mesh_socket.h"
#include "harness.h"
#include "t_mesh.h"
#include "t_spec.h"
#include "t_plan.h"
#include "t_comm.h"
#include "t_faults.h"
#include "t_redistribute.h"
#include "t_device.h"
#include "t_socket.h"
#include "t_mutants.h"

static int usage(void) {
    fprintf(stderr, "usage: test_mesh [--list] [--seed N] [--limit SECONDS] [part of a test's name ...]\n");
    return 2;
}

int main(int argc, char **argv) {
    static const struct {
        const test_case *tests;
        size_t count;
    } topics[] = {
        {mesh_tests, sizeof mesh_tests / sizeof mesh_tests[0]},
        {spec_tests, sizeof spec_tests / sizeof spec_tests[0]},
        {plan_tests, sizeof plan_tests / sizeof plan_tests[0]},
        {comm_tests, sizeof comm_tests / sizeof comm_tests[0]},
        {mutant_tests, sizeof mutant_tests / sizeof mutant_tests[0]},
        {fault_tests, sizeof fault_tests / sizeof fault_tests[0]},
        {redistribute_tests, sizeof redistribute_tests / sizeof redistribute_tests[0]},
        {device_tests, sizeof device_tests / sizeof device_tests[0]},
        {socket_tests, sizeof socket_tests / sizeof socket_tests[0]},
    };
    test_options o;
    int i, passed = 0, failed = 0;
    size_t topic, k;
    memset(&o, 0, sizeof o);
    o.default_limit_s = 120;
    for (i = 1; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--list"))
            o.list = 1;
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            test_seed = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--limit") && i + 1 < argc)
            o.default_limit_s = atoi(argv[++i]);
        else
            return usage();
    }
    o.filters = (const char *const *)(argv + i);
    o.nfilters = argc - i;
    for (topic = 0; topic < sizeof topics / sizeof topics[0]; topic++)
        for (k = 0; k < topics[topic].count; k++) {
            const test_case *t = &topics[topic].tests[k];
            if (!test_selected(&o, t->name)) continue;
            if (o.list)
                puts(t->name);
            else if (test_run_one(t, &o))
                passed++;
            else
                failed++;
            fflush(stdout);
        }
    if (o.list) return 0;
    if (passed + failed == 0) {
        fprintf(stderr, "test_mesh: no test's name holds what was asked for; see --list\n");
        return 2;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
