"""Checks which streams a barrier waits for, on fake CUDA devices.

ctest runs it, by tests.torch.fake_cuda.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ringkern.backend import create
from ringkern.errors import CollectiveTimeoutError, CommAbortedError
from tests.torch.fake_cuda import fake, on_device

Wait = tuple[int, int]  # for a stream: its device and its number there
FAKE = fake()
ON_WAIT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_long)


def _tensor(device: int) -> torch.Tensor:
    return on_device(torch.ones(16), device)


@contextmanager
def waits(look: Callable[[], None] = lambda: None) -> Iterator[list[Wait]]:
    """Records the host's waits inside, and calls ``look`` at each of them."""
    seen: list[Wait] = []

    def note(device: int, stream: int) -> None:
        look()
        seen.append((device, stream))

    told = ON_WAIT(note)
    FAKE.fake_on_wait(told)
    try:
        yield seen
    finally:
        FAKE.fake_on_wait(None)


@contextmanager
def group() -> Iterator[dist.ProcessGroup]:
    """Yields a group of this rank alone; the current streams are 10, 11 and 12 of the devices."""
    dist.init_process_group("ringkern", store=dist.HashStore(), rank=0, world_size=1)
    for device in range(3):
        FAKE.fake_set_stream(device, 10 + device)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def test_a_group_on_the_cpu_leaves_cuda_alone() -> None:
    with group():
        dist.all_reduce(torch.ones(4))
        touched = FAKE.fake_touched()
        with waits() as seen:
            dist.barrier()
            dist.barrier(async_op=True).wait()
        assert (seen, FAKE.fake_touched()) == ([], touched)


def test_current_and_side_streams_of_every_device_with_a_ring() -> None:
    with group():
        dist.all_reduce(_tensor(1))
        for asynchronous in (False, True):
            with waits() as seen:
                dist.barrier(async_op=asynchronous)
                assert seen == [(1, 11)]
        dist.all_reduce(_tensor(2), async_op=True).wait()
        with waits() as seen:
            dist.barrier()
        currents = [(1, 11), (2, 12)]
        (side,) = set(seen) - set(currents)
        assert side[0] == 2
        assert sorted(seen) == sorted([*currents, side])


def test_the_current_stream_is_that_of_the_calling_thread() -> None:
    def call() -> None:
        FAKE.fake_set_stream(1, 31)
        dist.barrier()

    with group():
        dist.all_reduce(_tensor(1))
        with waits() as seen, ThreadPoolExecutor(1) as thread:
            thread.submit(call).result()
        assert seen == [(1, 31)]


def named(device: str | None, device_ids: list[int]) -> dist.BarrierOptions:
    options = dist.BarrierOptions()
    options.device_ids = device_ids
    options.timeout = timedelta(minutes=1)
    if device is not None:
        options.device = torch.device(device)
    return options


def test_devices_that_are_named_besides() -> None:
    with group() as world:
        backend = world._get_backend(torch.device("cpu"))
        for device, ids, where in (("cpu", [2], 2), ("cuda:1", [], 1), ("cuda", [], 0)):
            with waits() as seen:
                backend.barrier(named(device, ids)).wait()
            assert seen == [(where, 10 + where)], seen
        dist.all_reduce(_tensor(1))
        with waits() as seen:
            world.barrier(named("cpu", [2])).wait()
            assert sorted(seen) == [(1, 11), (2, 12)]
            world.barrier(named("cpu", [1])).wait()
        assert seen[2:] == [(1, 11)]
        bound = dist.ProcessGroup(dist.HashStore(), 0, 1)
        bound.bound_device_id = torch.device("cuda:0")
        bound._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
        with waits() as seen:
            backend.barrier(named("cpu", [])).wait()
        assert sorted(seen) == [(0, 10), (1, 11)]


