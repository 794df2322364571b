"""Communicators that go on without ranks that have died, and with processes that join."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import ringkern
from ringkern.errors import CommUsageError, RendezvousError
from ringkern.regroup import Joiners, _Invitation, _name_after, _regrouped
from tests.comm.exits import ROOT, scenarios_of
from tests.faults import regroups

pytestmark = pytest.mark.library

Scenario = Callable[[str, int, Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def scenarios() -> Iterator[Scenario]:
    with scenarios_of("tests.faults.going_on") as run:
        yield run


@pytest.fixture(scope="module", params=["aaaa", "aaba"])
def spread(request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """Runs scenarios on one host and on two."""
    with scenarios_of("tests.faults.going_on", RK_TEST_HOSTS=request.param) as run:
        yield run


def told(
    outcome: list[dict[str, Any]], folder: Path, died: tuple[int, ...] = ()
) -> dict[int, dict[str, Any]]:
    """Returns the notes of the ranks that have not died, whose programs have ended well."""
    for rank, one in enumerate(outcome):
        assert one["status"] == (-9 if rank in died else 0), (rank, one["stderr"])
    alive = [rank for rank in range(len(outcome)) if rank not in died]
    return {rank: json.loads((folder / f"said{rank}").read_text()) for rank in alive}


@pytest.mark.parametrize("size", [2, 4])
def test_the_rest_goes_on_after_a_death_in_a_call(
    spread: Scenario, tmp_path: Path, size: int
) -> None:
    said = told(spread("one_dies", size, tmp_path), tmp_path, died=(0,))
    for note in said.values():
        assert note["size"] == size - 1
        assert note["ranks"] == [*range(1, size)]
        assert len(note["calls"]) == size - 1
        assert note["interrupted"] in ("nowhere", "partly"), note
        assert "is closed" in note["closed"]
    assert len({str(note["calls"]) for note in said.values()}) == 1, "all know the same"


def test_ranks_die_one_by_one(spread: Scenario, tmp_path: Path) -> None:
    outcome = spread("two_die_one_by_one", 4, tmp_path)
    for note in told(outcome, tmp_path, died=(0, 3)).values():
        assert note == {"size": 2, "ranks": [1, 2], "calls": [1, 1], "interrupted": "no"}


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("hosts", ["aaaa", "aaba"])
def test_a_second_death_meanwhile(tmp_path: Path, hosts: str, delay: float) -> None:
    module = "tests.faults.going_on"
    with scenarios_of(module, RK_TEST_DELAY=str(delay), RK_TEST_HOSTS=hosts) as run:
        outcome = run("one_dies_and_another_meanwhile", 4, tmp_path)
    assert all(n == {"size": 2} for n in told(outcome, tmp_path, died=(0, 1)).values())


def test_a_rank_that_was_stopped_is_told(spread: Scenario, tmp_path: Path) -> None:
    said = told(spread("one_is_stopped", 3, tmp_path), tmp_path)
    assert said[0]["ranks"] == said[2]["ranks"] == [0, 2]
    assert said[1]["first"]["kind"] in ("CollectiveTimeoutError", "CommAbortedError")
    assert said[1]["then"]["kind"] == "CommAbortedError"
    assert "went on without rank 1, which did not come in time" in said[1]["then"]["text"]


def test_a_stopped_rank_writes_no_more_to_the_others(scenarios: Scenario, tmp_path: Path) -> None:
    said = told(scenarios("one_is_stopped_as_it_writes", 2, tmp_path), tmp_path)
    assert said[1]["then"]["kind"] == "CommAbortedError"
    assert said[0] == {"right": True, "sum": 1 << 20}


def test_a_rank_that_is_excluded(spread: Scenario, tmp_path: Path) -> None:
    said = told(spread("one_is_excluded", 3, tmp_path), tmp_path)
    for rank in (0, 2):
        assert said[rank]["ranks"] == [0, 2]
        assert said[rank]["interrupted"] == "no"
        assert said[rank]["itself"]["kind"] == said[rank]["unknown"]["kind"] == "ValueError"
        assert f"rank {rank} excludes itself" in said[rank]["itself"]["text"]
        assert "the ranks are 0 to 2" in said[rank]["unknown"]["text"]
    assert said[0]["moved"], "from where rank 1 could write to it"
    assert said[1]["first"]["kind"] == "CommAbortedError"
    assert "the others go on without the ranks [1]" in said[1]["first"]["text"]
    assert "went on without rank 1, which they excluded" in said[1]["then"]["text"]


def test_a_meeting_that_is_aborted_is_repeated(scenarios: Scenario, tmp_path: Path) -> None:
    outcome = scenarios("meeting_is_aborted", 3, tmp_path)
    for rank in (0, 1):
        assert outcome[rank]["status"] == 0, outcome[rank]["stderr"]
        said = json.loads((tmp_path / f"said{rank}").read_text())
        assert said["ranks"] == [0, 1]
        # Rank 0 may see the end of the first meeting before it goes there.
        assert said["meetings"] == 2 or rank == 0


def test_a_signal_ends_the_wait_for_the_others(spread: Scenario, tmp_path: Path) -> None:
    said = told(spread("interrupted", 2, tmp_path), tmp_path)
    assert said[0] == {"kind": "KeyboardInterrupt"}
    assert said[1]["ranks"] == [1]


def test_a_process_joins(scenarios: Scenario, tmp_path: Path) -> None:
    for note in told(scenarios("one_joins", 4, tmp_path), tmp_path, died=(0,)).values():
        first = note["first"]
        assert (first["size"], first["ranks"]) == (4, [0, 1, 2, None])
        assert (first["calls"], first["interrupted"]) == ([2, 2, 2, 0], "no")
        assert note["ranks"] == [1, 2, 3]


def test_a_process_replaces_one_that_died(scenarios: Scenario, tmp_path: Path) -> None:
    outcome = scenarios("one_replaces_the_dead", 4, tmp_path)
    for note in told(outcome, tmp_path, died=(1,)).values():
        assert note["ranks"] == [0, 2, None]


def test_a_process_that_joins_dies(scenarios: Scenario, tmp_path: Path) -> None:
    outcome = scenarios("joiner_dies", 4, tmp_path)
    for note in told(outcome, tmp_path, died=(3,)).values():
        assert note["ranks"] == [0, 1, None]


def test_a_member_dies_as_a_process_joins(scenarios: Scenario, tmp_path: Path) -> None:
    outcome = scenarios("member_dies_as_one_joins", 3, tmp_path)
    for note in told(outcome, tmp_path, died=(0,)).values():
        assert note["ranks"] == [1, 2]


def test_a_member_dies_as_it_invites(scenarios: Scenario, tmp_path: Path) -> None:
    outcome = scenarios("member_dies_as_it_invites", 3, tmp_path)
    for note in told(outcome, tmp_path, died=(0,)).values():
        assert note["ranks"] == [1, None]


@pytest.fixture(scope="module")
def games() -> Iterator[Scenario]:
    with scenarios_of("tests.faults.regroups", "--serve", OMP_NUM_THREADS="1") as run:
        yield run


@pytest.mark.parametrize("moment", [*regroups.MOMENTS, regroups.STOP])
def test_ranks_die_at_random_moments(games: Scenario, tmp_path: Path, moment: str) -> None:
    """`make faults` kills many more."""
    rng, results = random.Random(moment), regroups.Results()
    events = [regroups.Event.draw(rng, 3, moment) for _ in range(3)]
    regroups.play_game(games, tmp_path / "game", 3, events, results)
    assert not results.wrong
    assert results.kills == sum(len(event.victims) for event in events)
    if moment != regroups.GROW:  # there, a rank may die in the first call of a new process
        assert len(results.joined) == results.kills
    assert len(results.times[moment]) >= 3


@pytest.mark.slow
def test_a_training_whose_ranks_die() -> None:
    """`make faults` kills many more."""
    module = "tests.faults.regrouped_trainings"
    command = [sys.executable, "-m", module, "--kills", "3", "--ranks", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 ranks: 3 deaths: as the reference" in done.stdout


def test_a_group_shrinks_after_a_death(scenarios: Scenario, tmp_path: Path) -> None:
    said = told(scenarios("group_shrinks", 4, tmp_path), tmp_path, died=(1,))
    assert {rank: note["now"] for rank, note in said.items()} == {0: 0, 2: 1, 3: 2}
    assert said[0]["unaware"]["kind"] == "PeerLostError"
    assert re.search(r"rank 1 \(pid \d+\) died before its first", said[0]["unaware"]["text"])


@pytest.mark.parametrize("ring", ["of the backend", "over the group"])
def test_a_stopped_rank_of_a_group_writes_no_more(
    scenarios: Scenario, tmp_path: Path, ring: str
) -> None:
    if ring == "over the group":
        (tmp_path / "over").touch()
    said = told(scenarios("writer_in_a_group_stops", 2, tmp_path), tmp_path)
    assert said[1]["kind"] in ("CollectiveTimeoutError", "CommAbortedError")
    assert said[0] == {"right": True}


@pytest.mark.skipif(
    not hasattr(dist.distributed_c10d, "_reconfigure"), reason="reconfigure() needs torch 2.14"
)
def test_a_group_takes_a_new_process(scenarios: Scenario, tmp_path: Path) -> None:
    said = told(scenarios("group_takes_a_new_process", 4, tmp_path), tmp_path, died=(1,))
    assert {rank: note["now"] for rank, note in said.items()} == {0: 0, 2: 2, 3: 1}


def test_only_the_last_meeting_counts() -> None:
    """A rank that was stopped invites to its meeting when the others have met in another one."""
    joiners = Joiners(dist.HashStore(), "x", 1)
    origin = _regrouped([0], [(1, 1)], 1)
    first, last = (
        _Invitation(1, 2, "x", joiners.new_address(), ("cpu",), ((0, 0),), origin) for _ in "ab"
    )
    assert joiners.invitation(place=7, after=0) is None
    joiners.invite(7, last)
    joiners.invite(7, first)
    assert joiners.invitation(place=7, after=0) == (2, last)
    assert joiners.invitation(place=7, after=2) is None


def test_nobody_takes_a_process_in() -> None:
    with pytest.raises(RendezvousError, match="no communicator has taken this process in"):
        ringkern.Communicator.join(dist.HashStore(), timeout=timedelta(milliseconds=50))


def test_use_that_cannot_work() -> None:
    one = ringkern.Communicator.from_store(dist.HashStore(), 0, 1)
    with pytest.raises(ValueError, match="count is 0"):
        one.grow(dist.HashStore(), 0)
    same = one.shrink()  # also of a communicator that has made no call
    assert (same.size, same.regrouped) == (1, _regrouped([0], [(0, 0)], 0))
    with pytest.raises(CommUsageError, match="is closed"):
        one.shrink()
    same.close()
    failed = ringkern.Communicator.from_store(dist.HashStore(), 0, 1)
    failed.abort()
    with pytest.raises(CommUsageError, match="were never connected"):
        failed.shrink()


def test_how_far_the_interrupted_call_came() -> None:
    assert _regrouped([0, 2], [(5, 5), (5, 5)], 0).interrupted == "no"
    assert _regrouped([0, 2], [(5, 5), (5, 6)], 0).interrupted == "nowhere"
    partly = _regrouped([0, 2], [(6, 6), (5, 6)], 1)
    assert (partly.interrupted, partly.ranks, partly.calls) == ("partly", (0, 2, None), (6, 5, 0))
    assert [_name_after(n) for n in ("x", "x~2", "~9", "x~y")] == ["x~2", "x~3", "~9~2", "x~y~2"]
