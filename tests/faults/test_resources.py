"""Ranks with fewer system resources than usual: the errors in Python, or that all works.

``resources_test.cpp`` has the error of each limit, and the fallbacks.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import RingKernError, SharedMemoryError
from tests.ranks import Pool, Ranks

ROOT = Path(__file__).resolve().parents[2]


def _sum_of_ones(communicator: ringkern.Communicator, size: int) -> None:
    for x in (torch.ones(1000), ringkern.zeros(1000) + 1, ringkern.zeros(300_000).add_(1)):
        communicator.all_reduce(x)
        assert bool((x == size).all())
    communicator.close()


# ---- open files ---------------------------------------------------------------------------------


def _with_few_files(rank: int, size: int, spares: list[int]) -> list[str]:
    """Returns the errors of a rank, where rank 1 may open this many additional files."""
    # The group's store is a file, which is opened for every access.
    made = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    port = [made.port]
    dist.broadcast_object_list(port, src=0)
    store = dist.TCPStore("localhost", port[0], is_master=False)
    ringkern.empty(1)  # creates the file of such tensors, which is this rank's own matter
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_one = os.dup(0)
    os.close(next_one)
    errors = []
    for spare in spares:
        communicator = ringkern.Communicator.from_store(
            store, rank, size, name=f"with {spare}", timeout=timedelta(seconds=30)
        )
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_one + spare, usual[1]))
        try:
            _sum_of_ones(communicator, size)
            errors.append("")
        except (RingKernError, OSError) as error:
            errors.append(f"{type(error).__name__}: {error}")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        dist.barrier()
    return errors


def test_too_few_files_are_the_error_of_all_ranks(ranks: Pool) -> None:
    spares = [0, 2, 4, 6, 100]  # in the end the same processes work
    *too_few, enough = zip(*ranks(3).run(_with_few_files, spares), strict=True)
    assert enough == ("", "", "")
    for errors in too_few:
        for rank, error in enumerate(errors):
            assert "Too many open files" in error or "ulimit -n" in error, errors
            assert rank == 1 or error.startswith(
                "RendezvousError: rank 1 could not join the ring: "
            ), errors


# ---- no memfd -----------------------------------------------------------------------------------


class _Instruction(ctypes.Structure):
    """A ``sock_filter`` of the kernel's."""

    _fields_ = (
        ("code", ctypes.c_uint16),
        ("yes", ctypes.c_uint8),
        ("no", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    """A ``sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("first", ctypes.POINTER(_Instruction)))


def _forbid_memfd() -> None:
    """Forbids memfd in this process for good, like a container's seccomp filter."""
    call = {"x86_64": 319, "aarch64": 279}[os.uname().machine]
    load, equal, answer = 0x20, 0x15, 0x06  # BPF_LD+W+ABS, BPF_JMP+JEQ+K, BPF_RET+K
    code = (_Instruction * 4)(
        (load, 0, 0, 0),
        (equal, 0, 1, call),
        (answer, 0, 0, 0x50000 | errno.EPERM),  # SECCOMP_RET_ERRNO
        (answer, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
    )
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    program = _Program(4, code)
    if libc.prctl(22, 2, ctypes.byref(program)) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "seccomp")


def _without_memfd(rank: int, size: int, everybody: bool) -> bool:
    """Returns whether this rank maps memory of others that is not a memfd."""
    if rank == 1 or everybody:
        _forbid_memfd()
        with pytest.raises(OSError, match="not permitted"):
            os.memfd_create("test")
    with ringkern.Communicator(timeout=timedelta(seconds=30)) as communicator:
        communicator.all_reduce(torch.ones(10))
        maps = Path("/proc/self/maps").read_text()
    _sum_of_ones(ringkern.Communicator(timeout=timedelta(seconds=30)), size)
    return "/dev/shm/#" in maps


@pytest.mark.parametrize("everybody", [False, True])
def test_memfd_may_be_missing(everybody: bool) -> None:
    with closing(Ranks(2)) as own:  # the ranks keep the filter
        assert own.run(_without_memfd, everybody) == [True, True]


# ---- memory, and the environment ----------------------------------------------------------------


def test_more_memory_than_there_is_says_how_much_there_is() -> None:
    all_of_it = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    with pytest.raises(SharedMemoryError) as caught:
        ringkern.empty(all_of_it, dtype=torch.uint8)
    text = str(caught.value)
    assert re.fullmatch(
        rf"this process \(pid {os.getpid()}\) needs \d+\.\d MiB of shared memory, and \d+\.\d MiB "
        r"is left: not allocated, because the kernel would kill processes: Cannot allocate "
        r"memory\. The (machine|memory cgroup) .*[Rr]un fewer ranks.*",
        text,
    )
    assert ringkern.empty(10).numel() == 10


def test_an_unknown_variable_is_told_when_ringkern_is_imported() -> None:
    imported = subprocess.run(
        [sys.executable, "-c", "import ringkern"],
        cwd=ROOT,
        env={**os.environ, "RINGKERN_PROTOKOL": "ll"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    told = "unknown environment variable RINGKERN_PROTOKOL; did you mean RINGKERN_PROTOCOL?"
    assert imported.stderr.count(told) == 1
