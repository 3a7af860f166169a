/* mesh trace: the traces of all ranks (MESH_TRACE) as one, with what they say. */
#ifndef TOOL_TRACE_H
#define TOOL_TRACE_H

#include "../mesh/safetensors.h"
#include <dirent.h>

/* What is beyond these is a broken file's. */
enum { TRACE_MOST_RANKS = 1 << 16 };
#define TRACE_MOST_US (INT64_MAX / 4000)

typedef struct trace_event {
    char call[32], axes[304], named[32];
    int rank, group, first, ranks, status;
    unsigned comm, sequence;
    double ts, us;
    unsigned long long sent, received;
} trace_event;

typedef struct trace_events {
    trace_event *event;
    size_t n, room;
} trace_events;

/* The clocks of ranks beside rank 0's. */
typedef struct trace_clocks {
    int compared, not_compared, cut; /* cut: lines that are no event */
    int64_t within;                  /* ns; the greatest */
} trace_clocks;

/* An event of one of our own files: they have one a line, always in this order, and times as integers on both sides of a point. */
static int trace_read_line(const char *line, trace_event *v) {
    unsigned long long count;
    long long ts, dur;
    int slot, ts_ns, dur_ns;
    memset(v, 0, sizeof *v);
    if (sscanf(
            line,
            "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.%3d,\"dur\":%lld.%3d,\"name\":\"%31[^\"]\",\"cat\":\"%303[^\"]\",\"args\":{\"comm\":%u,"
            "\"named\":\"%31[^\"]\",\"group\":%d,\"first\":%d,\"ranks\":%d,\"sequence\":%u,\"count\":%llu,\"sent\":%llu,\"received\":%llu,\"dtype\":%*[^,],\"op\":%*[^,],"
            "\"status\":%d",
            &v->rank, &slot, &ts, &ts_ns, &dur, &dur_ns, v->call, v->axes, &v->comm, v->named, &v->group, &v->first,
            &v->ranks, &v->sequence, &count, &v->sent, &v->received, &v->status) != 18)
        return 0;
    if (v->rank < 0 || v->rank >= TRACE_MOST_RANKS || ts_ns < 0 || dur_ns < 0) return 0;
    v->ts = (double)ts + ts_ns / 1000.0;
    v->us = (double)dur + dur_ns / 1000.0;
    return 1;
}

/* What a rank found out of rank 0's clock, in ns: what is to be added to its times, and how far off that may be. 0: nothing. */
static int trace_read_clock(FILE *f, int64_t *offset, int64_t *within) {
    static const char name[] = "\"name\":\"clock\",\"args\":{\"offset_us\":";
    char line[2048], sign;
    long long us, within_us;
    int ns, within_ns, found = 0;
    while (!found && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, name);
        if (strncmp(line, "{\"ph\":\"M\"", 9) || !at) continue;
        at += sizeof name - 1;
        sign = *at;
        found = sscanf(at + (sign == '-'), "%lld.%3d,\"within_us\":%lld.%3d", &us, &ns, &within_us, &within_ns) == 4 &&
                us >= 0 && us < TRACE_MOST_US && ns >= 0 && within_us >= 0 && within_us < TRACE_MOST_US &&
                within_ns >= 0;
        if (!found) continue;
        *offset = (us * 1000 + ns) * (sign == '-' ? -1 : 1);
        *within = within_us * 1000 + within_ns;
    }
    rewind(f);
    return found;
}

/* Is a line one value of JSON? */
static int trace_is_json(const char *line, size_t n) {
    char copy[2048]; /* strings are decoded where they stand */
    mesh__json j;
    if (n >= sizeof copy) return 0;
    memcpy(copy, line, n);
    j = mesh__json_of(copy, n);
    mesh__json_skip(&j);
    return mesh__json_end(&j, "", NULL) == MESH_OK;
}

/* A line with its time moved. */
static void trace_write_moved(FILE *out, const char *line, size_t length, int64_t offset) {
    const char *ts = strstr(line, "\"ts\":");
    long long us;
    int ns, digits;
    int64_t t;
    if (!offset || !ts || sscanf(ts + 5, "%lld.%3d%n", &us, &ns, &digits) != 2 || us < -TRACE_MOST_US ||
        us > TRACE_MOST_US || ns < 0) {
        fprintf(out, "%.*s", (int)length, line);
        return;
    }
    t = us * 1000 + ns + offset;
    fprintf(out, "%.*s%s%lld.%03d%.*s", (int)(ts + 5 - line), line, t < 0 ? "-" : "", llabs(t / 1000),
            (int)(llabs(t) % 1000), (int)(line + length - (ts + 5 + digits)), ts + 5 + digits);
}

