"""DeepSpeed's ZeRO stages 1, 2 and 3 on the CPU, with accumulation, clipping and checkpoints.

    python examples/deepspeed_zero.py    # with "ringkern", with "gloo", and compares

It needs `pip install -e '.[examples]'`. The second half of the training runs again from the
checkpoint that was written half-way, and must have the same losses.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial

os.environ["DS_ACCELERATOR"] = "cpu"  # DeepSpeed reads it as it is imported

import deepspeed
import torch.distributed as dist
from compare import Losses, compare, digits, network
from torch.nn.functional import cross_entropy

warnings.filterwarnings("ignore", category=FutureWarning)  # torch 2.13 renames collectives

FIRST, SECOND = slice(6), slice(6, 12)  # the steps before and after the checkpoint
BATCH = 32  # images a rank and step; the weights change every second step


def new(stage: int) -> deepspeed.DeepSpeedEngine:
    model = network()
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        # DeepSpeed has an Adam of its own, which would have to be compiled.
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        # 0: stage 3 shards small parameters, too.
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def run(engine: deepspeed.DeepSpeedEngine, steps: slice) -> Iterator[float]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels = (part.split(BATCH)[rank::ranks] for part in digits()[0][:])
    for x, y in zip(images[steps], labels[steps]):
        loss = cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        yield loss.item()


def train(folder: str, backend: str) -> Losses:
    # DeepSpeed would now compile a collective of its own, for 16 s, which only inference uses.
    deepspeed.ops.__compatible_ops__ = {}
    deepspeed.init_distributed(backend, verbose=False)
    losses: Losses = {}
    for stage in (1, 2, 3):
        engine = new(stage)
        curve = [*run(engine, FIRST)]
        engine.save_checkpoint(f"{folder}/{backend}", tag=stage)
        curve += run(engine, SECOND)
        engine.load_checkpoint(f"{folder}/{backend}", tag=stage)
        assert [*run(engine, SECOND)] == curve[SECOND]
        engine.destroy()
        losses[f"ZeRO stage {stage}"] = curve
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        compare(partial(train, folder))
