"""Communicators and backends of ranks on several hosts, from Python."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern import _C
from ringkern.backend import Options
from ringkern.choose import tables
from ringkern.comm import communicator_for
from ringkern.errors import CollectiveMismatchError, CommUsageError, RendezvousError
from ringkern.hosts import Hosts
from ringkern.tools.trace.record import record
from tests.hosts.on_hosts import on_hosts
from tests.ranks import Pool, Ranks

SECONDS = timedelta(seconds=30)


def host_of(counts: list[int]) -> tuple[int, ...]:
    return tuple(host for host, count in enumerate(counts) for _ in range(count))


# ---- communicators ------------------------------------------------------------------------------


def _several(rank: int, size: int, counts: list[int]) -> None:
    with on_hosts(rank, counts) as name, ringkern.Communicator(timeout=SECONDS) as ring:
        x = torch.full((1000,), 10.0**rank)
        ring.all_reduce(x)
        assert torch.equal(x, torch.full((1000,), float("1" * size)))
        assert repr(ring) == f"<ringkern.Communicator rank {rank} of {size}, on host {name}>"
        assert ring.hosts.names == tuple("abc"[: len(counts)])
        assert ring.hosts.host_of == host_of(counts)
        assert type(ring._c) is _C.HostsCommunicator
        part, whole = torch.empty(3), torch.empty(3 * size)
        ring.reduce_scatter(part, torch.arange(3.0 * size))
        ring.all_gather(whole, part)
        assert torch.equal(whole, size * torch.arange(3.0 * size))
        work = ring.all_reduce(x, async_op=True)
        assert work is not None
        work.wait()
        assert torch.equal(x, torch.full((1000,), size * float("1" * size)))


@pytest.mark.parametrize("counts", [[1, 1], [2, 1], [2, 2], [1, 2, 1]])
def test_communicators(ranks: Pool, counts: list[int]) -> None:
    ranks(sum(counts)).run(_several, counts)


def _refused(rank: int, size: int) -> None:
    """Before the call is one of the group's: what follows is in step on all ranks."""
    way: dict[str, Any] = {"deterministic": "size_invariant", "algorithm": "ring"}
    with on_hosts(rank, [1, 1]), ringkern.Communicator(timeout=SECONDS) as ring:
        x = torch.ones(3)
        for async_op in (False, True):
            ring.all_reduce(x)
            if rank == 0:
                with pytest.raises(ValueError, match="leave algorithm and protocol to auto"):
                    ring.all_reduce(x, async_op=async_op, **way)
        ring.all_reduce(x)
        assert x.tolist() == [8.0] * 3


def test_a_refused_call_leaves_ranks_in_step(ranks: Pool) -> None:
    ranks(2).run(_refused)


def _kept(rank: int, size: int) -> None:
    """The group's own communicator, which calls find by the short way, if there is one."""
    group = dist.new_group()
    with on_hosts(rank, [2, 1]):
        for i in range(5):
            x = torch.full((7,), float(i))
            ringkern.ring_all_reduce(x, group=group)
            assert torch.equal(x, torch.full((7,), 3.0 * i))
        ring = communicator_for(group)
        assert communicator_for(group) is ring
        assert ring.hosts.count == 2
    ringkern.ring_all_reduce(torch.ones(3), group=group)  # once it is known, it is known
    ring.close()
    dist.destroy_process_group(group)


def test_the_communicator_of_a_group(ranks: Pool) -> None:
    ranks(3).run(_kept)


def _going_on_that_cannot_be(rank: int, size: int) -> None:
    with on_hosts(rank, [2, 1]):
        ring = ringkern.Communicator(timeout=SECONDS)
        with pytest.raises(CommUsageError, match="spans 2 hosts, and processes can join one of a"):
            ring.grow(dist.HashStore())
        if rank == 2:
            ring.all_reduce(torch.ones(3))
            ring.close()
            return
        with pytest.raises(CollectiveMismatchError, match="give all ranks that go on the same"):
            ring.shrink([] if rank == 0 else [2], timeout=timedelta(seconds=1))
        x = torch.ones(3)
        ring.all_reduce(x)  # it is as before
        assert x.sum() == 3 * size
        ring.close()
        with pytest.raises(CommUsageError, match="is closed"):
            ring.shrink()


