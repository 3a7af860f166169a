/* mesh.h: laws over every small mesh, random walks, FACTS of the field, what is shown. */
#ifndef T_MESH_H
#define T_MESH_H

static void shape_text(char *buf, size_t cap, const int *shape, int n) {
    static const char *const names[] = {"a", "b", "c", "d"};
    int i;
    size_t len = 0;
    buf[0] = 0;
    for (i = 0; i < n; i++) len += (size_t)snprintf(buf + len, cap - len, "%s%s=%d", i ? "," : "", names[i], shape[i]);
}

/* Calls f for every mesh of up to three axes of up to 4. */
static void each_small_mesh(void (*f)(const mesh *m)) {
    int n, i, shape[3];
    for (n = 1; n <= 3; n++) {
        int total = 1;
        for (i = 0; i < n; i++) total *= 4;
        for (i = 0; i < total; i++) {
            int k, rest = i;
            char text[64];
            mesh m;
            mesh_error err;
            for (k = 0; k < n; k++, rest /= 4) shape[k] = rest % 4 + 1;
            shape_text(text, sizeof text, shape, n);
            CHECK_OK(mesh_parse(&m, text, 0, &err), err);
            f(&m);
        }
    }
}

/* Every ordered choice of axes of m as a text. Returns how many there are; text k is written. */
static int axes_choice(const mesh *m, int k, char *text) {
    int order[MESH_MAX_AXES], count = 0, n = m->naxes, len, i, j;
    int total = 0;
    for (len = 0; len <= n; len++) {
        int tuples = 1;
        for (i = 0; i < len; i++) tuples *= n;
        for (i = 0; i < tuples; i++) {
            int rest = i, ok = 1;
            for (j = 0; j < len; j++, rest /= n) order[j] = rest % n;
            for (j = 0; j < len; j++) {
                int q;
                for (q = 0; q < j; q++) ok &= order[q] != order[j];
            }
            if (!ok) continue;
            if (total++ != k) continue;
            text[0] = 0;
            for (j = 0; j < len; j++) {
                if (j) strcat(text, ",");
                strcat(text, m->axis[order[j]].name);
            }
            count = 1;
        }
    }
    (void)count;
    return total;
}

/* ---- laws ---- */

static void law_index(const mesh *m) {
    int i, k, coords[MESH_MAX_AXES], seen = 0;
    for (i = 0; i < m->size; i++) {
        int rank = mesh_rank_at(m, i);
        CHECK_INT(mesh_index_of(m, rank), i);
        CHECK_INT(mesh_coords_of(m, NULL, rank, coords), m->naxes);
        CHECK_INT(mesh_rank_at_coords(m, coords), rank);
        for (k = 0; k < m->naxes; k++) CHECK_INT(mesh_coord_of(m, m->axis[k].name, rank), coords[k]);
        CHECK_INT(mesh_local_index(m, NULL, rank), i);
    }
    for (i = -3; i < 600; i++) seen += mesh_index_of(m, i) >= 0;
    CHECK_INT(seen, m->size);
    CHECK_INT(mesh_rank_at(m, -1), -1);
    CHECK_INT(mesh_rank_at(m, m->size), -1);
    CHECK_INT(mesh_index_of(m, INT32_MAX), -1);
}

/* Groups along any choice of axes partition the ranks; each member finds itself, and the group through it is that group. */
static void law_groups(const mesh *m) {
    int c, k, i, choices = axes_choice(m, -1, NULL);
    for (c = 0; c < choices; c++) {
        char axes[32] = "";
        int seen[64] = {0}, count;
        axes_choice(m, c, axes);
        count = mesh_group_count(m, axes);
        for (k = 0; k < count; k++) {
            mesh g, h;
            mesh_error err;
            CHECK_OK(mesh_group_at(&g, m, axes, k, &err), err);
            CHECK_INT(g.size * count, m->size);
            law_index(&g);
            for (i = 0; i < g.size; i++) {
                int rank = mesh_rank_at(&g, i);
                seen[rank]++;
                CHECK_INT(mesh_group_of(m, axes, rank), k);
                CHECK_INT(mesh_local_index(m, axes, rank), i);
                CHECK_OK(mesh_group_through(&h, m, axes, rank, &err), err);
                CHECK(mesh_equal(&g, &h));
                CHECK(mesh_fingerprint(&g) == mesh_fingerprint(&h));
            }
        }
        for (i = 0; i < m->size; i++) CHECK_INT(seen[i], 1);
    }
}

/* flatten then split gives back what was there; flatten's index is the local index of the axes flattened. */
static void law_flatten(const mesh *m) {
    int c, i, choices = axes_choice(m, -1, NULL);
    for (c = 0; c < choices; c++) {
        char axes[32] = "", parts[64] = "";
        const char *p;
        mesh f, s, t;
        mesh_error err;
        axes_choice(m, c, axes);
        if (!axes[0]) {
            CHECK_INT(mesh_flatten(&f, m, axes, "x", &err), MESH_ERR_ARGUMENT);
            continue;
        }
        CHECK_OK(mesh_flatten(&f, m, axes, "x", &err), err);
        CHECK_INT(f.size, m->size);
        law_index(&f);
        for (i = 0; i < m->size; i++) CHECK_INT(mesh_local_index(&f, "x", i), mesh_local_index(m, axes, i));
        for (p = axes; *p; p++)
            if (*p != ',') sprintf(parts + strlen(parts), "%s%c=%d", parts[0] ? "," : "", *p, m->axis[*p - 'a'].size);
        CHECK_OK(mesh_split(&s, &f, "x", parts, &err), err);
        for (i = 0; i < m->naxes; i++) /* the same axes, perhaps in another order */
            CHECK_INT(mesh_axis_find(&s, m->axis[i].name) >= 0, 1);
        CHECK(!mesh_transpose(&t, &s, NULL, &err) && mesh_equal(&t, &s)); /* all axes, in their order */
        CHECK_OK(mesh_transpose(&t, &s, m->naxes == 1 ? "a" : m->naxes == 2 ? "a,b" : "a,b,c", &err), err);
        CHECK(mesh_equal(&t, m));
    }
}

