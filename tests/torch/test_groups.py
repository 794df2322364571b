"""Communicators: one for each group, several at once, recreated, over any store."""

from __future__ import annotations

import gc
import os
import weakref
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import CommUsageError
from tests.ranks import Pool, Ranks
from tests.torch.test_api import summed, values

SECONDS = timedelta(seconds=30)


# ---- process groups -----------------------------------------------------------------------------


def _subgroups(rank: int, size: int) -> None:
    members = [(0, 1), (1, 2), (0, 2), (2, 1, 0), (1,)]
    groups = [dist.new_group(ranks) for ranks in members]
    for _ in range(3):
        for ranks, group in zip(members, groups):
            x = torch.full((77,), 10.0**rank)
            if rank in ranks:
                ringkern.ring_all_reduce(x, group=group)
                assert torch.equal(x, torch.full((77,), sum(10.0**r for r in ranks)))
            else:
                with pytest.raises(ValueError, match="not a member of the group"):
                    ringkern.ring_all_reduce(x, group=group)
        everybody = torch.full((5,), 10.0**rank)
        ringkern.ring_all_reduce(everybody)
        assert torch.equal(everybody, torch.full((5,), 111.0))
    for ranks, group in zip(members, groups):
        if rank in ranks:
            dist.destroy_process_group(group)


def test_overlapping_subgroups(ranks: Pool) -> None:
    ranks(3).run(_subgroups)


def _order_in_a_group(rank: int, size: int) -> None:
    # new_group sorts the ranks; the gathered order follows the ranks of the group.
    group = dist.new_group([2, 1])
    if rank > 0:
        out = torch.empty(2)
        ringkern.ring_all_gather(out, torch.tensor([float(rank)]), group=group)
        assert out.tolist() == [1.0, 2.0]
        part = torch.empty(1)
        ringkern.ring_reduce_scatter(part, torch.tensor([1.0, 2.0]), group=group)
        assert part.item() == 2.0 * rank
        dist.destroy_process_group(group)


def test_the_ranks_of_a_group(ranks: Pool) -> None:
    ranks(3).run(_order_in_a_group)


def _closed_with_its_group(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    ringkern.ring_all_reduce(torch.ones(3), group=group)
    communicator = weakref.ref(ringkern.comm.communicator_for(group))
    assert communicator() is not None
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert communicator() is None


def test_a_communicator_goes_with_its_group(ranks: Pool) -> None:
    ranks(2).run(_closed_with_its_group)


def _two_at_once(rank: int, size: int) -> None:
    other = dist.new_group(list(range(size)))
    with ringkern.Communicator(timeout=SECONDS) as one, ringkern.Communicator(other) as two:
        works, tensors = [], []
        for i in range(20):
            # Ranks start in different orders; only the order within a communicator matters.
            for communicator in (one, two) if (i + rank) % 2 == 0 else (two, one):
                x = values(rank, 5000)
                works.append(communicator.all_reduce(x, async_op=True))
                tensors.append(x)
        for work in works:
            work.wait()
        assert all(torch.equal(x, summed(size, 5000)) for x in tensors)
    dist.destroy_process_group(other)


def test_two_communicators_at_once(ranks: Pool) -> None:
    ranks(3).run(_two_at_once)


def test_without_a_process_group() -> None:
    assert not dist.is_initialized()
    for call in (
        lambda: ringkern.ring_all_reduce(torch.ones(3)),
        lambda: ringkern.functional.all_reduce(torch.ones(3)),
        ringkern.Communicator,
    ):
        with pytest.raises(CommUsageError, match=r"is not initialised: call .*init_process_group"):
            call()


def _again(rank: int, size: int, directory: str) -> None:
    """Runs in ranks of its own, because it ends their process group."""
    group = dist.group.WORLD
    ringkern.ring_all_reduce(values(rank))
    for attempt in range(3):
        dist.destroy_process_group()
        with pytest.raises(CommUsageError, match="not initialised"):
            ringkern.ring_all_reduce(values(rank))
        dist.init_process_group(
            "gloo",
            init_method=f"file://{os.path.join(directory, str(attempt))}",
            rank=rank,
            world_size=size,
        )
        assert dist.group.WORLD is not group
        x = values(rank)
        ringkern.ring_all_reduce(x)
        assert torch.equal(x, summed(size))


def test_destroyed_and_initialised_again(tmp_path: Path) -> None:
    with closing(Ranks(2)) as own:
        own.run(_again, str(tmp_path))
