"""The check of who imports whom finds circles, and none in ringkern but those that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build import arrows

ROOT = Path(__file__).resolve().parents[2]


def package(directory: Path, files: dict[str, str]) -> Path:
    for path, text in ({"__init__.py": ""} | files).items():
        (directory / "p" / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / "p" / path).write_text(text)
    return directory / "p"


def test_ringkern_has_no_circle_but_those_that_are_named() -> None:
    assert list(arrows.violations(ROOT / "ringkern")) == []


@pytest.mark.parametrize(
    "files",
    [
        {"a.py": "from . import b", "b.py": "def f():\n    from .a import g"},
        {"a.py": "import p.b", "b.py": "from p import a"},
        {"q/__init__.py": "", "q/a.py": "from ..r import x", "r.py": "from .q.a import y"},
        {"q/__init__.py": "from ..a import x", "q/b.py": "", "a.py": "from .q import b"},
    ],
)
def test_finds_a_circle(tmp_path: Path, files: dict[str, str]) -> None:
    assert any("circle" in found for found in arrows.violations(package(tmp_path, files), {}))


def test_finds_a_circle_of_packages_without_one_of_modules(tmp_path: Path) -> None:
    files = {
        "q/__init__.py": "",
        "q/a.py": "from ..r.a import x",
        "q/b.py": "",
        "r/__init__.py": "",
        "r/a.py": "",
        "r/b.py": "from ..q.b import y",
    }
    (found,) = arrows.violations(package(tmp_path, files), {})
    assert found == "parts of p import each other in a circle: q, r"


def test_finds_no_circle_where_there_is_none(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from . import a",
        "a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import x",
        "b.py": "from . import a, _C\nfrom .a import f",
    }
    assert list(arrows.violations(package(tmp_path, files), {})) == []


def test_an_excuse_that_is_not_needed_is_said(tmp_path: Path) -> None:
    (found,) = arrows.violations(package(tmp_path, {}), {frozenset({"a", "b"}): "why"})
    assert "needs no excuse any more" in found
