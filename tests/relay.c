/* Carries Ethernet frames between two interfaces, each so many milliseconds late: what netem does where the kernel has it. For tests/hosts.sh.
     relay INTERFACE INTERFACE MS */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 10 + 14 + 65536 }; /* what veth carries may be a whole segment with its checksum to be made: a header says so */

typedef struct frame {
    struct frame *next;
    int64_t due;
    size_t nbytes;
    unsigned char data[];
} frame;

typedef struct end_point {
    int fd;
    frame *first, **end;
} end_point;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int port_open(end_point *p, const char *name) {
    struct sockaddr_ll a;
    int on = 1, bytes = 8 << 20;
    struct packet_mreq all;
    memset(&a, 0, sizeof a);
    a.sll_family = AF_PACKET;
    a.sll_protocol = htons(ETH_P_ALL);
    a.sll_ifindex = (int)if_nametoindex(name);
    memset(&all, 0, sizeof all);
    all.mr_ifindex = a.sll_ifindex;
    all.mr_type = PACKET_MR_PROMISC;
    p->first = NULL;
    p->end = &p->first;
    p->fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    setsockopt(p->fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    return p->fd >= 0 && a.sll_ifindex > 0 && setsockopt(p->fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) == 0 &&
           setsockopt(p->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) == 0 &&
           setsockopt(p->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) == 0 && bind(p->fd, (struct sockaddr *)&a, sizeof a) == 0;
}

/* Take in what has come; it is due at the other port later. */
static void port_read(end_point *from, end_point *to, int64_t delay) {
    static unsigned char data[MOST];
    ssize_t n;
    while ((n = recv(from->fd, data, sizeof data, MSG_DONTWAIT)) > 0) {
        frame *f = (frame *)malloc(sizeof *f + (size_t)n);
        if (!f) return;
        f->next = NULL;
        f->due = now() + delay;
        f->nbytes = (size_t)n;
        memcpy(f->data, data, (size_t)n);
        *to->end = f;
        to->end = &f->next;
    }
}

/* Send what is due. Returns when the next one is. */
static int64_t port_write(end_point *p) {
    frame *f;
    while ((f = p->first) != NULL && f->due <= now()) {
        if (send(p->fd, f->data, f->nbytes, 0) < 0) perror("relay: a frame is lost");
        if (!(p->first = f->next)) p->end = &p->first;
        free(f);
    }
    return f ? f->due : INT64_MAX;
}

int main(int argc, char **argv) {
    end_point port[2];
    int64_t delay = argc == 4 ? atoll(argv[3]) * 1000000 : -1;
    if (delay < 0 || !port_open(&port[0], argv[1]) || !port_open(&port[1], argv[2])) {
        perror("relay INTERFACE INTERFACE MS");
        return 2;
    }
    printf("carries\n");
    fflush(stdout);
    for (;;) {
        int64_t a = port_write(&port[0]), b = port_write(&port[1]), next = a < b ? a : b, wait = next - now();
        struct pollfd p[2] = {{port[0].fd, POLLIN, 0}, {port[1].fd, POLLIN, 0}};
        struct timespec t = {wait > 0 ? wait / 1000000000 : 0, wait > 0 ? wait % 1000000000 : 0};
        ppoll(p, 2, next == INT64_MAX ? NULL : &t, NULL);
        port_read(&port[0], &port[1], delay);
        port_read(&port[1], &port[0], delay);
    }
}
