"""Ranks that die, leave, are stopped, or make other calls than the rest: the errors in Python."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.comm.exits import scenarios_of
from tests.faults import fates
from tests.faults.fates import error_of
from tests.ranks import Pool
from tests.torch import fake_cuda
from tests.torch.rings import ring
from tests.torch.test_api import summed, values
from tests.torch.test_backend_failures import made
from tests.torch.test_backend_input import check_that_it_works

Scenario = Callable[[str, int, Path], list[dict[str, Any]]]
NEVER = timedelta(seconds=600)  # an event earlier than this was not caused by it


@pytest.fixture(scope="module")
def scenarios() -> Iterator[Scenario]:
    with scenarios_of("tests.faults.fates") as run:
        yield run


def told(outcome: list[dict[str, Any]], folder: Path, *ranks: int) -> list[dict[str, Any]]:
    """Returns the notes of these ranks, whose programs have ended well."""
    for rank in ranks:
        assert outcome[rank] == {"status": 0, "stderr": ""}, outcome[rank]["stderr"]
    return [json.loads((folder / f"said{rank}").read_text()) for rank in ranks]


def reports(folder: Path, rank: int) -> list[str]:
    """Returns the library's unrequested reports on standard error of a rank."""
    return (folder / f"reports{rank}").read_text().splitlines(keepends=True)


# ---- a rank that ends ---------------------------------------------------------------------------


def _heard_of_rank_1(said: dict[str, Any]) -> str:
    """Returns the error text about its end, from a rank that was in a call."""
    first, again = said["first"], said["again"]
    if first["kind"] == "CommAbortedError":  # between two calls
        assert "became unusable" in first["text"]
    else:
        assert first["kind"] == "PeerLostError"
        assert first["seq"] >= 1
    assert first["rank"] == again["rank"] == 1
    assert again["kind"] == "CommAbortedError"
    reason = re.search(r"rank 1 .*make a new one\.", first["text"])
    assert reason is not None, first["text"]
    assert reason[0] in again["text"], "the first reason is the cause of all others"
    return reason[0]


def test_kill_9_during_a_call(scenarios: Scenario, tmp_path: Path) -> None:
    outcome = scenarios("killed", 3, tmp_path)
    assert outcome[1]["status"] == -9
    said = told(outcome, tmp_path, 0, 2)
    texts = {_heard_of_rank_1(one) for one in said}
    assert len(texts) == 1, "all ranks give the same reason"
    for one in said:
        fault = one["first"]["fault"]
        assert fault["event"] in ("died_in_call", "died_between_calls"), fault
        assert (fault["cause"], fault["rank"], fault["signal"]) == ("peer_lost", 1, 9)
        assert fault["pid"] > 0
        assert "collective" not in fault or fault["collective"] == "all_reduce"
        assert fault["text"] in one["first"]["text"]
    assert any(one["first"]["kind"] == "PeerLostError" for one in said)
    (report,) = [line for rank in (0, 2) for line in reports(tmp_path, rank)]
    assert report == f"communicator 'ringkern/0': {said[0]['first']['fault']['text']}\n"
    for one in said:
        if one["first"]["kind"] == "PeerLostError":
            assert "waited for" in one["first"]["phase"], one


@pytest.mark.parametrize(("name", "status"), [("sys_exit", 0), ("exception", 1)])
def test_a_rank_that_leaves_early(
    scenarios: Scenario, tmp_path: Path, name: str, status: int
) -> None:
    outcome = scenarios(name, 3, tmp_path)
    assert outcome[1]["status"] == status
    for said in told(outcome, tmp_path, 0, 2):
        text = _heard_of_rank_1(said)
        fault = said["first"]["fault"]
        assert (fault["event"], fault["rank"], fault["seq"]) == ("left", 1, 4), fault
        assert fault["reporter"] in (0, 2)
        assert fault["call"] == "seq=4 all_reduce sum float32[300000]"
        assert "after seq=3" in text


