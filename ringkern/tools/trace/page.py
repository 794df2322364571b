"""A trace as a page for a browser: the way of chunks round the ring, and a timeline."""

from __future__ import annotations

import html
import json
from importlib import resources
from string import Template
from typing import Any

from .events import Trace
from .summary import check_drawable, circumstances, say_ns, summarize, title, waits

SCRIPTS = ("svg.js", "words.js", "model.js", "ring.js", "timeline.js", "controls.js")
MOST_EVENTS = 100_000  # a browser still draws this many at once; about 4 MB


def page(trace: Trace) -> str:
    """Returns a page of HTML: one file, which loads nothing and works from ``file://``.

    ``#step=5`` in its address shows that step; ``&loop=1`` and ``&channel=2`` are possible, too.

    Args:
        trace: of 2 ranks or more.

    Returns:
        The text of the file, to be written as UTF-8.

    Raises:
        ValueError: the trace has no verbs, as with one rank; or it is not of an all-reduce.
    """
    check_drawable(trace)
    trace.check()
    template = Template(_file("page.html"))
    return template.substitute(
        title=html.escape(title(trace)),
        style=_file("style.css"),
        data=_embedded(_data(trace)),
        script="\n".join(_file(name) for name in SCRIPTS),
    )


def _file(name: str) -> str:
    return (resources.files(__package__) / "web" / name).read_text(encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """Returns JSON in which no text can end the HTML element around it."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _data(trace: Trace) -> dict[str, Any]:
    """Returns the input of the page's scripts.

    ``schedule[position][step]`` is a verb and the owner of its chunk, the same in each loop and on
    each channel; ``times[channel][loop][rank][step]`` is start, end and :class:`~.summary.Waits`.
    """
    found = summarize(trace)
    steps = len(trace.of(0)) // trace.loops
    loops = min(trace.loops, max(1, MOST_EVENTS // (trace.ranks * steps * trace.channels)))
    order = trace.orders[0]
    return {
        "ranks": trace.ranks,
        "channels": trace.channels,
        "orders": trace.orders,
        "loops": loops,
        "schedule": [
            [(event.verb, event.owner) for event in trace.of(rank)[:steps]] for rank in order
        ],
        "times": [
            [
                [_times(trace, channel, loop, rank, steps) for rank in range(trace.ranks)]
                for loop in range(loops)
            ]
            for channel in range(trace.channels)
        ],
        "circumstances": circumstances(trace),
        "command": trace.command,
        "summary": f"{say_ns(found.call_ns)} from the first start to the last end. "
        f"{found.reason()}",
        "rank_texts": [f"rank {one.rank} {one.text()}" for one in found.ranks],
        "left_out": f"Of {trace.loops} loops the first {loops} are here."
        if loops < trace.loops
        else "",
    }


def _times(trace: Trace, channel: int, loop: int, rank: int, steps: int) -> list[tuple[int, ...]]:
    events = trace.of(rank, channel)[loop * steps : (loop + 1) * steps]
    return [(event.start_ns, event.end_ns, *waits(trace, event)) for event in events]
