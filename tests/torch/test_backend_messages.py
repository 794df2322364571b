"""Messages between two ranks through torch.distributed: send, recv and their asynchronous forms."""

from __future__ import annotations

import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.ranks import Pool, grid
from tests.torch.rings import any_bits, ring, same
from tests.torch.test_backend_collectives import DTYPES

LARGE = 4_000_000  # elements: far more than a link holds


def _pairs(rank: int, size: int) -> None:
    group = ring()
    for seed, dtype in enumerate(DTYPES):
        for shape in ((), (0,), (3, 7), (1024,), (4097,)):
            for a in range(size):
                for b in range(size):
                    if rank == a != b:
                        dist.send(any_bits(dtype, shape, a, seed), b, group)
                    elif rank == b != a:
                        x = any_bits(dtype, shape, 99)
                        assert dist.recv(x, a, group) == a
                        assert same(x, any_bits(dtype, shape, a, seed)), (a, b, dtype, shape)


@grid(2, 3, 4)
def test_every_dtype_between_every_two_ranks(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_pairs)


def _tags(rank: int, size: int) -> None:
    group, tags = ring(), [5, 0, 3, 2**31 - 1, 4]
    for n in (1, 5000, LARGE // 4):
        for order in (tags, tags[::-1], sorted(tags)):
            if rank == 0:
                works = [dist.isend(torch.full((n,), t % 1000), 1, group, tag=t) for t in tags]
            else:
                found = {t: torch.zeros(n, dtype=torch.int64) for t in order}
                works = [dist.irecv(x, 0, group, tag=t) for t, x in found.items()]
            for work in works:
                assert work is not None
                work.wait()
            if rank == 1:
                assert all(torch.equal(x, torch.full((n,), t % 1000)) for t, x in found.items())


@grid(2)
def test_tags_in_any_order(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_tags)


def _one_after_the_other(rank: int, size: int) -> None:
    """The receiver waits for the last tag first: earlier messages are kept for it."""
    group = ring()
    if rank == 0:
        works = [dist.isend(torch.full((2000,), float(t)), 1, group, tag=t) for t in range(20)]
        for work in works:
            assert work is not None
            work.wait()
    else:
        for t in reversed(range(20)):
            x = torch.zeros(2000)
            dist.recv(x, 0, group, tag=t)
            assert torch.equal(x, torch.full((2000,), float(t)))


@grid(2)
def test_messages_are_kept_until_received(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_one_after_the_other)


def _same_tag(rank: int, size: int) -> None:
    """Messages with one tag are received in the order in which they were sent."""
    group = ring()
    sizes = [(7919 * i) % 30_000 for i in range(100)]
    if rank == 0:
        works = [dist.isend(torch.full((n,), i), 1, group, tag=9) for i, n in enumerate(sizes)]
    else:
        found = [torch.full((n,), -1) for n in sizes]
        works = [dist.irecv(x, 0, group, tag=9) for x in found]
    for work in works:
        assert work is not None
        work.wait()
    if rank == 1:
        assert all(bool((x == i).all()) for i, x in enumerate(found))


@grid(2)
def test_messages_with_one_tag_are_in_order(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_same_tag)


def _any_source(rank: int, size: int) -> list[int]:
    group, sources = ring(), []
    if rank == 0:
        for _ in range(3 * (size - 1)):
            x = torch.zeros(3)
            source = dist.recv(x, None, group, tag=2)
            assert x.tolist() == [float(source)] * 3
            sources.append(source)
    else:
        for _ in range(3):
            dist.send(torch.full((3,), float(rank)), 0, group, tag=2)
    return sources


def _nothing_from_any_source(rank: int, size: int) -> None:
    group = ring()
    if rank == 0:
        sources = [dist.recv(torch.zeros(0), None, group, tag=3) for _ in range(size - 1)]
        assert sorted(map(int, sources)) == list(range(1, size))
    else:
        dist.send(torch.zeros(0), 0, group, tag=3)


@grid(3)
def test_receive_nothing_from_any_source(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_nothing_from_any_source)


@grid(2, 3, 4)
def test_receive_from_any_source(ranks: Pool, hosts: str) -> None:
    sources = ranks(hosts).run(_any_source)[0]
    assert sorted(sources) == sorted(3 * list(range(1, len(hosts))))


def _source_rank(rank: int, size: int) -> None:
    group, unknown = ring(), "known of a receive, once it has completed"
    if rank == 0:
        for source in (None, 1):
            work = dist.irecv(torch.zeros(2), source, group)
            assert work is not None
            with pytest.raises(ValueError, match=unknown):
                work._source_rank()
            dist.barrier(group=group)
            work.wait()
            assert work._source_rank() == 1
    else:
        for _ in range(2):
            dist.barrier(group=group)
            if rank == 1:
                work = dist.isend(torch.ones(2), 0, group)
                assert work is not None
                work.wait()
                with pytest.raises(ValueError, match=unknown):
                    work._source_rank()


@grid(3)
def test_the_source_of_a_message(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_source_rank)


def _ring(rank: int, size: int, n: int) -> None:
    """All ranks send first, more than links hold: a send that waited would deadlock."""
    group, to, source = ring(), (rank + 1) % size, (rank - 1) % size
    for first in ("send", "receive"):
        x, y = torch.full((n,), rank + 1.0), torch.zeros(n)
        ops = [dist.P2POp(dist.isend, x, to, group), dist.P2POp(dist.irecv, y, source, group)]
        for work in dist.batch_isend_irecv(ops if first == "send" else ops[::-1]):
            work.wait()
        assert torch.equal(y, torch.full((n,), source + 1.0))


@grid(2, 3, 4)
@pytest.mark.parametrize("n", [0, 1, LARGE])
def test_rings_of_batch_isend_irecv(ranks: Pool, hosts: str, n: int) -> None:
    ranks(hosts).run(_ring, n)


def _many(rank: int, size: int) -> None:
    """Keeps hundreds of messages in flight between all ranks, next to collectives over the ring and
    between pairs.
    """
    group, rounds = ring(), 60
    works, found = [], []
    for i in range(rounds):
        n = (i * 7919) % 5000
        for peer in range(size):
            if peer == rank:
                continue
            x = torch.full((n,), -1)
            works.append(dist.isend(torch.full((n,), 100 * i + rank), peer, group, tag=i % 3))
            works.append(dist.irecv(x, peer, group, tag=i % 3))
            found.append((x, 100 * i + peer))
        if i % 10 == 0:
            total, exchanged = torch.ones(3), torch.zeros(size)
            works.append(dist.all_reduce(total, group=group, async_op=True))
            dist.all_to_all_single(exchanged, torch.full((size,), float(rank)), group=group)
            assert exchanged.tolist() == list(range(size))
    for work in works:
        assert work is not None
        work.wait()
    assert all(bool((x == want).all()) for x, want in found)


@grid(2, 3, 4)
def test_many_messages_in_flight(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_many)


def _strided(rank: int, size: int) -> None:
    group = ring()
    if rank == 0:
        dist.send(torch.arange(12.0).view(3, 4).t(), 1, group)
        dist.send(torch.tensor([2.0]).expand(5), 1, group)
        dist.send(torch.arange(6.0).view(2, 3), 1, group)
    else:
        memory = torch.full((3, 8), -1.0)
        dist.recv(memory.t()[::2], 0, group)
        assert torch.equal(memory.t()[::2], torch.arange(12.0).view(3, 4).t())
        assert bool((memory.t()[1::2] == -1).all()), "bytes between the elements changed"
        x = torch.zeros(5)
        dist.recv(x, 0, group)
        assert x.tolist() == [2.0] * 5
        x = torch.zeros(6)  # only the number of bytes must agree
        dist.recv(x, 0, group)
        assert x.tolist() == list(range(6))


@grid(2)
def test_messages_that_are_not_contiguous(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_strided)


def _subgroup(rank: int, size: int) -> None:
    """Numbers ranks by the world, or, with group_dst and group_src, by the group."""
    members = [0, 2, 3]
    group = dist.new_group(members, backend="ringkern")
    if rank in members:
        me = members.index(rank)
        to, source = (me + 1) % 3, (me - 1) % 3
        x, y = torch.full((4,), float(rank)), torch.zeros(4)
        work = dist.isend(x, members[to], group)
        assert dist.recv(y, members[source], group) == members[source]
        assert y[0].item() == members[source]
        assert work is not None
        work.wait()
        work = dist.isend(x, group=group, group_dst=to)
        assert dist.recv(y.zero_(), group=group, group_src=source) == members[source]
        assert y[0].item() == members[source]
        work.wait()
        work = dist.isend(x, group=group, group_dst=to)
        assert dist.recv(y.zero_(), None, group) == members[source]
        assert y[0].item() == members[source]
        work.wait()
        dist.destroy_process_group(group)


@grid(4)
def test_the_ranks_of_a_subgroup(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_subgroup)


def _objects(rank: int, size: int) -> None:
    group = ring()
    if rank == 0:
        dist.send_object_list([{"a": 1}, "x" * 100_000], 1, group)
    else:
        found = [None, None]
        dist.recv_object_list(found, 0, group)
        assert found == [{"a": 1}, "x" * 100_000]


@grid(2)
def test_objects(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_objects)


def _work(rank: int, size: int) -> None:
    group, x = ring(), torch.zeros(LARGE)
    if rank == 0:
        work = dist.irecv(x, 1, group)
        assert work is not None
        assert not work.is_completed()
        with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
            work.wait(timedelta(milliseconds=20))
        with ThreadPoolExecutor(1) as thread, pytest.raises(RuntimeError, match=r"[Tt]imed out"):
            thread.submit(work.wait, timedelta(milliseconds=20)).result()
        dist.barrier(group=group)
    else:
        dist.barrier(group=group)
        work = dist.isend(x + 1, 0, group)
        assert work is not None
    (result,) = work.get_future().wait()
    assert work.wait() is True
    assert work.is_completed()
    assert work.is_success()
    if rank == 0:
        assert result.data_ptr() == x.data_ptr()
        assert bool((x == 1).all())


@grid(2)
def test_the_work_of_a_message(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_work)


def _polled(rank: int, size: int) -> None:
    """No rank waits: polling for completion makes progress."""
    group, x = ring(), torch.zeros(3)
    post = dist.isend if rank == 0 else dist.irecv
    work = post(x + 1 if rank == 0 else x, 1 - rank, group)
    assert work is not None
    end = time.monotonic() + 30
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.01)
    assert work.is_completed()
    assert rank == 0 or x.tolist() == [1.0] * 3


