/* What redistribution costs: bytes against PyTorch's planners (tests/golden/redistribute_*.csv) and the bound, and time against the same
   move made axis by axis with this library's own collectives, against a memcpy of as many bytes, and against PyTorch's DTensor where torchrun
   (or $TORCHRUN) is: 64 MiB of f32 on 4 and 8 ranks, over each lane. Where PyTorch is not, DTensor's times of an earlier run stay, with their
   date. Alone it writes bench/REDISTRIBUTE.md, redistribute.csv (bytes), redistribute_times.csv and redistribute.svg, running itself under
   build/mesh run; each of those is a rank, and --alloc has it take its buffers from mesh_alloc.
   --again draws the chart anew from redistribute_times.csv.
   usage: bench_redistribute [--again] */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include "lane.h"
#include "redistribute_report.h"
#include <time.h>

enum { SIDE = 4096, ROUNDS = 9 };

/* By hand: g<axis><dim> gathers, a<axis><from dim><to dim> exchanges all to all, s<axis><dim> reduces and scatters, r<axis> reduces to all,
   c<axis><dim> cuts out. What a careful hand writes: blocks are packed where they are strided, and not where they lie in one piece. */
typedef struct move {
    const char *mesh, *from, *to, *hand;
} move;

static const move moves_4[] = {
    {"a=4", "a:S(0)", "a:S(1)", "aa01"},
    {"a=4", "a:S(1)", "a:S(0)", "aa10"},
    {"a=4", "a:S(0)", "a:R", "ga0"},
    {"a=4", "a:S(1)", "a:R", "ga1"},
    {"a=4", "a:P(sum)", "a:R", "ra"},
    {"a=4", "a:P(sum)", "a:S(0)", "sa0"},
    {"a=4", "a:P(sum)", "a:S(1)", "sa1"},
    {"a=2,b=2", "a:S(0) b:S(1)", "a:S(1) b:S(0)", "gb1 aa01 cb0"},
    {"a=2,b=2", "a:S(0) b:S(0)", "a:S(1)@1 b:S(1)@0", "ab01 aa01"},
    {"a=2,b=2", "a:S(0) b:R", "a:R b:S(0)", "ga0 cb0"},
    {"a=2,b=2", "a:P(sum) b:S(0)", "a:R b:R", "ra gb0"},
    {"a=2,b=2", "a:P(sum) b:R", "a:R b:S(0)", "cb0 ra"},
};
static const move moves_8[] = {
    {"a=8", "a:S(0)", "a:S(1)", "aa01"},
    {"a=8", "a:S(0)", "a:R", "ga0"},
    {"a=8", "a:P(sum)", "a:R", "ra"},
    {"a=8", "a:P(sum)", "a:S(0)", "sa0"},
    {"a=4,b=2", "a:S(0) b:S(1)", "a:S(1) b:S(0)", "gb1 aa01 cb0"},
    {"a=4,b=2", "a:S(0) b:R", "a:R b:S(0)", "ga0 cb0"},
    {"a=4,b=2", "a:P(sum) b:S(0)", "a:R b:R", "ra gb0"},
    {"a=2,b=2,c=2", "a:S(0) b:S(0) c:S(0)", "a:S(1)@2 b:S(1)@1 c:S(1)@0", "ac01 ab01 aa01"},
    {"a=2,b=2,c=2", "a:P(sum) b:P(sum) c:S(0)", "a:S(0)@1 b:S(0)@2 c:S(0)@0", "sa0 sb0"},
};

static double seconds(void) { return (double)mesh_socket__clock() * 1e-9; }

/* Rows of `width` bytes from one array of rows to another. */
static void copy_rows(char *to, size_t to_stride, const char *from, size_t from_stride, size_t width, size_t rows) {
    size_t i;
    for (i = 0; i < rows; i++) memcpy(to + i * to_stride, from + i * from_stride, width);
}

