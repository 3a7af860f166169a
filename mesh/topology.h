/* mesh/topology.h - what a message costs between two ranks: levels of units, latency, bandwidth. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh.h. Knows no tensor.
*/
#if !defined(MESH_TOPOLOGY_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_TOPOLOGY_IMPLEMENTED))
#include "../mesh.h"
#endif

#ifndef MESH_TOPOLOGY_H
#define MESH_TOPOLOGY_H

#ifdef __cplusplus
extern "C" {
#endif

enum { MESH_MAX_LEVELS = 8 };

/* ---- topology ------------------------------------------------------------------------------------------------------ */

/* Innermost level first: ranks [k * ranks, (k + 1) * ranks) are one unit of it. The last level joins everything. */
typedef struct mesh_level {
    int ranks;
    uint32_t zero;
    int64_t latency_ps;     /* of a message */
    int64_t ps_per_byte_16; /* picoseconds per byte in 16.16 fixed point: 65536 is 1 ps per byte, 1,000 GB/s */
} mesh_level;

typedef struct mesh_topology {
    int nlevels; /* 0: flat, a network of 10 us and 5 GB/s */
    int zero;
    mesh_level level[MESH_MAX_LEVELS];
} mesh_topology;

/* ARGUMENT: a number of levels outside 0 to 8, a level of no ranks or fewer than the one within it, a negative time. */
MESH_API mesh_status mesh_topology_check(const mesh_topology *t, mesh_error *err);
/* A topology from text, from the innermost level out: level {"," level}, level = ranks ":" latency ":" bandwidth, e.g. "8:2us:400GB/s,*:10us:25GB/s".
   ranks: of a unit, "*" all; latency: a decimal with ns, us or ms; bandwidth: a decimal with MB/s or GB/s, or "*": bytes cost nothing. ARGUMENT: where
   the text is none, and as mesh_topology_check. */
MESH_API mesh_status mesh_topology_parse(mesh_topology *t, const char *text, mesh_error *err);
/* What mesh_topology_parse reads as the same again; numbers set by hand that it would not read become near ones that it does. Returns the length
   of the whole text; at most cap - 1 bytes and a terminator are written. A topology of no levels is "", which is none to mesh_topology_parse. */
MESH_API size_t mesh_topology_format(const mesh_topology *t, char *buf, size_t cap);

#ifdef __cplusplus
}
#endif
#endif /* MESH_TOPOLOGY_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_TOPOLOGY_IMPLEMENTED)
#define MESH_TOPOLOGY_IMPLEMENTED

MESH__PRIVATE int64_t mesh__ceil(int64_t n, int64_t k) { return n / k + (n % k != 0); }
MESH__PRIVATE int64_t mesh__add64(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }
MESH__PRIVATE int64_t mesh__mul64(int64_t a, int64_t b) { return b && a > INT64_MAX / b ? INT64_MAX : a * b; }

MESH__PRIVATE mesh_topology mesh__flat(void) {
    mesh_topology t;
    t.nlevels = 1;
    t.zero = 0;
    t.level[0].ranks = INT32_MAX;
    t.level[0].zero = 0;
    t.level[0].latency_ps = INT64_C(10000000);
    t.level[0].ps_per_byte_16 = INT64_C(200) << 16;
    return t;
}

MESH__RARE mesh_status mesh__topology_check_as(const mesh_topology *t, const char *function, mesh_error *err) {
    int l;
    if (!t) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: the topology is NULL", function);
    if (t->nlevels < 0 || t->nlevels > MESH_MAX_LEVELS)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s: %d levels; 0 to %d are possible", function, t->nlevels,
                          MESH_MAX_LEVELS);
    for (l = 0; l < t->nlevels; l++) {
        const mesh_level *level = &t->level[l];
        if (level->ranks < 1 || (l > 0 && level->ranks < level[-1].ranks))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: level %d has units of %d ranks; levels go from the innermost out", function, l + 1,
                              level->ranks);
        if (l > 0 && l < t->nlevels - 1 && level->ranks % level[-1].ranks)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: level %d has units of %d ranks, no multiple of the %d of the level within", function,
                              l + 1, level->ranks, level[-1].ranks);
        if (level->latency_ps < 0 || level->ps_per_byte_16 < 0 || level->ps_per_byte_16 > INT64_C(1) << 40)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%s: level %d: a latency of %l ps, %l ps per byte in 16.16; neither is "
                              "negative, and a byte takes less than 2^24 ps",
                              function, l + 1, level->latency_ps, level->ps_per_byte_16);
    }
    return MESH_OK;
}

