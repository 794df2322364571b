"""Computations and decisions of the parts of ``make gpu`` that need no GPU."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu import (
    bounded,
    build,
    cases,
    device,
    graph,
    missing_peer,
    part,
    processes,
    sanitizer,
    timing,
    tune,
)
from bench.gpu.part import Context, Failed, nvcc_command
from ringkern.local import Ring
from tests.ranks import Ranks

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "bench/gpu"
SOURCES = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".cu", ".cpp"))


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context("a_part", tmp_path / "state.json", tmp_path, "cpu", True, "", 60.0, {})


# ---- sources


@pytest.mark.parametrize("source", SOURCES)
def test_every_program_compiles(source: str, tmp_path: Path) -> None:
    nvcc = device.find_nvcc()
    if not nvcc:
        pytest.skip("there is no nvcc")
    # Linked where all is in one file; sanitize.cpp links ringkern's library.
    how = ["-c"] if source.endswith(".cpp") else []
    command = [*nvcc_command(nvcc, source, "90"), "-Werror=all-warnings", *how]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "program")], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    if how:
        return
    # Without a GPU the first CUDA call fails; with one, this test must not run it.
    if not device.find().count:
        ran = subprocess.run([tmp_path / "program"], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 1
        assert "cuda" in ran.stderr
        assert ran.stdout == ""


def test_no_line_is_too_long() -> None:
    for path in FOLDER.iterdir():
        if path.suffix in (".cu", ".cuh", ".cpp"):
            assert max(map(len, path.read_text().splitlines())) <= 100, path


def test_test_targets_are_cmakes() -> None:
    assert set(build.test_targets(ROOT)) >= {"cuda_launch_test_cpp", "cuda_local_ring_test_cpp"}
    assert '"[/.]" "_" _target' in (ROOT / "CMakeLists.txt").read_text()


# ---- results of other programs


def test_verdicts_of_compute_sanitizer() -> None:
    clean = "========= ERROR SUMMARY: 0 errors\n"
    assert sanitizer.verdict(clean, 0)["status"] == "passed"
    assert sanitizer.verdict(clean, 1)["status"] == "failed"  # results were wrong
    found = sanitizer.verdict("========= ERROR SUMMARY: 3 errors\n", 9)
    assert (found["status"], found["reason"]) == ("failed", "ERROR SUMMARY: 3 errors (status 9)")
    races = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    assert sanitizer.verdict(races, 0)["status"] == "passed"
    assert sanitizer.verdict("Error: Device not supported", 1)["status"] == "skipped"
    assert sanitizer.verdict("", 255)["status"] == "failed"


def test_a_sanitizer_has_its_share_of_the_time(context: Context, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n[ $2 = memcheck ] || sleep 60\necho '= ERROR SUMMARY: 0 errors'\n")
    tool.chmod(0o755)
    assert sanitizer.check(context, str(tool), "memcheck", ["x"], 20.0)["status"] == "passed"
    slow = sanitizer.check(context, str(tool), "racecheck", ["x"], 1.0)
    assert slow == {"status": "timed out", "reason": "was ended after 1 s"}


def test_a_program_that_does_not_end_is_ended(context: Context) -> None:
    sleep = [sys.executable, "-c", "import time; print('before', flush=True); time.sleep(60)"]
    with pytest.raises(subprocess.TimeoutExpired):
        context.run(sleep, seconds=1.0)
    assert context.run([sys.executable, "-c", "print(7)"]).stdout == "7\n"
    with pytest.raises(Failed, match="ended with 3: why"):
        context.run([sys.executable, "-c", "print('why'); raise SystemExit(3)"])
    compiler = (
        "print('a.cpp:1: error: first\\na.cpp:2: error: second\\nstopped'); raise SystemExit(1)"
    )
    with pytest.raises(Failed, match=r"ended with 1: a\.cpp:1: error: first"):
        context.run([sys.executable, "-c", compiler])


def test_a_missing_peer_must_be_named() -> None:
    timeout = ("CollectiveTimeoutError", "ll: rank 2 waited for data from rank 1 on ...", 3.1)
    aborted = ("CommAbortedError", "rank 0 waited for data from rank 2 ...", 3.2)
    pre_empted = ("CommAbortedError", "rank 2 waited for data from rank 1 ...", 3.2)
    absent = ("absent", "", 0.0)
    assert missing_peer.judge([aborted, absent, timeout]) == []
    # Two deadlines pass at once, and the other rank is the first.
    assert missing_peer.judge([("CollectiveTimeoutError", "", 3.0), absent, pre_empted]) == []
    # Then it names the late rank at second hand.
    told = (
        "rank 0 waited for data from rank 2 ... Waiting for rank 1 (pid 7), which has made no call"
    )
    second_hand = ("CommAbortedError", told, 3.2)
    assert missing_peer.judge([timeout, absent, second_hand]) == []
    other = ("CommAbortedError", told.replace("rank 1", "rank 11"), 3.2)
    assert missing_peer.judge([timeout, absent, other])
    assert missing_peer.judge([aborted, absent, aborted])
    assert missing_peer.judge([aborted, absent, pre_empted])
    assert missing_peer.judge([aborted, absent, (*timeout[:2], 60.0)])
    assert missing_peer.judge([("nothing", "", 3.0), absent, timeout])


def test_ranks_that_ask_raise_whatever_the_policy_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGKERN_ON_FAULT", "exit")
    ranks = Ranks(2, timeout_s=40)
    try:
        assert missing_peer.judge(missing_peer.told_in_vain(ranks, "cpu", "simple")) == []
    finally:
        ranks.kill()


def test_a_tuning_is_kept(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a stand-in command, so no GPU is needed."""

    def main(arguments: list[str]) -> int:
        assert arguments[:3] == ["tune", "--device", "cuda"]
        for option in ("--out", "--json"):
            path = Path(arguments[arguments.index(option) + 1])
            path.write_text(json.dumps({"by": option}))
        return status

    (context.work / "site" / "ringkern").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("ringkern.tools.main", main)
    status = 0
    tune.run(context)
    assert context.figures == {"tuning": {"by": "--out"}, "found": {"by": "--json"}}
    status = 2
    with pytest.raises(Failed, match="tune ended with 2"):
        tune.run(context)


