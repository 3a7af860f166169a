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
#include "../tools/share_gpu.h"
#include "t_nccl.h"
#include "t_nccl_alike.h"
#include "t_nccl_given.h"
#include "t_nccl_pipeline.h"
#include "t_nccl_state.h"
#include "t_nccl_rows.h"
#include "t_messages_there.h"
#include "t_nccl_laws.h"
#include "t_nccl_failures.h"
#include "t_nccl_told.h"
#include "t_nccl_beside.h"

int main(int argc, char **argv) {
    static const test_topic topics[] = {TOPIC(nccl_tests), TOPIC(nccl_alike_tests), TOPIC(nccl_given_tests),
                                        TOPIC(nccl_pipeline_tests), TOPIC(nccl_state_tests),
                                        TOPIC(nccl_rows_tests), TOPIC(nccl_beside_tests), /* these seven on GPUs too */
                                        TOPIC(fake_nccl_pipeline_tests), TOPIC(fake_nccl_rows_tests),
                                        TOPIC(fake_nccl_tests), TOPIC(fake_nccl_given_tests),
                                        TOPIC(fake_nccl_alike_tests), TOPIC(fake_nccl_law_tests),
                                        TOPIC(fake_nccl_failure_tests), TOPIC(fake_nccl_told_tests), TOPIC(fake_nccl_beside_tests)};
    int listing = argc > 1 && !strcmp(argv[1], "--list");
    fake_libraries(argv[0]);
    world_limit_s = 380;
    if (!listing && ON_FAKE) printf("on fake NCCL (tests/fake_nccl): the transport's own code, not NVIDIA's\n");
    if (!listing && !ON_FAKE) {
        printf("on NCCL, %d GPU%s%s\n", gpu_devices(), gpu_devices() == 1 ? "" : "s",
               gpu_devices() < 8 ? "; where ranks outnumber them they share: correctness only" : "");
        test_side_by_side = gpu_devices() < 8 ? 3 * gpu_devices() : 24; /* a rank takes half a GiB of its GPU, and its turns */
        if (!gpu_devices()) return fprintf(stderr, "test_nccl: no GPU: cudaGetDeviceCount finds none\n"), 1;
    }
    return test_main(argc, argv, "test_nccl", topics, ON_FAKE ? sizeof topics / sizeof *topics : 7);
}
