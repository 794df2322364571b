"""``python -m ringkern model``: its arguments, and predictions as text, JSON, curves or costs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ...choose import cache
from ...choose.identity import Identity
from ...choose.tuning import COLLECTIVES, Fitted, Measured, Tuning, ways_of
from ...units import parse_size, size_text
from .. import figures, options
from ..tune import fit
from . import constants, measured, one_gpu, published, question, sockets, sweep
from .estimate import HIERARCHY, WAYS, Estimate
from .question import Question, finite, questions_of

DEFAULT_SIZES = tuple(1 << shift for shift in range(10, 31, 2))
ONE_GPU_SIZES = tuple(1 << shift for shift in (13, 16, 18, 20, 22, 24, 26, 28))
FITTED_SIZES = tuple(1 << shift for shift in range(3, 29))
Rows = list[tuple[int, list[Estimate]]]

DESCRIPTION = """\
Predicts the time and bandwidth of all-reduce: of ranks that share one GPU, by every way of
ringkern; on one host or on many, with GPUs or without, and from which size on several hosts are
best joined by the hierarchy: the ring inside each, another engine of torch.distributed between
them."""

EPILOG = """\
Times of ranks that share a GPU (--device cuda, --gpu H200) follow from the instructions of
ringkern's kernels and from limits that were measured on an H100; --check compares them with what
`make gpu` measured. Times of several GPUs follow NCCL's published constants for its rings and
trees, over the rings that are found on the machine's links; between GPUs nothing was measured:
--published says how far the same formulas are from what others measured. Without GPUs times follow
what ringkern measured inside a host, and Gloo between hosts; with --threads or --sockets the passes
of ringkern, DeepSpeed and vLLM over caches, memory and the link between sockets. No GPU is needed.\
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.epilog = EPILOG
    question.add_arguments(parser)
    add = parser.add_argument
    add("--sizes", help="bytes, as 8K,1M,1G (default 1K to 1G; on one GPU 8K to 256M)")
    add(
        "--sweep",
        action="store_true",
        help=f"for {sweep.HOSTS[0]} to {sweep.HOSTS[-1]} hosts: where the hierarchy is the fastest",
    )
    add("--plot", type=options.picture, metavar="FILE", help="draw times; needs matplotlib")
    add(
        "--published",
        action="store_true",
        help="compare with times of NCCL that were published; with --device cpu, of DeepSpeed",
    )
    add(
        "--check",
        type=Path,
        metavar="FILE",
        help="compare with times of ranks on one GPU in a summary.json of `make gpu`, or a file of "
        "bench/results",
    )
    add(
        "--write",
        type=options.new_file,
        metavar="FILE",
        help="write the costs of all ways of ranks on one GPU, fitted to predictions",
    )
    options.add_timeout(parser, 600.0)
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status.

    Raises:
        ValueError: the arguments do not fit together or do not fit the machine.
    """
    output = options.Output(args.json)
    if args.published:
        times = sockets if args.device == "cpu" else published
        output.answer(times.as_text())
        output.json({"rows": times.as_rows(), "median_error": times.median_error()})
        return 0
    if args.check:
        gpu, compared = measured.read(args.check)
        output.answer(measured.as_text(gpu, compared))
        output.json(measured.as_dict(gpu, compared))
        return 0
    every = questions_of(args)
    if args.write:
        if every[0].floor_us is None or args.ranks or args.sizes or args.plot:
            raise ValueError("--write is of one GPU, all ranks and sizes: give --gpu alone")
        fit.check_installed()
        gpu = one_gpu.GPUS[every[0].name]
        cache.write(args.write, tuning_of(gpu), 0o644)
        output.answer(f"# costs of ranks on one {gpu.name}, predicted: {args.write}")
        output.json({"file": str(args.write)})
        return 0
    if args.sweep:
        asked = every[0]
        if args.plot or args.sizes:
            raise ValueError("--sweep looks at all sizes, and draws nothing: leave out the others")
        found = sweep.by_hosts(asked.predict, asked.device)
        output.answer(_sweep_text(asked, found))
        output.json({**_about(asked), "sweep": [row._asdict() for row in found]})
        return 0
    if args.plot and len(every) > 1:
        raise ValueError("--plot draws one number of ranks: give -n, too")
    sizes = _sizes(args.sizes, DEFAULT_SIZES if every[0].floor_us is None else ONE_GPU_SIZES)
    tables = [
        (asked, [(size, asked.predict(asked.hosts, size)) for size in sizes]) for asked in every
    ]
    if args.plot:
        plot(*tables[0], args.plot)
    output.answer("\n\n".join(as_text(*table) for table in tables))
    content = [as_dict(*table) for table in tables]
    output.json(content[0] if len(content) == 1 else {"tables": content})
    return 0


def tuning_of(gpu: one_gpu.Gpu) -> Tuning:
    """Fits costs to predictions, as ``tune`` fits them to times; without the points.

    A reduce-scatter and an all-gather are assumed to take half of an all-reduce each, except for
    the launch: half of its steps.
    """
    about = ("predicted", "python -m ringkern model")
    found = []
    for ranks in one_gpu.RANKS:
        ways = {}
        for name in COLLECTIVES:
            share = 1.0 if name == "all_reduce" else 0.5
            for way in ways_of(name, "cuda"):
                terms = [one_gpu.predict(gpu, way, ranks, size) for size in FITTED_SIZES]
                times = [gpu.launch_us + share * (t.time_us - gpu.launch_us) for t in terms]
                cost = fit.fit(
                    *(list(zip(FITTED_SIZES, times)), way, name, ranks),
                    base_us=gpu.launch_us,
                    device="cuda",
                )
                ways[name, way] = Fitted(cost)
        found.append(Measured("cuda", ranks, *about, ways, gpu.name))
    return Tuning(Identity("none", 1, (), (gpu.name,), 0), tuple(found))


def _sizes(text: str | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if text is None:
        return default
    try:
        sizes = tuple(parse_size(part) for part in text.split(","))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--sizes: {error}") from None
    if not all(sizes):
        raise ValueError(f"--sizes {text}: give sizes above 0")
    return sizes


def _columns(rows: Rows) -> list[str]:
    """Returns the names of columns: the protocols for one host; otherwise the ways."""
    found = {name for estimate in rows[0][1] for name in (estimate.way, estimate.protocol)}
    ways = (*WAYS, *map(str, one_gpu.WAYS), *sockets.LIBRARIES)
    return [name for name in (constants.PROTOCOLS if "ring" in found else ways) if name in found]


def _fastest(found: list[Estimate], column: str) -> Estimate:
    """Returns the first estimate of a column, which is the fastest."""
    return next(e for e in found if column in (e.way, e.protocol))


def as_text(asked: Question, rows: Rows) -> str:
    """Returns a table of times in microseconds; the fastest is marked."""
    lines = [*asked.head, ""]
    columns = _columns(rows)
    widths = [max(10, len(column) + 1) for column in columns]
    names = "".join(f" {column:>{width}}" for column, width in zip(columns, widths))
    cut = f"{'rails':>7}{'pieces':>8}" if asked.hosts > 1 else ""
    last = f"   {'fastest':<32}{'bus GB/s':>9}" if asked.floor_us is None else f"{'share':>9}"
    lines.append(f"{'size':>6}{names}{cut}{last}")
    for size, found in rows:
        best = found[0]
        line = f"{size_text(size):>6}"
        for column, width in zip(columns, widths):
            estimate = _fastest(found, column)
            mark = "*" if estimate is best else " "
            line += f" {estimate.time_us:>{width - 1}.1f}{mark}"
        if cut:
            own = _fastest(found, HIERARCHY)
            line += f"{own.rails:>7}{own.pieces:>8}"
        fastest = ", ".join(filter(None, (best.way, best.protocol)))
        if asked.floor_us is None:
            line += f"   {fastest:<32}{best.bus_gb_s:>9.1f}"
        else:
            line += f"{asked.floor_us(size) / best.time_us:>9.0%}"
        lines.append(line)
    if asked.foot:
        lines += ["", "Times in microseconds, predicted; * the fastest."]
    if asked.hosts > 1:
        lines += _where_faster(asked)
    return "\n".join([*lines, *asked.foot])


def _where_faster(asked: Question) -> list[str]:
    found = sweep.faster(asked.predict, asked.device, asked.hosts)
    return [f"The hierarchy is faster than {_the(way)}: {sweep.say(found[way])}." for way in found]


def _the(way: str) -> str:
    return f"the {way}"


def _sweep_text(asked: Question, found: list[sweep.Row]) -> str:
    return "\n".join(
        [
            asked.head[0],
            "",
            "Where the hierarchy is faster than",
            sweep.as_text(found, asked.ranks),
            "",
            "Predicted, of 8 bytes to 4G.",
            *asked.foot,
        ]
    )


def _about(asked: Question) -> dict[str, Any]:
    return {"device": asked.device, **asked.about}


def as_dict(asked: Question, rows: Rows) -> dict[str, Any]:
    """Returns all results; infinite numbers become null."""
    content = {
        **_about(asked),
        "rows": [
            {
                "nbytes": size,
                **({} if asked.floor_us is None else {"floor_us": asked.floor_us(size)}),
                "estimates": [_plain(estimate) for estimate in every],
            }
            for size, every in rows
        ],
    }
    if asked.hosts > 1:
        content["faster"] = sweep.faster(asked.predict, asked.device, asked.hosts)
    return content


def _plain(estimate: Estimate) -> dict[str, Any]:
    return {**estimate._asdict(), "bus_gb_s": finite(estimate.bus_gb_s)}


def plot(asked: Question, rows: Rows, file: Path) -> None:
    """Draws the times of all ways, by size; needs matplotlib."""
    figure, [[panel]] = figures.panels(1, 1, (7.2, 5.2))
    for number, column in enumerate(_columns(rows)):
        points = [(size, _fastest(found, column)) for size, found in rows]
        panel.plot(
            [size for size, _ in points],
            [estimate.time_us for _, estimate in points],
            color=f"C{number}",
            label=column,
        )
    hosts = f"{asked.hosts} x " if asked.hosts > 1 else ""
    title = f"all-reduce, {hosts}{asked.name}, predicted"
    figures.over_sizes(panel, [size for size, _ in rows], title)
    panel.legend(fontsize="small")
    figures.save(figure, file, [*asked.head, *asked.foot])
