/* A campaign of faults: every operation, on the simulator, over TCP, Unix sockets and shared memory, 2 to 8 ranks; one rank is killed, stopped, leaves, calls wrongly,
   never calls, or loses a connection, at a moment drawn from a seed. Each survivor has to say so, name the right rank, end, and leave nothing.
     build/faults [--trials N] [--seed N] [--jobs N] [--lanes shared,alloc,...] [--faults sigkill,...] [--table FILE] [--csv FILE]
     build/faults --trial 'tcp 5 all_reduce sigkill 2 seed 1234'      one of them again, with what every rank said
   Linux only. As root every trial over sockets has a network and a /tmp of its own, so that leftovers can be told. */
#define _GNU_SOURCE
#define MESH_IMPLEMENTATION
#include <sys/socket.h>
#include <sys/uio.h>
#include <poll.h>
#include <dirent.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/mount.h>
#include <sys/prctl.h>

/* The transport's system calls are moments too. */
static ssize_t moment_sendmsg(int fd, const struct msghdr *m, int flags);
static ssize_t moment_recvmsg(int fd, struct msghdr *m, int flags);
static int moment_poll(struct pollfd *p, nfds_t n, int timeout_ms);
#define sendmsg moment_sendmsg
#define recvmsg moment_recvmsg
#define poll moment_poll
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_sim.h"
#include "../transports/mesh_socket.h"
#undef sendmsg
#undef recvmsg
#undef poll
#include "harness.h"
#include "worlds.h"
#include "faults_ops.h"

/* SIGSTOP: never continued; PAUSE: continued after a while. LEAVE: closes in good order while it is needed. */
#define FAULTS(X) X(sigkill) X(sigstop) X(pause) X(exit) X(leave) X(cut) X(wrong) X(absent)
#define X(name) FAULT_##name,
enum { FAULTS(X) FAULT_COUNT };
#undef X
#define X(name) #name,
static const char *const fault_names[] = {FAULTS(X)};
#undef X

/* LANE_ALLOC: shared memory, and what is sent and received lies in mesh_alloc's; that of one rank in four does not. */
enum { LANE_SIM, LANE_TCP, LANE_UNIX, LANE_SHARED, LANE_ALLOC, LANES };
static const char *const lane_names[] = {"sim", "tcp", "unix", "shared", "alloc"};

/* A moment is the n-th call of a kind since the fault was armed, or a byte: the message in which it goes is cut there. Or so many us after, wherever it is
   then: what goes through shared memory makes no calls. */
enum { AT_CALL, AT_SENT, AT_RECEIVED, AT_TIME };

typedef struct trial {
    int lane, ranks, op, fault, victim;
    uint64_t seed;
    /* drawn from the seed: */
    int rounds, fault_round, mode, moment, wrong, root, axes, shape, peer, pause_ms;
    int64_t moment_n, ask_ns, timeout_ns;
    size_t count;
    mesh_dtype dtype;
    mesh_op reduction;
} trial;

typedef struct said {
    int status, rank, ended, rounds, wrong_data, fds_left, blocks_left;
    int64_t at; /* on the fault's clock */
    char text[MESH_ERROR_BYTES];
} said;

/* What a trial's processes share. */
typedef struct outcome {
    said rank[MOST_RANKS];
    volatile int fired, survivors_ended, other_end; /* other_end: of a cut link */
    volatile int64_t fault_at;
    int hung, processes_left, sockets_left, files_left, bare; /* bare: no namespace of its own */
    int judged, bad;
    char verdict[400];
    double seconds;
} outcome;

static trial now_on;   /* the trial this process runs */
static outcome *shared;

/* ---- the trial a line or a seed describes ---- */

static int trial_applies(const trial *t) {
    int opens = t->op == OP_transport_open || t->op == OP_transport_close, sim = t->lane == LANE_SIM;
    if (sim && opens) return 0;
    if (t->op == OP_transport_open) return t->fault != FAULT_leave && t->fault != FAULT_cut && t->fault != FAULT_wrong;
    if (t->op == OP_transport_close) return t->fault != FAULT_leave && t->fault != FAULT_wrong && t->fault != FAULT_absent;
    if (t->op == OP_comm_close) return t->fault != FAULT_wrong;
    return 1;
}

/* 1 to most, as many of each size. */
static int64_t random_log(test_random *r, int64_t most) {
    int bits = 1;
    int64_t v;
    while (INT64_C(1) << bits <= most) bits++;
    bits = random_below(r, bits);
    v = (INT64_C(1) << bits) + random_below(r, 1 << bits);
    return v < most ? v : most;
}

