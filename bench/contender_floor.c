/* What memory allows: the time in which N processes write, each in memory of its own, the bytes that an operation must write at least
   (reduce_scatter: read, and of broadcast N - 1 parts in N); of a layout, in which they copy them (memcpy). Where an operation has two
   buffers of that size they take turns, so that caches see the same working set. The better of plain and of non-temporal stores; huge
   pages where the kernel gives them. No messages: processes meet at counters in a shared mapping.
   usage: contender_floor N OP BYTES MILLISECONDS */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* madvise, MAP_ANONYMOUS */
#endif
#include "layouts.h"
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { MOST = 64, WRITE_PLAIN = 0, WRITE_PAST_CACHES, READ, COPY };

typedef struct meeting {
    int come, turn;
    double value[MOST][CONTENDER_SAMPLES];
} meeting;

static meeting *all;
static contender c;
static int how;
static volatile uint64_t sink;

static void barrier(void) {
    int turn = __atomic_load_n(&all->turn, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&all->come, 1, __ATOMIC_ACQ_REL) == c.n) {
        __atomic_store_n(&all->come, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&all->turn, turn + 1, __ATOMIC_RELEASE);
        return;
    }
    while (__atomic_load_n(&all->turn, __ATOMIC_ACQUIRE) == turn) sched_yield();
}

static void max(double *values, int count) {
    int i, r;
    memcpy(all->value[c.rank], values, (size_t)count * sizeof *values);
    barrier();
    for (r = 0; r < c.n; r++)
        for (i = 0; i < count; i++) values[i] = all->value[r][i] > values[i] ? all->value[r][i] : values[i];
    barrier();
}

static void write_past_caches(char *p, size_t nbytes) {
#ifdef __SSE2__
    __m128i v = _mm_set1_epi8(0x11);
    size_t i;
    for (i = 0; i + 64 <= nbytes; i += 64) {
        _mm_stream_si128((__m128i *)(void *)(p + i), v);
        _mm_stream_si128((__m128i *)(void *)(p + i + 16), v);
        _mm_stream_si128((__m128i *)(void *)(p + i + 32), v);
        _mm_stream_si128((__m128i *)(void *)(p + i + 48), v);
    }
    memset(p + i, 0x11, nbytes - i);
    _mm_sfence();
#else
    memset(p, 0x11, nbytes);
#endif
}

static uint64_t read_all(const uint64_t *p, size_t n) {
    uint64_t sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    size_t i, k;
    for (i = 0; i + 8 <= n; i += 8)
        for (k = 0; k < 8; k++) sum[k] += p[i + k];
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

static int has_two(int op) { return op == OP_ALL_REDUCE || op == OP_ALL_TO_ALL || op == OP_SENDRECV; }

static void pass(int op, const void *send, void *recv, size_t nbytes) {
    static int turn;
    void *to = has_two(op) && (turn ^= 1) ? (void *)(uintptr_t)send : recv;
    if (how == COPY)
        memcpy(recv, send, nbytes);
    else if (how == READ)
        sink = read_all((const uint64_t *)send, nbytes / 8);
    else if (how == WRITE_PAST_CACHES)
        write_past_caches((char *)to, nbytes);
    else
        memset(to, 0x22, nbytes);
}

/* A pass ends when all have ended: who waits for a core has not begun when the first is through. */
static void run(int op, const void *send, void *recv, size_t nbytes) {
    if (op != OP_BARRIER) pass(op, send, recv, nbytes);
    barrier();
}

static void *pages(size_t nbytes) {
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    madvise(p, nbytes, MADV_HUGEPAGE);
    memset(p, 0x33, nbytes);
    return p;
}

static int one(int op, size_t nbytes, double budget) {
    contender_result r = {0, 0, 0, 0, 0, 0}, past;
    void *send = pages(nbytes), *recv = pages(nbytes);
    if (!send || !recv) return fprintf(stderr, "contender_floor: no memory\n"), 2;
    c.run = run;
    c.max = max;
    how = op == OP_MOVE ? COPY : op == OP_REDUCE_SCATTER ? READ : WRITE_PLAIN;
    contender_measure(&c, op, send, recv, nbytes, budget / 2, &r);
    if (how == WRITE_PLAIN) {
        how = WRITE_PAST_CACHES;
        contender_measure(&c, op, send, recv, nbytes, budget / 2, &past);
        if (past.median < r.median) r = past, r.wrong = 0;
    }
    if (op == OP_BROADCAST) r.median *= (double)(c.n - 1) / c.n, r.mean *= (double)(c.n - 1) / c.n;
    return contender_print(&c, &r);
}

int main(int argc, char **argv) {
    const layout *l;
    int op = 0, r, status, bad = 0;
    size_t nbytes;
    c.n = argc == 5 ? atoi(argv[1]) : 0;
    if (c.n < 1 || c.n > MOST) return fprintf(stderr, "usage: contender_floor N OP BYTES MILLISECONDS\n"), 2;
    l = layout_find(argv[2], c.n);
    while (!l && op < OP_BARRIER && strcmp(argv[2], op_names[op])) op++;
    if (op == OP_BARRIER) return fprintf(stderr, "contender_floor: no operation %s\n", argv[2]), 2;
    nbytes = l ? (size_t)LAYOUT_BYTES / (size_t)c.n : contender_bytes(&c, op, argv[3]);
    all = (meeting *)mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return perror("contender_floor: mmap"), 2;
    for (r = 1; r < c.n && !c.rank; r++) {
        pid_t child = fork();
        if (child < 0)
            return perror("contender_floor: fork"), 2; /* the others wait: bench_peers' time limit ends them */
        if (child == 0) c.rank = r;
    }
    status = one(l ? OP_MOVE : op, nbytes, atof(argv[4]) * 1e3);
    while (!c.rank && wait(&r) > 0) bad |= r;
    return status || bad;
}
