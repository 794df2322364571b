"""The flight recorder: its files as PyTorch's own analyser reads them, and when and how they are
written.
"""

from __future__ import annotations

import io
import logging
import pickle
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.types import Collective, Database, Op

import ringkern
from ringkern import recorder
from ringkern.errors import RingKernError
from tests.ranks import Ranks

LIMIT_S = 60.0
LIBRARY = "gloo" if torch.__version__ >= "2.12" else "nccl"


def analysed(folder: Path) -> tuple[str, Database]:
    """Returns torchfrtrace's output for the dumps in a folder, and the database that it makes."""
    out = folder.parent / f"{folder.name}.db"
    said = io.StringIO()
    handler, logger = logging.StreamHandler(said), logging.getLogger("Flight Recorder")
    logger.addHandler(handler)
    try:
        fr_trace.main([str(folder), "-o", str(out)])
    finally:
        logger.removeHandler(handler)
    return said.getvalue(), pickle.loads(out.read_bytes())[1]


# ---- the form -----------------------------------------------------------------------------------


CALL = {"seq": 1, "collective": "all_reduce", "op": "sum", "dtype": "float32", "count": 10}
CALL |= {"algorithm": "ring", "protocol": "ll", "root": 0, "started_ns": 5, "ended_ns": 0}
RING = {"name": "ringkern/0", "key": "", "device": "cpu", "rank": 0, "ranks": 4, "timeout_ms": 1}


