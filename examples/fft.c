/* A 3-D FFT over a mesh: each rank holds whole lines (pencils) of one dim, transforms them, and gets those of the next dim by one redistribution.

   mesh run -n 4 -- build/fft --mesh r=2,c=2 --size 64,50,47          pencils: both axes divide, and each transpose stays within one
   mesh run -n 4 -- build/fft --mesh r=4 --size 64,50,47              slabs: the second transpose moves nothing between ranks

   Sizes need not divide, and may have any factors. Afterwards rank 0 compares with a transform of the whole, and with the definition at a few
   frequencies; the way back gives the input. Errors are relative to the largest value; 1e-12 is allowed. */
#define MESH_IMPLEMENTATION
#include "../mesh_parallel.h"
#include "ends.h"
#include "ranks.h"
#include <complex.h>
#include <math.h>
#include <stdio.h>

typedef double complex number;

/* This rank's part while dim `whole` is not divided: there its elements are neighbours in memory. */
typedef struct pencils {
    int whole;
    mesh_tensor tensor;
    mesh_box box;
    int64_t strides[3], count;
} pencils;

enum { FREQUENCIES = 7, PHASES = 5 };
static const double allowed = 1e-12;

static mesh_comm comm;
static mesh_error err;
static ranks_transport net;

static int give_up(const char *text) {
    fprintf(stderr, "%s\n", text);
    return 1;
}

static void must(mesh_status status) {
    if (status != MESH_OK) exit(give_up(comm.error.text));
}

static number *numbers(int64_t n) {
    number *p = (number *)malloc((size_t)(n + 1) * sizeof *p);
    if (!p) exit(give_up("fft: no memory"));
    return p;
}

/* ---- one rank's FFT ---- */

/* exp(-+ 2 pi i k / n): k is taken modulo n first, where it is exact. */
static number root(int64_t k, int64_t n, int inverse) {
    double angle = 2 * acos(-1) * (double)(k % n) / (double)n;
    return cos(angle) + (inverse ? I : -I) * sin(angle);
}

/* out = the transform of n numbers, `gap` apart in `in`; n divides all, w holds the all-th roots of 1, t room for n numbers. Of any n: with p its
   least prime factor, p transforms of n / p numbers each (those p apart) and n / p of p numbers (Cooley and Tukey). */
static void fft(number *out, const number *in, int64_t n, int64_t gap, const number *w, int64_t all, number *t) {
    int64_t p = 2, m, j, k, q;
    if (n == 1) {
        *out = *in;
        return;
    }
    while (n % p) p = p * p < n ? p + 1 : n;
    m = n / p;
    for (q = 0; q < p; q++) fft(out + q * m, in + q * gap, m, gap * p, w, all, t);
    for (k = 0; k < m; k++) {
        for (q = 0; q < p; q++) t[q] = out[q * m + k] * w[q * k * (all / n)];
        for (j = 0; j < p; j++) {
            number sum = t[0];
            for (q = 1; q < p; q++) sum += t[q] * w[q * j % p * (all / p)];
            out[j * m + k] = sum;
        }
    }
}

/* Transform every line along a dim of an array, where it lies. */
static void transform(number *data, const int64_t *shape, const int64_t *stride, int dim, int inverse) {
    int64_t n = shape[dim], i, j, k, a = dim == 0, b = dim == 2 ? 1 : 2;
    number *w = numbers(3 * n), *line = w + n, *room = line + n;
    for (k = 0; k < n; k++) w[k] = root(k, n, inverse);
    for (i = 0; i < shape[a]; i++)
        for (j = 0; j < shape[b]; j++) {
            number *at = data + i * stride[a] + j * stride[b];
            fft(line, at, n, stride[dim], w, n, room);
            for (k = 0; k < n; k++) at[k * stride[dim]] = line[k];
        }
    free(w);
}

/* ---- over the mesh ---- */

/* The mesh's axes divide, in their order, the dims beside the whole one; sizes are apart by one at most. */
static void cut(pencils *p, const mesh *m, const int64_t *size, int whole) {
    int other[2], i;
    other[0] = whole == 0, other[1] = whole == 2 ? 1 : 2;
    p->whole = whole;
    if (mesh_tensor_make(&p->tensor, m, "balanced", MESH_C128, 3, size, &err)) exit(give_up(err.text));
    for (i = 0; i < m->naxes; i++)
        if (mesh_layout_set(&p->tensor.layout, m->axis[i].name, mesh_shard(other[i]), &err)) exit(give_up(err.text));
    p->count = mesh_tensor_box(&p->tensor, net.base.rank, &p->box);
    p->strides[whole] = 1;
    p->strides[other[1]] = p->box.shape[whole];
    p->strides[other[0]] = p->box.shape[whole] * (p->box.shape[other[1]] > 1 ? p->box.shape[other[1]] : 1);
    p->tensor.strides = p->strides;
    p->tensor.data = numbers(p->count);
}

