"""Ranks, hosts and wires that fail while ranks on several hosts call: what each survivor is told,
that it names the host, and that nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.comm.exits import scenarios_of
from tests.hosts.fates import Plan
from tests.hosts.namespaces import Net, why_not

pytestmark = pytest.mark.slow

Scenario = Callable[[str, int, Path], list[dict[str, Any]]]
SOON_S = 4.0  # the timeout of those that are to wait for it; of the others: none that ends here

JOINED_S = 30.0  # the timeout of ranks that must not wait for it

namespaces = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
# Each fault in one form, unless all are requested (make hosts): a test takes seconds.
AT_LENGTH = "RK_TEST_HOSTS_EXAMPLES" in os.environ
either_api = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(True, id="backend"),
        *([pytest.param(False, id="communicator")] if AT_LENGTH else []),
    ],
)


@pytest.fixture(scope="module")
def scenarios() -> Iterator[Scenario]:
    with pytest.MonkeyPatch.context() as patch:
        # torch warns that the hosts of namespaces have no names.
        patch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
        with scenarios_of("tests.hosts.fates") as run:
            yield run


@dataclass
class Fate:
    """The fates of the ranks. ``said``: the notes of the survivors."""

    status: list[int]
    said: dict[int, dict[str, Any]]
    stderr: list[str]

    def check(
        self, survivors: set[int], kind: str, *, store_is_lost: bool = False, **fields: Any
    ) -> None:
        """Checks that exactly the survivors have raised that kind of error, with these fields in
        its fault, raised at once in their next call, and have no leftovers.

        A rank that was between two calls may get the error in its next one, with the same reason.
        """
        everything = json.dumps(self.said, indent=1) + "\n".join(self.stderr)
        assert set(self.said) == survivors, everything
        for rank, said in self.said.items():
            assert self.status[rank] == 0, everything
            assert "Traceback" not in self.stderr[rank], self.stderr[rank]
            first, again = said["first"], said["again"]
            assert first["kind"] in (kind, "CommAbortedError"), everything
            assert ".. " not in first["text"], everything
            assert again["kind"] == "CommAbortedError", everything
            for error in (first, again):
                fault = error["fault"]
                assert {name: fault.get(name) for name in fields} == fields, everything
                assert fault["text"] in error["text"], everything
        assert any(said["first"]["kind"] == kind for said in self.said.values()), everything
        self.check_nothing_is_left(store_is_lost)

    def check_nothing_is_left(self, store_is_lost: bool = False) -> None:
        """But, where the store does not answer, the thread that asks it, until torch's client gives
        up; and rank 0 keeps the store, with what others had open to it.
        """
        for rank, said in self.said.items():
            left, after = said["clean"]["left"], said["clean"]["after"]
            if store_is_lost:
                left = {
                    "threads": left.get("threads", [])[1:],
                    "descriptors": [d for d in left.get("descriptors", []) if d != "socket"],
                    "mappings": left.get("mappings", []),
                }
            assert not any(left.values()), f"rank {rank} has left {left}, {after:.1f} s later"


def befall(
    scenarios: Scenario, folder: Path, plan: Plan, ranks: int, act: Callable[[], None] | None = None
) -> Fate:
    """Runs the plan, and acts once all ranks have made some calls."""
    plan.write(folder)
    outcome: list[dict[str, Any]] = []
    running = threading.Thread(target=lambda: outcome.extend(scenarios("calls", ranks, folder)))
    running.start()
    at = None
    try:
        ready = [folder / f"ready{rank}" for rank in range(ranks)]
        while running.is_alive() and not all(note.exists() for note in ready):
            time.sleep(0.01)
        if act is not None:
            time.sleep(0.1)  # into the midst of their calls
            at = time.monotonic()
            act()
    finally:
        running.join()
    said = {
        rank: json.loads((folder / f"said{rank}").read_text())
        for rank in range(ranks)
        if (folder / f"said{rank}").exists()
    }
    deeds = [float(path.read_text()) for path in folder.glob("deed*[0-9]")]
    _tell(said, min(deeds, default=at))
    return Fate([rank["status"] for rank in outcome], said, [rank["stderr"] for rank in outcome])


def _tell(said: dict[int, dict[str, Any]], at: float | None) -> None:
    for rank, one in said.items():
        if "first" in one and at is not None:
            error = one["first"]
            print(
                f"rank {rank}: {error['at'] - at:.2f} s after it {error['kind']} (rank "
                f"{error['rank']}): {error['text']}\n    again after {one['again']['took']:.3f} s; "
                f"closed in {one['closing']:.2f} s, clean after {one['clean']['after']:.2f} s"
            )
        else:
            print(f"rank {rank}: {one['calls']} calls, the slowest took {one['slowest']:.2f} s")


def pid(folder: Path, rank: int) -> int:
    return int((folder / f"pid{rank}").read_text())


def kill(folder: Path, *ranks: int) -> None:
    for rank in ranks:
        os.kill(pid(folder, rank), signal.SIGKILL)


def on(net: Net, ranks: list[int], **plan: Any) -> Plan:
    return Plan(place=asdict(net.place(ranks)), **plan)


# ---- a rank, or a host, that dies ---------------------------------------------------------------


@namespaces
@either_api
@pytest.mark.parametrize("victim", [1, 3] if AT_LENGTH else [3])
def test_a_rank_is_killed(scenarios: Scenario, tmp_path: Path, victim: int, backend: bool) -> None:
    with Net(2) as net:
        plan = on(net, [2, 2], backend=backend)
        fate = befall(scenarios, tmp_path, plan, 4, lambda: kill(tmp_path, victim))
    assert fate.status[victim] == -9
    host = "ab"[victim // 2]
    fate.check({0, 1, 2, 3} - {victim}, "PeerLostError", rank=victim, host=host)


@namespaces
def test_a_host_is_killed(scenarios: Scenario, tmp_path: Path) -> None:
    """Its kernel closes the connections."""
    with Net(2) as net:
        fate = befall(scenarios, tmp_path, on(net, [2, 2]), 4, lambda: kill(tmp_path, 2, 3))
    lost = {"event": "host_silent", "rank": 2, "host": "b", "collective": "all_reduce"}
    fate.check({0, 1}, "PeerLostError", **lost)
    for said in fate.said.values():
        fault = said["first"]["fault"]
        assert "host b (ranks 2, 3)" in fault["text"]
        assert fault.get("evidence"), "the words of the engine"


@namespaces
def test_the_host_that_keeps_the_store_is_killed(scenarios: Scenario, tmp_path: Path) -> None:
    with Net(2) as net:
        plan = on(net, [2, 2], clean_s=2.0)
        fate = befall(scenarios, tmp_path, plan, 4, lambda: kill(tmp_path, 0, 1))
    fate.check({2, 3}, "PeerLostError", event="network_cut", host="a", store_is_lost=True)


@namespaces
def test_one_of_three_hosts_is_killed_with_the_store(scenarios: Scenario, tmp_path: Path) -> None:
    """Neither of the others answers: no host is named."""
    with Net(3) as net:
        plan = on(net, [1, 1, 1], clean_s=2.0)
        fate = befall(scenarios, tmp_path, plan, 3, lambda: kill(tmp_path, 0))
    fate.check({1, 2}, "PeerLostError", event="network_cut", host=None, store_is_lost=True)


@namespaces
def test_one_of_three_hosts_is_killed(scenarios: Scenario, tmp_path: Path) -> None:
    with Net(3) as net:
        plan = on(net, [2, 2, 2], backend=False, goes_on=True)
        fate = befall(scenarios, tmp_path, plan, 6, lambda: kill(tmp_path, 4, 5))
    fate.check({0, 1, 2, 3}, "PeerLostError", host="c")
    assert all(said["left"] == [0, 1, 2, 3] for said in fate.said.values())


@namespaces
def test_a_host_loses_its_power(scenarios: Scenario, tmp_path: Path) -> None:
    """The others get no report: they wait for their timeout."""
    with Net(2) as net:

        def act() -> None:
            net.cut(1)
            kill(tmp_path, 2, 3)

        plan = on(net, [2, 2], timeout_s=SOON_S, clean_s=2.0)
        fate = befall(scenarios, tmp_path, plan, 4, act)
    fate.check({0, 1}, "CollectiveTimeoutError", host="b", store_is_lost=True)


@pytest.mark.parametrize(
    ("backend", "deed"),
    [
        (True, "before it comes"),
        (True, "before it listens"),
        (True, "after it listens"),
        (False, "before it listens"),
        (False, "after it listens"),
    ],
)
def test_a_rank_dies_while_the_hosts_are_joined(
    scenarios: Scenario, tmp_path: Path, backend: bool, deed: str
) -> None:
    """All name it, also the rank to which it should have connected: Gloo cannot be told."""
    timeout_s = JOINED_S if deed != "after it listens" else 2.0
    Plan(names="aabb", timeout_s=timeout_s, backend=backend, deeds={"2": deed}).write(tmp_path)
    outcome = scenarios("joined", 4, tmp_path)
    assert [rank["status"] for rank in outcome] == [0, 0, -9, 0], outcome
    for rank in (0, 1, 3):
        said = json.loads((tmp_path / f"said{rank}").read_text())
        first = said["first"]
        print(f"rank {rank} after {said['took']:.2f} s: {first}")
        assert (first["kind"], first["rank"]) == ("PeerLostError", 2), first
        assert first["fault"]["host"] == "b", first
        assert re.search(r"rank 2 on host b \(pid \d+\) died", first["text"]), first
        assert said["took"] < JOINED_S / 2


@pytest.mark.parametrize("backend", [True, False], ids=["backend", "communicator"])
def test_a_rank_that_comes_late_names_the_dead_one_of_another_host(
    scenarios: Scenario, tmp_path: Path, backend: bool
) -> None:
    """The late one finds that the rank of its own host has given up because of the dead one."""
    deeds = {"1": "before its first call", "2": "late"}
    Plan(names="aabb", timeout_s=JOINED_S, backend=backend, deeds=deeds).write(tmp_path)
    outcome = scenarios("joined", 4, tmp_path)
    assert [rank["status"] for rank in outcome] == [0, -9, 0, 0], outcome
    for rank in (0, 2, 3):
        first = json.loads((tmp_path / f"said{rank}").read_text())["first"]
        print(f"rank {rank}: {first}")
        assert (first["kind"], first["rank"]) == ("PeerLostError", 1), first
        assert first["fault"]["event"] == "died_early", first


@pytest.mark.parametrize("slow", [{"3": "joins"}, {"0": "joins", "3": "reads"}])
def test_ranks_leave_a_group_that_another_one_is_still_making(
    scenarios: Scenario, tmp_path: Path, slow: dict[str, str]
) -> None:
    """A rank may be done with its messages while another one connects, which is no loss."""
    Plan(names="aabb", timeout_s=JOINED_S, deeds=slow).write(tmp_path)
    outcome = scenarios("left", 4, tmp_path)
    assert [rank["status"] for rank in outcome] == [0] * 4, outcome


def test_each_rank_raises_its_own_error_of_an_engine(scenarios: Scenario, tmp_path: Path) -> None:
    """Also one that is told of the other's before it sees that the other has come."""
    deeds = {"0": "fails, late", "1": "fails, reads"}
    Plan(names="ab", timeout_s=JOINED_S, deeds=deeds).write(tmp_path)
    for rank, ended in enumerate(scenarios("left", 2, tmp_path)):
        assert re.search(rf"RendezvousError: rank {rank} on host \w has no engine", ended["stderr"])


