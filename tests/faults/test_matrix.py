"""Cells of the failure matrix: the ranks' errors equal the committed results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.cells import Cell
from tests.faults.matrix import CUDA, HOSTS, Run, Told, cells, essence, load, runner, why_not
from tests.faults.test_ranks import AT_LENGTH

RESULTS = {(cell["fault"], cell["when"]): cell["where"] for cell in load()["cells"]}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner() as made:
        yield made


def _cases() -> list[Any]:
    """Returns all cells in all places in the long run, otherwise a sample of the quick ones."""
    if AT_LENGTH:
        return [*itertools.product(cells(), HOSTS)]
    quick = [cell for cell in cells() if cell.fault != "late"]
    return [*zip(quick[::3], itertools.cycle(["one host", "two hosts by name", CUDA]))]


def test_the_results_have_every_cell() -> None:
    assert [*RESULTS] == [(cell.fault, cell.when) for cell in cells()]
    assert all([*where] == [*HOSTS] for where in RESULTS.values())


@pytest.mark.parametrize(
    ("cell", "where"),
    [pytest.param(*case, id=f"{case[0].fault} {case[0].when}, {case[1]}") for case in _cases()],
)
def test_each_fault_raises_the_listed_errors(run: Run, cell: Cell, where: str) -> None:
    if (reason := why_not(where)) is not None:
        pytest.skip(reason)
    told, _ = run(cell, where)
    assert any(_alike(told, one) for one in RESULTS[cell.fault, cell.when][where]["told"]), told


def _alike(told: Told, expected: Told) -> bool:
    """Compares classes, events and ranks."""
    found, wanted = essence(told), essence(expected)
    for one in (found, wanted):
        # A rank that was stopped in a call may warn of its own wait.
        if one.get("3", [""])[0] == "warning":
            del one["3"]
        for outcome in one.values():
            # A rank that makes its next call after the others gets their calls in its error.
            if outcome[2] == "the next call":
                outcome[0] = "CommAbortedError"
    return found == wanted
