"""The end of a process: it leaves nothing behind, and ends at once with its own exit status."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import CollectiveTimeoutError, CommAbortedError
from tests.comm.exits import scenarios_of
from tests.ranks import Pool, Ranks

Scenario = Callable[..., list[dict[str, Any]]]
ROUNDS, SLOW_ROUNDS = 20, 3


# ---- resources ----------------------------------------------------------------------------------


def owned() -> dict[str, list[str]]:
    """Returns the descriptors, threads and shared mappings of this process."""
    gc.collect()
    descriptors = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            descriptors.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    # Inode numbers of sockets and pipes differ.
    kinds = sorted(name.split(":[")[0] for name in descriptors)
    with open("/proc/self/maps") as maps:
        shared = sorted(line.split(maxsplit=5)[5] for line in maps if "memfd" in line)
    return {
        "descriptors": kinds,
        "threads": ["thread"] * len(os.listdir("/proc/self/task")),
        "mappings": shared,
    }


def _keeps_its_level(rank: int, size: int, round_name: str) -> None:
    a_round = ROUNDS_OF[round_name]
    a_round(rank, size)
    dist.barrier()
    before = owned()
    for _ in range(ROUNDS if a_round is not _timed_out else SLOW_ROUNDS):
        a_round(rank, size)
    dist.barrier()
    assert owned() == before


def _closed(rank: int, size: int) -> None:
    communicator = ringkern.Communicator(timeout=timedelta(seconds=30))
    communicator.all_reduce(torch.ones(10))
    work = communicator.all_reduce(torch.ones(100_000), async_op=True)
    assert work is not None
    used = owned()
    assert any("memfd:ringkern" in name for name in used["mappings"])
    assert any("memfd:ringkern" in name for name in used["descriptors"])
    communicator.close()


def _dropped(rank: int, size: int) -> None:
    communicator = ringkern.Communicator(timeout=timedelta(seconds=30))
    communicator.all_reduce(torch.ones(10))
    work = communicator.all_reduce(torch.ones(10), async_op=True)
    assert work is not None
    work.wait()


def _group(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    ringkern.ring_all_reduce(torch.ones(10), group=group)
    work = ringkern.ring_all_reduce(torch.ones(10), group=group, async_op=True)
    assert work is not None
    work.wait()
    dist.destroy_process_group(group)


def _never_used(rank: int, size: int) -> None:
    ringkern.Communicator().close()


def _aborted(rank: int, size: int) -> None:
    communicator = ringkern.Communicator(timeout=timedelta(seconds=30))
    communicator.all_reduce(torch.ones(10))
    dist.barrier()
    if rank == 0:
        communicator.abort()
    else:
        with pytest.raises(CommAbortedError):
            communicator.all_reduce(torch.ones(10))
    communicator.close()


def _timed_out(rank: int, size: int) -> None:
    dist.barrier()  # the timeout also limits the connecting
    communicator = ringkern.Communicator(timeout=timedelta(seconds=0.7))
    communicator.all_reduce(torch.ones(10))
    dist.barrier()
    if rank == 0:
        with pytest.raises(CollectiveTimeoutError):
            communicator.all_reduce(torch.ones(10))
    dist.barrier()
    communicator.close()


ROUNDS_OF = {
    "closed": _closed,
    "dropped": _dropped,
    "group destroyed": _group,
    "never used": _never_used,
    "aborted": _aborted,
    "timed out": _timed_out,
}


@pytest.mark.parametrize("round_name", ROUNDS_OF)
def test_everything_is_given_back(ranks: Pool, round_name: str) -> None:
    ranks(2).run(_keeps_its_level, round_name)


def _default_group_again(rank: int, size: int, folder: str) -> None:
    """Runs in ranks of its own, because it ends their process group."""

    def start(attempt: int) -> None:
        method = f"file://{folder}/{attempt}"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size)

    def a_round(attempt: int) -> None:
        start(attempt)
        ringkern.ring_all_reduce(torch.ones(10))
        work = ringkern.ring_all_reduce(torch.ones(10), async_op=True)
        assert work is not None
        work.wait()
        dist.destroy_process_group()

    dist.destroy_process_group()
    a_round(0)
    before = owned()
    for attempt in range(ROUNDS):
        a_round(1 + attempt)
    assert owned() == before
    start(1 + ROUNDS)  # covers the end of the ranks


def test_a_process_group_gives_everything_back(tmp_path: Path) -> None:
    with closing(Ranks(2)) as own:
        own.run(_default_group_again, str(tmp_path))


# ---- the end of a process -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def scenarios() -> Iterator[Scenario]:
    with scenarios_of("tests.comm.exits") as run:
        yield run


@pytest.mark.parametrize(
    "name",
    [
        "group_is_left_open",
        "communicator_is_left_open",
        "call_is_not_waited_for",
        "callback_is_not_waited_for",
        "neighbour_never_calls",
        "thread_waits",
        "thread_waits_in_a_quick_call",
        "forked_child_exits",
        "data_loader",
    ],
)
def test_ends_in_silence(scenarios: Scenario, tmp_path: Path, name: str) -> None:
    assert scenarios(name, 2, tmp_path) == [{"status": 0, "stderr": ""}] * 2


@pytest.mark.parametrize(("name", "status"), [("sys_exit", 3), ("os_exit", 4)])
def test_exit_status(scenarios: Scenario, tmp_path: Path, name: str, status: int) -> None:
    assert scenarios(name, 2, tmp_path) == [{"status": status, "stderr": ""}] * 2


def test_an_interrupt_ends_a_quick_call(scenarios: Scenario, tmp_path: Path) -> None:
    first, second = scenarios("interrupted", 2, tmp_path)
    assert (first["status"], second["status"]) == (5, 0)


def test_exception(scenarios: Scenario, tmp_path: Path) -> None:
    for rank in scenarios("exception", 2, tmp_path):
        assert rank["status"] == 1
        assert rank["stderr"].endswith("LookupError: on purpose\n")


def test_exception_inside_with(scenarios: Scenario, tmp_path: Path) -> None:
    first, second = scenarios("exception_inside_with", 2, tmp_path)
    assert first["status"] == second["status"] == 1
    assert first["stderr"].endswith("LookupError: on purpose\n")
    assert "aborted by rank 0: rank 0 left on LookupError" in second["stderr"].splitlines()[-1]


def test_kill_9(scenarios: Scenario, tmp_path: Path) -> None:
    first, killed, third = scenarios("killed_midway", 3, tmp_path)
    assert killed == {"status": -9, "stderr": ""}
    assert first["status"] == third["status"] == 0
    for rank in (first, third):
        assert re.search(r"^PeerLostError rank 1 \(pid ", rank["stderr"], re.MULTILINE), rank
        assert "died (killed by signal 9 (Killed)) during seq=" in rank["stderr"], rank
