"""Runs commands as a reader would, in a folder, with an end: none outlives its time."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 10  # in which torchrun ends its ranks


@dataclass(frozen=True)
class Done:
    status: int
    output: str  # stdout and stderr, in order


def environment() -> dict[str, str]:
    """This process's, with its interpreter's programs first and no RINGKERN_* of the caller."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RINGKERN_")}
    return {**kept, "PATH": path, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def run(script: str, folder: Path, limit_s: float, env: Mapping[str, str]) -> Done:
    """Runs ``script`` by bash, which stops at its first command that fails.

    Raises:
        TimeoutError: it took longer; the text has what it had printed. All that it started and
            that is still its descendant has been ended.
    """
    log = folder / ".output"
    with log.open("w+") as output:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(
                f"not through after {limit_s} s:\n{script}\n{log.read_text()}"
            ) from None
        finally:
            _end(process)
    text = log.read_text()
    log.unlink()
    return Done(process.returncode, text)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    # Uses handles, because a pid may belong to another process by the time of the signal. The ranks
    # of torchrun are in sessions of their own.
    started = [handle for pid in _descendants(process.pid) for handle in _handles(pid)]
    for handle in started:
        _signal(handle, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    for handle in started:
        _signal(handle, signal.SIGKILL)
        select.select([handle], [], [], GRACE_S)  # until it has ended
        os.close(handle)
    process.kill()
    process.wait()


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _descendants(child)


def _handles(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield os.pidfd_open(pid)


def _signal(handle: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)
