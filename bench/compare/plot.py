"""The picture of a contest: time over size, ringkern in colours, its peers in greys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringkern.tools import figures

from .comparison import is_own, limit_of
from .rows import LIMIT, RINGKERN, RINGKERN_SHARED, Row, Settings

OWN: dict[str, dict[str, Any]] = {
    RINGKERN: {"color": figures.BLUE, "marker": "o"},
    RINGKERN_SHARED: {"color": figures.RED, "marker": "^"},
}
# Peers differ in grey, line and mark.
GREYS = ("0.25", "0.45", "0.6")
LINES = ("-", "--", ":", "-.")
MARKS = ("s", "D", "v", "P", "X", "<", ">", "*")
LESS = "less than the bare\nmovement of the data"
TITLES = {"py": "from Python", "c": "from C"}


def draw(rows: list[Row], settings: Settings, origin: Sequence[str], file: Path) -> None:
    """Writes the picture; its kind follows from the name of the file.

    Args:
        origin: the machine, date and command, a line each.
    """
    figure, [panels] = figures.panels(1, len(settings.modes), (7.0, 5.6), sharey=True)
    by_mode = {mode: [(row.size, times(row, mode)) for row in rows] for mode in settings.modes}
    names = dict.fromkeys(
        name for rows_ in by_mode.values() for _, found in rows_ for name in found
    )
    peers = [name for name in names if name not in (*OWN, LIMIT)]
    styles = {name: _grey(number) for number, name in enumerate(peers)} | {
        name: {**style, "linewidth": 2.5, "zorder": 3} for name, style in OWN.items()
    }
    least = min(us for found in by_mode.values() for _, of in found for us in of.values())
    for panel, (mode, found) in zip(panels, by_mode.items()):
        for name in [*OWN, *peers]:
            if points := [(size, of[name]) for size, of in found if name in of]:
                panel.plot(*zip(*points), label=name, markersize=4, **styles[name])
        title = f"all-reduce, {settings.ranks} ranks, {settings.dtype}, {TITLES[mode]}"
        figures.over_sizes(panel, [size for size, _ in found], title)
        if points := [(size, of[LIMIT]) for size, of in found if LIMIT in of]:
            panel.fill_between(*zip(*points), least / 2, color=figures.LIGHT, label=LESS, zorder=0)
    panels[0].set_ylim(bottom=0.8 * least)
    panels[0].set_ylabel("time of a call, median")
    entries: dict[str, Any] = {}
    for panel in panels:
        entries |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels())}
    entries |= {label: entries.pop(label) for label in [LESS] if label in entries}  # the last
    figure.legend(entries.values(), entries, loc="outside right upper", fontsize="small")
    figures.save(figure, file, origin)


def _grey(number: int) -> dict[str, Any]:
    return {
        "color": GREYS[number % len(GREYS)],
        "linestyle": LINES[number % len(LINES)],
        "marker": MARKS[number % len(MARKS)],
        "linewidth": 1.0,
    }


def times(row: Row, mode: str) -> dict[str, float]:
    """Returns each library's time in its fastest configuration, ringkern's and the limit, in us."""
    found: dict[str, float] = {}
    for entrant, result in row.results.items():
        if entrant.mode == mode and not result.wrong:
            name = entrant.contender
            peer = name if is_own(name) else name.split(":")[0]
            found[peer] = min(found.get(peer, result.time_us), result.time_us)
    limit = limit_of(row)
    return {**found, LIMIT: limit[1].time_us} if limit else found
