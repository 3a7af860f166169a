/* Our collectives beside those of Open MPI, MPICH and Gloo: the same program (contender.h) for each, one cell (operation, ranks, bytes)
   after the other, all contenders in every cell, in an order that turns from round to round. Ours over each lane (shared memory with
   ordinary buffers and with mesh_alloc's, Unix sockets, TCP); the MPIs as they come on one host, and over TCP. Also all_reduce beside
   a process that computes, a matrix from layout to layout (layouts.h), and what memory allows (contender_floor.c).
   Uses what is installed and names what is missing. Writes bench/peers.csv, bench/RESULTS.md and bench/peers.svg. `make bench-peers`
   builds and runs it from the repository's root.
   A run of everything takes hours; it may be made in pieces. What a piece measures takes the place, in peers.csv, of what was there of
   the same cells and of the same kind (one host, TCP); the rest stays. --again writes the pages anew from peers.csv.
   usage: bench_peers [--rounds N] [--ms M] [--ops all_reduce,...] [--ranks 2,4,8] [--sizes 8,1024,...] [--lanes shared,alloc,unix,tcp]
                      [--out DIR] [--again] */
#include "peers.h"
#include "peers_chart.h"
#include "peers_report.h"
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define USAGE                                                                                                \
    "usage: bench_peers [--rounds N] [--ms M] [--ops all_reduce,...] [--ranks 2,4,8] [--sizes 8,1024,...]\n" \
    "                   [--lanes shared,alloc,unix,tcp] [--out DIR] [--again]\n"

static int rounds = 10, ms = 250;
static int chosen[CONTENDERS]; /* this piece measures it */
static int failed;             /* runs of ours with wrong values, or none */

/* A process that computes, until it is told to end. */
static pid_t busy_neighbour(void) {
    pid_t child = fork();
    volatile double x = 1;
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) x = x * 1.0000001 + 1e-9;
}

/* One run of one contender; us 0: it gave none. What it says on stderr lies in build/NAME.err. */
static sample measure(int who, const cell *at) {
    const contender_desc *c = &contenders[who];
    const char *program = is_layout(at) ? c->layouts : c->collective;
    char launch[512], what[128], command[1024], line[512];
    sample s = {0, 0, 0}, read;
    double least, bad;
    pid_t neighbour;
    int samples;
    FILE *p;
    if (!program) return s;
    snprintf(launch, sizeof launch, c->launch, at->ranks);
    snprintf(what, sizeof what, program, at->ranks);
    snprintf(command, sizeof command, "%s build/%s %s %lu %d%s 2>build/%s.err", launch, what,
             is_busy(at) ? "all_reduce" : at->op, at->bytes, is_busy(at) ? 4 * ms : ms, is_busy(at) ? " each" : "",
             c->name); /* a neighbour takes slices of milliseconds: more of them */
    neighbour = is_busy(at) ? busy_neighbour() : 0;
    if ((p = popen(command, "r")) != NULL) {
        while (fgets(line, sizeof line, p)) {
            if (sscanf(line, "%d %lf %lf %lf %lf %lf", &samples, &read.us, &least, &bad, &read.mean, &read.cpu) != 6)
                continue;
            if (bad == 0) s = read;
            if (bad != 0) fprintf(stderr, "bench_peers: %s: %.0f wrong values in %s\n", c->name, bad, command);
        }
        pclose(p);
    }
    if (neighbour > 0) kill(neighbour, SIGKILL), waitpid(neighbour, NULL, 0);
    return s;
}

/* The fastest so far of one contender, or of a kind's peers with who < 0; 0: nothing came. */
static double least_so_far(const cell *c, int who, peer_kind k, int round) {
    double least = 0;
    int r;
    for (r = 0; r < round; r++) {
        double us = who < 0 ? best_peer(c, k, r) : c->at[who][r].us;
        if (us > 0 && (least <= 0 || us < least)) least = us;
    }
    return least;
}

/* MPICH waits by spinning: with more ranks than cores every wait costs it a slice of the scheduler's (8 ms for 8 bytes on 4 ranks and 2
   cores), so it is asked only where ranks do not outnumber cores. A peer that twice takes ten times the best one's time is not asked
   again, nor who has twice nothing to say. Memory is asked about layouts, and from 16 MB on. */
static int is_asked(const cell *c, int who, int round) {
    peer_kind k = contenders[who].kind;
    double least = least_so_far(c, who, k, round);
    if (!chosen[who]) return 0;
    if (who == FLOOR && !is_layout(c) && (is_busy(c) || c->bytes < 16ul << 20)) return 0;
    if (contenders[who].software == MPICH && c->ranks > sysconf(_SC_NPROCESSORS_ONLN)) return 0;
    if (round < 2) return 1;
    return least > 0 && (who < LANES || who == FLOOR || least <= 10 * least_so_far(c, -1, k, round));
}

