"""Ranks of the backend on fake CUDA devices, for test_cuda_semantics.py; run by tests.comm.exits.

Rank 0 makes a call and checks it before rank 1 joins it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from ringkern import local
from ringkern.backend import Options
from ringkern.errors import CollectiveTimeoutError, CommAbortedError, CommUsageError
from tests.comm.exits import join, serve
from tests.faults.fates import error_of
from tests.faults.lives import leave_note, wait_for
from tests.reference import FLOATS
from tests.torch import fake_cuda
from tests.torch.fake_cuda import Graph, current, fake, on_device
from tests.torch.rings import same
from tests.torch.test_shards import OPS, expected, shard_of

N = 1000
LONG_S = 50.0
SHORT_S = 0.3
NEVER_S = 600.0  # an event earlier than this was not caused by it
CUDA = torch.device("cuda")


@contextlib.contextmanager
def group(
    rank: int, size: int, folder: Path, timeout_s: float = LONG_S, **kw: Any
) -> Iterator[Any]:
    """Yields the CUDA backend of a default group, whose ring on device 0 exists."""
    fake_cuda.start()
    join(rank, size, folder, "ringkern", timeout=timedelta(seconds=timeout_s), **kw)
    dist.all_reduce(on_device(torch.ones(1)))
    dist.barrier()
    yield backend()
    if dist.is_initialized():
        dist.destroy_process_group()


def backend() -> Any:
    assert dist.group.WORLD is not None
    return dist.group.WORLD._get_backend(CUDA)


def started(work: dist.Work | None) -> dist.Work:
    assert work is not None
    return work


def idle(stream: torch.Stream) -> bool:
    return bool(stream.record_event().query())


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def full(value: float) -> list[float]:
    return [value] * N


class Late:
    """Rank 1, which waits in :meth:`wait_for_it` until rank 0 calls :meth:`let_come`."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.folder, self.number = rank, folder, 0

    def wait_for_it(self) -> None:
        wait_for(self.folder / f"come{self.number}")
        self.number += 1

    def let_come(self) -> None:
        leave_note(self.folder / f"come{self.number}", "")
        self.number += 1


# ---- Streams -------------------------------------------------------------------------------------


def wait_blocks_the_stream(rank: int, size: int, folder: Path) -> None:
    """wait(), synchronize() and block_current_stream() return before the device has reached that
    point.
    """
    late = Late(rank, folder)
    stream, other = (torch.Stream(device="cuda:0") for _ in range(2))
    with group(rank, size, folder):
        for name in ("wait", "synchronize", "block_current_stream"):
            x, copy = torch.ones(N), torch.zeros(N)
            given = on_device(x)
            if rank == 1:
                late.wait_for_it()
                dist.all_reduce(given, async_op=True).wait()
                continue
            with current(stream):
                work = started(dist.all_reduce(given, async_op=True))
                assert idle(stream), "the collective is on the current stream"
                getattr(work, name)()
                assert not work.is_completed()
                assert not idle(stream), f"{name}() has not made the current stream wait"
                assert idle(other)
                on_device(copy).copy_(given)
                late.let_come()
                stream.synchronize()
            assert copy.tolist() == full(2)
            assert work.is_completed()


def synchronous_calls(rank: int, size: int, folder: Path) -> None:
    """A collective with async_op=False runs on the current stream, and the host continues."""
    late = Late(rank, folder)
    stream = torch.Stream(device="cuda:0")
    with group(rank, size, folder):
        x, copy = torch.ones(N), torch.zeros(N)
        if rank == 1:
            late.wait_for_it()
            dist.all_reduce(on_device(x))
        else:
            made = fake().fake_streams()
            with current(stream):
                given = on_device(x)
                assert dist.all_reduce(given) is None
                assert fake().fake_streams() == made, "it has a stream of its own"
                assert not idle(stream)
                on_device(copy).copy_(given)
                late.let_come()
                stream.synchronize()
            assert copy.tolist() == full(2)


