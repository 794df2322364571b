"""Commands that start ranks: bounded, ended at any moment, and no rank outlives them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

import ringkern
from bench.compare import command as compare
from ringkern.tools import launch
from ringkern.tools.program import main, run_alone

pytestmark = pytest.mark.alone

LIMIT_S = 120
PROGRAM = [sys.executable, "-m", "ringkern"]


def program(command: str) -> list[str]:
    """Returns how a command is started; ``compare`` is that of a clone."""
    name, *rest = command.split()
    if name == "compare":
        return [sys.executable, "-m", "bench.compare", *rest]
    return [*PROGRAM, name, *rest]


def started(command: str, *arguments: str) -> int:
    """Runs a command in this process."""
    if command == "compare":
        return run_alone("python -m bench.compare", compare, list(arguments))
    return main([*command.split(), *arguments])


# ---- the number of ranks ------------------------------------------------------------------------


WITH_RANKS = ["doctor", "bench", "compare", "trace", "tune"]


@pytest.mark.parametrize("command", WITH_RANKS)
def test_ranks_that_cannot_be_are_refused_before_one_is_started(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing may be started
    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", None)
    for ranks in ("0", "-1", "x", "1000000"):
        with pytest.raises(SystemExit) as ended:
            started(command, f"-n={ranks}")
        assert ended.value.code == 2
        assert ranks in capsys.readouterr().err


@pytest.mark.parametrize("command", WITH_RANKS)
def test_the_limits_are_named(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(launch, "free_memory", lambda: 40 * launch.RANK_BYTES)
    for asked, said in (
        ("-n 33", "-n 33: 2 cores would run more than 16 ranks each; give -n 32 or less, or "
                  "raise --ranks-per-core"),
        ("-n 5 --ranks-per-core 2", "more than 2 ranks each"),
        ("-n 41 --ranks-per-core 99", "41 ranks need at least 2624 MiB, and 2560 MiB are free"),
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            started(command, *asked.split())
        assert said in capsys.readouterr().err


def test_the_ranks_of_torchrun_are_started_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "100000")
    monkeypatch.setattr(launch, "in_group", lambda *_: sys.exit(7))
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--vs", "none", "-e", "8"])
    assert ended.value.code == 7


# A user with a limited number of processes and threads, some of which this test uses. Root has no
# such limit, and as another user must be able to read root's installation.
def limited(most: int, *command: str) -> list[str]:
    if os.getuid():
        return ["prlimit", "--nproc=1", *command]
    may = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    return ["prlimit", f"--nproc={most}", "setpriv", "--reuid=54321", *may, *command]


@pytest.mark.parametrize("command", ["doctor", "bench --vs none", "compare --vs gloo --modes py"])
def test_a_limit_on_processes(command: str, tmp_path: Path) -> None:
    """It is met when some ranks are there."""
    ringkern_command = [*program(command), "-n", "12", "-T", "100"]
    done = subprocess.run(
        limited(8, *ringkern_command),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "could not be started: " in done.stdout + done.stderr
    assert "ulimit -u" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


# ---- signals ------------------------------------------------------------------------------------

MANY = 20  # so that the first has come far when the last is started
MEASURING = "bench --vs none -b 8 -e 8 --seconds 90 --ranks-per-core 99 -n {}"


def ranks_of(pid: int) -> list[int]:
    """Returns the children of a process that are started as ranks."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def is_at_work(pid: int) -> bool:
    """Returns true if the process has a ring, which a thread watches."""
    threads = Path(f"/proc/{pid}/task").glob("*/comm")
    return any(comm.read_text() == "ringkern-watch\n" for comm in threads)


INT, TERM = (signal.SIGINT, 130), (signal.SIGTERM, 143)


