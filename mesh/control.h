/* mesh/control.h - the control plane: what other ranks say beside the data, kept until somebody wants it. Part of mesh.h 0.1.0. MIT licence.

   Includes waits.h.
*/
#if !defined(MESH_CONTROL_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_CONTROL_IMPLEMENTED))
#include "waits.h"
#define MESH_CONTROL_H
#endif

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_CONTROL_IMPLEMENTED)
#define MESH_CONTROL_IMPLEMENTED

enum {
    MESH__HELLO_HEAD = 28,
    MESH__WELCOME_HEAD = 20,
    MESH__ROW_BYTES = 16 /* of the tuning table, last */,
    MESH__LEVEL_BYTES = 20
};

enum { MESH__CLOCK_BYTES = 8, MESH__TIME_BYTES = 28, MESH__CLOCK_TRIPS = 8 };

MESH__RARE int mesh__mail_keep(mesh__engine *e, const mesh_control *m) {
    int kept = mesh__inbox_add(e->t, &e->mail, m->kind, m->rank, m->data, m->nbytes);
    if (!kept) e->starved = 1; /* who opens a comm now must not wait for what was lost */
    return kept;
}

MESH__RARE unsigned char *mesh__mail_data(mesh__mail *m) { return (unsigned char *)(m + 1); }

MESH__RARE void mesh__mail_drop(mesh__engine *e, mesh__mail **at) { mesh__inbox_drop(e->t, &e->mail, at); }

MESH__RARE int mesh__is_hello(mesh__mail *m, int rank) {
    return m->rank == rank && m->kind == MESH_EVENT_MESSAGE && mesh__get32(mesh__mail_data(m)) == MESH__MSG_HELLO;
}

/* A rank opens one comm at a time: a new hello replaces its last one, and a farewell takes it back. */
MESH__RARE void mesh__hello_forget(mesh__engine *e, int rank) {
    mesh__mail **at = &e->mail.first;
    while (*at) {
        if (mesh__is_hello(*at, rank))
            mesh__mail_drop(e, at);
        else
            at = &(*at)->next;
    }
}

/* A rank gave an opening up that this one, its first rank, had welcomed it to meanwhile: the comm is open without it. */
MESH__RARE void mesh__opening_given_up(mesh__engine *e, int rank, uint32_t nonce) {
    int i;
    for (i = 0; i < e->ncomms; i++) {
        mesh_comm *c = e->comm[i];
        int index = mesh_index_of(&c->on, rank);
        if (mesh__impl(c)->nonce && index > 0 && mesh__impl(c)->nonce[index] == nonce)
            mesh__comm_broken(c, MESH_ERR_PEER, rank, "%s: rank %d gave up opening it before it was welcomed",
                              mesh__impl(c)->name, rank);
    }
}

/* A hello that there was no memory to keep: its sender is told, and waits no longer. */
MESH__RARE void mesh__hello_refuse(mesh__engine *e, const mesh_control *hello) {
    unsigned char welcome[MESH_CONTROL_BYTES];
    mesh_error why;
    mesh__fail(&why, MESH_ERR_MEMORY, e->t->rank, "mesh_comm_open: rank %d has no memory for a message of the opening",
               e->t->rank);
    mesh__put32(welcome, MESH__MSG_WELCOME);
    mesh__put32(welcome + 4, mesh__get32(hello->data + 4));
    mesh__put32(welcome + 8, (uint32_t)MESH_ERR_MEMORY);
    mesh__put32(welcome + 12, 0);
    mesh__put32(welcome + 16, (uint32_t)e->t->rank);
    memcpy(welcome + MESH__WELCOME_HEAD, why.text, strlen(why.text) + 1);
    mesh__say_surely(e, hello->rank, welcome, MESH__WELCOME_HEAD + strlen(why.text) + 1);
}

/* ---- // >>failures ---- */

/* A rank is gone. For LOST comms fail a little later: what the others have to say may be the cause of it. */
MESH__RARE void mesh__rank_gone(mesh__engine *e, const mesh_control *m) {
    mesh__gone *g;
    int i;
    for (i = 0; i < e->ngone; i++)
        if (e->gone[i].rank == m->rank && e->gone[i].kind == m->kind) return;
    MESH_ASSERT(e->ngone < 2 * e->t->size);
    if (mesh__roll_excused(e, m->rank)) mesh__roll_left(e, m->rank, m->kind);
    g = &e->gone[e->ngone++];
    g->rank = m->rank;
    g->kind = m->kind;
    g->until = m->kind == MESH_EVENT_LOST ? mesh__now(e) + MESH__GRACE_NS : 0;
    g->why = m->nbytes ? (char *)mesh_transport_alloc(e->t, m->nbytes + 1) : NULL;
    if (g->why) memcpy(g->why, m->data, m->nbytes);
    if (g->why) g->why[m->nbytes] = 0;
    if (g->until && (!e->next_gone || g->until < e->next_gone)) e->next_gone = g->until;
}

