"""Measures every way on the current GPU, for ``tune``: the ranks of one process, all on that GPU.

The method is that of ``bench/gpu/timing.py``: a graph of several calls on the same tensors is
replayed between two events, and the ways take turns. The tensors hold tiny random numbers and are
refilled before each turn, because each sum over k ranks makes them k times larger.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import torch

from ... import _C
from ...choose.tuning import COLLECTIVES
from ...local import Ring
from .trials import LEAST_SIZES, MOST_PASSES, Cell, Progress, Trials, WorthIt, block

DIRECT_MOST = 16 << 20  # maximum bytes for measuring the ways without the ring
LEAST_TURNS = 3
SCALE = 2.0**-100
MOST_BITS = 150  # by which numbers may grow, from SCALE up, in one graph
HEAD_START = 200_000  # cycles, some 100 us: meanwhile a graph is enqueued
_FLOAT = 4  # bytes
_LIMIT = timedelta(seconds=20)  # of a call

Turn = Callable[[], float]  # microseconds of one call


class Gpu(NamedTuple):
    """A GPU: its model, and bytes of its L2 and of its free memory."""

    name: str
    l2_bytes: int
    free_bytes: int


def current() -> Gpu:
    """Returns the current GPU.

    Raises:
        ValueError: there is none, or nothing can be measured on it.
    """
    if not _C.build_info()["cuda"]:
        raise ValueError("--device cuda: ringkern was built without CUDA kernels")
    if not torch.cuda.is_available():
        raise ValueError(f"--device cuda: torch {torch.__version__} finds no GPU here")
    about = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(about.name, about.L2_cache_size, torch.cuda.mem_get_info()[0])


def measure(ranks: int, sizes: tuple[int, ...], end: float) -> Trials:
    """Measures with this many ranks, until about ``end``, in the time of time.monotonic()."""
    progress = Progress(sys.stderr, end - time.monotonic())
    with Ring([torch.cuda.current_device()] * ranks, timeout=_LIMIT) as ring:
        calls = Calls(ring, max(sizes))
        found = contest(calls.turn_of, sizes, end, progress)
        found.base_us = dict.fromkeys(COLLECTIVES, calls.launch_us())
    return found


def contest(
    turn_of: Callable[[Cell], Turn], sizes: tuple[int, ...], end: float, progress: Progress
) -> Trials:
    """Gives each way its turns at each size. A size gets its share of the remaining time."""
    found, worth_it = Trials(), WorthIt("cuda")
    for number, size in enumerate(sizes):
        start = time.monotonic()
        if number >= LEAST_SIZES and start > end:
            progress.say(f"no time for sizes from {size} bytes on; raise --seconds")
            break
        until = start + (end - start) / (len(sizes) - number)
        cells = [
            cell
            for cell in worth_it.cells(size)
            if cell.way.algorithm == "ring" or size <= DIRECT_MOST
        ]
        turns = [(cell, turn_of(cell)) for cell in cells]
        for done in range(MOST_PASSES):
            if done >= LEAST_TURNS and time.monotonic() > until:
                break
            progress.show(f"{size} bytes")
            for cell, turn in turns:
                found.turns.setdefault(cell, []).append(block(turn()))
            turns.reverse()  # no way is always the first
        worth_it.saw(
            {cell: statistics.median(b.median_us for b in found.turns[cell]) for cell in cells}
        )
    progress.end(f"{len(found.turns)} ways and sizes")
    return found


class Calls:
    """Calls of every collective, by any way, on the same tensors, captured and timed."""

    def __init__(self, ring: Ring, most: int) -> None:
        self._ring = ring
        count, device = max(most // _FLOAT, ring.size), ring.devices[0]
        self._sources = [torch.randn(count, device=device).mul_(SCALE) for _ in range(ring.size)]
        self._tensors = [source.clone() for source in self._sources]
        woken = time.monotonic() + 0.5  # an idle GPU has lowered its clocks
        while time.monotonic() < woken:
            self._sources[0].sum().item()

    def turn_of(self, cell: Cell) -> Turn:
        """Captures calls of a cell; returns the function that times them."""
        ranks = self._ring.size
        call, count = self._call(cell)

        def refill() -> None:
            for tensor, source in zip(self._tensors, self._sources):
                tensor[:count].copy_(source[:count])

        wanted = 20 if cell.size <= 256 << 10 else 5 if cell.size <= 16 << 20 else 2
        return _turn(call, min(wanted, MOST_BITS // (ranks - 1).bit_length()), refill)

    def launch_us(self) -> float:
        """Times a kernel that does almost nothing."""
        one = torch.ones(1, device=self._ring.devices[0])
        turn = _turn(one.neg_, 20, lambda: None)
        return statistics.median(turn() for _ in range(MOST_PASSES))

    def _call(self, cell: Cell) -> tuple[Callable[[], object], int]:
        """Returns a call, and the number of elements of a rank that it processes."""
        ring, ranks, (algorithm, protocol, _) = self._ring, self._ring.size, cell.way
        if cell.collective == "all_reduce":
            count = max(1, cell.size // _FLOAT)
            whole = [tensor[:count] for tensor in self._tensors]
            return lambda: ring.all_reduce(whole, protocol=protocol, algorithm=algorithm), count
        part = max(1, cell.size // _FLOAT // ranks)
        part = part // 4 * 4 or part  # whole vectors of 16 bytes, as most tensors have
        whole = [tensor[: part * ranks] for tensor in self._tensors]
        parts = [tensor[r * part : (r + 1) * part] for r, tensor in enumerate(whole)]
        halves = {
            "reduce_scatter": lambda: ring.reduce_scatter(parts, whole, protocol=protocol),
            "all_gather": lambda: ring.all_gather(whole, parts, protocol=protocol),
        }
        return halves[cell.collective], part * ranks


def _turn(call: Callable[[], object], calls: int, refill: Callable[[], None]) -> Turn:
    refill()
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    graph.replay()  # uploads it
    torch.cuda.synchronize()

    def turn() -> float:
        refill()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Otherwise, the time after `begin` would include the host's launch of the graph.
        torch.cuda._sleep(HEAD_START)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / calls

    return turn
