/* selftest.c: what the stand-ins for NCCL and the CUDA runtime promise (README.md), each law run by processes of its
 * own. Usage: fake_nccl_selftest [part of a law's name]. */
#define _GNU_SOURCE
#include "nccl.h"
#include "fake.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "laws.h"
#include "laws_cuda.h"
#include "laws_results.h"
#include "laws_comms.h"
#include "laws_waits.h"
#include "laws_memory.h"

/* ---- Speed, so that a slow stand-in is noticed ------------------------------------------------------------------ */

static void law_speed(void) {
    ncclComm_t comm = must_open(1);
    cudaStream_t stream = new_stream();
    int *x = new_memory(4), *large = new_memory((size_t)8 << 20);
    double start = now_ms();
    for (int i = 0; i < 1000; i++) EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    double queued = now_ms() - start;
    start = now_ms();
    for (int i = 0; i < 300; i++) {
        EQUAL(ncclAllReduce(x, x, 1, ncclInt32, ncclSum, comm, stream), ncclSuccess);
        EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    }
    double waited = now_ms() - start;
    start = now_ms();
    EQUAL(ncclAllReduce(large, large, (size_t)2 << 20, ncclInt32, ncclSum, comm, stream), ncclSuccess);
    EQUAL(cudaStreamSynchronize(stream), cudaSuccess);
    if (rank == 0)
        printf("  %d ranks: all_reduce of 4 bytes %.1f us queued, %.1f us waited for; of 8 MiB %.1f ms\n", nranks,
               queued, waited / 0.3, now_ms() - start);
    EQUAL(ncclCommDestroy(comm), ncclSuccess);
}

/* ---- The list --------------------------------------------------------------------------------------------------- */

