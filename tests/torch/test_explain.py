"""The explained way of a call is the way it takes; the explained reasons match the table and the
costs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern import _C
from ringkern.choose import cache, explain, identity, tables
from ringkern.choose.cost import ANY_SIZE, Way, bus_bandwidth
from ringkern.choose.explain import Explanation
from ringkern.config import config
from ringkern.tools import explain as command
from ringkern.tools.curves import draw_explanation
from ringkern.units import parse_size, say_size, say_time
from tests.ranks import Ranks
from tests.torch import tunings

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
SIZES = (0, 1, 8, 1000, 4096, 70_001, 1 << 20, 1 << 26)


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs costs of this machine's CPU, for 2 ranks and for more than it has cores; none of a
    GPU.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = identity.of_this_machine(_C.wire_version)
    path = cache.file_of(here)
    path.parent.mkdir()
    cache.write(path, tunings.tuning(2, here.cores + 1, machine=here))
    tables.forget()
    yield
    tables.forget()


def why(found: Explanation) -> dict[str, str]:
    return {str(one.way): one.why for one in found.candidates}


def way(found: Explanation) -> str:
    return str(found.way)


# ---- the choice ---------------------------------------------------------------------------------


def test_the_choice_is_that_of_the_lists() -> None:
    for ranks in (1, 2, 3, 8):
        lists = tables.table("cpu", ranks)
        for collective in COLLECTIVES:
            rows = lists["automatic" if collective == "all_reduce" else "others"]
            parts = ranks if collective in ("reduce_scatter", "all_gather") else 1
            for nbytes in SIZES:
                for dtype in (torch.float64, torch.bfloat16, torch.int8):
                    found = explain.explain(
                        "cpu", ranks, nbytes * parts, dtype=dtype, collective=collective
                    )
                    chosen = tables.way_of(rows, -(-nbytes // dtype.itemsize) * dtype.itemsize)
                    assert found.way[:2] == chosen[:2], (ranks, collective, nbytes, dtype)


OTHER: tables.Rows = [(64, "one_shot", "simple"), (ANY_SIZE, "ring", "ll128")]


def _comes_with_another_table(rank: int, size: int) -> None:
    communicator = ringkern.Communicator()
    if rank == 0:
        lists = {**tables.table("cpu", size), "automatic": OTHER}
        communicator._c.set_table("cpu", lists)
    before = communicator.explain(1000)
    assert str(before.way) == ("ring/ll128" if rank == 0 else str(way_here(1000, size)))
    x = torch.full((250,), rank + 1.0)
    communicator.all_reduce(x)
    assert torch.equal(x, torch.full((250,), 3.0))
    after = communicator.explain(1000)
    assert str(after.way) == "ring/ll128"
    assert "the table of rank 0" in after.origin
    assert str(communicator.explain(60).way) == "one_shot/simple"
    communicator.close()


def way_here(nbytes: int, ranks: int) -> Way:
    return tables.way_of(tables.table("cpu", ranks)["automatic"], nbytes)


def test_a_communicator_goes_by_the_table_of_rank_0(ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(_comes_with_another_table)


ASKED: list[dict[str, str]] = [
    {"algorithm": "ring"},
    {"algorithm": "one_shot"},
    {"algorithm": "two_shot"},
    {"protocol": "ll128"},
    {"algorithm": "one_shot", "protocol": "simple"},
    {"deterministic": "size_invariant"},
    {"accumulate": "float32"},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_explanation_follows_the_request(asked: dict[str, str]) -> None:
    lists = tables.table("cpu", 2)
    wish = {name: text for name, text in asked.items() if name in ("algorithm", "protocol")}
    for nbytes in SIZES:
        found = explain.explain("cpu", 2, nbytes, dtype="bfloat16", **asked)
        expected = asked.get("algorithm", "in_rank_order"), asked.get("protocol")
        if expected == ("in_rank_order", "ll128"):
            expected = ("ring", "ll128")
        if expected[1] is None:
            expected = tables.way_of(lists[expected[0]], -(-nbytes // 2) * 2)[:2]
        assert found.way[:2] == expected
        assert found.candidates[0].why == "chosen"
        for name, text in wish.items():
            assert f"{name}={text}" in found.origin
        if len(wish) < 2:
            assert tables.source("cpu", 2) in found.origin or "protocol" in wish
        ring = why(found)["ring/ll"]
        if "deterministic" in asked:
            assert ring == "does not keep deterministic='size_invariant'"
        elif "accumulate" in asked:
            assert ring == "does not keep accumulate='float32'"
        elif asked.get("algorithm") != "ring":
            assert "not asked for" in ring


def test_wider_floats_are_accumulated_as_they_are() -> None:
    plain, asked = (
        explain.explain("cpu", 2, 64, algorithm="ring", accumulate=name)
        for name in ("dtype", "float32")
    )
    assert asked.way == plain.way
    assert why(asked) == why(plain)


def test_explain_refuses_the_same_options_as_a_call() -> None:
    with pytest.raises(ValueError, match="'two_shot' does not run over protocol 'll' on cpu"):
        explain.explain("cpu", 2, 8, algorithm="two_shot", protocol="ll")
    with pytest.raises(ValueError, match="leave algorithm and protocol to auto"):
        explain.explain("cpu", 2, 8, algorithm="ring", deterministic="size_invariant")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"device": "tpu"}, "cpu, cuda"),
        ({"dtype": "float17"}, "float32"),
        ({"dtype": torch.complex64}, "float32"),
        ({"collective": "barrier"}, "all_reduce, reduce_scatter"),
        ({"ranks": 0}, "1 to 1024 ranks"),
        ({"nbytes": -1}, "no less than 0"),
        ({"algorithm": "tree"}, "choose one of auto, ring"),
        ({"protocol": "udp"}, "choose one of auto, simple"),
        ({"deterministic": "yes"}, "choose one of auto, "),
        ({"accumulate": "float64"}, "choose one of auto, "),
    ],
)
def test_bad_arguments(given: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {"device": "cpu", "ranks": 2, "nbytes": 8}
    with pytest.raises(ValueError, match=said):
        explain.explain(**{**good, **given})


def test_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = replace(config, algorithm="ring", protocol="ll")
    monkeypatch.setattr("ringkern.arguments.config", asking)
    found = explain.explain("cpu", 2, 1 << 20)
    assert way(found) == "ring/ll"
    assert found.origin == "RINGKERN_ALGORITHM=ring and RINGKERN_PROTOCOL=ll"
    found = explain.explain("cpu", 2, 1 << 20, protocol="simple")
    assert found.origin == "RINGKERN_ALGORITHM=ring and protocol=simple"


def test_the_lists_of_a_ring_are_what_is_explained() -> None:
    lists = {name: [(1 << 62, "ring", "ll128")] for name in ("automatic", "ring", "others")}
    lists["in_rank_order"] = lists["two_shot"] = [(1 << 62, "two_shot", "simple")]
    lists["one_shot"] = [(1 << 62, "one_shot", "ll")]
    found = explain.explain("cpu", 2, 8, lists=lists)
    assert way(found) == "ring/ll128"
    assert found.origin == "by the table of rank 0"


# ---- the figures --------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_plan_is_that_of_the_engine(ranks: int) -> None:
    for nbytes in SIZES[1:]:
        for protocol in _C.protocols:
            found = explain.explain(
                "cpu", ranks, nbytes, algorithm="ring", protocol=protocol, dtype="int8"
            )
            plan = _C.Plan("all_reduce", protocol, ranks, nbytes, 1)
            assert found.rounds == plan.loops
            assert found.chunk_bytes == plan.chunk_of(0, 0, 0)[2] or found.rounds == 1
            assert found.way.channels == plan.channels
            steps = plan.trace(0)
            assert found.hops == 2 * (ranks - 1)
            assert len({slices for *_, slices in steps} - {0}) <= 2
            most = max(slices for verb, *_, slices in steps)
            assert found.slices == most, (nbytes, protocol)


def test_a_chunk_of_the_others_is_a_slot() -> None:
    for algorithm, protocol, slot in (
        ("one_shot", "ll", 64 * 56),
        ("one_shot", "simple", 256 << 10),
        ("two_shot", "simple", 256 << 10),
    ):
        found = explain.explain("cpu", 4, 1 << 24, algorithm=algorithm, protocol=protocol)
        assert found.rounds
        assert found.chunk_bytes
        assert found.segment_bytes
        assert found.staging_bytes
        assert found.chunk_bytes <= slot
        assert (found.rounds - 1) * found.chunk_bytes < 1 << 24 <= found.rounds * found.chunk_bytes
        assert slot < found.staging_bytes < found.segment_bytes
        assert found.hops == (2 if algorithm == "two_shot" else 1)


def test_times_are_those_of_the_costs(tuned: None) -> None:
    for nbytes in SIZES[1:]:
        found = explain.explain("cpu", 2, nbytes)
        times = {}
        for one in found.candidates:
            if one.time_us is None:
                assert one.why.startswith("cpu has no ")
                continue
            real = tunings.cost_of(one.way).time_us(one.way, "all_reduce", 2, nbytes)
            assert one.time_us == pytest.approx(real, rel=1e-3)
            assert one.ratio == pytest.approx(one.time_us / found.candidates[0].time_us)
            times[one.way[:2]] = one.time_us
        assert len(times) == 6
        assert found.time_us == found.candidates[0].time_us == times[found.way[:2]]
        assert found.time_us <= 1.13 * min(times.values()), "the ring has to be ahead"
        assert found.bus_gb_s == bus_bandwidth("all_reduce", 2, nbytes, found.time_us)
        slower = [one.time_us for one in found.candidates[1:] if one.time_us]
        assert slower == sorted(slower)
    assert "with 2 ranks" in found.source


def test_each_candidate_has_its_reason(tuned: None) -> None:
    found = why(explain.explain("cpu", 2, 1 << 22))
    assert found["two_shot/simple"] == "slower"
    assert found["two_shot/ll"] == "cpu has no two_shot over ll"
    assert found["ring/ll"] == "slower"
    # A row may extend a little beyond a crossover.
    quicker = [
        text
        for nbytes in range(100, 30_000, 10)
        for text in why(explain.explain("cpu", 2, nbytes)).values()
        if "quicker" in text
    ]
    assert all(text.endswith("too little to be chosen") for text in quicker)


def test_broadcast_and_reduce_cost_what_their_likes_do(tuned: None) -> None:
    for name in ("broadcast", "reduce"):
        found = explain.explain("cpu", 2, 1 << 20, collective=name)
        cost = tunings.cost_of(found.way)
        assert found.time_us == pytest.approx(cost.time_us(found.way, name, 2, 1 << 20), rel=1e-3)
        assert {one.way.algorithm for one in found.candidates} == {"ring"}


def test_a_ring_of_one(tuned: None) -> None:
    found = explain.explain("cpu", 1, 1 << 20)
    assert (found.hops, found.wire_bytes, found.bus_gb_s) == (0, 0, None)
    assert ", 1 rank on cpu" in str(found)


def test_a_gpu_where_nothing_was_measured(tuned: None) -> None:
    found = explain.explain("cuda", 8, 16 << 20)
    assert way(found) == "ring/simple"
    assert found.source.startswith("costs predicted for 8 ranks of one process on one H100")
    assert f"by {found.source}\n  predicted  " in str(found)
    assert found.time_us is not None
    cuda = ringkern.build_info()["cuda"]
    assert why(found)["ring/ll"] == ("slower" if cuda else "no time is known of it here")
    assert why(found)["two_shot/simple"] == "no time is known of it here"
    # A lane polls for each rank.
    assert why(explain.explain("cuda", 33, 1 << 20))["one_shot/ll"].startswith("cuda has no")
    assert (found.chunk_bytes is None) == (not cuda)


def test_crossovers_are_where_the_choice_changes(tuned: None) -> None:
    for collective in ("all_reduce", "all_gather"):
        found = explain.explain("cpu", 2, 8, collective=collective, dtype="int8")
        assert found.crossovers[0][0] == 1
        assert len(found.crossovers) >= 2
        before = None
        for at, chosen in found.crossovers:
            assert chosen != before
            assert way(explain.explain("cpu", 2, at, collective=collective, dtype="int8")) == chosen
            if at > 1:
                parts = 2 if collective == "all_gather" else 1
                below = explain.explain("cpu", 2, at - parts, collective=collective, dtype="int8")
                assert way(below) == before
            before = chosen


# ---- the explained way is taken -----------------------------------------------------------------


def _late(rank: int, size: int, nbytes: int) -> str:
    with ringkern.Communicator(timeout=timedelta(seconds=0.3)) as communicator:
        dist.barrier()
        communicator.all_reduce(torch.ones(3))
        dist.barrier()
        text = ""
        if rank == 0:
            with pytest.raises(ringkern.errors.CollectiveTimeoutError) as caught:
                communicator.all_reduce(torch.ones(nbytes // 4))
            text = str(caught.value)
        dist.barrier()
    return text


def test_a_call_goes_the_way_that_was_explained(ranks: Callable[[int], Ranks]) -> None:
    """A waiting rank reports its algorithm and protocol."""
    for nbytes in (64, 1 << 20):
        found = explain.explain("cpu", 2, nbytes)
        algorithm, protocol = found.way[:2]
        over = protocol if algorithm == "ring" else f"{algorithm}, {protocol}"
        assert f"over {over}: " in ranks(2).run(_late, nbytes)[0]


# ---- output -------------------------------------------------------------------------------------


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(given)


def test_an_explanation_prints_as_text(tuned: None) -> None:
    lines = str(explain.explain("cpu", 2, 128 << 10)).splitlines()
    assert lines[0] == "all_reduce of 128KB float32, 2 ranks on cpu: two_shot/simple"
    assert lines[1].startswith("  chosen     by ")
    assert lines[2].startswith("  predicted  ")
    assert " us, called from C++, " in lines[2]
    assert lines[2].endswith(" GB/s on the bus"), "the source is said once"
    assert lines[3] == "  moves      2 hops one after the other; each rank sends 128KB"
    assert lines[4] == "  cut in     1 round of 1 channel; chunks of 128KB in 1 slice; 4 slots"
    assert lines[5].startswith("  memory     1MB of a rank's ")
    assert lines[7].split() == ["two_shot/simple", *lines[7].split()[1:3], "1.00", "chosen"]
    assert len(lines) == 7 + 9
    asked = str(explain.explain("cpu", 2, 128 << 10, algorithm="ring", protocol="ll"))
    assert "  chosen     algorithm=ring and protocol=ll\n" in asked
    assert f"; by {tables.source('cpu', 2)}\n" in asked


def test_an_explanation_converts_to_json() -> None:
    for device in tables.DEVICES:
        found = explain.explain(device, 2, 1 << 20).as_dict()
        again = json.loads(json.dumps(found, allow_nan=False))
        assert again["way"]["algorithm"] in _C.algorithms
        assert len(again["candidates"]) == 9
        assert again["nbytes"] == 1 << 20


def test_an_explanation_draws_a_picture(tuned: None, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = explain.explain("cpu", 2, 1 << 20)
    draw_explanation(found, tmp_path / "ways.svg")
    assert "<svg" in (tmp_path / "ways.svg").read_text()
    with pytest.raises(OSError, match="no/such/place"):
        draw_explanation(found, Path("/no/such/place/ways.svg"))


def test_the_command(tuned: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "ways.svg"
    given = ["8", "1M", "-n", "2", "-d", "half", "--algo", "ring", "--json", "--plot", str(plot)]
    assert command.run(arguments(*given)) == 0
    assert plot.exists()
    found = json.loads(capsys.readouterr().out)
    assert [one["nbytes"] for one in found] == [8, 1 << 20]
    assert found[0] == json.loads(
        json.dumps(explain.explain("cpu", 2, 8, dtype="float16", algorithm="ring").as_dict())
    )
    assert command.run(arguments("1M", "--deterministic", "size_invariant")) == 0
    assert "does not keep deterministic" in capsys.readouterr().out
    with pytest.raises(ValueError, match="unknown dtype"):
        command.run(arguments("8", "-d", "float17"))


def test_all_sizes_at_a_glance(tuned: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(arguments()) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert rows[0][:2] == ["size", "way"]
    assert [row[0] for row in rows[1:]] == [say_size(1 << shift) for shift in range(3, 29)]
    for row in rows[1:]:
        assert row[1] == way(explain.explain("cpu", 2, parse_size(row[0])))
    crossovers = explain.explain("cpu", 2, 8).crossovers
    said = [f"# from {size} B on: {name}" for size, name in crossovers]
    assert [line for line in lines if line.startswith("# from")] == said
    ring = any(name.startswith("ring/") for _, name in crossovers)
    assert (lines[-1] == "# round the ring: at no size") != ring


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_readme_agrees_with_the_shipped_choice(ranks: int) -> None:
    """Between CPU ranks of one host no all-reduce goes round the ring; the other collectives do.

    Uses the default figures; another processor may have figures of its own.
    """
    measured = tables.shipped(ranks, crowded=ranks > 2).measured
    lists = tables.rows_for(measured, ranks)
    found = explain.explain("cpu", ranks, 8, lists=lists, source="the default")
    assert not [name for _, name in found.crossovers if name.startswith("ring/")]
    if ranks == 2:
        assert [size for size, name in found.crossovers if name == "two_shot/simple"] == [2048]
        below = [name for size, name in found.crossovers if size < 2048]
        assert {name.split("/")[0] for name in below} == {"one_shot"}
    for collective in ("reduce_scatter", "all_gather", "broadcast", "reduce"):
        others = explain.explain("cpu", ranks, 8, collective=collective, lists=lists).crossovers
        assert all(name.startswith("ring/") for _, name in others)


def test_a_way_that_takes_no_longer_is_not_called_slower() -> None:
    """A single rank waits for no other, and all ways take the same time."""
    found = explain.explain("cpu", 1, 1024)
    assert {one.ratio for one in found.candidates if one.ratio} == {1.0}
    assert {one.why for one in found.candidates if one.ratio} == {"chosen", "as quick"}


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0"), (1023, "1023"), (1024, "1K"), (1536, "1.5K"), (1 << 20, "1M"), (1000 << 10, "1000K"),
     (256 << 20, "256M"), (3 << 30, "3G"), (1023 << 20, "1023M")],
)  # fmt: skip
def test_say_size(nbytes: int, text: str) -> None:
    assert say_size(nbytes) == text
    if "." not in text:
        assert parse_size(text) == nbytes


def test_say_time() -> None:
    assert [say_time(t) for t in (None, 0.123, 12.0, 1500.0, 2.5e6)] == [
        "-", "0.123 us", "12 us", "1.5 ms", "2.5 s"
    ]  # fmt: skip


def test_a_way_names_itself() -> None:
    assert str(Way("one_shot", "ll", 4)) == "one_shot/ll"