# ---- the network --------------------------------------------------------------------------------


@namespaces
@either_api
def test_a_wire_is_cut(scenarios: Scenario, tmp_path: Path, backend: bool) -> None:
    with Net(2) as net:
        plan = on(net, [2, 2], timeout_s=SOON_S, backend=backend, clean_s=2.0)
        fate = befall(scenarios, tmp_path, plan, 4, lambda: net.cut(1))
    everybody = {0, 1, 2, 3}
    fate.check(everybody, "CollectiveTimeoutError", store_is_lost=True)
    for rank, said in fate.said.items():
        fault = said["first"]["fault"]
        assert fault["host"] == "ba"[rank // 2], fault
        # Rank 0 keeps the store.
        assert ("the store " in fault["text"]) == (rank >= 2), fault


@namespaces
def test_a_wire_is_cut_for_a_while(scenarios: Scenario, tmp_path: Path) -> None:
    """The cut is shorter than the timeout: no rank fails."""
    with Net(2) as net:

        def act() -> None:
            net.cut(1)
            time.sleep(1.5)
            net.mend(1)

        plan = on(net, [2, 2], timeout_s=50.0, calls=2000)
        fate = befall(scenarios, tmp_path, plan, 4, act)
    assert fate.status == [0] * 4, fate
    assert all(said["calls"] == 2000 for said in fate.said.values())
    assert any(said["slowest"] > 1 for said in fate.said.values()), "the cut was not noticed"
    fate.check_nothing_is_left()


@namespaces
def test_a_slow_wire(scenarios: Scenario, tmp_path: Path) -> None:
    """A call takes longer than it may wait for anything: as long as bytes come, it waits on."""
    with Net(2, gbit_s=0.05) as net:
        plan = on(net, [2, 2], timeout_s=20.0, n=2_000_000, calls=2)
        fate = befall(scenarios, tmp_path, plan, 4)
    assert fate.status == [0] * 4, fate
    assert all(said["calls"] == 2 for said in fate.said.values())
    fate.check_nothing_is_left()


# ---- ranks that make other calls ----------------------------------------------------------------

# Where hosts are names: without namespaces, by the same rules.
NAMES = "abab"
RANK_3 = {"rank": 3, "host": "b"}  # of a fault
in_namespaces = [pytest.param("namespaces", marks=namespaces)] if AT_LENGTH else []
on_both = pytest.mark.parametrize("where", [*in_namespaces, "names"])


def does(scenarios: Scenario, folder: Path, where: str, deed: str, **plan: Any) -> Fate:
    """Rank 3 does that."""
    if where == "names":
        return befall(scenarios, folder, Plan(names=NAMES, deeds={"3": deed}, **plan), 4)
    with Net(2) as net:
        return befall(scenarios, folder, on(net, [2, 2], deeds={"3": deed}, **plan), 4)


@on_both
def test_a_rank_kills_itself(scenarios: Scenario, tmp_path: Path, where: str) -> None:
    fate = does(scenarios, tmp_path, where, "kill", backend=where == "names")
    fate.check({0, 1, 2}, "PeerLostError", **RANK_3)


@on_both
def test_a_rank_sleeps(scenarios: Scenario, tmp_path: Path, where: str) -> None:
    fate = does(scenarios, tmp_path, where, "sleep", timeout_s=2.0)
    fate.check({0, 1, 2, 3}, "CollectiveTimeoutError", seq=5, **RANK_3)


@on_both
def test_a_rank_makes_another_call(scenarios: Scenario, tmp_path: Path, where: str) -> None:
    fate = does(scenarios, tmp_path, where, "other size")
    fate.check({0, 1, 2, 3}, "CollectiveMismatchError", field="numel")
    for rank, said in fate.said.items():
        first, fault = said["first"], said["first"]["fault"]
        if first["kind"] == "CollectiveMismatchError":
            adds = rank not in (fault["reporter"], fault["rank"])
            assert (f" Here: rank {rank} on host " in first["text"]) == adds, first


def test_a_host_makes_another_call(scenarios: Scenario, tmp_path: Path) -> None:
    """Its ranks agree with each other."""
    plan = Plan(names=NAMES, deeds={"1": "other size", "3": "other size"}, timeout_s=SOON_S)
    fate = befall(scenarios, tmp_path, plan, 4)
    fate.check({0, 1, 2, 3}, "CollectiveMismatchError", seq=5, field="numel")
    for said in fate.said.values():
        fault = said["first"]["fault"]
        made = [f"seq=5 all_reduce sum float32[{n}]" for n in (1000, 1001)]
        assert sorted([fault["call"], fault["their_call"]]) == made


@on_both
def test_a_rank_aborts(scenarios: Scenario, tmp_path: Path, where: str) -> None:
    fate = does(scenarios, tmp_path, where, "abort", backend=False)
    fate.check({0, 1, 2, 3}, "CommAbortedError", evidence="on purpose", **RANK_3)


def test_the_only_rank_of_a_host_aborts(scenarios: Scenario, tmp_path: Path) -> None:
    """Nobody else of its host can tell the others."""
    plan = Plan(names="ab", deeds={"1": "abort"}, backend=False, timeout_s=SOON_S)
    fate = befall(scenarios, tmp_path, plan, 2)
    fate.check({0, 1}, "CommAbortedError", evidence="on purpose", rank=1, host="b")


@on_both
@pytest.mark.parametrize(("deed", "status"), [("exit", 3), ("raise", 1)][: 2 if AT_LENGTH else 1])
def test_a_rank_leaves(
    scenarios: Scenario, tmp_path: Path, where: str, deed: str, status: int
) -> None:
    fate = does(scenarios, tmp_path, where, deed)
    assert fate.status[3] == status
    fate.check({0, 1, 2}, "PeerLostError", **RANK_3)
