"""Ranks of one process on one GPU: the time of each way of an all-reduce of float32, term by term.

    time = launch + instructions + waits + max(rest, bytes)

launch          An empty kernel of a CUDA graph: measured.
instructions,   Of a rank's consecutive steps, with one unit of data per worker: a tile per warp
waits           (Simple), a line per thread (LL), a unit per warp (LL128). An instruction takes
                ``INSTRUCTION_NS``. A step waits a hop for another rank, and a trip to memory if it
                uses a load before it can do anything else. Both are measured; a trip is assumed to
                take as long as LL's hop, which ends with one.
rest            Instructions and trips of all further units: in larger chunks, and further loops.
bytes           The tensors and the staged data, at the bandwidths of copies: measured. They
                overlap the rest: the blocks, one per multiprocessor, do not work in step.

Instructions are counted while the kernels' PTX runs (tests/ptx/costs_test.cpp, which makes
``costs.txt``). One constant is fitted, ``INSTRUCTION_NS``, and one assumed, ``KEPT_IN_L2``. Between
GPUs nothing was measured, and nothing is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

from ...choose.cost import OVERHEAD, Way
from . import cuts
from .cuts import divided

# An instruction of a warp. Fitted to two times of bench/results/2026-11-26-h100.json, the ring over
# LL, 8 KiB, with 4 and with 8 ranks, which differ by 8 steps and 8 hops.
INSTRUCTION_NS = 2.87
# The share of the L2 up to which the next call reads the tensors of all ranks from there. Assumed:
# in the same file, 8 x 1 MiB are read about as fast as the L2 allows, and 2 x 16 MiB as fast as
# device memory allows, so that it lies between 0.16 and 0.64 of 50 MiB.
KEPT_IN_L2 = 0.5

DIRECT = Way("two_shot", "simple")  # over the tensors themselves
WAYS = (
    DIRECT,
    Way("one_shot", "ll"),
    Way("two_shot", "ll"),
    *(Way("ring", protocol) for protocol in ("ll", "ll128", "simple")),
)
RANKS = (2, 4, 8)
MOST_RANKS = 8  # 16 of an H100's multiprocessors for each


@dataclass(frozen=True)
class Gpu:
    """A GPU, with the figures that a prediction needs.

    Attributes:
        name: such as H100.
        source: of the figures below.
        launch_us: of an empty kernel in a graph.
        hop_us: by protocol, until a block has seen data of another one; Simple's has a fence.
        hbm_gb_s, l2_gb_s: of a copy through device memory and within the L2, reads and writes.
        l2_bytes, multiprocessors: its size of L2 and number of multiprocessors.
    """

    name: str
    source: str
    launch_us: float
    hop_us: dict[str, float]
    hbm_gb_s: float
    l2_gb_s: float
    l2_bytes: int
    multiprocessors: int

    @property
    def trip_us(self) -> float:
        """Returns the time of a load that is waited for."""
        return self.hop_us["ll"]

    def floor_us(self, ranks: int, nbytes: float) -> float:
        """Returns the least time of any all-reduce: a launch, or each tensor read and written."""
        rate = self.l2_gb_s if ranks * nbytes <= self.l2_bytes else self.hbm_gb_s
        return max(self.launch_us, 2 * ranks * nbytes / rate / 1e3)


H100 = Gpu(
    "H100",
    "limits measured on an NVIDIA H100 80GB HBM3 on 2026-11-26",  # the second run of the file
    launch_us=0.963,
    hop_us={"simple": 1.039, "ll": 0.3754, "ll128": 0.3678},
    hbm_gb_s=2841.3,
    l2_gb_s=7226.9,
    l2_bytes=50 << 20,
    multiprocessors=132,
)
H200 = Gpu(
    "H200",
    "limits measured on an NVIDIA H200 on 2026-11-26",
    launch_us=0.588,
    hop_us={"simple": 1.0229, "ll": 0.383, "ll128": 0.3822},
    hbm_gb_s=3939.0,
    l2_gb_s=8599.0,
    l2_bytes=60 << 20,
    multiprocessors=132,
)
GPUS = {gpu.name: gpu for gpu in (H100, H200)}


@dataclass(frozen=True)
class Link:
    """The link of each GPU to host memory that ranks share.

    Attributes:
        name, source: see :class:`Gpu`.
        gb_s: that a kernel writes while another one reads as much.
        hop_us: see :class:`Gpu`; through host memory.
    """

    name: str
    source: str
    gb_s: float
    hop_us: dict[str, float]


GEN5 = Link(
    "PCIe 5.0 x16", "measured on an NVIDIA H200 on 2026-11-26", 37.84,
    {"simple": 3.1527, "ll": 1.9787},
)  # fmt: skip
GEN4 = Link("PCIe 4.0 x16", "half of PCIe 5.0, with the same hops: assumed", 18.92, GEN5.hop_us)


def over_host(gpu: Gpu, link: Link, ranks: int) -> Gpu:
    """Returns the GPU that would take as long as ranks with a GPU each, over host memory.

    This holds for ranks in separate processes, with the default of 32 channels, on the ring over LL
    or Simple. The tensors of all ranks are in as many device memories, and staged data goes over as
    many links, in both directions at the same time.
    """
    return Gpu(
        f"{gpu.name} over {link.name}",
        f"{gpu.source}; {link.source}",
        gpu.launch_us,
        link.hop_us,
        hbm_gb_s=ranks * gpu.hbm_gb_s,
        l2_gb_s=2 * ranks * link.gb_s,
        l2_bytes=0,
        multiprocessors=32 * ranks // cuts.BLOCKS_PER_MULTIPROCESSOR,
    )


class Terms(NamedTuple):
    """The terms of a predicted time, in microseconds: see the top of this module."""

    launch: float
    instructions: float
    waits: float
    rest: float
    bytes: float

    @property
    def time_us(self) -> float:
        """Returns the sum, in which rest and bytes overlap."""
        return self.launch + self.instructions + self.waits + max(self.rest, self.bytes)


Costs = dict[str, int]


def costs_of(text: str) -> Costs:
    """Reads a table such as costs.txt: a worker's instructions, by protocol and verb."""
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {f"{row[0]} {row[1]}": int(row[2]) for row in rows if row[2] != "worker"}


