/* The times of bench_redistribute: redistribute_times.csv, their part of REDISTRIBUTE.md, and redistribute.svg. */
#ifndef REDISTRIBUTE_REPORT_H
#define REDISTRIBUTE_REPORT_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARED, ALLOC, UNIX, OVER_TCP, LANES, MOST_TIMES = 64 };

static const struct {
    const char *name, *title, *lanes, *option; /* of MESH_SOCKET_LANES; of bench_redistribute as a rank */
} lane_of[LANES] = {{"shared", "shared", "auto", ""},
                    {"alloc", "mesh_alloc", "auto", " --alloc"},
                    {"unix", "unix", "unix", ""},
                    {"tcp", "tcp", "tcp", ""}};

/* One move. ms; 0: not measured. */
typedef struct timing {
    int ranks, wrong;
    char mesh[32], from[64], to[64];
    double ours[LANES], hand[LANES], copy[LANES], torch;
} timing;

/* Where the times were taken, as the page and the chart say it. */
typedef struct setting {
    int cores;
    char torch[96]; /* its version, and when it was measured; "": never */
} setting;

static int has_lane(const timing *t, int n, int lane) {
    int i;
    for (i = 0; i < n && t[i].ours[lane] <= 0;) i++;
    return i < n;
}

/* ---- redistribute_times.csv ---- */

/* ranks,"mesh",from,to,lane,ours,by hand,memcpy,wrong values, as a rank prints it, and DTensor's time after that in the file. Returns the
   new number of moves. */
static int read_time(const char *line, timing *t, int n) {
    timing r;
    char lane[16];
    double ours, hand, copy, torch = 0;
    int i, k, wrong;
    memset(&r, 0, sizeof r);
    if (sscanf(line, "%d,\"%31[^\"]\",%63[^,],%63[^,],%15[^,],%lf,%lf,%lf,%d,%lf", &r.ranks, r.mesh, r.from, r.to, lane,
               &ours, &hand, &copy, &wrong, &torch) < 9)
        return n;
    for (k = 0; k < LANES && strcmp(lane, lane_of[k].name);) k++;
    for (i = 0; i < n && (t[i].ranks != r.ranks || strcmp(t[i].mesh, r.mesh) || strcmp(t[i].from, r.from) ||
                          strcmp(t[i].to, r.to));)
        i++;
    if (k == LANES || i == MOST_TIMES) return n;
    if (i == n) t[n++] = r;
    t[i].ours[k] = ours;
    t[i].hand[k] = hand;
    t[i].copy[k] = copy;
    t[i].wrong |= wrong != 0;
    t[i].torch = torch;
    return n;
}

static int read_times(timing *t, setting *w) {
    FILE *f = fopen("bench/redistribute_times.csv", "r");
    char line[512];
    int n = 0;
    if (!f) return 0;
    while (fgets(line, sizeof line, f)) {
        sscanf(line, "# %d cores; %95[^\n]", &w->cores, w->torch);
        n = read_time(line, t, n);
    }
    fclose(f);
    return n;
}

static int write_times(const timing *t, int n, const setting *w) {
    FILE *f = fopen("bench/redistribute_times.csv", "w");
    int i, k;
    if (!f) return perror("bench/redistribute_times.csv"), 1;
    fprintf(f, "# %d cores; %s\nranks,mesh,from,to,lane,ours_ms,axis_by_axis_ms,memcpy_ms,wrong,dtensor_ms\n", w->cores,
            w->torch);
    for (i = 0; i < n; i++)
        for (k = 0; k < LANES; k++)
            if (t[i].ours[k] > 0)
                fprintf(f, "%d,\"%s\",%s,%s,%s,%.2f,%.2f,%.2f,%d,%.1f\n", t[i].ranks, t[i].mesh, t[i].from, t[i].to,
                        lane_of[k].name, t[i].ours[k], t[i].hand[k], t[i].copy[k], t[i].wrong, t[i].torch);
    fclose(f);
    return 0;
}

/* ---- the page ---- */

/* " | 11.72 (23.5)": ours, and how many times as long another takes. */
static void put_lane(FILE *f, double ours, double other) {
    if (ours <= 0)
        fprintf(f, " | -");
    else if (other > 0)
        fprintf(f, " | %.2f (%.1f)", ours, other / ours);
    else
        fprintf(f, " | %.2f", ours);
}

