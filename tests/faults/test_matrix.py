"""Cells of the failure matrix: what is told, and to whom, is what the committed results have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.cells import Cell
from tests.faults.matrix import HOSTS, Run, cells, essence, load, runner
from tests.faults.test_ranks import AT_LENGTH
from tests.hosts.namespaces import why_not

RESULTS = {(cell["fault"], cell["when"]): cell["where"] for cell in load()["cells"]}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner() as made:
        yield made


def _cases() -> list[Any]:
    """Returns all cells in all places at length, and else a sample of those that are quick."""
    if AT_LENGTH:
        return [*itertools.product(cells(), HOSTS)]
    quick = [cell for cell in cells() if cell.fault != "late"]
    return [*zip(quick[::3], itertools.cycle(["one host", "two hosts by name"]))]


def test_the_results_have_every_cell() -> None:
    assert [*RESULTS] == [(cell.fault, cell.when) for cell in cells()]
    assert all([*where] == [*HOSTS] for where in RESULTS.values())


@pytest.mark.parametrize(
    ("cell", "where"),
    [pytest.param(*case, id=f"{case[0].fault} {case[0].when}, {case[1]}") for case in _cases()],
)
def test_who_is_told_by_which_error(run: Run, cell: Cell, where: str) -> None:
    if where == "two namespaces" and (reason := why_not()) is not None:
        pytest.skip(reason)
    told, _ = run(cell, where)
    expected = [essence(one) for one in RESULTS[cell.fault, cell.when][where]["told"]]
    assert essence(told) in expected, told
