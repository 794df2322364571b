"""Inputs, results by NumPy, and where they lie in memory.

Every rank computes all ranks' inputs, and the result, by itself. Values are whole numbers, or
products of powers of two, so small that no order of additions or multiplications rounds them; only
a mean is rounded, once. So results are compared to the bit. A NaN may be any NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

import ringkern
from tests import reference
from tests.reference import BITS
from tests.torch.layouts import Memory

# The largest whole number that is drawn: of five ranks every partial sum is exact.
FLOATS = {
    "float32": 1 << 20,
    "float64": 1 << 40,
    "float16": 400,
    "bfloat16": 40,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
INTEGERS = tuple(str(dtype).removeprefix("torch.") for dtype in reference.INTEGERS)
COMPLEX = {"complex64": "float32", "complex128": "float64"}
NUMBERS = (*FLOATS, *INTEGERS)
REDUCED = (*NUMBERS, *COMPLEX, "bool")
MOVED = (*REDUCED, "uint16")
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
BIT_OPS = ("BAND", "BOR", "BXOR")
# Arguments of functions that take names.
NAMES = {op: "prod" if op == "PRODUCT" else op.lower() for op in (*OPS, *BIT_OPS)}
EXACT_FACTORS = (0.5, 1.0, 2.0)


def _as_torch(x: np.ndarray[Any, Any]) -> torch.Tensor:
    y = torch.from_numpy(x)
    return y if x.size else torch.empty(0, dtype=y.dtype)  # for NumPy has no stride then


def bits_of_any_kind(random: np.random.Generator, dtype: str, n: int) -> torch.Tensor:
    """Values of a dtype that is moved and not reduced."""
    kind = getattr(torch, dtype)
    most = 2 if dtype == "bool" else 256
    return _as_torch(random.integers(0, most, n * kind.itemsize, np.uint8)).view(kind)


class Reduction(NamedTuple):
    """An op over tensors of a dtype, with the factor of PREMUL_SUM; ``seed`` of its inputs."""

    dtype: str
    op: str
    factor: float
    nan: bool  # some inputs have NaNs
    seed: int
    ranks: int

    @classmethod
    def draw(cls, random: Random, seed: int, ranks: int, numbers: bool) -> Reduction:
        dtype = random.choice(NUMBERS if numbers else REDUCED)
        ops: tuple[str, ...] = (*OPS, "PREMUL_SUM")
        if dtype in INTEGERS or dtype == "bool":
            ops = (*ops[:4], *BIT_OPS)
        if dtype in COMPLEX:
            ops = ("SUM", "AVG", "PREMUL_SUM")
        nan = random.random() < 0.1
        return cls(dtype, random.choice(ops), random.choice(EXACT_FACTORS), nan, seed, ranks)

    @property
    def reduce_op(self) -> Any:
        if self.op == "PREMUL_SUM":
            return dist._make_nccl_premul_sum(self.factor)
        return getattr(dist.ReduceOp, self.op)

    def input(self, rank: int, part: int, n: int) -> torch.Tensor:
        return self._as_tensor(self._numbers(rank, part, n))

    def output(self, part: int, n: int) -> torch.Tensor:
        """Returns the reduction of that part of all ranks."""
        x = np.stack([self._numbers(rank, part, n) for rank in range(self.ranks)])
        if self.op in BIT_OPS:
            ufunc = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}[self.op]
            return self._as_tensor(ufunc.reduce(x, 0))
        if self.dtype == "bool":  # a sum is 0 or 1
            return self._as_tensor(x.max(0) if self.op in ("SUM", "MAX") else x.min(0))
        if self.op in ("MIN", "MAX"):
            return self._as_tensor(x.min(0) if self.op == "MIN" else x.max(0))
        if self.op == "PRODUCT":
            return self._as_tensor(x.prod(0, dtype=x.dtype))
        x = (x * self.factor if self.op == "PREMUL_SUM" else x).sum(0, dtype=x.dtype)
        return self._as_tensor(x / self.ranks if self.op == "AVG" else x)

    def _numbers(self, rank: int, part: int, n: int) -> np.ndarray[Any, Any]:
        """In float64 for all floats; of a complex number, both parts."""
        random = np.random.default_rng([self.seed, rank, part])
        if self.dtype == "bool":
            return random.integers(0, 2, n, np.uint8)
        if self.dtype in INTEGERS:
            info = np.iinfo(self.dtype)
            return random.integers(info.min, info.max, n, self.dtype, endpoint=True)
        real, count = COMPLEX.get(self.dtype, self.dtype), n * (1 + (self.dtype in COMPLEX))
        if self.op == "PRODUCT":
            x = random.choice([0.5, 1.0, -1.0, 2.0, -2.0], count)
        else:
            x = random.integers(-FLOATS[real], FLOATS[real], count, endpoint=True) * 1.0
        if self.nan and rank == self.seed % self.ranks:
            x[:: 1 + self.seed % 7] = np.nan
        return x

    def _as_tensor(self, x: np.ndarray[Any, Any]) -> torch.Tensor:
        if self.dtype in COMPLEX:
            return _as_torch(x).to(getattr(torch, COMPLEX[self.dtype])).view(self._torch)
        if self.dtype == "bool":
            return _as_torch(x).view(torch.bool)
        return _as_torch(x).to(self._torch)

    @property
    def _torch(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found


def real(x: torch.Tensor) -> torch.Tensor:
    """Returns the elements in logical order, complex numbers as two."""
    x = x.detach().contiguous().view(-1)
    return torch.view_as_real(x).view(-1) if x.is_complex() else x


def bits(x: torch.Tensor) -> torch.Tensor:
    return real(x).view(BITS[real(x).element_size()])


def difference(got: torch.Tensor, want: torch.Tensor, moved: bool) -> str | None:
    """Where two tensors differ; if not ``moved``, a NaN may be any NaN."""
    if got.numel() != want.numel() or got.dtype != want.dtype:
        return f"got {got.dtype}{[*got.shape]}, expected {want.dtype}{[*want.shape]}"
    off = bits(got) != bits(want)
    if not moved and want.dtype.is_floating_point | want.dtype.is_complex:
        off &= ~(real(got).double().isnan() & real(want).double().isnan())
    if not off.any():
        return None
    i = int(off.nonzero()[0])
    a, b = real(got)[i].item(), real(want)[i].item()
    hexes = [f"{int(bits(x)[i]) & (1 << 64) - 1:x}" for x in (got, want)]
    both = f"{a} ({hexes[0]}), expected {b} ({hexes[1]})"
    return f"{int(off.sum())} of {len(off)} differ, the first is {i}: {both}"


def spoil(x: torch.Tensor) -> bool:
    """Makes the value a wrong one, if there are elements."""
    x.logical_not_() if x.dtype == torch.bool else x.fill_(113)
    return x.numel() > 0


class Box:
    """A tensor somewhere in memory, and what may be looked at of it."""

    def __init__(
        self, values: torch.Tensor, layout: str, seed: int, memory: Memory | None = None
    ) -> None:
        self.dtype = values.dtype
        if values.is_complex() and values.element_size() == 16:
            # No integer is as wide; torch's own copy of a misaligned one is a segmentation fault.
            layout, storage = "contiguous", torch.view_as_real(values).view(-1).view(torch.int64)
        else:
            storage = values.view(BITS[values.element_size()])
        self.memory = memory or Memory.of(storage, layout, seed)
        self.tensor = self.memory.tensor.view(self.dtype)

    def part(self, rank: int, size: int) -> Box:
        """Returns a rank's part of a dense tensor."""
        memory = self.memory.part(rank, size)
        return Box(memory.tensor.view(self.dtype), "", 0, memory)

    def differs(self, values: torch.Tensor, moved: bool) -> str | None:
        if found := difference(self.tensor, values, moved):
            return found
        outside = self.memory.changed_outside(written=True)
        return f"{outside} bytes outside the output changed" if outside else None

    def changed(self) -> str | None:
        return "the input changed" if self.memory.changed_outside(written=False) else None


