"""Probes of torch.distributed._functional_collectives, and of their gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.torch.support.data import FACTOR, OPS, Call, digits, same
from tests.torch.support.registry import expect, row

SECTION = "Functional collectives"
PREFIX = "_functional_collectives."


def _row(names: str, feature: str = "", **more: object) -> Callable[..., Callable[..., object]]:
    full = " ".join(PREFIX + name for name in names.split())
    return row(SECTION, full, feature, **more)  # type: ignore[arg-type]


def _world() -> dist.ProcessGroup:
    return dist.distributed_c10d._get_default_group()


def _mine(rank: int, shift: int = 0) -> torch.Tensor:
    return digits(rank, shift=shift).float()


def _all(size: int, shift: int = 0) -> list[torch.Tensor]:
    return [_mine(s, shift) for s in range(size)]


def _sum(size: int, shift: int = 0) -> torch.Tensor:
    return torch.stack(_all(size, shift)).sum(0)


@_row("all_reduce wait_tensor AsyncCollectiveTensor")
def all_reduce(rank: int, size: int) -> None:
    x = _mine(rank)
    out = functional.all_reduce(x, "sum", _world())
    expect(isinstance(out, functional.AsyncCollectiveTensor), f"a {type(out).__name__}")
    same(functional.wait_tensor(out), _sum(size))
    same(functional.all_reduce(x, "sum", _world()) + 0, _sum(size), "without wait_tensor")
    same(x, _mine(rank), "the input")


@_row("all_reduce", "ops", cases={op: (op,) for op in OPS if op != "PREMUL_SUM"})
def all_reduce_op(rank: int, size: int, op: str) -> None:
    call = Call(rank, size, op=op, dtype="int32" if op[0] == "B" else "float32")
    out = functional.all_reduce(call.piece(rank), op.lower(), _world())
    same(functional.wait_tensor(out), call.reduced([call.piece(s) for s in range(size)]))


@_row("all_reduce_inplace")
def all_reduce_inplace(rank: int, size: int) -> None:
    x = _mine(rank)
    functional.all_reduce_inplace(x, "sum")
    same(x, _sum(size))


@_row("all_reduce_coalesced")
def all_reduce_coalesced(rank: int, size: int) -> None:
    out = functional.all_reduce_coalesced([_mine(rank), _mine(rank, 1)], "sum", _world())
    for shift, x in enumerate(out):
        same(functional.wait_tensor(x), _sum(size, shift))


@_row("broadcast")
def broadcast(rank: int, size: int) -> None:
    same(functional.wait_tensor(functional.broadcast(_mine(rank), 1, _world())), _mine(1))


@_row("all_gather_single all_gather_tensor")
def all_gather(rank: int, size: int) -> None:
    for function in (functional.all_gather_single, functional.all_gather_tensor):
        same(functional.wait_tensor(function(_mine(rank), 0, _world())), torch.cat(_all(size)))


@_row("all_gather_single all_gather_tensor", "along dimension 1")
def all_gather_columns(rank: int, size: int) -> None:
    out = functional.all_gather_single(_mine(rank).view(9, 3), 1, _world())
    same(functional.wait_tensor(out), torch.cat([x.view(9, 3) for x in _all(size)], 1))


@_row("all_gather_single_coalesced all_gather_into_tensor_coalesced")
def all_gather_coalesced(rank: int, size: int) -> None:
    both = (functional.all_gather_single_coalesced, functional.all_gather_into_tensor_coalesced)
    for function in both:
        for shift, x in enumerate(function([_mine(rank), _mine(rank, 1)], _world())):
            same(functional.wait_tensor(x), torch.cat(_all(size, shift)))


@_row("all_gather_inplace all_gather_tensor_inplace")
def all_gather_inplace(rank: int, size: int) -> None:
    out = torch.zeros(27 * size)
    functional.all_gather_tensor_inplace(out, _mine(rank))
    same(out, torch.cat(_all(size)))
    parts = [torch.zeros(27) for _ in range(size)]
    functional.all_gather_inplace(parts, _mine(rank))
    for got, expected in zip(parts, _all(size)):
        same(got, expected)


@_row("reduce_scatter_single reduce_scatter_tensor")
def reduce_scatter(rank: int, size: int) -> None:
    for function in (functional.reduce_scatter_single, functional.reduce_scatter_tensor):
        out = functional.wait_tensor(function(_mine(rank), "sum", 0, _world()))
        same(out, _sum(size).view(size, -1)[rank])


@_row("reduce_scatter_single reduce_scatter_tensor", "op `avg`")
def reduce_scatter_avg(rank: int, size: int) -> None:
    """Reduces by ``avg``, which FSDP requests."""
    out = functional.wait_tensor(functional.reduce_scatter_single(_mine(rank), "avg", 0, _world()))
    same(out, _sum(size).view(size, -1)[rank] / size)


@_row("reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced")
def reduce_scatter_coalesced(rank: int, size: int) -> None:
    both = (functional.reduce_scatter_single_coalesced, functional.reduce_scatter_tensor_coalesced)
    for function in both:
        out = function([_mine(rank), _mine(rank, 1)], "sum", [0, 0], _world())
        for shift, x in enumerate(out):
            same(functional.wait_tensor(x), _sum(size, shift).view(size, -1)[rank])


@_row("reduce_scatter_tensor_inplace")
def reduce_scatter_inplace(rank: int, size: int) -> None:
    out = torch.zeros(27 // size)
    functional.reduce_scatter_tensor_inplace(out, _mine(rank))
    same(out, _sum(size).view(size, -1)[rank])


def _exchanged(rank: int, size: int) -> torch.Tensor:
    return torch.cat([x.view(size, -1)[rank] for x in _all(size)])


@_row("all_to_all_single")
def all_to_all(rank: int, size: int) -> None:
    out = functional.all_to_all_single(_mine(rank), None, None, _world())
    same(functional.wait_tensor(out), _exchanged(rank, size))


@_row("all_to_all_single", "uneven splits")
def all_to_all_uneven(rank: int, size: int) -> None:
    splits = [5, 9, 13]
    out = functional.all_to_all_single(_mine(rank), [splits[rank]] * size, splits, _world())
    same(functional.wait_tensor(out), torch.cat([x.split(splits)[rank] for x in _all(size)]))


@_row("all_to_all_inplace")
def all_to_all_inplace(rank: int, size: int) -> None:
    out = torch.zeros(27)
    functional.all_to_all_inplace(out, _mine(rank))
    same(out, _exchanged(rank, size))


@_row("permute_tensor")
def permute(rank: int, size: int) -> None:
    out = functional.permute_tensor(_mine(rank), [(s + 1) % size for s in range(size)], _world())
    same(functional.wait_tensor(out), _mine((rank - 1) % size))


@_row("isend_inplace irecv_inplace")
def messages(rank: int, size: int) -> None:
    sent = functional.isend_inplace(_mine(rank), (rank + 1) % size)
    got = functional.irecv_inplace(torch.zeros(27), (rank - 1) % size)
    same(functional.wait_tensor(got), _mine((rank - 1) % size))
    functional.wait_tensor(sent)


@_row("batch_p2p_ops_inplace")
def batch(rank: int, size: int) -> None:
    tensors = [_mine(rank), torch.zeros(27)]
    peers = [(rank + 1) % size, (rank - 1) % size]
    out = functional.batch_p2p_ops_inplace(["isend", "irecv"], peers, [0, 0], tensors, _world())
    for x in out:
        functional.wait_tensor(x)
    same(functional.wait_tensor(out[1]), _mine((rank - 1) % size))


# ---- Gradients -----------------------------------------------------------------------------------


def _gradient(rank: int, call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    x = _mine(rank).requires_grad_()
    out = call(x)
    (out * FACTOR).sum().backward()
    expect(x.grad is not None, "no gradient")
    return x.grad  # type: ignore[return-value]


@_row("all_gather_single_autograd all_gather_tensor_autograd")
def all_gather_gradient(rank: int, size: int) -> None:
    for function in (functional.all_gather_single_autograd, functional.all_gather_tensor_autograd):
        got = _gradient(rank, lambda x, call=function: call(x, 0, _world()))
        same(got, torch.full((27,), FACTOR * size))


@_row("reduce_scatter_single_autograd reduce_scatter_tensor_autograd")
def reduce_scatter_gradient(rank: int, size: int) -> None:
    for name in ("reduce_scatter_single_autograd", "reduce_scatter_tensor_autograd"):
        function = getattr(functional, name)
        got = _gradient(rank, lambda x, call=function: call(x, "sum", 0, _world()))
        same(got, torch.full((27,), FACTOR))


@_row("all_to_all_single_autograd")
def all_to_all_gradient(rank: int, size: int) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return functional.all_to_all_single_autograd(x, [9] * size, [9] * size, _world())

    same(_gradient(rank, call), torch.full((27,), FACTOR))
