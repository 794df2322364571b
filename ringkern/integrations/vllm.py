"""A plug-in for vLLM on CPUs: tensor and pipeline parallelism over ringkern.

vLLM loads :func:`register` in each of its processes, by the entry point ``vllm.general_plugins``.
``VLLM_PLUGINS=ringkern`` turns it on: see ``docs/howto/vllm.md``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import vllm.envs
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.logger import init_logger
from vllm.platforms import current_platform

from ..ops import ring_all_reduce

_log = init_logger("vllm.ringkern")  # vLLM shows loggers below its own


def register() -> None:
    """Makes vLLM's CPU platform use :class:`RingCommunicator`, if ``VLLM_PLUGINS`` names ringkern.

    Without the variable vLLM loads every plug-in that it finds. Then this one does nothing, so that
    an installed ringkern alone changes no server.
    """
    if "ringkern" not in (vllm.envs.VLLM_PLUGINS or ()):
        return
    if not current_platform.is_cpu():
        _log.warning(
            "VLLM_PLUGINS names ringkern, whose plug-in is for vLLM on CPUs; this platform is %s, "
            "which keeps its own communicator",
            current_platform.device_name,
        )
        return
    name = f"{__name__}.{RingCommunicator.__name__}"
    type(current_platform).get_device_communicator_cls = classmethod(lambda cls: name)


class RingCommunicator(CpuCommunicator):  # type: ignore[misc]
    """vLLM's communicator of a CPU group, with all collectives and messages over ringkern.

    Takes the arguments of ``CpuCommunicator``, and makes a group of the backend ``"ringkern"`` with
    the same ranks. Every rank of the group must make it, as of any of vLLM's communicators.
    """

    def __init__(
        self,
        cpu_group: dist.ProcessGroup,
        device: torch.device | None = None,
        device_group: dist.ProcessGroup | None = None,
        unique_name: str = "",
        use_all2all: bool = False,
    ) -> None:
        # vLLM maps shared memory of its own for groups with these names, and removes it nowhere.
        name = unique_name if not unique_name.startswith(("tp", "pp")) else f"ring {unique_name}"
        super().__init__(cpu_group, device, device_group, name, use_all2all=use_all2all)
        self.unique_name = unique_name
        # The inherited methods use this group.
        self.device_group = dist.new_group(
            self.ranks, backend="ringkern", use_local_synchronization=True, group_desc=unique_name
        )
        self.supports_tensor_dict = True
        # Connects the ranks of all_reduce(), so that a worker that ends before its first call is
        # missed at once.
        ring_all_reduce(torch.zeros(1), group=self.device_group)
        _log.info("Group %s: %d ranks over ringkern", unique_name, self.world_size)

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sums a tensor over all ranks, in place, and returns it."""
        ring_all_reduce(input_, group=self.device_group)
        return input_

    def send_tensor_dict(self, tensor_dict: dict[str, torch.Tensor | Any], dst: int) -> None:
        """Sends tensors and their names to a rank of the group, which receives them.

        Args:
            tensor_dict: tensors of any shape and dtype, by name.
            dst: the other rank's number in the group.

        Raises:
            TypeError: a value is no tensor.
        """
        for key, value in tensor_dict.items():
            if not isinstance(value, torch.Tensor):
                raise TypeError(
                    f"the value of {key!r} is {type(value).__name__}; a pipeline of CPUs sends "
                    "tensors alone"
                )
        heads = [(key, value.shape, value.dtype) for key, value in tensor_dict.items()]
        dist.send_object_list([heads], self.ranks[dst], self.device_group)
        for value in tensor_dict.values():
            if value.numel() > 0:
                self.send(value, dst)

    def recv_tensor_dict(self, src: int) -> dict[str, torch.Tensor | Any]:
        """Receives what a rank of the group passes to :meth:`send_tensor_dict`.

        Args:
            src: the other rank's number in the group.

        Returns:
            The tensors by name.
        """
        received: list[Any] = [None]
        dist.recv_object_list(received, self.ranks[src], self.device_group)
        return {
            key: self.recv(shape, dtype, src)
            if shape.numel() > 0
            else torch.empty(shape, dtype=dtype)
            for key, shape, dtype in received[0]
        }

    def destroy(self) -> None:
        """Leaves the group over ringkern."""
        super().destroy()
        dist.destroy_process_group(self.device_group)
