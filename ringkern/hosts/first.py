"""The first calls of a communicator: those that are made before it knows its hosts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist

from .. import _C
from ..errors import CommUsageError, PeerLostError, RendezvousError, RingKernError
from .early import EarlyCalls
from .hosts import Hosts
from .search import Search, interrupted


class Owner(Protocol):
    """A communicator, which does not know yet who makes its calls."""

    _c: Any  # the ring of one host, until it is known that there are several

    def _take(self, hosts: Hosts) -> None:
        """``hosts`` are known, and so is who makes the calls."""

    def _fail(self, error: RingKernError) -> None:
        """They will not be known, because of ``error``."""

    def abort(self, reason: str) -> None:
        """Ends all calls, on all ranks."""

    def _go_on(self) -> None:
        """There are no first calls any more."""


@contextlib.contextmanager
def _interruptible(owner: Owner) -> Iterator[None]:
    """Aborts for all ranks where a wait ends in what a signal's handler raises."""
    try:
        yield
    except RingKernError:
        raise
    except BaseException as error:
        owner.abort(interrupted(error))
        raise


class FirstCalls:
    """What a communicator does until its hosts are known.

    Args:
        search: for the hosts.
        rank: this rank.
        size: number of ranks.
    """

    def __init__(self, search: Search, rank: int, size: int) -> None:
        self._search, self._rank, self._size = search, rank, size
        self._ended = False
        self._over = False
        # Whoever looks for the hosts holds it; that may be the thread of `_early`.
        self._settling = threading.Lock()
        self._queueing = threading.Lock()
        self._early: EarlyCalls | None = None

    def call(self, owner: Owner, collective: str, *args: Any) -> Any:
        """Makes a call of ``owner``, once the hosts are known; an asynchronous one does not wait.

        Args:
            owner: whose calls these are.
            collective: name of a method.
            args: its arguments; the last is ``async_op``.

        Raises:
            RendezvousError: a rank did not come, or ranks do not fit together; and what the call
                raises, which is checked before anybody is waited for.
        """
        if args[-1] and all(arg.is_cpu for arg in args if isinstance(arg, torch.Tensor)):
            early = self._later(owner, collective, *args)
            if early is not None:
                return early
        self.settle(owner, collective, *args)
        return getattr(owner._c, collective)(*args)

    def settle(self, owner: Owner, collective: str = "", *args: Any) -> None:
        """Waits for the hosts, unless something else is to be raised by the call."""
        if self._search.is_of_this_process:  # a forked child has no thread that lets go of the lock
            with _interruptible(owner):
                self._settling.acquire()
            try:
                self._settle(owner, collective, *args)
            finally:
                self._settling.release()
                self._let_go(owner)

    def _let_go(self, owner: Owner) -> None:
        if self._over:
            owner._go_on()

    def _settle(self, owner: Owner, collective: str = "", *args: Any) -> None:
        if self._over or self._ended:
            return
        try:
            if (found := self._search.look()) is None:
                self._check(collective, *args)
                with _interruptible(owner):
                    found = self._search.wait()
        except (PeerLostError, RendezvousError) as error:
            if self._ended:
                return  # what there is says why
            self._over = True
            owner._fail(error)
            raise
        self._over = True
        owner._take(found)
        owner._c.set_roster(self._search.roster())

    def _check(self, collective: str, *args: Any) -> None:
        """Raises what is wrong with a call, by one that is closed, which looks at nothing else."""
        if not collective:
            return
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
        closed = _C.Communicator(dist.HashStore(), "", self._rank, self._size, 1.0)
        closed.close()
        # It changes nothing, so it must not count as a change for autograd.
        unchanged = torch.autograd._unsafe_preserve_version_counter(counted)
        with unchanged, contextlib.suppress(CommUsageError):
            getattr(closed, collective)(*args[:-1], False)

    # ---- asynchronous calls ---------------------------------------------------------------------

    def _later(self, owner: Owner, collective: str, *args: Any) -> Any:
        """A Work; ``None``: it can be called now, or another thread waits already."""
        if not self._search.is_of_this_process:
            return None
        with self._queueing:
            if self._early is not None:
                self._check(collective, *args)
                return self._early.add(collective, args)
            if not self._settling.acquire(blocking=False):
                return None
            try:
                early = self._begin(owner, collective, *args)
            except BaseException:
                self._settling.release()
                raise
            if early is None:
                self._settling.release()
            return early

    def _begin(self, owner: Owner, collective: str, *args: Any) -> Any:
        """With the lock, which the thread that this starts lets go."""
        if self._over or self._ended or self._looks_done():
            return None
        self._check(collective, *args)

        self._early = EarlyCalls(
            lambda: self._settle(owner),
            lambda: owner._c,
            self._settling.release,
            lambda error: owner.abort(interrupted(error)),
        )
        work = self._early.add(collective, args)
        self._early.start()
        return work

    def _looks_done(self) -> bool:
        try:
            return self._search.look() is not None
        except (PeerLostError, RendezvousError):
            return True  # which is raised once more

    # ---- the end --------------------------------------------------------------------------------

    def finish(self, patience_s: float | None = None) -> bool:
        """Waits until the asynchronous calls were made; False: ``patience_s`` were over before."""
        if self._early is None or not self._search.is_of_this_process:
            return True
        return self._early.join(patience_s)

    def end(self, reason: str) -> None:
        """Ends the search, if there is still one; for all ranks, with ``reason``."""
        self._ended = True
        self._search.stop(reason)
