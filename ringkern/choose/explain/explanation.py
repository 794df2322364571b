"""The answer of :func:`ringkern.choose.explain.explain`, as data and as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ...units import say_size, say_time
from ..cost import Way


@dataclass(frozen=True)
class Candidate:
    """A way that a call could go.

    Attributes:
        way: algorithm, protocol, and channels; 0 channels: not known here.
        time_us: predicted; ``None``: there is no such way here.
        ratio: its time over that of the chosen way.
        why: the reason why it was chosen, or not.
    """

    way: Way
    time_us: float | None
    ratio: float | None
    why: str


@dataclass(frozen=True)
class Explanation:
    """The way of a call, and the reasons for it.

    Bytes of tensors are counted as in nccl-tests: of the tensor of an all-reduce, a broadcast or a
    reduce, and of all ranks' parts of the other collectives. A value that is unknown here, such as
    the chunks of a device without kernels, is ``None``.

    Attributes:
        collective, device, ranks, nbytes, dtype: the call in question.
        origin: the origin of the choice, in words: the request, or the source of the table.
        source: the source of the predicted times, in words.
        way: the chosen way.
        time_us: predicted.
        bus_gb_s: bandwidth on each link of a ring, 1e9 bytes a second.
        hops: consecutive hops from rank to rank.
        wire_bytes: bytes that a rank sends, flags included.
        chunk_bytes: bytes that move at once on one channel.
        slices: parts of a chunk that are published separately.
        rounds: passes over the tensor, each with one chunk per channel and rank.
        slots: chunks, or slices, that may be in flight.
        staging_bytes: memory through which a rank's data goes.
        segment_bytes: shared or device memory of a rank for all ways.
        candidates: all of them, the chosen one first, then by their times.
        crossovers: (bytes, the way chosen from there on), in rising order.
        opened_by: how this rank has opened the device memory of others, ``"file descriptor"`` or
            ``"CUDA IPC"``, or both with ``" and "``; empty on a CPU, and before the first call.
        host_memory: a sentence for each rank with which this one shares only host memory: data
            between them go through the host, which ``time_us`` does not consider.
        between: for ranks on several hosts, the cut of the call and the data between the hosts, in
            words; the other fields then describe the first step in the ring of one host. ``None``:
            one host.
        times: for each way, a function from bytes to predicted microseconds; not in ``as_dict``.
    """

    collective: str
    device: str
    ranks: int
    nbytes: int
    dtype: str
    origin: str
    source: str
    way: Way
    time_us: float | None
    bus_gb_s: float | None
    hops: int
    wire_bytes: float
    chunk_bytes: int | None
    slices: int | None
    rounds: int | None
    slots: int | None
    staging_bytes: int | None
    segment_bytes: int | None
    candidates: tuple[Candidate, ...]
    crossovers: tuple[tuple[int, str], ...]
    times: dict[Way, Callable[[int], float]]
    between: str | None = None
    opened_by: str = ""
    host_memory: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data, for JSON."""
        plain = {k: getattr(self, k) for k in self.__dataclass_fields__ if k != "times"}
        plain["way"] = self.way._asdict()
        plain["candidates"] = [{**asdict(c), "way": c.way._asdict()} for c in self.candidates]
        return plain

    def __str__(self) -> str:
        of = f"{self.collective} of {say_size(self.nbytes)}B {self.dtype}"
        bandwidth = f", {self.bus_gb_s:.3g} GB/s on the bus" if self.bus_gb_s else ""
        # The names that tune uses. An all-reduce from Python takes some tenths of a microsecond
        # more.
        caller = "called from C++" if self.collective == "all_reduce" else "called from Python"
        caller = "in a CUDA graph" if self.device == "cuda" else caller
        where = "" if self.time_us is None else f", {caller}"
        by = "" if self.source in self.origin else f"; by {self.source}"
        lines = [self.between] if self.between else []
        lines += [
            f"{of}, {_some(self.ranks, 'rank')} on {self.device}: {self.way}",
            f"  chosen     {self.origin}",
            f"  predicted  {say_time(self.time_us)}{where}{bandwidth}{by}",
            f"  moves      {_some(self.hops, 'hop')} one after the other; each rank sends "
            f"{say_size(round(self.wire_bytes))}B",
        ]
        if self.chunk_bytes is not None:
            lines += [
                f"  cut in     {_some(self.rounds, 'round')} of "
                f"{_some(self.way.channels, 'channel')}; chunks of {say_size(self.chunk_bytes)}B "
                f"in {_some(self.slices, 'slice')}; {_some(self.slots, 'slot')}",
                f"  memory     {say_size(self.staging_bytes or 0)}B of a rank's "
                f"{say_size(self.segment_bytes or 0)}B",
            ]
        if self.opened_by:
            lines.append(f"  opened by  {self.opened_by}, the device memory of other ranks")
        lines += [f"  by host    {sentence}" for sentence in self.host_memory]
        lines.append(f"  {'way':<17}{'time':>10}{'ratio':>8}  why")
        for one in self.candidates:
            ratio = f"{one.ratio:.2f}" if one.ratio is not None else "-"
            lines.append(f"  {one.way!s:<17}{say_time(one.time_us):>10}{ratio:>8}  {one.why}")
        return "\n".join(lines)


def _some(number: int | None, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
