/* mesh bench: the columns of nccl-tests for any operation, dtype and group; and the tuning table. */
#ifndef TOOL_BENCH_H
#define TOOL_BENCH_H

typedef struct bench_result {
    double us;
    uint64_t wrong;
} bench_result;

typedef struct bench {
    mesh_comm *comm;
    const char *axes;
    int kind, n, me, root, iters, warmup;
    mesh_dtype d;
    mesh_op op;
    size_t elem; /* of the buffers: a pair's for minloc */
    unsigned char *send, *recv;
    size_t room;
} bench;

enum { PERIOD = 61 /* the data repeats, so that what is expected is quickly made */ };

static const int bench_kinds[] = {MESH_CALL_ALL_REDUCE, MESH_CALL_REDUCE,         MESH_CALL_BROADCAST,
                                  MESH_CALL_ALL_GATHER, MESH_CALL_REDUCE_SCATTER, MESH_CALL_ALL_TO_ALL,
                                  MESH_CALL_GATHER,     MESH_CALL_SCATTER,        MESH_CALL_SCAN,
                                  MESH_CALL_EXSCAN,     MESH_CALL_SHIFT,          MESH_CALL_BARRIER};
enum { BENCH_KINDS = sizeof bench_kinds / sizeof bench_kinds[0] };

/* Blocks of count elements in send and recv, for a group of n. */
static size_t bench_send_blocks(const bench *b) {
    return b->kind == MESH_CALL_REDUCE_SCATTER || b->kind == MESH_CALL_ALL_TO_ALL || b->kind == MESH_CALL_SCATTER
               ? (size_t)b->n
               : 1;
}
static size_t bench_recv_blocks(const bench *b) {
    return b->kind == MESH_CALL_ALL_GATHER || b->kind == MESH_CALL_ALL_TO_ALL || b->kind == MESH_CALL_GATHER
               ? (size_t)b->n
               : 1;
}

/* The call to time. What reduces nothing moves plain elements. */
static void bench_choose(bench *b, int kind, mesh_op op) {
    b->kind = kind;
    b->op = mesh__call_is(kind, MESH_REDUCES) ? op : MESH_SUM;
    b->elem = mesh_dtype_bytes(b->d) * (mesh__is_loc(b->op) ? 2 : 1);
}

static int bench_possible(const bench *b) {
    int scans = b->kind == MESH_CALL_SCAN || b->kind == MESH_CALL_EXSCAN;
    return !mesh__call_is(b->kind, MESH_REDUCES) || (mesh__reducible(b->d, b->op) && !(scans && b->op == MESH_AVG));
}

static mesh_status bench_call(bench *b, size_t count, int in_place) {
    mesh_comm *c = b->comm;
    size_t block = count * b->elem * (size_t)b->me;
    const void *send = b->send;
    void *recv = b->recv;
    int rooted = b->kind == MESH_CALL_GATHER || b->kind == MESH_CALL_SCATTER;
    if (in_place && b->kind != MESH_CALL_SHIFT) {
        if (b->kind == MESH_CALL_ALL_GATHER || (b->kind == MESH_CALL_GATHER && b->me == b->root))
            send = b->recv + block;
        else if (b->kind == MESH_CALL_REDUCE_SCATTER || (b->kind == MESH_CALL_SCATTER && b->me == b->root))
            recv = b->send + block;
        else if (!rooted)
            send = b->recv;
    }
    switch (b->kind) {
    case MESH_CALL_ALL_REDUCE:
        return mesh_all_reduce(c, b->axes, send, recv, count, b->d, b->op);
    case MESH_CALL_REDUCE:
        return mesh_reduce(c, b->axes, send, recv, count, b->d, b->op, b->root);
    case MESH_CALL_BROADCAST:
        return mesh_broadcast(c, b->axes, send, recv, count, b->d, b->root);
    case MESH_CALL_ALL_GATHER:
        return mesh_all_gather(c, b->axes, send, recv, count, b->d);
    case MESH_CALL_REDUCE_SCATTER:
        return mesh_reduce_scatter(c, b->axes, send, recv, count, b->d, b->op);
    case MESH_CALL_ALL_TO_ALL:
        return mesh_all_to_all(c, b->axes, send, recv, count, b->d);
    case MESH_CALL_GATHER:
        return mesh_gather(c, b->axes, send, recv, count, b->d, b->root);
    case MESH_CALL_SCATTER:
        return mesh_scatter(c, b->axes, send, recv, count, b->d, b->root);
    case MESH_CALL_SCAN:
        return mesh_scan(c, b->axes, send, recv, count, b->d, b->op);
    case MESH_CALL_EXSCAN:
        return mesh_exscan(c, b->axes, send, recv, count, b->d, b->op);
    case MESH_CALL_SHIFT:
        return mesh_shift(c, b->axes, 1, 1, b->send, b->recv, count, b->d);
    default:
        return mesh_barrier(c, b->axes);
    }
}

