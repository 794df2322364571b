"""Tensors of many layouts, and checks of the bytes around them: a part of test_properties."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch

from tests.reference import bits_of


class Layout(NamedTuple):
    """Positions of elements; `shift` in bytes, the rest in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    shift: int = 0


def _factors(n: int, parts: int) -> tuple[int, ...]:
    """Returns small divisors of n, with the remaining factor last."""
    found = []
    for _ in range(parts - 1):
        found.append(next((d for d in (3, 2, 5, 7) if n % d == 0 and n > d), 1))
        n //= found[-1]
    return (*found, n)


def _layout(name: str, n: int) -> Layout:
    a, rest = _factors(n, 2)
    b, c, d, e = _factors(n, 4)
    table = {
        "contiguous": Layout((n,), (1,)),
        "offset": Layout((n,), (1,), offset=3),
        "misaligned": Layout((n,), (1,), shift=1),  # an address that is not aligned for any element
        "volume": Layout((b, c, d, e), (c * d * e, d * e, e, 1), offset=1),
        "step": Layout((n,), (3,), offset=2),
        "transposed": Layout((a, rest), (1, a)),
        "rows": Layout((a, rest), (rest + 3, 1), offset=5),
        "channels_last": Layout((b, c, d, e), (c * d * e, 1, e * c, c)),
        "permuted": Layout((b, c, d * e), (1, (b + 1) * d * e, b + 1), offset=1),
    }
    return table[name]


DENSE = ("contiguous", "offset", "misaligned", "volume")
LAYOUTS = (*DENSE, "step", "transposed", "rows", "channels_last", "permuted")


class Memory(NamedTuple):
    """A tensor, the bytes around it, their initial values, and a mask of the tensor's own bytes."""

    tensor: torch.Tensor
    bytes: torch.Tensor
    before: torch.Tensor
    elements: torch.Tensor  # for each element of the tensor, its number in the memory
    shift: int

    @classmethod
    def of(cls, values: torch.Tensor, name: str, seed: int) -> Memory:
        layout, width = _layout(name, values.numel()), values.element_size()
        assert prod(layout.size) == values.numel()
        ends = ((n - 1) * stride for n, stride in zip(layout.size, layout.stride))
        extent = layout.offset + max(0, sum(ends) + 1) + 5
        raw = bytearray(layout.shift + extent * width)
        everything = torch.frombuffer(raw, dtype=torch.uint8)
        everything.random_(0, 256, generator=torch.Generator().manual_seed(seed))
        base = torch.frombuffer(raw, dtype=values.dtype, offset=layout.shift)
        tensor = base.as_strided(*layout[:3])
        bits_of(tensor).copy_(bits_of(values).view(layout.size))
        elements = torch.arange(extent).as_strided(*layout[:3])
        return cls(tensor, everything, everything.clone(), elements, layout.shift)

    def part(self, rank: int, size: int) -> Memory:
        """Returns a rank's part of a dense tensor."""
        flat, elements = self.tensor.view(-1), self.elements.reshape(-1)
        n = flat.numel() // size
        mine = slice(rank * n, (rank + 1) * n)
        return self._replace(tensor=flat[mine], elements=elements[mine])

    def changed_outside(self, written: bool) -> int:
        """Returns the number of changed bytes outside the tensor, or of all changed bytes if it is
        not written.
        """
        changed = self.bytes != self.before
        if written:
            width = self.tensor.element_size()
            for byte in range(width):
                changed[self.elements.reshape(-1) * width + self.shift + byte] = False
        return int(changed.sum())

    def flat(self) -> torch.Tensor:
        """Returns the tensor's bits in the order of its elements."""
        return bits_of(self.tensor).contiguous().view(-1)
