"""One rank of one contender: joins its library's group, and then does what it is told.

It sleeps on a socket while it is not its turn. A message is a JSON object; so is the answer, which
for ``time`` is followed by the times, 8 bytes each.
"""

from __future__ import annotations

import faulthandler
import importlib
import itertools
import json
import os
import sys
import traceback
from array import array
from multiprocessing.connection import Client, Connection
from typing import Any

from ringkern.tools.turns import preemptions, timed

from . import memory
from .adapters import Adapter, Bound

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")  # of those who start ranks


class Worker:
    """The commands. Each is a method; what it returns is the answer."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._bound: Bound | None = None
        self._dtype = ""
        self._next = 0  # tensor

    def met(self) -> dict[str, Any]:
        """All ranks have joined."""
        self._adapter.met()
        return {}

    def prepare(self, size: int, rotate: int, dtype: str) -> dict[str, Any]:
        """Takes memory for tensors of ``size`` bytes."""
        self._bound = None
        self._bound, self._dtype, self._next = self._adapter.bind(size, rotate, dtype), dtype, 0
        return {}

    def release(self) -> dict[str, Any]:
        """Gives the memory back."""
        self._bound = None
        self._adapter.released()
        return {}

    def check(self, mode: str) -> dict[str, Any]:
        """Sums small integers once, and counts the elements that are wrong."""
        adapter = self._adapter
        place = self._tensors.places_of(mode)[0]
        place[:] = memory.given(self._dtype, adapter.rank, adapter.ranks, len(place))
        self._next = 0
        self._run(mode, 1)
        wrong = memory.wrong(place, self._dtype, adapter.ranks)
        place[:] = 0
        return {"wrong": wrong}

    def time(self, mode: str, warmup: int, calls: int) -> tuple[dict[str, Any], array[int]]:
        """Times each of so many calls, after some that do not count."""
        self._run(mode, warmup)
        before = preemptions()
        times = self._run(mode, calls)
        return {"preempted": preemptions() - before}, times

    def choice(self, size: int, dtype: str) -> dict[str, Any]:
        """Algorithm and protocol of a call with ``size`` bytes."""
        return {"choice": self._adapter.choice(size, dtype)}

    def probe(self) -> dict[str, Any]:
        """The round trip between the cores of two ranks; the adapter ``Bare`` alone has it."""
        return {"round_trip_ns": self._adapter.round_trip_ns()}  # type: ignore[attr-defined]

    def close(self) -> None:
        """Gives the tensors back and leaves the group."""
        self._bound = None
        self._adapter.close()

    @property
    def _tensors(self) -> Bound:
        assert self._bound is not None, "prepare comes first"
        return self._bound

    def _run(self, mode: str, calls: int) -> array[int]:
        bound, first = self._tensors, self._next
        self._next = (first + calls) % len(bound.places)
        if mode != "py":
            return bound.loop(mode, first, calls)
        return timed(itertools.islice(itertools.cycle(bound.calls), first, None), calls)


def rank_of(spec: dict[str, Any]) -> int:
    """This rank: as given, or as whoever started it says."""
    if spec.get("rank") is not None:
        return int(spec["rank"])
    for name in RANK_VARIABLES:
        if name in os.environ:
            return int(os.environ[name])
    raise RuntimeError("nobody says which rank this is")


def main(arguments: list[str]) -> int:
    """Runs a rank; the exit status. The argument is a JSON object: ``contender.Contender``."""
    spec = json.loads(arguments[0])
    rank, cores = rank_of(spec), spec["cores"]
    # Before the library is there, so that its threads are on these cores, too.
    if cores:
        os.sched_setaffinity(0, cores[rank])
    faulthandler.dump_traceback_later(spec["timeout_s"], exit=True)  # if the coordinator is gone
    with Client(spec["socket"], "AF_UNIX") as pipe:
        _send(pipe, {"contender": spec["name"], "rank": rank, "pid": os.getpid()})
        try:
            module, name = spec["adapter"].split(":")
            sys.path[:0] = spec["path"]
            adapter = getattr(importlib.import_module(module), name)
            made: Adapter = adapter(rank, spec["ranks"], spec["options"])
        except Exception as error:  # whatever a library may raise
            traceback.print_exc()
            _send(pipe, {"error": _text(error)})
            return 1
        worker = Worker(made)
        _send(
            pipe,
            {"modes": made.modes, "dtypes": made.dtypes, "version": made.version()},
        )
        _serve(worker, pipe)
        worker.close()
    return 0


def _serve(worker: Worker, pipe: Connection) -> None:
    while True:
        try:
            message = json.loads(pipe.recv_bytes())
        except EOFError:
            os._exit(1)  # the coordinator is gone, and so may be the other ranks
        command = message.pop("do")
        if command == "close":
            return
        times = None
        try:
            answer = getattr(worker, command)(**message)
            if isinstance(answer, tuple):
                answer, times = answer
        except Exception as error:  # whatever a library may raise
            traceback.print_exc()
            answer = {"error": _text(error)}
        _send(pipe, answer)
        if times is not None:
            pipe.send_bytes(times.tobytes())


def _send(pipe: Connection, message: dict[str, Any]) -> None:
    pipe.send_bytes(json.dumps(message).encode())


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().split("\n")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
