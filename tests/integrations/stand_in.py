"""The parts of vLLM that ringkern's plug-in meets, for tests where vLLM is not installed."""

from __future__ import annotations

import logging
import os
import sys
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist


class CpuCommunicator:
    """A communicator over the group of the device; ``own_memory``: it would map vLLM's segments."""

    def __init__(
        self,
        cpu_group: Any,
        device: Any = None,
        device_group: Any = None,
        unique_name: str = "",
        use_all2all: bool = False,
    ) -> None:
        self.cpu_group, self.device_group, self.unique_name = cpu_group, device_group, unique_name
        self.ranks = dist.get_process_group_ranks(cpu_group)
        self.world_size = len(self.ranks)
        self.own_memory = unique_name.startswith(("tp", "pp"))
        self.exchanges_experts = use_all2all and unique_name.startswith("ep")
        self.supports_tensor_dict = self.own_memory

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        dist.send(tensor, self.ranks[dst], self.device_group)

    def recv(self, size: torch.Size, dtype: torch.dtype, src: int) -> torch.Tensor:
        tensor = torch.empty(size, dtype=dtype)
        dist.recv(tensor, self.ranks[src], self.device_group)
        return tensor

    def destroy(self) -> None:
        pass


class Platform:
    """A platform with vLLM's own communicator."""

    device_name = "cpu"

    def is_cpu(self) -> bool:
        return self.device_name == "cpu"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm's own"


class _Envs(ModuleType):
    """Variables of vLLM, read when they are asked for."""

    @property
    def VLLM_PLUGINS(self) -> list[str] | None:
        value = os.environ.get("VLLM_PLUGINS")
        return None if value is None else value.split(",")


def install() -> ModuleType:
    """Puts the parts in the place of vLLM; returns the plug-in, imported anew over them."""
    envs = _Envs("vllm.envs")
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"envs": envs},
        "vllm.distributed": {},
        "vllm.distributed.device_communicators": {},
        "vllm.distributed.device_communicators.cpu_communicator": {
            "CpuCommunicator": CpuCommunicator
        },
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": type("CpuPlatform", (Platform,), {})()},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        vars(module).update(values)
        sys.modules[name] = module
    sys.modules["vllm.envs"] = envs
    sys.modules.pop("ringkern.integrations.vllm", None)
    import ringkern.integrations.vllm as plugin

    return plugin


def remove() -> None:
    """Takes the parts away again."""
    for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
        del sys.modules[name]
    sys.modules.pop("ringkern.integrations.vllm", None)
