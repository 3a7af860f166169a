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
   TIMEOUT: not all of its ranks have called it within 60 s. On error nothing is open. */
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
    MESH_MPI__HEAD = 8,            /* of a control message: kind, bytes */
    MESH_MPI__PIECE = 1 << 30,     /* bytes of a piece of what is larger than an int counts */
    MESH_MPI__SPINS = 64,          /* looks between two readings of the clock */
    MESH_MPI__YIELD_NS = 1000000,  /* and then others get the core */
    MESH_MPI__LAST_NS = 200000000, /* for what is under way once all have closed */
    MESH_MPI__VOTE_BYTES = 40
};
#define MESH_MPI__PATIENCE INT64_C(60000000000)
#define MESH_MPI__DROWSY INT64_C(1000000000)

typedef struct mesh_mpi__ticket {
    int left, orphaned; /* requests under way; some were left to MPI */
    mesh_status status;
    mesh_error why;
    void *temp,
        *result; /* a collective's: what it works on in place of the caller's memory, and where that is copied in the end */
    size_t result_bytes;
    struct mesh_mpi__links *links;
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
    int used, spoilt;     /* spoilt: something was taken back there, which its next user could meet */
    int size;
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
    unsigned char heard[MESH_MPI__HEAD + MESH_CONTROL_BYTES], vote[MESH_MPI__VOTE_BYTES];
    int held; /* 1 + whose message lies in `heard`, for want of memory to keep it */
    mesh_mpi__mail *mail, **mail_end;
    mesh_mpi__links *links;
    mesh_mpi__ticket *spare;
    uint64_t serial; /* the greatest of a communicator met so far */
    int *host, *gone;
    int event, starved, crowded, native, ngone;
    /* The first tag of tagged messages and of collectives (before them other messages, and what comes behind a length), and the first that is none. */
    int64_t tagged_at, ordered_at, tag_limit;
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

MESH__PRIVATE mesh_mpi__ticket *mesh_mpi__ticket_new(mesh_mpi__impl *s, struct mesh_mpi__links *links) {
    mesh_mpi__ticket *k = s->spare;
    if (k)
        s->spare = k->next;
    else if (!(k = (mesh_mpi__ticket *)mesh_transport_alloc(&s->net->base, sizeof *k)))
        return NULL;
    k->left = k->orphaned = 0;
    k->links = links;
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

/* Returns 0 without memory. */
MESH__PRIVATE int mesh_mpi__mail_add(mesh_mpi__impl *s, int kind, int rank, const void *data, uint32_t nbytes) {
    mesh_mpi__mail *m = (mesh_mpi__mail *)mesh_transport_alloc(&s->net->base, sizeof *m + nbytes);
    if (!m) return 0;
    m->next = NULL;
    m->kind = kind;
    m->rank = rank;
    m->nbytes = nbytes;
    if (nbytes) memcpy(m + 1, data, nbytes);
    *s->mail_end = m;
    s->mail_end = &m->next;
    s->event = 1;
    return 1;
}

MESH__PRIVATE int mesh_mpi__listen(mesh_mpi__impl *s) {
    return MPI_Irecv(s->heard, (int)sizeof s->heard, MPI_BYTE, MPI_ANY_SOURCE, MESH_MPI__CONTROL, s->control,
                     &s->request[0]);
}

/* One has come. Without memory for it, it stays where it is until there is some, and nothing more is listened to. */
MESH__PRIVATE void mesh_mpi__heard(mesh_mpi__impl *s, int rank) {
    int kind = (int)mesh__get32(s->heard), goodbye = kind == MESH_MPI__GOODBYE;
    uint32_t nbytes = mesh__get32(s->heard + 4);
    if (nbytes > MESH_CONTROL_BYTES || goodbye) nbytes = 0;
    s->held = 0;
    if (!mesh_mpi__mail_add(s, goodbye ? (int)MESH_EVENT_CLOSED : kind, rank, s->heard + MESH_MPI__HEAD, nbytes)) {
        s->held = 1 + rank;
        s->starved = 1;
        return;
    }
    if (goodbye && !s->gone[rank]) s->ngone++;
    if (goodbye) s->gone[rank] = MESH_EVENT_CLOSED;
    if (mesh_mpi__listen(s) != MPI_SUCCESS) s->broken = MESH_ERR_TRANSPORT;
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
    if (use->ticket) mesh_mpi__ticket_fail(use->ticket, &why), s->event = 1;
}

/* A request has ended. */
MESH__PRIVATE void mesh_mpi__ended(mesh_mpi__impl *s, int i, const MPI_Status *status, int code) {
    mesh_mpi__use *use = &s->use[i];
    if (i == 0) {
        if (code == MPI_SUCCESS)
            mesh_mpi__heard(s, status->MPI_SOURCE);
        else
            s->broken = MESH_ERR_TRANSPORT;
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
    if (s->held) mesh_mpi__heard(s, s->held - 1);
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
        if (code == MPI_SUCCESS) code = MPI_Type_create_hvector((int)left, 1, (MPI_Aint)b->dim[k].stride, type, &wider);
        MPI_Type_free(&type);
        type = wider;
    }
    if (code == MPI_SUCCESS) *out = type;
    return code;
}

/* The tag of a channel. Sequences begin again where MPI's tags end, which no two operations under way at once are apart. -1: there is none so high.
   On the world's own communicator (the core always has a group's) the group is part of it. */
MESH__PRIVATE int mesh_mpi__tag(const mesh_mpi__impl *s, uint64_t channel, int on_world) {
    uint32_t sequence = (uint32_t)channel;
    int64_t n = sequence & 0x3fffffff;
    if (on_world) return (int)(((channel >> 32) + (uint64_t)sequence * 65537) % (uint64_t)s->tag_limit);
    if (!sequence) return 0;
    if (sequence >= MESH__PAYLOAD) return (int)(1 + n % (s->tagged_at - 1));
    if (sequence & MESH__TAGGED) return n < s->ordered_at - s->tagged_at ? (int)(s->tagged_at + n) : -1;
    return (int)(s->ordered_at + sequence % (s->tag_limit - s->ordered_at));
}

/* Take a ticket's requests back. MPI lets go of a receive that nothing has met; all else is left to it. */
MESH__RARE void mesh_mpi__take_back(mesh_mpi__impl *s, mesh_mpi__ticket *k) {
    int i;
    if (k->links) k->links->spoilt = 1;
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

MESH__PRIVATE int mesh_mpi__post_one(const mesh_xfer *x, MPI_Comm comm, int peer, int tag, MPI_Request *r) {
    MPI_Datatype type = MPI_BYTE;
    int count = (int)x->nbytes, code = MPI_SUCCESS;
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
    mesh_mpi__links *links = (mesh_mpi__links *)p->group;
    int i, tag = mesh_mpi__tag(s, p->channel, !links), code = MPI_SUCCESS;
    mesh_mpi__ticket *k;
    if (!mesh_mpi__room(s, p->count) || !(k = mesh_mpi__ticket_new(s, links))) return MESH_ERR_MEMORY;
    ticket->impl = k;
    ticket->id = p->channel;
    if (tag < 0) { /* said by test, which has room for why; as what MPI refuses */
        mesh_error why;
        mesh__fail(&why, MESH_ERR_UNSUPPORTED, t->rank,
                   "MPI has no room for a tag as high as %u; the highest is %l here", p->channel & MESH__TAGS,
                   s->ordered_at - s->tagged_at - 1);
        mesh_mpi__ticket_fail(k, &why);
        return MESH_OK;
    }
    for (i = 0; i < p->count && code == MPI_SUCCESS; i++) {
        const mesh_xfer *x = &p->xfer[i];
        MPI_Request *r = mesh_mpi__next(s, k, x->rank, x->direction == MESH_RECV, x->nbytes);
        code = mesh_mpi__post_one(x, links ? links->comm : s->world, links ? x->index : x->rank, tag, r);
        if (code != MPI_SUCCESS) break;
        s->nrequests++;
        k->left++;
    }
    if (code != MPI_SUCCESS) {
        mesh_error why;
        mesh_mpi__fail(&why, p->xfer[i].rank, p->xfer[i].direction == MESH_SEND ? "MPI_Isend" : "MPI_Irecv", code);
        mesh_mpi__take_back(s, k);
        mesh_mpi__ticket_fail(k, &why);
    }
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
    const MPI_Datatype of[] = {/* as mesh_dtype has them */
                               MPI_FLOAT,   MPI_DOUBLE,   MPI_DATATYPE_NULL,   MPI_DATATYPE_NULL,   MPI_INT8_T,
                               MPI_UINT8_T, MPI_INT16_T,  MPI_UINT16_T,        MPI_INT32_T,         MPI_UINT32_T,
                               MPI_INT64_T, MPI_UINT64_T, MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX};
    return dtype >= 0 && dtype <= MESH_C128 ? of[dtype] : MPI_DATATYPE_NULL;
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
    if (mesh__call_is(c->kind, MESH_REDUCES) &&
        (mesh_mpi__number(c->dtype) == MPI_DATATYPE_NULL || mesh_mpi__op(c->op, c->dtype) == MPI_OP_NULL))
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
        if (me) return MPI_Iexscan(send, c->recv, count, type, op, g->comm, r);
        if (!mesh_mpi__temp(s, k, c->count * c->elem_bytes))
            return MPI_ERR_NO_MEM; /* it gets nothing, and may have no memory for it */
        return MPI_Iexscan(c->send, k->temp, count, type, op, g->comm, r);
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
    mesh_mpi__links *g = (mesh_mpi__links *)group;
    mesh_mpi__ticket *k;
    MPI_Request *r;
    int code;
    if (!mesh_mpi__serves(s, g, c)) return MESH_ERR_UNSUPPORTED;
    if (!ticket) return MESH_OK;
    if (!mesh_mpi__room(s, 1) || !(k = mesh_mpi__ticket_new(s, g))) return MESH_ERR_MEMORY;
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

/* ---- // >>groups ---- */

/* What a rank says of a group that it opens, and what its first one answers. */
typedef struct mesh_mpi__vote {
    uint32_t id;
    int status, rank; /* a mesh_status, and whom it names */
    uint64_t hash;    /* of the ranks in order */
    uint64_t serial;  /* of the communicator that it has for them, 0: none; the one to use */
    uint64_t newest;  /* the greatest it has met */
} mesh_mpi__vote;

MESH__PRIVATE void mesh_mpi__vote_wire(mesh__wire *w, mesh_mpi__vote *v) {
    mesh__wire32(w, &v->id);
    mesh__wire_int(w, &v->status);
    mesh__wire_int(w, &v->rank);
    mesh__wire64(w, &v->hash);
    mesh__wire64(w, &v->serial);
    mesh__wire64(w, &v->newest);
}

/* Has another rank ended this comm? The engine has yet to read it. */
MESH__RARE int mesh_mpi__is_ended(const mesh_mpi__impl *s, uint32_t comm) {
    const mesh_mpi__mail *m;
    for (m = s->mail; m; m = m->next)
        if (m->kind == MESH_EVENT_ABORT && m->nbytes >= 4 && mesh__get32((const unsigned char *)(m + 1)) == comm)
            return 1;
    return 0;
}

/* Wait for one request of this transport's own, beside all else. */
MESH__RARE mesh_status mesh_mpi__await(mesh_mpi__impl *s, MPI_Request *r, int rank, uint32_t comm, int64_t deadline,
                                       mesh_error *why) {
    int64_t start = mesh_mpi__clock(), now = start;
    for (;;) {
        int ended = 0, code = MPI_Test(r, &ended, MPI_STATUS_IGNORE);
        mesh_status status = MESH_OK;
        if (code != MPI_SUCCESS) return mesh_mpi__fail(why, rank, "MPI_Test", code);
        if (ended) return MESH_OK;
        mesh_mpi__look(s);
        now = mesh_mpi__clock();
        if (s->gone[rank])
            status = mesh__fail(why, MESH_ERR_PEER, rank, "rank %d has closed its transport", rank);
        else if (mesh_mpi__is_ended(s, comm))
            status = mesh__fail(why, MESH_ERR_CANCELED, rank, "the comm was ended by another rank");
        else if (now >= deadline)
            status = mesh__fail(why, MESH_ERR_TIMEOUT, rank, "rank %d has not come before the deadline", rank);
        if (status != MESH_OK) {
            MPI_Cancel(r);
            MPI_Test(r, &ended, MPI_STATUS_IGNORE);
            if (!ended) MPI_Request_free(r);
            return status;
        }
        mesh_mpi__rest(s, now - start);
    }
}

/* A vote to or from a rank. What was said of groups opened before, and given up, is passed over. */
MESH__RARE mesh_status mesh_mpi__talk(mesh_mpi__impl *s, int sends, int rank, int tag, mesh_mpi__vote *v,
                                      int64_t deadline, mesh_error *why) {
    unsigned char *bytes = s->vote; /* what is given up may still come there */
    const int nbytes = MESH_MPI__VOTE_BYTES;
    uint32_t id = v->id;
    mesh__wire w;
    MPI_Request r;
    mesh_status status;
    int code;
    if (sends) {
        w = mesh__writing(bytes);
        mesh_mpi__vote_wire(&w, v);
        code = MPI_Isend(bytes, nbytes, MPI_BYTE, rank, tag, s->control, &r);
        if (code != MPI_SUCCESS) return mesh_mpi__fail(why, rank, "MPI_Isend", code);
        return mesh_mpi__await(s, &r, rank, id >> 8, deadline, why);
    }
    do {
        memset(bytes, 0, (size_t)nbytes);
        code = MPI_Irecv(bytes, nbytes, MPI_BYTE, rank, tag, s->control, &r);
        if (code != MPI_SUCCESS) return mesh_mpi__fail(why, rank, "MPI_Irecv", code);
        if ((status = mesh_mpi__await(s, &r, rank, id >> 8, deadline, why)) != MESH_OK) return status;
        w = mesh__reading(bytes);
        mesh_mpi__vote_wire(&w, v);
    } while (v->id < id);
    return MESH_OK;
}

/* The first of the ranks hears what all say and decides; its word is everybody's. */
MESH__RARE mesh_status mesh_mpi__agree(mesh_mpi__impl *s, const int *rank, int n, mesh_mpi__vote *v, int64_t deadline,
                                       mesh_error *why) {
    mesh_status status = MESH_OK;
    mesh_mpi__vote other;
    mesh_error first;
    int i;
    memset(&first, 0, sizeof first);
    if (rank[0] != s->net->base.rank) {
        uint32_t id = v->id;
        status = mesh_mpi__talk(s, 1, rank[0], MESH_MPI__VOTE, v, deadline, why);
        if (status == MESH_OK) /* its own deadline comes first: it says more */
            status = mesh_mpi__talk(s, 0, rank[0], MESH_MPI__VERDICT, v, deadline + INT64_C(1000000000), why);
        if (status == MESH_OK && v->id != id) status = MESH_ERR_MISMATCH, v->rank = rank[0];
        if (status == MESH_OK && v->status == MESH_OK) return MESH_OK;
        if (status != MESH_OK && status != MESH_ERR_MISMATCH) return status;
        return mesh__fail(why, status != MESH_OK ? status : (mesh_status)v->status, v->rank,
                          v->status == MESH_ERR_TIMEOUT ? "rank %d has not come before the deadline"
                                                        : "rank %d opens another group, or could not open this one",
                          v->rank);
    }
    for (i = 1; i < n; i++) {
        mesh_error said;
        mesh_status talked;
        memset(&other, 0, sizeof other);
        other.id = v->id;
        talked = mesh_mpi__talk(s, 0, rank[i], MESH_MPI__VOTE, &other, deadline, &said);
        if (talked == MESH_OK && (other.id != v->id || other.hash != v->hash))
            talked = mesh__fail(&said, MESH_ERR_MISMATCH, rank[i], "rank %d opens another group than rank %d", rank[i],
                                rank[0]);
        if (talked == MESH_OK && other.serial != v->serial) v->serial = 0;
        if (talked == MESH_OK && other.newest > v->newest) v->newest = other.newest;
        if (talked != MESH_OK && status == MESH_OK) status = talked, first = said;
    }
    v->status = status;
    v->rank = first.rank;
    if (!v->serial) v->serial = (v->newest + 1) | UINT64_C(1) << 63; /* it is to be made */
    for (i = 1; i < n; i++) {
        other = *v;
        mesh_mpi__talk(s, 1, rank[i], MESH_MPI__VERDICT, &other, deadline + INT64_C(1000000000), why);
    }
    if (status != MESH_OK) *why = first;
    return status;
}

/* A communicator of these ranks: all of them are in this now. */
MESH__RARE mesh_status mesh_mpi__links_make(mesh_mpi__impl *s, const int *rank, int n, uint64_t serial,
                                            mesh_mpi__links **out, mesh_error *why) {
    mesh_transport *t = &s->net->base;
    mesh_mpi__links *g = (mesh_mpi__links *)mesh_transport_alloc(t, sizeof *g + (size_t)n * sizeof(int));
    MPI_Group members;
    int code;
    if (!g) return mesh__fail(why, MESH_ERR_MEMORY, t->rank, "mesh_mpi: no memory for a group");
    g->rank = (int *)(g + 1);
    memcpy(g->rank, rank, (size_t)n * sizeof(int));
    g->given = MPI_COMM_NULL;
    g->serial = serial;
    g->size = n;
    g->used = g->spoilt = 0;
    code = MPI_Group_incl(s->ranks, n, rank, &members);
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_create_group(s->control, members, (int)(serial % 32767), &g->comm);
        MPI_Group_free(&members);
    }
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN);
    if (code != MPI_SUCCESS) {
        mesh_transport_free(t, g);
        return mesh_mpi__fail(why, t->rank, "MPI_Comm_create_group", code);
    }
    g->next = s->links;
    s->links = g;
    *out = g;
    return MESH_OK;
}

MESH__RARE mesh_mpi__links *mesh_mpi__links_find(const mesh_mpi__impl *s, const int *rank, int n, uint64_t serial) {
    mesh_mpi__links *g, *found = NULL;
    for (g = s->links; g; g = g->next)
        if (!g->used && g->size == n && !memcmp(g->rank, rank, (size_t)n * sizeof(int)) &&
            (serial ? g->serial == serial : !found || g->serial < found->serial))
            found = g;
    return found;
}

MESH__RARE mesh_status mesh_mpi__group_open(mesh_transport *t, void *parent, uint32_t id, const mesh *group, int color,
                                            int key, int64_t deadline, void **out, mesh_error *why) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    const uint64_t made = UINT64_C(1) << 63;
    mesh_mpi__links *g;
    mesh_mpi__vote v;
    mesh_status status;
    int *rank, i, n = group->size;
    (void)parent, (void)color, (void)key;
    rank = (int *)mesh_transport_alloc(t, (size_t)n * sizeof *rank);
    if (!rank) return mesh__fail(why, MESH_ERR_MEMORY, t->rank, "mesh_mpi: no memory for a group");
    mesh_ranks(group, rank, n);
    memset(&v, 0, sizeof v);
    v.id = id;
    for (v.hash = 0, i = 0; i < n; i++) v.hash = mesh__mix(v.hash, (uint64_t)rank[i]);
    v.newest = s->serial;
    g = mesh_mpi__links_find(s, rank, n, 0);
    v.serial = g ? g->serial : 0;
    status = mesh_mpi__agree(s, rank, n, &v, deadline, why);
    if (status == MESH_OK) {
        if ((v.serial & ~made) > s->serial) s->serial = v.serial & ~made;
        g = v.serial & made ? NULL : mesh_mpi__links_find(s, rank, n, v.serial);
        if (!g) status = mesh_mpi__links_make(s, rank, n, v.serial & ~made, &g, why);
    }
    if (status == MESH_OK) g->used = 1, *out = g;
    mesh_transport_free(t, rank);
    return status;
}

/* The next group of the same ranks has it, unless something was left there. */
MESH__RARE mesh_status mesh_mpi__group_close(mesh_transport *t, void *group) {
    mesh_mpi__links *g = (mesh_mpi__links *)group;
    (void)t;
    g->used = g->spoilt;
    return MESH_OK;
}

MESH__RARE int mesh_mpi__locality(mesh_transport *t, int rank) { return mesh_mpi__of(t)->host[rank]; }

/* ---- // >>close ---- */

/* Receive what nobody has: its sender is free of it then. */
MESH__RARE void mesh_mpi__drain(mesh_mpi__impl *s, MPI_Comm comm) {
    for (;;) {
        MPI_Message message;
        MPI_Status status;
        MPI_Count n = 0;
        MPI_Datatype type = MPI_BYTE;
        int there = 0;
        void *p;
        if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &there, &message, &status) != MPI_SUCCESS || !there) return;
        MPI_Get_elements_x(&status, MPI_BYTE, &n);
        p = mesh_transport_alloc(&s->net->base, n > 0 ? (size_t)n : 1);
        if (n > INT_MAX && mesh_mpi__type_of_bytes((uint64_t)n, &type) == MPI_SUCCESS) MPI_Type_commit(&type);
        MPI_Mrecv(p, type == MPI_BYTE ? (int)n : 1, type, &message, MPI_STATUS_IGNORE);
        if (type != MPI_BYTE) MPI_Type_free(&type);
        mesh_transport_free(&s->net->base, p);
    }
}

