"""When `make build` builds: Makefile's own rule, with a stand-in for what builds."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_other_settings_are_another_build(tmp_path: Path) -> None:
    for folder in ("csrc", "tests", "requirements", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("setup.py", "pyproject.toml", "CMakeLists.txt", "requirements/build.txt"):
        (tmp_path / file).touch()
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / ".venv/bin/python"
    python.write_text("#!/bin/sh\nmkdir -p build/dev\necho built >> builds\n")
    python.chmod(0o755)
    (tmp_path / ".venv/.ready-build").touch()  # newer than what it is made from

    def builds(*words: str, **settings: str) -> int:
        names = ("RINGKERN_CUDA", "RINGKERN_CUDA_ARCHS", "CMAKE_ARGS", "CXXFLAGS", "MAKEFLAGS")
        env = {name: value for name, value in os.environ.items() if name not in names}
        command = ["make", "build", *words]
        subprocess.run(command, cwd=tmp_path, env=env | settings, check=True, timeout=60)
        return len((tmp_path / "builds").read_text().splitlines())

    assert [builds(), builds()] == [1, 1]
    assert [builds(RINGKERN_CUDA="0"), builds(RINGKERN_CUDA="0")] == [2, 2]
    assert [builds("RINGKERN_CUDA=1"), builds(RINGKERN_CUDA="1")] == [3, 3]
    assert builds(RINGKERN_CUDA="1", CXXFLAGS="-DWORDS='a b'") == 4
