"""FSDP1 with FULL_SHARD, SHARD_GRAD_OP and HYBRID_SHARD, and a checkpoint that rank 0 writes.

    python examples/fsdp1.py        # with "ringkern", with "gloo", and compares

A second model goes on from the checkpoint, and must have the losses of the first.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from compare import Losses, compare, digits, network
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.optim import Adam, Optimizer

warnings.filterwarnings("ignore", module="torch.distributed")  # it calls what is deprecated

FIRST, SECOND = slice(5), slice(5, 10)  # the steps before and after the checkpoint
BATCH = 32  # images a rank and step
# Without `cpu_offload`: on a CPU, torch 2.13 frees the parameters that it "moves" there.
FULL = StateDictOptions(full_state_dict=True)


def new(strategy: str) -> tuple[FullyShardedDataParallel, Optimizer]:
    ranks = dist.get_world_size()
    shape = (ranks // 2, 2) if strategy == "HYBRID_SHARD" else (ranks,)  # copies, shards
    model = FullyShardedDataParallel(
        network(),
        device_id=torch.device("cpu"),
        device_mesh=init_device_mesh("cpu", shape),
        sharding_strategy=ShardingStrategy[strategy],
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
    )
    return model, Adam(model.parameters(), lr=0.01)


def run(model: FullyShardedDataParallel, optimizer: Optimizer, steps: slice) -> Iterator[float]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels = (part.split(BATCH)[rank::ranks] for part in digits()[0][:])
    for x, y in zip(images[steps], labels[steps]):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def train(folder: str, backend: str) -> Losses:
    dist.init_process_group(backend)
    losses: Losses = {}
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"):
        file = f"{folder}/{strategy}.{backend}.pt"
        model, optimizer = new(strategy)
        losses[strategy] = list(run(model, optimizer, FIRST))
        state = get_state_dict(model, optimizer, options=FULL)  # a collective: every rank calls it
        if dist.get_rank() == 0:
            torch.save(dict(zip(("model_state_dict", "optim_state_dict"), state)), file)
        dist.barrier()  # nobody reads before it is written
        losses[strategy] += run(model, optimizer, SECOND)
        model, optimizer = new(strategy)
        set_state_dict(model, optimizer, **torch.load(file), options=FULL)
        assert list(run(model, optimizer, SECOND)) == losses[strategy][SECOND]
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        compare(partial(train, folder), ranks=4)
