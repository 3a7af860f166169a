/* Laws of calls: which algorithm serves one, up to its bounds; many ranks; halos of any widths; large gathers and sums as
   redistributions. */
#ifndef T_CALLS_H
#define T_CALLS_H

/* ---- a row of the table counts up to its ranks and its bytes, and no further; the first that fits does ---- */

static mesh_status table_call(mesh_comm *c, int call, size_t count, const float *a, float *b) {
    switch (call) {
    case MESH_CALL_ALL_REDUCE:
        return mesh_all_reduce(c, NULL, a, b, count, MESH_F32, MESH_SUM);
    case MESH_CALL_REDUCE:
        return mesh_reduce(c, NULL, a, b, count, MESH_F32, MESH_SUM, 1);
    case MESH_CALL_BROADCAST:
        return mesh_broadcast(c, NULL, a, b, count, MESH_F32, 1);
    case MESH_CALL_ALL_GATHER:
        return mesh_all_gather(c, NULL, a, b, count, MESH_F32);
    case MESH_CALL_REDUCE_SCATTER:
        return mesh_reduce_scatter(c, NULL, a, b, count, MESH_F32, MESH_SUM);
    case MESH_CALL_ALL_TO_ALL:
        return mesh_all_to_all(c, NULL, a, b, count, MESH_F32);
    case MESH_CALL_GATHER:
        return mesh_gather(c, NULL, a, b, count, MESH_F32, 1);
    case MESH_CALL_SCATTER:
        return mesh_scatter(c, NULL, a, b, count, MESH_F32, 1);
    case MESH_CALL_SCAN:
        return mesh_scan(c, NULL, a, b, count, MESH_F32, MESH_SUM);
    default:
        return mesh_exscan(c, NULL, a, b, count, MESH_F32, MESH_SUM);
    }
}

/* What a call posts: a hash of every transfer, post by post. */
static uint64_t table_posts(noter *w, mesh_comm *c, const mesh_tuning *tuning, int call, size_t count) {
    static float a[5][800], b[5][800];
    uint64_t h = 1;
    int i, first = w->posts, me = w->s.base.rank;
    mesh__impl(c)->tuning = *tuning; /* on every rank alike */
    w->notes = 0;
    CHECK_OK(table_call(c, call, count, a[me], b[me]), c->error);
    for (i = 0; i < w->notes; i++) {
        const note *n = &w->noted[i];
        h = mesh__mix(mesh__mix(mesh__mix(mesh__mix(h, n->nbytes), (uint64_t)n->direction), (uint64_t)n->rank),
                      (uint64_t)(n->post - first));
    }
    return h;
}

static void row_add(mesh_tuning *t, int call, int algorithm, int ranks, uint64_t bytes, uint32_t segment) {
    mesh_tuning_row *row = &t->row[t->nrows++];
    row->call = (uint8_t)call, row->algorithm = (uint8_t)algorithm, row->ranks = (uint16_t)ranks, row->bytes = bytes,
    row->segment = segment;
}

/* Three ranks on one host, two on another. */
static int rows_locality(mesh_transport *t, int rank) {
    (void)t;
    return rank / 3;
}

