"""``algorithm``: the requested or the automatic algorithm of an all-reduce, for every form of the
call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern import local
from ringkern.choose import tables
from ringkern.config import ALGORITHMS
from ringkern.errors import CollectiveTimeoutError
from tests import reference
from tests.ranks import Pool, Ranks
from tests.reference import DIRECT, WAYS, way_of
from tests.torch.rings import normal, same
from tests.torch.test_api import summed, values

AVG = dist.ReduceOp.AVG


def test_names() -> None:
    assert ALGORITHMS == ("auto", "ring", "one_shot", "two_shot")


# ---- results ------------------------------------------------------------------------------------


def _every_way(rank: int, size: int) -> None:
    """Uses bfloat16, whose sums are rounded, so that their order shows."""
    other = ringkern.Communicator()
    for algorithm, protocol in WAYS:
        asked = {"algorithm": algorithm, "protocol": protocol}
        for n in (7, 255, 256, 5000, 200_001):
            inputs = [normal(torch.bfloat16, (n,), r, n) for r in range(size)]
            expected = reference.all_reduce(inputs, "avg", protocol, algorithm=algorithm)

            x, y, z, strided = (inputs[rank].clone() for _ in range(4))
            ringkern.ring_all_reduce(x, AVG, **asked)
            assert same(x, expected), (n, asked)
            other.all_reduce(y, AVG, **asked)
            assert same(y, expected), (n, asked)
            work = ringkern.ring_all_reduce(z, AVG, async_op=True, **asked)
            work.wait()
            assert same(z, expected), (n, asked)
            strided = torch.stack([strided, strided], 1)[:, 0]
            ringkern.ring_all_reduce(strided, AVG, **asked)
            assert same(strided, expected), (n, asked)
    other.close()


def test_every_way_from_every_call(ranks: Pool) -> None:
    ranks(3).run(_every_way)


def test_every_way_in_one_process() -> None:
    for algorithm, protocol in WAYS:
        for n in (7, 5000):
            inputs = [normal(torch.bfloat16, (n,), r, n) for r in range(3)]
            tensors = [x.clone() for x in inputs]
            local.ring_all_reduce(tensors, AVG, protocol, algorithm)
            expected = reference.all_reduce(inputs, "avg", protocol, algorithm=algorithm)
            assert all(same(x, expected) for x in tensors), (algorithm, protocol, n)


def _compiled(rank: int, size: int, backend: str) -> None:
    seen: list[tuple[Any, ...]] = []

    def noting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        op = torch.ops.ringkern.all_reduce_
        seen.extend(n.args[1:] for n in graph.graph.nodes if n.target in (op, op.default))
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    for algorithm, protocol in WAYS[::2]:  # each is traced, and tracing takes most of the time
        torch._dynamo.reset()
        seen.clear()

        def step(x: torch.Tensor, a: str = algorithm, p: str = protocol) -> torch.Tensor:
            y = x.clone()
            ringkern.ring_all_reduce(y, AVG, algorithm=a, protocol=p)
            return y

        inputs = [normal(torch.bfloat16, (2001,), r) for r in range(size)]
        result = torch.compile(step, fullgraph=True, backend=noting)(inputs[rank])
        expected = reference.all_reduce(inputs, "avg", protocol, algorithm=algorithm)
        assert same(result, expected), (algorithm, protocol)
        assert seen == [("avg", "", algorithm, protocol, "auto", "auto")]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_a_graph(ranks: Pool, backend: str) -> None:
    ranks(3).run(_compiled, backend, timeout_s=150)


# ---- the way of a call --------------------------------------------------------------------------


def over(way: reference.Way) -> str:
    return way.protocol if way.algorithm == "ring" else ", ".join(way)


def _lonely(rank: int, size: int, n: int, algorithm: str, protocol: str) -> str:
    communicator = ringkern.Communicator(timeout=timedelta(seconds=0.2))
    dist.barrier()  # the timeout also limits the connecting
    communicator.all_reduce(torch.ones(3))
    dist.barrier()
    text = ""
    if rank == 0:
        with pytest.raises(CollectiveTimeoutError) as caught:
            communicator.all_reduce(torch.ones(n), algorithm=algorithm, protocol=protocol)
        text = str(caught.value)
    dist.barrier()  # rank 1 has not left in between
    return text


def test_the_error_of_one_who_waits_names_the_way(ranks: Pool) -> None:
    asked = [(*way, n) for way in WAYS for n in (50_000, 300, 100)]
    seen = set()
    for algorithm, protocol, n in asked:
        way = way_of("all_reduce", 2, 4 * n, algorithm, protocol)
        if (algorithm, protocol, way) in seen:
            continue
        seen.add((algorithm, protocol, way))
        text = ranks(2).run(_lonely, n, algorithm, protocol)[0]
        told = f"seq=2 all_reduce sum float32[{n}] over {over(way)}: rank 0 waited for "
        assert text.startswith(told)


def test_the_choice_is_that_of_the_table() -> None:
    """`explain` reports the benchmark's choice; results and errors above confirm it."""
    store = dist.HashStore()
    for size in (1, 2, 8):
        communicator = ringkern.Communicator.from_store(store, 0, size)
        edges = [0, 511, 512, 513, 1 << 20, 1 << 40]
        for rows in tables.table("cpu", size).values():
            edges += [below + more for below, *_ in rows[:-1] for more in (-1, 0, 1)]
        for nbytes in edges:
            for collective in ("all_reduce", "reduce_scatter", "broadcast"):
                for algorithm in ALGORITHMS if collective == "all_reduce" else ("auto",):
                    parts = size if collective == "reduce_scatter" else 1
                    found = communicator.explain(
                        nbytes * parts, "int8", collective, algorithm=algorithm
                    )
                    expected = way_of(collective, size, nbytes, algorithm)
                    assert found.way[:2] == tuple(expected), (size, nbytes)
        communicator.close()


