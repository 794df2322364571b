"""The exceptions of ringkern.

Bad arguments are plain ``TypeError`` and ``ValueError``, raised on the rank that made the call
before anything is sent. Failures between ranks raise one of these;
``docs/design/reliability.md`` has the remedy for each.
"""

# C++ makes these, also while the interpreter ends: no method of them may be written in Python.

from __future__ import annotations

import dataclasses
from typing import Any

import torch.distributed as dist


@dataclasses.dataclass(frozen=True)
class Fault:
    """A failure of a group, as data; the same on all ranks that it is told to.

    Ranks are numbered as in their group. What is not known, or does not apply, is ``None``.

    Attributes:
        cause: ``"aborted"``, ``"timed_out"``, ``"mismatch"``, ``"peer_lost"`` or ``"failed"``.
        event: a finer name of what happened, such as ``"died_in_call"``.
        text: the sentence for users.
        group: the name of the communicator.
        rank: whose fault it is, or who was waited for.
        host: the host of that rank, in a group that spans hosts.
        pid: its process, where another rank can see it.
        signal: the signal that ended the process.
        exit_code: its exit code, where no signal ended it.
        reporter: the rank that found the failure.
        seq: the call, counted from 1.
        collective: the collective that the reporter was in.
        call: its call in words, such as ``"seq=17 all_reduce sum float32[100]"``.
        their_call: the call of ``rank``, where the two differ.
        field: the first field in which they differ.
        value: what ``rank`` has there.
        other_value: what the others have.
        peer: the rank whose data, free slot or message the reporter waited for.
        waits_for: ``"data"``, or ``"credit"`` for a free slot.
        channel: the channel of that wait.
        wanted: the step that it waited for.
        seen: the step that it last saw.
        tag: the tag of a message.
        waited_s: for how long the reporter had been in the call, in seconds.
        timeout_s: the timeout that applied, in seconds.
        evidence: a reason given to ``abort()``, or the words of another library.
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
        """Returns the fields that are known, by name; every value is one that JSON has."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value is not None}


class RingKernError(dist.DistBackendError):
    """Base class of the errors that ringkern raises about a ring.

    What the text says is here for a program to read, as far as it is known. Pickling keeps it.

    Attributes:
        rank: the rank whose fault it is, or that was waited for; its number in the group.
        seq: the call, counted from 1 on its ring.
        phase: how far this rank had come in that call.
    """

    rank: int | None = None
    seq: int | None = None
    phase: str | None = None
    _fault: dict[str, Any] | None = None

    @property
    def fault(self) -> Fault | None:
        """The failure of the group; ``None`` where this rank alone has failed."""
        return None if self._fault is None else Fault(**self._fault)


class PeerLostError(RingKernError):
    """A rank has died, or has left while others still call, or wait for it.

    On all other ranks, within a second; on other hosts, within some seconds, and where all ranks of
    a host are lost it names the host. Look at the log of the rank that it names; of one that died
    the text has the pid, and the signal or exit code. One that left made fewer calls than the
    others.
    """


class CollectiveTimeoutError(RingKernError, TimeoutError):
    """A rank waited for another, and nothing came within the timeout.

    After a warning at 5 s. The text says where every rank is, and in which state the late process;
    of a host that cannot be reached, only that it does not answer.
    Where a rank may be so late, give the communicator or the group a longer timeout.
    """


class CollectiveMismatchError(RingKernError):
    """Ranks made different calls where all must make the same, or two ends of a message differ.

    On all ranks, within a second of both calls. The text says in what they differ, and where both
    ranks are on one host, it has the last calls of both: make the same calls in the same order on
    every rank. A message between two ranks fails on its receiver.
    """


class CommAbortedError(RingKernError):
    """The communicator was aborted, here or by another rank, or has failed before.

    The text quotes the reason, or the first error. Close the communicator; go on with a new one.
    """


class CommUsageError(RingKernError):
    """A communicator is used where it cannot be: closed, in a forked child, without a group.

    Here only, at once; the text says what to do in its place.
    """


class RendezvousError(RingKernError):
    """The ranks could not find each other, or do not fit together.

    Where a communicator is made, or in its first call; on all ranks, with the same text. Start the
    rank that is missing, or make versions and settings the same.
    """


class TransportError(RingKernError):
    """Another rank's memory cannot be reached.

    In the first call: it cannot be mapped, or it can and moves wrong data. The text names both
    ranks and what to look at; ``python -m ringkern doctor`` looks for the cause.
    """


class SharedMemoryError(TransportError):
    """There is not enough shared memory for a rank's segment.

    In the first call, or where a shared tensor is made. The text has what is wanted, what is left,
    and which limit it is: raise it, or use fewer ranks.
    """
