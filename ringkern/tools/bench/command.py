"""``python -m ringkern bench``."""

from __future__ import annotations

import argparse

from ... import build_info
from ...config import ACCUMULATE, ALGORITHMS, DETERMINISTIC, PROTOCOLS
from ...units import parse_size, size_text
from .. import launch, options
from . import perf, report

DESCRIPTION = """\
Measures a collective for a range of sizes, ringkern and Gloo in turn, and prints the columns of
nccl-tests for each. Starts the ranks by itself, or joins those of torchrun."""

EPILOG = """\
Sizes are bytes, such as 8, 64K, 1M or 1G (K = 1024). The letters are those of nccl-tests, but for
-n: how often a size is measured follows from --seconds. Exits with 1 if a result of ringkern is
wrong. In a clone, `python -m bench.compare` measures beside MPI, oneCCL, DeepSpeed and vLLM."""

PEERS = ("gloo", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.epilog = EPILOG
    info = build_info()
    add = parser.add_argument
    add_measurement(parser)
    add("-d", "--datatype", default="float32", help=f"{', '.join(info['dtypes'])} (default: first)")
    add("-o", "--op", default="sum", choices=info["ops"], help="default sum")
    add("--deterministic", default="auto", choices=DETERMINISTIC, help="of ringkern's all_reduce")
    add("--accumulate", default="auto", choices=ACCUMULATE, help="of ringkern's all_reduce")
    add("--coll", default="all_reduce", choices=perf.COLLECTIVES, help="default all_reduce")
    add("--vs", type=_peer, default="gloo", metavar="PEER", help="gloo or none (default gloo)")
    options.add_timeout(parser, 900.0, own=True)
    options.add_json(parser)


def add_measurement(parser: argparse.ArgumentParser) -> None:
    """Adds the options that ``bench`` shares with ``bench.compare``: ranks, sizes, repeats."""
    add, whole = parser.add_argument, options.whole
    options.add_ranks(parser)
    add("-b", "--minbytes", type=parse_size, default=8, help="smallest size (default 8)")
    add("-e", "--maxbytes", type=parse_size, default=64 << 20, help="largest size (default 64M)")
    add("-f", "--stepfactor", type=whole(2), help="from size to size, times this (default 2)")
    add("-i", "--stepbytes", type=parse_size, help="from size to size, plus this; no -f then")
    add("-w", "--warmup", type=whole(0), default=1, help="calls a size before it (default 1)")
    add("-c", "--check", type=whole(0), default=1, help="calls a size to check (default 1)")
    add("--algo", default="auto", choices=ALGORITHMS, help="of ringkern's all_reduce")
    add("--proto", default="auto", choices=PROTOCOLS, help="of ringkern")
    add("--seconds", type=options.seconds, default=1.0, help="about, for a size (default 1)")
    add("--threads", type=whole(1), default=1, help="of each rank, a core each (default 1)")
    add("--rotate", type=parse_size, default=0, help="calls walk over this many bytes (default 0)")
    add(
        "--unpinned",
        action="store_true",
        help="leave ranks to the kernel, also where each has a core",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status.

    Raises:
        ValueError: the arguments do not fit together, or need more memory than there is.
        OSError: the ranks did not end, or a file cannot be written.
    """
    settings = _settings(args)
    given = (settings, report.machine(), args.command_line, args.json)
    cores = settings.threads if settings.pinned else 0
    return launch.run(args.ranks, args.timeout, report.bench_rank, *given, cores=cores)


def sizes_of(args: argparse.Namespace, ranks: int) -> tuple[int, ...]:
    """Returns the sizes in bytes that ``-b -e -f -i`` mean.

    Raises:
        ValueError: they do not fit together, or the ranks' tensors need more memory than is free.
    """
    if not 0 < args.minbytes <= args.maxbytes:
        raise ValueError(f"-b {args.minbytes} -e {args.maxbytes}: need 0 < minbytes <= maxbytes")
    if args.stepbytes is not None and (args.stepfactor or not args.stepbytes):
        raise ValueError("-i: give a number of bytes above 0, and no -f")
    if args.stepbytes:
        sizes = tuple(range(args.minbytes, args.maxbytes + 1, args.stepbytes))
    else:
        sizes = perf.geometric_sizes(args.minbytes, args.maxbytes, args.stepfactor or 2)
    needed = ranks * max(args.rotate, sizes[-1])
    launch.check_memory(ranks, needed, f"-e {size_text(args.maxbytes)}", "-e, --rotate or -n")
    return sizes


def is_pinned(args: argparse.Namespace, ranks: int) -> bool:
    """Tells if each rank keeps to cores of its own."""
    return not args.unpinned and launch.a_core_each(ranks * args.threads)


def _settings(args: argparse.Namespace) -> perf.Settings:
    ranks = launch.ranks_here(args.ranks)
    return perf.Settings(
        sizes=sizes_of(args, ranks),
        collective=args.coll,
        dtype=options.dtype_of(args.datatype, build_info()["dtypes"]),
        op=args.op,
        protocol=args.proto,
        algorithm=args.algo,
        deterministic=args.deterministic,
        accumulate=args.accumulate,
        gloo=args.vs == "gloo",
        warmup=args.warmup,
        check=args.check,
        seconds=args.seconds,
        rotate=args.rotate,
        threads=args.threads,
        pinned=is_pinned(args, ranks),
    )


def _peer(text: str) -> str:
    if text == "nccl":
        raise argparse.ArgumentTypeError(
            "'nccl': needs GPUs, and these are calls on a CPU; `make gpu` measures beside NCCL"
        )
    if text not in PEERS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: choose gloo or none; other libraries: `python -m bench.compare` in a clone"
        )
    return text
