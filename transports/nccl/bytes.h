/* nccl/bytes.h - copies, zeros, reductions and work on rows, on the device. Part of mesh.h 0.1.0. MIT licence.

   Includes streams.h.
*/

#if defined(MESH_IMPLEMENTATION) && !defined(MESH_NCCL_BYTES_IMPLEMENTED)
#define MESH_NCCL_BYTES_IMPLEMENTED
#include "streams.h"

/* ---- // >>bytes: copies, zeros and reductions on the device ---- */

/* An array of bytes for kernels, in units of `width`. */
MESH__PRIVATE void mesh_nccl__kernel_block(mesh__kernel_block *to, int *ndim, const mesh_block *b, uint64_t width) {
    int i;
    *ndim = 0;
    if (!b || !b->ndim) return;
    *ndim = b->ndim;
    to->run = b->run / width;
    for (i = 0; i < b->ndim; i++) to->count[i] = b->dim[i].count, to->stride[i] = b->dim[i].stride;
}

MESH__PRIVATE cudaError_t mesh_nccl__launch_on(mesh_nccl__state *s, cudaStream_t on, int kernel, void *args,
                                               uint64_t blocks) {
    void *list[1];
    dim3 grid, block;
    list[0] = args;
    block.x = 256, block.y = block.z = 1;
    grid.x = (unsigned)(blocks < 2048 ? blocks : 2048), grid.y = grid.z = 1;
    return s->api.cudaLaunchKernel(s->kernel[kernel], grid, block, list, 0, on);
}

MESH__PRIVATE cudaError_t mesh_nccl__launch(mesh_nccl__state *s, mesh_nccl__comm *c, int kernel,
                                            mesh__kernel_args *args) {
    return args->count ? mesh_nccl__launch_on(s, c->on, kernel, args, (args->count + 255) / 256) : cudaSuccess;
}

/* The widest unit, as a power of two from 0 to 4, that divides an address and a block. */
MESH__PRIVATE uint64_t mesh_nccl__bits(const void *p, const mesh_block *b) {
    uint64_t bits = (uint64_t)(uintptr_t)p;
    int i;
    if (b && b->ndim) bits |= b->run;
    for (i = 0; b && i < b->ndim; i++)
        if (b->dim[i].count > 1) bits |= (uint64_t)b->dim[i].stride;
    return bits;
}

MESH__PRIVATE int mesh_nccl__unit(uint64_t bits) {
    int k = 0;
    while (k < 4 && !(bits >> k & 1)) k++;
    return k;
}

/* Dims of a block that are more than a place. */
MESH__PRIVATE int mesh_nccl__dims(const mesh_block *b) {
    int i, n = 0;
    for (i = 0; b && i < b->ndim; i++) n += b->dim[i].count != 1;
    return n;
}

/* A block as rows of a 2-D copy: 1 and where they begin next, or 0 if it has more dims. */
MESH__PRIVATE int mesh_nccl__rows(const mesh_block *b, uint64_t *width, uint64_t *pitch, uint64_t *rows) {
    int i, found = 0;
    for (i = 0; b && i < b->ndim; i++) {
        if (b->dim[i].count == 1) continue;
        if (found++) return 0;
        *pitch = (uint64_t)b->dim[i].stride;
        *rows = (uint64_t)b->dim[i].count;
    }
    if (found) *width = b->run;
    return found && *pitch >= *width && *pitch < INT32_MAX;
}

/* Copy without kernels: as 2-D copies where both sides are rows of one width, else run by run. */
MESH__PRIVATE cudaError_t mesh_nccl__copy_rows(mesh_nccl__state *s, mesh_nccl__comm *c, void *dst, const mesh_block *db,
                                               const void *src, const mesh_block *sb, uint64_t nbytes) {
    uint64_t dw = nbytes, sw = nbytes, dp = 0, sp = 0, drows = 1, srows = 1, left, n;
    int d2 = mesh_nccl__rows(db, &dw, &dp, &drows), s2 = mesh_nccl__rows(sb, &sw, &sp, &srows);
    mesh_xfer from, to;
    mesh__cursor a, b;
    cudaError_t r = cudaSuccess;
    if (!src && d2) return s->api.cudaMemset2DAsync(dst, (size_t)dp, 0, (size_t)dw, (size_t)drows, c->on);
    if (src && (d2 || !db || !db->ndim) && (s2 || !sb || !sb->ndim) && (d2 || s2) && (!d2 || !s2 || dw == sw)) {
        uint64_t width = d2 ? dw : sw;
        return s->api.cudaMemcpy2DAsync(dst, (size_t)(d2 ? dp : width), src, (size_t)(s2 ? sp : width), (size_t)width,
                                        (size_t)(nbytes / width), cudaMemcpyDefault, c->on);
    }
    memset(&from, 0, sizeof from);
    memset(&to, 0, sizeof to);
    to.base = dst, to.block = db && db->ndim ? db : NULL, to.nbytes = nbytes;
    from.base = src ? (void *)(uintptr_t)src : dst, from.block = src && sb && sb->ndim ? sb : NULL,
    from.nbytes = nbytes;
    a = mesh__cursor_on(&to);
    b = mesh__cursor_on(&from);
    for (left = nbytes; left && r == cudaSuccess; left -= n) {
        n = a.left < b.left ? a.left : b.left;
        r = src ? s->api.cudaMemcpyAsync(a.p, b.p, (size_t)n, cudaMemcpyDefault, c->on)
                : s->api.cudaMemsetAsync(a.p, 0, (size_t)n, c->on);
        mesh__cursor_move(&a, n);
        mesh__cursor_move(&b, n);
    }
    return r;
}

