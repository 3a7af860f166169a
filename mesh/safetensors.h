/* mesh/safetensors.h - the format of safetensors: headers and indexes, read strictly and written. Part of mesh.h 0.1.0. MIT licence.

   Includes layout.h and transport.h (for its allocator). Knows no file and no rank: bytes in, a catalog out.

CONCEPTS
    file     8 bytes, little-endian: the header's length. The header, JSON: {"name": {"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 96]}, ...}, and
             strings under "__metadata__". Then the data, little-endian, row-major, without holes. (huggingface/safetensors, "Format")
    index    model.safetensors.index.json of a folder of several: {"metadata": {...}, "weight_map": {"name": "file", ...}}
    catalog  what several files hold.
*/
#if !defined(MESH_SAFETENSORS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_SAFETENSORS_IMPLEMENTED))
#include "layout.h"
#include "transport.h"
#define MESH_SAFETENSORS_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SAFETENSORS_IMPLEMENTED)
#define MESH_SAFETENSORS_IMPLEMENTED

enum {
    MESH__HEADER_MOST = 100000000, /* bytes, as in the format's own reader; of an index too */
    MESH__JSON_DEPTH = 16
};

/* BOOL is read as u8, a byte of 0 or 1; it is not written. */
#define MESH__SAFE_DTYPES(X)  \
    X("F32", MESH_F32)        \
    X("F64", MESH_F64)        \
    X("F16", MESH_F16)        \
    X("BF16", MESH_BF16)      \
    X("I8", MESH_I8)          \
    X("U8", MESH_U8)          \
    X("I16", MESH_I16)        \
    X("U16", MESH_U16)        \
    X("I32", MESH_I32)        \
    X("U32", MESH_U32)        \
    X("I64", MESH_I64)        \
    X("U64", MESH_U64)        \
    X("F8_E4M3", MESH_F8E4M3) \
    X("F8_E5M2", MESH_F8E5M2) \
    X("BOOL", MESH_U8)

/* The format's name of a dtype; NULL: it has none. */
MESH__PRIVATE const char *mesh__safe_name(mesh_dtype d) {
#define MESH_X(name, dtype) \
    if (d == dtype) return name;
    MESH__SAFE_DTYPES(MESH_X)
#undef MESH_X
    return NULL;
}
MESH__PRIVATE int mesh__safe_dtype(const char *text) {
#define MESH_X(name, dtype) \
    if (mesh__same(text, name)) return (int)dtype;
    MESH__SAFE_DTYPES(MESH_X)
#undef MESH_X
    return -1;
}

/* ---- // >>bytes that grow ---- */

typedef struct mesh__bytes {
    mesh_transport *t;
    char *p;
    int len, cap, failed; /* failed: there was no memory, or 2 GiB are not enough; what was added then is lost */
} mesh__bytes;

MESH__PRIVATE void mesh__bytes_add(mesh__bytes *b, const void *p, size_t n) {
    if (b->failed || n > (size_t)(INT32_MAX / 2 - b->len) ||
        !mesh__grow(b->t, (void **)&b->p, &b->cap, b->len + (int)n + 1, 1)) {
        b->failed = 1;
        return;
    }
    memcpy(b->p + b->len, p, n);
    b->len += (int)n;
    b->p[b->len] = 0;
}

MESH__PRIVATE void mesh__bytes_put(mesh__bytes *b, const char *format, ...) {
    char text[256];
    mesh__text t = mesh__text_on(text, sizeof text);
    va_list args;
    va_start(args, format);
    mesh__vput(&t, format, args);
    va_end(args);
    MESH_ASSERT(t.len < sizeof text);
    mesh__bytes_add(b, text, t.len);
}

/* ---- // >>JSON: a reader of bounded depth that takes what RFC 8259 allows and no more. Strings are decoded where they stand. ---- */

MESH__PRIVATE int mesh__is_utf8(const char *s) {
    const char *end = s + strlen(s);
    int n = 1;
    while (s < end && (n = mesh__utf8(s, end)) > 0) s += n;
    return n > 0;
}

