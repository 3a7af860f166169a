/* Laws of mesh/plan.h and its rooms over pools of problems: every candidate, the least scratch, rounds, traffic, replicas in turn, hashes, what EXPLAIN says. */
#ifndef T_PLANS_H
#define T_PLANS_H

enum { PLAN_CANDIDATES = 24 };

typedef struct plan_problem {
    mesh src, dst;
    mesh_spec from, to;
    mesh_topology t;
    plan_ask d;
    int tables[2][PLAN_RANKS], inverses[2][PLAN_RANKS];
    mesh_table table[2];
} plan_problem;

/* A problem of up to `most` ranks that the interpreter can hold. */
static void plan_draw(plan_problem *p, test_random *r, int most) {
    static const int sizes[] = {1, 2, 3, 4, 4, 6, 8, 8, 12, 16};
    static const int ops[] = {MESH_SUM, MESH_SUM, MESH_AVG, MESH_MAX, MESH_MIN, MESH_XOR};
    int size, how = random_below(r, 4), ndim = random_below(r, 4), op = ops[random_below(r, 6)], d;
    int64_t elements = 1;
    do size = sizes[random_below(r, 10)];
    while (size > most);
    memset(&p->d, 0, sizeof p->d);
    memset(&p->t, 0, sizeof p->t);
    d = random_below(r, 3);
    p->src = p->dst = plan_random_mesh(r, d, size, p->tables[0], p->inverses[0], &p->table[0]);
    d = random_below(r, 4), size = 1 + random_below(r, most); /* drawn one by one: the same with every compiler */
    if (!how && op != MESH_AVG) p->dst = plan_random_mesh(r, d, size, p->tables[1], p->inverses[1], &p->table[1]);
    p->from = plan_random_spec(r, &p->src, ndim, op);
    p->to = plan_random_spec(r, &p->dst, ndim, op == MESH_AVG ? -1 : op);
    p->d.src = &p->src, p->d.dst = &p->dst, p->d.from = &p->from, p->d.to = &p->to, p->d.ndim = ndim;
    for (d = 0; d < ndim; d++) {
        p->d.shape[d] = random_below(r, 3) ? 4 * (1 + random_below(r, 4)) : 1 + random_below(r, 9);
        if (elements * p->d.shape[d] > 1024) p->d.shape[d] = 1;
        elements *= p->d.shape[d];
    }
    p->d.dtype = MESH_F32, p->d.elem_bytes = random_below(r, 2) ? 4 : 1 + random_below(r, 50000);
    p->t = random_below(r, 3) ? plan_nodes(2 << random_below(r, 2)) : plan_slow_messages();
    if (!random_below(r, 4)) p->t = plan_bytes_only();
    if (!random_below(r, 4)) p->t.level[p->t.nlevels - 1].ranks = p->t.nlevels > 1 ? p->t.level[0].ranks : 1; /* all the same */
    if (random_below(r, 5)) p->d.topology = &p->t;
}

/* Do two plans of one problem go the same way? */
static int plan_same_way(const mesh_plan *a, const mesh_plan *b) {
    int k, d;
    if (a->nsteps != b->nsteps || a->view.ndim != b->view.ndim) return 0;
    for (d = 0; d < a->view.ndim; d++)
        if (a->view.shape[d] != b->view.shape[d]) return 0;
    for (k = 0; k < a->nsteps; k++)
        if (!mesh_equal(&a->at[a->step[k].on], &b->at[b->step[k].on]) ||
            !mesh_spec_equal(&a->step[k].spec, &b->step[k].spec))
            return 0;
    return 1;
}

/* Sums are sums: steps, ranks and rounds say what the plan says. */
static int plan_adds_up(const mesh_plan *p) {
    int64_t bytes = 0, ps = 0, worst = 0;
    int k, r, side, i, divides = 0, reduced = 1, world = PLAN_RANKS;
    for (k = 0; k < p->nsteps; k++) {
        int64_t most = 0;
        const mesh_step *s = &p->step[k];
        mesh_moves of_step;
        bytes += s->bytes, ps += s->ps;
        PLAN_CHECK(p, s->bytes >= 0 && s->ps >= 0 && s->rounds >= 1);
        for (side = 0; side < 2; side++)
            for (i = 0; i < p->at[side].size; i++) {
                mesh_traffic t = mesh_plan_traffic(p, k, mesh_rank_at(&p->at[side], i));
                if (t.sent > most) most = t.sent;
                if (t.received > most) most = t.received;
            }
        PLAN_CHECK(p, most <= s->bytes);
        worst += most;
        mesh_moves_start(&of_step, p, k, 0, -1);
        reduced *= of_step.summands;
        if (s->divide) divides++, i = k;
        PLAN_CHECK(p, !s->divide || (s->divide == reduced && s->kind == MESH_STEP_REDUCE));
        PLAN_CHECK(p, (s->kind == MESH_STEP_REDUCE) == (of_step.summands > 1));
        PLAN_CHECK(p, strcmp(mesh_step_name(p, k), "no step"));
    }
    for (i = 0; i < p->at[0].naxes; i++) PLAN_CHECK(p, p->from.axis[i].kind != MESH_PARTIAL || p->from.axis[i].op == p->op);
    for (i = 0; i < p->at[1].naxes; i++) PLAN_CHECK(p, p->to.axis[i].kind != MESH_PARTIAL || p->to.axis[i].op == p->op);
    PLAN_CHECK(p, divides == (p->op == MESH_AVG && reduced > 1));
    PLAN_CHECK(p, bytes == p->bytes && ps == p->ps);
    PLAN_CHECK(p, worst == mesh_plan_measure(p));
    PLAN_CHECK(p, !strcmp(mesh_step_name(p, p->nsteps), "no step") && !strcmp(mesh_step_name(p, -1), "no step"));
    for (r = -1; r <= world; r++) {
        mesh_traffic all = mesh_plan_traffic(p, -1, r), beyond = mesh_plan_traffic(p, p->nsteps, r), sum = MESH_ZERO;
        for (k = 0; k < p->nsteps; k++) {
            mesh_traffic t = mesh_plan_traffic(p, k, r);
            sum.sent += t.sent, sum.received += t.received, sum.sends += t.sends, sum.recvs += t.recvs;
        }
        PLAN_CHECK(p, sum.sent == all.sent && sum.received == all.received && sum.sends == all.sends &&
                          sum.recvs == all.recvs);
        PLAN_CHECK(p, !beyond.sent && !beyond.received && !beyond.sends && !beyond.recvs);
        if (mesh_index_of(&p->at[0], r) < 0 && mesh_index_of(&p->at[1], r) < 0)
            PLAN_CHECK(p, !all.sends && !all.recvs);
    }
    return 1;
}

