"""The code blocks of a page, and how they are tested.

A block of ``sh``, ``python`` or ``pycon`` must work unchanged. A ``text`` block right after one of
``sh``, with no text between, is its output: each of its lines must occur, and ``...`` matches
anything. A block for an uncommon machine is ``text``, beside a sentence that names the requirement.

A ``python`` block is a program. Its first line is its name, such as ``# first.py``, and a command
of the page runs it. A name with a folder is that of a file in the repository.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "quickstart.md")
HOWTO = (*sorted((ROOT / "docs/howto").glob("*.md")), ROOT / "docs/design/reliability.md")

# The kinds of blocks. `sh`, `python` and `pycon` are run; other names for them would not be.
LANGUAGES = ("sh", "python", "pycon", "text", "bibtex", "{toctree}")

_FENCE = re.compile(r"^( *)```([^\s`]*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"# (\S+\.py)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: the file.
        line: of its first fence, from 1.
        language: as it is written, ``{toctree}`` included.
        text: what is between the fences, without their indentation.
        follows: it comes right after the block before, with no word between.
    """

    page: Path
    line: int
    language: str
    text: str
    follows: bool

    @property
    def name(self) -> str | None:
        """Returns the name of the file for this block."""
        found = _NAME.match(self.text) if self.language == "python" else None
        return found[1] if found else None

    @property
    def commands(self) -> list[str]:
        """Returns the commands of a block of sh, joined where a line ends in a backslash."""
        lines = map(str.strip, self.text.replace("\\\n", " ").splitlines())
        return [line for line in lines if line and not line.startswith("#")]

    def __str__(self) -> str:
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page.name
        return f"{page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Returns the blocks in the order of the page."""
    text, blocks, end = page.read_text(), [], 0
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        follows = bool(blocks) and not text[end : found.start()].strip()
        blocks.append(Block(page, line, found[2], textwrap.dedent(found[3]), follows))
        end = found.end()
    return blocks


def programs_of(blocks: list[Block]) -> dict[str, str]:
    """Returns the files that the page names, and their text."""
    return {block.name: block.text for block in blocks if block.name}


def said_to_print(blocks: list[Block]) -> dict[Block, str]:
    """Returns the block of text that follows a block of sh, for each that has one."""
    pairs = [(a, b) for a, b in itertools.pairwise(blocks) if b.follows]
    return {a: b.text for a, b in pairs if (a.language, b.language) == ("sh", "text")}


def missing_lines(expected: str, output: str) -> list[str]:
    """Returns the lines of ``expected`` that are not in ``output``; ``...`` stands for anything.

    Ranks that share a terminal may write their line ends apart from their lines.
    """
    lines = [line.strip() for line in expected.splitlines() if line.strip(" .")]
    return [
        line
        for line in lines
        if not re.search(".*".join(map(re.escape, line.split("..."))), output)
    ]