/* Reshapes keep the list of ranks; transposes permute coordinates; rename keeps ranks; squeeze drops ones. */
static void law_reshape(const mesh *m) {
    int d, i, k;
    for (d = 1; d <= m->size; d++) {
        char text[64];
        mesh r;
        mesh_error err;
        snprintf(text, sizeof text, "x=%d,y=-1", d);
        if (m->size % d) {
            CHECK_INT(mesh_reshape(&r, m, text, &err), MESH_ERR_ARGUMENT);
            continue;
        }
        CHECK_OK(mesh_reshape(&r, m, text, &err), err);
        for (i = 0; i < m->size; i++) CHECK_INT(mesh_rank_at(&r, i), mesh_rank_at(m, i));
    }
    for (k = 0; k < axes_choice(m, -1, NULL); k++) {
        char axes[32] = "";
        mesh t;
        mesh_error err;
        axes_choice(m, k, axes);
        if ((int)strlen(axes) != 2 * m->naxes - 1) {
            CHECK_INT(mesh_transpose(&t, m, axes, &err), MESH_ERR_ARGUMENT);
            continue;
        }
        CHECK_OK(mesh_transpose(&t, m, axes, &err), err);
        for (i = 0; i < m->size; i++) {
            int at[MESH_MAX_AXES], was[MESH_MAX_AXES], j;
            mesh_coords_of(&t, NULL, i, at);
            mesh_coords_of(m, NULL, i, was);
            for (j = 0; j < m->naxes; j++) CHECK_INT(at[j], was[axes[2 * j] - 'a']);
        }
    }
    for (k = 0; k < m->naxes; k++)
        for (i = 0; i < m->axis[k].size; i++) {
            mesh f;
            mesh_error err;
            int j;
            CHECK_OK(mesh_fix(&f, m, m->axis[k].name, i, &err), err);
            CHECK_INT(f.naxes, m->naxes - 1);
            law_index(&f);
            for (j = 0; j < f.size; j++) CHECK_INT(mesh_coord_of(m, m->axis[k].name, mesh_rank_at(&f, j)), i);
        }
    {
        mesh s;
        mesh_squeeze(&s, m);
        for (i = 0; i < s.naxes; i++) CHECK(s.axis[i].size > 1);
        for (i = 0; i < m->size; i++) CHECK_INT(mesh_rank_at(&s, i), mesh_rank_at(m, i));
    }
}

/* compose(outer, inner)(i) = outer(inner(i)), for every dense and strided inner that is accepted. */
static void law_compose(const mesh *m) {
    int first, shape, stride, i, origin;
    mesh outers[2];
    mesh_error err;
    outers[0] = *m;
    CHECK_OK(mesh_transpose(&outers[1], m, m->naxes == 1 ? "a" : m->naxes == 2 ? "b,a" : "b,c,a", &err), err);
    for (first = 0; first < 2; first++)
        for (shape = 1; shape <= 6; shape++)
            for (stride = 1; stride <= 8; stride++)
                for (origin = 0; origin < 3; origin++) {
                    mesh inner, r;
                    mesh_desc d = MESH_ZERO;
                    d.shape = &shape;
                    d.strides = &stride;
                    d.naxes = 1;
                    d.origin = origin;
                    CHECK_OK(mesh_make(&inner, &d, &err), err);
                    if (mesh_compose(&r, &outers[first], &inner, &err)) continue;
                    for (i = 0; i < shape; i++)
                        CHECK_INT(mesh_rank_at(&r, i), mesh_rank_at(&outers[first], mesh_rank_at(&inner, i)));
                }
}

static void law_concat(const mesh *m) {
    int c, i, choices = axes_choice(m, -1, NULL);
    for (c = 0; c < choices; c++) {
        char axes[32] = "", a_axes[8] = "", b_axes[32] = "";
        mesh a, b, both, want;
        mesh_error err;
        axes_choice(m, c, axes);
        if (strlen(axes) < 3) continue;
        sprintf(a_axes, "%c", axes[0]);
        strcpy(b_axes, axes + 2);
        for (i = 0; i < m->size; i++) {
            CHECK_OK(mesh_group_through(&a, m, a_axes, i, &err), err);
            CHECK_OK(mesh_group_through(&b, m, b_axes, i, &err), err);
            CHECK_OK(mesh_group_through(&want, m, axes, i, &err), err);
            CHECK_OK(mesh_concat(&both, &a, &b, i, &err), err);
            CHECK(mesh_equal(&both, &want));
        }
    }
}

/* parse(format(m)) = m, and a parse of any prefix or one-byte change never crashes and never half-fills. */
static void law_text(const mesh *m) {
    char text[64], again[64];
    mesh r;
    mesh_error err;
    size_t n = mesh_format(m, text, sizeof text), i;
    CHECK_INT(n, strlen(text));
    CHECK_OK(mesh_parse(&r, text, m->size, &err), err);
    CHECK(mesh_equal(&r, m));
    for (i = 0; i < n; i++) {
        char kept = text[i], cut[8];
        mesh before = r;
        text[i] = '%';
        CHECK_INT(mesh_parse(&r, text, 0, &err), MESH_ERR_ARGUMENT);
        CHECK(!memcmp(&before, &r, sizeof r));
        text[i] = kept;
        CHECK_INT(mesh_format(m, cut, i < 8 ? i : 8), n);
    }
    mesh_format(&r, again, sizeof again);
    CHECK_STR(again, text);
}

static void law_neighbors(const mesh *m) {
    int i, k, d;
    for (i = 0; i < m->size; i++)
        for (k = 0; k < m->naxes; k++)
            for (d = -5; d <= 5; d++) {
                const char *name = m->axis[k].name;
                int n = m->axis[k].size, c = mesh_coord_of(m, name, i), open = mesh_neighbor(m, name, i, d, 0),
                    round = mesh_neighbor(m, name, i, d, 1);
                CHECK_INT(open >= 0, c + d >= 0 && c + d < n);
                if (open >= 0) CHECK_INT(mesh_coord_of(m, name, open), c + d);
                CHECK_INT(mesh_coord_of(m, name, round), ((c + d) % n + n) % n);
                CHECK_INT(mesh_neighbor(m, name, round, -d, 1), i);
            }
}

