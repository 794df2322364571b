"""The lines of ``doctor``, each in each of its colours, with its fix."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ringkern
from ringkern.tools.doctor import build, gpu, host, machine
from ringkern.tools.doctor.check import Finding, State, green, red, unchecked, yellow
from tests.cli.test_env import write

GREEN, YELLOW, RED, UNCHECKED = State.GREEN, State.YELLOW, State.RED, State.UNCHECKED


# ---- a line -------------------------------------------------------------------------------------


def test_only_findings_that_are_not_green_have_a_fix() -> None:
    for make in (yellow, red):
        with pytest.raises(AssertionError):
            make("x", "is wrong", "")
    with pytest.raises(AssertionError):
        Finding("x", GREEN, "is well", "do something")
    assert red("x", "is wrong", "mend it").text().splitlines()[1].strip() == "fix: mend it"
    assert green("x", "is well").text(colors=True).startswith("\x1b[32mgreen")
    assert unchecked("x", "why").as_dict() == {
        "name": "x",
        "state": "not checked",
        "found": "why",
        "fix": "",
    }


# ---- build --------------------------------------------------------------------------------------

H100 = {"name": "NVIDIA H100", "capability": [9, 0]}


ENGINES = {"cpu": {"name": "gloo", "there": True}, "cuda": {"name": "nccl", "there": True}}
NO_NCCL = {**ENGINES, "cuda": {"name": "nccl", "there": False}}


def loaded(**changes: Any) -> dict[str, dict[str, Any]]:
    """Returns the probe's facts on a machine with two GPUs; ``build__x`` changes a fact of the
    build.
    """
    info = {**ringkern.build_info(), "cuda": True, "cuda_archs": "sm_80 sm_90 compute_90"}
    info |= {"cuda_runtime": 13000}
    found: dict[str, dict[str, Any]] = {
        "torch": {"version": "2.13.0", "cuda": "13.0", "gloo": True, "file": "/torch"},
        "ringkern": {"build": info, "unknown_variables": {}, "engines": ENGINES},
        "cuda": {"driver": 13000, "devices": [H100, H100], "peers": [[True, True], [True, True]]},
    }
    for name, value in changes.items():
        stage, _, key = name.partition("__")
        if stage == "build":
            info[key] = value
        elif key:
            found[stage][key] = value
        else:
            found[stage] = value
    return found


DRIVER = {"version": "580.1", "gpus": [], "mps": False}


@pytest.mark.parametrize(
    ("check", "changes", "state", "said"),
    [
        (build.torch, {}, GREEN, "2.13.0"),
        (build.torch, {"torch": {"error": "ImportError: no"}}, RED, "install torch again"),
        (build.torch, {"torch__gloo": False}, YELLOW, "without Gloo"),
        (build.extension, {}, GREEN, "built against torch"),
        (build.extension, {"ringkern": {"error": "ImportError: x"}}, RED, build.REBUILD),
        (build.extension, {"ringkern": {"error": "by SIGILL"}}, RED, "on a CPU like this one"),
        (
            build.extension,
            {"ringkern": {"error": "ImportError: this is the source, not an installation"}},
            RED,
            "pip install -e .",
        ),
        (
            build.extension,
            {"ringkern": {"error": "ValueError: RINGKERN_TIMEOUT='x': give"}},
            RED,
            "give RINGKERN_TIMEOUT a value",
        ),
        (
            build.extension,
            {"torch": {"error": "x"}, "ringkern": {"error": "x"}},
            UNCHECKED,
            "torch does not load",
        ),
        (build.kernels, {}, GREEN, "CUDA 13.0"),
        (build.kernels, {"build__cuda": False}, RED, "put nvcc on the PATH"),
        (build.kernels, {"build__cuda_archs": "sm_80 sm_100"}, RED, 'RINGKERN_CUDA_ARCHS="90"'),
        (build.kernels, {"build__cuda_archs": "compute_80"}, GREEN, "compute_80"),
        (build.kernels, {"cuda__devices": []}, UNCHECKED, "torch sees no GPU"),
        (build.kernels, {"cuda": {"error": "x"}}, UNCHECKED, "cuda does not load"),
        (build.variables, {}, GREEN, "no unknown"),
        (build.variables, {"ringkern__unknown_variables": {"RINGKERN_X": None}}, YELLOW, "unset"),
        (build.variables, {"ringkern": {"error": "x"}}, UNCHECKED, "does not load"),
        (build.between_hosts, {}, GREEN, "gloo for cpu tensors, nccl for cuda tensors"),
        (build.between_hosts, {"ringkern__engines": NO_NCCL}, YELLOW, "no nccl for cuda tensors"),
        (build.between_hosts, {"ringkern__engines": NO_NCCL}, YELLOW, "RINGKERN_INTER_HOST=gloo"),
        (
            build.between_hosts,
            {"ringkern__engines": NO_NCCL, "cuda__devices": []},
            GREEN,
            "gloo for cpu tensors",
        ),
        (build.between_hosts, {"ringkern": {"error": "x"}}, UNCHECKED, "does not load"),
    ],
)
def test_build(
    check: Callable[[Any], Finding], changes: dict[str, Any], state: State, said: str
) -> None:
    found = check(loaded(**changes))
    assert found.state == state
    assert said in found.text()


def test_a_compiler_matters_where_a_build_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = loaded(ringkern={"error": "ImportError: x"})
    assert build.compiler(loaded(), DRIVER).state == UNCHECKED
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt install g++" in build.compiler(broken, DRIVER).fix
    compiler = tmp_path / "g++"
    for version, driver, state, said in (
        ("7.5.0", "", RED, "too old"),
        ("12", "", GREEN, "g++ 12"),
        ("12", "580", YELLOW, "no nvcc"),
    ):
        compiler.write_text(f"#!/bin/sh\necho {version}\n")
        compiler.chmod(0o700)
        found = build.compiler(broken, {**DRIVER, "version": driver})
        assert (found.state, said in found.text()) == (state, True), found


# ---- GPUs ---------------------------------------------------------------------------------------


def smi(mode: str = "Default", mig: str = "Disabled") -> dict[str, str]:
    return {"index": "0", "compute_mode": mode, "mig.mode.current": mig}


@pytest.mark.parametrize(
    ("name", "changes", "driver", "state", "said"),
    [
        ("driver and GPUs", {}, {}, GREEN, "2 x NVIDIA H100, driver 580.1, which has CUDA 13.0"),
        ("driver and GPUs", {"torch": {"error": "x"}}, {}, UNCHECKED, "torch does not load"),
        ("driver and GPUs", {"cuda__devices": []}, {"version": ""}, UNCHECKED, "on the CPU"),
        ("driver and GPUs", {"cuda__devices": []}, {}, RED, "CUDA_VISIBLE_DEVICES"),
        ("driver and GPUs", {"cuda": {"error": "RuntimeError: 803"}}, {}, RED, "803"),
        (
            "driver and GPUs",
            {"torch__cuda": None, "cuda__devices": []},
            {},
            YELLOW,
            "install a torch with CUDA",
        ),
        ("driver and GPUs", {"cuda__driver": 12080}, {}, RED, "install a newer driver"),
        ("ranks on one GPU", {}, {}, GREEN, "take turns"),
        ("ranks on one GPU", {}, {"mps": True, "gpus": [smi("Exclusive_Process")]}, GREEN, "MPS"),
        ("ranks on one GPU", {}, {"gpus": [smi("Exclusive_Process")]}, YELLOW, "compute-mode=0"),
        ("ranks on one GPU", {}, {"gpus": [smi("Prohibited")]}, YELLOW, "Prohibited"),
        ("ranks on one GPU", {}, {"gpus": [smi(mig="Enabled")]}, YELLOW, "MIG"),
        ("GPU to GPU", {}, {}, GREEN, "each of 2"),
        ("GPU to GPU", {"cuda__peers": [[True, False], [True, True]]}, {}, YELLOW, "0->1"),
        ("GPU to GPU", {"cuda__devices": [H100]}, {}, UNCHECKED, "one GPU"),
        ("GPU to GPU", {"cuda__devices": []}, {}, UNCHECKED, "no GPU"),
    ],
)
def test_gpus(
    name: str, changes: dict[str, Any], driver: dict[str, Any], state: State, said: str
) -> None:
    found = {f.name: f for f in gpu.findings(loaded(**changes), {**DRIVER, **driver})}
    assert found[name].state == state
    assert said in found[name].text()


def test_the_output_of_nvidia_smi_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    write(
        tmp_path,
        proc__driver__nvidia__version="NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
        "580.95.05  Release Build\n",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert gpu.driver() == {"version": "580.95.05", "gpus": [], "mps": False}
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, Default, Enabled'\necho error\n")
    tool.chmod(0o700)
    (tmp_path / "control").touch()
    assert gpu.driver() == {
        "version": "580.95.05",
        "gpus": [smi(mig="Enabled")],
        "mps": True,
    }


# ---- the system ---------------------------------------------------------------------------------


def refuse(*_: Any, **__: Any) -> Any:
    raise PermissionError(1, "Operation not permitted")


def test_memory_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert host.memory_file().state == GREEN
    monkeypatch.setattr(os, "memfd_create", refuse)
    room = {"total": 1 << 30, "free": 1 << 30}
    monkeypatch.setattr(machine, "dev_shm", lambda: room)
    found = host.memory_file()
    assert found.state == (YELLOW if os.path.isdir("/dev/shm") else RED)
    assert "Operation not permitted" in found.found
    room["free"] = 1 << 20
    assert "--shm-size" in host.memory_file().fix
    monkeypatch.setattr(os, "open", refuse)
    found = host.memory_file()
    assert found.state == RED
    assert "mount a tmpfs" in found.fix


def test_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.sockets().state == GREEN
    with monkeypatch.context() as patch:
        patch.setattr(socket, "recv_fds", lambda *_: (b"x", [], 0, ""))
        assert "ulimit -n" in host.sockets().fix
    monkeypatch.setattr(socket, "socket", refuse)
    found = host.sockets()
    assert found.state == RED
    assert "AF_UNIX" in found.fix


def test_process_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.process_handles().state == GREEN
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert host.process_handles().state == YELLOW
    monkeypatch.delattr(os, "pidfd_open")
    assert host.process_handles().state == UNCHECKED


GIB = 1 << 30


@pytest.mark.parametrize(
    ("finding", "state", "said"),
    [
        (host.memory({"available": GIB}, 2), GREEN, "the machine has 1024 MiB left"),
        (host.memory({"available": GIB}, 100), RED, "100 ranks map up to 1600 MiB"),
        (
            host.memory({"available": GIB, "limit": GIB, "used": GIB - 1}, 2),
            RED,
            "docker: --memory",
        ),
        (host.memory({}, 2), UNCHECKED, "cannot be read"),
        (host.address_space({"file size": None, "address space": None}, 2), GREEN, "enough"),
        (host.address_space({"file size": 1 << 20, "address space": None}, 2), RED, "ulimit -f"),
        (host.address_space({"file size": None, "address space": GIB}, 2), RED, "ulimit -v"),
        (host.open_files({"open files": None}), GREEN, "unlimited"),
        (host.open_files({"open files": 1024}), GREEN, "1024"),
        (host.open_files({"open files": 256}), YELLOW, "ulimit -n 1024"),
        (host.open_files({"open files": 64}), RED, "ulimit -n 1024"),
        (host.locked_memory({"locked memory": 65536}, False), UNCHECKED, "no GPU"),
        (host.locked_memory({"locked memory": 65536}, True), YELLOW, "memlock=-1"),
        (host.locked_memory({"locked memory": None}, True), GREEN, "unlimited"),
        (host.core_count(2, 2, None), GREEN, "2 for 2 ranks"),
        (host.core_count(4, 2, None), YELLOW, "use 2 ranks"),
        (host.core_count(4, 8, 1.5), YELLOW, "quota of 1.5"),
    ],
)
def test_limits(finding: Finding, state: State, said: str) -> None:
    assert finding.state == state
    assert said in finding.text()


def test_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert host.clock().state == GREEN
    for source, state in (("tsc", GREEN), ("hpet", YELLOW)):
        write(
            tmp_path,
            sys__devices__system__clocksource__clocksource0__current_clocksource=f"{source}\n",
        )
        assert host.clock().state == state
    ticks: Iterator[int] = iter(range(2000, 0, -1))
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(ticks))
    assert host.clock(looks=10).state == RED


def test_hostname(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    def slow(*_: Any) -> Any:
        monkeypatch.setattr(host, "SLOW_LOOKUP_S", -1.0)

    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    assert host.hostname(lambda *_: None).state == GREEN
    found = host.hostname(unknown)
    assert found.state == YELLOW
    assert "127.0.1.1 node7" in found.fix
    assert host.hostname(slow).state == YELLOW


def test_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    assert list(host.interfaces({})) == []
    for asked, state in (("eth0", GREEN), ("lo,eth0", GREEN), ("lo,eth1", RED), ("eth", RED)):
        [found] = host.interfaces({"GLOO_SOCKET_IFNAME": asked})
        assert found.state == state, asked
    assert found.found == "there is no interface eth: Gloo fails"
    assert found.fix == "choose of lo, eth0, or unset it"


def test_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.localhost().state == GREEN
    monkeypatch.setattr(socket, "create_connection", refuse)
    found = host.localhost()
    assert found.state == RED
    assert "/etc/hosts" in found.fix


def test_limits_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (7, resource.RLIM_INFINITY))
    assert set(machine.limits().values()) == {7}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 7))
    assert set(machine.limits().values()) == {None}
