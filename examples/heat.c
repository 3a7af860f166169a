/* Heat in a plate or a block that is divided over a mesh of ranks: while the halo is on its way, the interior is computed.

   mesh run -n 4 -- build/heat --mesh x=2,y=2 --size 500,301 --steps 200 --periodic x --check
   mesh run -n 8 -- build/heat --mesh x=2,y=2,z=2 --size 64,50,71 --periodic x,y,z --check

   Each step every cell moves towards the mean of its 4 or 6 neighbours. Along a dim that is not periodic the ends are walls at temperature 0.
   The mesh's axes say which dims are divided; sizes need not divide. --check: rank 0 does it all once more alone, and compares every bit.

   What it is good for: two hosts at 100 Mbit/s, --mesh y=2 --size 64,512,256 --steps 20: 0.31 s; waiting for the halo first 0.45 s, and as long
   without mesh_progress in between. */
#define MESH_IMPLEMENTATION
#include "../mesh_parallel.h"
#include "ends.h"
#include "ranks.h"
#include <limits.h>
#include <stdio.h>

enum { AT_ONCE = 16384 }; /* cells between two looks at the network */

/* A plate is a block of one layer, which lies upon itself: nothing flows there, and its stride there is 0. */
typedef struct block {
    int first;              /* the first dim that is one: 0 of a block, 1 of a plate */
    int64_t whole[3], n[3]; /* cells in all; this rank's own */
    int64_t shape[3], stride[3],
        begin; /* of the array, with a border of one cell around; where the own cells begin in it */
    int periodic[3];
    const char *axis[3]; /* of the mesh; NULL: the dim is whole on every rank */
} block;

static mesh_comm comm;
static mesh_error err;
static ranks_transport net;

static int give_up(const char *text) {
    fprintf(stderr, "%s\n", text);
    return 1;
}

static void must(mesh_status status) {
    if (status != MESH_OK) exit(give_up(comm.error.text));
}

/* The physics, for both runs: so they differ in no bit. x, y, z: a cell's two neighbours along each dim, together. */
static double flow(double here, double x, double y, double z) {
    return here + 0.1 * ((x - 2 * here) + (y - 2 * here) + (z - 2 * here));
}

/* One step of the own cells from `low` to before `high`. */
static void relax(const block *b, const double *now, double *next, const int64_t *low, const int64_t *high) {
    const int64_t *s = b->stride;
    int64_t i, j, k;
    for (i = low[0]; i < high[0]; i++)
        for (j = low[1]; j < high[1]; j++) {
            int64_t row = b->begin + i * s[0] + j * s[1];
            for (k = row + low[2]; k < row + high[2]; k++)
                next[k] =
                    flow(now[k], now[k - s[0]] + now[k + s[0]], now[k - s[1]] + now[k + s[1]], now[k - 1] + now[k + 1]);
        }
}

/* One step of all own cells: `halo`, the exchange of now's border, goes on while those are computed that need none of it. */
static void step(const block *b, const double *now, double *next, mesh_request halo) {
    int64_t low[3], high[3], end, layers;
    int d, f = b->first;
    must(mesh_restart(halo));
    for (d = 0; d < 3; d++) {
        low[d] = d >= f;
        high[d] = b->n[d] > 2 * low[d] ? b->n[d] - low[d] : low[d];
    }
    layers = AT_ONCE * b->n[f] / (b->n[0] * b->n[1] * b->n[2]) + 1;
    for (end = high[f]; low[f] < end; low[f] = high[f]) {
        high[f] = low[f] + layers < end ? low[f] + layers : end;
        relax(b, now, next, low, high);
        must(mesh_progress(&net.base, 0)); /* on sockets nothing moves behind a program's back */
    }
    must(mesh_wait(halo));
    for (d = 0; d < 3; d++) low[d] = 0, high[d] = b->n[d];
    for (d = f; d < 3; d++) { /* the rim: both ends of each dim, without what the dims before have done */
        high[d] = 1;
        relax(b, now, next, low, high);
        low[d] = b->n[d] > 1 ? b->n[d] - 1 : 1;
        high[d] = b->n[d];
        relax(b, now, next, low, high);
        high[d] = low[d];
        low[d] = 1;
    }
}

/* Cell (i, j, k) of the whole: by remainders where it wraps, 0 beyond a wall. */
static double cell(const block *b, const double *whole, int64_t i, int64_t j, int64_t k) {
    int64_t at[3], d;
    at[0] = i, at[1] = j, at[2] = k;
    for (d = 0; d < 3; d++) {
        if (d < b->first || b->periodic[d]) at[d] = (at[d] + b->whole[d]) % b->whole[d];
        if (at[d] < 0 || at[d] >= b->whole[d]) return 0;
    }
    return whole[(at[0] * b->whole[1] + at[1]) * b->whole[2] + at[2]];
}

