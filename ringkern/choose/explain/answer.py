"""Explains the way of a call, from the table, the costs and the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ... import _C
from ...arguments import way_asked
from .. import tables
from ..cost import ANY_SIZE, Way, bus_bandwidth, hops, wire_bytes
from ..tuning import COLLECTIVES, LIKE
from .explanation import Candidate, Explanation


def explain(
    device: str,
    ranks: int,
    nbytes: int,
    *,
    dtype: torch.dtype | str = "float32",
    collective: str = "all_reduce",
    algorithm: str = "auto",
    protocol: str = "auto",
    deterministic: str = "auto",
    accumulate: str = "auto",
    lists: dict[str, tables.Rows] | None = None,
    source: str | None = None,
) -> Explanation:
    """Explains how a call would be run, and why. Needs no group.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        ranks: their number, 1 or more.
        nbytes: as :class:`Explanation` counts them; rounded up to an element.
        dtype: of torch, or its name.
        collective: ``"all_reduce"``, ``"reduce_scatter"``, ``"all_gather"``, ``"broadcast"`` or
            ``"reduce"``.
        algorithm, protocol, deterministic, accumulate: see :func:`ringkern.ring_all_reduce`;
            ``"auto"``: the setting in the environment.
        lists: the tuner's lists of an existing ring; ``None``: those of a ring made now.
        source: the origin of ``lists``, in words.

    Raises:
        ValueError: an argument has another value, or the device does not have the requested
            way.
    """
    name = str(dtype).removeprefix("torch.")
    known = _C.build_info()["dtypes"]
    if device not in tables.DEVICES:
        raise ValueError(f"unknown device {device!r}; choose one of {', '.join(tables.DEVICES)}")
    if name not in known:
        raise ValueError(f"unknown dtype {name!r}; choose one of {', '.join(known)}")
    if collective not in (*COLLECTIVES, *LIKE):
        names = ", ".join((*COLLECTIVES, *LIKE))
        raise ValueError(f"unknown collective {collective!r}; choose one of {names}")
    if not 1 <= ranks <= _C.most_ranks or nbytes < 0:
        most = f"1 to {_C.most_ranks} ranks"
        raise ValueError(f"{ranks} ranks, {nbytes} bytes: give {most}, and no less than 0")
    if lists is None:
        lists, source = tables.table(device, ranks), tables.source(device, ranks)
    way = way_asked(algorithm, protocol, deterministic, accumulate, device)
    asked = _Asked(way, algorithm, protocol)
    question = _Question(device, ranks, collective, name, lists, asked)
    return question.answer(nbytes, source or "the table of rank 0")


@dataclass(frozen=True)
class _Asked:
    """The request of the caller, or of the environment."""

    way: tuple[str, str, bool, bool]
    algorithm: str
    protocol: str

    @property
    def origin(self) -> str | None:
        """Returns the origin of the request in words, or ``None`` if nothing was requested."""
        words = []
        for what, given, found in zip(
            ("algorithm", "protocol"), (self.algorithm, self.protocol), self.way
        ):
            if found != "auto":
                where = f"RINGKERN_{what.upper()}=" if given == "auto" else f"{what}="
                words.append(f"{where}{found}")
        return " and ".join(words) or None


class _Question:
    """The question about a call, except for the size."""

    def __init__(
        self,
        device: str,
        ranks: int,
        collective: str,
        dtype: str,
        lists: dict[str, tables.Rows],
        asked: _Asked,
    ) -> None:
        self._device, self._ranks, self._collective = device, ranks, collective
        self._dtype, self._lists, self._asked = dtype, lists, asked
        self._width: int = getattr(torch, dtype).itemsize
        self._in_rank_order = _C.not_by_ring(collective, dtype, *asked.way[2:])
        self._parts = ranks if collective in ("reduce_scatter", "all_gather") else 1
        self._costs = tables.costs(device, ranks)

    def chosen(self, nbytes: int) -> Way:
        """Returns the way of a call of this size."""
        part = self._count(nbytes) * self._width
        about = (self._device, self._lists, self._collective, self._dtype)
        asked = (*about, part, *self._asked.way)
        return Way(*_C.choose(*asked))

    def _count(self, nbytes: int) -> int:
        return -(-nbytes // (self._width * self._parts))

    def _plan(self, way: Way, nbytes: int) -> dict[str, int] | None:
        about = (self._device, self._collective, way.algorithm, way.protocol, self._ranks)
        return _C.describe(*about, self._count(nbytes), self._dtype)

    def _time_us(self, way: Way, nbytes: int) -> float | None:
        like = LIKE.get(self._collective, self._collective)
        if (like, way) not in self._costs.measured.ways:
            return None
        cost = self._costs.measured.ways[like, way].cost
        return cost.time_us(way, self._collective, self._ranks, nbytes)

    def _names(self) -> list[Way]:
        algorithms = _C.algorithms if self._collective == "all_reduce" else ("ring",)
        return [Way(a, p) for a in algorithms for p in _C.protocols]

    def answer(self, nbytes: int, source: str) -> Explanation:
        way = self.chosen(nbytes)
        time_us = self._time_us(way, nbytes)
        plan = self._plan(way, nbytes) or {}
        origin = self._asked.origin
        if origin is None or "auto" in self._asked.way[:2]:
            origin = f"{origin}; the rest by {source}" if origin else f"by {source}"
        elif self._in_rank_order:
            origin += f" and {self._in_rank_order}"
        chunk = plan.get("chunk")
        return Explanation(
            collective=self._collective,
            device=self._device,
            ranks=self._ranks,
            nbytes=nbytes,
            dtype=self._dtype,
            origin=origin,
            source=self._costs.source,
            way=way._replace(channels=plan.get("channels", 0)),
            time_us=time_us,
            bus_gb_s=self._bus(nbytes, time_us),
            hops=hops(way, self._collective, self._ranks),
            wire_bytes=wire_bytes(way, self._collective, self._ranks, nbytes, self._device),
            chunk_bytes=None if chunk is None else chunk * self._width,
            slices=plan.get("slices"),
            rounds=plan.get("rounds"),
            slots=plan.get("slots"),
            staging_bytes=plan.get("staging_bytes"),
            segment_bytes=plan.get("segment_bytes"),
            candidates=self._candidates(nbytes, way, time_us),
            crossovers=tuple(self.crossovers()),
            times=self._curves(),
        )

    def _bus(self, nbytes: int, time_us: float | None) -> float | None:
        if time_us is None or self._ranks == 1:
            return None
        return bus_bandwidth(self._collective, self._ranks, nbytes, time_us)

    def _candidates(
        self, nbytes: int, chosen: Way, chosen_us: float | None
    ) -> tuple[Candidate, ...]:
        found = []
        for way in self._names():
            plan = self._plan(way, nbytes)
            time_us = None if plan is None else self._time_us(way, nbytes)
            ratio = time_us / chosen_us if time_us and chosen_us else None
            why = "chosen" if way == chosen else self._why_not(way, nbytes, ratio)
            channels = (plan or {}).get("channels", 0)
            found.append(Candidate(way._replace(channels=channels), time_us, ratio, why))
        found.sort(key=lambda c: (c.why != "chosen", c.time_us is None, c.time_us or 0.0))
        return tuple(found)

    def _why_not(self, way: Way, nbytes: int, ratio: float | None) -> str:
        about = (self._device, self._collective, self._ranks, self._dtype)
        if impossible := _C.why_not(*about, way[:2], *self._asked.way):
            return impossible
        if ratio is None:
            return "no time is known of it here"
        like = LIKE.get(self._collective, self._collective)
        if nbytes > self._costs.measured.largest(like, way):
            return "too slow at smaller sizes, and not measured here"
        if not tables.may_be_unasked(way, self._device):
            return "never chosen unasked: not all GPUs see its lines of 128 bytes whole"
        if ratio < 1:
            return f"{1 - ratio:.1%} quicker: too little to be chosen"
        return "slower" if ratio > 1 else "as quick"

    def _curves(self) -> dict[Way, Callable[[int], float]]:
        def line(way: Way) -> Callable[[int], float]:
            return lambda size: self._time_us(way, size) or 0.0

        return {way: line(way) for way in self._names() if self._time_us(way, 8) is not None}

    def crossovers(self) -> list[tuple[int, str]]:
        """Returns (bytes, the way chosen from there on), in rising order; the first at 1."""
        edges = {1}
        for rows in self._lists.values():
            edges |= {below * self._parts for below, *_ in rows if below != ANY_SIZE}
        found: list[tuple[int, str]] = []
        for edge in sorted(edges):
            chosen = str(self.chosen(edge))
            if not found or found[-1][1] != chosen:
                found.append((edge, chosen))
        return found
