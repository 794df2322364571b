"""``python -m ringkern tune``: measures the ways of this machine, fits their costs, and keeps them.

From then on, every ring of this user on this machine uses the fastest way.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from ... import _C
from ...choose import cache, identity, tables, tuning
from ...choose.cost import ANY_SIZE, Way
from ...choose.tuning import COLLECTIVES, Fitted, Measured, Tuning, ways_of
from .. import curves, launch, options
from . import fit, on_cuda, quiet, trials
from .trials import Trials

DESCRIPTION = """\
Measures how long each algorithm and protocol takes on this machine, over sizes from 8 B to 256 MB,
fits a cost to each, and keeps them where every program of this user finds them: "auto" then means
what is the quickest here. Where other programs disturbed it, it says so and keeps nothing. With
--device cuda it measures the ranks of one process on the current GPU."""

SMALLEST, LARGEST, SIZES = 8, 256 << 20, 20
_MEMORY_SHARE = 0.25  # share of the free memory, for the tensors of all ranks
_STARTING_S = 120.0
_FITTING_S = 1.5  # after the ranks have ended
DEFAULT_RANKS = {"cpu": (2,), "cuda": (2, 4, 8)}
SECONDS, LEAST_SECONDS = 50.0, 10.0


class Fit(NamedTuple):
    """A fitted way, and the error of the fit."""

    collective: str
    way: Way
    points: int
    errors: fit.Errors


class Found(NamedTuple):
    """The result for one number of ranks; ``disturbed``: the disturbances, in words."""

    measured: Measured
    fits: list[Fit]
    lists: dict[str, tables.Rows]
    disturbed: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add(
        "-n",
        "--ranks",
        type=_ranks,
        help="ranks; or several numbers of them, as 2,4 (default 2; 2,4,8 on CUDA)",
    )
    add("--device", default="cpu", choices=tables.DEVICES, help="default cpu")
    options.add_ranks_per_core(parser)
    add(
        "--seconds",
        type=_seconds,
        help=f"what it takes in all, {LEAST_SECONDS:g} or more (default {SECONDS:g} for each "
        "number of ranks)",
    )
    busy = "keep what other programs have disturbed; on CUDA this is not looked at"
    add("--even-if-busy", action="store_true", help=busy)
    where = "write there (default: the user's cache)"
    add("--out", type=options.new_file, metavar="FILE", help=where)
    add("--dry-run", action="store_true", help="measure and say what was found; write nothing")
    add("--plot", type=options.picture, metavar="FILE", help="draw the fit; needs matplotlib")
    # For a quick look, and for tests.
    add("--sizes", type=_sizes, default=(), metavar="BYTES,...", help=argparse.SUPPRESS)
    options.add_timeout(parser, None, own=True)
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status.

    Raises:
        ValueError: the arguments do not fit together, or ask for missing things.
        OSError: the file cannot be written. Then nothing has been measured.
    """
    if "RANK" in os.environ:
        raise ValueError("tune starts its ranks by itself: without torchrun")
    fit.check_installed()
    gpu = on_cuda.current() if args.device == "cuda" else None
    args.ranks = args.ranks or DEFAULT_RANKS[args.device]
    machine = identity.of_this_machine(_C.wire_version)
    path = args.out or cache.file_of(machine)
    if not args.dry_run:
        cache.check_writable(path.parent)
    seconds = args.seconds or SECONDS * len(args.ranks)
    if seconds < LEAST_SECONDS * len(args.ranks) and not args.sizes:
        raise ValueError(
            f"--seconds {seconds:g}: give {LEAST_SECONDS:g} or more for each number of ranks"
        )
    found: list[Found] = []
    start = time.monotonic()
    for number, ranks in enumerate(args.ranks, 1):
        end = start + seconds * number / len(args.ranks) - _FITTING_S
        most_s = min(
            3 * seconds + _STARTING_S, (args.timeout or math.inf) + start - time.monotonic()
        )
        before = quiet.used()
        sizes = args.sizes or sizes_for(ranks, gpu.free_bytes if gpu else launch.free_memory())
        trial = on_cuda.measure(ranks, sizes, end) if gpu else _measured(ranks, sizes, end, most_s)
        if isinstance(trial, int):
            return trial
        turns_us = [[turn.median_us for turn in turns] for turns in trial.turns.values()]
        if ranks > machine.cores:  # they disturb each other
            turns_us = []
        disturbed = [] if gpu else quiet.disturbances(before, quiet.used(), turns_us)
        measured, fits = fitted(trial, ranks, machine.caches, _command(args, seconds), gpu)
        found.append(Found(measured, fits, tables.rows_for(measured, ranks), disturbed))
    busy = any(one.disturbed for one in found) and not args.even_if_busy
    kept = None if args.dry_run or busy else path
    if kept:
        for one in found:
            _keep(path, machine, one.measured, 0o644 if args.out else 0o600)
    output = options.Output(args.json)
    output.answer("\n".join(report(machine, one) for one in found))
    output.answer(f"# kept in {kept}" if kept else "# nothing was written")
    output.answer(f"# took {time.monotonic() - start:.0f} s of {seconds:g} (--seconds)")
    output.json(as_dict(machine, found, kept))
    if args.plot:
        curves.draw_fit([one.measured for one in found], str(machine), args.plot)
    if busy:
        print(
            "python -m ringkern tune: error: the machine was busy; run it while nothing else runs, "
            "or give --even-if-busy",
            file=sys.stderr,
        )
    return 1 if busy else 0


