/* mesh_mpi.h - ranks of an MPI job. Part of mesh.h 0.1.0. MIT licence. */
#include "../mesh_collectives.h"

#ifndef MESH_MPI_H
#define MESH_MPI_H
/*
DO THIS
    #define MESH_IMPLEMENTATION         in exactly one file, C or C++
    #include "mesh.h"
    #include "mesh_collectives.h"
    #include "transports/mesh_mpi.h"    needs mpi.h of MPI 3.0 or later: mpicc app.c

EXAMPLE
    mesh_mpi net;
    mesh_error err;
    MPI_Init(&argc, &argv);
    if (mesh_mpi_open(&net, MPI_COMM_WORLD, &err)) return fail(err.text);
    ... mesh_comm_open(&comm, &net.base, ...) ... mesh_all_reduce(&comm, "dp", ...) ...
    mesh_comm_close(&comm);
    mesh_mpi_close(&net);
    MPI_Finalize();

CONCEPTS
    world       The ranks of the communicator given: all of the job's, or a part of them. The program calls MPI beside the library as it likes; nothing
                of the communicator is used but a copy.
    threads     One thread at a time is in the library, and it calls MPI: with MPI_THREAD_SINGLE or _FUNNELED that is the one that called MPI_Init.
    messages    Each is one MPI message, under a tag made of its place in its group's order. Strided blocks are MPI datatypes: nothing is packed.
    collectives MPI's own nonblocking ones where they do what the library promises: the schedules of mesh_collectives.h serve what MPI has not (bf16 and f16,
                lists, averages' division), what it defines otherwise (minimum and maximum of floats: a NaN is passed on here), more than 2^31 - 1
                elements, and forms with counts per rank. MESH_MPI_NATIVE=0 has the schedules serve all: then results are the same bits as over sockets.
    groups      Each has a communicator of its own, made after its ranks have said the same of it; kept for the next group of the same ranks.
    waiting     MPI cannot sleep until something comes. Who waits asks it again and again, leaves its core to others where ranks outnumber the cores or after
                1 ms, and sleeps for 0.1 ms at a time after a second.

ERRORS
    As on every transport, as far as MPI goes. It does not compare calls: a message of another length is told where it is received; else ranks that disagree
    are told by the deadline, which asks all what they are in. Most MPIs end the whole job when a process dies; where one goes on, the library says what MPI
    says. Errors of MPI are returned, not fatal, from mesh_mpi_open to mesh_mpi_close, on MPI_COMM_WORLD as well (Open MPI reports some there). A message that
    nobody has received, and a collective that was given up, stay MPI's until mesh_mpi_close: a collective's buffers must then live as long.
    Nothing is aborted: MPI_Abort is the program's.
*/
#include <mpi.h>
#if MPI_VERSION < 3
#error "mesh_mpi.h: MPI 3.0 or later is needed"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mesh_mpi {
    mesh_transport base; /* first: &net.base is the transport */
    void *impl;
} mesh_mpi;

/* Every rank of an intracommunicator calls it; it stays the caller's. STATE: MPI is not initialised, or is finalised. ARGUMENT: no intracommunicator.
   TIMEOUT: not all of its ranks have called it within 60 s (or net.base.timeout_ns... MESH_TIMEOUT seconds). On error nothing is open. */
MESH_API mesh_status mesh_mpi_open(mesh_mpi *net, MPI_Comm comm, mesh_error *err);
/* Before MPI_Finalize. Closes comms that are still open, delivers what was sent, and waits for the other ranks to close too, 60 s at most: messages that
   nobody has received are received then. TIMEOUT: the others do not come. */
MESH_API mesh_status mesh_mpi_close(mesh_mpi *net);
/* A communicator of the group's ranks, in its order, for other libraries. Every rank of the group calls it. It is a copy, the library's until
   mesh_mpi_close; the same one each time. STATE: no such group, or not over MPI. */
MESH_API mesh_status mesh_mpi_comm(mesh_comm *c, const char *axes, MPI_Comm *out);

