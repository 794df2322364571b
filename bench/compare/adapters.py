"""A rank's calls into its library: the base of all adapters, MPI and oneCCL."""

from __future__ import annotations

import ctypes
import functools
import importlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from .memory import Array, private


class Adapter:
    """One library, on one rank.

    Attributes:
        dtypes: that it can sum.
        modes: ``"py"``: a Python call at a time; ``"c"``: a loop in C over the public function.
    """

    dtypes: tuple[str, ...] = ("float32",)
    modes: tuple[str, ...] = ("py",)

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        """Joins the group. ``options["folder"]`` is one that all its ranks share."""
        self.rank, self.ranks, self.options = rank, ranks, options

    def met(self) -> None:
        """All ranks have joined: what they found each other by may go."""

    def version(self) -> str:
        """The version of the library; empty: as pip says."""
        return ""

    def bind(self, size: int, rotate: int, dtype: str) -> Bound:
        """Tensors of ``size`` bytes, and the calls on them."""
        raise NotImplementedError

    def released(self) -> None:
        """Called when the result of ``bind`` is gone."""

    def choice(self, size: int, dtype: str) -> list[str]:
        """Algorithm and protocol of a call with so many bytes, where the library says so."""
        return []

    def close(self) -> None:
        """Leaves the group. All ranks call it."""


class Bound:
    """The in-place sums of one set of tensors.

    Attributes:
        places: the tensors as numpy has them.
        calls: for each, a function that sums it over all ranks.
    """

    def __init__(self, places: Sequence[Array], calls: Sequence[Callable[[], object]]) -> None:
        self.places, self.calls = places, calls

    def places_of(self, mode: str) -> Sequence[Array]:
        """The tensors that a mode works on."""
        return self.places

    def loop(self, mode: str, first: int, calls: int) -> array[int]:
        """So many calls from the tensor ``first`` on, in turn, timed in C; ns each."""
        raise NotImplementedError


class CLoop(Bound):
    """With a loop of a library in C: ``loops/timing.h`` says what it takes."""

    def __init__(
        self,
        places: Sequence[Array],
        calls: Sequence[Callable[[], object]],
        function: Any,
        kind: int,
    ) -> None:
        """``kind``: the dtype, as the library has it."""
        super().__init__(places, calls)
        addresses = [place.ctypes.data for place in places]
        self._pointers = (ctypes.c_void_p * len(places))(*addresses)
        self._function, self._kind = function, kind

    def loop(self, mode: str, first: int, calls: int) -> array[int]:
        times = (ctypes.c_int64 * calls)()
        failed = self._function(
            self._pointers,
            len(self.places),
            first,
            ctypes.c_int64(len(self.places[0])),
            ctypes.c_ssize_t(self._kind),
            ctypes.c_int64(calls),
            times,
        )
        if failed:
            raise RuntimeError(f"the library returned {failed}")
        return array("q", bytes(times))


class Mpi(Adapter):
    """MPI by mpi4py, its buffer interface, and ``loops/mpi_loop.c`` as ``options["loop"]``."""

    dtypes = ("float32", "float16")

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        self._mpi = importlib.import_module("mpi4py.MPI")
        if self._mpi.COMM_WORLD.Get_size() != ranks:
            raise RuntimeError(f"mpiexec started {self._mpi.COMM_WORLD.Get_size()} ranks")
        self._loop = None
        if options.get("loop"):
            self._loop = ctypes.CDLL(options["loop"]).time_all_reduce
            self.modes = ("py", "c")

    def version(self) -> str:
        text: str = self._mpi.Get_library_version()
        line = text.split("\n")[0].split(",")[0].strip("\0 ")
        return " ".join(line.replace("Version:", "").replace(" for Linux* OS", "").split())

    def bind(self, size: int, rotate: int, dtype: str) -> Bound:
        places = private(size, rotate, dtype)
        reduce, in_place = self._mpi.COMM_WORLD.Allreduce, self._mpi.IN_PLACE
        kind = self._mpi.FLOAT if dtype == "float32" else self._mpi.FLOAT16_T
        calls = [functools.partial(reduce, in_place, [x, len(x), kind]) for x in places]
        return CLoop(places, calls, self._loop, self._mpi._handleof(kind))


class OneCcl(Adapter):
    """oneCCL's C++ interface by ``loops/ccl_loop.cpp``. It has none for Python."""

    dtypes = ("float32", "float16", "bfloat16")
    modes = ("c",)

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        self._mpi = importlib.import_module("mpi4py.MPI")  # finds the ranks
        self._library = ctypes.CDLL(options["loop"])
        address = ctypes.create_string_buffer(self._library.address_bytes())
        if rank == 0:
            self._library.make_address(address)
        known = self._mpi.COMM_WORLD.bcast(address.raw)
        if self._library.start(rank, ranks, known):
            raise RuntimeError("oneCCL found no communicator")

    def version(self) -> str:
        text = ctypes.create_string_buffer(256)
        self._library.version(text, len(text))
        return text.value.decode()

    def bind(self, size: int, rotate: int, dtype: str) -> Bound:
        kind = self.dtypes.index(dtype)
        return CLoop(private(size, rotate, dtype), [], self._library.time_all_reduce, kind)

    def close(self) -> None:
        self._library.stop()
