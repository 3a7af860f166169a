/* mpi/state.h - what a transport over MPI consists of, and what it does when asked to go on. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh_mpi.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_MPI_STATE_IMPLEMENTED)
#define MESH_MPI_STATE_IMPLEMENTED
#include "../mesh_mpi.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Tags on the communicator beside the data. */
enum { MESH_MPI__CONTROL, MESH_MPI__VOTE, MESH_MPI__VERDICT, MESH_MPI__GIVEN_UP };
/* Kinds of control messages of this transport's own, behind the core's. MISFIT: what you sent does not fit what I expect of you. ASK: are you still sending
   this? COMES, COMES_NOT: the answers. BACK: I use this communicator no more. WANTED: give it back when you do not. FREE: all have. */
enum {
    MESH_MPI__GOODBYE = 100,
    MESH_MPI__MISFIT,
    MESH_MPI__ASK,
    MESH_MPI__COMES,
    MESH_MPI__COMES_NOT,
    MESH_MPI__BACK,
    MESH_MPI__WANTED,
    MESH_MPI__FREE
};
enum {
    MESH_MPI__HEAD = 8,                 /* of a control message: kind, bytes */
    MESH_MPI__PIECE = 1 << 30,          /* bytes of a piece of what is larger than an int counts */
    MESH_MPI__SPINS = 64,               /* looks between two readings of the clock */
    MESH_MPI__YIELD_NS = 1000000,       /* and then others get the core */
    MESH_MPI__MISFIT_NS = 1000000,      /* between two looks for messages that fit nothing */
    MESH_MPI__SUSPECTED_NS = 200000000, /* one does when it has stood for so long, and */
    MESH_MPI__SUSPECTED_PER_BYTE = 10,
    MESH_MPI__MISFIT_BYTES = 12,   /* as of ASK and its answers: the communicator's serial, the tag */
    MESH_MPI__PLACES = 65536,      /* in a group's order that tags tell apart; */
    MESH_MPI__SURE = 8,            /* their other bits say what a message is for, which this many are enough to tell */
    MESH_MPI__LAST_NS = 200000000, /* for what is under way once all have closed */
    MESH_MPI__VOTE_BYTES = 68,
    MESH_MPI__BACK_BYTES = 24,
    MESH_MPI__IDLE = 256,  /* communicators that are kept for later groups: of 2,048 that MPICH has */
    MESH_MPI__SMALL = 2048 /* bytes of a receive that MPI is told of ahead; of a larger one where its post has gaps */
};
#define MESH_MPI__PATIENCE INT64_C(60000000000)
#define MESH_MPI__DROWSY INT64_C(1000000000)
#define MESH_MPI__SECOND INT64_C(1000000000)
#define MESH_MPI__MARGIN INT64_C(9000000000) /* between the first rank's patience and the others' with it */
#define MESH_MPI__MADE (UINT64_C(1) << 63)   /* in a verdict's serial: it is to be made */

typedef struct mesh_mpi__ticket {
    int left, orphaned; /* requests under way; some were left to MPI */
    mesh_status status;
    mesh_error why;
    void *temp,
        *result; /* a collective's: what it works on in place of the caller's memory, and where that is copied in the end */
    size_t result_bytes;
    int64_t until; /* taken back: messages that are coming in have as long to end */
    struct mesh_mpi__links *links;
    struct mesh_mpi__ticket *next; /* spare ones */
} mesh_mpi__ticket;

/* How a receive stands. */
enum {
    MESH_MPI__NONE,
    MESH_MPI__AHEAD,
    MESH_MPI__HELD,
    MESH_MPI__MET
}; /* none; MPI knows of it; it does not; its message is here */

/* What the sender of a suspected receive's message has said. */
enum { MESH_MPI__UNASKED, MESH_MPI__ASKED, MESH_MPI__DENIED };

/* What a request is for. */
typedef struct mesh_mpi__use {
    mesh_mpi__ticket *ticket; /* NULL: nobody waits for it any more, or a control message */
    struct mesh_mpi__links *links;
    int rank;          /* the peer; -1: a collective */
    int index, tag;    /* as MPI has them */
    int receives;      /* how */
    uint64_t nbytes;   /* that are to be received, */
    void *base;        /* and where: */
    MPI_Datatype type; /* count of this; not MPI_BYTE: freed once MPI has it */
    int count;
    int64_t suspected; /* since when a message seems to stand in its place; 0: none does */
    int asks;          /* what its sender says then: MESH_MPI__UNASKED, ... */
    uint64_t serial;   /* of the receive: equal ones meet their messages in order */
    void *memory;      /* freed with it: a control message, what an orphan works on */
} mesh_mpi__use;

