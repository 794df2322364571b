"""The hosts that the other tests run on: that they are apart, and what crosses is seen."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import namespaces
from tests.hosts.jobs import ROOT
from tests.hosts.namespaces import CannotError, Net, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


# A rank's part of a program: b receives what a sends, and answers with how much has come.
TALK = """
import os, socket, sys, time
size = int(sys.argv[1])
if os.environ["RANK"] == "0":
    with socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as s:
        print("listening", flush=True)
        connection, _ = s.accept()
        connection.sendall(bytes(size))
        assert connection.recv(1) == b"!"
else:
    while True:
        try:
            address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            connection = socket.create_connection(address, 1)
            break
        except OSError:
            time.sleep(0.01)  # each attempt crosses, and is counted
    connection.settimeout(50)
    while size:
        size -= len(connection.recv(1 << 20))
    print("received", flush=True)
    connection.sendall(b"!")
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Net]:
    with Net(2) as made:
        yield made


def test_each_host_has_a_name_and_a_network_of_its_own(two: Net) -> None:
    program = """
import os, socket
own = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
print(socket.gethostname(), *own, *sorted(name for _, name in socket.if_nameindex()))
"""
    ended = two.run(program, [1, 2], timeout=20)
    assert [result.status for result in ended] == [0, 0, 0], ended
    assert [result.host for result in ended] == [0, 1, 1]
    assert [result.out.split() for result in ended] == [
        ["a", "0", "0", "1", "eth0", "lo"],
        ["b", "1", "0", "2", "eth0", "lo"],
        ["b", "2", "1", "2", "eth0", "lo"],
    ]


def test_bytes_that_cross_are_counted(two: Net) -> None:
    size = 1 << 20
    before = [two.bytes(host) for host in range(2)]
    ended = two.run(["-c", TALK, str(size)], [1, 1], timeout=20)
    assert [result.status for result in ended] == [0, 0], ended
    (a_sent, a_received), (b_sent, b_received) = [
        tuple(now - then for now, then in zip(two.bytes(host), before[host])) for host in range(2)
    ]
    assert size < a_sent < 1.1 * size
    assert b_received == a_sent
    assert a_received == b_sent < 0.1 * size


def test_a_cut_wire_brings_nothing_and_is_mended(two: Net) -> None:
    two.cut(1)
    job = two.start(["-c", TALK, "1000"], [1, 1])
    while "listening" not in job.out(0):
        time.sleep(0.01)
    before = two.bytes(0)[1]
    time.sleep(1)
    assert two.bytes(0)[1] == before
    assert "received" not in job.out(1)
    two.mend(1)
    assert [result.status for result in job.wait(20)] == [0, 0]


def test_ranks_and_hosts_are_killed(two: Net) -> None:
    job = two.start("import time; print('here', flush=True); time.sleep(100)", [2, 2])
    while not all("here" in job.out(rank) for rank in range(4)):
        time.sleep(0.01)
    job.kill(0)
    job.kill_host(1)
    assert [result.status for result in job.wait(1)] == [-9, None, -9, -9]
    assert not any(Path(f"/proc/{job.pid(rank)}").exists() for rank in range(4))


def test_a_shaped_wire_takes_its_time() -> None:
    """Bytes that have come have taken at least as long as the wire takes for them."""
    with Net(2, gbit_s=0.01) as slow:
        start = time.monotonic()
        ended = slow.run(["-c", TALK, str(1 << 20)], [1, 1], timeout=30)
        took = time.monotonic() - start
    assert [result.status for result in ended] == [0, 0], ended
    burst = 128 << 10  # goes at once, on the way out and on the way in
    assert took > ((1 << 20) - 2 * burst) * 8 / 0.01e9


def test_bytes_that_tcp_sends_again_are_counted() -> None:
    size = 1 << 20
    with Net(2, gbit_s=0.01) as slow:
        job = slow.start(["-c", TALK, str(size)], [1, 1])
        while "listening" not in job.out(0):
            time.sleep(0.001)
        before = slow.bytes(0)[0]  # the other rank may have tried to connect thousands of times
        while slow.bytes(0)[0] < before + size // 4:
            time.sleep(0.001)
        slow.cut(1)
        while slow.repeated(0) == 0:
            time.sleep(0.001)
        slow.mend(1)
        assert [result.status for result in job.wait(30)] == [0, 0]
        sent, repeated = slow.bytes(0)[0] - before, slow.repeated(0)
    assert 0 < repeated < size
    # No lower bound without repeats: `repeated` also counts what the wire's full queue dropped.
    assert size < sent
    assert sent - repeated < 1.1 * size


def test_nothing_is_left_by_a_test_that_is_killed() -> None:
    program = """
import os, signal
from tests.hosts.namespaces import Net
with Net(2) as net:
    job = net.start("import time; time.sleep(1000)", [1, 1])
    print(*[holder.pid for holder in net._holders], job.pid(0), job.pid(1), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    left = {Path(f"/proc/{pid}/cmdline") for pid in done.stdout.split()}
    assert len(left) == 5
    end = time.monotonic() + 20
    while left and time.monotonic() < end:
        left = {path for path in left if _lives(path)}
        time.sleep(0.02)
    assert not left


def _lives(cmdline: Path) -> bool:
    """Returns whether it runs: neither gone nor a zombie."""
    try:
        return cmdline.read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_machine_without_the_programs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    why_not.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(namespaces.shutil, "which", lambda name: name != "tc" or None)
        assert why_not() == "no tc, which is a part of iproute2"
    why_not.cache_clear()


def test_a_refusal_of_the_kernel_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, *spaces: str) -> list[str]:
        return ["sh", "-c", "echo 'RTNETLINK answers: Operation not supported' >&2; exit 2", "-"]

    monkeypatch.setattr(namespaces, "inside", refused)
    with pytest.raises(CannotError, match="Operation not supported"), Net(1):
        pass
