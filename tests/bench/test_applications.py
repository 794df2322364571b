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
def test_a_training_tokens_and_their_picture(tmp_path: Path) -> None:
    file, picture = tmp_path / "train.json", tmp_path / "train.png"
    printed = _run(
        "train", "--busy", "0", "1", "--rounds", "2", "--steps", "1", "--json", str(file)
    )
    rows = json.loads(file.read_text())["rows"]
    assert [row["busy"] for row in rows] == [0, 1]
    for row in rows:
        assert {name: len(ms) for name, ms in row["ms"].items()} == {"ringkern": 2, "Gloo": 2}
        assert f"{row['what']} beside {row['busy']} busy programs: ringkern" in printed
    tokens = tmp_path / "decode.json"
    _run(
        "decode", "--busy", "0", "--rounds", "2", "--tokens", "1", "--layers", "1",
        "--json", str(tokens),
    )  # fmt: skip
    (row,) = json.loads(tokens.read_text())["rows"]
    found = {name: len(ms) for name, ms in row["ms"].items()}
    assert found == {"ringkern, fused": 2, "ringkern": 2, "Gloo": 2}
    _run("plot", str(file), str(tokens), "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
