"""Tensors in shared memory, and all-reduces of them in place."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.ranks import Pool, RankError
from tests.reference import DTYPES, bits_of
from tests.torch.rings import any_bits, bytes_of, ring

pytestmark = pytest.mark.quick


def test_shared_tensors_are_ordinary_tensors() -> None:
    for shape in ((), (0,), (3,), (2, 3, 5), (1000, 1000)):
        for make in (ringkern.empty, ringkern.zeros):
            x = make(*shape) if shape else make(())
            assert x.shape == shape
            assert x.dtype == torch.get_default_dtype()
            assert x.is_contiguous()
            assert not x.requires_grad
            assert x.data_ptr() % 64 == 0
    x = ringkern.zeros((4, 5), dtype=torch.int64)
    assert x.dtype == torch.int64
    assert not x.any()
    x[1:3, ::2] = 7
    y = x.clone()
    assert x.sum() == 42
    assert torch.equal(x, y)
    assert ringkern.is_shared(x)
    assert ringkern.is_shared(x[2])
    assert not ringkern.is_shared(y)
    x.resize_(1 << 20)  # other memory, of the same kind
    assert ringkern.is_shared(x)
    assert torch.equal(x[:20].view(4, 5), y)


def test_bad_sizes() -> None:
    with pytest.raises(ValueError, match="a size is negative: -1"):
        ringkern.empty(3, -1)
    with pytest.raises(ringkern.errors.SharedMemoryError, match="shared"):
        ringkern.empty(1 << 58, dtype=torch.uint8)
    assert ringkern.zeros(10).sum() == 0  # the memory was reclaimed


def test_memory_is_used_again() -> None:
    x = ringkern.empty(1 << 22, dtype=torch.uint8)
    at = x.data_ptr()
    view = x[100:]
    del x
    y = ringkern.empty(1 << 22, dtype=torch.uint8)
    assert y.data_ptr() != at  # the view keeps it
    del view, y
    assert ringkern.empty(1 << 22, dtype=torch.uint8).data_ptr() == at


def test_the_context() -> None:
    with ringkern.shared_memory():
        x = torch.ones(100)
        with (
            pytest.raises(RuntimeError, match="does not nest"),
            ringkern.shared_memory(),
        ):
            pass
        z = torch.ones(100)
    y = torch.ones(100)
    assert ringkern.is_shared(x)
    assert ringkern.is_shared(z)
    assert not ringkern.is_shared(y)
    with contextlib.suppress(KeyError), ringkern.shared_memory():
        raise KeyError
    assert not ringkern.is_shared(torch.ones(100))


def _in_a_child(x: torch.Tensor, results: multiprocessing.SimpleQueue[bool]) -> None:
    own = ringkern.zeros(1000)
    own += 1
    apart = own.data_ptr() != x.data_ptr()
    del x  # the child must not free it
    results.put(apart and bool(own.sum() == 1000))


def test_a_forked_child_has_its_own() -> None:
    x = ringkern.zeros(1000)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_in_a_child, args=(x, results))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert results.get()
    assert x.sum() == 0
    y = ringkern.zeros(1000)
    assert y.data_ptr() != x.data_ptr()


def _same_as_ordinary(rank: int, size: int) -> None:
    apart = ringkern.empty(1000 * (rank + 1))  # tensors lie at different offsets on each rank
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]
    ops.append(dist._make_nccl_premul_sum(0.5))
    counts = (1, 127, 128, 129, 1000, 4099, 100_003)
    for i, (dtype, n) in enumerate(itertools.product(DTYPES.values(), counts)):
        op = ops[i % len(ops)] if dtype.is_floating_point else ops[0]
        ordinary = any_bits(dtype, (n,), rank, seed=i)
        shared = ringkern.empty(n + 3, dtype=dtype)
        x = shared[i % 3 :][:n].copy_(ordinary)  # not aligned to a cache line
        mixed = x.clone() if rank == i % size else ringkern.empty(n, dtype=dtype).copy_(x)
        for protocol in ("ll", "simple") if n < 1000 else ("simple",):
            ringkern.ring_all_reduce(ordinary.clone(), op, algorithm="one_shot", protocol=protocol)
        ringkern.ring_all_reduce(ordinary, op, algorithm="two_shot")
        ringkern.ring_all_reduce(x, op, algorithm="two_shot")
        ringkern.ring_all_reduce(mixed, op, algorithm="two_shot")
        assert torch.equal(bits_of(x), bits_of(ordinary)), (dtype, n, op)
        assert torch.equal(bits_of(mixed), bits_of(ordinary)), (dtype, n, op)
    del apart


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_result_is_that_of_ordinary_tensors(ranks: Pool, size: int) -> None:
    ranks(size).run(_same_as_ordinary)


def _every_way(rank: int, size: int) -> None:
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = halves[rank // 2]
    for n in (200, 70_000):
        expected = torch.full((n,), float(sum(range(size))))
        for i in range(20):
            x = ringkern.zeros(n) + 0  # a sum is an ordinary tensor
            assert not ringkern.is_shared(x)
            x = ringkern.empty(n).fill_(rank)
            kind = i % 5
            if kind == 0:
                ringkern.ring_all_reduce(x)
            elif kind == 1:
                work = ringkern.ring_all_reduce(x, async_op=True)
                assert work is not None
                work.wait()
            elif kind == 2:
                dist.all_reduce(x, group=ring())
            elif kind == 3:
                dist.all_reduce_coalesced([x], group=ring())
            else:
                ringkern.ring_all_reduce(x, group=mine)
                assert torch.equal(x, torch.full((n,), 1.0 if rank < 2 else 5.0))
                x.fill_(rank)
                ringkern.ring_all_reduce(x, algorithm="ring")
            assert torch.equal(bytes_of(x), bytes_of(expected)), (n, i)


def test_any_group_and_any_call(ranks: Pool) -> None:
    ranks(4).run(_every_way)


def _large_then_larger(rank: int, size: int) -> None:
    kept = []
    for mebibytes in (1, 70, 3, 140):  # beyond the memory that peers have mapped so far, and back
        x = ringkern.empty(mebibytes << 18)
        x.fill_(rank + 1)
        ringkern.ring_all_reduce(x)
        assert bool((x == 3).all())
        kept.append(x[:10])
    assert all(bool((x == 3).all()) for x in kept)


def test_peers_map_more_when_there_is_more(ranks: Pool) -> None:
    ranks(2).run(_large_then_larger)


def _at_odds(rank: int, size: int, what: str) -> str:
    group = dist.new_group()
    x = ringkern.zeros(1000)
    ringkern.ring_all_reduce(x, group=group)
    if rank == 1:
        x = ringkern.zeros(1000, dtype=torch.int32) if what == "dtype" else x[:999]
    with pytest.raises(ringkern.errors.CollectiveMismatchError) as caught:
        ringkern.ring_all_reduce(x, group=group)
    with pytest.raises(ringkern.errors.CommAbortedError):
        ringkern.ring_all_reduce(x, group=group)
    return str(caught.value)


@pytest.mark.parametrize("what", ["dtype", "size"])
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_at_odds_are_told(ranks: Pool, size: int, what: str) -> None:
    texts = ranks(size).run(_at_odds, what)
    told = {
        "dtype": "seq=2: ranks disagree on dtype: rank 0 has float32 ",
        "size": "seq=2: ranks disagree on numel: rank 0 has 1000 ",
    }
    assert all(text.startswith(told[what]) for text in texts), texts
    assert all("rank 1 has " + ("int32" if what == "dtype" else "999") in text for text in texts)


def _without_a_peer(rank: int, size: int) -> str:
    group = dist.new_group()
    ring_of_it = ringkern.Communicator(group, timeout=timedelta(seconds=1))
    x = ringkern.zeros(1000)
    ring_of_it.all_reduce(x)
    text = ""
    if rank == 0:
        with pytest.raises(ringkern.errors.CollectiveTimeoutError) as caught:
            ring_of_it.all_reduce(x)
        text = str(caught.value)
    dist.barrier()  # rank 1 has not left in between
    return text


def test_a_peer_that_does_not_come_is_named(ranks: Pool) -> None:
    text = ranks(2).run(_without_a_peer)[0]
    assert "two_shot" in text
    assert "waited for data from rank 1" in text


def _dies(rank: int, size: int) -> None:
    ringkern.ring_all_reduce(ringkern.zeros(1000))
    raise RuntimeError("that is the end")


def test_nothing_is_left_behind(ranks: Pool) -> None:
    with pytest.raises(RankError, match="that is the end"):
        ranks(2).run(_dies)  # conftest checks /dev/shm
