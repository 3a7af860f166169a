/* mesh/tuning.h - which algorithm serves a call: the table, what is built in, as text. Part of mesh.h 0.1.0. MIT licence.

   Includes transport.h. Knows no schedule: an algorithm is a name here.
*/
#if !defined(MESH_TUNING_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_TUNING_IMPLEMENTED))
#include "transport.h"
#endif

#ifndef MESH_TUNING_H
#define MESH_TUNING_H

#ifdef __cplusplus
extern "C" {
#endif

#define MESH_ALGORITHMS(X)                                                                      \
    X(MESH_ALGORITHM_NONE, "none")                                                              \
    X(MESH_ALGORITHM_DOUBLING, "doubling") /* all_reduce, scan, all_gather: log2 n rounds */    \
    X(MESH_ALGORITHM_HALVING, "halving")   /* all_reduce (Rabenseifner's), reduce_scatter */    \
    X(MESH_ALGORITHM_RING, "ring")         /* all_reduce, all_gather */                         \
    X(MESH_ALGORITHM_DIRECT, "direct")     /* all with all, in segments */                      \
    X(MESH_ALGORITHM_BINOMIAL, "binomial") /* a tree: broadcast, reduce, gather, scatter */     \
    X(MESH_ALGORITHM_SCATTER, "scatter")   /* broadcast: scatter, then gather */                \
    X(MESH_ALGORITHM_CHAIN, "chain")       /* broadcast, scan: in segments from rank to rank */ \
    X(MESH_ALGORITHM_BRUCK, "bruck")       /* all_gather, all_to_all: log2 n rounds */          \
    X(MESH_ALGORITHM_LEVELS, "levels")     /* on the host, across hosts, on the host */

#define MESH_X(name, text) name,
typedef enum mesh_algorithm { MESH_ALGORITHMS(MESH_X) MESH_ALGORITHM_COUNT } mesh_algorithm;
#undef MESH_X

/* Which algorithm serves a call: the first row whose call is this, whose group has at most `ranks`, whose bytes per rank (count times
   element, the sum over a list of buffers) are at most `bytes`. What no row says is built in. All ranks use the table of the mesh's
   first rank. As text (mesh_tuning_parse, written by `mesh bench --tune`): lines "all_reduce ranks<=8 bytes<=16384 doubling", "*" for
   any number of ranks or bytes, " segment=65536" for how many bytes a pipelined algorithm moves per step. */
typedef struct mesh_tuning_row {
    uint8_t call, algorithm; /* mesh_call_kind, mesh_algorithm */
    uint16_t ranks;          /* 65535: any */
    uint32_t segment;        /* 0: built in */
    uint64_t bytes;          /* UINT64_MAX: any */
} mesh_tuning_row;

enum { MESH_MAX_TUNING = 48 };

typedef struct mesh_tuning {
    int nrows;
    int zero;
    mesh_tuning_row row[MESH_MAX_TUNING];
} mesh_tuning;

/* Is there such an algorithm for this kind of call? Many-buffer forms use the single form's rows, v-forms none. */
MESH_API int mesh_algorithm_serves(mesh_algorithm algorithm, int call);
/* A tuning table from text (see mesh_tuning_row; '#' begins a comment), and back. ARGUMENT: names the line and what is wrong in it; t is as
   it was. */
MESH_API mesh_status mesh_tuning_parse(mesh_tuning *t, const char *text, mesh_error *err);
MESH_API size_t mesh_tuning_format(const mesh_tuning *t, char *buf, size_t cap);

#ifdef __cplusplus
}
#endif
#endif /* MESH_TUNING_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_TUNING_IMPLEMENTED)
#define MESH_TUNING_IMPLEMENTED

enum {
    MESH__SMALL = 16 * 1024, /* bytes up to which latency decides */
    MESH__MIB = 1 << 20
};

static const char *const mesh__algorithm_names[] = {
#define MESH_X(name, text) text,
    MESH_ALGORITHMS(MESH_X)
#undef MESH_X
};

