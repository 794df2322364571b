"""The steps of a fuzz on a rank.

The groups and the calls of a step follow from the seed and the number of the step, equally on all
ranks. A rank writes its reports to files of a folder, so that they survive the process: its
position, its faults, and where it hangs.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import torch.distributed as dist

from tests.hosts.fuzz import in_pairs, over_ring  # noqa: F401  (which add their kinds)
from tests.hosts.fuzz.calls import KINDS, LIMIT, Call, Team
from tests.hosts.fuzz.values import spoil

EPOCH = 10  # steps between which the groups are others
# In this order; a form of each is drawn as often as it is here.
FORMS = ("alone", "alone", "outstanding", "outstanding", "threads", "callback")
# A rank that hangs ends so long after it has said where, so that the others have said it, too.
LATER_S = 4.0
PLANTED, PLANTED_DEADLINE_S = 6, 2.0
BROKEN = 3  # the status of a rank in which a call failed


@dataclass(frozen=True)
class Job:
    """The task of all ranks of a pool.

    Attributes:
        seed: of everything.
        folder: for ``at<rank>``, ``said<rank>`` and ``stacks<rank>``.
        deadline_s: of each step.
        plant: a rank that "spoils" a result, "raises" or "sleeps" in the steps from PLANTED on, to
            see that it is told: one of those words, and the rank.
    """

    seed: int
    folder: str
    deadline_s: float
    plant: tuple[str, int] | None = None


@dataclass
class Planned:
    """A call of a step, on whichever ranks."""

    kind: str
    team: int
    async_op: bool
    seed: str


class Fuzzer:
    """One rank's state, from its pool's first step to the last."""

    def __init__(self, rank: int, size: int, job: Job) -> None:
        warnings.simplefilter("ignore", FutureWarning)  # of torch's older names, which work
        warnings.filterwarnings("ignore", ".*coalesced will be deprecated|Sparse invariant checks")
        self.rank, self.size, self.job = rank, size, job
        self.counts: Counter[str] = Counter()
        self.step, self.epoch = -1, -1
        self.teams = [Team(dist.group.WORLD, tuple(range(size)), "ringkern")]
        folder = Path(job.folder)
        self._at = os.open(folder / f"at{rank}", os.O_CREAT | os.O_WRONLY, 0o600)
        self._said = (folder / f"said{rank}").open("a", buffering=1)
        self.stacks = (folder / f"stacks{rank}").open("w")
        faulthandler.enable(self.stacks)

    # ---- reports

    def say(self, what: str, text: str) -> None:
        facts = {"at": time.monotonic(), "step": self.step, "what": what, "text": text}
        self._said.write(json.dumps(facts) + "\n")

    def note(self, text: str) -> None:
        """Where the rank is, for whoever finds it there."""
        line = f"step {self.step}, {text}"[:300]
        os.pwrite(self._at, f"{line:300}".encode(), 0)

    def break_off(self) -> NoReturn:
        """Ends the process: the others see that it has gone, and do not wait for it."""
        self.say("failed", traceback.format_exc())
        os._exit(BROKEN)

    # ---- groups

    def renew(self, epoch: int) -> None:
        """Other groups in place of those of the epoch before."""
        self.epoch = epoch
        self.note("destroying groups")
        for team in self.teams[1:]:
            if team.group is not None:
                dist.destroy_process_group(team.group)
        random = Random(f"{self.job.seed} groups {epoch}")
        self.note("making groups")
        self.teams[1:] = [self._make(random) for _ in range(random.randint(1, 3))]

    def _make(self, random: Random) -> Team:
        whole = random.random() < 0.4
        ranks = random.sample(
            range(self.size), self.size if whole else random.randint(1, self.size)
        )
        backend = random.choice(("ringkern",) * 4 + ("gloo",))
        if in_order := random.random() < 0.7:
            ranks.sort()
        group = dist.new_group([*ranks], LIMIT, backend, sort_ranks=in_order)
        self.counts["groups made"] += 1
        return Team(group if self.rank in ranks else None, tuple(ranks), backend)

    # ---- calls

    def plan(self, random: Random, kind: str | None = None, teams: Any = None, **only: bool) -> Any:
        """Draws a call. ``only``: fields of its `Kind`."""
        teams = range(len(self.teams)) if teams is None else teams
        kinds = [kind] if kind else [k for k, of in KINDS.items() if _fits(of, only)]
        while True:
            name, team = random.choice(kinds), random.choice([*teams])
            of, place = KINDS[name], self.teams[team]
            if (of.any_backend or place.backend == "ringkern") and (
                len(place.ranks) > 1 or not of.pairs
            ):
                return Planned(name, team, random.random() < 0.6, f"{random.random()}")

    def begin(self, planned: Planned) -> Call | None:
        """Makes the call, if this rank has a part in it."""
        self.counts[planned.kind] += 1
        team = self.teams[planned.team]
        if self.rank not in team.ranks:
            return None
        call = Call(planned.seed, planned.kind, team, self.rank, planned.async_op)
        self.note(f"{call}")
        call.start()
        return call

    def end(self, call: Call | None) -> None:
        """Waits for the call and looks at what it left."""
        if call is None:
            return
        self.note(f"waiting for {call}")
        call.finish()
        if self._does("spoils"):
            any(spoil(box.tensor) for box in call.outputs)
        for text in call.wrong():
            self.say("wrong", text)

    def _does(self, deed: str) -> bool:
        return self.job.plant == (deed, self.rank) and self.step >= PLANTED

    def run(self, step: int) -> None:
        self.step = step
        soon = step >= PLANTED and self.job.plant is not None and self.job.plant[0] == "sleeps"
        deadline_s = PLANTED_DEADLINE_S if soon else self.job.deadline_s
        faulthandler.dump_traceback_later(deadline_s, file=self.stacks)
        signal.setitimer(signal.ITIMER_REAL, deadline_s + LATER_S)  # which ends the process
        if step // EPOCH != self.epoch:
            self.renew(step // EPOCH)
        if self._does("sleeps"):
            self.note("asleep on purpose")
            time.sleep(1000)
        if self._does("raises"):
            raise LookupError("on purpose")
        # Each kind as often as any other one.
        kinds = sorted(KINDS)
        Random(f"{self.job.seed} kinds {step // len(kinds)}").shuffle(kinds)
        random = Random(f"{self.job.seed} step {step}")
        form = random.choice(FORMS)
        self.counts[f"form {form}"] += 1
        getattr(self, f"_{form}")(random, kinds[step % len(kinds)])
        self.counts["steps"] += 1
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _alone(self, random: Random, kind: str) -> None:
        self.end(self.begin(self.plan(random, kind)))

    def _outstanding(self, random: Random, kind: str) -> None:
        plans = [self.plan(random, kind)]
        plans += [self.plan(random) for _ in range(random.randint(1, 6))]
        random.shuffle(plans)
        calls = [self.begin(planned) for planned in plans]
        Random(f"{plans[0].seed} {self.rank}").shuffle(calls)  # waits are of each rank's own
        for call in calls:
            self.end(call)

    def _threads(self, random: Random, kind: str) -> None:
        """A thread for each of some groups, while another group may come and go."""
        chosen = random.sample(range(len(self.teams)), min(len(self.teams), random.randint(2, 3)))
        first = self.plan(random, kind)
        lists = [
            [self.plan(random, None, [team]) for _ in range(random.randint(1, 4))]
            for team in chosen
        ]
        if first.team in chosen:
            lists[chosen.index(first.team)].insert(0, first)
        else:
            lists.append([first])
        together = [random.random() < 0.5 for _ in lists]
        another = random.random() < 0.3
        threads = [
            threading.Thread(target=self._guarded, args=(self._several, plans, at_once))
            for plans, at_once in zip(lists, together)
        ]
        for thread in threads:
            thread.start()
        if another:
            self.teams.append(self._make(random))
            self._several([self.plan(random, None, [len(self.teams) - 1])], False)
            if (group := self.teams.pop().group) is not None:
                dist.destroy_process_group(group)
        for thread in threads:
            thread.join()

    def _several(self, plans: list[Planned], at_once: bool) -> None:
        if at_once:
            for call in [self.begin(planned) for planned in plans]:
                self.end(call)
        else:
            for planned in plans:
                self.end(self.begin(planned))

    def _guarded(self, run: Callable[..., None], *args: Any) -> None:
        try:
            run(*args)
        except BaseException:
            self.break_off()

    def _callback(self, random: Random, kind: str) -> None:
        """Makes calls when another one is done, on the thread that reports it."""
        if KINDS[kind].blocks:
            self._alone(random, kind)
            random = Random(f"{self.job.seed} callbacks {self.step}")
            kind = "all_reduce"
        first = self.plan(random, kind)
        first.async_op = True
        teams = [first.team] if random.random() < 0.7 else None
        more = [self.plan(random, None, teams, blocks=False) for _ in range(random.randint(1, 3))]
        for planned in more:
            planned.async_op = True
        starter, begun = self.begin(first), []
        waits = Random(f"{first.seed} {self.rank}").random() < 0.3

        def begin(future: Any) -> None:
            if waits and future is not None:
                works[-1].wait()  # its own, which is done
            begun.extend([self.begin(planned) for planned in more])

        works = [work for work in starter.works if isinstance(work, dist.Work)] if starter else []
        if works:
            works[-1].get_future().then(begin).wait()
        else:
            begin(None)
        for call in [starter, *begun]:
            self.end(call)


def _fits(kind: Any, only: dict[str, bool]) -> bool:
    return all(getattr(kind, name) == value for name, value in only.items())


_kept: list[Fuzzer] = []


def run_steps(rank: int, size: int, job: Job, first: int, last: int) -> Counter[str]:
    """Makes the steps from ``first`` to before ``last``; returns how often what was done."""
    if not _kept:
        _kept.append(Fuzzer(rank, size, job))
    fuzzer = _kept[0]
    fuzzer.counts.clear()
    try:
        for step in range(first, last):
            fuzzer.run(step)
    except BaseException:
        fuzzer.break_off()
    return Counter(fuzzer.counts)


def say_where(rank: int, size: int, after_s: float) -> None:
    """Dumps this rank's stack if it has not ended by then."""
    _kept[0].note("the end")
    faulthandler.dump_traceback_later(after_s, file=_kept[0].stacks)
