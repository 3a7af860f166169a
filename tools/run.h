/* mesh run: a program as ranks of one job on this machine. */
#ifndef TOOL_RUN_H
#define TOOL_RUN_H

enum { LINE_MOST = 1 << 20, PIECE = 4096 /* what a pipe that polls writable takes without blocking */ };

typedef struct stream { /* a rank's stdout or stderr */
    int fd, to;
    size_t length, room;
    char *line;
} stream;

typedef struct rank {
    pid_t pid;
    int running;
    stream out[2];
} rank;

static volatile sig_atomic_t caught;
static int64_t give_up_ms; /* output that nobody takes is not waited for beyond this; 0: no end in sight */
static void on_signal(int sig) { caught = sig; }
static int64_t clock_ms(void) { return mesh_socket__clock() / 1000000; }

/* Write, unless the job is to end meanwhile and nobody reads. A reader that has gone ends the job like a signal. */
static void write_all(int fd, const char *p, size_t n) {
    while (n) {
        struct pollfd f;
        ssize_t done;
        f.fd = fd;
        f.events = POLLOUT;
        if (poll(&f, 1, 100) <= 0) {
            if (caught || (give_up_ms && clock_ms() > give_up_ms)) return;
            continue;
        }
        done = write(fd, p, n < PIECE ? n : PIECE);
        if (done < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (done < 0 && errno == EPIPE) caught = SIGPIPE;
        if (done <= 0) return;
        p += done;
        n -= (size_t)done;
    }
}

/* Write a line with its rank before it (width 0: without). */
static void print_line(stream *s, int r, int width, const char *line, size_t n) {
    char head[32];
    if (width) write_all(s->to, head, (size_t)snprintf(head, sizeof head, "[%*d] ", width, r));
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

/* Pass on what has come. Returns 0 at the end of the stream. */
static int pump(stream *s, int r, int width) {
    ssize_t n;
    if (s->room - s->length < PIECE) {
        char *more = (char *)realloc(s->line, s->room * 2 + 2 * PIECE);
        if (!more) return 1;
        s->line = more;
        s->room = s->room * 2 + 2 * PIECE;
    }
    n = read(s->fd, s->line + s->length, s->room - s->length);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return 1;
    if (n > 0) s->length += (size_t)n;
    print_lines(s, r, width, n <= 0);
    if (n > 0) return 1;
    close(s->fd);
    s->fd = -1;
    return 0;
}

static int listen_here(int *port) {
    struct sockaddr_in a;
    socklen_t length = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096) ||
        getsockname(fd, (struct sockaddr *)&a, &length))
        return -1;
    *port = ntohs(a.sin_port);
    return fd;
}

static void set_env(const char *name, long value) {
    char text[32];
    snprintf(text, sizeof text, "%ld", value);
    setenv(name, text, 1);
}

static void child(int r, int n, int port, int listener, const char *secret, int pipes[2][2], char **command) {
    int null = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
#if MESH_SOCKET__LINUX
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* a launcher that is killed takes its ranks along */
#endif
    if (isatty(1)) setenv("MESH_TTY", "1", 1); /* what the rank prints reaches a terminal, though through a pipe */
    dup2(null, 0);
    dup2(pipes[0][1], 1);
    dup2(pipes[1][1], 2);
    close(null);
    close(pipes[0][0]), close(pipes[0][1]), close(pipes[1][0]), close(pipes[1][1]);
    set_env("RANK", r);
    set_env("WORLD_SIZE", n);
    set_env("LOCAL_RANK", r);
    set_env("LOCAL_WORLD_SIZE", n);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env("MASTER_PORT", port);
    setenv("MESH_SECRET", secret, 1);
    unsetenv("MESH_PORT");
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    unsetenv("MESH_LISTEN_FD");
    if (r == 0)
        set_env("MESH_LISTEN_FD", listener);
    else
        close(listener);
    execvp(command[0], command);
    fprintf(stderr, "mesh run: cannot run %s: %s\n", command[0], strerror(errno));
    _exit(127);
}

