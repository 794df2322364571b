"""Which protocol ``protocol="auto"`` means, by the size of the tensor."""

from __future__ import annotations

from typing import NamedTuple


class Thresholds(NamedTuple):
    """Sizes in bytes of one rank's tensor: LL below the first, LL128 below the second, else Simple."""

    ll_below: int
    ll128_below: int


def thresholds(size: int) -> Thresholds:
    """The thresholds for ``size`` ranks.

    A simple rule: what a rank sends in one step is the tensor divided by the ranks, and the protocols
    change places at about the same bytes a step, whatever the number of ranks.
    """
    return Thresholds(ll_below=1024 * size, ll128_below=32 * 1024 * size)
