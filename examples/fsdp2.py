"""FSDP2, `fully_shard`: parameters, gradients and optimizer are sharded; its two checkpoints.

    python examples/fsdp2.py        # with "ringkern", with "gloo", and compares

Rank 0 alone writes the full state, each rank its part of the sharded one. Other models go on from
these, and must have the losses of the first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from compare import Losses, compare, digits, network
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Adam, Optimizer

FIRST, SECOND = slice(5), slice(5, 10)  # the steps before and after the checkpoints
BATCH = 32  # images a rank and step
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


def new() -> tuple[nn.Module, Optimizer]:
    model = network()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    return model, Adam(model.parameters(), lr=0.01)


def run(model: nn.Module, optimizer: Optimizer, steps: slice) -> Iterator[float]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels = (part.split(BATCH)[rank::ranks] for part in digits()[0][:])
    for x, y in zip(images[steps], labels[steps]):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def state(model: nn.Module, optimizer: Optimizer, full: bool) -> dict[str, dict]:
    both = get_state_dict(model, optimizer, options=FULL if full else None)  # all ranks call it
    return dict(zip(("model_state_dict", "optim_state_dict"), both))


def train(folder: str, backend: str) -> Losses:
    dist.init_process_group(backend)
    model, optimizer = new()
    losses = list(run(model, optimizer, FIRST))
    full = state(model, optimizer, full=True)
    if dist.get_rank() == 0:
        torch.save(full, f"{folder}/{backend}.pt")
    dcp.save(state(model, optimizer, full=False), checkpoint_id=f"{folder}/{backend}")
    dist.barrier()  # nobody reads before it is written
    losses += run(model, optimizer, SECOND)
    model, optimizer = new()
    set_state_dict(model, optimizer, **torch.load(f"{folder}/{backend}.pt"), options=FULL)
    assert list(run(model, optimizer, SECOND)) == losses[SECOND]
    model, optimizer = new()
    shards = state(model, optimizer, full=False)
    dcp.load(shards, checkpoint_id=f"{folder}/{backend}")
    set_state_dict(model, optimizer, **shards)
    assert list(run(model, optimizer, SECOND)) == losses[SECOND]
    dist.destroy_process_group()
    return {"fully_shard": losses}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        compare(partial(train, folder))
