"""A rank of the part ``backend``: its values, its calls, and what it has found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from bench.gpu import cases

DELAY_CYCLES = 2_000_000  # of a multiprocessor: about a millisecond
LATE = 10  # delays


@functools.lru_cache(maxsize=256)
def integers(rank: int, count: int, dtype: torch.dtype, here: str) -> torch.Tensor:
    """A rank's values: others for each rank, -30 to 30, so that four can be multiplied.

    Kept, because what comes from the host makes it wait for the stream.
    """
    values = (torch.arange(count) * 7 + rank * 13) % 61 - 30
    return values.to(dtype).to(here)


class Rank:
    """A rank of a check, and what it has found."""

    def __init__(self, rank: int, size: int, here: str) -> None:
        self.rank, self.size, self.here = rank, size, here
        self.next, self.prev = (rank + 1) % size, (rank - 1) % size
        self.asynchronous = False
        self._found: list[tuple[str, torch.Tensor]] = []

    @property
    def on_cuda(self) -> bool:
        return self.here.startswith("cuda")

    def delay(self, times: int = 1) -> None:
        """Keeps the current stream busy, so that what is called next has to wait for it."""
        if self.on_cuda:
            torch.cuda._sleep(DELAY_CYCLES * times)

    def settle_device(self) -> None:
        if self.on_cuda:
            torch.cuda.synchronize()

    def of(self, rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A rank's values; not to be written to."""
        return integers(rank, count, dtype, self.here)

    def of_all(self, count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        return [self.of(rank, count, dtype) for rank in range(self.size)]

    def mine(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """This rank's; before an asynchronous call the stream has them late, later rank by rank."""
        values = self.of(self.rank, count, dtype)
        late = torch.empty_like(values)
        cases.poison(late)
        if self.asynchronous:
            self.delay(1 + self.rank)
        return late.copy_(values)

    def empty(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """For a result: it holds what no result is."""
        tensor = torch.empty(count, dtype=dtype, device=self.here)
        cases.poison(tensor)
        return tensor

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        """To its end as far as the current stream is concerned, and not as the host is."""
        work = function(*args, **options, async_op=self.asynchronous)
        if self.asynchronous:
            work.wait()
        elif work is not None:
            raise AssertionError(f"{function.__name__} returned {work}")

    def expect(self, what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Checks that all bits are equal. The comparison is enqueued; ``settle`` waits for it."""
        a, b = (tensor.detach().contiguous().flatten() for tensor in (actual, expected))
        self.expect_none(what, (cases.bits_of(a) != cases.bits_of(b)).sum())

    def expect_none(self, what: str, wrong: torch.Tensor) -> None:
        """Checks that the number of wrong elements is 0."""
        how = "async " if self.asynchronous else ""
        self._found.append((how + what, wrong))

    def settle(self) -> tuple[int, list[str]]:
        """How many comparisons there were, and which found a difference."""
        counts = [(what, int(wrong)) for what, wrong in self._found]
        self._found.clear()
        place = f"rank {self.rank} of {self.size}"
        wrong = [f"{what}, {place}: {number} elements differ" for what, number in counts if number]
        return len(counts), wrong


def reduced(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    """Returns what an op makes of all ranks' values, in the same dtype."""
    rows = torch.stack(parts)
    if op in ("SUM", "AVG"):
        whole = rows.sum(0, dtype=rows.dtype)
        return whole / len(parts) if op == "AVG" else whole
    if op == "PRODUCT":
        return rows.prod(0, dtype=rows.dtype)
    if op in ("MIN", "MAX"):
        return rows.amin(0) if op == "MIN" else rows.amax(0)
    one, *others = parts
    one = one.clone()
    for other in others:
        {"BAND": one.bitwise_and_, "BOR": one.bitwise_or_, "BXOR": one.bitwise_xor_}[op](other)
    return one


def wait_for(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        assert work is not None, "of the ranks of a group, each has a Work"
        work.wait()


def every_way(check: Callable[[Rank], None]) -> Callable[[Rank], None]:
    """A check with calls that are synchronous, and again with ``async_op`` and ``wait``."""

    def both(at: Rank) -> None:
        for at.asynchronous in (False, True):
            check(at)

    return both