/* Has an operation to do with a member of its group? With all, where it is no messages. */
MESH__RARE int mesh__op_deals_with(const mesh__op *op, int rank) {
    const mesh__schedule *s = &op->schedule;
    int i;
    for (i = 0; i < s->nxfers && s->xfer[i].rank != rank; i++) {}
    return i < s->nxfers || !s->nxfers || s->nnative;
}

/* May an operation wait for a rank? */
MESH__RARE int mesh__op_awaits(mesh__engine *e, const mesh__op *op, int rank) {
    int ranks[MESH__WALK_PENDING], k, n;
    if (!(e->t->caps & MESH_CAP_PENDING))
        return mesh_index_of(&op->group->on, rank) >= 0 && mesh__op_deals_with(op, rank);
    n = mesh__op_pending(e, op, ranks, MESH__WALK_PENDING);
    for (k = 0; k < n && ranks[k] != rank; k++) {}
    return k < n;
}

/* Ask at once. A search under way, whose question this was the answer to, would wait for another, and nobody is asked meanwhile. */
MESH__RARE void mesh__ask_again(mesh__engine *e) {
    if (!e->waiting) return;
    if (e->walk && !e->roll.op) e->walk->active = 0;
    e->waiting->next_ask = mesh__now(e);
}

/* A rank says it has closed the comm. That is news only where an operation still waits for it, and goes on waiting when it has been asked
   once more: what it sent before it closed may only be arriving. */
MESH__RARE int mesh__closed_heard(mesh_comm *c, int from) {
    mesh__comm_impl *impl = mesh__impl(c);
    mesh__engine *e = impl->engine;
    int i;
    for (i = 0; i < e->nops; i++) {
        mesh__op *op = e->op[i];
        if (op->comm != c || op->state != MESH__ACTIVE || op->failing || !mesh__op_awaits(e, op, from)) continue;
        if (impl->closed_rank && impl->closed_serial == op->serial && impl->closed_progress == op->progress) {
            if (impl->closed_rank == from + 1) return 1;
            return 0; /* one of several that say so; the first is listened to */
        }
        impl->closed_rank = from + 1;
        impl->closed_serial = op->serial;
        impl->closed_progress = op->progress;
        mesh__ask_again(e);
        return 0;
    }
    return 0;
}

/* An error of another rank's. What is none that there is counts as the loss of that rank: never as success. */
MESH__RARE mesh_status mesh__status_heard(const unsigned char *p) {
    int status = (int)mesh__get32(p);
    return status < 0 && status >= MESH_ERR_TRANSPORT ? (mesh_status)status : MESH_ERR_PEER;
}

MESH__RARE void mesh__comm_abort_heard(mesh_comm *c, int from, const unsigned char *data, uint32_t nbytes) {
    mesh__engine *e = mesh__impl(c)->engine;
    char text[MESH_ERROR_BYTES];
    mesh__record theirs, before;
    if (mesh_index_of(&c->on, from) < 0)
        return; /* of another comm with that id, of ranks that this one's are not among, or of an opening that was given up */
    if (mesh__get32(data + 12) == MESH__ABORT_CLOSED && e->roll.op && e->roll.op->comm == c &&
        mesh__roll_excused(e, from)) {
        e->roll.answers++;
        if (mesh__op_awaits(e, e->roll.op, from) && !e->roll.closed++) e->roll.first_closed = from;
    }
    if (c->failed || (mesh__get32(data + 12) == MESH__ABORT_CLOSED && !mesh__closed_heard(c, from))) return;
    mesh__abort_text(text, data, nbytes);
    mesh__record_read(&theirs, data + 16);
    mesh__record_read(&before, data + 16 + MESH__RECORD_BYTES);
    if (mesh__get32(data + 12) == MESH__ABORT_DISPUTE) {
        mesh_error why;
        const mesh__record *mine =
            mesh__same_group(c, theirs.channel, from, e->t->rank) ? mesh__record_of(e, theirs.channel) : NULL;
        if (!mesh__sequence(theirs.channel) && (int)mesh__get32(data + 8) != e->t->rank)
            mine = NULL; /* a message between two others */
        mesh__fail(&why, MESH_ERR_MISMATCH, from, "rank %d says: %s", from, text);
        mesh__dispute_open(c, mine, &why);
        if (!c->failed) mesh__dispute_add(c, from, &theirs, before.channel ? &before : NULL);
        return;
    }
    mesh__fail(&c->error, mesh__status_heard(data + 4), (int)mesh__get32(data + 8), "rank %d failed: %s", from, text);
    if (c->error.rank < 0 || c->error.rank >= e->t->size) c->error.rank = from;
    mesh__comm_fail(c);
    if (mesh__get32(data + 12) == MESH__ABORT_CLOSED)
        mesh__announce(c, MESH__ABORT_PLAIN, NULL); /* the comm's other ranks do not know it yet */
}