def test_ids_of_devices_that_are_not_there() -> None:
    """Wrappers pass such ids to groups on CPUs, too."""
    FAKE.fake_set_devices(0)
    with group() as world, waits() as seen:
        world.barrier(named("cpu", [0])).wait()
    FAKE.fake_set_devices(3)
    assert not seen


def test_the_barrier_of_the_ring_comes_after_the_device() -> None:
    def check(asynchronous: bool) -> None:
        numbers: list[int] = []
        before = number()
        with waits(lambda: numbers.append(number())):
            dist.barrier(async_op=asynchronous)
        assert (numbers, number()) == ([before, before], before + 1)

    with group() as world:
        number = world._get_backend(torch.device("cpu"))._get_sequence_number_for_group
        dist.all_reduce(_tensor(1), async_op=True).wait()
        check(False)
        check(True)


def test_a_work_tells_what_the_device_shows() -> None:
    """Includes the last call of a program, which no later call follows."""
    FAKE.fake_done(1)
    works = [FAKE.fake_work(seq) for seq in (1, 2)]
    for work in works:
        work.wait()
        assert work.is_success()
    FAKE.fake_fail(2)
    good, bad = works
    good.wait()
    assert good.is_success()
    assert bad.is_completed()
    assert not bad.is_success()
    for tell in (bad.wait, bad.synchronize, bad.block_current_stream):
        with pytest.raises(CollectiveTimeoutError) as caught:
            tell()
        assert caught.value.fault is not None
        assert (caught.value.fault.event, caught.value.fault.seq) == ("wait_timeout", 2)
        assert caught.value.seq == 2


class TwoRanks:
    """A group of two ranks of this process, whose CUDA links have no other end."""

    def __init__(self, name: str) -> None:
        store = dist.HashStore()

        def options(rank: int) -> Any:
            made = dist.distributed_c10d._DistributedBackendOptions()
            made.store, made.group_id, made.group_rank, made.group_size = store, name, rank, 2
            made.timeout, made.global_ranks_in_group = timedelta(seconds=2), [0, 1]
            return made

        with ThreadPoolExecutor(2) as threads:
            self.first, self.second = threads.map(create, map(options, range(2)))
        FAKE.fake_set_stream(1, 11)
        self.barrier()

    def barrier(self) -> list[Wait]:
        """Returns the waits of the first rank."""
        with waits() as seen, ThreadPoolExecutor(1) as thread:
            other = thread.submit(lambda: self.second.barrier(named("cpu", [])).wait())
            self.first.barrier(named("cpu", [])).wait()
            other.result()
        return seen

    def receive(self) -> dist.Work:
        return self.first.recv([_tensor(1)], 1, 0)

    def exchange(self) -> dist.Work:
        own, out, given = (_tensor(1) for _ in range(3))  # nothing can be copied on fake devices
        return self.first.alltoall([own, out], [own, given])

    def abort(self) -> None:
        self.first.abort()
        self.second.abort()


def test_a_message_is_left_alone_and_an_exchange_waited_for() -> None:
    """The other end of a message may be posted after the barrier."""
    ranks = TwoRanks("an exchange behind a message")
    ranks.receive()
    assert ranks.barrier() == [(1, 11)]
    work = ranks.exchange()
    assert not work.is_completed()
    seen = ranks.barrier()
    assert work.is_completed(), "the barrier did not wait for the launch, here for its timeout"
    assert seen == [(1, 11), (1, 0), (1, 0)]  # the current stream, and events of two links
    with pytest.raises(CommAbortedError):
        ranks.exchange().wait()
    ranks.barrier()  # does not wait for a call that was never made
    ranks.abort()


def test_a_message_behind_an_exchange_is_left_alone() -> None:
    ranks = TwoRanks("a message behind an exchange")
    ranks.exchange()
    ranks.receive()
    assert ranks.barrier() == [(1, 11), (1, 0)]  # and an event of the link that sends
    ranks.abort()


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(name, flush=True)
            test()
