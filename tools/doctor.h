/* mesh doctor: is this machine fit for a job, and if not, what to do about it. */
#ifndef TOOL_DOCTOR_H
#define TOOL_DOCTOR_H

#include "../mesh/safetensors.h"

#include <sys/statvfs.h>

enum { DOCTOR_OK, DOCTOR_WARN, DOCTOR_ERROR };

typedef struct doctor {
    int json, worst, lines;
} doctor;

static void doctor_json_text(const char *s) {
    const char *end = s + strlen(s);
    int n;
    putchar('"');
    for (; *s; s += n ? n : 1) {
        n = mesh__utf8(s, end);
        if (*s == '"' || *s == '\\') putchar('\\');
        if (!n || (n == 1 && (unsigned char)*s < 32))
            fputs("\\ufffd", stdout);
        else
            printf("%.*s", n, s);
    }
    putchar('"');
}

/* One finding. remedy NULL: nothing needs doing. */
static void doctor_say(doctor *d, int level, const char *what, const char *remedy, const char *format, ...) {
    static const char *const levels[] = {"OK", "WARN", "ERROR"};
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (level > d->worst) d->worst = level;
    if (d->json) {
        printf("%s{\"check\":\"%s\",\"level\":\"%s\",\"found\":", d->lines++ ? ",\n " : "[", what, levels[level]);
        doctor_json_text(text);
        if (remedy) printf(",\"remedy\":"), doctor_json_text(remedy);
        printf("}");
    } else {
        printf("%-5s %-12s %s\n", levels[level], what, text);
        if (remedy) printf("      %-12s -> %s\n", "", remedy);
    }
    fflush(stdout);
}

static void doctor_line(const char *command, char *out, size_t cap) {
    FILE *p = popen(command, "r");
    out[0] = 0;
    if (p && fgets(out, (int)cap, p)) out[strcspn(out, "\n")] = 0;
    if (p) pclose(p);
}

/* At once: a shell, its pipelines, and those that have just ended, which count for a while. */
enum { DOCTOR_PROCESSES = 8 };

/* Can other processes be started? Most of what follows needs some, and would blame something else. */
static int doctor_processes(doctor *d) {
    int ends[2], started = 0, error, i;
    pid_t pid[DOCTOR_PROCESSES];
    char c, many[32] = "none";
    if (pipe(ends)) return 1;
    while (started < DOCTOR_PROCESSES && (pid[started] = fork()) >= 0) {
        if (pid[started] == 0) { /* until all are there */
            close(ends[1]);
            while (read(ends[0], &c, 1) < 0 && errno == EINTR) {}
            _exit(0);
        }
        started++;
    }
    error = errno;
    close(ends[0]), close(ends[1]);
    for (i = 0; i < started; i++) waitpid(pid[i], NULL, 0);
    if (started == DOCTOR_PROCESSES) return 1;
    if (started) snprintf(many, sizeof many, "only %d", started);
    doctor_say(d, DOCTOR_ERROR, "processes", "raise ulimit -u, or what the container allows (pids.max)",
               "%s can be started%s: %s; nothing else is looked at", many, started ? " at once" : "", strerror(error));
    return 0;
}

static void doctor_compiler(doctor *d) {
    char text[256];
    doctor_line("(${CC:-cc} --version || true) 2>/dev/null | head -1", text, sizeof text);
    if (text[0])
        doctor_say(d, DOCTOR_OK, "compiler", NULL, "%s", text);
    else
        doctor_say(d, DOCTOR_WARN, "compiler", "apt install gcc, or set CC", "no C compiler (cc) on the PATH");
}

