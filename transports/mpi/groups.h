/* mpi/groups.h - a communicator for each list of ranks, made once they have said the same, and given back. Part of mesh.h 0.1.0. MIT licence.

   Includes state.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_MPI_GROUPS_IMPLEMENTED)
#define MESH_MPI_GROUPS_IMPLEMENTED
#include "state.h"

/* ---- // >>groups ---- */

/* What a rank says of a group that it opens, and what its first one answers. */
typedef struct mesh_mpi__vote {
    uint32_t id;
    int round;               /* 1: of a communicator that is about to be made: all is prepared */
    int status, rank;        /* a mesh_status, and whom it names */
    uint64_t hash;           /* of the ranks in order */
    uint64_t serial;         /* of the communicator that it has for them, 0: none; the one to use */
    uint64_t newest;         /* the greatest it has met */
    uint64_t sent, received; /* messages on the one that it has */
    uint64_t patience;       /* ns for which the first one waits for the others in the next round */
} mesh_mpi__vote;

MESH__PRIVATE void mesh_mpi__vote_wire(mesh__wire *w, mesh_mpi__vote *v) {
    mesh__wire32(w, &v->id);
    mesh__wire_int(w, &v->round);
    mesh__wire_int(w, &v->status);
    mesh__wire_int(w, &v->rank);
    mesh__wire64(w, &v->hash);
    mesh__wire64(w, &v->serial);
    mesh__wire64(w, &v->newest);
    mesh__wire64(w, &v->sent);
    mesh__wire64(w, &v->received);
    mesh__wire64(w, &v->patience);
}

/* Has a rank ended this comm? With its words; the engine has yet to read them. */
MESH__RARE mesh_status mesh_mpi__is_ended(const mesh_mpi__impl *s, uint32_t comm, int by, mesh_error *why) {
    const mesh__mail *m;
    for (m = s->mail.first; m; m = m->next) {
        const unsigned char *d = (const unsigned char *)(m + 1);
        char text[MESH_ERROR_BYTES];
        if (m->kind != MESH_EVENT_ABORT || m->nbytes < MESH__ABORT_HEAD || m->rank != by || mesh__get32(d) != comm)
            continue;
        mesh__abort_text(text, d, (uint32_t)m->nbytes);
        return mesh__fail(why, mesh__status_heard(d + 4), (int)mesh__get32(d + 8), "rank %d failed: %s", by, text);
    }
    return MESH_OK;
}

/* Wait for one request of this transport's own, beside all else. That a rank ends the comm counts where it is awaited: others may be through already, and
   have ended it in their first operation. */
MESH__RARE mesh_status mesh_mpi__await(mesh_mpi__impl *s, MPI_Request *r, int rank, uint32_t comm, int64_t deadline,
                                       mesh_error *why) {
    int64_t start = mesh_mpi__clock(), now = start;
    mesh_status status = MESH_OK;
    for (;;) {
        int ended = 0, code = MPI_Test(r, &ended, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) { /* nothing comes into the memory of a transport that is closed */
            if (*r != MPI_REQUEST_NULL && MPI_Cancel(r) == MPI_SUCCESS) MPI_Request_free(r);
            return mesh_mpi__fail(why, rank, "MPI_Test", code);
        }
        if (ended) return MESH_OK;
        if (status != MESH_OK) { /* and nothing came before that */
            MPI_Cancel(r);
            MPI_Test(r, &ended, MPI_STATUS_IGNORE);
            if (!ended) MPI_Request_free(r);
            return status;
        }
        mesh_mpi__look(s);
        now = mesh_mpi__clock();
        if (s->gone[rank])
            status = mesh__fail(why, MESH_ERR_PEER, rank, "rank %d has closed its transport", rank);
        else if ((status = mesh_mpi__is_ended(s, comm, rank, why)) == MESH_OK && now >= deadline)
            status = mesh__fail(why, MESH_ERR_TIMEOUT, rank, "rank %d has not come before the deadline", rank);
        if (status == MESH_OK) mesh_mpi__rest(s, now - start);
    }
}

