/* What fuzzing kept (tests/corpus), through the same laws. A corpus is a text: an entry a line, its name, a tab, its bytes, of which those
   that do not print are \xx. Those called found-... were failures once, those called law-... were made by hand. */

#include <dirent.h>
#include "fuzz/targets.h"

enum { CORPUS_ENTRY = 1 << 16 };

/* The bytes of an entry as they stand in its line. Returns their number, or -1. */
static int corpus_bytes(const char *p, unsigned char *out) {
    int n = 0;
    for (; *p && *p != '\n' && n < CORPUS_ENTRY; n++) {
        unsigned v = (unsigned char)*p;
        if (v == '\\' && sscanf(p + 1, "%2x", &v) != 1) return -1;
        p += *p == '\\' ? 3 : 1;
        out[n] = (unsigned char)v;
    }
    return n;
}

typedef struct corpus_file {
    FILE *file;
    char line[3 * CORPUS_ENTRY + 300], *name;
    unsigned char data[CORPUS_ENTRY];
    int n;
} corpus_file;

static corpus_file *corpus_open(const char *path) {
    corpus_file *c = (corpus_file *)calloc(1, sizeof *c);
    if (c && (c->file = fopen(path, "r")) != NULL) return c;
    free(c);
    return NULL;
}

static int corpus_next(corpus_file *c) {
    char *tab;
    if (!fgets(c->line, sizeof c->line, c->file)) return 0;
    tab = strchr(c->line, '\t');
    if (!tab || (c->n = corpus_bytes(tab + 1, c->data)) < 0) {
        test_fail(__FILE__, __LINE__, "not an entry of a corpus: %.60s", c->line);
        return 0;
    }
    *tab = 0;
    c->name = c->line;
    return 1;
}

static void corpus_close(corpus_file *c) {
    fclose(c->file);
    free(c);
}

/* ---- for fuzz.c: files of a directory, and back, by name ---- */

__attribute__((unused)) static int corpus_unpack(const char *path, const char *dir) {
    corpus_file *c = corpus_open(path);
    int n = 0;
    for (; c && corpus_next(c); n++) {
        char name[1024];
        FILE *f;
        snprintf(name, sizeof name, "%s/%s", dir, c->name);
        if (!(f = fopen(name, "w"))) return 1;
        fwrite(c->data, 1, (size_t)c->n, f);
        fclose(f);
    }
    if (c) corpus_close(c);
    printf("%d entries of %s\n", n, path);
    return test_failures != 0;
}

__attribute__((unused)) static int corpus_pack(const char *dir, const char *path) {
    struct dirent **entry;
    int n = scandir(dir, &entry, NULL, alphasort), i, k;
    FILE *out = fopen(path, "w");
    if (n < 0 || !out) return 1;
    for (i = 0; i < n; i++) {
        static unsigned char data[CORPUS_ENTRY];
        char name[1024];
        FILE *f;
        int length;
        if (entry[i]->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", dir, entry[i]->d_name);
        if (!(f = fopen(name, "r"))) return 1;
        length = (int)fread(data, 1, sizeof data, f);
        fclose(f);
        if (!strncmp(entry[i]->d_name, "found-", 6) || !strncmp(entry[i]->d_name, "law-", 4))
            fprintf(out, "%s\t", entry[i]->d_name);
        else
            fprintf(out, "%.12s\t", entry[i]->d_name);
        for (k = 0; k < length; k++)
            if (data[k] >= ' ' && data[k] < 127 && data[k] != '\\')
                fputc(data[k], out);
            else
                fprintf(out, "\\%02x", data[k]);
        fputc('\n', out);
    }
    for (i = 0; i < n; i++) free(entry[i]);
    free(entry);
    return fclose(out) != 0;
}

/* ---- the tests ---- */

static void corpus_replay(const char *target) {
    char path[1024];
    const char *beside = __FILE__, *slash = strrchr(beside, '/');
    corpus_file *c;
    int i, n = 0;
    snprintf(path, sizeof path, "%.*scorpus/%s.txt", slash ? (int)(slash + 1 - beside) : 0, beside, target);
    if (!(c = corpus_open(path))) {
        snprintf(path, sizeof path, "tests/corpus/%s.txt", target);
        c = corpus_open(path);
    }
    if (!c) {
        test_fail(__FILE__, __LINE__, "no corpus %s: run from the repository's root", path);
        return;
    }
    for (i = 0; strcmp(fuzz_targets[i].name, target); i++) {}
    for (; corpus_next(c) && !test_failures; n++) {
        fuzz_targets[i].run(c->data, (size_t)c->n);
        if (test_failures) test_fail(__FILE__, __LINE__, "in %s, entry %s", target, c->name);
    }
    CHECK(n > 0);
    corpus_close(c);
}

static void test_corpus_mesh(void) { corpus_replay("mesh"); }
static void test_corpus_spec(void) { corpus_replay("spec"); }
static void test_corpus_tuning(void) { corpus_replay("tuning"); }
static void test_corpus_topology(void) { corpus_replay("topology"); }
static void test_corpus_environment(void) { corpus_replay("environment"); }
static void test_corpus_trace(void) { corpus_replay("trace"); }
static void test_corpus_plan(void) { corpus_replay("plan"); }
static void test_corpus_frames(void) { corpus_replay("frames"); }
static void test_corpus_handshake(void) { corpus_replay("handshake"); }
static void test_corpus_calls(void) { corpus_replay("calls"); }

static const test_case corpus_tests[] = {
    {"corpus/mesh", test_corpus_mesh, 0},
    {"corpus/spec", test_corpus_spec, 0},
    {"corpus/tuning", test_corpus_tuning, 0},
    {"corpus/topology", test_corpus_topology, 0},
    {"corpus/environment", test_corpus_environment, 0},
    {"corpus/trace", test_corpus_trace, 0},
    {"corpus/plan", test_corpus_plan, 0},
    {"corpus/frames", test_corpus_frames, 0},
    {"corpus/handshake", test_corpus_handshake, 0},
    {"corpus/calls", test_corpus_calls, 0},
};
