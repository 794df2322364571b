"""Communicators: a rank's membership in a ring, one for each process group, made on first use."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import _C, news, recorder
from .arguments import Op, SupportsDLPack, as_tensor, protocol_name, reduce_op, way_asked
from .choose import tables
from .config import config, timeout_seconds
from .groups import place_of, resolve_group, untraced
from .hosts import Hosts, engine_names, find_hosts, over_hosts

if TYPE_CHECKING:
    from .choose.explain import Explanation


class Communicator:
    """A ring over the ranks of a process group; a ring on each host, where they are on several.

    Most programs never make one: :func:`ringkern.ring_all_reduce` makes and keeps one for each
    group. All ranks of the group make theirs together, each of which waits for all others, in the
    same order; and they make the same calls in the same order. Usable as a context manager, which
    closes it.

    Args:
        group: the process group whose ranks form the ring; ``None``: the default group. Any
            backend: only its store is used.
        timeout: how long a rank waits for the others: here, before it raises
            :class:`~ringkern.errors.RendezvousError`, and in a call for a neighbour, before it
            raises :class:`~ringkern.errors.CollectiveTimeoutError`; ``None``:
            ``RINGKERN_TIMEOUT``, or 600 s.
        inter_host: what joins the hosts, if the ranks are on several: a backend of
            torch.distributed, as ``"gloo"``, ``"nccl"``, ``"mpi"``, ``"ucc"``, or one for each
            device, as ``"cpu:gloo,cuda:nccl"``; ``None``: ``RINGKERN_INTER_HOST``, or that.

    Raises:
        CommUsageError: torch.distributed is not initialised.
        ValueError: this rank is not a member of ``group``; the timeout is not positive; there is no
            such ``inter_host``.
        RendezvousError: a rank did not make its own within the timeout, with the same text on all
            ranks, and its number as ``rank``; ranks do not fit together; the store has failed.
        PeerLostError: a rank has ended while others were waited for.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout: timedelta | None = None,
        inter_host: str | None = None,
    ) -> None:
        make = _make_untraced if torch.compiler.is_compiling() else _make
        make(self, group, timeout, inter_host)

    @classmethod
    def from_store(
        cls,
        store: dist.Store,
        rank: int,
        size: int,
        *,
        name: str = "ringkern",
        timeout: timedelta | None = None,
        inter_host: str | None = None,
    ) -> Communicator:
        """A ring without a process group.

        Args:
            store: any torch.distributed store that all ranks share.
            rank: this rank, from 0 to ``size - 1``.
            size: number of ranks.
            name: the same on all ranks; two rings over one store at the same time differ in it.
            timeout, inter_host: as for :class:`Communicator`.

        Raises:
            CommUsageError: there is no such ``rank``, or ``size`` is not 1 to 1024.
            ValueError, RendezvousError, PeerLostError: as :class:`Communicator`.
        """
        self = cls.__new__(cls)
        self._open(store, rank, size, name, timeout, inter_host)
        return self

    def _open(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        name: str,
        timeout: timedelta | None,
        inter_host: str | None,
    ) -> None:
        if inter_host is not None:
            engine_names(inter_host)
        seconds = timeout_seconds(timeout)
        hosts, roster = find_hosts(store, name, rank, size, seconds)
        self._c: _C.Communicator | _C.HostsCommunicator
        if hosts.count > 1:
            recorder.remember_hosts(name, hosts)
            joined = over_hosts(inter_host, store, name, rank, seconds, hosts)
            self._c = _C.HostsCommunicator(store, name, rank, timeout_s=seconds, **joined)
        else:
            self._c = _C.Communicator(store, name, rank, size, seconds)
        self._c.set_on_fault(config.on_fault)
        self._c.set_roster(roster)
        in_a_ring = len(hosts.ranks_on(hosts.host_of[rank]))
        for device in tables.DEVICES:
            self._c.set_table(device, tables.table(device, in_a_ring))
        self._hosts, self._inter_host = hosts, inter_host
        open_rings.add(self)
        news.start()

    @property
    def hosts(self) -> Hosts:
        """Returns the hosts of the ranks."""
        return self._hosts

    @property
    def rank(self) -> int:
        """This rank's number in the ring, from 0."""
        return self._c.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._c.size

    def all_reduce(
        self,
        tensor: SupportsDLPack,
        op: Op = dist.ReduceOp.SUM,
        async_op: bool = False,
        *,
        protocol: str = "auto",
        algorithm: str = "auto",
        deterministic: str = "auto",
        accumulate: str = "auto",
    ) -> dist.Work | None:
        """See :func:`ringkern.ring_all_reduce`."""
        tensor = as_tensor(tensor, "tensor", written=True)
        way = way_asked(algorithm, protocol, deterministic, accumulate, tensor.device.type)
        call = (tensor, reduce_op(op), *way)
        return self._c.all_reduce(*call, async_op)

    def reduce_scatter(
        self,
        output: SupportsDLPack,
        input: SupportsDLPack,
        op: Op = dist.ReduceOp.SUM,
        async_op: bool = False,
        *,
        protocol: str = "auto",
    ) -> dist.Work | None:
        """See :func:`ringkern.ring_reduce_scatter`."""
        output = as_tensor(output, "output", written=True)
        input = as_tensor(input, "input", written=False)
        call = (output, input, reduce_op(op), protocol_name(protocol))
        return self._c.reduce_scatter(*call, async_op)

    def all_gather(
        self,
        output: SupportsDLPack,
        input: SupportsDLPack,
        async_op: bool = False,
        *,
        protocol: str = "auto",
    ) -> dist.Work | None:
        """See :func:`ringkern.ring_all_gather`."""
        output = as_tensor(output, "output", written=True)
        input = as_tensor(input, "input", written=False)
        call = (output, input, protocol_name(protocol))
        return self._c.all_gather(*call, async_op)

    def explain(
        self,
        nbytes: int,
        dtype: torch.dtype | str = torch.float32,
        collective: str = "all_reduce",
        *,
        device: str = "cpu",
        algorithm: str = "auto",
        protocol: str = "auto",
        deterministic: str = "auto",
        accumulate: str = "auto",
    ) -> Explanation:
        """Which way a call of this ring goes, and why, with what every other way would take.

        By the table of rank 0 once the ranks are connected on a device of this kind, and by this
        rank's own before. Communicates nothing. Where the ranks are on several hosts: of what the
        ring of this rank's host does, with ``between``, which says the rest.

        Args:
            nbytes: of the tensor; of all ranks' parts for a reduce-scatter or an all-gather.
            dtype: of the tensor.
            collective: ``"all_reduce"``, ``"reduce_scatter"``, ``"all_gather"``, ``"broadcast"`` or
                ``"reduce"``.
            device: ``"cpu"`` or ``"cuda"``.
            algorithm, protocol, deterministic, accumulate: as a caller would give them.

        Returns:
            What ``print`` shows as a table; see :class:`ringkern.choose.explain.Explanation`.

        Raises:
            ValueError: an argument is none of these, or the device has no such way.
        """
        from .choose.explain import (  # which most programs have no need of
            explain,
            explain_over_hosts,
        )

        hosts = self._hosts
        ranks = len(hosts.ranks_on(hosts.host_of[self.rank]))
        lists, own = self._c.table(device), tables.table(device, ranks)
        asked: dict[str, Any] = {
            "dtype": dtype,
            "collective": collective,
            "algorithm": algorithm,
            "protocol": protocol,
            "deterministic": deterministic,
            "accumulate": accumulate,
            "lists": lists,
            "source": tables.source(device, ranks) if lists == own else "the table of rank 0",
        }
        if hosts.count == 1:
            found = explain(device, ranks, nbytes, **asked)
        else:
            between = (hosts, self.rank, self._inter_host)
            found = explain_over_hosts(*between, device, nbytes, **asked)
        if device == "cpu":
            return found
        opened_by, host = self._c.shared_memory()
        return replace(found, opened_by=opened_by, host_memory=tuple(host))

    def abort(self, reason: str = "abort() was called") -> None:
        """Ends every call in progress, here and on all ranks, with CommAbortedError.

        From any thread, any number of times. The communicator is unusable afterwards, on all ranks:
        its calls raise CommAbortedError, which quotes ``reason``, or whatever made it unusable
        before. Close it, and make another one over the same group to go on.
        """
        self._c.abort(reason)

    def close(self) -> None:
        """Finishes the calls that were made, then gives memory, descriptors and thread back.

        Any number of times, and also where it has failed, which raises nothing. A later call raises
        :class:`~ringkern.errors.CommUsageError`.
        """
        self._c.close()
        open_rings.discard(self)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            # This rank will not make the calls that its neighbours wait for.
            self.abort(f"rank {self.rank} left on {type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        where = f", on host {self._hosts.name_of(self.rank)}" if self._hosts.count > 1 else ""
        return f"<ringkern.Communicator rank {self.rank} of {self.size}{where}>"


def _make(
    communicator: Communicator,
    group: dist.ProcessGroup | None,
    timeout: timedelta | None,
    inter_host: str | None,
) -> None:
    store, rank, size, name = place_of(group)
    communicator._open(store, rank, size, name, timeout, inter_host)


# What is closed at exit: communicators, and the rings of ``local``. Weak: one that nobody holds
# closes itself.
open_rings: weakref.WeakSet[Any] = weakref.WeakSet()
_by_group: weakref.WeakKeyDictionary[dist.ProcessGroup, Communicator] = weakref.WeakKeyDictionary()
# One for each group: to make its communicator is to wait for its other ranks, which may wait for
# this one's thread that makes another group's.
_locks: weakref.WeakKeyDictionary[dist.ProcessGroup, threading.Lock] = weakref.WeakKeyDictionary()

# A store cannot be traced by torch.compile, which would be an error and no graph break.
_make_untraced: Callable[..., None] = untraced(_make)


def communicator_for(group: dist.ProcessGroup | None) -> Communicator:
    """The communicator of a process group; made on first use, closed with the group.

    Raises:
        RendezvousError, PeerLostError: as :class:`Communicator`; the next use makes another one.
    """
    resolved = resolve_group(group)
    found = _by_group.get(resolved)
    if found is None:
        # Another thread may have been first: all must use the same.
        with _locks.setdefault(resolved, threading.Lock()):
            found = _by_group.get(resolved)
            if found is None:
                found = _by_group[resolved] = Communicator(resolved)
    if config.leaves_all_open and isinstance(c := found._c, _C.Communicator):
        _C.remember(resolved, c)
    return found


# A program that ends with calls in flight waits this long for its neighbours, and no longer.
_PATIENCE_AT_EXIT_S = 5.0


@atexit.register
def _close_all() -> None:
    try:
        for ring in list(open_rings):
            ring._c.close(_PATIENCE_AT_EXIT_S)
        _C.close_backends(_PATIENCE_AT_EXIT_S)
    finally:
        news.stop()  # last: there may be something to say about that, too
