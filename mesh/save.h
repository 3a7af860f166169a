/* mesh/save.h - saving: agree on what is saved, copy, write on a thread, make it the current checkpoint. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh_checkpoint.h, which says what it does, and alike.h.

DO THIS
    Nothing: mesh_checkpoint.h includes it.
*/
#if !defined(MESH_SAVE_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_SAVE_IMPLEMENTED))
#include "../mesh_checkpoint.h"
#include "alike.h"
#define MESH_SAVE_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SAVE_IMPLEMENTED)
#define MESH_SAVE_IMPLEMENTED

#include <pthread.h>
#include <signal.h>

enum { MESH__SHARE_WHOLE = 1 << 16 }; /* bytes: smaller parts are written by one replica, not cut */

#define MESH__DISK_NS INT64_C(600000000000) /* a disk that has taken nothing for so long is given up */

/* What this rank writes of a tensor. */
typedef struct mesh__piece {
    int tensor; /* in the catalog */
    mesh_box box;
    int64_t first, count; /* of the box's elements */
    char *data;
} mesh__piece;

typedef struct mesh__save {
    mesh_transport *t;
    uint32_t comm; /* the id of the comm that it was begun on: this rank's next ones have others */
    mesh__bytes bundle,
        names; /* the first rank's, see mesh__bundle_make; the catalog's text, which is a copy that was read */
    mesh__catalog catalog;
    char *file_names;
    uint32_t number;
    uint64_t mark; /* no other save has it */
    mesh__piece *share;
    int nshares, first; /* first: is this the comm's first rank, which makes the files and the index? */
    int made;           /* files that this rank has made and that no index names yet */
    int marked;         /* its mark is in the folder */
    int made_folder;    /* the folder was not there */
    char *data, *folder;
    mesh__bytes text; /* the index's metadata, as written */
    mesh__crc crc;
    uint32_t *sum;       /* per file, of what this rank has written; then of all */
    int threaded, ended; /* ended: the thread, or what it would have done, is over */
    mesh__pace pace;
    pthread_t thread;
    mesh_status status; /* of the writing */
    mesh_error why;
} mesh__save;

MESH__PRIVATE void mesh__save_free(mesh__save *s) {
    if (!s) return;
    mesh__catalog_free(&s->catalog);
    mesh_transport_free(s->t, s->bundle.p);
    mesh_transport_free(s->t, s->names.p);
    mesh_transport_free(s->t, s->file_names);
    mesh_transport_free(s->t, s->share);
    mesh_transport_free(s->t, s->data);
    mesh_transport_free(s->t, s->folder);
    mesh_transport_free(s->t, s->text.p);
    mesh_transport_free(s->t, s->sum);
    mesh_transport_free(s->t, s);
}

/* ---- // >>who writes what ---- */

/* The part of its box that a rank writes: the replicas that hold it have one each. `number`: the tensor's, for turns among them. */
MESH__PRIVATE void mesh__piece_of(const mesh_tensor *t, int rank, int number, mesh__piece *s) {
    int coord[MESH_MAX_AXES], i;
    int64_t count = mesh_layout_box(&t->layout, rank, &s->box), k = 0, n = 1,
            elem = (int64_t)mesh_dtype_bytes(t->dtype);
    s->first = s->count = 0;
    if (count <= 0 || mesh_coords_of(t->layout.on, NULL, rank, coord) < 0) return;
    for (i = 0; i < t->layout.on->naxes; i++)
        if (t->layout.spec.axis[i].kind != MESH_SHARD) {
            k = k * t->layout.on->axis[i].size + coord[i];
            n *= t->layout.on->axis[i].size;
        }
    if (count <= MESH__SHARE_WHOLE / elem) {
        s->count = number % n == k ? count : 0;
        return;
    }
    s->first = count / n * k + (k < count % n ? k : count % n);
    s->count = count / n + (k < count % n);
}

/* ---- // >>lists become one catalog, on the first rank ---- */

/* The tensors of which this rank is the mesh's first, as a header. */
MESH__PRIVATE void mesh__list_write(mesh__bytes *b, const mesh_named *list, int n, int rank) {
    int i, any = 0;
    mesh__bytes_put(b, "{");
    for (i = 0; i < n; i++) {
        const mesh_tensor *t = &list[i].tensor;
        mesh__saved s;
        if (mesh_rank_at(t->layout.on, 0) != rank) continue;
        memset(&s, 0, sizeof s);
        s.name = list[i].name, s.dtype = (int)t->dtype, s.ndim = t->layout.ndim;
        memcpy(s.shape, t->layout.shape, (size_t)s.ndim * sizeof *s.shape);
        s.nbytes = mesh__saved_bytes(&s);
        if (any++) mesh__bytes_put(b, ",");
        mesh__saved_write(b, &s);
    }
    mesh__bytes_put(b, "}");
}

/* Gather the headers of all on the first rank: all of them one after the other, sizes[i] bytes from index i. */
MESH__PRIVATE mesh_status mesh__lists_gather(mesh_comm *c, const char *function, const mesh__bytes *mine,
                                             mesh__bytes *all, size_t *sizes) {
    uint64_t size = (uint64_t)mine->len, *counts = NULL;
    int n = c->on.size, i, first = mesh_index_of(&c->on, c->transport->rank) == 0;
    mesh_error why = MESH_ZERO;
    mesh_status status = MESH_OK, met;
    if (first && (counts = (uint64_t *)mesh_transport_alloc(c->transport, (size_t)n * sizeof *counts)) == NULL)
        status = mesh__fail(&why, MESH_ERR_MEMORY, -1, "no memory for the sizes of %d lists", n);
    if ((met = mesh__agree(c, function, status, &why)) == MESH_OK) met = mesh__host_gather(c, &size, counts);
    for (i = 0, size = 0; i < n && first && met == MESH_OK; i++) {
        sizes[i] = (size_t)counts[i];
        size += counts[i];
    }
    mesh_transport_free(c->transport, counts);
    if (met == MESH_OK && first &&
        (size > INT32_MAX / 2 || !mesh__grow(all->t, (void **)&all->p, &all->cap, (int)size + 1, 1)))
        status = mesh__fail(&why, MESH_ERR_MEMORY, -1, "no memory for lists of %u bytes", size);
    if (met == MESH_OK) met = mesh__agree(c, function, status, &why);
    if (met == MESH_OK) met = mesh__host_gather_v(c, mine->p, (size_t)mine->len, all->p, sizes);
    return met;
}