def asynchronous_calls(rank: int, size: int, folder: Path) -> None:
    """A collective with async_op=True begins after the earlier work of the current stream."""
    late = Late(rank, folder)
    stream = torch.Stream(device="cuda:0")
    with group(rank, size, folder):
        other = dist.new_group([0, 1])
        dist.all_reduce(on_device(torch.ones(1)), group=other)
        x, y = torch.ones(N), torch.full((N,), float(rank))
        if rank == 1:
            work = started(dist.all_reduce(on_device(y), async_op=True))
            late.wait_for_it()
            time.sleep(SHORT_S)
            dist.all_reduce(on_device(x), group=other)
            until(work.is_completed)
        else:
            with current(stream):
                given, moved = on_device(x), on_device(y)
                dist.all_reduce(given, group=other)
                moved.copy_(given)
                work = started(dist.all_reduce(moved, async_op=True))
                late.let_come()
                until(work.is_completed)
        assert y.tolist() == full(3)


def lifetimes(rank: int, size: int, folder: Path) -> None:
    """A work keeps its input until wait(); without a wait, it records its stream with the
    allocator.
    """
    late = Late(rank, folder)
    with group(rank, size, folder):
        for waits in (True, False):
            given, out = on_device(torch.ones(N)), on_device(torch.zeros(size * N))
            if rank == 1:
                late.wait_for_it()
                dist.all_gather_into_tensor(out, given)
                continue
            work = started(dist.all_gather_into_tensor(out, given, async_op=True))
            kept = torch._C._WeakTensorRef(given)
            del given
            recorded = fake().fake_recorded()
            if waits:
                assert not kept.expired()
                work.wait()
                assert kept.expired()
            del work
            assert (fake().fake_recorded() == recorded) == waits
            late.let_come()


def other_devices(rank: int, size: int, folder: Path) -> None:
    """A call runs on the device of its tensors, whichever device is current or bound."""
    bound = torch.device("cuda:1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda: CUDA)
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(torch.accelerator, "device_count", lambda: 3)
        _other_devices(rank, size, folder, bound)


def _other_devices(rank: int, size: int, folder: Path, bound: torch.device) -> None:
    with group(rank, size, folder, device_id=bound) as b:
        assert dist.group.WORLD is not None
        assert dist.group.WORLD.bound_device_id == bound
        assert not b.supports_splitting
        b.eager_connect_single_device(bound)
        with pytest.raises(RuntimeError, match="split"):
            dist.split_group(split_ranks=[[0, 1]])
        x = torch.ones(N)
        given = on_device(x, 2)
        thread = threading.Thread(target=lambda: dist.all_reduce(given, async_op=True).wait())
        thread.start()
        thread.join()
        dist.barrier()
        assert x.tolist() == full(2)
        here, there = on_device(torch.ones(N), 0), on_device(torch.ones(N), 2)
        with pytest.raises(ValueError, match="must be on the same device"):
            b.allreduce_coalesced([here, there])
        with pytest.raises(ValueError, match="one tensor a rank"):
            b.allreduce([here, there])
        with pytest.raises(ValueError, match="must be on the same device"):
            b.alltoall([here, there], [here, here])
        dist.all_reduce(here)
        dist.barrier()


# ---- Work ----------------------------------------------------------------------------------------


def timeouts_of_wait(rank: int, size: int, folder: Path) -> None:
    """wait(timeout) makes the host wait for the device, and does not change the call."""
    late = Late(rank, folder)
    peer = 1 - rank

    def all_reduce(x: torch.Tensor) -> dist.Work:
        return started(dist.all_reduce(on_device(x), async_op=True))

    def exchange(x: torch.Tensor) -> dist.Work:
        posts = [
            dist.P2POp(dist.isend, on_device(torch.full((N,), 2.0)), peer),
            dist.P2POp(dist.irecv, on_device(x), peer),
        ]
        (work,) = dist.batch_isend_irecv(posts)
        return work

    with group(rank, size, folder):
        exchange(torch.ones(N)).wait()
        dist.barrier()
        for call in (all_reduce, exchange):
            x = torch.ones(N)
            if rank == 1:
                late.wait_for_it()
                call(x).wait(timedelta(seconds=LONG_S))
            else:
                work = call(x)
                start = time.monotonic()
                with pytest.raises(dist.DistBackendError, match="timed out"):
                    work.wait(timedelta(seconds=SHORT_S))
                assert SHORT_S <= time.monotonic() - start < LONG_S / 2
                threading.Timer(SHORT_S, late.let_come).start()
                work.wait(timedelta(seconds=LONG_S))
            assert x.tolist() == full(2), "the host has not waited for the device"
            dist.barrier()


def states(rank: int, size: int, folder: Path) -> None:
    """The states of a work whose peer never joins, before and after its deadline.

    The timeout is the call's own, or, with ``of the group`` in the folder, that of set_timeout().
    """
    with group(rank, size, folder, timeout_s=NEVER_S) as b:
        if rank == 1:
            return wait_for(folder / "told")
        options = _asynchronous(dist.AllreduceOptions())
        if (folder / "of the group").exists():
            b.set_timeout(timedelta(seconds=1))
        else:
            options.timeout = timedelta(seconds=1)
        x = on_device(torch.ones(N))
        work = b.allreduce([x], options)
        assert not work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0].data_ptr() == x.data_ptr()
        work.wait()  # does not know of a failure on the device yet
        with pytest.raises(CollectiveTimeoutError):
            work.wait(timedelta(seconds=LONG_S))
        assert work.is_completed()
        assert not work.is_success()
        assert work.exception() is not None
        for ask in (work.wait, work.synchronize):
            with pytest.raises(CollectiveTimeoutError):
                ask()
        leave_note(folder / "told", "")