static void test_law_index(void) { each_small_mesh(law_index); }
static void test_law_groups(void) { each_small_mesh(law_groups); }
static void test_law_flatten(void) { each_small_mesh(law_flatten); }
static void test_law_reshape(void) { each_small_mesh(law_reshape); }
static void test_law_compose(void) { each_small_mesh(law_compose); }
static void test_law_concat(void) { each_small_mesh(law_concat); }
static void test_law_text(void) { each_small_mesh(law_text); }
static void test_law_neighbors(void) { each_small_mesh(law_neighbors); }

/* ---- random walks: any sequence of transforms against the same done on an explicit array of ranks ---- */

typedef struct picture { /* the ranks in row-major order, and the axes over them */
    int naxes, size[MESH_MAX_AXES], rank[512];
    char name[MESH_MAX_AXES][MESH_NAME_BYTES];
} picture;

static int picture_total(const picture *p) {
    int i, n = 1;
    for (i = 0; i < p->naxes; i++) n *= p->size[i];
    return n;
}

/* The axes in another order: order[i] is the old number of new axis i. */
static void picture_transpose(picture *p, const int *order) {
    picture old = *p;
    int n = picture_total(p), i, k;
    for (i = 0; i < p->naxes; i++) {
        p->size[i] = old.size[order[i]];
        strcpy(p->name[i], old.name[order[i]]);
    }
    for (i = 0; i < n; i++) {
        int coord[MESH_MAX_AXES], rest = i, from = 0;
        for (k = p->naxes - 1; k >= 0; k--) {
            coord[order[k]] = rest % p->size[k];
            rest /= p->size[k];
        }
        for (k = 0; k < p->naxes; k++) from = from * old.size[k] + coord[k];
        p->rank[i] = old.rank[from];
    }
}

static void picture_compare(const picture *p, const mesh *m, const char *what) {
    int i;
    CHECK_INT(m->naxes, p->naxes);
    CHECK_INT(m->size, picture_total(p));
    for (i = 0; i < p->naxes; i++) {
        CHECK_INT(m->axis[i].size, p->size[i]);
        CHECK_STR(m->axis[i].name, p->name[i]);
    }
    for (i = 0; i < m->size; i++)
        if (mesh_rank_at(m, i) != p->rank[i] || mesh_index_of(m, p->rank[i]) != i) {
            test_fail(__FILE__, __LINE__, "after %s: index %d is rank %d, expected %d", what, i, mesh_rank_at(m, i),
                      p->rank[i]);
            return;
        }
}

static void test_random_walks(void) {
    test_random rng = random_from(5);
    int walk, step, i, k;
    for (walk = 0; walk < 400; walk++) {
        int table[512], inverse[512], shape[3], names = 0;
        mesh_table ranks;
        picture p;
        mesh m;
        mesh_error err;
        mesh_desc d = MESH_ZERO;
        memset(&p, 0, sizeof p);
        p.naxes = 3;
        for (i = 0; i < 3; i++) {
            static const int sizes[] = {1, 2, 3, 4, 6, 8};
            shape[i] = p.size[i] = sizes[random_below(&rng, i == 0 ? 6 : 5)];
            sprintf(p.name[i], "dim%d", i);
        }
        d.shape = shape, d.naxes = 3;
        for (i = 0; i < 512; i++) table[i] = i;
        for (i = 511; i > 0; i--) {
            int j = random_below(&rng, i + 1), t = table[i];
            table[i] = table[j];
            table[j] = t;
        }
        if (walk % 2) {
            CHECK_OK(mesh_table_make(&ranks, table, 512, inverse, 512, &err), err);
            d.table = &ranks;
        }
        CHECK_OK(mesh_make(&m, &d, &err), err);
        for (i = 0; i < picture_total(&p); i++) p.rank[i] = walk % 2 ? table[i] : i;
        for (step = 0; step < 12 && p.naxes > 0; step++) {
            int order[MESH_MAX_AXES], n = p.naxes, what = random_below(&rng, 5);
            char axes[300] = "", name[16];
            for (i = 0; i < n; i++) order[i] = i;
            for (i = n - 1; i > 0; i--) {
                int j = random_below(&rng, i + 1), t = order[i];
                order[i] = order[j];
                order[j] = t;
            }
            if (what == 0) {
                for (i = 0; i < n; i++) sprintf(axes + strlen(axes), "%s%s", i ? "," : "", p.name[order[i]]);
                CHECK_OK(mesh_transpose(&m, &m, axes, &err), err);
                picture_transpose(&p, order);
            } else if (what == 1) { /* flatten the first `count` axes of the shuffle, where the first of them stood */
                int count = 1 + random_below(&rng, n), at = 0, all[MESH_MAX_AXES], filled = 0, merged = 1;
                for (i = 0; i < count; i++) sprintf(axes + strlen(axes), "%s%s", i ? "," : "", p.name[order[i]]);
                sprintf(name, "f%d", names++);
                CHECK_OK(mesh_flatten(&m, &m, axes, name, &err), err);
                for (i = 0; i < n; i++) {
                    for (k = 0; k < count && order[k] != i; k++) {}
                    if (k == count) all[filled++] = i;
                    if (k == 0) {
                        at = filled;
                        for (k = 0; k < count; k++) all[filled++] = order[k];
                    }
                }
                picture_transpose(&p, all);
                for (i = 0; i < count; i++) merged *= p.size[at + i];
                p.size[at] = merged;
                strcpy(p.name[at], name);
                for (i = at + 1; i + count - 1 < n; i++) {
                    p.size[i] = p.size[i + count - 1];
                    memmove(p.name[i], p.name[i + count - 1], MESH_NAME_BYTES);
                }
                p.naxes = n - count + 1;
            } else if (what == 2 && n < 8) { /* split */
                int axis = order[0], part = 1 + random_below(&rng, p.size[axis]);
                char text[64];
                if (p.size[axis] % part) continue;
                sprintf(text, "s%d=%d,s%d=-1", names, part, names + 1);
                if (mesh_split(
                        &m, &m, p.name[axis], text,
                        &err)) { /* across an out-of-order flatten: refused with the remedy, and nothing changed */
                    CHECK_HAS(err.text, "device table");
                    picture_compare(&p, &m, "a refused split");
                    continue;
                }
                for (i = n; i > axis + 1; i--) {
                    p.size[i] = p.size[i - 1];
                    strcpy(p.name[i], p.name[i - 1]);
                }
                p.size[axis + 1] = p.size[axis] / part;
                p.size[axis] = part;
                sprintf(p.name[axis], "s%d", names);
                sprintf(p.name[axis + 1], "s%d", names + 1);
                p.naxes++;
                names += 2;
            } else if (what == 3 && n > 1) { /* fix the last axis after a shuffle */
                int last, index, total;
                for (i = 0; i < n; i++) sprintf(axes + strlen(axes), "%s%s", i ? "," : "", p.name[order[i]]);
                CHECK_OK(mesh_transpose(&m, &m, axes, &err), err);
                picture_transpose(&p, order);
                last = p.size[n - 1];
                index = random_below(&rng, last);
                CHECK_OK(mesh_fix(&m, &m, p.name[n - 1], index, &err), err);
                p.naxes--;
                total = picture_total(&p);
                for (i = 0; i < total; i++) p.rank[i] = p.rank[i * last + index];
            } else if (
                what ==
                4) { /* the group of some axes through a rank: transpose them last, keep the block that holds it */
                int count = random_below(&rng, n + 1), block = 1,
                    member = p.rank[random_below(&rng, picture_total(&p))], rotated[MESH_MAX_AXES], at;
                for (i = 0; i < count; i++) sprintf(axes + strlen(axes), "%s%s", i ? "," : "", p.name[order[i]]);
                if (count == 0) continue;
                CHECK_OK(mesh_group_through(&m, &m, axes, member, &err), err);
                for (i = 0; i < n; i++) rotated[i] = order[(i + count) % n];
                picture_transpose(&p, rotated);
                for (i = n - count; i < n; i++) block *= p.size[i];
                for (at = 0; p.rank[at] != member; at++) {}
                at = at / block * block;
                memmove(p.rank, p.rank + at, (size_t)block * sizeof(int));
                for (i = 0; i < count; i++) {
                    p.size[i] = p.size[n - count + i];
                    memmove(p.name[i], p.name[n - count + i], MESH_NAME_BYTES);
                }
                p.naxes = count;
            }
            picture_compare(&p, &m,
                            what == 0   ? "transpose"
                            : what == 1 ? "flatten"
                            : what == 2 ? "split"
                            : what == 3 ? "fix"
                                        : "group_through");
            law_index(&m);
        }
    }
}

