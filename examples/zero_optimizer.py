"""ZeroRedundancyOptimizer: each rank keeps a part of Adam's state; rank 0 saves it, all load it.

python examples/zero_optimizer.py        # with "ringkern", with "gloo", and compares
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from compare import Losses, compare, digits, network
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ringkern  # noqa: F401  registers the backend


class Trainer:
    def __init__(self) -> None:
        self.model = DistributedDataParallel(network())
        self.optimizer = ZeroRedundancyOptimizer(
            self.model.parameters(), torch.optim.Adam, lr=0.002, parameters_as_bucket_view=True
        )

    def epoch(self, number: int) -> float:
        """Trains; this rank's mean loss."""
        sampler = DistributedSampler(digits()[0], seed=number)
        losses = []
        for images, labels in DataLoader(sampler.dataset, batch_size=32, sampler=sampler):
            self.optimizer.zero_grad()
            loss = cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    def save(self, path: str) -> None:
        self.optimizer.consolidate_state_dict(to=0)  # every rank sends its part to rank 0
        if dist.get_rank() == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, path)
        dist.barrier()  # now the file is complete

    def load(self, path: str) -> None:
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def save_and_load(path: str) -> Losses:
    first = Trainer()
    before = [first.epoch(number) for number in range(2)]
    first.save(path)
    after = [first.epoch(number) for number in range(2, 4)]
    second = Trainer()  # as in another run of the program
    second.load(path)
    resumed = [second.epoch(number) for number in range(2, 4)]
    torch.testing.assert_close(resumed, after, rtol=1e-5, atol=0)  # with two ranks: the same bits
    mine = sum(p.numel() for p in first.optimizer.optim.state)
    share = mine / sum(p.numel() for p in first.model.parameters())
    losses = {"until it is saved": before, "goes on": after, "loaded, and goes on": resumed}
    return {**losses, "share of Adam's state": [share]}


def train(backend: str) -> Losses:
    dist.init_process_group(backend)
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/checkpoint.pt"]
        dist.broadcast_object_list(paths)  # rank 0's
        losses = save_and_load(paths[0])
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    compare(train)
