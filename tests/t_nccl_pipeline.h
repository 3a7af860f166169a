/* Pipelines over NCCL: no tags, buffers of the device, work that the callback only enqueues. */
#ifndef T_NCCL_PIPELINE_H
#define T_NCCL_PIPELINE_H
#include "../mesh_parallel.h"

enum { PIPE_N = 3000, PIPE_MICROS = 6, PIPE_STAGES = 16 };

enum { PIPE_WELL, PIPE_FAILS, PIPE_DIFFERS, PIPE_DIFFERS_LATER, PIPE_WRONGS };

/* Every stage doubles (sums over "dp" of two ranks, which both hold the same): activations forward, gradients back. Micro-batch m begins as m + 1
   and its gradient as 100 + m. */
typedef struct doubler {
    mesh_comm *c;
    float *first[PIPE_MICROS], *last[PIPE_MICROS]; /* what stage 0 reads, and what the last one makes */
    float *loss[PIPE_MICROS], *gradient[PIPE_MICROS];
    float *weight[PIPE_STAGES]; /* sum over micro-batches of input and gradient, added later */
    float *room;
    int fail_micro;
} doubler;

static int doubler_run(void *ctx, const mesh_stage_call *call, int ncalls) {
    doubler *d = (doubler *)ctx;
    mesh_comm *c = d->c;
    const float *in = call->stage ? (const float *)call->in : d->first[call->micro];
    const float *grad = call->stage + 1 < call->stages ? (const float *)call->grad_out : d->loss[call->micro];
    float *to = call->kind == MESH_FORWARD ? (float *)call->out : (float *)call->grad_in;
    mesh_status status = MESH_OK;
    (void)ncalls;
    if (call->kind == MESH_FORWARD && call->micro == d->fail_micro && call->stage == 1) return 7;
    if (call->kind == MESH_FORWARD) {
        if (!to) to = d->last[call->micro];
        return mesh_all_reduce(c, "dp", in, to, PIPE_N, MESH_F32, MESH_SUM) != MESH_OK;
    }
    if (call->kind != MESH_BACKWARD_WEIGHT) {
        if (!to) to = d->gradient[call->micro];
        status = mesh_all_reduce(c, "dp", grad, to, PIPE_N, MESH_F32, MESH_SUM);
    }
    if (call->kind == MESH_BACKWARD_INPUT || status != MESH_OK) return status != MESH_OK;
    /* both are read once more: weight = max(weight, 2 in) and 2 grad into the room, all on the device */
    status = mesh_all_reduce(c, "dp", in, d->room, PIPE_N, MESH_F32, MESH_SUM);
    if (status == MESH_OK)
        status = mesh_all_reduce(c, "dp", grad, d->weight[call->stage], PIPE_N, MESH_F32, MESH_SUM);
    return status != MESH_OK;
}

static void doubler_open(doubler *d, mesh_comm *c) {
    int i;
    memset(d, 0, sizeof *d);
    d->c = c;
    d->fail_micro = -1;
    for (i = 0; i < PIPE_MICROS; i++) {
        d->first[i] = device_floats(c, PIPE_N, (float)(i + 1));
        d->loss[i] = device_floats(c, PIPE_N, (float)(100 + i));
        d->last[i] = device_floats(c, PIPE_N, 0);
        d->gradient[i] = device_floats(c, PIPE_N, 0);
    }
    for (i = 0; i < PIPE_STAGES; i++) d->weight[i] = device_floats(c, PIPE_N, 0);
    d->room = device_floats(c, PIPE_N, 0);
}

static void doubler_close(doubler *d) {
    mesh_transport *t = d->c->transport;
    int i;
    for (i = 0; i < PIPE_MICROS; i++) {
        mesh_free(t, d->first[i], NULL), mesh_free(t, d->loss[i], NULL);
        mesh_free(t, d->last[i], NULL), mesh_free(t, d->gradient[i], NULL);
    }
    for (i = 0; i < PIPE_STAGES; i++) mesh_free(t, d->weight[i], NULL);
    mesh_free(t, d->room, NULL);
}

/* The last backward of a schedule's lists that a stage does: its gradient is what the weight holds. */
static int last_backward(const mesh_schedule *s, int stage) {
    int r = mesh__stage_rank(s, stage), i, micro = 0;
    for (i = s->first[r]; i < s->first[r + 1]; i++) {
        const mesh_action *a = &s->action[i];
        if (mesh__stage_of(s, r, a->chunk) == stage && (a->kind == MESH_BACKWARD || a->kind == MESH_BACKWARD_WEIGHT))
            micro = a->micro;
    }
    return micro;
}