/* Rank r's elements first .. first+count, block `which` of its buffer. */
static void bench_fill(const bench *b, int r, size_t which, size_t count, unsigned char *to) {
    size_t i, bytes = PERIOD * b->elem;
    for (i = 0; i < PERIOD && i < count; i++) {
        int64_t re = conf_value(b->op, r, i + which, 0), im = conf_value(b->op, r, i + which, 1);
        if (mesh__is_loc(b->op))
            conf_put_pair(b->d, to, i, re, im);
        else
            conf_put(b->d, to, i, re, im);
    }
    for (i = PERIOD; i < count; i += PERIOD)
        memcpy(to + i * b->elem, to, count - i < PERIOD ? (count - i) * b->elem : bytes);
}

/* What goes in before a call, where in-place data have to be. */
static void bench_prepare(bench *b, size_t count, int in_place) {
    size_t k, bytes = count * b->elem, sb = bench_send_blocks(b), rb = bench_recv_blocks(b);
    int all_to_all = b->kind == MESH_CALL_ALL_TO_ALL;
    int mine = in_place && (all_to_all || (sb == 1 && (b->kind != MESH_CALL_GATHER || b->me == b->root)));
    unsigned char *to = mine ? b->recv + (rb > 1 && !all_to_all ? (size_t)b->me * bytes : 0) : b->send;
    memset(b->recv, 0xee, rb * bytes);
    if (b->kind == MESH_CALL_SHIFT) to = b->send;
    for (k = 0; k < sb; k++) bench_fill(b, b->me, k, count, to + k * bytes);
}

/* Elements of the result that are not what they should be, after one call on fresh data. */
static uint64_t bench_wrong(bench *b, size_t count, int in_place) {
    int *seed = (int *)malloc((size_t)b->n * sizeof *seed), r,
        rooted = b->kind == MESH_CALL_REDUCE || b->kind == MESH_CALL_GATHER;
    size_t bytes = count * b->elem, k, i, rb = bench_recv_blocks(b);
    unsigned char want[PERIOD * 32];
    const unsigned char *got =
        in_place && (b->kind == MESH_CALL_REDUCE_SCATTER || (b->kind == MESH_CALL_SCATTER && b->me == b->root))
            ? b->send + (size_t)b->me * bytes
            : b->recv;
    uint64_t wrong = 0;
    if (b->kind == MESH_CALL_BARRIER || (rooted && b->me != b->root) || (b->kind == MESH_CALL_EXSCAN && b->me == 0)) {
        free(seed);
        return 0;
    }
    for (r = 0; r < b->n && seed; r++) seed[r] = r;
    for (k = 0; k < rb; k++) {
        int from = b->kind == MESH_CALL_BROADCAST || b->kind == MESH_CALL_SCATTER ? b->root
                   : b->kind == MESH_CALL_SHIFT                                   ? (b->me - 1 + b->n) % b->n
                                                                                  : (int)k;
        int upto = b->kind == MESH_CALL_SCAN ? b->me + 1 : b->kind == MESH_CALL_EXSCAN ? b->me : b->n;
        size_t which =
            b->kind == MESH_CALL_ALL_TO_ALL || b->kind == MESH_CALL_SCATTER || b->kind == MESH_CALL_REDUCE_SCATTER
                ? (size_t)b->me
                : 0;
        if (mesh__call_is(b->kind, MESH_REDUCES) && seed)
            for (i = 0; i < PERIOD && i < count; i++) conf_expect(b->d, b->op, upto, seed, i + which, want, i);
        else
            bench_fill(b, from, which, count < PERIOD ? count : PERIOD, want);
        for (i = 0; i < count; i++)
            wrong += memcmp(got + k * bytes + i * b->elem, want + i % PERIOD * b->elem, b->elem) != 0;
    }
    free(seed);
    return wrong;
}

