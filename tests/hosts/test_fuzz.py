"""The fuzz of tests/hosts/fuzz: it runs, and it tells what is wrong."""

from __future__ import annotations

import re

import pytest

from tests.hosts.fuzz.__main__ import main

pytestmark = pytest.mark.slow


def test_some_steps(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--layout", "aa,ab", "--steps", "12"])
    out = capsys.readouterr().out
    assert status == 0, out
    assert "2 layouts, 2 runs, 24 steps" in out
    assert "0 wrong, 0 hung, 0 failed" in out


PLANTED = {
    "spoils": (r"wrong: layout ab, seed 3, step 6, rank 1: \w+ \(.*\d+ of \d+ differ", "wrong"),
    "raises": (r"failed: layout ab, seed 3, step 6, rank 1: Traceback(.|\n)*on purpose", "failed"),
    "sleeps": (r"hung: layout ab, seed 3, step 6, rank 1 .*asleep on purpose", "hung"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_planted_faults_are_reported(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong result, an error and a hang of one rank: with what makes them again, and a status."""
    options = ["--layout", "ab", "--steps", "12", "--seed", "3"]
    status = main([*options, "--plant", f"{what}:1"])
    out = capsys.readouterr().out
    text, counted = PLANTED[what]
    assert status == 1
    assert re.search(text, out), out
    assert "again: python -m tests.hosts.fuzz --seed 3 --layout ab --steps 7" in out
    assert re.search(rf"[1-9]\d* {counted}", out), out
