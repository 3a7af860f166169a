/* operations.h: one collective or message between the ranks of a comm, once it runs. Part of fake_nccl.c. */
#ifndef OPERATIONS_H
#define OPERATIONS_H

/* ---- Operations ------------------------------------------------------------------------------------------------- */

typedef enum operation_kind {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    SEND,
    RECV
} operation_kind;

static const char *const operation_names[] = {"ncclAllReduce",     "ncclReduce",   "ncclBroadcast", "ncclAllGather",
                                              "ncclReduceScatter", "ncclAlltoAll", "ncclGather",    "ncclScatter",
                                              "ncclSend",          "ncclRecv"};

typedef struct operation {
    operation_kind kind;
    const void *send;
    void *recv;
    size_t count; /* elements of one block */
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* or peer */
    ncclComm_t comm;
    cudaStream_t stream;
    unsigned long long number; /* of the process's operations, from 1 */
} operation;

static int is_reduction(operation_kind kind) { return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER; }
static int is_p2p(operation_kind kind) { return kind == SEND || kind == RECV; }

/* How many blocks of `count` elements this rank gives and gets. */
static size_t blocks_sent(const operation *o) {
    size_t n = (size_t)o->comm->nranks;
    int at_root = o->comm->rank == o->root;
    switch (o->kind) {
    case BROADCAST:
        return at_root;
    case SCATTER:
        return at_root ? n : 0;
    case REDUCE_SCATTER:
    case ALL_TO_ALL:
        return n;
    case RECV:
        return 0;
    default:
        return 1;
    }
}

static size_t blocks_received(const operation *o) {
    size_t n = (size_t)o->comm->nranks;
    int at_root = o->comm->rank == o->root;
    switch (o->kind) {
    case REDUCE:
        return at_root;
    case GATHER:
        return at_root ? n : 0;
    case ALL_GATHER:
    case ALL_TO_ALL:
        return n;
    case SEND:
        return 0;
    default:
        return 1;
    }
}

static size_t bytes_sent(const operation *o) { return blocks_sent(o) * o->count * type_bytes(o->type); }
static size_t bytes_received(const operation *o) { return blocks_received(o) * o->count * type_bytes(o->type); }

/* A block's elements as the ranks must agree on them. Rings go in chunks that are rounded up to 16 bytes, a block or an
 * n-th of the array: ranks whose counts differ within that do not notice. */
static size_t padded_count(const operation *o) {
    size_t parts = (size_t)o->comm->nranks, width = type_bytes(o->type), bytes = o->count * width;
    if (o->kind > REDUCE_SCATTER || !fake_env("FAKE_NCCL_ROUND_UP", 1)) return o->count;
    if (o->kind == ALL_GATHER || o->kind == REDUCE_SCATTER) parts = 1;
    return ((bytes + parts - 1) / parts + 15) / 16 * 16 * parts / width;
}

static size_t elements_in(const operation *o, size_t at, size_t step) {
    return o->count < at ? 0 : o->count - at < step ? o->count - at : step;
}

/* A collective's round: elements [at, at + step) of each block. What goes to each rank lies in blocks on the board. Who
 * asked for more than others gave gets garbage. */
static void post_round(const operation *o, const unsigned char *send, size_t at, size_t step) {
    size_t width = type_bytes(o->type), given = elements_in(o, at, step);
    unsigned char *board = board_of(o->comm, o->comm->rank);
    for (size_t block = 0; block < blocks_sent(o); block++, board += step * width) {
        memcpy(board, send + (block * o->count + at) * width, given * width);
        memset(board + given * width, BOARD_GARBAGE, (step - given) * width);
    }
}

static void read_round(const operation *o, unsigned char *recv, size_t at, size_t step) {
    ncclComm_t c = o->comm;
    size_t width = type_bytes(o->type), wanted = elements_in(o, at, step);
    int many = o->kind == REDUCE_SCATTER || o->kind == ALL_TO_ALL || o->kind == SCATTER; /* one block for each rank */
    size_t mine = many ? (size_t)c->rank * step * width : 0;
    if (is_reduction(o->kind)) {
        const unsigned char *inputs[c->nranks];
        for (int rank = 0; rank < c->nranks; rank++) inputs[rank] = board_of(c, rank) + mine;
        reducers[o->type](recv + at * width, inputs, c->nranks, wanted, o->op);
    } else if (o->kind == BROADCAST || o->kind == SCATTER) {
        memcpy(recv + at * width, board_of(c, o->root) + mine, wanted * width);
    } else {
        for (int rank = 0; rank < c->nranks; rank++)
            memcpy(recv + ((size_t)rank * o->count + at) * width, board_of(c, rank) + mine, wanted * width);
    }
}

