"""torch's tests of groups whose ranks change, in one rank: test_c10d_fault_tolerance.py.

torch's wheel does not have this file; it is read from a checkout of PyTorch. Its tests differ for
Gloo and for NCCL: ringkern is asked what Gloo is, and in some tests what NCCL is.
"""

from __future__ import annotations

import importlib.util
import os
import unittest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PYTORCH = "RK_PYTORCH"  # the variable that names the checkout
FILE = Path("test", "distributed", "test_c10d_fault_tolerance.py")
RANKS = 3  # that its tests are written for

# After abort(), a group of ringkern reports an error, as NCCL's do; Gloo reports none. The others
# are tests of timeouts, which the file runs with NCCL only.
AS_NCCL = (
    "test_reconfigure_after_abort",
    "test_reconfigure_timeout_is_retryable",
    "test_reconfigure_after_failed_join_has_unique_handle",
)


class AlsoNamed(str):
    """The name of a backend that equals another name as well, alone and in a set of names."""

    __slots__ = ("_other",)

    def __new__(cls, name: str, other: str) -> AlsoNamed:
        made = super().__new__(cls, name)
        made._other = other
        return made

    def __eq__(self, other: object) -> bool:
        return other == self._other or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._other)


class FaultTolerance:
    """The tests of the file, with three ranks."""

    def __init__(self, backend: str, ranks: int) -> None:
        if ranks != RANKS:
            raise ValueError(f"torch's tests of reconfigure() are for {RANKS} ranks, not {ranks}")
        if not hasattr(dist.distributed_c10d, "_reconfigure"):
            raise ValueError(f"torch {torch.__version__} has no reconfigure(); 2.14 and newer have")
        if backend != "gloo":
            importlib.import_module(backend)  # registers it
        path = Path(os.environ[PYTORCH], FILE)
        spec = importlib.util.spec_from_file_location("fault_tolerance", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # The classes for NCCL are skipped by a look at the GPUs.
        spec.loader.exec_module(module)
        self._backend = backend
        made = module.FaultToleranceBackend(backend, "cpu")
        self._case: Any = module._make_fault_tolerance_test_class(made)

    def tests(self) -> dict[str, str]:
        """Returns the names of the tests; none is skipped without a try."""
        return dict.fromkeys(unittest.TestLoader().getTestCaseNames(self._case), "")

    def run(self, test: str, rank: int, place: Path) -> None:
        """``place``: a directory that the ranks share, new for each test."""
        case = self._case(test)
        if self._backend == "ringkern" and test in AS_NCCL:
            case.backend_name = AlsoNamed(self._backend, "nccl2")
        case.rank, case.file_name = rank, str(place / "store")
        try:
            getattr(case, test)()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
