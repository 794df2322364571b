"""``tune`` notices other programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringkern.tools.tune import quiet

pytestmark = pytest.mark.alone


@pytest.mark.parametrize(
    ("after", "turns_us", "expected"),
    [
        (quiet.Used(20, 15, 0, 14), [[1, 2, 1, 1]], []),
        (quiet.Used(20, 15, 0, 12), [[1.0]], ["other programs used 15% of the cores"]),
        (quiet.Used(20, 15, 2, 15), [], ["other virtual machines took 10% of the cores"]),
        (
            quiet.Used(20, 15, 0, 15),
            [[1, 1, 1, 1], [2, 3, 2, 3], [2, 3, 2, 3]],
            ["half of the repeats are 40% apart"],
        ),
    ],
)
def test_disturbances_are_found(
    after: quiet.Used, turns_us: list[list[float]], expected: list[str]
) -> None:
    assert quiet.disturbances(quiet.Used(0, 0, 0, 0), after, turns_us) == expected


def test_used_cpu_time_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3})
    file = tmp_path / "stat"
    file.write_text("cpu 9 9\ncpu0 900 0 0 0 0 0 0 0 0 0\n" + "".join(
        f"cpu{core} 100 200 300 4000 50 60 70 800 0 0\n" for core in (1, 3)
    ))  # fmt: skip
    found = quiet.used(file)
    assert found[:3] == (111.6, 14.6, 16.0)
    assert found.own > 0
    assert quiet.used(tmp_path / "none")[:3] == (0, 0, 0)
    with subprocess.Popen([sys.executable, "-c", "for i in range(10 ** 7): pass"]) as child:
        assert child.wait(60) == 0
    assert quiet.used().own > found.own
