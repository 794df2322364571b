"""Communicators: a rank's membership in a ring, one for each process group, made on first use."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import _C, news, recorder, tuner
from .arguments import Op, SupportsDLPack, as_tensor, protocol_name, reduce_op, way_asked
from .config import config, timeout_seconds
from .errors import CommUsageError

if TYPE_CHECKING:
    from .explain import Explanation


class Communicator:
    """A ring over the ranks of a process group.

    Most programs never make one: :func:`ringkern.ring_all_reduce` makes and keeps one for each
    group. All ranks of the group make theirs in the same order, and make the same calls in the same
    order. The neighbours are found on the first call with a tensor of a device, not here. Usable as
    a context manager, which closes it.

    Args:
        group: the process group whose ranks form the ring; ``None``: the default group. Any
            backend: only its store is used, and only to find the neighbours.
        timeout: how long a rank waits for a neighbour before it raises
            :class:`~ringkern.errors.CollectiveTimeoutError`; ``None``: ``RINGKERN_TIMEOUT``, or
            600 s.

    Raises:
        CommUsageError: torch.distributed is not initialised.
        ValueError: this rank is not a member of ``group``; the timeout is not positive.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, *, timeout: timedelta | None = None
    ) -> None:
        place = _place_untraced if torch.compiler.is_compiling() else _place
        store, rank, size, name = place(group)
        self._open(store, rank, size, name, timeout)

    @classmethod
    def from_store(
        cls,
        store: dist.Store,
        rank: int,
        size: int,
        *,
        name: str = "ringkern",
        timeout: timedelta | None = None,
    ) -> Communicator:
        """A ring without a process group.

        Args:
            store: any torch.distributed store that all ranks share.
            rank: this rank, from 0 to ``size - 1``.
            size: number of ranks.
            name: the same on all ranks; two rings over one store at the same time differ in it.
            timeout: as for :class:`Communicator`.
        """
        self = cls.__new__(cls)
        self._open(store, rank, size, name, timeout)
        return self

    def _open(
        self, store: dist.Store, rank: int, size: int, name: str, timeout: timedelta | None
    ) -> None:
        self._c = _C.Communicator(store, name, rank, size, timeout_seconds(timeout))
        for device in tuner.DEVICES:
            self._c.set_table(device, tuner.table(device, size))
        open_rings.add(self)
        news.start()

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
        way = way_asked(algorithm, protocol, deterministic, accumulate)
        return self._c.all_reduce(tensor, reduce_op(op), *way, async_op)

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
        return self._c.reduce_scatter(
            output, input, reduce_op(op), protocol_name(protocol), async_op
        )

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
        return self._c.all_gather(output, input, protocol_name(protocol), async_op)

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
        rank's own before. Communicates nothing.

        Args:
            nbytes: of the tensor; of all ranks' parts for a reduce-scatter or an all-gather.
            dtype: of the tensor.
            collective: ``"all_reduce"``, ``"reduce_scatter"``, ``"all_gather"``, ``"broadcast"`` or
                ``"reduce"``.
            device: ``"cpu"`` or ``"cuda"``.
            algorithm, protocol, deterministic, accumulate: as a caller would give them.

        Returns:
            What ``print`` shows as a table; see :class:`ringkern.explain.Explanation`.

        Raises:
            ValueError: an argument is none of these, or the device has no such way.
        """
        from .explain import explain  # which most programs have no need of

        lists, own = self._c.table(device), tuner.table(device, self.size)
        source = tuner.source(device, self.size) if lists == own else "the table of rank 0"
        return explain(
            device,
            self.size,
            nbytes,
            dtype=dtype,
            collective=collective,
            algorithm=algorithm,
            protocol=protocol,
            deterministic=deterministic,
            accumulate=accumulate,
            lists=lists,
            source=source,
        )

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
        return f"<ringkern.Communicator rank {self.rank} of {self.size}>"


# What is closed at exit: communicators, and the rings of ``local``. Weak: one that nobody holds
# closes itself.
open_rings: weakref.WeakSet[Any] = weakref.WeakSet()
_by_group: weakref.WeakKeyDictionary[dist.ProcessGroup, Communicator] = weakref.WeakKeyDictionary()
_by_group_lock = threading.Lock()
# How many communicators were made for a group.
_made: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def _place(group: dist.ProcessGroup | None) -> tuple[dist.Store, int, int, str]:
    """The store, this rank, the number of ranks, and the name of the ring."""
    group = resolve_group(group)
    with _making:
        number = _made[group] = _made.get(group, 0) + 1
    # The n-th of each rank meet, whichever of them connects first.
    name = f"ringkern/{group.group_name}"
    recorder.remember_group(name, group.group_desc, recorder.ranks_of(group))
    name += f"#{number}" if number > 1 else ""
    return group.get_group_store(), group.rank(), group.size(), name


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, before which torch.compile ends a graph. To be called only while it traces."""
    # Not torch.compiler.disable: it imports the compiler, a second that most programs do not need.
    wrapped: Callable[..., Any] = torch._disable_dynamo(function)
    return wrapped


# A store cannot be traced by torch.compile, which would be an error and no graph break.
_place_untraced: Callable[..., tuple[dist.Store, int, int, str]] = untraced(_place)


def resolve_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The process group that is meant, or an error that says what to do."""
    if group is None:
        if not dist.is_initialized():
            raise CommUsageError(
                "torch.distributed is not initialised: call torch.distributed.init_process_group("
                "'gloo') first, or use ringkern.Communicator.from_store"
            )
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(
                "this rank is not a member of the group: only the ranks given to new_group may call"
            )
        raise TypeError(
            f"group is {type(group).__name__}; give a ProcessGroup, or None for the default"
        )
    return group


def communicator_for(group: dist.ProcessGroup | None) -> Communicator:
    """The communicator of a process group; made on first use, closed with the group."""
    resolved = resolve_group(group)
    found = _by_group.get(resolved)
    if found is None:
        with _by_group_lock:  # another thread may have been first: all must use the same
            found = _by_group.get(resolved)
            if found is None:
                found = _by_group[resolved] = Communicator(resolved)
    if config.leaves_all_open:
        _C.remember(resolved, found._c)
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
