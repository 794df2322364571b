"""A pipeline, a layer a rank, by hand: send, recv, isend, irecv and batch_isend_irecv.

python examples/pipeline_by_hand.py        # with "ringkern", with "gloo", and compares
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from compare import Losses, compare, digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import ringkern  # noqa: F401  registers the backend

COUNT, SIZE, WIDTH = 8, 16, 96  # microbatches of a batch; images of one; numbers between layers


def exchange(mine: Tensor, peer: int) -> Tensor:
    theirs = torch.empty(SIZE, WIDTH)
    both = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return theirs


def step(layer: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Forward and backward of a batch; its loss, on the last rank."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    running: list[tuple[Tensor, Tensor]] = []  # forward is done, backward is not
    loss, filling = 0.0, last - rank
    for i, (image, label) in enumerate(zip(images.split(SIZE), labels.split(SIZE))):
        if rank == 0:
            x = image
        elif i <= filling:
            dist.recv(x := torch.empty(SIZE, WIDTH), rank - 1)
        y = layer(x.requires_grad_())
        if rank == last:
            y = cross_entropy(y, label) / COUNT
            loss += y.item()
        running.append((x, y))
        if i < filling:  # the pipeline fills
            dist.send(y.detach(), rank + 1)
            continue
        gradient = exchange(y.detach(), rank + 1) if rank < last else None
        x, y = running.pop(0)
        y.backward(gradient)
        if rank > 0:  # for the last gradient nothing comes back
            x = (exchange if i < COUNT - 1 else dist.send)(x.grad, rank - 1)
    gradients = [torch.empty(SIZE, WIDTH) for _ in running]  # the pipeline drains
    works = [dist.irecv(gradient, rank + 1) for gradient in gradients]
    for (x, y), gradient, work in zip(running, gradients, works):
        work.wait()
        y.backward(gradient)
        if rank > 0:
            dist.isend(x.grad, rank - 1).wait()
    return loss


def train(backend: str) -> Losses:
    dist.init_process_group(backend)
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(rank)
    layer = nn.Linear(WIDTH if rank else 64, WIDTH if rank < last else 10)
    layer = nn.Sequential(layer, nn.ReLU()) if rank < last else layer
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for images, labels in DataLoader(digits()[0], COUNT * SIZE):
        optimizer.zero_grad()
        losses.append(step(layer, images, labels))
        optimizer.step()
    dist.destroy_process_group()
    return {"loss": losses if rank == last else []}


if __name__ == "__main__":
    compare(train, ranks=3, tolerance=0)