/* Was this said of a comm that its speaker has ended, or this rank? Who gave a group up there left its words behind, and ids of comms are in no order of time. */
MESH__RARE int mesh_mpi__is_past(const mesh_mpi__impl *s, int by, uint32_t comm) {
    const mesh__engine *e = (const mesh__engine *)s->net->base.engine;
    mesh_error why;
    int i;
    for (i = 0; e && i < e->ncomms; i++)
        if (e->comm[i]->id == comm) return e->comm[i]->failed || mesh_mpi__is_ended(s, comm, by, &why) != MESH_OK;
    return 1;
}

/* A vote to or from a rank. What was said of groups opened before, and given up, is passed over. */
MESH__RARE mesh_status mesh_mpi__talk(mesh_mpi__impl *s, int sends, int rank, int tag, mesh_mpi__vote *v,
                                      int64_t deadline, mesh_error *why) {
    unsigned char *bytes = s->vote; /* what is given up may still come there */
    const int nbytes = MESH_MPI__VOTE_BYTES;
    uint32_t id = v->id;
    int round = v->round;
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
        status = mesh_mpi__await(s, &r, rank, id >> 8, deadline, why);
        if (status != MESH_OK) return status;
        w = mesh__reading(bytes);
        mesh_mpi__vote_wire(&w, v);
    } while (v->id < id || (v->id == id && v->round < round) ||
             (v->id >> 8 != id >> 8 && mesh_mpi__is_past(s, rank, v->id >> 8)));
    return MESH_OK;
}

/* Another rank than the first says what it has to, and hears what the first has decided. */
MESH__RARE mesh_status mesh_mpi__follow(mesh_mpi__impl *s, int first, mesh_mpi__vote *v, int64_t deadline,
                                        mesh_error *why) {
    uint32_t id = v->id;
    mesh_status status = mesh_mpi__talk(s, 1, first, MESH_MPI__VOTE, v, deadline, why);
    if (status == MESH_OK) /* its own deadline comes first: it says more */
        status = mesh_mpi__talk(s, 0, first, MESH_MPI__VERDICT, v, deadline + MESH_MPI__SECOND, why);
    if (status != MESH_OK) return status;
    if (v->id != id) v->status = MESH_ERR_MISMATCH, v->rank = first;
    if (v->status == MESH_OK) return MESH_OK;
    return mesh__fail(why, (mesh_status)v->status, v->rank,
                      v->status == MESH_ERR_TIMEOUT    ? "rank %d has not come before the deadline, or has given up"
                      : v->status == MESH_ERR_MISMATCH ? "rank %d opens another group"
                                                       : "rank %d could not open this group; it says why",
                      v->rank);
}

/* What one of them has said beside what the first knows. */
MESH__RARE mesh_status mesh_mpi__counted(mesh_mpi__vote *v, const mesh_mpi__vote *other, int rank, int first,
                                         mesh_error *why) {
    if (other->id != v->id || other->hash != v->hash)
        return mesh__fail(why, MESH_ERR_MISMATCH, rank, "rank %d opens another group than rank %d", rank, first);
    if (other->status != MESH_OK)
        return mesh__fail(why, (mesh_status)other->status, rank, "rank %d could not open this group: %s; it says why",
                          rank, mesh_status_text((mesh_status)other->status));
    if (other->serial != v->serial) v->serial = 0;
    if (other->newest > v->newest) v->newest = other->newest;
    v->sent += other->sent, v->received += other->received;
    return MESH_OK;
}

/* Has one of those who have come given up meanwhile? */
MESH__RARE mesh_status mesh_mpi__all_there(mesh_mpi__impl *s, const int *rank, int n, uint32_t comm, mesh_error *why) {
    mesh_status status = MESH_OK;
    mesh_error said;
    int i;
    mesh_mpi__look(s);
    for (i = 1; i < n && status == MESH_OK; i++) {
        if ((status = mesh_mpi__is_ended(s, comm, rank[i], &said)) != MESH_OK)
            mesh__fail(why, status, rank[i], "%s", said.text);
        else if (s->gone[rank[i]])
            status = mesh__fail(why, MESH_ERR_PEER, rank[i], "rank %d has closed its transport", rank[i]);
    }
    return status;
}