MESH__RARE void mesh_mpi__release(mesh_mpi__impl *s) {
    mesh_transport *t = &s->net->base;
    while (s->links) {
        mesh_mpi__links *g = s->links;
        s->links = g->next;
        if (g->given != MPI_COMM_NULL) MPI_Comm_free(&g->given);
        MPI_Comm_free(&g->comm);
        mesh_transport_free(t, g);
    }
    if (s->ranks != MPI_GROUP_NULL) MPI_Group_free(&s->ranks);
    if (s->control != MPI_COMM_NULL) MPI_Comm_free(&s->control);
    if (s->world != MPI_COMM_NULL) MPI_Comm_free(&s->world);
    while (s->mail) {
        mesh_mpi__mail *m = s->mail;
        s->mail = m->next;
        mesh_transport_free(t, m);
    }
    while (s->spare) {
        mesh_mpi__ticket *k = s->spare;
        s->spare = k->next;
        mesh_transport_free(t, k);
    }
    mesh_transport_free(t, s->request);
    mesh_transport_free(t, s->status);
    mesh_transport_free(t, s->use);
    mesh_transport_free(t, s->which);
    mesh_transport_free(t, s->host);
    mesh_transport_free(t, s->gone);
    if (--mesh_mpi__world.open == 0) {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, mesh_mpi__world.before);
        MPI_Errhandler_free(&mesh_mpi__world.before);
    }
    s->net->impl = NULL;
    mesh_transport_free(t, s);
}

