"""DistributedDataParallel with compressed gradients: float16, bfloat16, PowerSGD.

python examples/ddp_comm_hooks.py        # with "ringkern", with "gloo", and compares
"""

# No `from __future__ import annotations`: register_comm_hook() looks at those of the hook, and
# does not know them as strings.
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from compare import Losses, compare, digits, network
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ringkern  # noqa: F401  registers the backend

EPOCHS = 3


def bfloat16_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Half of the bytes on the wire, and the range of float32.

    Does the same as torch's bf16_compress_hook, which torch 2.13 refuses by name, with any
    backend, if it was built without CUDA and NCCL: "BF16 [...] hook required CUDA 11+".
    """
    half = bucket.buffer().to(torch.bfloat16).div_(group.size())
    future = dist.all_reduce(half, group=group, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def epochs(state: object, hook: Callable[[Any, dist.GradBucket], Future]) -> list[float]:
    """Trains; this rank's mean loss of each epoch."""
    train, _ = digits()
    sampler = DistributedSampler(train, seed=1)
    loader = DataLoader(train, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(network())
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    means = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        means.append(total / len(loader))
    return means


def train(backend: str) -> Losses:
    dist.init_process_group(backend)
    # The gradients as products of two thin matrices, from the second epoch on.
    low_rank = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=4, start_powerSGD_iter=20
    )
    losses = {
        # First, as its callbacks hold the group: Gloo's thread could be left with the last of them
        # when the group is destroyed, and would abort, waiting for itself.
        "powerSGD_hook": epochs(low_rank, powerSGD_hook.powerSGD_hook),
        "fp16_compress_hook": epochs(dist.group.WORLD, default_hooks.fp16_compress_hook),
        "bfloat16_hook": epochs(dist.group.WORLD, bfloat16_hook),
    }
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    # With more than two ranks sums in another order round to another of bfloat16's 8 bits.
    compare(train, tolerance=1e-3)
