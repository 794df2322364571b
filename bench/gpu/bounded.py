"""Programs that run for a bounded time, and end with all that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TICK_SECONDS = 0.5


def run_bounded(
    command: list[str],
    seconds: float,
    output: Any,
    grace: float,
    tick: Callable[[], object] = lambda: None,
) -> int | None:
    """Runs a program, and ends it and all that it started when its time is over, or this ends.

    Args:
        output: a file. A pipe would stay open as long as any process that has it.
        grace: seconds between asking it to end and ending it.
        tick: is called now and then while it runs.

    Returns:
        Its exit status; ``None`` if it was ended.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a group of its own, that can be ended as a whole
    )
    end = time.monotonic() + seconds
    try:
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(min(left, TICK_SECONDS))
            tick()
        return None
    finally:
        _end_group(process, grace)


def _end_group(process: subprocess.Popen[Any], grace: float) -> None:
    """Ends the group of a child that is perhaps gone itself; its own children may not be."""
    # The group's number is the child's, and stays taken while the group has a member.
    for sign in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + grace
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
            while time.monotonic() < end:
                process.poll()  # a zombie would stay in its group
                os.killpg(process.pid, 0)
                time.sleep(0.02)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)  # one that waits for a GPU may not end at once