/* A message that has come before its receive, taken out of MPI's hands, which would show the first one only. */
typedef struct mesh_mpi__stray {
    struct mesh_mpi__stray *next;
    MPI_Message message;
    uint64_t nbytes;
    int index, tag;
} mesh_mpi__stray;

/* A communicator of some ranks in some order. */
typedef struct mesh_mpi__links {
    struct mesh_mpi__links *next;
    MPI_Comm comm, given; /* given: the copy of mesh_mpi_comm; MPI_COMM_NULL: none */
    uint64_t serial;      /* the same on all its ranks */
    int used, spoilt;     /* spoilt: something was taken back there, which its next user could meet */
    int back, wanted;     /* it is no more for this rank; shall be so once it is idle */
    int nback;            /* the first rank's: so many have given it back, */
    uint64_t balance;     /* with so many messages more sent than received */
    uint64_t closed;      /* when it was last used */
    int size;
    int *rank;
    uint32_t *told, *heard;  /* untagged messages of point to point to and from each */
    uint64_t sent, received; /* messages: once all are received the next user meets none of them */
    int held;                /* receives that wait here */
    mesh_mpi__stray *stray, **stray_end;
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
    unsigned char heard[(int)MESH_MPI__HEAD + (int)MESH_CONTROL_BYTES], vote[MESH_MPI__VOTE_BYTES];
    int unkept; /* 1 + whose message lies in `heard`, for want of memory to keep it */
    mesh__inbox mail;
    mesh_mpi__links *links, *whole; /* whole: the world as given, for posts outside of groups */
    mesh_mpi__ticket *spare;
    int idle_most; /* MESH_MPI__IDLE; tests have fewer */
    int parting;   /* goodbye has been said: nothing more is */
    uint64_t closes;
    uint64_t serial; /* the greatest of a communicator met so far */
    uint64_t receives;
    mesh_mpi__stray *blank; /* for the next: a message that was taken out of MPI's hands cannot be put back */
    /* parted: who has been told that this rank closes; unreached: whom MPI sends nothing; both in gone's memory */
    int *host, *gone, *parted, *unreached;
    int said_code; /* of MPI, where a control message was not sent */
    int event, starved, crowded, native, ngone;
    int left_to_mpi;    /* what all ranks were awaited for: MPI may still write its result */
    int agreed;         /* all ranks have heard how the opening goes */
    int64_t misfits_at; /* the next look for them */
    /* A tag: the place, and below it so many bits of what it is for. The first place of tagged messages and of collectives (before them other
       messages, and what comes behind a length), and the first that is none. */
    int check_bits;
    int64_t tagged_at, ordered_at, places;
    int64_t high_at;    /* the first of the tags that are for themselves */
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

/* Its first error is the ticket's. */
MESH__RARE void mesh_mpi__ticket_fail(mesh_mpi__ticket *k, const mesh_error *why) {
    if (k->status != MESH_OK) return;
    k->status = (mesh_status)why->status;
    k->why = *why;
}

/* MPI has failed as a whole: every operation that is under way says how. */
MESH__RARE void mesh_mpi__break(mesh_mpi__impl *s, const char *call, int code) {
    mesh_error why;
    int i;
    if (s->broken) return;
    s->broken = mesh_mpi__fail(&why, s->net->base.rank, call, code);
    for (i = 1; i < s->nrequests; i++) {
        mesh_mpi__ticket *k = s->use[i].ticket;
        if (!k) continue;
        mesh_mpi__ticket_fail(k, &why);
        k->until = 1; /* nothing more comes in */
    }
    s->event = 1;
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
MESH__PRIVATE MPI_Request *mesh_mpi__next(mesh_mpi__impl *s, mesh_mpi__ticket *k, int rank) {
    mesh_mpi__use *use = &s->use[s->nrequests];
    memset(use, 0, sizeof *use);
    use->ticket = k;
    use->links = k ? k->links : NULL;
    use->rank = rank;
    use->tag = -1;
    use->type = MPI_BYTE;
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
    k->until = 0;
    return k;
}

MESH__PRIVATE void mesh_mpi__ticket_end(mesh_mpi__impl *s, mesh_mpi__ticket *k) {
    mesh_transport_free(&s->net->base, k->temp);
    k->next = s->spare;
    s->spare = k;
}

/* ---- // >>control messages ---- */

MESH__PRIVATE int mesh_mpi__listen(mesh_mpi__impl *s) {
    return MPI_Irecv(s->heard, (int)sizeof s->heard, MPI_BYTE, MPI_ANY_SOURCE, MESH_MPI__CONTROL, s->control,
                     &s->request[0]);
}

/* What was sent under this tag fits nothing that its receiver expects. */
MESH__RARE void mesh_mpi__misfit(mesh_mpi__impl *s, int rank) {
    uint64_t serial = mesh__get64(s->heard + MESH_MPI__HEAD);
    int tag = (int)mesh__get32(s->heard + MESH_MPI__HEAD + 8), i;
    for (i = 1; i < s->nrequests; i++) {
        const mesh_mpi__use *use = &s->use[i];
        mesh_error why;
        if (!use->ticket || use->receives || use->rank != rank || use->tag != tag || use->links->serial != serial)
            continue;
        mesh__fail(&why, MESH_ERR_MISMATCH, rank, "rank %d expects something else than rank %d sent", rank,
                   s->net->base.rank);
        mesh_mpi__ticket_fail(use->ticket, &why);
        s->event = 1;
    }
}

MESH__PRIVATE mesh_status mesh_mpi__say(mesh_mpi__impl *s, int rank, int kind, const void *data, size_t nbytes);

MESH__RARE mesh_status mesh_mpi__say_of(mesh_mpi__impl *s, int rank, int kind, uint64_t serial, int tag) {
    unsigned char said[MESH_MPI__MISFIT_BYTES];
    mesh__put64(said, serial);
    mesh__put32(said + 8, (uint32_t)tag);
    return mesh_mpi__say(s, rank, kind, said, sizeof said);
}

/* A rank asks whether this one is still sending it what it waits for, or has the answer. */
MESH__RARE void mesh_mpi__asked(mesh_mpi__impl *s, int rank, int kind) {
    uint64_t serial = mesh__get64(s->heard + MESH_MPI__HEAD);
    int tag = (int)mesh__get32(s->heard + MESH_MPI__HEAD + 8), i, comes = 0;
    for (i = 1; i < s->nrequests; i++) {
        mesh_mpi__use *use = &s->use[i];
        if (!use->links || use->rank != rank || use->tag != tag || use->links->serial != serial) continue;
        if (kind == MESH_MPI__ASK) {
            comes |= !use->receives;
        } else if (use->receives == MESH_MPI__AHEAD && use->asks == MESH_MPI__ASKED) {
            use->asks = kind == MESH_MPI__COMES ? MESH_MPI__UNASKED : MESH_MPI__DENIED;
            use->suspected = mesh_mpi__clock(); /* what was sent before the answer has time to be here */
        }
    }
    if (kind == MESH_MPI__ASK)
        mesh_mpi__say_of(s, rank, comes ? MESH_MPI__COMES : MESH_MPI__COMES_NOT, serial, tag); /* else it waits on */
}

MESH__RARE void mesh_mpi__back_heard(mesh_mpi__impl *s, int kind);

/* One has come. Without memory for it, it stays where it is until there is some, and nothing more is listened to. */
MESH__PRIVATE void mesh_mpi__heard(mesh_mpi__impl *s, int rank) {
    int kind = (int)mesh__get32(s->heard), goodbye = kind == MESH_MPI__GOODBYE, code;
    uint32_t nbytes = mesh__get32(s->heard + 4);
    if (nbytes > MESH_CONTROL_BYTES || goodbye) nbytes = 0;
    s->unkept = 0;
    if (kind == MESH_MPI__MISFIT) {
        if (nbytes == MESH_MPI__MISFIT_BYTES) mesh_mpi__misfit(s, rank);
    } else if (kind >= MESH_MPI__ASK && kind <= MESH_MPI__COMES_NOT) {
        if (nbytes == MESH_MPI__MISFIT_BYTES) mesh_mpi__asked(s, rank, kind);
    } else if (kind >= MESH_MPI__BACK && kind <= MESH_MPI__FREE) {
        if (nbytes == MESH_MPI__BACK_BYTES) mesh_mpi__back_heard(s, kind);
    } else if (mesh__inbox_add(&s->net->base, &s->mail, goodbye ? (int)MESH_EVENT_CLOSED : kind, rank,
                               s->heard + MESH_MPI__HEAD, nbytes)) {
        s->event = 1;
    } else {
        s->unkept = 1 + rank;
        s->starved = 1;
        return;
    }
    if (goodbye && !s->gone[rank]) s->ngone++;
    if (goodbye) s->gone[rank] = MESH_EVENT_CLOSED;
    if ((code = mesh_mpi__listen(s)) != MPI_SUCCESS) mesh_mpi__break(s, "MPI_Irecv", code);
}

MESH__PRIVATE mesh_status mesh_mpi__say(mesh_mpi__impl *s, int rank, int kind, const void *data, size_t nbytes) {
    unsigned char *m;
    MPI_Request *r;
    int code, class_of = MPI_SUCCESS;
    if (!mesh_mpi__room(s, 1)) return MESH_ERR_MEMORY;
    m = (unsigned char *)mesh_transport_alloc(&s->net->base, MESH_MPI__HEAD + nbytes);
    if (!m) return MESH_ERR_MEMORY;
    mesh__put32(m, (uint32_t)kind);
    mesh__put32(m + 4, (uint32_t)nbytes);
    if (nbytes) memcpy(m + MESH_MPI__HEAD, data, nbytes);
    r = mesh_mpi__next(s, NULL, rank);
    s->use[s->nrequests].memory = m;
    code = MPI_Isend(m, MESH_MPI__HEAD + (int)nbytes, MPI_BYTE, rank, MESH_MPI__CONTROL, s->control, r);
    if (code != MPI_SUCCESS) {
        mesh_transport_free(&s->net->base, m);
        s->said_code = code;
        MPI_Error_class(code, &class_of);
        return class_of == MPI_ERR_NO_MEM ? MESH_ERR_MEMORY : MESH_ERR_PEER;
    }
    s->nrequests++;
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh_mpi__control_send(mesh_transport *t, int rank, int kind, const void *data,
                                                 size_t nbytes) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    mesh_status status;
    mesh_error why;
    if (rank < 0 || rank >= t->size || rank == t->rank || nbytes > MESH_CONTROL_BYTES) return MESH_ERR_ARGUMENT;
    if (s->gone[rank] || s->unreached[rank]) return MESH_ERR_PEER;
    status = mesh_mpi__say(s, rank, kind, data, nbytes);
    if (status != MESH_ERR_PEER) return status;
    mesh_mpi__fail(&why, rank, "MPI_Isend", s->said_code); /* with the event: whoever needs that rank says it */
    s->unreached[rank] = mesh__inbox_add(t, &s->mail, MESH_EVENT_CLOSED, rank, why.text, (uint32_t)strlen(why.text));
    s->event = 1;
    return MESH_ERR_PEER;
}

MESH__PRIVATE mesh_status mesh_mpi__control_poll(mesh_transport *t, mesh_control *out) {
    return mesh__inbox_take(t, &mesh_mpi__of(t)->mail, out);
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
        mesh__fail(&why, MESH_ERR_MISMATCH, use->rank, "rank %d sent %u bytes, rank %d expected %u%s", use->rank, came,
                   me, use->nbytes, came == use->nbytes ? ", of another operation" : "");
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
            mesh_mpi__break(s, "a control message of MPI", code);
        return;
    }
    if (code == MPI_SUCCESS && use->receives && use->ticket) {
        MPI_Count came = 0;
        code = MPI_Get_elements_x(status, MPI_BYTE, &came);
        if (code != MPI_SUCCESS || (uint64_t)came != use->nbytes) mesh_mpi__wrong(s, use, code, (uint64_t)came);
    } else if (code != MPI_SUCCESS) {
        mesh_mpi__wrong(s, use, code, 0);
    }
    if (use->receives) use->links->received++;
    if (use->ticket && --use->ticket->left == 0) s->event = 1;
    mesh_transport_free(&s->net->base, use->memory);
    use->memory = NULL;
    use->ticket = NULL;
    use->rank = -2; /* to be taken out of the list */
}

/* Take a request out of the list, which is in no order. */
MESH__PRIVATE void mesh_mpi__drop(mesh_mpi__impl *s, int i) {
    s->nrequests--;
    s->request[i] = s->request[s->nrequests];
    s->use[i] = s->use[s->nrequests];
}

/* A receive meets its message. Another length under the same tag is left where it is. */
MESH__PRIVATE void mesh_mpi__meet(mesh_mpi__impl *s, int i, MPI_Message *message, uint64_t nbytes) {
    mesh_mpi__use *use = &s->use[i];
    int code;
    if (nbytes != use->nbytes) {
        mesh_mpi__wrong(s, use, MPI_SUCCESS, nbytes);
        return;
    }
    code = MPI_Imrecv(use->base, use->count, use->type, message, &s->request[i]);
    if (use->receives == MESH_MPI__HELD) use->links->held--;
    use->receives = MESH_MPI__MET;
    if (use->type != MPI_BYTE) MPI_Type_free(&use->type);
    use->type = MPI_BYTE;
    if (code == MPI_SUCCESS) return;
    s->request[i] = MPI_REQUEST_NULL;
    mesh_mpi__wrong(s, use, code, 0);
}

/* Messages that nothing has met so far: to the receives that are held for them, else they are kept. */
MESH__PRIVATE void mesh_mpi__arrivals(mesh_mpi__impl *s, mesh_mpi__links *g) {
    for (;;) {
        MPI_Message message;
        MPI_Status status;
        MPI_Count nbytes = 0;
        mesh_mpi__stray *m;
        int there = 0, i, first = 0, code;
        if (!s->blank) s->blank = (mesh_mpi__stray *)mesh_transport_alloc(&s->net->base, sizeof *m);
        if (!s->blank) {
            s->starved = 1;
            return;
        }
        code = MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, g->comm, &there, &message, &status);
        if (code != MPI_SUCCESS) mesh_mpi__break(s, "MPI_Improbe", code);
        if (code != MPI_SUCCESS || !there) return;
        code = MPI_Get_elements_x(&status, MPI_BYTE, &nbytes);
        if (code != MPI_SUCCESS) {
            mesh_mpi__break(s, "MPI_Get_elements_x", code);
            return;
        }
        for (i = 1; i < s->nrequests; i++) {
            const mesh_mpi__use *use = &s->use[i];
            if (use->receives != MESH_MPI__HELD || use->links != g || use->index != status.MPI_SOURCE ||
                use->tag != status.MPI_TAG || use->nbytes != (uint64_t)nbytes)
                continue;
            if (!first || use->serial < s->use[first].serial) first = i;
        }
        if (first) {
            mesh_mpi__meet(s, first, &message, (uint64_t)nbytes);
            continue;
        }
        m = s->blank;
        s->blank = NULL;
        m->next = NULL;
        m->message = message;
        m->nbytes = (uint64_t)nbytes;
        m->index = status.MPI_SOURCE;
        m->tag = status.MPI_TAG;
        *g->stray_end = m;
        g->stray_end = &m->next;
    }
}

