"""The picture of a contest: time over size, a line for each peer."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from .comparison import is_own, limit_of
from .rows import LIMIT, RINGKERN, RINGKERN_SHARED, Row, Settings

STYLES: dict[str, dict[str, Any]] = {
    RINGKERN: {"color": "black", "linewidth": 2.5, "marker": "o"},
    RINGKERN_SHARED: {"color": "dimgray", "linewidth": 2.5, "marker": "^"},
    LIMIT: {"color": "black", "linestyle": "--"},
}


def draw(rows: list[Row], settings: Settings, file: Path) -> None:
    """Writes the picture; its kind follows from the name of the file."""
    figure_of = importlib.import_module("matplotlib.figure").Figure
    figure = figure_of(figsize=(6.4 * len(settings.modes), 5.2), layout="constrained")
    panels = figure.subplots(1, len(settings.modes), sharey=True, squeeze=False)[0]
    names = dict.fromkeys(
        name for row in rows for mode in settings.modes for name in times(row, mode)
    )
    colors = {name: f"C{number % 10}" for number, name in enumerate(names)}
    for panel, mode in zip(panels, settings.modes):
        for name in names:
            points = [
                (row.size, times(row, mode)[name]) for row in rows if name in times(row, mode)
            ]
            if points:
                style = {"color": colors[name], **STYLES.get(name, {})}
                panel.plot(*zip(*points), label=name, **style)
        title = f"all-reduce, {settings.ranks} ranks, {settings.dtype}, mode {mode}"
        panel.set(xscale="log", yscale="log", xlabel="bytes", title=title)
        panel.grid(True, alpha=0.3)
        panel.legend(fontsize="small")
    panels[0].set_ylabel("microseconds, median")
    figure.savefig(file, dpi=150)


def times(row: Row, mode: str) -> dict[str, float]:
    """Of each peer the time of its fastest configuration, in us; and ringkern, and the limit."""
    found: dict[str, float] = {}
    for entrant, result in row.results.items():
        if entrant.mode == mode and not result.wrong:
            name = entrant.contender
            peer = name if is_own(name) else name.split(":")[0]
            found[peer] = min(found.get(peer, result.time_us), result.time_us)
    limit = limit_of(row)
    return {**found, LIMIT: limit[1].time_us} if limit else found
