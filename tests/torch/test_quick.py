"""The quick path of ring_all_reduce into C++: the calls that take it, with unchanged results.

Synchronous "auto" calls of plain CPU tensors take it, in a group that has made such a call before.
``quick`` takes only this path, and returns whether it could; ``ring_all_reduce`` tries it first.
"""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

import ringkern
from ringkern import _C
from ringkern.config import config
from ringkern.errors import CollectiveTimeoutError, CommAbortedError, CommUsageError
from tests import reference
from tests.ranks import Pool, Ranks
from tests.reference import DTYPES
from tests.torch.rings import any_bits, same
from tests.torch.sequences import OPS
from tests.torch.test_api import summed, values

pytestmark = pytest.mark.quick

SUM = dist.ReduceOp.SUM


def quick(tensor: Any, op: Any = SUM, group: dist.ProcessGroup | None = None) -> bool:
    return _C.quick_all_reduce(tensor, op, group, False, "auto", "auto", "auto", "auto", None)


def connect(group: dist.ProcessGroup | None = None) -> None:
    ringkern.ring_all_reduce(torch.ones(3), group=group)


def connected_group(timeout_s: float | None = None) -> dist.ProcessGroup:
    """Makes a group of its own, whose calls are quick."""
    group = dist.new_group()
    if timeout_s is not None:
        made = ringkern.Communicator(group, timeout=timedelta(seconds=timeout_s))
        ringkern.comm._by_group[group] = made
        _C.remember(group, made._c)
    dist.barrier()  # the timeout also limits the connecting
    connect(group)
    dist.barrier()
    return group


# ---- results ------------------------------------------------------------------------------------


def _same_results(rank: int, size: int) -> None:
    connect()
    # Lengths around a line, a slot of lines, the end of LL, the size that keeps the GIL, and a
    # slot.
    lengths = (0, 1, 3, 55, 57, 511, 513, 4097, 16 << 10, (16 << 10) + 1, (128 << 10) + 9)
    with ringkern.Communicator() as other:
        for i, (dtype_name, dtype) in enumerate(DTYPES.items()):
            for j, (name, op) in enumerate(OPS.items()):
                if name not in _C.ops_of(dtype_name):
                    continue
                n = lengths[(i + j) % len(lengths)] // dtype.itemsize
                inputs = [any_bits(dtype, (n,), r, seed=i) for r in range(size)]
                x, y = inputs[rank].clone(), inputs[rank].clone()
                assert quick(x, op)
                assert x._version == 1
                assert same(x, reference.all_reduce(inputs, name)), (dtype, name, n)
                other.all_reduce(y, op)
                assert same(x, y)
                assert y._version == 1


@pytest.mark.parametrize("size", [2, 3])
def test_the_result_is_that_of_any_call(ranks: Pool, size: int) -> None:
    ranks(size).run(_same_results)


def _ordinary_tensors(rank: int, size: int) -> None:
    connect()
    with torch.inference_mode():
        inference = values(rank)
    two = values(rank, 2000)
    layouts = [
        (torch.nn.Parameter(values(rank)), True),
        (values(rank).requires_grad_(), True),
        (inference, True),
        (two[:1000].copy_(values(rank)), True),
        (values(rank).view(10, 100), True),
        (values(rank)[5], True),
        (values(rank, 0), True),
        (torch._lazy_clone(values(rank)), True),
        (values(rank).view(10, 100).t().contiguous().t(), False),
        (two[1000:].copy_(values(rank)).as_strided((500,), (2,), 1000), False),
    ]
    for x, is_quick in layouts:
        before, expected = x.detach().clone(), x.detach().clone()
        dist.all_reduce(expected)
        if not is_quick:
            assert not quick(x)
            assert torch.equal(x, before)
        version = None if x.is_inference() else x._version
        assert quick(x) if is_quick else ringkern.ring_all_reduce(x) is None
        assert torch.equal(x, expected)
        assert version is None or x._version == version + 1
    shared = values(rank)
    lazy = torch._lazy_clone(shared)  # its memory is copied when it is written
    assert quick(lazy)
    assert torch.equal(shared, values(rank))


def test_ordinary_tensors(ranks: Pool) -> None:
    ranks(2).run(_ordinary_tensors)


def _autograd_notices(rank: int, size: int) -> None:
    connect()
    x = values(rank).requires_grad_()
    y = x * 2
    z = (y * y).sum()
    assert quick(y.detach())  # the same memory
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_autograd_notices_that_a_tensor_has_changed(ranks: Pool) -> None:
    ranks(2).run(_autograd_notices)


