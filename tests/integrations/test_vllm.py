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
    plugin = stand_in.install()
    group = dist.new_group(ranks)
    if ranks is not None and dist.get_rank() not in ranks:
        return None
    return plugin.RingCommunicator(cpu_group=group, device_group=group, unique_name=name)


def _members(rank: int, size: int) -> None:
    for name in ("tp:0", "pp:0", "ep:0", "dp:0"):  # groups of the same ranks
        made = _communicator(name)
        assert made.unique_name == name
        assert not made.own_memory
        assert made.supports_tensor_dict
        assert dist.get_backend(made.device_group) == "ringkern"
        given = torch.full((3, 5), float(rank + 1)).t()
        assert made.all_reduce(given) is given
        assert given.tolist() == [[size * (size + 1) / 2] * 3] * 5
        gathered = torch.empty(size, dtype=torch.int64)
        dist.all_gather_into_tensor(gathered, torch.tensor([rank]), made.device_group)
        assert gathered.tolist() == [*range(size)]
        group = made.device_group
        made.destroy()
        with pytest.raises(ValueError, match=r"not registered|Invalid process group"):
            dist.get_rank(group)


@pytest.mark.parametrize("size", [2, 3])
def test_groups(ranks: Pool, size: int) -> None:
    ranks(size).run(_members, timeout_s=120)


def _part_of_the_ranks(rank: int, size: int) -> None:
    made = _communicator(ranks=[0, 2])
    if made is not None:
        assert made.all_reduce(torch.tensor([rank])).tolist() == [2]
        made.destroy()


def test_a_part_of_the_ranks(ranks: Pool) -> None:
    """No other rank has to call, as vLLM makes only the members' communicators."""
    ranks(3).run(_part_of_the_ranks, timeout_s=120)


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
    made.destroy()


def test_ranks_are_connected_before_the_first_call(ranks: Pool) -> None:
    """A call that still had to connect would wait here for a rank that waits for its caller."""
    ranks(2).run(_first_call, timeout_s=60)


def _pipeline(rank: int, size: int) -> None:
    made = _communicator("pp:0")
    tensors = {
        "hidden": torch.randn(7, 33, generator=torch.Generator().manual_seed(1)).bfloat16(),
        "turned": torch.arange(12).reshape(3, 4).t(),
        "none": torch.empty(0, 4),
        "one": torch.tensor(True),
        "large": torch.arange(500_000, dtype=torch.float32),
    }
    last = size - 1
    if rank == 0:
        with pytest.raises(TypeError, match="'name' is str"):
            made.send_tensor_dict({"name": "text"}, last)
        made.send_tensor_dict(tensors, last)
        made.send_tensor_dict({}, last)
    elif rank == last:
        received = made.recv_tensor_dict(0)
        assert list(received) == list(tensors)
        for name, wanted in tensors.items():
            assert received[name].dtype == wanted.dtype
            assert torch.equal(received[name], wanted), name
        assert made.recv_tensor_dict(0) == {}
    made.destroy()


@pytest.mark.parametrize("size", [2, 3])
def test_tensors_by_name(ranks: Pool, size: int) -> None:
    ranks(size).run(_pipeline, timeout_s=60)