# ---- refused requests ---------------------------------------------------------------------------

NOT_THERE = [
    (algorithm, protocol)
    for algorithm in ("one_shot", "two_shot")
    for protocol in reference.PROTOCOLS
    if (algorithm, protocol) not in DIRECT
]


def _refused(rank: int, size: int) -> None:
    with ringkern.Communicator() as communicator:
        x = values(rank)
        compiled = torch.compile(
            lambda **kwargs: ringkern.ring_all_reduce(x, **kwargs), backend="eager"
        )
        calls: list[Callable[..., Any]] = [
            compiled,
            lambda **kwargs: ringkern.ring_all_reduce(x, **kwargs),
            lambda **kwargs: ringkern.ring_all_reduce(x, async_op=True, **kwargs),
            lambda **kwargs: communicator.all_reduce(x, **kwargs),
            lambda **kwargs: local.ring_all_reduce([x, x.clone()], **kwargs),
        ]
        for call in calls:
            for name in ("", "tree", "Ring", *([None] if call is not compiled else [])):
                with pytest.raises(ValueError, match="unknown algorithm") as caught:
                    call(algorithm=name)
                assert str(caught.value) == (
                    f"unknown algorithm {name!r}; choose one of auto, ring, one_shot, two_shot"
                )
            for algorithm, protocol in NOT_THERE:
                known = ["simple", "ll"] if algorithm == "one_shot" else ["simple"]
                with pytest.raises(ValueError, match="does not run over") as caught:
                    call(algorithm=algorithm, protocol=protocol)
                assert str(caught.value) == (
                    f"algorithm '{algorithm}' does not run over protocol '{protocol}' on cpu; "
                    f"choose one of auto, {', '.join(known)}"
                )
        # Nothing has been sent.
        assert torch.equal(x, values(rank))
        communicator.all_reduce(x)
        assert torch.equal(x, summed(size))


def test_unknown_algorithms_are_refused(ranks: Pool) -> None:
    ranks(2).run(_refused)


# ---- the environment ----------------------------------------------------------------------------


def _by_default(rank: int, size: int) -> list[str]:
    def text_of(call: Callable[[], Any]) -> str:
        dist.barrier()
        if rank == 1:
            return ""
        with pytest.raises(RuntimeError) as caught:
            call()
        return str(caught.value)

    assert ringkern.config.config.algorithm == "one_shot"
    x = values(rank)
    for _ in range(2):
        ringkern.ring_all_reduce(x, algorithm="ring")
        ringkern.ring_all_reduce(x)
    auto = ("auto",) * 4
    assert not ringkern._C.quick_all_reduce(x, dist.ReduceOp.SUM, None, False, *auto, None)
    # Other collectives, and messages, use the ring whatever is requested.
    group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=5))
    out, part = torch.empty(10 * size), torch.empty(10)
    ringkern.ring_reduce_scatter(part, values(rank, 10 * size))
    ringkern.ring_all_gather(out, part)
    assert torch.equal(out, summed(size, 10 * size))
    dist.all_reduce(x, group=group)
    dist.reduce_scatter_tensor(part, values(rank, 10 * size), group=group)
    dist.all_gather_into_tensor(out, part, group=group)
    assert torch.equal(out, summed(size, 10 * size))
    dist.broadcast(out, 0, group=group)
    dist.barrier(group)
    if rank == 0:
        dist.send(part, 1, group)
    else:
        dist.recv(part, 0, group)

    communicator = ringkern.Communicator(timeout=timedelta(seconds=0.5))
    dist.barrier()  # the timeout also limits the connecting
    communicator.all_reduce(x)
    texts = [text_of(lambda: communicator.all_reduce(torch.ones(10_000)))]
    dist.barrier()
    soon = dist.new_group(backend="ringkern", timeout=timedelta(seconds=0.5))
    dist.barrier()
    dist.all_reduce(x, group=soon)
    texts.append(text_of(lambda: dist.all_reduce(torch.ones(10_000), group=soon)))
    return texts


def test_algorithm_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGKERN_ALGORITHM", "one_shot")
    with closing(Ranks(2)) as own:
        for text in own.run(_by_default)[0]:
            # The default protocol depends on the processor.
            told = r"all_reduce sum float32\[10000\] over one_shot, (simple|ll): rank 0 waited for"
            assert re.search(told, text)