static int bench_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The slowest rank's time per call (the median of samples that begin with a barrier), and the wrong values on all ranks of the mesh. */
static mesh_status bench_measure(bench *b, size_t count, int in_place, bench_result *out) {
    enum { MOST = 1000 };
    double time_us[MOST], estimate;
    int64_t start;
    mesh_status status = MESH_OK;
    int i, k, inner, samples;
    bench_prepare(b, count, in_place);
    if ((status = bench_call(b, count, in_place)) != MESH_OK) return status;
    out->wrong = bench_wrong(b, count, in_place);
    for (i = 0; i < b->warmup && !status; i++) status = bench_call(b, count, in_place);
    if (status || (status = mesh_barrier(b->comm, NULL)) != MESH_OK) return status;
    start = mesh_socket__clock();
    for (i = 0; i < 2 && !status; i++) status = bench_call(b, count, in_place);
    estimate = (double)(mesh_socket__clock() - start) / 2e3;
    if (!status) status = mesh_all_reduce(b->comm, NULL, &estimate, &estimate, 1, MESH_F64, MESH_MAX);
    inner = estimate < 1000 ? 10 : 1;
    samples = b->iters ? (b->iters + inner - 1) / inner : (int)(100000 / (estimate * inner + 50));
    samples = samples < 5 ? 5 : samples > MOST ? MOST : samples;
    for (i = 0; i < samples && !status; i++) {
        if ((status = mesh_barrier(b->comm, NULL)) != MESH_OK) break;
        start = mesh_socket__clock();
        for (k = 0; k < inner && !status; k++) status = bench_call(b, count, in_place);
        time_us[i] = (double)(mesh_socket__clock() - start) / 1e3 / inner;
    }
    if (status ||
        (status = mesh_all_reduce(b->comm, NULL, time_us, time_us, (size_t)samples, MESH_F64, MESH_MAX)) != MESH_OK)
        return status;
    qsort(time_us, (size_t)samples, sizeof *time_us, bench_order);
    out->us = time_us[samples / 2];
    return mesh_all_reduce(b->comm, NULL, &out->wrong, &out->wrong, 1, MESH_U64, MESH_SUM);
}

/* Bytes that the size column shows (nccl-tests': all blocks together), and how many times they cross the busiest link. */
static size_t bench_size(const bench *b, size_t count) {
    size_t sb = bench_send_blocks(b), rb = bench_recv_blocks(b);
    return count * b->elem * (sb > rb ? sb : rb);
}
static double bench_bus_factor(const bench *b) {
    double n = b->n;
    if (b->kind == MESH_CALL_ALL_REDUCE) return 2 * (n - 1) / n;
    return bench_send_blocks(b) > 1 || bench_recv_blocks(b) > 1 ? (n - 1) / n : 1;
}

