"""The end of a test that pytest-timeout cannot end, and of the ranks that it started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conformance.test_runner import gone
from tests.ranks import Ranks

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 15  # in which two ranks start; that of pyproject.toml is longer than any test


def _hang(rank: int, size: int) -> None:
    print(f"a rank: {os.getpid()}", flush=True)
    time.sleep(200)


def hangs() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # which pytest-timeout sends
    Ranks(2, timeout_s=200).run(_hang)


def test_a_hang_ends_with_its_ranks(tmp_path: Path) -> None:
    file = tmp_path / "test_hangs.py"
    file.write_text("from tests.build.test_hang import hangs as test_hangs\n")
    settings = ["-c", str(ROOT / "pyproject.toml"), "-o", f"faulthandler_timeout={LIMIT_S}"]
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *settings, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    ranks = [int(pid) for pid in re.findall(r"a rank: (\d+)", done.stdout)]
    assert len(ranks) == 2, done.stdout + done.stderr
    assert done.returncode == 1
    assert "in hangs" in done.stderr  # the traceback
    for pid in ranks:
        assert gone(pid)
