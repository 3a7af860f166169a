/* bench/peers.svg of what bench_peers measured: for each kind of peer, per operation, the ratio over the size, a line for each lane and number
   of ranks. Both axes are logarithmic. */
#ifndef PEERS_CHART_H
#define PEERS_CHART_H
#include "peers.h"

enum {
    CHART_W = 240,
    CHART_H = 170,
    CHART_LEFT = 46,
    CHART_TOP = 30,
    CHART_COLUMNS = 4,
    CHART_HEAD = 62,
    CHART_GAP = 34
};

typedef struct chart_kind {
    const char *what;
    int lanes[3], nlanes; /* one drawn line each, the second one dashed */
    double most;          /* the scale goes from a half to this */
} chart_kind;

static const chart_kind chart_kinds[] = {{"Ranks of one host, mesh.h over shared memory", {SHARED, ALLOC, 0}, 2, 8},
                                         {"Over TCP", {OVER_TCP, 0, 0}, 1, 4}};

static const char *const chart_colors[] = {"#1b6ca8", "#d1495b", "#2e8b57", "#8d6a9f"};

/* What one panel and one line of it are about. */
typedef struct chart_line {
    const char *op;
    int ranks, lane, number; /* number: of the ranks, for color and place */
    double x0, y0, most;
} chart_line;

static double chart_log2(double v) {
    double l = 0;
    for (; v >= 2; v /= 2) l++;
    for (; v < 1; v *= 2) l--;
    return l + v - 1; /* nearly straight between powers */
}

static double chart_x(const chart_line *l, unsigned long bytes) {
    return l->x0 + CHART_W * (chart_log2((double)bytes) - 3) / 23.0;
}

static double chart_y(const chart_line *l, double r) {
    r = r < 0.5 ? 0.5 : r > l->most ? l->most : r;
    return l->y0 + CHART_H - CHART_H * (1 + chart_log2(r)) / (1 + chart_log2(l->most));
}

static int chart_has(const chart_line *l, const cell *c) {
    return !strcmp(c->op, l->op) && c->ranks == l->ranks && ratio(c, l->lane) > 0;
}

static void put_chart_line(FILE *f, const chart_line *l, int dashed) {
    const char *color = chart_colors[l->number % 4];
    int i;
    fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", color,
            dashed ? " stroke-dasharray=\"5 3\"" : "");
    for (i = 0; i < ncells; i++)
        if (chart_has(l, &cells[i]))
            fprintf(f, "%.1f,%.1f ", chart_x(l, cells[i].bytes), chart_y(l, ratio(&cells[i], l->lane)));
    fprintf(f, "\"/>\n");
    for (i = 0; i < ncells; i++) { /* what lies beyond the scale, with its value */
        double r = chart_has(l, &cells[i]) ? ratio(&cells[i], l->lane) : 1, x = chart_x(l, cells[i].bytes),
               y = chart_y(l, r);
        int up = r > l->most;
        if (r >= 0.5 && r <= l->most) continue;
        fprintf(
            f,
            "<path d=\"M%.1f %.1fl-4 %dh8z\" fill=\"%s\"/><text x=\"%.1f\" y=\"%.1f\" font-size=\"9\" fill=\"%s\">%.1f</text>\n",
            x, up ? y - 4 : y + 4, up ? 7 : -7, color, x + 6, y + (up ? 12 + 10 * l->number : -4 - 10 * l->number),
            color, r);
    }
}

static void put_chart_axes(FILE *f, const chart_line *l) {
    double tick;
    int k;
    fprintf(f, "<text x=\"%.0f\" y=\"%.0f\" font-size=\"13\" font-weight=\"bold\">%s</text>\n", l->x0, l->y0 - 8,
            l->op);
    for (tick = 0.5; tick <= l->most; tick *= 2)
        fprintf(
            f,
            "<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/><text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
            l->x0, l->x0 + CHART_W, chart_y(l, tick), chart_y(l, tick), tick == 1 ? "#333" : "#ddd", l->x0 - 5,
            chart_y(l, tick) + 4, tick);
    for (k = 3; k <= 26; k += k == 3 ? 17 : 6)
        fprintf(f, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"%s\">%s</text>\n", chart_x(l, 1ul << k),
                l->y0 + CHART_H + 16,
                k == 3    ? "start"
                : k == 26 ? "end"
                          : "middle",
                size_text(1ul << k));
}

/* The numbers of ranks, ascending, and the operations of which a kind has ratios; a barrier has no size and is in the table. */
static int chart_ranks(const chart_kind *kind, int *ranks) {
    int i, k, n = 0, r;
    for (r = 1; r <= 64; r++) {
        for (i = 0; i < ncells; i++) {
            for (k = 0; k < kind->nlanes && ratio(&cells[i], kind->lanes[k]) <= 0;) k++;
            if (cells[i].ranks == r && k < kind->nlanes) break;
        }
        if (i < ncells && n < MOST) ranks[n++] = r;
    }
    return n;
}

