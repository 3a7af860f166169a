/* Folders of checkpoints, and states: named tensors in any layouts, here or in a device's memory, saved and loaded by a world. */
#ifndef TEST_STATES_H
#define TEST_STATES_H
#include <dirent.h>
#include "floats.h"

/* ---- folders ---- */

static char checkpoint_folder[256];

static void folder_new(void) {
    const char *memory = "/dev/shm"; /* where fsync costs nothing */
    snprintf(checkpoint_folder, sizeof checkpoint_folder, "%s/mesh-checkpoint-XXXXXX",
             access(memory, W_OK) ? "/tmp" : memory);
    if (!mkdtemp(checkpoint_folder)) test_fail(__FILE__, __LINE__, "mkdtemp: %s", strerror(errno)), exit(1);
}

/* Its files, at most 32, by name. Returns how many. */
static int folder_list(char names[32][300]) {
    DIR *d = opendir(checkpoint_folder);
    struct dirent *e;
    int n = 0;
    while (d && (e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && n < 32) snprintf(names[n++], 300, "%.90s/%.200s", checkpoint_folder, e->d_name);
    if (d) closedir(d);
    return n;
}

static void folder_empty(void) {
    static char names[32][300];
    int n = folder_list(names);
    while (n > 0) unlink(names[--n]);
}
static void folder_end(void) {
    folder_empty();
    rmdir(checkpoint_folder);
}
/* Folders in it too, the inner ones first. */
static void folder_end_with(const char *const *part, int n) {
    char outer[256];
    int i;
    snprintf(outer, sizeof outer, "%s", checkpoint_folder);
    for (i = 0; i < n; i++) {
        snprintf(checkpoint_folder, sizeof checkpoint_folder, "%.200s/%s", outer, part[i]);
        folder_end();
    }
    snprintf(checkpoint_folder, sizeof checkpoint_folder, "%s", outer);
    folder_end();
}

/* The first data file's path. */
static const char *folder_data(void) {
    static char names[32][300];
    int n = folder_list(names), i, best = -1;
    for (i = 0; i < n; i++)
        if (strstr(names[i], ".safetensors") && !strstr(names[i], ".index") &&
            (best < 0 || strcmp(names[i], names[best]) < 0))
            best = i;
    CHECK(best >= 0);
    return best < 0 ? "" : names[best];
}

/* ---- states: named tensors whose bytes say which element of which tensor in which save they are ---- */

enum { STATE_TENSORS = 12 };
typedef struct state_shape {
    mesh_dtype dtype;
    int ndim;
    int64_t shape[4];
} state_shape;
static const mesh_dtype state_dtypes[] = {MESH_F32, MESH_F64, MESH_F16, MESH_BF16, MESH_I8,  MESH_U8,     MESH_I16,
                                          MESH_U16, MESH_I32, MESH_U32, MESH_I64,  MESH_U64, MESH_F8E4M3, MESH_F8E5M2};

static void state_shapes(state_shape *s, uint64_t salt) {
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 8, 13, 20};
    test_random r = random_from(salt);
    int i, d;
    for (i = 0; i < STATE_TENSORS; i++) {
        s[i].dtype = state_dtypes[random_below(&r, 14)];
        s[i].ndim = random_below(&r, 5);
        for (d = 0; d < s[i].ndim; d++) s[i].shape[d] = sizes[random_below(&r, d < 2 ? 8 : 4)];
    }
    s[0].dtype = MESH_F64, s[0].ndim = 2, s[0].shape[0] = 99, s[0].shape[1] = 101; /* cut among replicas */
}
static unsigned char state_byte(uint64_t save, int tensor, int64_t element, size_t byte) {
    uint64_t h = (save * 1000003 + (uint64_t)tensor) * 0x9e3779b97f4a7c15u + (uint64_t)element * 0xbf58476d1ce4e5b9u +
                 byte * 0x94d049bb133111ebu;
    return (unsigned char)(h >> 56 ^ h >> 24);
}

