"""Hugging Face Accelerate on the CPU: DDP, FSDP1 and FSDP2, by one and the same loop.

    python examples/accelerate_ddp_fsdp.py    # with "ringkern", with "gloo", and compares

It needs `pip install -e '.[examples]'`. The state is saved half-way; a second run from there must
have the same losses. Without a GPU, Accelerate makes groups of Gloo or MPI alone, but takes the one
that is there already; and it ignores the FSDP plugin, unless it believes in a GPU.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, DistributedType, PartialState
from compare import Losses, compare, digits, network
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore", module="torch.distributed")  # FSDP1 calls what is deprecated
os.environ.update(OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")  # else it warns of its choices
STEPS = 5  # before the state is saved, and after


def new(wrapper: str) -> Accelerator:
    AcceleratorState._reset_state(reset_partial_state=True)  # forgets the wrapper before
    if wrapper == "DDP":
        return Accelerator(cpu=True)
    state = PartialState(cpu=True)
    state.distributed_type = DistributedType.MULTI_GPU
    state.device = torch.device("cpu")  # FSDP1 takes "cpu:0" for another one
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=int(wrapper[-1]),
        state_dict_type="SHARDED_STATE_DICT",
        auto_wrap_policy="size_based_wrap",
        min_num_params=1000,
        use_orig_params=True if wrapper == "FSDP1" else None,
    )
    return Accelerator(cpu=True, fsdp_plugin=plugin)


def run(accelerator: Accelerator, parts: tuple) -> Iterator[float]:
    model, adam, data = parts
    for _, (images, labels) in zip(range(STEPS), data):
        loss = cross_entropy(model(images), labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        yield accelerator.gather(loss).mean().item()


def train(folder: str, backend: str) -> Losses:
    dist.init_process_group(backend)
    losses: Losses = {}
    for wrapper in ("DDP", "FSDP1", "FSDP2"):
        accelerator, model = new(wrapper), network()
        adam = torch.optim.Adam(model.parameters(), lr=0.01)
        parts = accelerator.prepare(model, adam, DataLoader(digits()[0], batch_size=32))
        losses[wrapper] = list(run(accelerator, parts))
        accelerator.save_state(f"{folder}/{wrapper}.{backend}")
        accelerator.wait_for_everyone()  # nobody reads before it is written
        losses[wrapper] += run(accelerator, parts)
        accelerator.load_state(f"{folder}/{wrapper}.{backend}")
        assert list(run(accelerator, parts)) == losses[wrapper][STEPS:]
        parts = accelerator.free_memory(*parts)  # before the group goes: see compare.py
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        compare(partial(train, folder))
