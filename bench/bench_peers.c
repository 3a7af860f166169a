/* Our collectives over TCP beside those of Open MPI, MPICH and Gloo over TCP: the same program (contender.h) for each, one cell
   (operation, ranks, bytes) after the other, all contenders in every cell. Uses what is installed and names what is missing. Writes
   bench/peers.csv, bench/RESULTS.md and bench/peers.svg. `make bench` builds and runs it from the repository's root.
   --again writes the pages anew from peers.csv.
   usage: bench_peers [--rounds N] [--ms M] [--ops all_reduce,...] [--ranks 2,4,8] [--sizes 8,1024,...] [--out DIR] [--again] */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { MOST_ROUNDS = 9, MOST = 8 };

typedef struct contender {
    const char *name, *package, *build, *run, *version; /* run: %d ranks, then op, bytes, ms. package NULL: ours */
    int there;
} contender;

static contender contenders[] = {
    {"mesh", NULL, "${CC:-cc} -std=c99 -O3 -march=native bench/contender_mesh.c -o build/contender_mesh",
     "MESH_SOCKET_LANES=tcp build/mesh run -n %d -- build/contender_mesh %s %lu %d",
     "git describe --always --dirty 2>/dev/null", 0},
    {"openmpi", "openmpi-bin libopenmpi-dev",
     "mpicc.openmpi -O3 -march=native bench/contender_mpi.c -o build/contender_openmpi",
     "mpirun.openmpi --allow-run-as-root --oversubscribe -n %d --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo "
     "build/contender_openmpi %s %lu %d",
     "ompi_info --version | head -1", 0},
    {"mpich", "mpich libmpich-dev", "mpicc.mpich -O3 -march=native bench/contender_mpi.c -o build/contender_mpich",
     "UCX_TLS=tcp,self MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp timeout 60 mpiexec.mpich -n %d build/contender_mpich %s %lu %d",
     "mpichversion | head -1 | tr -s '\\t ' ' '", 0},
    {"gloo", "libgloo-dev", "c++ -O3 -march=native bench/contender_gloo.cc -o build/contender_gloo -lgloo -lpthread",
     "rm -rf build/gloo_store; mkdir build/gloo_store; GLOO_STORE=build/gloo_store build/mesh run -n %d -- "
     "build/contender_gloo %s %lu %d",
     "dpkg-query -W -f 'Gloo ${Version}' libgloo-dev", 0},
};
enum { CONTENDERS = sizeof contenders / sizeof contenders[0] };

typedef struct cell {
    const char *op;
    int ranks;
    unsigned long bytes;
    double us[CONTENDERS][MOST_ROUNDS]; /* < 0: no result */
    double median[CONTENDERS];
} cell;

static cell *cells;
static int ncells, rounds = 3, ms = 250;

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const char *size_text(unsigned long bytes) {
    static char text[4][24];
    static int k;
    char *t = text[k = (k + 1) % 4];
    if (bytes >= 1 << 20)
        snprintf(t, sizeof text[0], "%lu MB", bytes >> 20);
    else if (bytes >= 1024)
        snprintf(t, sizeof text[0], "%lu KB", bytes >> 10);
    else
        snprintf(t, sizeof text[0], "%lu B", bytes);
    return t;
}

static void first_line(const char *command, char *out, size_t cap) {
    FILE *p = popen(command, "r");
    out[0] = 0;
    if (p && fgets(out, (int)cap, p)) out[strcspn(out, "\n")] = 0;
    if (p) pclose(p);
}

/* One run of one contender. Returns us, or -1. */
static double measure(const contender *c, const cell *at) {
    char command[1024], line[512];
    double us = -1, least, wrong;
    int samples;
    FILE *p;
    snprintf(command, sizeof command, c->run, at->ranks, at->op, at->bytes, ms);
    strncat(command, " 2>/dev/null", sizeof command - strlen(command) - 1);
    if (!(p = popen(command, "r"))) return -1;
    while (fgets(line, sizeof line, p)) {
        const char *from = strchr(line, ']');
        double median;
        if (sscanf(from ? from + 1 : line, "%d %lf %lf %lf", &samples, &median, &least, &wrong) == 4) {
            us = wrong == 0 ? median : -1;
            if (wrong != 0) fprintf(stderr, "bench_peers: %s: %.0f wrong values in %s\n", c->name, wrong, command);
        }
    }
    pclose(p);
    return us;
}

/* MPICH waits by spinning: with more ranks than cores every wait costs it a slice of the scheduler's (8 ms for 8 bytes on 4 ranks and 2
   cores), so it is asked only where ranks do not outnumber cores. Who takes ten times the best one's time is asked once. */
