"""Groups whose ranks change: torch.distributed.shrink_group, and reconfigure() of torch 2.14.

tests/faults/test_going_on.py kills and stops ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType
from torch.distributed import distributed_c10d as c10d

import ringkern
from ringkern.backend import Options
from ringkern.errors import (
    CollectiveTimeoutError,
    CommAbortedError,
    CommUsageError,
    RendezvousError,
    RingKernError,
)
from tests.ranks import Pool, Ranks, grid
from tests.torch.rings import ring
from tests.torch.test_backend_groups import check

SHORT = timedelta(seconds=0.5)
LONG = timedelta(seconds=60)
RECONFIGURES = hasattr(c10d, "_reconfigure")
reconfigures = pytest.mark.skipif(
    not RECONFIGURES, reason=f"torch {torch.__version__} has no reconfigure(); 2.14 and newer have"
)


def check_ring(group: dist.ProcessGroup) -> None:
    """Checks the communicator that ringkern makes over a group."""
    x = torch.tensor([2.0 ** group.rank()])
    ringkern.ring_all_reduce(x, group=group)
    assert x.item() == 2 ** group.size() - 1


def backend_of(group: dist.ProcessGroup) -> Any:
    return group._get_backend(torch.device("cpu"))


def run_and_end(pool: Ranks, fn: Callable[[int, int], None]) -> None:
    """Runs a function after which torch numbers the next group differently on each rank."""
    pool.run(fn)
    pool.kill()


# ---- shrink_group -------------------------------------------------------------------------------


def _shrinks(rank: int, size: int) -> None:
    group = dist.new_group(backend="ringkern")
    check(group)
    check_ring(group)
    dist.barrier()
    if rank == 1:
        dist.barrier()
        with pytest.raises(RingKernError, match="goes on without rank 1") as caught:
            dist.all_reduce(torch.ones(3), group=group)
        assert isinstance(caught.value, CommAbortedError)
        with pytest.raises(CommAbortedError, match=f"goes on with {size - 1} of its {size} ranks"):
            ringkern.ring_all_reduce(torch.ones(3), group=group)
        dist.barrier()
        return
    flags = c10d.SHRINK_ABORT if rank == 0 else c10d.SHRINK_DEFAULT
    less = dist.shrink_group([1], group=group, shrink_flags=flags)
    assert (less.rank(), less.size()) == (rank - (rank > 1), size - 1)
    assert dist.get_process_group_ranks(less) == [r for r in range(size) if r != 1]
    check(less)
    check_ring(less)
    dist.barrier()
    dist.barrier()
    if size > 3:  # once more
        if rank == 0:
            return
        least = dist.shrink_group([0], group=less)
        assert (least.rank(), least.size()) == (rank - 2, size - 2)
        check(least)
        check_ring(least)
        less = least
    dist.destroy_process_group(less)


@grid(2, 3, 4)
def test_a_group_shrinks(ranks: Pool, hosts: str) -> None:
    run_and_end(ranks(hosts), _shrinks)


def _bad_shrinks(rank: int, size: int) -> None:
    backend = backend_of(ring())
    with pytest.raises(CommUsageError, match=f"rank {rank} excludes itself"):
        backend.shrink([rank])
    for other in (-1, size):
        with pytest.raises(CommUsageError, match=f"rank {other} cannot be excluded: .* 0 to 1"):
            backend.shrink([other])
    check(ring())


def test_shrinks_that_cannot_be(ranks: Pool) -> None:
    ranks(2).run(_bad_shrinks)


def _not_all_come(rank: int, size: int) -> None:
    """Rank 2 does not shrink the group: the others keep it as it is."""
    group = dist.new_group(backend="ringkern")
    check(group)
    group.set_timeout(SHORT)
    if rank == 0:
        with pytest.raises(RendezvousError, match=r"no ring of 2 .* did not come: rank 1"):
            dist.shrink_group([1], group=group)
    dist.barrier()
    group.set_timeout(LONG)
    check(group)


def test_a_rank_that_does_not_shrink_its_group(ranks: Pool) -> None:
    run_and_end(ranks(3), _not_all_come)


# ---- reconfigure() ------------------------------------------------------------------------------


def made() -> dist.ProcessGroup:
    return dist.new_group(backend="ringkern", pg_options=Options(enable_reconfigure=True))


def handles_of(group: dist.ProcessGroup) -> list[str]:
    """Returns the handle of each rank of the default group, which all make this call."""
    handles: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(handles, c10d._get_reconfigure_handle(group))
    return handles


def renew(
    group: dist.ProcessGroup,
    handles: Sequence[str] | set[str],
    uuid: int,
    timeout: timedelta = LONG,
) -> None:
    work = c10d._reconfigure(uuid, handles, group, timeout)
    assert work.is_completed()
    assert work.wait()


def whole(group: dist.ProcessGroup, uuid: int) -> None:
    """Makes it a group of all ranks, and checks it."""
    renew(group, handles_of(group), uuid)
    assert (group.rank(), group.size()) == (dist.get_rank(), dist.get_world_size())
    check(group)
    check_ring(group)


def _changes(rank: int, size: int) -> None:
    group = made()
    assert c10d._supports_reconfigure(group)
    whole(group, 1)
    whole(group, 2)
    handles = handles_of(group)
    if rank != 1:  # a rank leaves
        renew(group, [h for r, h in enumerate(handles) if r != 1], 3)
        assert (group.rank(), group.size()) == (rank - (rank > 1), size - 1)
        check(group)
        check_ring(group)
    else:
        with pytest.raises(CommAbortedError, match="goes on without rank 1"):
            dist.all_reduce(torch.ones(3), group=group)
        with pytest.raises(CommAbortedError, match=f"goes on with {size - 1} of its {size} ranks"):
            ringkern.ring_all_reduce(torch.ones(3), group=group)
    whole(group, 4)  # and comes back
    handles = handles_of(group)
    renew(group, [*handles[1:], handles[0]], 5)  # in another order
    assert group.rank() == (rank - 1) % size
    check(group)
    check_ring(group)
    renew(group, set(handles_of(group)), 6)  # in the first order
    assert group.rank() == rank
    check(group)
    renew(group, [c10d._get_reconfigure_handle(group)], 7 + rank)  # each alone
    assert (group.rank(), group.size()) == (0, 1)
    check(group)
    check_ring(group)
    whole(group, 100)


@reconfigures
@grid(2, 3, 4)
def test_the_ranks_of_a_group_change(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_changes)


def _waits_for_ranks(rank: int, size: int) -> None:
    group, x = made(), torch.ones(3)
    backend = backend_of(group)
    assert backend.get_error() == ErrorType.SUCCESS
    backend.abort()
    calls = {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "barrier": lambda: dist.barrier(group),
        "send": lambda: dist.send(x, 1 - rank, group),
        "start_coalescing": lambda: group._start_coalescing(torch.device("cpu")),
        "end_coalescing": lambda: group._end_coalescing(torch.device("cpu")),
        "monitored_barrier": lambda: group.monitored_barrier(),
        "shrink": lambda: backend.shrink([1 - rank]),
    }
    for call in calls.values():
        with pytest.raises(CommUsageError, match=r"no ranks yet.* call torch.*_reconfigure\(\)"):
            call()
    whole(group, 1)
    dist.destroy_process_group(group)
    dist.destroy_process_group(made())  # that never had ranks


@reconfigures
def test_a_group_that_waits_for_its_ranks(ranks: Pool) -> None:
    ranks(2).run(_waits_for_ranks)


def _bad_handles(rank: int, size: int) -> None:
    group = made()
    whole(group, 1)
    handles = handles_of(group)
    other = [handles[1 - rank]]
    bad = {
        "is empty": [],
        "'x' is no handle": [handles[rank], "x"],
        "'x:0:ringkern-1' is no handle": ["x:0:ringkern-1"],
        "'1:x:ringkern-1' is no handle": ["1:x:ringkern-1"],
        "'-1:0:ringkern-1' is no handle": ["-1:0:ringkern-1"],
        "'1:0:gloo' is no handle": ["1:0:gloo"],
        "has not that of this rank": other,
        "names one process twice, as ranks 0 and 2": [*handles, handles[0]],
    }
    for text, given in bad.items():
        with pytest.raises(ValueError, match=text):
            renew(group, given, 2)
    check(group)
    renew(group, handles, 2)
    with pytest.raises(ValueError, match=f"has not that of this rank, '{rank}:2:ringkern-"):
        renew(group, handles, 3)  # they are old
    for used in (1, 2):
        with pytest.raises(CommUsageError, match=f"uuid {used} was already used"):
            renew(group, handles_of(group), used)
        check(group)
    whole(group, 3)


@reconfigures
def test_handles_that_cannot_be(ranks: Pool) -> None:
    ranks(2).run(_bad_handles)


def _some_come(rank: int, size: int) -> None:
    """The group stays as it is, and the next attempt succeeds."""
    group = made()
    whole(group, 1)
    handles = handles_of(group)
    if rank == 0:
        with pytest.raises(RendezvousError, match=r"2 ranks within 0.5 s \(timed out\)"):
            renew(group, handles[:2], 2, SHORT)
    dist.barrier()
    check(group)
    check_ring(group)
    handles = handles_of(group)
    assert [h.split(":")[:2] for h in handles] == [["0", "2"], ["1", "1"], ["2", "1"]]
    renew(group, handles, 3)
    check(group)


@reconfigures
def test_a_rank_that_does_not_come(ranks: Pool) -> None:
    ranks(3).run(_some_come)


def _after_faults(rank: int, size: int) -> None:
    group = made()
    backend = backend_of(group)
    whole(group, 1)
    backend.abort()
    assert backend.get_error() == ErrorType.COMM_ERROR
    whole(group, 2)
    assert backend.get_error() == ErrorType.SUCCESS
    if rank == 0:
        group.set_timeout(timedelta(seconds=0.1))
        with pytest.raises(CollectiveTimeoutError, match="timed out"):
            dist.all_reduce(torch.ones(3), group=group)
        assert backend.get_error() == ErrorType.TIMEOUT
        group.set_timeout(LONG)
    dist.barrier()
    whole(group, 3)


@reconfigures
def test_after_faults(ranks: Pool) -> None:
    ranks(2).run(_after_faults)


def _in_flight(rank: int, size: int) -> None:
    """Calls that all ranks have made end well; those that some have made are aborted."""
    group = made()
    whole(group, 1)
    x = torch.ones(4_000_000)
    work = dist.all_reduce(x, group=group, async_op=True)
    assert work is not None
    whole(group, 2)
    work.wait()
    assert x[-1].item() == size
    if rank == 0:
        work = dist.all_reduce(x, group=group, async_op=True)
        message = dist.irecv(x, 1, group)
    handles = handles_of(group)
    if rank == 1:
        return
    renew(group, handles[:1] + handles[2:], 3)
    check(group)
    if rank == 0:
        assert work is not None
        assert message is not None
        for waits in (work, message):
            with pytest.raises(CommAbortedError, match="goes on without rank 1"):
                waits.wait()


@reconfigures
def test_calls_in_flight(ranks: Pool) -> None:
    ranks(3).run(_in_flight)


def _made_with_ranks(rank: int, size: int) -> None:
    group = dist.new_group(backend="ringkern")
    check(group)
    whole(group, 1)


@reconfigures
def test_a_group_that_was_made_with_its_ranks(ranks: Pool) -> None:
    ranks(2).run(_made_with_ranks)


@pytest.mark.skipif(RECONFIGURES, reason="this torch has reconfigure()")
def test_a_torch_without_reconfigure() -> None:
    with pytest.raises(NotImplementedError, match=r"use torch 2\.14 or newer"):
        Options(enable_reconfigure=True)
