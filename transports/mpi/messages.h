/* mpi/messages.h - each message is one of MPI's, under a tag of its own. Part of mesh.h 0.1.0. MIT licence.

   Includes state.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_MPI_MESSAGES_IMPLEMENTED)
#define MESH_MPI_MESSAGES_IMPLEMENTED
#include "state.h"

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

/* Where a channel's messages stand in their group's order. Places are used again, which no two operations under way at once are apart. On the world's own
   communicator (the core always has a group's) the group is part of it. */
MESH__PRIVATE int64_t mesh_mpi__place(const mesh_mpi__impl *s, uint64_t channel, int on_world) {
    uint32_t sequence = (uint32_t)channel;
    int64_t n = sequence & 0x3fffffff;
    if (on_world) return (int64_t)(((channel >> 32) + (uint64_t)sequence * 65537) % (uint64_t)s->places);
    if (!sequence) return 0;
    if (sequence >= MESH__PAYLOAD) return 1 + n % (s->tagged_at - 1);
    if (sequence & MESH__TAGGED) return s->tagged_at + n;
    return s->ordered_at + sequence % (s->places - s->ordered_at);
}

/* A message's tag: MPI lets it meet its own receive only. Untagged messages of point to point are counted, so that two of different lengths
   do not change places. Tags that are higher than there are places have the upper half of MPI's for themselves: their messages differ by length alone.
   (Those that the library gives away count down from the highest there is.) -1: MPI has no such tag. */
MESH__PRIVATE int mesh_mpi__tag(const mesh_mpi__impl *s, mesh_mpi__links *links, const mesh_post *p, const mesh_xfer *x,
                                int64_t place) {
    uint64_t what = mesh__mix(mesh__mix(p->channel, p->check), x->nbytes);
    if (p->channel & MESH__TAGGED && (uint32_t)p->channel < MESH__PAYLOAD && place >= s->ordered_at) {
        int64_t n = place - s->tagged_at, down = MESH__TAGS - n;
        if (n < s->high_at - MESH_MPI__PLACES) return (int)(s->high_at + n);
        return down < MESH_MPI__PLACES && down < s->high_at ? (int)(2 * s->high_at - 1 - down) : -1;
    }
    if (links != s->whole && !place)
        what = mesh__mix(what, (x->direction == MESH_SEND ? links->told : links->heard)[x->index]++);
    return (int)(place << s->check_bits | (int64_t)(what & ((UINT64_C(1) << s->check_bits) - 1)));
}

/* Take a ticket's requests back. MPI lets go of a receive that nothing has met, and what is coming in has a moment to end, for it is being written;
   all else is left to MPI. */
MESH__RARE void mesh_mpi__take_back(mesh_mpi__impl *s, mesh_mpi__ticket *k) {
    int64_t now = mesh_mpi__clock();
    int i;
    if (!k->until) k->until = now + MESH_MPI__LAST_NS;
    for (i = s->nrequests - 1; i > 0; i--) {
        mesh_mpi__use *use = &s->use[i];
        MPI_Status status;
        int ended = use->receives == MESH_MPI__HELD;
        if (use->ticket != k) continue;
        if (use->receives == MESH_MPI__MET && now < k->until) continue;
        if (ended) use->links->held--;
        if (ended && use->type != MPI_BYTE) MPI_Type_free(&use->type);
        if (use->receives == MESH_MPI__AHEAD) MPI_Cancel(&s->request[i]);
        if (!ended) {
            int canceled = 1;
            if (MPI_Test(&s->request[i], &ended, &status) != MPI_SUCCESS)
                ended = 1;
            else if (ended && use->receives)
                MPI_Test_cancelled(&status, &canceled);
            if (!canceled) use->links->received++; /* it had come */
        }
        if (!ended && use->receives == MESH_MPI__AHEAD) { /* it has met its message, which is coming in */
            use->receives = MESH_MPI__MET;
            if (now < k->until) continue;
        }
        k->left--;
        use->ticket = NULL;
        if (ended) {
            mesh_mpi__drop(s, i);
            continue;
        }
        k->orphaned = 1;
        if (k->links && use->rank < 0) k->links->spoilt = 1;
        if (k->temp) use->memory = k->temp, k->temp = NULL;
    }
}

/* Are there gaps between a block's runs? */
MESH__PRIVATE int mesh_mpi__gaps(const mesh_block *b) {
    uint64_t extent;
    int k;
    if (!b) return 0;
    for (k = b->ndim - 1, extent = b->run; k >= 0; k--) {
        if (b->dim[k].count != 1 && (uint64_t)b->dim[k].stride != extent) return 1;
        extent *= (uint64_t)b->dim[k].count;
    }
    return 0;
}

/* Is a receive held for a message whose tag is this one's, by chance or because they are alike? It comes before. */
MESH__PRIVATE int mesh_mpi__follows(const mesh_mpi__impl *s, const mesh_mpi__use *use) {
    int i;
    for (i = 1; i < s->nrequests; i++) {
        const mesh_mpi__use *u = &s->use[i];
        if (u->receives == MESH_MPI__HELD && u->links == use->links && u->index == use->index && u->tag == use->tag)
            return 1;
    }
    return 0;
}

/* A message, as the request that comes next. MPI is told of large receives ahead where the post has gaps: Open MPI 4.1 writes beyond a receive that is
   too short only where neither sender nor receiver have any, and ranks that exchange blocks with gaps have them at one end of each message. */
