"""The plug-in for vLLM over a stand-in for it: test_vllm_serves.py has vLLM itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.integrations import stand_in
from tests.ranks import Pool


@pytest.fixture
def plugin() -> Iterator[ModuleType]:
    yield stand_in.install()
    stand_in.remove()


def _asked(plugin: ModuleType) -> str:
    name: str = plugin.current_platform.get_device_communicator_cls()
    return name


def test_it_is_on_only_where_the_variable_names_it(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (None, "", "other", "ringkernel"):
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        if value is not None:
            monkeypatch.setenv("VLLM_PLUGINS", value)
        plugin.register()
        assert _asked(plugin) == "vllm's own", value
    monkeypatch.setenv("VLLM_PLUGINS", "other,ringkern")
    for _ in range(2):  # vLLM may load it more than once
        plugin.register()
        module, _, name = _asked(plugin).rpartition(".")
        assert module == plugin.__name__
        assert getattr(plugin, name) is plugin.RingCommunicator


def test_another_platform_keeps_its_communicator(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "ringkern")
    monkeypatch.setattr(stand_in.Platform, "device_name", "cuda")
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert _asked(plugin) == "vllm's own"
    assert "this platform is cuda" in caplog.text


def test_vllm_finds_it() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="ringkern")
    assert found.value == "ringkern.integrations.vllm:register"


def _communicator(name: str = "tp:0", ranks: list[int] | None = None) -> Any:
    group = dist.new_group(ranks)
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    plugin = stand_in.install()
    stand_in.remove()  # other tests use this rank, too
    return plugin.RingCommunicator(
        cpu_group=group, device_group=group, unique_name=name, use_all2all=True
    )


def _names(rank: int, size: int) -> None:
    for name in ("tp:0", "pp:0", "ep:0", "dp:0"):
        made = _communicator(name)
        assert made.unique_name == name
        assert not made.own_memory
        assert made.exchanges_experts == (name == "ep:0")
        assert made.all_reduce(torch.tensor([rank])).item() == 1


def test_groups_keep_their_names(ranks: Pool) -> None:
    ranks(2).run(_names)


def _collectives(rank: int, size: int) -> None:
    made = _communicator()
    given = torch.full((3, 5), float(rank + 1)).t()
    assert made.all_reduce(given) is given
    assert given.tolist() == [[size * (size + 1) / 2] * 3] * 5
    whole = torch.arange(size * 24, dtype=torch.float32).reshape(size, 2, 3, 4)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        parts = whole.to(dtype)
        for given in (parts[rank], parts.transpose(1, 3)[rank]):  # the second has strides
            others = parts if given.shape == (2, 3, 4) else parts.transpose(1, 3)
            for dim in range(-3, 3):
                wanted = torch.cat([*others], dim)
                assert torch.equal(made.all_gather(given, dim), wanted), (dtype, dim)
                for root in range(size):
                    found = made.gather(given, root, dim)
                    assert torch.equal(found, wanted) if rank == root else found is None
    assert made.all_gather(torch.empty(0, 2)).shape == (0, 2 * size)


@pytest.mark.parametrize("size", [2, 3])
def test_collectives(ranks: Pool, size: int) -> None:
    ranks(size).run(_collectives)


def _part_of_the_ranks(rank: int, size: int) -> None:
    made = _communicator(ranks=[0, 2])
    if made is not None:
        assert made.all_reduce(torch.tensor([rank])).tolist() == [2]
        gathered = made.gather(torch.tensor([rank]), 1)  # a number in the group
        assert gathered is None if rank == 0 else gathered.tolist() == [0, 2]


def test_a_part_of_the_ranks(ranks: Pool) -> None:
    ranks(3).run(_part_of_the_ranks)


def _first_call(rank: int, size: int) -> None:
    made = _communicator()
    token = torch.zeros(1)
    if rank == 0:
        started = ringkern.ring_all_reduce(token, group=made.device_group, async_op=True)
        dist.send(torch.zeros(1), 1)
        assert started is not None
        started.wait()
    else:
        dist.recv(torch.zeros(1), 0)
        made.all_reduce(token)


def test_ranks_are_connected_before_the_first_call(ranks: Pool) -> None:
    """A call that still had to connect would wait here for a rank that waits for its caller."""
    ranks(2).run(_first_call, timeout_s=20)
