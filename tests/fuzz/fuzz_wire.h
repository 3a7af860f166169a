/* The socket transport's streams: one rank of three inside this process, the other ends of its connections are in our hand. Frames come as
   they should, with one field off, or as any bytes; handshakes too, their proofs made right or wrong. */

enum { FUZZ_WORLD = 3, FUZZ_TICKETS = 12, FUZZ_GUARD = 64, FUZZ_MOST = 66000, FUZZ_JOB = 77 };

/* What peer p's messages consist of: so that what is received can be looked at. */
static unsigned char fuzz_pattern(int peer, uint64_t i) {
    return (unsigned char)(i * 31 + (uint64_t)peer * 101 + (i >> 8));
}

typedef struct fuzz_posted {
    mesh_ticket ticket;
    int live, direction, peer;
    size_t nbytes, room;
    mesh_block block;
    unsigned char *memory; /* guards around it, and gaps within where it is strided */
} fuzz_posted;

typedef struct fuzz_rig {
    mesh_socket net;
    mesh_socket__impl *s;
    int far[FUZZ_WORLD];                  /* our end of each peer's connection; -1 */
    unsigned char heard[FUZZ_WORLD][512]; /* of what it writes: a header, and the hello of a handshake */
    uint64_t heard_have[FUZZ_WORLD], heard_skip[FUZZ_WORLD];
    uint64_t offer[FUZZ_WORLD], offer_bytes[FUZZ_WORLD], accepted[FUZZ_WORLD]; /* the last ids that it told us */
    int wild[FUZZ_WORLD]; /* it has been sent bytes of no pattern */
    fuzz_posted posted[FUZZ_TICKETS];
    int nposted;
} fuzz_rig;

static void fuzz_rig_open(fuzz_rig *r, int rank, int in_open) {
    mesh_transport *t = &r->net.base;
    mesh_socket__impl *s;
    int i;
    memset(r, 0, sizeof *r);
    t->ops = mesh_socket__ops(0);
    t->rank = rank;
    t->size = FUZZ_WORLD;
    t->caps = MESH_CAP_STRIDED | MESH_CAP_CHECK | MESH_CAP_PENDING | MESH_CAP_CANCEL;
    s = r->s = (mesh_socket__impl *)mesh_transport_alloc(t, sizeof *s);
    memset(s, 0, sizeof *s);
    r->net.impl = s;
    s->net = &r->net;
    s->tcp_fd = s->unix_fd = s->ready = -1; /* poll is asked */
    s->slot_free = INT32_MAX;
    s->in_open = in_open;
    s->job = FUZZ_JOB;
    s->identity = FUZZ_JOB + 1;
    s->lanes = MESH_SOCKET_TCP;
    memcpy(s->secret, "fuzz", s->secret_bytes = 4);
    s->open_deadline = INT64_MAX;
    s->looked = INT64_MAX - INT64_C(2000000000);
    s->book = (mesh_socket__entry *)mesh_transport_alloc(t, sizeof *s->book * FUZZ_WORLD);
    s->peer = (mesh_socket__peer *)mesh_transport_alloc(t, sizeof *s->peer * FUZZ_WORLD);
    s->restless = (int *)mesh_transport_alloc(t, sizeof *s->restless * FUZZ_WORLD);
    memset(s->book, 0, sizeof *s->book * FUZZ_WORLD);
    memset(s->peer, 0, sizeof *s->peer * FUZZ_WORLD);
    for (i = 0; i < FUZZ_WORLD; i++) s->peer[i].early_end = &s->peer[i].early, r->far[i] = -1;
}

/* A connection, its far end ours. */
static mesh_socket__conn *fuzz_rig_conn(fuzz_rig *r, int *far) {
    mesh_socket__conn *c;
    int fd[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd)) return NULL;
    mesh_socket__nonblocking(fd[0]);
    mesh_socket__nonblocking(fd[1]);
    c = mesh_socket__conn_new(r->s, fd[0]);
    c->is_unix = 1;
    c->greet_need = MESH_SOCKET__C1;
    *far = fd[1];
    return c;
}

