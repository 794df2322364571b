"""``make gpu`` divides its parts into runs, and reports parts that had no time."""

from __future__ import annotations

import itertools
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import backend, cases, graph, ipc, missing_peer, part, processes, sanitizer, speed
from bench.gpu.part import Compiled, Context
from bench.gpu.parts import PARTS, ordered, runs


def context_of(tmp_path: Path, seconds: float, **more: Any) -> Context:
    state, machine = tmp_path / "state.json", {"gpus": [{"name": "none"}]}
    return Context("a_part", state, tmp_path, "cpu", True, "", seconds, machine, **more)


# ---- the plan


def names(parts: Any) -> list[str]:
    return [each.name for each in parts]


@pytest.mark.parametrize("prebuilt", [(), ("core",), ("core", "extension")])
def test_three_runs_do_everything_most_valuable_first(prebuilt: tuple[str, ...]) -> None:
    parts = ordered(PARTS, prebuilt)
    divided = runs(parts, 560.0)
    assert len(divided) <= 3
    seen: list[str] = []
    for run in divided:
        assert sum(each.planned for each in run) <= 560
        here = names(run)
        # A part's requirements come before it in the same run, which may be on another machine.
        assert all(need in here[: here.index(p.name)] for p in run for need in p.needs)
        seen += [name for name in here if name not in seen]
    assert seen == names(parts)


def test_prebuilt_pieces_take_no_time_and_run_hello_first() -> None:
    assert names(ordered(PARTS, ("core", "extension")))[:5] == [
        *("machine", "core", "extension", "hello", "limits"),
    ]
    assert names(ordered(PARTS, ("core",)))[:3] == ["machine", "limits", "ll128_probe"]
    planned = {each.name: each.planned for each in ordered(PARTS, ("core",))}
    assert planned["core"] < 30 < planned["extension"]


def test_quick_parts_that_take_less_are_planned_with_less() -> None:
    planned, quick = ({p.name: p.planned for p in ordered(PARTS, (), q)} for q in (False, True))
    assert quick["speed"] < 60 < planned["speed"]
    assert {name for name in planned if quick[name] != planned[name]} == {
        *("missing_peer", "speed", "tune"),
    }


def test_each_run_comes_further_however_small_its_budget() -> None:
    divided = runs(PARTS, 1.0)
    assert len(divided) == len(PARTS)
    assert names(divided[-1]) == ["core", "extension", "one_queue"]


# ---- parts without time


def test_a_part_that_was_cut_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(run: Any) -> tuple[str, str]:
        module = types.ModuleType("bench.gpu.made_up")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "bench.gpu.made_up", module)
        path = tmp_path / "context"
        part.save_context(context_of(tmp_path, 30.0), path)
        monkeypatch.setattr("signal.signal", lambda *_: None)
        assert part.run_child("made_up", path) == 0
        found = json.loads((tmp_path / "state.json").read_text())
        return found["status"], found["reason"]

    def cut(context: Context) -> None:
        context.cut("k=7")
        context.cut("k=8")

    def cut_and_wrong(context: Context) -> None:
        context.cut("k=8")
        raise part.Failed("3 wrong")

    assert status(lambda context: None) == ("passed", "")
    assert status(cut) == ("partial", "no time for k=7, k=8")
    assert status(cut_and_wrong) == ("failed", "3 wrong; no time for k=8")
    assert status(lambda context: context.needs_gpu()) == ("compiled", "compiled; needs a GPU")


def test_only_a_rehearsal_ends_where_a_gpu_is_needed(tmp_path: Path) -> None:
    context = context_of(tmp_path, 30.0)
    with pytest.raises(Compiled):
        context.needs_gpu()
    context.device = "cuda"
    context.needs_gpu()


