"""Starts pools of ranks, one layout after the other, and tells what was wrong: ``--help``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.hosts.fuzz.calls import KINDS
from tests.hosts.fuzz.steps import BROKEN, FORMS, Job, run_steps, say_where
from tests.ranks import Named, Ranks, RankTimeout

# A letter a rank: the name of its host.
LAYOUTS = (
    *("aa", "aaa", "aaaaa"),
    *("ab", "aabb", "abab", "abb", "aaabb", "abaab"),
    *("abc", "aabbc", "abcab"),
)
CHUNK = 20  # steps that a pool is told at once
# A rank that has not ended by then dumps its stack, and is killed.
END_S, CLOSING_S = 50.0, 60.0
# Exit statuses of ranks that the pool has killed, or that have said themselves why they end.
EXPECTED = (0, -signal.SIGKILL, -signal.SIGALRM, BROKEN)
TROUBLE = ("wrong", "hung", "failed")


@dataclass
class Totals:
    """Counts over all pools."""

    layouts: set[str] = field(default_factory=set)
    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def text(self) -> str:
        c = self.counts
        lines = [
            f"{len(self.layouts)} layouts, {self.runs} runs, {c['steps']} steps, "
            f"{c['groups made']} groups made, "
            + ", ".join(f"{c[what]} {what}" for what in TROUBLE),
            "forms: " + ", ".join(f"{form} {c[f'form {form}']}" for form in dict.fromkeys(FORMS)),
            "calls: " + ", ".join(f"{kind} {c[kind]}" for kind in sorted(KINDS)),
        ]
        return "\n".join(lines)

    def missing(self) -> list[str]:
        """Kinds that have not been called, though there were steps for all."""
        if self.counts["steps"] < 2 * len(KINDS):
            return []
        return [kind for kind in sorted(KINDS) if not self.counts[kind]]


class Run:
    """One pool: ranks of a layout, from a seed's first step on."""

    def __init__(self, layout: str, job: Job, totals: Totals) -> None:
        self.layout, self.job, self.totals = layout, job, totals
        self._pool = Ranks(len(layout), backend="ringkern", place=Named(layout))
        self._processes: list[Any] = []

    def go(self, steps: int | None, first: int, end: float) -> None:
        """``steps`` of them, or until ``end``; none after one that was wrong."""
        self.totals.runs += 1
        self.totals.layouts.add(self.layout)
        try:
            self._steps(steps, first, end)
            self._pool.run(say_where, END_S)
        except (EOFError, OSError, RankTimeout) as error:
            self._pool.kill()
            self._tell(f"{type(error).__name__}: {error}")
            return
        self._pool.close(CLOSING_S)
        for rank, process in enumerate(self._processes):
            if process.exitcode != 0:
                what = "hung" if process.exitcode == -signal.SIGKILL else "failed"
                stacks = (Path(self.job.folder) / f"stacks{rank}").read_text()
                self._count(what, 0, f"rank {rank} ({process.exitcode}) at the end\n{stacks}")

    def _steps(self, steps: int | None, start: int, end: float) -> None:
        self._pool.run(run_steps, self.job, 0, 0)
        self._processes = [*self._pool._processes]  # to ask them how they ended
        while (start < steps) if steps is not None else (time.monotonic() < end):
            last = start + CHUNK if steps is None else min(start + CHUNK, steps)
            limit_s = CHUNK * self.job.deadline_s + 60  # of ranks that cannot end by themselves
            results = self._pool.run(run_steps, self.job, start, last, timeout_s=limit_s)
            self.totals.counts += results[0]
            start = last
            if self._tell(None):
                return

    def _tell(self, ended: str | None) -> bool:
        """Prints what ranks have said; returns False for nothing. ``ended``: why they are gone."""
        ranks, folder = range(len(self.layout)), Path(self.job.folder)
        found = []
        for rank in ranks:
            for line in (folder / f"said{rank}").read_text().splitlines():
                found.append({"rank": rank, **json.loads(line)})
        found.sort(key=lambda said: said["at"])
        for i, said in enumerate(found):
            self._count(said["what"], said["step"], f"rank {said['rank']}: {said['text']}", i == 0)
        for rank in ranks:
            where = (folder / f"at{rank}").read_text().strip()
            step = int(where.removeprefix("step ").split(",")[0] or 0)
            stacks = (folder / f"stacks{rank}").read_text()
            status = self._processes[rank].exitcode if ended and self._processes else None
            if stacks or status not in (None, *EXPECTED):
                what = "hung" if stacks.startswith("Timeout") else "failed"
                self._count(what, step, f"rank {rank} ({status}) in {where}\n{stacks}", not found)
                found.append({})
            elif ended:
                print(f"    rank {rank} was in {where}")
        if ended and not found:
            self._count("failed", 0, f"a process ended, and nobody says why ({ended})")
        return bool(found)

    def _count(self, what: str, step: int, text: str, first: bool = True) -> None:
        self.totals.counts[what] += 1
        print(f"{what}: layout {self.layout}, seed {self.job.seed}, step {step}, {text}")
        if first:
            again = f"--seed {self.job.seed} --layout {self.layout} --steps {step + 1}"
            print(f"    again: python -m tests.hosts.fuzz {again}", flush=True)


