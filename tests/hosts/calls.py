"""Sequences of collectives over several hosts, run and checked by a rank.

The order in which the ranks' values are combined depends on hosts, pipeline stages and the engine
between the hosts. Results that do not depend on the order are compared bit by bit with a model;
sums and products are compared with the exact result. Every result is compared with that of the
other ranks and of the same call again.
"""

from __future__ import annotations

import hashlib

import torch

from tests import reference
from tests.hosts.groups import Groups
from tests.reference import bits_of
from tests.torch.rings import whole
from tests.torch.sequences import Call, check_gloo, raise_difference, run_twice, values_of

EXACT = ("min", "max", "band", "bor", "bxor")  # in whatever order


def run_sequence(rank: int, size: int, groups: Groups, calls: list[Call]) -> list[str]:
    """`run_twice` on several hosts."""
    return run_twice(rank, size, calls, _check, groups.ring, groups.gloo)


def _check(
    call: Call, rank: int, size: int, result: torch.Tensor, gloo: torch.Tensor | None
) -> None:
    inputs = [values_of(call, r, size) for r in range(size)]
    if call.collective == "all_gather":
        assert torch.equal(result, bits_of(reference.ring_all_gather(inputs))), f"not sent: {call}"
        assert gloo is not None
        assert torch.equal(result, bits_of(gloo)), f"not what Gloo gathers: {call}"
        return
    scatter = call.collective == "reduce_scatter"
    mine = slice(rank * call.length, (rank + 1) * call.length) if scatter else slice(None)
    inputs = [x[mine] for x in inputs]
    if gloo is not None:
        check_gloo(call, result, gloo[mine], inputs)
    if call.op in EXACT or not call.torch_dtype.is_floating_point:
        expected = reference.direct_all_reduce(inputs, call.op)
        if not torch.equal(_one_nan(call, result), bits_of(expected)):
            raise_difference(call, result, expected, inputs)
    else:
        _check_exact(call, result.view(call.torch_dtype), inputs)


def _one_nan(call: Call, result: torch.Tensor) -> torch.Tensor:
    """Replaces all NaNs by one: the engine chooses among them, but on one host it is always the
    same.
    """
    dtype = call.torch_dtype
    if not dtype.is_floating_point:
        return result
    nan = reference.direct_all_reduce([torch.full((1,), torch.nan).to(dtype)] * 2, "min")
    return torch.where(result.view(dtype).isnan(), bits_of(nan), result)


def _check_exact(call: Call, result: torch.Tensor, inputs: list[torch.Tensor]) -> None:
    """Close to the exact result wherever no order overflows; NaN wherever a rank has one."""
    x = torch.stack([_as_given(call, y) for y in inputs]).to(torch.float64)
    nan = x.isnan().any(0)
    assert result[nan].isnan().all(), f"a NaN is lost: {call}"
    product = call.op == "prod"
    exact = x.prod(0) if product else x.sum(0)
    most = x.abs().clamp(min=1).prod(0) if product else x.abs().sum(0)
    info = torch.finfo(call.torch_dtype)
    # A value that is rounded below the smallest normal number may be multiplied again.
    least = info.smallest_normal * info.eps * x.abs().clamp(min=1).prod(0)
    bound = 2 * len(inputs) * (info.eps * (exact.abs() if product else most) + least)
    if call.op == "avg":
        exact = exact / len(inputs)
    fits = most < info.max / 2  # false for NaN
    off = (result.to(torch.float64) - exact).abs() > bound
    assert not off[fits].any(), f"{int(off[fits].sum())} elements are not close: {call}"
    assert not result[fits].isnan().any(), f"NaN from nowhere: {call}"


def _as_given(call: Call, x: torch.Tensor) -> torch.Tensor:
    if call.op != "premul_sum":
        return x
    return reference.direct_all_reduce([x, torch.zeros_like(x)], "premul_sum", call.factor)


def integral(rank: int, n: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Returns a rank's values, which any rank can make: whole numbers, so small sums are exact."""
    return whole(dtype, (n,), rank, seed, most=3)


def total(size: int, n: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Returns the sum of all ranks' `integral`."""
    return torch.stack([integral(r, n, dtype, seed) for r in range(size)]).sum(0).to(dtype)


def digest(tensors: list[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(bits_of(tensor.detach().contiguous().reshape(-1)).numpy().tobytes())
    return found.hexdigest()
