/* Schedules as values: built for every rank of a group, interpreted in one thread without a transport. Every algorithm, every group to 17 ranks,
   every root; sends are matched with receives one by one, and the result is what the call says. Nothing here sleeps or talks. */
#ifndef T_SCHEDULE_H
#define T_SCHEDULE_H

#include "harness.h"

enum { SCHED_RANKS = 17, SCHED_CELL = 600, SCHED_PAD = 5, SCHED_LISTS = 4 };

/* Elements have 8 bytes: integers that are added, affine maps that are composed (which does not commute), doubles whose mean is taken. */
typedef enum sched_numbers { SCHED_SUM, SCHED_MAPS, SCHED_MEAN } sched_numbers;

typedef struct sched_case {
    int n, kind, root, algorithm, in_place, offsets; /* offsets of a v-form: given, with gaps */
    sched_numbers numbers;
    size_t count, segment;
    size_t counts[SCHED_RANKS], at[SCHED_RANKS]; /* of a v-form */
    size_t matrix[SCHED_RANKS][SCHED_RANKS], to_at[SCHED_RANKS][SCHED_RANKS],
        from_at[SCHED_RANKS][SCHED_RANKS]; /* all_to_all_v: from a to b */
    int lists;
    size_t list[SCHED_LISTS]; /* counts of a list of buffers */
} sched_case;

typedef struct sched_rank {
    mesh__schedule s;
    uint64_t memory[SCHED_CELL], before[SCHED_CELL], want[SCHED_CELL];
    size_t send, recv, used; /* where in memory; recv == send: in place */
    size_t counts[4][SCHED_RANKS];
    mesh_buffer buffer[SCHED_LISTS];
    mesh_object object;
    int at, *state; /* state, per xfer: posted, done */
    int state_cap;
} sched_rank;

typedef struct sched_world {
    sched_case k;
    sched_rank rank[SCHED_RANKS];
    mesh on;
    mesh_tuning tuning;
    test_random random;
    int late;                      /* data are read when somebody cannot go on without; else at once */
    int fused;                     /* receives reduce */
    int host[SCHED_RANKS], nhosts; /* of each rank; nhosts 0: nobody knows */
    int nsends[SCHED_RANKS][SCHED_RANKS], nrecvs[SCHED_RANKS][SCHED_RANKS]; /* from, to */
    int sends[SCHED_RANKS][SCHED_RANKS][256], recvs[SCHED_RANKS][SCHED_RANKS][256];
    unsigned char *kept[SCHED_RANKS][SCHED_RANKS][256]; /* what was sent, at once */
    int broken;
} sched_world;

static void sched_bad(sched_world *w, const char *what, int rank) {
    const sched_case *k = &w->k;
    if (w->broken++) return;
    test_fail(__FILE__, __LINE__, "%s of %d, root %d, %s, %d elements in pieces of %d%s%s%s, numbers %d, rank %d: %s",
              mesh__call_name(k->kind), k->n, k->root, mesh__algorithm_names[k->algorithm], (int)k->count,
              (int)k->segment, k->in_place ? ", in place" : "", w->late ? ", late" : "", w->fused ? ", fused" : "",
              (int)k->numbers, rank, what);
}

/* a op b, a from the ranks before. */
static uint64_t sched_op(sched_numbers numbers, uint64_t a, uint64_t b) {
    double x, y;
    if (numbers == SCHED_SUM) return a + b;
    if (numbers == SCHED_MAPS) {
        uint32_t scale = (uint32_t)a * (uint32_t)b, shift = (uint32_t)a * (uint32_t)(b >> 32) + (uint32_t)(a >> 32);
        return (uint64_t)shift << 32 | scale;
    }
    memcpy(&x, &a, 8), memcpy(&y, &b, 8);
    x += y;
    memcpy(&a, &x, 8);
    return a;
}
static void sched_combine(void *inout, const void *in, size_t count, void *ctx) {
    size_t i;
    (void)ctx;
    for (i = 0; i < count; i++) {
        uint64_t a, b;
        memcpy(&a, (const char *)in + 8 * i, 8), memcpy(&b, (char *)inout + 8 * i, 8);
        a = sched_op(SCHED_MAPS, a, b);
        memcpy((char *)inout + 8 * i, &a, 8);
    }
}