MESH__PRIVATE int mesh_mpi__post_one(mesh_mpi__impl *s, const mesh_xfer *x, mesh_mpi__links *g, int gaps,
                                     const char **call) {
    int i = s->nrequests, code = MPI_SUCCESS;
    mesh_mpi__use *use = &s->use[i];
    use->index = g == s->whole ? x->rank : x->index;
    use->base = x->base;
    use->count = (int)x->nbytes;
    *call = "a datatype of MPI";
    if (x->nbytes && (x->block || x->nbytes > INT_MAX)) {
        code =
            x->block ? mesh_mpi__type_of_block(x->block, &use->type) : mesh_mpi__type_of_bytes(x->nbytes, &use->type);
        if (code == MPI_SUCCESS) code = MPI_Type_commit(&use->type);
        use->count = 1;
    }
    if (code == MPI_SUCCESS) *call = x->direction == MESH_SEND ? "MPI_Isend" : "MPI_Irecv";
    if (code == MPI_SUCCESS && x->direction == MESH_SEND) {
        code = MPI_Isend(x->base, use->count, use->type, use->index, use->tag, g->comm, &s->request[i]);
        if (code == MPI_SUCCESS) g->sent++;
    } else if (code == MPI_SUCCESS) {
        use->nbytes = x->nbytes;
        use->serial = ++s->receives;
        use->receives = MESH_MPI__AHEAD;
        if (g->stray && mesh_mpi__has_come(s, i)) return MPI_SUCCESS;
        if (use->tag >= s->high_at || (x->nbytes > MESH_MPI__SMALL && !gaps) ||
            (g->held && mesh_mpi__follows(s, use))) {
            use->receives = MESH_MPI__HELD;
            g->held++;
            return MPI_SUCCESS;
        }
        code = MPI_Irecv(x->base, use->count, use->type, use->index, use->tag, g->comm, &s->request[i]);
    }
    if (use->type != MPI_BYTE) MPI_Type_free(&use->type);
    return code;
}

MESH__PRIVATE mesh_status mesh_mpi__post(mesh_transport *t, const mesh_post *p, mesh_ticket *ticket) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    mesh_mpi__links *g = p->group ? (mesh_mpi__links *)p->group : s->whole;
    int64_t place = mesh_mpi__place(s, p->channel, !p->group);
    int i, code = MPI_SUCCESS, gaps = 0;
    const char *call = "";
    mesh_mpi__ticket *k;
    if (!mesh_mpi__room(s, p->count) || !(k = mesh_mpi__ticket_new(s, g))) return MESH_ERR_MEMORY;
    ticket->impl = k;
    ticket->id = p->channel;
    for (i = 0; i < p->count && !gaps; i++) gaps = mesh_mpi__gaps(p->xfer[i].block);
    for (i = 0; i < p->count; i++) {
        const mesh_xfer *x = &p->xfer[i];
        int tag = mesh_mpi__tag(s, g, p, x, place);
        if (tag < 0) { /* said by test, which has room for why; as what MPI refuses */
            mesh_error why;
            mesh__fail(&why, MESH_ERR_UNSUPPORTED, t->rank,
                       "MPI has no room for tag %u; it has for those below %l here", p->channel & MESH__TAGS,
                       s->high_at > 2 * MESH_MPI__PLACES ? s->high_at - MESH_MPI__PLACES
                                                         : s->ordered_at - s->tagged_at);
            mesh_mpi__ticket_fail(k, &why);
            return MESH_OK;
        }
        mesh_mpi__next(s, k, x->rank);
        s->use[s->nrequests].tag = tag;
        if ((code = mesh_mpi__post_one(s, x, g, gaps, &call)) != MPI_SUCCESS) break;
        s->nrequests++;
        k->left++;
    }
    if (code != MPI_SUCCESS) {
        mesh_error why;
        mesh_mpi__fail(&why, p->xfer[i].rank, call, code);
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
    if (k->left) mesh_mpi__take_back(s, k); /* one of them has failed, or all were canceled */
    if (k->left) return MESH_IN_PROGRESS;
    if (status == MESH_OK && k->result) memcpy(k->result, k->temp, k->result_bytes);
    if (status != MESH_OK && why) *why = k->why;
    if (k->orphaned) ticket->id = MESH_TICKET_ORPHANED;
    ticket->impl = NULL;
    mesh_mpi__ticket_end(s, k);
    return status;
}

/* MPI does not tell which sends have been met: who is sent to counts until all is sent. */
MESH__PRIVATE int mesh_mpi__pending(mesh_transport *t, const mesh_ticket *ticket, int *ranks, int cap) {
    const mesh_mpi__impl *s = mesh_mpi__of(t);
    const mesh_mpi__ticket *k = (const mesh_mpi__ticket *)ticket->impl;
    int i, j, n = 0;
    if (!(t->caps & MESH_CAP_PENDING)) return 0;
    for (i = 1; i < s->nrequests; i++) {
        const mesh_mpi__use *use = &s->use[i];
        if (use->ticket != k || use->receives == MESH_MPI__MET) continue;
        for (j = 1; j < i; j++)
            if (s->use[j].ticket == k && s->use[j].rank == use->rank && s->use[j].receives != MESH_MPI__MET) break;
        if (j < i) continue;
        if (n < cap) ranks[n] = use->rank;
        n++;
    }
    return n;
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

#endif /* MESH_MPI_MESSAGES_IMPLEMENTED */
