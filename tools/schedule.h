/* mesh schedule: pipelines drawn and timed. Needs no ranks. */
#ifndef TOOL_SCHEDULE_H
#define TOOL_SCHEDULE_H

static const char schedule_help[] =
    "usage: mesh schedule --kind 1f1b -p 4 -m 8 [options]\n\n"
    "Draws who does what when in a pipeline: a row per rank, F a forward, B a backward (or its half for the input), W its half for the\n"
    "weights, with the micro-batch, and a letter for the chunk. Below: the bubble (what the whole takes beyond what the busiest rank\n"
    "computes, over that) beside the formula of the kind's paper, and each rank's peak in flight and idle time.\n\n"
    "  --kind K       forward, gpipe, 1f1b, interleaved, zb-h1 or zb-v\n"
    "  -p P  -m M     ranks, micro-batches\n"
    "  -v CHUNKS      stages per rank (interleaved: 2 by default; zb-v: 2; forward: any)\n"
    "  --forward T --backward T --weight T   what a stage costs: the forward, both halves of the backward (1 each by default)\n"
    "  --send T       what a message costs (0); it overlaps with what both ranks compute\n"
    "  --svg          a picture instead\n";

typedef struct schedule_options {
    const char *kind;
    long p, m, v, forward, backward, weight, send;
    int svg;
} schedule_options;

/* The paper's bubble, as a fraction of what a rank computes; text: how it is written. 0: there is none for these costs. */
static int schedule_formula(const schedule_options *o, const char **text, double *value) {
    double p = (double)o->p, m = (double)o->m, f = (double)o->forward, b = (double)o->backward, w = (double)o->weight;
    if (o->send || f + b + w <= 0) return 0;
    *value = (p - 1) / m;
    *text = "(p - 1) / m";
    if (!strcmp(o->kind, "gpipe") || !strcmp(o->kind, "1f1b")) return 1;
    if (!strcmp(o->kind, "forward") && o->v == 1) return o->forward > 0;
    if (!strcmp(o->kind, "interleaved")) {
        *value /= (double)o->v;
        *text = "(p - 1) / (v m)";
        return 1;
    }
    if (o->forward != o->backward || o->forward != o->weight) return 0;
    if (!strcmp(o->kind, "zb-h1") && o->m >= o->p) {
        *value /= 3;
        *text = "(p - 1) / (3 m)";
        return 1;
    }
    *value /= 6;
    *text = "(p - 1) / (6 m)";
    return !strcmp(o->kind, "zb-v") && o->m >= 2 * o->p - 1;
}

static void schedule_report(const schedule_options *o, const mesh_schedule *s, const mesh_schedule_report *r) {
    double bubble = r->busy_ps ? (double)r->makespan_ps / (double)r->busy_ps - 1 : 0, value;
    const char *text;
    int i;
    printf("\n%s: %d ranks, %d micro-batches, %d chunk%s: %lld in all, %lld of the busiest rank\n", o->kind, s->ranks,
           s->micros, s->chunks, s->chunks > 1 ? "s" : "", (long long)r->makespan_ps, (long long)r->busy_ps);
    printf("bubble %.4f", bubble);
    if (schedule_formula(o, &text, &value))
        printf(", and %s = %.4f\n", text, value);
    else
        printf(" (no formula for these numbers)\n");
    printf("rank  in flight  idle\n");
    for (i = 0; i < s->ranks; i++) printf("%4d  %9d  %lld\n", i, r->peaks[i], (long long)r->idle_ps[i]);
}

static int schedule_show(const schedule_options *o, const mesh_schedule *s, const mesh_stage_cost *cost,
                         mesh_schedule_report *r) {
    size_t (*draw)(const mesh_schedule *, const mesh_stage_cost *, char *, size_t) =
        o->svg ? mesh_schedule_draw_svg : mesh_schedule_draw;
    size_t n = draw(s, cost, NULL, 0);
    char *text = (char *)malloc(n + 1);
    mesh_error err;
    if (!text) return wrong("schedule", "no memory", NULL);
    draw(s, cost, text, n + 1);
    if (mesh_schedule_time(s, cost, r, &err)) {
        free(text);
        return wrong("schedule", err.text, NULL);
    }
    fputs(text, stdout);
    free(text);
    if (!o->svg) schedule_report(o, s, r);
    return 0;
}