static int is_hopeless(const cell *c, int who, int round) {
    int k;
    if (!strcmp(contenders[who].name, "mpich") && c->ranks > sysconf(_SC_NPROCESSORS_ONLN)) return 1;
    for (k = 0; k < CONTENDERS && round > 0; k++)
        if (c->us[k][0] > 0 && (c->us[who][0] < 0 || c->us[who][0] > 10 * c->us[k][0])) return 1;
    return 0;
}

static int best_peer(const cell *c) {
    int k, best = 0;
    for (k = 1; k < CONTENDERS; k++)
        if (c->median[k] > 0 && (!best || c->median[k] < c->median[best])) best = k;
    return best;
}

/* The best peer's time over ours; 0: there is none. */
static double ratio(const cell *c) {
    int best = best_peer(c);
    return best && c->median[0] > 0 ? c->median[best] / c->median[0] : 0;
}

static double required(const cell *c) { return !strcmp(c->op, "all_reduce") && c->bytes >= 16ul << 20 ? 1.3 : 1.0; }

static void medians(cell *at) {
    int k, r;
    for (k = 0; k < CONTENDERS; k++) {
        double good[MOST_ROUNDS];
        int n = 0;
        for (r = 0; r < rounds; r++)
            if (at->us[k][r] > 0) good[n++] = at->us[k][r];
        qsort(good, (size_t)n, sizeof *good, order);
        at->median[k] = n ? good[n / 2] : -1;
    }
}

/* The measurements of an earlier run, to write its pages anew (with causes found since). Returns 0 if there are none. */
static int read_csv(const char *dir) {
    char path[512], line[256], op[32], who[32];
    FILE *f;
    int i, k, ranks, round, n = 0;
    unsigned long bytes;
    double us;
    snprintf(path, sizeof path, "%s/peers.csv", dir);
    if (!(f = fopen(path, "r"))) return 0;
    rounds = 1;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%31[^,],%d,%lu,%31[^,],%d,%lf", op, &ranks, &bytes, who, &round, &us) != 6) continue;
        for (i = 0; i < ncells && (strcmp(cells[i].op, op) || cells[i].ranks != ranks || cells[i].bytes != bytes);) i++;
        for (k = 0; k < CONTENDERS && strcmp(contenders[k].name, who);) k++;
        if (i == ncells || k == CONTENDERS || round < 0 || round >= MOST_ROUNDS) continue;
        cells[i].us[k][round] = us;
        if (round >= rounds) rounds = round + 1;
        contenders[k].there = 1;
        n++;
    }
    fclose(f);
    for (i = 0; i < ncells; i++) medians(&cells[i]);
    return n;
}

static void write_csv(const char *dir) {
    char path[512];
    FILE *f;
    int i, k, r;
    snprintf(path, sizeof path, "%s/peers.csv", dir);
    if (!(f = fopen(path, "w"))) return;
    fprintf(f, "op,ranks,bytes,contender,round,median_us\n");
    for (i = 0; i < ncells; i++)
        for (k = 0; k < CONTENDERS; k++)
            for (r = 0; r < rounds; r++)
                if (cells[i].us[k][r] > 0)
                    fprintf(f, "%s,%d,%lu,%s,%d,%.2f\n", cells[i].op, cells[i].ranks, cells[i].bytes,
                            contenders[k].name, r, cells[i].us[k][r]);
    fclose(f);
}

/* Why a cell falls short: lines "op ranks bytes text" of bench/causes.txt, "*" for any. */
static void write_cause(FILE *f, const cell *c) {
    FILE *in = fopen("bench/causes.txt", "r");
    char line[512], op[32], ranks[16], bytes[32];
    int at;
    while (in && fgets(line, sizeof line, in)) {
        if (line[0] == '#' || sscanf(line, "%31s %15s %31s %n", op, ranks, bytes, &at) != 3) continue;
        if ((strcmp(op, "*") && strcmp(op, c->op)) || (strcmp(ranks, "*") && atoi(ranks) != c->ranks) ||
            (strcmp(bytes, "*") && strtoul(bytes, NULL, 10) != c->bytes))
            continue;
        line[strcspn(line, "\n")] = 0;
        fprintf(f, ": %s", line + at);
        break;
    }
    if (in) fclose(in);
}

