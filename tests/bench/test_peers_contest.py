"""The coordinator: turns, checks, and contenders that fail."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.compare import contest as contest_module
from bench.compare.catalogue import Configuration
from bench.compare.contender import ContenderError
from bench.compare.contest import CHUNKS, limit_modes, run
from bench.compare.field import Field
from bench.compare.rows import LIMIT, Entrant, Settings
from ringkern.tools.turns import LEAST_REPEATS

pytestmark = pytest.mark.alone

HERE = str(Path(__file__).parent)
QUICK = {"seconds": 0.02, "turn_s": 20.0, "start_s": 60.0, "timeout_s": 120.0, "modes": ("py",)}


def fake(name: str, **options: Any) -> Configuration:
    """Returns a contender with the name of the class that it runs."""
    return Configuration(
        name.lower(), f"fake_peers:{name}", sys.executable, options=options, path=(HERE,)
    )


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_contenders_that_are_slow_wrong_or_fail() -> None:
    left = f"/dev/shm/ringkern-test-{uuid.uuid4().hex}"
    contenders = [
        fake("Right"),
        fake("Slow"),
        fake("Wrong"),
        fake("Failing"),
        fake("Dies", leaves=left),
        fake("NeverStarts"),
        fake("EndsAtOnce"),
        fake("Restless"),
        replace(fake("Right"), name="broken", python="/bin/false"),
    ]
    settings = Settings(sizes=(8, 10, 4096), **QUICK)
    with Field(settings, contenders) as field:
        assert os.path.exists(left)
        started = [pid for each in field._all for pid in each._pids.values()]
        rows = list(run(field))
        folder = field._meeting.folder
    assert [(row.size, row.count) for row in rows] == [(8, 2), (4096, 1024)]  # 10 B are 2 floats
    for row in rows:
        assert set(row.results) == {Entrant(name, "py") for name in ("right", "slow", "wrong")}
        for entrant, result in row.results.items():
            assert result.wrong == (1 if entrant.contender == "wrong" else 0)
            assert len(result.blocks) >= LEAST_REPEATS
            assert len({len(block.samples) for block in result.blocks}) == 1
            assert result.samples == sum(len(block.samples) for block in result.kept)
        assert row.placement == "unknown"  # not measured
    left_out = field.left_out
    assert left_out.pop("failing") == "rank 1: OSError: the cable is out"
    assert left_out.pop("dies") == "rank 1 died: I had so much to give"
    assert left_out.pop("neverstarts").endswith("RuntimeError: no such device")
    assert left_out.pop("endsatonce") == "rank 0 died"
    assert left_out.pop("broken") == "did not start: "
    assert "do not sleep" in left_out.pop("restless")
    assert not left_out
    assert started
    assert not any(map(is_running, started))
    assert not os.path.exists(left)
    assert not folder.exists()


def test_a_contender_that_hangs_is_ended_and_the_rest_goes_on(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    settings = Settings(sizes=(8, 64), dtype="float16", ranks=3, **QUICK | {"turn_s": 1.5})
    with Field(settings, [fake("Hangs", pids=str(pids)), fake("Right")]) as field:
        rows = list(run(field))
        assert not is_running(int(pids.read_text()))
    assert [set(row.results) for row in rows] == [{Entrant("right", "py")}] * 2
    assert [row.results[Entrant("right", "py")].wrong for row in rows] == [0, 0]
    assert field.left_out == {"hangs": "rank 0, 1, 2 did not answer within 1.5 s"}


def test_a_library_without_the_dtype_is_left_out() -> None:
    settings = Settings(sizes=(8,), dtype="bfloat16", **QUICK)
    with Field(settings, [fake("Right")]) as field:
        assert [row.results for row in run(field)] == [{}]
    assert field.left_out == {"right": "has no bfloat16"}


def test_a_contest_ends_at_its_timeout() -> None:
    settings = Settings(sizes=(8, 16), **QUICK | {"timeout_s": 1e-3})
    with Field(settings, []) as field, pytest.raises(TimeoutError, match="not through"):
        list(run(field))


class Dummy:
    """A contender in this process, which records its requests and answers at once."""

    def __init__(self, name: str, log: list[tuple[Any, ...]], ns: int = 1000) -> None:
        self.name, self.log, self.ns = name, log, ns
        self.modes = ("flag_in_line", "one_shot", "shared") if name == LIMIT else ("py", "c")
        self.fails_at = -1

    def ask(self, command: str, timeout_s: float, **arguments: Any) -> list[dict[str, Any]]:
        self.log.append((self.name, command, *arguments.values()))
        if self.fails_at == sum(entry[:2] == (self.name, command) for entry in self.log):
            raise ContenderError("gone")
        if command == "time":
            slower = 2 if arguments["mode"].endswith("/4096") else 1
            times = array("q", [slower * self.ns] * arguments["calls"])
            return [{"preempted": 0, "times": times}, {"preempted": 1, "times": times}]
        if command == "probe":
            return [{"round_trip_ns": 100.0}]
        return [{"wrong": 1, "choice": ["ring", "ll"]}] * 2

    def kill(self) -> None:
        self.log.append((self.name, "kill"))


@contextlib.contextmanager
def field_of(settings: Settings, *dummies: Dummy) -> Iterator[Field]:
    with Field(settings, []) as field:
        field._alive = {dummy.name: dummy for dummy in dummies}  # type: ignore[misc]
        yield field


def test_turns() -> None:
    """Everyone has as many, in turn, the order reversed each time; a probe between two."""
    log: list[tuple[Any, ...]] = []
    dummies = [Dummy("ringkern", log), Dummy("b", log, ns=2000), Dummy(LIMIT, log)]
    with field_of(Settings(sizes=(1 << 20,), seconds=0.6), *dummies) as field:
        [row] = run(field)
    begin = log.index((LIMIT, "probe"))
    assert sum(entry[1] == "prepare" for entry in log[:begin]) == 3
    assert sum(entry[1] == "check" for entry in log[:begin]) == 2 * 2 + 2
    turns = [entry for entry in log[begin:] if entry[1] == "time"]
    names = [(entry[0], entry[2]) for entry in turns]
    # The fastest chunk size of a movement is reported. Flags in lines are for smaller tensors.
    chosen = [(LIMIT, f"one_shot/{CHUNKS[1]}"), (LIMIT, f"shared/{CHUNKS[0]}")]
    order = [("ringkern", "py"), ("ringkern", "c"), ("b", "py"), ("b", "c"), *chosen]
    for repeat in range(len(names) // len(order)):
        part = names[repeat * len(order) : (repeat + 1) * len(order)]
        assert part == (order if repeat % 2 == 0 else order[::-1])
    assert len(names) % len(order) == 0
    assert len(names) // len(order) == len(row.results[Entrant("b", "c")].blocks)
    probes = [entry for entry in log[begin:] if entry[1] == "probe"]
    assert len(probes) == len(turns) + 1
    # Enough calls to fill a block, the same number in each repeat.
    calls = {entry[0]: entry[4] for entry in turns}
    assert calls["ringkern"] == 2 * calls["b"] == 4000
    assert log[-3:] == [(name, "release") for name in ("ringkern", "b", LIMIT)]
    assert row.choice == ("ring", "ll")
    assert row.placement == "near"
    assert row.results[Entrant("b", "py")].time_us == 2.0
    assert row.results[Entrant("b", "py")].wrong == 2  # of both ranks
    assert all(
        block.round_trips == (100.0, 100.0) for block in row.results[Entrant("b", "c")].blocks
    )


@pytest.mark.parametrize("lost", ["b", LIMIT])
def test_a_contender_that_fails_during_a_size_is_left_out(lost: str) -> None:
    log: list[tuple[Any, ...]] = []
    dummies = {name: Dummy(name, log) for name in ("ringkern", "b", LIMIT)}
    dummies[lost].fails_at = 12
    with field_of(Settings(sizes=(64, 128), seconds=0.1), *dummies.values()) as field:
        rows = list(run(field))
    assert field.left_out == {lost: "gone"}
    assert (lost, "kill") in log
    for row in rows:
        assert {entrant.contender for entrant in row.results} == set(dummies) - {lost}
        for result in row.results.values():
            assert len(result.blocks) >= LEAST_REPEATS


def test_memory_is_taken_in_turns_where_it_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest_module, "free_memory", lambda: 1 << 20)
    log: list[tuple[Any, ...]] = []
    settings = Settings(sizes=(1 << 18,), seconds=0.1, modes=("py",))
    with field_of(settings, Dummy("a", log), Dummy("b", log)) as field:
        list(run(field))
    holds: set[str] = set()
    for name, command, *_ in log:
        if command == "prepare":
            assert not holds
            holds.add(name)
        elif command in ("time", "check"):
            assert holds == {name}
        elif command == "release":
            holds.discard(name)


def test_movements_of_the_limit() -> None:
    movements = ("flag_in_line", "one_shot", "scatter_gather", "shared")
    assert limit_modes(movements, 8) == [f"{movement}/4096" for movement in movements]
    large = limit_modes(movements, 1 << 20)
    assert not any(mode.startswith("flag_in_line") for mode in large)
    assert [mode for mode in large if mode.startswith("one_shot")] == [
        f"one_shot/{chunk}" for chunk in CHUNKS
    ]
