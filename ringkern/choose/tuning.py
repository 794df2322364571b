"""The costs of each way on a machine, as ``python -m ringkern tune`` measured them; as text too.

A file of JSON: ``ringkern.choose.cache`` says where it is. Nothing here needs torch.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from .cost import ANY_SIZE, Cost, Tier, Way
from .identity import Identity

FORMAT = "ringkern tuning"
VERSION = 1

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
RING = tuple(Way("ring", protocol) for protocol in ("simple", "ll", "ll128"))
# The all-reduces of a CPU that take no ring; the first of equal ones is taken.
DIRECT = (Way("two_shot", "simple"), Way("one_shot", "simple"), Way("one_shot", "ll"))

_MOST_TIERS = 64


class TuningError(ValueError):
    """A tuning file cannot be used; the text says why."""


@dataclass(frozen=True)
class Fitted:
    """One way's cost, and what it was fitted to.

    Attributes:
        cost: with the sizes of :func:`ringkern.choose.cost.wire_bytes`.
        points: (bytes, microseconds) as measured.
    """

    cost: Cost
    points: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Measured:
    """The result of one run of ``tune``.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``.
        ranks: number of ranks, all on one machine.
        date: as ``"2026-11-21"``.
        command: that measured it.
        ways: by collective and way; all of :func:`ways_of`.
    """

    device: str
    ranks: int
    date: str
    command: str
    ways: dict[tuple[str, Way], Fitted]

    def largest(self, collective: str, way: Way) -> int:
        """Bytes up to which a collective was measured on a way; any, where no other went further.

        Where only others were, it had been hopeless before, and what it costs there is a guess.
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
        machine: on which it was measured, and counts.
        measured: one for each device and number of ranks.
    """

    machine: Identity
    measured: tuple[Measured, ...]

    def with_measured(self, new: Measured) -> Tuning:
        """This with ``new`` in the place of what was measured of its device and ranks."""
        kept = [m for m in self.measured if (m.device, m.ranks) != (new.device, new.ranks)]
        everything = sorted([*kept, new], key=lambda m: (m.device, m.ranks))
        return Tuning(self.machine, tuple(everything))


def ways_of(collective: str) -> tuple[Way, ...]:
    """The ways of a collective that are measured and chosen from on a CPU."""
    return (*DIRECT, *RING) if collective == "all_reduce" else RING


# ---- reading ------------------------------------------------------------------------------------


def parse(text: str) -> Tuning:
    """The content of a tuning file.

    Raises:
        TuningError: anything in it is not as :func:`dump` writes it.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TuningError(f"it is no JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TuningError(f"its format is not {FORMAT!r}")
    if content.get("version") != VERSION:
        raise TuningError(f"its version is {content.get('version')!r}, and this reads {VERSION}")
    content = _Fields(content, "the file")
    content.keys("format", "version", "machine", "measured")
    measured = [_measured(_Fields(m, "measured")) for m in content.list("measured")]
    if len({(m.device, m.ranks) for m in measured}) != len(measured):
        raise TuningError("it has two measurements of the same device and ranks")
    return Tuning(_machine(_Fields(content["machine"], "machine")), tuple(measured))


class _Fields(dict[str, Any]):
    """An object of JSON whose values are looked at closely."""

    def __init__(self, content: object, what: str) -> None:
        if not isinstance(content, dict):
            raise TuningError(f"{what} is {content!r}")
        super().__init__(content)
        self._what = what

    def keys(self, *names: str) -> None:  # type: ignore[override]
        if set(self) != set(names):
            raise TuningError(f"{self._what} has {sorted(self)}, not {sorted(names)}")

    def list(self, name: str) -> list[Any]:
        found: list[Any] = self._of(name, list)
        return found

    def text(self, name: str) -> str:
        found: str = self._of(name, str)
        return found

    def whole(self, name: str, least: int, most: int) -> int:
        value: int = self._of(name, int)
        if isinstance(value, bool) or not least <= value <= most:
            raise TuningError(f"{self._what}: {name} is {value!r}")
        return value

    def number(self, name: str) -> float:
        return _number(self[name], f"{self._what}: {name}")

    def _of(self, name: str, kind: type) -> Any:
        if not isinstance(self[name], kind):
            raise TuningError(f"{self._what}: {name} is {self[name]!r}")
        return self[name]


def _number(value: object, what: str, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TuningError(f"{what} is {value!r}")
    if not (least <= value and math.isfinite(value)):
        raise TuningError(f"{what} is {value!r}")
    return float(value)


def _machine(fields: _Fields) -> Identity:
    fields.keys("cpu", "cores", "caches", "gpus", "wire")
    sizes, gpus = fields.list("caches"), fields.list("gpus")
    if not all(isinstance(size, int) for size in sizes):
        raise TuningError(f"machine: caches is {sizes!r}")
    if not all(isinstance(gpu, str) for gpu in gpus):
        raise TuningError(f"machine: gpus is {gpus!r}")
    cores, wire = fields.whole("cores", 1, 1 << 20), fields.whole("wire", 0, 1 << 32)
    return Identity(fields.text("cpu"), cores, tuple(sizes), tuple(gpus), wire)


def _measured(fields: _Fields) -> Measured:
    fields.keys("device", "ranks", "date", "command", "ways")
    ways = dict(_fitted(_Fields(way, "a way")) for way in fields.list("ways"))
    known = {(collective, way) for collective in COLLECTIVES for way in ways_of(collective)}
    if set(ways) != known or len(ways) != len(fields["ways"]):
        raise TuningError("it has not each way of each collective once")
    if fields["device"] != "cpu":
        raise TuningError(f"device is {fields['device']!r}, and only a cpu is measured")
    ranks = fields.whole("ranks", 2, 1024)
    return Measured("cpu", ranks, fields.text("date"), fields.text("command"), ways)


def _fitted(fields: _Fields) -> tuple[tuple[str, Way], Fitted]:
    names = ("collective", "algorithm", "protocol", "channels")
    fields.keys(*names, "base_us", "hop_us", "tiers", "points")
    channels = fields.whole("channels", 1, 64)
    way = Way(fields.text("algorithm"), fields.text("protocol"), channels)
    tiers = [_tier(pair) for pair in fields.list("tiers")]
    sizes = [tier.up_to for tier in tiers]
    if not 1 <= len(tiers) <= _MOST_TIERS or sizes[-1] != ANY_SIZE or sizes != sorted(set(sizes)):
        raise TuningError(f"{way}: its tiers are {fields['tiers']!r}")
    cost = Cost(fields.number("base_us"), fields.number("hop_us"), tuple(tiers))
    points = [_pair(pair, "a point") for pair in fields.list("points")]
    return (fields.text("collective"), way), Fitted(cost, tuple(points))


def _tier(pair: object) -> Tier:
    # The last one has no end.
    if isinstance(pair, list) and pair[:1] == [None]:
        pair = [ANY_SIZE, *pair[1:]]
    return Tier(*_pair(pair, "a tier"))


def _pair(pair: object, what: str) -> tuple[int, float]:
    if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int or pair[0] < 1:
        raise TuningError(f"{what} is {pair!r}")
    return pair[0], _number(pair[1], what, least=1e-9)


# ---- writing ------------------------------------------------------------------------------------


def dump(tuning: Tuning) -> str:
    """The text of a file."""
    head = {"format": FORMAT, "version": VERSION, "machine": asdict(tuning.machine)}
    lines = []
    for m in tuning.measured:
        about = {"device": m.device, "ranks": m.ranks, "date": m.date, "command": m.command}
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
