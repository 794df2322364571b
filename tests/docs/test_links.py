"""Every link within the repository leads to an existing file, and to an anchor in it.

Sphinx checks the links of its pages. These tests check all Markdown files, including README.md and
those next to the sources, in the form in which a file viewer follows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.docs.extensions import markdown_links

FOLDERS = ("bench", "csrc", "docs", "examples", "ringkern", "tests")
# Its links are those of the page that is made of it.
TEMPLATE = ROOT / "tests/torch/support/template.md"


def markdown_files() -> list[Path]:
    """Returns the repository's files, without those of an environment or a build within it."""
    found = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.md")]
    return sorted({*found, *ROOT.glob("*.md")} - {TEMPLATE})


def test_files_and_links_are_found() -> None:
    files = {str(file.relative_to(ROOT)) for file in markdown_files()}
    assert {"README.md", "csrc/README.md", "docs/index.md", "docs/design/choice.md"} <= files
    targets = {target for _, target in markdown_links.links_of((ROOT / "README.md").read_text())}
    assert {"csrc/core/schedule.h", "CONTRIBUTING.md"} <= targets


def test_links_lead_somewhere() -> None:
    broken = [
        f"{file.relative_to(ROOT)}:{line}: {target}: {why}"
        for file in markdown_files()
        for line, target in sorted(set(markdown_links.links_of(file.read_text())))
        if (why := markdown_links.wrong(file, target))
    ]
    assert not broken, "\n".join(broken)


def test_broken_ones_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# A, b?\n\n## A b\n\n## A `b`\n")
    (tmp_path / "code.py").write_text("")
    here = tmp_path / "here.md"
    for target, why in (
        ("page.md", ""),
        ("page.md#a-b", ""),
        ("#here", ""),
        ("page.md#L3", "page.md has no anchor #L3"),
        ("code.py#L3", ""),
        ("code.py#main", "code.py has no anchor #main"),
        (".", ""),
        ("gone.md", "there is no gone.md"),
        ("page.md#gone", "page.md has no anchor #gone"),
        ("#gone", "it has no anchor #gone"),
    ):
        here.write_text(f"(here)=\n\n:::{{note}}\n\n> [text]({target})\n:::\n")
        ((line, found),) = markdown_links.links_of(here.read_text())
        assert (line, found) == (5, target)
        assert markdown_links.wrong(here, found) == why


def test_anchors_are_those_of_file_viewers() -> None:
    text = "# A, b?\n## A b\n## A b\n### `x_y` & z\n<a id='no'></a>\n<a id=\"yes\"></a>\n"
    assert markdown_links.anchors_of(text) == {"a-b", "a-b-1", "a-b-2", "x_y--z", "yes"}


# ---- Files that comments, docstrings and texts name ----------------------------------------------

NAMED = re.compile(
    rf"(?<![\w./-])(?:{'|'.join((*FOLDERS, 'cmake', 'build_backend'))})/[\w./-]*"
    r"\.(?:md|py|pyi|h|cuh|c|cpp|cu|json|txt|xml|png|svg)\b"
)
SUFFIXES = (".md", ".py", ".pyi", ".h", ".cuh", ".c", ".cpp", ".cu", ".toml", ".txt")
# Links to other repositories.
OF_OTHERS = {
    "csrc/custom_all_reduce.cuh",
    "docs/dsl/results.md",
    "docs/errors.md",
    "docs/source/distributed.md",
}


def sources() -> Iterator[Path]:
    """Yields all text of the repository except these tests, which name missing things."""
    folders = [ROOT / folder for folder in (*FOLDERS, "cmake", "build_backend")]
    files = [*ROOT.glob("*"), *(file for folder in folders for file in folder.rglob("*"))]
    for file in files:
        text = file.suffix in SUFFIXES or file.name == "Makefile"
        if file.is_file() and text and file.parent != Path(__file__).parent:
            yield file


def test_files_that_are_named_are_there() -> None:
    """A file that is moved is moved everywhere: in comments, docstrings, Makefile and pages."""
    named = [
        (f"{file.relative_to(ROOT)}:{number}", name)
        for file in sources()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
        for name in NAMED.findall(line)
    ]
    assert len(named) > 100
    gone = [f"{at}: {name}" for at, name in named if not (ROOT / name).exists()]
    assert [line for line in gone if line.split(": ")[1] not in OF_OTHERS] == []


def _rows_with_tests(page: Path) -> list[str]:
    """Returns the last cells of a page's tables whose last column is "shown by"."""
    cells: list[str] = []
    shown = False
    for line in page.read_text().splitlines():
        last = line.removesuffix(" |").rpartition("| ")[2] if line.startswith("| ") else ""
        if last == "shown by":
            shown = True
        elif not line.startswith("|"):
            shown = False
        elif shown and last:
            cells.append(last)
    return cells


def test_documented_failures_name_a_test() -> None:
    """Each line of these tables names a test that is there."""
    code = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)\(", code, re.MULTILINE))
    for name in ("hosts.md", "reliability.md"):
        cells = _rows_with_tests(ROOT / "docs" / "design" / name)
        assert len(cells) > 10
        for cell in cells:
            tests = re.findall(r"`(\w+(?:\.cpp)?)`", cell)
            assert tests, cell
            assert {test for test in tests if not test.endswith(".cpp")} <= defined, cell
