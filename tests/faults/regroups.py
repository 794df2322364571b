"""Kills or stops ranks at random, lets the others go on, and lets new processes take their places.

    python -m tests.faults.regroups --kills 2000 --seed 1

After each death, the ranks that are left must reduce right sums in a communicator without the dead;
then as many processes join as are missing. Prints the times from a death to the next right sum on
the last rank, and from :meth:`ringkern.Communicator.join` to the first one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import RingKernError
from tests.comm.exits import scenarios_of, serve
from tests.faults.trained import Page
from tests.faults.trainings import Scenario, quantile

CALL, BETWEEN, SHRINK, GROW = "in a call", "between calls", "in shrink", "in grow"
# The moments of a death, and the longest delay.
MOMENTS = {CALL: 0.003, BETWEEN: 0.0, SHRINK: 0.03, GROW: 0.05}
STOP = "stopped in a call"
NEVER_S, SHORT_S = 600.0, 1.0
EVENTS = 8  # in one game


@dataclass(frozen=True)
class Event:
    """One or two deaths, or a stop.

    Attributes:
        moment: a key of MOMENTS, or STOP.
        victims: ranks at that time. In shrink() and grow(), the last one dies then, and the others
            between calls.
        after_s: the delay of the last death.
        shared: whether the tensors of the calls are in shared memory.
    """

    moment: str
    victims: tuple[int, ...]
    after_s: float
    shared: bool

    @classmethod
    def draw(cls, rng: random.Random, size: int, moment: str) -> Event:
        count = 2 if moment in (SHRINK, GROW) else 1 if moment == STOP else rng.randint(1, 2)
        after_s = rng.uniform(0, MOMENTS.get(moment, 0.01))
        return cls(
            moment,
            tuple(rng.sample(range(size), count)),
            after_s,
            moment == STOP or rng.random() < 0.5,
        )


class Table(Page):
    """A file in which each process shows when it dies, and reads when to join."""

    WORDS = 6


# The event in which a process has to come, those that it has ended, and that of its death, all from
# 1; the time of its death, in ns.
PID, COMES, HAS_JOINED, HAS_ENDED, DIES_IN, DIES_AT = range(Table.WORDS)


# ---- a process ----------------------------------------------------------------------------------


class Member:
    """A process of a game. Its number is never that of another, also after its death."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.table = Table(folder / "table")
        self.table.set(number, PID, os.getpid())
        game = json.loads((folder / "game").read_text())
        self.size, self.processes = game["size"], game["processes"]
        self.timeout = timedelta(seconds=game["timeout_s"])
        self.events = [Event(**one) for one in game["events"]]
        self.store = dist.TCPStore("127.0.0.1", game["port"], None, is_master=False)
        self.ring: ringkern.Communicator
        self.closed: list[ringkern.Communicator] = []
        self.members: list[int] = []
        self.why = ""
        self.notes = folder / f"notes{number}"
        self.notes.touch()

    def note(self, **what: Any) -> None:
        """Leaves a note, which outlives this process."""
        with self.notes.open("a") as notes:
            notes.write(json.dumps(what) + "\n")

    def play(self) -> None:
        first = 0
        if self.number < self.size:
            self.ring = ringkern.Communicator.from_store(
                self.store, self.number, self.size, timeout=self.timeout
            )
            assert self.sums_are_right()
            self.table.set(self.number, HAS_JOINED, 1)
            while not all(self.table.get(one, HAS_JOINED) for one in self.members):
                time.sleep(0.001)  # a death must not be part of this call
        else:
            while (comes := self.table.get(self.number, COMES)) == 0:
                time.sleep(0.001)
            if comes < 0:
                return  # the game is over
            self.joins()
            first = comes - 1
        for event in range(first, len(self.events)):
            if event > first or self.number < self.size:
                if self.has_stopped(event):
                    return
                self.goes_on(event)
            self.fills_up(event)
            assert self.sums_are_right(shared=True), self.why
            self.note(held=held())
            self.ends(event)
        if self.ring.rank == 0:
            for process in range(self.size, self.processes):
                if self.table.get(process, COMES) == 0:
                    self.table.set(process, COMES, -1)
        self.ring.close()

    def ends(self, number: int) -> None:
        """Waits until all ranks have ended the event, so that the next death is not part of it."""
        self.table.set(self.number, HAS_ENDED, number + 1)
        while any(self.table.get(one, HAS_ENDED) <= number for one in self.members):
            time.sleep(0.001)

    def joins(self) -> None:
        start = time.monotonic()
        self.ring = ringkern.Communicator.join(self.store, timeout=self.timeout)
        self.table.set(self.number, HAS_JOINED, 1)
        if self.sums_are_right():
            self.note(joined_s=time.monotonic() - start)

    def dies(self) -> None:
        self.table.set(self.number, DIES_AT, time.monotonic_ns())
        os.kill(os.getpid(), signal.SIGKILL)

    def stops(self) -> None:
        self.table.set(self.number, DIES_AT, time.monotonic_ns())
        os.kill(os.getpid(), signal.SIGSTOP)

    def has_stopped(self, number: int) -> bool:
        """Stops this rank in a call if it has to; then it is told that the others have gone on."""
        event = self.events[number]
        if event.moment != STOP or self.ring.rank not in event.victims:
            return False
        self.table.set(self.number, DIES_IN, number + 1)
        x = self.tensor(event)
        threading.Timer(event.after_s, self.stops).start()
        try:
            while True:
                self.ring.all_reduce(x.fill_(1))
                assert x.eq(self.ring.size).all(), "wrong sum"
        except RingKernError as error:
            self.note(told=type(error).__name__)
        try:
            self.ring.shrink()
        except RingKernError as error:
            self.note(told=type(error).__name__)
        self.ring.close()
        return True

    def goes_on(self, number: int) -> None:
        """Dies with the victims of an event, or goes on without them."""
        event = self.events[number]
        victims = [self.members[rank] for rank in event.victims]
        for one in victims:
            self.table.set(one, DIES_IN, number + 1)
        now = victims if event.moment == BETWEEN else victims[:-1]
        if self.number in now and event.moment != CALL:
            self.dies()
        if self.number in victims and event.moment == CALL:
            threading.Timer(event.after_s, self.dies).start()
        dies_in_shrink = event.moment == SHRINK and self.number == victims[-1]
        self.goes_on_without(set(now if event.moment == GROW else victims), number, dies_in_shrink)
        if event.moment == GROW and self.number == victims[-1]:
            if self.ring.rank == 0:  # the others do not call in, and would wait
                self.calls_in(number)
            threading.Timer(event.after_s, self.dies).start()
        if event.moment == STOP and self.ring.rank == 0:
            os.kill(self.table.get(victims[0], PID), signal.SIGCONT)
        for _ in range(50 if event.moment == STOP else 0):
            assert self.sums_are_right(event.shared)

    def tensor(self, event: Event) -> torch.Tensor:
        n = 1_000_000 if event.moment == STOP else 100_000
        return ringkern.empty(n) if event.shared else torch.empty(n)

    def goes_on_without(self, dead: set[int], number: int, dies: bool = False) -> None:
        """Calls until sums are right in a communicator without these; ``dies``: this one dies."""
        event, before = self.events[number], self.members
        x = self.tensor(event)
        while not self.sums_are_right(event.shared) or dead & set(self.members):
            try:
                while True:
                    self.ring.all_reduce(x.fill_(1))
            except RingKernError:
                if dies:
                    threading.Timer(event.after_s, self.dies).start()
                    dies = False
            self.goes_on_in(self.ring.shrink())
        self.note(event=number, dead=sorted(dead), at=time.monotonic_ns())
        left = [one for one in before if one not in dead]
        assert set(self.members) >= set(left) or event.moment in (SHRINK, GROW), (before, dead)

    def goes_on_in(self, new: ringkern.Communicator) -> None:
        self.closed.append(self.ring)  # must not hold anything
        self.ring = new

    def fills_up(self, number: int) -> None:
        """Takes processes in until there are as many as before, none of them a victim."""

        def dead() -> set[int]:
            return {p for p in range(self.processes) if self.table.get(p, DIES_IN) == number + 1}

        # A process that joins may not have learnt yet who else is in.
        while self.ring.size < self.size or dead() & set(self.members) or not self.members:
            if self.ring.size < self.size:
                if self.ring.rank == 0:
                    self.calls_in(number)
                self.goes_on_in(self.ring.grow(self.store, self.size - self.ring.size))
            self.goes_on_without(dead(), number)

    def calls_in(self, number: int) -> None:
        missing = self.size - self.ring.size
        for process in range(self.size, self.processes):
            comes, joined = (self.table.get(process, word) for word in (COMES, HAS_JOINED))
            if missing > 0 and not joined:
                missing -= 1
                if not comes:
                    self.table.set(process, COMES, number + 1)

    def sums_are_right(self, shared: bool = False) -> bool:
        """Returns whether a call succeeds, which must then have the right sum; learns who is in."""
        n = 200_000
        x = (ringkern.empty if shared else torch.empty)(n, dtype=torch.float64)
        x.fill_(2.0**self.number)
        numbers = torch.empty(self.ring.size, dtype=torch.int64)
        try:
            self.ring.all_reduce(x)
            self.ring.all_gather(numbers, torch.tensor([self.number]))
        except RingKernError as error:
            self.why = str(error)
            return False
        self.members = numbers.tolist()
        assert self.members[self.ring.rank] == self.number
        assert len(set(self.members)) == self.ring.size
        expected = float(sum(2**number for number in self.members))
        assert torch.equal(x, torch.full((n,), expected, dtype=x.dtype)), "wrong sum"
        return True


