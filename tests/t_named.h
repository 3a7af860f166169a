/* Whoever calls wrongly is told so by the name of what was called: functions that take a comm, a request or an error. */
#ifndef T_NAMED_H
#define T_NAMED_H
#include "worlds.h"

#define NAMED(name, args) \
    if (n++ == which) {   \
        (void)name args;  \
        return #name;     \
    }
#define STARTED(name, args, more) \
    NAMED(name, args)             \
    if (n++ == which) {           \
        (void)name##_start more;  \
        return #name;             \
    }

/* The `which`-th function, called on c with axes that may be none of it, no memory and no lists. Returns its name; NULL: there are no more. */
static const char *call_by_number(int which, mesh_comm *c, const char *axes, mesh_error *err) {
    mesh_request request, *r = &request;
    mesh_op op;
    mesh_buckets buckets;
    mesh_moe moe;
    mesh_moe_desc moe_desc;
    mesh_attention attention;
    mesh_loss loss;
    mesh_halo halo;
    mesh_checkpoint saved;
    mesh_plan plan;
    mesh_tensor tensor[2];
    void *handle;
    int64_t length;
    double norm;
    char text[8];
    int n = 0;
    memset(tensor, 0, sizeof tensor);
    memset(&moe_desc, 0, sizeof moe_desc);
    memset(&attention, 0, sizeof attention);
    memset(&loss, 0, sizeof loss);
    memset(&halo, 0, sizeof halo);
    memset(&saved, 0, sizeof saved);
    memset(&plan, 0, sizeof plan);
    STARTED(mesh_all_reduce, (c, axes, NULL, NULL, 4, MESH_F32, MESH_SUM), (c, axes, NULL, NULL, 4, MESH_F32, MESH_SUM, r))
    STARTED(mesh_reduce, (c, axes, NULL, NULL, 4, MESH_F32, MESH_SUM, 0), (c, axes, NULL, NULL, 4, MESH_F32, MESH_SUM, 0, r))
    STARTED(mesh_broadcast, (c, axes, NULL, NULL, 4, MESH_F32, 0), (c, axes, NULL, NULL, 4, MESH_F32, 0, r))
    STARTED(mesh_all_gather, (c, axes, NULL, NULL, 4, MESH_F32), (c, axes, NULL, NULL, 4, MESH_F32, r))
    STARTED(mesh_all_gather_v, (c, axes, NULL, NULL, NULL, NULL, MESH_F32), (c, axes, NULL, NULL, NULL, NULL, MESH_F32, r))
    STARTED(mesh_reduce_scatter, (c, axes, NULL, NULL, 4, MESH_F32, MESH_SUM), (c, axes, NULL, NULL, 4, MESH_F32, MESH_SUM, r))
    STARTED(mesh_reduce_scatter_v, (c, axes, NULL, NULL, NULL, NULL, MESH_F32, MESH_SUM), (c, axes, NULL, NULL, NULL, NULL, MESH_F32, MESH_SUM, r))
    STARTED(mesh_all_to_all, (c, axes, NULL, NULL, 4, MESH_F32), (c, axes, NULL, NULL, 4, MESH_F32, r))
    STARTED(mesh_all_to_all_v, (c, axes, NULL, NULL, NULL, NULL, NULL, NULL, MESH_F32), (c, axes, NULL, NULL, NULL, NULL, NULL, NULL, MESH_F32, r))
    STARTED(mesh_gather, (c, axes, NULL, NULL, 4, MESH_F32, 0), (c, axes, NULL, NULL, 4, MESH_F32, 0, r))
    STARTED(mesh_gather_v, (c, axes, NULL, 4, NULL, NULL, NULL, MESH_F32, 0), (c, axes, NULL, 4, NULL, NULL, NULL, MESH_F32, 0, r))
    STARTED(mesh_scatter, (c, axes, NULL, NULL, 4, MESH_F32, 0), (c, axes, NULL, NULL, 4, MESH_F32, 0, r))
    STARTED(mesh_scatter_v, (c, axes, NULL, NULL, NULL, NULL, 4, MESH_F32, 0), (c, axes, NULL, NULL, NULL, NULL, 4, MESH_F32, 0, r))
    STARTED(mesh_scan, (c, axes, NULL, NULL, 4, MESH_F32, MESH_SUM), (c, axes, NULL, NULL, 4, MESH_F32, MESH_SUM, r))
    STARTED(mesh_exscan, (c, axes, NULL, NULL, 4, MESH_F32, MESH_SUM), (c, axes, NULL, NULL, 4, MESH_F32, MESH_SUM, r))
    STARTED(mesh_broadcast_object, (c, axes, NULL, 0), (c, axes, NULL, 0, r))
    STARTED(mesh_barrier, (c, axes), (c, axes, r))
    STARTED(mesh_all_reduce_many, (c, axes, NULL, 1, MESH_F32, MESH_SUM), (c, axes, NULL, 1, MESH_F32, MESH_SUM, r))
    STARTED(mesh_broadcast_many, (c, axes, NULL, 1, MESH_F32, 0), (c, axes, NULL, 1, MESH_F32, 0, r))
    STARTED(mesh_all_gather_many, (c, axes, NULL, 1, MESH_F32), (c, axes, NULL, 1, MESH_F32, r))
    STARTED(mesh_reduce_scatter_many, (c, axes, NULL, 1, MESH_F32, MESH_SUM), (c, axes, NULL, 1, MESH_F32, MESH_SUM, r))
    STARTED(mesh_send, (c, axes, 0, NULL, 4, MESH_F32), (c, axes, 0, NULL, 4, MESH_F32, r))
    STARTED(mesh_recv, (c, axes, 0, NULL, 4, MESH_F32), (c, axes, 0, NULL, 4, MESH_F32, r))
    STARTED(mesh_sendrecv, (c, axes, 0, NULL, 4, 0, NULL, 4, MESH_F32), (c, axes, 0, NULL, 4, 0, NULL, 4, MESH_F32, r))
    STARTED(mesh_shift, (c, axes, 1, 1, NULL, NULL, 4, MESH_F32), (c, axes, 1, 1, NULL, NULL, 4, MESH_F32, r))
    STARTED(mesh_exchange, (c, axes, NULL, 1), (c, axes, NULL, 1, r))
    STARTED(mesh_halo_exchange, (c, &halo, NULL, MESH_F32), (c, &halo, NULL, MESH_F32, r))
    STARTED(mesh_send_v, (c, axes, 0, NULL, 4, MESH_F32), (c, axes, 0, NULL, 4, MESH_F32, r))
    STARTED(mesh_recv_v, (c, axes, 0, NULL, 4, NULL, MESH_F32), (c, axes, 0, NULL, 4, NULL, MESH_F32, r))
    STARTED(mesh_sendrecv_v, (c, axes, 0, NULL, 4, 0, NULL, 4, NULL, MESH_F32), (c, axes, 0, NULL, 4, 0, NULL, 4, NULL, MESH_F32, r))
    STARTED(mesh_shift_v, (c, axes, 1, 1, NULL, 4, NULL, 4, NULL, MESH_F32), (c, axes, 1, 1, NULL, 4, NULL, 4, NULL, MESH_F32, r))
    STARTED(mesh_recv_object, (c, axes, 0, NULL), (c, axes, 0, NULL, r))
    STARTED(mesh_redistribute, (c, &tensor[0], &tensor[1]), (c, &tensor[0], &tensor[1], r))
    STARTED(mesh_redistribute_many, (c, tensor, tensor, -1), (c, tensor, tensor, -1, r))
    STARTED(mesh_redistribute_many, (c, NULL, tensor, 2), (c, tensor, tensor, 1, r))
    NAMED(mesh_redistribute_planned_start, (c, &plan, tensor, tensor, -1, r))
    NAMED(mesh_redistribute_plan, (c, &plan, NULL, NULL, err))
    NAMED(mesh_redistribute_scratch_bytes, (c, tensor, tensor, -1, &length, err))
    NAMED(mesh_norm, (c, NULL, 1, &norm))
    NAMED(mesh_clip, (c, NULL, 1, 1.0, &norm))
    NAMED(mesh_check_replicas, (c, NULL, 1))
    NAMED(mesh_buckets_open, (&buckets, c, NULL, NULL, 1, NULL))
    NAMED(mesh_moe_open, (&moe, c, axes, &moe_desc))
    NAMED(mesh_cross_entropy, (c, &loss))
    NAMED(mesh_ring_attention, (c, axes, &attention))
    NAMED(mesh_ring_attention_backward, (c, axes, &attention))
    NAMED(mesh_pipeline_run, (c, axes, NULL, NULL))
    NAMED(mesh_checkpoint_save, (c, NULL, NULL, 1, NULL))
    NAMED(mesh_checkpoint_save_start, (c, NULL, NULL, 1, NULL, &saved))
    NAMED(mesh_checkpoint_load, (c, NULL, NULL, 1, NULL))
    NAMED(mesh_checkpoint_text, (c, NULL, NULL, text, sizeof text, &length))
    NAMED(mesh_group_open, (c, axes))
    NAMED(mesh_comm_split, (c, c, 0, 0, NULL, err))
    NAMED(mesh_register, (c, NULL, 0, &handle))
    NAMED(mesh_unregister, (c, text))
    NAMED(mesh_copy, (c, NULL, NULL, 4))
    NAMED(mesh_op_add, (c, NULL, &op))
    return NULL;
}