static int chart_ops(const chart_kind *kind, const char **ops) {
    int i, k, n = 0, o;
    for (o = 0; o < PEERS_OPS; o++) {
        if (!strcmp(peers_ops[o], "barrier") || !strcmp(peers_ops[o], PEERS_BUSY) || layout_find(peers_ops[o], 0))
            continue;
        for (i = 0; i < ncells; i++) {
            for (k = 0; k < kind->nlanes && ratio(&cells[i], kind->lanes[k]) <= 0;) k++;
            if (!strcmp(cells[i].op, peers_ops[o]) && k < kind->nlanes) break;
        }
        if (i < ncells) ops[n++] = peers_ops[o];
    }
    return n;
}

/* "Peers: Open MPI; MPICH (2 ranks)": with whom, and on how many ranks where it is not all. */
static void put_chart_peers(FILE *f, peer_kind k, const int *ranks, int nranks) {
    int who, i, r, first = 1;
    for (who = LANES; who < CONTENDERS; who++) {
        int on[MOST], n = 0;
        if (contenders[who].kind != k) continue;
        for (r = 0; r < nranks; r++) {
            for (i = 0; i < ncells && (cells[i].ranks != ranks[r] || typical(&cells[i], who).us <= 0);) i++;
            if (i < ncells) on[n++] = ranks[r];
        }
        if (!n) continue;
        fprintf(f, "%s%s", first ? "Peers: " : "; ", softwares[contenders[who].software].name);
        for (r = 0; r < n && n < nranks; r++) fprintf(f, "%s%d%s", r ? ", " : " (", on[r], r + 1 < n ? "" : " ranks)");
        first = 0;
    }
    fprintf(f, ". An arrowhead marks a ratio beyond the scale.");
}

static int chart_height(int nops) {
    return nops ? CHART_HEAD + (nops + CHART_COLUMNS - 1) / CHART_COLUMNS * (CHART_H + CHART_TOP + CHART_GAP) : 0;
}

static void put_chart_kind(FILE *f, const chart_kind *kind, int top) {
    const char *ops[PEERS_OPS];
    int ranks[MOST], nops = chart_ops(kind, ops), nranks = chart_ranks(kind, ranks), p, k, j;
    if (!nops) return;
    fprintf(
        f,
        "<text x=\"16\" y=\"%d\" font-size=\"15\">%s: the time of the best peer, divided by mesh.h's; above 1 mesh.h is faster</text>\n"
        "<text x=\"16\" y=\"%d\">",
        top + 22, kind->what, top + 40);
    put_chart_peers(f, contenders[kind->lanes[0]].kind, ranks, nranks);
    fprintf(f, "%s</text>\n", kind->nlanes > 1 ? " Solid: ordinary buffers; dashed: buffers of mesh_alloc." : "");
    for (k = 0; k < nranks; k++)
        fprintf(f, "<circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"%s\"/><text x=\"%d\" y=\"%d\">%d ranks</text>\n",
                CHART_COLUMNS * (CHART_W + CHART_LEFT) - 80 * (nranks - k), top + 36, chart_colors[k % 4],
                CHART_COLUMNS * (CHART_W + CHART_LEFT) - 80 * (nranks - k) + 8, top + 40, ranks[k]);
    for (p = 0; p < nops; p++) {
        chart_line l;
        l.op = ops[p];
        l.most = kind->most;
        l.x0 = CHART_LEFT + p % CHART_COLUMNS * (CHART_W + CHART_LEFT);
        l.y0 = top + CHART_HEAD + CHART_TOP + p / CHART_COLUMNS * (CHART_H + CHART_TOP + CHART_GAP);
        put_chart_axes(f, &l);
        for (k = 0; k < nranks; k++)
            for (j = 0; j < kind->nlanes; j++) {
                l.number = k;
                l.ranks = ranks[k];
                l.lane = kind->lanes[j];
                put_chart_line(f, &l, j);
            }
    }
}

static void write_chart(const char *dir) {
    enum { KINDS = sizeof chart_kinds / sizeof chart_kinds[0] };
    const char *ops[PEERS_OPS];
    char path[512];
    int k, top = 0, height = 0;
    FILE *f;
    snprintf(path, sizeof path, "%s/peers.svg", dir);
    if (!(f = fopen(path, "w"))) {
        perror(path);
        return;
    }
    for (k = 0; k < KINDS; k++) height += chart_height(chart_ops(&chart_kinds[k], ops));
    fprintf(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
        CHART_COLUMNS * (CHART_W + CHART_LEFT) + 20, height ? height : 1);
    for (k = 0; k < KINDS; k++) {
        put_chart_kind(f, &chart_kinds[k], top);
        top += chart_height(chart_ops(&chart_kinds[k], ops));
    }
    fprintf(f, "</svg>\n");
    fclose(f);
}
#endif
