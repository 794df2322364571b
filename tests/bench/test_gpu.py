"""``make gpu`` without a GPU: its messages, and how it runs, ends and reports its parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import resume, runner, summary
from bench.gpu.parts import PARTS, Part, select

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(ROOT / "bench/gpu")]
# On a machine with GPUs, too, these tests are about one without.
NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
MACHINE: dict[str, Any] = {
    "gpus": [{"name": "a GPU", "capability_major": 9, "capability_minor": 0}],
    "torch": "2.11.0+cu130",
}

# Stands in for the process of a part: what it does is said by the part's name.
FAKE_CHILD = """
import json, pathlib, signal, subprocess, sys, time
name, told = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text())
print("log of", name, flush=True)
def leave(**found):
    pathlib.Path(told["state"]).write_text(json.dumps(found))
if name == "good":
    leave(status="passed", reason="", figures={"answer": 42, "seconds": told["seconds"]})
elif name == "refused":
    leave(status="skipped", reason="not on this GPU", figures={})
elif name == "cut":
    leave(status="partial", reason="no time for k=8", figures={})
elif name == "crash":
    leave(figures={"half": 1})
    sys.exit(7)
elif name == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    leave(figures={"grandchild": child.pid})
    time.sleep(60)
"""


def run_cli(*arguments: str, env: dict[str, str] = NO_GPU) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=env, timeout=120, check=False
    )


def assert_one_line_says_no_gpu(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("ringkern gpu: no CUDA device found")
    assert "bench/README.md" in done.stdout


def test_without_a_gpu_one_line_says_so() -> None:
    assert_one_line_says_no_gpu(run_cli())
    assert_one_line_says_no_gpu(run_cli("--parts", "limits", "--budget", "60"))


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_gpu_builds_nothing_without_a_gpu(tmp_path: Path) -> None:
    # A copy in which there is no environment and nothing built, and nothing could be fetched.
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "bench", tmp_path / "bench")
    for folder in ("csrc", "tests"):  # in which the Makefile looks for sources
        (tmp_path / folder).mkdir()
    done = subprocess.run(
        ["make", "--no-print-directory", "gpu", f"PYTHON={sys.executable}", "GPU_ARGS=--quick"],
        capture_output=True,
        text=True,
        env=NO_GPU,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert_one_line_says_no_gpu(done)
    assert {path.name for path in tmp_path.iterdir()} == {"Makefile", "bench", "csrc", "tests"}


def test_all_parts_are_planned_and_wrong_arguments_are_refused(tmp_path: Path) -> None:
    planned = run_cli("--plan").stdout.splitlines()
    names = [line.split()[0] for line in planned if line.startswith("  ")]
    assert list(dict.fromkeys(names)) == [part.name for part in PARTS]
    headers = [line for line in planned if not line.startswith("  ")]
    assert len(headers) == 3
    assert headers[1].startswith("run 2: python3 bench/gpu --continue ")
    for arguments, text in (
        (["--parts", "local,lokal"], "choose of machine, limits"),
        (["--rehearse", "--continue", str(tmp_path)], "no summary of an earlier run"),
        (["--prebuilt", str(tmp_path / "no")], "there is no such file or directory"),
        (["--preflight", "--arch", "hopper"], "give a number such as 90"),
    ):
        refused = run_cli(*arguments)
        assert refused.returncode == 2
        assert text in refused.stderr


def test_parts_are_what_modules_there_are() -> None:
    names = [part.name for part in PARTS]
    for part in PARTS:
        assert (ROOT / "bench/gpu" / f"{part.module or part.name}.py").is_file()
        assert all(names.index(need) < names.index(part.name) for need in part.needs)
        assert part.planned <= part.seconds <= 300
    assert [part.name for part in select("speed")] == ["core", "extension", "speed"]
    # A build that fails does not take along what needs none, nor torch's glue what needs no torch.
    needs = {part.name: part.needs for part in PARTS}
    assert needs["limits"] == needs["ll128_probe"] == needs["machine"] == ()
    assert needs["ctest"] == needs["sanitizer"] == ("core",)
    assert names.index("ll128_probe") < names.index("core")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> runner.Settings:
    monkeypatch.setattr(runner, "GRACE_SECONDS", 0.5)
    child = tmp_path / "child.py"
    child.write_text(FAKE_CHILD)
    return runner.Settings(
        out=tmp_path / "out",
        work=tmp_path / "work",
        command="make gpu",
        child=(sys.executable, str(child)),
    )


def part(
    name: str, seconds: float = 30.0, needs: tuple[str, ...] = (), planned: float = 10.0
) -> Part:
    return Part(name, seconds, planned, f"about {name}", needs)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_parts_run_whatever_became_of_the_others(settings: runner.Settings) -> None:
    parts = (part("crash"), part("refused"), part("good"), part("silent"))
    results = runner.run(parts, settings, MACHINE)
    assert [r.status for r in results] == ["failed", "skipped", "passed", "failed"]
    assert "status 7" in results[0].reason
    assert results[0].figures == {"half": 1}
    assert results[1].reason == "not on this GPU"
    assert results[2].figures["answer"] == 42
    assert "status 0" in results[3].reason  # it ended well and said nothing
    assert [r.failed for r in results] == [True, False, False, True]


def test_a_part_that_hangs_is_ended_with_all_that_it_started(settings: runner.Settings) -> None:
    start = time.monotonic()
    hung, good = runner.run((part("hang", seconds=1.5), part("good")), settings, MACHINE)
    assert time.monotonic() - start < 30
    assert (hung.status, good.status) == ("timed out", "passed")
    assert "after 2 s" in hung.reason
    assert not is_alive(hung.figures["grandchild"])
    assert "log of hang" in hung.log


def test_every_part_leaves_its_json(settings: runner.Settings) -> None:
    files = runner.Settings(**{**vars(settings), "files": True})
    runner.run((part("good"), part("crash")), files, MACHINE)
    found = json.loads((settings.out / "good.json").read_text())
    assert set(found) == {
        *("part", "status", "reason", "date", "seconds", "command", "machine", "figures", "log"),
        "cut_by_budget",
    }
    assert found["machine"] == MACHINE
    assert found["command"] == "make gpu"
    assert found["date"][:2] == "20"
    together = json.loads((settings.out / "summary.json").read_text())
    assert together["status"] == {"good": "passed", "crash": "failed"}
    assert [p["part"] for p in together["parts"]] == ["good", "crash"]
    assert "log of crash" in (settings.out / "log.txt").read_text()


def test_results_are_two_files(settings: runner.Settings) -> None:
    runner.run((part("good"), part("crash")), settings, MACHINE)
    assert {path.name for path in settings.out.iterdir()} == {"summary.json", "log.txt"}


def test_a_part_that_needs_a_failed_part_is_not_run(settings: runner.Settings) -> None:
    results = runner.run((part("crash"), part("good", needs=("crash",))), settings, MACHINE)
    assert (results[1].status, results[1].reason) == ("not run", "crash did not pass")
    # Without that part in this run, what an earlier one has left is used.
    assert runner.run((part("good", needs=("crash",)),), settings, MACHINE)[0].status == "passed"


def with_budget(settings: runner.Settings, seconds: float) -> runner.Settings:
    return runner.Settings(**{**vars(settings), "budget": seconds})


def test_no_part_starts_that_the_budget_leaves_too_little(settings: runner.Settings) -> None:
    # The first one starts, or no run would come further; nothing overtakes the one that does not.
    parts = (part("good", planned=60), part("refused", planned=50), part("crash", planned=1))
    results = runner.run(parts, with_budget(settings, 40.0), MACHINE)
    assert [r.status for r in results] == ["passed", "not run", "not run"]
    assert not any(result.failed for result in results)
    assert "s are left of the budget of 40 s" in results[1].reason
    assert "--continue" in summary.table(results)
    assert results[0].figures["seconds"] <= 40
    # A part that only others need does not count as the first one.
    parts = (part("refused", planned=30), part("good", needs=("refused",), planned=30))
    results = runner.run(parts, with_budget(settings, 20.0), MACHINE)
    assert [r.status for r in results] == ["skipped", "passed"]
    hung = runner.run((part("hang", seconds=3),), with_budget(settings, 1.5), MACHINE)[0]
    assert (hung.status, hung.failed, hung.cut_by_budget) == ("timed out", True, True)
    assert "which the budget left" in hung.reason


def test_a_run_goes_on_where_the_last_one_stopped(
    settings: runner.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, refused = part("good"), part("refused")
    cut, crash = part("cut", seconds=300, needs=("good",)), part("crash")
    late = part("silent", planned=200, needs=("good",))
    parts = (build, refused, cut, crash, late)
    monkeypatch.setattr("bench.gpu.parts.PARTS", parts)
    monkeypatch.setattr(runner, "PARTS", parts)
    runner.run(parts, with_budget(settings, 100.0), MACHINE)
    for path in (settings.out, settings.work):  # on the same machine; and taken to another one
        earlier = resume.load(path / "summary.json", MACHINE)
        status = {result.part: result.status for result in earlier}
        assert status == {
            "good": "passed",
            "refused": "skipped",
            "cut": "partial",
            "crash": "not run",
            "silent": "not run",
        }
        # With what they need, which another machine has not.
        left = [each.name for each in resume.remaining(parts, earlier)]
        assert left == ["good", "cut", "crash", "silent"]
    shutil.rmtree(settings.work)
    resume.restore(earlier, settings.work)
    assert json.loads((settings.work / "state/good.json").read_text())["figures"]["answer"] == 42
    left_parts = resume.remaining(parts, earlier)
    results = runner.run(left_parts, settings, MACHINE, earlier)
    assert "refused" not in [result.part for result in results]
    together = json.loads((settings.out / "summary.json").read_text())
    assert list(together["status"]) == [each.name for each in parts]
    assert together["status"]["crash"] == "failed"
    # It was cut again, but by its own limit this time: nothing is left.
    last = resume.load(settings.work / "summary.json", MACHINE)
    assert resume.remaining(parts, last) == ()
    other = {**MACHINE, "torch": "2.12.0"}
    with pytest.raises(ValueError, match=r"torch: 2.11.0\+cu130 there, 2.12.0 here"):
        resume.load(settings.work / "summary.json", other)


def test_the_table_has_a_line_for_each_part_and_the_figures(settings: runner.Settings) -> None:
    line = {"ranks": 2, "size_bytes": 8, "contender": "ringkern/ll", "how": "graph"}
    line |= {"hot_us": 3.5, "cold_us": 7.25, "hot_busbw_gb_s": 0.002, "share": 0.5, "wrong": 0}
    rows = [line, {**line, "contender": "ringkern/simple", "predicted_us": 3.25}]
    results = [
        runner.Result("local", "partial", "no time for k=8", figures={"cases": 10, "wrong": 0}),
        runner.Result("speed", "timed out", "ended after 300 s", figures={"rows": rows}),
        runner.Result("processes", "not run", "the budget is spent"),
    ]
    text = summary.table(results)
    assert "no time for k=8; 10 cases, 0 wrong" in text
    assert "ended after 300 s; 2 measurements" in text
    assert "3.5 / 7.2 (0.0, 50%)" in text
    assert "3.5 [3.2] / 7.2 (0.0, 50%)" in text
    assert text.endswith("1 partial, 1 timed out, 1 not run")
