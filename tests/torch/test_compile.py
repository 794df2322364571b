"""The ring in torch.compile and autograd: ringkern.functional, and ring_all_reduce in a graph."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern import functional
from tests.ranks import Pool
from tests.torch.test_api import summed, values

BACKENDS = ("eager", "aot_eager")


# ---- the operators ------------------------------------------------------------------------------


def _opcheck(rank: int, size: int) -> None:
    ops = torch.ops.ringkern
    for x in (
        values(rank, 12),
        values(rank, 12).requires_grad_(),
        values(rank, 12).view(3, 4).t(),
        values(rank, 12, torch.int64),
        torch.empty(0),
    ):
        grad = x.requires_grad
        torch.library.opcheck(ops.all_reduce.default, (x, "sum", ""))
        if grad:
            # An in-place op with a gradient cannot be right and raises; opcheck passes that on.
            with pytest.raises(Exception, match=r"use ringkern\.functional\.all_reduce"):
                torch.library.opcheck(ops.all_reduce_.default, (x, "sum", "", *["auto"] * 4))
        else:
            torch.library.opcheck(ops.all_reduce_.default, (x, "sum", "", *["auto"] * 4))


def test_opcheck(ranks: Pool) -> None:
    ranks(2).run(_opcheck)


def _out_of_place(rank: int, size: int) -> None:
    for x in (values(rank), values(rank).view(10, 100).t(), values(rank, 0), values(rank, 1)[0]):
        before = x.clone()
        result = functional.all_reduce(x)
        assert torch.equal(x, before)
        assert result.data_ptr() != x.data_ptr() or x.numel() == 0
        assert result.is_contiguous()
        expected = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(expected)
        assert torch.equal(result, expected)
    for op, exact in (("avg", summed(size) / size), ("max", None), ("min", None), ("prod", None)):
        result = functional.all_reduce(values(rank), op)
        every = torch.stack([values(r) for r in range(size)])
        if exact is None:
            exact = {"max": every.amax(0), "min": every.amin(0), "prod": every.prod(0)}[op]
        assert torch.equal(result, exact)
    group = dist.new_group([1])
    if rank == 1:
        assert torch.equal(functional.all_reduce(values(1), "sum", group), values(1))
        dist.destroy_process_group(group)
    with pytest.raises(
        ValueError, match="unknown op 'mean'; choose one of sum, prod, min, max, avg"
    ):
        functional.all_reduce(values(rank), "mean")


def test_functional_all_reduce(ranks: Pool) -> None:
    ranks(2).run(_out_of_place)


# ---- torch.compile ------------------------------------------------------------------------------


def _step_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    ringkern.ring_all_reduce(y)
    ringkern.ring_all_reduce(x, dist.ReduceOp.MAX, protocol="ll")  # an input of the graph
    return y + 1


def _step_functional(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x * 2, "sum") + functional.all_reduce(x, "max")


def _compiles(rank: int, size: int, backend: str) -> None:
    largest = torch.stack([values(r) for r in range(size)]).amax(0)

    torch._dynamo.reset()
    step = torch.compile(_step_in_place, fullgraph=True, backend=backend)
    for _ in range(2):
        x = values(rank)
        assert torch.equal(step(x), 2 * summed(size) + 1)
        assert torch.equal(x, largest)

    torch._dynamo.reset()
    step = torch.compile(_step_functional, fullgraph=True, backend=backend)
    for _ in range(2):
        x = values(rank)
        assert torch.equal(step(x), 2 * summed(size) + largest)
        assert torch.equal(x, values(rank))


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiles_without_a_graph_break(ranks: Pool, backend: str) -> None:
    ranks(2).run(_compiles, backend)


def _with_inductor(rank: int, size: int, cache: str) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        ringkern.ring_all_reduce(y)
        return functional.all_reduce(y + 1, "max")

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(values(rank)), 2 * summed(size) + 1)


@pytest.mark.timeout(280)
def test_compiles_with_inductor(ranks: Pool, tmp_path: Path) -> None:
    ranks(2).run(_with_inductor, str(tmp_path), timeout_s=240)  # compiles C++


def _groups_in_a_graph(rank: int, size: int) -> None:
    torch._dynamo.reset()
    pair = dist.new_group([0, 1])

    def step(x: torch.Tensor) -> torch.Tensor:
        y = functional.all_reduce(x, "sum", pair)
        ringkern.ring_all_reduce(y, group=pair)
        return y

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(values(rank)), size * summed(size))
    dist.destroy_process_group(pair)


def test_a_group_in_a_graph(ranks: Pool) -> None:
    ranks(2).run(_groups_in_a_graph)


def _dynamic_shapes(rank: int, size: int, backend: str) -> None:
    torch._dynamo.reset()
    traced = []

    def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        traced.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    step = torch.compile(_step_functional, fullgraph=True, dynamic=True, backend=counting)
    for n in (1000, 17, 400, 31):
        largest = torch.stack([values(r, n) for r in range(size)]).amax(0)
        assert torch.equal(step(values(rank, n)), 2 * summed(size, n) + largest)
    assert len(traced) == 1, "compiled again for another size"


@pytest.mark.parametrize("backend", BACKENDS)
def test_dynamic_shapes(ranks: Pool, backend: str) -> None:
    ranks(2).run(_dynamic_shapes, backend)


def _refused_in_a_graph(rank: int, size: int) -> None:
    half = dist._make_nccl_premul_sum(0.5)
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda x: ringkern.ring_all_reduce(x, async_op=True),
        lambda x: ringkern.ring_all_reduce(x, half),
        lambda x: ringkern.ring_reduce_scatter(x[: x.numel() // size].clone(), x),
        lambda x: ringkern.ring_all_gather(x, x[: x.numel() // size].clone()),
    ]
    for call in calls:
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r"torch\.compile can capture only one of"):
            torch.compile(call, fullgraph=True, backend="eager")(values(rank))
    torch._dynamo.reset()
    weight = torch.ones(5, requires_grad=True)
    with pytest.raises(RuntimeError, match="the gradient would be silently wrong"):
        torch.compile(ringkern.ring_all_reduce, fullgraph=True, backend="eager")(weight)
    with torch.no_grad():
        torch.compile(ringkern.ring_all_reduce, fullgraph=True, backend="eager")(weight)
    assert torch.equal(weight.detach(), torch.full((5,), float(size)))


def test_a_call_that_cannot_be_compiled_is_an_error(ranks: Pool) -> None:
    ranks(2).run(_refused_in_a_graph)


def _broken_graph(x: torch.Tensor) -> torch.Tensor:
    size = dist.get_world_size()
    y = x * 2
    work = ringkern.ring_all_reduce(y, async_op=True)
    work.wait()
    part, whole = torch.empty(y.numel() // size), torch.empty_like(y)
    ringkern.ring_reduce_scatter(part, y, dist.ReduceOp.MAX)
    ringkern.ring_all_gather(whole, part)
    ringkern.ring_all_reduce(whole, dist._make_nccl_premul_sum(0.5))
    with ringkern.Communicator() as communicator:
        communicator.all_reduce(whole, dist.ReduceOp.MAX)
    return whole + 1


def _runs_outside_the_graph(rank: int, size: int) -> None:
    torch._dynamo.reset()
    step = torch.compile(_broken_graph, backend="eager")
    for _ in range(2):
        assert torch.equal(step(values(rank)), 2 * summed(size) * size / 2 + 1)
    torch._dynamo.reset()
    with pytest.raises(TypeError, match=r"op is 'sum'; give a torch\.distributed\.ReduceOp"):
        torch.compile(lambda x: ringkern.ring_all_reduce(x, "sum"), backend="eager")(values(rank))


def test_calls_that_a_graph_cannot_hold_run_outside(ranks: Pool) -> None:
    ranks(2).run(_runs_outside_the_graph)


# ---- gradients ----------------------------------------------------------------------------------


def _gradient(rank: int, size: int, backend: str | None) -> None:
    torch._dynamo.reset()
    for op, scale in (("sum", 1.0), ("avg", 1.0 / size)):

        def loss(x: torch.Tensor, weight: torch.Tensor, op: str = op) -> torch.Tensor:
            return (functional.all_reduce(x * x, op) * weight).sum()

        call = loss if backend is None else torch.compile(loss, fullgraph=True, backend=backend)
        x = (values(rank) + 1).requires_grad_()
        call(x, values(rank)).backward()
        # d(sum of all ranks' losses) / dx: the weights of each rank count.
        assert x.grad is not None
        assert torch.allclose(x.grad, 2 * (values(rank) + 1) * summed(size) * scale)


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_gradients(ranks: Pool, backend: str | None) -> None:
    ranks(2).run(_gradient, backend)


def _gradcheck(rank: int, size: int) -> None:
    # All ranks move the same element at the same time, so the derivative is that of the sum of
    # equal inputs; each counts once for each rank.
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(3, 2, dtype=torch.float64, generator=generator).requires_grad_()
    for op in ("sum", "avg"):
        assert torch.autograd.gradcheck(lambda y, op=op: functional.all_reduce(y, op).sin(), (x,))
        assert torch.autograd.gradgradcheck(
            lambda y, op=op: functional.all_reduce(y, op).sin(), (x,)
        )


def test_gradcheck(ranks: Pool) -> None:
    ranks(2).run(_gradcheck)


def _without_gradient(rank: int, size: int) -> None:
    for op in ("max", "min", "prod"):
        x = (values(rank) + 1).requires_grad_()
        result = functional.all_reduce(x, op)
        assert result.requires_grad  # so that the mistake does not stay silent
        with pytest.raises(
            NotImplementedError, match=rf"op '{op}' has no gradient; sum and avg have"
        ):
            result.sum().backward()
        with torch.no_grad():
            assert not functional.all_reduce(x, op).requires_grad
    integers = functional.all_reduce(values(rank, dtype=torch.int32), "bor")
    assert not integers.requires_grad


def test_ops_without_a_gradient(ranks: Pool) -> None:
    ranks(2).run(_without_gradient)
