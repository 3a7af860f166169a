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

/* ---- table: every way to divide a world */

/* The first four make the world; the others are shown when a filter names one. */
enum { TP, CP, PP, DP, DP_REPLICATE, DP_SHARD, EP, DEGREES };
static const char *const degree_names[DEGREES] = {"tp", "cp", "pp", "dp", "dp_replicate", "dp_shard", "ep"};

typedef struct table_row {
    long degree[DEGREES];
} table_row;

typedef struct table_filter { /* degree at least .. at most, and a divisor of `divides` where that is not 0 */
    long least[DEGREES], most[DEGREES], divides[DEGREES];
    int named[DEGREES];
} table_filter;

typedef struct table_list {
    table_filter filter;
    table_row *row;
    size_t n, room;
} table_list;

/* The least parallel first, as ezpz lists them: dp descending; then by the largest other degree; then tp, cp, pp; then how dp is divided, and ep. */
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
    for (k = DP_REPLICATE; k < DEGREES; k++)
        if (x->degree[k] != y->degree[k]) return x->degree[k] < y->degree[k] ? -1 : 1;
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
    static const char *const relations[] = {"=", "|", "<=", ">="};
    size_t length = strcspn(text, "=|<>");
    int k, relation;
    long v;
    for (k = 0; k < DEGREES && (strlen(degree_names[k]) != length || strncmp(text, degree_names[k], length)); k++) {}
    if (k == DEGREES) return 0;
    text += length;
    for (relation = 0; relation < 4 && strncmp(text, relations[relation], strlen(relations[relation])); relation++) {}
    if (relation == 4 || (v = number(text + strlen(relations[relation]))) < 1) return 0;
    f->named[k] = 1;
    if (relation == 1) f->divides[k] = f->divides[k] ? greatest_divisor(f->divides[k], v) : v;
    if (relation != 1 && relation != 3 && v < f->most[k]) f->most[k] = v;
    if (relation != 1 && relation != 2 && v > f->least[k]) f->least[k] = v;
    return 1;
}

static int table_shows(const table_filter *f, int k) {
    int divided = f->named[DP_REPLICATE] || f->named[DP_SHARD];
    return k == DP ? !divided : k == EP ? f->named[EP] : k < DP || divided;
}

static void table_print(const table_filter *f, const table_row *r, int csv) {
    static const int outermost[] = {DP, DP_REPLICATE, DP_SHARD, PP, CP, TP};
    int k, axes = 0;
    for (k = 0; k < DEGREES; k++)
        if (table_shows(f, k)) printf(csv ? "%ld," : k < DP_REPLICATE ? "%5ld " : "%13ld ", r->degree[k]);
    printf(csv ? "\"" : " ");
    for (k = 0; k < (int)(sizeof outermost / sizeof outermost[0]); k++)
        if (table_shows(f, outermost[k]) && r->degree[outermost[k]] > 1)
            printf("%s%s=%ld", axes++ ? "," : "", degree_names[outermost[k]], r->degree[outermost[k]]);
    printf("%s%s\n", axes ? "" : "dp=1", csv ? "\"" : "");
}

static void table_head(const table_filter *f, int csv) {
    int k;
    for (k = 0; k < DEGREES; k++)
        if (table_shows(f, k)) printf(csv ? "%s," : k < DP_REPLICATE ? "%5s " : "%13s ", degree_names[k]);
    puts(csv ? "mesh" : " mesh");
}

static void table_add(table_list *t, const table_row *r) {
    if (!table_keeps(&t->filter, r)) return;
    if (t->n == t->room) {
        t->room = t->room * 2 + 64;
        t->row = (table_row *)realloc(t->row, t->room * sizeof *t->row);
        if (!t->row) exit(wrong("table", "no memory", NULL));
    }
    t->row[t->n++] = *r;
}

/* With the degrees behind: how dp is divided, where that is asked; ep of what shares the experts, dp_shard x cp x tp (torchtitan). */
static void table_add_divided(table_list *t, table_row r) {
    int divided = !table_shows(&t->filter, DP), with_ep = t->filter.named[EP];
    long *d = r.degree, shared;
    for (d[DP_REPLICATE] = 1; d[DP_REPLICATE] <= (divided ? d[DP] : 1); d[DP_REPLICATE]++) {
        if (d[DP] % d[DP_REPLICATE]) continue;
        d[DP_SHARD] = d[DP] / d[DP_REPLICATE];
        shared = d[DP_SHARD] * d[CP] * d[TP];
        for (d[EP] = 1; d[EP] <= (with_ep ? shared : 1); d[EP]++)
            if (shared % d[EP] == 0) table_add(t, &r);
    }
}

static void table_fill(table_list *t, long world) {
    table_row r;
    long *d = r.degree;
    for (d[TP] = 1; d[TP] <= world; d[TP]++) {
        if (world % d[TP]) continue;
        for (d[CP] = 1; d[CP] <= world / d[TP]; d[CP]++) {
            if (world / d[TP] % d[CP]) continue;
            for (d[PP] = 1; d[PP] <= world / d[TP] / d[CP]; d[PP]++) {
                if (world / d[TP] / d[CP] % d[PP]) continue;
                d[DP] = world / d[TP] / d[CP] / d[PP];
                table_add_divided(t, r);
            }
        }
    }
    if (t->n) qsort(t->row, t->n, sizeof *t->row, table_order);
}

static int command_table(const char *self, int argc, char **argv) {
    table_list t;
    long world = -1;
    size_t i;
    int k, csv = 0, filtered = 0;
    memset(&t, 0, sizeof t);
    (void)self;
    for (k = 0; k < DEGREES; k++) t.filter.most[k] = LONG_MAX;
    for (k = 0; k < argc; k++) {
        if (is_help(argv[k])) {
            printf(
                "usage: mesh table --world RANKS [--csv] [FILTER ...]\n\n"
                "Every way to divide RANKS into tensor (tp), context (cp), pipeline (pp) and data parallelism (dp), with the mesh that it\n"
                "makes (dp outermost, tp innermost). Filters: tp=4, tp<=8, pp>=2, \"tp|32\" (tp divides 32, a number of heads say).\n"
                "A filter on dp_replicate or dp_shard divides dp into them; one on ep lists the ranks that share experts too,\n"
                "a divisor of dp_shard x cp x tp.\n\n"
                "  mesh table --world 24 \"tp<=4\" cp=1\n"
                "  mesh table --world 64 \"tp<=8\" cp=1 pp=1 \"dp_shard>=8\" ep=16\n\nExit status: 1 if no row is left.\n");
            return 0;
        }
        if (!strcmp(argv[k], "--csv"))
            csv = 1;
        else if (!strcmp(argv[k], "--world") && k + 1 < argc)
            world = number(argv[++k]);
        else if (++filtered, !table_filter_add(&t.filter, argv[k]))
            return wrong(
                "table",
                "neither an option nor a filter such as \"tp<=8\" (of tp, cp, pp, dp, dp_replicate, dp_shard, ep)",
                argv[k]);
    }
    if (world < 1) return wrong("table", "--world RANKS is missing, or no number from 1 to 999999", NULL);
    table_fill(&t, world);
    table_head(&t.filter, csv);
    for (i = 0; i < t.n; i++) table_print(&t.filter, &t.row[i], csv);
    if (!csv) printf("%zu ways to divide %ld ranks%s\n", t.n, world, filtered ? " that the filters leave" : "");
    free(t.row);
    return t.n == 0;
}

#endif
