"""Times of NCCL that others published, next to predictions for the same machine.

If only a bandwidth was published, the time is the size over it. Figures read off a chart are
accurate to about 5 %; between hosts of one kind, the same row differs by 15 %.
"""

from __future__ import annotations

import statistics
from functools import cache
from typing import Any, NamedTuple

from ...choose import topology
from ...units import size_text
from .estimate import Estimate
from .predict import Node, estimates, node_of

K, M, G = 1 << 10, 1 << 20, 1 << 30


class Published(NamedTuple):
    """One time.

    Attributes:
        system: its name in the source.
        machine: a recorded machine that is like it.
        ranks: GPUs used.
        nbytes: of one rank's tensor.
        time_us: measured.
        source: the publication.
        ring: whether NCCL ran a ring; else the switches reduced (NVLS), which no ring can follow.
        arch: set if the GPUs are of another generation than the recorded machine's.
    """

    system: str
    machine: str
    ranks: int
    nbytes: int
    time_us: float
    source: str
    ring: bool = True
    arch: str | None = None


def _times(
    system: str, machine: str, ranks: int, source: str, times: dict[int, float]
) -> list[Published]:
    return [Published(system, machine, ranks, size, us, source) for size, us in times.items()]


def _bus(
    system: str,
    machine: str,
    gb_s: float,
    source: str,
    ring: bool = True,
    size: int = G,
    ranks: int = 8,
) -> Published:
    """Returns the row for a published bus bandwidth."""
    time_us = size * 2 * (ranks - 1) / ranks / (gb_s * 1e3)
    return Published(system, machine, ranks, size, time_us, source, ring)


PUBLISHED: tuple[Published, ...] = (
    *_times(
        "8 x H200, graphs", "dgx-h100", 8, "sgl-project/sglang PR#22734",
        {2 * K: 16.84, 4 * K: 16.99, 8 * K: 17.23, 16 * K: 17.75, 32 * K: 19.63, 64 * K: 19.92,
         128 * K: 20.13, 256 * K: 20.31, 512 * K: 20.86, M: 27.00},
    ),
    *_times(
        "8 x H100, chart", "dgx-h100", 8, "microsoft/mscclpp docs/dsl/results.md",
        {K: 15.0, 8 * K: 15.6, 64 * K: 17.8, 256 * K: 18.5, 512 * K: 19.0, M: 24.0},
    ),
    *_times(
        "8 x H100, eager", "dgx-h100", 8, "kvcache-ai/Mooncake PR#3484",
        {32 * K: 18.66, 256 * K: 19.54, M: 27.8, 8 * M: 81.2, 32 * M: 195.0},
    ),
    *_times(
        "8 x H100", "dgx-h100", 8, "vllm-project/vllm PR#42324",
        {512 * K: 24.0, 8 * M: 76.0, 32 * M: 195.0},
    ),
    *_times(
        "8 x H100", "dgx-h100", 8, "ByteDance-Seed/Triton-distributed#57",
        {128: 19.2, 64 * K: 23.0, M: 32.0, 16 * M: 136.0},
    ),
    *_times("4 x H100", "dgx-h100", 4, "vllm-project/vllm PR#24532", {512 * K: 21.0}),
    *_times("6 x H100", "dgx-h100", 6, "vllm-project/vllm PR#24111", {512 * K: 23.0, 4 * M: 53.0}),
    _bus("8 x H100, ring asked", "dgx-h100", 350.0, "NVIDIA/nccl#986"),
    _bus("8 x H100, NVLS", "dgx-h100", 476.0, "NVIDIA/nccl-tests#290", ring=False),
    _bus("8 x H100, NVLS", "dgx-h100", 419.0, "vllm-project/vllm PR#42324", False, 128 * M),
    _bus("8 x A100", "dgx-a100", 240.0, "docs.alayanew.com, 230 to 250"),
    *(
        Published(f"{k} x A100, one channel", "dgx-a100", k, 8, us, "NVIDIA/nccl-tests#123")
        for k, us in ((2, 10.0), (4, 16.9), (8, 33.7))
    ),
    *_times(
        "4 x GB200, graphs", "gb300-tray", 4, "NVIDIA/nccl contrib/custom_algos/allreduce",
        {8 * K: 8.60, 64 * K: 11.25, 256 * K: 14.2, M: 17.6},
    ),
    _bus("4 x A6000, NVLink pairs", "nvlink-pairs4", 22.9, "nano-nccl performance.md",
         size=64 * M, ranks=4),
    Published("4 x V100, PCIe", "pcie4-1socket", 4, 8 * K, 20.3, "sglang-V100 PR#2", True, "Volta"),
)  # fmt: skip


@cache
def _node(machine: str, ranks: int, arch: str | None) -> Node:
    return node_of(topology.recorded(machine), ranks, arch)


def predicted(row: Published) -> Estimate:
    """Returns the fastest ring that is predicted for a published row."""
    return estimates(_node(row.machine, row.ranks, row.arch), None, row.nbytes)[0]


def error_of(row: Published) -> float:
    """Returns predicted over measured time of a ``row``, less 1: above 0, NCCL was faster."""
    return predicted(row).time_us / row.time_us - 1


def median_error(rows: tuple[Published, ...] = PUBLISHED) -> float:
    """Returns the median of the sizes of errors, of those rows in which NCCL ran a ring."""
    return statistics.median(abs(error_of(row)) for row in rows if row.ring)


def as_rows() -> list[dict[str, Any]]:
    """Returns published times, predictions, and their errors."""
    return [
        {
            **row._asdict(),
            "predicted_us": predicted(row).time_us,
            "protocol": predicted(row).protocol,
            "error": error_of(row),
        }
        for row in PUBLISHED
    ]


def as_text() -> str:
    """Returns the table of published times."""
    lines = [
        f"{'system':<24}{'size':>6}{'measured':>10}{'predicted':>10}  {'protocol':<9}{'error':>7}"
        "  source"
    ]
    for row in as_rows():
        error = f"{row['error']:+.0%}" + (" " if row["ring"] else "n")
        lines.append(
            f"{row['system']:<24}{size_text(row['nbytes']):>6}{row['time_us']:>10.1f}"
            f"{row['predicted_us']:>10.1f}  {row['protocol']:<9}{error:>7}  {row['source']}"
        )
    count = sum(row.ring for row in PUBLISHED)
    lines += [
        "",
        "Microseconds of NCCL's all-reduce; error: predicted over measured, less 1.",
        "n: the switches reduced (NVLS): a ring cannot follow, and the row is not counted.",
        f"Median error of the other {count}: {median_error():.0%}.",
    ]
    return "\n".join(lines)