/* A kernel beats a 2-D copy of rows that are multiples of 4 bytes: on an H100 0.55 to 1.37 TB/s beside 0.04 (rows of 4 bytes) to 1.25 (1 KiB), and 0.83
   from 4 KiB on. What it takes by 2 bytes goes at 0.4 to 0.6 TB/s, by 1 byte at 0.3, and a copy at 0.1 (rows of 66 bytes), 0.39 (259), 0.9 (1 KiB). */
MESH__PRIVATE int mesh_nccl__by_copy(const mesh_nccl__state *s, int unit, uint64_t row, const mesh_block *db,
                                     const mesh_block *sb) {
    if (!s->has_kernels) return 1;
    if (mesh_nccl__dims(db) > 1 || mesh_nccl__dims(sb) > 1) return 0; /* no 2-D copy: a copy of each row */
    return unit < 2 && row >= (uint64_t)(unit ? MESH_NCCL__EVEN_ROW : MESH_NCCL__ODD_ROW);
}

MESH__PRIVATE cudaError_t mesh_nccl__move(mesh_nccl__state *s, mesh_nccl__comm *c, void *dst, const mesh_block *db,
                                          const void *src, const mesh_block *sb, uint64_t nbytes) {
    uint64_t row = nbytes;
    mesh__kernel_args args;
    int unit;
    if (!nbytes || dst == src) return cudaSuccess;
    if (db && db->ndim) row = db->run;
    if (sb && sb->ndim && src && sb->run < row) row = sb->run;
    if (row == nbytes && src) return s->api.cudaMemcpyAsync(dst, src, (size_t)nbytes, cudaMemcpyDefault, c->on);
    if (row == nbytes) return s->api.cudaMemsetAsync(dst, 0, (size_t)nbytes, c->on);
    unit = mesh_nccl__unit(mesh_nccl__bits(dst, db) | (src ? mesh_nccl__bits(src, sb) : 0) | nbytes);
    if (mesh_nccl__by_copy(s, unit, row, db, src ? sb : NULL))
        return mesh_nccl__copy_rows(s, c, dst, db, src, sb, nbytes);
    memset(&args, 0, sizeof args);
    args.dst = (uint64_t)(uintptr_t)dst;
    args.src = (uint64_t)(uintptr_t)src;
    args.count = nbytes >> unit;
    mesh_nccl__kernel_block(&args.to, &args.to_ndim, db, UINT64_C(1) << unit);
    if (src) mesh_nccl__kernel_block(&args.from, &args.from_ndim, sb, UINT64_C(1) << unit);
    return mesh_nccl__launch(s, c, (src ? (int)MESH_NCCL__mesh_move_1 : (int)MESH_NCCL__mesh_zero_1) + unit, &args);
}

