"""``python -m ringkern tune``: its measurements, the costs that it fits, and the file that it
writes.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ringkern import _C
from ringkern.choose import cache, identity, tables
from ringkern.choose.cost import ANY_SIZE, Cost, Tier, Way
from ringkern.choose.tuning import COLLECTIVES, RING, ways_of
from ringkern.tools import launch
from ringkern.tools.tune import command as tune
from ringkern.tools.tune import fit, trials
from ringkern.tools.tune.trials import Cell, Progress, Trials
from tests.torch import tunings
from tests.torch.tunings import ON_CPU as DIRECT

LIMIT_S = 120
SIZES = [2**i for i in range(3, 29)]


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    return parser.parse_args(given)


# ---- the fit ------------------------------------------------------------------------------------


@given(
    hnp.arrays(float, st.tuples(st.integers(1, 12), st.integers(1, 6)), elements=st.floats(-9, 9)),
    st.integers(0, 2**32 - 1),
)
def test_no_other_numbers_from_zero_on_are_nearer(rows: np.ndarray, seed: int) -> None:
    """Checks the two optimality conditions: no descent direction inside the allowed region."""
    wanted = np.random.default_rng(seed).uniform(-5, 5, len(rows))
    found, squares = fit.least_squares(rows.tolist(), wanted.tolist())
    x = np.array(found)
    assert (x >= 0).all()
    assert squares == pytest.approx(((rows @ x - wanted) ** 2).sum(), rel=1e-6, abs=1e-9)
    length = np.maximum(np.linalg.norm(rows, axis=0), 1e-300)
    slope = rows.T @ (wanted - rows @ x) / length
    scale = 1e-5 * (1 + np.linalg.norm(wanted))
    real = length > 1e-9  # directions of almost zero length are noise
    assert (slope[real] <= scale).all()
    assert (np.abs(slope[real & (x * length > 1e-4)]) <= scale).all()


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(
    ("collective", "way"),
    [(c, w) for c in COLLECTIVES for w in (*DIRECT, *RING) if w in ways_of(c, "cpu")],
)
def test_a_cost_is_found_again(collective: str, way: Way, ranks: int) -> None:
    real = Cost(0.05, 0.2, (Tier(48 << 10, 30.0), Tier(1 << 20, 14.0), Tier(ANY_SIZE, 5.0)))
    points = [(size, real.time_us(way, collective, ranks, size)) for size in SIZES]
    found = fit.fit(
        points, way, collective, ranks, base_us=0.05, bounds=(48 << 10, 1 << 20, 32 << 20)
    )
    assert found.hop_us == pytest.approx(0.2, rel=1e-3)
    assert [tier.up_to for tier in found.tiers] == [48 << 10, 1 << 20, ANY_SIZE]
    assert [tier.gb_s for tier in found.tiers] == pytest.approx([30.0, 14.0, 5.0], rel=1e-3)
    assert fit.errors(found, points, way, collective, ranks).worst < 1e-3


def test_bounds_that_nobody_named_are_found() -> None:
    real = Cost(0.0, 0.2, (Tier(1 << 14, 30.0), Tier(1 << 20, 2.0), Tier(ANY_SIZE, 20.0)))
    points = [(size, real.time_us(RING[0], "all_reduce", 2, size)) for size in SIZES]
    found = fit.fit(points, RING[0], "all_reduce", 2, bounds=(48 << 10, 32 << 20))
    assert fit.errors(found, points, RING[0], "all_reduce", 2).worst < 0.05


def test_noise_is_not_followed() -> None:
    real = Cost(0.0, 0.2, (Tier(1 << 20, 14.0), Tier(ANY_SIZE, 5.0)))
    dice = random.Random(3)
    points = [
        (size, real.time_us(RING[0], "all_reduce", 2, size) * dice.uniform(0.92, 1.08))
        for size in SIZES
    ]
    found = fit.fit(points, RING[0], "all_reduce", 2, bounds=(48 << 10, 1 << 20, 32 << 20))
    assert len(found.tiers) <= 4
    far = [
        found.time_us(RING[0], "all_reduce", 2, 3 * size)
        / real.time_us(RING[0], "all_reduce", 2, 3 * size)
        for size in SIZES
    ]
    assert max(abs(ratio - 1) for ratio in far) < 0.1


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=26))
def test_any_measurement_gives_a_cost(times: list[float]) -> None:
    points = list(zip(SIZES, times))
    found = fit.fit(points, DIRECT[0], "all_reduce", 2, base_us=0.1, bounds=(48 << 10, 1 << 20))
    assert found.base_us <= min(times)
    assert found.hop_us >= 0
    assert len(found.tiers) <= fit.MOST_TIERS
    assert all(tier.gb_s > 0 and math.isfinite(tier.gb_s) for tier in found.tiers)
    predicted = [found.time_us(DIRECT[0], "all_reduce", 2, size) for size in SIZES]
    assert predicted == sorted(predicted)


def test_points_that_are_none() -> None:
    for points in ([], [(0, 1.0)], [(8, 0.0)]):
        with pytest.raises(ValueError, match="sizes and times above 0"):
            fit.fit(points, RING[0], "all_reduce", 2)


# ---- the trials ---------------------------------------------------------------------------------


def made_up() -> Trials:
    """Returns trials that follow a cost, some of them disturbed."""
    found = Trials(base_us=dict.fromkeys(COLLECTIVES, 0.05))
    dice = random.Random(4)
    for name in COLLECTIVES:
        for way in ways_of(name, "cpu"):
            for size in SIZES:
                time_us = tunings.cost_of(way).time_us(way, name, 2, size)
                drawn = [dice.choice([(1.0, 0), (1.0, 0), (1.01, 0), (3.0, 1)]) for _ in range(15)]
                turns = [trials.block(time_us * factor, lost) for factor, lost in drawn]
                found.turns[Cell(name, way, size)] = turns
    return found


def test_disturbed_measurements_do_not_count() -> None:
    found = made_up()
    measured, fits = tune.fitted(found, 2, tunings.MACHINE.caches, "a command")
    assert max(one.errors.worst for one in fits) < 0.05
    for (name, way), fitted in measured.ways.items():
        real = tunings.cost_of(way)
        for size, time_us in fitted.points:
            assert time_us == pytest.approx(real.time_us(way, name, 2, size), rel=0.02)
    lists = tables.rows_for(measured, 2)
    wanted = tables.rows_for(tunings.measured(2), 2)
    assert [row[1:] for row in lists["automatic"]] == [row[1:] for row in wanted["automatic"]]
    # The ring is not chosen where it is ahead by less than 10 %.
    assert tune.choice_within(measured, lists["automatic"], 1.05) == (25, 26)
    assert tune.choice_within(measured, lists["automatic"], 1.12) == (26, 26)
    wrong = tables.rows_of({RING[2]: [1.0] * len(tables.SIZES)})
    assert tune.choice_within(measured, wrong, 1.05)[0] < len(SIZES)


class _Machine:
    """Stands in for calls: returns the times of a way without making any."""

    def __init__(self, slow: Way) -> None:
        self.slow, self.asked = slow, list[tuple[Cell, int]]()

    def times_us(self, cell: Cell, calls: int) -> list[float]:
        self.asked.append((cell, calls))
        factor = 10.0 if cell.way == self.slow else 1.0
        return [factor * max(1.0, cell.size / 1e3)] * calls


def work(monkeypatch: pytest.MonkeyPatch, machine: _Machine, sizes: list[int]) -> trials._Work:
    monkeypatch.setattr(trials, "_slowest", list)
    found = trials._Work(machine, Progress(None, 1.0))  # type: ignore[arg-type]
    found.look(tuple(sizes), math.inf)
    return found


def test_a_hopeless_way_is_not_measured_at_larger_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [8, 1024, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 16 << 20]
    found = work(monkeypatch, _Machine(RING[1]), sizes)
    found.repeat(0.0)
    for name in COLLECTIVES:
        for way in ways_of(name, "cpu"):
            measured = [size for size, _ in found.trials.points(name, way)]
            # Two that count, after all the warm-up.
            assert measured == (sizes[:5] if way == RING[1] else sizes), (name, way)


def test_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time there is one pass; small sizes have more turns in it than large ones."""
    machine = _Machine(RING[1])
    found = work(monkeypatch, machine, [8, 1 << 20, 64 << 20])
    machine.asked.clear()
    found.repeat(0.0)
    for cell, turns in found.trials.turns.items():
        assert len(turns) == (trials.TURNS if cell.size == 8 else 1), cell
    calls = {cell: calls for cell, calls in machine.asked if calls != trials.MEETING}
    assert calls[Cell("all_reduce", RING[0], 8)] == 2200, "and a tenth to get warm"
    assert calls[Cell("all_reduce", RING[0], 64 << 20)] == 1


