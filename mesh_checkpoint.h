/* mesh_checkpoint.h - named tensors as safetensors files, written by all ranks, read into any layout on any mesh. Part of mesh.h 0.1.0. MIT licence.

DO THIS
    #define MESH_IMPLEMENTATION         in exactly one file
    #include "mesh_checkpoint.h"        brings mesh.h and mesh_collectives.h. Link with -lpthread (glibc before 2.34): saves write on a thread
    #include "transports/mesh_socket.h"

EXAMPLE
    mesh_named state[2] = {{"weight", weight}, {"moment", moment}};
    const char *text[] = {"step", "1200", NULL};
    mesh_checkpoint_desc d = MESH_ZERO;
    mesh_checkpoint saving;
    d.text = text;
    mesh_checkpoint_save_start(&comm, "run7", state, 2, &d, &saving);      copied: training goes on
    ...
    if (mesh_checkpoint_wait(&saving)) puts(comm.error.text);              the new one is whole, or the old one stays
    mesh_checkpoint_load(&other, "run7", state, 2, NULL);                  any mesh, any layouts, any number of ranks

CONCEPTS
    folder      What Hugging Face's programs read: files of safetensors and model.safetensors.index.json, which says what is where. docs/checkpoint.md.
                All ranks see one folder (a shared file system, where they are on several hosts). Paths have 1,023 bytes at most.
    share       Each element is written by one rank: of the ranks that hold it as replicas each has a part, from 64 KiB on. No tensor data travel
                between ranks; in a file a share is the runs that lie one after the other there: a large tensor is written by all at once.
    now         The index is written last, on the side, and renamed: in that moment the new checkpoint takes the old one's place. Before, the old one is
                whole; files of a save have names that no other save's have. What nobody refers to any more is removed: old files, those of saves that died.
    checksum    CRC-32C of each file, in the index, made by its writers together. Loading checks it, each rank reading its part of every file once, before
                any tensor changes; then each rank reads its own parts of its tensors.

ERRORS
    They are alike on every rank of the comm, which they leave as it was: training goes on. err.rank is the first rank that has one; the text is in comm->error.
        ARGUMENT   bad lists; a folder that holds no checkpoint, another, or a torn or hostile one: the file, the tensor, both numbers
        STATE      what a file system refused: the call, the file, its words. Of a save nothing is left, and the old checkpoint stays; but
                   where only the last fsync was refused the new one is in its place, as the text says. Files of a first rank that is
                   lost in the very commit may stay until the next save, named by no index
                   On GPUs: the caller's stream is being captured
        MISMATCH   ranks that have a tensor of one name in different layouts
        TIMEOUT    a disk that has taken nothing of a save for 10 minutes; its thread, and the memory of the save, are left to it
    The writing of shares is waited for without the comm's deadline. For what else a rank does at its disk the others wait in a collective: the first one makes
    a save's files and its index, each reads in a load. Where that takes longer than the deadline (mesh_comm_desc.timeout_ns) the comm fails, as by any late rank.
    A comm that fails meanwhile (a lost rank) ends the call with its error: the old checkpoint stays, but for a failure after the new
    one took its place, which ranks then agree on: there is always a whole one, and desc.text, with the step, tells which. A load may have begun to read
    into tensors.

DEVICES
    On GPUs tensors are in the device's memory, as everywhere: a save copies this rank's share to the host, after what is on the caller's stream, and
    training goes on; a load copies what was read there. A tensor whose elements do not lie side by side is packed on the device, 4 MiB at a time.

MEMORY
    A save holds this rank's share (of the whole bytes one part in so many as ranks) until mesh_checkpoint_wait; a load 4 MiB and the headers. From the
    transport's allocator.

THREADS
    The thread of a save writes files and calls nothing of the library. Wait for it before the transport is closed.

BEHIND IT
    mesh/safetensors.h   the format; by way of layout.h, transport.h
    mesh/files.h         files, checksums
    mesh/save.h, mesh/load.h                                                                                  (these at the end)
*/
#if !defined(MESH_CHECKPOINT_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_CHECKPOINT_IMPLEMENTED))
#include "mesh_collectives.h"
#include "mesh/parts.h"
#include "mesh/redistribute.h"
#include "mesh/files.h"
#endif

#ifndef MESH_CHECKPOINT_H
#define MESH_CHECKPOINT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Names (mesh_named, of mesh/layout.h) are UTF-8, not "" nor "__metadata__". Tensors: R, I or S, P is ARGUMENT; in the transport's memory; dtypes:
   f64 f32 f16 bf16, i64 i32 i16 i8, u64 u32 u16 u8, f8e4m3 f8e5m2; BOOL, which Python may have written, is read as u8. */
