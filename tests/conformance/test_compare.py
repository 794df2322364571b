"""Comparisons of the runs of two backends."""

from __future__ import annotations

from tests.conformance import compare, report
from tests.conformance.known import Known
from tests.conformance.rank import Outcome

PASSED, FAILED = Outcome("passed"), Outcome("failed", reason="wrong")


def test_difference_at_several_numbers_of_ranks_is_one_line() -> None:
    gloo = {n: {"test_a": PASSED, "test_b": FAILED} for n in (2, 3)}
    ours = {n: {"test_a": FAILED, "test_b": FAILED} for n in (2, 3)}
    found = compare.differences(gloo, ours, ())
    assert [(d.test, d.ranks) for d in found] == [("test_a", 2), ("test_a", 3)]
    told = report.differing(found)
    assert told == "test_a at 2, 3 ranks: Gloo passed, ringkern failed: wrong"
    assert len(compare.errors(gloo, ours, (), whole=False)) == 2


def test_test_that_was_not_run() -> None:
    assert compare.errors({2: {"test_a": PASSED}}, {2: {}}, (), whole=False) == [
        "test_a at 2 ranks: Gloo passes it"
    ]


def test_failure_of_what_gloo_skips() -> None:
    gloo = {2: {"test_a": Outcome("skipped", reason="not for Gloo")}}
    assert compare.errors(gloo, {2: {"test_a": PASSED}}, (), whole=False) == []
    assert compare.errors(gloo, {2: {"test_a": FAILED}}, (), whole=False) == [
        "test_a at 2 ranks: Gloo skips it, ringkern fails it"
    ]


def test_entry_that_passes_at_one_number_of_ranks() -> None:
    gloo = {n: {"test_a": PASSED} for n in (2, 3)}
    ours = {2: {"test_a": FAILED}, 3: {"test_a": PASSED}}
    known = (Known("test_a", "it cannot"),)
    assert compare.errors(gloo, ours, known, whole=False) == [
        "test_a passes at 3 ranks: remove it from known.py"
    ]


def test_entry_that_explains_nothing() -> None:
    runs = {9: {"test_a": FAILED}}
    known = (Known("test_a", "it cannot"), Known("test_b", "it cannot"))
    assert compare.errors(runs, runs, known, whole=False) == []
    assert compare.errors(runs, runs, known, whole=True) == [
        f"{entry.test} is not a test that Gloo passes: remove it from known.py" for entry in known
    ]


def test_gates_that_have_closed() -> None:
    enough = {f"test_{i}": PASSED for i in range(compare.LEAST_PASSED[2])}
    assert compare.errors({2: enough}, {2: enough}, (), whole=True) == []
    del enough["test_0"]
    assert len(compare.errors({2: enough}, {2: enough}, (), whole=True)) == 1
    assert compare.errors({2: enough}, {2: enough}, (), whole=False) == []