/* All lists into a catalog sorted by name; each tensor's file is for now the rank that has told it. */
MESH__PRIVATE mesh_status mesh__lists_join(const mesh_comm *c, mesh__catalog *joined, char *text, const size_t *sizes,
                                           mesh_error *err) {
    mesh_status status = MESH_OK;
    int i, twice;
    for (i = 0; i < c->on.size && status == MESH_OK; text += sizes[i++])
        status = mesh__header_read(joined, mesh_rank_at(&c->on, i), text, sizes[i], -1, "a rank's list", err);
    if (status != MESH_OK) return status;
    if ((twice = mesh__catalog_sort(joined)) == -2)
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for %d tensors", joined->n);
    if (twice > 0) {
        const mesh__saved *a = &joined->tensor[twice - 1], *b = a + 1;
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          "two tensors are called %q: %s of rank %d's list and %s of rank %d's", a->name,
                          mesh__show_shape(a->dtype, a->ndim, a->shape).text, a->file,
                          mesh__show_shape(b->dtype, b->ndim, b->shape).text, b->file);
    }
    return MESH_OK;
}

/* ---- // >>files of a folder ---- */

MESH__PRIVATE void mesh__put_padded(mesh__text *t, uint32_t v, unsigned base, int width) {
    uint32_t rest;
    for (rest = v; rest >= base; rest /= base) width--;
    for (; width > 1; width--) mesh__put_char(t, '0');
    mesh__put_uint(t, v, base, 0);
}

enum { MESH__FILE_NAME = 80 }; /* bytes of a name, with its end */

/* "0000000a-<16 hex>": a save's number, by which it is before or after others, and its mark: the number of a save that was given up is free again, and a
   thread of it that still writes must not find files of that name. */
MESH__PRIVATE void mesh__put_save(mesh__text *t, uint32_t number, uint64_t mark) {
    mesh__put_padded(t, number, 16, 8);
    mesh__put_char(t, '-');
    mesh__put_padded(t, (uint32_t)(mark >> 32), 16, 8);
    mesh__put_padded(t, (uint32_t)mark, 16, 8);
}

/* "model-00001-of-00004-0000000a-<16 hex>.safetensors": file i, from 0, of save number 10 */
MESH__PRIVATE void mesh__file_name(char *name, int i, int files, uint32_t number, uint64_t mark) {
    mesh__text t = mesh__text_on(name, MESH__FILE_NAME);
    mesh__put(&t, "model-");
    mesh__put_padded(&t, (uint32_t)i + 1, 10, 5);
    mesh__put(&t, "-of-");
    mesh__put_padded(&t, (uint32_t)files, 10, 5);
    mesh__put(&t, "-");
    mesh__put_save(&t, number, mark);
    mesh__put(&t, ".safetensors");
}

/* ".mesh-0000000a-<16 hex>": a save's mark, an empty file that the first rank makes and the others look for: are their folders one? */
MESH__PRIVATE mesh_status mesh__mark_path(char *path, const mesh__save *s, mesh_error *err) {
    char name[MESH__FILE_NAME];
    mesh__text t = mesh__text_on(name, sizeof name);
    mesh__put(&t, ".mesh-");
    mesh__put_save(&t, s->number, s->mark);
    return mesh__path(path, s->folder, name, err);
}

/* Look through a folder: the greatest number of a save's files there; those before `first` are removed: later ones are of a save that is under way. -1: the
   folder cannot be read. */
MESH__PRIVATE int64_t mesh__folder_sweep(const char *folder, int64_t first) {
    char path[MESH__PATH_BYTES];
    struct dirent *entry;
    int64_t most = 0, number, mark;
    DIR *d = opendir(folder);
    if (!d) return -1;
    while ((entry = readdir(d)) != NULL) {
        if ((number = mesh__file_number(entry->d_name, &mark)) < 0) continue;
        if (number > most) most = number;
        if (number < first && mesh__path(path, folder, entry->d_name, NULL) == MESH_OK) unlink(path);
    }
    closedir(d);
    return most;
}

/* Has another save, begun in the same moment, files of this one's number? Which is after the other nobody can tell then. */
MESH__PRIVATE mesh_status mesh__number_own(const mesh__save *s, mesh_error *err) {
    struct dirent *entry;
    int64_t mark;
    int shared = 0;
    DIR *d = opendir(s->folder);
    if (!d) return mesh__file_failed(err, "opendir", s->folder);
    while ((entry = readdir(d)) != NULL)
        if (mesh__file_number(entry->d_name, &mark) == (int64_t)s->number && mark != (int64_t)s->mark) shared = 1;
    closedir(d);
    if (!shared) return MESH_OK;
    return mesh__fail(err, MESH_ERR_STATE, -1,
                      "%s: another save into this folder, of the same number %u, is under way; save again",
                      mesh__path_short(s->folder).text, (uint64_t)s->number);
}

MESH__PRIVATE int mesh__saved_after(const void *ctx, int a, int b) {
    const mesh__saved *all = (const mesh__saved *)ctx, *x = &all[a], *y = &all[b];
    size_t wide = mesh_dtype_bytes((mesh_dtype)x->dtype), other = mesh_dtype_bytes((mesh_dtype)y->dtype);
    return x->file != y->file ? x->file > y->file : wide != other ? wide < other : strcmp(x->name, y->name) > 0;
}

/* Give each tensor of a catalog its file and place: by name, wide dtypes first within a file so that each is aligned. Returns how many files. */
MESH__PRIVATE int mesh__catalog_place(mesh__catalog *c, int *order, int64_t file_bytes) {
    int64_t held = 0;
    int i, files = 1; /* of no tensors too: its name is the save's place among others */
    for (i = 0; i < c->n; i++) {
        if (held && c->tensor[i].nbytes > file_bytes - held) files++, held = 0;
        held += c->tensor[i].nbytes;
        c->tensor[i].file = files - 1;
        order[i] = i;
    }
    mesh__sort(order, c->n, mesh__saved_after, c->tensor);
    for (i = 0; i < c->n; i++) {
        mesh__saved *s = &c->tensor[order[i]], *before = i ? &c->tensor[order[i - 1]] : NULL;
        s->begin = before && before->file == s->file ? before->begin + before->nbytes : 0;
    }
    return files;
}

