"""``python -m bench.compare``: ringkern beside other libraries' all-reduce, on one machine."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ringkern.tools import launch, options
from ringkern.tools.bench.command import add_measurement, is_pinned, sizes_of

from . import catalogue, memory, rows, table
from .install import PEERS, Folder, Installer, default_folder

DESCRIPTION = """\
Measures float sums of all_reduce: ringkern, other libraries, and bare data movement, each in
processes of its own, in turn call block by call block. `install` installs those libraries from PyPI
and compiles their loops, an environment for each group of them: about 2.5 GB for all; what is there
already is kept. `list` tells which are there."""

EPILOG = """\
Sizes are bytes, such as 8, 64K, 1M or 1G (K = 1024). Exits with 1 if a result of ringkern is wrong,
or a library could not be installed."""

MODES = ("py", "c")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("action", nargs="?", default="run", choices=["run", "install", "list"], help="default run")
    add(
        "--vs",
        type=_names,
        default=list(PEERS),
        metavar="PEERS",
        help=f"what to compare with: none, or of {', '.join(PEERS)}, with commas (default: all)",
    )
    add_measurement(parser)
    add("-d", "--datatype", default="float32", help=f"{', '.join(memory.ITEMSIZE)} (default first)")
    add("--modes", type=_modes, default=MODES, help="py: calls from Python; c: a loop in C")
    add("--dir", type=Path, default=default_folder(), help="of the libraries (%(default)s)")
    add("--plot", type=options.picture, metavar="FILE", help="draw the times; needs matplotlib")
    options.add_timeout(parser, 3600.0, own=True)
    options.add_json(parser, ("run", "install", "list"))


def run(args: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status.

    Raises:
        ValueError: the arguments do not fit together, or need more memory than there is.
        OSError: the ranks did not end, or a file cannot be written.
    """
    output = options.Output(args.json)
    if args.action == "install":
        return _install(args, output)
    if args.action == "list":
        return _list(args, output)
    if "RANK" in os.environ:
        raise ValueError("starts its ranks by itself, without torchrun")
    ranks = launch.number_of_ranks(args.ranks)
    settings = rows.Settings(
        sizes=sizes_of(args, ranks),
        ranks=ranks,
        dtype=options.dtype_of(args.datatype, list(memory.ITEMSIZE)),
        modes=args.modes,
        rotate=args.rotate,
        check=bool(args.check),
        warmup=args.warmup,
        seconds=args.seconds,
        pinned=is_pinned(args, ranks),
        threads=args.threads,
        timeout_s=args.timeout,
    )
    way = (args.algo, args.proto)
    return table.bench(settings, args.vs, args.dir, *way, args.command_line, output, args.plot)


def _install(args: argparse.Namespace, output: options.Output) -> int:
    names = _peers(args.vs)
    failed = Installer(Folder(args.dir), output.say).install_all(names)
    peers = [{"name": n, "installed": n not in failed, "error": failed.get(n)} for n in names]
    output.json({"folder": str(args.dir), "peers": peers})
    return 1 if failed else 0


def _list(args: argparse.Namespace, output: options.Output) -> int:
    names = _peers(args.vs)
    missing = catalogue.select(names, Folder(args.dir))[1]
    output.answer("\n".join(f"{name:<10}{missing.get(name, 'installed')}" for name in names))
    peers = [{"name": name, "installed": name not in missing} for name in names]
    output.json({"folder": str(args.dir), "peers": peers})
    return 0


def _peers(names: list[str]) -> list[str]:
    """Returns the libraries of these configurations."""
    asked = {name.split(":")[0] for name in names}
    return [name for name in PEERS if name in asked]


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if names == ["none"]:
        return []
    try:
        catalogue.check_names(names)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return list(dict.fromkeys(names))


def _modes(text: str) -> tuple[str, ...]:
    modes = tuple(mode for mode in MODES if mode in text.split(","))
    if not modes or set(text.split(",")) - set(MODES):
        raise argparse.ArgumentTypeError(f"{text!r}: choose py, c, or py,c")
    return modes
