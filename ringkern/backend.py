"""``"ringkern"`` as a torch.distributed backend. Importing ringkern registers it.

A group of one rank; as a rank of torchrun, ``dist.init_process_group("ringkern")`` is enough, and
``"cpu:gloo,cuda:ringkern"`` in its place takes it for CUDA tensors only:

>>> import torch, torch.distributed as dist
>>> dist.init_process_group("ringkern", store=dist.HashStore(), rank=0, world_size=1)
>>> dist.get_backend()
'ringkern'
>>> dist.all_reduce(torch.ones(4))

The collectives themselves are in C++ (``csrc/torch/backend.h``); torch calls them without Python.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import ringkern_autoload

from . import _C, news, recorder, tuner
from .arguments import way_asked
from .config import timeout_seconds


def create(options: Any, backend_options: object = None) -> dist.distributed_c10d.Backend:
    """A rank's part of a process group, as ``init_process_group`` and ``new_group`` ask for it.

    Args:
        options: torch's ``_DistributedBackendOptions``: store, place in the group, timeout.
        backend_options: the caller's ``pg_options``; ringkern has none.

    Raises:
        TypeError: ``backend_options`` are given.
        ValueError: the timeout is not positive.
    """
    if backend_options is not None:
        raise TypeError(
            f"pg_options is {type(backend_options).__name__}; the backend 'ringkern' has no "
            "options: leave it out. RINGKERN_ALGORITHM, RINGKERN_PROTOCOL, RINGKERN_DETERMINISTIC "
            "and RINGKERN_ACCUMULATE in the environment are for all its calls"
        )
    size = options.group_size
    name = f"backend/{options.group_id}"
    ranks = options.global_ranks_in_group  # none: of the default group
    recorder.remember_group(name, "undefined" if ranks else "default_pg", ranks or range(size))
    news.start()
    return _C.make_backend(
        options.store,
        name,
        options.group_rank,
        size,
        ranks,
        timeout_seconds(options.timeout),
        *way_asked("auto", "auto", "auto", "auto"),
        {device: tuner.table(device, size) for device in tuner.DEVICES},
    )


ringkern_autoload.register()