static void trial_draw(trial *t) {
    test_random r;
    test_seed = t->seed;
    r = random_from((uint64_t)((t->op * 64 + t->fault) * 64 + t->lane * 16 + t->ranks));
    t->rounds = t->op == OP_group_open ? 1 : 2 + random_below(&r, 4);
    t->fault_round = random_below(&r, t->rounds);
    t->mode = random_below(&r, 3);
    t->count = (size_t)random_log(&r, random_below(&r, 3) ? 2000 : MOST_COUNT);
    t->dtype = random_below(&r, 2) ? MESH_F32 : MESH_I32;
    t->reduction = random_below(&r, 2) ? MESH_SUM : MESH_MAX;
    t->root = random_below(&r, 8);
    t->shape = random_below(&r, 3); /* 0: two axes, where there can be */
    t->axes = random_below(&r, 3);
    t->peer = (t->victim + 1 + random_below(&r, t->ranks - 1)) % t->ranks;
    t->moment = t->lane == LANE_SIM || random_below(&r, 2) ? AT_CALL : random_below(&r, 2) ? AT_SENT : AT_RECEIVED;
    if (t->lane >= LANE_SHARED && t->fault <= FAULT_exit && random_below(&r, 2)) t->moment = AT_TIME;
    t->moment_n = random_log(&r, t->moment == AT_CALL ? 300 : t->moment == AT_TIME ? 20000 : 4 * (int64_t)t->count + 400);
    t->pause_ms = 1 + random_below(&r, 300);
    t->ask_ns = (int64_t)(random_below(&r, 2) ? 20 : 200) * 1000000;
    t->timeout_ns = 60 * SECOND;
    if (t->fault == FAULT_sigstop || t->fault == FAULT_absent || (t->lane == LANE_SIM && t->fault == FAULT_cut)) t->timeout_ns = 2 * SECOND;
    if (t->fault == FAULT_wrong && t->mode == POLLING) t->timeout_ns = 3 * SECOND;
    t->wrong = 1 + random_below(&r, WRONGS - 1);
    while (t->op < OP_comm_open && !op_can_be_wrong(t->op, t->wrong)) t->wrong = t->wrong % (WRONGS - 1) + 1;
    if (t->op == OP_redistribute && t->wrong == WRONG_NULL) t->wrong = WRONG_COUNT; /* who has no elements may give NULL */
}

static void trial_line(const trial *t, char *text, size_t cap) {
    snprintf(text, cap, "%s %d %s %s %d seed %" PRIu64, lane_names[t->lane], t->ranks, op_names[t->op], fault_names[t->fault], t->victim, t->seed);
}

static int name_of(const char *text, const char *const *names, int n) {
    int i;
    for (i = 0; i < n && strcmp(text, names[i]); i++) {}
    return i;
}

static int trial_read(trial *t, const char *text) {
    char lane[16], op[32], fault[16];
    memset(t, 0, sizeof *t);
    if (sscanf(text, "%15s %d %31s %15s %d seed %" SCNu64, lane, &t->ranks, op, fault, &t->victim, &t->seed) != 6) return 0;
    t->lane = name_of(lane, lane_names, LANES);
    t->op = name_of(op, op_names, OP_COUNT);
    t->fault = name_of(fault, fault_names, FAULT_COUNT);
    if (t->lane == LANES || t->op == OP_COUNT || t->fault == FAULT_COUNT || t->ranks < 2 || t->ranks > MOST_RANKS ||
        t->victim < 0 || t->victim >= t->ranks || !trial_applies(t))
        return 0;
    trial_draw(t);
    return 1;
}

/* ---- the moment ---- */

typedef struct moments {
    const mesh_ops *real;
    mesh_ops ops;
    mesh_transport *transport;
    mesh_socket *net;
    int armed;
    int64_t left;
} moments;
static moments moment[MOST_RANKS];
static int my_rank; /* of this process; over sockets */

