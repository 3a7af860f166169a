/* bench/RESULTS.md of what bench_peers measured, with what is wanted of each lane and why a cell falls short of it (causes.txt). */
#ifndef PEERS_REPORT_H
#define PEERS_REPORT_H
#include "peers.h"

/* ---- what is wanted; 0: nothing ---- */

static double wanted_ratio(const cell *c, int lane) {
    if (lane == UNIX && !is_busy(c)) return 0;
    if (is_busy(c)) return 1;
    if (is_layout(c)) return lane == ALLOC ? 1.5 : 1;
    if (lane != OVER_TCP && !strcmp(c->op, "broadcast") && c->bytes == 8) return 0; /* its root waits for nobody */
    if (!is_reduction(c) || lane == ALLOC) return 1;
    if (lane == OVER_TCP) return c->bytes >= 16ul << 20 ? 1.3 : 1;
    return c->bytes >= 64ul << 20 ? 1.7 : c->bytes >= 1ul << 20 && c->ranks <= 4 ? 1.2 : 1;
}

static double wanted_of_floor(const cell *c, int lane) {
    return lane == ALLOC && !is_layout(c) && of_floor(c, lane) > 0 ? 0.85 : 0;
}

static double wanted_us(const cell *c, int lane) {
    int small = !strcmp(c->op, "barrier") || (!strcmp(c->op, "all_reduce") && c->bytes == 8);
    return small && c->ranks == 2 && (lane == SHARED || lane == ALLOC) ? 0.45 : 0;
}

/* Below what is wanted. What is not measured is not short. */
static int is_short_of_peer(const cell *c, int lane) {
    double r = ratio(c, lane);
    return r > 0 && r < wanted_ratio(c, lane);
}
static int is_short_of_floor(const cell *c, int lane) {
    double wanted = wanted_of_floor(c, lane);
    return wanted > 0 && of_floor(c, lane) < wanted;
}
static int is_short_of_time(const cell *c, int lane) {
    double wanted = wanted_us(c, lane);
    return wanted > 0 && typical(c, lane).us > wanted;
}

/* ---- tables ---- */

static int is_measured(int who) {
    int i;
    for (i = 0; i < ncells; i++)
        if (typical(&cells[i], who).us > 0) return 1;
    return 0;
}

static void put_us(FILE *f, double us) { fprintf(f, "%.*f", us < 10 ? 2 : us < 100 ? 1 : 0, us); }

static void put_ratio(FILE *f, double r, int is_short) {
    fprintf(f, is_short ? "**%.*f**" : "%.*f", r < 0.1 ? 3 : 2, r);
}

/* " | 24.5 (1.36)": the time, and what it is beside another's; bold where that is too little. */
static void put_beside(FILE *f, double us, double beside, int is_short) {
    if (us <= 0) {
        fprintf(f, " | -");
        return;
    }
    fprintf(f, " | ");
    put_us(f, us);
    if (beside <= 0) return;
    fprintf(f, " (");
    put_ratio(f, beside, is_short);
    fprintf(f, ")");
}

/* The columns of a table, those of one host first, then what memory allows, then TCP. Returns how many. */
static int columns_of(int layouts_too, int *who) {
    static const peer_kind order[] = {HOST, LIMIT, TCP};
    int i, k, n = 0;
    for (i = 0; i < 3; i++)
        for (k = 0; k < CONTENDERS; k++)
            if (contenders[k].kind == order[i] && is_measured(k) && (!layouts_too || contenders[k].layouts))
                who[n++] = k;
    return n;
}

/* Everything of a cell but for what stands on its left. */
static void put_cell(FILE *f, const cell *c) {
    int who[CONTENDERS], n = columns_of(is_layout(c), who), i;
    for (i = 0; i < n; i++)
        if (who[i] == FLOOR)
            put_beside(f, typical(c, FLOOR).us, of_floor(c, ALLOC), is_short_of_floor(c, ALLOC));
        else
            put_beside(f, typical(c, who[i]).us, who[i] < LANES ? ratio(c, who[i]) : 0,
                       who[i] < LANES && is_short_of_peer(c, who[i]));
    fprintf(f, " |\n");
}

static void put_head(FILE *f, const char *left, int layouts_too) {
    int who[CONTENDERS], n = columns_of(layouts_too, who), i;
    fprintf(f, "%s", left);
    for (i = 0; i < n; i++) fprintf(f, " | %s", who[i] == FLOOR && layouts_too ? "memcpy" : contenders[who[i]].title);
    fprintf(f, " |\n");
    for (i = 0; i < n + 2; i++) fprintf(f, "|---");
    fprintf(f, "|\n");
}

static void write_collectives(FILE *f) {
    const char *op = "";
    int i;
    for (i = 0; i < ncells; i++) {
        const cell *c = &cells[i];
        if (is_busy(c) || is_layout(c)) continue;
        if (strcmp(op, c->op)) {
            fprintf(f, "\n## %s\n\n", c->op);
            put_head(f, "| ranks | bytes", 0);
        }
        op = c->op;
        fprintf(f, "| %d | %s", c->ranks, strcmp(c->op, "barrier") ? size_text(c->bytes) : "-");
        put_cell(f, c);
    }
}

