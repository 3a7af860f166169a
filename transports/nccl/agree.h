/* nccl/agree.h - every rank of a list says how it stands, the first one decides. Part of mesh.h 0.1.0. MIT licence.

   Includes watch.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_NCCL_AGREE_IMPLEMENTED)
#define MESH_NCCL_AGREE_IMPLEMENTED
#include "watch.h"

/* ---- // >>agreement: every rank of a list says how it stands, the first one decides ---- */

enum { MESH_NCCL__KEEP, MESH_NCCL__MAKE };

/* What a rank has to say, and the answer: all ranks end with the same. */
typedef struct mesh_nccl__vote {
    mesh_status status;
    int action;
    uint64_t serial; /* in: of the communicator it has, or 0; out: of the one to use */
    uint64_t newest; /* the greatest it has met */
    ncclUniqueId id;
    mesh_error why;
} mesh_nccl__vote;

MESH__RARE void mesh_nccl__vote_write(unsigned char *d, const mesh_nccl__vote *v) {
    memset(d, 0, MESH_NCCL__VOTE_BYTES);
    mesh__put32(d, (uint32_t)v->status);
    mesh__put32(d + 4, (uint32_t)v->action);
    mesh__put32(d + 8, (uint32_t)v->why.rank);
    mesh__put64(d + 12, v->serial);
    mesh__put64(d + 20, v->newest);
    memcpy(d + 28, v->id.internal, 128);
    if (v->status != MESH_OK) mesh__copy_text((char *)d + 156, MESH_NCCL__VOTE_BYTES - 156, v->why.text);
}

MESH__RARE void mesh_nccl__vote_read(mesh_nccl__vote *v, const unsigned char *d) {
    v->status = (mesh_status)(int)mesh__get32(d);
    v->action = (int)mesh__get32(d + 4);
    v->serial = mesh__get64(d + 12);
    v->newest = mesh__get64(d + 20);
    memcpy(v->id.internal, d + 28, 128);
    if (v->status != MESH_OK) mesh__fail(&v->why, v->status, (int)mesh__get32(d + 8), "%s", (const char *)d + 156);
}

/* Ranks that take part in something: when one of them is lost, the others do not wait for each other. */
typedef struct mesh_nccl__party {
    const int *rank;
    int size, heed;   /* heed: also give up when one of them ends the comm */
    const int *needs; /* nneeds of them: that one of these has closed the comm counts, whoever is waited for just now */
    int nneeds;
} mesh_nccl__party;

MESH__RARE mesh_nccl__party mesh_nccl__party_of(const int *rank, int size, int heed) {
    mesh_nccl__party p;
    p.rank = p.needs = rank;
    p.size = p.nneeds = size;
    p.heed = heed;
    return p;
}

/* Is this the word of a rank that nobody here waits for, and that has closed the comm in good order? */
MESH__RARE int mesh_nccl__unneeded(const mesh_nccl__party *p, int rank, const mesh_control *m) {
    int i;
    if (mesh__get32(m->data + 12) != MESH__ABORT_CLOSED || m->rank == rank) return 0;
    for (i = 0; i < p->nneeds && p->needs[i] != m->rank; i++) {}
    return i == p->nneeds;
}

/* Has another rank said that this comm is over? With its words; the engine has yet to read them. */
MESH__RARE mesh_status mesh_nccl__is_ended(const mesh_nccl__state *s, const mesh_nccl__party *p, int rank,
                                           uint32_t comm, mesh_error *why) {
    const mesh_nccl__mail *mail;
    for (mail = s->mail; mail; mail = mail->next) {
        const mesh_control *m = &mail->m;
        char text[MESH_ERROR_BYTES];
        if (m->kind != MESH_EVENT_ABORT || m->nbytes < MESH__ABORT_HEAD || mesh__get32(m->data) != comm ||
            mesh_nccl__unneeded(p, rank, m))
            continue;
        mesh__abort_text(text, m->data, m->nbytes);
        return mesh__fail(why, mesh__status_heard(m->data + 4), (int)mesh__get32(m->data + 8), "rank %d failed: %s",
                          m->rank, text);
    }
    return MESH_OK;
}

