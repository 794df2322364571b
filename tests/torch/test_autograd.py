"""The collectives under autograd match torch.distributed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.ranks import Pool
from tests.torch.test_api import summed, values

pytestmark = pytest.mark.quick


def _as_torch(rank: int, size: int, how: str) -> None:
    contexts = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    context = contexts.get(how, torch.enable_grad)
    with context():
        mine, theirs = (
            values(rank).requires_grad_("leaf" in how or how == "no_grad") for _ in range(2)
        )
        assert ringkern.ring_all_reduce(mine) is None
        assert dist.all_reduce(theirs) is None
        assert torch.equal(mine.detach(), theirs.detach())
    for attribute in ("requires_grad", "is_leaf", "grad", "grad_fn"):
        assert getattr(mine, attribute) == getattr(theirs, attribute), attribute
    assert mine.is_inference() == theirs.is_inference()


@pytest.mark.parametrize("how", ["plain", "no_grad", "inference_mode", "leaf that requires grad"])
def test_gradients_equal_those_of_torch_distributed(ranks: Pool, how: str) -> None:
    ranks(2).run(_as_torch, how)


def _inference_tensor_outside(rank: int, size: int) -> None:
    with torch.inference_mode():
        x, out = values(rank, 10), torch.empty(10 * size)
    ringkern.ring_all_gather(out, x)
    ringkern.ring_all_reduce(x)
    assert torch.equal(x, summed(size, 10))
    assert torch.equal(out, torch.cat([values(r, 10) for r in range(size)]))


def test_an_inference_tensor_outside_inference_mode(ranks: Pool) -> None:
    ranks(2).run(_inference_tensor_outside)


def _versions(rank: int, size: int) -> None:
    def bumped(tensor: torch.Tensor, call: Callable[[], object]) -> bool:
        before = tensor._version
        call()
        return tensor._version > before

    x, whole, shard = values(rank), values(rank, 10 * size), values(rank, 10)
    assert bumped(x, lambda: ringkern.ring_all_reduce(x))
    assert bumped(x, lambda: ringkern.ring_all_reduce(x, async_op=True).wait())
    assert bumped(x.view(10, 100).t(), lambda: ringkern.ring_all_reduce(x.view(10, 100).t()))
    assert bumped(shard, lambda: ringkern.ring_reduce_scatter(shard, whole))
    assert bumped(whole, lambda: ringkern.ring_all_gather(whole, shard))
    assert not bumped(whole, lambda: ringkern.ring_reduce_scatter(shard, whole))
    assert not bumped(shard, lambda: ringkern.ring_all_gather(whole, shard))


def test_written_tensors_get_a_new_version(ranks: Pool) -> None:
    ranks(2).run(_versions)


def _saved_for_backward(rank: int, size: int) -> None:
    weight = torch.ones(1000, requires_grad=True)
    x = values(rank)
    loss = (weight * x).sum()
    ringkern.ring_all_reduce(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autograd_notices_the_change(ranks: Pool) -> None:
    ranks(2).run(_saved_for_backward)


def _gradients(rank: int, size: int) -> None:
    model = torch.nn.Linear(20, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(values(0, parameter.numel()).view_as(parameter))
    model(values(rank, 40).view(2, 20)).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        expected = parameter.grad.clone()
        dist.all_reduce(expected)
        ringkern.ring_all_reduce(parameter.grad)
        assert torch.equal(parameter.grad, expected)


def test_gradients_of_a_model(ranks: Pool) -> None:
    ranks(2).run(_gradients)


def _gradient_hook(state, bucket):  # torch accepts no string annotations here
    work = ringkern.ring_all_reduce(bucket.buffer(), dist.ReduceOp.AVG, async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def _data_parallel(rank: int, size: int) -> None:
    gradients = []
    for hook in (None, _gradient_hook):
        torch.manual_seed(5)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3)
        )
        parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
        if hook is not None:
            parallel.register_comm_hook(None, hook)
        for _ in range(2):  # the buckets are rebuilt after the first step
            parallel.zero_grad()
            parallel(values(rank, 40).view(2, 20)).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for theirs, mine in zip(*gradients):
        assert theirs is not None
        assert mine is not None
        torch.testing.assert_close(mine, theirs)


def test_the_hook_of_distributed_data_parallel_works(ranks: Pool) -> None:
    ranks(2).run(_data_parallel)
