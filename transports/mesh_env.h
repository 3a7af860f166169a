/* mesh_env.h - what a launcher says of this process: its rank, the world, where rank 0 is, the job's name; hosts and cores. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh.h. Knows no transport: they ask it, and so do tools, and programs that want their rank before they open anything.
*/
#include "../mesh.h"

#ifndef MESH_ENV_H
#define MESH_ENV_H

#ifdef __cplusplus
extern "C" {
#endif

/* Whose variables were found; in the order in which they are looked for. */
typedef enum mesh_launcher {
    MESH_LAUNCHER_NONE = 0,
    MESH_LAUNCHER_TORCHRUN, /* RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE: `mesh run` too */
    MESH_LAUNCHER_OPEN_MPI, /* OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE */
    MESH_LAUNCHER_MPICH,    /* PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS; srun --mpi=pmi2 */
    MESH_LAUNCHER_SLURM /* SLURM_PROCID SLURM_NTASKS SLURM_LOCALID, in a step of srun's: a batch script is no rank */
} mesh_launcher;

typedef struct mesh_env {
    int launcher;               /* mesh_launcher */
    const char *source;         /* the variable that says the rank; "nothing" */
    int rank, size;             /* without a launcher 0 of 1 */
    int local_rank, local_size; /* among the ranks on this host; -1: not said */
    char address[256]; /* rank 0's: MASTER_ADDR, else of several hosts in SLURM_STEP_NODELIST the first; "": not said */
    int port; /* rank 0's: MESH_PORT, else MASTER_PORT, and one more where torchrun's agent has that; -1: not said */
} mesh_env;

/* ARGUMENT: a variable that is no number, a rank without a world's size or outside of it; named. */
MESH_API mesh_status mesh_env_read(mesh_env *e, mesh_error *err);
/* This process's place on its host, where a launcher says that alone too: then *source is the variable. Else -1. */
MESH_API int mesh_env_local_rank(const char **source);
/* What the launcher calls this job, as a hash: ranks of one job agree in it, jobs of one host differ. 0: it has no name. one_host: the job
   has one host, where what the launcher runs as can stand in for a name. */
MESH_API uint64_t mesh_env_job(int one_host);
/* Tells hosts apart: the name, the boot, the network namespace. Not 0. */
MESH_API uint64_t mesh_env_host(void);
/* Cores that this process may run on, at least 1. *bits: bit k % 64 for each core k; 0 where that is not known. */
MESH_API int mesh_env_cores(uint64_t *bits);

#ifdef __cplusplus
}
#endif
#endif /* MESH_ENV_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_ENV_IMPLEMENTED)
#define MESH_ENV_IMPLEMENTED

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#if !defined(O_CLOEXEC)
#error \
    "mesh_env.h: POSIX is hidden: compile with -std=gnu99, or define _POSIX_C_SOURCE 200809L before the first #include"
#endif

#if defined(__linux__) && !defined(MESH_POSIX_ONLY)
#define MESH__ENV_LINUX 1 /* /proc, /sys */
#else
#define MESH__ENV_LINUX 0
#endif

static const char *const mesh__env_names[4][4] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""}};

/* A number from the environment; of: "number", or of what. 1: it is there; 0: it is not, or empty; -1: it is no number. */
MESH__RARE int mesh__env_number(const char *name, const char *of, int *out, mesh_error *err) {
    const char *text = getenv(name), *p = text;
    int64_t v = 0;
    if (!text || !*text) return 0;
    for (; mesh__is_digit(*p) && v <= INT32_MAX; p++) v = v * 10 + (*p - '0');
    if (*p || v > INT32_MAX) {
        mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s is \"%s\", which is no %s from 0 to %d", name, text, of, INT32_MAX);
        return -1;
    }
    *out = (int)v;
    return 1;
}
MESH__RARE int mesh__env_int(const char *name, int *out, mesh_error *err) {
    return mesh__env_number(name, "number", out, err);
}

/* The first host of a Slurm node list: of "gpu[03-05,9],x" gpu03, of "rack[1-2]node[3-4]" rack1node3. Returns 1 if there is no other. */
MESH__RARE int mesh__env_first_host(const char *list, char *out, size_t cap) {
    mesh__text t = mesh__text_on(out, cap);
    int only = 1;
    for (; *list && *list != ','; list += *list != 0) {
        if (*list != '[') {
            mesh__put_char(&t, *list);
            continue;
        }
        for (list++; mesh__is_digit(*list); list++) mesh__put_char(&t, *list);
        only &= *list == ']';
        while (*list && *list != ']') list++;
    }
    return only && !*list;
}

