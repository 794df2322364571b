"""The page's controls: play, keys, the address, clicks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trace import synthetic
from tests.trace.browser import Shown, written
from tests.trace.steps import check_step, schedule


def test_play_goes_on_step_by_step_to_the_end(context: Any, tmp_path: Path) -> None:
    trace = synthetic.make(3, 4000, slot_bytes=2048)
    assert trace.loops > 1
    last = f"#step=4&loop={trace.loops - 1}"
    shown = Shown(context, written(trace, tmp_path), f"#step=3&loop={trace.loops - 2}", clock=True)
    shown.tab.click("#play")
    seen = [shown.state()["hash"]]
    while shown.state()["playing"] and len(seen) < 20:
        shown.tab.clock.run_for(1100)
        seen.append(shown.state()["hash"])
    here = [f"#step={step}&loop={trace.loops - 1}" for step in range(5)]
    assert seen == [f"#step=4&loop={trace.loops - 2}", *here, last]
    shown.tab.click("#play")  # at the end: once more from the start
    assert shown.state()["hash"] == "#step=0&loop=0"
    shown.tab.clock.run_for(1100)
    assert shown.state()["hash"] == "#step=1&loop=0"
    shown.tab.click("#play")
    shown.tab.clock.run_for(5000)
    assert shown.state()["hash"] == "#step=1&loop=0", "it plays on"
    assert shown.complaints == []


def test_moving_data_goes_from_its_sender_to_halfway(context: Any, tmp_path: Path) -> None:
    shown = Shown(context, written(synthetic.make(4), tmp_path), clock=True)
    place = (
        "() => [...document.querySelectorAll('.token')].map((node) =>"
        "node.getAttribute('transform').slice(10, -1).split(' ').map(Number))"
    )
    shown.slide(1)
    start = shown.tab.evaluate(place)
    cards = shown.tab.evaluate(place.replace(".token", ".rank"))
    for at, card in zip(start, cards, strict=True):
        assert at == pytest.approx(card, abs=0.01)
    shown.tab.clock.run_for(1000)
    for at, card, onto in zip(shown.tab.evaluate(place), cards, [*cards[1:], cards[0]]):
        to_card, to_next = (
            sum((a - b) ** 2 for a, b in zip(at, end, strict=True)) for end in (card, onto)
        )
        assert to_card == pytest.approx(to_next, rel=0.01)
        assert to_card > 1000


def test_keys(context: Any, tmp_path: Path) -> None:
    trace = synthetic.make(4, 30000, slot_bytes=2048)
    shown = Shown(context, written(trace, tmp_path))
    press = shown.tab.keyboard.press
    end = f"#step=6&loop={trace.loops - 1}"
    for key, hash in (
        ("ArrowRight", "#step=1&loop=0"), ("ArrowRight", "#step=2&loop=0"),
        ("ArrowLeft", "#step=1&loop=0"), ("End", end), ("ArrowRight", end),
        ("Home", "#step=0&loop=0"), ("ArrowLeft", "#step=0&loop=0"),
    ):  # fmt: skip
        press(key)
        assert shown.state()["hash"] == hash
    press(" ")
    assert shown.state()["playing"]
    press(" ")
    assert not shown.state()["playing"]
    for button, hash in (("#forth", "#step=2&loop=0"), ("#back", "#step=1&loop=0")):
        shown.tab.click(button)
        assert shown.state()["hash"] == hash
    shown.tab.fill("#loop", "1")
    press("Enter")
    assert shown.state()["hash"] == "#step=1&loop=1"
    assert shown.state()["now"]["loop"] == "1"
    shown.tab.focus("#step")
    press("ArrowRight")  # of the slider, and not of the page, too
    assert shown.state()["hash"] == "#step=2&loop=1"
    shown.tab.focus("#forth")
    press(" ")  # of the button, and not of the page
    assert shown.state()["hash"] == "#step=3&loop=1"
    assert not shown.state()["playing"]
    press("ArrowLeft")  # which no button wants
    assert shown.state()["hash"] == "#step=2&loop=1"
    assert shown.complaints == []


def test_the_address_says_what_is_shown(context: Any, tmp_path: Path) -> None:
    file = written(synthetic.make(4), tmp_path)
    plan = schedule(4)
    for hash, step in (
        ("#step=5", 5), ("#step=99", 6), ("#step=-1", 0), ("#step=x", 0), ("", 0),
        ("#loop=7&channel=9&step=2", 2),
    ):  # fmt: skip
        shown = Shown(context, file, hash)
        check_step(shown, plan, 0, step)
        assert shown.state()["hash"] == f"#step={step}"
        assert shown.complaints == []
    shown.tab.evaluate("location.hash = '#step=4'")
    shown.tab.wait_for_function("document.getElementById('step').value === '4'")
    check_step(shown, plan, 0, 4)


def test_the_timeline_of_the_step_the_loop_or_the_call(context: Any, tmp_path: Path) -> None:
    trace = synthetic.make(4, 30000, slot_bytes=2048)
    shown = Shown(context, written(trace, tmp_path), "#loop=2&step=3")
    ends = max(event.end_ns for event in trace.events if event.loop == 2)
    assert ticks(shown)[-1] <= ends < trace.duration_ns / 2
    shown.tab.click("#view-call")
    assert ticks(shown)[0] == 0
    assert ticks(shown)[-1] > trace.duration_ns / 2
    assert bars_of(shown) == len(trace.events)
    shown.tab.click("#view-step")
    shown.slide(4)
    events = [event for event in trace.events if (event.loop, event.step) == (2, 4)]
    start, end = min(e.start_ns for e in events), max(e.end_ns for e in events)
    assert start <= ticks(shown)[0] < ticks(shown)[-1] <= end
    rects = shown.state()["now"]["rects"]
    assert min(rect["x"] for rect in rects) == pytest.approx(64, abs=1)
    assert bars_of(shown) == sum(
        e.start_ns + e.wait_ns < end and e.end_ns > start for e in trace.events
    )
    assert shown.complaints == []


def ticks(shown: Shown) -> list[float]:
    """Returns the ticks of the time axis, in ns."""
    units = {"ns": 1, "us": 1e3, "ms": 1e6}
    texts = [text.split() for text in shown.tab.locator(".axis text").all_text_contents()]
    return [float(number.replace(",", "")) * units[unit] for number, unit in texts]


def bars_of(shown: Shown) -> int:
    """Verbs that have a bar, and not waits alone."""
    bars: int = shown.tab.evaluate(
        "[...document.querySelectorAll('#timeline .work')].map((path) =>"
        "path.getAttribute('d').split('M').length - 1).reduce((a, b) => a + b)"
    )
    return bars


def test_a_click_on_a_bar_shows_its_step(context: Any, tmp_path: Path) -> None:
    trace = synthetic.make(4, 30000, slot_bytes=2048)
    shown = Shown(context, written(trace, tmp_path), "#loop=2&step=3")
    shown.tab.locator("#times .note").scroll_into_view_if_needed()
    box = shown.tab.locator("#timeline .now rect").nth(2).bounding_box()
    shown.slide(0)
    shown.tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert shown.state()["hash"] == "#step=3&loop=2"
    tip = shown.text("#tip")
    assert tip.startswith("rank 2, recv_reduce_copy_send")
    assert "loop 2, step 3" in tip
    assert shown.complaints == []


def test_a_stretch_in_which_a_rank_slept_is_folded(context: Any, tmp_path: Path) -> None:
    """Else nothing else can be seen; and a click in what comes after it finds its bar."""
    awake = synthetic.make(4)
    late_ns = 20 * awake.duration_ns
    trace = synthetic.asleep(awake, 2, late_ns)
    shown = Shown(context, written(trace, tmp_path), "#step=6")
    assert shown.tab.locator("#fold").get_attribute("aria-pressed") == "true"
    [crease] = shown.tab.locator(".folds text").all_text_contents()
    assert crease.startswith("+ ")
    rects = shown.state()["now"]["rects"]
    widest = max(rect["width"] for rect in rects)
    shown.tab.locator("#times .note").scroll_into_view_if_needed()
    box = shown.tab.locator("#timeline .now rect[data-rank='2']").bounding_box()
    shown.slide(0)
    shown.tab.mouse.click(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2)
    assert shown.state()["hash"] == "#step=6"
    shown.tab.click("#fold")
    assert shown.tab.locator("#fold").get_attribute("aria-pressed") == "false"
    assert shown.tab.locator(".folds text").count() == 0
    assert max(rect["width"] for rect in shown.state()["now"]["rects"]) > 1.5 * widest
    assert shown.complaints == []

    shown = Shown(context, written(awake, tmp_path))
    assert not shown.tab.locator("#fold").is_visible()
    assert shown.tab.locator(".folds text").count() == 0
