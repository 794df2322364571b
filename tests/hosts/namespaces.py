"""Network namespaces as hosts: a wire from each to a switch, none of it the machine's own network.

A process of its own holds each namespace. The namespace ends with it, together with its wires and
the switch: whatever happens to the test, nothing is left. Needs root, or a kernel that allows user
namespaces; `why_not` names a missing requirement.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.jobs import DEVICE, Job, Place, Result, inside

NAMES = "abcdefgh"  # of the hosts
_PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}
_COMMAND_LIMIT_S = 20.0
_FRAME = 1514  # the most bytes of a packet on these wires: an MTU of 1500, and Ethernet's header
_QUEUE_MS = 100  # what a shaped wire holds back before it drops

# Holds a namespace. It is told of the processes in it, and ends them and itself when its input
# closes: the test's own process has ended.
_HOLDER = """
import os, signal, socket, sys
socket.sethostname(sys.argv[1])
print("here", flush=True)
processes = [os.pidfd_open(int(pid)) for pid in sys.stdin]
for process in processes:
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class CannotError(Exception):
    """This machine does not permit it; the text names the missing requirement."""


class Net:
    """Hosts on a switch; a context manager.

    Args:
        hosts: how many.
        gbit_s: of each host's wire, in each direction; None: as fast as the machine moves bytes.
        delay_ms: from a host to another; None: as little as it takes. Needs the kernel's netem.

    Raises:
        CannotError: when entered, what this machine does not permit.
    """

    def __init__(
        self, hosts: int = 2, gbit_s: float | None = None, delay_ms: float | None = None
    ) -> None:
        self.hosts, self.gbit_s, self.delay_ms = hosts, gbit_s, delay_ms
        self._holders: list[subprocess.Popen[str]] = []  # the switch's is the first
        self._jobs: list[Job] = []
        self._port = 29500

    def __enter__(self) -> Net:
        try:
            self._hold("switch")
            self._ip(0, "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
            self._ip(0, "link set br0 addrgenmode none", "link set br0 up")
            for host in range(self.hosts):
                self._hold(NAMES[host])
                self._wire(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the jobs, and with the holders all that they hold."""
        for job in self._jobs:
            job.close()
        for holder in self._holders:
            holder.kill()
            holder.communicate()
        self._jobs, self._holders = [], []

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def place(self, ranks: Sequence[int]) -> Place:
        """Returns a place with this many ranks on each host, numbered host by host; they meet at
        their own port.
        """
        self._port += 1
        pids = tuple(holder.pid for holder in self._holders[1:])
        host_of = tuple(host for host, count in enumerate(ranks) for _ in range(count))
        return Place(pids, host_of, self.address(host_of[0]), self._port)

    def start(
        self, program: str | Sequence[str], ranks: Sequence[int], env: dict[str, str] | None = None
    ) -> Job:
        """Starts a process for each rank.

        Args:
            program: Python's source, or the arguments of a Python, such as ``["-m", "ringkern"]``.
            ranks: how many on each host.
            env: added to that of this process and the variables of torchrun.
        """
        arguments = ["-c", program] if isinstance(program, str) else [*program]
        command = [sys.executable, *arguments]
        self._jobs.append(Job(self.place(ranks), self._holders[1:], command, env))
        return self._jobs[-1]

    def run(
        self,
        program: str | Sequence[str],
        ranks: Sequence[int],
        *,
        timeout: float,
        env: dict[str, str] | None = None,
    ) -> list[Result]:
        """Runs ranks like `start`, and waits, in seconds; kills late ones."""
        return self.start(program, ranks, env).wait(timeout)

    def bytes(self, host: int) -> tuple[int, int]:
        """Returns the bytes sent and received by the host so far, with all headers, by its
        interface's counters.

        Several packets of a connection may be sent as one, with one header.
        """
        for line in Path(f"/proc/{self._holders[1 + host].pid}/net/dev").read_text().splitlines():
            name, _, counted = line.partition(":")
            if name.strip() == DEVICE:
                numbers = counted.split()
                return int(numbers[8]), int(numbers[0])
        raise AssertionError(f"host {host} has no {DEVICE}")

    def repeated(self, host: int) -> int:
        """Returns the most bytes of those sent that TCP has sent more than once.

        A packet seems lost to TCP while its receiver waits for a core.
        """
        snmp = Path(f"/proc/{self._holders[1 + host].pid}/net/snmp").read_text()
        names, values = (line.split() for line in snmp.splitlines() if line.startswith("Tcp:"))
        return int(values[names.index("RetransSegs")]) * _FRAME

    def cut(self, host: int) -> None:
        """Makes the switch silently drop everything that the host sends and would get."""
        self._ip(0, f"link set port{host} nomaster")

    def mend(self, host: int) -> None:
        self._ip(0, f"link set port{host} master br0")

    def inside(self, host: int, *command: str) -> str:
        """Returns the output of a command that is run on the host."""
        return _run([*inside(self._holders[1 + host].pid), *command])

    def _hold(self, name: str) -> None:
        command = ["unshare", "--net", "--uts"]
        if os.geteuid() != 0:
            if self._holders:  # all namespaces belong to the first one's user namespace
                command = [*inside(self._holders[0].pid, "--user"), *command]
            else:
                command += ["--user", "--map-root-user"]
        holder = subprocess.Popen(
            [*command, sys.executable, "-I", "-S", "-c", _HOLDER, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != "here\n":
            said = holder.communicate(timeout=_COMMAND_LIMIT_S)[1].strip().splitlines()
            raise CannotError(
                f"no network namespace can be made ({said[-1] if said else 'no reason given'}): "
                "be root, or allow user namespaces to others"
            )

    def _wire(self, host: int) -> None:
        port, pid = f"port{host}", self._holders[1 + host].pid
        self._ip(
            0,
            f"link add {port} type veth peer name {DEVICE} netns {pid}",
            f"link set {port} addrgenmode none",
            f"link set {port} master br0",
            f"link set {port} up",
        )
        self._ip(
            1 + host,
            "link set lo up",
            f"link set {DEVICE} addrgenmode none",
            f"address add {self.address(host)}/24 dev {DEVICE}",
            f"link set {DEVICE} up",
        )
        self._shape(1 + host, DEVICE, self.delay_ms)
        self._shape(0, port, None)  # what a host receives; the sender has been delayed

    def _shape(self, holder: int, device: str, delay_ms: float | None) -> None:
        parent = "root"
        if delay_ms is not None:
            self._tc(holder, f"{device} root handle 1: netem delay {delay_ms}ms limit 100000")
            parent = "parent 1:1"
        if self.gbit_s is not None:
            # A packet may have 64 KiB before it is cut for the wire, and the clock ticks 250 times
            # a second.
            rate = int(self.gbit_s * 1e9)
            burst = max(128 << 10, rate // 8 // 250)
            self._tc(
                holder,
                f"{device} {parent} tbf rate {rate}bit burst {burst}b latency {_QUEUE_MS}ms",
            )

    def _ip(self, holder: int, *commands: str) -> None:
        _run([*inside(self._holders[holder].pid), "ip", "-batch", "-"], "\n".join(commands) + "\n")

    def _tc(self, holder: int, what: str) -> None:
        _run([*inside(self._holders[holder].pid), "tc", "qdisc", "add", "dev", *what.split()])


def _run(command: list[str], given: str | None = None) -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()
        raise CannotError(f"{' '.join(command)}: {said[0]}")
    return done.stdout


@functools.lru_cache
def why_not(gbit_s: float | None = None, delay_ms: float | None = None) -> str | None:
    """Returns why this machine cannot have such a `Net`, to skip a test; None if it can."""
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"no {program}, which is a part of {package}"
    try:
        with Net(1, gbit_s, delay_ms):
            return None
    except CannotError as error:
        return str(error)
