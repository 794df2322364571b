"""Pictures of what ways cost: time over size, what was measured as dots, costs as lines."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..cost import Way
from ..tuner.tuning import COLLECTIVES, Measured, ways_of

COLORS = {"ring": "C0", "one_shot": "C1", "two_shot": "C2"}
STYLES = {"simple": "-", "ll": "--", "ll128": ":"}
SMALLEST, LARGEST, PER_DOUBLING = 8, 256 << 20, 8


def check(file: Path) -> None:
    """Says what is missing before anything has been done for nothing.

    Raises:
        ValueError: there is no matplotlib, or no such directory.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot: matplotlib is not installed: pip install matplotlib")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"--plot {file}: there is no such directory")


def sizes() -> list[int]:
    """Bytes, evenly over a logarithmic axis."""
    count = PER_DOUBLING * (LARGEST // SMALLEST).bit_length()
    ratio = (LARGEST / SMALLEST) ** (1 / count)
    return [round(SMALLEST * ratio**i) for i in range(count + 1)]


def draw_fit(measured: Sequence[Measured], file: Path) -> None:
    """A panel for each collective and number of ranks; the kind follows from the file's name."""
    figure, panels = _panels(len(measured), len(COLLECTIVES))
    for one, row in zip(measured, panels):
        for collective, panel in zip(COLLECTIVES, row):
            for way in ways_of(collective):
                fitted = one.ways[collective, way]
                panel.plot(*zip(*fitted.points), ".", color=COLORS[way.algorithm])
                time_us = functools.partial(fitted.cost.time_us, way, collective, one.ranks)
                _curve(panel, way, time_us)
            finish(panel, f"{collective}, {one.ranks} ranks on a {one.device}")
    figure.savefig(file, dpi=150)


def draw_ways(
    times: dict[Way, Callable[[int], float]],
    crossovers: Sequence[tuple[int, str]],
    title: str,
    file: Path,
) -> None:
    """One panel: a line for each way, and where the choice changes.

    Args:
        times: microseconds of each way, by the size in bytes.
        crossovers: (bytes, what is chosen from there on).
    """
    figure, panels = _panels(1, 1)
    panel = panels[0][0]
    for way, time_us in times.items():
        _curve(panel, way, time_us)
    for size, chosen in crossovers:
        if SMALLEST < size < LARGEST:
            panel.axvline(size, color="gray", linewidth=0.8)
            text = f" {chosen} from {size} B on"
            panel.text(size, 1.0, text, rotation=90, va="top", ha="right", fontsize="x-small",
                       transform=panel.get_xaxis_transform())  # fmt: skip
    finish(panel, title)
    figure.savefig(file, dpi=150)


def _panels(rows: int, columns: int) -> tuple[Any, Any]:
    figure_of = importlib.import_module("matplotlib.figure").Figure
    figure = figure_of(figsize=(6.4 * columns, 4.8 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _curve(panel: Any, way: Way, time_us: Callable[[int], float]) -> None:
    at = sizes()
    style = {"color": COLORS[way.algorithm], "linestyle": STYLES[way.protocol]}
    panel.plot(at, [time_us(size) for size in at], label=str(way), **style)


def finish(panel: Any, title: str) -> None:
    """Axes, grid and names of a panel of times over sizes."""
    panel.set(xscale="log", yscale="log", xlabel="bytes", ylabel="microseconds", title=title)
    panel.grid(True, alpha=0.3)
    panel.legend(fontsize="small")