static void write_results(const char *dir) {
    char path[512], text[256];
    struct utsname u;
    time_t now = time(NULL);
    FILE *f;
    int i, k, met = 0, compared = 0;
    const char *op = "";
    snprintf(path, sizeof path, "%s/RESULTS.md", dir);
    if (!(f = fopen(path, "w"))) return;
    uname(&u);
    strftime(text, sizeof text, "%Y-%m-%d", gmtime(&now));
    fprintf(
        f,
        "# Collectives over TCP beside the peers\n\nWritten by `make bench` on %s; every contender in every cell, %d rounds (one for who takes ten times the best), medians. ",
        text, rounds);
    fprintf(
        f,
        "Times are per call, of the slowest rank, in us; bytes as nccl-tests' size (contender.h).\nRatio: the best peer's time over ours, above 1 we are faster.\n\n");
    first_line("sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1", text, sizeof text);
    fprintf(f, "Machine: %s, %ld cores, %s %s. ", text, sysconf(_SC_NPROCESSORS_ONLN), u.sysname, u.release);
    first_line("sysctl -n net.ipv4.tcp_congestion_control 2>/dev/null || cat /proc/sys/net/ipv4/tcp_congestion_control",
               text, sizeof text);
    fprintf(f, "TCP congestion control: %s.\nContenders:", text);
    for (k = 0; k < CONTENDERS; k++) {
        first_line(contenders[k].version, text, sizeof text);
        fprintf(f, " %s %s%s;", contenders[k].name, contenders[k].there ? text : "NOT INSTALLED: apt install ",
                contenders[k].there ? "" : contenders[k].package);
    }
    fprintf(
        f,
        " all of them over TCP.\nMPICH waits by spinning: where ranks outnumber cores every wait costs it a slice of the scheduler's (8 ms for 8 bytes on 4 ranks and 2 cores),\nso it is asked only where they do not.\n\n![ratios](peers.svg)\n");
    for (i = 0; i < ncells; i++) {
        const cell *c = &cells[i];
        int best = best_peer(c);
        if (strcmp(op, c->op)) {
            fprintf(f, "\n## %s\n\n| ranks | bytes | mesh", c->op);
            for (k = 1; k < CONTENDERS; k++) fprintf(f, " | %s", contenders[k].name);
            fprintf(f, " | ratio |\n|---|---|---");
            for (k = 1; k < CONTENDERS; k++) fprintf(f, "|---");
            fprintf(f, "|---|\n");
            op = c->op;
        }
        fprintf(f, "| %d | %s", c->ranks, strcmp(c->op, "barrier") ? size_text(c->bytes) : "-");
        for (k = 0; k < CONTENDERS; k++)
            if (c->median[k] > 0)
                fprintf(f, " | %.*f", c->median[k] < 100 ? 1 : 0, c->median[k]);
            else
                fprintf(f, " | -");
        fprintf(f, best ? " | %s%.2f%s |\n" : " | - |\n", ratio(c) < required(c) ? "**" : "", ratio(c),
                ratio(c) < required(c) ? "**" : "");
        compared += best != 0;
        met += best && ratio(c) >= required(c);
    }
    fprintf(
        f,
        "\n## Where we fall short\n\nWanted: 1.0, and 1.3 for all_reduce from 16 MB on. Met in %d of %d cells. The others:\n\n",
        met, compared);
    for (i = 0; i < ncells; i++)
        if (best_peer(&cells[i]) && ratio(&cells[i]) < required(&cells[i])) {
            fprintf(f, "- %s, %d ranks, %s: %.2f", cells[i].op, cells[i].ranks, size_text(cells[i].bytes),
                    ratio(&cells[i]));
            write_cause(f, &cells[i]);
            fprintf(f, "\n");
        }
    fclose(f);
    printf("\nmet in %d of %d cells; see %s\n", met, compared, path);
}

/* "; gloo" of a peer measured on every number of ranks, "; mpich (2 ranks)" of one measured on some, nothing of another. */
static int write_measured(FILE *f, int first, int who, const int *ranks, int nranks) {
    int on[MOST], n = 0, i, k;
    for (k = 0; k < nranks; k++) {
        for (i = 0; i < ncells && (cells[i].ranks != ranks[k] || cells[i].median[who] <= 0);) i++;
        if (i < ncells) on[n++] = ranks[k];
    }
    if (!n) return first;
    fprintf(f, "%s%s", first ? "" : "; ", contenders[who].name);
    for (k = 0; k < n && n < nranks; k++) fprintf(f, "%s%d%s", k ? ", " : " (", on[k], k + 1 < n ? "" : " ranks)");
    return 0;
}