/* A layout on the way that lies elsewhere than the destination is written to memory, which takes time, and room, unless it is handed on slab
   by slab as it is reduced. */
static int plan_memory_costs(const mesh_plan *p) {
    int k, i, d;
    for (k = 0; k + 1 < p->nsteps; k++) {
        const mesh_step *s = &p->step[k];
        int64_t elsewhere = 0;
        for (i = 0; i < p->at[s->on].size; i++) {
            mesh_box at, end;
            int rank = mesh_rank_at(&p->at[s->on], i), out = 0;
            int64_t nbytes;
            spec_box(&s->spec, &p->at[s->on], p->view.ndim, p->view.shape, rank, &at);
            nbytes = mesh_box_count(&at) * p->elem_bytes;
            if (!spec_box(&p->view.to, &p->at[1], p->view.ndim, p->view.shape, rank, &end)) out = 1;
            for (d = 0; d < p->view.ndim && !out; d++)
                out = at.offset[d] < end.offset[d] || at.offset[d] + at.shape[d] > end.offset[d] + end.shape[d];
            if (out && nbytes > elsewhere) elsewhere = nbytes;
        }
        PLAN_CHECK(p, elsewhere < 1 << 18 || s->ps > 0 || !p->topology.level[0].latency_ps);
        if (s->kind == MESH_STEP_MOVE || s->rounds == 1 || k + 2 < p->nsteps) PLAN_CHECK(p, p->scratch >= elsewhere);
    }
    return 1;
}

/* The same moves, whatever the last level says of its ranks: it joins everything. */
static int plan_last_level_joins(const mesh_plan *p) {
    static mesh_plan other;
    int k, rank;
    other = *p;
    if (p->topology.nlevels < 2) return 1;
    other.topology.level[p->topology.nlevels - 1].ranks = 2 * p->topology.level[0].ranks;
    for (k = 0; k < p->nsteps; k++)
        for (rank = 0; rank < 20; rank++) {
            mesh_moves a, b;
            int more;
            mesh_moves_start(&a, p, k, rank, -1);
            mesh_moves_start(&b, &other, k, rank, -1);
            do {
                more = mesh_moves_next(&a);
                PLAN_CHECK(p, mesh_moves_next(&b) == more && (!more || (a.kind == b.kind && a.peer == b.peer)));
            } while (more);
        }
    return 1;
}

/* Every candidate moves the tensor as the specs say, is another way than the others and dearer than those before; fewer are the first of more. */
static void plan_candidates_of(test_random r, int trials) {
    static mesh_plan all[PLAN_CANDIDATES + 1], few[4], one;
    static plan_problem p;
    int trial, seen = 0, moves = 0, several = 0, dearer = 0;
    for (trial = 0; trial < trials && !test_failures; trial++) {
        mesh_error err;
        int n, k, i, cap = 1 + random_below(&r, 3), got, direct = 0;
        plan_draw(&p, &r, trial % 8 ? 8 : 16);
        memset(all, 0x5a, sizeof all);
        memset(few, 0x5a, sizeof few);
        n = ask_candidates(all, PLAN_CANDIDATES, &p.d, &err);
        if (n < 1 || n > PLAN_CANDIDATES) {
            test_fail(__FILE__, __LINE__, "trial %d: %d candidates: %s", trial, n, err.text);
            return;
        }
        for (i = n; i <= PLAN_CANDIDATES; i++) CHECK_INT(all[i].nsteps, 0x5a5a5a5a);
        got = ask_candidates(few, cap, &p.d, &err);
        CHECK_INT(got, n < cap ? n : cap);
        CHECK_INT(few[cap].nsteps, 0x5a5a5a5a);
        CHECK_OK(ask_plan(&one, &p.d, &err), err);
        CHECK(one.hash == all[0].hash && one.ps == all[0].ps);
        CHECK(!(one.limited & ~all[0].limited)); /* the search for one ends where nothing can be better, orders too */
        CHECK(!((one.limited ^ all[0].limited) & ~(uint32_t)MESH_LIMIT_ORDERS));
        for (k = 0; k < got; k++) CHECK(few[k].hash == all[k].hash && few[k].ps == all[k].ps);
        dearer += all[0].nsteps == 1 && n > 1 && all[1].ps > all[0].ps;
        if (!plan_last_level_joins(&one)) return;
        for (k = 0; k < n; k++) {
            if (!plan_interpret(&all[k], &moves) || !plan_adds_up(&all[k]) || !plan_memory_costs(&all[k])) return;
            CHECK_INT(all[k].dtype, MESH_F32);
            CHECK(all[k].limited == all[0].limited);
            if (mesh_plan_lower_bound(&all[k]) > mesh_plan_measure(&all[k]) || (k && all[k].ps < all[k - 1].ps) ||
                all[k].hash != mesh__plan_hash(&all[k])) {
                test_fail(__FILE__, __LINE__, "trial %d, candidate %d:\n%s", trial, k, plan_text(&all[k]));
                return;
            }
            for (i = 0; i < k; i++)
                if (plan_same_way(&all[i], &all[k]) || all[i].hash == all[k].hash) {
                    test_fail(__FILE__, __LINE__, "trial %d: candidates %d and %d are one:\n%s", trial, i, k,
                              plan_text(&all[k]));
                    return;
                }
            direct |= all[k].nsteps == 1;
            for (i = 0; i < all[k].nsteps && all[k].nsteps > 1; i++) { /* no step that does nothing */
                mesh_spec was = i ? all[k].step[i - 1].spec : all[k].view.from, is = all[k].step[i].spec;
                was.strict = is.strict = 0;
                if (mesh_equal(&all[k].at[i ? all[k].step[i - 1].on : 0], &all[k].at[all[k].step[i].on]))
                    CHECK(!mesh_spec_equal(&was, &is));
            }
        }
        CHECK(direct || n == PLAN_CANDIDATES);
        seen += n;
        several += n > 2;
    }
    CHECK(trials < 500 || (seen > 800 && several > 60 && dearer > 10));
    memset(&one, 0x5a, sizeof one);
    for (trial = 0; trial < 2; trial++) {
        mesh_error err;
        CHECK_INT(ask_candidates(trial ? NULL : &one, trial, &p.d, &err), -1);
        CHECK_INT(err.status, MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "room for a plan is missing");
    }
    CHECK_INT(one.nsteps, 0x5a5a5a5a);
}