MESH__PRIVATE void mesh__json_put(mesh__bytes *b, const char *s) {
    mesh__bytes_add(b, "\"", 1);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') mesh__bytes_add(b, "\\", 1);
        if ((unsigned char)*s < 32)
            mesh__bytes_put(b, "\\u00%c%c", *s < 16 ? '0' : '1', "0123456789abcdef"[*s & 15]);
        else
            mesh__bytes_add(b, s, 1);
    }
    mesh__bytes_add(b, "\"", 1);
}

typedef struct mesh__json {
    char *begin, *p, *end;
    const char *why;   /* what was wrong at p; NULL: nothing yet */
    int out_of_memory; /* that is what was */
    int passing;       /* within so many values that nobody reads, one in the other */
} mesh__json;

MESH__PRIVATE mesh__json mesh__json_of(char *text, size_t n) {
    mesh__json j;
    j.begin = j.p = text;
    j.end = text + n;
    j.why = NULL;
    j.out_of_memory = j.passing = 0;
    return j;
}

MESH__PRIVATE int mesh__json_bad(mesh__json *j, const char *why) {
    if (!j->why) j->why = why;
    return 0;
}

/* The next byte that is no space, not taken; 0 at the end and after an error. */
MESH__PRIVATE char mesh__json_peek(mesh__json *j) {
    if (j->why) return 0;
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\r' || *j->p == '\t')) j->p++;
    return j->p < j->end ? *j->p : '\0';
}

MESH__PRIVATE int mesh__json_take(mesh__json *j, char c, const char *why) {
    if (mesh__json_peek(j) != c || j->p == j->end) return mesh__json_bad(j, why);
    j->p++;
    return 1;
}

/* Of an object or array that was opened: is there another member? Takes the comma, or the closing bracket. */
MESH__PRIVATE int mesh__json_more(mesh__json *j, char close, int *first) {
    if (mesh__json_peek(j) == close) return j->p++, 0;
    if (!*first && !mesh__json_take(j, ',', "expected a comma or the closing bracket")) return 0;
    *first = 0;
    return !j->why;
}

MESH__PRIVATE int mesh__json_hex(mesh__json *j) {
    int i, v = 0;
    for (i = 0; i < 4; i++, j->p++) {
        char c = j->p < j->end ? *j->p : '\0';
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c - 'A' + 10;
        if (digit < 0 || digit > 15 || (c > '9' && c < 'A')) return mesh__json_bad(j, "expected four hex digits"), -1;
        v = v * 16 + digit;
    }
    return v;
}

/* What follows a backslash, as UTF-8 at `to`. Returns its end. */
MESH__PRIVATE char *mesh__json_escape(mesh__json *j, char *to) {
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    char c = j->p < j->end ? *j->p++ : '\0';
    int i, v, low;
    for (i = 0; from[i]; i++)
        if (c == from[i]) return *to = into[i], to + 1;
    if (c != 'u') return mesh__json_bad(j, "no such escape"), to;
    v = mesh__json_hex(j);
    if (v >= 0xd800 && v < 0xdc00 && j->end - j->p >= 2 && j->p[0] == '\\' && j->p[1] == 'u') {
        j->p += 2;
        low = mesh__json_hex(j);
        if (low < 0xdc00 || low > 0xdfff) return mesh__json_bad(j, "half a surrogate pair"), to;
        v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
    }
    if (v < 0 || (!v && !j->passing) || (v >= 0xd800 && v < 0xe000))
        return mesh__json_bad(j, v ? "half a surrogate pair" : "a zero byte"), to;
    if (v < 0x80) return *to++ = (char)v, to;
    if (v >= 0x10000) *to++ = (char)(0xf0 | v >> 18), *to++ = (char)(0x80 | (v >> 12 & 63));
    if (v >= 0x800 && v < 0x10000) *to++ = (char)(0xe0 | v >> 12);
    if (v >= 0x800) *to++ = (char)(0x80 | (v >> 6 & 63));
    if (v < 0x800) *to++ = (char)(0xc0 | v >> 6);
    *to++ = (char)(0x80 | (v & 63));
    return to;
}