def test_ranks_that_never_ask_end_with_an_error() -> None:
    assert missing_peer.judge_ends([(1, 3.4), (0, 0.0), (1, 5.0)]) == []
    assert missing_peer.judge_ends([(1, 3.4), (0, 0.0), (0, 13.0)]) == [
        "rank 2 ended with 0 after 13.0 s"
    ]
    for end in ((None, 60.0), (1, 0.1), (1, 12.0), (-9, 3.4)):
        assert len(missing_peer.judge_ends([end, (0, 0.0)])) == 1


def test_processes_count_as_their_slowest() -> None:
    line = {"contender": "ringkern/ll", "size_bytes": 1000, "wrong": 0}
    first = {**line, "hot_times_us": [1.0, 5.0, 2.0], "cold_times_us": [4.0]}
    second = {**line, "hot_times_us": [3.0, 1.0, 1.0], "cold_times_us": [6.0]}
    row = processes.merged([first, second], 2)
    assert (row["hot_times_us"], row["hot_us"], row["cold_us"]) == ([3.0, 5.0, 2.0], 3.0, 6.0)
    refused = {"contender": "one_shot_all_reduce", "refused": "overlapping devices"}
    assert processes.merged([refused, refused], 2) == refused


# ---- checks that run on the device, here on the CPU


def test_a_graph_checks_itself() -> None:
    checked = graph.Checked("cpu", range(3), 3, 1001)
    with Ring(["cpu"] * 3) as ring:
        for _ in range(5):
            checked.once(functools.partial(ring.all_reduce, protocol="ll"))
        assert (int(checked.step), int(checked.bad)) == (5, 0)
    checked.once(lambda tensors: None)
    assert int(checked.bad) > 0


def test_a_tally_sees_one_bit(context: Context) -> None:
    tally = cases.Tally(context)
    expected = torch.zeros(1000, dtype=torch.bfloat16)
    actual = expected.clone()
    tally.expect(actual, expected, "equal")
    tally.settle()
    assert tally.wrong == []
    actual[7] = -0.0
    tally.expect(actual, expected, "a negative zero")
    with pytest.raises(Failed, match="1 of 2 wrong; first: a negative zero: 1 elements differ"):
        tally.finish()
    kept = json.loads(context.state.read_text())["figures"]
    assert (kept["cases"], kept["wrong"]) == (2, 1)


def test_a_program_shows_how_far_it_is_while_it_runs(
    context: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bounded, "TICK_SECONDS", 0.05)
    shown = context.work / "shown"
    # It continues after its first line was shown, and not before.
    program = (
        "import os, time\nprint('first', flush=True)\n"
        f"while not os.path.exists({str(shown)!r}): time.sleep(0.01)\nprint('last')"
    )

    def watched(*arguments: Any, grace: float, tick: Any) -> Any:
        def look() -> None:
            tick()
            if capsys.readouterr().out.endswith("first\n"):
                shown.touch()

        return bounded.run_bounded(*arguments, grace, look)

    monkeypatch.setattr(part, "run_bounded", watched)
    done = context.run([sys.executable, "-c", program], seconds=20.0)
    assert done.stdout == "first\nlast\n"


def test_timed_tensors_stay_finite_and_are_no_zeros() -> None:
    for ranks in (2, 4, 8):
        buffers = timing.Buffers(ranks, 1000, "cpu")
        for size in (8, 1 << 20, 1 << 30):
            grown = buffers.sources[0] * float(ranks) ** timing.calls_for(size, ranks)
            assert torch.isfinite(grown).all()
            assert (buffers.tensors[0] != 0).all()


def test_wrong_results_are_counted() -> None:
    buffers = timing.Buffers(3, 500, "cpu")
    with Ring(["cpu"] * 3) as ring:
        assert buffers.wrong_after(lambda: ring.all_reduce(buffers.tensors)) == 0
    assert buffers.wrong_after(lambda: None) > 0
    assert torch.equal(buffers.tensors[1], buffers.sources[1])


def test_a_rehearsal_of_parts_on_the_cpu(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER), "--rehearse", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--parts", "hello,misaligned,sanitizer"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    status = json.loads((tmp_path / "summary.json").read_text())["status"]
    passed = ("extension", "hello", "misaligned")
    assert status == {name: "passed" if name in passed else "skipped" for name in status}
    assert list(status) == ["core", "extension", "hello", "misaligned", "sanitizer"]
