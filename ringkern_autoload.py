"""Makes torch know the backend ``"ringkern"``, also where nobody imports ringkern.

torch calls :func:`register` at the end of ``import torch``, by the entry point ``torch.backends``
of the package. A module of its own, which imports nothing of ringkern: whatever failed here would
make ``import torch`` itself fail, in every program. TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns it off.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from typing import Any


def register() -> None:
    """Tells torch of the backend; ringkern is imported when a process group is first made of it."""
    import torch
    import torch.distributed as dist

    _warn_if_hidden()
    if not dist.is_available() or hasattr(dist.Backend, "RINGKERN"):
        return
    # What torch has no support for would be chosen where a program asks for "the device" of the
    # backend, as sharded state dicts do.
    devices = ["cpu"] if torch.version.cuda is None else ["cpu", "cuda"]
    dist.Backend.register_backend("ringkern", _create, extended_api=True, devices=devices)


def _warn_if_hidden() -> None:
    """Warns where ``import ringkern`` finds a folder without a module, such as a clone's.

    Python prefers a folder of that name in the current directory to an editable installation.
    """
    with contextlib.suppress(Exception):
        found = importlib.util.find_spec("ringkern")
        if found is not None and found.origin is None:
            folder = next(iter(found.submodule_search_locations or ()), "")
            warnings.warn(
                f"`import ringkern` finds the folder {folder}, which is not the package but hides "
                "it. Run Python from another directory, such as inside of that folder",
                stacklevel=1,
            )


def _create(options: Any, backend_options: Any = None) -> Any:
    from ringkern.backend import create

    return create(options, backend_options)
