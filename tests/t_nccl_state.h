/* A model's state in device memory: norms and clipping, checkpoints. */
#ifndef T_NCCL_STATE_H
#define T_NCCL_STATE_H
#include "../mesh_parallel.h"
#include "../mesh_checkpoint.h"
#include "floats.h"
#include "states.h"
#include "layouts.h"

/* A tensor in device memory and what lies there, on the host: all of it, gaps too. */
typedef struct norm_tensor {
    mesh_tensor t;
    int64_t strides[2], count;
    size_t nbytes;
    unsigned char *host;
    mesh_box box;
    int strided;
} norm_tensor;

static void norm_make(mesh_comm *c, norm_tensor *s, test_random *r, const mesh *on, const int64_t *shape) {
    int k;
    memset(s, 0, sizeof *s);
    s->t.dtype = float_dtypes[random_below(r, 4)];
    s->t.layout = tensor_layout(r, on, 2, shape, MESH_SUM);
    for (k = 0; k < on->naxes; k++)
        if (s->t.layout.spec.axis[k].kind == MESH_PARTIAL) s->t.layout.spec.axis[k] = mesh_replicate();
    s->strided = random_below(r, 3);
    if (mesh_index_of(on, c->transport->rank) < 0) return;
    s->count = mesh_tensor_box(&s->t, c->transport->rank, &s->box);
    s->strides[1] = s->strided == 2 ? 2 : 1;
    s->strides[0] = s->box.shape[1] * s->strides[1] + (s->strided == 1 ? 3 : 0);
    s->nbytes = ((size_t)(s->box.shape[0] * s->strides[0]) + 2) * mesh_dtype_bytes(s->t.dtype);
    s->host = (unsigned char *)calloc(1, s->nbytes);
    CHECK_OK(mesh_alloc(c->transport, s->nbytes, &s->t.data, &c->error), c->error);
}
static void norm_link(norm_tensor *s) { s->t.strides = s->strided ? s->strides : NULL; } /* where it lies for good */
static int64_t norm_at(const norm_tensor *s, int64_t e) {
    return e / s->box.shape[1] * s->strides[0] + e % s->box.shape[1] * s->strides[1];
}
static void norm_free(mesh_comm *c, norm_tensor *s) {
    if (s->t.data) mesh_free(c->transport, s->t.data, &c->error);
    free(s->host);
}

/* Lists that differ between ranks, all kinds of layouts and strides; the norm is that of whole tensors, and clipping has the host's bits, between elements
   nothing. Numbers whose squares no f64 holds, too. */
