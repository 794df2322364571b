"""The build backend: the torch that it finds, its requirements, and its errors."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
import torch
from setuptools import Distribution, Extension

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Returns the backend, in an environment without torch: each test makes its own."""
    path = ROOT / "build_backend" / "ringkern_build.py"
    spec = importlib.util.spec_from_file_location("ringkern_build", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ringkern_build", module)  # for dataclasses
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "_package_directories", lambda: iter([]))
    for name in ("RINGKERN_TORCH_SITE", "RINGKERN_FETCH_TORCH"):
        monkeypatch.delenv(name, raising=False)
    return module


def output_of(*command: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def install(site: Path, version: str) -> Path:
    """Installs the parts of a torch that the backend looks at."""
    (site / "torch" / "lib").mkdir(parents=True)
    (site / "torch" / "lib" / "libc10.so").touch()
    (site / "torch" / "version.py").write_text(f"debug = False\n__version__ = '{version}'\n")
    return site


def test_finds_the_first_installed_torch(
    backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"  # a directory named torch that is no installed torch
    (checkout / "torch").mkdir(parents=True)
    sites = [
        tmp_path / "absent",
        checkout,
        install(tmp_path / "a", "2.13.1+cpu"),
        install(tmp_path / "b", "2.15.0"),
    ]
    monkeypatch.setattr(backend, "_package_directories", lambda: iter(sites))
    torch = backend.find_torch()
    assert torch.root == tmp_path / "a" / "torch"
    assert torch.version == "2.13.1+cpu"
    assert torch.minor == "2.13"
    assert backend.torch_requirement() == []


def test_isolated_hooks_find_the_torch_of_this_interpreter() -> None:
    """Runs the hooks like pip: this interpreter, and a sys.path without its packages."""
    script = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]"
    script += f"; sys.path.insert(0, {str(ROOT / 'build_backend')!r})"
    script += "; import ringkern_build; print(ringkern_build.find_torch().root)"
    assert Path(output_of(sys.executable, "-I", "-c", script)) == Path(torch.__file__).parent


def test_torch_site_overrules_everything(
    backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = install(tmp_path / "a", "2.13.0")
    monkeypatch.setattr(backend, "_package_directories", lambda: iter([ordinary]))
    chosen = install(tmp_path / "b", "2.15.0")
    assert backend.find_torch({"RINGKERN_TORCH_SITE": str(chosen)}).version == "2.15.0"
    with pytest.raises(SystemExit, match=r"RINGKERN_TORCH_SITE=.*holds no installed torch"):
        backend.find_torch({"RINGKERN_TORCH_SITE": str(tmp_path)})


def test_refuses_an_old_torch(backend: ModuleType, tmp_path: Path) -> None:
    old = install(tmp_path, "2.9.1")
    with pytest.raises(SystemExit, match=r"needs torch>=2\.11; .* is 2\.9\.1"):
        backend.find_torch({"RINGKERN_TORCH_SITE": str(old)})


def test_own_environment_without_torch_explains_itself(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv and `python -m build`: what they would fetch is not the torch that the user has."""
    monkeypatch.setattr(backend, "_builds_in_own_environment", lambda: True)
    with pytest.raises(SystemExit) as stopped:
        backend.get_requires_for_build_wheel()
    for hint in (
        "uv pip install --no-build-isolation .",
        "python -m build --no-isolation",
        "RINGKERN_TORCH_SITE",
        "RINGKERN_FETCH_TORCH=1",
    ):
        assert hint in str(stopped.value)
    assert backend.torch_requirement({"RINGKERN_FETCH_TORCH": "1"}) == ["torch>=2.11"]


def test_pip_without_torch_fetches_one(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backend, "_builds_in_own_environment", lambda: False)
    assert backend.torch_requirement() == ["torch>=2.11"]
    assert "no torch is installed" in capsys.readouterr().err


def test_build_without_torch_explains_itself(backend: ModuleType) -> None:
    with pytest.raises(SystemExit, match="none in"):
        backend.build_wheel("dist")


def test_a_source_distribution_needs_nothing(backend: ModuleType) -> None:
    assert backend.get_requires_for_build_sdist() == []


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        ("cmake version 3.25.0", []),
        ("cmake version 4.1.2", []),
        ("cmake version 3.24.9", ["cmake>=3.25"]),
        ("not a version", ["cmake>=3.25"]),
    ],
)
def test_asks_for_tools_that_are_missing_or_old(
    backend: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    missing: list[str],
) -> None:
    for name, line in (("cmake", answer), ("ninja", "1.11.1")):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\necho {line}\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert backend.missing_tools() == missing


@pytest.mark.parametrize(
    ("summary", "cuda", "said"),
    [
        ("cpu only: no nvcc", "13.0", "built WITHOUT CUDA kernels, cpu only: no nvcc"),
        ("cpu and cuda: sm_90 by nvcc 13.0.88", "12.6", "nvcc is 13.0.88, and torch 2.13.1 has"),
        ("cpu and cuda: sm_90 by nvcc 12.8.1", "13.0", "the kernels need a driver for CUDA 12."),
        ("cpu and cuda: sm_90 by nvcc 13.0.88", "13.2", ""),
        ("cpu and cuda: sm_90 by nvcc 13.0.88", "", ""),
    ],
)
def test_setup_tells_what_was_built(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    summary: str,
    cuda: str,
    said: str,
) -> None:
    site = install(tmp_path / "site", "2.13.1")
    kind = f"'{cuda}'" if cuda else "None"
    with (site / "torch" / "version.py").open("a") as version:
        version.write(f"cuda: Optional[str] = {kind}\n")
    for name, value in {"TORCH_SITE": site, "BUILD_DIR": tmp_path / "build"}.items():
        monkeypatch.setenv(f"RINGKERN_{name}", str(value))
    monkeypatch.setattr("setuptools.setup", lambda **_: None)

    def cmake(*_: str) -> None:
        (tmp_path / "build" / "summary.txt").write_text(f"{summary}\n")
        (tmp_path / "build" / "_C.so").touch()

    setup = runpy.run_path(str(ROOT / "setup.py"))
    build = setup["CMakeBuild"](Distribution({"name": "ringkern"}))
    build.build_extension.__globals__["run"] = cmake
    build.build_lib, build.inplace = str(tmp_path / "lib"), False
    build.build_extension(Extension("ringkern._C", []))
    output = capsys.readouterr().err
    assert said in output
    assert ("*****" in output) == bool(said)
