"""Processes in which the ranks of a suite run: kept from test to test, replaced when in doubt."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.conformance.rank import Outcome, serve

ENVIRON = {
    "CUDA_VISIBLE_DEVICES": "",  # with GPUs, but fewer than ranks, torch skips everything
    "MASTER_ADDR": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
}
START_TIMEOUT_S = 180.0
LAST_S = 5.0  # until a late rank ends itself: if this process could not
GRACE_S = 3.0  # for the other ranks to tell what they saw, once one has failed
LOG_LINES = 40

# multiprocessing looks at all of its processes when it starts one, and of two threads that look at
# the same one only the first learns how it ended.
_processes = threading.Lock()


class CannotStart(RuntimeError):
    """The ranks did not come up, whatever the test."""


class Rank(NamedTuple):
    process: BaseProcess
    pipe: Connection
    log: Path

    def kill(self) -> None:
        """Kills the process and all that it has started: its session."""
        assert self.process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # it may have had no time to open one


def prepare(modules: Sequence[str]) -> None:
    """Starts the process that ranks are forked from, which imports these modules for all of them.

    Once in a process, before the first pool. Not the backend: each rank makes its own.
    """
    forkserver.set_forkserver_preload(list(modules))
    with mock.patch.dict(os.environ, ENVIRON):
        forkserver.ensure_running()


class Pool:
    """``ranks`` processes with a suite loaded, in which its tests can be run one by one.

    Ranks that failed a test, or did not answer in time, are killed; the next test gets new ones.
    """

    def __init__(self, suite: str, backend: str, ranks: int, timeout_s: float) -> None:
        self.suite, self.backend, self.ranks, self.timeout_s = suite, backend, ranks, timeout_s
        self._pool: list[Rank] = []
        self._directory = Path(tempfile.mkdtemp(prefix="ringkern-conformance-"))
        self._tests = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def tests(self) -> dict[str, str]:
        """Returns the suite's names, each with the reason why it need not be tried, or none."""
        self.kill()
        return self._start()

    def run(self, test: str) -> Outcome:
        if not self._pool:
            self._start()
        self._tests += 1
        place = self._directory / str(self._tests)
        place.mkdir()
        for rank in self._pool:
            os.truncate(rank.log, 0)
            with contextlib.suppress(BrokenPipeError):  # it has died: no answer tells
                rank.pipe.send((test, place))
        start = time.monotonic()
        outcomes, late = self._collect(self.timeout_s)
        outcome = self._judge(outcomes, late, time.monotonic() - start)
        if outcome.status == "failed":
            self.kill()
        shutil.rmtree(place, ignore_errors=True)
        return outcome

    def interrupt(self) -> None:
        """Ends the test that another thread runs: that thread finds its ranks dead."""
        for rank in list(self._pool):
            rank.kill()

    def kill(self) -> None:
        for rank in self._pool:
            rank.kill()
        for rank in self._pool:
            with _processes:
                rank.process.join()
            rank.pipe.close()
        self._pool = []

    def _start(self) -> dict[str, str]:
        context = multiprocessing.get_context("forkserver")
        environ = {**os.environ, **ENVIRON, "TEMP_DIR": str(self._directory)}
        environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
        suite = {"suite": self.suite, "backend": self.backend, "ranks": self.ranks}
        for number in range(self.ranks):
            ours, theirs = context.Pipe()
            log = self._directory / f"rank-{number}.log"
            log.touch()
            process = context.Process(
                target=serve,
                args=(theirs, log, environ, self.timeout_s + LAST_S),
                kwargs={**suite, "rank": number},
            )
            with _processes:
                process.start()
            theirs.close()
            self._pool.append(Rank(process, ours, log))
        answers, late = self._collect(START_TIMEOUT_S)
        outcomes = {n: answer for n, answer in answers.items() if isinstance(answer, Outcome)}
        if outcomes or late:  # the others have told their tests
            outcome = self._judge(outcomes, late, START_TIMEOUT_S)
            self.kill()
            raise CannotStart(f"{self.backend}: {outcome.details}")
        tests: dict[str, str] = answers[0]
        return tests

    def _collect(self, timeout_s: float) -> tuple[dict[int, Any], list[int]]:
        """Returns the answer of each rank, and the late ranks."""
        answers: dict[int, Any] = {}
        waiting = {rank.pipe: number for number, rank in enumerate(self._pool)}
        end = time.monotonic() + timeout_s
        while waiting and (left := end - time.monotonic()) > 0:
            for pipe in wait(waiting, left):
                number = waiting.pop(pipe)  # type: ignore[arg-type]
                answers[number] = answer = self._answer(number)
                if isinstance(answer, Outcome) and answer.status == "failed":
                    end = min(end, time.monotonic() + GRACE_S)
        return dict(sorted(answers.items())), sorted(waiting.values())

    def _answer(self, number: int) -> Any:
        process, pipe, _ = self._pool[number]
        try:
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            with _processes:
                process.join()
            code = process.exitcode or 0
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            return Outcome("failed", reason=how, details=self._log(number))

    def _judge(self, outcomes: dict[int, Outcome], late: list[int], seconds: float) -> Outcome:
        """Returns one outcome, made of those of all ranks."""
        failed = {n: outcome for n, outcome in outcomes.items() if outcome.status == "failed"}
        if not failed and not late:
            if all(outcome.status == "skipped" for outcome in outcomes.values()):
                return Outcome("skipped", seconds, outcomes[0].reason)
            return Outcome("passed", seconds)
        reasons = [f"rank {n}: {outcome.reason}" for n, outcome in failed.items()]
        details = [f"--- rank {n}\n{outcome.details}" for n, outcome in failed.items()]
        if late:
            who = ", ".join(map(str, late))
            reasons.append(f"no answer in time from rank {who}")
            details += [f"--- rank {n}, late\n{self._where(n)}" for n in late]
        return Outcome("failed", seconds, reasons[0], "\n".join(["; ".join(reasons), *details]))

    def _where(self, number: int) -> str:
        """Returns the output of a rank, and its stack."""
        process = self._pool[number].process
        if process.pid and process.is_alive():
            os.kill(process.pid, signal.SIGUSR1)
            time.sleep(0.2)
        return self._log(number)

    def _log(self, number: int) -> str:
        text = self._pool[number].log.read_text(errors="replace")
        return "\n".join(text.splitlines()[-LOG_LINES:])