/* The first that was kept for a new receive. */
MESH__PRIVATE int mesh_mpi__has_come(mesh_mpi__impl *s, int i) {
    mesh_mpi__links *g = s->use[i].links;
    mesh_mpi__stray **at, *m;
    for (at = &g->stray; (m = *at) != NULL; at = &m->next) {
        if (m->index != s->use[i].index || m->tag != s->use[i].tag || m->nbytes != s->use[i].nbytes) continue;
        *at = m->next;
        if (!m->next) g->stray_end = at;
        mesh_mpi__meet(s, i, &m->message, m->nbytes);
        mesh_transport_free(&s->net->base, m);
        return 1;
    }
    return 0;
}

/* One look at everything. */
MESH__PRIVATE void mesh_mpi__look(mesh_mpi__impl *s) {
    mesh_mpi__links *g;
    int n = 0, i, code;
    if (s->broken) return;
    if (s->unkept) mesh_mpi__heard(s, s->unkept - 1);
    for (g = s->links; g; g = g->next)
        if (g->held) mesh_mpi__arrivals(s, g);
    code = MPI_Testsome(s->nrequests, s->request, &n, s->which, s->status);
    if (n == MPI_UNDEFINED || n <= 0) {
        if (code != MPI_SUCCESS) mesh_mpi__break(s, "MPI_Testsome", code);
        return;
    }
    for (i = 0; i < n; i++)
        mesh_mpi__ended(s, s->which[i], &s->status[i], code == MPI_SUCCESS ? code : s->status[i].MPI_ERROR);
    for (i = s->nrequests - 1; i > 0; i--)
        if (s->use[i].rank == -2) mesh_mpi__drop(s, i);
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

/* What a tag has in common with those of other messages in its place. */
MESH__PRIVATE int64_t mesh_mpi__place_of(const mesh_mpi__impl *s, int tag) {
    return tag >= s->high_at ? tag : tag >> s->check_bits;
}

/* Has a rank sent something else than a receive expects of it? Messages of a rank come in order, so that one which stands in this place, and fits nothing, came
   instead. But MPI does not say that a receive has met its message, which may be long under way while a later one stands already: its sender is asked. */
MESH__RARE void mesh_mpi__misfits(mesh_mpi__impl *s) {
    int64_t now = mesh_mpi__clock();
    mesh_mpi__links *g;
    int i;
    for (g = s->links; g; g = g->next)
        if (g->used) mesh_mpi__arrivals(s, g);
    mesh_mpi__look(s);
    for (i = 1; i < s->nrequests; i++) {
        mesh_mpi__use *use = &s->use[i];
        const mesh_mpi__stray *m;
        if (!use->ticket || use->ticket->status != MESH_OK) continue;
        if (use->receives != MESH_MPI__AHEAD && use->receives != MESH_MPI__HELD) continue;
        for (m = use->links->stray; m; m = m->next)
            if (m->index == use->index && (m->tag != use->tag || m->nbytes != use->nbytes) &&
                mesh_mpi__place_of(s, m->tag) == mesh_mpi__place_of(s, use->tag))
                break;
        if (!m || !use->suspected) {
            use->suspected = m ? now : 0;
            use->asks = MESH_MPI__UNASKED;
            continue;
        }
        if (use->asks == MESH_MPI__ASKED && !s->gone[use->rank]) continue;
        if (now - use->suspected < MESH_MPI__SUSPECTED_NS + (int64_t)use->nbytes * MESH_MPI__SUSPECTED_PER_BYTE)
            continue;
        if (use->receives == MESH_MPI__AHEAD && use->asks == MESH_MPI__UNASKED && !s->gone[use->rank]) {
            int rank = use->rank;
            use->asks = MESH_MPI__ASKED;
            if (mesh_mpi__say_of(s, rank, MESH_MPI__ASK, use->links->serial, use->tag) != MESH_OK)
                s->use[i].asks = MESH_MPI__UNASKED;
            continue;
        }
        mesh_mpi__wrong(s, use, MPI_SUCCESS, m->nbytes);
        mesh_mpi__say_of(s, use->rank, MESH_MPI__MISFIT, use->links->serial, m->tag); /* else its deadline tells it */
    }
}

MESH__PRIVATE mesh_status mesh_mpi__progress(mesh_transport *t, int64_t deadline) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    int64_t start = 0, now;
    int looks = 0, event;
    for (;;) {
        mesh_mpi__look(s);
        if (s->event || s->broken || s->starved) break;
        if (deadline > 0 && !s->crowded && ++looks % MESH_MPI__SPINS) continue;
        now = mesh_mpi__clock();
        if (now >= s->misfits_at) {
            s->misfits_at = now + MESH_MPI__MISFIT_NS;
            mesh_mpi__misfits(s);
            if (s->event) break;
        }
        if (now >= deadline) break;
        if (!start) start = now;
        mesh_mpi__rest(s, now - start);
    }
    event = s->event;
    s->event = 0;
    if (s->broken && !event) return s->broken; /* or the operations say why first */
    if (!s->starved) return MESH_OK;
    s->starved = 0;
    return MESH_ERR_MEMORY;
}

#endif /* MESH_MPI_STATE_IMPLEMENTED */
