"""Faults of rank 1 of three while the others call, for test_ranks.py; run by tests.comm.exits.

Each surviving rank writes its error: ``said<rank>`` in the folder.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import ringkern
from ringkern.backend import Options
from ringkern.errors import RingKernError
from tests.comm.exits import join, own, reduce_in_group, serve
from tests.faults.lives import leave_note, reduces, wait_for
from tests.ranks import Named
from tests.torch import fake_cuda
from tests.torch.fake_cuda import on_device

NEVER_S = 600.0  # an event earlier than this was not caused by it
VICTIM = 1


def error_of(call: Callable[[], object]) -> dict[str, Any]:
    """Returns the error of the first of these calls that fails."""
    try:
        while True:
            call()
    except RingKernError as error:
        return {
            "kind": type(error).__name__,
            "rank": error.rank,
            "seq": error.seq,
            "phase": error.phase,
            "text": str(error),
            "fault": error.fault.to_dict() if error.fault else None,
        }


def tell(rank: int, folder: Path, **said: Any) -> None:
    (folder / f"said{rank}").write_text(json.dumps(said))


def go_on(rank: int, folder: Path, ranks: list[int]) -> None:
    """Continues in the surviving processes."""
    store = dist.FileStore(f"{folder}/again", len(ranks))
    communicator = ringkern.Communicator.from_store(
        store, ranks.index(rank), len(ranks), timeout=timedelta(seconds=30)
    )
    with communicator:
        reduces(communicator, len(ranks))


def witness(rank: int, folder: Path) -> None:
    """Makes a call that fails, one after it, and a ring of the survivors."""
    x = torch.ones(300_000)
    first = error_of(lambda: ringkern.ring_all_reduce(x))
    again = error_of(lambda: ringkern.ring_all_reduce(x))
    go_on(rank, folder, [0, 2])
    tell(rank, folder, first=first, again=again)


# ---- ranks that make different calls ------------------------------------------------------------


def differing(x: torch.Tensor, field: str, odd: bool) -> torch.Tensor:
    """Returns the tensor; on the odd rank, one that differs in the field."""
    if odd and field == "numel":
        return torch.ones(x.numel() + 1)
    return x.double() if odd and field == "dtype" else x


def odd_call(
    communicator: ringkern.Communicator, field: str, odd: bool, x: torch.Tensor | None = None
) -> Callable[..., Any]:
    """Returns a function that makes an all-reduce; on the odd rank, a call that differs in the
    field.
    """
    x = differing(torch.ones(100) if x is None else x, field, odd)
    if odd and field == "the collective":
        return lambda **how: communicator.all_gather(torch.ones(communicator.size * 100), x, **how)
    op = dist.ReduceOp.MAX if odd and field == "op" else dist.ReduceOp.SUM
    ways = {"protocol": "ll" if odd and field == "protocol" else "simple"}
    if field == "algorithm":
        ways = {"protocol": "ll", "algorithm": "one_shot" if odd else "ring"}
    if field == "accumulate":
        x = x.bfloat16()
        ways = {"algorithm": "one_shot", "accumulate": "float32" if odd else "dtype"}
    return lambda **how: communicator.all_reduce(x, op, **ways, **how)


# ---- a rank that ends ---------------------------------------------------------------------------


def killed(rank: int, size: int, folder: Path) -> None:
    join(rank, size, folder)
    reduce_in_group()
    if rank == VICTIM:
        leave_note(folder / "pid", str(os.getpid()))
    if rank == 0:
        pid = int(wait_for(folder / "pid"))
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    witness(rank, folder)


def _leaves(rank: int, size: int, folder: Path, leave: Callable[[], object]) -> None:
    join(rank, size, folder)
    for _ in range(3):
        reduce_in_group()
    if rank == VICTIM:
        leave()
    else:
        witness(rank, folder)


def sys_exit(rank: int, size: int, folder: Path) -> None:
    _leaves(rank, size, folder, lambda: sys.exit(0))


def exception(rank: int, size: int, folder: Path) -> None:
    def leave() -> None:
        raise LookupError("on purpose")

    _leaves(rank, size, folder, leave)


def os_exit(rank: int, size: int, folder: Path) -> None:
    if rank == VICTIM and (pid := os.fork()) != 0:
        # The exit status can be read until the parent has reaped the process.
        for witness_of_it in (0, 2):
            wait_for(folder / f"said{witness_of_it}")
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    _leaves(rank, size, folder, lambda: os._exit(3))


# ---- programs that never check a call ------------------------------------------------------------


def never_looks(rank: int, size: int, folder: Path) -> None:
    """Tests a victim by ``plan``: ``on_fault`` of the group, the victim's fate, and the device:
    ``cpu`` or ``cuda``.
    """
    on_fault, deed, device = (folder / "plan").read_text().split()
    goes_on = on_fault == "raise" or (on_fault, device) == ("default", "cpu")
    if device == "cuda":
        fake_cuda.start()
    options = Options(on_fault=None if on_fault == "default" else on_fault)
    timeout = timedelta(seconds=NEVER_S)
    join(rank, size, folder, "ringkern", timeout=timeout, pg_options=options)
    x = torch.ones(10) if device == "cpu" else on_device(torch.ones(10))
    dist.all_reduce(x)
    if deed == "closes":
        works = [dist.irecv(x, VICTIM)] if rank == 0 else []
        dist.destroy_process_group()
        time.sleep(1)
        assert len(works) == (rank == 0)
        return
    if rank == VICTIM:
        if deed != "message":
            time.sleep(0.3)  # all others are in their call
        if deed == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif deed == "message":
            dist.send(x[:5], 0)
        else:
            dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        time.sleep(3)
        os._exit(0)
    works = [dist.irecv(x, VICTIM)] if deed == "message" else [dist.all_reduce(x, async_op=True)]
    end = time.monotonic() + (2 if goes_on else 60)
    while time.monotonic() < end and not (deed == "message" and rank != 0):
        time.sleep(0.01)
    leave_note(folder / f"done{rank}", str(len(works)))
    os._exit(0)  # no rank waits for them


# ---- a rank that is stopped ---------------------------------------------------------------------


class Heard(logging.Handler):
    """Handler that records the library's log messages, with their times."""

    def __init__(self, level: int = logging.WARNING) -> None:
        super().__init__(level)
        self.texts: list[str] = []
        self.at: dict[str, float] = {}  # by kind, the first one
        logger = logging.getLogger("ringkern")
        logger.addHandler(self)
        logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        kind = "warning" if record.levelno == logging.WARNING else "failure"
        self.at.setdefault(kind, time.monotonic())
        self.texts.append(record.getMessage())


