"""Records a trace: an all-reduce round the ring, on all ranks of a group, with a clock."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TypeAlias, cast

import torch
import torch.distributed as dist

from ... import _C
from ...choose import identity
from ...comm import communicator_for
from ...config import PROTOCOLS
from .. import exact
from .align import align
from .events import Event, Trace

Rows: TypeAlias = "list[_C.TimedRow]"
SEVERAL = "%globaltimer of several GPUs, aligned as if links were equally fast"


def record(
    size_bytes: int,
    *,
    protocol: str = "auto",
    dtype: str = "float32",
    warmup: int = 3,
    repeats: int = 5,
    device: str = "cpu",
    group: dist.ProcessGroup | None = None,
    command: str = "",
) -> Trace | None:
    """Records sums round the ring of the group, and keeps the one of median duration.

    All ranks call it, with the same arguments. They start each call together: a small all-reduce
    on the same ring comes right before it. The result of each recorded call is checked, bit for
    bit.

    The clock of CPU ranks is CLOCK_MONOTONIC, which all processes of a machine share; it is read
    twice per verb, and twice per wait. The clock of CUDA ranks is the GPU's global timer, whose
    tick may be coarser. If ranks are on several GPUs, whose timers drift apart, their times are
    shifted so that all links are equally fast (:func:`ringkern.tools.trace.align.align`);
    ``machine["clock"]`` says so. A traced call runs separate code and kernels, so that other calls
    are not slowed down.

    Args:
        size_bytes: of each rank's tensor; rounded down to whole elements, and up to one.
        protocol: ``"simple"``, ``"ll"``, ``"ll128"``; ``"auto"``: ``"simple"``.
        dtype: torch's name; on CUDA only ``"float32"``.
        warmup: calls before the recorded ones; the first call connects the ranks.
        repeats: number of recorded calls.
        device: ``"cpu"``, or ``"cuda"``: each rank's current GPU.
        group: None: the default group.
        command: the current command, noted in the trace.

    Returns:
        The trace, on rank 0 of the group; None on the others.

    Raises:
        ValueError: the group has one rank, which sends nothing; the protocol or dtype is unknown;
            or the call has too many verbs. Raised on all ranks, before anything is sent.
        RuntimeError: a recorded call had a wrong result.
    """
    count, element = _elements(size_bytes, dtype)
    protocol = _protocol(protocol)
    if min(repeats, warmup + 1) < 1:
        raise ValueError(f"repeats is {repeats} and warmup {warmup}; give 1 or more, 0 or more")
    communicator = communicator_for(group)
    ranks = communicator.size
    if ranks < 2:
        raise ValueError("a ring of one rank sends nothing; trace 2 ranks or more")
    if (hosts := communicator.hosts).count > 1:
        raise ValueError(
            f"the ranks are on {hosts.count} hosts, and a trace is of one ring: give a group of "
            "ranks of one host"
        )
    ring = cast(_C.Communicator, communicator._c)
    given, expected = exact.all_reduce("sum", element, communicator.rank, ranks, count)
    given = given.to(device)
    tensor, together = torch.empty_like(given), torch.zeros(1, device=device)
    calls: list[Rows] = []
    for call in range(warmup + repeats):
        tensor.copy_(given)
        communicator.all_reduce(together)
        rows = ring.record_all_reduce(tensor, protocol)
        if wrong := exact.differences(tensor.cpu(), expected):
            raise RuntimeError(f"{wrong} of {count} elements of the traced all-reduce are wrong")
        if call >= warmup:
            calls.append(rows)
    kept = _typical(calls, group)
    clock = _clock(device, group)
    all_rows = _gather(calls[kept], communicator.rank, ranks, group)
    if all_rows is None:
        return None
    start = min((row[7] for rows in all_rows for row in rows), default=0)
    trace = Trace(
        ranks=ranks,
        channels=1 + max((row[0] for row in all_rows[0]), default=0),
        orders=_orders(all_rows),
        collective="all_reduce",
        protocol=protocol,
        dtype=dtype,
        count=count,
        device=device,
        repeats=repeats,
        kept=kept,
        machine={**_machine(), "clock": clock},
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=command,
        events=tuple(
            sorted(
                (_event(rank, row, start) for rank, rows in enumerate(all_rows) for row in rows),
                key=lambda event: event.start_ns,
            )
        ),
    )
    if clock == SEVERAL:
        trace = align(trace)
    trace.check()
    return trace


def _elements(size_bytes: int, dtype: str) -> tuple[int, torch.dtype]:
    if size_bytes < 0:
        raise ValueError(f"size_bytes is {size_bytes}; give 0 or more")
    names = _C.build_info()["dtypes"]
    if dtype not in names:
        raise ValueError(f"unknown dtype {dtype!r}; choose one of {', '.join(names)}")
    element: torch.dtype = getattr(torch, dtype)
    return max(1, size_bytes // element.itemsize), element


def _protocol(protocol: str) -> str:
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}; choose one of {', '.join(PROTOCOLS)}")
    return "simple" if protocol == "auto" else protocol


def _clock(device: str, group: dist.ProcessGroup | None) -> str:
    """Returns a description of the clock; the same on all ranks."""
    if device == "cpu":
        return "CLOCK_MONOTONIC"
    gpus: list[str] = [""] * dist.get_world_size(group)
    dist.all_gather_object(gpus, str(torch.cuda.get_device_properties(device).uuid), group)
    return "%globaltimer" if len(set(gpus)) == 1 else SEVERAL


def _typical(calls: list[Rows], group: dist.ProcessGroup | None) -> int:
    """Returns the index of the call of median duration, over all ranks' starts and ends."""
    spans = [(min(row[7] for row in rows), max(row[8] for row in rows)) for rows in calls]
    of_all: list[list[tuple[int, int]]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(of_all, spans, group)
    durations = [
        max(end for _, end in call) - min(start for start, _ in call)
        for call in zip(*of_all, strict=True)
    ]
    return sorted(range(len(calls)), key=durations.__getitem__)[len(calls) // 2]


def _gather(
    rows: Rows, rank: int, ranks: int, group: dist.ProcessGroup | None
) -> list[Rows] | None:
    first = dist.get_global_rank(group, 0) if group is not None else 0
    all_rows: list[Rows] | None = [[] for _ in range(ranks)] if rank == 0 else None
    dist.gather_object(rows, all_rows, first, group)
    return all_rows


def _orders(all_rows: list[Rows]) -> tuple[tuple[int, ...], ...]:
    """Returns the ring of each channel, from the events: in step 0, each rank sends the chunk of
    the position before its own."""
    ranks = len(all_rows)
    positions: dict[int, dict[int, int]] = {}
    for rank, rows in enumerate(all_rows):
        for channel, loop, step, _, owner, *_ in rows:
            if loop == step == 0:
                positions.setdefault(channel, {})[(owner + 1) % ranks] = rank
    return tuple(
        tuple(rank for _, rank in sorted(positions[channel].items()))
        for channel in sorted(positions)
    )


def _event(rank: int, row: _C.TimedRow, start: int) -> Event:
    channel, loop, step, verb, owner, offset, count, begins, ends, for_prev, for_next = row
    times = begins - start, ends - start, for_prev, for_next
    return Event(rank, channel, loop, step, verb, owner, offset, count, *times)


def _machine() -> dict[str, str | int | float]:
    here = identity.of_this_machine(_C.wire_version)
    machine: dict[str, str | int | float] = {"cpu": here.cpu, "cores": here.cores}
    if here.gpus:
        machine["gpus"] = f"{len(here.gpus)} x {here.gpus[0]}"
    return machine | {"ringkern": _C.version, "torch": str(torch.__version__)}
