"""Kills ranks of a data-parallel training, restarts it, and reports the survivors' errors.

    python -m tests.faults.trainings --kills 300 --seed 1

A rank is killed at a random moment of its life, from the fork on; all others must end by themselves
with a ringkern error that names it. Then all start again from the last checkpoint. A finished
training must have the bits of an undisturbed one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.comm.exits import scenarios_of
from tests.faults import trained
from tests.faults.trained import CHECKPOINT_EVERY, EXIT, EXIT_CODE, PID, PLACE, Page

Scenario = Callable[[str, int, Path], list[dict[str, Any]]]

TIMEOUT_S = 20.0
# For a rank that dies before it has contacted any other: until then it cannot be missed.
EARLY_TIMEOUT_S = 6.0
RANKS = {"": 3, "aabb": 4}  # by hosts, a letter for each rank

# Places of kills, how often each, and the longest delay after the rank reached it.
MOMENTS = {
    "start": (1, 0.02),
    "init": (2, 0.05),
    "made": (1, 0.01),
    "wrap": (2, 0.005),
    "load": (1, 0.002),
    "forward": (3, 0.002),
    "backward": (4, 0.003),
    "update": (1, 0.001),
    "checkpoint": (1, 0.002),
    "end": (1, 0.002),
}
PHASES = {
    "start": "before init_process_group",
    "init": "in init_process_group",
    "made": "before the first call",
    "wrap": "in DDP's constructor",
    "forward": "in forward, backward",
    "backward": "in forward, backward",
    "load": "between calls",
    "update": "between calls",
    "checkpoint": "between calls",
    "end": "at the end",
}
# Key: kind of end. Value: how often, and the exit status.
DEEDS = {
    "KILL": (6, -9),
    "TERM": (1, -15),
    "SEGV": (1, -11),
    "STOP": (1, -9),
    "exit": (1, EXIT_CODE),
}


@dataclass(frozen=True)
class Kill:
    """A death: the rank, the moment, and the kind."""

    victim: int
    place: str
    step: int
    after_s: float
    deed: str

    @classmethod
    def draw(cls, rng: random.Random, size: int) -> Kill:
        place = rng.choices([*MOMENTS], [often for often, _ in MOMENTS.values()])[0]
        deed = rng.choices([*DEEDS], [often for often, _ in DEEDS.values()])[0]
        step = rng.randint(1, 3 * CHECKPOINT_EVERY) if place in trained.IN_STEP else 0
        if place == "checkpoint":  # rank 0 makes them
            step = CHECKPOINT_EVERY * rng.randint(1, 3)
        victim = 0 if place == "checkpoint" else rng.randrange(size)
        return cls(victim, place, step, rng.uniform(0, MOMENTS[place][1]), deed)

    @property
    def timeout_s(self) -> float:
        return EARLY_TIMEOUT_S if self.place in ("start", "init") else TIMEOUT_S

    def do(self, page: Page, over: Callable[[], bool]) -> float:
        """Waits for the moment and kills, unless the run ends before; returns the time."""
        while not page.get(self.victim, PID) and not over():
            time.sleep(0.0001)
        try:
            process = os.pidfd_open(page.get(self.victim, PID))
        except (OSError, ValueError):
            return 0.0
        while page.get(self.victim, PLACE) < trained.moment(self.place, self.step) and not over():
            time.sleep(0.0001)
        time.sleep(self.after_s)
        try:
            if self.deed == "STOP":
                signal.pidfd_send_signal(process, signal.SIGSTOP)
                time.sleep(0.3)
            now = time.monotonic()
            if self.deed == "exit":
                page.set(self.victim, EXIT, 1)
            else:
                name = "KILL" if self.deed == "STOP" else self.deed
                signal.pidfd_send_signal(process, signal.Signals[f"SIG{name}"])
        except ProcessLookupError:
            return 0.0
        finally:
            os.close(process)
        return now


def _names(text: str, rank: int) -> bool:
    return re.search(rf"rank {rank}\b", text) is not None


@dataclass
class Fate:
    """The end of all ranks in one run."""

    kill: Kill | None = None
    at: float = 0.0  # time of the end
    place: str = ""  # position of the victim
    said: dict[int, dict[str, Any]] = field(default_factory=dict)  # by survivors
    wrong: list[str] = field(default_factory=list)

    def times(self) -> list[float]:
        """Returns each survivor's delay to the error, from the kill or from its arrival."""
        told = [one for one in self.said.values() if "kind" in one]
        return [one["at"] - max(self.at, one["since"]) for one in told]

    def judge(self, outcome: list[dict[str, Any]], digest: str) -> None:
        """Returns violations. ``digest``: of an undisturbed training."""
        for rank, ended in enumerate(outcome):
            said = self.said.get(rank)
            if self.kill is not None and rank == self.kill.victim:
                if ended["status"] != DEEDS[self.kill.deed][1]:
                    self.wrong.append(f"rank {rank}, the victim: {ended}")
            elif ended["status"] != 0 or said is None:
                self.wrong.append(f"{'hung' if ended['status'] == -9 else 'failed'}: {ended}")
            elif "digest" in said:
                if self.kill is not None and self.place != "end":
                    self.wrong.append(f"rank {rank} was not told")
                if digest not in ("", said["digest"]):
                    self.wrong.append(f"rank {rank} has other bits")
            elif self.kill is None:
                self.wrong.append(f"rank {rank} was told of a death, and nobody died: {said}")
            elif said["rank"] != self.kill.victim or not _names(said["text"], self.kill.victim):
                self.wrong.append(f"rank {rank} was told of another one: {said}")