def ring(call: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Returns a ring in C++'s form, with one call."""
    return RING | {"failure": None, "calls": [CALL | (call or {})]} | changes


@pytest.mark.parametrize(
    ("collective", "name", "given", "made"),
    [
        ("all_reduce", "all_reduce", 10, 10),
        ("reduce_scatter", "_reduce_scatter_base", 40, 10),
        ("all_gather", "_all_gather_base", 10, 40),
        ("broadcast", "broadcast", 10, 10),
        ("reduce", "reduce", 10, 10),
    ],
)
def test_the_analyser_knows_each_collective(
    collective: str, name: str, given: int, made: int
) -> None:
    record = recorder.flight_record([ring({"collective": collective})], 0)
    (entry,), (group,) = record["entries"], record["pg_config"]
    op = Op(entry, {group: {0, 1, 2, 3}}, group)
    assert op.type == name
    assert (op.input_sizes, op.output_sizes) == ([[given]], [[made]])
    assert op.match(op).state.name == "FULLY_MATCHED"
    assert op.state == "started"


@pytest.mark.parametrize(("rank", "name"), [(0, "send 0->1"), (1, "recv 1<-0")])
def test_a_message(rank: int, name: str) -> None:
    record = recorder.flight_record([ring({"collective": "send_recv"}, rank=rank, ranks=2)], rank)
    (entry,), (group,) = record["entries"], record["pg_config"]
    assert (entry["profiling_name"], entry["is_p2p"]) == (f"{LIBRARY}:{name}", True)
    assert (Op(entry, {group: {0, 1}}, group).src, entry["p2p_seq_id"]) == (0, 1)


def test_every_collective_is_in_the_form() -> None:
    """The recorder must know every collective, also an added one."""
    communicator = ringkern.Communicator.from_store(dist.HashStore(), 0, 1, name="every")
    part, whole = torch.ones(3), torch.ones(3)
    communicator.all_reduce(part, dist.ReduceOp.AVG)
    communicator.reduce_scatter(part, whole)
    communicator.all_gather(whole, part)
    record = ringkern.dump()
    made = [e for e in record["entries"] if e["process_group"][0].startswith("every/")]
    assert [e["profiling_name"] for e in made] == [
        f"{LIBRARY}:all_reduce",
        f"{LIBRARY}:_reduce_scatter_base",
        f"{LIBRARY}:_all_gather_base",
    ]
    assert [e["op"] for e in made[:1]] == ["avg"]
    assert all(e["input_dtypes"] == ["float32"] and e["state"] == "completed" for e in made)
    for entry in made:
        began, ended = entry["time_created_ns"], entry["time_discovered_completed_ns"]
        assert began <= ended
        # The clock of the calls is some milliseconds behind.
        assert abs(time.time_ns() - ended) < LIMIT_S * 1e9
    status = record["pg_status"][str(made[0]["pg_id"])]
    assert set(status.values()) == {3}
    communicator.close()


def test_rings_of_one_name_are_told_apart() -> None:
    """Includes the ring that failed, and its replacement."""
    first, third = (ring(key=f"ringkern/ringkern/0/cpu/4/{n}") for n in (0, 2))
    fault = {"cause": "peer_lost", "text": "rank 2 died", "rank": 2}
    record = recorder.flight_record([first | {"failure": fault}, third], 0)
    assert list(record["pg_config"]) == ["ringkern/0/cpu", "ringkern/0/cpu #3"]
    assert record["failures"] == {"ringkern/0/cpu": "rank 2 died"}
    assert record["faults"]["ringkern/0/cpu"]["rank"] == 2
    # Sequence numbers of a single rank are not counted.
    record = recorder.flight_record([ring(), ring(device="cuda:1"), ring()], 0)
    assert list(record["pg_config"]) == ["ringkern/0/cpu", "ringkern/0/cuda", "ringkern/0/cpu #2"]


def test_the_record_lists_the_ranks_of_each_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Includes rings that torch does not know, such as one over a store, or one within each
    process.
    """
    monkeypatch.setattr(recorder, "_groups", {})  # another test may have used a group of that name
    rings = [ring(), ring(rank=2), ring(name="local", ranks=1)]
    config = recorder.flight_record(rings, 6)["pg_config"]
    assert [group["ranks"] for group in config.values()] == ["[6, 7, 8, 9]", "[4, 5, 6, 7]", "[6]"]
    recorder.remember_group("known", "mine", [3, 6, 9])
    of_three = [ring(name=name, ranks=3, rank=1) for name in ("known", "known#2")]
    config = recorder.flight_record(of_three, 6)["pg_config"]
    assert list(config) == ["known/cpu", "known#2/cpu"]
    assert {(c["desc"], c["ranks"]) for c in config.values()} == {("mine", "[3, 6, 9]")}


def test_a_group_that_torch_does_not_know() -> None:
    group, store = dist.ProcessGroup(dist.HashStore(), 0, 1), dist.HashStore()
    gloo = dist.ProcessGroup.BackendType.GLOO
    group._register_backend(torch.device("cpu"), gloo, dist.ProcessGroupGloo(store, 0, 1))
    group._set_group_name("unknown")
    before = len(recorder._groups)
    for _ in range(3):
        with ringkern.Communicator(group) as communicator:
            communicator.all_reduce(torch.ones(3))
            config = ringkern.dump()["pg_config"]
        assert [c["ranks"] for c in config.values() if "unknown" in c["name"]] == ["[0]"]
    assert len(recorder._groups) == before + 1, "however many there are, it does not grow"


# ---- findings of the analyser -------------------------------------------------------------------


@pytest.fixture(scope="module")
def own() -> Iterator[Ranks]:
    """Starts three ranks without records of other tests."""
    pool = Ranks(3)
    yield pool
    pool.close()


def _calls(rank: int, size: int, folder: str, how: str, members: list[int]) -> None:
    """Writes dumps of ranks that have made a hundred calls and one more, which is faulty."""
    group = dist.new_group(members, backend="gloo", group_desc=f"{how} {members}")
    dist.barrier()
    if rank in members:
        communicator = ringkern.Communicator(group, timeout=timedelta(seconds=1))
        for _ in range(100):
            communicator.all_reduce(torch.ones(10))
        beside = ringkern.Communicator(group)
        for _ in range(80):  # its records begin elsewhere, but it must not be blamed
            beside.all_reduce(torch.ones(10))
        call = lambda: communicator.all_reduce(torch.ones(10))  # noqa: E731
        if how == "size" and rank == 2:
            call = lambda: communicator.all_reduce(torch.ones(14))  # noqa: E731
        if how == "order" and rank == 2:
            call = lambda: communicator.all_gather(torch.ones(30), torch.ones(10))  # noqa: E731
        if how != "nothing" and (how != "missing" or rank != 2):
            with pytest.raises(RingKernError):
                call()
    dist.barrier()
    ringkern.dump(folder)
    dist.barrier()
    if rank in members:
        communicator.close()
        beside.close()


def leave_unfinished(folder: Path) -> None:
    """Leaves the files of a process that is killed while it writes."""
    before = set(folder.iterdir())
    killed = mock.patch("os.replace", side_effect=KeyboardInterrupt)
    with killed, mock.patch("os.unlink"), pytest.raises(KeyboardInterrupt):
        ringkern.dump(folder)
    assert set(folder.iterdir()) - before


def found_in(own: Ranks, folder: Path, how: str, *members: int) -> tuple[str, list[Collective]]:
    in_group = list(members or (0, 1, 2))
    own.run(_calls, str(folder), how, in_group)
    leave_unfinished(folder)
    text, found = analysed(folder)
    collectives = [
        c
        for c in found.collectives
        if c.pg_desc.endswith(f"/cpu:{how} {in_group}") and "#" not in c.pg_desc  # not `beside`
    ]
    assert len(collectives) >= 15
    # Rings that other tests left open, or that have failed: they may differ in their last call.
    wrong = [c for c in found.collectives if c.missing_ranks or c.mismatch_collectives]
    assert {c.collective_seq_id for c in wrong} <= {101}
    return text, collectives


def test_nothing_is_found_where_nothing_is_wrong(own: Ranks, tmp_path: Path) -> None:
    text, found = found_in(own, tmp_path / "dumps", "nothing")
    assert "sequence number" not in text
    assert [c.collective_seq_id for c in found] == list(range(101 - len(found), 101))
    assert all(c.pass_check and c.collective_state == "completed" for c in found)


@pytest.mark.parametrize("members", [(0, 1, 2), (1, 2)])
def test_a_rank_that_misses_a_call(own: Ranks, tmp_path: Path, members: tuple[int, ...]) -> None:
    """Ranks of a group are named by their numbers in the default group."""
    text, found = found_in(own, tmp_path / "dumps", "missing", *members)
    assert "Not all ranks joining collective, sequence number: 101" in text
    assert "missing ranks: {2}" in text
    last = found[-1]
    assert [c for c in found if c.missing_ranks] == [last]
    assert (last.missing_ranks, last.expected_ranks) == ({2}, set(members))
    assert (last.collective_seq_id, last.collective_state) == (101, "started")
    assert last.collective_name == f"{LIBRARY}:all_reduce"


@pytest.mark.parametrize(
    ("how", "kind", "culprit"),
    [
        ("size", "SIZE_OR_SYNTAX_MISMATCH", "'[[10]]' does not match found input sizes: '[[14]]'"),
        ("order", "COLLECTIVE_TYPE_MISMATCH", "found collective type: '_all_gather_base'"),
    ],
)
def test_a_rank_that_makes_another_call(
    own: Ranks, tmp_path: Path, how: str, kind: str, culprit: str
) -> None:
    text, found = found_in(own, tmp_path / "dumps", how)
    assert "Collective sequence number: 101 has errors" in text
    assert f"Culprit rank 2; Error type: {kind}" in text
    assert culprit in text
    (wrong,) = [c for c in found if c.mismatch_collectives]
    assert list(wrong.mismatch_collectives or {}) == [2]
    assert not [c for c in found if c.missing_ranks]


def _backend(rank: int, size: int) -> dict[str, Any]:
    group = dist.new_group([0, 2], backend="ringkern")
    if rank == 1:
        return {}
    dist.all_reduce(torch.ones(5), group=group)
    record, name = ringkern.dump(), f"backend/{group.group_name}/cpu"
    made = [e for e in record["entries"] if e["process_group"] == (name, "undefined")]
    assert [e["collective_seq_id"] for e in made] == [1]
    dist.destroy_process_group(group)
    config: dict[str, Any] = record["pg_config"][name]
    return config


def test_the_rings_of_the_backend(own: Ranks) -> None:
    zero, nothing, two = own.run(_backend)
    assert nothing == {}
    assert zero == two
    assert zero["ranks"] == "[0, 2]"
