/* mesh/pipeline.h - pipelines as data: schedules made, checked, timed, drawn. Part of mesh.h 0.1.0. MIT licence.

   Includes base.h. Needs no ranks, no memory of its own, no C library.

DO THIS
    Nothing: mesh_parallel.h includes it.

EXAMPLE
    void *memory = malloc(mesh_schedule_bytes(4, 8, 1));
    if (mesh_schedule_make(&s, "1f1b", 4, 8, 1, memory, mesh_schedule_bytes(4, 8, 1), &err)) return fail(err.text);
    mesh_schedule_time(&s, NULL, &report, &err);          (double)report.makespan_ps / (double)report.busy_ps - 1 is the bubble
*/
#if !defined(MESH_PIPELINE_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_PIPELINE_IMPLEMENTED))
#include "base.h"
#endif

#ifndef MESH_PIPELINE_H
#define MESH_PIPELINE_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- pipelines ----------------------------------------------------------------------------------------------------------- */

/* BACKWARD: both halves; else the gradient of the input, which the stage before waits for, and that of the weights, which nobody does. */
typedef enum mesh_action_kind {
    MESH_FORWARD = 0,
    MESH_BACKWARD,
    MESH_BACKWARD_INPUT,
    MESH_BACKWARD_WEIGHT
} mesh_action_kind;
typedef struct mesh_action {
    uint8_t kind, chunk; /* a mesh_action_kind */
    uint16_t micro;
} mesh_action;

typedef enum mesh_stage_order {
    MESH_STAGES_LOOP = 0, /* chunk c of rank r is stage c * ranks + r */
    MESH_STAGES_V         /* odd chunks run back: stage c * ranks + (ranks - 1 - r) */
} mesh_stage_order;

enum { MESH_SCHEDULE_RANKS = 512, MESH_SCHEDULE_MICROS = 65535, MESH_SCHEDULE_CHUNKS = 255 }; /* at most */

/* A schedule is data, the same on every rank: rank r does action[first[r]] .. action[first[r + 1]). Stages in all: ranks * chunks. */
typedef struct mesh_schedule {
    int ranks, micros, chunks;
    int order;        /* mesh_stage_order */
    const int *first; /* in the caller's memory, as are the actions */
    const mesh_action *action;
} mesh_schedule;

/* Make a schedule of a kind, for p ranks and m micro-batches. Bubble: how much longer the whole takes than a rank computes, over that, where all stages cost
   the same and sends nothing. Peak: the most (micro-batch, chunk) in flight on rank r, from the forward to the last backward.
     kind         chunks   source                               bubble                            peak on rank r
     forward      any      no backward                                                            1
     gpipe        1        Huang et al. 2019                    (p - 1) / m                       m
     1f1b         1        Narayanan et al. 2021, section 2.2   (p - 1) / m                       min(p - r, m)
     interleaved  2 ..     the same; micros % ranks is 0        (p - 1) / (chunks m)              min(2 (p - r - 1) + (chunks - 1) p + 1, chunks m)
     zb-h1        1        Qi et al. 2023, "Zero Bubble"        max(p - 1, 2 p - 1 - m) / (3 m)   min(p, m), which 1f1b has on rank 0
     zb-v         2, a V   the same                             max(p - 1, 4 p - 2 - 2 m) / (6 m) at most 2 min(p, m), of stages half as big
   zb-h1's and zb-v's bubble: where forward and both halves of the backward cost the same.
   memory: mesh_schedule_bytes of it, aligned for int, alive as long as the schedule. ARGUMENT: numbers that the kind does not fit, with the nearest
   that do. MEMORY: the bytes needed. */
MESH_API mesh_status mesh_schedule_make(mesh_schedule *s, const char *kind, int ranks, int micros, int chunks,
                                        void *memory, size_t nbytes, mesh_error *err);
/* Enough for any kind; 0: there is no schedule of such numbers. */
MESH_API size_t mesh_schedule_bytes(int ranks, int micros, int chunks);
/* Which stage chunk `chunk` of a rank is. -1: no such rank or chunk. */
MESH_API int mesh_schedule_stage(const mesh_schedule *s, int rank, int chunk);
/* Of any schedule, the caller's own too: every rank does each of its actions once (of a micro-batch and chunk the forward, and BACKWARD or both halves, or
   no rank does any backward), and none waits for ever: for the forward of the stage before, the backward of the stage behind, its own forward, the
   half before; nor for room, where between two ranks `inbox` activations and as many gradients (0: 2) can wait in each direction, from the start of
   what sends them to the start of what takes them. ARGUMENT: the rank, the place in its list, the action and what it waits for. */
MESH_API mesh_status mesh_schedule_check(const mesh_schedule *s, int inbox, mesh_error *err);

typedef struct mesh_stage_cost {
    int64_t forward_ps, backward_input_ps, backward_weight_ps;
    int64_t send_ps; /* its output to the next stage, and a gradient back */
} mesh_stage_cost;
typedef struct mesh_schedule_report {
    int64_t makespan_ps, busy_ps; /* of the busiest rank; bubble = makespan / busy - 1 */
    int peak;                     /* most (micro-batch, chunk) in flight on a rank: forward done, last backward not */
    int *peaks;                   /* per rank; the caller's memory, or NULL */
    int64_t *idle_ps;             /* per rank: the makespan less what it computes; the caller's memory, or NULL */
} mesh_schedule_report;
/* When everything happens if each rank begins its next action as soon as what that needs is there. A send occupies no rank: it overlaps with what both
   compute. Between two ranks one message at a time travels in each direction, in the order in which they are made: two cost 2 send_ps. Between stages
   of one rank nothing travels. The room for what waits is not limited. cost: one per stage (ranks * chunks); NULL: 1, 1, 1, 0. Only peaks and
   idle_ps of the report are read. ARGUMENT: as mesh_schedule_check; a cost that is negative, or costs whose sum is beyond 2^62. */
