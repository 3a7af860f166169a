/* mpi/open.h - the transport, opened and closed. Part of mesh.h 0.1.0. MIT licence.

   Includes calls.h, groups.h, mesh_env.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_MPI_OPEN_IMPLEMENTED)
#define MESH_MPI_OPEN_IMPLEMENTED
#include "calls.h"
#include "groups.h"
#include "../mesh_env.h"

/* ---- // >>close ---- */

/* Receive what nobody has: its sender is free of it then. */
MESH__RARE void mesh_mpi__drain(mesh_mpi__impl *s, mesh_mpi__links *g) {
    mesh_mpi__stray *m;
    mesh_mpi__arrivals(s, g);
    while ((m = g->stray) != NULL && mesh_mpi__room(s, 1)) {
        mesh_mpi__use *use;
        void *p = mesh_transport_alloc(&s->net->base, m->nbytes ? (size_t)m->nbytes : 1);
        if (!p) return;
        mesh_mpi__next(s, NULL, -1);
        use = &s->use[s->nrequests];
        use->memory = use->base = p;
        use->links = g;
        use->nbytes = m->nbytes;
        use->count = m->nbytes > INT_MAX ? 1 : (int)m->nbytes;
        if (m->nbytes > INT_MAX && mesh_mpi__type_of_bytes(m->nbytes, &use->type) == MPI_SUCCESS)
            MPI_Type_commit(&use->type);
        mesh_mpi__meet(s, s->nrequests, &m->message, m->nbytes);
        s->nrequests++;
        g->stray = m->next;
        mesh_transport_free(&s->net->base, m);
    }
    if (!g->stray) g->stray_end = &g->stray;
}

