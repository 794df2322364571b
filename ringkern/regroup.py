"""New communicators from old ones: without ranks that have died, and with processes that join.

The ranks of one host that go on agree over their pages (``csrc/comm/regroup.h``), and meet there,
too. With processes that join, they meet in the store in which these wait. The ranks of several
hosts meet in the store of the old communicator.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, TypeVar

import torch
import torch.distributed as dist

from . import _C, decode
from .config import config, timeout_seconds
from .decode import Within
from .errors import (
    CollectiveMismatchError,
    CommAbortedError,
    CommUsageError,
    PeerLostError,
    RendezvousError,
)
from .hosts import Known, store_errors, unique_prefix
from .hosts.peer import Number, Peer, Text, this_peer

if TYPE_CHECKING:
    from .comm import Communicator

# How often a process looks into the store.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.01
# A round fails when a member dies, or cannot join; the cause could be permanent.
_MOST_ROUNDS_MORE = 3
# The errors of a meeting after which the next round begins. A member that could not join aborts the
# new ring, in which others may still connect.
_AGAIN = (CommAbortedError, PeerLostError, RendezvousError)

_T = TypeVar("_T")
_Rank = Annotated[int, Within(0, _C.most_ranks - 1)]


@dataclass(frozen=True)
class Regrouped:
    """The origin of a communicator that :meth:`ringkern.Communicator.shrink` or ``grow`` made.

    Attributes:
        ranks: by rank, its rank in the communicator before; ``None`` for a process that joined.
        calls: by rank, how many collectives it had completed in the communicator before; 0 for a
            process that joined.
        interrupted: how far the call that the failure interrupted has come on the ranks that go
            on: ``"nowhere"``, none has completed it; ``"partly"``, those with the most ``calls``
            have; ``"no"``, all have completed every call that one of them began.
    """

    ranks: tuple[_Rank | None, ...]
    calls: tuple[Number, ...]
    interrupted: Text


@dataclass(frozen=True)
class _Invitation:
    """The place of a process that joins: rank and size, where to meet, and the others."""

    rank: _Rank
    size: Annotated[int, Within(1, _C.most_ranks)]
    name: Text
    address: Text
    devices: tuple[Text, ...]
    processes: tuple[tuple[Number, Number], ...]
    regrouped: Regrouped


def _regrouped(members: Sequence[int], calls: Sequence[tuple[int, int]], joiners: int) -> Regrouped:
    completed = [done for done, _ in calls]
    begun = max(begun for _, begun in calls)
    interrupted = (
        "partly" if len(set(completed)) > 1 else "no" if begun == completed[0] else "nowhere"
    )
    return Regrouped((*members, *[None] * joiners), (*completed, *[0] * joiners), interrupted)


class Joiners:
    """The processes that wait in a store to join a communicator.

    Args:
        store: the store that they use, too.
        name: the name that they gave.
        count: how many may join.
    """

    def __init__(self, store: dist.Store, name: str, count: int) -> None:
        self._store, self._name, self._count = store, name, count
        self._answered: set[int] = set()

    def key(self, what: str) -> str:
        """Returns a key of this name in the store."""
        return f"ringkern/join/{self._name}/{what}"

    def waiting(self) -> dict[int, tuple[int, int]]:
        """Returns the process (pid, start) of each place whose process waits on this host."""
        here = this_peer(0, named=config.host)
        found = {}
        for place in range(1, self._store.add(self.key("places"), 0) + 1):
            if place in self._answered or not self._store.check([self.key(f"waits/{place}")]):
                continue
            if self._store.check([self.key(f"joined/{place}")]):
                self._answered.add(place)
                continue
            peer, process = _read_joiner(self._store.get(self.key(f"waits/{place}")))
            if peer.memory_key != here.memory_key or peer.apart_from(here):
                continue
            if peer.pid_namespace != here.pid_namespace:
                process = (0, 0)
            if _C.find_gone(("", [process], 0.0), lambda: "") is None:
                found[place] = process
        return found

    def wait(self, deadline: float) -> None:
        """Returns when as many processes wait as may join."""
        _await(
            lambda: len(self.waiting()) >= self._count or None,
            deadline,
            lambda: (
                f"{len(self.waiting())} of {self._count} processes have come to join "
                f"'{self._name}': each calls ringkern.Communicator.join with this store and name"
            ),
        )

    def chosen(self) -> dict[int, tuple[int, int]]:
        """Returns those of :meth:`waiting` that may join, the first to come."""
        return dict(itertools.islice(self.waiting().items(), self._count))

    def new_address(self) -> str:
        """Returns the number of a new meeting."""
        return str(self._store.add(self.key("meetings"), 1))

    def meetings(self) -> int:
        """Returns the number of the last meeting. Does not write: it may be called for hours."""
        key = self.key("meetings")
        return int(self._store.get(key)) if self._store.check([key]) else 0

    def meeting(self, address: str) -> dist.Store:
        """Returns the part of the store in which the ranks meet that go on."""
        return dist.PrefixStore(self.key(f"meeting/{address}"), self._store)

    def invite(self, place: int, invitation: _Invitation) -> None:
        """Leaves an invitation for the process at this place.

        In one step: this rank may die at any point, and the next to invite must not depend on it.
        """
        key = self.key(f"invitation/{place}/{invitation.address}")
        self._store.set(key, json.dumps(asdict(invitation)))

    def welcome(self, places: Sequence[int], address: str) -> None:
        """Tells these that they have joined."""
        self._store.set(self.key(f"formed/{address}"), "1")
        for place in places:
            self._store.set(self.key(f"joined/{place}"), "1")

    def enter(self) -> int:
        """Makes this process wait here; returns its place."""
        place = self._store.add(self.key("places"), 1)
        record = [this_peer(0, named=config.host).to_json(), *_C.this_process()]
        self._store.set(self.key(f"waits/{place}"), json.dumps(record))
        return place

    def invitation(self, place: int, after: int) -> tuple[int, _Invitation] | None:
        """Returns this place's invitation to the last meeting after this one, and that meeting."""
        for meeting in range(self.meetings(), after, -1):
            key = self.key(f"invitation/{place}/{meeting}")
            if self._store.check([key]):
                where = "the invitation of a process that joins"
                return meeting, decode.read(_Invitation, self._store.get(key), where)
        return None

    def has_formed(self, address: str) -> bool:
        """Returns whether all ranks have joined the ring that meets at this address."""
        return bool(self._store.check([self.key(f"formed/{address}")]))


