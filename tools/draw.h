/* mesh draw and mesh table: what a mesh looks like, and which there are for a world. */
#ifndef TOOL_DRAW_H
#define TOOL_DRAW_H

static int command_draw(const char *self, int argc, char **argv) {
    size_t (*draw)(const mesh *, char *, size_t) = mesh_draw;
    const char *mesh_text = NULL;
    mesh m;
    mesh_error err;
    char *text;
    size_t n;
    int i;
    (void)self;
    for (i = 0; i < argc; i++) {
        if (is_help(argv[i])) {
            printf(
                "usage: mesh draw [--dot | --svg] \"pp=2,dp=2,tp=2\"\n\n"
                "Draws the ranks of a mesh, last axis across, and the groups along each axis: as text, for Graphviz\n"
                "(mesh draw --dot \"dp=2,tp=4\" | dot -Tpng >mesh.png), or as an SVG picture.\n");
            return 0;
        }
        if (draw != mesh_draw && (!strcmp(argv[i], "--dot") || !strcmp(argv[i], "--svg")))
            return wrong("draw", "one of --dot and --svg", NULL);
        if (!strcmp(argv[i], "--dot"))
            draw = mesh_dot;
        else if (!strcmp(argv[i], "--svg"))
            draw = mesh_svg;
        else if (argv[i][0] == '-')
            return wrong("draw", "unknown option", argv[i]);
        else if (mesh_text)
            return wrong("draw", "more than one mesh", argv[i]);
        else
            mesh_text = argv[i];
    }
    if (!mesh_text) return wrong("draw", "expected a mesh, as in mesh draw \"dp=2,tp=4\"", NULL);
    if (mesh_parse(&m, mesh_text, 0, &err)) return wrong("draw", err.text, NULL);
    n = draw(&m, NULL, 0);
    text = (char *)malloc(n + 1);
    if (!text) return wrong("draw", "no memory", NULL);
    draw(&m, text, n + 1);
    fputs(text, stdout);
    free(text);
    if (m.size > 4096)
        fprintf(stderr, "mesh draw: %d ranks are more than a picture shows; draw a slice of it\n", m.size);
    return 0;
}

/* ---- table: every (tp, cp, pp, dp) whose product is the world */

enum { TP, CP, PP, DP, DEGREES };
static const char *const degree_names[DEGREES] = {"tp", "cp", "pp", "dp"};

typedef struct table_row {
    long degree[DEGREES];
} table_row;

typedef struct table_filter { /* degree at least .. at most, and a divisor of `divides` where that is not 0 */
    long least[DEGREES], most[DEGREES], divides[DEGREES];
} table_filter;

/* The least parallel first, as ezpz lists them: dp descending; then by the largest other degree; then tp, cp, pp. */
static int table_order(const void *a, const void *b) {
    const table_row *x = (const table_row *)a, *y = (const table_row *)b;
    long mx = 0, my = 0;
    int k;
    for (k = 0; k < DP; k++) {
        if (x->degree[k] > mx) mx = x->degree[k];
        if (y->degree[k] > my) my = y->degree[k];
    }
    if (x->degree[DP] != y->degree[DP]) return x->degree[DP] > y->degree[DP] ? -1 : 1;
    if (mx != my) return mx < my ? -1 : 1;
    for (k = 0; k < DP; k++)
        if (x->degree[k] != y->degree[k]) return x->degree[k] > y->degree[k] ? -1 : 1;
    return 0;
}

static int table_keeps(const table_filter *f, const table_row *r) {
    int k;
    for (k = 0; k < DEGREES; k++)
        if (r->degree[k] < f->least[k] || r->degree[k] > f->most[k] || (f->divides[k] && f->divides[k] % r->degree[k]))
            return 0;
    return 1;
}

static long greatest_divisor(long a, long b) { return b ? greatest_divisor(b, a % b) : a; }

