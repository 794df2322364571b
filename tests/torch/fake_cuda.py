"""Runs a module over fake CUDA devices that torch sees: tests/torch/fake_cuda.cpp.

python -m tests.torch.fake_cuda build/dev/fake_cuda/_C.so MODULE
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import runpy
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location

import torch
import torch.distributed as dist

from tests.cuda.resources import build_directory

EXTENSION = build_directory() / "fake_cuda" / "_C.so"


class Finder:
    """Import hook that finds the extension over the fake runtime in place of ringkern's own."""

    def __init__(self, path: str) -> None:
        self.path = path

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return spec_from_file_location(name, self.path) if name == "ringkern._C" else None


@functools.cache
def fake() -> ctypes.PyDLL:
    """Returns the extension's own functions."""
    from ringkern import _C

    library = ctypes.PyDLL(_C.__file__)
    library.fake_tensor.argtypes = ctypes.py_object, ctypes.c_int
    library.fake_tensor.restype = library.fake_work.restype = ctypes.py_object
    library.fake_touched.restype = ctypes.c_long
    library.fake_set_stream.argtypes = ctypes.c_int, ctypes.c_long
    library.fake_set_stream.restype = ctypes.c_long
    library.fake_end_capture.argtypes = ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)
    library.fake_replay.argtypes = ctypes.c_int, ctypes.c_void_p
    return library


def start(processors: int = 132) -> None:
    """Starts the devices of this process, with this many multiprocessors each."""
    fake().fake_start(processors)


@contextlib.contextmanager
def current(stream: torch.Stream) -> Iterator[None]:
    """Makes a stream its device's current one in this thread, as torch.cuda.stream() does."""
    device = stream.device.index
    before = fake().fake_set_stream(device, stream.stream_id)
    try:
        yield
    finally:
        fake().fake_set_stream(device, before)


class Graph:
    """A CUDA graph of the current stream of a device, like torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self._exec = ctypes.c_void_p()

    @contextlib.contextmanager
    def capture(self, device: int = 0) -> Iterator[None]:
        """Captures in CUDA's global mode: no thread may make an unsafe call meanwhile."""
        self._check(fake().fake_begin_capture(device))
        try:
            yield
        finally:
            self._check(fake().fake_end_capture(device, ctypes.byref(self._exec)))

    def replay(self, device: int = 0) -> None:
        self._check(fake().fake_replay(device, self._exec))

    @staticmethod
    def _check(error: int) -> None:
        if error != 0:
            raise RuntimeError(f"CUDA error {error}")


def on_device(x: torch.Tensor, device: int = 0) -> torch.Tensor:
    """Returns a tensor of the same memory that lies on a fake device."""
    tensor: torch.Tensor = fake().fake_tensor(x, device)
    return tensor


def shared(x: torch.Tensor, device: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies a tensor into memory like that of ``ringkern.empty(device="cuda")``.

    Returns:
        The copy as a CPU tensor, and as one that lies on a fake device.
    """
    allocate = fake().ringkern_cuda_allocate
    allocate.argtypes = ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
    allocate.restype = ctypes.c_void_p
    at = allocate(x.nbytes, device, None)
    copy = torch.frombuffer((ctypes.c_byte * x.nbytes).from_address(at), dtype=x.dtype)
    return copy.copy_(x), on_device(copy, device)


def over_fake(module: str) -> tuple[str, ...]:
    """Returns the arguments of ``python -m`` that run a module over fake devices."""
    return __name__, str(EXTENSION), module


def why_not() -> str | None:
    """Returns the reason why there are no fake devices; None if there are."""
    if EXTENSION.exists():
        return None
    return f"no {EXTENSION}: `make build ctest` makes it where nvcc is on the PATH"


def main(path: str, module: str) -> None:
    sys.meta_path.insert(0, Finder(path))
    importlib.import_module("ringkern")  # registers the backend
    dist.Backend.backend_capability["ringkern"] = ["cpu", "cuda"]  # like a torch with CUDA
    fake().fake_read_kernels()  # once, before ranks are forked
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # dist.broadcast() asks for it
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