/* And what was said of groups that nobody opened in the end: in the next communicator that MPI puts in this one's place it would be believed. */
MESH__RARE void mesh_mpi__drain_votes(mesh_mpi__impl *s) {
    int tag, there = 1;
    for (tag = MESH_MPI__VOTE; tag <= MESH_MPI__VERDICT; tag += !there) {
        MPI_Message message;
        if (MPI_Improbe(MPI_ANY_SOURCE, tag, s->control, &there, &message, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
        if (there) MPI_Mrecv(s->vote, MESH_MPI__VOTE_BYTES, MPI_BYTE, &message, MPI_STATUS_IGNORE);
    }
}

/* Nothing more is listened to: it would be written to memory that is free. */
MESH__RARE void mesh_mpi__deafen(mesh_mpi__impl *s) {
    int ended = 0;
    if (!s->nrequests || s->request[0] == MPI_REQUEST_NULL) return;
    if (MPI_Cancel(&s->request[0]) == MPI_SUCCESS) MPI_Test(&s->request[0], &ended, MPI_STATUS_IGNORE);
    if (!ended && s->request[0] != MPI_REQUEST_NULL) MPI_Request_free(&s->request[0]);
}

/* Communicators on which others may yet send are left to MPI_Finalize: MPI would take what comes late for a message of the next that has their place. */
MESH__RARE void mesh_mpi__release(mesh_mpi__impl *s, int others_may_send) {
    mesh_transport *t = &s->net->base;
    mesh_mpi__deafen(s);
    while (s->links) {
        mesh_mpi__links *g = s->links;
        s->links = g->next;
        while (g->stray) {
            mesh_mpi__stray *m = g->stray;
            g->stray = m->next;
            mesh_transport_free(t, m);
        }
        if (g->given != MPI_COMM_NULL && !others_may_send) MPI_Comm_free(&g->given);
        if (!others_may_send && g != s->whole) MPI_Comm_free(&g->comm);
        mesh_transport_free(t, g);
    }
    if (s->ranks != MPI_GROUP_NULL) MPI_Group_free(&s->ranks);
    if (s->control != MPI_COMM_NULL && !others_may_send) MPI_Comm_free(&s->control);
    if (s->world != MPI_COMM_NULL && !others_may_send) MPI_Comm_free(&s->world);
    mesh__inbox_free(t, &s->mail);
    while (s->spare) {
        mesh_mpi__ticket *k = s->spare;
        s->spare = k->next;
        mesh_transport_free(t, k);
    }
    mesh_transport_free(t, s->blank);
    mesh_transport_free(t, s->request);
    mesh_transport_free(t, s->status);
    mesh_transport_free(t, s->use);
    mesh_transport_free(t, s->which);
    mesh_transport_free(t, s->host);
    mesh_transport_free(t, s->gone);
    /* The program's is put back, unless it has set one of its own meanwhile. */
    if (--mesh_mpi__world.open == 0 && mesh_mpi__world.before != MPI_ERRHANDLER_NULL) {
        MPI_Errhandler now = MPI_ERRHANDLER_NULL;
        MPI_Comm_get_errhandler(MPI_COMM_WORLD, &now);
        if (now == MPI_ERRORS_RETURN) MPI_Comm_set_errhandler(MPI_COMM_WORLD, mesh_mpi__world.before);
        if (now != MPI_ERRHANDLER_NULL) MPI_Errhandler_free(&now);
        MPI_Errhandler_free(&mesh_mpi__world.before);
    }
    s->net->impl = NULL;
    t->ops = NULL;
    mesh_transport_free(t, s);
}

/* Goodbye to whom it has not been said. How many are left? */
MESH__RARE int mesh_mpi__part(mesh_mpi__impl *s) {
    int i, left = 0, n = s->net->base.size;
    for (i = 0; i < n; i++) {
        if (i == s->net->base.rank || s->parted[i]) continue;
        s->parted[i] = mesh_mpi__say(s, i, MESH_MPI__GOODBYE, NULL, 0) == MESH_OK;
        left += !s->parted[i];
    }
    return left;
}

MESH__RARE mesh_status mesh_mpi__close(mesh_transport *t, mesh_error *why) {
    mesh_mpi__impl *s = mesh_mpi__of(t);
    mesh__engine *e = (mesh__engine *)t->engine;
    int64_t patience = e && e->failed ? mesh_transport_patience(t) : MESH_MPI__PATIENCE, start = mesh_mpi__clock(),
            now = start, last = 0;
    mesh_mpi__links *g;
    mesh_status status = mesh__enter(t, why, "mpi_close");
    int i, left, ended = 0;
    if (status != MESH_OK) return status;
    mesh__leave(t);
    MPI_Finalized(&ended);
    if (ended)
        return mesh__fail(why, MESH_ERR_STATE, -1, "mesh_mpi_close: MPI is finalised; call it before MPI_Finalize");
    while (e && e->ncomms) mesh_comm_close(e->comm[e->ncomms - 1]);
    s->parting = 1;
    left = mesh_mpi__part(s);
    while (!s->broken && now - start < patience) {
        mesh_mpi__look(s);
        for (g = s->links; g; g = g->next) mesh_mpi__drain(s, g);
        mesh_mpi__drain_votes(s);
        now = mesh_mpi__clock();
        if (left) left = mesh_mpi__part(s); /* there was no memory for it */
        /* What then is still under way was given up, and never ends unless it was for this. */
        if (!left && s->ngone == t->size - 1) {
            if (s->nrequests == 1 || (last && now - last > MESH_MPI__LAST_NS)) break;
            if (!last) last = now;
        }
        mesh_mpi__rest(s, now - start);
    }
    if (s->broken) {
        status = mesh__fail(why, s->broken, t->rank, "mesh_mpi_close: MPI has failed: what is under way is left to it");
    } else if (s->ngone < t->size - 1) {
        for (i = 0; i < t->size && (s->gone[i] || i == t->rank);) i++;
        status = mesh__fail(why, MESH_ERR_TIMEOUT, i, "mesh_mpi_close: rank %d has not closed within %l ms", i,
                            patience / 1000000);
    } else if (left) {
        status = mesh__fail(why, MESH_ERR_TRANSPORT, t->rank, "mesh_mpi_close: %d ranks could not be told of it", left);
    }
    if (s->nrequests > 1) mesh__retired_leave(t);
    mesh_transport_detach(t);
    for (i = 1; i < s->nrequests; i++)
        if (s->request[i] != MPI_REQUEST_NULL && s->use[i].rank >= 0) /* a collective's is MPI's (MPI-4, 6.12) */
            MPI_Request_free(&s->request[i]);
    mesh_mpi__release(s, status != MESH_OK);
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
                                       NULL,
                                       MESH_OPS_NO_KERNELS};

MESH__RARE mesh_status mesh_mpi__fail_in(mesh_error *err, const char *function, const char *call, int code) {
    char text[64];
    mesh__text t = mesh__text_on(text, sizeof text);
    mesh__put(&t, "%s: %s", function, call);
    return mesh_mpi__fail(err, -1, text, code);
}

/* Where ranks that open the transport hear of one that cannot go on: the last of their own communicators that all have asked for. */
MESH__RARE MPI_Comm mesh_mpi__meanwhile(const mesh_mpi__impl *s) {
    return s->agreed ? MPI_COMM_NULL : s->control != MPI_COMM_NULL ? s->control : s->world;
}

/* This rank does not take part in what all do next. What is sent outlives the transport. */
MESH__RARE void mesh_mpi__give_up(const mesh_mpi__impl *s, mesh_status status) {
    static const signed char said[] = {0, -1, -2, -3, -4, -5, -6, -7, -8, -9};
    MPI_Comm on = mesh_mpi__meanwhile(s);
    int i;
    for (i = 0; on != MPI_COMM_NULL && i < s->net->base.size; i++) {
        MPI_Request r;
        if (i != s->net->base.rank &&
            MPI_Isend(&said[-(int)status], 1, MPI_BYTE, i, MESH_MPI__GIVEN_UP, on, &r) == MPI_SUCCESS)
            MPI_Request_free(&r);
    }
}

/* Has another rank said so? */
MESH__RARE mesh_status mesh_mpi__given_up(const mesh_mpi__impl *s, mesh_error *err) {
    MPI_Comm on = mesh_mpi__meanwhile(s);
    MPI_Status from;
    signed char said = 0;
    int there = 0;
    if (on == MPI_COMM_NULL || MPI_Iprobe(MPI_ANY_SOURCE, MESH_MPI__GIVEN_UP, on, &there, &from) != MPI_SUCCESS ||
        !there || MPI_Recv(&said, 1, MPI_BYTE, from.MPI_SOURCE, MESH_MPI__GIVEN_UP, on, &from) != MPI_SUCCESS)
        return MESH_OK;
    return mesh__fail(err, (mesh_status)said, from.MPI_SOURCE, "mesh_mpi_open: rank %d failed: %s; it says why",
                      from.MPI_SOURCE, mesh_status_text((mesh_status)said));
}

/* Until all ranks of a communicator have come to what this is a request of. On error it may be under way yet. */
MESH__RARE mesh_status mesh_mpi__all_come(mesh_transport *t, const char *function, MPI_Request *r, int64_t deadline,
                                          mesh_error *err) {
    int64_t start = mesh_mpi__clock(), now = start;
    int ended = 0, code, *left = &mesh_mpi__of(t)->left_to_mpi;
    mesh_status status;
    while ((code = MPI_Test(r, &ended, MPI_STATUS_IGNORE)) == MPI_SUCCESS && !ended) {
        now = mesh_mpi__clock();
        if ((status = mesh_mpi__given_up(mesh_mpi__of(t), err)) != MESH_OK) {
            *left = 1;
            return status;
        }
        if (now >= deadline) {
            *left = 1;
            return mesh__fail(err, MESH_ERR_TIMEOUT, -1,
                              "%s: not all ranks have called it within %l ms; every rank of the communicator calls it",
                              function, (deadline - start) / 1000000);
        }
        if (mesh_mpi__of(t)->nrequests) mesh_mpi__look(mesh_mpi__of(t));
        if (now - start > MESH_MPI__YIELD_NS) sched_yield();
    }
    if (code == MPI_SUCCESS) return MESH_OK;
    *left = *r != MPI_REQUEST_NULL;
    return mesh_mpi__fail_in(err, function, "MPI_Test", code);
}

/* A copy of a communicator. made: room for its handle on the heap; MPI may still write there where it is left_to_mpi. */
MESH__RARE mesh_status mesh_mpi__copy(mesh_transport *t, const char *function, MPI_Comm comm, MPI_Comm *made,
                                      MPI_Comm *out, int64_t deadline, mesh_error *err) {
    MPI_Errhandler before = MPI_ERRHANDLER_NULL;
    MPI_Request r;
    mesh_status status;
    int code, own = MPI_Comm_get_errhandler(comm, &before) == MPI_SUCCESS;
    mesh_mpi__of(t)->left_to_mpi = 0;
    if (own) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN); /* what goes wrong here is returned, not fatal; */
    code = MPI_Comm_idup(comm, made, &r);
    status = code == MPI_SUCCESS ? mesh_mpi__all_come(t, function, &r, deadline, err)
                                 : mesh_mpi__fail_in(err, function, "MPI_Comm_idup", code);
    if (own) MPI_Comm_set_errhandler(comm, before); /* then the program's handler is in its place again */
    if (own) MPI_Errhandler_free(&before);
    if (status == MESH_OK) *out = *made;
    if (status == MESH_OK && (code = MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN)) != MPI_SUCCESS)
        return mesh_mpi__fail_in(err, function, "MPI_Comm_set_errhandler", code);
    return status;
}

