/* mesh/messages.h - messages of a length that the receiver does not know. Part of mesh.h 0.1.0. MIT licence.

   Includes p2p.h and host_bytes.h.

DO THIS
    Nothing: mesh_collectives.h includes it.

EXAMPLE
    double out[MOST], in[MOST];                         particles that leave, to the right; those that come from the left
    size_t came;
    mesh_shift_v(&comm, "x", 1, 1, out, leaving, in, MOST, &came, MESH_F64);
*/
#if !defined(MESH_MESSAGES_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_MESSAGES_IMPLEMENTED))
#include "p2p.h"
#include "host_bytes.h"
#endif

#ifndef MESH_MESSAGES_H
#define MESH_MESSAGES_H

#ifdef __cplusplus
extern "C" {
#endif

/* Messages of a length that the receiver does not know, up to `room` elements: it travels ahead, as a message of 8 bytes. Both sides call the
   v-form, with the same dtype. *count: how many came, once the request has ended; it stays alive until then. ARGUMENT: more came than there is
   room for; 1 TiB or more, send and recv that overlap. Cannot be kept.
   On GPUs the host waits for the lengths, in every start too: of ranks that all send first each waits for the next (mesh_shift_v, mesh_sendrecv_v do both
   at once). STATE there: the comm's stream is being captured (the comm stays). */
MESH_API mesh_status mesh_send_v(mesh_comm *c, const char *axes, int to, const void *p, size_t count, mesh_dtype d);
MESH_API mesh_status mesh_send_v_start(mesh_comm *c, const char *axes, int to, const void *p, size_t count,
                                       mesh_dtype d, mesh_request *r);
MESH_API mesh_status mesh_recv_v(mesh_comm *c, const char *axes, int from, void *p, size_t room, size_t *count,
                                 mesh_dtype d);
MESH_API mesh_status mesh_recv_v_start(mesh_comm *c, const char *axes, int from, void *p, size_t room, size_t *count,
                                       mesh_dtype d, mesh_request *r);
MESH_API mesh_status mesh_sendrecv_v(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                     int from, void *recv, size_t room, size_t *recv_count, mesh_dtype d);
MESH_API mesh_status mesh_sendrecv_v_start(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                           int from, void *recv, size_t room, size_t *recv_count, mesh_dtype d,
                                           mesh_request *r);
/* At an edge nothing comes, and *recv_count is 0. */
MESH_API mesh_status mesh_shift_v(mesh_comm *c, const char *axes, int displacement, int periodic, const void *send,
                                  size_t send_count, void *recv, size_t room, size_t *recv_count, mesh_dtype d);
MESH_API mesh_status mesh_shift_v_start(mesh_comm *c, const char *axes, int displacement, int periodic,
                                        const void *send, size_t send_count, void *recv, size_t room,
                                        size_t *recv_count, mesh_dtype d, mesh_request *r);
/* Bytes of any number, sent by mesh_send_v with MESH_BYTES, into memory of the host's: o is as in mesh_broadcast_object. (On GPUs what is sent lies there.) */
MESH_API mesh_status mesh_recv_object(mesh_comm *c, const char *axes, int from, mesh_object *o);
MESH_API mesh_status mesh_recv_object_start(mesh_comm *c, const char *axes, int from, mesh_object *o, mesh_request *r);

#ifdef __cplusplus
}
#endif
#endif /* MESH_MESSAGES_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_MESSAGES_IMPLEMENTED)
#define MESH_MESSAGES_IMPLEMENTED

/* ---- // >>messages of unknown length: 8 bytes that say it and which channel the rest comes on, and the rest, if there is any ---- */

typedef struct mesh__message {
    int to, from; /* indices; -1: that half is left out */
    const void *send;
    size_t send_count;
    void *recv;
    size_t room, *count;
    mesh_object *object; /* instead of recv, room, count */
} mesh__message;

/* The word that travels ahead: bytes, and above them something that the two agree on. */
MESH__PRIVATE uint64_t mesh__length_of(uint64_t word) { return word & ((UINT64_C(1) << MESH__LENGTH_BITS) - 1); }