/* One step by hand on a local array of shape[0] x shape[1] floats in p; q, s are of the same size as the largest. Returns where it is now. */
static float *hand_step(mesh_comm *c, const char *step, size_t *shape, float *p, float *q, float *s) {
    char axis[2];
    size_t n, me, k, rows = shape[0], columns = shape[1], f = sizeof(float), part;
    axis[0] = step[1];
    axis[1] = 0;
    n = (size_t)mesh_comm_size(c, axis);
    me = (size_t)mesh_comm_index(c, axis);
    switch (step[0]) {
    case 'r':
        mesh_all_reduce(c, axis, p, q, rows * columns, MESH_F32, MESH_SUM);
        return q;
    case 'g':
        mesh_all_gather(c, axis, p, q, rows * columns, MESH_F32);
        shape[step[2] - '0'] *= n;
        if (step[2] == '0') return q;
        for (k = 0; k < n; k++)
            copy_rows((char *)(s + k * columns), n * columns * f, (char *)(q + k * rows * columns), columns * f,
                      columns * f, rows);
        return s;
    case 'c':
        shape[step[2] - '0'] /= n;
        if (step[2] == '0')
            memcpy(q, p + me * rows / n * columns, rows / n * columns * f);
        else
            copy_rows((char *)q, columns / n * f, (char *)(p + me * columns / n), columns * f, columns / n * f, rows);
        return q;
    case 's':
        if (step[2] == '1') {
            part = columns / n;
            for (k = 0; k < n; k++)
                copy_rows((char *)(q + k * rows * part), part * f, (char *)(p + k * part), columns * f, part * f, rows);
            mesh_reduce_scatter(c, axis, q, s, rows * part, MESH_F32, MESH_SUM);
            shape[1] /= n;
            return s;
        }
        mesh_reduce_scatter(c, axis, p, q, rows / n * columns, MESH_F32, MESH_SUM);
        shape[0] /= n;
        return q;
    default: /* all to all */
        if (step[3] == '1') {
            part = columns / n;
            for (k = 0; k < n; k++)
                copy_rows((char *)(q + k * rows * part), part * f, (char *)(p + k * part), columns * f, part * f, rows);
            mesh_all_to_all(c, axis, q, s, rows * part, MESH_F32);
            shape[0] *= n;
            shape[1] = part;
            return s;
        }
        part = rows / n;
        mesh_all_to_all(c, axis, p, q, part * columns, MESH_F32);
        for (k = 0; k < n; k++)
            copy_rows((char *)(s + k * columns), n * columns * f, (char *)(q + k * part * columns), columns * f,
                      columns * f, part);
        shape[0] = part;
        shape[1] *= n;
        return s;
    }
}