/* dst = dst op src, or dst / divide, on the device. cudaErrorNotSupported: there is no kernel. */
MESH__PRIVATE cudaError_t mesh_nccl__combine(mesh_nccl__state *s, mesh_nccl__comm *c, int op, int dtype, void *dst,
                                             const mesh_block *db, const void *src, const mesh_block *sb,
                                             uint64_t count, int divide) {
    static const int reduce[] = {
        MESH_NCCL__mesh_reduce_f32, MESH_NCCL__mesh_reduce_f64, MESH_NCCL__mesh_reduce_f16, MESH_NCCL__mesh_reduce_bf16,
        MESH_NCCL__mesh_reduce_i8,  MESH_NCCL__mesh_reduce_u8,  MESH_NCCL__mesh_reduce_i16, MESH_NCCL__mesh_reduce_u16,
        MESH_NCCL__mesh_reduce_i32, MESH_NCCL__mesh_reduce_u32, MESH_NCCL__mesh_reduce_i64, MESH_NCCL__mesh_reduce_u64,
        MESH_NCCL__mesh_reduce_c64, MESH_NCCL__mesh_reduce_c128}; /* in the order of mesh_dtype */
    static const int division[] = {MESH_NCCL__mesh_divide_f32, MESH_NCCL__mesh_divide_f64, MESH_NCCL__mesh_divide_f16,
                                   MESH_NCCL__mesh_divide_bf16};
    uint64_t width = mesh_dtype_bytes((mesh_dtype)dtype);
    mesh__kernel_args args;
    if (!s->has_kernels || (unsigned)dtype >= sizeof reduce / sizeof *reduce) return cudaErrorNotSupported;
    if (divide && mesh__is_complex(dtype)) { /* as twice as many numbers */
        dtype = dtype == MESH_C64 ? MESH_F32 : MESH_F64;
        width /= 2;
        count *= 2;
    }
    if (divide && (unsigned)dtype >= sizeof division / sizeof *division) return cudaErrorNotSupported;
    memset(&args, 0, sizeof args);
    args.dst = (uint64_t)(uintptr_t)dst;
    args.src = (uint64_t)(uintptr_t)src;
    args.count = count;
    args.op = op;
    args.divide = divide;
    mesh_nccl__kernel_block(&args.to, &args.to_ndim, db, width);
    if (!divide) mesh_nccl__kernel_block(&args.from, &args.from_ndim, sb, width);
    return mesh_nccl__launch(s, c, divide ? division[dtype] : reduce[dtype], &args);
}

MESH__PRIVATE mesh_status mesh_nccl__copy(mesh_transport *t, void *group, void *dst, const mesh_block *db,
                                          const void *src, const mesh_block *sb, uint64_t nbytes) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh__record none = mesh_nccl__no_record(0);
    if (!mesh_nccl__enter(s, g->c, &none, mesh_nccl__now(s) + g->timeout)) return MESH_OK;
    mesh_nccl__put(s, "a copy", mesh_nccl__move(s, g->c, dst, db, src, sb, nbytes));
    mesh_nccl__leave(s, g->c);
    return MESH_OK; /* what went wrong is told by the operation's mark */
}

MESH__PRIVATE mesh_status mesh_nccl__reduce(mesh_transport *t, void *group, int op, int dtype, void *dst,
                                            const mesh_block *db, const void *src, const mesh_block *sb, uint64_t count,
                                            int divide) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh__record none = mesh_nccl__no_record(0);
    if (!mesh_nccl__enter(s, g->c, &none, mesh_nccl__now(s) + g->timeout)) return MESH_OK;
    mesh_nccl__put(s, "a reduction", mesh_nccl__combine(s, g->c, op, dtype, dst, db, src, sb, count, divide));
    mesh_nccl__leave(s, g->c);
    return MESH_OK;
}

