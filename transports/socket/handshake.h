/* socket/handshake.h - who is at the other end: each side proves that it knows the job's secret before any other byte is read. Part of mesh.h 0.1.0. MIT licence.

   Includes connect.h, hmac.h. Takes bytes and gives bytes.
*/

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SOCKET_HANDSHAKE_IMPLEMENTED)
#define MESH_SOCKET_HANDSHAKE_IMPLEMENTED
#include "connect.h"
#include "hmac.h"

MESH__RARE void mesh_socket__mac(mesh_socket__impl *s, const mesh_socket__conn *c, const char *role, const void *hello,
                                 size_t hello_bytes, unsigned char *out) {
    const void *piece[3];
    size_t nbytes[3];
    piece[0] = role;
    nbytes[0] = 1;
    piece[1] = c->nonce;
    nbytes[1] = sizeof c->nonce;
    piece[2] = hello;
    nbytes[2] = hello_bytes;
    mesh_socket__hmac(s->secret, s->secret_bytes, piece, nbytes, hello ? 3 : 2, out);
}

MESH__RARE void mesh_socket__raw(mesh_socket__impl *s, mesh_socket__conn *c, const void *data, size_t n) {
    unsigned char *p = mesh_socket__out_room(s, c, n);
    if (p)
        memcpy(p, data, n), mesh_socket__stir(c);
    else
        mesh_socket__conn_failed(c, "no memory", 0);
}

/* The connection stands: whatever waited for it goes. */
MESH__RARE void mesh_socket__established(mesh_socket__impl *s, mesh_socket__conn *c) {
    mesh_socket__peer *p = &s->peer[c->rank];
    if (!(c->in = (unsigned char *)mesh_transport_alloc(&s->net->base, MESH_SOCKET__RBUF))) {
        mesh_socket__conn_failed(c, "no memory", 0);
        return;
    }
    c->state = MESH_SOCKET__UP;
    mesh_socket__place_known(s, c);
    c->deadline = 0;
    if (p->coming && p->coming != c) mesh_socket__break(p->coming, MESH_SOCKET__GAVE_WAY); /* ours gave way to theirs */
    p->coming = NULL;
    p->conn = c;
    p->credit = MESH_SOCKET__CREDIT;
    s->event = 1;
    if (p->held_len) mesh_socket__raw(s, c, p->held, (size_t)p->held_len);
    p->held_len = 0;
    mesh_socket__use_ring(s, c);
    if (s->closing) mesh_socket__frame_send(s, c, MESH_SOCKET__F_GOODBYE, 0, 0, NULL, 0);
    mesh_socket__waiting_go(s, c->rank);
    mesh_socket__flush(s, c);
}

MESH__RARE void mesh_socket__greet(mesh_socket__impl *s, mesh_socket__conn *c) {
    unsigned char m[MESH_SOCKET__C1];
    c->state = MESH_SOCKET__GREETING;
    c->await = MESH_SOCKET__AWAIT_ANSWER;
    c->greet_need = MESH_SOCKET__S1;
    if (!mesh_socket__random(c->nonce[0], 32)) {
        mesh_socket__conn_failed(c, "no random numbers (/dev/urandom)", errno);
        return;
    }
    memcpy(m, MESH_SOCKET__MAGIC, 8);
    memcpy(m + 8, c->nonce[0], 32);
    mesh_socket__raw(s, c, m, sizeof m);
}

MESH__RARE void mesh_socket__hello(mesh_socket__impl *s, int to, unsigned char *hello) {
    memset(hello, 0, MESH_SOCKET__HELLO);
    mesh__put32(hello, (uint32_t)s->net->base.rank);
    mesh__put32(hello + 4, (uint32_t)s->net->base.size);
    mesh__put32(hello + 8, s->in_open ? s->have_book ? MESH_SOCKET__MOVES : MESH_SOCKET__JOINS : MESH_SOCKET__CALLS);
    mesh__put32(hello + 12, (uint32_t)to);
    mesh_socket__entry_write(hello + 16, &s->book[s->net->base.rank]);
    mesh__put64(hello + 16 + 64, s->job ? s->job : s->identity);
}

MESH__RARE void mesh_socket__verdict(mesh_socket__impl *s, mesh_socket__conn *c, int verdict, const char *why) {
    unsigned char m[MESH_SOCKET__S2];
    size_t length = strlen(why);
    if (length > MESH_SOCKET__VERDICT_TEXT) length = MESH_SOCKET__VERDICT_TEXT;
    mesh_socket__mac(s, c, "S", NULL, 0, m);
    mesh__put32(m + 32, (uint32_t)verdict);
    mesh__put32(m + 36, (uint32_t)length);
    mesh_socket__raw(s, c, m, MESH_SOCKET__S2);
    if (length) mesh_socket__raw(s, c, why, length);
    mesh_socket__flush(s, c);
}