@grid(2)
def test_a_message_that_is_asked_whether_it_is_done(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_polled)


def _kept_alive(rank: int, size: int) -> None:
    """Only the call holds the tensors, and nothing holds the Work."""
    group = ring()
    if rank == 0:
        for i in range(20):
            dist.isend(torch.full((100_000,), float(i)), 1, group)
            torch.full((100_000,), -1.0)
        dist.barrier(group=group)
    else:
        dist.barrier(group=group)
        for i in range(20):
            x = torch.zeros(100_000)
            dist.recv(x, 0, group)
            assert bool((x == i).all())


@grid(2)
def test_tensors_and_work_may_be_dropped(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_kept_alive)


def _received_by_itself(rank: int, size: int) -> None:
    """A receive without a wait; later receives make progress on it."""
    group, x = ring(), torch.zeros(3)
    if rank == 0:
        dist.send(x + 1, 1, group, tag=1)
    else:
        dist.irecv(x, 0, group, tag=1)
    y = torch.zeros(1)
    for _ in range(3):
        if rank == 0:
            dist.send(y, 1, group)
        else:
            dist.recv(y, 0, group)
    end = time.monotonic() + 30
    while rank == 1 and not x.all() and time.monotonic() < end:
        time.sleep(0.01)
    assert rank == 0 or x.tolist() == [1.0] * 3


@grid(2)
def test_a_receive_that_nobody_waits_for(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_received_by_itself)


def _let_go(rank: int, size: int) -> None:
    group, memory = ring(), []
    for n in (3, 5000, 3):
        x = torch.zeros(n)
        if rank == 0:
            dist.send(x, 1, group)
        else:
            dist.recv(x, 0, group)
        memory.append(weakref.ref(x.untyped_storage()))
        del x
    end = time.monotonic() + 20  # a thread that has finished may not have ended
    while any(found() is not None for found in memory[:-1]) and time.monotonic() < end:
        time.sleep(0.01)
    kept = [found() is not None for found in memory]
    assert not any(kept[:-1]), kept  # that of the last one lives until the next message


@grid(2)
def test_memory_of_messages_that_are_done(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_let_go)
