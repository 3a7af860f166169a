/* mesh/vector.h, and reductions of many in mesh/kernels.h: every loop against numbers computed one by one, at every width of registers. */
#ifndef T_KERNELS_H
#define T_KERNELS_H

enum { KERNEL_SOURCES = 9, KERNEL_COUNT = 1031, KERNEL_BYTES = KERNEL_COUNT * 16, KERNEL_MARGIN = 192 };

static int kernel_is_half(int dtype) { return dtype == MESH_F16 || dtype == MESH_BF16; }
static int kernel_is_float(int dtype) { return dtype == MESH_F32 || dtype == MESH_F64 || kernel_is_half(dtype); }

/* The widths that this CPU has, from the widest down to none. */
static int kernel_widths(mesh__width *width) {
    int n = 0, w;
    for (w = (int)mesh__widest(); w >= 16; w /= 2) width[n++] = (mesh__width)w;
    width[n++] = MESH__PLAIN;
    return n;
}

/* ---- halves by their definition, not by the library's conversions ---- */

static double kernel_half[2]
                         [32768]; /* f16, bf16: what the finite ones from 0 on are; behind them what would come next */

static uint16_t kernel_inf(int dtype) { return dtype == MESH_F16 ? 0x7c00 : 0x7f80; }

static void kernel_halves(void) {
    int k, h;
    for (k = 0; k < 2; k++) {
        double step = 1;
        int bits = k ? 7 : 10, below = (k ? 126 : 14) + bits, i;
        for (i = 0; i < below; i++) step /= 2;
        for (h = 1; h <= (k ? 0x7f80 : 0x7c00); h++) {
            kernel_half[k][h] = kernel_half[k][h - 1] + step;
            if (h % (1 << bits) == 0 && h >> bits > 1)
                step *= 2; /* the first normal numbers are as near each other as subnormal ones */
        }
    }
}

static double kernel_half_value(int dtype, uint16_t h) {
    double v = kernel_half[dtype == MESH_BF16][h & 0x7fff];
    return h & 0x8000 ? -v : v;
}

/* The half next to v, of two the even one. */
static uint16_t kernel_half_of(int dtype, double v, uint16_t sign) {
    const double *half = kernel_half[dtype == MESH_BF16];
    int low = 0, high = kernel_inf(dtype);
    double magnitude = v < 0 ? -v : v;
    if (magnitude >= half[high]) return (uint16_t)(high | sign);
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (half[middle] <= magnitude)
            low = middle;
        else
            high = middle;
    }
    if (magnitude - half[low] > half[high] - magnitude || (magnitude - half[low] == half[high] - magnitude && low % 2))
        low = high;
    return (uint16_t)(low | sign);
}

/* ---- one number of the result, from one of each source ---- */

static uint64_t kernel_bits(const void *p, size_t elem) {
    uint8_t u8 = 0;
    uint16_t u16 = 0;
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    memcpy(&u8, p, 1);
    memcpy(&u16, p, elem < 2 ? 0 : 2);
    memcpy(&u32, p, elem < 4 ? 0 : 4);
    memcpy(&u64, p, elem < 8 ? 0 : 8);
    return elem == 1 ? u8 : elem == 2 ? u16 : elem == 4 ? u32 : u64;
}

static void kernel_put(void *p, uint64_t v, size_t elem) {
    uint8_t u8 = (uint8_t)v;
    uint16_t u16 = (uint16_t)v;
    uint32_t u32 = (uint32_t)v;
    memcpy(p, elem == 1 ? (void *)&u8 : elem == 2 ? (void *)&u16 : elem == 4 ? (void *)&u32 : (void *)&v, elem);
}

static uint64_t kernel_inf_bits(int dtype) {
    return dtype == MESH_F64   ? UINT64_C(0x7ff0000000000000)
           : dtype == MESH_F32 ? UINT64_C(0x7f800000)
                               : (uint64_t)kernel_inf(dtype);
}

