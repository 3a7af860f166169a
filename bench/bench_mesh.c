/* ns per question about a mesh, for 8, 2^12 and 2^24 ranks: the cost is O(axes), whatever the number of ranks. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static volatile int sink;

typedef int (*question)(const mesh *m, int rank);
static int ask_rank_at(const mesh *m, int rank) { return mesh_rank_at(m, rank); }
static int ask_index_of(const mesh *m, int rank) { return mesh_index_of(m, rank); }
static int ask_coord_of(const mesh *m, int rank) { return mesh_coord_of(m, "b", rank); }
static int ask_local_index(const mesh *m, int rank) { return mesh_local_index(m, "a,c", rank); }
static int ask_neighbor(const mesh *m, int rank) { return mesh_neighbor(m, "c", rank, 1, 1); }
static int ask_group_of(const mesh *m, int rank) { return mesh_group_of(m, "b", rank); }

/* The best of several runs: what it costs when nothing else runs. */
static double measure(question f, const mesh *m) {
    enum { N = 200000, RUNS = 7 };
    double best = 1e30;
    int run, i;
    for (run = 0; run < RUNS; run++) {
        double start = now_ns(), each;
        unsigned rank = 1;
        for (i = 0; i < N; i++) {
            rank = rank * 1664525u + 1013904223u;
            sink = f(m, (int)((rank >> 7) % (unsigned)m->size));
        }
        each = (now_ns() - start) / N;
        if (each < best) best = each;
    }
    return best;
}

int main(void) {
    static const char *const meshes[] = {"a=2,b=2,c=2", "a=16,b=16,c=16", "a=256,b=256,c=256"};
    static const struct {
        const char *name;
        question f;
    } questions[] = {{"rank_at", ask_rank_at},         {"index_of", ask_index_of}, {"coord_of", ask_coord_of},
                     {"local_index", ask_local_index}, {"neighbor", ask_neighbor}, {"group_of", ask_group_of}};
    int q, k, slow = 0;
    printf("ns per question    8 ranks   4096 ranks   2^24 ranks\n");
    for (q = 0; q < 6; q++) {
        printf("%-16s", questions[q].name);
        for (k = 0; k < 3; k++) {
            mesh m;
            mesh_error err;
            double ns;
            if (mesh_parse(&m, meshes[k], 0, &err)) return fprintf(stderr, "%s\n", err.text), 1;
            ns = measure(questions[q].f, &m);
            slow |= ns >= 100;
            printf("%10.1f  ", ns);
        }
        printf("\n");
    }
    if (slow) printf("some question takes 100 ns or more\n");
    return 0;
}
