"""The runner itself, on a suite with known outcomes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conformance.__main__ import TORCH_SUITE, main
from tests.conformance.known import KNOWN, OF_MPI, Known, known_in
from tests.conformance.pool import Pool, prepare

PLANTED = "tests.conformance.planted:Planted"
ROOT = Path(__file__).parents[2]
LIMIT_S = 60


def run(match: str, *more: str, known: tuple[Known, ...] = ()) -> int:
    arguments = ["--suite", PLANTED, "--ranks", "2", "--match", match, *more]
    return main(arguments, known=known)


def gone(pid: int) -> bool:
    """Returns whether it has ended; without a parent that reaps it, it stays a zombie."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_conforms(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("passes|never") == 0
    out = capsys.readouterr().out
    total = "1 passed, 0 failed, 1 skipped"
    assert f"gloo, 2 ranks: {total} in " in out
    assert f"ringkern, 2 ranks: {total} in " in out
    assert [line.split() for line in out.splitlines() if line.startswith("    2  ")] == [
        ["2", *total.split(), *total.split()]
    ]
    assert "Differences" not in out
    assert "Errors" not in out


@pytest.mark.parametrize(
    ("test", "status", "reason"),
    [
        ("test_fails", "failed", "rank 1: ValueError: the sum is wrong"),
        ("test_skips", "skipped", "nobody has a GPU"),
        ("test_dies", "failed", "rank 0: ended by SIGKILL"),
    ],
)
def test_a_test_that_gloo_passes_must_pass(
    test: str, status: str, reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "outcomes.json"
    # The passing test comes after the other two, and gets new ranks where they were killed.
    assert run(f"{test}|passes", "--json", str(file)) == 1
    out = capsys.readouterr().out
    assert f"{test} at 2 ranks: Gloo passed, ringkern {status}: {reason}\n" in out
    assert f"{test} at 2 ranks: Gloo passes it\n" in out
    assert (f"ringkern, {test} at 2 ranks: {reason}\n" in out) == (status == "failed")
    outcomes = json.loads(file.read_text())
    ours = outcomes["results"]["ringkern"]["2"]
    assert (ours[test]["status"], ours["test_passes"]["status"]) == (status, "passed")
    assert outcomes["results"]["gloo"]["2"][test]["status"] == "passed"
    assert outcomes["differences"][0]["reason"] == reason
    assert ("the last words" in ours[test]["details"]) == (test == "test_dies")
    assert outcomes["errors"] == [f"{test} at 2 ranks: Gloo passes it"]


def test_a_test_that_gloo_fails_may_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("only_ringkern") == 0
    assert "Gloo failed: rank 0: AssertionError, ringkern passed" in capsys.readouterr().out


def test_known_difference(capsys: pytest.CaptureFixture[str]) -> None:
    known = (Known("test_skips", "there never was one"),)
    assert run("skips|passes", known=known) == 0
    assert "skipped: nobody has a GPU (known: there never was one)" in capsys.readouterr().out
    assert run("skips|fails", known=known) == 1
    assert run("passes", known=known) == 0  # it was not asked for


def test_known_difference_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("passes", known=(Known("test_passes", "it cannot"),)) == 1
    assert "test_passes passes at 2 ranks: remove it from known.py" in capsys.readouterr().out


def test_one_backend_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fails|skips", "--backend", "gloo") == 0
    assert run("fails|skips", "--backend", "ringkern") == 1
    assert "test_fails at 2 ranks: rank 1: ValueError" in capsys.readouterr().out
    known = (Known("test_fails", "it cannot"),)
    assert run("fails", "--backend", "ringkern", known=known) == 0


def test_no_such_test(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("no such test") == 2
    assert "no such test" in capsys.readouterr().err


def test_ranks_that_do_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    absent = ["--suite", "tests.conformance.planted:Absent", "--backend", "gloo", "--ranks", "1"]
    assert main(absent) == 2
    err = capsys.readouterr().err
    assert "the ranks did not start: gloo: rank 0: exited with 1" in err
    assert "has no attribute 'Absent'" in err


def test_hang(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_PIDS", str(tmp_path))
    assert run("hangs|passes", "--timeout", "5", "--verbose") == 1
    out = capsys.readouterr().out
    assert "ringkern, test_hangs at 2 ranks: no answer in time from rank 1\n" in out
    assert "planted.py" in out  # where it was
    assert "in test_hangs" in out
    assert "ringkern, 2 ranks: 1 passed, 1 failed, 0 skipped" in out
    for pid in (tmp_path / "pids").read_text().split():
        assert gone(int(pid))


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_rank_outlives_the_runner(ending: signal.Signals, tmp_path: Path) -> None:
    environ = {**os.environ, "PLANTED_PIDS": str(tmp_path), "TMPDIR": str(tmp_path)}
    arguments = ["--suite", PLANTED, "--ranks", "2", "--match", "hangs"]
    arguments += ["--backend", "ringkern", "--timeout", "2"]
    runner = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance", *arguments],
        cwd=ROOT,
        env=environ,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + LIMIT_S
        while not (tmp_path / "pids").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        # Its rank is told nothing by SIGKILL and ends after the test's time.
        runner.send_signal(ending)
        assert runner.wait(LIMIT_S) != 0
    finally:
        runner.kill()
        runner.wait()
    rank, child = map(int, (tmp_path / "pids").read_text().split())
    assert gone(rank)
    if ending == signal.SIGKILL:
        os.kill(child, signal.SIGKILL)  # the runner did not get the chance
    else:
        assert gone(child)
        assert [path.name for path in tmp_path.iterdir()] == ["pids"]


def test_ringkern_is_asked_what_gloo_is_asked() -> None:
    tests = {}
    prepare(())
    for backend in ("gloo", "ringkern"):
        with Pool(TORCH_SUITE, backend, 1, LIMIT_S) as pool:
            tests[backend] = pool.tests()
    named = {b: {t: reason.replace(b, "it") for t, reason in tests[b].items()} for b in tests}
    more = {t for t, reason in named["gloo"].items() if reason in OF_MPI}
    assert len(more) == 12
    assert named["ringkern"] == named["gloo"] | dict.fromkeys(more, "")
    assert not tests["ringkern"]["test_batch_isend_irecv_gloo"]
    assert tests["ringkern"]["test_batch_isend_irecv_nccl"]
    assert {entry.test for entry in KNOWN} <= {
        t for t, reason in tests["gloo"].items() if not reason
    }


def test_gates_that_are_asked_while_a_test_runs() -> None:
    text = """if True:
        from tests.conformance import suite
        module = suite.load("ringkern", 3)
        assert all("ringkern" in getattr(module, name) for name in suite.PROFILED)
        assert module.skip_if_small_worldsize(min) is min
    """
    subprocess.run([sys.executable, "-c", text], cwd=ROOT, check=True, timeout=LIMIT_S)


def test_known_differences_end_with_a_version_of_torch() -> None:
    before, after = known_in("2.13.0+cpu"), known_in("2.15.1")
    assert set(after) < set(before) == set(KNOWN)
    assert not any("monitored" in entry.test for entry in after)
