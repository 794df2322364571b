"""Libraries that are slow, wrong, or fail, for the coordinator.

Each rank is a process of its own, like those of real libraries, and imports neither torch nor
ringkern.
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.compare.adapters import Adapter, Bound
from bench.compare.memory import Array, private

SLOT = 1 << 16  # bytes


class Right(Adapter):
    """Sums by a file that all ranks have mapped."""

    dtypes = ("float32", "float16")

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        assert "torch" not in sys.modules
        # Any rank may make it: the kernel fills new memory with zeros.
        file = os.open(f"{options['folder']}/memory", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, ranks * SLOT + 4096)
        self.memory = mmap.mmap(file, ranks * SLOT + 4096)
        os.close(file)
        self.slots = [np.frombuffer(self.memory, np.uint8, SLOT, r * SLOT) for r in range(ranks)]
        self.at = np.frombuffer(self.memory, np.int64, ranks * 8, ranks * SLOT)[::8]
        self.calls = 0

    def version(self) -> str:
        return "1.0"

    def bind(self, size: int, rotate: int, dtype: str) -> Bound:
        places = private(size, rotate, dtype)
        return Bound(places, [functools.partial(self.call, place) for place in places])

    def call(self, place: Array) -> None:
        self.calls += 1
        parts = [slot[: place.nbytes].view(place.dtype) for slot in self.slots]
        parts[self.rank][:] = place
        self.meet()
        place[:] = functools.reduce(np.add, parts)
        self.meet()

    def meet(self) -> None:
        self.at[self.rank] += 1
        while min(self.at) < self.at[self.rank]:
            time.sleep(0)


class Slow(Right):
    def call(self, place: Array) -> None:
        time.sleep(0.002 * self.rank)
        super().call(place)


class Wrong(Right):
    """One element of one rank."""

    def call(self, place: Array) -> None:
        super().call(place)
        if self.rank == 1:
            place[-1] += 1


class Failing(Right):
    """Fails in its fifth call, in ``fail``, on one rank; the other one waits for it."""

    def call(self, place: Array) -> None:
        if self.rank == 1 and self.calls == 4:
            self.fail()
        super().call(place)

    def fail(self) -> None:
        raise OSError("the cable is out")


class Dies(Failing):
    """And leaves a file in /dev/shm, by the name in its options, that both ranks had mapped."""

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        file = os.open(options["leaves"], os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, 4096)
        self.left = mmap.mmap(file, 4096)
        os.close(file)

    def fail(self) -> None:
        print("I had so much to give", file=sys.stderr, flush=True)
        os._exit(9)


class Hangs(Failing):
    def fail(self) -> None:
        Path(self.options["pids"]).write_text(str(os.getpid()))
        time.sleep(1000)


class NeverStarts(Right):
    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        raise RuntimeError("no such device\nand more")


class EndsAtOnce(Right):
    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        if rank == 0:
            os._exit(3)
        time.sleep(1000)


class Restless(Right):
    """Has a thread that never sleeps."""

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        threading.Thread(target=spin, daemon=True).start()


def spin() -> None:
    while True:
        pass
