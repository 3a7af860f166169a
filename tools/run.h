/* mesh run: a program as ranks of one job on this machine. */
#ifndef TOOL_RUN_H
#define TOOL_RUN_H

enum {
    LINE_MOST = 1 << 20,
    PIECE = 4096,     /* what a pipe that polls writable takes without blocking */
    BLAME_MS = 500,   /* from a rank's exit or abort until it is blamed: a killed one's sockets close before it ends */
    HELP_MS = 2000,   /* from a rank's failure until the others are told to end, and from then until they are killed */
    SIGNAL_MS = 5000, /* from a signal that was passed on until ranks that are still there are killed */
    STDIN_ALL = -1,
    STDIN_NONE = -2
};

typedef struct run_options {
    int ranks, bare, bind, quiet, share_gpu;
    int only;              /* the one rank whose output is shown; -1: every rank's */
    int in;                /* the rank that reads stdin; STDIN_ALL, STDIN_NONE */
    int idle_s, timeout_s; /* 0: any time */
    const char *log;       /* a directory for a file per rank and stream; NULL: none */
} run_options;

typedef struct stream { /* a rank's stdout or stderr */
    int fd, to, copy;   /* copy: its log file, or -1 */
    int owed;           /* bytes that its rank had left there when all had ended well */
    size_t length, room;
    char *line;
} stream;

typedef struct rank {
    pid_t pid;
    int running, status;
    int in;      /* its stdin's other end, or -1 */
    size_t read; /* of the input's piece at hand */
    stream out[2];
} rank;

typedef struct input { /* what comes over stdin, a piece at a time for all who read it */
    int open;
    size_t length;
    char piece[PIECE];
} input;

static volatile sig_atomic_t caught;  /* a signal that ends the job */
static volatile sig_atomic_t news[7]; /* of signals_caught: those that are only for the ranks, and have come */
static int unwritten;                 /* what a rank printed could not be passed on: errno, said once */
static int unseen;                    /* how ranks ended is not known */
static int64_t give_up_ms;            /* output that nobody takes is not waited for beyond this; 0: no end in sight */
static struct {
    const rank *ranks;
    int n;
    int64_t stopped; /* ms by Ctrl-Z, which are no time of the job's; since look_after took them in */
} everyone;          /* whom signals are passed on to, wherever this process waits */
static void on_signal(int sig) { caught = sig; }
/* Of a file beyond ulimit -f, such as a log: the write says so. A program that is started does not inherit it, as it would SIG_IGN. */
static void on_full(int sig) { (void)sig; }
/* What this process catches for its ranks: what ends the job, and what does not. */
static const int signals_caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP};
enum { SIGNALS_END = 4, SIGNALS_CAUGHT = 7 };
static void on_news(int sig) {
    int i;
    for (i = SIGNALS_END; i < SIGNALS_CAUGHT; i++)
        if (signals_caught[i] == sig) news[i] = 1;
}
static int64_t clock_ms(void) { return mesh_socket__clock() / 1000000; }