/* Any text is a mesh or an error; a mesh is written as it was read. */
static void test_fuzz_text(void) {
    static const char alphabet[] = "ab=,1-20_9 z\x7f%";
    test_random rng = random_from(6);
    int i, k, meshes = 0;
    for (i = 0; i < 100000; i++) {
        char text[24], again[64];
        mesh m;
        mesh_error err;
        int n = random_below(&rng, 22);
        for (k = 0; k < n; k++) { /* half of them nearly right: x=n,x=n */
            static const char shape[] = "z=2,";
            text[k] = i % 2 && random_below(&rng, 8) ? (k % 4 == 0   ? (char)('a' + k / 4)
                                                        : k % 4 == 2 ? (char)('1' + random_below(&rng, 4))
                                                                     : shape[k % 4])
                                                     : alphabet[random_below(&rng, (int)sizeof alphabet - 1)];
        }
        text[n] = 0;
        if (mesh_parse(&m, text, random_below(&rng, 3) * 12, &err)) {
            CHECK(err.text[0] && err.status == MESH_ERR_ARGUMENT);
            continue;
        }
        meshes++;
        mesh_format(&m, again, sizeof again);
        for (n = k = 0; text[n]; n++) /* but for spaces */
            if (text[n] != ' ') text[k++] = text[n];
        text[k] = 0;
        if (!strstr(text, "=-1") && !strstr(text, "=-0") && !strstr(text, "=0")) CHECK_STR(again, text);
        if (m.size < 500) law_index(&m);
    }
    CHECK(meshes > 1000);
}

/* ---- facts ---- */

/* All groups along axes as "0,1|2,3", sorted by first member when `sorted`. */
static void groups_text(const mesh *m, const char *axes, int sorted, char separator, char *out, size_t cap) {
    int i, k, n = mesh_group_count(m, axes), *order = (int *)malloc(sizeof(int) * (size_t)(n > 0 ? n : 1));
    size_t len = 0;
    out[0] = 0;
    for (k = 0; k < n; k++) order[k] = k;
    for (i = 1; sorted && i < n; i++)
        for (k = i; k > 0; k--) {
            mesh a, b;
            mesh_group_at(&a, m, axes, order[k - 1], NULL);
            mesh_group_at(&b, m, axes, order[k], NULL);
            if (mesh_rank_at(&a, 0) > mesh_rank_at(&b, 0)) {
                int t = order[k];
                order[k] = order[k - 1];
                order[k - 1] = t;
            }
        }
    for (k = 0; k < n; k++) {
        mesh g;
        mesh_group_at(&g, m, axes, order[k], NULL);
        for (i = 0; i < g.size && len < cap - 16; i++)
            len += (size_t)snprintf(out + len, cap - len, "%s%d",
                                    i   ? (separator == ';' ? ";" : ",")
                                    : k ? "|"
                                        : "",
                                    mesh_rank_at(&g, i));
    }
    free(order);
}