def test_a_rank_that_ends_without_leaving(scenarios: Scenario, tmp_path: Path) -> None:
    outcome = scenarios("os_exit", 3, tmp_path)
    assert outcome[1]["status"] == 3
    for said in told(outcome, tmp_path, 0, 2):
        assert "died" in _heard_of_rank_1(said)
        assert said["first"]["fault"]["exit_code"] == 3
        assert "signal" not in said["first"]["fault"]


# ---- programs that never check a call ------------------------------------------------------------


@pytest.fixture(scope="module")
def on_cuda() -> Iterator[Scenario]:
    if (reason := fake_cuda.why_not()) is not None:
        pytest.skip(reason)
    with scenarios_of(*fake_cuda.over_fake("tests.faults.fates")) as run:
        yield run


@pytest.fixture
def never_looks(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Any]:
    def run(plan: str) -> list[dict[str, Any]]:
        (tmp_path / "plan").write_text(plan)
        scenarios = request.getfixturevalue("on_cuda" if "cuda" in plan else "scenarios")
        outcome: list[dict[str, Any]] = scenarios("never_looks", 3, tmp_path)
        return outcome

    return run


@pytest.mark.parametrize(
    ("on_fault", "deed", "device"),
    [
        ("exit", "killed", "cpu"),
        ("exit", "aborts", "cpu"),
        ("exit", "message", "cpu"),
        ("default", "killed", "cuda"),
        ("default", "aborts", "cuda"),
    ],
)
def test_a_program_that_never_looks_ends(
    never_looks: Callable[[str], Any], tmp_path: Path, on_fault: str, deed: str, device: str
) -> None:
    """With on_fault "exit" it cannot continue with the results of a failed call."""
    outcome = never_looks(f"{on_fault} {deed} {device}")
    concerned = [0] if deed == "message" else [0, 2]
    for rank in concerned:
        assert outcome[rank]["status"] == 1, outcome[rank]
        assert (
            "ringkern: ending this process because a group of it has failed"
            in outcome[rank]["stderr"]
        )
        assert "rank 1" in outcome[rank]["stderr"]
        assert not (tmp_path / f"done{rank}").exists()
    if deed == "killed":
        assert len([line for rank in concerned for line in reports(tmp_path, rank)]) == 1
    if deed == "aborts":
        assert outcome[1]["status"] == 0, "it has ended the group itself, and goes on"


def test_a_program_that_closes_its_group_goes_on(never_looks: Callable[[str], Any]) -> None:
    """A message is pending that no rank sends."""
    outcome = never_looks("exit closes cpu")
    assert [rank["status"] for rank in outcome] == [0, 0, 0], outcome


@pytest.mark.parametrize("plan", ["default killed cpu", "raise killed cpu", "raise killed cuda"])
def test_a_program_that_never_looks_goes_on_where_calls_raise(
    never_looks: Callable[[str], Any], tmp_path: Path, plan: str
) -> None:
    outcome = never_looks(plan)
    for rank in (0, 2):
        assert outcome[rank] == {"status": 0, "stderr": ""}
    assert len([line for rank in (0, 2) for line in reports(tmp_path, rank)]) == 1


# ---- a rank that is stopped ---------------------------------------------------------------------


def test_a_rank_that_is_stopped_and_goes_on_costs_a_warning(
    scenarios: Scenario, tmp_path: Path
) -> None:
    first, victim, third = told(scenarios("stopped_for_a_while", 3, tmp_path), tmp_path, 0, 1, 2)
    assert victim["warnings"] == []
    for rank, said in ((0, first), (2, third)):
        (text,) = said["warnings"]
        assert f"rank {rank} has waited 5.0 s in seq=2 all_reduce sum float32[1000] for " in text
        assert re.search(
            r"for rank 1 \(pid \d+\), which has not made this call; its last was seq=1", text
        ), text
        assert "its process is stopped by a signal (state T)" in text
        assert "fails after 600.0 s" in text