/* What was measured before of the kinds that this piece measures belongs to another run. */
static void forget(cell *c, const char *run) {
    int k, other;
    for (k = 0; k < CONTENDERS; k++) {
        for (other = 0; other < CONTENDERS && !(chosen[other] && contenders[other].kind == contenders[k].kind);)
            other++;
        if (other == CONTENDERS) continue;
        memset(c->at[k], 0, sizeof c->at[k]);
        snprintf(c->run[k], sizeof c->run[k], "%s", run);
    }
}

static void measure_cell(cell *c, const char *run) {
    int r, k;
    forget(c, run);
    for (r = 0; r < rounds; r++)
        for (k = 0; k < CONTENDERS; k++) {
            int who = (k + r) % (int)CONTENDERS;
            if (!is_asked(c, who, r)) continue;
            c->at[who][r] = measure(who, c);
            if (who < LANES && c->at[who][r].us <= 0) {
                fprintf(stderr, "bench_peers: nothing came of %s in %s, %d ranks, %lu bytes; see build/%s.err\n",
                        contenders[who].name, c->op, c->ranks, c->bytes, contenders[who].name);
                failed++;
            }
        }
    printf("%-19s %5d %8s", c->op, c->ranks, size_text(c->bytes));
    for (k = 0; k < CONTENDERS; k++) {
        double us = typical(c, k).us;
        if (chosen[k]) printf(us > 0 ? " %11.1f" : "           -", us);
    }
    for (k = 0; k < LANES; k++)
        if (chosen[k] && ratio(c, k) > 0) printf("  %s %.2f", contenders[k].name, ratio(c, k));
    printf("\n");
    fflush(stdout);
}

/* Builds what is needed. Returns 0 where our own does not build. */
static int build_all(void) {
    char command[1024];
    int k;
    for (k = 0; k < SOFTWARE; k++) {
        software *s = &softwares[k];
        snprintf(command, sizeof command, "(%s) >'build/%s.log' 2>&1", s->build, s->name);
        s->there = system(command) == 0;
        if (s->there) continue;
        if (!s->package)
            return fprintf(stderr, "bench_peers: our own contender does not build; see build/%s.log\n", s->name), 0;
        printf("%s is missing (apt install %s): the tables go without it\n", s->name, s->package);
    }
    return 1;
}

/* A lane that this machine does not have is left out, with the reason its program gives. */
static void try_lanes(void) {
    static const cell least = {"barrier", 2, 8, {{{0, 0, 0}}}, {""}};
    char command[128], why[512];
    int k;
    for (k = 0; k < LANES; k++) {
        if (!chosen[k] || measure(k, &least).us > 0) continue;
        snprintf(command, sizeof command, "grep -v '^mesh run:' build/%s.err", contenders[k].name);
        first_line(command, why, sizeof why);
        printf("lane %s is left out: %s\n", contenders[k].name, why);
        chosen[k] = 0;
    }
}

/* The lanes of the list, and who is compared with them. Returns 0 where there is no such lane. */
static int choose(char **lane, int n) {
    int i, k;
    for (i = 0; i < n; i++) {
        for (k = 0; k < LANES && strcmp(lane[i], contenders[k].name);) k++;
        if (k == LANES)
            return fprintf(stderr, "bench_peers: no lane %s; there are shared, alloc, unix, tcp\n", lane[i]), 0;
        chosen[k] = 1;
    }
    return 1;
}

static void choose_peers(void) {
    int k, wanted[LIMIT + 1] = {0, 0, 0};
    for (k = 0; k < LANES; k++) wanted[contenders[k].kind] |= chosen[k];
    wanted[LIMIT] = wanted[HOST];
    for (k = LANES; k < CONTENDERS; k++)
        chosen[k] = wanted[contenders[k].kind] && softwares[contenders[k].software].there;
}

/* Is there such a cell: a barrier has no size, a busy neighbour stands beside few ranks, a layout has its own ranks. */
static int is_cell(const char *op, int ranks, unsigned long bytes, int first_size) {
    if (!strcmp(op, "barrier")) return first_size;
    if (!strcmp(op, PEERS_BUSY)) return ranks <= 4 && (bytes == 8 || bytes == 64 << 10 || bytes == 1 << 20);
    if (layout_find(op, 0)) return first_size && layout_find(op, ranks);
    return 1;
}

static unsigned long cell_bytes(const char *op, unsigned long bytes) {
    return !strcmp(op, "barrier") ? 8 : layout_find(op, 0) ? LAYOUT_BYTES : bytes;
}

