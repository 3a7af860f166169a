/* mesh/transport.h's and mesh/kernels.h's arithmetic, without a transport: strided blocks, growing arrays, conversions, reductions, by laws over random cases. */
#ifndef T_BYTES_H
#define T_BYTES_H

/* ---- memory that notices: guards behind every piece, junk in it, 16 bytes off a cache line; who leaks or writes too far is told ---- */

enum { GUARD_BYTES = 64 };

typedef struct guarded {
    pthread_mutex_t lock; /* ranks are threads */
    int live, calls;
} guarded;
static guarded guarded_memory = {PTHREAD_MUTEX_INITIALIZER, 0, 0};

typedef struct guarded_piece {
    void *raw;
    size_t nbytes;
} guarded_piece;

static void *guarded_alloc(void *ctx, size_t n) {
    guarded *g = (guarded *)ctx;
    unsigned char *raw = (unsigned char *)malloc(n + 256 + GUARD_BYTES), *p;
    guarded_piece piece;
    if (!raw) return NULL;
    p = (unsigned char *)(((uintptr_t)raw + 127) & ~(uintptr_t)63) + 16;
    piece.raw = raw;
    piece.nbytes = n;
    memcpy(p - sizeof piece, &piece, sizeof piece);
    memset(p, 0xa5, n);
    memset(p + n, 0x5a, GUARD_BYTES);
    pthread_mutex_lock(&g->lock);
    g->live++;
    g->calls++;
    pthread_mutex_unlock(&g->lock);
    return p;
}
static void guarded_free(void *ctx, void *p) {
    guarded *g = (guarded *)ctx;
    guarded_piece piece;
    size_t i;
    memcpy(&piece, (unsigned char *)p - sizeof piece, sizeof piece);
    for (i = 0; i < GUARD_BYTES; i++)
        if (((unsigned char *)p)[piece.nbytes + i] != 0x5a) {
            test_fail(__FILE__, __LINE__, "byte %zu behind memory of %zu bytes was written", i, piece.nbytes);
            break;
        }
    pthread_mutex_lock(&g->lock);
    g->live--;
    pthread_mutex_unlock(&g->lock);
    memset(p, 0xdb, piece.nbytes); /* who still reads it is not lucky */
    free(piece.raw);
}

/* As run_world on the simulator, in such memory: nothing is left of it at the end. */
static void run_guarded(mesh_sim_desc d, rank_main f, void *ctx) {
    mesh_error err;
    guarded_memory.live = 0;
    d.allocator.alloc = guarded_alloc;
    d.allocator.free = guarded_free;
    d.allocator.ctx = &guarded_memory;
    CHECK_OK(mesh_sim_run(&d, f, ctx, &err), err);
    test_failures += conformance_failures;
    conformance_failures = 0;
    CHECK_INT(guarded_memory.live, 0);
}

/* ---- blocks ---- */

/* Where byte i of a block lies: the definition. */
static uint64_t block_place(const mesh_block *b, uint64_t i) {
    uint64_t index = i / b->run, at = i % b->run;
    int k;
    for (k = b->ndim - 1; k >= 0; k--) {
        at += index % (uint64_t)b->dim[k].count * (uint64_t)b->dim[k].stride;
        index /= (uint64_t)b->dim[k].count;
    }
    return at;
}

/* A block of `elem` bytes times something, without overlap. Returns its bytes; *span: to its end in memory. */
static uint64_t random_block(test_random *r, mesh_block *b, uint64_t elem, uint64_t *span) {
    uint64_t nbytes;
    int k;
    memset(b, 0, sizeof *b);
    nbytes = *span = b->run = elem * (uint64_t)(1 + random_below(r, 3));
    b->ndim = random_below(r, 4);
    for (k = b->ndim - 1; k >= 0; k--) {
        b->dim[k].count = 1 + random_below(r, 4);
        b->dim[k].stride = (int64_t)(*span + elem * (uint64_t)random_below(r, 3));
        *span = (uint64_t)b->dim[k].stride * (uint64_t)(b->dim[k].count - 1) + *span;
        nbytes *= (uint64_t)b->dim[k].count;
    }
    return nbytes;
}