#ifdef __cplusplus
}
#endif
#endif /* MESH_MPI_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_MPI_IMPLEMENTED)
#define MESH_MPI_IMPLEMENTED

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Tags on the communicator beside the data. */
enum { MESH_MPI__CONTROL, MESH_MPI__VOTE, MESH_MPI__VERDICT };
/* Kinds of control messages of this transport's own, behind the core's. */
enum { MESH_MPI__GOODBYE = 100 };
enum {
    MESH_MPI__HEAD = 8,           /* of a control message: kind, bytes */
    MESH_MPI__PIECE = 1 << 30,    /* bytes of a piece of what is larger than an int counts */
    MESH_MPI__SPINS = 64,         /* looks between two readings of the clock */
    MESH_MPI__YIELD_NS = 1000000, /* and then others get the core */
    MESH_MPI__VOTE_BYTES = 40
};
#define MESH_MPI__PATIENCE INT64_C(60000000000)
#define MESH_MPI__DROWSY INT64_C(1000000000)

typedef struct mesh_mpi__ticket {
    int left, orphaned; /* requests under way; some were left to MPI */
    mesh_status status;
    mesh_error why;
    void *temp, *result; /* a collective's: what it works on in place of the caller's memory, and where that is copied in the end */
    size_t result_bytes;
    struct mesh_mpi__ticket *next; /* spare ones */
} mesh_mpi__ticket;

/* What a request is for. */
typedef struct mesh_mpi__use {
    mesh_mpi__ticket *ticket; /* NULL: nobody waits for it any more, or a control message */
    int rank;                 /* the peer; -1: a collective */
    int receives;
    uint64_t nbytes; /* that are to be received */
    void *memory;    /* freed with it: a control message, what an orphan works on */
} mesh_mpi__use;

typedef struct mesh_mpi__mail {
    struct mesh_mpi__mail *next;
    int kind, rank;
    uint32_t nbytes;
} mesh_mpi__mail; /* followed by the bytes */

/* A communicator of some ranks in some order. */
typedef struct mesh_mpi__links {
    struct mesh_mpi__links *next;
    MPI_Comm comm, given; /* given: the copy of mesh_mpi_comm; MPI_COMM_NULL: none */
    uint64_t serial;      /* the same on all its ranks */
    int used, size;
    int *rank;
} mesh_mpi__links;

typedef struct mesh_mpi__impl {
    mesh_mpi *net;
    MPI_Comm world, control;
    MPI_Group ranks;
    MPI_Request *request; /* under way; the first one receives control messages */
    MPI_Status *status;
    mesh_mpi__use *use;
    int *which; /* that have ended */
    int nrequests, room;
    unsigned char heard[MESH_MPI__HEAD + MESH_CONTROL_BYTES];
    mesh_mpi__mail *mail, **mail_end;
    mesh_mpi__links *links;
    mesh_mpi__ticket *spare;
    uint64_t serial; /* the greatest of a communicator met so far */
    int *host, *gone;
    int event, starved, crowded, native, ngone;
    int64_t tags[3]; /* the first of: messages without a tag and what comes behind a length; tagged ones; collectives. Below the limit */
    int64_t tag_limit;
    mesh_status broken; /* MPI has failed as a whole */
} mesh_mpi__impl;

/* Errors on MPI_COMM_WORLD are returned while a transport is open. */
static struct {
    int open;
    MPI_Errhandler before;
} mesh_mpi__world;

MESH__PRIVATE mesh_mpi__impl *mesh_mpi__of(mesh_transport *t) {
    return (mesh_mpi__impl *)((mesh_mpi *)(void *)t)->impl;
}

MESH__PRIVATE int64_t mesh_mpi__clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

MESH__PRIVATE int64_t mesh_mpi__now(mesh_transport *t) { return (void)t, mesh_mpi__clock(); }

/* What MPI says of an error. */
MESH__RARE mesh_status mesh_mpi__fail(mesh_error *err, int rank, const char *call, int code) {
    char text[MPI_MAX_ERROR_STRING + 1];
    int length = 0, kind = MPI_SUCCESS;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
    text[length] = 0;
    MPI_Error_class(code, &kind);
    return mesh__fail(err, kind == MPI_ERR_NO_MEM ? MESH_ERR_MEMORY : MESH_ERR_TRANSPORT, rank, "%s: %s", call,
                      length ? text : "MPI gives no reason");
}

/* ---- // >>requests ---- */

/* Room for n more. */
MESH__PRIVATE int mesh_mpi__room(mesh_mpi__impl *s, int n) {
    mesh_transport *t = &s->net->base;
    int room = s->room, need = s->nrequests + n;
    int caps[4];
    if (need <= room) return 1;
    caps[0] = caps[1] = caps[2] = caps[3] = room;
    if (!mesh__grow(t, (void **)&s->request, &caps[0], need, sizeof *s->request) ||
        !mesh__grow(t, (void **)&s->status, &caps[1], need, sizeof *s->status) ||
        !mesh__grow(t, (void **)&s->use, &caps[2], need, sizeof *s->use) ||
        !mesh__grow(t, (void **)&s->which, &caps[3], need, sizeof *s->which))
        return 0;
    s->room = caps[0];
    return 1;
}

