"""Tables from which ``"auto"`` chooses algorithm and protocol by the size of a tensor.

The fastest way by :mod:`ringkern.choose.cost` is chosen. Its times were measured on this machine by
``python -m ringkern tune``, or are ringkern's own: measurements of another machine, and predictions
for CUDA. A process makes one table for each kind of device and number of ranks; all ranks of a ring
take the table of rank 0.
"""

from __future__ import annotations

import functools
import warnings
from typing import NamedTuple

from .. import _C
from ..hosts import Hosts
from . import cache, identity
from .cost import ANY_SIZE, Way
from .tuning import COLLECTIVES, DIRECT, RING, Measured, Tuning, TuningError, ways_of

DEVICES = ("cpu", "cuda")

SAMPLES = 16  # for each factor of two
LARGEST = 1 << 30  # bytes; from there on nothing changes
# The price of a row: the gain of a way that wins by 2 % over a factor of two.
_PRICE = 0.02 * SAMPLES
# The cost of a way says little about sizes at which it was hopeless and no longer measured: it is
# used there only if that holds for all ways.
_A_GUESS = 1e6
# The lead that the ring must have over the direct ways to be "auto" on a CPU: only two_shot reduces
# tensors in shared memory in place, several times faster, and the costs do not include that.
_AHEAD = 1.1

SIZES = tuple(dict.fromkeys(round(2 ** (i / SAMPLES)) for i in range(30 * SAMPLES + 1)))


# (below how many bytes of a rank's part, algorithm, protocol), rising; the last has ``ANY_SIZE``.
Rows = list[tuple[int, str, str]]


class Costs(NamedTuple):
    """The costs of ways.

    Attributes:
        measured: the measurements or predictions, and the costs that were fitted to them.
        source: their origin, in words.
    """

    measured: Measured
    source: str


@functools.cache
def table(device: str, ranks: int, one_device: bool = False) -> dict[str, Rows]:
    """Returns the lists of csrc/core/choice.h for ``ranks`` ranks on a kind of device.

    Bytes are those of one rank's part of a call: of the tensor of an all-reduce, of one shard of
    the other collectives.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        one_device: the ranks are all in one process, on one CUDA device.

    Returns:
        For each of these lists up to ``_C.most_rows`` rows.
    """
    lists = rows_for(costs(device, ranks).measured, ranks, one_device)
    if one_device:  # there it reads and writes the tensors themselves, the quickest at every size
        best: Rows = [(ANY_SIZE, "two_shot", "simple")]
        lists |= dict.fromkeys(("automatic", "in_rank_order", "two_shot"), best)
    return lists


def tables_of(hosts: Hosts, rank: int) -> dict[str, dict[str, Rows]]:
    """Returns the tables that ``rank`` gives the ring of its host, by the kind of device.

    Only the first rank of each of the ``hosts`` gives any, and that for CUDA only where there is a
    CUDA device: the others save the time.
    """
    ranks = hosts.ranks_on(hosts.host_of[rank])
    devices = DEVICES if _C.build_info()["cuda_devices"] else DEVICES[:1]
    return {device: table(device, len(ranks)) for device in devices if rank == ranks[0]}


def source(device: str, ranks: int) -> str:
    """Returns the origin of the :func:`table` of a device and number of ranks, in words."""
    return costs(device, ranks).source


def way_of(rows: Rows, nbytes: int) -> Way:
    """Returns the way of a call by the rows of a list.

    Args:
        rows: one of the lists of a :func:`table`.
        nbytes: of a rank's part.
    """
    return next(Way(algorithm, protocol) for below, algorithm, protocol in rows if nbytes < below)


@functools.cache
def costs(device: str, ranks: int) -> Costs:
    """Returns the costs behind the table for this many ranks.

    The user's own measurements come before ringkern's. On a CPU, measurements count in which ranks
    shared cores if these ranks do, and otherwise not; of these, those with the nearest number of
    ranks.
    """
    here = identity.of_this_machine(_C.wire_version)
    crowded = ranks > here.cores if device == "cpu" else None
    own = _own(here)
    if own and (fit := _nearest(own, device, ranks, crowded)):
        return Costs(fit, f"{cache.file_of(here)}, {_measured_as(fit)}")
    return _predicted(ranks) if crowded is None else shipped(ranks, crowded, here)


def _measured_as(fit: Measured) -> str:
    text = f"measured {fit.date} with {fit.ranks} ranks"
    if not fit.gpu:
        return text
    return f"{text} of one process on one {fit.gpu}; between GPUs nothing was measured"


def shipped(ranks: int, crowded: bool, here: identity.Identity | None = None) -> Costs:
    """Returns ringkern's own measurements with the nearest number of ranks on a CPU.

    Args:
        crowded: whether ranks share cores.
        here: the machine; the measurements of the most similar processor are taken. ``None``: the
            default ones.
    """
    own = _default() if here is None else _likest(here)
    fit = _nearest(own, "cpu", ranks, crowded) or min(own.measured, key=lambda m: m.ranks)
    where = f"ringkern's default, measured {fit.date} on {own.machine} with {fit.ranks} ranks"
    return Costs(fit, where)


def _predicted(ranks: int) -> Costs:
    fit = _nearest(cache.read(cache.PREDICTED), "cuda", ranks)
    assert fit is not None, "the file is of CUDA"
    ranks_there = f"{fit.ranks} ranks of one process on one {fit.gpu}"
    return Costs(fit, f"costs predicted for {ranks_there} by `{fit.command}`, not measured")


