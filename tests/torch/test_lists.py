"""The lists and limits of the extension agree with what it accepts."""

from __future__ import annotations

import itertools

import pytest
import torch

import ringkern
from bench.gpu import cases
from ringkern import _C, config
from ringkern.local import Ring


def test_ops_are_those_that_calls_accept() -> None:
    info = ringkern.build_info()
    with Ring(["cpu"] * 2) as ring:
        for dtype, op in itertools.product(info["dtypes"], info["ops"]):
            tensors = [torch.ones(3).to(getattr(torch, dtype)) for _ in range(2)]
            if op in _C.ops_of(dtype):
                ring.all_reduce(tensors, cases.reduce_op(op))
            else:
                with pytest.raises(TypeError, match=f"op {op} is not defined for dtype {dtype}"):
                    ring.all_reduce(tensors, cases.reduce_op(op))


def test_ways_are_those_that_calls_accept() -> None:
    ways = _C.ways_on("cpu")
    with Ring(["cpu"] * 2) as ring:
        for algorithm, protocol in itertools.product(_C.algorithms, _C.protocols):
            tensors = [torch.ones(3), torch.ones(3)]
            if (algorithm, protocol) in ways:
                ring.all_reduce(tensors, algorithm=algorithm, protocol=protocol)
                assert torch.equal(tensors[0], torch.full((3,), 2.0))
            else:
                with pytest.raises(ValueError, match="does not run over protocol"):
                    ring.all_reduce(tensors, algorithm=algorithm, protocol=protocol)


def test_the_ways_of_the_gpu_benchmark_are_all() -> None:
    """``bench/gpu`` is loaded before ringkern is built, so it cannot query the extension."""
    assert _C.protocols == cases.PROTOCOLS
    assert {"ring", *cases.ALGORITHMS} == set(_C.algorithms)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_possible_request_is_granted(device: str) -> None:
    """Every request that some way fulfils is granted, and no other."""
    lists = {name: [(1 << 62, "ring", "simple")] for name in _C.lists}
    for algorithm, protocol, in_rank_order, wide in itertools.product(
        config.ALGORITHMS, config.PROTOCOLS, (False, True), (False, True)
    ):
        asked = (algorithm, protocol, in_rank_order, wide)
        about = (device, "all_reduce", 2, "bfloat16")
        if _C.is_there(device, *asked):
            _C.choose(device, lists, "all_reduce", "bfloat16", 8, *asked)
            open_ways = [way for way in _C.ways_on(device) if not _C.why_not(*about, way, *asked)]
            assert open_ways
            assert all(algorithm in ("auto", a) and protocol in ("auto", p) for a, p in open_ways)
            assert not (in_rank_order or wide) or "ring" not in dict(open_ways)
        else:
            with pytest.raises(ValueError, match=r"does not run over|leave algorithm"):
                _C.choose(device, lists, "all_reduce", "bfloat16", 8, *asked)


def test_orders_are_as_many_and_as_long_as_a_plan_takes() -> None:
    def plan(ranks: int, orders: int) -> _C.Plan:
        numbered = [list(range(ranks))] * orders
        return _C.Plan("all_reduce", "simple", ranks, 100, 4, orders=numbered)

    assert plan(_C.most_ordered_ranks, _C.most_orders).ranks == _C.most_ordered_ranks
    for ranks, orders in ((_C.most_ordered_ranks + 1, 1), (2, _C.most_orders + 1)):
        with pytest.raises(ValueError, match="orders must be at most"):
            plan(ranks, orders)