@cache
def shipped_costs() -> Costs:
    """Returns the counts of this version's kernels."""
    return costs_of((resources.files(__package__) / "costs.txt").read_text())


def predict(gpu: Gpu, way: Way, ranks: int, nbytes: int, costs: Costs | None = None) -> Terms:
    """Predicts an all-reduce.

    Args:
        gpu: the GPU that all ranks share.
        way: one of ``WAYS``.
        ranks: 2 to ``MOST_RANKS``.
        nbytes: of one rank's tensor.
        costs: in place of :func:`shipped_costs`.
    """
    counts = shipped_costs() if costs is None else costs
    if way == DIRECT:
        return _in_place(gpu, counts, ranks, nbytes)
    if way.algorithm == "ring":
        return _ring(gpu, counts, way.protocol, ranks, nbytes)
    return _over_lines(gpu, counts, way.algorithm, ranks, nbytes)


def _instructions_us(number: float) -> float:
    return number * INSTRUCTION_NS / 1e3


def _bytes_us(gpu: Gpu, ranks: int, nbytes: int, staged: float) -> float:
    """Returns the time of bytes: tensors once each way; `staged` bytes stay within the L2."""
    kept = ranks * nbytes <= KEPT_IN_L2 * gpu.l2_bytes
    tensors_us = 2 * ranks * nbytes / (gpu.l2_gb_s if kept else gpu.hbm_gb_s) / 1e3
    return tensors_us + staged / gpu.l2_gb_s / 1e3


# ---- Over the tensors themselves


def _in_place(gpu: Gpu, costs: Costs, ranks: int, nbytes: int) -> Terms:
    """Predicts threads that load 16 bytes of each tensor, combine them, and store the result."""
    return Terms(
        launch=gpu.launch_us,
        instructions=_instructions_us(_by_ranks(costs, "in_place all", ranks)),
        waits=gpu.trip_us,
        rest=0.0,
        bytes=_bytes_us(gpu, ranks, nbytes, staged=0.0),
    )


# ---- Round the ring

# Trips of a unit that comes from another rank. LL waits for the data itself, so that the hop is a
# first unit's trip. Simple loads the data after the hop of a counter, and LL128 once more after the
# hop of the flags, also in further units.
FIRST_TRIPS = {"ll": 0, "ll128": 1, "simple": 1}
FURTHER_TRIPS = {"ll": 1, "ll128": 2, "simple": 1}