class Plain:
    """A tensor around which nothing is known, in place of a `Box`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def differs(self, values: torch.Tensor, moved: bool) -> str | None:
        return difference(self.tensor, values, moved)

    @classmethod
    def shared(cls, values: torch.Tensor, offset: int) -> Plain:
        """Returns values in memory that the ranks of a host share."""
        tensor = ringkern.empty(len(values) + offset, dtype=values.dtype)[offset:]
        tensor.copy_(values)
        return cls(tensor)


class Boxes:
    """The tensors of a list, each on its own or one behind the other."""

    def __init__(
        self,
        values: Sequence[torch.Tensor],
        make: Callable[[torch.Tensor, bool], Box],
        adjacent: bool,
    ) -> None:
        self.adjacent = adjacent and len({x.numel() for x in values}) == 1
        if self.adjacent:
            self.all = [make(torch.cat([*values]), True)]
            parts = [self.all[0].part(i, len(values)) for i in range(len(values))]
            self.tensors = [part.tensor for part in parts]
        else:
            self.all = [make(x, False) for x in values]
            self.tensors = [box.tensor for box in self.all]

    def differs(self, values: Sequence[torch.Tensor], moved: bool) -> str | None:
        whole = [torch.cat([*values])] if self.adjacent else values
        found = (box.differs(x, moved) for box, x in zip(self.all, whole))
        return next((text for text in found if text), None)

    def changed(self) -> str | None:
        return next((text for box in self.all if (text := box.changed())), None)
