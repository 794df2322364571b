"""The exceptions of ringkern.

Bad arguments are plain ``TypeError`` and ``ValueError``, raised on the rank that made the call
before anything is sent. What goes wrong between ranks is one of these.
"""


class RingKernError(RuntimeError):
    """Base class of the errors that ringkern raises about a ring."""


class CommUsageError(RingKernError):
    """A communicator is used where it cannot be: closed, in a forked child, without a group."""


class CommAbortedError(RingKernError):
    """The communicator was aborted, here or by another rank, or has failed before."""


class CollectiveTimeoutError(RingKernError, TimeoutError):
    """A rank waited for a neighbour, and nothing came within the timeout."""


class RendezvousError(RingKernError):
    """The ranks could not find each other, or do not fit together."""


class TransportError(RingKernError):
    """A neighbour's memory cannot be reached."""


class SharedMemoryError(TransportError):
    """There is not enough shared memory for a rank's segment."""
