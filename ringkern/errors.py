"""The exceptions of ringkern.

Bad arguments are plain ``TypeError`` and ``ValueError``, raised on the rank that made the call
before anything is sent. What goes wrong between ranks is one of these;
``docs/design/reliability.md`` says what to do about each.

::

    RingKernError (RuntimeError)
    ├── PeerLostError
    ├── CollectiveTimeoutError (TimeoutError)
    ├── CollectiveMismatchError
    ├── CommAbortedError
    ├── CommUsageError
    ├── RendezvousError
    └── TransportError
        └── SharedMemoryError
"""

# C++ makes these, also while the interpreter ends: no method of them may be written in Python.

from __future__ import annotations


class RingKernError(RuntimeError):
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
    """A rank has died, or has left while others still call."""


class CollectiveTimeoutError(RingKernError, TimeoutError):
    """A rank waited for another, and nothing came within the timeout."""


class CollectiveMismatchError(RingKernError):
    """Ranks made different calls where all must make the same; nothing was computed."""


class CommAbortedError(RingKernError):
    """The communicator was aborted, here or by another rank, or has failed before."""


class CommUsageError(RingKernError):
    """A communicator is used where it cannot be: closed, in a forked child, without a group."""


class RendezvousError(RingKernError):
    """The ranks could not find each other, or do not fit together."""


class TransportError(RingKernError):
    """Another rank's memory cannot be reached."""


class SharedMemoryError(TransportError):
    """There is not enough shared memory for a rank's segment."""