# ---- calls that take the general path -----------------------------------------------------------


class Named(torch.Tensor):
    pass


def others() -> dict[str, Any]:
    """Returns tensors that are not plain CPU tensors of a dtype of ringkern's."""
    x = torch.ones(4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "subclass": torch.ones(3).as_subclass(Named),
            "expanded": torch.ones(1).expand(5),
            "sparse": x.to_sparse(),
            "csr": x.to_sparse_csr(),
            "mkldnn": x.to_mkldnn(),
            "quantized": torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
            "nested": torch.nested.nested_tensor([torch.ones(3)]),
            "negated": torch._neg_view(torch.ones(3)),
            "conjugated": torch.ones(3, dtype=torch.complex64).conj(),
            "zeros without memory": torch._efficientzerotensor(3),
            "meta": torch.ones(3, device="meta"),
            "complex": torch.ones(3, dtype=torch.complex64),
            "uint16": torch.ones(3, dtype=torch.uint16),
            "numpy": torch.ones(3).numpy(),
            "list": [1.0],
            "none": None,
        }


def _others(rank: int, size: int) -> None:
    connect()
    group = dist.group.WORLD
    for name, x in others().items():
        assert not quick(x), name
    x = torch.ones(3)
    floats, integers = torch.ones(3), torch.ones(3, dtype=torch.int32)
    for tensor, op in (
        (floats, dist.ReduceOp.BAND),
        (floats, dist.ReduceOp.BXOR),
        (integers, dist.ReduceOp.AVG),
        (x, dist.ReduceOp.PREMUL_SUM),
        (x, dist._make_nccl_premul_sum(2.0)),
        (x, dist.ReduceOp(SUM)),
        (x, "sum"),
        (x, None),
    ):
        assert not quick(tensor, op), op
    auto = ("auto",) * 4 + (None,)
    by_tree = (*auto[:2], "world_invariant", "auto")
    for last in (
        (SUM, group, True, *auto),
        (SUM, group, 0, *auto),
        (SUM, group, False, "ll", *auto[1:]),
        (SUM, group, False, "auto", "ring", *auto[2:]),
        (SUM, group, False, "auto", "unknown", *auto[2:]),
        (SUM, group, False, *auto[:2], "size_invariant", "auto", None),
        (SUM, group, False, *auto[:3], "float32", None),
        (SUM, group, False, *auto[:4], size),
        (SUM, group, False, *by_tree, None),
        (SUM, group, False, *by_tree, size + 1),
        (SUM, group, False, *by_tree, size + (1 << 64)),
        (SUM, group, False, *by_tree, float(size)),
        (SUM, group, False, *by_tree[:3], "float32", size),
        (SUM, group, False, "simple", *by_tree[1:], size),
        (dist.ReduceOp.PRODUCT, group, False, *by_tree, size),
        (SUM, 7, False, *auto),
        (SUM, dist.GroupMember.NON_GROUP_MEMBER, False, *auto),
        (SUM, dist.new_group(), False, *auto),
        (SUM, group, False, *auto[1:]),
        (SUM,),
        (),
    ):
        assert not _C.quick_all_reduce(x, *last), last
    for tensor in (x, floats, integers):
        assert torch.equal(tensor, torch.ones_like(tensor))
        assert tensor._version == 0
    # The general path handles them.
    for wrong, error, text in (
        ((floats, dist.ReduceOp.BAND), TypeError, "op band is not defined for dtype float32"),
        ((integers, dist.ReduceOp.AVG), TypeError, "op avg is not defined for dtype int32"),
        ((torch.ones(3, dtype=torch.uint16),), TypeError, r"of dtype torch\.uint16"),
        (([1.0],), TypeError, "tensor is list"),
        ((x, "sum"), TypeError, "op is 'sum'"),
        ((x, dist.ReduceOp.PREMUL_SUM), ValueError, "needs a factor"),
        ((torch.ones(1).expand(5),), ValueError, "elements that share memory"),
        ((x, SUM, 7), TypeError, "group is int"),
    ):
        with pytest.raises(error, match=text):
            ringkern.ring_all_reduce(*wrong)
    array = values(rank).numpy()
    ringkern.ring_all_reduce(array)
    assert torch.equal(torch.from_numpy(array), summed(size))


