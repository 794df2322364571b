"""A suite whose outcomes are known, for the tests of the runner: what one backend does wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import unittest
from pathlib import Path


class Planted:
    """Gloo passes all but one, which only ringkern passes."""

    def __init__(self, backend: str, ranks: int) -> None:
        self.ours = backend == "ringkern"
        self.ranks = ranks

    def tests(self) -> dict[str, str]:
        names = [name for name in dir(self) if name.startswith("test_")]
        return {name: "of another world" if "never" in name else "" for name in names}

    def run(self, test: str, rank: int, place: Path) -> None:
        (place / str(rank)).touch()
        getattr(self, test)(rank, place)

    def test_passes(self, rank: int, place: Path) -> None:
        end = time.monotonic() + 30
        while len(os.listdir(place)) < self.ranks:  # all ranks are in the same test
            assert time.monotonic() < end
            time.sleep(0.01)

    def test_never(self, rank: int, place: Path) -> None:
        raise AssertionError("its reason says not to try")

    def test_skips(self, rank: int, place: Path) -> None:
        if self.ours:
            raise unittest.SkipTest("nobody has a GPU")

    def test_fails(self, rank: int, place: Path) -> None:
        if self.ours and rank == 1:
            raise ValueError("the sum\nis wrong")

    def test_only_ringkern(self, rank: int, place: Path) -> None:
        assert self.ours

    def test_dies(self, rank: int, place: Path) -> None:
        if self.ours and rank == 0:
            print("the last words", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def test_hangs(self, rank: int, place: Path) -> None:
        """Hangs rank 1 and its child; their pids are written to the caller's file."""
        if self.ours and rank == 1:
            child = subprocess.Popen(["sleep", "600"])
            pids = Path(os.environ["PLANTED_PIDS"])
            (pids / "new").write_text(f"{os.getpid()} {child.pid}")
            (pids / "new").rename(pids / "pids")
            child.wait()
