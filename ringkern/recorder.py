"""The flight recorder: the last calls of this process's rings, for PyTorch's own analyser.

C++ always records every call (``csrc/comm/control.h``). This module converts the record to the
form of PyTorch's flight recorder. ``torchfrtrace`` finds in it the rank that is missing or differs,
as shown in ``docs/design/reliability.md``.
"""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import _C
from .config import config
from .hosts import Hosts

# The version of the layout written here. torch's analyser wants one version in all files.
_VERSION = "2.10"
# The analyser knows only the libraries that it was made for: before torch 2.12 not Gloo.
_LIBRARY = "gloo" if torch.__version__ >= "2.12" else "nccl"
# The prefix of a job's files; the rank follows.
PREFIX = "ringkern_"


@dataclass(frozen=True)
class _Group:
    description: str
    ranks: tuple[int, ...]  # of the default group


# Keyed by a communicator's name, without the "#2" of a later one of its group. The key of a ring on
# one of several hosts has "/host 0", as in csrc/torch.
_groups: dict[str, _Group] = {}


def remember_group(name: str, description: str, ranks: Sequence[int]) -> None:
    """Records which ranks of the default group form the rings of communicator ``name``."""
    _groups[name] = _Group(description, tuple(ranks))


def remember_hosts(name: str, hosts: Hosts) -> None:
    """Records which ranks of communicator ``name`` form the ring of each host of ``hosts``."""
    base = _base(name)
    known = _groups.get(base) or _Group("undefined", tuple(range(len(hosts.host_of))))
    for host, called in enumerate(hosts.names):
        ranks = tuple(known.ranks[rank] for rank in hosts.ranks_on(host))
        _groups[f"{base}/host {host}"] = _Group(f"{known.description} on {called}", ranks)


def _base(name: str) -> str:
    """Returns a ring's name without the number of a later communicator, the key of its group."""
    whole, of_host, host = name.partition("/host ")
    return whole.split("#")[0] + of_host + host


def ranks_of(group: dist.ProcessGroup) -> Sequence[int]:
    """Returns a group's ranks in the default group; its own, if torch does not know the group."""
    known = dist.distributed_c10d._world.pg_group_ranks.get(group)
    return range(group.size()) if known is None else list(known)


