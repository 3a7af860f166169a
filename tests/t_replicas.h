/* mesh_parallel.h: replicas have the same bits. */
#ifndef T_REPLICAS_H
#define T_REPLICAS_H

enum { REPLICA_TENSORS = 6 };
typedef struct replica_list {
    mesh_named list[REPLICA_TENSORS];
    int64_t strides[REPLICA_TENSORS][2], count[REPLICA_TENSORS];
    mesh mesh_of[2];
    int n, which[REPLICA_TENSORS];
} replica_list;

static const char *const replica_names[REPLICA_TENSORS] = {
    "wte", "model.language_model.layers.12.self_attn.q_proj.weight", "model.language_model.layers.12.self_attn.k_proj.weight",
    "bias", "none", "model.language_model.layers.12.self_attn.v_proj.weight"};

/* Two stages with lists of their own, what both hold at the end; any layouts, dtypes, strides; the values are the place's. */
static void replica_list_make(replica_list *l, const mesh_comm *c, test_random *r) {
    static const int64_t shapes[REPLICA_TENSORS][2] = {{7, 5}, {8, 3}, {1, 9}, {4, 4}, {0, 4}, {6, 6}};
    static const mesh_dtype dtypes[] = {MESH_F32, MESH_BF16, MESH_F64, MESH_I8, MESH_C128};
    int i, k, rank = c->transport->rank;
    mesh_error err;
    memset(l, 0, sizeof *l);
    for (i = 0; i < 2; i++) CHECK_OK(mesh_fix(&l->mesh_of[i], &c->on, "pp", i, &err), err);
    for (i = 0; i < REPLICA_TENSORS; i++) {
        const mesh *on = i < 4 ? &l->mesh_of[i & 1] : &c->on;
        mesh_tensor *t = &l->list[l->n].tensor;
        int strided = random_below(r, 2);
        mesh_box box;
        int64_t e;
        size_t b, elem;
        t->dtype = dtypes[random_below(r, 5)];
        t->layout = tensor_layout(r, on, 2, shapes[i], MESH_SUM);
        for (k = 0; k < on->naxes; k++)
            if (t->layout.spec.axis[k].kind == MESH_PARTIAL) t->layout.spec.axis[k] = mesh_invariant();
        if (mesh_index_of(on, rank) < 0) {
            if (i != 2) continue; /* who is outside may list it, or not */
            l->list[l->n].name = replica_names[i];
            l->which[l->n++] = -1;
            continue;
        }
        elem = mesh_dtype_bytes(t->dtype);
        l->count[l->n] = mesh_tensor_box(t, rank, &box);
        l->strides[l->n][1] = strided ? 1 + rank % 3 : 1; /* strides differ between ranks: that is no difference */
        l->strides[l->n][0] = box.shape[1] * l->strides[l->n][1] + strided;
        if (strided) t->strides = l->strides[l->n];
        t->data = calloc((size_t)((box.shape[0] + 1) * (l->strides[l->n][0] + 1)) + 1, elem);
        memset(t->data, rank, (size_t)((box.shape[0] + 1) * (l->strides[l->n][0] + 1)) * elem); /* between rows too */
        for (e = 0; e < l->count[l->n]; e++)
            for (b = 0; b < elem; b++) {
                int64_t at = e / box.shape[1] * l->strides[l->n][0] + e % box.shape[1] * l->strides[l->n][1];
                ((unsigned char *)t->data)[(size_t)at * elem + b] =
                    (unsigned char)(plan_linear_in(2, shapes[i], &box, e) * 7 + i + (int64_t)b);
            }
        l->list[l->n].name = replica_names[i];
        l->which[l->n++] = i;
    }
}

static void replica_list_free(replica_list *l) {
    int i;
    for (i = 0; i < l->n; i++) free(l->list[i].tensor.data);
}