def _read_joiner(text: bytes) -> tuple[Peer, tuple[int, int]]:
    where = "the record of a process that waits to join"
    peer, pid, started = decode.read(tuple[str, Number, Number], text, where)
    return Peer.from_json(peer, 0), (pid, started)


def _meet(
    kind: type[Communicator],
    store: dist.Store | _C.PageStore,
    place: _Invitation,
    timeout: timedelta | None,
    seconds: float,
    threads: int | None,
) -> Communicator:
    """Returns the new communicator, connected. Waits at most ``seconds`` for the others."""
    new = kind.__new__(kind)
    known = Known(place.processes, seconds)
    new._open(store, place.rank, place.size, place.name, timeout, None, threads, known)
    new._regrouped = place.regrouped
    ring = new._c
    try:
        if not isinstance(ring, _C.Communicator):
            raise CommUsageError("the ranks of the new communicator must be on one host")
        for device in place.devices:
            ring.connect(f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device)
    except BaseException as error:
        ring.abort(f"rank {place.rank} could not join: {error}")
        new.close()
        raise
    return new


def regroup(
    old: Communicator, exclude: Sequence[int], joiners: Joiners | None, timeout: timedelta | None
) -> Communicator:
    """Makes the communicator of the ranks that go on, and of processes that join.

    Args:
        old: the communicator before, which is closed if all goes well.
        exclude: ranks of it that do not go on.
        joiners: the processes that may join; ``None``: none.
        timeout: see :meth:`ringkern.Communicator.shrink`.

    Returns:
        The new communicator.

    Raises:
        CollectiveMismatchError, CommAbortedError, CommUsageError, RendezvousError, ValueError: see
            :meth:`ringkern.Communicator.shrink`.
    """
    ring = old._c
    excluded = sorted(set(exclude))
    for rank in excluded:
        if not 0 <= rank < old.size:
            raise ValueError(f"exclude has rank {rank}; the ranks are 0 to {old.size - 1}")
    if old.rank in excluded:
        raise ValueError(f"rank {old.rank} excludes itself: an excluded rank makes no call")
    seconds = timeout_seconds(old._timeout if timeout is None else timeout)
    if not isinstance(ring, _C.Communicator):
        if joiners is not None:
            raise CommUsageError(
                f"the communicator spans {old.hosts.count} hosts, and processes can join one of a "
                "single host only: use a group of the backend, and reconfigure() of torch 2.14"
            )
        return _over_hosts(old, ring, excluded, seconds)
    if not ring.devices and not ring.failed:
        ring.connect("cpu")
    if joiners is not None:
        joiners.wait(time.monotonic() + seconds)
    chosen: dict[str, dict[int, tuple[int, int]]] = {}

    def propose(_: list[int]) -> tuple[str, int]:
        if joiners is None or not (found := joiners.chosen()):
            return "", 0
        address = joiners.new_address()
        chosen[address] = found
        joiners.meeting(address).set("places", json.dumps(list(found)))
        return address, len(found)

    for left in reversed(range(old.size + _MOST_ROUNDS_MORE)):
        round = ring.gather(excluded, seconds, propose)
        place = _place_in(ring, old, round)
        places: list[int] = []
        try:
            ring.shut_out(round.members, seconds)
            if joiners is None or round.joiners == 0:
                store: dist.Store | _C.PageStore = ring.meeting_of(round)
            else:
                store = joiners.meeting(round.address)
                places = json.loads(store.get("places"))
                invited = chosen.get(round.address, {})
                place = replace(place, processes=(*place.processes, *invited.values()))
                kinds = tuple(device.partition(":")[0] for device in place.devices)
                for rank, joiner in enumerate(invited, len(round.members)):
                    joiners.invite(joiner, replace(place, rank=rank, devices=kinds))
            new = _meet(type(old), store, place, old._timeout, seconds, old._threads)
        except BaseException as error:
            ring.conclude(round, False, seconds)
            if left > 0 and isinstance(error, _AGAIN):
                continue
            raise
        if ring.conclude(round, True, seconds):
            if joiners is not None:
                joiners.welcome(places, round.address)
            _end(old, excluded)
            return new
        new._c.abort("another rank could not join")
        new.close()
    raise RendezvousError(
        f"the ranks of {old!r} that are left could not connect again: see the earlier errors"
    )