def forget() -> None:
    """Makes the next table read the files again; existing rings keep their tables."""
    for cached in (table, costs, _own, _default, _likest):
        cached.cache_clear()


# ---- measurements -------------------------------------------------------------------------------


@functools.cache
def _own(here: identity.Identity) -> Tuning | None:
    path = cache.file_of(here)
    try:
        return cache.read(path, here)
    except FileNotFoundError:
        return None
    except TuningError as error:
        warnings.warn(
            f"{path} is ignored, and ringkern's defaults are taken: {error}; {cache.AGAIN}",
            stacklevel=2,
        )
        return None


@functools.cache
def _default() -> Tuning:
    return cache.read(cache.DEFAULT)


@functools.cache
def _likest(here: identity.Identity) -> Tuning:
    # The file for CUDA resembles no machine, and the first of equal ones is taken.
    found = [cache.DEFAULT, *sorted(cache.SHIPPED.iterdir())]
    return cache.read(max(found, key=lambda path: here.likeness(cache.machine_of(path))))


def _nearest(
    found: Tuning, device: str, ranks: int, crowded: bool | None = None
) -> Measured | None:
    alike = [
        m
        for m in found.measured
        if m.device == device and crowded in (None, m.ranks > found.machine.cores)
    ]
    # Compared by ratio; the smaller of two equal ones.
    return min(alike, key=lambda m: max(m.ranks / ranks, ranks / m.ranks), default=None)


# ---- from costs to rows -------------------------------------------------------------------------


def rows_for(measured: Measured, ranks: int, one_device: bool = False) -> dict[str, Rows]:
    """Returns the rows of each list from ``measured``, with this or another number of ranks.

    Args:
        one_device: see :func:`table`.
    """
    ranks = max(2, ranks)  # a ring of one moves nothing: any way is as good
    device = measured.device
    reduced = _times(measured, "all_reduce", ranks, 1)
    parted = [_times(measured, name, ranks, ranks) for name in COLLECTIVES[1:]]
    both = {way: [a + b for a, b in zip(*(times[way] for times in parted))] for way in RING}
    unasked = [way for way in reduced if may_be_unasked(way, device, one_device)]
    behind = {way: _AHEAD if (way[0], device) == ("ring", "cpu") else 1.0 for way in unasked}
    there = [way for way in unasked if _exists(way, device, ranks)]
    return {
        "automatic": rows_of({way: [t * behind[way] for t in reduced[way]] for way in there}),
        "in_rank_order": rows_of({way: reduced[way] for way in DIRECT[device]}),
        **{
            algorithm: rows_of({way: reduced[way] for way in unasked if way[0] == algorithm})
            for algorithm in _C.algorithms
        },
        "others": rows_of({way: both[way] for way in RING if way in unasked}),
    }


def _exists(way: Way, device: str, ranks: int) -> bool:
    """Returns whether an all-reduce has a way; on CUDA this depends on the number of ranks."""
    asked = ("auto", "auto", False, False)
    return not _C.why_not(device, "all_reduce", ranks, "float32", way[:2], *asked)


def may_be_unasked(way: Way, device: str, one_device: bool = False) -> bool:
    """Returns whether a call may go a way that it does not ask for.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        one_device: see :func:`table`.
    """
    # LL128 needs memory that shows 128 bytes at once, as NVLink does; that is not probed.
    return device == "cpu" or one_device or way.protocol != "ll128"


def _times(measured: Measured, name: str, ranks: int, parts: int) -> dict[Way, list[float]]:
    """Returns the predicted microseconds of each way at each of ``SIZES``, of one rank's part."""
    found = {}
    for way in ways_of(name, measured.device):
        most, cost = measured.largest(name, way), measured.ways[name, way].cost
        sizes = [size * parts for size in SIZES]
        times = cost.times_us(way, name, ranks, sizes)
        found[way] = [t if s <= most else t * _A_GUESS for t, s in zip(times, sizes)]
    return found


def rows_of(times: dict[Way, list[float]]) -> Rows:
    """Returns the fastest of some ways at each size, in few rows.

    The loss of the rows against the fastest way, summed over sizes, is minimal, where a row costs
    as much as a loss of 2 % over a factor of two. The first of equal ways is taken.

    Args:
        times: of each way at each of ``SIZES``, in any unit.
    """
    ways = list(times)
    lost = [[time / min(row) - 1 for time in row] for row in zip(*times.values())]
    price = _PRICE
    while len(chosen := _cheapest(lost, price)) > _C.most_rows:
        price *= 1.5
    ends = [*(SIZES[first] for first, _ in chosen[1:]), ANY_SIZE]
    return [(end, ways[i].algorithm, ways[i].protocol) for end, (_, i) in zip(ends, chosen)]


def _cheapest(lost: list[list[float]], price: float) -> list[tuple[int, int]]:
    """Returns (first sample, way) of each row, for the least sum of losses and price of rows."""
    sums = list(lost[0])
    before: list[list[int]] = []  # for each later sample and way: the way of the previous sample
    for losses in lost[1:]:
        best = min(range(len(sums)), key=lambda i: sums[i])
        came = [i if own <= sums[best] + price else best for i, own in enumerate(sums)]
        sums = [
            loss + sums[j] + (price if j != i else 0.0)
            for i, (j, loss) in enumerate(zip(came, losses))
        ]
        before.append(came)
    way = min(range(len(sums)), key=lambda i: sums[i])
    rows = [(0, way)]
    for sample in range(len(lost) - 1, 0, -1):
        if (earlier := before[sample - 1][way]) != way:
            rows[-1] = sample, way
            way = earlier
            rows.append((0, way))
    return rows[::-1]
