"""The command line: ``python -m ringkern bench`` and ``python -m ringkern info``."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from . import build_info, launch, perf, report

# nccl-tests' names of dtypes that torch calls otherwise.
DTYPE_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}

BENCH_DESCRIPTION = """\
Measures a collective for a range of sizes, ringkern and Gloo in turn, and prints the columns of
nccl-tests for each. Starts the ranks by itself, or joins those of torchrun."""

BENCH_EPILOG = """\
Sizes are bytes, as 8, 64K, 1M or 1G (K = 1024). Exits with 1 if a result is wrong."""


def parse_size(text: str) -> int:
    """Bytes from a number with an optional unit: ``"8"``, ``"64K"``, ``"1M"``, ``"2GiB"``.

    The units are powers of 1024, as in nccl-tests.

    Raises:
        argparse.ArgumentTypeError: anything else; the text says what is accepted.
    """
    match = re.fullmatch(r"(\d+)([KMG]?)(?:I?B)?", text.strip().upper())
    if not match:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size: give a number of bytes with or without K, M or G, as 64K"
        )
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def _whole(minimum: int) -> Any:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from {minimum} on")
        return int(text)

    return parse


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds above 0")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m ringkern", description="ringkern's tools.")
    commands = parser.add_subparsers(dest="tool", required=True)
    commands.add_parser("info", help="how ringkern was built, and what it found")
    bench = commands.add_parser(
        "bench",
        help="measure a collective, next to Gloo",
        description=BENCH_DESCRIPTION,
        epilog=BENCH_EPILOG,
    )
    info = build_info()
    add = bench.add_argument
    add("-n", "--ranks", type=_whole(1), default=2, help="ranks to start (default 2)")
    add("-b", "--minbytes", type=parse_size, default=8, help="smallest size (default 8)")
    add("-e", "--maxbytes", type=parse_size, default=64 << 20, help="largest size (default 64M)")
    add("-f", "--stepfactor", type=_whole(2), help="from size to size, times this (default 2)")
    add("-i", "--stepbytes", type=parse_size, help="from size to size, plus this; no -f then")
    add("-w", "--warmup", type=_whole(0), default=1, help="calls a size before it (default 1)")
    add("-c", "--check", type=_whole(0), default=1, help="calls a size to check (default 1)")
    add("-d", "--datatype", default="float32", help=f"{', '.join(info['dtypes'])} (default: first)")
    add("-o", "--op", default="sum", choices=info["ops"], help="default sum")
    add("--proto", default="auto", choices=["auto", *info["protocols"]], help="of ringkern")
    add("--vs", default="gloo", choices=["gloo", "none"], help="what to compare with")
    add("--coll", default="all_reduce", choices=perf.COLLECTIVES, help="default all_reduce")
    add("--seconds", type=_positive, default=1.0, help="about how long a size takes (default 1)")
    add("--rotate", type=parse_size, default=0, help="calls walk over this many bytes (default 0)")
    add("--timeout", type=_positive, default=900.0, help="for it all, in s (default 900)")
    add("-J", "--json", type=Path, metavar="FILE", help="write all that was measured there")
    return parser


def _settings(args: argparse.Namespace) -> perf.Settings:
    """The settings that the arguments mean; ValueError where they do not fit together."""
    dtype = DTYPE_ALIASES.get(args.datatype, args.datatype)
    dtypes = build_info()["dtypes"]
    if dtype not in dtypes:
        raise ValueError(f"-d {args.datatype}: choose one of {', '.join(dtypes)}")
    if not 0 < args.minbytes <= args.maxbytes:
        raise ValueError(f"-b {args.minbytes} -e {args.maxbytes}: need 0 < minbytes <= maxbytes")
    if args.stepbytes is not None and (args.stepfactor or not args.stepbytes):
        raise ValueError("-i: give a number of bytes above 0, and no -f")
    if args.json and not args.json.absolute().parent.is_dir():
        raise ValueError(f"-J {args.json}: there is no such directory")
    return perf.Settings(
        sizes=tuple(range(args.minbytes, args.maxbytes + 1, args.stepbytes))
        if args.stepbytes
        else perf.geometric_sizes(args.minbytes, args.maxbytes, args.stepfactor or 2),
        collective=args.coll,
        dtype=dtype,
        op=args.op,
        protocol=args.proto,
        gloo=args.vs == "gloo",
        warmup=args.warmup,
        check=args.check,
        seconds=args.seconds,
        rotate=args.rotate,
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.tool == "info":
        for key, value in build_info().items():
            print(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
        return 0
    try:
        settings = _settings(args)
    except ValueError as error:
        parser.error(str(error))
    given = (settings, f"python -m ringkern {shlex.join(arguments)}", args.json)
    if "RANK" in os.environ:  # torchrun's
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        launch.in_group(rank, ranks, "env://", args.timeout, report.bench_rank, *given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the ranks end with this process
    return launch.launch(args.ranks, args.timeout, report.bench_rank, *given)


if __name__ == "__main__":
    sys.exit(main())
