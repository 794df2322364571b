"""Joins a process to the ranks that were started with it: by torchrun, mpiexec or srun.

torch itself reads the variables of torchrun only.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from . import linux

_BY_HAND = (
    "export MASTER_ADDR, the address of rank 0's host, and MASTER_PORT, a port that is free there"
)
_OF_INIT = ("init_method", "store", "rank", "world_size")  # these are found here

_calls = 0  # number of calls of init, over the store in a file


class Launcher(NamedTuple):
    """Variables that a launcher sets in each rank; ``one_host``: two that are equal on one host."""

    name: str
    rank: str
    size: str
    local_rank: str
    one_host: tuple[str, str]


# The first that is found counts: a later one may have started the launcher, as srun starts mpiexec.
_LAUNCHERS = (
    Launcher(
        "mpiexec of Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ),
    Launcher(
        "mpiexec of MPICH or Intel MPI",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        ("MPI_LOCALNRANKS", "PMI_SIZE"),
    ),
    # Excludes a batch script, whose one process is no rank but has SLURM_PROCID and SLURM_NTASKS,
    # too.
    Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        ("SLURM_STEP_NUM_NODES", ""),
    ),
)


class Place(NamedTuple):
    """The rank of this process, the number of ranks and the host, found in the environment."""

    launcher: Launcher
    rank: int
    size: int
    local_rank: int | None
    one_host: bool


def init(backend: str = "ringkern", **options: Any) -> None:
    """Makes the default group of the ranks that torchrun, mpiexec or srun has started.

    Does the same as ``dist.init_process_group(backend, **options)``, which reads only the variables
    of torchrun. Uses the first of these variables that are set: RANK and WORLD_SIZE; those of Open
    MPI; those of MPICH and Intel MPI; those of a step of Slurm. Without torchrun, ranks of one host
    meet over a file that only this user can open; those of several hosts need MASTER_ADDR and
    MASTER_PORT. Sets LOCAL_RANK if it is not set.

    Args:
        backend: as for ``init_process_group``.
        options: its other arguments, such as ``timeout``; not those for the number of this rank or
            the place where the ranks meet.

    Raises:
        TypeError: an argument is given that is found here.
        ValueError: there are no such variables, one lacks its partner or has a wrong value, or the
            place to meet is unknown; the text says what to do.
    """
    global _calls
    if given := [name for name in _OF_INIT if name in options]:
        raise TypeError(
            f"ringkern.init finds {given[0]} itself; with {given[0]}=, call "
            f"torch.distributed.init_process_group({backend!r}, ...)"
        )
    place = _find(os.environ)
    if place is None:
        dist.init_process_group(backend, **options)
        return
    found: dict[str, Any] = {"rank": place.rank, "world_size": place.size}
    address = _address(place, os.environ)
    if address is None:
        _calls += 1  # torch requires a new file for each group
        address = f"file://{_private_folder() / _launch(place)}-{_calls}"
    dist.init_process_group(backend, init_method=address, **found, **options)
    if place.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(place.local_rank))


def _find(environment: Mapping[str, str]) -> Place | None:
    """Returns the place of this process; ``None``: torchrun's, which torch finds by itself."""
    if _number(environment, "RANK", "WORLD_SIZE") is not None:
        return None
    for launcher in _LAUNCHERS:
        numbers = _number(environment, launcher.rank, launcher.size)
        if numbers is None:
            continue
        few, many = (environment.get(name) if name else "1" for name in launcher.one_host)
        local = environment.get(launcher.local_rank, "")
        rank = int(local) if local.isdecimal() else None
        return Place(launcher, *numbers, rank, one_host=few is not None and few == many)
    raise ValueError(
        "this process has been started by none of torchrun, mpiexec and srun: RANK and WORLD_SIZE, "
        f"{', '.join(f'{one.rank} and {one.size}' for one in _LAUNCHERS)} are not set. Start it by "
        "one of them, as torchrun --standalone --nproc-per-node 2, or export RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT"
    )


def _number(environment: Mapping[str, str], rank: str, size: str) -> tuple[int, int] | None:
    """Returns a rank and a size, or None if neither is set.

    ``SLURM_PROCID`` alone belongs to a batch script.
    """
    given = {name: environment.get(name, "") for name in (rank, size)}
    if not any(given.values()) or (rank == "SLURM_PROCID" and not given[size]):
        return None
    text = ", ".join(f"{name}={value or '(not set)'}" for name, value in given.items())
    if not all(value.isdecimal() for value in given.values()):
        raise ValueError(f"{text}: set both, to whole numbers, or neither")
    number, ranks = int(given[rank]), int(given[size])
    if number >= ranks:
        raise ValueError(f"{text}: ranks are counted from 0, so the rank is less than the size")
    return number, ranks


def _address(place: Place, environment: Mapping[str, str]) -> str | None:
    """Returns the address where the ranks meet by TCP; ``None``: on this host, in a file."""
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if host and not port:
        raise ValueError(f"MASTER_ADDR={host}, and no MASTER_PORT: {_BY_HAND}")
    if port:
        if not host and not place.one_host:
            raise ValueError(f"MASTER_PORT={port}, and no MASTER_ADDR: {_BY_HAND}")
        return f"tcp://{host or '127.0.0.1'}:{port}"
    if place.one_host:
        return None
    hint = ""
    if place.launcher.rank == "SLURM_PROCID":
        hint = '; MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    raise ValueError(
        f"the ranks of {place.launcher.name} are on several hosts, or it does not say that they "
        f"are on one: {_BY_HAND}{hint}"
    )


def _private_folder() -> Path:
    """Returns a folder that only this user can open: whoever can write to the store is a rank."""
    folder = Path(tempfile.gettempdir()) / f"ringkern-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or stat.S_IMODE(found.st_mode) & 0o077
    ):
        raise ValueError(f"{folder} is not a folder that only this user can open: {_BY_HAND}")
    return folder


def _launch(place: Place) -> str:
    """Returns the name of this launch: the same on all its ranks, and different for all others.

    The nearest ancestor that does not belong to this rank is the launcher's, and all ranks of the
    host are its descendants. Shells between it and a rank have the rank's environment.
    """
    of_the_rank = f"{place.launcher.rank}={place.rank}".encode()
    process = Path(f"/proc/{os.getppid()}")
    while of_the_rank in _environment(process):
        process = Path(f"/proc/{_stat(process)[1]}")
    # A pid may be reused, but not with the same start time after boot.
    boot = linux.text(Path("/proc/sys/kernel/random/boot_id"))[:8]
    started = _stat(process)[19]
    return f"{process.name}-{started}-{boot}"


def _environment(process: Path) -> list[bytes]:
    """Returns a process's variables; none for a process of another user, such as Slurm's."""
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _stat(process: Path) -> list[str]:
    """Returns the fields after the name in a process's ``stat``: its state, its parent, ..."""
    fields = linux.text(process / "stat").rpartition(") ")[2].split()
    if len(fields) < 20:
        raise ValueError(f"{process}, the launcher's process, cannot be seen: {_BY_HAND}")
    return fields