/* The whole, `steps` steps later, without mesh or halo; the result is in `a`, `b` is memory for as much. */
static void alone(const block *g, double *a, double *b, int steps) {
    int64_t i, j, k;
    for (; steps > 0; steps--) {
        double *next = b;
        for (i = 0; i < g->whole[0]; i++)
            for (j = 0; j < g->whole[1]; j++)
                for (k = 0; k < g->whole[2]; k++)
                    *next++ = flow(cell(g, a, i, j, k), cell(g, a, i - 1, j, k) + cell(g, a, i + 1, j, k),
                                   cell(g, a, i, j - 1, k) + cell(g, a, i, j + 1, k),
                                   cell(g, a, i, j, k - 1) + cell(g, a, i, j, k + 1));
        memcpy(a, b, (size_t)(next - b) * sizeof *a);
    }
}

/* Bring the parts to rank 0 and compare them with a run of its own. Returns how many cells differ. */
static int64_t check(const block *b, const mesh_tensor *part, int steps) {
    mesh one;
    mesh_tensor whole;
    int64_t i, cells = b->whole[0] * b->whole[1] * b->whole[2], wrong = 0;
    double *memory = NULL;
    if (mesh_parse(&one, "", 1, &err) || mesh_tensor_make(&whole, &one, "", MESH_F64, 3, b->whole, &err))
        exit(give_up(err.text));
    if (net.base.rank == 0 && !(memory = (double *)malloc((size_t)cells * 3 * sizeof *memory)))
        exit(give_up("heat: no memory for --check"));
    whole.data = memory;
    must(mesh_redistribute(&comm, part, &whole)); /* the border stays where it is: the part has strides */
    if (!memory) return 0;
    whole.data = memory + cells;
    if (mesh_random_uniform(&whole, 0, 1, 0, 0, 1, &err)) exit(give_up(err.text));
    alone(b, memory + cells, memory + 2 * cells, steps);
    for (i = 0; i < cells; i++) wrong += memcmp(&memory[i], &memory[cells + i], sizeof *memory) != 0;
    free(memory);
    return wrong;
}

/* Of all cells of all ranks. */
static double heat(const block *b, const double *now) {
    double sum = 0;
    int64_t i, j, k;
    for (i = 0; i < b->n[0]; i++)
        for (j = 0; j < b->n[1]; j++)
            for (k = 0; k < b->n[2]; k++) sum += now[b->begin + i * b->stride[0] + j * b->stride[1] + k];
    must(mesh_all_reduce(&comm, NULL, &sum, &sum, 1, MESH_F64, MESH_SUM));
    return sum;
}

/* "500,301" or "64,50,71"; then the dims that are periodic, "x" or "x,z"; then the mesh's axes. Returns NULL, or what is wrong. */
static const char *describe(block *b, const char *size, const char *periodic, const mesh *m) {
    static const char *const names[3] = {"x", "y", "z"};
    int64_t value[3];
    int d, i, n = 0;
    for (;; size++) {
        char *end;
        if (n == 3 || (value[n++] = strtoll(size, &end, 10)) < 1 || end == size || (*end && *end != ','))
            return "--size takes 2 or 3 numbers from 1 on: 500,301";
        if (!*(size = end)) break;
    }
    if (n == 1) return "--size takes 2 or 3 numbers from 1 on: 500,301";
    memset(b, 0, sizeof *b);
    b->first = 3 - n;
    b->whole[0] = 1;
    for (d = 0; d < n; d++) b->whole[b->first + d] = value[d];
    for (i = 0; periodic[i]; i += periodic[i + 1] == ',' ? 2 : 1) {
        if (periodic[i] < 'x' || periodic[i] >= 'x' + n || (periodic[i + 1] && periodic[i + 1] != ','))
            return "--periodic takes dims of the size: x,y";
        b->periodic[b->first + periodic[i] - 'x'] = 1;
    }
    for (i = 0; i < m->naxes; i++) {
        for (d = 0; d < n && strcmp(names[d], m->axis[i].name); d++) {}
        if (d == n)
            return n == 2 ? "--mesh divides a plate along x and y only"
                          : "--mesh divides a block along x, y and z only";
        b->axis[b->first + d] = names[d];
    }
    return NULL;
}

/* This rank's cells as a tensor: of the whole, what the mesh's axes give it, sizes apart by one at most. Its strides leave the border out. */
static void divide(block *b, mesh_tensor *part, const mesh *m) {
    mesh_box box;
    int64_t span = 1;
    int d;
    if (mesh_tensor_make(part, m, "balanced", MESH_F64, 3, b->whole, &err)) exit(give_up(err.text));
    for (d = 0; d < 3; d++)
        if (b->axis[d] && mesh_layout_set(&part->layout, b->axis[d], mesh_shard(d), &err)) exit(give_up(err.text));
    mesh_tensor_box(part, net.base.rank, &box);
    for (d = 2; d >= 0; d--) {
        b->n[d] = box.shape[d];
        b->shape[d] = box.shape[d] + (d < b->first ? 0 : 2);
        b->stride[d] = d < b->first ? 0 : span;
        b->begin += b->stride[d];
        span *= b->shape[d];
    }
    part->strides = b->stride;
}