static void norms_rank(mesh_transport *t, void *ctx) {
    enum { TENSORS = 6 };
    static const int64_t shapes[TENSORS][2] = {{7, 5}, {80, 33}, {1, 9}, {0, 4}, {64, 640}, {6, 6}};
    static const double scales[4] = {1, 1e180, 1e-180, 0};
    test_random r = random_from(77);
    mesh_comm c;
    mesh stage[2];
    int round, i;
    (void)ctx;
    if (!open_comm(t, &c, "pp=2,dp=-1", NULL, 20 * SECOND)) return;
    for (i = 0; i < 2; i++) CHECK_OK(mesh_fix(&stage[i], &c.on, "pp", i, &c.error), c.error);
    for (round = 0; round < 24 && !test_failures; round++) {
        norm_tensor s[TENSORS];
        mesh_tensor list[TENSORS];
        double scale = scales[round % 4 == 3 ? 1 + random_below(&r, 3) : 0], whole = 0, norm = -1, again = -1, max, want;
        int n = 0, k, clips = random_below(&r, 2), none = round == 20;
        for (i = 0; i < TENSORS; i++) {
            const mesh *on = i < 5 ? &stage[i & 1] : &c.on;
            int64_t e, size = shapes[i][0] * shapes[i][1];
            double by;
            norm_make(&c, &s[n], &r, on, shapes[i]);
            by = s[n].t.dtype == MESH_F64 ? scale : 1;
            if (scale != 1 && s[n].t.dtype != MESH_F64) by = 0;
            for (e = 0; e < size && !none; e++) whole += by != 0 ? (double)((e + i) % 7) * (double)((e + i) % 7) : 0;
            if (!s[n].t.data) continue;
            for (e = 0; e < s[n].count && !none; e++)
                float_put(s[n].t.dtype, s[n].host, norm_at(&s[n], e),
                          by * (double)((plan_linear_in(2, shapes[i], &s[n].box, e) + i) % 7));
            CHECK_OK(mesh_copy(&c, s[n].t.data, s[n].host, s[n].nbytes), c.error);
            n++;
        }
        for (i = 0; i < n; i++) norm_link(&s[i]), list[i] = s[i].t;
        want = scale * mesh__sqrt(whole);
        max = want > 0 ? clips ? want / 4 : want * 2 : 1;
        CHECK_OK(mesh_norm(&c, list, n, &norm), c.error);
        if (norm - want > 1e-12 * norm || norm - want < -1e-12 * norm)
            test_fail(__FILE__, __LINE__, "the norm is %.17g, expected %.17g", norm, want);
        CHECK_OK(mesh_clip(&c, list, n, max, round & 1 ? &again : NULL), c.error);
        if (round & 1) CHECK(again == norm);
        for (i = 0; i < n; i++) {
            unsigned char *there = (unsigned char *)calloc(1, s[i].nbytes);
            size_t width = mesh_dtype_bytes(s[i].t.dtype);
            int64_t e;
            for (e = 0; e < s[i].count && norm > max; e++)
                mesh__run_scale(s[i].t.dtype, s[i].host + (size_t)norm_at(&s[i], e) * width, 1, max / norm);
            CHECK_OK(mesh_copy(&c, there, s[i].t.data, s[i].nbytes), c.error);
            for (k = 0; k < (int)s[i].nbytes && there[k] == s[i].host[k]; k++) {}
            if (k < (int)s[i].nbytes)
                test_fail(__FILE__, __LINE__, "round %d, tensor %d, %s: byte %d", round, i,
                          mesh_dtype_name(s[i].t.dtype), k);
            free(there);
            norm_free(&c, &s[i]);
        }
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
}
static void test_norms(void) {
    run_gpus(2, norms_rank, NULL);
    run_gpus(4, norms_rank, NULL);
}

/* After what is on the caller's stream; what is no number; in a capture: refused, and the comm goes on. */
static void norms_streams_rank(mesh_transport *t, void *ctx) {
    enum { N = 100003 };
    static const int64_t shape[1] = {N};
    mesh_comm c;
    mesh_tensor x;
    cudaStream_t stream;
    cudaGraph_t graph;
    double norm = 0, bad = 0;
    float *ones, one;
    mesh_object object = MESH_ZERO;
    (void)ctx;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_comm_stream(&c, stream), c.error);
    CHECK_OK(mesh_tensor_make(&x, &c.on, "x:R", MESH_F32, 1, shape, &c.error), c.error);
    ones = device_floats(&c, N, 1);
    x.data = device_floats(&c, N, 5);
    CHECK_INT(cudaMemcpyAsync(x.data, ones, N * sizeof one, cudaMemcpyDefault, stream), cudaSuccess);
    CHECK_OK(mesh_clip(&c, &x, 1, 1e-3, &norm), c.error);
    CHECK(norm > 316.2 && norm < 316.3);
    CHECK_INT(cudaMemcpyAsync(ones, x.data, N * sizeof one, cudaMemcpyDefault, stream), cudaSuccess);
    CHECK(device_holds(&c, ones, N, (float)(1e-3 / norm)));
    CHECK_OK(mesh_norm(&c, &x, 1, &norm), c.error);
    CHECK(norm > 0.999e-3 && norm < 1.001e-3);
    CHECK_INT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CHECK_INT(mesh_clip(&c, &x, 1, 1e-6, &bad), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_clip: the caller's stream is being captured");
    object.data = &norm, object.nbytes = sizeof norm;
    CHECK_INT(mesh_broadcast_object(&c, "x", &object, t->rank), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_broadcast_object: the caller's stream is being captured");
    CHECK_INT(mesh_checkpoint_save(&c, "/nowhere", NULL, 0, NULL), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "mesh_checkpoint_save: the caller's stream is being captured");
    CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
    one = mesh__float_of_bits(0x7fc00000u);
    CHECK_OK(mesh_copy(&c, (float *)x.data + N - 1, &one, sizeof one), c.error);
    CHECK_OK(mesh_clip(&c, &x, 1, 1e-6, &norm), c.error);
    CHECK(norm != norm);
    CHECK_OK(mesh_copy(&c, &one, x.data, sizeof one), c.error);
    CHECK(one > 3.16e-6f && one < 3.17e-6f); /* nothing is scaled */
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
}
static void test_norms_streams(void) { run_gpus(2, norms_streams_rank, NULL); }

/* What one rank has wrong fails everywhere; a rank that does not come is named. */
static void norms_wrong_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {8};
    int what = *(int *)ctx;
    mesh_comm c;
    mesh_tensor x;
    double norm;
    mesh_status status;
    if (!open_comm(t, &c, "x=-1", NULL, (what ? 3 : 40) * SECOND)) return;
    CHECK_OK(mesh_tensor_make(&x, &c.on, "x:S(0)", t->rank == 1 && what == 0 ? MESH_I32 : MESH_F32, 1, shape, &c.error), c.error);
    x.data = device_floats(&c, 8, 1);
    status = mesh_barrier(&c, NULL); /* all have made theirs; another may have come further, and failed */
    if (what == 1 && t->rank == 1) {
        mesh_comm_close(&c);
        return;
    }
    if (status == MESH_OK) status = mesh_norm(&c, &x, 1, &norm);
    if (what == 0) {
        CHECK_INT(status, MESH_ERR_ARGUMENT);
        CHECK_HAS(c.error.text, "mesh_norm: tensor 0: it is i32");
        CHECK_INT(c.error.rank, 1);
    } else {
        CHECK(status == MESH_ERR_PEER || status == MESH_ERR_TIMEOUT);
        CHECK_HAS(c.error.text, "mesh_norm");
        CHECK_INT(c.error.rank, 1);
    }
    mesh_comm_close(&c);
}
static void test_norms_wrong(void) {
    int what;
    for (what = 0; what < 2; what++) run_gpus(3, norms_wrong_rank, &what);
}

/* A copy that comes after the watchdog has ended the communicators, and before this rank has heard why: the other rank's reason is told, not that. */
static void copy_late_rank(mesh_transport *t, void *ctx) {
    double until = test_now() + 20;
    mesh_nccl__state *s = mesh_nccl__of(t);
    static const int64_t shape[1] = {8};
    float word[8] = {0};
    mesh_comm c;
    mesh_tensor x;
    double norm;
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_tensor_make(&x, &c.on, "x:S(0)", MESH_F32, 1, shape, &c.error), c.error);
    x.data = device_floats(&c, 8, 1);
    world_meet(t);
    if (t->rank == 1) {
        CHECK_INT(mesh_abort(&c, "its own reason"), MESH_OK);
    } else {
        mesh_nccl__group *g = mesh_nccl__group_of(s, mesh__impl(&c)->group[0]->handle);
        while (!mesh_nccl__has_ended(s, g->c) && test_now() < until) test_sleep(0.001);
        CHECK(!c.failed);
        status = t->rank ? mesh_norm(&c, &x, 1, &norm) : mesh_copy(&c, word, x.data, 4);
        CHECK_INT(status, MESH_ERR_CANCELED);
        CHECK_HAS(c.error.text, "rank 1 gave up: its own reason");
        CHECK_INT(c.error.rank, 1);
    }
    mesh_comm_close(&c);
}
static void test_copy_late(void) { run_gpus(3, copy_late_rank, NULL); }