MESH_API mesh_status mesh_schedule_time(const mesh_schedule *s, const mesh_stage_cost *cost, mesh_schedule_report *r,
                                        mesh_error *err);
/* A row per rank, time across: "F3" the forward of micro-batch 3, "B3" its backward (or that of the input), "W3" of the weights; with more chunks "F3b" is
   of the second; "-" goes on, "." idles. At most 512 columns: longer ones are drawn coarser. Returns the whole length; at most cap - 1 bytes and a
   terminator are written. A schedule that is wrong: what is wrong with it. */
MESH_API size_t mesh_schedule_draw(const mesh_schedule *s, const mesh_stage_cost *cost, char *buf, size_t cap);
/* The same as SVG: forward blue, backward green, of the weights yellow, later chunks darker; each with a title. */
MESH_API size_t mesh_schedule_draw_svg(const mesh_schedule *s, const mesh_stage_cost *cost, char *buf, size_t cap);

#ifdef __cplusplus
}
#endif
#endif /* MESH_PIPELINE_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_PIPELINE_IMPLEMENTED)
#define MESH_PIPELINE_IMPLEMENTED

/* ---- // >>stages ---- */

MESH__PRIVATE int mesh__stage_of(const mesh_schedule *s, int rank, int chunk) {
    return chunk * s->ranks + (s->order == MESH_STAGES_V && (chunk & 1) ? s->ranks - 1 - rank : rank);
}

MESH__PRIVATE int mesh__stage_rank(const mesh_schedule *s, int stage) {
    int chunk = stage / s->ranks, i = stage % s->ranks;
    return s->order == MESH_STAGES_V && (chunk & 1) ? s->ranks - 1 - i : i;
}

/* The stage that an action's message comes from (direction -1) or goes to (1): -1, there is none. Its rank may be the same: then nothing travels. */
MESH__PRIVATE int mesh__action_stage(const mesh_schedule *s, int rank, const mesh_action *a, int direction) {
    int stage = mesh__stage_of(s, rank, a->chunk), to;
    if (a->kind == MESH_BACKWARD_WEIGHT) return -1;
    to = a->kind == MESH_FORWARD ? stage + direction : stage - direction;
    return to < s->ranks * s->chunks ? to : -1;
}

/* The rank that it sends to (1) or receives from (-1); -1: none. */
MESH__PRIVATE int mesh__action_peer(const mesh_schedule *s, int rank, const mesh_action *a, int direction) {
    int stage = mesh__action_stage(s, rank, a, direction), peer = stage < 0 ? -1 : mesh__stage_rank(s, stage);
    return peer == rank ? -1 : peer;
}

MESH__RARE void mesh__put_action(mesh__text *t, const mesh_schedule *s, int rank, const mesh_action *a) {
    static const char *const kinds[] = {"forward", "backward", "backward of the input", "backward of the weights"};
    mesh__put(t, "the %s of micro-batch %d", kinds[a->kind], (int)a->micro);
    if (s->chunks > 1) mesh__put(t, ", chunk %d", (int)a->chunk);
    mesh__put(t, " (stage %d)", mesh__stage_of(s, rank, a->chunk));
}

/* ---- // >>making ---- */

/* A rank's list while it is written: how many of each kind stand in it, per chunk. */
typedef struct mesh__maker {
    const mesh_schedule *s;
    int rank, n;
    mesh_action *action; /* the whole list */
    int made[2][4];      /* of kinds that count for themselves: two chunks at most */
} mesh__maker;

MESH__PRIVATE void mesh__make(mesh__maker *k, int kind, int chunk, int micro) {
    mesh_action *a = &k->action[k->n++];
    a->kind = (uint8_t)kind;
    a->chunk = (uint8_t)chunk;
    a->micro = (uint16_t)micro;
}

/* The next micro-batch of a kind and chunk; beyond the last there is none. */
MESH__PRIVATE void mesh__make_next(mesh__maker *k, int kind, int chunk) {
    int micro = k->made[chunk][kind]++;
    if (micro < k->s->micros) mesh__make(k, kind, chunk, micro);
}

/* Number i of a list in which groups of `ranks` micro-batches pass one chunk after the other, the last group smaller. */
MESH__PRIVATE void mesh__make_turn(mesh__maker *k, int kind, int i) {
    int p = k->s->ranks, v = k->s->chunks, m = k->s->micros, group = i / (p * v), in, turn, size;
    size = m - group * p < p ? m - group * p : p;
    in = i - group * p * v;
    turn = in / size;
    mesh__make(k, kind, kind == MESH_FORWARD ? turn : v - 1 - turn, group * p + in % size);
}

MESH__PRIVATE void mesh__make_forward(mesh__maker *k) {
    int i;
    for (i = 0; i < k->s->micros * k->s->chunks; i++) mesh__make_turn(k, MESH_FORWARD, i);
}

MESH__PRIVATE void mesh__make_gpipe(mesh__maker *k) {
    int i;
    mesh__make_forward(k);
    for (i = 0; i < k->s->micros; i++) mesh__make(k, MESH_BACKWARD, 0, i);
}

/* Forwards ahead, then one forward and one backward by turns, then the backwards that are left. */
MESH__PRIVATE void mesh__make_ahead(mesh__maker *k, int ahead) {
    int i, all = k->s->micros * k->s->chunks;
    for (i = 0; i < all + ahead; i++) {
        if (i < all) mesh__make_turn(k, MESH_FORWARD, i);
        if (i >= ahead) mesh__make_turn(k, MESH_BACKWARD, i - ahead);
    }
}

MESH__PRIVATE void mesh__make_1f1b(mesh__maker *k) { mesh__make_ahead(k, k->s->ranks - k->rank - 1); }

MESH__PRIVATE void mesh__make_interleaved(mesh__maker *k) {
    mesh__make_ahead(k, 2 * (k->s->ranks - k->rank - 1) + (k->s->chunks - 1) * k->s->ranks);
}

