"""Communicators: a rank's part of a ring, one for each process group, made on first use."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import _C, news, recorder, regroup
from .arguments import Op, SupportsDLPack, all_reduce_way, as_tensor, protocol_name, reduce_op
from .choose import ring_order, tables
from .config import check_threads, config, timeout_seconds
from .groups import place_of, resolve_group, untraced
from .hosts import Hosts, Known, engine_names, find_hosts, over_hosts
from .hosts.search import Roster
from .regroup import Regrouped

if TYPE_CHECKING:
    from .choose.explain import Explanation


class Communicator:
    """A ring over the ranks of a process group; with several hosts, a ring on each host.

    Most programs need none: :func:`ringkern.ring_all_reduce` makes and keeps one for each group.
    Each rank waits until all ranks of the group make theirs. All ranks make their communicators in
    the same order, and their calls in the same order. Usable as a context manager, which closes it.

    Args:
        group: the process group whose ranks form the ring; ``None``: the default group. Its backend
            does not matter: only its store is used.
        timeout: how long the constructor waits for the other ranks before it raises
            :class:`~ringkern.errors.RendezvousError`, and a call for a neighbour before it raises
            :class:`~ringkern.errors.CollectiveTimeoutError`; ``None``: ``RINGKERN_TIMEOUT``, or
            600 s.
        inter_host: the inter-host engine, for ranks on several hosts: a backend of
            torch.distributed, such as ``"gloo"``, ``"nccl"``, ``"mpi"`` or ``"ucc"``, or one for
            each device, such as ``"cpu:gloo,cuda:nccl"``; ``None``: ``RINGKERN_INTER_HOST``, or
            ``"cpu:gloo,cuda:nccl"``.
        threads: how many threads of this rank run a collective of CPU tensors of 256 KiB or more:
            torch's intra-op threads, at most as many as the process has cores. All ranks of a host
            use the least of their numbers. ``None``: this rank's share of the cores of the host's
            ranks.

    Raises:
        CommUsageError: torch.distributed is not initialised.
        ValueError: this rank is not a member of ``group``, the timeout is not positive,
            ``inter_host`` is unknown, or ``threads`` is not 1 to 256.
        RendezvousError: a rank did not make its communicator within the timeout (same text on all
            ranks, its number as ``rank``); ranks have different versions or settings; the store
            failed.
        PeerLostError: a rank ended while others waited for it.
    """

    _regrouped: Regrouped | None = None
    _renewal = ""  # of the ranks of a process group
    _store: dist.Store
    _roster: Roster

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout: timedelta | None = None,
        inter_host: str | None = None,
        threads: int | None = None,
    ) -> None:
        make = _make_untraced if torch.compiler.is_compiling() else _make
        make(self, group, timeout, inter_host, threads)

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
        threads: int | None = None,
    ) -> Communicator:
        """Makes a communicator without a process group.

        Args:
            store: any torch.distributed store that all ranks share.
            rank: this rank, from 0 to ``size - 1``.
            size: number of ranks.
            name: the same on all ranks; different for each ring that uses the store at a time.
            timeout, inter_host, threads: see :class:`Communicator`.

        Returns:
            The communicator of this rank.

        Raises:
            CommUsageError: ``rank`` is out of range, or ``size`` is not 1 to 1024.
            ValueError, RendezvousError, PeerLostError: see :class:`Communicator`.
        """
        self = cls.__new__(cls)
        self._open(store, rank, size, name, timeout, inter_host, threads)
        return self

    @classmethod
    def join(
        cls,
        store: dist.Store,
        *,
        name: str = "ringkern",
        timeout: timedelta | None = None,
        threads: int | None = None,
    ) -> Communicator:
        """Waits until the ranks of a communicator on this host take this process in.

        They call :meth:`grow` with the same store and name. This process gets a rank after theirs,
        and none of their state.

        Args:
            store: a torch.distributed store that both sides share; its process must outlive them.
            name: of the communicator to join, as given to :meth:`grow`.
            timeout: how long to wait, and the timeout of the communicator; ``None``: as in
                :class:`Communicator`.
            threads: see :class:`Communicator`.

        Returns:
            The communicator of this process, connected.

        Raises:
            RendezvousError: nobody took this process in within the timeout.
            ValueError: see :class:`Communicator`.
        """
        return regroup.join(cls, store, name, timeout, threads)

    @staticmethod
    def waiting(store: dist.Store, *, name: str = "ringkern") -> int:
        """Returns how many processes wait on this host in :meth:`join`, without waiting.

        Args:
            store, name: those that the processes gave.
        """
        return len(regroup.Joiners(store, name, 0).waiting())

    def _open(
        self,
        store: dist.Store | _C.PageStore,
        rank: int,
        size: int,
        name: str,
        timeout: timedelta | None,
        inter_host: str | None,
        threads: int | None,
        known: Known | None = None,
    ) -> None:
        check_threads(threads)
        if inter_host is not None:
            engine_names(inter_host)
        seconds = timeout_seconds(timeout)
        place = store, name, rank, size, seconds
        hosts, roster = find_hosts(*place, threads, known)
        self._name, self._timeout, self._threads = name, timeout, threads
        self._c = make_ring(*place, hosts, roster, inter_host, config.on_fault)
        if hosts.count > 1 and isinstance(store, dist.Store):
            self._store, self._roster = store, roster  # where and how its ranks could meet again
        self._hosts, self._inter_host = hosts, inter_host
        open_rings.add(self)
        news.start()

    @property
    def hosts(self) -> Hosts:
        """Returns the hosts of the ranks."""
        return self._hosts

    @property
    def rank(self) -> int:
        """Returns this rank's number in the ring, from 0."""
        return self._c.rank

    @property
    def size(self) -> int:
        """Returns the number of ranks."""
        return self._c.size

    @property
    def threads(self) -> int:
        """Returns the threads of this rank that run a large collective of CPU tensors."""
        return self._hosts.threads_of(self.rank)

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
        shards: int | None = None,
    ) -> dist.Work | None:
        """See :func:`ringkern.ring_all_reduce`."""
        tensor = as_tensor(tensor, "tensor", written=True)
        op = reduce_op(op)
        way = all_reduce_way(
            algorithm,
            protocol,
            deterministic,
            accumulate,
            shards=shards,
            ranks=self.size,
            tensor=tensor,
            op=op,
        )
        if way[-1] and not self.adds_by_tree:
            raise ValueError(
                "deterministic='world_invariant' in one call is for one host: use "
                "ringkern.ShardSum over several"
            )
        return self._c.all_reduce(tensor, op, *way, async_op)

    @property
    def adds_by_tree(self) -> bool:
        """Tells if one all-reduce can add in the order of ``csrc/core/tree.h``, a shard a rank."""
        return self.hosts.count == 1  # several hosts add up the ranks of each first

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

    def broadcast(
        self, tensor: SupportsDLPack, src: int, async_op: bool = False
    ) -> dist.Work | None:
        """Copies a tensor of one rank to all others, like :func:`torch.distributed.broadcast`.

        Args:
            tensor: read on rank ``src``, and written on the others; same dtype and size on all.
            src: the rank in this communicator.
            async_op: see :func:`ringkern.ring_all_reduce`.

        Returns:
            A ``torch.distributed.Work`` if ``async_op``, else ``None``.

        Raises:
            ValueError: ``src`` is no rank of this communicator. Also raises the errors of
                :func:`ringkern.ring_all_reduce`.
        """
        tensor = as_tensor(tensor, "tensor", written=src != self.rank)
        return self._c.broadcast(tensor, src, async_op)

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
        """Explains the algorithm and protocol of a call, with the predicted time of every choice.

        Uses the table of rank 0 once the ranks are connected on a device of this kind, and this
        rank's own table before. Communicates nothing. Times are those of one thread a rank. With
        several hosts, the result describes the ring of this rank's host, and its ``between`` the
        inter-host engine.

        Args:
            nbytes: size of the tensor, in bytes; for a reduce-scatter or an all-gather, of all
                ranks' parts together.
            dtype: dtype of the tensor.
            collective: ``"all_reduce"``, ``"reduce_scatter"``, ``"all_gather"``, ``"broadcast"`` or
                ``"reduce"``.
            device: ``"cpu"`` or ``"cuda"``.
            algorithm, protocol, deterministic, accumulate: the arguments of the call.

        Returns:
            An explanation that ``print`` shows as a table; see
            :class:`ringkern.choose.explain.Explanation`.

        Raises:
            ValueError: an argument has an unknown value, or the device does not have this algorithm
                over this protocol.
        """
        from .choose.explain import (  # not loaded by most programs
            explain,
            explain_over_hosts,
        )

        hosts = self._hosts
        ranks = len(hosts.ranks_on(hosts.host_of[self.rank]))
        own = tables.table(device, ranks)
        if device not in tables.tables_of(hosts, self.rank):
            self._c.set_table(device, own)  # counts until the ranks are connected
        lists = self._c.table(device)
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

    def shrink(
        self, exclude: Sequence[int] = (), *, timeout: timedelta | None = None
    ) -> Communicator:
        """Makes a communicator of the ranks that are left, and closes this one.

        For a communicator that has failed, usually because a rank has died, or to go on with fewer
        ranks. Every rank that goes on must call it; so must those on which no call has failed yet,
        which learn of the failure at their next call. The ranks are numbered 0, 1, ... in their old
        order. A rank that dies meanwhile is left out, too.

        On one host this needs no store. With several, the ranks meet in the store of this
        communicator, and a host that is lost is left out after the timeout, unless ``exclude``
        names its ranks.

        The contents of tensors that a failed call had to write are undefined. If a rank that is
        left out may still run, this process's shared CPU tensors move to new memory, at the same
        addresses: no other thread of this process may write to them meanwhile.
        :attr:`regrouped` tells which rank is which, and how far the interrupted call has come.

        Args:
            exclude: ranks that do not go on, besides those that have died, the same on all ranks.
                They do not call it.
            timeout: how long to wait for ranks that are alive and do not come, which are then left
                out: their communicator is unusable. ``None``: the communicator's timeout.

        Returns:
            The communicator of the ranks that are left; its timeout is the same. On one host it is
            connected, with several by its first call.

        Raises:
            CommAbortedError: the others have gone on without this rank, which had been stopped or
                came too late.
            CollectiveMismatchError: ranks exclude different ranks.
            CollectiveTimeoutError: calls of other communicators on shared tensors have not ended
                within the timeout.
            SharedMemoryError: memory is short.
            CommUsageError: the communicator is closed, or failed on one host before all its ranks
                had made a call.
            RendezvousError: the ranks that are left could not connect, or with several hosts, the
                store has failed.
            ValueError: ``exclude`` has this rank, or no rank of this communicator.
        """
        return regroup.regroup(self, exclude, None, timeout)

    def grow(
        self,
        store: dist.Store,
        count: int = 1,
        *,
        name: str = "ringkern",
        exclude: Sequence[int] = (),
        timeout: timedelta | None = None,
    ) -> Communicator:
        """Makes a communicator of the ranks that are left and new ones, and closes this one.

        Like :meth:`shrink`, so one call can replace a rank that has died. For ranks of one host.
        The processes that join get the ranks after those that are left. If one of them dies
        meanwhile, the communicator is made without it: look at its :attr:`size`.

        Args:
            store: a torch.distributed store in which the processes wait, in :meth:`join`. Its
                process must outlive them.
            count: how many processes join, the first to come.
            name: the name that they gave.
            exclude: see :meth:`shrink`.
            timeout: how long to wait for the processes, and then for the ranks. ``None``: the
                communicator's timeout.

        Returns:
            The new communicator, connected.

        Raises:
            RendezvousError: fewer processes came within the timeout, and this communicator is as
                before; or the ranks could not connect.
            CommUsageError: the communicator spans several hosts.
            CommAbortedError, CollectiveMismatchError, CollectiveTimeoutError, SharedMemoryError,
                ValueError: see :meth:`shrink`.
        """
        if count < 1:
            raise ValueError(f"count is {count}: at least one process joins")
        return regroup.regroup(self, exclude, regroup.Joiners(store, name, count), timeout)

    @property
    def regrouped(self) -> Regrouped | None:
        """Returns the origin of a communicator that :meth:`shrink` or :meth:`grow` made."""
        return self._regrouped

    def abort(self, reason: str = "abort() was called") -> None:
        """Ends every call in progress, on all ranks, with CommAbortedError.

        May be called from any thread, any number of times. The communicator is unusable afterwards,
        on all ranks: its calls raise CommAbortedError, which quotes ``reason``, or the earlier
        error that made it unusable. To go on, close it and make another one over the same group.
        """
        self._c.abort(reason)

    def close(self) -> None:
        """Finishes the calls that were made, then frees memory, descriptors and the thread.

        May be called any number of times. A communicator that has failed can be closed, too, and
        raises nothing. Later collectives raise :class:`~ringkern.errors.CommUsageError`.
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
            # The other ranks would wait for calls that this rank does not make.
            self.abort(f"rank {self.rank} left on {type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        where = f", on host {self._hosts.name_of(self.rank)}" if self._hosts.count > 1 else ""
        return f"<ringkern.Communicator rank {self.rank} of {self.size}{where}>"


def make_ring(
    store: dist.Store | _C.PageStore,
    name: str,
    rank: int,
    size: int,
    seconds: float,
    hosts: Hosts,
    roster: Roster,
    inter_host: str | None,
    on_fault: str,
) -> _C.Communicator | _C.HostsCommunicator:
    """Makes a rank's part of a ring, or of one on each host; the first call connects it.

    Args:
        store, name, rank, size, inter_host: see :meth:`Communicator.from_store`.
        seconds: the timeout.
        hosts, roster: the results of :func:`ringkern.hosts.find_hosts`.
        on_fault: what this process does when a ring fails; see ``RINGKERN_ON_FAULT``.

    Returns:
        The ring.
    """
    ring: _C.Communicator | _C.HostsCommunicator
    if hosts.count > 1:
        assert isinstance(store, dist.Store)  # pages are on one host
        recorder.remember_hosts(name, hosts)
        joined = over_hosts(inter_host, store, name, rank, seconds, hosts)
        ring = _C.HostsCommunicator(store, name, rank, timeout_s=seconds, **joined)
    else:
        ring = _C.Communicator(store, name, rank, size, seconds)
    ring.set_on_fault(on_fault)
    ring.set_threads(hosts.threads_of(rank))
    ring.set_roster(roster)
    ring.set_orders(ring_order.orders)
    for device, lists in tables.tables_of(hosts, rank).items():
        ring.set_table(device, lists)
    return ring


def _make(
    communicator: Communicator,
    group: dist.ProcessGroup | None,
    timeout: timedelta | None,
    inter_host: str | None,
    threads: int | None,
) -> None:
    store, rank, size, name = place_of(group)
    communicator._open(store, rank, size, name, timeout, inter_host, threads)


# Communicators and rings of ``local`` to close at exit. Weak: one without references closes itself.
open_rings: weakref.WeakSet[Any] = weakref.WeakSet()
_by_group: weakref.WeakKeyDictionary[dist.ProcessGroup, Communicator] = weakref.WeakKeyDictionary()
# One lock for each group. One lock for all could deadlock: making a communicator waits for the
# group's other ranks, which may wait for another thread of this rank to make another group's.
_locks: weakref.WeakKeyDictionary[dist.ProcessGroup, threading.Lock] = weakref.WeakKeyDictionary()

# torch.compile cannot trace a store: it would raise, without a graph break.
_make_untraced: Callable[..., None] = untraced(_make)


def communicator_for(group: dist.ProcessGroup | None) -> Communicator:
    """Returns the communicator of a process group; made on first use, closed with the group.

    Raises:
        RendezvousError, PeerLostError: see :class:`Communicator`; the next use makes a new one.
    """
    resolved = resolve_group(group)
    found = _by_group.get(resolved)
    if found is None:
        # Another thread may have made one: all must use the same.
        with _locks.setdefault(resolved, threading.Lock()):
            found = _by_group.get(resolved)
            if found is None:
                found = Communicator(resolved)
                found._renewal = _C.renewal_of(resolved)
                _by_group[resolved] = found
    if config.leaves_all_open and isinstance(c := found._c, _C.Communicator):
        _C.remember(resolved, c)
    return found


def end_before_renewal(kept: list[int], seconds: float) -> None:
    """Ends the communicators of groups whose ranks have changed; the next use makes new ones.

    Args:
        kept: the ranks before the change that go on.
        seconds: how long to wait for calls of others on shared tensors.

    Raises:
        CollectiveTimeoutError, SharedMemoryError: see :meth:`Communicator.shrink`.
    """
    for group, ring in list(_by_group.items()):
        if _C.renewal_of(group) == ring._renewal:
            continue
        del _by_group[group]
        if len(kept) < ring.size:
            ring.abort(f"the group goes on with {len(kept)} of its {ring.size} ranks")
            ring._c.shut_out(kept, seconds)
        ring.close()


# How long a program that ends with calls in flight waits for its neighbours.
_PATIENCE_AT_EXIT_S = 5.0


@atexit.register
def _close_all() -> None:
    try:
        for ring in list(open_rings):
            ring._c.close(_PATIENCE_AT_EXIT_S)
        _C.close_backends(_PATIENCE_AT_EXIT_S)
    finally:
        news.stop()  # last, because closing may log, too