def dump(directory: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Returns the last calls of this process's rings, in the form of PyTorch's flight recorder.

    May be called from any thread, also while others wait in a call. Has up to 16 calls of each open
    ring, and of the last rings that failed. Messages between two ranks (send, receive, gather,
    scatter, all-to-all) are not recorded.

    Args:
        directory: a directory, made if needed, in which it is also written as ``ringkern_<rank>``,
            readable by this user only. ``torchfrtrace`` reads the files of all ranks in one
            directory. ``None``: ``RINGKERN_DUMP_DIR``; if that is not set either, nothing is
            written.

    Returns:
        ``entries``, the calls in the order of their numbers; ``pg_config`` and ``pg_status``, the
        rings; and the other fields of that form. Times are in ns since 1970.

    Raises:
        OSError: it cannot be written.
    """
    where = config.dump_dir if directory is None else Path(directory)
    rings = _C.recorded_calls()
    rank = _own_rank(rings)
    record = flight_record(rings, rank)
    if where is not None:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(record, where / f"{PREFIX}{rank}")
    return record


def _own_rank(rings: list[dict[str, Any]]) -> int:
    """Returns the number of this process among those whose files are read together."""
    if dist.is_initialized():
        return dist.get_rank()
    if rings:
        return int(rings[0]["rank"])
    return int(os.environ.get("RANK", "0"))


def flight_record(rings: list[dict[str, Any]], own_rank: int) -> dict[str, Any]:
    """Converts the result of ``_C.recorded_calls()`` to the form of PyTorch's flight recorder."""
    record: dict[str, Any] = {
        "version": _VERSION,
        "comm_lib_version": f"ringkern {_C.version}",
        "pg_config": {},
        "pg_status": {},
        "entries": [],
        # The analyser ignores these.
        "host": config.host or socket.gethostname(),
        "pid": os.getpid(),
        "failures": {},
        "faults": {},  # the same as fields
    }
    for number, ring in enumerate(rings):
        name = _name(ring, record["pg_config"])
        group = _groups.get(_base(ring["name"])) or _neighbours(ring, own_rank)
        record["pg_config"][name] = {
            "name": name,
            "desc": group.description,
            "ranks": str(list(group.ranks)),
        }
        calls = ring["calls"]
        last = calls[-1]["seq"] if calls else 0
        record["pg_status"][str(number)] = {
            "last_enqueued_collective": last,
            "last_started_collective": last,
            "last_completed_collective": max((c["seq"] for c in calls if c["ended_ns"]), default=0),
        }
        if ring["failure"]:
            record["failures"][name] = ring["failure"]["text"]
            record["faults"][name] = ring["failure"]
        entries = [_entry(call, ring, number, (name, group.description)) for call in calls]
        record["entries"] += entries
    # The analyser leaves out, on all ranks, the calls before the latest of the ranks' first
    # entries: some ranks may have overwritten them.
    record["entries"].sort(key=lambda entry: entry["record_id"])
    return record


def _neighbours(ring: dict[str, Any], own_rank: int) -> _Group:
    """Returns the ranks of a ring that torch does not know, as if they had consecutive numbers."""
    first = max(0, own_rank - ring["rank"])
    return _Group("undefined", tuple(range(first, first + ring["ranks"])))


def _name(ring: dict[str, Any], others: dict[str, Any]) -> str:
    """Returns a name that all ranks have for this ring, and no other ring of this process."""
    kind = ring["device"].split(":")[0]  # its number differs from rank to rank
    name = f"{ring['name']}/{kind}"
    # Consecutive rings over one group have one name, and are counted in the store.
    number = int(ring["key"].rsplit("/", 1)[1]) + 1 if ring["key"] else 1
    while (found := name if number == 1 else f"{name} #{number}") in others:
        number += 1
    return found


def _entry(
    call: dict[str, Any], ring: dict[str, Any], number: int, group: tuple[str, str]
) -> dict[str, Any]:
    name, given, made = _shape(call, ring)
    ended = call["ended_ns"] or None
    message = call["collective"] == "send_recv"
    return {
        "record_id": call["seq"],
        "pg_id": number,
        "process_group": group,
        "collective_seq_id": 0 if message else call["seq"],
        "p2p_seq_id": call["seq"] if message else 0,
        "op_id": call["seq"],
        "profiling_name": f"{_LIBRARY}:{name}",
        "time_created_ns": call["started_ns"],
        "input_sizes": [[given]],
        "input_dtypes": [call["dtype"]],
        "output_sizes": [[made]],
        "output_dtypes": [call["dtype"]],
        "state": "completed" if ended else "started",
        "time_discovered_started_ns": call["started_ns"],
        "time_discovered_completed_ns": ended,
        "retired": ended is not None,
        "timeout_ms": ring["timeout_ms"],
        "is_p2p": message,
        # The analyser ignores these.
        "op": call["op"],
        "algorithm": call["algorithm"],
        "protocol": call["protocol"],
        "root": call["root"],
    }


def _shape(call: dict[str, Any], ring: dict[str, Any]) -> tuple[str, int, int]:
    """Returns a call's name in the analyser, and the numbers of its input and output elements."""
    collective, count, ranks = call["collective"], call["count"], ring["ranks"]
    if collective == "reduce_scatter":
        return "_reduce_scatter_base", count * ranks, count
    if collective == "all_gather":
        return "_all_gather_base", count, count * ranks
    if collective == "send_recv":  # a ring of two
        root, own = call["root"], ring["rank"]
        other = (root + 1) % ranks
        return (f"send {root}->{other}" if own == root else f"recv {own}<-{root}"), count, count
    return collective, count, count


def _write(record: dict[str, Any], file: Path) -> None:
    """Writes a file as a whole or not at all, readable by this user only."""
    # If it stays, the analyser does not take the name for a rank's.
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            pickle.dump(record, out)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
