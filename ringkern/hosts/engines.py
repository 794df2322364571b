"""Engines, which reduce between hosts: backends of torch.distributed over some ranks of a group.

They are made in the same way as in ``torch.distributed.new_group``, but over any store, without a
default group, and between exactly these ranks: no other rank takes part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from .. import config
from ..errors import CommUsageError, RendezvousError
from .hosts import Hosts
from .inter_host_cost import GLOO, GLOO_CROWDED, NCCL, InterHostCost
from .search import unique_prefix


class EngineMaker(Protocol):
    """A maker of engines; see :func:`engine_maker`."""

    def __call__(
        self,
        device: str,
        ranks: list[int],
        watched: Callable[[str, dist.Store], dist.Store] = dist.PrefixStore,
    ) -> Backend:
        """Makes an engine for ``device`` over these ranks."""


_LONGEST_S = 365.0 * 24 * 3600  # the limit of engines, and longer than anybody waits

_c10d: Any = dist.distributed_c10d
_Make = Callable[[dist.Store, int, list[int], timedelta, str], Any]


def engine_names(inter_host: str | None) -> dict[str, str]:
    """Returns, by device, the name of the engine between hosts.

    Args:
        inter_host: such as ``"gloo"``, for both devices, or ``"cpu:gloo,cuda:nccl"``; ``None``:
            ``RINGKERN_INTER_HOST``, or ``"cpu:gloo,cuda:nccl"``.

    Raises:
        ValueError: it has another form, or no backend of torch.distributed has that name.
        TypeError: it is no text.
    """
    if inter_host is None:
        what, found = f"RINGKERN_INTER_HOST={config.config.inter_host!r}", config.between_hosts()
    elif isinstance(inter_host, str):
        what, found = f"inter_host={inter_host!r}", config.engines("inter_host", inter_host)
    else:
        kind = type(inter_host).__name__
        raise TypeError(f"inter_host is {kind}; give a text, as 'gloo', or None")
    known = {*_BUILT_IN, *(name.lower() for name in dist.Backend._plugins)} - {"ringkern"}
    for name in found.values():
        if name not in known:
            raise ValueError(
                f"{what}: {name!r} cannot join hosts; choose one of "
                f"{', '.join(sorted(known))}, or register it with torch.distributed first"
            )
    return found


def inter_host_costs(inter_host: str | None, crowded: bool) -> dict[str, tuple[int, int, bool]]:
    """Returns, by device, the costs that cut the calls of an engine between hosts.

    Args:
        inter_host: see :func:`engine_names`.
        crowded: see :class:`ringkern.hosts.Hosts`.

    Raises:
        ValueError: see :func:`engine_names`.
    """
    # An engine that was not measured is assumed to be like one that was.
    on_cpu: InterHostCost = GLOO_CROWDED if crowded else GLOO
    on_cuda = on_cpu if engine_names(inter_host)["cuda"] == "gloo" else NCCL
    return {"cpu": on_cpu, "cuda": on_cuda}


def over_hosts(
    inter_host: str | None,
    store: dist.Store,
    name: str,
    rank: int,
    timeout_s: float,
    hosts: Hosts,
) -> dict[str, Any]:
    """Returns the arguments with which ``_C`` joins several hosts. All ranks call it.

    Args:
        inter_host, store, name, rank, timeout_s, hosts: see :func:`engine_maker`.

    Raises:
        ValueError, RuntimeError: see :func:`engine_maker`.
    """
    size = len(hosts.host_of)
    return {
        "host_of": list(hosts.host_of),
        "host_names": list(hosts.names),
        "engine": engine_maker(inter_host, store, name, rank, size, timeout_s, hosts),
        "inter_host_costs": inter_host_costs(inter_host, hosts.crowded),
    }


def engine_maker(
    inter_host: str | None,
    store: dist.Store,
    name: str,
    rank: int,
    size: int,
    timeout_s: float,
    hosts: Hosts | None = None,
) -> EngineMaker:
    """Returns the function that makes the engines of a communicator. All its ranks call it.

    Args:
        inter_host: see :func:`engine_names`.
        store: a store that all ranks share.
        name: of the communicator; the n-th calls of all ranks with one name belong together.
        rank: this rank, in the communicator's group.
        size: number of ranks of that group.
        timeout_s: of each call of an engine, and for its ranks to find each other.
        hosts: of the group, which MPI needs.

    Returns:
        ``make(device, ranks, watched)``: makes an engine for tensors of ``"cpu"`` or ``"cuda"``
        over these ranks of the group, numbered in this order. This rank is one of them, and all of
        them call it, in the same order. It waits for them; Gloo does so in ``watched(prefix,
        store)``, where the caller can end the wait. It raises CommUsageError if the engine is not
        in this torch, or does not support the device; and RendezvousError if the ranks do not meet.

    Raises:
        ValueError: see :func:`engine_names`.
        RuntimeError: the store has failed.
    """
    names = engine_names(inter_host)
    prefix = unique_prefix(store, f"engines of {name}", rank, size)
    shared: Any = store  # torch's stub of Store lacks clone()
    timeout = timedelta(seconds=min(timeout_s, _LONGEST_S))
    made: dict[str, int] = {}
    of_mpi: dict[tuple[int, ...], list[Backend]] = {}
    if "mpi" in names.values() and dist.is_mpi_available() and hosts is not None:
        of_mpi = _mpi_engines(rank, hosts)

    def make(
        device: str,
        ranks: list[int],
        watched: Callable[[str, dist.Store], dist.Store] = dist.PrefixStore,
    ) -> Backend:
        engine = names[device]
        _check_device(engine, device)
        if engine == "mpi" and of_mpi.get(tuple(ranks)):
            return of_mpi[tuple(ranks)].pop()
        among = hashlib.sha256(repr((device, list(ranks))).encode()).hexdigest()[:16]
        number = made[among] = made.get(among, -1) + 1
        key = f"{prefix}/{device}/{among}/{number}"
        if engine not in _BUILT_IN:
            build: _Make = _plugin(engine)
        else:
            build = _BUILT_IN[engine]
        place = ranks.index(rank)
        try:
            # A separate connection: a TCPStore waits under a lock, so on a shared one, engines that
            # two threads make in another order on another rank would wait for each other.
            wrap = watched if engine == "gloo" else dist.PrefixStore  # others also wait later
            own = wrap(key, shared.clone())
            found = build(own, place, list(ranks), timeout, key)
        except CommUsageError:
            raise
        except RuntimeError as error:
            raise RendezvousError(_did_not_meet(engine, rank, ranks, error)) from error
        if not isinstance(found, Backend) or (found.rank(), found.size()) != (place, len(ranks)):
            raise CommUsageError(
                f"the engine {engine!r} made {type(found).__name__} for rank {place} of "
                f"{len(ranks)}: ringkern needs a torch.distributed Backend of that rank"
            )
        return found

    return make


def _check_device(engine: str, device: str) -> None:
    can = dist.Backend.backend_capability.get(engine)
    if can is not None and device not in can:
        usual = config.ENGINES[device]
        raise CommUsageError(
            f"the engine {engine!r} between hosts does not do {device} tensors, only "
            f"{' and '.join(can)}: give one that does, as inter_host='{device}:{usual}'"
        )


def _did_not_meet(engine: str, rank: int, ranks: list[int], error: Exception) -> str:
    others = ", ".join(str(r) for r in ranks[:16]) + (" ..." if len(ranks) > 16 else "")
    hint = ""
    if engine == "gloo":
        hint = (
            ". Gloo listens where this machine's name points to: where the others cannot reach "
            "that, set GLOO_SOCKET_IFNAME to the network interface between the hosts"
        )
    return f"rank {rank}: no {engine} between ranks {others}: {error}{hint}"


# ---- the engines ---------------------------------------------------------------------------------


def _class(engine: str, there: bool, *names: str) -> Any:
    """Returns torch's class of that engine, by whichever name this torch has for it."""
    for name in names if there else ():
        if (found := getattr(_c10d, name, None)) is not None:
            return found
    raise CommUsageError(
        f"the engine {engine!r} between hosts is not in this torch ({_missing(engine)}): choose "
        "another, as inter_host='gloo', or install a torch that has it"
    )


