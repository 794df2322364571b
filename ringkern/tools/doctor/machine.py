"""Reads this machine and this process from the kernel: CPU, memory, limits, containers."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ... import linux

ROOT = Path("/")  # tests have another one


def text_of(path: str) -> str:
    """Returns the content of a file of the kernel, stripped; empty if it cannot be read."""
    return linux.text(ROOT / path.lstrip("/"))


# ---- CPU ----------------------------------------------------------------------------------------


def cpu_model() -> str:
    """Returns the CPU's name, as the kernel gives it."""
    model = re.search(r"^model name\s*:\s*(.+)$", text_of("/proc/cpuinfo"), re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()


def cores() -> int:
    """Returns the number of logical CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_quota() -> float | None:
    """Returns the number of CPUs' time that a cgroup allows; ``None``: no limit is known."""
    quota, period, *_ = [*text_of("/sys/fs/cgroup/cpu.max").split(), "", ""]
    if not quota:
        quota = text_of("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = text_of("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(period):
        return int(quota) / int(period)
    return None


# ---- memory -------------------------------------------------------------------------------------


def huge_pages() -> str:
    """Returns when the kernel makes huge pages, such as ``"madvise"``: where a program asks."""
    return _chosen("/sys/kernel/mm/transparent_hugepage/enabled")


def shared_huge_pages() -> str:
    """Returns the same for shared memory, which has the rings."""
    return _chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def _chosen(path: str) -> str:
    found = re.search(r"\[(\w+)\]", text_of(path))
    return found[1] if found else "unknown"


def memory() -> dict[str, int]:
    """Returns bytes: ``total``, ``available`` of the machine, ``limit``, ``used`` of the cgroup."""
    found = {}
    for key, name in (("total", "MemTotal"), ("available", "MemAvailable")):
        if match := re.search(rf"^{name}:\s*(\d+) kB", text_of("/proc/meminfo"), re.MULTILINE):
            found[key] = int(match[1]) * 1024
    for folder, limit, used in _memory_cgroups():
        most, held = (text_of(f"{folder}/{file}") for file in (limit, used))
        # Version 1 expresses "none" by a number above all memory.
        if most.isdigit() and int(most) < min(found.get(k, 1 << 62) for k in ("total", "limit")):
            found |= {"limit": int(most), "used": int(held) if held.isdigit() else 0}
    return found


def _memory_cgroups() -> Iterator[tuple[str, str, str]]:
    """Yields the folder and files of each memory cgroup of this process, up to the root."""
    mount, path, files = "/sys/fs/cgroup", "", ("memory.max", "memory.current")
    for line in text_of("/proc/self/cgroup").splitlines():
        number, controllers, place = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(","):
            mount, path = "/sys/fs/cgroup/memory", place
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            break
        if number == "0":
            path = place
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        yield "/".join([mount, *parts[:length]]), *files


def dev_shm() -> dict[str, int] | None:
    """Returns the bytes ``total`` and ``free`` of ``/dev/shm``; ``None``: it does not exist."""
    try:
        found = os.statvfs(ROOT / "dev/shm")
    except OSError:
        return None
    return {"total": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}


# ---- limits -------------------------------------------------------------------------------------

LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "address space": resource.RLIMIT_AS,
    "file size": resource.RLIMIT_FSIZE,
}


def limits() -> dict[str, int | None]:
    """Returns the soft limits of this process, by name; ``None``: unlimited."""
    found = {name: resource.getrlimit(number)[0] for name, number in LIMITS.items()}
    return {name: None if n == resource.RLIM_INFINITY else n for name, n in found.items()}


# ---- containers ---------------------------------------------------------------------------------


def container() -> str:
    """Returns the kind of container, or ``"none seen"``."""
    if (ROOT / ".dockerenv").exists():
        return "docker"
    if (ROOT / "run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if "APPTAINER_CONTAINER" in os.environ or "SINGULARITY_CONTAINER" in os.environ:
        return "apptainer"
    for word in ("docker", "kubepods", "containerd", "lxc", "libpod"):
        if word in text_of("/proc/1/cgroup"):
            return word
    if "gVisor" in text_of("/proc/version"):
        return "gVisor"
    return "none seen"


def host() -> str:
    """Returns a text that all ranks of one host have in common, short enough to compare by eye."""
    boot = text_of("/proc/sys/kernel/random/boot_id")[:8] or "unknown"
    try:
        network = str((ROOT / "proc/self/ns/net").stat().st_ino)
    except OSError:
        network = "unknown"
    return f"boot {boot}, network namespace {network}"


def facts() -> dict[str, Any]:
    """Returns all facts of this module."""
    return {
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "system": _system(),
        "cpu": cpu_model(),
        "cores": cores(),
        "cpu_quota": cpu_quota(),
        "memory": memory(),
        "huge_pages": {"private": huge_pages(), "shared": shared_huge_pages()},
        "dev_shm": dev_shm(),
        "limits": limits(),
        "container": container(),
        "host": host(),
        "seccomp": _status("Seccomp"),
    }


def _system() -> str:
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', text_of("/etc/os-release"), re.MULTILINE)
    return found[1] if found else "unknown"


def _status(name: str) -> str:
    """Returns a value of the kernel's status of this process."""
    found = re.search(rf"^{name}:\s*(\S+)", text_of("/proc/self/status"), re.MULTILINE)
    return found[1] if found else "unknown"