static void doubler_check(doubler *d, const mesh_schedule *s, int rank, float twice) {
    int stages = s->ranks * s->chunks, i, k;
    float all = 1;
    for (i = 0; i < stages; i++) all *= twice;
    for (i = 0; i < PIPE_MICROS; i++) {
        if (mesh__stage_rank(s, stages - 1) == rank) CHECK(device_holds(d->c, d->last[i], PIPE_N, (float)(i + 1) * all));
        if (mesh__stage_rank(s, 0) == rank) CHECK(device_holds(d->c, d->gradient[i], PIPE_N, (float)(100 + i) * all));
    }
    for (k = 0; k < stages; k++) {
        float want = (float)(100 + last_backward(s, k));
        if (mesh__stage_rank(s, k) != rank) continue;
        for (i = k; i < stages; i++) want *= twice;
        CHECK(device_holds(d->c, d->weight[k], PIPE_N, want));
    }
}

typedef struct pipe_job {
    const char *mesh;
    int what;
} pipe_job;

static void pipe_rank(mesh_transport *t, void *ctx) {
    static const struct {
        const char *kind;
        int chunks;
    } of[] = {{"1f1b", 1}, {"gpipe", 1}, {"interleaved", 2}, {"zb-h1", 1}, {"zb-v", 2}, {"1f1b", 1}};
    const pipe_job *job = (const pipe_job *)ctx;
    mesh_comm c;
    doubler d;
    size_t k;
    if (!open_comm(t, &c, job->mesh, NULL, 20 * SECOND)) return;
    doubler_open(&d, &c);
    for (k = 0; k < sizeof of / sizeof of[0] && !test_failures; k++) {
        int p = mesh_comm_size(&c, "pp"), odd = mesh_comm_index(&c, "pp") == 1, wrong = job->what && k + 1 == 2;
        size_t nbytes = mesh_schedule_bytes(p, PIPE_MICROS, 2);
        void *memory = malloc(nbytes);
        mesh_stage stage = MESH_ZERO;
        mesh_schedule s;
        mesh_error err;
        mesh_status status;
        int differs = odd && (job->what == PIPE_DIFFERS || (job->what == PIPE_DIFFERS_LATER && wrong));
        if (PIPE_MICROS % p && !strcmp(of[k].kind, "interleaved")) {
            free(memory);
            continue;
        }
        CHECK_OK(mesh_schedule_make(&s, job->what == PIPE_DIFFERS_LATER ? differs ? "zb-h1" : "1f1b" : differs ? "gpipe" : of[k].kind,
                                    p, PIPE_MICROS, job->what == PIPE_DIFFERS_LATER || differs ? 1 : of[k].chunks, memory, nbytes, &err),
                 err);
        stage.run = doubler_run;
        stage.ctx = &d;
        stage.nbytes = PIPE_N * sizeof(float);
        stage.inbox = (int)k % 3;
        if (job->what == PIPE_DIFFERS_LATER) stage.inbox = 1;
        if (job->what == PIPE_FAILS && wrong) d.fail_micro = 3;
        status = mesh_pipeline_run(&c, "pp", &s, &stage);
        if (job->what == PIPE_WELL || (!wrong && job->what != PIPE_DIFFERS)) {
            CHECK_OK(status, c.error);
            if (status == MESH_OK)
                doubler_check(&d, &s, mesh_comm_index(&c, "pp"), mesh_comm_size(&c, "dp") == 2 ? 2.0f : 1.0f);
            free(memory);
            continue;
        }
        if (job->what == PIPE_FAILS) {
            CHECK_INT(status, odd ? MESH_ERR_STATE : MESH_ERR_PEER);
            CHECK_HAS(c.error.text, "forward of micro-batch 3");
        } else if (job->what == PIPE_DIFFERS) {
            CHECK_INT(status, MESH_ERR_MISMATCH);
            CHECK_HAS(c.error.text, "has another schedule, or another inbox, than rank 0");
        } else {
            CHECK_INT(status, MESH_ERR_MISMATCH);
        }
        free(memory);
        break;
    }
    doubler_close(&d);
    mesh_comm_close(&c);
}

/* What a stage calls and what travels are of two groups: the device takes them in their order. */
static void pipes(const char *on, int ranks, int what, const char *name, const char *value) {
    pipe_job job;
    job.mesh = on;
    job.what = what;
    run_gpus_in_order(ranks, pipe_rank, &job, name, value);
}

