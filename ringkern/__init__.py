"""ringkern: a ring all-reduce as C++/CUDA kernels, for PyTorch.

A ring of one rank. In a rank of torchrun, ``dist.init_process_group("gloo")`` is enough:

>>> import torch, torch.distributed as dist, ringkern
>>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
>>> x = torch.ones(4)
>>> ringkern.ring_all_reduce(x)  # in place
>>> x
tensor([1., 1., 1., 1.])

:mod:`ringkern.local` runs all ranks in one process.
"""

from __future__ import annotations

from . import startup

# The command line loads the rest when a command needs it, so that it can report a failed import.
if not startup.by_command_line():
    from .api import *  # noqa: F403
    from .api import __all__ as __all__
    from .api import __version__ as __version__
