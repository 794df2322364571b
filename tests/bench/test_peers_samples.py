"""Processing of times: samples, blocks, rows, the table and its JSON."""

from __future__ import annotations

import itertools
import json
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.compare import memory
from bench.compare.comparison import compare, wrong_of
from bench.compare.field import Field
from bench.compare.plot import times
from bench.compare.rows import Entrant, Row, Settings
from bench.compare.table import Table
from ringkern.tools.bench import report
from ringkern.tools.turns import Block, Result, quotient, slowest, usual_placement

NEAR, FAR, SMT = (100.0, 120.0), (400.0, 390.0), (40.0, 50.0)


def block(time_us: float, round_trips: tuple[float, ...] = NEAR, preempted: int = 0) -> Block:
    return Block(array("d", [time_us] * 4), preempted, round_trips)


def test_a_sample_is_the_slowest_rank_of_a_call() -> None:
    assert slowest([[1000, 9000, 3000], [4000, 2000, 3500]]).tolist() == [4.0, 9.0, 3.5]


def test_placement() -> None:
    assert [block(1, pair).placement for pair in (NEAR, FAR, SMT)] == ["near", "far", "smt"]
    assert block(1, (100.0, 400.0)).placement == "mixed"
    assert block(1, ()).placement == "unknown"
    assert usual_placement([block(1, FAR), block(1), block(1)]) == "near"


@pytest.mark.parametrize(
    ("blocks", "time_us", "kept", "placement"),
    [
        # A preempted block and one in which the cores moved do not count.
        ([block(1), block(2), block(90, NEAR, 1), block(50, (100.0, 400.0))], 1.5, 2, "near"),
        # Nor do those at another distance than the row's.
        ([block(1), block(7, FAR), block(7, FAR)], 1.0, 1, "near"),
        # Unless too few would be left: quiet ones at any distance,
        ([block(1), *[block(7, FAR)] * 3], 7.0, 4, "mixed"),
        # or all of them.
        ([block(1), *[block(7, NEAR, 1)] * 3], 7.0, 4, "near"),
        ([block(3, NEAR, 2)], 3.0, 1, "near"),
    ],
)
def test_disturbed_blocks(blocks: list[Block], time_us: float, kept: int, placement: str) -> None:
    result = Result.of(blocks, "near", 0)
    assert (result.time_us, len(result.kept), result.placement) == (time_us, kept, placement)
    assert result.blocks == blocks


def test_median_and_p99_are_of_all_samples() -> None:
    result = Result.of([Block(array("d", range(1, 50))), Block(array("d", range(50, 201)))], "", 0)
    assert (result.time_us, result.p99_us, result.samples) == (100.5, 199.0, 200)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("ranks", [1, 2, 5, 64, 256])
def test_sums_that_are_exact(dtype: str, ranks: int) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    given = [memory.given(dtype, rank, ranks, 300) for rank in range(ranks)]
    as_torch = [torch.from_numpy(x).view(kind) for x in given]
    total = as_torch[0].clone()
    for other in as_torch[1:]:
        total += other
    stored = total.view(torch.int16) if kind == torch.bfloat16 else total
    assert memory.wrong(stored.numpy(), dtype, ranks) == 0
    total[7] += 1
    total[299] = float("nan")
    assert memory.wrong(stored.numpy(), dtype, ranks) == 2
    if ranks > 1:
        assert memory.wrong(given[0], dtype, ranks) > 100  # a call that does nothing is noticed


def test_a_quotient_is_of_turns_of_one_round() -> None:
    """The machine was slower in the last three rounds, and in the third for one of the two."""
    one, other = result(2, 2, 4, 4, 4), result(3, 3, 3, 6, 6)
    assert (one.time_us, other.time_us) == (4.0, 3.0)
    assert quotient(one, other) == pytest.approx(2 / 3)


def test_memory() -> None:
    [place] = memory.private(10, 0, "bfloat16")
    assert (place.dtype, place.shape) == (np.int16, (5,))
    places = memory.private(100, 1000, "float32")
    assert len(places) == 7  # of 128 bytes and more, in 1,000
    starts = [each.ctypes.data for each in places]
    assert {b - a for a, b in itertools.pairwise(starts)} == {128}
    assert starts[0] % 64 == 0
    assert all(not each.any() for each in places)


def result(*turns_us: float, wrong: int | None = 0) -> Result:
    return Result.of([block(time) for time in turns_us], "near", wrong)


ROW = Row(
    4096,
    1024,
    "near",
    {
        Entrant("ringkern", "py"): result(4.0, wrong=3),
        Entrant("ringkern", "c"): result(2.0),
        Entrant("ringkern:shared", "py"): result(0.2),
        Entrant("mpich", "py"): result(9.0),
        Entrant("mpich:tuned", "py"): result(8.0),
        Entrant("vllm", "py"): result(1.0, wrong=5),  # wrong, and so not the best
        Entrant("limit", "one_shot/4096"): result(0.5),
        Entrant("limit", "scatter_gather/4096"): result(0.8),
        Entrant("limit", "shared/4096"): result(0.1),  # another thing
    },
    ("ring", "ll"),
)
EMPTY = Row(8, 2, "unknown", {Entrant("mpich", "c"): result(1.0, wrong=None)})


