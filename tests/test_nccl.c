/* The NCCL transport's tests: `make test` builds and runs them over the stand-in in tests/fake_nccl, `make test-gpu` over the real
   libraries. Usage as test_mesh's. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_sim.h"
#include "../transports/mesh_socket.h"
#include "../transports/mesh_nccl.h"
#include "harness.h"
#include "worlds.h"
#include "t_nccl.h"

int main(int argc, char **argv) {
    const size_t shared = sizeof nccl_tests / sizeof nccl_tests[0],
                 all = shared + (ON_FAKE ? sizeof fake_nccl_tests / sizeof fake_nccl_tests[0] : 0);
    test_options o;
    int i, passed = 0, failed = 0;
    size_t k;
    memset(&o, 0, sizeof o);
    o.default_limit_s = 120;
    for (i = 1; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--list")) {
            o.list = 1;
        } else if (!strcmp(argv[i], "--seed") && i + 1 < argc) {
            test_seed = strtoull(argv[++i], NULL, 10);
        } else if (!strcmp(argv[i], "--limit") && i + 1 < argc) {
            o.default_limit_s = atoi(argv[++i]);
        } else {
            fprintf(stderr, "usage: test_nccl [--list] [--seed N] [--limit SECONDS] [part of a test's name ...]\n");
            return 2;
        }
    }
    o.filters = (const char *const *)(argv + i);
    o.nfilters = argc - i;
    fake_libraries(argv[0]);
    world_limit_s = 380;
    if (!o.list && ON_FAKE) printf("on fake NCCL (tests/fake_nccl): the transport's own code, not NVIDIA's\n");
    if (!o.list && !ON_FAKE) {
        printf("on NCCL, %d GPU%s%s\n", gpu_devices(), gpu_devices() == 1 ? "" : "s",
               gpu_devices() < 8 ? "; where ranks outnumber them they share: correctness only" : "");
        if (!gpu_devices()) return fprintf(stderr, "test_nccl: no GPU: cudaGetDeviceCount finds none\n"), 1;
    }
    for (k = 0; k < all; k++) {
        const test_case *t = k < shared ? &nccl_tests[k] : &fake_nccl_tests[k - shared];
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
        fprintf(stderr, "test_nccl: no test's name holds what was asked for; see --list\n");
        return 2;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
