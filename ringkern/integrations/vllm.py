"""A plug-in for vLLM on CPUs: the collectives of tensor parallelism over ringkern.

vLLM loads :func:`register` in each of its processes, by the entry point ``vllm.general_plugins``.
``VLLM_PLUGINS=ringkern`` turns it on: see ``docs/howto/vllm.md``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import vllm.envs
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.logger import init_logger
from vllm.platforms import current_platform

from ..ops import ring_all_gather, ring_all_reduce

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
    """vLLM's communicator of a CPU group, with its collectives over ringkern.

    It takes the arguments of ``CpuCommunicator``. Messages between the stages of a pipeline stay
    with Gloo.
    """

    def __init__(
        self,
        cpu_group: dist.ProcessGroup,
        device: torch.device | None = None,
        device_group: dist.ProcessGroup | None = None,
        unique_name: str = "",
        use_all2all: bool = False,
    ) -> None:
        # vLLM maps shared memory of its own for groups with these names, and leaves it behind when
        # a worker is killed.
        own = unique_name.startswith(("tp", "pp"))
        name = f"ring {unique_name}" if own else unique_name
        super().__init__(cpu_group, device, device_group, name, use_all2all=use_all2all)
        self.unique_name = unique_name
        # Connects the ranks, so that a worker that ends before its first call is missed at once.
        ring_all_reduce(torch.zeros(1), group=self.device_group)
        _log.info("Group %s: %d ranks over ringkern", unique_name, self.world_size)

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sums a tensor over all ranks, in place, and returns it."""
        ring_all_reduce(input_, group=self.device_group)
        return input_

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Returns the tensors of all ranks, of one shape, joined along ``dim`` in rank order."""
        parts = input_.new_empty((self.world_size, *input_.shape))
        ring_all_gather(parts, input_, group=self.device_group)
        return parts.flatten(0, 1) if dim in (0, -input_.dim()) else torch.cat(parts.unbind(), dim)

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """Returns on rank ``dst`` what :meth:`all_gather` returns, and ``None`` on the others."""
        gathered = self.all_gather(input_, dim)
        return gathered if self.rank_in_group == dst else None