static void doctor_limits(doctor *d) {
    struct rlimit files;
    uint64_t bits;
    doctor_say(d, DOCTOR_OK, "cores", NULL, "%d; with more ranks than that, waiting yields instead of spinning",
               mesh_env_cores(&bits));
    if (getenv("OMP_NUM_THREADS") &&
        strspn(getenv("OMP_NUM_THREADS"), "0123456789, ") != strlen(getenv("OMP_NUM_THREADS")))
        doctor_say(d, DOCTOR_WARN, "threads", "unset it, or give a number of threads",
                   "OMP_NUM_THREADS=%s is no list of numbers", getenv("OMP_NUM_THREADS"));
    else if (getenv("OMP_NUM_THREADS"))
        doctor_say(d, DOCTOR_OK, "threads", NULL, "OMP_NUM_THREADS=%s in each rank", getenv("OMP_NUM_THREADS"));
    else
        doctor_say(
            d, DOCTOR_OK, "threads", NULL,
            "OMP_NUM_THREADS is not set: mesh run gives each rank its share of the cores; other launchers may not");
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    if (files.rlim_max == RLIM_INFINITY || files.rlim_max >= 4096)
        doctor_say(d, DOCTOR_OK, "descriptors", NULL,
                   "%llu, may be raised to %llu: a rank connected to all others needs two for each",
                   (unsigned long long)files.rlim_cur, (unsigned long long)files.rlim_max);
    else
        doctor_say(d, DOCTOR_WARN, "descriptors",
                   "raise the hard limit: ulimit -Hn 65536, or nofile in /etc/security/limits.conf",
                   "at most %llu: mesh run starts no more than %llu ranks on this host",
                   (unsigned long long)files.rlim_max,
                   files.rlim_max > 16 ? (unsigned long long)(files.rlim_max - 16) / 2 : 0ULL);
}

static void doctor_shm(doctor *d) {
    struct statvfs v;
    char path[64];
    int fd;
    snprintf(path, sizeof path, "/dev/shm/mesh_doctor.%ld", (long)getpid());
    fd = open(path, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0 || statvfs("/dev/shm", &v) != 0) {
        doctor_say(d, DOCTOR_WARN, "/dev/shm", "mount it: mount -t tmpfs tmpfs /dev/shm (containers: --shm-size=1g)",
                   "cannot be written: %s", strerror(errno));
    } else {
        double mib = (double)v.f_bavail * (double)v.f_frsize / (1 << 20);
        doctor_say(d, mib < 64 ? DOCTOR_WARN : DOCTOR_OK, "/dev/shm", mib < 64 ? "containers: --shm-size=1g" : NULL,
                   "%.0f MiB free", mib);
    }
    if (fd >= 0) close(fd), unlink(path);
}

enum { DOCTOR_BYTES = 256 << 20, DOCTOR_PIECE = 256 << 10, DOCTOR_TRIPS = 2000 };

/* The other end: echo, then swallow. Returns the exit status. */
static int doctor_echo(int fd, char piece[DOCTOR_PIECE]) {
    size_t left;
    int i;
    char c;
    for (i = 0; i < DOCTOR_TRIPS; i++)
        if (read(fd, &c, 1) != 1 || write(fd, &c, 1) != 1) return 1;
    for (left = DOCTOR_BYTES; left;) {
        ssize_t n = read(fd, piece, DOCTOR_PIECE);
        if (n <= 0) return 1;
        left -= (size_t)n;
    }
    return write(fd, &c, 1) != 1;
}

