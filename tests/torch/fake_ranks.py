"""Ranks whose tensors lie on fake CUDA devices, for test_fake_ranks.py; run by tests.comm.exits."""

from __future__ import annotations

import functools
import json
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern import _C, local
from ringkern.choose import ring_order
from ringkern.choose.cost import ANY_SIZE
from ringkern.errors import CommUsageError, RingKernError
from tests import reference
from tests.comm.exits import join, serve
from tests.faults.fates import error_of, tell
from tests.faults.lives import leave_note, wait_for
from tests.torch import fake_cuda
from tests.torch.fake_cuda import Graph, current, fake, on_device
from tests.torch.rings import any_bits, normal, same
from tests.torch.sequences import OPS
from tests.torch.test_residual_rms_norm import norm_of

VICTIM = 1
ROOM = 16  # multiprocessors, which hold the blocks of one ring and no other
FEW = 2  # for 4 channels of a rank
TOLD_S = 10.0  # a watch looks several times a second
WORKERS = 352  # threads of a block that CUDA plans assume


@dataclass(frozen=True)
class Call:
    """An all-reduce. ``bits``: inputs have arbitrary bits, otherwise plain numbers."""

    algorithm: str
    protocol: str
    dtype: str
    n: int
    op: str = "sum"
    bits: bool = False

    def inputs(self, size: int, seed: int) -> list[torch.Tensor]:
        make = any_bits if self.bits else normal
        return [make(reference.DTYPES[self.dtype], (self.n,), r, seed) for r in range(size)]

    def expected(self, inputs: list[torch.Tensor], most: int = 32) -> torch.Tensor:
        """Returns the result of the CPU engine's arithmetic in the order of the device.

        Args:
            most: channels that the ring has.
        """
        if self.algorithm != "ring":
            return reference.direct_all_reduce(inputs, self.op)
        cut = cut_of(self.protocol, len(inputs), self.n, self.dtype, most)
        return reference.ring_all_reduce(inputs, self.op, self.protocol, **cut)


def cut_of(protocol: str, ranks: int, n: int, dtype: str, most: int = 32) -> dict[str, int]:
    """Returns the arguments of a Plan for a device's cut of an all-reduce round the ring."""
    d = _C.describe("cuda", "all_reduce", "ring", protocol, ranks, n, dtype)
    assert d
    channels, slots = d["channels"], d["slots"]
    slot_bytes = d["staging_bytes"] // (channels * slots)
    cut = {"workers": WORKERS, "channels": channels, "slots": slots, "slot_bytes": slot_bytes}
    if channels > most:
        return {**cut, "channels": most}
    element = reference.DTYPES[dtype].itemsize
    assert _C.Plan("all_reduce", protocol, ranks, n, element, **cut).loops == d["rounds"]
    return cut


def write(folder: Path, calls: list[Call]) -> None:
    (folder / "plan").write_text(json.dumps([asdict(call) for call in calls]))


def _read(folder: Path) -> list[Call]:
    return [Call(**call) for call in json.loads((folder / "plan").read_text())]


def _join(
    rank: int, size: int, folder: Path, name: str = "store", timeout_s: float = 50
) -> ringkern.Communicator:
    store = dist.FileStore(f"{folder}/{name}", size)
    timeout = timedelta(seconds=timeout_s)
    return ringkern.Communicator.from_store(store, rank, size, timeout=timeout)


def _init(rank: int, size: int, folder: Path, name: str = "group", timeout_s: float = 50) -> None:
    join(rank, size, folder, "ringkern", name, timeout=timedelta(seconds=timeout_s))


def _start(
    communicator: ringkern.Communicator,
    call: Call,
    x: torch.Tensor,
    given: torch.Tensor | None = None,
    device: int = 0,
) -> dist.Work:
    """Enqueues the call on the device; ``given``: ``x`` on the device, if it is there already."""
    work = communicator.all_reduce(
        on_device(x, device) if given is None else given,
        OPS[call.op],
        algorithm=call.algorithm,
        protocol=call.protocol,
        async_op=True,
    )
    assert work is not None
    return work


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    while not work.is_completed():
        time.sleep(0.001)
    work.wait()


def _to_or_from(rank: int, given: torch.Tensor) -> dist.Work | None:
    """Starts a message from rank 0 to rank 1; returns this rank's end."""
    return dist.isend(given, 1) if rank == 0 else dist.irecv(given, 0)


def _outcome(work: dist.Work) -> str:
    try:
        _wait(work)
    except RingKernError as error:
        return type(error).__name__
    return "no error"


def _last_completed() -> int:
    """Returns the number of the last call that has completed on the device, as far as is known."""
    (status,) = ringkern.dump()["pg_status"].values()
    last: int = status["last_completed_collective"]
    return last