static int kernel_is_nan(int dtype, uint64_t bits) {
    uint64_t sign = (uint64_t)1 << (mesh_dtype_bytes((mesh_dtype)dtype) * 8 - 1);
    return kernel_is_float(dtype) && (bits & ~sign) > kernel_inf_bits(dtype);
}

/* Is a less than b? Integers as they are, floats by sign and magnitude. */
static int kernel_less(int dtype, uint64_t a, uint64_t b) {
    size_t elem = mesh_dtype_bytes((mesh_dtype)dtype);
    uint64_t sign = (uint64_t)1 << (elem * 8 - 1);
    int na = (a & sign) != 0, nb = (b & sign) != 0;
    if (dtype == MESH_U8 || dtype == MESH_U16 || dtype == MESH_U32 || dtype == MESH_U64) return a < b;
    if (na != nb) return na;
    return kernel_is_float(dtype) && na ? a > b : a < b;
}

/* Sum or product, rounded after every step but for halves, which are at the end. */
static uint64_t kernel_float(int op, int dtype, const uint64_t *v, int n) {
    volatile float f = 0, g;
    volatile double d = 0, e;
    uint32_t u;
    uint64_t l;
    int k;
    for (k = 0; k < n; k++) {
        if (dtype == MESH_F64) {
            double x;
            memcpy(&x, &v[k], 8);
            e = x;
            d = k == 0 ? e : op == MESH_PROD ? d * e : d + e;
            continue;
        }
        u = (uint32_t)v[k];
        if (kernel_is_half(dtype) && (v[k] & 0x7fff) >= kernel_inf(dtype)) {
            u = (uint32_t)(v[k] & 0x8000) << 16 | ((v[k] & 0x7fff) > kernel_inf(dtype) ? 0x7fc00000u : 0x7f800000u);
        } else if (kernel_is_half(dtype)) {
            float x = (float)kernel_half_value(dtype, (uint16_t)v[k]);
            memcpy(&u, &x, 4);
        }
        {
            float x;
            memcpy(&x, &u, 4);
            g = x;
        }
        f = k == 0 ? g : op == MESH_PROD ? f * g : f + g;
    }
    {
        float x = f;
        double y = d;
        memcpy(&u, &x, 4);
        memcpy(&l, &y, 8);
    }
    if (dtype == MESH_F64) return l;
    if (dtype == MESH_F32) return u;
    if ((u & 0x7fffffffu) > 0x7f800000u) return kernel_inf(dtype) | 1u;
    if ((u & 0x7fffffffu) == 0x7f800000u) return (u >> 16 & 0x8000) | kernel_inf(dtype);
    return kernel_half_of(dtype, (double)f, (uint16_t)(u >> 16 & 0x8000));
}

static uint64_t kernel_one(int op, int dtype, const uint64_t *v, int n) {
    uint64_t all = v[0];
    int k;
    if (kernel_is_float(dtype) && op != MESH_MIN && op != MESH_MAX) return kernel_float(op, dtype, v, n);
    for (k = 0; k < n; k++) {
        if (kernel_is_nan(dtype, v[k])) return kernel_inf_bits(dtype) | 1;
        if (k == 0) continue;
        all = op == MESH_SUM    ? all + v[k]
              : op == MESH_PROD ? all * v[k]
              : op == MESH_AND  ? all & v[k]
              : op == MESH_OR   ? all | v[k]
              : op == MESH_XOR  ? all ^ v[k]
              : op == MESH_MIN  ? (kernel_less(dtype, v[k], all) ? v[k] : all)
                                : (kernel_less(dtype, all, v[k]) ? v[k] : all);
    }
    return all;
}

/* ---- the same of arrays ---- */

typedef struct kernel_case {
    mesh_call call;
    int dtype, op, n, stream;
    size_t count, elem;
} kernel_case;

static unsigned char kernel_in[KERNEL_SOURCES][KERNEL_BYTES], kernel_out[KERNEL_BYTES];

/* Bits of any kind: zeros, infinities, subnormal numbers, NaNs, all exponents; most within a factor of 8, where rounding shows. Parts of complex
   numbers only these. */