/* Small multiples: per operation the ratio over the size, a line per number of ranks. Both axes are logarithmic. */
static void write_svg(const char *dir) {
    static const char *const colors[] = {"#1b6ca8", "#d1495b", "#2e8b57", "#8d6a9f"};
    enum { W = 300, H = 200, LEFT = 46, TOP = 30, COLUMNS = 3 };
    char path[512];
    const char *ops[MOST], *op = "";
    int ranks[MOST], nops = 0, nranks = 0, first, i, k, p, rows;
    FILE *f;
    snprintf(path, sizeof path, "%s/peers.svg", dir);
    if (!(f = fopen(path, "w"))) return;
    for (i = 0; i < ncells; i++) {
        for (k = 0; k < nranks && ranks[k] != cells[i].ranks;) k++;
        if (k == nranks && nranks < MOST) ranks[nranks++] = cells[i].ranks;
        if (strcmp(op, cells[i].op) && nops < MOST && strcmp(cells[i].op, "barrier")) ops[nops++] = cells[i].op;
        op = cells[i].op;
    }
    rows = (nops + COLUMNS - 1) / COLUMNS;
    fprintf(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
        COLUMNS * (W + LEFT) + 20, rows * (H + TOP + 34) + 62);
    fprintf(
        f,
        "<text x=\"16\" y=\"22\" font-size=\"15\">Time of the best peer over TCP, divided by mesh.h's: above 1 mesh.h is faster</text>\n<text x=\"16\" y=\"40\">Peers: ");
    for (first = 1, k = 1; k < CONTENDERS; k++) first = write_measured(f, first, k, ranks, nranks);
    fprintf(f, ". An arrowhead marks a ratio beyond the scale.</text>\n");
    for (k = 0; k < nranks; k++)
        fprintf(f, "<circle cx=\"%d\" cy=\"18\" r=\"4\" fill=\"%s\"/><text x=\"%d\" y=\"22\">%d ranks</text>\n",
                720 + 80 * k, colors[k % 4], 728 + 80 * k, ranks[k]);
    for (p = 0; p < nops; p++) {
        double x0 = LEFT + (p % COLUMNS) * (W + LEFT), y0 = 58 + TOP + (p / COLUMNS) * (H + TOP + 34);
        double tick;
        fprintf(f, "<text x=\"%.0f\" y=\"%.0f\" font-size=\"13\" font-weight=\"bold\">%s</text>\n", x0, y0 - 8, ops[p]);
        for (tick = 0.5; tick <= 4.0; tick *= 2) { /* y: log2 of 0.5 .. 4 */
            double y = y0 + H - H * (1 + (tick >= 4 ? 2 : tick >= 2 ? 1 : tick >= 1 ? 0 : -1)) / 3.0;
            fprintf(
                f,
                "<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/><text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                x0, x0 + W, y, y, tick == 1 ? "#333" : "#ddd", x0 - 5, y + 4, tick);
        }
        for (k = 0; k < nranks; k++) {
            fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colors[k % 4]);
            for (i = 0; i < ncells; i++) {
                double r = ratio(&cells[i]), lx = 0, ly = 0, v;
                unsigned long b;
                if (strcmp(cells[i].op, ops[p]) || cells[i].ranks != ranks[k] || r <= 0) continue;
                for (b = cells[i].bytes; b > 1; b /= 2) lx++;
                for (v = r < 0.5 ? 0.5 : r > 4 ? 4 : r; v >= 2; v /= 2) ly++;
                for (; v < 1; v *= 2) ly--;
                ly += v - 1; /* log2 is nearly straight there */
                fprintf(f, "%.1f,%.1f ", x0 + W * (lx - 3) / 23.0, y0 + H - H * (1 + ly) / 3);
            }
            fprintf(f, "\"/>\n");
            for (i = 0; i < ncells; i++) { /* what lies beyond the scale, with its value */
                double r = ratio(&cells[i]), lx = 0, x, y;
                unsigned long b;
                if (strcmp(cells[i].op, ops[p]) || cells[i].ranks != ranks[k] || r <= 0 || (r >= 0.5 && r <= 4)) continue;
                for (b = cells[i].bytes; b > 1; b /= 2) lx++;
                x = x0 + W * (lx - 3) / 23.0, y = r > 4 ? y0 : y0 + H;
                fprintf(
                    f,
                    "<path d=\"M%.1f %.1fl-4 %dh8z\" fill=\"%s\"/><text x=\"%.1f\" y=\"%.1f\" font-size=\"9\" fill=\"%s\">%.1f</text>\n",
                    x, r > 4 ? y - 4 : y + 4, r > 4 ? 7 : -7, colors[k % 4], x + 6, y + (r > 4 ? 12 + 10 * k : -4 - 10 * k),
                    colors[k % 4], r);
            }
        }
        for (k = 3; k <= 26; k += 23)
            fprintf(f, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"%s\">%s</text>\n", x0 + W * (k - 3) / 23.0,
                    y0 + H + 16, k == 3 ? "start" : "end", size_text(1ul << k));
        fprintf(f, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">1 MB</text>\n", x0 + W * 17 / 23.0, y0 + H + 16);
    }
    fprintf(f, "</svg>\n");
    fclose(f);
}