/* This rank's parts on a mesh in layouts that the random numbers draw; every third strided. full: data of that save; else 0xee. */
typedef struct state_part {
    mesh_named list[STATE_TENSORS];
    int64_t strides[STATE_TENSORS][4];
    char names[STATE_TENSORS][40];
    unsigned char *host[STATE_TENSORS]; /* the tensors' memory, or what was copied there last */
    size_t nbytes[STATE_TENSORS];
    mesh_comm *there; /* tensors are in its device's memory; NULL: here */
    int n;
} state_part;
static void state_open(state_part *p, const state_shape *s, const mesh *on, int rank, uint64_t layouts, int64_t save) {
    test_random r = random_from(layouts);
    int i, k, d;
    p->n = STATE_TENSORS;
    p->there = NULL;
    for (i = 0; i < STATE_TENSORS; i++) {
        mesh_tensor *t = &p->list[i].tensor;
        mesh_box box;
        int64_t count, e, step = i % 3 == 2 ? 2 : 1;
        size_t elem = mesh_dtype_bytes(s[i].dtype), b;
        memset(t, 0, sizeof *t);
        snprintf(p->names[i], sizeof p->names[i], i == 3 ? "layer.%d \"\\\xc3\xa9/" : "layer.%d.weight", i);
        p->list[i].name = p->names[i];
        t->dtype = s[i].dtype;
        t->layout = tensor_layout(&r, on, s[i].ndim, s[i].shape, MESH_SUM);
        for (k = 0; k < on->naxes; k++)
            if (t->layout.spec.axis[k].kind == MESH_PARTIAL) t->layout.spec.axis[k] = mesh_replicate();
        count = mesh_tensor_box(t, rank, &box);
        for (d = s[i].ndim - 1; d >= 0; d--)
            p->strides[i][d] = d == s[i].ndim - 1 ? step : p->strides[i][d + 1] * box.shape[d + 1];
        if (s[i].ndim && step > 1)
            t->strides = p->strides[i];
        else
            step = 1;
        p->nbytes[i] = (size_t)(2 * count + 2) * elem;
        t->data = p->host[i] = (unsigned char *)malloc(p->nbytes[i]);
        memset(t->data, 0xee, p->nbytes[i]);
        for (e = 0; e < count && save >= 0; e++)
            for (b = 0; b < elem; b++)
                ((unsigned char *)t->data)[(size_t)(e * step) * elem + b] =
                    state_byte((uint64_t)save, i, plan_linear_in(s[i].ndim, s[i].shape, &box, e), b);
    }
}

/* To the memory of a comm's device, if it has one. */
static void state_go_there(state_part *p, mesh_comm *c) {
    int i;
    if (!(c->transport->caps & MESH_CAP_DEVICE)) return;
    p->there = c;
    for (i = 0; i < p->n; i++) {
        CHECK_OK(mesh_alloc(c->transport, p->nbytes[i], &p->list[i].tensor.data, &c->error), c->error);
        CHECK_OK(mesh_copy(c, p->list[i].tensor.data, p->host[i], p->nbytes[i]), c->error);
    }
}

/* Something else in the first bytes of every tensor. */
static void state_scribble(state_part *p) {
    int i;
    for (i = 0; i < p->n; i++) {
        memset(p->host[i], 0x77, mesh_dtype_bytes(p->list[i].tensor.dtype));
        if (p->there) CHECK_OK(mesh_copy(p->there, p->list[i].tensor.data, p->host[i], p->nbytes[i]), p->there->error);
    }
}

/* Are these the elements of a save (-1: untouched)? Between strided ones nothing was written. */
static int state_is(const state_part *p, int rank, int64_t save) {
    int i;
    for (i = 0; i < p->n && p->there; i++)
        CHECK_OK(mesh_copy(p->there, p->host[i], p->list[i].tensor.data, p->nbytes[i]), p->there->error);
    for (i = 0; i < p->n; i++) {
        const mesh_tensor *t = &p->list[i].tensor;
        mesh_box box;
        int64_t count = mesh_tensor_box(t, rank, &box), e, step = t->strides ? 2 : 1;
        size_t elem = mesh_dtype_bytes(t->dtype), b;
        for (e = 0; e < count * step; e++)
            for (b = 0; b < elem; b++) {
                unsigned char want = 0xee;
                if (save >= 0 && e % step == 0)
                    want = state_byte((uint64_t)save, i,
                                      plan_linear_in(t->layout.ndim, t->layout.shape, &box, e / step), b);
                if (p->host[i][(size_t)e * elem + b] != want) return 0;
            }
    }
    return 1;
}
static void state_close(state_part *p) {
    int i;
    for (i = 0; i < STATE_TENSORS; i++) {
        if (p->there) CHECK_OK(mesh_free(p->there->transport, p->list[i].tensor.data, &p->there->error), p->there->error);
        free(p->host[i]);
    }
}

