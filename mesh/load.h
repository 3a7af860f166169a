/* mesh/load.h - loading: the first rank reads what the files say, all check it, each reads its parts. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh_checkpoint.h, which says what it does.

DO THIS
    Nothing: mesh_checkpoint.h includes it.
*/
#if !defined(MESH_LOAD_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_LOAD_IMPLEMENTED))
#include "../mesh_checkpoint.h"
#define MESH_LOAD_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_LOAD_IMPLEMENTED)
#define MESH_LOAD_IMPLEMENTED

typedef struct mesh__load {
    mesh_transport *t;
    mesh_comm *comm;
    const char *folder;
    mesh__bytes index, text; /* the first rank's index; what all get: its folder, then see mesh__reads_add */
    mesh__catalog catalog;
    char *buffer;
    mesh__crc crc;
} mesh__load;

/* ---- // >>the first rank: index and headers ---- */

/* The whole index, of 100 MB at most. *there: 0 if it is not there, and OK. */
MESH__PRIVATE mesh_status mesh__index_load(mesh__bytes *b, const char *folder, int *there, mesh_error *err) {
    char path[MESH__PATH_BYTES];
    int64_t nbytes;
    struct stat s;
    mesh_status status = mesh__path(path, folder, MESH__INDEX, err);
    int fd;
    *there = 1;
    if (status != MESH_OK) return status;
    if (stat(path, &s)) {
        if (errno == ENOENT) return *there = 0, MESH_OK;
        if (errno == ENOTDIR && !stat(folder, &s))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s is no folder", mesh__path_short(folder).text);
    }
    if ((fd = mesh__file_open(path, &nbytes, err)) < 0) return err ? (mesh_status)err->status : MESH_ERR_STATE;
    if (nbytes > MESH__HEADER_MOST)
        status = mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s has %l bytes; at most %d", mesh__path_short(path).text,
                            nbytes, MESH__HEADER_MOST);
    else
        status = mesh__file_read(b, fd, path, 0, nbytes, err);
    close(fd);
    return status;
}

/* Append a file of safetensors to what all get: of its name and header how long they are, its size (8 bytes each), whether it has a checksum,
   and it (4 each); its name with its end, its header. */
MESH__PRIVATE mesh_status mesh__reads_add(mesh__load *l, const mesh__held *f, mesh_error *err) {
    char path[MESH__PATH_BYTES];
    unsigned char head[32] = {0}, length[8] = {0};
    int64_t nbytes = 0;
    uint64_t n;
    mesh_status status = mesh__path(path, l->folder, f->name, err);
    int fd = status == MESH_OK ? mesh__file_open(path, &nbytes, err) : -1;
    if (fd < 0) return (mesh_status)err->status;
    if (f->nbytes >= 0 && f->nbytes != nbytes)
        status = mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s has %l bytes, but the index says %l (torn, or another)",
                            mesh__path_short(path).text, nbytes, f->nbytes);
    else if (nbytes >= 8 && mesh__read_at(fd, length, 8, 0))
        status = mesh__file_failed(err, "pread", path);
    n = mesh__get64(length);
    if (status == MESH_OK && (nbytes < 8 || n > MESH__HEADER_MOST || (int64_t)n > nbytes - 8))
        status = mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                            "%s: a header of %u bytes in a file of %l; at most %d (torn, or no safetensors)",
                            mesh__path_short(path).text, n, nbytes, MESH__HEADER_MOST);
    if (status == MESH_OK) {
        mesh__put64(head, (uint64_t)strlen(f->name) + 1);
        mesh__put64(head + 8, n);
        mesh__put64(head + 16, (uint64_t)nbytes);
        mesh__put32(head + 24, (uint32_t)f->has_crc);
        mesh__put32(head + 28, f->crc);
        mesh__bytes_add(&l->text, head, sizeof head);
        mesh__bytes_add(&l->text, f->name, strlen(f->name) + 1);
        status = mesh__file_read(&l->text, fd, path, 8, (int64_t)n, err);
    }
    close(fd);
    return status;
}

