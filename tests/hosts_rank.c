/* One rank of a job over several hosts (tests/hosts.sh): calls collectives until told to stop, checks every result, and says what went wrong.
     hosts_rank [--rounds N | --until FILE] [--bytes N] [--side N] [--lost N] [--barriers N]
   up.R appears when the first round is done. When the job fails: which ranks were lost (until there are --lost of them), and whether the ranks
   of this side (blocks of --side ranks) can go on without the others. Exits with 0 (well), 1 (the job failed), 3 (a wrong result). */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct settings {
    int rounds, side, lost, barriers;
    size_t count;
    const char *until;
} settings;

static int wrong; /* results, of this rank */

static int value(int rank, size_t i, int round) { return rank * 31 + (int)(i % 997) + round; }

/* A round: large and small, every rank with every other. *stop: what rank 0 says. */
static mesh_status work(mesh_comm *c, const settings *o, int round, int *stop, int *a, int *b) {
    int n = c->on.size, me = mesh_comm_index(c, NULL), k;
    int64_t all = 0;
    size_t i;
    mesh_status status;
    for (k = 0; k < n; k++) all += value(k, 0, round);
    for (i = 0; i < o->count; i++) a[i] = value(me, i, round);
    status = mesh_all_reduce(c, NULL, a, b, o->count, MESH_I32, MESH_SUM);
    for (i = 0; i < o->count && status == MESH_OK; i++) wrong += b[i] != (int)(all + n * (int)(i % 997));
    for (k = 0; k < n; k++) a[k] = value(me, (size_t)k, round);
    if (status == MESH_OK) status = mesh_all_to_all(c, NULL, a, b, 1, MESH_I32);
    for (k = 0; k < n && status == MESH_OK; k++) wrong += b[k] != value(k, (size_t)me, round);
    if (status == MESH_OK) status = mesh_broadcast(c, NULL, stop, stop, 1, MESH_I32, 0);
    return status;
}

static void touch(int rank) {
    char name[32];
    FILE *f;
    sprintf(name, "up.%d", rank);
    if ((f = fopen(name, "w")) != NULL) fclose(f);
}

static int exists(const char *name) {
    FILE *f = fopen(name, "r");
    if (f) fclose(f);
    return f != NULL;
}

/* The ranks that were lost, until there are so many. */
static void tell_lost(mesh_transport *t, int want) {
    mesh__engine *e = mesh__engine_get(t);
    int64_t limit = t->ops->now(t) + INT64_C(60000000000);
    int i, k, n = 0;
    while (n < want && t->ops->now(t) < limit) {
        mesh__progress(e, t->ops->now(t) + 10000000);
        mesh__poll(e);
        for (i = n = 0; i < e->ngone; i++) n += e->gone[i].kind == MESH_EVENT_LOST;
    }
    printf("rank %d: lost", t->rank);
    for (i = 0; i < t->size; i++)
        for (k = 0; k < e->ngone; k++)
            if (e->gone[k].rank == i && e->gone[k].kind == MESH_EVENT_LOST) printf(" %d", i);
    printf(".\n");
}

static mesh_status open_side(mesh_comm *c, mesh_transport *t, int side, mesh_error *err) {
    mesh m;
    mesh_desc d = MESH_ZERO;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_status status;
    d.shape = &side;
    d.naxes = 1;
    d.origin = t->rank / side * side;
    desc.timeout_ns = INT64_C(100000000000);
    status = mesh_make(&m, &d, err);
    return status == MESH_OK ? mesh_comm_open(c, t, &m, &desc, err) : status;
}

int main(int argc, char **argv) {
    settings o = {10, 0, 0, 0, 1000, NULL};
    mesh_socket net;
    mesh_comm all, side = MESH_ZERO;
    mesh_error err;
    mesh_status status;
    int *a, *b, round, i, stop = 0;
    int64_t start;
    for (i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--rounds")) o.rounds = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--bytes")) o.count = (size_t)atoi(argv[i + 1]) / 4;
        if (!strcmp(argv[i], "--side")) o.side = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--lost")) o.lost = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--barriers")) o.barriers = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--until")) o.until = argv[i + 1], o.rounds = 1000000000;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (mesh_socket_open(&net, NULL, &err)) return printf("%s\n", err.text), 2;
    a = (int *)malloc(o.count * 4 + 4096), b = (int *)malloc(o.count * 4 + 4096);
    if (!o.side) o.side = net.base.size;
    if (!a || !b || open_side(&side, &net.base, o.side, &err) || open_side(&all, &net.base, net.base.size, &err))
        return printf("%s\n", err.text), 2;
    start = net.base.ops->now(&net.base);
    for (round = 0, status = MESH_OK; round < o.rounds && !stop && status == MESH_OK; round++) {
        stop = net.base.rank == 0 && o.until && exists(o.until);
        status = work(&all, &o, round, &stop, a, b);
        if (!round && status == MESH_OK) touch(net.base.rank);
    }
    for (i = 0; i < o.barriers && status == MESH_OK; i++) status = mesh_barrier(&all, NULL);
    printf("rank %d: %s after %d rounds and %.3f s%s%s\n", net.base.rank, mesh_status_text(status), round,
           (double)(net.base.ops->now(&net.base) - start) * 1e-9, status ? ": " : "", status ? all.error.text : "");
    if (status != MESH_OK) {
        mesh_status alone = MESH_OK;
        printf("rank %d: blames %d\n", net.base.rank, all.error.rank);
        tell_lost(&net.base, o.lost);
        for (round = 0; round < 5 && alone == MESH_OK; round++) alone = work(&side, &o, round, &stop, a, b);
        printf("rank %d: side %s%s%s\n", net.base.rank, mesh_status_text(alone), alone ? ": " : "", alone ? side.error.text : "");
    }
    mesh_comm_close(&all);
    mesh_comm_close(&side);
    mesh_socket_close(&net);
    free(a);
    free(b);
    if (wrong) printf("rank %d: %d wrong results\n", net.base.rank, wrong);
    return wrong ? 3 : status != MESH_OK;
}
