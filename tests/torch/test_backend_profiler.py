"""Profiles of calls: one event for each, like Gloo's, and torch's record of it, like NCCL's."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.profiler import ProfilerActivity, profile

from tests.ranks import Pool
from tests.torch.rings import GLOO_HAS_ALL_TO_ALL, ring

Group = dist.ProcessGroup | None


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def lists(k: int, *shape: int) -> list[torch.Tensor]:
    return [torch.ones(shape) for _ in range(k)]


# name: (the event; the call of rank r of k). Each occurs at most once in a call, and has a shape of
# its own.
CALLS: dict[str, tuple[str, Callable[[int, int, Group], Any]]] = {
    "all_reduce": ("all_reduce", lambda r, k, g: dist.all_reduce(ones(2, 3), group=g)),
    "broadcast": ("broadcast", lambda r, k, g: dist.broadcast(ones(4), 1, group=g)),
    "reduce": ("reduce", lambda r, k, g: dist.reduce(ones(5), 1, group=g)),
    "all_gather": ("all_gather", lambda r, k, g: dist.all_gather(lists(k, 6), ones(6), g)),
    "gather": (
        "gather",
        lambda r, k, g: dist.gather(ones(7), lists(k, 7) if r == 1 else None, 1, g),
    ),
    "scatter": (
        "scatter",
        lambda r, k, g: dist.scatter(ones(8), lists(k, 8) if r == 1 else None, 1, g),
    ),
    "all_to_all": ("all_to_all", lambda r, k, g: dist.all_to_all(lists(k, 9), lists(k, 9), g)),
    "all_to_all_single": (
        "all_to_all",
        lambda r, k, g: dist.all_to_all_single(ones(5 * k, 2), ones(5 * k, 2), group=g),
    ),
    "barrier": ("barrier", lambda r, k, g: dist.barrier(g)),
    "all_reduce_coalesced": (
        "all_reduce",
        lambda r, k, g: dist.all_reduce_coalesced([ones(3), ones(4, 1)], group=g),
    ),
    "sparse all_reduce": (
        "sparse_all_reduce",
        lambda r, k, g: dist.all_reduce(torch.eye(3).to_sparse(), group=g),
    ),
    "asynchronous": (
        "all_reduce",
        lambda r, k, g: dist.all_reduce(ones(10), group=g, async_op=True).wait(),
    ),
}
# Gloo composes these of others, or lacks them.
OWN: dict[str, tuple[str, Callable[[int, int, Group], Any]]] = {
    "all_gather_into_tensor": (
        "all_gather",
        lambda r, k, g: dist.all_gather_into_tensor(ones(k, 3), ones(3), g),
    ),
    "reduce_scatter": (
        "reduce_scatter",
        lambda r, k, g: dist.reduce_scatter(ones(4), lists(k, 4), group=g),
    ),
    "reduce_scatter_tensor": (
        "reduce_scatter",
        lambda r, k, g: dist.reduce_scatter_tensor(ones(5), ones(k, 5), group=g),
    ),
    "all_gather_coalesced": (
        "all_gather",
        lambda r, k, g: dist.all_gather_coalesced([lists(2, 2)] * k, lists(2, 2), g),
    ),
    "coalesced reduce_scatter_tensor": (
        "reduce_scatter",
        lambda r, k, g: g.reduce_scatter_tensor_coalesced(
            [ones(2), ones(3)], [ones(k * 2), ones(k * 3)]
        ).wait(),
    ),
}
SHAPES = {
    "all_gather_into_tensor": [[3]],
    "reduce_scatter": [[4], [4]],
    "reduce_scatter_tensor": [[2, 5]],
    "all_gather_coalesced": [[2], [2]],
    "coalesced reduce_scatter_tensor": [[4], [6]],
}


def events(
    prefix: str, call: Callable[..., Any], *arguments: Any
) -> list[tuple[str, list[list[int]]]]:
    """Returns event names without the backend's prefix, and shapes."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        call(*arguments)
    found = []
    for event in profiler.events():
        if event.name.startswith(prefix):
            found.append((event.name.removeprefix(prefix), event.input_shapes))
            assert event.time_range.end >= event.time_range.start
    return found


