"""Tensors that the other ranks of the host reach in place: an all-reduce of them copies nothing.

>>> import ringkern
>>> x = ringkern.zeros(1 << 20)  # for ringkern.ring_all_reduce(x), or a part of x
>>> ringkern.is_shared(x[:100])
True

They are ordinary torch tensors of the CPU, in one memory file of this process, which the other
ranks map when they first meet a tensor in it. Where all ranks give such tensors (or parts of them)
to an all-reduce that is two_shot, as most are with ``algorithm="auto"``, each rank reduces its part
of everybody's tensor where it is; otherwise they are staged like any other. The result is the same
to the bit. Any group will do, and any number of groups.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from . import _C


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A shared tensor of any values, as :func:`torch.empty`.

    No other rank takes part in making it, nor in freeing it.

    Args:
        size: as for :func:`torch.empty`: integers, or one sequence of them.
        dtype: any of torch's; ``None``: torch's default.

    Raises:
        SharedMemoryError: there is no memory for it; the text names the limits of the process.
        ValueError: a size is negative.
    """
    sizes: Any = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return _C.shared_empty([int(n) for n in sizes], dtype or torch.get_default_dtype())


def zeros(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A shared tensor of zeros, as :func:`torch.zeros`; otherwise as :func:`empty`."""
    return empty(*size, dtype=dtype).zero_()


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether a tensor is in this process's shared memory."""
    return _C.is_shared(tensor)


_in_use = threading.Lock()


@contextlib.contextmanager
def shared_memory() -> Iterator[None]:
    """Makes every CPU tensor that this process allocates within the context a shared one.

    For tensors that other code makes, as DistributedDataParallel its buckets of gradients: they are
    made with the module, and once more in its second iteration, so both belong in the context. See
    ``examples/ddp_shared.py``.

    Raises:
        RuntimeError: another such context is in use.
    """
    if not _in_use.acquire(blocking=False):
        raise RuntimeError("ringkern.shared_memory() is in use already, and does not nest")
    try:
        _C.share_by_default(True)
        try:
            yield
        finally:
            _C.share_by_default(False)
    finally:
        _in_use.release()