static void run_collective(const operation *o) {
    ncclComm_t c = o->comm;
    const char *name = operation_names[o->kind];
    size_t width = type_bytes(o->type), sent = bytes_sent(o), received = bytes_received(o), count = padded_count(o);
    const unsigned char *send = sent ? fake_memory(o->send, sent, 0, name) : NULL;
    unsigned char *recv = received ? fake_memory(o->recv, received, 0, name) : NULL;
    int many = o->kind == REDUCE_SCATTER || o->kind == ALL_TO_ALL || o->kind == SCATTER;
    size_t most = BOARD_BYTES / (many ? (size_t)c->nranks : 1) / width;
    signature s = {(int)o->kind, (int)o->type, is_reduction(o->kind) ? (int)o->op : 0, o->root, count};
    for (size_t at = 0; at < count; at += most, c->round++) {
        size_t step = count - at < most ? count - at : most;
        if (send) post_round(o, send, at, step);
        if (!barrier_pass(c, &shared_of(c)->operations, NULL, s, &c->stop)) return;
        if (recv) read_round(o, recv, at, step);
    }
}

/* ---- Sends and receives ----------------------------------------------------------------------------------------- */

typedef struct transfer {
    const operation *o;
    ring *ring;
    unsigned char *memory;
    size_t bytes, moved;
    uint64_t message; /* its number on the ring, from 1; 0: not posted yet */
    int done;
} transfer;

static void ring_doorbell(ncclComm_t c, int rank) {
    atomic_fetch_add(&card_of(c, rank)->doorbell, 1);
    futex_wake(&card_of(c, rank)->doorbell);
}

/* Messages of one direction and peer go one after the other. */
static int transfer_may_post(const transfer *all, const transfer *t) {
    for (const transfer *before = all; before < t; before++)
        if (before->ring == t->ring && before->o->kind == t->o->kind && !before->done) return 0;
    return 1;
}

static void transfer_post(transfer *t) {
    int sends = t->o->kind == SEND;
    _Atomic uint64_t *posted = sends ? &t->ring->sends : &t->ring->receives;
    t->message = atomic_load(posted) + 1;
    (sends ? t->ring->send_bytes : t->ring->recv_bytes)[t->message & 1] = t->bytes;
    atomic_store(posted, t->message);
}

/* Both sides have posted the message, with equal sizes: different ones never meet. */
static int transfer_met(const transfer *t) {
    ring *r = t->ring;
    if (atomic_load(&r->sends) < t->message || atomic_load(&r->receives) < t->message) return 0;
    return r->send_bytes[t->message & 1] == r->recv_bytes[t->message & 1];
}

static size_t transfer_move(transfer *t) {
    ring *r = t->ring;
    int sends = t->o->kind == SEND;
    uint64_t written = atomic_load(&r->written), read = atomic_load(&r->read);
    size_t at = (size_t)((sends ? written : read) % RING_BYTES);
    size_t step = sends ? RING_BYTES - (size_t)(written - read) : (size_t)(written - read);
    if (step > RING_BYTES - at) step = RING_BYTES - at;
    if (step > t->bytes - t->moved) step = t->bytes - t->moved;
    if (sends)
        memcpy(r->bytes + at, t->memory + t->moved, step);
    else
        memcpy(t->memory + t->moved, r->bytes + at, step);
    atomic_fetch_add(sends ? &r->written : &r->read, step);
    t->moved += step;
    return step;
}

/* True: something changed that the peer may be waiting for. */
static int transfer_step(const transfer *all, transfer *t) {
    int changed = 0;
    if (t->done) return 0;
    if (!t->message) {
        if (!transfer_may_post(all, t)) return 0;
        transfer_post(t);
        changed = 1;
    }
    if (transfer_met(t) && transfer_move(t)) changed = 1;
    t->done = t->moved == t->bytes;
    return changed;
}

static void run_transfers(ncclComm_t c, transfer *all, size_t count) {
    atomic_uint *doorbell = &card_of(c, c->rank)->doorbell;
    for (size_t left = count; left && !atomic_load(&c->stop);) {
        unsigned rung = atomic_load(doorbell);
        int changed = 0;
        left = 0;
        for (size_t i = 0; i < count; i++) {
            if (transfer_step(all, &all[i])) {
                changed = 1;
                if (all[i].o->root != c->rank) ring_doorbell(c, all[i].o->root);
            }
            left += !all[i].done;
        }
        if (!left || changed) continue;
        futex_wait(doorbell, rung);
        look_for_dead_peers(c);
    }
}

#endif