/* The same bytes cut otherwise: as one run, or as elements. */
static void other_block(test_random *r, mesh_block *b, uint64_t elem, uint64_t nbytes) {
    memset(b, 0, sizeof *b);
    b->run = nbytes;
    if (random_below(r, 2)) return;
    b->run = elem;
    b->ndim = 1;
    b->dim[0].count = (int64_t)(nbytes / elem);
    b->dim[0].stride = (int64_t)(elem * (uint64_t)(1 + random_below(r, 3)));
}

static mesh_xfer block_xfer(void *base, const mesh_block *b, uint64_t nbytes) {
    mesh_xfer x;
    x.base = base, x.nbytes = nbytes, x.block = b, x.direction = MESH_SEND, x.rank = 0;
    return x;
}

/* Every way over a block goes to the same places in the same order, and nowhere else. */
static void test_blocks(void) {
    enum { ROOM = 1 << 13 };
    static unsigned char a[ROOM], b[ROOM], want[ROOM], flat[ROOM];
    test_random r = random_from(501);
    int round;
    for (round = 0; round < 1500; round++) {
        mesh_block from, to;
        uint64_t span, elem = (uint64_t)1 << random_below(&r, 4), nbytes = random_block(&r, &from, elem, &span), i, n,
                       at, some;
        mesh_xfer x = block_xfer(a, &from, nbytes), y;
        mesh__cursor src, dst;
        CHECK(span < ROOM && mesh_block_fits(&from, nbytes) && !mesh_block_fits(&from, nbytes - 1) &&
              !mesh_block_fits(&from, nbytes + 1));
        for (i = 0; i < ROOM; i++) a[i] = (unsigned char)random_next(&r), b[i] = (unsigned char)random_next(&r);
        for (at = 0; at < nbytes; at += 1 + (uint64_t)random_below(&r, 5)) { /* from anywhere within */
            unsigned char *p = (unsigned char *)mesh_xfer_at(&x, at, &n);
            CHECK(p == a + block_place(&from, at));
            CHECK_INT(n, from.ndim ? from.run - at % from.run : nbytes - at);
        }
        if (round % 2)
            other_block(&r, &to, elem, nbytes);
        else
            to = from;
        y = block_xfer(b, round % 4 == 1 && to.ndim == 0 ? NULL : &to, nbytes);
        memcpy(want, b, ROOM);
        for (i = 0; i < nbytes; i++) want[block_place(&to, i)] = a[block_place(&from, i)];
        at = (uint64_t)random_below(&r, (int)nbytes + 1);
        src = mesh__cursor_on(&x), dst = mesh__cursor_on(&y); /* in two parts, as mesh__move in one */
        mesh__cursor_copy(&src, &dst, at);
        for (i = 0; i < nbytes; i++)
            CHECK(i < at ? b[block_place(&to, i)] == want[block_place(&to, i)] : 1);
        CHECK(at == nbytes || (src.p == a + block_place(&from, at) && dst.p == b + block_place(&to, at)));
        mesh__cursor_copy(&src, &dst, nbytes - at);
        CHECK(!memcmp(b, want, ROOM));
        at = (uint64_t)random_below(&r, (int)nbytes), some = 1 + (uint64_t)random_below(&r, (int)(nbytes - at));
        memset(flat, 77, ROOM);
        mesh__pack(&x, at, flat, (size_t)some);
        for (i = 0; i < some; i++) CHECK_INT(flat[i], a[block_place(&from, at + i)]);
        CHECK_INT(flat[some], 77);
        for (i = 0; i < some; i++) want[block_place(&to, at + i)] = flat[i] = (unsigned char)random_next(&r);
        mesh__unpack(&y, at, flat, (size_t)some);
        CHECK(!memcmp(b, want, ROOM));
        memcpy(want, a, ROOM);
        for (i = 0; i < nbytes; i++)
            want[block_place(&from, i)] = a[block_place(&from, i / elem * elem + elem - 1 - i % elem)];
        mesh__swap_xfer(&x, elem);
        CHECK(!memcmp(a, want, ROOM));
        for (i = 0; i < nbytes; i++) want[block_place(&from, i)] = 0;
        mesh__zero(&x);
        CHECK(!memcmp(a, want, ROOM));
    }
}

