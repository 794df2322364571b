"""Views that start at every element, of a different one on each rank; what lies around them stays.

A kernel reads and writes 16 bytes at a time where it can. Where a tensor starts in between, or ends
in between, it must neither miss an element nor touch its neighbour.
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import torch

from bench.gpu import cases
from bench.gpu.part import Context

COUNTS = (1, 3, 31, 1027, 20_011)
MARGIN = 64  # elements around a view, which must stay as they are
RANKS = 3


def run(context: Context) -> None:
    context.use_ringkern()
    from ringkern.local import Ring

    device = "cuda:0" if context.device == "cuda" else "cpu"
    tally = cases.Tally(context)
    with Ring([device] * RANKS, timeout=timedelta(seconds=20)) as ring:
        for dtype in ("float32", "bfloat16", "float64", "int8", "float8_e4m3fn"):
            starts = range(16 // cases.dtype_of(dtype).itemsize)
            counts = COUNTS[:3] if context.quick else COUNTS
            for count, start, way in itertools.product(counts, starts, cases.WAYS):
                if not tally.in_time(f"{dtype}[{count}]"):
                    break
                check(tally, ring, device, dtype, count, start, way)
        tally.settle()  # before the ring is closed: what went wrong in it is raised here
    tally.finish()


def check(
    tally: cases.Tally, ring: Any, device: str, dtype: str, count: int, start: int, way: str
) -> None:
    """``start``: rank 0's first element, counted from a multiple of 16 bytes."""
    given, expected = cases.all_reduce(device, "sum", dtype, ring.size, count)
    pack = 16 // given.element_size()
    # Rows of whole 16 bytes, so that the starts alone say how a view is aligned.
    length = -(-(count + pack + 2 * MARGIN) // pack) * pack
    whole = torch.empty(ring.size, length, dtype=given.dtype, device=device)
    cases.poison(whole)
    around = whole.clone()
    views = []
    for rank in range(ring.size):
        at = MARGIN + (start + 5 * rank) % pack
        views.append(whole[rank, at : at + count])
        views[-1].copy_(given[rank])
        around[rank, at : at + count] = expected
    ring.all_reduce(views, **cases.WAYS[way])
    tally.expect(whole, around, f"{way} {dtype}[{count}] from element {start}")