/* The id of the job that a file is of: rank 0's is the last one that ran. */
static int trace_job(const char *path, char *job, size_t cap) {
    FILE *f = fopen(path, "r");
    char line[512], *at;
    job[0] = 0;
    if (f && fgets(line, sizeof line, f) && (at = strstr(line, "\"job\":\"")) != NULL)
        snprintf(job, cap, "%.*s", (int)strcspn(at + 7, "\""), at + 7);
    if (f) fclose(f);
    return job[0] != 0;
}

/* One rank's file into the list and, line by line, into the merged one, on rank 0's clock. Returns 1 if it was whole, 0 if its rank ended
   without closing it. */
static int trace_read(const char *path, trace_events *all, trace_clocks *clocks, FILE *out, int *written) {
    FILE *f = fopen(path, "r");
    char line[2048];
    int whole = 0;
    int64_t offset = 0, within = 0;
    if (!f) return 0;
    if (!trace_read_clock(f, &offset, &within))
        clocks->not_compared++;
    else if (clocks->compared++ == 0 || within > clocks->within)
        clocks->within = within;
    while (fgets(line, sizeof line, f)) {
        const char *from = line[0] == '[' ? line + 1 : line;
        size_t length = strcspn(from, "\n");
        whole = line[0] == ']';
        trace_event v;
        while (length && from[length - 1] == ',') length--;
        if (!length || from[0] != '{') continue; /* the end */
        if (!trace_is_json(from, length)) {
            clocks->cut++; /* by the end of its rank */
            continue;
        }
        fputs((*written)++ ? ",\n" : "[", out);
        trace_write_moved(out, from, length, offset);
        if (!trace_read_line(from, &v)) continue;
        v.ts += (double)offset / 1000;
        if (all->n == all->room) {
            trace_event *more = (trace_event *)realloc(all->event, (all->room = 2 * all->room + 256) * sizeof v);
            if (!more) break;
            all->event = more;
        }
        all->event[all->n++] = v;
    }
    fclose(f);
    return whole;
}

static int trace_by_kind(const void *a, const void *b) {
    const trace_event *x = (const trace_event *)a, *y = (const trace_event *)b;
    int d = strcmp(x->named, y->named);
    if (!d) d = strcmp(x->axes, y->axes);
    if (!d) d = strcmp(x->call, y->call);
    return d ? d : (x->us > y->us) - (x->us < y->us);
}

static void trace_table(const trace_event *v, size_t n) {
    size_t first, last, i;
    printf("%-12s %-16s %-20s %8s %14s %10s %10s %10s %10s\n", "comm", "axes", "call", "count", "bytes sent", "min us",
           "mean us", "p99 us", "max us");
    for (first = 0; first < n; first = last) {
        double sum = 0;
        unsigned long long sent = 0;
        size_t failed = 0;
        for (last = first; last < n && !strcmp(v[last].named, v[first].named) && !strcmp(v[last].axes, v[first].axes) &&
                           !strcmp(v[last].call, v[first].call);
             last++) {}
        for (i = first; i < last; i++) sum += v[i].us, sent += v[i].sent, failed += v[i].status != 0;
        printf("%-12s %-16s %-20s %8zu %14llu %10.1f %10.1f %10.1f %10.1f", v[first].named, v[first].axes,
               v[first].call, last - first, sent, v[first].us, sum / (double)(last - first),
               v[first + ((last - first) * 99 + 99) / 100 - 1].us, v[last - 1].us);
        if (failed) printf("  %zu failed", failed);
        puts("");
    }
}

/* Order of collectives; 0: two events are of one. Comms with one id have no rank in common: their groups begin elsewhere. */
static int trace_collective(const trace_event *x, const trace_event *y) {
    int d;
    if (x->comm != y->comm) return x->comm < y->comm ? -1 : 1;
    if ((d = strcmp(x->axes, y->axes)) != 0) return d;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}
/* The events of one collective side by side, its first rank first. */
static int trace_by_collective(const void *a, const void *b) {
    const trace_event *x = (const trace_event *)a, *y = (const trace_event *)b;
    int d = trace_collective(x, y);
    return d ? d : (x->ts > y->ts) - (x->ts < y->ts);
}

