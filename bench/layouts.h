/* A matrix of 4096 x 4096 f32 (narrow: 65536 x 256) that goes from one layout to another, 64 MiB in all: by mesh_redistribute (contender_mesh.c) and by
   MPI_Alltoallw with subarray types (contender_alltoallw.c). Axes of a mesh and of a layout stand from the outermost to the innermost. */
#ifndef LAYOUTS_H
#define LAYOUTS_H
#include "contender.h"

enum { LAYOUT_SIDE = 4096, LAYOUT_BYTES = LAYOUT_SIDE * LAYOUT_SIDE * 4 };

typedef struct layout {
    const char *name;
    int ranks;
    const char *mesh, *from, *to;
} layout;

static const layout layouts[] = {
    {"rows_to_columns", 2, "a=2", "a:S(0)", "a:S(1)"},
    {"rows_to_columns", 4, "a=4", "a:S(0)", "a:S(1)"},
    {"rows_to_columns", 8, "a=8", "a:S(0)", "a:S(1)"},
    {"blocks_to_columns", 4, "a=2,b=2", "a:S(0) b:S(1)", "a:S(1) b:S(1)"},
    {"blocks_to_columns", 8, "a=4,b=2", "a:S(0) b:S(1)", "a:S(1) b:S(1)"},
    {"blocks_to_rows", 4, "a=2,b=2", "a:S(0) b:S(1)", "a:S(0) b:S(0)"},
    {"blocks_to_rows", 8, "a=4,b=2", "a:S(0) b:S(1)", "a:S(0) b:S(0)"},
    {"S0S1_to_S1S0", 4, "a=2,b=2", "a:S(0) b:S(1)", "a:S(1) b:S(0)"},
    {"S0S1_to_S1S0", 8, "a=4,b=2", "a:S(0) b:S(1)", "a:S(1) b:S(0)"},
    {"narrow_to_columns", 2, "a=2", "a:S(0)", "a:S(1)"},
    {"narrow_to_columns", 4, "a=4", "a:S(0)", "a:S(1)"},
    {"narrow_to_columns", 8, "a=8", "a:S(0)", "a:S(1)"},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* ranks 0: of any number. */
static const layout *layout_find(const char *name, int ranks) {
    int i;
    for (i = 0; i < LAYOUTS; i++)
        if (!strcmp(layouts[i].name, name) && (!ranks || layouts[i].ranks == ranks)) return &layouts[i];
    return NULL;
}

static int layout_rows(const layout *l) { return strncmp(l->name, "narrow", 6) ? LAYOUT_SIDE : 16 * LAYOUT_SIDE; }
static int layout_columns(const layout *l) { return LAYOUT_BYTES / 4 / layout_rows(l); }

/* Rows and columns of a rank: where they begin, and how many; the columns of all. */
typedef struct layout_box {
    int first[2], count[2], columns;
} layout_box;

static layout_box layout_box_of(const layout *l, const char *spec, int rank) {
    layout_box b = {{0, 0}, {layout_rows(l), layout_columns(l)}, layout_columns(l)};
    const char *axis = l->mesh, *place = strchr(spec, '(');
    int below = l->ranks;
    for (; place; place = strchr(place + 1, '('), axis += strcspn(axis, ","), axis += *axis == ',') {
        int size = atoi(strchr(axis, '=') + 1), dim = place[1] - '0';
        below /= size;
        b.count[dim] /= size;
        b.first[dim] += rank / below % size * b.count[dim];
    }
    return b;
}

static size_t layout_bytes(const layout_box *b) { return (size_t)b->count[0] * (size_t)b->count[1] * 4; }

/* Every element is its own place in the matrix: all are integers below 2^24. */
static float layout_value(const layout_box *b, int row, int column) {
    return (float)((b->first[0] + row) * b->columns + b->first[1] + column);
}

static void layout_fill(const layout_box *b, float *p) {
    int i, k;
    for (i = 0; i < b->count[0]; i++)
        for (k = 0; k < b->count[1]; k++) *p++ = layout_value(b, i, k);
}

static size_t layout_wrong(const layout_box *b, const float *p) {
    size_t wrong = 0;
    int i, k;
    for (i = 0; i < b->count[0]; i++)
        for (k = 0; k < b->count[1]; k++) wrong += *p++ != layout_value(b, i, k);
    return wrong;
}

/* c->run(OP_MOVE) makes the move; prepare is what is done once beforehand: the types, the plan. */
static inline int layout_main(char **argv, const contender *c, const layout *l,
                              void (*prepare)(const layout *l, void *src, void *dst)) {
    contender_result r = {0, 0, 0, 0, 0, 0};
    layout_box have = layout_box_of(l, l->from, c->rank), want = layout_box_of(l, l->to, c->rank);
    void *src = c->get ? c->get(layout_bytes(&have)) : malloc(layout_bytes(&have));
    void *dst = c->get ? c->get(layout_bytes(&want)) : malloc(layout_bytes(&want));
    if (!src || !dst) return fprintf(stderr, "%s: no memory\n", argv[0]), 2;
    layout_fill(&have, (float *)src);
    memset(dst, 0xee, layout_bytes(&want));
    prepare(l, src, dst);
    contender_measure(c, OP_MOVE, src, dst, layout_bytes(&want), atof(argv[3]) * 1e3, &r);
    memset(dst, 0xee, layout_bytes(&want));
    c->run(OP_MOVE, src, dst, layout_bytes(&want));
    r.wrong = (double)layout_wrong(&want, (const float *)dst);
    return contender_print(c, &r);
}
#endif