typedef struct state_run {
    const char *mesh;
    uint64_t shapes, layouts;
    int64_t save; /* which; loads expect it */
    int64_t file_bytes;
    int started;       /* in the started form; the tensors change at once */
    const char *error; /* what it is refused with, or NULL */
    mesh_status status;
    int loads, unchecked, any; /* any: OK will do too; a load may find the save after */
    mesh_status got;
    char told[600]; /* the first rank */
    int64_t got_save;
} state_run;

static void state_rank(mesh_transport *t, void *ctx) {
    state_run *r = (state_run *)ctx;
    state_shape shapes[STATE_TENSORS];
    state_part p;
    mesh_comm c;
    mesh_checkpoint_desc d = MESH_ZERO;
    mesh_checkpoint s;
    char step[24], got[24];
    const char *text[] = {"step", step, "a \"key\"", "a\n\\value", NULL};
    int64_t length;
    mesh_status status;
    if (!open_comm(t, &c, r->mesh, NULL, 30 * SECOND)) return;
    state_shapes(shapes, r->shapes);
    state_open(&p, shapes, &c.on, t->rank, r->layouts, r->loads ? -1 : r->save);
    state_go_there(&p, &c);
    snprintf(step, sizeof step, "%lld", (long long)r->save);
    d.text = text;
    d.file_bytes = r->file_bytes;
    d.unchecked = r->unchecked;
    if (r->loads) {
        status = mesh_checkpoint_load(&c, checkpoint_folder, p.list, p.n, &d);
        r->got_save = status ? -1 : r->any && state_is(&p, t->rank, r->save + 1) ? r->save + 1 : r->save;
        CHECK(state_is(&p, t->rank, r->got_save));
    } else if (!r->started) {
        status = mesh_checkpoint_save(&c, checkpoint_folder, p.list, p.n, &d);
    } else if ((status = mesh_checkpoint_save_start(&c, checkpoint_folder, p.list, p.n, &d, &s)) == MESH_OK) {
        state_scribble(&p);
        CHECK_OK(mesh_barrier(&c, NULL), c.error);
        status = mesh_checkpoint_wait(&s);
        CHECK(!s.impl && mesh_checkpoint_wait(&s) == MESH_ERR_STATE);
    }
    r->got = status;
    if (status && !t->rank) snprintf(r->told, sizeof r->told, "%.599s", c.error.text);
    CHECK(status == r->status || (r->any && status == MESH_OK));
    if (status) CHECK_HAS(c.error.text, r->error ? r->error : "nothing is wrong");
    CHECK(!c.failed);
    if (!status && r->loads && !r->any) {
        CHECK_OK(mesh_checkpoint_text(&c, checkpoint_folder, "step", got, sizeof got, &length), c.error);
        CHECK_STR(got, step);
        CHECK_OK(mesh_checkpoint_text(&c, checkpoint_folder, "a \"key\"", got, 4, &length), c.error);
        CHECK(!strcmp(got, "a\n\\") && length == 8);
        CHECK_OK(mesh_checkpoint_text(&c, checkpoint_folder, "none", got, sizeof got, &length), c.error);
        CHECK(length == -1 && !got[0]);
    }
    state_close(&p);
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static int state_world(const char *mesh_text) {
    mesh m;
    return mesh_parse(&m, mesh_text, 0, NULL) ? 0 : m.size;
}

/* On this backend. */
static void state_go(int backend, state_run *r) { run_world(backend, state_world(r->mesh), state_rank, r); }
/* Saved from a device's memory and from a host's, loaded into either: the same files. */
static void states_there_and_back(void (*devices)(int, rank_main, void *), int rounds, uint64_t seed) {
    static const char *const meshes[] = {"a=1", "a=3", "a=2,b=2"};
    test_random r = random_from(seed);
    int i;
    folder_new();
    for (i = 0; i < rounds && !test_failures; i++) {
        state_run run = MESH_ZERO;
        run.shapes = random_next(&r), run.save = i;
        run.file_bytes = i % 3 ? 2000 : 0;
        run.started = i % 2;
        for (run.loads = 0; run.loads < 2; run.loads++) {
            run.layouts = random_next(&r);
            run.mesh = meshes[(i + !run.loads) % 3];
            if (i % 3 == (run.loads ? 1 : 2))
                state_go(SIM, &run);
            else
                devices(state_world(run.mesh), state_rank, &run);
        }
    }
    folder_end();
}
#endif