/* What no other save has had: of the time, this process and the folder. */
MESH__PRIVATE uint64_t mesh__mark_make(const mesh__save *s, const struct stat *folder) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return mesh__mix(mesh__mix(mesh__mix((uint64_t)now.tv_sec, (uint64_t)now.tv_nsec), (uint64_t)getpid()),
                     mesh__mix((uint64_t)folder->st_ino ^ (uint64_t)folder->st_dev << 32, (uint64_t)(uintptr_t)s));
}

MESH__PRIVATE mesh_status mesh__mark_put(mesh__save *s, mesh_error *err) {
    char path[MESH__PATH_BYTES];
    mesh_status status = mesh__mark_path(path, s, err);
    int fd;
    if (status != MESH_OK) return status;
    if ((fd = mesh__open(path, O_WRONLY | O_CREAT | O_EXCL)) < 0) return mesh__file_failed(err, "open", path);
    s->marked = 1;
    return close(fd) && errno != EINTR ? mesh__file_failed(err, "close", path) : MESH_OK;
}

MESH__PRIVATE void mesh__mark_remove(mesh__save *s) {
    char path[MESH__PATH_BYTES];
    if (s->marked && mesh__mark_path(path, s, NULL) == MESH_OK) unlink(path);
    s->marked = 0;
}

/* The first rank's, for all: how many files, the save's number and mark, the folder's name; then each file's first bytes, its header with the length
   before it. */
MESH__PRIVATE mesh_status mesh__bundle_make(mesh__save *save, mesh__catalog *c, int64_t file_bytes, mesh_error *err) {
    mesh__bytes *b = &save->bundle;
    const char *folder = save->folder;
    unsigned char head[16] = {0};
    int *order, files, i, begin, tensor = 0;
    int64_t number;
    char path[MESH__PATH_BYTES];
    struct stat s;
    if (mesh__path(path, folder, MESH__SINGLE, err) != MESH_OK) return MESH_ERR_ARGUMENT;
    if ((save->made_folder = !mkdir(folder, 0777)) == 0 && errno != EEXIST)
        return mesh__file_failed(err, "mkdir", folder);
    if (!stat(path, &s))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "there is a %s, which other readers take before an index; remove it, or save to another folder",
            mesh__path_short(path).text);
    if ((number = mesh__folder_sweep(folder, 0)) < 0) return mesh__file_failed(err, "opendir", folder);
    if (stat(folder, &s)) return mesh__file_failed(err, "stat", folder);
    if (number >= (int64_t)UINT32_MAX)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s holds the last of all numbers of saves, ffffffff",
                          mesh__path_short(folder).text);
    if ((order = (int *)mesh_transport_alloc(c->t, ((size_t)c->n + 1) * sizeof *order)) == NULL)
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for %d tensors", c->n);
    files = mesh__catalog_place(c, order, file_bytes > 0 ? file_bytes : INT64_C(1) << 32);
    mesh_transport_free(c->t, order);
    mesh__put32(head, (uint32_t)files);
    save->number = (uint32_t)number + 1;
    save->mark = mesh__mark_make(save, &s);
    mesh__put32(head + 4, save->number);
    mesh__put64(head + 8, save->mark);
    mesh__bytes_add(b, head, sizeof head);
    mesh__bytes_add(b, folder, strlen(folder) + 1);
    for (i = 0; i < files; i++) {
        begin = b->len;
        tensor = mesh__header_write(b, c, i, tensor);
        if (b->len - begin - 8 > MESH__HEADER_MOST)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "a header of %d bytes; at most %d: give smaller file_bytes",
                              b->len - begin - 8, MESH__HEADER_MOST);
    }
    if (b->failed) return mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for headers of %d tensors", c->n);
    return mesh__mark_put(save, err);
}

MESH__PRIVATE mesh_status mesh__text_check(const char *const *text, mesh_error *err) {
    int i, k;
    for (i = 0; text && text[i]; i += 2) {
        if (!text[i + 1]) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "desc.text: key %q has no value", text[i]);
        if (!mesh__is_utf8(text[i]) || !mesh__is_utf8(text[i + 1]))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "desc.text: the key or value at %d is no UTF-8", i);
        for (k = 0; k < i && !mesh__same(text[k], text[i]); k += 2) {}
        if (k < i || mesh__same(text[i], "files") || mesh__same(text[i], "total_size"))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "desc.text: the key %q %s", text[i],
                              k < i ? "stands twice" : "is the index's own; choose another");
    }
    return MESH_OK;
}

/* From the ranks' lists to a bundle on the first rank, and from there to all, where s->names keeps it. */
MESH__PRIVATE mesh_status mesh__lists_agree(mesh_comm *c, mesh__save *s, const char *function, const mesh_named *list,
                                            int n, int64_t file_bytes) {
    mesh__bytes mine = MESH_ZERO, all = MESH_ZERO;
    mesh__catalog joined;
    mesh_object o = MESH_ZERO;
    mesh_error why = MESH_ZERO;
    mesh_status status = MESH_OK, met;
    size_t *sizes = (size_t *)mesh_transport_alloc(s->t, (size_t)c->on.size * sizeof *sizes);
    memset(&joined, 0, sizeof joined);
    joined.t = mine.t = all.t = s->t;
    mesh__list_write(&mine, list, n, s->t->rank);
    if (mine.failed || !sizes)
        status = mesh__fail(&why, MESH_ERR_MEMORY, -1, "no memory for the names of %d tensors", n);
    met = mesh__agree(c, function, status, &why);
    if (met == MESH_OK) met = mesh__lists_gather(c, function, &mine, &all, sizes);
    if (met == MESH_OK && s->first) {
        status = mesh__lists_join(c, &joined, all.p, sizes, &why);
        if (status == MESH_OK) status = mesh__bundle_make(s, &joined, file_bytes, &why);
    }
    if (met == MESH_OK) met = mesh__agree(c, function, status, &why);
    if (met == MESH_OK) {
        o.data = s->first ? s->bundle.p : NULL;
        o.nbytes = s->first ? (size_t)s->bundle.len : 0;
        met = mesh_broadcast_object(c, NULL, &o, 0);
    }
    if (met == MESH_OK) mesh__bytes_add(&s->names, o.data, o.nbytes);
    mesh_object_free(c, &o);
    mesh__catalog_free(&joined);
    mesh_transport_free(s->t, mine.p);
    mesh_transport_free(s->t, all.p);
    mesh_transport_free(s->t, sizes);
    return met;
}

