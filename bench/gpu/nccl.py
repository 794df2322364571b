"""NCCL by ctypes: several ranks in this process and on one GPU, which torch's own does not offer.

NCCL takes several ranks on a GPU from 2.30.3 on, where NCCL_MULTI_RANK_GPU_ENABLE is 1. All their
blocks must be resident at once, so NCCL_MAX_CTAS bounds them. It may hang all the same: use it in a
process that can be ended.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

OLDEST = (2, 30, 3)

# From nccl.h.
UNIQUE_ID_BYTES = 128
SUCCESS = 0
FLOAT32 = 7
SUM = 0


class NcclError(RuntimeError):
    """A call of NCCL failed, or this NCCL cannot do what is asked for."""


class UniqueId(ctypes.Structure):
    """Passed by value, as nccl.h has it."""

    _fields_ = [("internal", ctypes.c_char * UNIQUE_ID_BYTES)]


def decode_version(code: int) -> tuple[int, int, int]:
    """NCCL's number of a version, as 23003 from 2.9 on, in three."""
    return code // 10_000, code % 10_000 // 100, code % 100


def environment(ranks: int, protocol: str, multiprocessors: int) -> dict[str, str]:
    """Returns NCCL's variables at start. ``protocol``: ringkern's name; "auto": NCCL chooses."""
    names = {"simple": "Simple", "ll": "LL", "ll128": "LL128"}
    settings = {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_MAX_CTAS": str(max(1, min(64, multiprocessors // ranks))),
        "NCCL_DEBUG": "WARN",
        # Each rank has a stream, and streams that share a queue would wait for each other.
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    }
    if protocol != "auto":
        settings |= {"NCCL_PROTO": names[protocol], "NCCL_ALGO": "Ring"}
    return settings


class Library:
    """The functions of a libnccl that are used here."""

    def __init__(self, path: str) -> None:
        # Its own symbols before those of the NCCL that torch has loaded.
        mode = os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND
        self._lib = ctypes.CDLL(path, mode=mode)
        pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        signatures: dict[str, list[Any]] = {
            "ncclGetVersion": [ctypes.POINTER(integer)],
            "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
            "ncclCommInitRank": [ctypes.POINTER(pointer), integer, UniqueId, integer],
            "ncclGroupStart": [],
            "ncclGroupEnd": [],
            "ncclAllReduce": [pointer, pointer, size, integer, integer, pointer, pointer],
        }
        for name, arguments in signatures.items():
            function = getattr(self._lib, name)
            function.argtypes, function.restype = arguments, integer
        self._lib.ncclGetErrorString.argtypes = [integer]
        self._lib.ncclGetErrorString.restype = ctypes.c_char_p
        code = integer(0)
        self.call("ncclGetVersion", ctypes.byref(code))
        self.version = decode_version(code.value)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._lib, name)(*arguments)
        if status != SUCCESS:
            text = self._lib.ncclGetErrorString(status).decode()
            raise NcclError(f"{name}: {text} (status {status})")


class Ring:
    """Ranks of one communicator, all in this process and on the current device."""

    def __init__(self, path: str, ranks: int) -> None:
        self._library = Library(path)
        if self._library.version < OLDEST:
            found, wanted = (".".join(map(str, v)) for v in (self._library.version, OLDEST))
            raise NcclError(f"{path} is NCCL {found}; several ranks on a GPU need {wanted}")
        self.version = ".".join(map(str, self._library.version))
        identity = UniqueId()
        self._library.call("ncclGetUniqueId", ctypes.byref(identity))
        self._comms = [ctypes.c_void_p() for _ in range(ranks)]
        self._library.call("ncclGroupStart")
        for rank, comm in enumerate(self._comms):
            self._library.call("ncclCommInitRank", ctypes.byref(comm), ranks, identity, rank)
        self._library.call("ncclGroupEnd")
        self._streams = [torch.cuda.Stream() for _ in range(ranks)]

    def all_reduce(self, tensors: list[torch.Tensor]) -> None:
        """Sums float32 in place, one tensor a rank, in the order of the current stream."""
        current = torch.cuda.current_stream()
        for stream in self._streams:
            stream.wait_stream(current)
        self._library.call("ncclGroupStart")
        for tensor, comm, stream in zip(tensors, self._comms, self._streams):
            at, count = tensor.data_ptr(), tensor.numel()
            self._library.call(
                "ncclAllReduce", at, at, count, FLOAT32, SUM, comm, stream.cuda_stream
            )
        self._library.call("ncclGroupEnd")
        for stream in self._streams:
            current.wait_stream(stream)
