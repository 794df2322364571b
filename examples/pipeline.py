"""A pipeline: each rank has some of the layers, and microbatches pass through all of them.

    python examples/pipeline.py        # with "ringkern", with "gloo", and compares

It uses torch.distributed.pipelining: stages send activations forward and gradients back.
Nothing is summed over ranks, so the losses are equal to the last bit for any number of them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.pipelining as pp
from compare import Losses, compare, digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import ringkern  # noqa: F401  registers the backend

MICROBATCHES = 12
EPOCHS = 3


def layer(stage: int, stages: int) -> nn.Module:
    torch.manual_seed(stage)
    if stage == stages - 1:
        return nn.Linear(96, 10)
    return nn.Sequential(nn.Linear(96 if stage else 64, 96), nn.ReLU())


def epochs(schedule: type, a_rank: int = 1) -> list[float]:
    """Trains with so many stages a rank. On the last rank: the mean loss of each epoch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stages = a_rank * ranks
    mine = [
        pp.PipelineStage(layer(stage, stages), stage, stages, torch.device("cpu"))
        for stage in range(rank, stages, ranks)
    ]
    pipeline = schedule(mine if a_rank > 1 else mine[0], MICROBATCHES, loss_fn=cross_entropy)
    optimizer = torch.optim.Adam([p for s in mine for p in s.submod.parameters()], lr=0.005)
    means = []
    for _ in range(EPOCHS):
        total = 0.0
        loader = DataLoader(digits()[0], batch_size=10 * MICROBATCHES, drop_last=True)
        for images, labels in loader:
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            if rank == 0:
                pipeline.step(images)
            elif rank < ranks - 1:
                pipeline.step()
            else:
                pipeline.step(target=labels, losses=losses)
                total += torch.stack(losses).mean().item()
            optimizer.step()
        means.append(total / len(loader))
    return means if rank == ranks - 1 else []


def train(backend: str) -> Losses:
    dist.init_process_group(backend)
    losses = {
        "GPipe": epochs(pp.ScheduleGPipe),
        "1F1B": epochs(pp.Schedule1F1B),
        "interleaved 1F1B": epochs(pp.ScheduleInterleaved1F1B, a_rank=2),
    }
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    compare(train, ranks=3, tolerance=0)