def _run(layout: str, seed: int, args: argparse.Namespace, end: float, totals: Totals) -> None:
    plant = None
    if args.plant is not None:
        what, rank = args.plant.split(":")
        plant = (what, int(rank))
    before = Counter(totals.counts)
    with tempfile.TemporaryDirectory(prefix="ringkern-fuzz-") as folder:
        for rank in range(len(layout)):
            for name in ("at", "said", "stacks"):
                (Path(folder) / f"{name}{rank}").touch()
        run = Run(layout, Job(seed, folder, args.deadline, plant), totals)
        run.go(args.steps, args.first, end)
    more = totals.counts - before
    told = ", ".join(f"{more[what]} {what}" for what in TROUBLE)
    print(f"{layout} seed {seed}: {more['steps']} steps, {told}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="in all (default: 60)")
    parser.add_argument(
        "--seed", type=int, default=1, help="the first run's; the next has the next"
    )
    parser.add_argument("--layout", help="a letter a rank, its host; several with commas")
    parser.add_argument("--steps", type=int, help="of each layout, in place of --minutes")
    parser.add_argument("--first", type=int, default=0, help="the step to begin with")
    parser.add_argument("--pool", type=float, default=3.0, help="minutes of a run (default: 3)")
    parser.add_argument("--deadline", type=float, default=40.0, help="seconds of a step")
    parser.add_argument("--plant", help='a fault of a rank, as "spoils:1", "raises:0", "sleeps:1"')
    args = parser.parse_args(argv)
    start = time.monotonic()
    end = start + 60 * args.minutes
    layouts = args.layout.split(",") if args.layout else [*LAYOUTS]
    totals, seed = Totals(), args.seed
    pool_s = 60 * min(args.pool, args.minutes / len(layouts))
    while True:
        if not args.layout:
            Random(f"{seed} layouts").shuffle(layouts)
        for layout in layouts:
            if args.steps is None and time.monotonic() > end - pool_s / 2:
                break
            same = seed if args.steps is not None else seed + totals.runs
            _run(layout, same, args, min(end, time.monotonic() + pool_s), totals)
        if args.steps is not None or time.monotonic() > end - pool_s / 2:
            break
    print(totals.text())
    print(f"{time.monotonic() - start:.0f} s")
    if missing := totals.missing():
        print(f"never called: {', '.join(missing)}")
    trouble: Any = sum(totals.counts[what] for what in TROUBLE)
    return 1 if trouble or missing else 0


if __name__ == "__main__":
    sys.exit(main())
