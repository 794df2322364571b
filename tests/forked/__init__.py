"""Python programs that start quickly: forks of a process that has imported torch.

``path()/python`` and ``path()/torchrun`` are those of this environment, with differences: they take
``-c``, ``-m`` or a file and no option but ``-u``; the program is not a child of its caller; and
torch's variables were read at its import, before the fork (OMP_NUM_THREADS and
TORCH_DISTRIBUTED_DEBUG take effect all the same). A test of one of the other variables uses
``sys.executable``.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


@functools.cache
def path() -> Path:
    """Returns a folder with both programs, for the PATH; starts the server that they need."""
    folder = Path(tempfile.mkdtemp(prefix="ringkern-test-"))
    for name in ("python", "torchrun"):
        program = folder / name
        program.write_text(f"#!{sys.executable} -IS\n{(HERE / 'client.py').read_text()}")
        program.chmod(0o755)
    command = [sys.executable, str(HERE / "server.py"), str(folder / "socket")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(command, **pipes, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()  # which ends it, also where this process is killed
        server.wait()

    atexit.register(end)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    server.stdout.close()
    return folder


def python() -> str:
    """Returns the program ``path()/python``."""
    return str(path() / "python")


def run(text: str, limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Runs a text to its end, with what it prints on stdout and stderr."""
    command = [python(), "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
