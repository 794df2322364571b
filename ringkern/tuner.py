"""Which protocol ``protocol="auto"`` means, by the size of the tensor. A simple rule for now."""

from __future__ import annotations

from typing import NamedTuple

DEVICES = ("cpu", "cuda")


class Thresholds(NamedTuple):
    """Bytes of one rank's part: LL below the first, LL128 below the second, else Simple."""

    ll_below: int
    ll128_below: int


def thresholds(device: str, size: int) -> Thresholds:
    """The thresholds for ``size`` ranks on a kind of device.

    What a rank sends in one step is the tensor divided by the ranks, and the protocols change
    places at about the same bytes a step, whatever the number of ranks.

    On a CPU the three are equal up to some hundred bytes a step, and Simple leads from there on
    (2 ranks, a core each: 2.2, 2.1 and 2.1 us at 1 KiB; 2.7, 2.3 and 2.1 us at 4 KiB; 34, 19 and
    12 us at 64 KiB, for LL, LL128 and Simple).

    On a GPU nothing has been measured yet: LL while its data, twice the size on the wire, is small;
    and never LL128 unasked, because it needs memory that shows 128 bytes at once, which is not
    probed.
    """
    if device == "cpu":
        return Thresholds(ll_below=256 * size, ll128_below=1024 * size)
    return Thresholds(ll_below=16 * 1024 * size, ll128_below=0)
