"""Rings whose ranks are all in this process: their results, one call after another and at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch

import ringkern
from ringkern import _C, local
from tests.ranks import Pool
from tests.reference import DTYPES, PROTOCOLS, WAYS, bits_of
from tests.torch.layouts import LAYOUTS
from tests.torch.sequences import Attempt, Call, expected_of, values_of
from tests.torch.test_api import summed, values

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
LENGTHS = (0, 1, 2, 17, 1009, 10_007, 70_001)


def ring_of(size: int) -> local.Ring:
    return local.Ring(["cpu"] * size)


def total(size: int, n: int = 1000) -> list[torch.Tensor]:
    return [summed(size, n)] * size


def equal(tensors: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tensors, expected))


# ---- results ------------------------------------------------------------------------------------


def sample(size: int) -> list[Call]:
    """Returns each dtype with each of its ops, and random other parameters."""
    draw = random.Random(size)
    calls = []
    for name in DTYPES:
        for op in _C.ops_of(name):
            collective = draw.choice(COLLECTIVES)
            algorithm, protocol = draw.choice(WAYS)
            calls.append(
                Call(
                    collective,
                    "sum" if collective == "all_gather" else op,
                    name,
                    draw.choice(LENGTHS),
                    tuple(draw.sample(LAYOUTS, 3)),
                    protocol,
                    draw.choice(("plain", "special", "bits")),
                    in_place=draw.random() < 0.3 and collective != "all_reduce",
                    seed=draw.randrange(1000),
                    factor=1.7 if op == "premul_sum" else 1.0,
                    algorithm=algorithm,
                )
            )
    draw.shuffle(calls)
    return calls


def run(ring: local.Ring, call: Call) -> list[Attempt]:
    attempts = [Attempt(call, rank, ring.size) for rank in range(ring.size)]
    outputs = [attempt.output.tensor for attempt in attempts]
    inputs = [attempt.input.tensor for attempt in attempts]
    if call.collective == "all_reduce":
        ring.all_reduce(outputs, call.reduce_op, protocol=call.protocol, algorithm=call.algorithm)
    elif call.collective == "reduce_scatter":
        ring.reduce_scatter(outputs, inputs, call.reduce_op, protocol=call.protocol)
    else:
        ring.all_gather(outputs, inputs, protocol=call.protocol)
    return attempts


@pytest.mark.parametrize("size", range(1, 9))
def test_bit_identical_to_the_model(size: int) -> None:
    with ring_of(size) as ring:
        for call in sample(size):
            attempts = run(ring, call)
            results = [attempt.output.flat() for attempt in attempts]
            inputs = [values_of(call, rank, size) for rank in range(size)]
            expected = [bits_of(expected_of(call, inputs, rank)) for rank in range(size)]
            assert equal(results, expected), call
            for attempt in attempts:
                attempt.check_memory()


def _reduced(rank: int, size: int, call: Call) -> torch.Tensor:
    mine = values_of(call, rank, size)
    ringkern.ring_all_reduce(mine, call.reduce_op, protocol=call.protocol, algorithm=call.algorithm)
    return mine


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_bit_identical_to_processes(ranks: Pool, way: tuple[str, str]) -> None:
    algorithm, protocol = way
    for n in (5, 3000, 100_003):
        call = Call(
            *("all_reduce", "avg", "float16", n, ("contiguous",), protocol, "special"),
            algorithm=algorithm,
        )
        tensors = [values_of(call, rank, 3) for rank in range(3)]
        local.ring_all_reduce(tensors, call.reduce_op, protocol, algorithm)
        for mine, theirs in zip(tensors, ranks(3).run(_reduced, call)):
            assert torch.equal(bits_of(mine), bits_of(theirs))


def test_one_ring_for_the_same_devices() -> None:
    for n in (1000, 1, 0, 100_000, 1000):
        tensors = [values(rank, n) for rank in range(3)]
        assert local.ring_all_reduce(tensors) is None
        assert equal(tensors, total(3, n))
    assert [ring.size for key, ring in local._rings.items() if len(key[1]) == 3] == [3]


def test_shapes_and_layouts_may_differ() -> None:
    tensors = [values(0), values(1).view(10, 100), torch.empty(100, 10).t()]
    tensors[2].copy_(values(2).view(10, 100))
    local.ring_all_reduce(tensors)
    assert equal([x.reshape(-1) for x in tensors], total(3))


def test_arrays() -> None:
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    rows = numpy.stack([values(rank).numpy() for rank in range(3)])
    local.ring_all_reduce(rows)
    assert all((row == summed(3).numpy()).all() for row in rows)


def test_tensors_with_a_gradient() -> None:
    leaf, view = values(0).requires_grad_(), values(1).view(2, 500)[1]
    before = leaf._version, view._version
    other = torch.zeros(1000)
    local.ring_all_reduce([leaf, other])
    local.ring_all_reduce([view, torch.zeros(500)])
    assert leaf.requires_grad
    assert leaf.is_leaf
    assert (leaf._version, view._version) == (before[0] + 1, before[1] + 1)


def test_inside_torch_compile() -> None:
    def double(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x + x
        local.ring_all_reduce([x, y])
        return x + 1

    y = values(1)
    result = torch.compile(double, backend="eager")(values(0), y)
    assert torch.equal(result, 2 * values(0) + values(1) + 1)
    assert torch.equal(y, 2 * values(0) + values(1))


# ---- side by side -------------------------------------------------------------------------------


def on_threads(count: int, body: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def caught(i: int) -> None:
        try:
            body(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_many_threads_on_one_ring() -> None:
    def body(i: int) -> None:
        for n in (1, 1000, 30_000 + i):
            tensors = [values(rank, n) for rank in range(4)]
            local.ring_all_reduce(tensors, protocol=PROTOCOLS[i % 3])
            assert equal(tensors, total(4, n))

    on_threads(8, body)


def test_two_rings_at_once() -> None:
    with ring_of(3) as first, ring_of(3) as second:

        def body(i: int) -> None:
            for _ in range(30):
                tensors = [values(rank, 5000) for rank in range(3)]
                (first, second)[i].all_reduce(tensors)
                assert equal(tensors, total(3, 5000))

        on_threads(2, body)