/* As 1f1b, with the weights' half of rank r's backward r micro-batches later: the last rank sends its first gradients sooner, and what is put off fills
   the wait at the end. */
MESH__PRIVATE void mesh__make_zb_h1(mesh__maker *k) {
    int i, m = k->s->micros, ahead = k->s->ranks - k->rank - 1;
    for (i = 0; i < m + ahead + k->rank; i++) {
        if (i < m) mesh__make(k, MESH_FORWARD, 0, i);
        if (i >= ahead && i - ahead < m) mesh__make(k, MESH_BACKWARD_INPUT, 0, i - ahead);
        if (i >= ahead + k->rank) mesh__make(k, MESH_BACKWARD_WEIGHT, 0, i - ahead - k->rank);
    }
}

MESH__PRIVATE void mesh__make_both(mesh__maker *k, int chunk) {
    mesh__make_next(k, MESH_BACKWARD_INPUT, chunk);
    mesh__make_next(k, MESH_BACKWARD_WEIGHT, chunk);
}

/* The paper searches for an order; this is the one for F = B = W, of 2 p - 1 micro-batches or more. Of fewer, what is left of it. */
MESH__PRIVATE void mesh__make_zb_v(mesh__maker *k) {
    int i, p = k->s->ranks, r = k->rank, m = k->s->micros < 2 * p - 1 ? 2 * p - 1 : k->s->micros;
    for (i = 0; i < 2 * (p - r) - 1; i++) mesh__make_next(k, MESH_FORWARD, 0);
    for (i = 0; i < r; i++) {
        mesh__make_next(k, MESH_FORWARD, 1);
        mesh__make_next(k, MESH_FORWARD, 0);
    }
    for (i = 0; i < p - r; i++) {
        mesh__make_next(k, MESH_FORWARD, 1);
        mesh__make_both(k, 1);
    }
    while (k->made[1][MESH_FORWARD] < m) {
        if (k->made[0][MESH_FORWARD] < m) mesh__make_next(k, MESH_FORWARD, 0);
        mesh__make_both(k, 0);
        mesh__make_next(k, MESH_FORWARD, 1);
        mesh__make_both(k, 1);
    }
    for (i = 0; i < r; i++) {
        mesh__make_next(k, MESH_BACKWARD_INPUT, 0);
        mesh__make_next(k, MESH_BACKWARD_INPUT, 1);
    }
    for (i = 0; i < p - r; i++) mesh__make_both(k, 0);
    while (k->made[1][MESH_BACKWARD_WEIGHT] < m) mesh__make_next(k, MESH_BACKWARD_WEIGHT, 1);
    while (k->made[0][MESH_BACKWARD_WEIGHT] < m) mesh__make_next(k, MESH_BACKWARD_WEIGHT, 0);
}

typedef struct mesh__pipeline_kind {
    const char *name;
    int least, most; /* chunks */
    int order;
    void (*make)(mesh__maker *k); /* a rank's list */
} mesh__pipeline_kind;

MESH__PRIVATE const mesh__pipeline_kind *mesh__pipeline_kind_of(const char *name) {
    static const mesh__pipeline_kind kinds[] = {
        {"forward", 1, MESH_SCHEDULE_CHUNKS, MESH_STAGES_LOOP, mesh__make_forward},
        {"gpipe", 1, 1, MESH_STAGES_LOOP, mesh__make_gpipe},
        {"1f1b", 1, 1, MESH_STAGES_LOOP, mesh__make_1f1b},
        {"interleaved", 2, MESH_SCHEDULE_CHUNKS, MESH_STAGES_LOOP, mesh__make_interleaved},
        {"zb-h1", 1, 1, MESH_STAGES_LOOP, mesh__make_zb_h1},
        {"zb-v", 2, 2, MESH_STAGES_V, mesh__make_zb_v},
    };
    size_t i;
    for (i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (name && mesh__same(name, kinds[i].name)) return &kinds[i];
    return NULL;
}

/* Numbers that any schedule has. */
MESH__PRIVATE mesh_status mesh__pipeline_numbers(int ranks, int micros, int chunks, const char *function,
                                                 mesh_error *err) {
    static const char *const names[] = {"ranks", "micro-batches", "chunks"};
    int i, number[3], most[3] = {MESH_SCHEDULE_RANKS, MESH_SCHEDULE_MICROS, MESH_SCHEDULE_CHUNKS};
    number[0] = ranks, number[1] = micros, number[2] = chunks;
    for (i = 0; i < 3; i++)
        if (number[i] < 1 || number[i] > most[i])
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %d %s; at least 1 and at most %d", function, number[i],
                              names[i], most[i]);
    if ((int64_t)ranks * micros * chunks > INT32_MAX / 12)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "%s: %d ranks, %d micro-batches and %d chunks are %l forwards; at most %d", function, ranks,
                          micros, chunks, (int64_t)ranks * micros * chunks, INT32_MAX / 12);
    return MESH_OK;
}

MESH_API int mesh_schedule_stage(const mesh_schedule *s, int rank, int chunk) {
    if (!s || rank < 0 || rank >= s->ranks || chunk < 0 || chunk >= s->chunks) return -1;
    return mesh__stage_of(s, rank, chunk);
}

MESH_API size_t mesh_schedule_bytes(int ranks, int micros, int chunks) {
    if (mesh__pipeline_numbers(ranks, micros, chunks, "", NULL) != MESH_OK) return 0;
    return ((size_t)ranks + 1) * sizeof(int) +
           (size_t)ranks * (size_t)micros * (size_t)chunks * 3 * sizeof(mesh_action);
}