def _ring(gpu: Gpu, costs: Costs, protocol: str, ranks: int, nbytes: int) -> Terms:
    plan = cuts.ring(protocol, ranks, nbytes, cuts.channels_of(gpu.multiprocessors, ranks))
    chunks = [plan.chunk_of(0, 0, owner)[2] for owner in range(ranks)]
    warps = cuts.warps_of(chunks[0] * cuts.ELEMENT_BYTES, protocol)
    fixed, unit = _step(costs, protocol)
    steps, hops = 2 * ranks - 1, 2 * (ranks - 1)  # one step sends data that no other rank has sent
    trips = 1 + hops * FURTHER_TRIPS[protocol]  # of further units, one in each step

    def loop_us(number: int) -> float:
        slices = plan.slices(plan.chunk_of(0, number, 0)[2])
        sizes = [count * cuts.ELEMENT_BYTES for _, count in slices]
        units = sum(divided(divided(size, cuts.WARP_SHARE[protocol]), warps) for size in sizes)
        work = steps * (len(slices) * fixed + units * unit)
        return _instructions_us(work) + units * trips * gpu.trip_us

    first_us = _instructions_us(steps * (fixed + unit)) + trips * gpu.trip_us
    # With a small tensor, some chunks are empty: they take a step and no data.
    full = sum(chunk > 0 for chunk in chunks) / ranks
    once = sum(costs.get(f"{protocol} {part}", 0) for part in ("begin", "all_meet", "end"))
    hop_us = gpu.hop_us[protocol] + full * FIRST_TRIPS[protocol] * gpu.trip_us
    staged = 4 * (ranks - 1) * nbytes * OVERHEAD[protocol]
    return Terms(
        launch=gpu.launch_us,
        instructions=_instructions_us(once + steps * (fixed + full * unit)),
        waits=(1 + full) * gpu.trip_us + hops * hop_us,  # for the counters; for the sent data
        rest=(plan.loops - 1) * loop_us(0) + loop_us(plan.loops - 1) - first_us,
        bytes=_bytes_us(gpu, ranks, nbytes, staged),
    )


# Units of a worker in a full slot. In small slots, as counted, it has one.
FULL_UNITS = {"simple": 2, "ll": 4, "ll128": 2}
VERBS = {"send", "recv_reduce_send", "recv_reduce_copy_send", "recv_copy_send", "recv"}


def _step(costs: Costs, protocol: str) -> tuple[float, float]:
    """Returns the mean instructions of a step of an all-reduce, and those of each unit in it."""

    def mean(name: str) -> float:
        steps = {key: key.removeprefix(f"{name} ").split("+") for key in costs}
        of_it = {key: len(verbs) for key, verbs in steps.items() if VERBS.issuperset(verbs)}
        return sum(costs[key] for key in of_it) / sum(of_it.values())

    full, small = mean(protocol), mean(f"{protocol}_small")
    unit = (full - small) / (FULL_UNITS[protocol] - 1)
    return small - unit, unit


# ---- From rank to rank, over lines of LL

AT_ONCE = 4  # ranks whose lines are loaded before the first is used


def _over_lines(gpu: Gpu, costs: Costs, algorithm: str, ranks: int, nbytes: int) -> Terms:
    cut = cuts.direct(algorithm, ranks, nbytes, cuts.channels_of(gpu.multiprocessors, ranks))
    workers = 32 * cuts.warps_of(cut.chunk * cuts.ELEMENT_BYTES, "ll")
    # Lines of a worker, with 8 bytes of data: of a chunk, and of the part that this rank reduces.
    lines, reduced = (divided(n * cuts.ELEMENT_BYTES, 8 * workers) for n in (cut.chunk, cut.part))
    batches = divided(ranks, AT_ONCE)

    def count(part: str) -> float:
        return _by_ranks(costs, f"{algorithm}_small {part}", ranks)

    def another_line(way: str) -> float:  # two were counted, and one
        two, one = (_by_ranks(costs, f"{name} round", ranks) for name in (way, f"{way}_small"))
        return two - one

    # A line is loaded to be staged; then the lines of all ranks are loaded, to be reduced; in
    # two_shot, so is the result of another rank. There, the second line was counted without one to
    # reduce.
    line = another_line(algorithm)
    if algorithm == "one_shot":
        trips, work = lines * (1 + batches), (lines - 1) * line
        staged = 4.0 * ranks * (ranks - 1) + ranks  # the tensor is read twice
    else:
        trips = 2 * lines + reduced * batches
        work = (lines - 1) * line + (reduced - 1) * another_line("one_shot")
        staged = 8.0 * (ranks - 1) + 1  # and this rank's part of it
    first_trips = 1 + batches + (algorithm == "two_shot")
    round_us = _instructions_us(count("round") + work) + trips * gpu.trip_us
    first_us = _instructions_us(count("round")) + first_trips * gpu.trip_us
    return Terms(
        launch=gpu.launch_us,
        instructions=_instructions_us(count("begin") + count("round") + count("end")),
        waits=(1 + first_trips) * gpu.trip_us,  # for the counters, too
        rest=cut.rounds * round_us - first_us,
        bytes=_bytes_us(gpu, ranks, nbytes, staged * nbytes),
    )


def _by_ranks(costs: Costs, name: str, ranks: int) -> float:
    """Returns a count for a number of ranks, on a line through the counts of 2 and 8."""
    few, many = (costs[f"{name}{k}"] for k in (2, 8))
    return few + (many - few) * (ranks - 2) / 6