/* GB/s and the round trip of one byte in us over loopback or a Unix-domain socket, between two processes. 0: it does not work. */
static int doctor_speed(int unix_domain, double *gbs, double *us) {
    static char piece[DOCTOR_PIECE];
    int fd[2], i, ok = 1, port, one = 1;
    size_t left;
    int64_t start;
    pid_t pid;
    char c = 0;
    if (unix_domain) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd)) return 0;
    } else {
        struct sockaddr_storage a;
        socklen_t length = sizeof a;
        const char *address;
        int listener = listen_here(&port, &address);
        if (listener < 0) return 0;
        getsockname(listener, (struct sockaddr *)(void *)&a, &length);
        fd[0] = socket(a.ss_family, SOCK_STREAM, 0);
        mesh_socket__tune(fd[0], (struct sockaddr *)(void *)&a);
        if (connect(fd[0], (struct sockaddr *)(void *)&a, length) || (fd[1] = accept(listener, NULL, NULL)) < 0) {
            close(fd[0]), close(listener);
            return 0;
        }
        mesh_socket__tune(fd[1], (struct sockaddr *)(void *)&a);
        setsockopt(fd[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        close(listener);
    }
    pid = fork();
    if (pid == 0) {
        close(fd[0]);
        _exit(doctor_echo(fd[1], piece));
    }
    i = errno;
    close(fd[1]);
    if (pid < 0) {
        close(fd[0]);
        errno = i;
        return 0;
    }
    start = mesh_socket__clock();
    for (i = 0; i < DOCTOR_TRIPS && ok; i++) ok = send(fd[0], &c, 1, MSG_NOSIGNAL) == 1 && read(fd[0], &c, 1) == 1;
    *us = (double)(mesh_socket__clock() - start) / 1e3 / DOCTOR_TRIPS;
    start = mesh_socket__clock();
    for (left = DOCTOR_BYTES; left && ok;) {
        ssize_t n = send(fd[0], piece, left < sizeof piece ? left : sizeof piece, MSG_NOSIGNAL);
        ok = n > 0;
        left -= n > 0 ? (size_t)n : 0;
    }
    ok = ok && read(fd[0], &c, 1) == 1;
    *gbs = (double)DOCTOR_BYTES / (double)(mesh_socket__clock() - start);
    close(fd[0]);
    if (pid > 0) waitpid(pid, NULL, 0);
    return ok;
}

/* Memory in common between ranks of this host, and whether they may read each other's own. */
static void doctor_shared(doctor *d) {
    mesh_socket__shared h;
    uint64_t word = 1, seen = 0;
    struct iovec from, to;
    pid_t me = getpid(), child;
    int error, status = 0;
    memset(&h, 0, sizeof h);
    h.n = 2;
    error = MESH_SOCKET__SHARES ? mesh_socket__shared_make(&h) : ENOSYS;
    if (error) {
        doctor_say(d, DOCTOR_WARN, "shared", "raise ulimit -v and -f; ranks of one host use sockets until then",
                   "no memory in common: %s", strerror(error));
        return;
    }
    close(h.fd);
    if ((child = fork()) == 0) { /* it may read no more than one rank of another */
        from.iov_base = &word, to.iov_base = &seen;
        from.iov_len = to.iov_len = sizeof word;
        _exit(mesh_socket__read_process((uint32_t)me, &to, 1, &from, 1) == (int64_t)sizeof word ? 0 : errno);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) return;
    error = WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
    doctor_say(d, DOCTOR_OK, "shared", NULL,
               "memory in common, up to %.0f GB per rank; processes %s each other's own%s%s", (double)h.heap * 1e-9,
               error ? "may not read" : "may read", error ? ": " : "", error ? strerror(error) : "");
}

static void doctor_network(doctor *d) {
    double gbs, us;
    struct addrinfo hints, *found = NULL;
    char name[256] = "";
    int e;
#ifdef TCP_CONGESTION
    char control[64] = "";
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t length = sizeof control - 1;
    if (fd >= 0 && getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, &length) != 0) control[0] = 0;
    if (control[0] && !strncmp(control, "bbr", 3)) {
        int other = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) == 0 ||
                    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0;
        doctor_say(d, other ? DOCTOR_OK : DOCTOR_WARN, "congestion",
                   other ? NULL : "modprobe tcp_cubic, and list it in net.ipv4.tcp_allowed_congestion_control",
                   other ? "%s by default, which paces loopback to 2 GB/s; ranks on one host use another"
                         : "%s, and no other is allowed: it paces loopback to 2 GB/s",
                   control);
    } else if (control[0]) {
        doctor_say(d, DOCTOR_OK, "congestion", NULL, "%s", control);
    }
    if (fd >= 0) close(fd);
