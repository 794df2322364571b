"""Processes that stand in for ranks: started once, used for many calls, never left behind."""

from __future__ import annotations

import contextlib
import importlib
import mmap
import multiprocessing as mp
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.forkserver import _forkserver  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    import pytest

START_TIMEOUT_S = 120.0


class RankError(AssertionError):
    """An exception of a rank, with its traceback there."""

    def __init__(self, rank: int, kind: str, text: str, trace: str) -> None:
        super().__init__(f"rank {rank} raised {kind}: {text}\n{trace}")
        self.rank, self.kind, self.text = rank, kind, text


class RankTimeout(AssertionError):
    """An error about ranks that did not answer in time; they have been killed."""


@dataclass(frozen=True)
class Named:
    """A placement of ranks for `Ranks`: hosts that differ only by name, on the machine's own
    network.
    """

    names: str  # a letter for each rank's host

    def __call__(self, rank: int) -> None:
        name = os.environ["RINGKERN_HOST"] = self.names[rank]
        # it has read the variable already
        if (read := sys.modules.get("ringkern.config")) is not None:
            object.__setattr__(read.config, "host", name)


# Placements by number of ranks on several hosts: 1 + 1, 1 + 2, 3 x 1 and 2 x 2.
SPREAD = {2: ("ab",), 3: ("abb", "abc"), 4: ("aabb",)}


def places(*sizes: int) -> list[str]:
    """Returns the placements of this many ranks, on one host and on several: a letter for each
    rank's host.
    """
    return [hosts for size in sizes for hosts in ("a" * size, *SPREAD.get(size, ()))]


def roots(*sizes: int) -> list[tuple[str, int]]:
    """Returns each of the `places` with each rank of it as the root."""
    return [(hosts, root) for hosts in places(*sizes) for root in range(len(hosts))]


def grid(*sizes: int) -> pytest.MarkDecorator:
    """Runs a test in each of the `places`, which it receives as ``hosts``."""
    import pytest  # bench/gpu runs where pytest is missing

    return pytest.mark.parametrize("hosts", places(*sizes))