/* Two arrays, which take turns, and an exchange of the border of each: built once, started again in every step. */
static void allocate(const block *b, double **cells, mesh_request *exchange) {
    mesh_halo halo = MESH_ZERO;
    size_t nbytes = sizeof(double);
    int d, k;
    halo.ndim = 3;
    for (d = 0; d < 3; d++) {
        halo.shape[d] = b->shape[d];
        halo.low[d] = halo.high[d] = d >= b->first;
        halo.axis[d] = b->axis[d];
        halo.periodic[d] = b->periodic[d];
        nbytes *= (size_t)b->shape[d];
    }
    for (k = 0; k < 2; k++) {
        void *memory; /* the transport's: where it can, ranks of one host reach into each other's */
        if (mesh_alloc(&net.base, nbytes, &memory, &err)) exit(give_up(err.text));
        cells[k] = (double *)memset(memory, 0, nbytes); /* walls, too */
        must(mesh_prepare(&comm));
        must(mesh_halo_exchange_start(&comm, &halo, cells[k], MESH_F64, &exchange[k]));
    }
}

typedef struct options {
    const char *mesh, *size, *periodic;
    int steps, check;
} options;

static int read_options(options *o, int argc, char **argv) {
    int i;
    for (i = 1; i < argc; i++) {
        const char *value;
        char *end;
        long steps;
        if (!strcmp(argv[i], "--check")) {
            o->check = 1;
            continue;
        }
        if (i + 1 == argc) return 0;
        value = argv[i + 1];
        if (!strcmp(argv[i], "--mesh"))
            o->mesh = value;
        else if (!strcmp(argv[i], "--size"))
            o->size = value;
        else if (!strcmp(argv[i], "--periodic"))
            o->periodic = value;
        else if (!strcmp(argv[i], "--steps") && (steps = strtol(value, &end, 10)) >= 0 && steps <= INT_MAX &&
                 end != value && !*end)
            o->steps = (int)steps;
        else
            return 0;
        i++;
    }
    return 1;
}

int main(int argc, char **argv) {
    options o = {"x=-1", "500,301", "", 100, 0};
    const char *wrong;
    mesh m;
    block b;
    mesh_tensor part;
    mesh_request exchange[2];
    double *now[2], sum;
    int64_t bytes, ns, bad;
    uint64_t begun, ended;
    int i;
    if (!read_options(&o, argc, argv))
        return give_up("heat [--mesh x=2,y=2[,z=2]] [--size NX,NY[,NZ]] [--steps N] [--periodic x,y] [--check]");
    if (ranks_open(&net, &err) || mesh_parse(&m, o.mesh, mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return give_up(err.text);
    if ((wrong = describe(&b, o.size, o.periodic, &m)) != NULL) return give_up(wrong);
    divide(&b, &part, &m);
    allocate(&b, now, exchange);
    part.data = now[0] + b.begin;
    if (mesh_random_uniform(&part, net.base.rank, 1, 0, 0, 1, &err)) return give_up(err.text); /* alike on any mesh */

    sum = heat(&b, now[0]);
    if (net.base.rank == 0) printf("%s cells on %d ranks: heat %.17g\n", o.size, m.size, sum);
    fflush(stdout);
    must(mesh_comm_bytes(&comm, NULL, &begun, NULL));
    ns = mesh_now(&net.base);
    for (i = 0; i < o.steps; i++) step(&b, now[i % 2], now[1 - i % 2], exchange[i % 2]);
    must(mesh_barrier(&comm, NULL));
    ns = mesh_now(&net.base) - ns;
    must(mesh_comm_bytes(&comm, NULL, &ended, NULL));
    bytes = (int64_t)(ended - begun);
    must(mesh_all_reduce(&comm, NULL, &bytes, &bytes, 1, MESH_I64, MESH_SUM));
    sum = heat(&b, now[o.steps % 2]);
    part.data = now[o.steps % 2] + b.begin;
    bad = o.check ? check(&b, &part, o.steps) : 0;
    if (net.base.rank == 0) {
        printf("%d steps in %.3f ms, halos of %lld bytes: heat %.17g\n", o.steps, (double)ns / 1e6, (long long)bytes,
               sum);
        if (o.check) printf("%lld cells differ from a run alone\n", (long long)bad);
    }
    mesh_comm_close(&comm);
    ranks_close(&net);
    return finish("heat", bad != 0);
}
