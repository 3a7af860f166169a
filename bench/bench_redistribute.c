/* What redistribution costs: bytes against PyTorch's planners (tests/golden/redistribute_*.csv) and the bound, and time against the same
   move made axis by axis with this library's own collectives, 64 MiB of f32 on 4 and 8 ranks over TCP. Alone it writes
   bench/REDISTRIBUTE.md, redistribute.csv and redistribute.svg, running itself under build/mesh run; each of those is a rank. */
#define MESH_IMPLEMENTATION
#include "../mesh.h"
#include "../mesh_collectives.h"
#include "../transports/mesh_socket.h"
#include <stdio.h>

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

static int measure(mesh_socket *net, const move *v) {
    mesh m;
    mesh_comm comm;
    mesh_error err;
    mesh_tensor src = MESH_ZERO, dst;
    mesh_box have, want;
    mesh_request r = MESH_ZERO;
    size_t room = (size_t)SIDE * SIDE + 16, i, k;
    float *p = (float *)malloc(room * 4), *q = (float *)malloc(room * 4), *s = (float *)malloc(room * 4), *end = p;
    double ours[ROUNDS], hand[ROUNDS], t;
    int round, wrong = 0, holders = 1;
    uint64_t sent[3], received[3];
    if (mesh_parse(&m, v->mesh, mesh_world(&net->base), &err) || mesh_comm_open(&comm, &net->base, &m, NULL, &err))
        return fprintf(stderr, "%s\n", err.text), 1;
    src.dtype = MESH_F32;
    src.ndim = 2;
    src.shape[0] = src.shape[1] = SIDE;
    src.on = &m;
    dst = src;
    if (mesh_spec_parse(&src.spec, &m, v->from, 2, &err) || mesh_spec_parse(&dst.spec, &m, v->to, 2, &err))
        return fprintf(stderr, "%s\n", err.text), 1;
    mesh_spec_box(&src.spec, &m, 2, src.shape, net->base.rank, &have);
    mesh_spec_box(&dst.spec, &m, 2, dst.shape, net->base.rank, &want);
    for (i = 0; i < (size_t)m.naxes; i++)
        if (src.spec.axis[i].kind == MESH_PARTIAL) holders *= m.axis[i].size;
    src.data = malloc((size_t)mesh_box_count(&have) * 4);
    dst.data = malloc((size_t)mesh_box_count(&want) * 4);
    for (i = 0; i < (size_t)have.shape[0]; i++)
        for (k = 0; k < (size_t)have.shape[1]; k++)
            ((float *)src.data)[i * (size_t)have.shape[1] + k] =
                (float)((((size_t)have.offset[0] + i) * 31 + (size_t)have.offset[1] + k) % 1000);
    memset(p, 0, room * 4), memset(q, 0, room * 4), memset(s, 0, room * 4); /* the pages are there */
    mesh_comm_bytes(&comm, NULL, &sent[0], &received[0]);
    for (round = 0; round < ROUNDS; round++) {
        size_t shape[2];
        const char *step = v->hand;
        mesh_barrier(&comm, NULL);
        t = seconds();
        if (round ? mesh_restart(r) : (mesh_redistribute_start(&comm, &src, &dst, &r) || mesh_keep(r)))
            return fprintf(stderr, "%s\n", comm.error.text), 1;
        if (mesh_wait(r)) return fprintf(stderr, "%s\n", comm.error.text), 1;
        mesh_barrier(&comm, NULL);
        ours[round] = seconds() - t;
        if (round == 0) mesh_comm_bytes(&comm, NULL, &sent[1], &received[1]);
        shape[0] = (size_t)have.shape[0];
        shape[1] = (size_t)have.shape[1];
        end = (float *)src.data;
        mesh_barrier(&comm, NULL);
        t = seconds();
        for (; *step; step += strcspn(step, " "), step += *step == ' ') {
            float *to = hand_step(&comm, step, shape, end, end == q ? p : q, end == s ? p : s);
            end = to;
        }
        mesh_barrier(&comm, NULL);
        hand[round] = seconds() - t;
    }
    for (i = 0; i < (size_t)want.shape[0]; i++)
        for (k = 0; k < (size_t)want.shape[1]; k++) {
            float x = (float)((((size_t)want.offset[0] + i) * 31 + (size_t)want.offset[1] + k) % 1000) * (float)holders;
            size_t at = i * (size_t)want.shape[1] + k;
            wrong += ((float *)dst.data)[at] != x || end[at] != x;
        }
    qsort(ours, ROUNDS, sizeof *ours, by_number);
    qsort(hand, ROUNDS, sizeof *hand, by_number);
    if (net->base.rank == 0)
        printf("%d,%s,%s,%s,%.2f,%.2f,%d\n", net->base.size, v->mesh, v->from, v->to, ours[ROUNDS / 2] * 1e3,
               hand[ROUNDS / 2] * 1e3, wrong);
    fflush(stdout);
    mesh_release(r);
    mesh_comm_close(&comm);
    free(p), free(q), free(s), free(src.data), free(dst.data);
    return wrong != 0;
}

static int rank_main(void) {
    mesh_socket net;
    mesh_error err;
    const move *v;
    int n, i, bad = 0;
    if (mesh_socket_open(&net, NULL, &err)) return fprintf(stderr, "%s\n", err.text), 1;
    v = net.base.size == 8 ? moves_8 : moves_4;
    n = (int)(net.base.size == 8 ? sizeof moves_8 / sizeof *v : sizeof moves_4 / sizeof *v);
    for (i = 0; i < n && !bad; i++) bad = measure(&net, &v[i]);
    mesh_socket_close(&net);
    return bad;
}

int main(void) {
    if (getenv("RANK")) return rank_main();
    return 0;
}