def test_going_on_that_cannot_be(ranks: Pool) -> None:
    ranks(3).run(_going_on_that_cannot_be)


def _calls_by_the_table_of_a_host(rank: int, size: int) -> None:
    with on_hosts(rank, [3, 1]), ringkern.Communicator(timeout=SECONDS) as ring:
        assert ring.hosts.count == 2
        here = 3 if rank < 3 else 1
        ring.all_reduce(torch.ones(8))  # rank 0 of a host gives the others its table
        assert ring._c.table("cpu") == tables.table("cpu", here)


def test_rings_go_by_the_number_of_ranks_on_their_host(ranks: Pool) -> None:
    ranks(4).run(_calls_by_the_table_of_a_host)


def _explained(rank: int, size: int) -> None:
    with on_hosts(rank, [2, 2]) as name, ringkern.Communicator(timeout=SECONDS) as ring:
        little, much = ring.explain(1000), ring.explain(64 << 20)
        assert str(little).startswith(
            "all_reduce of 1000B, 4 ranks on 2 hosts (a, b): 1 piece over 1 rail of gloo; "
            f"inside {name} first\nall_reduce of 1000B float32, 2 ranks on cpu: "
        )
        assert (much.collective, much.ranks) == ("reduce_scatter", 2)
        assert "over 2 rails of gloo" in much.between
        assert much.as_dict()["between"] == much.between
        assert ring.explain(1 << 20, collective="broadcast").collective == "broadcast"
        halves = ring.explain(1 << 20, collective="all_gather")
        assert (halves.nbytes, halves.collective) == (1 << 19, "all_gather")
        with pytest.raises(ValueError, match="unknown collective 'scan'"):
            ring.explain(8, collective="scan")


def test_explain(ranks: Pool) -> None:
    ranks(4).run(_explained)


def _dumped(rank: int, size: int) -> list[str]:
    group = dist.new_group([1, 2, 3])
    if rank == 0:
        return []
    with on_hosts(rank - 1, [1, 2]):
        for _ in range(2):  # the second has a number in its name
            ring = ringkern.Communicator(group, timeout=SECONDS)
            ring.all_reduce(torch.ones(3))
            found = ringkern.dump()["pg_config"].values()
            ring.close()
    dist.destroy_process_group(group)
    return [c["ranks"] for c in found if group.group_name in c["name"]]


def test_dumps_have_the_ranks_of_a_host(ranks: Pool) -> None:
    found = ranks(4).run(_dumped)
    assert [set(ranks) for ranks in found] == [set(), {"[1]"}, {"[2, 3]"}, {"[2, 3]"}]


def _not_traced(rank: int, size: int) -> None:
    group = dist.new_group()
    with (
        on_hosts(rank, [1, 1]),
        pytest.raises(ValueError, match="on 2 hosts, and a trace is of one ring"),
    ):
        record(64, group=group)
    communicator_for(group).close()
    dist.destroy_process_group(group)


def test_a_trace_is_of_one_host(ranks: Pool) -> None:
    ranks(2).run(_not_traced)


def test_one_rank_and_threads_ask_nobody(tmp_path: Path) -> None:
    """These are always on one host."""
    nested = dist.PrefixStore("a", dist.PrefixStore("b", dist.HashStore()))
    for store, size in ((dist.FileStore(str(tmp_path / "store"), 1), 1), (nested, 3)):
        keys = store.num_keys()
        ring = ringkern.Communicator.from_store(store, 0, size)
        assert ring.hosts == Hosts(ring.hosts.names, (0,) * size, ring.hosts.crowded)
        assert store.num_keys() == keys
        if size == 1:
            ring.all_reduce(torch.ones(3))
            assert store.num_keys() == keys
        ring.close()


def test_inter_host_is_checked_where_it_is_given() -> None:
    with pytest.raises(ValueError, match="inter_host='glo': 'glo' cannot join hosts"):
        ringkern.Communicator.from_store(dist.HashStore(), 0, 1, inter_host="glo")
    with pytest.raises(ValueError, match="inter_host='glo': 'glo' cannot join hosts"):
        Options(inter_host="glo")