/* ---- // >>a save: from a bundle to what this rank writes ---- */

MESH__PRIVATE char *mesh__bundle_headers(char *bundle) { return bundle + 16 + strlen(bundle + 16) + 1; }

/* Is this rank's folder the first rank's, whatever both are called? Then its mark is there. */
MESH__PRIVATE mesh_status mesh__bundle_folder(const mesh__save *s, const char *name, mesh_error *err) {
    char path[MESH__PATH_BYTES];
    mesh_status status = mesh__mark_path(path, s, err);
    if (status != MESH_OK || !access(path, F_OK)) return status;
    return mesh__fail(
        err, MESH_ERR_ARGUMENT, -1,
        "%s is not the first rank's %s: what that has just made there is not here; give every rank the same "
        "folder, by its whole path",
        mesh__path_short(s->folder).text, mesh__path_short(name).text);
}

/* Read the names' copy of the bundle: the files, their sizes, their tensors. */
MESH__PRIVATE mesh_status mesh__bundle_read(mesh__save *s, mesh_error *err) {
    unsigned char *p = (unsigned char *)s->names.p, *at;
    mesh__catalog *c = &s->catalog;
    mesh_status status = MESH_OK;
    int files, i, k;
    if (s->names.failed) return mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for the names of tensors");
    files = (int)mesh__get32(p);
    s->number = mesh__get32(p + 4);
    s->mark = mesh__get64(p + 8);
    s->file_names = (char *)mesh_transport_alloc(s->t, (size_t)files * MESH__FILE_NAME + 1);
    s->sum = (uint32_t *)mesh_transport_alloc(s->t, ((size_t)files + 1) * sizeof *s->sum);
    if (!s->file_names || !s->sum || !mesh__grow(s->t, (void **)&c->file, &c->files_cap, files, sizeof *c->file))
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for %d files", files);
    memset(s->sum, 0, ((size_t)files + 1) * sizeof *s->sum);
    status = mesh__bundle_folder(s, (const char *)p + 16, err);
    for (i = 0, at = (unsigned char *)mesh__bundle_headers(s->names.p); i < files && status == MESH_OK; i++) {
        mesh__held *f = &c->file[c->nfiles++];
        uint64_t length = mesh__get64(at);
        memset(f, 0, sizeof *f);
        f->name = s->file_names + (size_t)i * MESH__FILE_NAME;
        mesh__file_name(f->name, i, files, s->number, s->mark);
        f->data = f->nbytes = (int64_t)length + 8;
        k = c->n;
        status = mesh__header_read(c, i, (char *)at + 8, (size_t)length, -1, f->name, err);
        for (; k < c->n; k++) f->nbytes += c->tensor[k].nbytes;
        at += 8 + length;
    }
    if (status == MESH_OK && mesh__catalog_sort(c) != -1)
        status = mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for %d tensors", c->n);
    return status;
}

/* What ranks must agree on beyond shape and dtype, as numbers for one reduction each: the least and the greatest of all hashes; how many have the tensor, and,
   below that, how many ranks its mesh has, added up. */
typedef struct mesh__votes {
    uint64_t *low, *high, *holders;
    int32_t *mine; /* where a tensor of the catalog stands in this rank's list, or -1 */
    void *memory;
} mesh__votes;

enum { MESH__VOTES_SHIFT = 40 };

MESH__PRIVATE uint64_t mesh__vote(const mesh_tensor *t) {
    return mesh__spec_hash(mesh_fingerprint(t->layout.on), &t->layout.spec) | 1; /* 0: has it not */
}

MESH__PRIVATE mesh_status mesh__votes_cast(mesh__votes *v, mesh__save *s, const mesh_named *list, int n,
                                           mesh_error *err) {
    size_t count = (size_t)s->catalog.n + 1;
    int i, k;
    v->memory = mesh_transport_alloc(s->t, count * (3 * sizeof(uint64_t) + sizeof(int32_t)));
    if (!v->memory) return mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory to compare %d tensors", s->catalog.n);
    v->low = (uint64_t *)v->memory;
    v->high = v->low + count;
    v->holders = v->high + count;
    v->mine = (int32_t *)(void *)(v->holders + count);
    for (i = 0; i < s->catalog.n; i++) v->low[i] = UINT64_MAX, v->high[i] = 0, v->holders[i] = 0, v->mine[i] = -1;
    for (i = 0; i < n; i++) {
        const mesh_tensor *t = &list[i].tensor;
        const mesh__saved *saved;
        if (mesh_index_of(t->layout.on, s->t->rank) < 0) continue;
        if ((k = mesh__catalog_find(&s->catalog, list[i].name)) < 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%q is not in the list of rank %d, the first of its mesh",
                              list[i].name, mesh_rank_at(t->layout.on, 0));
        saved = &s->catalog.tensor[k];
        if (v->mine[k] >= 0) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%q stands in the list twice", list[i].name);
        if (saved->dtype != (int)t->dtype || mesh__shape_differs(saved, t))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%q is %s here and %s on rank %d, the first of its mesh",
                              list[i].name, mesh__show_shape((int)t->dtype, t->layout.ndim, t->layout.shape).text,
                              mesh__show_shape(saved->dtype, saved->ndim, saved->shape).text,
                              mesh_rank_at(t->layout.on, 0));
        v->mine[k] = i;
        v->holders[k] = UINT64_C(1) << MESH__VOTES_SHIFT | (uint64_t)t->layout.on->size;
        v->low[k] = v->high[k] = mesh__vote(t);
    }
    return MESH_OK;
}

/* The first tensor that lies otherwise on some ranks, or that ranks of its mesh lack; the number of tensors: none. The same on every rank. */
MESH__PRIVATE int mesh__votes_bad(const mesh__votes *v, const mesh__save *s) {
    int k;
    for (k = 0; k < s->catalog.n; k++) {
        uint64_t holders = v->holders[k] >> MESH__VOTES_SHIFT,
                 ranks = v->holders[k] & ((UINT64_C(1) << MESH__VOTES_SHIFT) - 1);
        if (v->low[k] != v->high[k] || holders * holders != ranks) break;
    }
    return k;
}

