"""Finds the links and the anchors of Markdown files, by the rules of file viewers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from made_from_code import filled
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.colon_fence import colon_fence_plugin

_ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # https:, mailto:
_HOLDS_MARKDOWN = re.compile(r" *\{(container|admonition|note|tip|hint|important|warning)\}")
_TARGET = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
_HTML_ID = re.compile(r"<\w+[^>]*\b(?:id|name)=\"([^\"]+)\"")


@functools.cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    return parser.use(colon_fence_plugin).use(anchors_plugin, max_level=6)


def anchors_of(text: str) -> set[str]:
    """Returns the anchors of headings and the explicit ones."""
    tokens = _parser().parse(filled(text))
    made = {str(t.attrs["id"]) for t in tokens if t.type == "heading_open" and "id" in t.attrs}
    return made | set(_TARGET.findall(text)) | set(_HTML_ID.findall(text))


def links_of(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line from 1, target) of every link and picture that is not a URL."""
    for line, token in _all(_parser().parse(text), 1, 0):
        target = str(token.attrs.get("href" if token.type == "link_open" else "src", ""))
        if token.type in ("link_open", "image") and not _ELSEWHERE.match(target):
            yield line, unquote(target)


def _all(tokens: list[Token], first: int, line: int) -> Iterator[tuple[int, Token]]:
    """Yields every token with its line; the text begins on line ``first``."""
    for token in tokens:
        at = first + token.map[0] if token.map else line
        yield at, token
        if token.type.endswith("fence") and _HOLDS_MARKDOWN.match(token.info):
            yield from _all(_parser().parse(token.content), at + 1, at)
        yield from _all(token.children or [], at, at)


def wrong(file: Path, target: str) -> str:
    """Returns the error of a link of a file; empty if it is right."""
    path, _, anchor = target.partition("#")
    there = (file.parent / path).resolve() if path else file
    if not there.exists():
        return f"there is no {path}"
    if not anchor or (there.suffix != ".md" and re.fullmatch(r"L\d+(-L\d+)?", anchor)):
        return ""
    if there.suffix != ".md" or anchor not in anchors_of(there.read_text()):
        return f"{path or 'it'} has no anchor #{anchor}"
    return ""
