"""``python -m ringkern explain``."""

from __future__ import annotations

import argparse

from .. import _C, config
from ..choose import tables
from ..choose.explain.answer import explain
from ..choose.explain.explanation import Explanation
from ..choose.tuning import COLLECTIVES, LIKE
from ..units import parse_size, say_size, say_time
from . import curves, options

DESCRIPTION = """\
Says how a collective would be run: algorithm, protocol, how it is cut, the time that is predicted,
and what the other ways would take. Without a size: the choice over all sizes. Needs no ranks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add("sizes", nargs="*", type=parse_size, metavar="SIZE", help="bytes, as 8, 64K or 1M")
    add("-n", "--ranks", type=options.whole(1), default=2, help="number of ranks (default 2)")
    add("--device", default="cpu", choices=tables.DEVICES, help="default cpu")
    add("-d", "--datatype", default="float32", help="default float32")
    add("--coll", default="all_reduce", choices=(*COLLECTIVES, *LIKE), help="default all_reduce")
    add("--algo", default="auto", choices=config.ALGORITHMS, help="as a caller would ask for it")
    add("--proto", default="auto", choices=config.PROTOCOLS, help="as a caller would ask for it")
    add("--deterministic", default="auto", choices=config.DETERMINISTIC, help="the same")
    add("--accumulate", default="auto", choices=config.ACCUMULATE, help="the same")
    add("--plot", type=options.picture, metavar="FILE", help="draw times; needs matplotlib")
    options.add_timeout(parser, 600.0)
    options.add_json(parser, sizes=True)


def run(args: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status.

    Raises:
        ValueError: the arguments do not fit together; the text says how.
    """
    dtype = options.dtype_of(args.datatype, _C.build_info()["dtypes"])
    found = [
        explain(
            args.device,
            args.ranks,
            size,
            dtype=dtype,
            collective=args.coll,
            algorithm=args.algo,
            protocol=args.proto,
            deterministic=args.deterministic,
            accumulate=args.accumulate,
        )
        for size in args.sizes or [1 << shift for shift in range(3, 29)]
    ]
    output = options.Output(args.json)
    output.answer("\n\n".join(map(str, found)) if args.sizes else overview(found))
    output.json([one.as_dict() for one in found])
    if args.plot:
        curves.draw_explanation(found[0], args.plot)
    return 0


def overview(found: list[Explanation]) -> str:
    """Returns a line for each size, and the sizes at which the choice changes."""
    first = found[0]
    lines = [
        f"# {first.collective} {first.dtype}, {first.ranks} ranks on {first.device}; "
        f"times: {first.source}",
        f"{'size':>8}  {'way':<17}{'time':>10}{'bus GB/s':>10}  next best",
    ]
    for one in found:
        bandwidth = f"{one.bus_gb_s:.3g}" if one.bus_gb_s else "-"
        others = [c for c in one.candidates[1:] if c.ratio is not None]
        best = f"{others[0].way}, {others[0].ratio:.2f} times as long" if others else "-"
        lines.append(
            f"{say_size(one.nbytes):>8}  {one.way!s:<17}{say_time(one.time_us):>10}"
            f"{bandwidth:>10}  {best}"
        )
    lines += [f"# from {size} B on: {way}" for size, way in first.crossovers]
    if not any(way.startswith("ring/") for _, way in first.crossovers):
        lines.append("# round the ring: at no size")
    return "\n".join(lines)
