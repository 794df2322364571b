"""The page in a real browser: at each step it shows what the schedule does, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ringkern.tools.trace.events import Event, Trace
from ringkern.tools.trace.page import page
from ringkern.tools.trace.summary import Waits, say_ns, waits
from tests.trace import synthetic
from tests.trace.browser import Shown, written
from tests.trace.steps import check_step, numbers, schedule

BOTH_WAYS = ((0, 1, 2, 3, 4), (0, 3, 1, 4, 2))


def events_of(trace: Trace, channel: int, loop: int, step: int) -> dict[int, Event]:
    return {
        event.rank: event
        for event in trace.events
        if (event.channel, event.loop, event.step) == (channel, loop, step)
    }


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 12])
def test_every_step_shows_the_schedule(context: Any, tmp_path: Path, ranks: int) -> None:
    shown = Shown(context, written(synthetic.make(ranks), tmp_path))
    plan = schedule(ranks)
    last = 2 * ranks - 2
    shown.tab.focus("#step")
    for step in range(last + 1):
        check_step(shown, plan, 0, step)
        shown.tab.keyboard.press("ArrowRight")  # the slider's own key
    for rank in shown.state()["ranks"]:
        assert all(len(numbers(block["sum"])) == ranks for block in rank["blocks"])
        assert all(block["filled"] == pytest.approx(1) for block in rank["blocks"])
    assert shown.state()["tokens"] == []
    for step in (1, last, 0):
        shown.slide(step)
        check_step(shown, plan, 0, step)
    assert shown.complaints == []
    assert shown.requests == [shown.url], "it loads something"


def test_channels_have_rings_of_their_own(context: Any, tmp_path: Path) -> None:
    trace = synthetic.make(5, channels=2, orders=BOTH_WAYS)
    shown = Shown(context, written(trace, tmp_path))
    plan = schedule(5, BOTH_WAYS)
    for channel in (1, 0):
        shown.tab.select_option("#channel", str(channel))
        for step in (0, 3, 4, 7, 8):
            shown.slide(step)
            check_step(shown, plan, channel, step)
        order = [int(rank["rank"]) for rank in shown.state()["ranks"]]
        assert order == list(BOTH_WAYS[channel])
        assert shown.state()["hash"] == f"#step=8&channel={channel}"
    assert shown.complaints == []


def test_the_cursor_stands_where_each_rank_ended_the_step(context: Any, tmp_path: Path) -> None:
    trace = synthetic.make(4)
    shown = Shown(context, written(trace, tmp_path))
    scale = set()
    before = [0.0] * 4
    for step in range(7):
        shown.slide(step)
        state = shown.state()
        events = events_of(trace, 0, 0, step)
        ends = [x for x, _ in state["cursor"][::2]]
        assert state["cursor"][1::2] == [[x, y + 34] for x, y in state["cursor"][::2]]
        for rect, end, rank in zip(state["now"]["rects"], ends, trace.orders[0], strict=True):
            event = events[rank]
            assert (int(rect["rank"]), int(rect["start"]), int(rect["end"])) == (
                rank, event.start_ns, event.end_ns,
            )  # fmt: skip
            assert rect["x"] + rect["width"] == pytest.approx(end, abs=1)
            scale.add(round((end - 64) / event.end_ns * trace.duration_ns, -1))
        assert all(now > then for now, then in zip(ends, before, strict=True))
        before = ends
    assert len(scale) == 1, "times are not drawn to one scale"
    assert shown.complaints == []


def test_words_say_who_waited_how_long_for_whom(context: Any, tmp_path: Path) -> None:
    trace = synthetic.make(4)
    shown = Shown(context, written(trace, tmp_path))
    longest = max(trace.events, key=lambda event: waits(trace, event).prev)
    shown.slide(longest.step)
    prev = trace.prev(longest.rank)
    time = f"{longest.wait_prev_ns / 1000:#.3g} us"
    assert shown.text("#waiting") == (
        f"Waited longest in this step: rank {longest.rank}, {time} for data from rank {prev}."
    )
    assert "Rank 1 worked longest" in shown.text("#summary")


def test_each_rank_has_its_row(context: Any, tmp_path: Path) -> None:
    trace = synthetic.asleep(synthetic.make(8), 5, 7000)
    shown = Shown(context, written(trace, tmp_path))
    kinds = set()
    for step in range(15):
        shown.slide(step)
        for rank, (name, deed, took, waited) in enumerate(shown.state()["rows"]):
            event = trace.of(rank)[step]
            prev, next = trace.prev(rank), trace.next(rank)
            assert name == str(rank)
            assert f"chunk {event.owner}" in deed
            assert (f"from rank {prev}" in deed) == event.receives
            assert (f"to rank {next}" in deed) == event.sends
            assert took == say_ns(event.duration_ns)
            of_it = waits(trace, event)
            says = Waits(f" for data from rank {prev}", " late", f" for a free slot at rank {next}")
            parts = [say_ns(ns) + what for ns, what in zip(of_it, says, strict=True) if ns]
            assert waited == (", ".join(parts) or "nothing")
            kinds |= {kind for kind, ns in of_it._asdict().items() if ns}
    assert kinds == {"prev", "late", "next"}, "not all was tried"


def test_light_dark_and_small(browser: Any, tmp_path: Path) -> None:
    file = written(synthetic.make(4), tmp_path)
    grounds = {}
    for scheme in ("light", "dark"):
        for width in (1280, 390):
            context = browser.new_context(
                viewport={"width": width, "height": 800}, color_scheme=scheme
            )
            shown = Shown(context, file)
            grounds[scheme] = shown.tab.evaluate("getComputedStyle(document.body).backgroundColor")
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert shown.tab.evaluate(wide) <= 0, f"{width} pixels are not enough"
            ring, words = (
                shown.tab.locator(name).bounding_box() for name in ("#ring-figure", "#words")
            )
            below = words["y"] >= ring["y"] + ring["height"]
            assert below == (width == 390), "the words stand where they are not read"
            assert shown.complaints == []
            context.close()
    assert grounds["light"] != grounds["dark"]


def test_text_of_a_trace_is_text(context: Any, tmp_path: Path) -> None:
    nasty = "</script ><script>alert(1)</script><!-- & <b>\u2028"
    trace = synthetic.make(2, command=nasty)
    trace.machine["cpu"] = nasty
    shown = Shown(context, written(trace, tmp_path))
    assert shown.tab.evaluate("document.querySelector('#circumstances code').textContent") == nasty
    assert shown.tab.locator("#circumstances b").count() == 0
    assert shown.complaints == []


def test_the_page_holds_the_first_of_many_loops(
    context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringkern.tools.trace.page.MOST_EVENTS", 100)
    trace = synthetic.make(4, 30000, slot_bytes=2048)
    shown = Shown(context, written(trace, tmp_path))
    assert f"Of {trace.loops} loops the first 3 are here." in shown.text("#times")
    shown.tab.keyboard.press("End")
    assert shown.state()["hash"] == "#step=6&loop=2"


def test_nothing_to_draw() -> None:
    alone = dataclasses.replace(synthetic.make(2), ranks=1, events=())
    with pytest.raises(ValueError, match="2 ranks or more"):
        page(alone)