/* The next request is for this; there is room. */
MESH__PRIVATE MPI_Request *mesh_mpi__next(mesh_mpi__impl *s, mesh_mpi__ticket *k, int rank, int receives,
                                          uint64_t nbytes) {
    mesh_mpi__use *use = &s->use[s->nrequests];
    use->ticket = k;
    use->rank = rank;
    use->receives = receives;
    use->nbytes = nbytes;
    use->memory = NULL;
    s->request[s->nrequests] = MPI_REQUEST_NULL;
    return &s->request[s->nrequests];
}

MESH__PRIVATE mesh_mpi__ticket *mesh_mpi__ticket_new(mesh_mpi__impl *s) {
    mesh_mpi__ticket *k = s->spare;
    if (k)
        s->spare = k->next;
    else if (!(k = (mesh_mpi__ticket *)mesh_transport_alloc(&s->net->base, sizeof *k)))
        return NULL;
    k->left = k->orphaned = 0;
    k->status = MESH_OK;
    k->why.status = MESH_OK;
    k->temp = k->result = NULL;
    k->result_bytes = 0;
    return k;
}

MESH__PRIVATE void mesh_mpi__ticket_end(mesh_mpi__impl *s, mesh_mpi__ticket *k) {
    mesh_transport_free(&s->net->base, k->temp);
    k->next = s->spare;
    s->spare = k;
}

/* Its first error is the ticket's. */
MESH__RARE void mesh_mpi__ticket_fail(mesh_mpi__ticket *k, const mesh_error *why) {
    if (k->status != MESH_OK) return;
    k->status = (mesh_status)why->status;
    k->why = *why;
}

/* ---- // >>control messages ---- */

MESH__PRIVATE void mesh_mpi__mail_add(mesh_mpi__impl *s, int kind, int rank, const void *data, uint32_t nbytes) {
    mesh_mpi__mail *m = (mesh_mpi__mail *)mesh_transport_alloc(&s->net->base, sizeof *m + nbytes);
    if (!m) {
        s->starved = 1;
        return;
    }
    m->next = NULL;
    m->kind = kind;
    m->rank = rank;
    m->nbytes = nbytes;
    if (nbytes) memcpy(m + 1, data, nbytes);
    *s->mail_end = m;
    s->mail_end = &m->next;
    s->event = 1;
}

MESH__PRIVATE int mesh_mpi__listen(mesh_mpi__impl *s) {
    return MPI_Irecv(s->heard, (int)sizeof s->heard, MPI_BYTE, MPI_ANY_SOURCE, MESH_MPI__CONTROL, s->control,
                     &s->request[0]);
}

/* One has come. */
MESH__PRIVATE void mesh_mpi__heard(mesh_mpi__impl *s, const MPI_Status *status) {
    int rank = status->MPI_SOURCE, kind = (int)mesh__get32(s->heard);
    uint32_t nbytes = mesh__get32(s->heard + 4);
    if (nbytes > MESH_CONTROL_BYTES) nbytes = MESH_CONTROL_BYTES;
    if (kind == MESH_MPI__GOODBYE) {
        if (!s->gone[rank]) s->ngone++;
        s->gone[rank] = MESH_EVENT_CLOSED;
        mesh_mpi__mail_add(s, MESH_EVENT_CLOSED, rank, NULL, 0);
    } else {
        mesh_mpi__mail_add(s, kind, rank, s->heard + MESH_MPI__HEAD, nbytes);
    }
}