/* Alike: nothing is told. One bit of one rank's part: that tensor and rank are, on every rank, if anybody else holds that part. */
static void replicas_rank(mesh_transport *t, void *ctx) {
    int trial;
    for (trial = 0; trial < *(int *)ctx && !test_failures; trial++) {
        test_random r = random_from(9000 + (uint64_t)trial);
        replica_list l;
        mesh_comm c;
        mesh_status status;
        int wrong_rank, wrong, i, at = -1, holders = 0, found[3] = {-1, -1, -1}, said[3];
        if (!open_comm(t, &c, "pp=2,dp=2,tp=-1", NULL, 20 * SECOND)) return;
        replica_list_make(&l, &c, &r);
        CHECK_OK(mesh_check_replicas(&c, l.list, l.n), c.error);
        wrong_rank = random_below(&r, t->size), wrong = random_below(&r, REPLICA_TENSORS);
        for (i = 0; i < l.n; i++)
            if (l.which[i] == wrong) at = i;
        if (t->rank == wrong_rank && at >= 0 && l.count[at]) {
            mesh_tensor *p = &l.list[at].tensor;
            mesh_box box;
            int64_t e = random_below(&r, (int)l.count[at]);
            mesh_tensor_box(p, t->rank, &box);
            e = e / box.shape[1] * l.strides[at][0] + e % box.shape[1] * l.strides[at][1];
            ((unsigned char *)
                 p->data)[e * (int64_t)mesh_dtype_bytes(p->dtype) + trial % (int)mesh_dtype_bytes(p->dtype)] ^= 1;
            for (i = 0; i < p->layout.on->size;
                 i++) { /* who else holds it: the first of them is named if it is not this rank */
                int other = mesh_rank_at(p->layout.on, i);
                if (mesh__layout_first(&p->layout, other) == mesh__layout_first(&p->layout, t->rank)) holders++;
            }
            found[0] = holders > 1, found[1] = mesh__layout_first(&p->layout, t->rank), found[2] = wrong;
        }
        CHECK_OK(mesh_all_reduce(&c, NULL, found, said, 3, MESH_I32, MESH_MAX), c.error);
        if (said[0] == 1 && t->rank == (wrong_rank + 1) % t->size && l.which[l.n - 1] > said[2] && l.count[l.n - 1])
            *(unsigned char *)l.list[l.n - 1].tensor.data ^= 4; /* a later one differs too: the first is told */
        status = mesh_check_replicas(&c, l.list, l.n);
        CHECK_INT(status, said[0] == 1 ? MESH_ERR_MISMATCH : MESH_OK);
        if (said[0] == 1) {
            char want[120];
            snprintf(want, sizeof want, "mesh_check_replicas: \"%s\" has other bits", replica_names[said[2]]);
            CHECK_HAS(c.error.text, want);
            snprintf(want, sizeof want, "than on rank %d, the first that holds", said[1]);
            CHECK_HAS(c.error.text, want);
            if (said[1] != wrong_rank) CHECK_INT(c.error.rank, wrong_rank);
        }
        replica_list_free(&l);
        mesh_comm_close(&c);
    }
}
static void test_replicas(void) {
    int many = 40, few = 4;
    run_world(SIM, 4, replicas_rank, &many);
    run_world(SIM, 8, replicas_rank, &many);
    run_world(TCP, 4, replicas_rank, &few);
}

