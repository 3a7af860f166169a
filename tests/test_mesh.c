/* The single-file test binary: cc -std=c99 tests/test_mesh.c -o test_mesh -lpthread && ./test_mesh
   ./test_mesh [--list] [--seed N] [--limit S] [--jobs N] [--long] [--stop] [name part ...]: runs the tests whose name holds one of the
   parts, N at a time. */
#define MESH_IMPLEMENTATION
#ifdef MESH_TEST_FAST /* gcc: the library as -Ofast makes it, its tests as they are */
#pragma GCC push_options
#pragma GCC optimize("Ofast")
#endif
#ifdef MESH_TEST_SINGLE /* make single: as one file */
#define _POSIX_C_SOURCE 200809L
#else
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../mesh_parallel.h"
#include "../transports/mesh_sim.h"
#endif
#include "failing_files.h"
#ifndef MESH_TEST_SINGLE
#include "../mesh_checkpoint.h"
#include "failing_files_end.h"
#endif
#include "failing_calls.h"
#include "one_mapping.h"
#ifdef MESH_TEST_SINGLE
#include "../build/mesh_single.h"
#else
#include "../transports/mesh_socket.h"
#endif
#include "failing_calls_end.h"
#ifdef MESH_TEST_SINGLE
#include "failing_files_end.h"
#endif
#ifdef MESH_TEST_FAST
#pragma GCC pop_options
#endif
#include "harness.h"
#include "t_mesh.h"
#include "t_mesh_goldens.h"
#include "t_mesh_refused.h"
#include "t_spec.h"
#include "t_plan.h"
#include "t_plans.h"
#include "t_local.h"
#include "t_mesh_laws.h"
#include "t_comm.h"
#include "t_layout.h"
#include "t_mutants.h"
#include "t_faults.h"
#include "t_lost.h"
#include "t_redistribute.h"
#include "t_kept_plans.h"
#include "t_capped.h"
#include "t_tensors.h"
#include "t_parallel.h"
#include "t_replicas.h"
#include "t_buckets.h"
#include "t_experts.h"
#include "t_vocabulary.h"
#include "t_attention.h"
#include "t_pipeline.h"
#include "t_checkpoint.h"
#include "t_saves.h"
#include "t_messages_there.h"
#include "t_device.h"
#include "t_socket.h"
#include "t_engine.h"
#include "t_joining.h"
#include "t_threads.h"
#include "t_large.h"
#include "t_bytes.h"
#include "t_kernels.h"
#include "t_shared.h"
#include "t_schedule.h"
#include "t_refused.h"
#include "t_named.h"
#include "t_messages.h"
#include "t_split.h"
#include "t_hosts.h"
#include "t_comm_laws.h"
#include "t_comm_told.h"
#include "t_comm_waits.h"
#include "t_calls.h"
#include "t_sim.h"
#include "t_corners.h"
#include "t_sockets.h"
#include "t_aided.h"
#include "t_connections.h"
#include "t_opening.h"
#include "t_rogue.h"
#include "t_rogue_frames.h"
#include "t_failing.h"
#include "t_corpus.h"

int main(int argc, char **argv) {
    /* clang-format off */
    static const test_topic topics[] = {
        TOPIC(mesh_tests),
        TOPIC(mesh_golden_tests),
        TOPIC(mesh_refused_tests),
        TOPIC(spec_tests),
        TOPIC(plan_tests),
        TOPIC(plans_tests),
        TOPIC(local_tests),
        TOPIC(laws_tests),
        TOPIC(layout_tests),
        TOPIC(message_tests),
        TOPIC(split_tests),
        TOPIC(hosts_tests),
        TOPIC(comm_tests),
        TOPIC(mutant_tests),
        TOPIC(fault_tests),
        TOPIC(lost_tests),
        TOPIC(redistribute_tests),
        TOPIC(kept_plans_tests),
        TOPIC(capped_tests),
        TOPIC(tensor_tests),
        TOPIC(parallel_tests),
        TOPIC(replicas_tests),
        TOPIC(buckets_tests),
        TOPIC(experts_tests),
        TOPIC(vocabulary_tests),
        TOPIC(attention_tests),
        TOPIC(checkpoint_tests),
        TOPIC(save_tests),
        TOPIC(device_tests),
        TOPIC(socket_tests),
        TOPIC(engine_tests),
        TOPIC(joining_tests),
        TOPIC(thread_tests),
        TOPIC(large_tests),
        TOPIC(bytes_tests),
        TOPIC(kernels_tests),
        TOPIC(shared_tests),
        TOPIC(aided_tests),
        TOPIC(schedule_tests),
        TOPIC(refused_tests),
        TOPIC(named_tests),
        TOPIC(law_tests),
        TOPIC(comm_told_tests),
        TOPIC(comm_waits_tests),
        TOPIC(call_tests),
        TOPIC(sim_tests),
        TOPIC(corner_tests),
        TOPIC(sockets_tests),
        TOPIC(connections_tests),
        TOPIC(opening_tests),
        TOPIC(rogue_tests),
        TOPIC(rogue_frame_tests),
        TOPIC(failing_tests),
        TOPIC(corpus_tests),
        TOPIC(pipeline_tests),
    };
    /* clang-format on */
    return test_main(argc, argv, "test_mesh", topics, sizeof topics / sizeof topics[0]);
}
