"""Evaluation by several ranks: all_reduce for sums, all_gather for predictions of unequal number.

python examples/evaluate.py        # with "ringkern", with "gloo", and compares
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from compare import Losses, compare, digits, network
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader, Dataset, Subset

import ringkern  # noqa: F401  registers the backend


def fit(model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for images, labels in [*DataLoader(digits()[0], batch_size=64)] * 3:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


@torch.no_grad()
def predict(model: nn.Module, data: Dataset) -> tuple[Tensor, ...]:
    """Each image's prediction, label and loss."""
    batches = []
    for images, labels in DataLoader(data, batch_size=32):
        scores = model(images)
        losses = cross_entropy(scores, labels, reduction="none").double()
        batches.append((scores.argmax(dim=1), labels, losses))
    return tuple(torch.cat(parts) for parts in zip(*batches))


def gather(mine: Tensor) -> Tensor:
    """Returns the objects of all ranks, in rank order, padded to the one size of all_gather."""
    counts = [torch.tensor(0) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor(len(mine)))
    padded = mine.new_zeros(max(counts))
    padded[: len(mine)] = mine
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts)])


def train(backend: str) -> Losses:
    dist.init_process_group(backend)
    model, (_, test) = network(), digits()
    if dist.get_rank() == 0:
        fit(model)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    # No DistributedSampler: it makes the shares equal by giving out some images twice.
    share = range(dist.get_rank(), len(test), dist.get_world_size())
    predictions, labels, losses = predict(model, Subset(test, share))
    sums = torch.stack([losses.sum(), (predictions == labels).sum(), torch.tensor(len(labels))])
    dist.all_reduce(sums)
    worst = losses.max()
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    f1 = f1_score(gather(labels), gather(predictions), average="macro")
    confusion = one_hot(labels, 10).T @ one_hot(predictions, 10)  # integers
    dist.all_reduce(confusion)
    dist.destroy_process_group()
    # The same in one process:
    predictions, labels, losses = predict(model, test)
    torch.testing.assert_close([sums[0], worst], [losses.sum(), losses.max()])
    assert sums[1:].tolist() == [(predictions == labels).sum(), len(test)]
    assert f1 == f1_score(labels, predictions, average="macro")
    assert torch.equal(confusion, one_hot(labels, 10).T @ one_hot(predictions, 10))
    loss, accuracy = (sums[:2] / sums[2]).tolist()
    return {"loss": [loss], "worst": [worst.item()], "accuracy": [accuracy], "F1": [float(f1)]}


if __name__ == "__main__":
    compare(train, ranks=4, tolerance=1e-12)  # the sum of the losses, in float64
