"""A rank's calls into ringkern, and the limit: the two that the running package has."""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ringkern import build_info, ops
from ringkern.choose.tables import way_of
from ringkern.comm import communicator_for
from ringkern.shared import zeros
from ringkern.tools.turns import timed

from .adapters import Adapter, Bound
from .memory import Array, apart, private, span
from .torch_adapters import TorchBound, tensors_of


class RingKern(Adapter):
    """``ringkern.ring_all_reduce``; in C++ the communicator's all-reduce.

    ``options["shared"]``: of tensors that :func:`ringkern.zeros` has made.
    """

    dtypes = ("float32", "bfloat16", "float16")

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        torch.set_num_threads(options["threads"])
        store = f"file://{options['folder']}/ringkern"
        dist.init_process_group("gloo", store, world_size=ranks, rank=rank)
        self._way = {"algorithm": options["algorithm"], "protocol": options["protocol"]}
        self._ring = communicator_for(None)._c
        if set(self._way.values()) == {"auto"}:  # which is what its loop in C++ takes
            self.modes = ("py", "c")

    def version(self) -> str:
        return str(build_info()["version"])

    def bind(self, size: int, rotate: int, dtype: str) -> Bound:
        if self.options["shared"]:
            places = apart(
                zeros(span(size, rotate), dtype=torch.uint8).numpy(), size, rotate, dtype
            )
        else:
            places = private(size, rotate, dtype)
        call = ops.ring_all_reduce
        if set(self._way.values()) != {"auto"}:
            call = functools.partial(call, **self._way)
        return TorchBound(places, tensors_of(places, dtype), call, self._loop)

    def choice(self, size: int, dtype: str) -> list[str]:
        if set(self._way.values()) != {"auto"}:
            return list(self._way.values())  # as asked for
        lists = self._ring.table("cpu")
        return list(way_of(lists["automatic"], size)[:2])

    def close(self) -> None:
        communicator_for(None).close()
        dist.destroy_process_group()

    def _loop(self, tensors: Sequence[Any], first: int, calls: int) -> list[int]:
        if len(tensors) == 1:
            return self._ring.time_all_reduce(tensors[0], calls)
        turns = ((first + i) % len(tensors) for i in range(calls))
        return [time for place in turns for time in self._ring.time_all_reduce(tensors[place], 1)]


class Copy(Adapter):
    """The limit of ranks with several threads: each copies its tensor to another one."""

    dtypes = ("float32", "bfloat16", "float16")
    modes = ("copy",)

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        torch.set_num_threads(options["threads"])

    def bind(self, size: int, rotate: int, dtype: str) -> Bound:
        return _CopyBound(private(size, rotate, dtype), private(size, rotate, dtype))


class _CopyBound(Bound):
    def __init__(self, sources: Sequence[Array], targets: Sequence[Array]) -> None:
        super().__init__(sources, [])
        copy = torch.Tensor.copy_
        self._copies = [
            functools.partial(copy, torch.from_numpy(b), torch.from_numpy(a))
            for a, b in zip(sources, targets)
        ]

    def loop(self, mode: str, first: int, calls: int) -> array[int]:
        return timed(itertools.islice(itertools.cycle(self._copies), first, None), calls)


class Bare(Adapter):
    """The limit, between two ranks. A mode is a movement and its chunk, such as ``one_shot/65536``.

    ``options["loop"]``: the library ``loops/bare.cpp``. ``options["files"]``: descriptors of two
    memory files that both ranks have inherited.
    """

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        self._library = library = ctypes.CDLL(options["loop"])
        library.file_bytes.restype = ctypes.c_int64
        library.movements.restype = ctypes.c_char_p
        library.start.restype = ctypes.c_void_p
        library.round_trip_ns.restype = ctypes.c_double
        library.round_trip_ns.argtypes = [ctypes.c_void_p]
        self.modes = tuple(library.movements().decode().strip(",").split(","))
        os.ftruncate(options["files"][0], library.file_bytes())
        self._bare = library.start(rank, options["files"][0])
        if not self._bare:
            raise MemoryError("the memory of the movements cannot be mapped")

    def round_trip_ns(self) -> float:
        """Measures a cache line there and back, in ns; both ranks call it."""
        return float(self._library.round_trip_ns(self._bare))

    def bind(self, size: int, rotate: int, dtype: str) -> Bound:
        bare = functools.partial(self._library.time_all_reduce, ctypes.c_void_p(self._bare))
        file = self.options["files"][1]
        return _BareBound(bare, self.modes, self.rank, file, size, rotate, dtype)

    def released(self) -> None:
        os.ftruncate(self.options["files"][1], 0)


class _BareBound(Bound):
    def __init__(
        self,
        function: Callable[..., int],
        movements: tuple[str, ...],
        rank: int,
        file: int,
        size: int,
        rotate: int,
        dtype: str,
    ) -> None:
        super().__init__(private(size, rotate, dtype), [])
        self._function, self._movements = function, movements
        bytes_each = span(size, rotate)
        os.ftruncate(file, 2 * bytes_each)
        memory = np.frombuffer(mmap.mmap(file, 2 * bytes_each), np.uint8)
        # Each rank clears all of it, which makes zeros of zeros: nobody sums yet.
        shared = [
            apart(memory[at : at + bytes_each], size, rotate, dtype) for at in (0, bytes_each)
        ]
        self._shared = shared[rank]
        self._mine = _pointers(self.places)
        self._ours = [_pointers(shared[rank]), _pointers(shared[1 - rank])]

    def places_of(self, mode: str) -> Sequence[Array]:
        return self._shared if mode.startswith("shared/") else self.places

    def loop(self, mode: str, first: int, calls: int) -> array[int]:
        movement, chunk = mode.split("/")
        mine, theirs = self._ours if movement == "shared" else (self._mine, self._mine)
        times = (ctypes.c_int64 * calls)()
        failed = self._function(
            self._movements.index(movement),
            *(mine, theirs, len(self.places), first),
            *(ctypes.c_int64(len(self.places[0])), ctypes.c_int64(int(chunk))),
            *(ctypes.c_int64(calls), times),
        )
        if failed:
            raise ValueError(f"{mode} does not take {self.places[0].nbytes} bytes")
        return array("q", bytes(times))


def _pointers(places: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * len(places))(*(place.ctypes.data for place in places))