typedef struct trace_late {
    int rank;
    long times;
    double us, worst;
    trace_event worst_in;
} trace_late;

static int trace_by_lateness(const void *a, const void *b) {
    const trace_late *x = (const trace_late *)a, *y = (const trace_late *)b;
    return x->us < y->us ? 1 : x->us > y->us ? -1 : 0;
}

/* Who came last to collectives, and how long after the rank before it: the time that all the others lost to that rank alone. */
static void trace_stragglers(trace_event *v, size_t n) {
    trace_late *late;
    size_t first, last, i;
    int most = 0, shown = 0, collectives = 0, in_part = 0;
    for (i = 0; i < n; i++)
        if (v[i].rank > most) most = v[i].rank;
    late = (trace_late *)calloc((size_t)most + 1, sizeof *late);
    if (!late) return;
    for (i = 0; i <= (size_t)most; i++) late[i].rank = (int)i;
    qsort(v, n, sizeof *v, trace_by_collective);
    for (first = 0; first < n; first = last) {
        const trace_event *w = &v[first];
        for (last = first; last < n && !trace_collective(&v[last], w); last++) {}
        if (w->sequence == 0 || w->ranks < 2) continue;
        if ((int)(last - first) != w->ranks) {
            in_part++;
            continue;
        }
        collectives++;
        w = &v[last - 1];
        {
            double us = w->ts - v[last - 2].ts;
            trace_late *l = &late[w->rank];
            l->times++;
            l->us += us;
            if (us > l->worst) l->worst = us, l->worst_in = *w;
        }
    }
    qsort(late, (size_t)most + 1, sizeof *late, trace_by_lateness);
    printf("\nlast to come, of %d collectives", collectives);
    if (in_part) printf(" (%d more are not in the files of all their ranks)", in_part);
    puts(":");
    for (i = 0; i <= (size_t)most && shown < 8; i++, shown++)
        if (late[i].times)
            printf(
                "  rank %-4d %6ld times, %12.1f us after the one before it, at worst %.1f us (%s on %s of %s, sequence %u)\n",
                late[i].rank, late[i].times, late[i].us, late[i].worst, late[i].worst_in.call, late[i].worst_in.axes,
                late[i].worst_in.named, late[i].worst_in.sequence);
    free(late);
}

static void trace_say_clocks(const trace_clocks *c) {
    if (c->compared)
        printf("times are rank 0's, to within %lld.%lld us\n", (long long)(c->within / 1000),
               (long long)(c->within % 1000 / 100));
    if (c->not_compared > 0)
        printf("%d rank%s not compared clocks with rank 0: their times are their hosts'\n", c->not_compared,
               c->not_compared > 1 ? "s have" : " has");
    if (c->cut) printf("%d line%s no whole event, and left out\n", c->cut, c->cut > 1 ? "s are" : " is");
    puts("");
}

/* The rank that a file "rank-3.json" is of; -1: it is not called so. */
static long trace_file_rank(const char *name) {
    char *end;
    long its;
    if (strncmp(name, "rank-", 5) || name[5] < '0' || name[5] > '9') return -1;
    errno = 0;
    its = strtol(name + 5, &end, 10);
    return errno || its >= TRACE_MOST_RANKS || strcmp(end, ".json") ? -1 : its;
}

/* The job of the first rank that says one: rank 0's, but where its file is empty. `first` is that rank's file; of none: one that is no trace, or "". */
static int trace_of_job(const char *dir, char *job, size_t cap, char *first, size_t room) {
    DIR *d = opendir(dir);
    struct dirent *entry;
    long least = TRACE_MOST_RANKS;
    first[0] = 0;
    while (d && (entry = readdir(d)) != NULL) {
        char path[1024], other[64];
        long its = trace_file_rank(entry->d_name);
        if (its < 0 || its >= least) continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (!trace_job(path, other, sizeof other)) {
            if (least == TRACE_MOST_RANKS) snprintf(first, room, "%.60s", entry->d_name);
            continue;
        }
        least = its;
        snprintf(job, cap, "%s", other);
        snprintf(first, room, "rank-%ld.json", its);
    }
    if (d) closedir(d);
    return least < TRACE_MOST_RANKS;
}

