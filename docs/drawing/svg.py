"""Writes SVG without a library, so that its bytes are the same on every machine.

Colours follow the reader's light or dark mode. Coordinates are whole numbers of pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

# Fill of each class in light and dark mode. One tint for each rank; r0 is also position 0.
FILLS = {
    "back": ("#ffffff", "#15181d"),
    "plain": ("#f1f3f5", "#262b33"),
    "empty": ("#ffffff", "#1b1f26"),
    "r0": ("#bcd7f5", "#1d4f86"),
    "r1": ("#ffd59e", "#8a5410"),
    "r2": ("#c3e6bd", "#2b6a2a"),
    "r3": ("#e7c6ea", "#6c3a72"),
    "flag": ("#f6b4ae", "#8d2f28"),
    "word": ("#1f2430", "#e8eaee"),
    "soft": ("#616b7a", "#a3adbb"),
    "head": ("#1f2430", "#e8eaee"),  # of an arrow
}
# Stroke of each class in light and dark mode, and its width.
STROKES = {
    "edge": ("#8a94a3", "#7c8796", 1),
    "rule": ("#c9ced6", "#3a414c", 1),
    "arrow": ("#1f2430", "#e8eaee", 2),
    "faint": ("#8a94a3", "#7c8796", 2),
}
RANKS = 4  # as many as tints


def _style() -> str:
    def fills(mode: int) -> str:
        return "".join(f".{name}{{fill:{pair[mode]}}}" for name, pair in FILLS.items())

    def strokes(mode: int) -> str:
        return "".join(f".{name}{{stroke:{pair[mode]}}}" for name, pair in STROKES.items())

    widths = "".join(f".{name}{{stroke-width:{at[2]}}}" for name, at in STROKES.items())
    return (
        "text{font:14px system-ui,sans-serif}.mono{font-family:ui-monospace,monospace}"
        ".small{font-size:12px}.bold{font-weight:600}.line{fill:none}"
        f"{widths}{fills(0)}{strokes(0)}"
        f"@media(prefers-color-scheme:dark){{{fills(1)}{strokes(1)}}}"
    )


class Picture:
    """An SVG that is being drawn.

    Args:
        width, height: in pixels.
        title: a description for screen readers.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._parts: list[str] = []

    def box(
        self,
        x: int,
        y: int,
        width: int,
        height: int,
        fill: str,
        *,
        edge: bool = True,
        round: int = 0,
    ) -> None:
        classes = f"{fill} edge" if edge else fill
        corner = f' rx="{round}"' if round else ""
        self._parts.append(
            f'<rect class="{classes}" x="{x}" y="{y}" width="{width}" height="{height}"{corner}/>'
        )

    def text(
        self, x: int, y: int, words: str, look: str = "word", *, anchor: str = "middle"
    ) -> None:
        """Adds text; `y` is the middle of the letters, `look` the classes, such as "soft mono"."""
        look = look if {"word", "soft"} & set(look.split()) else f"word {look}"
        place = f'x="{x}" y="{y + 4}" text-anchor="{anchor}"'
        self._parts.append(f'<text class="{look}" {place}>{escape(words)}</text>')

    def line(self, points: Sequence[tuple[int, int]], look: str = "rule") -> None:
        path = " ".join(f"{x},{y}" for x, y in points)
        self._parts.append(f'<polyline class="line {look}" points="{path}"/>')

    def dashes(self, points: Sequence[tuple[int, int]], look: str = "rule") -> None:
        path = " ".join(f"{x},{y}" for x, y in points)
        self._parts.append(
            f'<polyline class="line {look}" stroke-dasharray="4 4" points="{path}"/>'
        )

    def arrow(self, points: Sequence[tuple[int, int]], look: str = "arrow") -> None:
        """Adds an arrow with its head at the last point; the last segment has any direction."""
        (x0, y0), (x1, y1) = points[-2:]
        dx, dy = x1 - x0, y1 - y0
        length = max(1.0, (dx * dx + dy * dy) ** 0.5)
        ux, uy = dx / length, dy / length
        back = round(x1 - 7 * ux), round(y1 - 7 * uy)
        self.line([*points[:-1], back], look)
        wings = [
            (round(x1 - 9 * ux + side * 5 * uy), round(y1 - 9 * uy - side * 5 * ux))
            for side in (1, -1)
        ]
        path = " ".join(f"{x},{y}" for x, y in ((x1, y1), *wings))
        fill = "soft" if look == "faint" else "head"
        self._parts.append(f'<polygon class="{fill}" points="{path}"/>')

    def shares(
        self, x: int, y: int, width: int, height: int, ranks: Sequence[int], look: str = ""
    ) -> None:
        """Adds a box with a column for each rank, tinted where the rank has contributed."""
        each = width // RANKS
        for rank in range(RANKS):
            fill = f"r{rank}" if rank in ranks else "empty"
            self.box(x + rank * each, y, each, height, fill, edge=False)
        self._parts.append(
            f'<rect class="line edge" x="{x}" y="{y}" width="{each * RANKS}" height="{height}"/>'
        )
        if look:
            self.text(x + each * RANKS // 2, y + height // 2, look, "small bold")

    def __str__(self) -> str:
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{self._width}"'
                f' height="{self._height}" viewBox="0 0 {self._width} {self._height}" role="img">',
                f"<title>{escape(self._title)}</title>",
                f"<style>{_style()}</style>",
                f'<rect class="back" width="{self._width}" height="{self._height}" rx="8"/>',
                *self._parts,
                "</svg>\n",
            )
        )