MESH__PRIVATE mesh_status mesh__pipeline_fits(const mesh__pipeline_kind *kind, const char *name, int ranks, int micros,
                                              int chunks, mesh_error *err) {
    mesh_status status;
    if (!kind)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_schedule_make: no kind \"%s\"; it is forward, gpipe, 1f1b, interleaved, zb-h1 or zb-v",
                          name ? name : "(null)");
    status = mesh__pipeline_numbers(ranks, micros, chunks, "mesh_schedule_make", err);
    if (status != MESH_OK) return status;
    if (chunks < kind->least || chunks > kind->most)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_schedule_make: %s with %d chunk%s per rank; it has %s%d%s",
                          name, chunks, chunks == 1 ? "" : "s", kind->most > kind->least ? "at least " : "",
                          kind->least, kind->most > 1 ? "" : " (interleaved has more)");
    if (kind->make == mesh__make_interleaved && micros % ranks) {
        int below = micros - micros % ranks, above = below + ranks;
        char nearest[40];
        mesh__text t = mesh__text_on(nearest, sizeof nearest);
        if (below) mesh__put(&t, "%d%s", below, above <= MESH_SCHEDULE_MICROS ? " or " : "");
        if (above <= MESH_SCHEDULE_MICROS) mesh__put(&t, "%d", above);
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "mesh_schedule_make: interleaved with %d micro-batches, no multiple of %d ranks; take %s",
                          micros, ranks, nearest);
    }
    return MESH_OK;
}

MESH_API mesh_status mesh_schedule_make(mesh_schedule *s, const char *kind, int ranks, int micros, int chunks,
                                        void *memory, size_t nbytes, mesh_error *err) {
    const mesh__pipeline_kind *of = mesh__pipeline_kind_of(kind);
    mesh_status status = mesh__pipeline_fits(of, kind, ranks, micros, chunks, err);
    int *first = (int *)memory;
    mesh__maker k = MESH_ZERO;
    if (status != MESH_OK) return status;
    if (!memory || nbytes < mesh_schedule_bytes(ranks, micros, chunks))
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_schedule_make: %u bytes are needed, not %u",
                          (uint64_t)mesh_schedule_bytes(ranks, micros, chunks), (uint64_t)(memory ? nbytes : 0));
    if ((uintptr_t)memory % sizeof(int))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_schedule_make: the memory is not aligned to %d bytes",
                          (int)sizeof(int));
    s->ranks = ranks;
    s->micros = micros;
    s->chunks = chunks;
    s->order = of->order;
    s->first = first;
    s->action = k.action = (mesh_action *)(first + ranks + 1);
    k.s = s;
    for (k.rank = 0; k.rank < ranks; k.rank++) {
        int c, i;
        for (c = 0; c < 2; c++)
            for (i = 0; i < 4; i++) k.made[c][i] = 0;
        first[k.rank] = k.n;
        of->make(&k);
    }
    first[ranks] = k.n;
    return MESH_OK;
}

/* ---- // >>checking: each action once ---- */

/* The numbers, `first`, and every action's bytes. *backward: does any rank do any? */
MESH__PRIVATE mesh_status mesh__pipeline_read(const mesh_schedule *s, int *backward, const char *function,
                                              mesh_error *err) {
    mesh_status status;
    int r, i;
    if (!s || !s->first || !s->action)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the schedule, its `first` or its actions are NULL",
                          function);
    status = mesh__pipeline_numbers(s->ranks, s->micros, s->chunks, function, err);
    if (status != MESH_OK) return status;
    if (s->order != MESH_STAGES_LOOP && s->order != MESH_STAGES_V)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the order of stages is %d; it is MESH_STAGES_LOOP or _V",
                          function, s->order);
    for (r = 0; r < s->ranks; r++) { /* before an action is read */
        int64_t most = (int64_t)3 * s->micros * s->chunks;
        if (s->first[r] < 0 || s->first[r + 1] < s->first[r] || s->first[r + 1] - s->first[r] > most)
            return mesh__fail(err, MESH_ERR_ARGUMENT, r,
                              "%s: rank %d: its actions are %d up to %d; `first` must rise, by %l at most", function, r,
                              s->first[r], s->first[r + 1], most);
    }
    for (*backward = r = 0; r < s->ranks; r++) {
        for (i = s->first[r]; i < s->first[r + 1]; i++) {
            const mesh_action *a = &s->action[i];
            if (a->kind > MESH_BACKWARD_WEIGHT || a->chunk >= s->chunks || a->micro >= s->micros)
                return mesh__fail(err, MESH_ERR_ARGUMENT, r,
                                  "%s: rank %d, place %d: kind %d, chunk %d, micro-batch %d; there are 4 kinds, %d "
                                  "chunks, %d micro-batches",
                                  function, r, i - s->first[r], (int)a->kind, (int)a->chunk, (int)a->micro, s->chunks,
                                  s->micros);
            *backward |= a->kind != MESH_FORWARD;
        }
    }
    return MESH_OK;
}

enum {
    MESH__SEEN = 4096
}; /* pairs of a micro-batch and a chunk that are looked at together: no more memory than that */

MESH__RARE mesh_status mesh__pipeline_wrong(const mesh_schedule *s, int r, int place, const mesh_action *a,
                                            const char *function, const char *what, mesh_error *err) {
    char text[120], at[40];
    mesh__text t = mesh__text_on(text, sizeof text), where = mesh__text_on(at, sizeof at);
    mesh__put_action(&t, s, r, a);
    if (place >= 0) mesh__put(&where, ", place %d", place);
    return mesh__fail(err, MESH_ERR_ARGUMENT, r, "%s: rank %d%s: %s %s", function, r, at, text, what);
}