def test_a_rank_that_is_stopped_for_too_long(scenarios: Scenario, tmp_path: Path) -> None:
    first, victim, third = told(scenarios("stopped_for_too_long", 3, tmp_path), tmp_path, 0, 1, 2)
    for said in (first, third):
        error = said["first"]
        assert error["kind"] == "CollectiveTimeoutError"
        assert (error["rank"], error["seq"]) == (1, 2)
        assert "waited for data from" in error["phase"]
        fault = error["fault"]
        assert (fault["event"], fault["rank"], fault["seq"]) == ("wait_timeout", 1, 2), fault
        assert fault["timeout_s"] == 2.0
        assert fault["waits_for"] in ("data", "credit")
        assert fault["wanted"] > fault["seen"]
        assert "which has not made this call; its last was seq=1 " in error["text"]
        assert "its process is stopped by a signal (state T)" in error["text"]
        assert said["again"]["kind"] == "CommAbortedError"
    late = victim["first"]
    assert late["kind"] == "CommAbortedError", "it called when all was over"
    assert "nothing came for 2.0 s" in late["text"]


# ---- a rank that fails while the others are in backward() ---------------------------------------


AT_LENGTH = "RK_TEST_LIVES" in os.environ  # like `make faults`


def _some(cases: list[Any], every: int) -> list[Any]:
    """Returns all cases in the long run, otherwise every n-th of them."""
    return cases if AT_LENGTH else cases[::every]


FAULTS = ["killed", "stopped", "mismatch"]


@pytest.mark.parametrize(
    ("fault", "wrapper"), _some([*itertools.product(FAULTS, fates.WRAPPERS)], 3)
)
def test_backward_raises_what_the_collective_does(
    scenarios: Scenario, tmp_path: Path, wrapper: str, fault: str
) -> None:
    """torch's C++ engine lies between the two."""
    (tmp_path / "plan").write_text(f"{wrapper} {fault}")
    outcome = scenarios("trains", 3, tmp_path)
    kind = {
        "killed": "PeerLostError",
        "stopped": "CollectiveTimeoutError",
        "mismatch": "CollectiveMismatchError",
    }[fault]
    for said in told(outcome, tmp_path, 0, 2):
        first = said["first"]
        assert (first["kind"], first["rank"], said["steps"]) == (kind, 1, 3), first
        assert first["seq"] > 1
        assert "waited for" in first["phase"]
        assert "rank 1" in first["text"]


# ---- a rank that ends before its first call -----------------------------------------------------

SOON_S = 20.0  # less than the timeout of 60 s, on a busy machine


APIS = ["backend", "communicator"]
DEEDS = {"killed": -9, "exits": 0, "leaves": 0}


@pytest.mark.parametrize(
    ("api", "hosts", "deed"),
    _some([*itertools.product(APIS, ["", "aab", "abb", "aba"], DEEDS)], 5),
    ids=lambda value: value or "one host",
)
def test_a_rank_that_ends_before_its_first_call(
    scenarios: Scenario, tmp_path: Path, api: str, hosts: str, deed: str
) -> None:
    status = DEEDS[deed]
    (tmp_path / "plan").write_text(f"{api} {deed} {hosts}")
    outcome = scenarios("before_the_first_call", 3, tmp_path)
    assert outcome[1]["status"] == status
    pid = (tmp_path / "made1").read_text()
    event = "died_early" if deed == "killed" else "left_early"
    for said in told(outcome, tmp_path, 0, 2):
        first, again = said["first"], said["again"]
        assert (first["kind"], first["rank"]) == ("PeerLostError", 1), first
        assert (first["fault"]["event"], first["fault"]["pid"]) == (event, int(pid)), first
        assert again["kind"] == "CommAbortedError"
        for text in (first["text"], again["text"]):
            assert re.search(rf"rank 1 (on host [ab] )?\(pid {pid}\)", text), text
            assert "before its first call" in text
        assert said["took"] < SOON_S


@pytest.mark.parametrize(
    ("api", "hosts"),
    _some([*itertools.product(APIS, ["", "aab"])], 3),
    ids=lambda value: value or "one host",
)
def test_a_rank_that_is_late_to_its_first_call_is_waited_for(
    scenarios: Scenario, tmp_path: Path, api: str, hosts: str
) -> None:
    (tmp_path / "plan").write_text(f"{api} late {hosts}")
    outcome = scenarios("before_the_first_call", 3, tmp_path)
    assert outcome == [{"status": 0, "stderr": ""}] * 3