/* Element i of what rank r gives: the whole of its send side, v-forms and lists one block after another. */
static uint64_t sched_gives(const sched_case *k, int r, size_t i) {
    uint64_t x = mesh__mix((uint64_t)r + 1, i);
    double d;
    if (k->numbers != SCHED_MEAN) return x;
    d = (double)((int)(x % 1000) * k->n); /* the mean is whole */
    memcpy(&x, &d, 8);
    return x;
}
/* Of ranks first .. end-1, element i: combined in their order. */
static uint64_t sched_reduced(const sched_case *k, int first, int end, size_t i) {
    uint64_t x = sched_gives(k, first, i);
    int r;
    double d;
    for (r = first + 1; r < end; r++) x = sched_op(k->numbers, x, sched_gives(k, r, i));
    if (k->numbers == SCHED_MEAN && end - first == k->n) {
        memcpy(&d, &x, 8);
        d /= k->n;
        memcpy(&x, &d, 8);
    }
    return x;
}

static int sched_many(int kind) { return mesh__single_kind(kind) != kind; }

/* Lay out a rank's memory, say what it should hold in the end, and fill in its call. */
static void sched_prepare(sched_world *w, int me) {
    sched_case *k = &w->k;
    sched_rank *r = &w->rank[me];
    mesh_call *call = &r->s.call;
    int kind = mesh__single_kind(k->kind), n = k->n, b, at_root = me == k->root, list;
    size_t i, base = SCHED_PAD, item = 0, gaps = k->offsets ? 2 : 0;
    memset(call, 0, sizeof *call);
    for (i = 0; i < SCHED_CELL; i++) r->memory[i] = r->want[i] = mesh__mix(99, i) | 1;
    call->kind = k->kind;
    call->root = k->root;
    call->op = k->numbers == SCHED_MEAN ? MESH_AVG : MESH_SUM;
    call->dtype = k->numbers == SCHED_MEAN ? MESH_F64 : MESH_I64;
    call->elem_bytes = 8;
    if (k->numbers == SCHED_MAPS && mesh__call_is(k->kind, MESH_REDUCES)) {
        call->dtype = MESH_BYTES;
        call->op = 64;
        call->user_op = sched_combine;
    }
    call->count = k->count;
    for (list = 0; list < (sched_many(k->kind) ? k->lists : 1); list++) {
        size_t count = sched_many(k->kind) ? k->list[list] : k->count, give = count, take = count, own = 0, send, recv,
               c;
        int blocks = kind == MESH_CALL_REDUCE_SCATTER || kind == MESH_CALL_ALL_TO_ALL || kind == MESH_CALL_SCATTER;
        if (blocks) give = count * (size_t)n;
        if (kind == MESH_CALL_ALL_GATHER || kind == MESH_CALL_ALL_TO_ALL || kind == MESH_CALL_GATHER)
            take = count * (size_t)n;
        for (c = 0, b = 0; b < n; b++) c += k->counts[b] + gaps;
        if (kind == MESH_CALL_ALL_GATHER_V) give = k->counts[me], take = c;
        if (kind == MESH_CALL_REDUCE_SCATTER_V) give = c, take = k->counts[me];
        if (kind == MESH_CALL_GATHER_V) give = call->count = k->counts[me], take = c;
        if (kind == MESH_CALL_SCATTER_V) give = c, take = call->count = k->counts[me];
        if (kind == MESH_CALL_ALL_TO_ALL_V)
            for (give = take = 0, b = 0; b < n; b++) give += k->matrix[me][b] + gaps, take += k->matrix[b][me] + gaps;
        if (kind == MESH_CALL_BARRIER) give = take = 0;
        /* where they lie: apart, or one in the other */
        send = base, recv = base + give + SCHED_PAD;
        if (k->in_place) {
            recv = send;
            if (kind == MESH_CALL_ALL_GATHER || kind == MESH_CALL_GATHER) own = (size_t)me * count;
            if (kind == MESH_CALL_REDUCE_SCATTER || kind == MESH_CALL_SCATTER) own = (size_t)me * count;
            if (kind == MESH_CALL_GATHER && !at_root) own = 0, recv = base + give + SCHED_PAD;
            if (kind == MESH_CALL_SCATTER && !at_root) own = 0, recv = base + give + SCHED_PAD;
            if (take > give)
                send = recv + own;
            else
                recv = send + own;
        }
        base = (send > recv ? send : recv) + (give > take ? give : take) + SCHED_PAD;
        if (!k->in_place) base = recv + take + SCHED_PAD;
        for (i = 0; i < give; i++) r->memory[send + i] = r->want[send + i] = sched_gives(k, me, item + i);
        /* what should come of it */
        switch (kind) {
        case MESH_CALL_ALL_REDUCE:
            for (i = 0; i < count; i++) r->want[recv + i] = sched_reduced(k, 0, n, item + i);
            break;
        case MESH_CALL_REDUCE:
            for (i = 0; at_root && i < count; i++) r->want[recv + i] = sched_reduced(k, 0, n, item + i);
            break;
        case MESH_CALL_BROADCAST:
            for (i = 0; i < count; i++) r->want[recv + i] = sched_gives(k, k->root, item + i);
            break;
        case MESH_CALL_ALL_GATHER:
        case MESH_CALL_GATHER:
            for (b = 0; (kind == MESH_CALL_ALL_GATHER || at_root) && b < n; b++)
                for (i = 0; i < count; i++) r->want[recv + (size_t)b * count + i] = sched_gives(k, b, item + i);
            break;
        case MESH_CALL_REDUCE_SCATTER:
            for (i = 0; i < count; i++) r->want[recv + i] = sched_reduced(k, 0, n, item + (size_t)me * count + i);
            break;
        case MESH_CALL_ALL_TO_ALL:
            for (b = 0; b < n; b++)
                for (i = 0; i < count; i++)
                    r->want[recv + (size_t)b * count + i] = sched_gives(k, b, item + (size_t)me * count + i);
            break;
        case MESH_CALL_SCATTER:
            for (i = 0; i < count; i++) r->want[recv + i] = sched_gives(k, k->root, item + (size_t)me * count + i);
            break;
        case MESH_CALL_SCAN:
            for (i = 0; i < count; i++) r->want[recv + i] = sched_reduced(k, 0, me + 1, item + i);
            break;
        case MESH_CALL_EXSCAN:
            for (i = 0; me && i < count; i++) r->want[recv + i] = sched_reduced(k, 0, me, item + i);
            break;
        case MESH_CALL_ALL_GATHER_V:
        case MESH_CALL_GATHER_V:
            for (b = 0; (kind == MESH_CALL_ALL_GATHER_V || at_root) && b < n; b++)
                for (i = 0; i < k->counts[b]; i++) r->want[recv + k->at[b] + i] = sched_gives(k, b, i);
            break;
        case MESH_CALL_REDUCE_SCATTER_V:
            for (i = 0; i < k->counts[me]; i++) r->want[recv + i] = sched_reduced(k, 0, n, k->at[me] + i);
            break;
        case MESH_CALL_SCATTER_V:
            for (i = 0; i < k->counts[me]; i++) r->want[recv + i] = sched_gives(k, k->root, k->at[me] + i);
            break;
        case MESH_CALL_ALL_TO_ALL_V:
            for (b = 0; b < n; b++)
                for (i = 0; i < k->matrix[b][me]; i++)
                    r->want[recv + k->from_at[me][b] + i] = sched_gives(k, b, k->to_at[b][me] + i);
            break;
        default:
            break;
        }
        r->buffer[list].send = r->memory + send;
        r->buffer[list].recv = r->memory + recv;
        r->buffer[list].count = count;
        item += give;
    }
    r->used = base;
    call->send = r->buffer[0].send;
    call->recv = r->buffer[0].recv;
    if (sched_many(k->kind)) {
        call->buffers = r->buffer;
        call->nbuffers = k->lists;
        for (call->count = 0, list = 0; list < k->lists; list++) call->count += k->list[list];
    }
    for (b = 0; b < n; b++) {
        int all = kind == MESH_CALL_ALL_TO_ALL_V;
        r->counts[0][b] = all ? k->matrix[me][b] : k->counts[b];
        r->counts[1][b] = all ? k->to_at[me][b] : k->at[b];
        r->counts[2][b] = all ? k->matrix[b][me] : k->counts[b];
        r->counts[3][b] = all ? k->from_at[me][b] : k->at[b];
    }
    if (kind == MESH_CALL_ALL_TO_ALL_V || kind == MESH_CALL_SCATTER_V) {
        call->send_counts = r->counts[0];
        if (k->offsets) call->send_offsets = r->counts[1];
    }
    if (mesh__call_is(kind, MESH_BY_COUNTS) && kind != MESH_CALL_SCATTER_V) {
        call->recv_counts = r->counts[2];
        if (k->offsets) call->recv_offsets = r->counts[3];
    }
    if (kind == MESH_CALL_BROADCAST_OBJECT) {
        memset(&r->object, 0, sizeof r->object);
        r->object.data = at_root ? r->memory + SCHED_PAD : NULL;
        r->object.nbytes = at_root ? 8 * k->count : 0;
        for (i = 0; i < k->count; i++) r->memory[SCHED_PAD + i] = r->want[SCHED_PAD + i] = sched_gives(k, me, i);
        call->recv = &r->object;
        call->dtype = MESH_BYTES, call->elem_bytes = 1;
    }
    memcpy(r->before, r->memory, sizeof r->before);
}

