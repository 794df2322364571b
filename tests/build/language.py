"""Finds sentences that open with a clause, which readers parse twice.

    python -m tests.build.language             prints each as path:line: sentence, and exits with 1
    python -m tests.build.language --measure   prints the share of comments that open so, by folder

Reads the comments of C++, the comments and docstrings of Python, and the paragraphs of Markdown.
The rules are in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.build.rooms import NO_CODE

ROOT = Path(__file__).resolve().parents[2]


FOLDERS = (".ci", "bench", "build_backend", "csrc", "docs", "examples", "ringkern", "tests")
CPP = {".h", ".cuh", ".cpp", ".cu"}
# The changelog keeps its words.
LEFT_OUT = {"CHANGELOG.md"}

_WORDS = "What|Whatever|Who|Whoever|Whose|Whom|Of|Whether|Which|Whichever|As|By|That"
# A sentence of these words that is in order: a question, and "By default, ..".
_OPENING = re.compile(rf"(?:{_WORDS})\b(?! default\b)(?![^.!]*\?)")
_SENTENCE = re.compile(rf"(?:^|(?<=[.!?]) +|(?<=: ))(?P<text>(?:{_WORDS})\b[^.?!]*[.?!]?)")


@dataclass(frozen=True)
class Text:
    """A block of words without line breaks, and the line on which it begins."""

    path: str
    line: int
    words: str
    kind: str  # comment, docstring or page

    @property
    def opens_with_a_clause(self) -> bool:
        return _OPENING.match(self.words) is not None


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def _blocks(comments: list[tuple[int, int, str]], path: str) -> Iterator[Text]:
    """Joins the comments, as (line, column, words), of lines that follow each other."""
    begin, end, words = 0, -1, list[str]()
    column = -1
    for line, at, text in [*comments, (10**9, 0, "")]:
        if line != end + 1 or at != column or not text:
            if _joined(words):
                yield Text(path, begin, _joined(words).lstrip("- "), "comment")
            begin, words = line, []
        end, column = line, at
        words.append(text)


def cpp_texts(path: str, text: str) -> Iterator[Text]:
    comments = []
    for found in NO_CODE.finditer(text):
        if found["comment"]:
            line = text.count("\n", 0, found.start()) + 1
            column = found.start() - text.rfind("\n", 0, found.start())
            comments.append((line, column, found[0].strip("/*< \n")))
    yield from _blocks(comments, path)


def python_texts(path: str, text: str) -> Iterator[Text]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if docstring := ast.get_docstring(node):
            line = node.body[0].lineno
            for paragraph in re.split(r"\n\s*\n", docstring):
                yield Text(path, line, _joined([paragraph]), "docstring")
                line += paragraph.count("\n") + 2
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [t for t in tokens if t.type == tokenize.COMMENT]
    yield from _blocks([(*t.start, t.string.lstrip("#: ")) for t in comments], path)


def page_texts(path: str, text: str) -> Iterator[Text]:
    """Yields paragraphs, list items and cells of tables, not code."""
    text = re.sub(
        r"^(```|~~~).*?^\1\S*$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S
    )
    for found in re.finditer(r"(?:[^\n]+\n?)+", text):
        line = text.count("\n", 0, found.start()) + 1
        parts = re.split(r"(^\s*(?:[-*+]|\d+\.|#+|>)\s+|\|)", found[0], flags=re.M)
        for part in parts:
            if words := _joined([part.strip(" |")]):
                yield Text(path, line, words.lstrip("*_`"), "page")
            line += part.count("\n")


def texts(root: Path = ROOT) -> Iterator[Text]:
    """Yields every text of the project, in files below FOLDERS and those of the root itself."""
    readers = dict.fromkeys(CPP, cpp_texts) | {".py": python_texts, ".pyi": python_texts}
    readers[".md"] = page_texts
    paths = [p for folder in FOLDERS for p in sorted((root / folder).rglob("*"))]
    for path in [*paths, *sorted(root.glob("*.py")), *sorted(root.glob("*.md"))]:
        if path.suffix in readers and path.name not in LEFT_OUT and path.is_file():
            name = path.relative_to(root).as_posix()
            yield from readers[path.suffix](name, path.read_text())


def violations(root: Path = ROOT) -> Iterator[str]:
    """Yields each as "path:line: sentence"."""
    for text in texts(root):
        for found in _SENTENCE.finditer(text.words):
            if _OPENING.match(found["text"]):
                yield f"{text.path}:{text.line}: {found['text'][:80]}"


def measure(root: Path = ROOT) -> Iterator[str]:
    """Yields a line for each folder and kind of text: how many open with a clause, of how many."""
    total, opening = Counter[str](), Counter[str]()
    for text in texts(root):
        for key in (f"{text.path.split('/')[0]} {text.kind}", f"all {text.kind}s"):
            total[key] += 1
            opening[key] += text.opens_with_a_clause
    for key in sorted(total):
        yield f"{key:28} {opening[key]:5} of {total[key]:5}  {opening[key] / total[key]:6.1%}"


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print("\n".join(measure()))
        sys.exit()
    found = list(violations())
    print("\n".join(found))
    sys.exit(1 if found else 0)