/* It is told by the rank that differs from the first that has it; or by that one, of the one that lacks it. all: every rank's vote for it. */
MESH__RARE mesh_status mesh__votes_tell(const mesh_comm *c, const mesh__votes *v, const mesh_named *named, int k,
                                        const uint64_t *all, mesh_error *err) {
    const mesh_layout *l = &named->tensor.layout;
    int first = 0, odd = 0, me = mesh_index_of(&c->on, c->transport->rank);
    char spec[100];
    while (!all[first]) first++;
    if (v->low[k] != v->high[k]) {
        while (!all[odd] || all[odd] == all[first]) odd++;
        mesh_spec_format(&l->spec, l->on, spec, sizeof spec);
        if (odd != me) return MESH_OK;
        return mesh__fail(err, MESH_ERR_MISMATCH, c->transport->rank,
                          "%q lies as \"%s\" on the mesh \"%s\" here, and otherwise on rank %d", named->name, spec,
                          mesh__show(l->on).text, mesh_rank_at(&c->on, first));
    }
    if (first != me) return MESH_OK;
    while (odd < l->on->size - 1 && all[mesh_index_of(&c->on, mesh_rank_at(l->on, odd))]) odd++;
    return mesh__fail(err, MESH_ERR_ARGUMENT, mesh_rank_at(l->on, odd),
                      "%q stands in the lists of %u ranks, but its mesh \"%s\" has %d: rank %d has it not", named->name,
                      v->holders[k] >> MESH__VOTES_SHIFT, mesh__show(l->on).text, l->on->size,
                      mesh_rank_at(l->on, odd));
}

/* Every rank calls. What it finds is in *status and *why, for all to agree on; returned is what becomes of the comm. */
MESH__PRIVATE mesh_status mesh__votes_count(mesh_comm *c, const mesh__votes *v, const mesh__save *s,
                                            const mesh_named *list, mesh_status *status, mesh_error *why) {
    int k = mesh__votes_bad(v, s);
    const mesh_named *named = k < s->catalog.n && v->mine[k] >= 0 ? &list[v->mine[k]] : NULL;
    uint64_t *all, vote = named ? mesh__vote(&named->tensor) : 0;
    mesh_status met;
    if (k == s->catalog.n) return MESH_OK;
    if (!(all = (uint64_t *)mesh_transport_alloc(c->transport, (size_t)c->on.size * sizeof *all)))
        return mesh__comm_broken(c, MESH_ERR_MEMORY, c->transport->rank,
                                 "mesh_checkpoint_save: no memory to compare %d ranks", c->on.size);
    met = mesh__host_all_gather(c, NULL, c->on.size, &vote, all, 1, MESH_U64);
    if (met == MESH_OK && named) *status = mesh__votes_tell(c, v, named, k, all, why);
    mesh_transport_free(c->transport, all);
    return met;
}

/* Copy this rank's shares, one after the other, as they are in files. */
MESH__PRIVATE mesh_status mesh__pieces_copy(mesh_comm *c, mesh__save *s, const mesh__votes *v, const mesh_named *list,
                                            mesh_error *err) {
    int64_t total = 0, at = 0;
    int k, n = 0, pass;
    for (pass = 0; pass < 2; pass++) {
        for (k = 0; k < s->catalog.n; k++) {
            const mesh_tensor *t = v->mine[k] < 0 ? NULL : &list[v->mine[k]].tensor;
            mesh__piece share;
            if (!t) continue;
            mesh__piece_of(t, s->t->rank, k, &share);
            if (!share.count) continue;
            share.tensor = k;
            if (!pass) {
                n++, total += (share.count * (int64_t)mesh_dtype_bytes(t->dtype) + 15) & ~INT64_C(15);
                continue;
            }
            share.data = s->data + at;
            at += (share.count * (int64_t)mesh_dtype_bytes(t->dtype) + 15) & ~INT64_C(15);
            if (mesh__part_copy(c, t, &share.box, share.first, share.count, share.data, 0, t->dtype) != MESH_OK)
                return mesh__part_failed(c, list[v->mine[k]].name, err);
            mesh__part_turn(share.data, share.count, t->dtype);
            s->share[s->nshares++] = share;
        }
        if (pass) return MESH_OK;
        s->share = (mesh__piece *)mesh_transport_alloc(s->t, ((size_t)n + 1) * sizeof *s->share);
        s->data = (uint64_t)total < SIZE_MAX ? (char *)mesh_transport_alloc(s->t, (size_t)total + 1) : NULL;
        if (!s->share || !s->data)
            return mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for a share of %l bytes", total);
    }
    return MESH_OK;
}

/* ---- // >>writing: on the thread, which calls nothing of the library ---- */

MESH__PRIVATE int mesh__piece_write(mesh__save *s, const mesh__piece *share, int fd) {
    const mesh__saved *saved = &s->catalog.tensor[share->tensor];
    const mesh__held *file = &s->catalog.file[saved->file];
    mesh__strip w = mesh__strip_of(&share->box, NULL, saved->shape, 1);
    int64_t elem = (int64_t)mesh_dtype_bytes((mesh_dtype)saved->dtype), e, count;
    const char *p = share->data;
    for (e = 0; e < share->count; e += count, p += count * elem) {
        int64_t at = file->data + saved->begin + mesh__strip_at(&w, share->first + e, share->count - e, &count) * elem;
        if (mesh__write_at(fd, p, count * elem, at, &s->pace)) return -1;
        s->sum[saved->file] ^= mesh__crc_place(&s->crc, p, (size_t)(count * elem), file->nbytes - at - count * elem);
    }
    return 0;
}

/* A save that was begun later, and has taken the place of the checkpoint, has removed this one's files. */
MESH__RARE mesh_status mesh__file_gone(mesh_error *err, const char *path) {
    return mesh__fail(
        err, MESH_ERR_STATE, -1,
        "%s is gone: a save into this folder that was begun later is the checkpoint now, or it never was there: "
        "every rank gives the same folder",
        mesh__path_short(path).text);
}

