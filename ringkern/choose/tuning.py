"""The costs of each way on a machine, measured by ``python -m ringkern tune`` or predicted by
``model``; also as text.

They are kept in a JSON file, see ``ringkern.choose.cache``. Nothing here needs torch.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from .. import decode
from ..decode import Within
from .cost import ANY_SIZE, Cost, Tier, Way
from .identity import Identity

FORMAT = "ringkern tuning"
VERSION = 1

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
# Collectives that are not measured, and the one whose costs they have: a broadcast only moves data,
# like an all-gather; a reduce adds, like a reduce-scatter.
LIKE = {"broadcast": "all_gather", "reduce": "reduce_scatter"}
RING = tuple(Way("ring", protocol) for protocol in ("simple", "ll", "ll128"))
# The all-reduces without the ring, for each kind of device; of equal ones, the first is taken.
DIRECT = {
    "cpu": (Way("two_shot", "simple"), Way("one_shot", "simple"), Way("one_shot", "ll")),
    "cuda": (Way("one_shot", "ll"), Way("two_shot", "ll")),
}

_MOST_TIERS = 64


class TuningError(ValueError):
    """A tuning file cannot be used; the text says why."""


@dataclass(frozen=True)
class Fitted:
    """The cost of one way, and the points to which it was fitted.

    Attributes:
        cost: with the sizes of :func:`ringkern.choose.cost.wire_bytes`.
        points: measured (bytes, microseconds); none if the cost was predicted.
    """

    cost: Cost
    points: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Measured:
    """The result of one run of ``tune``, or of the predictions of ``model``.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``.
        ranks: number of ranks, all on one machine.
        date: such as ``"2026-11-21"``; or ``"predicted"``.
        command: the command that measured it.
        ways: by collective and way; all of :func:`ways_of`.
        gpu: the model on which all ranks were, in one process; ``""`` for a CPU.
    """

    device: str
    ranks: int
    date: str
    command: str
    ways: dict[tuple[str, Way], Fitted]
    gpu: str = ""

    def largest(self, collective: str, way: Way) -> int:
        """Returns the bytes up to which a collective was measured on a way; any if it is the most.

        A way that others exceed was slow at smaller sizes, and its cost at larger ones is a guess.
        """
        largest = {
            key: max((size for size, _ in fitted.points), default=0)
            for key, fitted in self.ways.items()
            if key[0] == collective
        }
        own = largest[collective, way]
        return ANY_SIZE if own == max(largest.values()) else own


@dataclass(frozen=True)
class Tuning:
    """The content of a tuning file.

    Attributes:
        machine: the machine on which it was measured, and for which it holds.
        measured: one for each device and number of ranks.
    """

    machine: Identity
    measured: tuple[Measured, ...]

    def with_measured(self, new: Measured) -> Tuning:
        """Returns a copy in which ``new`` replaces the measurements of its device and ranks."""
        kept = [m for m in self.measured if (m.device, m.ranks) != (new.device, new.ranks)]
        everything = sorted([*kept, new], key=lambda m: (m.device, m.ranks))
        return Tuning(self.machine, tuple(everything))


def ways_of(collective: str, device: str) -> tuple[Way, ...]:
    """Returns the ways of a collective that are measured and chosen from on a kind of device.

    Leaves out two_shot over Simple in a ring on one CUDA device, which needs no measurement: it is
    the fastest at every size.
    """
    return (*DIRECT[device], *RING) if collective == "all_reduce" else RING


# ---- reading ------------------------------------------------------------------------------------


_Number = Annotated[float, Within(0.0, math.inf)]
_Size = Annotated[int, Within(1, ANY_SIZE)]
_Positive = Annotated[float, Within(1e-9, math.inf)]


@dataclass(frozen=True)
class _Way:
    """A line of the file; the last tier has no end."""

    collective: str
    algorithm: str
    protocol: str
    channels: Annotated[int, Within(1, 64)]
    base_us: _Number
    hop_us: _Number
    tiers: Annotated[tuple[tuple[_Size | None, _Positive], ...], Within(1, _MOST_TIERS)]
    points: tuple[tuple[_Size, _Positive], ...]


@dataclass(frozen=True)
class _Run:
    device: Literal["cpu", "cuda"]
    ranks: Annotated[int, Within(2, 1024)]
    date: str
    command: str
    ways: tuple[_Way, ...]
    gpu: Annotated[str, Within(0, 100)]


@dataclass(frozen=True)
class _File:
    format: Literal["ringkern tuning"]
    version: Literal[1]
    machine: Identity
    measured: tuple[_Run, ...]


def parse(text: str) -> Tuning:
    """Returns the content of a tuning file.

    Raises:
        TuningError: some of it is not in the form that :func:`dump` writes.
    """
    try:
        content = decode.load(text, "the text")
        if isinstance(content, dict) and isinstance(content.get("measured"), list):
            for run in content["measured"]:
                if isinstance(run, dict):
                    run.setdefault("gpu", "")  # as in files from before this field
        file: _File = decode.build(_File, content, "the text")
    except ValueError as error:
        raise TuningError(str(error)) from None
    measured = tuple(map(_measured, file.measured))
    if len({(m.device, m.ranks) for m in measured}) != len(measured):
        raise TuningError("it has two measurements of the same device and ranks")
    return Tuning(file.machine, measured)


def machine_in(text: str) -> Identity:
    """Returns the machine of a tuning file.

    Raises:
        TuningError: the text names none.
    """
    try:
        content = decode.load(text, "the text")
        found: Identity = decode.build(Identity, dict(content)["machine"], "the machine")
    except (KeyError, TypeError, ValueError) as error:
        raise TuningError(f"it names no machine: {error}") from None
    return found


def _measured(run: _Run) -> Measured:
    device = run.device
    ways = dict(_fitted(way, device) for way in run.ways)
    known = {(collective, way) for collective in COLLECTIVES for way in ways_of(collective, device)}
    if set(ways) != known or len(ways) != len(run.ways):
        raise TuningError("it must list each way of each collective exactly once")
    if bool(run.gpu) != (device == "cuda"):
        raise TuningError(f"device {device} has gpu {run.gpu!r}; a measurement of cuda names one")
    return Measured(device, run.ranks, run.date, run.command, ways, run.gpu)


def _fitted(found: _Way, device: str) -> tuple[tuple[str, Way], Fitted]:
    way = Way(found.algorithm, found.protocol, found.channels)
    tiers = tuple(Tier(end or ANY_SIZE, gb_s) for end, gb_s in found.tiers)
    sizes = [tier.up_to for tier in tiers]
    if sizes[-1] != ANY_SIZE or sizes != sorted(set(sizes)):
        raise TuningError(
            f"{found.collective} {way}: tiers end at {sizes}; accepted: rising sizes, null last"
        )
    cost = Cost(found.base_us, found.hop_us, tiers, device)
    return (found.collective, way), Fitted(cost, found.points)


# ---- writing ------------------------------------------------------------------------------------


def dump(tuning: Tuning) -> str:
    """Returns the text of a file."""
    head = {"format": FORMAT, "version": VERSION, "machine": asdict(tuning.machine)}
    lines = []
    for m in tuning.measured:
        about = {"device": m.device, "ranks": m.ranks, "date": m.date, "command": m.command}
        about |= {"gpu": m.gpu} if m.gpu else {}
        ways = ",\n    ".join(json.dumps(_plain(*item)) for item in m.ways.items())
        lines.append(f'{json.dumps(about)[:-1]}, "ways": [\n    {ways}]}}')
    return f'{json.dumps(head)[:-1]},\n "measured": [\n  {",  ".join(lines)}\n ]}}\n'


def _plain(key: tuple[str, Way], fitted: Fitted) -> dict[str, Any]:
    collective, way = key
    cost = fitted.cost
    tiers = [[None if t.up_to == ANY_SIZE else t.up_to, _short(t.gb_s)] for t in cost.tiers]
    return {
        "collective": collective,
        **way._asdict(),
        "base_us": _short(cost.base_us),
        "hop_us": _short(cost.hop_us),
        "tiers": tiers,
        "points": [[size, _short(time)] for size, time in fitted.points],
    }


def _short(number: float) -> float:
    return float(f"{number:.5g}")