static void sched_copy(sched_world *w, int from, int to, int number) {
    mesh_xfer *x = &w->rank[from].s.xfer[w->sends[from][to][number]],
              *y = &w->rank[to].s.xfer[w->recvs[from][to][number]];
    if (x->nbytes != y->nbytes) sched_bad(w, "a send and its receive differ in length", to);
    if (w->broken) return;
    if (x->nbytes) {
        void *sent = w->kept[from][to][number] ? (void *)w->kept[from][to][number] : x->base;
        if (y->direction == MESH_REDUCE)
            mesh__combine(&w->rank[to].s.call, y->base, sent, (size_t)y->nbytes / 8, 8, 1, 0);
        else
            memcpy(y->base, sent, (size_t)y->nbytes);
    }
    w->rank[from].state[w->sends[from][to][number]] = 2;
    w->rank[to].state[w->recvs[from][to][number]] = 2;
}

static void sched_post(sched_world *w, int me, const mesh__step *step) {
    sched_rank *r = &w->rank[me];
    int x;
    mesh__grow(r->s.t, (void **)&r->state, &r->state_cap, r->s.nxfers + 1, sizeof *r->state);
    for (x = step->as.post.first; x < step->as.post.first + step->as.post.count && !w->broken; x++) {
        const mesh_xfer *xfer = &r->s.xfer[x];
        int peer = xfer->rank, sending = xfer->direction == MESH_SEND, from = sending ? me : peer,
            to = sending ? peer : me, number;
        if (peer < 0 || peer >= w->k.n || peer == me) sched_bad(w, "a message to nobody, or to itself", me);
        if (w->broken) return;
        number = sending ? w->nsends[from][to]++ : w->nrecvs[from][to]++;
        if (number >= 256) sched_bad(w, "256 messages between two ranks", me);
        if (w->broken) return;
        (sending ? w->sends : w->recvs)[from][to][number] = x;
        r->state[x] = 1;
        if (w->late) continue;
        if (sending && xfer->nbytes) {
            w->kept[from][to][number] = (unsigned char *)malloc((size_t)xfer->nbytes);
            memcpy(w->kept[from][to][number], xfer->base, (size_t)xfer->nbytes);
        }
        if (number < w->nsends[from][to] && number < w->nrecvs[from][to]) sched_copy(w, from, to, number);
    }
}