def futures(rank: int, size: int, folder: Path) -> None:
    """A future is done when the call is enqueued; its callbacks run on a stream that waits."""
    late = Late(rank, folder)
    stream = torch.Stream(device="cuda:0")
    with group(rank, size, folder):
        x, copy = torch.ones(N), torch.zeros(N)
        given = on_device(x)
        if rank == 1:
            late.wait_for_it()
            return dist.all_reduce(given)
        with current(stream):
            work = started(dist.all_reduce(given, async_op=True))
            future = work.get_future()
            assert future.done()
            called = []

            def follow(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
                (result,) = future.value()
                called.append(result.data_ptr())
                on_device(copy).copy_(result)
                return result

            last = future.then(follow)
            assert called == [given.data_ptr()], "the callback waits for the device"
            assert not work.is_completed()
            last.wait()
            assert not idle(stream), "wait() of a future has not made the current stream wait"
            late.let_come()
            stream.synchronize()
        assert copy.tolist() == full(2)


def captures(rank: int, size: int, folder: Path) -> None:
    """In a capture a work makes streams wait, and queries of it do no harm."""
    stream = torch.Stream(device="cuda:0")
    with group(rank, size, folder), current(stream):
        x = torch.ones(N)
        given = on_device(x)
        recorded = Graph()
        with recorded.capture():
            work = started(dist.all_reduce(given, async_op=True))
            with pytest.raises(CommUsageError, match="each replay of the CUDA graph"):
                work.is_completed()
            work.wait(timedelta(seconds=SHORT_S))
        assert x.tolist() == full(1)
        for expected in (2, 4):
            recorded.replay()
            stream.synchronize()
            assert x.tolist() == full(expected)


# ---- Groups --------------------------------------------------------------------------------------


def coalescing(rank: int, size: int, folder: Path) -> None:
    """Calls in a coalescing manager are one work."""
    peer = 1 - rank
    with group(rank, size, folder) as b:
        assert b.supports_coalescing
        xs = [torch.full((N,), rank + 1.0) for _ in range(3)]
        before = b._get_sequence_number_for_group()
        with _coalescing_manager(device=CUDA, async_ops=True) as manager:
            b.allreduce([on_device(xs[0])], _asynchronous(dist.AllreduceOptions()))
            b.broadcast([on_device(xs[1])], _asynchronous(dist.BroadcastOptions()))
        with _coalescing_manager(async_ops=True) as quick:
            dist.all_reduce(on_device(xs[2]))
        for works in (manager.works, quick.works):
            assert len(works) == 1
            works[0].wait()
        with _coalescing_manager(device=CUDA, async_ops=True) as empty:
            pass
        empty.wait()
        out = torch.zeros(N)
        posts = [
            dist.P2POp(dist.isend, on_device(torch.full((N,), float(rank))), peer),
            dist.P2POp(dist.irecv, on_device(out), peer),
        ]
        works = dist.batch_isend_irecv(posts)
        assert len(works) == 1
        until(works[0].is_completed)
        dist.barrier()
        assert [x.tolist() for x in xs] == [full(3), full(1), full(3)]
        assert out.tolist() == full(peer)
        assert b._get_sequence_number_for_group() == before + 4, "messages count, too"


def _asynchronous(options: Any) -> Any:
    options.asyncOp = True
    return options


def messages_between_two(rank: int, size: int, folder: Path) -> None:
    """Messages in one direction keep the order of the calls; tags do not tell them apart."""
    late = Late(rank, folder)
    stream = torch.Stream(device="cuda:0")
    with group(rank, size, folder), current(stream):
        a, b = torch.full((N,), 1.0), torch.full((N,), 2.0)
        if rank == 1:
            late.wait_for_it()
            outs = [torch.zeros(N), torch.zeros(N)]
            for out, tag in zip(outs, (2, 1)):
                dist.recv(on_device(out), 0, tag=tag)
            stream.synchronize()
            assert [out.tolist() for out in outs] == [full(1), full(2)]
        else:
            works = [dist.isend(on_device(x), 1, tag=tag) for x, tag in ((a, 1), (b, 2))]
            assert not any(started(work).is_completed() for work in works)
            assert idle(stream), "messages are on the current stream"
            late.let_come()
            for work in works:
                until(started(work).is_completed)
        for post in (dist.isend, dist.irecv):
            with pytest.raises(ValueError, match="cannot send to itself"):
                post(on_device(a), rank)
        with pytest.raises(ValueError, match="only CPU tensors"):
            dist.recv(on_device(a))


def tensors(rank: int, size: int, folder: Path) -> None:
    """Dtypes, ops, strides and sizes that ProcessGroupNCCL refuses, or treats differently."""
    with group(rank, size, folder) as b:

        def total(x: torch.Tensor, op: Any, given: torch.Tensor | None = None) -> torch.Tensor:
            options = dist.AllreduceOptions()
            options.reduceOp = op
            b.allreduce([on_device(x) if given is None else given], options).wait()
            dist.barrier()
            return x

        op = dist.ReduceOp
        mine = torch.tensor([0b1100, 0b1010][rank])
        for name, expected in ((op.BAND, 0b1000), (op.BOR, 0b1110), (op.BXOR, 0b0110)):
            assert total(mine.clone(), name).item() == expected
        assert total(torch.tensor([True, rank == 0, False]), op.SUM).tolist() == [True, True, False]
        for refused in (torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.int32)):
            with pytest.raises(TypeError, match="avg"):
                total(refused, op.AVG)
        assert total(torch.tensor([rank], dtype=torch.int16), op.SUM).tolist() == [1]
        assert total(torch.tensor([rank + 1.0]), op.AVG).tolist() == [1.5]
        scaled = dist._make_nccl_premul_sum(2.0)
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            assert total(torch.tensor([rank + 1], dtype=dtype), scaled).tolist() == [6]
        assert total(torch.tensor([1j, rank + 0j]), op.SUM).tolist() == [2j, 1 + 0j]
        wide = torch.ones(N, 2)
        total(wide, op.SUM, on_device(wide)[:, 0])
        assert wide.sum(0).tolist() == [2 * N, N]
        assert total(torch.ones(0), op.SUM).numel() == 0
        gathered = [torch.zeros(3 - i) for i in range(size)]
        dist.all_gather([on_device(x) for x in gathered], on_device(torch.full((3 - rank,), 5.0)))
        dist.barrier()
        assert [x.tolist() for x in gathered] == [[5.0] * (3 - i) for i in range(size)]


