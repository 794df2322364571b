"""``make gpu`` where there is no GPU: what it says, and how it runs, ends and reports its parts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.gpu import device, runner, summary
from bench.gpu.parts import PARTS, Part, select

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(ROOT / "bench/gpu")]
# On a machine with GPUs, too, these tests are about one without.
NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
MACHINE = {"gpus": [{"name": "a GPU", "capability_major": 9, "capability_minor": 0}]}

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


def test_all_parts_are_listed_and_wrong_names_are_refused() -> None:
    listed = run_cli("--list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [p.name for p in PARTS]
    refused = run_cli("--parts", "local,lokal")
    assert refused.returncode == 2
    assert "choose of build, ctest, local" in refused.stderr


def test_parts_are_what_modules_there_are() -> None:
    for part in PARTS:
        assert (ROOT / "bench/gpu" / f"{part.name}.py").is_file()
        names = [other.name for other in PARTS]
        assert all(names.index(need) < names.index(part.name) for need in part.needs)
    assert [part.name for part in select("speed, build")] == ["build", "speed"]
    # What is right comes before what is fast, and neither needs more than a call of ten minutes.
    assert names.index("sanitizer") < names.index("limits") < names.index("speed")
    assert max(part.seconds for part in PARTS) <= 540


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


def part(name: str, seconds: float = 30.0, needs: tuple[str, ...] = ()) -> Part:
    return Part(name, seconds, f"about {name}", needs)


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
    runner.run((part("good"), part("crash")), settings, MACHINE)
    found = json.loads((settings.out / "good.json").read_text())
    assert set(found) == {
        *("part", "status", "reason", "date", "seconds", "command", "machine", "figures", "log"),
    }
    assert found["machine"] == MACHINE
    assert found["command"] == "make gpu"
    assert found["date"][:2] == "20"
    together = json.loads((settings.out / "summary.json").read_text())
    assert together["status"] == {"good": "passed", "crash": "failed"}
    assert [p["part"] for p in together["parts"]] == ["good", "crash"]
    assert "log of crash" in (settings.out / "log.txt").read_text()


def test_compact_results_are_two_files(settings: runner.Settings) -> None:
    compact = runner.Settings(**{**vars(settings), "compact": True})
    runner.run((part("good"), part("crash")), compact, MACHINE)
    assert {path.name for path in compact.out.iterdir()} == {"summary.json", "log.txt"}


def test_what_needs_a_part_that_failed_is_not_run(settings: runner.Settings) -> None:
    results = runner.run((part("crash"), part("good", needs=("crash",))), settings, MACHINE)
    assert (results[1].status, results[1].reason) == ("not run", "crash did not pass")
    # Without that part in this run, what an earlier one has left is used.
    assert runner.run((part("good", needs=("crash",)),), settings, MACHINE)[0].status == "passed"


def test_no_part_starts_that_the_budget_leaves_too_little(settings: runner.Settings) -> None:
    spent = runner.Settings(**{**vars(settings), "budget": 8.0})
    results = runner.run((part("good"),), spent, MACHINE)
    assert (results[0].status, results[0].failed) == ("not run", False)
    assert results[0].reason == "8 s are left of the budget of 8 s"
    assert "--parts good" in summary.table(results)
    # A part gets no more than what is left of it.
    tight = runner.Settings(**{**vars(settings), "budget": 20.0})
    assert runner.run((part("good", seconds=60),), tight, MACHINE)[0].figures["seconds"] <= 20
    short = runner.Settings(**{**vars(settings), "budget": 1.5})
    hung = runner.run((part("hang", seconds=3),), short, MACHINE)[0]
    assert (hung.status, hung.failed) == ("timed out", True)
    assert "which the budget left" in hung.reason


def test_the_table_has_a_line_for_each_part_and_the_figures(settings: runner.Settings) -> None:
    line = {"ranks": 2, "size_bytes": 8, "contender": "ringkern/ll", "how": "graph"}
    line |= {"hot_us": 3.5, "cold_us": 7.25, "hot_busbw_gb_s": 0.002, "share": 0.5, "wrong": 0}
    results = [
        runner.Result("local", "passed", figures={"cases": 10, "wrong": 0, "complete": False}),
        runner.Result("speed", "timed out", "ended after 300 s", figures={"rows": [line]}),
        runner.Result("processes", "not run", "the budget is spent"),
    ]
    text = summary.table(results)
    assert "10 cases, 0 wrong; not all were run in time" in text
    assert "ended after 300 s; 1 measurements" in text
    assert "3.5 / 7.2 (0.0, 50%)" in text
    assert text.endswith("1 passed, 1 timed out, 1 not run")


FAKE_DRIVER = """
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGetCount(int* n) { *n = 2; return 0; }
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuDeviceGet(int* d, int i) { *d = 10 + i; return 0; }
int cuDeviceGetName(char* name, int, int d) { name[0] = 'G'; name[1] = char('0' + d - 10); name[2] = 0; return 0; }
int cuDeviceTotalMem_v2(unsigned long* bytes, int) { *bytes = 5ul << 33; return 0; }
int cuDeviceGetAttribute(int* v, int which, int) { *v = which == 75 ? 9 : which == 76 ? 0 : which; return 0; }
}
"""  # noqa: E501


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_gpus_are_found_by_the_driver(tmp_path: Path) -> None:
    (tmp_path / "driver.cpp").write_text(FAKE_DRIVER)
    library = tmp_path / "libcuda.so.1"
    build = ["g++", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "driver.cpp")]
    subprocess.run(build, check=True, timeout=60)
    program = (
        f"import json, sys; sys.path.insert(0, {str(ROOT)!r}); from bench.gpu import device; "
        "f = device.find(); print(json.dumps([f.count, f.gpus, f.cuda])); "
        "print(device.architecture({'gpus': f.gpus}))"
    )
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    found, architecture = done.stdout.splitlines()
    count, gpus, cuda = json.loads(found)
    assert (count, cuda, architecture) == (2, "13.0", "90")
    assert [gpu["name"] for gpu in gpus] == ["G0", "G1"]
    assert (gpus[0]["memory_bytes"], gpus[0]["multiprocessors"]) == (5 << 33, 16)
    if device.missing_torch():  # a torch without CUDA is no use beside a GPU
        refused = run_cli(env=env)
        assert refused.returncode == 2
        assert "has no CUDA" in refused.stderr
        assert "PYTHON=" in refused.stderr
