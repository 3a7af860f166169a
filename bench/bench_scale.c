/* What a job costs against its size: time to come up, a barrier, and per rank descriptors, threads and memory. Alone it runs itself as
   2 .. 1,000 ranks under build/mesh run and writes bench/SCALE.md; each of those is a rank. Linux: it reads /proc/self. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include <dirent.h>
#include <stdio.h>

enum { OPEN, COMM, FIRST, BARRIER, FILES, THREADS, KIB, FIGURES };

static double seconds(void) { return (double)mesh_socket__clock() * 1e-9; }

static double status_line(const char *name) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long v = 0;
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name))) v = atol(line + strlen(name));
    if (f) fclose(f);
    return (double)v;
}

static double open_files(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = -3; /* itself, ".", ".." */
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static int rank_main(void) {
    mesh_socket net;
    mesh m;
    mesh_comm comm;
    mesh_error err;
    double own[FIGURES], all[1024 * FIGURES], t = seconds();
    int i, k;
    if (mesh_socket_open(&net, NULL, &err)) return fprintf(stderr, "%s\n", err.text), 1;
    own[OPEN] = seconds() - t;
    t = seconds();
    if (mesh_parse(&m, "x=-1", mesh_world(&net.base), &err) || mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return fprintf(stderr, "%s\n", err.text), 1;
    own[COMM] = seconds() - t;
    t = seconds();
    if (mesh_barrier(&comm, NULL)) return fprintf(stderr, "%s\n", comm.error.text), 1;
    own[FIRST] = seconds() - t;
    t = seconds();
    for (i = 0; i < 10; i++)
        if (mesh_barrier(&comm, NULL)) return fprintf(stderr, "%s\n", comm.error.text), 1;
    own[BARRIER] = (seconds() - t) / 10;
    own[FILES] = open_files();
    own[THREADS] = status_line("Threads:");
    own[KIB] = status_line("VmRSS:");
    if (mesh_gather(&comm, NULL, own, all, FIGURES, MESH_F64, 0)) return fprintf(stderr, "%s\n", comm.error.text), 1;
    if (net.base.rank == 0) {
        double most[FIGURES] = {0};
        for (i = 0; i < net.base.size; i++)
            for (k = 0; k < FIGURES; k++)
                if ((i || k < FILES) && all[i * FIGURES + k] > most[k]) most[k] = all[i * FIGURES + k];
        printf("| %d | %.3f | %.3f | %.3f | %.1f | %.0f / %.0f | %.0f | %.1f / %.1f |\n", net.base.size, most[OPEN],
               most[COMM], most[FIRST], most[BARRIER] * 1e3, own[FILES], most[FILES], most[THREADS], own[KIB] / 1024,
               most[KIB] / 1024);
    }
    mesh_comm_close(&comm);
    mesh_socket_close(&net);
    return 0;
}

int main(void) {
    static const int sizes[] = {2, 8, 32, 64, 128, 256, 512, 1000};
    FILE *out;
    size_t i;
    if (getenv("RANK")) return rank_main();
    if (!(out = fopen("bench/SCALE.md", "w"))) return perror("bench/SCALE.md"), 1;
    fprintf(
        out,
        "# Jobs against their size\n\nWritten by `make bench`: all ranks on one machine of %ld cores, Unix-domain lanes; seconds and KiB are the worst\nrank's. "
        "rank 0 / the others, where it differs: rank 0 has a connection to everybody.\n\n"
        "| ranks | rendezvous s | comm open s | first barrier s | barrier ms | descriptors | threads | memory MiB |\n|---|---|---|---|---|---|---|---|\n",
        sysconf(_SC_NPROCESSORS_ONLN));
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char command[128], line[256];
        FILE *p;
        snprintf(command, sizeof command, "build/mesh run --bare -n %d -- build/bench_scale", sizes[i]);
        if (!(p = popen(command, "r"))) continue;
        while (fgets(line, sizeof line, p)) {
            fputs(line, stdout);
            fputs(line, out);
            fflush(stdout);
        }
        pclose(p);
    }
    fclose(out);
    return 0;
}
