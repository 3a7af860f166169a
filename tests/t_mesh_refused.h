/* mesh.h: compositions that are no layout, and every error, each with its own message, and the result untouched. */
#ifndef T_MESH_REFUSED_H
#define T_MESH_REFUSED_H

/* ---- compositions: accepted exactly where there is a layout ---- */

/* Can these positions be said by modes, as one axis? The modes follow, innermost first. Returns how many, or -1. */
static int modes_of(const int *at, int n, mesh_mode *mode) {
    int step = n > 1 ? at[1] - at[0] : 1, run, take, i, rest, outer[512];
    if (n == 1) return 0;
    for (run = 2; run < n && at[run] - at[run - 1] == step; run++) {}
    for (take = run; take > 1 && step > 0; take--) {
        int same = n % take == 0;
        for (i = 0; i < n && same; i++) same = at[i] - at[i / take * take] == i % take * step;
        if (!same) continue;
        for (i = 0; i < n / take; i++) outer[i] = at[i * take];
        if ((rest = modes_of(outer, n / take, mode + 1)) < 0) continue;
        mode->shape = take, mode->stride = step;
        return rest + 1;
    }
    return -1;
}

static mesh strided_mesh(test_random *r) {
    mesh_desc d = MESH_ZERO;
    int shape[3], stride[3], i, k, order[3] = {0, 1, 2}, span = 1;
    mesh m, flat;
    d.naxes = 1 + random_below(r, 3), d.shape = shape, d.strides = stride, d.origin = random_below(r, 4);
    for (i = 0; i < d.naxes; i++) {
        shape[i] = 1 + random_below(r, random_below(r, 3) ? 4 : 8);
        k = random_below(r, i + 1), order[i] = order[k], order[k] = i;
    }
    for (i = 0; i < d.naxes; i++) {
        stride[order[i]] = span + (random_below(r, 2) ? random_below(r, 3) : 0);
        span += (shape[order[i]] - 1) * stride[order[i]];
    }
    CHECK_INT(mesh_make(&m, &d, NULL), 0);
    if (m.naxes == 3 && random_below(r, 2) && !mesh_flatten(&flat, &m, "dim2,dim0", "flat", NULL)) m = flat;
    return m;
}