def test_trials_go_from_process_to_process() -> None:
    found = made_up()
    again = Trials.load(found.dump())
    assert again == found
    assert again.points("all_reduce", RING[0]) == found.points("all_reduce", RING[0])


def test_sizes_for_which_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def machine(_: Cell, calls: int) -> list[float]:
        nonlocal now
        now += 0.1
        return [1.0] * calls

    monkeypatch.setattr(trials.time, "monotonic", lambda: now)
    monkeypatch.setattr(trials, "_slowest", list)
    stream = io.StringIO()
    found = trials._Work(SimpleNamespace(times_us=machine), Progress(stream, 1.0))  # type: ignore[arg-type]
    # 1.2 s each, and the next may take 2.5 times as long.
    found.look((8, 64, 512, 4096, 8192), end=7.0)
    assert {cell.size for cell in found.trials.turns} == {8, 64, 512, 4096}
    assert "no time for sizes above 4096 bytes; raise --seconds" in stream.getvalue()


def test_a_turn_counts_on_the_slowest_rank_if_none_lost_its_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    way, lost = RING[0], iter([0, 0, 0, 7])
    found = trials._Work(_Machine(RING[1]), Progress(None, 1.0))  # type: ignore[arg-type]
    found._in_a_row[Cell("all_reduce", way, 8)] = 3
    found.trials.turns[Cell("all_reduce", way, 8)] = []
    monkeypatch.setattr(trials, "preemptions", lambda: next(lost))
    monkeypatch.setattr(trials, "TURNS", 1)
    # Another rank's calls took 2, 9 and 4 us; one turn was preempted twice.
    others = iter([[2.0, 9.0, 4.0, 0.0, 0.0], [70.0, 70.0, 70.0, 2.0, 1.0]])
    monkeypatch.setattr(
        trials, "_slowest", lambda mine: [max(pair) for pair in zip(mine, next(others))]
    )
    found.repeat(math.inf)
    [first, second] = found.trials.turns[Cell("all_reduce", way, 8)]
    assert (first.median_us, first.preempted) == (4.0, 0)
    assert (second.median_us, second.preempted) == (70.0, 7)
    assert found.trials.points("all_reduce", way) == [(8, 4.0)]