/* An xfer that has to be done before step `end` and is not; -1: none. */
static int sched_missing(const sched_rank *r, int end) {
    int i, x;
    for (i = 0; i < end; i++)
        for (x = r->s.step[i].as.post.first;
             r->s.step[i].kind == MESH__POST && x < r->s.step[i].as.post.first + r->s.step[i].as.post.count; x++)
            if (r->state[x] != 2) return x;
    return -1;
}

/* Run a rank as far as it goes. Returns 1 when it has come to its end. */
static int sched_run(sched_world *w, int me, int steps) {
    sched_rank *r = &w->rank[me];
    mesh_error why;
    for (; r->at < r->s.nsteps && steps > 0 && !w->broken; steps--) {
        mesh__step *step = &r->s.step[r->at];
        if (step->kind == MESH__WAIT && sched_missing(r, step->as.wait.before) >= 0) return 0;
        if (step->kind == MESH__POST)
            sched_post(w, me, step);
        else if (step->kind != MESH__WAIT && mesh__step_run(&r->s, NULL, step, &why) != MESH_OK)
            sched_bad(w, "a step failed", me);
        r->at++;
    }
    return r->at >= r->s.nsteps;
}

/* Everybody is at a wait, or at the end: let one message through that somebody waits for. Returns 0 if there is none. */
static int sched_let(sched_world *w) {
    int i, n = w->k.n, turn = random_below(&w->random, n);
    for (i = 0; i < n; i++) {
        int me = (turn + i) % n, x, peer, number, sending;
        sched_rank *r = &w->rank[me];
        int end = r->at < r->s.nsteps ? r->s.step[r->at].as.wait.before : r->s.nsteps, s;
        for (s = 0; s < end; s++)
            for (x = r->s.step[s].as.post.first;
                 r->s.step[s].kind == MESH__POST && x < r->s.step[s].as.post.first + r->s.step[s].as.post.count; x++) {
                if (r->state[x] == 2) continue;
                peer = r->s.xfer[x].rank, sending = r->s.xfer[x].direction == MESH_SEND;
                for (number = 0; (sending ? w->sends[me][peer] : w->recvs[peer][me])[number] != x;) number++;
                if (number >= (sending ? w->nrecvs[me][peer] : w->nsends[peer][me])) continue;
                sched_copy(w, sending ? me : peer, sending ? peer : me, number);
                return 1;
            }
    }
    return 0;
}

