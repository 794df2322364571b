"""The example, run like a new user runs it. (tests/docs tests the statements of README.md.)"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 150


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S
    )


def train_digits(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run(str(ROOT / "examples" / "train_digits.py"), *arguments, cwd=cwd)


def test_train_digits(tmp_path: Path) -> None:
    done = train_digits("--ranks", "2", "--epochs", "6", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("plot: digits.png\nOK\n")
    curves = re.findall(r"^ +\d+ +(\d\.\d+) +(\d\.\d+)$", done.stdout, re.MULTILINE)
    assert len(curves) == 6
    # the sum of two floats has the same bits in either order
    assert all(ring == gloo for ring, gloo in curves)
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_train_digits_fails_where_too_little_is_learned(tmp_path: Path) -> None:
    done = train_digits("--ranks", "2", "--epochs", "1", "--out", "x.png", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout
