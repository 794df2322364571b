"""How calls are timed: graph replays between events, hot and cold, contenders in turn.

hot: a graph of several calls on the same tensors, whose data then is in the L2 as far as it fits;
     the time of one of them.
cold: a graph of one call, after so much other memory was read that nothing of the tensors is left
     in the L2. The time is from event to event and includes the launch of a graph: compare with the
     contender "launch", a kernel that does next to nothing, timed alike.

The tensors hold random numbers, never zeros, and are filled anew before each timing: each sum over
k ranks makes them k times larger, and after some dozens of calls float32 would end at infinity.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

REPEATS = 9  # odd: a median that was measured
SCALE = 2.0**-100
HEAD_START = 200_000  # cycles, some 100 us: a graph is enqueued meanwhile
MOST_BITS = 150  # by which numbers may grow, from SCALE up, in one graph


def calls_for(size: int, ranks: int) -> int:
    """Calls in a graph that is timed hot: so many that its launch does not count."""
    wanted = 20 if size <= 256 << 10 else 5 if size <= 16 << 20 else 2
    return min(wanted, MOST_BITS // max(1, (ranks - 1).bit_length()))


class Buffers:
    """The tensors of some ranks, and the random numbers that they are filled with."""

    def __init__(self, ranks: int, count: int, device: str) -> None:
        generator = torch.Generator(device).manual_seed(count)

        def random() -> torch.Tensor:
            return torch.randn(count, generator=generator, device=device).mul_(SCALE)

        self.sources = [random() for _ in range(ranks)]
        self.tensors = [torch.empty_like(source) for source in self.sources]
        self.refill()

    def refill(self) -> None:
        for tensor, source in zip(self.tensors, self.sources):
            tensor.copy_(source)

    def wrong_after(self, call: Callable[[], object], first: int = 0, ranks: int = 0) -> int:
        """Elements that are not the exact sum after one call, for small whole numbers.

        ``first``, ``ranks``: the number of the first tensor's rank, and of all ranks; by default
        all ranks have their tensors here.
        """
        k = ranks or len(self.tensors)
        count, device = self.tensors[0].numel(), self.tensors[0].device
        base = (torch.arange(count, dtype=torch.int32, device=device) % 251).float()
        for rank, tensor in enumerate(self.tensors, first):
            torch.add(base, rank, out=tensor)
        call()
        base.mul_(k).add_(k * (k - 1) // 2)
        wrong = sum((tensor != base).sum() for tensor in self.tensors)
        self.refill()
        return int(wrong)


class Flush:
    """Other memory, several times as large as the L2: once read, nothing else is in there."""

    def __init__(self, l2_bytes: int, device: str) -> None:
        count = max(4 * l2_bytes, 256 << 20) // 4 if device != "cpu" else 1
        self._memory = torch.randint(1 << 30, (count,), dtype=torch.int32, device=device)

    def __call__(self) -> None:
        self._memory.sum()

    def wake_up(self) -> None:
        """Half a second of work: an idle GPU has lowered its clocks."""
        end = time.monotonic() + (0.5 if self._memory.is_cuda else 0.0)
        while time.monotonic() < end:
            self._memory.sum().item()


@dataclass
class Timed:
    """One contender and its times in microseconds.

    Attributes:
        how: "graph"; "eager" where a capture failed, with the reason in ``trouble``; "host" on a
            CPU.
    """

    name: str
    call: Callable[[], object]
    calls: int
    how: str = "graph"
    trouble: str = ""
    wrong: int | None = None
    hot_us: list[float] = field(default_factory=list)
    cold_us: list[float] = field(default_factory=list)

    def prepare(self, device: str) -> None:
        """Warms up, and captures the two graphs."""
        for _ in range(2):
            self.call()
        self._many: Callable[[int], None] = self._eager
        self._one: Callable[[int], None] = self._eager
        if device == "cpu":
            self.how = "host"
            return
        torch.cuda.synchronize()
        try:
            self._many = _captured(self.call, self.calls)
            self._one = _captured(self.call, 1)
        except Exception as error:
            self._many = self._one = self._eager
            self.how, self.trouble = "eager", f"{type(error).__name__}: {error}".splitlines()[0]
            torch.cuda.synchronize()

    def time_hot(self) -> None:
        calls = self.calls
        self.hot_us.append(self._time(self._many, calls) / calls)

    def time_cold(self) -> None:
        self.cold_us.append(self._time(self._one, 1))

    def _eager(self, calls: int) -> None:
        for _ in range(calls):
            self.call()

    def _time(self, run: Callable[[int], None], calls: int) -> float:
        if self.how == "host":
            start = time.perf_counter()
            run(calls)
            return (time.perf_counter() - start) * 1e6
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Or the time from `begin` on would be that of the host, which launches the graph.
        torch.cuda._sleep(HEAD_START)
        begin.record()
        run(calls)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3


def _captured(call: Callable[[], object], calls: int) -> Callable[[int], None]:
    graph = torch.cuda.CUDAGraph()
    # NCCL has threads of its own, which may do what a capture forbids.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    graph.replay()  # uploads it
    torch.cuda.synchronize()
    return lambda _: graph.replay()


def compete(
    contenders: list[Timed],
    refill: Callable[[], object],
    flush: Callable[[], object],
    repeats: int = REPEATS,
    together: Callable[[], object] = lambda: None,
) -> None:
    """Times each contender so often, hot and cold, in turns; who is first alternates.

    ``together``: called before each timing, where ranks in several processes must start as one.
    """
    turns = list(contenders)
    for _ in range(repeats):
        for contender in turns:
            refill()
            together()
            contender.time_hot()
        for contender in turns:
            refill()
            flush()
            together()
            contender.time_cold()
        turns.reverse()
