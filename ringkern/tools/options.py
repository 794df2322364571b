"""Shared by the commands: arguments of the same name and meaning, and where output goes.

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
    """An ``ArgumentParser`` whose errors name what was probably meant."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        super().__init__(prog, **kwargs)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses, and names what is near to an unknown argument."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            flags = [word for word in rest if word.startswith("-")]
            word = (flags or rest)[0].split("=")[0]
            known = [name for name in self._option_string_actions if name.startswith("--")]
            hint = did_you_mean(word, known) if flags else ""
            self.error(f"unknown argument {word!r}{hint}")
        return found

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, on one rank, and exits with 2."""
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
    """``"; did you mean NAME?"``, or nothing where no name is near."""
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


# ---- types of arguments -------------------------------------------------------------------------


def whole(minimum: int) -> Callable[[str], int]:
    """A type of argument: whole numbers from ``minimum`` on."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]+", text) or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from {minimum} on")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """A type of argument: seconds, more than 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds above 0")
    return number


def new_file(text: str) -> Path:
    """A type of argument: a file that can be made, as far as its directory goes."""
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no such directory")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: is a directory; give a file")
    if not path.exists():  # such as /dev/stdout, whose directory is nobody's
        try:
            check_writable(path.absolute().parent)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return path


def check_writable(folder: Path) -> None:
    """Makes a file in a folder, and removes it, before anything is measured for nothing.

    Raises:
        ValueError: that is refused, or the folder is not there.
    """
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"{folder}: no file can be made there ({error.strerror}); give another place"
        ) from None


def picture(text: str) -> Path:
    """A type of argument: a new file that matplotlib draws."""
    path = new_file(text)
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("matplotlib is not installed: pip install matplotlib")
    return path


def dtype_of(name: str, known: Sequence[str]) -> str:
    """The name of a dtype, by that of torch or of nccl-tests.

    Raises:
        ValueError: there is none among ``known``.
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
    """``-n``: ``None`` where it is not given, as :func:`ringkern.tools.launch.run` takes it."""
    parser.add_argument("-n", "--ranks", type=whole(1), help=f"{text} (default 2)")
    add_ranks_per_core(parser)


def add_ranks_per_core(parser: argparse.ArgumentParser) -> None:
    """``--ranks-per-core``: how many ranks of ``-n`` may share a core; checked for all commands."""
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
    """``--timeout``: for all that the command does.

    Args:
        default_s: seconds; ``None``: as long as it takes.
        own: the command keeps to it, and says what is late, so that it is only ended when it is
            not through long after that.
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
    """``--json``: ``None``, a file, or ``STDOUT``.

    Args:
        words: arguments of the command that may follow, and are not meant as the file's name.
        sizes: so may sizes.
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
    """Where a command's lines go, and its JSON.

    Args:
        file: of ``--json``.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file

    @property
    def lines(self) -> TextIO:
        """For people: stdout, unless JSON is alone there."""
        return sys.stderr if self._file == STDOUT else sys.stdout

    def say(self, text: str) -> None:
        """Prints lines at once."""
        print(text, file=self.lines, flush=True)

    def answer(self, text: str) -> None:
        """Prints the result for people; nothing where it is JSON that is asked for on stdout."""
        if self._file != STDOUT:
            self.say(text)

    def json(self, data: Any) -> None:
        """Writes the result for programs, if it is asked for.

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
