"""Dumps of the last calls: their times, places and permissions."""

from __future__ import annotations

import os
import pickle
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import CollectiveMismatchError
from tests import forked
from tests.ranks import Ranks

LIMIT_S = 60.0


def alone() -> ringkern.Communicator:
    communicator = ringkern.Communicator.from_store(dist.HashStore(), 0, 1)
    communicator.all_reduce(torch.ones(3))
    return communicator


def read(file: Path) -> dict[str, Any]:
    record: dict[str, Any] = pickle.loads(file.read_bytes())
    return record


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- files --------------------------------------------------------------------------------------


def test_a_file_is_for_this_user_only(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "by dump"
    with alone() as communicator:
        before = os.umask(0)
        try:
            first = ringkern.dump(folder)
        finally:
            os.umask(before)
        (file,) = folder.iterdir()
        assert file.name == "ringkern_0"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert read(file) == first
        communicator.all_reduce(torch.ones(3))
        second = ringkern.dump(str(folder))
        assert len(second["entries"]) == len(first["entries"]) + 1
        assert list(folder.iterdir()) == [file]
        assert read(file) == second


def test_nothing_is_written_that_nobody_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with alone():
        assert ringkern.dump()["entries"]
    assert not list(tmp_path.iterdir())


def test_a_failed_dump_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        ringkern.dump(tmp_path / "file")
    with alone():
        in_the_way = tmp_path / "folder" / "ringkern_0"
        in_the_way.mkdir(parents=True)
        with pytest.raises(IsADirectoryError):
            ringkern.dump(tmp_path / "folder")
        assert list((tmp_path / "folder").iterdir()) == [in_the_way]


# ---- on a failure, on a signal ------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the RINGKERN_DUMP_DIR of processes that are started now."""
    monkeypatch.setenv("RINGKERN_DUMP_DIR", str(tmp_path / "dumps"))
    return tmp_path / "dumps"


@pytest.fixture
def pair(folder: Path) -> Iterator[Ranks]:
    pool = Ranks(2)
    yield pool
    pool.close()


def _mismatch(rank: int, size: int) -> None:
    with pytest.raises(CollectiveMismatchError):
        ringkern.ring_all_reduce(torch.ones(10 + rank))


def test_a_failure_writes_the_calls_of_all_ranks(pair: Ranks, folder: Path) -> None:
    pair.run(_mismatch)
    for rank in range(2):
        file = folder / f"ringkern_{rank}"
        until(file.exists)
        record = read(file)
        (entry,) = record["entries"]
        assert (entry["input_sizes"], entry["state"]) == ([[10 + rank]], "started")
        assert "ranks disagree on numel" in record["failures"]["ringkern/0/cpu"]


def _pid(rank: int, size: int) -> int:
    return os.getpid()


def _signalled(rank: int, size: int, pid: int, file: str) -> None:
    x = torch.ones(10)
    ringkern.ring_all_reduce(x)
    if rank == 1:
        until(lambda: _in_its_second_call(pid, Path(file)))
    ringkern.ring_all_reduce(x)
    assert torch.equal(x, torch.full((10,), 4.0))


def _in_its_second_call(pid: int, file: Path) -> bool:
    os.kill(pid, signal.SIGUSR2)
    if not file.exists():
        return False
    calls = [(e["collective_seq_id"], e["state"]) for e in read(file)["entries"]]
    return calls == [(1, "completed"), (2, "started")]


def test_a_signal_writes_them_while_a_call_waits(pair: Ranks, folder: Path) -> None:
    pair.run(_signalled, pair.run(_pid)[0], str(folder / "ringkern_0"))
    # A dump may still be in progress: its file has another name until it is complete.
    until(lambda: [file.name for file in folder.iterdir()] == ["ringkern_0"])
    assert not read(folder / "ringkern_0")["failures"]


# ---- whole programs -----------------------------------------------------------------------------

BEGIN = """
import logging, os, signal, sys, time
logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
import torch, torch.distributed as dist, ringkern
def alone():
    return ringkern.Communicator.from_store(dist.HashStore(), 0, 1)
def pause(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
"""


def program(text: str) -> subprocess.CompletedProcess[str]:
    return forked.run(BEGIN + text)


def test_a_program_that_ends_at_once_has_written_it(folder: Path) -> None:
    done = program("""
logging.getLogger("ringkern").setLevel(logging.INFO)
logging.getLogger("ringkern").addFilter(lambda record: time.sleep(0.5) or True)
communicator = alone()
communicator.all_reduce(torch.ones(3))
communicator.abort("no more of it")
communicator.all_reduce(torch.ones(3))
""")
    assert done.returncode == 1
    assert "CommAbortedError" in done.stderr
    assert "no more of it" in read(folder / "ringkern_0")["failures"]["ringkern/cpu"]


def test_a_signal_that_the_program_handles_stays_its_own(folder: Path) -> None:
    done = program("""
heard = []
signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
logging.getLogger("ringkern").setLevel(logging.INFO)
first, second = alone(), alone()
os.kill(os.getpid(), signal.SIGUSR2)
pause(lambda: heard)
print("heard", len(heard))
""")
    assert (done.returncode, done.stdout) == (0, "heard 1\n"), done.stderr
    assert done.stderr.count("SIGUSR2 is handled or ignored by this program") == 1
    assert not folder.exists()


def test_a_signal_is_left_alone_where_nothing_is_to_be_written() -> None:
    done = program("""
communicator = alone()
print(signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL)
""")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_child_that_was_forked_survives_the_signal(folder: Path) -> None:
    done = program("""
communicator = alone()
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGUSR2)
    os._exit(0)
print(os.waitpid(pid, 0)[1])
""")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RINGKERN_DUMP_DIR", str(tmp_path / "file" / "dumps"))
    done = program("""
for _ in range(2):
    alone().abort()
""")
    assert done.returncode == 0
    warning = "ringkern WARNING cannot write the last calls to RINGKERN_DUMP_DIR: "
    assert done.stderr.count(warning) == 2, done.stderr
    assert str(tmp_path / "file") in done.stderr