MESH__PRIVATE mesh_status mesh_mpi__say(mesh_mpi__impl *s, int rank, int kind, const void *data, size_t nbytes) {
    unsigned char *m;
    MPI_Request *r;
    if (!mesh_mpi__room(s, 1)) return MESH_ERR_MEMORY;
    m = (unsigned char *)mesh_transport_alloc(&s->net->base, MESH_MPI__HEAD + nbytes);
    if (!m) return MESH_ERR_MEMORY;
    mesh__put32(m, (uint32_t)kind);
    mesh__put32(m + 4, (uint32_t)nbytes);
    if (nbytes) memcpy(m + MESH_MPI__HEAD, data, nbytes);
    r = mesh_mpi__next(s, NULL, rank, 0, 0);
    s->use[s->nrequests].memory = m;
    if (MPI_Isend(m, MESH_MPI__HEAD + (int)nbytes, MPI_BYTE, rank, MESH_MPI__CONTROL, s->control, r) != MPI_SUCCESS) {
        mesh_transport_free(&s->net->base, m);
        return MESH_ERR_PEER;
    }
    s->nrequests++;
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh_mpi__control_send(mesh_transport *t, int rank, int kind, const void *data,
                                                 size_t nbytes) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    if (rank < 0 || rank >= t->size || rank == t->rank || nbytes > MESH_CONTROL_BYTES) return MESH_ERR_ARGUMENT;
    return s->gone[rank] ? MESH_ERR_PEER : mesh_mpi__say(s, rank, kind, data, nbytes);
}

MESH__PRIVATE mesh_status mesh_mpi__control_poll(mesh_transport *t, mesh_control *out) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    mesh_mpi__mail *m = s->mail;
    if (!m) return MESH_IN_PROGRESS;
    s->mail = m->next;
    if (!m->next) s->mail_end = &s->mail;
    out->kind = m->kind;
    out->rank = m->rank;
    out->nbytes = m->nbytes;
    out->zero = 0;
    if (m->nbytes) memcpy(out->data, m + 1, m->nbytes);
    mesh_transport_free(t, m);
    return MESH_OK;
}

/* ---- // >>progress ---- */

/* A message has come that is not what was awaited, or MPI says what is wrong. */
MESH__RARE void mesh_mpi__wrong(mesh_mpi__impl *s, mesh_mpi__use *use, int code, uint64_t came) {
    mesh_error why;
    int kind = MPI_SUCCESS, me = s->net->base.rank;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE)
        mesh__fail(&why, MESH_ERR_MISMATCH, use->rank, "rank %d sent more bytes than the %u that rank %d expected",
                   use->rank, use->nbytes, me);
    else if (code == MPI_SUCCESS)
        mesh__fail(&why, MESH_ERR_MISMATCH, use->rank, "rank %d sent %u bytes, rank %d expected %u", use->rank, came,
                   me, use->nbytes);
    else
        mesh_mpi__fail(&why, use->rank, use->rank < 0 ? "a collective of MPI" : "a message of MPI", code);
    if (use->ticket) mesh_mpi__ticket_fail(use->ticket, &why);
}

/* A request has ended. */
MESH__PRIVATE void mesh_mpi__ended(mesh_mpi__impl *s, int i, const MPI_Status *status, int code) {
    mesh_mpi__use *use = &s->use[i];
    if (i == 0) {
        if (code == MPI_SUCCESS) mesh_mpi__heard(s, status);
        if (code != MPI_SUCCESS || mesh_mpi__listen(s) != MPI_SUCCESS) s->broken = MESH_ERR_TRANSPORT;
        return;
    }
    if (code == MPI_SUCCESS && use->receives && use->ticket) {
        MPI_Count came = 0;
        if (MPI_Get_elements_x(status, MPI_BYTE, &came) != MPI_SUCCESS || (uint64_t)came != use->nbytes)
            mesh_mpi__wrong(s, use, MPI_SUCCESS, (uint64_t)came);
    } else if (code != MPI_SUCCESS) {
        mesh_mpi__wrong(s, use, code, 0);
    }
    if (use->ticket && --use->ticket->left == 0) s->event = 1;
    mesh_transport_free(&s->net->base, use->memory);
    use->memory = NULL;
    use->ticket = NULL;
    use->rank = -2; /* to be taken out of the list */
}

/* One look at everything. */
MESH__PRIVATE void mesh_mpi__look(mesh_mpi__impl *s) {
    int n = 0, i, code;
    if (s->broken) return;
    code = MPI_Testsome(s->nrequests, s->request, &n, s->which, s->status);
    if (n == MPI_UNDEFINED || n <= 0) {
        if (code != MPI_SUCCESS) s->broken = MESH_ERR_TRANSPORT;
        return;
    }
    for (i = 0; i < n; i++)
        mesh_mpi__ended(s, s->which[i], &s->status[i], code == MPI_SUCCESS ? code : s->status[i].MPI_ERROR);
    for (i = s->nrequests - 1; i > 0; i--) {
        if (s->use[i].rank != -2) continue;
        s->nrequests--;
        s->request[i] = s->request[s->nrequests];
        s->use[i] = s->use[s->nrequests];
    }
}