/* Has this rank left the world that rank 0 is still in, for another? Its goodbye may lie unread. */
MESH__RARE int mesh_socket__comes_again(const mesh_socket__impl *s, int rank) {
    const mesh_socket__peer *p = &s->peer[rank];
    struct pollfd f;
    if (s->in_open) return 0;
    if (s->closing || p->goodbye) return 1;
    if (p->gone || !p->conn) return 0;
    f.fd = p->conn->fd;
    f.events = POLLIN;
    return poll(&f, 1, 0) > 0;
}

/* The accepting side has heard who it is. */
MESH__RARE void mesh_socket__introduced(mesh_socket__impl *s, mesh_socket__conn *c, const unsigned char *hello) {
    int rank = (int)mesh__get32(hello), size = (int)mesh__get32(hello + 4), meant = (int)mesh__get32(hello + 12);
    int joins = mesh__get32(hello + 8) == MESH_SOCKET__JOINS, moves = mesh__get32(hello + 8) == MESH_SOCKET__MOVES;
    uint64_t job = mesh__get64(hello + 16 + 64);
    int me = s->net->base.rank, later = 0;
    char text[MESH_SOCKET__VERDICT_TEXT];
    mesh__text t = mesh__text_on(text, sizeof text);
    mesh_socket__peer *p;
    if (size != s->net->base.size)
        mesh__put(&t, "rank %d says the world has %d ranks, rank %d says %d; give every rank the same WORLD_SIZE", rank,
                  size, me, s->net->base.size);
    else if (rank < 0 || rank >= size || rank == me)
        mesh__put(&t, "rank %d is given twice, or lies outside a world of %d; give every process its own RANK", rank,
                  size);
    else if (meant != me || (joins && (me != 0 || job != s->identity)) ||
             (!joins &&
              (s->job ? job != s->job : me == 0))) /* who knows a book of rank 0's before there is one has another */
        mesh__put(
            &t,
            "rank %d of another job, or on its way to rank %d, has reached rank %d; give each job its own port and secret",
            rank, meant, me);
    else if (joins && (later = mesh_socket__comes_again(s, rank)))
        mesh__put(&t, "rank 0 is still in the world that rank %d has left", rank);
    else if (s->peer[rank].gone)
        mesh__put(&t, "rank %d is not waited for any more", rank);
    else if (joins && me == 0 && (!s->in_open || s->peer[rank].conn))
        mesh__put(&t, "rank %d is given twice: another process has joined as rank %d; give every process its own RANK",
                  rank, rank);
    if (t.len) {
        mesh_socket__log(s, later || (rank >= 0 && rank < s->net->base.size && s->peer[rank].gone) ? 2 : 1,
                         "mesh_socket: refused a connection: %s", text);
        if (!later) mesh__copy_text(s->stranger, sizeof s->stranger, text);
        mesh_socket__verdict(s, c, later ? MESH_SOCKET__LATER : MESH_SOCKET__REFUSED, text);
        mesh_socket__break(c, MESH_SOCKET__GAVE_WAY);
        return;
    }
    p = &s->peer[rank];
    if (moves && me == 0 && s->in_open && p->conn && !p->conn->is_unix && c->is_unix) {
        p->conn = NULL; /* over which nothing but the book went; it is closed from the other side */
        p->settled = 1;
    }
    if (p->conn || (p->coming && me < rank)) { /* both sides began: the lower rank's connection stands */
        mesh_socket__verdict(s, c, MESH_SOCKET__REFUSED, "!");
        mesh_socket__break(c, MESH_SOCKET__GAVE_WAY);
        return;
    }
    c->rank = rank;
    c->silent = !joins && !moves; /* who joins does not leave before it hears the verdict */
    if (joins && me == 0) {
        mesh_socket__entry_read(&s->book[rank], hello + 16);
        s->joined++;
    }
    mesh_socket__verdict(s, c, MESH_SOCKET__WELCOME, "");
    mesh_socket__established(s, c);
}

/* The secret is not known at the other end. `proof` is what came. */
MESH__RARE int mesh_socket__proves(mesh_socket__impl *s, mesh_socket__conn *c, const char *role, const void *hello,
                                   size_t hello_bytes, const unsigned char *proof) {
    unsigned char mac[32];
    mesh_socket__mac(s, c, role, hello, hello_bytes, mac);
    return mesh_socket__equal(mac, proof, sizeof mac);
}