def calls(rank: int, size: int, folder: Path) -> None:
    """Makes all calls of the plan before it checks one."""
    fake_cuda.start()
    plan = _read(folder)
    with _join(rank, size, folder) as communicator:
        inputs = [call.inputs(size, seed) for seed, call in enumerate(plan)]
        results = [x[rank].clone() for x in inputs]
        works = [_start(communicator, call, x) for call, x in zip(plan, results)]
        for call, work, x, given in zip(plan, works, results, inputs):
            _wait(work)
            assert same(x, call.expected(given)), call
        end = time.monotonic() + TOLD_S
        while _last_completed() != len(plan):  # kernels report to the watch
            assert time.monotonic() < end, _last_completed()
            time.sleep(0.01)


def in_place(rank: int, size: int, folder: Path) -> None:
    """Uses tensors in memory that the others map; in every third call that of rank 1 is not.

    ``early`` in the folder: the ranks that have such memory before their first call.
    """
    fake_cuda.start()
    early: list[int] = json.loads((folder / "early").read_text())
    if rank in early:
        fake_cuda.shared(torch.ones(1))
    automatic = [(ANY_SIZE, "two_shot", "simple")]
    with _join(rank, size, folder) as communicator:
        for seed, call in enumerate(_read(folder)):
            inputs = call.inputs(size, seed)
            result, given = inputs[rank].clone(), None
            if (rank != VICTIM or seed % 3 != 2) and (seed > 0 or rank in early):
                result, given = fake_cuda.shared(inputs[rank])
                assert ringkern.is_shared(given)
            _wait(_start(communicator, call, result, given))
            assert same(result, call.expected(inputs)), call
            rows = communicator._c.table("cuda")["automatic"]
            assert (rows[-1:] == automatic) == (len(early) == size)


def local_ring(rank: int, size: int, folder: Path) -> None:
    """Runs a ring of this process alone; ``devices`` in the folder has the device of each rank."""
    devices: list[int] = json.loads((folder / "devices").read_text())
    fake().fake_set_devices(max(devices) + 1)
    # A process can have some 30,000 threads of CUDA.
    fake_cuda.start(processors=FEW if len(devices) > 4 else 132)
    plan = _read(folder)
    inputs = [call.inputs(len(devices), seed) for seed, call in enumerate(plan)]
    results = [[x.clone() for x in given] for given in inputs]
    with local.Ring([f"cuda:{device}" for device in devices]) as ring:
        for call, tensors in zip(plan, results):
            moved = [on_device(x, device) for x, device in zip(tensors, devices)]
            ring.all_reduce(moved, OPS[call.op], protocol=call.protocol, algorithm=call.algorithm)
    for call, tensors, given in zip(plan, results, inputs):  # the ring has waited for its launches
        assert all(same(x, call.expected(given)) for x in tensors), call


def two_rings(rank: int, size: int, folder: Path) -> None:
    """Runs two rings on separate streams, which the ranks, a device each, launch in different
    orders.

    ``device`` in the folder: its multiprocessors and hardware queues. Where there is no room for
    both rings, each rank runs the ring that the other has no room for, until the timeout; then
    there is room for the other ring.
    """
    processors, queues = json.loads((folder / "device").read_text())
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(queues)
    fake_cuda.start(processors)
    (call,) = _read(folder)
    timeout_s = 50 if processors > ROOM else 3
    rings = [_join(rank, size, folder, name, timeout_s) for name in "ab"]
    streams = [torch.Stream(device=f"cuda:{rank}") for _ in rings]
    inputs = call.inputs(size, seed=0)
    given = on_device(inputs[rank].clone(), rank)
    for ring in rings:  # the first call makes the ring and waits for the others
        with current(streams[0]):
            _wait(ring.all_reduce(given, protocol=call.protocol, async_op=True))
    results = [inputs[rank].clone() for _ in rings]
    works = {}
    for i in (0, 1) if rank % 2 == 0 else (1, 0):
        with current(streams[i]):
            works[i] = _start(rings[i], call, results[i], device=rank)
        time.sleep(0.2)  # so that all of its blocks are resident
    kinds = [_outcome(works[i]) for i in range(2)]
    (folder / f"said{rank}").write_text(json.dumps(kinds))
    for ring in rings:
        ring.close()
    for kind, x in zip(kinds, results):
        assert kind != "no error" or same(x, call.expected(inputs))


