"""The backend on CUDA tensors has the semantics of torch's ProcessGroupNCCL, except for documented
differences: docs/reference/torch_distributed.md names the test of each point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.comm.exits import scenarios_of
from tests.torch import fake_cuda

if (reason := fake_cuda.why_not()) is not None:
    pytest.skip(reason, allow_module_level=True)

Scenario = Callable[[str], None]


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[str, int, Path], list[dict[str, Any]]]]:
    module = fake_cuda.over_fake("tests.torch.cuda_semantics")
    with scenarios_of(*module, RINGKERN_ON_FAULT="raise") as run:
        yield run


@pytest.fixture
def two_ranks(server: Callable[[str, int, Path], list[dict[str, Any]]], tmp_path: Path) -> Scenario:
    def run(name: str) -> None:
        for rank in server(name, 2, tmp_path):
            assert rank["status"] == 0, rank["stderr"]

    return run


def test_wait_blocks_the_current_stream(two_ranks: Scenario) -> None:
    two_ranks("wait_blocks_the_stream")


def test_synchronous_calls_are_on_the_current_stream(two_ranks: Scenario) -> None:
    two_ranks("synchronous_calls")


def test_asynchronous_calls_follow_the_current_stream(two_ranks: Scenario) -> None:
    two_ranks("asynchronous_calls")


def test_tensors_of_a_work_stay(two_ranks: Scenario) -> None:
    two_ranks("lifetimes")


def test_devices_of_a_call(two_ranks: Scenario) -> None:
    two_ranks("other_devices")


def test_wait_with_a_timeout_blocks_the_host(two_ranks: Scenario) -> None:
    two_ranks("timeouts_of_wait")


@pytest.mark.parametrize("of_the_group", [False, True])
def test_states_and_timeouts_of_a_call(
    two_ranks: Scenario, tmp_path: Path, of_the_group: bool
) -> None:
    if of_the_group:
        (tmp_path / "of the group").write_text("")
    two_ranks("states")


def test_futures(two_ranks: Scenario) -> None:
    two_ranks("futures")


def test_a_work_in_a_capture(two_ranks: Scenario) -> None:
    two_ranks("captures")


def test_coalesced_calls_are_one_work(two_ranks: Scenario) -> None:
    two_ranks("coalescing")


def test_messages_of_a_pair_are_in_order(two_ranks: Scenario) -> None:
    two_ranks("messages_between_two")


def test_tensors_that_nccl_refuses(two_ranks: Scenario) -> None:
    two_ranks("tensors")


@pytest.mark.parametrize("aborts", [False, True])
def test_the_end_of_a_group(two_ranks: Scenario, tmp_path: Path, aborts: bool) -> None:
    if aborts:
        (tmp_path / "aborts").write_text("")
    two_ranks("ends")


def test_a_group_shrinks(
    server: Callable[[str, int, Path], list[dict[str, Any]]], tmp_path: Path
) -> None:
    for rank in server("shrinks", 3, tmp_path):
        assert rank["status"] == 0, rank["stderr"]


def test_methods_that_only_nccl_has_are_absent(two_ranks: Scenario) -> None:
    two_ranks("lacks")


def test_sums_by_a_tree(two_ranks: Scenario) -> None:
    two_ranks("sums_by_a_tree")