MESH_API mesh_status mesh_topology_check(const mesh_topology *t, mesh_error *err) {
    return mesh__topology_check_as(t, "mesh_topology_check", err);
}

/* ---- // >>topologies as text ---- */

#define MESH__TOPOLOGY_PS \
    INT64_C(1000000000000000) /* 1,000 s: the longest latency of text; a number read has no more digits */

/* A decimal: digits with or without a fraction, as number / 10^places. Moves *p behind it; 0: there is none, or it is too long, or ends with its point. */
MESH__RARE int mesh__read_decimal(const char **p, int64_t *number, int *places) {
    const char *q = *p;
    int digits = 0, point = 0;
    *number = 0;
    *places = 0;
    for (; mesh__is_digit(*q) || (*q == '.' && !point); q++) {
        if (*q == '.') {
            point = 1;
            continue;
        }
        if (++digits > 15) return 0;
        *number = *number * 10 + (*q - '0');
        *places += point;
    }
    *p = q;
    return digits > 0 && mesh__is_digit(q[-1]);
}

MESH__RARE int64_t mesh__power10(int n) {
    int64_t v = 1;
    while (n-- > 0) v *= 10;
    return v;
}

/* Is this word next? Then *p moves behind it. */
MESH__RARE int mesh__read_unit(const char **p, const char *word) {
    int n = mesh__length(word), i;
    for (i = 0; i < n; i++)
        if ((*p)[i] != word[i]) return 0;
    *p += n;
    return 1;
}

MESH__RARE int mesh__read_level(const char **p, mesh_level *level, const char **expected) {
    int64_t number, unit, limit;
    int places, i;
    *expected = "a number of ranks, or *";
    if (mesh__read_unit(p, "*")) {
        level->ranks = INT32_MAX;
    } else {
        if (!mesh__read_decimal(p, &number, &places) || places || number < 1 || number > INT32_MAX) return 0;
        level->ranks = (int)number;
    }
    *expected = "\":\" and a latency, as in :2us";
    if (!mesh__read_unit(p, ":") || !mesh__read_decimal(p, &number, &places)) return 0;
    *expected = "ns, us or ms";
    unit = mesh__read_unit(p, "ns")   ? 1000
           : mesh__read_unit(p, "us") ? 1000000
           : mesh__read_unit(p, "ms") ? 1000000000
                                      : 0;
    if (!unit) return 0;
    *expected = "a latency of at most 1,000 s";
    for (limit = MESH__TOPOLOGY_PS / unit, i = 0; i < places && limit < MESH__TOPOLOGY_PS; i++) limit *= 10;
    if (number > limit) return 0;
    for (; places > 0 && unit >= 10; places--) unit /= 10;
    level->latency_ps = mesh__mul64(number, unit) / mesh__power10(places);
    *expected = "\":\" and a bandwidth, as in :25GB/s, or *";
    if (!mesh__read_unit(p, ":")) return 0;
    level->ps_per_byte_16 = 0;
    if (mesh__read_unit(p, "*")) return 1;
    if (!mesh__read_decimal(p, &number, &places)) return 0;
    *expected = "MB/s or GB/s";
    unit = mesh__read_unit(p, "GB/s") ? 1000 : mesh__read_unit(p, "MB/s") ? 1000000 : 0; /* ps per byte at 1 */
    if (!unit) return 0;
    *expected = "a bandwidth of 0.001 to 1,000,000 GB/s with at most 6 places";
    for (; places > 0 && number % 10 == 0; places--) number /= 10;
    if (places > 6 || number < 1 || number > 1000 * unit * mesh__power10(places)) return 0;
    level->ps_per_byte_16 = mesh__power10(places) * unit * 65536 / number;
    return level->ps_per_byte_16 <= INT64_C(65536000000);
}

