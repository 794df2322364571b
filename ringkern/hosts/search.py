"""Finds the host of each rank of a group, over a store of torch.distributed.

Each rank publishes its location when its communicator is made. The last rank to do so has all
locations, and publishes the answer, for which the others wait. A rank that gives up first publishes
that as the answer, so that all ranks raise the same error. Waiting ranks check whether a process
that they can see has ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Protocol

import torch.distributed as dist

from .. import _C, decode
from ..config import config
from ..decode import Within
from ..errors import PeerLostError, RendezvousError, RingKernError
from .hosts import Hosts, hosts_of
from .peer import Peer, this_peer

_logger = logging.getLogger("ringkern")

# The same as C10dStore in csrc/torch/store.h: the longest pause keeps many ranks from flooding the
# store.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0001, 0.01
# How often to check whether another rank has given up, and whether the timeout has passed.
_LOOK_EVERY_S = 0.1
# After this long without an answer, the rank that owes it is assumed to have died.
_GRACE_S = 2.0
_FIRST_WARNING_S = 5.0
# The value of a vote against; a vote for counts 1.
_REFUSED = 1 << 32
# The answer: a number for each rank, a name for each host.
_MAX_BYTES = 1 << 20
_MAX_TEXT = 2000
_MAX_LISTED = 16

# The roster for `_C.Communicator.set_roster`: a key, each rank's process, and seconds waited.
Roster = tuple[str, list[tuple[int, int]], float]


@dataclass(frozen=True)
class Known:
    """The processes of the ranks, if they have met before, and how long to wait for them.

    Attributes:
        processes: of the first ranks, (pid, start); (0, 0): not visible from here.
        timeout_s: the limit for the first meeting, if that of the communicator is longer.
    """

    processes: tuple[tuple[int, int], ...]
    timeout_s: float


class Store(Protocol):
    """The methods of a torch.distributed store that are used here."""

    def set(self, key: str, value: str) -> object:
        """Sets ``key`` to ``value``."""

    def get(self, key: str) -> bytes:
        """Returns the value of ``key``."""

    def add(self, key: str, value: int) -> int:
        """Adds ``value`` to a counter; returns the sum."""

    def check(self, keys: list[str]) -> bool:
        """Returns whether all ``keys`` exist. With ``wait``, a TCPStore would print warnings."""


def is_of_one_process(store: Any) -> bool:
    """Returns whether nobody outside this process can use a store of torch.distributed."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return isinstance(store, dist.HashStore)


def one_host(size: int, threads: int = 1) -> Hosts:
    """Returns the hosts of ``size`` ranks that are all where this process is."""
    return hosts_of([this_peer(r, named=config.host, threads=threads) for r in range(size)])


def unique_prefix(store: Store, name: str, rank: int, size: int) -> str:
    """Returns the prefix of keys of the n-th use of ``name``: the same for the n-th on all ranks.

    Raises:
        RuntimeError: the store has failed.
    """
    base = f"ringkern/{name}/{size}"
    return f"{base}/{store.add(f'{base}/calls/{rank}', 1) - 1}"


def find_hosts(
    store: Store,
    name: str,
    rank: int,
    size: int,
    timeout_s: float,
    threads: int | None = None,
    known: Known | None = None,
) -> tuple[Hosts, Roster]:
    """Waits for all ranks of a communicator, unless they are of one process.

    Args:
        store, name, rank, size, timeout_s: see :class:`Search`. With an impossible rank or size it
            waits for nobody, and the communicator raises the error.
        threads: of this rank, for a large collective of CPU tensors; ``None``: its share of the
            cores, or one if the ranks are of one process.
        known: what is known about the ranks already.

    Returns:
        The ranks' hosts, and the communicator's roster.

    Raises:
        RendezvousError, PeerLostError: see :meth:`Search.wait`.
    """
    can_meet = 1 < size <= _C.most_ranks and 0 <= rank < size
    if not can_meet or is_of_one_process(store):
        return one_host(size, threads or 1), ("", [], 0.0)
    peer = this_peer(rank, named=config.host, threads=threads)
    limit_s = timeout_s if known is None else min(timeout_s, known.timeout_s)
    search = Search(store, name, rank, size, limit_s, peer, known)
    hosts, (departures, processes, waited_s) = search.wait(), search.roster()
    # The communicator subtracts from its timeout what it has waited.
    return hosts, (departures, processes, waited_s + timeout_s - limit_s)