static void put_heads(FILE *f, const timing *t, int n, const char *last) {
    int k, columns = 4;
    fprintf(f, "| ranks | mesh | from | to");
    for (k = 0; k < LANES; k++)
        if (has_lane(t, n, k)) fprintf(f, " | %s", lane_of[k].title), columns++;
    fprintf(f, "%s |\n", last);
    for (; *last; last++) columns += *last == '|';
    while (columns--) fprintf(f, "|---");
    fprintf(f, "|\n");
}

/* The least of the lanes' runs: the same copies are made in each. */
static double copy_of(const timing *t) {
    double least = 0;
    int k;
    for (k = 0; k < LANES; k++)
        if (t->copy[k] > 0 && (least <= 0 || t->copy[k] < least)) least = t->copy[k];
    return least;
}

static void write_beside_torch(FILE *f, const timing *t, int n, const setting *w) {
    int i, k;
    fprintf(
        f,
        "\n## Time\n\n64 MiB of f32, 4096 x 4096, in ms; the median of 9, a barrier before and after, values checked. Ours are shared (MESH_SOCKET_LANES=auto,\n"
        "ordinary buffers), mesh_alloc (the same, buffers of mesh_alloc), unix and tcp, one lane after the other. memcpy: each rank copies, at the same time,\n"
        "as many bytes as it ends with, from and to its own memory: the limit. ");
    if (w->torch[0])
        fprintf(
            f,
            "%s, one thread a rank; in brackets its time over ours.\nWhere axes share a dim of the target (@) DTensor nests them in its own order, which leaves every rank as many bytes short.\n\n",
            w->torch);
    else
        fprintf(f, "PyTorch was not found ($TORCHRUN names its launcher): no figures of DTensor.\n\n");
    put_heads(f, t, n, " | memcpy | DTensor");
    for (i = 0; i < n; i++) {
        fprintf(f, "| %d | %s | %s | %s", t[i].ranks, t[i].mesh, t[i].from, t[i].to);
        for (k = 0; k < LANES; k++)
            if (has_lane(t, n, k)) put_lane(f, t[i].ours[k], t[i].torch);
        put_lane(f, copy_of(&t[i]), 0);
        put_lane(f, t[i].torch, 0);
        fprintf(f, " |%s\n", t[i].wrong ? " WRONG VALUES" : "");
    }
}

static void write_beside_hand(FILE *f, const timing *t, int n) {
    int i, k, slower = 0, all = 0;
    fprintf(
        f,
        "\n## Beside one's own collectives\n\nThe same moves by hand, axis by axis with this library's own collectives, packing only what is strided, in turn in the same run: ms,\n"
        "and in brackets that over mesh_redistribute's.\n\n");
    put_heads(f, t, n, "");
    for (i = 0; i < n; i++) {
        fprintf(f, "| %d | %s | %s | %s", t[i].ranks, t[i].mesh, t[i].from, t[i].to);
        for (k = 0; k < LANES; k++) {
            if (!has_lane(t, n, k)) continue;
            if (t[i].hand[k] > 0 && t[i].ours[k] > 0)
                fprintf(f, " | %.2f (%.2f)", t[i].hand[k], t[i].hand[k] / t[i].ours[k]);
            else
                fprintf(f, " | -");
            all += t[i].ours[k] > 0;
            slower += t[i].hand[k] < t[i].ours[k];
        }
        fprintf(f, " |\n");
    }
    fprintf(f, "\nSlower than by hand in %d of %d.\n\n![the same as a chart](redistribute.svg)\n", slower, all);
}

/* ---- the chart: a bar for each lane and for DTensor. Its times are many times the others', and bars beyond the scale are cut, with a mark. ---- */

enum { LEFT = 290, WIDTH = 640, BAR = 11, HEAD = 84 };
static const char *const chart_colors[LANES + 1] = {"#3b6fb6", "#1b998b", "#8d6a9f", "#e0a030", "#d1495b"};

static void bar(FILE *f, int y, double ms, double most, const char *color) {
    double w = WIDTH * ms / most;
    if (w <= WIDTH) {
        fprintf(
            f,
            "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/><text x=\"%.1f\" y=\"%d\">%.1f</text>\n",
            LEFT, y, w, BAR - 1, color, LEFT + w + 4, y + 9, ms);
        return;
    }
    fprintf(
        f,
        "<path d=\"M%d %dh%dl6 %dl-6 %dh-%dz\" fill=\"%s\"/><path d=\"M%d %dl-5 %dm5 -%dl-5 %d\" stroke=\"white\" stroke-width=\"2\"/>"
        "<text x=\"%d\" y=\"%d\">%.0f</text>\n",
        LEFT, y, WIDTH, (BAR - 1) / 2, (BAR - 1) / 2, WIDTH, color, LEFT + WIDTH - 6, y - 1, BAR + 1, BAR + 1, BAR + 1,
        LEFT + WIDTH + 10, y + 9, ms);
}

