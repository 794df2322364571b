"""Ranks that end in all the ways in which a process can, for test_processes.py.

``python -m tests.comm.exits SCENARIO SIZE FOLDER`` forks SIZE ranks, each of which runs a function of this
module and then goes the whole way of an interpreter that ends. Prints, as JSON, each rank's exit
status (as a shell has it: 128 + n for signal n) and standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import ringkern

LIMIT_S = 60.0
held: list[object] = []  # as a program's globals hold what it forgets


def join(rank: int, size: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size
    )


def reduce_in_group() -> None:
    x = torch.ones(1000)
    ringkern.ring_all_reduce(x)
    assert torch.equal(x, torch.full((1000,), float(dist.get_world_size())))


def own(rank: int, size: int, folder: Path, timeout_s: float = 30.0) -> ringkern.Communicator:
    communicator = ringkern.Communicator.from_store(
        dist.FileStore(f"{folder}/own", size), rank, size, timeout=timedelta(seconds=timeout_s)
    )
    communicator.all_reduce(torch.ones(10))
    held.append(communicator)
    return communicator


# ---- scenarios ----------------------------------------------------------------------------------


def group_is_left_open(rank: int, size: int, folder: Path) -> None:
    join(rank, size, folder)
    reduce_in_group()


def communicator_is_left_open(rank: int, size: int, folder: Path) -> None:
    own(rank, size, folder)


def call_is_not_waited_for(rank: int, size: int, folder: Path) -> None:
    join(rank, size, folder)
    for n in (10, 1_000_000):
        held.append(ringkern.ring_all_reduce(torch.ones(n), async_op=True))


def callback_is_not_waited_for(rank: int, size: int, folder: Path) -> None:
    communicator = own(rank, size, folder)
    work = communicator.all_reduce(torch.ones(1_000_000), async_op=True)
    assert work is not None
    held.append(work.get_future().then(lambda future: future.value()[0].sum()))


def neighbour_never_calls(rank: int, size: int, folder: Path) -> None:
    ringkern.comm._PATIENCE_AT_EXIT_S = 0.5
    communicator = own(rank, size, folder, timeout_s=600)
    if rank == 0:
        held.append(communicator.all_reduce(torch.ones(10), async_op=True))


def thread_waits(rank: int, size: int, folder: Path) -> None:
    ringkern.comm._PATIENCE_AT_EXIT_S = 0.5
    communicator = own(rank, size, folder, timeout_s=600)

    def wait() -> None:
        try:
            communicator.all_reduce(torch.ones(10))
        except ringkern.errors.CommAbortedError:
            pass

    if rank == 0:
        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.1)


def sys_exit(rank: int, size: int, folder: Path) -> None:
    group_is_left_open(rank, size, folder)
    sys.exit(3)


def exception(rank: int, size: int, folder: Path) -> None:
    group_is_left_open(rank, size, folder)
    raise LookupError("on purpose")


def os_exit(rank: int, size: int, folder: Path) -> None:
    group_is_left_open(rank, size, folder)
    held.append(ringkern.ring_all_reduce(torch.ones(1_000_000), async_op=True))
    os._exit(4)


def exception_inside_with(rank: int, size: int, folder: Path) -> None:
    with own(rank, size, folder, timeout_s=600) as communicator:
        if rank == 0:
            raise LookupError("on purpose")
        communicator.all_reduce(torch.ones(10))


def forked_child_exits(rank: int, size: int, folder: Path) -> None:
    """The child goes the whole way of an interpreter that ends, with a communicator not its own."""
    communicator = own(rank, size, folder)
    work = communicator.all_reduce(torch.ones(10), async_op=True)
    assert work is not None
    work.wait()  # the communicator has a thread now, which the child does not have
    if (pid := os.fork()) == 0:
        try:
            communicator.all_reduce(torch.ones(10))
        except ringkern.errors.CommUsageError as error:
            assert f"is used in process {os.getpid()}" in str(error)
            sys.exit(7)
        sys.exit(8)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    x = torch.ones(10)
    communicator.all_reduce(x)
    assert torch.equal(x, torch.full((10,), float(size)))


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


def data_loader(rank: int, size: int, folder: Path) -> None:
    join(rank, size, folder)
    reduce_in_group()
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2):
        expected = size * batch
        ringkern.ring_all_reduce(batch)
        assert torch.equal(batch, expected)
    reduce_in_group()
    dist.destroy_process_group()


def killed_midway(rank: int, size: int, folder: Path) -> None:
    """Rank 1 is killed while it reduces; the others are told, at the latest by the timeout."""
    communicator = own(rank, size, folder, timeout_s=1.0)
    if rank == 1:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            communicator.all_reduce(torch.ones(300_000))
    except ringkern.errors.RingKernError as error:
        print(type(error).__name__, error, file=sys.stderr)


# ---- running them -------------------------------------------------------------------------------


def start(scenario: str, rank: int, size: int, folder: Path) -> int:
    """The pid of a new rank."""
    if (pid := os.fork()) != 0:
        return pid
    errors = os.open(folder / f"stderr{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    torch.set_num_threads(1)
    globals()[scenario](rank, size, folder)
    sys.exit()


def main(scenario: str, size: int, folder: Path) -> None:
    pids = {start(scenario, rank, size, folder): rank for rank in range(size)}

    def too_late() -> None:
        for pid in list(pids):
            os.kill(pid, signal.SIGKILL)

    alarm = threading.Timer(LIMIT_S, too_late)
    alarm.daemon = True
    alarm.start()
    ranks: list[dict[str, object]] = [{} for _ in range(size)]
    while pids:
        pid, status = os.wait()
        rank = pids.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        ranks[rank]["status"] = code if code >= 0 else 128 - code
    alarm.cancel()
    for rank in range(size):
        ranks[rank]["stderr"] = (folder / f"stderr{rank}").read_text()
    print(json.dumps(ranks))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
