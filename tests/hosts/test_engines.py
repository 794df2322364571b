"""Engines: backends of torch.distributed between the ranks of several hosts, here threads."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import timedelta
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from ringkern import config
from ringkern.errors import CommUsageError, RendezvousError
from ringkern.hosts import Hosts, engine_maker, engine_names, engines, inter_host_costs
from ringkern.hosts.inter_host_cost import GLOO, GLOO_CROWDED, NCCL
from tests import forked
from tests.hosts.test_find import in_threads

TIMEOUT_S = 30.0


def sums(engine: Any, rank: int) -> float:
    x = torch.full((1000,), 10.0**rank)
    engine.allreduce([x]).wait()
    assert torch.equal(x, x[:1].expand(1000))
    return float(x[0])


# ---- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inter_host", "expected"),
    [
        (None, {"cpu": "gloo", "cuda": "nccl"}),
        ("gloo", {"cpu": "gloo", "cuda": "gloo"}),
        ("NCCL", {"cpu": "nccl", "cuda": "nccl"}),
        ("cpu:mpi", {"cpu": "mpi", "cuda": "nccl"}),
        ("cuda:ucc", {"cpu": "gloo", "cuda": "ucc"}),
        ("cuda:gloo, cpu:ucc", {"cpu": "ucc", "cuda": "gloo"}),
    ],
)
def test_names(inter_host: str | None, expected: dict[str, str]) -> None:
    assert engine_names(inter_host) == expected


@pytest.mark.parametrize(
    "text", ["", " ", ":", "gloo,", "gloo,nccl", "cpu:", ":gloo", "tpu:gloo", "cpu:gloo,cpu:mpi"]
)
def test_malformed_engine_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"inter_host='.*': give a backend of torch\.distributed"):
        engine_names(text)


@pytest.mark.parametrize("name", ["glo", "ringkern", "cpu:ringkern", "undefined"])
def test_backends_that_cannot_join_hosts_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"cannot join hosts; choose one of .*gloo, .*mpi, nccl"):
        engine_names(name)


def test_a_name_is_a_text() -> None:
    with pytest.raises(TypeError, match="inter_host is list; give a text"):
        engine_names(["gloo"])  # type: ignore[arg-type]


def test_the_environment_is_for_whoever_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "config", config.Config(inter_host="cpu:mpi"))
    assert engine_names(None) == {"cpu": "mpi", "cuda": "nccl"}
    assert engine_names("gloo") == {"cpu": "gloo", "cuda": "gloo"}
    monkeypatch.setattr(config, "config", config.Config(inter_host="nonsense"))
    with pytest.raises(ValueError, match="RINGKERN_INTER_HOST='nonsense': 'nonsense' cannot join"):
        engine_names(None)


def test_the_cut_of_calls_depends_on_engine_and_cores() -> None:
    assert inter_host_costs(None, False) == {"cpu": GLOO, "cuda": NCCL}
    assert inter_host_costs(None, True) == {"cpu": GLOO_CROWDED, "cuda": NCCL}
    assert inter_host_costs("gloo", True) == {"cpu": GLOO_CROWDED, "cuda": GLOO_CROWDED}
    assert inter_host_costs("cpu:mpi,cuda:ucc", False) == {"cpu": GLOO, "cuda": NCCL}


# ---- over Gloo ----------------------------------------------------------------------------------


def test_ranks_are_numbered_in_the_order_that_is_given() -> None:
    store = dist.HashStore()

    def rank_of(rank: int) -> Any:
        make = engine_maker("gloo", store, "x", rank, 4, TIMEOUT_S)
        rail = make("cpu", [2, 0] if rank % 2 == 0 else [1, 3])
        flat = make("cpu", [0, 1, 2, 3])
        assert isinstance(rail, Backend)
        return rail.rank(), rail.size(), sums(rail, rank), flat.rank(), sums(flat, rank)

    assert in_threads([0, 1, 2, 3], rank_of) == {
        0: (1, 2, 101.0, 0, 1111.0),
        1: (0, 2, 1010.0, 1, 1111.0),
        2: (0, 2, 101.0, 2, 1111.0),
        3: (1, 2, 1010.0, 3, 1111.0),
    }


def test_engines_do_not_meet_others() -> None:
    """Engines of the same ranks: another one of this communicator, of another, of one of the same
    name.
    """
    store = dist.HashStore()

    def rank_of(rank: int) -> list[float]:
        makers = [engine_maker("gloo", store, name, rank, 2, TIMEOUT_S) for name in ("x", "y", "x")]
        engines = [make("cpu", [0, 1]) for make in makers]
        engines += [make("cpu", [0, 1]) for make in makers]
        # All are at work at a time.
        tensors = [torch.full((3,), 10.0**rank + i) for i in range(len(engines))]
        works = [engine.allreduce([x]) for engine, x in zip(engines, tensors)]
        for work in reversed(works):
            work.wait()
        return [float(x[0]) for x in tensors]

    expected = [11.0 + 2 * i for i in range(6)]
    assert in_threads([0, 1], rank_of) == {0: expected, 1: expected}


def test_threads_of_a_rank_make_engines_at_the_same_time() -> None:
    """A client of a TCPStore does one thing at a time, and Gloo waits in it for the other rank."""
    host = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    clients = [host, dist.TCPStore("localhost", host.port, is_master=False, wait_for_workers=False)]

    def sum_of(thread: int) -> float:
        rank, name = thread // 2, "xy"[thread % 2]
        if rank != thread % 2:
            time.sleep(0.5)  # rank 0 waits for rank 1 in "x" then, and rank 1 for rank 0 in "y"
        make = engine_maker("gloo", clients[rank], name, rank, 2, 5.0)
        return sums(make("cpu", [0, 1]), rank)

    assert in_threads([0, 1, 2, 3], sum_of) == dict.fromkeys(range(4), 11.0)


def test_an_engine_has_the_timeout_of_its_communicator() -> None:
    store = dist.HashStore()

    def made(rank: int) -> Any:
        return engine_maker("gloo", store, "x", rank, 2, 7.5)("cpu", [0, 1])

    # An engine that goes before the other rank has connected to it makes that rank fail.
    both = in_threads([0, 1], made)
    timeouts = {rank: engine.options._timeout for rank, engine in both.items()}
    assert timeouts == dict.fromkeys([0, 1], timedelta(seconds=7.5))


def test_a_rank_that_has_died_is_waited_for_25_s_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gloo waits five times as long as it is told for a rank that should connect to it."""
    gloo, told = engines._c10d.ProcessGroupGloo, []

    def made(*args: Any, timeout: timedelta) -> Any:
        told.append(timeout)
        return gloo(*args, timeout=timeout)

    monkeypatch.setattr(engines._c10d, "ProcessGroupGloo", made)
    for timeout_s in (600.0, 5.0, 2.0):
        engine: Any = engine_maker("gloo", dist.HashStore(), "x", 0, 1, timeout_s)("cpu", [0])
        assert engine.options._timeout == timedelta(seconds=timeout_s)
    assert told == [timedelta(seconds=5), timedelta(seconds=5), timedelta(seconds=2)]