/* A block fits its bytes and no others, whatever numbers it holds. */
static void test_block_fits(void) {
    test_random r = random_from(502);
    int round, k, fits = 0;
    for (round = 0; round < 20000; round++) {
        static const int64_t counts[] = {0, 1, 2, 3, INT64_C(1) << 31, INT64_C(1) << 33, INT64_MAX, -1};
        mesh_block b;
        uint64_t total;
        int good = 1;
        memset(&b, 0, sizeof b);
        b.run = (uint64_t)counts[1 + random_below(&r, 6)];
        b.ndim = random_below(&r, MESH_MAX_DIMS + 3) - 1;
        good = b.ndim >= 0 && b.ndim <= MESH_MAX_DIMS;
        total = b.run;
        for (k = 0; k < b.ndim && k < MESH_MAX_DIMS; k++) {
            b.dim[k].count = counts[random_below(&r, 20) ? random_below(&r, 4) : random_below(&r, 8)];
            b.dim[k].stride = random_below(&r, 30) ? 8 : -8;
            good &= b.dim[k].count >= 0 && b.dim[k].stride >= 0;
            if (good && b.dim[k].count > 0 && total * (uint64_t)b.dim[k].count / (uint64_t)b.dim[k].count != total)
                good = 0; /* what overflows on its way is refused though a count of 0 follows */
            total *= (uint64_t)b.dim[k].count;
        }
        CHECK_INT(mesh_block_fits(&b, total), good);
        fits += good;
        CHECK_INT(mesh_block_fits(&b, total + 1), 0);
    }
    CHECK(fits > 1000 && mesh_block_fits(NULL, 7));
}

/* ---- growing arrays ---- */

static void test_grow(void) {
    mesh_transport t;
    int *items = NULL, cap = 0, n, i;
    memset(&t, 0, sizeof t);
    guarded_memory.live = 0;
    t.allocator.alloc = guarded_alloc;
    t.allocator.free = guarded_free;
    t.allocator.ctx = &guarded_memory;
    for (n = 1; n < 300; n += 1 + n / 7) {
        int before = cap;
        CHECK(mesh__grow(&t, (void **)&items, &cap, n, sizeof *items));
        CHECK(cap >= n && (before >= n) == (before == cap) && cap <= (n > 8 ? 2 * n : 8));
        for (i = before; i < cap; i++) CHECK_INT(items[i], 0);   /* what is new is zero, */
        for (i = 0; i < before; i++) CHECK_INT(items[i], i + 1); /* what was there is there */
        for (i = 0; i < cap; i++) items[i] = i + 1;
        CHECK_INT(guarded_memory.live, 1);
    }
    mesh_transport_free(&t, items);
    CHECK_INT(guarded_memory.live, 0);
    mesh_transport_free(&t, NULL);
}

static void test_little_endian(void) {
    unsigned char p[8];
    int k;
    for (k = 0; k < 64; k++) {
        uint64_t v = UINT64_C(1) << k | UINT64_C(1) << (k / 2);
        int i;
        mesh__put64(p, v);
        for (i = 0; i < 8; i++) CHECK_INT(p[i], v >> (8 * i) & 255);
        CHECK(mesh__get64(p) == v);
        CHECK(mesh__get32(p) == (uint32_t)v);
        memset(p, 0, sizeof p);
        mesh__put32(p + 1, (uint32_t)v);
        CHECK(p[0] == 0 && p[5] == 0 && mesh__get32(p + 1) == (uint32_t)v);
    }
}

/* ---- 16-bit floats: every value there and back; every value between rounds to the nearest, ties to the even one ---- */

static double half_value(int bf16, uint16_t h) { return (double)(bf16 ? mesh__f32_of_bf16(h) : mesh__f32_of_f16(h)); }
static uint16_t half_of(int bf16, float f) { return bf16 ? mesh__bf16_of_f32(f) : mesh__f16_of_f32(f); }