# ---- measuring ----------------------------------------------------------------------------------


def sizes_for(ranks: int, free_bytes: int) -> tuple[int, ...]:
    """Returns sizes in bytes, rising: as many as fit into a part of the free memory."""
    ratio = (LARGEST / SMALLEST) ** (1 / (SIZES - 1))
    # Whole elements for each of up to 16 ranks.
    sizes = [round(SMALLEST * ratio**i / 8) * 8 for i in range(SIZES)]
    most = _MEMORY_SHARE * free_bytes / ranks
    return tuple(size for size in dict.fromkeys(sizes) if size <= most)


def _measured(ranks: int, sizes: tuple[int, ...], end: float, limit_s: float) -> Trials | int:
    """Returns the measurements; or the exit status of the first rank that failed."""
    with tempfile.TemporaryDirectory(prefix="ringkern-") as folder:
        file = Path(folder) / "trials.json"
        given = (sizes, end, file)
        cores = int(launch.a_core_each(ranks))
        if status := launch.launch(ranks, limit_s, trials.measure, *given, cores=cores):
            return status
        return Trials.load(file.read_text())


# ---- fitting and keeping ------------------------------------------------------------------------


def fitted(
    found: Trials,
    ranks: int,
    caches: tuple[int, ...],
    command: str,
    gpu: on_cuda.Gpu | None = None,
) -> tuple[Measured, list[Fit]]:
    """Returns the cost of each way, and its error against the measurements.

    Args:
        caches: their bytes, for a CPU.
        gpu: the GPU of the measurements; ``None``: a CPU.
    """
    device = "cuda" if gpu else "cpu"
    bounds = (gpu.l2_bytes // ranks,) if gpu else caches  # which all ranks share
    ways: dict[tuple[str, Way], Fitted] = {}
    fits = []
    for collective in COLLECTIVES:
        for way in ways_of(collective, device):
            points = found.points(collective, way)
            cost = fit.fit(
                *(points, way, collective, ranks),
                base_us=found.base_us[collective],
                bounds=bounds,
                device=device,
            )
            ways[collective, way] = Fitted(cost, tuple(points))
            errors = fit.errors(cost, points, way, collective, ranks)
            fits.append(Fit(collective, way, len(points), errors))
    date = time.strftime("%Y-%m-%d")
    return Measured(device, ranks, date, command, ways, gpu.name if gpu else ""), fits


def _keep(path: Path, machine: identity.Identity, measured: Measured, mode: int) -> None:
    with cache.alone_in(path.parent):
        try:
            before = cache.read(path, machine)
        except (FileNotFoundError, tuning.TuningError):  # it is to be replaced
            before = Tuning(machine, ())
        cache.write(path, before.with_measured(measured), mode)
    tables.forget()


def _command(args: argparse.Namespace, seconds: float) -> str:
    sizes = f" --sizes {','.join(map(str, args.sizes))}" if args.sizes else ""
    ranks = ",".join(map(str, args.ranks))
    device = "" if args.device == "cpu" else f" --device {args.device}"
    return f"python -m ringkern tune{device} -n {ranks} --seconds {seconds:g}{sizes}"


# ---- reporting ----------------------------------------------------------------------------------


def report(machine: identity.Identity, found: Found) -> str:
    """Formats the result for one number of ranks, in lines."""
    measured = found.measured
    where = f" of one process on one {measured.gpu}" if measured.gpu else ""
    lines = [
        f"# {machine}; {measured.ranks} ranks{where}, {measured.date}: {measured.command}",
        "# error: of the fitted cost against what was measured",
        f"{'collective':<15}{'way':<17}{'sizes':>5}{'first us':>10}{'error':>8}{'95 %':>7}",
    ]
    for one in found.fits:
        at_first = measured.ways[one.collective, one.way].points[0][1]
        lines.append(
            f"{one.collective:<15}{one.way!s:<17}{one.points:>5}{at_first:>10.3f}"
            f"{one.errors.median:>8.1%}{one.errors.p95:>7.1%}"
        )
    median, p95 = overall(measured)
    close, of = choice_within(measured, found.lists["automatic"], 1.05)
    lines += [
        f"# all of them: median error {median:.1%}, 95th percentile {p95:.1%}",
        f"# auto: within 5 % of the quickest way at {close} of {of} sizes",
        *(f"{name}: {say(rows)}" for name, rows in found.lists.items()),
    ]
    lines += [f"# disturbed: {text}" for text in found.disturbed]
    if not measured.gpu and measured.ranks > machine.cores:
        lines.append(f"# {measured.ranks} ranks shared {machine.cores} cores: for such rings only")
    return "\n".join(lines)


def say(rows: tables.Rows) -> str:
    """Formats the rows of a list, in one line."""
    words = []
    for end, algorithm, protocol in rows:
        way = f"{algorithm}/{protocol}"
        words.append(f"{way} from there on" if end == ANY_SIZE else f"{way} below {end} B")
    return ", ".join(words).removesuffix(" from there on")


def overall(measured: Measured) -> tuple[float, float]:
    """Returns the median and the 95th percentile of the errors of all points of all ways."""
    found = sorted(
        abs(one.cost.time_us(way, collective, measured.ranks, size) / time_us - 1)
        for (collective, way), one in measured.ways.items()
        for size, time_us in one.points
    )
    return statistics.median(found), found[min(len(found) - 1, int(0.95 * len(found)))]


def choice_within(measured: Measured, rows: tables.Rows, most: float) -> tuple[int, int]:
    """Counts the sizes at which the chosen way took at most ``most`` times as long as the best.

    Returns that count and the number of all sizes, over the ways that may be chosen.
    """
    times: dict[int, dict[Way, float]] = {}
    for way in ways_of("all_reduce", measured.device):
        if not tables.may_be_unasked(way, measured.device):
            continue
        for size, time_us in measured.ways["all_reduce", way].points:
            times.setdefault(size, {})[way] = time_us
    close = [
        of.get(tables.way_of(rows, size), math.inf) <= most * min(of.values())
        for size, of in times.items()
    ]
    return sum(close), len(close)


def as_dict(machine: identity.Identity, found: list[Found], kept: Path | None) -> dict[str, Any]:
    """Returns the result as plain data."""
    content = json.loads(tuning.dump(Tuning(machine, tuple(one.measured for one in found))))
    for one, plain in zip(found, content["measured"]):
        plain["errors"] = [
            {"collective": f.collective, **f.way._asdict(), **f.errors._asdict()} for f in one.fits
        ]
        plain["median_error"], plain["p95_error"] = overall(one.measured)
        plain["lists"], plain["disturbed"] = one.lists, one.disturbed
    return {**content, "file": str(kept) if kept else None}


# ---- arguments ----------------------------------------------------------------------------------


def _ranks(text: str) -> tuple[int, ...]:
    if not all(part.isdecimal() and 2 <= int(part) <= 64 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers of ranks from 2 to 64, as 2,4")
    return tuple(sorted({int(part) for part in text.split(",")}))


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds above 0, to 3600")
    return number


def _sizes(text: str) -> tuple[int, ...]:
    if not all(part.isdecimal() and int(part) >= 8 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r}: give bytes from 8 on, with commas")
    return tuple(sorted({int(part) for part in text.split(",")}))