static int64_t fault_clock(const mesh_transport *t) {
    struct timespec now;
    if (now_on.lane == LANE_SIM) return t->ops->now((mesh_transport *)(uintptr_t)t);
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Cut the connection to the drawn peer, or to the first there is: both ends find it reset. */
static int cut_link(moments *m) {
    mesh_socket__impl *s = m->net && m->net->impl ? (mesh_socket__impl *)m->net->impl : NULL;
    struct linger at_once = {1, 0};
    int i, to = now_on.peer, pair[2], fd;
    if (!s) return 0;
    for (i = 0; i < now_on.ranks && !s->peer[to].conn; i++) to = i;
    if (!s->peer[to].conn || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return 0;
    fd = s->peer[to].conn->fd;
    close(pair[1]);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    dup3(pair[0], fd, O_CLOEXEC);
    close(pair[0]);
    shared->other_end = to;
    return 1;
}

/* The fault happens. */
static void fire(moments *m) {
    mesh_transport *t = m->transport;
    m->armed = 0;
    if (now_on.fault == FAULT_cut && !cut_link(m)) {
        m->armed = now_on.lane != LANE_SIM;
        m->left = 1;
        return;
    }
    shared->fault_at = fault_clock(t);
    shared->fired = 1;
    if (now_on.lane == LANE_SIM) {
        if (now_on.fault == FAULT_sigkill) mesh_sim_die(t);
        if (now_on.fault == FAULT_sigstop) mesh_sim_sleep(t, 3600 * SECOND);
        if (now_on.fault == FAULT_pause) mesh_sim_sleep(t, now_on.pause_ms * (SECOND / 1000));
        return;
    }
    if (now_on.fault == FAULT_sigkill) kill(getpid(), SIGKILL);
    if (now_on.fault == FAULT_sigstop || now_on.fault == FAULT_pause) kill(getpid(), SIGSTOP);
    if (now_on.fault == FAULT_exit) _exit(0);
}

static void moment_call(int rank) {
    moments *m = &moment[rank];
    if (m->armed && now_on.moment == AT_CALL && --m->left <= 0) fire(m);
}

static void moment_came(int signal_number) {
    (void)signal_number;
    if (moment[my_rank].armed) fire(&moment[my_rank]);
}

/* So many bytes may go before the moment. */
static ssize_t moment_bytes(int kind, size_t want) {
    moments *m = &moment[my_rank];
    if (!m->armed || now_on.moment != kind) return (ssize_t)want;
    if (m->left <= 0) fire(m);
    return m->armed && m->left > 0 && (int64_t)want > m->left ? (ssize_t)m->left : (ssize_t)want;
}

/* The first n bytes of what a message describes. */
static struct msghdr shortened(const struct msghdr *m, struct iovec *v, size_t most) {
    struct msghdr out = *m;
    size_t i, all = 0;
    for (i = 0; i < (size_t)m->msg_iovlen && i < 64 && all < most; i++) {
        v[i] = m->msg_iov[i];
        if (v[i].iov_len > most - all) v[i].iov_len = most - all;
        all += v[i].iov_len;
    }
    out.msg_iov = v;
    out.msg_iovlen = i;
    return out;
}

static size_t message_bytes(const struct msghdr *m) {
    size_t i, all = 0;
    for (i = 0; i < (size_t)m->msg_iovlen; i++) all += m->msg_iov[i].iov_len;
    return all;
}

static ssize_t moment_sendmsg(int fd, const struct msghdr *m, int flags) {
    struct iovec v[64];
    struct msghdr part;
    ssize_t n;
    moment_call(my_rank);
    part = shortened(m, v, (size_t)moment_bytes(AT_SENT, message_bytes(m)));
    n = sendmsg(fd, &part, flags);
    if (n > 0 && now_on.moment == AT_SENT) moment[my_rank].left -= n;
    return n;
}

static ssize_t moment_recvmsg(int fd, struct msghdr *m, int flags) {
    struct iovec v[64];
    struct msghdr part;
    ssize_t n;
    moment_call(my_rank);
    part = shortened(m, v, (size_t)moment_bytes(AT_RECEIVED, message_bytes(m)));
    n = recvmsg(fd, &part, flags);
    m->msg_controllen = part.msg_controllen;
    if (n > 0 && now_on.moment == AT_RECEIVED) moment[my_rank].left -= n;
    return n;
}

static int moment_poll(struct pollfd *p, nfds_t n, int timeout_ms) {
    moment_call(my_rank);
    return poll(p, n, timeout_ms);
}

static mesh_status moment_post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    moment_call(t->rank);
    return moment[t->rank].real->post(t, p, ticket);
}
static mesh_status moment_test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    moment_call(t->rank);
    return moment[t->rank].real->test(t, ticket, why);
}
static mesh_status moment_progress(mesh_transport *t, int64_t deadline) {
    moment_call(t->rank);
    return moment[t->rank].real->progress(t, deadline);
}
static mesh_status moment_control_send(mesh_transport *t, int rank, int kind, const void *data, size_t nbytes) {
    moment_call(t->rank);
    return moment[t->rank].real->control_send(t, rank, kind, data, nbytes);
}

static void moments_watch(mesh_transport *t) {
    moments *m = &moment[t->rank];
    m->real = t->ops;
    m->ops = *t->ops;
    m->transport = t;
    m->ops.post = moment_post;
    m->ops.test = moment_test;
    m->ops.progress = moment_progress;
    m->ops.control_send = moment_control_send;
    t->ops = &m->ops;
}

/* From now on the victim's moments count. Some faults are not of a moment but of a round. */
static void arm(int rank) {
    moments *m = &moment[rank];
    if (rank != now_on.victim || shared->fired || now_on.fault == FAULT_leave || now_on.fault == FAULT_wrong || now_on.fault == FAULT_absent)
        return;
    if (now_on.lane == LANE_SIM && (now_on.fault == FAULT_exit || now_on.fault == FAULT_cut)) return;
    m->left = now_on.moment_n;
    m->armed = 1;
    if (now_on.moment == AT_TIME) {
        struct itimerval at = MESH_ZERO;
        at.it_value.tv_usec = now_on.moment_n;
        signal(SIGALRM, moment_came);
        setitimer(ITIMER_REAL, &at, NULL);
    }
}

/* The last chance: before the barrier that all have to reach. */
static void fire_at_last(int rank) {
    moments *m = &moment[rank];
    if (m->armed) m->left = 0, fire(m);
    m->armed = 0;
}

/* ---- one rank ---- */

static int blocks; /* allocations that live, of this process */
static void *counted_alloc(void *ctx, size_t n) {
    void *p = malloc(n);
    (void)ctx;
    if (p) __sync_add_and_fetch(&blocks, 1);
    return p;
}
static void counted_free(void *ctx, void *p) {
    (void)ctx;
    __sync_sub_and_fetch(&blocks, 1);
    free(p);
}

static void quiet(void *ctx, int level, const char *text) { (void)ctx, (void)level, (void)text; }