def _engine_that_is_not_there(rank: int, size: int) -> str:
    with (
        on_hosts(rank, [1, 1]),
        ringkern.Communicator(timeout=SECONDS, inter_host="ucc") as ring,
        pytest.raises(RendezvousError) as caught,
    ):
        ring.all_reduce(torch.ones(3))
    return str(caught.value)


def test_an_engine_that_is_not_there(ranks: Pool) -> None:
    if dist.is_ucc_available():
        pytest.skip("this torch has UCC")
    for text in ranks(2).run(_engine_that_is_not_there):
        assert "the engine 'ucc' between hosts is not in this torch" in text


def _engine_that_cannot_connect(rank: int, size: int) -> str:
    with (
        on_hosts(rank, [1, 1]),
        pytest.MonkeyPatch.context() as patch,
        ringkern.Communicator(timeout=timedelta(seconds=1)) as ring,
    ):
        if rank == 1:
            patch.setenv("GLOO_SOCKET_IFNAME", "nothing0")
        with pytest.raises(RendezvousError) as caught:
            ring.all_reduce(torch.ones(3))
    return str(caught.value)


def test_an_engine_that_cannot_connect(ranks: Pool) -> None:
    """Each rank has the engine's reason: one cannot listen, and the other waits for it in vain."""
    texts = ranks(2).run(_engine_that_cannot_connect)
    for host, text in zip("ab", texts):
        assert f"on host {host} has no engine between the hosts: " in text
        assert "set GLOO_SOCKET_IFNAME to the network interface between the hosts" in text
    assert "nothing0" in texts[1]


# ---- the backend --------------------------------------------------------------------------------


def _backend(rank: int, size: int, counts: list[int]) -> None:
    with on_hosts(rank, counts):
        for options in (None, Options(), Options(inter_host="cpu:gloo")):
            group = dist.new_group(backend="ringkern", timeout=SECONDS, pg_options=options)
            x = torch.full((1000,), 10.0**rank)
            dist.all_reduce(x, group=group)
            assert torch.equal(x, torch.full((1000,), float("1" * size)))
            objects = [None] * size
            dist.all_gather_object(objects, rank, group=group)
            assert objects == list(range(size))
            dist.destroy_process_group(group)


@pytest.mark.parametrize("counts", [[2, 2], [1, 2]])
def test_backend(ranks: Pool, counts: list[int]) -> None:
    ranks(sum(counts)).run(_backend, counts)


def _backend_of_another_engine(rank: int, size: int) -> str:
    with on_hosts(rank, [1, 1]):
        options = Options(inter_host="ucc")
        with pytest.raises(RendezvousError) as caught:
            dist.new_group(backend="ringkern", timeout=SECONDS, pg_options=options)
    return str(caught.value)


def test_the_backend_takes_the_engine_that_is_asked_for(ranks: Pool) -> None:
    if dist.is_ucc_available():
        pytest.skip("this torch has UCC")
    for text in ranks(2).run(_backend_of_another_engine):
        assert "the engine 'ucc'" in text


def _other_options(rank: int, size: int) -> None:
    with pytest.raises(TypeError, match=r"pg_options is dict; .* ringkern\.backend\.Options"):
        dist.new_group(backend="ringkern", pg_options={"inter_host": "gloo"})


def test_other_options(tmp_path: Path) -> None:
    pool = Ranks(1)
    try:
        pool.run(_other_options)
    finally:
        pool.close()


def _nobody_else(rank: int, size: int) -> str:
    if rank == 1:
        dist.barrier()
        dist.new_group([rank])  # to be in step again with the names that torch gives
        return ""
    with pytest.raises(RendezvousError) as caught:
        dist.new_group(backend="ringkern", timeout=timedelta(seconds=0.5))
    dist.barrier()
    return str(caught.value)


def test_a_rank_that_does_not_make_the_group(tmp_path: Path) -> None:
    pool = Ranks(2)
    try:
        assert "did not come: rank 1" in pool.run(_nobody_else)[0]
    finally:
        pool.close()
