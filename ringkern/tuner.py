"""Which way ``"auto"`` means, by the size of the tensor. A simple rule for now."""

from __future__ import annotations

from typing import NamedTuple

DEVICES = ("cpu", "cuda")

# More than any tensor has.
_ANY = 2**62


class Limits(NamedTuple):
    """Bytes of one rank's part below which ``"auto"`` is what the field says, in this order.

    The first three are of an all-reduce with neither algorithm nor protocol given; the last two of
    everything else. What is above all of them is the ring over Simple.
    """

    one_shot_ll: int
    one_shot: int
    two_shot: int
    ring_ll: int
    ring_ll128: int


def limits(device: str, size: int) -> Limits:
    """The limits for ``size`` ranks on a kind of device.

    On a CPU one_shot is the quickest up to some kilobytes, first over LL, and two_shot from there
    on; see docs/cpu.md. What a rank sends in one step of the ring is the tensor divided by the
    ranks, and there the protocols change places at about the same bytes a step.

    On a GPU nothing has been measured yet: the ring, over LL while its data, twice the size on the
    wire, is small; and never LL128 unasked, because it needs memory that shows 128 bytes at once,
    which is not probed.
    """
    if device == "cpu":
        one_shot = 2 << 10 if size < 4 else 8 << 10
        return Limits(1025, one_shot, _ANY, ring_ll=256 * size, ring_ll128=1024 * size)
    return Limits(0, 0, 0, ring_ll=16 * 1024 * size, ring_ll128=0)