/* Shares are in the order of names, and so of files. */
MESH__PRIVATE void *mesh__save_main(void *ctx) {
    mesh__save *s = (mesh__save *)ctx;
    char path[MESH__PATH_BYTES];
    int i = 0, fd, file, failed;
    while (i < s->nshares && s->status == MESH_OK && !MESH__LOAD(&s->pace.given_up)) {
        file = s->catalog.tensor[s->share[i].tensor].file;
        if ((s->status = mesh__path(path, s->folder, s->catalog.file[file].name, &s->why)) != MESH_OK) break;
        if ((fd = mesh__open(path, O_WRONLY)) < 0) {
            s->status = errno == ENOENT ? mesh__file_gone(&s->why, path) : mesh__file_failed(&s->why, "open", path);
            break;
        }
        for (failed = 0; i < s->nshares && !failed && s->catalog.tensor[s->share[i].tensor].file == file; i++)
            failed = mesh__piece_write(s, &s->share[i], fd);
        if (failed) s->status = mesh__file_failed(&s->why, "pwrite", path);
        file = mesh__sync_close(fd, failed, path, failed ? NULL : &s->why);
        if (!failed) s->status = (mesh_status)file;
        MESH__STORE(&s->pace.moved, s->pace.moved + 1);
    }
    MESH__STORE(&s->ended, 1);
    return NULL;
}

/* The first rank makes the files, each with its header and of its size. */
MESH__PRIVATE mesh_status mesh__files_make(mesh__save *s, mesh_error *err) {
    char path[MESH__PATH_BYTES];
    const char *at = mesh__bundle_headers(s->bundle.p);
    mesh_status status = MESH_OK;
    int i;
    for (i = 0; i < s->catalog.nfiles && status == MESH_OK; i++) {
        const mesh__held *f = &s->catalog.file[i];
        if ((status = mesh__path(path, s->folder, f->name, err)) != MESH_OK) return status;
        status = mesh__file_make(path, O_EXCL, at, f->data, f->nbytes, err);
        s->made = i + 1;
        s->sum[i] = mesh__crc_place(&s->crc, at, (size_t)f->data, f->nbytes - f->data);
        at += f->data;
    }
    return status == MESH_OK ? mesh__number_own(s, err) : status;
}

/* Remove what was made. */
MESH__PRIVATE void mesh__files_unmake(mesh__save *s) {
    char path[MESH__PATH_BYTES];
    mesh__mark_remove(s);
    for (; s->made > 0; s->made--)
        if (mesh__path(path, s->folder, s->catalog.file[s->made - 1].name, NULL) == MESH_OK) unlink(path);
    if (s->made_folder) rmdir(s->folder); /* if nothing else is in it */
}

/* The same of a rank that has no part any more in what makes a save a checkpoint, which nobody can do without it. The first rank may be gone: each removes what that
   has made or may have; of such names are this save's files alone. */
MESH__PRIVATE void mesh__files_unmake_all(mesh__save *s) {
    s->made = s->catalog.nfiles;
    s->marked = s->number > 0; /* its name is known; the first rank's is, before its files' are */
    mesh__files_unmake(s);
}

