"""Reference results of the ring and of the direct all-reduces in plain torch; the CPU engine must
match them bit by bit.

An all-reduce is cut into chunks, each owned by a rank. A chunk's partial result starts as the input
of the rank after its owner and goes round the ring. Each rank combines the incoming partial result
with its own input; the owner is last. ``ringkern._C.Plan`` gives the elements of each chunk, but
not the place of a result: shard r belongs to rank r. A direct all-reduce combines the inputs of
every element in the order of the ranks. The arithmetic is torch's, with these rules:

- float16, bfloat16 and the float8 types are computed in float32 and rounded at every hop. A result
  that is too large is infinity, or the largest number in float8_e4m3fn, which has no infinity.
- ``avg`` divides the finished sum by the number of ranks and rounds once more; ``premul_sum``
  multiplies each input, and rounds it, before it enters the ring.
- ``min`` and ``max`` propagate NaN and order -0 below +0.
- Integers wrap. The sum of booleans is their logical or, the product their logical and.
- Every NaN result of arithmetic is one NaN: positive, all bits of the mantissa set. A value that
  is only moved (all-gather, one rank) keeps its bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from ringkern import _C, build_info
from ringkern._C import Plan
from ringkern.choose import tables

PROTOCOLS = _C.protocols
# The all-reduces on a CPU that do not go round the ring: algorithm and protocol.
DIRECT = tuple(way for way in _C.ways_on("cpu") if way[0] != "ring")
# Every way that a caller can request; other collectives use only the protocol.
WAYS = (
    *(("auto", protocol) for protocol in ("auto", *PROTOCOLS)),
    *(("ring", protocol) for protocol in ("auto", *PROTOCOLS)),
    *(("one_shot", "auto"), ("two_shot", "auto"), *DIRECT),
)
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in build_info()["dtypes"]}
FLOATS = tuple(dtype for dtype in DTYPES.values() if dtype.is_floating_point)
SMALL_FLOATS = tuple(dtype for dtype in FLOATS if dtype.itemsize < 4)
INTEGERS = tuple(
    dtype for dtype in DTYPES.values() if not dtype.is_floating_point and dtype != torch.bool
)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_NAN = {
    torch.float64: 0x7FFFFFFFFFFFFFFF,
    torch.float32: 0x7FFFFFFF,
    torch.float16: 0x7FFF,
    torch.bfloat16: 0x7FFF,
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e5m2: 0x7F,
}


class Chunk(NamedTuple):
    """Elements that one rank finishes, as a range of the tensor or of its own shard."""

    owner: int
    at: int
    count: int


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as integers, to compare NaNs and signs of zero."""
    return tensor.view(BITS[tensor.element_size()])


def chunks_of(
    collective: str, protocol: str, ranks: int, count: int, element_bytes: int, **cut: int
) -> Iterator[Chunk]:
    """Returns the chunks of an all-reduce or a reduce-scatter; ``count`` as for a Plan.

    ``cut``: further arguments of Plan; without it, those of the CPU engine.
    """
    plan = Plan(collective, protocol, ranks, count, element_bytes, **cut)
    for channel, loop, owner in itertools.product(*map(range, (plan.channels, plan.loops, ranks))):
        _, at, n = plan.chunk_of(channel, loop, owner)
        yield Chunk(owner, at, n)


class Way(NamedTuple):
    algorithm: str
    protocol: str


def way_of(
    collective: str, ranks: int, nbytes: int, algorithm: str = "auto", protocol: str = "auto"
) -> Way:
    """Returns the algorithm and protocol of a call on a CPU; ``nbytes`` is the size of the tensor,
    or of one rank's part of it.
    """
    if protocol != "auto":
        return Way("ring" if algorithm == "auto" else algorithm, protocol)
    asked = "automatic" if algorithm == "auto" else algorithm
    rows = tables.table("cpu", ranks)[asked if collective == "all_reduce" else "others"]
    return next(Way(*way) for below, *way in rows if nbytes < below)


def all_reduce(
    inputs: list[torch.Tensor],
    op: str,
    protocol: str = "auto",
    factor: float = 1.0,
    algorithm: str = "auto",
) -> torch.Tensor:
    """Returns the result of every rank; ``inputs`` has each rank's tensor, contiguous and flat."""
    way = way_of("all_reduce", len(inputs), inputs[0].nbytes, algorithm, protocol)
    if way.algorithm == "ring":
        return ring_all_reduce(inputs, op, way.protocol, factor)
    return direct_all_reduce(inputs, op, factor)