/* "tp=4", "tp<=8", "pp>=2", "tp|32" (tp divides 32). Returns 0 if it is none of these. */
static int table_filter_add(table_filter *f, const char *text) {
    int k;
    long v;
    static const char *const relations[] = {"=", "|", "<=", ">="};
    int relation;
    for (k = 0; k < DEGREES && strncmp(text, degree_names[k], 2); k++) {}
    if (k == DEGREES) return 0;
    text += 2;
    for (relation = 0; relation < 4 && strncmp(text, relations[relation], strlen(relations[relation])); relation++) {}
    if (relation == 4 || (v = number(text + strlen(relations[relation]))) < 1) return 0;
    if (relation == 1) f->divides[k] = f->divides[k] ? greatest_divisor(f->divides[k], v) : v;
    if (relation != 1 && relation != 3 && v < f->most[k]) f->most[k] = v;
    if (relation != 1 && relation != 2 && v > f->least[k]) f->least[k] = v;
    return 1;
}

static void table_print(const table_row *r, int csv) {
    static const int outermost[DEGREES] = {DP, PP, CP, TP};
    int k, axes = 0;
    if (csv)
        printf("%ld,%ld,%ld,%ld,\"", r->degree[TP], r->degree[CP], r->degree[PP], r->degree[DP]);
    else
        printf("%5ld %5ld %5ld %5ld  ", r->degree[TP], r->degree[CP], r->degree[PP], r->degree[DP]);
    for (k = 0; k < DEGREES; k++)
        if (r->degree[outermost[k]] > 1)
            printf("%s%s=%ld", axes++ ? "," : "", degree_names[outermost[k]], r->degree[outermost[k]]);
    printf("%s%s\n", axes ? "" : "dp=1", csv ? "\"" : "");
}

static int command_table(const char *self, int argc, char **argv) {
    table_filter filter;
    table_row *rows = NULL, r;
    long world = -1;
    size_t n = 0, room = 0, i;
    int k, csv = 0, filtered = 0;
    memset(&filter, 0, sizeof filter);
    (void)self;
    for (k = 0; k < DEGREES; k++) filter.most[k] = LONG_MAX;
    for (k = 0; k < argc; k++) {
        if (is_help(argv[k])) {
            printf(
                "usage: mesh table --world RANKS [--csv] [FILTER ...]\n\n"
                "Every way to divide RANKS into tensor (tp), context (cp), pipeline (pp) and data parallelism (dp), with the mesh that it\n"
                "makes (dp outermost, tp innermost). Filters: tp=4, tp<=8, pp>=2, \"tp|32\" (tp divides 32, a number of heads say).\n\n"
                "  mesh table --world 24 \"tp<=4\" cp=1\n\nExit status: 1 if no row is left.\n");
            return 0;
        }
        if (!strcmp(argv[k], "--csv"))
            csv = 1;
        else if (!strcmp(argv[k], "--world") && k + 1 < argc)
            world = number(argv[++k]);
        else if (++filtered, !table_filter_add(&filter, argv[k]))
            return wrong("table", "neither an option nor a filter such as \"tp<=8\"", argv[k]);
    }
    if (world < 1) return wrong("table", "--world RANKS is missing, or no number from 1 to 999999", NULL);
    for (r.degree[TP] = 1; r.degree[TP] <= world; r.degree[TP]++) {
        if (world % r.degree[TP]) continue;
        for (r.degree[CP] = 1; r.degree[CP] <= world / r.degree[TP]; r.degree[CP]++) {
            if (world / r.degree[TP] % r.degree[CP]) continue;
            for (r.degree[PP] = 1; r.degree[PP] <= world / r.degree[TP] / r.degree[CP]; r.degree[PP]++) {
                if (world / r.degree[TP] / r.degree[CP] % r.degree[PP]) continue;
                r.degree[DP] = world / r.degree[TP] / r.degree[CP] / r.degree[PP];
                if (!table_keeps(&filter, &r)) continue;
                if (n == room) {
                    table_row *more = (table_row *)realloc(rows, (room = room * 2 + 64) * sizeof *rows);
                    if (!more) return wrong("table", "no memory", NULL);
                    rows = more;
                }
                rows[n++] = r;
            }
        }
    }
    if (n) qsort(rows, n, sizeof *rows, table_order);
    puts(csv ? "tp,cp,pp,dp,mesh" : "   tp    cp    pp    dp  mesh");
    for (i = 0; i < n; i++) table_print(&rows[i], csv);
    if (!csv) printf("%zu ways to divide %ld ranks%s\n", n, world, filtered ? " that the filters leave" : "");
    free(rows);
    return n == 0;
}

#endif