def _missing(engine: str) -> str:
    others = [name for name in _BUILT_IN if dist.is_backend_available(name)]
    return f"which has {', '.join(others) or 'none'}"


def _gloo(store: dist.Store, place: int, ranks: list[int], timeout: timedelta, key: str) -> Any:
    made = _class("gloo", dist.is_gloo_available(), "ProcessGroupGloo", "BackendGloo")
    # Gloo waits five times as long for a rank that has died before it connects, and nobody can end
    # that wait. Connecting to a rank that listens takes no time; a rank that does not listen yet is
    # awaited in the store.
    connecting = min(timeout, timedelta(seconds=5))
    found = made(store, place, len(ranks), timeout=connecting)
    found._set_default_timeout(timeout)
    return found


def _nccl(store: dist.Store, place: int, ranks: list[int], timeout: timedelta, key: str) -> Any:
    made = _class("nccl", dist.is_nccl_available(), "ProcessGroupNCCL", "BackendNCCL")
    options = made.Options()
    options._timeout = timeout
    options.is_high_priority_stream = False
    options.group_name = key
    return made(store, place, len(ranks), options)


def _ucc(store: dist.Store, place: int, ranks: list[int], timeout: timedelta, key: str) -> Any:
    made = _class("ucc", dist.is_ucc_available(), "ProcessGroupUCC", "BackendUCC")
    return made(store, place, len(ranks), timeout=timeout)


