"""A rank's tensors, alike for all contenders, and sums that have one right result, bit for bit.

The memory is mapped page by page, without advice about huge pages, as torch's default allocator
leaves it; whether the kernel makes huge pages by itself is in the report.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# A numpy array; bfloat16, which numpy does not have, as its bits.
STORAGE = {"float32": np.float32, "float16": np.float16, "bfloat16": np.int16}
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
ALIGNMENT = 64  # bytes: a cache line
MOST_PLACES = 10_000
PERIOD = 251  # of the values: prime, so that a chunk at the wrong place shows


def layout(size: int, rotate: int) -> tuple[int, int]:
    """How many tensors of ``size`` bytes the calls walk over, and the bytes from one to the next.

    ``rotate``: bytes that they cover together; 0: one tensor.
    """
    place = -(-size // ALIGNMENT) * ALIGNMENT
    places = min(max(1, rotate // place), MOST_PLACES)
    return places, max(place, rotate // places // ALIGNMENT * ALIGNMENT)


def span(size: int, rotate: int) -> int:
    """The bytes that the tensors take together."""
    places, stride = layout(size, rotate)
    return places * stride


def apart(memory: Array, size: int, rotate: int, dtype: str) -> list[Array]:
    """The tensors of ``size`` bytes in ``span`` bytes of memory: zeros, all pages touched.

    Zeros stay zeros, however often they are summed.
    """
    memory[:] = 0
    places, stride = layout(size, rotate)
    return [memory[i * stride : i * stride + size].view(STORAGE[dtype]) for i in range(places)]


def private(size: int, rotate: int, dtype: str) -> list[Array]:
    """Tensors of ``size`` bytes in memory of this process alone."""
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, span(size, rotate), kind)
    return apart(np.frombuffer(memory, np.uint8), size, rotate, dtype)


def given(dtype: str, rank: int, ranks: int, count: int) -> Array:
    """A rank's ``count`` elements of the checked call, as stored."""
    return _stored(_row(rank, ranks), dtype, count)


def wrong(array: Array, dtype: str, ranks: int) -> int:
    """How many elements are not the sum of what all ranks were given."""
    total = sum((_row(rank, ranks) for rank in range(ranks)), np.zeros(PERIOD, np.int64))
    bits = np.uint32 if ITEMSIZE[dtype] == 4 else np.uint16
    return int(np.count_nonzero(array.view(bits) != _stored(total, dtype, len(array)).view(bits)))


def _row(rank: int, ranks: int) -> Array:
    """A period of integers so small that every partial sum is exact, in bfloat16 too."""
    peak = min(7, max(1, 256 // ranks))
    row: Array = (np.arange(PERIOD, dtype=np.int64) * 97 % PERIOD + rank) % (peak + 1)
    return row


def _stored(values: Array, dtype: str, count: int) -> Array:
    row: Array = values.astype(np.float32)
    if dtype == "bfloat16":  # its upper half, which is exact for these
        row = (row.view(np.uint32) >> 16).astype(np.uint16).view(np.int16)
    row = row.astype(STORAGE[dtype], copy=False)
    return np.tile(row, -(-count // PERIOD))[:count]
