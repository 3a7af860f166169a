/* Who is compared with whom in bench_peers, the cells (operation, ranks, bytes) and what was measured in them, in peers.csv too. */
#ifndef PEERS_H
#define PEERS_H
#include "layouts.h"
#include <sys/utsname.h>
#include <unistd.h>

enum { MOST_ROUNDS = 20, MOST = 16, MOST_CELLS = 512 };

/* What is compared: ranks of one host by whatever means, ranks over TCP. What memory allows is no peer. */
typedef enum peer_kind { HOST, TCP, LIMIT } peer_kind;

enum { SHARED, ALLOC, UNIX, OVER_TCP, LANES }; /* ours, the first contenders */

/* What is built, once for all its contenders. package NULL: it is our own. */
typedef struct software {
    const char *name, *package, *build, *version;
    int there;
} software;

enum { MESH, OPENMPI, MPICH, GLOO, MEMORY, SOFTWARE };

#define PEERS_MPI_BUILD(mpi)                                                                         \
    "mpicc." mpi " -O3 -march=native bench/contender_mpi.c -o build/contender_" mpi " && mpicc." mpi \
    " -O3 -march=native bench/contender_alltoallw.c -o build/alltoallw_" mpi

static software softwares[SOFTWARE] = {
    {"mesh.h", NULL, "${CC:-cc} -std=c99 -O3 -march=native bench/contender_mesh.c -o build/contender_mesh",
     "git describe --always --dirty 2>/dev/null || echo unknown", 0},
    {"Open MPI", "openmpi-bin libopenmpi-dev", PEERS_MPI_BUILD("openmpi"),
     "ompi_info --version | sed -n '1s/^Open MPI v//p'", 0},
    {"MPICH", "mpich libmpich-dev", PEERS_MPI_BUILD("mpich"), "mpichversion | sed -n '1s/.*[ \\t]//p'", 0},
    {"Gloo", "libgloo-dev", "c++ -O3 -march=native bench/contender_gloo.cc -o build/contender_gloo -lgloo -lpthread",
     "dpkg-query -W -f '${Version}' libgloo-dev", 0},
    {"floor", NULL, "${CC:-cc} -std=gnu99 -O3 -march=native bench/contender_floor.c -o build/contender_floor", NULL, 0},
};

/* Run as "LAUNCH build/PROGRAM OP BYTES MILLISECONDS"; %d is the number of ranks. */
typedef struct contender_desc {
    const char *name, *title;
    peer_kind kind;
    int software;
    const char *launch, *collective, *layouts; /* the programs; NULL: it has none */
} contender_desc;

#define PEERS_MESH_RUN(lanes) "MESH_SOCKET_LANES=" lanes " timeout 60 build/mesh run --bare -n %d --"
#define PEERS_OPENMPI_RUN "timeout 60 mpirun.openmpi --allow-run-as-root --oversubscribe -n %d"
#define PEERS_MPICH_RUN "timeout 60 mpiexec.mpich -n %d"

static const contender_desc contenders[] = {
    {"shared", "shared", HOST, MESH, PEERS_MESH_RUN("auto"), "contender_mesh", "contender_mesh"},
    {"alloc", "mesh_alloc", HOST, MESH, PEERS_MESH_RUN("auto"), "contender_mesh --alloc", "contender_mesh --alloc"},
    {"unix", "unix", HOST, MESH, PEERS_MESH_RUN("unix"), "contender_mesh", "contender_mesh"},
    {"tcp", "tcp", TCP, MESH, PEERS_MESH_RUN("tcp"), "contender_mesh", "contender_mesh"},
    {"openmpi", "Open MPI", HOST, OPENMPI, PEERS_OPENMPI_RUN, "contender_openmpi", "alltoallw_openmpi"},
    {"mpich", "MPICH", HOST, MPICH, PEERS_MPICH_RUN, "contender_mpich", "alltoallw_mpich"},
    {"openmpi_tcp", "Open MPI, TCP", TCP, OPENMPI,
     PEERS_OPENMPI_RUN " --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo", "contender_openmpi",
     "alltoallw_openmpi"},
    {"mpich_tcp", "MPICH, TCP", TCP, MPICH, "UCX_TLS=tcp,self MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp " PEERS_MPICH_RUN,
     "contender_mpich", "alltoallw_mpich"},
    {"gloo", "Gloo, TCP", TCP, GLOO,
     "rm -rf build/gloo_store; mkdir build/gloo_store; GLOO_STORE=build/gloo_store timeout 60 build/mesh run --bare -n %d --",
     "contender_gloo", NULL},
    {"floor", "floor", LIMIT, MEMORY, "timeout 60", "contender_floor %d", "contender_floor %d"},
};
enum { CONTENDERS = sizeof contenders / sizeof contenders[0], FLOOR = CONTENDERS - 1 };