def continue_after(seconds: float, folder: Path) -> None:
    pid = int(wait_for(folder / "pid"))
    threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()


def stop_myself(folder: Path) -> None:
    leave_note(folder / "pid", str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


def stopped_for_a_while(rank: int, size: int, folder: Path) -> None:
    communicator = own(rank, size, folder, timeout_s=NEVER_S)
    heard = Heard()
    if rank == 0:
        continue_after(6.5, folder)
    if rank == VICTIM:
        stop_myself(folder)
    for call in range(3):
        reduces(communicator, size)
        if rank == 0 and call == 1:
            time.sleep(1)  # the victim is in its next call, and must not be reported as slow
    tell(rank, folder, warnings=heard.texts)


def stopped_for_too_long(rank: int, size: int, folder: Path) -> None:
    communicator = own(rank, size, folder, timeout_s=2)
    if rank == VICTIM:
        stop_myself(folder)
    first = error_of(lambda: communicator.all_reduce(torch.ones(1000)))
    again = error_of(lambda: communicator.all_reduce(torch.ones(1000)))
    if rank == 2:
        leave_note(folder / "rank 2 knows", "")
    if rank == 0:
        wait_for(folder / "rank 2 knows")
        continue_after(0, folder)
    communicator.close()
    go_on(rank, folder, [0, 1, 2])
    tell(rank, folder, first=first, again=again)


# ---- a rank that fails while the others are in backward() ---------------------------------------


def _ddp() -> torch.nn.Module:
    return DistributedDataParallel(torch.nn.Linear(64, 64))


def _ddp_with_a_hook() -> torch.nn.Module:
    """The hook is in C++ and uses the future there."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return model


def _fsdp1() -> torch.nn.Module:
    warnings.simplefilter("ignore")  # torch deprecates it
    return FullyShardedDataParallel(torch.nn.Linear(64, 64), device_id=torch.device("cpu"))


def _fsdp2() -> torch.nn.Module:
    return fully_shard(torch.nn.Linear(64, 64))


WRAPPERS = {"ddp": _ddp, "ddp_hook": _ddp_with_a_hook, "fsdp1": _fsdp1, "fsdp2": _fsdp2}
FAULTS: dict[str, Callable[[Path], object]] = {
    "killed": lambda folder: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": stop_myself,
    "mismatch": lambda folder: dist.all_reduce(torch.ones(7)),
}


def trains(rank: int, size: int, folder: Path) -> None:
    """The victim fails as planned after its third forward()."""
    wrapper, fault = (folder / "plan").read_text().split()
    join(rank, size, folder, "ringkern", timeout=timedelta(seconds=NEVER_S))
    model = WRAPPERS[wrapper]()
    step = 0

    def train() -> None:
        nonlocal step
        step += 1
        loss = model(torch.ones(4, 64)).sum()
        if step == 3:
            dist.barrier()
        if step == 3 and fault == "stopped":
            dist.group.WORLD.set_timeout(timedelta(seconds=2))
        if step == 3 and rank == VICTIM:
            loss.register_hook(lambda _: FAULTS[fault](folder) and None)
        loss.backward()

    first = error_of(train)
    if fault == "stopped":
        leave_note(folder / f"rank {rank} knows", "")
    if fault == "stopped" and rank == 0:
        wait_for(folder / "rank 2 knows")
        continue_after(0, folder)
    tell(rank, folder, first=first, steps=step)
    dist.destroy_process_group()


# ---- a rank that ends before its first call -----------------------------------------------------

MINUTE = timedelta(seconds=60)


def before_the_first_call(rank: int, size: int, folder: Path) -> None:
    """The victim fails as planned once all ranks have a group or a communicator."""
    api, deed, *names = (folder / "plan").read_text().split()
    for name in names:
        Named(name)(rank)
    call, leave = _made_by(api, rank, size, folder)
    leave_note(folder / f"made{rank}", str(os.getpid()))
    for other in range(size):
        wait_for(folder / f"made{other}")
    if rank == VICTIM and deed == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == VICTIM and deed == "exits":
        sys.exit(0)
    if rank == VICTIM and deed == "leaves":
        leave()
        for other in (0, 2):
            wait_for(folder / f"said{other}")
        return
    if deed == "late":
        time.sleep(3 if rank == VICTIM else 0)
        call()
        return leave()
    start = time.monotonic()
    first = error_of(call)
    took = time.monotonic() - start
    tell(rank, folder, first=first, again=error_of(call), took=took)
    leave()


def _made_by(
    api: str, rank: int, size: int, folder: Path, timeout: timedelta = MINUTE
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns functions that call, and that leave the group."""
    if api == "communicator":
        store = dist.FileStore(f"{folder}/own", size)
        communicator = ringkern.Communicator.from_store(store, rank, size, timeout=timeout)
        return lambda: communicator.all_reduce(torch.ones(10)), communicator.close
    init = f"file://{folder}/group"
    dist.init_process_group(
        "ringkern", init_method=init, rank=rank, world_size=size, timeout=timeout
    )
    return lambda: dist.all_reduce(torch.ones(10)), dist.destroy_process_group


def waits_twice(rank: int, size: int, folder: Path) -> None:
    """Waits for the victim's group, which comes late, and for its first call, which never comes."""
    for name in (folder / "plan").read_text().split():
        Named(name)(rank)
    Heard()  # records the wait
    if rank == VICTIM:
        time.sleep(6)
    start = time.monotonic()
    call, leave = _made_by("backend", rank, size, folder, timedelta(seconds=8))
    if rank == VICTIM:
        for other in (0, 2):
            wait_for(folder / f"said{other}")
    else:
        first = error_of(call)
        tell(rank, folder, first=first, took=time.monotonic() - start)
    leave()


if __name__ == "__main__":
    serve(globals())