/* The first of the ranks hears what all say and decides; its word is everybody's. */
MESH__RARE mesh_status mesh_mpi__agree(mesh_mpi__impl *s, const int *rank, int n, mesh_mpi__vote *v, int64_t deadline,
                                       mesh_error *why) {
    mesh_status status = (mesh_status)v->status, talked;
    mesh_mpi__vote other;
    mesh_error first, said;
    int64_t left;
    int i;
    if (rank[0] != s->net->base.rank) return mesh_mpi__follow(s, rank[0], v, deadline, why);
    memset(&first, 0, sizeof first);
    first.rank = rank[0];
    for (i = 1; i < n; i++) {
        memset(&other, 0, sizeof other);
        other.id = v->id;
        other.round = v->round;
        talked = mesh_mpi__talk(s, 0, rank[i], MESH_MPI__VOTE, &other, deadline, &said);
        if (talked == MESH_OK) talked = mesh_mpi__counted(v, &other, rank[i], rank[0], &said);
        if (talked != MESH_OK && status == MESH_OK) status = talked, first = said;
    }
    if (status == MESH_OK) status = mesh_mpi__all_there(s, rank, n, v->id >> 8, &first);
    v->status = status;
    v->rank = first.rank;
    if (v->sent != v->received) v->serial = 0; /* what nobody received would be the next user's */
    if (!v->serial) v->serial = (v->newest + 1) | MESH_MPI__MADE;
    left = deadline - mesh_mpi__clock();
    v->patience = (uint64_t)(left > MESH_MPI__SECOND ? left : MESH_MPI__SECOND);
    for (i = 1; i < n; i++) {
        other = *v;
        talked = mesh_mpi__talk(s, 1, rank[i], MESH_MPI__VERDICT, &other, deadline + MESH_MPI__SECOND, &said);
        if (talked == MESH_OK || status != MESH_OK) continue;
        v->status = status = talked, v->rank = rank[i], first = said; /* it does not come: nor do those behind it */
    }
    if (status != MESH_OK) *why = first;
    return status;
}

MESH__RARE mesh_mpi__links *mesh_mpi__links_new(mesh_mpi__impl *s, const int *rank, int n, MPI_Comm comm,
                                                uint64_t serial) {
    mesh_mpi__links *g =
        (mesh_mpi__links *)mesh_transport_alloc(&s->net->base, sizeof *g + (size_t)n * 3 * sizeof(int));
    if (!g) return NULL;
    memset(g, 0, sizeof *g);
    g->rank = (int *)(g + 1);
    g->told = (uint32_t *)(g->rank + n);
    g->heard = g->told + n;
    memcpy(g->rank, rank, (size_t)n * sizeof(int));
    g->comm = comm;
    g->given = MPI_COMM_NULL;
    g->serial = serial;
    g->size = n;
    g->stray_end = &g->stray;
    g->next = s->links;
    s->links = g;
    return g;
}

MESH__RARE void mesh_mpi__links_free(mesh_mpi__impl *s, mesh_mpi__links *g) {
    mesh_mpi__links **at = &s->links;
    int i;
    for (i = 1; i < s->nrequests; i++) /* sends that have ended, which MPI has yet to say */
        if (s->use[i].links == g) s->use[i].links = NULL;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    if (g->comm != MPI_COMM_NULL) MPI_Comm_free(&g->comm);
    mesh_transport_free(&s->net->base, g);
}

/* A communicator of these ranks. MPI's own wait for them has no deadline. So each first does what may fail, and all hear of all that they are still there: one may
   have given up since it voted, while others were awaited. */
