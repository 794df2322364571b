"""Collectives inside `torch.compile(fullgraph=True)`: a training step without a graph break.

    python examples/compiled.py        # with "ringkern", with "gloo", and compares

Functional collectives reduce-scatter the gradient, and gather the weights, of which each rank has
changed a part; `dist.all_reduce` averages the loss. The same step also runs uncompiled. The first
compilation takes seconds, as it makes C++ and builds it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from compare import Losses, compare, digits
from torch import Tensor
from torch.nn.functional import cross_entropy

warnings.filterwarnings("ignore", category=FutureWarning)  # torch 2.13 renames collectives

STEPS = 10
BATCH = 32  # images a rank and step
RATE = 0.5


def step(weights: Tensor, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    def loss_of(weights: Tensor) -> Tensor:
        return cross_entropy(images @ weights, labels)

    group, rank, ranks = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    gradient, loss = torch.func.grad_and_value(loss_of)(weights)
    part = functional.reduce_scatter_tensor(gradient, "sum", 0, group) / ranks
    part = weights.chunk(ranks)[rank] - RATE * part
    dist.all_reduce(loss)
    return functional.all_gather_tensor(part, 0, group), loss / ranks


def run(step: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Iterator[float]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels = (part.split(BATCH)[rank::ranks] for part in digits()[0][:])
    weights = torch.zeros(64, 10)
    for x, y in zip(images[:STEPS], labels[:STEPS]):
        weights, loss = step(weights, x, y)
        yield loss.item()


def train(backend: str) -> Losses:
    dist.init_process_group(backend)
    compiled = torch.compile(step, fullgraph=True)  # an error where the graph breaks
    losses = {"eager": list(run(step)), "compiled": list(run(compiled))}
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    compare(train)