static void fuzz_rig_up(fuzz_rig *r, int rank) {
    mesh_socket__conn *c = fuzz_rig_conn(r, &r->far[rank]);
    if (!c) return;
    c->rank = rank;
    mesh_socket__established(r->s, c);
}

/* What the transport has written to a peer: it must be frames. What it offers and accepts is remembered. */
static void fuzz_rig_hear(fuzz_rig *r, int rank) {
    unsigned char bytes[8192];
    ssize_t n;
    while (r->far[rank] >= 0 && (n = recv(r->far[rank], bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
        ssize_t at = 0;
        while (at < n) {
            unsigned char *head = r->heard[rank];
            uint32_t type, length;
            if (r->heard_skip[rank]) {
                uint64_t skip = (uint64_t)(n - at) < r->heard_skip[rank] ? (uint64_t)(n - at) : r->heard_skip[rank];
                at += (ssize_t)skip;
                r->heard_skip[rank] -= skip;
                continue;
            }
            head[r->heard_have[rank]++] = bytes[at++];
            if (r->heard_have[rank] < MESH_SOCKET__HEADER) continue;
            r->heard_have[rank] = 0;
            type = mesh__get32(head), length = mesh__get32(head + 4);
            CHECK(type >= MESH_SOCKET__F_EAGER && type < MESH_SOCKET__F_END && length <= MESH_SOCKET__CHUNK);
            r->heard_skip[rank] = length;
            if (type == MESH_SOCKET__F_OFFER)
                r->offer[rank] = mesh__get64(head + 32), r->offer_bytes[rank] = mesh__get64(head + 24);
            if (type == MESH_SOCKET__F_ACCEPT) r->accepted[rank] = mesh__get64(head + 32);
        }
    }
}

static void fuzz_rig_turn(fuzz_rig *r) {
    int i;
    mesh_control m;
    r->net.base.ops->progress(&r->net.base, 0);
    for (i = 0; i < FUZZ_WORLD; i++) fuzz_rig_hear(r, i);
    while (r->net.base.ops->control_poll(&r->net.base, &m) == MESH_OK) {
        CHECK(m.rank >= 0 && m.rank < FUZZ_WORLD && m.rank != r->net.base.rank);
        CHECK(m.nbytes <= MESH_CONTROL_BYTES && m.kind >= MESH_EVENT_MESSAGE && m.kind <= MESH_EVENT_CLOSED);
    }
}

/* Write to the transport, as far as it reads. */
static void fuzz_rig_say(fuzz_rig *r, int rank, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    int idle = 0;
    while (n && r->far[rank] >= 0 && idle < 4) {
        ssize_t k = send(r->far[rank], p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k > 0)
            p += k, n -= (size_t)k, idle = 0;
        else if (errno == EAGAIN)
            fuzz_rig_turn(r), idle++;
        else
            return;
    }
}

/* ---- what is posted ---- */

static void fuzz_post(fuzz_rig *r, fuzz_bytes *b, int direction) {
    static const size_t sizes[] = {0, 1, 5, 64, 1000, 5000, 17000, 200, FUZZ_MOST};
    int peer = fuzz_below(b, FUZZ_WORLD), how = fuzz_byte(b);
    fuzz_posted *x = &r->posted[r->nposted];
    mesh_xfer xfer = MESH_ZERO;
    mesh_post post = MESH_ZERO;
    size_t i;
    if (r->nposted == FUZZ_TICKETS || peer == r->net.base.rank) return;
    memset(x, 0, sizeof *x);
    x->direction = direction, x->peer = peer;
    x->nbytes = sizes[fuzz_below(b, 9)];
    x->room = x->nbytes;
    if (how & 1 && x->nbytes >= 64) { /* runs of 16 bytes or a quarter, with gaps */
        x->block.run = how & 2 ? 16 : x->nbytes / 4;
        x->block.ndim = 1;
        x->block.dim[0].count = (int64_t)(x->nbytes / x->block.run);
        x->block.dim[0].stride = (int64_t)x->block.run + 8;
        x->nbytes = (size_t)x->block.run * (size_t)x->block.dim[0].count;
        x->room = (size_t)(x->block.dim[0].stride * x->block.dim[0].count);
        xfer.block = &x->block;
    }
    x->memory = (unsigned char *)malloc(x->room + 2 * FUZZ_GUARD);
    memset(x->memory, 0xee, x->room + 2 * FUZZ_GUARD);
    for (i = 0; i < x->nbytes && direction == MESH_SEND; i++) x->memory[FUZZ_GUARD + i] = (unsigned char)i;
    xfer.base = x->memory + FUZZ_GUARD;
    xfer.nbytes = x->nbytes;
    xfer.direction = direction;
    xfer.rank = peer;
    post.channel = (uint64_t)(1 + (how >> 2 & 3)) << 32 | (uint64_t)(how >> 4 & 1);
    post.check = (uint64_t)(how >> 5 & 1);
    post.xfer = &xfer;
    post.count = 1;
    CHECK_INT(r->net.base.ops->post(&r->net.base, &post, &x->ticket), MESH_OK);
    x->live = 1;
    r->nposted++;
}

/* What lies beside the message is untouched; what has been received is what the peer said. */
static void fuzz_posted_check(const fuzz_rig *r, const fuzz_posted *x, mesh_status status) {
    size_t i, stride = x->block.ndim ? (size_t)x->block.dim[0].stride : x->room + 1,
              run = x->block.ndim ? (size_t)x->block.run : x->room, at;
    int wrong = 0;
    for (i = 0; i < FUZZ_GUARD; i++) wrong |= x->memory[i] != 0xee || x->memory[FUZZ_GUARD + x->room + i] != 0xee;
    for (i = at = 0; i < x->room && x->direction == MESH_RECV; i++) { /* at: which byte of the message */
        unsigned char got = x->memory[FUZZ_GUARD + i];
        if (i % stride >= run)
            wrong |= 2 * (got != 0xee);
        else if (status == MESH_OK && !r->wild[x->peer])
            wrong |= 2 * (got != fuzz_pattern(x->peer, at++));
    }
    if (wrong)
        test_fail(__FILE__, __LINE__, "a message of %d bytes with rank %d, status %d: %s", (int)x->nbytes, x->peer,
                  (int)status,
                  wrong & 1 ? "bytes around it were written" : "other bytes than were sent, or between its runs");
}

static void fuzz_test_all(fuzz_rig *r, int canceled) {
    int i, n;
    for (i = 0; i < r->nposted; i++) {
        fuzz_posted *x = &r->posted[i];
        mesh_error why;
        mesh_status status;
        int ranks[FUZZ_WORLD];
        if (!x->live) continue;
        n = r->net.base.ops->pending(&r->net.base, &x->ticket, ranks, FUZZ_WORLD);
        CHECK(n == 0 || (n == 1 && ranks[0] == x->peer));
        if (canceled) r->net.base.ops->cancel(&r->net.base, &x->ticket);
        status = r->net.base.ops->test(&r->net.base, &x->ticket, &why);
        if (canceled) CHECK(status != MESH_IN_PROGRESS);
        if (status == MESH_IN_PROGRESS) continue;
        if (status != MESH_OK) CHECK(why.text[0] != 0 && why.status == status);
        fuzz_posted_check(r, x, status);
        x->live = 0;
    }
}

/* ---- frames ---- */

/* The id of something that is under way: a peer's own, another peer's, a little off, or none. */
static uint64_t fuzz_id(fuzz_rig *r, fuzz_bytes *b, int peer, int type) {
    int which = fuzz_byte(b), i, at = which >> 4;
    int direction = type == MESH_SOCKET__F_ACCEPT || type == MESH_SOCKET__F_REFUSE ? MESH_SEND : MESH_RECV;
    for (i = 0; i < r->s->nslots; i++) {
        mesh_socket__xfer *x = r->s->slot[i];
        if (!x || (which & 1 ? 0 : x->x.rank != peer || x->x.direction != direction)) continue;
        if (at-- > 0 && which & 2) continue;
        return x->id + (which & 4 && which & 8 ? UINT64_C(1) << (which >> 4) * 3 : 0);
    }
    return which & 1 ? fuzz_number(b, 8) : direction == MESH_SEND ? r->offer[peer] : r->accepted[peer];
}

/* The first receive of a peer that is not matched. */
static mesh_socket__xfer *fuzz_open_recv(fuzz_rig *r, int peer, int skip) {
    mesh_socket__xfer *x = r->s->peer[peer].posted.head;
    while (x && x->next && skip-- > 0) x = x->next;
    return x;
}

/* One frame, right but for what the bytes say; its payload follows the pattern. */
static void fuzz_frame(fuzz_rig *r, fuzz_bytes *b, int peer) {
    static unsigned char frame[MESH_SOCKET__HEADER + FUZZ_MOST];
    int type = 1 + fuzz_below(b, MESH_SOCKET__F_END), off = fuzz_byte(b), cut = 0;
    mesh_socket__xfer *x = fuzz_open_recv(r, peer, off >> 6), *to;
    uint64_t channel = x ? x->channel : (uint64_t)(1 + fuzz_below(b, 4)) << 32, check = x ? x->check : 0, a = 0,
             second = 0, start = 0;
    uint32_t length = 0, i;
    switch (type) {
    case MESH_SOCKET__F_EAGER:
        length = x ? (uint32_t)x->x.nbytes : (uint32_t)fuzz_number(b, 2);
        break;
    case MESH_SOCKET__F_OFFER:
        a = x ? x->x.nbytes : fuzz_number(b, 3);
        second = 1 + (uint64_t)fuzz_byte(b);
        break;
    case MESH_SOCKET__F_DATA:
        a = fuzz_id(r, b, peer, type);
        to = mesh_socket__id_find(r->s, a, peer, MESH_RECV);
        second = to ? to->moved : fuzz_number(b, 3);
        length = to ? (uint32_t)(to->x.nbytes - to->moved) : 16;
        if (off & 32 && length > 3) length /= 3;
        break;
    case MESH_SOCKET__F_ACCEPT:
    case MESH_SOCKET__F_REFUSE:
    case MESH_SOCKET__F_WITHDRAW:
        a = fuzz_id(r, b, peer, type);
        second = fuzz_number(b, 2);
        break;
    case MESH_SOCKET__F_CREDIT:
        a = fuzz_number(b, 3);
        break;
    case MESH_SOCKET__F_CONTROL:
        a = (uint64_t)fuzz_below(b, 3);
        length = (uint32_t)fuzz_byte(b) * 4;
        break;
    case MESH_SOCKET__F_LOST:
        a = (uint64_t)fuzz_below(b, 5);
        length = (uint32_t)fuzz_byte(b);
        break;
    case MESH_SOCKET__F_GIVEN_UP:
        a = (uint64_t)fuzz_below(b, 12), second = (uint64_t)fuzz_below(b, 4);
        length = (uint32_t)fuzz_byte(b) * 2;
        break;
    case MESH_SOCKET__F_BOOK:
        length = FUZZ_WORLD * MESH_SOCKET__ENTRY;
        break;
    default:
        break;
    }
    switch (off & 15) { /* one field off */
    case 1:
        length += (uint32_t)fuzz_number(b, 2) - 300;
        break;
    case 2:
        length ^= UINT32_C(1) << fuzz_below(b, 32);
        break;
    case 3:
        channel ^= UINT64_C(1) << fuzz_below(b, 64);
        break;
    case 4:
        check ^= 1;
        break;
    case 5:
        a ^= UINT64_C(1) << fuzz_below(b, 64);
        break;
    case 6:
        second ^= UINT64_C(1) << fuzz_below(b, 64);
        break;
    case 7:
        second = UINT64_MAX - fuzz_number(b, 1);
        break;
    case 8:
        type ^= 1 << fuzz_below(b, 31);
        break;
    case 9:
        cut = 1 + fuzz_below(b, MESH_SOCKET__HEADER + 20);
        break;
    default:
        break;
    }
    if (type == MESH_SOCKET__F_DATA) start = second;
    mesh_socket__header(frame, type, length, channel, check, a, second);
    if (length > FUZZ_MOST) length = 64;
    for (i = 0; i < length; i++) frame[MESH_SOCKET__HEADER + i] = fuzz_pattern(peer, start + i);
    if (cut) { /* in two pieces, the transport reading between */
        size_t all = MESH_SOCKET__HEADER + (size_t)length, first = (size_t)cut < all ? (size_t)cut : all;
        fuzz_rig_say(r, peer, frame, first);
        fuzz_rig_turn(r);
        fuzz_rig_say(r, peer, frame + first, all - first);
        return;
    }
    fuzz_rig_say(r, peer, frame, MESH_SOCKET__HEADER + (size_t)length);
}

static void fuzz_frames(const unsigned char *data, size_t n) {
    fuzz_bytes b = fuzz_bytes_of(data, n);
    fuzz_rig r;
    int how = fuzz_byte(&b), rank = how & 1, steps, i;
    unsigned char raw[64] = {0};
    fuzz_rig_open(&r, rank, how >> 1 & 1 && rank);
    for (i = 0; i < FUZZ_WORLD; i++)
        if (i != rank) fuzz_rig_up(&r, i);
    for (steps = 0; steps < 60 && b.p < b.end; steps++) {
        int what = fuzz_byte(&b), peer = rank ? (what >> 4 & 1) * 2 : 1 + (what >> 4 & 1);
        switch (what & 15) {
        case 0:
        case 1:
        case 2:
            fuzz_post(&r, &b, MESH_RECV);
            break;
        case 3:
        case 4:
            fuzz_post(&r, &b, MESH_SEND);
            break;
        case 5:
            i = fuzz_below(&b, FUZZ_TICKETS);
            if (i < r.nposted && r.posted[i].live) r.net.base.ops->cancel(&r.net.base, &r.posted[i].ticket);
            break;
        case 6: { /* a comm is closed: what comes for it is dropped */
            mesh_socket__handle *h = (mesh_socket__handle *)mesh_transport_alloc(&r.net.base, sizeof *h);
            memset(h, 0, sizeof *h);
            h->id = 1 + (uint32_t)fuzz_below(&b, 4);
            r.net.base.ops->group_close(&r.net.base, h);
            break;
        }
        case 7:
            for (i = 0; i < (int)sizeof raw; i++) raw[i] = (unsigned char)fuzz_byte(&b);
            fuzz_rig_say(&r, peer, raw, 1 + (size_t)fuzz_below(&b, 64));
            r.wild[peer] = 1;
            break;
        case 8:
            if (r.far[peer] >= 0) close(r.far[peer]);
            r.far[peer] = -1;
            break;
        case 9:
            r.net.base.ops->control_send(&r.net.base, peer, MESH_EVENT_MESSAGE, raw, (size_t)fuzz_below(&b, 65));
            break;
        case 10:
            fuzz_rig_turn(&r);
            fuzz_test_all(&r, 0);
            break;
        default:
            fuzz_frame(&r, &b, peer);
            break;
        }
    }
    for (i = 0; i < 3; i++) fuzz_rig_turn(&r);
    fuzz_test_all(&r, 0);
    if (how & 4 && !r.s->in_open) { /* all hang up: whatever waits for them ends by itself, and names them */
        for (i = 0; i < FUZZ_WORLD; i++) {
            if (r.far[i] >= 0) shutdown(r.far[i], SHUT_WR);
        }
        for (i = 0; i < 40 && r.s->nconns; i++) fuzz_rig_turn(&r);
        CHECK_INT(r.s->nconns, 0);
        fuzz_test_all(&r, 0);
        for (i = 0; i < r.nposted; i++) /* after a goodbye it is for the core to say who is needed */
            if (r.posted[i].live && r.s->peer[r.posted[i].peer].gone == MESH_EVENT_LOST)
                test_fail(__FILE__, __LINE__, "a message with rank %d, which is lost, does not end", r.posted[i].peer);
    }
    fuzz_test_all(&r, 1);
    mesh_socket__release(r.s);
    for (i = 0; i < r.nposted; i++) free(r.posted[i].memory);
    for (i = 0; i < FUZZ_WORLD; i++)
        if (r.far[i] >= 0) close(r.far[i]);
}

/* ---- handshakes ---- */

typedef struct fuzz_greeting { /* one side's messages, and what of them is wrong */
    int wrong;                 /* anything at all */
    unsigned char nonce[2][32];
} fuzz_greeting;

static void fuzz_mac(const fuzz_rig *r, const fuzz_greeting *g, const char *role, const unsigned char *hello,
                     unsigned char *out) {
    const void *piece[3];
    size_t nbytes[3] = {1, 64, MESH_SOCKET__HELLO};
    piece[0] = role, piece[1] = g->nonce, piece[2] = hello;
    mesh_socket__hmac(r->s->secret, r->s->secret_bytes, piece, nbytes, hello ? 3 : 2, out);
}

/* Flip a bit of a message, or cut it off, or neither. Returns the bytes to send; *wrong: whether it differs. */
static size_t fuzz_spoil(fuzz_bytes *b, unsigned char *m, size_t n, int *wrong) {
    int how = fuzz_byte(b);
    size_t at = (size_t)fuzz_byte(b) % n;
    if (how % 8 == 1) m[at] ^= (unsigned char)(1 << (how >> 3 & 7)), *wrong = 1;
    if (how % 8 == 2) {
        *wrong = 1;
        return at;
    }
    return n;
}

/* Read just so many bytes of what the transport wrote. Returns 0 if they are not there. */
static int fuzz_read(fuzz_rig *r, int far, unsigned char *to, size_t n) {
    size_t have = 0;
    int i;
    for (i = 0; i < 4 && have < n; i++) {
        ssize_t k = recv(far, to + have, n - have, MSG_DONTWAIT);
        if (k > 0)
            have += (size_t)k;
        else
            r->net.base.ops->progress(&r->net.base, 0);
    }
    return have == n;
}

static void fuzz_send(fuzz_rig *r, int far, const unsigned char *m, size_t n) {
    if (n && send(far, m, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
    r->net.base.ops->progress(&r->net.base, 0);
    r->net.base.ops->progress(&r->net.base, 0);
}

/* One who connects to us. `replay`: a whole C2 of another connection. Returns 1 if it was let in. */
static int fuzz_caller(fuzz_rig *r, fuzz_bytes *b, unsigned char *recorded, int replay) {
    unsigned char m[MESH_SOCKET__C2], verdict[MESH_SOCKET__S2], mac[32];
    unsigned char *hello = m + 32;
    fuzz_greeting g = MESH_ZERO;
    mesh_socket__impl *s = r->s;
    int far = -1, me = r->net.base.rank, rank, size, kind, to, welcome, spoilt = 0, answered, i;
    int had[FUZZ_WORLD];
    uint64_t job;
    size_t n;
    mesh_socket__conn *c = fuzz_rig_conn(r, &far);
    if (!c) return 0;
    c->deadline = INT64_MAX - 1;
    for (i = 0; i < FUZZ_WORLD; i++) had[i] = s->peer[i].conn != NULL;
    memcpy(m, MESH_SOCKET__MAGIC, 8);
    for (i = 0; i < 32; i++) m[8 + i] = (unsigned char)(i * 3 + fuzz_byte(b));
    n = fuzz_spoil(b, m, MESH_SOCKET__C1, &spoilt);
    g.wrong = spoilt && (n < MESH_SOCKET__C1 || memcmp(m, MESH_SOCKET__MAGIC, 8)); /* a nonce is as good as another */
    memcpy(g.nonce[0], m + 8, 32);
    fuzz_send(r, far, m, n);
    answered = fuzz_read(r, far, m, MESH_SOCKET__S1);
    CHECK_INT(answered, !g.wrong); /* a stranger gets nothing */
    if (answered) {
        CHECK(!memcmp(m, MESH_SOCKET__MAGIC, 8));
        memcpy(g.nonce[1], m + 8, 32);
    }
    kind = fuzz_byte(b);
    rank = kind & 16 ? fuzz_below(b, 6) - 1 : (me + 1) % FUZZ_WORLD, size = kind & 32 ? fuzz_below(b, 5) : FUZZ_WORLD;
    to = kind & 64 ? fuzz_below(b, 4) : me, job = kind & 128                         ? fuzz_number(b, 1)
                                                  : (kind & 3) == MESH_SOCKET__JOINS ? FUZZ_JOB + 1
                                                                                     : FUZZ_JOB;
    kind &= 3;
    memset(hello, 0, MESH_SOCKET__HELLO);
    mesh__put32(hello, (uint32_t)rank);
    mesh__put32(hello + 4, (uint32_t)size);
    mesh__put32(hello + 8, (uint32_t)kind);
    mesh__put32(hello + 12, (uint32_t)to);
    for (i = 16; i < 80; i++) hello[i] = (unsigned char)(fuzz_byte(b));
    mesh__put64(hello + 80, job);
    welcome = rank >= 0 && rank < FUZZ_WORLD && rank != me && size == FUZZ_WORLD && to == me &&
              (kind == MESH_SOCKET__JOINS ? me == 0 && s->in_open && job == FUZZ_JOB + 1 : job == FUZZ_JOB) &&
              !had[rank < 0 || rank >= FUZZ_WORLD ? 0 : rank] && !s->peer[rank].gone && !s->peer[rank].coming;
    fuzz_mac(r, &g, fuzz_byte(b) % 16 == 7 ? (g.wrong = 1, "S") : "C", hello, m);
    if (!replay) memcpy(recorded, m, sizeof m);
    if (replay) memcpy(m, recorded, sizeof m);
    n = fuzz_spoil(b, m, MESH_SOCKET__C2, &g.wrong);
    g.wrong |= replay;
    if (answered) fuzz_send(r, far, m, n);
    for (i = 0; i < FUZZ_WORLD; i++) { /* who is let in, is it rightly? */
        if ((s->peer[i].conn != NULL) == had[i]) continue;
        if (g.wrong || !welcome || i != rank)
            test_fail(__FILE__, __LINE__,
                      "rank %d is let in: wrong %d, welcome %d, rank %d of %d to %d, kind %d, job %d", i, g.wrong,
                      welcome, rank, size, to, kind, (int)job);
    }
    if (answered && !g.wrong && welcome) CHECK(s->peer[rank].conn == c);
    if (answered && n == MESH_SOCKET__C2 && fuzz_read(r, far, verdict, sizeof verdict)) {
        static const unsigned char none[MESH_SOCKET__S2] = {0};
        fuzz_mac(r, &g, "S", NULL, mac);
        if (g.wrong)
            CHECK(!memcmp(verdict, none, sizeof none)); /* no proof for who gave none */
        else
            CHECK(!memcmp(verdict, mac, 32) && (mesh__get32(verdict + 32) != 0) == !welcome &&
                  mesh__get32(verdict + 36) <= MESH_SOCKET__VERDICT_TEXT);
    }
    close(far);
    for (i = 0; i < 3; i++) r->net.base.ops->progress(&r->net.base, 0);
    return !g.wrong && welcome;
}

/* One whom we connect to. */
static void fuzz_callee(fuzz_rig *r, fuzz_bytes *b) {
    static const unsigned char text[MESH_SOCKET__VERDICT_TEXT + 64] = "!is that so";
    unsigned char m[MESH_SOCKET__C2], proof[MESH_SOCKET__S2], mac[32];
    fuzz_greeting g = MESH_ZERO;
    mesh_socket__impl *s = r->s;
    int far = -1, rank = (r->net.base.rank + 1 + fuzz_below(b, 2)) % FUZZ_WORLD, spoilt = 0, how, i;
    uint32_t no, length;
    size_t n;
    mesh_socket__conn *c;
    if (rank == r->net.base.rank || s->peer[rank].conn || s->peer[rank].coming || s->peer[rank].gone ||
        !(c = fuzz_rig_conn(r, &far)))
        return;
    c->initiator = 1;
    c->rank = rank;
    s->peer[rank].coming = c;
    mesh_socket__greet(s, c);
    r->net.base.ops->progress(&r->net.base, 0);
    CHECK(fuzz_read(r, far, m, MESH_SOCKET__C1) && !memcmp(m, MESH_SOCKET__MAGIC, 8));
    memcpy(g.nonce[0], m + 8, 32);
    for (i = 0; i < 32; i++) m[8 + i] = (unsigned char)(i * 5 + fuzz_byte(b));
    n = fuzz_spoil(b, m, MESH_SOCKET__S1, &spoilt);
    g.wrong = spoilt && (n < MESH_SOCKET__S1 || memcmp(m, MESH_SOCKET__MAGIC, 8));
    memcpy(g.nonce[1], m + 8, 32);
    fuzz_send(r, far, m, n);
    CHECK_INT(fuzz_read(r, far, m, MESH_SOCKET__C2), !g.wrong);
    if (!g.wrong) {
        fuzz_mac(r, &g, "C", m + 32, mac);
        CHECK(!memcmp(m, mac, 32) && mesh__get32(m + 32) == (uint32_t)r->net.base.rank &&
              mesh__get32(m + 44) == (uint32_t)rank);
        how = fuzz_byte(b);
        no = how & 1, length = how & 2 ? (uint32_t)fuzz_number(b, 2) : no ? 5 : 0;
        fuzz_mac(r, &g, "S", NULL, proof);
        if (how % 16 == 4) memcpy(proof, m, 32), g.wrong = 1; /* our own proof, sent back */
        mesh__put32(proof + 32, no);
        mesh__put32(proof + 36, length);
        spoilt = 0;
        n = fuzz_spoil(b, proof, sizeof proof, &spoilt);
        g.wrong |= spoilt;
        fuzz_send(r, far, proof, n);
        if (!spoilt && length)
            fuzz_send(r, far, text + (how >> 2 & 1), length < sizeof text - 1 ? length : sizeof text - 1);
        if (s->peer[rank].conn) CHECK(s->peer[rank].conn == c && !g.wrong && !no && !length);
        if (!g.wrong && !no && !length) CHECK(s->peer[rank].conn == c);
    } else {
        CHECK(s->peer[rank].conn == NULL);
    }
    close(far);
    for (i = 0; i < 3; i++) r->net.base.ops->progress(&r->net.base, 0);
}

static void fuzz_handshake(const unsigned char *data, size_t n) {
    fuzz_bytes b = fuzz_bytes_of(data, n);
    unsigned char recorded[MESH_SOCKET__C2] = {0};
    fuzz_rig r;
    int how = fuzz_byte(&b), times, has_recorded = 0;
    fuzz_rig_open(&r, how & 1, how >> 1 & 1);
    r.s->have_book = how >> 2 & 1;
    for (times = 0; times < 4 && b.p < b.end; times++) {
        int what = fuzz_byte(&b);
        if (what % 4 == 3 && !r.s->in_open)
            fuzz_callee(&r, &b);
        else
            fuzz_caller(&r, &b, recorded, what % 4 == 2 && has_recorded), has_recorded = 1;
    }
    mesh_socket__release(r.s);
}