/* The single form of a multi-buffer call: they share algorithms. */
MESH__INLINE int mesh__single_kind(int kind) {
    return kind < MESH_CALL_ALL_REDUCE_MANY        ? kind
           : kind == MESH_CALL_ALL_REDUCE_MANY     ? MESH_CALL_ALL_REDUCE
           : kind == MESH_CALL_BROADCAST_MANY      ? MESH_CALL_BROADCAST
           : kind == MESH_CALL_ALL_GATHER_MANY     ? MESH_CALL_ALL_GATHER
           : kind == MESH_CALL_REDUCE_SCATTER_MANY ? MESH_CALL_REDUCE_SCATTER
                                                   : kind;
}

/* What is used where the table says nothing: measured over TCP on 2, 4 and 8 ranks of one host (bench/RESULTS.md), and never more than a
   small factor from what the theory says of many. bytes: per rank, as a row has them. */
MESH__PRIVATE mesh_tuning_row mesh__built_in(int kind, int n, size_t bytes) {
    size_t total = bytes <= SIZE_MAX / (size_t)n ? bytes * (size_t)n : SIZE_MAX;
    int power = (n & (n - 1)) == 0, algorithm = MESH_ALGORITHM_DIRECT;
    uint32_t segment = 256 * 1024;
    mesh_tuning_row row;
    switch (kind) {
    case MESH_CALL_ALL_REDUCE:
        if (bytes <= MESH__SMALL)
            algorithm = MESH_ALGORITHM_DOUBLING;
        else if (n > 2 && (bytes <= 4 * MESH__SMALL || (power && bytes <= 3 * (size_t)MESH__MIB / 2)))
            algorithm = MESH_ALGORITHM_HALVING;
        else if (n > 6)
            algorithm = MESH_ALGORITHM_RING, segment = MESH__MIB;
        break;
    case MESH_CALL_SCAN:
    case MESH_CALL_EXSCAN:
        algorithm = bytes <= MESH__SMALL ? MESH_ALGORITHM_DOUBLING : MESH_ALGORITHM_CHAIN;
        break;
    case MESH_CALL_REDUCE:
        if (bytes <= MESH__SMALL) algorithm = MESH_ALGORITHM_BINOMIAL;
        break;
    case MESH_CALL_BROADCAST:
        algorithm = n == 2 || bytes <= 2 * MESH__MIB ? MESH_ALGORITHM_BINOMIAL : MESH_ALGORITHM_CHAIN;
        segment = 512 * 1024;
        break;
    case MESH_CALL_GATHER:
    case MESH_CALL_SCATTER:
        if (n > 16 && bytes <= 1024) algorithm = MESH_ALGORITHM_BINOMIAL;
        break;
    case MESH_CALL_ALL_GATHER:
        if (power && total <= 2 * MESH__MIB)
            algorithm = MESH_ALGORITHM_DOUBLING;
        else if (n > 2)
            algorithm = !power && bytes <= MESH__SMALL / 2 ? MESH_ALGORITHM_BRUCK : MESH_ALGORITHM_RING;
        break;
    case MESH_CALL_REDUCE_SCATTER:
        if (n > 2 && total <= 8 * MESH__SMALL) algorithm = MESH_ALGORITHM_HALVING;
        break;
    case MESH_CALL_ALL_TO_ALL:
        if (n > 3 && bytes <= MESH__SMALL / 4) algorithm = MESH_ALGORITHM_BRUCK;
        break;
    default:
        break;
    }
    row.call = (uint8_t)kind;
    row.algorithm = (uint8_t)algorithm;
    row.ranks = UINT16_MAX;
    row.bytes = UINT64_MAX;
    row.segment = segment;
    return row;
}

/* Where a group of n spans hosts, several members of which share one: are levels faster than what is built in? Measured on hosts that are network
   namespaces (bench/HOSTS.md). scattered: neighbours in the group are not on one host. bytes: as a row has them. */
