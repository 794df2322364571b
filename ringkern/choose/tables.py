"""Tables by which ``"auto"`` chooses algorithm and protocol from the size of a tensor.

The quickest by :mod:`ringkern.choose.cost` is chosen, from times that ``python -m ringkern tune``
measured on this machine, or from ringkern's own: measurements of another one, and for CUDA
predictions. A table is made once a process, for each kind of device and number of ranks; all ranks
of a ring take the one of rank 0.
"""

from __future__ import annotations

import functools
import warnings
from typing import NamedTuple

from .. import _C
from . import cache, identity
from .cost import ANY_SIZE, Way
from .tuning import COLLECTIVES, DIRECT, RING, Measured, Tuning, TuningError, ways_of

DEVICES = ("cpu", "cuda")

SAMPLES = 16  # for each factor of two
LARGEST = 1 << 30  # bytes; from there on nothing changes
# The value of a row: as much as a way that wins by 2 % over a factor of two.
_PRICE = 0.02 * SAMPLES
# A cost says little about sizes at which a way was hopeless and not measured any more: it is taken
# there only where all are.
_A_GUESS = 1e6
# How far the ring must be ahead of the ways that take none to be "auto" on a CPU: tensors in shared
# memory are reduced in place by two_shot alone, several times faster, and costs do not tell them.
_AHEAD = 1.1

SIZES = tuple(dict.fromkeys(round(2 ** (i / SAMPLES)) for i in range(30 * SAMPLES + 1)))


# (below how many bytes of a rank's part, algorithm, protocol), rising; the last has ``ANY_SIZE``.
Rows = list[tuple[int, str, str]]


class Costs(NamedTuple):
    """The costs of ways.

    Attributes:
        measured: the measurements or predictions, and the costs that were fitted to them.
        source: where they come from, in words.
    """

    measured: Measured
    source: str


@functools.cache
def table(device: str, ranks: int, one_device: bool = False) -> dict[str, Rows]:
    """The lists of csrc/core/choice.h for ``ranks`` ranks on a kind of device.

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


def source(device: str, ranks: int) -> str:
    """Where the :func:`table` of a device and a number of ranks comes from, in words."""
    return costs(device, ranks).source


def way_of(rows: Rows, nbytes: int) -> Way:
    """The way that rows say.

    Args:
        rows: one of the lists of a :func:`table`.
        nbytes: of a rank's part.
    """
    return next(Way(algorithm, protocol) for below, algorithm, protocol in rows if nbytes < below)


@functools.cache
def costs(device: str, ranks: int) -> Costs:
    """Returns the costs behind the table for so many ranks.

    The user's own measurements come before ringkern's. On a CPU those count whose ranks had a core
    each, or had not, as these do; and of these, the nearest number of ranks.
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
    """Returns what ringkern measured itself with the nearest number of ranks on a CPU.

    Args:
        crowded: whether ranks share cores.
        here: the machine, of which the likest processor's measurements are taken; ``None``: the
            default.
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
    """Reads the files again when a table is asked for; rings that are there keep theirs."""
    for cached in (table, costs, _own, _default, _likest):
        cached.cache_clear()


# ---- what was measured --------------------------------------------------------------------------


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
    # The file for CUDA is like no machine, and of equals the first is taken.
    found = [_default(), *(cache.read(p) for p in sorted(cache.SHIPPED.iterdir()))]
    return max(found, key=lambda tuning: here.likeness(tuning.machine))


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
    """The rows of each list, from what was measured with this or another number of ranks.

    Args:
        one_device: as for :func:`table`.
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
    """Tells if an all-reduce has a way: on CUDA only so many ranks can do without the ring."""
    asked = ("auto", "auto", False, False)
    return not _C.why_not(device, "all_reduce", ranks, "float32", way[:2], *asked)


def may_be_unasked(way: Way, device: str, one_device: bool = False) -> bool:
    """Tells if a call may go a way that it does not ask for.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        one_device: as for :func:`table`.
    """
    # LL128 needs memory that shows 128 bytes at once, as over NVLink; that is not probed.
    return device == "cpu" or one_device or way.protocol != "ll128"


def _times(measured: Measured, name: str, ranks: int, parts: int) -> dict[Way, list[float]]:
    """Predicted microseconds of each way at each of ``SIZES``, of one rank's part."""
    found = {}
    for way in ways_of(name, measured.device):
        most, cost = measured.largest(name, way), measured.ways[name, way].cost
        sizes = [size * parts for size in SIZES]
        times = [cost.time_us(way, name, ranks, size) for size in sizes]
        found[way] = [t if s <= most else t * _A_GUESS for t, s in zip(times, sizes)]
    return found


def rows_of(times: dict[Way, list[float]]) -> Rows:
    """The quickest of some ways at each size, in few rows.

    The loss of the rows against the quickest way, summed over sizes, is minimal, where a
    row costs as much as a loss of 2 % over a factor of two. The first of equal ways is taken.

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
    """(first sample, way) of each row, so that losses and the price of the rows are the least."""
    sums = list(lost[0])
    before: list[list[int]] = []  # of each later sample: for each way that of the sample before
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