def norms(rank: int, size: int, folder: Path) -> None:
    """Checks the sum, a residual and norms against the bits of the CPU; then rows that differ."""
    fake_cuda.start()
    made: dict[int, torch.Tensor] = {}

    def empty(sizes: list[int], *, dtype: torch.dtype, **_: object) -> torch.Tensor:
        memory = torch.zeros(sizes, dtype=dtype)
        made[memory.data_ptr()] = memory
        return on_device(memory)

    library = torch.library.Library("aten", "IMPL")  # a torch without CUDA lacks them
    library.impl("empty.memory_format", empty, "CUDA")
    stream = torch.Stream(device="cuda:0")
    with _join(rank, size, folder, timeout_s=10) as ring, current(stream):
        for wide in (False, True):
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                for shape in ((1, 1), (3, 31), (33,), (2, 3, 64), (40, 100), (2, 9000)):
                    xs = [normal(dtype, shape, r) for r in range(size)]
                    if wide:
                        total = torch.stack([x.float() for x in xs]).sum(0).to(dtype)
                    else:
                        total = reference.direct_all_reduce(xs, "sum")
                    residual, weight = normal(dtype, shape, 0, 1), normal(dtype, shape[-1:], 0, 2)
                    apart = torch.zeros(residual.numel() + 1, dtype=dtype)[1:].view(shape)
                    given = [on_device(x) for x in (xs[rank], apart.copy_(residual), weight)]
                    way = ("auto", "auto", True, wide)
                    out, sums = ring._c.all_reduce_residual_rms_norm(*given, 1e-5, *way)
                    stream.synchronize()
                    total += residual
                    assert same(made[sums.data_ptr()], total), (dtype, shape)
                    normalised = norm_of(total, weight, 1e-5)
                    assert same(made[out.data_ptr()], normalised), (dtype, shape)
        row = 6 if rank == 0 else 4
        x, weight = torch.ones(24 // row, row), torch.ones(row)

        def call_and_wait() -> None:
            given = map(on_device, (x, x, weight))
            ring._c.all_reduce_residual_rms_norm(*given, 1e-5, "auto", "auto", True, False)
            _wait(_start(ring, Call("ring", "ll", "float32", 24), x.view(-1)))

        with pytest.raises(RingKernError, match="the length of a row"):
            call_and_wait()


def two_streams(rank: int, size: int, folder: Path) -> None:
    """Runs one ring on two streams in turn, which do not wait for each other."""
    fake_cuda.start()
    plan = _read(folder)
    streams = [torch.Stream(device="cuda:0") for _ in range(2)]
    inputs = [call.inputs(size, seed) for seed, call in enumerate(plan)]
    results = [x[rank].clone() for x in inputs]
    with _join(rank, size, folder) as ring:
        works = []
        for i, (call, x) in enumerate(zip(plan, results)):
            with current(streams[i % 2]):
                works.append(_start(ring, call, x))
        for call, work, x, given in zip(plan, works, results, inputs):
            _wait(work)
            assert same(x, call.expected(given)), call


def graph(rank: int, size: int, folder: Path) -> None:
    """Replays a graph of two calls on two streams among other calls."""
    fake_cuda.start()
    (call,) = _read(folder)
    inputs = call.inputs(size, seed=0)
    plain, first, second = (inputs[rank].clone() for _ in range(3))
    stream, side = (torch.Stream(device="cuda:0") for _ in range(2))
    recorded = Graph()
    with _join(rank, size, folder) as ring, current(stream):
        with Graph().capture(), pytest.raises(CommUsageError, match="make one call before"):
            _start(ring, call, plain)
        _wait(_start(ring, call, plain))
        with recorded.capture():
            side.wait_event(stream.record_event())
            _start(ring, call, first)
            with current(side):  # the ring makes it wait for the first
                _start(ring, call, second)
            time.sleep(0.5)  # nor does the watch make a call that a capture forbids
            stream.wait_event(side.record_event())
        assert same(first, inputs[rank]), "it was captured and has run"
        expected = [call.expected(inputs)]
        for _ in range(2):
            expected.append(call.expected([expected[-1]] * size))
        for i in range(3):
            recorded.replay()
            _wait(_start(ring, call, plain))
            stream.synchronize()
            assert same(first, expected[i])
            assert same(second, expected[i])


def replays_beside_calls(rank: int, size: int, folder: Path) -> None:
    """Replays two graphs beside other calls, on streams that never wait for each other."""
    fake_cuda.start()
    (call,) = _read(folder)
    inputs = call.inputs(size, seed=0)
    expected = [call.expected(inputs)]
    for _ in range(3):
        expected.append(call.expected([expected[-1]] * size))
    streams = [torch.Stream(device="cuda:0") for _ in range(4)]
    graphs, tensors = [], [inputs[rank].clone() for _ in range(3)]
    with _join(rank, size, folder) as ring:
        with current(streams[0]):
            _wait(_start(ring, call, inputs[rank].clone()))
        for x in tensors[:2]:
            graphs.append(Graph())
            with current(streams[0]), graphs[-1].capture():
                _start(ring, call, x)
        for i in range(3):
            with current(streams[1]):
                work = _start(ring, call, tensors[2])
            for j in (0, 1) if i < 2 else (1, 0):
                with current(streams[2 + j]):
                    graphs[j].replay()
            if i == 1:
                for stream in streams:
                    stream.synchronize()
        _wait(work)
        for stream in streams:
            stream.synchronize()
    for x in tensors:
        assert same(x, expected[2])


def lonely_replay(rank: int, size: int, folder: Path) -> None:
    """Replays a graph on rank 0 only; an end with patience comes before the timeout."""
    fake_cuda.start()
    (call,) = _read(folder)
    x = call.inputs(size, seed=0)[rank]
    recorded, stream = Graph(), torch.Stream(device="cuda:0")
    with _join(rank, size, folder, timeout_s=600) as ring, current(stream):
        _wait(_start(ring, call, x))
        with recorded.capture():
            _start(ring, call, x)
        if rank == 0:
            recorded.replay()
            ring._c.close(0.5)
            stream.synchronize()
            leave_note(folder / "closed", "")
        wait_for(folder / "closed")


def refused(rank: int, size: int, folder: Path) -> None:
    """Makes, on rank 0 alone, captures and launches that CUDA refuses, then the same calls as rank
    1.
    """
    fake_cuda.start()
    (call,) = _read(folder)
    inputs = call.inputs(size, seed=0)
    recorded, stream = Graph(), torch.Stream(device="cuda:0")
    with _join(rank, size, folder) as ring, current(stream):

        def make_calls() -> None:
            for _ in range(2):
                x = inputs[rank].clone()
                _wait(_start(ring, call, x))
                assert same(x, call.expected(inputs))

        def break_capture() -> None:
            with Graph().capture():
                _start(ring, call, inputs[rank].clone())
                assert fake().fake_unsafe_call() != 0
                with pytest.raises(RingKernError, match="end it and capture again"):
                    _start(ring, call, inputs[rank].clone())

        def make_call_in_part() -> None:
            dist.all_reduce_coalesced([given, given])
            while True:  # until rank 1 is told
                dist.all_reduce(given)
                stream.synchronize()

        make_calls()
        if rank == 1:
            with Graph().capture():
                _start(ring, call, inputs[rank].clone())
        else:
            with pytest.raises(RuntimeError, match="CUDA error 901"):
                break_capture()
        captured = inputs[rank].clone()
        with recorded.capture():
            _start(ring, call, captured)
        make_calls()
        if rank == 0:
            fake().fake_fail_launches(1, 0)
            with pytest.raises(RingKernError, match="cudaLaunchKernelExC"):
                _start(ring, call, inputs[rank].clone())
        make_calls()
        recorded.replay()
        stream.synchronize()
        assert same(captured, call.expected(inputs))
        (status,) = ringkern.dump()["pg_status"].values()
        assert status["last_enqueued_collective"] == 8, status  # like rank 1
        _init(rank, size, folder)
        given = on_device(torch.ones(100))
        dist.all_reduce(given)
        if rank == 0:
            fake().fake_fail_launches(1, 0)
            with pytest.raises(RingKernError, match="cudaLaunchKernelExC"):
                dist.all_reduce(given)
        dist.all_reduce(given)
        stream.synchronize()
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
        assert backend._get_sequence_number_for_group() == 2
        if rank == 0:
            fake().fake_fail_launches(1, 1)
        with pytest.raises(RingKernError, match=r"made in part|cudaLaunchKernelExC"):
            make_call_in_part()
        dist.destroy_process_group()


def contexts(rank: int, size: int, folder: Path) -> None:
    """Makes calls, messages, an abort and an end from threads that have never chosen a device."""
    fake_cuda.start()
    _init(rank, size, folder)
    device, x = 1 + rank, torch.ones(100)
    given, stream = on_device(x, device), torch.Stream(device=f"cuda:{device}")
    with current(stream):
        _wait(dist.all_reduce(given, async_op=True))
        _wait(_to_or_from(rank, given))
    threading.Thread(target=dist.distributed_c10d._abort_process_group).start()
    while dist.is_initialized():
        time.sleep(0.01)
    ring = _join(rank, size, folder)
    with current(stream):
        _wait(_start(ring, Call("ring", "ll", "float32", 100), x, device=device))
    current_device = []

    def end() -> None:
        ring.close()
        current_device.append(fake().fake_current_device())

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert current_device == [0]
    assert fake().fake_contexts() == 1 << device


def full(rank: int, size: int, folder: Path) -> None:
    """Makes rings while torch's cache holds all memory of the devices."""
    fake_cuda.start()
    (call,) = _read(folder)
    inputs = call.inputs(size, seed=0)
    x = inputs[rank].clone()
    with _join(rank, size, folder) as ring:
        fake().fake_fill(0)
        _wait(_start(ring, call, x))
    assert same(x, call.expected(inputs))
    fake().fake_fill(0)
    with local.Ring(["cuda:0", "cuda:0"]):
        pass


def groups_in_a_loop(rank: int, size: int, folder: Path) -> None:
    """Makes groups one after the other. Each has a stream for asynchronous calls and one for
    messages, which the next group reuses.
    """
    fake_cuda.start()
    x = torch.ones(100)
    given = on_device(x)
    made = []
    for i in range(4):
        _init(rank, size, folder, str(i))
        works = [dist.all_reduce(given, async_op=True), _to_or_from(rank, given)]
        while works:
            _wait(works.pop())
        dist.destroy_process_group()
        made.append(fake().fake_streams())
    assert made == made[:1] * 4, made  # by the first group; the others reuse them


def lost(rank: int, size: int, folder: Path) -> None:
    """Loses the device of rank 1, whose launch fails: the others are told at once."""
    fake_cuda.start()
    (call,) = _read(folder)
    x = call.inputs(size, seed=0)[rank]
    ring = _join(rank, size, folder, timeout_s=600)
    _wait(_start(ring, call, x))
    if rank == VICTIM:
        fake().fake_lose(0)
        error = error_of(lambda: _start(ring, call, x))
    else:
        error = error_of(lambda: _wait(_start(ring, call, x)))
    tell(rank, folder, first=error)
    ring.close()


def graph_on_devices(rank: int, size: int, folder: Path) -> None:
    """Captures a ring on two devices in a graph: one stream waits for an event of the other."""
    fake_cuda.start()
    (call,) = _read(folder)
    devices = [0, 1, 0]
    inputs = call.inputs(len(devices), seed=0)
    tensors = [x.clone() for x in inputs]
    moved = [on_device(x, device) for x, device in zip(tensors, devices)]
    here, there = (torch.Stream(device=f"cuda:{device}") for device in range(2))
    recorded = Graph()
    names = [f"cuda:{device}" for device in devices]
    with local.Ring(names) as ring, current(here), current(there):
        with recorded.capture():
            there.wait_event(here.record_event())
            way = {"algorithm": call.algorithm, "protocol": call.protocol}
            ring.all_reduce(moved, OPS[call.op], **way)
            here.wait_event(there.record_event())
        expected = call.expected(inputs)
        for _ in range(3):
            recorded.replay()
            here.synchronize()
            assert all(torch.equal(x, expected) for x in tensors)
            expected = call.expected([expected] * len(devices))


def first_message_in_a_graph(rank: int, size: int, folder: Path) -> None:
    """Checks that a first message is refused in a graph; the link to the other rank can be made
    later.
    """
    fake_cuda.start()
    _init(rank, size, folder)
    x = torch.full((10,), float(rank))
    given, stream = on_device(x), torch.Stream(device="cuda:0")
    with current(stream):
        with Graph().capture(), pytest.raises(CommUsageError, match="make one call before"):
            _to_or_from(rank, given)
        _wait(_to_or_from(rank, given))
    assert x.tolist() == [0.0] * 10
    dist.destroy_process_group()


def _group(
    rank: int, size: int, folder: Path, timeout_s: float = 50, processors: int = 132
) -> None:
    """Joins the group.

    ``queues`` in the folder: the number of hardware queues of the device; ``choice``:
    ``RINGKERN_CUDA_MEMORY``.
    """
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = (folder / "queues").read_text()
    if (folder / "choice").exists():
        _C.use_cuda_memory((folder / "choice").read_text())
    fake_cuda.start(processors)
    _init(rank, size, folder, timeout_s=timeout_s)


def _connect(size: int) -> None:
    """Makes the links between all ranks, like the first exchange."""
    dist.all_to_all_single(on_device(torch.zeros(size)), on_device(torch.zeros(size)))
    dist.barrier()


def _message(source: int, to: int, number: int, n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.int32) + 1000 * (source + 10 * to + 100 * number)


Post = tuple[Callable[..., Any], torch.Tensor, int, int]


class Exchange:
    """Messages of different sizes, to and from each other rank, posted by isend() and irecv().

    Args:
        strided: the tensors received are not contiguous.
    """

    SIZES = (10, 30_000, 1, 400_000)  # LL and Simple; the last is larger than the FIFO

    def __init__(self, rank: int, size: int, strided: bool = False) -> None:
        self.rank = rank
        self.peers = [peer for peer in range(size) if peer != rank]
        self.strided = strided
        self.received: list[tuple[torch.Tensor, torch.Tensor]] = []

    def send(self, peer: int, number: int) -> Post:
        x = _message(self.rank, peer, number, self.SIZES[number])
        return dist.isend, on_device(x), peer, number

    def receive(self, peer: int, number: int) -> Post:
        x = _message(peer, self.rank, number, self.SIZES[number])
        memory = torch.zeros(x.numel(), 2 if self.strided else 1, dtype=x.dtype)
        self.received.append((memory[:, 0], x))
        return dist.irecv, on_device(memory)[:, 0], peer, number

    def both(self, numbers: Iterable[int], peers: list[int] | None = None) -> list[Post]:
        """Returns the receives of these messages from the peers and the sends; None: all."""
        pairs = [(peer, number) for number in numbers for peer in peers or self.peers]
        return [self.receive(*pair) for pair in pairs] + [self.send(*pair) for pair in pairs]

    def batch(self, number: int) -> list[dist.Work]:
        """Posts one message in each direction as a batch, in an order of the rank's own."""
        posts = self.both([number])
        random.Random(10 * number + self.rank).shuffle(posts)
        return dist.batch_isend_irecv([dist.P2POp(*post[:3]) for post in posts])

    @staticmethod
    def post(posts: Iterable[Post]) -> list[dist.Work]:
        return [post(x, peer, tag=tag) for post, x, peer, tag in posts]

    def finish(self, works: Iterable[dist.Work]) -> None:
        """Waits, and checks the received tensors."""
        for work in works:
            _wait(work)
        self.check()

    def check(self) -> None:
        assert all(torch.equal(x, expected) for x, expected in self.received)


def messages(rank: int, size: int, folder: Path) -> None:
    """Posts messages in the order given by ``order`` in the folder, each by a call of its own."""
    _group(rank, size, folder)
    order = (folder / "order").read_text()
    exchange = Exchange(rank, size, strided=order == "strided")
    if order != "alternating":  # that one has its links made in between
        _connect(size)
    posts = exchange.both(range(len(Exchange.SIZES)))
    if order == "alternating" and rank == 0:  # sends first, and the others receive first
        posts = posts[len(posts) // 2 :] + posts[: len(posts) // 2]
    exchange.finish(exchange.post(posts))
    dist.destroy_process_group()


def batches(rank: int, size: int, folder: Path) -> None:
    """Posts several batches in a row; each rank posts in an order of its own."""
    _group(rank, size, folder)
    _connect(size)
    launches = fake().fake_message_launches()
    exchange = Exchange(rank, size)
    works = [work for number in range(len(Exchange.SIZES)) for work in exchange.batch(number)]
    assert fake().fake_message_launches() == launches + len(Exchange.SIZES)
    exchange.finish(works)
    dist.destroy_process_group()


def exchanges(rank: int, size: int, folder: Path) -> None:
    """Makes all-to-alls with parts of ``bytes`` in the folder, a gather and a scatter, before any
    wait.
    """
    _group(rank, size, folder)
    _connect(size)
    launches = fake().fake_message_launches()
    n = int((folder / "bytes").read_text()) // 4
    works, results = [], []
    for number in range(1 if n > 1 << 20 else 2):  # large parts take seconds
        given = torch.cat([_message(rank, to, number, n) for to in range(size)])
        out = torch.zeros_like(given)
        expected = torch.cat([_message(source, rank, number, n) for source in range(size)])
        results.append((out, expected))
        works.append(dist.all_to_all_single(on_device(out), on_device(given), async_op=True))
    root, n = size - 1, min(n, 1 << 18)
    given, outs = (
        _message(rank, root, 2, n),
        [torch.zeros(n, dtype=torch.int32) for _ in range(size)],
    )
    to = [on_device(out) for out in outs] if rank == root else None
    works.append(dist.gather(on_device(given), to, dst=root, async_op=True))
    if rank == root:
        results += [(out, _message(source, root, 2, n)) for source, out in enumerate(outs)]
    given = torch.zeros(n, dtype=torch.int32)
    parts = [on_device(_message(root, i, 3, n)) for i in range(size)] if rank == root else None
    works.append(dist.scatter(on_device(given), parts, src=root, async_op=True))
    results.append((given, _message(root, rank, 3, n)))
    assert fake().fake_message_launches() == launches + len(works)
    dist.barrier()  # it waits for the devices, too
    for x, expected in results:
        assert same(x, expected)
    for work in works:
        _wait(work)
    dist.destroy_process_group()


def batches_without_room(rank: int, size: int, folder: Path) -> None:
    """Runs batches whose blocks are not all resident at once, one after the other."""
    _group(rank, size, folder, processors=FEW)
    for number in range(len(Exchange.SIZES)):
        exchange = Exchange(rank, size)
        exchange.finish(exchange.batch(number))
        dist.barrier()
    dist.destroy_process_group()


def messages_before_collectives(rank: int, size: int, folder: Path) -> None:
    """Enqueues on rank 0 an all-reduce and further work as soon as its messages are posted."""
    _group(rank, size, folder)
    _connect(size)
    total, copy = torch.zeros(1000), torch.zeros(1000)
    for _ in range(5):
        exchange = Exchange(rank, size)
        post_of = exchange.send if rank == 0 else exchange.receive
        works = exchange.post(post_of(1 - rank, number) for number in range(len(Exchange.SIZES)))
        if rank == 1:
            for work in works:
                work.wait()
        total.fill_(1)
        work = dist.all_reduce(on_device(total), async_op=True)
        assert work is not None
        work.wait()
        on_device(copy).copy_(on_device(total))
        _wait(work)
        exchange.finish(works)
        dist.barrier()
        assert copy.tolist() == [2.0] * 1000
    dist.destroy_process_group()


def killed_in_messages(rank: int, size: int, folder: Path) -> None:
    """Kills rank 1 while messages from it are under way and wait; those of others continue."""
    _group(rank, size, folder)
    _connect(size)
    exchange = Exchange(rank, size)
    if rank == VICTIM:
        for other in (0, 2):
            wait_for(folder / f"called{other}")
        os.kill(os.getpid(), signal.SIGKILL)
    lost = exchange.post(exchange.receive(VICTIM, number) for number in range(3))
    exchange.received.clear()
    works = exchange.post(exchange.both(range(3), [2 - rank]))
    leave_note(folder / f"called{rank}", "")
    exchange.finish(works)
    said = {str(i): error_of(functools.partial(_wait, work)) for i, work in enumerate(lost)}
    tell(rank, folder, **said)


def unfinished_messages(rank: int, size: int, folder: Path) -> None:
    """Ends or aborts the group while messages wait whose other end is never posted."""
    _group(rank, size, folder, timeout_s=600)
    _connect(size)
    exchange = Exchange(rank, size)
    works = exchange.post(exchange.receive(1 - rank, number) for number in range(3))
    if (folder / "aborts").exists():
        dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda")).abort()
    else:
        dist.destroy_process_group()
    kinds = [_outcome(work) for work in works]
    assert "no error" not in kinds, kinds


def graph_of_messages(rank: int, size: int, folder: Path) -> None:
    """Replays a graph of messages in each direction, after other messages that are under way when
    it is made.
    """
    _group(rank, size, folder)
    stream = torch.Stream(device="cuda:0")
    recorded = Graph()
    peer = 1 - rank
    given, result = torch.zeros(300, dtype=torch.int32), torch.zeros(300, dtype=torch.int32)
    with current(stream):
        _connect(size)
        exchange = Exchange(rank, size)
        works = exchange.post(exchange.both(range(3)))
        with recorded.capture():
            captured = []
            for i in range(3):
                part = slice(100 * i, 100 * (i + 1))
                captured.append(dist.isend(on_device(given[part]), peer))
                captured.append(dist.irecv(on_device(result[part]), peer))
            for work in captured:
                assert work is not None
                work.wait()
        exchange.finish(works)
        for number in range(3):
            given.copy_(_message(rank, peer, number, 300))
            recorded.replay()
            stream.synchronize()
            assert same(result, _message(peer, rank, number, 300))
            out, ones = torch.zeros(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
            for work in dist.irecv(on_device(out), peer), dist.isend(on_device(ones), peer):
                _wait(work)
            assert out.tolist() == [1, 1]
            dist.barrier()  # no rank sends while another may still replay
    dist.destroy_process_group()


def messages_in_callbacks(rank: int, size: int, folder: Path) -> None:
    """Posts a message whose callback posts the next one and waits for it."""
    _group(rank, size, folder)
    _connect(size)  # a link made later may come too late: a queue may be blocked by then
    done: queue.Queue[bool] = queue.Queue()

    def go_on(number: int) -> None:
        exchange = Exchange(rank, size)
        works = exchange.post(exchange.both([number]))
        if number < 3:
            works[0].get_future().add_done_callback(lambda _: go_on(number + 1))
        exchange.finish(works)
        if number == 3:
            done.put(True)

    go_on(0)
    assert done.get(timeout=30)
    dist.destroy_process_group()


def apart(rank: int, size: int, folder: Path) -> None:
    """Runs a ring of this process: devices 0 and 2 share host memory, and LL128 lines tear on one
    link.
    """
    fake().fake_set_devices(4)
    fake().fake_set_apart(0, 2)
    fake().fake_set_apart(2, 0)
    fake().fake_set_pcie(2, 3)
    fake_cuda.start(processors=FEW)
    tensors = [torch.full((1000,), rank + 1.0) for rank in range(4)]
    with local.Ring([f"cuda:{device}" for device in range(4)]) as ring:
        moved = [on_device(x, device) for device, x in enumerate(tensors)]
        with pytest.raises(CommUsageError, match="protocol ll128 needs links over which"):
            ring.all_reduce(moved, protocol="ll128")
        with pytest.raises(CommUsageError, match="have only host memory in common"):
            ring.all_reduce(moved, algorithm="two_shot", protocol="simple")
        ring.all_reduce(moved)
        ring.all_reduce(moved, algorithm="one_shot")
    assert all(torch.equal(x, torch.full((1000,), 40.0)) for x in tensors)


def set_memory(
    folder: Path, apart: Sequence[tuple[int, int]] = (), by_ipc: Sequence[int] = ()
) -> None:
    """Sets the memory that ranks share, each on the device of its number.

    Args:
        apart: pairs of ranks, the first of which cannot open the other's memory.
        by_ipc: ranks whose devices have no file descriptors for their memory.
    """
    (folder / "memory").write_text(json.dumps([apart, by_ipc]))


def _take_memory(rank: int, folder: Path) -> tuple[list[tuple[int, int]], list[int]]:
    apart, by_ipc = json.loads((folder / "memory").read_text())
    for opener, owner in apart:
        if opener == rank:
            fake().fake_set_apart(rank, owner)
    fake().fake_set_descriptors(rank not in by_ipc)
    return apart, by_ipc


def on_host(rank: int, size: int, folder: Path) -> None:
    """Runs ranks some of which share host memory and no device memory."""
    pairs, by_ipc = _take_memory(rank, folder)
    fake().fake_set_devices(size)
    fake_cuda.start(processors=FEW)
    channels = FEW * 2
    with _join(rank, size, folder) as ring:
        for seed, call in enumerate(_read(folder)):
            inputs = call.inputs(size, seed)
            x = inputs[rank].clone()
            _wait(_start(ring, call, x, device=rank))
            assert same(x, call.expected(inputs, channels)), call
        partners = {other for pair in pairs if rank in pair for other in pair if other != rank}
        shared = len(partners)
        assert fake().fake_registered() == (shared + 1 if shared else 0)
        explained = ring.explain(1000, device="cuda")
        assert len(explained.host_memory) == shared == str(explained).count("by host")
        kinds = {other in by_ipc for other in range(size) if other not in {rank, *partners}}
        named = {False: "file descriptor", True: "CUDA IPC"}
        assert explained.opened_by == " and ".join(named[kind] for kind in sorted(kinds))
        assert all(f"rank {rank} and rank" in why for why in explained.host_memory)
        given = on_device(torch.ones(10), rank)
        if pairs:
            with pytest.raises(CommUsageError, match="have only host memory in common"):
                ring.all_reduce(given, algorithm="two_shot", protocol="simple")
            with pytest.raises(CommUsageError, match="protocol ll128 needs links over which"):
                ring.all_reduce(given, protocol="ll128")
        _wait(_start(ring, Call("auto", "auto", "float32", 1000), torch.ones(1000), device=rank))
    assert fake().fake_registered() == 0


def messages_on_host(rank: int, size: int, folder: Path) -> None:
    """Sends messages that fill a link several times, between two ranks."""
    _take_memory(rank, folder)
    fake_cuda.start(processors=FEW)
    _init(rank, size, folder)
    for n in (10, 1_000_000):
        x = torch.full((n,), float(rank))
        _wait(_to_or_from(rank, on_device(x, rank)))
        assert torch.equal(x, torch.zeros(n))
    dist.destroy_process_group()


def no_memory_in_common(rank: int, size: int, folder: Path) -> None:
    """Runs two ranks of which one can neither open device memory nor register host memory."""
    _take_memory(rank, folder)
    fake().fake_set_registers(rank)
    fake_cuda.start(processors=FEW)
    with _join(rank, size, folder) as ring:
        tell(
            rank,
            folder,
            first=error_of(lambda: ring.all_reduce(on_device(torch.ones(10), rank))),
        )


def torn(rank: int, size: int, folder: Path) -> None:
    """Runs two ranks between whose devices LL128 lines tear."""
    fake().fake_set_pcie(rank, 1 - rank)
    fake_cuda.start(processors=FEW)
    with (
        _join(rank, size, folder) as ring,
        pytest.raises(CommUsageError, match="protocol ll128 needs links over which"),
    ):
        ring.all_reduce(on_device(torch.ones(10), rank), protocol="ll128")


def ordered(rank: int, size: int, folder: Path) -> None:
    """Uses devices for which rank 0 finds another order than 0, 1, 2."""
    asked = []

    def orders(buses: list[str], channels: int) -> list[list[int]]:
        asked.append(buses)
        return [[0, 2, 1]]

    ring_order.orders = orders
    fake().fake_set_devices(size)
    fake_cuda.start(processors=FEW)
    call = Call("ring", "simple", "float32", 1000)
    with _join(rank, size, folder) as ring:
        x = torch.full((call.n,), rank + 1.0)
        _wait(_start(ring, call, x, device=rank))
    _init(rank, size, folder)
    y = torch.full((call.n,), rank + 1.0)
    _wait(dist.all_reduce(on_device(y, rank), async_op=True))
    dist.destroy_process_group()
    assert torch.equal(x, torch.full((call.n,), 6.0))
    assert torch.equal(x, y)
    buses = [f"0000:0{device}:00.0" for device in range(size)]
    assert asked == ([buses, buses] if rank == 0 else [])


def small(rank: int, size: int, folder: Path) -> None:
    """Uses devices that cannot hold the default channels of a ring.

    ``seats`` in the folder: for each rank its device and the multiprocessors of that; ``channels``:
    the channels that the ring gets all the same, 0 where there is no room for one each.
    """
    device, processors = json.loads((folder / "seats").read_text())[rank]
    channels = json.loads((folder / "channels").read_text())
    fake_cuda.start(processors)
    with _join(rank, size, folder) as ring:
        for seed, call in enumerate(_read(folder)):
            inputs = call.inputs(size, seed)
            x = inputs[rank].clone()
            if channels == 0:
                with pytest.raises(CommUsageError, match=f"0{device}:00.0 holds 2 .* rank 0 1 2"):
                    _start(ring, call, x, device=device)
                break
            _wait(_start(ring, call, x, device=device))
            assert same(x, call.expected(inputs, channels)), call


def killed(rank: int, size: int, folder: Path) -> None:
    """Kills rank 1 while the others wait for it in a call on their devices; these go on."""
    _take_memory(rank, folder)
    fake_cuda.start()
    (call,) = _read(folder)
    communicator = _join(rank, size, folder)
    x = torch.ones(call.n)
    _wait(_start(communicator, call, x))
    assert torch.equal(x, torch.full((call.n,), float(size)))
    if rank != VICTIM:
        work = _start(communicator, call, x)
        leave_note(folder / f"called{rank}", "")
        tell(rank, folder, first=error_of(lambda: _wait(work)))
        new = communicator.shrink()
        x.fill_(2.0**rank)
        for _ in range(3):
            _wait(_start(new, call, x))
        assert torch.equal(x, torch.full((call.n,), float((size - 1) ** 2 * (2**0 + 2**2))))
        return new.close()
    for other in range(size):
        if other != VICTIM:
            wait_for(folder / f"called{other}")
    time.sleep(0.2)  # their kernels are under way
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(globals())