static void sched_interpret(sched_world *w) {
    int n = w->k.n, me, ended, held = random_below(&w->random, n), moved;
    do {
        int order = random_below(&w->random, n);
        for (ended = moved = 0, me = 0; me < n && !w->broken; me++) {
            int r = (me + order) % n, at = w->rank[r].at;
            if (r == held) continue; /* comes last of all */
            ended +=
                sched_run(w, r, 1 + random_below(&w->random, 8)) && sched_missing(&w->rank[r], w->rank[r].s.nsteps) < 0;
            moved |= w->rank[r].at != at;
        }
        if (held >= 0 && ended && n > 1 && w->k.kind == MESH_CALL_BARRIER)
            sched_bad(w, "a barrier ended before all had come", held);
        if (!moved && !w->broken) {
            if (held >= 0)
                held = -1;
            else if (ended < n && !sched_let(w))
                sched_bad(w, "ranks wait for each other", 0);
        }
    } while ((ended < n || held >= 0) && !w->broken);
}

static void sched_try(sched_world *w) {
    static mesh_ops ops;
    mesh_transport t;
    sched_case *k = &w->k;
    mesh_desc d = MESH_ZERO;
    int me, to, i;
    memset(&t, 0, sizeof t);
    t.ops = &ops;
    t.caps = w->fused ? MESH_CAP_REDUCE : 0;
    w->broken = 0;
    memset(w->nsends, 0, sizeof w->nsends), memset(w->nrecvs, 0, sizeof w->nrecvs), memset(w->kept, 0, sizeof w->kept);
    d.shape = &k->n, d.naxes = 1;
    mesh_make(&w->on, &d, NULL);
    w->tuning.nrows = 1;
    w->tuning.row[0].call = (uint8_t)mesh__single_kind(k->kind);
    w->tuning.row[0].algorithm = (uint8_t)k->algorithm;
    w->tuning.row[0].ranks = UINT16_MAX;
    w->tuning.row[0].bytes = UINT64_MAX;
    w->tuning.row[0].segment = (uint32_t)(8 * k->segment);
    for (me = 0; me < k->n; me++) {
        sched_rank *r = &w->rank[me];
        mesh__schedule_begin(&r->s, &t);
        r->at = 0;
        sched_prepare(w, me);
        if (r->used > SCHED_CELL) sched_bad(w, "the test's own memory is too small", me);
        if (w->broken) break;
        r->s.on = &w->on;
        r->s.index = me;
        r->s.elem_bytes = r->s.call.elem_bytes;
        r->s.tuning = &w->tuning;
        r->s.host = w->nhosts ? w->host : NULL;
        r->s.nhosts = w->nhosts;
        r->s.ordered = r->s.call.user_op != NULL;
        mesh__build(&r->s);
        if (r->s.out_of_memory) sched_bad(w, "it was not built", me);
        mesh__grow(&t, (void **)&r->state, &r->state_cap, r->s.nxfers + 1, sizeof *r->state);
        memset(r->state, 0, (size_t)r->state_cap * sizeof *r->state);
    }
    if (!w->broken) sched_interpret(w);
    for (me = 0; me < k->n && !w->broken; me++) {
        sched_rank *r = &w->rank[me];
        for (to = 0; to < k->n; to++)
            if (w->nsends[me][to] != w->nrecvs[me][to])
                sched_bad(w, "a send without its receive, or the other way", me);
        for (i = 0; i < SCHED_CELL && !w->broken; i++)
            if (r->memory[i] != r->want[i])
                sched_bad(w,
                          r->memory[i] == r->before[i] ? "an element was not written"
                          : r->want[i] == r->before[i] ? "an element was written that is not its own"
                                                       : "a wrong element",
                          me);
        if (k->kind == MESH_CALL_BROADCAST_OBJECT) {
            if (r->object.nbytes != 8 * k->count ||
                (k->count && memcmp(r->object.data, w->rank[k->root].memory + SCHED_PAD, 8 * k->count)))
                sched_bad(w, "another object", me);
        }
    }
    for (me = 0; me < k->n; me++) {
        if (k->kind == MESH_CALL_BROADCAST_OBJECT && me != k->root) mesh_transport_free(&t, w->rank[me].object.data);
        for (to = 0; to < k->n; to++)
            for (i = 0; i < w->nsends[me][to]; i++) free(w->kept[me][to][i]);
        mesh__schedule_free(&w->rank[me].s);
        free(w->rank[me].state);
        memset(&w->rank[me].s, 0, sizeof w->rank[me].s);
        w->rank[me].state = NULL, w->rank[me].state_cap = 0;
    }
}

