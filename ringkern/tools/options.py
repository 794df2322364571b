"""Arguments that several commands have in the same form, and the output of commands.

Needs neither torch nor the extension.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from .launch import RANKS_PER_CORE

STDOUT = Path("-")


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose errors name the closest known argument."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        super().__init__(prog, **kwargs)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses, and names the known argument that is closest to an unknown one."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            flags = [word for word in rest if word.startswith("-")]
            word = (flags or rest)[0].split("=")[0]
            known = [name for name in self._option_string_actions if name.startswith("--")]
            hint = did_you_mean(word, known) if flags else ""
            self.error(f"unknown argument {word!r}{hint}")
        return found

    def error(self, message: str) -> NoReturn:
        """Prints the error, on one rank, and exits with 2."""
        if os.environ.get("RANK", "0") == "0":  # torchrun's; all ranks have the same arguments
            print(f"{self.prog}: error: {message}", file=sys.stderr)
            print(f"`{self.prog} --help` says what it takes", file=sys.stderr)
        raise SystemExit(2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            text = f"{value!r}: choose one of {', '.join(names)}{did_you_mean(str(value), names)}"
            raise argparse.ArgumentError(action, text)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Returns ``"; did you mean NAME?"``, or nothing if no name is close."""
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


# ---- types of arguments -------------------------------------------------------------------------


def whole(minimum: int) -> Callable[[str], int]:
    """Returns a type of argument: whole numbers from ``minimum`` on."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]+", text) or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from {minimum} on")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """Parses an argument: seconds, more than 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds above 0")
    return number


def new_file(text: str) -> Path:
    """Parses an argument: a file that can be made in its directory."""
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no such directory")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: is a directory; give a file")
    if not path.exists():  # such as /dev/stdout, whose directory belongs to nobody
        try:
            check_writable(path.absolute().parent)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return path


def check_writable(folder: Path) -> None:
    """Makes a file in a folder, and removes it; called before anything is measured.

    Raises:
        ValueError: that is refused, or the folder does not exist.
    """
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"{folder}: no file can be made there ({error.strerror}); give another place"
        ) from None


def picture(text: str) -> Path:
    """Parses an argument: a new file that matplotlib draws."""
    path = new_file(text)
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("matplotlib is not installed: pip install matplotlib")
    return path


def dtype_of(name: str, known: Sequence[str]) -> str:
    """Returns torch's name of a dtype, given that name or the name in nccl-tests.

    Raises:
        ValueError: it is not among ``known``.
    """
    from ..units import DTYPE_ALIASES

    found = DTYPE_ALIASES.get(name, name)
    if found not in known:
        hint = did_you_mean(name, [*known, *DTYPE_ALIASES])
        raise ValueError(f"-d: unknown dtype {name!r}; choose one of {', '.join(known)}{hint}")
    return found


# ---- arguments of the same name -----------------------------------------------------------------


def add_ranks(
    parser: argparse.ArgumentParser, text: str = "ranks to start; under torchrun, its own"
) -> None:
    """Adds ``-n``; without it ``None``, as for :func:`ringkern.tools.launch.run`."""
    parser.add_argument("-n", "--ranks", type=whole(1), help=f"{text} (default 2)")
    add_ranks_per_core(parser)


def add_ranks_per_core(parser: argparse.ArgumentParser) -> None:
    """Adds ``--ranks-per-core``: how many ranks of ``-n`` may share a core; for all commands."""
    parser.add_argument(
        "--ranks-per-core",
        type=whole(1),
        default=RANKS_PER_CORE,
        metavar="N",
        help=f"start no more than this many for each core (default {RANKS_PER_CORE})",
    )


def add_timeout(
    parser: argparse.ArgumentParser, default_s: float | None, *, own: bool = False
) -> None:
    """Adds ``--timeout``: for the whole command.

    Args:
        default_s: seconds; ``None``: no limit.
        own: the command itself keeps to it, and reports what is late; it is ended only if it is
            not finished long after that.
    """
    parser.set_defaults(grace_s=30.0 if own else 0.0)
    default = "as long as it takes" if default_s is None else f"{default_s:g}"
    parser.add_argument(
        *("-T", "--timeout"),
        type=seconds,
        default=default_s,
        metavar="S",
        help=f"seconds for it all (default {default})",
    )


def add_json(
    parser: argparse.ArgumentParser, words: Iterable[str] = (), *, sizes: bool = False
) -> None:
    """Adds ``--json``: ``None``, a file, or ``STDOUT``.

    Args:
        words: arguments of the command that may follow, and are not the file's name.
        sizes: sizes may follow, too.
    """
    taken = frozenset(words)

    def file(text: str) -> Path:
        if text in taken or (sizes and re.fullmatch(r"[0-9]+[KMG]?(I?B)?", text.upper())):
            raise argparse.ArgumentTypeError(
                f"{text!r} is taken for the name of a file: put --json last, or write --json=-"
            )
        return STDOUT if text == "-" else new_file(text)

    parser.add_argument(
        *("-J", "--json"),
        nargs="?",
        const=STDOUT,
        type=file,
        metavar="FILE",
        help="write all of it as JSON there; without FILE, to stdout and nothing else",
    )


class Output:
    """The destination of a command's lines, and of its JSON.

    Args:
        file: the value of ``--json``.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file

    @property
    def lines(self) -> TextIO:
        """Returns the stream for people: stdout, unless only JSON goes there."""
        return sys.stderr if self._file == STDOUT else sys.stdout

    def say(self, text: str) -> None:
        """Prints lines at once."""
        print(text, file=self.lines, flush=True)

    def answer(self, text: str) -> None:
        """Prints the result for people, unless JSON is requested on stdout."""
        if self._file != STDOUT:
            self.say(text)

    def json(self, data: Any) -> None:
        """Writes the result for programs, if it is requested.

        Raises:
            OSError: the file cannot be written.
        """
        if self._file is None:
            return
        text = json.dumps(data, indent=1, allow_nan=False) + "\n"
        if self._file == STDOUT:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            self._file.write_text(text)
