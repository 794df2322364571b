"""The ring orders that rank 0 gives to the ranks of a CUDA communicator, by its view of the
machine.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from ringkern import _C, news
from ringkern.choose import ring_order, rings, topology


def on(monkeypatch: pytest.MonkeyPatch, machine: topology.Machine) -> list[str]:
    """Simulates that machine; returns the bus ids of its GPUs, in CUDA's format."""
    monkeypatch.setattr(topology, "detect", lambda: machine)
    return [machine.bus_id_of(gpu).upper() for gpu in range(len(machine.gpus))]


def test_a_cube_of_links_gets_rings_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = topology.recorded("dgx1-v100")
    buses = on(monkeypatch, machine)
    orders = ring_order.orders(buses, 32)
    assert 1 < len(orders) <= 8
    assert all(sorted(order) == list(range(8)) for order in orders)
    fabric = machine.fabric()
    for order in orders:  # none leaves NVLink
        assert all(fabric.kinds[hop] == "NVL" for hop in zip(order, order[1:] + order[:1]))


def test_ranks_are_found_by_their_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are numbered: pairs with a bridge stay side by side."""
    machine = topology.recorded("nvlink-pairs4")
    buses = on(monkeypatch, machine)
    shuffled = [0, 2, 1, 3]
    by_rank = machine.fabric(shuffled)
    orders = ring_order.orders([buses[gpu] for gpu in shuffled], 4)
    assert orders
    found = rings.speed_of(by_rank, tuple(map(tuple, orders)), 4)
    assert found > rings.speed_of(by_rank, ((0, 1, 2, 3),), 4)


@pytest.mark.parametrize("name", ["dgx-h100", "pcie4-2sockets"])
def test_ranks_stay_in_order_if_none_is_better(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    buses = on(monkeypatch, topology.recorded(name))
    assert ring_order.orders(buses, 32) == []


def test_several_ranks_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    buses = on(monkeypatch, topology.recorded("dgx-h100"))
    assert ring_order.orders(buses[:1] * 4, 32) == []


def test_an_unknown_gpu_gives_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = topology.recorded("dgx1-v100")
    buses = on(monkeypatch, machine)
    assert ring_order.orders([*buses[:3], "0000:fe:00.0"], 4) == []
    assert ring_order.orders(buses * 3, 4) == []  # more than orders can hold
    on(monkeypatch, dataclasses.replace(machine, gpus=()))
    assert ring_order.orders(buses, 4) == []


def test_a_ring_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    buses = on(monkeypatch, topology.recorded("dgx1-v100"))
    assert _C.ring_orders(ring_order.orders, buses, 32) == ring_order.orders(buses, 32)


def test_an_answer_is_taken_as_it_is() -> None:
    asked = []

    def answer(buses: list[str], channels: int) -> list[list[int]]:
        asked.append((buses, channels))
        return [[2, 0, 1], [1, 0, 2]]

    assert _C.ring_orders(answer, ["a", "b", "c"], 7) == [[2, 0, 1], [1, 0, 2]]
    assert asked == [(["a", "b", "c"], 7)]
    assert _C.ring_orders(None, ["a", "b", "c"], 7) == []


def _fails(buses: list[str], channels: int) -> list[list[int]]:
    raise ValueError("no way through")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (_fails, "no way through"),
        (lambda buses, channels: [[0, 1]], "no order of 3 ranks"),
        (lambda buses, channels: [[0, 1, 1]], "no order of 3 ranks"),
        (lambda buses, channels: [[0, 1, 2]] * 9, "no order of 3 ranks"),
        (lambda buses, channels: "no list", ""),
    ],
)
def test_a_ring_is_made_all_the_same(
    caplog: pytest.LogCaptureFixture, answer: Any, why: str
) -> None:
    news.start()
    assert _C.ring_orders(answer, ["a", "b", "c"], 7) == []
    for _ in range(500):
        if caplog.records:
            break
        time.sleep(0.01)
    text = caplog.records[-1].getMessage()
    assert "the ranks stand in their own order" in text
    assert why in text