static void rows_rank(mesh_transport *t, void *ctx) {
    static const int calls[] = {
        MESH_CALL_ALL_REDUCE, MESH_CALL_REDUCE, MESH_CALL_BROADCAST, MESH_CALL_ALL_GATHER, MESH_CALL_REDUCE_SCATTER,
        MESH_CALL_ALL_TO_ALL, MESH_CALL_GATHER, MESH_CALL_SCATTER,   MESH_CALL_SCAN,       MESH_CALL_EXSCAN};
    enum { COUNT = 50, N = 5 };
    static noter writers[N];
    noter *w = &writers[t->rank];
    const uint64_t bytes = COUNT * 4;
    mesh_comm c;
    size_t k;
    (void)ctx;
    noter_make(w, t);
    w->s.ops.locality = rows_locality;
    if (!open_comm(&w->s.base, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (k = 0; k < sizeof calls / sizeof *calls; k++) {
        int call = calls[k], a, b;
        for (a = 1; a < MESH_ALGORITHM_COUNT; a++)
            for (b = 1; b < MESH_ALGORITHM_COUNT; b++) {
                mesh_tuning only_a = MESH_ZERO, only_b = MESH_ZERO, short_a = MESH_ZERO, odd = MESH_ZERO;
                uint64_t by_a, by_b, by_short;
                int way;
                if (a == b || !mesh_algorithm_serves((mesh_algorithm)a, call) ||
                    !mesh_algorithm_serves((mesh_algorithm)b, call))
                    continue;
                row_add(&only_a, call, a, UINT16_MAX, UINT64_MAX, 0);
                row_add(&only_b, call, b, UINT16_MAX, UINT64_MAX, 0);
                row_add(&short_a, call, a, UINT16_MAX, UINT64_MAX, 80);
                by_a = table_posts(w, &c, &only_a, call, COUNT);
                by_b = table_posts(w, &c, &only_b, call, COUNT);
                by_short = table_posts(w, &c, &short_a, call, COUNT);
                for (way = 0; way < 8; way++) {
                    mesh_tuning t2 = MESH_ZERO;
                    uint64_t want = way % 2 ? by_b : by_a, got;
                    if (way == 0) row_add(&t2, call, a, N, UINT64_MAX, 0);
                    if (way == 1) row_add(&t2, call, a, N - 1, UINT64_MAX, 0);
                    if (way == 2) row_add(&t2, call, a, UINT16_MAX, bytes, 0);
                    if (way == 3) row_add(&t2, call, a, UINT16_MAX, bytes - 1, 0);
                    if (way == 4) row_add(&t2, call, a, N, bytes, 0);
                    if (way == 5) row_add(&t2, MESH_CALL_BARRIER, a, N, bytes, 0); /* another call's row */
                    if (way == 6)
                        row_add(&t2, call, MESH_ALGORITHM_NONE, N, bytes, 0),
                            row_add(&t2, call, a, N, bytes, 0); /* none serves nothing */
                    if (way == 7) row_add(&t2, call, a, N, bytes - 1, 80), row_add(&t2, call, a, N - 1, bytes, 80);
                    row_add(&t2, call, b, UINT16_MAX, UINT64_MAX, 0);
                    row_add(&t2, call, a, UINT16_MAX, UINT64_MAX, 80);
                    got = table_posts(w, &c, &t2, call, COUNT);
                    if (got != want)
                        test_fail(__FILE__, __LINE__, "%s by %s or %s, way %d", mesh__call_name(call),
                                  mesh__algorithm_names[a], mesh__algorithm_names[b], way);
                }
                row_add(&odd, call, a, N, bytes, 83); /* a segment is whole elements: 20 of them, as with 80 */
                CHECK(table_posts(w, &c, &odd, call, COUNT) == by_short);
            }
    }
    mesh_comm_close(&c);
    mesh_transport_detach(&w->s.base);
}
static void test_rows(void) { run_world(SIM, 5, rows_rank, NULL); }

/* Blocks with counts of their own, of several segments (256 KiB): each is whole, the later ranks' larger ones too, and the empty one. */
static void counted_segments_rank(mesh_transport *t, void *ctx) {
    enum { UNIT = 40000 };
    int n = t->size, me = t->rank, way, i, r;
    size_t counts[8], at = 0, k, total = 0, room = (size_t)(n * n) * UNIT;
    int32_t *send = (int32_t *)malloc(room * sizeof *send), *recv = (int32_t *)malloc(room * sizeof *recv);
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (way = 0; way < 3; way++) { /* the first, a middle or the last is the largest */
        for (total = at = 0, i = 0; i < n; i++) {
            counts[i] = (size_t)(way == 0 ? n - 1 - i : way == 1 ? (i + n / 2) % n : i) * UNIT;
            if (i < me) at += counts[i];
            total += counts[i];
        }
        for (k = 0; k < total; k++) send[k] = (int32_t)(1000 * me + (int)k);
        for (k = 0; k < room; k++) recv[k] = -1;
        CHECK_OK(mesh_reduce_scatter_v(&c, NULL, send, recv, counts, NULL, MESH_I32, MESH_SUM), c.error);
        for (k = 0; k < room; k++) {
            int32_t want = -1;
            if (k < counts[me])
                for (want = 0, r = 0; r < n; r++) want += (int32_t)(1000 * r + (int)(at + k));
            if (recv[k] != want) break;
        }
        if (k < room) test_fail(__FILE__, __LINE__, "way %d of %d: element %zu", way, n, k);
    }
    CHECK_INT(mesh_comm_close(&c), MESH_OK);
    free(send), free(recv);
}
static void test_counted_segments(void) {
    run_world(SIM, 3, counted_segments_rank, NULL);
    run_world(SIM, 5, counted_segments_rank, NULL);
    run_world(TCP, 4, counted_segments_rank, NULL);
}

/* An element larger than a segment is a segment. */
static void large_elements_rank(mesh_transport *t, void *ctx) {
    static const int kinds[] = {MESH_ALGORITHM_RING, MESH_ALGORITHM_DIRECT};
    mesh_comm c;
    int k, i;
    static uint64_t a[3][90], b[3][90];
    (void)ctx;
    for (k = 0; k < 2; k++) {
        mesh_tuning tuning = MESH_ZERO;
        mesh_comm_desc desc = MESH_ZERO;
        row_add(&tuning, MESH_CALL_ALL_REDUCE, kinds[k], UINT16_MAX, UINT64_MAX, 3);
        desc.tuning = &tuning, desc.timeout_ns = 20 * SECOND;
        if (!open_with(t, &c, "x=3", &desc)) return;
        for (i = 0; i < 90; i++) a[t->rank][i] = (uint64_t)i << (8 * t->rank);
        CHECK_OK(mesh_all_reduce(&c, NULL, a[t->rank], b[t->rank], 90, MESH_U64, MESH_SUM), c.error);
        for (i = 0; i < 90; i++) CHECK(b[t->rank][i] == (uint64_t)i * 0x10101);
        mesh_comm_close(&c);
    }
}
static void test_large_elements(void) { run_world(SIM, 3, large_elements_rank, NULL); }

/* ---- tables as text: written and read again they are the same, whatever they hold; what is no table is told by its line ---- */

static void test_table_text(void) {
    static const struct {
        const char *row;
        int good;
    } cases[] = {{"scan ranks<=65534 bytes<=18446744073709551614 chain segment=4294967295", 1},
                 {"scan ranks<=65535 bytes<=1 chain", 0},
                 {"scan ranks<=1 bytes<=18446744073709551615 chain", 0},
                 {"scan ranks<=1 bytes<=18446744073709551620 chain", 0},
                 {"scan ranks<=1 bytes<=1 chain segment=4294967296", 0},
                 {"scan ranks<=1 bytes<=1 chain segment=*", 0},
                 {"scan ranks<=1 bytes<=1 chain segment=", 0},
                 {"scan ranks<=1 bytes<=1 chain segment=1x", 0},
                 {"scan ranks<=1x bytes<=1 chain", 0},
                 {"scan ranks<=** bytes<=1 chain", 0},
                 {"scan ranks<= bytes<=1 chain", 0},
                 {"scan ranks<1 bytes<=1 chain", 0},
                 {"scan ranks<=1 bytes<=1", 0},
                 {"scan ranks<=1 bytes<=1 chainchainchainchainchainchainchainchain", 0},
                 {"barrier ranks<=1 bytes<=1 direct", 0},
                 {"all_gather_many ranks<=1 bytes<=1 ring", 0},
                 {"none ranks<=1 bytes<=1 ring", 0},
                 {"all_to_all ranks<=* bytes<=* ring", 0},
                 {"\tscan   ranks<=1\tbytes<=1 \tchain # ranks", 1},
                 {"scan ranks<=1 bytes<=1 chain segment=0000000000000000000000000000000000000000000080",
                  0}, /* longer than a word: not cut to another number */
                 {"scan ranks<=1 bytes<=1 chain segment=000000000000000000000080", 0}, /* by one */
                 {"scan ranks<=1 bytes<=1 chain segment=00000000000000000000080", 1},
                 {"scan ranks<=00000000000000000000000012 bytes<=1 chain", 0},
                 {"scan ranks<=1 bytes<=1 chain#", 1}};
    test_random r = random_from(801);
    char text[8000], again[8000];
    mesh_tuning t, back;
    mesh_error err;
    size_t k;
    int round, i;
    for (k = 0; k < sizeof cases / sizeof *cases; k++)
        for (i = 0; i < 3; i++) { /* in line 1, 2 and 4 */
            int line = 1 << i;
            char want[40];
            snprintf(text, sizeof text, "%s%s\nscan ranks<=2 bytes<=7 chain\n",
                     i == 0   ? ""
                     : i == 1 ? "# a comment\n"
                              : "\nscan ranks<=3 bytes<=7 chain\n  \t\n",
                     cases[k].row);
            snprintf(want, sizeof want, "line %d", line);
            if ((mesh_tuning_parse(&t, text, &err) == MESH_OK) != cases[k].good)
                test_fail(__FILE__, __LINE__, "\"%s\": %s", cases[k].row, err.text);
            if (!cases[k].good) CHECK_HAS(err.text, want);
            if (cases[k].good) CHECK_INT(t.nrows, i == 2 ? 3 : 2);
        }
    for (round = 0; round < 200; round++) {
        memset(&t, 0, sizeof t);
        for (i = random_below(&r, MESH_MAX_TUNING + 1); t.nrows < i;) {
            int call = 1 + random_below(&r, MESH_CALL_COUNT - 1), a = 1 + random_below(&r, MESH_ALGORITHM_COUNT - 1);
            if (!mesh_algorithm_serves((mesh_algorithm)a, call) || mesh__single_kind(call) != call) continue;
            row_add(&t, call, a,
                    random_below(&r, 4)
                        ? random_below(&r, 4) ? (int)(random_next(&r) & 0xffff) : 65534 + random_below(&r, 2)
                        : random_below(&r, 9),
                    random_below(&r, 4) ? random_next(&r) >> random_below(&r, 64) : UINT64_MAX,
                    random_below(&r, 3) ? 0 : (uint32_t)random_next(&r));
        }
        CHECK(mesh_tuning_format(&t, text, sizeof text) < sizeof text);
        CHECK_OK(mesh_tuning_parse(&back, text, &err), err);
        CHECK(!memcmp(&t, &back, sizeof t));
        CHECK_INT(mesh_tuning_format(&t, again, 10), strlen(text)); /* and cut where there is no room */
        CHECK(strlen(again) == (strlen(text) < 9 ? strlen(text) : 9) && !strncmp(again, text, 9));
    }
    for (i = 1; i < MESH_CALL_COUNT;
         i++) { /* a list's algorithms are those of its single form; each call's are said in MESH_ALGORITHMS */
        static const struct {
            int call;
            const char *by;
        } want[] = {{MESH_CALL_ALL_REDUCE, "doubling halving ring direct levels "},
                    {MESH_CALL_REDUCE, "direct binomial "},
                    {MESH_CALL_GATHER, "direct binomial "},
                    {MESH_CALL_SCATTER, "direct binomial "},
                    {MESH_CALL_BROADCAST, "binomial scatter chain levels "},
                    {MESH_CALL_ALL_GATHER, "doubling ring direct bruck levels "},
                    {MESH_CALL_REDUCE_SCATTER, "halving direct levels "},
                    {MESH_CALL_ALL_TO_ALL, "direct bruck levels "},
                    {MESH_CALL_SCAN, "doubling chain "},
                    {MESH_CALL_EXSCAN, "doubling chain "}};
        const char *by = "";
        char got[100] = "";
        int a;
        for (k = 0; k < sizeof want / sizeof *want; k++)
            if (mesh__single_kind(i) == want[k].call) by = want[k].by;
        for (a = 0; a <= MESH_ALGORITHM_COUNT; a++)
            if (mesh_algorithm_serves((mesh_algorithm)a, i)) strcat(strcat(got, mesh__algorithm_names[a]), " ");
        CHECK_STR(got, by);
    }
}

/* ---- more ranks than are served at once ---- */

static void forty_rank(mesh_transport *t, void *ctx) {
    enum { N = 40, COUNT = 90 };
    static noter writers[N];
    static int32_t a[N][N * COUNT], b[N][N * COUNT];
    static float f[N][2][COUNT];
    noter *w = &writers[t->rank];
    int me = t->rank, i, k, wrong = 0;
    mesh_tuning tuning;
    mesh_error err;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    (void)ctx;
    noter_make(w, t);
    CHECK_OK(
        mesh_tuning_parse(
            &tuning,
            "all_reduce ranks<=* bytes<=* direct segment=4\nreduce_scatter ranks<=* bytes<=* direct segment=100\nreduce ranks<=* bytes<=* direct segment=4\n"
            "gather ranks<=* bytes<=* direct\nscatter ranks<=* bytes<=* direct\nall_gather ranks<=* bytes<=* direct\nall_to_all ranks<=* bytes<=* direct",
            &err),
        err);
    desc.tuning = &tuning, desc.timeout_ns = 20 * SECOND;
    if (!open_with(&w->s.base, &c, "x=-1", &desc)) return;
    for (i = 0; i < N * COUNT; i++) a[me][i] = me * 100000 + i;
    CHECK_OK(mesh_all_to_all(&c, NULL, a[me], b[me], COUNT, MESH_I32), c.error);
    for (i = 0; i < N * COUNT; i++) wrong += b[me][i] != i / COUNT * 100000 + me * COUNT + i % COUNT;
    CHECK_OK(mesh_all_gather(&c, NULL, a[me], b[me], COUNT, MESH_I32), c.error);
    for (i = 0; i < N * COUNT; i++) wrong += b[me][i] != i / COUNT * 100000 + i % COUNT;
    CHECK_OK(mesh_gather(&c, NULL, a[me], b[me], COUNT, MESH_I32, 7), c.error);
    for (i = 0; i < N * COUNT; i++) wrong += b[me][i] != i / COUNT * 100000 + i % COUNT;
    CHECK_OK(mesh_scatter(&c, NULL, a[me], b[me], COUNT, MESH_I32, 7), c.error);
    for (i = 0; i < COUNT; i++) wrong += b[me][i] != 700000 + me * COUNT + i;
    CHECK_INT(wrong, 0);
    for (k = 0; k < 4; k++) {
        int average = k % 2;
        for (i = 0; i < COUNT; i++) f[me][0][i] = (float)(me + i);
        if (k < 2) {
            CHECK_OK(mesh_all_reduce(&c, NULL, f[me][0], f[me][1], COUNT, MESH_F32, average ? MESH_AVG : MESH_SUM),
                     c.error);
        } else {
            CHECK_OK(mesh_reduce(&c, NULL, f[me][0], f[me][1], COUNT, MESH_F32, average ? MESH_AVG : MESH_SUM, 7),
                     c.error);
            if (me != 7) continue;
        }
        for (i = 0; i < COUNT; i++) wrong += f[me][1][i] != (average ? 19.5f + (float)i : (float)(780 + 40 * i));
    }
    for (i = 0; i < N * 9; i++) ((float *)(void *)a[me])[i] = (float)(me + i);
    for (k = 0; k < 2; k++) {
        CHECK_OK(mesh_reduce_scatter(&c, NULL, a[me], f[me][1], 9, MESH_F32, k ? MESH_AVG : MESH_SUM), c.error);
        for (i = 0; i < 9; i++)
            wrong += f[me][1][i] != (k ? 19.5f + (float)(me * 9 + i) : (float)(780 + 40 * (me * 9 + i)));
    }
    CHECK_INT(wrong, 0);
    CHECK(w->most <= 3 * 2 * MESH__ROUND + 2 * N); /* partners at once; the segments of one step more */
    mesh_comm_close(&c);
    mesh_transport_detach(&w->s.base);
}
static void test_forty(void) { run_world(SIM, 40, forty_rank, NULL); }

/* In rounds of partners no more than those are served at once. */
static void rounds_rank(mesh_transport *t, void *ctx) {
    static noter writers[70];
    static char a[70][70], b[70][70];
    noter *w = &writers[t->rank];
    int k;
    mesh_tuning tuning;
    mesh_error err;
    mesh_comm c;
    mesh_comm_desc desc = MESH_ZERO;
    (void)ctx;
    noter_make(w, t);
    CHECK_OK(
        mesh_tuning_parse(
            &tuning,
            "gather ranks<=* bytes<=* direct\nscatter ranks<=* bytes<=* direct\nall_gather ranks<=* bytes<=* direct\nall_to_all ranks<=* bytes<=* direct",
            &err),
        err);
    desc.tuning = &tuning, desc.timeout_ns = 20 * SECOND;
    if (!open_with(&w->s.base, &c, "x=-1", &desc)) return;
    for (k = 0; k < 4; k++) {
        int posts = w->posts;
        w->most = w->under_way = 0;
        CHECK_OK(k == 0   ? mesh_all_to_all(&c, NULL, a[t->rank], b[t->rank], 1, MESH_U8)
                 : k == 1 ? mesh_all_gather(&c, NULL, a[t->rank], b[t->rank], 1, MESH_U8)
                 : k == 2 ? mesh_gather(&c, NULL, a[t->rank], b[t->rank], 1, MESH_U8, 3)
                          : mesh_scatter(&c, NULL, a[t->rank], b[t->rank], 1, MESH_U8, 3),
                 c.error);
        CHECK_INT(w->most, k < 2 ? 2 * MESH__ROUND : t->rank == 3 ? MESH__ROUND : 1);
        CHECK_INT(w->posts - posts, k < 2 || t->rank == 3 ? 3 : 1); /* 32 and 32 and 5 */
    }
    mesh_comm_close(&c);
    mesh_transport_detach(&w->s.base);
}
static void test_rounds(void) { run_world(SIM, 70, rounds_rank, NULL); }

/* ---- halos of any widths, over any mesh, against the whole array ---- */

static void halos_rank(mesh_transport *t, void *ctx) {
    static const char *const meshes[] = {"a=2,b=3", "a=6", "a=3,b=2", "a=1,b=6"};
    int problem;
    (void)ctx;
    for (problem = 0; problem < 60; problem++) {
        test_random r = random_from(820 + (uint64_t)problem); /* alike on every rank */
        mesh_halo h = MESH_ZERO;
        mesh_comm c;
        int coords[MESH_MAX_AXES], axis[3], k, sides[3];
        int64_t inner[3], cells = 1, i, wrong = 0;
        int32_t *a;
        if (!open_comm(t, &c, meshes[problem % 4], NULL, 20 * SECOND)) return;
        mesh_coords_of(&c.on, NULL, t->rank, coords);
        h.ndim = 1 + random_below(&r, 3);
        h.corners = random_below(&r, 2);
        for (k = 0; k < h.ndim; k++) {
            int j;
            axis[k] = random_below(&r, c.on.naxes + 1) - 1;
            for (j = 0; j < k; j++)
                if (axis[j] == axis[k]) axis[k] = -1;
            h.axis[k] = axis[k] < 0 ? NULL : c.on.axis[axis[k]].name;
            sides[k] = axis[k] < 0 ? 1 : c.on.axis[axis[k]].size;
            h.low[k] = random_below(&r, 4), h.high[k] = random_below(&r, 4);
            inner[k] = 3 + random_below(&r, 4);
            h.shape[k] = h.low[k] + inner[k] + h.high[k];
            h.periodic[k] = random_below(&r, 2);
            cells *= h.shape[k];
        }
        a = (int32_t *)malloc((size_t)cells * sizeof *a);
        for (k = 0; k < 2; k++) /* fill, then compare */
            for (i = 0; i < cells; i++) {
                int64_t rest = i, value = 0;
                int d, outside = 0, there = 1;
                for (d = h.ndim - 1; d >= 0; d--) {
                    int64_t at = rest % h.shape[d] - h.low[d], size = sides[d] * inner[d], g;
                    rest /= h.shape[d];
                    outside += at < 0 || at >= inner[d];
                    g = at + (axis[d] < 0 ? 0 : coords[axis[d]]) * inner[d];
                    if (g < 0 || g >= size) there &= h.periodic[d];
                    value = value * 97 + (g + size) % size;
                }
                if (k == 0) {
                    a[i] = outside ? -9 : (int32_t)value;
                    if (i == cells - 1) CHECK_OK(mesh_halo_exchange(&c, &h, a, MESH_I32), c.error);
                } else {
                    wrong += a[i] != (there && (outside < 2 || h.corners) ? (int32_t)value : -9);
                }
            }
        if (wrong)
            test_fail(__FILE__, __LINE__, "problem %d on \"%s\": %d of %d cells are wrong", problem,
                      meshes[problem % 4], (int)wrong, (int)cells);
        free(a);
        mesh_comm_close(&c);
    }
}
/* Parts of 3, 3 and 1 with halos of 2 below: from the last nobody takes anything. The other way round it is the first. */
static void thin_halo_rank(mesh_transport *t, void *ctx) {
    int above;
    (void)ctx;
    for (above = 0; above < 2; above++) {
        int inner = t->rank == (above ? 0 : 2) ? 1 : 3, k;
        int32_t a[5] = {-1, -1, -1, -1, -1};
        mesh_halo h = MESH_ZERO;
        mesh_comm c;
        if (!open_comm(t, &c, "x=3", NULL, 20 * SECOND)) return;
        h.ndim = 1, h.axis[0] = "x", h.shape[0] = 2 + inner;
        h.low[0] = above ? 0 : 2, h.high[0] = above ? 2 : 0;
        for (k = 0; k < inner; k++) a[h.low[0] + k] = 10 * t->rank + (above ? k : 3 - inner + k);
        CHECK_OK(mesh_halo_exchange(&c, &h, a, MESH_I32), c.error);
        for (k = 0; k < 2; k++) {
            int from = t->rank + (above ? 1 : -1), want = from < 0 || from > 2 ? -1 : 10 * from + (above ? k : 1 + k);
            CHECK_INT(a[above ? inner + k : k], want);
        }
        mesh_comm_close(&c);
    }
}
static void test_halos(void) {
    run_world(SIM, 6, halos_rank, NULL);
    run_world(SIM, 3, thin_halo_rank, NULL);
    run_world(TCP, 3, thin_halo_rank, NULL);
}

/* ---- shifts by anything; halves left out; blocks and counts that are gone after the start ---- */

static void shifts_rank(mesh_transport *t, void *ctx) {
    int d, periodic, n = t->size, me = t->rank, i;
    mesh_comm c;
    mesh_request r;
    int32_t a[3] = {me, me + 10, me + 20}, b[3];
    char history[30000];
    (void)ctx;
    if (!open_comm(t, &c, "x=-1", NULL, 20 * SECOND)) return;
    for (periodic = 0; periodic < 2; periodic++)
        for (d = -2 * n - 1; d <= 2 * n + 1; d++) {
            int from = me - d, wraps = ((from % n) + n) % n;
            for (i = 0; i < 3; i++) b[i] = -1;
            CHECK_OK(mesh_shift(&c, NULL, d, periodic, a, b, 3, MESH_I32), c.error);
            for (i = 0; i < 3; i++)
                CHECK_INT(b[i], periodic ? wraps + 10 * i : from >= 0 && from < n ? from + 10 * i : -1);
        }
    for (i = 0; i < 4; i++) { /* each half by itself, and neither */
        int to = i & 1 ? (me + 1) % n : -1, from = i & 2 ? (me + n - 1) % n : -1;
        mesh_request other = MESH_ZERO;
        b[0] = -1;
        CHECK_OK(mesh_sendrecv_start(&c, NULL, to, a, 1, from, b, 1, MESH_I32, &r), c.error);
        if (i == 1) CHECK_OK(mesh_recv_start(&c, NULL, (me + n - 1) % n, b, 1, MESH_I32, &other), c.error);
        if (i == 2) CHECK_OK(mesh_send_start(&c, NULL, (me + 1) % n, a, 1, MESH_I32, &other), c.error);
        CHECK_OK(mesh_wait(r), c.error);
        if (other.generation) CHECK_OK(mesh_wait(other), c.error);
        CHECK_INT(b[0], i ? (me + n - 1) % n : -1);
    }
    { /* a kept exchange and a kept gather by counts: what the call pointed to is gone */
        int32_t from[20], to[20], all[20];
        mesh_block *block = (mesh_block *)calloc(2, sizeof *block);
        size_t *counts = (size_t *)malloc(sizeof *counts * 8), *offsets = (size_t *)malloc(sizeof *offsets * 8);
        mesh_xfer x[2];
        mesh_request kept[2];
        int round;
        for (i = 0; i < 2; i++)
            block[i].run = 4, block[i].ndim = 1, block[i].dim[0].count = 5, block[i].dim[0].stride = i ? 8 : 12;
        x[0] = mesh__xfer(MESH_SEND, (me + 1) % n, from, 5, MESH_I32), x[0].block = &block[0];
        x[1] = mesh__xfer(MESH_RECV, (me + n - 1) % n, to, 5, MESH_I32), x[1].block = &block[1];
        for (i = 0; i < n; i++) counts[i] = (size_t)(i % 3), offsets[i] = (size_t)(3 * (n - 1 - i));
        for (round = 0; round < 3; round++) {
            for (i = 0; i < 20; i++) from[i] = 1000 * me + 10 * i + round, to[i] = all[i] = -1;
            if (round == 0) {
                CHECK_OK(mesh_exchange_start(&c, NULL, x, 2, &kept[0]), c.error);
                CHECK_OK(mesh_all_gather_v_start(&c, NULL, from, all, counts, offsets, MESH_I32, &kept[1]), c.error);
                memset(block, 0xff, 2 * sizeof *block), memset(counts, 0xff, sizeof *counts * 8),
                    memset(offsets, 0xff, sizeof *offsets * 8);
                memset(x, 0xff, sizeof x);
                free(block), free(counts), free(offsets);
                CHECK_INT(mesh_keep(kept[0]), MESH_OK);
                CHECK_INT(mesh_keep(kept[1]), MESH_OK);
            } else {
                CHECK_OK(mesh_restart(kept[0]), c.error);
                CHECK_OK(mesh_restart(kept[1]), c.error);
            }
            CHECK_OK(mesh_wait(kept[1]), c.error);
            CHECK_OK(mesh_wait(kept[0]), c.error);
            for (i = 0; i < 20; i++) {
                int who = n - 1 - i / 3;
                CHECK_INT(to[i], i % 2 || i / 2 >= 5 ? -1 : 1000 * ((me + n - 1) % n) + 10 * (i / 2 * 3) + round);
                CHECK_INT(all[i], i < 3 * n && i % 3 < who % 3 ? 1000 * who + 10 * (i % 3) + round : -1);
            }
        }
        mesh_comm_history(&c, history, sizeof history);
        CHECK_HAS(history, "exchange(40 x bytes)");
        CHECK_INT(mesh_release(kept[0]), MESH_OK);
        CHECK_INT(mesh_release(kept[1]), MESH_OK);
    }
    mesh_comm_close(&c);
}
static void test_shifts(void) { run_world(SIM, 5, shifts_rank, NULL); }

/* A native collective reads its counts and its list when it is started again: they are copies. */
static const mesh_call *native_seen;
static int native_refuses;
static mesh_status native_collective(mesh_transport *t, void *group, const mesh_call *call, mesh_ticket *ticket) {
    mesh_post mark;
    (void)group;
    if (!ticket) return MESH_OK;
    if (native_refuses) return MESH_ERR_TRANSPORT;
    native_seen = call;
    memset(&mark, 0, sizeof mark);
    mark.channel = call->channel;
    return shim_of(t)->inner->ops->post(shim_of(t)->inner, &mark, ticket);
}
static void native_args_rank(mesh_transport *t, void *ctx) {
    shim s;
    mesh_comm c;
    mesh_request r;
    int32_t a[8] = {0}, b[8];
    uint64_t sent = 0, received = 0, again_sent, again_received;
    int k;
    (void)ctx;
    shim_make(&s, t);
    s.ops.collective = native_collective;
    if (!open_comm(&s.base, &c, "x=1", NULL, 20 * SECOND)) return;
    for (k = 0; k < 2; k++) {
        size_t *counts = (size_t *)malloc(4 * sizeof *counts), i;
        mesh_buffer *list = (mesh_buffer *)malloc(2 * sizeof *list);
        for (i = 0; i < 4; i++) counts[i] = i + 1;
        list[0].send = a, list[0].recv = b, list[0].count = 3;
        list[1].send = a + 4, list[1].recv = b + 4, list[1].count = 2;
        if (k)
            CHECK_OK(mesh_all_reduce_many_start(&c, NULL, list, 2, MESH_I32, MESH_SUM, &r), c.error);
        else
            CHECK_OK(mesh_all_to_all_v_start(&c, NULL, a, counts, counts + 1, b, counts + 0, counts + 3, MESH_I32, &r),
                     c.error);
        CHECK_INT(mesh_keep(r), MESH_OK);
        memset(counts, 0xff, 4 * sizeof *counts), memset(list, 0xff, 2 * sizeof *list);
        free(counts), free(list);
        CHECK_OK(mesh_wait(r), c.error);
        mesh_comm_bytes(&c, NULL, &sent, &received);
        CHECK_OK(mesh_restart(r), c.error);
        mesh_comm_bytes(&c, NULL, &again_sent, &again_received);
        if (k)
            CHECK(native_seen->nbuffers == 2 && native_seen->buffers[1].count == 2 &&
                  native_seen->buffers[0].send == a && native_seen->buffers[1].recv == b + 4);
        else
            CHECK(native_seen->send_counts[0] == 1 && native_seen->send_offsets[0] == 2 &&
                  native_seen->recv_counts[0] == 1 && native_seen->recv_offsets[0] == 4);
        CHECK_OK(mesh_wait(r), c.error);
        CHECK_INT(mesh_release(r), MESH_OK);
    }
    mesh_comm_close(&c);
    mesh_transport_detach(&s.base);
}
static void test_native_args(void) { run_world(SIM, 1, native_args_rank, NULL); }

/* Waiting for several: all of a list, whichever ends first, until a time; and giving the library its turn. */
static void waits_rank(mesh_transport *t, void *ctx) {
    enum { SLOW = 3 };
    mesh_comm c[3], late, later, other;
    mesh_request r[6], kept, none;
    shim s;
    int32_t got[6] = {0}, v, sum = 0, one = 1;
    int i, which = 7, peer = 1 - t->rank;
    int64_t start;
    mesh_status status;
    (void)ctx;
    memset(r, 0, sizeof r), memset(&none, 0, sizeof none);
    for (i = 0; i < 3; i++)
        if (!open_comm(t, &c[i], "x=2", NULL, 60 * SECOND)) return;
    if (!open_comm(t, &late, "y=2", NULL, SECOND) || !open_comm(t, &later, "z=2", NULL, SECOND)) return;
    CHECK_INT(mesh_wait_all(r, 6), MESH_OK); /* nothing but none */
    CHECK_INT(mesh_wait_any(r, 6, &which), MESH_OK);
    CHECK_INT(which, -1);
    /* all: received ones, none, and a kept one that rests or is under way */
    CHECK_OK(mesh_all_reduce_start(&c[0], NULL, &one, &sum, 1, MESH_I32, MESH_SUM, &kept), c[0].error);
    CHECK_INT(mesh_keep(kept), MESH_OK);
    r[3] = kept;
    for (i = 0; i < 3; i++) {
        v = 10 + i;
        if (t->rank) CHECK_OK(mesh_send(&c[0], NULL, peer, &v, 1, MESH_I32), c[0].error);
        if (!t->rank) CHECK_OK(mesh_recv_start(&c[0], NULL, peer, &got[i], 1, MESH_I32, &r[i]), c[0].error);
    }
    CHECK_INT(mesh_wait_all(r, 6), MESH_OK);
    for (i = 0; i < 3 && !t->rank; i++) CHECK_INT(got[i], 10 + i);
    for (i = 0; i < 6; i++) CHECK_INT(r[i].generation != 0, i == 3);
    CHECK_INT(sum, 2);
    CHECK_INT(mesh_wait_all(r, 6), MESH_OK); /* it rests */
    CHECK_INT(mesh_wait_any(r, 6, &which), MESH_OK);
    CHECK_INT(which, -1);
    CHECK_OK(mesh_restart(kept), c[0].error);
    CHECK_INT(mesh_wait_any(r, 6, &which), MESH_OK);
    CHECK_INT(which, 3);
    CHECK_INT(r[3].generation, kept.generation);
    /* one that is no more is consumed too: those behind it have their turn */
    CHECK_INT(mesh_release(kept), MESH_OK);
    CHECK_OK(mesh_barrier_start(&c[0], NULL, &r[0]), c[0].error);
    CHECK_INT(mesh_wait(r[0]), MESH_OK);
    memset(&r[0], 0, sizeof r[0]);
    CHECK_INT(mesh_wait_any(r, 6, &which), MESH_ERR_STATE);
    CHECK_INT(which, 3);
    CHECK_HAS(c[0].error.text, "mesh_wait_any: no such request");
    CHECK_INT(mesh_wait_any(r, 6, &which), MESH_OK);
    CHECK_INT(which, -1);
    CHECK_INT(mesh_wait_all(NULL, 3), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_wait_any(NULL, 3, NULL), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_wait_all(r, -1), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_wait_any(r, -1, &which), MESH_ERR_ARGUMENT);
    CHECK_INT(mesh_wait_all(NULL, 0), MESH_OK);
    CHECK_INT(mesh_progress(NULL, 0), MESH_ERR_ARGUMENT);
    memset(r, 0, sizeof r);
    /* any: in the order in which they end, whatever the comm */
    for (i = 0; i < 3; i++) {
        static const int order[] = {2, 0, 1};
        v = 20 + order[i];
        if (t->rank) pause_rank(t, SECOND);
        if (t->rank) CHECK_OK(mesh_send(&c[order[i]], NULL, peer, &v, 1, MESH_I32), c[order[i]].error);
        if (!t->rank && i == 0)
            for (which = 0; which < 3; which++)
                CHECK_OK(mesh_recv_start(&c[which], NULL, peer, &got[which], 1, MESH_I32, &r[which]), c[which].error);
        if (t->rank) continue;
        CHECK_OK(mesh_wait_any(r, 3, &which), c[order[i]].error);
        CHECK_INT(which, order[i]);
        CHECK_INT(got[which], 20 + which);
    }
    /* until a time: then it lives on; and at once */
    if (t->rank) {
        pause_rank(t, SLOW * SECOND);
        for (i = 0; i < 2; i++) CHECK_OK(mesh_send(&c[0], NULL, peer, &v, 1, MESH_I32), c[0].error);
    } else {
        CHECK_OK(mesh_recv_start(&c[0], NULL, peer, &got[0], 1, MESH_I32, &r[0]), c[0].error);
        start = mesh_now(t);
        CHECK_INT(mesh_wait_until(r[0], 0), MESH_IN_PROGRESS);
        CHECK(mesh_now(t) - start < SECOND / 10);
        CHECK_INT(mesh_wait_until(r[0], start + SECOND / 4), MESH_IN_PROGRESS);
        CHECK(mesh_now(t) - start >= SECOND / 4 && mesh_now(t) - start < SECOND / 2);
        CHECK_OK(mesh_wait_until(r[0], start + 20 * SECOND), c[0].error);
        CHECK(mesh_now(t) - start < (SLOW + 1) * SECOND);
        CHECK_INT(mesh_wait_until(r[0], 0), MESH_ERR_STATE);
        CHECK_OK(mesh_recv_start(&c[0], NULL, peer, &got[0], 1, MESH_I32, &r[0]), c[0].error);
        pause_rank(t, SLOW * SECOND);
        CHECK_INT(mesh_wait_until(r[0], 0), MESH_OK); /* what is there counts */
        memset(r, 0, sizeof r);
    }
    CHECK_OK(mesh_barrier(&c[1], NULL), c[1].error);
    /* the library's turn: what is under way goes on, though nobody tests it */
    CHECK_INT(mesh_progress(t, 0), MESH_OK);
    CHECK_OK(mesh_barrier_start(&c[1], NULL, &r[0]), c[1].error);
    for (i = 0; i < 50; i++) CHECK_INT(mesh_progress(t, mesh_now(t) + SECOND / 100), MESH_OK);
    CHECK_INT(mesh__impl(&c[1])->engine->nactive, 0);
    CHECK_INT(mesh_wait_until(r[0], 0), MESH_OK);
    /* one fails: the others are waited for all the same, and the first error in the list is returned */
    memset(r, 0, sizeof r);
    if (!t->rank) {
        CHECK_OK(mesh_recv_start(&late, NULL, peer, &got[4], 1, MESH_I32, &r[1]), late.error); /* never sent */
        CHECK_OK(mesh_recv_start(&c[2], NULL, peer, &got[5], 1, MESH_I32, &r[2]), c[2].error);
        CHECK_INT(mesh_wait_any(r, 3, &which), MESH_OK);
        CHECK_INT(which, 2);
        CHECK_INT(mesh_wait_any(r, 3, &which), MESH_ERR_TIMEOUT);
        CHECK_INT(which, 1);
        CHECK_INT(mesh_recv_start(&late, NULL, peer, &got[4], 1, MESH_I32, &r[1]), MESH_ERR_TIMEOUT);
        r[1] = r[0];
    } else {
        v = 44;
        CHECK_OK(mesh_send(&c[2], NULL, peer, &v, 1, MESH_I32), c[2].error);
        pause_rank(t, 4 * SECOND);
        status = mesh_recv_start(&late, NULL, peer, &got[4], 1, MESH_I32, &r[0]);
        CHECK_INT(status == MESH_OK ? mesh_wait(r[0]) : status, MESH_ERR_TIMEOUT);
    }
    memset(r, 0, sizeof r);
    if (!t->rank) {
        CHECK_OK(mesh_recv_start(&later, NULL, peer, &got[4], 1, MESH_I32, &r[0]), later.error);
        CHECK_OK(mesh_recv_start(&c[2], NULL, peer, &got[3], 1, MESH_I32, &r[1]), c[2].error);
        CHECK_INT(mesh_wait_all(r, 2), MESH_ERR_TIMEOUT);
        CHECK_INT(got[3], 45);
        CHECK(!r[0].generation && !r[1].generation);
    } else {
        v = 45;
        CHECK_OK(mesh_send(&c[2], NULL, peer, &v, 1, MESH_I32), c[2].error);
        pause_rank(t, 4 * SECOND);
    }
    /* requests of two transports */
    shim_make(&s, t);
    if (!t->rank) {
        mesh_comm_desc d = MESH_ZERO;
        mesh m;
        mesh_error err;
        CHECK_OK(mesh_parse(&m, "x=1", 1, &err), err);
        CHECK_OK(mesh_comm_open(&other, &s.base, &m, &d, &err), err);
        CHECK_OK(mesh_all_reduce_start(&other, NULL, &one, &sum, 1, MESH_I32, MESH_SUM, &r[0]), other.error);
        CHECK_OK(mesh_recv_start(&c[2], NULL, peer, &got[5], 1, MESH_I32, &r[1]), c[2].error);
        r[2] = r[0], r[0] = r[1], r[1] = r[2], memset(&r[2], 0, sizeof r[2]);
        CHECK_INT(mesh_wait_any(r, 3, &which), MESH_ERR_ARGUMENT);
        CHECK_INT(which, 1);
        CHECK_HAS(other.error.text, "another transport");
        CHECK_INT(mesh_wait_all(r, 3), MESH_OK);
        mesh_comm_close(&other);
        mesh_transport_detach(&s.base);
    } else {
        pause_rank(t, SECOND);
        CHECK_OK(mesh_send(&c[2], NULL, peer, &v, 1, MESH_I32), c[2].error);
    }
    mesh_comm_close(&late), mesh_comm_close(&later);
    for (i = 0; i < 3; i++) CHECK_OK(mesh_comm_close(&c[i]), c[i].error);
}
static void test_waits(void) { run_world(SIM, 2, waits_rank, NULL); }

/* Of many that have ended each has its turn, however fast those before it come again, and costs no clock; of many under way, one clock for all. */
static int turns_asked;
static int64_t turns_now(mesh_transport *t) {
    turns_asked++;
    return shim_now(t);
}
static void turns_rank(mesh_transport *t, void *ctx) {
    enum { N = 4, MANY = 400 };
    static mesh_request many[MANY];
    mesh_request r[N + 1];
    mesh_comm c, late;
    shim s;
    int32_t got[N], v[MANY] = {0};
    int k, which;
    (void)ctx;
    shim_make(&s, t);
    s.ops.now = turns_now;
    memset(r, 0, sizeof r), memset(many, 0, sizeof many);
    if (!open_comm(&s.base, &c, "x=2", NULL, 60 * SECOND) || !open_comm(&s.base, &late, "y=2", NULL, SECOND)) return;
    for (k = 0; k < N; k++)
        CHECK_OK(mesh_sendrecv_start(&c, NULL, t->rank, &k, 1, t->rank, &got[k], 1, MESH_I32, &r[k]), c.error);
    for (k = 0; k < 5 * N; k++) {
        turns_asked = 0;
        CHECK_OK(mesh_wait_any(r, N + 1, &which), c.error);
        CHECK_INT(which, k % N);
        CHECK_INT(turns_asked, 0);
        CHECK_OK(mesh_sendrecv_start(&c, NULL, t->rank, &k, 1, t->rank, &got[which], 1, MESH_I32, &r[which]), c.error);
    }
    CHECK_OK(mesh_wait_all(r, N), c.error);
    if (!t->rank) { /* what the other does not call, of many steps */
        CHECK_OK(mesh_all_reduce_start(&late, NULL, v, v, MANY, MESH_I32, MESH_SUM, &r[1]), late.error);
        CHECK_INT(mesh_wait_any(r, N + 1, &which), MESH_ERR_TIMEOUT);
        CHECK_INT(which, 1);
    } else {
        pause_rank(t, 2 * SECOND);
    }
    mesh_comm_close(&late);
    if (!t->rank) {
        for (k = 0; k < MANY; k++)
            CHECK_OK(mesh_recv_start(&c, NULL, 1, &v[k], 1, MESH_I32, &many[k]), c.error);
        turns_asked = 0;
        CHECK_OK(mesh_wait_any(many, MANY, &which), c.error);
        CHECK(which >= 0 && turns_asked < MANY / 2);
        CHECK_OK(mesh_wait_all(many, MANY), c.error);
    } else {
        pause_rank(t, SECOND / 100);
        for (k = 0; k < MANY; k++) CHECK_OK(mesh_send(&c, NULL, 0, &k, 1, MESH_I32), c.error);
    }
    mesh_comm_close(&c);
    mesh_transport_detach(&s.base);
}
static void test_wait_turns(void) { run_world(SIM, 2, turns_rank, NULL); }

/* A kept one that the transport refuses when it is started again fails the comm, and is still there to be given up. */
static void native_refused_rank(mesh_transport *t, void *ctx) {
    shim s;
    mesh_comm c;
    mesh_request r;
    int32_t a[4] = {0}, b[4];
    (void)ctx;
    shim_make(&s, t);
    s.ops.collective = native_collective;
    native_refuses = 0;
    if (!open_comm(&s.base, &c, "x=1", NULL, 20 * SECOND)) return;
    CHECK_OK(mesh_all_reduce_start(&c, NULL, a, b, 4, MESH_I32, MESH_SUM, &r), c.error);
    CHECK_INT(mesh_keep(r), MESH_OK);
    CHECK_OK(mesh_wait(r), c.error);
    native_refuses = 1;
    CHECK_INT(mesh_restart(r), MESH_ERR_TRANSPORT);
    CHECK_HAS(c.error.text, "refused");
    CHECK_INT(mesh_release(r), MESH_OK);
    CHECK_INT(mesh_release(r), MESH_ERR_STATE);
    mesh_comm_close(&c);
    mesh_transport_detach(&s.base);
}
static void test_native_refused(void) { run_world(SIM, 1, native_refused_rank, NULL); }

/* Groups: opened twice they are one; ranks that open different ones are told which. Registered memory is given back, each piece once, whatever
   fails, and to its own comm. */
typedef struct registrar {
    shim s;
    int registered, live, fail_at, none_at;
} registrar;
static mesh_status registrar_register(mesh_transport *t, void *group, void *p, uint64_t nbytes, int64_t deadline,
                                      void **handle, mesh_error *why) {
    registrar *r = (registrar *)(void *)t;
    (void)group, (void)p, (void)nbytes, (void)deadline;
    *handle = NULL;
    r->registered++;
    if (r->registered == r->none_at) return MESH_OK;
    if (r->registered == r->fail_at) return mesh__fail(why, MESH_ERR_MEMORY, -1, "no room for windows");
    r->live++;
    *handle = r;
    return MESH_OK;
}
static mesh_status registrar_unregister(mesh_transport *t, void *group, void *handle) {
    (void)group;
    CHECK(handle == (void *)t);
    ((registrar *)(void *)t)->live--;
    return MESH_OK;
}
static void groups_rank(mesh_transport *t, void *ctx) {
    static registrar registrars[4];
    registrar *g = &registrars[t->rank];
    int how = *(int *)ctx, ngroups, i;
    char bytes[64];
    void *handle = NULL, *two[2];
    mesh_comm c, other;
    memset(g, 0, sizeof *g);
    shim_make(&g->s, t);
    g->s.ops.memory_register = registrar_register;
    g->s.ops.memory_unregister = registrar_unregister;
    if (!open_comm(&g->s.base, &c, "a=2,b=2", NULL, 20 * SECOND) ||
        !open_comm(&g->s.base, &other, "z=4", NULL, 20 * SECOND))
        return;
    ngroups = mesh__impl(&c)->ngroups;
    CHECK_INT(mesh_group_open(&c, "b,a"), MESH_OK);
    CHECK_INT(mesh__impl(&c)->ngroups, ngroups + 1);
    for (i = 0; i < 4; i++)
        CHECK_INT(mesh_group_open(&c, i == 0 ? "b,a" : i == 1 ? "a" : i == 2 ? "a,b" : NULL), MESH_OK);
    CHECK_INT(mesh__impl(&c)->ngroups, ngroups + 1);
    CHECK_INT(mesh__impl(&c)->group[0]->sequence, 1); /* one meeting */
    CHECK_INT(mesh_barrier(&c, NULL), MESH_OK);
    pause_rank(t, SECOND / 20); /* all are through it */
    switch (how) {
    case 0: /* all goes well */
        for (i = 0; i < 2; i++) CHECK_OK(mesh_register(&c, bytes, 64, &two[i]), c.error);
        CHECK(two[0] && two[1] && g->live == 2 * (ngroups + 1));
        CHECK_INT(mesh_unregister(&other, two[0]), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_unregister(&c, two[0]), MESH_OK);
        CHECK_INT(g->live, ngroups + 1);
        CHECK_INT(mesh_unregister(&c, two[0]), MESH_ERR_ARGUMENT);
        CHECK_INT(mesh_unregister(&c, NULL), MESH_OK);
        CHECK_INT(c.failed, 0);
        break; /* the second by the close */
    case 1:    /* one group has none to give */
        g->none_at = 2;
        CHECK_OK(mesh_register(&c, bytes, 64, &handle), c.error);
        CHECK(handle && g->live == ngroups);
        break;
    case 2: /* the third fails, everywhere */
        g->fail_at = 3;
        CHECK_INT(mesh_register(&c, bytes, 64, &handle), MESH_ERR_MEMORY);
        CHECK(!handle && g->live == 0);
        CHECK_HAS(c.error.text, "no room for windows");
        break;
    case 3: /* no bytes; no memory; nowhere to say it */
    case 4:
    case 5:
        CHECK_INT(mesh_register(&c, how == 3 ? NULL : bytes, how == 4 ? 0 : 64, how == 5 ? NULL : &handle),
                  MESH_ERR_ARGUMENT);
        CHECK_INT(g->registered, 0);
        break;
    default:
        break;
    }
    mesh_comm_close(&c);
    mesh_comm_close(&other);
    CHECK_INT(g->live, 0);
    mesh_transport_detach(&g->s.base);
}
static void other_groups_rank(mesh_transport *t, void *ctx) {
    mesh_comm c;
    mesh_status status;
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=2,d=1", NULL, 20 * SECOND)) return;
    status = mesh_group_open(&c, t->rank == 3 ? "b,a" : "a,b");
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK_INT(status, MESH_ERR_MISMATCH);
    CHECK_HAS(c.error.text, "group_open(list ");
    mesh_comm_close(&c);
}
static void test_groups(void) {
    int how;
    for (how = 0; how < 6; how++) run_guarded(sim_desc(4), groups_rank, &how);
    run_world(SIM, 4, other_groups_rank, NULL);
}

/* ---- lists and tensors: small ones are copied together, large ones go from where they are ---- */

static int note_inside(const note *n, const void *from, size_t nbytes) {
    return n->base >= (const unsigned char *)from && n->base + n->nbytes <= (const unsigned char *)from + nbytes;
}
static void where_rank(mesh_transport *t, void *ctx) {
    enum { SMALL = 100, LARGE = MESH__PACKED / 4 };
    static noter writers[2];
    static float a[2][4][LARGE + 1], b[2][4][2 * LARGE + 2];
    static const size_t counts[4] = {SMALL, SMALL, LARGE + 1, LARGE}; /* 64 KiB is small still */
    noter *w = &writers[t->rank];
    mesh_buffer list[4];
    mesh_comm c;
    mesh_tensor src[3], dst[3];
    int i, k, inside = 0, messages = 0;
    (void)ctx;
    noter_make(w, t);
    if (!open_comm(&w->s.base, &c, "x=2", NULL, 20 * SECOND)) return;
    for (k = 0; k < 4; k++) list[k].send = a[t->rank][k], list[k].recv = b[t->rank][k], list[k].count = counts[k];
    w->notes = 0;
    CHECK_OK(mesh_all_gather_many(&c, NULL, list, 4, MESH_F32), c.error);
    for (i = 0; i < w->notes; i++) {
        inside +=
            note_inside(&w->noted[i], a[t->rank], sizeof a[0]) || note_inside(&w->noted[i], b[t->rank], sizeof b[0]);
        messages += w->noted[i].direction == MESH_SEND;
    }
    CHECK_INT(messages, 3); /* the two together, and two: */
    CHECK_INT(inside, 4);   /* sent and received where they are */
    /* tensors: one alone is never copied, of a list what is less than 64 KiB a message */
    for (k = 0; k < 3; k++)
        two_layouts(&c, &src[k], &dst[k], "x:S(0)", "x:S(1)", 128,
                    k == 0   ? 512
                    : k == 1 ? 16
                             : 510); /* half goes: 64 KiB, 2 KiB, a little less */
    for (i = 0; i < 2; i++) {
        w->notes = 0;
        for (k = 0; k < 3; k++) set_part(&src[k], t->rank, 2);
        CHECK_OK(i ? mesh_redistribute_many(&c, src, dst, 3) : mesh_redistribute(&c, &src[1], &dst[1]), c.error);
        for (k = 0, inside = 0; k < w->notes; k++)
            inside += w->noted[k].direction == MESH_SEND && (note_inside(&w->noted[k], src[0].data, 64 * 512 * 4) ||
                                                             note_inside(&w->noted[k], src[1].data, 64 * 16 * 4) ||
                                                             note_inside(&w->noted[k], src[2].data, 64 * 510 * 4));
        CHECK_INT(inside, 1);
        CHECK_INT(w->notes, i ? 4 : 2);
        for (k = 0; k < 3; k++)
            if (i || k == 1) CHECK_INT(wrong_part(&dst[k], t->rank, 2), 0);
    }
    for (k = 0; k < 3; k++) free(src[k].data), free(dst[k].data);
    mesh_comm_close(&c);
    mesh_transport_detach(&w->s.base);
}
static void test_where(void) { run_world(SIM, 2, where_rank, NULL); }

/* Lists of buffers too large to be copied together, under each algorithm: as one by one. */
static void large_lists_rank(mesh_transport *t, void *ctx) {
    enum { LIST = 4 };
    static const char *const algorithms[] = {"doubling", "halving", "ring", "direct"};
    static const size_t counts[LIST] = {30000, 3, 21001, 17010};
    float *a[LIST], *b[LIST];
    mesh_buffer list[LIST];
    mesh_comm_desc desc = MESH_ZERO;
    mesh_comm c;
    size_t i, k, m;
    (void)ctx;
    desc.timeout_ns = 20 * SECOND;
    for (m = 0; m < sizeof algorithms / sizeof *algorithms; m++) {
        mesh_tuning tuning;
        mesh_error err;
        char text[200];
        int wrong = 0;
        snprintf(text, sizeof text, "all_reduce ranks<=* bytes<=* %s", algorithms[m]);
        CHECK_OK(mesh_tuning_parse(&tuning, text, &err), err);
        desc.tuning = &tuning;
        if (!open_with(t, &c, "x=-1", &desc)) return;
        for (k = 0; k < LIST; k++) {
            a[k] = (float *)malloc(counts[k] * sizeof(float)), b[k] = (float *)malloc(counts[k] * sizeof(float));
            for (i = 0; i < counts[k]; i++) a[k][i] = (float)(t->rank * 3 + (int)(k * 5 + i % 11)), b[k][i] = -1;
            list[k].send = a[k], list[k].recv = k == 2 ? a[k] : b[k], list[k].count = counts[k];
        }
        CHECK_OK(mesh_all_reduce_many(&c, NULL, list, LIST, MESH_F32, MESH_SUM), c.error);
        for (k = 0; k < LIST; k++)
            for (i = 0; i < counts[k]; i++)
                wrong += ((float *)list[k].recv)[i] !=
                         (float)(t->size * (t->size - 1) / 2 * 3 + t->size * (int)(k * 5 + i % 11));
        if (wrong) test_fail(__FILE__, __LINE__, "%s, %d ranks: %d elements are wrong", algorithms[m], t->size, wrong);
        for (k = 0; k < LIST; k++) free(a[k]), free(b[k]);
        mesh_comm_close(&c);
    }
}
static void test_large_lists(void) {
    int n;
    for (n = 2; n <= 7; n++) run_guarded(sim_desc(n), large_lists_rank, NULL);
}

/* An object of any size, from any root, is the same everywhere; a large one goes in segments, from rank to rank. */
static void objects_rank(mesh_transport *t, void *ctx) {
    static const size_t sizes[] = {0,
                                   1,
                                   100,
                                   102 /* the room and one more */,
                                   101,
                                   99,
                                   MESH__OBJECT_CHAIN,
                                   MESH__OBJECT_CHAIN + 1,
                                   3 * MESH__OBJECT_CHAIN / 2,
                                   7};
    static noter writers[3];
    noter *w = &writers[t->rank];
    unsigned char *mine = (unsigned char *)malloc(2 * MESH__OBJECT_CHAIN);
    mesh_object o = MESH_ZERO;
    unsigned char own[4];
    mesh_comm c;
    size_t i, k;
    (void)ctx;
    noter_make(w, t);
    if (!open_comm(&w->s.base, &c, "x=3", NULL, 20 * SECOND)) return;
    o.data = own; /* the caller's: left alone, and not freed */
    for (k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        mesh_object root = MESH_ZERO;
        uint64_t largest = 0;
        int wrong = 0, m;
        for (i = 0; i < sizes[k]; i++) mine[i] = (unsigned char)(i * 7 + k + i / 1000);
        root.data = mine, root.nbytes = sizes[k];
        w->notes = 0;
        CHECK_OK(mesh_broadcast_object(&c, NULL, t->rank == 1 ? &root : &o, 1), c.error);
        for (m = 0; m < w->notes; m++) largest = w->noted[m].nbytes > largest ? w->noted[m].nbytes : largest;
        if (sizes[k] > 8) CHECK_INT(largest, sizes[k] > MESH__OBJECT_CHAIN ? MESH__OBJECT_CHAIN / 2 : sizes[k]);
        if (t->rank == 1) {
            CHECK(root.data == mine && root.room == 0);
            continue;
        }
        CHECK_INT(o.nbytes, sizes[k]);
        for (i = 0; i < sizes[k]; i++) wrong += ((unsigned char *)o.data)[i] != mine[i];
        CHECK_INT(wrong, 0);
    }
    mesh_object_free(&c, &o);
    CHECK(o.data == NULL && o.nbytes == 0 && o.room == 0);
    free(mine);
    mesh_comm_close(&c);
    mesh_transport_detach(&w->s.base);
}
static void test_objects(void) { run_guarded(sim_desc(3), objects_rank, NULL); }

/* ---- large gathers and sums as redistributions: as a collective where it is nothing else, with the same values ---- */

typedef struct large_case {
    const char *from, *to;
    int rows, columns, padded; /* 1 the source, 2 the destination */
    int collective;            /* is it one, where no cap forbids it */
    int on, dtype;             /* on: 1 source, 2 destination on another mesh of the same ranks */
    float times;
} large_case;

static const large_case larges[] = {
    {"a:S(0)", "", 1024, 512, 0, 1, 0, MESH_F32, 1},              /* just 2 MiB */
    {"a:S(0)", "", 1020, 512, 0, 0, 0, MESH_F32, 1},              /* less */
    {"a:S(0) b:S(0)", "", 1024, 512, 0, 1, 0, MESH_F32, 1},       /* along both */
    {"a:S(0) b:S(0)", "a:S(0)", 2048, 512, 0, 1, 0, MESH_F32, 1}, /* along the inner one */
    {"a:S(0) b:S(0)", "b:S(0)", 2048, 512, 0, 0, 0, MESH_F32, 1}, /* the outer one: rows of two places */
    {"a:S(0)@1 b:S(0)@0", "b:S(0)", 2048, 512, 0, 1, 0, MESH_F32, 1},
    {"a:S(1)", "", 1024, 512, 0, 0, 0, MESH_F32, 1},  /* interleaved */
    {"a:S(1)", "", 1, 1 << 19, 0, 1, 0, MESH_F32, 1}, /* but for one row */
    {"a:S(0)", "", 1024, 512, 1, 0, 0, MESH_F32, 1},  /* strided */
    {"a:S(0)", "", 1024, 512, 2, 0, 0, MESH_F32, 1},
    {"a:S(0)", "", 1025, 512, 0, 0, 0, MESH_F32, 1},        /* uneven */
    {"a:S(0) b:S(1)", "", 1024, 512, 0, 0, 0, MESH_F32, 1}, /* two dims */
    {"a:S(0) b:S(1)", "", 2, 1 << 19, 0, 0, 0, MESH_F32, 1},
    {"a:S(1) b:S(0)", "", 2, 1 << 19, 0, 0, 0, MESH_F32, 1},
    {"a:S(0)", "a:S(1)", 1024, 1024, 0, 0, 0, MESH_F32, 1},
    {"", "a:S(0)", 1024, 1024, 0, 0, 0, MESH_F32, 1},
    {"a:S(0)", "b:S(0)", 1024, 1024, 0, 0, 0, MESH_F32, 1},
    {"a:S(0) b:S(1)", "b:S(1)", 1024, 1024, 0, 1, 0, MESH_F32, 1}, /* each rank has its columns alone */
    {"a:S(0) b:S(1)", "b:S(0)", 1024, 1024, 0, 0, 0, MESH_F32, 1},
    {"a:S(0) b:S(0) c:S(0)", "a:S(0)@1 b:S(0)@0", 2048, 1024, 0, 0, 0, MESH_F32, 1}, /* places change beside it */
    {"a:S(0) b:S(0) c:S(0)", "a:S(0) b:S(0)", 2048, 1024, 0, 1, 0, MESH_F32, 1},
    {"a:P(sum)", "", 1024, 512, 0, 1, 0, MESH_F32, 2},
    {"a:P(sum) b:P(sum)", "", 1024, 512, 0, 1, 0, MESH_F32, 4},
    {"a:P(max) b:P(max)", "", 1024, 512, 0, 1, 0, MESH_F32, 1},
    {"a:P(sum) b:S(0)", "b:S(0)", 2048, 512, 0, 1, 0, MESH_F32, 2},
    {"a:P(sum) b:S(0)", "", 1024, 512, 0, 0, 0, MESH_F32, 2}, /* a sum that is gathered too */
    {"a:P(sum) b:P(sum)", "b:P(sum)", 1024, 512, 0, 0, 0, MESH_F32, 4},
    {"a:P(sum)", "a:S(0)", 1024, 1024, 0, 0, 0, MESH_F32, 2},
    {"a:P(sum)", "", 1024, 512, 1, 0, 0, MESH_F32, 2},
    {"a:P(sum)", "", 1024, 512, 2, 0, 0, MESH_F32, 2},
    {"a:P(sum)", "", 1, (1 << 19) + 1, 0, 0, 0, MESH_F32, 2}, /* two do not divide it */
    {"a:S(0)", "", 1024, 512, 0, 0, 1, MESH_F32, 1},          /* other meshes, whose first axis is another */
    {"a:S(0)", "", 1024, 512, 0, 0, 2, MESH_F32, 1},
    {"a:P(sum)", "", 1024, 512, 0, 0, 1, MESH_F32, 2},
    {"a:S(0)", "", 1024, 512, 0, 0, 0, MESH_BYTES, 1}, /* elements of 4 bytes */
};

static void large_rank(mesh_transport *t, void *ctx) {
    const large_case *k = (const large_case *)ctx;
    int64_t strides[2][2], said = -1;
    mesh_tensor src, dst, part, whole;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_desc d = MESH_ZERO;
    mesh other;
    mesh_error err;
    mesh_comm c;
    char history[4000];
    int capped, side;
    static const char *const names[] = {"a", "b"};
    int shape[2] = {2, 2};
    d.shape = shape, d.naxes = 2, d.names = names, d.first_fastest = 1;
    CHECK_OK(mesh_make(&other, &d, &err), err);
    for (capped = 0; capped < (k->collective ? 2 : 1); capped++) {
        int wrong = 0;
        int64_t i, j;
        mesh_box box;
        const float *got;
        desc.scratch_cap = capped ? 1 << 28 : 0;
        desc.timeout_ns = 20 * SECOND;
        desc.groups = "a,b";
        if (!open_with(t, &c, strstr(k->from, "c:") ? "a=2,b=2,c=1" : "a=2,b=2", &desc)) return;
        two_layouts(&c, &src, &dst, k->from, k->to, k->rows, k->columns);
        if (k->on == 1) src.layout.on = &other;
        if (k->on == 2) dst.layout.on = &other;
        set_part(&src, t->rank, 1);
        for (side = 0; side < 2; side++) {
            mesh_tensor *x = side ? &dst : &src;
            float *wide;
            if (k->padded != side + 1) continue;
            mesh_tensor_box(x, t->rank, &box);
            strides[side][0] = box.shape[1] + 3, strides[side][1] = 1;
            wide = (float *)calloc((size_t)(box.shape[0] * strides[side][0]), 4);
            for (i = 0; i < box.shape[0]; i++)
                memcpy(wide + i * strides[side][0], (float *)x->data + i * box.shape[1], (size_t)box.shape[1] * 4);
            free(x->data);
            x->data = wide, x->strides = strides[side];
        }
        if (k->dtype == MESH_BYTES) src.dtype = dst.dtype = MESH_BYTES, src.elem_bytes = dst.elem_bytes = 4;
        CHECK_OK(mesh_redistribute_scratch_bytes(&c, &src, &dst, 1, &said, &err), err);
        CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
        mesh_comm_history(&c, history, sizeof history);
        if ((strstr(history, "redistribute(") == NULL) != (k->collective && !capped))
            test_fail(__FILE__, __LINE__, "\"%s\" to \"%s\" of %d x %d: %s", k->from, k->to, k->rows, k->columns,
                      history);
        if (strstr(k->to, "P(")) { /* its summands */
            two_layouts(&c, &part, &whole, "", "", k->rows, k->columns);
            CHECK_OK(mesh_redistribute(&c, &dst, &whole), c.error);
            free(dst.data), free(part.data);
            dst = whole;
        }
        mesh_tensor_box(&dst, t->rank, &box);
        got = (const float *)dst.data;
        for (i = 0; i < box.shape[0]; i++)
            for (j = 0; j < box.shape[1]; j++)
                wrong += got[i * (dst.strides ? strides[1][0] : box.shape[1]) + j] !=
                         (float)((box.offset[0] + i) * 3 + (box.offset[1] + j) % 97) * k->times;
        if (wrong)
            test_fail(__FILE__, __LINE__, "\"%s\" to \"%s\" of %d x %d: %d elements are wrong", k->from, k->to, k->rows,
                      k->columns, wrong);
        free(src.data), free(dst.data);
        mesh_comm_close(&c);
    }
}
static void test_large_moves(void) {
    size_t k;
    for (k = 0; k < sizeof larges / sizeof *larges; k++)
        run_guarded(sim_desc(4), large_rank, (void *)(uintptr_t)&larges[k]);
}

/* Without its group open a gather along two axes is a redistribution. */
static void large_closed_rank(mesh_transport *t, void *ctx) {
    mesh_tensor src, dst;
    mesh_comm c;
    (void)ctx;
    if (!open_comm(t, &c, "a=2,b=2,c=1", NULL, 20 * SECOND)) return;
    two_layouts(&c, &src, &dst, "a:S(0) b:S(0)", "", 1024, 512);
    set_part(&src, t->rank, 1);
    CHECK_OK(mesh_redistribute(&c, &src, &dst), c.error);
    CHECK_INT(wrong_part(&dst, t->rank, 1), 0);
    free(src.data), free(dst.data);
    mesh_comm_close(&c);
}
static void test_large_closed(void) { run_world(SIM, 4, large_closed_rank, NULL); }

/* Lists that differ in any tensor are different calls; neither waits for the other. */
static void lists_differ_rank(mesh_transport *t, void *ctx) {
    int what = *(int *)ctx, i;
    mesh_tensor src[3], dst[3];
    mesh_comm c;
    mesh_status status;
    if (!open_comm(t, &c, "x=2", NULL, 20 * SECOND)) return;
    for (i = 0; i < 3; i++) {
        two_layouts(&c, &src[i], &dst[i], "x:S(0)", "", 4, 4);
        if (t->rank == 1 && what == i) { /* as many bytes */
            free(src[i].data), free(dst[i].data);
            two_layouts(&c, &src[i], &dst[i], "x:S(1)", "", 4, 4);
        }
    }
    status = mesh_redistribute_many(&c, src, dst, 3);
    if (status == MESH_OK) status = mesh_barrier(&c, NULL);
    CHECK_INT(status, what < 3 ? MESH_ERR_MISMATCH : MESH_OK);
    if (what == 3) { /* and the order in which two stand */
        CHECK(mesh_spec_parse(&src[t->rank].layout.spec, &c.on, "x:S(1)", 2, NULL) == MESH_OK); /* as many bytes */
        status = mesh_redistribute_many(&c, src, dst, 2);
        if (status == MESH_OK) status = mesh_barrier(&c, NULL);
        CHECK_INT(status, MESH_ERR_MISMATCH);
    }
    if (what == 4) { /* and of one alone */
        CHECK(mesh_spec_parse(&src[0].layout.spec, &c.on, t->rank ? "x:S(1)" : "x:S(0)", 2, NULL) == MESH_OK);
        status = mesh_redistribute(&c, &src[0], &dst[0]);
        if (status == MESH_OK) status = mesh_barrier(&c, NULL);
        CHECK_INT(status, MESH_ERR_MISMATCH);
    }
    mesh_comm_close(&c);
    for (i = 0; i < 3; i++) free(src[i].data), free(dst[i].data);
}
static void test_lists_differ(void) {
    int what;
    for (what = 0; what < 5; what++) run_world(SIM, 2, lists_differ_rank, &what);
}

static const test_case call_tests[] = {
    {"calls/rows", test_rows, 0},
    {"calls/large_elements", test_large_elements, 0},
    {"calls/table_text", test_table_text, 0},
    {"calls/forty", test_forty, 0},
    {"calls/rounds", test_rounds, 0},
    {"calls/halos", test_halos, 0},
    {"calls/shifts", test_shifts, 0},
    {"calls/native_args", test_native_args, 0},
    {"calls/native_refused", test_native_refused, 0},
    {"calls/waits", test_waits, 0},
    {"calls/turns", test_wait_turns, 0},
    {"calls/groups", test_groups, 0},
    {"calls/where", test_where, 0},
    {"calls/objects", test_objects, 0},
    {"calls/large_lists", test_large_lists, 0},
    {"calls/counted_segments", test_counted_segments, 0},
    {"redistribute/large", test_large_moves, 0},
    {"redistribute/large_closed", test_large_closed, 0},
    {"redistribute/lists_differ", test_lists_differ, 0},
};

#endif