MESH__RARE mesh_status mesh_mpi__close(mesh_transport *t, mesh_error *why) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    int64_t patience = mesh_transport_patience(t), start = mesh_mpi__clock(), now = start, last = 0;
    mesh_mpi__links *g;
    mesh_status status = mesh_transport_detach(t);
    int i, code, ended = 0;
    if (status != MESH_OK) return status;
    for (i = 0; i < t->size; i++)
        if (i != t->rank && s->gone[i] != MESH_EVENT_LOST) mesh_mpi__say(s, i, MESH_MPI__GOODBYE, NULL, 0);
    while (!s->broken && now - start < patience) {
        mesh_mpi__look(s);
        mesh_mpi__drain(s, s->world);
        for (g = s->links; g; g = g->next) mesh_mpi__drain(s, g->comm);
        now = mesh_mpi__clock();
        if (s->ngone ==
            t->size - 1) { /* what now is still under way was given up, and never ends unless it was for this */
            if (s->nrequests == 1 || (last && now - last > MESH_MPI__LAST_NS)) break;
            if (!last) last = now;
        }
        mesh_mpi__rest(s, now - start);
    }
    if (s->ngone < t->size - 1) {
        for (i = 0; i < t->size && (s->gone[i] || i == t->rank);) i++;
        status = mesh__fail(why, MESH_ERR_TIMEOUT, i, "mesh_mpi_close: rank %d has not closed within %l ms", i,
                            patience / 1000000);
    }
    ended = s->request[0] == MPI_REQUEST_NULL;
    code = ended ? MPI_SUCCESS : MPI_Cancel(&s->request[0]); /* nothing comes any more */
    if (!ended && code == MPI_SUCCESS) MPI_Test(&s->request[0], &ended, MPI_STATUS_IGNORE);
    for (i = ended ? 1 : 0; i < s->nrequests; i++) MPI_Request_free(&s->request[i]);
    mesh_mpi__release(s);
    return status;
}

