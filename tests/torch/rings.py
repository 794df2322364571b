"""ringkern process groups of the ranks of tests/ranks.py, and input values of ranks."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

import ringkern  # noqa: F401  (registers the backend, where no entry point has)
from ringkern.config import config
from tests import reference

_kept: dict[float, dist.ProcessGroup] = {}


def ring(timeout_s: float = 60.0) -> dist.ProcessGroup:
    """Returns the group of all ranks of a pool, kept from test to test. All ranks must call it."""
    if timeout_s not in _kept:
        _kept[timeout_s] = dist.new_group(backend="ringkern", timeout=timedelta(seconds=timeout_s))
    return _kept[timeout_s]


# Before 2.13, Work.exception() of any backend raises TypeError: "Unregistered type".
CONVERTS_EXCEPTIONS = torch.__version__ >= "2.13"
# Gloo of torch 2.11 has all_to_all_single, and no all_to_all.
GLOO_HAS_ALL_TO_ALL = torch.__version__ >= "2.12"


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor's bytes in logical order, to compare values of any dtype bit by bit."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bytes_of(a), bytes_of(b))


def any_bits(dtype: torch.dtype, shape: tuple[int, ...], rank: int, seed: int = 0) -> torch.Tensor:
    """Returns a rank's values, reproducible on any rank: all bits are random, with NaNs and
    infinities.
    """
    n = torch.Size(shape).numel()
    random = torch.Generator().manual_seed(seed * 1024 + rank)
    most = 2 if dtype == torch.bool else 256
    raw = torch.randint(0, most, (n * dtype.itemsize,), dtype=torch.uint8, generator=random)
    return raw.view(dtype).view(shape)


def normal(dtype: torch.dtype, shape: tuple[int, ...], rank: int, seed: int = 0) -> torch.Tensor:
    """Returns values like `any_bits`, but plain numbers."""
    random = torch.Generator().manual_seed(seed * 1024 + rank)
    values = 3 * torch.randn(shape, dtype=torch.float64, generator=random)
    if not dtype.is_floating_point and not dtype.is_complex:
        values = (10 * values).abs() if dtype == torch.uint8 else 10 * values
    return values.to(dtype)


def whole(
    dtype: torch.dtype, shape: tuple[int, ...], rank: int, seed: int = 0, most: int = 2
) -> torch.Tensor:
    """Returns whole numbers up to ``most``; with 2, no sum or product of four ranks is rounded."""
    random = torch.Generator().manual_seed(seed * 1024 + rank)
    least = 0 if dtype in (torch.bool, torch.uint8) else -most
    return torch.randint(least, most + 1, shape, generator=random).to(dtype)


def in_models_order(size: int) -> bool:
    """Returns whether the group adds in the order of `reduced`: several hosts change the order of 3
    ranks.
    """
    return size <= 2 or not config.host


def reduced(
    inputs: list[torch.Tensor], op: str, root: int | None = None, factor: float = 1.0
) -> torch.Tensor:
    """Returns the exact bits of an all-reduce, or of a reduce to `root`."""
    first = inputs[0]
    if first.is_complex():
        parts = [torch.view_as_real(x) for x in inputs]
        return torch.view_as_complex(reduced(parts, op, root, factor))
    if first.dtype == torch.bool:
        op = {"sum": "bor", "max": "bor", "prod": "band", "min": "band"}.get(op, op)
        parts = [x.view(torch.uint8) for x in inputs]
        return reduced(parts, op, root, factor).view(torch.bool)
    flat = [x.contiguous().view(-1) for x in inputs]
    if root is None:
        return reference.all_reduce(flat, op, "auto", factor).view(first.shape)
    # One chain that ends at the root, like the root's part of a reduce-scatter.
    whole = [x.repeat(len(inputs)) for x in flat]
    return reference.ring_reduce_scatter(whole, op, "simple", root, factor).view(first.shape)
