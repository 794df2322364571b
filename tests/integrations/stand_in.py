"""The parts of vLLM that ringkern's plug-in meets, for tests where vLLM is not installed."""

from __future__ import annotations

import logging
import os
import sys
from types import ModuleType
from typing import Any

import torch.distributed as dist


class CpuCommunicator:
    """A communicator of a group; ``own_memory``: it would map shared memory of vLLM's."""

    def __init__(
        self,
        cpu_group: Any,
        device: Any = None,
        device_group: Any = None,
        unique_name: str = "",
        use_all2all: bool = False,
    ) -> None:
        self.device_group, self.unique_name = device_group, unique_name
        self.world_size = dist.get_world_size(cpu_group)
        self.rank_in_group = dist.get_rank(cpu_group)
        self.own_memory = unique_name.startswith(("tp", "pp"))
        self.exchanges_experts = use_all2all and unique_name.startswith("ep")


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
    remove()
    communicators = "vllm.distributed.device_communicators"
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"envs": _Envs("vllm.envs")},
        "vllm.distributed": {},
        communicators: {},
        f"{communicators}.cpu_communicator": {"CpuCommunicator": CpuCommunicator},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": type("CpuPlatform", (Platform,), {})()},
    }
    for name, values in contents.items():
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(values)
    sys.modules["vllm.envs"] = sys.modules["vllm"].envs
    import ringkern.integrations.vllm as plugin

    return plugin


def remove() -> None:
    """Takes the parts away again."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.modules.pop("ringkern.integrations.vllm", None)