/* A string, decoded in place (never longer than it was) and ended by a zero. NULL: none. */
MESH__PRIVATE char *mesh__json_string(mesh__json *j) {
    char *to, *s;
    int n;
    if (!mesh__json_take(j, '"', "expected a string")) return NULL;
    for (to = s = j->p; !j->why && j->p < j->end && *j->p != '"';) {
        if (*j->p == '\\') {
            j->p++;
            to = mesh__json_escape(j, to);
            continue;
        }
        n = mesh__utf8(j->p, j->end);
        if (!n || (unsigned char)*j->p < 32)
            mesh__json_bad(j, n ? "a control byte within a string" : "bytes that are no UTF-8");
        for (; n > 0; n--) *to++ = *j->p++;
    }
    if (j->p == j->end) mesh__json_bad(j, "a string without its end");
    if (j->why) return NULL;
    j->p++;
    *to = 0;
    return s;
}

/* A whole number from 0 on; -1: none. */
MESH__PRIVATE int64_t mesh__json_count(mesh__json *j) {
    int64_t v = 0;
    const char *from;
    if (!mesh__is_digit(mesh__json_peek(j))) return mesh__json_bad(j, "expected a number from 0 on"), -1;
    from = j->p;
    for (; j->p < j->end && mesh__is_digit(*j->p); j->p++) {
        int digit = *j->p - '0';
        if (v > (INT64_MAX - digit) / 10) return mesh__json_bad(j, "a number above 2^63 - 1"), -1;
        v = v * 10 + digit;
    }
    if (*from == '0' && j->p - from > 1) return mesh__json_bad(j, "a number that begins with 0"), -1;
    return v;
}

MESH__PRIVATE int mesh__json_digits(mesh__json *j) {
    char *from = j->p;
    while (j->p < j->end && mesh__is_digit(*j->p)) j->p++;
    return j->p > from || mesh__json_bad(j, "expected a digit");
}

MESH__PRIVATE void mesh__json_number(mesh__json *j) {
    if (*j->p == '-') j->p++;
    if (j->p < j->end && *j->p == '0')
        j->p++;
    else
        mesh__json_digits(j);
    if (j->p < j->end && *j->p == '.') j->p++, mesh__json_digits(j);
    if (j->p < j->end && (*j->p == 'e' || *j->p == 'E')) {
        j->p++;
        if (j->p < j->end && (*j->p == '+' || *j->p == '-')) j->p++;
        mesh__json_digits(j);
    }
}

MESH__PRIVATE void mesh__json_word(mesh__json *j, const char *word) {
    for (; *word; word++, j->p++)
        if (j->p == j->end || *j->p != *word) {
            mesh__json_bad(j, "expected a value");
            return;
        }
}

/* Any value, passed over: a string in it may have zero bytes, as Python writes them. */
MESH__PRIVATE void mesh__json_skip(mesh__json *j) {
    char c = mesh__json_peek(j), close = c == '{' ? '}' : ']';
    int first = 1;
    if (j->passing++ == MESH__JSON_DEPTH) mesh__json_bad(j, "brackets within more than 16 others");
    if (c == '"') {
        mesh__json_string(j);
    } else if (c == '{' || c == '[') {
        j->p++;
        while (mesh__json_more(j, close, &first)) {
            if (c == '{' && mesh__json_string(j)) mesh__json_take(j, ':', "expected a colon");
            mesh__json_skip(j);
        }
    } else if (c == '-' || mesh__is_digit(c)) {
        mesh__json_number(j);
    } else if (!j->why) {
        mesh__json_word(j, c == 't' ? "true" : c == 'f' ? "false" : "null");
    }
    j->passing--;
}

/* Nothing may follow. The status of all that was read; `what`: the file, for the message. */
MESH__PRIVATE mesh_status mesh__json_end(mesh__json *j, const char *what, mesh_error *err) {
    if (!j->why && (mesh__json_peek(j) || j->p < j->end)) j->why = "something follows the end";
    if (!j->why) return MESH_OK;
    return mesh__fail(err, j->out_of_memory ? MESH_ERR_MEMORY : MESH_ERR_ARGUMENT, -1, "%s: byte %l of its text: %s",
                      what, (int64_t)(j->p - j->begin), j->why);
}