/* After so long that nothing came: let others have the core. */
MESH__PRIVATE void mesh_mpi__rest(const mesh_mpi__impl *s, int64_t waited) {
    if (waited > MESH_MPI__DROWSY) {
        struct timespec nap;
        nap.tv_sec = 0;
        nap.tv_nsec = 100000;
        nanosleep(&nap, NULL);
    } else if (s->crowded || waited > MESH_MPI__YIELD_NS) {
        sched_yield();
    }
}

MESH__PRIVATE mesh_status mesh_mpi__progress(mesh_transport *t, int64_t deadline) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    int64_t start = 0, now;
    int looks = 0;
    for (;;) {
        mesh_mpi__look(s);
        if (s->event || s->broken || s->starved) break;
        if (deadline > 0 && !s->crowded && ++looks % MESH_MPI__SPINS) continue;
        now = mesh_mpi__clock();
        if (now >= deadline) break;
        if (!start) start = now;
        mesh_mpi__rest(s, now - start);
    }
    s->event = 0;
    if (s->broken) return s->broken;
    if (!s->starved) return MESH_OK;
    s->starved = 0;
    return MESH_ERR_MEMORY;
}

/* ---- // >>messages ---- */

/* nbytes, which lie together, as one of MPI's datatypes where an int does not count them. */
MESH__RARE int mesh_mpi__type_of_bytes(uint64_t nbytes, MPI_Datatype *out) {
    MPI_Datatype piece, part[2];
    int length[2] = {1, 0}, code;
    MPI_Aint at[2] = {0, 0};
    int whole = (int)(nbytes / MESH_MPI__PIECE);
    if ((code = MPI_Type_contiguous(MESH_MPI__PIECE, MPI_BYTE, &piece)) != MPI_SUCCESS) return code;
    code = MPI_Type_contiguous(whole, piece, &part[0]);
    MPI_Type_free(&piece);
    if (code != MPI_SUCCESS) return code;
    part[1] = MPI_BYTE;
    length[1] = (int)(nbytes % MESH_MPI__PIECE);
    at[1] = (MPI_Aint)((uint64_t)whole * MESH_MPI__PIECE);
    code = MPI_Type_create_struct(2, length, at, part, out);
    MPI_Type_free(&part[0]);
    return code;
}

/* A block, from its runs outwards. */
MESH__PRIVATE int mesh_mpi__type_of_block(const mesh_block *b, MPI_Datatype *out) {
    MPI_Datatype type, wider;
    int k, code;
    if (b->run <= INT_MAX)
        code = MPI_Type_contiguous((int)b->run, MPI_BYTE, &type);
    else
        code = mesh_mpi__type_of_bytes(b->run, &type);
    for (k = b->ndim - 1; k >= 0 && code == MPI_SUCCESS; k--) {
        int64_t left = b->dim[k].count;
        if (left > INT_MAX) code = MPI_ERR_COUNT;
        if (code == MPI_SUCCESS)
            code = MPI_Type_create_hvector((int)left, 1, (MPI_Aint)b->dim[k].stride, type, &wider);
        MPI_Type_free(&type);
        type = wider;
    }
    if (code == MPI_SUCCESS) *out = type;
    return code;
}

/* The tag of a channel. Sequences begin again where MPI's tags end, which no two operations under way at once are apart. -1: there is none so high. */
MESH__PRIVATE int mesh_mpi__tag(const mesh_mpi__impl *s, uint64_t channel) {
    uint32_t sequence = (uint32_t)channel;
    int64_t n = sequence & 0x3fffffff;
    if (!sequence) return 0;
    if (sequence >= MESH__PAYLOAD) return (int)(1 + n % (s->tags[1] - 1));
    if (sequence & MESH__TAGGED) return n < s->tags[2] - s->tags[1] ? (int)(s->tags[1] + n) : -1;
    return (int)(s->tags[2] + sequence % (s->tag_limit - s->tags[2]));
}

