"""The choice of "auto": tables computed from costs, and the files of the costs."""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import random
import re
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkern import _C
from ringkern.choose import cache, identity, tables
from ringkern.choose.cost import ANY_SIZE, Way
from ringkern.choose.identity import Identity
from ringkern.choose.tuning import RING, Tuning, TuningError, dump, parse, ways_of
from tests.torch import tunings
from tests.torch.tunings import MACHINE
from tests.torch.tunings import ON_CPU as DIRECT

HERE = identity.of_this_machine(_C.wire_version)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sets the folder of this machine's tuning; empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tables.forget()
    yield tmp_path / "ringkern"
    tables.forget()


# ---- tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", tables.DEVICES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8, 100, 1024])
def test_a_table_is_what_the_extension_takes(device: str, ranks: int) -> None:
    lists = tables.table(device, ranks)
    assert tuple(lists) == _C.lists
    for name, rows in lists.items():
        sizes = [below for below, *_ in rows]
        assert sizes == sorted(set(sizes))
        assert sizes[0] > 0
        assert sizes[-1] == ANY_SIZE
        assert len(rows) <= _C.most_rows
        for _, algorithm, protocol in rows:
            if name in _C.algorithms:
                assert algorithm == name
            elif name == "in_rank_order":
                assert algorithm != "ring"
            elif name == "others":
                assert algorithm == "ring"
            if device == "cpu":
                assert Way(algorithm, protocol) in (*DIRECT, *RING)
            else:
                assert protocol != "ll128"
                assert algorithm == "ring" or protocol == "ll"
    for collective, name in (("all_reduce", "automatic"), ("all_gather", "others")):
        for below, *_ in lists[name][:-1]:
            for nbytes in (below - 1, below):
                chosen = _C.choose(device, lists, collective, "int8", nbytes, *NOTHING)
                assert Way(*chosen) == tables.way_of(lists[name], nbytes)


NOTHING = ("auto", "auto", False, False)  # no request


def test_rows_change_where_the_costs_do() -> None:
    """Compares with the costs: at each size the way of the rows is as good as the best."""
    for ranks in (2, 3, 8):
        found = tunings.measured(ranks)
        lists = tables.rows_for(found, ranks)
        for name, ways in (("automatic", ways_of("all_reduce", "cpu")), ("in_rank_order", DIRECT)):
            assert len(lists[name]) >= 3
            for i in range(12, 260):
                size = round(2 ** (i / 10))
                times = {
                    way: tunings.cost_of(way).time_us(way, "all_reduce", ranks, size)
                    * (1.1 if name == "automatic" and way.algorithm == "ring" else 1.0)
                    for way in ways
                }
                chosen = tables.way_of(lists[name], size)
                # Where three lines meet, one of them may be best over too short a range.
                assert times[chosen] <= 1.04 * min(times.values()), (name, ranks, size)
        for size in (8, 1 << 12, 1 << 24):
            times = {
                way: sum(
                    tunings.cost_of(way).time_us(way, collective, ranks, size * ranks)
                    for collective in ("reduce_scatter", "all_gather")
                )
                for way in RING
            }
            assert tables.way_of(lists["others"], size) == min(times, key=times.__getitem__)


def test_the_first_size_of_a_row_has_its_way() -> None:
    rows: tables.Rows = [(10, "one_shot", "ll"), (ANY_SIZE, "ring", "simple")]
    assert tables.way_of(rows, 9) == Way("one_shot", "ll")
    assert tables.way_of(rows, 10) == Way("ring", "simple")


def _constant(value: float) -> list[float]:
    return [value] * len(tables.SIZES)


