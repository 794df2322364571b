"""The backend on several hosts: random sequences of all collectives against Gloo, and tags. The
rest is tested where one host is: the tests of tests/torch that run over a `grid`."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from ringkern.errors import CollectiveTimeoutError, CommAbortedError, RingKernError
from tests.hosts.groups import LAYOUTS, Groups, Members
from tests.ranks import Pool
from tests.torch import test_backend_properties
from tests.torch.rings import ring
from tests.torch.test_backend_properties import Call, calls

EXAMPLES = int(os.environ.get("RK_TEST_HOSTS_EXAMPLES", "8"))  # for each layout


def _sequence(rank: int, size: int, groups: Groups, sequence: list[Call]) -> list[str]:
    return test_backend_properties.run_sequence(rank, size, sequence, groups)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_sequences_of_calls(
    members: Callable[[str], Members], layout: str, data: st.DataObject
) -> None:
    group = members(layout)
    sequence = data.draw(st.lists(calls(group.size), min_size=1, max_size=8))
    for differences in group.run(_sequence, sequence):
        assert not differences


def _taken_tags(rank: int, size: int) -> None:
    group, first, last = ring(), 2**30, 2**30 + 2**20 - 1
    for tag in (first, last):
        with pytest.raises(ValueError, match=f"tag is {tag}; between hosts tags from .* are taken"):
            dist.send(torch.ones(1), 1 - rank, group, tag=tag)
    for tag in (first - 1, last + 1):
        x = torch.tensor([float(tag)])
        if rank == 0:
            dist.send(x, 1, group, tag=tag)
        else:
            dist.recv(y := torch.zeros(1), 0, group, tag=tag)
            assert torch.equal(x, y)


def test_tags_that_collectives_take(ranks: Pool) -> None:
    ranks("ab").run(_taken_tags)


# ---- the engines' options ------------------------------------------------------------------------

SLOT = ["gloo:all_gather"]
# With the root on the second rail, of two hosts with two ranks each.
OVER: dict[str, tuple[Callable[[torch.Tensor, dist.ProcessGroup], object], tuple[int, int]]] = {
    "all_reduce": (lambda x, group: dist.all_reduce(x, group=group), (0, 2)),
    "broadcast": (lambda x, group: dist.broadcast(x, group_src=1, group=group), (1, 3)),
    "reduce": (lambda x, group: dist.reduce(x, group_dst=3, group=group), (1, 3)),
}


def _asked(call: Callable[..., object], *arguments: object) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call(*arguments)
    return sorted(event.name for event in profiler.events() if event.name.startswith("gloo:"))


def _asks(rank: int, size: int) -> None:
    group = ring()
    for name, (call, rail) in OVER.items():
        few, some = ([_asked(call, torch.ones(n), group) for _ in range(3)] for n in (10, 1000))
        assert few == [SLOT if rank in rail else []] * 3, name
        data = [f"gloo:{name}"] if rank in rail else []
        assert some == [SLOT + data if data else [], data, data], name
    pieces = torch.ones(4_000_000)
    first, *again = [_asked(dist.all_reduce, pieces, dist.ReduceOp.SUM, group) for _ in range(3)]
    assert len(again[0]) > 1, "there are several pieces"
    assert set(again[0]) == {"gloo:all_reduce"}, "and none is compared"
    assert again == [again[0]] * 2
    assert first == SLOT + again[0]


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")
def test_engines_get_the_expected_calls(ranks: Pool) -> None:
    """A slot for few data; for more a slot for each call that is not like the one before."""
    ranks("aabb").run(_asks)


# ---- a host that is late -------------------------------------------------------------------------

LATE: dict[str, Callable[[int, dist.ProcessGroup], Any]] = {
    "few": lambda k, g: dist.all_reduce(torch.ones(3), group=g, async_op=True),
    "all_reduce": lambda k, g: dist.all_reduce(torch.ones(1000), group=g, async_op=True),
    "exchange": lambda k, g: dist.all_reduce(
        torch.ones(1000), dist.ReduceOp.MAX, group=g, async_op=True
    ),
    "broadcast": lambda k, g: dist.broadcast(torch.ones(1000), k - 1, group=g, async_op=True),
    "reduce": lambda k, g: dist.reduce(torch.ones(1000), 0, group=g, async_op=True),
    "all_gather": lambda k, g: dist.all_gather_into_tensor(
        torch.ones(1000 * k), torch.ones(1000), g, async_op=True
    ),
}


def _late(rank: int, size: int) -> dict[str, str]:
    """The last rank makes one call of each, and the others two."""
    dist.new_group(backend="ringkern")  # imports ringkern, before time counts
    limit = timedelta(seconds=3)
    groups = {name: dist.new_group(backend="ringkern", timeout=limit) for name in LATE}
    for name, group in groups.items():
        LATE[name](size, group).wait()
    dist.barrier()
    late = rank == size - 1
    works = {} if late else {name: LATE[name](size, group) for name, group in groups.items()}
    said = {}
    for name, work in works.items():
        if rank > 0 and name in ("broadcast", "reduce"):
            continue  # it may have nothing to wait for
        with pytest.raises(CollectiveTimeoutError) as caught:
            work.wait()
        said[name] = str(caught.value)
    if rank == 0:  # by the engine's timeout
        with pytest.raises(CollectiveTimeoutError, match=f"for a message from rank {size - 1} on"):
            dist.recv(torch.zeros(3), size - 1, groups["few"])
    dist.barrier()
    for group in groups.values():
        dist.destroy_process_group(group)
    return said


@pytest.mark.alone
@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_a_host_that_is_late(ranks: Pool, hosts: str) -> None:
    """The late host is named, on any rank and with any engine; an engine alone would report a
    broken connection.
    """
    *told, nothing = ranks(hosts).run(_late)
    assert told[0].keys() == LATE.keys()
    assert nothing == {}
    late = f"(timed out) for host b (rank {len(hosts) - 1}): no rank there"
    assert all(late in text for said in told for text in said.values()), told


def _behind(rank: int, size: int) -> None:
    """Rank 3 comes late to a broadcast, from which host a returns: it is in the next call then."""
    group = ring()
    for late in (0, 4):
        dist.barrier()
        time.sleep(late * (rank == 3))
        x = torch.full((1_000_000,), float(rank))  # more than a link holds
        dist.broadcast(x, group_src=0, group=group)
        assert not x.any()
        dist.all_reduce(torch.ones(10), group=group)


def test_a_host_that_is_a_call_behind(ranks: Pool) -> None:
    """It is in another call, and yet makes the same ones."""
    ranks("aabb").run(_behind)


def _in_time(rank: int, size: int) -> None:
    group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=7))
    for late in (0, 6.4):  # no status query is made then, which would delay the end of the wait
        dist.barrier()
        time.sleep(late * rank)
        x = torch.ones(1000)
        dist.all_reduce(x, group=group)
        assert bool((x == size).all())
    dist.destroy_process_group(group)


def test_a_host_that_comes_in_time(ranks: Pool) -> None:
    ranks("ab").run(_in_time)


# ---- a host that gives up ------------------------------------------------------------------------


def _leaves_a_wait(rank: int, size: int) -> None:
    """The other host, for which this one has waited, keeps the group, and may still send."""
    group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=60))
    x = torch.ones(1000)
    dist.all_reduce(x, group=group)
    if rank == 0:
        threading.Timer(0.3, group.abort).start()
        with pytest.raises(CommAbortedError):
            dist.all_reduce(x, group=group)
        memory = weakref.ref(x.untyped_storage())
        del x
        assert memory() is not None, "the engine has it"
        start = time.monotonic()
        dist.destroy_process_group(group)
        assert time.monotonic() - start < 20
    dist.barrier()
    if rank > 0:
        dist.destroy_process_group(group)


def test_destroying_what_was_waited_for(ranks: Pool) -> None:
    ranks("ab").run(_leaves_a_wait)


# ---- exchanges -----------------------------------------------------------------------------------


def _error(call: Callable[[], object]) -> tuple[str, str]:
    try:
        call()
    except RingKernError as error:
        return type(error).__name__, str(error)
    return "no error", ""


def _one_does_not_fit(rank: int, size: int) -> list[tuple[str, str]]:
    """Rank 1 sends to rank 0, on its host, what that does not expect."""
    group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=5))
    try:
        outs = [torch.empty(10) for _ in range(size)] if rank == 0 else None
        x = torch.ones(5 if rank == 1 else 10)
        first = _error(lambda: dist.gather(x, outs, 0, group))
        time.sleep(1.5)  # in which rank 0 tells it
        y = torch.ones(size)
        return [first, _error(lambda: dist.all_to_all_single(torch.ones(size), y, group=group))]
    finally:
        dist.destroy_process_group(group)


def test_a_mismatch_on_one_host_is_reported_on_the_others(ranks: Pool) -> None:
    found = ranks("aabb").run(_one_does_not_fit)
    assert found[0][0][0] == "CollectiveMismatchError"
    for _, (kind, text) in found:
        assert kind in ("CollectiveMismatchError", "CommAbortedError"), found
        assert "must agree on its size" in text, found


def _gathers_in_another_order(rank: int, size: int) -> list[str]:
    group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=3))
    works = []
    for root in (0, 1) if rank == 0 else (1, 0):
        outs = [torch.empty(3) for _ in range(size)] if rank == root else None
        works.append(dist.gather(torch.ones(3), outs, root, group, async_op=True))
    kinds = [_error(work.wait)[0] for work in works if work is not None]
    dist.barrier()
    dist.destroy_process_group(group)
    return kinds


def test_one_gather_is_not_taken_for_another(ranks: Pool) -> None:
    """Each root waits for a message of its own call; the first that gives up ends its engine."""
    found = ranks("ab").run(_gathers_in_another_order)
    assert any("CollectiveTimeoutError" in kinds for kinds in found), found
    for kinds in found:
        assert kinds[0] in ("CollectiveTimeoutError", "CommAbortedError"), found