/* Take a ticket's requests back. MPI lets go of a receive that nothing has met; all else is left to it. */
MESH__RARE void mesh_mpi__take_back(mesh_mpi__impl *s, mesh_mpi__ticket *k) {
    int i;
    for (i = 1; i < s->nrequests; i++) {
        mesh_mpi__use *use = &s->use[i];
        MPI_Status status;
        int ended = 0, code;
        if (use->ticket != k) continue;
        if (use->receives) MPI_Cancel(&s->request[i]);
        code = MPI_Test(&s->request[i], &ended, &status);
        if (code != MPI_SUCCESS) ended = 1;
        if (!ended) {
            k->orphaned = 1;
            use->ticket = NULL;
            if (k->temp) use->memory = k->temp, k->temp = NULL;
            k->left--;
            continue;
        }
        s->request[i] = MPI_REQUEST_NULL;
        k->left--;
        use->ticket = NULL;
        s->nrequests--;
        s->request[i] = s->request[s->nrequests];
        s->use[i] = s->use[s->nrequests];
        i--;
    }
}

MESH__PRIVATE int mesh_mpi__post_one(mesh_mpi__impl *s, const mesh_xfer *x, MPI_Comm comm, int peer, int tag,
                                     MPI_Request *r) {
    MPI_Datatype type = MPI_BYTE;
    int count = (int)x->nbytes, code = MPI_SUCCESS;
    (void)s;
    if (x->nbytes && (x->block || x->nbytes > INT_MAX)) {
        code = x->block ? mesh_mpi__type_of_block(x->block, &type) : mesh_mpi__type_of_bytes(x->nbytes, &type);
        if (code == MPI_SUCCESS) code = MPI_Type_commit(&type);
        count = 1;
    }
    if (code == MPI_SUCCESS)
        code = x->direction == MESH_SEND ? MPI_Isend(x->base, count, type, peer, tag, comm, r)
                                         : MPI_Irecv(x->base, count, type, peer, tag, comm, r);
    if (type != MPI_BYTE) MPI_Type_free(&type);
    return code;
}

MESH__PRIVATE mesh_status mesh_mpi__post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    const mesh_mpi__links *links = (const mesh_mpi__links *)p->group;
    int i, tag = mesh_mpi__tag(s, p->channel), code = MPI_SUCCESS;
    mesh_mpi__ticket *k;
    if (tag < 0) return MESH_ERR_UNSUPPORTED;
    if (!mesh_mpi__room(s, p->count) || !(k = mesh_mpi__ticket_new(s))) return MESH_ERR_MEMORY;
    for (i = 0; i < p->count && code == MPI_SUCCESS; i++) {
        const mesh_xfer *x = &p->xfer[i];
        MPI_Request *r = mesh_mpi__next(s, k, x->rank, x->direction == MESH_RECV, x->nbytes);
        code = mesh_mpi__post_one(s, x, links ? links->comm : s->world, links ? x->index : x->rank, tag, r);
        if (code != MPI_SUCCESS) break;
        s->nrequests++;
        k->left++;
    }
    if (code != MPI_SUCCESS) { /* said by test, which has room for why */
        mesh_error why;
        mesh_mpi__fail(&why, p->xfer[i].rank, p->xfer[i].direction == MESH_SEND ? "MPI_Isend" : "MPI_Irecv", code);
        mesh_mpi__take_back(s, k);
        mesh_mpi__ticket_fail(k, &why);
    }
    ticket->impl = k;
    ticket->id = p->channel;
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh_mpi__test(mesh_transport *t, mesh_ticket *ticket, mesh_error *why) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    mesh_mpi__ticket *k = (mesh_mpi__ticket *)ticket->impl;
    mesh_status status = k->status;
    if (k->left && status == MESH_OK) return MESH_IN_PROGRESS;
    if (k->left) mesh_mpi__take_back(s, k); /* one of them has failed */
    if (status == MESH_OK && k->result) memcpy(k->result, k->temp, k->result_bytes);
    if (status != MESH_OK && why) *why = k->why;
    if (k->orphaned) ticket->id = MESH_TICKET_ORPHANED;
    ticket->impl = NULL;
    mesh_mpi__ticket_end(s, k);
    return status;
}

MESH__PRIVATE int mesh_mpi__pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    (void)t, (void)ticket, (void)ranks, (void)cap;
    return 0;
}

MESH__RARE mesh_status mesh_mpi__cancel(mesh_transport *t, mesh_ticket *ticket) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    mesh_mpi__ticket *k = (mesh_mpi__ticket *)ticket->impl;
    mesh_error why;
    mesh_mpi__look(s); /* what is there counts */
    if (!k->left || k->status != MESH_OK) return MESH_OK;
    mesh_mpi__take_back(s, k);
    mesh__fail(&why, MESH_ERR_CANCELED, -1, "canceled");
    mesh_mpi__ticket_fail(k, &why);
    s->event = 1;
    return MESH_OK;
}