MESH__PRIVATE int mesh__levels_help(int kind, int n, size_t bytes, int scattered) {
    size_t total = bytes <= SIZE_MAX / (size_t)n ? bytes * (size_t)n : SIZE_MAX;
    switch (kind) {
    case MESH_CALL_ALL_REDUCE:
        return bytes > MESH__SMALL / 2;
    case MESH_CALL_ALL_GATHER:
    case MESH_CALL_REDUCE_SCATTER:
        return total > MESH__SMALL / 2;
    case MESH_CALL_ALL_TO_ALL:
        return total > MESH__SMALL / 8 && total <= MESH__MIB / 2;
    default:
        return kind == MESH_CALL_BROADCAST &&
               scattered; /* else a tree and a chain go from host to host by themselves */
    }
}

MESH_API int mesh_algorithm_serves(mesh_algorithm algorithm, int call) {
    int single = mesh__single_kind(call);
    if (algorithm == MESH_ALGORITHM_LEVELS)
        return single == MESH_CALL_ALL_REDUCE || single == MESH_CALL_BROADCAST || single == MESH_CALL_ALL_GATHER ||
               single == MESH_CALL_REDUCE_SCATTER || single == MESH_CALL_ALL_TO_ALL;
    switch (single) {
    case MESH_CALL_ALL_REDUCE:
        return algorithm == MESH_ALGORITHM_DOUBLING || algorithm == MESH_ALGORITHM_HALVING ||
               algorithm == MESH_ALGORITHM_RING || algorithm == MESH_ALGORITHM_DIRECT;
    case MESH_CALL_REDUCE:
    case MESH_CALL_GATHER:
    case MESH_CALL_SCATTER:
        return algorithm == MESH_ALGORITHM_BINOMIAL || algorithm == MESH_ALGORITHM_DIRECT;
    case MESH_CALL_BROADCAST:
        return algorithm == MESH_ALGORITHM_BINOMIAL || algorithm == MESH_ALGORITHM_SCATTER ||
               algorithm == MESH_ALGORITHM_CHAIN;
    case MESH_CALL_ALL_GATHER:
        return algorithm == MESH_ALGORITHM_BRUCK || algorithm == MESH_ALGORITHM_RING ||
               algorithm == MESH_ALGORITHM_DIRECT || algorithm == MESH_ALGORITHM_DOUBLING;
    case MESH_CALL_REDUCE_SCATTER:
        return algorithm == MESH_ALGORITHM_HALVING || algorithm == MESH_ALGORITHM_DIRECT;
    case MESH_CALL_ALL_TO_ALL:
        return algorithm == MESH_ALGORITHM_BRUCK || algorithm == MESH_ALGORITHM_DIRECT;
    case MESH_CALL_SCAN:
    case MESH_CALL_EXSCAN:
        return algorithm == MESH_ALGORITHM_DOUBLING || algorithm == MESH_ALGORITHM_CHAIN;
    default:
        return 0;
    }
}

/* ---- // >>the table as text ---- */

MESH_API size_t mesh_tuning_format(const mesh_tuning *t, char *buf, size_t cap) {
    mesh__text out = mesh__text_on(buf, cap);
    int i;
    for (i = 0; i < t->nrows; i++) {
        const mesh_tuning_row *row = &t->row[i];
        mesh__put(&out, "%s ranks<=", mesh__call_name(row->call));
        if (row->ranks == UINT16_MAX)
            mesh__put(&out, "*");
        else
            mesh__put(&out, "%d", row->ranks);
        mesh__put(&out, " bytes<=");
        if (row->bytes == UINT64_MAX)
            mesh__put(&out, "*");
        else
            mesh__put(&out, "%u", row->bytes);
        mesh__put(&out, " %s",
                  row->algorithm < MESH_ALGORITHM_COUNT ? mesh__algorithm_names[row->algorithm] : "unknown");
        if (row->segment) mesh__put(&out, " segment=%u", (uint64_t)row->segment);
        mesh__put(&out, "\n");
    }
    return out.len;
}

