"""Tensors that the other ranks of the host access in place: an all-reduce of them copies nothing.

>>> import ringkern
>>> x = ringkern.zeros(1 << 20)  # for ringkern.ring_all_reduce(x), or a part of x
>>> ringkern.is_shared(x[:100])
True

They are ordinary torch tensors. If all ranks give such tensors (or parts of them) to an all-reduce
that runs two_shot over Simple, each rank reduces its part of all tensors in place; otherwise they
are staged like any other tensor. The bits of the result are the same. They work with any group and
any number of groups.

On the CPU they are in one memory file of this process. Another rank maps it at the first call with
a tensor in it. Most all-reduces with ``algorithm="auto"`` use them in place.

On CUDA they are in a separate memory pool (:class:`torch.cuda.MemPool`). The other ranks map its
memory at their next call, and this process keeps it until it ends. ``"auto"`` uses them in place
where NVLink connects the GPUs (or ranks share one) and all ranks had such memory before the first
call of the group. Tested only with ranks that share one GPU.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from . import _C

DeviceLike = torch.device | str | int | None


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, device: DeviceLike = None
) -> torch.Tensor:
    """Returns an uninitialised shared tensor, like :func:`torch.empty`.

    Needs no other rank, neither to make the tensor nor to free it.

    Args:
        size: integers, or one sequence of them, as for :func:`torch.empty`.
        dtype: any dtype of torch; ``None``: torch's default.
        device: the CPU, or a CUDA device; ``None``: the CPU.

    Raises:
        SharedMemoryError: out of shared memory on the CPU; the text names the limits of the
            process.
        torch.OutOfMemoryError: out of memory on the CUDA device.
        ValueError: a size is negative, or the device has no shared tensors.
    """
    sizes: Any = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    sizes = [int(n) for n in sizes]
    where = _device(device)
    if where.type == "cuda":
        with shared_memory(where):
            return torch.empty(sizes, dtype=dtype, device=where)
    return _C.shared_empty(sizes, dtype or torch.get_default_dtype())


def zeros(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, device: DeviceLike = None
) -> torch.Tensor:
    """Returns a shared tensor of zeros, like :func:`torch.zeros`; otherwise as :func:`empty`."""
    return empty(*size, dtype=dtype, device=device).zero_()


def is_shared(tensor: torch.Tensor) -> bool:
    """Tells if a tensor is in this process's shared memory.

    Returns:
        ``True`` also for a part of such a tensor.
    """
    return _C.is_shared(tensor)


_in_use = threading.Lock()


@contextlib.contextmanager
def shared_memory(device: DeviceLike = None) -> Iterator[None]:
    """Makes every tensor that this process allocates on ``device`` within the context shared.

    Use it for tensors that other code makes, such as the gradient buckets of
    DistributedDataParallel. DDP makes them with the module, and again in the second iteration:
    both belong in the context. See ``examples/ddp_shared.py``.

    Args:
        device: see :func:`empty`. On CUDA, only tensors that this thread allocates become shared,
            as with :func:`torch.cuda.use_mem_pool`.

    Raises:
        RuntimeError: on the CPU, another such context is in use.
        ValueError: the device has no shared tensors.
    """
    where = _device(device)
    if where.type == "cuda":
        with torch.cuda.use_mem_pool(_pool(where), where):
            yield
        return
    if not _in_use.acquire(blocking=False):
        raise RuntimeError(
            "ringkern.shared_memory() is already in use in this process, and does not nest; "
            "leave that context first"
        )
    try:
        _C.share_by_default(True)
        try:
            yield
        finally:
            _C.share_by_default(False)
    finally:
        _in_use.release()


def _device(device: DeviceLike) -> torch.device:
    found = torch.device("cpu" if device is None else device)
    if found.type == "cpu":
        return found
    if found.type != "cuda" or not _C.build_info()["cuda"]:
        raise ValueError(
            f"there are no shared tensors on device '{found}': give the CPU"
            + (", or a CUDA device" if _C.build_info()["cuda"] else "")
        )
    return torch.device("cuda", torch.cuda.current_device()) if found.index is None else found


@functools.cache
def _pool(device: torch.device) -> torch.cuda.MemPool:
    names = "ringkern_cuda_allocate", "ringkern_cuda_free"
    allocator = torch.cuda.memory.CUDAPluggableAllocator(_C.__file__, *names)
    with torch.cuda.device(device):
        return torch.cuda.MemPool(allocator.allocator())