class Slow:
    """Stands in for ranks: it answers, and the time of the part is over."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self._processes: list[Any] = []

    def run(self, function: Any, *args: Any) -> Any:
        answer = (51, 0) if function is graph._replay else (1, [])
        return [answer] * self.size

    def close(self) -> None:
        pass

    def kill(self) -> None:
        pass


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (graph, "k=2 simple[1] in a process"),
        (ipc, "k=2 simple[1]"),
        (missing_peer, "k=2 simple"),
        (backend, "messages, all_reduce"),
        (speed, "k=2 auto/world_invariant"),
        (processes, "8 bytes and more"),
    ],
)
def test_skipped_work_is_named(
    module: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Ranks", Slow, raising=False)
    monkeypatch.setattr(Context, "use_ringkern", lambda self: None)
    (tmp_path / "site/ringkern").mkdir(parents=True)
    context = context_of(tmp_path, 0.0)
    try:
        module.run(context)
    except part.Failed as failed:
        assert "not one" in str(failed) or "nothing was measured" in str(failed)  # noqa: PT017
    assert context.missing[0].startswith(text)
    kept = json.loads(context.state.read_text())["figures"]
    assert kept["missing"] == context.missing


def test_fewer_replays_between_processes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "Ranks", Slow)
    monkeypatch.setattr(graph, "within_a_process", lambda *_: None)
    monkeypatch.setattr(graph, "BATCH", 50)
    monkeypatch.setattr(Context, "use_ringkern", lambda self: None)
    context = context_of(tmp_path, 30.0)
    # 25 s for each protocol, of which a look at the clock takes 20.
    times = iter([75.0, 75.0, 50.0, 50.0, 25.0, 25.0])
    monkeypatch.setattr(Context, "left", lambda self, share=0.9: next(times))
    clock = itertools.count(0.0, 20.0)
    monkeypatch.setattr(graph.time, "monotonic", lambda: next(clock))
    graph.run(context)
    assert context.missing == [
        f"50 of 100 replays of {protocol} between processes" for protocol in cases.PROTOCOLS
    ]


def test_a_tally_says_from_where_on_cases_are_missing(tmp_path: Path) -> None:
    context = context_of(tmp_path, 1000.0)
    tally = cases.Tally(context)
    assert tally.in_time("k=2")
    context.seconds = 0.0
    assert not tally.in_time("k=3")
    context.seconds = 1000.0
    assert not tally.in_time("k=4")  # what follows must not be run either
    assert context.missing == ["k=3 and what follows"]


# ---- single parts


def test_racecheck_comes_last_with_few_channels_and_may_be_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(sanitizer.TOOLS)[-1] == "racecheck"
    assert sanitizer.TOOLS["racecheck"][2] == "2"
    library = tmp_path / "cmake" / "libringkern_core.a"
    library.parent.mkdir()
    library.touch()
    asked: dict[str, float] = {}

    def check(context: Any, tool: str, name: str, program: Any, seconds: float) -> Any:
        asked[name] = seconds
        late = {"status": "timed out", "reason": "was ended after 80 s"}
        return late if name == "racecheck" else {"status": "passed", "reason": ""}

    monkeypatch.setattr(sanitizer, "check", check)
    monkeypatch.setattr(sanitizer.shutil, "which", lambda *_, **__: "/bin/true")
    monkeypatch.setattr(Context, "compile", lambda self, *_: tmp_path / "program")
    monkeypatch.setattr(Context, "run", lambda self, *_, **__: None)
    context = context_of(tmp_path, 300.0)
    context.device = "cuda"
    sanitizer.run(context)
    assert context.missing == ["racecheck, which was ended after 80 s"]
    assert asked["racecheck"] == max(asked.values())


def test_one_queue_is_the_backend_with_one_hardware_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str | None]] = []

    class Told(Slow):
        def run(self, function: Any, *args: Any) -> Any:
            seen.append((self.size, os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")))
            return super().run(function, *args)

    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    monkeypatch.setattr(Context, "use_ringkern", lambda self: None)
    monkeypatch.setattr(backend, "Ranks", Told)
    for name in ("backend", "backend_k4", "one_queue"):
        context = context_of(tmp_path, 300.0)
        context.name = name
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", dict(os.environ))
            backend.run(context)
    assert sorted(set(seen), key=str) == [(2, "1"), (2, None), (4, None)]
