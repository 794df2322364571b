"""A trace as a picture: a row for each rank and channel, with its verbs as bars, and its waits."""

from __future__ import annotations

import importlib
import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .events import Event, Trace
from .summary import UNITS, Waits, check_drawable, circumstances, say_ns, summarize, title, waits

# Blue for travelling sums, purple for the completion of one, orange for travelling copies. They
# also differ in lightness, for people who do not see colours. (face, text on it)
COLORS = {
    "send": ("#9ecae1", "black"),
    "recv_reduce_send": ("#2a7ab9", "white"),
    "recv_reduce_copy_send": ("#54278f", "white"),
    "recv_reduce_copy": ("#54278f", "white"),
    "copy_send": ("#fdae6b", "black"),
    "recv_copy_send": ("#f28e2b", "black"),
    "recv": ("#fdd0a2", "black"),
}
# (face, lines, pattern, in words)
WAITS = {
    "prev": ("#f4f4f4", "#8c8c8c", "////", "waits for data from prev, the rank in it"),
    "late": ("#f4f4f4", "#8c8c8c", "----", "late: its data is there"),
    "next": ("#f4f4f4", "#8c8c8c", "....", "waits for a free slot at next, the rank in it"),
}
FONT = "DejaVu Sans"  # part of matplotlib
BARS_A_ROW = 60  # maximum number that can be told apart
ROWS = 64
ROW_INCHES, LEAST_INCHES = 0.46, 1.6
AXES_INCHES = 9.2
EM_INCHES = 0.085  # width of a letter of a bar's text


