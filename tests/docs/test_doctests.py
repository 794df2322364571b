"""The code after ``>>>`` runs unchanged: in docstrings, and in pages' blocks of pycon."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest
import torch.distributed as dist

import ringkern
from tests.docs.blocks import ROOT, blocks_of

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def of_docstrings() -> Iterator[doctest.DocTest]:
    """Returns the doctests of all importable modules of the package, public or not.

    Plug-ins are left out, because they import what they are for.
    """
    finder = doctest.DocTestFinder(exclude_empty=True)
    for found in pkgutil.walk_packages(ringkern.__path__, "ringkern."):
        if re.search(r"\._|\.__main__$|\.integrations\.", found.name):
            continue
        yield from (t for t in finder.find(importlib.import_module(found.name)) if t.examples)
    yield from (test for test in finder.find(ringkern, "ringkern") if test.examples)


def of_pages() -> Iterator[doctest.DocTest]:
    """Returns a test for each page: its blocks share their names, as a reader expects."""
    for page in sorted(PAGES):
        blocks = [block for block in blocks_of(page) if block.language == "pycon"]
        name = str(page.relative_to(ROOT))
        lines = _in_their_lines([(block.line, block.text) for block in blocks])
        test = doctest.DocTestParser().get_doctest(lines, {}, name, str(page), 0)
        if test.examples:
            yield test


def _in_their_lines(blocks: list[tuple[int, str]]) -> str:
    """Returns the blocks, each on the lines that it has in its page."""
    lines: list[str] = []
    for line, text in blocks:
        lines += [""] * (line - len(lines))
        lines += text.splitlines()
    return "\n".join(lines) + "\n"


DOCSTRINGS = list(of_docstrings())
OF_PAGES = list(of_pages())


@pytest.fixture(autouse=True)
def group_is_left() -> Iterator[None]:
    """Destroys the group of one rank that an example may leave."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_doctests_are_found() -> None:
    names = {test.name for test in (*DOCSTRINGS, *OF_PAGES)}
    assert {"ringkern", "ringkern.local", "ringkern.choose.topology", "docs/index.md"} <= names


def test_every_block_of_pycon_has_a_prompt() -> None:
    """A block of pycon without a prompt would not be run."""
    blocks = [block for page in PAGES for block in blocks_of(page) if block.language == "pycon"]
    assert [str(block) for block in blocks if not block.text.startswith(">>> ")] == []


def test_prompts_are_in_blocks_of_pycon() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page) if block.language != "pycon"]
    assert [str(block) for block in blocks if re.search(r"^>>> ", block.text, re.M)] == []


@pytest.mark.parametrize("test", [*DOCSTRINGS, *OF_PAGES], ids=lambda test: test.name)
def test_runs(test: doctest.DocTest) -> None:
    skipped = [e.source for e in test.examples if e.options.get(doctest.SKIP)]
    assert not skipped, f"{test.name} has examples that nobody runs: {skipped}"
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert result.failed == 0, "".join(said)
