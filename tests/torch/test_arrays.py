"""NumPy arrays, and other objects that share memory by DLPack, are changed in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ringkern
from tests.ranks import Pool


def numbers(rank: int, n: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return ((np.arange(n) + 3 * rank) % 5).astype(dtype)


def total(size: int, n: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.add.reduce([numbers(rank, n, "int64") for rank in range(size)]).astype(dtype)


def _dtypes(rank: int, size: int) -> None:
    for dtype in ("float16", "float32", "float64", "int8", "uint8", "int32", "int64"):
        x = numbers(rank, 500, dtype)
        assert ringkern.ring_all_reduce(x) is None
        assert x.dtype == dtype
        assert np.array_equal(x, total(size, 500, dtype))


def test_numpy_dtypes(ranks: Pool) -> None:
    ranks(2).run(_dtypes)


def _layouts(rank: int, size: int) -> None:
    memory = numbers(rank, 100)
    ringkern.ring_all_reduce(memory[10:90:4])
    expected = numbers(rank, 100)
    expected[10:90:4] = total(size, 100)[10:90:4]
    assert np.array_equal(memory, expected)

    matrix = numbers(rank, 60).reshape(6, 10)
    ringkern.ring_all_reduce(matrix.T)
    assert np.array_equal(matrix, total(size, 60).reshape(6, 10))

    scalar = np.array(1.0 + rank)
    ringkern.ring_all_reduce(scalar)
    assert scalar == sum(range(1, size + 1))

    nothing = np.empty((0, 3))
    ringkern.ring_all_reduce(nothing)

    # float32 at an odd address, such as in a record of a file
    odd = np.zeros(401, dtype=np.uint8)[1:].view(np.float32)
    odd[:] = numbers(rank, 100)
    ringkern.ring_all_reduce(odd)
    assert np.array_equal(odd, total(size, 100))


def test_numpy_layouts(ranks: Pool) -> None:
    ranks(2).run(_layouts)


def _other_collectives(rank: int, size: int) -> None:
    whole, part = numbers(rank, 20 * size), np.empty(20, dtype=np.float32)
    whole.flags.writeable = False  # only read
    ringkern.ring_reduce_scatter(part, whole)
    assert np.array_equal(part, np.split(total(size, 20 * size), size)[rank])
    gathered = np.empty(20 * size, dtype=np.float32)
    work = ringkern.ring_all_gather(gathered, part, async_op=True)
    assert work is not None
    work.wait()
    assert np.array_equal(gathered, total(size, 20 * size))
    ringkern.ring_all_gather(gathered, torch.from_numpy(part))  # one of each kind
    assert np.array_equal(gathered, total(size, 20 * size))


def test_reduce_scatter_and_all_gather(ranks: Pool) -> None:
    ranks(2).run(_other_collectives)


class Wrapped:
    """An array of another library."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._array.__dlpack_device__()
        return device


def _any_dlpack(rank: int, size: int) -> None:
    array = numbers(rank, 100)
    ringkern.ring_all_reduce(Wrapped(array))
    assert np.array_equal(array, total(size, 100))


def test_any_object_with_dlpack(ranks: Pool) -> None:
    ranks(2).run(_any_dlpack)


def _cupy(rank: int, size: int) -> None:
    import cupy

    x = cupy.full(100, 1.0 + rank, dtype=cupy.float32)
    ringkern.ring_all_reduce(x)
    assert float(x.sum()) == 100 * sum(range(1, size + 1))


def test_cupy(ranks: Pool) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("CuPy needs a GPU")
    ranks(2).run(_cupy)