static void write_layouts(FILE *f) {
    int i, any = 0;
    for (i = 0; i < ncells; i++) {
        const cell *c = &cells[i];
        if (!is_layout(c)) continue;
        if (!any++) {
            fprintf(
                f,
                "\n## A matrix from layout to layout\n\n4096 x 4096 f32 (narrow: 65536 x 256), 64 MiB in all: mesh_redistribute, planned once (mesh_keep), beside "
                "MPI_Alltoallw with subarray types, made once.\nBlocks are 2 x 2 on 4 ranks and 4 x 2 on 8. memcpy: as many processes copy "
                "the bytes of the matrix, each its part, in memory of its own.\n\n");
            put_head(f, "| layouts | ranks", 1);
        }
        fprintf(f, "| %s | %d", c->op, c->ranks);
        put_cell(f, c);
    }
}

static void write_busy(FILE *f) {
    int i, k, any = 0;
    for (i = 0; i < ncells; i++) {
        const cell *c = &cells[i];
        if (!is_busy(c)) continue;
        if (!any++)
            fprintf(
                f,
                "\n## A busy neighbour\n\nall_reduce, call after call, while another process computes, pinned nowhere. CPU: of all ranks "
                "together, per call (getrusage).\n\n| ranks | bytes | | median us | mean us | CPU us | ratio |\n|---|---|---|---|---|---|---|\n");
        for (k = 0; k < CONTENDERS; k++) {
            sample s = typical(c, k);
            if (s.us <= 0) continue;
            fprintf(f, "| %d | %s | %s%s | ", c->ranks, size_text(c->bytes), k < LANES ? "ours: " : "",
                    contenders[k].title);
            put_us(f, s.us), fprintf(f, " | "), put_us(f, s.mean), fprintf(f, " | "), put_us(f, s.cpu);
            fprintf(f, " | ");
            if (k < LANES && ratio(c, k) > 0) put_ratio(f, ratio(c, k), is_short_of_peer(c, k));
            fprintf(f, " |\n");
        }
    }
}

/* ---- what falls short ---- */

/* Lines "lane op ranks bytes text" of bench/causes.txt, "*" for any; the first that fits. */
static void write_cause(FILE *f, const cell *c, int lane) {
    FILE *in = fopen("bench/causes.txt", "r");
    char line[512], key[4][32];
    int at;
    while (in && fgets(line, sizeof line, in)) {
        if (line[0] == '#' || sscanf(line, "%31s %31s %31s %31s %n", key[0], key[1], key[2], key[3], &at) != 4)
            continue;
        if ((strcmp(key[0], "*") && strcmp(key[0], contenders[lane].name)) ||
            (strcmp(key[1], "*") && strcmp(key[1], c->op)) || (strcmp(key[2], "*") && atoi(key[2]) != c->ranks) ||
            (strcmp(key[3], "*") && strtoul(key[3], NULL, 10) != c->bytes))
            continue;
        line[strcspn(line, "\n")] = 0;
        fprintf(f, ": %s", line + at);
        break;
    }
    if (in) fclose(in);
}

/* Counts what is asked of a lane and what is met; lists the rest. */
static void write_lane(FILE *f, int lane) {
    int i, asked = 0, met = 0;
    for (i = 0; i < ncells; i++) {
        const cell *c = &cells[i];
        if (typical(c, lane).us <= 0) continue;
        if (!(wanted_ratio(c, lane) > 0 && ratio(c, lane) > 0) && wanted_us(c, lane) <= 0 &&
            wanted_of_floor(c, lane) <= 0)
            continue;
        asked++;
        met += !is_short_of_peer(c, lane) && !is_short_of_floor(c, lane) && !is_short_of_time(c, lane);
    }
    if (!asked) return;
    printf("%s: met in %d of %d cells\n", contenders[lane].title, met, asked);
    fprintf(f, "\n%s: met in %d of %d cells%s\n", contenders[lane].title, met, asked,
            met < asked ? ". The others:\n" : ".");
    for (i = 0; i < ncells; i++) {
        const cell *c = &cells[i];
        int peer = is_short_of_peer(c, lane), limit = is_short_of_floor(c, lane), slow = is_short_of_time(c, lane);
        if (!peer && !limit && !slow) continue;
        fprintf(f, "- %s, %d ranks%s%s", c->op, c->ranks, strcmp(c->op, "barrier") ? ", " : "",
                strcmp(c->op, "barrier") ? size_text(c->bytes) : "");
        if (peer) fprintf(f, ", %.2f (wanted: %.1f)", ratio(c, lane), wanted_ratio(c, lane));
        if (limit) fprintf(f, ", %.2f of the floor (wanted: %.2f)", of_floor(c, lane), wanted_of_floor(c, lane));
        if (slow) fprintf(f, ", %.2f us (wanted: %.2f)", typical(c, lane).us, wanted_us(c, lane));
        write_cause(f, c, lane);
        fprintf(f, "\n");
    }
}

