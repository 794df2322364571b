"""Ranks that end in every way a process can, for test_processes.py.

``python -m tests.comm.exits`` (`scenarios_of` runs it, or another module with a `serve`) reads
lines "SCENARIO SIZE FOLDER". For each it forks SIZE ranks that run a function of that module and
then end like an interpreter. It answers with a line of JSON: each rank's exit status, negative for
a signal, and its standard error. It forks after the import of torch, which takes seconds, and
before any of torch runs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import CommAbortedError, PeerLostError

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
held: list[object] = []  # like a program's globals hold forgotten objects


def join(
    rank: int, size: int, folder: Path, backend: str = "gloo", name: str = "group", **kw: Any
) -> None:
    """Makes the default group over a file of the folder; ``kw``: for init_process_group()."""
    dist.init_process_group(
        backend, init_method=f"file://{folder}/{name}", rank=rank, world_size=size, **kw
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
        with contextlib.suppress(CommAbortedError, PeerLostError):
            communicator.all_reduce(torch.ones(10))

    if rank == 0:
        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.1)


def thread_waits_in_a_quick_call(rank: int, size: int, folder: Path) -> None:
    ringkern.comm._PATIENCE_AT_EXIT_S = 0.5
    join(rank, size, folder)
    reduce_in_group()

    def wait() -> None:
        with contextlib.suppress(CommAbortedError, PeerLostError):
            ringkern.ring_all_reduce(torch.ones(10))

    if rank == 0:
        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.1)


def interrupted(rank: int, size: int, folder: Path) -> None:
    """Ends by Ctrl-C a quick call in which rank 0 waits for rank 1, which is told later."""
    join(rank, size, folder)
    reduce_in_group()
    if rank == 0:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        time.sleep(0.5)
    text = ""
    try:
        ringkern.ring_all_reduce(torch.ones(10))
    except KeyboardInterrupt:
        sys.exit(5)
    except (CommAbortedError, PeerLostError) as error:
        text = str(error)
    assert "interrupted (KeyboardInterrupt)" in text


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
    """Ends a child like an interpreter, with a communicator of its parent."""
    communicator = own(rank, size, folder)
    work = communicator.all_reduce(torch.ones(10), async_op=True)
    assert work is not None
    work.wait()  # the communicator has a thread now; the child does not
    if (pid := os.fork()) == 0:
        try:
            communicator.all_reduce(torch.ones(10))
        except ringkern.errors.CommUsageError as error:
            sys.exit(7 if f"is used in process {os.getpid()}" in str(error) else 8)
        sys.exit(9)
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
    """Kills rank 1 while it reduces; the others get an error, at the latest by the timeout."""
    communicator = own(rank, size, folder, timeout_s=1.0)
    if rank == 1:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            communicator.all_reduce(torch.ones(300_000))
    except ringkern.errors.RingKernError as error:
        # In one write: another thread logs the same failure.
        sys.stderr.write(f"{type(error).__name__} {error}\n")


REPORT = re.compile(r"communicator '[^']*': ")

# ---- running them -------------------------------------------------------------------------------


def start(scenario: Callable[..., None], rank: int, size: int, folder: Path) -> int:
    """Returns the pid of a new rank."""
    if (pid := os.fork()) != 0:
        return pid
    errors = os.open(folder / f"stderr{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    torch.set_num_threads(1)
    scenario(rank, size, folder)
    sys.exit()


def run(scenario: Callable[..., None], size: int, folder: Path) -> list[dict[str, object]]:
    running = {start(scenario, rank, size, folder): rank for rank in range(size)}
    ranks: list[dict[str, object]] = [{} for _ in range(size)]
    end = time.monotonic() + LIMIT_S
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid != 0:
            ranks[running.pop(pid)]["status"] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() < end:
            time.sleep(0.02)
        else:
            for late in running:
                os.kill(late, signal.SIGKILL)
    for rank in range(size):
        lines = (folder / f"stderr{rank}").read_text().splitlines(keepends=True)
        # Prefixes of the library's own reports, to tell them from the rank's output.
        reports = [line for line in lines if REPORT.match(line)]
        (folder / f"reports{rank}").write_text("".join(reports))
        ranks[rank]["stderr"] = "".join(line for line in lines if line not in reports)
    return ranks


def serve(scenarios: dict[str, Any]) -> None:
    gc.freeze()  # without it, each rank's end takes 1 s to scan and copy torch's objects
    for line in sys.stdin:
        name, ranks, folder = line.rstrip("\n").split(" ", 2)
        print(json.dumps(run(scenarios[name], int(ranks), Path(folder))), flush=True)


@contextlib.contextmanager
def scenarios_of(
    *module: str, **environment: str
) -> Iterator[Callable[[str, int, Path], list[dict[str, Any]]]]:
    """Yields ``run(scenario, size, folder)``, which talks to a process that serves that module's
    scenarios.

    ``module``: its name, after that of a module that runs it, with its arguments; ``environment``:
    additional variables of the process.
    """
    with subprocess.Popen(
        # Newer Pythons warn of fork() in a process with threads, which is tested here.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", *module],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def run(name: str, size: int, folder: Path) -> list[dict[str, Any]]:
            requests.write(f"{name} {size} {folder}\n")
            requests.flush()
            assert select.select([answers], [], [], 2 * LIMIT_S)[0], f"{name} has not ended"
            outcome: list[dict[str, Any]] = json.loads(answers.readline())
            return outcome

        yield run
        requests.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    serve(globals())