/* What an f16 is, by its definition. */
static double f16_defined(uint16_t h) {
    int exponent = h >> 10 & 31, i;
    double v = exponent ? 1024 + (h & 1023) : h & 1023;
    for (i = exponent ? exponent : 1; i < 25; i++) v /= 2;
    for (; i > 25; i--) v *= 2;
    return h & 0x8000 ? -v : v;
}

static void test_halves(void) {
    int bf16;
    uint32_t h;
    for (bf16 = 0; bf16 < 2; bf16++) {
        uint16_t inf = bf16 ? 0x7f80 : 0x7c00;
        for (h = 0; h < 65536; h++) {
            uint16_t magnitude = (uint16_t)(h & 0x7fff), sign = (uint16_t)(h & 0x8000), up;
            float f = bf16 ? mesh__f32_of_bf16((uint16_t)h) : mesh__f32_of_f16((uint16_t)h), low, high;
            double middle;
            if (magnitude > inf) { /* a NaN stays one */
                CHECK((half_of(bf16, f) & 0x7fff) > inf && f != f);
                continue;
            }
            if (half_of(bf16, f) != h) test_fail(__FILE__, __LINE__, "%x becomes %x", h, half_of(bf16, f));
            if (!bf16 && magnitude < inf) CHECK((double)f == f16_defined((uint16_t)h));
            if (magnitude >= inf) continue;
            up = (uint16_t)(magnitude + 1); /* towards infinity: beyond the last number half a step more */
            middle = up == inf ? half_value(bf16, magnitude) * 1.5 - half_value(bf16, (uint16_t)(magnitude - 1)) * 0.5
                               : (half_value(bf16, magnitude) + half_value(bf16, up)) / 2;
            if (middle > 3.4e38) continue;
            low = mesh__float_of_bits(mesh__bits_of_float((float)middle) - 1);
            high = mesh__float_of_bits(mesh__bits_of_float((float)middle) + 1);
            if (sign) low = -low, high = -high, middle = -middle;
            if ((double)(float)middle != middle) continue; /* of subnormal bf16 */
            if (half_of(bf16, low) != (sign | magnitude) || half_of(bf16, high) != (sign | up) ||
                half_of(bf16, (float)middle) != (sign | (magnitude & 1 ? up : magnitude)))
                test_fail(__FILE__, __LINE__, "between %x and %x: %x %x %x", magnitude, up, half_of(bf16, low),
                          half_of(bf16, (float)middle), half_of(bf16, high));
        }
        for (h = 1; h < 0x800000; h = h * 2 + 1) /* whichever bits make it one */
            CHECK((half_of(bf16, mesh__float_of_bits(0x7f800000u | h)) & 0x7fff) > inf &&
                  (half_of(bf16, mesh__float_of_bits(0xff800000u | (0x800000u - h))) & 0x7fff) > inf);
    }
}

/* ---- reductions ---- */

/* Which there are: the table of mesh.h (MESH_REDUCTIONS), said once more. */
static void test_reducible(void) {
    static const int ints[] = {MESH_I8, MESH_U8, MESH_I16, MESH_U16, MESH_I32, MESH_U32, MESH_I64, MESH_U64};
    static const int floats[] = {MESH_F32, MESH_F64, MESH_F16, MESH_BF16}, complexes[] = {MESH_C64, MESH_C128};
    static const int locs[] = {MESH_F32, MESH_F64, MESH_I32, MESH_U32, MESH_I64, MESH_U64, MESH_F64_I32};
    int d, op;
    for (op = -1; op <= MESH_OP_COUNT; op++)
        for (d = -1; d <= MESH_DTYPE_COUNT; d++) {
            int is_int = 0, is_float = 0, is_complex = 0, is_loc = 0, want;
            size_t i;
            for (i = 0; i < 8; i++) is_int |= d == ints[i];
            for (i = 0; i < 4; i++) is_float |= d == floats[i];
            for (i = 0; i < 2; i++) is_complex |= d == complexes[i];
            for (i = 0; i < 7; i++) is_loc |= d == locs[i];
            want = op == MESH_SUM || op == MESH_PROD                   ? is_int || is_float || is_complex
                   : op == MESH_AVG                                    ? is_float || is_complex
                   : op == MESH_MIN || op == MESH_MAX                  ? is_int || is_float
                   : op == MESH_AND || op == MESH_OR || op == MESH_XOR ? is_int
                   : op == MESH_MINLOC || op == MESH_MAXLOC            ? is_loc
                                                                       : 0;
            if (mesh__reducible(d, op) != want)
                test_fail(__FILE__, __LINE__, "op %d of dtype %d: %d", op, d, mesh__reducible(d, op));
        }
}

