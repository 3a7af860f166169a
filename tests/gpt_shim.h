/* gpt_shim.h - runs examples/train_gpt.cu on the CPU: what of CUDA and cuBLAS it uses, for a C++ compiler. A test; no part of the library.
       c++ -O2 -x c++ -DTRAIN_GPT_SHIM -Itests/fake_nccl/include -c examples/train_gpt.cu -o gpt_shim.o
   Lanes of a warp are coroutines that meet at every shuffle; a warp whose lanes do not all come is told and ends the program. Blocks run
   one after the other. With it, --device cuda trains
     over sockets, in host memory
       cc -std=c99 -O2 -DTRAIN_GPT_CUDA -DTRAIN_GPT_SHIM -Itests/fake_nccl/include examples/train_gpt.c gpt_shim.o -o gpt_shim -lstdc++ -lm -ldl -lpthread
     or, gpt_shim.o made with -DGPT_SHIM_FAKE_NCCL, as it would on GPUs: over the fake NCCL in device memory, on streams that run late
       sh tests/fake_nccl/build.sh fake
       cc -std=c99 -O2 -DTRAIN_GPT_CUDA -Itests/fake_nccl/include examples/train_gpt.c gpt_shim.o -o gpt_fake -lstdc++ -lm -ldl -lpthread -Lfake -l:libcudart.so.13 -Wl,-rpath,$PWD/fake
       MESH_NCCL_LIBRARY=$PWD/fake/libnccl.so.2 MESH_CUDART_LIBRARY=$PWD/fake/libcudart.so.13 mesh run -n 4 -- ./gpt_fake --mesh dp=2,tp=2 --device cuda */
#include <cuda_runtime_api.h>
#include <functional>
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#ifdef GPT_SHIM_FAKE_NCCL
extern "C" {
#include "fake_nccl/fake.h"
}
#endif

#define __global__
#define __device__

struct gpt_shim_index {
    unsigned x;
};
static thread_local gpt_shim_index blockIdx, threadIdx, blockDim;

/* ---- the stream: now, or when the fake one comes to it ---- */

typedef std::function<void()> gpt_shim_work;

#ifdef GPT_SHIM_FAKE_NCCL
template <class T> static T *gpt_shim_view(T *p) {
    return p ? (T *)fake_memory((const void *)p, 1, 0, "a kernel of train_gpt") : NULL;
}
static void gpt_shim_enqueue(cudaStream_t stream, gpt_shim_work work) {
    static const fake_task_kind kind = {NULL, [](void *data) { (*(gpt_shim_work *)data)(); },
                                        [](void *data) { delete (gpt_shim_work *)data; }, NULL, NULL};
    if (fake_enqueue(stream, &kind, new gpt_shim_work(work)) != cudaSuccess) abort();
}
#else
template <class T> static T *gpt_shim_view(T *p) { return p; }
static void gpt_shim_enqueue(cudaStream_t, gpt_shim_work work) { work(); }
#define cudaGetErrorString(e) "?"
#define cudaSetDevice(number) ((void)(number), cudaSuccess)
#define cudaStreamCreateWithFlags(stream, flags) (*(stream) = NULL, cudaSuccess)
#define cudaMemsetAsync(p, value, nbytes, stream) (memset(p, value, nbytes), cudaSuccess)
#define cudaMemcpyAsync(to, from, nbytes, kind, stream) (memcpy(to, from, nbytes), (void)(kind), cudaSuccess)
#endif
template <class T> static T gpt_shim_view(T value) { return value; }

/* ---- a warp: 32 coroutines, which take turns at each shuffle ---- */

struct gpt_shim_warp {
    jmp_buf at[32], back;
    ucontext_t context[32], home;
    char stack[32][65536];
    gpt_shim_work *body;
    double posted[32][2]; /* of a lane: its last two values */
    unsigned shuffles[32];
    int alive[32];
};
static thread_local gpt_shim_warp *gpt_shim_now;

static void gpt_shim_go(int lane) {
    threadIdx.x = (unsigned)lane;
    _longjmp(gpt_shim_now->at[lane], 1);
}

static void gpt_shim_lane() {
    int lane = (int)threadIdx.x;
    gpt_shim_warp *w = gpt_shim_now;
    if (!_setjmp(w->at[lane])) swapcontext(&w->context[lane], &w->home);
    for (;;) {
        (*w->body)();
        w->alive[lane] = 0;
        if (_setjmp(w->at[lane])) continue; /* the next block */
        if (lane == 31) _longjmp(w->back, 1);
        gpt_shim_go(lane + 1);
    }
}

