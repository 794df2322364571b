"""The command line: ``python -m ringkern bench``, ``explain``, ``tune``, ``model``, ``peers`` and
``info``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from . import build_info, explain, launch, perf, report, scale
from .config import ACCUMULATE, ALGORITHMS, DETERMINISTIC, PROTOCOLS
from .peers.catalogue import check_names
from .peers.install import PEERS, default_folder
from .peers.install import main as install_peers
from .tuner import tune
from .units import DTYPE_ALIASES, parse_size

BENCH_DESCRIPTION = """\
Measures a collective for a range of sizes, ringkern and Gloo in turn, and prints the columns of
nccl-tests for each. Starts the ranks by itself, or joins those of torchrun. With other peers, or
with --modes, it measures float sums of all_reduce: every contender in processes of its own, in turn
call block by call block, and beside them what bare data movement costs."""

BENCH_EPILOG = """\
Sizes are bytes, as 8, 64K, 1M or 1G (K = 1024). Exits with 1 if a result of ringkern is wrong."""

MODES = ("py", "c")

# Each has DESCRIPTION, add_arguments(parser) and run(args), which raises ValueError for arguments
# that do not fit together and OSError for files.
TOOLS: dict[str, tuple[Any, str]] = {
    "explain": (explain, "which way calls go here, and why"),
    "tune": (tune, "measure this machine, so that auto goes the quickest way"),
    "model": (scale, "what to expect of a machine that is not here"),
}


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
    add("--algo", default="auto", choices=ALGORITHMS, help="of ringkern's all_reduce")
    add("--proto", default="auto", choices=PROTOCOLS, help="of ringkern")
    add("--deterministic", default="auto", choices=DETERMINISTIC, help="of ringkern's all_reduce")
    add("--accumulate", default="auto", choices=ACCUMULATE, help="of ringkern's all_reduce")
    add(
        "--vs",
        type=_names,
        default=["gloo"],
        metavar="PEERS",
        help=f"what to compare with: none, or of {', '.join(PEERS)}, with commas (default gloo)",
    )
    add("--modes", type=_modes, help="py: calls from Python; c: a loop in C (default py,c)")
    add("--plot", type=Path, metavar="FILE", help="draw the times there; needs matplotlib")
    add("--install", action="store_true", help="get those peers first, as `peers install` does")
    add(
        "--dir",
        type=Path,
        default=default_folder(),
        help="where the peers are (default %(default)s)",
    )
    add("--coll", default="all_reduce", choices=perf.COLLECTIVES, help="default all_reduce")
    add("--seconds", type=_positive, default=1.0, help="about how long a size takes (default 1)")
    add("--rotate", type=parse_size, default=0, help="calls walk over this many bytes (default 0)")
    add("--timeout", type=_positive, default=900.0, help="for it all, in s (default 900)")
    add("-J", "--json", type=Path, metavar="FILE", help="write all that was measured there")
    for name, (module, text) in TOOLS.items():
        module.add_arguments(commands.add_parser(name, help=text, description=module.DESCRIPTION))
    peers = commands.add_parser("peers", help="get what to compare with from PyPI")
    peers.add_argument("action", choices=["install"])
    what = f"of {', '.join(PEERS)}; default: all"
    peers.add_argument("names", nargs="*", type=_peer, help=what)
    peers.add_argument("--dir", type=Path, default=default_folder(), help="default %(default)s")
    return parser


def _peer(text: str) -> str:
    if text not in PEERS:
        raise argparse.ArgumentTypeError(f"{text!r}: choose of {', '.join(PEERS)}")
    return text


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if names == ["none"]:
        return []
    try:
        check_names(names)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return list(dict.fromkeys(names))


def _modes(text: str) -> tuple[str, ...]:
    modes = tuple(mode for mode in MODES if mode in text.split(","))
    if not modes or set(text.split(",")) - set(MODES):
        raise argparse.ArgumentTypeError(f"{text!r}: choose py, c, or py,c")
    return modes


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
        algorithm=args.algo,
        deterministic=args.deterministic,
        accumulate=args.accumulate,
        gloo=args.vs == ["gloo"],
        warmup=args.warmup,
        check=args.check,
        seconds=args.seconds,
        rotate=args.rotate,
    )


def _is_contest(args: argparse.Namespace) -> bool:
    """Whether every contender is to have processes of its own."""
    return bool(args.modes or args.plot or args.install) or args.vs not in ([], ["gloo"])


def _contest(args: argparse.Namespace, settings: perf.Settings, command: str) -> int:
    """Measures peers; ValueError where the arguments do not fit together."""
    if "RANK" in os.environ:
        raise ValueError(f"--vs {','.join(args.vs)}: starts its ranks by itself, without torchrun")
    if (settings.collective, settings.op) != ("all_reduce", "sum"):
        raise ValueError(f"--vs {','.join(args.vs)}: is for all_reduce with op sum")
    if (settings.deterministic, settings.accumulate) != ("auto", "auto"):
        raise ValueError(
            "--deterministic, --accumulate: without --modes, and with --vs gloo or none"
        )
    for module, needed in (("numpy", True), ("matplotlib", bool(args.plot))):
        if needed and importlib.util.find_spec(module) is None:
            raise ValueError(f"{module} is not installed: pip install 'ringkern[bench]'")
    if args.plot and not args.plot.absolute().parent.is_dir():
        raise ValueError(f"--plot {args.plot}: there is no such directory")
    from .peers import memory, rows, table

    if settings.dtype not in memory.ITEMSIZE:
        raise ValueError(f"-d {settings.dtype}: choose of {', '.join(memory.ITEMSIZE)}")
    if args.install:
        install_peers([name for name in PEERS if name in _peers_of(args.vs)], args.dir)
    asked = rows.Settings(
        sizes=settings.sizes,
        ranks=args.ranks,
        dtype=settings.dtype,
        modes=args.modes or MODES,
        rotate=settings.rotate,
        check=bool(settings.check),
        warmup=settings.warmup,
        seconds=settings.seconds,
        timeout_s=args.timeout,
    )
    way = (args.algo, args.proto)
    return table.bench(asked, args.vs, args.dir, *way, command, args.json, args.plot)


def _peers_of(names: list[str]) -> set[str]:
    return {name.split(":")[0] for name in names}


def _run(tool: str, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        status: int = TOOLS[tool][0].run(args)
        return status
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        print(f"python -m ringkern {tool}: error: {error}", file=sys.stderr)
        return 1


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.tool == "info":
        for key, value in build_info().items():
            print(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
        return 0
    if args.tool in TOOLS:
        return _run(args.tool, args, parser)
    if args.tool == "peers":
        return install_peers(args.names or list(PEERS), args.dir)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the ranks end with this process
    command = f"python -m ringkern {shlex.join(arguments)}"
    try:
        settings = _settings(args)
        if _is_contest(args):
            return _contest(args, settings, command)
    except ValueError as error:
        parser.error(str(error))
    given = (settings, command, args.json)
    if "RANK" in os.environ:  # torchrun's
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        launch.in_group(rank, ranks, "env://", args.timeout, report.bench_rank, *given)
    return launch.launch(args.ranks, args.timeout, report.bench_rank, *given)


if __name__ == "__main__":
    sys.exit(main())
