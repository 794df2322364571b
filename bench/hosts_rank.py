"""A rank of bench/hosts.py does: calls the contenders in turn, and counts bytes."""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

import ringkern
from ringkern.tools import exact

CONTENDERS = ("ringkern", "backend", "gloo")
MOST_CALLS = 500  # in a repeat
SETTLE_S = 0.1  # until the last acknowledgement has crossed, and the last rank has returned

AllReduce = Callable[[torch.Tensor], object]


@dataclass(frozen=True)
class Result:
    """One contender and one size.

    Attributes:
        time_us: of a call: the median of the repeats.
        times_us: of each repeat the mean of its calls, on its slowest rank.
        calls: in each repeat.
        wrong: elements that differ from the exact sum, of all ranks.
        sent_bytes, received_bytes: of a call, by host, with all headers, as its interface counts;
            None where no interface is known.
    """

    time_us: float
    times_us: list[float]
    calls: int
    wrong: int
    sent_bytes: list[float] | None
    received_bytes: list[float] | None


@dataclass(frozen=True)
class Here:
    """Where this rank is.

    Attributes:
        ranks: how many each host has.
        counts: this rank counts its host's bytes.
        device: the interface where they are counted, if it is known.
    """

    ranks: list[int]
    counts: bool
    device: str | None

    @classmethod
    def find(cls) -> Here:
        """Set by torchrun, or by another launcher."""
        local: list[int] = [0] * dist.get_world_size()
        dist.all_gather_object(local, int(os.environ["LOCAL_RANK"]))
        host_of = [local[: rank + 1].count(0) - 1 for rank in range(len(local))]
        ranks = [host_of.count(host) for host in range(host_of[-1] + 1)]
        return cls(ranks, local[dist.get_rank()] == 0, os.environ.get("GLOO_SOCKET_IFNAME"))

    def traffic(self) -> tuple[int, int]:
        """Bytes that the host has sent and received until now."""
        for line in Path("/proc/self/net/dev").read_text().splitlines():
            name, _, counted = line.partition(":")
            if name.strip() == self.device:
                numbers = counted.split()
                return int(numbers[8]), int(numbers[0])
        raise OSError(f"GLOO_SOCKET_IFNAME={self.device}: /proc/self/net/dev has no such interface")


def contenders(names: list[str]) -> dict[str, AllReduce]:
    """Returns them by name; all ranks make them in the same order."""
    made: dict[str, AllReduce] = {}
    for name in names:
        if name == "ringkern":
            made[name] = ringkern.ring_all_reduce
        elif name == "backend":
            made[name] = functools.partial(
                dist.all_reduce, group=dist.new_group(backend="ringkern")
            )
        else:
            made[name] = dist.all_reduce
    return made


def row(
    field: dict[str, AllReduce], size: int, here: Here, repeats: int, seconds: float
) -> dict[str, Result]:
    """One size: every contender; about so many seconds for a repeat."""
    wrong = {name: check(call, size) for name, call in field.items()}
    x = torch.zeros(size // 4)
    calls = {name: agreed_calls(call, x, seconds) for name, call in field.items()}
    times: dict[str, list[float]] = {name: [] for name in field}
    for repeat in range(repeats):
        for name in field if repeat % 2 else reversed(field):
            times[name].append(mean_seconds(field[name], x, calls[name]))
    results = {}
    for name, call in field.items():
        times_us = [1e6 * mean for mean in slowest(times[name])]
        bytes_of = crossed(call, x, calls[name], here) or (None, None)
        results[name] = Result(
            statistics.median(times_us), times_us, calls[name], wrong[name], *bytes_of
        )
    return results


def check(call: AllReduce, size: int) -> int:
    """Elements that are not the exact sum, of all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    given, expected = exact.all_reduce("sum", torch.float32, rank, ranks, size // 4)
    call(given)
    wrong = torch.tensor([exact.differences(given, expected)])
    dist.all_reduce(wrong)
    return int(wrong)


def mean_seconds(call: AllReduce, x: torch.Tensor, calls: int) -> float:
    """Returns the times of this many calls on this rank; all ranks start together."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call(x)
    return (time.perf_counter() - start) / calls


def agreed_calls(call: AllReduce, x: torch.Tensor, seconds: float) -> int:
    """How many calls that time is enough for: the same number on all ranks."""
    calls = 2
    for budget in (seconds / 10, seconds):
        mean = slowest([mean_seconds(call, x, calls)])[0]
        calls = min(max(1, int(budget / mean)), MOST_CALLS)
    return calls


def slowest(seconds: list[float]) -> list[float]:
    """Returns the slowest rank's time of each call."""
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    result: list[float] = times.tolist()
    return result


def crossed(
    call: AllReduce, x: torch.Tensor, calls: int, here: Here
) -> tuple[list[float], list[float]] | None:
    """Bytes of a call that each host sent, and received; None where no interface is known."""
    dist.barrier()
    time.sleep(SETTLE_S)  # nothing of the barrier is counted
    before = here.traffic() if here.counts and here.device else None
    time.sleep(SETTLE_S)  # all of the calls is, also where another host calls first
    for _ in range(calls):
        call(x)
    time.sleep(SETTLE_S)
    mine = None
    if before is not None:
        mine = [(now - then) / calls for now, then in zip(here.traffic(), before)]
    of_ranks: list[list[float] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine)
    of_hosts = [sent_received for sent_received in of_ranks if sent_received is not None]
    if len(of_hosts) < len(here.ranks):
        return None
    return [sent for sent, _ in of_hosts], [received for _, received in of_hosts]
