"""Times of ranks on one GPU that ``make gpu`` measured, next to the predictions of :mod:`one_gpu`.

Each run is predicted from the limits of its own GPU, found by its part ``limits``, and from the
instruction counts of its own kernels, noted by its part ``speed``.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from ...choose.cost import Way
from ...units import size_text
from .one_gpu import DIRECT, MOST_RANKS, WAYS, Costs, Gpu, Terms, predict

# The contenders of the part `speed`. auto uses the tensors themselves at every size. two_shot does
# so up to 16 MiB, and is not compared a second time. No contender uses two_shot over LL.
CONTENDERS = {
    "ringkern/auto": DIRECT,
    "ringkern/one_shot": Way("one_shot", "ll"),
    **{f"ringkern/{way.protocol}": way for way in WAYS if way.algorithm == "ring"},
}


class Compared(NamedTuple):
    """A time that was measured in a graph, and its prediction."""

    ranks: int
    nbytes: int
    way: Way
    measured_us: float
    terms: Terms

    @property
    def ratio(self) -> float:
        """Returns predicted over measured time."""
        return self.terms.time_us / self.measured_us


def gpu_of(limits: dict[str, Any], machine: dict[str, Any]) -> Gpu:
    """Returns a GPU with the figures of the part ``limits``, and of the first GPU of a machine."""
    of = machine["gpus"][0]
    keys = ("launch_us", "hop_us", "hbm_gb_s", "l2_gb_s", "l2_bytes")
    return Gpu(
        name=of["name"],
        source="limits measured in the same run",
        multiprocessors=of["multiprocessors"],
        **{key: limits[key] for key in keys},
    )


def compare(gpu: Gpu, row: dict[str, Any], costs: Costs) -> Compared | None:
    """Predicts a row of the part ``speed``; ``None``: no prediction exists for its way."""
    way = CONTENDERS.get(row["contender"])
    if way is None or row["ranks"] > MOST_RANKS:
        return None
    terms = predict(gpu, way, row["ranks"], row["size_bytes"], costs)
    return Compared(row["ranks"], row["size_bytes"], way, row["hot_us"], terms)


def read(path: Path) -> tuple[Gpu, list[Compared]]:
    """Predicts the rows of a file of results: a ``summary.json`` of ``make gpu``, or several runs.

    It takes the last complete one of several runs.

    Raises:
        OSError: there is no such file.
        ValueError: it has no such results.
    """
    try:
        content = json.loads(path.read_text())
        for run in reversed(content.get("runs", [content])):
            for part in run.get("parts", []):
                figures = part.get("figures", {})
                if part["part"] == "speed" and figures.get("limits") and "costs" in figures:
                    gpu = gpu_of(figures["limits"], content["machine"])
                    every = [compare(gpu, row, figures["costs"]) for row in figures["rows"]]
                    if found := [each for each in every if each is not None]:
                        return gpu, found
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(_no_results(path, f": {type(error).__name__}: {error}")) from None
    raise ValueError(_no_results(path, ""))


def _no_results(path: Path, why: str) -> str:
    return (
        f"--check {path}: has no times of ranks on one GPU with the limits of the GPU and the "
        f"instruction counts of the kernels{why}; give the summary.json of a `make gpu` whose "
        "parts limits and speed have run, or bench/results/2026-11-26-h100.json"
    )


def error_of(ratio: float) -> float:
    """Returns the error of a prediction, as a factor of 1 or more."""
    return max(ratio, 1 / ratio)


def as_text(gpu: Gpu, rows: list[Compared]) -> str:
    """Returns the table, and the error of the predictions."""
    lines = [
        f"{gpu.name}, {gpu.source}",
        "",
        f"{'ranks':>5}{'size':>6}  {'way':<17}{'measured':>10}{'predicted':>11}{'ratio':>7}",
    ]
    for row in rows:
        lines.append(
            f"{row.ranks:>5}{size_text(row.nbytes):>6}  {row.way!s:<17}{row.measured_us:>10.2f}"
            f"{row.terms.time_us:>11.2f}{row.ratio:>7.2f}"
        )
    ratios = [row.ratio for row in rows]
    off = statistics.median(error_of(ratio) for ratio in ratios)
    return "\n".join(
        [
            *lines,
            "",
            "Microseconds, in CUDA graphs; ratio: predicted over measured.",
            f"{len(rows)} times: ratios from {min(ratios):.2f} to {max(ratios):.2f}, "
            f"half of the predictions within a factor of {off:.2f}.",
        ]
    )


def as_dict(gpu: Gpu, rows: list[Compared]) -> dict[str, Any]:
    """Returns the same for programs, with the terms of each prediction."""
    return {
        "gpu": gpu.name,
        "rows": [
            {
                "ranks": row.ranks,
                "nbytes": row.nbytes,
                "way": str(row.way),
                "measured_us": row.measured_us,
                "predicted_us": row.terms.time_us,
                "ratio": row.ratio,
                "terms_us": row.terms._asdict(),
            }
            for row in rows
        ],
    }