MESH__RARE mesh_status mesh_mpi__links_make(mesh_mpi__impl *s, const int *rank, int n, mesh_mpi__vote *v,
                                            mesh_mpi__links **out, mesh_error *why) {
    uint64_t serial = v->serial & ~MESH_MPI__MADE;
    int me = s->net->base.rank, code = MPI_SUCCESS;
    int64_t deadline = mesh_mpi__clock() + (int64_t)v->patience;
    mesh_status own = MESH_OK, status;
    mesh_error mine;
    MPI_Group members = MPI_GROUP_NULL;
    mesh_mpi__links *g = mesh_mpi__links_new(s, rank, n, MPI_COMM_NULL, serial);
    if (!g)
        own = mesh__fail(&mine, MESH_ERR_MEMORY, me, "mesh_mpi: no memory for a group");
    else if ((code = MPI_Group_incl(s->ranks, n, rank, &members)) != MPI_SUCCESS)
        own = mesh_mpi__fail(&mine, me, "MPI_Group_incl", code);
    v->round = 1, v->status = own, v->rank = me;
    v->sent = v->received = 0;
    if (me != rank[0])
        deadline += MESH_MPI__MARGIN; /* who gives up has heard nothing from the first, which has ended long since */
    status = mesh_mpi__agree(s, rank, n, v, deadline, why);
    if (own != MESH_OK) status = own, *why = mine;
    if (status == MESH_OK) {
        code = MPI_Comm_create_group(s->control, members, (int)(serial % 32767), &g->comm);
        if (code != MPI_SUCCESS) status = mesh_mpi__fail(why, me, "MPI_Comm_create_group", code);
    }
    if (members != MPI_GROUP_NULL) MPI_Group_free(&members);
    if (status != MESH_OK) {
        if (g) mesh_mpi__links_free(s, g);
        return status;
    }
    *out = g;
    if ((code = MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN)) == MPI_SUCCESS) return MESH_OK;
    g->used = g->spoilt = 1; /* until the transport closes */
    return mesh_mpi__fail(why, me, "MPI_Comm_set_errhandler", code);
}

/* The oldest that is kept for these ranks. */
MESH__RARE mesh_mpi__links *mesh_mpi__links_find(const mesh_mpi__impl *s, const int *rank, int n) {
    mesh_mpi__links *g, *found = NULL;
    for (g = s->links; g; g = g->next)
        if (!g->used && !g->back && g->size == n && !memcmp(g->rank, rank, (size_t)n * sizeof(int)) &&
            (!found || g->serial < found->serial))
            found = g;
    return found;
}

/* ---- // >>given back: MPI has few communicators, and frees one only where all its ranks do. Its first rank hears who uses it no more. */

MESH__RARE void mesh_mpi__back_say(mesh_mpi__impl *s, int rank, int kind, const mesh_mpi__links *g) {
    unsigned char said[MESH_MPI__BACK_BYTES];
    mesh__put64(said, g->serial);
    mesh__put64(said + 8, g->sent);
    mesh__put64(said + 16, g->received);
    mesh_mpi__say(s, rank, kind, said, sizeof said); /* else it is kept until the transport closes */
}

MESH__RARE void mesh_mpi__give_back(mesh_mpi__impl *s, mesh_mpi__links *g);

/* One rank more has; this is the first of them. The others are asked for it. What is still on its way there may meet the next that MPI puts in its place: then
   all keep it. */
MESH__RARE void mesh_mpi__has_back(mesh_mpi__impl *s, mesh_mpi__links *g, uint64_t sent, uint64_t received) {
    int i, all = ++g->nback == g->size;
    g->balance += sent - received;
    if (all ? g->balance != 0 : g->nback > 1) return;
    for (i = 1; i < g->size; i++) mesh_mpi__back_say(s, g->rank[i], all ? MESH_MPI__FREE : MESH_MPI__WANTED, g);
    if (all) {
        mesh_mpi__links_free(s, g);
        return;
    }
    g->wanted = 1;
    if (!g->used) mesh_mpi__give_back(s, g);
}

