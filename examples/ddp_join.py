"""DistributedDataParallel where ranks have unequal numbers of batches: `Join`.

python examples/ddp_join.py        # with "ringkern", with "gloo", and compares
"""

from __future__ import annotations

import torch.distributed as dist
from compare import Losses, compare, digits, network
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader, Subset

import ringkern  # noqa: F401  registers the backend

EPOCHS = 3


def share() -> DataLoader:
    """This rank's images: of two ranks, the second has two thirds of what the first has."""
    train, _ = digits()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    end = len(train) * 2 // (2 + rank)
    return DataLoader(Subset(train, range(rank, end, ranks)), batch_size=32)


def epoch(model: DistributedDataParallel, optimizer: Optimizer, join: Join) -> float:
    """Trains; this rank's mean loss. A rank that is through takes part in what others send."""
    losses = []
    with join:
        for images, labels in share():
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def join_model() -> list[float]:
    """Gradients are divided by the number of all ranks, also where some are through."""
    model = DistributedDataParallel(network())
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    return [epoch(model, optimizer, Join([model])) for _ in range(EPOCHS)]


def model_join() -> list[float]:
    """They are divided by the number of those that are not."""
    model = DistributedDataParallel(network())
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    active = {"divide_by_initial_world_size": False}
    return [epoch(model, optimizer, model.join(**active)) for _ in range(EPOCHS)]


def join_both() -> list[float]:
    """An optimizer that communicates joins, too."""
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), Adam, lr=0.002)
    return [epoch(model, optimizer, Join([model, optimizer])) for _ in range(EPOCHS)]


def train(backend: str) -> Losses:
    dist.init_process_group(backend)
    losses = {
        "Join([model])": join_model(),
        "model.join()": model_join(),
        "Join([model, optimizer])": join_both(),
    }
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    compare(train)
