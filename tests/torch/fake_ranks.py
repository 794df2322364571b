"""Ranks whose tensors lie on fake CUDA devices, for test_fake_ranks.py; run by tests.comm.exits."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import ringkern
from ringkern import _C, local
from tests import reference
from tests.comm.exits import serve
from tests.faults.fates import error_of, tell
from tests.faults.lives import leave_note, wait_for
from tests.torch.fake_cuda import fake, on_device
from tests.torch.rings import any_bits, normal, same
from tests.torch.sequences import OPS

VICTIM = 1
TOLD_S = 10.0  # a watch looks several times a second
WORKERS = 352  # threads of a block that a plan on CUDA is made for


@dataclass(frozen=True)
class Call:
    """An all-reduce. ``bits``: of any bits, and else of plain numbers."""

    algorithm: str
    protocol: str
    dtype: str
    n: int
    op: str = "sum"
    bits: bool = False

    def inputs(self, size: int, seed: int) -> list[torch.Tensor]:
        make = any_bits if self.bits else normal
        return [make(reference.DTYPES[self.dtype], (self.n,), r, seed) for r in range(size)]

    def expected(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Returns what the CPU engine's arithmetic gives in the order of the device."""
        if self.algorithm != "ring":
            return reference.direct_all_reduce(inputs, self.op)
        cut = cut_of(self.protocol, len(inputs), self.n, self.dtype)
        return reference.ring_all_reduce(inputs, self.op, self.protocol, **cut)


def cut_of(protocol: str, ranks: int, n: int, dtype: str) -> dict[str, int]:
    """Returns how a device cuts an all-reduce round the ring, for a Plan."""
    d = _C.describe("cuda", "all_reduce", "ring", protocol, ranks, n, dtype)
    assert d
    channels, slots = d["channels"], d["slots"]
    slot_bytes = d["staging_bytes"] // (channels * slots)
    cut = {"workers": WORKERS, "channels": channels, "slots": slots, "slot_bytes": slot_bytes}
    element = reference.DTYPES[dtype].itemsize
    assert _C.Plan("all_reduce", protocol, ranks, n, element, **cut).loops == d["rounds"]
    return cut


def write(folder: Path, calls: list[Call]) -> None:
    (folder / "plan").write_text(json.dumps([asdict(call) for call in calls]))


def _read(folder: Path) -> list[Call]:
    return [Call(**call) for call in json.loads((folder / "plan").read_text())]


def _join(rank: int, size: int, folder: Path) -> ringkern.Communicator:
    fake().fake_start()
    store = dist.FileStore(f"{folder}/store", size)
    return ringkern.Communicator.from_store(store, rank, size, timeout=timedelta(seconds=50))


def _start(communicator: ringkern.Communicator, call: Call, x: torch.Tensor) -> dist.Work:
    """Enqueues it on the device."""
    work = communicator.all_reduce(
        on_device(x), OPS[call.op], algorithm=call.algorithm, protocol=call.protocol, async_op=True
    )
    assert work is not None
    return work


def _wait(work: dist.Work) -> None:
    while not work.is_completed():
        time.sleep(0.001)
    work.wait()


def _last_completed() -> int:
    """Returns the number of the last call that is known to have ended on the device."""
    (status,) = ringkern.dump()["pg_status"].values()
    last: int = status["last_completed_collective"]
    return last


def calls(rank: int, size: int, folder: Path) -> None:
    """Makes all calls of the plan before it looks at one."""
    plan = _read(folder)
    with _join(rank, size, folder) as communicator:
        inputs = [call.inputs(size, seed) for seed, call in enumerate(plan)]
        results = [x[rank].clone() for x in inputs]
        works = [_start(communicator, call, x) for call, x in zip(plan, results)]
        for call, work, x, given in zip(plan, works, results, inputs):
            _wait(work)
            assert same(x, call.expected(given)), call
        end = time.monotonic() + TOLD_S
        while _last_completed() != len(plan):  # as kernels tell the watch
            assert time.monotonic() < end, _last_completed()
            time.sleep(0.01)


def local_ring(rank: int, size: int, folder: Path) -> None:
    """A ring of this process alone; ``devices`` in the folder has the device of each rank."""
    devices: list[int] = json.loads((folder / "devices").read_text())
    fake().fake_start()
    plan = _read(folder)
    inputs = [call.inputs(len(devices), seed) for seed, call in enumerate(plan)]
    results = [[x.clone() for x in given] for given in inputs]
    with local.Ring([f"cuda:{device}" for device in devices]) as ring:
        for call, tensors in zip(plan, results):
            moved = [on_device(x, device) for x, device in zip(tensors, devices)]
            ring.all_reduce(moved, OPS[call.op], protocol=call.protocol, algorithm=call.algorithm)
    for call, tensors, given in zip(plan, results, inputs):  # the ring has waited for its launches
        assert all(same(x, call.expected(given)) for x in tensors), call


def killed(rank: int, size: int, folder: Path) -> None:
    """Rank 1 is killed while the others wait for it in a call on their devices."""
    (call,) = _read(folder)
    communicator = _join(rank, size, folder)
    x = torch.ones(call.n)
    _wait(_start(communicator, call, x))
    assert torch.equal(x, torch.full((call.n,), float(size)))
    if rank != VICTIM:
        work = _start(communicator, call, x)
        leave_note(folder / f"called{rank}", "")
        tell(rank, folder, first=error_of(lambda: _wait(work)))
        return communicator.close()
    for other in range(size):
        if other != VICTIM:
            wait_for(folder / f"called{other}")
    time.sleep(0.2)  # their kernels are under way
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(globals())
