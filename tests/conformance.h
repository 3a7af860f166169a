/* What every transport must do, run as each rank of a world: conformance_transport (the bare transport struct), conformance_collectives
   (every collective over it) and conformance_redistribute (seeded redistributions). For a transport of your own: include mesh.h,
   mesh_collectives.h, your header and this file, run the functions on 1, 2, 3, 5 and 8 ranks, and look at conformance_failures.
   tests/t_comm.h and t_redistribute.h do so for ours. What a transport's capabilities leave out is said on rank 0's stdout. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile int conformance_failures;
static int64_t conf_ask_ns; /* of the suites' comms; 0: as built in */

static void conformance_fail(const mesh_transport *t, const char *file, int line, const char *what, const char *detail) {
    if (__sync_add_and_fetch(&conformance_failures, 1) <= 10)
        fprintf(stderr, "    %s:%d: rank %d of %d on %s: %s %s\n", file, line, t->rank, t->size, t->ops->name, what, detail);
}

#define CONFORM(cond, detail)                                      \
    do {                                                           \
        if (!(cond)) conformance_fail(t, __FILE__, __LINE__, #cond, detail); \
    } while (0)
#define CONFORM_CALL(call, comm)                                                         \
    do {                                                                                 \
        if ((call) != MESH_OK) conformance_fail(t, __FILE__, __LINE__, #call, (comm)->error.text); \
    } while (0)

/* What is not tested on a transport, and why: said once. */
static void conf_left_out(const mesh_transport *t, const char *what) {
    static const char *said[16];
    static int n;
    int i;
    if (t->rank || n == 16) return;
    for (i = 0; i < n; i++)
        if (!strcmp(said[i], what)) return;
    said[n++] = what;
    printf("    not on %s: %s\n", t->ops->name, what);
}

static int conf_has(const mesh_transport *t, uint32_t cap) { return (t->caps & cap) != 0; }

#include "conformance/transport.h"
#include "conformance/collectives.h"
#include "conformance/redistribute.h"

#endif