/* The files of a folder: those of its index, or the one without. `named`: the index's tensors, each with its file. */
MESH__PRIVATE mesh_status mesh__folder_read(mesh__load *l, mesh__catalog *named, mesh_error *err) {
    static char single[] = MESH__SINGLE;
    int there, i;
    mesh_status status = mesh__index_load(&l->index, l->folder, &there, err);
    if (status != MESH_OK) return status;
    if (there) {
        mesh_error why;
        status = mesh__index_read(named, l->index.p, (size_t)l->index.len, &why);
        if (status != MESH_OK) return mesh__fail(err, status, -1, "%s/%s", mesh__path_short(l->folder).text, why.text);
    } else {
        struct stat s;
        char path[MESH__PATH_BYTES];
        if ((status = mesh__path(path, l->folder, MESH__SINGLE, err)) != MESH_OK) return status;
        if (stat(path, &s))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%s holds no checkpoint: neither %s nor %s (%s)",
                              mesh__path_short(l->folder).text, MESH__INDEX, MESH__SINGLE, strerror(errno));
        if (!mesh__file_called(named, single)) status = mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for a file");
    }
    for (i = 0; i < named->nfiles && status == MESH_OK; i++) status = mesh__reads_add(l, &named->file[i], err);
    return status;
}

/* ---- // >>all ranks: the catalog ---- */

MESH__PRIVATE mesh_status mesh__reads_parse(mesh__load *l, mesh_error *err) {
    mesh__catalog *c = &l->catalog;
    char *end = l->text.p + l->text.len, *p = l->text.p + strlen(l->text.p) + 1;
    mesh_status status = MESH_OK;
    int twice;
    while (p < end && status == MESH_OK) {
        const unsigned char *head = (const unsigned char *)p;
        uint64_t name = mesh__get64(head), header = mesh__get64(head + 8);
        mesh__held *f;
        if (!mesh__grow(c->t, (void **)&c->file, &c->files_cap, c->nfiles + 1, sizeof *c->file))
            return mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for %d files", c->nfiles + 1);
        f = &c->file[c->nfiles++];
        f->nbytes = (int64_t)mesh__get64(head + 16);
        f->has_crc = (int)mesh__get32(head + 24);
        f->crc = mesh__get32(head + 28);
        f->name = p + 32;
        f->data = 8 + (int64_t)header;
        p += 32 + name;
        status = mesh__header_read(c, c->nfiles - 1, p, (size_t)header, f->nbytes - f->data, f->name, err);
        p += header;
    }
    if (status != MESH_OK) return status;
    if ((twice = mesh__catalog_sort(c)) == -2)
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for %d tensors", c->n);
    if (twice > 0)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "the tensor %q is in %s and %s%s", c->tensor[twice].name,
                          c->file[c->tensor[twice - 1].file].name,
                          c->tensor[twice - 1].file == c->tensor[twice].file ? "once more in " : "in ",
                          c->file[c->tensor[twice].file].name);
    return MESH_OK;
}

/* The first rank's: are the index's tensors in the files that it says? */
MESH__PRIVATE mesh_status mesh__index_holds(const mesh__load *l, const mesh__catalog *named, mesh_error *err) {
    int i;
    for (i = 0; i < named->n; i++) {
        const char *file = named->file[named->tensor[i].file].name;
        int k = mesh__catalog_find(&l->catalog, named->tensor[i].name);
        if (k < 0 || !mesh__same(l->catalog.file[l->catalog.tensor[k].file].name, file))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "the index says that %q is in %s, which lacks it",
                              named->tensor[i].name, file);
    }
    return MESH_OK;
}

/* A rank that gives another name of a folder than the first: does that one hold the same? */
MESH__PRIVATE mesh_status mesh__folder_same(mesh__load *l, mesh_error *err) {
    size_t name = strlen(l->text.p) + 1;
    mesh__load other = *l;
    mesh__catalog named;
    mesh_status status;
    if (mesh__same(l->text.p, l->folder)) return MESH_OK;
    memset(&other.index, 0, sizeof other.index);
    memset(&other.text, 0, sizeof other.text);
    memset(&named, 0, sizeof named);
    other.index.t = other.text.t = named.t = l->t;
    status = mesh__folder_read(&other, &named, err);
    if (status == MESH_OK && other.text.failed) status = mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for headers");
    if (status == MESH_OK && ((size_t)other.text.len != (size_t)l->text.len - name ||
                              memcmp(other.text.p, l->text.p + name, (size_t)other.text.len)))
        status = mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                            "%s holds another checkpoint than rank %d's %s; give every rank the same folder",
                            mesh__path_short(l->folder).text, mesh_rank_at(&l->comm->on, 0),
                            mesh__path_short(l->text.p).text);
    mesh_transport_free(l->t, other.index.p);
    mesh_transport_free(l->t, other.text.p);
    mesh__catalog_free(&named);
    return status;
}

