"""The benchmark of applications; `make serve` has vLLM, whose part is not run here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.docs.blocks import ROOT

PROGRAM = "bench/applications.py"


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.alone
@needs.package("matplotlib")
def test_a_training_and_its_picture(tmp_path: Path) -> None:
    file, picture = tmp_path / "train.json", tmp_path / "train.png"
    printed = _run(
        "train", "--busy", "0", "1", "--rounds", "2", "--steps", "1", "--json", str(file)
    )
    rows = json.loads(file.read_text())["rows"]
    assert [row["busy"] for row in rows] == [0, 1]
    for row in rows:
        assert {name: len(ms) for name, ms in row["ms"].items()} == {"ringkern": 2, "Gloo": 2}
        assert f"{row['what']} beside {row['busy']} busy programs: ringkern" in printed
    _run("plot", str(file), "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