/* This rank uses it no more. A copy that the program has is promised until the transport closes. */
MESH__RARE void mesh_mpi__give_back(mesh_mpi__impl *s, mesh_mpi__links *g) {
    if (g->back || g->spoilt || g->given != MPI_COMM_NULL || s->parting) return;
    g->back = 1;
    if (g->rank[0] == s->net->base.rank)
        mesh_mpi__has_back(s, g, g->sent, g->received);
    else
        mesh_mpi__back_say(s, g->rank[0], MESH_MPI__BACK, g);
}

MESH__RARE void mesh_mpi__back_heard(mesh_mpi__impl *s, int kind) {
    const unsigned char *said = s->heard + MESH_MPI__HEAD;
    mesh_mpi__links *g = s->links;
    while (g && (g == s->whole || g->serial != mesh__get64(said))) g = g->next;
    if (!g) return;
    if (kind == MESH_MPI__FREE) {
        mesh_mpi__links_free(s, g);
    } else if (s->parting) {
        return; /* and all goes with the transport */
    } else if (kind == MESH_MPI__BACK) {
        mesh_mpi__has_back(s, g, mesh__get64(said + 8), mesh__get64(said + 16));
    } else {
        g->wanted = 1;
        if (!g->used) mesh_mpi__give_back(s, g);
    }
}

/* The group is closed, or was not opened after all. Of too many that are kept the one goes that has not been used for the longest time. */
MESH__RARE void mesh_mpi__links_idle(mesh_mpi__impl *s, mesh_mpi__links *g) {
    mesh_mpi__links *k, *oldest = NULL;
    int n = 0;
    g->closed = ++s->closes;
    g->used = g->spoilt;
    if (g->used) return;
    if (g->wanted) {
        mesh_mpi__give_back(s, g);
        return;
    }
    for (k = s->links; k; k = k->next) {
        if (k->used || k->back || k->given != MPI_COMM_NULL) continue;
        n++;
        if (!oldest || k->closed < oldest->closed) oldest = k;
    }
    if (n > s->idle_most) mesh_mpi__give_back(s, oldest);
}

/* It was proposed, and not all have it, or it has what nobody received. */
MESH__RARE void mesh_mpi__links_refused(mesh_mpi__impl *s, mesh_mpi__links *g) {
    g->used = g->spoilt = g->given != MPI_COMM_NULL;
    mesh_mpi__give_back(s, g);
}

/* ---- // >>opening and closing groups ---- */

MESH__RARE mesh_status mesh_mpi__group_open(mesh_transport *t, void *parent, uint32_t id, const mesh *group, int color,
                                            int key, int64_t deadline, void **out, mesh_error *why) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
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
    g = mesh_mpi__links_find(s, rank, n);
    if (g) v.serial = g->serial, v.sent = g->sent, v.received = g->received;
    if (g) g->used = 1; /* it stays meanwhile */
    status = mesh_mpi__agree(s, rank, n, &v, deadline, why);
    if (status == MESH_OK) {
        if ((v.serial & ~MESH_MPI__MADE) > s->serial) s->serial = v.serial & ~MESH_MPI__MADE;
        if (v.serial & MESH_MPI__MADE) {
            if (g) mesh_mpi__links_refused(s, g); /* else the same one would be proposed for ever */
            status = mesh_mpi__links_make(s, rank, n, &v, &g, why);
        }
    } else if (g) {
        mesh_mpi__links_idle(s, g);
    }
    if (status == MESH_OK) {
        g->used = 1;
        memset(g->told, 0, 2 * (size_t)n * sizeof *g->told);
        *out = g;
    }
    mesh_transport_free(t, rank);
    return status;
}

/* The next group of the same ranks has it, unless something was left there. */
MESH__RARE mesh_status mesh_mpi__group_close(mesh_transport *t, void *group) {
    mesh_mpi__links_idle(mesh_mpi__of(t), (mesh_mpi__links *)group);
    return MESH_OK;
}

MESH__RARE int mesh_mpi__locality(mesh_transport *t, int rank) { return mesh_mpi__of(t)->host[rank]; }

#endif /* MESH_MPI_GROUPS_IMPLEMENTED */