static const char *signal_name(int sig) {
    static const struct {
        int sig;
        const char *name;
    } names[] = {{SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
                 {SIGABRT, "SIGABRT"}, {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"}, {SIGBUS, "SIGBUS"},
                 {SIGSEGV, "SIGSEGV"}, {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
                 {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}, {SIGXCPU, "SIGXCPU"}};
    static char number_of[24];
    size_t i;
    for (i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].sig == sig) return names[i].name;
    snprintf(number_of, sizeof number_of, "signal %d", sig);
    return number_of;
}

/* ---- signals ---- */

static void signal_all(const rank *ranks, int n, int sig) {
    int i;
    for (i = 0; i < n; i++)
        if (ranks[i].running) kill(-ranks[i].pid, sig);
}

/* Signals for the ranks that do not end the job. Ctrl-Z stops them and then this process; fg lets both go on. */
static void pass_on(void) {
    int64_t since;
    int i;
    for (i = SIGNALS_END; i < SIGNALS_CAUGHT; i++) {
        if (!news[i]) continue;
        news[i] = 0;
        if (signals_caught[i] != SIGTSTP) {
            signal_all(everyone.ranks, everyone.n, signals_caught[i]);
            continue;
        }
        signal_all(everyone.ranks, everyone.n,
                   SIGSTOP); /* in groups of their own they have no terminal that could stop them */
        since = clock_ms();
        raise(SIGSTOP);
        since = clock_ms() - since;
        everyone.stopped += since;
        if (give_up_ms) give_up_ms += since;
        signal_all(everyone.ranks, everyone.n, SIGCONT);
    }
}

/* ---- output ---- */

/* Write, unless the job is to end meanwhile and nobody reads: then what comes after is not waited for either. A reader that has gone ends the job
   like a signal. */
static void write_all(int fd, const char *p, size_t n) {
    while (n) {
        struct pollfd f;
        ssize_t done;
        int given_up;
        f.fd = fd;
        f.events = POLLOUT;
        given_up = caught || (give_up_ms && clock_ms() > give_up_ms);
        if (poll(&f, 1, given_up ? 0 : 100) <= 0) {
            if (given_up) return;
            pass_on();
            continue;
        }
        done = write(fd, p, n < PIECE ? n : PIECE);
        if (done < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (done < 0 && errno == EPIPE && !caught) caught = SIGPIPE;
        if (done < 0 && errno != EPIPE && !unwritten) {
            unwritten = errno;
            fprintf(stderr, "mesh run: cannot write what the ranks print: %s\n", strerror(errno));
        }
        if (done <= 0) return;
        p += done;
        n -= (size_t)done;
    }
}

/* Write a line with its rank before it. */
static void print_line(stream *s, int r, int width, const char *line, size_t n) {
    char head[32];
    write_all(s->to, head, (size_t)snprintf(head, sizeof head, "[%*d] ", width, r));
    write_all(s->to, line, n);
}

/* Print the lines that are whole (a carriage return ends one too, for progress bars); at the end of the stream what is left as well. */
static void print_lines(stream *s, int r, int width, int ended) {
    size_t start = 0, i;
    for (i = 0; i < s->length; i++) {
        if (s->line[i] == '\r' && i + 1 == s->length && !ended) break; /* perhaps the first half of CR LF */
        if (s->line[i] != '\n' && (s->line[i] != '\r' || (i + 1 < s->length && s->line[i + 1] == '\n'))) continue;
        print_line(s, r, width, s->line + start, i + 1 - start);
        start = i + 1;
    }
    if ((ended || s->length - start >= LINE_MOST) && start < s->length) {
        print_line(s, r, width, s->line + start, s->length - start);
        write_all(s->to, "\n", 1);
        start = s->length;
    }
    memmove(s->line, s->line + start, s->length - start);
    s->length -= start;
}

/* To a file: 0, and errno, where it takes no more. */
static int write_whole(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return 0;
        p += done, n -= (size_t)done;
    }
    return 1;
}

/* Pass on what has come: as it is to a log, or bare; by lines with the rank before them. Returns 0 at the end of the stream. */
static int pump(stream *s, int r, const run_options *o) {
    int shown = o->only < 0 || o->only == r, width = mesh__digits(o->ranks - 1);
    ssize_t n;
    if (s->room - s->length < PIECE) {
        char *more = (char *)realloc(s->line, s->room * 2 + 2 * PIECE);
        if (!more) return 1;
        s->line = more;
        s->room = s->room * 2 + 2 * PIECE;
    }
    n = read(s->fd, s->line + s->length, s->room - s->length);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return 1;
    s->owed = n > 0 && n < s->owed ? s->owed - (int)n : 0;
    if (n > 0 && s->copy >= 0 && !write_whole(s->copy, s->line + s->length, (size_t)n)) {
        fprintf(stderr, "mesh run: the log of rank %d cannot be written: %s; it ends here\n", r, strerror(errno));
        close(s->copy);
        s->copy = -1;
    }
    if (n > 0 && (!shown || o->bare)) {
        if (shown) write_all(s->to, s->line, (size_t)n);
        return 1;
    }
    if (n > 0) s->length += (size_t)n;
    if (shown && !o->bare) print_lines(s, r, width, n <= 0);
    if (n > 0) return 1;
    close(s->fd);
    s->fd = -1;
    if (s->copy >= 0) close(s->copy);
    s->copy = -1;
    return 0;
}

/* ---- input ---- */

/* May this process read the terminal, or is there none? */
static int may_read(void) { return !isatty(0) || tcgetpgrp(0) == getpgrp(); }

static int input_has_readers(const rank *ranks, int n) {
    int i;
    for (i = 0; i < n && ranks[i].in < 0; i++) {}
    return i < n;
}

/* Give the piece at hand to who has not read it, and fetch the next when all have. */
static void feed(input *in, rank *ranks, int n, int readable) {
    int i, left = 0;
    for (i = 0; i < n; i++) {
        rank *r = &ranks[i];
        ssize_t done;
        if (r->in < 0) continue;
        if (r->read < in->length) {
            done = write(r->in, in->piece + r->read, in->length - r->read);
            if (done > 0) r->read += (size_t)done;
            if (done < 0 && errno != EAGAIN && errno != EINTR) { /* it reads no more */
                close(r->in);
                r->in = -1;
                continue;
            }
        }
        left |= r->read < in->length;
    }
    if (left) return;
    if (in->open && readable) {
        ssize_t got = read(0, in->piece, sizeof in->piece);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
        in->length = got > 0 ? (size_t)got : 0;
        in->open = got > 0;
        for (i = 0; i < n; i++) ranks[i].read = 0;
    }
    for (i = 0; i < n && !in->open; i++) {
        if (ranks[i].in >= 0) close(ranks[i].in);
        ranks[i].in = -1;
    }
}

/* ---- starting ---- */

/* A port of loopback: of IPv4's, or of IPv6's where a host has no other. `address`: how its ranks say it. -1: errno. */
static int listen_at(int family, int *port, const char **address) {
    struct sockaddr_storage a;
    struct sockaddr_in *four = (struct sockaddr_in *)(void *)&a;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)&a;
    socklen_t length = family == AF_INET ? sizeof *four : sizeof *six;
    int on = 1, error, fd = mesh_socket__new(family);
    memset(&a, 0, sizeof a);
    a.ss_family = (sa_family_t)family;
    if (family == AF_INET)
        four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        six->sin6_addr = in6addr_loopback;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* rank 0 may open a second time at this port */
    if (bind(fd, (struct sockaddr *)&a, length) || listen(fd, 4096) ||
        getsockname(fd, (struct sockaddr *)&a, &length)) {
        error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *port = ntohs(family == AF_INET ? four->sin_port : six->sin6_port);
    *address = family == AF_INET ? "127.0.0.1" : "::1";
    return fd;
}
static int listen_here(int *port, const char **address) {
    int fd = listen_at(AF_INET, port, address), error = errno;
    if (fd < 0 && (fd = listen_at(AF_INET6, port, address)) < 0) errno = error;
    return fd;
}

static void caught_set(sigset_t *set) {
    int i;
    sigemptyset(set);
    for (i = 0; i < SIGNALS_CAUGHT; i++) sigaddset(set, signals_caught[i]);
}

/* In a rank, before it is another program: what was sent to it meanwhile is not caught here. What is ignored stays so. */
static void let_signals(void) {
    struct sigaction was;
    sigset_t set;
    int i;
    for (i = 0; i < SIGNALS_CAUGHT; i++)
        if (!sigaction(signals_caught[i], NULL, &was) && was.sa_handler != SIG_IGN) signal(signals_caught[i], SIG_DFL);
    caught_set(&set);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static void set_env(const char *name, long value) {
    char text[32];
    snprintf(text, sizeof text, "%ld", value);
    setenv(name, text, 1);
}

/* Rank r of n gets its share of the cores that this process may use, at least one. */
static void bind_rank(int r, int n) {
#if MESH_SOCKET__LINUX
    unsigned long have[16] = {0}, mine[16] = {0};
    int i, k = 0, cores = 0, bits = 8 * (int)sizeof have[0], most = 16 * bits;
    if (syscall(SYS_sched_getaffinity, 0L, (long)sizeof have, have) < 0) return;
    for (i = 0; i < most; i++) cores += (int)(have[i / bits] >> i % bits & 1);
    for (i = 0; i < most; i++) {
        if (!(have[i / bits] >> i % bits & 1)) continue;
        if (cores >= n ? (int64_t)k * n / cores == r : k == r % cores) mine[i / bits] |= 1ul << i % bits;
        k++;
    }
    syscall(SYS_sched_setaffinity, 0L, (long)sizeof mine, mine);
#else
    (void)r, (void)n;
#endif
}

typedef struct run_world {
    int port, listener, threads; /* threads: for OMP_NUM_THREADS; 0: it is set */
    const char *address;
    char secret[33], host[24]; /* host: the same for all ranks, another one in each job */
} run_world;

static void child(const run_options *o, const run_world *j, int r, int in, int pipes[2][2], char **command,
                  pid_t launcher) {
    int null = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
#if MESH_SOCKET__LINUX
    prctl(PR_SET_PDEATHSIG, SIGTERM);    /* a launcher that is killed takes its ranks along, */
    if (getppid() != launcher) _exit(1); /* and may be so already */
#else
    (void)launcher;
#endif
    if (isatty(1)) setenv("MESH_TTY", "1", 1); /* what the rank prints reaches a terminal, though through a pipe */
    dup2(in >= 0 ? in : null, 0);
    dup2(pipes[0][1], 1);
    dup2(pipes[1][1], 2);
    close(null);
    set_env("RANK", r);
    set_env("WORLD_SIZE", o->ranks);
    set_env("LOCAL_RANK", r);
    set_env("LOCAL_WORLD_SIZE", o->ranks);
    setenv("MASTER_ADDR", j->address, 1);
    set_env("MASTER_PORT", j->port);
    setenv("MESH_SECRET", j->secret, 1);
    unsetenv("MESH_PORT");
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    unsetenv("MESH_LISTEN_FD");
    if (r == 0) {
        fcntl(j->listener, F_SETFD, 0);
        set_env("MESH_LISTEN_FD", j->listener);
    }
    if (j->threads) set_env("OMP_NUM_THREADS", j->threads);
    if (o->bind) bind_rank(r, o->ranks);
    if (o->share_gpu) setenv("CUDA_VISIBLE_DEVICES", "0", 0); /* else rank 1 of a host with several takes the next */
    if (o->share_gpu) share_gpu(j->host, r);
    let_signals();
    execvp(command[0], command);
    fprintf(stderr, "mesh run: cannot run %s: %s\n", command[0], strerror(errno));
    _exit(127);
}

/* A pipe whose ends no program started later inherits. */
static int private_pipe(int *ends) {
    if (pipe(ends)) return 0;
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    return 1;
}

static int open_log(const run_options *o, int r, int which) {
    char path[4096];
    int fd;
    if (!o->log) return -1;
    if (snprintf(path, sizeof path, "%s/rank-%d.%s", o->log, r, which ? "err" : "out") >= (int)sizeof path) {
        fprintf(stderr, "mesh run: --log: a path of %zu bytes is too long; at most about 4,000\n", strlen(o->log));
        return -1;
    }
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) fprintf(stderr, "mesh run: cannot write %s: %s\n", path, strerror(errno));
    return fd;
}

/* One rank. Returns 0, having said why, if it cannot be started. */
static int start_rank(const run_options *o, const run_world *j, rank *k, int r, char **command) {
    int pipes[2][2] = {{-1, -1}, {-1, -1}}, in[2] = {-1, -1}, i, reads = o->in == r || o->in == STDIN_ALL;
    pid_t launcher = getpid();
    sigset_t set;
    k->pid = -1;
    caught_set(&set); /* until the rank is there to get what comes */
    if (private_pipe(pipes[0]) && private_pipe(pipes[1]) && (!reads || private_pipe(in))) {
        sigprocmask(SIG_BLOCK, &set, NULL);
        if ((k->pid = fork()) == 0) child(o, j, r, in[0], pipes, command, launcher);
        sigprocmask(SIG_UNBLOCK, &set, NULL);
    }
    if (k->pid < 0) {
        fprintf(stderr, "mesh run: rank %d cannot be started: %s\n", r, strerror(errno));
        for (i = 0; i < 2; i++) {
            if (in[i] >= 0) close(in[i]);
            if (pipes[0][i] >= 0) close(pipes[0][i]);
            if (pipes[1][i] >= 0) close(pipes[1][i]);
        }
        k->pid = 0;
        return 0;
    }
    setpgid(k->pid, k->pid);
    k->running = 1;
    if (in[0] >= 0) {
        close(in[0]);
        fcntl(in[1], F_SETFL, O_NONBLOCK);
    }
    k->in = in[1];
    for (i = 0; i < 2; i++) {
        close(pipes[i][1]);
        k->out[i].fd = pipes[i][0];
        k->out[i].to = i + 1;
        k->out[i].copy = open_log(o, r, i);
    }
    return 1;
}

/* All ranks, or as many as there are before a signal ends the job. Returns how many, or -1. */
static int start_ranks(const run_options *o, rank *ranks, char **command) {
    unsigned char noise[24];
    uint64_t bits;
    run_world j;
    int r, i;
    memset(&j, 0, sizeof j);
    if (!mesh_socket__random(noise, sizeof noise)) {
        fprintf(stderr, "mesh run: no random numbers for the job's secret: /dev/urandom: %s\n", strerror(errno));
        return -1;
    }
    for (i = 0; i < 16; i++) snprintf(j.secret + 2 * i, 3, "%02x", noise[i]);
    memcpy(j.host, "mesh-", 5);
    for (i = 0; i < 8; i++) snprintf(j.host + 5 + 2 * i, 3, "%02x", noise[16 + i]);
    if (o->share_gpu)
        fprintf(stderr, "mesh run: --share-gpu: %d rank%s on one GPU, over NCCL's sockets: for correctness only\n",
                o->ranks, o->ranks > 1 ? "s" : "");
    if (o->log && mkdir(o->log, 0777) && errno != EEXIST) {
        fprintf(stderr, "mesh run: cannot make the directory %s: %s\n", o->log, strerror(errno));
        return -1;
    }
    if (o->log && (r = open_log(o, 0, 0)) < 0) return -1;
    if (o->log) close(r);
    if ((j.listener = listen_here(&j.port, &j.address)) < 0) {
        fprintf(stderr, "mesh run: no port on loopback, 127.0.0.1 or ::1: %s; bring it up: ip link set lo up\n",
                strerror(errno));
        return -1;
    }
    if (!getenv("OMP_NUM_THREADS")) {
        int cores = mesh_env_cores(&bits);
        j.threads = cores / o->ranks > 1 ? cores / o->ranks : 1;
        if (o->ranks > 1 && !o->quiet)
            fprintf(stderr, "mesh run: OMP_NUM_THREADS=%d for each of %d ranks on %d cores; set it to choose\n",
                    j.threads, o->ranks, cores);
    }
    for (r = 0; r < o->ranks && !caught; r++)
        if (!start_rank(o, &j, &ranks[r], r, command)) {
            signal_all(ranks, r, SIGKILL);
            while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {}
            close(j.listener);
            return -1;
        }
    close(j.listener);
    return r;
}

/* A number in a file; -1: none. */
static long number_in(const char *path) {
    FILE *f = fopen(path, "r");
    long v = -1;
    if (f && fscanf(f, "%ld", &v) != 1) v = -1;
    if (f) fclose(f);
    return v;
}

/* Is there room for so many ranks? Else says which limit stands against it. */
static int room_for(const run_options *o) {
    struct rlimit files;
    long need = (o->in == STDIN_ALL ? 3L : 2L) * o->ranks * (o->log ? 2 : 1) + 16,
         pids = number_in("/sys/fs/cgroup/pids.max"), most = number_in("/proc/sys/kernel/pid_max");
    mesh_socket__raise_files((int)(need / 2));
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY && files.rlim_cur < (rlim_t)need) {
        fprintf(stderr, "mesh run: %d ranks need %ld descriptors, but the limit is %ld; raise it with ulimit -n\n",
                o->ranks, need, (long)files.rlim_cur);
        return 0;
    }
    if (pids > 0 && pids < o->ranks) most = pids;
    if (most > 0 && most <= o->ranks) {
        fprintf(stderr, "mesh run: %d ranks, but %s allows %ld processes\n", o->ranks,
                most == pids ? "/sys/fs/cgroup/pids.max" : "/proc/sys/kernel/pid_max", most);
        return 0;
    }
    return 1;
}

/* ---- the job ---- */

/* The status a shell would show for it; says which rank it was. */
static int describe_end(int r, int status, int64_t age_ms) {
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "mesh run: rank %d was ended by %s after %.1f s; ending the others\n", r,
                signal_name(WTERMSIG(status)), (double)age_ms / 1000);
        return 128 + WTERMSIG(status);
    }
    fprintf(stderr, "mesh run: rank %d exited with status %d after %.1f s; ending the others\n", r, WEXITSTATUS(status),
            (double)age_ms / 1000);
    return WEXITSTATUS(status);
}

