/* Laws of mesh.h and mesh/spec.h over pools: what is equal, what is refused, what texts and pictures hold. Each model here is written from
   the headers' descriptions alone. */
#ifndef T_MESH_LAWS_H
#define T_MESH_LAWS_H

/* ---- equality and fingerprints ---- */

enum { POOL = 900, POOL_TABLE = 40 };

typedef struct mesh_pool {
    mesh m[POOL];
    int n, tables[5][POOL_TABLE], inverses[5][POOL_TABLE + 8];
    mesh_table table[5];
} mesh_pool;

static void pool_add(mesh_pool *p, const mesh *m) {
    if (p->n < POOL)
        p->m[p->n++] = *m;
    else
        test_fail(__FILE__, __LINE__, "the pool is full");
}

/* A mesh, and what transforms make of it; some of that is equal to what others are made into. */
static void pool_add_all(mesh_pool *p, const mesh *m) {
    static const char *const orders[] = {"b,a", "a,b,c", "c,b,a"};
    mesh r, back;
    size_t i;
    pool_add(p, m);
    for (i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        if (mesh_transpose(&r, m, orders[i], NULL)) continue;
        pool_add(p, &r);
        if (!mesh_axis_find(m, "a") && !mesh_transpose(&back, &r, m->naxes == 2 ? "a,b" : "a,b,c", NULL)) {
            CHECK(mesh_equal(&back, m));
            CHECK(mesh_fingerprint(&back) == mesh_fingerprint(m));
        }
    }
    if (!mesh_flatten(&r, m, "a,b", "a", NULL)) pool_add(p, &r);
    if (!mesh_flatten(&r, m, "b,a", "a", NULL)) pool_add(p, &r);
    if (!mesh_rename(&r, m, "a", "alpha", NULL)) pool_add(p, &r);
    if (!mesh_rename(&r, m, "b", "bc", NULL)) pool_add(p, &r);
    if (!mesh_fix(&r, m, "b", 1, NULL)) pool_add(p, &r);
    mesh_squeeze(&r, m);
    pool_add(p, &r);
}

static void pool_fill(mesh_pool *p) {
    static const struct {
        int naxes, shape[3], stride[3];
        const char *names[3];
    } rows[] = {{0, {0}, {0}, {0}},
                {1, {1}, {1}, {"a"}},
                {1, {4}, {1}, {"a"}},
                {1, {4}, {2}, {"a"}},
                {1, {6}, {1}, {"a"}},
                {2, {1, 4}, {4, 1}, {"a", "b"}},
                {2, {4, 1}, {1, 1}, {"a", "b"}},
                {2, {2, 2}, {2, 1}, {"a", "b"}},
                {2, {2, 2}, {4, 1}, {"a", "b"}},
                {2, {2, 2}, {4, 2}, {"a", "b"}},
                {2, {2, 2}, {2, 1}, {"a", "bc"}},
                {2, {2, 2}, {2, 1}, {"ab", "c"}},
                {2, {2, 3}, {3, 1}, {"a", "b"}},
                {2, {3, 2}, {2, 1}, {"a", "b"}},
                {2, {3, 2}, {2, 1}, {"b", "a"}},
                {2, {2, 3}, {1, 2}, {"a", "b"}},
                {2, {2, 4}, {9, 1}, {"a", "b"}},
                {2, {4, 2}, {9, 1}, {"a", "b"}},
                {2, {4, 2}, {2, 1}, {"a", "b"}},
                {2, {2, 4}, {1, 2}, {"a", "b"}},
                {3, {2, 2, 2}, {4, 2, 1}, {"a", "b", "c"}},
                {3, {2, 2, 2}, {1, 2, 4}, {"a", "b", "c"}},
                {3, {2, 2, 2}, {8, 3, 1}, {"a", "b", "c"}},
                {3, {2, 1, 2}, {2, 2, 1}, {"a", "b", "c"}}};
    size_t k;
    int origin, t, i;
    p->n = 0;
    for (t = 0; t < 5; t++) /* as ranks are; the same, shorter; two swapped within; beyond what is used; again as ranks are */
        for (i = 0; i < POOL_TABLE; i++) p->tables[t][i] = i;
    p->tables[2][1] = 2, p->tables[2][2] = 1;
    p->tables[3][37] = 38, p->tables[3][38] = 37;
    for (k = 0; k < sizeof rows / sizeof rows[0]; k++)
        for (origin = 0; origin < 4; origin += 1 + origin)
            for (t = -1; t < (origin == 1 || k % 4 ? 0 : 5); t++) {
                mesh_desc d = MESH_ZERO;
                mesh_error err;
                mesh m;
                d.shape = rows[k].shape, d.strides = rows[k].stride, d.names = rows[k].names, d.naxes = rows[k].naxes;
                d.origin = origin;
                if (t >= 0) {
                    CHECK_OK(mesh_table_make(&p->table[t], p->tables[t], POOL_TABLE - (t == 1), p->inverses[t],
                                             POOL_TABLE + (t == 4 ? 8 : 0), &err),
                             err);
                    d.table = &p->table[t];
                }
                CHECK_OK(mesh_make(&m, &d, &err), err);
                pool_add_all(p, &m);
            }
}

/* The same axes, the same layout, and the same device table or none: said again, from positions and tables themselves. */
static int pool_same(const mesh *a, const mesh *b) {
    mesh x = *a, y = *b;
    int i;
    x.table = y.table = NULL; /* ranks are positions then */
    if (a->naxes != b->naxes || a->size != b->size || !a->table != !b->table) return 0;
    for (i = 0; i < a->naxes; i++)
        if (a->axis[i].size != b->axis[i].size || strcmp(a->axis[i].name, b->axis[i].name)) return 0;
    for (i = 0; i < a->size; i++)
        if (mesh_rank_at(&x, i) != mesh_rank_at(&y, i)) return 0;
    if (!a->table) return 1;
    return a->table->size == b->table->size &&
           !memcmp(a->table->rank, b->table->rank, sizeof *a->table->rank * (size_t)a->table->size);
}

static void test_law_equal(void) {
    static mesh_pool p;
    int i, k, equal = 0;
    pool_fill(&p);
    for (i = 0; i < p.n; i++)
        for (k = 0; k <= i; k++) {
            int same = pool_same(&p.m[i], &p.m[k]);
            equal += same && i != k;
            if (mesh_equal(&p.m[i], &p.m[k]) == same &&
                (mesh_fingerprint(&p.m[i]) == mesh_fingerprint(&p.m[k])) == same)
                continue;
            test_fail(__FILE__, __LINE__, "meshes %d and %d: equal %d, fingerprints %d, expected %d", i, k,
                      mesh_equal(&p.m[i], &p.m[k]), mesh_fingerprint(&p.m[i]) == mesh_fingerprint(&p.m[k]), same);
            return;
        }
    CHECK(p.n > 500 && equal > 200);
}

/* Who is no member is none for every question. */
static void test_law_members(void) {
    static mesh_pool p;
    int i, k, rank;
    pool_fill(&p);
    for (i = 0; i < p.n && !test_failures; i++) {
        const mesh *m = &p.m[i];
        int coords[MESH_MAX_AXES], seen = 0;
        law_index(m);
        for (rank = -2; rank < POOL_TABLE + 12; rank++) {
            int in = mesh_index_of(m, rank) >= 0;
            mesh g;
            seen += in;
            CHECK_INT(mesh_coords_of(m, NULL, rank, coords), in ? m->naxes : -1);
            CHECK_INT(mesh_local_index(m, NULL, rank) >= 0, in);
            CHECK_INT(mesh_group_of(m, "", rank) >= 0, in);
            CHECK_INT(mesh_group_through(&g, m, NULL, rank, NULL) == MESH_OK, in);
            for (k = 0; k < m->naxes; k++) {
                const char *name = m->axis[k].name;
                int n = m->axis[k].size, c = mesh_coord_of(m, name, rank), was = coords[k];
                CHECK_INT(c >= 0, in);
                CHECK_INT(mesh_neighbor(m, name, rank, 0, 0), in ? rank : -1);
                if (!in) continue;
                coords[k] = n;
                CHECK_INT(mesh_rank_at_coords(m, coords), -1);
                coords[k] = -1;
                CHECK_INT(mesh_rank_at_coords(m, coords), -1);
                coords[k] = (int)(((int64_t)c + INT32_MAX) % n);
                CHECK_INT(mesh_neighbor(m, name, rank, INT32_MAX, 1), mesh_rank_at_coords(m, coords));
                CHECK_INT(mesh_neighbor(m, name, rank, INT32_MAX, 0), -1);
                coords[k] = (int)((((int64_t)c + INT32_MIN) % n + n) % n);
                CHECK_INT(mesh_neighbor(m, name, rank, INT32_MIN, 1), mesh_rank_at_coords(m, coords));
                coords[k] = was;
            }
        }
        CHECK_INT(seen, m->size);
    }
}