static void replicas_refused_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {8};
    static const char *const said[] = {"tensor 0: \"w\" is partial along \"x\"", "tensor 0: the data of \"w\" is NULL",
                                       "tensor 0: its name is NULL", "-1 tensors, and the list is NULL",
                                       "\"w\" stands in the list of rank 0, but not in that of rank 1, which its mesh holds",
                                       "tensor 1: \"w\" is tensor 0's name too",
                                       "tensor 0: the tensor: the local shape has 4 in dim 0",
                                       "tensor 0: the tensor: dtype 99 with elements of 0 bytes; see MESH_DTYPES",
                                       "tensor 0: the tensor: dtype 0 with elements of 6 bytes",
                                       "with elements of -1 bytes",
                                       "\"w\" stands in the lists of rank 0 and rank 1, in layouts that differ",
                                       "\"w\" stands in the lists of rank 0 and rank 2, in layouts that differ"};
    static const int64_t four[1] = {4};
    static const int two = 2;
    int what;
    (void)ctx;
    for (what = 0; what < 10 + t->size - 1; what++) {
        mesh_named named, twice[2];
        mesh_desc pair_of = MESH_ZERO;
        mesh pair;
        mesh_comm c;
        mesh_error err;
        float room[8] = {1, 2, 3};
        int bad = t->rank == 1;
        if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_tensor_make(&named.tensor, &c.on, bad && what == 10 ? "x:S(0)" : "x:R", MESH_F32, 1, shape, &err), err);
        named.tensor.data = room;
        named.name = "w";
        if (bad && what == 0) named.tensor.layout.spec.axis[0] = mesh_partial(MESH_SUM);
        if (bad && what == 1) named.tensor.data = NULL;
        if (bad && what == 2) named.name = NULL;
        if (bad && what == 6) named.tensor.local_shape = four;
        if (bad && what == 7) named.tensor.dtype = (mesh_dtype)99;
        if (bad && what == 8) named.tensor.elem_bytes = 6;
        if (bad && what == 9) named.tensor.dtype = MESH_BYTES, named.tensor.elem_bytes = -1;
        pair_of.shape = &two, pair_of.naxes = 1, pair_of.strides = t->rank == 2 ? &two : NULL; /* ranks 0 and 1, or 2 */
        CHECK_OK(mesh_make(&pair, &pair_of, &err), err);
        if (what == 11) named.tensor.layout.on = &pair;
        twice[0] = twice[1] = named;
        CHECK_INT(mesh_check_replicas(&c, twice,
                                      bad && what == 3   ? -1
                                      : bad && what == 4 ? 0
                                      : bad && what == 5 ? 2
                                                         : 1),
                  what == 4 || what > 9 ? MESH_ERR_MISMATCH : MESH_ERR_ARGUMENT);
        CHECK_HAS(c.error.text, said[what]);
        CHECK_INT(c.error.rank, what == 11 ? 2 : 1);
        mesh_comm_close(&c);
    }
}
static void test_replicas_refused(void) {
    mesh_comm none = MESH_ZERO;
    run_world(SIM, 3, replicas_refused_rank, NULL);
    run_world(TCP, 2, replicas_refused_rank, NULL);
    CHECK_INT(mesh_check_replicas(NULL, NULL, 0), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_check_replicas(&none, NULL, 0), MESH_ERR_STATE);
}

/* Rank 0 says that it does not hold the tensor, or that rank 1 does first, and has it elsewhere in its list: told as layouts that differ. */
static void replicas_elsewhere_rank(mesh_transport *t, void *ctx) {
    static const int64_t shape[1] = {8};
    static const int backwards[2] = {1, 0};
    const int two = 2;
    int what;
    (void)ctx;
    for (what = 0; what < 2; what++) {
        float room[8] = {1, 2, 3};
        int inverse[2], odd = t->rank == 0, n = 0;
        mesh_table table;
        mesh_desc desc = MESH_ZERO;
        mesh_named list[2];
        mesh pair, alone;
        mesh_comm c;
        mesh_error err;
        if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
        CHECK_OK(mesh_table_make(&table, backwards, 2, inverse, 2, &err), err);
        desc.shape = &two, desc.naxes = 1, desc.origin = what ? 0 : 2, desc.table = what ? &table : NULL;
        CHECK_OK(mesh_make(&pair, &desc, &err), err);
        CHECK_OK(mesh_fix(&alone, &c.on, "x", 0, &err), err);
        if (odd && what) {
            CHECK_OK(mesh_tensor_make(&list[n].tensor, &alone, "", MESH_F32, 1, shape, &err), err);
            list[n].tensor.data = room;
            list[n++].name = "bias";
        }
        CHECK_OK(mesh_tensor_make(&list[n].tensor, odd ? &pair : &c.on, odd ? "dim0:R" : "x:R", MESH_F32, 1, shape, &err), err);
        list[n].tensor.data = room;
        list[n++].name = "w";
        room[0] = (float)t->rank; /* bits that differ are not what is wrong */
        CHECK_INT(mesh_check_replicas(&c, list, n), MESH_ERR_MISMATCH);
        CHECK_HAS(c.error.text, "\"w\" stands in the lists of rank ");
        CHECK_HAS(c.error.text, ", in layouts that differ");
        mesh_comm_close(&c);
    }
}
static void test_replicas_elsewhere(void) { run_world(SIM, 4, replicas_elsewhere_rank, NULL); }

static const test_case replicas_tests[] = {
    {"replicas/bits", test_replicas, 60},
    {"replicas/refused", test_replicas_refused, 60},
    {"replicas/elsewhere", test_replicas_elsewhere, 60},
};

#endif
