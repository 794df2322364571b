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

import torch
import torch.distributed as dist

import ringkern_autoload

from . import _C, comm, news, recorder
from .arguments import way_asked
from .config import DETERMINISTIC, ON_FAULT, check_threads, config, timeout_seconds
from .hosts import Known, engine_names, find_hosts


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
        enable_reconfigure: as that of ``init_process_group``: the group has no ranks until
            ``reconfigure`` is called.
        deterministic: of each all-reduce of the group; see :func:`ringkern.ring_all_reduce`.
            ``"world_invariant"``: each rank has one shard, also in ``reduce`` and
            ``reduce_scatter``, which then take the time of an all-reduce. For one host; without
            ``PRODUCT`` of floats and sparse tensors.

    Raises:
        ValueError: unknown ``inter_host``, ``on_fault`` or ``deterministic``, or ``threads`` is not
            1 to 256.
        NotImplementedError: ``enable_reconfigure`` with a torch before 2.14.
    """

    inter_host: str | None = None
    on_fault: str | None = None
    threads: int | None = None
    enable_reconfigure: bool = False
    deterministic: str = "auto"

    def __post_init__(self) -> None:
        engine_names(self.inter_host)
        check_threads(self.threads)
        if self.on_fault not in (None, *ON_FAULT):
            raise ValueError(f"on_fault is {self.on_fault!r}; accepted: {', '.join(ON_FAULT)}")
        accepted = (*DETERMINISTIC, "world_invariant")
        if self.deterministic not in accepted:
            raise ValueError(
                f"deterministic is {self.deterministic!r}; accepted: {', '.join(accepted)}"
            )
        if self.enable_reconfigure and not hasattr(dist.distributed_c10d, "_reconfigure"):
            raise NotImplementedError(
                f"torch {torch.__version__} cannot reconfigure groups: leave enable_reconfigure "
                "out, or use torch 2.14 or newer"
            )


@dataclass(frozen=True)
class _Maker:
    """The maker of a backend's parts, each time that its ranks change.

    Attributes:
        asked: the user's options.
        group_id: the name of the group.
        on_fault: what this process does when the group fails.
    """

    asked: Options
    group_id: str
    on_fault: str

    def make(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        ranks: list[int],
        seconds: float,
        processes: list[tuple[int, int]],
    ) -> _C.Members:
        """Returns the parts for these ranks of the group, once all have come.

        ``processes``: those of the ranks that have met before.
        """
        name = f"backend/{self.group_id}"
        recorder.remember_group(name, "undefined" if ranks else "default_pg", ranks or range(size))
        known = Known(tuple(processes), seconds)
        place = store, name, rank, size, seconds
        hosts, roster = find_hosts(*place, self.asked.threads, known)
        if self.asked.deterministic == "world_invariant" and hosts.count > 1:
            raise ValueError(
                "deterministic='world_invariant' of a group is for one host, and its ranks are on "
                f"{hosts.count}: use ringkern.ShardSum"
            )
        ring = comm.make_ring(*place, hosts, roster, self.asked.inter_host, self.on_fault)
        return _C.make_members(ring, store, roster, self.on_fault)

    end_others = staticmethod(comm.end_before_renewal)


def create(options: Any, backend_options: object = None) -> dist.distributed_c10d.Backend:
    """Makes this rank's backend, for ``init_process_group`` and ``new_group``.

    Waits for all ranks of the group, unless ``enable_reconfigure`` was given: then ``reconfigure``
    does.

    Args:
        options: torch's ``_DistributedBackendOptions``: store, rank in the group, timeout.
        backend_options: the caller's ``pg_options``: :class:`Options`, or ``None``.

    Returns:
        The backend.

    Raises:
        TypeError: ``backend_options`` is neither :class:`Options` nor ``None``.
        ValueError: the timeout is not positive, ``inter_host`` is unknown, or a group of several
            hosts cannot be ``deterministic="world_invariant"``.
        RendezvousError: a rank of the group did not make its backend within the timeout.
        PeerLostError: a rank of the group ended while this one waited.
    """
    asked = _asked(backend_options)
    waits = asked.enable_reconfigure or getattr(options, "enable_reconfigure", False)
    # A process that ended at a fault could not go on.
    on_fault = asked.on_fault or config.on_fault or ("raise" if waits else "")
    by_tree = asked.deterministic == "world_invariant"
    kept = ("size_invariant", "float32") if by_tree else (asked.deterministic, "auto")
    news.start()
    return _C.make_backend(
        options.store,
        options.group_rank,
        options.group_size,
        options.global_ranks_in_group,  # empty for the default group
        timeout_seconds(options.timeout),
        *way_asked("auto", "auto", *kept),
        by_tree,
        _Maker(asked, options.group_id, on_fault),
        waits,
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