static void test_plan_candidates(void) {
    /* Where other plans came out when more were wanted, twice; where only the search for more leaves orders out. */
    static const uint64_t fewer[] = {54084845, 175264849, 145556797};
    uint64_t seed = test_seed;
    int i;
    plan_candidates_of(random_from(61), 500);
    for (i = 0; i < 3; i++) {
        test_seed = fewer[i];
        plan_candidates_of(random_from(61), 200);
    }
    test_seed = seed;
}

/* With the least scratch that is named there is a plan, with a byte less there is none; whatever is granted is kept to, and every candidate. */
static void plan_least_of(test_random r) {
    static mesh_plan plan, tight[PLAN_CANDIDATES];
    static plan_problem p;
    char text_of_sums[200];
    int trial, k, n, moves = 0, refusals = 0, capped = 0;
    for (trial = 0; trial < 300 && !test_failures; trial++) {
        mesh_error err;
        const char *named;
        int64_t least, free_of_cap;
        plan_draw(&p, &r, 8);
        if (!p.d.elem_bytes || random_below(&r, 2)) p.d.elem_bytes = 20000;
        CHECK_OK(ask_plan(&plan, &p.d, &err), err);
        if (!plan.scratch) continue;
        free_of_cap = plan.scratch;
        p.d.scratch_cap = free_of_cap; /* exactly what it needs is enough: for it, or one as good in fewer steps, which only a cap makes worth a look */
        tight[0] = plan;
        CHECK_OK(ask_plan(&plan, &p.d, &err), err);
        CHECK(plan.ps == tight[0].ps && plan.bytes == tight[0].bytes);
        if (plan.nsteps < tight[0].nsteps)
            CHECK(plan.scratch <= free_of_cap);
        else
            CHECK_INT(plan.scratch, free_of_cap);
        p.d.scratch_cap = 1;
        if (ask_plan(&plan, &p.d, &err) == MESH_OK) {
            CHECK_INT(plan.scratch, 0);
            continue;
        }
        CHECK_INT(err.status, MESH_ERR_MEMORY);
        named = strstr(err.text, "possible is ");
        if (!named) {
            test_fail(__FILE__, __LINE__, "%s", err.text);
            return;
        }
        least = strtoll(named + 12, NULL, 10);
        CHECK(least > 1 && least <= free_of_cap);
        p.d.scratch_cap = least - 1;
        if (ask_plan(&plan, &p.d, &err) == MESH_OK) {
            test_fail(__FILE__, __LINE__, "trial %d: the least is %lld, yet %lld is granted:\n%s", trial,
                      (long long)least, (long long)plan.scratch, plan_text(&plan));
            return;
        }
        CHECK_HAS(err.text, named = strstr(err.text, "possible is "));
        CHECK_INT(strtoll(named + 12, NULL, 10), least);
        refusals++;
        p.d.scratch_cap = least;
        CHECK_OK(ask_plan(&plan, &p.d, &err), err);
        CHECK_INT(plan.scratch, least);
        if (!plan_interpret(&plan, &moves)) return;
        p.d.scratch_cap = least + (int64_t)(random_next(&r) % (uint64_t)(free_of_cap - least + 1));
        n = ask_candidates(tight, PLAN_CANDIDATES, &p.d, &err);
        CHECK(n >= 1);
        for (k = 0; k < n; k++) {
            CHECK(tight[k].scratch <= p.d.scratch_cap);
            if (!plan_interpret(&tight[k], &moves) || !plan_adds_up(&tight[k])) return;
            capped++;
        }
    }
    CHECK(refusals > 25 && capped > 80);
    { /* a reduction can go in as many rounds as it needs */
        mesh m;
        mesh_spec from, to;
        plan_ask d = MESH_ZERO;
        mesh_error err;
        CHECK_OK(mesh_parse(&m, "a=4", 0, &err), err);
        CHECK_OK(mesh_spec_parse(&from, &m, "a:P(sum)", 1, &err), err);
        CHECK_OK(mesh_spec_parse(&to, &m, "a:S(0)", 1, &err), err);
        d.src = &m, d.from = &from, d.to = &to, d.ndim = 1, d.shape[0] = 1 << 24, d.scratch_cap = 33 << 10;
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        CHECK(plan.scratch <= d.scratch_cap && plan.step[0].rounds > 256);
        d.scratch_cap = 0; /* scattered into the place where it is gathered then: no scratch but for slabs */
        CHECK_OK(mesh_spec_parse(&to, &m, "a:R", 1, &err), err);
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        CHECK(plan.nsteps > 1 && plan.scratch < 4 << 20);
        /* 16 axes gathered one by one after 16 were reduced so: no plan is longer than a plan can be */
        for (k = 0; k < 2; k++) {
            char text[200] = "";
            for (n = 0; n < 16; n++) sprintf(text + strlen(text), "%s%c=2", n ? "," : "", (k ? 'A' : 'a') + n);
            CHECK_OK(mesh_parse(k ? &p.dst : &p.src, text, 0, &err), err);
        }
        for (text_of_sums[0] = 0, n = 0; n < 16; n++) sprintf(text_of_sums + strlen(text_of_sums), "%c:P(sum) ", 'a' + n);
        CHECK_OK(mesh_spec_parse(&from, &p.src, text_of_sums, 1, &err), err);
        CHECK_OK(mesh_spec_parse(&to, &p.dst, "", 1, &err), err);
        d.src = &p.src, d.dst = &p.dst, d.scratch_cap = 0;
        n = ask_candidates(tight, PLAN_CANDIDATES, &d, &err);
        CHECK(n > 1);
        for (k = 0; k < n; k++) CHECK(tight[k].nsteps >= 1 && tight[k].nsteps <= MESH_MAX_STEPS && tight[k].bytes > 0);
    }
}
static void test_plan_least(void) {
    plan_least_of(random_from(67));
    plan_least_of(random_from(11)); /* by every way of uneven sizes, with seed 1 */
}

