"""``make matrix``: what it counts, and the page that it makes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.build import matrix
from tests.build.matrix import Cell

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.a" name="good"/>
<testcase classname="tests.a" name="wrong"><failure message="no"/></testcase>
<testcase classname="tests.a" name="broken"><error message="no"/></testcase>
<testcase classname="tests.a" name="gpu"><skipped message="needs a GPU"/></testcase>
<testcase classname="" name="tests.b"><skipped message="collection skipped">
('...', 18, 'Skipped: needs a GPU')</skipped></testcase>
</testsuite></testsuites>"""


def test_results_are_counted(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    cell = Cell("2.11.0", "3.10")
    matrix.count(cell, tmp_path / "junit.xml")
    assert (cell.passed, cell.failed) == (1, ["tests.a.wrong", "tests.a.broken"])
    assert cell.skipped == {"needs a GPU": 2}


def test_the_page_has_every_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RK_MATRIX_DIR", str(tmp_path))
    day, reason = {"date": "2026-01-02", "commit": "abc"}, "needs a GPU"
    for cell in (
        Cell("2.11.0+cu130", "3.10", tested=True, passed=1234, skipped={reason: 2}, **day),
        Cell("2.11.0+cu130", "3.11", tested=True, passed=1, failed=["tests.a.wrong"], **day),
        Cell("2.11.0+cu130", "3.12", **day),
        Cell("2.15.0", "3.10", absent=True, **day),
    ):
        name = f"{cell.python}-{cell.torch.partition('+')[0]}.json"
        (tmp_path / name).write_text(json.dumps(asdict(cell)))
    text = matrix.page(matrix.results())
    assert (
        "| 2.11.0+cu130 | 1,234 passed, 2 skipped | **1 failed**, 1 passed, 0 skipped "
        "| the quickstart; no tests | not run |" in text
    )
    assert "| 2.15.0 | torch has no such build | not run | not run | not run |" in text
    assert "| 2 | needs a GPU | torch 2.11.0; Python 3.10 |" in text
    assert "- torch 2.11.0+cu130, Python 3.11: `tests.a.wrong`" in text
    assert "- 2026-01-02, commit abc" in text


def test_the_page_is_of_the_versions_that_are_run() -> None:
    rows = matrix.PAGE.read_text().splitlines()
    for torch in matrix.TORCHES:
        assert sum(row.startswith(f"| {torch}") for row in rows) == 1