/* What MPI writes to until all ranks have come. */
typedef struct mesh_mpi__opening {
    MPI_Comm made[2];
    uint64_t said[2]; /* this rank's; behind it all ranks' */
} mesh_mpi__opening;

/* Which ranks are on one host, and whether more of them are here than there are cores. Do all have MPI's collectives, or none? Has one failed? own: has this
   one, as *err says. */
MESH__RARE mesh_status mesh_mpi__hosts(mesh_mpi__impl *s, mesh_mpi__opening *o, mesh_status own, int64_t deadline,
                                       mesh_error *err) {
    mesh_transport *t = &s->net->base;
    uint64_t *all = o->said + 2;
    MPI_Request r;
    mesh_error why;
    mesh_status status;
    int i, k, code, here = 0;
    o->said[0] = mesh_env_host() << 1 | (uint64_t)(s->native != 0);
    o->said[1] = (uint64_t)(-(int)own);
    code = MPI_Iallgather(o->said, 16, MPI_BYTE, all, 16, MPI_BYTE, s->control, &r);
    status = code == MPI_SUCCESS ? mesh_mpi__all_come(t, "mesh_mpi_open", &r, deadline, &why)
                                 : mesh_mpi__fail(&why, t->rank, "mesh_mpi_open: MPI_Iallgather", code);
    if (code != MPI_SUCCESS) mesh_mpi__give_up(s, status);
    s->agreed = status == MESH_OK;
    for (i = 0; i < t->size && status == MESH_OK; i++)
        if (all[2 * i + 1])
            status = mesh__fail(&why, (mesh_status) - (int)all[2 * i + 1], i,
                                "mesh_mpi_open: rank %d failed: %s; it says why", i,
                                mesh_status_text((mesh_status) - (int)all[2 * i + 1]));
    for (i = 0; i < t->size && status == MESH_OK; i++) {
        if ((all[2 * i] ^ all[0]) & 1)
            status = mesh__fail(&why, MESH_ERR_MISMATCH, i,
                                "mesh_mpi_open: MESH_MPI_NATIVE is %s on rank %d and %s on rank 0; the same on all",
                                all[2 * i] & 1 ? "set" : "not set", i, all[0] & 1 ? "set" : "not set");
        for (k = 0; all[2 * k] != all[2 * i];) k++;
        s->host[i] = k;
        here += all[2 * i] == o->said[0];
    }
    s->crowded = here > (int)sysconf(MESH_ENV__CORES);
    if (own != MESH_OK && status != MESH_ERR_TIMEOUT) return own;
    if (status != MESH_OK && err) *err = why;
    return status;
}

