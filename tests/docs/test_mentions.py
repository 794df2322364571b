"""Everything that the pages mention exists: commands and their options, programs, targets,
variables.
"""

from __future__ import annotations

import argparse
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ringkern.config import variables
from ringkern.tools import parsers
from tests.docs.blocks import ROOT

# The changelog speaks of what was.
PAGES = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")}
    - {ROOT / "CHANGELOG.md"}
)
# Matches a command in text with Markdown around it.
_WORDS = r"((?:\\\n|[^`\n|;#()])*)"
_COMMAND = re.compile(r"(?:python3? -m |torchrun [^\n`]*-m )ringkern ([a-z]+)" + _WORDS)
_EXAMPLE = re.compile(r"python3? (examples/\w+\.py)" + _WORDS)
_TARGET = re.compile(r"(?:`|^|&& )make ([a-z]+)\b", re.MULTILINE)
_VARIABLE = re.compile(r"\bRINGKERN_[A-Z_]+\b")
_PATH = re.compile(r"<\w+ [^>]*?\b(?:src|href)=\"(?!https?:)([^\"]+)\"")
_FROM_AN_INDEX = re.compile(r"pip install ['\"]?ringkern\b")
_OPTION = re.compile(r"(?:^|\s)(--?[a-zA-Z][\w-]*)")


PARSERS = functools.cache(parsers)
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
VARIABLES = {variable.name for variable in variables()}


def unknown_options(words: str, parser: argparse.ArgumentParser) -> list[str]:
    return [o for o in _OPTION.findall(words) if o not in parser._option_string_actions]


def options_of(program: Path) -> set[str]:
    """Returns the options of an example: its own, and those of all examples."""
    text = program.read_text() + (program.parent / "compare.py").read_text()
    calls = re.findall(r"add_argument\(((?:\"--?[\w-]+\",? ?)+)", text)
    return {name for call in calls for name in re.findall(r"--?[\w-]+", call)}


def wrong(text: str, folder: Path = ROOT) -> Iterator[str]:
    """Returns mentions in the text of a page in ``folder`` that do not exist."""
    for path in _PATH.findall(text):
        if not (folder / path).exists():
            yield f"{path}: no such file"
    for name, words in _COMMAND.findall(text):
        if name not in PARSERS():
            yield f"python -m ringkern {name}: no such command"
        else:
            for option in unknown_options(words, PARSERS()[name]):
                yield f"python -m ringkern {name}: no option {option}"
    for name, words in _EXAMPLE.findall(text):
        if not (ROOT / name).exists():
            yield f"{name}: no such file"
        else:
            known = options_of(ROOT / name)
            for option in _OPTION.findall(words):
                if option not in known:
                    yield f"{name}: no option {option}"
    for name in _TARGET.findall(text):
        if name not in TARGETS:
            yield f"make {name}: no such target"
    for name in _VARIABLE.findall(text):
        if name not in VARIABLES and name != "RINGKERN_":
            yield f"{name}: no such variable"
    if _FROM_AN_INDEX.search(text):
        yield "ringkern is on no package index: pip install -e . in the clone"


def test_mentioned_commands_and_files_exist() -> None:
    assert len(PAGES) > 40
    found = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in PAGES
        for line in wrong(page.read_text(), page.parent)
    ]
    assert found == []


def test_a_mention_of_a_missing_command_is_noticed() -> None:
    for text, said in (
        ("`python -m ringkern bench -n 4 -b 1K`", []),
        ("`python -m ringkern bench --no-such`", ["python -m ringkern bench: no option --no-such"]),
        ("python -m ringkern danse", ["python -m ringkern danse: no such command"]),
        ("`python examples/ddp.py --ranks 3`", []),
        ("`python examples/ddp.py --rank 3`", ["examples/ddp.py: no option --rank"]),
        ("python examples/dpp.py", ["examples/dpp.py: no such file"]),
        ("`make demo` and make no", []),
        ("`make no`", ["make no: no such target"]),
        ('<a href="README.md"><img src="no.png">', ["no.png: no such file"]),
        (
            "pip install ringkern",
            ["ringkern is on no package index: pip install -e . in the clone"],
        ),
        ("RINGKERN_TIMEOUT RINGKERN_TIMEUOT", ["RINGKERN_TIMEUOT: no such variable"]),
    ):
        assert list(wrong(text)) == said


SOURCES = sorted([*ROOT.glob("ringkern/**/*.py"), *ROOT.glob("examples/*.py")])


def test_no_message_sends_users_to_an_index_without_ringkern() -> None:
    assert len(SOURCES) > 100
    assert [str(file) for file in SOURCES if _FROM_AN_INDEX.search(file.read_text())] == []


def test_contributing_lists_the_folders() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    [tree] = re.findall(r"## Source tree\n\n```text\n(.*?)```", text, re.DOTALL)
    listed = {line.split()[0].rstrip("/") for line in tree.splitlines()}
    listed |= {
        f"tests/{room}" for room in ("reduce", "cpu", "cuda", "fault", "comm", "p2p", "torch")
    }
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    folders = {"/".join(name.split("/")[:2]) for name in files.stdout.split() if "/" in name}
    folders = {name for name in folders if (ROOT / name).is_dir() and not name.startswith(".")}
    assert not folders or listed == folders | {"ringkern"}