def table(**settings: Any) -> Table:
    return Table(
        Settings(sizes=(4096,), **settings), report.machine(), {"mpich": "5"}, "today", "bench"
    )


def test_the_best_peer_is_that_of_the_largest_quotient() -> None:
    results = {
        Entrant("ringkern", "c"): result(2, 2, 4, 4, 4),
        Entrant("mpich", "c"): result(3, 3, 3, 6, 6),  # the least median
        Entrant("vllm", "c"): result(2.5, 2.5, 5, 5, 5),
    }
    [found] = compare(Row(8, 2, "near", results), ("c",))
    assert found.best is not None
    assert (found.best[0], found.to_peer) == ("vllm", 0.8)


def test_comparison() -> None:
    py, c, shared = compare(ROW, ("py", "c"))
    assert py.best is not None
    assert py.best[0] == "mpich:tuned"
    assert (py.to_peer, py.to_limit) == (0.5, 8.0)
    assert (c.best, c.to_peer, c.to_limit) == (None, None, 4.0)
    assert (shared.tensor, shared.to_peer, shared.to_limit) == ("shared", 0.2 / 8, 2.0)
    assert compare(EMPTY, ("py", "c")) == []
    assert times(ROW, "py") == (
        # ringkern is wrong
        {"ringkern:shared": 0.2, "mpich": 8.0, "limit": 0.5}
    )
    assert wrong_of([ROW, EMPTY], "vllm") == 5


def test_columns() -> None:
    shown = table()
    names = shown.header().splitlines()[-1].removeprefix("#").split()
    lines = [line.split() for line in shown.lines(ROW).splitlines()]
    assert names[:9] == (
        ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"]
    )
    assert names[-2:] == ["best", "peer"]
    assert [len(line) for line in lines] == [len(names) - 1] * 3
    py, c, shared = (dict(zip(names, line)) for line in lines)
    assert lines[0][:9] == (["4096", "1024", "float32", "sum", "-1", "4.00", "1.02", "1.02", "3"])
    assert (py["mode"], py["algo"], py["proto"], py["cores"]) == ("py", "ring", "ll", "near")
    assert (py["peer"], py["/peer"], py["limit"], py["/limit"]) == ("8.00", "0.50", "0.50", "8.00")
    assert lines[0][-1] == "mpich:tuned"
    assert [each["tensor"] for each in (py, c, shared)] == ["plain", "plain", "shared"]
    assert (c["mode"], c["peer"], c["/peer"], lines[1][-1]) == ("c", "-", "-", "-")
    assert shown.lines(EMPTY) == ""


def test_footer() -> None:
    text = table(modes=("py",)).footer([ROW, EMPTY], {"oneccl": "not installed"})
    assert text.splitlines() == [
        "# Out of bounds values : 3 FAILED",
        "# py, plain, time/best peer: geometric mean 0.50, largest 0.50; below 1 at 1 of 1 sizes",
        "# py, plain, time/limit: geometric mean 8.00, largest 8.00; below 1 at 0 of 1 sizes",
        "# py, shared, time/best peer: geometric mean 0.03, largest 0.03; below 1 at 1 of 1 sizes",
        "# py, shared, time/limit: geometric mean 2.00, largest 2.00; below 1 at 0 of 1 sizes",
        "# vllm: 5 wrong elements; does not count where it was wrong",
        "# left out: oneccl: not installed",
    ]


def test_json(tmp_path: Path) -> None:
    with Field(Settings(sizes=()), []) as field:
        field.left_out["oneccl"] = "not installed"
        found = json.loads(json.dumps(table().as_json([ROW], field)))
    assert found["versions"] == {"mpich": "5"}
    assert found["left_out"] == {"oneccl": "not installed"}
    assert (found["date"], found["command"]) == ("today", "bench")
    assert found["settings"]["ranks"] == 2
    assert found["machine"]["huge_pages"] == report.machine()["huge_pages"]
    [row] = found["rows"]
    assert (row["size_bytes"], row["placement"], row["choice"]) == (4096, "near", ["ring", "ll"])
    assert row["comparisons"][0]["best_peer_us"] == 8.0
    assert row["comparisons"][0]["limit"] == "one_shot/4096"
    assert row["comparisons"][1]["best_peer"] is None
    [own] = [r for r in row["results"] if (r["contender"], r["mode"]) == ("ringkern", "py")]
    assert (own["time_us"], own["wrong"], own["samples"]) == (4.0, 3, 4)
    assert own["blocks"] == [
        {
            "median_us": 4.0,
            "calls": 4,
            "preempted": 0,
            "round_trips_ns": list(NEAR),
            "kept": True,
        }
    ]