/* The items of "a,b,c", in memory of their own. */
static int split(const char *list, char **item) {
    int n = 0;
    char *copy = strdup(list), *p;
    for (p = strtok(copy, ","); p && n < MOST; p = strtok(NULL, ",")) item[n++] = p;
    return n;
}

int main(int argc, char **argv) {
    const char *ops = "all_reduce,all_gather,all_to_all,broadcast,reduce_scatter,barrier", *ranks = "2,4,8",
               *sizes = "8,1024,65536,1048576,16777216,67108864", *dir = "bench";
    char *op[MOST], *rank[MOST], *size[MOST];
    int i, k, r, again = 0, nops, nranks, nsizes, a, b, c;
    for (i = 1; i < argc; i++) {
        if (i + 1 < argc && !strcmp(argv[i], "--rounds"))
            rounds = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--ms"))
            ms = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--ops"))
            ops = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--ranks"))
            ranks = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--sizes"))
            sizes = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--out"))
            dir = argv[++i];
        else if (!strcmp(argv[i], "--again"))
            again = 1;
        else
            return fprintf(
                       stderr,
                       "usage: bench_peers [--rounds N] [--ms M] [--ops all_reduce,...] [--ranks 2,4,8] [--sizes 8,1024,...] [--out DIR] [--again]\n"),
                   2;
    }
    if (rounds < 1 || rounds > MOST_ROUNDS || ms < 1)
        return fprintf(stderr, "bench_peers: 1 to %d rounds of at least 1 ms\n", (int)MOST_ROUNDS), 2;
    for (k = 0; k < CONTENDERS && !again; k++) {
        char command[512];
        snprintf(command, sizeof command, "(%s) >build/contender_%s.log 2>&1", contenders[k].build, contenders[k].name);
        contenders[k].there = system(command) == 0;
        if (!contenders[k].there && !contenders[k].package)
            return fprintf(stderr, "bench_peers: our own contender does not build; see build/contender_mesh.log\n"), 1;
        if (!contenders[k].there)
            printf("%s is missing (apt install %s): the table goes without it\n", contenders[k].name,
                   contenders[k].package);
    }
    nops = split(ops, op), nranks = split(ranks, rank), nsizes = split(sizes, size);
    cells = (cell *)calloc((size_t)(nops * nranks * nsizes), sizeof *cells);
    if (!cells) return 1;
    for (a = 0; a < nops; a++)
        for (b = 0; b < nranks; b++)
            for (c = 0; c < nsizes; c++) {
                cell *at = &cells[ncells];
                if (c && !strcmp(op[a], "barrier")) continue;
                at->op = op[a];
                at->ranks = atoi(rank[b]);
                at->bytes = strtoul(size[c], NULL, 10);
                ncells++;
            }
    if (again) {
        if (!read_csv(dir)) return fprintf(stderr, "bench_peers: no measurements in %s/peers.csv\n", dir), 1;
        write_results(dir);
        write_svg(dir);
        return 0;
    }
    printf("%-15s %5s %8s", "op", "ranks", "bytes");
    for (k = 0; k < CONTENDERS; k++) printf(" %12s", contenders[k].name);
    printf("  ratio\n");
    for (i = 0; i < ncells; i++) {
        cell *at = &cells[i];
        for (r = 0; r < rounds; r++)
            for (k = 0; k < CONTENDERS; k++) { /* who is first changes with the round */
                int who = (k + r) % (int)CONTENDERS;
                at->us[who][r] = contenders[who].there && !is_hopeless(at, who, r) ? measure(&contenders[who], at) : -1;
            }
        medians(at);
        printf("%-15s %5d %8s", at->op, at->ranks, size_text(at->bytes));
        for (k = 0; k < CONTENDERS; k++) printf(at->median[k] > 0 ? " %12.1f" : "            -", at->median[k]);
        printf("  %5.2f%s\n", ratio(at), best_peer(at) && ratio(at) < required(at) ? " short" : "");
        fflush(stdout);
        write_csv(dir);
    }
    write_results(dir);
    write_svg(dir);
    return 0;
}