/* The next word of a line; behind it. One of cap characters or more is no word that anything begins with. */
MESH__RARE const char *mesh__word(const char *p, char *word, size_t cap) {
    size_t n = 0;
    while (*p == ' ' || *p == '\t' || *p == '\r') p++;
    for (; *p && *p != ' ' && *p != '\t' && *p != '\n' && *p != '\r' && *p != '#'; p++)
        if (n + 1 < cap)
            word[n++] = *p;
        else
            word[0] = '?';
    word[n] = 0;
    return p;
}

/* "name<=17", "name<=*", "name=17". Returns 0 if it is not that, or beyond `most`. */
MESH__RARE int mesh__limit(const char *word, const char *name, uint64_t most, uint64_t *value) {
    uint64_t v = 0;
    while (*name && *word == *name) word++, name++;
    if (*name || !*word) return 0;
    if (word[0] == '*' && !word[1]) {
        *value = UINT64_MAX;
        return 1;
    }
    for (; *word >= '0' && *word <= '9'; word++) {
        if (v > (most - (uint64_t)(*word - '0')) / 10) return 0;
        v = v * 10 + (uint64_t)(*word - '0');
    }
    *value = v;
    return !*word;
}

MESH_API mesh_status mesh_tuning_parse(mesh_tuning *t, const char *text, mesh_error *err) {
    const char *p = text ? text : "";
    int line = 1;
    mesh_tuning r;
    memset(&r, 0, sizeof r);
    for (; *p; line++) {
        char word[5][32];
        mesh_tuning_row *row = &r.row[r.nrows];
        uint64_t ranks, bytes, segment = 0;
        int i, call = 0, algorithm = MESH_ALGORITHM_COUNT;
        for (i = 0; i < 5; i++) p = mesh__word(p, word[i], sizeof word[i]);
        while (*p == ' ' || *p == '\t' || *p == '\r') p++;
        if (*p && *p != '\n' && *p != '#')
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_tuning_parse: line %d has more than five words", line);
        while (*p && *p != '\n') p++;
        p += *p == '\n';
        if (!word[0][0]) continue;
        for (i = 1; i < MESH_CALL_COUNT; i++)
            if (mesh__same(word[0], mesh__call_name(i))) call = i;
        for (i = 1; i < MESH_ALGORITHM_COUNT; i++)
            if (mesh__same(word[3], mesh__algorithm_names[i])) algorithm = i;
        if (!word[3][0])
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_tuning_parse: line %d: expected \"CALL ranks<=N bytes<=N ALGORITHM [segment=N]\"",
                              line);
        if (!call || mesh__single_kind(call) != call || algorithm == MESH_ALGORITHM_COUNT ||
            !mesh_algorithm_serves((mesh_algorithm)algorithm, call))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_tuning_parse: line %d: no algorithm \"%s\" for \"%s\"",
                              line, word[3], word[0]);
        if (!mesh__limit(word[1], "ranks<=", UINT16_MAX - 1, &ranks) ||
            !mesh__limit(word[2], "bytes<=", UINT64_MAX - 1, &bytes) ||
            (word[4][0] && (!mesh__limit(word[4], "segment=", UINT32_MAX, &segment) || segment > UINT32_MAX)))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "mesh_tuning_parse: line %d: expected \"%s ranks<=N bytes<=N %s [segment=N]\"", line,
                              word[0], word[3]);
        if (r.nrows == MESH_MAX_TUNING)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_tuning_parse: line %d: more than %d rows", line,
                              (int)MESH_MAX_TUNING);
        row->call = (uint8_t)call;
        row->algorithm = (uint8_t)algorithm;
        row->ranks = ranks > UINT16_MAX ? UINT16_MAX : (uint16_t)ranks;
        row->bytes = bytes;
        row->segment = (uint32_t)segment;
        r.nrows++;
    }
    *t = r;
    return MESH_OK;
}
#endif /* MESH_TUNING_IMPLEMENTED */
