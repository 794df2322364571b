"""The rings that ``doctor`` tries: a test for each path of data between ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ... import _C, local, shared
from ...comm import Communicator

COUNT = 100_003  # elements: several loops of a ring, and no round number
WAIT_S = 15.0  # for a neighbour; a ring of such tensors takes milliseconds


class Test(NamedTuple):
    """A function that all ranks run, in a Gloo group: ``function(*args)``.

    It raises if the result is bad; it may return words that follow ``right on 2 ranks``.
    """

    name: str
    function: Callable[..., str | None]
    args: tuple[Any, ...] = ()


class WrongResult(Exception):
    """A test ended with a wrong result."""


# ---- the tests ----------------------------------------------------------------------------------


def between_processes() -> list[Test]:
    """Lists tests over shared memory: every way, tensors in place, the backend."""
    ways = [
        (algorithm, protocol)
        for algorithm in _C.algorithms
        for protocol in _C.protocols
        if _C.describe("cpu", "all_reduce", algorithm, protocol, 2, COUNT, "float32") is not None
    ]
    return [
        Test("store on localhost", store),
        *(Test(f"ranks: {way[0]}, {way[1]}", all_reduce, ("cpu", *way)) for way in ways),
        *(Test(f"ranks: scatter, gather, {p}", halves, ("cpu", p)) for p in _C.protocols),
        Test("ranks: shared tensors", shared_tensors),
        Test('backend "ringkern"', backend, ("cpu",)),
        Test("a message", message, ("cpu",)),
    ]


def in_one_process() -> list[Test]:
    """Lists tests whose ranks are threads."""
    return [Test(f"one process: {p}", in_process, (("cpu", "cpu"), p)) for p in _C.protocols]


def on_gpus(gpus: int, ranks: int) -> list[Test]:
    """Lists tests between processes and in one process: on one GPU, and across GPUs."""
    one = ["cuda:0"] * ranks
    found = [
        *(
            Test(f"processes, one GPU: {p}", all_reduce, ("cuda:0", "ring", p))
            for p in _C.protocols
        ),
        *(Test(f"one process, one GPU: {p}", in_process, (one, p)) for p in _C.protocols),
        Test('backend "ringkern", CUDA', backend, ("cuda:0",)),
    ]
    if gpus > 1:  # LL128 may be left out between GPUs: the chosen way counts
        some = [f"cuda:{rank % gpus}" for rank in range(ranks)]
        for protocol in ("auto", "simple", "ll"):
            args = ("cuda", "ring", protocol)
            found.append(Test(f"processes, across GPUs: {protocol}", all_reduce, args))
            found.append(
                Test(f"one process, across GPUs: {protocol}", in_process, (some, protocol))
            )
    return found


def _here(device: str) -> torch.device:
    """Returns the device; for ``"cuda"`` without a number, each rank's own."""
    if device == "cuda":
        device = f"cuda:{dist.get_rank() % torch.cuda.device_count()}"
    here = torch.device(device)
    if here.type == "cuda":
        torch.cuda.set_device(here)
    return here


def _given(rank: int, device: torch.device | str = "cpu", count: int = COUNT) -> torch.Tensor:
    """Returns small whole numbers: their sum is exact in any order."""
    return ((torch.arange(count) + 7 * rank) % 61).to(device, torch.float32)


def _sum(count: int = COUNT, ranks: int = 0) -> torch.Tensor:
    ranks = ranks or dist.get_world_size()
    return torch.stack([_given(rank, count=count) for rank in range(ranks)]).sum(0)


def _expect(actual: torch.Tensor, expected: torch.Tensor) -> None:
    wrong = int((actual.cpu() != expected).sum())
    if wrong:
        raise WrongResult(f"{wrong} of {expected.numel()} elements are wrong")


@contextlib.contextmanager
def _ring() -> Iterator[Communicator]:
    with Communicator(timeout=timedelta(seconds=WAIT_S)) as ring:
        yield ring


def all_reduce(device: str, algorithm: str, protocol: str) -> str:
    """Computes a sum by one way; returns how the ranks reach each other's memory on a GPU."""
    tensor = _given(dist.get_rank(), _here(device))
    with _ring() as ring:
        ring.all_reduce(tensor, algorithm=algorithm, protocol=protocol)
        _expect(tensor, _sum())
        if tensor.device.type == "cpu":
            return ""
        found = ring.explain(tensor.nbytes, device="cuda")
        return f", over {found.opened_by or 'host memory'}"


def halves(device: str, protocol: str) -> None:
    """Checks a reduce-scatter, and an all-gather of its result."""
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), _here(device)
    count = 1001
    whole, part = _given(rank, here, count * ranks), torch.empty(count, device=here)
    with _ring() as ring:
        ring.reduce_scatter(part, whole, protocol=protocol)
        _expect(part, _sum(count * ranks)[rank * count : (rank + 1) * count])
        whole.zero_()
        ring.all_gather(whole, part, protocol=protocol)
        _expect(whole, _sum(count * ranks))


def shared_tensors() -> None:
    """Checks a tensor that the other ranks reduce in place."""
    tensor = shared.empty(COUNT).copy_(_given(dist.get_rank()))
    if not shared.is_shared(tensor):
        raise WrongResult("ringkern.empty gave a tensor that is not shared")
    with _ring() as ring:
        ring.all_reduce(tensor)
        _expect(tensor, _sum())


def backend(device: str) -> None:
    """Checks collectives of torch.distributed."""
    tensor = _given(dist.get_rank(), _here(device))
    with _group() as group:
        dist.all_reduce(tensor, group=group)
        _expect(tensor, _sum())
        tensor.copy_(_given(dist.get_rank()))
        dist.broadcast(tensor, 0, group=group)
        _expect(tensor, _given(0))


def message(device: str) -> None:
    """Checks messages from each rank to the next."""
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), _here(device)
    if ranks == 1:
        return
    tensor = torch.empty(COUNT, device=here)
    with _group() as group:
        sent = dist.isend(_given(rank, here), (rank + 1) % ranks, group=group)
        dist.recv(tensor, (rank - 1) % ranks, group=group)
        if sent is not None:
            sent.wait()
        _expect(tensor, _given((rank - 1) % ranks))


@contextlib.contextmanager
def _group() -> Iterator[Any]:
    group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=WAIT_S))
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def in_process(devices: Sequence[str], protocol: str) -> None:
    """Checks ranks within each process; the processes do not communicate."""
    with local.Ring(devices, timedelta(seconds=WAIT_S)) as ring:
        tensors = [_given(rank, device) for rank, device in enumerate(devices)]
        ring.all_reduce(tensors, protocol=protocol)
        for tensor in tensors:
            _expect(tensor, _sum(ranks=len(devices)))


def store() -> None:
    """Checks a TCP store as in torchrun and env://, with rank 0 as its server."""
    first, limit = dist.get_rank() == 0, timedelta(seconds=WAIT_S)
    server = dist.TCPStore("localhost", 0, is_master=True, timeout=limit) if first else None
    port = [server.port if server else 0]
    dist.broadcast_object_list(port, 0)
    client = server or dist.TCPStore("localhost", port[0], timeout=limit)
    client.set(f"rank {dist.get_rank()}", "here")
    for rank in range(dist.get_world_size()):
        if client.get(f"rank {rank}") != b"here":
            raise WrongResult("the store has lost what a rank wrote")
    dist.barrier()  # the server lives until all have read
