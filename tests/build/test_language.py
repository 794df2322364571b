"""The language check finds sentences that open with a clause, and none in the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build import language


def test_no_sentence_opens_with_a_clause() -> None:
    assert list(language.violations()) == []


def found_in(folder: Path, name: str, text: str) -> list[str]:
    path = folder / "csrc" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return list(language.violations(folder))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.h", "// What a rank has.\nint a;\n", 1),
        ("a.h", "int a;  // Whether it is there\n", 1),
        ("a.cu", "int a;\n\n// Returns a. As torch\n// does.\n", 3),
        ("a.py", '"""Of a module."""\n', 1),
        ("a.py", 'def f():\n    """Returns it.\n\n    Who waits, waits.\n    """\n', 4),
        ("a.py", "x = 1\n# By rank.\n", 2),
        ("a.md", "## What is there\n", 1),
        ("a.md", "| a | b |\n|---|---|\n| That it is | x |\n", 3),
    ],
)
def test_an_opening_is_found(name: str, text: str, line: int, tmp_path: Path) -> None:
    found = found_in(tmp_path, name, text)
    assert len(found) == 1
    assert found[0].startswith(f"csrc/{name}:{line}: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.h", 'const char* a = "What a rank has";\n// By default, none.\n'),
        ("a.py", '"""Returns what a rank has."""\nx = "Of none"\n'),
        ("a.md", "```text\nWhat is printed\n```\n\n## What is an all-reduce?\n"),
    ],
)
def test_other_text_is_left_alone(name: str, text: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, name, text) == []