/* The length has come: room for the rest. */
MESH__PRIVATE mesh_status mesh__message_room(mesh_transport *t, const mesh *on, int kind, const mesh__message *m,
                                             uint64_t nbytes, size_t elem, mesh_error *why) {
    if (m->object)
        return mesh__object_room(t, m->object, nbytes)
                   ? MESH_OK
                   : mesh__fail(why, MESH_ERR_MEMORY, t->rank, "no memory for an object of %u bytes", nbytes);
    if (nbytes / elem > m->room)
        return mesh__fail(why, MESH_ERR_ARGUMENT, t->rank,
                          "rank %d sends %u elements, but there is room for %u; give more room to %s",
                          mesh_rank_at(on, m->from), nbytes / elem, (uint64_t)m->room, mesh__call_name(kind));
    *m->count = (size_t)(nbytes / elem);
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh__extend_message(mesh__schedule *s, const void *head, mesh_error *why) {
    mesh__message *m = (mesh__message *)s->extra;
    uint64_t word = mesh__get64((const unsigned char *)head), nbytes = mesh__length_of(word);
    mesh__step *step;
    mesh_status status = mesh__message_room(s->t, s->on, s->call.kind, m, nbytes, s->elem_bytes, why);
    if (status != MESH_OK || !nbytes) return status;
    mesh__add_post(s);
    mesh__add_xfer(s, MESH_RECV, m->from, m->object ? m->object->data : m->recv, (size_t)nbytes);
    if (s->out_of_memory) return MESH_ERR_MEMORY;
    s->step[s->nsteps - 1].as.post.sequence = MESH__PAYLOAD | (uint32_t)(word >> MESH__LENGTH_BITS);
    if (!mesh__swap_width(&s->call)) return MESH_OK;
    mesh__add_wait(s);
    if ((step = mesh__step_add(s, MESH__TURN)) != NULL) step->as.turn.xfer = s->nxfers - 1;
    return s->out_of_memory ? MESH_ERR_MEMORY : MESH_OK;
}

/* What goes is posted at once, its length first; what comes when its length has. `payload`: the number that the rest goes under. */
MESH__PRIVATE void mesh__build_message(mesh__schedule *s, mesh__message *m, uint32_t payload) {
    size_t nbytes = m->send_count * s->elem_bytes;
    unsigned char *head = mesh__scratch(s, 128), *packed = (unsigned char *)(uintptr_t)m->send;
    mesh__step *step;
    s->extra = m;
    s->extend = mesh__extend_message;
    if (!head) return;
    mesh__put64(head, (uint64_t)payload << MESH__LENGTH_BITS | nbytes);
    mesh__add_post(s);
    if (m->to >= 0) mesh__add_xfer(s, MESH_SEND, m->to, head, 8);
    if (m->from >= 0) mesh__add_xfer(s, MESH_RECV, m->from, head + 64, 8);
    if (m->to >= 0 && nbytes) {
        if (mesh__swap_width(&s->call) && (packed = mesh__scratch(s, nbytes)) != NULL)
            mesh__swap(packed, m->send, nbytes, mesh__swap_width(&s->call));
        mesh__add_post(s);
        mesh__add_xfer(s, MESH_SEND, m->to, packed, nbytes);
        if (!s->out_of_memory) s->step[s->nsteps - 1].as.post.sequence = MESH__PAYLOAD | payload;
    }
    if (m->from < 0) return;
    mesh__add_wait_before(s, 1);
    if ((step = mesh__step_add(s, MESH__EXTEND)) != NULL) step->as.on.dst = head + 64;
}

MESH__PRIVATE mesh_status mesh__message_check(mesh_comm *c, const char *axes, int kind, const mesh__group *g,
                                              const mesh__message *m, size_t elem) {
    int k;
    for (k = 0; k < 2; k++) {
        int peer = k ? m->from : m->to;
        if (peer < -1 || peer >= g->on.size ||
            (peer < 0 && kind != MESH_CALL_SENDRECV_V && kind != MESH_CALL_SHIFT_V &&
             (k ? kind != MESH_CALL_SEND_V : kind == MESH_CALL_SEND_V)))
            return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                                "peer %d is outside the group of %d; it is an index in the group", peer, g->on.size);
    }
    if ((m->to == g->index) != (m->from == g->index))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes,
                            "a %s oneself (index %d) needs its other half in the same call",
                            m->to == g->index ? "send to" : "receive from", g->index);
    if (m->to == g->index && m->send_count > m->room)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%u elements to oneself, but there is room for %u",
                            (uint64_t)m->send_count, (uint64_t)m->room);
    if (m->to >= 0 &&
        (m->send_count > ((UINT64_C(1) << MESH__LENGTH_BITS) - 1) / elem || m->send_count > SIZE_MAX / 2 / elem))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "%u elements: a message is less than 1 TiB",
                            (uint64_t)m->send_count);
    if (m->to >= 0 && !m->send && m->send_count)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "send is NULL with %u elements", (uint64_t)m->send_count);
    if (kind == MESH_CALL_RECV_OBJECT && !m->object)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "the object is NULL");
    if (kind == MESH_CALL_SEND_V || m->object) return MESH_OK;
    if (!m->count) return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "the count, to be written, is NULL");
    if (m->from < 0) return MESH_OK;
    if (m->room > SIZE_MAX / 2 / elem)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "room for %u elements overflows", (uint64_t)m->room);
    if (!m->recv && m->room)
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "recv is NULL with room for %u elements",
                            (uint64_t)m->room);
    if (m->to >= 0 && mesh__overlap(m->send, m->send_count * elem, m->recv, m->room * elem))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "send and recv overlap");
    return MESH_OK;
}