/* Who calls the roll of a comm while this rank closes hears that it has left, and believes it where it waits for this rank; not at once, as why it left may
   be on its way from another. */
MESH__RARE void mesh_nccl__turn_away(mesh_nccl__state *s) {
    mesh_nccl__mail *mail;
    for (mail = s->mail; mail; mail = mail->next) {
        unsigned char data[MESH_CONTROL_BYTES];
        mesh__record asked;
        mesh_error why;
        size_t length;
        if (mail->state == MESH_NCCL__ANSWERED || mail->m.kind != MESH_EVENT_MESSAGE ||
            mail->m.nbytes < MESH__ROLL_BYTES || mesh__get32(mail->m.data) != MESH__MSG_ROLL ||
            mesh_nccl__now(s) < mail->came + INT64_C(300000000))
            continue;
        mail->state = MESH_NCCL__ANSWERED;
        mesh__record_read(&asked, mail->m.data + 16);
        mesh__fail(&why, MESH_ERR_PEER, s->boot->rank, "rank %d has closed its transport while it was needed",
                   s->boot->rank);
        length = mesh_nccl__abort_write(data, (uint32_t)(asked.channel >> 40), &why);
        mesh__put32(data + 12, MESH__ABORT_CLOSED);
        s->boot->ops->control_send(s->boot, mail->m.rank, MESH_EVENT_ABORT, data, length);
    }
}

/* Why not to wait for a rank any longer. */
MESH__RARE mesh_status mesh_nccl__is_over(const mesh_nccl__state *s, const mesh_nccl__party *p, int rank, uint32_t comm,
                                          mesh_error *why) {
    int i;
    for (i = 0; i < p->size; i++)
        if (s->gone[p->rank[i]] == MESH_EVENT_LOST)
            return mesh__fail(why, MESH_ERR_PEER, p->rank[i], "rank %d was lost", p->rank[i]);
    if (s->gone[rank])
        return mesh__fail(why, MESH_ERR_PEER, rank, "rank %d %s", rank,
                          s->gone[rank] == MESH_EVENT_LOST ? "was lost" : "has closed its transport");
    return p->heed ? mesh_nccl__is_ended(s, p, rank, comm, why) : MESH_OK;
}

/* One message over the bootstrap. */
MESH__RARE mesh_status mesh_nccl__talk(mesh_nccl__state *s, const mesh_nccl__party *party, int direction, int rank,
                                       uint64_t channel, uint64_t check, void *bytes, size_t nbytes, int64_t deadline,
                                       mesh_error *why) {
    mesh_transport *b = s->boot;
    mesh_xfer x;
    mesh_post p;
    mesh_ticket ticket;
    mesh_status status;
    mesh_error over;
    int canceled = 0, ended;
    memset(&x, 0, sizeof x);
    memset(&p, 0, sizeof p);
    x.base = bytes;
    x.nbytes = nbytes;
    x.direction = direction;
    x.rank = rank;
    p.channel = channel;
    p.check = check;
    p.xfer = &x;
    p.count = 1;
    memset(why, 0, sizeof *why);
    pthread_mutex_lock(&s->boot_lock);
    ended = mesh_nccl__is_over(s, party, rank, (uint32_t)(channel >> 40), &over) != MESH_OK;
    status = b->ops->post(b, &p, &ticket);
    if (status != MESH_OK)
        mesh__fail(why, status, rank, "rank %d cannot be reached: %s", rank, mesh_status_text(status));
    while (status == MESH_OK || status == MESH_IN_PROGRESS) {
        int64_t now = b->ops->now(b);
        status = b->ops->test(b, &ticket, why);
        if (status != MESH_IN_PROGRESS) break;
        if ((now >= deadline || ended) && !canceled++) b->ops->cancel(b, &ticket);
        status = b->ops->progress(b, now + 1000000);
        if (status < 0) mesh__fail(why, status, b->rank, "the bootstrap (%s) failed", b->ops->name);
        mesh_nccl__listen(s);
        pthread_mutex_lock(&s->lock);
        mesh_nccl__act(s); /* boot_lock keeps the watchdog from it */
        pthread_mutex_unlock(&s->lock);
        if (s->closing) mesh_nccl__turn_away(s);
        if (!ended) ended = mesh_nccl__is_over(s, party, rank, (uint32_t)(channel >> 40), &over) != MESH_OK;
    }
    pthread_mutex_unlock(&s->boot_lock);
    if (ended && status != MESH_OK) {
        *why = over;
        return (mesh_status)over.status;
    }
    if (canceled && status != MESH_OK)
        return mesh__fail(why, MESH_ERR_TIMEOUT, rank, "rank %d has not come before the deadline", rank);
    return status;
}

