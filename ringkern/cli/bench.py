"""``python -m ringkern bench``."""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path

from .. import build_info, launch, options, perf, report
from ..config import ACCUMULATE, ALGORITHMS, DETERMINISTIC, PROTOCOLS
from ..peers.catalogue import check_names
from ..peers.install import PEERS, Folder, Installer, default_folder
from ..units import parse_size, size_text

DESCRIPTION = """\
Measures a collective for a range of sizes, ringkern and Gloo in turn, and prints the columns of
nccl-tests for each. Starts the ranks by itself, or joins those of torchrun. With other peers, or
with --modes, it measures float sums of all_reduce: every contender in processes of its own, in turn
call block by call block, and beside them what bare data movement costs."""

EPILOG = """\
Sizes are bytes, as 8, 64K, 1M or 1G (K = 1024). The letters are those of nccl-tests, but for -n:
how often a size is measured follows from --seconds. Exits with 1 if a result of ringkern is
wrong."""

MODES = ("py", "c")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = EPILOG
    info = build_info()
    add, whole = parser.add_argument, options.whole
    options.add_ranks(parser)
    add("-b", "--minbytes", type=parse_size, default=8, help="smallest size (default 8)")
    add("-e", "--maxbytes", type=parse_size, default=64 << 20, help="largest size (default 64M)")
    add("-f", "--stepfactor", type=whole(2), help="from size to size, times this (default 2)")
    add("-i", "--stepbytes", type=parse_size, help="from size to size, plus this; no -f then")
    add("-w", "--warmup", type=whole(0), default=1, help="calls a size before it (default 1)")
    add("-c", "--check", type=whole(0), default=1, help="calls a size to check (default 1)")
    add("-d", "--datatype", default="float32", help=f"{', '.join(info['dtypes'])} (default: first)")
    add("-o", "--op", default="sum", choices=info["ops"], help="default sum")
    add("--algo", default="auto", choices=ALGORITHMS, help="of ringkern's all_reduce")
    add("--proto", default="auto", choices=PROTOCOLS, help="of ringkern")
    add("--deterministic", default="auto", choices=DETERMINISTIC, help="of ringkern's all_reduce")
    add("--accumulate", default="auto", choices=ACCUMULATE, help="of ringkern's all_reduce")
    add("--coll", default="all_reduce", choices=perf.COLLECTIVES, help="default all_reduce")
    add(
        "--vs",
        type=_names,
        default=["gloo"],
        metavar="PEERS",
        help=f"what to compare with: none, or of {', '.join(PEERS)}, with commas (default gloo)",
    )
    add("--modes", type=_modes, help="py: calls from Python; c: a loop in C (default py,c)")
    add("--install", action="store_true", help="get those peers first, as `peers install` does")
    add(
        "--dir",
        type=Path,
        default=default_folder(),
        help="where the peers are (default %(default)s)",
    )
    add("--seconds", type=options.seconds, default=1.0, help="about, for a size (default 1)")
    add("--rotate", type=parse_size, default=0, help="calls walk over this many bytes (default 0)")
    add(
        "--unpinned",
        action="store_true",
        help="leave ranks to the kernel, also where each has a core",
    )
    add("--plot", type=options.picture, metavar="FILE", help="draw the times; needs matplotlib")
    options.add_timeout(parser, 900.0, own=True)
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; the exit status.

    Raises:
        ValueError: the arguments do not fit together, or need more memory than there is.
        OSError: the ranks did not end, or a file cannot be written.
    """
    if _is_contest(args) and "RANK" in os.environ:
        raise ValueError(f"--vs {','.join(args.vs)}: starts its ranks by itself, without torchrun")
    settings = _settings(args)
    if _is_contest(args):
        return _contest(args, settings)
    given = (settings, report.machine(), args.command_line, args.json)
    return launch.run(args.ranks, args.timeout, report.bench_rank, *given, pinned=settings.pinned)


def _settings(args: argparse.Namespace) -> perf.Settings:
    """The settings that the arguments mean; ValueError where they do not fit together."""
    if not 0 < args.minbytes <= args.maxbytes:
        raise ValueError(f"-b {args.minbytes} -e {args.maxbytes}: need 0 < minbytes <= maxbytes")
    if args.stepbytes is not None and (args.stepfactor or not args.stepbytes):
        raise ValueError("-i: give a number of bytes above 0, and no -f")
    ranks = launch.ranks_here(args.ranks)
    settings = perf.Settings(
        sizes=tuple(range(args.minbytes, args.maxbytes + 1, args.stepbytes))
        if args.stepbytes
        else perf.geometric_sizes(args.minbytes, args.maxbytes, args.stepfactor or 2),
        collective=args.coll,
        dtype=options.dtype_of(args.datatype, build_info()["dtypes"]),
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
        pinned=not args.unpinned and launch.a_core_each(ranks),
    )
    needed = ranks * max(settings.rotate, settings.sizes[-1])
    launch.check_memory(ranks, needed, f"-e {size_text(args.maxbytes)}", "-e, --rotate or -n")
    return settings


def _is_contest(args: argparse.Namespace) -> bool:
    """Tells if every contender has processes of its own."""
    return bool(args.modes or args.plot or args.install) or args.vs not in ([], ["gloo"])


def _contest(args: argparse.Namespace, settings: perf.Settings) -> int:
    """Measures peers; ValueError where the arguments do not fit together."""
    if (settings.collective, settings.op) != ("all_reduce", "sum"):
        raise ValueError(f"--vs {','.join(args.vs)}: is for all_reduce with op sum")
    if (settings.deterministic, settings.accumulate) != ("auto", "auto"):
        raise ValueError(
            "--deterministic, --accumulate: without --modes, and with --vs gloo or none"
        )
    if importlib.util.find_spec("numpy") is None:
        raise ValueError("numpy is not installed: pip install numpy")
    from ..peers import memory, rows, table

    if settings.dtype not in memory.ITEMSIZE:
        raise ValueError(f"-d {settings.dtype}: choose of {', '.join(memory.ITEMSIZE)}")
    output = options.Output(args.json)
    if args.install:
        installer = Installer(Folder(args.dir), output.say)
        installer.install_all([name for name in PEERS if name in _peers_of(args.vs)])
    asked = rows.Settings(
        sizes=settings.sizes,
        ranks=launch.number_of_ranks(args.ranks),
        dtype=settings.dtype,
        modes=args.modes or MODES,
        rotate=settings.rotate,
        check=bool(settings.check),
        warmup=settings.warmup,
        seconds=settings.seconds,
        pinned=settings.pinned,
        timeout_s=args.timeout,
    )
    way = (args.algo, args.proto)
    return table.bench(asked, args.vs, args.dir, *way, args.command_line, output, args.plot)


def _peers_of(names: list[str]) -> set[str]:
    return {name.split(":")[0] for name in names}


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