MESH_API mesh_status mesh_topology_parse(mesh_topology *t, const char *text, mesh_error *err) {
    mesh_topology r;
    const char *p = text, *expected = "the end";
    int l;
    if (!t || !text)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_topology_parse: %s is NULL",
                          t ? "the text" : "the topology");
    r.nlevels = r.zero = 0;
    for (l = 0; l < MESH_MAX_LEVELS; l++) {
        r.level[l].ranks = 0;
        r.level[l].zero = 0;
        r.level[l].latency_ps = r.level[l].ps_per_byte_16 = 0;
    }
    while (r.nlevels < MESH_MAX_LEVELS) {
        if (!mesh__read_level(&p, &r.level[r.nlevels++], &expected)) break;
        expected = "\",\" or the end";
        if (!*p) {
            mesh_status status = mesh__topology_check_as(&r, "mesh_topology_parse", err);
            if (status == MESH_OK) *t = r;
            return status;
        }
        if (*p != ',') break;
        expected = "at most 8 levels";
        for (p++; *p == ' ';) p++;
    }
    return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_topology_parse: level %d of \"%s\": expected %s%s%s%s",
                      r.nlevels, text, expected, *p ? " at \"" : " at the end", *p ? p : "", *p ? "\"" : "");
}

/* number / 10^places, without zeros at the end. */
MESH__RARE void mesh__put_decimal(mesh__text *t, int64_t number, int places) {
    int64_t unit;
    for (; places > 0 && number % 10 == 0; places--) number /= 10;
    unit = mesh__power10(places);
    mesh__put(t, "%l", number / unit);
    if (places) mesh__put(t, ".");
    for (number %= unit; places > 0; places--) {
        unit /= 10;
        mesh__put(t, "%l", number / unit % 10);
    }
}

MESH_API size_t mesh_topology_format(const mesh_topology *topology, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int l;
    for (l = 0; l < topology->nlevels; l++) {
        const mesh_level *level = &topology->level[l];
        int64_t ps = level->latency_ps, x = level->ps_per_byte_16, whole = INT64_C(65536000), number = 0;
        int places;
        if (ps > MESH__TOPOLOGY_PS) ps = MESH__TOPOLOGY_PS;
        if (x && x < 65) x = 65; /* 1,000,000 GB/s */
        if (x > INT64_C(65536000000)) x = INT64_C(65536000000);
        if (l) mesh__put(&t, ",");
        if (level->ranks == INT32_MAX)
            mesh__put(&t, "*:");
        else
            mesh__put(&t, "%d:", level->ranks);
        mesh__put_decimal(&t, ps, ps && ps % 1000000 == 0 ? 6 : 3);
        mesh__put(&t, ps && ps % 1000000 == 0 ? "us:" : "ns:");
        /* the fewest places that are read as the same again; in MB/s where GB/s have too few */
        for (places = 0; x && places <= 6; places++, whole *= 10) {
            number = whole / x < 1000000 * mesh__power10(places) ? whole / x : 1000000 * mesh__power10(places);
            if (number && whole / number == x) break;
        }
        if (!x)
            mesh__put(&t, "*");
        else if (places <= 6)
            mesh__put_decimal(&t, number, places);
        else
            mesh__put_decimal(&t, mesh__mul64(INT64_C(65536000000), 1000000) / x, 6);
        if (x) mesh__put(&t, places <= 6 ? "GB/s" : "MB/s");
    }
    return t.len;
}
#endif /* MESH_TOPOLOGY_IMPLEMENTED */