/* Does rank r do each action of the pairs from `from` on, once? */
MESH__PRIVATE mesh_status mesh__pipeline_once(const mesh_schedule *s, int r, int from, int backward,
                                              const char *function, mesh_error *err) {
    static const unsigned char excludes[] = {1, 14, 6,
                                             10}; /* per kind, a bit for each that must not have been before */
    unsigned char seen[MESH__SEEN];
    int i, pairs = s->micros * s->chunks - from;
    if (pairs > MESH__SEEN) pairs = MESH__SEEN;
    for (i = 0; i < pairs; i++) seen[i] = 0;
    for (i = s->first[r]; i < s->first[r + 1]; i++) {
        const mesh_action *a = &s->action[i];
        int at = a->chunk * s->micros + a->micro - from;
        if (at < 0 || at >= pairs) continue;
        if (seen[at] & excludes[a->kind])
            return mesh__pipeline_wrong(s, r, i - s->first[r], a, function, "is done twice", err);
        seen[at] = (unsigned char)(seen[at] | 1 << a->kind);
    }
    for (i = 0; i < pairs; i++) {
        mesh_action lacks;
        lacks.chunk = (uint8_t)((from + i) / s->micros);
        lacks.micro = (uint16_t)((from + i) % s->micros);
        if (seen[i] == (backward ? 3 : 1) || seen[i] == 13) continue;
        lacks.kind = (uint8_t)(!(seen[i] & 1) ? MESH_FORWARD
                               : seen[i] == 1 ? MESH_BACKWARD
                               : seen[i] == 5 ? MESH_BACKWARD_WEIGHT
                                              : MESH_BACKWARD_INPUT);
        return mesh__pipeline_wrong(s, r, -1, &lacks, function, "is missing", err);
    }
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__pipeline_whole(const mesh_schedule *s, const char *function, mesh_error *err) {
    int r, from, backward = 0;
    mesh_status status = mesh__pipeline_read(s, &backward, function, err);
    for (r = 0; status == MESH_OK && r < s->ranks; r++)
        for (from = 0; status == MESH_OK && from < s->micros * s->chunks; from += MESH__SEEN)
            status = mesh__pipeline_once(s, r, from, backward, function, err);
    return status;
}

/* ---- // >>clock: the schedule runs. Times of what has happened are not kept, so it needs no memory beyond a few words per rank ---- */

/* Messages to one other rank, in the order of the list: those of actions before `at` have arrived, or are none of this way's. */
typedef struct mesh__way {
    int at, busy;
    int64_t until;
    int waiting[2]; /* gradients, activations: begun, and not yet begun to be used */
} mesh__way;

typedef struct mesh__lane { /* a rank */
    int at, runs;           /* actions before `at` are done */
    int64_t end;            /* of the one that runs */
    mesh__way way[2];       /* to the next rank, to the one before; both are the first where there are two ranks */
    /* Where an action that was needed stood: backward or forward, own list or a neighbour's, even or odd chunk. */
    int hint[2][3][2];
} mesh__lane;

/* Called when an action begins. */
typedef void (*mesh__pipe_seen)(void *ctx, int rank, const mesh_action *a, int64_t start, int64_t end);

typedef struct mesh__pipe {
    const mesh_schedule *s;
    const mesh_stage_cost *cost;
    int inbox; /* 0: any number */
    int64_t now;
    mesh__lane lane[MESH_SCHEDULE_RANKS];
    mesh__pipe_seen seen;
    void *ctx;
} mesh__pipe;

MESH__PRIVATE int mesh__way_of(const mesh_schedule *s, int from, int to) { return to != (from + 1) % s->ranks; }

MESH__PRIVATE const mesh_action *mesh__lane_action(const mesh_schedule *s, int r, int at) {
    return s->first[r] + at < s->first[r + 1] ? &s->action[s->first[r] + at] : NULL;
}

/* Is it the forward, or the backward (of the input), of a pair? */
MESH__PRIVATE int mesh__makes(const mesh_action *a, int forward, int chunk, int micro) {
    return a->micro == micro && a->chunk == chunk &&
           (forward ? a->kind == MESH_FORWARD : a->kind == MESH_BACKWARD || a->kind == MESH_BACKWARD_INPUT);
}

/* Where in a rank's list that stands: from a hint on, both ways. It is there. */
MESH__PRIVATE int mesh__lane_find(const mesh_schedule *s, int r, int forward, int chunk, int micro, int *hint) {
    const mesh_action *list = &s->action[s->first[r]];
    int n = s->first[r + 1] - s->first[r], up = *hint < n ? *hint : 0, down = up;
    for (;;) {
        if (up < n && mesh__makes(&list[up], forward, chunk, micro)) return *hint = up;
        if (down >= 0 && mesh__makes(&list[down], forward, chunk, micro)) return *hint = down;
        up++, down--;
    }
}

/* What an action waits for: a forward or a backward of a stage, or room on the way to a rank. */
typedef struct mesh__need {
    int rank, place, forward; /* where it is made */
    int room;                 /* 1: `rank` has not taken what waits for it */
} mesh__need;

/* Is there what stage `stage` made of the micro-batch? */
MESH__PRIVATE int mesh__pipe_has(mesh__pipe *k, int r, int stage, int forward, int micro, mesh__need *need) {
    const mesh_schedule *s = k->s;
    int from = mesh__stage_rank(s, stage), way = mesh__way_of(s, from, r);
    need->rank = from;
    need->forward = forward;
    need->place =
        mesh__lane_find(s, from, forward, stage / s->ranks, micro,
                        &k->lane[r].hint[forward][from == r ? 2 : mesh__way_of(s, r, from)][stage / s->ranks & 1]);
    return need->place < (from == r ? k->lane[r].at : k->lane[from].way[way].at);
}

MESH__PRIVATE int mesh__pipe_ready(mesh__pipe *k, int r, const mesh_action *a, mesh__need *need) {
    const mesh_schedule *s = k->s;
    int own = mesh__stage_of(s, r, a->chunk), before = mesh__action_stage(s, r, a, -1),
        to = mesh__action_peer(s, r, a, 1);
    need->room = 0;
    if (a->kind != MESH_FORWARD && !mesh__pipe_has(k, r, own, a->kind != MESH_BACKWARD_WEIGHT, a->micro, need))
        return 0;
    if (before >= 0 && !mesh__pipe_has(k, r, before, a->kind == MESH_FORWARD, a->micro, need)) return 0;
    need->room = 1;
    need->rank = to;
    return !k->inbox || to < 0 || k->lane[r].way[mesh__way_of(s, r, to)].waiting[a->kind == MESH_FORWARD] < k->inbox;
}

MESH__PRIVATE int64_t mesh__pipe_cost(const mesh__pipe *k, int r, const mesh_action *a) {
    const mesh_stage_cost *c = k->cost ? &k->cost[mesh__stage_of(k->s, r, a->chunk)] : NULL;
    switch (a->kind) {
    case MESH_FORWARD:
        return c ? c->forward_ps : 1;
    case MESH_BACKWARD:
        return c ? c->backward_input_ps + c->backward_weight_ps : 2;
    case MESH_BACKWARD_INPUT:
        return c ? c->backward_input_ps : 1;
    default:
        return c ? c->backward_weight_ps : 1;
    }
}

/* Rank r: an action that has run its time ends, the next begins. Returns whether anything happened. */
MESH__PRIVATE int mesh__pipe_lane(mesh__pipe *k, int r) {
    mesh__lane *lane = &k->lane[r];
    const mesh_action *a = mesh__lane_action(k->s, r, lane->at);
    mesh__need need;
    int from, to;
    if (lane->runs) {
        if (lane->end > k->now) return 0;
        lane->runs = 0;
        lane->at++;
        return 1;
    }
    if (!a || !mesh__pipe_ready(k, r, a, &need)) return 0;
    from = mesh__action_peer(k->s, r, a, -1);
    to = mesh__action_peer(k->s, r, a, 1);
    if (from >= 0) k->lane[from].way[mesh__way_of(k->s, from, r)].waiting[a->kind == MESH_FORWARD]--;
    if (to >= 0) lane->way[mesh__way_of(k->s, r, to)].waiting[a->kind == MESH_FORWARD]++;
    lane->runs = 1;
    lane->end = k->now + mesh__pipe_cost(k, r, a);
    if (k->seen) k->seen(k->ctx, r, a, k->now, lane->end);
    return 1;
}

/* One way out of rank r: what has travelled arrives, the next message leaves. */
MESH__PRIVATE int mesh__pipe_way(mesh__pipe *k, int r, int w) {
    mesh__way *way = &k->lane[r].way[w];
    const mesh_action *a;
    int moved = 0, to;
    while (way->at < k->lane[r].at) {
        a = mesh__lane_action(k->s, r, way->at);
        to = mesh__action_peer(k->s, r, a, 1);
        if (to >= 0 && mesh__way_of(k->s, r, to) == w) {
            if (!way->busy) {
                const mesh_stage_cost *c = k->cost ? &k->cost[mesh__stage_of(k->s, r, a->chunk)] : NULL;
                way->busy = moved = 1;
                way->until = k->now + (c ? c->send_ps : 0);
            }
            if (way->until > k->now) return moved;
            way->busy = 0;
        }
        way->at++;
        moved = 1;
    }
    return moved;
}

MESH__PRIVATE void mesh__pipe_start(mesh__pipe *k, const mesh_schedule *s, const mesh_stage_cost *cost, int inbox) {
    int r, i;
    k->s = s;
    k->cost = cost;
    k->inbox = inbox;
    k->now = 0;
    k->seen = NULL;
    k->ctx = NULL;
    for (r = 0; r < s->ranks; r++) {
        mesh__lane *lane = &k->lane[r];
        lane->at = lane->runs = 0;
        for (i = 0; i < 2; i++) {
            lane->way[i].at = lane->way[i].busy = 0;
            lane->way[i].waiting[0] = lane->way[i].waiting[1] = 0;
        }
        for (i = 0; i < 12; i++) lane->hint[i / 6][i / 2 % 3][i % 2] = 0;
    }
}

/* To the next moment at which something ends. 0: nothing is under way. */
MESH__PRIVATE int mesh__pipe_on(mesh__pipe *k) {
    int64_t next = INT64_MAX;
    int r, w;
    for (r = 0; r < k->s->ranks; r++) {
        const mesh__lane *lane = &k->lane[r];
        if (lane->runs && lane->end < next) next = lane->end;
        for (w = 0; w < 2; w++)
            if (lane->way[w].busy && lane->way[w].until < next) next = lane->way[w].until;
    }
    if (next == INT64_MAX) return 0;
    k->now = next;
    return 1;
}

MESH__RARE mesh_status mesh__pipe_stuck(mesh__pipe *k, int r, const char *function, mesh_error *err) {
    const mesh_schedule *s = k->s;
    const mesh_action *a = mesh__lane_action(s, r, k->lane[r].at);
    char what[200];
    mesh__text t = mesh__text_on(what, sizeof what);
    mesh__need need;
    mesh__pipe_ready(k, r, a, &need);
    if (need.room) {
        mesh__put(&t, "waits for room (inbox is %d): rank %d has not taken the %s before it, and", k->inbox, need.rank,
                  a->kind == MESH_FORWARD ? "activations" : "gradients");
    } else {
        mesh__put(&t, "waits for ");
        mesh__put_action(&t, s, need.rank, &s->action[s->first[need.rank] + need.place]);
        mesh__put(&t, ", place %d of rank %d, which", need.place, need.rank);
    }
    mesh__put(&t, " stands at place %d", k->lane[need.rank].at);
    return mesh__pipeline_wrong(s, r, k->lane[r].at, a, function, what, err);
}

MESH__PRIVATE mesh_status mesh__pipe_run(mesh__pipe *k, const char *function, mesh_error *err) {
    int r, moved;
    do do
            for (moved = r = 0; r < k->s->ranks; r++)
                moved |= mesh__pipe_lane(k, r) | mesh__pipe_way(k, r, 0) | mesh__pipe_way(k, r, 1);
        while (moved);
    while (mesh__pipe_on(k));
    for (r = 0; r < k->s->ranks; r++)
        if (mesh__lane_action(k->s, r, k->lane[r].at)) return mesh__pipe_stuck(k, r, function, err);
    return MESH_OK;
}

MESH_API mesh_status mesh_schedule_check(const mesh_schedule *s, int inbox, mesh_error *err) {
    mesh__pipe k;
    mesh_status status = mesh__pipeline_whole(s, "mesh_schedule_check", err);
    if (status != MESH_OK) return status;
    if (inbox < 0) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_schedule_check: inbox is %d; 0 is 2", inbox);
    mesh__pipe_start(&k, s, NULL, inbox ? inbox : 2);
    return mesh__pipe_run(&k, "mesh_schedule_check", err);
}

MESH__PRIVATE mesh_status mesh__costs_check(const mesh_schedule *s, const mesh_stage_cost *cost, const char *function,
                                            mesh_error *err) {
    int64_t left = INT64_C(1) << 62;
    int i, k;
    for (i = 0; cost && i < s->ranks * s->chunks; i++) {
        int64_t of[5];
        of[0] = cost[i].forward_ps, of[1] = cost[i].backward_input_ps, of[2] = cost[i].backward_weight_ps;
        of[3] = of[4] = cost[i].send_ps; /* both ways */
        for (k = 0; k < 5; k++) {
            if (of[k] < 0)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: a cost of stage %d is %l ps; 0 or more", function, i,
                                  of[k]);
            if (of[k] > left / s->micros)
                return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                  "%s: the costs up to stage %d, of %d micro-batches, are more than 2^62 ps in all",
                                  function, i, s->micros);
            left -= of[k] * s->micros;
        }
    }
    return MESH_OK;
}

