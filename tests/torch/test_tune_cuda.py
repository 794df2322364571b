"""``auto`` on CUDA, and ``tune --device cuda``: everything but the timing, which needs a GPU."""

from __future__ import annotations

import argparse
import bisect
import contextlib
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ringkern import _C, local
from ringkern.choose import cache, identity, tables
from ringkern.choose.cost import ANY_SIZE, Cost, Tier, Way, wire_bytes
from ringkern.choose.explain import explain
from ringkern.choose.tuning import COLLECTIVES, RING, Tuning, TuningError, dump, parse, ways_of
from ringkern.tools.tune import command as tune
from ringkern.tools.tune import on_cuda, trials
from ringkern.tools.tune.trials import Cell, Progress
from tests.torch import tunings

HERE = identity.of_this_machine(_C.wire_version)
GPU = on_cuda.Gpu("NVIDIA H100 80GB HBM3", 50 << 20, 80 << 30)
K, M = 1 << 10, 1 << 20

# Microseconds of an all-reduce by ranks of one process on one NVIDIA H100 80GB HBM3, with 32
# channels, 2026-11-26, CUDA graph replays; at the sizes below, as far as it was measured.
SIZES = (8 * K, 64 * K, 256 * K, M, 16 * M, 256 * M)
H100 = {
    2: {
        ("ring", "simple"): (8.95, 8.73, 9.50, 10.29, 56.73, 804.06),
        ("ring", "ll"): (6.53, 6.87, 8.34, 16.61, 225.18),
        ("ring", "ll128"): (8.40, 6.95, 9.09, 9.67, 113.33),
        ("one_shot", "ll"): (4.16, 4.39, 6.93, 18.84, 284.99),
        ("two_shot", "ll"): (4.91, 5.13, 7.55, 18.52, 282.52),
    },
    4: {
        ("ring", "simple"): (16.60, 17.81, 19.32, 20.10, 95.16, 1260.80),
        ("ring", "ll"): (12.20, 12.72, 12.86, 21.31, 288.90),
        ("ring", "ll128"): (14.41, 13.08, 14.16, 20.10, 153.97),
        ("one_shot", "ll"): (4.74, 4.96, 9.94, 27.96, 429.09),
        ("two_shot", "ll"): (5.40, 5.65, 8.42, 20.11, 307.76),
    },
    8: {
        ("ring", "simple"): (32.55, 35.16, 37.69, 38.94, 203.55, 3433.18),
        ("ring", "ll"): (21.96, 24.51, 24.96, 41.41, 450.67),
        ("ring", "ll128"): (21.25, 37.44, 26.67, 41.17, 290.51),
        ("one_shot", "ll"): (5.81, 8.05, 25.64, 96.22, 1469.29),
        ("two_shot", "ll"): (6.69, 7.23, 10.33, 35.84, 525.72),
    },
}
AT = [math.log(size) for size in SIZES]


def h100(ranks: int, cell: Cell) -> float:
    """Returns the time of a cell, interpolated between measurements; a half takes half of it."""
    times = [math.log(t) for t in H100[ranks][cell.way[:2]]]
    at = max(math.log(cell.size), AT[0])
    i = min(max(bisect.bisect(AT, at) - 1, 0), len(times) - 2)
    time = math.exp(times[i] + (at - AT[i]) * (times[i + 1] - times[i]) / (AT[i + 1] - AT[i]))
    return time if cell.collective == "all_reduce" else time / 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sets the folder of the user's tunings; empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tables.forget()
    (tmp_path / "ringkern").mkdir()
    yield tmp_path / "ringkern"
    tables.forget()


def keep(found: Tuning) -> None:
    """Makes it the user's tuning on this machine."""
    cache.write(cache.file_of(HERE), replace(found, machine=HERE))
    tables.forget()


# ---- ways and costs -----------------------------------------------------------------------------


def test_the_ways_are_those_of_the_extension() -> None:
    there = set(_C.ways_on("cuda")) - {("two_shot", "simple")}  # only some rings have it
    assert {way[:2] for way in ways_of("all_reduce", "cuda")} == there
    assert ways_of("all_gather", "cuda") == RING