/* ---- // >>open ---- */

static const mesh_ops mesh_mpi__ops = {sizeof(mesh_ops),
                                       MESH_ABI,
                                       "mpi",
                                       mesh_mpi__post,
                                       mesh_mpi__test,
                                       mesh_mpi__pending,
                                       mesh_mpi__cancel,
                                       mesh_mpi__progress,
                                       mesh_mpi__now,
                                       mesh_mpi__control_send,
                                       mesh_mpi__control_poll,
                                       mesh_mpi__close,
                                       mesh_mpi__group_open,
                                       mesh_mpi__group_close,
                                       NULL,
                                       mesh_mpi__collective,
                                       NULL,
                                       NULL,
                                       NULL,
                                       NULL,
                                       NULL,
                                       NULL,
                                       NULL,
                                       NULL,
                                       NULL,
                                       mesh_mpi__locality,
                                       NULL,
                                       NULL};

/* A copy of the communicator, once all of its ranks have come. Where they do not MPI may still write its handle, which therefore is left to it. */
MESH__RARE mesh_status mesh_mpi__copy(mesh_mpi__impl *s, MPI_Comm comm, MPI_Comm *out, int64_t deadline,
                                      mesh_error *err) {
    MPI_Comm *made = (MPI_Comm *)mesh_transport_alloc(&s->net->base, sizeof *made);
    MPI_Request r;
    int64_t start = mesh_mpi__clock(), now = start;
    int ended = 0, code;
    if (!made) return mesh__fail(err, MESH_ERR_MEMORY, s->net->base.rank, "mesh_mpi_open: no memory");
    code = MPI_Comm_idup(comm, made, &r);
    while (code == MPI_SUCCESS && (code = MPI_Test(&r, &ended, MPI_STATUS_IGNORE)) == MPI_SUCCESS && !ended) {
        now = mesh_mpi__clock();
        if (now >= deadline)
            return mesh__fail(err, MESH_ERR_TIMEOUT, -1,
                              "mesh_mpi_open: not all %d ranks of the communicator have called it within 60 s",
                              s->net->base.size);
        if (now - start > MESH_MPI__YIELD_NS) sched_yield();
    }
    if (code == MPI_SUCCESS) *out = *made;
    mesh_transport_free(&s->net->base, made);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN);
    return code == MPI_SUCCESS ? MESH_OK : mesh_mpi__fail(err, -1, "MPI_Comm_idup", code);
}

