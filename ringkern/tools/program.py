"""The table of commands, and the code that runs one: errors, signals, exit codes.

Nothing here needs torch. A command's module is imported only when that command is requested.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from .. import startup
from . import launch
from .options import Parser, did_you_mean


class Command(NamedTuple):
    """A command: its name, its module and its help.

    ``bare``: it works if torch or the extension do not load.
    """

    name: str
    module: str
    help: str
    bare: bool = False


COMMANDS = (
    Command("bench", "ringkern.tools.bench.command", "measure a collective, beside Gloo"),
    Command(
        "doctor",
        "ringkern.tools.doctor.command",
        "check if rings work on this machine, and print what to do",
        True,
    ),
    Command(
        "env", "ringkern.tools.env", "print versions, machine and settings, for a bug report", True
    ),
    Command(
        "explain", "ringkern.tools.explain", "print the algorithm and protocol of calls, and why"
    ),
    Command(
        "tune",
        "ringkern.tools.tune.command",
        'measure this machine, so that "auto" takes the fastest algorithm and protocol',
    ),
    Command("trace", "ringkern.tools.trace.command", "record and draw a timeline of each rank"),
    Command(
        "model", "ringkern.tools.model.command", "predict the times of a machine that you describe"
    ),
)

EXIT_CODES = (
    (0, "success"),
    (1, "failure: a wrong result, a red line of doctor, a file error, a failed rank"),
    (2, "the arguments are wrong, or name something that does not exist"),
    (130, "ended by Ctrl-C; all ranks have ended"),
    (143, "ended by SIGTERM; all ranks have ended"),
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit status, one of ``EXIT_CODES``.

    Raises:
        SystemExit: with 2 for wrong arguments, with 0 after ``--help``, with 143 on SIGTERM.
    """
    return _ending(lambda: _run(sys.argv[1:] if arguments is None else arguments))


def run_alone(prog: str, module: ModuleType, arguments: list[str] | None = None) -> int:
    """Runs a command that is not one of ``COMMANDS`` in the same way as :func:`main`.

    Args:
        prog: the command line that starts it, for its help and errors.
        module: the command.
        arguments: those after ``prog``; ``None``: the arguments of this process.

    Returns:
        The exit status.
    """
    given = sys.argv[1:] if arguments is None else arguments
    return _ending(lambda: _run_module(prog, module, given))


def _ending(run: Callable[[], int]) -> int:
    """Runs ``run``; Ctrl-C, SIGTERM and a closed pipe end it with their exit status."""
    try:
        with _ended_by_sigterm():
            return run()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    program = _program()
    if not arguments or arguments[0].startswith("-"):
        program.parse_args(arguments)
        program.error(f"a command is required: {', '.join(c.name for c in COMMANDS)}")
    command = {c.name: c for c in COMMANDS}.get(arguments[0])
    if command is None:
        names = [c.name for c in COMMANDS]
        hint = did_you_mean(arguments[0], names)
        program.error(
            f"there is no command {arguments[0]!r}{hint}; choose one of {', '.join(names)}"
        )
    try:
        module = _module(command)
    except Exception as error:  # a library that does not load may raise anything
        _say_error(_prog(), f"{type(error).__name__}: {error}")
        if not command.bare:
            print(f"run `{_prog()} doctor`: it looks for the cause and a fix", file=sys.stderr)
        return 1
    return _run_module(f"{_prog()} {command.name}", module, arguments[1:])


def _run_module(prog: str, module: ModuleType, arguments: list[str]) -> int:
    parser = _parser(prog, module)
    args = parser.parse_args(arguments)
    # Reports contain the command that made them.
    started = f"python -m {prog}" if prog.startswith("ringkern") else prog
    args.command_line = shlex.join([*started.split(), *arguments])
    try:
        if hasattr(args, "ranks_per_core") and launch.torchrun() is None:
            asked = args.ranks if isinstance(args.ranks, tuple) else (args.ranks or 1,)
            launch.check_ranks(max(asked), args.ranks_per_core)
        with _within(args.timeout, args.grace_s):
            status: int = module.run(args)
        return status
    except _Late as late:
        _say_error(prog, f"not finished after {late} s; give a longer --timeout")
        return 1
    except BrokenPipeError:
        raise
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        _say_error(prog, str(error))
        return 1


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Returns the parser of every command, by name; the documentation is made from them.

    Raises:
        ImportError: torch or the extension do not load.
    """
    return {c.name: _parser(f"{_prog()} {c.name}", _module(c)) for c in COMMANDS}


def _module(command: Command) -> ModuleType:
    if not command.bare:
        startup.load()
    return importlib.import_module(command.module)


def _parser(prog: str, module: ModuleType) -> Parser:
    parser = Parser(prog, description=module.DESCRIPTION)
    module.add_arguments(parser)
    return parser


def _program() -> Parser:
    """Returns the parser of the arguments before a command."""
    commands = "\n".join(f"  {command.name:<9}{command.help}" for command in COMMANDS)
    codes = "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES)
    parser = Parser(
        _prog(),
        usage="%(prog)s COMMAND [OPTION]...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"A ring all-reduce for PyTorch: its tools.\n\ncommands:\n{commands}",
        epilog=f"Each command has --help, and --json for use by programs.\n\nexit status:\n{codes}",
    )
    parser.add_argument("--version", action="version", version=f"ringkern {startup.version()}")
    return parser


def _prog() -> str:
    return "ringkern" if Path(sys.argv[0]).name == "ringkern" else "python -m ringkern"


def _say_error(prog: str, text: str) -> None:
    print(f"{prog}: error: {text}", file=sys.stderr)


class _Late(BaseException):
    """The end of ``--timeout``; no ``Exception``, which doctor would report as a failed test."""


@contextlib.contextmanager
def _within(seconds: float | None, grace_s: float) -> Iterator[None]:
    """Raises ``_Late`` in the main thread, even while it waits, when the time is over."""

    def late(*_: object) -> None:
        raise _Late(f"{seconds:g}")

    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds + grace_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Unwinds the stack on SIGTERM, so that the ranks end with this process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