static const struct law {
    const char *name;
    void (*run)(void);
    int nranks;
    int signal; /* that ends it, or 0 */
    int killed; /* a rank that kills itself, or -1 */
} laws[] = {
    {"devices", law_devices, 1, 0, -1},
    {"memory", law_memory, 1, 0, -1},
    {"memory is limited", law_memory_is_limited, 1, 0, -1},
    {"threads start on device 0", law_threads_start_on_device_0, 1, 0, -1},
    {"ncclMemAlloc has a granularity", law_granularity, 1, 0, -1},
    {"the host cannot read device memory", die_host_reads_device_memory, 1, SIGSEGV, -1},
    {"a copy out of range aborts", die_copy_out_of_range, 1, SIGABRT, -1},
    {"a use after free aborts", die_use_after_free, 1, SIGABRT, -1},
    {"a use of a destroyed stream aborts", die_stream_after_destroy, 1, SIGABRT, -1},
    {"a forbidden function aborts", die_forbidden, 1, SIGABRT, -1},
    {"copies", law_copies, 1, 0, -1},
    {"order of streams", law_order, 1, 0, -1},
    {"captures", law_capture, 1, 0, -1},
    {"streams of threads", law_streams_of_threads, 1, 0, -1},
    {"unsafe calls end captures", law_unsafe_calls_end_captures, 1, 0, -1},
    {"kernels", law_kernels, 1, 0, -1},
    {"collectives of 1", law_collectives, 1, 0, -1},
    {"collectives of 2", law_collectives, 2, 0, -1},
    {"collectives of 3", law_collectives, 3, 0, -1},
    {"collectives of 8", law_collectives, 8, 0, -1},
    {"other counts within a chunk complete", law_other_counts_within_a_chunk, 4, 0, -1},
    {"averages multiply by the rounded 1/n", law_average_multiplies, 3, 0, -1},
    {"messages of 2", law_messages, 2, 0, -1},
    {"messages of 8", law_messages, 8, 0, -1},
    {"groups of 2", law_groups, 2, 0, -1},
    {"groups of 3", law_groups, 3, 0, -1},
    {"captured operations replay", law_captured_operations_replay, 3, 0, -1},
    {"split of 2", law_split, 2, 0, -1},
    {"split of 8", law_split, 8, 0, -1},
    {"non-blocking", law_non_blocking, 3, 0, -1},
    {"duplicate devices", law_duplicate_device, 3, 0, -1},
    {"host ids allow one device", law_host_ids_allow_one_device, 3, 0, -1},
    {"registration and configs", law_registration, 2, 0, -1},
    {"a function younger than the version aborts", die_old_version, 1, SIGABRT, -1},
    {"a use of an aborted comm aborts", die_comm_after_abort, 1, SIGABRT, -1},
    {"overlapping buffers abort", die_overlap, 1, SIGABRT, -1},
    {"host buffers abort", die_host_memory, 1, SIGABRT, -1},
    {"hang: one rank only", law_hang_one_rank_only, 2, 0, -1},
    {"hang: other count", law_hang_other_count, 2, 0, -1},
    {"hang: other count without rounding", law_other_counts_hang_without_rounding, 2, 0, -1},
    {"hang: other type", law_hang_other_type, 2, 0, -1},
    {"hang: other op", law_hang_other_op, 2, 0, -1},
    {"hang: other root", law_hang_other_root, 2, 0, -1},
    {"hang: send before recv", law_hang_send_before_recv, 2, 0, -1},
    {"hang: other size", law_hang_other_size, 2, 0, -1},
    {"hang: lone send", law_hang_lone_send, 2, 0, -1},
    {"crossed comms hang", law_crossed_comms_hang, 2, 0, -1},
    {"equal orders do not hang", law_equal_orders_do_not_hang, 3, 0, -1},
    {"an abort is of one comm", law_abort_is_of_one_comm, 2, 0, -1},
    {"revoke and shrink", law_revoke_and_shrink, 4, 0, 3},
    {"peer death hangs", law_peer_death_hangs, 3, 0, 2},
    {"peer death is told", law_peer_death_is_told, 3, 0, 2},
    {"init needs all ranks and the root", law_init_needs_all_ranks_and_the_root, 2, 0, 0},
    {"injected enqueue hang", law_injected_enqueue_hang, 2, 0, -1},
    {"injected faults", law_injected_faults, 2, 0, -1},
    {"an abort waits for its stream", law_abort_waits_for_its_stream, 2, 0, -1},
    {"an abort waits for its turn", law_abort_waits_for_its_turn, 2, 0, -1},
    {"aborts of one group", law_aborts_of_one_group, 2, 0, -1},
    {"before 2.22 groups abort at once", law_old_groups_abort_at_once, 2, 0, -1},
    {"an abort waits for graphs", law_abort_waits_for_graphs, 2, 0, -1},
    {"a revoke waits and clears", law_revoke_waits_and_clears, 2, 0, -1},
    {"a revoke ends hanging calls", law_revoke_ends_calls, 2, 0, -1},
    {"an abort in a group ends calls", law_abort_in_group_ends_calls, 2, 0, -1},
    {"a revoke may miss calls", law_revoke_misses_calls, 2, 0, -1},
    {"a revoke may miss jobs", law_revoke_misses_jobs, 2, 0, -1},
    {"destroy is collective", law_destroy_is_collective, 5, 0, 4},
    {"destroy waits for the others", law_destroy_waits_for_the_others, 3, 0, -1},
    {"destroys of one group", law_destroys_of_one_group, 2, 0, -1},
    {"destroy in progress leaves a group open", law_destroy_in_progress_leaves_a_group_open, 2, 0, -1},
    {"not ready is a last error", law_not_ready_is_a_last_error, 2, 0, -1},
    {"device tags", law_device_tags, 2, 0, -1},
    {"the first use connects", law_first_use_connects, 2, 0, -1},
    {"a revoke ends connecting", law_revoke_ends_connecting, 2, 0, -1},
    {"connected at init", law_connected_at_init, 2, 0, -1},
    {"before 2.22 collectives connect at init", law_old_versions_connect_at_init, 2, 0, -1},
    {"the first message connects", law_first_message_connects, 2, 0, -1},
    {"connecting ends together", law_connecting_ends_together, 3, 0, -1},
    {"non-blocking comms connect in their thread", law_non_blocking_comms_connect_in_their_thread, 2, 0, -1},
    {"connecting tells of death", law_connecting_tells_of_death, 2, 0, 1},
    {"windows are collective", law_windows_are_collective, 2, 0, -1},
    {"windows of other sizes hang", law_windows_of_other_sizes, 2, 0, -1},
    {"a refused window hangs the others", law_refused_windows, 2, 0, -1},
    {"windows of non-blocking comms", law_windows_non_blocking, 2, 0, -1},
    {"no symmetric memory", law_no_symmetric_memory, 2, 0, -1},
    {"a window before 2.27 aborts", die_old_window, 1, SIGABRT, -1},
    {"a free of registered memory aborts", die_free_registered, 1, SIGABRT, -1},
    {"a free of a window aborts", die_free_window, 1, SIGABRT, -1},
    {"aborts let registered memory go", law_aborts_let_memory_go, 1, 0, -1},
    {"registered memory meets", law_registered_memory_meets, 2, 0, -1},
    {"registered on one rank: nothing ends it", die_registered_on_one_rank, 2, SIGABRT, -1},
    {"registered on one rank, without NVLS", law_registered_without_nvls, 2, 0, -1},
    {"windows do not meet", law_windows_do_not_meet, 2, 0, -1},
    {"comms are unordered", law_comms_are_unordered, 2, 0, -1},
    {"one comm is ordered", law_one_comm_is_ordered, 2, 0, -1},
    {"events order comms", law_events_order_comms, 2, 0, -1},
    {"the launch order orders comms", law_launch_order_orders_comms, 2, 0, -1},
    {"before 2.26 there is no launch order", law_old_versions_have_no_launch_order, 2, 0, -1},
    {"order for other tests", law_order_for_other_tests, 2, 0, -1},
    {"speed of 2", law_speed, 2, 0, -1},
    {"speed of 8", law_speed, 8, 0, -1},
};