@pytest.mark.parametrize(
    ("hosts", "kind"),
    [("", "RendezvousError"), ("aba", "CollectiveTimeoutError")],
    ids=["one host", "aba"],
)
def test_two_waits_are_no_longer_than_the_timeout(
    scenarios: Scenario, tmp_path: Path, hosts: str, kind: str
) -> None:
    (tmp_path / "plan").write_text(hosts)
    for said in told(scenarios("waits_twice", 3, tmp_path), tmp_path, 0, 2):
        assert said["first"]["kind"] == kind
        assert "rank 1" in said["first"]["text"]
        assert said["took"] < 12, "it would be 14, of a timeout of 8"


# ---- ranks that make different calls ------------------------------------------------------------

ODD = 2  # the rank that differs
Call = Callable[..., Any]


def _by_group(group: dist.ProcessGroup, field: str, odd: bool) -> Call:
    x = fates.differing(torch.ones(100), field, odd)
    if odd and field == "the collective":
        return lambda **how: dist.all_gather_into_tensor(torch.ones(300), x, group, **how)
    op = dist.ReduceOp.MAX if odd and field == "op" else dist.ReduceOp.SUM
    return lambda **how: dist.all_reduce(x, op, group, **how)


def _made(call: Call, async_op: bool) -> None:
    work = call(async_op=async_op)
    if async_op:
        work.wait()


def _errors(call: Call, async_op: bool) -> list[dict[str, Any]]:
    errors = [error_of(lambda: _made(call, async_op)) for _ in range(2)]
    dist.barrier()
    return errors


def _differs_on_a_communicator(
    rank: int, size: int, field: str, async_op: bool
) -> list[dict[str, Any]]:
    with ringkern.Communicator(timeout=NEVER) as communicator:
        communicator.all_reduce(torch.ones(10))
        dist.barrier()
        errors = _errors(fates.odd_call(communicator, field, rank == ODD), async_op)
    with ringkern.Communicator() as communicator:
        x = values(rank)
        communicator.all_reduce(x)
        assert torch.equal(x, summed(size))
    return errors


def _differs_in_a_group(rank: int, size: int, field: str, async_op: bool) -> list[dict[str, Any]]:
    group = made(NEVER)
    errors = _errors(_by_group(group, field, rank == ODD), async_op)
    dist.destroy_process_group(group)
    check_that_it_works(rank, size, ring())
    return errors


BOTH = {
    "dtype": ("float32", "float64"),
    "op": ("sum", "max"),
    "numel": ("100", "101"),
    "the collective": ("all_reduce", "all_gather"),
    "protocol": ("simple", "ll"),
}


def _check_mismatch(field: str, said: list[list[dict[str, Any]]]) -> None:
    theirs, odd = BOTH[field]
    told_in_time = 0
    for rank, (first, again) in enumerate(said):
        text = first["text"]
        assert re.search(
            rf"seq=\d+: ranks disagree on {field}: "
            rf"rank [01] has {theirs} \(seq=.*\), rank 2 has {odd} \(seq=",
            text,
        ), text
        assert "Last calls of rank 2: seq=" in text or "; of rank 2: seq=" in text
        assert "same calls in the same order" in text
        assert first["rank"] == again["rank"] == ODD
        assert again["kind"] == "CommAbortedError"
        assert "ranks disagree on " + field in again["text"]
        if first["kind"] == "CollectiveMismatchError":
            told_in_time += 1
            assert first["seq"] == 2 or field in text, text
        else:  # a rank that came after the failure was known
            assert (first["kind"], rank == ODD) == ("CommAbortedError", False)
    assert told_in_time >= 2


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("field", BOTH)
def test_mismatches_on_a_communicator(ranks: Pool, field: str, async_op: bool) -> None:
    _check_mismatch(field, ranks(3).run(_differs_on_a_communicator, field, async_op))


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("field", [field for field in BOTH if field != "protocol"])
def test_mismatches_in_a_group(ranks: Pool, field: str, async_op: bool) -> None:
    _check_mismatch(field, ranks(3).run(_differs_in_a_group, field, async_op))
