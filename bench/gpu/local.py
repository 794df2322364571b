"""Ranks of one process on one device, k = 2..8: results, to the bit.

The values are such that every sum is exact: there is one right result in whatever order the ranks
combine. ``tests/cuda`` has a model of the order and of its rounding. Last, for each k, values are
random: all ranks must agree to the bit, and with float64 but for rounding; and with
``deterministic="world_invariant"`` they must have the bits of the tree's definition.
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import torch

from bench.gpu import arrays, cases
from bench.gpu.part import Context

COUNTS = (1, 1000, 40_009)
LARGE = (("float32", 1_500_001), ("bfloat16", 2_000_003))  # several loops, or rounds, of every way
TIMEOUT = timedelta(seconds=20)


def run(context: Context) -> None:
    context.use_ringkern()
    from ringkern.local import Ring

    tally = cases.Tally(context)
    device = "cuda:0" if context.device == "cuda" else "cpu"
    for k in (2, 3, 8) if context.quick else range(2, 9):
        if not tally.in_time(f"k={k}"):
            break
        with Ring([device] * k, timeout=TIMEOUT) as ring:
            check_all_reduce(tally, ring, device, COUNTS[:2] if context.quick else COUNTS)
            check_halves(tally, ring, device, COUNTS[1])
            check_large(tally, ring, device, () if context.quick else LARGE)
            check_random(tally, ring, device)
            arrays.check_ring(tally, ring, device)
            tally.settle()
        context.note(ranks=k)
    context.note(arrays=arrays.found(device)[1])
    tally.finish()


def rows(device: str, dtype: torch.dtype, ranks: int, count: int) -> list[torch.Tensor]:
    """A tensor a rank, each aligned as an allocation is, all filled with poison."""
    stride = -(-count // 64) * 64
    whole = torch.empty(ranks, stride, dtype=dtype, device=device)
    cases.poison(whole)
    return [whole[rank, :count] for rank in range(ranks)]


def check_all_reduce(tally: cases.Tally, ring: Any, device: str, counts: tuple[int, ...]) -> None:
    """Every way, dtype and op, in place."""
    for count in counts:
        for dtype, op in cases.every_dtype_and_op():
            if not tally.in_time(f"k={ring.size} all_reduce {op} {dtype}[{count}]"):
                return
            given, expected = cases.all_reduce(device, op, dtype, ring.size, count)
            for name, way in cases.LOCAL_WAYS.items():
                tensors = rows(device, given.dtype, ring.size, count)
                for tensor, row in zip(tensors, given):
                    tensor.copy_(row)
                ring.all_reduce(tensors, cases.reduce_op(op), **way)
                expect_all(tally, tensors, expected, f"all_reduce {name} {op}")


def check_halves(tally: cases.Tally, ring: Any, device: str, count: int) -> None:
    """Reduce-scatter and all-gather, out of place and in place."""
    k = ring.size

    def shards(wholes: list[torch.Tensor]) -> list[torch.Tensor]:
        return [whole.narrow(0, r * count, count) for r, whole in enumerate(wholes)]

    for dtype, protocol, in_place in itertools.product(
        cases.every_dtype(), cases.PROTOCOLS, (False, True)
    ):
        if not tally.in_time(f"k={ring.size} reduce_scatter and all_gather {protocol} {dtype}"):
            return
        how = f"{protocol}{' in place' if in_place else ''}"
        given, expected = cases.all_reduce(device, "sum", dtype, k, count * k)
        inputs = [row.clone() for row in given]
        outputs = shards(inputs) if in_place else rows(device, given.dtype, k, count)
        ring.reduce_scatter(outputs, inputs, protocol=protocol)
        for r, output in enumerate(outputs):
            what = f"reduce_scatter {how} {dtype}[{count}] rank {r} of k={k}"
            tally.expect(output, expected.narrow(0, r * count, count), what)
        given, expected = cases.all_gather(device, dtype, k, count)
        outputs = rows(device, given.dtype, k, count * k)
        inputs = shards(outputs) if in_place else [torch.empty_like(row) for row in given]
        for part, row in zip(inputs, given):
            part.copy_(row)
        ring.all_gather(outputs, inputs, protocol=protocol)
        expect_all(tally, outputs, expected, f"all_gather {how}")


def check_large(
    tally: cases.Tally, ring: Any, device: str, sizes: tuple[tuple[str, int], ...]
) -> None:
    for dtype, count in sizes:
        given, expected = cases.all_reduce(device, "sum", dtype, ring.size, count)
        for name, way in cases.LOCAL_WAYS.items():
            if not tally.in_time(f"k={ring.size} {name} {dtype}[{count}]"):
                return
            tensors = [row.clone() for row in given]
            ring.all_reduce(tensors, **way)
            expect_all(tally, tensors, expected, f"all_reduce {name} sum")


def check_random(tally: cases.Tally, ring: Any, device: str) -> None:
    generator = torch.Generator(device).manual_seed(ring.size)
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 5e-2), ("float16", 1e-2)):
        for name, way in cases.LOCAL_WAYS.items():
            shape = (ring.size, 30_011)
            values = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
            given = values.to(cases.dtype_of(dtype))
            tensors = [row.clone() for row in given]
            ring.all_reduce(tensors, **way)
            expect_all(tally, tensors[1:], tensors[0], f"agreement of ranks, {name}")
            wanted = given.double().sum(0)
            error = ((tensors[0].double() - wanted).norm() / wanted.norm()).item()
            if not error <= tolerance:  # NaN, too
                tally.wrong.append(f"{name} {dtype} k={ring.size}: relative error {error:.2g}")
            if "algorithm" not in way:
                continue  # the ring adds in an order of its own
            tensors = [row.clone() for row in given]
            ring.all_reduce(tensors, **way, deterministic="world_invariant", shards=ring.size)
            wanted = by_tree(given.float()).to(given.dtype)
            expect_all(tally, tensors, wanted, f"world_invariant {name}")


def by_tree(rows: torch.Tensor) -> torch.Tensor:
    """Returns the sum of the rows by the definition of ``csrc/core/tree.h``, from the top."""
    if len(rows) == 1:
        return rows[0]
    left = 1 << (len(rows) - 1).bit_length() - 1
    return by_tree(rows[:left]) + by_tree(rows[left:])


def expect_all(
    tally: cases.Tally, tensors: list[torch.Tensor], expected: torch.Tensor, what: str
) -> None:
    for rank, tensor in enumerate(tensors):
        told = f"{what} {tensor.dtype}[{tensor.numel()}] rank {rank} of k={len(tensors)}"
        tally.expect(tensor, expected, told)