def test_unusual_calls_take_the_general_path(ranks: Pool) -> None:
    ranks(2).run(_others)


def _modes(rank: int, size: int) -> None:
    connect()
    x, whole = values(rank), torch.ones(3 * size)
    before = x._version
    # A tensor that stands for another one has no memory, or the memory of that one.
    torch.func.functionalize(lambda y: [quick(y), y][1])(x)
    torch.vmap(lambda y: [quick(y), y][1])(x.view(10, 100))
    torch.func.grad(lambda y: [quick(y), y.sum()][1])(x)
    with FakeTensorMode() as mode:
        fake = torch.ones(3)
        assert not quick(fake)
        assert not quick(x)  # a tracer needs to see the call
        with pytest.raises(TypeError, match="has no memory"):
            ringkern.ring_all_reduce(fake)
        with pytest.raises(TypeError, match="has no memory"):
            ringkern.ring_all_reduce(fake, async_op=True)
        with pytest.raises(TypeError, match="has no memory"):
            ringkern.ring_all_gather(whole, fake)
    with pytest.raises(TypeError, match="has no memory"):
        ringkern.ring_all_reduce(mode.from_tensor(x))
    assert x._version == before
    assert torch.equal(x, values(rank))
    ringkern.ring_all_reduce(x)
    assert torch.equal(x, summed(size))


def test_a_tensor_that_stands_for_another_is_left_alone(ranks: Pool) -> None:
    ranks(2).run(_modes)