#endif
    if (!doctor_speed(0, &gbs, &us))
        doctor_say(d, DOCTOR_ERROR, "loopback", "bring it up: ip link set lo up; look at the firewall's rules for lo",
                   "neither 127.0.0.1 nor ::1 works: %s", strerror(errno));
    else
        doctor_say(d, gbs < 1 ? DOCTOR_WARN : DOCTOR_OK, "loopback",
                   gbs < 1 ? "look for other load, and at net.ipv4.tcp_rmem and tcp_wmem" : NULL,
                   "TCP %.1f GB/s, a byte there and back %.1f us", gbs, us);
    if (!doctor_speed(1, &gbs, &us))
        doctor_say(d, DOCTOR_WARN, "unix", "MESH_SOCKET_LANES=tcp avoids them", "Unix-domain sockets do not work: %s",
                   strerror(errno));
    else
        doctor_say(d, DOCTOR_OK, "unix", NULL, "%.1f GB/s, a byte there and back %.1f us", gbs, us);
    doctor_shared(d);
    gethostname(name, sizeof name - 1);
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    e = getaddrinfo(name, NULL, &hints, &found);
    if (e)
        doctor_say(d, DOCTOR_WARN, "hostname", "list it in /etc/hosts, or give MASTER_ADDR as a number",
                   "%s does not resolve: %s", name, gai_strerror(e));
    else
        doctor_say(d, DOCTOR_OK, "hostname", NULL, "%s resolves", name);
    if (found) freeaddrinfo(found);
}

/* Is there a secret? As a rank asks that is told nothing else. */
static int doctor_has_secret(void) {
    mesh_socket_desc desc = MESH_ZERO;
    return !mesh_socket__is_local(&desc);
}

/* Can rank 0's address be used? */
static void doctor_address(doctor *d, const mesh_env *where) {
    struct addrinfo hints, *found = NULL;
    int e;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    e = getaddrinfo(where->address, NULL, &hints, &found);
    if (e)
        doctor_say(d, DOCTOR_ERROR, "address", "set MASTER_ADDR to a name or number that this host knows",
                   "rank 0's address %s does not resolve: %s", where->address, gai_strerror(e));
    else if (where->size > 1 && !mesh_socket__is_loopback(found->ai_addr) && !doctor_has_secret())
        doctor_say(d, DOCTOR_ERROR, "address",
                   "set MESH_SECRET to the same random text on every rank (or desc.insecure)",
                   "rank 0's address %s is beyond loopback, and there is no secret", where->address);
    else if (where->size > 1 && mesh_socket__is_loopback(found->ai_addr) &&
             !mesh_socket__names_loopback(where->address)) {
        char number_of[64] = "loopback";
        int secret = doctor_has_secret();
        getnameinfo(found->ai_addr, found->ai_addrlen, number_of, sizeof number_of, NULL, 0, NI_NUMERICHOST);
        doctor_say(
            d, DOCTOR_WARN, "address",
            secret ? NULL : "for ranks on other hosts set MASTER_ADDR to a name or number they reach, and MESH_SECRET",
            secret
                ? "rank 0's address %s is %s on this host; rank 0 listens at every address, for others may know it by another"
                : "rank 0's address %s is %s on this host, and only there",
            where->address, number_of);
    }
    if (found) freeaddrinfo(found);
}

static void doctor_trace(doctor *d) {
    const char *dir = getenv("MESH_TRACE");
    struct stat st;
    int made;
    if (!dir || !*dir) return;
    made = stat(dir, &st) != 0 && mkdir(dir, 0777) == 0;
    if (!made && (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode) || access(dir, W_OK)))
        doctor_say(d, DOCTOR_ERROR, "trace", "name a directory that can be written, below one that exists",
                   "MESH_TRACE=%s cannot be written", dir);
    else
        doctor_say(d, DOCTOR_OK, "trace", NULL, "every rank writes into %s", dir);
    if (made) rmdir(dir); /* only looked at */
}