/* ---- // >>terms: what the first rank of a comm hands out ---- */

/* What the first rank hands out: the scratch cap, the topology, the tuning table; as many levels and rows as there are. */
MESH__RARE void mesh__terms_wire(mesh__wire *w, mesh__comm_impl *impl) {
    int i;
    mesh__wire_i64(w, &impl->scratch_cap);
    mesh__wire_int(w, &impl->topology.nlevels);
    for (i = 0; i < impl->topology.nlevels; i++) {
        mesh_level *level = &impl->topology.level[i];
        mesh__wire_int(w, &level->ranks);
        mesh__wire_i64(w, &level->latency_ps);
        mesh__wire_i64(w, &level->ps_per_byte_16);
    }
    for (i = 0; i < impl->tuning.nrows; i++) {
        mesh_tuning_row *row = &impl->tuning.row[i];
        uint32_t what = row->call | (uint32_t)row->algorithm << 8 | (uint32_t)row->ranks << 16;
        mesh__wire32(w, &what);
        mesh__wire32(w, &row->segment);
        mesh__wire64(w, &row->bytes);
        row->call = (uint8_t)what;
        row->algorithm = (uint8_t)(what >> 8);
        row->ranks = (uint16_t)(what >> 16);
    }
}

MESH__RARE size_t mesh__terms_write(unsigned char *d, const mesh__comm_impl *impl) {
    mesh__wire w = mesh__writing(d);
    mesh__terms_wire(&w, (mesh__comm_impl *)(uintptr_t)impl);
    return (size_t)(w.at - d);
}

/* Are these bytes such terms? */
MESH__RARE int mesh__terms_fit(const unsigned char *d, size_t nbytes) {
    uint32_t levels = nbytes >= 12 ? mesh__get32(d + 8) : UINT32_MAX;
    return levels <= MESH_MAX_LEVELS && nbytes >= 12 + levels * MESH__LEVEL_BYTES &&
           (nbytes - 12 - levels * MESH__LEVEL_BYTES) % MESH__ROW_BYTES == 0 &&
           (nbytes - 12 - levels * MESH__LEVEL_BYTES) / MESH__ROW_BYTES <= MESH_MAX_TUNING;
}

/* They fit. */
MESH__RARE void mesh__terms_read(mesh__comm_impl *impl, const unsigned char *d, size_t nbytes) {
    mesh__wire w = mesh__reading(d);
    impl->tuning.nrows = (int)((nbytes - 12 - mesh__get32(d + 8) * MESH__LEVEL_BYTES) / MESH__ROW_BYTES);
    mesh__terms_wire(&w, impl);
}

/* ---- // >>hosts: which ranks share one, told before the welcome in as many messages as it takes ---- */

enum { MESH__HOSTS_HEAD = 8, MESH__HOSTS_RUNS = (MESH_CONTROL_BYTES - MESH__HOSTS_HEAD) / MESH__HOST_RUN_BYTES };

MESH__RARE void mesh__hosts_tell(mesh__engine *e, int to, uint32_t nonce, const mesh__hosts *h) {
    unsigned char message[MESH_CONTROL_BYTES];
    int at, i;
    for (at = 0; at < h->nruns; at = i) {
        mesh__wire w = mesh__writing(message);
        uint32_t kind = MESH__MSG_HOSTS;
        mesh__wire32(&w, &kind);
        mesh__wire32(&w, &nonce);
        for (i = at; i < h->nruns && i < at + MESH__HOSTS_RUNS; i++) mesh__host_run_wire(&w, &h->run[i]);
        mesh__say_surely(e, to, message, (size_t)(w.at - message));
    }
}

/* What the first rank has told of this opening; what is left of others is dropped. Returns 0 without memory. */
MESH__RARE int mesh__hosts_heard(mesh__engine *e, int leader, mesh__hosts *h) {
    mesh__mail **at = &e->mail.first;
    int good = 1;
    while (*at) {
        mesh__mail *m = *at;
        uint32_t runs = (m->nbytes - MESH__HOSTS_HEAD) / MESH__HOST_RUN_BYTES, i;
        if (m->rank != leader || m->kind != MESH_EVENT_MESSAGE || mesh__get32(mesh__mail_data(m)) != MESH__MSG_HOSTS) {
            at = &m->next;
            continue;
        }
        if (mesh__get32(mesh__mail_data(m) + 4) == e->opens) {
            mesh__wire w = mesh__reading(mesh__mail_data(m) + MESH__HOSTS_HEAD);
            good &= mesh__grow(e->t, (void **)&h->run, &h->cap, h->nruns + (int)runs, sizeof *h->run);
            for (i = 0; i < runs && good; i++) mesh__host_run_wire(&w, &h->run[h->nruns++]);
        }
        mesh__mail_drop(e, at);
    }
    return good;
}

