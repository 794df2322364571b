"""Process groups: finds the requested group, and the start of a communicator over its ranks."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import _C, recorder
from .errors import CommUsageError

# The number of communicators made for a group, and for which of its renewals.
_made: weakref.WeakKeyDictionary[dist.ProcessGroup, tuple[str, int]] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def resolve_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Returns the requested process group, or raises an error that says what to do."""
    if group is None:
        if not dist.is_initialized():
            raise CommUsageError(
                "torch.distributed is not initialised: call torch.distributed.init_process_group("
                "'gloo') first, or use ringkern.Communicator.from_store"
            )
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(
                "this rank is not a member of the group: only the ranks given to new_group may call"
            )
        raise TypeError(
            f"group is {type(group).__name__}; give a ProcessGroup, or None for the default"
        )
    return group


def place_of(group: dist.ProcessGroup | None) -> tuple[dist.Store, int, int, str]:
    """Returns the store, rank, number of ranks, and the name of the next ring over ``group``."""
    group = resolve_group(group)
    renewal = _C.renewal_of(group)
    with _making:
        of, number = _made.get(group, ("", 0))
        number = number + 1 if of == renewal else 1
        _made[group] = renewal, number
    # The n-th communicators of all ranks meet, whichever rank connects first.
    name = f"ringkern/{group.group_name}{renewal}"
    recorder.remember_group(name, group.group_desc, recorder.ranks_of(group))
    name += f"#{number}" if number > 1 else ""
    return group.get_group_store(), group.rank(), group.size(), name


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``function`` so that torch.compile ends a graph before it. Called while it traces."""
    # Not torch.compiler.disable: it imports the compiler, a second that most programs do not need.
    wrapped: Callable[..., Any] = torch._disable_dynamo(function)
    return wrapped
