"""CUDA graphs: captured once, replayed 1,000 times with inputs that change, every result checked.

The check is part of what the GPU does, so that replays follow each other as fast as they can: each
adds the number of wrong elements to a counter in device memory. The values are int32 and wrap, so
that every input has one right result.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from bench.gpu import cases
from bench.gpu.part import Context, Failed
from tests.ranks import Ranks

REPLAYS = 1000
BATCH = 50  # replays that ranks of their own processes make before the time is looked at
TIMEOUT = timedelta(seconds=30)
_STRIDE = 7  # what a rank's input grows by from replay to replay, times its number


def run(context: Context) -> None:
    context.use_ringkern()
    wrong: list[str] = []
    within_a_process(context, wrong)
    between_processes(context, wrong)
    if wrong:
        raise Failed("; ".join(wrong))


class Checked:
    """Tensors of some ranks that all see the same input change, and a graph that checks itself."""

    def __init__(self, device: str, ranks: range, size: int, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        high = 2**31 - 1
        values = torch.randint(-high, high, (size, count), generator=generator, dtype=torch.int32)
        self.base = values[ranks.start : ranks.stop].to(device)
        self.total = values.long().sum(0).to(torch.int32).to(device)  # wraps, as the ring does
        self.growth = torch.tensor([_STRIDE * (r + 1) for r in ranks], device=device)
        self.growth = self.growth.to(torch.int32).unsqueeze(1)
        self.growths = _STRIDE * size * (size + 1) // 2
        # A row length that is no multiple of 16 bytes puts each rank's tensor elsewhere.
        self.tensors = torch.empty_like(self.base)
        self.step = torch.zeros((), dtype=torch.int32, device=device)
        self.bad = torch.zeros((), dtype=torch.int64, device=device)

    def once(self, reduce: Callable[[list[torch.Tensor]], None]) -> None:
        """What a replay does: the next input, the collective, the comparison."""
        self.step += 1
        torch.add(self.base, self.growth * self.step, out=self.tensors)
        reduce(list(self.tensors))
        self.bad += (self.tensors != self.total + self.growths * self.step).sum()

    def capture(self, reduce: Callable[[list[torch.Tensor]], None]) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # connects the ring, and lets the allocator settle
            self.once(reduce)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.once(reduce)
        return graph

    def seen(self) -> tuple[int, int]:
        """Steps done and elements wrong, after all of them."""
        torch.cuda.synchronize()
        return int(self.step), int(self.bad)


def within_a_process(context: Context, wrong: list[str]) -> None:
    from ringkern.local import Ring

    rows = []
    replays = 100 if context.quick else REPLAYS
    for k in (2, 8):
        with Ring(["cuda:0"] * k, timeout=TIMEOUT) as ring:
            for name, way in cases.WAYS.items():
                for count in (1, 1001, 300_001):
                    checked = Checked("cuda:0", range(k), k, count)
                    reduce = functools.partial(ring.all_reduce, **way)
                    graph = checked.capture(reduce)
                    start = time.monotonic()
                    for _ in range(replays):
                        graph.replay()
                    steps, bad = checked.seen()
                    seconds = round(time.monotonic() - start, 3)
                    row = {"k": k, "protocol": name, "count": count, "replays": replays}
                    rows.append({**row, "wrong": bad, "seconds": seconds})
                    context.note(local=rows)
                    if bad or steps != replays + 1:
                        wrong.append(f"local k={k} {name}[{count}]: {bad} wrong, {steps} steps")
                    # A call outside of the graph goes on where the replays have stopped.
                    checked.once(reduce)
                    if checked.seen()[1] != bad:
                        wrong.append(f"local k={k} {name}[{count}]: wrong after the replays")


def between_processes(context: Context, wrong: list[str]) -> None:
    """Over CUDA IPC. On one GPU the processes take turns, a few milliseconds each: that is slow."""
    ranks = Ranks(2, timeout_s=60)
    rows: list[dict[str, Any]] = []
    try:
        for protocol in cases.PROTOCOLS:
            if context.left(0.85) < 5:
                break
            ranks.run(_capture, protocol, 5003)
            done, bad = 0, 0
            share = context.left(0.85) / (len(cases.PROTOCOLS) - len(rows))
            end = time.monotonic() + share
            wanted = 100 if context.quick else REPLAYS
            while done < wanted and time.monotonic() < end:
                found = ranks.run(_replay, BATCH)
                done += BATCH
                bad = max(elements for _, elements in found)
                if any(steps != done + 1 for steps, _ in found):
                    wrong.append(f"ipc {protocol}: {found} after {done} replays")
            rows.append({"k": 2, "protocol": protocol, "replays": done, "wrong": bad})
            context.note(ipc=rows, ipc_replays_wanted=wanted)
            if bad:
                wrong.append(f"ipc {protocol}: {bad} elements wrong in {done} replays")
        ranks.run(_forget)
        ranks.close()
    finally:
        ranks.kill()
    if not rows:
        wrong.append("no time was left for the replays between processes")


# What a rank of its own process keeps from call to call.
_kept: dict[str, Any] = {}


def _capture(rank: int, size: int, protocol: str, count: int) -> None:
    import ringkern

    device = f"cuda:{rank % torch.cuda.device_count()}"
    torch.cuda.set_device(device)
    checked = Checked(device, range(rank, rank + 1), size, count)

    def reduce(tensors: list[torch.Tensor]) -> None:
        ringkern.ring_all_reduce(tensors[0], protocol=protocol)

    _kept["checked"], _kept["graph"] = checked, checked.capture(reduce)


def _replay(rank: int, size: int, replays: int) -> tuple[int, int]:
    for _ in range(replays):
        _kept["graph"].replay()
    steps, bad = _kept["checked"].seen()
    return steps, bad


def _forget(rank: int, size: int) -> None:
    _kept.clear()  # a graph must not outlive the ring whose launches it holds
    torch.cuda.synchronize()