typedef struct mesh_checkpoint_desc {
    /* of tensors in a file at most, but that a larger one has a file of its own; 0: 4 GiB. The first rank's */
    int64_t file_bytes;
    /* keys and values by turns, ended by NULL: the step, the seed. The first rank's. NULL: none */
    const char *const *text;
    int partial; /* load: names that the folder lacks keep their values; 0: an error that names them */
    int convert; /* load: floats of another dtype are converted; 0: an error */
    int unchecked; /* load: checksums are not compared, for which every file is read once; 0: they are. The first rank's */
} mesh_checkpoint_desc;

/* A save under way. Zero it, or let save_start fill it; not copied or moved until it is waited for. */
typedef struct mesh_checkpoint {
    mesh_comm *comm;
    void *impl;
} mesh_checkpoint;

/* Save a list of tensors. Every rank of the comm calls; lists may differ (stages, experts): a name stands in the list of every rank of its tensor's mesh, whose
   ranks are the comm's, with the same shape, dtype and layout. desc may be NULL. The folder is made if its parent is there; it is the same
   on every rank, by whatever name: else ARGUMENT, and nothing is written (each looks for a file that the first has just made there). */
MESH_API mesh_status mesh_checkpoint_save(mesh_comm *c, const char *folder, const mesh_named *list, int n,
                                          const mesh_checkpoint_desc *d);
/* The same, returning when this rank's share is copied: the tensors may change. Two saves at a time into one folder: the one that
   was begun later is the checkpoint in the end; the other is so until then, or is STATE where it comes to its end after it. Begun later is one
   that starts when the other's start has returned. Of two that disjoint comms begin in one moment either may be refused, or both, at its start or in its
   wait: STATE, "another save ... is under way" or "... is gone"; the checkpoint is then the other one, or the old one: save again.
   A relative folder is meant from one working directory until mesh_checkpoint_wait has returned. */
MESH_API mesh_status mesh_checkpoint_save_start(mesh_comm *c, const char *folder, const mesh_named *list, int n,
                                                const mesh_checkpoint_desc *d, mesh_checkpoint *s);
/* Collective: wait until all have written, however long the slowest disk takes, and make the new checkpoint the current one, for which the first rank has the comm's deadline. Its place among the comm's collectives is the same on every rank. Where the
   comm has failed or was closed (and another may be open in its place, which is asked nothing: STATE) it ends the thread, removes what was written, and says so; s is zero afterwards, whatever it returns. MISMATCH: ranks wait
   for other saves; these make no checkpoint. */
MESH_API mesh_status mesh_checkpoint_wait(mesh_checkpoint *s);

/* Fill the tensors of a list from a folder: what any mesh saved, a folder of Hugging Face's with an index, or one with a single model.safetensors. The
   folder is the same on every rank. Lists may differ between ranks in any way. Everything is checked first: after ARGUMENT no tensor has changed anywhere. After STATE (a disk that fails between the
   check and the reading) some may. Strides of a tensor need not be dense. */
MESH_API mesh_status mesh_checkpoint_load(mesh_comm *c, const char *folder, const mesh_named *list, int n,
                                          const mesh_checkpoint_desc *d);
/* A value of the text, the same on every rank; at most cap - 1 bytes of it and a zero. *length: of the whole value; -1: no such key. Of a folder without an index:
   its file's own metadata. */
MESH_API mesh_status mesh_checkpoint_text(mesh_comm *c, const char *folder, const char *key, char *buf, size_t cap,
                                          int64_t *length);

#ifdef __cplusplus
}
#endif
#endif /* MESH_CHECKPOINT_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_CHECKPOINT_IMPLEMENTED)
#define MESH_CHECKPOINT_IMPLEMENTED

#define MESH__INDEX "model.safetensors.index.json"
#define MESH__SINGLE "model.safetensors"

/* ---- // >>agreement: an error of one rank is everybody's, and the comm stays ---- */

/* What this rank found, in *why, becomes what the first rank that found something wrong did. The comm's own failure comes before that. */
MESH__PRIVATE mesh_status mesh__agree(mesh_comm *c, const char *function, mesh_status status, const mesh_error *why) {
    int32_t mine = status == MESH_OK ? INT32_MAX : (int32_t)mesh_index_of(&c->on, c->transport->rank), first;
    unsigned char said[8 + MESH_ERROR_BYTES] = {0};
    mesh_status met;
    first = mine;
    met = mesh__host_all_reduce(c, &first, 1, MESH_I32, MESH_MIN);
    if (met != MESH_OK || first == INT32_MAX) return met;
    if (mine == first) {
        mesh__text t = mesh__text_on((char *)said + 8, MESH_ERROR_BYTES);
        mesh__put32(said, (uint32_t)status);
        mesh__put32(said + 4, (uint32_t)(why->rank < 0 ? c->transport->rank : why->rank));
        mesh__put(&t, "%s: rank %d: %s", function, c->transport->rank, why->text);
    }
    if ((met = mesh__host_broadcast(c, NULL, said, sizeof said, MESH_BYTES, (int)first)) != MESH_OK) return met;
    said[sizeof said - 1] = 0;
    return mesh__fail(&c->error, (mesh_status)(int32_t)mesh__get32(said), (int)mesh__get32(said + 4), "%s",
                      (const char *)said + 8);
}