/* Which ranks are on one host, and whether more of them are here than there are cores. */
MESH__RARE int mesh_mpi__hosts(mesh_mpi__impl *s) {
    MPI_Comm here;
    int me = s->net->base.rank, first = me, n = 1, code;
    code = MPI_Comm_split_type(s->control, MPI_COMM_TYPE_SHARED, me, MPI_INFO_NULL, &here);
    if (code != MPI_SUCCESS) return code;
    MPI_Comm_set_errhandler(here, MPI_ERRORS_RETURN);
    MPI_Comm_size(here, &n);
    code = MPI_Bcast(&first, 1, MPI_INT, 0, here);
    MPI_Comm_free(&here);
    if (code == MPI_SUCCESS) code = MPI_Allgather(&first, 1, MPI_INT, s->host, 1, MPI_INT, s->control);
    s->crowded = n > (int)sysconf(_SC_NPROCESSORS_ONLN);
    return code;
}

MESH__RARE void mesh_mpi__tags(mesh_mpi__impl *s) {
    int found = 0, *most = NULL;
    int64_t limit = 32768, tagged, behind;
    if (MPI_Comm_get_attr(s->world, MPI_TAG_UB, &most, &found) == MPI_SUCCESS && found) limit = (int64_t)*most + 1;
    behind = limit / 8 < 1 << 24 ? limit / 8 : 1 << 24;
    tagged = (limit - behind) / 2;
    if (tagged > MESH__TAGS + INT64_C(1)) tagged = MESH__TAGS + INT64_C(1);
    s->tagged_at = behind;
    s->ordered_at = behind + tagged;
    s->tag_limit = limit;
}