static void test_compose_exists(void) {
    test_random r = random_from(77);
    int trial, made = 0, none = 0;
    mesh m, part;
    static const int two = 2, at_1[] = {1, 3, 6, 8};
    mesh_desc d = MESH_ZERO;
    CHECK_INT(mesh_parse(&m, "a=4,b=5", 0, NULL), 0);
    for (trial = 0; trial < 60000 && !test_failures; trial++) {
        mesh outer = strided_mesh(&r), inner = strided_mesh(&r), got;
        mesh_mode mode[40], swap;
        mesh_error err;
        int position[512], along[512], coord[MESH_MAX_AXES], i, k, n, modes = 0, exists = 1, span = 1;
        if (inner.size > 512 || mesh_rank_at(&inner, inner.size - 1) >= outer.size) continue;
        for (i = 0; i < inner.size; i++) position[i] = mesh_rank_at(&outer, mesh_rank_at(&inner, i));
        for (k = 0; k < inner.naxes && exists; k++) { /* each axis by itself */
            memset(coord, 0, sizeof coord);
            for (i = 0; i < inner.axis[k].size; i++) {
                coord[k] = i;
                along[i] = mesh_rank_at(&outer, mesh_rank_at_coords(&inner, coord)) - position[0];
            }
            n = modes_of(along, inner.axis[k].size, mode + modes);
            exists = n >= 0;
            modes += n;
        }
        for (i = 0; i < inner.size && exists; i++) { /* and all together */
            int at = position[0];
            mesh_coords_of(&inner, NULL, mesh_rank_at(&inner, i), coord);
            for (k = 0; k < inner.naxes; k++) {
                int only[MESH_MAX_AXES] = {0};
                only[k] = coord[k];
                at += mesh_rank_at(&outer, mesh_rank_at_coords(&inner, only)) - position[0];
            }
            exists = at == position[i];
        }
        for (i = 0; i < modes && exists; i++) {
            for (k = i + 1; k < modes; k++)
                if (mode[k].stride < mode[i].stride) swap = mode[k], mode[k] = mode[i], mode[i] = swap;
            exists = mode[i].stride >= span;
            span += (mode[i].shape - 1) * mode[i].stride;
        }
        CHECK_INT(mesh_compose(&got, &outer, &inner, &err), exists ? MESH_OK : MESH_ERR_ARGUMENT);
        for (i = 0; i < inner.size && exists; i++) {
            CHECK_INT(mesh_rank_at(&got, i), position[i]);
            CHECK_INT(mesh_index_of(&got, position[i]), i);
        }
        *(exists ? &made : &none) += 1;
    }
    CHECK(made > 10000 && none > 5000);
    /* every second of four by four, five apart, from the second on */
    {
        static const int shape[2] = {4, 4}, stride[2] = {5, 1}, four = 4;
        d.shape = shape, d.strides = stride, d.naxes = 2;
        CHECK_INT(mesh_make(&m, &d, NULL), 0);
        d.shape = &four, d.strides = &two, d.naxes = 1, d.origin = 1;
        CHECK_INT(mesh_make(&part, &d, NULL), 0);
        CHECK_INT(mesh_compose(&m, &m, &part, NULL), 0);
        for (trial = 0; trial < 4; trial++) CHECK_INT(mesh_rank_at(&m, trial), at_1[trial]);
        CHECK_INT(m.nmodes, 2);
    }
}

/* ---- errors: each with its own message, and the result untouched ---- */

static void refused(const char *text, int world, const char *fragment) {
    mesh m, before;
    mesh_error err;
    memset(&m, 0x5a, sizeof m);
    before = m;
    CHECK_INT(mesh_parse(&m, text, world, &err), MESH_ERR_ARGUMENT);
    CHECK(!memcmp(&m, &before, sizeof m));
    CHECK_INT(err.status, MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "mesh_parse");
    CHECK_HAS(err.text, fragment);
    CHECK_INT(mesh_parse(&m, text, world, NULL), MESH_ERR_ARGUMENT);
}