/* The most pairs in flight on rank r. */
MESH__PRIVATE int mesh__pipeline_peak(const mesh_schedule *s, int r) {
    int i, now = 0, peak = 0, backward = 0;
    for (i = s->first[r]; i < s->first[r + 1]; i++) {
        int kind = s->action[i].kind;
        now += kind == MESH_FORWARD;
        if (now > peak) peak = now;
        now -= kind == MESH_BACKWARD || kind == MESH_BACKWARD_WEIGHT;
        backward |= kind != MESH_FORWARD;
    }
    return backward ? peak : 1; /* without a backward nothing is kept */
}

MESH_API mesh_status mesh_schedule_time(const mesh_schedule *s, const mesh_stage_cost *cost, mesh_schedule_report *r,
                                        mesh_error *err) {
    mesh__pipe k;
    int rank, i;
    mesh_status status = mesh__pipeline_whole(s, "mesh_schedule_time", err);
    if (status == MESH_OK) status = mesh__costs_check(s, cost, "mesh_schedule_time", err);
    if (status != MESH_OK) return status;
    mesh__pipe_start(&k, s, cost, 0);
    if ((status = mesh__pipe_run(&k, "mesh_schedule_time", err)) != MESH_OK) return status;
    r->busy_ps = 0;
    r->peak = 0;
    for (r->makespan_ps = rank = 0; rank < s->ranks; rank++) /* not k.now: messages may travel for nobody */
        if (k.lane[rank].end > r->makespan_ps) r->makespan_ps = k.lane[rank].end;
    for (rank = 0; rank < s->ranks; rank++) {
        int64_t busy = 0;
        int peak = mesh__pipeline_peak(s, rank);
        for (i = s->first[rank]; i < s->first[rank + 1]; i++) busy += mesh__pipe_cost(&k, rank, &s->action[i]);
        if (busy > r->busy_ps) r->busy_ps = busy;
        if (peak > r->peak) r->peak = peak;
        if (r->peaks) r->peaks[rank] = peak;
        if (r->idle_ps) r->idle_ps[rank] = r->makespan_ps - busy;
    }
    return MESH_OK;
}

