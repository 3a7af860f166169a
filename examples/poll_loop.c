/* Collectives in a program's own poll loop, beside its other descriptors: mesh run -n 4 -- build/poll_loop

   Every rank has a client (a pipe; here a child feeds it) that asks for sums over all ranks. The loop sleeps until a client speaks or the library has
   something to do; neither waits for the other. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "ends.h"
#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { JOBS = 5 };

static int client(void) { /* a child that asks JOBS times; returns where to listen to it */
    int line[2], k;
    pid_t pid;
    if (pipe(line)) return -1;
    if ((pid = fork()) < 0) return -1;
    if (pid == 0) {
        close(line[0]);
        for (k = 1; k <= JOBS; k++) {
            poll(NULL, 0, (int)(getpid() % 7));
            if (write(line[1], &k, sizeof k) != sizeof k) _exit(1);
        }
        _exit(0);
    }
    close(line[1]);
    return line[0];
}

int main(int argc, char **argv) {
    mesh_error err;
    mesh_socket net;
    mesh m;
    mesh_comm comm;
    mesh_request request[JOBS];
    int value[JOBS], sum[JOBS], asked = 0, answered = 0;
    struct pollfd wait_for[2];
    if (any_argument(argc, argv, "mesh run -n 4 -- build/poll_loop")) return 2;
    if (mesh_socket_open(&net, NULL, &err) || mesh_parse(&m, "dp=-1", mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return fprintf(stderr, "%s\n", err.text), 1;
    if ((wait_for[0].fd = client()) < 0) return perror("client"), 1;
    wait_for[1].fd = mesh_fd(&net.base);
    wait_for[0].events = wait_for[1].events = POLLIN;
    if (wait_for[1].fd < 0) return fprintf(stderr, "no descriptor to wait for on this system\n"), 1;
    while (answered < JOBS) {
        int64_t wake, now = 0, left = 0;
        mesh_status status;
        while (answered < asked && (status = mesh_test(request[answered])) != MESH_IN_PROGRESS) {
            if (status != MESH_OK) return fprintf(stderr, "%s\n", comm.error.text), 1;
            if (net.base.rank == 0) printf("sum of job %d over %d ranks: %d\n", answered, net.base.size, sum[answered]);
            answered++;
        }
        if (answered == JOBS) break;
        /* What was due meanwhile is due at once: below 0 poll waits for ever. */
        if (mesh_arm(&net.base, &wake) == MESH_OK && (wake == INT64_MAX || wake > (now = mesh_now(&net.base))))
            left = wake == INT64_MAX ? -1 : (wake - now) / 1000000 + 1;
        if (poll(wait_for, 2, left > 60000 ? 60000 : (int)left) < 0) continue;
        if (asked < JOBS && wait_for[0].revents) {
            if (read(wait_for[0].fd, &value[asked], sizeof *value) != sizeof *value)
                return fprintf(stderr, "rank %d's client ended after %d of %d jobs\n", net.base.rank, asked, JOBS), 1;
            value[asked] += 100 * net.base.rank;
            if (mesh_all_reduce_start(&comm, "dp", &value[asked], &sum[asked], 1, MESH_I32, MESH_SUM, &request[asked]))
                return fprintf(stderr, "%s\n", comm.error.text), 1;
            if (++asked == JOBS) wait_for[0].fd = -1; /* poll passes it over */
        }
        mesh_progress(&net.base, 0);
    }
    wait(NULL);
    mesh_comm_close(&comm);
    return finish("poll_loop", mesh_socket_close(&net));
}
