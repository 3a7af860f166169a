/* What a test has in the host's memory, in that of the comm's transport while a call works on it. */
#ifndef THERE_H
#define THERE_H

typedef struct there_item {
    void *host, *there; /* host NULL: nothing comes back */
    size_t nbytes;
} there_item;

typedef struct there_list {
    mesh_comm *c;
    int n;
    there_item item[24];
} there_list;

static int there_is(const mesh_comm *c) { return (c->transport->caps & MESH_CAP_DEVICE) != 0; }

static void *there_put(there_list *w, const void *host, size_t nbytes, int back) {
    there_item *i = &w->item[w->n];
    if (!host || !there_is(w->c)) return (void *)(uintptr_t)host;
    memset(i, 0, sizeof *i);
    if (back) i->host = (void *)(uintptr_t)host;
    i->nbytes = nbytes;
    CHECK_OK(mesh_alloc(w->c->transport, nbytes + 1, &i->there, &w->c->error), w->c->error);
    CHECK_OK(mesh_copy(w->c, i->there, host, nbytes), w->c->error);
    w->n++;
    return i->there;
}
static void *there_in(there_list *w, const void *host, size_t nbytes) { return there_put(w, host, nbytes, 0); }
static void *there_out(there_list *w, void *host, size_t nbytes) { return there_put(w, host, nbytes, 1); }

/* What comes back is there when the work on all of it is over. */
static void there_back(there_list *w) {
    char nothing;
    int i;
    if (w->n && !w->c->failed) CHECK_OK(mesh_copy(w->c, &nothing, w->item[0].there, 1), w->c->error);
    for (i = 0; i < w->n; i++)
        if (w->item[i].host && w->item[i].nbytes && !w->c->failed)
            CHECK_OK(mesh_copy(w->c, w->item[i].host, w->item[i].there, w->item[i].nbytes), w->c->error);
    for (i = 0; i < w->n; i++) mesh_free(w->c->transport, w->item[i].there, &w->c->error);
    w->n = 0;
}

/* A part of ring attention on the host, while what it is of lies elsewhere: test functions of the kind of mesh_attention_block. `move` copies to the host's
   memory (or from it) behind what was put on the stream. */
typedef void (*there_move)(void *at, void *host, void *there, size_t nbytes, int to_host);

typedef struct there_part {
    mesh_attention_part p;
    there_move move;
    void *at;
    int n;
    there_item item[11];
} there_part;

static void *there_fetch(there_part *w, const void *from, size_t nbytes, int back) {
    there_item *i = &w->item[w->n];
    if (!from) return NULL;
    w->n++;
    i->there = (void *)(uintptr_t)from;
    i->nbytes = nbytes;
    i->host = calloc(1, nbytes + 1);
    w->move(w->at, i->host, i->there, nbytes, 1);
    if (!back) i->nbytes = 0;
    return i->host;
}

static size_t there_span(const mesh_attention_part *p, const int64_t *stride, int heads, int64_t positions) {
    int64_t last = (p->all->batch - 1) * stride[0] + (heads - 1) * stride[1] + (positions - 1) * stride[2];
    return (size_t)(last + p->all->width) * mesh_dtype_bytes(p->all->dtype);
}

static void there_compute(there_part *w, const mesh_attention_part *p, mesh_attention_block f, void *ctx) {
    const mesh_attention *a = p->all;
    size_t q = there_span(p, p->q_stride, a->heads, p->queries), kv = there_span(p, p->kv_stride, a->kv_heads, p->keys),
           rows = (size_t)(a->batch * a->heads * p->queries) * sizeof(float), width = (size_t)a->width,
           kv_rows = (size_t)(a->batch * a->kv_heads * p->keys) * sizeof(float);
    int i;
    w->p = *p;
    w->p.q = there_fetch(w, p->q, q, 0);
    w->p.k = there_fetch(w, p->k, kv, 0);
    w->p.v = there_fetch(w, p->v, kv, 0);
    w->p.out = (float *)there_fetch(w, p->out, rows * width, 1);
    w->p.lse = (float *)there_fetch(w, p->lse, rows, 1);
    if (p->grad_out) {
        w->p.grad_out = there_fetch(w, p->grad_out, q, 0);
        w->p.lse_all = (const float *)there_fetch(w, p->lse_all, rows, 0);
        w->p.dot = (const float *)there_fetch(w, p->dot, rows, 0);
        w->p.grad_q = (float *)there_fetch(w, p->grad_q, rows * width, 1);
        w->p.grad_k = (float *)there_fetch(w, p->grad_k, kv_rows * width, 1);
        w->p.grad_v = (float *)there_fetch(w, p->grad_v, kv_rows * width, 1);
    }
    f(ctx, &w->p);
    for (i = 0; i < w->n; i++) {
        if (w->item[i].nbytes) w->move(w->at, w->item[i].host, w->item[i].there, w->item[i].nbytes, 0);
        free(w->item[i].host);
    }
    w->n = 0;
}
#endif
