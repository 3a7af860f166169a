/* mesh - one command for jobs, tests, benches, pictures and advice. Built by `make`. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../mesh_parallel.h"
#include "../transports/mesh_socket.h"
#include "../tests/conformance.h"
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#if MESH_SOCKET__LINUX
#include <sys/prctl.h>
#endif

static const char usage_text[] =
    "usage: mesh run -n RANKS [option ...] [--] PROGRAM ...        run a program as that many ranks on this machine\n"
    "       mesh test --mesh dp=2,tp=2                             run every collective on every axis and check the values\n"
    "       mesh bench -n 4 [--call all_reduce] [--max 64M]        time an operation, check its values; tune\n"
    "       mesh plan --mesh dp=8 --shape 64x64 SPEC SPEC           explain a redistribution before it runs\n"
    "       mesh zoo tp --mesh dp=4,tp=4                           a parallelism as a table of layouts, with what a step moves\n"
    "       mesh schedule --kind 1f1b -p 4 -m 8                    draw a pipeline, with its bubble and peaks\n"
    "       mesh auto --model FILE --cluster FILE                   the meshes and schedules of a model on a cluster, by predicted time\n"
    "       mesh draw [--dot|--svg] \"pp=2,dp=2,tp=2\"               draw a mesh\n"
    "       mesh table --world 24 [\"tp<=8\" ...]                   list the meshes that a number of ranks allows\n"
    "       mesh trace DIR                                         merge what MESH_TRACE=DIR wrote, and say who is late\n"
    "       mesh doctor [--json]                                   look at this machine, and say what to do\n"
    "       mesh COMMAND --help\n";

static int wrong(const char *command, const char *what, const char *value) {
    fprintf(stderr, "mesh %s: %s%s%s; see mesh %s --help\n", command, what, value ? ": " : "", value ? value : "",
            command);
    return 2;
}

/* An option's value that it does not take. */
static int wrong_value(const char *command, const char *option, const char *takes, const char *value) {
    fprintf(stderr, "mesh %s: %s takes %s, not \"%s\"; see mesh %s --help\n", command, option, takes, value, command);
    return 2;
}

static int is_help(const char *arg) { return !strcmp(arg, "--help") || !strcmp(arg, "-h"); }

/* A whole positive number, or -1. */
static long number(const char *text) {
    char *end;
    long v = strtol(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && v > 0 && v < 1000000 ? v : -1;
}

/* Is `typed` the word but for one letter too many, too few or another, or two that changed places? */
static int nearly(const char *typed, const char *word) {
    size_t a = strlen(typed), b = strlen(word), same = 0;
    while (same < a && same < b && typed[same] == word[same]) same++;
    typed += same, word += same, a -= same, b -= same;
    if (a == b)
        return a && (!strcmp(typed + 1, word + 1) ||
                     (a > 1 && typed[0] == word[1] && typed[1] == word[0] && !strcmp(typed + 2, word + 2)));
    if (a == b + 1) return !strcmp(typed + 1, word);
    return b == a + 1 && !strcmp(typed, word + 1);
}

#include "share_gpu.h"
#include "run.h"
#include "test.h"
#include "bench.h"
#include "plan.h"
#include "draw.h"
#include "zoo.h"
#include "schedule.h"
#include "predict.h"
#include "auto.h"
#include "doctor.h"
#include "trace.h"

static const struct {
    const char *name;
    int (*run)(const char *self, int argc, char **argv);
} commands[] = {{"run", command_run},       {"test", command_test},  {"bench", command_bench},
                {"plan", command_plan},     {"zoo", command_zoo},    {"schedule", command_schedule},
                {"auto", command_auto},     {"draw", command_draw},  {"table", command_table},
                {"doctor", command_doctor}, {"trace", command_trace}};

/* A descriptor that is opened later must not be 0, 1 or 2, where the ranks have theirs. What is printed to a closed stdout is to fail; who runs a job
   without one wants no output. */
static void fill_streams(int runs) {
    int fd;
    for (fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 1 && !runs ? O_RDONLY : O_RDWR) < 0) exit(1);
}

/* The exit status: what was printed has to be there. */
static int ended(const char *command, int status) {
    if (!fflush(stdout) && !ferror(stdout)) return status;
    fprintf(stderr, "mesh%s%s: cannot write to stdout: %s\n", *command ? " " : "", command, strerror(errno));
    return status ? status : 1;
}

int main(int argc, char **argv) {
    static const char names[] =
        "run, test, bench, plan, zoo, schedule, auto, draw, table, trace or doctor; see mesh --help";
    size_t i;
    fill_streams(argc > 1 && !strcmp(argv[1], "run"));
    if (argc < 2) {
        fprintf(stderr, "mesh: no command: %s\n", names);
        return 2;
    }
    if (is_help(argv[1])) {
        fputs(usage_text, stdout);
        return ended("", 0);
    }
    if (!strcmp(argv[1], "--version")) {
        puts("mesh " MESH_VERSION);
        return ended("", 0);
    }
    for (i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (!strcmp(argv[1], commands[i].name)) return ended(argv[1], commands[i].run(argv[0], argc - 2, argv + 2));
    for (i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (nearly(argv[1], commands[i].name)) {
            fprintf(stderr, "mesh: no command \"%s\"; did you mean mesh %s?\n", argv[1], commands[i].name);
            return 2;
        }
    fprintf(stderr, "mesh: no command \"%s\": %s\n", argv[1], names);
    return 2;
}