static void check_groups(const char *text, const char *axes, const char *want) {
    mesh m;
    mesh_error err;
    char got[2048];
    CHECK_OK(mesh_parse(&m, text, 0, &err), err);
    groups_text(&m, axes, 0, ',', got, sizeof got);
    CHECK_STR(got, want);
}

static void test_facts_groups(void) {
    check_groups("x=2,y=2", "x", "0,2|1,3");
    check_groups("x=2,y=2", "y", "0,1|2,3");
    check_groups("replicate=2,shard=2,tp=2", "tp", "0,1|2,3|4,5|6,7");
    check_groups("replicate=2,shard=2,tp=2", "shard", "0,2|1,3|4,6|5,7");
    check_groups("replicate=2,shard=2,tp=2", "replicate", "0,4|1,5|2,6|3,7");
    check_groups("replicate=2,shard=2,tp=2", "replicate,shard", "0,2,4,6|1,3,5,7");
    check_groups("dp=2,pp=2,cp=2", "dp,cp", "0,1,4,5|2,3,6,7");
    check_groups("dp=2,cp=2,tp=2", "dp,cp", "0,2,4,6|1,3,5,7");
    check_groups("dp=2,cp=2,tp=2", "cp,dp", "0,4,2,6|1,5,3,7");
    check_groups("dp=2,pp=2,tp=2", "dp,tp", "0,1,4,5|2,3,6,7");
    check_groups("dp=2,tp=2", "", "0|1|2|3");
}

