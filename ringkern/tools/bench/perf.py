"""Measures the collectives in one group: ringkern next to Gloo, on ranks that both share.

Sizes are bytes and include every rank's part; times are microseconds; bandwidths are GB/s, 1e9
bytes a second. "algbw" is size / time. "busbw" is the bandwidth on each link of a ring, which is
comparable between numbers of ranks: algbw times 2(k-1)/k for an all-reduce of k ranks, (k-1)/k for
its two halves.

:mod:`ringkern.tools.turns` has the method. ``bench/compare`` uses it for other libraries, each in
separate processes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ... import ops
from ...arguments import Op
from ...choose.cost import bus_share
from ...errors import RingKernError
from .. import exact
from ..turns import (
    MOST_CALLS,
    Block,
    Result,
    Turns,
    block_seconds,
    preemptions,
    repeats,
    slowest,
    timed,
)

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
ALIGNMENT = 64  # bytes: a cache line


class UnsupportedError(ValueError):
    """A contender does not have the collective, op or dtype to be measured."""

    def __init__(self, contender: str, text: str) -> None:
        super().__init__(f"{contender} has no {text}")
        self.contender = contender


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement.

    Attributes:
        collective: one of ``COLLECTIVES``.
        dtype: torch's name of a dtype, such as ``"float32"``.
        op: ringkern's name of an op, such as ``"sum"``; ignored for an all-gather.
        protocol: of ringkern.
        algorithm, deterministic, accumulate: of its all-reduce.
        gloo: measures Gloo, too.
        sizes: bytes of all ranks' parts.
        warmup: minimum number of calls per turn that do not count.
        check: number of calls whose result is checked, per size and contender.
        seconds: approximate time for a size, with all contenders.
        rotate: bytes over which the calls walk, so that caches do not help; 0: all calls use the
            same memory.
        threads: of each rank.
        pinned: each rank keeps to cores of its own, one for each of its threads.
    """

    sizes: tuple[int, ...]
    collective: str = "all_reduce"
    dtype: str = "float32"
    op: str = "sum"
    protocol: str = "auto"
    algorithm: str = "auto"
    deterministic: str = "auto"
    accumulate: str = "auto"
    gloo: bool = True
    warmup: int = 1
    check: int = 1
    seconds: float = 1.0
    rotate: int = 0
    threads: int = 1
    pinned: bool = True

    @property
    def torch_dtype(self) -> torch.dtype:
        """Returns the dtype of torch."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def reduce_op(self) -> Op:
        """Returns the op of torch.distributed."""
        if self.op == "premul_sum":
            return dist._make_nccl_premul_sum(exact.PREMUL_FACTOR)
        op: Op = getattr(dist.ReduceOp, "PRODUCT" if self.op == "prod" else self.op.upper())
        return op


@dataclass(frozen=True)
class Row:
    """The results for one size.

    Attributes:
        size: bytes of all ranks' parts.
        count: elements, as nccl-tests counts: of the whole tensor for an all-reduce, of a rank's
            part for its halves.
        results: by contender.
    """

    size: int
    count: int
    results: dict[str, Result]


def geometric_sizes(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Returns ``begin`` and sizes that grow by ``factor``, up to ``end``; bytes."""
    sizes = itertools.accumulate(itertools.repeat(factor), lambda a, b: a * b, initial=begin)
    return tuple(itertools.takewhile(lambda size: size <= end, sizes))


def bandwidths(collective: str, ranks: int, size: int, time_us: float) -> tuple[float, float]:
    """Returns algbw and busbw in GB/s of a collective over ``size`` bytes in ``time_us``."""
    algbw = size / time_us / 1e3
    return algbw, algbw * bus_share(collective, ranks)


def measure(settings: Settings) -> Iterator[Row]:
    """Measures one size after the other. All ranks of the default group, with Gloo, call it.

    Raises:
        UnsupportedError: on all ranks, before anything is measured.
    """
    names = ["ringkern", *(["gloo"] if settings.gloo else [])]
    done = set()
    for size in [0, *settings.sizes]:  # the first connects the ring, and raises UnsupportedError
        count = _count(settings, size)
        if size == 0 or count not in done:  # more than one small size may be rounded to one element
            buffers = _Buffers(settings, count)
            contenders = {name: _Contender(name, settings, buffers) for name in names}
            if size == 0:
                for contender in contenders.values():
                    contender.probe()
            else:
                done.add(count)
                yield Row(buffers.size, count, _compete(settings, contenders))


