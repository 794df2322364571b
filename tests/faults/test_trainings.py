"""A training whose ranks are killed at some moments; `make faults` kills many more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.comm.exits import scenarios_of
from tests.faults.trainings import Kill, Scenario, Trainings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scenarios() -> Iterator[Scenario]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with scenarios_of("tests.faults.trained") as run:
            yield run


KILLS = {
    "": [
        Kill(0, "checkpoint", 6, 0.0, "KILL"),
        Kill(2, "wrap", 0, 0.001, "TERM"),
        Kill(1, "backward", 4, 0.001, "exit"),
    ],
    "aabb": [
        Kill(0, "forward", 5, 0.0, "STOP"),
        Kill(3, "made", 0, 0.0, "SEGV"),
        Kill(2, "backward", 7, 0.001, "KILL"),
    ],
}


@pytest.mark.parametrize("hosts", KILLS, ids=["1 host", "2 hosts"])
def test_all_survivors_name_the_dead_rank(scenarios: Scenario, tmp_path: Path, hosts: str) -> None:
    """The training continues from its checkpoint, to the same bits as an undisturbed one."""
    trainings = Trainings(scenarios, tmp_path, hosts)
    try:
        for kill in KILLS[hosts]:
            fate = trainings.live(kill)
            assert not fate.wrong, fate.wrong
            assert len(fate.said) == trainings.size - 1
        last = trainings.live(None)
        assert not last.wrong, last.wrong
        assert trainings.trainings == 2
        assert trainings.resumed >= 2
    finally:
        trainings.close()