/* Read on the first rank, read through on all. */
MESH__PRIVATE mesh_status mesh__load_open(mesh__load *l, const char *function) {
    mesh_comm *c = l->comm;
    mesh__catalog named;
    mesh_object o = MESH_ZERO;
    mesh_error why = MESH_ZERO;
    mesh_status status = MESH_OK, met;
    int first = mesh_index_of(&c->on, c->transport->rank) == 0;
    memset(&named, 0, sizeof named);
    named.t = l->t;
    if (first) mesh__bytes_add(&l->text, l->folder, strlen(l->folder) + 1);
    if (first) status = mesh__folder_read(l, &named, &why);
    if (status == MESH_OK && l->text.failed) status = mesh__fail(&why, MESH_ERR_MEMORY, -1, "no memory for headers");
    met = mesh__agree(c, function, status, &why);
    if (met == MESH_OK) {
        o.data = first ? l->text.p : NULL;
        o.nbytes = first ? (size_t)l->text.len : 0;
        met = mesh_broadcast_object(c, NULL, &o, 0);
    }
    if (met == MESH_OK) {
        if (!first) mesh__bytes_add(&l->text, o.data, o.nbytes);
        status = l->text.failed ? mesh__fail(&why, MESH_ERR_MEMORY, -1, "no memory for headers")
                                : mesh__folder_same(l, &why);
        if (status == MESH_OK) status = mesh__reads_parse(l, &why);
        if (status == MESH_OK && first) status = mesh__index_holds(l, &named, &why);
        met = mesh__agree(c, function, status, &why);
    }
    mesh_object_free(c, &o);
    mesh__catalog_free(&named);
    return met;
}

/* ---- // >>checks ---- */

/* Does the catalog have what this rank wants? */
MESH__PRIVATE mesh_status mesh__wanted_check(const mesh__load *l, const mesh_named *list, int n,
                                             const mesh_checkpoint_desc *d, mesh_error *err) {
    int i, k, lacks = 0;
    char names[200];
    mesh__text t = mesh__text_on(names, sizeof names);
    for (i = 0; i < n; i++) {
        const mesh_tensor *to = &list[i].tensor;
        const mesh__saved *s;
        if ((k = mesh__catalog_find(&l->catalog, list[i].name)) < 0) {
            if (++lacks <= 3) mesh__put(&t, "%s%q", lacks > 1 ? ", " : "", list[i].name);
            continue;
        }
        s = &l->catalog.tensor[k];
        if (s->dtype < 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%q in %s is of a dtype that mesh.h has not, or of more than %d dims", s->name,
                              l->catalog.file[s->file].name, MESH_MAX_DIMS);
        if (mesh__shape_differs(s, to) || (s->dtype != (int)to->dtype && !(d && d->convert)))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%q is %s in %s, and here %s%s", s->name,
                              mesh__show_shape(s->dtype, s->ndim, s->shape).text, l->catalog.file[s->file].name,
                              mesh__show_shape((int)to->dtype, to->layout.ndim, to->layout.shape).text,
                              mesh__shape_differs(s, to) || !mesh__converts((mesh_dtype)s->dtype) ||
                                      !mesh__converts(to->dtype)
                                  ? ""
                                  : "; desc.convert makes floats of floats");
        if (s->dtype != (int)to->dtype && !(mesh__converts((mesh_dtype)s->dtype) && mesh__converts(to->dtype)))
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%q is %s in %s, of which no %s is made: f16, bf16, f32 and f64 are converted", s->name,
                              mesh_dtype_name((mesh_dtype)s->dtype), l->catalog.file[s->file].name,
                              mesh_dtype_name(to->dtype));
    }
    if (!lacks || (d && d->partial)) return MESH_OK;
    return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                      "%s lacks %d of %d tensors: %s%s; desc.partial leaves them as they are",
                      mesh__path_short(l->folder).text, lacks, n, names, lacks > 3 ? ", ..." : "");
}