static void test_errors(void) {
    mesh m, r;
    mesh_error err;
    int i;
    char many[256] = "", blanks[700];
    mesh_desc d = MESH_ZERO;
    static const int three[] = {2, 2, 2};
    static const int huge_strides[] = {2000000000, 1000000000, 1};
    refused(NULL, 0, "NULL");
    refused("", 2, "no axes are given");
    refused("dp", 0, "name=size");
    refused("dp=", 0, "expected a size at byte 3");
    refused("dp=2,", 0, "name=size at byte 5");
    refused("dp=2 tp=2", 0, "unexpected 't'");
    refused("=2", 0, "byte 0");
    refused("2dp=2", 0, "byte 0");
    refused("dp=0", 0, "zero");
    refused("dp=-2", 0, "negative");
    refused("dp=99999999999999999999", 0, "overflow");
    refused("dp=2,dp=2", 0, "two axes are called \"dp\"");
    refused("dp=-1,tp=-1", 8, "both -1");
    refused("dp=-1", 0, "not given");
    refused("dp=-1,tp=3", 8, "does not divide");
    refused("dp=2,tp=2", 8, "multiply to 4, but the world has 8");
    refused("dp=2,tp=2", 1, "multiply to 4, but the world has 1 rank; start 4 with a launcher (mesh run -n 4, mpirun -n 4)");
    refused("sixteen_byte_nam=2", 0, "too long");
    for (i = 0; i < 17; i++) sprintf(many + strlen(many), "%sa%d=1", i ? "," : "", i);
    refused(many, 0, "more than 16 axes");
    memset(blanks, ' ', sizeof blanks - 2);
    blanks[sizeof blanks - 2] = '!', blanks[sizeof blanks - 1] = 0;
    refused(blanks, 0, "expected name=size at byte 698 of \"  ");
    memcpy(blanks, "dp=2", 4);
    refused(blanks, 0, "unexpected '!' at byte 698 of \"dp=2  ");
    refused(blanks, 0, "  ...  ");
    refused(blanks, 0, " !\"");
    CHECK_INT(mesh_parse(&m, "dp=2", -1, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_parse(NULL, "dp=2", 2, &err), MESH_ERR_ARGUMENT);
    CHECK_OK(mesh_parse(&m, "fifteen_bytes_n=2,tp=4", 8, &err), err);

    CHECK_OK(mesh_parse(&m, "dp=2,tp=4", 8, &err), err);
    CHECK_INT(mesh_group_through(&r, &m, "pp", 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "no axis \"pp\" in the mesh \"dp=2,tp=4\"");
    CHECK_INT(mesh_group_through(&r, &m, "tp,tp", 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "occurs twice");
    CHECK_INT(mesh_group_through(&r, &m, "tp,", 0, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_group_through(&r, &m, "tp", 8, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "rank 8 is not in the mesh");
    CHECK_INT(mesh_group_through(&r, &m, "tp", -1, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_group_at(&r, &m, "tp", 2, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "there are 2");
    CHECK_INT(mesh_fix(&r, &m, "tp", 4, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_fix(&r, &m, "xx", 0, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_split(&r, &m, "tp", "x=3,y=-1", &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_split(&r, &m, "tp", "dp=2,y=2", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "already");
    CHECK_OK(mesh_split(&r, &m, "tp", "tp=2,y=2", &err), err); /* its own name is free again */
    CHECK_INT(mesh_reshape(&r, &m, "x=3", &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_rename(&r, &m, "tp", "dp", &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_rename(&r, &m, "tp", "t p", &err), MESH_ERR_ARGUMENT);
    CHECK_OK(mesh_rename(&r, &m, "tp", "model", &err), err);
    CHECK_INT(mesh_axis_find(&r, "model"), 1);
    CHECK_INT(mesh_flatten(&r, &m, "dp,tp", "bad name", &err), MESH_ERR_ARGUMENT);
    CHECK_OK(mesh_flatten(&r, &m, "dp,tp", "dp", &err), err);
    { /* a reshape across an out-of-order flatten has no layout, and says what to do */
        mesh x;
        CHECK_OK(mesh_parse(&x, "a=2,b=3", 6, &err), err);
        CHECK_OK(mesh_flatten(&x, &x, "b,a", "x", &err), err);
        CHECK_INT(mesh_split(&r, &x, "x", "p=2,q=3", &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "device table");
        CHECK_INT(mesh_reshape(&r, &x, "p=2,q=3", &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "device table");
    }
    { /* overlapping or foreign meshes do not concatenate */
        mesh a, b;
        CHECK_OK(mesh_parse(&a, "x=4", 4, &err), err);
        CHECK_OK(mesh_parse(&b, "y=4", 4, &err), err);
        CHECK_INT(mesh_concat(&r, &a, &b, 1, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "overlap");
        { /* positions beyond what an int holds, or below 0, are refused as such */
            static const int two = 2;
            int far_stride = 1 << 30;
            mesh_desc e = MESH_ZERO;
            mesh far, other;
            e.shape = &two, e.naxes = 1, e.strides = &far_stride;
            CHECK_OK(mesh_make(&far, &e, &err), err);
            CHECK_OK(mesh_rename(&far, &far, "dim0", "p", &err), err);
            far_stride += 5;
            CHECK_OK(mesh_make(&other, &e, &err), err);
            CHECK_INT(mesh_concat(&r, &far, &other, 0, &err), MESH_ERR_ARGUMENT);
            CHECK_HAS(err.text, "beyond what there is");
        }
        { /* more ranks than an int counts, of meshes that overlap: never multiplied out */
            mesh rows, columns;
            CHECK_OK(mesh_parse(&rows, "p=65536", 65536, &err), err);
            CHECK_OK(mesh_parse(&columns, "q=65536", 65536, &err), err);
            CHECK_INT(mesh_concat(&r, &rows, &columns, 0, &err), MESH_ERR_ARGUMENT);
            CHECK_HAS(err.text, "over 2147483647 ranks");
        }
        { /* a slice of a mesh by a stride that does not divide it */
            static const int count = 3, stride = 2;
            mesh_desc e = MESH_ZERO;
            mesh five, inner;
            CHECK_OK(mesh_parse(&five, "x=5", 5, &err), err);
            e.shape = &count, e.naxes = 1, e.strides = &stride;
            CHECK_OK(mesh_make(&inner, &e, &err), err);
            CHECK_OK(mesh_compose(&r, &five, &inner, &err), err);
            for (i = 0; i < 3; i++) CHECK_INT(mesh_rank_at(&r, i), 2 * i);
        }
        CHECK_INT(mesh_concat(&r, &a, &a, 1, &err), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_concat(&r, &a, &b, 7, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "rank 7 is not in both");
        CHECK_INT(mesh_compose(&r, &a, &m, &err), MESH_ERR_ARGUMENT);
    }
    d.shape = three;
    d.naxes = 3;
    d.strides = huge_strides;
    CHECK_INT(mesh_make(&r, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "overflow");
    d.strides = NULL;
    d.origin = -1;
    CHECK_INT(mesh_make(&r, &d, &err), MESH_ERR_ARGUMENT);
    d.origin = 0;
    d.naxes = 17;
    CHECK_INT(mesh_make(&r, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_make(&r, NULL, &err), MESH_ERR_ARGUMENT);
}

/* A mistake that no other test makes: each is told from the others. */
static void test_told_apart(void) {
    const char *names[2] = {"x", NULL};
    mesh_degrees degrees = MESH_ZERO;
    mesh_desc desc = MESH_ZERO;
    mesh_spec spec;
    mesh_error err;
    mesh m;
    int shape[2] = {2, 3};
    desc.names = names, desc.shape = shape, desc.naxes = 2;
    CHECK_INT(mesh_make(&m, &desc, &err), MESH_ERR_ARGUMENT);
    CHECK(strstr(err.text, "the name of axis 1 is NULL"));
    CHECK_INT(mesh_from_degrees(NULL, &degrees, "auto", &err), MESH_ERR_ARGUMENT);
    CHECK(strstr(err.text, "the mesh is NULL"));
    CHECK_INT(mesh_from_degrees(&m, NULL, "auto", &err), MESH_ERR_ARGUMENT);
    CHECK(strstr(err.text, "the degrees is NULL"));
    CHECK_INT(mesh_from_degrees(&m, &degrees, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK(strstr(err.text, "the order is NULL"));
    degrees.world = 8, degrees.tp = degrees.cp = 1 << 16; /* the product is 0 in 32 bits */
    CHECK_INT(mesh_from_degrees(&m, &degrees, "auto", &err), MESH_ERR_ARGUMENT);
    CHECK(strstr(err.text, "the degrees overflow at "));
    CHECK_INT(mesh_parse(&m, "x=2,y=3", 6, &err), MESH_OK);
    CHECK_INT(mesh_spec_parse_dims(&spec, &m, "[]", MESH_MAX_DIMS + 1, &err), MESH_ERR_ARGUMENT);
    CHECK(strstr(err.text, "are possible"));
}

static const test_case mesh_refused_tests[] = {
    {"mesh/law/compose_exists", test_compose_exists, 0},
    {"mesh/errors", test_errors, 0},
    {"mesh/told_apart", test_told_apart, 0},
};

#endif
