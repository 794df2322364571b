"""A rank of a pool: receives the name of a test, runs it, and reports the outcome."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import textwrap
import traceback
import unittest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, Protocol

REASON = 200  # characters of an error that a reader is shown first


class Outcome(NamedTuple):
    status: str  # passed, failed or skipped
    seconds: float = 0.0
    reason: str = ""  # one line
    details: str = ""  # tracebacks, and what a rank printed that could not tell


class Suite(Protocol):
    """Tests by name; made in each rank as ``Suite(backend, ranks)``."""

    def tests(self) -> dict[str, str]: ...
    def run(self, test: str, rank: int, place: Path) -> None: ...


def serve(
    pipe: Connection,
    log: Path,
    environ: dict[str, str],
    limit_s: float,
    *,
    suite: str,
    backend: str,
    ranks: int,
    rank: int,
) -> None:
    """Sends the suite's tests, then an Outcome for each (test, place) it is sent."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # how the runner asks where a test hangs
    os.environ.clear()
    os.environ.update(environ)

    module, name = suite.split(":")
    made: Suite = getattr(importlib.import_module(module), name)(backend, ranks)
    pipe.send(made.tests())
    while True:
        try:
            test, place = pipe.recv()
        except EOFError:
            return
        # However the runner ended: in a hung test a rank does not see that its pipe was closed.
        faulthandler.dump_traceback_later(limit_s, exit=True)
        outcome = _run(made, test, rank, place)
        faulthandler.cancel_dump_traceback_later()
        pipe.send(outcome)


def _run(suite: Suite, test: str, rank: int, place: Path) -> Outcome:
    try:
        suite.run(test, rank, place)
    except unittest.SkipTest as skip:
        return Outcome("skipped", reason=str(skip))
    except BaseException as error:  # the runner decides what becomes of this rank
        message = " ".join("".join(traceback.format_exception_only(error)).split())
        short = textwrap.shorten(message, REASON)
        return Outcome("failed", reason=short, details=traceback.format_exc())
    return Outcome("passed")