def test_the_longest_timeout() -> None:
    engine = engine_maker("gloo", dist.HashStore(), "x", 0, 1, timedelta.max.total_seconds())
    assert sums(engine("cpu", [0]), 0) == 1.0


def test_a_rank_that_does_not_come() -> None:
    make = engine_maker("gloo", dist.HashStore(), "x", 1, 3, 0.5)
    with pytest.raises(RendezvousError, match="rank 1: no gloo between ranks 0, 1") as caught:
        make("cpu", [0, 1])
    assert "GLOO_SOCKET_IFNAME" in str(caught.value)


# In a function: a Gloo that is still there when Python ends may end the process with SIGABRT.
PROGRAM = """
import sys
import torch, torch.distributed as dist
from ringkern.hosts import engine_maker

def main():
    rank = int(sys.argv[2])
    engine = engine_maker("gloo", dist.FileStore(sys.argv[1], 2), "x", rank, 2, 20)("cpu", [0, 1])
    x = torch.ones(3)
    engine.allreduce([x]).wait()
    print(x.tolist())

main()
"""


@pytest.mark.parametrize("interface", ["lo", "no-such"])
def test_gloo_takes_the_interface_that_is_asked_for(tmp_path: Any, interface: str) -> None:
    environ = os.environ | {"GLOO_SOCKET_IFNAME": interface}
    processes = [
        subprocess.Popen(
            [forked.python(), "-c", PROGRAM, str(tmp_path / "store"), str(rank)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            out, err = process.communicate(timeout=100)
            if interface == "lo":
                assert (process.returncode, out) == (0, "[2.0, 2.0, 2.0]\n"), err
            else:
                assert "RendezvousError" in err
                assert "no-such" in err
    finally:
        for process in processes:
            process.kill()
            process.wait()


# ---- others -------------------------------------------------------------------------------------


def test_an_engine_that_is_not_in_this_torch() -> None:
    for name in ("nccl", "mpi", "ucc"):
        if dist.is_backend_available(name):
            continue
        make = engine_maker(name, dist.HashStore(), "x", 0, 1, TIMEOUT_S)
        with pytest.raises(CommUsageError) as caught:
            make("cuda", [0])
        text = str(caught.value)
        assert f"the engine '{name}' between hosts is not in this torch (which has gloo" in text
        assert "inter_host='gloo'" in text


def test_an_engine_that_does_not_do_the_device() -> None:
    make = engine_maker("nccl", dist.HashStore(), "x", 0, 1, TIMEOUT_S)
    with pytest.raises(CommUsageError, match=r"'nccl' .* does not do cpu tensors, only cuda"):
        make("cpu", [0])


class Mpi:
    """torch's class in one process of mpirun: every process takes part in all its calls."""

    own, processes = 0, 5
    calls: ClassVar[list[list[int]]] = []

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks or list(range(self.processes))

    @classmethod
    def create(cls, ranks: list[int]) -> Mpi | None:
        cls.calls.append(ranks)
        return None if ranks and cls.own not in ranks else cls(ranks)

    def rank(self) -> int:
        return self.ranks.index(self.own)

    def size(self) -> int:
        return len(self.ranks)


def test_all_take_part_when_mpi_makes_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_mpi_available", lambda: True)
    monkeypatch.setattr(engines._c10d, "ProcessGroupMPI", Mpi, raising=False)
    hosts, store = Hosts(("a", "b"), (0, 1, 0, 1, 1)), dist.HashStore()
    rails = [[0, 1], [0, 1], [2, 3], [2, 3], None]
    for rank, rail in enumerate(rails):
        monkeypatch.setattr(Mpi, "own", rank)
        Mpi.calls.clear()
        make = engine_maker("cpu:mpi", store, "x", rank, 5, TIMEOUT_S, hosts)
        assert Mpi.calls == [[]] * 2 + [rail or [0, 1]] * 2, "a rank of no rail, too"
        flat: list[Any] = [make("cpu", [0, 1, 2, 3, 4]) for _ in range(2)]
        assert [f.ranks for f in flat] == [[0, 1, 2, 3, 4]] * 2
        assert flat[0] is not flat[1]
        if rail is not None:
            assert [make("cpu", rail).ranks for _ in range(2)] == [rail] * 2
        else:
            with pytest.raises(CommUsageError, match="only along rails"):
                make("cpu", [0, 4])
        assert len(Mpi.calls) == 4
    monkeypatch.setattr(Mpi, "processes", 6)
    with pytest.raises(CommUsageError, match="rank 4 of its 6, and rank 4 of 5 of the group"):
        engine_maker("cpu:mpi", store, "x", 4, 5, TIMEOUT_S, hosts)
    Mpi.calls.clear()
    engine_maker("gloo", store, "x", 4, 5, TIMEOUT_S, hosts)
    assert Mpi.calls == []


class Plugins:
    """The registration of a third party."""

    made: list[Any]

    def __init__(self) -> None:
        self.made = []

    def simple(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
        self.made.append((rank, size, timeout))
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    def extended(self, options: Any, more: object) -> Any:
        assert more is None
        self.made.append((options.group_id, options.global_ranks_in_group))
        return self.simple(options.store, options.group_rank, options.group_size, options.timeout)

    def strange(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
        return "no backend"

    def moody(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
        return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    for name in ("_plugins", "backend_capability", "backend_type_map", "backend_list"):
        monkeypatch.setattr(dist.Backend, name, getattr(dist.Backend, name).copy())
    found = Plugins()
    for name in ("simple", "extended", "strange", "moody"):
        create = getattr(found, name)
        dist.Backend.register_backend(
            f"my_{name}", create, extended_api=name == "extended", devices=["cpu"]
        )
        monkeypatch.delattr(dist.Backend, f"MY_{name.upper()}")
    return found


@pytest.mark.parametrize("name", ["my_simple", "my_extended"])
def test_backends_of_others(plugins: Plugins, name: str) -> None:
    store = dist.HashStore()
    found = in_threads(
        [0, 1, 2],
        lambda r: sums(engine_maker(name, store, "x", r, 3, 20.0)("cpu", [2, 0, 1]), r),
    )
    assert found == dict.fromkeys([0, 1, 2], 111.0)
    ranks = sorted(made for made in plugins.made if len(made) == 3)
    assert ranks == [(r, 3, timedelta(seconds=20)) for r in range(3)]
    if name == "my_extended":
        named = {made[0] for made in plugins.made if len(made) == 2}
        assert len(named) == 1, "all ranks name it alike"
        assert all(made[1] == [2, 0, 1] for made in plugins.made if len(made) == 2)
    with pytest.raises(CommUsageError, match=f"'{name}' .* does not do cuda tensors, only cpu"):
        engine_maker(name, store, "x", 0, 1, 20.0)("cuda", [0])


@pytest.mark.parametrize(
    ("name", "what"), [("my_strange", "str for rank 0"), ("my_moody", "Gloo for rank 0 of 2")]
)
def test_an_engine_that_is_no_backend_is_refused(plugins: Plugins, name: str, what: str) -> None:
    make = engine_maker(name, dist.HashStore(), "x", 0, 2, TIMEOUT_S)
    with pytest.raises(CommUsageError, match=rf"{what}.*: ringkern needs a .* Backend of that"):
        make("cpu", [0, 1])
