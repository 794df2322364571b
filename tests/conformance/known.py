"""Tests that Gloo passes and ringkern's backend cannot, each with the reason; and tests that only
ringkern passes.

The run fails on an unneeded entry, so every entry is true.
"""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    test: str
    reason: str
    before: tuple[int, int] | None = None  # the torch that has ended it


_MONITORED = "torch.distributed.monitored_barrier refuses every backend but Gloo"
_UNTIL = (2, 15)

KNOWN = (
    Known(
        "test_ddp_logging_data_cpu",
        'DistributedDataParallel logs every backend that is not part of torch as "custom"',
    ),
    Known("test_monitored_barrier_gloo", _MONITORED, _UNTIL),
    Known("test_monitored_barrier_gloo_subgroup", _MONITORED, _UNTIL),
    Known("test_monitored_barrier_failure_order", _MONITORED, _UNTIL),
    Known("test_monitored_barrier_wait_all_ranks", _MONITORED, _UNTIL),
)


# Why tests for CPU tensors are skipped whose collectives ringkern has: it is asked them, too.
OF_MPI = ("Only MPI supports CPU all_to_all_single", "Only MPI supports all_to_all")


def known_in(torch_version: str) -> tuple[Known, ...]:
    """Returns the entries that hold in a version of torch, such as 2.13.0+cpu."""
    major, minor = torch_version.split(".")[:2]
    version = int(major), int(minor)
    return tuple(k for k in KNOWN if k.before is None or version < k.before)