def held() -> list[int]:
    """Returns how many descriptors, shared mappings and threads this process has."""
    maps = Path("/proc/self/maps").read_text().count("memfd:")
    return [len(os.listdir("/proc/self/fd")), maps, len(os.listdir("/proc/self/task"))]


def play(rank: int, size: int, folder: Path) -> None:
    Member(rank, folder).play()
    os._exit(0)


# ---- games --------------------------------------------------------------------------------------


@dataclass
class Results:
    """The results of games, by moment."""

    times: dict[str, list[float]] = field(default_factory=dict)
    joined: list[float] = field(default_factory=list)
    kills: int = 0
    wrong: list[str] = field(default_factory=list)


def play_game(
    run: Scenario, folder: Path, size: int, events: Sequence[Event], results: Results
) -> None:
    processes = size + sum(len(event.victims) for event in events)
    timeout_s = SHORT_S if any(event.moment == STOP for event in events) else NEVER_S
    folder.mkdir()
    # A FileStore does not survive the death of a rank that writes to it.
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    game = {"size": size, "processes": processes, "timeout_s": timeout_s, "port": store.port}
    game["events"] = [asdict(event) for event in events]
    (folder / "game").write_text(json.dumps(game))
    table = Table.make(folder / "table", processes)
    outcome = run("play", processes, folder)
    died_in = {p: table.get(p, DIES_IN) - 1 for p in range(processes) if table.get(p, DIES_IN)}
    last: dict[tuple[int, tuple[int, ...]], int] = {}
    for process, ended in enumerate(outcome):
        victim = process in died_in
        stopped = victim and events[died_in[process]].moment == STOP
        if ended["status"] != (-9 if victim and not stopped else 0):
            results.wrong.append(
                f"{game}: process {process}: {ended['status']} {ended['stderr'][-600:]}"
            )
            continue
        notes = [json.loads(line) for line in (folder / f"notes{process}").read_text().splitlines()]
        told = [note["told"] for note in notes if "told" in note]
        # The call tells it in one of several ways, shrink() in one.
        if stopped and (len(told) != 2 or told[-1] != "CommAbortedError"):
            results.wrong.append(f"{game}: process {process} was told {told}")
        results.joined += [note["joined_s"] for note in notes if "joined_s" in note]
        for note in notes:
            if "event" in note:
                key = note["event"], tuple(note["dead"])
                last[key] = max(last.get(key, 0), note["at"])
        holds = [note["held"] for note in notes if "held" in note]
        if len(holds) > 1 and holds[0] != holds[-1]:
            results.wrong.append(f"{game}: process {process} holds {holds}")
    for (event, dead), at in last.items():
        killed = max((table.get(p, DIES_AT) for p in dead), default=0)
        moment = events[event].moment
        if killed:
            results.times.setdefault(moment, []).append((at - killed) / 1e9)
    results.kills += len(died_in)


