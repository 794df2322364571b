"""Fits a :class:`ringkern.choose.cost.Cost` to measured times: the latency and the bandwidths.

The best fit has the least sum of squares of relative errors, and no negative value: a way that is
10 % off at 8 bytes is as wrong as one that is 10 % off at 256 MB.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ...choose.cost import ANY_SIZE, Cost, Tier, Way, hops, wire_bytes

Points = Sequence[tuple[int, float]]

MOST_TIERS = 8
# Another tier must reduce the sum of squares by this share, and by at least an error of 1 % in each
# point; otherwise it would follow the noise.
_WORTH = 0.25
_LEAST_ERROR = 0.01
_FASTEST_GB_S = 1e5  # for a tier that costs nothing more


class Errors(NamedTuple):
    """The errors of a cost against the measurements, relative to them."""

    median: float
    p95: float
    worst: float


def check_installed() -> None:
    """Checks that scipy is installed, before anything is measured.

    Raises:
        ValueError: it is not.
    """
    if importlib.util.find_spec("scipy") is None:
        raise ValueError("the fit needs scipy, which is not installed: pip install scipy")


def fit(
    points: Points,
    way: Way,
    collective: str,
    ranks: int,
    *,
    base_us: float = 0.0,
    bounds: Sequence[int] = (),
    device: str = "cpu",
) -> Cost:
    """Returns the cost of a way, fitted to its times.

    Args:
        points: (bytes, microseconds), sizes as in :func:`ringkern.choose.cost.wire_bytes`.
        ranks: 2 or more.
        base_us: the cost of a call before anything moves; limited to the time of the fastest point.
        bounds: sizes at which another bandwidth may be expected, such as those of caches. More are
            added if the points require it.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        ValueError: there are no points, or a size or time is not positive.
    """
    if not points or min(min(point) for point in points) <= 0:
        raise ValueError(f"points are {points!r}; give sizes and times above 0")
    base_us = min(base_us, *(time for _, time in points))
    sizes = sorted({size for size, _ in points})
    problem = _Problem(points, way, collective, ranks, base_us, device)
    inner = [bound for bound in sorted(set(bounds)) if sizes[0] < bound < sizes[-1]]
    knots = _without_idle(problem, tuple(inner[: MOST_TIERS - 1]))
    # Adds more than are needed, and then removes some: one alone may not help where two do.
    while len(knots) < MOST_TIERS - 1:
        tried = [tuple(sorted({*knots, size})) for size in sizes[1:-1] if size not in knots]
        if not tried or problem.solve(knots)[0] < problem.noise:
            break
        knots = min(tried, key=lambda some: problem.solve(some)[0])
    knots = _without_idle(problem, knots)
    hop, slopes = problem.solve(knots)[1]
    return Cost(base_us, hop, _tiers(knots, slopes), device)


def errors(cost: Cost, points: Points, way: Way, collective: str, ranks: int) -> Errors:
    """Returns the errors of the cost at the points."""
    found = sorted(
        abs(cost.time_us(way, collective, ranks, size) / time - 1) for size, time in points
    )
    last = found[min(len(found) - 1, int(len(found) * 0.95))]
    return Errors(statistics.median(found), last, found[-1])


def _without_idle(problem: _Problem, knots: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the bounds without those at which the bandwidth hardly changes."""
    while knots:
        loss = problem.solve(knots)[0]
        fewer = min(
            (tuple(k for k in knots if k != knot) for knot in knots),
            key=lambda some: problem.solve(some)[0],
        )
        more = problem.solve(fewer)[0]
        if more - loss > max(_WORTH * more, problem.noise):
            break
        knots = fewer
    return knots


def _tiers(knots: tuple[int, ...], slopes: list[float]) -> tuple[Tier, ...]:
    ends = (*knots, ANY_SIZE)
    least = 1 / (_FASTEST_GB_S * 1e3)
    return tuple(Tier(end, 1 / (1e3 * max(slope, least))) for end, slope in zip(ends, slopes))


class _Problem:
    """Points, and the costs to be found for given tiers: a hop, and a slope for each tier."""

    def __init__(
        self, points: Points, way: Way, collective: str, ranks: int, base_us: float, device: str
    ) -> None:
        self.points, self._base_us, self._device = points, base_us, device
        self._way, self._collective, self._ranks = way, collective, ranks
        # The sum of squares that does not justify a tier.
        self.noise = len(points) * _LEAST_ERROR**2
        self._solved: dict[tuple[int, ...], tuple[float, tuple[float, list[float]]]] = {}

    def solve(self, knots: tuple[int, ...]) -> tuple[float, tuple[float, list[float]]]:
        """Returns the sum of squares, and the (hop, slopes) that minimise it."""
        if knots not in self._solved:
            rows = [self._row(size, time, knots) for size, time in self.points]
            wanted = [1 - self._base_us / time for _, time in self.points]
            found, loss = least_squares(rows, wanted)
            self._solved[knots] = loss, (found[0], found[1:])
        return self._solved[knots]

    def _row(self, size: int, time: float, knots: tuple[int, ...]) -> list[float]:
        about = (self._way, self._collective, self._ranks)
        row = [hops(*about) / time]
        for below, end in zip((0, *knots), (*knots, ANY_SIZE)):
            some = max(0, min(size, end) - below)
            row.append(wire_bytes(*about, some, self._device) / time)
        return row


def least_squares(rows: list[list[float]], wanted: list[float]) -> tuple[list[float], float]:
    """Returns the x >= 0 for which ``rows`` times x is nearest to ``wanted``, and the distance as a
    sum of squares.

    Raises:
        ImportError: scipy is not installed.
    """
    import numpy as np
    from scipy.optimize import nnls

    table = np.array(rows)
    # Scales columns to length 1, because nnls takes one tolerance for all of them. Columns of
    # length 0 take no part.
    length = np.linalg.norm(table, axis=0)
    scale = np.where(length > 0, length, np.inf)
    # Adds rows of zeros, because nnls of scipy 1.15, the last for Python 3.10, may be wrong if all
    # rows are used up: https://github.com/scipy/scipy/issues/25389.
    zeros = np.zeros((len(scale), len(scale)))
    x, distance = nnls(np.vstack([table / scale, zeros]), np.append(wanted, zeros[0]))
    return (x / scale).tolist(), float(distance) ** 2
