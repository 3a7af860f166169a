/* mpi/calls.h - MPI's own collectives. Part of mesh.h 0.1.0. MIT licence.

   Includes messages.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_MPI_CALLS_IMPLEMENTED)
#define MESH_MPI_CALLS_IMPLEMENTED
#include "messages.h"

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
    int compared = dtype != MESH_F32 && dtype != MESH_F64 && dtype != MESH_U8 && dtype != MESH_U16 &&
                   dtype != MESH_U32 && dtype != MESH_U64,
        small = dtype == MESH_I8 || dtype == MESH_U8 || dtype == MESH_I16 || dtype == MESH_U16;
    switch (op) {
    case MESH_SUM: /* Open MPI's of 8 and 16 bits end at the greatest number in wide registers */
        return small ? MPI_OP_NULL : MPI_SUM;
    case MESH_PROD:
        return MPI_PROD;
    case MESH_MIN: /* of floats MPI does not say what becomes of a NaN; MPICH 4.0 takes unsigned numbers for signed ones */
        return compared ? MPI_MIN : MPI_OP_NULL;
    case MESH_MAX:
        return compared ? MPI_MAX : MPI_OP_NULL;
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

/* MPI's way to say that memory is sent from and received in is for all ranks at once, where each decides here. So all do, having copied what they send to where
   they receive; or none does, where what is sent in place goes by way of a copy. (A root's is its own.) */
MESH__PRIVATE int mesh_mpi__reduce(mesh_mpi__impl *s, const mesh_mpi__links *g, const mesh_call *c, mesh_mpi__ticket *k,
                                   MPI_Request *r) {
    MPI_Datatype type = mesh_mpi__number(c->dtype);
    MPI_Op op = mesh_mpi__op(c->op, c->dtype);
    int count = (int)c->count, me;
    size_t bytes = c->count * c->elem_bytes;
    MPI_Comm_rank(g->comm, &me);
    if ((c->kind == MESH_CALL_ALL_REDUCE || c->kind == MESH_CALL_SCAN) && !c->in_place && bytes)
        mesh__copy_bytes(c->recv, c->send, bytes);
    switch (c->kind) {
    case MESH_CALL_ALL_REDUCE:
        return MPI_Iallreduce(MPI_IN_PLACE, c->recv, count, type, op, g->comm, r);
    case MESH_CALL_REDUCE:
        return MPI_Ireduce(me == c->root && c->in_place ? MPI_IN_PLACE : c->send, c->recv, count, type, op, c->root,
                           g->comm, r);
    case MESH_CALL_SCAN:
        return MPI_Iscan(MPI_IN_PLACE, c->recv, count, type, op, g->comm, r);
    case MESH_CALL_EXSCAN: /* the first gets nothing, and may have no memory for it */
        if (me && !c->in_place) return MPI_Iexscan(c->send, c->recv, count, type, op, g->comm, r);
        if (!mesh_mpi__temp(s, k, bytes)) return MPI_ERR_NO_MEM;
        if (!me) return MPI_Iexscan(c->send, k->temp, count, type, op, g->comm, r);
        if (bytes) mesh__copy_bytes(k->temp, c->send, bytes);
        return MPI_Iexscan(k->temp, c->recv, count, type, op, g->comm, r);
    default:
        if (!c->in_place) return MPI_Ireduce_scatter_block(c->send, c->recv, count, type, op, g->comm, r);
        if (!mesh_mpi__temp(s, k, bytes)) return MPI_ERR_NO_MEM;
        k->result = c->recv;
        k->result_bytes = bytes;
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
        if (me == c->root && recv && recv != send && bytes) mesh__copy_bytes(recv, send, bytes);
        return MPI_Ibcast(me == c->root ? (void *)(uintptr_t)send : recv, n, MPI_BYTE, c->root, g->comm, r);
    case MESH_CALL_ALL_GATHER:
        if (!c->in_place && bytes) mesh__copy_bytes((char *)recv + (size_t)me * bytes, send, bytes);
        return MPI_Iallgather(MPI_IN_PLACE, n, MPI_BYTE, recv, n, MPI_BYTE, g->comm, r);
    case MESH_CALL_GATHER:
        return MPI_Igather(me == c->root && c->in_place ? MPI_IN_PLACE : send, n, MPI_BYTE, recv, n, MPI_BYTE, c->root,
                           g->comm, r);
    case MESH_CALL_SCATTER:
        return MPI_Iscatter(send, n, MPI_BYTE, me == c->root && c->in_place ? MPI_IN_PLACE : recv, n, MPI_BYTE, c->root,
                            g->comm, r);
    default:
        if (c->in_place) {
            if (!mesh_mpi__temp(s, k, bytes * (size_t)g->size)) return MPI_ERR_NO_MEM;
            if (bytes) mesh__copy_bytes(k->temp, send, bytes * (size_t)g->size);
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
    r = mesh_mpi__next(s, k, -1);
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

#endif /* MESH_MPI_CALLS_IMPLEMENTED */