def report(results: Results, size: int) -> str:
    lines = [f"{size} ranks: {results.kills} deaths, {len(results.wrong)} wrong"]
    everything = [t for times in results.times.values() for t in times]
    rows = {**results.times, "all": everything, "joined": results.joined}
    for name, times in rows.items():
        figures = " ".join(f"{quantile(times, share):6.3f}" for share in (0.5, 0.99, 1))
        lines.append(f"  {name:14} {len(times):5}   p50, p99, max s: {figures}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--kills", type=int, default=300, help="of each number of ranks")
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 8])
    parser.add_argument("--stop", action="store_true", help="stop ranks instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--moment", choices=[*MOMENTS], help="default: all")
    args = parser.parse_args()
    if args.serve:
        serve(globals())
        return 0
    failed = False
    with (
        scenarios_of("tests.faults.regroups", "--serve", OMP_NUM_THREADS="1") as run,
        tempfile.TemporaryDirectory() as folder,
    ):
        for size in args.ranks:
            rng, results, game = random.Random(args.seed), Results(), 0
            moments = [STOP] if args.stop else [args.moment] if args.moment else [*MOMENTS]
            while results.kills < args.kills:
                events = [Event.draw(rng, size, rng.choice(moments)) for _ in range(EVENTS)]
                printed = len(results.wrong)
                play_game(run, Path(folder, f"{size} {game}"), size, events, results)
                for text in results.wrong[printed:]:
                    print(text, flush=True)
                game += 1
            print(report(results, size), flush=True)
            failed = failed or bool(results.wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