def _over_hosts(
    old: Communicator, ring: _C.HostsCommunicator, excluded: list[int], seconds: float
) -> Communicator:
    """Makes the communicator of the ranks of several hosts that go on.

    All ranks of a meeting get the same answer (:class:`ringkern.hosts.Search`). So all leave out
    the same ranks, and meet again without them.
    """
    calls = ring.calls()
    departures, processes, _ = old._roster
    with store_errors():
        prefix = unique_prefix(old._store, f"going on of {departures}", old.rank, old.size)
        store = dist.PrefixStore(prefix, old._store)
        first = store.compare_set("excluded", "", json.dumps(excluded))
        asked = list(decode.read(tuple[_Rank, ...], first, "the ranks that do not go on"))
        store.set(f"calls/{old.rank}", json.dumps(calls))
        if asked != excluded and old.rank not in asked:
            # All meet first, so that all get the error.
            store.set(
                "mismatch",
                f"rank {old.rank} excludes the ranks {excluded}, another one {asked}: give all "
                "ranks that go on the same ranks to exclude",
            )
    if old.rank in asked:
        raise _left_out(old, "which they excluded")
    members = [rank for rank in range(old.size) if rank not in asked]
    while True:
        new = type(old).__new__(type(old))
        known = Known(tuple(processes[rank] for rank in members), seconds)
        place = members.index(old.rank), len(members), _name_after(old._name)
        try:
            new._open(store, *place, old._timeout, old._inter_host, old._threads, known)
            break
        except (PeerLostError, RendezvousError) as error:
            absent = [members[rank] for rank in error._absent if rank < len(members)]
            if not absent:
                raise
            if old.rank in absent:
                late = "which did not come in time: it was stopped or busy"
                raise _left_out(old, late) from None
            members = [rank for rank in members if rank not in absent]
    try:
        with store_errors():
            if store.check(["mismatch"]):
                raise CollectiveMismatchError(store.get("mismatch").decode(errors="replace"))
            found = [store.get(f"calls/{rank}") for rank in members]
        of_all = [decode.read(tuple[Number, Number], one, "the calls of a rank") for one in found]
        new._regrouped = _regrouped(members, of_all, 0)
        ring.shut_out(members, seconds)
    except BaseException as error:
        new.abort(f"rank {old.rank} could not join: {error}")
        new.close()
        raise
    _end(old, excluded)
    return new


