"""Compares the runs of two backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.conformance.known import Known
from tests.conformance.rank import Outcome

Runs = dict[int, dict[str, Outcome]]  # by number of ranks, by test

# With fewer, for some number of ranks, a gate of the suite has closed and the comparison shows
# little.
LEAST_PASSED = {2: 85, 3: 105, 4: 108}


class Difference(NamedTuple):
    """A test that one backend passes and the other does not."""

    test: str
    ranks: int
    gloo: Outcome
    ours: Outcome
    known: str  # the reason, or none


def passed(run: dict[str, Outcome]) -> int:
    return Counter(outcome.status for outcome in run.values())["passed"]


def differences(gloo: Runs, ours: Runs, known: Sequence[Known]) -> list[Difference]:
    reasons = {entry.test: entry.reason for entry in known}
    return [
        Difference(test, ranks, theirs, mine, reasons.get(test, ""))
        for ranks, test, theirs, mine in _pairs(gloo, ours)
        if (theirs.status == "passed") != (mine.status == "passed")
    ]


def errors(gloo: Runs, ours: Runs, known: Sequence[Known], whole: bool) -> list[str]:
    """Returns why ringkern does not conform, or why this was not shown.

    ``whole``: all tests were run, so that an entry of the table which explains nothing is too many.
    """
    found = [
        f"{d.test} at {d.ranks} ranks: Gloo passes it"
        for d in differences(gloo, ours, known)
        if d.gloo.status == "passed" and not d.known
    ]
    pairs = list(_pairs(gloo, ours))
    found += [
        f"{test} at {ranks} ranks: Gloo skips it, ringkern fails it"
        for ranks, test, theirs, mine in pairs
        if (theirs.status, mine.status) == ("skipped", "failed")
    ]
    for entry in known:
        of_gloo = [(ranks, mine) for ranks, test, theirs, mine in pairs
                   if test == entry.test and theirs.status == "passed"]  # fmt: skip
        unneeded = [str(ranks) for ranks, mine in of_gloo if mine.status == "passed"]
        if unneeded:
            found.append(
                f"{entry.test} passes at {', '.join(unneeded)} ranks: remove it from known.py"
            )
        elif whole and not of_gloo:
            found.append(f"{entry.test} is not a test that Gloo passes: remove it from known.py")
    if whole:
        found += [
            f"Gloo passed {passed(run)} tests at {ranks} ranks, and at least "
            f"{LEAST_PASSED[ranks]} were expected"
            for ranks, run in gloo.items()
            if passed(run) < LEAST_PASSED.get(ranks, 0)
        ]
    return found


def _pairs(gloo: Runs, ours: Runs) -> Iterator[tuple[int, str, Outcome, Outcome]]:
    absent = Outcome("skipped", reason="not there")
    for ranks in sorted(gloo.keys() & ours.keys()):
        for test in sorted(gloo[ranks].keys() | ours[ranks].keys()):
            yield ranks, test, gloo[ranks].get(test, absent), ours[ranks].get(test, absent)
