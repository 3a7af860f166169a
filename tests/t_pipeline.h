/* Pipelines: schedules against the papers' formulas, the checker against brute force, the clock against longest paths. */
#ifndef T_PIPELINE_H
#define T_PIPELINE_H

static const char *const pipeline_kinds[] = {"forward", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
enum { PIPELINE_KINDS = 6 };

static int pipeline_min(int a, int b) { return a < b ? a : b; }
static int pipeline_max(int a, int b) { return a > b ? a : b; }

/* A schedule in memory of malloc's; NULL: the kind does not take these numbers. */
static void *pipeline_make(mesh_schedule *s, const char *kind, int p, int m, int v) {
    size_t n = mesh_schedule_bytes(p, m, v);
    void *memory = malloc(n);
    mesh_error err;
    if (mesh_schedule_make(s, kind, p, m, v, memory, n, &err) == MESH_OK) return memory;
    free(memory);
    return NULL;
}

/* What the papers say a rank has in flight, at most. */
static int pipeline_peak(const char *kind, int p, int m, int v, int r) {
    if (!strcmp(kind, "forward")) return 1;
    if (!strcmp(kind, "gpipe")) return m;
    if (!strcmp(kind, "1f1b")) return pipeline_min(p - r, m);
    if (!strcmp(kind, "interleaved")) return pipeline_min(2 * (p - r - 1) + (v - 1) * p + 1, v * m);
    return v * pipeline_min(p, m);
}

/* What the whole takes longer than a rank computes, forward and each half of the backward 1 (ps). */
static int pipeline_bubble(const char *kind, int p, int m) {
    if (!strcmp(kind, "zb-h1")) return pipeline_max(p - 1, 2 * p - 1 - m);
    if (!strcmp(kind, "zb-v")) return pipeline_max(p - 1, 4 * p - 2 - 2 * m);
    return 3 *
           (p -
            1); /* of m micro-batches, 3 (p - 1) / (3 m); in chunks a v-th of the time each, so again 3 (p - 1) of 3 v m */
}

static int brute_rank(const mesh_schedule *s, int stage) {
    int c, r;
    for (c = 0; c < s->chunks; c++)
        for (r = 0; r < s->ranks; r++)
            if (stage == (s->order == MESH_STAGES_V && c % 2 ? (c + 1) * s->ranks - 1 - r : c * s->ranks + r)) return r;
    return -1;
}
static int brute_stage(const mesh_schedule *s, int r, int chunk) {
    int stage;
    for (stage = chunk * s->ranks; brute_rank(s, stage) != r; stage++) {}
    return stage;
}

static void test_formulas(void) {
    int k, p, m, v, r, made = 0;
    for (k = 0; k < PIPELINE_KINDS; k++)
        for (p = 1; p <= 9; p++)
            for (m = 1; m <= 20; m++)
                for (v = 1; v <= 4 && !test_failures; v++) {
                    const char *kind = pipeline_kinds[k];
                    int halves = !strncmp(kind, "zb", 2), actions = m * v * (!k ? 1 : halves ? 3 : 2), peaks[9];
                    int64_t idle[9];
                    mesh_schedule s;
                    mesh_schedule_report report;
                    mesh_error err;
                    void *memory = pipeline_make(&s, kind, p, m, v);
                    int takes = !strcmp(kind, "zb-v")          ? v == 2
                                : !strcmp(kind, "interleaved") ? v > 1 && m % p == 0
                                                               : v == 1 || k == 0;
                    CHECK_INT(memory != NULL, takes);
                    if (!memory) continue;
                    made++;
                    CHECK_OK(mesh_schedule_check(&s, 0, &err), err);
                    report.peaks = peaks;
                    report.idle_ps = idle;
                    CHECK_OK(mesh_schedule_time(&s, NULL, &report, &err), err);
                    CHECK_INT(report.busy_ps, k ? 3 * m * v : m * v);
                    if (k) CHECK_INT(report.makespan_ps - report.busy_ps, pipeline_bubble(kind, p, m));
                    if (strcmp(kind, "zb-v") || m >= 2 * p) CHECK_INT(report.peak, pipeline_peak(kind, p, m, v, 0));
                    for (r = 0; r < p; r++) {
                        int most = pipeline_peak(kind, p, m, v, r), c;
                        for (c = 0; c < v; c++) CHECK_INT(mesh_schedule_stage(&s, r, c), brute_stage(&s, r, c));
                        CHECK_INT(s.first[r + 1] - s.first[r], actions);
                        CHECK_INT(idle[r], report.makespan_ps - report.busy_ps);
                        if (strcmp(kind, "zb-v") ? peaks[r] != most : peaks[r] > most)
                            test_fail(__FILE__, __LINE__, "%s p %d m %d v %d rank %d: %d in flight, expected %d", kind,
                                      p, m, v, r, peaks[r], most);
                    }
                    CHECK_INT(mesh_schedule_stage(&s, p, 0), -1);
                    CHECK_INT(mesh_schedule_stage(&s, -1, 0), -1);
                    CHECK_INT(mesh_schedule_stage(&s, 0, v), -1);
                    CHECK_INT(mesh_schedule_stage(&s, 0, -1), -1);
                    if (test_failures) printf("%s p %d m %d v %d\n", kind, p, m, v);
                    free(memory);
                }
    CHECK(made > 1000);
}

/* ---- the checker against a simulation that keeps everything ---- */

enum { PIPE_RANKS = 6, PIPE_MICROS = 20 };

typedef struct pipeline_brute {
    int made[PIPE_RANKS * 4][PIPE_MICROS][2]; /* per stage and micro-batch: the forward, the backward (of the input) */
    int waits[PIPE_RANKS][PIPE_RANKS][2], at[PIPE_RANKS];
} pipeline_brute;

/* Does each rank do each action once? */
static int brute_whole(const mesh_schedule *s) {
    int r, c, m, i, k, any = 0;
    for (i = 0; i < s->first[s->ranks]; i++) any |= s->action[i].kind != MESH_FORWARD;
    for (r = 0; r < s->ranks; r++)
        for (c = 0; c < s->chunks; c++)
            for (m = 0; m < s->micros; m++) {
                int n[4] = {0, 0, 0, 0};
                for (i = s->first[r]; i < s->first[r + 1]; i++)
                    if (s->action[i].chunk == c && s->action[i].micro == m) n[s->action[i].kind]++;
                for (k = 0; k < 4; k++)
                    if (n[k] > 1) return 0;
                if (!n[0] || n[2] != n[3] || n[1] + n[2] != any) return 0;
            }
    return 1;
}

/* Let ranks go on in random order as far as they can: do all come to their end? */
static int brute_runs(const mesh_schedule *s, int inbox, test_random *rand) {
    static pipeline_brute b;
    int r, idle = 0, left = s->first[s->ranks], stages = s->ranks * s->chunks;
    memset(&b, 0, sizeof b);
    while (left && idle < 200) {
        const mesh_action *a;
        int stage, forward, in = -1, to = -1, backward;
        r = random_below(rand, s->ranks);
        idle++;
        if (s->first[r] + b.at[r] == s->first[r + 1]) continue;
        a = &s->action[s->first[r] + b.at[r]];
        stage = brute_stage(s, r, a->chunk);
        forward = a->kind == MESH_FORWARD;
        backward = a->kind == MESH_BACKWARD || a->kind == MESH_BACKWARD_INPUT;
        if (a->kind == MESH_BACKWARD_WEIGHT && !b.made[stage][a->micro][1]) continue;
        if (backward && !b.made[stage][a->micro][0]) continue;
        if (forward && stage > 0) in = stage - 1;
        if (backward && stage < stages - 1) in = stage + 1;
        if (in >= 0 && !b.made[in][a->micro][backward]) continue;
        if (forward && stage < stages - 1) to = brute_rank(s, stage + 1);
        if (backward && stage > 0) to = brute_rank(s, stage - 1);
        if (to >= 0 && to != r && b.waits[r][to][backward] == inbox) continue;
        if (in >= 0 && brute_rank(s, in) != r) b.waits[brute_rank(s, in)][r][backward]--;
        if (to >= 0 && to != r) b.waits[r][to][backward]++;
        if (a->kind != MESH_BACKWARD_WEIGHT) b.made[stage][a->micro][backward] = 1;
        b.at[r]++;
        left--;
        idle = 0;
    }
    return !left;
}

/* Schedules with a few slips in them: what the checker says is what happens. */
static void test_slips(void) {
    test_random r = random_from(17);
    int i, accepted = 0, stuck = 0, torn = 0;
    for (i = 0; i < 6000 && !test_failures; i++) {
        int p = 1 + random_below(&r, PIPE_RANKS), v = 1 + random_below(&r, 3), m = 1 + random_below(&r, 10), inbox, k;
        int slips = random_below(&r, 4), runs, whole;
        const char *kind = pipeline_kinds[random_below(&r, PIPELINE_KINDS)];
        mesh_schedule s;
        mesh_action *action;
        mesh_error err;
        mesh_status status;
        int *first;
        void *memory;
        if (!strcmp(kind, "interleaved")) m = p * (1 + m % 3);
        if (!(memory = pipeline_make(&s, kind, p, m, v))) continue;
        first = (int *)memory;
        action = (mesh_action *)(uintptr_t)s.action;
        if (random_below(&r, 8) == 0) s.order = !s.order;
        for (k = 0; k < slips; k++) {
            int rank = random_below(&r, p), count = first[rank + 1] - first[rank], a, b, q;
            a = first[rank] + random_below(&r, count);
            b = first[rank] + random_below(&r, count);
            if (random_below(&r, 2) && a + 1 < first[rank + 1]) b = a + 1;
            switch (random_below(&r, 8)) {
            case 0: /* dropped */
                memmove(&action[a], &action[a + 1], sizeof *action * (size_t)(first[p] - a - 1));
                for (q = rank + 1; q <= p; q++) first[q]--;
                if (first[rank + 1] == first[rank]) k = slips;
                break;
            case 1: /* twice, in place of another */
                action[a] = action[b];
                break;
            case 2:
                action[a].kind = (uint8_t)random_below(&r, 4);
                break;
            default: { /* in another order */
                mesh_action moved = action[a];
                action[a] = action[b];
                action[b] = moved;
            }
            }
        }
        inbox = 1 + random_below(&r, 3);
        whole = brute_whole(&s);
        runs = whole && brute_runs(&s, inbox, &r);
        status = mesh_schedule_check(&s, inbox == 2 ? 0 : inbox, &err);
        if (status != (runs ? MESH_OK : MESH_ERR_ARGUMENT))
            test_fail(__FILE__, __LINE__, "%s p %d m %d v %d, %d slips, inbox %d: it %s, the checker says %s", kind, p,
                      m, v, slips, inbox,
                      runs    ? "runs"
                      : whole ? "stands still"
                              : "is not whole",
                      status ? err.text : "ok");
        if (!runs) {
            CHECK(err.rank >= 0 && err.rank < p);
            CHECK(strstr(err.text, "mesh_schedule_check: rank ") == err.text);
            CHECK(whole ? strstr(err.text, " waits for ") != NULL
                        : strstr(err.text, " is missing") || strstr(err.text, " is done twice"));
        }
        accepted += runs, stuck += whole && !runs, torn += !whole;
        free(memory);
    }
    CHECK(accepted > 500 && stuck > 500 && torn > 500);
}

/* ---- the clock against longest paths ---- */

typedef struct pipeline_times {
    int64_t start[PIPE_RANKS * 4 * PIPE_MICROS * 3], end[PIPE_RANKS * 4 * PIPE_MICROS * 3];
} pipeline_times;

/* When what `stage` makes of a micro-batch is on rank r: the messages from its rank there go one after the other. */
static int64_t path_arrives(const mesh_schedule *s, const mesh_stage_cost *cost, const pipeline_times *t, int stage,
                            int forward, int micro, int r) {
    int from = brute_rank(s, stage), i, stages = s->ranks * s->chunks;
    int64_t link = 0;
    for (i = s->first[from]; i < s->first[from + 1]; i++) {
        const mesh_action *a = &s->action[i];
        int own = brute_stage(s, from, a->chunk), is_forward = a->kind == MESH_FORWARD, to;
        if (a->kind == MESH_BACKWARD_WEIGHT) continue;
        if (own == stage && is_forward == forward && a->micro == micro && from == r) return t->end[i];
        to = is_forward ? own + 1 : own - 1;
        if (to < 0 || to >= stages || brute_rank(s, to) != r || from == r) continue;
        link = (t->end[i] > link ? t->end[i] : link) + cost[own].send_ps;
        if (own == stage && is_forward == forward && a->micro == micro) return link;
    }
    test_fail(__FILE__, __LINE__, "stage %d makes no such thing", stage);
    return 0;
}

/* Every start is the latest of what it waits for: repeated until nothing moves. */
static void path_settle(const mesh_schedule *s, const mesh_stage_cost *cost, pipeline_times *t) {
    int r, i, moved, stages = s->ranks * s->chunks;
    memset(t, 0, sizeof *t);
    do
        for (moved = 0, r = 0; r < s->ranks; r++)
            for (i = s->first[r]; i < s->first[r + 1]; i++) {
                const mesh_action *a = &s->action[i];
                int own = brute_stage(s, r, a->chunk), forward = a->kind == MESH_FORWARD,
                    in = forward ? own - 1 : own + 1;
                int64_t at = i > s->first[r] ? t->end[i - 1] : 0, end;
                if (a->kind != MESH_BACKWARD_WEIGHT && in >= 0 && in < stages) {
                    int64_t come = path_arrives(s, cost, t, in, forward, a->micro, r);
                    if (come > at) at = come;
                }
                end = at + (a->kind == MESH_FORWARD ? cost[own].forward_ps : 0) +
                      (a->kind == MESH_BACKWARD || a->kind == MESH_BACKWARD_INPUT ? cost[own].backward_input_ps : 0) +
                      (a->kind == MESH_BACKWARD || a->kind == MESH_BACKWARD_WEIGHT ? cost[own].backward_weight_ps : 0);
                moved |= t->start[i] != at || t->end[i] != end;
                t->start[i] = at;
                t->end[i] = end;
            }
    while (moved);
}

static void test_clock(void) {
    static pipeline_times t;
    test_random r = random_from(23);
    int i, timed = 0;
    for (i = 0; i < 1500 && !test_failures; i++) {
        int p = 1 + random_below(&r, 5), v = 1 + random_below(&r, 3), m = 1 + random_below(&r, 9), rank, k;
        mesh_stage_cost cost[PIPE_RANKS * 4];
        mesh_schedule s;
        mesh_schedule_report report;
        mesh_error err;
        int peaks[PIPE_RANKS];
        int64_t idle[PIPE_RANKS], last = 0, busiest = 0;
        const char *kind = pipeline_kinds[random_below(&r, PIPELINE_KINDS)];
        void *memory;
        if (!strcmp(kind, "interleaved")) m = p * (1 + m % 2);
        if (!(memory = pipeline_make(&s, kind, p, m, v))) continue;
        for (k = 0; k < p * v; k++) {
            cost[k].forward_ps = random_below(&r, 20);
            cost[k].backward_input_ps = random_below(&r, 20);
            cost[k].backward_weight_ps = random_below(&r, 20);
            cost[k].send_ps = random_below(&r, 3) ? random_below(&r, 12) : 0;
        }
        report.peaks = peaks;
        report.idle_ps = idle;
        CHECK_OK(mesh_schedule_time(&s, cost, &report, &err), err);
        path_settle(&s, cost, &t);
        for (k = 0; k < s.first[p]; k++) last = t.end[k] > last ? t.end[k] : last;
        for (rank = 0; rank < p; rank++) {
            int64_t busy = 0;
            for (k = s.first[rank]; k < s.first[rank + 1]; k++) busy += t.end[k] - t.start[k];
            CHECK_INT(idle[rank], last - busy);
            if (busy > busiest) busiest = busy;
        }
        CHECK_INT(report.makespan_ps, last);
        CHECK_INT(report.busy_ps, busiest);
        if (test_failures) printf("%s p %d m %d v %d\n", kind, p, m, v);
        timed++;
        free(memory);
    }
    CHECK(timed > 500);
}

/* Large schedules take no more than their actions: where a search or a drawing takes the square of them, this takes hours. */
static void test_large_schedules(void) {
    static const struct {
        const char *kind;
        int p, m, v;
    } large[] = {{"zb-v", 256, 1024, 2}, {"zb-v", 2, 65535, 2}, {"interleaved", 1, 65535, 2}, {"1f1b", 512, 2048, 1}};
    size_t i;
    for (i = 0; i < sizeof large / sizeof large[0]; i++) {
        int p = large[i].p, m = large[i].m;
        mesh_schedule s;
        mesh_schedule_report r = MESH_ZERO;
        mesh_error err;
        void *memory = pipeline_make(&s, large[i].kind, p, m, large[i].v);
        CHECK_OK(mesh_schedule_time(&s, NULL, &r, &err), err);
        CHECK_INT(r.busy_ps, (int64_t)3 * m * large[i].v);
        CHECK_INT(r.makespan_ps - r.busy_ps, large[i].v == 1 ? 3 * (p - 1) : p - 1);
        CHECK(mesh_schedule_draw(&s, NULL, NULL, 0) > (size_t)p * 256);
        free(memory);
    }
}

/* ---- pictures ---- */

/* With costs of 1 every cell of a row says what happens then. */
static void test_drawing(void) {
    static const mesh_stage_cost odd[2] = {{4, 4, 2, 2}, {6, 4, 2, 2}};
    static char text[1 << 16], part[100];
    int k;
    mesh_schedule s;
    mesh_action *action;
    size_t length, cap;
    void *memory = pipeline_make(&s, "1f1b", 2, 3, 1);
    length = mesh_schedule_draw(&s, NULL, text, sizeof text);
    CHECK_STR(text, "rank 0  F0 F1 .  .  B0--- F2 B1--- .  B2--- \n"
                    "rank 1  .  F0 B0--- F1 B1--- F2 B2--- .  .  \n");
    CHECK_INT(length, strlen(text));
    CHECK_INT(mesh_schedule_draw(&s, NULL, NULL, 0), length);
    for (cap = 1; cap < sizeof part; cap++) {
        CHECK_INT(mesh_schedule_draw(&s, NULL, part, cap), length);
        CHECK(strlen(part) == (cap - 1 < length ? cap - 1 : length) && !memcmp(part, text, strlen(part)));
    }
    mesh_schedule_draw(&s, odd, text, sizeof text); /* a column is 2 ps, what they have in common */
    CHECK_HAS(text, "rank 1  .  .  .  F0------ B0------ ");
    length = mesh_schedule_draw_svg(&s, NULL, text, sizeof text);
    CHECK_INT(length, strlen(text));
    CHECK_HAS(text, "<title>rank 1: the backward of micro-batch 2 (stage 1), 8 to 10 ps</title><rect x=\"870\"");
    for (k = 0, cap = 0; (text[cap]) != 0; cap++) k += !strncmp(text + cap, "<rect ", 6);
    CHECK_INT(k, 12);
    CHECK_STR(text + length - 7, "</svg>\n");
    action = (mesh_action *)(uintptr_t)s.action;
    action[0].micro = 1;
    mesh_schedule_draw(&s, NULL, text, sizeof text);
    CHECK_STR(text, "mesh_schedule_time: rank 0, place 1: the forward of micro-batch 1 (stage 0) is done twice\n");
    mesh_schedule_draw_svg(&s, NULL, text, sizeof text);
    CHECK_HAS(text, "is done twice");
    free(memory);
    memory = pipeline_make(&s, "zb-v", 2, 2, 2);
    mesh_schedule_draw(&s, NULL, text, sizeof text);
    CHECK_HAS(text, "rank 1  .   F0a F0b F1a F1b B0b W0b B0a W0a B1b ");
    free(memory);
    memory = pipeline_make(&s, "gpipe", 3, 2000, 1); /* too long: coarser, and no row is longer than 512 columns of 6 */
    mesh_schedule_draw(&s, NULL, text, sizeof text);
    CHECK(strchr(text, '\n') && strchr(text, '\n') - text <= 8 + 512 * 6 && strchr(text, '\n') - text > 8 + 400 * 6);
    free(memory);
}

/* ---- bad arguments ---- */

static void test_schedule_refused(void) {
    static const struct {
        const char *kind;
        int p, m, v;
        const char *said;
    } wrong[] = {
        {"dapple", 2, 2, 1,
         "mesh_schedule_make: no kind \"dapple\"; it is forward, gpipe, 1f1b, interleaved, zb-h1 or zb-v"},
        {NULL, 2, 2, 1, "no kind \"(null)\""},
        {"1f1b", 0, 2, 1, "mesh_schedule_make: 0 ranks; at least 1 and at most 512"},
        {"1f1b", 513, 2, 1, "513 ranks"},
        {"1f1b", 2, 0, 1, "0 micro-batches; at least 1 and at most 65535"},
        {"1f1b", 2, 65536, 1, "65536 micro-batches"},
        {"forward", 2, 2, 256, "256 chunks; at least 1 and at most 255"},
        {"1f1b", 2, 2, -1, "-1 chunks"},
        {"forward", 512, 65535, 255,
         "512 ranks, 65535 micro-batches and 255 chunks are 8556249600 forwards; at most 178956970"},
        {"1f1b", 2, 2, 2, "1f1b with 2 chunks per rank; it has 1 (interleaved has more)"},
        {"zb-v", 2, 2, 1, "zb-v with 1 chunk per rank; it has 2"},
        {"zb-v", 2, 2, 3, "zb-v with 3 chunks per rank; it has 2"},
        {"interleaved", 2, 2, 1, "interleaved with 1 chunk per rank; it has at least 2"},
        {"interleaved", 4, 10, 2, "interleaved with 10 micro-batches, no multiple of 4 ranks; take 8 or 12"},
        {"interleaved", 4, 3, 2, "take 4"},
        {"interleaved", 8, 65535, 2, "take 65528"},
    };
    static int memory[64];
    static const mesh_stage_cost below[2] = {{1, 1, 1, 0}, {1, 1, -3, 0}},
                                 much[2] = {{INT64_C(1) << 61, 0, 0, 0}, {1, 1, 1, INT64_C(1) << 59}};
    size_t i, n;
    mesh_schedule s, t;
    mesh_schedule_report report = MESH_ZERO;
    mesh_error err;
    for (i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_INT(
            mesh_schedule_make(&s, wrong[i].kind, wrong[i].p, wrong[i].m, wrong[i].v, memory, sizeof memory, &err),
            MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, wrong[i].said);
    }
    CHECK_INT(mesh_schedule_bytes(0, 1, 1), 0);
    CHECK_INT(mesh_schedule_bytes(512, 65535, 255), 0);
    n = mesh_schedule_bytes(2, 2, 1);
    CHECK_INT(n, 3 * sizeof(int) + 12 * sizeof(mesh_action));
    CHECK_INT(mesh_schedule_make(&s, "zb-h1", 2, 2, 1, memory, n - 1, &err), MESH_ERR_MEMORY);
    CHECK_HAS(err.text, "mesh_schedule_make: 60 bytes are needed, not 59");
    CHECK_INT(mesh_schedule_make(&s, "zb-h1", 2, 2, 1, NULL, n, &err), MESH_ERR_MEMORY);
    CHECK_INT(mesh_schedule_make(&s, "zb-h1", 2, 2, 1, (char *)memory + 1, n, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "aligned to 4");
    CHECK_OK(mesh_schedule_make(&s, "zb-h1", 2, 2, 1, memory, n, &err), err);
    CHECK_INT(mesh_schedule_check(&s, -1, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "inbox is -1; 0 is 2");
    CHECK_INT(mesh_schedule_check(NULL, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "NULL");
    t = s, t.action = NULL;
    CHECK_INT(mesh_schedule_time(&t, NULL, &report, &err), MESH_ERR_ARGUMENT);
    t = s, t.order = 7;
    CHECK_INT(mesh_schedule_check(&t, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the order of stages is 7");
    ((mesh_action *)(uintptr_t)s.action)[1].micro = 2;
    CHECK_INT(mesh_schedule_check(&s, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text,
              "rank 0, place 1: kind 0, chunk 0, micro-batch 2; there are 4 kinds, 1 chunks, 2 micro-batches");
    CHECK_OK(mesh_schedule_make(&s, "zb-h1", 2, 2, 1, memory, n, &err), err);
    for (i = 0; i < 4; i++) { /* no action is read before it is known where they lie */
        static const int far[4][3] = {{0, 1000000, 12}, {0, 6, 1000000}, {-1, 6, 12}, {6, 12, 5}};
        t = s, t.first = far[i];
        CHECK_INT(mesh_schedule_check(&t, 0, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "`first` must rise, by 6 at most");
        CHECK_INT(mesh_schedule_time(&t, NULL, &report, &err), MESH_ERR_ARGUMENT);
    }
    ((mesh_action *)(uintptr_t)s.action)[5].kind = MESH_BACKWARD; /* the weights' half of the last, become both */
    CHECK_INT(mesh_schedule_check(&s, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "rank 0, place 5: the backward of micro-batch 1 (stage 0) is done twice");
    ((mesh_action *)(uintptr_t)s.action)[5].kind = MESH_BACKWARD_WEIGHT;
    memory[1] = -1;
    CHECK_INT(mesh_schedule_check(&s, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "rank 0: its actions are 0 up to -1; `first` must rise");
    memory[1] = 6;
    CHECK_INT(mesh_schedule_time(&s, below, &report, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "a cost of stage 1 is -3 ps");
    CHECK_INT(mesh_schedule_time(&s, much, &report, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the costs up to stage 1, of 2 micro-batches, are more than 2^62 ps");
}

/* More pairs than are looked at together: what is wrong with the last ones is seen too. */
static void test_many_micros(void) {
    enum { MICROS = 9000 };
    mesh_schedule s;
    mesh_schedule_report r = MESH_ZERO;
    mesh_error err;
    void *memory = pipeline_make(&s, "gpipe", 3, MICROS, 1);
    mesh_action *last = (mesh_action *)(uintptr_t)s.action + 2 * MICROS - 1;
    CHECK_OK(mesh_schedule_time(&s, NULL, &r, &err), err);
    CHECK_INT(r.makespan_ps, 3 * (MICROS + 2));
    CHECK_INT(r.peak, MICROS);
    last->micro = 4095;
    CHECK_INT(mesh_schedule_check(&s, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "rank 0, place 17999: the backward of micro-batch 4095 (stage 0) is done twice");
    last->micro = 8998;
    CHECK_INT(mesh_schedule_check(&s, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "rank 0, place 17999: the backward of micro-batch 8998 (stage 0) is done twice");
    last->micro = MICROS - 1, last->kind = MESH_BACKWARD_INPUT;
    CHECK_INT(mesh_schedule_check(&s, 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "rank 0: the backward of the weights of micro-batch 8999 (stage 0) is missing");
    free(memory);
}

/* ---- the executor: a chain of affine maps of whole numbers, against one rank ---- */

enum { AFFINE_STAGES = 24, AFFINE_WIDTH = 9, AFFINE_SLOTS = 64 };

typedef struct affine {
    const mesh_schedule *s;
    int width[AFFINE_STAGES + 1]; /* what goes into stage k */
    size_t boundary[AFFINE_STAGES];
    size_t pad;                                        /* bytes of a message before its numbers */
    uint64_t data;                                     /* of this pipeline */
    uint64_t grad[AFFINE_STAGES][2];                   /* of each stage's factor and summand, over all micro-batches */
    int backward;                                      /* the schedule has one */
    int holds[AFFINE_SLOTS], peak;                     /* slots: the pair that is in each, plus 1 */
    int fail_stage, fail_micro, fail_kind, kills, met; /* where the callback gives up; -1: nowhere */
    mesh_comm *comm;                                   /* sums over its "dp" in each backward; NULL: not */
} affine;

static uint64_t affine_in(const affine *c, int micro, int i) { return c->data + (uint64_t)(micro * 31 + i * 7); }
static uint64_t affine_loss(int micro, int i) { return (uint64_t)(micro * 5 + i + 1); }
static uint64_t affine_factor(int stage) { return (uint64_t)(2 * stage + 3); }

static void affine_forward(const affine *c, int stage, const uint64_t *x, uint64_t *y) {
    int i;
    for (i = 0; i < c->width[stage + 1]; i++)
        y[i] = affine_factor(stage) * x[i % c->width[stage]] + (uint64_t)(stage + i);
}
static void affine_backward(const affine *c, int stage, const uint64_t *gy, uint64_t *gx) {
    int i;
    for (i = 0; i < c->width[stage]; i++) gx[i] = 0;
    for (i = 0; i < c->width[stage + 1]; i++) gx[i % c->width[stage]] += affine_factor(stage) * gy[i];
}
static void affine_weights(affine *c, int stage, const uint64_t *x, const uint64_t *gy) {
    int i;
    for (i = 0; i < c->width[stage + 1]; i++) {
        c->grad[stage][0] += gy[i] * x[i % c->width[stage]];
        c->grad[stage][1] += gy[i];
    }
}

/* What one rank computes. */
static void affine_serial(affine *c) {
    int stages = c->s->ranks * c->s->chunks, micro, k, i;
    uint64_t x[AFFINE_STAGES + 1][AFFINE_WIDTH], g[AFFINE_STAGES + 1][AFFINE_WIDTH];
    memset(c->grad, 0, sizeof c->grad);
    for (micro = 0; micro < c->s->micros; micro++) {
        for (i = 0; i < c->width[0]; i++) x[0][i] = affine_in(c, micro, i);
        for (k = 0; k < stages; k++) affine_forward(c, k, x[k], x[k + 1]);
        for (i = 0; i < c->width[stages]; i++) g[stages][i] = affine_loss(micro, i);
        for (k = stages - 1; k >= 0; k--) {
            affine_backward(c, k, g[k + 1], g[k]);
            affine_weights(c, k, x[k], g[k + 1]);
        }
    }
}

/* The slot is this micro-batch's alone from its forward to its last backward. */
static void affine_slot(affine *c, const mesh_stage_call *call) {
    int pair = call->chunk * c->s->micros + call->micro + 1;
    int last = !c->backward || call->kind == MESH_BACKWARD || call->kind == MESH_BACKWARD_WEIGHT;
    CHECK(call->slot >= 0 && call->slot < c->peak);
    if (call->slot < 0 || call->slot >= AFFINE_SLOTS) return;
    CHECK_INT(c->holds[call->slot], call->kind == MESH_FORWARD ? 0 : pair);
    c->holds[call->slot] = last ? 0 : pair;
}

static int affine_run(void *ctx, const mesh_stage_call *call, int ncalls) {
    affine *c = (affine *)ctx;
    int i, first = call->stage == 0, last = call->stage == call->stages - 1, forward = call->kind == MESH_FORWARD;
    uint64_t x[AFFINE_WIDTH], gy[AFFINE_WIDTH];
    CHECK_INT(ncalls, 1);
    CHECK_INT(call->stages, c->s->ranks * c->s->chunks);
    affine_slot(c, call);
    if (call->stage == c->fail_stage && call->micro == c->fail_micro && call->kind == c->fail_kind) {
        if (c->kills) kill(getpid(), SIGKILL);
        return 7;
    }
    CHECK((call->in == NULL) == first);
    CHECK((call->out == NULL) == (last || !forward));
    CHECK((call->grad_out == NULL) == (last || forward));
    CHECK((call->grad_in == NULL) == (first || forward || call->kind == MESH_BACKWARD_WEIGHT));
    if (test_failures) return 1;
    for (i = 0; i < c->width[call->stage]; i++)
        x[i] = first ? affine_in(c, call->micro, i) : ((const uint64_t *)call->in)[c->pad / 8 + (size_t)i];
    if (forward) {
        uint64_t y[AFFINE_WIDTH];
        affine_forward(c, call->stage, x, y);
        if (!last) memcpy((char *)call->out + c->pad, y, c->boundary[call->stage] - c->pad);
        return 0;
    }
    for (i = 0; i < c->width[call->stage + 1]; i++)
        gy[i] = last ? affine_loss(call->micro, i) : ((const uint64_t *)call->grad_out)[c->pad / 8 + (size_t)i];
    if (call->grad_in) affine_backward(c, call->stage, gy, (uint64_t *)call->grad_in + c->pad / 8);
    if (call->kind != MESH_BACKWARD_INPUT) affine_weights(c, call->stage, x, gy);
    if (c->comm && call->kind != MESH_BACKWARD_INPUT) {
        uint64_t one = 1, all = 0;
        CHECK_OK(mesh_all_reduce(c->comm, "dp", &one, &all, 1, MESH_U64, MESH_SUM), c->comm->error);
        c->met += (int)all;
    }
    return 0;
}

/* Any kind, any numbers of micro-batches and chunks, sometimes in another order that the checker accepts. All ranks make the same. */
static void *affine_schedule(test_random *r, mesh_schedule *s, int p, int inbox) {
    for (;;) {
        const char *kind = pipeline_kinds[random_below(r, PIPELINE_KINDS)];
        int v = 1 + random_below(r, 3),
            m = strcmp(kind, "interleaved") ? 1 + random_below(r, 12) : p * (1 + random_below(r, 2));
        int swaps = m > 1 && random_below(r, 2) ? 20 : 0;
        void *memory = pipeline_make(s, kind, p, m, v);
        if (!memory) continue;
        if (mesh_schedule_check(s, inbox, NULL) != MESH_OK) swaps = 1000; /* it needs a bigger inbox */
        while (swaps-- > 0 && swaps < 900) {
            mesh_action *a = (mesh_action *)(uintptr_t)s->action + random_below(r, s->first[p] - 1), was = a[0];
            a[0] = a[1], a[1] = was;
            if (mesh_schedule_check(s, inbox, NULL) == MESH_OK) continue;
            a[1] = a[0], a[0] = was;
        }
        if (swaps < 0) return memory;
        free(memory);
    }
}

static mesh_stage affine_stage(affine *c, test_random *r, const mesh_schedule *s, int rank, int inbox) {
    mesh_stage stage = MESH_ZERO;
    int k, stages = s->ranks * s->chunks, same = random_below(r, 3) == 0;
    memset(c, 0, sizeof *c);
    c->s = s;
    for (k = 0; k <= stages; k++) c->width[k] = same ? AFFINE_WIDTH : 1 + random_below(r, AFFINE_WIDTH);
    for (k = 0; k < stages; k++) c->boundary[k] = (size_t)c->width[k + 1] * sizeof(uint64_t);
    c->peak = mesh__pipeline_peak(s, rank);
    c->fail_stage = -1;
    for (k = 0; k < s->first[s->ranks]; k++) c->backward |= s->action[k].kind != MESH_FORWARD;
    stage.run = affine_run;
    stage.ctx = c;
    stage.nbytes = AFFINE_WIDTH * sizeof(uint64_t);
    stage.boundary = same ? NULL : c->boundary;
    stage.inbox = inbox;
    return stage;
}

static void affine_rank(mesh_transport *t, void *ctx) {
    test_random r = random_from(71);
    int round, k, p = t->size / (ctx ? 2 : 1), rounds = ctx ? 12 : 25;
    mesh_comm c;
    char text[40];
    snprintf(text, sizeof text, ctx ? "dp=2,pp=%d" : "pp=%d", p);
    if (!open_comm(t, &c, text, NULL, 20 * SECOND)) return;
    for (round = 0; round < rounds && !test_failures; round++) {
        int inbox = random_below(&r, 4), me = mesh_comm_index(&c, "pp");
        affine *own = (affine *)malloc(sizeof *own), *serial = (affine *)malloc(sizeof *serial);
        mesh_schedule s;
        mesh_stage stage;
        void *memory = affine_schedule(&r, &s, p, inbox);
        stage = affine_stage(own, &r, &s, me, inbox);
        own->data = (uint64_t)(round * 1000 + (ctx ? mesh_comm_index(&c, "dp") * 77 : 0));
        own->comm = ctx ? &c : NULL;
        *serial = *own;
        CHECK_OK(mesh_pipeline_run(&c, ctx ? " pp" : round & 1 ? "pp" : NULL, &s, &stage), c.error);
        if (own->backward) affine_serial(serial);
        for (k = 0; k < p * s.chunks; k++) {
            uint64_t mine_too = mesh__stage_rank(&s, k) == me;
            if (own->grad[k][0] != mine_too * serial->grad[k][0] || own->grad[k][1] != mine_too * serial->grad[k][1])
                test_fail(__FILE__, __LINE__, "round %d, %d ranks, %d micros, %d chunks: rank %d, stage %d", round, p,
                          s.micros, s.chunks, me, k);
        }
        if (ctx && own->backward) CHECK_INT(own->met, 2 * s.micros * s.chunks);
        free(own), free(serial), free(memory);
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_run(void) {
    int n;
    for (n = 1; n <= 6; n++) run_world(SIM, n, affine_rank, NULL);
    run_world(SIM_FREE, 4, affine_rank, NULL);
    run_world(TCP, 2, affine_rank, NULL);
    run_world(TCP, 3, affine_rank, NULL);
    run_world(TCP, 5, affine_rank, NULL);
    world_threaded = MESH_SOCKET__THREADS; /* which moves messages while callbacks run */
    run_world(TCP, 3, affine_rank, NULL);
    world_threaded = 0;
}

/* What a rank issues, without tags. */
typedef struct issue_of {
    int what, from, at;
} issue_of;

static int issue_all(mesh__pipeline *p, issue_of **list) {
    int n = 0, room = 3 * (p->s->first[p->rank + 1] - p->s->first[p->rank]), what;
    const mesh__turn *t;
    *list = (issue_of *)malloc((size_t)room * sizeof **list);
    while ((what = mesh__turns_next(p, &t)) != MESH__TURN_OVER && n < room) {
        issue_of *i = &(*list)[n++];
        i->what = what;
        i->at = what == MESH__TURN_RECV ? t->at : p->turns.at - (what == MESH__TURN_SEND);
        i->from = what == MESH__TURN_RECV ? t->from : p->rank;
        if (what == MESH__TURN_RECV) {
            mesh__feed *f = mesh__turn_feed(p, t);
            CHECK(++f->waiting <= f->ahead);
        } else if (what == MESH__TURN_ACT && p->turns.input[p->turns.at] >= 0) {
            const mesh_action *a = mesh__lane_action(p->s, p->rank, p->turns.at);
            CHECK(p->turns.input[p->turns.at] < p->turns.next); /* it has been received */
            mesh__feed_of(p, mesh__action_stage(p->s, p->rank, a, -1), a->kind == MESH_FORWARD)->waiting--;
        }
    }
    return n;
}

/* A rank does one thing after the other, and a message needs both ends at once: still all come to their end. */
static void issue_strictly(const mesh_schedule *s, int inbox, int most[2]) {
    static mesh_transport t;
    static mesh_comm c;
    mesh__pipeline *p = (mesh__pipeline *)calloc((size_t)s->ranks, sizeof *p);
    mesh__group *g = (mesh__group *)calloc((size_t)s->ranks, sizeof *g);
    issue_of **list = (issue_of **)calloc((size_t)s->ranks, sizeof *list);
    int *n = (int *)calloc((size_t)s->ranks, sizeof *n), *at = (int *)calloc((size_t)s->ranks, sizeof *at);
    mesh_stage stage = MESH_ZERO;
    int r, i, moved = 1;
    c.transport = &t;
    stage.nbytes = 8;
    most[0] = most[1] = 0;
    for (r = 0; r < s->ranks; r++) {
        p[r].comm = &c, p[r].s = s, p[r].stage = &stage, p[r].rank = r, p[r].inbox = inbox;
        for (i = 0; i < 2 * MESH__SIDES; i++) p[r].feed[i / 2][i % 2].peer = -1;
        CHECK(mesh__turns_get(&p[r], &g[r]));
        mesh__pipeline_measure(&p[r]);
        mesh__turns_measure(&p[r]);
        for (i = 0; i < 2 * MESH__SIDES; i++)
            if (p[r].feed[i / 2][i % 2].ahead > most[i % 2]) most[i % 2] = p[r].feed[i / 2][i % 2].ahead;
        n[r] = issue_all(&p[r], &list[r]);
    }
    while (moved)
        for (moved = r = 0; r < s->ranks; r++) {
            const issue_of *x = &list[r][at[r]], *y;
            if (at[r] == n[r] || x->what == MESH__TURN_SEND) continue;
            if (x->what == MESH__TURN_RECV) {
                y = &list[x->from][at[x->from]];
                if (at[x->from] == n[x->from] || y->what != MESH__TURN_SEND || y->at != x->at) continue;
                if (mesh__action_peer(s, x->from, mesh__lane_action(s, x->from, x->at), 1) != r) continue;
                at[x->from]++;
            }
            at[r]++;
            moved = 1;
        }
    for (r = 0; r < s->ranks; r++) {
        if (at[r] != n[r]) test_fail(__FILE__, __LINE__, "%d ranks, %d micros, %d chunks, inbox %d: rank %d waits for ever at %d of %d", s->ranks, s->micros, s->chunks, inbox, r, at[r], n[r]);
        mesh_transport_free(&t, g[r].kept.turns);
        free(list[r]);
    }
    free(p), free(list), free(n), free(at), free(g);
}

static void test_run_strict(void) {
    test_random r = random_from(76);
    int round, most[2];
    mesh_schedule s;
    void *memory;
    for (round = 0; round < 600 && !test_failures; round++) {
        int p = 1 + random_below(&r, 9), inbox = random_below(&r, 4);
        memory = affine_schedule(&r, &s, p, inbox);
        issue_strictly(&s, inbox ? inbox : 2, most);
        free(memory);
    }
    memory = pipeline_make(&s, "1f1b", 8, 64, 1); /* no more waits than the inbox says */
    issue_strictly(&s, 2, most);
    CHECK_INT(most[0], 2);
    CHECK_INT(most[1], 2);
    free(memory);
    memory = pipeline_make(&s, "forward", 4, 200, 1);
    issue_strictly(&s, 3, most);
    CHECK_INT(most[1], 3);
    free(memory);
}

/* Messages that do not fit into what is on its way: a buffer is written again only when it has gone. */
static void run_large_rank(mesh_transport *t, void *ctx) {
    test_random r = random_from(75);
    int k;
    size_t i;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "pp=-1", NULL, 20 * SECOND)) return;
    for (i = 1; i < PIPELINE_KINDS; i++) {
        affine *own = (affine *)malloc(sizeof *own), *serial = (affine *)malloc(sizeof *serial);
        mesh_schedule s;
        mesh_stage stage;
        void *memory = pipeline_make(&s, pipeline_kinds[i], t->size, 6, i == 3 || i == 5 ? 2 : 1);
        stage = affine_stage(own, &r, &s, t->rank, 0);
        stage.boundary = own->boundary;
        own->pad = 1 << 20;
        for (k = 0; k < s.ranks * s.chunks; k++) own->boundary[k] += own->pad;
        *serial = *own;
        CHECK_OK(mesh_pipeline_run(&c, "pp", &s, &stage), c.error);
        affine_serial(serial);
        for (k = 0; k < s.ranks * s.chunks; k++)
            if (mesh__stage_rank(&s, k) == t->rank)
                CHECK(own->grad[k][0] == serial->grad[k][0] && own->grad[k][1] == serial->grad[k][1]);
        free(own), free(serial), free(memory);
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_run_large(void) {
    run_world(SIM, 3, run_large_rank, NULL);
    run_world(TCP, 2, run_large_rank, NULL);
    run_world(TCP, 3, run_large_rank, NULL);
}

/* Two pipelines side by side with other data, whose callbacks sum over both. */
static void test_run_beside(void) {
    static int beside;
    run_world(SIM, 6, affine_rank, &beside);
    run_world(TCP, 4, affine_rank, &beside);
}

/* ---- what fails, fails on every rank, and says where ---- */

/* One micro-batch of one stage: the callback gives up there. */
static void stage_fails_rank(mesh_transport *t, void *ctx) {
    test_random r = random_from(72);
    int round, beside = ctx ? 2 : 1, p = t->size / beside; /* the callback of the last pipeline's rank */
    for (round = 0; round < 8 && !test_failures; round++) {
        affine *own = (affine *)malloc(sizeof *own);
        mesh_comm c;
        mesh_schedule s;
        mesh_stage stage;
        mesh_status status;
        void *memory = affine_schedule(&r, &s, p, 0);
        int at = random_below(&r, s.first[p]), rank = 0, mine;
        const mesh_action *a = &s.action[at];
        char said[200], micro[40], stands[40];
        mesh__text text = mesh__text_on(said, sizeof said);
        while (at >= s.first[rank + 1]) rank++;
        mine = (beside - 1) * p + rank == t->rank;
        if (!open_comm(t, &c, ctx ? "dp=2,pp=-1" : "pp=-1", NULL, 20 * SECOND)) return;
        stage = affine_stage(own, &r, &s, t->rank % p, 0);
        own->fail_stage = mine ? mesh__stage_of(&s, rank, a->chunk) : -1;
        own->fail_micro = a->micro;
        own->fail_kind = a->kind;
        status = mesh_pipeline_run(&c, "pp", &s, &stage);
        if (status == MESH_OK && ctx && t->rank < p)
            status = mesh_barrier(&c, NULL); /* that one may have ended before */
        CHECK_INT(status, mine ? MESH_ERR_STATE : MESH_ERR_PEER);
        CHECK_INT(c.error.status, mine ? MESH_ERR_STATE : MESH_ERR_PEER);
        CHECK_INT(c.error.rank, (beside - 1) * p + rank);
        mesh__put_action(&text, &s, rank, a);
        mesh__put(&text, " failed on rank %d: the callback returned 7", (beside - 1) * p + rank);
        CHECK_HAS(c.error.text, said);
        CHECK_HAS(c.error.text, mine ? "mesh_pipeline_run(\"pp\"): the " : "failed: mesh_pipeline_run(\"pp\"): the ");
        snprintf(micro, sizeof micro, "micro-batch %d", (int)a->micro);
        snprintf(stands, sizeof stands, "(stage %d)", mesh__stage_of(&s, rank, a->chunk));
        CHECK_HAS(c.error.text, micro);
        CHECK_HAS(c.error.text, stands);
        CHECK_INT(mesh_pipeline_run(&c, "pp", &s, &stage), c.error.status); /* and stays so */
        mesh_comm_close(&c);
        free(own), free(memory);
    }
}
static void test_stage_fails(void) {
    run_world(SIM, 4, stage_fails_rank, NULL);
    run_world(SIM, 1, stage_fails_rank, NULL);
    run_world(SIM, 6, stage_fails_rank, &test_long); /* two pipelines: the other one is told too */
    run_world(TCP, 3, stage_fails_rank, NULL);
}

/* A rank dies in the midst of it. */
static void stage_dies_rank(mesh_transport *t, void *ctx) {
    test_random r = random_from(73);
    affine *own = (affine *)malloc(sizeof *own);
    mesh_comm c;
    mesh_schedule s;
    mesh_stage stage;
    void *memory = pipeline_make(&s, "1f1b", t->size, 8, 1);
    (void)ctx;
    if (!open_comm(t, &c, "pp=-1", NULL, 20 * SECOND)) return;
    stage = affine_stage(own, &r, &s, t->rank, 0);
    own->fail_stage = t->rank == 1 ? 1 : -1;
    own->fail_micro = 3;
    own->fail_kind = MESH_BACKWARD;
    own->kills = 1;
    CHECK_INT(mesh_pipeline_run(&c, "pp", &s, &stage), MESH_ERR_PEER);
    CHECK_INT(c.error.rank, 1);
    CHECK_HAS(c.error.text, "rank 1");
    CHECK_HAS(c.error.text, "; here the pipeline was at the ");
    mesh_comm_close(&c);
    free(own), free(memory);
}
static void test_stage_dies(void) { run_world_but(TCP, 3, stage_dies_rank, NULL, 1); }

/* An allocator that has little. */
enum { MODEST = 1 << 20 };
static void *modest_alloc(void *ctx, size_t nbytes) {
    (void)ctx;
    return nbytes > MODEST ? NULL : malloc(nbytes);
}
static void modest_free(void *ctx, void *p) {
    (void)ctx;
    free(p);
}

/* What one rank has otherwise than the others, or wrong: nothing has run, and all are told. */
static void run_refused_rank(mesh_transport *t, void *ctx) {
    static const struct {
        mesh_status status;
        const char *said;
    } want[] = {
        {MESH_ERR_MISMATCH, "mesh_pipeline_run(\"pp\"): rank 1 has another schedule, or another inbox, than rank 0"},
        {MESH_ERR_MISMATCH, "rank 1 has other bytes between stages than rank 0"},
        {MESH_ERR_MISMATCH, "rank 1 has another schedule, or another inbox, than rank 0"},
        {MESH_ERR_ARGUMENT, "mesh_pipeline_run(\"pp\"): stage.run is NULL"},
        {MESH_ERR_ARGUMENT, "mesh_pipeline_run(\"pp\"): the stage is NULL"},
        {MESH_ERR_ARGUMENT, "mesh_pipeline_run(\"pp\"): the schedule is for 2 ranks, the axis has 3"},
        {MESH_ERR_ARGUMENT, "mesh_schedule_check: rank 0, place 0: the backward of micro-batch 0 (stage 0) waits for"},
        {MESH_ERR_ARGUMENT, "mesh_schedule_check: the schedule, its `first` or its actions are NULL"},
        {MESH_ERR_ARGUMENT, "mesh_schedule_check: inbox is -3"},
        {MESH_ERR_ARGUMENT, "mesh_pipeline_run(\"zz\"): "},
        {MESH_ERR_STATE, "mesh_pipeline_run(\"pp,dp\"): this group is not open; list it in mesh_comm_desc.groups"},
        {MESH_ERR_MEMORY, "mesh_pipeline_run(\"pp\"): no memory for"},
    };
    static const mesh_allocator modest = {modest_alloc, modest_free, NULL};
    enum { WANTS = sizeof want / sizeof want[0] };
    int what;
    (void)ctx;
    for (what = 0; what < WANTS && !test_failures; what++) {
        int odd = t->rank == 1;
        affine *own = (affine *)malloc(sizeof *own);
        test_random r = random_from(74);
        mesh_comm c;
        mesh_schedule s;
        mesh_stage stage;
        mesh_allocator usual = t->allocator;
        void *memory = pipeline_make(&s, what == 0 && odd ? "zb-h1" : "gpipe", what == 5 && odd ? 2 : 3, 4, 1);
        mesh_action *action = (mesh_action *)(uintptr_t)s.action;
        if (!open_comm(t, &c, "dp=1,pp=-1", NULL, 20 * SECOND)) return;
        stage = affine_stage(own, &r, &s, t->rank % s.ranks, 0);
        stage.boundary = own->boundary;
        if (what == 6) { /* another one was checked before; the others may hear at its end already what rank 1 does next */
            mesh_status status = mesh_pipeline_run(&c, "pp", &s, &stage);
            if (odd) CHECK_OK(status, c.error);
        }
        own->fail_stage = 0, own->fail_micro = 0, own->fail_kind = MESH_FORWARD; /* if it ran, it would fail */
        if (odd && what == 1) own->boundary[1] += 8;
        if (odd && what == 2) stage.inbox = 3;
        if (odd && what == 3) stage.run = NULL;
        if (odd && what == 6) action[0].kind = MESH_BACKWARD, action[4].kind = MESH_FORWARD;
        if (odd && what == 7) s.action = NULL;
        if (odd && what == 8) stage.inbox = -3;
        if (what == 11) own->boundary[0] = 2 * MODEST;
        if (odd && what == 11) t->allocator = modest;
        CHECK_INT(mesh_pipeline_run(&c,
                                    odd && what == 9    ? "zz"
                                    : odd && what == 10 ? "pp,dp"
                                                        : "pp",
                                    &s, odd && what == 4 ? NULL : &stage),
                  want[what].status);
        CHECK_HAS(c.error.text, want[what].said);
        CHECK_INT(c.error.rank, 1);
        t->allocator = usual;
        mesh_comm_close(&c);
        CHECK_INT(mesh_pipeline_run(&c, "pp", &s, &stage), MESH_ERR_STATE);
        CHECK_HAS(c.error.text, "mesh_pipeline_run: the comm is not open");
        free(own), free(memory);
    }
    CHECK_INT(mesh_pipeline_run(NULL, "pp", NULL, NULL), MESH_ERR_ARGUMENT);
}
static void test_run_refused(void) {
    run_world(SIM, 3, run_refused_rank, NULL);
    run_world(TCP, 3, run_refused_rank, NULL);
}

static const test_case pipeline_tests[] = {
    {"pipeline/formulas", test_formulas, 0},
    {"pipeline/slips", test_slips, 60},
    {"pipeline/clock", test_clock, 60},
    {"pipeline/drawing", test_drawing, 0},              {"pipeline/large", test_large_schedules, 0},
    {"pipeline/refused", test_schedule_refused, 0},
    {"pipeline/many", test_many_micros, 0},
    {"pipeline/run", test_run, 90},
    {"pipeline/run_strict", test_run_strict, 0},
    {"pipeline/run_large", test_run_large, 90},
    {"pipeline/run_beside", test_run_beside, 60},
    {"pipeline/stage_fails", test_stage_fails, 60},
    {"pipeline/stage_dies", test_stage_dies, 60},
    {"pipeline/run_refused", test_run_refused, 60},
};

#endif