static void said_now(mesh_transport *t, int rank, mesh_status status, const mesh_error *err) {
    said *s = &shared->rank[rank];
    if (s->ended) return;
    s->status = status;
    s->rank = err && status != MESH_OK ? err->rank : -1;
    if (err && status != MESH_OK) snprintf(s->text, sizeof s->text, "%s", err->text);
    s->at = fault_clock(t);
    s->ended = 1;
}

static mesh_status rank_open(mesh_comm *c, mesh_transport *t, int wrong, mesh_error *err) {
    mesh_comm_desc desc = MESH_ZERO;
    mesh m;
    char text[32];
    int n = t->size;
    if ((n % 2 == 0 && n > 2 && now_on.shape == 0) || now_on.op == OP_group_open)
        snprintf(text, sizeof text, "dp=%d,tp=2", n / 2);
    else
        snprintf(text, sizeof text, "x=%d", n);
    if (wrong) snprintf(text, sizeof text, "odd=%d", n);
    desc.timeout_ns = now_on.timeout_ns;
    desc.ask_ns = now_on.ask_ns;
    mesh_parse(&m, text, n, NULL);
    return mesh_comm_open(c, t, &m, &desc, err);
}

static void call_describe(call *q, mesh_comm *c) {
    mesh group;
    int i, two = c->on.naxes == 2;
    q->c = c;
    q->axes = two && now_on.axes ? c->on.axis[now_on.axes - 1].name : now_on.axes == 1 ? c->on.axis[0].name : NULL;
    if (now_on.op == OP_halo) q->axes = c->on.axis[0].name;
    if (now_on.op == OP_redistribute || now_on.op == OP_group_open) q->axes = NULL;
    q->n = mesh_comm_size(c, q->axes);
    q->me = mesh_comm_index(c, q->axes);
    if (q->axes)
        mesh_group_through(&group, &c->on, q->axes, c->transport->rank, NULL);
    else
        group = c->on;
    for (i = 0; i < q->n; i++) q->member[i] = mesh_rank_at(&group, i);
    q->what = now_on.op >= OP_comm_open ? OP_all_reduce : now_on.op;
    q->root = now_on.root % q->n;
    if (q->what == OP_redistribute) q->root = now_on.root;
    q->count = now_on.count;
    q->dtype = now_on.dtype;
    q->op = now_on.reduction;
    q->mode = now_on.mode;
}

/* The victim leaves here, or never calls. Returns 1 if this rank makes no more calls. */
static int victim_goes(mesh_transport *t) {
    int sim = now_on.lane == LANE_SIM;
    shared->fired = 1;
    shared->fault_at = fault_clock(t);
    if (now_on.fault == FAULT_absent && sim) mesh_sim_sleep(t, 3600 * SECOND);
    if (now_on.fault != FAULT_absent) return 1;
    while (!sim && shared->survivors_ended < now_on.ranks - 1) test_sleep(0.002);
    if (!sim) _exit(0);
    return 1;
}

/* A round of opening and closing a comm beside the one there is. */
static mesh_status comm_round(mesh_transport *t, int wrong, mesh_error *err) {
    mesh_comm other;
    mesh_status status = rank_open(&other, t, wrong, err);
    if (status != MESH_OK) return status;
    status = mesh_barrier(&other, NULL);
    *err = other.error;
    mesh_comm_close(&other);
    return status;
}

/* Where what is sent or received lies. */
static int room_is_shared(const mesh_transport *t) { return now_on.lane == LANE_ALLOC && ((uint64_t)t->rank + now_on.seed) % 4; }
static int32_t *room_take(mesh_transport *t) {
    void *p = NULL;
    mesh_error err;
    if (!room_is_shared(t)) return (int32_t *)malloc(ROOM * sizeof(int32_t));
    if (mesh_alloc(t, ROOM * sizeof(int32_t), &p, &err) != MESH_OK) fprintf(stderr, "faults: %s\n", err.text), abort();
    return (int32_t *)p;
}
static void room_give(mesh_transport *t, int32_t *p) {
    mesh_error err;
    if (!room_is_shared(t))
        free(p);
    else if (mesh_free(t, p, &err) != MESH_OK)
        fprintf(stderr, "faults: %s\n", err.text), abort();
}