/* A redistribution that waits to be started, once or often. */
static mesh_request transpose(const pencils *from, const pencils *to) {
    mesh_request r;
    must(mesh_prepare(&comm));
    must(mesh_redistribute_start(&comm, &from->tensor, &to->tensor, &r));
    return r;
}

static void go(mesh_request transposed) {
    must(mesh_restart(transposed));
    must(mesh_wait(transposed));
}

static void along(const pencils *p, int inverse) {
    transform((number *)p->tensor.data, p->box.shape, p->strides, p->whole, inverse);
}

/* The input: a number that depends on its place in the whole only, so that each rank makes its own part, whatever the mesh. */
static number input(int64_t index) {
    uint32_t r[4];
    mesh_random_block(r, 1, 0, (uint64_t)index);
    return r[0] / 4294967296.0 - 0.5 + (r[1] / 4294967296.0 - 0.5) * I;
}

/* Fill a part with the input; or compare with it what is `scale` times it. Returns the largest difference, relative to an input of 1. */
static double part(const pencils *p, const int64_t *size, int fill, double scale) {
    const int64_t *offset = p->box.offset, *n = p->box.shape, *s = p->strides;
    double worst = 0;
    int64_t i, j, k;
    for (i = 0; i < n[0]; i++)
        for (j = 0; j < n[1]; j++)
            for (k = 0; k < n[2]; k++) {
                number *at = (number *)p->tensor.data + i * s[0] + j * s[1] + k * s[2];
                number v = input(((offset[0] + i) * size[1] + offset[1] + j) * size[2] + offset[2] + k);
                if (fill) *at = v;
                if (!(cabs(*at / scale - v) <= worst)) worst = cabs(*at / scale - v);
            }
    return worst;
}

/* On rank 0: how far the gathered transform is from one of the whole, and from the definition, relative to the largest value. */
static void check(const pencils *p, const int64_t *size, double *from_serial, double *from_definition) {
    int64_t stride[3], count = size[0] * size[1] * size[2], i, f;
    double largest = 0;
    number *all = NULL, *serial;
    mesh one;
    mesh_tensor whole;
    int d;
    if (mesh_parse(&one, "", 1, &err) || mesh_tensor_make(&whole, &one, "", MESH_C128, 3, size, &err))
        exit(give_up(err.text));
    if (net.base.rank == 0) whole.data = all = numbers(2 * count);
    must(mesh_redistribute(&comm, &p->tensor, &whole));
    *from_serial = *from_definition = 0;
    if (!all) return;
    serial = all + count;
    for (i = 0; i < count; i++) serial[i] = input(i);
    stride[2] = 1, stride[1] = size[2], stride[0] = size[1] * size[2];
    for (d = 0; d < 3; d++) transform(serial, size, stride, d, 0);
    for (i = 0; i < count; i++) {
        if (cabs(serial[i]) > largest) largest = cabs(serial[i]);
        if (!(cabs(all[i] - serial[i]) <= *from_serial)) *from_serial = cabs(all[i] - serial[i]);
    }
    for (f = 0; f < FREQUENCIES; f++) {
        int64_t at = count * f / FREQUENCIES, x = at / stride[0], y = at / stride[1] % size[1], z = at % size[2];
        number sum = 0;
        for (i = 0; i < count; i++)
            sum += input(i) * root(i / stride[0] * x, size[0], 0) * root(i / stride[1] % size[1] * y, size[1], 0) *
                   root(i % size[2] * z, size[2], 0);
        if (!(cabs(all[at] - sum) <= *from_definition)) *from_definition = cabs(all[at] - sum);
    }
    *from_serial /= largest, *from_definition /= largest;
    free(all);
}

/* The largest of all ranks: milliseconds of a phase, bytes that it sent or received, errors. Beside the bytes those that some rank has to receive,
   whatever is done. Returns 1 if an error is larger than allowed. */