/* A file of the first rank's, as this one finds it. Returns the descriptor, or -1. */
MESH__PRIVATE int mesh__held_open(const mesh__load *l, const mesh__held *f, char path[MESH__PATH_BYTES],
                                  mesh_error *err) {
    int64_t nbytes;
    int fd;
    if (mesh__path(path, l->folder, f->name, err) != MESH_OK) return -1;
    if (access(path, F_OK) && errno == ENOENT) {
        mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                   "there is no %s here, and rank %d has it: another folder of that name, or it was removed",
                   mesh__path_short(path).text, mesh_rank_at(&l->comm->on, 0));
        return -1;
    }
    if ((fd = mesh__file_open(path, &nbytes, err)) < 0 || nbytes == f->nbytes) return fd;
    close(fd);
    mesh__fail(err, MESH_ERR_ARGUMENT, -1,
               "%s has %l bytes here, and %l on rank %d: another folder of that name, or it is being written",
               mesh__path_short(path).text, nbytes, f->nbytes, mesh_rank_at(&l->comm->on, 0));
    return -1;
}

/* This rank's part of the bytes of one file: the summand of their checksum. */
MESH__PRIVATE mesh_status mesh__file_sum(mesh__load *l, const mesh__held *f, uint32_t *sum, mesh_error *err) {
    char path[MESH__PATH_BYTES];
    int64_t n = l->comm->on.size, k = mesh_index_of(&l->comm->on, l->t->rank), now = 0,
            at = f->nbytes / n * k + (k < f->nbytes % n ? k : f->nbytes % n),
            end = at + f->nbytes / n + (k < f->nbytes % n);
    mesh_status status = MESH_OK;
    int fd;
    if (at == end) return status;
    if ((fd = mesh__held_open(l, f, path, err)) < 0) return (mesh_status)err->status;
    for (; at < end && status == MESH_OK; at += now) {
        now = end - at < MESH__IO_BYTES ? end - at : (int64_t)MESH__IO_BYTES;
        if (mesh__read_at(fd, l->buffer, now, at)) status = mesh__file_failed(err, "pread", path);
        if (status == MESH_OK) *sum ^= mesh__crc_place(&l->crc, l->buffer, (size_t)now, f->nbytes - at - now);
    }
    close(fd);
    return status;
}

/* The checksum that a file has by its index, of which this rank's part of the bytes is read. One that a save put there has one. */
MESH__PRIVATE mesh_status mesh__sum_part(mesh__load *l, const mesh__held *f, uint32_t *sum, mesh_error *err) {
    int64_t mark;
    *sum = 0;
    if (f->has_crc) return mesh__file_sum(l, f, sum, err);
    if (mesh__file_number(f->name, &mark) < 0) return MESH_OK;
    return mesh__fail(
        err, MESH_ERR_ARGUMENT, -1,
        "%s/%s is damaged: it has no checksum of %s, which a save put there; desc.unchecked loads without",
        mesh__path_short(l->folder).text, MESH__INDEX, f->name);
}

/* All files that have a checksum, each byte read by one rank. */
MESH__PRIVATE mesh_status mesh__sums_check(mesh__load *l, const char *function) {
    int i, files = l->catalog.nfiles;
    mesh_error why = MESH_ZERO;
    mesh_status status = MESH_OK, met;
    uint32_t *sum = (uint32_t *)mesh_transport_alloc(l->t, ((size_t)files + 1) * sizeof *sum);
    if (!sum) status = mesh__fail(&why, MESH_ERR_MEMORY, -1, "no memory for %d checksums", files);
    for (i = 0; i < files && status == MESH_OK; i++) status = mesh__sum_part(l, &l->catalog.file[i], &sum[i], &why);
    met = mesh__agree(l->comm, function, status, &why);
    if (met == MESH_OK) met = mesh__host_xor(l->comm, sum, (size_t)files);
    for (i = 0; i < files && met == MESH_OK && status == MESH_OK; i++) {
        const mesh__held *f = &l->catalog.file[i];
        uint32_t is = f->has_crc ? mesh__crc_whole(&l->crc, sum[i], f->nbytes) : f->crc;
        if (is != f->crc)
            status = mesh__fail(&why, MESH_ERR_ARGUMENT, -1,
                                "%s/%s has changed since it was written: its CRC-32C is %x, the index says %x "
                                "(or some ranks have another folder of that name)",
                                mesh__path_short(l->folder).text, f->name, (uint64_t)is, (uint64_t)f->crc);
    }
    mesh_transport_free(l->t, sum);
    return met == MESH_OK ? mesh__agree(l->comm, function, status, &why) : met;
}

/* ---- // >>reading ---- */