/* The same of those that are right on a comm that is open, and of requests that are none. */
static const char *closed_by_number(int which, mesh_comm *c, mesh_error *err) {
    mesh_request none;
    mesh_comm apart;
    int n = 0;
    memset(&none, 0, sizeof none);
    none.comm = c;
    none.generation = 7;
    NAMED(mesh_comm_split, (&apart, c, 0, 0, NULL, err))
    NAMED(mesh_comm_stream, (c, &none))
    NAMED(mesh_comm_sync, (c))
    NAMED(mesh_prepare, (c))
    NAMED(mesh_abort, (c, NULL))
    NAMED(mesh_wait, (none))
    NAMED(mesh_wait_host, (none))
    NAMED(mesh_test, (none))
    NAMED(mesh_wait_any, (&none, 1, NULL))
    NAMED(mesh_wait_until, (none, 0))
    NAMED(mesh_keep, (none))
    NAMED(mesh_rebind, (none, NULL, NULL))
    NAMED(mesh_restart, (none))
    NAMED(mesh_release, (none))
    return NULL;
}

/* The same of those that take no comm: on a mesh of 4 x 2 as nothing can be made of it. */
static const char *made_by_number(int which, mesh *m, mesh_error *err) {
    static const int64_t right[2] = {4, 4};
    int64_t shape[2] = {4, -4};
    int ranks[2] = {1, 1}, inverse[2], two = 2, dims[2] = {3, 3}, n = 0;
    mesh_table table;
    mesh made;
    mesh_spec spec;
    mesh_layout layout;
    mesh_tensor tensor;
    mesh_plan plan;
    mesh_plan_desc plan_desc;
    mesh_topology topology;
    mesh_tuning tuning;
    mesh_degrees degrees;
    mesh_views views;
    mesh_schedule schedule;
    mesh_place place[2];
    size_t counts[8];
    void *p;
    memset(&spec, 0, sizeof spec);
    memset(place, 0, sizeof place);
    memset(&layout, 0, sizeof layout);
    mesh_tensor_make(&tensor, m, "a:S(0)", MESH_I32, two, right, err);
    memset(&plan_desc, 0, sizeof plan_desc);
    memset(&topology, 0, sizeof topology);
    memset(&degrees, 0, sizeof degrees);
    layout.on = m;
    topology.nlevels = 99;
    degrees.world = -3;
    place[0].kind = place[1].kind = 77;
    NAMED(mesh_table_make, (&table, ranks, two, inverse, two, err))
    NAMED(mesh_make, (&made, NULL, err))
    NAMED(mesh_parse, (&made, "a=2,a=2", 4, err))
    NAMED(mesh_group_through, (&made, m, "nowhere", 0, err))
    NAMED(mesh_group_at, (&made, m, "a", 77, err))
    NAMED(mesh_fix, (&made, m, "nowhere", 0, err))
    NAMED(mesh_transpose, (&made, m, "a", err))
    NAMED(mesh_flatten, (&made, m, "a,nowhere", "c", err))
    NAMED(mesh_split, (&made, m, "nowhere", "x=2,y=2", err))
    NAMED(mesh_reshape, (&made, m, "x=3", err))
    NAMED(mesh_rename, (&made, m, "a", "b", err))
    NAMED(mesh_concat, (&made, m, m, 0, err))
    NAMED(mesh_from_degrees, (&made, &degrees, "nowhere", err))
    NAMED(mesh_views_make, (&views, &degrees, err))
    NAMED(mesh_dims_create, (7, two, dims, err))
    NAMED(mesh_spec_make, (&spec, m, place, two, err))
    NAMED(mesh_spec_parse, (&spec, m, "nowhere:R", two, err))
    NAMED(mesh_spec_parse_dims, (&spec, m, "nowhere", two, err))
    NAMED(mesh_layout_parse, (&layout, m, "nowhere:R", two, shape, err))
    NAMED(mesh_layout_make, (&layout, m, &spec, two, shape, err))
    NAMED(mesh_layout_set, (&layout, "nowhere", place[0], err))
    NAMED(mesh_layout_check, (&layout, err))
    NAMED(mesh_layout_counts, (&layout, "nowhere", 0, counts, counts, err))
    NAMED(mesh_tensor_make, (&tensor, m, "nowhere:R", MESH_F32, two, shape, err))
    NAMED(mesh_tensor_permute, (&tensor, &tensor, dims, 0, shape, err))
    NAMED(mesh_plan_make, (&plan, &plan_desc, err))
    NAMED(mesh_plan_candidates, (&plan, 1, &plan_desc, err))
    NAMED(mesh_random_normal, (&tensor, 0, 1, 1, 0, 1, err))
    NAMED(mesh_random_uniform, (&tensor, 0, 1, 1, 0, 1, err))
    NAMED(mesh_schedule_make, (&schedule, "nowhere", 4, 4, 1, NULL, 0, err))
    NAMED(mesh_topology_check, (&topology, err))
    NAMED(mesh_topology_parse, (&topology, "nowhere", err))
    NAMED(mesh_tuning_parse, (&tuning, "nowhere", err))
    NAMED(mesh_alloc, (NULL, 8, &p, err))
    NAMED(mesh_comm_open, (NULL, NULL, m, NULL, err))
    return NULL;
}

