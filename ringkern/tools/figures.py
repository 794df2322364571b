"""Pictures of times over sizes: axes in readable units of bytes and seconds, and their origin."""

from __future__ import annotations

import importlib
import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# A palette for people with colour-blindness (Okabe and Ito), strongest first.
BLUE, GREEN, RED = "#0072B2", "#009E73", "#D55E00"
GREY, LIGHT = "0.45", "0.85"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"), (1e-3, "ns"))


def panels(rows: int, columns: int, size: tuple[float, float], **shared: Any) -> tuple[Any, Any]:
    """Returns a figure and its panels, by row and column, each of ``size`` inches."""
    figure_of = importlib.import_module("matplotlib.figure").Figure
    figure = figure_of(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def over_sizes(panel: Any, sizes: Iterable[int], title: str, *, times: bool = True) -> None:
    """Gives a panel its axes: sizes in KiB and MiB, and times in µs and ms; logarithmic.

    Args:
        sizes: bytes, from the smallest to the largest drawn.
        times: the other axis has microseconds.
    """
    scale = importlib.import_module("matplotlib.ticker")
    found = sorted(sizes)
    first, last = math.log2(max(1, found[0])), math.log2(max(1, found[-1]))
    step = max(1, math.ceil((last - first) / 8))
    ticks = [2**power for power in range(math.floor(first), math.ceil(last) + 1, step)]
    panel.set(xscale="log", yscale="log", title=title)
    panel.set_xticks(ticks, [say_bytes(tick) for tick in ticks], fontsize="small")
    panel.set_xticks([], minor=True)
    if times:
        panel.yaxis.set_major_formatter(scale.FuncFormatter(lambda us, _: say_us(us)))
    panel.grid(True, alpha=0.3)


def say_bytes(size: int) -> str:
    """Formats a power of two in the unit that makes it shortest: ``"4 KiB"``."""
    unit = min(len(_UNITS) - 1, int(math.log2(max(1, size))) // 10)
    return f"{size / (1 << 10 * unit):.3g} {_UNITS[unit]}"


def say_us(time_us: float) -> str:
    """Formats microseconds in the unit that makes them shortest: ``"10 ms"``."""
    for scale, unit in _TIMES:
        if time_us >= 0.999 * scale:
            return f"{time_us / scale:.3g} {unit}"
    return f"{time_us:.3g} µs"


def save(figure: Any, file: Path, origin: Sequence[str]) -> None:
    """Writes the picture, with its origin below it; the format follows from the name.

    Args:
        origin: the machine, date and command, one line each.
    """
    width = int(figure.get_figwidth() * 14)
    lines = [part for line in origin for part in textwrap.wrap(line, width)]
    figure.supxlabel("\n".join(lines), fontsize="x-small", color=GREY, x=0.01, ha="left")
    figure.savefig(file, dpi=150)