#define INTEGER_LAW(dtype, T, U)                                                                                 \
    do {                                                                                                         \
        T a[64], b[64], got_[64];                                                                                \
        int k_, op_;                                                                                             \
        for (op_ = 0; op_ < MESH_OP_COUNT; op_++) {                                                              \
            if (op_ == MESH_AVG || !mesh__reducible(dtype, op_) || mesh__is_loc(op_)) continue;                  \
            for (k_ = 0; k_ < 64; k_++) {                                                                        \
                U x_ = (U)random_next(&r), y_ = (U)random_next(&r);                                              \
                if (k_ % 4 == 1) x_ = (U) ~(U)0, y_ = 1;                                                         \
                if (k_ % 4 == 2) x_ = (U)((U)1 << (sizeof(U) * 8 - 1)), y_ = (U)(x_ - 1);                        \
                a[k_] = (T)x_, b[k_] = (T)y_;                                                                    \
            }                                                                                                    \
            memcpy(got_, a, sizeof got_);                                                                        \
            mesh__reduce(op_, dtype, got_, b, 64);                                                               \
            for (k_ = 0; k_ < 64; k_++) {                                                                        \
                uint64_t x_ = (uint64_t)a[k_], y_ = (uint64_t)b[k_];                                             \
                T want_ = (T)(op_ == MESH_SUM    ? (U)(x_ + y_)                                                  \
                              : op_ == MESH_PROD ? (U)(x_ * y_)                                                  \
                              : op_ == MESH_AND  ? (U)(x_ & y_)                                                  \
                              : op_ == MESH_OR   ? (U)(x_ | y_)                                                  \
                              : op_ == MESH_XOR  ? (U)(x_ ^ y_)                                                  \
                              : op_ == MESH_MIN  ? (U)(a[k_] < b[k_] ? a[k_] : b[k_])                            \
                                                 : (U)(a[k_] > b[k_] ? a[k_] : b[k_]));                           \
                if (got_[k_] != want_) test_fail(__FILE__, __LINE__, "op %d of dtype %d at %d", op_, dtype, k_); \
            }                                                                                                    \
        }                                                                                                        \
    } while (0)

