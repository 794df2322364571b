"""Summarises a trace: the duration of the call, and how long each rank waited for each other."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ...units import size_text
from .events import Event, Trace

UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def check_drawable(trace: Trace) -> None:
    """Checks that there is something to draw.

    Raises:
        ValueError: the trace has no verbs, as with one rank.
    """
    if not trace.events:
        raise ValueError(
            f"there is nothing to draw of {trace.ranks} rank(s) and {trace.count} elements: no "
            "verb was run; record 2 ranks or more (-n 2)"
        )


class Waits(NamedTuple):
    """The waits of a verb, in ns.

    Attributes:
        prev: for data from prev.
        late: after the data was there, until the rank ran on: it was being woken, or other
            programs had its core.
        next: for a free slot at next.
    """

    prev: int
    late: int
    next: int


def waits(trace: Trace, event: Event) -> Waits:
    """Returns the waits of a verb.

    ``late`` counts only the certain part: the wait after prev had ended the verb that sent the
    data.
    """
    late = 0
    feeder = trace.feeder(event)
    if feeder is not None:
        # From then on the rank had only its own work to do, which takes a fixed time.
        left = event.end_ns - max(event.start_ns, feeder.end_ns)
        late = min(event.wait_prev_ns, max(0, left - (event.duration_ns - event.wait_prev_ns)))
    return Waits(event.wait_prev_ns - late, late, event.wait_next_ns)


@dataclass(frozen=True)
class RankSummary:
    """One rank of a call.

    Attributes:
        rank: its number.
        took_ns: from the start of its first verb to the end of its last, its channels added up.
        worked_ns: the part of it in verbs, without waits. A rank that the system suspends within a
            verb counts as working.
        waited_ns: the part of it that it waited for each other rank; ranks without waits are left
            out.
        late_ns: the part of it that it waited although its data was there: :class:`Waits`.
    """

    rank: int
    took_ns: int
    worked_ns: int
    waited_ns: dict[int, int]
    late_ns: int

    @property
    def waited_share(self) -> float:
        """Returns the share of its time that it waited, 0 to 1."""
        return self._share(sum(self.waited_ns.values()) + self.late_ns)

    def text(self) -> str:
        """Returns a text such as ``"waited 48%: 40% for rank 1, 3% for rank 3, 5% late"``."""
        parts = [(ns, f"for rank {rank}") for rank, ns in self.waited_ns.items()]
        parts = [*sorted(parts, reverse=True), (self.late_ns, "late")]
        words = [f"{self._share(ns):.0%} {what}" for ns, what in parts if self._share(ns) >= 0.005]
        return f"waited {self.waited_share:.0%}: {', '.join(words)}" if words else "hardly waited"

    def _share(self, time_ns: int) -> float:
        return time_ns / self.took_ns if self.took_ns else 0.0


@dataclass(frozen=True)
class Summary:
    """The summary of a call.

    Attributes:
        call_ns: from the first start to the last end of all ranks.
        ranks: one for each rank, by rank.
        slowest: the rank that worked longest.
        device: as :attr:`Trace.device`.
    """

    call_ns: int
    ranks: tuple[RankSummary, ...]
    slowest: int
    device: str

    def reason(self) -> str:
        """Returns the cause of most of the waiting, as a sentence; empty: there was almost none."""
        late = sum(one.late_ns for one in self.ranks)
        waited = late + sum(sum(one.waited_ns.values()) for one in self.ranks)
        if waited < 0.05 * sum(one.took_ns for one in self.ranks):
            return ""
        if late > 0.25 * waited:
            cause = {"cpu": "More ranks than free cores do", "cuda": "Processes on one GPU do"}
            return (
                f"{late / waited:.0%} of the waiting was late: data was there, and the rank did "
                f"not run. {cause[self.device]} that."
            )
        return f"Rank {self.slowest} worked longest."

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data, for JSON; times in ns."""
        return {
            "call_ns": self.call_ns,
            "slowest_rank": self.slowest,
            "ranks": [
                {
                    "rank": one.rank,
                    "took_ns": one.took_ns,
                    "worked_ns": one.worked_ns,
                    "waited_share": round(one.waited_share, 4),
                    "waited_ns_for": {str(rank): ns for rank, ns in one.waited_ns.items()},
                    "late_ns": one.late_ns,
                }
                for one in self.ranks
            ],
        }


def summarize(trace: Trace) -> Summary:
    """Adds up the events of a trace."""
    ranks = []
    for rank in range(trace.ranks):
        took = worked = late = 0
        waited: dict[int, int] = defaultdict(int)
        for channel in range(trace.channels):
            events = trace.of(rank, channel)
            if events:
                took += events[-1].end_ns - events[0].start_ns
            for event in events:
                worked += event.duration_ns - event.wait_ns
                of_verb = waits(trace, event)
                waited[trace.prev(rank, channel)] += of_verb.prev
                waited[trace.next(rank, channel)] += of_verb.next
                late += of_verb.late
        for_whom = {whom: ns for whom, ns in sorted(waited.items()) if ns}
        ranks.append(RankSummary(rank, took, worked, for_whom, late))
    slowest = max(ranks, key=lambda one: one.worked_ns).rank
    return Summary(trace.duration_ns, tuple(ranks), slowest, trace.device)


def title(trace: Trace) -> str:
    """Returns a title such as ``"all_reduce of 1M (float32) over 4 ranks, simple, cpu"``."""
    size = size_text(trace.count * itemsize(trace))
    channels = f", {trace.channels} channels" if trace.channels > 1 else ""
    return (
        f"{trace.collective} of {size} ({trace.dtype}) over {trace.ranks} ranks, "
        f"{trace.protocol}, {trace.device}{channels}"
    )


def circumstances(trace: Trace) -> str:
    """Returns the circumstances: machine, cores, versions, date."""
    known = trace.machine
    words = [str(known["cpu"])] if "cpu" in known else []
    words += [str(known["gpus"])] if "gpus" in known else []
    words += [f"{known['cores']} cores"] if "cores" in known else []
    words += [f"{name} {known[name]}" for name in ("ringkern", "torch") if name in known]
    return ", ".join([*words, trace.date[:16].replace("T", " ") + " UTC"])


def itemsize(trace: Trace) -> int:
    """Returns the bytes of an element."""
    kind: torch.dtype = getattr(torch, trace.dtype)
    return kind.itemsize


def say_ns(time_ns: float) -> str:
    """Formats a time, such as ``"812 ns"``, ``"41.2 us"``, ``"3.07 ms"``."""
    unit = next((name for name in ("s", "ms", "us") if time_ns >= UNITS[name]), "ns")
    number = time_ns / UNITS[unit]
    return f"{number:.0f} {unit}" if number >= 100 or unit == "ns" else f"{number:#.3g} {unit}"