/* Tags from 0 on below this. */
MESH__RARE void mesh_mpi__tags_below(mesh_mpi__impl *s, int64_t limit) {
    s->check_bits = 0;
    s->high_at = limit / 2;
    while (s->high_at >> (s->check_bits + 1) >= MESH_MPI__PLACES) s->check_bits++;
    s->places = s->high_at >> s->check_bits;
    s->tagged_at = s->places / 8;
    s->ordered_at = s->tagged_at + s->places / 2;
}
MESH__RARE int mesh_mpi__tags(mesh_mpi__impl *s) {
    int found = 0, *most = NULL, code = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
    mesh_mpi__tags_below(s, code == MPI_SUCCESS && found ? (int64_t)*most + 1 : 32768);
    return code;
}

/* What this rank needs of memory and of MPI for itself. */
MESH__RARE mesh_status mesh_mpi__begin_alone(mesh_mpi__impl *s, mesh_error *err) {
    mesh_transport *t = &s->net->base;
    const char *call = "mesh_mpi_open: MPI_Comm_get_attr";
    int i, code = mesh_mpi__tags(s);
    s->host = (int *)mesh_transport_alloc(t, (size_t)t->size * sizeof(int));
    s->gone = (int *)mesh_transport_alloc(t, 3 * (size_t)t->size * sizeof(int));
    if (s->host && s->gone && mesh_mpi__room(s, 16)) {
        for (i = 0; i < t->size; i++) s->gone[i] = i;
        s->whole = mesh_mpi__links_new(s, s->gone, t->size, s->world, 0);
        memset(s->gone, 0, 3 * (size_t)t->size * sizeof(int));
        s->parted = s->gone + t->size;
        s->unreached = s->parted + t->size;
    }
    if (!s->whole) return mesh__fail(err, MESH_ERR_MEMORY, t->rank, "mesh_mpi_open: no memory for %d ranks", t->size);
    s->whole->used = 1;
    if (code == MPI_SUCCESS) call = "mesh_mpi_open: MPI_Comm_group", code = MPI_Comm_group(s->control, &s->ranks);
    if (code == MPI_SUCCESS) {
        mesh_mpi__next(s, NULL, -1);
        call = "mesh_mpi_open: MPI_Irecv", code = mesh_mpi__listen(s);
    }
    if (code != MPI_SUCCESS) return mesh_mpi__fail(err, t->rank, call, code);
    s->nrequests = 1;
    return MESH_OK;
}