/* The moves of the rounds, one after the other, are those of all rounds at once. */
static void test_plan_rounds(void) {
    static mesh_plan plan, all[PLAN_CANDIDATES];
    static plan_problem p;
    test_random r = random_from(71);
    int trial, k, rank, round, many = 0;
    for (trial = 0; trial < 300 && !test_failures; trial++) {
        mesh_error err;
        plan_draw(&p, &r, 8);
        p.d.elem_bytes = 1 << (10 + random_below(&r, 9));
        CHECK_OK(ask_plan(&plan, &p.d, &err), err);
        for (k = 0; k < plan.nsteps; k++) {
            int rounds = plan.step[k].rounds;
            many += rounds > 1;
            CHECK(rounds >= 1 && (plan.view.ndim == 0 || rounds <= plan.view.shape[plan.step[k].slab_dim] || rounds == 1));
            for (rank = 0; rank < 12 && rounds > 1; rank++) {
                mesh_moves every, one;
                mesh_moves_start(&every, &plan, k, rank, -1);
                for (round = 0; round < rounds; round++)
                    for (mesh_moves_start(&one, &plan, k, rank, round); mesh_moves_next(&one);) {
                        CHECK(mesh_moves_next(&every));
                        CHECK(every.round == round && one.round == round && every.kind == one.kind &&
                              every.peer == one.peer && every.summand == one.summand);
                        CHECK(!memcmp(every.box.shape, one.box.shape, sizeof one.box.shape[0] * (size_t)one.box.ndim));
                        CHECK(!memcmp(every.box.offset, one.box.offset, sizeof one.box.offset[0] * (size_t)one.box.ndim));
                    }
                CHECK_INT(mesh_moves_next(&every), 0);
            }
        }
    }
    CHECK(many > 8);
    CHECK_INT(mesh_parse(&p.src, "a=2,b=2", 0, NULL), 0); /* summed, and made partial again: zeros are written once */
    CHECK_INT(mesh_spec_parse(&p.from, &p.src, "a:P(sum) b:R", 1, NULL), 0);
    CHECK_INT(mesh_spec_parse(&p.to, &p.src, "a:R b:P(sum)", 1, NULL), 0);
    memset(&p.d, 0, sizeof p.d);
    p.d.src = &p.src, p.d.from = &p.from, p.d.to = &p.to, p.d.ndim = 1, p.d.shape[0] = 64, p.d.elem_bytes = 1 << 16;
    for (rank = 0, k = ask_candidates(all, PLAN_CANDIDATES, &p.d, NULL) - 1; k >= 0; k--)
        if (!plan_interpret(&all[k], &rank)) return;
}

/* Replicas take turns with small pieces, and share what has 64 KiB, or where messages cost nothing a byte, along its longest dim. */
static void test_plan_turns(void) {
    int replicas, each, elem, free_messages;
    for (replicas = 1; replicas <= 6; replicas++)
        for (each = 1; each <= 4; each++)
            for (elem = 1023; elem <= 1025; elem++)
                for (free_messages = 0; free_messages < 2 && !test_failures; free_messages++) {
                    static mesh_plan plan;
                    plan_ask d = MESH_ZERO;
                    mesh_desc far = MESH_ZERO;
                    mesh_topology t = free_messages ? plan_bytes_only() : plan_slow_messages();
                    mesh_error err;
                    mesh m, other;
                    mesh_spec from, to;
                    int k, size = replicas * each, shares = elem >= 1024 || free_messages ? replicas : 1;
                    int64_t piece = 64 * (int64_t)elem;
                    char text[16];
                    snprintf(text, sizeof text, "a=%d", replicas);
                    CHECK_OK(mesh_parse(&m, text, 0, &err), err);
                    far.shape = &size, far.naxes = 1, far.origin = 20;
                    CHECK_OK(mesh_make(&other, &far, &err), err);
                    CHECK_OK(mesh_spec_parse(&from, &m, "", 3, &err), err);
                    CHECK_OK(mesh_spec_parse(&to, &other, "dim0:S(1)", 3, &err), err);
                    d.src = &m, d.dst = &other, d.from = &from, d.to = &to, d.ndim = 3, d.elem_bytes = elem;
                    d.shape[0] = 1, d.shape[1] = size, d.shape[2] = 64, d.topology = &t;
                    CHECK_OK(ask_plan(&plan, &d, &err), err);
                    if (plan.nsteps != 1) continue;
                    for (k = 0; k < size; k++) {
                        mesh_traffic got = mesh_plan_traffic(&plan, 0, 20 + k);
                        CHECK_INT(got.received, piece);
                        CHECK_INT(got.recvs, shares);
                    }
                    for (k = 0; k < replicas; k++) {
                        mesh_traffic gave = mesh_plan_traffic(&plan, 0, k);
                        int64_t uneven = (64 % replicas ? 2 + 64 / replicas : 0) * (int64_t)elem * each;
                        CHECK_INT(gave.sends, size * shares / replicas);
                        CHECK(gave.sent >= piece * each - uneven && gave.sent <= piece * each + uneven);
                    }
                }
}

/* A rank that holds a summand itself gets the others from ranks of its own replica: no more messages than summands. */
static void test_plan_own_replica(void) {
    static mesh_plan plan;
    mesh m;
    mesh_spec from, to;
    plan_ask d = MESH_ZERO;
    mesh_topology t = plan_slow_messages();
    mesh_error err;
    int elem, rank, i;
    CHECK_OK(mesh_parse(&m, "b=4,a=3", 0, &err), err);
    CHECK_OK(mesh_spec_parse(&from, &m, "a:P(sum)", 1, &err), err);
    CHECK_OK(mesh_spec_parse(&to, &m, "b:S(0)", 1, &err), err);
    d.src = &m, d.from = &from, d.to = &to, d.ndim = 1, d.shape[0] = 4, d.topology = &t;
    for (elem = 4; elem <= 1 << 18; elem += (1 << 18) - 4) {
        d.elem_bytes = elem;
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        CHECK_INT(plan.nsteps, 1);
        for (rank = 0; rank < 12; rank++) {
            mesh_moves it;
            for (i = 0, mesh_moves_start(&it, &plan, 0, rank, -1); mesh_moves_next(&it);) {
                CHECK_INT(it.peer / 3, rank / 3);
                i += it.kind == MESH_MOVE_RECV;
            }
            CHECK_INT(i, 2);
        }
    }
}

