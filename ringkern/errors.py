"""The exceptions of ringkern.

Bad arguments are plain ``TypeError`` and ``ValueError``, raised on the rank that made the call
before anything is sent. What goes wrong between ranks is one of these;
``docs/design/reliability.md`` says what to do about each.
"""

# C++ makes these, also while the interpreter ends: no method of them may be written in Python.

from __future__ import annotations

import torch.distributed as dist


class RingKernError(dist.DistBackendError):
    """Base class of the errors that ringkern raises about a ring.

    What the text says is here for a program to read, as far as it is known. Pickling keeps it.

    Attributes:
        rank: the rank whose fault it is, or that was waited for; its number in the ring.
        seq: the call, counted from 1 on its ring.
        phase: how far this rank had come in that call.
    """

    rank: int | None = None
    seq: int | None = None
    phase: str | None = None


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