/* ---- // >>collectives of MPI's own ---- */

/* The datatype in which MPI reduces these; MPI_DATATYPE_NULL: our schedules do. */
MESH__PRIVATE MPI_Datatype mesh_mpi__number(int dtype) {
    switch (dtype) {
    case MESH_F32:
        return MPI_FLOAT;
    case MESH_F64:
        return MPI_DOUBLE;
    case MESH_I8:
        return MPI_INT8_T;
    case MESH_U8:
        return MPI_UINT8_T;
    case MESH_I16:
        return MPI_INT16_T;
    case MESH_U16:
        return MPI_UINT16_T;
    case MESH_I32:
        return MPI_INT32_T;
    case MESH_U32:
        return MPI_UINT32_T;
    case MESH_I64:
        return MPI_INT64_T;
    case MESH_U64:
        return MPI_UINT64_T;
    case MESH_C64:
        return MPI_C_FLOAT_COMPLEX;
    case MESH_C128:
        return MPI_C_DOUBLE_COMPLEX;
    default:
        return MPI_DATATYPE_NULL;
    }
}

MESH__PRIVATE MPI_Op mesh_mpi__op(int op, int dtype) {
    int real = dtype == MESH_F32 || dtype == MESH_F64;
    switch (op) {
    case MESH_SUM:
        return MPI_SUM;
    case MESH_PROD:
        return MPI_PROD;
    case MESH_MIN: /* of floats MPI does not say what becomes of a NaN */
        return real ? MPI_OP_NULL : MPI_MIN;
    case MESH_MAX:
        return real ? MPI_OP_NULL : MPI_MAX;
    case MESH_AND:
        return MPI_BAND;
    case MESH_OR:
        return MPI_BOR;
    case MESH_XOR:
        return MPI_BXOR;
    default:
        return MPI_OP_NULL;
    }
}

MESH__PRIVATE int mesh_mpi__serves(const mesh_mpi__impl *s, const mesh_mpi__links *g, const mesh_call *c) {
    size_t blocks = 1, elem = c->elem_bytes;
    if (!s->native || !g || c->user_op || c->buffers) return 0;
    switch (c->kind) {
    case MESH_CALL_BARRIER:
        return 1;
    case MESH_CALL_ALL_REDUCE:
    case MESH_CALL_REDUCE:
    case MESH_CALL_SCAN:
    case MESH_CALL_EXSCAN:
    case MESH_CALL_BROADCAST:
        break;
    case MESH_CALL_ALL_GATHER:
    case MESH_CALL_REDUCE_SCATTER:
    case MESH_CALL_ALL_TO_ALL:
    case MESH_CALL_GATHER:
    case MESH_CALL_SCATTER:
        blocks = (size_t)g->size;
        break;
    default:
        return 0;
    }
    if (mesh__call_is(c->kind, MESH_REDUCES) && (mesh_mpi__number(c->dtype) == MPI_DATATYPE_NULL ||
                                                 mesh_mpi__op(c->op, c->dtype) == MPI_OP_NULL))
        return 0;
    return c->count <= (size_t)INT_MAX / elem / blocks;
}

/* Memory of the ticket's own in place of the caller's. */
MESH__PRIVATE void *mesh_mpi__temp(mesh_mpi__impl *s, mesh_mpi__ticket *k, size_t nbytes) {
    return k->temp = mesh_transport_alloc(&s->net->base, nbytes ? nbytes : 1);
}

