"""Registers the backend ``"ringkern"`` with torch, also in programs that do not import ringkern.

torch calls :func:`register` at the end of ``import torch``, by the entry point ``torch.backends``
of the package. This module imports nothing of ringkern, because an error here would make
``import torch`` fail in every program. TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns it off.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from typing import Any


def register() -> None:
    """Registers the backend; its first process group imports ringkern."""
    import torch
    import torch.distributed as dist

    _warn_if_hidden()
    if not dist.is_available() or hasattr(dist.Backend, "RINGKERN"):
        return
    # Sharded state dicts ask for "the device" of the backend and must not get an unsupported one.
    devices = ["cpu"] if torch.version.cuda is None else ["cpu", "cuda"]
    dist.Backend.register_backend("ringkern", _create, extended_api=True, devices=devices)


def _warn_if_hidden() -> None:
    """Warns if ``import ringkern`` finds a folder without the module, such as a clone's.

    Python prefers a folder of that name in the current directory to an editable installation.
    """
    with contextlib.suppress(Exception):
        found = importlib.util.find_spec("ringkern")
        if found is not None and found.origin is None:
            folder = next(iter(found.submodule_search_locations or ()), "")
            warnings.warn(
                f"`import ringkern` finds the folder {folder}, which hides the package. Run Python "
                "from another directory, such as inside of that folder",
                stacklevel=1,
            )


def _create(options: Any, backend_options: Any = None) -> Any:
    from ringkern.backend import create

    return create(options, backend_options)
