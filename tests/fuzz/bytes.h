/* What a fuzz target makes of its bytes: numbers and lines. The laws that it then checks fail as tests do (harness.h). */
#ifndef FUZZ_BYTES_H
#define FUZZ_BYTES_H

typedef struct fuzz_bytes {
    const unsigned char *p, *end;
} fuzz_bytes;

static fuzz_bytes fuzz_bytes_of(const unsigned char *data, size_t n) {
    fuzz_bytes b;
    b.p = data;
    b.end = data + n;
    return b;
}

/* The next byte; 0 behind the end. */
static int fuzz_byte(fuzz_bytes *b) { return b->p < b->end ? *b->p++ : 0; }
static int fuzz_below(fuzz_bytes *b, int n) { return fuzz_byte(b) % n; }

static uint64_t fuzz_number(fuzz_bytes *b, int bytes) {
    uint64_t v = 0;
    int i;
    for (i = 0; i < bytes; i++) v |= (uint64_t)fuzz_byte(b) << (8 * i);
    return v;
}

/* The text up to the next newline, in memory of just its length, so that a read beyond it shows. NULL behind the end. Free it. */
static char *fuzz_line(fuzz_bytes *b) {
    const unsigned char *from = b->p;
    size_t n = 0;
    char *line;
    if (b->p == b->end) return NULL;
    while (b->p < b->end && *b->p != '\n' && *b->p) b->p++, n++;
    if (b->p < b->end) b->p++;
    line = (char *)malloc(n + 1);
    memcpy(line, from, n);
    line[n] = 0;
    return line;
}

static char *fuzz_text(const unsigned char *data, size_t n) {
    char *text = (char *)malloc(n + 1);
    if (n) memcpy(text, data, n);
    text[n] = 0;
    return text;
}

/* A refusal says who refuses and with which status. */
static void fuzz_refused(mesh_status status, const mesh_error *err, const char *function) {
    CHECK_INT(status, MESH_ERR_ARGUMENT);
    CHECK_INT(err->status, status);
    CHECK(!strncmp(err->text, function, strlen(function)) && err->text[strlen(function)] == ':');
}

/* A function that shows something as text gives the same text into any room, and its length. */
#define FUZZ_SHOWN(text, call)                      \
    do {                                            \
        char *buf = NULL, some[8];                  \
        size_t cap = 0, all = (call);               \
        text = buf = (char *)malloc(cap = all + 1); \
        CHECK_INT((call), all);                     \
        CHECK_INT(strlen(text), all);               \
        buf = some, cap = sizeof some;              \
        CHECK_INT((call), all);                     \
        CHECK(!strncmp(text, some, strlen(some)));  \
        CHECK_INT(strlen(some), all < 7 ? all : 7); \
    } while (0)

#endif
