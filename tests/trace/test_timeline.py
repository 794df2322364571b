"""The picture: a bar for each verb, at its time and with its duration, and the ranks that were
waited for.
"""

from __future__ import annotations

import importlib.util
import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ringkern.tools.trace.events import Event, Trace
from ringkern.tools.trace.timeline import BARS_A_ROW, Window, check, draw
from tests.trace import synthetic

pytest.importorskip("matplotlib", reason="pip install matplotlib")

SVG = "{http://www.w3.org/2000/svg}"


def drawn(trace: Trace, folder: Path, loops: tuple[int, int] | None = None) -> ElementTree.Element:
    draw(trace, folder / "timeline.svg", loops)
    return ElementTree.parse(folder / "timeline.svg").getroot()


def bars(root: ElementTree.Element, kind: str) -> dict[str, tuple[float, float, float]]:
    """Left, right and middle of each, by name."""
    found = {}
    for group in root.iter(f"{SVG}g"):
        if (name := group.get("id", "")).startswith(f"{kind}-"):
            path = group.find(f"{SVG}path")
            assert path is not None
            points = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.get("d", ""))
            xs, ys = ([float(at) for at in axis] for axis in zip(*points))
            found[name.removeprefix(f"{kind}-")] = min(xs), max(xs), (min(ys) + max(ys)) / 2
    return found


def texts(root: ElementTree.Element) -> str:
    return "\n".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))


def name(event: Event) -> str:
    return f"r{event.rank}-c{event.channel}-l{event.loop}-s{event.step}"


@pytest.mark.parametrize(
    "trace",
    [
        synthetic.make(2),
        synthetic.make(4),
        synthetic.make(5, channels=2, orders=((0, 1, 2, 3, 4), (0, 3, 1, 4, 2))),
    ],
    ids=["2 ranks", "4 ranks", "2 channels"],
)
def test_each_verb_has_its_bar_to_scale(trace: Trace, tmp_path: Path) -> None:
    root = drawn(trace, tmp_path)
    verbs, waits = bars(root, "verb"), bars(root, "wait")
    assert set(verbs) == {f"{name(e)}-{e.verb}" for e in trace.events}
    assert set(waits) == {
        f"{name(e)}-{side}-for-{whom(e.rank, e.channel)}"
        for e in trace.events
        for side, whom in (("prev", trace.prev), ("next", trace.next))
        if getattr(e, f"wait_{side}_ns")
    }
    first = verbs[f"{name(trace.events[0])}-send"][0]
    last = max(trace.events, key=lambda event: event.end_ns)
    scale = (verbs[f"{name(last)}-{last.verb}"][1] - first) / trace.duration_ns
    rows: dict[tuple[int, int], set[float]] = {}
    for event in trace.events:
        left, right, y = verbs[f"{name(event)}-{event.verb}"]
        assert left - first == pytest.approx((event.start_ns + event.wait_ns) * scale, abs=0.01)
        assert right - first == pytest.approx(event.end_ns * scale, abs=0.01)
        rows.setdefault((event.channel, event.rank), set()).add(round(y, 3))
    for wait, (left, right, y) in waits.items():
        rank, channel, loop, step = map(int, re.findall(r"\d+", wait)[:4])
        event = trace.of(rank, channel)[loop * (2 * trace.ranks - 1) + step]
        assert event.start_ns * scale <= left - first + 0.01
        assert right - first <= (event.start_ns + event.wait_ns) * scale + 0.01
        assert {round(y, 3)} == rows[channel, rank]
    # Neighbours on the ring stand one below the other.
    order = [(channel, rank) for channel in range(trace.channels) for rank in trace.orders[channel]]
    assert sorted(rows, key=lambda row: rows[row].pop()) == order


def test_the_timeline_states_call_machine_and_cause(tmp_path: Path) -> None:
    trace = synthetic.make(4)
    said = texts(drawn(trace, tmp_path))
    for text in (
        "all_reduce of 256K (float32) over 4 ranks, simple, cpu: 28.1 us",
        "a machine of the tests, 2 cores, 2026-11-21 00:00 UTC",
        "rank 0", "rank 3", "time (us)", "Rank 1 worked longest.",
        "send", "recv_reduce_send", "recv_reduce_copy_send", "recv_copy_send", "recv",
        "waits for data from prev, the rank in it", "waited 22%:", "22% for rank 3",
    ):  # fmt: skip
        assert text in said.splitlines(), text
    assert "waits for a free slot" not in said, "nobody did"


def test_the_timeline_shows_the_first_or_the_requested_loops(tmp_path: Path) -> None:
    trace = synthetic.make(4, 100_000, slot_bytes=2048)
    assert trace.loops > BARS_A_ROW // 7
    root = drawn(trace, tmp_path)
    drawn_loops = {int(re.findall(r"\d+", bar)[2]) for bar in bars(root, "verb")}
    assert drawn_loops == set(range(BARS_A_ROW // 7))
    assert f"loops 0 to {BARS_A_ROW // 7 - 1} of 0 to {trace.loops - 1}" in texts(root)
    root = drawn(trace, tmp_path, (5, 6))
    found = bars(root, "verb")
    assert {int(re.findall(r"\d+", bar)[2]) for bar in found} == {5, 6}
    assert f"loops 5 to 6 of 0 to {trace.loops - 1}" in texts(root)
    assert Window.of(trace, (5, 5)).text(trace) == f"loop 5 of 0 to {trace.loops - 1}"
    assert max(right for _, right, _ in found.values()) > 500  # they have all of the width


def test_the_timeline_shows_the_channels_that_fit() -> None:
    window = Window.of(synthetic.make(8, channels=16))
    assert window.channels == 8
    assert window.text(synthetic.make(8, channels=16)) == "channels 0 to 7 of 0 to 15"


def test_png(tmp_path: Path) -> None:
    draw(synthetic.make(4), tmp_path / "timeline.png")
    data = (tmp_path / "timeline.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 3 * height > 1000


def test_the_same_trace_is_the_same_file(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        draw(synthetic.make(3), tmp_path / folder / "timeline.svg")
    first, second = ((tmp_path / folder / "timeline.svg").read_bytes() for folder in ("a", "b"))
    assert first == second


@pytest.mark.parametrize("loops", [(0, 1), (-1, 0), (1, 0)])
def test_loops_that_are_not_there(loops: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the trace has loops 0 to 0; give .* as 0:3"):
        draw(synthetic.make(2), tmp_path / "timeline.svg", loops)


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for does in (check, lambda: draw(synthetic.make(2), tmp_path / "timeline.svg")):
        with pytest.raises(ValueError, match="pip install matplotlib"):
            does()
    assert not (tmp_path / "timeline.svg").exists()