/* ---- what can be made ---- */

/* May this description be made? Its positions are written where it may. Strides nest where each is at least the span of the smaller ones. */
static int desc_is_good(const mesh_desc *d, int64_t *positions) {
    int i, k, missing = -1, shape[MESH_MAX_AXES], order[MESH_MAX_AXES], n = 0;
    int64_t product = 1, span = 1, stride[MESH_MAX_AXES], dense = 1;
    if (d->naxes < 0 || d->naxes > MESH_MAX_AXES || d->origin < 0 || d->world < 0) return 0;
    for (i = 0; i < d->naxes; i++) {
        shape[i] = d->shape[i];
        if (shape[i] == -1 && missing >= 0) return 0;
        if (shape[i] == -1) {
            missing = i;
            continue;
        }
        if (shape[i] < 1) return 0;
        product *= shape[i];
        if (product > INT32_MAX) return 0;
    }
    if (missing >= 0 && (d->world < 1 || d->world % product)) return 0;
    if (missing >= 0) shape[missing] = (int)(d->world / product), product = d->world;
    if (d->world && product != d->world) return 0;
    for (i = 0; i < d->naxes; i++) {
        int at = d->first_fastest ? i : d->naxes - 1 - i;
        stride[at] = d->strides ? d->strides[at] : dense;
        dense *= shape[at];
        for (k = 0; k < i && d->names; k++)
            if (!strcmp(d->names[i], d->names[k])) return 0;
    }
    for (i = 0; i < d->naxes; i++) {
        if (shape[i] == 1) continue;
        if (stride[i] < 1) return 0;
        for (k = n++; k > 0 && stride[order[k - 1]] > stride[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    for (i = 0; i < n; i++) {
        if (stride[order[i]] < span) return 0;
        span += (int64_t)(shape[order[i]] - 1) * stride[order[i]];
    }
    if (d->origin + span - 1 > INT32_MAX) return 0;
    if (d->table && d->origin + span > d->table->size) return 0;
    for (i = 0; i < product && i < 64; i++) {
        int64_t rest = i;
        positions[i] = d->origin;
        for (k = d->naxes - 1; k >= 0; k--) positions[i] += rest % shape[k] * stride[k], rest /= shape[k];
    }
    return (int)(product < 64 ? product : 64);
}

static void test_law_make(void) {
    static const int sizes[] = {1, 1, 2, 2, 2, 3, 3, 4, 5, -1, -1, 0, -2}, origins[] = {0, 0, 0, 1, 3, -1, INT32_MAX - 7};
    static const char *const words[] = {"a", "b", "c", "dim0"};
    test_random r = random_from(41);
    int trial, good = 0, bad = 0, i;
    for (trial = 0; trial < 40000 && !test_failures; trial++) {
        int shape[3], strides[3], table[24], inverse[32], want, i2;
        mesh_table devices;
        int64_t positions[64];
        const char *names[3];
        mesh_desc d = MESH_ZERO;
        mesh_error err;
        mesh m, before;
        memset(&m, 0x5a, sizeof m);
        before = m;
        d.shape = shape, d.naxes = random_below(&r, 4), d.world = random_below(&r, 4) ? 0 : random_below(&r, 14) - 1;
        d.origin = origins[random_below(&r, random_below(&r, 4) ? 3 : 7)], d.first_fastest = random_below(&r, 2);
        for (i = 0; i < 3; i++) {
            shape[i] = sizes[random_below(&r, random_below(&r, 3) ? 9 : 13)];
            strides[i] = random_below(&r, 8) ? 1 + random_below(&r, 14) : random_below(&r, 3) - 1;
            if (!random_below(&r, 60)) shape[i] = 1 << (15 + random_below(&r, 2));
            names[i] = words[i + random_below(&r, 8) / 7];
        }
        if (random_below(&r, 2)) d.names = names;
        if (random_below(&r, 2)) d.strides = strides;
        if (!random_below(&r, 3)) {
            int size = 4 + random_below(&r, 21), room = size + random_below(&r, 8), fits = 1;
            for (i = 0; i < 24; i++) table[i] = i;
            for (i = 23; i > 0; i--) {
                int k = random_below(&r, i + 1), t = table[i];
                table[i] = table[k], table[k] = t;
            }
            for (i = 0; i < 32; i++) inverse[i] = 3;
            if (!random_below(&r, 8)) table[random_below(&r, 24)] = random_below(&r, 34) - 1;
            for (i = 0; i < size; i++) {
                fits &= table[i] >= 0 && table[i] < room;
                for (i2 = 0; i2 < i; i2++) fits &= table[i] != table[i2];
            }
            if ((mesh_table_make(&devices, table, size, inverse, room, &err) == MESH_OK) != fits)
                test_fail(__FILE__, __LINE__, "trial %d: a table is %s", trial, fits ? err.text : "accepted");
            if (fits) d.table = &devices;
        }
        want = desc_is_good(&d, positions);
        if (mesh_make(&m, &d, &err) == MESH_OK ? !want : want) {
            test_fail(__FILE__, __LINE__, "trial %d is %s", trial, want ? err.text : "accepted");
            return;
        }
        *(want ? &good : &bad) += 1;
        if (!want) CHECK(!memcmp(&m, &before, sizeof m) && err.status == MESH_ERR_ARGUMENT);
        for (i = 0; i < want; i++) {
            int rank = d.table ? table[positions[i]] : (int)positions[i];
            CHECK_INT(mesh_rank_at(&m, i), rank);
            CHECK_INT(mesh_index_of(&m, rank), i);
        }
        for (i = 0; want && d.table && i < devices.ranks; i++) { /* what the table does not list is nowhere */
            int k, listed = 0;
            for (k = 0; k < devices.size; k++) listed |= table[k] == i;
            if (!listed) CHECK_INT(mesh_index_of(&m, i), -1);
        }
    }
    CHECK(good > 8000 && bad > 8000);
}

/* Two meshes through a rank: joined where all positions are there once and nest, else refused and nothing written. */
static void test_law_join(void) {
    static int tables[2][64], inverses[2][64];
    static const char *const names[2][2] = {{"a", "b"}, {"c", "d"}};
    test_random r = random_from(43);
    int trial, joined = 0, refusals = 0, i, side;
    for (trial = 0; trial < 20000 && !test_failures; trial++) {
        int shape[2][2], stride[2][2], rank, want = 1, on = random_below(&r, 3), twice = !random_below(&r, 8),
            size = 16 + 8 * random_below(&r, 7);
        mesh m[2], both, before;
        mesh_table devices[2];
        mesh_error err;
        for (side = 0; side < 2; side++) {
            mesh_desc d = MESH_ZERO;
            const char *name[2];
            d.shape = shape[side], d.strides = stride[side], d.naxes = random_below(&r, 3), d.names = name;
            d.origin = random_below(&r, 6);
            for (i = 0; i < 2; i++) {
                shape[side][i] = 1 + random_below(&r, 3);
                stride[side][i] = 1 << random_below(&r, 5);
                if (!random_below(&r, 3)) stride[side][i] = 1 + random_below(&r, 12);
                name[i] = names[twice ? i : side][i];
            }
            for (i = 0; i < 64; i++) tables[side][i] = i ^ (1 + 4 * (on == 1 ? side : 0));
            if (on && mesh_table_make(&devices[side], tables[side], size, inverses[side], 64, &err) == MESH_OK)
                d.table = &devices[side];
            if (mesh_make(&m[side], &d, NULL)) break;
        }
        if (side < 2) continue;
        rank = mesh_rank_at(&m[0], random_below(&r, m[0].size));
        if (random_below(&r, 10) == 0) rank = random_below(&r, 40) - 1;
        if (on == 1) want = 0;
        want = want && mesh_index_of(&m[0], rank) >= 0 && mesh_index_of(&m[1], rank) >= 0;
        for (i = 0; i < m[1].naxes; i++) want = want && mesh_axis_find(&m[0], m[1].axis[i].name) < 0;
        memset(&both, 0x5a, sizeof both);
        if (want) { /* the description of the whole */
            int all[4], steps[4], n = 0;
            int64_t positions[64], at = m[0].origin + m[1].origin - (on ? inverses[0][rank] : rank);
            mesh_desc d = MESH_ZERO;
            for (side = 0; side < 2; side++)
                for (i = 0; i < m[side].naxes; i++, n++) all[n] = shape[side][i], steps[n] = stride[side][i];
            d.shape = all, d.strides = steps, d.naxes = n, d.origin = (int)at;
            if (on) d.table = &devices[0];
            want = at >= 0 ? desc_is_good(&d, positions) : 0;
            if (mesh_concat(&both, &m[0], &m[1], rank, &err) == MESH_OK ? !want : want)
                test_fail(__FILE__, __LINE__, "trial %d is %s", trial, want ? err.text : "accepted");
            for (i = 0; i < want; i++)
                CHECK_INT(mesh_rank_at(&both, i), on ? tables[0][positions[i]] : positions[i]);
            if (want) law_index(&both);
            *(want ? &joined : &refusals) += 1;
            continue;
        }
        before = both;
        CHECK_INT(mesh_concat(&both, &m[0], &m[1], rank, &err), MESH_ERR_ARGUMENT);
        CHECK(!memcmp(&both, &before, sizeof both));
        refusals++;
    }
    CHECK(joined > 700 && refusals > 2000);
}

/* Is one list of dims better than another, along those not given: closer, of equally close ones with the larger smallest, then the smaller first? */
static int dims_closer(const int *a, const int *b, const int *given, int n) {
    int i, most[2] = {0, 0}, least[2] = {INT32_MAX, INT32_MAX}, far;
    for (i = 0; i < n; i++) {
        if (given[i]) continue;
        if (a[i] > most[0]) most[0] = a[i];
        if (b[i] > most[1]) most[1] = b[i];
        if (a[i] < least[0]) least[0] = a[i];
        if (b[i] < least[1]) least[1] = b[i];
    }
    far = (most[0] - least[0]) - (most[1] - least[1]);
    if (far || least[0] != least[1]) return far ? far < 0 : least[0] > least[1];
    for (i = 0; i < n; i++)
        if (!given[i] && a[i] != b[i]) return a[i] < b[i];
    return 0;
}

/* Every list of dims, some of them given, of every small size and some larger: what fits is found, the closest. */
static void dims_least(int rest, int k, int most, int *dims, const int *given, int n, int *best, int *found) {
    int d;
    if (k == n) {
        if (rest != 1) return;
        if (!*found || dims_closer(dims, best, given, n)) memcpy(best, dims, sizeof *best * (size_t)n);
        *found = 1;
        return;
    }
    for (d = given[k] ? given[k] : 1; d <= (given[k] ? given[k] : most); d++) {
        if (rest % d) continue;
        dims[k] = d;
        dims_least(rest / d, k + 1, given[k] ? most : d, dims, given, n, best, found);
    }
}

static void test_law_dims(void) {
    int size, n, code, i;
    for (size = -1; size <= 400 && !test_failures; size += size < 48 ? 1 : 8)
        for (n = 0; n <= 3; n++)
            for (code = 0; code < (n == 3 ? 216 : n == 2 ? 36 : n == 1 ? 6 : 1); code++) {
                int dims[3] = {0}, given[3] = {0}, got[3] = {0}, best[3] = {0}, rest = code, found = 0, negative = 0;
                mesh_error err;
                for (i = 0; i < n; i++, rest /= 6) got[i] = given[i] = rest % 6 - 1, negative |= given[i] < 0;
                if (size > 0 && !negative) dims_least(size, 0, size, dims, given, n, best, &found);
                if (mesh_dims_create(size, n, got, &err) == MESH_OK ? !found : found) {
                    test_fail(__FILE__, __LINE__, "%d in %d dims, code %d: %s", size, n, code,
                              found ? err.text : "accepted");
                    return;
                }
                for (i = 0; i < n; i++) CHECK_INT(got[i], found ? best[i] : given[i]);
            }
}

/* ---- degrees ---- */

/* Degrees are accepted by all of torchtitan's views or by none; "auto" never lets tp cross a node; what is accepted has the world's ranks. */
static void test_law_degrees(void) {
    static const char *const views[] = {"torchtitan", "torchtitan:dense", "torchtitan:dataloading", "torchtitan:sparse"};
    static const int choice[] = {0, 1, 1, 2, 2, 3, 4, 6, 8, -1};
    test_random r = random_from(47);
    int trial, k, i, accepted = 0, automatic = 0, kempner = 0;
    for (trial = 0; trial < 20000 && !test_failures; trial++) {
        mesh_degrees d = MESH_ZERO;
        mesh_error err;
        mesh m;
        int first = 0, product;
        d.world = 1 + random_below(&r, 48);
        d.pp = choice[random_below(&r, 5)], d.dp_replicate = choice[random_below(&r, 5)];
        d.dp_shard = choice[random_below(&r, 10)], d.cp = choice[random_below(&r, 5)];
        d.tp = choice[random_below(&r, 9)], d.ep = choice[random_below(&r, 9)], d.etp = choice[random_below(&r, 6)];
        if (random_below(&r, 3)) d.dp_shard = -1;
        if (!random_below(&r, 5)) d.pp = -1;
        if (!random_below(&r, 5)) d.tp = -1;
        for (k = 0; k < 4; k++) {
            int ok = mesh_from_degrees(&m, &d, views[k], &err) == MESH_OK;
            if (k == 0) first = ok;
            if (ok != first) {
                test_fail(__FILE__, __LINE__, "trial %d: %s is %s, %s is not", trial, views[k], ok ? "good" : err.text,
                          views[0]);
                return;
            }
            if (!ok) continue;
            CHECK_INT(m.size, d.world);
            accepted++;
        }
        d.ep = d.etp = d.cp = d.dp_replicate = 0, d.devices_per_node = random_below(&r, 10);
        if (mesh_from_degrees(&m, &d, "auto", &err) == MESH_OK) {
            int groups = mesh_group_count(&m, "tp");
            for (k = 0; k < groups && d.devices_per_node; k++) {
                mesh g;
                mesh_group_at(&g, &m, "tp", k, NULL);
                for (i = 0; i < g.size; i++)
                    CHECK_INT(mesh_rank_at(&g, i) / d.devices_per_node, mesh_rank_at(&g, 0) / d.devices_per_node);
            }
            if (d.devices_per_node && m.size > d.devices_per_node) CHECK_INT(m.size % d.devices_per_node, 0);
            if (d.dp_shard > 0) CHECK_INT(m.axis[0].size, d.dp_shard);
            if (d.pp > 0) CHECK_INT(m.axis[1].size, d.pp);
            if (d.tp > 0) CHECK_INT(m.axis[2].size, d.tp);
            automatic++;
        }
        d.ep = choice[random_below(&r, 5)], d.devices_per_node = 0;
        if (mesh_from_degrees(&m, &d, "kempner", &err) == MESH_OK) {
            for (product = 1, k = 0; k < m.naxes; k++) {
                product *= m.axis[k].size;
                CHECK(m.axis[k].size > 1 || !strcmp(m.axis[k].name, "dp_shard"));
            }
            CHECK_INT(product, d.world);
            if (d.tp > 1 || d.ep > 1) CHECK(mesh_axis_find(&m, "dp_shard") >= 0);
            kempner++;
        }
    }
    CHECK(accepted > 2000 && automatic > 500 && kempner > 500);
}

/* ---- text ---- */

/* Whatever the room: the length of the whole, a beginning of it and its end, and not a byte beyond. */
static void check_text(size_t (*put)(char *buf, size_t cap, const void *of), const void *of) {
    static char whole[1 << 20], part[1 << 20];
    size_t n = put(whole, sizeof whole, of), cap, step = n > 2000 ? n / 150 : 1;
    CHECK_INT(n, strlen(whole));
    CHECK_INT(put(NULL, 0, of), n);
    CHECK_INT(put(NULL, 5, of), n);
    for (cap = 0; cap <= n + 2 && !test_failures; cap = cap + step > n && cap < n ? n : cap + (cap >= n ? 1 : step)) {
        memset(part, '#', cap + 2);
        CHECK_INT(put(part, cap, of), n);
        CHECK(part[cap] == '#' && part[cap + 1] == '#');
        if (cap) CHECK(!memcmp(part, whole, cap - 1 < n ? cap - 1 : n) && part[cap - 1 < n ? cap - 1 : n] == 0);
    }
}

static size_t put_format(char *buf, size_t cap, const void *m) { return mesh_format((const mesh *)m, buf, cap); }
static size_t put_rank(char *buf, size_t cap, const void *m) { return mesh_format_rank((const mesh *)m, 3, buf, cap); }
static size_t put_draw(char *buf, size_t cap, const void *m) { return mesh_draw((const mesh *)m, buf, cap); }
static size_t put_dot(char *buf, size_t cap, const void *m) { return mesh_dot((const mesh *)m, buf, cap); }
static size_t put_svg(char *buf, size_t cap, const void *m) { return mesh_svg((const mesh *)m, buf, cap); }

typedef struct spec_on {
    const mesh *m;
    mesh_spec s;
} spec_on;
static size_t put_spec(char *buf, size_t cap, const void *of) {
    const spec_on *x = (const spec_on *)of;
    return mesh_spec_format(&x->s, x->m, buf, cap);
}
static size_t put_spec_dims(char *buf, size_t cap, const void *of) {
    const spec_on *x = (const spec_on *)of;
    return mesh_spec_format_dims(&x->s, x->m, 3, buf, cap);
}
static size_t put_plan(char *buf, size_t cap, const void *of) {
    return mesh_plan_format((const mesh_plan *)of, buf, cap);
}
static size_t put_plan_json(char *buf, size_t cap, const void *of) {
    return mesh_plan_json((const mesh_plan *)of, buf, cap);
}

static void test_law_room(void) {
    static mesh_plan plan;
    plan_ask d = MESH_ZERO;
    mesh_error err;
    mesh m;
    spec_on of;
    CHECK_OK(mesh_parse(&m, "pp=2,dp=3,tp=4", 0, &err), err);
    check_text(put_format, &m);
    check_text(put_rank, &m);
    check_text(put_draw, &m);
    check_text(put_dot, &m);
    check_text(put_svg, &m);
    of.m = &m;
    CHECK_OK(mesh_spec_parse(&of.s, &m, "pp:S(0)@1 dp:P(sum) tp:S(0)@0 balanced strict", 3, &err), err);
    check_text(put_spec, &of);
    check_text(put_spec_dims, &of);
    d.src = &m, d.from = &of.s, d.to = &of.s, d.ndim = 3, d.shape[0] = d.shape[1] = d.shape[2] = 8;
    CHECK_OK(ask_plan(&plan, &d, &err), err);
    check_text(put_plan, &plan);
    check_text(put_plan_json, &plan);
}

/* A name is a letter, then letters, digits or _; up to 15 bytes; found by its whole self. */
/* ---- what each transform gives, as transform.h says it ---- */

/* Coordinates of the i-th of all, row-major. */
static void law_coords(const mesh *m, int i, int *c) {
    int k;
    for (k = m->naxes - 1; k >= 0; k--) c[k] = i % m->axis[k].size, i /= m->axis[k].size;
}

static void law_sentences_of(const mesh *m) {
    int i, k, n = m->naxes, c[MESH_MAX_AXES], d[MESH_MAX_AXES];
    char text[80] = "", sizes[80];
    mesh r, s;
    for (k = n - 1; k >= 0; k--) sprintf(text + strlen(text), "%s%s", k < n - 1 ? "," : "", m->axis[k].name);
    for (k = 0; k < n; k++) {
        CHECK_INT(mesh_fix(&r, m, m->axis[k].name, m->axis[k].size - 1, NULL), MESH_OK);
        for (i = 0; i < r.size; i++) { /* result(c) = m(c with the index at the axis) */
            law_coords(&r, i, c);
            memcpy(d, c, sizeof d);
            memmove(d + k + 1, c + k, sizeof *d * (size_t)(n - 1 - k));
            d[k] = m->axis[k].size - 1;
            CHECK_INT(mesh_rank_at_coords(&r, c), mesh_rank_at_coords(m, d));
        }
    }
    CHECK_INT(mesh_transpose(&r, m, text, NULL), MESH_OK);
    if (n) CHECK_INT(mesh_flatten(&s, m, text, "all", NULL), MESH_OK);
    for (i = 0; i < m->size; i++) { /* result(c in the order named) = m(c); result(i) = m(i taken apart, in the order named) */
        law_coords(&r, i, d);
        for (k = 0; k < n; k++) c[n - 1 - k] = d[k];
        CHECK_INT(mesh_rank_at_coords(&r, d), mesh_rank_at_coords(m, c));
        if (n) CHECK_INT(mesh_rank_at_coords(&s, &i), mesh_rank_at_coords(m, c));
    }
    mesh_squeeze(&r, m);
    for (i = 0; i < m->size; i++) CHECK_INT(mesh_rank_at(&r, i), mesh_rank_at(m, i));
    if (n && mesh_rename(&s, m, m->axis[0].name, "other", NULL) == MESH_OK)
        for (i = 0; i < m->size; i++) {
            law_coords(m, i, c);
            CHECK_INT(mesh_rank_at_coords(&s, c), mesh_rank_at_coords(m, c));
        }
    for (k = 0; k < n; k++) { /* result(c with one index for each part) = m(c with their row-major index) */
        if (m->axis[k].size % 2) continue;
        snprintf(sizes, sizeof sizes, "s=%d,t=2", m->axis[k].size / 2);
        if (mesh_split(&r, m, m->axis[k].name, sizes, NULL) != MESH_OK) continue; /* across parts out of order */
        for (i = 0; i < m->size; i++) {
            law_coords(&r, i, d);
            memcpy(c, d, sizeof c);
            c[k] = d[k] * 2 + d[k + 1];
            memmove(c + k + 1, d + k + 2, sizeof *c * (size_t)(n - 1 - k));
            CHECK_INT(mesh_rank_at_coords(&r, d), mesh_rank_at_coords(m, c));
        }
    }
    if (m->size % 2 == 0) { /* result[i] = m[i] */
        snprintf(sizes, sizeof sizes, "p=2,q=%d", m->size / 2);
        if (mesh_reshape(&r, m, sizes, NULL) == MESH_OK)
            for (i = 0; i < m->size; i++) CHECK_INT(mesh_rank_at(&r, i), mesh_rank_at(m, i));
        snprintf(sizes, sizeof sizes, "e=%d", m->size / 2); /* result[i] = outer[inner[i]] */
        CHECK_INT(mesh_parse(&s, sizes, 0, NULL), MESH_OK);
        if (mesh_compose(&r, m, &s, NULL) == MESH_OK)
            for (i = 0; i < s.size; i++) CHECK_INT(mesh_rank_at(&r, i), mesh_rank_at(m, mesh_rank_at(&s, i)));
    }
    if (n > 1) { /* result(c, d) = a(c) + b(d) - rank: of a mesh's first axis and the others, all of it again */
        int rank = mesh_rank_at(m, m->size / 2);
        char rest[80] = "";
        for (k = 1; k < n; k++) sprintf(rest + strlen(rest), "%s%s", k > 1 ? "," : "", m->axis[k].name);
        CHECK_INT(mesh_group_through(&r, m, m->axis[0].name, rank, NULL), MESH_OK);
        CHECK_INT(mesh_group_through(&s, m, rest, rank, NULL), MESH_OK);
        CHECK_INT(mesh_concat(&r, &r, &s, rank, NULL), MESH_OK);
        for (i = 0; i < m->size; i++) CHECK_INT(mesh_rank_at(&r, i), mesh_rank_at(m, i));
    }
}

static void test_law_sentences(void) {
    static mesh_pool p;
    int i;
    pool_fill(&p);
    for (i = 0; i < p.n && !test_failures; i++) law_sentences_of(&p.m[i]);
    CHECK(p.n > 200);
}

/* A list of axes says the same with spaces, and from the fastest to the slowest with dashes; dashes and commas do not mix. */
static void test_law_lists(void) {
    static const char *const gaps[] = {"", "", " ", "  "};
    test_random r = random_from(47);
    int trial, i;
    mesh m;
    mesh_error err;
    CHECK_OK(mesh_parse(&m, " pp=2, dp=3 ,cp=2,tp=2 ", 0, &err), err);
    CHECK_STR(mesh__show(&m).text, "pp=2,dp=3,cp=2,tp=2");
    for (trial = 0; trial < 4000; trial++) {
        int order[4], n = random_below(&r, 5), rank = random_below(&r, 24), coords[4], k, at = 0;
        char text[3][80] = {"", "", ""}, bad[84];
        mesh g[3], before;
        for (i = 0; i < 4; i++) order[i] = i;
        for (i = 3; i > 0; i--) k = random_below(&r, i + 1), at = order[i], order[i] = order[k], order[k] = at;
        for (i = 0; i < n; i++) {
            const char *slow = m.axis[order[i]].name, *fast = m.axis[order[n - 1 - i]].name;
            sprintf(text[0] + strlen(text[0]), "%s%s", i ? "," : "", slow);
            sprintf(text[1] + strlen(text[1]), "%s%s%s%s", i ? "," : "", gaps[random_below(&r, 4)], slow,
                    gaps[random_below(&r, 4)]);
            sprintf(text[2] + strlen(text[2]), "%s%s%s%s", i ? "-" : "", gaps[random_below(&r, 4)], fast,
                    gaps[random_below(&r, 4)]);
        }
        for (i = 0; i < 3; i++) {
            CHECK_OK(mesh_group_through(&g[i], &m, text[i], rank, &err), err);
            CHECK(mesh_equal(&g[i], &g[0]));
            CHECK_INT(mesh_local_index(&m, text[i], rank), mesh_index_of(&g[0], rank));
            CHECK_INT(mesh_group_count(&m, text[i]), 24 / g[0].size);
            CHECK_INT(mesh_coords_of(&m, text[i], rank, coords), n);
            for (k = at = 0; k < n; k++) {
                CHECK_INT(coords[k], mesh_coord_of(&m, m.axis[order[k]].name, rank));
                at = at * m.axis[order[k]].size + coords[k];
            }
            CHECK_INT(at, mesh_index_of(&g[0], rank));
        }
        memset(&before, 0x5a, sizeof before);
        g[0] = before;
        for (i = 0; i < 4 && n > 1; i++) {
            static const char *const wrong[] = {"%s,", "-%s", "%s-pp,dp", "%s cp"};
            snprintf(bad, sizeof bad, wrong[i], text[1 + (i == 1)]);
            CHECK_INT(mesh_group_through(&g[0], &m, bad, rank, &err), MESH_ERR_ARGUMENT);
            CHECK_INT(mesh_coords_of(&m, bad, rank, coords), -1);
            CHECK(!memcmp(&g[0], &before, sizeof before));
        }
    }
}

static void test_law_names(void) {
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    int c, n, size = 2;
    for (c = 1; c < 128; c++)
        for (n = 0; n < 2; n++) {
            int letter = strchr(alphabet, c) != NULL, good = letter || (n && (c == '_' || (c >= '0' && c <= '9')));
            char name[3] = "aa";
            const char *names = name;
            mesh_desc d = MESH_ZERO;
            mesh m;
            name[n] = (char)c;
            if (!n) name[1] = 0;
            d.shape = &size, d.naxes = 1, d.names = &names;
            CHECK_INT(mesh_make(&m, &d, NULL), good ? MESH_OK : MESH_ERR_ARGUMENT);
        }
    for (n = 1; n <= 18; n++) {
        char name[20] = "abcdefghijklmnopqrs", text[24], shorter[20];
        const char *names = name;
        mesh_desc d = MESH_ZERO;
        mesh_error err;
        mesh m, r, q;
        name[n] = 0;
        strcpy(shorter, name);
        shorter[n - 1] = 0;
        snprintf(text, sizeof text, "%s=2", name);
        d.shape = &size, d.naxes = 1, d.names = &names;
        CHECK_INT(mesh_make(&m, &d, &err), n <= 15 ? MESH_OK : MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_parse(&r, text, 0, &err), n <= 15 ? MESH_OK : MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_parse(&q, "z=2", 0, NULL), MESH_OK);
        CHECK_INT(mesh_rename(&q, &q, "z", name, &err), n <= 15 ? MESH_OK : MESH_ERR_ARGUMENT);
        if (n > 15) {
            CHECK_HAS(err.text, "too long: at most 15 bytes");
            continue;
        }
        CHECK(mesh_equal(&m, &r) && mesh_equal(&m, &q));
        CHECK_INT(mesh_axis_find(&m, name), 0);
        CHECK_INT(mesh_axis_find(&m, shorter), -1);
        CHECK_OK(mesh_rename(&r, &m, name, name, &err), err); /* its own name is free */
        CHECK(mesh_equal(&m, &r));
        CHECK_OK(mesh_rename(&r, &m, name, "z", &err), err);
        CHECK_STR(r.axis[0].name, "z");
    }
}

/* Which bytes an element takes stands in its name; what is none has a text too. */
static void test_law_dtypes(void) {
    int k;
    for (k = 0; k < MESH_DTYPE_COUNT; k++) {
        const char *name = mesh_dtype_name((mesh_dtype)k), *digits = name + strcspn(name, "123456789");
        int bits = !strcmp(name, "f64_i32") ? 128 : strcmp(name, "bytes") ? atoi(digits) : 8;
        CHECK_INT(mesh_dtype_bytes((mesh_dtype)k), bits / 8);
    }
    for (k = 0; k < 3; k++) {
        static const int past[] = {-1, MESH_DTYPE_COUNT, 1000};
        CHECK_INT(mesh_dtype_bytes((mesh_dtype)past[k]), 0);
        CHECK_STR(mesh_dtype_name((mesh_dtype)past[k]), "unknown dtype");
        CHECK_STR(mesh_op_name((mesh_op)(k == 1 ? MESH_OP_COUNT : past[k])), "unknown op");
        CHECK_STR(mesh_status_text((mesh_status)(k ? 2 : -10)), "unknown status");
    }
}

/* ---- pictures ---- */

/* The drawing read again: the ranks of the first rows and columns, straight columns, what is left out told, and the groups. */
static void check_drawing(const mesh *m) {
    static char text[1 << 18];
    int columns = m->axis[m->naxes - 1].size, rows = m->size / columns, shown = columns < 16 ? columns : 16, row, c, i;
    size_t width = 0;
    const char *line = text, *p;
    char told[64];
    CHECK(mesh_draw(m, text, sizeof text) < sizeof text);
    for (i = 0; i < 2; i++) line = strchr(line, '\n') + 1;
    line = strchr(line, '\n') + 1; /* the line of the outer axis' coordinates */
    for (row = 0; row < rows && row < 32; row++) {
        const char *end = strchr(line, '\n'), *dots = strstr(line, " ..\n");
        CHECK_INT(dots != NULL && dots + 3 == end, columns > 16);
        if (columns > 16) end = dots;
        if (row) CHECK_INT(end - line, width);
        width = (size_t)(end - line);
        for (c = shown - 1, p = end; c >= 0; c--) { /* from the right: the ranks are the last numbers */
            while (p > line && p[-1] >= '0' && p[-1] <= '9') p--;
            CHECK_INT(strtol(p, NULL, 10), mesh_rank_at(m, row * columns + c));
            while (p > line && p[-1] == ' ') p--;
        }
        line = strchr(line, '\n') + 1;
        if (test_failures) {
            fprintf(stderr, "%s", text);
            return;
        }
    }
    snprintf(told, sizeof told, ".. %d rows in all\n", rows);
    CHECK_INT(!strncmp(line, told, strlen(told)), rows > 32);
    if (rows > 32) line = strchr(line, '\n') + 1;
    CHECK(!strncmp(line, "\ngroups\n", 8));
    line += 8;
    for (i = 0; i < m->naxes; i++, line = strchr(line, '\n') + 1) {
        int count = mesh_group_count(m, m->axis[i].name), g, k;
        p = line + 2 + strlen(m->axis[i].name);
        for (g = 0; g < count && g < 8; g++) {
            mesh group;
            CHECK_INT(mesh_group_at(&group, m, m->axis[i].name, g, NULL), 0);
            p = strchr(p, '{');
            for (k = 0; k < group.size && k < 16; k++) CHECK_INT(strtol(p + 1, (char **)&p, 10), mesh_rank_at(&group, k));
            CHECK_INT(!strncmp(p, ",..}", 4), group.size > 16);
            p = strchr(p, '}');
        }
        snprintf(told, sizeof told, "} .. (%d groups)\n", count);
        CHECK_INT(!strncmp(p, told, strlen(told)), count > 8);
        if (count <= 8) CHECK(p[1] == '\n');
    }
    CHECK(*line == 0);
}

/* A node and a cell per rank, up to 4,096; an edge to each next neighbour of those that are drawn. */
static void check_pictures(const mesh *m) {
    enum { ROOM = 8 << 20 };
    char *text = (char *)malloc(ROOM);
    int i, k, shown = m->size < 4096 ? m->size : 4096, edges = 0, found = 0;
    char piece[40];
    const char *p;
    CHECK(mesh_dot(m, text, ROOM) < ROOM);
    for (i = 0; i < shown; i += 1 + shown / 97) {
        snprintf(piece, sizeof piece, "  r%d [label=\"%d\\n", mesh_rank_at(m, i), mesh_rank_at(m, i));
        CHECK_HAS(text, piece);
    }
    for (p = text; (p = strstr(p, " -- r")) != NULL; p++) {
        const char *from = p;
        while (from > text && from[-1] != 'r') from--;
        CHECK(mesh_index_of(m, atoi(from)) < shown && mesh_index_of(m, atoi(p + 5)) < shown);
        found++;
    }
    for (i = 0; i < shown; i++)
        for (k = 0; k < m->naxes; k++) {
            int next = mesh_neighbor(m, m->axis[k].name, mesh_rank_at(m, i), 1, 0);
            edges += next >= 0 && mesh_index_of(m, next) < shown;
        }
    CHECK_INT(found, edges);
    CHECK(mesh_svg(m, text, ROOM) < ROOM);
    CHECK_INT(strstr(text, "too many for a picture") != NULL, m->size > 4096);
    CHECK_INT(strstr(text, ">down</text>") != NULL, m->size <= 4096 && m->naxes >= 2);
    CHECK_INT(strstr(text, " across</text>") != NULL, m->size <= 4096 && m->naxes >= 1);
    for (i = 0; i < m->size && m->size <= 4096; i += 1 + shown / 97) {
        snprintf(piece, sizeof piece, "\"middle\">%d</text>", mesh_rank_at(m, i));
        CHECK_HAS(text, piece);
    }
    free(text);
}

static void test_law_pictures(void) {
    static const char *const texts[] = {"a=1", "a=2,b=2", "a=16", "a=17", "a=2,b=16", "a=3,b=17", "a=32,b=2", "a=33,b=2",
                                        "a=8,b=2", "a=9,b=2", "a=2,b=3,c=5", "a=5,b=11,c=2", "a=4096", "a=4097", "a=64,b=64"};
    size_t k;
    for (k = 0; k < sizeof texts / sizeof texts[0] && !test_failures; k++) {
        mesh m, inner, far;
        mesh_desc d = MESH_ZERO;
        mesh_error err;
        int two = 2;
        char line[64], want[64];
        CHECK_OK(mesh_parse(&m, texts[k], 0, &err), err);
        check_drawing(&m);
        check_pictures(&m);
        d.shape = &two, d.naxes = 1, d.origin = 95; /* the same from rank 95 on, and its ranks the other way round */
        CHECK_OK(mesh_make(&inner, &d, &err), err);
        far = m, far.origin = 95;
        check_drawing(&far);
        check_pictures(&far);
        if (m.naxes == 2) {
            CHECK_OK(mesh_transpose(&far, &far, "b,a", &err), err);
            check_drawing(&far);
            check_pictures(&far);
        }
        mesh_format_rank(&m, 0, line, sizeof line);
        snprintf(want, sizeof want, "[%*d/%d]: ", (int)snprintf(NULL, 0, "%d", m.size - 1), 0, m.size - 1);
        CHECK(!strncmp(line, want, strlen(want)));
    }
}

/* ---- specs ---- */

enum { SPECS = 4000 };

typedef struct spec_pool {
    const mesh *m;
    spec_on of[SPECS];
    int n;
} spec_pool;

static void spec_pool_add(const mesh_spec *s, void *ctx) {
    spec_pool *p = (spec_pool *)ctx;
    int rules, i, partial = -1;
    for (i = 0; i < s->naxes; i++)
        if (s->axis[i].kind == MESH_PARTIAL) partial = i;
    for (rules = 0; rules < (partial >= 0 ? 5 : 4); rules++) {
        mesh_spec x = *s;
        x.rule = (uint8_t)(rules & 1), x.strict = (uint8_t)(rules >> 1 & 1);
        for (i = 0; i < x.naxes && rules == 4; i++)
            if (x.axis[i].kind == MESH_PARTIAL) x.axis[i] = mesh_partial(MESH_XOR);
        if (p->n == SPECS) {
            test_fail(__FILE__, __LINE__, "the pool is full");
            return;
        }
        p->of[p->n].m = p->m;
        p->of[p->n++].s = x;
    }
}

/* Specs are equal where they say the same, whatever stands in fields that their places do not use; text says all; so does the hash. */
static void test_spec_equal(void) {
    static spec_pool p;
    static char text[SPECS][64];
    static uint64_t hash[SPECS];
    static const int64_t shape[2] = {4, 8};
    mesh m;
    int i, k;
    CHECK_INT(mesh_parse(&m, "a=2,b=2", 0, NULL), 0);
    p.m = &m;
    every_spec(&m, 2, 1, spec_pool_add, &p);
    for (i = 0; i < p.n; i++) {
        mesh_spec junk = p.of[i].s, back;
        mesh_error err;
        mesh_spec_format(&junk, &m, text[i], sizeof text[i]);
        hash[i] = mesh__spec_hash(1, &junk);
        for (k = 0; k < 2; k++) {
            mesh_place *at = &junk.axis[k];
            if (at->kind != MESH_PARTIAL) at->op = (uint8_t)(1 + k);
            if (at->kind != MESH_SHARD) at->dim = at->order = (uint8_t)(3 + k);
        }
        CHECK(mesh_spec_equal(&junk, &p.of[i].s));
        CHECK(mesh__spec_hash(1, &junk) == hash[i]);
        CHECK_OK(spec_check(&p.of[i].s, &m, 2, shape, &err), err);
        CHECK_OK(mesh_spec_parse(&back, &m, text[i], 2, &err), err);
        CHECK(mesh_spec_equal(&back, &junk));
    }
    for (i = 0; i < p.n; i++)
        for (k = 0; k < p.n; k++) {
            int same = !strcmp(text[i], text[k]);
            if (mesh_spec_equal(&p.of[i].s, &p.of[k].s) == same && (hash[i] == hash[k]) == same) continue;
            test_fail(__FILE__, __LINE__, "\"%s\" and \"%s\": equal %d, hashes %d", text[i], text[k],
                      mesh_spec_equal(&p.of[i].s, &p.of[k].s), hash[i] == hash[k]);
            return;
        }
    CHECK(p.n > 60);
}

/* A place is taken exactly where its dim, order, op and kind are ones that there are; what is refused leaves the spec as it was. */
static void test_spec_places(void) {
    int v, ndim, k;
    mesh m, two;
    CHECK_INT(mesh_parse(&m, "a=2", 0, NULL), 0);
    CHECK_INT(mesh_parse(&two, "a=2,b=3", 0, NULL), 0);
    for (v = -600; v <= 600; v++) {
        mesh_place place;
        mesh_spec s, before;
        mesh_error err;
        memset(&s, 0x5a, sizeof s);
        before = s;
        for (ndim = -1; ndim <= 9; ndim++) {
            int good = ndim <= 8 && v >= -ndim && v < ndim;
            place = mesh_shard(v);
            CHECK_INT(mesh_spec_make(&s, &m, &place, ndim, &err), good ? MESH_OK : MESH_ERR_ARGUMENT);
            if (good) CHECK_INT(s.axis[0].dim, v < 0 ? v + ndim : v);
            if (good) s = before;
            CHECK(!memcmp(&s, &before, sizeof s));
            place = mesh_shard_at(v, 0);
            CHECK_INT(mesh_spec_make(&s, &m, &place, ndim, &err), good ? MESH_OK : MESH_ERR_ARGUMENT);
            s = before;
        }
        place = mesh_shard_at(0, v);
        CHECK_INT(mesh_spec_make(&s, &m, &place, 1, &err), v ? MESH_ERR_ARGUMENT : MESH_OK);
        place = mesh_partial((mesh_op)v);
        CHECK_INT(mesh_spec_make(&s, &m, &place, 1, &err), v >= 0 && v <= MESH_XOR ? MESH_OK : MESH_ERR_ARGUMENT);
        place = mesh_replicate(), place.kind = (uint8_t)v;
        if (v >= 0 && v < 256 && v != MESH_SHARD)
            CHECK_INT(mesh_spec_make(&s, &m, &place, 1, &err), v <= MESH_INVARIANT ? MESH_OK : MESH_ERR_ARGUMENT);
    }
    for (k = 0; k <= MESH_XOR; k++) { /* each op as text and back, alone and beside each other one */
        char text[64];
        mesh_spec s;
        mesh_error err;
        snprintf(text, sizeof text, "a:P(%s)", mesh_op_name((mesh_op)k));
        CHECK_OK(mesh_spec_parse(&s, &m, text, 0, &err), err);
        CHECK(s.axis[0].kind == MESH_PARTIAL && s.axis[0].op == k);
        for (v = 0; v <= MESH_XOR; v++) {
            snprintf(text, sizeof text, "a:P(%s) b:P(%s)", mesh_op_name((mesh_op)k), mesh_op_name((mesh_op)v));
            CHECK_INT(mesh_spec_parse(&s, &two, text, 0, &err), k == v ? MESH_OK : MESH_ERR_ARGUMENT);
        }
    }
}

/* Every size in 0..40, and sizes up to 2^63 - 1: parts follow one another and make the whole; where an element is found it is; and both
   rules are what the header says of them. */
static void test_spec_parts(void) {
    test_random r = random_from(53);
    int trial;
    for (trial = 0; trial < 30000 && !test_failures; trial++) {
        int64_t n = trial % 3 ? random_below(&r, 41) : (int64_t)(random_next(&r) >> (1 + random_below(&r, 30))), k, at = 0, i;
        int rule = random_below(&r, 2);
        if (trial % 9 == 0) n = INT64_MAX - random_below(&r, 70);
        k = 1 + (trial % 2 ? random_below(&r, 12) : random_below(&r, 1 << random_below(&r, 30)));
        for (i = 0; i < k; i += 1 + (k > 40 && i >= 20 && i < k - 20 ? k - 40 : 0)) {
            int64_t low = 100, high = n < INT64_MAX - 100 ? n + 100 : n, size = high - low, c, from, to;
            c = size / k + (size % k != 0);
            if (rule == MESH_RULE_BALANCED) {
                from = size / k * i + (i < size % k ? i : size % k), to = from + size / k + (i < size % k);
            } else {
                from = c && i > size / c ? size : c * i, to = c && i + 1 > size / c ? size : c * (i + 1);
            }
            mesh__part_cut(rule, k, i, &low, &high);
            CHECK_INT(low - 100, from);
            CHECK_INT(high - 100, to);
            if (k <= 40) CHECK_INT(low - 100, at);
            at = high - 100;
            if (from < to) {
                int64_t x = from + (int64_t)(random_next(&r) % (uint64_t)(to - from)) + 100;
                low = 100, high = size + 100;
                CHECK_INT(mesh__part_find(rule, k, x, &low, &high), i);
                CHECK(low == from + 100 && high == to + 100);
            }
        }
    }
}

/* Boxes of up to 3 dims, apart, touching and overlapping, compared with all their elements; and pieces of boxes that reach beyond. */
static void test_spec_boxes(void) {
    test_random r = random_from(59);
    static const int64_t minus = -1;
    mesh m;
    mesh_spec s;
    mesh_error err;
    int trial, d;
    CHECK_OK(mesh_parse(&m, "a=2,b=3,c=2", 0, &err), err);
    for (trial = 0; trial < 20000 && !test_failures; trial++) {
        int ndim = random_below(&r, 4), share = 1;
        int64_t shape[3], index[3], count = 1, covered = 0;
        mesh_box a, b, both;
        mesh_pieces p;
        mesh_layout on;
        mesh_place place[3];
        a.ndim = b.ndim = ndim;
        a.zero = b.zero = 0;
        for (d = 0; d < ndim; d++) {
            int64_t low, high;
            a.offset[d] = random_below(&r, 9) - 3, b.offset[d] = random_below(&r, 9) - 3;
            a.shape[d] = random_below(&r, 6), b.shape[d] = random_below(&r, 6);
            shape[d] = random_below(&r, 8);
            low = a.offset[d] > b.offset[d] ? a.offset[d] : b.offset[d];
            high = a.offset[d] + a.shape[d] < b.offset[d] + b.shape[d] ? a.offset[d] + a.shape[d]
                                                                        : b.offset[d] + b.shape[d];
            count *= high > low ? high - low : 0;
            share &= high > low;
        }
        CHECK_INT(mesh_box_intersect(&both, &a, &b), share);
        CHECK_INT(mesh_box_count(&both), count);
        for (d = 0; d < ndim; d++) CHECK(both.shape[d] >= 0);
        for (d = 0; d < 3; d++)
            place[d] = ndim && random_below(&r, 3) ? mesh_shard(random_below(&r, ndim)) : mesh_replicate();
        CHECK_OK(mesh_spec_make(&s, &m, place, ndim, &err), err);
        s.rule = (uint8_t)random_below(&r, 2);
        on = layout_of(&m, &s, ndim, shape);
        for (mesh_pieces_start(&p, &on, &a); mesh_pieces_next(&p);) {
            mesh_box shard;
            CHECK(mesh_layout_box(&on, p.rank, &shard) > 0);
            CHECK_INT(mesh_box_intersect(&both, &shard, &a), 1);
            CHECK_INT(mesh_box_count(&p.piece), mesh_box_count(&both));
            for (d = 0; d < ndim; d++) {
                CHECK(p.piece.offset[d] == both.offset[d] && p.piece.shape[d] == both.shape[d]);
                index[d] = p.piece.offset[d] + random_below(&r, (int)p.piece.shape[d]);
            }
            CHECK_INT(mesh_layout_owner(&on, index, 0), p.rank);
            CHECK_INT(mesh_layout_owner(&on, index, -1), -1);
            covered += mesh_box_count(&p.piece);
        }
        CHECK_INT(mesh_pieces_next(&p), 0); /* and remains at the end */
        for (count = 1, d = 0; d < ndim; d++) {
            int64_t low = a.offset[d] > 0 ? a.offset[d] : 0, high = a.offset[d] + a.shape[d];
            if (high > shape[d]) high = shape[d];
            count *= high > low ? high - low : 0;
            index[d] = 0;
        }
        CHECK_INT(covered, count);
        for (d = 0; d < ndim; d++) { /* just outside along one dim */
            index[d] = shape[d];
            CHECK_INT(mesh_layout_owner(&on, index, 0), -1);
            index[d] = minus;
            CHECK_INT(mesh_layout_owner(&on, index, 0), -1);
            index[d] = 0;
        }
    }
}

/* ---- errors beyond those of a subject's own list ---- */

static void test_law_refused(void) {
    static const char *const orders[] = {"tp-dp,pp", "tp,dp-pp", "pp,dp,tp,etp", "pp,dp,tp,ep,etp", "efsdp,ep", "efsdp,etp",
                                         "pp,cp,dp,cp", "-", "dp,"};
    static const char *const specs[] = {"dp:P(sum tp:R", "dp:P(sumx) tp:R", "dp:P(s) tp:R", "dp:S(0) balancedstrict",
                                        "dp:S(0) balanced strict x", "dp:S(0)@256", "dp:S(256)", "strict balanced"};
    static const char *const dims[] = {"[dp] P(sum over tp", "[dp] balancedstrict", "[dp] [tp] x", "P(sum) over", "[dp]P"};
    mesh m, r, before, wide, table;
    mesh_table devices;
    mesh_spec s, spec_before;
    mesh_error err;
    mesh_degrees degrees = MESH_ZERO;
    mesh_desc d = MESH_ZERO;
    int64_t shape[3] = {INT64_MAX / 2, 2, 1}, pad = 13;
    char text[400];
    size_t k;
    int i, n, four = 4, none = 0, ranks[4] = {0, 1, 2, 3}, inverse[4];
    CHECK_OK(mesh_parse(&m, "dp=4,tp=2", 0, &err), err);
    memset(&r, 0x5a, sizeof r);
    before = r;
    degrees.world = 8, degrees.dp_shard = -1;
    for (k = 0; k < sizeof orders / sizeof orders[0]; k++) {
        CHECK_INT(mesh_from_degrees(&r, &degrees, orders[k], &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, orders[k]);
    }
    degrees.ep = -1, degrees.dp_shard = 8; /* no factor of the world there */
    CHECK_INT(mesh_from_degrees(&r, &degrees, "torchtitan", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "ep cannot be -1");
    CHECK(!memcmp(&r, &before, sizeof r));
    CHECK_INT(mesh_parse(&r, "dp=18446744073709551618", 0, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_flatten(&r, &m, "dp,tp,dp", "x", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "axis \"dp\" occurs twice");
    CHECK_OK(mesh_parse(&wide, "a=2,b=2,c=2", 0, &err), err);
    for (i = 0; i < 3; i++) { /* a name that another axis has, wherever that stands */
        char name[2] = {(char)('a' + i), 0};
        CHECK_INT(mesh_flatten(&r, &wide, i == 0 ? "b,c" : i == 1 ? "a,c" : "a,b", name, &err), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_rename(&r, &wide, i ? "a" : "b", name, &err), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_split(&r, &wide, i ? "a" : "b", i == 0   ? "x=2,a=1"
                                                       : i == 1 ? "b=2"
                                                                : "x=1,c=2", &err), MESH_ERR_ARGUMENT);
    }
    CHECK(!memcmp(&r, &before, sizeof r));
    d.shape = NULL, d.naxes = 1;
    CHECK_INT(mesh_make(&r, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "desc.shape is NULL");
    d.shape = &four, d.strides = &none;
    CHECK_INT(mesh_make(&r, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "axis \"dim0\" has stride 0; a stride is at least 1");
    d.strides = NULL, i = 2;
    CHECK_INT(mesh_dims_create(6, 1, &i, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "multiply to 2, not to size 6");
    for (n = 15; n <= 17; n++) { /* 16 axes are as many as there are, however they come about */
        mesh one;
        for (text[0] = 0, i = 0; i < n - 1; i++) sprintf(text + strlen(text), "%sa%d=%d", i ? "," : "", i, i == 0 ? 2 : 1);
        CHECK_OK(mesh_parse(&wide, text, 0, &err), err);
        CHECK_INT(mesh_split(&r, &wide, "a0", "x=2,y=1", &err), n <= 16 ? MESH_OK : MESH_ERR_ARGUMENT);
        CHECK_OK(mesh_parse(&one, "z=1", 0, &err), err);
        CHECK_INT(mesh_concat(&r, &wide, &one, 0, &err), n <= 16 ? MESH_OK : MESH_ERR_ARGUMENT);
        strcat(text, ",z=1");
        CHECK_INT(mesh_parse(&r, text, 0, &err), n <= 16 ? MESH_OK : MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_compose(&r, &m, &wide, &err), MESH_OK);
    }
    CHECK_OK(mesh_table_make(&devices, ranks, 4, inverse, 4, &err), err);
    d.shape = &four, d.table = &devices;
    CHECK_OK(mesh_make(&table, &d, &err), err);
    CHECK_INT(mesh_compose(&r, &m, &table, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "inner mesh stands on a device table");
    ranks[2] = 9;
    CHECK_INT(mesh_table_make(&devices, ranks, 4, inverse, 4, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(err.rank, 9);
    CHECK_INT(mesh_group_through(&r, &m, "dp", 77, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(err.rank, 77);
    for (n = 118; n <= 121; n++) { /* a mesh in a message: whole, up to 119 bytes; then marked as cut */
        char from[sizeof text + 3];
        for (text[0] = 0, i = 0; i < 12; i++) sprintf(text + strlen(text), "axis%02d=1,", i);
        sprintf(text + strlen(text), "%.*s=1", n - 108 - 2, "abcdefghijklmno");
        CHECK_INT(strlen(text), n);
        CHECK_OK(mesh_parse(&wide, text, 0, &err), err);
        snprintf(from, sizeof from, "\"%s\"", text);
        CHECK_INT(mesh_fix(&r, &wide, "nope", 0, &err), MESH_ERR_ARGUMENT);
        CHECK_INT(strstr(err.text, from) != NULL, n < 120);
        CHECK_INT(strstr(err.text, "~\"") != NULL, n >= 120);
    }
    CHECK_OK(mesh_spec_parse(&s, &m, "dp:S(0) tp:S(0)", 3, &err), err);
    spec_before = s;
    for (k = 0; k < sizeof specs / sizeof specs[0]; k++)
        CHECK_INT(mesh_spec_parse(&s, &m, specs[k], 3, &err), MESH_ERR_ARGUMENT);
    for (k = 0; k < sizeof dims / sizeof dims[0]; k++)
        CHECK_INT(mesh_spec_parse_dims(&s, &m, dims[k], 3, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_spec_parse_dims(&s, &m, NULL, 3, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_spec_parse(&s, &m, NULL, 3, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_spec_parse(&s, &m, "dp:S(5)", 3, &err), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_spec_parse_dims(&s, &m, "[dp]", 0, &err), MESH_ERR_ARGUMENT);
    CHECK(!memcmp(&s, &spec_before, sizeof s));
    CHECK_OK(spec_check(&s, &m, 3, shape, &err), err); /* 2^63 - 2 elements */
    shape[2] = 2;
    CHECK_INT(spec_check(&s, &m, 3, shape, &err), MESH_ERR_ARGUMENT);
    s.axis[0].order = MESH_ORDER_DEFAULT, s.axis[1].order = MESH_ORDER_DEFAULT;
    CHECK_INT(spec_check(&s, &m, 1, &pad, &err), MESH_ERR_ARGUMENT); /* not yet made */
    CHECK_HAS(err.text, "was not made for");
    s = spec_before, s.strict = 1;
    for (pad = 0; pad < 40; pad++) {
        CHECK_INT(spec_check(&s, &m, 1, &pad, &err), pad % 8 ? MESH_ERR_ARGUMENT : MESH_OK);
        snprintf(text, sizeof text, "pad it to %d,", (int)(pad / 8 + 1) * 8);
        if (pad % 8) CHECK_HAS(err.text, text);
    }
}

static const test_case laws_tests[] = {
    {"mesh/law/equal", test_law_equal, 0},       {"mesh/law/members", test_law_members, 0},
    {"mesh/law/make", test_law_make, 0},         {"mesh/law/join", test_law_join, 0},
    {"mesh/law/dims", test_law_dims, 0},         {"mesh/law/degrees", test_law_degrees, 0},
    {"mesh/law/room", test_law_room, 0},         {"mesh/law/names", test_law_names, 0},
    {"mesh/law/lists", test_law_lists, 0},       {"mesh/law/sentences", test_law_sentences, 0},
    {"mesh/law/dtypes", test_law_dtypes, 0},     {"mesh/law/pictures", test_law_pictures, 0},
    {"mesh/law/refused", test_law_refused, 0},   {"spec/law/equal", test_spec_equal, 0},
    {"spec/law/places", test_spec_places, 0},    {"spec/law/parts", test_spec_parts, 0},
    {"spec/law/boxes", test_spec_boxes, 0},
};

#endif