MESH__RARE void mesh__env_nothing(mesh_env *e) {
    memset(e, 0, sizeof *e);
    e->size = 1;
    e->local_rank = e->local_size = e->port = -1;
    e->source = "nothing";
}

MESH__RARE mesh_status mesh__env_check(const mesh_env *e, mesh_error *err) {
    if (e->size >= 1 && e->rank >= 0 && e->rank < e->size) return MESH_OK;
    if (e->size < 1)
        return mesh__fail(err, MESH_ERR_ARGUMENT, e->rank,
                          "a world of %d ranks (from the size beside %s); it has one at least", e->size, e->source);
    return mesh__fail(err, MESH_ERR_ARGUMENT, e->rank,
                      "rank %d of a world of %d (from %s); ranks go from 0 to size - 1", e->rank, e->size, e->source);
}

MESH__RARE mesh_status mesh__env_ranks(mesh_env *e, mesh_error *err) {
    int i;
    for (i = 0; i < 4; i++) {
        const char *const *name = mesh__env_names[i];
        int rank, size, has_rank = mesh__env_int(name[0], &rank, err), has_size;
        if (has_rank < 0 || (has_size = mesh__env_int(name[1], &size, err)) < 0) return MESH_ERR_ARGUMENT;
        if (has_rank != has_size && i + 1 < MESH_LAUNCHER_SLURM)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s is set, but %s is not; set both or neither",
                              name[!has_rank], name[has_rank]);
        if (!has_rank || !has_size || (i + 1 == MESH_LAUNCHER_SLURM && !getenv("SLURM_STEP_ID"))) continue;
        e->launcher = i + 1;
        e->source = name[0];
        e->rank = rank;
        e->size = size;
        if (mesh__env_int(name[2], &e->local_rank, err) < 0 || mesh__env_int(name[3], &e->local_size, err) < 0)
            return MESH_ERR_ARGUMENT;
        break;
    }
    return mesh__env_check(e, err);
}

/* Nothing where a step of srun's has one host: it is this one. */
MESH__RARE mesh_status mesh__env_address(mesh_env *e, mesh_error *err) {
    const char *master = getenv("MASTER_ADDR"), *nodes = getenv("SLURM_STEP_NODELIST");
    mesh__text t = mesh__text_on(e->address, sizeof e->address);
    if (master && *master) {
        mesh__put(&t, "%s", master);
    } else if (e->launcher >= MESH_LAUNCHER_MPICH && nodes && *nodes) {
        if (mesh__env_first_host(nodes, e->address, sizeof e->address))
            e->address[0] = 0;
        else if (!e->address[0])
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "SLURM_STEP_NODELIST is \"%s\", which begins with no host; set MASTER_ADDR", nodes);
    }
    return MESH_OK;
}

MESH__RARE mesh_status mesh__env_port(mesh_env *e, mesh_error *err) {
    const char *elastic = getenv("TORCHELASTIC_USE_AGENT_STORE");
    int found = mesh__env_int("MESH_PORT", &e->port, err);
    if (found == 0 && (found = mesh__env_int("MASTER_PORT", &e->port, err)) > 0)
        e->port += elastic && mesh__same(elastic, "True");
    return found < 0 ? MESH_ERR_ARGUMENT : MESH_OK;
}

MESH_API mesh_status mesh_env_read(mesh_env *e, mesh_error *err) {
    mesh_status status;
    mesh__env_nothing(e);
    status = mesh__env_ranks(e, err);
    if (status == MESH_OK) status = mesh__env_address(e, err);
    return status == MESH_OK ? mesh__env_port(e, err) : status;
}

MESH_API int mesh_env_local_rank(const char **source) {
    mesh_error own;
    int i, local;
    for (i = 0; i < 4; i++)
        if (mesh__env_int(mesh__env_names[i][2], &local, &own) > 0) {
            *source = mesh__env_names[i][2];
            return local;
        }
    return -1;
}

/* Number `field` of /proc/PID/stat behind the name: 1 the parent, 19 when it started. 0: unknown. */
MESH__RARE unsigned long long mesh__env_stat(long pid, int field) {
    unsigned long long v = 0;
#if MESH__ENV_LINUX
    char path[64], text[512] = "", *p;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    if (!(f = fopen(path, "re"))) return 0;
    if (fgets(text, sizeof text, f) && (p = strrchr(text, ')')) != NULL && p[1] && p[2]) {
        for (p += 3; *p && field > 0; p++) field -= *p == ' ';
        sscanf(p, "%llu", &v);
    }
    fclose(f);
#else
    (void)pid, (void)field;
#endif
    return v;
}