/* All rounds, then a barrier that needs everyone. Returns how it ended. */
static mesh_status rank_rounds(mesh_transport *t, mesh_comm *c, mesh_error *err) {
    call q;
    int round, is_victim = t->rank == now_on.victim, gone = 0;
    mesh_status status = MESH_OK;
    memset(&q, 0, sizeof q);
    q.a = room_take(t);
    q.b = room_take(t);
    call_describe(&q, c);
    if (now_on.op != OP_transport_close) arm(t->rank);
    for (round = 0; round < now_on.rounds && status == MESH_OK && !gone; round++) {
        int at_fault = is_victim && round == now_on.fault_round;
        q.round = round;
        q.wrong = at_fault && now_on.fault == FAULT_wrong ? now_on.wrong : RIGHT;
        if (q.wrong) shared->fault_at = fault_clock(t), shared->fired = 1;
        if (at_fault && (now_on.fault == FAULT_leave || now_on.fault == FAULT_absent || (now_on.lane == LANE_SIM && now_on.fault == FAULT_exit)))
            gone = victim_goes(t);
        if (gone) break;
        if (now_on.op == OP_comm_open) {
            status = comm_round(t, q.wrong, err);
            continue;
        }
        status = op_run(&q);
        *err = c->error;
        if (status == MESH_OK && !(now_on.fault == FAULT_wrong && round >= now_on.fault_round) && !op_right(&q))
            shared->rank[t->rank].wrong_data = 1 + round;
        shared->rank[t->rank].rounds += status == MESH_OK;
        if (now_on.op == OP_comm_close && status == MESH_OK) { /* and opened again for the next round */
            mesh_comm_close(c);
            status = rank_open(c, t, 0, err);
            if (status == MESH_OK) call_describe(&q, c);
        }
    }
    if (!gone && now_on.op != OP_transport_close) fire_at_last(t->rank);
    if (status == MESH_OK && !gone) {
        status = mesh_barrier(c, NULL);
        *err = c->error;
    }
    if (gone) status = MESH_IN_PROGRESS;
    if (q.object.data) mesh_object_free(c, &q.object);
    room_give(t, q.a);
    room_give(t, q.b);
    return status;
}

static void rank_main_of(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_error err = MESH_ZERO;
    mesh_status status;
    (void)ctx;
    memset(&c, 0, sizeof c);
    moments_watch(t);
    status = rank_open(&c, t, 0, &err);
    if (status == MESH_OK && now_on.op == OP_transport_open) fire_at_last(t->rank);
    if (status == MESH_OK) status = rank_rounds(t, &c, &err);
    if (now_on.op != OP_transport_close || status != MESH_OK) said_now(t, t->rank, status, &err);
    mesh_comm_close(&c);
    if (now_on.lane == LANE_SIM) t->ops = moment[t->rank].real;
}

static int descriptors(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static void rank_process(int rank, int port, int fd) {
    mesh_socket net;
    mesh_error err = MESH_ZERO;
    mesh_status status;
    mesh_transport clock = MESH_ZERO;
    mesh_socket_desc d = socket_desc(rank, now_on.ranks, port, fd);
    int before;
    my_rank = rank;
    if (rank) close(fd);
    before = descriptors() - !rank; /* rank 0's listening socket is the transport's */
    d.lanes = now_on.lane == LANE_TCP ? MESH_SOCKET_TCP : now_on.lane == LANE_UNIX ? MESH_SOCKET_UNIX : MESH_SOCKET_AUTO;
    d.log = quiet;
    d.allocator.alloc = counted_alloc;
    d.allocator.free = counted_free;
    d.open_timeout_ns = now_on.op == OP_transport_open && now_on.fault != FAULT_pause ? 3 * SECOND : 60 * SECOND;
    moment[rank].net = &net;
    memset(&net, 0, sizeof net);
    if (now_on.op == OP_transport_open && rank == now_on.victim && now_on.fault == FAULT_absent) victim_goes(&clock);
    if (now_on.op == OP_transport_open) arm(rank);
    status = mesh_socket_open(&net, &d, &err);
    if (status == MESH_OK) {
        rank_main_of(&net.base, NULL);
        if (now_on.op == OP_transport_close) arm(rank);
        status = mesh_socket_close(&net);
        if (now_on.op == OP_transport_close) fire_at_last(rank);
    }
    said_now(&clock, rank, status, &err);
    shared->rank[rank].fds_left = descriptors() - before;
    shared->rank[rank].blocks_left = blocks;
    _exit(0);
}

static void sim_process(void) {
    mesh_sim_desc d = MESH_ZERO;
    mesh_sim_fault drop = MESH_ZERO;
    mesh_error err;
    int i;
    d.ranks = now_on.ranks;
    d.seed = now_on.seed;
    d.jitter_ns = 3000;
    d.log = quiet;
    d.allocator.alloc = counted_alloc;
    d.allocator.free = counted_free;
    drop.kind = MESH_SIM_DROP;
    drop.rank = now_on.victim;
    drop.peer = now_on.peer;
    drop.at = (int)now_on.moment_n % 7;
    d.fault = &drop;
    d.faults = now_on.fault == FAULT_cut;
    if (d.faults) shared->fired = 1, shared->other_end = now_on.peer;
    mesh_sim_run(&d, rank_main_of, NULL, &err);
    for (i = 0; i < now_on.ranks; i++) shared->rank[i].blocks_left = blocks;
    _exit(0);
}

/* ---- one trial, in a process of its own ---- */

/* A network, a /tmp and a /dev/shm of our own: what is in them at the end was left there. */
static int own_world(void) {
    struct ifreq lo;
    int fd;
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) return 0;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("none", "/tmp", "tmpfs", 0, "") || mount("none", "/dev/shm", "tmpfs", 0, ""))
        return 0;
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    memset(&lo, 0, sizeof lo);
    strcpy(lo.ifr_name, "lo");
    lo.ifr_flags = IFF_UP | IFF_RUNNING;
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo) != 0) return 0;
    close(fd);
    return 1;
}

