"""Probes of profilers and debuggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.torch.support.groups import SECONDS
from tests.torch.support.registry import expect, row

SECTION = "Profiler and debugging"


def _profiled(call: Callable[[], Any]) -> list[Any]:
    """Profiles without Kineto, whose start takes seconds in each rank; the events are the same."""
    with torch.autograd.profiler.profile(use_kineto=False, record_shapes=True) as profile:
        call()
    return list(profile.function_events or ())


def _around(rank: int, size: int) -> None:
    work = dist.isend(torch.zeros(27), (rank + 1) % size)
    dist.recv(torch.zeros(27), (rank - 1) % size)
    work.wait()


CALLS: dict[str, Callable[[int, int], Any]] = {
    "all_reduce": lambda rank, size: dist.all_reduce(torch.zeros(27)),
    "broadcast": lambda rank, size: dist.broadcast(torch.zeros(27), 0),
    "all_gather_single": lambda r, size: dist.all_gather_into_tensor(
        torch.zeros(27 * size), torch.zeros(27)
    ),
    "all_to_all_single": lambda rank, size: dist.all_to_all_single(torch.zeros(27), torch.ones(27)),
    "barrier": lambda rank, size: dist.barrier(),
    "send recv": _around,
}


def event(rank: int, size: int, names: str) -> str:
    events = _profiled(lambda: CALLS[names](rank, size))
    prefix = f"{dist.get_backend()}:"
    own = sorted({event.name for event in events if event.name.startswith(prefix)})
    expect(own, f"no event of {prefix[:-1]}")
    return ", ".join(f"`{name}`" for name in own)


for names in CALLS:
    row(SECTION, names, "event of the profiler", cases={"": (names,)})(event)


@row(SECTION, "all_reduce", "sizes of the event")
def shapes(rank: int, size: int) -> None:
    events = _profiled(lambda: dist.all_reduce(torch.zeros(3, 9)))
    prefix = f"{dist.get_backend()}:"
    own = [event for event in events if event.name.startswith(prefix)]
    expect(own, f"no event of {prefix[:-1]}")
    expect(any([3, 9] in event.input_shapes for event in own), f"{own[0].input_shapes}")


@row(SECTION, "all_reduce", "event of the parameters, `record_param_comms`")
def record(rank: int, size: int) -> None:
    names = {event.name for event in _profiled(lambda: dist.all_reduce(torch.zeros(27)))}
    expect("record_param_comms" in names, "no such event")


@row(SECTION, "record_comm", "names the event")
def record_comm(rank: int, size: int) -> None:
    def call() -> None:
        with dist.record_comm("a name of the user"):
            dist.all_reduce(torch.zeros(27))

    names = {event.name for event in _profiled(call)}
    expect("a name of the user" in names, "no event of that name")


@row(SECTION, "set_debug_level", "`DETAIL` finds tensors of different sizes")
def detail(rank: int, size: int) -> None:
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group(timeout=SECONDS)
    dist.set_debug_level(before)
    dist.all_reduce(torch.zeros(4), group=group)
    said = "nothing"
    try:
        dist.all_reduce(torch.zeros(4 + rank), group=group)
    except RuntimeError as error:
        said = str(error)
    dist.barrier()
    dist.destroy_process_group(group)
    expect("shape" in said, f"it says {said}")