/* Every field that ranks must agree on changes the hash, each in its own way. */
static void test_plan_hash_fields(void) {
    static mesh_plan plan, x;
    uint64_t hash[80];
    mesh m, other;
    mesh_spec from, to;
    plan_ask d = MESH_ZERO;
    mesh_topology t = plan_nodes(4);
    mesh_error err;
    int n = 0, i, k;
    CHECK_OK(mesh_parse(&m, "a=2,b=4,c=2", 0, &err), err);
    CHECK_OK(mesh_parse(&other, "a=2,b=4,d=2", 0, &err), err);
    CHECK_OK(mesh_spec_parse(&from, &m, "a:S(0) b:S(0) c:P(sum)", 2, &err), err);
    CHECK_OK(mesh_spec_parse(&to, &m, "a:R b:R c:S(1)", 2, &err), err);
    d.src = &m, d.from = &from, d.to = &to, d.ndim = 2, d.dtype = MESH_F32, d.topology = &t;
    d.shape[0] = 512, d.shape[1] = 4096;
    CHECK_OK(ask_plan(&plan, &d, &err), err);
    CHECK(plan.view.ndim > plan.ndim && plan.nsteps > 1);
    CHECK(plan.hash == mesh__plan_hash(&plan));
#define WITH(change)                  \
    do {                              \
        x = plan;                     \
        change;                       \
        hash[n++] = mesh__plan_hash(&x); \
    } while (0)
    WITH((void)0);
    WITH(x.dtype = MESH_I32);
    WITH(x.dtype = MESH_F16);
    WITH(x.elem_bytes++);
    WITH(x.shape[0]++);
    WITH(x.shape[1]++);
    WITH((x.shape[0] = 4096, x.shape[1] = 512));
    WITH(x.at[0] = other);
    WITH(x.at[1] = other);
    WITH(x.at[0].origin++);
    WITH(x.at[1].origin++);
    WITH(x.from.rule = 1);
    WITH(x.from.strict = 1);
    WITH(x.from.axis[0] = mesh_shard_at(1, 0));
    WITH(x.from.axis[0] = mesh_replicate());
    WITH((x.from.axis[0].order = 1, x.from.axis[1].order = 0));
    WITH(x.from.axis[2] = mesh_partial(MESH_MAX));
    WITH(x.from.axis[2] = mesh_partial(MESH_AVG));
    for (k = 0; k < plan.view.ndim; k++) WITH(x.view.shape[k]++);
    for (k = 0; k < plan.view.ndim; k++) WITH(x.view.dim[k]++);
    for (k = 0; k < plan.nsteps; k++) {
        WITH(x.step[k].kind ^= 1);
        WITH(x.step[k].on ^= 1);
        WITH(x.step[k].rounds++);
        WITH(x.step[k].slab_dim++);
        WITH(x.step[k].divide++);
        WITH(x.step[k].spec.rule ^= 1);
        WITH(x.step[k].spec.axis[0] = mesh_shard_at(1, 3));
        WITH(x.step[k].spec.axis[0] = mesh_shard_at(0, 3));
        if (n > 60) break;
    }
    WITH(x.nsteps--);
    for (k = 0; k < 2; k++) {
        WITH(x.topology.level[k].ranks--);
        WITH(x.topology.level[k].latency_ps++);
        WITH(x.topology.level[k].ps_per_byte_16++);
    }
    WITH(x.topology.nlevels = 1);
#undef WITH
    for (i = 0; i < n; i++)
        for (k = 0; k < i; k++)
            if (hash[i] == hash[k]) test_fail(__FILE__, __LINE__, "changes %d and %d have one hash", i, k);
    x = plan; /* and from nothing but the problem */
    memset(&plan, 0x77, sizeof plan);
    CHECK_OK(ask_plan(&plan, &d, &err), err);
    CHECK(x.hash == plan.hash);
    d.dtype = MESH_I32;
    CHECK_OK(ask_plan(&plan, &d, &err), err);
    CHECK(x.hash != plan.hash);
}