static int sched_has_place(int kind) {
    return !mesh__call_is(kind, MESH_BY_COUNTS) && kind != MESH_CALL_BARRIER && kind != MESH_CALL_BROADCAST_OBJECT;
}

/* Ranks on hosts: host by host, in turn, or anyhow; as many on each or not. Numbered as they appear. */
static void sched_place(sched_world *w) {
    int n = w->k.n, how = random_below(&w->random, 4), each = 1 + random_below(&w->random, n), i, j,
        number[SCHED_RANKS];
    w->nhosts = 0;
    for (i = 0; i < n; i++) number[i] = -1;
    for (i = 0; i < n; i++) {
        int h = how == 0 ? i / each : how == 1 ? i % each : random_below(&w->random, how == 2 ? 3 : each);
        if (number[h] < 0) number[h] = w->nhosts++;
        w->host[i] = number[h];
    }
    for (i = j = 0; i < n; i++) j |= w->host[i] != i;
    if (w->nhosts == 1 || !j) w->nhosts = 0;
}

/* Every variant of a call in a group of n with one algorithm and root. */
static void sched_all_of(sched_world *w) {
    static const size_t counts[] = {0, 1, 3, 7};
    sched_case *k = &w->k;
    int reduces = mesh__call_is(k->kind, MESH_REDUCES), c, i, a, b, numbers;
    int some = test_long || k->n <= 5 ? 1 : 5,
        turn = random_below(&w->random, some); /* of large groups a sample for each root */
    for (numbers = 0; numbers < (reduces ? 3 : 1); numbers++)
        for (c = 0; c < 4; c++)
            for (k->in_place = 0; k->in_place <= sched_has_place(k->kind); k->in_place++)
                for (w->late = 0; w->late < 2; w->late++) {
                    size_t at = 0;
                    if (turn++ % some) continue;
                    w->fused = reduces && random_below(&w->random, 3) == 0;
                    sched_place(w);
                    k->numbers = (sched_numbers)numbers;
                    if (numbers == SCHED_MEAN && (k->kind == MESH_CALL_SCAN || k->kind == MESH_CALL_EXSCAN)) continue;
                    k->count = counts[c];
                    k->segment = 1 + (size_t)random_below(&w->random, 4);
                    k->offsets = c & 1;
                    for (i = 0; i < k->n; i++) {
                        k->counts[i] = c ? (size_t)random_below(&w->random, 5) : 0;
                        k->at[i] = at;
                        at += k->counts[i] + (k->offsets ? 2u : 0u);
                    }
                    for (a = 0; a < k->n; a++) {
                        size_t from = 0, to = 0;
                        for (b = 0; b < k->n; b++) k->matrix[a][b] = c ? (size_t)((a * 7 + b * 3 + c) % 4) : 0;
                        for (b = 0; b < k->n; b++) k->to_at[a][b] = to, to += k->matrix[a][b] + (k->offsets ? 2u : 0u);
                        for (b = 0; b < k->n; b++)
                            k->from_at[a][b] = from,
                            from += (c ? (size_t)((b * 7 + a * 3 + c) % 4) : 0) + (k->offsets ? 2u : 0u);
                    }
                    k->lists = 1 + random_below(&w->random, SCHED_LISTS);
                    for (i = 0; i < k->lists; i++) k->list[i] = c ? (size_t)random_below(&w->random, 4) : 0;
                    sched_try(w);
                }
}

