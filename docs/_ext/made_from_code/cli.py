"""Pages of the command line, from its argument parsers."""

from __future__ import annotations

import argparse
import copy
import re
from collections.abc import Iterable
from pathlib import Path

from ringkern.tools import COMMANDS, EXIT_CODES, parsers

from .markdown import code, table

WIDTH = 90  # of usage, in characters


def commands() -> str:
    """Returns the list of the commands, and a section for each."""
    rows = [[f"[`{command.name}`](#{command.name})", command.help] for command in COMMANDS]
    sections = [section(name, parser) for name, parser in parsers().items()]
    return "\n".join([table(["command", "what for"], rows), *sections])


def exit_codes() -> str:
    """Returns the table of exit codes of all commands."""
    return table(["status", "means"], [[code(str(status)), means] for status, means in EXIT_CODES])


def section(name: str, parser: argparse.ArgumentParser) -> str:
    """Returns a command's description, usage and arguments."""
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    parts = [f"## {name}", _prose(parser.description), f"```text\n{_folded(usage)}\n```"]
    actions = [a for group in parser._action_groups for a in group._group_actions]
    actions = [a for a in actions if a.help != argparse.SUPPRESS]
    rows = [_row(a) for a in actions if not isinstance(a, argparse._HelpAction)]
    parts += [table(["argument", "meaning"], rows)] if rows else []
    return "\n\n".join([*parts, _prose(parser.epilog)]).rstrip() + "\n"


def _row(action: argparse.Action) -> list[str]:
    formatter = argparse.HelpFormatter("")
    meaning = formatter._expand_help(action) if action.help else ""
    if action.choices is not None and not _all_in(meaning, action.choices):
        choices = f"one of {', '.join(map(str, action.choices))}"
        meaning = f"{meaning}; {choices}" if meaning else choices
    if action.default not in (None, False, argparse.SUPPRESS) and "default" not in meaning:
        meaning += f" (default {action.default})"
    return [code(_names(action)), _at_home(meaning)]


def _names(action: argparse.Action) -> str:
    action = copy.copy(action)
    action.choices = None  # the meaning lists them
    name = action.dest.upper() if action.option_strings else action.dest
    value = argparse.HelpFormatter("")._format_args(action, name)  # such as [NAME ...], or nothing
    return " ".join(filter(None, [", ".join(action.option_strings), value]))


def _all_in(text: str, choices: Iterable[object]) -> bool:
    return all(re.search(rf"\b{re.escape(str(choice))}\b", text) for choice in choices)


def _prose(text: str | None) -> str:
    """Returns a paragraph in which options are code, so that no dash is changed."""
    plain = " ".join((text or "").split())
    return re.sub(r"(?<![\w`-])(--?[A-Za-z][\w-]*)", r"`\1`", _at_home(plain))


def _at_home(text: str) -> str:
    """Returns ``text`` without the home directory of this build."""
    return text.replace(str(Path.home()), "~")


def _folded(usage: str) -> str:
    """Returns the usage in lines that do not break within brackets."""
    words = re.findall(r"\[[^\]]*\]+|\S+", usage)
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return "\n".join(lines)