/* own: what is wrong with this rank's part, as *err says; every rank hears of it. */
MESH__RARE mesh_status mesh_mpi__begin(mesh_mpi__impl *s, MPI_Comm comm, mesh_mpi__opening *o, int64_t patience,
                                       mesh_status own, mesh_error *err) {
    mesh_transport *t = &s->net->base;
    int64_t deadline = mesh_mpi__clock() + patience;
    mesh_error why;
    mesh_status status = mesh_mpi__copy(t, "mesh_mpi_open", comm, &o->made[0], &s->world, deadline, &why);
    if (status == MESH_OK)
        status = mesh_mpi__copy(t, "mesh_mpi_open", s->world, &o->made[1], &s->control, deadline, &why);
    if (status != MESH_OK && !s->left_to_mpi) mesh_mpi__give_up(s, own != MESH_OK ? own : status);
    if (status != MESH_OK && own != MESH_OK && status != MESH_ERR_TIMEOUT) return own;
    if (status != MESH_OK) {
        if (err) *err = why;
        return status;
    }
    if (own == MESH_OK) own = mesh_mpi__begin_alone(s, err);
    if (!s->native) t->caps |= MESH_CAP_PENDING; /* of its collectives MPI tells neither */
    if (!s->native && s->check_bits >= MESH_MPI__SURE) t->caps |= MESH_CAP_CHECK;
    return mesh_mpi__hosts(s, o, own, deadline, err);
}

/* A rank that MPI takes for alone, though its launcher started several. */
MESH__RARE mesh_status mesh_mpi__singleton(mesh_error *err) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int n = 1, length = 0;
    mesh_env e;
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (n > 1 || mesh_env_read(&e, NULL) != MESH_OK || e.size == 1) return MESH_OK;
    MPI_Get_library_version(library, &length);
    library[length < 48 ? length : 48] = 0;
    library[strcspn(library, ",\n")] = 0;
    if (strchr(library, '\t')) *strchr(library, '\t') = ' ';
    if (e.launcher == MESH_LAUNCHER_OPEN_MPI || e.launcher == MESH_LAUNCHER_MPICH || e.launcher == MESH_LAUNCHER_SLURM)
        return mesh__fail(
            err, MESH_ERR_STATE, -1,
            "mesh_mpi_open: MPI_COMM_WORLD has 1 rank, but the launcher started %d (%s): it is not that of "
            "the MPI that the program was compiled with, %s",
            e.size, e.source, library);
    return mesh__fail(err, MESH_ERR_STATE, -1,
                      "mesh_mpi_open: MPI_COMM_WORLD has 1 rank, but %s says that this is one of %d: start it with the "
                      "launcher of its MPI, mpirun -n %d (mesh run starts programs over sockets)",
                      e.source, e.size, e.size);
}