def _mpi(store: dist.Store, place: int, ranks: list[int], timeout: timedelta, key: str) -> Any:
    _class("mpi", dist.is_mpi_available(), "ProcessGroupMPI", "BackendMPI")
    raise CommUsageError(f"there is no engine 'mpi' between ranks {ranks}: only along rails")


def _mpi_engines(rank: int, hosts: Hosts) -> dict[tuple[int, ...], list[Backend]]:
    """Makes all engines of MPI that a rank may need, by their ranks: two, for slots and for data.

    All processes of mpirun have to take part whenever one is made, even if they are not in it. So
    all processes make them at once. Their ranks are those of mpirun.
    """
    made = _class("mpi", dist.is_mpi_available(), "ProcessGroupMPI", "BackendMPI")
    flat, size = [made.create([]) for _ in range(2)], len(hosts.host_of)
    if (flat[0].rank(), flat[0].size()) != (rank, size):
        raise CommUsageError(
            f"the engine 'mpi' between hosts is for groups of all ranks of mpirun: this is rank "
            f"{flat[0].rank()} of its {flat[0].size()}, and rank {rank} of {size} of the group; "
            "choose another, as inter_host='gloo'"
        )
    on = [hosts.ranks_on(host) for host in range(hosts.count)]
    rails = [tuple(rail) for rail in zip(*on)]  # as many as the smallest host has ranks
    mine = next((rail for rail in rails if rank in rail), rails[0])
    rail = [made.create(list(mine)) for _ in range(2)]
    found = {tuple(range(size)): flat}
    return found | {mine: rail} if rank in mine else found


_BUILT_IN: dict[str, _Make] = {"gloo": _gloo, "nccl": _nccl, "mpi": _mpi, "ucc": _ucc}


def _plugin(engine: str) -> _Make:
    plugin = dist.Backend._plugins.get(engine.upper())
    if plugin is None:
        raise CommUsageError(f"the engine {engine!r} is not registered with torch.distributed")

    def make(store: dist.Store, place: int, ranks: list[int], timeout: timedelta, key: str) -> Any:
        if not plugin.extended_api:
            return plugin.creator_fn(store, place, len(ranks), timeout)
        options = _c10d._DistributedBackendOptions()
        options.store, options.group_rank, options.group_size = store, place, len(ranks)
        options.timeout, options.group_id = timeout, key
        options.global_ranks_in_group = ranks
        return plugin.creator_fn(options, None)

    return make