def test_sizes_fit_into_memory() -> None:
    sizes = tune.sizes_for(2, 64 << 30)
    assert (sizes[0], sizes[-1]) == (8, 256 << 20)
    assert 18 <= len(sizes) <= 20
    assert all(size % 8 == 0 for size in sizes)
    assert max(tune.sizes_for(8, 1 << 30)) <= (1 << 28) // 8


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(trials.time, "monotonic", lambda: now)
    for stream in (io.StringIO(), _Terminal(), None):
        now = 100.0
        progress = Progress(stream, 10.0)
        for _ in range(120):
            now += 0.125
            progress.show("pass 1")
        progress.end("15 passes")
        if stream is None:
            continue
        text = stream.getvalue()
        assert text.endswith("tune: 15 passes in 15.0 s\n")
        if stream.isatty():
            assert "\r[###############...............]  50%  pass 1" in text
            assert text.count("\n") == 1
        else:
            assert "\r" not in text
            assert "tune: 50%, pass 1\n" in text
            assert text.count("\n") == 12


# ---- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["-n", "1"], "from 2 to 64"),
        (["-n", "2,x"], "from 2 to 64"),
        (["--seconds", "0"], "above 0"),
        (["--seconds", "nan"], "above 0"),
        (["--sizes", "4"], "from 8 on"),
    ],
)
def test_bad_arguments(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(*given)
    assert said in capsys.readouterr().err


def test_bad_options_are_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "launch", lambda *_: pytest.fail("ranks were started"))
    with pytest.raises(ValueError, match="--seconds 19: give 10 or more for each number"):
        tune.run(arguments("-n", "2,4", "--seconds", "19"))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "scipy", None)
        with pytest.raises(ValueError, match="pip install scipy"):
            tune.run(arguments())
    (tmp_path / "ringkern").write_text("")
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        with pytest.raises(OSError, match="set XDG_CACHE_HOME"):
            tune.run(arguments())
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="without torchrun"):
        tune.run(arguments())


