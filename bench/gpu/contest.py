"""One contest of the part ``speed``, in a process of its own: ranks of this process on one device.

It appends a line for each size and contender as soon as it has it, so that what was measured stays
where a later size hangs.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from bench.gpu import nccl, timing
from bench.gpu.cases import ALGORITHMS, WAYS

DIRECT_MOST = 16 << 20  # bytes up to which the algorithms besides the ring compete
MEMORY_SHARE = 0.7  # of what is free
LAUNCH = "launch"
TREE = "world_invariant"


@dataclass(frozen=True)
class Settings:
    """A contest.

    Attributes:
        ways: of ringkern, as in cases.WAYS, or "auto", its default, or TREE, its default in the
            order of a tree; each a contender.
        sizes: bytes of a rank's tensor, float32.
        nccl: path of a libnccl, or "".
    """

    ranks: int
    ways: tuple[str, ...]
    sizes: tuple[int, ...]
    device: str
    nccl: str = ""
    l2_bytes: int = 0
    repeats: int = timing.REPEATS


def main(settings: Settings, results: Path) -> None:
    from ringkern.local import Ring

    devices = [settings.device] * settings.ranks
    with results.open("a") as out, Ring(devices, timeout=timedelta(seconds=20)) as ring:

        def tell(**line: Any) -> None:
            print(json.dumps({"ranks": settings.ranks, **line}), file=out, flush=True)

        rival = None
        if settings.nccl:
            try:
                rival = nccl.Ring(settings.nccl, settings.ranks)
                tell(note=f"NCCL {rival.version}")
            except (nccl.NcclError, OSError, AttributeError) as error:
                tell(note=f"no NCCL: {error}")
        flush = timing.Flush(settings.l2_bytes, settings.device)
        flush.wake_up()
        for size in settings.sizes:
            if room(settings.device) < 3 * settings.ranks * size:
                tell(note=f"{size} bytes a rank do not fit in memory")
                continue
            contend(settings, ring, rival, flush, size, tell)


def room(device: str) -> float:
    """Bytes that may be taken."""
    if device == "cpu":
        return 1 << 30
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0] * MEMORY_SHARE


def contend(
    settings: Settings, ring: Any, rival: Any, flush: timing.Flush, size: int, tell: Any
) -> None:
    buffers = timing.Buffers(settings.ranks, max(1, size // 4), settings.device)
    calls = timing.calls_for(size, settings.ranks)

    def ringkern_call(way: str) -> Any:
        by_tree = {"deterministic": TREE, "shards": settings.ranks}
        asked = by_tree if way == TREE else WAYS.get(way, {})
        return lambda: ring.all_reduce(buffers.tensors, **asked)

    ways = [way for way in settings.ways if way not in ALGORITHMS or size <= DIRECT_MOST]
    contenders = [timing.Timed(f"ringkern/{way}", ringkern_call(way), calls) for way in ways]
    if rival:
        name = f"nccl/{ways[0]}"
        contenders.append(timing.Timed(name, lambda: rival.all_reduce(buffers.tensors), calls))
    for contender in contenders:
        contender.wrong = buffers.wrong_after(contender.call)
    if size == settings.sizes[0]:
        one = torch.ones(1, device=settings.device)
        contenders.append(timing.Timed(LAUNCH, lambda: one.neg_(), calls))
    for contender in contenders:
        contender.prepare(settings.device)
    timing.compete(contenders, buffers.refill, flush, settings.repeats)
    for contender in contenders:
        tell(size_bytes=size, **described(contender))


def described(contender: timing.Timed) -> dict[str, Any]:
    """A contender's times, for JSON."""
    return {
        "contender": contender.name,
        "how": contender.how,
        **({"trouble": contender.trouble} if contender.trouble else {}),
        "calls": contender.calls,
        "wrong": contender.wrong,
        "hot_us": round(statistics.median(contender.hot_us), 3),
        "cold_us": round(statistics.median(contender.cold_us), 3),
        "hot_times_us": [round(us, 3) for us in contender.hot_us],
        "cold_times_us": [round(us, 3) for us in contender.cold_us],
    }


def run_contest(settings: Path, results: Path) -> None:
    """The process's work: settings from a file, results to another."""
    told = json.loads(settings.read_text())
    sys.path.insert(0, told.pop("site"))
    told |= {"ways": tuple(told["ways"]), "sizes": tuple(told["sizes"])}
    main(Settings(**told), results)