static void kernel_fill(test_random *r, const kernel_case *c) {
    int dtype = c->dtype == MESH_C64                                ? MESH_F32
                : c->dtype == MESH_C128 || c->dtype == MESH_F64_I32 ? MESH_F64
                                                                    : c->dtype,
        k;
    size_t i, width = mesh_dtype_bytes((mesh_dtype)dtype);
    uint64_t sign = (uint64_t)1 << (width * 8 - 1), inf = kernel_inf_bits(dtype), unit = inf & (~inf + 1);
    for (k = 0; k < c->n; k++)
        for (i = 0; i < c->count * c->elem; i += width) {
            uint64_t v = random_next(r);
            int kind = mesh__is_complex(c->dtype) ? 4 : random_below(r, 16);
            if (kind == 0) v &= sign;
            if (kind == 1) v = inf | (v & sign);
            if (kind == 2) v &= sign | (unit - 1);
            if (kind > 3 && kernel_is_float(dtype))
                v = (v & (sign | (unit - 1))) | ((inf >> 1 & inf) - 2 * unit + (uint64_t)random_below(r, 4) * unit);
            kernel_put(kernel_in[k] + i, v, width);
        }
}

/* What is to come out. Complex numbers and pairs by plain passes, which t_bytes.h checks. */
static void kernel_expect(const kernel_case *c) {
    size_t i;
    int k;
    if (mesh__is_complex(c->dtype) || mesh__is_loc(c->op)) {
        memcpy(kernel_out, kernel_in[0], c->count * c->elem);
        for (k = 1; k < c->n; k++) mesh__reduce_plain(c->op, c->dtype, kernel_out, kernel_in[k], c->count);
        return;
    }
    for (i = 0; i < c->count; i++) {
        uint64_t v[KERNEL_SOURCES];
        for (k = 0; k < c->n; k++) v[k] = kernel_bits(kernel_in[k] + i * c->elem, c->elem);
        kernel_put(kernel_out + i * c->elem, c->n > 1 ? kernel_one(c->op, c->dtype, v, c->n) : v[0], c->elem);
    }
}

/* Any NaN for a NaN. */
static int kernel_same(const kernel_case *c, const unsigned char *got) {
    size_t i;
    if (!memcmp(got, kernel_out, c->count * c->elem)) return 1;
    for (i = 0; i < c->count && kernel_is_float(c->dtype); i++) {
        uint64_t a = kernel_bits(got + i * c->elem, c->elem), b = kernel_bits(kernel_out + i * c->elem, c->elem);
        if (a == b || (kernel_is_nan(c->dtype, a) && kernel_is_nan(c->dtype, b))) continue;
        test_fail(__FILE__, __LINE__, "number %d of %d is %" PRIx64 ", expected %" PRIx64, (int)i, (int)c->count, a, b);
        return 0;
    }
    return kernel_is_float(c->dtype);
}

typedef struct kernel_room {
    unsigned char b[KERNEL_BYTES + 2 * KERNEL_MARGIN];
} kernel_room;

