"""Ranks as processes in namespaces: how a process gets there, and jobs of one for each rank."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "eth0"  # a host's end of its wire
_CLONE = {"user": 0x10000000, "uts": 0x04000000, "net": 0x40000000}


@dataclass(frozen=True)
class Result:
    """How a rank ended. ``status``: as Popen has it, None: it had not, in time, and was killed."""

    rank: int
    host: int
    status: int | None
    out: str
    err: str


@dataclass(frozen=True)
class Place:
    """Puts the process that calls it on its rank's host. It may be pickled.

    ``pids``: of the hosts' holders; ``host_of``: by rank; ``address`` and ``port``: of rank 0.
    """

    pids: tuple[int, ...]
    host_of: tuple[int, ...]
    address: str
    port: int

    def environment(self, rank: int) -> dict[str, str]:
        """Returns the variables that torchrun sets, and Gloo's interface."""
        host = self.host_of[rank]
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self.host_of)),
            "LOCAL_RANK": str(self.host_of[:rank].count(host)),
            "LOCAL_WORLD_SIZE": str(self.host_of.count(host)),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": DEVICE,
            "OMP_NUM_THREADS": "1",
        }

    def __call__(self, rank: int) -> str:
        """For a process that has no second thread yet; returns where it meets the other ranks."""
        enter(self.pids[self.host_of[rank]])
        os.environ.update(self.environment(rank))
        return f"tcp://{self.address}:{self.port}"


def enter(pid: int) -> None:
    """Takes the calling thread, and all that it starts, to where that process is."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, flag in _CLONE.items():
        path = f"/proc/{pid}/ns/{kind}"
        if os.readlink(path) == os.readlink(f"/proc/self/ns/{kind}"):
            continue
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(fd, flag) != 0:
                error = ctypes.get_errno()
                raise OSError(error, f"setns to {path}: {os.strerror(error)}")
        finally:
            os.close(fd)


class Job:
    """Ranks at work, each in its host's namespace. Made by `Net.start`."""

    def __init__(
        self,
        place: Place,
        holders: list[subprocess.Popen[str]],
        command: list[str],
        env: dict[str, str] | None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ringkern-hosts-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self.host_of = place.host_of
        try:
            for rank, host in enumerate(self.host_of):
                environment = {**os.environ, **place.environment(rank), **(env or {})}
                self._start(rank, [*inside(place.pids[host]), *command], environment)
                _tell(holders[host], self.pid(rank))
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, command: list[str], env: dict[str, str]) -> None:
        with self._file(rank, "out").open("wb") as out, self._file(rank, "err").open("wb") as err:
            self._processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=ROOT, env=env
                )
            )

    def pid(self, rank: int) -> int:
        return self._processes[rank].pid

    def out(self, rank: int) -> str:
        """Returns the output of the rank so far."""
        return self._file(rank, "out").read_text(errors="replace")

    def kill(self, rank: int) -> None:
        """Kills with SIGKILL, like the kernel when memory runs out."""
        self._processes[rank].kill()

    def kill_host(self, host: int) -> None:
        """Kills all ranks of a host. The kernel tells their neighbours, unless the wire was cut."""
        for process, where in zip(self._processes, self.host_of):
            if where == host:
                process.kill()

    def wait(self, timeout: float) -> list[Result]:
        """Returns how each rank has ended; late ones by SIGKILL. `timeout`: seconds for all."""
        end = time.monotonic() + timeout
        late = set()
        for rank, process in enumerate(self._processes):
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.add(rank)
        try:
            return [
                Result(
                    rank,
                    self.host_of[rank],
                    None if rank in late else process.returncode,
                    self.out(rank),
                    self._file(rank, "err").read_text(errors="replace"),
                )
                for rank, process in enumerate(self._processes)
            ]
        finally:
            self.close()

    def close(self) -> None:
        """Kills what still runs. Any number of times."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._folder.cleanup()

    def _file(self, rank: int, what: str) -> Path:
        return Path(self._folder.name) / f"{rank}.{what}"


def inside(pid: int, *spaces: str) -> list[str]:
    """Returns the command that runs the one after it there, without a fork."""
    if not spaces:
        spaces = ("--net", "--uts") if os.geteuid() == 0 else ("--user", "--net", "--uts")
    kept = ["--preserve-credentials"] if "--user" in spaces else []
    return ["nsenter", "--target", str(pid), *spaces, *kept]


def _tell(holder: subprocess.Popen[str], pid: int) -> None:
    assert holder.stdin is not None
    holder.stdin.write(f"{pid}\n")
    holder.stdin.flush()