/* ---- // >>pictures ---- */

enum { MESH__DRAW_TIMES = 512 }; /* columns at most */

typedef struct mesh__gantt {
    const mesh_schedule *s;
    mesh__text *t;
    int64_t unit;     /* ps of a column */
    int64_t span;     /* of the whole */
    int width, label; /* characters of a column; those before the first */
    size_t row;       /* those of a row, its end included */
} mesh__gantt;

MESH__PRIVATE int64_t mesh__common(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* What a column stands for: all costs are multiples of it, if so the whole is not too wide. */
MESH__PRIVATE int64_t mesh__gantt_unit(const mesh_schedule *s, const mesh_stage_cost *cost, int64_t makespan) {
    int64_t unit = cost ? 0 : 1, least = makespan / MESH__DRAW_TIMES + 1;
    int i;
    for (i = 0; cost && i < s->ranks * s->chunks; i++) {
        unit = mesh__common(unit, cost[i].forward_ps);
        unit = mesh__common(unit, cost[i].backward_input_ps);
        unit = mesh__common(unit, cost[i].backward_weight_ps);
        unit = mesh__common(unit, cost[i].send_ps);
    }
    return unit && makespan / unit <= MESH__DRAW_TIMES ? unit : least;
}

/* One action, over the empty columns in which it begins; one that has none of its own is left out. */
MESH__PRIVATE void mesh__gantt_text(void *ctx, int rank, const mesh_action *a, int64_t start, int64_t end) {
    mesh__gantt *g = (mesh__gantt *)ctx;
    char name[16];
    mesh__text l = mesh__text_on(name, sizeof name);
    size_t i, at = (size_t)rank * g->row + (size_t)g->label + (size_t)(start / g->unit) * (size_t)g->width,
              n = (size_t)(end / g->unit - start / g->unit) * (size_t)g->width;
    if (!n) return;
    mesh__put(&l, "%c%d", "FBBW"[a->kind], (int)a -> micro);
    if (g->s->chunks > 1) mesh__put_char(&l, (char)('a' + a->chunk % 26));
    for (i = 0; i < n && at + i + 1 < g->t->cap; i++) g->t->buf[at + i] = i + 1 == n ? ' ' : i < l.len ? name[i] : '-';
}

/* A row in which nothing is done. */
MESH__PRIVATE void mesh__gantt_row(const mesh__gantt *g, int rank, int64_t columns) {
    int i;
    mesh__put(g->t, "rank %w  ", mesh__digits(g->s->ranks - 1), rank);
    while (columns--) {
        mesh__put_char(g->t, '.');
        for (i = 1; i < g->width; i++) mesh__put_char(g->t, ' ');
    }
    mesh__put_char(g->t, '\n');
}

/* The schedule is whole, and its costs are; what it reports without the caller's arrays. 0: it is wrong, and the text says so. */
MESH__PRIVATE int mesh__gantt_time(const mesh_schedule *s, const mesh_stage_cost *cost, mesh__text *t,
                                   mesh_schedule_report *r) {
    mesh_error err;
    r->peaks = NULL;
    r->idle_ps = NULL;
    if (mesh_schedule_time(s, cost, r, &err) == MESH_OK) return 1;
    mesh__put(t, "%s\n", err.text);
    return 0;
}

MESH_API size_t mesh_schedule_draw(const mesh_schedule *s, const mesh_stage_cost *cost, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    mesh_schedule_report r;
    mesh__pipe k;
    mesh__gantt g = MESH_ZERO;
    int i;
    if (!mesh__gantt_time(s, cost, &t, &r)) return t.len;
    g.s = s;
    g.t = &t;
    g.unit = mesh__gantt_unit(s, cost, r.makespan_ps);
    g.width = 2 + mesh__digits(s->micros - 1) + (s->chunks > 1);
    g.label = 7 + mesh__digits(s->ranks - 1);
    g.row = (size_t)g.label + (size_t)(r.makespan_ps / g.unit) * (size_t)g.width + 1;
    for (i = 0; i < s->ranks; i++) mesh__gantt_row(&g, i, r.makespan_ps / g.unit);
    mesh__pipe_start(&k, s, cost, 0);
    k.seen = mesh__gantt_text;
    k.ctx = &g;
    mesh__pipe_run(&k, "", NULL);
    return t.len;
}

enum { MESH__GANTT_ROW = 30, MESH__GANTT_LEFT = 70, MESH__GANTT_TOP = 40, MESH__GANTT_WIDE = 1200 };

/* Where a time is drawn. */
MESH__PRIVATE int mesh__gantt_x(const mesh__gantt *g, int64_t ps) {
    if (g->span > INT64_MAX / MESH__GANTT_WIDE) return (int)(ps / (g->span / MESH__GANTT_WIDE));
    return g->span ? (int)(ps * MESH__GANTT_WIDE / g->span) : 0;
}

MESH__PRIVATE void mesh__gantt_svg(void *ctx, int rank, const mesh_action *a, int64_t start, int64_t end) {
    static const char *const colors[][2] = {{"#a6c8ec", "#4477aa"}, {"#a9dcb0", "#228833"}, {"#ecdf9c", "#ccbb44"}};
    mesh__gantt *g = (mesh__gantt *)ctx;
    int kind = a->kind == MESH_FORWARD ? 0 : a->kind == MESH_BACKWARD_WEIGHT ? 2 : 1;
    int left = mesh__gantt_x(g, start), width = mesh__gantt_x(g, end) - left;
    int x = MESH__GANTT_LEFT + left, y = MESH__GANTT_TOP + rank * MESH__GANTT_ROW;
    mesh__put(g->t, "<g><title>rank %d: ", rank);
    mesh__put_action(g->t, g->s, rank, a);
    mesh__put(g->t, ", %l to %l ps</title>", start, end);
    mesh__put(g->t, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" stroke=\"#fff\"/>", x, y,
              width ? width : 1, MESH__GANTT_ROW - 4, colors[kind][a->chunk > 0]);
    if (width >= 8 * mesh__digits(a->micro) + 4)
        mesh__put(g->t, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%d</text>", x + width / 2, y + 18,
                  (int)a->micro);
    mesh__put(g->t, "</g>\n");
}

MESH_API size_t mesh_schedule_draw_svg(const mesh_schedule *s, const mesh_stage_cost *cost, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    mesh_schedule_report r;
    mesh__pipe k;
    mesh__gantt g = MESH_ZERO;
    int i;
    if (!mesh__gantt_time(s, cost, &t, &r)) return t.len;
    g.s = s;
    g.t = &t;
    g.span = r.makespan_ps;
    mesh__put(&t,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
              "font-size=\"12\">\n",
              MESH__GANTT_LEFT + MESH__GANTT_WIDE + 20, MESH__GANTT_TOP + s->ranks * MESH__GANTT_ROW + 20);
    mesh__put(&t, "<text x=\"8\" y=\"22\">%d ranks, %d micro-batches, %d chunk%s: %l ps, %l of them busy</text>\n",
              s->ranks, s->micros, s->chunks, s->chunks > 1 ? "s" : "", r.makespan_ps, r.busy_ps);
    for (i = 0; i < s->ranks; i++)
        mesh__put(&t, "<text x=\"8\" y=\"%d\">rank %d</text>\n", MESH__GANTT_TOP + i * MESH__GANTT_ROW + 18, i);
    mesh__pipe_start(&k, s, cost, 0);
    k.seen = mesh__gantt_svg;
    k.ctx = &g;
    mesh__pipe_run(&k, "", NULL);
    mesh__put(&t, "</svg>\n");
    return t.len;
}
#endif /* MESH_PIPELINE_IMPLEMENTED */