/* ---- // >>where messages match in the order of issue: the host has the lengths before anything else is issued ---- */

/* Its two halves at once. */
MESH__PRIVATE mesh_status mesh__message_move(mesh_comm *c, const char *axes, int kind, const mesh__message *m,
                                             mesh_dtype d, mesh_request *r) {
    mesh_xfer x[2];
    int n = 0;
    if (m->to >= 0 && m->send_count) x[n++] = mesh__xfer(MESH_SEND, m->to, m->send, m->send_count, d);
    if (m->from >= 0 && m->room) x[n++] = mesh__xfer(MESH_RECV, m->from, m->recv, m->room, d);
    return mesh__p2p_start(c, axes, kind, x, n, m->send_count, d, r);
}

/* The other's length and dtype for this rank's. */
MESH__PRIVATE mesh_status mesh__message_lengths(mesh_comm *c, const char *axes, int kind, const mesh__message *m,
                                                uint64_t *mine, uint64_t *other) {
    mesh__message lengths = *m;
    mesh_request r;
    void *p;
    mesh_status status = mesh__scratch_take(c, 2 * sizeof *mine, &p);
    lengths.send = p, lengths.send_count = 1;
    lengths.recv = (uint64_t *)p + 1, lengths.room = 1;
    if (status == MESH_OK) status = mesh__host_copy(c, p, mine, sizeof *mine);
    if (status == MESH_OK) status = mesh__host_wait(mesh__message_move(c, axes, kind, &lengths, MESH_U64, &r), &r);
    if (status == MESH_OK && m->from >= 0) status = mesh__host_copy(c, other, lengths.recv, sizeof *other);
    mesh__scratch_give(c, p);
    return status;
}

/* An object comes to the device, and from there to the host: all of it before the start returns. */
MESH__PRIVATE mesh_status mesh__message_object(mesh_comm *c, const char *axes, int kind, mesh__message *m,
                                               size_t nbytes) {
    mesh_request r;
    mesh_status status = mesh__scratch_take(c, nbytes, &m->recv);
    m->room = nbytes;
    if (status == MESH_OK) status = mesh__host_wait(mesh__message_move(c, axes, kind, m, MESH_BYTES, &r), &r);
    if (status == MESH_OK) status = mesh__host_copy(c, m->object->data, m->recv, nbytes);
    mesh__scratch_give(c, m->recv);
    m->room = 0;
    return status;
}