@dataclass(frozen=True)
class Window:
    """The drawn part of a trace: loops ``first`` to ``last``, and the first ``channels``."""

    first: int
    last: int
    channels: int

    @classmethod
    def of(cls, trace: Trace, loops: tuple[int, int] | None = None) -> Window:
        """Returns the requested loops, first and last, or as many as can be told apart.

        Raises:
            ValueError: there are no such loops; or no verbs at all, as with one rank.
        """
        check_drawable(trace)
        if loops is None:
            a_loop = len(trace.of(0)) // trace.loops
            loops = 0, min(trace.loops, max(1, BARS_A_ROW // a_loop)) - 1
        first, last = loops
        if not 0 <= first <= last < trace.loops:
            raise ValueError(
                f"loops {first}:{last}: the trace has loops 0 to {trace.loops - 1}; give the first "
                "and the last of them, as 0:3"
            )
        return cls(first, last, max(1, min(trace.channels, ROWS // trace.ranks)))

    def text(self, trace: Trace) -> str:
        """Returns the omitted part, in words; empty: nothing is omitted."""
        words = []
        if self.last - self.first + 1 < trace.loops:
            several = self.last > self.first
            which = f"loops {self.first} to {self.last}" if several else f"loop {self.first}"
            words.append(f"{which} of 0 to {trace.loops - 1}")
        if self.channels < trace.channels:
            words.append(f"channels 0 to {self.channels - 1} of 0 to {trace.channels - 1}")
        return ", ".join(words)


def check() -> None:
    """Checks for matplotlib, before anything else is done.

    Raises:
        ValueError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "--formats svg and png need matplotlib, which is not installed: pip install "
            "matplotlib; or leave them out: --formats chrome,html"
        )


def draw(trace: Trace, file: Path, loops: tuple[int, int] | None = None) -> None:
    """Draws the verbs of each rank, and the ranks for which it waited.

    Args:
        trace: with 2 ranks or more.
        file: ``.svg`` or ``.png``, which determines the format.
        loops: the first and the last to draw; ``None``: the first ones, as many as are readable.

    Raises:
        ValueError: there is no matplotlib, no such loop, or nothing to draw.
    """
    check()
    picture = _Picture(trace, Window.of(trace, loops))
    matplotlib = importlib.import_module("matplotlib")
    settings = {
        "svg.fonttype": "none",  # can be searched and read aloud
        "svg.hashsalt": "ringkern",  # the same trace gives the same file
        "font.family": FONT,
        "hatch.linewidth": 0.7,
    }
    with matplotlib.rc_context(settings):
        figure = picture.draw()
        about = {"Title": title(trace)}
        if file.suffix != ".svg":
            figure.savefig(file, dpi=150, metadata=about)
            return
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={**about, "Date": trace.date})
    # If that font is missing, another one of the same width, without serifs.
    file.write_text(text.getvalue().replace(f"'{FONT}'", f"'{FONT}', Verdana, sans-serif"))


class _Picture:
    """One figure, while it is drawn."""

    def __init__(self, trace: Trace, window: Window) -> None:
        self.trace, self.window = trace, window
        # Neighbours on the ring have neighbouring rows: a rank waits for a row beside its own.
        self.rows = [
            (channel, rank) for channel in range(window.channels) for rank in trace.orders[channel]
        ]
        self.events = [
            event
            for event in trace.events
            if window.first <= event.loop <= window.last and event.channel < window.channels
        ]
        self.begin = min(event.start_ns for event in self.events)
        self.end = max(event.end_ns for event in self.events)
        span = max(1, self.end - self.begin)
        self.unit = next((u for u in ("s", "ms", "us") if span >= 2 * UNITS[u]), "ns")
        self.inch_a_ns = AXES_INCHES / span

    def draw(self) -> Any:
        figure_of = importlib.import_module("matplotlib.figure").Figure
        rows = max(LEAST_INCHES, ROW_INCHES * len(self.rows))
        height = rows + 2.2
        figure = figure_of(figsize=(13.2, height))
        axes = figure.add_axes((1.25 / 13.2, 0.95 / height, AXES_INCHES / 13.2, rows / height))
        for number, (channel, rank) in enumerate(self.rows):
            if rank == self.trace.orders[channel][0] and number:
                axes.axhline(number - 0.5, color="#888888", linewidth=0.8)
        for event in self.events:
            self._event(axes, event)
        self._axes(axes)
        self._texts(figure, axes, height)
        return figure

    def _event(self, axes: Any, event: Event) -> None:
        """Draws a verb's wait before its work; the recording has only the sums."""
        row = self.rows.index((event.channel, event.rank))
        name = f"r{event.rank}-c{event.channel}-l{event.loop}-s{event.step}"
        at = event.start_ns
        for side, wait_ns in waits(self.trace, event)._asdict().items():
            if not wait_ns:
                continue
            face, lines, hatch, _ = WAITS[side]
            whom = self._whom(event, side)
            bar_name = f"wait-{name}-{side}" + f"-for-{whom}" * bool(whom)
            bar = self._bar(axes, row, at, wait_ns, bar_name)
            bar.set(facecolor=face, edgecolor=lines, hatch=hatch, linewidth=0.6)
            time = say_ns(wait_ns)
            labels: tuple[str, ...]
            labels = (f"{time} for {whom}", f"for {whom}", whom) if whom else (time,)
            room = wait_ns * self.inch_a_ns
            self._label(axes, row, at + wait_ns / 2, room, "#222222", labels, face)
            at += wait_ns
        face, ink = COLORS[event.verb]
        bar = self._bar(axes, row, at, event.end_ns - at, f"verb-{name}-{event.verb}")
        room = (event.end_ns - at) * self.inch_a_ns
        # A short bar must not disappear behind its own edge, or below those of waits.
        bar.set(facecolor=face, edgecolor="white", linewidth=0.6 if room > 0.05 else 0, zorder=2)
        labels = (f"chunk {event.owner}", f"{event.owner}")
        self._label(axes, row, (at + event.end_ns) / 2, room, ink, labels, "none")

    def _whom(self, event: Event, side: str) -> str:
        """Returns the name of the rank that it waits for; empty: none."""
        if side == "late":
            return ""
        neighbour = self.trace.prev if side == "prev" else self.trace.next
        return str(neighbour(event.rank, event.channel))

    def _bar(self, axes: Any, row: int, start_ns: int, length_ns: int, name: str) -> Any:
        rectangle = importlib.import_module("matplotlib.patches").Rectangle
        bar = axes.add_patch(
            rectangle((self._time(start_ns), row - 0.36), length_ns / UNITS[self.unit], 0.72)
        )
        bar.set_gid(name)
        return bar

    def _label(
        self, axes: Any, row: int, at_ns: float, room_inches: float, color: str,
        texts: tuple[str, ...], ground: str,
    ) -> None:  # fmt: skip
        """Draws the longest of the texts that fits, if any does."""
        for text in texts:
            if len(text) * EM_INCHES < room_inches - 0.04:
                box = {"facecolor": ground, "edgecolor": "none", "pad": 1.0}
                axes.text(
                    self._time(at_ns), row, text, ha="center", va="center_baseline",
                    fontsize=8, color=color, bbox=box if ground != "none" else None,
                )  # fmt: skip
                return

    def _time(self, time_ns: float) -> float:
        return time_ns / UNITS[self.unit]

    def _axes(self, axes: Any) -> None:
        many = self.trace.channels > 1
        names = [f"rank {rank}" + f", ch. {channel}" * many for channel, rank in self.rows]
        axes.set(
            xlim=(self._time(self.begin), self._time(self.end)),
            ylim=(len(self.rows) - 0.5, -0.5),
            yticks=range(len(names)),
            yticklabels=names,
            xlabel=f"time ({self.unit})",
        )
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)

    def _texts(self, figure: Any, axes: Any, height: float) -> None:
        found = summarize(self.trace)
        part = self.window.text(self.trace)
        head = f"{title(self.trace)}: {say_ns(found.call_ns)}"
        figure.text(0.012, 1 - 0.3 / height, head, fontsize=13, weight="bold", va="center")
        lines = circumstances(self.trace) + (f"; drawn: {part}" if part else "")
        figure.text(0.012, 1 - 0.58 / height, lines, fontsize=8.5, color="#444444", va="center")
        figure.text(0.012, 1 - 0.8 / height, found.reason(), fontsize=8.5, va="center")
        right = (1.25 + AXES_INCHES + 0.12) / 13.2
        top = (0.95 + max(LEAST_INCHES, ROW_INCHES * len(self.rows))) / height
        figure.text(right, top + 0.1 / height, "whole call", fontsize=8.5, weight="bold")
        for number, (channel, rank) in enumerate(self.rows):
            if channel == 0:
                one = found.ranks[rank]
                text = one.text().replace(": ", ":\n", 1)
                axes.annotate(
                    text, (1, number), (8, 0), ("axes fraction", "data"), "offset points",
                    fontsize=8.5, va="center", annotation_clip=False,
                )  # fmt: skip
        self._legend(figure, height)

    def _legend(self, figure: Any, height: float) -> None:
        patch = importlib.import_module("matplotlib.patches").Patch
        verbs = {event.verb for event in self.events}
        handles = [
            patch(facecolor=face, edgecolor="white", label=verb)
            for verb, (face, _) in COLORS.items()
            if verb in verbs
        ]
        found = Waits(*map(any, zip(*(waits(self.trace, event) for event in self.events))))
        handles += [
            patch(facecolor=face, edgecolor=lines, hatch=hatch, label=text)
            for side, (face, lines, hatch, text) in WAITS.items()
            if getattr(found, side)
        ]
        figure.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0.005, 0.04 / height),
            ncols=len(handles), frameon=False, fontsize=8.5, handlelength=1.6, columnspacing=1.4,
        )  # fmt: skip
