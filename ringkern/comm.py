"""Communicators: a rank's membership in a ring, one for each process group, made on first use."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import _C, news, recorder
from .arguments import Op, SupportsDLPack, as_tensor, protocol_name, reduce_op, way_asked
from .choose import tables
from .config import config, timeout_seconds
from .errors import RingKernError
from .groups import place_of, resolve_group, untraced
from .hosts import (
    FirstCalls,
    Hosts,
    Search,
    crossings,
    engine_maker,
    engine_names,
    is_of_one_process,
    one_host,
)

if TYPE_CHECKING:
    from .choose.explain import Explanation


class Communicator:
    """A ring over the ranks of a process group; a ring on each host, where they are on several.

    Most programs never make one: :func:`ringkern.ring_all_reduce` makes and keeps one for each
    group. All ranks of the group make theirs in the same order, and make the same calls in the same
    order. The others are found on the first call, which waits until all ranks have made theirs, and
    not here. Usable as a context manager, which closes it.

    Args:
        group: the process group whose ranks form the ring; ``None``: the default group. Any
            backend: only its store is used.
        timeout: how long a rank waits for a neighbour before it raises
            :class:`~ringkern.errors.CollectiveTimeoutError`; ``None``: ``RINGKERN_TIMEOUT``, or
            600 s.
        inter_host: what joins the hosts, if the ranks are on several: a backend of
            torch.distributed, as ``"gloo"``, ``"nccl"``, ``"mpi"``, ``"ucc"``, or one for each
            device, as ``"cpu:gloo,cuda:nccl"``; ``None``: ``RINGKERN_INTER_HOST``, or that.

    Raises:
        CommUsageError: torch.distributed is not initialised.
        ValueError: this rank is not a member of ``group``; the timeout is not positive; there is no
            such ``inter_host``.
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
        # A ring. If the first call finds the ranks on several hosts, another takes its place.
        self._c: _C.Communicator | _C.HostsCommunicator
        self._c = _C.Communicator(store, name, rank, size, seconds)
        _set_tables(self._c, size)
        self._hosts = one_host(size)
        self._place = _Place(store, name, seconds, inter_host)
        self._ended: str | None = None  # why, if it was aborted
        # Until the hosts are known; ranks of one process are on one.
        self._first: FirstCalls | None = None
        if size > 1 and not is_of_one_process(store):
            search = Search(store, name, rank, size, seconds)
            self._first = FirstCalls(search, rank, size)
            # With it, a rank that closes this before its first call tells the others.
            self._c.set_roster((search.departures, [(0, 0)] * size, 0.0))
        open_rings.add(self)
        news.start()

    def _take(self, hosts: Hosts) -> None:
        self._hosts = hosts
        if hosts.count > 1:
            self._c.set_roster(("", [], 0.0))  # no rank leaves where another takes its place
            self._c = self._over(hosts)
            if self._ended is not None:  # meanwhile
                self._c.abort(self._ended)

    def _fail(self, error: RingKernError) -> None:
        self._c.abort(str(error))

    def _go_on(self) -> None:
        self._first = None

    def _over(self, found: Hosts) -> _C.HostsCommunicator:
        """The communicator over several hosts."""
        place, rank, size = self._place, self.rank, self.size
        recorder.remember_hosts(place.name, found)
        engine = engine_maker(
            place.inter_host, place.store, place.name, rank, size, place.timeout_s, found
        )
        made = _C.HostsCommunicator(
            place.store,
            place.name,
            rank,
            list(found.host_of),
            list(found.names),
            place.timeout_s,
            engine,
            crossings(place.inter_host, found.crowded),
        )
        _set_tables(made, len(found.ranks_on(found.host_of[rank])))
        return made

    @property
    def hosts(self) -> Hosts:
        """On which hosts the ranks are. As the first call, waits until all ranks are there.

        Raises:
            RendezvousError: a rank did not come within the timeout.
            PeerLostError: a rank has ended, or has closed its communicator, meanwhile.
        """
        if (first := self._first) is not None:
            first.settle(self)
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
        if (first := self._first) is not None:
            make = _first_untraced if torch.compiler.is_compiling() else _first
            return make(first, self, "all_reduce", *call, async_op)
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
        if (first := self._first) is not None:
            make = _first_untraced if torch.compiler.is_compiling() else _first
            return make(first, self, "reduce_scatter", *call, async_op)
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
        if (first := self._first) is not None:
            make = _first_untraced if torch.compiler.is_compiling() else _first
            return make(first, self, "all_gather", *call, async_op)
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
        rank's own before. Communicates nothing. Once the ranks are known to be on several hosts: of
        what the ring of this rank's host does, with ``between``, which says the rest.

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
            return explain(device, ranks, nbytes, **asked)
        inter_host = self._place.inter_host
        return explain_over_hosts(hosts, self.rank, inter_host, device, nbytes, **asked)

    def abort(self, reason: str = "abort() was called") -> None:
        """Ends every call in progress, here and on all ranks, with CommAbortedError.

        From any thread, any number of times. The communicator is unusable afterwards, on all ranks:
        its calls raise CommAbortedError, which quotes ``reason``, or whatever made it unusable
        before. Close it, and make another one over the same group to go on.
        """
        self._ended = reason  # first: whoever finds the hosts now sees it, or is seen here
        if (first := self._first) is not None:
            first.end(f"aborted: {reason}")
        self._c.abort(reason)

    def close(self) -> None:
        """Finishes the calls that were made, then gives memory, descriptors and thread back.

        Any number of times, and also where it has failed, which raises nothing. A later call raises
        :class:`~ringkern.errors.CommUsageError`.
        """
        self._close(None)
        open_rings.discard(self)

    def _close(self, patience_s: float | None) -> None:
        if (first := self._first) is not None:
            if first.finish(patience_s):
                first.end("closed")
            else:
                self.abort("it was closed with calls in flight")
                # If the interpreter ended while that thread was in a call of the store, the process
                # would end with SIGABRT. Bounded, for a store that does not answer.
                first.finish(_PATIENCE_WITH_STORE_S)
        self._c.close(*([] if patience_s is None else [patience_s]))

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


