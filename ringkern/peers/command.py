"""``python -m ringkern peers``."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import options
from . import catalogue
from .install import PEERS, Folder, Installer, default_folder

DESCRIPTION = """\
`install` gets the libraries that `bench --vs` compares with from PyPI, and compiles their loops: an
environment for each group of them. About 2.5 GB for all; what is there already is kept. `list` says
which are there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add("action", choices=["install", "list"])
    add("names", nargs="*", type=_peer, help=f"of {', '.join(PEERS)}; default: all")
    add("--dir", type=Path, default=default_folder(), help="default %(default)s")
    options.add_timeout(parser, 3600.0)
    options.add_json(parser, PEERS)


def run(args: argparse.Namespace) -> int:
    """Runs the command; the exit status: 1 if a peer could not be installed."""
    output = options.Output(args.json)
    names = args.names or list(PEERS)
    if args.action == "list":
        return _list(names, args.dir, output)
    failed = Installer(Folder(args.dir), output.say).install_all(names)
    output.json(
        {
            "folder": str(args.dir),
            "peers": [
                {"name": n, "installed": n not in failed, "error": failed.get(n)} for n in names
            ],
        }
    )
    return 1 if failed else 0


def _list(names: list[str], folder: Path, output: options.Output) -> int:
    missing = catalogue.select(names, Folder(folder))[1]
    output.answer("\n".join(f"{name:<10}{missing.get(name, 'installed')}" for name in names))
    peers = [{"name": name, "installed": name not in missing} for name in names]
    output.json({"folder": str(folder), "peers": peers})
    return 0


def _peer(text: str) -> str:
    if text not in PEERS:
        hint = options.did_you_mean(text, PEERS)
        raise argparse.ArgumentTypeError(f"{text!r}: choose of {', '.join(PEERS)}{hint}")
    return text