MESH__RARE mesh_status mesh_mpi__begin(mesh_mpi__impl *s, MPI_Comm comm, mesh_error *err) {
    mesh_transport *t = &s->net->base;
    int64_t deadline = mesh_mpi__clock() + MESH_MPI__PATIENCE;
    mesh_status status = mesh_mpi__copy(s, comm, &s->world, deadline, err);
    const char *native = getenv("MESH_MPI_NATIVE");
    int code;
    if (status == MESH_OK) status = mesh_mpi__copy(s, s->world, &s->control, deadline, err);
    if (status != MESH_OK) return status;
    s->host = (int *)mesh_transport_alloc(t, (size_t)t->size * sizeof(int));
    s->gone = (int *)mesh_transport_alloc(t, (size_t)t->size * sizeof(int));
    if (!s->host || !s->gone || !mesh_mpi__room(s, 16))
        return mesh__fail(err, MESH_ERR_MEMORY, t->rank, "mesh_mpi_open: no memory for %d ranks", t->size);
    memset(s->gone, 0, (size_t)t->size * sizeof(int));
    s->native = !native || strcmp(native, "0");
    mesh_mpi__tags(s);
    code = MPI_Comm_group(s->control, &s->ranks);
    if (code == MPI_SUCCESS) code = mesh_mpi__hosts(s);
    mesh_mpi__next(s, NULL, -1, 1, 0);
    if (code == MPI_SUCCESS) code = mesh_mpi__listen(s);
    if (code != MPI_SUCCESS) return mesh_mpi__fail(err, t->rank, "mesh_mpi_open", code);
    s->nrequests = 1;
    return MESH_OK;
}