/* A topology is taken exactly where it is one; no topology is the flat one; predictions of huge tensors stay numbers. */
static void test_plan_topologies(void) {
    test_random r = random_from(73);
    static mesh_plan plan, flat, ways[12];
    mesh m;
    mesh_spec from, to, rows;
    plan_ask d = MESH_ZERO;
    mesh_topology t = MESH_ZERO;
    mesh_error err;
    int trial, l, taken = 0, k;
    for (trial = 0; trial < 20000; trial++) {
        int good;
        memset(&t, 0, sizeof t);
        t.nlevels = random_below(&r, 20) ? random_below(&r, 5) : random_below(&r, 12) - 1;
        good = t.nlevels >= 0 && t.nlevels <= 8;
        for (l = 0; l < 8; l++) {
            mesh_level *at = &t.level[l];
            int within = l ? t.level[l - 1].ranks : 1;
            at->ranks = random_below(&r, 6) ? within * (1 + random_below(&r, 3)) : random_below(&r, 20) - 1;
            at->latency_ps = random_below(&r, 12) ? random_below(&r, 100) : random_below(&r, 3) - 1;
            at->ps_per_byte_16 = random_below(&r, 12) ? random_below(&r, 1000)
                                                     : (INT64_C(1) << 40) * random_below(&r, 2) + random_below(&r, 3) - 1;
            if (l >= t.nlevels || !good) continue;
            if (at->ranks < 1 || (l && at->ranks < within) || at->latency_ps < 0 || at->ps_per_byte_16 < 0 ||
                at->ps_per_byte_16 > INT64_C(1) << 40)
                good = 0;
            if (l && l < t.nlevels - 1 && within > 0 && at->ranks % within) good = 0;
        }
        if ((mesh_topology_check(&t, &err) == MESH_OK) != good) {
            test_fail(__FILE__, __LINE__, "trial %d: %s", trial, good ? err.text : "accepted");
            return;
        }
        taken += good;
    }
    CHECK(taken > 4000 && taken < 18000);
    CHECK_INT(mesh_topology_check(NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_OK(mesh_parse(&m, "a=16,b=4", 0, &err), err);
    CHECK_OK(mesh_spec_parse(&from, &m, "a:P(sum) b:S(0)", 2, &err), err);
    CHECK_OK(mesh_spec_parse(&to, &m, "a:S(1) b:R", 2, &err), err);
    d.src = &m, d.from = &from, d.to = &to, d.ndim = 2;
    d.shape[0] = d.shape[1] = 4096;
    CHECK_OK(ask_plan(&flat, &d, &err), err);
    memset(&t, 0, sizeof t);
    for (k = 0; k < 2; k++) { /* of no levels; then the one that the header names: 10 us and 5 GB/s */
        d.topology = &t;
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        CHECK(plan.hash == flat.hash && plan.ps == flat.ps);
        t.nlevels = 1, t.level[0].ranks = INT32_MAX;
        t.level[0].latency_ps = INT64_C(10000000), t.level[0].ps_per_byte_16 = INT64_C(200) << 16;
    }
    for (k = 1; k < 61; k++) { /* up to 2^61 bytes */
        int64_t before = plan.ps;
        d.shape[0] = INT64_C(1) << (k / 2), d.shape[1] = INT64_C(1) << (k - k / 2), d.elem_bytes = 1;
        if (k < 12) before = 0; /* what shards round up is as much as twice as many */
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        CHECK(plan.ps >= before && plan.ps > 0 && plan.bytes >= 0 && plan.scratch >= 0);
        CHECK(mesh_plan_lower_bound(&plan) >= 0 && mesh_plan_lower_bound(&plan) <= mesh_plan_measure(&plan));
        for (l = 0; l < plan.nsteps; l++) CHECK(plan.step[l].messages > 0 || plan.step[l].bytes == 0);
    }
    d.to = d.from = mesh_spec_parse(&to, &m, "", 2, &err) ? NULL : &to; /* nothing moves, and that is what the bound says */
    CHECK_OK(ask_plan(&plan, &d, &err), err);
    CHECK_INT(mesh_plan_lower_bound(&plan), 0);
    CHECK_OK(mesh_spec_parse(&rows, &m, "a:S(0) b:S(0)", 2, &err), err);
    d.from = &rows, t.level[0].latency_ps = 0, t.level[0].ps_per_byte_16 = 1 << 10; /* 1/64 ps for each byte */
    for (k = ask_candidates(ways, 12, &d, &err) - 1; k >= 0; k--)
        CHECK(ways[k].ps > ways[k].bytes / 64 - 1000 && ways[k].ps < ways[k].bytes / 64 + 1000);
    d.from = &from;
    t.level[0].latency_ps = INT64_MAX, t.level[0].ps_per_byte_16 = INT64_C(1) << 40; /* beyond what can be counted */
    CHECK_OK(ask_plan(&plan, &d, &err), err);
    CHECK_INT(plan.ps, INT64_MAX);
    d.shape[0] = INT64_C(1) << 30, d.shape[1] = INT64_C(1) << 30, d.elem_bytes = 3;
    CHECK_INT(ask_plan(&plan, &d, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "bytes overflow");
    d.elem_bytes = INT64_MAX;
    CHECK_INT(ask_plan(&plan, &d, &err), MESH_ERR_ARGUMENT);
}

/* What a step is called, and numbers as text. */
static void test_plan_explain(void) {
    static const struct {
        const char *from, *to, *name, *axes;
    } steps[] = {{"a:R", "a:R", "copy", "-"},
                 {"a:R", "a:S(0)", "slice", "a"},
                 {"b:S(0)", "b:R", "all_gather", "b"},
                 {"a:S(0)", "a:S(1)", "all_to_all", "a"},
                 {"a:S(0)@0 b:S(0)@1", "a:S(0)@1 b:S(0)@0", "permute", "a,b"},
                 {"b:P(sum)", "b:S(0)", "reduce_scatter", "b"},
                 {"a:R", "a:P(sum)", "fill", "a"},
                 {"a:S(0) b:S(1)", "a:R b:R", "all_gather", "a,b"},
                 {"a:S(0)", "b:S(0)", "exchange", "a,b"}};
    static const struct {
        int64_t n;
        const char *bytes, *time;
    } numbers[] = {{0, "0 B", "0 ps"},
                   {999, "999 B", "999 ps"},
                   {1000, "1000 B", "1.0 ns"},
                   {1023, "1023 B", "1.0 ns"},
                   {1024, "1.0 KiB", "1.0 ns"},
                   {1536, "1.5 KiB", "1.5 ns"},
                   {1999, "1.9 KiB", "1.9 ns"},
                   {INT64_C(1) << 20, "1.0 MiB", "1.0 us"},
                   {INT64_C(12345678901), "11.4 GiB", "12.3 ms"},
                   {INT64_MAX, "7.9 EiB", "9223372.0 s"}};
    mesh_topology bytes = plan_bytes_only(), slow = plan_slow_messages();
    static mesh_plan plan;
    char text[2048], want[256];
    size_t k;
    for (k = 0; k < sizeof steps / sizeof steps[0]; k++) {
        mesh m;
        mesh_spec from, to;
        plan_ask d = MESH_ZERO;
        mesh_error err;
        CHECK_OK(mesh_parse(&m, "a=2,b=2", 0, &err), err);
        CHECK_OK(mesh_spec_parse(&from, &m, steps[k].from, 2, &err), err);
        CHECK_OK(mesh_spec_parse(&to, &m, steps[k].to, 2, &err), err);
        d.src = &m, d.from = &from, d.to = &to, d.ndim = 2, d.shape[0] = d.shape[1] = 64, d.topology = &bytes;
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        CHECK_INT(plan.nsteps, 1);
        CHECK_STR(mesh_step_name(&plan, 0), steps[k].name);
        mesh_plan_json(&plan, text, sizeof text);
        snprintf(want, sizeof want, "{\"name\": \"%s\", \"axes\": \"%s\",", steps[k].name, steps[k].axes);
        CHECK_HAS(text, want);
        d.topology = &slow; /* bytes, time and scratch are numbers apart */
        CHECK_OK(ask_plan(&plan, &d, &err), err);
        mesh_plan_json(&plan, text, sizeof text);
        snprintf(want, sizeof want,
                 "\"bytes\": %lld, \"ps\": %lld, \"scratch\": %lld, \"limited\": %u, \"hash\": \"%llx\"}",
                 (long long)plan.bytes, (long long)plan.ps, (long long)plan.scratch, (unsigned)plan.limited,
                 (unsigned long long)plan.hash);
        CHECK_HAS(text, want);
    }
    for (k = 0; k < sizeof numbers / sizeof numbers[0]; k++) {
        mesh__text t = mesh__text_on(text, sizeof text);
        mesh__put_bytes(&t, numbers[k].n);
        CHECK_STR(text, numbers[k].bytes);
        t = mesh__text_on(text, sizeof text);
        mesh__put_time(&t, numbers[k].n);
        CHECK_STR(text, numbers[k].time);
    }
}

/* ---- topologies as text: what is read is what is meant, and what is shown is read as the same ---- */

static void test_topology_text(void) {
    static const struct {
        const char *text;
        int n, ranks[2];
        int64_t latency[2], per_byte[2];
    } good[] = {
        {"8:2us:400GB/s,*:10us:25GB/s", 2, {8, INT32_MAX}, {2000000, 10000000}, {163840, 2621440}},
        {"4:1.5us:12.5GB/s, *:250ns:100MB/s", 2, {4, INT32_MAX}, {1500000, 250000}, {5242880, 655360000}},
        {"1:0ns:*", 1, {1, 0}, {0, 0}, {0, 0}},
        {"2:0.5ns:1000000GB/s", 1, {2, 0}, {500, 0}, {65, 0}},
        {"2:.125ns:1GB/s", 1, {2, 0}, {125, 0}, {65536000, 0}},
        {"2:1ms:0.001GB/s", 1, {2, 0}, {INT64_C(1000000000), 0}, {INT64_C(65536000000), 0}},
        {"2147483647:999999.999999999ms:1MB/s",
         1,
         {INT32_MAX, 0},
         {INT64_C(999999999999999), 0},
         {INT64_C(65536000000), 0}},
    };
    static const struct {
        const char *text, *fragment;
    } bad[] = {
        {"", "expected a number of ranks, or * at the end"},
        {"x", "expected a number of ranks, or * at \"x\""},
        {"0:2us:1GB/s", "expected a number of ranks"},
        {"-1:2us:1GB/s", "expected a number of ranks"},
        {"8.5:2us:1GB/s", "expected a number of ranks"},
        {"2147483648:2us:1GB/s", "expected a number of ranks"},
        {"8.:2us:1GB/s", "expected a number of ranks"},
        {"8:2.us:1GB/s", "and a latency"},
        {"8:2us:1.GB/s", "and a bandwidth"},
        {"8", "expected \":\" and a latency, as in :2us at the end"},
        {"8:", "and a latency"},
        {"8:-2us:1GB/s", "and a latency"},
        {"8:2", "expected ns, us or ms at the end"},
        {"8:2s:1GB/s", "expected ns, us or ms at \"s:1GB/s\""},
        {"8:1000001ms:1GB/s", "a latency of at most 1,000 s"},
        {"8:1234567890123456ns:1GB/s", "and a latency"},
        {"8:2us", "and a bandwidth, as in :25GB/s, or * at the end"},
        {"8:2us:", "and a bandwidth"},
        {"8:2us:1", "expected MB/s or GB/s"},
        {"8:2us:1KB/s", "expected MB/s or GB/s"},
        {"8:2us:0GB/s", "a bandwidth of 0.001 to"},
        {"8:2us:1000001GB/s", "a bandwidth of 0.001 to"},
        {"8:2us:0.0009GB/s", "a bandwidth of 0.001 to"},
        {"8:2us:1.0000001GB/s", "at most 6 places"},
        {"8:2us:1GB/s;", "expected \",\" or the end at \";\""},
        {"8:2us:1GB/s,", "level 2 of \"8:2us:1GB/s,\": expected a number of ranks"},
        {"1:1ns:*,2:1ns:*,4:1ns:*,8:1ns:*,16:1ns:*,32:1ns:*,64:1ns:*,128:1ns:*,256:1ns:*", "at most 8 levels"},
        {"8:2us:1GB/s,4:2us:1GB/s", "level 2 has units of 4 ranks; levels go from the innermost out"},
    };
    test_random r = random_from(77);
    mesh_topology t, back, untouched;
    mesh_error err;
    char text[1024], shown[1024];
    size_t k, n;
    int l;
    memset(&untouched, 7, sizeof untouched);
    for (k = 0; k < sizeof good / sizeof *good; k++) {
        CHECK_OK(mesh_topology_parse(&t, good[k].text, &err), err);
        CHECK_INT(t.nlevels, good[k].n);
        for (l = 0; l < good[k].n; l++) {
            CHECK_INT(t.level[l].ranks, good[k].ranks[l]);
            CHECK_INT(t.level[l].latency_ps, good[k].latency[l]);
            CHECK_INT(t.level[l].ps_per_byte_16, good[k].per_byte[l]);
        }
        n = mesh_topology_format(&t, shown, sizeof shown);
        CHECK_INT(n, strlen(shown));
        CHECK_INT(mesh_topology_format(&t, NULL, 0), n);
        CHECK_OK(mesh_topology_parse(&back, shown, &err), err);
        CHECK(!memcmp(&t, &back, sizeof t));
    }
    CHECK_OK(mesh_topology_parse(&t, good[0].text, NULL), err);
    for (l = 0; l < 2; l++) { /* by hand, at both bounds */
        t.level[l].latency_ps = l ? INT64_MAX : 0;
        t.level[l].ps_per_byte_16 = l ? INT64_C(1) << 40 : 1;
    }
    mesh_topology_format(&t, shown, sizeof shown);
    CHECK_STR(shown, "8:0ns:1000000GB/s,*:1000000000us:0.001GB/s");
    CHECK_OK(mesh_topology_parse(&back, shown, &err), err);
    t.nlevels = 0;
    CHECK_INT(mesh_topology_format(&t, shown, sizeof shown), 0);
    CHECK_STR(shown, "");
    CHECK_OK(mesh_topology_parse(&t, good[0].text, NULL), err);
    mesh_topology_format(&t, shown, sizeof shown);
    CHECK_STR(shown, good[0].text);
    for (k = 0; k < sizeof bad / sizeof *bad; k++) {
        t = untouched;
        CHECK_INT(mesh_topology_parse(&t, bad[k].text, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "mesh_topology_parse: ");
        CHECK_HAS(err.text, bad[k].fragment);
        CHECK(!memcmp(&t, &untouched, sizeof t));
    }
    CHECK_INT(mesh_topology_parse(&t, NULL, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "the text is NULL");
    CHECK_INT(mesh_topology_parse(NULL, "1:1ns:*", &err), MESH_ERR_ARGUMENT);
    for (k = 0; k < 20000; k++) {
        static const char *const time[] = {"ns", "us", "ms"}, *const rate[] = {"MB/s", "GB/s"};
        int levels = 1 + random_below(&r, 8), ranks = 1;
        for (n = 0, l = 0; l < levels; l++) {
            int places = random_below(&r, 7), i, big = random_below(&r, 2);
            ranks *= 1 + random_below(&r, 3);
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%d:%d.%d%s:%d%s", l ? "," : "", ranks,
                                  random_below(&r, 900), random_below(&r, 1000), time[random_below(&r, 3)],
                                  1 + random_below(&r, big ? 999999 : 9), places ? "." : "");
            for (i = 0; i < places; i++) text[n++] = (char)('0' + random_below(&r, 10));
            n += (size_t)snprintf(text + n, sizeof text - n, "%s", rate[random_below(&r, 2)]);
        }
        CHECK_OK(mesh_topology_parse(&t, text, &err), err);
        mesh_topology_format(&t, shown, sizeof shown);
        CHECK_OK(mesh_topology_parse(&back, shown, &err), err);
        if (memcmp(&t, &back, sizeof t)) test_fail(__FILE__, __LINE__, "%s is shown as %s", text, shown);
    }
}

/* ---- where only bytes count, no way by up to two layouts between moves fewer ---- */

enum { MOST_WAYS = 40 };
typedef struct way_list {
    mesh_spec spec[MOST_WAYS];
    int n;
} way_list;

static void way_add(const mesh_spec *s, void *to) {
    way_list *l = to;
    CHECK(l->n < MOST_WAYS);
    l->spec[l->n++] = *s;
}

static int is_partial(const mesh_spec *s) {
    int i, n = 0;
    for (i = 0; i < s->naxes; i++) n += s->axis[i].kind == MESH_PARTIAL;
    return n;
}

/* The worst rank's bytes from one layout straight to another; -1 where that cannot be. */
static int64_t straight(const mesh *m, const mesh_spec *from, const mesh_spec *to, const int *shape) {
    static mesh_plan p;
    mesh_topology bytes = plan_bytes_only();
    plan_ask d = MESH_ZERO;
    mesh_error err;
    int i;
    for (i = 0; i < m->naxes; i++)
        if (to->axis[i].kind == MESH_PARTIAL && from->axis[i].kind != MESH_PARTIAL) return -1;
    d.src = m, d.from = from, d.to = to, d.ndim = 2, d.shape[0] = shape[0], d.shape[1] = shape[1];
    d.topology = &bytes;
    CHECK_OK(ask_plan(&p, &d, &err), err);
    p.nsteps = 1;
    p.step[0].spec = p.view.to;
    p.step[0].on = 1;
    p.step[0].rounds = 1;
    p.step[0].kind = MESH_STEP_MOVE;
    for (i = 0; i < m->naxes; i++)
        if (from->axis[i].kind == MESH_PARTIAL && to->axis[i].kind != MESH_PARTIAL) p.step[0].kind = MESH_STEP_REDUCE;
    return mesh_plan_measure(&p);
}

static void every_way_between(const mesh *m, const int *shape) {
    static way_list ways;
    static int64_t by[3][MOST_WAYS][MOST_WAYS];
    mesh_topology bytes = plan_bytes_only();
    const mesh_spec *list = ways.spec;
    int i, j, k, l, n;
    ways.n = 0;
    n = every_spec(m, 2, 1, way_add, &ways);
    for (i = 0; i < n; i++)
        for (k = 0; k < n; k++) by[0][i][k] = straight(m, &list[i], &list[k], shape);
    for (l = 1; l < 3; l++)
        for (i = 0; i < n; i++)
            for (k = 0; k < n; k++) {
                by[l][i][k] = by[l - 1][i][k];
                for (j = 0; j < n; j++) {
                    int64_t way = by[l - 1][i][j] + by[0][j][k];
                    if (by[l - 1][i][j] < 0 || by[0][j][k] < 0) continue;
                    if (by[l][i][k] < 0 || way < by[l][i][k]) by[l][i][k] = way;
                }
            }
    for (i = 0; i < n; i++)
        for (k = 0; k < n; k++) {
            static mesh_plan plan;
            plan_ask d = MESH_ZERO;
            mesh_error err;
            char from[128], to[128];
            d.src = m, d.from = &list[i], d.to = &list[k], d.ndim = 2, d.shape[0] = shape[0], d.shape[1] = shape[1];
            d.topology = &bytes;
            if (is_partial(&list[k])) continue;
            CHECK_OK(ask_plan(&plan, &d, &err), err);
            if (mesh_plan_measure(&plan) <= by[2][i][k] && plan.limited == 0) continue;
            mesh_spec_format(&list[i], m, from, sizeof from);
            mesh_spec_format(&list[k], m, to, sizeof to);
            test_fail(__FILE__, __LINE__, "%dx%d on %d ranks, %s to %s: %lld bytes planned, %lld are possible",
                      shape[0], shape[1], m->size, from, to, (long long)mesh_plan_measure(&plan),
                      (long long)by[2][i][k]);
        }
}

static void test_plan_every_way(void) {
    static const char *const meshes[] = {"x=6", "x=5", "x=2,y=2", "x=2,y=3", "x=4,y=2"};
    static const int shapes[][2] = {{1, 1}, {2, 3}, {3, 3}, {4, 6}, {7, 5}, {10, 3}, {12, 7}};
    size_t a, b;
    for (a = 0; a < sizeof meshes / sizeof *meshes; a++)
        for (b = 0; b < sizeof shapes / sizeof *shapes; b++) {
            mesh_error err;
            mesh m;
            CHECK_OK(mesh_parse(&m, meshes[a], 0, &err), err);
            every_way_between(&m, shapes[b]);
        }
}

static const test_case plans_tests[] = {
    {"plan/topology_text", test_topology_text, 0},
    {"plan/law/candidates", test_plan_candidates, 0}, {"plan/law/least", test_plan_least, 0},
    {"plan/law/rounds", test_plan_rounds, 0},         {"plan/law/turns", test_plan_turns, 0},
    {"plan/law/own_replica", test_plan_own_replica, 0},
    {"plan/law/hash", test_plan_hash_fields, 0},      {"plan/law/topologies", test_plan_topologies, 0},
    {"plan/law/explain", test_plan_explain, 0},       {"plan/law/every_way", test_plan_every_way, 0},
};

#endif