static int report(const pencils *p, const mesh *m, const int64_t *size, double *ms, double *bytes, double *wrong) {
    static const char *const phase[PHASES] = {"fft of x", "x to y", "fft of y", "y to z", "fft of z"};
    mesh_plan plan;
    char text[64];
    int i;
    must(mesh_all_reduce(&comm, NULL, ms, ms, PHASES, MESH_F64, MESH_MAX));
    must(mesh_all_reduce(&comm, NULL, bytes, bytes, PHASES, MESH_F64, MESH_MAX));
    must(mesh_all_reduce(&comm, NULL, wrong, wrong, 3, MESH_F64, MESH_MAX));
    if (net.base.rank == 0) {
        mesh_format(m, text, sizeof text);
        printf("%lld x %lld x %lld numbers on %s\n", (long long)size[0], (long long)size[1], (long long)size[2], text);
        printf("%-10s %10s %14s %14s\n", "phase", "ms", "bytes", "needed");
        for (i = 0; i < PHASES; i++) {
            printf("%-10s %10.3f", phase[i], ms[i]);
            if (i % 2) {
                if (mesh_redistribute_plan(&comm, &plan, &p[i / 2].tensor, &p[i / 2 + 1].tensor, &err))
                    exit(give_up(err.text));
                printf(" %14.0f %14lld", bytes[i], (long long)mesh_plan_lower_bound(&plan));
            }
            printf("\n");
        }
        printf("largest errors: %.1e of a transform alone, %.1e of the definition, %.1e there and back\n", wrong[0],
               wrong[1], wrong[2]);
    }
    return !(wrong[0] <= allowed && wrong[1] <= allowed && wrong[2] <= allowed);
}

int main(int argc, char **argv) {
    const char *axes = "r=-1", *text = "64,50,47";
    int64_t size[3];
    double ms[PHASES], bytes[PHASES], wrong[3];
    int i, bad;
    char more;
    mesh m;
    pencils p[3];
    mesh_request on[2], back[2];
    long long n[3];
    for (i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "--mesh"))
            axes = argv[i + 1];
        else if (!strcmp(argv[i], "--size"))
            text = argv[i + 1];
        else
            break;
    if (i < argc || sscanf(text, "%lld,%lld,%lld%c", &n[0], &n[1], &n[2], &more) != 3 || n[0] < 1 || n[1] < 1 ||
        n[2] < 1)
        return give_up("fft [--mesh r=2,c=2] [--size NX,NY,NZ]");
    if (ranks_open(&net, &err) || mesh_parse(&m, axes, mesh_world(&net.base), &err) ||
        mesh_comm_open(&comm, &net.base, &m, NULL, &err))
        return give_up(err.text);
    if (m.naxes > 2) return give_up("fft: --mesh has one axis (slabs) or two (pencils)");
    for (i = 0; i < m.naxes; i++)
        if (strcmp(m.axis[i].name, "r") && strcmp(m.axis[i].name, "c"))
            return give_up("fft: the axes of --mesh are r and c");
    for (i = 0; i < 3; i++) size[i] = n[i];
    for (i = 0; i < 3; i++) cut(&p[i], &m, size, i);
    for (i = 0; i < 2; i++) on[i] = transpose(&p[i], &p[i + 1]), back[i] = transpose(&p[i + 1], &p[i]);

    part(&p[0], size, 1, 1);
    must(mesh_barrier(&comm, NULL));
    for (i = 0; i < PHASES; i++) {
        int64_t begun = mesh_now(&net.base);
        uint64_t sent[2], received[2];
        must(mesh_comm_bytes(&comm, NULL, &sent[0], &received[0]));
        if (i % 2)
            go(on[i / 2]);
        else
            along(&p[i / 2], 0);
        must(mesh_comm_bytes(&comm, NULL, &sent[1], &received[1]));
        ms[i] = (double)(mesh_now(&net.base) - begun) / 1e6;
        sent[1] -= sent[0], received[1] -= received[0];
        bytes[i] = (double)(sent[1] > received[1] ? sent[1] : received[1]);
    }
    check(&p[2], size, &wrong[0], &wrong[1]);
    for (i = 2; i >= 0; i--) {
        along(&p[i], 1);
        if (i) go(back[i - 1]);
    }
    wrong[2] = part(&p[0], size, 0, (double)size[0] * (double)size[1] * (double)size[2]);
    bad = report(p, &m, size, ms, bytes, wrong);
    for (i = 0; i < 3; i++) free(p[i].tensor.data);
    mesh_comm_close(&comm);
    ranks_close(&net);
    return finish("fft", bad);
}