def test_direct_algorithms_on_cuda_use_the_lines_of_the_ring() -> None:
    """Lines of 16 bytes, half of them flags; a CPU's have 64 bytes with a flag of 8."""
    way = Way("two_shot", "ll")
    assert wire_bytes(way, "all_reduce", 4, 1000, "cuda") == 1000 * 1.5 * 2
    assert wire_bytes(Way("one_shot", "ll"), "all_reduce", 4, 56) == 3 * 64
    cost = Cost(0.0, 0.0, (Tier(ANY_SIZE, 1.0),), "cuda")
    assert cost.time_us(way, "all_reduce", 4, 1000) == pytest.approx(3.0)
    assert explain("cuda", 2, 4 * K, algorithm="one_shot").wire_bytes == 8 * K


# ---- files --------------------------------------------------------------------------------------


def test_a_file_has_both_devices() -> None:
    both = tunings.tuning(2, 4).with_measured(tunings.measured(2, device="cuda"))
    again = parse(dump(both))
    assert [(m.device, m.ranks, m.gpu) for m in again.measured] == [
        ("cpu", 2, ""),
        ("cpu", 4, ""),
        ("cuda", 2, "a GPU"),
    ]
    assert {f.cost.device for f in again.measured[2].ways.values()} == {"cuda"}
    assert '"gpu": ""' not in dump(both), "as it was before there were such fields"


@pytest.mark.parametrize(("device", "gpu"), [("cuda", ""), ("cuda", None), ("cpu", "a GPU")])
def test_only_what_was_measured_on_a_gpu_names_one(device: str, gpu: str | None) -> None:
    content = json.loads(dump(tunings.tuning(2, device=device)))
    content["measured"][0].pop("gpu", None)
    if gpu is not None:
        content["measured"][0]["gpu"] = gpu
    with pytest.raises(TuningError, match=f"device {device} has gpu '{gpu or ''}'"):
        parse(json.dumps(content))


def test_predictions_count_while_nothing_was_measured(folder: Path) -> None:
    ways = [("one_shot", "ll"), ("two_shot", "ll"), ("ring", "ll"), ("ring", "simple")]
    for ranks in (4, 8, 16, 32):
        assert [row[1:] for row in tables.table("cuda", ranks)["automatic"]] == ways
    assert tables.table("cuda", 33)["automatic"] == tables.table("cuda", 33)["ring"]
    # A CPU's measurements do not apply to a GPU.
    keep(tunings.tuning(2))
    assert tables.source("cuda", 16) == (
        "costs predicted for 8 ranks of one process on one H100 by `python -m ringkern model`, "
        "not measured"
    )


def test_predictions_are_of_no_processor() -> None:
    here = identity.Identity("riscv64", 4, (), (), 7)
    assert tables.shipped(2, False, here).measured.device == "cpu"
    predicted = cache.read(cache.PREDICTED).machine
    assert not any(here.likeness(predicted) + HERE.likeness(predicted))


def test_the_users_own(folder: Path) -> None:
    keep(tunings.tuning(2, 8, device="cuda"))
    assert tables.source("cuda", 3) == (
        f"{cache.file_of(HERE)}, measured 2026-01-01 with 2 ranks of one process on one a GPU; "
        "between GPUs nothing was measured"
    )
    assert "with 8 ranks" in tables.source("cuda", 5)
    assert tables.table("cuda", 8) == tables.rows_for(
        tunings.measured(8, "2026-01-02", 2.0, "cuda"), 8
    )
    # On a GPU, more ranks than cores are no separate case.
    assert "with 8 ranks" in tables.source("cuda", 4 * HERE.cores + 8)
    keep(tunings.tuning(2).with_measured(tunings.measured(4, device="cuda")))
    assert "measured 2026-01-02 with 4 ranks of one" in tables.source("cuda", 8)
    assert tables.source("cpu", 2).endswith("with 2 ranks")


def test_a_file_of_a_gpu_says_nothing_of_a_cpu(folder: Path) -> None:
    keep(tunings.tuning(2, device="cuda"))
    found = tables.costs("cpu", 2)
    assert found is not None
    assert found.measured.device == "cpu"


# ---- tables -------------------------------------------------------------------------------------


def test_the_ring_need_not_be_ahead() -> None:
    """A CPU is different: its other ways have shared tensors to work in."""
    for device, chosen in (("cpu", "one_shot"), ("cuda", "ring")):
        found = tunings.measured(2, device=device)
        for key, fitted in found.ways.items():
            tier = Tier(ANY_SIZE, 1.0 / wire_bytes(key[1], key[0], 2, 1, device))
            us = {"ring": 0.96, "one_shot": 1.0, "two_shot": 2.0}[key[1].algorithm]
            cost = Cost(us, 0.0, (tier._replace(gb_s=tier.gb_s / us),), device)
            found.ways[key] = replace(fitted, cost=cost)
        assert tables.rows_for(found, 2)["automatic"][0][1] == chosen


