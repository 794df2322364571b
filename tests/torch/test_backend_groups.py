"""Process groups of the backend: subsets of ranks, many groups, repeated creation, and torch's
queries.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tests.ranks import Pool, Ranks, grid
from tests.torch.rings import ring
from tests.torch.test_backend_input import check_that_it_works


def check(group: dist.ProcessGroup) -> None:
    """Checks a group of any ranks, numbered in the world in any way."""
    me, size = group.rank(), group.size()
    x, y = torch.tensor([me + 1.0]), torch.zeros(size)
    dist.all_reduce(x, group=group)
    assert x.item() == size * (size + 1) / 2
    dist.all_to_all_single(y, torch.full((size,), float(me)), group=group)
    assert y.tolist() == list(range(size))
    if size > 1:
        z = torch.zeros(1)
        work = dist.isend(torch.tensor([float(me)]), group=group, group_dst=(me + 1) % size)
        dist.recv(z, group=group, group_src=(me - 1) % size)
        assert z.item() == (me - 1) % size
        assert work is not None
        work.wait()


# ---- groups of ranks ----------------------------------------------------------------------------


def _subsets(rank: int, size: int) -> None:
    members = [(0, 1), (3, 1), (0, 2, 3), (3, 2, 1, 0), (2,), (1,)]
    groups = [dist.new_group(list(m), backend="ringkern") for m in members]
    for _ in range(3):
        for ranks, group in zip(members, groups):
            if rank in ranks:
                assert dist.get_process_group_ranks(group) == sorted(ranks)
                check(group)
    for ranks, group in zip(members, groups):
        if rank in ranks:
            dist.destroy_process_group(group)


@grid(4)
def test_overlapping_groups(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_subsets)


def _subgroups(rank: int, size: int) -> None:
    mine, groups = dist.new_subgroups(2, backend="ringkern")
    assert len(groups) == 2
    assert dist.get_process_group_ranks(mine) == [rank // 2 * 2, rank // 2 * 2 + 1]
    check(mine)
    mine, groups = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]], backend="ringkern")
    assert dist.get_process_group_ranks(mine) == [rank % 2, rank % 2 + 2]
    check(mine)
    mine, groups = dist.new_subgroups_by_enumeration([[2], [3, 0]], backend="ringkern")
    assert (mine is None) == (rank == 1)
    if mine is not None:
        check(mine)


@grid(4)
def test_subgroups(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_subgroups)


def _at_once(rank: int, size: int) -> None:
    """Makes calls in several groups at a time; only the order within a group matters."""
    groups = [dist.new_group(backend="ringkern") for _ in range(3)]
    works, tensors = [], []
    for i in range(20):
        for j in range(3):
            group = groups[(j + i * rank) % 3]
            x, y = torch.full((5000,), rank + 1.0), torch.zeros(size)
            works.append(dist.all_reduce(x, group=group, async_op=True))
            z = torch.full((size,), float(rank))
            works.append(dist.all_to_all_single(y, z, group=group, async_op=True))
            tensors.append((x, y))
    for work in works:
        assert work is not None
        work.wait()
    total = size * (size + 1) / 2
    assert all(torch.equal(x, torch.full((5000,), total)) for x, _ in tensors)
    assert all(y.tolist() == list(range(size)) for _, y in tensors)
    for group in groups:
        dist.destroy_process_group(group)


@grid(2, 3, 4)
def test_several_groups_at_once(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_at_once)


# ---- repeated groups ----------------------------------------------------------------------------


def _open() -> tuple[int, int, int]:
    """Counts file descriptors, threads, and mappings of shared memory."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    tasks = len(os.listdir("/proc/self/task"))
    return len(os.listdir("/proc/self/fd")), tasks, maps.count("memfd")


def _many_groups(rank: int, size: int) -> None:
    def once() -> None:
        groups = [dist.new_group(backend="ringkern") for _ in range(3)]
        for group in groups:
            check(group)
        unused = dist.new_group(backend="ringkern")
        for group in (*groups, unused):
            dist.destroy_process_group(group)

    once()
    before = _open()
    for _ in range(5):
        once()
    deadline = time.monotonic() + 10  # a thread that has been joined may be listed for a moment
    while _open() != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _open() == before


@grid(2)
def test_many_groups_made_and_destroyed(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_many_groups)


