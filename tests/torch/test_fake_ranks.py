"""Rings of processes on fake CUDA devices, with the kernels that ship: a launch runs their PTX in
memory that the processes share.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringkern import _C
from tests.comm.exits import scenarios_of
from tests.reference import DTYPES
from tests.torch import fake_cuda
from tests.torch.fake_ranks import ROOM, VICTIM, Call, cut_of, set_memory, write

if (reason := fake_cuda.why_not()) is not None:
    pytest.skip(reason, allow_module_level=True)

Scenario = Callable[[str, int, Path], list[dict[str, Any]]]
RING = [("ring", protocol) for protocol in _C.protocols]
WAYS = [*RING, ("one_shot", "ll"), ("two_shot", "simple"), ("two_shot", "ll")]
ON_HOST = [way for way in WAYS if way[1] == "ll" or way == ("ring", "simple")]


@pytest.fixture(scope="module")
def scenarios() -> Iterator[Scenario]:
    # By default, a failed call on CUDA ends the process.
    module = fake_cuda.over_fake("tests.torch.fake_ranks")
    with scenarios_of(*module, RINGKERN_ON_FAULT="raise") as run:
        yield run


def _run(
    scenarios: Scenario, size: int, folder: Path, calls: list[Call], name: str = "calls"
) -> None:
    write(folder, calls)
    for rank in scenarios(name, size, folder):
        assert rank["status"] == 0, rank["stderr"]


def test_all_ways_on_cuda_are_tested() -> None:
    assert sorted(WAYS) == sorted(_C.ways_on("cuda"))


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_dtype(scenarios: Scenario, tmp_path: Path, size: int, way: tuple[str, str]) -> None:
    """Several calls in a row: each starts from the counters and flags of the one before."""
    counts = [1000] if size == 3 else [1, 1000]
    calls = [Call(*way, dtype, n) for n in counts for dtype in DTYPES]
    calls += [Call(*way, "bfloat16", 999, op) for op in ("avg", "prod", "min", "max")]
    calls += [Call(*way, "int32", 1001, "bxor", True), Call(*way, "float16", 1001, "max", True)]
    _run(scenarios, size, tmp_path, calls)


@pytest.mark.parametrize("protocol", _C.protocols)
def test_around_chunks(scenarios: Scenario, tmp_path: Path, protocol: str) -> None:
    """All channels, with chunks that exactly fill their slots, and with a second loop."""
    size = 2
    dtype = "float32" if protocol == "ll128" else "bfloat16"
    cut = cut_of(protocol, size, 1 << 26, dtype)
    plan = _C.Plan("all_reduce", protocol, size, 1 << 26, DTYPES[dtype].itemsize, **cut)
    full = plan.chunk * plan.channels * size
    # Simple moves enough data that one call suffices.
    counts = [full + 1] if protocol == "simple" else [full - 1, full, full + 1]
    _run(scenarios, size, tmp_path, [Call("ring", protocol, dtype, n) for n in counts])


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("all_early", [False, True])
def test_in_place(scenarios: Scenario, tmp_path: Path, size: int, all_early: bool) -> None:
    """Requests one_shot and two_shot by name, and by ``auto`` where all ranks were early. The bits
    stay the same if one rank's tensor is staged, and if it is in several pieces.
    """
    (tmp_path / "early").write_text(json.dumps([*range(size)] if all_early else [0]))
    way = ("two_shot", "simple")
    calls = [Call(*way, dtype, n) for dtype in ("bfloat16", "int64") for n in (1, 1001, 100_000)]
    calls += [Call(*way, "float32", 999, op) for op in ("avg", "prod", "max")]
    calls += [Call("ring", "simple", "float32", 50_000), Call(*way, "float32", 50_000)]
    calls += [Call(*way, "uint8", 12_000_000)] if size == 2 and all_early else []
    _run(scenarios, size, tmp_path, calls, "in_place")


@pytest.mark.parametrize("devices", [[0, 0], [0, 1], [1, 0, 1], [*range(8)]], ids=str)
def test_a_ring_in_one_process(scenarios: Scenario, tmp_path: Path, devices: list[int]) -> None:
    """Launches on two devices run at the same time; so do the kernels that probe their links."""
    calls = [Call(*way, dtype, 1001) for way in WAYS for dtype in ("bfloat16", "int64")]
    calls += [Call("two_shot", "simple", dtype, n) for n in (1, 40_000) for dtype in DTYPES]
    write(tmp_path, calls)
    (tmp_path / "devices").write_text(json.dumps(devices))
    (outcome,) = scenarios("local_ring", 1, tmp_path)
    assert outcome["status"] == 0, outcome["stderr"]


@pytest.mark.parametrize(("processors", "queues"), [(ROOM, 8), (2 * ROOM, 8), (2 * ROOM, 1)])
def test_two_rings_in_other_orders(
    scenarios: Scenario, tmp_path: Path, processors: int, queues: int
) -> None:
    """The rings run side by side where there is room for both, and time out where there is not."""
    (tmp_path / "device").write_text(json.dumps([processors, queues]))
    _run(scenarios, 2, tmp_path, [Call("ring", "simple", "float32", 330_000)], "two_rings")
    kinds = [json.loads((tmp_path / f"said{rank}").read_text()) for rank in range(2)]
    if processors > ROOM:
        assert kinds == [["no error"] * 2] * 2
    else:
        assert "CollectiveTimeoutError" in kinds[0] + kinds[1], kinds


@pytest.mark.parametrize("size", [2, 3])
def test_norms(scenarios: Scenario, tmp_path: Path, size: int) -> None:
    _run(scenarios, size, tmp_path, [], "norms")


def test_one_ring_on_two_streams(scenarios: Scenario, tmp_path: Path) -> None:
    _run(scenarios, 2, tmp_path, [Call(*way, "float32", 5000) for way in WAYS] * 2, "two_streams")


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_a_graph(scenarios: Scenario, tmp_path: Path, way: tuple[str, str]) -> None:
    _run(scenarios, 2, tmp_path, [Call(*way, "float32", 2000)], "graph")


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_replays_beside_calls(scenarios: Scenario, tmp_path: Path, way: tuple[str, str]) -> None:
    _run(scenarios, 2, tmp_path, [Call(*way, "float32", 2000)], "replays_beside_calls")


def test_a_replay_without_its_peer(scenarios: Scenario, tmp_path: Path) -> None:
    _run(scenarios, 2, tmp_path, [Call("ring", "ll", "float32", 2000)], "lonely_replay")


def test_a_call_that_cuda_refuses_is_an_error(scenarios: Scenario, tmp_path: Path) -> None:
    _run(scenarios, 2, tmp_path, [Call("ring", "ll", "float32", 2000)], "refused")


def test_contexts(scenarios: Scenario, tmp_path: Path) -> None:
    """Each process makes a context for its own device, and none for device 0."""
    _run(scenarios, 2, tmp_path, [], "contexts")


def test_memory_that_torch_keeps(scenarios: Scenario, tmp_path: Path) -> None:
    _run(scenarios, 2, tmp_path, [Call("ring", "ll", "float32", 100)], "full")


def test_groups_in_a_loop(scenarios: Scenario, tmp_path: Path) -> None:
    _run(scenarios, 2, tmp_path, [], "groups_in_a_loop")


def test_a_device_that_is_lost(scenarios: Scenario, tmp_path: Path) -> None:
    write(tmp_path, [Call("ring", "ll", "float32", 2000)])
    outcome = scenarios("lost", 3, tmp_path)
    assert [rank["status"] for rank in outcome] == [0] * 3, outcome
    for rank in range(3):
        said = json.loads((tmp_path / f"said{rank}").read_text())["first"]
        assert "cudaLaunchKernelExC" in said["text"], said


def test_the_first_message_in_a_graph(scenarios: Scenario, tmp_path: Path) -> None:
    _run(scenarios, 2, tmp_path, [], "first_message_in_a_graph")


@pytest.mark.parametrize(
    ("size", "order", "queues"),
    [
        (2, "receives first", 8),
        (2, "receives first", 1),
        (2, "strided", 32),  # a queue for each stream
        (3, "receives first", 1),
        (3, "alternating", 1),
    ],
)
def test_messages_in_any_order(
    scenarios: Scenario, tmp_path: Path, size: int, order: str, queues: int
) -> None:
    (tmp_path / "queues").write_text(str(queues))
    (tmp_path / "order").write_text(order)
    _run(scenarios, size, tmp_path, [], "messages")


@pytest.mark.parametrize(
    ("size", "queues", "memory"),
    [(2, 1, "ipc"), (4, 8, "auto"), (4, 1, "host"), (8, 8, "auto"), (8, 8, "host")],
)
def test_batches_of_messages(
    scenarios: Scenario, tmp_path: Path, size: int, queues: int, memory: str
) -> None:
    (tmp_path / "queues").write_text(str(queues))
    (tmp_path / "choice").write_text(memory)
    _run(scenarios, size, tmp_path, [], "batches")


@pytest.mark.parametrize(
    ("size", "part", "queues"), [(2, 12, 1), (4, 3000, 1), (4, 2 << 20, 8), (4, 16 << 20, 1)]
)
def test_exchanges(scenarios: Scenario, tmp_path: Path, size: int, part: int, queues: int) -> None:
    (tmp_path / "queues").write_text(str(queues))
    (tmp_path / "bytes").write_text(str(part))
    _run(scenarios, size, tmp_path, [], "exchanges")


@pytest.mark.parametrize(
    ("name", "size", "queues"),
    [
        ("graph_of_messages", 2, 8),
        ("messages_in_callbacks", 2, 8),
        ("messages_before_collectives", 2, 1),
        ("batches_without_room", 4, 8),
    ],
)
def test_other_messages(
    scenarios: Scenario, tmp_path: Path, name: str, size: int, queues: int
) -> None:
    (tmp_path / "queues").write_text(str(queues))
    _run(scenarios, size, tmp_path, [], name)


@pytest.mark.parametrize(
    ("aborts", "memory"), [(False, "auto"), (True, "auto"), (True, "ipc"), (True, "host")]
)
def test_unfinished_messages(
    scenarios: Scenario, tmp_path: Path, aborts: bool, memory: str
) -> None:
    (tmp_path / "queues").write_text("1")
    (tmp_path / "choice").write_text(memory)
    if aborts:
        (tmp_path / "aborts").write_text("")
    _run(scenarios, 2, tmp_path, [], "unfinished_messages")


@pytest.mark.parametrize("memory", ["auto", "ipc", "host"])
def test_kill_9_during_messages(scenarios: Scenario, tmp_path: Path, memory: str) -> None:
    """Messages that wait behind a lost one are lost, too."""
    (tmp_path / "queues").write_text("1")
    (tmp_path / "choice").write_text(memory)
    outcome = scenarios("killed_in_messages", 3, tmp_path)
    assert [rank["status"] for rank in outcome] == [0, -9, 0], outcome
    for rank in (0, 2):
        said = json.loads((tmp_path / f"said{rank}").read_text())
        for number in "012":
            assert "rank 1" in said[number]["text"], said
        assert said["0"]["kind"] == "PeerLostError", said


@pytest.mark.parametrize("way", [("ring", "ll"), ("two_shot", "simple")], ids=" ".join)
def test_a_graph_over_two_devices(
    scenarios: Scenario, tmp_path: Path, way: tuple[str, str]
) -> None:
    _run(scenarios, 1, tmp_path, [Call(*way, "float32", 2000)], "graph_on_devices")


def test_devices_that_do_not_reach_each_other(scenarios: Scenario, tmp_path: Path) -> None:
    """They share host memory, and ``auto`` avoids the ways that need device memory."""
    (outcome,) = scenarios("apart", 1, tmp_path)
    assert outcome["status"] == 0, outcome["stderr"]


def test_two_devices_whose_link_tears_lines(scenarios: Scenario, tmp_path: Path) -> None:
    _run(scenarios, 2, tmp_path, [], "torn")


def test_rank_0_finds_the_orders(scenarios: Scenario, tmp_path: Path) -> None:
    _run(scenarios, 3, tmp_path, [], "ordered")


@pytest.mark.parametrize(
    ("seats", "channels"),
    [([(0, ROOM - 1)] * 3, 10), ([(0, 132), (1, ROOM - 1), (1, ROOM - 1)], 15), ([(0, 1)] * 3, 0)],
)
def test_small_devices(
    scenarios: Scenario, tmp_path: Path, seats: list[tuple[int, int]], channels: int
) -> None:
    """The bits show fewer channels: each has its part of the tensor."""
    (tmp_path / "seats").write_text(json.dumps(seats))
    (tmp_path / "channels").write_text(json.dumps(channels))
    _run(scenarios, 3, tmp_path, [Call(*way, "float32", 30_000) for way in WAYS], "small")


@pytest.mark.parametrize(
    ("size", "apart"),
    [
        (2, [(0, 1), (1, 0)]),
        (2, [(1, 0)]),
        (3, [(2, 1)]),
        (4, [(0, 1), (2, 3)]),
        (8, [(a, b) for a in range(8) for b in range(8) if a // 4 != b // 4]),
    ],
    ids=["all of 2", "one way of 2", "some of 3", "some of 4", "two islands of 8"],
)
def test_host_memory(
    scenarios: Scenario, tmp_path: Path, size: int, apart: list[tuple[int, int]]
) -> None:
    """The bits equal those of device memory, whichever pairs of ranks use which."""
    set_memory(tmp_path, apart, by_ipc=[*range(0, size, 2)])
    dtypes = ("bfloat16", "int64") if size > 4 else ("float32", "bfloat16", "int64", "uint8")
    calls = [Call(*way, dtype, n) for way in ON_HOST for dtype in dtypes for n in (1, 1001)]
    calls += [Call("ring", "simple", "float32", 300_000)]
    _run(scenarios, size, tmp_path, calls, "on_host")


@pytest.mark.parametrize(
    ("size", "by_ipc"), [(2, [0, 1]), (2, [0]), (3, [0, 1, 2]), (4, [0, 2]), (8, [0, 2, 4, 6])]
)
def test_device_memory(scenarios: Scenario, tmp_path: Path, size: int, by_ipc: list[int]) -> None:
    """The bits do not depend on the kind of handle by which ranks open each other's memory."""
    set_memory(tmp_path, by_ipc=by_ipc)
    calls = [Call(*way, "float32", n) for way in ON_HOST for n in (1, 1001)]
    _run(scenarios, size, tmp_path, calls, "on_host")