/* How the last call on a communicator went, where no mark will tell. */
MESH__PRIVATE mesh_status mesh_nccl__told(mesh_nccl__state *s, mesh_nccl__comm *c, mesh_error *why) {
    mesh_status status = MESH_OK;
    pthread_mutex_lock(&s->lock);
    if (c->life == MESH_NCCL__ENDED) {
        status = (mesh_status)c->end.why.status;
        if (why) *why = c->end.why;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- // >>norms: sums of squares, scaling ---- */

/* Slots: one per thread of a launch, folded into ever fewer: so many, in bytes from `sums` on. */
enum {
    MESH_NCCL__SLOTS = 512 * 256,
    MESH_NCCL__SLOT = 3 * 8, /* bytes */
    MESH_NCCL__FOLDS = 3,
    MESH_NCCL__SLOTS_AT = 256
};
typedef char mesh_nccl__slots_have_room
    [MESH_NCCL__SLOTS_AT + (MESH_NCCL__SLOTS + 2048 + 32) * MESH_NCCL__SLOT <= MESH_SQUARES_BYTES ? 1 : -1];

MESH__PRIVATE int mesh_nccl__is_contiguous(const mesh_part *p) { return !p->block.ndim; }

/* Thread blocks that have something to do, at 16 bytes a thread where that may be. */
MESH__PRIVATE uint64_t mesh_nccl__squares_blocks(const mesh_part *list, int n) {
    uint64_t most = 1;
    int i;
    for (i = 0; i < n; i++) {
        uint64_t units = list[i].count;
        if (mesh_nccl__is_contiguous(&list[i])) units = units * mesh_dtype_bytes((mesh_dtype)list[i].dtype) / 16;
        if (units / 256 + 1 > most) most = units / 256 + 1;
    }
    return most < MESH_NCCL__SLOTS / 256 ? most : MESH_NCCL__SLOTS / 256;
}

MESH__PRIVATE cudaError_t mesh_nccl__put_squares(mesh_nccl__state *s, mesh_nccl__comm *c, const mesh_part *list, int n,
                                                 void *sums) {
    static const int kernel[] = {MESH_NCCL__mesh_squares_f32, MESH_NCCL__mesh_squares_f64, MESH_NCCL__mesh_squares_f16,
                                 MESH_NCCL__mesh_squares_bf16};
    static const uint64_t folds[MESH_NCCL__FOLDS] = {2048, 32, 1};
    uint64_t blocks = mesh_nccl__squares_blocks(list, n), slots = blocks * 256, to;
    mesh__kernel_args args;
    cudaError_t r = cudaSuccess;
    int i, some = 0;
    if (!s->has_kernels) return cudaErrorNotSupported;
    memset(&args, 0, sizeof args);
    args.dst = (uint64_t)(uintptr_t)sums + MESH_NCCL__SLOTS_AT;
    for (i = 0; i < n && r == cudaSuccess; i++) {
        if (!list[i].count) continue;
        args.src = (uint64_t)(uintptr_t)list[i].base;
        args.count = list[i].count;
        args.op = some;
        some = 1;
        mesh_nccl__kernel_block(&args.from, &args.from_ndim, &list[i].block,
                                mesh_dtype_bytes((mesh_dtype)list[i].dtype));
        r = mesh_nccl__launch_on(s, c->on, kernel[list[i].dtype], &args, blocks);
    }
    if (!some) return s->api.cudaMemsetAsync(sums, 0, MESH_NCCL__SLOT, c->on);
    args.from_ndim = 0;
    for (i = 0; i < MESH_NCCL__FOLDS && r == cudaSuccess; i++) {
        if (slots <= folds[i] && folds[i] > 1) continue;
        to = folds[i] > 1 ? args.dst + slots * MESH_NCCL__SLOT : (uint64_t)(uintptr_t)sums;
        args.src = args.dst;
        args.dst = to;
        args.count = slots;
        args.op = (int)folds[i];
        slots = folds[i];
        r = mesh_nccl__launch_on(s, c->on, MESH_NCCL__mesh_fold, &args, (folds[i] + 255) / 256);
    }
    return r;
}

MESH__PRIVATE cudaError_t mesh_nccl__put_scale(mesh_nccl__state *s, mesh_nccl__comm *c, const mesh_part *list, int n,
                                               double factor) {
    static const int kernel[] = {MESH_NCCL__mesh_scale_f32, MESH_NCCL__mesh_scale_f64, MESH_NCCL__mesh_scale_f16,
                                 MESH_NCCL__mesh_scale_bf16};
    mesh__kernel_args args;
    cudaError_t r = s->has_kernels ? cudaSuccess : cudaErrorNotSupported;
    int i;
    memset(&args, 0, sizeof args);
    args.factor = factor;
    for (i = 0; i < n && r == cudaSuccess; i++) {
        args.dst = (uint64_t)(uintptr_t)list[i].base;
        args.count = list[i].count;
        mesh_nccl__kernel_block(&args.to, &args.to_ndim, &list[i].block, mesh_dtype_bytes((mesh_dtype)list[i].dtype));
        r = mesh_nccl__launch(s, c, kernel[list[i].dtype], &args);
    }
    return r;
}

MESH__PRIVATE mesh_status mesh_nccl__squares(mesh_transport *t, void *group, const mesh_part *list, int n, void *sums) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh__record none = mesh_nccl__no_record(0);
    if (!mesh_nccl__enter(s, g->c, &none, mesh_nccl__now(s) + g->timeout)) return MESH_OK;
    mesh_nccl__put(s, "a norm", mesh_nccl__put_squares(s, g->c, list, n, sums));
    mesh_nccl__leave(s, g->c);
    return MESH_OK;
}

MESH__PRIVATE mesh_status mesh_nccl__scale(mesh_transport *t, void *group, const mesh_part *list, int n,
                                           double factor) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh__record none = mesh_nccl__no_record(0);
    if (!mesh_nccl__enter(s, g->c, &none, mesh_nccl__now(s) + g->timeout)) return MESH_OK;
    mesh_nccl__put(s, "clipping", mesh_nccl__put_scale(s, g->c, list, n, factor));
    mesh_nccl__leave(s, g->c);
    return mesh_nccl__told(s, g->c, NULL);
}
/* ---- // >>rows: of mesh_rows_op ---- */