/* MPICH's launcher has no name for a job, but there every rank leads a session below one proxy of the job and host. */
MESH_API uint64_t mesh_env_job(int one_host) {
    static const char *const names[][2] = {
        {"PMIX_NAMESPACE", ""}, {"SLURM_JOB_ID", "SLURM_STEP_ID"}, {"PMI_JOBID", ""}, {"TORCHELASTIC_RUN_ID", ""}};
    size_t i;
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *a = getenv(names[i][0]), *b = getenv(names[i][1]);
        if (a && *a && !mesh__same(a, "none")) return mesh__hash_text(mesh__hash_text(5, a), b ? b : "") | 1;
    }
    if (one_host && getenv("PMI_RANK")) {
        unsigned long long proxy = mesh__env_stat((long)getsid(0), 1);
        if (proxy) return mesh__mix(proxy, mesh__env_stat((long)proxy, 19)) | 1;
    }
    return 0;
}

MESH_API uint64_t mesh_env_host(void) {
    char text[256] = "";
    uint64_t h;
    gethostname(text, sizeof text - 1);
    h = mesh__hash_text(3, text);
#if MESH__ENV_LINUX
    {
        struct stat st;
        int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            ssize_t n = read(fd, text, sizeof text - 1);
            text[n > 0 ? n : 0] = 0;
            h = mesh__hash_text(h, text);
            close(fd);
        }
        if (stat("/proc/self/ns/net", &st) == 0) h = mesh__mix(h, (uint64_t)st.st_ino);
    }
#endif
    return h ? h : 1;
}

#if defined(_SC_NPROCESSORS_ONLN) /* hidden from strict C */
#define MESH_ENV__CORES _SC_NPROCESSORS_ONLN
#elif defined(__NetBSD__)
#define MESH_ENV__CORES 1002
#elif defined(__OpenBSD__)
#define MESH_ENV__CORES 503
#else /* macOS, FreeBSD */
#define MESH_ENV__CORES 58
#endif

#if MESH__ENV_LINUX
/* The numbers that a file begins with, at most two: how many there are. */
MESH__PRIVATE int mesh__env_numbers(const char *path, long *first, long *second) {
    FILE *f = fopen(path, "re");
    int n = f ? fscanf(f, "%ld %ld", first, second) : 0;
    if (f) fclose(f);
    return n;
}

/* As many of the cores as a quota allows. cgroup v2: "200000 100000" are two cores, "max 100000" all; v1: a file for each number, -1 is all. */
MESH__PRIVATE int mesh__env_quota(int cores) {
    long quota, period, none;
    if (mesh__env_numbers("/sys/fs/cgroup/cpu.max", &quota, &period) != 2 &&
        (mesh__env_numbers("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &quota, &none) < 1 ||
         mesh__env_numbers("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &period, &none) < 1))
        return cores;
    if (quota < 0 || period < 1 || (quota + period - 1) / period >= cores) return cores;
    return (int)((quota + period - 1) / period);
}
#endif

MESH_API int mesh_env_cores(uint64_t *bits) {
    int cores = (int)sysconf(MESH_ENV__CORES);
#if MESH__ENV_LINUX
    FILE *f = fopen("/proc/self/status", "re");
    char line[1024];
    *bits = 0;
    while (f && fgets(line, sizeof line, f)) { /* "Cpus_allowed:	ff,ffffffff", the last digit cores 0 to 3 */
        int allowed = 0, at = 0;
        char *p;
        if (strncmp(line, "Cpus_allowed:", 13)) continue;
        for (p = line + strlen(line) - 1; p > line + 13; p--) {
            int digit = *p >= '0' && *p <= '9' ? *p - '0' : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10 : -1;
            if (digit < 0) continue;
            *bits |= (uint64_t)digit << at % 64;
            for (at += 4; digit; digit &= digit - 1) allowed++;
        }
        if (allowed > 0 && allowed < cores) cores = allowed;
    }
    if (f) fclose(f);
    cores = mesh__env_quota(cores);
#else
    *bits = 0;
#endif
    return cores > 0 ? cores : 1;
}
#endif /* MESH_ENV_IMPLEMENTED */