def direct_all_reduce(inputs: list[torch.Tensor], op: str, factor: float = 1.0) -> torch.Tensor:
    """Returns the result of every rank, by one_shot and by two_shot."""
    return _reduce_chunk(inputs, len(inputs) - 1, op, factor)


def ring_all_reduce(
    inputs: list[torch.Tensor], op: str, protocol: str, factor: float = 1.0, **cut: int
) -> torch.Tensor:
    """Returns the result of every rank, round the ring; ``cut`` as for `chunks_of`."""
    result = torch.empty_like(inputs[0])
    count, size = inputs[0].numel(), inputs[0].element_size()
    for chunk in chunks_of("all_reduce", protocol, len(inputs), count, size, **cut):
        parts = [x[chunk.at : chunk.at + chunk.count] for x in inputs]
        part = _reduce_chunk(parts, chunk.owner, op, factor)
        result[chunk.at : chunk.at + chunk.count] = part
    return result


def ring_reduce_scatter(
    inputs: list[torch.Tensor], op: str, protocol: str, rank: int, factor: float = 1.0
) -> torch.Tensor:
    """Returns the result of one rank."""
    if protocol == "auto":
        protocol = way_of("reduce_scatter", len(inputs), inputs[0].nbytes // len(inputs)).protocol
    count, size = inputs[0].numel() // len(inputs), inputs[0].element_size()
    result = torch.empty_like(inputs[0][:count])
    for chunk in chunks_of("reduce_scatter", protocol, len(inputs), count, size):
        if chunk.owner == rank:
            first = rank * count + chunk.at
            parts = [x[first : first + chunk.count] for x in inputs]
            part = _reduce_chunk(parts, chunk.owner, op, factor)
            result[chunk.at : chunk.at + chunk.count] = part
    return result


def ring_all_gather(inputs: list[torch.Tensor]) -> torch.Tensor:
    """Returns the result of every rank. Nothing is computed: order and protocol do not matter."""
    return torch.cat([bits_of(x) for x in inputs]).view(inputs[0].dtype)


def _reduce_chunk(parts: list[torch.Tensor], owner: int, op: str, factor: float) -> torch.Tensor:
    ranks = len(parts)
    if op == "premul_sum":
        parts = [_scale(x, torch.mul, factor) for x in parts]
    if ranks == 1:
        return parts[0]
    partial = parts[(owner + 1) % ranks]
    for hop in range(2, ranks + 1):
        partial = _combine(partial, parts[(owner + hop) % ranks], op)
    return _scale(partial, torch.div, ranks) if op == "avg" else partial


def _combine(incoming: torch.Tensor, mine: torch.Tensor, op: str) -> torch.Tensor:
    if not incoming.is_floating_point():
        return _INTEGER_OPS[op](incoming, mine)
    dtype, x, y = incoming.dtype, _wide(incoming), _wide(mine)
    if op in ("sum", "avg", "premul_sum"):
        return _round(x + y, dtype)
    if op == "prod":
        return _round(x * y, dtype)
    return _round(_extreme(x, y, op), dtype)


def _extreme(x: torch.Tensor, y: torch.Tensor, op: str) -> torch.Tensor:
    lesser, greater = torch.minimum(x, y), torch.maximum(x, y)
    # Torch may return either of two zeros.
    signs = (torch.signbit(x), torch.signbit(y))
    negative = signs[0] | signs[1] if op == "min" else signs[0] & signs[1]
    zero = torch.where(negative, -0.0, 0.0).to(x.dtype)
    return torch.where((x == 0) & (y == 0), zero, lesser if op == "min" else greater)


def _scale(
    x: torch.Tensor, by: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], factor: float
) -> torch.Tensor:
    wide = _wide(x)
    # A tensor, not a Python number: torch may compute with a number in a wider type, or invert it.
    return _round(by(wide, torch.full_like(wide, factor)), x.dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32) if x.dtype in SMALL_FLOATS else x


def _round(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float8_e4m3fn:
        greatest = torch.finfo(dtype).max
        x = x.clamp(-greatest, greatest)
    result, nan = x.to(dtype, copy=True), torch.isnan(x)
    bits_of(result)[nan] = _NAN[dtype]
    return result


_INTEGER_OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
