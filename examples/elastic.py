"""A rank dies, torchrun starts all of them again, and they go on from the last checkpoint.

    torchrun --nproc-per-node 2 --max-restarts 1 examples/elastic.py ringkern checkpoint.pt
    python examples/elastic.py        # the same with "ringkern" and with "gloo", and compares

The losses must be those of ranks that do not die. torchrun reports this death, which is intended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from compare import Losses, arguments, as_rank, digits, network, report, run
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import ringkern  # noqa: F401  registers the backend

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]


def train(backend: str, checkpoint: str | None = None) -> Losses:
    """The mean loss of each epoch, of all ranks. Under torchrun rank 1 dies once."""
    model, losses = network(), []
    if checkpoint and os.path.exists(checkpoint):
        weights, losses = torch.load(checkpoint)
        model.load_state_dict(weights)
    dist.init_process_group(backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data, _ = digits()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    for epoch in range(len(losses), 4):
        if (os.environ.get("TORCHELASTIC_RESTART_COUNT"), epoch, rank) == ("0", 2, 1):
            os.kill(os.getpid(), signal.SIGKILL)  # while the others wait for its gradients
        sampler.set_epoch(epoch)
        total = torch.tensor(0.0)
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            gradients = torch.autograd.grad(loss, tuple(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients):
                dist.all_reduce(gradient)
                parameter.data -= 0.2 / ranks * gradient
            total += loss.detach()
        dist.all_reduce(total)
        losses.append(total.item() / len(loader) / ranks)
        if checkpoint and rank == 0:
            torch.save((model.state_dict(), losses), f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)  # never half of a file
    dist.destroy_process_group()
    return {"no rank dies": losses}


if __name__ == "__main__" and sys.argv[1:] and not sys.argv[1].startswith("-"):
    as_rank(limit_s=60)
    train(*sys.argv[1:])
elif __name__ == "__main__":
    args = arguments(ranks=2)
    runs = [run(train, backend, args) for backend in args.backends]
    for backend, losses in zip(args.backends, runs):
        # By default all attempts share a store: Gloo takes the addresses of dead ranks from it.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1" if backend == "gloo" else "0"
        with tempfile.TemporaryDirectory() as folder:
            program = [__file__, backend, f"{folder}/checkpoint"]
            subprocess.run([*TORCHRUN, f"--nproc-per-node={args.ranks}", *program], check=True)
            _, losses[0]["rank 1 dies"] = torch.load(program[-1])
        assert losses[0]["rank 1 dies"] == losses[0]["no rank dies"], losses
    sys.exit(report(args, runs, tolerance=1e-5))