/* This rank's part of a tensor, a buffer of its elements at a time, from a file that is open. */
MESH__PRIVATE mesh_status mesh__part_read(mesh__load *l, const mesh_named *named, const mesh__saved *s, int fd,
                                          const char *path, mesh_error *err) {
    const mesh_tensor *t = &named->tensor;
    mesh_box box;
    int64_t total = mesh_layout_box(&t->layout, l->t->rank, &box), first, n, e, count,
            elem = (int64_t)mesh_dtype_bytes((mesh_dtype)s->dtype);
    mesh__strip w = mesh__strip_of(&box, NULL, s->shape, 1);
    for (first = 0; first < total; first += n) {
        n = MESH__IO_BYTES / elem;
        if (n > total - first) n = total - first;
        for (e = 0; e < n; e += count) {
            int64_t at = mesh__strip_at(&w, first + e, n - e, &count) * elem;
            if (mesh__read_at(fd, l->buffer + e * elem, count * elem, l->catalog.file[s->file].data + s->begin + at))
                return mesh__file_failed(err, "pread", path);
        }
        mesh__part_turn(l->buffer, n, (mesh_dtype)s->dtype);
        if (mesh__part_copy(l->comm, t, &box, first, n, l->buffer, 1, (mesh_dtype)s->dtype) != MESH_OK)
            return mesh__part_failed(l->comm, named->name, err);
    }
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__parts_read(mesh__load *l, const mesh_named *list, int n, mesh_error *err) {
    char path[MESH__PATH_BYTES];
    mesh_status status = MESH_OK;
    int i, k, fd = -1, open_file = -1;
    for (i = 0; i < n && status == MESH_OK; i++) {
        const mesh__saved *s;
        if ((k = mesh__catalog_find(&l->catalog, list[i].name)) < 0 ||
            mesh_tensor_count(&list[i].tensor, l->t->rank) <= 0)
            continue;
        s = &l->catalog.tensor[k];
        if (s->file != open_file) {
            if (fd >= 0) close(fd);
            fd = -1, open_file = s->file;
            if ((fd = mesh__held_open(l, &l->catalog.file[s->file], path, err)) < 0) return (mesh_status)err->status;
        }
        status = mesh__part_read(l, &list[i], s, fd, path, err);
    }
    if (fd >= 0) close(fd);
    return status;
}

/* ---- // >>calls ---- */

MESH__PRIVATE void mesh__load_close(mesh__load *l) {
    mesh_transport_free(l->t, l->index.p);
    mesh_transport_free(l->t, l->text.p);
    mesh_transport_free(l->t, l->buffer);
    mesh__catalog_free(&l->catalog);
    mesh_transport_free(l->t, l);
}

MESH__PRIVATE mesh__load *mesh__load_of(mesh_comm *c, const char *folder) {
    mesh__load *l = (mesh__load *)mesh_transport_alloc(c->transport, sizeof *l);
    if (!l) return NULL;
    memset(l, 0, sizeof *l);
    l->t = l->index.t = l->text.t = l->catalog.t = c->transport;
    l->comm = c;
    l->folder = folder;
    l->buffer = (char *)mesh_transport_alloc(l->t, MESH__IO_BYTES);
    mesh__crc_make(&l->crc);
    if (l->buffer) return l;
    mesh__load_close(l);
    return NULL;
}

MESH__PRIVATE mesh_status mesh__load_inside(mesh_comm *c, const char *folder, const mesh_named *list, int n,
                                            const mesh_checkpoint_desc *d) {
    static const char function[] = "mesh_checkpoint_load";
    mesh__load *l = NULL;
    mesh_error why = MESH_ZERO;
    mesh_status status = mesh__checkpoint_begin(c, function), met;
    int32_t checks;
    if (status != MESH_OK) return status;
    status = mesh__list_check(c, folder, list, n, &why);
    if (status == MESH_OK && (l = mesh__load_of(c, folder)) == NULL)
        status = mesh__fail(&why, MESH_ERR_MEMORY, -1, "no memory for a buffer of %d bytes", MESH__IO_BYTES);
    met = mesh__agree(c, function, status, &why);
    checks = !d || !d->unchecked;
    if (met == MESH_OK) met = mesh__host_broadcast(c, NULL, &checks, 1, MESH_I32, 0);
    if (met == MESH_OK) met = mesh__load_open(l, function);
    if (met == MESH_OK) met = mesh__agree(c, function, mesh__wanted_check(l, list, n, d, &why), &why);
    if (met == MESH_OK && checks) met = mesh__sums_check(l, function);
    if (met == MESH_OK) met = mesh__agree(c, function, mesh__parts_read(l, list, n, &why), &why);
    if (l) mesh__load_close(l);
    return met;
}

MESH_API mesh_status mesh_checkpoint_load(mesh_comm *c, const char *folder, const mesh_named *list, int n,
                                          const mesh_checkpoint_desc *d) {
    MESH__ALONE_COMPOSED(c, MESH__CALLER, mesh__load_inside(c, folder, list, n, d));
}

/* The first rank's: a value of the index's metadata, or of the single file's. *found NULL: none. It stays in l's memory. */
MESH__PRIVATE mesh_status mesh__text_find(mesh__load *l, const char *key, const char **found, mesh_error *err) {
    mesh__catalog named;
    mesh__json j;
    int first = 1, there;
    char *name;
    const char *what = MESH__INDEX, *holder = "metadata";
    mesh_status status = mesh__index_load(&l->index, l->folder, &there, err);
    *found = NULL;
    if (status != MESH_OK) return status;
    if (there) {
        j = mesh__json_of(l->index.p, (size_t)l->index.len);
    } else {
        memset(&named, 0, sizeof named);
        named.t = l->t;
        status = mesh__folder_read(l, &named, err);
        mesh__catalog_free(&named);
        if (status != MESH_OK) return status;
        if (l->text.failed) return mesh__fail(err, MESH_ERR_MEMORY, -1, "no memory for a header");
        what = MESH__SINGLE, holder = "__metadata__";
        j = mesh__json_of(l->text.p + 32 + sizeof MESH__SINGLE, (size_t)l->text.len - 32 - sizeof MESH__SINGLE);
    }
    mesh__json_take(&j, '{', "expected an object");
    while (mesh__json_more(&j, '}', &first) && (name = mesh__json_string(&j)) != NULL) {
        mesh__json_take(&j, ':', "expected a colon");
        if (mesh__same(name, holder) && mesh__json_peek(&j) == '{')
            *found = mesh__metadata_read(NULL, &j, key);
        else
            mesh__json_skip(&j);
    }
    return mesh__json_end(&j, what, err);
}

MESH__PRIVATE mesh_status mesh__text_inside(mesh_comm *c, const char *folder, const char *key, char *buf, size_t cap,
                                            int64_t *length) {
    static const char function[] = "mesh_checkpoint_text";
    mesh__load *l = NULL;
    mesh_object o = MESH_ZERO;
    mesh_error why = MESH_ZERO;
    const char *found = NULL;
    mesh_status status = mesh__checkpoint_begin(c, function), met;
    int first;
    if (status != MESH_OK) return status;
    first = mesh_index_of(&c->on, c->transport->rank) == 0;
    if (!folder || !*folder || !key || !length || (cap && !buf))
        status = mesh__fail(&why, MESH_ERR_ARGUMENT, -1, "%s is NULL%s",
                            !folder || !*folder ? "the folder"
                            : !key              ? "the key"
                            : !length           ? "the length, to be written,"
                                                : "buf",
                            folder && !*folder ? ", or \"\"" : "");
    if (status == MESH_OK && (l = mesh__load_of(c, folder)) == NULL)
        status = mesh__fail(&why, MESH_ERR_MEMORY, -1, "no memory");
    if (status == MESH_OK && first) status = mesh__text_find(l, key, &found, &why);
    met = mesh__agree(c, function, status, &why);
    if (met == MESH_OK) { /* with its end; nothing: there is none */
        o.data = (void *)(uintptr_t)found;
        o.nbytes = found ? strlen(found) + 1 : 0;
        met = mesh_broadcast_object(c, NULL, &o, 0);
    }
    if (met == MESH_OK) {
        size_t n = o.nbytes ? o.nbytes - 1 : 0, fits = cap && n > cap - 1 ? cap - 1 : n;
        *length = o.nbytes ? (int64_t)n : -1;
        if (cap && fits) memcpy(buf, o.data, fits);
        if (cap) buf[fits] = 0;
    }
    mesh_object_free(c, &o);
    if (l) mesh__load_close(l);
    return met;
}

MESH_API mesh_status mesh_checkpoint_text(mesh_comm *c, const char *folder, const char *key, char *buf, size_t cap,
                                          int64_t *length) {
    MESH__ALONE_COMPOSED(c, MESH__CALLER, mesh__text_inside(c, folder, key, buf, cap, length));
}
#endif /* MESH_LOAD_IMPLEMENTED */
