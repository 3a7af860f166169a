/* Gloo's side of the comparison: over its TCP transport, rendezvous through files below GLOO_STORE. */
#include "contender.h"
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>

static std::shared_ptr<gloo::rendezvous::Context> context;
static contender c;

/* Gloo's point to point is by buffers that are made known once. */
static void exchange(uint8_t *from, uint8_t *to, size_t nbytes) {
    static std::unique_ptr<gloo::transport::UnboundBuffer> out, in;
    int partner = contender_partner(&c);
    if (partner < 0) return;
    if (!out) out = context->createUnboundBuffer(from, nbytes);
    if (!in) in = context->createUnboundBuffer(to, nbytes);
    in->recv(partner, 1);
    out->send(partner, 1);
    out->waitSend();
    in->waitRecv();
}

static void run(int op, const void *send, void *recv, size_t nbytes) {
    uint8_t *from = (uint8_t *)(uintptr_t)send, *to = (uint8_t *)recv;
    size_t block = nbytes / (size_t)context->size;
    if (op == OP_ALL_REDUCE || op == OP_ALL_REDUCE_IN_PLACE) {
        gloo::AllreduceOptions o(context);
        if (op == OP_ALL_REDUCE) o.setInput((float *)(uintptr_t)send, nbytes / 4);
        o.setOutput((float *)recv, nbytes / 4);
        o.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
        gloo::allreduce(o);
    } else if (op == OP_ALL_GATHER) {
        gloo::AllgatherOptions o(context);
        o.setInput(from, block);
        o.setOutput(to, nbytes);
        gloo::allgather(o);
    } else if (op == OP_ALL_TO_ALL) {
        gloo::AlltoallOptions o(context);
        o.setInput(from, nbytes);
        o.setOutput(to, nbytes);
        gloo::alltoall(o);
    } else if (op == OP_BROADCAST) {
        gloo::BroadcastOptions o(context);
        o.setOutput(to, nbytes);
        o.setRoot(0);
        gloo::broadcast(o);
    } else if (op == OP_SENDRECV) {
        exchange(from, to, nbytes);
    } else {
        gloo::BarrierOptions o(context);
        gloo::barrier(o);
    }
}

static void max(double *values, int count) {
    gloo::AllreduceOptions o(context);
    o.setOutput(values, (size_t)count);
    o.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::max<double>));
    gloo::allreduce(o);
}

int main(int argc, char **argv) {
    const char *store_path = getenv("GLOO_STORE"), *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");
    if (!store_path || !rank || !size)
        return fprintf(stderr, "contender_gloo: RANK, WORLD_SIZE and GLOO_STORE are needed\n"), 2;
    if (argc > 1 && !strcmp(argv[1], "reduce_scatter")) return 3; /* Gloo's has another contract */
    gloo::transport::tcp::attr attr("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(store_path);
    context = std::make_shared<gloo::rendezvous::Context>(atoi(rank), atoi(size));
    context->connectFullMesh(store, device);
    c.rank = context->rank;
    c.n = context->size;
    c.run = run;
    c.max = max;
    return contender_main(argc, argv, &c);
}