class Search:
    """A rank's search for the hosts of its group. All ranks make theirs, in the same order.

    Args:
        store: a store that all ranks share.
        name: of the communicator; the n-th searches of all ranks with one name belong together.
        rank: this rank.
        size: number of ranks.
        timeout_s: how long :meth:`wait` waits for the others.
        peer: this rank; ``None``: this process, with ``RINGKERN_HOST``.
        known: what is known about the ranks already.

    Raises:
        RendezvousError: the store has failed.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        rank: int,
        size: int,
        timeout_s: float,
        peer: Peer | None = None,
        known: Known | None = None,
    ) -> None:
        self._store, self._name, self._rank, self._size = store, name, rank, size
        self._timeout_s = timeout_s
        self._owed_since: float | None = None
        # The visible processes, by rank.
        self._processes = [(0, 0)] * size
        if known is not None:
            self._processes[: len(known.processes)] = known.processes
            self._processes[rank] = (0, 0)
        self._listed = 0  # of these
        self._waited_s = 0.0
        with store_errors():
            self._say(peer or this_peer(rank, named=config.host))

    def _say(self, peer: Peer) -> None:
        self._prefix = unique_prefix(self._store, f"hosts of {self._name}", self._rank, self._size)
        self._sight = f"processes/{peer.boot_id}/{peer.pid_namespace}"
        if peer.pid and peer.boot_id and peer.pid_namespace:
            pid, started = _C.this_process()
            place = self._store.add(self._key(self._sight), 1)
            self._store.set(self._key(f"{self._sight}/{place}"), f"{self._rank} {pid} {started}")
        # Set last: a rank that dies before is missing, and the others see the end of one that dies
        # after.
        self._store.set(self._key(self._rank), peer.to_json())
        if self._store.add(self._key("votes"), 1) == self._size:
            self._answer()

    def _key(self, what: object) -> str:
        return f"{self._prefix}/{what}"

    def _answer(self) -> None:
        """Publishes the location of all ranks; all have published theirs."""
        try:
            peers = [
                Peer.from_json(self._store.get(self._key(rank)), rank) for rank in range(self._size)
            ]
            self._leave(hosts_of(peers).to_json())
        except ValueError as error:
            self._leave(_refusal(str(error)))

    def _look(self) -> Hosts | None:
        if not self._store.check([self._key("answer")]):
            return None
        return self._read(self._store.get(self._key("answer")))

    def wait(self) -> Hosts:
        """Returns the hosts of all ranks, once all have made their search.

        Raises:
            RendezvousError: a rank did not come within the timeout, with the same text on all
                ranks, and its number as ``rank``; ranks do not fit together, or the store has
                failed.
            PeerLostError: a rank has ended while this one waited.
        """
        start = time.monotonic()
        try:
            with store_errors():
                found = self._wait()
        except RingKernError:
            raise
        except BaseException as error:  # of a signal's handler: the others must not wait
            with contextlib.suppress(RingKernError), store_errors():
                self._refuse(f"it was interrupted ({type(error).__name__})", ())
            raise
        self._waited_s = time.monotonic() - start
        return found

    def roster(self) -> Roster:
        """Returns the ranks' known processes, and the key under which ranks say they left."""
        with contextlib.suppress(RuntimeError):  # of the store: the next call reports it
            self._list_processes()
        return self._key("left"), self._processes, self._waited_s

    def _list_processes(self) -> None:
        """Reads the visible processes that it has not read yet."""
        count = self._store.add(self._key(self._sight), 0)
        while self._listed < count:
            key = self._key(f"{self._sight}/{self._listed + 1}")
            if not self._store.check([key]):
                return  # its rank is about to set it
            self._listed += 1
            with contextlib.suppress(ValueError):
                rank, pid, started = map(int, self._store.get(key).split())
                if 0 <= rank < self._size and rank != self._rank:
                    self._processes[rank] = (pid, started)

    def _wait(self) -> Hosts:
        start = time.monotonic()
        pause, next_look, warning = _FIRST_PAUSE_S, start + _LOOK_EVERY_S, _FIRST_WARNING_S
        while (found := self._look()) is None:
            now = time.monotonic()
            if now >= start + self._timeout_s:
                return self._refuse(*self._who_is_late())
            if now >= next_look:
                next_look = now + _LOOK_EVERY_S
                self._look_closer()
                if now - start >= warning:
                    self._warn(now - start)
                    warning = 30.0 if warning < 30 else warning + 60
            time.sleep(min(pause, max(start + self._timeout_s - now, 0.0)))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return found

    def _look_closer(self) -> None:
        """Gives up if a rank has ended; answers for the one that owed the answer."""
        self._list_processes()
        # A rank that is still making its communicator cannot have left it.
        if (gone := _C.find_gone(("", self._processes, 0.0), lambda: "")) is not None:
            self._refuse(gone[1], (gone[0],), lost=True)
        votes = self._store.add(self._key("votes"), 0)
        if votes < self._size:
            return
        now = time.monotonic()
        if self._owed_since is None:
            self._owed_since = now
        elif now - self._owed_since > _GRACE_S:
            if votes == self._size:
                self._answer()
            else:
                self._leave(_refusal("another rank gave up, and died before it said why"))

    def _refuse(self, reason: str, absent: tuple[int, ...], lost: bool = False) -> Hosts:
        """Gives up for all ranks, unless it is too late for that."""
        votes = self._store.add(self._key("votes"), _REFUSED)
        if votes == _REFUSED + self._size:  # the last rank has come meanwhile
            self._answer()
        elif (
            votes < 2 * _REFUSED
        ):  # this rank is the first to give up, and the others read its reason
            text = f"rank {self._rank} could not join the ring: {reason}"
            self._leave(_refusal(text, absent, lost))
        deadline = time.monotonic() + _GRACE_S
        while (found := self._look()) is None:
            if time.monotonic() > deadline:
                raise RendezvousError(f"rank {self._rank} could not join the ring: {reason}")
            time.sleep(_LONGEST_PAUSE_S)
        return found

    def _leave(self, answer: str) -> None:
        self._store.set(self._key("answer"), answer)

    def _who_is_late(self) -> tuple[str, tuple[int, ...]]:
        """Returns the reason why this rank gives up, and the ranks that have not come."""
        missing = self._missing()
        return (
            f"no ring of {self._size} ranks within {self._timeout_s:.1f} s (timed out); "
            f"{_did_not_come(missing)}. "
            "All ranks must make this communicator, each within the timeout of the others",
            tuple(missing),
        )

    def _missing(self) -> list[int]:
        return [r for r in range(self._size) if not self._store.check([self._key(r)])]

    def _warn(self, waited_s: float) -> None:
        _logger.warning(
            f"'{self._name}': no ring of {self._size} ranks yet, after {waited_s:.0f} s; "
            f"{_did_not_come(self._missing())}. It fails after {self._timeout_s:.1f} s"
        )

    def _read(self, answer: bytes) -> Hosts:
        """Returns the answer, which may be any bytes."""
        if len(answer) > _MAX_BYTES:
            raise RendezvousError(f"the hosts of the ranks have {len(answer)} bytes in the store")
        try:
            return Hosts.from_json(answer, self._size)
        except ValueError as error:
            refusal = _refusal_in(answer)
            if refusal is None:
                raise RendezvousError(
                    f"what says in the store on which hosts the ranks are is not that: {error}. "
                    "All ranks need the same ringkern"
                ) from None
        raise refusal.error()


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Replaces the errors of a store: torch's name a place in torch, and no ranks.

    Raises:
        RendezvousError: the store has failed.
    """
    try:
        yield
    except RingKernError:
        raise
    except RuntimeError as error:
        raise RendezvousError(
            f"torch's store, in which ranks find each other, has failed: {error}. Has the process "
            "ended that keeps it (as a rule the first rank, or the launcher)?"
        ) from error


def _did_not_come(ranks: list[int]) -> str:
    if not ranks:
        return "a rank ended while it came"
    more = f" and {len(ranks) - _MAX_LISTED} more" if len(ranks) > _MAX_LISTED else ""
    return f"did not come: rank {' '.join(map(str, ranks[:_MAX_LISTED]))}{more}"


@dataclass(frozen=True)
class _Refusal:
    """A text instead of the hosts, the ranks that it concerns, and whether these are lost."""

    refused: str
    absent: tuple[Annotated[int, Within(0, _C.most_ranks - 1)], ...]
    lost: bool

    def error(self) -> RingKernError:
        """Returns the exception for it. A frame that named and raised one would never be freed."""
        error = (PeerLostError if self.lost else RendezvousError)(self.refused)
        error.rank = self.absent[0] if self.absent else None
        error._absent = self.absent
        return error


def _refusal(text: str, absent: tuple[int, ...] = (), lost: bool = False) -> str:
    return json.dumps(asdict(_Refusal(text[:_MAX_TEXT], absent, lost)))


def _refusal_in(answer: bytes) -> _Refusal | None:
    try:
        found: _Refusal = decode.read(_Refusal, answer, "the answer")
    except ValueError:
        return None
    plain = "".join(c if " " <= c <= "~" else "?" for c in found.refused[:_MAX_TEXT])
    return replace(found, refused=plain)
