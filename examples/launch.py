"""One program under torchrun, as plain processes, and under torch.multiprocessing.spawn.

    torchrun --nproc-per-node 2 examples/launch.py ringkern        # env://
    for rank in 0 1; do python examples/launch.py ringkern file:///tmp/meet $rank 2 & done
    python examples/launch.py       # all of it, and torch.multiprocessing.spawn, next to "gloo"

ringkern is not imported: where it is installed, torch knows the backend.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from compare import arguments, as_rank, digits, free_port, network, report
from torch.nn.functional import cross_entropy

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def train(
    backend: str, init_method: str = "env://", rank: int = -1, ranks: int = -1
) -> list[float]:
    """Four steps of gradient descent on all digits. On rank 0: the mean loss of the ranks."""
    as_rank(limit_s=60)
    dist.init_process_group(backend, init_method, rank=rank, world_size=ranks)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, losses = network(), torch.empty(4)
    images, labels = digits()[0][rank::ranks]
    for step in range(len(losses)):
        model.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.5 / ranks * parameter.grad
        losses[step] = loss.item()
    dist.reduce(losses, dst=0)
    dist.destroy_process_group()
    return (losses / ranks).tolist() if rank == 0 else []


def processes(*commands: list[str]) -> list[float]:
    """Runs them side by side; the losses that they print."""
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    printed = "".join(process.communicate()[0] for process in running)
    if any(process.returncode for process in running):
        sys.exit("FAILED: a rank ended with an error")
    return [float(loss) for loss in printed.split()]


def spawned(rank: int, ranks: int, ports: dict[str, int], queue: mp.SimpleQueue) -> None:
    for backend, port in ports.items():
        if losses := train(backend, f"tcp://localhost:{port}", rank, ranks):
            queue.put((backend, losses))


if __name__ == "__main__" and sys.argv[1:] and not sys.argv[1].startswith("-"):
    print(*train(*sys.argv[1:3], *map(int, sys.argv[3:])))
elif __name__ == "__main__":
    args = arguments(ranks=2)
    (ours, gloo), ranks = args.backends, args.ranks
    os.environ["OMP_NUM_THREADS"] = "1"  # the ranks share the cores
    run = {"torchrun": processes([*TORCHRUN, str(ranks), __file__, ours])}
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, __file__, ours, f"file://{folder}/meet"]
        run["processes"] = processes(*([*program, str(rank), str(ranks)] for rank in range(ranks)))
    ports = {name: free_port() for name in (ours, f"cpu:{ours}", f"cpu:gloo,cuda:{ours}", gloo)}
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(spawned, (ranks, ports, queue), nprocs=ranks)
    spawn = dict(queue.get() for _ in ports)
    run |= {f"spawn, {name}": spawn[name] for name in ports if name != gloo}
    sys.exit(report(args, [[run], [dict.fromkeys(run, spawn[gloo])]], tolerance=1e-5))