/* Is the secret one that a rank takes? */
static void doctor_secret(doctor *d) {
    const char *secret = getenv("MESH_SECRET"), *file = getenv("MESH_SECRET_FILE");
    char text[sizeof((mesh_socket__impl *)0)->secret + 2];
    mesh_error err;
    if (!doctor_has_secret()) {
        doctor_say(d, DOCTOR_OK, "secret", NULL,
                   "MESH_SECRET is not set: jobs of more than one host need it; mesh run makes one");
        return;
    }
    if (secret && *secret) {
        file = NULL;
    } else if (mesh_socket__secret_file(text, sizeof text, &secret, &err) != MESH_OK) {
        doctor_say(d, DOCTOR_ERROR, "secret", "name a file that holds a line of text and can be read, or unset it",
                   "%s", err.text);
        return;
    }
    if (strlen(secret) >= sizeof text - 2)
        doctor_say(d, DOCTOR_ERROR, "secret", "use 32 random hex digits", "MESH_SECRET has %d bytes; at most %d",
                   (int)strlen(secret), (int)sizeof text - 3);
    else
        doctor_say(d, strlen(secret) < 16 ? DOCTOR_WARN : DOCTOR_OK, "secret",
                   strlen(secret) < 16 ? "use 32 random hex digits" : NULL, "%s%s has %d bytes",
                   file ? "MESH_SECRET_FILE=" : "MESH_SECRET", file ? file : "", (int)strlen(secret));
}

/* Is the table one that a rank takes? It is read alone: what opens a transport begins a trace anew, too. */
static void doctor_tuning(doctor *d) {
    const char *tuning = getenv("MESH_TUNING");
    mesh_socket__impl *s = tuning && *tuning ? (mesh_socket__impl *)calloc(1, sizeof *s) : NULL;
    mesh_socket net;
    mesh_error err;
    if (!s) return;
    memset(&net, 0, sizeof net);
    s->net = &net;
    if (mesh_socket__read_tuning(s, &err) != MESH_OK)
        doctor_say(d, DOCTOR_ERROR, "tuning", "write one with mesh bench --tune FILE, or unset MESH_TUNING", "%s",
                   err.text);
    else
        doctor_say(d, DOCTOR_OK, "tuning", NULL, "%s: %d rows", tuning, s->tuning.nrows);
    free(s);
}

static void doctor_environment(doctor *d) {
    static const mesh_socket_desc none = MESH_ZERO;
    static const char *const numbers[] = {"MESH_TIMEOUT", "MESH_OPEN_TIMEOUT", "MESH_PROGRESS_THREAD", "MESH_LISTEN_FD",
                                          "MESH_MPI_NATIVE"};
    const char *lanes = getenv("MESH_SOCKET_LANES");
    mesh_env where;
    mesh_error err;
    int i;
    if (mesh_socket__who(&none, &where, &err) != MESH_OK)
        doctor_say(d, DOCTOR_ERROR, "launcher", "set the variable right, or unset it to run alone", "%s", err.text);
    else if (where.launcher == MESH_LAUNCHER_NONE)
        doctor_say(d, DOCTOR_OK, "launcher", NULL, "no launcher's variables: a program started here is a world of 1");
    else
        doctor_say(d, DOCTOR_OK, "launcher", NULL, "rank %d of %d, rank 0 at %s port %d", where.rank, where.size,
                   where.address, where.port);
    if (where.launcher != MESH_LAUNCHER_NONE) doctor_address(d, &where);
    doctor_trace(d);
    doctor_secret(d);
    for (i = 0; i < 5; i++) {
        int number;
        if (mesh__env_number(numbers[i], "number", &number, &err) < 0)
            doctor_say(d, DOCTOR_ERROR, "numbers", "unset it, or give a whole number", "%s", err.text);
    }
    if (lanes && *lanes && strcmp(lanes, "tcp") && strcmp(lanes, "unix") && strcmp(lanes, "auto"))
        doctor_say(d, DOCTOR_ERROR, "lanes", "it is auto, unix or tcp", "MESH_SOCKET_LANES=%s", lanes);
    doctor_tuning(d);
}