static int entries(const char *path) {
    DIR *d = opendir(path);
    struct dirent *e;
    int n = 0;
    while (d && (e = readdir(d)) != NULL) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* Sockets that still stand: listening or connected ones, not those whose two ends have said goodbye. */
static int sockets(void) {
    static const char *const tables[] = {"/proc/self/net/tcp", "/proc/self/net/tcp6", "/proc/self/net/unix"};
    char line[512];
    int i, n = 0;
    for (i = 0; i < 3; i++) {
        FILE *f = fopen(tables[i], "r");
        int first = 1;
        unsigned state;
        while (f && fgets(line, sizeof line, f)) {
            if (!first) n += i == 2 || (sscanf(line, "%*s %*s %*s %x", &state) == 1 && (state == 1 || state == 10 || state == 8));
            first = 0;
        }
        if (f) fclose(f);
    }
    return n;
}

static void trial_run(double limit) {
    pid_t pid[MOST_RANKS] = {0};
    int ended[MOST_RANKS] = {0}, continued = 0, port = 0, fd = -1, n = now_on.lane == LANE_SIM ? 1 : now_on.ranks, left, i, status;
    double deadline = test_now() + limit, stopped = 0;
    setpgid(0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (now_on.lane != LANE_SIM) {
        shared->bare = !own_world();
        fd = listen_loopback(AF_INET, &port);
        if (fd < 0) _exit(3);
    }
    for (i = 0; i < n; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            if (now_on.lane == LANE_SIM) sim_process();
            rank_process(i, port, fd);
        }
        if (pid[i] < 0) _exit(4);
    }
    if (fd >= 0) close(fd);
    for (left = n; left > 0 && test_now() < deadline;) {
        pid_t got = waitpid(-1, &status, WNOHANG | WUNTRACED);
        for (i = 0; got > 0 && i < n && pid[i] != got; i++) {}
        if (got > 0 && i < n && WIFSTOPPED(status)) {
            stopped = test_now();
        } else if (got > 0 && i < n) {
            ended[i] = 1;
            left--;
            if (i != now_on.victim) shared->survivors_ended++;
        }
        if (stopped && !continued && now_on.fault == FAULT_pause && test_now() > stopped + now_on.pause_ms * 1e-3)
            continued = 1, kill(pid[now_on.victim], SIGCONT);
        if (stopped && now_on.fault == FAULT_sigstop && left == 1 && !ended[now_on.victim]) kill(pid[now_on.victim], SIGKILL);
        if (got <= 0) test_sleep(0.001);
    }
    shared->hung = left;
    for (i = 0; i < n; i++)
        if (!ended[i]) kill(pid[i], SIGKILL), waitpid(pid[i], &status, 0);
    shared->processes_left = waitpid(-1, &status, WNOHANG) >= 0; /* -1: no child is left, nor grandchild */
    if (now_on.lane != LANE_SIM && !shared->bare) {
        for (i = 0; i < 100 && sockets(); i++) test_sleep(0.002); /* the kernel closes those of the killed */
        shared->sockets_left = sockets();
        shared->files_left = entries("/tmp") + entries("/dev/shm");
    }
    _exit(0);
}

/* ---- what has to have been said ---- */

static int names(const char *text, int rank) {
    char want[16];
    const char *p = text;
    size_t n = (size_t)snprintf(want, sizeof want, "rank %d", rank);
    for (; (p = strstr(p, want)) != NULL; p += n)
        if (p[n] < '0' || p[n] > '9') return 1;
    return 0;
}

/* Did the rank that is named close its transport before, because of the fault? That is why it is not there, and may be all that can be known:
   to who opens a comm late, or where others that knew the cause had ended well and left (a link that they did not need was cut). */
static int has_left_since(const said *s) {
    int opening = !strncmp(s->text, "mesh_comm_open: ", 16);
    return (opening || now_on.fault == FAULT_cut) && s->rank >= 0 && shared->rank[s->rank].ended && shared->rank[s->rank].status != MESH_OK &&
           shared->rank[s->rank].at <= s->at && (strstr(s->text, "closed its transport") || strstr(s->text, "cannot reach"));
}

/* An opening names all that are missing, some of them because they still wait for the one at fault. */
static int is_missing(const char *text, int rank) {
    const char *p = strstr(text, "still missing: ") ? strstr(text, "still missing: ") : strstr(text, "; missing: ");
    for (p = p ? strstr(p, "rank") : NULL; p && *p && *p != ';'; p++)
        if (*p >= '0' && *p <= '9' && strtol(p, (char **)(uintptr_t)&p, 10) == rank) return 1;
    return 0;
}

static int is_argument(int wrong) { return wrong == WRONG_NULL || wrong == WRONG_AXIS || wrong == WRONG_TYPE; }

/* NULL, or what is wrong with what a survivor said. */
static const char *judge_said(const trial *t, const said *s, int rank) {
    int v = t->victim, sim = t->lane == LANE_SIM;
    if (!s->ended) return "said nothing";
    if (s->wrong_data && !(sim && t->fault == FAULT_cut)) return "OK with wrong data";
    if (s->fds_left > 0) return "left descriptors";
    if (s->blocks_left) return "left memory";
    if (t->op == OP_transport_close) return s->rank >= 0 && s->rank != v ? "named an innocent rank" : NULL;
    switch (t->fault) {
    case FAULT_pause:
        return s->status == MESH_OK ? NULL : "accused somebody of a pause";
    case FAULT_sigkill:
    case FAULT_exit:
    case FAULT_leave:
        if (t->op == OP_transport_open && (s->status == MESH_ERR_TIMEOUT || s->status == MESH_ERR_TRANSPORT)) return s->rank == v ? NULL : "named an innocent rank";
        if (s->status != MESH_ERR_PEER) return "another status than PEER";
        if (has_left_since(s)) return NULL;
        return s->rank == v ? NULL : s->rank < 0 ? "named nobody" : "named an innocent rank";
    case FAULT_sigstop:
    case FAULT_absent:
        if (has_left_since(s)) return NULL;
        /* whose own opening was done hears that rank 0 has given its up, and why */
        if (t->op == OP_transport_open && s->status == MESH_ERR_PEER && strstr(s->text, "but then said nothing") && names(s->text, v)) return NULL;
        if (s->status != MESH_ERR_TIMEOUT) return "another status than TIMEOUT";
        if (is_missing(s->text, v) || strstr(s->text, "(or waits for another rank)")) return NULL;
        return s->rank == v ? NULL : s->rank < 0 ? "named nobody" : "named an innocent rank";
    case FAULT_cut:
        if (s->status == MESH_OK) return NULL;
        if (sim) return NULL; /* a transport loses nothing: all that can be asked is an end */
        if (s->status != MESH_ERR_PEER) return "another status than PEER";
        if (has_left_since(s)) return NULL;
        if ((rank == v || rank == shared->other_end) && strstr(s->text, "it has given this rank up")) return NULL;
        return s->rank == v || s->rank == shared->other_end ? NULL : "named an innocent rank";
    default: /* wrong */
        if (t->op != OP_comm_open && is_argument(t->wrong)) {
            if (s->status != MESH_ERR_ARGUMENT && s->status != MESH_ERR_UNSUPPORTED) return "another status than ARGUMENT";
            if (rank == v) return NULL;
            return s->rank == v && names(s->text, v) ? NULL : "named an innocent rank";
        }
        if (s->status == MESH_ERR_TIMEOUT && t->mode == POLLING) return NULL; /* the deadline decides, and names who is awaited */
        if (s->status != MESH_ERR_MISMATCH) return "another status than MISMATCH";
        return names(s->text, v) ? NULL : "did not name the right rank";
    }
}

static void judge(const trial *t) {
    int i;
    now_on = *t;
    shared->judged = 1;
    for (i = 0; i < t->ranks && !shared->bad; i++) {
        const char *what = NULL;
        int spared = i == t->victim && t->fault != FAULT_wrong && t->fault != FAULT_pause && t->fault != FAULT_cut;
        if (!spared) what = judge_said(t, &shared->rank[i], i);
        if (what) snprintf(shared->verdict, sizeof shared->verdict, "rank %d: %s: %s: %s", i, what, mesh_status_text((mesh_status)shared->rank[i].status), shared->rank[i].text);
        shared->bad = what != NULL;
    }
    if (!shared->fired && t->op != OP_transport_close) shared->bad = 1, snprintf(shared->verdict, sizeof shared->verdict, "the fault did not happen");
    if (shared->hung) shared->bad = 1, snprintf(shared->verdict, sizeof shared->verdict, "%d processes hang", shared->hung);
    if (shared->processes_left || shared->sockets_left || shared->files_left) {
        shared->bad = 1;
        snprintf(shared->verdict, sizeof shared->verdict, "left %d processes, %d sockets, %d files", shared->processes_left, shared->sockets_left, shared->files_left);
    }
}

/* ---- the campaign ---- */

typedef struct options {
    int trials, jobs;
    uint64_t seed;
    const char *table, *csv, *lanes, *faults; /* names, of which text has to have them; NULL: all */
} options;

static pid_t trial_start(const trial *t, outcome *into) {
    pid_t pid;
    memset(into, 0, sizeof *into);
    shared = into;
    now_on = *t;
    fflush(NULL);
    pid = fork();
    if (pid == 0) trial_run(90);
    return pid;
}

static void trial_show(const trial *t) {
    int i;
    printf("%zu x %s, %s, round %d of %d, %s %" PRId64 ", mode %d%s%s%s\n", t->count, mesh_dtype_name(t->dtype), t->reduction == MESH_SUM ? "sum" : "max",
           t->fault_round, t->rounds, t->moment == AT_CALL ? "call" : t->moment == AT_TIME ? "us" : t->moment == AT_SENT ? "byte sent" : "byte received", t->moment_n, t->mode,
           t->fault == FAULT_wrong ? ", " : "", t->fault == FAULT_wrong ? wrong_names[t->wrong] : "", t->fault == FAULT_cut ? ", link cut" : "");
    for (i = 0; i < t->ranks; i++) {
        const said *s = &shared->rank[i];
        printf("rank %d%s: %s after %d rounds, %.3f s after the fault: %s\n", i, i == t->victim ? " (at fault)" : "",
               s->ended ? mesh_status_text((mesh_status)s->status) : "nothing", s->rounds, s->ended ? (double)(s->at - shared->fault_at) * 1e-9 : 0, s->text);
    }
    printf("%s%s\n", shared->bad ? "FAIL " : "ok", shared->verdict);
}

/* Every operation with every fault on every backend, in an order drawn from the seed; once all were tried, again. */
static int trial_list(const options *o, trial *list) {
    static trial all[OP_COUNT * FAULT_COUNT * LANES];
    int count = 0, i, k;
    test_random r;
    for (i = 0; i < OP_COUNT * FAULT_COUNT * LANES; i++) {
        trial *t = &all[count];
        memset(t, 0, sizeof *t);
        t->op = i % OP_COUNT;
        t->fault = i / OP_COUNT % FAULT_COUNT;
        t->lane = i / OP_COUNT / FAULT_COUNT;
        count += trial_applies(t) && (!o->lanes || strstr(o->lanes, lane_names[t->lane])) &&
                 (!o->faults || strstr(o->faults, fault_names[t->fault]));
    }
    for (i = 0; i < o->trials && count; i++) {
        test_seed = o->seed + (uint64_t)(i / count);
        r = random_from((uint64_t)i);
        if (i % count == 0)
            for (k = count - 1; k > 0; k--) {
                int j = random_below(&r, k + 1);
                trial swap = all[k];
                all[k] = all[j];
                all[j] = swap;
            }
        list[i] = all[i % count];
        list[i].ranks = list[i].op == OP_group_open ? 4 + 2 * random_below(&r, 3) : 2 + random_below(&r, MOST_RANKS - 1);
        list[i].victim = random_below(&r, list[i].ranks);
        list[i].seed = random_next(&r) % 1000000;
        trial_draw(&list[i]);
    }
    return count;
}

#include "faults_table.h"

static int campaign(const options *o) {
    trial *list = (trial *)calloc((size_t)o->trials, sizeof *list);
    outcome *all = (outcome *)mmap(NULL, (size_t)o->trials * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t *pid = (pid_t *)calloc((size_t)o->trials, sizeof *pid);
    double *start = (double *)calloc((size_t)o->trials, sizeof *start), begun = test_now();
    int next = 0, running = 0, done = 0, failed = 0, combinations, i;
    char line[128];
    if (!list || all == MAP_FAILED || !pid || !start) return 2;
    combinations = trial_list(o, list);
    if (!combinations) return fprintf(stderr, "faults: --lanes and --faults leave nothing to try\n"), 2;
    while (done < o->trials) {
        int status, moved = 0;
        for (; running < o->jobs && next < o->trials; next++, running++) {
            start[next] = test_now();
            pid[next] = trial_start(&list[next], &all[next]);
        }
        for (i = 0; i < next; i++) {
            if (pid[i] <= 0 || waitpid(pid[i], &status, WNOHANG) != pid[i]) continue;
            pid[i] = 0;
            shared = &all[i];
            shared->seconds = test_now() - start[i];
            judge(&list[i]);
            if (shared->bad) {
                trial_line(&list[i], line, sizeof line);
                printf("FAIL build/faults --trial '%s': %s\n", line, shared->verdict);
                fflush(stdout);
            }
            failed += shared->bad;
            done++;
            running--;
            moved = 1;
        }
        if (!moved) test_sleep(0.002);
    }
    if (o->table) table_write(o, list, all, combinations, test_now() - begun, failed);
    if (o->csv) csv_write(o, list, all);
    if (o->trials && all[0].bare) printf("no leftovers were looked for in the network and /tmp: that takes root\n");
    printf("%d passed, %d failed\n", done - failed, failed);
    return failed != 0;
}

static int one_trial(const char *text) {
    trial t;
    int status;
    pid_t pid;
    if (!trial_read(&t, text)) {
        fprintf(stderr, "faults: \"%s\" is no trial: BACKEND RANKS OPERATION FAULT RANK seed N\n", text);
        return 2;
    }
    shared = (outcome *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    pid = trial_start(&t, shared);
    waitpid(pid, &status, 0);
    judge(&t);
    trial_show(&t);
    printf("%d passed, %d failed\n", !shared->bad, shared->bad);
    return shared->bad;
}

int main(int argc, char **argv) {
    options o = {1000, 2, 1, NULL, NULL, NULL, NULL};
    int i;
    for (i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (!strcmp(argv[i], "--trial")) return one_trial(value);
        else if (!strcmp(argv[i], "--trials")) o.trials = atoi(value);
        else if (!strcmp(argv[i], "--jobs")) o.jobs = atoi(value);
        else if (!strcmp(argv[i], "--seed")) o.seed = strtoull(value, NULL, 10);
        else if (!strcmp(argv[i], "--table")) o.table = value;
        else if (!strcmp(argv[i], "--csv")) o.csv = value;
        else if (!strcmp(argv[i], "--lanes")) o.lanes = value;
        else if (!strcmp(argv[i], "--faults")) o.faults = value;
        else break;
    }
    if (i < argc || o.trials < 1 || o.jobs < 1) {
        fprintf(stderr, "usage: faults [--trials N] [--seed N] [--jobs N] [--lanes shared,alloc,...] [--faults sigkill,...]\n"
                        "              [--table FILE] [--csv FILE] | --trial 'LINE'\n");
        return 2;
    }
    return campaign(&o);
}