def _as_gloo(rank: int, size: int) -> None:
    for name, (event, call) in CALLS.items():
        ours = events("ringkern:", call, rank, size, ring())
        if GLOO_HAS_ALL_TO_ALL or name != "all_to_all":
            assert ours == events("gloo:", call, rank, size, None), name
        assert [found for found, _ in ours] == [event], name
    for name, (event, call) in OWN.items():
        ours = events("ringkern:", call, rank, size, ring())
        assert ours == [(event, SHAPES[name])], name


@pytest.mark.filterwarnings("ignore")
def test_one_event_for_each_call(ranks: Pool) -> None:
    ranks(2).run(_as_gloo)


def _messages(rank: int, size: int) -> None:
    def exchange(group: Group) -> None:
        x = torch.ones(4, 3)
        if rank == 0:
            dist.send(x, 1, group)
            dist.send(x, 1, group, tag=3)
        else:
            dist.recv(x, 0, group)
            dist.recv(x, None, group, tag=3)

    ours = events("ringkern:", exchange, ring())
    theirs = events("gloo:", exchange, None)
    assert ours == theirs
    names = ["send", "send"] if rank == 0 else ["recv", "recvAnySource"]
    assert ours == [(name, [[4, 3]]) for name in names]


def test_messages(ranks: Pool) -> None:
    ranks(2).run(_messages)


def _in_flight(rank: int, size: int) -> None:
    """The event of an asynchronous call lasts until the call is done."""
    group, store = ring(), c10d._get_default_store()
    dist.barrier(group)

    def late() -> None:
        if rank == 1:
            store.wait(["profiled"])
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        if rank == 0:
            with torch.profiler.record_function("meanwhile"):
                pass
            store.set("profiled", "")
        work.wait()

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        late()
    if rank == 0:
        times = {event.name: event.time_range for event in profiler.events()}
        assert times["ringkern:all_reduce"].start <= times["meanwhile"].start
        assert times["ringkern:all_reduce"].end >= times["meanwhile"].end


def test_an_event_lasts_until_the_call_is_done(ranks: Pool) -> None:
    ranks(2).run(_in_flight)


# ---- torch's record -----------------------------------------------------------------------------


