"""``"ringkern"`` as a torch.distributed backend. Importing ringkern registers it.

A group of one rank. In a rank of torchrun, ``dist.init_process_group("ringkern")`` is enough.
``"cpu:gloo,cuda:ringkern"`` uses it for CUDA tensors only:

>>> import torch, torch.distributed as dist
>>> dist.init_process_group("ringkern", store=dist.HashStore(), rank=0, world_size=1)
>>> dist.get_backend()
'ringkern'
>>> dist.all_reduce(torch.ones(4))

The collectives are in C++ (``csrc/torch/backend.cpp``); torch calls them without Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

import ringkern_autoload

from . import _C, news, recorder
from .arguments import way_asked
from .choose import ring_order, tables
from .config import ON_FAULT, check_threads, config, timeout_seconds
from .hosts import engine_names, find_hosts, over_hosts


@dataclass(frozen=True)
class Options:
    """Options for ``pg_options`` of ``init_process_group`` and ``new_group``.

    >>> import torch.distributed as dist
    >>> from ringkern.backend import Options
    >>> over_gloo = Options(inter_host="gloo")  # dist.new_group(backend="ringkern", pg_options=...)

    Attributes:
        inter_host: the inter-host engine of a group that spans hosts; see
            :class:`ringkern.Communicator`.
        on_fault: what this process does when the group fails: ``"raise"`` or ``"exit"``; ``None``:
            the value of ``RINGKERN_ON_FAULT``.
        threads: the threads of this rank for a large collective; see
            :class:`ringkern.Communicator`.

    Raises:
        ValueError: unknown ``inter_host`` or ``on_fault``, or ``threads`` is not 1 to 256.
    """

    inter_host: str | None = None
    on_fault: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        engine_names(self.inter_host)
        check_threads(self.threads)
        if self.on_fault not in (None, *ON_FAULT):
            raise ValueError(f"on_fault is {self.on_fault!r}; accepted: {', '.join(ON_FAULT)}")


def create(options: Any, backend_options: object = None) -> dist.distributed_c10d.Backend:
    """Makes this rank's backend, for ``init_process_group`` and ``new_group``.

    Waits for all ranks of the group.

    Args:
        options: torch's ``_DistributedBackendOptions``: store, rank in the group, timeout.
        backend_options: the caller's ``pg_options``: :class:`Options`, or ``None``.

    Returns:
        The backend.

    Raises:
        TypeError: ``backend_options`` is neither :class:`Options` nor ``None``.
        ValueError: the timeout is not positive, or ``inter_host`` is unknown.
        NotImplementedError: ``enable_reconfigure`` was given, which torch 2.14 and newer have.
        RendezvousError: a rank of the group did not make its backend within the timeout.
        PeerLostError: a rank of the group ended while this one waited.
    """
    if getattr(options, "enable_reconfigure", False):
        raise NotImplementedError(
            "enable_reconfigure=True was given; the backend 'ringkern' cannot replace ranks of a "
            "group: leave it out and restart all ranks after a failure, or use Gloo or NCCL"
        )
    asked = _asked(backend_options)
    size, rank = options.group_size, options.group_rank
    name = f"backend/{options.group_id}"
    ranks = options.global_ranks_in_group  # empty for the default group
    recorder.remember_group(name, "undefined" if ranks else "default_pg", ranks or range(size))
    news.start()
    seconds = timeout_seconds(options.timeout)
    hosts, roster = find_hosts(options.store, name, rank, size, seconds, asked.threads)
    joined: dict[str, Any] = {}
    if hosts.count > 1:
        recorder.remember_hosts(name, hosts)
        joined = over_hosts(asked.inter_host, options.store, name, rank, seconds, hosts)
    return _C.make_backend(
        options.store,
        name,
        rank,
        size,
        ranks,
        seconds,
        *way_asked("auto", "auto", "auto", "auto"),
        tables.tables_of(hosts, rank),
        roster,
        ring_order.orders,
        on_fault=config.on_fault if asked.on_fault is None else asked.on_fault,
        threads=hosts.threads_of(rank),
        **joined,
    )


def _asked(backend_options: object) -> Options:
    if backend_options is None:
        return Options()
    if not isinstance(backend_options, Options):
        raise TypeError(
            f"pg_options is {type(backend_options).__name__}; the backend 'ringkern' takes "
            "ringkern.backend.Options: give these, or leave pg_options out. To choose an algorithm "
            "or a protocol, set RINGKERN_ALGORITHM, RINGKERN_PROTOCOL, RINGKERN_DETERMINISTIC or "
            "RINGKERN_ACCUMULATE in the environment"
        )
    return backend_options


ringkern_autoload.register()