static int schedule_run(const schedule_options *o) {
    size_t n = mesh_schedule_bytes((int)o->p, (int)o->m, (int)o->v), stages = (size_t)o->p * (size_t)o->v, i;
    void *memory = malloc(n + 1);
    mesh_stage_cost *cost = n ? (mesh_stage_cost *)malloc(stages * sizeof *cost) : NULL;
    mesh_schedule_report r = MESH_ZERO;
    mesh_schedule s;
    mesh_error err;
    int status;
    if (!n) { /* no kind has such numbers */
        mesh_schedule_make(&s, o->kind, (int)o->p, (int)o->m, (int)o->v, NULL, 0, &err);
        free(memory);
        return wrong("schedule", err.text, NULL);
    }
    r.peaks = (int *)malloc((size_t)o->p * sizeof(int));
    r.idle_ps = (int64_t *)malloc((size_t)o->p * sizeof(int64_t));
    for (i = 0; cost && i < stages; i++) {
        cost[i].forward_ps = o->forward;
        cost[i].backward_input_ps = o->backward;
        cost[i].backward_weight_ps = o->weight;
        cost[i].send_ps = o->send;
    }
    if (!memory || !cost || !r.peaks || !r.idle_ps)
        status = wrong("schedule", "no memory", NULL);
    else if (mesh_schedule_make(&s, o->kind, (int)o->p, (int)o->m, (int)o->v, memory, n, &err))
        status = wrong("schedule", err.text, NULL);
    else
        status = schedule_show(o, &s, cost, &r);
    free(memory), free(cost), free(r.peaks), free(r.idle_ps);
    return status;
}

/* A time: 0 or a whole positive number; -1: neither. */
static long schedule_time_of(const char *text) { return !strcmp(text, "0") ? 0 : number(text); }

static int command_schedule(const char *self, int argc, char **argv) {
    schedule_options o = {NULL, -1, -1, 0, 1, 1, 1, 0, 0};
    struct {
        const char *name;
        long *value;
        int time;
    } option[] = {{"-p", &o.p, 0},
                  {"-m", &o.m, 0},
                  {"-v", &o.v, 0},
                  {"--forward", &o.forward, 1},
                  {"--backward", &o.backward, 1},
                  {"--weight", &o.weight, 1},
                  {"--send", &o.send, 1}};
    enum { OPTIONS = sizeof option / sizeof option[0] };
    int i, k;
    (void)self;
    for (i = 0; i < argc; i++) {
        if (is_help(argv[i])) return fputs(schedule_help, stdout) < 0;
        if (!strcmp(argv[i], "--svg")) {
            o.svg = 1;
            continue;
        }
        for (k = 0; k < OPTIONS && strcmp(argv[i], option[k].name); k++) {}
        if (k == OPTIONS && strcmp(argv[i], "--kind")) return wrong("schedule", "unknown option", argv[i]);
        if (i + 1 == argc) return wrong("schedule", "a value is missing", argv[i]);
        if (k == OPTIONS) {
            o.kind = argv[++i];
            continue;
        }
        *option[k].value = option[k].time ? schedule_time_of(argv[++i]) : number(argv[++i]);
        if (*option[k].value < 0)
            return wrong("schedule",
                         option[k].time ? "not a whole number from 0 to 999999" : "not a whole positive number",
                         argv[i]);
    }
    if (!o.kind || o.p < 0 || o.m < 0)
        return wrong("schedule", "expected --kind, -p and -m, as in mesh schedule --kind 1f1b -p 4 -m 8", NULL);
    if (!o.v) o.v = !strcmp(o.kind, "interleaved") || !strcmp(o.kind, "zb-v") ? 2 : 1;
    return schedule_run(&o);
}

#endif
