/* What the library adds to a transport's own collective: calls over a transport that does nothing, in ns. build/bench_native.
   Columns: a blocking all_reduce; started and waited for; a kept one restarted and waited for; the same members called straight. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include <stdio.h>
#include <time.h>

enum { CALLS = 200000, ROUNDS = 15 };

static mesh_status nothing_post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    (void)t, (void)p;
    ticket->impl = NULL, ticket->id = 1;
    return MESH_OK;
}
static mesh_status nothing_test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    (void)t, (void)ticket, (void)why;
    return MESH_OK;
}
static int nothing_pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    (void)t, (void)ticket, (void)ranks, (void)cap;
    return 0;
}
static mesh_status nothing_cancel(mesh_transport *t, mesh_ticket *ticket) {
    (void)t, (void)ticket;
    return MESH_OK;
}
static mesh_status nothing_progress(mesh_transport *t, int64_t deadline) {
    (void)t, (void)deadline;
    return MESH_OK;
}
static int64_t nothing_now(mesh_transport *t) {
    static int64_t now;
    (void)t;
    return ++now; /* a clock of its own: what the system's costs is not the library's */
}
static mesh_status nothing_send(mesh_transport *t, int rank, int kind, const void *data, size_t nbytes) {
    (void)t, (void)rank, (void)kind, (void)data, (void)nbytes;
    return MESH_OK;
}
static mesh_status nothing_poll(mesh_transport *t, mesh_control *m) {
    (void)t, (void)m;
    return MESH_IN_PROGRESS;
}
static mesh_status nothing_close(mesh_transport *t, mesh_error *why) {
    (void)why;
    return mesh_transport_detach(t);
}
static mesh_status nothing_collective(mesh_transport *t, void *group, const mesh_call *call, mesh_ticket *ticket) {
    (void)t, (void)group, (void)call;
    if (ticket) ticket->impl = NULL, ticket->id = 1;
    return MESH_OK;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(void) {
    static mesh_ops ops = {sizeof(mesh_ops), MESH_ABI,       "nothing",        nothing_post, nothing_test,
                           nothing_pending,  nothing_cancel, nothing_progress, nothing_now,  nothing_send,
                           nothing_poll,     nothing_close,  MESH_OPS_BARE};
    mesh_transport t = MESH_ZERO;
    mesh_comm comm;
    mesh_error err;
    mesh_request r, kept;
    mesh m;
    double best[4] = {1e9, 1e9, 1e9, 1e9};
    float a[16] = {0};
    int round, i;
    ops.collective = nothing_collective;
    t.ops = &ops;
    t.size = 1;
    if (mesh_parse(&m, "x=1", 1, &err) || mesh_comm_open(&comm, &t, &m, NULL, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (mesh_all_reduce_start(&comm, NULL, a, a, 16, MESH_F32, MESH_SUM, &kept) || mesh_keep(kept) || mesh_wait(kept)) {
        fprintf(stderr, "%s\n", comm.error.text);
        return 1;
    }
    for (round = 0; round < ROUNDS; round++) {
        double at[5];
        mesh_ticket ticket;
        mesh_call call = MESH_ZERO;
        at[0] = seconds();
        for (i = 0; i < CALLS; i++)
            if (mesh_all_reduce(&comm, NULL, a, a, 16, MESH_F32, MESH_SUM)) return 1;
        at[1] = seconds();
        for (i = 0; i < CALLS; i++)
            if (mesh_all_reduce_start(&comm, NULL, a, a, 16, MESH_F32, MESH_SUM, &r) || mesh_wait(r)) return 1;
        at[2] = seconds();
        for (i = 0; i < CALLS; i++)
            if (mesh_restart(kept) || mesh_wait(kept)) return 1;
        at[3] = seconds();
        for (i = 0; i < CALLS; i++)
            if (t.ops->collective(&t, NULL, &call, &ticket) || t.ops->test(&t, &ticket, &err)) return 1;
        at[4] = seconds();
        for (i = 0; i < 4; i++)
            if (1e9 * (at[i + 1] - at[i]) / CALLS < best[i]) best[i] = 1e9 * (at[i + 1] - at[i]) / CALLS;
    }
    printf(
        "all_reduce over a transport that does nothing, ns: blocking %.0f, start and wait %.0f, restart and wait %.0f; the transport's members alone %.0f\n",
        best[0], best[1], best[2], best[3]);
    mesh_release(kept);
    return mesh_comm_close(&comm) || ops.close(&t, &err);
}