static void write_shortfalls(FILE *f) {
    int lane;
    fprintf(
        f,
        "\n## Where we fall short\n\n"
        "Wanted, shared: 1.0 (a broadcast of 8 B on one host, whose root waits for nobody, is reported only); all_reduce 1.2 from 1 MB on, on 2 and\n"
        "4 ranks, 1.7 at 64 MB; all_reduce of 8 B and barrier within 0.45 us on 2 ranks. mesh_alloc: likewise, but 1.0 for all_reduce, 1.5 for layouts,\n"
        "and 0.85 of the floor. tcp: 1.0; all_reduce 1.3 from 16 MB on. Beside a busy neighbour 1.0 on every lane; else unix is reported only.\n");
    for (lane = 0; lane < LANES; lane++) write_lane(f, lane);
}

/* ---- the page ---- */

/* "10", or "1 to 10": how often ours ran in a cell. */
static void write_rounds(FILE *f) {
    int i, k, r, least = MOST_ROUNDS, most = 0;
    for (i = 0; i < ncells; i++)
        for (k = 0; k < LANES; k++) {
            int n = 0;
            for (r = 0; r < MOST_ROUNDS; r++) n += cells[i].at[k][r].us > 0;
            if (n && n < least) least = n;
            if (n > most) most = n;
        }
    if (least < most) fprintf(f, "%d to ", least);
    fprintf(f, "%d run%s", most, most == 1 ? "" : "s");
}

/* "2026-11-23 3da0aff (93 cells); ...": the pieces that the page is made of, by what ours was. */
static void write_runs(FILE *f) {
    char seen[MOST][48];
    int i, j, k, n = 0, with;
    for (i = 0; i < ncells; i++)
        for (k = 0; k < LANES; k++) {
            const char *run = cells[i].run[k];
            if (typical(&cells[i], k).us <= 0) continue;
            for (j = 0; j < n && strcmp(seen[j], run);) j++;
            if (j == n && n < MOST) snprintf(seen[n++], sizeof seen[0], "%s", run);
        }
    for (j = 0; j < n; j++) {
        for (with = 0, i = 0; i < ncells; i++) {
            for (k = 0; k < LANES && (typical(&cells[i], k).us <= 0 || strcmp(cells[i].run[k], seen[j]));) k++;
            with += k < LANES;
        }
        fprintf(f, "%s%s (%d cells)", j ? "; " : "", seen[j], with);
    }
}

static void write_intro(FILE *f, const char *setting) {
    int k, none = 0;
    fprintf(
        f,
        "# Collectives beside the peers\n\nWritten by `make bench-peers`; every contender in every cell, in an order that turns from run to run, ");
    write_rounds(f);
    fprintf(
        f,
        " (two for a peer that takes\nten times the best), medians. All runs are in [peers.csv](peers.csv). Measured, and the version of mesh.h: ");
    write_runs(f);
    fprintf(
        f,
        ".\n\nTimes are per call, of the slowest rank, in us; bytes as nccl-tests' size (contender.h). In brackets: the time of the best peer of the same\n"
        "kind (one host, TCP) over ours, each run by itself, the median: above 1 we are faster. Ours are shared (MESH_SOCKET_LANES=auto, ordinary\n"
        "buffers), mesh_alloc (the same, buffers of mesh_alloc), unix and tcp. The MPIs run as they come on one host, and over TCP.\n\n"
        "The floor, from 16 MB on: what as many processes take to write (reduce_scatter: to read), each in its own memory, the bytes that the operation\n"
        "must write at least, by plain or by non-temporal stores; in brackets the floor over mesh_alloc's time.\n\n"
        "Machine and peers: %s.\nMPICH waits by spinning: where ranks outnumber cores every wait costs it a slice of the scheduler's (8 ms for 8 bytes on 4 ranks and 2 cores),\n"
        "so it is asked only where they do not.\n",
        setting);
    for (k = 0; k < CONTENDERS; k++)
        if (!is_measured(k)) fprintf(f, "%s%s", none++ ? "; " : "Not measured: ", contenders[k].title);
    fprintf(f, "%s\n![ratios](peers.svg)\n", none ? ".\n" : "");
}

static void write_results(const char *dir, const char *setting) {
    char path[512];
    FILE *f;
    snprintf(path, sizeof path, "%s/RESULTS.md", dir);
    if (!(f = fopen(path, "w"))) {
        perror(path);
        return;
    }
    qsort(cells, (size_t)ncells, sizeof *cells, cell_order);
    write_intro(f, setting);
    write_collectives(f);
    write_busy(f);
    write_layouts(f);
    write_shortfalls(f);
    fclose(f);
    printf("see %s\n", path);
}
#endif
