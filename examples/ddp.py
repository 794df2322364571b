"""DistributedDataParallel with each of its options for gradients, and a DistributedSampler.

python examples/ddp.py        # with "ringkern", with "gloo", and compares
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from compare import Losses, compare, digits, network
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ringkern  # noqa: F401  registers the backend

EPOCHS = 3
BATCH = 32  # images of a rank, for each step of the optimizer


class Experts(nn.Module):
    """One of two networks, by how much ink there is: the ranks may leave different ones unused."""

    def __init__(self) -> None:
        super().__init__()
        self.light, self.dark = network(), network()

    def forward(self, images: Tensor) -> Tensor:
        return (self.dark if images.mean() > 0.305 else self.light)(images)


def epochs(model: DistributedDataParallel, accumulate: int = 1) -> list[float]:
    """Trains; this rank's mean loss of each epoch."""
    train, _ = digits()
    sampler = DistributedSampler(train, seed=1)
    loader = DataLoader(train, BATCH // accumulate, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    means = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # another order in each epoch
        total = 0.0
        for i, (images, labels) in enumerate(loader, 1):
            last = i % accumulate == 0 or i == len(loader)
            with nullcontext() if last else model.no_sync():  # gradients add up on this rank
                loss = cross_entropy(model(images), labels)
                (loss / accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            total += loss.item()
        means.append(total / len(loader))
    return means


def train(backend: str) -> Losses:
    dist.init_process_group(backend)
    ddp = DistributedDataParallel
    losses = {
        "plain": epochs(ddp(network())),
        "no_sync": epochs(ddp(network()), accumulate=4),
        "find_unused_parameters": epochs(ddp(Experts(), find_unused_parameters=True)),
        "static_graph": epochs(ddp(network(), static_graph=True)),
        # Small buckets: more of them, each sent while the backward pass goes on.
        "gradient_as_bucket_view": epochs(
            ddp(network(), gradient_as_bucket_view=True, bucket_cap_mb=0.02)
        ),
    }
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    compare(train)
