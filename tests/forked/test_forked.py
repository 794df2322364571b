"""A program that a server forks is one that Python starts: how it ends, and what it is told."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

LIMIT_S = 60.0
SEEN = "import sys; print(__name__, __file__, sys.argv, sys.orig_argv[1:], sys.path[0])"


@pytest.mark.parametrize(
    "text",
    [
        "print(__name__, __import__('sys').argv, __import__('os').environ['ASKED'])",
        "import sys; print(sys.stdin.read()); sys.exit(3)",
        "import sys; sys.exit('why')",
        "import os; os._exit(5)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import atexit, threading, time\natexit.register(print, 'last')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('then'))).start()\nprint('first')",
    ],
)
def test_a_forked_program_ends_like_in_python(text: str) -> None:
    ends = [
        subprocess.run(
            [python, "-c", text, "argument"],
            input="typed",
            env=os.environ | {"ASKED": "yes"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        for python in (sys.executable, forked.python())
    ]
    seen = [(end.returncode, end.stdout, end.stderr) for end in ends]
    assert seen[0] == seen[1]


def test_a_file_is_found_as_by_python(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SEEN)
    seen = [
        subprocess.run(
            [python, *what], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
        ).stdout
        for what in (["program.py", "a"], ["-m", "program", "b"])
        for python in (sys.executable, forked.python())
    ]
    assert seen[0] == seen[1] != ""
    assert seen[2] == seen[3] != ""


WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_forked_program_ends_with_its_starter(number: signal.Signals) -> None:
    command = [forked.python(), "-c", WAITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        program = os.pidfd_open(int(started.stdout.readline()))
        started.send_signal(number)
        assert started.wait(LIMIT_S) == -number
        assert select.select([program], [], [], LIMIT_S)[0], "it is still there"
        os.close(program)


def test_none_outlives_the_tests() -> None:
    text = f"""
import subprocess
from tests import forked
program = subprocess.Popen([forked.python(), "-c", {WAITS!r}], stdout=subprocess.PIPE)
print(program.stdout.readline().decode(), flush=True)
import os; os._exit(0)
"""
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        try:
            program = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        assert select.select([program], [], [], LIMIT_S)[0], "it is still there"
        os.close(program)