class Holds(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held = torch.ones(3)  # neither a buffer nor a parameter, so export does not lift it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        ringkern.ring_all_reduce(y)
        ringkern.ring_all_reduce(self.held)
        return y + self.held


def _exported(rank: int, size: int) -> None:
    connect()
    module = Holds()
    if rank == 1:  # does not call: nothing is reduced while a graph is made
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = torch.export.export(module, (torch.ones(3),), strict=False).graph
    names = [node.target for node in graph.nodes if node.op == "call_function"]
    assert names.count(torch.ops.ringkern.all_reduce_.default) == 2
    assert torch.equal(module.held, torch.ones(3))
    assert module.held._version == 0


def test_export_sees_every_call(ranks: Pool) -> None:
    ranks(2).run(_exported, timeout_s=30)


# ---- groups -------------------------------------------------------------------------------------


def _groups(rank: int, size: int) -> None:
    groups = [dist.new_group() for _ in range(7)]
    for n in (5, 3000):
        for i, group in enumerate([*groups, None, dist.group.WORLD]):
            for _ in range(2):
                x = values(rank, n) + i
                ringkern.ring_all_reduce(x, group=group)
                assert torch.equal(x, summed(size, n) + size * i)
            # The group in use is found among any number of groups.
            x = values(rank, n) + i
            assert quick(x, SUM, group), i
            assert torch.equal(x, summed(size, n) + size * i)
    one, two = groups[-2:]
    for _ in range(100):  # in turn: the order of the calls of each group matters
        x, y = values(rank, 50), values(rank, 50)
        ringkern.ring_all_reduce(x, group=one)
        ringkern.ring_all_reduce(y, dist.ReduceOp.MAX, two)
        assert torch.equal(x, summed(size, 50))
        ringkern.ring_all_reduce(y, dist.ReduceOp.MIN, one)
        assert torch.equal(y, torch.stack([values(r, 50) for r in range(size)]).amax(0))
    for group in groups:
        dist.destroy_process_group(group)


def test_more_groups_than_are_known(ranks: Pool) -> None:
    ranks(2).run(_groups)


def _come_and_go(rank: int, size: int) -> None:
    """Objects of groups reuse each other's addresses."""
    for i in range(12):
        group = dist.new_group()
        assert not quick(torch.ones(3), SUM, group)
        connect(group)
        x = values(rank) + i
        assert quick(x, SUM, group)
        assert torch.equal(x, summed(size) + size * i)
        dist.destroy_process_group(group)
        del group
        if i % 3 == 0:
            gc.collect()
    subgroup = dist.new_group([0])
    if rank == 0:
        connect(subgroup)
        x = values(0)
        assert quick(x, SUM, subgroup)
        assert torch.equal(x, values(0))
    else:
        with pytest.raises(ValueError, match="not a member of the group"):
            connect(subgroup)


def test_groups_that_come_and_go(ranks: Pool) -> None:
    ranks(2).run(_come_and_go)


class Group:
    pass


def _same_address(rank: int, size: int) -> None:
    connect()
    communicator = ringkern.comm.communicator_for(None)
    Group()  # Python 3.13 lays out the first instance of a class differently
    x, group = torch.ones(3), Group()
    _C.remember(group, communicator._c)
    at = id(group)
    del group
    news = []
    for _ in range(10_000):
        news.append(Group())
        if id(news[-1]) == at:
            break
    assert id(news[-1]) == at
    assert not quick(x, SUM, news[-1])
    assert torch.equal(x, torch.ones(3))
    _C.remember(news[-1], communicator._c)
    assert quick(x, SUM, news[-1])


def test_a_group_at_the_address_of_one_that_is_gone(ranks: Pool) -> None:
    ranks(2).run(_same_address)


def _again(rank: int, size: int, directory: str) -> None:
    """Runs in ranks of its own, because it ends their process group."""
    for attempt in range(3):
        connect()
        x = values(rank)
        assert quick(x)
        assert torch.equal(x, summed(size))
        held = dist.group.WORLD if attempt == 1 else None
        dist.destroy_process_group()
        assert not quick(x)
        with pytest.raises(CommUsageError, match="not initialised"):
            ringkern.ring_all_reduce(x)
        if rank == 1:  # ranks need not be in step
            time.sleep(0.1)
        dist.init_process_group(
            "gloo", init_method=f"file://{directory}/{attempt}", rank=rank, world_size=size
        )
        assert not quick(x), "the group of before"
        del held


def test_a_new_group_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    with closing(Ranks(2)) as own:
        own.run(_again, str(tmp_path))


# ---- life and failure ---------------------------------------------------------------------------


def said(error: type[BaseException], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    return str(caught.value)


def _closed(rank: int, size: int) -> None:
    group = connected_group()
    ringkern.comm.communicator_for(group).close()
    x = torch.ones(3)
    assert not quick(x, SUM, group)
    assert "is closed" in said(CommUsageError, lambda: ringkern.ring_all_reduce(x, group=group))
    assert torch.equal(x, torch.ones(3))


def test_after_close(ranks: Pool) -> None:
    ranks(2).run(_closed)


def _timed_out(rank: int, size: int, n: int) -> str:
    group = connected_group(timeout_s=0.5)
    if rank == 1:
        return ""
    x = torch.ones(n)
    version = x._version
    text = said(CollectiveTimeoutError, lambda: quick(x, SUM, group))
    # The contents are undefined now.
    assert x._version > version
    again = said(CommAbortedError, lambda: ringkern.ring_all_reduce(x, group=group))
    assert "became unusable" in again
    assert text in again
    return text


@pytest.mark.parametrize("n", [3, 100_000])
def test_a_rank_that_does_not_come(ranks: Pool, n: int) -> None:
    text = ranks(2).run(_timed_out, n)[0]
    way = ", ".join(reference.way_of("all_reduce", 2, 4 * n))
    assert text.startswith(
        f"seq=2 all_reduce sum float32[{n}] over {way}: rank 0 waited for data from rank 1"
    )


def _aborted(rank: int, size: int) -> str:
    group = connected_group()
    communicator = ringkern.comm.communicator_for(group)
    if rank == 1:
        dist.barrier()
        return said(CommAbortedError, lambda: ringkern.ring_all_reduce(torch.ones(3), group=group))
    timer = threading.Timer(0.1, communicator.abort, ["out of patience"])
    timer.start()
    text = said(CommAbortedError, lambda: quick(torch.ones(3), SUM, group))
    timer.join()
    assert not quick(torch.ones(3), SUM, group)
    dist.barrier()
    return text


def test_abort_from_another_thread(ranks: Pool) -> None:
    first, second = ranks(2).run(_aborted)
    assert "aborted by rank 0: out of patience" in first
    assert "aborted" in second


def _late(rank: int, size: int, n: int) -> None:
    group = connected_group()
    store = dist.distributed_c10d._get_default_store()
    key = f"go {n} {group.group_name}"
    x = values(rank, n)
    if rank == 1:  # comes after a thread of rank 0 has run, which needs the GIL
        store.wait([key], timedelta(seconds=50))
        ringkern.ring_all_reduce(x, group=group)
    else:
        entered = threading.Event()

        def run_on() -> None:
            entered.wait()
            time.sleep(0.1)  # the call normally waits by now
            store.set(key, "")

        thread = threading.Thread(target=run_on)
        thread.start()
        entered.set()
        assert quick(x, SUM, group)
        thread.join()
    assert torch.equal(x, summed(size, n))


@pytest.mark.parametrize("n", [10, 1000, 100_000])
def test_other_threads_run_while_it_waits(ranks: Pool, n: int) -> None:
    ranks(2).run(_late, n, timeout_s=30)


def _threads(rank: int, size: int) -> None:
    """Threads of one group use equal tensors: any pairing gives the same result."""
    group, failed = connected_group(), []

    def reduce(n: int) -> None:
        for _ in range(150):
            x = torch.ones(50)
            ringkern.ring_all_reduce(x, group=group)
            if not torch.equal(x, torch.full((50,), float(size))):
                failed.append(x)

    threads = [threading.Thread(target=reduce, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_several_threads(ranks: Pool) -> None:
    ranks(2).run(_threads)


def _while_async(rank: int, size: int) -> None:
    group = connected_group()
    x, y = values(rank, 2000), values(rank, 2000)
    if rank == 0:
        work = ringkern.ring_all_reduce(x, group=group, async_op=True)
        assert work is not None
        assert not quick(x, SUM, group)  # in flight, because rank 1 has not come
        dist.barrier()
        # In order: a maximum of sums.
        ringkern.ring_all_reduce(x, dist.ReduceOp.MAX, group)
        assert work.is_completed()
    else:
        dist.barrier()
        ringkern.ring_all_reduce(x, group=group)
        ringkern.ring_all_reduce(x, dist.ReduceOp.MAX, group)
    assert torch.equal(x, summed(size, 2000))
    ringkern.ring_all_reduce(y, group=group)
    assert torch.equal(y, summed(size, 2000))


def test_while_an_asynchronous_call_is_in_flight(ranks: Pool) -> None:
    ranks(2).run(_while_async)


def _in_a_callback(rank: int, size: int) -> None:
    group = connected_group()
    x = values(rank)
    if rank == 1:
        dist.barrier()
        ringkern.ring_all_reduce(x, group=group)
        return
    work = ringkern.ring_all_reduce(x, group=group, async_op=True)
    assert work is not None
    seen: list[Any] = []

    def call(_: object) -> None:
        seen.append(quick(torch.ones(3), SUM, group))
        try:
            ringkern.ring_all_reduce(torch.ones(3), group=group)
        except CommUsageError as error:
            seen.append(str(error))

    done = work.get_future().then(call)
    dist.barrier()  # before it, rank 1 has not come, and so the worker runs the callback
    done.wait()
    assert seen[0] is False
    assert "would wait for itself" in seen[1]


def test_in_a_callback(ranks: Pool) -> None:
    ranks(2).run(_in_a_callback)


# ---- queries of perf.py -------------------------------------------------------------------------


def _timed(rank: int, size: int) -> None:
    with ringkern.Communicator() as communicator:
        x = values(rank, 100, torch.int64)
        times = communicator._c.time_all_reduce(x, 5)
        assert len(times) == 5
        assert all(isinstance(time_, int) and time_ > 0 for time_ in times)
        assert torch.equal(x, summed(size, 100, torch.int64) * size**4)
        assert communicator._c.time_all_reduce(x, 0) == []


def test_times_of_calls(ranks: Pool) -> None:
    ranks(2).run(_timed)


# ---- the environment ----------------------------------------------------------------------------


def _quick_in_an_environment(rank: int, size: int, field: str, value: str) -> list[bool]:
    """Returns whether a call is quick, with the setting and without."""
    taken = []
    for setting in (value, "auto"):
        object.__setattr__(config, field, setting)
        group = dist.new_group()
        for _ in range(2):
            x = torch.full((10,), 1.0 + rank)
            ringkern.ring_all_reduce(x, group=group)
            assert torch.equal(x, torch.full((10,), size * (size + 1) / 2))
        taken.append(quick(torch.ones(10), group=group))
        dist.barrier()
        dist.destroy_process_group(group)
    return taken


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("algorithm", "ring"),
        ("protocol", "ll128"),
        ("deterministic", "size_invariant"),
        ("accumulate", "float32"),
    ],
)
def test_environment_options_take_the_general_path(ranks: Pool, field: str, value: str) -> None:
    """The quick path ignores the environment."""
    assert ranks(2).run(_quick_in_an_environment, field, value) == [[False, True]] * 2