/* Ranks list[0] .. list[n-1] agree. make_id: the first one makes an id for a new communicator where one is needed. heed: see talk. */
MESH__RARE mesh_status mesh_nccl__agree(mesh_nccl__state *s, const int *list, int n, uint32_t id, int make_id, int heed,
                                        mesh_nccl__vote *v, int64_t deadline) {
    unsigned char bytes[MESH_NCCL__VOTE_BYTES];
    uint64_t channel = (uint64_t)id << 32 | 0xffffffffu;
    mesh_nccl__party party = mesh_nccl__party_of(list, n, heed), reply = mesh_nccl__party_of(list, 0, 0);
    mesh_error why;
    mesh_status status;
    int i;
    v->newest = s->serial;
    if (list[0] != s->boot->rank) {
        mesh_nccl__vote_write(bytes, v);
        status = mesh_nccl__talk(s, &party, MESH_SEND, list[0], channel, 1, bytes, sizeof bytes, deadline, &why);
        if (status == MESH_OK) /* the first one's own deadline comes first: it says more */
            status = mesh_nccl__talk(s, &party, MESH_RECV, list[0], channel, 2, bytes, sizeof bytes,
                                     deadline + INT64_C(1000000000), &why);
        if (status != MESH_OK) {
            v->status = status;
            v->why = why;
            return status;
        }
        mesh_nccl__vote_read(v, bytes);
    } else {
        v->action = v->serial ? MESH_NCCL__KEEP : MESH_NCCL__MAKE;
        for (i = 1; i < n; i++) {
            mesh_nccl__vote other;
            memset(&other, 0, sizeof other);
            status = mesh_nccl__talk(s, &party, MESH_RECV, list[i], channel, 1, bytes, sizeof bytes, deadline, &why);
            if (status == MESH_OK) {
                mesh_nccl__vote_read(&other, bytes);
                if (other.serial != v->serial || !other.serial) v->action = MESH_NCCL__MAKE;
                if (other.newest > v->newest) v->newest = other.newest;
                status = other.status;
                why = other.why;
            }
            if (status != MESH_OK && (v->status == MESH_OK || v->status == MESH_ERR_TIMEOUT)) { /* a cause says more */
                v->status = status;
                v->why = why;
            }
        }
        if (v->action == MESH_NCCL__MAKE) v->serial = v->newest + 1;
        if (v->status == MESH_OK && v->action == MESH_NCCL__MAKE && make_id) {
            ncclResult_t r = s->api.ncclGetUniqueId(&v->id);
            if (r != ncclSuccess) v->status = mesh_nccl__fail(s, &v->why, "ncclGetUniqueId", r);
        }
        mesh_nccl__vote_write(bytes, v);
        for (i = 1; i < n; i++)
            mesh_nccl__talk(s, &reply, MESH_SEND, list[i], channel, 2, bytes, sizeof bytes,
                            deadline + INT64_C(1000000000), &why);
    }
    if (v->serial > s->serial) s->serial = v->serial;
    return v->status;
}
#endif /* MESH_NCCL_AGREE_IMPLEMENTED */