def trace_of(call: Callable[..., Any], *arguments: Any) -> list[dict[str, Any]]:
    """Returns the entries of torch's record in a Chrome trace."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        call(*arguments)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace = json.loads(file.read_text())
    return [e["args"] for e in trace["traceEvents"] if e["name"] == "record_param_comms"]


# For CALLS and OWN: the name in the record, elements in and out on rank 0 of 2, and the root.
RECORDS: dict[str, tuple[str, int, int, int]] = {
    "all_reduce": ("allreduce", 6, 6, 0),
    "broadcast": ("broadcast", 4, 4, 1),
    "reduce": ("reduce", 5, 5, 1),
    "all_gather": ("all_gather", 6, 12, 0),
    "gather": ("gather", 7, 0, 1),
    "scatter": ("scatter", 0, 8, 1),
    "all_to_all": ("all_to_all", 18, 18, 0),
    "all_to_all_single": ("all_to_allv", 20, 20, 0),
    "all_reduce_coalesced": ("allreduce_coalesced", 7, 7, 0),
    "sparse all_reduce": ("allreduce_sparse", 9, 9, 0),
    "asynchronous": ("allreduce", 10, 10, 0),
    "all_gather_into_tensor": ("_allgather_base", 3, 6, 0),
    "reduce_scatter": ("reduce_scatter", 8, 4, 0),
    "reduce_scatter_tensor": ("_reduce_scatter_base", 10, 5, 0),
    "all_gather_coalesced": ("allgather_into_tensor_coalesced", 4, 8, 0),
    "coalesced reduce_scatter_tensor": ("reduce_scatter_tensor_coalesced", 10, 5, 0),
}
# torch calls the method that coalesces
ASYNCHRONOUS = ("asynchronous", "coalesced reduce_scatter_tensor")


def _records(rank: int, size: int) -> dict[str, list[dict[str, Any]]]:
    group = ring()
    return {name: trace_of(call, rank, size, group) for name, (_, call) in (CALLS | OWN).items()}


@pytest.mark.filterwarnings("ignore")
def test_the_record_of_each_call(ranks: Pool) -> None:
    found = ranks(2).run(_records)
    assert found[0].keys() == RECORDS.keys() | {"barrier"}
    for name, (collective, given, taken, root) in RECORDS.items():
        (record,) = found[0][name]
        assert record["Collective name"] == collective, name
        assert (record["In msg nelems"], record["Out msg nelems"]) == (given, taken), name
        assert record["dtype"] == "Float", name
        assert record["Rank"] == root, name
        if torch.__version__ >= "2.12":  # 2.11 does not record it
            assert record["Is asynchronized op"] == (name in ASYNCHRONOUS), name
    for records in found:
        (record,) = records["barrier"]
        assert record["Collective name"] == "barrier"
        assert (record["In msg nelems"], record["Out msg nelems"]) == (0, 0)
        for (record,) in records.values():
            assert record["Group size"] == 2
            assert record["Process Group Ranks"] == "[0, 1]"
            assert (record["Global rank start"], record["Global rank stride"]) == (0, 1)
    # Entries of the root.
    assert found[1]["gather"][0]["Out msg nelems"] == 14
    assert found[1]["scatter"][0]["In msg nelems"] == 16
    assert found[1]["gather"][0]["Rank"] == found[1]["scatter"][0]["Rank"] == 1


def _records_of_messages(rank: int, size: int) -> list[dict[str, Any]]:
    x = torch.ones(5, dtype=torch.int64)

    def exchange() -> None:
        if rank == 0:
            dist.send(x, 1, ring())
        else:
            dist.recv(x, 0, ring())

    return trace_of(exchange)


def test_the_record_of_a_message(ranks: Pool) -> None:
    (sent,), (received,) = ranks(2).run(_records_of_messages)
    assert (sent["Collective name"], received["Collective name"]) == ("send", "recv")
    assert (sent["Dst Rank"], received["Src Rank"]) == (1, 0)
    for record in (sent, received):
        assert record["In msg nelems"] == record["Out msg nelems"] == 5
        assert record["dtype"] == "Long"


def _record_of_a_group(rank: int, size: int) -> list[Any]:
    """Records a group of some of the ranks, with a name of its own."""
    found = []
    for members in ([1, 3], [0, 1, 3]):
        group = dist.new_group(members, backend="ringkern", group_desc="the odd ones")
        if rank in members:
            (record,) = trace_of(CALLS["all_reduce"][1], rank, 2, group)
            found.append((record, group.group_name))
            dist.destroy_process_group(group)
    return found


def test_the_group_in_the_record(ranks: Pool) -> None:
    (odd, name), (uneven, _) = ranks(4).run(_record_of_a_group)[3]
    assert odd["Process Group Name"] == name
    assert odd["Process Group Description"] == "the odd ones"
    assert odd["Process Group Ranks"] == "[1, 3]"
    assert odd["Group size"] == 2
    assert odd["Rank"] == 1
    assert (odd["Global rank start"], odd["Global rank stride"]) == (1, 2)
    assert "Global rank stride" not in uneven, "they have none"


def _without_a_profiler(rank: int, size: int) -> None:
    """An error ends no event and leaves none open."""
    group = ring()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with pytest.raises(TypeError):
            dist.all_reduce(torch.ones(3, dtype=torch.uint16), group=group)
        dist.all_reduce(ones(3), group=group)
    names = [e.name for e in profiler.events()]
    assert names.count("ringkern:all_reduce") == 1
    assert names.count("record_param_comms") == 1


def test_a_call_that_is_refused_is_no_event(ranks: Pool) -> None:
    ranks(2).run(_without_a_profiler)