def _count(settings: Settings, size: int) -> int:
    parts = 1 if settings.collective == "all_reduce" else dist.get_world_size()
    return max(1, size // (parts * settings.torch_dtype.itemsize))


class _Buffers:
    """A rank's tensors: pairs of the whole and, within it, this rank's part."""

    def __init__(self, settings: Settings, count: int) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        split = settings.collective != "all_reduce"
        elements = count * ranks if split else count
        itemsize = settings.torch_dtype.itemsize
        self.size = elements * itemsize
        place = -(-self.size // ALIGNMENT) * ALIGNMENT
        places = min(max(1, settings.rotate // place), MOST_CALLS)
        stride = max(place, settings.rotate // places // ALIGNMENT * ALIGNMENT) // itemsize
        # Zeros stay zeros with every op, however often it is applied; and writing them takes the
        # pages.
        memory = torch.empty(stride * places, dtype=settings.torch_dtype).zero_()
        wholes = [memory.narrow(0, i * stride, elements) for i in range(places)]
        self.pairs = [
            (whole, whole.narrow(0, rank * count, count) if split else whole) for whole in wholes
        ]


class _Contender:
    """One library's calls of the collective, in place on the buffers, and its measurements."""

    def __init__(self, name: str, settings: Settings, buffers: _Buffers) -> None:
        self.name, self.settings, self.buffers = name, settings, buffers
        call_of = _ringkern if name == "ringkern" else _gloo
        self._calls = [call_of(settings, *pair) for pair in buffers.pairs]
        self._endless = itertools.cycle(self._calls)

    def probe(self) -> None:
        try:
            self._calls[0]()
        except RingKernError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:
            what = f"{self.settings.collective} of {self.settings.dtype}"
            if self.settings.collective != "all_gather":
                what += f" with op {self.settings.op}"
            raise UnsupportedError(self.name, f"{what}: {error}") from error

    def check(self) -> int | None:
        """Returns the number of wrong elements after ``settings.check`` calls, on all ranks."""
        if not self.settings.check:
            return None
        collective, dtype = self.settings.collective, self.settings.torch_dtype
        rank, ranks = dist.get_rank(), dist.get_world_size()
        whole, part = self.buffers.pairs[0]
        result = whole
        if collective == "all_gather":
            given, expected = exact.all_gather(dtype, rank, ranks, len(part))
        else:
            given, expected = exact.all_reduce(self.settings.op, dtype, rank, ranks, len(whole))
        if collective == "reduce_scatter":
            result, expected = part, expected.narrow(0, rank * len(part), len(part))
        wrong = torch.zeros((), dtype=torch.int64)
        for _ in range(self.settings.check):
            whole.copy_(given)
            self._calls[0]()
            wrong += exact.differences(result, expected)
        whole.zero_()
        dist.all_reduce(wrong)
        return int(wrong)

    def time(self, warmup: int, calls: int) -> Block:
        """Times a block of calls, which starts on all ranks together."""
        dist.barrier()
        timed(self._endless, warmup)
        before = preemptions()
        times = timed(self._endless, calls)
        found = torch.tensor([*times, preemptions() - before])
        dist.all_reduce(found, dist.ReduceOp.MAX)
        *samples, preempted = found.tolist()
        return Block(slowest([samples]), preempted)


def _ringkern(settings: Settings, whole: torch.Tensor, part: torch.Tensor) -> Callable[[], object]:
    op, names = settings.reduce_op, ["protocol"]
    if settings.collective == "all_reduce":
        names += ["algorithm", "deterministic", "accumulate"]
    asked = {name: getattr(settings, name) for name in names}
    # Arguments at their defaults are left out, as in a program: that call is faster.
    given = {name: value for name, value in asked.items() if value != "auto"}
    if settings.collective == "all_reduce":
        return functools.partial(ops.ring_all_reduce, whole, op, **given)
    if settings.collective == "reduce_scatter":
        return functools.partial(ops.ring_reduce_scatter, part, whole, op, **given)
    return functools.partial(ops.ring_all_gather, whole, part, **given)


def _gloo(settings: Settings, whole: torch.Tensor, part: torch.Tensor) -> Callable[[], object]:
    op = settings.reduce_op
    if settings.collective == "all_reduce":
        return functools.partial(dist.all_reduce, whole, op)
    # torch 2.13 renames these two, and warns about their old names.
    if settings.collective == "reduce_scatter":
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return functools.partial(scatter, part, whole, op)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return functools.partial(gather, whole, part)


def _compete(settings: Settings, contenders: dict[str, _Contender]) -> dict[str, Result]:
    entrants = {name: Turns(one.time, settings.warmup) for name, one in contenders.items()}
    block_s = block_seconds(settings.seconds, len(entrants))
    for name, turns in entrants.items():
        turns.calibrate(block_s)
        turns.wrong = contenders[name].check()
    order = list(entrants.values())
    for _ in range(repeats(settings.seconds, block_s, order)):
        for turns in order:
            turns.take()
        order.reverse()  # no contender is always the first
    return {name: turns.result("unknown") for name, turns in entrants.items()}