/* Run it at a width, into up to three destinations, each apart or a source: they hold what is expected, and nothing else has changed. */
static void kernel_try(test_random *r, const kernel_case *c, mesh__width width) {
    static kernel_room room[KERNEL_SOURCES + 3], before[KERNEL_SOURCES + 3];
    unsigned char *at[KERNEL_SOURCES + 3];
    const void *src[KERNEL_SOURCES] = {NULL};
    void *dst[3] = {NULL, NULL, NULL};
    size_t nbytes = c->count * c->elem;
    int k, ndst = 1 + random_below(r, 3), inside = random_below(r, 3), aligned = random_below(r, 3), which[3];
    for (k = 0; k < c->n + ndst; k++) {
        size_t off = aligned == 0   ? 0
                     : aligned == 1 ? c->elem * (size_t)random_below(r, 8) % 64
                                    : (size_t)random_below(r, 64);
        at[k] = room[k].b + (KERNEL_MARGIN - (uintptr_t)room[k].b % 64) + off;
        memset(room[k].b, 0xa5 + k, nbytes + 2 * KERNEL_MARGIN);
        if (k < c->n) memcpy(at[k], kernel_in[k], nbytes);
        if (k < c->n) src[k] = at[k];
    }
    for (k = 0; k < ndst; k++) { /* the first ones are sources, each another */
        which[k] = k < inside && k < c->n ? (c->n - 1 + k * 3) % c->n : c->n + k;
        if (k && which[k] == which[k - 1]) which[k] = c->n + k;
        dst[k] = at[which[k]];
    }
    for (k = 0; k < c->n + ndst; k++) memcpy(before[k].b, room[k].b, nbytes + 2 * KERNEL_MARGIN);
    if (width == mesh__widest()) /* as it is called, a few at a time too */
        mesh__reduce_many(&c->call, dst, ndst, src, c->n, c->count, c->elem, c->stream);
    else
        mesh__reduce_wide(width, &c->call, dst, ndst, src, c->n, c->count, c->elem, c->stream);
    for (k = 0; k < ndst; k++) {
        if (!kernel_same(c, at[which[k]]))
            test_fail(__FILE__, __LINE__,
                      "%s of %s, %d sources, %d numbers, %d bytes wide, result %d of %d, stream %d, inside %d",
                      c->op < MESH_OP_COUNT ? mesh_op_name((mesh_op)c->op) : "user's",
                      mesh_dtype_name((mesh_dtype)c->dtype), c->n, (int)c->count, (int)width, k, ndst, c->stream,
                      inside);
        memcpy(at[which[k]], before[which[k]].b + (at[which[k]] - room[which[k]].b), nbytes);
    }
    for (k = 0; k < c->n + ndst; k++)
        if (memcmp(room[k].b, before[k].b, nbytes + 2 * KERNEL_MARGIN))
            test_fail(__FILE__, __LINE__, "what is none of the result has changed: memory %d, %d numbers of %s", k,
                      (int)c->count, mesh_dtype_name((mesh_dtype)c->dtype));
}

static kernel_case kernel_of(int op, int dtype, int n, size_t count) {
    kernel_case c;
    memset(&c, 0, sizeof c);
    c.call = mesh__call(MESH_CALL_ALL_REDUCE, NULL, NULL, 0, (mesh_dtype)dtype, (mesh_op)op, 0);
    c.dtype = dtype;
    c.op = op;
    c.n = n;
    c.count = count;
    c.elem = mesh__is_loc(op) ? mesh__pair_bytes(dtype) : mesh_dtype_bytes((mesh_dtype)dtype);
    return c;
}

/* Every op of every dtype, of 1 to 9 sources, at every width. */
static void test_kernel_many(void) {
    static const int counts[] = {0, 1, 7, 15, 31, 33, 64, 131, 517, 1024, KERNEL_COUNT};
    test_random r = random_from(901);
    mesh__width width[4];
    int op, d, n, k, w, widths = kernel_widths(width);
    kernel_halves();
    for (op = 0; op < MESH_OP_COUNT; op++)
        for (d = 0; d < MESH_DTYPE_COUNT; d++) {
            if (!mesh__reducible(d, op)) continue;
            for (n = 1; n <= KERNEL_SOURCES && !test_failures; n++)
                for (k = 0; k < 4; k++) {
                    kernel_case c = kernel_of(op, d, n, (size_t)counts[(n * 5 + k * 3 + d) % 11]);
                    kernel_fill(&r, &c);
                    kernel_expect(&c);
                    for (w = 0; w < widths; w++) {
                        c.stream = random_below(&r, 2);
                        kernel_try(&r, &c, width[w]);
                    }
                    if (n == 2 && c.count) { /* and as transports call it */
                        unsigned char in_place[KERNEL_BYTES];
                        memcpy(in_place, kernel_in[0], c.count * c.elem);
                        mesh__reduce(op, d, in_place, kernel_in[1], c.count);
                        CHECK(kernel_same(&c, in_place));
                    }
                }
        }
}