/* ---- checkpoints ---- */

static void test_checkpoint(void) { states_there_and_back(run_gpus, 6, 79); }

/* A folder that is not there, and a rank that is killed while the others save. */
static void checkpoint_wrong_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {100000};
    mesh_comm c;
    mesh_named x;
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 40 * SECOND)) return;
    memset(&x, 0, sizeof x);
    x.name = "x";
    CHECK_OK(mesh_tensor_make(&x.tensor, &c.on, "x:S(0)", MESH_F32, 1, shape, &c.error), c.error);
    x.tensor.data = device_floats(&c, 100000, 1);
    CHECK_INT(mesh_checkpoint_save(&c, "/nowhere/at/all", &x, 1, NULL), MESH_ERR_STATE);
    CHECK_HAS(c.error.text, "/nowhere/at/all: No such file or directory");
    CHECK(!c.failed);
    CHECK_OK(mesh_checkpoint_save(&c, checkpoint_folder, &x, 1, NULL), c.error);
    world_meet(t);
    if (t->rank == 1) kill(getpid(), SIGKILL);
    status = mesh_checkpoint_save(&c, checkpoint_folder, &x, 1, NULL);
    CHECK_INT(status, MESH_ERR_PEER);
    CHECK_HAS(c.error.text, "rank 1 was lost");
    mesh_comm_close(&c);
}
static void test_checkpoint_wrong(void) {
    gpu_job job = job_of(checkpoint_wrong_rank, NULL);
    folder_new();
    run_world_but(UNIX, 3, gpu_rank, &job, 1);
    folder_end();
}

static const test_case nccl_state_tests[] = {
    {"nccl/checkpoint", test_checkpoint, 100},
    {"nccl/checkpoint_wrong", test_checkpoint_wrong, 60},{"nccl/norms", test_norms, 0},
                                             {"nccl/norms_streams", test_norms_streams, 60},
                                             {"nccl/norms_wrong", test_norms_wrong, 60},
                                             {"nccl/copy_late", test_copy_late, 60}};
#endif