def ends(rank: int, size: int, folder: Path) -> None:
    """The group ends, or is aborted, on rank 0 while a collective waits for its peer."""
    aborts = (folder / "aborts").exists()
    with group(rank, size, folder, timeout_s=NEVER_S) as b:
        start = time.monotonic()

        def call() -> None:
            started(dist.all_reduce(on_device(torch.ones(N)), async_op=True)).wait()
            time.sleep(0.01)

        if rank == 1:
            wait_for(folder / "ended")
            assert "rank 0" in error_of(call)["text"]
        else:
            work = started(dist.all_reduce(on_device(torch.ones(N)), async_op=True))
            if aborts:
                b.abort()
            else:
                dist.destroy_process_group()
            leave_note(folder / "ended", "")
            until(work.is_completed)
            with pytest.raises(CommAbortedError):
                work.wait()
        assert time.monotonic() - start < LONG_S / 2


def shrinks(rank: int, size: int, folder: Path) -> None:
    """Rank 1 is left out, and learns it from its next call."""
    with group(rank, size, folder) as b:
        x = torch.ones(N)
        b.allreduce([on_device(x)]).wait()
        dist.barrier()
        assert x.tolist() == full(size)
        assert b.supports_shrinking
        if rank != 1:
            less = b.shrink([1])
            assert (less.rank(), less.size()) == (rank // 2, size - 1)
            work = less.allreduce([on_device(x)])
            work.wait()
            until(work.is_completed)
            assert x.tolist() == full(size * (size - 1))
            leave_note(folder / f"shrunk{rank}", "")
            less.shutdown()
            return
        for other in (0, 2):
            wait_for(folder / f"shrunk{other}")

        def call() -> None:
            work = b.allreduce([on_device(x)])
            until(work.is_completed)
            work.wait()

        said = error_of(call)
        assert said["kind"] == "CommAbortedError"
        assert "goes on without rank 1" in said["text"]


def lacks(rank: int, size: int, folder: Path) -> None:
    """Methods that ProcessGroupNCCL has and this backend lacks."""
    with group(rank, size, folder) as b:
        names = "register_mem_pool comm_split_count perform_nocolor_split get_error"
        names += " _add_ephemeral_timeout _is_initialized"
        assert not [name for name in names.split() if hasattr(b, name)]
        assert not b.supports_time_estimate
        assert not b.supports_tensor_alloc(torch.device("cuda:0"))
        for refused in (
            lambda: b.mem_allocator,
            lambda: b.allocate_tensor(1, dtype=torch.float32, device=torch.device("cuda:0")),
            lambda: b.suspend(),
            lambda: b.resume(),
            lambda: b.memory_stats(),
        ):
            with pytest.raises(RuntimeError, match="does not support"):
                refused()
        work = started(dist.all_reduce(on_device(torch.ones(1)), async_op=True))
        work.wait()
        for refused in (work.get_future_result, work._get_duration):
            with pytest.raises(RuntimeError, match=r"not implemented|doesn't support"):
                refused()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
        assert any("only supported for either nccl or gloo" in str(w.message) for w in said)
        with pytest.raises(TypeError, match=r"ringkern\.backend\.Options"):
            dist.new_group([0, 1], pg_options=object())
        dist.new_group([0, 1], pg_options=Options(on_fault="raise"))


# ---- Bits ----------------------------------------------------------------------------------------


def sums_by_a_tree(rank: int, size: int, folder: Path) -> None:
    """The kernels add in the order of the tree; a rank each on one device, and on two."""
    fake_cuda.start()
    if rank != 0:
        return
    ways: tuple[dict[str, str], ...] = (
        {},
        {"algorithm": "one_shot"},
        {"algorithm": "two_shot", "protocol": "ll"},
        {"algorithm": "two_shot", "protocol": "simple"},
    )
    for devices in ([0] * 4, [0, 1, 0, 1, 1, 0, 0]):
        ranks, found, right = len(devices), [], []
        with local.Ring(devices) as ring:
            for dtype, op, way in itertools.product(FLOATS, OPS, ways):
                kind = "bits" if op == "avg" else "cancelling"
                values = [shard_of(dtype, 700, shard, kind) for shard in range(ranks)]
                right.append(expected(values, op))
                found.append([value.clone() for value in values])
                tensors = [on_device(x, device) for x, device in zip(found[-1], devices)]
                kept = {"deterministic": "world_invariant", "shards": ranks}
                ring.all_reduce(tensors, OPS[op], **way, **kept)
        for results, one in zip(found, right, strict=True):
            for result in results:
                assert same(result, one), (devices, one.dtype)


if __name__ == "__main__":
    serve(globals())