MESH__PRIVATE mesh_status mesh__message_by_way(mesh_comm *c, const char *axes, int kind, const mesh__group *g,
                                               const mesh__message *message, mesh_dtype d, mesh_request *r) {
    mesh__message m = *message;
    size_t elem = mesh_dtype_bytes(d), nbytes;
    uint64_t mine = (uint64_t)d << MESH__LENGTH_BITS | (m.to >= 0 ? m.send_count * elem : 0), other = mine;
    mesh_error why;
    mesh_status status = mesh__on_stream(c);
    if (status == MESH_OK) status = mesh__message_lengths(c, axes, kind, &m, &mine, &other);
    if (status != MESH_OK) return status;
    if (m.count) *m.count = 0;
    if (other >> MESH__LENGTH_BITS != (uint64_t)d)
        return mesh__comm_broken(c, MESH_ERR_MISMATCH, -1, "mesh_%s: rank %d sends %s, rank %d receives %s",
                                 mesh__call_name(kind), mesh_rank_at(&g->on, m.from),
                                 mesh_dtype_name((mesh_dtype)(other >> MESH__LENGTH_BITS)), c->transport->rank,
                                 mesh_dtype_name(d));
    nbytes = (size_t)mesh__length_of(other);
    if (m.from >= 0) status = mesh__message_room(c->transport, &g->on, kind, &m, nbytes, elem, &why);
    if (status != MESH_OK) return mesh__refuse(c, status, kind, axes, "%s", why.text);
    m.room = nbytes / elem;
    if (m.object && nbytes) status = mesh__message_object(c, axes, kind, &m, nbytes);
    return status == MESH_OK ? mesh__message_move(c, axes, kind, &m, d, r) : status;
}

/* ---- // >>start ---- */

MESH__PRIVATE mesh_status mesh__message_start_inside(mesh_comm *c, const char *axes, int kind, const mesh__message *m,
                                                     mesh_dtype d, mesh_request *r) {
    mesh__group *g = NULL;
    mesh__engine *e;
    mesh__op *op;
    mesh__message *own;
    uint32_t tag;
    mesh_status status = mesh__p2p_begin(c, axes, kind, r, &g, &tag);
    if (status != MESH_OK) return status;
    if (!mesh_dtype_bytes(d))
        return mesh__refuse(c, MESH_ERR_ARGUMENT, kind, axes, "dtype %d is none; see MESH_DTYPES", (int)d);
    if ((status = mesh__message_check(c, axes, kind, g, m, mesh_dtype_bytes(d))) != MESH_OK) return status;
    e = mesh__impl(c)->engine;
    if ((c->transport->caps & MESH_CAP_ORDERED) && m->to != g->index && (m->to >= 0 || m->from >= 0))
        return mesh__message_by_way(c, axes, kind, g, m, d, r);
    if (!(op = mesh__op_take(e))) return mesh__refuse(c, MESH_ERR_MEMORY, kind, axes, "no memory for the operation");
    op->schedule.call = mesh__call(kind, NULL, NULL, m->to >= 0 ? m->send_count : m->room, d, MESH_SUM, 0);
    op->schedule.call.elem_bytes = mesh_dtype_bytes(d);
    op->tag = tag;
    mesh__op_identify(e, op, c, g);
    if (!mesh__grow(e->t, &op->schedule.args, &op->schedule.args_cap, (int)sizeof *m, 1)) {
        op->schedule.out_of_memory = 1;
        return mesh__call_launch(c, op, r);
    }
    own = (mesh__message *)op->schedule.args;
    *own = *m;
    if (own->count) *own->count = 0;
    if (m->to == g->index) {
        *own->count = m->send_count;
        mesh__add_copy(&op->schedule, own->recv, own->send, m->send_count * mesh_dtype_bytes(d));
    } else if (m->to >= 0 || m->from >= 0) {
        mesh__build_message(&op->schedule, own, g->payloads++ & 0xffffff);
    }
    return mesh__call_launch(c, op, r);
}

MESH__PRIVATE mesh_status mesh__message_start(mesh_comm *c, const char *axes, int kind, const mesh__message *m,
                                              mesh_dtype d, mesh_request *r) {
    MESH__ALONE_START(c, mesh__call_name(kind), r, mesh__message_start_inside(c, axes, kind, m, d, r));
}

MESH__PRIVATE mesh__message mesh__message_of(int to, const void *send, size_t send_count, int from, void *recv,
                                             size_t room, size_t *count) {
    mesh__message m;
    m.to = to;
    m.from = from;
    m.send = send;
    m.send_count = send_count;
    m.recv = recv;
    m.room = room;
    m.count = count;
    m.object = NULL;
    return m;
}