/* The same of a mesh that is none. */
static const char *on_none_by_number(int which, const mesh *m, const mesh *right, mesh_error *err) {
    int64_t shape[2] = {4, 4};
    size_t counts[8];
    mesh made;
    mesh_spec spec;
    mesh_layout layout;
    mesh_tensor tensor;
    int n = 0;
    memset(&layout, 0, sizeof layout);
    memset(&tensor, 0, sizeof tensor);
    tensor.layout.on = layout.on = m;
    tensor.dtype = MESH_F32;
    NAMED(mesh_group_through, (&made, m, NULL, 0, err))
    NAMED(mesh_group_at, (&made, m, NULL, 0, err))
    NAMED(mesh_fix, (&made, m, "a", 0, err))
    NAMED(mesh_transpose, (&made, m, "", err))
    NAMED(mesh_flatten, (&made, m, NULL, "c", err))
    NAMED(mesh_split, (&made, m, "a", "x=2,y=2", err))
    NAMED(mesh_reshape, (&made, m, "x=8", err))
    NAMED(mesh_rename, (&made, m, "a", "c", err))
    NAMED(mesh_concat, (&made, m, right, 0, err))
    NAMED(mesh_concat, (&made, right, m, 0, err))
    NAMED(mesh_compose, (&made, m, right, err))
    NAMED(mesh_compose, (&made, right, m, err))
    NAMED(mesh_spec_make, (&spec, m, NULL, 2, err))
    NAMED(mesh_spec_parse, (&spec, m, "", 2, err))
    NAMED(mesh_spec_parse_dims, (&spec, m, "[,]", 2, err))
    NAMED(mesh_layout_parse, (&layout, m, "", 2, shape, err))
    NAMED(mesh_layout_make, (&layout, m, NULL, 2, shape, err))
    NAMED(mesh_layout_check, (&layout, err))
    NAMED(mesh_layout_counts, (&layout, NULL, 0, counts, NULL, err))
    NAMED(mesh_random_normal, (&tensor, 0, 1, 1, 0, 1, err))
    return NULL;
}