template <class T> static T __shfl_xor_sync(unsigned, T x, int other) {
    gpt_shim_warp *w = gpt_shim_now;
    int lane = (int)threadIdx.x, next = (lane + 1) % 32;
    unsigned n = w->shuffles[lane]++;
    w->posted[lane][n % 2] = (double)x;
    if (!_setjmp(w->at[lane])) {
        if (!w->alive[next])
            fprintf(stderr, "gpt_shim: lane %d ended before a shuffle of lane %d\n", next, lane), abort();
        gpt_shim_go(next);
    }
    if (w->shuffles[lane ^ other] <= n) fprintf(stderr, "gpt_shim: lane %d missed a shuffle\n", lane ^ other), abort();
    return (T)w->posted[lane ^ other][n % 2];
}

static gpt_shim_warp *gpt_shim_start() {
    gpt_shim_warp *w = gpt_shim_now = (gpt_shim_warp *)calloc(1, sizeof *w);
    if (!w) abort();
    for (threadIdx.x = 0; threadIdx.x < 32; threadIdx.x++) {
        ucontext_t *lane = &w->context[threadIdx.x];
        getcontext(lane);
        lane->uc_stack.ss_sp = w->stack[threadIdx.x];
        lane->uc_stack.ss_size = sizeof w->stack[0];
        makecontext(lane, gpt_shim_lane, 0);
        swapcontext(&w->home, lane);
    }
    return w;
}

static void gpt_shim_run_warp(gpt_shim_work &body) {
    gpt_shim_warp *w = gpt_shim_now ? gpt_shim_now : gpt_shim_start();
    w->body = &body;
    for (int i = 0; i < 32; i++) w->alive[i] = 1, w->shuffles[i] = 0;
    if (!_setjmp(w->back)) gpt_shim_go(0);
}

struct cudaLaunchConfig_t {
    unsigned gridDim, blockDim;
    cudaStream_t stream;
};

template <class... P, class... A>
static cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A... args) {
    unsigned blocks = config->gridDim, threads = config->blockDim;
    if (!blocks || !threads || threads > 1024) return cudaErrorInvalidConfiguration;
    gpt_shim_enqueue(config->stream, [=] {
        gpt_shim_work body = [=] { kernel(gpt_shim_view((P)args)...); };
        blockDim.x = threads;
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
            if (threads == 32)
                gpt_shim_run_warp(body);
            else
                for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) body();
    });
    return cudaSuccess;
}

static inline void atomicMin(int *least, int x) {
    if (x < *least) *least = x;
}
static inline int __float_as_int(float x) {
    int bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- cuBLAS: column-major, as it is ---- */

typedef enum { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE = 7 } cublasStatus_t;
typedef enum { CUBLAS_OP_N, CUBLAS_OP_T } cublasOperation_t;
enum { CUBLAS_PEDANTIC_MATH = 2 };
typedef cudaStream_t cublasHandle_t;
#define cublasGetStatusString(status) "an argument is wrong"
#define cublasCreate(handle) CUBLAS_STATUS_SUCCESS
#define cublasSetStream(handle, stream) ((handle) = (stream), CUBLAS_STATUS_SUCCESS)
#define cublasSetMathMode(handle, mode) ((void)(mode), CUBLAS_STATUS_SUCCESS)

static cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                                                int m, int n, int k, const float *alpha, const float *a_at, int lda,
                                                long long a_stride, const float *b_at, int ldb, long long b_stride,
                                                const float *beta, float *c_at, int ldc, long long c_stride,
                                                int batch) {
    float scale = *alpha, keep = *beta;
    if (m < 1 || n < 1 || k < 1 || batch < 1 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m ||
        (batch > 1 && c_stride == 0))
        return CUBLAS_STATUS_INVALID_VALUE;
    gpt_shim_enqueue(handle, [=] {
        const float *a = gpt_shim_view(a_at), *b = gpt_shim_view(b_at);
        float *c = gpt_shim_view(c_at);
        for (int s = 0; s < batch; s++, a += a_stride, b += b_stride, c += c_stride)
            for (int j = 0; j < n; j++)
                for (int i = 0; i < m; i++) {
                    const float *x = a + (ta ? (ptrdiff_t)i * lda : i), *y = b + (tb ? j : (ptrdiff_t)j * ldb);
                    float sum = 0, *out = c + (ptrdiff_t)j * ldc + i;
                    for (int p = 0; p < k; p++, x += ta ? 1 : lda, y += tb ? ldb : 1) sum += *x * *y;
                    *out = scale * sum + (keep != 0 ? keep * *out : 0);
                }
    });
    return CUBLAS_STATUS_SUCCESS;
}