/* ---- // >>catalogs ---- */

typedef struct mesh__saved {
    const char *name;
    int dtype, ndim; /* dtype -1: one that mesh.h has not, or more dims */
    int file;
    int64_t shape[MESH_MAX_DIMS], begin, nbytes; /* begin: in the file's data */
} mesh__saved;

typedef struct mesh__held {
    char *name;
    int64_t data, nbytes; /* where its data begin; of the whole file */
    uint32_t crc;
    int has_crc;
} mesh__held;

typedef struct mesh__catalog {
    mesh_transport *t;
    mesh__saved *tensor;
    mesh__held *file;
    int n, cap, nfiles, files_cap;
    int *called, called_room; /* files by the hash of their names, as 1 + their place; 0: none. See mesh__file_called */
} mesh__catalog;

MESH__PRIVATE void mesh__catalog_free(mesh__catalog *c) {
    mesh_transport_free(c->t, c->tensor);
    mesh_transport_free(c->t, c->file);
    mesh_transport_free(c->t, c->called);
    c->tensor = NULL, c->file = NULL, c->called = NULL;
    c->n = c->cap = c->nfiles = c->files_cap = c->called_room = 0;
}

/* Bytes of a shape; -1: more than there can be. */
MESH__PRIVATE int64_t mesh__saved_bytes(const mesh__saved *s) {
    int64_t n = (int64_t)mesh_dtype_bytes((mesh_dtype)s->dtype);
    int d;
    for (d = 0; d < s->ndim; d++)
        if (s->shape[d] == 0) return 0;
    for (d = 0; d < s->ndim; d++) {
        if (n > INT64_MAX / s->shape[d]) return -1;
        n *= s->shape[d];
    }
    return n;
}

/* {"dtype": ..., "shape": ..., "data_offsets": ...} */
MESH__PRIVATE void mesh__saved_read(mesh__json *j, mesh__saved *s) {
    int first = 1, seen = 0, one;
    int64_t end = -1, v;
    const char *key, *dtype;
    mesh__json_take(j, '{', "expected an object");
    while (mesh__json_more(j, '}', &first) && (key = mesh__json_string(j)) != NULL) {
        int what = mesh__same(key, "dtype")          ? 1
                   : mesh__same(key, "shape")        ? 2
                   : mesh__same(key, "data_offsets") ? 4
                                                     : 0;
        if (!what || seen & what)
            mesh__json_bad(j, what ? "a key twice" : "a key other than dtype, shape, data_offsets");
        seen |= what;
        mesh__json_take(j, ':', "expected a colon");
        if (what == 1 && (dtype = mesh__json_string(j)) != NULL) s->dtype = mesh__safe_dtype(dtype);
        if (what == 1) continue;
        mesh__json_take(j, '[', "expected an array");
        for (one = 1; what == 2 && mesh__json_more(j, ']', &one); s->ndim++)
            if ((v = mesh__json_count(j)) >= 0 && s->ndim < MESH_MAX_DIMS) s->shape[s->ndim] = v;
        if (what == 2) continue;
        s->begin = mesh__json_count(j);
        mesh__json_take(j, ',', "expected a comma");
        end = mesh__json_count(j);
        mesh__json_take(j, ']', "expected the closing bracket");
        if (end < s->begin) mesh__json_bad(j, "data_offsets that end before they begin");
        s->nbytes = end - s->begin;
    }
    if (seen != 7) mesh__json_bad(j, "a tensor without dtype, shape or data_offsets");
    if (s->ndim > MESH_MAX_DIMS) s->ndim = 0, s->dtype = -1;
    if (s->dtype >= 0 && mesh__saved_bytes(s) != s->nbytes)
        mesh__json_bad(j, "data_offsets that are not as long as the shape");
}

MESH__PRIVATE int mesh__saved_later(const void *ctx, int a, int b) {
    const mesh__saved *all = (const mesh__saved *)ctx, *x = &all[a], *y = &all[b];
    return x->begin != y->begin ? x->begin > y->begin : x->nbytes > y->nbytes;
}