/* The loops that are meant for a dtype are those that run: what none runs for the plain ones would do as well, and slowly. */
static void test_kernel_loops(void) {
    static const int dtypes[] = {MESH_F32, MESH_F64, MESH_F16, MESH_BF16, MESH_I32, MESH_U32, MESH_I64, MESH_U64};
    static const int ops[] = {MESH_SUM, MESH_AVG, MESH_MIN, MESH_MAX};
    static double a[64], b[64];
    mesh__width width[4];
    int d, o, w, widths = kernel_widths(width);
    CHECK(width[0] == mesh__widest());
#ifdef MESH_NO_SIMD
    CHECK_INT(widths, 1);
#elif defined(__x86_64__) || defined(__aarch64__)
    CHECK(widths > 1);
#endif
    for (d = 0; d < 8; d++)
        for (o = 0; o < 4; o++)
            for (w = 0; w < widths; w++) {
                void *dst[1] = {a};
                const void *src[2] = {a, b};
                size_t nbytes;
                for (nbytes = 48; nbytes <= 512; nbytes += 8) {
                    int slow = width[w] == MESH__WIDE_16 && o > 1 && mesh_dtype_bytes((mesh_dtype)dtypes[d]) == 8, ran;
                    mesh__pass p;
                    if (ops[o] == MESH_AVG && !kernel_is_float(dtypes[d])) continue;
                    memset(&p, 0, sizeof p);
                    mesh__pass_for(&p, ops[o], dtypes[d]);
                    p.dst = dst, p.src = src, p.ndst = 1, p.nsrc = 2, p.to = nbytes;
                    ran = mesh__pass_run(&p, width[w]);
#ifdef __aarch64__
                    slow = 0;
#endif
                    CHECK_INT(ran, width[w] != MESH__PLAIN && nbytes >= 64 && !slow);
                }
            }
    for (d = 0; d < MESH_DTYPE_COUNT; d++)
        for (o = 0; o < MESH_OP_COUNT; o++) {
            mesh__pass p;
            int k, listed = 0;
            for (k = 0; k < 8; k++) listed |= dtypes[k] == d;
            mesh__pass_for(&p, o, d);
            if (mesh__reducible(d, o))
                CHECK_INT(p.loop != MESH__NO_LOOP,
                          listed && (o == MESH_SUM || o == MESH_AVG || o == MESH_MIN || o == MESH_MAX));
        }
}

/* Every half with every exponent of another, at every width: widened, added, rounded. */
static void test_kernel_half_sums(void) {
    enum { N = 512 };
    mesh__width width[4];
    test_random r = random_from(902);
    int dtypes[2] = {MESH_F16, MESH_BF16}, d, w, h, i, k, widths = kernel_widths(width);
    kernel_halves();
    for (d = 0; d < 2; d++)
        for (h = 0; h < 65536 && !test_failures; h += N)
            for (k = 0; k < 6; k++) {
                kernel_case c = kernel_of(MESH_SUM, dtypes[d], 2 + k % 2, N);
                uint16_t v[KERNEL_SOURCES];
                for (i = 0; i < N; i++) {
                    v[0] = (uint16_t)(h + i);
                    v[1] = (uint16_t)(k == 0 ? 0x8000
                                             : v[0] ^ (random_next(&r) &
                                                       0x8fff)); /* -0 changes nothing; or one of like size */
                    v[2] = (uint16_t)(random_next(&r) & 0x83ff);
                    if (k == 3) v[1] = (uint16_t)(v[0] ^ 0x8000 ^ (random_next(&r) & 3)); /* hardly anything is left */
                    memcpy(kernel_in[0] + 2 * i, &v[0], 2);
                    memcpy(kernel_in[1] + 2 * i, &v[1], 2);
                    memcpy(kernel_in[2] + 2 * i, &v[2], 2);
                }
                kernel_expect(&c);
                for (w = 0; w < widths; w++) kernel_try(&r, &c, width[w]);
            }
}