class Trainings:
    """Trainings one after the other, each of as many runs as it takes."""

    def __init__(self, run: Scenario, folder: Path, hosts: str) -> None:
        self._run, self._folder, self._hosts = run, folder, hosts
        self.size = RANKS[hosts]
        self.store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        self._threads = ThreadPoolExecutor(1)
        self.lives = self.trainings = self.resumed = 0
        self._digest = ""
        first = self.live(None)
        assert not first.wrong, first.wrong
        self._digest = first.said[0]["digest"]

    def live(self, kill: Kill | None) -> Fate:
        self.lives += 1
        folder = self._folder / f"life {self.lives}"
        folder.mkdir()
        checkpoint = self._folder / f"checkpoint {self.trainings}"
        self.resumed += checkpoint.exists()
        page = Page.make(folder / "page", self.size)
        trained.Life(
            self.store.port,
            str(folder),
            self._hosts,
            TIMEOUT_S if kill is None else kill.timeout_s,
            str(checkpoint),
            kill.victim if kill is not None and kill.deed == "exit" else None,
            self.lives % 5 == 0 or kill is None,
        ).write(folder)
        run: Future[list[dict[str, Any]]] = self._threads.submit(
            self._run, "train", self.size, folder
        )
        fate = Fate(kill)
        if kill is not None:
            fate.at = kill.do(page, run.done)
        outcome = run.result()
        for rank in range(self.size):
            if (note := folder / f"said{rank}").exists():
                fate.said[rank] = json.loads(note.read_text())
        if kill is not None and kill.victim in fate.said:
            fate.place = "end"
            del fate.said[kill.victim]
            if outcome[kill.victim]["status"] == 0:
                fate.kill = None  # it came too late
        elif kill is not None:
            fate.place = trained.place_of(page.get(kill.victim, PLACE))
        fate.judge(outcome, self._digest)
        if fate.said and all("digest" in said for said in fate.said.values()):
            self.trainings += 1
        return fate

    def close(self) -> None:
        self._threads.shutdown()


def quantile(times: list[float], share: float) -> float:
    return sorted(times)[min(int(share * len(times)), len(times) - 1)] if times else 0.0


def report(fates: list[Fate]) -> str:
    """Returns a line for each phase."""
    lines = [f"{'killed':26} kills  told  done   p50    p99    max s  classes"]
    for phase in [*dict.fromkeys(PHASES.values()), "all"]:
        here = [one for one in fates if phase in ("all", PHASES[one.place])]
        said = [said for one in here for said in one.said.values()]
        kinds = Counter(one["kind"] for one in said if "kind" in one)
        times = [each for one in here for each in one.times()]
        figures = " ".join(f"{quantile(times, share):6.3f}" for share in (0.5, 0.99, 1))
        classes = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        told = sum(kinds.values())
        lines.append(f"{phase:26} {len(here):5} {told:5} {len(said) - told:5} {figures}  {classes}")
    return "\n".join(lines)


def kill_many(run: Scenario, folder: Path, args: argparse.Namespace, hosts: str) -> list[str]:
    """Prints the outcomes; returns the failures."""
    trainings = Trainings(run, folder, hosts)
    fates: list[Fate] = []
    wrong: list[str] = []

    def live(kill: Kill | None) -> None:
        fate = trainings.live(kill)
        if fate.kill is not None:
            fates.append(fate)
        for text in fate.wrong:
            wrong.append(f"{fate.kill}, in {fate.place}: {text}")
            print(wrong[-1], flush=True)

    start = time.monotonic()
    rng = random.Random(args.seed)
    while len(fates) < args.kills and time.monotonic() - start < args.seconds:
        live(Kill.draw(rng, trainings.size))
    live(None)
    trainings.close()
    print(
        f"{trainings.size} ranks, {'2 hosts' if hosts else '1 host'}: {len(fates)} kills in "
        f"{time.monotonic() - start:.0f} s; {trainings.resumed} lives from a checkpoint, "
        f"{trainings.trainings - 1} trainings of {trained.STEPS} steps with the bits of an "
        f"undisturbed one; wrong: {len(wrong)}\n{report(fates)}",
        flush=True,
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=300, help="over one host, and over two")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", choices=[*RANKS], help="of each rank; default: both")
    parser.add_argument("--seconds", type=float, default=3600, help="at most; over each")
    args = parser.parse_args()
    wrong: list[str] = []
    os.environ |= {"OMP_NUM_THREADS": "1"}
    with scenarios_of("tests.faults.trained") as run:
        for hosts in RANKS if args.hosts is None else [args.hosts]:
            with tempfile.TemporaryDirectory() as folder:
                wrong += kill_many(run, Path(folder), args, hosts)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
