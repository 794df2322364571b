"""The exceptions of ringkern.

Bad arguments are plain ``TypeError`` and ``ValueError``, raised on the rank that made the call
before anything is sent. Failures between ranks raise one of these;
``docs/design/reliability.md`` has the remedy for each.
"""

# C++ raises these, also while the interpreter ends: they must not have methods written in Python.

from __future__ import annotations

import dataclasses
from typing import Any

import torch.distributed as dist


@dataclasses.dataclass(frozen=True)
class Fault:
    """A failure of a group, as data; the same on all ranks that it reaches.

    Ranks are numbered as in their group. A field that is unknown or does not apply is ``None``.

    Attributes:
        cause: ``"aborted"``, ``"timed_out"``, ``"mismatch"``, ``"peer_lost"`` or ``"failed"``.
        event: a more specific name, such as ``"died_in_call"``.
        text: the error text.
        group: the name of the communicator.
        rank: the rank that failed, or that the reporter waited for.
        host: the host of that rank, in a group that spans hosts.
        pid: the process of that rank, where another rank can see it.
        signal: the signal that ended that process.
        exit_code: the exit code of that process, if no signal ended it.
        reporter: the rank that found the failure.
        seq: the number of the call, counted from 1.
        collective: the collective that the reporter was in.
        call: the reporter's call, such as ``"seq=17 all_reduce sum float32[100]"``.
        their_call: the call of ``rank``, if the two differ.
        field: the first field in which the calls differ.
        value: the value of ``field`` on ``rank``.
        other_value: the value of ``field`` on the other ranks.
        peer: the rank whose data, free slot or message the reporter waited for.
        waits_for: ``"data"``, or ``"credit"`` for a free slot.
        channel: the channel of that wait.
        wanted: the step that the reporter waited for.
        seen: the step that the reporter last saw.
        tag: the tag of a message.
        waited_s: how long the reporter had been in the call, in seconds.
        timeout_s: the timeout that applied, in seconds.
        evidence: the reason given to ``abort()``, or the error text of another library.
    """

    cause: str
    event: str
    text: str
    group: str | None = None
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    signal: int | None = None
    exit_code: int | None = None
    reporter: int | None = None
    seq: int | None = None
    collective: str | None = None
    call: str | None = None
    their_call: str | None = None
    field: str | None = None
    value: str | None = None
    other_value: str | None = None
    peer: int | None = None
    waits_for: str | None = None
    channel: int | None = None
    wanted: int | None = None
    seen: int | None = None
    tag: int | None = None
    waited_s: float | None = None
    timeout_s: float | None = None
    evidence: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the known fields by name; every value can be written as JSON."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value is not None}


class RingKernError(dist.DistBackendError):
    """Base class of the errors that ringkern raises about a ring.

    The attributes give the facts of the text to programs; unknown ones are ``None``. Pickling keeps
    them.

    Attributes:
        rank: the rank that failed, or that this one waited for; its number in the group.
        seq: the number of the call, counted from 1 on its ring.
        phase: how far this rank had come in that call.
    """

    rank: int | None = None
    seq: int | None = None
    phase: str | None = None
    _fault: dict[str, Any] | None = None
    _absent: tuple[int, ...] = ()  # the ranks that a meeting lacked

    @property
    def fault(self) -> Fault | None:
        """Returns the failure of the group; ``None`` if only this rank failed."""
        return None if self._fault is None else Fault(**self._fault)


class PeerLostError(RingKernError):
    """A rank died, or left while others still call or wait for it.

    Raised on all other ranks within a second, on other hosts within some seconds. It names the
    rank, or the host if all its ranks are lost. Read the log of that rank. For a rank that died,
    the text has the pid, and the signal or exit code. A rank that left made fewer calls than the
    others.
    """


class CollectiveTimeoutError(RingKernError, TimeoutError):
    """A rank waited for another for the whole timeout.

    A warning precedes it after 5 s. The text gives the position of every rank and the state of the
    late process; for an unreachable host, only that it does not answer.
    If a rank may be this late, give the communicator or the group a longer timeout.
    """


class CollectiveMismatchError(RingKernError):
    """Ranks made different calls where all must make the same, or two ends of a message differ.

    Raised on all ranks within a second of both calls. The text names the difference and, if both
    ranks are on one host, the last calls of both: make the same calls in the same order on every
    rank. A message between two ranks fails on its receiver.
    """


class CommAbortedError(RingKernError):
    """The communicator was aborted, here or by another rank, or has failed before.

    The text quotes the reason, or the first error. Close the communicator and make a new one.
    """


class CommUsageError(RingKernError):
    """A communicator cannot be used: it is closed, in a forked child, or without a group.

    Raised at once, on this rank only. The text says what to do instead.
    """


class RendezvousError(RingKernError):
    """A rank is missing, or the ranks have different versions or settings.

    Raised when a communicator is made or in its first call, on all ranks, with the same text. Start
    the missing rank, or make versions and settings the same.
    """


class TransportError(RingKernError):
    """Another rank's memory cannot be reached.

    Raised in the first call: the memory cannot be mapped, or a test of it read wrong data. The text
    names both ranks and what to check; ``python -m ringkern doctor`` looks for the cause.
    """


class SharedMemoryError(TransportError):
    """There is not enough shared memory for a rank's segment.

    Raised in the first call, or when a shared tensor is made. The text gives the size that is
    needed, the size that is free, and the limit: raise the limit, or use fewer ranks.
    """