@pytest.mark.parametrize("one_device", [False, True])
def test_ll128_unasked_is_for_one_device(one_device: bool) -> None:
    found = tunings.measured(2, device="cuda")
    for key, fitted in found.ways.items():
        if key[1].protocol == "ll128":
            cost = Cost(1e-3, 0.0, (Tier(ANY_SIZE, 1e4),), "cuda")
            found.ways[key] = replace(fitted, cost=cost)
    lists = tables.rows_for(found, 2, one_device)
    for name in ("automatic", "ring", "others"):
        assert ("ll128" in {row[2] for row in lists[name]}) == one_device, name


def test_only_so_many_ranks_do_without_the_ring() -> None:
    found = tunings.measured(2, device="cuda")
    for ranks, algorithms in ((32, {"one_shot", "two_shot", "ring"}), (33, {"ring"})):
        rows = tables.rows_for(found, ranks)["automatic"]
        assert {row[1] for row in rows} <= algorithms
        assert (rows[0][1] == "ring") == (ranks == 33)


def test_a_ring_on_one_device_reduces_in_place(folder: Path) -> None:
    for measured in (True, False):
        keep(tunings.tuning(2, device="cuda" if measured else "cpu"))
        alone, shared = tables.table("cuda", 4, one_device=True), tables.table("cuda", 4)
        for name in ("automatic", "in_rank_order", "two_shot"):
            assert alone[name] == [(ANY_SIZE, "two_shot", "simple")]
            assert shared[name] != alone[name]
        assert alone["one_shot"] == shared["one_shot"]
        assert tuple(alone) == _C.lists