/* Do the tensors from `from` on cover the data, each byte once? */
MESH__PRIVATE mesh_status mesh__catalog_cover(mesh__catalog *c, int from, int64_t data_bytes, const char *what,
                                              mesh_error *err) {
    int n = c->n - from, i, *order = (int *)mesh_transport_alloc(c->t, ((size_t)n + 1) * sizeof *order);
    const mesh__saved *s = n ? c->tensor + from : NULL;
    mesh_status status = MESH_OK;
    int64_t at = 0;
    if (!order) return mesh__fail(err, MESH_ERR_MEMORY, -1, "%s: no memory for %d tensors", what, n);
    for (i = 0; i < n; i++) order[i] = i;
    mesh__sort(order, n, mesh__saved_later, s);
    for (i = 0; i < n && status == MESH_OK; i++) {
        const mesh__saved *k = &s[order[i]];
        if (k->begin != at)
            status = mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                                "%s: the data of %q begin at byte %l, but those before end at %l", what, k->name,
                                k->begin, at);
        at = k->begin + k->nbytes;
    }
    if (status == MESH_OK && at != data_bytes)
        status = mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                            "%s: its tensors have %l bytes of data, the file holds %l (torn?)", what, at, data_bytes);
    mesh_transport_free(c->t, order);
    return status;
}

/* Add what a header says. Names stay in `text`, which is overwritten. data_bytes: what follows the header; -1: not checked. */
MESH__PRIVATE mesh_status mesh__header_read(mesh__catalog *c, int file, char *text, size_t n, int64_t data_bytes,
                                            const char *what, mesh_error *err) {
    mesh__json j = mesh__json_of(text, n);
    int first = 1, from = c->n;
    char *name;
    mesh_status status;
    mesh__json_take(&j, '{', "expected an object");
    while (mesh__json_more(&j, '}', &first) && (name = mesh__json_string(&j)) != NULL) {
        mesh__saved *s;
        mesh__json_take(&j, ':', "expected a colon");
        if (mesh__same(name, "__metadata__")) {
            mesh__json_skip(&j);
            continue;
        }
        if (!mesh__grow(c->t, (void **)&c->tensor, &c->cap, c->n + 1, sizeof *c->tensor))
            return mesh__fail(err, MESH_ERR_MEMORY, -1, "%s: no memory for %d tensors", what, c->n + 1);
        s = &c->tensor[c->n++];
        memset(s, 0, sizeof *s);
        s->name = name;
        s->file = file;
        mesh__saved_read(&j, s);
    }
    if ((status = mesh__json_end(&j, what, err)) != MESH_OK) return status;
    return data_bytes < 0 ? MESH_OK : mesh__catalog_cover(c, from, data_bytes, what, err);
}

MESH__PRIVATE int mesh__name_later(const void *ctx, int a, int b) {
    const mesh__saved *all = (const mesh__saved *)ctx;
    return strcmp(all[a].name, all[b].name) > 0;
}

/* Sort by name. Returns where a name stands a second time, -1: none does, -2: there was no memory. */
MESH__PRIVATE int mesh__catalog_sort(mesh__catalog *c) {
    int i, twice = -1, *order = (int *)mesh_transport_alloc(c->t, ((size_t)c->n + 1) * sizeof *order);
    mesh__saved *sorted = (mesh__saved *)mesh_transport_alloc(c->t, ((size_t)c->n + 1) * sizeof *sorted);
    if (order && sorted) {
        for (i = 0; i < c->n; i++) order[i] = i;
        mesh__sort(order, c->n, mesh__name_later, c->tensor);
        for (i = 0; i < c->n; i++) {
            sorted[i] = c->tensor[order[i]];
            if (i && mesh__same(sorted[i].name, sorted[i - 1].name)) twice = i;
        }
        if (c->n) memcpy(c->tensor, sorted, (size_t)c->n * sizeof *sorted);
    }
    if (!order || !sorted) twice = -2;
    mesh_transport_free(c->t, order);
    mesh_transport_free(c->t, sorted);
    return twice;
}