/* "8", "64K", "16M", "1G". 0: none of these. */
static size_t bench_bytes(const char *text) {
    char *end;
    unsigned long long v;
    errno = 0;
    v = strtoull(text, &end, 10);
    if (errno || v > SIZE_MAX >> 30) return 0;
    const char *units = "KMG", *u;
    if (text[0] < '0' || text[0] > '9') return 0;
    if (*end && (u = strchr(units, *end & ~32)) != NULL && *u) {
        v <<= 10 * (u - units + 1);
        end++;
    }
    if (*end == 'B' || *end == 'b') end++;
    return *end ? 0 : (size_t)v;
}

/* The index of a name in a table of names. */
static int bench_find(const char *name, const char *(*name_of)(int), int n) {
    int i;
    for (i = 0; i < n && strcmp(name, name_of(i)); i++) {}
    return i < n ? i : -1;
}
static const char *bench_dtype_name(int i) { return mesh_dtype_name((mesh_dtype)i); }
static const char *bench_op_name(int i) { return mesh_op_name((mesh_op)i); }
static const char *bench_kind_name(int i) { return mesh__call_name(bench_kinds[i]); }

enum { BENCH_TABLE, BENCH_CSV, BENCH_JSON };

static void bench_head(const bench *b, int format) {
    if (format == BENCH_CSV) puts("call,axes,ranks,size,count,type,op,root,in_place,time_us,algbw_gbs,busbw_gbs,wrong");
    if (format != BENCH_TABLE) return;
    printf("# %s on %s: %d rank%s\n", mesh__call_name(b->kind), b->axes ? b->axes : "the whole mesh", b->n,
           b->n == 1 ? "" : "s");
    printf("#%12s %12s %9s %7s %5s  %10s %7s %7s %6s  %10s %7s %7s %6s\n", "size", "count", "type", "op", "root",
           "out: time", "algbw", "busbw", "#wrong", "in: time", "algbw", "busbw", "#wrong");
    printf("#%12s %12s %9s %7s %5s  %10s %7s %7s %6s  %10s %7s %7s %6s\n", "(B)", "(elements)", "", "", "", "(us)",
           "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
}

static void bench_print(const bench *b, size_t count, const bench_result *r, int format, int *printed) {
    size_t size = bench_size(b, count);
    const char *op = mesh__call_is(b->kind, MESH_REDUCES) ? mesh_op_name(b->op) : "none";
    int root = mesh__call_is(b->kind, MESH_ROOTED) ? b->root : -1, i;
    double factor = bench_bus_factor(b);
    if (format == BENCH_TABLE) {
        printf(" %12zu %12zu %9s %7s %5d", size, count, mesh_dtype_name(b->d), op, root);
        for (i = 0; i < 2; i++)
            printf("  %10.2f %7.2f %7.2f %6llu", r[i].us, (double)size / r[i].us / 1e3,
                   (double)size / r[i].us / 1e3 * factor, (unsigned long long)r[i].wrong);
        puts("");
    }
    for (i = 0; i < 2 && format != BENCH_TABLE; i++) {
        double algbw = (double)size / r[i].us / 1e3;
        const char *axes = b->axes ? b->axes : "";
        if (format == BENCH_CSV)
            printf("%s,\"%s\",%d,%zu,%zu,%s,%s,%d,%d,%.2f,%.3f,%.3f,%llu\n", mesh__call_name(b->kind), axes, b->n, size,
                   count, mesh_dtype_name(b->d), op, root, i, r[i].us, algbw, algbw * factor,
                   (unsigned long long)r[i].wrong);
        else
            printf(
                "%s{\"call\":\"%s\",\"axes\":\"%s\",\"ranks\":%d,\"size\":%zu,\"count\":%zu,\"type\":\"%s\",\"op\":\"%s\",\"root\":%d,"
                "\"in_place\":%s,\"time_us\":%.2f,\"algbw_gbs\":%.3f,\"busbw_gbs\":%.3f,\"wrong\":%llu}",
                *printed ? ",\n " : "[", mesh__call_name(b->kind), axes, b->n, size, count, mesh_dtype_name(b->d), op,
                root, i ? "true" : "false", r[i].us, algbw, algbw * factor, (unsigned long long)r[i].wrong);
        *printed = 1;
    }
    fflush(stdout);
}

/* ---- tuning: for every call and size each algorithm in turn; a change of algorithm becomes a row */

static mesh_status bench_algorithm(bench *b, mesh_transport *t, const mesh *m, int algorithm, size_t count,
                                   double *us) {
    mesh_tuning forced = MESH_ZERO;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_comm comm, *outer = b->comm;
    mesh_error err;
    bench_result r;
    mesh_status status;
    forced.nrows = 1;
    forced.row[0].call = (uint8_t)b->kind;
    forced.row[0].algorithm = (uint8_t)algorithm;
    forced.row[0].ranks = UINT16_MAX;
    forced.row[0].bytes = UINT64_MAX;
    desc.tuning = &forced;
    if (b->axes && strchr(b->axes, ',')) desc.groups = b->axes;
    if ((status = mesh_comm_open(&comm, t, m, &desc, &err)) != MESH_OK) {
        outer->error = err;
        return status;
    }
    b->comm = &comm;
    status = bench_measure(b, count, 0, &r);
    if (status != MESH_OK) outer->error = comm.error;
    *us = r.us;
    mesh_comm_close(&comm);
    b->comm = outer;
    return status;
}

/* Levels only where the group spans hosts, several members of which share one. */
static int bench_serves(const bench *b, int algorithm) {
    return mesh_algorithm_serves((mesh_algorithm)algorithm, b->kind) &&
           (algorithm != MESH_ALGORITHM_LEVELS || mesh__group_find(mesh__impl(b->comm), b->axes)->host);
}

static int bench_usual(const bench *b, size_t bytes) {
    int scattered = mesh__group_find(mesh__impl(b->comm), b->axes)->scattered;
    if (bench_serves(b, MESH_ALGORITHM_LEVELS) && mesh__levels_help(b->kind, b->n, bytes, scattered))
        return MESH_ALGORITHM_LEVELS;
    return mesh__built_in(b->kind, b->n, bytes).algorithm;
}

static mesh_status bench_tune(bench *b, mesh_transport *t, const mesh *m, int only, size_t most, mesh_tuning *table) {
    size_t bytes;
    int k, a;
    mesh_op op = b->op;
    for (k = 0; k < BENCH_KINDS; k++) {
        int last = 0;
        if (only >= 0 && k != only) continue;
        bench_choose(b, bench_kinds[k], op);
        if (!bench_possible(b)) continue;
        for (bytes = 64; bytes <= most; bytes *= 4) { /* per rank, as a row has it */
            size_t sb = bench_send_blocks(b), rb = bench_recv_blocks(b), count = bytes / b->elem;
            double us[MESH_ALGORITHM_COUNT], once;
            int best = 0, round, usual = bench_usual(b, bytes);
            if (bytes * (sb > rb ? sb : rb) > b->room) break;
            for (round = 0; round < 3; round++) /* in turn, so that all see the same noise; the least counts */
                for (a = 1; a < MESH_ALGORITHM_COUNT; a++) {
                    mesh_status status;
                    if (!bench_serves(b, a)) continue;
                    if ((status = bench_algorithm(b, t, m, a, count, &once)) != MESH_OK) return status;
                    if (round == 0 || once < us[a]) us[a] = once;
                }
            for (a = 1; a < MESH_ALGORITHM_COUNT; a++)
                if (bench_serves(b, a) && (!best || us[a] < us[best])) best = a;
            if (!best) break;
            if (us[usual] < us[best] * 1.1) best = usual; /* no change for noise */
            if (last && us[last] < us[best] * 1.05) best = last;
            if (t->rank == 0) {
                fprintf(stderr, "%s %zu:", mesh__call_name(b->kind), bytes);
                for (a = 1; a < MESH_ALGORITHM_COUNT; a++)
                    if (bench_serves(b, a))
                        fprintf(stderr, " %s%s %.1f", a == best ? "*" : "", mesh__algorithm_names[a], us[a]);
                fprintf(stderr, "\n");
            }
            if (best == last) {
                table->row[table->nrows - 1].bytes = bytes;
            } else if (table->nrows < MESH_MAX_TUNING) {
                mesh_tuning_row *row = &table->row[table->nrows++];
                row->call = (uint8_t)b->kind;
                row->algorithm = (uint8_t)best;
                row->ranks = (uint16_t)b->n;
                row->bytes = bytes;
                last = best;
            }
        }
        if (last) table->row[table->nrows - 1].bytes = UINT64_MAX;
    }
    return MESH_OK;
}

static int bench_write_table(const mesh_tuning *table, const char *path) {
    char text[8192];
    FILE *f = fopen(path, "w");
    int ok;
    if (!f) {
        fprintf(stderr, "mesh bench: cannot write %s: %s\n", path, strerror(errno));
        return 1;
    }
    mesh_tuning_format(table, text, sizeof text);
    ok = fprintf(f, "# written by mesh bench --tune; use it with MESH_TUNING=%s\n%s", path, text) > 0;
    if (fclose(f)) ok = 0;
    if (!ok) fprintf(stderr, "mesh bench: cannot write %s: %s\n", path, strerror(errno));
    return !ok;
}

/* Known before hours are measured: a file that can be written. What is there stays. */
static int bench_can_write(const char *path) {
    int there = access(path, F_OK) == 0;
    FILE *f = fopen(path, "a");
    if (!f) {
        fprintf(stderr, "mesh bench: cannot write %s: %s\n", path, strerror(errno));
        return 0;
    }
    fclose(f);
    if (!there) remove(path);
    return 1;
}

static const char bench_usage[] =
    "usage: mesh bench -n RANKS | --mesh dp=2,tp=2 [option ...]\n\n"
    "Times an operation over a range of sizes, out of place and in place, and checks every value; the columns are nccl-tests'.\n"
    "Inside a job (mesh run, torchrun, srun, mpirun) it takes part; else it starts the ranks itself.\n\n"
    "  --axes dp,tp   the group; with --mesh all groups along it work at once (default: the whole mesh)\n"
    "  --call NAME    all_reduce (default), reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather, scatter, scan,\n"
    "                 exscan, shift, barrier, or all\n"
    "  --dtype f32 --op sum --root 0\n"
    "  --min 8 --max 64M --factor 4       sizes\n"
    "  --iters N --warmup 2               calls per size, at least 5 samples (default: about 0.1 s)\n"
    "  --csv | --json                     for programs\n"
    "  --tune FILE    measure every algorithm (of --call NAME, or of all) instead, and write the table of the best ones for this number of ranks (up to --max,\n"
    "                 16M per rank by default)\n\n"
    "time: median, of the slowest rank. algbw = size / time; busbw as in nccl-tests: times 2(n-1)/n for all_reduce, (n-1)/n where\n"
    "blocks go to or come from every rank.\n\nExit status: 1 if any value is wrong or a call fails, 2 for wrong usage.\n";

static int command_bench(const char *self, int argc, char **argv) {
    const char *text = NULL, *call = NULL, *dtype = "f32", *op = "sum", *axes = NULL, *tune = NULL;
    size_t least = 8, most = 0, factor = 4, size, shown;
    int i, k, n = 0, format = BENCH_TABLE, printed = 0, status = 0, only = -1;
    char whole[32];
    mesh_socket net;
    mesh m;
    mesh_comm comm;
    mesh_comm_desc desc = MESH_ZERO;
    mesh_error err;
    bench b;
    mesh_op chosen;
    memset(&b, 0, sizeof b);
    b.warmup = 2;
    for (i = 0; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (is_help(argv[i])) {
            fputs(bench_usage, stdout);
            return 0;
        }
        if (!strcmp(argv[i], "--csv") || !strcmp(argv[i], "--json")) {
            if (format != BENCH_TABLE) return wrong("bench", "one of --csv and --json", NULL);
            format = argv[i][2] == 'c' ? BENCH_CSV : BENCH_JSON;
            continue;
        }
        if (!value) return wrong("bench", "unknown option, or one without its value", argv[i]);
        if (!strcmp(argv[i], "--mesh"))
            text = value;
        else if (!strcmp(argv[i], "--axes"))
            axes = value;
        else if (!strcmp(argv[i], "--call"))
            call = value;
        else if (!strcmp(argv[i], "--dtype"))
            dtype = value;
        else if (!strcmp(argv[i], "--op"))
            op = value;
        else if (!strcmp(argv[i], "--tune"))
            tune = value;
        else if (!strcmp(argv[i], "--min") || !strcmp(argv[i], "--max") || !strcmp(argv[i], "--factor")) {
            size_t v = bench_bytes(value);
            if (!v || (argv[i][2] == 'f' && v < 2))
                return wrong("bench", "expected a size as in 64K or 16M (a factor: at least 2)", value);
            *(argv[i][3] == 'i' ? &least : argv[i][2] == 'f' ? &factor : &most) = v;
        } else if (!strcmp(argv[i], "-n") || !strcmp(argv[i], "--iters")) {
            long v = number(value);
            if (v < 0) return wrong_value("bench", argv[i], "a whole number from 1 to 999999", value);
            *(argv[i][1] == 'n' ? &n : &b.iters) = (int)v;
        } else if (!strcmp(argv[i], "--root") || !strcmp(argv[i], "--warmup")) {
            char *end;
            long v = strtol(value, &end, 10);
            if (*value < '0' || *value > '9' || *end || v > 1000000)
                return wrong_value("bench", argv[i], "a whole number from 0 to 1000000", value);
            *(argv[i][2] == 'r' ? &b.root : &b.warmup) = (int)v;
        } else {
            return wrong("bench", "unknown option", argv[i]);
        }
        i++;
    }
    if (!most) most = tune ? 16 << 20 : 64 << 20;
    if (most < least) return wrong("bench", "--max is less than --min", NULL);
    if (most > SIZE_MAX / 4096) return wrong("bench", "--max is beyond this machine's memory", NULL);
    if (text && n) return wrong("bench", "-n and --mesh both say how many ranks; one of them", NULL);
    if (tune && most < 64) return wrong("bench", "--tune measures from 64 bytes on; raise --max", NULL);
    if ((i = bench_find(dtype, bench_dtype_name, MESH_DTYPE_COUNT)) < 0)
        return wrong("bench", "no dtype (f32 f64 f16 bf16 i8 .. u64 complex64 complex128 f8e4m3 f8e5m2 bytes)", dtype);
    b.d = (mesh_dtype)i;
    if ((i = bench_find(op, bench_op_name, MESH_OP_COUNT)) < 0)
        return wrong("bench", "no op (sum avg min max prod and or xor minloc maxloc)", op);
    b.op = (mesh_op)i;
    if (!call) call = tune ? "all" : "all_reduce";
    if (strcmp(call, "all") && (only = bench_find(call, bench_kind_name, BENCH_KINDS)) < 0)
        return wrong("bench", "no such call (all, or one that the list of --help has)", call);
    chosen = b.op;
    if (!text && !n && !in_job()) return wrong("bench", "how many ranks? -n RANKS or --mesh dp=2,tp=2", NULL);
    if (!text) {
        snprintf(whole, sizeof whole, n ? "x=%d" : "x=-1", n);
        text = whole;
    }
    if (!in_job()) {
        if (mesh_parse(&m, text, 0, &err)) return wrong("bench", err.text, NULL);
        if (tune && !bench_can_write(tune)) return 1;
        return start_job(self, m.size, "bench", argc, argv);
    }
    if (mesh_socket_open(&net, NULL, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (tune && net.base.rank == 0 && !bench_can_write(tune))
        return 1; /* a job's: the others hear that this rank is lost */
    if (axes && strchr(axes, ',')) desc.groups = axes;
    if (mesh_parse(&m, text, net.base.size, &err) || mesh_comm_open(&comm, &net.base, &m, &desc, &err)) {
        if (net.base.rank == 0) fprintf(stderr, "mesh bench: %s\n", err.text);
        mesh_socket_close(&net);
        return 2;
    }
    b.comm = &comm;
    b.axes = axes;
    b.n = mesh_comm_size(&comm, axes);
    b.me = mesh_comm_index(&comm, axes);
    b.room = most * (tune && b.n > 0 ? (size_t)b.n : 1) + 4096;
    b.send = (unsigned char *)malloc(b.room);
    b.recv = (unsigned char *)malloc(b.room);
    if (b.n < 1 || b.root >= b.n || !b.send || !b.recv) {
        if (net.base.rank == 0)
            fprintf(stderr,
                    b.n < 1
                        ? "mesh bench: the mesh \"%s\" has no group \"%s\"; --axes takes its axes' names, or several "
                          "with commas\n"
                    : b.root >= b.n ? "mesh bench: --root is beyond the last rank of the group\n"
                                    : "mesh bench: no memory for the buffers\n",
                    text, axes);
        status = 2;
    } else if (tune) {
        mesh_tuning table = MESH_ZERO;
        status = bench_tune(&b, &net.base, &m, only, most, &table) != MESH_OK;
        if (status && !comm.failed) fprintf(stderr, "mesh bench: %s\n", comm.error.text);
        if (!status && net.base.rank == 0) status = bench_write_table(&table, tune);
        if (!status && net.base.rank == 0)
            printf("%d rows in %s; use them with MESH_TUNING=%s\n", table.nrows, tune, tune);
    } else {
        for (k = 0; k < BENCH_KINDS && !comm.failed; k++) {
            if (only >= 0 && k != only) continue;
            bench_choose(&b, bench_kinds[k], chosen);
            if (!bench_possible(&b)) {
                if (net.base.rank == 0)
                    fprintf(stderr, "mesh bench: %s of %s is not supported by %s%s\n", op, dtype,
                            mesh__call_name(b.kind), only < 0 ? ": left out" : "");
                if (only >= 0) status = 2;
                continue;
            }
            if (net.base.rank == 0 && (format != BENCH_CSV || !printed)) bench_head(&b, format);
            shown = SIZE_MAX;
            for (size = b.kind == MESH_CALL_BARRIER ? most : least; size <= most && comm.failed == 0;
                 size = size > most / factor ? most + 1 : size * factor) {
                size_t sb = bench_send_blocks(&b), rb = bench_recv_blocks(&b), blocks = sb > rb ? sb : rb;
                size_t count = b.kind == MESH_CALL_BARRIER ? 0 : size / b.elem / blocks;
                bench_result r[2];
                if (!count && b.kind != MESH_CALL_BARRIER) count = 1; /* at least an element per rank */
                if (count == shown) continue;
                shown = count;
                if (count * b.elem * blocks > b.room) break;
                for (i = 0; i < 2 && !comm.failed; i++)
                    if (bench_measure(&b, count, i, &r[i]) != MESH_OK || r[i].wrong) status = 1;
                if (!comm.failed && net.base.rank == 0) bench_print(&b, count, r, format, &printed);
            }
        }
        if (net.base.rank == 0 && format == BENCH_JSON) puts(printed ? "]" : "[]");
    }
    if (comm.failed) fprintf(stderr, "mesh bench: %s\n", comm.error.text);
    if (comm.failed) status = 1;
    free(b.send);
    free(b.recv);
    mesh_comm_close(&comm);
    mesh_socket_close(&net);
    return status;
}

#endif