/* Two comms of one transport: closing the one that ran a pipeline does not wait for the other's operation, to which the other rank comes later. */
static void pipe_beside_rank(mesh_transport *t, void *ctx) {
    mesh_comm a, b;
    doubler d;
    mesh_request r;
    mesh_schedule s;
    mesh_stage stage = MESH_ZERO;
    mesh_error err;
    unsigned char memory[4096];
    float *x;
    (void)ctx;
    if (!open_comm(t, &a, "dp=1,pp=2", NULL, 20 * SECOND) || !open_comm(t, &b, "x=2", NULL, 20 * SECOND)) return;
    x = device_floats(&b, 100, 1);
    doubler_open(&d, &a);
    CHECK_OK(mesh_schedule_make(&s, "1f1b", 2, PIPE_MICROS, 1, memory, sizeof memory, &err), err);
    stage.run = doubler_run, stage.ctx = &d, stage.nbytes = PIPE_N * sizeof(float);
    CHECK_OK(mesh_pipeline_run(&a, "pp", &s, &stage), a.error);
    world_meet(t);
    if (t->rank == 0) CHECK_OK(mesh_all_reduce_start(&b, NULL, x, x, 100, MESH_F32, MESH_SUM, &r), b.error);
    if (t->rank == 0) CHECK_INT(mesh_comm_close(&a), MESH_OK);
    world_meet(t); /* rank 0 has closed */
    if (t->rank == 1) CHECK_OK(mesh_all_reduce_start(&b, NULL, x, x, 100, MESH_F32, MESH_SUM, &r), b.error);
    CHECK_OK(mesh_wait(r), b.error);
    CHECK(device_holds(&b, x, 100, 2));
    if (t->rank == 1) CHECK_INT(mesh_comm_close(&a), MESH_OK);
    d.c = &b;
    doubler_close(&d);
    mesh_free(t, x, NULL);
    CHECK_INT(mesh_comm_close(&b), MESH_OK);
}
static void test_pipeline_beside(void) { run_gpus_in_order(2, pipe_beside_rank, NULL, NULL, NULL); }

/* Pipelines side by side have one inbox: told before anything runs. */
static void pipe_inboxes_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    doubler d;
    mesh_schedule s;
    mesh_stage stage = MESH_ZERO;
    mesh_error err;
    unsigned char memory[4096];
    (void)ctx;
    if (!open_comm(t, &c, "dp=2,pp=2", NULL, 20 * SECOND)) return;
    doubler_open(&d, &c);
    CHECK_OK(mesh_schedule_make(&s, "1f1b", 2, PIPE_MICROS, 1, memory, sizeof memory, &err), err);
    stage.run = doubler_run, stage.ctx = &d, stage.nbytes = PIPE_N * sizeof(float);
    stage.inbox = mesh_comm_index(&c, "dp") ? 4 : 2;
    CHECK_INT(mesh_pipeline_run(&c, "pp", &s, &stage), MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "rank 2 has another schedule, or another inbox, than rank 0");
    doubler_close(&d);
    mesh_comm_close(&c);
}
static void test_pipeline_inboxes(void) { run_gpus_in_order(4, pipe_inboxes_rank, NULL, NULL, NULL); }

static void test_pipeline_2(void) { pipes("dp=1,pp=2", 2, PIPE_WELL, NULL, NULL); }
static void test_pipeline_4(void) { pipes("dp=2,pp=2", 4, PIPE_WELL, NULL, NULL); }
static void test_pipeline_3(void) { pipes("dp=1,pp=3", 3, PIPE_WELL, NULL, NULL); }
static void test_pipeline_wrong(void) {
    int what;
    for (what = PIPE_WELL + 1; what < PIPE_WRONGS; what++) pipes("dp=1,pp=2", 2, what, NULL, NULL);
}
static void test_pipeline_8(void) { pipes("dp=2,pp=4", 8, PIPE_WELL, NULL, NULL); }
static void test_pipeline_late(void) {
    pipes("dp=2,pp=3", 6, PIPE_WELL, "FAKE_CUDA_DELAY_US", "200");
    pipes("dp=2,pp=2", 4, PIPE_WELL, "FAKE_CUDA_DELAY_US", "300");
}

static const test_case nccl_pipeline_tests[] = {
    {"nccl/pipeline_2", test_pipeline_2, 60},
    {"nccl/pipeline_3", test_pipeline_3, 60},
    {"nccl/pipeline_4", test_pipeline_4, 60},
    {"nccl/pipeline_wrong", test_pipeline_wrong, 60},
    {"nccl/pipeline_beside", test_pipeline_beside, 60},
    {"nccl/pipeline_inboxes", test_pipeline_inboxes, 60},
};
static const test_case fake_nccl_pipeline_tests[] = {
    {"nccl/fake/pipeline_8", test_pipeline_8, 60},
    {"nccl/fake/pipeline_late", test_pipeline_late, 60},
};

#endif
