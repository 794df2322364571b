"""Checks the system for rings: memory files, sockets, limits, cores, a clock, a network."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import machine
from .check import Finding, green, red, unchecked, yellow

SEGMENT_BYTES = 16 << 20  # maximum of a rank, unless messages or shared tensors take more
ENOUGH_FILES, FEW_FILES = 1024, 128
# The limits that NVIDIA's documentation of NCCL recommends to raise in containers.
LITTLE_LOCKED = 64 << 20
SLOW_LOOKUP_S = 2.0
# The kernel's clocks that a program reads without a system call.
QUICK_CLOCKS = (
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
    "xen",
    "pvclock",
)


def findings(ranks: int, has_gpus: bool) -> Iterator[Finding]:
    """Runs all checks of this module."""
    yield memory_file()
    yield sockets()
    yield process_handles()
    yield memory(machine.memory(), ranks)
    yield address_space(machine.limits(), ranks)
    yield open_files(machine.limits())
    yield locked_memory(machine.limits(), has_gpus)
    yield core_count(ranks, machine.cores(), machine.cpu_quota())
    yield clock()
    yield hostname()
    yield from interfaces(os.environ)
    yield localhost()


# ---- memory that ranks share --------------------------------------------------------------------


def memory_file() -> Finding:
    """Checks an anonymous memory file, sealed and mapped; or its substitute."""
    name = "memory files"
    try:
        fd = os.memfd_create("ringkern-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return _stand_in(name, f"memfd_create: {error.strerror}")
    try:
        os.ftruncate(fd, 1 << 20)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        with mmap.mmap(fd, 1 << 20) as mapped:
            mapped[0] = 1
    except OSError as error:
        fix = "ulimit -f unlimited, ulimit -v unlimited; or allow the call (seccomp)"
        return red(name, f"a memory file of 1 MiB: {error.strerror}", fix)
    finally:
        os.close(fd)
    return green(name, "memfd_create, sealed and mapped")


def _stand_in(name: str, refusal: str) -> Finding:
    """Checks unnamed files of ``/dev/shm``, if memfd_create is not allowed."""
    room = machine.dev_shm()
    try:
        os.close(os.open("/dev/shm", os.O_TMPFILE | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        return red(
            name,
            f"{refusal}; /dev/shm: {error.strerror}",
            "allow memfd_create (seccomp), or mount a tmpfs at /dev/shm",
        )
    if room is not None and room["free"] < 2 * SEGMENT_BYTES:
        return red(
            name,
            f"{refusal}; /dev/shm stands in, with {room['free'] >> 20} MiB free",
            "allow memfd_create, or make /dev/shm larger (docker: --shm-size=1g)",
        )
    return yellow(
        name,
        f"{refusal}; files of /dev/shm stand in",
        "allow memfd_create: such files cannot be sealed, and take room of /dev/shm",
    )


def sockets() -> Finding:
    """Checks that a descriptor can be sent over an abstract Unix socket, as ranks do."""
    name = "Unix sockets"
    address = f"\0ringkern-doctor-{os.getpid()}-{time.monotonic_ns()}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind(address)
            door.listen(1)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
                guest.connect(address)
                host, _ = door.accept()
                with host, open(os.devnull, "rb") as given:
                    socket.send_fds(guest, [b"x"], [given.fileno()])
                    _, received, _, _ = socket.recv_fds(host, 1, 1)
                    for fd in received:
                        os.close(fd)
    except OSError as error:
        return red(
            name,
            f"{error.strerror or error}",
            "allow AF_UNIX sockets and SCM_RIGHTS between these processes (seccomp, AppArmor)",
        )
    if len(received) != 1:
        return red(name, "a descriptor that was sent did not come", "raise ulimit -n")
    return green(name, "abstract, and descriptors go over them")


def process_handles() -> Finding:
    """Checks handles of processes, which tell the end of a rank with its cause."""
    if not hasattr(os, "pidfd_open"):
        return unchecked("process handles", "this Python has no os.pidfd_open")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return yellow(
            "process handles",
            f"pidfd_open: {error.strerror}",
            "allow it (Linux 5.3, seccomp): without, a rank that dies is noticed by its socket "
            "alone, and how it ended is not told",
        )
    return green("process handles", "pidfd_open")


# ---- limits -------------------------------------------------------------------------------------


def memory(found: Mapping[str, int], ranks: int) -> Finding:
    """Checks the room for the segments of all ranks, in the machine and in the cgroup."""
    name, needed = "memory", ranks * SEGMENT_BYTES
    rooms = {}
    if "available" in found:
        rooms["the machine"] = found["available"]
    if "limit" in found:
        rooms["the memory cgroup"] = found["limit"] - found["used"]
    if not rooms:
        return unchecked(name, "/proc/meminfo cannot be read")
    where, left = min(rooms.items(), key=lambda item: item[1])
    text = f"{where} has {left >> 20} MiB left; {ranks} ranks map up to {needed >> 20} MiB"
    if left < needed:
        fix = "end what else uses memory, or raise the limit (docker: --memory; kubernetes: limits)"
        return red(name, text, fix)
    return green(name, text)


def address_space(found: Mapping[str, int | None], ranks: int) -> Finding:
    """Checks the limits on address space and on the size of files, such as memory files."""
    name = "address space, file size"
    size, space = found["file size"], found["address space"]
    if size is not None and size < SEGMENT_BYTES:
        fix = "ulimit -f unlimited: memory files count as files"
        return red(name, f"files may have {size >> 10} KiB", fix)
    if space is not None and space < (4 << 30) + ranks * SEGMENT_BYTES:
        text = f"a process may have {space >> 20} MiB of addresses"
        return red(name, text, "ulimit -v unlimited: torch and CUDA reserve gigabytes of addresses")
    return green(name, "enough")


def open_files(found: Mapping[str, int | None]) -> Finding:
    """Checks the limit of descriptors: a ring has some for each rank, torch and CUDA many."""
    limit = found["open files"]
    if limit is None or limit >= ENOUGH_FILES:
        return green("open files", "unlimited" if limit is None else str(limit))
    text = f"a process may have {limit} files open"
    make = red if limit < FEW_FILES else yellow
    return make("open files", text, f"ulimit -n {ENOUGH_FILES} (docker: --ulimit nofile=65536)")


def locked_memory(found: Mapping[str, int | None], has_gpus: bool) -> Finding:
    """Checks the limit of locked memory. Only CUDA locks memory."""
    name, limit = "locked memory", found["locked memory"]
    if not has_gpus:
        return unchecked(name, "nothing but CUDA locks memory, and no GPU is visible")
    if limit is None or limit >= LITTLE_LOCKED:
        return green(name, "unlimited" if limit is None else f"{limit >> 20} MiB")
    fix = "ulimit -l unlimited (docker: --ulimit memlock=-1)"
    return yellow(name, f"{limit >> 10} KiB; drivers may need more for pinned memory", fix)


def core_count(ranks: int, cores: int, quota: float | None) -> Finding:
    """Checks that each rank has a core."""
    name = "cores"
    text = f"{cores} for {ranks} ranks"
    if ranks > cores:
        return yellow(name, text, f"use {cores} ranks, or more cores: ranks that wait take turns")
    if quota is not None and quota < ranks:
        fix = "raise the CPU limit (docker: --cpus; kubernetes: limits), or use fewer ranks"
        return yellow(
            name, f"{text}, and a quota of {quota:g}: ranks are stopped when it is used up", fix
        )
    return green(name, text)


# ---- clock --------------------------------------------------------------------------------------


def clock(looks: int = 1000) -> Finding:
    """Checks the clock of deadlines and measurements: it advances, and needs no system call."""
    name = "clock"
    source = machine.text_of("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    start, times = time.monotonic_ns(), [time.monotonic_ns() for _ in range(looks)]
    cost = (times[-1] - start) / looks
    if times != sorted(times):
        return red(name, "it goes backwards", "boot the machine with another clocksource=")
    text = f"{source or 'unknown source'}, {cost:.0f} ns a look from Python"
    if source and source not in QUICK_CLOCKS:
        return yellow(
            name,
            f"{text}: a system call each",
            "waits and measurements are slower; see dmesg for why the kernel left tsc",
        )
    return green(name, text)


# ---- network ------------------------------------------------------------------------------------


def hostname(resolve: Callable[..., Any] = socket.getaddrinfo) -> Finding:
    """Checks the host's own name, which Gloo looks up when a group is made."""
    name, own = "hostname", socket.gethostname()
    start = time.monotonic()
    fix = f"add a line to /etc/hosts: 127.0.1.1 {own}; or set GLOO_SOCKET_IFNAME=lo"
    try:
        resolve(own, None)
    except OSError as error:
        return yellow(name, f"{own} does not resolve ({error}): Gloo warns or waits", fix)
    took = time.monotonic() - start
    if took > SLOW_LOOKUP_S:
        return yellow(name, f"{own} resolves, after {took:.1f} s", fix)
    return green(name, f"{own} resolves")


def interfaces(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Checks the network interfaces at which Gloo is told to listen, if any."""
    if not (asked := environ.get("GLOO_SOCKET_IFNAME")):
        return
    name, there = "GLOO_SOCKET_IFNAME", [interface for _, interface in socket.if_nameindex()]
    missing = [interface for interface in asked.split(",") if interface not in there]
    if missing:
        fix = f"choose of {', '.join(there)}, or unset it"
        yield red(name, f"there is no interface {' and no '.join(missing)}: Gloo fails", fix)
    else:
        yield green(name, asked)


def localhost() -> Finding:
    """Checks a connection to this host, as stores of torch.distributed make it."""
    name = "localhost"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("localhost", port), timeout=5).close()
    except OSError as error:
        return red(
            name,
            f"no connection to localhost: {error}",
            "torchrun and env:// need it: see `localhost` in /etc/hosts, the interface lo "
            "(ip link set lo up), and firewalls",
        )
    return green(name, "a connection comes through")
