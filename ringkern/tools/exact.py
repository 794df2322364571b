"""Tensors whose collective has one exact result, in whatever order ranks combine them.

The values are integers so small that every partial result is exact in the dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

PERIOD = 251  # of the values: prime, so that a chunk at the wrong place is noticed
PREMUL_FACTOR = 2.0  # of the op premul_sum

_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "premul_sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def all_reduce(
    op: str, dtype: torch.dtype, rank: int, ranks: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a rank's tensor of ``count`` elements, and the result of an all-reduce."""
    rows = _rows(op, dtype, ranks)
    result = functools.reduce(_COMBINE[op], rows)
    if op == "avg":  # a narrower dtype is rounded once, from a division in float32
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        result = result.to(wide) / ranks
    elif op == "premul_sum":
        result = result * PREMUL_FACTOR
    return _tile(rows[rank].to(dtype), count), _tile(result.to(dtype), count)


def all_gather(
    dtype: torch.dtype, rank: int, ranks: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a rank's whole tensor, with only its own ``count`` elements set, and the result."""
    parts = [_tile(row.to(dtype), count) for row in _rows("max", dtype, ranks)]
    given = torch.zeros(count * ranks, dtype=dtype)
    given.narrow(0, rank * count, count).copy_(parts[rank])
    return given, torch.cat(parts)


def differences(actual: torch.Tensor, expected: torch.Tensor) -> int:
    """Returns the number of elements of ``actual`` that differ from the expected result."""
    if actual.dtype.is_floating_point and actual.dtype.itemsize == 1:
        # torch does not compare float8. Here equal values have equal bits, since none is -0 or NaN.
        actual, expected = actual.view(torch.uint8), expected.view(torch.uint8)
    return int((actual != expected).sum())


def _rows(op: str, dtype: torch.dtype, ranks: int) -> list[torch.Tensor]:
    """Returns a period of each rank's values, int64; for booleans 0 and 1."""
    shuffled = torch.randperm(PERIOD, generator=torch.Generator().manual_seed(0))
    rows = [shuffled + rank for rank in range(ranks)]  # neighbours differ, whatever the modulus
    if dtype == torch.bool:
        return [row % 2 for row in rows]
    if op == "prod":  # ones and twos; no more than six factors of two
        return [1 + row % 2 if rank < 6 else row * 0 + 1 for rank, row in enumerate(rows)]
    if _COMBINE[op] is not torch.add:
        return [row % 8 for row in rows]
    limit = int(_exact_up_to(dtype) / PREMUL_FACTOR)
    peak = min(7, max(1, limit // ranks))
    return [row % (peak + 1) if rank < limit else row * 0 for rank, row in enumerate(rows)]


def _exact_up_to(dtype: torch.dtype) -> int:
    """Returns the largest integer up to which ``dtype`` has all integers."""
    return int(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max


def _tile(values: torch.Tensor, count: int) -> torch.Tensor:
    return values.repeat(-(-count // len(values)))[:count]