MESH_API mesh_status mesh_mpi_open(mesh_mpi *net, MPI_Comm comm, mesh_error *err) {
    mesh_mpi__impl *s;
    mesh_status status;
    int up = 0, down = 0, inter = 0;
    if (!net) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_mpi_open: the transport is NULL");
    memset(net, 0, sizeof *net);
    MPI_Initialized(&up);
    if (up) MPI_Finalized(&down);
    if (!up || down)
        return mesh__fail(err, MESH_ERR_STATE, -1,
                          "mesh_mpi_open: MPI is %s; call it between MPI_Init and MPI_Finalize",
                          up ? "finalised" : "not initialised");
    if (comm == MPI_COMM_NULL)
        return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_mpi_open: the communicator is MPI_COMM_NULL");
    if (!mesh_mpi__world.open) {
        MPI_Comm_get_errhandler(MPI_COMM_WORLD, &mesh_mpi__world.before);
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    mesh_mpi__world.open++;
    if (!(s = (mesh_mpi__impl *)mesh_transport_alloc(&net->base, sizeof *s))) {
        mesh_mpi__world.open--;
        return mesh__fail(err, MESH_ERR_MEMORY, -1, "mesh_mpi_open: no memory");
    }
    memset(s, 0, sizeof *s);
    s->net = net;
    s->mail_end = &s->mail;
    s->world = s->control = MPI_COMM_NULL;
    s->ranks = MPI_GROUP_NULL;
    net->impl = s;
    MPI_Comm_test_inter(comm, &inter);
    MPI_Comm_rank(comm, &net->base.rank);
    MPI_Comm_size(comm, &net->base.size);
    net->base.ops = &mesh_mpi__ops;
    net->base.caps = MESH_CAP_STRIDED | MESH_CAP_CANCEL;
    status = inter ? mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_mpi_open: an intercommunicator; merge it first")
                   : mesh_mpi__begin(s, comm, err);
    if (status != MESH_OK) mesh_mpi__release(s);
    return status;
}

MESH_API mesh_status mesh_mpi_close(mesh_mpi *net) {
    if (!net || !net->impl) return MESH_OK;
    return mesh_mpi__close(&net->base, NULL);
}

MESH_API mesh_status mesh_mpi_comm(mesh_comm *c, const char *axes, MPI_Comm *out) {
    mesh__group *g = c && c->impl ? mesh__group_find(mesh__impl(c), axes) : NULL;
    mesh_mpi__links *links = g ? (mesh_mpi__links *)g->handle : NULL;
    int code;
    if (!out) return MESH_ERR_ARGUMENT;
    *out = MPI_COMM_NULL;
    if (!links || c->transport->ops != &mesh_mpi__ops)
        return c ? mesh__fail(&c->error, MESH_ERR_STATE, -1, "mesh_mpi_comm: no such group over MPI is open")
                 : MESH_ERR_ARGUMENT;
    if (links->given == MPI_COMM_NULL && (code = MPI_Comm_dup(links->comm, &links->given)) != MPI_SUCCESS)
        return mesh_mpi__fail(&c->error, c->transport->rank, "MPI_Comm_dup", code);
    *out = links->given;
    return MESH_OK;
}
#endif /* MESH_MPI_IMPLEMENTED */