def _again(rank: int, size: int, directory: str) -> None:
    """Runs in ranks of its own, whose default group it destroys."""
    for attempt in range(3):
        check(dist.group.WORLD)
        dist.destroy_process_group()
        dist.init_process_group(
            "ringkern",
            init_method=f"file://{os.path.join(directory, str(attempt))}",
            rank=rank,
            world_size=size,
        )
    check(dist.group.WORLD)


def _same_store(rank: int, size: int, directory: str) -> None:
    """The keys of the previous group still exist, and the name is the same."""
    store = dist.FileStore(os.path.join(directory, "store"), size)
    for _ in range(3):
        dist.destroy_process_group()
        dist.init_process_group("ringkern", store=store, rank=rank, world_size=size)
        check(dist.group.WORLD)


def test_destroyed_and_initialised_again(tmp_path: Path) -> None:
    with closing(Ranks(2, backend="ringkern")) as own:
        own.run(_again, str(tmp_path))
        own.run(_same_store, str(tmp_path))


BACKENDS = ("cpu:ringkern", "cpu:ringkern,cuda:ringkern", "cpu:gloo,cuda:ringkern", "ringkern")


def _backends(rank: int, size: int, directory: str) -> None:
    for i, backend in enumerate(BACKENDS):
        dist.destroy_process_group()
        dist.init_process_group(
            backend,
            init_method=f"file://{os.path.join(directory, f'backend{i}')}",
            rank=rank,
            world_size=size,
        )
        found = dist.group.WORLD._get_backend(torch.device("cpu")).name()
        assert found == ("gloo" if "gloo" in backend else "ringkern"), backend
        assert dist.is_backend_available("ringkern")
        check(dist.group.WORLD)
        dist.barrier()
        objects = [None] * size
        dist.all_gather_object(objects, rank)
        assert objects == list(range(size))
        other = dist.new_group()  # a group like the default one
        check(other)


@pytest.mark.filterwarnings("ignore")
def test_names_of_backends(tmp_path: Path) -> None:
    with closing(Ranks(2, backend="ringkern")) as own:
        own.run(_backends, str(tmp_path))


# ---- torch's queries ----------------------------------------------------------------------------


def _about(rank: int, size: int) -> None:
    group = ring()
    assert dist.get_backend(group) == "ringkern"
    assert (group.rank(), group.size()) == (rank, size)
    # the CUDA backend, where torch has CUDA
    assert "cpu:ringkern" in dist.get_backend_config(group).split(",")
    backend = group._get_backend(torch.device("cpu"))
    assert backend.name() == "ringkern"
    assert (backend.rank(), backend.size()) == (rank, size)
    assert not backend.supports_splitting
    with pytest.raises(RuntimeError, match=r"split|No backend for the parent"):
        dist.split_group(group, [[0], [1]])
    check(group)


@grid(2)
def test_a_group_describes_itself(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_about)


def _parallel_creation(rank: int, size: int) -> None:
    """One thread uses a group while another thread makes another group."""
    group, stop, failed = dist.new_group(backend="ringkern"), threading.Event(), []

    def use() -> None:
        try:
            for _ in range(200):
                x = torch.ones(10)
                dist.all_reduce(x, group=group)
                assert x.tolist() == [float(size)] * 10
        except BaseException as error:
            failed.append(error)
        stop.set()

    thread = threading.Thread(target=use)
    thread.start()
    for _ in range(3):
        other = dist.new_group(backend="ringkern")
        check(other)
        dist.destroy_process_group(other)
    thread.join()
    assert not failed
    dist.destroy_process_group(group)


@grid(2)
def test_groups_made_while_others_are_used(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_parallel_creation)


def _timeout_is_kept(rank: int, size: int) -> None:
    group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=20))
    if torch.__version__ < "2.14":  # torch's function refuses other backends
        with pytest.warns(UserWarning, match="only supported for either nccl or gloo"):
            c10d._set_pg_timeout(timedelta(seconds=10), group)
    else:
        dist.set_timeout(timedelta(seconds=10), group)
    group.set_timeout(timedelta(seconds=5))
    check_that_it_works(rank, size, group)
    dist.destroy_process_group(group)


@grid(2)
def test_set_timeout(ranks: Pool, hosts: str) -> None:
    """test_backend_failures.py tests the effect."""
    ranks(hosts).run(_timeout_is_kept)