static void signal_all(const rank *ranks, int n, int sig) {
    int i;
    for (i = 0; i < n; i++)
        if (ranks[i].running) kill(-ranks[i].pid, sig);
}

static int start_ranks(rank *ranks, int n, char **command) {
    unsigned char noise[16];
    char secret[33];
    int r, i, port = 0, listener = listen_here(&port);
    if (listener < 0) {
        fprintf(stderr, "mesh run: no port on loopback: %s\n", strerror(errno));
        return 0;
    }
    mesh_socket__random(noise, sizeof noise);
    for (i = 0; i < 16; i++) snprintf(secret + 2 * i, 3, "%02x", noise[i]);
    for (r = 0; r < n; r++) {
        int pipes[2][2];
        if (pipe(pipes[0]) || pipe(pipes[1]) || (ranks[r].pid = fork()) < 0) {
            fprintf(stderr, "mesh run: rank %d cannot be started: %s\n", r, strerror(errno));
            signal_all(ranks, r, SIGKILL);
            return 0;
        }
        if (ranks[r].pid == 0) child(r, n, port, listener, secret, pipes, command);
        setpgid(ranks[r].pid, ranks[r].pid);
        ranks[r].running = 1;
        for (i = 0; i < 2; i++) {
            close(pipes[i][1]);
            fcntl(pipes[i][0], F_SETFD, FD_CLOEXEC);
            ranks[r].out[i].fd = pipes[i][0];
            ranks[r].out[i].to = i + 1;
        }
    }
    close(listener);
    return 1;
}

/* The status a shell would show for it; says which rank it was. */
static int describe_end(int r, int status, int64_t age_ms) {
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "mesh run: rank %d was ended by signal %d after %.1f s; ending the others\n", r,
                WTERMSIG(status), (double)age_ms / 1000);
        return 128 + WTERMSIG(status);
    }
    fprintf(stderr, "mesh run: rank %d exited with status %d after %.1f s; ending the others\n", r, WEXITSTATUS(status),
            (double)age_ms / 1000);
    return WEXITSTATUS(status);
}

