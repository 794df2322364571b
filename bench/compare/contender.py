"""A contender as the coordinator has it: started, asked within a deadline, ended for certain."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from array import array
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ringkern.tools.launch import starting

from .catalogue import Configuration

ALONE = Path(__file__).with_name("alone.py")
ROOT = Path(__file__).resolve().parents[2]
END_S = 5.0  # for ranks and mpiexec to end by themselves


class ContenderError(RuntimeError):
    """A rank died, failed, or did not answer in time."""


class Contender:
    """The ranks of one configuration.

    Attributes:
        modes, dtypes, version: as its ranks say when they are ready.
    """

    def __init__(
        self,
        configuration: Configuration,
        ranks: int,
        folder: Path,
        cores: list[list[int]],
        threads: int = 1,
    ) -> None:
        """``folder`` is for this contender alone; ``cores``: rank r runs on ``cores[r]``; none: on
        any. ``threads``: of each rank."""
        self.configuration, self.ranks = configuration, ranks
        self._threads = threads
        self._folder, self._cores = folder, cores
        self.modes: tuple[str, ...] = ()
        self.dtypes: tuple[str, ...] = ()
        self.version = ""
        self.pipes: dict[int, Connection] = {}
        self._pids: dict[int, int] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._shared: set[str] = set()
        folder.mkdir(exist_ok=True)
        self._log = folder / "log"

    @property
    def name(self) -> str:
        """The name of its configuration."""
        return self.configuration.name

    def start(self, meeting: str, timeout_s: float, files: tuple[int, ...]) -> None:
        """Starts the ranks. They will connect to the socket ``meeting``, see ``join``.

        ``files``: descriptors that they inherit.
        """
        chosen = self.configuration
        spec = {
            "name": chosen.name,
            "adapter": chosen.adapter,
            "path": chosen.path,
            "options": {
                **chosen.options,
                "folder": str(self._folder),
                "files": files,
                "threads": self._threads,
            },
            "ranks": self.ranks,
            "cores": self._cores,
            "socket": meeting,
            "timeout_s": timeout_s,
        }
        program = [str(ALONE)] if chosen.alone else ["-m", "bench.compare.worker"]
        # Files that libraries leave in TMPDIR are removed with the folder.
        environment = {**os.environ, "TMPDIR": str(self._folder)}
        environment["OMP_NUM_THREADS"] = str(self._threads)
        if chosen.alone:
            environment.pop("PYTHONPATH", None)
        else:
            paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if chosen.mpiexec:
            commands = [[*chosen.mpiexec, "-n", str(self.ranks), chosen.python, *program]]
            specs: list[dict[str, Any]] = [spec]
        else:
            commands = [[chosen.python, *program]] * self.ranks
            specs = [{**spec, "rank": rank} for rank in range(self.ranks)]
        with self._log.open("ab") as log:
            for command, given in zip(commands, specs):
                with starting(f"a rank of {chosen.name}"):
                    process = subprocess.Popen(
                        [*command, json.dumps(given)],
                        env={**environment, **chosen.variables},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=files,
                        start_new_session=True,  # a Ctrl-C is for the coordinator, which ends them
                    )
                    self._processes.append(process)

    def join(self, hello: dict[str, Any], pipe: Connection) -> None:
        """Takes the connection of a rank."""
        self._pids[hello["rank"]] = hello["pid"]
        self.pipes[hello["rank"]] = pipe

    def exited(self) -> bool:
        """Returns whether a process has ended that should be there."""
        return any(process.poll() is not None for process in self._processes)

    def welcome(self, timeout_s: float) -> None:
        """Waits until all ranks, which have joined, are ready.

        Raises:
            ContenderError: one is not.
        """
        [answer, *_] = self._gather(time.monotonic() + timeout_s, timeout_s)
        self.modes, self.dtypes = tuple(answer["modes"]), tuple(answer["dtypes"])
        self.version = answer["version"]
        self.ask("met", timeout_s)
        self._shared |= self._in_dev_shm()

    def ask(self, command: str, timeout_s: float, **arguments: Any) -> list[dict[str, Any]]:
        """The answers of all ranks to a command of :class:`worker.Worker`, by rank.

        Those to ``time`` have ``"times"`` in ns.

        Raises:
            ContenderError: a rank died, raised, or did not answer within the time.
        """
        message = json.dumps({"do": command, **arguments}).encode()
        deadline = time.monotonic() + timeout_s
        for rank, pipe in self.pipes.items():
            try:
                pipe.send_bytes(message)
            except OSError:
                raise ContenderError(self._death(rank)) from None
        return self._gather(deadline, timeout_s)

    def busy_s(self) -> float:
        """The processor time that all ranks have used so far."""
        ticks = 0
        for pid in self._pids.values():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])  # of the user, of the kernel
        return ticks / os.sysconf("SC_CLK_TCK")

    def dismiss(self) -> None:
        """Tells the ranks to leave."""
        for pipe in self.pipes.values():
            with contextlib.suppress(OSError):
                pipe.send_bytes(json.dumps({"do": "close"}).encode())

    def end(self) -> None:
        """Waits for ranks that have been dismissed, and ends by force those that do not leave."""
        deadline = time.monotonic() + END_S
        for process in self._processes if self.pipes else ():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Ends all processes: ranks, and what started them. Any number of times."""
        self._shared |= self._in_dev_shm()
        launched = bool(self.configuration.mpiexec)
        if launched:  # mpiexec ends its ranks and removes what it left, if it can
            self._signal_launcher(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._processes[0].wait(END_S)
        for pid in self._pids.values():
            if not launched or self._is_rank(pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.kill()
            process.wait()
        for pipe in self.pipes.values():
            pipe.close()
        self.pipes, self._pids = {}, {}
        for name in self._shared:
            with contextlib.suppress(OSError):
                os.unlink(name)

    def last_words(self) -> str:
        """The last line that a rank has printed."""
        with contextlib.suppress(OSError):
            lines = self._log.read_text(errors="replace").strip().splitlines()
            return lines[-1].strip() if lines else ""
        return ""

    def _gather(self, deadline: float, timeout_s: float) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        waiting = dict(self.pipes)
        while waiting:
            ready = wait(list(waiting.values()), max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(map(str, sorted(waiting)))
                raise ContenderError(f"rank {late} did not answer within {timeout_s:g} s")
            for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
                answers[rank] = self._receive(rank)
                del waiting[rank]
        return [answers[rank] for rank in sorted(answers)]

    def _receive(self, rank: int) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(self.pipes[rank].recv_bytes())
            if "error" in answer:
                raise ContenderError(f"rank {rank}: {answer['error']}")
            if "preempted" in answer:
                answer["times"] = array("q", self.pipes[rank].recv_bytes())
        except (EOFError, OSError):
            raise ContenderError(self._death(rank)) from None
        return answer

    def _death(self, rank: int) -> str:
        words = self.last_words()
        return f"rank {rank} died" + (f": {words}" if words else "")

    def _signal_launcher(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _is_rank(self, pid: int) -> bool:
        """Returns whether a process that mpiexec started is still that process."""
        with contextlib.suppress(OSError):
            return str(self._folder) in Path(f"/proc/{pid}/cmdline").read_text()
        return False

    def _in_dev_shm(self) -> set[str]:
        """Files in /dev/shm that the ranks have mapped, and that a kill would leave behind."""
        found = set()
        for pid in self._pids.values():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                    path = line.split(maxsplit=5)[-1]
                    if path.startswith("/dev/shm/") and not path.endswith("(deleted)"):
                        found.add(path)
        return found


class Meeting:
    """A socket at which ranks report, whoever has started them."""

    def __init__(self) -> None:
        # Short: the path of a socket has 107 bytes at most.
        self._folder = tempfile.TemporaryDirectory(prefix="ringkern-bench-")
        self.folder = Path(self._folder.name)
        self.address = str(self.folder / "socket")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen(256)

    def gather(self, contenders: list[Contender], timeout_s: float) -> dict[str, str]:
        """Waits until the ranks of all contenders are there; why some are not, by name."""
        by_name = {contender.name: contender for contender in contenders}
        deadline = time.monotonic() + timeout_s
        missing = dict(by_name)
        failed: dict[str, str] = {}
        while missing and time.monotonic() < deadline:
            self._socket.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                connection, _ = self._socket.accept()
                connection.settimeout(None)
                pipe = Connection(connection.detach())
                hello = json.loads(pipe.recv_bytes())
                contender = by_name[hello["contender"]]
                contender.join(hello, pipe)
                if len(contender.pipes) == contender.ranks:
                    missing.pop(contender.name, None)
                continue
            for name in [name for name, contender in missing.items() if contender.exited()]:
                failed[name] = f"did not start: {missing.pop(name).last_words()}"
        late = dict.fromkeys(missing, f"did not start within {timeout_s:g} s")
        return {**failed, **late}

    def close(self) -> None:
        """Removes the socket and its folder."""
        self._socket.close()
        self._folder.cleanup()