/* Is this a comm that files can be saved and loaded over? */
MESH__PRIVATE mesh_status mesh__checkpoint_begin(mesh_comm *c, const char *function) {
    if (!c) return MESH_ERR_ARGUMENT;
    if (!c->impl) return mesh__fail(&c->error, MESH_ERR_STATE, -1, "%s: the comm is not open", function);
    if (c->failed) return (mesh_status)c->error.status;
    return mesh__on_stream(c);
}

/* ---- // >>lists ---- */

MESH__PRIVATE mesh_status mesh__named_check(const mesh_comm *c, const mesh_named *list, int i, mesh_error *err) {
    const mesh_tensor *t = &list[i].tensor;
    const char *name = list[i].name;
    mesh__place_of place;
    mesh_error why;
    int k;
    if (!name || !*name || mesh__same(name, "__metadata__") || !mesh__is_utf8(name))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "tensor %d: its name is %s", i,
                          !name                  ? "NULL"
                          : !*name               ? "empty"
                          : !mesh__is_utf8(name) ? "no UTF-8"
                                                 : "\"__metadata__\", which the format keeps for itself");
    if (mesh_layout_check(&t->layout, &why) != MESH_OK ||
        mesh__tensor_place(t, "its tensor", c->transport->rank, &place, &why) != MESH_OK)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "%q: %s", name, why.text);
    if (!mesh__safe_name(t->dtype) || (t->elem_bytes && t->elem_bytes != (int64_t)mesh_dtype_bytes(t->dtype)))
        return mesh__fail(
            err, MESH_ERR_ARGUMENT, -1,
            "%q is %s of %l bytes, which safetensors has not; a tensor of u8, or of one dim more, holds the same", name,
            mesh_dtype_name(t->dtype), mesh__tensor_elem(t));
    for (k = 0; k < t->layout.on->naxes; k++)
        if (t->layout.spec.axis[k].kind == MESH_PARTIAL && t->layout.on->axis[k].size > 1)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%q is partial along \"%s\"; redistribute it to R, I or S first", name,
                              t->layout.on->axis[k].name);
    for (k = 0; k < t->layout.on->size; k++)
        if (mesh_index_of(&c->on, mesh_rank_at(t->layout.on, k)) < 0)
            return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                              "%q: its mesh \"%s\" holds rank %d, which is not in the comm's", name,
                              mesh__show(t->layout.on).text, mesh_rank_at(t->layout.on, k));
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__list_check(const mesh_comm *c, const char *folder, const mesh_named *list, int n,
                                           mesh_error *err) {
    mesh_status status = MESH_OK;
    int i;
    if (!folder || !*folder || n < 0 || (n && !list))
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1,
                          !folder || !*folder ? "the folder is NULL, or \"\""
                                              : "the list is NULL, or of fewer than no tensors");
    for (i = 0; i < n && status == MESH_OK; i++) status = mesh__named_check(c, list, i, err);
    return status;
}

/* "f32 [4,6]" */
MESH__RARE mesh__shown mesh__show_shape(int dtype, int ndim, const int64_t *shape) {
    mesh__shown s;
    mesh__text t = mesh__text_on(s.text, sizeof s.text);
    int d;
    mesh__put(&t, "%s [", mesh_dtype_name((mesh_dtype)dtype));
    for (d = 0; d < ndim; d++) mesh__put(&t, d ? ",%l" : "%l", shape[d]);
    mesh__put(&t, "]");
    return s;
}

MESH__PRIVATE int mesh__shape_differs(const mesh__saved *s, const mesh_tensor *t) {
    return s->ndim != t->layout.ndim || memcmp(s->shape, t->layout.shape, (size_t)s->ndim * sizeof *s->shape);
}

/* What mesh__part_copy told in c->error, of the tensor it was about. */
MESH__PRIVATE mesh_status mesh__part_failed(const mesh_comm *c, const char *name, mesh_error *err) {
    mesh_error why = c->error;
    return mesh__fail(err, (mesh_status)why.status, -1, "%q: %s", name, why.text);
}

/* Files are little-endian. */
MESH__PRIVATE void mesh__part_turn(void *buffer, int64_t n, mesh_dtype d) {
    size_t width = mesh_dtype_bytes(d);
    if (!mesh__is_little() && width > 1) mesh__swap(buffer, buffer, (size_t)n * width, width);
}
#endif /* MESH_CHECKPOINT_IMPLEMENTED */

/* ONE_ROOM: tests/rooms.py compiles each with what it includes and no more */
#if !defined(MESH__ONE_ROOM) && !defined(MESH__BEHIND_CHECKPOINT) && \
    (!defined(MESH_LOAD_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_LOAD_IMPLEMENTED)))
#define MESH__BEHIND_CHECKPOINT
#include "mesh/save.h"
#include "mesh/load.h"
#undef MESH__BEHIND_CHECKPOINT
#endif