/* Of a catalog sorted by name: where a name stands, or -1. */
MESH__PRIVATE int mesh__catalog_find(const mesh__catalog *c, const char *name) {
    int low = 0, high = c->n;
    while (low < high) {
        int middle = low + (high - low) / 2, after = strcmp(c->tensor[middle].name, name);
        if (!after) return middle;
        if (after < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* ---- // >>writing ---- */

MESH__PRIVATE void mesh__saved_write(mesh__bytes *b, const mesh__saved *s) {
    int d;
    mesh__json_put(b, s->name);
    mesh__bytes_put(b, ":{\"dtype\":\"%s\",\"shape\":[", mesh__safe_name((mesh_dtype)s->dtype));
    for (d = 0; d < s->ndim; d++) mesh__bytes_put(b, d ? ",%l" : "%l", s->shape[d]);
    mesh__bytes_put(b, "],\"data_offsets\":[%l,%l]}", s->begin, s->begin + s->nbytes);
}

/* The 8 bytes and the header of the file that tensor i is the first of, padded so that data begin at a multiple of 8. Returns the first tensor of the next. */
MESH__PRIVATE int mesh__header_write(mesh__bytes *b, const mesh__catalog *c, int file, int i) {
    unsigned char length[8] = {0};
    int begin = b->len;
    mesh__bytes_add(b, length, 8);
    mesh__bytes_put(b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (; i < c->n && c->tensor[i].file == file; i++) {
        mesh__bytes_put(b, ",");
        mesh__saved_write(b, &c->tensor[i]);
    }
    mesh__bytes_put(b, "}");
    while (!b->failed && (b->len - begin) % 8) mesh__bytes_put(b, " ");
    if (b->failed) return i;
    mesh__put64(length, (uint64_t)(b->len - begin - 8));
    memcpy(b->p + begin, length, 8);
    return i;
}

/* Keys and values by turns, ended by NULL, as members that others stand before. */
MESH__PRIVATE void mesh__text_write(mesh__bytes *b, const char *const *text) {
    for (; text && text[0]; text += 2) {
        mesh__bytes_put(b, ",\n    ");
        mesh__json_put(b, text[0]);
        mesh__bytes_put(b, ": ");
        mesh__json_put(b, text[1]);
    }
}

/* An index of a catalog sorted by name; text: as mesh__text_write made it. */
MESH__PRIVATE void mesh__index_write(mesh__bytes *b, const mesh__catalog *c, const char *text) {
    int64_t total = 0;
    int i;
    for (i = 0; i < c->n; i++) total += c->tensor[i].nbytes;
    mesh__bytes_put(b, "{\n  \"metadata\": {\n    \"total_size\": %l,\n    \"files\": {", total);
    for (i = 0; i < c->nfiles; i++) {
        mesh__bytes_put(b, i ? ",\n      " : "\n      ");
        mesh__json_put(b, c->file[i].name);
        mesh__bytes_put(b, ": {\"bytes\": %l, \"crc32c\": %u}", c->file[i].nbytes, (uint64_t)c->file[i].crc);
    }
    mesh__bytes_put(b, "\n    }");
    mesh__bytes_add(b, text, strlen(text));
    mesh__bytes_put(b, "\n  },\n  \"weight_map\": {");
    for (i = 0; i < c->n; i++) {
        mesh__bytes_put(b, i ? ",\n    " : "\n    ");
        mesh__json_put(b, c->tensor[i].name);
        mesh__bytes_put(b, ": ");
        mesh__json_put(b, c->file[c->tensor[i].file].name);
    }
    mesh__bytes_put(b, "\n  }\n}\n");
}

/* ---- // >>indexes ---- */

/* A name that stays in the folder. */
MESH__PRIVATE int mesh__is_file_name(const char *s) {
    const char *p;
    for (p = s; *p && *p != '/' && *p != '\\'; p++) {}
    return !*p && p > s && p - s < 256 && !mesh__same(s, ".") && !mesh__same(s, "..");
}

/* Where a file's place stands, or would. An index may name very many, to do harm: the hash is another in each process. */
MESH__PRIVATE int *mesh__called_at(const mesh__catalog *c, const char *name) {
    uint64_t h = mesh__hash_text((uint64_t)(uintptr_t)c->t, name), mask = (uint64_t)c->called_room - 1;
    while (c->called[h & mask] && !mesh__same(c->file[c->called[h & mask] - 1].name, name)) h++;
    return &c->called[h & mask];
}

/* NULL: no memory. */
MESH__PRIVATE mesh__held *mesh__file_called(mesh__catalog *c, char *name) {
    int i, *at;
    mesh__held *f;
    if (2 * c->nfiles >= c->called_room) { /* half of it stays free */
        int room = c->called_room ? 2 * c->called_room : 16,
            *wider = (int *)mesh_transport_alloc(c->t, (size_t)room * sizeof *wider);
        if (!wider) return NULL;
        memset(wider, 0, (size_t)room * sizeof *wider);
        mesh_transport_free(c->t, c->called);
        c->called = wider;
        c->called_room = room;
        for (i = 0; i < c->nfiles; i++) *mesh__called_at(c, c->file[i].name) = i + 1;
    }
    at = mesh__called_at(c, name);
    if (*at) return &c->file[*at - 1];
    if (!mesh__grow(c->t, (void **)&c->file, &c->files_cap, c->nfiles + 1, sizeof *c->file)) return NULL;
    f = &c->file[c->nfiles++];
    *at = c->nfiles;
    memset(f, 0, sizeof *f);
    f->name = name;
    f->nbytes = -1;
    return f;
}

/* Digits, hex ones too if they may be, into *v. Returns how many. */
MESH__PRIVATE int mesh__digits_read(const char **at, int hex, int64_t *v) {
    const char *p = *at, *begin = p;
    uint64_t value = 0;
    for (; mesh__is_digit(*p) || (hex && *p >= 'a' && *p <= 'f'); p++)
        value = value * 16 + (uint64_t)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
    *v = (int64_t)value;
    *at = p;
    return (int)(p - begin);
}

/* The number in "model-<5 or more digits>-of-<5 or more>-<8 hex>-<16 hex>.safetensors" or in a mark, which only we write, and the mark: 0 in older
   names, which end after the number. -1: it is another name. */
MESH__PRIVATE int64_t mesh__file_number(const char *name, int64_t *mark) {
    const char *p = name;
    int64_t v = 0;
    int part, digits;
    *mark = 0;
    if (!strncmp(p, ".mesh-", 6)) {
        p += 6;
        return mesh__digits_read(&p, 1, &v) == 8 && *p++ == '-' && mesh__digits_read(&p, 1, mark) == 16 && !*p ? v : -1;
    }
    if (strncmp(p, "model", 5)) return -1;
    for (p += 5, part = 0; part < 3; part++) {
        if (part == 1 && strncmp(p, "-of", 3)) return -1;
        p += part == 1 ? 3 : 0;
        if (*p++ != '-') return -1;
        digits = mesh__digits_read(&p, part == 2, &v);
        if (digits < 5 || digits > 9 || (part == 2 && digits != 8)) return -1;
    }
    if (*p == '-' && (p++, mesh__digits_read(&p, 1, mark) != 16)) return -1;
    return mesh__same(p, ".safetensors") ? v : -1;
}

/* "files": {"name": {"bytes": ..., "crc32c": ...}, ...}. What has neither is not ours: others may mean something else by that key. */
MESH__PRIVATE void mesh__files_read(mesh__catalog *c, mesh__json *j) {
    int first = 1;
    char *name;
    mesh__json_take(j, '{', "expected an object");
    while (mesh__json_more(j, '}', &first) && (name = mesh__json_string(j)) != NULL) {
        int64_t nbytes = -1, crc = -1;
        int inner = 1;
        const char *key;
        mesh__held *f;
        mesh__json_take(j, ':', "expected a colon");
        if (mesh__json_peek(j) != '{') {
            mesh__json_skip(j);
            continue;
        }
        mesh__json_take(j, '{', "expected an object");
        while (mesh__json_more(j, '}', &inner) && (key = mesh__json_string(j)) != NULL) {
            int64_t *to = mesh__same(key, "bytes") ? &nbytes : mesh__same(key, "crc32c") ? &crc : NULL;
            mesh__json_take(j, ':', "expected a colon");
            if (to && mesh__is_digit(mesh__json_peek(j)))
                *to = mesh__json_count(j);
            else
                mesh__json_skip(j);
        }
        if ((nbytes < 0 && crc < 0) || j->why) continue;
        f = mesh__is_file_name(name) ? mesh__file_called(c, name) : NULL;
        j->out_of_memory = !f && mesh__is_file_name(name);
        if (!f) mesh__json_bad(j, j->out_of_memory ? "no memory" : "the name of a file that is not in the folder");
        if (crc > UINT32_MAX) mesh__json_bad(j, "a checksum above 32 bits");
        if (f && nbytes >= 0) f->nbytes = nbytes;
        if (f && crc >= 0) f->has_crc = 1, f->crc = (uint32_t)crc;
    }
}

/* Of an index's "metadata", or a header's "__metadata__": the value of a key, if it is a string; NULL: there is none, or j->why. Our list of files goes
   to the catalog, if one is given; what else there is is passed over. */
MESH__PRIVATE char *mesh__metadata_read(mesh__catalog *c, mesh__json *j, const char *wanted) {
    int first = 1;
    char *key, *found = NULL;
    mesh__json_take(j, '{', "expected an object");
    while (mesh__json_more(j, '}', &first) && (key = mesh__json_string(j)) != NULL) {
        mesh__json_take(j, ':', "expected a colon");
        if (c && mesh__same(key, "files") && mesh__json_peek(j) == '{')
            mesh__files_read(c, j);
        else if (wanted && mesh__same(key, wanted) && mesh__json_peek(j) == '"')
            found = mesh__json_string(j);
        else
            mesh__json_skip(j);
    }
    return found;
}

/* An index: its files, and the tensors it says they hold (name and file only). Names stay in the text. */
MESH__PRIVATE mesh_status mesh__index_read(mesh__catalog *c, char *text, size_t n, mesh_error *err) {
    static const char what[] = "model.safetensors.index.json";
    mesh__json j = mesh__json_of(text, n);
    int first = 1, seen = 0, inner = 1;
    char *key, *name;
    mesh__json_take(&j, '{', "expected an object");
    while (mesh__json_more(&j, '}', &first) && (key = mesh__json_string(&j)) != NULL) {
        int map = mesh__same(key, "weight_map");
        mesh__json_take(&j, ':', "expected a colon");
        if (mesh__same(key, "metadata") && mesh__json_peek(&j) == '{') {
            mesh__metadata_read(c, &j, NULL);
            continue;
        }
        if (!map) mesh__json_skip(&j);
        if (map && seen++) mesh__json_bad(&j, "a second weight_map");
        if (!map || !mesh__json_take(&j, '{', "expected an object")) continue;
        while (mesh__json_more(&j, '}', &inner) && (key = mesh__json_string(&j)) != NULL &&
               mesh__json_take(&j, ':', "expected a colon") && (name = mesh__json_string(&j)) != NULL) {
            mesh__held *f = NULL;
            if (!mesh__is_file_name(name)) mesh__json_bad(&j, "the name of a file that is not in the folder");
            if (!j.why && ((f = mesh__file_called(c, name)) == NULL ||
                           !mesh__grow(c->t, (void **)&c->tensor, &c->cap, c->n + 1, sizeof *c->tensor)))
                return mesh__fail(err, MESH_ERR_MEMORY, -1, "%s: no memory for %d tensors", what, c->n + 1);
            if (j.why) break;
            memset(&c->tensor[c->n], 0, sizeof *c->tensor);
            c->tensor[c->n].name = key;
            c->tensor[c->n++].file = (int)(f - c->file);
        }
    }
    if (!seen) mesh__json_bad(&j, "no weight_map");
    return mesh__json_end(&j, what, err);
}
#endif /* MESH_SAFETENSORS_IMPLEMENTED */