def _end(old: Communicator, excluded: list[int]) -> None:
    """Closes the old communicator; ranks that they exclude are told why."""
    if excluded:
        old.abort(f"the others go on without the ranks {excluded}")
    old.close()


def _left_out(old: Communicator, why: str) -> CommAbortedError:
    return CommAbortedError(
        f"the other ranks of communicator '{old._name}' went on without rank {old.rank}, {why}. "
        "Close this communicator"
    )


def _name_after(name: str) -> str:
    """Returns the next of the names "x", "x~2", "x~3", ..."""
    base, _, number = name.rpartition("~")
    return f"{base}~{int(number) + 1}" if base and number.isdecimal() else f"{name}~2"


def _place_in(ring: _C.Communicator, old: Communicator, round: _C.Round) -> _Invitation:
    return _Invitation(
        round.members.index(old.rank),
        len(round.members) + round.joiners,
        _name_after(old._name),
        round.address,
        tuple(ring.devices),
        tuple(round.processes),
        _regrouped(round.members, round.calls, round.joiners),
    )


def join(
    kind: type[Communicator],
    store: dist.Store,
    name: str,
    timeout: timedelta | None,
    threads: int | None,
) -> Communicator:
    """Waits to be taken into a communicator; see :meth:`ringkern.Communicator.join`."""
    deadline = time.monotonic() + timeout_seconds(timeout)
    joiners = Joiners(store, name, 0)
    meeting = joiners.meetings()  # the last one to which it is not invited
    own = joiners.enter()

    def nobody() -> str:
        return (
            "no communicator has taken this process in: the ranks of one on this host call grow() "
            f"with this store and the name '{name}'"
        )

    while True:
        invited = functools.partial(joiners.invitation, own, meeting)
        meeting, invitation = _await(invited, deadline, nobody)
        left = max(deadline - time.monotonic(), 0.001)
        try:
            at = joiners.meeting(invitation.address)
            new = _meet(kind, at, invitation, timeout, left, threads)
        except _AGAIN:
            continue  # a rank has died meanwhile; those that are left invite again
        formed = functools.partial(_has_formed, joiners, own, meeting)
        if _await(formed, deadline, nobody):
            return new
        new._c.abort("the other ranks have begun again")
        new.close()


def _has_formed(joiners: Joiners, own: int, meeting: int) -> bool | None:
    """Returns whether the new ring stands on all ranks; ``None``: not decided yet.

    The others decide it, also for a ring that has failed meanwhile: a process that left it on its
    own would not be invited again by ranks that count it in.
    """
    if joiners.has_formed(str(meeting)):
        return True
    return False if joiners.invitation(own, meeting) is not None else None


def _await(found: Callable[[], _T | None], deadline: float, late: Callable[[], str]) -> _T:
    """Returns what ``found`` returns, unless that is ``None``: then it is called again.

    Raises:
        RendezvousError: the deadline has passed; the text is that of ``late``.
    """
    pause = _FIRST_PAUSE_S
    while (result := found()) is None:
        if time.monotonic() >= deadline:
            raise RendezvousError(late())
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    return result