/* Ranks that the events speak of and whose file is not there. */
static void trace_say_missing(const unsigned char *there, const trace_events *all) {
    int r, last, most = 0, shown = 0;
    size_t i;
    for (i = 0; i < all->n; i++)
        if (all->event[i].ranks > most) most = all->event[i].ranks;
    for (r = 0; r < TRACE_MOST_RANKS; r++)
        if (there[r] && r >= most) most = r + 1;
    for (r = 0; r < most && r < TRACE_MOST_RANKS; r = last) {
        for (last = r + 1; last < most && last < TRACE_MOST_RANKS && there[last] == there[r]; last++) {}
        if (there[r]) continue;
        fprintf(stderr, shown++ ? ", %d" : "mesh trace: no file of rank %d", r);
        if (last > r + 1) fprintf(stderr, " to %d", last - 1);
    }
    if (shown) fprintf(stderr, ": on another host, or lost before it had opened\n");
}

/* Merge what is in a directory, and say what it says. Returns the exit status. */
static int trace_merge(const char *dir) {
    static unsigned char there[TRACE_MOST_RANKS];
    char path[1024], part[1024], job[64], of[64];
    trace_events all = {NULL, 0, 0};
    trace_clocks clocks = {0, -1, 0, 0}; /* rank 0 has nothing to compare */
    FILE *out;
    DIR *d;
    struct dirent *entry;
    int files = 0, written = 0, bad;
    if (!(d = opendir(dir))) {
        fprintf(stderr, "mesh trace: cannot read %s: %s\n", dir, strerror(errno));
        return 1;
    }
    if (!trace_of_job(dir, job, sizeof job, of, sizeof of)) {
        fprintf(stderr, "mesh trace: %s%s in %s: run the job with MESH_TRACE=%s\n", of[0] ? of : "no trace",
                of[0] ? " is no trace, and no other is" : "", dir, dir);
        closedir(d);
        return 1;
    }
    snprintf(path, sizeof path, "%s/trace.json", dir);
    snprintf(part, sizeof part, "%s/trace.json.part", dir);
    if (!(out = fopen(part, "w"))) {
        fprintf(stderr, "mesh trace: cannot write %s: %s\n", part, strerror(errno));
        closedir(d);
        return 1;
    }
    while ((entry = readdir(d)) != NULL) {
        char name[1024], other[64];
        long its = trace_file_rank(entry->d_name);
        if (its < 0) continue;
        snprintf(name, sizeof name, "%s/%s", dir, entry->d_name);
        if (!trace_job(name, other, sizeof other)) {
            fprintf(stderr, "mesh trace: %s is empty, or no trace: its rank was ended before it had opened\n", name);
            continue;
        }
        if (strcmp(job, other)) {
            fprintf(stderr, "mesh trace: %s is of another job than %s, and left out\n", name, of);
            continue;
        }
        files++;
        there[its] = 1;
        if (!trace_read(name, &all, &clocks, out, &written))
            fprintf(stderr, "mesh trace: %s is not closed: its rank was ended, or runs\n", name);
    }
    closedir(d);
    fprintf(out, "%s\n]\n", written ? "" : "[");
    bad = ferror(out);
    if (fclose(out) || bad || rename(part, path)) {
        fprintf(stderr, "mesh trace: cannot write %s: %s\n", path, strerror(errno));
        remove(part);
        free(all.event);
        return 1;
    }
    if (!all.n) {
        fprintf(stderr, "mesh trace: no operation in %s\n", dir);
        free(all.event);
        return 1;
    }
    trace_say_missing(there, &all);
    printf("%d ranks, %zu events: %s\n", files, all.n, path);
    trace_say_clocks(&clocks);
    qsort(all.event, all.n, sizeof *all.event, trace_by_kind);
    trace_table(all.event, all.n);
    trace_stragglers(all.event, all.n);
    free(all.event);
    return 0;
}

static int command_trace(const char *self, int argc, char **argv) {
    const char *dir = NULL;
    int i;
    (void)self;
    for (i = 0; i < argc; i++) {
        if (is_help(argv[i])) {
            printf(
                "usage: mesh trace DIR\n\n"
                "Merges the traces that the ranks of a job wrote into DIR (run it with MESH_TRACE=DIR) into DIR/trace.json, for\n"
                "ui.perfetto.dev, on rank 0's clock, with how far off that may be, and prints per axis and call how often, how many bytes,\n"
                "how long, and which ranks came last.\n\n"
                "Exit status: 1 if there is no trace.\n");
            return 0;
        }
        if (dir || argv[i][0] == '-') return wrong("trace", "expected one directory", argv[i]);
        dir = argv[i];
    }
    if (!dir) return wrong("trace", "which directory? the one of MESH_TRACE", NULL);
    return trace_merge(dir);
}

#endif