/* Operations of the command line: the collectives, all_reduce beside a busy neighbour, and the layouts of layouts.h. */
#define PEERS_BUSY "busy_all_reduce"
static const char *const peers_ops[] = {"all_reduce",  "all_reduce_in_place", "all_gather",        "all_to_all",
                                        "broadcast",   "reduce_scatter",      "sendrecv",          "barrier",
                                        PEERS_BUSY,    "rows_to_columns",     "blocks_to_columns", "blocks_to_rows",
                                        "S0S1_to_S1S0", "narrow_to_columns"};
enum { PEERS_OPS = sizeof peers_ops / sizeof peers_ops[0] };

typedef struct sample {
    double us, mean, cpu; /* us 0: not measured */
} sample;

typedef struct cell {
    const char *op;
    int ranks;
    unsigned long bytes;
    sample at[CONTENDERS][MOST_ROUNDS];
    char run[CONTENDERS][48]; /* when, and which version of ours */
} cell;

static cell cells[MOST_CELLS];
static int ncells;

/* ---- cells ---- */

static int op_index(const char *op) {
    int i;
    for (i = 0; i < PEERS_OPS && strcmp(peers_ops[i], op);) i++;
    return i < PEERS_OPS ? i : -1;
}

static int is_busy(const cell *c) { return !strcmp(c->op, PEERS_BUSY); }
static int is_layout(const cell *c) { return layout_find(c->op, 0) != NULL; }
static int is_reduction(const cell *c) { return !strncmp(c->op, "all_reduce", 10); }

static cell *cell_of(const char *op, int ranks, unsigned long bytes) {
    int i, at = op_index(op);
    for (i = 0; i < ncells; i++)
        if (!strcmp(cells[i].op, op) && cells[i].ranks == ranks && cells[i].bytes == bytes) return &cells[i];
    if (at < 0 || ncells == MOST_CELLS) return NULL;
    cells[ncells].op = peers_ops[at];
    cells[ncells].ranks = ranks;
    cells[ncells].bytes = bytes;
    return &cells[ncells++];
}

/* As the pages list them. */
static int cell_order(const void *a, const void *b) {
    const cell *x = (const cell *)a, *y = (const cell *)b;
    int d = op_index(x->op) - op_index(y->op);
    if (!d) d = x->ranks - y->ranks;
    return d ? d : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static double middle(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, contender_order);
    return n ? (v[n / 2] + v[(n - 1) / 2]) / 2 : 0;
}

/* Medians over the rounds; 0: there is none. */
static sample typical(const cell *c, int who) {
    double v[3][MOST_ROUNDS];
    sample s;
    int n = 0, r;
    for (r = 0; r < MOST_ROUNDS; r++)
        if (c->at[who][r].us > 0)
            v[0][n] = c->at[who][r].us, v[1][n] = c->at[who][r].mean, v[2][n++] = c->at[who][r].cpu;
    s.us = middle(v[0], n);
    s.mean = middle(v[1], n);
    s.cpu = middle(v[2], n);
    return s;
}

/* The fastest peer of a lane's kind in a round; 0: none was measured. */
static double best_peer(const cell *c, peer_kind k, int round) {
    double best = 0;
    int who;
    for (who = LANES; who < CONTENDERS; who++) {
        double us = contenders[who].kind == k ? c->at[who][round].us : 0;
        if (us > 0 && (best <= 0 || us < best)) best = us;
    }
    return best;
}