MESH__PRIVATE mesh__kernel_matrix mesh_nccl__matrix(const mesh_matrix *m) {
    mesh__kernel_matrix k;
    int i;
    memset(&k, 0, sizeof k);
    k.base = (uint64_t)(uintptr_t)m->base;
    for (i = 0; i < 3; i++) k.stride[i] = m->stride[i];
    for (i = 0; i < 2; i++) k.count[i] = m->count[i];
    k.step = m->step;
    k.dtype = m->dtype;
    return k;
}

/* The widest unit that divides all rows of both. */
MESH__PRIVATE int mesh_nccl__rows_unit(const mesh_rows *r, uint64_t nbytes) {
    uint64_t bits = nbytes | (uint64_t)(uintptr_t)r->to.base | (uint64_t)(uintptr_t)r->from.base;
    int i;
    for (i = 0; i < 3; i++) bits |= (uint64_t)r->to.stride[i] | (uint64_t)r->from.stride[i];
    return mesh_nccl__unit(bits);
}

MESH__PRIVATE cudaError_t mesh_nccl__put_rows(mesh_nccl__state *s, cudaStream_t on, const mesh_rows *r) {
    static const int kernel[] = {MESH_NCCL__mesh_rows_move,  MESH_NCCL__mesh_rows_sum,     MESH_NCCL__mesh_rows_dot,
                                 MESH_NCCL__mesh_rows_merge, MESH_NCCL__mesh_rows_most,    MESH_NCCL__mesh_rows_exp,
                                 MESH_NCCL__mesh_rows_loss,  MESH_NCCL__mesh_rows_gradient}; /* as mesh_rows_op */
    mesh__kernel_rows args;
    uint64_t warps;
    memset(&args, 0, sizeof args);
    args.to = mesh_nccl__matrix(&r->to);
    args.from = mesh_nccl__matrix(&r->from);
    args.with = mesh_nccl__matrix(&r->with);
    args.index = (uint64_t)(uintptr_t)r->index;
    args.weight = (uint64_t)(uintptr_t)r->weight;
    args.word = (uint64_t)(uintptr_t)r->word;
    args.target = (uint64_t)(uintptr_t)r->target;
    args.row_scale = (uint64_t)(uintptr_t)r->row_scale;
    args.rows = r->rows, args.width = r->width;
    args.first = r->first, args.columns = r->columns, args.vocabulary = r->vocabulary;
    args.smoothing = r->smoothing, args.scale = r->scale;
    args.terms = r->terms, args.add = r->add;
    if (r->op == MESH_ROWS_MOVE) {
        args.width *= (int64_t)mesh_dtype_bytes((mesh_dtype)r->to.dtype);
        args.unit = mesh_nccl__rows_unit(r, (uint64_t)args.width);
        args.width >>= args.unit;
    }
    warps = (uint64_t)r->rows; /* or a tile of 128 elements at a time */
    if (r->op == MESH_ROWS_MOVE || r->op == MESH_ROWS_SUM || r->op == MESH_ROWS_GRADIENT)
        warps *= ((uint64_t)args.width + 127) / 128;
    return warps ? mesh_nccl__launch_on(s, on, kernel[r->op], &args, (warps + 7) / 8) : cudaSuccess;
}

MESH__PRIVATE mesh_status mesh_nccl__do_rows(mesh_transport *t, void *group, void *stream, const mesh_rows *r,
                                             mesh_error *why) {
    mesh_nccl__state *s = mesh_nccl__of(t);
    mesh_nccl__group *g = mesh_nccl__group_of(s, group);
    mesh__record none = mesh_nccl__no_record(0);
    if (!s->has_kernels)
        return mesh__fail(why, MESH_ERR_UNSUPPORTED, s->boot->rank, "work on rows needs kernels, and %s",
                          s->no_kernels);
    if (!r->rows) return MESH_OK;
    if (mesh_nccl__enter(s, g->c, &none, mesh_nccl__now(s) + g->timeout)) {
        mesh_nccl__put(s, "work on rows", mesh_nccl__put_rows(s, (cudaStream_t)stream, r));
        mesh_nccl__leave(s, g->c);
    }
    return mesh_nccl__told(s, g->c, why);
}
#endif /* MESH_NCCL_BYTES_IMPLEMENTED */
