"""torch's distributed tests in one rank: their gates opened, one test after another in one process.

The tests are written for a few backends that torch knows by name: `BACKEND == "gloo"` opens those
for CPU tensors. Here any backend is asked what Gloo is asked, and ringkern what only MPI is, too.
"""

from __future__ import annotations

import importlib
import os
import time
import unittest
from collections import ChainMap
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch.testing._internal import common_distributed, common_utils

from tests.conformance.known import OF_MPI
from tests.conformance.reconfigure import AlsoNamed

MODULE = "torch.testing._internal.distributed.distributed_test"
GROUP_TIMEOUT_S = 30  # under the runner's: a rank that waits in vain tells for whom

# Where the module lists the backends whose events in a profile are compared.
PROFILED = (
    "PROFILING_SUPPORTED_BACKENDS",
    "CUDA_PROFILING_SUPPORTED_BACKENDS",
    "SEND_RECV_PROFILING_SUPPORTED_BACKENDS",
)


def load(backend: str, ranks: int) -> ModuleType:
    """The module of the tests, whose gates are decided as it is imported: once a process."""
    if backend != "gloo":
        importlib.import_module(backend)  # registers it
    # INIT_METHOD: tests that begin the default group anew want to meet in a file.
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(ranks), INIT_METHOD="file://")
    common_distributed.DistTestCases.backend_feature["plugin"].add(backend)
    if ranks >= 3:
        # For tests of the subgroup [1, 2], which torch runs with 8 ranks only.
        common_distributed.skip_if_small_worldsize = lambda test: test
    environ = ChainMap({"BACKEND": AlsoNamed(backend, "gloo")}, os.environ)  # type: ignore[arg-type]
    with mock.patch.object(os, "environ", environ):
        module = importlib.import_module(MODULE)
    for name in PROFILED:
        getattr(module, name).append(backend)
    return module


class TorchSuite:
    """The tests of torch that a rank runs, with a process group for each."""

    def __init__(self, backend: str, ranks: int) -> None:
        self._backend, self._ranks = backend, ranks
        self._module = load(backend, ranks)
        self._case = _case(self._module)
        if backend != "gloo":
            _open(self._case, OF_MPI)
        self._environ = dict(os.environ)

    def tests(self) -> dict[str, str]:
        """Returns the names, each with the reason why it is skipped without a try, or none."""
        reasons = {}
        for name in unittest.TestLoader().getTestCaseNames(self._case):
            test = getattr(self._case, name)
            skipped = getattr(test, "__unittest_skip__", False)
            reasons[name] = (test.__unittest_skip_why__ or "no reason given") if skipped else ""
        return reasons

    def run(self, test: str, rank: int, place: Path) -> None:
        """``place``: a directory that the ranks share, new for each test."""
        self._start_afresh(place)
        case = self._case(test)
        case.rank, case.file_name, case.place = rank, str(place / "world"), place
        timeout_s = self._module.CUSTOM_PG_TIMEOUT.get(test, GROUP_TIMEOUT_S)
        dist.init_process_group(
            self._backend,
            init_method=case.init_method,
            world_size=self._ranks,
            rank=rank,
            timeout=timedelta(seconds=timeout_s),
        )
        case._barrier()
        reason = _skip_reason(getattr(case, test))
        case._barrier()
        dist.destroy_process_group()
        if reason:
            raise unittest.SkipTest(reason)

    def _start_afresh(self, place: Path) -> None:
        """Undoes changes of a test to this process, such as to its debug level."""
        os.environ.clear()
        os.environ.update(self._environ)
        dist.set_debug_level_from_env()
        common_utils.set_rng_seed()
        for name in ("test_dir", "init_dir"):
            (place / name).mkdir(exist_ok=True)
        os.environ["TEMP_DIR"] = str(place)
        self._module.INIT_METHOD = f"file://{place}/init_dir/world"


def _open(case: Any, reasons: tuple[str, ...]) -> None:
    """Enables tests that are skipped for these reasons."""
    for name in unittest.TestLoader().getTestCaseNames(case):
        test = getattr(case, name)
        if getattr(test, "__unittest_skip_why__", "") in reasons:
            test.__unittest_skip__ = False


def _skip_reason(test: Any) -> str:
    """Runs a test; why it was skipped, if it was: torch ends the process with a code then."""
    try:
        test()
    except unittest.SkipTest as skip:
        return str(skip) or "no reason given"
    except SystemExit as end:
        for skip in common_distributed.TEST_SKIPS.values():
            if skip.exit_code == end.code:
                return str(skip.message)
        raise AssertionError(f"the test ended its process with {end.code!r}") from None
    return ""


def _case(module: ModuleType) -> Any:
    class Case(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore
        """A test, whose ranks meet without torch's pauses of 0.1 s: most of the time of most."""

        rank: int
        place: Path
        meetings = 0

        def _barrier(self, wait_for: int | None = None, timeout: float = 10) -> None:
            self.meetings += 1
            with open(self.place / f"met-{self.rank}", "a") as file:
                file.write("x")
            expected = int(self.world_size) if wait_for is None else wait_for
            end = time.monotonic() + timeout
            while self._arrived() < expected:
                if time.monotonic() > end:
                    raise RuntimeError(f"{self._arrived()} of {expected} ranks came in {timeout} s")
                time.sleep(0.003)

        def _arrived(self) -> int:
            return sum(f.stat().st_size >= self.meetings for f in self.place.glob("met-*"))

    return Case
