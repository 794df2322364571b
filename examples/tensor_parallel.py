"""DTensor and tensor parallelism: ranks in a mesh, data parallel x tensor parallel.

    python examples/tensor_parallel.py    # with "ringkern", with "gloo", and compares

"DTensor": softmax regression on distributed tensors, placed by hand. "TP x FSDP": two layers, split
by columns and by rows between the ranks of "tp", each part sharded between those of "dp". Four
ranks are 2 x 2: every sum is of two floats, and the losses are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from compare import Losses, compare, digits
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS = 10
BATCH = 128  # images a step, of all ranks


def dtensor(mesh: DeviceMesh) -> Iterator[float]:
    images, labels = digits()[0][:]
    images = distribute_tensor(images, mesh, [Shard(0), Shard(1)])  # half the images and pixels
    labels = distribute_tensor(labels, mesh, [Shard(0), Replicate()])
    weights = distribute_tensor(torch.zeros(64, 10), mesh, [Replicate(), Shard(0)])
    weights.requires_grad_()
    for _ in range(STEPS):
        logits = images @ weights  # sums over half the pixels: to be added up over "tp"
        logits = logits.redistribute(placements=[Shard(0), Replicate()])
        loss = nn.functional.cross_entropy(logits, labels)
        (gradient,) = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            weights -= gradient
        yield loss.full_tensor().item()


def two_dimensional(mesh: DeviceMesh) -> Iterator[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10), nn.LogSoftmax(dim=1))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    # The ranks of "tp" see the same images.
    mine = slice(mesh["dp"].get_local_rank(), None, mesh["dp"].size())
    images, labels = (part.split(BATCH // mesh["dp"].size())[mine] for part in digits()[0][:])
    for x, y in zip(images[:STEPS], labels[:STEPS]):
        loss = nn.functional.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def train(backend: str) -> Losses:
    dist.init_process_group(backend)
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    losses = {"DTensor": list(dtensor(mesh)), "TP x FSDP": list(two_dimensional(mesh))}
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    compare(train, ranks=4, tolerance=0)
