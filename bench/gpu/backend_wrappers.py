"""Wrappers of a model over the backend "ringkern": FSDP, tensor parallel, torch.compile, libraries.

A wrapper must train the weights that one process trains with the data of all ranks, or give its
results. Libraries that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from bench.gpu.backend_rank import Rank

STEPS, ROWS, RATE = 3, 8, 0.1


def network(at: Rank) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8)).to(at.here)


def rows(at: Rank, rank: int, step: int) -> torch.Tensor:
    """Returns the data of a rank in a step."""
    made = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(ROWS, 64, generator=made).to(at.here)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def train(model: nn.Module, batch_of: Callable[[int], torch.Tensor]) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        loss_of(model, batch_of(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def of_all(at: Rank) -> Callable[[int], torch.Tensor]:
    return lambda step: torch.cat([rows(at, rank, step) for rank in range(at.size)])


def of_this(at: Rank) -> Callable[[int], torch.Tensor]:
    return lambda step: rows(at, at.rank, step)


def expect_trained(at: Rank, what: str, weights: Iterable[torch.Tensor]) -> None:
    """Checks the weights against those that one process trains with all data."""
    alone = train(network(at), of_all(at)).parameters()
    for own, whole in zip(weights, alone, strict=True):
        expect_close(at, what, own.detach().to(at.here), whole.detach())


def expect_close(at: Rank, what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Checks up to rounding: the sums have other orders than in one process."""
    at.expect_none(what, (~torch.isclose(actual, expected, rtol=1e-4, atol=1e-6)).sum())


def whole_of(parameter: torch.Tensor) -> torch.Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.full_tensor()


def mesh_of(at: Rank) -> dist.DeviceMesh:
    return init_device_mesh(torch.device(at.here).type, (at.size,))


def fsdp2(at: Rank) -> None:
    from torch.distributed.fsdp import fully_shard

    model = network(at)
    for module in (*model, model):
        fully_shard(module, mesh=mesh_of(at))
    train(model, of_this(at))
    expect_trained(at, "fully_shard", map(whole_of, model.parameters()))


def fsdp1(at: Rank) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        model = FullyShardedDataParallel(
            network(at),
            device_id=torch.device(at.here),
            sharding_strategy=strategy,
            use_orig_params=True,
        )
        train(model, of_this(at))
        with FullyShardedDataParallel.summon_full_params(model):
            weights = [p.detach().clone() for p in model.parameters()]
        expect_trained(at, strategy.name, weights)


def tensor_parallel(at: Rank) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = train(parallelize_module(network(at), mesh_of(at), plan), of_all(at))
    expect_trained(at, "parallelize_module", map(whole_of, model.parameters()))


def compiled(at: Rank) -> None:
    """Traces a step with both kinds of call, in one graph."""
    from torch.distributed import _functional_collectives as collectives

    import ringkern

    group = dist.group.WORLD
    assert group is not None

    def step(values: torch.Tensor) -> torch.Tensor:
        part = collectives.reduce_scatter_tensor(values * 2, "sum", 0, group)
        whole = collectives.all_gather_tensor(part + 1, 0, group)
        total = ringkern.functional.all_reduce(values)
        return whole + total

    values = at.of(at.rank, 1024 * at.size)
    made = torch.compile(step, fullgraph=True)
    expect_close(at, "torch.compile", made(values), step(values))
    total = torch.stack(at.of_all(1024 * at.size)).sum(0)
    expect_close(at, "torch.compile, its result", made(values), 3 * total + 1)


def told_by_environment(at: Rank) -> None:
    """Sets what torchrun sets; a launcher would not give several ranks the same GPU."""
    os.environ["RANK"] = os.environ["NODE_RANK"] = str(at.rank)
    os.environ["WORLD_SIZE"] = str(at.size)
    os.environ["LOCAL_RANK"] = str(torch.device(at.here).index or 0)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "0"  # wanted, not used


def accelerate(at: Rank) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    told_by_environment(at)
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=not at.on_cuda)
    model = network(at)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(STEPS):
        accelerator.backward(loss_of(model, rows(at, at.rank, step)))
        optimizer.step()
        optimizer.zero_grad()
    expect_trained(at, f"Accelerate's {type(model).__name__}", model.parameters())


def lightning(at: Rank) -> None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    class Model(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network(at)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    told_by_environment(at)
    model = Model()
    batches: Any = [rows(at, at.rank, step).cpu() for step in range(STEPS)]
    trainer = Trainer(
        accelerator="gpu" if at.on_cuda else "cpu",
        devices=[torch.device(at.here).index] if at.on_cuda else 1,
        num_nodes=at.size,  # on one node each rank would need a GPU of its own
        strategy=DDPStrategy(
            cluster_environment=LightningEnvironment(), process_group_backend="ringkern"
        ),
        max_epochs=1,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(batches, batch_size=None))
    expect_trained(at, "Lightning's DDPStrategy", model.parameters())


def transformers(at: Rank) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    told_by_environment(at)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    torch.manual_seed(0)
    whole = LlamaForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as mine:
        folder = [mine]
        dist.broadcast_object_list(folder, 0)
        if at.rank == 0:
            whole.save_pretrained(folder[0])
        dist.barrier()
        model = LlamaForCausalLM.from_pretrained(folder[0], tp_plan="auto")
        dist.barrier()  # rank 0 removes it
    tokens = (torch.arange(32).reshape(2, 16) * 7 % 256).to(at.here)
    whole.to(at.here)
    with torch.inference_mode():
        split, expected = (each(tokens).logits for each in (model, whole))
    expect_close(at, "transformers, tp_plan", split, expected)
    weight = model.model.layers[0].mlp.up_proj.weight
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    assert len(local) * at.size == config.intermediate_size, "the model is not split"


OF_LIBRARIES: dict[str, Callable[[Rank], None]] = {
    "accelerate": accelerate,
    "lightning": lightning,
    "transformers": transformers,
}
CHECKS: dict[str, Callable[[Rank], None]] = {
    "fsdp2": fsdp2,
    "fsdp1": fsdp1,
    "tensor parallel": tensor_parallel,
    **{name: check for name, check in OF_LIBRARIES.items() if importlib.util.find_spec(name)},
    "compile": compiled,  # the slowest
}
