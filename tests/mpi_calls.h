/* MPI's calls as test_mpi.c sees them, by the profiling interface: what they make is counted, and one fails that is to. */
#ifndef MPI_CALLS_H
#define MPI_CALLS_H

/* What the library makes in MPI, by the profiling interface: it has to free it all, and no communicator with a message in it, which MPI may take for one of
   the next communicator. */
static int types_now, comms_now, comms_freed;
/* And a call of its that fails, when so many more have been made. */
static const char *failing;
static int failing_after;
static int fails(const char *call) { return failing && !strcmp(failing, call) && failing_after-- == 0; }
int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *found) {
    return fails("MPI_Comm_get_attr") ? MPI_ERR_OTHER : PMPI_Comm_get_attr(comm, key, value, found);
}
int MPI_Comm_group(MPI_Comm comm, MPI_Group *group) { return fails("MPI_Comm_group") ? MPI_ERR_OTHER : PMPI_Comm_group(comm, group); }
int MPI_Group_incl(MPI_Group group, int n, const int *rank, MPI_Group *made) {
    return fails("MPI_Group_incl") ? MPI_ERR_OTHER : PMPI_Group_incl(group, n, rank, made);
}
int MPI_Comm_get_errhandler(MPI_Comm comm, MPI_Errhandler *handler) {
    return fails("MPI_Comm_get_errhandler") ? MPI_ERR_OTHER : PMPI_Comm_get_errhandler(comm, handler);
}
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler) {
    return fails("MPI_Comm_set_errhandler") ? MPI_ERR_OTHER : PMPI_Comm_set_errhandler(comm, handler);
}
int MPI_Irecv(void *p, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *r) {
    return fails("MPI_Irecv") ? MPI_ERR_OTHER : PMPI_Irecv(p, count, type, from, tag, comm, r);
}
int MPI_Isend(const void *p, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *r) {
    return fails("MPI_Isend") ? MPI_ERR_OTHER : PMPI_Isend(p, count, type, to, tag, comm, r);
}
int MPI_Testsome(int n, MPI_Request *r, int *ended, int *which, MPI_Status *status) {
    return fails("MPI_Testsome") ? MPI_ERR_OTHER : PMPI_Testsome(n, r, ended, which, status);
}
int MPI_Improbe(int from, int tag, MPI_Comm comm, int *there, MPI_Message *message, MPI_Status *status) {
    return fails("MPI_Improbe") ? MPI_ERR_OTHER : PMPI_Improbe(from, tag, comm, there, message, status);
}
int MPI_Get_elements_x(const MPI_Status *status, MPI_Datatype type, MPI_Count *count) {
    return fails("MPI_Get_elements_x") ? MPI_ERR_OTHER : PMPI_Get_elements_x(status, type, count);
}
int MPI_Type_commit(MPI_Datatype *type) { return fails("MPI_Type_commit") ? MPI_ERR_OTHER : PMPI_Type_commit(type); }
int MPI_Type_contiguous(int count, MPI_Datatype old, MPI_Datatype *made) {
    return types_now++, PMPI_Type_contiguous(count, old, made);
}
int MPI_Type_create_hvector(int count, int length, MPI_Aint stride, MPI_Datatype old, MPI_Datatype *made) {
    return types_now++, PMPI_Type_create_hvector(count, length, stride, old, made);
}
int MPI_Type_create_struct(int count, const int *length, const MPI_Aint *at, const MPI_Datatype *old, MPI_Datatype *made) {
    return types_now++, PMPI_Type_create_struct(count, length, at, old, made);
}
int MPI_Type_free(MPI_Datatype *type) { return types_now--, PMPI_Type_free(type); }
int MPI_Request_free(MPI_Request *r) { /* of a collective that is under way it is an error, and what MPI does then is undefined */
    int code = PMPI_Request_free(r);
    CHECK_INT(code, MPI_SUCCESS);
    return code;
}
int MPI_Iallgather(const void *from, int n, MPI_Datatype type, void *to, int count, MPI_Datatype as, MPI_Comm comm, MPI_Request *r) {
    return fails("MPI_Iallgather") ? MPI_ERR_OTHER : PMPI_Iallgather(from, n, type, to, count, as, comm, r);
}
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *made, MPI_Request *r) {
    return fails("MPI_Comm_idup") ? MPI_ERR_OTHER : (comms_now++, PMPI_Comm_idup(comm, made, r));
}
int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *made) {
    return comms_now++, PMPI_Comm_create_group(comm, group, tag, made);
}
int MPI_Comm_free(MPI_Comm *comm) {
    int there = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, *comm, &there, MPI_STATUS_IGNORE);
    CHECK(!there);
    comms_freed++;
    return comms_now--, PMPI_Comm_free(comm);
}

#endif /* MPI_CALLS_H */
