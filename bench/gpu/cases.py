"""Tensors with one right result: what the parts that check results have in common."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from bench.gpu.part import Context, Failed

# With `make gpu GPU_ARGS="--memory host"`, which also parts in processes of their own see so.
ON_HOST = os.environ.get("RINGKERN_CUDA_MEMORY") == "host"
# Not asked of ringkern: this module is loaded before ringkern is built. A test compares them.
PROTOCOLS = ("simple", "ll") if ON_HOST else ("simple", "ll", "ll128")
ALGORITHMS = ("one_shot", "two_shot")  # besides the ring; each over the protocol that it has
# Every way of an all-reduce: its name, and how to ask for it.
WAYS: dict[str, dict[str, Any]] = {name: {"protocol": name} for name in PROTOCOLS}
WAYS |= {name: {"algorithm": name} for name in ALGORITHMS}
# And where all ranks are in one process and on one device.
LOCAL_WAYS = WAYS | {"in_place": {"algorithm": "two_shot", "protocol": "simple"}}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SHOWN = 20  # of what was wrong


def dtype_of(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def every_dtype() -> list[str]:
    import ringkern

    dtypes: list[str] = ringkern.build_info()["dtypes"]
    return dtypes


def every_dtype_and_op() -> list[tuple[str, str]]:
    from ringkern import _C

    return [(dtype, op) for dtype in every_dtype() for op in _C.ops_of(dtype)]


def reduce_op(op: str) -> Any:
    """Returns torch's op; premul_sum with the factor of ``ringkern.tools.exact``."""
    from ringkern.tools import exact

    if op == "premul_sum":
        return dist._make_nccl_premul_sum(exact.PREMUL_FACTOR)
    return getattr(dist.ReduceOp, "PRODUCT" if op == "prod" else op.upper())


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: all values compare, and every bit counts."""
    return tensor.view(_BITS[tensor.element_size()])


def poison(tensor: torch.Tensor) -> None:
    """Fills it with what no case has for a result, to see that every element is written."""
    bits_of(tensor).fill_(0x6D if tensor.element_size() == 1 else 0x6D6D)


@functools.lru_cache(maxsize=64)
def all_reduce(
    device: str, op: str, dtype: str, ranks: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the input of all ranks, a row each, and the expected result; on the device."""
    from ringkern.tools import exact

    pairs = [exact.all_reduce(op, dtype_of(dtype), r, ranks, count) for r in range(ranks)]
    rows = torch.stack([bits_of(given) for given, _ in pairs])  # not every dtype can be stacked
    return rows.view(dtype_of(dtype)).to(device), pairs[0][1].to(device)


@functools.lru_cache(maxsize=16)
def all_gather(
    device: str, dtype: str, ranks: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each rank's part, a row each, and the whole."""
    parts, _ = all_reduce(device, "max", dtype, ranks, count)
    return parts, parts.flatten()


@dataclass
class Tally:
    """Counts cases and collects what was wrong. Until ``settle``, results stay on the device."""

    context: Context
    cases: int = 0
    wrong: list[str] = field(default_factory=list)
    missing: str = ""  # what there was no time for
    _pending: list[tuple[str, torch.Tensor]] = field(default_factory=list)

    def expect(self, actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        """Every bit of ``actual`` is as in ``expected``, one of a shape that fits."""
        self._pending.append((what, (bits_of(actual) != bits_of(expected)).sum()))
        if len(self._pending) >= 256:
            self.settle()

    def settle(self) -> None:
        """Waits for the comparisons, and notes what they found."""
        if self._pending:
            counts = torch.stack([count for _, count in self._pending]).tolist()
            for (what, _), count in zip(self._pending, counts):
                if count:
                    self.wrong.append(f"{what}: {count} elements differ")
        self.cases += len(self._pending)
        self._pending.clear()
        self.context.note(cases=self.cases, wrong=len(self.wrong), what=self.wrong[:_SHOWN])

    def in_time(self, what: str) -> bool:
        """Returns ``False``, and notes what is missing, if there is no time for ``what``."""
        if not self.missing and self.context.left() <= 0:
            self.missing = f"{what} and what follows"
            self.context.cut(self.missing)
        return not self.missing

    def finish(self) -> None:
        """Raises Failed if anything was wrong."""
        self.settle()
        self.context.note(complete=not self.missing)
        if self.wrong:
            raise Failed(f"{len(self.wrong)} of {self.cases} wrong; first: {self.wrong[0]}")
        if not self.cases:
            raise Failed("not one case was run in time")