/* Its bars from above to below; index LANES is DTensor. */
static double bar_of(const timing *t, int k) { return k == LANES ? t->torch : t->ours[k]; }
static int has_bar(const timing *t, int n, int k) {
    int i;
    for (i = 0; i < n && bar_of(&t[i], k) <= 0;) i++;
    return i < n;
}

static void put_move(FILE *f, const timing *t, int n, int i, int y, double most) {
    int k;
    fprintf(
        f,
        "<text x=\"14\" y=\"%d\">%s</text><text x=\"100\" y=\"%d\">%s</text><text x=\"86\" y=\"%d\">\xe2\x86\x92 %s</text>\n",
        y + 13, t[i].mesh, y + 13, t[i].from, y + 27, t[i].to);
    for (k = 0; k <= LANES; k++) {
        if (!has_bar(t, n, k)) continue;
        if (bar_of(&t[i], k) > 0)
            bar(f, y, bar_of(&t[i], k), most, chart_colors[k]);
        else
            fprintf(f, "<text x=\"%d\" y=\"%d\" fill=\"#777\">%s: not measured</text>\n", LEFT + 4, y + 9,
                    k == LANES ? "DTensor" : lane_of[k].title);
        y += BAR + 1;
    }
}

static void put_legend(FILE *f, const timing *t, int n, const setting *w) {
    int k, x = 14;
    fprintf(
        f,
        "<text x=\"14\" y=\"24\" font-size=\"15\">Redistributing 64 MiB of f32 among ranks of one machine of %d cores: ms, less is better</text>\n",
        w->cores);
    for (k = 0; k <= LANES; k++) {
        if (!has_bar(t, n, k)) continue;
        fprintf(f,
                "<rect x=\"%d\" y=\"36\" width=\"11\" height=\"11\" fill=\"%s\"/><text x=\"%d\" y=\"46\">%s%s</text>\n",
                x, chart_colors[k], x + 16, k == LANES ? "" : "mesh_redistribute, ",
                k == LANES ? w->torch : lane_of[k].title);
        x += 200;
    }
    fprintf(f,
            "<text x=\"14\" y=\"64\">A bar with an arrowhead goes beyond the scale, to the number behind it.</text>\n");
}

static int chart(const timing *t, int n, const setting *w) {
    FILE *f = fopen("bench/redistribute.svg", "w");
    double most = 0, tick;
    int i, k, y, groups = 0, bars = 0, move, height;
    if (!f) return perror("bench/redistribute.svg"), 1;
    for (k = 0; k <= LANES; k++) bars += has_bar(t, n, k);
    for (i = 0; i < n; i++) {
        for (k = 0; k < LANES; k++) most = t[i].ours[k] > most ? t[i].ours[k] : most;
        groups += i == 0 || t[i].ranks != t[i - 1].ranks;
    }
    most = most > 0 ? 1.2 * most : 1;
    move = (bars > 2 ? bars : 3) * (BAR + 1) + 10;
    height = HEAD + n * move + groups * 24 + 14;
    fprintf(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"Helvetica,Arial,sans-serif\" font-size=\"11\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
        LEFT + WIDTH + 120, height);
    put_legend(f, t, n, w);
    for (tick = 0; tick <= most; tick += most > 200 ? 50 : most > 50 ? 10 : 2)
        fprintf(
            f,
            "<path d=\"M%.1f %dV%d\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" fill=\"#555\">%g</text>\n",
            LEFT + WIDTH * tick / most, HEAD, height - 8, LEFT + WIDTH * tick / most, HEAD - 4, tick);
    for (i = 0, y = HEAD; i < n; i++, y += move) {
        if (i == 0 || t[i].ranks != t[i - 1].ranks) {
            fprintf(f, "<text x=\"14\" y=\"%d\" font-size=\"13\" font-weight=\"bold\">%d ranks</text>\n", y + 16,
                    t[i].ranks);
            y += 24;
        }
        put_move(f, t, n, i, y, most);
    }
    fprintf(f, "</svg>\n");
    fclose(f);
    return 0;
}
#endif