/* minloc and maxloc on every pair of a pool, either way round: the better value, at equal values the lower index. `better(x, y)`. */
#define LOC_LAW(dtype, T, I, values)                                                                                  \
    do {                                                                                                              \
        static const T pool_[] = values;                                                                              \
        static const int index_[] = {-7, -1, 0, 3};                                                                   \
        int i_, k_, m_, n_, op_, count_ = (int)(sizeof pool_ / sizeof pool_[0]);                                      \
        for (op_ = MESH_MINLOC; op_ <= MESH_MAXLOC; op_++)                                                            \
            for (i_ = 0; i_ < count_ * 4; i_++)                                                                       \
                for (k_ = 0; k_ < count_ * 4; k_++) {                                                                 \
                    struct {                                                                                          \
                        T value;                                                                                      \
                        I index;                                                                                      \
                    } a_, b_, *w_;                                                                                    \
                    unsigned char x_[2 * sizeof(T)], y_[2 * sizeof(T)];                                               \
                    a_.value = pool_[m_ = i_ / 4], a_.index = (I)index_[i_ % 4];                                      \
                    b_.value = pool_[n_ = k_ / 4], b_.index = (I)index_[k_ % 4];                                      \
                    memcpy(x_, &a_, sizeof x_), memcpy(y_, &b_, sizeof y_);                                           \
                    mesh__reduce(op_, dtype, x_, y_, 1);                                                              \
                    w_ = m_ == n_                            ? (index_[i_ % 4] <= index_[k_ % 4] ? &a_ : &b_)         \
                         : (op_ == MESH_MINLOC) == (m_ < n_) ? &a_                                                    \
                                                             : &b_;                                                   \
                    if (memcmp(x_, w_, sizeof x_)) test_fail(__FILE__, __LINE__, #dtype " op %d %d %d", op_, i_, k_); \
                }                                                                                                     \
    } while (0)
#define LIST(...) \
    { __VA_ARGS__ }

/* Floats: of every two of a pool, ascending with -0 below +0, the least and the most; with a NaN a NaN. */
static void float_ordered(mesh_dtype d, const double *pool, int n) {
    int i, k, op;
    size_t elem = mesh_dtype_bytes(d);
    for (op = MESH_MIN; op <= MESH_MAX; op++)
        for (i = 0; i <= n; i++)
            for (k = 0; k <= n; k++) {
                unsigned char v[3][8]; /* the two, and what comes of them */
                double x[2];
                int w;
                x[0] = i < n ? pool[i] : 0, x[1] = k < n ? pool[k] : 0;
                for (w = 0; w < 2; w++) {
                    float f = (float)x[w];
                    uint16_t h = d == MESH_F16 ? mesh__f16_of_f32(f) : mesh__bf16_of_f32(f);
                    if (w ? k == n : i == n) { /* a NaN, of either sign, by its lowest bit only */
                        uint32_t nan32 = (k + i) % 2 ? 0xff800001u : 0x7f800001u;
                        uint64_t nan64 = (k + i) % 2 ? UINT64_C(0xfff0000000000001) : UINT64_C(0x7ff0000000000001);
                        memcpy(&f, &nan32, 4), memcpy(&x[w], &nan64, 8);
                        h = (uint16_t)(d == MESH_F16 ? 0xfc01 : 0x7f81);
                    }
                    memcpy(v[w], elem == 8 ? (void *)&x[w] : elem == 4 ? (void *)&f : (void *)&h, elem);
                }
                memcpy(v[2], v[0], elem);
                mesh__reduce(op, d, v[2], v[1], 1);
                if (i == n || k == n) {
                    double got = 0;
                    float f;
                    uint16_t h;
                    memcpy(&got, v[2], elem == 8 ? 8 : 0);
                    memcpy(&f, v[2], 4), memcpy(&h, v[2], 2);
                    if (elem < 8) got = elem == 4 ? (double)f : half_value(d == MESH_BF16, h);
                    if (got == got) test_fail(__FILE__, __LINE__, "a NaN is lost, dtype %d", (int)d);
                } else if (memcmp(v[2], v[(op == MESH_MIN) == (i < k) ? 0 : 1], elem)) {
                    test_fail(__FILE__, __LINE__, "op %d of dtype %d: %g and %g", op, (int)d, pool[i], pool[k]);
                }
            }
}

static void test_reduce(void) {
    static const double pool[] = {-1e4, -2, -1, -0.5, -0.0, 0.0, 0.25, 1, 1.5, 2, 1e4};
    test_random r = random_from(503);
    float c[8] = {1, 2, 3, -4, 0.5f, -1, 7, 0}, e[8] = {2, -3, 5, 1, -8, 2, 1, 1}, want[8], got[8];
    double wide[8], wider[8];
    int i;
    INTEGER_LAW(MESH_I8, int8_t, uint8_t);
    INTEGER_LAW(MESH_U8, uint8_t, uint8_t);
    INTEGER_LAW(MESH_I16, int16_t, uint16_t);
    INTEGER_LAW(MESH_U16, uint16_t, uint16_t);
    INTEGER_LAW(MESH_I32, int32_t, uint32_t);
    INTEGER_LAW(MESH_U32, uint32_t, uint32_t);
    INTEGER_LAW(MESH_I64, int64_t, uint64_t);
    INTEGER_LAW(MESH_U64, uint64_t, uint64_t);
    LOC_LAW(MESH_I32, int32_t, int32_t, LIST(INT32_MIN, -5, -1, 0, 1, INT32_MAX));
    LOC_LAW(MESH_U32, uint32_t, int32_t, LIST(0, 1, 0x7fffffffu, 0x80000000u, UINT32_MAX));
    LOC_LAW(MESH_I64, int64_t, int64_t, LIST(INT64_MIN, -5, -1, 0, 1, INT64_MAX));
    LOC_LAW(MESH_U64, uint64_t, int64_t, LIST(0, 1, UINT64_C(1) << 63, UINT64_MAX));
    LOC_LAW(MESH_F32, float, int32_t, LIST(-3e38f, -1, -0.0f, 0.0f, 1e-40f, 2, 3e38f));
    LOC_LAW(MESH_F64, double, int64_t, LIST(-1e300, -1, -0.0, 0.0, 1e-310, 2, 1e300));
    float_ordered(MESH_F32, pool, 11);
    float_ordered(MESH_F64, pool, 11);
    float_ordered(MESH_F16, pool, 11);
    float_ordered(MESH_BF16, pool, 11);
    for (i = 0; i < 8; i += 2) /* of small whole numbers exact */
        want[i] = c[i] * e[i] - c[i + 1] * e[i + 1], want[i + 1] = c[i] * e[i + 1] + c[i + 1] * e[i];
    for (i = 0; i < 8; i++) wide[i] = c[i], wider[i] = e[i], got[i] = c[i];
    mesh__reduce(MESH_PROD, MESH_C64, got, e, 4);
    mesh__reduce(MESH_PROD, MESH_C128, wide, wider, 4);
    for (i = 0; i < 8; i++) CHECK(got[i] == want[i] && wide[i] == (double)want[i]);
    memcpy(got, c, sizeof got);
    mesh__reduce(MESH_SUM, MESH_C64, got, e, 4);
    mesh__divide(MESH_C64, got, 4, 4);
    for (i = 0; i < 8; i++) CHECK(got[i] == (c[i] + e[i]) / 4);
    for (i = 0; i < 8; i++) wide[i] = c[i];
    mesh__reduce(MESH_AVG, MESH_C128, wide, wider, 4);
    mesh__divide(MESH_C128, wide, 4, 4);
    for (i = 0; i < 8; i++) CHECK(wide[i] == (double)(c[i] + e[i]) / 4);
    { /* the NaN that wins does so from either side */
        for (i = 0; i < 2; i++) {
            int op;
            for (op = MESH_MINLOC; op <= MESH_MAXLOC; op++) {
                uint32_t x[2] = {0x3f800000u, 0}, y[2] = {0xff800001u, 5};
                mesh__reduce(op, MESH_F32, i ? x : y, i ? y : x, 1);
                CHECK_INT((i ? x : y)[1], 5);
            }
        }
    }
}

/* Turned numbers are combined as they would be unturned, in pieces of any number. */
static void test_combine_swapped(void) {
    test_random r = random_from(504);
    size_t n;
    for (n = 1; n < 700; n += 1 + n / 3) {
        static int32_t a[700], b[700], c[700];
        static double x[700], y[700];
        mesh_call call = mesh__call(MESH_CALL_ALL_REDUCE, NULL, NULL, 0, MESH_I32, MESH_SUM, 0);
        size_t i;
        for (i = 0; i < n; i++)
            a[i] = (int32_t)random_next(&r) / 4, b[i] = (int32_t)random_next(&r) / 4, c[i] = a[i] + b[i];
        for (i = 0; i < n; i++) x[i] = (double)a[i], y[i] = x[i] / 8;
        mesh__swap(a, a, n * 4, 4);
        mesh__swap(b, b, n * 4, 4);
        mesh__combine_swapped(&call, a, b, n, 4, 0, 0, 4);
        mesh__swap(a, a, n * 4, 4);
        CHECK(!memcmp(a, c, n * 4));
        call.dtype = MESH_F64;
        mesh__swap(x, x, n * 8, 8);
        mesh__combine_swapped(&call, x, x, n, 8, 0, 8, 8); /* divided */
        mesh__swap(x, x, n * 8, 8);
        CHECK(!memcmp(x, y, n * 8));
    }
}

/* MPI's double and int: the value decides, then the lower index; what the compiler has left between two of them does not. */
static void test_double_int(void) {
    typedef struct pair {
        double value;
        int32_t index, unused; /* i386 has no room behind an int of its own accord */
    } pair;
    static const double values[] = {-2, -1.5, -0.0, 0, 1, 1e300, -1e300};
    test_random r = random_from(97);
    int trial, op;
    CHECK_INT(sizeof(pair), mesh_dtype_bytes(MESH_F64_I32));
    for (trial = 0; trial < 2000; trial++)
        for (op = MESH_MINLOC; op <= MESH_MAXLOC; op++) {
            pair p[2], got, want;
            int k, first;
            for (k = 0; k < 2; k++) {
                memset(&p[k], random_below(&r, 256), sizeof p[k]);
                p[k].value = values[random_below(&r, 7)];
                p[k].index = random_below(&r, 5) - 2;
            }
            if (p[0].value == p[1].value && p[0].value == 0) p[0].value = p[1].value = 0; /* -0 is less than 0 */
            first = p[0].value == p[1].value ? p[0].index <= p[1].index
                    : op == MESH_MINLOC      ? p[0].value < p[1].value
                                             : p[0].value > p[1].value;
            want = p[!first];
            memcpy(&got, &p[0], sizeof got);
            mesh__reduce(op, MESH_F64_I32, &got, &p[1], 1);
            CHECK(got.value == want.value);
            CHECK_INT(got.index, want.index);
            if (test_failures) return;
        }
}

/* Every offset of one page in another, lengths about those of a block and of a string move, and over itself from both sides. */
static void test_copied(void) {
    enum { ROOM = 5 * 4096 };
    static const int lengths[] = {0, 1, 63, 64, 2047, 2048, 2049, 2111, 2112, 4097, 9000};
    static unsigned char from[ROOM], to[ROOM], want[ROOM];
    int above, i, k;
    for (i = 0; i < ROOM; i++) from[i] = (unsigned char)((i * 7 + i / 251) % 253);
    for (above = 0; above < 4096; above = above < 40 ? above + 1 : above < 4040 ? above + 250 : above + 1)
        for (k = 0; k < (int)(sizeof lengths / sizeof lengths[0]); k++) {
            int n = lengths[k], at = (int)(((uintptr_t)from + 100 - (uintptr_t)to) % 4096 + (unsigned)above) % 4096;
            memset(to, 0xcc, sizeof to), memset(want, 0xcc, sizeof want);
            memcpy(want + at, from + 100, (size_t)n);
            mesh__copy_bytes(to + at, from + 100, (size_t)n);
            if (memcmp(to, want, sizeof to))
                test_fail(__FILE__, __LINE__, "%d bytes, %d further into their page, are wrong", n, above);
        }
    for (above = -4200; above <= 4200; above++) { /* over itself: 8,300 bytes at 4,100 to where they lie otherwise */
        memcpy(to, from, sizeof to), memcpy(want, from, sizeof want);
        memmove(want + 4200 + above, want + 4200, 8300);
        mesh__copy_bytes(to + 4200 + above, to + 4200, 8300);
        if (memcmp(to, want, sizeof to)) test_fail(__FILE__, __LINE__, "over itself, %d bytes on, it is wrong", above);
    }
}

static const test_case bytes_tests[] = {
    {"bytes/copied", test_copied, 0},
    {"bytes/double_int", test_double_int, 0},
    {"bytes/blocks", test_blocks, 0}, {"bytes/fits", test_block_fits, 0},
    {"bytes/grow", test_grow, 0},     {"bytes/little_endian", test_little_endian, 0},
    {"bytes/halves", test_halves, 0}, {"bytes/reducible", test_reducible, 0},
    {"bytes/reduce", test_reduce, 0}, {"bytes/combine_swapped", test_combine_swapped, 0},
};

#endif