static void test_facts_layouts(void) {
    mesh m, r, a, b;
    mesh_error err;
    int i, shape[2], stride[2];
    mesh_desc d = MESH_ZERO;
    char text[128], groups[256];
    static const char *const bad_strides[] = {"nest", "device table"};

    d.shape = shape;
    d.strides = stride;
    d.naxes = 2;
    shape[0] = 3, shape[1] = 2, stride[0] = 2, stride[1] = 1; /* coalesces to 6:1 */
    CHECK_OK(mesh_make(&m, &d, &err), err);
    CHECK_OK(mesh_flatten(&r, &m, NULL, "x", &err), err);
    CHECK_INT(r.nmodes, 1);
    shape[0] = 3, shape[1] = 2, stride[0] = 4, stride[1] = 1; /* does not coalesce */
    CHECK_OK(mesh_make(&m, &d, &err), err);
    CHECK_OK(mesh_flatten(&r, &m, NULL, "x", &err), err);
    CHECK_INT(r.nmodes, 2);
    shape[0] = 2, shape[1] = 3, stride[0] = 1, stride[1] = 2; /* first axis fastest */
    CHECK_OK(mesh_make(&m, &d, &err), err);
    {
        static const int want[] = {0, 2, 4, 1, 3, 5};
        for (i = 0; i < 6; i++) CHECK_INT(mesh_rank_at(&m, i), want[i]);
    }
    d.strides = NULL;
    d.first_fastest = 1;
    CHECK_OK(mesh_make(&r, &d, &err), err);
    CHECK(mesh_equal(&m, &r));
    d.first_fastest = 0;
    d.strides = stride;
    for (i = 0; i < 2; i++) { /* overlap */
        shape[0] = i ? 4 : 2, shape[1] = i ? 2 : 3, stride[0] = i ? 1 : 2, stride[1] = 1;
        CHECK_INT(mesh_make(&m, &d, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, bad_strides[0]);
        CHECK_HAS(err.text, bad_strides[1]);
    }
    shape[0] = 2, shape[1] = 3, stride[0] = 6, stride[1] = 1;
    CHECK_OK(mesh_make(&m, &d, &err), err);

    /* slice through even and odd ranks, and the slice of a slice */
    CHECK_OK(mesh_parse(&m, "replicate=2,shard=2,tp=2", 8, &err), err);
    CHECK_OK(mesh_group_through(&a, &m, "replicate,shard", 5, &err), err);
    for (i = 0; i < 4; i++) CHECK_INT(mesh_rank_at(&a, i), 2 * i + 1);
    CHECK_OK(mesh_group_through(&b, &a, "shard", 5, &err), err);
    CHECK_INT(mesh_rank_at(&b, 0), 5);
    CHECK_INT(mesh_rank_at(&b, 1), 7);
    CHECK_OK(mesh_flatten(&r, &m, "shard,tp", NULL, &err), err);
    mesh_format(&r, text, sizeof text);
    CHECK_STR(text, "replicate=2,shard_tp=4");

    /* unflatten leaves the other axis' groups as they were */
    CHECK_OK(mesh_parse(&m, "dp=4,tp=2", 8, &err), err);
    CHECK_OK(mesh_split(&r, &m, "dp", "x=2,y=-1", &err), err);
    groups_text(&r, "tp", 0, ',', groups, sizeof groups);
    CHECK_STR(groups, "0,1|2,3|4,5|6,7");

    /* JAX: physical 4x4x4 to logical (1,16,4) by physical axes (),(1,2),(0) */
    CHECK_OK(mesh_parse(&m, "x=4,y=4,z=4", 64, &err), err);
    CHECK_OK(mesh_transpose(&r, &m, "y,z,x", &err), err);
    CHECK_OK(mesh_reshape(&r, &r, "a=1,b=16,c=4", &err), err);
    for (i = 0; i < 64; i++) CHECK_INT(mesh_coord_of(&r, "c", i), i / 16);

    /* world(8) split twice under other names: equal ranks at equal positions */
    CHECK_OK(mesh_parse(&a, "a=2,b=2,c=2", 8, &err), err);
    CHECK_OK(mesh_parse(&b, "x=2,y=2,z=2", 8, &err), err);
    for (i = 0; i < 8; i++) CHECK_INT(mesh_group_of(&a, "b", i), mesh_group_of(&b, "y", i));
    CHECK(!mesh_equal(&a, &b));
    CHECK(mesh_fingerprint(&a) != mesh_fingerprint(&b));
}

static void test_device_table(void) {
    static const int list[] = {10, 20, 30, 40};
    int inverse[64], shape[] = {2, 2}, ranks[4], i;
    mesh m, g, h;
    mesh_table table, none;
    mesh_error err;
    mesh_desc d = MESH_ZERO;
    char groups[128];
    d.shape = shape;
    d.naxes = 2;
    CHECK_OK(mesh_table_make(&table, list, 4, inverse, 41, &err), err);
    d.table = &table;
    CHECK_OK(mesh_make(&m, &d, &err), err);
    groups_text(&m, "dim0", 0, ',', groups, sizeof groups);
    CHECK_STR(groups, "10,30|20,40");
    law_index(&m);
    CHECK_OK(mesh_group_through(&g, &m, "dim0", 40, &err), err);
    CHECK_INT(mesh_index_of(&g, 40), 1);
    CHECK_INT(mesh_index_of(&g, 10), -1);
    CHECK_INT(mesh_index_of(&g, 15), -1);
    {
        static const int twice[] = {10, 20, 10, 40}, outside[] = {10, 20, 41, 40}, identity[] = {0, 1, 2, 3};
        static const struct {
            const int *ranks;
            int size, inverse, room;
            const char *why;
        } bad[] = {{twice, 4, 1, 41, "rank 10 is listed twice"},
                   {outside, 4, 1, 41, "rank 41 at position 2"},
                   {list, 4, 1, 40, "rank 40 at position 3"},
                   {list, 0, 1, 41, "0 entries"},
                   {list, 4, 1, 0, "an inverse of 0"},
                   {NULL, 4, 1, 41, "the list of ranks is NULL"},
                   {list, 4, 0, 41, "inverse is NULL"}};
        mesh_table other, before;
        int back[64];
        memset(&other, 0x5a, sizeof other);
        before = other;
        for (i = 0; i < (int)(sizeof bad / sizeof bad[0]); i++) {
            CHECK_INT(mesh_table_make(&other, bad[i].ranks, bad[i].size, bad[i].inverse ? back : NULL, bad[i].room, &err),
                      MESH_ERR_ARGUMENT);
            CHECK_HAS(err.text, bad[i].why);
            CHECK(!memcmp(&other, &before, sizeof other));
        }
        CHECK_OK(mesh_table_make(&other, list, 3, back, 41, &err), err);
        d.table = &other;
        CHECK_INT(mesh_make(&h, &d, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "position 3");
        CHECK_OK(mesh_table_make(&other, identity, 4, back, 4, &err), err);
        CHECK_OK(mesh_make(&h, &d, &err), err);
        for (i = 0; i < 4; i++) CHECK_INT(mesh_rank_at(&h, i), i);
        CHECK(!mesh_equal(&m, &h));
        memset(&none, 0, sizeof none);
        d.table = &none;
        CHECK_INT(mesh_make(&h, &d, &err), MESH_ERR_ARGUMENT);
        CHECK_HAS(err.text, "mesh_table_make it first");
        d.table = &table; /* meshes share it */
        d.origin = 1, d.naxes = 1;
        CHECK_OK(mesh_make(&h, &d, &err), err);
        CHECK_INT(mesh_ranks(&h, ranks, 1), 2);
        CHECK_INT(ranks[0], 20);
        CHECK_INT(mesh_ranks(&h, ranks, 4), 2);
        CHECK_INT(ranks[1], 30);
    }
}

/* A mesh of 2^24 ranks costs what one of 8 costs; ranks up to INT_MAX are exact. */
static void test_large(void) {
    mesh m, g, f;
    mesh_error err;
    int i;
    CHECK_OK(mesh_parse(&m, "a=256,b=256,c=256", 1 << 24, &err), err);
    CHECK_OK(mesh_flatten(&f, &m, "c,a", NULL, &err), err);
    for (i = 0; i < 1 << 24; i += 4097) {
        CHECK_INT(mesh_index_of(&m, i), i);
        CHECK_INT(mesh_local_index(&f, "c_a", i), (i & 255) * 256 + (i >> 16));
    }
    CHECK_OK(mesh_group_through(&g, &m, "b", (1 << 24) - 1, &err), err);
    CHECK_INT(mesh_rank_at(&g, 0), 0xff00ff);
    CHECK_OK(mesh_parse(&m, "a=2147483647", 0, &err), err);
    CHECK_INT(mesh_index_of(&m, 2147483646), 2147483646);
    CHECK_INT(mesh_index_of(&m, 2147483647), -1);
    CHECK_INT(mesh_parse(&m, "a=65536,b=32768", 0, &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "overflow");
    CHECK_OK(mesh_parse(&m, "a=1", 1, &err), err);
    for (i = 0; i < 30; i++) { /* 30 modes: split 2^30 into 15 axes of 4, and flatten them in reverse */
        if (i == 0) CHECK_OK(mesh_parse(&m, "a=1073741824", 0, &err), err);
    }
    CHECK_OK(mesh_reshape(&m, &m, "a=4,b=4,c=4,d=4,e=4,f=4,g=4,h=4,i=4,j=4,k=4,l=4,m=4,n=4,o=4", &err), err);
    CHECK_OK(mesh_flatten(&f, &m, "o,n,m,l,k,j,i,h,g,f,e,d,c,b,a", "x", &err), err);
    CHECK_INT(f.nmodes, 15);
    CHECK_INT(mesh_rank_at(&f, 1), 1 << 28);
    CHECK_INT(mesh_index_of(&f, 1 << 28), 1);
}

static void test_hierarchy(void) {
    mesh m, nodes;
    mesh_degrees d = MESH_ZERO;
    mesh_error err;
    char text[64];
    d.world = 32;
    d.devices_per_node = 8;
    d.tp = 4;
    d.pp = 2;
    d.dp_shard = -1;
    CHECK_OK(mesh_from_degrees(&m, &d, "auto", &err), err);
    mesh_format(&m, text, sizeof text);
    CHECK_STR(text, "dp=4,pp=2,tp=4");
    d.pp = -1;
    d.tp = 8;
    CHECK_OK(mesh_from_degrees(&m, &d, "auto", &err), err);
    mesh_format(&m, text, sizeof text);
    CHECK_STR(text, "dp=4,pp=1,tp=8");
    d.dp_shard = 3; /* given: not overwritten by what remains */
    CHECK_INT(mesh_from_degrees(&m, &d, "auto", &err), MESH_ERR_ARGUMENT);
    d.dp_shard = -1;
    d.tp = 16;
    CHECK_INT(mesh_from_degrees(&m, &d, "auto", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "tp = 16 does not fit within a node of 8 devices; nearest that do: 8");
    d.devices_per_node = 12, d.world = 240, d.tp = 5;
    CHECK_INT(mesh_from_degrees(&m, &d, "auto", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "tp = 5 does not fit within a node of 12 devices; nearest that do: 4, 6");
    d.devices_per_node = 8, d.tp = 4, d.world = 12, d.dp_shard = -1, d.pp = 1;
    CHECK_INT(mesh_from_degrees(&m, &d, "auto", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "12 ranks does not fill nodes of 8 devices; 8 and 16 ranks would");
    d.world = 32, d.pp = 3; /* what remains is no whole number */
    CHECK_INT(mesh_from_degrees(&m, &d, "auto", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "= 12 does not divide the world's 32 ranks; cannot infer dp_shard; nearest that do: 8, 16");
    d.pp = 2, d.dp_shard = 2;
    CHECK_INT(mesh_from_degrees(&m, &d, "auto", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "= 16 is not the world's 32 ranks; dp_shard = 4 would make it so");
    d.pp = 3, d.dp_shard = 2; /* no dp with pp = 3, but another pp */
    CHECK_INT(mesh_from_degrees(&m, &d, "auto", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "= 24 is not the world's 32 ranks; pp = 4 would make it so");
    /* what talks most is innermost: tp, cp, ep, pp, dp */
    d.world = 512, d.devices_per_node = 8, d.tp = 8, d.cp = 2, d.ep = 2, d.pp = 4, d.dp_shard = -1;
    CHECK_OK(mesh_from_degrees(&m, &d, "auto", &err), err);
    mesh_format(&m, text, sizeof text);
    CHECK_STR(text, "dp=4,pp=4,ep=2,cp=2,tp=8");
    CHECK_INT(mesh_neighbor(&m, "cp", 0, 1, 0), 8);
    CHECK_INT(mesh_neighbor(&m, "dp", 0, 1, 0), 128);
    /* nodes x devices is a split of the world; the node of a rank is a group */
    CHECK_OK(mesh_parse(&nodes, "node=4,device=8", 32, &err), err);
    CHECK_INT(mesh_group_of(&nodes, "device", 19), 2);
}

static void check_degrees(mesh_degrees d, const char *order, const char *want) {
    mesh m;
    mesh_error err;
    char text[128];
    CHECK_OK(mesh_from_degrees(&m, &d, order, &err), err);
    mesh_format(&m, text, sizeof text);
    CHECK_STR(text, want);
}

static void test_degrees(void) {
    mesh_degrees d = MESH_ZERO, e;
    mesh m;
    mesh_error err;
    int dp, pp, cp, rows = 0;
    d.world = 32;
    e = d, e.dp_shard = 32;
    check_degrees(e, "kempner", "dp_shard=32");
    e = d, e.dp_shard = 8, e.tp = 4;
    check_degrees(e, "kempner", "dp_shard=8,tp=4");
    e = d, e.dp_shard = 2, e.tp = 4, e.pp = 4;
    check_degrees(e, "kempner", "pp=4,dp_shard=2,tp=4");
    e = d, e.dp_shard = 4, e.tp = 4, e.ep = 2;
    check_degrees(e, "kempner", "dp_shard=4,ep=2,tp=4");
    e = d, e.dp_shard = -1, e.tp = 32;
    check_degrees(e, "kempner", "dp_shard=1,tp=32");
    e = d, e.world = 1;
    check_degrees(e, "kempner", "dp_shard=1");
    e = d, e.world = 8, e.dp_replicate = 2, e.dp_shard = 2, e.tp = 2;
    check_degrees(e, "torchtitan:dense", "pp=1,dp_replicate=2,fsdp=2,tp=2");
    e.ep = 2;
    check_degrees(e, "torchtitan:sparse", "pp=1,dp_replicate=2,efsdp=2,ep=2,etp=1");
    e.etp = 2;
    check_degrees(e, "torchtitan:sparse", "pp=1,dp_replicate=2,efsdp=1,ep=2,etp=2");
    e = d, e.world = 24, e.cp = 4, e.pp = 2, e.dp_shard = -1;
    check_degrees(e, "ezpz", "dp=3,pp=2,cp=4,tp=1");
    e = d, e.world = 16, e.tp = 2, e.pp = 2, e.dp_shard = -1;
    check_degrees(e, "tp-cp-ep-dp-pp", "pp=2,dp=4,ep=1,cp=1,tp=2");
    /* every valid (tp, cp, pp, dp) of 24 ranks */
    for (dp = 1; dp <= 24; dp++)
        for (pp = 1; pp <= 24; pp++)
            for (cp = 1; cp <= 24; cp++) {
                e = d, e.world = 24, e.dp_shard = dp, e.pp = pp, e.cp = cp, e.tp = -1;
                rows += mesh_from_degrees(&m, &e, "ezpz", NULL) == MESH_OK;
            }
    CHECK_INT(rows, 80);
    /* errors say which and why */
    e = d, e.tp = -1, e.pp = -1;
    CHECK_INT(mesh_from_degrees(&m, &e, "ezpz", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "pp and tp are both -1");
    e = d, e.tp = 3, e.dp_shard = -1;
    CHECK_INT(mesh_from_degrees(&m, &e, "ezpz", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "does not divide the world's 32 ranks");
    e = d, e.tp = 2, e.dp_shard = 8;
    CHECK_INT(mesh_from_degrees(&m, &e, "ezpz", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "= 16 is not the world's 32 ranks");
    e = d, e.tp = -2;
    CHECK_INT(mesh_from_degrees(&m, &e, "ezpz", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "tp is -2");
    e = d, e.tp = 2, e.ep = 3, e.dp_shard = -1;
    CHECK_INT(mesh_from_degrees(&m, &e, "torchtitan:sparse", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "ep * etp = 3 * 1 does not divide dp_shard * cp * tp = 32; cannot take ep; nearest that do: 2, 4");
    e.ep = 16, e.tp = e.etp = 4; /* which divides them all, but not beside etp */
    CHECK_INT(mesh_from_degrees(&m, &e, "torchtitan:sparse", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "ep * etp = 16 * 4 does not divide dp_shard * cp * tp = 32; cannot take ep; nearest that do: 8");
    e.ep = 2, e.tp = 4, e.etp = 2;
    CHECK_INT(mesh_from_degrees(&m, &e, "torchtitan:sparse", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "1 or tp");
    e = d, e.dp_shard = -1, e.ep = 2;
    CHECK_INT(mesh_from_degrees(&m, &e, "tp-dp-pp", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "ep is 2");
    CHECK_INT(mesh_from_degrees(&m, &d, "tp-dp-foo", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "foo");
    CHECK_INT(mesh_from_degrees(&m, &d, "gtp", &err), MESH_ERR_ARGUMENT); /* a token matches whole */
    CHECK_INT(mesh_from_degrees(&m, &d, "dp,dp_shard", &err), MESH_ERR_ARGUMENT);
    CHECK_HAS(err.text, "twice");
    CHECK_INT(mesh_from_degrees(&m, &d, "pp,,tp", &err), MESH_ERR_ARGUMENT);
}

/* ---- show ---- */

static void test_show(void) {
    mesh m, r;
    mesh_error err;
    char buf[8192], line[128];
    CHECK_OK(mesh_parse(&m, "dp=3,pp=2,cp=4,tp=1", 24, &err), err);
    mesh_format_rank(&m, 3, line, sizeof line);
    CHECK_STR(line, "[ 3/23]: [cp:3/3][pp:0/1][dp:0/2]");
    mesh_format_rank(&m, 77, line, sizeof line);
    CHECK_STR(line, "[77/23]: not in the mesh");
    mesh_format_rank(&m, -1, line, sizeof line);
    CHECK_STR(line, "[-1/23]: not in the mesh");
    CHECK_OK(mesh_parse(&m, "pp=2,dp=2,tp=2", 8, &err), err);
    mesh_draw(&m, buf, sizeof buf);
    CHECK_STR(buf, "pp=2,dp=2,tp=2  8 ranks\n\n"
                   "          tp 0 1\n"
                   "pp 0  dp 0   0 1\n"
                   "      dp 1   2 3\n"
                   "pp 1  dp 0   4 5\n"
                   "      dp 1   6 7\n"
                   "\ngroups\n"
                   "  pp {0,4} {1,5} {2,6} {3,7}\n"
                   "  dp {0,2} {1,3} {4,6} {5,7}\n"
                   "  tp {0,1} {2,3} {4,5} {6,7}\n");
    CHECK_INT(mesh_draw(&m, NULL, 0), strlen(buf));
    CHECK(mesh_dot(&m, buf, sizeof buf) < sizeof buf);
    CHECK_HAS(buf, "r3 -- r7");
    CHECK_HAS(buf, "label=\"pp\"");
    CHECK(mesh_svg(&m, buf, sizeof buf) < sizeof buf);
    CHECK_HAS(buf, "</svg>");
    CHECK_OK(mesh_fix(&r, &m, "pp", 1, &err), err);
    CHECK_OK(mesh_fix(&r, &r, "dp", 1, &err), err);
    CHECK_OK(mesh_fix(&r, &r, "tp", 0, &err), err);
    CHECK_INT(r.naxes, 0);
    CHECK_INT(mesh_rank_at(&r, 0), 6);
    CHECK_INT(mesh_format(&r, buf, sizeof buf), 0);
    CHECK_OK(mesh_parse(&m, buf, 1, &err), err); /* of one rank, as text gives no origin */
    CHECK_INT(m.naxes, 0);
    CHECK_INT(m.size, 1);
    CHECK(mesh_draw(&r, buf, sizeof buf) < sizeof buf);
    CHECK(mesh_svg(&r, buf, sizeof buf) < sizeof buf);
    CHECK_OK(mesh_parse(&m, "a=64,b=64,c=64", 0, &err), err);
    CHECK(mesh_draw(&m, buf, sizeof buf) < sizeof buf); /* elided */
    CHECK_HAS(buf, "4096 rows in all");
    CHECK(mesh_svg(&m, buf, sizeof buf) < sizeof buf);
    CHECK_HAS(buf, "too many");
    CHECK_STR(mesh_status_text(MESH_ERR_PEER), "peer lost");
    CHECK_STR(mesh_status_text((mesh_status)77), "unknown status");
}

static const test_case mesh_tests[] = {
    {"mesh/law/index", test_law_index, 0},
    {"mesh/law/groups", test_law_groups, 0},
    {"mesh/law/flatten_split", test_law_flatten, 0},
    {"mesh/law/reshape_transpose_fix", test_law_reshape, 0},
    {"mesh/law/compose", test_law_compose, 0},
    {"mesh/law/concat", test_law_concat, 0},
    {"mesh/law/text", test_law_text, 0},
    {"mesh/law/neighbors", test_law_neighbors, 0},
    {"mesh/random_walks", test_random_walks, 0},
    {"mesh/fuzz_text", test_fuzz_text, 0},
    {"mesh/facts/groups", test_facts_groups, 0},
    {"mesh/facts/layouts", test_facts_layouts, 0},
    {"mesh/device_table", test_device_table, 0},
    {"mesh/large", test_large, 0},
    {"mesh/hierarchy", test_hierarchy, 0},
    {"mesh/degrees", test_degrees, 0},
    {"mesh/show", test_show, 0},
};

#endif