static int ended_well(const struct law *law, int of_rank, int status) {
    int signal = of_rank == law->killed ? SIGKILL : law->signal;
    if (signal == SIGSEGV && WIFEXITED(status) && WEXITSTATUS(status)) return 1; /* a sanitizer's report */
    return signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal : WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int run_law(const struct law *law) {
    pid_t children[MAX_RANKS];
    int good = 1;
    memset(shared, 0, sizeof *shared);
    fflush(stdout);
    for (int r = 0; r < law->nranks; r++) {
        children[r] = fork();
        if (children[r]) continue;
        rank = r, nranks = law->nranks;
        set_number("RANK", rank);
        alarm(LAW_SECONDS);
        if (law->signal && !freopen("/dev/null", "w", stderr)) _exit(2); /* the complaint is wanted */
        law->run();
        exit(0);
    }
    for (int r = 0; r < law->nranks; r++) {
        int status;
        if (waitpid(children[r], &status, 0) != children[r] || !ended_well(law, r, status)) {
            printf("  rank %d: %s %d\n", r, WIFSIGNALED(status) ? "signal" : "exit",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            good = 0;
        }
    }
    return good;
}

int main(int argc, char **argv) {
    int passed = 0, failed = 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    for (size_t i = 0; i < sizeof laws / sizeof laws[0]; i++) {
        if (argc > 1 && !strstr(laws[i].name, argv[1])) continue;
        double start = now_ms();
        int good = run_law(&laws[i]);
        printf("%s %s (%.0f ms)\n", good ? "pass" : "FAIL", laws[i].name, now_ms() - start);
        passed += good;
        failed += !good;
    }
    printf("fake NCCL: %d passed, %d failed\n", passed, failed);
    return failed != 0;
}
