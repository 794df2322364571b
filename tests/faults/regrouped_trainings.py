"""A training whose ranks are killed at random, and replaced: its weights against a reference.

    python -m tests.faults.regrouped_trainings --kills 20 --ranks 4 8

The training is that of examples/going_on.py: data parallel, a step goes on with the ranks that are
left. Each rank notes how many ranks each step had; the reference is one process that averages over
as many shares of each batch. The processes that finish must all have its weights, and its notes.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing as mp
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tests.comm.exits import ROOT

STEPS_OF_A_KILL = 30
LIMIT_S = 300.0
ACCEPTED = 1e-12  # of float64: averages are sums in different orders

sys.path.insert(0, str(ROOT / "examples"))


def _member(steps: int, folder: str, rank: int | None, ranks: int, number: int) -> None:
    """Trains in this process, which notes that it is a member before its first step."""
    example: Any = importlib.import_module("going_on")
    example.STEPS, example.DIES_IN = steps, -1
    newest = example.newest_state

    def noted(*given: Any) -> int:
        step: int = newest(*given)
        Path(folder, f"member{number}").touch()
        return step

    example.newest_state = noted
    example.process(folder, rank, ranks, LIMIT_S, str(number))


class Training:
    """A training of ``ranks`` processes, of which ``kills`` are killed, one or two at a time."""

    def __init__(self, folder: str, ranks: int, kills: int, rng: random.Random) -> None:
        self.folder, self.ranks, self.rng = folder, ranks, rng
        self.left, self.steps = kills, kills * STEPS_OF_A_KILL
        self.killed: set[int] = set()
        self.processes: list[mp.process.BaseProcess] = []

    def run(self) -> str:
        """Returns what is wrong, or nothing."""
        end = time.monotonic() + LIMIT_S
        try:
            for rank in range(self.ranks):
                self._start(rank)
            while self.left > 0 and not self._is_over():
                time.sleep(self.rng.uniform(0.02, 0.4))
                self._kill(self.rng.choice([1, 2]))
            while not self._is_over():
                if time.monotonic() > end:
                    return f"it has not ended within {LIMIT_S:.0f} s"
                time.sleep(0.05)
        finally:
            for process in self.processes:  # those that still wait to join
                process.kill()
                process.join()
        return self._compare()

    def _start(self, rank: int | None) -> None:
        number = len(self.processes)
        arguments = (self.steps, self.folder, rank, self.ranks, number)
        process = mp.get_context("fork").Process(target=_member, args=arguments)
        process.start()
        self.processes.append(process)

    def _members(self) -> list[int]:
        """Returns the processes that train, and have not ended."""
        alive = [n for n, process in enumerate(self.processes) if process.is_alive()]
        begun = [n for n in alive if Path(self.folder, f"member{n}").exists()]
        return [n for n in begun if n not in self.killed]

    def _is_over(self) -> bool:
        begun = Path(self.folder, "member0").exists()
        return not self._members() if begun else not self.processes[0].is_alive()

    def _kill(self, count: int) -> None:
        members = self._members()
        victims = self.rng.sample(members, min(count, self.left, max(0, len(members) - 1)))
        for number in victims:
            pid = self.processes[number].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        for _ in victims:
            self._start(None)
        self.killed.update(victims)
        self.left -= len(victims)

    def _compare(self) -> str:
        example: Any = importlib.import_module("going_on")
        results = [torch.load(path) for path in Path(self.folder).glob("result*")]
        if not results:
            return "no process has finished"
        sizes = results[0][1]
        if any(not torch.equal(noted, sizes) for _, noted in results):
            return "the processes note different ranks"
        expected = example.alone([int(size) for size in sizes])
        apart = max(float((weights - expected).abs().max()) for weights, _ in results)
        print(f"  weights of {len(results)} processes after {len(sizes)} steps: {apart:.1e} apart")
        return "" if apart <= ACCEPTED else f"weights differ by {apart}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="for each number of ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in ("torch._dynamo", "going_on"):
        importlib.import_module(name)  # once, and not by each process
    status = 0
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            training = Training(folder, ranks, options.kills, random.Random(options.seed))
            wrong = training.run()
        print(
            f"{ranks} ranks: {len(training.killed)} deaths: {wrong or 'as the reference'}",
            flush=True,
        )
        status |= bool(wrong)
    return status


if __name__ == "__main__":
    sys.exit(main())
