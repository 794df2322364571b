"""The collectives between pairs of ranks through torch.distributed: gather, scatter, all-to-all,
with every dtype, root and form; also object collectives and a barrier, which consist of several.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.ranks import Pool, grid, roots
from tests.torch.rings import any_bits, ring, same
from tests.torch.test_backend_collectives import DTYPES


def _gathers(rank: int, size: int, root: int) -> None:
    for seed, dtype in enumerate(DTYPES):
        for shape in ((), (0,), (5, 3), (1025,)):
            everyone = [any_bits(dtype, shape, r, seed) for r in range(size)]
            mine = everyone[rank].clone()
            out = [any_bits(dtype, shape, 99) for _ in range(size)] if rank == root else None
            dist.gather(mine, out, root, group=ring())
            assert same(mine, everyone[rank])
            if out is not None:
                assert all(same(x, y) for x, y in zip(out, everyone)), (dtype, shape)


def _scatters(rank: int, size: int, root: int) -> None:
    for seed, dtype in enumerate(DTYPES):
        for shape in ((), (0,), (5, 3), (1025,)):
            parts = [any_bits(dtype, shape, r, seed) for r in range(size)]
            given = [x.clone() for x in parts] if rank == root else None
            out = any_bits(dtype, shape, 99)
            dist.scatter(out, given, root, group=ring())
            assert same(out, parts[rank]), (dtype, shape)
            assert given is None or all(same(x, y) for x, y in zip(given, parts))


@pytest.mark.parametrize(("hosts", "root"), roots(1, 2, 3, 4))
def test_gather_to_every_root(ranks: Pool, hosts: str, root: int) -> None:
    ranks(hosts).run(_gathers, root)


@pytest.mark.parametrize(("hosts", "root"), roots(1, 2, 3, 4))
def test_scatter_from_every_root(ranks: Pool, hosts: str, root: int) -> None:
    ranks(hosts).run(_scatters, root)


def _all_to_alls(rank: int, size: int) -> None:
    group = ring()
    for seed, dtype in enumerate(DTYPES):
        for shape in ((2, 3), (0, 2), (1025,)):
            # sent[a][b] goes from rank a to rank b.
            sent = [
                [any_bits(dtype, shape, a * size + b, seed) for b in range(size)]
                for a in range(size)
            ]
            mine = [x.clone() for x in sent[rank]]
            out = [any_bits(dtype, shape, 99) for _ in range(size)]
            dist.all_to_all(out, mine, group=group)
            assert all(same(out[a], sent[a][rank]) for a in range(size)), (dtype, shape)
            assert all(same(x, y) for x, y in zip(mine, sent[rank]))
            whole = torch.stack(mine).flatten(0, 1)
            result = any_bits(dtype, whole.shape, 99)
            dist.all_to_all_single(result, whole, group=group)
            want = torch.stack([sent[a][rank] for a in range(size)]).flatten(0, 1)
            assert same(result, want), (dtype, shape)


@grid(1, 2, 3, 4)
def test_all_to_all_of_every_dtype(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_all_to_alls)


def _uneven(rank: int, size: int) -> None:
    group = ring()

    def rows(a: int, b: int) -> int:
        """Returns the rows from a to b; none from each rank to one other, many from rank 0 to the
        last.
        """
        return 20_000 if (a, b) == (0, size - 1) else (a + 2 * b) % (size + 1)

    sent = [
        [any_bits(torch.float32, (rows(a, b), 3), 7 * a + b) for b in range(size)]
        for a in range(size)
    ]
    want = [sent[a][rank] for a in range(size)]
    out = [torch.zeros(rows(a, rank), 3) for a in range(size)]
    dist.all_to_all(out, sent[rank], group=group)
    assert all(same(x, y) for x, y in zip(out, want))
    whole = torch.zeros(sum(len(x) for x in want), 3)
    dist.all_to_all_single(
        whole,
        torch.cat(sent[rank]),
        [rows(a, rank) for a in range(size)],
        [rows(rank, b) for b in range(size)],
        group=group,
    )
    assert same(whole, torch.cat(want))


@grid(1, 2, 3, 4)
def test_uneven_all_to_all(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_uneven)


def _to_one_only(rank: int, size: int) -> None:
    """Sends everything to the next rank and nothing to the others."""
    to, source = (rank + 1) % size, (rank - 1) % size
    splits = [[5 * (r == peer) for r in range(size)] for peer in (source, to)]
    out = torch.zeros(5)
    work = dist.all_to_all_single(
        out, torch.full((5,), float(rank)), *splits, group=ring(), async_op=True
    )
    assert work is not None
    work.wait()
    assert torch.equal(out, torch.full((5,), float(source)))


@grid(1, 2, 3, 4)
def test_all_to_all_single_to_one_rank_only(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_to_one_only)


def _large(rank: int, size: int) -> None:
    """Sends more than links hold, from all to all: sending first and receiving then would hang."""
    n = 3_000_000
    whole = torch.arange(size, dtype=torch.int32).repeat_interleave(n) + 100 * rank
    out = torch.empty_like(whole)
    dist.all_to_all_single(out, whole, group=ring())
    want = torch.arange(size, dtype=torch.int32).repeat_interleave(n) * 100 + rank
    assert torch.equal(out, want)


@grid(2, 4)
def test_large_all_to_all(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_large)


def _objects(rank: int, size: int) -> None:
    group = ring()
    for root in range(size):
        mine = {"rank": rank, "text": "x" * (10 ** (rank + 1))}
        found: list[Any] | None = [None] * size if rank == root else None
        dist.gather_object(mine, found, root, group=group)
        if found is not None:
            assert [o["rank"] for o in found] == list(range(size))
            assert [len(o["text"]) for o in found] == [10 ** (r + 1) for r in range(size)]
        one: list[Any] = [None]
        given = [("for", r) for r in range(size)] if rank == root else None
        dist.scatter_object_list(one, given, root, group=group)
        assert one == [("for", rank)]


@grid(1, 2, 3, 4)
def test_objects(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_objects)


def _by_group_rank(rank: int, size: int) -> None:
    """The ranks of a subgroup are not those of the world."""
    members = [1, 3]
    group = dist.new_group(members, backend="ringkern")
    if rank in members:
        me = members.index(rank)
        for root in (0, 1):
            out = [torch.zeros(2), torch.zeros(2)] if me == root else None
            dist.gather(torch.full((2,), float(rank)), out, group=group, group_dst=root)
            assert out is None or [x[0].item() for x in out] == [1.0, 3.0]
            mine = torch.zeros(1)
            given = [torch.tensor([5.0]), torch.tensor([6.0])] if me == root else None
            dist.scatter(mine, given, members[root], group=group)
            assert mine.item() == 5.0 + me
            x = torch.tensor([float(rank)])
            dist.broadcast(x, members[root], group=group)
            assert x.item() == members[root]
            dist.reduce(x, group=group, group_dst=root)
            assert x.item() == members[root] * (2 if me == root else 1)
        dist.destroy_process_group(group)


@grid(4)
def test_roots_in_a_subgroup(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_by_group_rank)


def _barrier(rank: int, size: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    for i in range(5):
        store.add(f"test_barrier/{i}", 1)
        if i % 2:
            dist.barrier(group=ring())
        else:
            work = dist.barrier(group=ring(), async_op=True)
            assert work is not None
            work.wait()
        assert store.add(f"test_barrier/{i}", 0) == size, "somebody has not come yet"


@grid(1, 2, 3, 4)
def test_barrier(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_barrier)


def _barrier_on_no_gpu(rank: int, size: int) -> None:
    with FakeTensorMode():
        torch.ones(2)
    dist.barrier(group=ring(), device_ids=[rank])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@grid(2)
def test_a_barrier_names_a_gpu_that_is_not_there(ranks: Pool, hosts: str) -> None:
    """Accelerate passes such an id; after a fake tensor, a torch with CUDA counts one GPU."""
    ranks(hosts).run(_barrier_on_no_gpu)


def _objects_to_all(rank: int, size: int) -> None:
    group = ring()
    mine = {"rank": rank, "text": "x" * (10 ** (rank + 1)), "tensor": torch.arange(rank)}
    found: list[Any] = [None] * size
    dist.all_gather_object(found, mine, group=group)
    assert [o["rank"] for o in found] == list(range(size))
    assert [len(o["text"]) for o in found] == [10 ** (r + 1) for r in range(size)]
    for root in range(size):
        sent = [("from", rank), None] if rank == root else [None, 1]
        dist.broadcast_object_list(sent, root, group=group)
        assert sent == [("from", root), None]


@grid(1, 2, 3, 4)
def test_objects_to_all(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_objects_to_all)
