"""Makes the tensors that ranks send in probes, and the expected results."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist

from tests.torch.support.registry import WrongResultError, expect

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "int32", "int64", "bool", "complex64", "complex128"),
)
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG", "PREMUL_SUM")
FACTOR = 2.0  # for PREMUL_SUM

COUNT = 27


def digits(source: int, count: int = COUNT, shift: int = 0) -> torch.Tensor:
    """Returns 0, 1 and 2 in an order of the rank's own; three ranks have all 27 combinations.

    Sums and products of three are exact in every dtype, float8_e5m2 included.
    """
    return (torch.arange(count) // 3**source + shift) % 3


def cast(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return values % 2 == 1
    if dtype.is_complex:
        return torch.complex(values.double(), (values.double() + 1) % 3).to(dtype)
    return values.to(dtype)


def same(got: torch.Tensor, expected: torch.Tensor, what: str = "the result") -> None:
    expect(got.dtype == expected.dtype, f"{what} is {got.dtype}")
    expect(got.shape == expected.shape, f"{what} has the shape {tuple(got.shape)}")
    wide = torch.complex128 if got.dtype.is_complex else torch.float64
    wrong = (got.to(wide) - expected.to(wide)).abs() > (1e-6 if got.dtype.is_floating_point else 0)
    if wrong.any():
        raise WrongResultError(f"{what} is wrong in {wrong.sum()} of {wrong.numel()} elements")


@dataclass(frozen=True)
class Call:
    """The form of a call to a collective, and its tensors."""

    rank: int
    size: int
    dtype: str = "float32"
    op: str = "SUM"
    layout: str = "dense"  # or "strided", or "empty"
    uneven: bool = False
    async_op: bool = False
    group: Any = None
    # raised at the end, when all ranks have reached it
    wrong: list[str] = field(default_factory=list)

    def piece(self, source: int, dest: int = 0, varies: int = 0) -> torch.Tensor:
        """Returns the data of ``source`` for ``dest``; uneven sizes depend on ``varies``."""
        count = 0 if self.layout == "empty" else COUNT - 3 * varies * self.uneven
        return self._laid_out(cast(digits(source, count, dest), getattr(torch, self.dtype)))

    def blank(self, like: torch.Tensor) -> torch.Tensor:
        return self._laid_out(torch.zeros_like(like.contiguous()))

    def joined(self, pieces: list[torch.Tensor]) -> torch.Tensor:
        return self._laid_out(torch.cat([cast_for_cat(piece) for piece in pieces]).to(pieces[0]))

    def reduce_op(self) -> Any:
        if self.op == "PREMUL_SUM":
            return dist._make_nccl_premul_sum(FACTOR)
        return getattr(dist.ReduceOp, self.op)

    def reduced(self, pieces: list[torch.Tensor]) -> torch.Tensor:
        """Returns the pieces of all ranks, reduced in wide arithmetic."""
        dtype = pieces[0].dtype
        if dtype == torch.bool:
            return torch.stack(pieces).any(0)
        if dtype.is_floating_point:
            pieces = [piece.double() for piece in pieces]
        combine = {
            "PRODUCT": torch.mul,
            "MIN": torch.minimum,
            "MAX": torch.maximum,
            "BAND": torch.bitwise_and,
            "BOR": torch.bitwise_or,
            "BXOR": torch.bitwise_xor,
        }.get(self.op, torch.add)
        result = reduce(combine, pieces)
        if self.op == "AVG":
            result = result / self.size
        if self.op == "PREMUL_SUM":
            result = result * FACTOR
        return result.to(dtype)

    def wait(self, work: Any) -> None:
        if self.async_op:
            expect(work is not None, "async_op=True returned no Work")
            work.wait()

    def check(self, got: torch.Tensor, expected: torch.Tensor, what: str = "the result") -> None:
        try:
            same(got, expected, what)
            if self.layout == "strided":
                assert got._base is not None
                same(got._base[1::2], torch.zeros_like(got._base[1::2]), f"what is between {what}")
        except WrongResultError as error:
            self.wrong.append(str(error))

    def end(self) -> None:
        if self.wrong:
            raise WrongResultError(self.wrong[0])

    def _laid_out(self, values: torch.Tensor) -> torch.Tensor:
        if self.layout != "strided":
            return values
        every_other = torch.zeros(2 * values.numel(), dtype=values.dtype)[::2]
        return every_other.copy_(values)


def cast_for_cat(values: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that torch.cat accepts, because float8 has few kernels of its own."""
    return values.float() if values.dtype.itemsize == 1 and values.is_floating_point() else values