static int command_run(const char *self, int argc, char **argv) {
    struct sigaction action;
    struct pollfd *polls;
    rank *ranks;
    int i, n = 0, bare = 0, timeout_s = 0, left, open_streams, result = 0, failed = 0, width, signaled = 0;
    int64_t start, last_output, end_at = 0;
    (void)self;
    for (i = 0; i < argc; i++) {
        if (is_help(argv[i])) {
            printf(
                "usage: mesh run -n RANKS [--timeout S] [--bare] -- PROGRAM [ARG ...]\n\n"
                "Runs PROGRAM as RANKS processes on this machine. Each gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,\n"
                "MASTER_PORT and a fresh MESH_SECRET; each line it prints gets its rank in front. When one fails it is named, the others are\n"
                "given 2 seconds to say what they saw, and then ended.\n\n"
                "  -n RANKS     how many processes\n"
                "  --bare       print lines as they are, without their rank\n"
                "  --timeout S  end everything when no rank has printed anything for S seconds\n\n"
                "Exit status: that of the first rank that fails (128 + signal), 124 after --timeout, 2 for wrong usage, else 0.\n");
            return 0;
        }
        if (!strcmp(argv[i], "-n") || !strcmp(argv[i], "--timeout")) {
            long v = i + 1 < argc ? number(argv[i + 1]) : -1;
            if (v < 0) return wrong("run", "expected a positive number after", argv[i]);
            *(argv[i][1] == 'n' ? &n : &timeout_s) = (int)v;
            i++;
        } else if (!strcmp(argv[i], "--bare")) {
            bare = 1;
        } else if (!strcmp(argv[i], "--")) {
            i++;
            break;
        } else if (argv[i][0] == '-') {
            return wrong("run", "unknown option", argv[i]);
        } else {
            break;
        }
    }
    if (!n) return wrong("run", "-n RANKS is missing", NULL);
    if (i >= argc) return wrong("run", "no program to run", NULL);
    ranks = (rank *)calloc((size_t)n, sizeof *ranks);
    polls = (struct pollfd *)calloc((size_t)n * 2, sizeof *polls);
    if (!ranks || !polls) return wrong("run", "no memory for the ranks", NULL);
    mesh_socket__raise_files(n * 2);
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (!start_ranks(ranks, n, argv + i)) return 1;
    width = bare ? 0 : mesh__digits(n - 1);
    start = last_output = clock_ms();
    for (left = n, open_streams = 1; left || open_streams;) {
        int k = 0, status;
        pid_t pid;
        for (i = open_streams = 0; i < 2 * n; i++) {
            stream *s = &ranks[i / 2].out[i % 2];
            polls[i].fd = s->fd;
            polls[i].events = POLLIN;
            open_streams += s->fd >= 0;
        }
        give_up_ms = end_at ? end_at + 1000 : 0;
        if (!left && end_at && clock_ms() > end_at + 1000) break; /* a grandchild holds a pipe */
        if (!left && !end_at) end_at = clock_ms();
        if (poll(polls, (nfds_t)(2 * n), 50) > 0)
            for (i = 0; i < 2 * n; i++)
                if (polls[i].fd >= 0 && polls[i].revents) k += pump(&ranks[i / 2].out[i % 2], i / 2, width);
        if (k) last_output = clock_ms();
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
            for (i = 0; i < n && ranks[i].pid != pid; i++) {}
            if (i == n || !ranks[i].running) continue;
            ranks[i].running = 0;
            left--;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
            if (!failed && !signaled) {
                result = describe_end(i, status, clock_ms() - start);
                end_at = clock_ms() + 2000;
            }
            failed = 1;
        }
        if (caught) {
            signaled = caught;
            caught = 0;
            signal_all(ranks, n, signaled);
            result = 128 + signaled;
            end_at = clock_ms() + 5000;
        }
        if (timeout_s && left && !failed && !signaled && clock_ms() - last_output > (int64_t)timeout_s * 1000) {
            fprintf(stderr, "mesh run: no output for %d s; ending rank%s", timeout_s, left > 1 ? "s" : "");
            for (i = 0; i < n; i++)
                if (ranks[i].running) fprintf(stderr, " %d", i);
            fprintf(stderr, "\n");
            result = 124;
            failed = 1;
            end_at = clock_ms();
        }
        if (end_at && left && clock_ms() > end_at) {
            signal_all(ranks, n, failed == 1 ? SIGTERM : SIGKILL);
            failed = 2;
            end_at = clock_ms() + 2000;
        }
    }
    for (i = 0; i < 2 * n; i++) {
        if (ranks[i / 2].out[i % 2].fd >= 0) print_lines(&ranks[i / 2].out[i % 2], i / 2, width, 1);
        free(ranks[i / 2].out[i % 2].line);
    }
    for (i = 0; i < n && result; i++) kill(-ranks[i].pid, SIGTERM); /* what failed ranks have left running */
    free(ranks);
    free(polls);
    return result;
}

/* Is this process a rank of a job already? */
static int in_job(void) {
    static const char *const names[][2] = {{"RANK", "WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"SLURM_PROCID", "SLURM_NTASKS"}};
    size_t i;
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *mine = getenv(names[i][0]), *world = getenv(names[i][1]);
        if (mine && *mine && world && *world) return 1;
    }
    return 0;
}

/* Become `mesh run -n RANKS --bare -- self command args ...`: outside a job a command starts its own. */
static int start_job(const char *self, int ranks, const char *command, int argc, char **argv) {
    char count[16];
    const char **args = (const char **)calloc((size_t)argc + 8, sizeof *args);
    int i, n = 0, status;
    if (!args) return 1;
    snprintf(count, sizeof count, "%d", ranks);
    args[n++] = "-n", args[n++] = count, args[n++] = "--bare", args[n++] = "--", args[n++] = self, args[n++] = command;
    for (i = 0; i < argc; i++) args[n++] = argv[i];
    status = command_run(self, n, (char **)(uintptr_t)args);
    free(args);
    return status;
}

#endif