@dataclass(frozen=True)
class _Place:
    """What a communicator is made with."""

    store: dist.Store
    name: str
    timeout_s: float
    inter_host: str | None


def _set_tables(c: _C.Communicator | _C.HostsCommunicator, ranks: int) -> None:
    """Of so many ranks in a ring."""
    for device in tables.DEVICES:
        c.set_table(device, tables.table(device, ranks))


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
_by_group_lock = threading.Lock()


def _first(
    first: FirstCalls, communicator: Communicator, collective: str, *args: Any
) -> dist.Work | None:
    work: dist.Work | None = first.call(communicator, collective, *args)
    return work


# A store cannot be traced by torch.compile, which would be an error and no graph break.
_make_untraced: Callable[..., None] = untraced(_make)
_first_untraced: Callable[..., dist.Work | None] = untraced(_first)


def communicator_for(group: dist.ProcessGroup | None) -> Communicator:
    """The communicator of a process group; made on first use, closed with the group."""
    resolved = resolve_group(group)
    found = _by_group.get(resolved)
    if found is None:
        with _by_group_lock:  # another thread may have been first: all must use the same
            found = _by_group.get(resolved)
            if found is None:
                found = _by_group[resolved] = Communicator(resolved)
    if config.leaves_all_open and isinstance(c := found._c, _C.Communicator):
        _C.remember(resolved, c)
    return found


# A program that ends with calls in flight waits this long for its neighbours, and no longer.
_PATIENCE_AT_EXIT_S = 5.0
# Longer than a search takes to end that was told to.
_PATIENCE_WITH_STORE_S = 10.0


@atexit.register
def _close_all() -> None:
    try:
        for ring in list(open_rings):
            if isinstance(ring, Communicator):
                ring._close(_PATIENCE_AT_EXIT_S)
            else:
                ring._c.close(_PATIENCE_AT_EXIT_S)
        _C.close_backends(_PATIENCE_AT_EXIT_S)
    finally:
        news.stop()  # last: there may be something to say about that, too