@pytest.mark.parametrize(
    ("moment", "number", "status", "to_all"),
    [
        ("first", *INT, True),
        ("first", *TERM, False),
        ("starting", *TERM, True),
        ("starting", *INT, False),
        ("measuring", *INT, True),
        ("measuring", *TERM, False),
    ],
)
def test_no_rank_is_left_and_nothing_is_said(
    moment: str, number: signal.Signals, status: int, to_all: bool
) -> None:
    """Ctrl-C at a terminal reaches all processes; kill, or a job that is ended, may reach one."""
    ranks, wanted = {"first": (MANY, 1), "starting": (3, 3), "measuring": (2, 2)}[moment]
    process = subprocess.Popen(
        [*PROGRAM, *MEASURING.format(ranks).split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + LIMIT_S
        found: list[int] = []
        while len(found) < wanted or (moment == "measuring" and not all(map(is_at_work, found))):
            assert time.monotonic() < deadline
            assert process.poll() is None
            found = ranks_of(process.pid)
            time.sleep(0.01)
        if to_all:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == status, (out, said)
        assert "Traceback" not in said
        assert "KeyboardInterrupt" not in said
        while any(_runs(pid) for pid in found):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_sigterm_after_100_ms() -> None:
    """Nothing has been loaded, and nothing started."""
    for command in ("doctor -n 4", "bench --vs none -n 4"):
        with subprocess.Popen(
            [*PROGRAM, *command.split()], stderr=subprocess.PIPE, text=True
        ) as process:
            time.sleep(0.1)
            process.terminate()
            _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode in (-signal.SIGTERM, 143)
        assert "Traceback" not in said


@pytest.mark.parametrize("command", ["doctor", "bench --vs none --seconds 90"])
def test_the_timeout_ends_a_start(command: str, tmp_path: Path) -> None:
    """4 ranks take longer to load torch; only rank 0 has to end for it."""
    given = f"{command} -n 4 --ranks-per-core 99 -T 0.5".split()
    done = subprocess.run(
        [sys.executable, "-c", IN_SHORT, *given],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "not finished after 0.5 s; give a longer --timeout" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# Without the grace of a command that keeps to its timeout by itself.
IN_SHORT = """
import sys
from ringkern.tools import main, options

def add_timeout(parser, default_s, **_):
    given(parser, default_s, own=False)

given, options.add_timeout = options.add_timeout, add_timeout
if __name__ == "__main__":
    sys.exit(main())
"""


STARTING = """
import signal
from multiprocessing import context, resource_tracker
from ringkern.tools import launch

def start(process):
    resource_tracker.getfd()  # as the start of a process does
    print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    raise OSError("no process")

context.SpawnProcess.start = start
try:
    launch.launch(2, 60.0, print)
except OSError:
    print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
"""


def test_a_rank_that_is_loading_heeds_no_signal() -> None:
    """It would answer Ctrl-C with a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", STARTING], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stdout.splitlines() == [
        "[<Signals.SIGINT: 2>, <Signals.SIGALRM: 14>, <Signals.SIGTERM: 15>]",
        "[]",
    ], done.stderr


def _die() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_rank_that_is_killed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.launch(1, LIMIT_S, _die) == 1
    assert "rank 0 was ended by SIGKILL" in capsys.readouterr().err


def _lose() -> int:
    raise ringkern.errors.PeerLostError("rank 1 is gone")


def test_a_ring_that_fails_is_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.launch(1, LIMIT_S, _lose) == 1
    said = capfd.readouterr().err
    assert "rank 0: PeerLostError: rank 1 is gone" in said
    assert "Traceback" not in said


def _sleep() -> int:
    time.sleep(LIMIT_S)
    return 0


def _raise() -> int:
    raise ValueError("this rank has had enough")


def test_ranks_that_hang_are_ended(capfd: pytest.CaptureFixture[str]) -> None:
    before = multiprocessing.active_children()  # the ranks of other tests
    assert launch.launch(2, 3.0, _sleep) == 1
    assert set(multiprocessing.active_children()) <= set(before)
    assert "most recent call first" in capfd.readouterr().err  # the tracebacks show the place


def test_ranks_that_raise_are_reported(capfd: pytest.CaptureFixture[str]) -> None:
    before = multiprocessing.active_children()
    assert launch.launch(2, LIMIT_S, _raise) == 1
    assert "ValueError: this rank has had enough" in capfd.readouterr().err
    assert set(multiprocessing.active_children()) <= set(before)


# ---- where ranks run ----------------------------------------------------------------------------


def _note_cores(folder: Path) -> int:
    (folder / str(dist.get_rank())).write_text(str(sorted(os.sched_getaffinity(0))))
    return 0


@pytest.mark.parametrize("cores", [0, 1, 2])
def test_ranks_keep_to_their_cores(cores: int, tmp_path: Path) -> None:
    here = sorted(os.sched_getaffinity(0))
    assert launch.launch(3, LIMIT_S, _note_cores, tmp_path, cores=cores) == 0
    found = [(tmp_path / str(rank)).read_text() for rank in range(3)]
    expected = [sorted({*each}) for each in launch.cores_by_rank(3, cores)] if cores else [here] * 3
    assert found == list(map(str, expected))
    assert sorted(os.sched_getaffinity(0)) == here


def test_the_threads_of_ranks_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 4, 5, 7})
    assert launch.cores_by_rank(2, 2) == [[2, 4], [5, 7]]
    assert launch.cores_by_rank(3, 2) == [[2, 4], [5, 7], [2, 4]]  # not enough cores
