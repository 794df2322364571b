"""Who the ranks are: what they say of themselves, and what others make of it."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from ringkern.topology import (
    Cpu,
    Gpu,
    Machine,
    Peer,
    cuda_identity,
    describe_self,
    fabric_of,
    gather,
)
from ringkern.topology.peers import MAX_BYTES
from tests.topology.machines import INTEL, pcie_machine

PEER = Peer(1, "host", "boot", 4026531836, 77, "cuda", 0, "GPU-a", "0000:02:00.0", 0, (0, 2))

words = st.text(st.characters(exclude_categories=("C", "Z")), max_size=20)
numbers = st.integers(0, (1 << 63) - 1)


@st.composite
def peers(draw: st.DrawFn) -> Peer:
    bus = draw(st.sampled_from(["", "0000:1b:00.0", "0008:06:00.0"]))
    cores = tuple(draw(st.lists(st.integers(0, 4095), max_size=5)))
    texts = [draw(words) for _ in range(3)]
    return Peer(
        draw(st.integers(0, 9999)),
        texts[0],
        texts[1],
        draw(numbers),
        draw(numbers),
        draw(st.sampled_from(["cpu", "cuda"])),
        draw(st.integers(0, 99)),
        texts[2],
        bus,
        draw(st.integers(-1, 99)),
        cores,
    )


@given(peers())
def test_a_peer_survives_its_json(peer: Peer) -> None:
    assert Peer.from_json(peer.to_json(), peer.rank) == peer
    assert Peer.from_json(peer.to_json().encode(), peer.rank) == peer


def changed(**values: Any) -> str:
    return json.dumps({**json.loads(PEER.to_json()), **values})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is no JSON"),
        (b"\xff\xfe\x00", "is no JSON"),
        ("[" * 60_000, "is no JSON"),
        ("[]", "is not of version 2: all ranks need the same ringkern"),
        (changed(version=1), "is not of version 2"),
        (changed(more=1), "has ['more']; accepted: rank, host, "),
        (json.dumps({"version": 2, "rank": 1}), "host is missing; accepted: a text"),
        (changed(rank=2), "is of rank 2: two ranks use the same number"),
        (changed(rank=True), "rank is True; accepted: a whole number"),
        (changed(pid=-2), "pid is -2; accepted: a whole number, -1 to "),
        (changed(pid=1 << 63), "pid is 9223372036854775808; accepted: a whole number"),
        (changed(host="x" * 257), "; accepted: a text, 0 to 256 characters"),
        (changed(host="a\nb"), "host is 'a\\nb'; accepted: a text"),
        (changed(uuid=None), "uuid is None; accepted: a text"),
        (changed(cores=3), "cores is 3; accepted: a list"),
        (changed(cores=[0, -2]), "cores[1] is -2; accepted: a whole number"),
        (changed(device="tpu"), "device is 'tpu'; accepted: 'cpu' or 'cuda'"),
        (changed(bus_id="00000000:1B:00.0"), "has to look like"),
        (changed(host="x" * MAX_BYTES), f"at most {MAX_BYTES} are accepted"),
    ],
)
def test_what_is_no_peer_is_refused_with_its_rank(text: str | bytes, expected: str) -> None:
    with pytest.raises(ValueError, match="what rank 1 says of itself") as caught:
        Peer.from_json(text, 1)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 500


@given(st.data())
def test_any_change_to_a_peer_gives_a_peer_or_a_value_error(data: st.DataObject) -> None:
    text = bytearray(PEER.to_json().encode())
    at = data.draw(st.integers(0, len(text)))
    text[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    try:
        assert Peer.from_json(bytes(text), 1).rank == 1
    except ValueError as error:
        assert "rank 1" in str(error)  # noqa: PT017


def test_this_process() -> None:
    peer = describe_self(3)
    assert (peer.rank, peer.pid, peer.device) == (3, os.getpid(), "cpu")
    assert peer.cores == tuple(sorted(os.sched_getaffinity(0)))
    assert Peer.from_json(peer.to_json(), 3) == peer


def test_what_is_not_known_of_this_process_is_left_open(tmp_path: Any) -> None:
    peer = describe_self(0, sys_root=tmp_path, proc_root=tmp_path, bus="00000000:1B:00.0")
    assert (peer.boot_id, peer.pid_namespace, peer.numa) == ("", 0, -1)
    assert peer.bus_id == "0000:1b:00.0"


def test_the_numa_node_is_the_gpus_or_that_of_all_allowed_cores(tmp_path: Any) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    for numa, listed in ((0, "100000"), (1, ",".join(map(str, allowed)))):
        folder = tmp_path / f"devices/system/node/node{numa}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(listed)
    gpu = tmp_path / "bus/pci/devices/0000:1b:00.0"
    gpu.mkdir(parents=True)
    (gpu / "numa_node").write_text("5\n")
    assert describe_self(0, sys_root=tmp_path).numa == 1
    assert describe_self(0, sys_root=tmp_path, bus="0000:1b:00.0").numa == 5
    (gpu / "numa_node").write_text("-1\n")
    assert describe_self(0, sys_root=tmp_path, bus="0000:1b:00.0").numa == -1


def test_what_torch_tells_of_a_gpu() -> None:
    ids = {"pci_domain_id": 0, "pci_bus_id": 0x1B, "pci_device_id": 0}
    assert cuda_identity(SimpleNamespace(uuid="a-b", **ids)) == ("GPU-a-b", "0000:1b:00.0")
    assert cuda_identity(SimpleNamespace(uuid="MIG-a")) == ("MIG-a", "")
    assert cuda_identity(SimpleNamespace()) == ("", "")


def gather_all(store: Any, size: int, timeout: float, skip: int | None = None) -> list[Any]:
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = gather(store, "peers/0", rank, size, timeout, Peer(rank, f"h{rank}"))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(r,)) for r in range(size) if r != skip]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_all_ranks_gather_the_same() -> None:
    results = gather_all(dist.PrefixStore("a", dist.HashStore()), 4, 30)
    assert results == [tuple(Peer(rank, f"h{rank}") for rank in range(4))] * 4


def test_a_rank_that_does_not_come_is_named() -> None:
    results = gather_all(dist.HashStore(), 3, 0.5, skip=1)
    for result in (results[0], results[2]):
        assert isinstance(result, TimeoutError)
        assert "rank 1 has not said within 0.5 s where it runs" in str(result)


def test_all_waits_together_take_no_longer_than_the_timeout() -> None:
    class Store:
        """Rank 0 comes after some of the time; rank 1 never."""

        waits: list[timedelta]

        def __init__(self) -> None:
            self.waits = []

        def set(self, key: str, value: str) -> None:
            self.value = value

        def get(self, key: str) -> bytes:
            return self.value.encode()

        def wait(self, keys: list[str], timeout: timedelta) -> None:
            self.waits.append(timeout)
            if keys == ["p/1"]:
                raise RuntimeError("timeout")
            threading.Event().wait(0.05)

    store = Store()
    with pytest.raises(TimeoutError, match="rank 1"):
        gather(store, "p", 0, 2, 10, Peer(0))
    assert store.waits[1] <= store.waits[0] - timedelta(seconds=0.05)


def test_a_rank_that_says_something_else_is_named() -> None:
    store = dist.HashStore()
    store.set("p/1", "no peer")
    with pytest.raises(ValueError, match="what rank 1 says of itself is no JSON"):
        gather(store, "p", 0, 2, 10)
    with pytest.raises(ValueError, match="rank 2 is not one of 2 ranks"):
        gather(store, "p", 2, 2, 10)


def ranks(*buses: str, **changes: Any) -> list[Peer]:
    return [
        dataclasses.replace(PEER, rank=rank, bus_id=bus, uuid="", **changes)
        for rank, bus in enumerate(buses)
    ]


def test_gpus_are_found_by_bus_id_and_not_by_their_number() -> None:
    # All of them see their GPU as number 0.
    fabric = fabric_of(pcie_machine(), ranks("0000:12:00.0", "0000:03:00.0", "0000:02:00.0"))
    assert (fabric.kinds[1, 2], fabric.kinds[0, 1]) == ("PIX", "PHB")


def test_gpus_are_found_by_uuid_first() -> None:
    gpus = tuple(dataclasses.replace(g, uuid=f"GPU-{g.dev}") for g in pcie_machine().gpus)
    both = [
        dataclasses.replace(PEER, rank=rank, uuid=f"GPU-{dev}", bus_id="")
        for rank, dev in enumerate((1, 4, 1))
    ]
    fabric = fabric_of(pcie_machine(gpus=gpus), both)
    assert (fabric.kinds[0, 1], fabric.kinds[0, 2]) == ("SYS", "LOC")


def test_ranks_that_share_a_gpu_are_told_apart_from_those_that_do_not() -> None:
    one = ranks("0000:02:00.0")[0]
    assert one.shares_device(dataclasses.replace(one, rank=2, index=3, uuid="MIG-a"))
    assert not one.shares_device(dataclasses.replace(one, bus_id="0000:03:00.0"))
    assert not one.shares_device(dataclasses.replace(one, boot_id="another"))
    assert not Peer(0).shares_device(Peer(1))
    by_uuid = dataclasses.replace(one, bus_id="", uuid="GPU-a")
    assert by_uuid.shares_device(dataclasses.replace(by_uuid, rank=1))
    assert not dataclasses.replace(one, bus_id="").shares_device(one)  # nothing is known of it


def test_ranks_on_cpus_are_at_their_numa_nodes() -> None:
    machine = Machine(cpus=(Cpu(0, **INTEL), Cpu(1, **INTEL)))
    fabric = fabric_of(machine, [Peer(0, numa=0), Peer(1, numa=1), Peer(2, numa=0)])
    assert (fabric.kinds[0, 1], fabric.kinds[0, 2]) == ("SYS", "LOC")
    with pytest.raises(ValueError, match="rank 1 is not bound to one NUMA node"):
        fabric_of(machine, [Peer(0, numa=0), Peer(1, numa=-1)])
    assert fabric_of(Machine(cpus=(Cpu(0),)), [Peer(0), Peer(1)]).kinds[0, 1] == "LOC"


def test_ranks_that_are_not_in_the_machine_are_named() -> None:
    machine = pcie_machine()
    with pytest.raises(ValueError, match=r"GPU of rank 1 \(0000:ff:00\.0\) is not in the machine"):
        fabric_of(machine, ranks("0000:02:00.0", "0000:ff:00.0"))
    with pytest.raises(ValueError, match=r"rank 0 .device 0, of which neither UUID nor bus id"):
        fabric_of(machine, ranks(""))
    with pytest.raises(ValueError, match=r"several kinds of devices .*cuda: rank 0"):
        fabric_of(machine, [*ranks("0000:02:00.0"), Peer(1)])
    with pytest.raises(ValueError, match="rank 1 is on b, rank 0 on a: the machine is one host"):
        fabric_of(machine, [Peer(0, "a", "1"), Peer(1, "b", "2")])


def test_the_host_of_a_gpu_has_to_be_known_where_there_are_several() -> None:
    pci = pcie_machine().pci[-1]
    there = dataclasses.replace(pci, cpu=1)
    here = dataclasses.replace(pci, cpu=0)
    machine = Machine("", (Cpu(0, "a"), Cpu(0, "b")), (here, there), (Gpu(0, 0), Gpu(0, 1)))
    with pytest.raises(ValueError, match=r"which one rank 0 is on is not known: none .* 'boot'"):
        fabric_of(machine, ranks(pci.bus_id))
    found = [*ranks(pci.bus_id, boot_id="a"), *ranks(pci.bus_id, boot_id="b")]
    assert fabric_of(machine, found).routes == {}