MESH_API mesh_status mesh_send_v_start(mesh_comm *c, const char *axes, int to, const void *p, size_t count,
                                       mesh_dtype d, mesh_request *r) {
    mesh__message m = mesh__message_of(to, p, count, -1, NULL, 0, NULL);
    return mesh__message_start(c, axes, MESH_CALL_SEND_V, &m, d, r);
}

MESH_API mesh_status mesh_send_v(mesh_comm *c, const char *axes, int to, const void *p, size_t count, mesh_dtype d) {
    MESH__BLOCKING(mesh_send_v_start(c, axes, to, p, count, d, &r));
}

MESH_API mesh_status mesh_recv_v_start(mesh_comm *c, const char *axes, int from, void *p, size_t room, size_t *count,
                                       mesh_dtype d, mesh_request *r) {
    mesh__message m = mesh__message_of(-1, NULL, 0, from, p, room, count);
    return mesh__message_start(c, axes, MESH_CALL_RECV_V, &m, d, r);
}

MESH_API mesh_status mesh_recv_v(mesh_comm *c, const char *axes, int from, void *p, size_t room, size_t *count,
                                 mesh_dtype d) {
    MESH__BLOCKING(mesh_recv_v_start(c, axes, from, p, room, count, d, &r));
}

MESH_API mesh_status mesh_sendrecv_v_start(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                           int from, void *recv, size_t room, size_t *recv_count, mesh_dtype d,
                                           mesh_request *r) {
    mesh__message m = mesh__message_of(to, send, send_count, from, recv, room, recv_count);
    return mesh__message_start(c, axes, MESH_CALL_SENDRECV_V, &m, d, r);
}

MESH_API mesh_status mesh_sendrecv_v(mesh_comm *c, const char *axes, int to, const void *send, size_t send_count,
                                     int from, void *recv, size_t room, size_t *recv_count, mesh_dtype d) {
    MESH__BLOCKING(mesh_sendrecv_v_start(c, axes, to, send, send_count, from, recv, room, recv_count, d, &r));
}

MESH__PRIVATE mesh_status mesh__shift_v_start_inside(mesh_comm *c, const char *axes, int displacement, int periodic,
                                                     mesh__message *m, mesh_dtype d, mesh_request *r) {
    mesh__group *g = NULL;
    uint32_t tag;
    mesh_status status = mesh__p2p_begin(c, axes, MESH_CALL_SHIFT_V, r, &g, &tag);
    if (status != MESH_OK) return status;
    m->to = mesh__shifted(g, displacement, periodic);
    m->from = mesh__shifted(g, -(int64_t)displacement, periodic);
    return mesh__message_start_inside(c, axes, MESH_CALL_SHIFT_V, m, d, r);
}

MESH_API mesh_status mesh_shift_v_start(mesh_comm *c, const char *axes, int displacement, int periodic,
                                        const void *send, size_t send_count, void *recv, size_t room,
                                        size_t *recv_count, mesh_dtype d, mesh_request *r) {
    mesh__message m = mesh__message_of(-1, send, send_count, -1, recv, room, recv_count);
    MESH__ALONE_START(c, MESH__CALLER, r, mesh__shift_v_start_inside(c, axes, displacement, periodic, &m, d, r));
}

MESH_API mesh_status mesh_shift_v(mesh_comm *c, const char *axes, int displacement, int periodic, const void *send,
                                  size_t send_count, void *recv, size_t room, size_t *recv_count, mesh_dtype d) {
    MESH__BLOCKING(
        mesh_shift_v_start(c, axes, displacement, periodic, send, send_count, recv, room, recv_count, d, &r));
}

MESH_API mesh_status mesh_recv_object_start(mesh_comm *c, const char *axes, int from, mesh_object *o, mesh_request *r) {
    mesh__message m = mesh__message_of(-1, NULL, 0, from, NULL, 0, NULL);
    m.object = o;
    return mesh__message_start(c, axes, MESH_CALL_RECV_OBJECT, &m, MESH_BYTES, r);
}

MESH_API mesh_status mesh_recv_object(mesh_comm *c, const char *axes, int from, mesh_object *o) {
    MESH__BLOCKING(mesh_recv_object_start(c, axes, from, o, &r));
}
#endif /* MESH_MESSAGES_IMPLEMENTED */