/* ---- // >>clocks ---- */

/* Another rank asks for the time on rank 0's clock, as this one knows it. */
MESH__RARE void mesh__clock_answer(mesh__engine *e, const mesh_control *m) {
    unsigned char answer[MESH__TIME_BYTES];
    int known = e->t->rank == 0 ? e->t->trace_clock != NULL : e->clock.known;
    mesh__put32(answer, MESH__MSG_TIME);
    mesh__put32(answer + 4, mesh__get32(m->data + 4));
    mesh__put32(answer + 8, (uint32_t)known);
    mesh__put64(answer + 12, (uint64_t)(mesh__now(e) + e->t->trace_epoch + e->clock.offset));
    mesh__put64(answer + 20, (uint64_t)e->clock.within);
    e->t->ops->control_send(e->t, m->rank, MESH_EVENT_MESSAGE, answer, sizeof answer);
}

MESH__RARE void mesh__clock_heard(mesh__engine *e, const mesh_control *m) {
    const unsigned char *d = m->data;
    if (mesh__get32(d + 4) != e->clock.asked) return;
    e->clock.came = mesh__now(e);
    e->clock.heard = e->clock.asked;
    e->clock.time = (int64_t)mesh__get64(d + 12);
    e->clock.time_within = (int64_t)mesh__get64(d + 20);
    e->clock.told = mesh__get32(d + 8) != 0 && e->clock.time > -MESH__FOREVER_NS && e->clock.time < MESH__FOREVER_NS &&
                    e->clock.time_within >= 0 && e->clock.time_within < MESH__FOREVER_NS;
}

/* ---- // >>what came ---- */

MESH__RARE void mesh__hello_heard(mesh__engine *e, const mesh_control *m) {
    if (m->data[m->nbytes - 1]) return;
    mesh__hello_forget(e, m->rank);
    if (!mesh__mail_keep(e, m)) mesh__hello_refuse(e, m);
}

MESH__RARE void mesh__farewell_heard(mesh__engine *e, const mesh_control *m) {
    mesh__hello_forget(e, m->rank);
    mesh__opening_given_up(e, m->rank, mesh__get32(m->data + 4));
}

MESH__RARE void mesh__welcome_heard(mesh__engine *e, const mesh_control *m) {
    uint32_t rest = m->nbytes - MESH__WELCOME_HEAD;
    int fits = mesh__get32(m->data + 8) == MESH_OK ? mesh__terms_fit(m->data + MESH__WELCOME_HEAD, rest)
                                                   : !rest || !m->data[m->nbytes - 1];
    if (fits) mesh__mail_keep(e, m);
}

MESH__RARE void mesh__hosts_told(mesh__engine *e, const mesh_control *m) {
    if ((m->nbytes - MESH__HOSTS_HEAD) % MESH__HOST_RUN_BYTES == 0) mesh__mail_keep(e, m);
}

MESH__RARE void mesh__message_heard(mesh__engine *e, const mesh_control *m) {
#define MESH_X(name, least, heard) {least, heard},
    static const struct {
        uint32_t least;
        void (*heard)(mesh__engine *e, const mesh_control *m);
    } message[] = {{0, NULL}, MESH__MESSAGES(MESH_X)};
#undef MESH_X
    uint32_t kind = mesh__get32(m->data);
    if (kind > MESH__MSG_NONE && kind < MESH__MSG_END && m->nbytes >= message[kind].least) message[kind].heard(e, m);
}

MESH__PRIVATE void mesh__control(mesh__engine *e) {
    mesh_control m;
    int i;
    while (e->t->ops->control_poll(e->t, &m) == MESH_OK) {
        if (m.kind == MESH_EVENT_LOST || m.kind == MESH_EVENT_CLOSED) {
            mesh__rank_gone(e, &m);
        } else if (m.kind == MESH_EVENT_ABORT && m.nbytes >= MESH__ABORT_HEAD) {
            uint32_t id = mesh__get32(m.data);
            for (i = 0; i < e->ncomms; i++)
                if (e->comm[i]->id == id) mesh__comm_abort_heard(e->comm[i], m.rank, m.data, m.nbytes);
            if (id > e->last_id) mesh__mail_keep(e, &m); /* of a comm that is not open here yet */
        } else if (m.kind == MESH_EVENT_MESSAGE && m.nbytes >= 4) {
            mesh__message_heard(e, &m);
        }
    }
}

/* What came over the control plane, before what follows from it. */
MESH__PRIVATE void mesh__heard(mesh__engine *e) {
    mesh__control(e);
    mesh__gone_settle(e);
}
#endif /* MESH_CONTROL_IMPLEMENTED */