MESH_API mesh_status mesh_mpi_open(mesh_mpi *net, MPI_Comm comm, mesh_error *err) {
    mesh_mpi__impl *s;
    mesh_status status;
    mesh_error why;
    mesh_mpi__opening *o;
    int up = 0, down = 0, inter = 0, n = 0, seconds = 0, patience = 0, native = 0;
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
    if ((status = mesh_mpi__singleton(err)) != MESH_OK) return status;
    MPI_Comm_test_inter(comm, &inter);
    if (inter) return mesh__fail(err, MESH_ERR_ARGUMENT, -1, "mesh_mpi_open: an intercommunicator; merge it first");
    MPI_Comm_rank(comm, &net->base.rank);
    MPI_Comm_size(comm, &n);
    s = (mesh_mpi__impl *)mesh_transport_alloc(&net->base, sizeof *s);
    o = (mesh_mpi__opening *)mesh_transport_alloc(&net->base, sizeof *o + 2 * (size_t)n * sizeof *o->said);
    if (!s || !o) {
        mesh_transport_free(&net->base, s);
        mesh_transport_free(&net->base, o);
        return mesh__fail(err, MESH_ERR_MEMORY, net->base.rank, "mesh_mpi_open: no memory");
    }
    if (mesh__env_number("MESH_TIMEOUT", "number of seconds", &seconds, &why) < 0 ||
        mesh__env_number("MESH_OPEN_TIMEOUT", "number of seconds", &patience, &why) < 0 ||
        mesh__env_number("MESH_MPI_NATIVE", "number", &native, &why) < 0)
        status = mesh__fail(err, MESH_ERR_ARGUMENT, net->base.rank, "mesh_mpi_open: %s", why.text);
    if (!mesh_mpi__world.open++) {
        if (MPI_Comm_get_errhandler(MPI_COMM_WORLD, &mesh_mpi__world.before) != MPI_SUCCESS)
            mesh_mpi__world.before = MPI_ERRHANDLER_NULL; /* what cannot be put back stays */
        else
            MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    memset(s, 0, sizeof *s);
    s->net = net;
    s->world = s->control = MPI_COMM_NULL;
    s->ranks = MPI_GROUP_NULL;
    s->native = native != 0;
    s->idle_most = MESH_MPI__IDLE;
    net->impl = s;
    net->base.size = n;
    net->base.ops = &mesh_mpi__ops;
    net->base.caps = MESH_CAP_STRIDED | MESH_CAP_CANCEL;
    net->base.timeout_ns = (int64_t)seconds * 1000000000;
    status = mesh_mpi__begin(s, comm, o, patience ? (int64_t)patience * 1000000000 : MESH_MPI__PATIENCE, status, err);
    if (!s->left_to_mpi) mesh_transport_free(&net->base, o);
    if (status != MESH_OK) mesh_mpi__release(s, !s->agreed); /* or all have heard, and nothing was sent */
    return status;
}

MESH_API mesh_status mesh_mpi_close(mesh_mpi *net) {
    if (!net || !net->impl) return MESH_OK;
    return mesh_mpi__close(&net->base, NULL);
}

MESH_API mesh_status mesh_mpi_comm(mesh_comm *c, const char *axes, MPI_Comm *out) {
    mesh__group *g = c && c->impl ? mesh__group_find(mesh__impl(c), axes) : NULL;
    mesh_mpi__links *links = g ? (mesh_mpi__links *)g->handle : NULL;
    mesh_status status = MESH_OK;
    MPI_Comm *made;
    if (!out)
        return c ? mesh__fail(&c->error, MESH_ERR_ARGUMENT, -1, "mesh_mpi_comm: the place for the communicator is NULL")
                 : MESH_ERR_ARGUMENT;
    *out = MPI_COMM_NULL;
    if (!links || c->transport->ops != &mesh_mpi__ops)
        return c ? mesh__fail(&c->error, MESH_ERR_STATE, -1,
                              "mesh_mpi_comm: \"%s\" is no group that is open over MPI; mesh_group_open opens it",
                              axes ? axes : "")
                 : MESH_ERR_ARGUMENT;
    if (links->given == MPI_COMM_NULL) {
        if (!(made = (MPI_Comm *)mesh_transport_alloc(c->transport, sizeof *made)))
            return mesh__fail(&c->error, MESH_ERR_MEMORY, c->transport->rank, "mesh_mpi_comm: no memory");
        status = mesh_mpi__copy(c->transport, "mesh_mpi_comm", links->comm, made, &links->given,
                                mesh_mpi__clock() + mesh__impl(c)->timeout, &c->error);
        if (!mesh_mpi__of(c->transport)->left_to_mpi) mesh_transport_free(c->transport, made);
    }
    if (status == MESH_OK) *out = links->given;
    return status;
}

#endif /* MESH_MPI_OPEN_IMPLEMENTED */
