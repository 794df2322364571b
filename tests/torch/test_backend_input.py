"""Requests that the backend refuses: an error on the calling rank, nothing sent to the others, and
a group that still works. Each message names the argument.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tests.ranks import Pool
from tests.torch.bad_collectives import MOVES, OPS, REDUCTIONS, ones
from tests.torch.bad_exchanges import PAIRS
from tests.torch.rings import ring

pytestmark = pytest.mark.quick

SOON_S = 20.0  # far shorter than the suite's limit, for a rank that is left alone


CASES = REDUCTIONS | MOVES | PAIRS


def check_that_it_works(rank: int, size: int, group: dist.ProcessGroup) -> None:
    """Uses the ring, exchanges and messages: nothing was lost, and nothing left behind."""
    x, y, z = torch.full((3,), rank + 1.0), torch.zeros(size), torch.zeros(5)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [size * (size + 1) / 2] * 3
    dist.all_to_all_single(y, torch.full((size,), float(rank)), group=group)
    assert y.tolist() == list(range(size))
    work = dist.isend(torch.full((5,), float(rank)), (rank + 1) % size, group)
    dist.recv(z, (rank - 1) % size, group)
    assert z.tolist() == [(rank - 1.0) % size] * 5
    assert work is not None
    work.wait()


def _errs(rank: int, size: int, name: str, who: int | None) -> tuple[str, str] | None:
    """Makes the call on ``who``, or on all; the other ranks take no part."""
    call, error, _ = CASES[name]
    said = None
    if who in (rank, None):
        with pytest.raises(error) as caught:
            call(rank, size, ring(SOON_S))
        said = type(caught.value).__name__, str(caught.value)
    check_that_it_works(rank, size, ring(SOON_S))
    return said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_raised_where_it_was_made(ranks: Pool, name: str) -> None:
    _, error, text = CASES[name]
    for who in (0, 1, None):
        outcomes = ranks(2).run(_errs, name, who)
        for rank, outcome in enumerate(outcomes):
            if who in (rank, None):
                assert outcome[0] == error.__name__
                assert text in outcome[1]


def _nothing_changed(rank: int, size: int) -> None:
    group, x = ring(SOON_S), torch.arange(6)
    before, version = x.clone(), x._version
    for bad in (
        lambda: dist.all_reduce(x, OPS.AVG, group=group),
        # raises at once, not in wait()
        lambda: dist.all_reduce(x, OPS.AVG, group=group, async_op=True),
        lambda: dist.all_gather_into_tensor(x, ones(4, torch.int64), group=group),
        lambda: dist.all_to_all_single(x, ones(5, torch.int64), group=group, async_op=True),
        lambda: dist.irecv(x, 1 - rank, group, tag=-3),
    ):
        with pytest.raises((TypeError, ValueError)):
            bad()
    assert torch.equal(x, before)
    assert x._version == version
    check_that_it_works(rank, size, group)


def test_a_refused_tensor_is_untouched(ranks: Pool) -> None:
    ranks(2).run(_nothing_changed)


def _inside_a_manager(rank: int, size: int) -> None:
    group, x = ring(SOON_S), torch.full((2,), rank + 1.0)

    def wrong(device: torch.device | None) -> None:
        with c10d._coalescing_manager(group, device):
            dist.broadcast(ones(3, torch.int32), 0, group=group)
            dist.reduce(ones(3, torch.int32), 0, OPS.AVG, group=group)

    for device in (None, torch.device("cpu")):
        with pytest.raises(TypeError, match="op avg is not defined"):
            wrong(device)
        # torch's own state, which it leaves after an error
        c10d._world.pg_coalesce_state.pop(group, None)
        with c10d._coalescing_manager(group, device):
            dist.all_reduce(x, group=group)
        check_that_it_works(rank, size, group)


def test_an_error_while_coalescing(ranks: Pool) -> None:
    ranks(2).run(_inside_a_manager)


# ---- groups -------------------------------------------------------------------------------------


def _bad_groups(rank: int, size: int) -> None:
    for options in (c10d.ProcessGroupGloo._Options(), {"a": 1}):
        with pytest.raises(
            TypeError, match=r"'ringkern' takes ringkern\.backend\.Options: give these"
        ):
            dist.new_group(backend="ringkern", pg_options=options)
        dist.barrier()
    for timeout in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(ValueError, match="give a millisecond or more"):
            dist.new_group(backend="ringkern", timeout=timeout)
        dist.barrier()
    with pytest.raises(ValueError, match="the timeout must be positive"):
        ring(SOON_S).set_timeout(timedelta(0))
    check_that_it_works(rank, size, ring(SOON_S))


def test_groups_that_cannot_be(ranks: Pool) -> None:
    ranks(2).run(_bad_groups)


@pytest.mark.filterwarnings("ignore:.*not be part of")
def _call_in_foreign_group(rank: int, size: int) -> None:
    """torch warns, and calls no backend."""
    group = dist.new_group([0], backend="ringkern")
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [rank + 1.0] * 3
    check_that_it_works(rank, size, ring(SOON_S))


@pytest.mark.filterwarnings("ignore")
def test_a_rank_that_is_not_in_the_group(ranks: Pool) -> None:
    ranks(2).run(_call_in_foreign_group)


# ---- the others ---------------------------------------------------------------------------------


def _waits_for_it(rank: int, size: int, name: str) -> list[str]:
    """Rank 0 makes a wrong call and does not repeat it; rank 1 makes the right call, and waits in
    vain.
    """
    group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=SOON_S))
    check_that_it_works(rank, size, group)
    dist.barrier()
    group.set_timeout(timedelta(seconds=0.3))
    texts = []
    if rank == 0:
        call, error, _ = CASES[name]
        with pytest.raises(error):
            call(rank, size, group)
        dist.barrier()
    else:
        right = {
            "mean of integers": lambda: dist.all_reduce(ones(3), group=group),
            "gather to too few": lambda: dist.recv(ones(3), 0, group),
            "all_to_all of too few": lambda: dist.all_to_all([ones(3)] * 2, [ones(3)] * 2, group),
        }[name]
        for _ in range(2):
            with pytest.raises(RuntimeError) as caught:
                right()
            texts.append(f"{type(caught.value).__name__}: {caught.value}")
        dist.barrier()
    dist.destroy_process_group(group)
    check_that_it_works(rank, size, ring(SOON_S))
    return texts


@pytest.mark.parametrize("name", ["mean of integers", "gather to too few", "all_to_all of too few"])
def test_the_others_hear_of_it_in_time(ranks: Pool, name: str) -> None:
    _, (first, second) = ranks(2).run(_waits_for_it, name)
    assert first.startswith("CollectiveTimeoutError: ")
    assert "rank 1 waited for" in first
    assert "nothing came for 0.3 s" in first
    assert second.startswith("CommAbortedError: ")
    assert first.removeprefix("CollectiveTimeoutError: ") in second, "says why"


def _sizes_differ(rank: int, size: int) -> str:
    """Tests an error that no rank can find alone: the message names both sizes."""
    group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=SOON_S))
    text = ""
    if rank == 0:
        work = dist.isend(ones(3), 1, group)
        assert work is not None
        dist.barrier()
    else:
        with pytest.raises(RuntimeError) as caught:
            dist.recv(ones(4), 0, group)
        text = f"{type(caught.value).__name__}: {caught.value}"
        dist.barrier()
    dist.destroy_process_group(group)
    check_that_it_works(rank, size, ring(SOON_S))
    return text


def test_a_message_of_another_size(ranks: Pool) -> None:
    text = ranks(2).run(_sizes_differ)[1]
    assert text.startswith("CollectiveMismatchError: ")
    wanted = "rank 0 sent 12 bytes of float32 to rank 1 (tag 0), which expects 16 bytes of float32"
    assert wanted in text