def test_the_ring_has_to_be_ahead_of_the_ways_that_take_none() -> None:
    for ratio, algorithm in ((0.95, "two_shot"), (0.85, "ring")):
        found = tunings.measured(2)
        direct = found.ways["all_reduce", DIRECT[0]]
        for key, fitted in found.ways.items():
            share = ratio if key == ("all_reduce", RING[0]) else 2.0
            tiers = tuple(tier._replace(gb_s=tier.gb_s / share) for tier in direct.cost.tiers)
            cost = replace(direct.cost, hop_us=0.0, base_us=0.1 * share, tiers=tiers)
            found.ways[key] = replace(fitted, cost=cost)
        found.ways["all_reduce", DIRECT[0]] = replace(
            direct, cost=replace(direct.cost, hop_us=0.0, base_us=0.1)
        )
        lists = tables.rows_for(found, 2)
        assert [row[1] for row in lists["automatic"]] == [algorithm]
        assert [row[2] for row in lists["ring"]] == ["simple"], "among themselves they are equal"


def test_a_small_gain_over_a_short_range_makes_no_row() -> None:
    steady, dips = _constant(1.0), _constant(1.1)
    for i in range(100, 100 + tables.SAMPLES // 2):
        dips[i] = 0.985
    assert len(tables.rows_of({RING[0]: steady, RING[1]: dips})) == 1
    for i in range(100, 100 + 4 * tables.SAMPLES):  # a gain that is worth a row
        dips[i] = 0.95
    rows = tables.rows_of({RING[0]: steady, RING[1]: dips})
    assert [protocol for *_, protocol in rows] == ["simple", "ll", "simple"]


def test_the_first_of_equal_ways_is_taken() -> None:
    times = {way: _constant(2.0) for way in (RING[1], RING[0])}
    assert tables.rows_of(times) == [(ANY_SIZE, "ring", "ll")]


def test_no_more_rows_than_there_is_room_for() -> None:
    dice = random.Random(5)
    jumping = {way: [dice.uniform(1, 9) for _ in tables.SIZES] for way in (*DIRECT, *RING)}
    for i in range(len(tables.SIZES)):
        jumping[RING[i // 20 % 3]][i] = 0.1
    assert 2 <= len(tables.rows_of(jumping)) <= _C.most_rows


@given(st.lists(st.lists(st.floats(0, 3), min_size=3, max_size=3), min_size=1, max_size=6))
def test_the_rows_cost_as_little_as_can_be(lost: list[list[float]]) -> None:
    """Compares with every assignment of ways to samples."""
    price = 0.5

    def total(ways: list[int]) -> float:
        changes = sum(a != b for a, b in itertools.pairwise(ways))
        return sum(row[way] for row, way in zip(lost, ways)) + price * changes

    every: list[list[int]] = [[]]
    for _ in lost:
        every = [[*some, way] for some in every for way in range(3)]
    rows = tables._cheapest(lost, price)
    firsts = [first for first, _ in rows]
    assert firsts == sorted(set(firsts))
    assert firsts[0] == 0
    ways = [[way for first, way in rows if first <= i][-1] for i in range(len(lost))]
    assert total(ways) == pytest.approx(min(map(total, every)))


def test_a_way_is_not_taken_where_it_was_hopeless_and_not_measured() -> None:
    found = tunings.measured(2)
    lines = found.ways["all_reduce", Way("one_shot", "ll")]
    # Would be the best at large sizes, if the measurement were credible.
    cost = replace(lines.cost, tiers=(lines.cost.tiers[-1]._replace(gb_s=1e4),))
    found.ways["all_reduce", Way("one_shot", "ll")] = replace(lines, cost=cost)
    assert tables.way_of(tables.rows_for(found, 2)["automatic"], 1 << 28) == Way("one_shot", "ll")
    short = replace(lines, cost=cost, points=lines.points[:2])
    found.ways["all_reduce", Way("one_shot", "ll")] = short
    lists = tables.rows_for(found, 2)
    assert tables.way_of(lists["automatic"], 4096) == Way("one_shot", "ll")
    assert tables.way_of(lists["automatic"], 1 << 28) != Way("one_shot", "ll")
    # A guess is used only where nothing else is left.
    simple = found.ways["all_reduce", Way("one_shot", "simple")]
    found.ways["all_reduce", Way("one_shot", "simple")] = replace(simple, points=simple.points[:2])
    assert tables.way_of(tables.rows_for(found, 2)["one_shot"], 1 << 28) == Way("one_shot", "ll")


def test_a_ring_of_one_has_the_table_of_two() -> None:
    """A ring of one moves nothing; a way may have no fixed cost."""
    found = tunings.measured(2)
    for key, fitted in found.ways.items():
        found.ways[key] = replace(fitted, cost=replace(fitted.cost, base_us=0.0))
    assert tables.rows_for(found, 1) == tables.rows_for(found, 2)


# ---- the choice of the file ---------------------------------------------------------------------


def put(folder: Path, tuning: Tuning) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = cache.file_of(HERE)
    assert path.parent == folder
    cache.write(path, tuning)
    tables.forget()
    return path


def test_the_users_own_comes_first(folder: Path) -> None:
    assert "ringkern's default" in tables.source("cpu", 2)
    path = put(folder, tunings.tuning(2, machine=HERE))
    assert tables.source("cpu", 2) == f"{path}, measured 2026-01-01 with 2 ranks"
    assert tables.table("cpu", 2) == tables.rows_for(tunings.measured(2), 2)
    assert tables.table("cpu", 2) is tables.table("cpu", 2), "made once"
    path.unlink()
    assert tables.source("cpu", 2).startswith(str(path)), "read once"


def test_ranks_that_share_cores_are_a_case_of_their_own(folder: Path) -> None:
    cores = HERE.cores
    put(folder, tunings.tuning(2, cores + 2, machine=HERE))
    few = min(2, cores)
    assert f"with {few} ranks" in tables.source("cpu", few) or cores < 2
    assert f"with {cores + 2} ranks" in tables.source("cpu", 4 * cores)
    put(folder, tunings.tuning(cores + 2, machine=HERE))
    if cores >= 2:  # ranks with a core each have no separate table
        assert "ringkern's default" in tables.source("cpu", 2)
    assert "ringkern's default" not in tables.source("cpu", cores + 1)


def test_the_nearest_number_of_ranks() -> None:
    known = tunings.tuning(2, 3, 16, 64, machine=replace(MACHINE, cores=16))
    for ranks, expected in ((2, 2), (3, 3), (5, 3), (7, 16), (16, 16)):
        assert (
            tables._nearest(known, "cpu", ranks, False)
            is known.measured[[2, 3, 16].index(expected)]
        )
    assert tables._nearest(known, "cpu", 17, True) is known.measured[3]
    assert tables._nearest(tunings.tuning(2), "cpu", 17, True) is None


def test_a_table_for_ranks_that_nobody_measured_is_scaled() -> None:
    """Two rounds of the ring's wait against one of two_shot's: 8 ranks leave the ring earlier."""
    found = tunings.measured(2)
    at = {
        ranks: next(
            below
            for below, algorithm, _ in tables.rows_for(found, ranks)["automatic"]
            if algorithm == "two_shot"
        )
        for ranks in (2, 8)
    }
    assert at[8] > at[2]


GOOD = dump(tunings.tuning(2, machine=HERE))


def _changed(**changes: Any) -> str:
    return json.dumps({**json.loads(GOOD), **changes})


def _with_way(**changes: Any) -> str:
    content = json.loads(GOOD)
    content["measured"][0]["ways"][0].update(changes)
    return json.dumps(content)


def _with_measured(**changes: Any) -> str:
    content = json.loads(GOOD)
    content["measured"][0].update(changes)
    return json.dumps(content)


BROKEN = {
    "empty": "",
    "cut off": GOOD[: len(GOOD) // 2],
    "a list": "[]",
    "deep": "[" * 100_000,
    "no utf-8": b"\xff\xfe",
    "another format": _changed(format="tuning"),
    "another version": _changed(version=2),
    "more than it says": _changed(more=1),
    "no machine": _changed(machine=None),
    "another machine": dump(tunings.tuning(2)),
    "nothing measured is no list": _changed(measured={}),
    "NaN": GOOD.replace('"hop_us": 0.', '"hop_us": NaN, "x": 0.', 1),
    "infinite": _with_way(hop_us=1e999),
    "negative": _with_way(base_us=-1),
    "a number as text": _with_way(base_us="1"),
    "a number that is a truth": _with_way(base_us=True),
    "no tiers": _with_way(tiers=[]),
    "tiers that fall": _with_way(tiers=[[9, 1.0], [8, 1.0], [None, 1.0]]),
    "tiers that end": _with_way(tiers=[[9, 1.0]]),
    "no bandwidth": _with_way(tiers=[[None, 0]]),
    "many tiers": _with_way(tiers=[*([i + 1, 1.0] for i in range(64)), [None, 1.0]]),
    "a point too few numbers": _with_way(points=[[8]]),
    "a size that is no whole number": _with_way(points=[[8.5, 1.0]]),
    "an unknown way": _with_way(algorithm="tree"),
    "a way twice": _with_way(algorithm="one_shot"),
    "no rank": _with_measured(ranks=0),
    "many ranks": _with_measured(ranks=1 << 40),
    "a gpu": _with_measured(device="cuda"),
    "ways that are none": _with_measured(ways=[1]),
    "no ways": _with_measured(ways=[]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_ignored_with_one_warning(folder: Path, what: str) -> None:
    folder.mkdir()
    path = cache.file_of(HERE)
    text = BROKEN[what]
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.warns(UserWarning, match="is ignored") as caught:
        found = [tables.source("cpu", ranks) for ranks in (2, 3, 2) if tables.table("cpu", ranks)]
    assert len(caught) == 1
    said = str(caught[0].message)
    assert str(path) in said
    assert "run `python -m ringkern tune` again, or delete the file" in said
    assert all("ringkern's default" in source for source in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_changed(version=2), "the text: version is 2; accepted: 1"),
        (_with_way(hop_us=math.inf), "measured[0].ways[0].hop_us is inf; accepted: a number"),
        (_with_way(base_us=-1), "ways[0].base_us is -1; accepted: a number, 0 to inf"),
        (_with_way(points=[[8, 1], [8]]), "ways[0].points[1] is [8]; accepted: a list of 2"),
        (_with_way(tiers=[[None, 0]]), "tiers[0][1] is 0; accepted: a number, 1e-09 to inf"),
        (_with_way(tiers=[["8", 1]]), "tiers[0][0] is '8'; accepted: a whole number, 1 to "),
        (
            _with_measured(x=1),
            "measured[0] has ['x']; accepted: device, ranks, date, command, ways",
        ),
    ],
)
def test_an_error_has_the_place_and_what_is_accepted(text: str, said: str) -> None:
    with pytest.raises(TuningError, match=re.escape(said)):
        parse(text)


def test_a_fifo_or_folder_in_place_of_the_file_is_a_warning(folder: Path) -> None:
    folder.mkdir()
    path = cache.file_of(HERE)
    os.mkfifo(path)  # a FIFO without a writer: opening it would block forever
    with pytest.warns(UserWarning, match="is no file"):
        tables.table("cpu", 2)
    path.unlink()
    path.mkdir()
    tables.forget()
    with pytest.warns(UserWarning, match="is ignored"):
        tables.table("cpu", 2)
    path.rmdir()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    tables.forget()
    with pytest.warns(UserWarning, match="too large"):
        tables.table("cpu", 2)


def test_a_good_file_gives_no_warning(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tables.table("cpu", 2)
        put(folder, parse(GOOD))
        tables.table("cpu", 2)


CPUS = sorted(set(cache.SHIPPED.iterdir()) - {cache.PREDICTED})


def test_a_written_tuning_is_read_unchanged() -> None:
    tuning = tunings.tuning(2, 5, 9)
    again = parse(dump(tuning))
    assert dump(again) == dump(tuning)
    assert again.machine == tuning.machine
    for before, after in zip(tuning.measured, again.measured):
        assert (before.ranks, before.date, before.command) == (
            after.ranks,
            after.date,
            after.command,
        )
        for key, fitted in before.ways.items():
            assert after.ways[key].cost.hop_us == pytest.approx(fitted.cost.hop_us, rel=1e-4)
            assert [t.up_to for t in after.ways[key].cost.tiers] == [1 << 20, ANY_SIZE]
            assert len(after.ways[key].points) == 3


@pytest.mark.parametrize("file", CPUS, ids=lambda file: file.stem)
def test_shipped_tables_name_their_machine(file: Path) -> None:
    """Each table names its machine, the command and the date, and covers ranks with and without
    cores.
    """
    shipped = cache.read(file)
    assert shipped.machine.cpu.startswith(file.stem.split("-")[0].upper())
    assert file.stem.split("-family-")[1] in shipped.machine.cpu
    assert len(shipped.measured) >= 2
    for found in shipped.measured:
        assert found.command.startswith("python -m ringkern tune ")
        assert len(found.date.split("-")) == 3
    assert len({m.ranks > shipped.machine.cores for m in shipped.measured}) == 2


def test_the_likest_processor_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compares maker, family, model and last cache; an unknown maker gets the default."""
    shipped = cache.read(cache.DEFAULT)
    machines = {
        "a": Identity("AMD EPYC (cpu family 25, model 1)", 2, (1, 32), (), 0),
        "b": Identity("AMD EPYC (cpu family 25, model 17)", 2, (1, 16), (), 0),
        "c": Identity("AMD EPYC (cpu family 25, model 17)", 2, (1, 96), (), 0),
        "d": Identity("Intel(R) Xeon(R) (cpu family 6, model 143)", 2, (1, 96), (), 0),
        "e": Identity("AMD EPYC (cpu family 26, model 2)", 2, (1, 32), (), 0),
    }
    for name, machine in machines.items():
        cache.write(tmp_path / name, replace(shipped, machine=machine))
    monkeypatch.setattr(cache, "SHIPPED", tmp_path)
    monkeypatch.setattr(cache, "DEFAULT", tmp_path / "e")
    tables.forget()
    for cpu, caches, expected in (
        ("AMD EPYC (cpu family 25, model 17, stepping 1)", (1, 2, 96), "c"),
        ("AMD EPYC (cpu family 25, model 17, stepping 1)", (), "b"),
        ("AMD EPYC (cpu family 25, model 99)", (1, 96), "a"),
        ("AMD EPYC (cpu family 23, model 17)", (1, 96), "e"),
        ("Intel(R) Core (cpu family 6, model 7)", (1, 9), "d"),
        ("ARM (CPU implementer 0x41)", (), "e"),
        ("riscv64", (1, 96), "e"),
    ):
        here = Identity(cpu, 64, caches, (), 7)
        source = tables.shipped(2, False, here).source
        assert f"on {machines[expected]} with 2 ranks" in source, (cpu, source)
    assert "cpu family 26" in tables.shipped(2, False).source
    tables.forget()


def test_the_default_is_read_without_torch() -> None:
    program = (
        "import sys, types, pathlib\n"
        "package = types.ModuleType('ringkern')\n"  # without its __init__, which needs torch
        f"package.__path__ = [{str(Path(tables.__file__).parents[1])!r}]\n"
        "sys.modules['ringkern'] = package\n"
        "from ringkern.choose import cache\n"
        "print(len(cache.read(cache.DEFAULT).measured), 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(len(cache.read(cache.DEFAULT).measured)), "False"]


# ---- writing ------------------------------------------------------------------------------------


def test_the_file_is_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.file_of(MACHINE) == Path(f"/somewhere/ringkern/tuning-{MACHINE.id}.json")
    for unset in ("", "here"):  # a relative path is ignored
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache.folder() == Path.home() / ".cache" / "ringkern"


def test_each_machine_has_a_name_of_its_own() -> None:
    others = [
        MACHINE,
        replace(MACHINE, cpu="another"),
        replace(MACHINE, cores=5),
        replace(MACHINE, caches=(1,)),
        replace(MACHINE, gpus=("a GPU", "a GPU")),
        replace(MACHINE, wire=8),
    ]
    assert len({machine.id for machine in others}) == len(others)
    assert replace(MACHINE).id == MACHINE.id


def test_a_machine_is_its_cpu_caches_and_gpus(tmp_path: Path) -> None:
    levels = {0: ("1", "Data", "48K"), 1: ("1", "Instruction", "32K"), 2: ("2", "Unified", "2M")}
    for index, texts in levels.items():
        place = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        place.mkdir(parents=True)
        for name, text in zip(("level", "type", "size"), texts):
            (place / name).write_text(text + "\n")
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    gpu.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 5\n")
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: A CPU\nmodel\t\t: 7\n")
    found = identity.of_this_machine(3, tmp_path)
    assert found.cpu == "A CPU (model 7)"
    assert found.caches == (48 << 10, 2 << 20)
    assert found.gpus == ("NVIDIA H100 80GB HBM3",)
    assert identity.of_this_machine(3, tmp_path / "nothing").caches == ()
    assert identity.of_this_machine(3, tmp_path / "nothing").cpu


def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    with cache.alone_in(path.parent):
        cache.write(path, tunings.tuning(2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def test_a_reader_gets_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    some = [tunings.tuning(2), tunings.tuning(2, 3, 4, 5, 6)]
    cache.write(path, some[0])
    done = threading.Event()

    def write() -> None:
        for i in range(100):
            cache.write(path, some[i % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(len(cache.read(path).measured))
    writer.join()
    assert seen <= {1, 5}


def _add(folder: str, ranks: int) -> None:
    path = Path(folder) / "tuning.json"
    for _ in range(5):
        with cache.alone_in(path.parent):
            before = cache.read(path) if path.exists() else Tuning(MACHINE, ())
            cache.write(path, before.with_measured(tunings.measured(ranks)))


def test_tunings_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    adding = [context.Process(target=_add, args=(str(tmp_path), ranks)) for ranks in range(2, 7)]
    for process in adding:
        process.start()
    for process in adding:
        process.join(60)
        assert process.exitcode == 0
    assert [m.ranks for m in cache.read(tmp_path / "tuning.json").measured] == [2, 3, 4, 5, 6]


def test_the_same_ranks_again_replace_what_was() -> None:
    before = tunings.tuning(2, 4)
    after = before.with_measured(tunings.measured(2, "2027-01-01"))
    assert [(m.ranks, m.date) for m in after.measured] == [(2, "2027-01-01"), (4, "2026-01-02")]


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "ringkern"):
        with pytest.raises(OSError, match="set XDG_CACHE_HOME to another directory, or give --out"):
            cache.check_writable(folder)
        with pytest.raises(OSError, match="nothing was written"):
            cache.write(folder / "x.json", tunings.tuning(2))


def test_root_does_not_write_into_a_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "home"
    users.mkdir()
    if os.geteuid() == 0:
        os.chown(users, 12345, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for act in (cache.check_writable, lambda f: cache.write(f / "x.json", tunings.tuning(2))):
        with pytest.raises(PermissionError, match=r"and this is root: do it as that user"):
            act(users / ".cache" / "ringkern")
    assert list(users.iterdir()) == []


def test_a_disk_that_is_full_leaves_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    cache.write(path, tunings.tuning(2))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        cache.write(path, tunings.tuning(2, 3))
    assert len(cache.read(path).measured) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