/* Median over the rounds of the best peer's time over the lane's, in the same round; 0: there is none. */
static double ratio(const cell *c, int lane) {
    double v[MOST_ROUNDS];
    int n = 0, r;
    for (r = 0; r < MOST_ROUNDS; r++) {
        double best = best_peer(c, contenders[lane].kind, r);
        if (best > 0 && c->at[lane][r].us > 0) v[n++] = best / c->at[lane][r].us;
    }
    return middle(v, n);
}

/* Likewise of the limit's time over the lane's. */
static double of_floor(const cell *c, int lane) {
    double v[MOST_ROUNDS];
    int n = 0, r;
    for (r = 0; r < MOST_ROUNDS; r++)
        if (c->at[FLOOR][r].us > 0 && c->at[lane][r].us > 0) v[n++] = c->at[FLOOR][r].us / c->at[lane][r].us;
    return middle(v, n);
}

/* ---- words ---- */

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

/* Figures of one machine and of the same peers belong together. */
static void setting_text(char *out, size_t cap) {
    char model[128], control[64], version[96];
    struct utsname u;
    int k;
    size_t n;
    uname(&u);
    first_line("sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1", model, sizeof model);
    first_line("cat /proc/sys/net/ipv4/tcp_congestion_control 2>/dev/null", control, sizeof control);
    n = (size_t)snprintf(out, cap, "%s, %ld cores, %s %.60s, TCP congestion control %s", model,
                         sysconf(_SC_NPROCESSORS_ONLN), u.sysname, u.release, control);
    for (k = OPENMPI; k <= GLOO && n < cap; k++) {
        first_line(softwares[k].version, version, sizeof version);
        n += (size_t)snprintf(out + n, cap - n, "; %s %s", softwares[k].name, softwares[k].there ? version : "missing");
    }
}

/* ---- peers.csv: "# setting", the columns' names, a line for each run of a contender ---- */

/* Returns how many lines there were; setting: where they come from. */
static int read_csv(const char *dir, char *setting, size_t cap) {
    char path[512], line[512], op[32], who[32], run[48];
    int k, ranks, round, n = 0;
    unsigned long bytes;
    sample s;
    FILE *f;
    snprintf(path, sizeof path, "%s/peers.csv", dir);
    setting[0] = 0;
    if (!(f = fopen(path, "r"))) return 0;
    while (fgets(line, sizeof line, f)) {
        cell *c;
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "# ", 2)) snprintf(setting, cap, "%s", line + 2);
        if (sscanf(line, "%31[^,],%d,%lu,%31[^,],%d,%lf,%lf,%lf,%47[^\n]", op, &ranks, &bytes, who, &round, &s.us,
                   &s.mean, &s.cpu, run) != 9)
            continue;
        for (k = 0; k < CONTENDERS && strcmp(contenders[k].name, who);) k++;
        if (k == CONTENDERS || round < 0 || round >= MOST_ROUNDS || !(c = cell_of(op, ranks, bytes))) continue;
        c->at[k][round] = s;
        memcpy(c->run[k], run, sizeof run);
        n++;
    }
    fclose(f);
    return n;
}

static int write_csv(const char *dir, const char *setting) {
    char path[512];
    FILE *f;
    int i, k, r;
    snprintf(path, sizeof path, "%s/peers.csv", dir);
    if (!(f = fopen(path, "w"))) return perror(path), 1;
    fprintf(f, "# %s\nop,ranks,bytes,contender,round,median_us,mean_us,cpu_us,run\n", setting);
    qsort(cells, (size_t)ncells, sizeof *cells, cell_order);
    for (i = 0; i < ncells; i++)
        for (k = 0; k < CONTENDERS; k++)
            for (r = 0; r < MOST_ROUNDS; r++)
                if (cells[i].at[k][r].us > 0)
                    fprintf(f, "%s,%d,%lu,%s,%d,%.3f,%.3f,%.3f,%s\n", cells[i].op, cells[i].ranks, cells[i].bytes,
                            contenders[k].name, r, cells[i].at[k][r].us, cells[i].at[k][r].mean, cells[i].at[k][r].cpu,
                            cells[i].run[k]);
    return fclose(f) != 0;
}
#endif