@pytest.mark.parametrize(
    ("devices", "one_device"),
    [(["cuda:0"] * 3, True), ([0, "cuda:1"], False), (["cpu"] * 2, False), (["cuda"], True)],
)
def test_a_local_ring_says_whether_it_is_on_one_device(
    devices: list[int | str], one_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests it with a ring that is not on one: the test needs no GPU."""
    told = []

    class Nothing:
        def __init__(self, *_: object) -> None:
            pass

        def set_table(self, lists: dict[str, tables.Rows]) -> None:
            told.append(lists)

        def close(self) -> None:
            pass

    monkeypatch.setattr(_C, "LocalRing", Nothing)
    with local.Ring(devices) as ring:
        kind = ring.devices[0].type
        assert told == [tables.table(kind, len(devices), one_device)]
        assert (told[0]["automatic"] == [(ANY_SIZE, "two_shot", "simple")]) == one_device


# ---- explained ----------------------------------------------------------------------------------


def test_explained(folder: Path) -> None:
    found = tunings.tuning(2, device="cuda")
    way = ("all_reduce", Way("ring", "ll128"))
    best = Cost(1e-3, 0.0, (Tier(ANY_SIZE, 1e4),), "cuda")
    ways = found.measured[0].ways
    ways[way] = replace(ways[way], cost=best)
    keep(found)
    answer = explain("cuda", 2, 64)
    assert str(answer.way) == "one_shot/ll"
    assert answer.time_us == pytest.approx(
        tunings.cost_of(answer.way, "cuda").time_us(answer.way, "all_reduce", 2, 64), rel=1e-3
    )
    assert ", in a CUDA graph, " in str(answer)
    why = {str(one.way): one.why for one in answer.candidates}
    assert why["ring/ll128"].startswith("never chosen unasked")
    assert why["ring/simple"] == "slower"


# ---- measurements -------------------------------------------------------------------------------


class Machine:
    """Stands in for a GPU: its turns advance a simulated clock."""

    def __init__(self, ranks: int, slower: float = 1.0) -> None:
        self.ranks, self.slower, self.now = ranks, slower, 0.0
        self.captured: list[Cell] = []
        self.turns: list[Cell] = []

    def turn_of(self, cell: Cell) -> Callable[[], float]:
        self.captured.append(cell)

        def turn() -> float:
            self.turns.append(cell)
            time_us = h100(self.ranks, cell)
            self.now += self.slower * (1e-4 + 2e-6 * time_us)
            return time_us

        return turn

    def contest(
        self, monkeypatch: pytest.MonkeyPatch, seconds: float, said: io.StringIO | None = None
    ) -> trials.Trials:
        monkeypatch.setattr(on_cuda.time, "monotonic", lambda: self.now)
        sizes = tune.sizes_for(self.ranks, GPU.free_bytes)
        return on_cuda.contest(self.turn_of, sizes, seconds, Progress(said, seconds))


def test_every_way_has_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(2)
    monkeypatch.setattr(trials, "HOPELESS", 3.0)
    found = machine.contest(monkeypatch, 16.0)
    assert machine.now < 16.0
    sizes = tune.sizes_for(2, GPU.free_bytes)
    assert sizes[-1] == 256 * M
    measured = {
        (name, way): [size for size, _ in found.points(name, way)]
        for name in COLLECTIVES
        for way in ways_of(name, "cuda")
    }
    assert measured["all_reduce", Way("ring", "simple")] == list(sizes)
    assert measured["all_gather", Way("ring", "ll128")] == list(sizes)
    # Three times slower than the best at two sizes in a row.
    assert measured["all_reduce", Way("ring", "ll")] == [size for size in sizes if size < 64 * M]
    direct = [size for size in sizes if size <= on_cuda.DIRECT_MOST]
    assert measured["all_reduce", Way("two_shot", "ll")] == direct
    assert {len(turns) for turns in found.turns.values()} == {trials.MOST_PASSES}
    assert len(machine.captured) == len(set(machine.captured)) == len(found.turns)
    first, second = machine.turns[:11], machine.turns[11:22]
    assert second == first[::-1], "nobody is always the first"


def test_tuning_keeps_to_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With little time there are fewer turns at each size, and then no larger sizes."""
    machine = Machine(8)
    found = machine.contest(monkeypatch, 1.2)
    assert machine.now < 2.2
    turns = {len(turns) for cell, turns in found.turns.items() if cell.size == 256 * M}
    assert turns == {on_cuda.LEAST_TURNS}
    machine, said = Machine(8, slower=1000.0), io.StringIO()
    found = machine.contest(monkeypatch, 5.0, said)
    sizes = sorted({cell.size for cell in found.turns})
    assert len(sizes) >= trials.LEAST_SIZES
    assert "no time for sizes from " in said.getvalue()
    assert all(len(turns) >= on_cuda.LEAST_TURNS for turns in found.turns.values())


@pytest.mark.parametrize("ranks", H100)
def test_the_costs_fit_the_times_of_an_h100(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Machine(ranks).contest(monkeypatch, 16.0)
    monkeypatch.undo()
    found.base_us = dict.fromkeys(COLLECTIVES, 1.0)
    real, asked = tune.fit.fit, list[dict[str, Any]]()
    monkeypatch.setattr(tune.fit, "fit", lambda *of, **how: asked.append(how) or real(*of, **how))
    measured, fits = tune.fitted(found, ranks, (7,), "a command", GPU)
    assert {how["bounds"] for how in asked} == {(GPU.l2_bytes // ranks,)}
    assert (measured.device, measured.gpu) == ("cuda", GPU.name)
    assert {one.cost.device for one in measured.ways.values()} == {"cuda"}
    assert tune.overall(measured)[0] < 0.05
    assert len(fits) == 11
    lists = tables.rows_for(measured, ranks)
    close, of = tune.choice_within(measured, lists["automatic"], 1.05)
    assert close == of
    for name, size, best in (
        ("automatic", 8 * K, "one_shot/ll"),
        ("automatic", 16 * M, "ring/simple"),
        ("ring", 8 * K, "ring/ll"),
        ("in_rank_order", 8 * K, "one_shot/ll"),
    ):
        assert str(tables.way_of(lists[name], size)) == best


def test_the_calls_that_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a ring of the CPU: the right tensors, and numbers that stay finite."""
    captured = []

    def kept(call: Callable[[], object], calls: int, refill: Callable[[], None]) -> on_cuda.Turn:
        captured.append((call, calls, refill))
        return lambda: 1.0

    monkeypatch.setattr(on_cuda, "_turn", kept)
    with local.Ring(["cpu"] * 3) as ring:
        tested = on_cuda.Calls(ring, 64 * K)
        ways = (*RING, Way("one_shot", "ll"))
        for size, name in itertools.product((8, 1000, 64 * K), COLLECTIVES):
            for way in ways if name == "all_reduce" else RING:
                tested.turn_of(Cell(name, way, size))
                call, calls, refill = captured.pop()
                refill()
                before = [tensor.clone() for tensor in tested._tensors]
                call()
                count = size // 4 if name == "all_reduce" else max(1, size // 4 // 3) * 3
                changed = [
                    (tensor != old).nonzero().flatten()
                    for tensor, old in zip(tested._tensors, before)
                ]
                assert all(len(places) for places in changed)
                assert max(int(places[-1]) for places in changed) < count
                if name == "all_reduce":
                    assert torch.equal(tested._tensors[0], tested._tensors[1]) or size < 64 * K
                for _ in range(calls + 2):
                    call()
                assert all(bool(tensor.isfinite().all()) for tensor in tested._tensors)
                refill()
                assert all(map(torch.equal, tested._tensors, before))
        assert [tested.turn_of(Cell(COLLECTIVES[0], RING[0], s))() for s in (8, M, 64 * M)]
        assert [calls for _, calls, _ in captured] == [20, 5, 2]
        assert tested.launch_us() == 1.0


def test_a_turn_is_the_replay_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events surround the replay, and earlier work hides the launch, so that it does not count."""
    done: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            done.append("event")

        def synchronize(self) -> None:
            done.append("wait")

        def elapsed_time(self, end: Event) -> float:
            return 3.0

    class Graph:
        def replay(self) -> None:
            done.append("replay")

    @contextlib.contextmanager
    def graph(_: Graph, *, capture_error_mode: str) -> Iterator[None]:
        done.append("capture")
        yield
        done.append("captured")

    for name, instead in (("Event", Event), ("CUDAGraph", Graph), ("graph", graph)):
        monkeypatch.setattr(torch.cuda, name, instead)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: done.append("sleep"))
    turn = on_cuda._turn(lambda: done.append("call"), 3, lambda: done.append("refill"))
    warm, capture = ["refill", "call", "call", "wait"], ["capture", *["call"] * 3, "captured"]
    assert done == [*warm, *capture, "replay", "wait"]
    done.clear()
    assert turn() == pytest.approx(1000.0)
    assert done == ["refill", "sleep", "event", "replay", "event", "wait"]


@pytest.mark.parametrize("ranks", [2, 32, 64])
def test_numbers_stay_finite(ranks: int) -> None:
    bits = (ranks - 1).bit_length()
    calls = 2 + min(20, on_cuda.MOST_BITS // bits)  # before the tensors are refilled
    assert 8 * on_cuda.SCALE * 2.0 ** (bits * calls) < torch.finfo(torch.float32).max


# ---- the command --------------------------------------------------------------------------------


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    return parser.parse_args(["--device", "cuda", *given])


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for kernels, said in ((True, "finds no GPU here"), (False, "built without CUDA kernels")):
        monkeypatch.setattr(_C, "build_info", lambda kernels=kernels: {"cuda": kernels})
        with pytest.raises(ValueError, match=f"--device cuda: .*{re.escape(said)}"):
            tune.run(arguments())


def test_tuning_keeps_its_measurements(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def measure(ranks: int, sizes: tuple[int, ...], end: float) -> trials.Trials:
        asked.append((ranks, sizes[-1]))
        machine = Machine(8)
        with pytest.MonkeyPatch.context() as patch:
            found = machine.contest(patch, 16.0)
        found.base_us = dict.fromkeys(COLLECTIVES, 1.0)
        return found

    monkeypatch.setattr(on_cuda, "current", lambda: GPU)
    monkeypatch.setattr(on_cuda, "measure", measure)
    monkeypatch.setattr(tune.quiet, "disturbances", lambda *_: pytest.fail("that is of a CPU"))
    assert tune.run(arguments("--seconds", "50")) == 0
    text = capsys.readouterr().out
    assert asked == [(2, 256 * M), (4, 256 * M), (8, 256 * M)]
    command = "python -m ringkern tune --device cuda -n 2,4,8 --seconds 50"
    assert f"; 8 ranks of one process on one {GPU.name}, " in text
    assert text.count(command) == 3
    assert "shared" not in text
    path = cache.file_of(HERE)
    assert f"# kept in {path}" in text
    kept = cache.read(path)
    assert [(m.device, m.ranks, m.gpu) for m in kept.measured] == [
        ("cuda", ranks, GPU.name) for ranks in (2, 4, 8)
    ]
    assert tables.source("cuda", 8).startswith(f"{path}, measured ")
    assert tables.table("cuda", 8) == tables.rows_for(kept.measured[2], 8)
    assert "ringkern's default" in tables.source("cpu", 2)

    pytest.importorskip("matplotlib")
    out, plot = folder / "out.json", folder / "fit.svg"
    assert tune.run(arguments("-n", "3", "--out", str(out), "--plot", str(plot))) == 0
    assert [m.ranks for m in cache.read(out).measured] == [3]
    assert "<svg" in plot.read_text()
