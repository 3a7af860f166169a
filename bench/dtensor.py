"""The moves of bench/bench_redistribute.c by PyTorch's DTensor over Gloo, 64 MiB of f32, where PyTorch is installed:
torchrun --nproc-per-node 4 bench/dtensor.py   (or 8). Rank 0 prints ranks;mesh;from;to;ms (median of 5); bench_redistribute reads that."""
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

SIDE = 4096
S0, S1, R, P = Shard(0), Shard(1), Replicate(), Partial("sum")
MOVES = {
    4: [((4,), [S0], [S1]), ((4,), [S1], [S0]), ((4,), [S0], [R]), ((4,), [S1], [R]), ((4,), [P], [R]), ((4,), [P], [S0]), ((4,), [P], [S1]),
        ((2, 2), [S0, S1], [S1, S0]), ((2, 2), [S0, S0], [S1, S1]), ((2, 2), [S0, R], [R, S0]), ((2, 2), [P, S0], [R, R]),
        ((2, 2), [P, R], [R, S0])],
    8: [((8,), [S0], [S1]), ((8,), [S0], [R]), ((8,), [P], [R]), ((8,), [P], [S0]),
        ((4, 2), [S0, S1], [S1, S0]), ((4, 2), [S0, R], [R, S0]), ((4, 2), [P, S0], [R, R]), ((2, 2, 2), [S0, S0, S0], [S1, S1, S1])],
}


def text(places, last_outermost=False):
    """As mesh_spec_format writes it; in bench_redistribute.c axes that shard one dim together nest the other way round."""
    names = {S0: "S(0)", S1: "S(1)", R: "R", P: "P(sum)"}
    n = len(places)
    return " ".join(f"{'abc'[i]}:{names[p]}" + (f"@{n - 1 - i}" if last_outermost else "") for i, p in enumerate(places))


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    if dist.get_rank() == 0:
        print(f"PyTorch {torch.__version__}, DTensor over Gloo", flush=True)
    for shape, source, target in MOVES[world]:
        mesh = init_device_mesh("cpu", shape)
        rows, columns = SIDE, SIDE
        for size, place in zip(shape, source):
            if place == S0:
                rows //= size
            elif place == S1:
                columns //= size
        tensor = DTensor.from_local(torch.zeros(rows, columns), mesh, source, run_check=False)
        times = []
        for _ in range(6):
            dist.barrier()
            start = time.perf_counter()
            tensor.redistribute(mesh, target)
            dist.barrier()
            times.append((time.perf_counter() - start) * 1e3)
        if dist.get_rank() == 0:
            together = len(shape) > 1 and all(p == S1 for p in target)
            mesh_text = ",".join(f"{'abc'[i]}={n}" for i, n in enumerate(shape))
            print(f"{world};{mesh_text};{text(source)};{text(target, together)};{statistics.median(times[1:]):.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        raise SystemExit("run it under torchrun: torchrun --nproc-per-node 4 bench/dtensor.py")
    main()