static void catch_signals(void) {
    struct sigaction action, was;
    sigset_t heard;
    int i;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    for (i = 0; i < SIGNALS_CAUGHT; i++) { /* nohup's is ignored, by the ranks as well */
        if (i == SIGNALS_END) action.sa_handler = on_news;
        if (signals_caught[i] != SIGHUP || (!sigaction(SIGHUP, NULL, &was) && was.sa_handler != SIG_IGN))
            sigaction(signals_caught[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
    action.sa_handler = on_full;
    if (!sigaction(SIGXFSZ, NULL, &was) && was.sa_handler != SIG_IGN) sigaction(SIGXFSZ, &action, NULL);
    signal(SIGCHLD, SIG_DFL); /* who starts this may ignore it: then nobody would hear how the ranks end */
    caught_set(&heard);       /* or block signals, which a rank would inherit too */
    sigprocmask(SIG_UNBLOCK, &heard, NULL);
}

/* Take in who has ended. Returns the one to blame, or -1: of those that end together one that a signal ended, for the others may have
   failed because of it. */
static int reap(rank *ranks, int n, int *left) {
    int i, status, worst = -1;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (i = 0; i < n && ranks[i].pid != pid; i++) {}
        if (i == n || !ranks[i].running) continue;
        ranks[i].running = 0;
        ranks[i].status = status;
        --*left;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        if (worst < 0 || (WIFSIGNALED(status) && !WIFSIGNALED(ranks[worst].status))) worst = i;
    }
    if (pid < 0 && errno == ECHILD && *left) {
        fprintf(stderr, "mesh run: the ranks are gone, and the system does not say how they ended\n");
        for (i = 0; i < n; i++) ranks[i].running = 0;
        *left = 0;
        unseen = 1;
    }
    return worst;
}

static void say_timeout(const run_options *o, const rank *ranks, int left, int idle) {
    int i;
    fprintf(stderr, idle ? "mesh run: no output for %d s; ending rank%s" : "mesh run: %d s are over; ending rank%s",
            idle ? o->idle_s : o->timeout_s, left > 1 ? "s" : "");
    for (i = 0; i < o->ranks; i++)
        if (ranks[i].running) fprintf(stderr, " %d", i);
    fprintf(stderr, "\n");
}

/* All ranks have ended well: what they left in their pipes is still to be shown, however slowly it is read. */
static void count_owed(rank *ranks, int n) {
    int i;
    for (i = 0; i < 2 * n; i++) {
        stream *s = &ranks[i / 2].out[i % 2];
        if (s->fd >= 0 && ioctl(s->fd, FIONREAD, &s->owed)) s->owed = 0;
    }
}

static int is_owed(const rank *ranks, int n) {
    int i;
    for (i = 0; i < 2 * n && !ranks[i / 2].out[i % 2].owed; i++) {}
    return i < 2 * n;
}

/* Was it killed, or did it fault? Nothing that another rank's end brings about, as an abort may be. */
static int ended_by_itself(int status) {
    int s = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return s == SIGKILL || s == SIGSEGV || s == SIGBUS || s == SIGFPE || s == SIGILL;
}

/* The first rank that failed, until it is said, which is when nobody else can be to blame. */
typedef struct {
    int rank; /* -1: none, or said */
    int64_t at, age;
} suspect;

static void suspect_rank(suspect *s, const rank *ranks, int r, int64_t start, int64_t now) {
    if (s->rank >= 0 && (ended_by_itself(ranks[s->rank].status) || !ended_by_itself(ranks[r].status))) return;
    if (s->rank < 0) s->at = now;
    s->rank = r;
    s->age = now - start;
}

/* Returns its exit status when it is said, else -1. */
static int say_suspect(suspect *s, const rank *ranks, int is_last, int64_t now) {
    int r = s->rank;
    if (r < 0 || (!is_last && !ended_by_itself(ranks[r].status) && now - s->at < BLAME_MS)) return -1;
    s->rank = -1;
    return describe_end(r, ranks[r].status, s->age);
}

/* Look after the ranks until all have ended. Returns the exit status. */
static int look_after(const run_options *o, rank *ranks, int started) {
    int n = o->ranks, i, left = started, open_streams, result = 0, failed = 0, signaled = 0, well = 0, worst, said;
    suspect first = {-1, 0, 0};
    struct pollfd *polls = (struct pollfd *)calloc((size_t)n * 3 + 1, sizeof *polls); /* output, stdin, input */
    int64_t start = clock_ms(), last_output = start, end_at = 0, now;
    static input in;
    memset(&in, 0, sizeof in);
    in.open = 1;
    for (open_streams = 1; polls && (left || open_streams);) {
        int heard = 0, reading, ready, undelivered = 0;
        for (i = open_streams = 0; i < 2 * n; i++) {
            stream *s = &ranks[i / 2].out[i % 2];
            polls[i].fd = s->fd;
            polls[i].events = POLLIN;
            open_streams += s->fd >= 0;
        }
        for (i = 0; i < n; i++) {
            int owed = ranks[i].in >= 0 && ranks[i].read < in.length;
            polls[2 * n + 1 + i].fd = owed ? ranks[i].in : -1;
            polls[2 * n + 1 + i].events = POLLOUT;
            undelivered |= owed;
        }
        reading = in.open && !undelivered && input_has_readers(ranks, n) && may_read();
        polls[2 * n].fd = reading ? 0 : -1;
        polls[2 * n].events = POLLIN;
        if (!left && !end_at) {
            count_owed(ranks, n);
            well = !failed && !signaled;
            end_at = clock_ms();
        }
        if (well && !signaled && is_owed(ranks, n)) end_at = clock_ms();
        give_up_ms = well && !signaled ? 0
                     : end_at          ? end_at + 1000
                     : o->timeout_s    ? start + (int64_t)o->timeout_s * 1000
                                       : 0;
        if (!left && clock_ms() > end_at + 1000) break; /* a grandchild holds a pipe */
        ready = poll(polls, (nfds_t)(3 * n + 1), 50) > 0;
        for (i = 0; i < 2 * n && ready; i++)
            if (polls[i].fd >= 0 && polls[i].revents) heard += pump(&ranks[i / 2].out[i % 2], i / 2, o);
        feed(&in, ranks, n, ready && reading && polls[2 * n].revents);
        pass_on();
        start += everyone.stopped, last_output += everyone.stopped;
        first.at += everyone.stopped;
        if (end_at) end_at += everyone.stopped;
        everyone.stopped = 0;
        now = clock_ms();
        if (heard) last_output = now;
        worst = reap(ranks, n, &left);
        if (worst >= 0 && !signaled && (!failed || first.rank >= 0)) suspect_rank(&first, ranks, worst, start, now);
        if (worst >= 0 && !failed && !signaled) end_at = now + HELP_MS;
        if (worst >= 0 && !failed) failed = 1;
        if ((said = say_suspect(&first, ranks, !left || caught, now)) >= 0) result = said;
        if (caught == SIGPIPE && signaled) caught = 0; /* the reader of the output went away as well */
        if (caught && signaled) {
            signal_all(ranks, n, SIGKILL);
        } else if (caught) {
            if (caught != SIGPIPE && left && !o->quiet)
                fprintf(stderr, "mesh run: %s ends %d rank%s; once more ends them at once\n", signal_name(caught), left,
                        left > 1 ? "s" : "");
            signaled = caught;
            signal_all(ranks, n, signaled);
            result = 128 + signaled;
            end_at = now + SIGNAL_MS;
        }
        caught = 0;
        if (left && !failed && !signaled) {
            int idle = o->idle_s && now - last_output > (int64_t)o->idle_s * 1000;
            if (idle || (o->timeout_s && now - start > (int64_t)o->timeout_s * 1000)) {
                say_timeout(o, ranks, left, idle);
                result = 124;
                failed = 1;
                end_at = now;
            }
        }
        if (end_at && left && now > end_at) {
            signal_all(ranks, n, failed == 1 && !signaled ? SIGTERM : SIGKILL);
            failed = 2;
            end_at = now + HELP_MS;
        }
    }
    free(polls);
    if (!polls) return wrong("run", "no memory for the ranks", NULL);
    return (unwritten || unseen) && !result ? 1 : result;
}

/* What failed ranks have left running: told to end, and killed where it does not. */
static void end_left(const rank *ranks, int n) {
    int64_t until = clock_ms() + HELP_MS;
    int i, left = n;
    for (i = 0; i < n; i++) kill(-ranks[i].pid, SIGTERM);
    while (left && clock_ms() < until) {
        for (i = left = 0; i < n; i++) left += kill(-ranks[i].pid, 0) == 0;
        if (left) poll(NULL, 0, 20);
    }
    for (i = 0; i < n && left; i++) kill(-ranks[i].pid, SIGKILL);
}

static int run_job(const run_options *o, char **command) {
    rank *ranks = (rank *)calloc((size_t)o->ranks, sizeof *ranks);
    int i, started, result;
    if (!ranks) return wrong("run", "no memory for the ranks", NULL);
    for (i = 0; i < o->ranks; i++)
        ranks[i].in = ranks[i].out[0].fd = ranks[i].out[1].fd = ranks[i].out[0].copy = ranks[i].out[1].copy = -1;
    if (!room_for(o)) {
        free(ranks);
        return 1;
    }
    everyone.ranks = ranks;
    everyone.n = o->ranks;
    catch_signals();
    started = start_ranks(o, ranks, command);
    result = started < 0 ? 1 : look_after(o, ranks, started);
    for (i = 0; i < 2 * o->ranks; i++) {
        stream *s = &ranks[i / 2].out[i % 2];
        if (s->fd >= 0 && !o->bare) print_lines(s, i / 2, mesh__digits(o->ranks - 1), 1);
        free(s->line);
    }
    if (result) end_left(ranks, started);
    free(ranks);
    return result;
}

static const char run_help[] =
    "usage: mesh run -n RANKS [option ...] [--] PROGRAM [ARG ...]\n\n"
    "Runs PROGRAM as RANKS processes on this machine. Each gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,\n"
    "MASTER_PORT and a fresh MESH_SECRET, and OMP_NUM_THREADS (its share of the cores) unless that is set; each line it prints gets\n"
    "its rank in front. When one fails it is named, the others have 2 seconds to say what they saw, then SIGTERM, and 2 seconds\n"
    "later SIGKILL. INT, TERM, HUP and QUIT are passed on and end the job: who is there 5 seconds later, or at a second signal,\n"
    "is killed. USR1, USR2 and Ctrl-Z are passed on.\n\n"
    "  -n, -np, --nproc-per-node RANKS   how many processes\n"
    "  --bare           pass on what ranks print as it comes, without their rank\n"
    "  --only RANK      show this rank's output only\n"
    "  --log DIR        also write each rank's output to DIR/rank-N.out and DIR/rank-N.err\n"
    "  --stdin WHO      who reads stdin: a rank (default 0), all or none\n"
    "  --bind           each rank on its own share of the cores\n"
    "  --share-gpu      all ranks on one GPU (CUDA_VISIBLE_DEVICES, or the first): sets NCCL_HOSTID to another one for each rank and\n"
    "                   what makes NCCL go over its sockets, unless it is set; for correctness only\n"
    "  --timeout S      end everything after S seconds\n"
    "  --idle-timeout S end everything when no rank has printed anything for S seconds\n\n"
    "Exit status: that of the first rank that is seen to fail (128 + signal; within half a second one that is\n"
    "killed or faults goes before those that exit), 124 after a timeout, 127 where PROGRAM cannot be run, 128 + signal\n"
    "where mesh run itself is told to end, 2 for wrong usage, else 0.\n";

/* The value of an option "-n 8", "-n8" or "--nproc-per-node=8", or NULL: it is another. *i moves on to what was used. */
static const char *value_of(const char *name, int argc, char **argv, int *i, int *missing) {
    size_t length = strlen(name);
    const char *arg = argv[*i];
    if (strncmp(arg, name, length)) return NULL;
    if (!arg[length]) {
        *missing = *i + 1 >= argc;
        return *missing ? "" : argv[++*i];
    }
    if (name[1] != '-' && arg[length] >= '0' && arg[length] <= '9') return arg + length;
    return name[1] == '-' && arg[length] == '=' ? arg + length + 1 : NULL;
}

/* As a rank of an MPI job: its ranks would each start a job of their own. */
static int within_mpi(int ranks) {
    mesh_env e;
    if (mesh_env_read(&e, NULL) != MESH_OK || e.size == 1) return 0;
    if (e.launcher != MESH_LAUNCHER_OPEN_MPI && e.launcher != MESH_LAUNCHER_MPICH) return 0;
    fprintf(
        stderr,
        "mesh run: this is rank %d of the %d of an MPI job (%s), each of which would start %d more. mpirun starts the program "
        "itself: its ranks find each other over sockets too, or over MPI (transports/mesh_mpi.h)\n",
        e.rank, e.size, e.source, ranks);
    return 1;
}

/* Where execvp looks: an empty entry is this directory, and without a PATH it has one of its own. */
static int on_path(const char *program) {
    const char *path = getenv("PATH"), *end;
    char full[4096];
    for (path = path ? path : "/bin:/usr/bin";; path = end + 1) {
        end = path + strcspn(path, ":");
        snprintf(full, sizeof full, "%.*s/%s", end > path ? (int)(end - path) : 1, end > path ? path : ".", program);
        if (access(full, X_OK) == 0) return 1;
        if (!*end) return 0;
    }
}

/* What a script's first line says is to read it, and is not there; else NULL. */
static const char *lacks_interpreter(const char *program, char name[256]) {
    FILE *f = fopen(program, "r");
    size_t begin = 2, n;
    int missing = 0;
    if (!f) return NULL;
    if (fgets(name, 256, f) && name[0] == '#' && name[1] == '!') {
        while (name[begin] == ' ' || name[begin] == '\t') begin++;
        n = strcspn(name + begin, " \t\n");
        memmove(name, name + begin, n);
        name[n] = 0;
        missing = *name && access(name, X_OK) != 0;
    }
    fclose(f);
    return missing ? name : NULL;
}

/* Can it be run? Said once, and not by every rank. "app" that is a program here, and none on the PATH, was meant as "./app". */
static int runnable(const char *program) {
    char name[256];
    struct stat is;
    if (strchr(program, '/') && stat(program, &is) == 0 && S_ISDIR(is.st_mode))
        return fprintf(stderr, "mesh run: cannot run %s: it is a directory\n", program), 0;
    if (strchr(program, '/') && access(program, X_OK) == 0 && lacks_interpreter(program, name))
        return fprintf(stderr, "mesh run: cannot run %s: its first line asks for %.*s, which is not there%s\n", program,
                       (int)strcspn(name, "\r"), name, strchr(name, '\r') ? ": its lines end in CR LF" : ""),
               0;
    if (*program && (strchr(program, '/') ? access(program, X_OK) == 0 : on_path(program))) return 1;
    if (!*program)
        fprintf(stderr, "mesh run: the program's name is empty\n");
    else if (!strchr(program, '/') && access(program, X_OK) == 0)
        fprintf(stderr, "mesh run: there is no %s on the PATH, but one here; write ./%s\n", program, program);
    else
        fprintf(stderr, "mesh run: cannot run %s: %s\n", program,
                strchr(program, '/') ? strerror(errno) : "it is not on the PATH");
    return 0;
}

static int command_run(const char *self, int argc, char **argv) {
    static const char *const counts[] = {"-np", "-n", "--nproc-per-node", "--nproc_per_node"};
    run_options o;
    int i, missing = 0;
    size_t k;
    (void)self;
    memset(&o, 0, sizeof o);
    o.only = -1;
    for (i = 0; i < argc && argv[i][0] == '-'; i++) {
        const char *arg = argv[i], *v = NULL;
        if (is_help(arg)) {
            fputs(run_help, stdout);
            return 0;
        }
        if (!strcmp(arg, "--")) {
            i++;
            break;
        }
        for (k = 0; k < sizeof counts / sizeof counts[0] && !v; k++) v = value_of(counts[k], argc, argv, &i, &missing);
        if (v) {
            if ((o.ranks = (int)number(v)) < 0) return wrong_value("run", arg, "a whole number from 1 to 999999", v);
        } else if ((v = value_of("--timeout", argc, argv, &i, &missing)) != NULL) {
            if ((o.timeout_s = (int)number(v)) < 0)
                return wrong_value("run", arg, "a whole number from 1 to 999999", v);
        } else if ((v = value_of("--idle-timeout", argc, argv, &i, &missing)) != NULL) {
            if ((o.idle_s = (int)number(v)) < 0) return wrong_value("run", arg, "a whole number from 1 to 999999", v);
        } else if ((v = value_of("--only", argc, argv, &i, &missing)) != NULL) {
            o.only = strcmp(v, "0") ? (int)number(v) : 0;
            if (o.only < 0) return wrong_value("run", arg, "a rank", v);
        } else if ((v = value_of("--stdin", argc, argv, &i, &missing)) != NULL) {
            o.in = !strcmp(v, "all")    ? STDIN_ALL
                   : !strcmp(v, "none") ? STDIN_NONE
                   : strcmp(v, "0")     ? (int)number(v)
                                        : 0;
            if (o.in < 0 && strcmp(v, "all") && strcmp(v, "none"))
                return wrong_value("run", arg, "a rank, all or none", v);
        } else if ((v = value_of("--log", argc, argv, &i, &missing)) != NULL) {
            o.log = v;
        } else if (!strcmp(arg, "--bare")) {
            o.bare = 1;
        } else if (!strcmp(arg, "--bind")) {
            o.bind = 1;
        } else if (!strcmp(arg, "--share-gpu")) {
            o.share_gpu = 1;
        } else {
            return wrong("run", "unknown option", arg);
        }
        if (missing) return wrong("run", "a value is missing after", arg);
    }
    if (!o.ranks) return wrong("run", "-n RANKS is missing", NULL);
    if (i >= argc) return wrong("run", "no program to run", NULL);
    if (o.only >= o.ranks || o.in >= o.ranks) {
        char value[16];
        snprintf(value, sizeof value, "%d", o.only >= o.ranks ? o.only : o.in);
        return wrong_value("run", o.only >= o.ranks ? "--only" : "--stdin", "a rank from 0 to RANKS - 1", value);
    }
    if (within_mpi(o.ranks)) return 2;
    if (!runnable(argv[i])) return 127;
    return run_job(&o, argv + i);
}

/* Is this process a rank of a job already? Also where what a launcher says is wrong: opening then tells. */
static int in_job(void) {
    mesh_env e;
    mesh_error own;
    return mesh_env_read(&e, &own) != MESH_OK || e.launcher != MESH_LAUNCHER_NONE;
}

/* Become `mesh run -n RANKS --bare -- self command args ...`: outside a job a command starts its own. */
static int start_job(const char *self, int ranks, const char *command, int argc, char **argv) {
    const char **args = (const char **)calloc((size_t)argc + 3, sizeof *args);
    run_options o;
    int i, n = 0, status;
    if (!args) return 1;
    memset(&o, 0, sizeof o);
    o.ranks = ranks;
    o.bare = o.quiet = 1;
    o.only = -1;
    o.in = STDIN_NONE;
    args[n++] = self, args[n++] = command;
    for (i = 0; i < argc; i++) args[n++] = argv[i];
    status = run_job(&o, (char **)(uintptr_t)args);
    free(args);
    return status;
}

#endif