class Ranks:
    """``size`` processes in one group, in which ``fn(rank, size, *args)`` can be run.

    ``fn`` is a function of a module, so that the ranks can import it. If a rank raises or does not
    answer in time, all are killed, and the next call starts fresh ones: forks of a process that has
    imported torch, because the import takes longer than most tests.

    ``place(rank)``, which can be pickled, is called first in a rank's process. It returns the
    ``init_method`` for torch, or None. On one host None means a TCPStore of this process, because
    each group reads all of a FileStore again (60 ms after 120 groups, and 20). On several hosts it
    means a file, because each group clones the store there, and every 25th connection to a TCPStore
    takes torch 2.13 five seconds (measured on one machine).
    """

    def __init__(
        self,
        size: int,
        timeout_s: float = 60.0,
        backend: str = "gloo",
        place: Callable[[int], str | None] | None = None,
    ) -> None:
        self.size, self.timeout_s, self.backend = size, timeout_s, backend
        self.place = place
        self._processes: list[mp.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        self._store: dist.TCPStore | None = None  # where ranks of one host meet
        self._file = ""  # where ranks of several hosts meet

    def run(self, fn: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> list[Any]:
        """Returns the results of all ranks. Raises the first rank's error as RankError.

        After an error the ranks are killed: the others wait in vain, and a barrier that one of them
        missed would match the next test's.
        """
        results = self.outcomes(fn, *args, timeout_s=timeout_s)
        for result in results:
            if isinstance(result, RankError):
                self.kill()
                raise result
        return results

    def outcomes(
        self, fn: Callable[..., Any], *args: Any, timeout_s: float | None = None
    ) -> list[Any]:
        """Returns results like :meth:`run`, with a RankError for each rank that raised.

        The ranks are kept: call this only if they are still in step afterwards.
        """
        results: list[Any] = []
        try:
            if not self._processes:
                self._start()
            self._signal(signal.SIGCONT)
            for pipe in self._pipes:
                pipe.send((fn, args))
            for rank in range(self.size):
                limit = self.timeout_s if timeout_s is None else timeout_s
                results.append(self._receive(rank, limit))
            return results
        except RankTimeout as timeout:
            # The late rank may wait for one that has raised; show that one as the cause.
            raised = [r for r in results + self._waiting() if isinstance(r, RankError)]
            self.kill()
            raise RankTimeout("\n".join(map(str, [timeout, *raised]))) from None
        except (EOFError, OSError):
            self.kill()
            raise

    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    def rest(self) -> None:
        """Stops the ranks until the next call: each group's Gloo wakes 100 times a second."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                if process.pid is not None and process.is_alive():
                    os.kill(process.pid, number)

    def close(self, patience_s: float = 15.0) -> None:
        """Ends the ranks as a program would; kills those that do not end, one after the other."""
        self._signal(signal.SIGCONT)
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(patience_s)
        self.kill()

    def kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []
        self._store = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file)

    def _start(self) -> None:
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed", "torch._dynamo", __name__])
        port = 0
        if self.place is None:
            self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            port = self._store.port
        with tempfile.NamedTemporaryFile(prefix="ringkern-test-") as file:
            self._file = file.name  # a unique name; the ranks create the file again
        output = [Connection(os.dup(fd), readable=False) for fd in (1, 2)]  # can be sent
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            where = (rank, self.size, port or self._file, self.backend, self.place)
            arguments = (theirs, dict(os.environ), output, *where)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        for each in output:
            each.close()
        for rank in range(self.size):
            self._receive(rank, START_TIMEOUT_S)

    def _receive(self, rank: int, timeout_s: float) -> Any:
        if not self._pipes[rank].poll(timeout_s):
            raise RankTimeout(f"rank {rank} of {self.size} did not answer within {timeout_s} s")
        return self._pipes[rank].recv()

    def _waiting(self) -> list[Any]:
        """Returns the answers of ranks that nobody has received yet."""
        try:
            return [pipe.recv() for pipe in self._pipes if pipe.poll(0)]
        except (EOFError, OSError):
            return []


def _serve(
    pipe: Connection,
    environment: dict[str, str],
    output: list[Connection],
    rank: int,
    size: int,
    meeting: int | str,
    backend: str,
    place: Callable[[int], str | None] | None,
) -> None:
    # The process that this one was forked from keeps the answers of an earlier test.
    os.environ.clear()
    os.environ.update(environment)
    for fd, opened in enumerate(output, start=1):
        os.dup2(opened.fileno(), fd)
        opened.close()
    # Forks have the same addresses: an address from another rank's memory would be valid here by
    # chance.
    apart = mmap.mmap(-1, (rank + 1) << 24)
    method = place(rank) if place is not None else None
    import torch
    import torch.distributed as dist
    from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

    # If pytest ends abruptly, it stops no rank. The fork server lives until every holder of this
    # descriptor has ended, and takes the ranks with it.
    os.close(_forkserver._forkserver_alive_fd)
    _prctl_pr_set_pdeathsig(signal.SIGKILL)
    torch.set_num_threads(1)
    dist.set_debug_level_from_env()
    if backend != "gloo":
        importlib.import_module(backend)  # registers the backend
    store = None
    if isinstance(meeting, int):
        store = dist.TCPStore("127.0.0.1", meeting, is_master=False)
    elif method is None:
        method = f"file://{meeting}"
    dist.init_process_group(
        backend,
        init_method=method,
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    pipe.send("ready")
    while (work := pipe.recv()) is not None:
        fn, args = work
        try:
            result = fn(rank, size, *args)
        except BaseException as error:  # the test decides what the error means
            result = _as_rank_error(rank, error)
        pipe.send(result)
    dist.destroy_process_group()
    apart.close()


def _as_rank_error(rank: int, error: BaseException) -> RankError:
    return RankError(rank, type(error).__name__, str(error), traceback.format_exc())


def _rebuild(rank: int, kind: str, text: str, message: str) -> RankError:
    error = RankError(rank, kind, text, "")
    error.args = (message,)
    return error


def _reduce(self: RankError) -> tuple[Any, ...]:
    return _rebuild, (self.rank, self.kind, self.text, self.args[0])


RankError.__reduce__ = _reduce  # type: ignore[method-assign]


Pool = Callable[[int | str], Ranks]  # see the fixture `ranks`