static void test_schedules_of(int first, int last) {
    sched_world *w = (sched_world *)calloc(1, sizeof *w);
    sched_case *k = &w->k;
    w->random = random_from((uint64_t)first);
    for (k->n = 1; k->n <= SCHED_RANKS; k->n++)
        for (k->kind = first; k->kind <= last; k->kind++)
            for (k->root = 0; k->root < (mesh__call_is(k->kind, MESH_ROOTED) ? k->n : 1); k->root++)
                for (k->algorithm = 0; k->algorithm < MESH_ALGORITHM_COUNT; k->algorithm++) /* none: what is built in */
                    if (!k->algorithm || mesh_algorithm_serves((mesh_algorithm)k->algorithm, k->kind)) sched_all_of(w);
    free(w);
}
static void test_schedule_reduce(void) { test_schedules_of(MESH_CALL_ALL_REDUCE, MESH_CALL_REDUCE); }
static void test_schedule_move(void) { test_schedules_of(MESH_CALL_BROADCAST, MESH_CALL_ALL_GATHER_V); }
static void test_schedule_scatter(void) { test_schedules_of(MESH_CALL_REDUCE_SCATTER, MESH_CALL_ALL_TO_ALL_V); }
static void test_schedule_rooted(void) { test_schedules_of(MESH_CALL_GATHER, MESH_CALL_SCATTER_V); }
static void test_schedule_scan(void) { test_schedules_of(MESH_CALL_SCAN, MESH_CALL_BROADCAST_OBJECT); }
static void test_schedule_many(void) { test_schedules_of(MESH_CALL_ALL_REDUCE_MANY, MESH_CALL_BARRIER); }

/* Rounds of strided messages between three ranks, some begun before the ones before them are over, packed for a transport without blocks: what
   arrives is the same, and memory is that of the rounds under way at once. */
static void test_schedule_packed(void) {
    enum { N = 3, TIMES = 6, CELLS = 4, SEND = 0, RECV = 300, GAP = 2 };
    sched_world *w = (sched_world *)calloc(1, sizeof *w);
    static mesh_ops ops;
    mesh_transport t;
    mesh_block block[N][TIMES * 2 * N];
    mesh_desc d = MESH_ZERO;
    int try, me, k, to, i, shape = N;
    memset(&t, 0, sizeof t);
    t.ops = &ops;
    d.shape = &shape, d.naxes = 1;
    w->random = random_from(77);
    for (try = 0; try < 60; try++) {
        int ahead = try % 3; /* a wait is for all, for all but the last post, or as it comes */
        w->broken = 0, w->late = try & 1, w->k.n = N, w->k.kind = MESH_CALL_ALL_TO_ALL;
        memset(w->nsends, 0, sizeof w->nsends), memset(w->nrecvs, 0, sizeof w->nrecvs);
        memset(w->kept, 0, sizeof w->kept);
        mesh_make(&w->on, &d, NULL);
        for (me = 0; me < N; me++) {
            sched_rank *r = &w->rank[me];
            int post, nblocks = 0;
            size_t most = 0;
            mesh__schedule_begin(&r->s, &t);
            r->at = 0, r->s.on = &w->on, r->s.index = me;
            for (i = 0; i < SCHED_CELL; i++)
                r->memory[i] = r->want[i] = mesh__mix((uint64_t)(me * 1000 + try), (uint64_t)i);
            for (k = 0; k < TIMES; k++) {
                post = r->s.nsteps;
                mesh__add_post(&r->s);
                for (to = 0; to < N; to++) {
                    int way;
                    if (to == me) continue;
                    for (way = MESH_SEND; way <= MESH_RECV; way++) {
                        mesh_block *b = &block[me][nblocks++];
                        size_t at = (size_t)((way == MESH_SEND ? SEND : RECV) + (k * N + to) * CELLS * GAP);
                        memset(b, 0, sizeof *b);
                        b->run = 8, b->ndim = 1, b->dim[0].count = CELLS;
                        b->dim[0].stride = way == MESH_SEND || k % 2 ? 8 * GAP : 8; /* some receives lie in one piece */
                        mesh__add_xfer(&r->s, way, to, r->memory + at, 8 * CELLS);
                        if (b->dim[0].stride != 8) r->s.xfer[r->s.nxfers - 1].block = b;
                    }
                }
                if (!ahead || (ahead == 2 && random_below(&w->random, 2)))
                    mesh__add_wait(&r->s);
                else
                    mesh__add_wait_before(&r->s, ahead == 1 ? post : random_below(&w->random, post + 1));
            }
            mesh__schedule_pack(&r->s);
            CHECK(!r->s.out_of_memory);
            for (i = 0; i < MESH__SCRATCHES; i++) most += r->s.scratch[i].nbytes;
            if (!ahead) CHECK_INT(most, 4 * 64 + 64); /* of a round of two sends and two receives, aligned */
            for (i = 0; i < r->s.nsteps; i++)
                for (k = 0; r->s.step[i].kind == MESH__POST && k < r->s.step[i].as.post.count; k++)
                    CHECK(!r->s.xfer[r->s.step[i].as.post.first + k].block);
            mesh__grow(&t, (void **)&r->state, &r->state_cap, r->s.nxfers + 1, sizeof *r->state);
            memset(r->state, 0, (size_t)r->state_cap * sizeof *r->state);
        }
        for (me = 0; me < N; me++)
            for (k = 0; k < TIMES; k++)
                for (to = 0; to < N; to++)
                    for (i = 0; i < CELLS && to != me; i++)
                        w->rank[to].want[RECV + (k * N + me) * CELLS * GAP + (k % 2 ? GAP * i : i)] =
                            w->rank[me].memory[SEND + (k * N + to) * CELLS * GAP + GAP * i];
        sched_interpret(w);
        for (me = 0; me < N; me++) {
            CHECK(!memcmp(w->rank[me].memory, w->rank[me].want, sizeof w->rank[me].want));
            for (to = 0; to < N; to++)
                for (i = 0; i < w->nsends[me][to]; i++) free(w->kept[me][to][i]);
            mesh__schedule_free(&w->rank[me].s);
            free(w->rank[me].state);
            memset(&w->rank[me].s, 0, sizeof w->rank[me].s);
            w->rank[me].state = NULL, w->rank[me].state_cap = 0;
        }
    }
    free(w);
}

