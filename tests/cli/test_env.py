"""``env``: what it shows, also where nothing loads, and what it never shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ringkern
from ringkern import config
from ringkern.hosts.peer import this_peer
from ringkern.tools import env
from ringkern.tools.doctor import gpu, machine, probe

LIMIT_S = 200


def run(*arguments: str, cwd: Path | None = None, **variables: str) -> str:
    """Returns the printed text; the exit status is 0."""
    done = subprocess.run(
        [sys.executable, "-m", "ringkern", "env", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=cwd,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout


def lines_of(text: str) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (x.partition(":") for x in text.splitlines())}


def broken_copy(folder: Path) -> Path:
    """Returns a copy of the package with an extension that does not load."""
    package = Path(ringkern.__file__).parent
    copy = folder / "ringkern"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("_C.*.so", "__pycache__"))
    shutil.copy(package.parent / "ringkern_autoload.py", folder)
    (copy / Path(ringkern._C.__file__).name).write_bytes(b"not a library")
    return folder


def other_torch(folder: Path, program: str) -> Path:
    """A package of that name, which is what Python finds first."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(program)
    return folder


def test_env_shows_build_machine_and_host() -> None:
    found = lines_of(run())
    info = ringkern.build_info()
    first = ["ringkern", "build", "python", "torch", "gpus", "cpu", "memory", "limits"]
    assert list(found)[:10] == [*first, "system", "host"]
    own = this_peer(0)
    assert found["host"] == f"boot {own.boot_id[:8]}, network namespace {own.network_namespace}"
    assert found["ringkern"] == f"{ringkern.__version__}, {Path(ringkern.__file__).parent}"
    assert found["build"].startswith(f"{info['compiler']}, against torch {info['torch']}, ")
    assert found["torch"].startswith(torch.__version__)
    assert info["cpu_isa"] in found["cpu"]
    assert f"{len(os.sched_getaffinity(0))} cores usable" in found["cpu"]


def test_only_variables_of_the_list() -> None:
    text = run(
        RINGKERN_TIMEOUT="77",
        NCCL_DEBUG="INFO",
        AWS_SECRET_ACCESS_KEY="hunter2",
        HF_TOKEN="hunter2",
        MY_RINGKERN_="hunter2",
    )
    assert "variable: RINGKERN_TIMEOUT=77\n" in text
    assert "variable: NCCL_DEBUG=INFO\n" in text
    assert "hunter2" not in text


def test_all_of_it_as_json() -> None:
    found = json.loads(run("--all", "--json"))
    assert f"PyTorch version: {torch.__version__}" in found["collect_env"]
    assert found["loaded"]["ringkern"]["build"] == ringkern.build_info()
    table = found["loaded"]["ringkern"]["variables"]
    assert [row["name"] for row in table] == [v.name for v in config.variables()]
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert set(found["machine"]["limits"]) == set(machine.LIMITS)


def test_an_extension_that_does_not_load(tmp_path: Path) -> None:
    found = lines_of(run(cwd=broken_copy(tmp_path)))
    assert found["ringkern"].endswith(str(tmp_path / "ringkern"))
    assert found["build"].startswith("DOES NOT LOAD: ImportError")
    assert "does not load under torch" in found["build"]
    assert found["torch"].startswith(torch.__version__)
    assert "not known" in found["cpu"]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise OSError('libcudart.so.13: no such file')", "OSError: libcudart.so.13: no such"),
        ("import os; os.kill(os.getpid(), 4)", "loading torch ended Python by SIGILL"),
        ("import os; os._exit(3)", "loading torch ended Python with status 3"),
        ("import time; time.sleep(100)", "loading torch did not end within 3 s"),
    ],
)
def test_a_torch_that_does_not_load(program: str, said: str, tmp_path: Path) -> None:
    folder = other_torch(broken_copy(tmp_path), program)
    found = lines_of(run("--timeout", "9", cwd=folder))
    assert found["torch"].startswith("DOES NOT LOAD: ")
    assert said in found["torch"]
    assert "DOES NOT LOAD" in found["build"]