/* The accepting side: who connects proves first. */
MESH__RARE void mesh_socket__greeting_in(mesh_socket__impl *s, mesh_socket__conn *c) {
    const unsigned char *g = c->greet;
    unsigned char m[MESH_SOCKET__S1];
    if (c->await == MESH_SOCKET__AWAIT_NONCE) {
        memcpy(c->nonce[0], g + 8, 32);
        if (!mesh_socket__random(c->nonce[1], 32)) {
            mesh_socket__conn_failed(c, "no random numbers (/dev/urandom)", errno);
            return;
        }
        memcpy(m, MESH_SOCKET__MAGIC, 8);
        memcpy(m + 8, c->nonce[1], 32);
        mesh_socket__raw(s, c, m, MESH_SOCKET__S1);
        c->await = MESH_SOCKET__AWAIT_HELLO;
        c->greet_need = MESH_SOCKET__C2;
    } else if (mesh_socket__proves(s, c, "C", g + 32, MESH_SOCKET__HELLO, g)) {
        mesh_socket__introduced(s, c, g + 32);
    } else {
        static const unsigned char no[MESH_SOCKET__S2] = {0}; /* no proof, so that it knows why */
        mesh__copy_text(s->stranger, sizeof s->stranger, "it does not know the secret");
        c->refused = 1;
        mesh_socket__raw(s, c, no, sizeof no);
        mesh_socket__flush(s, c);
        mesh_socket__conn_failed(c, "it does not know the secret", 0);
    }
}

/* The connecting side. */
MESH__RARE void mesh_socket__greeting_out(mesh_socket__impl *s, mesh_socket__conn *c) {
    unsigned char m[MESH_SOCKET__C2], *g = c->greet;
    uint32_t refused = mesh__get32(g + 32), length = mesh__get32(g + 36);
    if (c->await == MESH_SOCKET__AWAIT_ANSWER) {
        memcpy(c->nonce[1], g + 8, 32);
        mesh_socket__hello(s, c->rank, m + 32);
        mesh_socket__mac(s, c, "C", m + 32, MESH_SOCKET__HELLO, m);
        mesh_socket__raw(s, c, m, MESH_SOCKET__C2);
        c->await = MESH_SOCKET__AWAIT_VERDICT;
        c->greet_need = MESH_SOCKET__S2;
    } else if (c->await == MESH_SOCKET__AWAIT_REASON) {
        g[c->greet_need] = 0;
        if (g[0] == '!') {
            mesh_socket__break(c, MESH_SOCKET__GAVE_WAY); /* the peer's own connection is coming */
        } else {
            if (s->in_open && !c->later) mesh__copy_text(s->refusal, sizeof s->refusal, (const char *)g);
            c->refused = !c->later;
            mesh_socket__conn_failed(c, (const char *)g, 0);
        }
    } else if (!mesh_socket__proves(s, c, "S", NULL, 0, g)) {
        if (s->in_open)
            mesh__copy_text(s->refusal, sizeof s->refusal,
                            "it does not know this job's secret; give every rank the same MESH_SECRET");
        c->refused = 1;
        mesh_socket__conn_failed(c, "it does not know the secret", 0);
    } else if (!refused && !length) {
        mesh_socket__established(s, c);
    } else if (length == 0 || length > MESH_SOCKET__VERDICT_TEXT) {
        mesh_socket__conn_failed(c, "a verdict that is none", 0);
    } else {
        c->await = MESH_SOCKET__AWAIT_REASON;
        c->later = refused == MESH_SOCKET__LATER;
        c->greet_need = (int)length;
    }
}

/* What answers is no rank of this job. Where rank 0's name has other addresses it may be at one of those. */
MESH__RARE void mesh_socket__no_rank(mesh_socket__impl *s, const char *remedy, const char *what) {
    mesh__text t = mesh__text_on(s->refusal, sizeof s->refusal);
    s->foreign |= 1u << s->at_address;
    if (s->naddresses < 1 || s->foreign == (1u << s->naddresses) - 1) mesh__put(&t, "%s%s", what, remedy);
}

/* n more bytes of the handshake lie behind those in c->greet, never more than belong to the next message. What is not ours is dropped at the first
   byte that shows it. */
MESH__RARE void mesh_socket__greeted(mesh_socket__impl *s, mesh_socket__conn *c, int n) {
    int i, magic = c->await == MESH_SOCKET__AWAIT_NONCE || c->await == MESH_SOCKET__AWAIT_ANSWER;
    for (i = c->greet_have; magic && i < c->greet_have + n && i < 8; i++)
        if (c->greet[i] != (unsigned char)MESH_SOCKET__MAGIC[i]) {
            const char *what =
                i == 4 ? "it speaks another version of this protocol" : "it does not speak this protocol";
            c->refused = 1;
            if (c->initiator)
                mesh_socket__no_rank(s, i == 4 ? "" : "; another program listens there: set another MASTER_PORT", what);
            else
                mesh__copy_text(s->stranger, sizeof s->stranger, what);
            mesh_socket__conn_failed(c, what, 0);
            return;
        }
    c->greet_have += n;
    if (c->greet_have < c->greet_need) return;
    c->greet_have = 0;
    if (c->initiator)
        mesh_socket__greeting_out(s, c);
    else
        mesh_socket__greeting_in(s, c);
}
#endif /* MESH_SOCKET_HANDSHAKE_IMPLEMENTED */