def test_messages_over_host_memory(scenarios: Scenario, tmp_path: Path) -> None:
    set_memory(tmp_path, [(0, 1)])
    _run(scenarios, 2, tmp_path, [], "messages_on_host")


def test_ranks_without_memory_in_common(scenarios: Scenario, tmp_path: Path) -> None:
    """The error names both ranks and all attempts, on all ranks."""
    set_memory(tmp_path, [(1, 0)])
    _run(scenarios, 2, tmp_path, [], "no_memory_in_common")
    for rank in range(2):
        said = json.loads((tmp_path / f"said{rank}").read_text())["first"]
        for what in ("rank 0 and rank 1", "cannot open", "cudaHostRegister", "ulimit -l"):
            assert what in said["text"], said


@pytest.mark.parametrize(
    ("apart", "by_ipc"),
    [([], []), ([], [0, 1, 2]), ([(0, 1)], [2]), ([(0, 1), (0, 2), (1, 2)], [])],
    ids=str,
)
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_kill_9_during_a_call(
    scenarios: Scenario,
    tmp_path: Path,
    way: tuple[str, str],
    apart: list[tuple[int, int]],
    by_ipc: list[int],
) -> None:
    """A kernel that waits for a dead rank ends, and its call names the rank."""
    if apart and way not in ON_HOST:
        return
    set_memory(tmp_path, apart, by_ipc)
    write(tmp_path, [Call(*way, "float32", 2000)])
    outcome = scenarios("killed", 3, tmp_path)
    assert [rank["status"] for rank in outcome] == [0, -9, 0], outcome
    for rank in (0, 2):
        said = json.loads((tmp_path / f"said{rank}").read_text())["first"]
        assert (said["kind"], said["rank"]) == ("PeerLostError", VICTIM), said
        assert said["fault"]["event"] == "died_in_call"
        assert f"rank {VICTIM}" in said["text"]