/* ---- a user's op: in the sources' order, on memory that is aligned, a tile at a time ---- */

typedef struct kernel_user {
    size_t elem, calls, most;
    int misaligned;
} kernel_user;

/* x -> a x + b, one after the other: associative, and does not commute. The rest of an element is left as it is. */
static void kernel_affine(void *inout, const void *in, size_t count, void *ctx) {
    kernel_user *u = (kernel_user *)ctx;
    size_t i;
    u->calls++;
    if (count > u->most) u->most = count;
    u->misaligned |= (uintptr_t)inout % 64 != 0 || (uintptr_t)in % 64 != 0;
    for (i = 0; i < count; i++) {
        uint32_t first[2], then[2];
        memcpy(first, (const unsigned char *)in + i * u->elem, 8);
        memcpy(then, (unsigned char *)inout + i * u->elem, 8);
        then[1] += then[0] * first[1];
        then[0] *= first[0];
        memcpy((unsigned char *)inout + i * u->elem, then, 8);
    }
}

static void test_kernel_user(void) {
    static const size_t elems[] = {8, 12, 16, 40, 4096};
    test_random r = random_from(903);
    int e, n, trial;
    for (e = 0; e < 5; e++)
        for (n = 1; n <= KERNEL_SOURCES; n++)
            for (trial = 0; trial < 4; trial++) {
                kernel_user user = {0, 0, 0, 0};
                kernel_case c = kernel_of(MESH_OP_COUNT, MESH_BYTES, n, 0);
                size_t i, tile = 4096 / elems[e];
                int k;
                c.elem = user.elem = elems[e];
                c.count = (size_t)random_below(&r, (int)(KERNEL_BYTES / c.elem) + 1);
                c.stream = trial % 2;
                c.call.user_op = kernel_affine;
                c.call.user_ctx = &user;
                for (k = 0; k < n; k++)
                    for (i = 0; i < c.count * c.elem / 4; i++) kernel_put(kernel_in[k] + 4 * i, random_next(&r), 4);
                for (i = 0; i < c.count; i++) {
                    uint32_t all[2] = {1, 0}, x[2];
                    for (k = 0; k < n; k++) {
                        memcpy(x, kernel_in[k] + i * c.elem, 8);
                        all[1] = x[0] * all[1] + x[1];
                        all[0] *= x[0];
                    }
                    memcpy(kernel_out + i * c.elem, kernel_in[n - 1] + i * c.elem, c.elem);
                    memcpy(kernel_out + i * c.elem, all, 8);
                }
                kernel_try(&r, &c, mesh__widest());
                CHECK(!user.misaligned && user.most <= tile);
                CHECK(user.calls <= (size_t)(n - 1) * ((c.count + tile - 1) / tile + 1));
            }
}

/* ---- copies past the caches: any length, any place ---- */

static void test_kernel_copy_stream(void) {
    static unsigned char from[1024], to[1024], want[1024];
    test_random r = random_from(904);
    size_t n, k;
    for (k = 0; k < sizeof from; k++) from[k] = (unsigned char)random_next(&r);
    for (n = 0; n <= 700; n += n < 200 ? 1 : 37)
        for (k = 0; k < 64; k++) {
            size_t s = (size_t)random_below(&r, 64), d = 64 + (k + 64 - (uintptr_t)to % 64) % 64;
            memset(to, 0x5a, sizeof to);
            memset(want, 0x5a, sizeof want);
            memcpy(want + d, from + s, n);
            mesh__copy_stream(to + d, from + s, n);
            if (memcmp(to, want, sizeof to))
                test_fail(__FILE__, __LINE__, "%d bytes from %d to %d", (int)n, (int)s, (int)d);
        }
}

static const test_case kernels_tests[] = {
    {"kernels/many", test_kernel_many, 0},
    {"kernels/loops", test_kernel_loops, 0},
    {"kernels/half_sums", test_kernel_half_sums, 0},
    {"kernels/user", test_kernel_user, 0},
    {"kernels/copy_stream", test_kernel_copy_stream, 0},
};

#endif