/* What other parts of the library, or the benches, would use. */
static void doctor_optional(doctor *d) {
    static const struct {
        const char *what, *command, *remedy;
    } parts[] = {
        {"gpu", "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1",
         "none: everything runs on the CPU"},
    };
    char text[256];
    size_t i;
    for (i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        doctor_line(parts[i].command, text, sizeof text);
        doctor_say(d, DOCTOR_OK, parts[i].what, NULL, "%s", text[0] ? text : parts[i].remedy);
    }
}

/* Every MPI, by what its launcher says of itself, with its compiler's wrapper: a program and its launcher have to be of one. */
static void doctor_mpi(doctor *d) {
    static const char *const pairs[][2] = {
        {"mpicc", "mpirun"}, {"mpicc.openmpi", "mpirun.openmpi"}, {"mpicc.mpich", "mpiexec.mpich"}};
    char version[256], file[2][512], seen[3][512];
    int found = 0, i, k;
    for (i = 0; i < 3; i++) {
        char command[600];
        for (k = 0; k < 2; k++) {
            snprintf(command, sizeof command, "readlink -f \"$(command -v %s)\" 2>/dev/null", pairs[i][k]);
            doctor_line(command, file[k], sizeof file[k]);
        }
        for (k = 0; k < found && strcmp(seen[k], file[1]); k++) {}
        if (!file[1][0] || k < found) continue;
        snprintf(seen[found++], sizeof seen[0], "%s", file[1]);
        snprintf(
            command, sizeof command,
            "%s --version 2>/dev/null | awk '/Open MPI/ { print \"Open MPI \" $NF; exit } $1 == \"Version:\" { print "
            "\"MPICH \" $2; exit } NR == 1 { said = $0 } END { if (said) print said }' | head -1",
            pairs[i][1]);
        doctor_line(command, version, sizeof version);
        if (file[0][0])
            doctor_say(d, DOCTOR_OK, "mpi", NULL, "%s: compile with %s, start with %s",
                       version[0] ? version : "of no version", pairs[i][0], pairs[i][1]);
        else
            doctor_say(d, DOCTOR_WARN, "mpi", "Debian: apt install libopenmpi-dev or libmpich-dev",
                       "%s has a launcher, %s, but no compiler wrapper (%s)", version[0] ? version : "of no version",
                       pairs[i][1], pairs[i][0]);
    }
    if (!found) doctor_say(d, DOCTOR_OK, "mpi", NULL, "none: only mesh_mpi.h and the comparison in make bench use it");
}

static int command_doctor(const char *self, int argc, char **argv) {
    doctor d = {0, 0, 0};
    int i;
    (void)self;
    for (i = 0; i < argc; i++) {
        if (is_help(argv[i])) {
            printf(
                "usage: mesh doctor [--json]\n\n"
                "Looks at the compiler, limits, /dev/shm, loopback (speed, congestion control), name resolution, and what the launchers'\n"
                "variables say; names the remedy for what is wrong.\n\nExit status: 1 if anything is an ERROR.\n");
            return 0;
        }
        if (strcmp(argv[i], "--json")) return wrong("doctor", "unknown option", argv[i]);
        d.json = 1;
    }
    if (doctor_processes(&d)) {
        doctor_compiler(&d);
        doctor_limits(&d);
        doctor_shm(&d);
        doctor_network(&d);
        doctor_environment(&d);
        doctor_optional(&d);
        doctor_mpi(&d);
    }
    if (d.json) puts("]");
    return d.worst == DOCTOR_ERROR;
}

#endif