/* The items of "a,b,c", in memory of their own. */
static int split(const char *list, char **item) {
    int n = 0;
    char *copy = strdup(list), *p;
    for (p = strtok(copy, ","); p && n < MOST; p = strtok(NULL, ",")) item[n++] = p;
    return n;
}

typedef struct wishes {
    const char *ops, *ranks, *sizes, *lanes, *dir;
    int again;
} wishes;

static int read_wishes(wishes *w, int argc, char **argv) {
    const struct {
        const char *name, **text;
        int *number;
    } options[] = {{"--rounds", NULL, &rounds},  {"--ms", NULL, &ms},          {"--ops", &w->ops, NULL},
                   {"--ranks", &w->ranks, NULL}, {"--sizes", &w->sizes, NULL}, {"--lanes", &w->lanes, NULL},
                   {"--out", &w->dir, NULL}};
    const size_t n = sizeof options / sizeof options[0];
    size_t k;
    int i;
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--again")) {
            w->again = 1;
            continue;
        }
        for (k = 0; k < n && strcmp(argv[i], options[k].name);) k++;
        if (k == n || i + 1 == argc) return fprintf(stderr, USAGE), 0;
        if (options[k].text)
            *options[k].text = argv[++i];
        else
            *options[k].number = atoi(argv[++i]);
    }
    if (rounds < 1 || rounds > MOST_ROUNDS || ms < 1)
        return fprintf(stderr, "bench_peers: 1 to %d rounds of at least 1 ms\n", (int)MOST_ROUNDS), 0;
    return 1;
}

/* All cells of a piece, each written down when it is there. */
static int measure_all(const wishes *w, const char *setting) {
    char *op[MOST], *rank[MOST], *size[MOST], run[48], version[32];
    int nops = split(w->ops, op), nranks = split(w->ranks, rank), nsizes = split(w->sizes, size), a, b, c, k;
    time_t now = time(NULL);
    for (a = 0; a < nops; a++)
        if (op_index(op[a]) < 0) return fprintf(stderr, "bench_peers: no operation %s\n", op[a]), 2;
    first_line(softwares[MESH].version, version, sizeof version);
    strftime(run, sizeof run, "%Y-%m-%d ", gmtime(&now));
    strncat(run, version, sizeof run - strlen(run) - 1);
    printf("%-19s %5s %8s", "op", "ranks", "bytes");
    for (k = 0; k < CONTENDERS; k++)
        if (chosen[k]) printf(" %11s", contenders[k].name);
    printf("  ratios\n");
    for (a = 0; a < nops; a++)
        for (b = 0; b < nranks; b++)
            for (c = 0; c < nsizes; c++) {
                unsigned long bytes = strtoul(size[c], NULL, 10);
                cell *at = is_cell(op[a], atoi(rank[b]), bytes, c == 0)
                               ? cell_of(op[a], atoi(rank[b]), cell_bytes(op[a], bytes))
                               : NULL;
                if (!at) continue;
                measure_cell(at, run);
                if (write_csv(w->dir, setting)) return 1;
            }
    return 0;
}

int main(int argc, char **argv) {
    wishes w = {
        "all_reduce,all_reduce_in_place,all_gather,all_to_all,broadcast,reduce_scatter,sendrecv,barrier," PEERS_BUSY
        ",rows_to_columns,blocks_to_columns,blocks_to_rows,S0S1_to_S1S0,narrow_to_columns",
        "2,4,8",
        "8,1024,65536,1048576,16777216,67108864",
        "shared,alloc,unix,tcp",
        "bench",
        0};
    char setting[512], before[512], path[512], kept[512], *lane[MOST];
    double begun = contender_now();
    int n, status = 0;
    if (!read_wishes(&w, argc, argv) || !choose(lane, split(w.lanes, lane))) return 2;
    if (mkdir(w.dir, 0777) && errno != EEXIST) return perror(w.dir), 1;
    n = read_csv(w.dir, before, sizeof before);
    if (w.again && !n) return fprintf(stderr, "bench_peers: no measurements in %s/peers.csv\n", w.dir), 1;
    if (!w.again) {
        if (!build_all()) return 1;
        try_lanes();
        choose_peers();
        setting_text(setting, sizeof setting);
        if (n && strcmp(setting, before)) {
            snprintf(path, sizeof path, "%s/peers.csv", w.dir);
            snprintf(kept, sizeof kept, "%s/peers_before.csv", w.dir);
            printf("%s is of another setting (%s): it is now %s\n", path, before, kept);
            rename(path, kept);
            memset(cells, 0, sizeof cells), ncells = 0;
        }
        status = measure_all(&w, setting);
        if (status) return status;
        printf("\n%.0f minutes\n", (contender_now() - begun) / 6e7);
    }
    write_results(w.dir, w.again ? before : setting);
    write_chart(w.dir);
    return failed != 0;
}
