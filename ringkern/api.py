"""The names of ``import ringkern``. Checks first that the extension matches torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from . import startup

_REBUILD = f"build it again, in its clone: {startup.REBUILD}"

try:
    from . import _C
except ImportError as error:
    if not any(Path(__file__).parent.glob("_C.*.so")):
        raise ImportError(
            f"ringkern's extension is not in {Path(__file__).parent}: this is the source, not an "
            "installation. Run Python from another directory, or build in place: pip install -e ."
        ) from error
    raise ImportError(
        f"ringkern's extension does not load under torch {torch.__version__} ({error}). If it was "
        f"built against another torch, {_REBUILD}"
    ) from error

if _C.torch_version.split(".")[:2] != torch.__version__.split(".")[:2]:
    # The classes of c10d change between versions: the extension would load, and crash later.
    raise ImportError(
        f"ringkern was built against torch {_C.torch_version} and this is torch "
        f"{torch.__version__}; {_REBUILD}"
    )

from . import backend, ddp, errors, functional, local  # noqa: E402
from .comm import Communicator  # noqa: E402
from .config import config  # noqa: E402
from .launchers import init  # noqa: E402
from .ops import ring_all_gather, ring_all_reduce, ring_reduce_scatter  # noqa: E402
from .recorder import dump  # noqa: E402
from .shards import ShardSum  # noqa: E402
from .shared import empty, is_shared, shared_memory, zeros  # noqa: E402

__version__: str = _C.version

_C.use_cuda_memory(config.cuda_memory)


def build_info() -> dict[str, Any]:
    """Describes this build of ringkern and the devices that it finds.

    Returns:
        A dict with the keys version, torch (the version that it was built against), compiler,
        cpu_isa (the instruction set that the reductions use on this machine), cuda (``True`` if
        kernels are compiled in), cuda_archs, cuda_runtime, cuda_devices (visible now), dtypes, ops
        and protocols.
    """
    return dict(_C.build_info())


__all__ = [
    "Communicator",
    "ShardSum",
    "backend",
    "build_info",
    "ddp",
    "dump",
    "empty",
    "errors",
    "functional",
    "init",
    "is_shared",
    "local",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "shared_memory",
    "zeros",
]
