"""Data-parallel and sharded training over hosts: unchanged programs, the losses of one host."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.comm.exits import scenarios_of
from tests.hosts.fates import Plan
from tests.hosts.namespaces import Net, why_not
from tests.torch.test_launchers import free_port

pytestmark = pytest.mark.slow

Scenario = Callable[[str, int, Path], list[dict[str, Any]]]
Losses = list[dict[str, list[float]]]  # by rank: of what, and of each step or epoch

RANKS = 4
TOLERANCE = 1e-5  # as that of the examples, for sums in another order
EXAMPLES = [
    pytest.param("ddp", id="DistributedDataParallel"),
    pytest.param("fsdp2", id="FSDP2"),
    pytest.param(
        "deepspeed_zero",
        id="DeepSpeed ZeRO",
        marks=needs.package("deepspeed"),
    ),
]
# One of them, unless both are requested, because they are slow.
POSSIBLE = ["namespaces", "names"] if why_not() is None else ["names"]
WHERE = POSSIBLE if "RK_TEST_HOSTS_EXAMPLES" in os.environ else POSSIBLE[:1]


@pytest.fixture(scope="module")
def scenarios() -> Iterator[Scenario]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # hosts of namespaces have no names
        patch.setenv("OMP_NUM_THREADS", "1")
        with scenarios_of("tests.hosts.trainings") as run:
            yield run


@pytest.fixture(scope="module")
def trained(
    scenarios: Scenario, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Plan], Losses]:
    """``trained(example, plan)``: the losses; of each only once."""
    kept: dict[tuple[str, str], Losses] = {}

    def of(example: str, plan: Plan) -> Losses:
        key = (example, plan.names)
        if plan.place is None and key in kept:
            return kept[key]
        folder = tmp_path_factory.mktemp(example)
        plan.write(folder)
        (folder / "example").write_text(example)
        (folder / "port").write_text(str(free_port()))
        outcome = scenarios("train", RANKS, folder)
        assert [rank["status"] for rank in outcome] == [0] * RANKS, outcome
        found = [json.loads((folder / f"losses{rank}").read_text()) for rank in range(RANKS)]
        if plan.place is None:
            kept[key] = found
        return found

    return of


def check_same(ours: Losses, one_host: Losses) -> None:
    for rank in range(RANKS):
        assert ours[rank].keys() == one_host[rank].keys()
        for name, curve in one_host[rank].items():
            assert curve[-1] < curve[0], f"{name} learns nothing"
            assert ours[rank][name] == pytest.approx(curve, abs=TOLERANCE, rel=0), name


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("example", EXAMPLES)
def test_two_hosts_learn_as_one(
    trained: Callable[[str, Plan], Losses], example: str, where: str
) -> None:
    if where == "names":
        ours = trained(example, Plan(names="aabb"))
    else:
        with Net(2) as net:
            ours = trained(example, Plan(place=asdict(net.place([2, 2]))))
    check_same(ours, trained(example, Plan(names="aaaa")))
