"""Views that start at every element, of a different one on each rank; what lies around them stays.

A kernel reads and writes 16 bytes at a time where it can. Where a tensor starts in between, or ends
in between, it must neither miss an element nor touch its neighbour.
"""

from __future__ import annotations

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
            starts = 16 // cases.dtype_of(dtype).itemsize
            for count in COUNTS[:3] if context.quick else COUNTS:
                for start in range(starts):
                    if not tally.in_time():
                        break
                    for protocol in cases.PROTOCOLS:
                        check(tally, ring, device, dtype, count, start, starts, protocol)
        tally.settle()  # before the ring is closed: what went wrong in it is raised here
    tally.finish()


def check(
    tally: cases.Tally,
    ring: Any,
    device: str,
    dtype: str,
    count: int,
    start: int,
    starts: int,
    protocol: str,
) -> None:
    given, expected = cases.all_reduce(device, "sum", dtype, ring.size, count)
    whole = torch.empty(ring.size, count + starts + 2 * MARGIN, dtype=given.dtype, device=device)
    # Rows of whole 16 bytes, so that `start` alone says how a view is aligned.
    length = whole.shape[1] // starts * starts
    whole = whole.flatten()[: ring.size * length].view(ring.size, length)
    cases.poison(whole)
    around = whole.clone()
    views = []
    for rank in range(ring.size):
        at = MARGIN // starts * starts + (start + 5 * rank) % starts
        views.append(whole[rank, at : at + count])
        views[-1].copy_(given[rank])
        around[rank, at : at + count] = expected
    ring.all_reduce(views, protocol=protocol)
    tally.expect(whole, around, f"{protocol} {dtype}[{count}] from element {start}")