def test_a_wrong_variable_is_shown_with_its_error() -> None:
    found = lines_of(run(RINGKERN_PROTOCOL="tree"))
    assert "RINGKERN_PROTOCOL='tree': choose one of auto" in found["build"]


# ---- parts --------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of files."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    return tmp_path


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_machine_that_says_nothing(root: Path) -> None:
    found = machine.facts()
    assert found["memory"] == {}
    assert found["cpu_quota"] is None
    assert found["dev_shm"] is None
    assert found["host"] == "boot unknown, network namespace unknown"
    assert found["huge_pages"] == {"private": "unknown", "shared": "unknown"}
    assert gpu.driver()["version"] == ""


def test_the_tightest_memory_cgroup_counts(root: Path) -> None:
    write(root, proc__meminfo="MemTotal: 8192 kB\nMemAvailable: 4096 kB\n")
    assert machine.memory() == {"total": 8 << 20, "available": 4 << 20}
    write(root, proc__self__cgroup="0::/a/b\n")
    for folder, limit in (("a/b", "max"), ("a", "3000000"), (".", "5000000")):
        place = root / "sys/fs/cgroup" / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(limit + "\n")
        (place / "memory.current").write_text("1000000\n")
    assert machine.memory()["limit"] == 3000000
    assert machine.memory()["used"] == 1000000
    write(root, proc__self__cgroup="3:cpu:/x\n4:memory:/a\n")
    place = root / "sys/fs/cgroup/memory/a"
    place.mkdir(parents=True)
    (place / "memory.limit_in_bytes").write_text("2000000\n")
    (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert machine.memory()["limit"] == 2000000


def test_quota_container_and_huge_pages(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        monkeypatch.delenv(name, raising=False)
    assert machine.container() == "none seen"
    write(root, proc__1__cgroup="0::/kubepods/x\n")
    assert machine.container() == "kubepods"
    (root / ".dockerenv").touch()
    assert machine.container() == "docker"
    write(root, **{"sys__fs__cgroup__cpu.max": "150000 100000\n"})
    assert machine.cpu_quota() == 1.5
    write(root, **{"sys__fs__cgroup__cpu.max": "max 100000\n"})
    assert machine.cpu_quota() is None
    write(root, sys__kernel__mm__transparent_hugepage__enabled="always [madvise] never\n")
    assert machine.huge_pages() == "madvise"


def test_text_printed_while_loading_is_ignored() -> None:
    text = 'hello\n["torch", {"version": "1"}]\n["other", 1]\n{}\n'
    assert probe._answers(text) == {"torch": {"version": "1"}}


def facts(**changes: Any) -> dict[str, Any]:
    """Returns facts of ``gather`` on a machine with GPUs."""
    info = {**ringkern.build_info(), "cuda": True, "cuda_archs": "sm_90", "cuda_runtime": 13010}
    h100 = {"name": "NVIDIA H100", "capability": [9, 0], "memory": 1, "multiprocessors": 1}
    found = {
        "ringkern": {"version": "1.2.3", "where": "/here"},
        "python": {"version": "3.12.0", "executable": "/bin/python"},
        "loaded": {
            "torch": {"version": "2.13.0+cu130", "git": "", "cuda": "13.0", "gloo": False},
            "ringkern": {"build": info},
            "cuda": {"driver": 13020, "devices": [h100, h100], "peers": []},
        },
        "driver": {"version": "580.1", "gpus": [], "mps": False},
        "machine": machine.facts(),
        "variables": {},
    }
    return {**found, **changes}


def test_gpus_as_text() -> None:
    found = lines_of(env.text(facts()))
    assert found["gpus"] == "2 x NVIDIA H100 sm_90; driver 580.1, CUDA 13.2"
    assert "CUDA 13.1 kernels for sm_90" in found["build"]
    assert found["torch"] == "2.13.0+cu130, git unknown, CUDA 13.0, no Gloo"
    host = {**machine.facts(), "cpu_quota": 1.5, "memory": {"limit": 1 << 30, "used": 1 << 29}}
    found = lines_of(env.text(facts(machine=host)))
    assert "quota 1.5" in found["cpu"]
    assert "cgroup limit 1 GiB, 0.5 GiB used" in found["memory"]