static int by_number(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

/* One move on this rank: its mesh, its tensors, and room for the hand's steps. */
typedef struct moving {
    mesh_comm comm;
    mesh m;
    mesh_tensor src, dst;
    mesh_box have, want;
    float *p, *q, *s;
    float *end; /* where the hand's result lies */
} moving;

enum { ROOM = SIDE * SIDE + 16 }; /* floats */

/* Of mesh_alloc, or of malloc; what is there has its pages. */
static void *room(mesh_transport *t, int alloc, size_t nbytes) {
    mesh_error err;
    void *p;
    if (!alloc)
        p = malloc(nbytes);
    else if (mesh_alloc(t, nbytes, &p, &err))
        fprintf(stderr, "%s\n", err.text);
    if (!p) exit(1);
    memset(p, 0, nbytes);
    return p;
}

static void give_back(mesh_transport *t, int alloc, void *p) {
    if (alloc)
        mesh_free(t, p, NULL);
    else
        free(p);
}

static float element(const mesh_box *b, size_t i, size_t k) {
    return (float)((((size_t)b->offset[0] + i) * 31 + (size_t)b->offset[1] + k) % 1000);
}

static int prepare(moving *w, mesh_socket *net, const move *v, int alloc) {
    static const int64_t sizes[2] = {SIDE, SIDE};
    mesh_transport *t = &net->base;
    mesh_error err;
    size_t i, k;
    if (mesh_parse(&w->m, v->mesh, mesh_world(t), &err) || mesh_comm_open(&w->comm, t, &w->m, NULL, &err) ||
        mesh_tensor_make(&w->src, &w->m, v->from, MESH_F32, 2, sizes, &err) ||
        mesh_tensor_make(&w->dst, &w->m, v->to, MESH_F32, 2, sizes, &err))
        return fprintf(stderr, "%s\n", err.text), 0;
    mesh_tensor_box(&w->src, t->rank, &w->have);
    mesh_tensor_box(&w->dst, t->rank, &w->want);
    w->p = (float *)room(t, alloc, ROOM * sizeof *w->p);
    w->q = (float *)room(t, alloc, ROOM * sizeof *w->q);
    w->s = (float *)room(t, alloc, ROOM * sizeof *w->s);
    w->src.data = room(t, alloc, (size_t)mesh_box_count(&w->have) * 4);
    w->dst.data = room(t, alloc, (size_t)mesh_box_count(&w->want) * 4);
    for (i = 0; i < (size_t)w->have.shape[0]; i++)
        for (k = 0; k < (size_t)w->have.shape[1]; k++)
            ((float *)w->src.data)[i * (size_t)w->have.shape[1] + k] = element(&w->have, i, k);
    return 1;
}

static void release(moving *w, int alloc) {
    mesh_transport *t = w->comm.transport;
    mesh_comm_close(&w->comm);
    give_back(t, alloc, w->p), give_back(t, alloc, w->q), give_back(t, alloc, w->s);
    give_back(t, alloc, w->src.data), give_back(t, alloc, w->dst.data);
}

static void by_hand(moving *w, const char *step) {
    size_t shape[2];
    float *end = (float *)w->src.data;
    shape[0] = (size_t)w->have.shape[0];
    shape[1] = (size_t)w->have.shape[1];
    for (; *step; step += strcspn(step, " "), step += *step == ' ')
        end = hand_step(&w->comm, step, shape, end, end == w->q ? w->p : w->q, end == w->s ? w->p : w->s);
    w->end = end;
}

static int wrong_values(const moving *w) {
    size_t i, k;
    int wrong = 0, holders = 1, a;
    for (a = 0; a < w->m.naxes; a++)
        if (w->src.layout.spec.axis[a].kind == MESH_PARTIAL) holders *= w->m.axis[a].size;
    for (i = 0; i < (size_t)w->want.shape[0]; i++)
        for (k = 0; k < (size_t)w->want.shape[1]; k++) {
            float x = element(&w->want, i, k) * (float)holders;
            size_t at = i * (size_t)w->want.shape[1] + k;
            wrong += ((float *)w->dst.data)[at] != x || w->end[at] != x;
        }
    return wrong;
}

/* Barriers before and after are part of each. */
static int measure(mesh_socket *net, const move *v, int alloc) {
    moving w = MESH_ZERO;
    mesh_request r = MESH_ZERO;
    double ours[ROUNDS], hand[ROUNDS], copy[ROUNDS], t;
    int round, wrong;
    if (!prepare(&w, net, v, alloc)) return 1;
    for (round = 0; round < ROUNDS; round++) {
        mesh_barrier(&w.comm, NULL);
        t = seconds();
        if ((round ? mesh_restart(r) : (mesh_redistribute_start(&w.comm, &w.src, &w.dst, &r) || mesh_keep(r))) ||
            mesh_wait(r))
            return fprintf(stderr, "%s\n", w.comm.error.text), 1;
        mesh_barrier(&w.comm, NULL);
        ours[round] = seconds() - t;
        mesh_barrier(&w.comm, NULL);
        t = seconds();
        memcpy(w.q, w.p, (size_t)mesh_box_count(&w.want) * 4);
        mesh_barrier(&w.comm, NULL);
        copy[round] = seconds() - t;
        mesh_barrier(&w.comm, NULL);
        t = seconds();
        by_hand(&w, v->hand);
        mesh_barrier(&w.comm, NULL);
        hand[round] = seconds() - t;
    }
    wrong = wrong_values(&w);
    mesh_all_reduce(&w.comm, NULL, &wrong, &wrong, 1, MESH_I32, MESH_SUM);
    qsort(ours, ROUNDS, sizeof *ours, by_number);
    qsort(hand, ROUNDS, sizeof *hand, by_number);
    qsort(copy, ROUNDS, sizeof *copy, by_number);
    if (net->base.rank == 0)
        printf("%d,\"%s\",%s,%s,%s,%.2f,%.2f,%.2f,%d\n", net->base.size, v->mesh, v->from, v->to, getenv("LANE"),
               ours[ROUNDS / 2] * 1e3, hand[ROUNDS / 2] * 1e3, copy[ROUNDS / 2] * 1e3, wrong);
    fflush(stdout);
    mesh_release(r);
    release(&w, alloc);
    return wrong != 0;
}

static int rank_main(int alloc) {
    mesh_socket net;
    mesh_error err;
    const move *v;
    int n, i, bad = 0;
    if (mesh_socket_open(&net, NULL, &err)) return fprintf(stderr, "%s\n", err.text), 1;
    v = net.base.size == 8 ? moves_8 : moves_4;
    n = (int)(net.base.size == 8 ? sizeof moves_8 / sizeof *v : sizeof moves_4 / sizeof *v);
    if (!lane_is_there()) return 3;
    for (i = 0; i < n && !bad; i++) bad = measure(&net, &v[i], alloc);
    mesh_socket_close(&net);
    return bad;
}

/* ---- bytes ---- */

typedef struct problem {
    char mesh[32], shape[48], from[64], to[64], from_order[64], to_order[64];
    double greedy, search; /* bytes of PyTorch's planners; -1: it failed */
    double ours, bound;
} problem;

enum { MOST_PROBLEMS = 1024 };
static problem problems[MOST_PROBLEMS];
static int nproblems;

static int list(const char *text, int64_t *out) {
    int n = 0;
    while (*text && n < MESH_MAX_DIMS) {
        char *end;
        out[n++] = strtoll(text, &end, 10);
        text = *end ? end + 1 : end;
    }
    return n;
}

static mesh_spec spec_of(const mesh *m, const char *places, const char *order, int ndim) {
    mesh_place place[MESH_MAX_AXES];
    mesh_spec s;
    int n = 0;
    for (; *places; places += strcspn(places, ";"), places += *places == ';')
        place[n++] = *places == 'S'   ? mesh_shard(atoi(places + 2))
                     : *places == 'P' ? mesh_partial(MESH_SUM)
                                      : mesh_replicate();
    while (*order && *order != '-') {
        int k = 0;
        for (order = strchr(order, ':') + 1;; order++) {
            place[strtol(order, (char **)(uintptr_t)&order, 10)].order = (uint8_t)k++;
            if (*order != '>') break;
        }
        order += *order == ';';
    }
    mesh_spec_make(&s, m, place, ndim, NULL);
    return s;
}

/* Ours and the bound, with bytes as all that counts. */
static void solve(problem *p) {
    mesh_plan_desc d = MESH_ZERO;
    mesh_desc md = MESH_ZERO;
    mesh_topology t = MESH_ZERO;
    mesh_plan plan;
    mesh m;
    mesh_layout from = MESH_ZERO, to;
    mesh_error err;
    int64_t sizes[MESH_MAX_DIMS];
    int shape[MESH_MAX_DIMS], i;
    md.naxes = list(p->mesh, sizes);
    for (i = 0; i < md.naxes; i++) shape[i] = (int)sizes[i];
    md.shape = shape;
    from.ndim = list(p->shape, from.shape);
    t.nlevels = 1;
    t.level[0].ranks = INT32_MAX;
    t.level[0].ps_per_byte_16 = 1 << 16;
    if (mesh_make(&m, &md, &err)) return;
    from.on = &m;
    to = from;
    from.spec = spec_of(&m, p->from, p->from_order, from.ndim);
    to.spec = spec_of(&m, p->to, p->to_order, to.ndim);
    d.src = &from;
    d.dst = &to;
    d.topology = &t;
    if (mesh_plan_make(&plan, &d, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    p->ours = (double)mesh_plan_measure(&plan);
    p->bound = (double)mesh_plan_lower_bound(&plan);
}

static int read_problems(const char *path, int ordered) {
    FILE *f = fopen(path, "r");
    char line[4096];
    int header = 0, first = nproblems;
    if (!f) return perror(path), 1;
    while (fgets(line, sizeof line, f)) {
        char *field[16], *p = line;
        problem q;
        int n = 0, i, d;
        int64_t shape[MESH_MAX_DIMS];
        double total = 4, bytes;
        line[strcspn(line, "\r\n")] = 0;
        if (*line == '#' || !header++) continue; /* notes, then the columns' names */
        while (n < 16) {
            field[n++] = p;
            if (!(p = strchr(p, ','))) break;
            *p++ = 0;
        }
        memset(&q, 0, sizeof q);
        snprintf(q.mesh, sizeof q.mesh, "%s", field[0]);
        snprintf(q.shape, sizeof q.shape, "%s", field[1]);
        snprintf(q.from, sizeof q.from, "%s", field[2]);
        snprintf(q.to, sizeof q.to, "%s", field[ordered ? 4 : 3]);
        snprintf(q.from_order, sizeof q.from_order, "%s", ordered ? field[3] : "-");
        snprintf(q.to_order, sizeof q.to_order, "%s", ordered ? field[5] : "-");
        q.greedy = q.search = -1;
        for (i = nproblems - 1; i >= first; i--)
            if (!strcmp(problems[i].mesh, q.mesh) && !strcmp(problems[i].shape, q.shape) &&
                !strcmp(problems[i].from, q.from) && !strcmp(problems[i].to, q.to) &&
                !strcmp(problems[i].from_order, q.from_order) && !strcmp(problems[i].to_order, q.to_order))
                break;
        if (i < first && nproblems == MOST_PROBLEMS) break;
        if (i < first) problems[i = nproblems++] = q;
        for (n = list(q.shape, shape), d = 0; d < n; d++) total *= (double)shape[d];
        p = field[ordered ? 8 : 7];
        bytes = *p == '-' ? -1 : total * atof(p) / (strchr(p, '/') ? atof(strchr(p, '/') + 1) : 1);
        if (ordered || !strcmp(field[4], "graph")) problems[i].search = bytes;
        if (!ordered && !strcmp(field[4], "greedy")) problems[i].greedy = bytes;
    }
    fclose(f);
    return 0;
}

static double saved(const problem *p) { return p->ours > 0 ? (p->greedy > 0 ? p->greedy : p->search) / p->ours : 0; }
static int by_saving(const void *a, const void *b) {
    double x = saved((const problem *)a), y = saved((const problem *)b);
    return x > y ? -1 : x < y;
}

static void put_problem(FILE *out, const problem *p) {
    fprintf(out, "| %s | %s | %s%s%s -> %s%s%s | ", p->mesh, p->shape, p->from, *p->from_order == '-' ? "" : " by ",
            *p->from_order == '-' ? "" : p->from_order, p->to, *p->to_order == '-' ? "" : " by ",
            *p->to_order == '-' ? "" : p->to_order);
    fprintf(out, p->greedy < 0 ? "- | " : "%.0f | ", p->greedy);
    fprintf(out, p->search < 0 ? "- | " : "%.0f | ", p->search);
    fprintf(out, "%.0f | ", p->ours);
    fprintf(out, p->bound < 0 ? "- |\n" : "%.0f |\n", p->bound);
}

static int bytes_table(FILE *out, FILE *csv) {
    static const struct {
        const char *path, *what;
        int ordered;
    } files[] = {{"tests/golden/redistribute_torch.csv", "even sizes", 0},
                 {"tests/golden/redistribute_uneven.csv", "uneven sizes", 0},
                 {"tests/golden/redistribute_order.csv", "explicit shard orders", 1}};
    int f, i, worse = 0;
    fprintf(
        out,
        "## Bytes\n\nThe worst rank's max(sent, received), over the problems of tests/golden/redistribute_*.csv (PyTorch 2.13 ran them; its\n"
        "bytes are those its worst rank received). Ours planned for the fewest bytes, and counted move by move.\n\n"
        "| problems | number | ours at the bound | greedy at the bound | search at the bound | greedy / ours, all bytes | search / ours | worst greedy | worst search |\n"
        "|---|---|---|---|---|---|---|---|---|\n");
    fprintf(csv, "mesh,shape,from,from_order,to,to_order,greedy,search,ours,bound\n");
    for (f = 0; f < 3; f++) {
        int first = nproblems, at[3] = {0, 0, 0}, bounded = 0;
        double sum[2] = {0, 0}, ours[2] = {0, 0}, worst[2] = {0, 0};
        if (read_problems(files[f].path, files[f].ordered)) return 1;
        for (i = first; i < nproblems; i++) {
            problem *p = &problems[i];
            solve(p);
            fprintf(csv, "%s,%s,%s,%s,%s,%s,%.0f,%.0f,%.0f,%.0f\n", p->mesh, p->shape, p->from, p->from_order, p->to,
                    p->to_order, p->greedy, p->search, p->ours, p->bound);
            worse += (p->greedy >= 0 && p->ours > p->greedy + 0.5) || (p->search >= 0 && p->ours > p->search + 0.5);
            if (!strchr(p->from, 'P') && !strchr(p->to, 'P')) { /* with partial sums the bound need not be reachable */
                bounded++;
                at[0] += p->ours <= p->bound;
                at[1] += p->greedy >= 0 && p->greedy <= p->bound + 0.5;
                at[2] += p->search >= 0 && p->search <= p->bound + 0.5;
            }
            if (p->greedy >= 0) sum[0] += p->greedy, ours[0] += p->ours;
            if (p->search >= 0) sum[1] += p->search, ours[1] += p->ours;
            if (p->ours > 0 && p->greedy / p->ours > worst[0]) worst[0] = p->greedy / p->ours;
            if (p->ours > 0 && p->search / p->ours > worst[1]) worst[1] = p->search / p->ours;
        }
        fprintf(out, "| %s | %d (%d unreduced) | %d | %d | %d | %.2f | %.2f | %.1f | %.1f |\n", files[f].what,
                nproblems - first, bounded, at[0], at[1], at[2], ours[0] > 0 ? sum[0] / ours[0] : 0,
                ours[1] > 0 ? sum[1] / ours[1] : 0, worst[0], worst[1]);
    }
    fprintf(
        out,
        "\nProblems where ours moves more than either of PyTorch's planners: %d (each an all_reduce of fewer elements than ranks, "
        "whose formula\ncounts fractions of an element).\n",
        worse);
    qsort(problems, (size_t)nproblems, sizeof *problems, by_saving);
    fprintf(
        out,
        "\nWhere most is saved (bytes; all in redistribute.csv):\n\n| mesh | shape | move | greedy | search | ours | bound |\n|---|---|---|---|---|---|---|\n");
    for (i = 0; i < 12 && i < nproblems; i++) put_problem(out, &problems[i]);
    return 0;
}

/* ---- planning ---- */

static void planning_table(FILE *out) {
    static const char *const rows[][3] = {
        {"a=8,b=8,c=8", "a:S(0) b:S(1) c:R", "a:S(1) b:R c:S(0)"},
        {"a=8,b=8,c=8", "a:P(sum) b:R c:R", "a:R b:S(0) c:R"},
        {"a=8,b=8,c=8", "a:P(sum) b:P(sum) c:P(sum)", "a:R b:R c:R"},
        {"a=256,b=256", "a:S(0) b:R", "a:R b:S(0)"},
        {"a=256,b=256", "a:S(0) b:S(1)", "a:S(1) b:S(0)"},
        {"a=256,b=256", "a:S(0) b:S(0)", "a:S(1) b:S(1)"},
        {"a=256,b=256", "a:S(0) b:S(0)", "a:R b:R"},
        {"a=256,b=256", "a:P(sum) b:S(0)", "a:R b:R"},
        {"a=256,b=256", "a:P(sum) b:P(sum)", "a:S(0) b:S(1)"},
    };
    static mesh_plan plan;
    size_t k;
    fprintf(
        out,
        "\n## Planning\n\nMicroseconds to make a plan (nothing is allocated) and to go through one rank's moves; 65,536 x 65,536 f32.\n\n"
        "| mesh | from | to | plan us | steps | one rank's moves | us |\n|---|---|---|---|---|---|---|\n");
    for (k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        mesh m;
        static const int64_t shape[2] = {65536, 65536};
        mesh_layout from, to;
        mesh_plan_desc d = MESH_ZERO;
        mesh_moves it;
        mesh_error err;
        double make = 1e9, go = 1e9;
        int round, step, n = 0;
        if (mesh_parse(&m, rows[k][0], 0, &err) || mesh_layout_parse(&from, &m, rows[k][1], 2, shape, &err) ||
            mesh_layout_parse(&to, &m, rows[k][2], 2, shape, &err))
            continue;
        d.src = &from;
        d.dst = &to;
        for (round = 0; round < 5; round++) {
            double t = seconds(), u;
            if (mesh_plan_make(&plan, &d, &err)) return;
            u = seconds();
            for (step = n = 0; step < plan.nsteps; step++)
                for (mesh_moves_start(&it, &plan, step, 77, -1); mesh_moves_next(&it);) n++;
            make = u - t < make ? u - t : make;
            u = seconds() - u;
            go = u < go ? u : go;
        }
        fprintf(out, "| %s | %s | %s | %.1f | %d | %d | %.0f |\n", rows[k][0], rows[k][1], rows[k][2], make * 1e6,
                plan.nsteps, n, go * 1e6);
    }
}

/* ---- time ---- */

/* PyTorch's side of it, where torchrun is (or $TORCHRUN). Returns how many moves it made. */
static int ask_torch(timing *t, int n, int ranks, char *version, size_t cap) {
    const char *torchrun = getenv("TORCHRUN") ? getenv("TORCHRUN") : "torchrun";
    char line[1024], day[16];
    time_t now = time(NULL);
    FILE *p;
    int i, r, found = 0;
    snprintf(line, sizeof line, "OMP_NUM_THREADS=1 timeout 120 %s --nproc-per-node %d bench/dtensor.py 2>/dev/null",
             torchrun, ranks);
    if (!(p = popen(line, "r"))) return 0;
    strftime(day, sizeof day, "%Y-%m-%d", gmtime(&now));
    while (fgets(line, sizeof line, p)) {
        char *field[5], *at = line;
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "PyTorch ", 8)) snprintf(version, cap, "%.60s, %s", line, day);
        for (r = 0; r < 5 && at; r++) {
            field[r] = at;
            if ((at = strchr(at, ';')) != NULL) *at++ = 0;
        }
        for (i = 0; i < n && r == 5; i++)
            if (t[i].ranks == ranks && !strcmp(t[i].mesh, field[1]) && !strcmp(t[i].from, field[2]) &&
                !strcmp(t[i].to, field[3]))
                t[i].torch = atof(field[4]), found++;
    }
    pclose(p);
    return found;
}

/* DTensor's times of an earlier run, where PyTorch is not here. */
static void keep_torch(timing *t, int n, setting *w) {
    static timing before[MOST_TIMES];
    int i, k, found = read_times(before, w), cores = w->cores;
    for (i = 0; i < n; i++)
        for (k = 0; k < found; k++)
            if (t[i].ranks == before[k].ranks && !strcmp(t[i].mesh, before[k].mesh) &&
                !strcmp(t[i].from, before[k].from) && !strcmp(t[i].to, before[k].to))
                t[i].torch = before[k].torch;
    w->cores = cores;
}

/* Every lane that is there, one after the other. Returns the number of moves. */
static int measure_lanes(timing *t, int ranks, int n) {
    char line[512];
    int lane;
    FILE *p;
    for (lane = 0; lane < LANES; lane++) {
        int before = n, lines = 0;
        snprintf(line, sizeof line,
                 "LANE=%s MESH_SOCKET_LANES=%s build/mesh run --bare -n %d -- build/bench_redistribute%s",
                 lane_of[lane].name, lane_of[lane].lanes, ranks, lane_of[lane].option);
        if (!(p = popen(line, "r"))) continue;
        while (fgets(line, sizeof line, p)) {
            n = read_time(line, t, n);
            lines++;
            printf("%s", line);
            fflush(stdout);
        }
        pclose(p);
        if (n == before && !lines) printf("%d ranks: no lane %s\n", ranks, lane_of[lane].name);
    }
    return n;
}

int main(int argc, char **argv) {
    static timing times[MOST_TIMES];
    setting w = {0, ""};
    FILE *out, *csv;
    int n = 0, ranks, asked = 0;
    if (getenv("RANK")) return rank_main(argc > 1 && !strcmp(argv[1], "--alloc"));
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--again")))
        return fprintf(stderr, "usage: bench_redistribute [--again]\n"), 2;
    if (argc == 2) {
        if ((n = read_times(times, &w)) == 0)
            return fprintf(stderr, "bench_redistribute: no times in bench/redistribute_times.csv\n"), 1;
        return chart(times, n, &w);
    }
    w.cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    out = fopen("bench/REDISTRIBUTE.md", "w");
    csv = fopen("bench/redistribute.csv", "w");
    if (!out || !csv) return perror("bench/REDISTRIBUTE.md"), 1;
    fprintf(
        out,
        "# Redistribution\n\nWritten by `make bench-redistribute` (bench/bench_redistribute.c) on a machine of %d cores.\n\n",
        w.cores);
    if (bytes_table(out, csv)) return 1;
    fclose(csv);
    planning_table(out);
    for (ranks = 4; ranks <= 8; ranks += 4) {
        n = measure_lanes(times, ranks, n);
        asked += ask_torch(times, n, ranks, w.torch, sizeof w.torch);
    }
    if (!asked) keep_torch(times, n, &w);
    write_beside_torch(out, times, n, &w);
    write_beside_hand(out, times, n);
    fclose(out);
    return n == 0 || write_times(times, n, &w) || chart(times, n, &w); /* no times: those of an earlier run stay */
}
