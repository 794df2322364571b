"""``ringkern.ddp.world_invariant_hook``: a training has the same weights, bit by bit, on any number
of ranks, and they are those of one process that adds by the tree.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

import ringkern
from ringkern.backend import Options
from ringkern.errors import CollectiveMismatchError
from tests.ranks import Pool
from tests.torch.rings import same
from tests.torch.test_shards import expected

pytestmark = pytest.mark.quick

SHARDS, STEPS = 8, 6
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "many buckets": {"bucket_cap_mb": 0.001},
    "bucket views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
    "static graph": {"static_graph": True, "bucket_cap_mb": 0.001},
}


class Net(nn.Module):
    """Two layers with dropout, a buffer, and a parameter whose gradient is -0."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(20, 50), nn.Tanh(), nn.Dropout(0.2), nn.Linear(50, 5)
        ).to(dtype)
        self.idle = nn.Parameter(torch.zeros(3, dtype=dtype))
        self.register_buffer("scale", torch.ones(1, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x) * self.scale - (self.idle * 0.0).sum()
        return result


def loss_of(model: nn.Module, step: int, shard: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(1000 * step + shard)  # inputs and dropout are those of the shard
    x = torch.randn(6, 20).to(dtype)
    loss: torch.Tensor = model(x).square().mean() * 3
    return loss


def _train(rank: int, size: int, dtype: torch.dtype, variant: str) -> str:
    torch.set_num_threads(1)
    net = Net(dtype)
    model = DistributedDataParallel(net, broadcast_buffers=False, **VARIANTS[variant])
    mine = ringkern.ddp.world_invariant_hook(model, SHARDS)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for shard in mine:
            loss_of(model, step, shard, dtype).backward()
        assert net.idle.grad is not None
        assert not net.idle.grad.signbit().any()
        optimizer.step()
    return _digest(net)


def _digest(net: nn.Module) -> str:
    weights = parameters_to_vector(net.parameters()).detach()
    return hashlib.sha256(weights.view(torch.uint8).numpy().tobytes()).hexdigest()


def alone(dtype: torch.dtype) -> str:
    """Returns the weights of one process without DistributedDataParallel."""
    net = Net(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    parameters = list(net.parameters())
    for step in range(STEPS):
        gradients = [
            torch.autograd.grad(loss_of(net, step, shard, dtype), parameters)
            for shard in range(SHARDS)
        ]
        for parameter, *shards in zip(parameters, *gradients):
            parameter.grad = expected([x.reshape(-1) + 0.0 for x in shards], "avg").view_as(
                parameter
            )
        optimizer.step()
    return _digest(net)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_do_not_depend_on_the_ranks(ranks: Pool, size: int, dtype: torch.dtype) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    weights = alone(dtype)
    torch.set_num_threads(threads)
    assert set(ranks(size).run(_train, dtype, "plain")) == {weights}


@pytest.mark.parametrize(
    ("variant", "size"), [("many buckets", 3), ("bucket views", 3), ("static graph", 4)]
)
def test_the_buckets_do_not_matter(ranks: Pool, variant: str, size: int) -> None:
    one, others = (
        ranks(n).run(_train, torch.float32, v) for n, v in ((1, "plain"), (size, variant))
    )
    assert {*one} == {*others}


def _trained_as_it_is(rank: int, size: int, shards: int, kind: str, deterministic: str) -> str:
    """A training that knows of no shards; its group has the option."""
    torch.set_num_threads(1)
    group = dist.new_group(
        list(range(size)), backend="ringkern", pg_options=Options(deterministic=deterministic)
    )
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 5))
    if kind == "fsdp":
        model: Any = fully_shard(net, mesh=DeviceMesh.from_group(group, "cpu"))
    else:
        model = DistributedDataParallel(net, process_group=group)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    each = shards // size
    for step in range(STEPS):
        optimizer.zero_grad()
        for shard in range(rank * each, (rank + 1) * each):
            last = shard % each == each - 1
            if kind == "fsdp":
                model.set_requires_gradient_sync(last)
            with contextlib.nullcontext() if kind == "fsdp" or last else model.no_sync():
                (loss_of(model, step, shard, torch.float32) / each).backward()
        optimizer.step()
    if kind == "fsdp":
        model.unshard()
    weights = _digest(net)
    dist.destroy_process_group(group)
    return weights


@pytest.mark.parametrize(
    ("kind", "shards", "sizes"), [("fsdp", 6, (3, 6)), ("fsdp", 8, (4, 8)), ("ddp", 8, (4, 8))]
)
def test_a_group_with_the_option_has_one_shard_a_rank_or_two(
    ranks: Pool, kind: str, shards: int, sizes: tuple[int, int]
) -> None:
    def weights(deterministic: str) -> set[str]:
        told = shards, kind, deterministic
        return {w for size in sizes for w in ranks(size).run(_trained_as_it_is, *told)}

    assert len(weights("world_invariant")) == 1
    assert len(weights("auto")) == 2  # otherwise the test would prove nothing


def _strided(rank: int, size: int) -> None:
    torch.manual_seed(0)
    net = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    inputs = torch.randn(4, 2, 3, 5, 5)
    gradients = [torch.autograd.grad(net(x).square().sum(), net.weight)[0] for x in inputs]
    right = expected([x.flatten() for x in gradients], "avg").view_as(net.weight)
    model = DistributedDataParallel(net)
    for shard in ringkern.ddp.world_invariant_hook(model, 4):
        model(inputs[shard]).square().sum().backward()
    assert not net.weight.is_contiguous()
    assert net.weight.grad is not None
    assert same(net.weight.grad, right)


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_with_other_strides(ranks: Pool, size: int) -> None:
    ranks(size).run(_strided)


def _errors(rank: int, size: int) -> None:
    net = Net(torch.float32)
    model = DistributedDataParallel(net)
    with pytest.raises(TypeError, match="model is Net; give a DistributedDataParallel"):
        ringkern.ddp.world_invariant_hook(net, 8)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 shards are too few for 3 ranks"):
        ringkern.ddp.world_invariant_hook(model, 2)
    with pytest.raises(CollectiveMismatchError, match="rank 0 adds 8 shards and rank 1 adds 9"):
        ringkern.ddp.world_invariant_hook(model, 8 if rank != 1 else 9)
    for shards in (4, 5):
        with pytest.raises(ValueError, match=r"are 2 on some and 1 on others.*give 3 shards, or 6"):
            ringkern.ddp.world_invariant_hook(model, shards)
    unequal = [{}, {"broadcast_buffers": False, "static_graph": True}]
    for options in unequal:
        other = DistributedDataParallel(net, **options)
        with pytest.raises(ValueError, match=r"are 3 on some and 2 on others.*a multiple of the"):
            ringkern.ddp.world_invariant_hook(other, 8)
    other = DistributedDataParallel(net, find_unused_parameters=True)
    with pytest.raises(ValueError, match="find_unused_parameters loses the gradients"):
        ringkern.ddp.world_invariant_hook(other, 6)
    assert ringkern.ddp.world_invariant_hook(model, 6) == range(2 * rank, 2 * rank + 2)


def test_what_cannot_be_averaged_is_refused(ranks: Pool) -> None:
    ranks(3).run(_errors)
