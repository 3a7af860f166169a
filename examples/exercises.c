/* The exercises of a chapter on device meshes, answered by the library's calls: build/exercises. No rank runs: meshes, layouts and plans are values.

   The chapter: "The Device Mesh Abstraction", https://ttsugriy.github.io/distributed-training-book/composition/23-device-mesh */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "ends.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mesh_error err;
static char text[1 << 14];

static void must(mesh_status status) {
    if (status == MESH_OK) return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

/* ---- 1: a mesh for 256 GPUs with dp=8, pp=4, tp=8, drawn with its groups ---- */

static void construct(void) {
    mesh m;
    must(mesh_parse(&m, "dp=8,pp=4,tp=8", 256, &err));
    mesh_draw(&m, text, sizeof text);
    printf(
        "1. rank = 32 dp + 8 pp + tp: the last axis named is fastest, so a tp group is 8 ranks in a row, a host's\n%s\n",
        text);
}

/* ---- 2: how many groups a mesh has, over all its axes: the sum of ranks / size, axis by axis ---- */

static int groups(const char *axes) {
    mesh m;
    int i, sum = 0;
    must(mesh_parse(&m, axes, 0, &err));
    for (i = 0; i < m.naxes; i++) sum += mesh_group_count(&m, m.axis[i].name);
    return sum;
}

static void count_groups(void) {
    static const char *const meshes[] = {"dp=8,pp=4,tp=8", "dp=256", "dp=32,tp=8", "a=4,b=4,c=4,d=4"};
    size_t i;
    printf("2. along an axis of n ranks there are (all ranks) / n groups; in all, of some meshes of 256 ranks:\n");
    for (i = 0; i < sizeof meshes / sizeof *meshes; i++) printf("   %-16s %d groups\n", meshes[i], groups(meshes[i]));
}

/* ---- 3: of dp=4, pp=4, tp=8 the sub-mesh at dp 2 ---- */

static void submesh(void) {
    mesh m, sub;
    must(mesh_parse(&m, "dp=4,pp=4,tp=8", 128, &err));
    must(mesh_fix(&sub, &m, "dp", 2, &err));
    mesh_format(&sub, text, sizeof text);
    printf("\n3. mesh_fix holds an axis at an index. At dp 2: %s, ranks %d to %d\n", text, mesh_rank_at(&sub, 0),
           mesh_rank_at(&sub, sub.size - 1));
    mesh_draw(&sub, text, sizeof text);
    printf("%s\n", text);
}

/* ---- 4: a weight (out x in) that is replicated on dp and pp, and sharded on its output dim over tp ---- */

static void specify(void) {
    static const int64_t shape[2] = {8192, 2048};
    mesh m;
    mesh_layout weight;
    mesh_box box;
    char dims[64];
    must(mesh_parse(&m, "dp=8,pp=4,tp=8", 256, &err));
    must(mesh_layout_parse(&weight, &m, "tp:S(0)", 2, shape, &err)); /* an axis that is not named is R */
    mesh_spec_format(&weight.spec, &m, text, sizeof text);
    mesh_spec_format_dims(&weight.spec, &m, 2, dims, sizeof dims);
    mesh_layout_box(&weight, 3, &box);
    printf("4. a place per axis of the mesh: \"%s\", or the axes per dim of the tensor: \"%s\"\n", text, dims);
    printf("   of 8192 x 2048 each rank holds %lld x %lld, rank 3 from row %lld on; each part is on %d ranks\n\n",
           (long long)box.shape[0], (long long)box.shape[1], (long long)box.offset[0], mesh_layout_holders(&weight));
}

/* ---- 5: 32 hosts of 8 GPUs as dp=32, tp=8 with the least traffic between hosts ---- */

enum { HOSTS = 32, PER_HOST = 8, TP = 8, DP = 32 };

static mesh_plan plan_of(const mesh *m, const char *from, const char *to, int64_t rows, int64_t columns,
                         const mesh_topology *topology) {
    int64_t shape[2];
    mesh_layout src, dst;
    mesh_plan_desc d = MESH_ZERO;
    mesh_plan p;
    shape[0] = rows, shape[1] = columns;
    must(mesh_layout_parse(&src, m, from, 2, shape, &err));
    must(mesh_layout_parse(&dst, m, to, 2, shape, &err));
    d.src = &src, d.dst = &dst, d.dtype = MESH_BF16, d.topology = topology;
    must(mesh_plan_make(&p, &d, &err));
    return p;
}

/* Bytes that all ranks together send to other hosts. */
static int64_t between_hosts(const mesh_plan *p) {
    mesh_moves it;
    int64_t sum = 0;
    int step, rank;
    for (step = 0; step < p->nsteps; step++)
        for (rank = 0; rank < HOSTS * PER_HOST; rank++)
            for (mesh_moves_start(&it, p, step, rank, -1); mesh_moves_next(&it);)
                if (it.kind == MESH_MOVE_SEND && it.peer / PER_HOST != rank / PER_HOST)
                    sum += mesh_box_count(&it.box) * p->elem_bytes;
    return sum;
}

/* A host holds `near` of a tp group and 8 / near of a dp group: hosts and ranks are factors of both axes, which become one each. */
static mesh placement(int near) {
    mesh m;
    snprintf(text, sizeof text, "dp_far=%d,tp_far=%d,dp_near=%d,tp_near=%d", DP * near / PER_HOST, TP / near,
             PER_HOST / near, near);
    must(mesh_parse(&m, text, HOSTS * PER_HOST, &err));
    must(mesh_flatten(&m, &m, "dp_far,dp_near", "dp", &err));
    must(mesh_flatten(&m, &m, "tp_far,tp_near", "tp", &err));
    return m;
}

/* For one layer: a gradient of 49152 x 4096 is summed over dp once, activations of 2048 x 4096 are summed over tp 4 times in each micro-batch. */
static void place(void) {
    static const int micros[2] = {1, 8};
    int64_t least[2] = {INT64_MAX, INT64_MAX}, all;
    mesh_topology hosts;
    int near, k, best[2] = {0, 0};
    must(mesh_topology_parse(&hosts, "8:2us:450GB/s,*:10us:50GB/s", &err));
    printf(
        "5. GB between hosts for a layer, by the plans that the library makes for each placement (sums on a host go first):\n"
        "   8 ranks of a host   gradient over dp   activations over tp   with 1 micro-batch   with 8\n");
    for (near = PER_HOST; near >= 1; near /= 2) {
        mesh m = placement(near);
        mesh_plan gradient = plan_of(&m, "dp:P(sum) tp:S(0)", "dp:R tp:S(0)", 49152, 4096, &hosts);
        mesh_plan activation = plan_of(&m, "dp:S(0) tp:P(sum)", "dp:S(0) tp:R", 2048 * DP, 4096, &hosts);
        int64_t over_dp = between_hosts(&gradient), over_tp = 4 * between_hosts(&activation);
        printf("   tp %d x dp %d         %16.3f   %19.3f", near, PER_HOST / near, (double)over_dp / 1e9,
               (double)over_tp / 1e9);
        for (k = 0; k < 2; k++) {
            all = over_dp + micros[k] * over_tp;
            printf(k ? "  %7.3f\n" : "   %18.3f", (double)all / 1e9);
            if (all < least[k]) least[k] = all, best[k] = near;
        }
    }
    for (k = 0; k < 2; k++)
        printf("   least with %d: tp %d x dp %d on each host\n", micros[k], best[k], PER_HOST / best[k]);
    printf("   tp 8 x dp 1, the chapter's answer, is mesh_parse(&m, \"dp=32,tp=8\", 256, &err)\n\n");
}

/* ---- 6: the cost of (R, S) -> (S, R) where an all_gather over tp=8 takes 10 ms ---- */

static void print_plan(const char *what, const mesh_plan *p) {
    int i, first;
    printf("   %-38s %7.3f ms:", what, (double)p->ps / 1e9);
    for (first = i = 0; i < p->nsteps; i++) { /* steps of one name: over the factors of an axis */
        if (i + 1 < p->nsteps && !strcmp(mesh_step_name(p, i), mesh_step_name(p, i + 1))) continue;
        printf("%s %s", first ? "," : "", mesh_step_name(p, i));
        if (i > first) printf(" in %d steps", i + 1 - first);
        first = i + 1;
    }
    printf("\n");
}

static void convert(void) {
    enum { N = 4096 };
    const int64_t all_gather_ps = INT64_C(10000000000);
    mesh tp, both;
    mesh_topology link = MESH_ZERO;
    mesh_plan gather, slice, direct, axes;
    must(mesh_parse(&tp, "tp=8", 8, &err));
    must(mesh_parse(&both, "dp=8,tp=8", 64, &err));
    link.nlevels =
        1; /* messages of 1 us; bytes cost nothing yet, so that an all_gather costs its latencies. What is left of 10 ms is for its bytes */
    link.level[0].ranks = INT32_MAX;
    link.level[0].latency_ps = 1000000;
    gather = plan_of(&tp, "[*] [tp]", "[*] [*]", N, N, &link);
    link.level[0].ps_per_byte_16 = (all_gather_ps - gather.ps) * 65536 / gather.bytes;
    gather = plan_of(&tp, "[*] [tp]", "[*] [*]", N, N, &link);
    slice = plan_of(&tp, "[*] [*]", "[tp] [*]", N, N, &link);
    direct = plan_of(&tp, "[*] [tp]", "[tp] [*]", N, N, &link);
    axes = plan_of(&both, "dp:R tp:S(1)", "dp:S(0) tp:R", N, N, &link);
    printf("6. a link on which the all_gather takes 10 ms moves %.2f GB/s\n",
           65536e3 / (double)link.level[0].ps_per_byte_16);
    print_plan("the chapter, [*] [tp] to whole", &gather);
    print_plan("             whole to [tp] [*]", &slice);
    print_plan("the planner, [*] [tp] to [tp] [*]", &direct);
    print_plan("per mesh axis, dp=8: R S(1) to S(0) R", &axes);
    printf("   what a rank will not keep need not come: 7/64 of the tensor instead of 7/8\n");
}

int main(int argc, char **argv) {
    if (any_argument(argc, argv, "build/exercises")) return 2;
    construct();
    count_groups();
    submesh();
    specify();
    place();
    convert();
    return finish("exercises", 0);
}
