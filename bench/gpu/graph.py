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
from bench.gpu.ipc import place
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
    """Tensors of some ranks that all see the same input change, and a graph that checks itself.

    Args:
        device: where the ranks are; on a CPU a replay is a plain call.
        ranks: those of this process; size: of all.
        count: elements of a tensor.
        pool: the tensors are in the private pool of the graph.
    """

    def __init__(
        self, device: str, ranks: range, size: int, count: int, pool: bool = False
    ) -> None:
        generator = torch.Generator().manual_seed(count)
        high = 2**31 - 1
        values = torch.randint(-high, high, (size, count), generator=generator, dtype=torch.int32)
        self.base = values[ranks.start : ranks.stop].to(device)
        self.total = values.long().sum(0).to(torch.int32).to(device)  # wraps, as the ring does
        self.growth = torch.tensor([_STRIDE * (r + 1) for r in ranks], device=device)
        self.growth = self.growth.to(torch.int32).unsqueeze(1)
        self.growths = _STRIDE * size * (size + 1) // 2
        # A row length that is no multiple of 16 bytes puts each rank's tensor elsewhere.
        self.tensors: torch.Tensor | None = None if pool else torch.empty_like(self.base)
        self.step = torch.zeros((), dtype=torch.int32, device=device)
        self.bad = torch.zeros((), dtype=torch.int64, device=device)

    def once(self, reduce: Callable[[list[torch.Tensor]], None]) -> None:
        """The content of a replay: the next input, the collective, the comparison."""
        self.step += 1
        tensors = torch.add(self.base, self.growth * self.step, out=self.tensors)
        reduce(list(tensors))
        self.bad += (tensors != self.total + self.growths * self.step).sum()

    def capture(self, reduce: Callable[[list[torch.Tensor]], None]) -> Callable[[], None]:
        """Makes one call, captures another, and returns what replays it."""
        if not self.base.is_cuda:
            self.once(reduce)
            return functools.partial(self.once, reduce)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # connects the ring, and lets the allocator settle
            self.once(reduce)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.once(reduce)
        replay: Callable[[], None] = graph.replay
        return replay

    def seen(self) -> tuple[int, int]:
        """Steps done and elements wrong, after all of them."""
        settle(self.base)
        return int(self.step), int(self.bad)


def settle(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def within_a_process(context: Context, wrong: list[str]) -> None:
    from ringkern.local import Ring

    rows = []
    device = "cuda:0" if context.device == "cuda" else "cpu"
    replays = 100 if context.quick else REPLAYS
    for k in (2, 8):
        with Ring([device] * k, timeout=TIMEOUT) as ring:
            for name, way in cases.WAYS.items():
                for count in (1, 1001, 300_001):
                    if context.left(0.5) < 0:
                        context.cut(f"k={k} {name}[{count}] in a process")
                        continue
                    checked = Checked(device, range(k), k, count, pool=count == 1001)
                    reduce = functools.partial(ring.all_reduce, **way)
                    replay = checked.capture(reduce)
                    start = time.monotonic()
                    for _ in range(replays):
                        replay()
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
    """Replays between processes. On one GPU they take turns, a few milliseconds each: slow."""
    ranks = Ranks(2, timeout_s=60)
    rows: list[dict[str, Any]] = []
    try:
        for protocol in cases.PROTOCOLS:
            if context.left(0.85) < 5:
                context.cut(f"{protocol} between processes")
                continue
            ranks.run(_capture, context.device, protocol, 5003)
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
            if done < wanted:
                context.cut(f"{wanted - done} of {wanted} replays of {protocol} between processes")
            if bad:
                wrong.append(f"ipc {protocol}: {bad} elements wrong in {done} replays")
        ranks.run(_forget)
        ranks.close()
    finally:
        ranks.kill()


# The state that a rank of its own process keeps from call to call.
_kept: dict[str, Any] = {}


def _capture(rank: int, size: int, device: str, protocol: str, count: int) -> None:
    import ringkern

    checked = Checked(place(rank, device), range(rank, rank + 1), size, count)

    def reduce(tensors: list[torch.Tensor]) -> None:
        ringkern.ring_all_reduce(tensors[0], protocol=protocol)

    _kept["checked"], _kept["replay"] = checked, checked.capture(reduce)


def _replay(rank: int, size: int, replays: int) -> tuple[int, int]:
    for _ in range(replays):
        _kept["replay"]()
    steps, bad = _kept["checked"].seen()
    return steps, bad


def _forget(rank: int, size: int) -> None:
    settle(_kept["checked"].base)
    _kept.clear()  # a graph must not outlive the ring whose launches it holds
