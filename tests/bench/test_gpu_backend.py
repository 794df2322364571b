"""The part ``backend`` of ``make gpu``: a rehearsal on the CPU, and that what is wrong is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu import backend, backend_calls, backend_wrappers, cases
from bench.gpu.backend_rank import Rank
from bench.gpu.part import Context, Failed
from bench.gpu.parts import PARTS, select
from tests.ranks import RankError, Ranks, RankTimeout

FOLDER = Path(__file__).resolve().parents[2] / "bench/gpu"


def test_the_backend_part_comes_before_speed() -> None:
    names = [part.name for part in PARTS]
    assert names.index("backend") + 1 == names.index("backend_k4") < names.index("speed")
    assert names[-1] == "one_queue"
    assert select("backend")[-1].rehearses


def test_a_rehearsal_with_two_ranks(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER), "--rehearse", "--files", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--parts", "backend"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "backend.json").read_text())
    figures = found["figures"]
    assert (found["status"], figures["wrong"], figures["complete"]) == ("passed", 0, True)
    rows = {row["check"]: row["cases"] for row in figures["rows"]}
    assert list(rows) == list(backend.CHECKS)
    assert all(number > 0 for number in rows.values())
    assert {row["processes"] for row in figures["rows"]} == {2}
    assert figures["cases"] == sum(rows.values())
    assert f"{figures['cases']} cases, 0 wrong" in done.stdout


class Idle(Rank):
    """A rank whose calls do nothing."""

    def call(self, function: Any, *args: Any, **options: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("check", "kinds"),
    [
        (backend_calls.all_reduce, 22),
        (backend_calls.with_a_root, 16),
        (backend_calls.all_gather, 6),
        (backend_calls.reduce_scatter, 6),
        (backend_calls.all_to_all, 6),
    ],
)
def test_every_comparison_sees_a_call_that_does_nothing(check: Any, kinds: int) -> None:
    seen, wrong = set(), set()
    for rank in range(2):
        at = Idle(rank, 2, "cpu")
        check(at)
        seen |= {what for what, _ in at._found}
        wrong |= {text.partition(f", rank {rank} of 2: ")[0] for text in at.settle()[1]}
    assert wrong == seen
    assert len(seen) == kinds


def test_a_rank_counts_what_differs() -> None:
    at = Rank(1, 2, "cpu")
    tensor = at.mine(100, torch.bfloat16)
    at.expect("the same", tensor, at.of(1, 100, torch.bfloat16))
    tensor[7:9] = -0.0
    at.asynchronous = True
    at.expect("zeros", tensor, at.of(1, 100, torch.bfloat16))
    assert at.settle() == (2, ["async zeros, rank 1 of 2: 2 elements differ"])
    assert at.settle() == (0, [])
    poisoned = at.empty(3)
    assert not torch.isin(poisoned, torch.arange(-200.0, 200.0)).any()
    assert torch.equal(cases.bits_of(poisoned), torch.full((3,), 0x6D6D, dtype=torch.int32))


def test_wrappers_train_what_one_process_trains() -> None:
    """``make gpu-preflight`` runs the others, some of which take a minute."""
    ranks = Ranks(2)
    try:
        for name in ("fsdp2", "tensor parallel"):
            row, wrong = backend.check(ranks, name, "cpu")
            assert (row["cases"], row["wrong"], wrong) == (8, 0, [])
    finally:
        ranks.kill()
    at = Rank(0, 2, "cpu")
    alone = backend_wrappers.train(backend_wrappers.network(at), backend_wrappers.of_this(at))
    backend_wrappers.expect_trained(at, "the data of one rank", alone.parameters())
    assert len(at.settle()[1]) == 4


class Broken:
    """Stands in for ranks."""

    size = 2

    def __init__(self, error: Exception) -> None:
        self.error = error

    def run(self, *args: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            RankError(1, "ValueError", "no such root", "Traceback (most recent ...)\n  File x"),
            "RankError: rank 1 raised ValueError: no such root",
        ),
        (RankTimeout("rank 0 of 2 did not answer"), "RankTimeout: rank 0 of 2 did not answer"),
        (EOFError(), "EOFError: "),
    ],
)
def test_a_check_that_does_not_come_back_is_wrong(
    error: Exception, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row, wrong = backend.check(Broken(error), "ddp", "cpu")  # type: ignore[arg-type]
    assert row == {"processes": 2, "check": "ddp", "cases": 0, "wrong": 1}
    assert wrong == [f"k=2 ddp: {text}"]
    assert str(error) in capsys.readouterr().out  # in the log is all of it


class Scripted:
    """Ranks of which one finds something wrong in each of its checks."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self._processes: list[Any] = []

    def run(self, function: Any, name: str, device: str) -> Any:
        return [(3, []), (3, [f"{name} differs"])]

    def close(self) -> None:
        pass

    def kill(self) -> None:
        pass


class Silent(Scripted):
    def run(self, *args: Any) -> Any:
        raise RankTimeout("nobody answers")


def test_a_wrong_result_fails_the_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "Ranks", Scripted)
    monkeypatch.setattr(Context, "use_ringkern", lambda self: None)
    context = Context("backend", tmp_path / "s.json", tmp_path, "cpu", False, "", 60.0, {})
    number = len(backend.CHECKS)
    with pytest.raises(Failed, match=f"{number} wrong; first: k=2 messages: messages differs"):
        backend.run(context)
    kept = json.loads(context.state.read_text())["figures"]
    assert (kept["wrong"], kept["cases"], len(kept["rows"])) == (number, 6 * number, number)
    context.name = "backend_k4"
    with pytest.raises(Failed, match="first: k=4 messages: messages differs"):
        backend.run(context)


def test_checks_without_time_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "use_ringkern", lambda self: None)
    monkeypatch.setattr(backend, "Ranks", Silent)
    context = Context("backend", tmp_path / "s.json", tmp_path, "cpu", False, "", 60.0, {})
    with pytest.raises(Failed, match="3 wrong; first: k=2 messages: RankTimeout: nobody answers"):
        backend.run(context)
    assert (context.figures["cases"], context.figures["complete"]) == (0, False)
    late = Context("backend", tmp_path / "s.json", tmp_path, "cpu", False, "", 0.0, {})
    with pytest.raises(Failed, match="not one check was run in time"):
        backend.run(late)
    assert late.figures["complete"] is False