static int says_name(const char *text, const char *name) {
    const char *at = strstr(text, name);
    char after = at ? at[strlen(name)] : '_';
    return after != '_' && !(after >= 'a' && after <= 'z');
}
static void check_named(const mesh_error *err, const mesh_error *of, const char *name, const char *where) {
    const char *text = err->status ? err->text : of->text;
    if (!says_name(text, name)) test_fail(__FILE__, __LINE__, "%s, %s: \"%s\" does not name it", name, where, text);
}

static void named_rank(mesh_transport *t, void *ctx) {
    const char *name;
    mesh_error err;
    mesh_comm c;
    mesh m;
    int k;
    (void)ctx;
    for (k = 0, name = ""; name; k++) {
        memset(&err, 0, sizeof err);
        if (!open_comm(t, &c, "dp=1", NULL, 20 * SECOND)) return;
        if ((name = call_by_number(k, &c, "nowhere", &err)) != NULL) check_named(&err, &c.error, name, "open");
        mesh_comm_close(&c);
        memset(&err, 0, sizeof err);
        memset(&c, 0, sizeof c);
        if (name && call_by_number(k, &c, "nowhere", &err)) check_named(&err, &c.error, name, "closed");
    }
    for (k = 0;; k++) {
        memset(&err, 0, sizeof err);
        memset(&c, 0, sizeof c);
        if ((name = closed_by_number(k, &c, &err)) == NULL) break;
        check_named(&err, &c.error, name, "closed");
    }
    if (!open_comm(t, &c, "dp=1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_redistribute_many(&c, NULL, NULL, 0), c.error); /* its name goes with it */
    CHECK_INT(mesh_barrier(&c, "nowhere"), MESH_ERR_ARGUMENT);
    check_named(&c.error, &c.error, "mesh_barrier", "after another");
    mesh_comm_close(&c);
    CHECK_OK(mesh_parse(&m, "a=4,b=2", 8, &err), err);
    for (k = 0;; k++) {
        memset(&err, 0, sizeof err);
        if ((name = made_by_number(k, &m, &err)) == NULL) break;
        check_named(&err, &err, name, "made wrongly");
    }
}
/* Each test is a process of its own: a crash is its failure. */
static void test_named_none(void) {
    mesh zero, right;
    mesh_error err;
    const char *name;
    int k, which;
    memset(&zero, 0, sizeof zero);
    CHECK_OK(mesh_parse(&right, "a=4,b=2", 8, &err), err);
    for (which = 0; which < 2; which++)
        for (k = 0;; k++) {
            memset(&err, 0, sizeof err);
            if ((name = on_none_by_number(k, which ? &zero : NULL, &right, &err)) == NULL) break;
            CHECK_INT(err.status, MESH_ERR_ARGUMENT);
            check_named(&err, &err, name, which ? "all zero" : "NULL");
            CHECK_HAS(err.text, which ? "the mesh is all zero" : "NULL");
        }
}
static void test_named_calls(void) { run_world(SIM, 1, named_rank, NULL); }

#undef NAMED
#undef STARTED

static const test_case named_tests[] = {
    {"named/calls", test_named_calls, 0},
    {"named/none", test_named_none, 0},
};

#endif