def test_ranks_that_fail_leave_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "launch", lambda *_, **__: 7)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tune.run(arguments()) == 7
    assert list((tmp_path / "ringkern").iterdir()) == []


PROGRAM = """
import argparse, sys
from ringkern.tools.tune import command as tune
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    sys.exit(tune.run(parser.parse_args()))
"""


def test_the_next_program_uses_a_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small tuning: its values are not checked, only that it is measured, kept and used."""
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "programs").mkdir()  # apart from the cache, whose folder has the name of a package
    (tmp_path / "programs" / "program.py").write_text(PROGRAM)
    plot = tmp_path / "fit.svg"
    given = ["-n", "2", "--seconds", "1", "--sizes", "8,4096,300000", "--even-if-busy"]
    done = subprocess.run(
        [
            sys.executable,
            str(tmp_path / "programs" / "program.py"),
            *given,
            "--json",
            "--plot",
            str(plot),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "passes over" in done.stderr
    assert "<svg" in plot.read_text()

    said = json.loads(done.stdout)
    path = cache.file_of(identity.of_this_machine(_C.wire_version))
    assert said["file"] == str(path)
    assert list((tmp_path / "ringkern").iterdir()) == [path]
    kept = cache.read(path)
    assert [m.ranks for m in kept.measured] == [2]
    assert (
        kept.measured[0].command == "python -m ringkern tune -n 2 --seconds 1 --sizes " + given[-2]
    )
    for (name, way), fitted in kept.measured[0].ways.items():
        assert [size for size, _ in fitted.points] in ([8, 4096, 300000], [8, 4096]), (name, way)
        assert all(time_us > 0 for _, time_us in fitted.points)
    assert len(said["measured"][0]["errors"]) == 12
    assert said["measured"][0]["median_error"] >= 0

    program = (
        "from ringkern.choose import tables\n"
        "print(tables.source('cpu', 2)); print(tables.table('cpu', 2))"
    )
    after = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout.splitlines()
    assert after[0].startswith(f"{path}, measured ")
    assert after[1] == str(tables.rows_for(kept.measured[0], 2))


def test_a_dry_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def instead(ranks: int, limit_s: float, entry: object, *args: object, cores: int) -> int:
        (_, _, file) = args
        assert isinstance(file, Path)
        file.write_text(made_up().dump())
        return 0

    busy = ["other programs used 60% of the cores"]
    monkeypatch.setattr(tune.quiet, "disturbances", lambda *_: busy)

    monkeypatch.setattr(launch, "launch", instead)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tune.run(arguments()) == 1
    text, said = capsys.readouterr()
    assert "# disturbed: other programs used 60% of the cores\n# nothing was written" in text
    assert "give --even-if-busy" in said
    assert list((tmp_path / "ringkern").iterdir()) == []
    assert tune.run(arguments("--even-if-busy")) == 0
    assert "# disturbed: " in capsys.readouterr().out
    [kept] = (tmp_path / "ringkern").iterdir()
    kept.unlink()
    busy.clear()
    assert tune.run(arguments("--dry-run")) == 0
    text = capsys.readouterr().out
    assert "# nothing was written" in text
    assert "automatic: one_shot/ll below " in text
    assert "# auto: within 5 % of the quickest way at 25 of 26 sizes" in text
    assert list((tmp_path / "ringkern").iterdir()) == []

    # A tuning that changes the choice, for two numbers of ranks.
    tables.forget()
    assert tune.run(arguments("-n", "2,64")) == 0
    text = capsys.readouterr().out
    path = cache.file_of(identity.of_this_machine(_C.wire_version))
    assert f"# kept in {path}" in text
    assert "64 ranks shared" in text
    assert tables.source("cpu", 2).startswith(str(path)), "this process, too"
    assert [m.ranks for m in cache.read(path).measured] == [2, 64]
    tables.forget()