/* The thread, or where there is none the same here. */
MESH__PRIVATE void mesh__save_launch(mesh__save *s) {
    sigset_t all, before;
    mesh__unsignaled u;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->threaded = pthread_create(&s->thread, NULL, mesh__save_main, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (s->threaded) return;
    mesh__unsignaled_begin(&u);
    mesh__save_main(s);
    mesh__unsignaled_end(&u);
}

/* Are this save's files still there? */
MESH__PRIVATE mesh_status mesh__files_there(const mesh__save *s, mesh_error *err) {
    char path[MESH__PATH_BYTES];
    int i;
    for (i = 0; i < s->catalog.nfiles; i++)
        if (mesh__path(path, s->folder, s->catalog.file[i].name, err) != MESH_OK || access(path, F_OK))
            return mesh__file_gone(err, path);
    return MESH_OK;
}

/* The folder, and where the save has made it its own name in the folder around it, go to the disk. A folder in which one may write and not look around cannot be opened for that. */
MESH__PRIVATE mesh_status mesh__names_sync(const mesh__save *s, mesh_error *err) {
    char around[MESH__PATH_BYTES];
    mesh_status status = mesh__sync_folder(s->folder, err);
    if (status != MESH_OK || !s->made_folder) return status;
    status = mesh__path(around, s->folder, "..", err);
    return status != MESH_OK || access(around, R_OK) ? status : mesh__sync_folder(around, err);
}

/* The last fsync, of the renamed index's name, was refused, as the error says. */
MESH__RARE mesh_status mesh__place_unsure(mesh_error *err) {
    mesh_error why = *err;
    return mesh__fail(err, MESH_ERR_STATE, -1,
                      "the new checkpoint has taken the old one's place, which a loss of power may undo: %s", why.text);
}

/* The new checkpoint takes the old one's place: files are on the disk, as are their names, before the index is, and it before it is renamed. */
MESH__PRIVATE mesh_status mesh__commit_locked(mesh__save *s, mesh_error *err) {
    char path[MESH__PATH_BYTES], aside[MESH__PATH_BYTES];
    mesh__bytes index = MESH_ZERO;
    mesh_status status;
    int i;
    index.t = s->t;
    for (i = 0; i < s->catalog.nfiles; i++)
        s->catalog.file[i].crc = mesh__crc_whole(&s->crc, s->sum[i], s->catalog.file[i].nbytes);
    mesh__index_write(&index, &s->catalog, s->text.p ? s->text.p : "");
    status = mesh__path(path, s->folder, MESH__INDEX, err);
    if (status == MESH_OK) status = mesh__path(aside, s->folder, MESH__INDEX ".new", err);
    if (status == MESH_OK && (index.failed || index.len > MESH__HEADER_MOST))
        status = mesh__fail(err, index.failed ? MESH_ERR_MEMORY : MESH_ERR_ARGUMENT, -1,
                            "an index of %d bytes, at most %d: %s", index.len, MESH__HEADER_MOST,
                            index.failed ? "no memory" : "fewer tensors, or shorter names and text");
    if (status == MESH_OK) status = mesh__files_there(s, err);
    if (status == MESH_OK) status = mesh__names_sync(s, err);
    if (status == MESH_OK) {
        status = mesh__file_make(aside, O_TRUNC, index.p, index.len, index.len, err);
        if (status == MESH_OK && rename(aside, path)) status = mesh__file_failed(err, "rename", path);
        if (status != MESH_OK) unlink(aside);
    }
    mesh_transport_free(s->t, index.p);
    if (status != MESH_OK) return status;
    s->made = s->made_folder = 0;
    if ((status = mesh__sync_folder(s->folder, err)) != MESH_OK) return mesh__place_unsure(err);
    mesh__folder_sweep(s->folder, (int64_t)s->number);
    return status;
}

MESH__PRIVATE mesh_status mesh__commit(mesh__save *s, mesh_error *err) {
    int lock;
    mesh_status status = mesh__folder_lock(s->folder, &lock, err);
    if (status != MESH_OK) return status;
    status = mesh__commit_locked(s, err);
    close(lock);
    return status;
}

/* ---- // >>calls ---- */

/* Ranks have refused the folder, or something else. Did they not find the first rank's mark because it is gone there too, swept by a save that was begun in the same
   moment and is the checkpoint already? Asked after all have looked. */
MESH__RARE mesh_status mesh__mark_swept(mesh_comm *c, const mesh__save *s, const char *function) {
    char path[MESH__PATH_BYTES];
    int32_t gone = s->first && (mesh__mark_path(path, s, NULL) != MESH_OK || access(path, F_OK));
    mesh_status status = mesh__host_broadcast(c, NULL, &gone, 1, MESH_I32, 0);
    if (status != MESH_OK || !gone) return status == MESH_OK ? MESH_ERR_ARGUMENT : status;
    return mesh__fail(
        &c->error, MESH_ERR_STATE, mesh_rank_at(&c->on, 0),
        "%s: %s: this save's mark is gone: another save into this folder, begun in the same moment, is the "
        "checkpoint now; save again",
        function, mesh__path_short(s->folder).text);
}

/* From lists to files that are there, and a thread that fills them. Agreed on by all. */
MESH__PRIVATE mesh_status mesh__save_prepare(mesh_comm *c, mesh__save *s, const char *function, const mesh_named *list,
                                             int n, int64_t file_bytes) {
    mesh__votes v;
    mesh_error why = MESH_ZERO;
    mesh_status status, met = mesh__lists_agree(c, s, function, list, n, file_bytes);
    size_t count;
    if (met != MESH_OK) return met;
    memset(&v, 0, sizeof v);
    status = mesh__bundle_read(s, &why);
    if (status == MESH_OK) status = mesh__votes_cast(&v, s, list, n, &why);
    met = mesh__agree(c, function, status, &why);
    if (met == MESH_ERR_ARGUMENT && !c->failed) met = mesh__mark_swept(c, s, function);
    mesh__mark_remove(s);
    count = (size_t)s->catalog.n;
    if (met == MESH_OK) met = mesh__host_all_reduce(c, v.low, count, MESH_U64, MESH_MIN);
    if (met == MESH_OK) met = mesh__host_all_reduce(c, v.high, count, MESH_U64, MESH_MAX);
    if (met == MESH_OK) met = mesh__host_all_reduce(c, v.holders, count, MESH_U64, MESH_SUM);
    if (met == MESH_OK) met = mesh__votes_count(c, &v, s, list, &status, &why);
    if (met == MESH_OK && status == MESH_OK) status = mesh__pieces_copy(c, s, &v, list, &why);
    mesh_transport_free(s->t, v.memory);
    if (met == MESH_OK) met = mesh__agree(c, function, status, &why);
    mesh__crc_make(&s->crc);
    if (met == MESH_OK && s->first) status = mesh__files_make(s, &why);
    if (met == MESH_OK) met = mesh__agree(c, function, status, &why);
    return met;
}

MESH__PRIVATE mesh_status mesh__save_start_inside(mesh_comm *c, const char *folder, const mesh_named *list, int n,
                                                  const mesh_checkpoint_desc *d, mesh_checkpoint *saving,
                                                  const char *function) {
    mesh_error why = MESH_ZERO;
    mesh__save *s = NULL;
    mesh_status status = mesh__checkpoint_begin(c, function), met;
    if (status != MESH_OK) return status;
    status = mesh__list_check(c, folder, list, n, &why);
    if (status == MESH_OK && !saving) status = mesh__fail(&why, MESH_ERR_ARGUMENT, -1, "the mesh_checkpoint is NULL");
    if (status == MESH_OK && d && d->file_bytes < 0)
        status = mesh__fail(&why, MESH_ERR_ARGUMENT, -1, "desc.file_bytes is %l; 0 stands for 4 GiB", d->file_bytes);
    if (status == MESH_OK && d) status = mesh__text_check(d->text, &why);
    if (status == MESH_OK) {
        if ((s = (mesh__save *)mesh_transport_alloc(c->transport, sizeof *s)) != NULL) {
            memset(s, 0, sizeof *s);
            s->comm = c->id;
            s->t = s->bundle.t = s->names.t = s->catalog.t = s->text.t = c->transport;
            s->first = mesh_index_of(&c->on, c->transport->rank) == 0;
            s->folder = (char *)mesh_transport_alloc(s->t, strlen(folder) + 1);
            if (d) mesh__text_write(&s->text, d->text);
        }
        if (!s || !s->folder || s->text.failed)
            status = mesh__fail(&why, MESH_ERR_MEMORY, -1, "no memory");
        else
            memcpy(s->folder, folder, strlen(folder) + 1);
    }
    met = mesh__agree(c, function, status, &why);
    if (met == MESH_OK) met = mesh__save_prepare(c, s, function, list, n, d ? d->file_bytes : 0);
    if (met != MESH_OK) {
        if (s && c->failed)
            mesh__files_unmake_all(s);
        else if (s)
            mesh__files_unmake(s);
        mesh__save_free(s);
        return met;
    }
    saving->comm = c;
    saving->impl = s;
    mesh__save_launch(s);
    return MESH_OK;
}

/* Has the thread ended, or does it within so many ns? */
MESH__PRIVATE int mesh__save_ended(const mesh__save *s, int64_t within) {
    struct timespec nap;
    int64_t slept = 0, ns = 50000;
    for (; !MESH__LOAD(&s->ended) && slept < within; slept += ns, ns = ns < 5000000 ? 2 * ns : ns) {
        nap.tv_sec = 0, nap.tv_nsec = (long)ns;
        nanosleep(&nap, NULL);
    }
    return MESH__LOAD(&s->ended);
}

/* Until all ranks have written, the slowest disk's too: they say so again and again, so that no call of theirs waits for a disk and comes to its deadline.
   TIMEOUT: a disk has taken nothing for MESH__DISK_NS. Do all ranks wait for the same save? */
MESH__PRIVATE mesh_status mesh__save_meet(mesh_comm *c, const mesh__save *s, const char *function) {
    mesh__engine *e = mesh__impl(c)->engine;
    int64_t within = mesh__impl(c)->timeout / 8, since = mesh__now(e);
    uint32_t moved = MESH__LOAD(&s->pace.moved);
    uint64_t said[3];
    mesh_status met;
    if (within > INT64_C(1000000000)) within = INT64_C(1000000000);
    do {
        int ended = mesh__save_ended(s, within);
        if (MESH__LOAD(&s->pace.moved) != moved) moved = MESH__LOAD(&s->pace.moved), since = mesh__now(e);
        /* Of all that still write, the one that has waited for longest for its disk: s, and its rank + 1. 0: none does. */
        said[0] = ended ? 0 : (uint64_t)((mesh__now(e) - since) / 1000000000) << 32 | (uint64_t)(e->t->rank + 1);
        said[1] = s->mark;
        said[2] = ~s->mark;
        met = mesh__host_all_reduce(c, said, 3, MESH_U64, MESH_MAX);
        if (met == MESH_OK && said[0] >> 32 >= (uint64_t)(MESH__DISK_NS / 1000000000)) {
            int rank = (int)(uint32_t)(said[0] - 1);
            return mesh__fail(&c->error, MESH_ERR_TIMEOUT, rank,
                              "%s: the disk of rank %d has taken nothing of %s for %u s: look after it, and save again",
                              function, rank, mesh__path_short(s->folder).text, said[0] >> 32);
        }
        if (met == MESH_OK && said[1] != ~said[2]) {
            int rank;
            met = mesh__alike_not(c, NULL, mesh__impl(c)->group[0], s->mark, &rank);
            if (met != MESH_OK) return met;
            return mesh__fail(
                &c->error, MESH_ERR_MISMATCH, rank,
                "%s: rank %d waits for another save than rank %d, this one for number %u into %s; wait for them in "
                "one order on all ranks",
                function, rank, mesh_rank_at(&c->on, 0), (uint64_t)s->number, mesh__path_short(s->folder).text);
        }
    } while (met == MESH_OK && said[0]);
    return met;
}

/* The thread's end. 0: its disk holds it; it is left alone, with the save's memory. */
MESH__PRIVATE int mesh__save_join(mesh__save *s, int64_t within) {
    if (!s->threaded) return 1;
    if (!mesh__save_ended(s, within)) return pthread_detach(s->thread), 0;
    pthread_join(s->thread, NULL);
    return 1;
}

/* Is it the comm that the save was begun on? One that was opened in its place has other ranks, or other things to do: it is asked nothing. */
MESH__PRIVATE int mesh__save_is_of(const mesh_comm *c, const mesh__save *s) {
    return c->impl && c->id == s->comm && c->transport == s->t;
}

MESH__PRIVATE mesh_status mesh__save_comm(mesh_comm *c, const mesh__save *s, const char *function) {
    if (!c->impl || c->failed || mesh__save_is_of(c, s)) return mesh__checkpoint_begin(c, function);
    return mesh__fail(&c->error, MESH_ERR_STATE, -1,
                      "%s: the comm that this save was begun on was closed, and another is open in its place: it makes "
                      "no checkpoint; save again, and wait before mesh_comm_close",
                      function);
}

/* Until the thread has ended. Where the comm is no more, what it wrote is removed. */
MESH__PRIVATE mesh_status mesh__save_wait_inside(mesh_comm *c, mesh__save *s, const char *function) {
    mesh_error why = MESH_ZERO;
    mesh_status status = mesh__save_comm(c, s, function);
    int files = s->catalog.nfiles, stuck;
    if (status == MESH_OK) status = mesh__save_meet(c, s, function);
    if (status != MESH_OK) MESH__STORE(&s->pace.given_up, 1);
    stuck = !mesh__save_join(
        s, status == MESH_ERR_TIMEOUT && !c->failed && c->error.rank == s->t->rank ? 0 : MESH__DISK_NS);
    if (status == MESH_OK) status = mesh__agree(c, function, s->status, &s->why);
    if (status != MESH_OK && (c->failed || !mesh__save_is_of(c, s))) mesh__files_unmake_all(s);
    if (status == MESH_OK) status = mesh__host_xor(c, s->sum, (size_t)files);
    if (status == MESH_OK) {
        mesh_status committed = s->first ? mesh__commit(s, &why) : MESH_OK;
        status = mesh__agree(c, function, committed, &why);
    }
    mesh__files_unmake(s);
    if (!stuck) mesh__save_free(s);
    return status;
}

MESH_API mesh_status mesh_checkpoint_save_start(mesh_comm *c, const char *folder, const mesh_named *list, int n,
                                                const mesh_checkpoint_desc *d, mesh_checkpoint *s) {
    if (s) s->comm = NULL, s->impl = NULL;
    MESH__ALONE_COMPOSED(c, "checkpoint_save_start",
                         mesh__save_start_inside(c, folder, list, n, d, s, "mesh_checkpoint_save_start"));
}

MESH__PRIVATE mesh_status mesh__save_end(mesh_comm *c, mesh__save *s) {
    MESH__ALONE_COMPOSED(c, "checkpoint_wait", mesh__save_wait_inside(c, s, "mesh_checkpoint_wait"));
}

MESH_API mesh_status mesh_checkpoint_wait(mesh_checkpoint *s) {
    mesh_checkpoint was;
    if (!s || !s->impl) return MESH_ERR_STATE;
    was = *s;
    s->comm = NULL;
    s->impl = NULL;
    return mesh__save_end(was.comm, (mesh__save *)was.impl);
}

MESH__PRIVATE mesh_status mesh__save_whole(mesh_comm *c, const char *folder, const mesh_named *list, int n,
                                           const mesh_checkpoint_desc *d) {
    mesh_checkpoint s;
    mesh_status status = mesh__save_start_inside(c, folder, list, n, d, &s, "mesh_checkpoint_save");
    return status == MESH_OK ? mesh__save_wait_inside(c, (mesh__save *)s.impl, "mesh_checkpoint_save") : status;
}

MESH_API mesh_status mesh_checkpoint_save(mesh_comm *c, const char *folder, const mesh_named *list, int n,
                                          const mesh_checkpoint_desc *d) {
    MESH__ALONE_COMPOSED(c, MESH__CALLER, mesh__save_whole(c, folder, list, n, d));
}
#endif /* MESH_SAVE_IMPLEMENTED */