/* Whatever the message, a schedule between ranks of a host takes at most 4 MiB beside it, and 64 KiB for each peer. (In place an all_to_all has scratch
   of the message's size, and a user's op that does not commute as much; nothing is moved here, so nothing is written to these buffers.) */
static void test_schedule_scratch(void) {
    static const int kinds[] = {MESH_CALL_ALL_REDUCE,     MESH_CALL_REDUCE,     MESH_CALL_BROADCAST, MESH_CALL_ALL_GATHER,
                                MESH_CALL_REDUCE_SCATTER, MESH_CALL_ALL_TO_ALL, MESH_CALL_GATHER,    MESH_CALL_SCATTER,
                                MESH_CALL_SCAN,           MESH_CALL_EXSCAN};
    size_t message = (size_t)64 << 20, most;
    void *in = malloc(message), *out = malloc(message);
    mesh_tuning tuning = MESH_ZERO;
    static mesh_ops ops;
    mesh_transport t;
    mesh_desc d = MESH_ZERO;
    mesh on;
    int n, kind, me, i;
    memset(&t, 0, sizeof t);
    t.ops = &ops;
    d.shape = &n, d.naxes = 1;
    CHECK(in && out);
    for (n = 2; n <= 8; n++)
        for (kind = 0; kind < (int)(sizeof kinds / sizeof *kinds); kind++)
            for (me = 0; me < n; me++) {
                mesh__schedule s;
                int whole = kinds[kind] == MESH_CALL_ALL_REDUCE || kinds[kind] == MESH_CALL_REDUCE ||
                            kinds[kind] == MESH_CALL_BROADCAST || kinds[kind] == MESH_CALL_SCAN ||
                            kinds[kind] == MESH_CALL_EXSCAN;
                memset(&s, 0, sizeof s);
                mesh__schedule_begin(&s, &t);
                mesh_make(&on, &d, NULL);
                s.on = &on, s.index = me, s.tuning = &tuning;
                s.call = mesh__call(kinds[kind], in, out, message / 4 / (size_t)(whole ? 1 : n), MESH_F32, MESH_SUM, 0);
                s.elem_bytes = s.call.elem_bytes = 4;
                mesh__build(&s);
                CHECK(!s.out_of_memory);
                for (most = 0, i = 0; i < MESH__SCRATCHES; i++) most += s.scratch[i].nbytes;
                if (most > ((size_t)4 << 20) + (size_t)(n - 1) * 65536)
                    test_fail(__FILE__, __LINE__, "%s of %d ranks: rank %d takes %lu KiB beside the message",
                              mesh__call_name(kinds[kind]), n, me, (unsigned long)(most >> 10));
                mesh__schedule_free(&s);
            }
    free(in), free(out);
}

static const test_case schedule_tests[] = {
    {"schedule/reduce", test_schedule_reduce, 0},   {"schedule/move", test_schedule_move, 0},
    {"schedule/scatter", test_schedule_scatter, 0}, {"schedule/rooted", test_schedule_rooted, 0},
    {"schedule/scan", test_schedule_scan, 0},       {"schedule/many", test_schedule_many, 0},
    {"schedule/packed", test_schedule_packed, 0},   {"schedule/scratch", test_schedule_scratch, 0},
};

#endif
