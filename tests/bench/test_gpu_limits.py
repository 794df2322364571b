"""Tests of how ``make gpu`` uses the limits of a GPU, and of the times that it measures."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import cases, limits, speed
from bench.gpu.contest import TREE
from bench.gpu.part import Context, Failed
from ringkern._C import Plan
from ringkern.tools.model import measured, one_gpu


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context("a_part", tmp_path / "state.json", tmp_path, "cpu", True, "", 60.0, {})


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_rings_bytes_are_what_the_schedule_moves(ranks: int) -> None:
    # Verb by verb: accesses of the user's tensor, and of FIFOs.
    user = {"send": 1, "recv_reduce_send": 1, "recv_reduce_copy_send": 2, "recv_copy_send": 1}
    fifo = {"send": 1, "recv_reduce_send": 2, "recv_reduce_copy_send": 2, "recv_copy_send": 2}
    user["recv"] = fifo["recv"] = 1
    count = 64 * ranks
    plan = Plan("all_reduce", "simple", ranks, count, 4, slot_bytes=1 << 20)
    verbs = [step[0] for rank in range(ranks) for step in plan.trace(rank)]
    chunk = count * 4 // ranks
    size = count * 4
    assert sum(user[v] for v in verbs) * chunk == 2 * ranks * size
    assert sum(fifo[v] for v in verbs) * chunk == 4 * (ranks - 1) * size
    # In the form of ring_us, if nothing else takes time.
    known = {"launch_us": 0.0, "hop_us": {"simple": 0.0}, "hbm_gb_s": 0.0, "l2_gb_s": 1.0}
    moved = limits.ring_us({**known, "l2_bytes": 0}, "simple", ranks, size) * 1e3
    assert moved == pytest.approx((sum(user[v] + fifo[v] for v in verbs)) * chunk)


def known_limits() -> dict[str, Any]:
    lines = [
        {"limit": "empty_launch", "how": "stream", "us": 2.0},
        {"limit": "empty_launch", "how": "graph, as the ring's", "us": 1.5},
        {"limit": "empty_launch", "how": "graph, as the ring's", "us": 1.25},
        {"limit": "ping_pong", "how": "relaxed", "ns_per_hop": 500.0},
        {"limit": "ping_pong", "how": "fence + ... (Simple)", "ns_per_hop": 900.0},
        {"limit": "ping_pong", "how": "16-byte line (LL)", "ns_per_hop": 600.0},
        {"limit": "ping_pong", "how": "128-byte line (LL128)", "ns_per_hop": 700.0},
        {"limit": "hbm_copy", "gb_s": 2900.0},
        {"limit": "memcpy_async", "gb_s": 3000.0},
        {"limit": "l2_copy", "gb_s": 5000.0},
        {"limit": "l2_copy", "gb_s": 4000.0},
    ]
    return limits.floors(lines, 50 << 20)


def test_floors_are_the_best_that_was_measured() -> None:
    known = known_limits()
    assert known["launch_us"] == 1.25
    assert known["hop_us"] == {"simple": 0.9, "ll": 0.6, "ll128": 0.7}
    assert (known["hbm_gb_s"], known["l2_gb_s"]) == (3000.0, 5000.0)
    assert set(known) == set(limits.FIGURES)


def test_the_machines_floor_is_a_launch_or_the_tensors_bytes() -> None:
    known = known_limits()
    assert limits.machine_us({}, 4, 8) == 0.0
    assert limits.machine_us(known, 4, 8) == 1.25
    # Within the L2, and beyond it at the speed of a copy in device memory.
    fits, beyond = 4 << 20, 256 << 20
    assert limits.machine_us(known, 8, fits) == pytest.approx(2 * 8 * fits / 5000e3)
    for gb_s in (3000.0, 4300.0):
        one = {**known, "hbm_gb_s": gb_s}
        assert limits.machine_us(one, 2, beyond) == pytest.approx(4 * beyond / gb_s / 1e3)


def test_a_rings_floor_is_hops_or_its_own_bytes() -> None:
    known = known_limits()
    assert limits.ring_us({}, "ll", 4, 8) == 0.0
    assert limits.ring_us(known, "ll", 4, 8) == pytest.approx(1.25 + 6 * 0.6)
    size = 64 << 20
    # (6k-4)S with Simple, (10k-8)S with LL, (2k + 64/15 (k-1))S with LL128.
    for protocol, factor in (("simple", 44), ("ll", 72), ("ll128", 16 + 64 / 15 * 7)):
        expected = factor * size / 5000e3
        assert limits.ring_us(known, protocol, 8, size) == pytest.approx(expected)
    # No ring is faster than the machine.
    slow = {**known, "hbm_gb_s": 100.0}
    assert limits.ring_us(slow, "simple", 8, size) == limits.machine_us(slow, 8, size)


def test_a_row_has_bandwidths_and_its_share() -> None:
    line = {"ranks": 4, "size_bytes": 8, "contender": "ringkern/ll", "wrong": 0}
    line |= {"hot_us": 9.7, "cold_us": 19.4}
    row = speed.row(line, known_limits())
    assert row["ring_share"] == pytest.approx(0.5)
    assert row["share"] == pytest.approx(1.25 / 9.7, abs=1e-3)
    assert row["hot_busbw_gb_s"] == round(8 * 1.5 / 9.7e3, 3)
    assert "share" not in speed.row(line, {})
    for other in ("nccl/ll", "ringkern/auto", "ringkern/one_shot"):
        row = speed.row({**line, "contender": other}, known_limits())
        assert row["share"] == pytest.approx(1.25 / 9.7, abs=1e-3)
        assert "ring_share" not in row


def test_the_default_options_are_measured(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "use_ringkern", lambda self: None)
    asked: list[tuple[int, tuple[str, ...]]] = []

    def contest(_: Any, ranks: int, group: tuple[str, ...], notes: list[str]) -> Any:
        asked.append((ranks, group))
        return [], ""

    monkeypatch.setattr(speed, "contest", contest)
    with pytest.raises(Failed, match="nothing was measured"):
        speed.run(context)
    assert asked == [(ranks, ("auto", TREE, *cases.WAYS)) for ranks in (2, 4, 8)]


def test_a_row_has_the_prediction_for_this_gpu_and_these_kernels(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = known_limits()
    context.machine["gpus"] = [{"name": "a GPU", "multiprocessors": 100}]
    line = {"ranks": 4, "size_bytes": 8, "wrong": 0, "hot_us": 9.7, "cold_us": 19.4}
    ways = ("ll", "auto", "two_shot")
    lines = [{**line, "contender": f"ringkern/{way}"} for way in ways]
    monkeypatch.setattr(Context, "use_ringkern", lambda self: None)
    monkeypatch.setattr(speed, "known_limits", lambda _: known)
    monkeypatch.setattr(speed, "contest", lambda *_: (lines, ""))
    speed.run(context)
    costs = one_gpu.shipped_costs()
    assert context.figures["costs"] == costs
    gpu = measured.gpu_of(known, context.machine)
    assert (gpu.launch_us, gpu.multiprocessors) == (1.25, 100)
    for row in context.figures["rows"][:2]:
        way = measured.CONTENDERS[row["contender"]]
        expected = one_gpu.predict(gpu, way, 4, 8, costs).time_us
        assert row["predicted_us"] == pytest.approx(expected, abs=1e-3)
    assert "predicted_us" not in context.figures["rows"][2]
    # The model's floor is that of these rows.
    for ranks, size in itertools.product((2, 4, 8), (8, 1 << 20, 256 << 20)):
        assert gpu.floor_us(ranks, size) == limits.machine_us(known, ranks, size)


def test_nothing_is_predicted_without_limits(context: Context) -> None:
    assert speed.with_prediction({"contender": "ringkern/ll"}, {}, context.machine) == {
        "contender": "ringkern/ll"
    }


def test_limits_of_an_earlier_run_are_known(context: Context) -> None:
    assert speed.known_limits(context) == {}
    known = known_limits()
    (context.work / "state").mkdir()
    figures = json.dumps({"figures": {**known, "lines": []}})
    (context.work / "state/limits.json").write_text(figures)
    assert speed.known_limits(context) == known