/* MPI has its own way to say that memory is sent and received in, and for a reduction's slice and an all_to_all none: these go by way of a copy. */
MESH__PRIVATE int mesh_mpi__reduce(mesh_mpi__impl *s, const mesh_mpi__links *g, const mesh_call *c, mesh_mpi__ticket *k,
                                   MPI_Request *r) {
    MPI_Datatype type = mesh_mpi__number(c->dtype);
    MPI_Op op = mesh_mpi__op(c->op, c->dtype);
    int count = (int)c->count, me;
    const void *send = c->in_place ? MPI_IN_PLACE : c->send;
    MPI_Comm_rank(g->comm, &me);
    switch (c->kind) {
    case MESH_CALL_ALL_REDUCE:
        return MPI_Iallreduce(send, c->recv, count, type, op, g->comm, r);
    case MESH_CALL_REDUCE:
        if (me != c->root) send = c->send;
        return MPI_Ireduce(send, c->recv, count, type, op, c->root, g->comm, r);
    case MESH_CALL_SCAN:
        return MPI_Iscan(send, c->recv, count, type, op, g->comm, r);
    case MESH_CALL_EXSCAN:
        if (me == 0 && !c->in_place) { /* it gets nothing, and may have no memory for it */
            if (!mesh_mpi__temp(s, k, c->count * c->elem_bytes)) return MPI_ERR_NO_MEM;
            return MPI_Iexscan(c->send, k->temp, count, type, op, g->comm, r);
        }
        if (me == 0 && !mesh_mpi__temp(s, k, c->count * c->elem_bytes)) return MPI_ERR_NO_MEM;
        return MPI_Iexscan(me == 0 ? c->send : send, me == 0 ? k->temp : c->recv, count, type, op, g->comm, r);
    default:
        if (!c->in_place) return MPI_Ireduce_scatter_block(c->send, c->recv, count, type, op, g->comm, r);
        if (!mesh_mpi__temp(s, k, c->count * c->elem_bytes)) return MPI_ERR_NO_MEM;
        k->result = c->recv;
        k->result_bytes = c->count * c->elem_bytes;
        return MPI_Ireduce_scatter_block(c->send, k->temp, count, type, op, g->comm, r);
    }
}

MESH__PRIVATE int mesh_mpi__move(mesh_mpi__impl *s, const mesh_mpi__links *g, const mesh_call *c, mesh_mpi__ticket *k,
                                 MPI_Request *r) {
    size_t bytes = c->count * c->elem_bytes;
    int n = (int)bytes, me;
    void *recv = c->recv;
    const void *send = c->send;
    MPI_Comm_rank(g->comm, &me);
    switch (c->kind) {
    case MESH_CALL_BARRIER:
        return MPI_Ibarrier(g->comm, r);
    case MESH_CALL_BROADCAST:
        if (me == c->root && recv && recv != send && bytes) memcpy(recv, send, bytes);
        return MPI_Ibcast(me == c->root ? (void *)(uintptr_t)send : recv, n, MPI_BYTE, c->root, g->comm, r);
    case MESH_CALL_ALL_GATHER:
        return MPI_Iallgather(c->in_place ? MPI_IN_PLACE : send, n, MPI_BYTE, recv, n, MPI_BYTE, g->comm, r);
    case MESH_CALL_GATHER:
        return MPI_Igather(me == c->root && c->in_place ? MPI_IN_PLACE : send, n, MPI_BYTE, recv, n, MPI_BYTE, c->root,
                           g->comm, r);
    case MESH_CALL_SCATTER:
        return MPI_Iscatter(send, n, MPI_BYTE, me == c->root && c->in_place ? MPI_IN_PLACE : recv, n, MPI_BYTE, c->root,
                            g->comm, r);
    default:
        if (c->in_place) {
            if (!mesh_mpi__temp(s, k, bytes * (size_t)g->size)) return MPI_ERR_NO_MEM;
            if (bytes) memcpy(k->temp, send, bytes * (size_t)g->size);
            send = k->temp;
        }
        return MPI_Ialltoall(send, n, MPI_BYTE, recv, n, MPI_BYTE, g->comm, r);
    }
}

MESH__PRIVATE mesh_status mesh_mpi__collective(mesh_transport *t, void *group, const mesh_call *c,
                                               mesh_ticket *ticket) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    const mesh_mpi__links *g = (const mesh_mpi__links *)group;
    mesh_mpi__ticket *k;
    MPI_Request *r;
    int code;
    if (!mesh_mpi__serves(s, g, c)) return MESH_ERR_UNSUPPORTED;
    if (!ticket) return MESH_OK;
    if (!mesh_mpi__room(s, 1) || !(k = mesh_mpi__ticket_new(s))) return MESH_ERR_MEMORY;
    r = mesh_mpi__next(s, k, -1, 0, 0);
    code = mesh__call_is(c->kind, MESH_REDUCES) ? mesh_mpi__reduce(s, g, c, k, r) : mesh_mpi__move(s, g, c, k, r);
    if (code == MPI_SUCCESS) {
        s->nrequests++;
        k->left = 1;
    } else {
        mesh_error why;
        mesh_mpi__fail(&why, t->rank, mesh__call_name(c->kind), code);
        mesh_mpi__ticket_fail(k, &why);
    }
    ticket->impl = k;
    ticket->id = c->channel;
    return MESH_OK;
}
