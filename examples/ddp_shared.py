"""DistributedDataParallel whose buckets of gradients are shared memory: nothing of them is copied.

python examples/ddp_shared.py        # with "ringkern", with "gloo", and compares
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from compare import Losses, compare, digits, network
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ringkern

# The buckets are made with the module, and once more when the order of the gradients is known.
STEPS_THAT_MAKE_BUCKETS = 2


def steps(where: AbstractContextManager[None], shared: bool) -> list[float]:
    """Trains; this rank's loss of each step. ``where``: the context in which buckets are made."""
    train, _ = digits()
    loader = DataLoader(train, 32, sampler=DistributedSampler(train, seed=1))
    losses = []
    with where:
        # With views, the gradients are in the buckets, and are reduced where they are.
        model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        batches = iter(loader)
        for _ in range(STEPS_THAT_MAKE_BUCKETS):
            losses.append(step(model, optimizer, *next(batches)))
    losses += [step(model, optimizer, *batch) for batch in batches]
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert ringkern.is_shared(parameter.grad) == shared
    return losses


def step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
) -> float:
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(backend: str) -> Losses:
    dist.init_process_group(backend)
    losses = {
        "ordinary": steps(nullcontext(), shared=False),
        "shared": steps(ringkern.shared_memory(), shared=True),
    }
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    compare(train)
