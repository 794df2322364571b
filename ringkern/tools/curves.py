"""Pictures of the costs of ways: time over size, with measurements as dots and costs as lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..choose.cost import Way
from ..choose.explain.explanation import Explanation
from ..choose.tuning import COLLECTIVES, Measured, ways_of
from . import figures

COLORS = {"ring": figures.BLUE, "one_shot": figures.RED, "two_shot": figures.GREEN}
STYLES = {"simple": "-", "ll": "--", "ll128": ":"}
SMALLEST, LARGEST, PER_DOUBLING = 8, 256 << 20, 8


def sizes() -> list[int]:
    """Returns sizes in bytes that are evenly spaced on a logarithmic axis."""
    count = PER_DOUBLING * (LARGEST // SMALLEST).bit_length()
    ratio = (LARGEST / SMALLEST) ** (1 / count)
    return [round(SMALLEST * ratio**i) for i in range(count + 1)]


def draw_fit(measured: Sequence[Measured], machine: str, file: Path) -> None:
    """Draws a panel for each way, with the other ways of that collective in grey.

    Args:
        measured: one for each number of ranks.
        machine: the machine of the measurements.
        file: its format follows from the name.
    """
    # All-reduces in one row, and their halves, which have fewer ways, in the next.
    device = measured[0].device
    halves = [(half, way) for half in COLLECTIVES[1:] for way in ways_of(half, device)]
    both = [[(COLLECTIVES[0], way) for way in ways_of(COLLECTIVES[0], device)], halves]
    rows = [(one, row) for one in measured for row in both]
    figure, panels = figures.panels(len(rows), max(map(len, both)), (2.9, 2.6), sharey="row")
    for (one, row), line in zip(rows, panels):
        for (collective, way), panel in zip(row, line):
            for other in ways_of(collective, device):
                if other != way:
                    _curve(panel, other, _cost(one, collective, other), color=figures.LIGHT)
            color = COLORS[way.algorithm]
            points = one.ways[collective, way].points
            panel.plot(*zip(*points), ".", color=color, zorder=3)
            _curve(panel, way, _cost(one, collective, way), color=color, zorder=2)
            title = f"{collective}\n{way}, {one.ranks} ranks"
            figures.over_sizes(panel, (SMALLEST, LARGEST), title)
            every = panel.get_xticks()[::3]
            panel.set_xticks(every, [figures.say_bytes(int(at)) for at in every], fontsize="small")
    about = [f"{machine}, {measured[0].date}; dots: measured, line: fitted; grey: the other ways"]
    figures.save(figure, file, [*about, *dict.fromkeys(one.command for one in measured)])


def _cost(one: Measured, collective: str, way: Way) -> Callable[[int], float]:
    cost = one.ways[collective, way].cost
    return lambda size: cost.time_us(way, collective, one.ranks, size)


def draw_explanation(found: Explanation, file: Path) -> None:
    """Draws the times of all ways over sizes, and the sizes at which the choice changes.

    Args:
        found: the answer to draw.
        file: its format follows from the name, such as ``ways.svg`` or ``ways.png``.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    figure, [[panel]] = figures.panels(1, 1, (7.2, 5.2))
    for way, time_us in found.times.items():
        _curve(panel, way, time_us, color=COLORS[way.algorithm])
    for size, chosen in found.crossovers:
        if SMALLEST < size < LARGEST:
            panel.axvline(size, color=figures.GREY, linewidth=0.8)
            text = f" {chosen} from {size} B on"
            panel.text(size, 0.98, text, rotation=90, va="top", ha="right", fontsize="x-small",
                       transform=panel.get_xaxis_transform())  # fmt: skip
    title = f"{found.collective}, {found.ranks} ranks on a {found.device}"
    figures.over_sizes(panel, (SMALLEST, LARGEST), title)
    panel.legend(fontsize="small")
    figures.save(figure, file, [f"predicted; times: {found.source}"])


def _curve(panel: Any, way: Way, time_us: Callable[[int], float], **style: Any) -> None:
    at = sizes()
    times = [time_us(size) for size in at]
    panel.plot(at, times, label=str(way), linestyle=STYLES[way.protocol], **style)
